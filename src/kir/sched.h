/* sched.h — rows by workgroups: a plain program whose loops are long becomes one whose items share each row.
 *
 * A plain program with loops (sums, softmax, norms) runs a row a point. Where rows are few, most of a device would
 * idle; the schedule gives each row to a workgroup of KIR_LANES items, whose item i is lane i of every reduction. Same
 * bits, for the order in which lanes and blocks are folded is part of the language. */
#ifndef KIR_SCHED_H
#define KIR_SCHED_H

#include "kir/kir.h"

/* How an access of the scheduled program gets its offset and strides from the plain program's sizes. */
typedef struct kir_size_rule {
    uint8_t kind;
    int8_t axis;                  /* of the plain program, where a rule is about one */
    int16_t access;               /* of the plain program */
    int32_t c, item, block, step; /* KIR_RULE_FIXED: the offset, and the strides along the axes that were added */
} kir_size_rule;

typedef struct kir_rows {
    kir_program *program;                /* the plain one's buffers and runtime scalars, then local buffers */
    kir_size_rule *rules;                /* one for each access that lives in its sizes */
    uint8_t n_par, n_loop, first, count; /* of the plain program: axes, the range of its loops */
} kir_rows;

/* TN_ERR_UNSUPPORTED for programs that have no such schedule: no loops, loops that nest or range over different axes,
 * chains (CHAIN, SEQ, SCAN, variables), workgroups already. */
tn_status kir_schedule_rows(const kir_program *p, kir_rows **out);
void kir_rows_free(kir_rows *r);

/* The sizes of a launch of r->program (kir_sizes_count of them) from those of the plain program. */
void kir_schedule_sizes(const kir_rows *r, const int64_t *plain, int64_t *sizes);

#endif
