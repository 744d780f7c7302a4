/* arena.h — offsets in a plan's memory for blocks that live from one position of the order to another (arena.c). */
#ifndef TN_ARENA_H
#define TN_ARENA_H

#include "base/base.h"

/* A piece of the arena in use. Blocks are linked by offset, by the position at which they end, and as a treap of the
 * gaps before them. Links are numbers of blocks, -1: none. */
typedef struct tn_arena_block {
    int64_t offset, bytes, gap; /* gap: free bytes before it */
    int last;                   /* position of the last group that needs it */
    int value;                  /* that lies there; -1: none, or a workspace */
    int before, after;
    int ends_with, ends_after; /* its neighbours in the list of those with this `last` */
    int left, right;           /* treap of gaps */
    uint32_t priority;
} tn_arena_block;

typedef struct tn_arena {
    tn_arena_block *blocks;
    size_t count, capacity;
    int unused;    /* list of free entries of blocks, through `after` */
    int tail;      /* the block with the highest offset */
    int gaps;      /* root of the treap */
    int *ending;   /* by position: blocks that are not needed after it */
    int *block_of; /* by value */
    int positions, released;
    uint32_t random;
    int64_t high; /* bytes that the arena needs */
} tn_arena;

/* For groups at positions 0 … positions - 1, and `values` values. Call tn_arena_end also after a failure. */
tn_status tn_arena_begin(tn_arena *a, int positions, size_t values);
void tn_arena_end(tn_arena *a);
/* Room for `value` (-1: for nobody to find) until the group at position `last` has run, in the smallest gap that fits.
 */
tn_status tn_arena_take(tn_arena *a, int64_t bytes, int last, int value, int64_t *offset);
/* Releases the blocks whose last group comes before `position`. */
void tn_arena_release_before(tn_arena *a, int position);
/* The block in which a value lies, or NULL. */
const tn_arena_block *tn_arena_find(const tn_arena *a, int value);
/* Gives the block of value `from` to value `to`, which needs it until `last` (in-place results). */
void tn_arena_pass_on(tn_arena *a, int from, int to, int last);

#endif
