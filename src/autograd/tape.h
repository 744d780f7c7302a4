/* tape.h — what one backward pass knows of each node: shared by autograd.c and regions.c. */
#ifndef TRUNNION_TAPE_H
#define TRUNNION_TAPE_H

#include "ops/ops_common.h"
#include "plan/passes.h"
#include "tensor/graph.h"

/* A node on the tape. Leaves are known by their slot: all versions of one parameter share an entry. */
typedef struct tape_entry {
    tn_node *node;
    tn_node *grad; /* sum of what has arrived; owned by the build */
    int32_t next_child;
    bool visited;
    bool needed;      /* it, or something below it, is asked for */
    int32_t position; /* in the tape's order (regions.c) */
    bool chosen;      /* regions.c has given the node its region */
} tape_entry;

/* The copies of one region of TN_RECOMPUTE. */
typedef struct region {
    int32_t origin;
    tn_node *gate;         /* the first gradient that reached it */
    tn_pointer_map copied; /* nodes → place in t->copies */
} region;

typedef struct tape {
    tn_build build;
    tape_entry *entries;
    int32_t *order; /* entries, inputs before their users */
    int32_t *stack; /* entries whose children are being visited */
    int32_t *table; /* open addressing by key; entry + 1, 0 where empty */
    size_t count, capacity, order_count, order_capacity, depth, stack_capacity, table_size;
    bool leaves_needed; /* tn_backward: every leaf is asked for */
    region *regions;
    size_t region_count, region_capacity;
    tn_node **copies, **copying; /* owned by the build; a stack of nodes that wait for copies of their inputs */
    size_t copy_count, copy_capacity, copying_capacity;
} tape;

/* n's entry; NULL: it is not on the tape. */
tape_entry *tn_tape_find(const tape *t, const tn_node *n);
/* Whether n is differentiated through its expansion. */
bool tn_tape_through_expansion(const tn_node *n);

/* Divides the forward pass on the tape into regions that are recomputed; tn_regions_forget takes them back. */
tn_status tn_regions_choose(tape *t);
void tn_regions_forget(const tape *t);

#endif
