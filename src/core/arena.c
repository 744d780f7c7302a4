/* arena.c — best-fit offsets in a plan's memory.
 *
 * An unrolled network has thousands of blocks in use at once. Free gaps are therefore kept in a treap ordered by size
 * and offset, and each position has a list of the blocks that end there, so taking and releasing cost O(log blocks). */
#include "core/arena.h"

#include <string.h>

enum { ALIGN = 64 };

static tn_arena_block *at(const tn_arena *a, int block) { return &a->blocks[block]; }

/* ---- the treap of gaps ------------------------------------------------------------------------------------------- */

static bool is_less(const tn_arena_block *b, int64_t gap, int64_t offset) {
    return b->gap < gap || (b->gap == gap && b->offset < offset);
}

/* Those below (gap, offset) go left. */
static void split_arena(tn_arena *a, int tree, int64_t gap, int64_t offset, int *left, int *right) {
    if (tree < 0) {
        *left = *right = -1;
    } else if (is_less(at(a, tree), gap, offset)) {
        *left = tree;
        split_arena(a, at(a, tree)->right, gap, offset, &at(a, tree)->right, right);
    } else {
        *right = tree;
        split_arena(a, at(a, tree)->left, gap, offset, left, &at(a, tree)->left);
    }
}

static int merge_arena(tn_arena *a, int left, int right) {
    if (left < 0) return right;
    if (right < 0) return left;
    if (at(a, left)->priority > at(a, right)->priority) {
        at(a, left)->right = merge_arena(a, at(a, left)->right, right);
        return left;
    }
    at(a, right)->left = merge_arena(a, left, at(a, right)->left);
    return right;
}

static void forget_gap(tn_arena *a, int block) {
    const tn_arena_block *b = at(a, block);
    int left, own, right;
    if (b->gap == 0) return;
    split_arena(a, a->gaps, b->gap, b->offset, &left, &right);
    split_arena(a, right, b->gap, b->offset + 1, &own, &right);
    a->gaps = merge_arena(a, left, right);
}

static void set_gap(tn_arena *a, int block, int64_t gap) {
    tn_arena_block *b = at(a, block);
    int left, right;
    b->gap = gap;
    b->left = b->right = -1;
    if (gap == 0) return;
    split_arena(a, a->gaps, gap, b->offset, &left, &right);
    a->gaps = merge_arena(a, merge_arena(a, left, block), right);
}

/* The block after the smallest gap of at least `bytes`, the first of equal ones; -1: none. */
static int best_gap(const tn_arena *a, int64_t bytes) {
    int best = -1;
    for (int tree = a->gaps; tree >= 0;) {
        bool small = is_less(at(a, tree), bytes, 0);
        if (!small) best = tree;
        tree = small ? at(a, tree)->right : at(a, tree)->left;
    }
    return best;
}

/* ---- when blocks end --------------------------------------------------------------------------------------------- */

static int *ending_with(tn_arena *a, int last) { return &a->ending[last < a->released ? a->released : last]; }

static void note_end(tn_arena *a, int block, int last) {
    tn_arena_block *b = at(a, block);
    int *first = ending_with(a, last);
    b->last = last;
    b->ends_with = -1;
    b->ends_after = *first;
    if (*first >= 0) at(a, *first)->ends_with = block;
    *first = block;
}

static void forget_end(tn_arena *a, int block) {
    const tn_arena_block *b = at(a, block);
    if (b->ends_with >= 0)
        at(a, b->ends_with)->ends_after = b->ends_after;
    else
        *ending_with(a, b->last) = b->ends_after;
    if (b->ends_after >= 0) at(a, b->ends_after)->ends_with = b->ends_with;
}

/* ---- blocks ------------------------------------------------------------------------------------------------------ */

static tn_status new_block(tn_arena *a, int *block) {
    if (a->unused >= 0) {
        *block = a->unused;
        a->unused = at(a, *block)->after;
        return TN_OK;
    }
    TRY(tn_mem_grow(&a->blocks, &a->capacity, a->count + 1, sizeof *a->blocks));
    *block = (int)a->count++;
    return TN_OK;
}

static void release(tn_arena *a, int block) {
    tn_arena_block *b = at(a, block);
    forget_gap(a, block);
    if (b->value >= 0) a->block_of[b->value] = -1;
    if (b->before >= 0) at(a, b->before)->after = b->after;
    if (b->after >= 0) {
        int64_t gap = at(a, b->after)->gap + b->bytes + b->gap;
        forget_gap(a, b->after);
        set_gap(a, b->after, gap);
        at(a, b->after)->before = b->before;
    } else {
        a->tail = b->before;
    }
    b->after = a->unused;
    a->unused = block;
}

static void name_block(tn_arena *a, int block, int value) {
    at(a, block)->value = value;
    if (value >= 0) a->block_of[value] = block;
}

/* Links a new block into the gap before `after`, or behind the last one. */
static void link_block(tn_arena *a, int block, int after) {
    tn_arena_block *b = at(a, block);
    b->before = after >= 0 ? at(a, after)->before : a->tail;
    b->after = after;
    b->offset = b->before >= 0 ? at(a, b->before)->offset + at(a, b->before)->bytes : 0;
    if (b->before >= 0) at(a, b->before)->after = block;
    if (after >= 0) {
        int64_t gap = at(a, after)->gap - b->bytes;
        forget_gap(a, after);
        set_gap(a, after, gap);
        at(a, after)->before = block;
    } else {
        a->tail = block;
    }
    set_gap(a, block, 0);
}

/* ---- for layout.c ------------------------------------------------------------------------------------------------ */

tn_status tn_arena_begin(tn_arena *a, int positions, size_t values) {
    *a = (tn_arena){.unused = -1, .tail = -1, .gaps = -1, .positions = positions, .random = 1};
    a->ending = tn_mem_alloc((size_t)(positions + 1) * sizeof *a->ending);
    a->block_of = tn_mem_alloc((values + 1) * sizeof *a->block_of);
    if (!a->ending || !a->block_of) return TN_ERR_MEMORY;
    memset(a->ending, -1, (size_t)(positions + 1) * sizeof *a->ending);
    memset(a->block_of, -1, (values + 1) * sizeof *a->block_of);
    return TN_OK;
}

void tn_arena_end(tn_arena *a) {
    tn_mem_free(a->blocks);
    tn_mem_free(a->ending);
    tn_mem_free(a->block_of);
}

tn_status tn_arena_take(tn_arena *a, int64_t bytes, int last, int value, int64_t *offset) {
    int block;
    TRY(new_block(a, &block));
    a->random = a->random * 1664525u + 1013904223u; /* priorities; a generator of Numerical Recipes */
    bytes = (tn_max64(bytes, 1) + ALIGN - 1) / ALIGN * ALIGN;
    *at(a, block) = (tn_arena_block){.bytes = bytes, .priority = a->random >> 8};
    link_block(a, block, best_gap(a, bytes));
    note_end(a, block, last);
    name_block(a, block, value);
    *offset = at(a, block)->offset;
    a->high = tn_max64(a->high, *offset + bytes);
    return TN_OK;
}

void tn_arena_release_before(tn_arena *a, int position) {
    for (; a->released < position; a->released++) {
        int next;
        for (int block = a->ending[a->released]; block >= 0; block = next) {
            next = at(a, block)->ends_after;
            release(a, block);
        }
        a->ending[a->released] = -1;
    }
}

const tn_arena_block *tn_arena_find(const tn_arena *a, int value) {
    int block = a->block_of[value];
    return block >= 0 ? at(a, block) : NULL;
}

void tn_arena_pass_on(tn_arena *a, int from, int to, int last) {
    int block = a->block_of[from];
    a->block_of[from] = -1;
    forget_end(a, block);
    note_end(a, block, last);
    name_block(a, block, to);
}
