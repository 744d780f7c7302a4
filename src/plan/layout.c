/* layout.c — assigns memory: homes of states, operands of groups, the arena.
 *
 * All sizes are known before the first launch. A result that reads one of its operands only element by element may
 * overwrite it; a state's new value is written to its home if nothing needs the old value any more. */
#include <string.h>

#include "plan/plan.h"
#include "trunnion/ops.h"

/* A block of the arena in use. Blocks are linked by offset, by the position at which they end, and as a treap of the
 * gaps before them. Links are indices of blocks, -1: none. */
typedef struct tn_arena_block {
    int64_t offset, bytes, gap; /* gap: free bytes before it */
    int last;                   /* position of the last group that needs it */
    int value;                  /* the value in it; -1: none, or a workspace */
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

/* For groups at positions 0 … positions - 1, and `values` values. Call arena_end also after a failure. */
static tn_status arena_begin(tn_arena *a, int positions, size_t values);
static void arena_end(tn_arena *a);
/* Allocates space for `value` (-1: not looked up later) until the group at position `last` has run, in the smallest gap
 * that fits. */
static tn_status arena_take(tn_arena *a, int64_t bytes, int last, int value, int64_t *offset);
/* Releases the blocks whose last group comes before `position`. */
static void arena_release_before(tn_arena *a, int position);
/* The block of a value, or NULL. */
static const tn_arena_block *arena_find(const tn_arena *a, int value);
/* Gives the block of value `from` to value `to`, which needs it until `last` (in-place results). */
static void arena_pass_on(tn_arena *a, int from, int to, int last);

/* ---- what groups read -------------------------------------------------------------------------------------------- */

tn_status tn_group_find_reads(tn_graph_plan *g, tn_group *group) {
    int operands[TN_NATIVE_POINTERS];
    int count = tn_group_is_native(group) ? tn_native_operands(g, group, operands) : 0;
    group->run.reads =
        tn_scratch_take(&g->scratch, (size_t)(group->lowered.buffer_count + count) * sizeof *group->run.reads);
    if (!group->run.reads) return TN_ERR_MEMORY;
    int own = (int)(group - g->groups);
    for (int b = 0; b < group->lowered.buffer_count; b++) {
        int v = group->lowered.buffer_values[b];
        if (v != TN_BLOCK && g->values[v].group != own) group->run.reads[group->run.read_count++] = v;
    }
    for (int k = 0; k < count; k++)
        if (operands[k] >= 0 && g->values[operands[k]].group != own)
            group->run.reads[group->run.read_count++] = g->values[operands[k]].root;
    return TN_OK;
}

bool tn_group_reads_slot(const tn_graph_plan *g, const tn_group *group, int slot) {
    for (int k = 0; k < group->run.read_count; k++)
        if (g->values[group->run.reads[k]].slot == slot) return true;
    return false;
}

/* Whether `group` may overwrite this memory while it reads it: only if it reads each element at the place that it
 * writes, or if the group is made for that. */
static bool same_place_only(const tn_graph_plan *g, const tn_group *group, int slot, size_t element) {
    if (group->host) return true; /* what it reads has been copied before */
    if (group->kind == TN_GROUP_NATIVE && !group->workgroup) return tn_native_updates(g, group, slot);
    if (group->kind == TN_GROUP_ROWS || group->kind == TN_GROUP_SCAN) return false;
    const tn_value *lead = &g->values[group->lead];
    for (int k = 0; k < lead->n_in && group->kind == TN_GROUP_MATMUL; k++)
        /* a product reads its operands all over */
        if (g->values[g->values[lead->in[k]].root].slot == slot) return false;
    for (int b = 0; b < group->lowered.buffer_count; b++) {
        if (group->lowered.buffer_values[b] == TN_BLOCK) continue;
        const tn_value *v = &g->values[group->lowered.buffer_values[b]];
        if (v->slot != slot) continue;
        if (!group->lowered.buffer_same_place[b] || tn_dtype_size((tn_dtype)v->node->dtype) != element) return false;
    }
    return true;
}

/* Whether a state's new value can be computed directly in its home. */
static bool home_is_free(const tn_graph_plan *g, const tn_value *v, int home) {
    const tn_group *maker = &g->groups[v->group];
    if (!maker->order.commit && !maker->order.appends) return false;
    size_t element = tn_dtype_size((tn_dtype)v->node->dtype);
    if (tn_group_reads_slot(g, maker, home) && !same_place_only(g, maker, home, element)) return false;
    for (size_t i = (size_t)maker->order.position + 1; i < g->group_count; i++)
        if (tn_group_reads_slot(g, &g->groups[g->fusion.order[i]], home)) return false;
    return true;
}

/* ---- the arena --------------------------------------------------------------------------------------------------- */

static bool is_factor(const tn_graph_plan *g, const tn_group *group, int value) {
    const tn_value *lead = &g->values[group->lead];
    for (int k = 0; k < lead->n_in && group->kind == TN_GROUP_MATMUL; k++)
        if (g->values[lead->in[k]].root == value) return true;
    return false;
}

/* Whether the group reads a part of this value as a separate value. Then it does not read only the whole one. */
static bool reads_part(const tn_graph_plan *g, const tn_group *group, int value) {
    for (int b = 0; b < group->lowered.buffer_count; b++)
        for (int x = group->lowered.buffer_values[b]; x >= 0 && g->values[x].memory.into >= 0;) {
            x = g->values[x].memory.into;
            if (x == value) return true;
        }
    return false;
}

/* An operand that dies here and whose elements are read only where v's are written; -1: none. */
static int value_to_replace(const tn_graph_plan *g, const tn_arena *a, const tn_group *group, const tn_value *v) {
    if (group->kind != TN_GROUP_MAP && group->kind != TN_GROUP_MATMUL) return -1;
    if (group->row_fused) return -1;              /* others of its launch may read all of it later */
    if (group != &g->groups[v->group]) return -1; /* it makes a part of it, elsewhere */
    for (int b = 0; b < group->lowered.buffer_count; b++) {
        int x = group->lowered.buffer_values[b];
        if (x == TN_BLOCK || is_factor(g, group, x)) continue; /* a product reads its factors all over */
        if (reads_part(g, group, x)) continue;
        if (g->values[x].group == v->group || g->values[x].memory.bytes != v->memory.bytes ||
            !group->lowered.buffer_same_place[b])
            continue;
        if (tn_dtype_size((tn_dtype)g->values[x].node->dtype) != tn_dtype_size((tn_dtype)v->node->dtype)) continue;
        const tn_arena_block *block = arena_find(a, x);
        if (block && block->last == group->order.position) return x;
    }
    return -1;
}

static tn_status place_in_arena(tn_graph_plan *g, tn_arena *a, const tn_group *group, tn_value *v, int value,
                                int last) {
    v->memory.place = (int)(g->binding->buffer_count + g->binding->output_count);
    int replaced = value_to_replace(g, a, group, v);
    if (replaced < 0) {
        TRY(arena_take(a, v->memory.bytes, last, value, &v->memory.offset));
        return TN_OK;
    }
    v->memory.offset = arena_find(a, replaced)->offset;
    arena_pass_on(a, replaced, value, last);
    return TN_OK;
}

/* ---- the host's part of a plan ----------------------------------------------------------------------------------- */

/* Does the device's memory need this value of a group? Results do; between groups of the host a value stays there. */
static bool needed_there(const tn_graph_plan *g, const tn_group *maker, const tn_value *v) {
    if (!maker->host || maker->order.checked || v->output >= 0) return true;
    for (int k = 0; k < v->fusion.pull_count; k++)
        if (!g->groups[v->fusion.pulls[k]].host) return true;
    return false;
}

static bool reads_root(const tn_group *group, int root) {
    for (int k = 0; k < group->run.read_count; k++)
        if (group->run.reads[k] == root) return true;
    return false;
}

/* The last group of the host, from `first` on, that reads a value. */
static int last_host_reader(const tn_graph_plan *g, int root, int first) {
    for (int i = (int)g->group_count - 1; i > first; i--) {
        const tn_group *group = &g->groups[g->fusion.order[i]];
        if (group->host && reads_root(group, root)) return i;
    }
    return first;
}

/* Groups on the host have all operands and results in host memory; each value has its place there from the first such
 * group that makes or reads it to the last. */
static tn_status place_on_host(tn_graph_plan *g, tn_arena *h, int value, int position) {
    tn_value *v = &g->values[value];
    if (v->host.from >= 0) return TN_OK;
    v->host.from = position;
    return arena_take(h, v->memory.bytes, last_host_reader(g, value, position), -1, &v->host.offset);
}

static tn_status lay_out_host(tn_graph_plan *g, tn_arena *h, tn_group *group, int position) {
    if (!group->host) return TN_OK;
    arena_release_before(h, position);
    for (int k = 0; k < group->run.read_count; k++)
        TRY(place_on_host(g, h, group->run.reads[k], position));
    for (size_t k = 0; k < group->member_count; k++)
        if (g->values[group->members[k]].stored) TRY(place_on_host(g, h, group->members[k], position));
    return group->run.workspace
               ? arena_take(h, (int64_t)group->run.workspace, position, -1, &group->run.workspace_offset)
               : TN_OK;
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

static tn_status place_value(tn_graph_plan *g, tn_arena *a, const tn_group *group, int value, size_t *copies);

/* The part's place in the concatenated tensor. The first part that is computed allocates it. */
static tn_status place_part(tn_graph_plan *g, tn_arena *a, const tn_group *group, tn_value *v, size_t *copies) {
    tn_value *joined = &g->values[v->memory.into];
    TRY(place_value(g, a, group, v->memory.into, copies));
    v->memory.place = joined->memory.place;
    v->memory.offset = joined->memory.offset + v->memory.into_at;
    return TN_OK;
}

/* copies: states whose new value had to be made outside their home. */
static tn_status place_value(tn_graph_plan *g, tn_arena *a, const tn_group *group, int value, size_t *copies) {
    tn_value *v = &g->values[value];
    v->memory.bytes = v->memory.padded > 0 ? v->memory.padded : (int64_t)tn_node_bytes(v->node);
    if (v->memory.place >= 0 || !v->stored || !needed_there(g, group, v)) return TN_OK;
    if (v->memory.into >= 0) return place_part(g, a, group, v, copies);
    int home = v->output >= 0 ? g->binding->outputs[v->output].home : -1;
    if (v->output >= 0 && home < 0) {
        v->memory.place = (int)g->binding->buffer_count + v->output;
        return TN_OK;
    }
    if (home >= 0 && home_is_free(g, v, home)) {
        v->memory.place = home;
        return TN_OK;
    }
    if (home >= 0) (*copies)++;
    return place_in_arena(g, a, group, v, value, home >= 0 ? (int)g->group_count : tn_last_reader(g, value));
}

/* Data may be a view of what is bound: the bytes from its first element in memory to its last. */
void tn_leaf_byte_range(tn_value *v) {
    tn_dtype dtype = (tn_dtype)v->node->dtype;
    int64_t first = v->offset, last = v->offset, block = tn_dtype_block(dtype);
    v->memory.first = v->memory.bytes = 0;
    if (tn_value_numel(v) == 0) return;
    for (int d = 0; d < v->node->rank; d++) {
        int64_t reach = (v->node->shape[d] - 1) * v->stride[d];
        first += tn_min64(reach, 0);
        last += tn_max64(reach, 0);
    }
    v->memory.first = (int64_t)tn_dtype_bytes(dtype, first / block * block);
    v->memory.bytes = (int64_t)tn_dtype_bytes(dtype, (last / block + 1) * block) - v->memory.first;
}

static void place_leaves(tn_graph_plan *g) {
    for (size_t i = 0; i < g->value_count; i++) {
        tn_value *v = &g->values[i];
        v->host.from = -1;
        if (v->slot < 0) continue;
        v->memory.place = v->slot;
        tn_leaf_byte_range(v);
    }
}

static tn_status lay_out_group(tn_graph_plan *g, tn_arena *a, tn_arena *h, int position, size_t *copies) {
    tn_group *group = &g->groups[g->fusion.order[position]];
    if (!group->sibling) arena_release_before(a, position); /* else what those before it in the chain need is in use */
    for (size_t k = 0; k < group->member_count; k++)
        TRY(place_value(g, a, group, group->members[k], copies));
    if (group->run.workspace && !group->host)
        TRY(arena_take(a, (int64_t)group->run.workspace, position, -1, &group->run.workspace_offset));
    return lay_out_host(g, h, group, position);
}

static bool computes_on_host(const tn_graph_plan *g) {
    for (size_t i = 0; i < g->group_count; i++)
        if (g->groups[i].host) return true;
    return false;
}

tn_status tn_lay_out(tn_graph_plan *g, size_t *arena_bytes, size_t *host_bytes, size_t *copies) {
    AUTO_CALL(arena_end) tn_arena a = {0}, h = {0};
    place_leaves(g);
    tn_concat_leave_host(g);
    TRY(arena_begin(&a, (int)g->group_count, g->value_count));
    if (computes_on_host(g)) TRY(arena_begin(&h, (int)g->group_count, g->value_count));
    for (size_t i = 0; i < g->group_count; i++)
        TRY(lay_out_group(g, &a, &h, (int)i, copies));
    int64_t largest = tn_max64(a.high, h.high);
    if (largest > PTRDIFF_MAX) /* only where an address has 32 bits */
        return tn_fail(TN_ERR_MEMORY, "the values of one evaluation take %lld bytes, more than can be addressed here",
                       (long long)largest);
    *arena_bytes = (size_t)a.high;
    *host_bytes = (size_t)h.high;
    return TN_OK;
}

/* ==== best-fit offsets in the arena =============================================================================== */
/* An unrolled network has thousands of blocks in use at once. So free gaps are kept in a treap ordered by size and
 * offset, and each position has a list of the blocks that end there; allocating and releasing cost O(log blocks). */

enum { ALIGN = 64 };

static tn_arena_block *arena_at(const tn_arena *a, int block) { return &a->blocks[block]; }

/* ---- the treap of gaps ------------------------------------------------------------------------------------------- */

static bool is_less(const tn_arena_block *b, int64_t gap, int64_t offset) {
    return b->gap < gap || (b->gap == gap && b->offset < offset);
}

/* Those below (gap, offset) go left. */
static void split_arena(tn_arena *a, int tree, int64_t gap, int64_t offset, int *left, int *right) {
    if (tree < 0) {
        *left = *right = -1;
    } else if (is_less(arena_at(a, tree), gap, offset)) {
        *left = tree;
        split_arena(a, arena_at(a, tree)->right, gap, offset, &arena_at(a, tree)->right, right);
    } else {
        *right = tree;
        split_arena(a, arena_at(a, tree)->left, gap, offset, left, &arena_at(a, tree)->left);
    }
}

static int merge_arena(tn_arena *a, int left, int right) {
    if (left < 0) return right;
    if (right < 0) return left;
    if (arena_at(a, left)->priority > arena_at(a, right)->priority) {
        arena_at(a, left)->right = merge_arena(a, arena_at(a, left)->right, right);
        return left;
    }
    arena_at(a, right)->left = merge_arena(a, left, arena_at(a, right)->left);
    return right;
}

static void forget_gap(tn_arena *a, int block) {
    const tn_arena_block *b = arena_at(a, block);
    int left, own, right;
    if (b->gap == 0) return;
    split_arena(a, a->gaps, b->gap, b->offset, &left, &right);
    split_arena(a, right, b->gap, b->offset + 1, &own, &right);
    a->gaps = merge_arena(a, left, right);
}

static void set_gap(tn_arena *a, int block, int64_t gap) {
    tn_arena_block *b = arena_at(a, block);
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
        bool small = is_less(arena_at(a, tree), bytes, 0);
        if (!small) best = tree;
        tree = small ? arena_at(a, tree)->right : arena_at(a, tree)->left;
    }
    return best;
}

/* ---- when blocks end --------------------------------------------------------------------------------------------- */

static int *ending_with(tn_arena *a, int last) { return &a->ending[last < a->released ? a->released : last]; }

static void note_end(tn_arena *a, int block, int last) {
    tn_arena_block *b = arena_at(a, block);
    int *first = ending_with(a, last);
    b->last = last;
    b->ends_with = -1;
    b->ends_after = *first;
    if (*first >= 0) arena_at(a, *first)->ends_with = block;
    *first = block;
}

static void forget_end(tn_arena *a, int block) {
    const tn_arena_block *b = arena_at(a, block);
    if (b->ends_with >= 0)
        arena_at(a, b->ends_with)->ends_after = b->ends_after;
    else
        *ending_with(a, b->last) = b->ends_after;
    if (b->ends_after >= 0) arena_at(a, b->ends_after)->ends_with = b->ends_with;
}

/* ---- blocks ------------------------------------------------------------------------------------------------------ */

static tn_status new_block(tn_arena *a, int *block) {
    if (a->unused >= 0) {
        *block = a->unused;
        a->unused = arena_at(a, *block)->after;
        return TN_OK;
    }
    TRY(tn_mem_grow(&a->blocks, &a->capacity, a->count + 1, sizeof *a->blocks));
    *block = (int)a->count++;
    return TN_OK;
}

static void release(tn_arena *a, int block) {
    tn_arena_block *b = arena_at(a, block);
    forget_gap(a, block);
    if (b->value >= 0) a->block_of[b->value] = -1;
    if (b->before >= 0) arena_at(a, b->before)->after = b->after;
    if (b->after >= 0) {
        int64_t gap = arena_at(a, b->after)->gap + b->bytes + b->gap;
        forget_gap(a, b->after);
        set_gap(a, b->after, gap);
        arena_at(a, b->after)->before = b->before;
    } else {
        a->tail = b->before;
    }
    b->after = a->unused;
    a->unused = block;
}

static void name_block(tn_arena *a, int block, int value) {
    arena_at(a, block)->value = value;
    if (value >= 0) a->block_of[value] = block;
}

/* Links a new block into the gap before `after`, or behind the last one. */
static void link_block(tn_arena *a, int block, int after) {
    tn_arena_block *b = arena_at(a, block);
    b->before = after >= 0 ? arena_at(a, after)->before : a->tail;
    b->after = after;
    b->offset = b->before >= 0 ? arena_at(a, b->before)->offset + arena_at(a, b->before)->bytes : 0;
    if (b->before >= 0) arena_at(a, b->before)->after = block;
    if (after >= 0) {
        int64_t gap = arena_at(a, after)->gap - b->bytes;
        forget_gap(a, after);
        set_gap(a, after, gap);
        arena_at(a, after)->before = block;
    } else {
        a->tail = block;
    }
    set_gap(a, block, 0);
}

/* ---- interface of the arena -------------------------------------------------------------------------------------- */

static tn_status arena_begin(tn_arena *a, int positions, size_t values) {
    *a = (tn_arena){.unused = -1, .tail = -1, .gaps = -1, .positions = positions, .random = 1};
    a->ending = tn_mem_alloc((size_t)(positions + 1) * sizeof *a->ending);
    a->block_of = tn_mem_alloc((values + 1) * sizeof *a->block_of);
    if (!a->ending || !a->block_of) return TN_ERR_MEMORY;
    memset(a->ending, -1, (size_t)(positions + 1) * sizeof *a->ending);
    memset(a->block_of, -1, (values + 1) * sizeof *a->block_of);
    return TN_OK;
}

static void arena_end(tn_arena *a) { tn_mem_free_each(a->blocks, a->ending, a->block_of); }

static tn_status arena_take(tn_arena *a, int64_t bytes, int last, int value, int64_t *offset) {
    int block;
    TRY(new_block(a, &block));
    a->random = a->random * 1664525u + 1013904223u; /* priorities; a generator of Numerical Recipes */
    bytes = (tn_max64(bytes, 1) + ALIGN - 1) / ALIGN * ALIGN;
    *arena_at(a, block) = (tn_arena_block){.bytes = bytes, .priority = a->random >> 8};
    link_block(a, block, best_gap(a, bytes));
    note_end(a, block, last);
    name_block(a, block, value);
    *offset = arena_at(a, block)->offset;
    a->high = tn_max64(a->high, *offset + bytes);
    return TN_OK;
}

static void arena_release_before(tn_arena *a, int position) {
    for (; a->released < position; a->released++) {
        int next;
        for (int block = a->ending[a->released]; block >= 0; block = next) {
            next = arena_at(a, block)->ends_after;
            release(a, block);
        }
        a->ending[a->released] = -1;
    }
}

static const tn_arena_block *arena_find(const tn_arena *a, int value) {
    int block = a->block_of[value];
    return block >= 0 ? arena_at(a, block) : NULL;
}

static void arena_pass_on(tn_arena *a, int from, int to, int last) {
    int block = a->block_of[from];
    a->block_of[from] = -1;
    forget_end(a, block);
    note_end(a, block, last);
    name_block(a, block, to);
}

/* ==== states of one shape side by side ============================================================================ */
/* They are borrowed parts of it: to all else each is a state as any other. */

typedef struct state_block {
    tn_buffer *memory;
    _Atomic int64_t users; /* states, and the function that makes them */
} state_block;

static void block_let_go(void *ctx) {
    state_block *b = ctx;
    if (atomic_fetch_sub(&b->users, 1) > 1) return;
    tn_buffer_release(b->memory);
    tn_mem_free(b);
}

static tn_status block_new(tn_device *d, size_t bytes, state_block **out) {
    state_block *b = *out = tn_mem_zalloc(1, sizeof *b);
    if (!b) return TN_ERR_MEMORY;
    b->users = 1;
    TRY(tn_buffer_new_for_host(d, bytes, &b->memory));
    TRY(tn_buffer_await(b->memory, true));
    if (bytes) memset(b->memory->address, 0, bytes);
    return TN_OK;
}

/* A state like `zero` with the memory at `at` as its value; NULL if memory is out. */
static tn_tensor *state_at(state_block *b, int64_t at, const tn_node *zero) {
    tn_buffer *home;
    char *address = (char *)b->memory->address + at;
    b->users++;
    if (tn_buffer_borrow(zero->device, address, tn_node_bytes(zero), block_let_go, b, &home) != TN_OK) {
        block_let_go(b);
        return NULL;
    }
    tn_tensor *t = tn_tensor_new(tn_node_data(home, zero->shape, zero->rank, (tn_dtype)zero->dtype));
    tn_storage *s = tn_status_of(t) == TN_OK ? tn_tensor_storage(t) : NULL;
    if (s) {
        s->home = tn_buffer_retain(home);
        home->is_home = true;
        s->resident = tn_node_retain(tn_tensor_node(t));
        s->state = true;
    }
    tn_buffer_release(home);
    if (s) return t;
    tn_free(t);
    return NULL;
}

static tn_status make_side_by_side(const tn_node *zero, tn_tensor **out, int count) {
    enum { LINE = 64 };
    int64_t step = ((int64_t)tn_node_bytes(zero) + LINE - 1) / LINE * LINE, all;
    if (tn_mul_overflow(step, count, &all)) return tn_fail(TN_ERR_SHAPE, "tn_zero_states: more than 2^63 bytes");
    state_block *b = NULL;
    tn_status status = block_new(zero->device, (size_t)all, &b);
    for (int i = 0; i < count && status == TN_OK; i++) {
        out[i] = state_at(b, i * step, zero);
        if (!out[i]) status = TN_ERR_MEMORY;
    }
    if (b) block_let_go(b);
    return status;
}

static tn_status make_one_by_one(const int64_t *shape, int rank, tn_dtype dtype, tn_tensor **out, int count) {
    tn_status status = TN_OK;
    for (int i = 0; i < count && status == TN_OK; i++) {
        out[i] = tn_zeros(shape, rank, dtype);
        status = tn_make_state(out[i]);
    }
    return status;
}

tn_status tn_zero_states(const int64_t *shape, int rank, tn_dtype dtype, tn_tensor **out, int count) {
    if (count < 0) return tn_fail(TN_ERR_ARGUMENT, "tn_zero_states: count is %d; it must be at least 0", count);
    if (count > 0) TRY(tn_need(out, "tn_zero_states: out"));
    for (int i = 0; i < count; i++)
        out[i] = NULL;
    tn_tensor *zero = tn_zeros(shape, rank, dtype);
    tn_status status = tn_status_of(zero);
    bool here = status == TN_OK && tn_device_of(zero)->is_cpu;
    if (here) status = make_side_by_side(tn_tensor_node(zero), out, count);
    tn_free(zero); /* else it would be computed with the first of them */
    if (!here && status == TN_OK) status = make_one_by_one(shape, rank, dtype, out, count);
    for (int i = 0; i < count && status != TN_OK; i++) {
        tn_free(out[i]);
        out[i] = NULL;
    }
    return status;
}
