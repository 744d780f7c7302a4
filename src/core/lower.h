/* lower.h — lowering in progress: what lower.c shares with workgroup_lower.c.
 *
 * A workgroup kernel makes a program of workgroups and asks, where it loads an operand or has a finished element, for
 * what the group's values are there. */
#ifndef TN_LOWER_H
#define TN_LOWER_H

#include "core/core.h"

typedef struct tn_memo_entry {
    int value;
    int region; /* 0: outside loops; else the loop in which it was computed */
    uint64_t hash;
    kir_val mask, result;
    size_t at; /* the first of its index */
} tn_memo_entry;

/* What was computed in the group that is being lowered; its arrays serve all groups of a plan. */
typedef struct tn_memo {
    tn_memo_entry *entries;
    size_t count, capacity;
    kir_aff *at; /* their indices */
    size_t at_count, at_capacity;
} tn_memo;

typedef struct tn_lowering {
    tn_graph_plan *g;
    tn_group *group;
    int group_id, region, loops_made;
    int loop_rank, first_loop_axis, loop_axes;
    const tn_node *space_node;
    int building;       /* the member whose value is being made, so that it is not asked of itself */
    kir_val edge;       /* workgroup kernels: where there is an element of the result at all; KIR_NONE: everywhere */
    kir_val lead_value; /* workgroup kernels: the lead's element at `space`, or KIR_NONE */
    bool folding;       /* what is made of numbers alone is being computed: they are constants there */
    bool stores_known;  /* stores_at is the place of what is computed at `space` */
    bool dividing;      /* what is asked for is a divisor */
    tn_memo *memo;
    tn_status status;
    kir_aff stores_at;
    /* zero at first as far as the lead's rank or its operand's goes: they are large */
    kir_aff space[TN_MAX_RANK]; /* index of the full space */
    kir_aff row[TN_MAX_RANK];   /* ROWS: index of the lead's result */
    kir_aff loop[TN_MAX_RANK];  /* ROWS with a loop space of its own */
} tn_lowering;

extern const tn_lower_calls tn_lowering_calls; /* what the ops' lower functions call */

tn_status tn_lowering_begin(tn_lowering *w, tn_graph_plan *g, int group);
/* The value at an index of its own, loaded where `mask` holds. lw->group is a tn_lowering. */
kir_val tn_lowering_value(tn_lower *lw, int value, const kir_aff *at, kir_val mask);
/* Whether packets of 16-bit elements can be loaded along `dim` (kir.h, FETCH): it lies in memory, along this dim
 * element by element, and all begins at multiples of them. And one such packet, named like a value. */
bool tn_lowering_has_packets(const tn_lowering *w, int value, int dim);
kir_val tn_lowering_packet(tn_lower *lw, int value, const kir_aff *at, kir_val mask);
/* The buffer that stands for a root value's memory, seen as elements of `dtype`. */
int tn_lowering_buffer(tn_lower *lw, int value, tn_dtype dtype);
/* Computes and stores what the group makes of the lead's element `value` at index `at`, where `mask` holds. */
void tn_lowering_results(tn_lower *lw, const kir_aff *at, kir_val value, kir_val mask);

#endif
