/* passes.h — shared by the planner's passes: compositions of ops, lowering in progress, tuned products. */
#ifndef TN_PASSES_H
#define TN_PASSES_H

#include "base/base.h"
#include "cpu/blas.h"
#include "cpu/cpu_kernels.h"
#include "gpu/gpu.h"
#include "plan/plan.h"
#include "tensor/graph.h"

#include "gen/ops_build.h"

/* ==== compositions of ops ========================================================================================= */
/* Half precision: a composition of f16 or bf16 would round after every step, and its range would end at 65504 in the
 * middle of a formula. So op(x) is expanded to cast(op(cast(x, f32)), f16): every step is f32, and the gradient is that
 * of the f32 form. This holds for every op that does not declare `keeps_half`. */

/* Is n in f16 or bf16, but computed in f32 and rounded once? Compositions always are; primitives only where they are
 * differentiated, because their kernels round once anyway. */
bool tn_is_widened(const tn_node *n);
/* Makes n->expansion for a composed node that has none yet. The planner computes n with it and autograd differentiates
 * through it, so it requires gradients exactly when n does, whatever the mode is now. Nodes of f16 and bf16 that are
 * computed in f32 have one too. */
tn_status tn_expand_node(tn_node *n);
/* The composition that computes n: a node of n's shape and dtype, borrowed from the build. */
tn_node *tn_compose(tn_build *b, const tn_node *n);

/* ==== lowering in progress ======================================================================================== */
/* A workgroup kernel writes a program of workgroups and calls back for each operand element that it loads and each
 * finished element. */

typedef struct tn_memo_entry {
    int value;
    int region; /* 0: outside loops; else the loop in which it was computed */
    uint64_t hash;
    kir_val mask, result;
    size_t at; /* the first of its index */
} tn_memo_entry;

/* Values already computed in the group that is being lowered; the arrays are reused for all groups of a plan. */
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
    int first_loop_axis, loop_axes;
    const tn_node *space_node;
    int building;       /* the member that is being computed, which must not be read itself */
    kir_val edge;       /* workgroup kernels: where there is an element of the result at all; KIR_NONE: everywhere */
    kir_val lead_value; /* workgroup kernels: the lead's element at `space`, or KIR_NONE */
    bool folding;       /* a value made of constants is being computed: numbers are constants there */
    bool stores_known;  /* stores_at is the place of what is computed at `space` */
    bool dividing;      /* what is asked for is a divisor */
    tn_memo *memo;
    tn_status status;
    kir_aff stores_at;
    /* only the first dims (the rank of the lead or its operand) are zeroed, because these are large */
    kir_aff space[TN_MAX_RANK]; /* index of the full space */
    kir_aff row[TN_MAX_RANK];   /* ROWS: index of the lead's result */
    kir_aff loop[TN_MAX_RANK];  /* ROWS with a separate loop space */
} tn_lowering;

extern const tn_lower_calls tn_lowering_calls; /* what the ops' lower functions call */

tn_status tn_lowering_begin(tn_lowering *w, tn_graph_plan *g, int group);
/* The value at the given index, loaded where `mask` holds. lw->group is a tn_lowering. */
kir_val tn_lowering_value(tn_lower *lw, int value, const kir_aff *at, kir_val mask);
/* Whether packets of 16-bit elements can be loaded along `dim` (kir.h, FETCH): the value is in memory, contiguous along
 * this dim and aligned to packets. The second function loads a packet. */
bool tn_lowering_has_packets(const tn_lowering *w, int value, int dim);
kir_val tn_lowering_packet(tn_lower *lw, int value, const kir_aff *at, kir_val mask);
/* The buffer for a root value's memory, accessed as elements of `dtype`. */
int tn_lowering_buffer(tn_lower *lw, int value, tn_dtype dtype);
/* Computes and stores what the group makes of the lead's element `value` at index `at`, where `mask` holds. */
void tn_lowering_results(tn_lower *lw, const kir_aff *at, kir_val value, kir_val mask);

/* ==== measured choices of products ================================================================================ */

/* A measured way: one of our own (library NULL), or a library's. */
typedef struct tn_way {
    tn_gemm_way own;
    const tn_blas *library;
    const char *name; /* lives for ever */
} tn_way;

/* Looks the product up; with TN_TUNING_FIRST_USE it is measured if it is not in the tune cache. `kept`: B's packed form
 * will be kept. `libraries`: whether they are allowed. false: choose by rule. */
bool tn_tune_product(const struct tn_device *d, const tn_gemm_args *args, tn_dtype dtype, bool kept, bool libraries,
                     tn_way *out);

/* The tile of a workgroup kernel for this product on a device (tuner.c), as in tn_gemm_shape; 0: by rule. With
 * TN_TUNING_FIRST_USE it is measured if it is not in the tune cache. */
struct tn_device;
int tn_tune_tile(struct tn_device *d, const tn_gemm_shape *s, const tn_group_limits *limits);

#endif
