/* lower.c — lowers a group to a KIR program, and decodes block-quantized weights in it.
 *
 * Lowering works backwards: to store a member at an index, it asks for the member's value at that index; the op asks
 * for its inputs at their indices; a value in memory becomes a load. Indices are affine in the program's axes, so
 * views, broadcasts and slices cost nothing. If a member of the group is asked for at the index where it is stored, its
 * computed value is used; at any other index it cannot be in this kernel, and lowering stops with `forbid` naming
 * it. */
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "gpu/gpu.h"
#include "ops/ops_common.h"
#include "plan/passes.h"
#include "plan/plan.h"

/* Access to an element of block-quantized memory: `bytes` and `halves` are buffers of u8 and of its factors
 * (block_factor) over it; `mask`: where the element exists. */
typedef struct tn_blocks {
    kir_builder *kb;
    tn_dtype dtype;
    int bytes, halves;
    kir_val mask;
} tn_blocks;

static tn_dtype block_factor(tn_dtype dtype); /* f16, but f32 in TN_Q8_X */
/* The parts of element `index` + `by`, which is in the same block. */
static tn_quant lower_block_parts(const tn_blocks *b, const kir_aff *index, int by);
static kir_val lower_block_element(const tn_blocks *b, const kir_aff *index); /* s·u + t in f32, rounded once */

/* ---- index arithmetic -------------------------------------------------------------------------------------------- */

static bool same_index(const kir_aff *a, const kir_aff *b) {
    return a->c == b->c && a->dyn == b->dyn && memcmp(a->s, b->s, sizeof a->s) == 0;
}

/* ---- memo -------------------------------------------------------------------------------------------------------- */

static uint64_t index_hash(const tn_lower *lw, const kir_aff *at, int rank) {
    uint64_t h = (uint64_t)rank;
    for (int d = 0, axes = kir_axes(lw->kb); d < rank; d++) {
        h = (h ^ (uint64_t)at[d].c) * 0x9E3779B97F4A7C15u;
        for (int x = 0; x < axes; x++)
            h = (h ^ (uint64_t)at[d].s[x] ^ (h >> 29)) * 0x9E3779B97F4A7C15u;
        h = (h ^ (uint64_t)(at[d].dyn + 1)) * 0x9E3779B97F4A7C15u;
    }
    return h;
}

static bool memo_matches(const tn_lowering *w, const tn_memo_entry *e, int value, kir_val mask, uint64_t hash,
                         const kir_aff *at, int rank) {
    if (e->value != value || e->mask != mask || e->hash != hash) return false;
    for (int d = 0; d < rank; d++)
        if (!same_index(&w->memo->at[e->at + (size_t)d], &at[d])) return false;
    return true;
}

static bool memo_find(const tn_lowering *w, int value, kir_val mask, uint64_t hash, const kir_aff *at, int rank,
                      kir_val *out) {
    for (size_t i = w->memo->count; i-- > 0;) {
        const tn_memo_entry *e = &w->memo->entries[i];
        if (e->region != 0 && e->region != w->region) continue;
        if (!memo_matches(w, e, value, mask, hash, at, rank)) continue;
        *out = e->result;
        return true;
    }
    return false;
}

static void memo_add(tn_lowering *w, int value, kir_val mask, uint64_t hash, const kir_aff *at, int rank,
                     kir_val result) {
    enum { FIRST = 16 };
    tn_memo *m = w->memo;
    tn_scratch *scratch = &w->g->scratch;
    size_t from = m->at_count, to = from + (size_t)rank;
    size_t room = m->count < FIRST ? FIRST : m->count + 1, wide = to < 2 * FIRST ? 2 * FIRST : to;
    tn_status s = TN_OK;
    if (m->count == m->capacity) s = tn_scratch_grow(scratch, &m->entries, &m->capacity, room, sizeof *m->entries);
    if (s == TN_OK && to > m->at_capacity) s = tn_scratch_grow(scratch, &m->at, &m->at_capacity, wide, sizeof *m->at);
    if (s != TN_OK) {
        w->status = s;
        return;
    }
    m->entries[m->count++] = (tn_memo_entry){value, w->region, hash, mask, result, from};
    if (rank > 0) memcpy(m->at + from, at, (size_t)rank * sizeof *at);
    m->at_count = to;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* The part to remove from a kernel with too many operands: a further result, or else the largest part of its only
 * one. */
static int part_to_leave(const tn_lowering *w) {
    const tn_group *group = w->group;
    for (size_t i = 0; i < group->member_count; i++)
        if (group->members[i] != group->lead) return group->members[i];
    const tn_value *lead = &w->g->values[group->lead];
    int most = -1;
    for (int k = 0; k < lead->n_in; k++) {
        int root = lead->in[k] >= 0 ? w->g->values[lead->in[k]].root : -1;
        if (root < 0 || tn_value_in_memory(w->g, root) || w->g->values[root].scalar >= 0) continue;
        if (most < 0 || w->g->values[root].fusion.loads > w->g->values[most].fusion.loads) most = root;
    }
    return most;
}

/* Kernels with more buffers are split if possible; a single op that needs more runs on the host or fails. */
int tn_most_buffers(const tn_graph_plan *g) {
    int most = g->binding->device->caps.max_bindings;
    return most > 0 && most < KIR_MAX_BUFFERS ? most : KIR_MAX_BUFFERS;
}

/* The buffer for root's memory, accessed as elements of `dtype`. root: a value, or TN_BLOCK. */
static int buffer_seen_as(tn_lowering *w, kir_builder *kb, int root, tn_dtype dtype) {
    tn_group *group = w->group;
    for (int b = 0; b < group->lowered.buffer_count; b++)
        if (group->lowered.buffer_values[b] == root && group->lowered.buffer_dtypes[b] == dtype) return b;
    if (group->lowered.buffer_count >= tn_most_buffers(w->g)) {
        if (w->g->lowering.forbid < 0) {
            w->g->lowering.crowded = group->member_count > 1;
            w->g->lowering.forbid = part_to_leave(w);
        }
    }
    if (group->lowered.buffer_count == KIR_MAX_BUFFERS) {
        if (w->g->lowering.forbid < 0)
            w->status = tn_fail(TN_ERR_INTERNAL, "a kernel would need more than %d buffers", KIR_MAX_BUFFERS);
        return 0;
    }
    int b = kir_buffer(kb, dtype);
    for (int local = group->lowered.buffer_count; local < b; local++) /* local buffers of workgroups declared since */
        group->lowered.buffer_values[local] = TN_BLOCK;
    group->lowered.buffer_values[b] = root;
    group->lowered.buffer_dtypes[b] = (uint8_t)dtype;
    group->lowered.buffer_same_place[b] = true;
    group->lowered.buffer_count = b + 1;
    return b;
}

static int buffer_of(tn_lowering *w, kir_builder *kb, int root) {
    return buffer_seen_as(w, kb, root, (tn_dtype)w->g->values[root].node->dtype);
}

static kir_aff place_index(tn_lower *lw, const kir_aff *at, int rank, int64_t offset, const int64_t *stride) {
    kir_aff sum = kir_aff_const(offset);
    for (int d = 0, axes = kir_axes(lw->kb); d < rank; d++) {
        sum.c += at[d].c * stride[d];
        for (int x = 0; x < axes; x++)
            sum.s[x] += at[d].s[x] * stride[d];
        sum.dyn = tn_dyn_add(lw, sum.dyn, tn_dyn_scale(lw, at[d].dyn, stride[d]));
    }
    return sum;
}

/* Where a member that fills the space is stored: the place that an operand may share with it. */
static kir_aff store_place(tn_lower *lw, const tn_lowering *w) {
    int64_t stride[TN_MAX_RANK];
    tn_strides_contiguous(w->space_node->shape, w->space_node->rank, stride);
    return place_index(lw, w->space, w->space_node->rank, 0, stride);
}

/* Where what is loaded now exists: as movements say, and within the tile's edge. */
static kir_val lowering_mask_of(const tn_lower *lw, const tn_lowering *w) {
    if (w->edge == KIR_NONE || lw->mask == w->edge) return lw->mask;
    return lw->mask == KIR_NONE ? w->edge : kir_and(lw->kb, lw->mask, w->edge);
}

/* A block-quantized weight: its blocks are addressed as bytes, for any view. */
static tn_blocks blocks_of(const tn_lower *lw, tn_lowering *w, const tn_value *v) {
    tn_blocks b = {.kb = lw->kb, .dtype = (tn_dtype)v->node->dtype, .mask = lowering_mask_of(lw, w)};
    b.bytes = buffer_seen_as(w, lw->kb, v->root, TN_U8);
    b.halves = buffer_seen_as(w, lw->kb, v->root, block_factor(b.dtype));
    w->group->lowered.buffer_same_place[b.bytes] = w->group->lowered.buffer_same_place[b.halves] = false;
    return b;
}

/* Is there a place now at which results are stored? A workgroup kernel's operands are loaded all over. */
static bool pointwise(const tn_lowering *w) {
    if (w->group->workgroup) return w->group->kind == TN_GROUP_MATMUL && w->lead_value != KIR_NONE;
    return w->group->kind == TN_GROUP_MAP || w->group->kind == TN_GROUP_MATMUL;
}

static bool at_store_place(tn_lower *lw, tn_lowering *w, const kir_aff *index) {
    if (!w->stores_known) w->stores_at = store_place(lw, w);
    w->stores_known = true;
    return same_index(index, &w->stores_at);
}

bool tn_lowering_has_packets(const tn_lowering *w, int value, int dim) {
    const tn_value *v = &w->g->values[value], *root = &w->g->values[v->root];
    if (v->scalar >= 0 || v->group == w->group_id || root->group == w->group_id || !tn_value_in_memory(w->g, value))
        return false;
    if (v->stride[dim] != 1 || v->offset % KIR_LINE_UNIT != 0) return false;
    for (int d = 0; d < v->node->rank; d++) {
        bool skips = d != dim && v->node->shape[d] > 1 && v->stride[d] % KIR_LINE_UNIT != 0;
        if (skips || (d == dim && v->node->shape[d] % KIR_LINE_UNIT != 0)) return false;
    }
    return true;
}

kir_val tn_lowering_packet(tn_lower *lw, int value, const kir_aff *at, kir_val mask) {
    tn_lowering *w = lw->group;
    const tn_value *v = &w->g->values[value];
    kir_aff index = place_index(lw, at, v->node->rank, v->offset, v->stride);
    int b = buffer_of(w, lw->kb, v->root);
    w->group->lowered.buffer_same_place[b] = false;
    return kir_fetch(lw->kb, b, &index, mask);
}

static kir_val load_from(tn_lower *lw, tn_lowering *w, const tn_value *v, const kir_aff *at) {
    kir_aff index = place_index(lw, at, v->node->rank, v->offset, v->stride);
    if (tn_dtype_is_quantized((tn_dtype)v->node->dtype)) {
        tn_blocks blocks = blocks_of(lw, w, v);
        return lower_block_element(&blocks, &index);
    }
    int b = buffer_of(w, lw->kb, v->root);
    if (!pointwise(w) || !at_store_place(lw, w, &index)) w->group->lowered.buffer_same_place[b] = false;
    return kir_load(lw->kb, b, &index, lowering_mask_of(lw, w));
}

static kir_aff block_place(void) {
    kir_aff index = kir_aff_const(0);
    index.s[TN_GEMM_BATCH_AXES] = TN_GEMM_BLOCK_LD;
    index.s[TN_GEMM_BATCH_AXES + 1] = 1;
    return index;
}

/* The accumulated block of a product in the epilogue: integers, or f32 before it is rounded to the result's dtype. */
static kir_val load_block(tn_lower *lw, tn_lowering *w) {
    tn_group *group = w->group;
    bool whole = w->g->values[group->lead].node->dtype == TN_I32;
    group->lowered.block_buffer = buffer_seen_as(w, lw->kb, TN_BLOCK, whole ? TN_I32 : TN_F32);
    kir_aff index = block_place();
    return kir_load(lw->kb, group->lowered.block_buffer, &index, KIR_NONE);
}

/* ---- pulling ----------------------------------------------------------------------------------------------------- */

/* Maximum number of runtime scalars of each kind: those of the recording, and numbers. */
enum { MOST_SCALARS = TN_GROUP_SCALARS / 2 };

/* The program's number of a runtime scalar, which it gets with its first use; -1: there are too many of its kind. */
static int runtime_scalar_at(tn_group *group, int scalar) {
    int alike = 0;
    for (int d = 0; d < group->lowered.scalar_count; d++) {
        if (group->lowered.scalars[d] == scalar) return d;
        alike += (group->lowered.scalars[d] < 0) == (scalar < 0);
    }
    if (alike == MOST_SCALARS) return -1;
    group->lowered.scalars[group->lowered.scalar_count] = scalar;
    return group->lowered.scalar_count++;
}

static kir_val give_up(tn_lower *lw, tn_lowering *w, int value) {
    if (w->g->lowering.forbid < 0) w->g->lowering.forbid = value;
    return kir_const(lw->kb, kir_type_of((tn_dtype)w->g->values[value].node->dtype), 0.0);
}

static kir_val pull_runtime_scalar(tn_lower *lw, tn_lowering *w, const tn_value *v) {
    tn_dtype dtype = (tn_dtype)v->node->dtype;
    kir_type t = kir_type_of(dtype);
    int d = runtime_scalar_at(w->group, v->scalar);
    if (d < 0) return give_up(lw, w, (int)(v - w->g->values)); /* too many: this one is read from memory */
    if (tn_dtype_is_float(dtype)) return tn_lower_narrow(lw->kb, dtype, kir_scalar_value(lw->kb, t, d));
    kir_val whole = kir_scalar_value(lw->kb, KIR_I64, d);
    return tn_lower_narrow(lw->kb, dtype, t == KIR_I64 ? whole : kir_cast(lw->kb, t, whole));
}

/* Numbers that simplify a program. NaN does not count: a compiler that folds it may drop what depends on it (PoCL
 * stores nothing for a rounded NaN). */
static bool is_structural(double v) {
    double size = fabs(v);
    return isinf(v) || size == 0.0 || size == 0.5 || size == 1.0 || size == 2.0;
}

/* Whether this number is an argument of the launch. As a constant it would make a separate kernel, and compiling one
 * takes a device about 0.1 s. The CPU takes microseconds and folds numbers, except divisors, which are often an element
 * count and differ with each shape. Everything else made only of numbers is computed now. */
static bool comes_with_launch(const tn_lowering *w, const tn_node *n) {
    tn_dtype t = (tn_dtype)n->dtype;
    return tn_op_has(n, TN_FACT_CONSTANT) && (w->dividing || !w->g->binding->device->is_cpu) && !w->folding &&
           tn_dtype_is_float(t) && !is_structural(n->f[TN_FULL_VALUE]);
}

/* The number as a runtime scalar, KIR_NONE: it stays in the structure. */
static kir_val pull_number(tn_lower *lw, tn_lowering *w, int value) {
    const tn_node *n = w->g->values[value].node;
    if (w->g->values[value].scalar >= 0) return pull_runtime_scalar(lw, w, &w->g->values[value]);
    int d = comes_with_launch(w, n) ? runtime_scalar_at(w->group, tn_scalar_of_number(value)) : -1;
    if (d < 0) return KIR_NONE;
    tn_dtype t = (tn_dtype)n->dtype;
    return tn_lower_narrow(lw->kb, t, kir_scalar_value(lw->kb, kir_type_of(t), d));
}

static bool is_index(const tn_node *n, const kir_aff *at, const kir_aff *want) {
    for (int d = 0; d < n->rank; d++)
        if (n->shape[d] != 1 && !same_index(&at[d], &want[d])) return false;
    return true;
}

/* May a member be read as a value here: is it asked for at the place where it is computed? */
static bool at_own_place(const tn_lowering *w, const tn_node *n, const kir_aff *at) {
    if (tn_same_shape(n, w->space_node) && is_index(n, at, w->space)) return true;
    const tn_node *lead = w->g->values[w->group->lead].node;
    return w->group->kind == TN_GROUP_ROWS && tn_same_shape(n, lead) && is_index(n, at, w->row);
}

static kir_val compute(tn_lower *lw, tn_lowering *w, int value, const kir_aff *at) {
    const tn_value *v = &w->g->values[value];
    uint64_t hash = index_hash(lw, at, v->node->rank);
    kir_val r = pull_number(lw, w, value);
    if (r != KIR_NONE || memo_find(w, value, lw->mask, hash, at, v->node->rank, &r)) return r;
    r = v->row->impl->lower(lw, v->node, at);
    memo_add(w, value, lw->mask, hash, at, v->node->rank, r);
    return r;
}

static kir_val pull_member(tn_lower *lw, tn_lowering *w, int value, const kir_aff *at) {
    const tn_value *v = &w->g->values[value];
    if (!at_own_place(w, v->node, at) || lw->mask != KIR_NONE) return give_up(lw, w, value);
    if (w->lead_value != KIR_NONE && value == w->group->lead) return w->lead_value;
    if (w->group->kind == TN_GROUP_MATMUL && value == w->group->lead) return load_block(lw, w);
    if (!v->row->impl->lower && tn_value_class(v) != TN_REDUCTION) return give_up(lw, w, value);
    if (tn_value_class(v) != TN_REDUCTION) return compute(lw, w, value, at);
    /* A reduction's result was noted when its loop was made; asked for too early, it cannot be shared. */
    uint64_t hash = index_hash(lw, w->row, v->node->rank);
    kir_val r = KIR_NONE;
    if (memo_find(w, value, KIR_NONE, hash, w->row, v->node->rank, &r)) return r;
    return give_up(lw, w, value);
}

/* Whether the group reads the value from memory (its own results excepted). */
static bool is_read(const tn_lowering *w, int value) {
    const tn_value *v = &w->g->values[value], *root = &w->g->values[v->root];
    if (root->slot >= 0) return true;
    return root->stored && root->group != w->group_id && !tn_group_rematerializes(w->g, w->group_id, value);
}

static kir_val value_at(tn_lower *lw, tn_lowering *w, int value, const kir_aff *at, bool *loaded) {
    const tn_value *v = &w->g->values[value];
    *loaded = true;
    if (w->status != TN_OK || w->g->lowering.forbid >= 0)
        return kir_const(lw->kb, kir_type_of((tn_dtype)v->node->dtype), 0.0);
    if (v->scalar >= 0 && (!v->stored || v->group == w->group_id)) return pull_runtime_scalar(lw, w, v);
    bool member = v->group == w->group_id && value != w->building;
    if (!member && is_read(w, value)) return load_from(lw, w, v, at);
    *loaded = false;
    if (member) return pull_member(lw, w, value, at);
    if (!v->row || !v->row->impl->lower) return give_up(lw, w, v->root);
    return compute(lw, w, value, at);
}

/* Small dtypes compute as i32 or f32. A value that is used where it was computed must equal what a load from memory
 * would give, or storing it would change later results. Ops without flops only move elements that are rounded
 * already. */
static kir_val pull(tn_lower *lw, tn_lowering *w, int value, const kir_aff *at) {
    bool loaded;
    kir_val r = value_at(lw, w, value, at, &loaded);
    const tn_value *v = &w->g->values[value];
    bool moved = !v->row || v->row->impl->flops == 0;
    return loaded || moved ? r : tn_lower_narrow(lw->kb, (tn_dtype)v->node->dtype, r);
}

static kir_val lower_at(tn_lower *lw, const tn_node *node, const kir_aff *at) {
    tn_lowering *w = lw->group;
    int value = tn_value_of(w->g, node);
    if (value >= 0) return pull(lw, w, value, at);
    w->status = tn_fail(TN_ERR_INTERNAL, "lowering reached a node that was not planned: a defect");
    return kir_const(lw->kb, kir_type_of((tn_dtype)node->dtype), 0.0);
}

static bool of_numbers_alone(const tn_node *n) {
    for (int k = 0; k < n->n_in; k++)
        if (!n->in[k] || !tn_op_has(n->in[k], TN_FACT_CONSTANT)) return false;
    return true;
}

/* May its users read one element of it at several places? */
static bool is_spread(const tn_node *n) {
    for (int d = 0; d < n->rank; d++)
        if (n->shape[d] == 1) return true;
    return false;
}

static kir_val lower_in(tn_lower *lw, const tn_node *n, int i, const kir_aff *at) {
    tn_lowering *w = lw->group;
    const tn_node *in = n->in[i];
    kir_aff index[TN_MAX_RANK];
    const kir_aff *at_in = at + (n->rank - in->rank);
    if (is_spread(in)) {
        for (int d = 0; d < in->rank; d++)
            index[d] = in->shape[d] == 1 ? kir_aff_const(0) : at_in[d];
        at_in = index;
    }
    bool folding = w->folding, dividing = w->dividing;
    /* 1 / elements differs from one batch to the next. */
    w->folding = of_numbers_alone(n) && !tn_op_has(n, TN_FACT_DIV);
    w->dividing = tn_op_has(n, TN_FACT_DIV) && i == 1;
    kir_val r = lower_at(lw, in, at_in);
    w->folding = folding;
    w->dividing = dividing;
    return r;
}

static tn_quant lower_quant_at(tn_lower *lw, const tn_node *node, const kir_aff *at, int by) {
    tn_lowering *w = lw->group;
    int value = tn_value_of(w->g, node);
    const tn_value *v = value >= 0 ? &w->g->values[value] : NULL;
    if (!v || !tn_value_in_memory(w->g, value)) {
        w->status =
            tn_fail(TN_ERR_INTERNAL, "the parts of block-quantized elements are needed where they are not in memory");
        kir_val none = kir_const_i(lw->kb, KIR_I32, 0), nothing = kir_real(lw->kb, 0);
        return (tn_quant){.u = none, .s = nothing, .t = nothing};
    }
    tn_blocks blocks = blocks_of(lw, w, v);
    kir_aff index = place_index(lw, at, v->node->rank, v->offset, v->stride);
    return lower_block_parts(&blocks, &index, by);
}

const tn_lower_calls tn_lowering_calls = {.at = lower_at, .in = lower_in, .quant_at = lower_quant_at};

/* ---- spaces ------------------------------------------------------------------------------------------------------ */

static void map_space(tn_lowering *w, const tn_node *n, int64_t *extents, int *n_par) {
    *n_par = 0;
    for (int d = 0; d < n->rank; d++) {
        w->space[d] = kir_aff_const(0);
        if (n->shape[d] == 1) continue;
        extents[*n_par] = n->shape[d];
        w->space[d] = tn_along((*n_par)++, 1);
    }
}

static void matmul_space(tn_lowering *w, const tn_node *n, int64_t *extents, int *n_par) {
    *n_par = TN_GEMM_BATCH_AXES + 2;
    for (int x = 0; x < *n_par; x++)
        extents[x] = 1;
    for (int d = 0; d < n->rank; d++) {
        int axis = *n_par - n->rank + d;
        extents[axis] = n->shape[d];
        w->space[d] = n->shape[d] == 1 ? kir_aff_const(0) : tn_along(axis, 1);
    }
}

/* A reduction over dims of its input: kept dims run in parallel, the others are the loop. */
static tn_status dims_space(tn_lowering *w, const tn_node *r, int64_t *extents, int *n_par, int *n_loop) {
    const tn_node *in = r->in[0];
    bool keepdim = r->rank == in->rank;
    int out = 0;
    *n_par = *n_loop = 0;
    for (int d = 0; d < in->rank; d++) {
        if (tn_is_reduced(r, d)) continue;
        w->space[d] = kir_aff_const(0);
        if (in->shape[d] == 1) continue;
        extents[*n_par] = in->shape[d];
        w->space[d] = tn_along((*n_par)++, 1);
    }
    for (int d = 0; d < in->rank; d++) {
        if (!tn_is_reduced(r, d)) {
            w->row[out++] = w->space[d];
            continue;
        }
        if (keepdim) w->row[out++] = kir_aff_const(0);
        int axis = *n_par + *n_loop;
        extents[axis] = in->shape[d];
        w->space[d] = tn_along(axis, 1);
        w->loop[(*n_loop)++] = w->space[d];
    }
    w->space_node = in;
    return TN_OK;
}

static tn_status loops_space(tn_lowering *w, const tn_value *r, int64_t *extents, int *n_par, int *n_loop) {
    const tn_node *n = r->node;
    int64_t loops[TN_MAX_RANK];
    map_space(w, n, extents, n_par);
    *n_loop = r->row->impl->loops(n, loops);
    if (*n_par + *n_loop > KIR_MAX_AXES)
        return tn_fail(TN_ERR_UNSUPPORTED, "%s: %d axes; a kernel supports at most %d", r->row->name, *n_par + *n_loop,
                       KIR_MAX_AXES);
    memcpy(w->row, w->space, sizeof w->row);
    for (int k = 0; k < *n_loop; k++) {
        extents[*n_par + k] = loops[k];
        w->loop[k] = tn_along(*n_par + k, 1);
    }
    return TN_OK;
}

static void scan_space(tn_lowering *w, const tn_node *n, int64_t *extents, int *n_par) {
    *n_par = 0;
    for (int d = 0; d < n->rank; d++) {
        if (d == n->i[0]) continue;
        extents[*n_par] = n->shape[d];
        w->space[d] = tn_along((*n_par)++, 1);
    }
    if (n->rank == 0) {
        extents[0] = 1;
        return;
    }
    extents[*n_par] = n->shape[n->i[0]];
    w->space[n->i[0]] = tn_along(*n_par, 1);
}

static tn_status make_space(tn_lowering *w, int64_t *extents, int *n_par, int *n_loop) {
    const tn_value *lead = &w->g->values[w->group->lead];
    w->space_node = lead->node;
    *n_loop = 0;
    switch (w->group->kind) {
    case TN_GROUP_ROWS:
        if (lead->row->impl->loops == tn_loops_over_dims)
            TRY(dims_space(w, lead->node, extents, n_par, n_loop));
        else
            TRY(loops_space(w, lead, extents, n_par, n_loop));
        break;
    case TN_GROUP_SCAN:
        scan_space(w, lead->node, extents, n_par);
        *n_loop = 1;
        break;
    case TN_GROUP_MATMUL: matmul_space(w, lead->node, extents, n_par); break;
    default: map_space(w, lead->node, extents, n_par);
    }
    w->first_loop_axis = *n_par;
    w->loop_axes = *n_loop;
    return TN_OK;
}

/* ---- emitting ---------------------------------------------------------------------------------------------------- */

static void store_member(tn_lower *lw, tn_lowering *w, int value, const kir_aff *at) {
    const tn_value *v = &w->g->values[value];
    bool loaded;
    kir_val r = value_at(lw, w, value, at, &loaded);
    if (tn_group_pools(w->g, w->group, value)) {
        kir_aff block = block_place();
        kir_store(lw->kb, w->group->lowered.block_buffer, &block, r, w->edge);
    }
    if (!v->stored) return;
    int b = buffer_of(w, lw->kb, value);
    int64_t stride[TN_MAX_RANK];
    tn_strides_contiguous(v->node->shape, v->node->rank, stride);
    kir_aff index = place_index(lw, at, v->node->rank, 0, stride);
    kir_store(lw->kb, b, &index, r, w->edge);
}

/* All loads come before the first store, because a result may share the memory of an operand that is read here last. A
 * pooled value is the last member; the lead's kernel computes it, not the program. */
static void emit_map(tn_lower *lw, tn_lowering *w) {
    size_t count = w->group->member_count - (w->group->pool >= 0);
    w->stores_known = false;
    for (size_t i = 0; i < count; i++)
        pull(lw, w, w->group->members[i], w->space);
    for (size_t i = 0; i < count; i++)
        store_member(lw, w, w->group->members[i], w->space);
}

static void loop_begin(tn_lower *lw, tn_lowering *w) {
    w->region = ++w->loops_made;
    kir_loop(lw->kb, w->first_loop_axis, w->loop_axes);
}

static void loop_end(tn_lower *lw, tn_lowering *w) {
    kir_end(lw->kb);
    w->region = 0;
}

static void emit_scan(tn_lower *lw, tn_lowering *w) {
    int value = w->group->lead;
    const tn_value *v = &w->g->values[value];
    loop_begin(lw, w);
    w->building = value;
    kir_val r = kir_scan(lw->kb, (kir_reduce)v->row->impl->reduce, v->row->impl->lower(lw, v->node, w->space));
    w->building = -1;
    memo_add(w, value, KIR_NONE, index_hash(lw, w->space, v->node->rank), w->space, v->node->rank, r);
    store_member(lw, w, value, w->space);
    loop_end(lw, w);
}

/* Number of loops that must have ended before a value can be computed; a reduction's is one more than its input's. */
static int phase_of(tn_lowering *w, int value) {
    tn_value *v = &w->g->values[value];
    bool here = v->group == w->group_id;
    if (v->lowering.phase_stamp == w->g->fusion.stamp) return v->lowering.phase;
    if (!v->row || v->scalar >= 0 || (!here && is_read(w, value))) return 0;
    int phase = 0;
    for (int k = 0; k < v->n_in; k++) {
        int p = v->in[k] >= 0 ? phase_of(w, v->in[k]) : 0;
        if (p > phase) phase = p;
    }
    if (here && tn_value_class(v) == TN_REDUCTION) phase++;
    v->lowering.phase = phase;
    v->lowering.phase_stamp = w->g->fusion.stamp;
    return phase;
}

static bool is_reduction(const tn_lowering *w, int value) {
    return tn_value_class(&w->g->values[value]) == TN_REDUCTION;
}

static bool fills_space(const tn_lowering *w, int value) {
    return !is_reduction(w, value) && tn_same_shape(w->g->values[value].node, w->space_node) &&
           w->space_node != w->g->values[w->group->lead].node;
}

static kir_val reduced_value(tn_lower *lw, tn_lowering *w, int value) {
    const tn_value *v = &w->g->values[value];
    kir_aff at[2 * TN_MAX_RANK];
    memcpy(at, w->row, (size_t)v->node->rank * sizeof *at);
    memcpy(at + v->node->rank, w->loop, (size_t)w->loop_axes * sizeof *at);
    w->building = value;
    kir_val r = v->row->impl->lower(lw, v->node, at);
    w->building = -1;
    /* two operands: its lowering already ends in the reduction */
    if (v->row->impl->class_ == TN_MATMUL || v->row->impl->reduce == KIR_CHAIN) return r;
    return kir_reduce_value(lw->kb, (kir_reduce)v->row->impl->reduce, r, KIR_NONE);
}

/* A sequential sum starts at −0. Ops that are defined as a sum into zeros give +0 for an empty sum. */
static kir_val into_zeros(tn_lower *lw, const tn_value *v, kir_val r) {
    kir_type t = kir_type_of((tn_dtype)v->node->dtype);
    bool summed = v->row->impl->class_ == TN_REDUCTION && v->row->impl->reduce == KIR_SEQ;
    return summed && (t == KIR_F32 || t == KIR_F64) ? kir_add(lw->kb, r, kir_const(lw->kb, t, 0.0)) : r;
}

static bool in_loop(tn_lowering *w, int value, int phase) {
    if (is_reduction(w, value)) return phase_of(w, value) == phase;
    return fills_space(w, value) && phase_of(w, value) == phase - 1;
}

/* Pass `phase` over the rows: its reductions, and results over the whole space whose inputs are then complete. */
static void emit_pass(tn_lower *lw, tn_lowering *w, int phase) {
    const tn_group *group = w->group;
    bool any = false;
    kir_val reduced[16];
    for (size_t i = 0; i < group->member_count; i++)
        any |= in_loop(w, group->members[i], phase);
    if (any) loop_begin(lw, w);
    for (size_t i = 0; i < group->member_count; i++) {
        int value = group->members[i];
        if (!in_loop(w, value, phase)) continue;
        if (is_reduction(w, value))
            reduced[i] = reduced_value(lw, w, value);
        else
            store_member(lw, w, value, w->space);
    }
    if (any) loop_end(lw, w);
    for (size_t i = 0; i < group->member_count; i++) {
        int value = group->members[i];
        const tn_value *v = &w->g->values[value];
        int rank = v->node->rank;
        if (!is_reduction(w, value) || phase_of(w, value) != phase) continue;
        memo_add(w, value, KIR_NONE, index_hash(lw, w->row, rank), w->row, rank, into_zeros(lw, v, reduced[i]));
    }
    /* Results per row are stored as soon as they are complete, so that later passes read them. */
    for (size_t i = 0; i < group->member_count; i++) {
        int value = group->members[i];
        bool a_row = !fills_space(w, value) && (!is_reduction(w, value) || phase > 0);
        if (a_row && phase_of(w, value) == phase) store_member(lw, w, value, w->row);
    }
}

static void emit_rows(tn_lower *lw, tn_lowering *w) {
    int last = 0;
    w->g->fusion.stamp++;
    for (size_t i = 0; i < w->group->member_count; i++) {
        int p = phase_of(w, w->group->members[i]);
        if (p > last) last = p;
    }
    for (int phase = 0; phase <= last + 1; phase++)
        emit_pass(lw, w, phase);
}

static tn_status emit(tn_lowering *w, kir_builder *kb) {
    tn_lower lw = {.kb = kb, .calls = &tn_lowering_calls, .mask = KIR_NONE, .group = w};
    switch (w->group->kind) {
    case TN_GROUP_ROWS: emit_rows(&lw, w); break;
    case TN_GROUP_SCAN: emit_scan(&lw, w); break;
    default: emit_map(&lw, w);
    }
    return w->status;
}

/* ---- for workgroup kernels --------------------------------------------------------------------------------------- */

tn_status tn_lowering_begin(tn_lowering *w, tn_graph_plan *g, int group) {
    const tn_node *lead = g->values[g->groups[group].lead].node;
    int rank = lead->n_in > 0 && lead->in[0] && lead->in[0]->rank > lead->rank ? lead->in[0]->rank : lead->rank;
    memset(w, 0, offsetof(tn_lowering, space));
    for (int d = 0; d < rank; d++)
        w->space[d] = w->row[d] = w->loop[d] = (kir_aff){0};
    w->g = g;
    w->group = &g->groups[group];
    w->group_id = group;
    w->building = -1;
    w->space_node = lead;
    w->edge = w->lead_value = KIR_NONE;
    if (!g->lowering.memo) {
        g->lowering.memo = tn_scratch_take(&g->scratch, sizeof *g->lowering.memo);
        if (!g->lowering.memo) return TN_ERR_MEMORY;
        *g->lowering.memo = (tn_memo){0};
    }
    w->memo = g->lowering.memo;
    w->memo->count = w->memo->at_count = 0;
    return TN_OK;
}

kir_val tn_lowering_value(tn_lower *lw, int value, const kir_aff *at, kir_val mask) {
    tn_lowering *w = lw->group;
    w->region = ++w->loops_made; /* what was computed elsewhere may not be there any more */
    lw->mask = mask;
    kir_val r = pull(lw, w, value, at);
    lw->mask = KIR_NONE;
    return r;
}

int tn_lowering_buffer(tn_lower *lw, int value, tn_dtype dtype) {
    return buffer_seen_as(lw->group, lw->kb, value, dtype);
}

void tn_lowering_results(tn_lower *lw, const kir_aff *at, kir_val value, kir_val mask) {
    tn_lowering *w = lw->group;
    w->region = ++w->loops_made;
    memcpy(w->space, at, (size_t)w->space_node->rank * sizeof *at);
    w->lead_value = value;
    w->edge = mask;
    emit_map(lw, w);
    w->edge = w->lead_value = KIR_NONE;
}

/* ---- a group ----------------------------------------------------------------------------------------------------- */

tn_status tn_lower_group(tn_graph_plan *g, int group_id) {
    tn_group *group = &g->groups[group_id];
    bool by_kernel = group->kind == TN_GROUP_NATIVE || group->kind == TN_GROUP_MATMUL;
    group->workgroup = by_kernel && !g->values[group->lead].by.vendor && tn_workgroup_takes(&g->values[group->lead]);
    group->updates = false;
    if (group->workgroup) return tn_workgroup_lower(g, group_id);
    if (group->kind == TN_GROUP_NATIVE || (group->kind == TN_GROUP_MATMUL && group->member_count == 1)) return TN_OK;
    if (group->pool >= 0 && !(group->kind == TN_GROUP_MATMUL && tn_native_joins(&g->values[group->lead]) &&
                              tn_native_pools(&g->values[group->lead], &g->values[group->pool]))) {
        g->lowering.forbid = group->pool; /* no convolution came */
        return TN_OK;
    }
    tn_lowering w;
    TRY(tn_lowering_begin(&w, g, group_id));
    int64_t extents[KIR_MAX_AXES] = {0};
    int n_par = 0, n_loop = 0;
    kir_builder *kb = NULL;
    group->lowered.buffer_count = group->lowered.scalar_count = 0;
    group->lowered.block_buffer = -1;
    TRY(make_space(&w, extents, &n_par, &n_loop));
    TRY(kir_begin(n_par, n_loop, extents, &kb));
    tn_status s = emit(&w, kb);
    if (s != TN_OK || g->lowering.forbid >= 0) {
        kir_abandon(kb);
        return s;
    }
    bool by_vm = g->binding->device->is_cpu;
    TRY((by_vm ? kir_finish_unverified : kir_finish)(kb, &group->lowered.program, &group->lowered.sizes));
    const tn_value *lead = &g->values[group->lead];
    if (tn_native_joins(lead) && !tn_native_epilogue_fits(lead, group)) g->lowering.forbid = group->lead;
    return TN_OK;
}

/* ==== block-quantised weights, decoded in a kernel ================================================================ */
/* The memory is bound twice: as bytes and as factors (f16; in one format f32). The address of an element is computed
 * from its index, so any view of whole rows and any gather works. The formats are GGUF's. Each value is s·u + t with
 * one rounding (cpu_kernels.h), as in tn_decode_blocks. A row of the table is a function, because the formats differ
 * mainly in the positions of bits. */

/* An element on its way: its block's first byte and first factor, and its place in the block. */
typedef struct element {
    kir_builder *kb;
    int bytes, halves;    /* buffers */
    kir_val byte0, half0; /* I64 */
    kir_val at;           /* I32 */
    kir_val mask;
} element;

static kir_val int_constant(const element *e, int64_t v) { return kir_const_i(e->kb, KIR_I32, v); }
static kir_val block_both(const element *e, kir_val v, int64_t mask) {
    return kir_and(e->kb, v, int_constant(e, mask));
}
static kir_val shr(const element *e, kir_val v, int64_t by) { return kir_shr(e->kb, v, int_constant(e, by)); }
static kir_val shl(const element *e, kir_val v, int64_t by) { return kir_shl(e->kb, v, int_constant(e, by)); }
static kir_val block_number(const element *e, kir_val v) { return kir_cast(e->kb, KIR_F32, v); }

/* The byte at `offset` + `place` of the block. */
static kir_val byte_at(const element *e, int64_t offset, kir_val place) {
    kir_aff index = kir_aff_const(offset);
    index.dyn = kir_add(e->kb, e->byte0, kir_cast(e->kb, KIR_I64, place));
    return kir_load(e->kb, e->bytes, &index, e->mask);
}

static kir_val half_at(const element *e, int64_t offset) {
    kir_aff index = kir_aff_const(offset / 2);
    index.dyn = e->half0;
    return kir_load(e->kb, e->halves, &index, e->mask);
}

static kir_val signed_byte(const element *e, kir_val v) { return shr(e, shl(e, v, 24), 24); }

static tn_quant decoded(kir_val s, kir_val u, kir_val t) { return (tn_quant){.u = u, .s = s, .t = t}; }

/* ---- blocks of 32 ------------------------------------------------------------------------------------------------ */

/* Four bits: elements 0 … 15 in the low halves of 16 bytes, 16 … 31 in the high halves. */
static kir_val nibble_32(const element *e, int64_t offset) {
    kir_val byte = byte_at(e, offset, block_both(e, e->at, 15));
    return block_both(e, kir_shr(e->kb, byte, shl(e, shr(e, e->at, 4), 2)), 15);
}

static kir_val fifth_bit_32(const element *e, int64_t offset) {
    kir_val byte = byte_at(e, offset, shr(e, e->at, 3));
    return shl(e, block_both(e, kir_shr(e->kb, byte, block_both(e, e->at, 7)), 1), 4);
}

static tn_quant decode_q4_0(const element *e) {
    return decoded(half_at(e, 0), kir_add(e->kb, nibble_32(e, 2), int_constant(e, -8)), KIR_NONE);
}

static tn_quant decode_q4_1(const element *e) { return decoded(half_at(e, 0), nibble_32(e, 4), half_at(e, 2)); }

static tn_quant decode_q5_0(const element *e) {
    kir_val u = kir_or(e->kb, nibble_32(e, 6), fifth_bit_32(e, 2));
    return decoded(half_at(e, 0), kir_add(e->kb, u, int_constant(e, -16)), KIR_NONE);
}

static tn_quant decode_q5_1(const element *e) {
    kir_val u = kir_or(e->kb, nibble_32(e, 8), fifth_bit_32(e, 4));
    return decoded(half_at(e, 0), u, half_at(e, 2));
}

static tn_quant decode_q8_0(const element *e) {
    return decoded(half_at(e, 0), signed_byte(e, byte_at(e, 2, e->at)), KIR_NONE);
}

/* Two factors of 32 bits, then bytes. */
static tn_quant decode_q8_x(const element *e) {
    kir_aff index = kir_aff_const(0);
    index.dyn = kir_add(e->kb, e->half0, kir_cast(e->kb, KIR_I64, shr(e, e->at, 4)));
    kir_val s = kir_load(e->kb, e->halves, &index, e->mask);
    return decoded(s, signed_byte(e, byte_at(e, 8, e->at)), KIR_NONE);
}

/* ---- blocks of 256 ----------------------------------------------------------------------------------------------- */

/* Two bits: bytes hold elements l, l + 32, l + 64 and l + 96 of each half of the block. */
static kir_val pair_bits(const element *e, int64_t offset) {
    kir_val place = kir_or(e->kb, shl(e, shr(e, e->at, 7), 5), block_both(e, e->at, 31));
    kir_val by = shl(e, block_both(e, shr(e, e->at, 5), 3), 1);
    return block_both(e, kir_shr(e->kb, byte_at(e, offset, place), by), 3);
}

static tn_quant decode_q2_k(const element *e) {
    kir_val part = byte_at(e, 0, shr(e, e->at, 4)); /* scale and minimum of 16 elements */
    kir_val s = kir_mul(e->kb, half_at(e, 80), block_number(e, block_both(e, part, 15)));
    kir_val t = kir_neg(e->kb, kir_mul(e->kb, half_at(e, 82), block_number(e, shr(e, part, 4))));
    return decoded(s, pair_bits(e, 16), t);
}

/* Six-bit scales: the low four bits of scales 0 … 7 and 8 … 15 share eight bytes; the high two bits of i, i + 4, i + 8
 * and i + 12 share one byte. */
static tn_quant decode_q3_k(const element *e) {
    kir_val part = shr(e, e->at, 4);
    kir_val low = block_both(e, kir_shr(e->kb, byte_at(e, 96, block_both(e, part, 7)), shl(e, shr(e, part, 3), 2)), 15);
    kir_val high =
        block_both(e, kir_shr(e->kb, byte_at(e, 104, block_both(e, part, 3)), shl(e, shr(e, part, 2), 1)), 3);
    kir_val scale = kir_add(e->kb, kir_or(e->kb, low, shl(e, high, 4)), int_constant(e, -32));
    kir_val top = block_both(e, kir_shr(e->kb, byte_at(e, 0, block_both(e, e->at, 31)), shr(e, e->at, 5)), 1);
    kir_val u = kir_add(e->kb, kir_or(e->kb, pair_bits(e, 32), shl(e, top, 2)), int_constant(e, -4));
    return decoded(kir_mul(e->kb, half_at(e, 108), block_number(e, scale)), u, KIR_NONE);
}

/* Scale and minimum of the eight parts, six bits each: parts 0 … 3 in the low six bits of bytes 0 … 3 and 4 … 7; parts
 * 4 … 7 have their low four bits in bytes 8 … 11 and their high two bits above those of parts 0 … 3. */
static void scale_and_minimum(const element *e, kir_val *scale, kir_val *minimum) {
    kir_val part = shr(e, e->at, 5), quarter = block_both(e, part, 3);
    kir_val first = kir_lt(e->kb, part, int_constant(e, 4));
    kir_val a = byte_at(e, 4, quarter), b = byte_at(e, 8, quarter), c = byte_at(e, 12, quarter);
    kir_val late_scale = kir_or(e->kb, block_both(e, c, 15), shl(e, shr(e, a, 6), 4));
    kir_val late_minimum = kir_or(e->kb, shr(e, c, 4), shl(e, shr(e, b, 6), 4));
    *scale = kir_select(e->kb, first, block_both(e, a, 63), late_scale);
    *minimum = kir_select(e->kb, first, block_both(e, b, 63), late_minimum);
}

/* Four bits: bytes hold elements l and l + 32 of each quarter of the block. */
static kir_val nibble_256(const element *e, int64_t offset) {
    kir_val place = kir_or(e->kb, shl(e, shr(e, e->at, 6), 5), block_both(e, e->at, 31));
    return block_both(e, kir_shr(e->kb, byte_at(e, offset, place), shl(e, block_both(e, shr(e, e->at, 5), 1), 2)), 15);
}

static tn_quant decode_with_minimum(const element *e, kir_val u) {
    kir_val scale = KIR_NONE, minimum = KIR_NONE;
    scale_and_minimum(e, &scale, &minimum);
    kir_val t = kir_neg(e->kb, kir_mul(e->kb, half_at(e, 2), block_number(e, minimum)));
    return decoded(kir_mul(e->kb, half_at(e, 0), block_number(e, scale)), u, t);
}

static tn_quant decode_q4_k(const element *e) { return decode_with_minimum(e, nibble_256(e, 16)); }

static tn_quant decode_q5_k(const element *e) {
    kir_val top = block_both(e, kir_shr(e->kb, byte_at(e, 16, block_both(e, e->at, 31)), shr(e, e->at, 5)), 1);
    return decode_with_minimum(e, kir_or(e->kb, nibble_256(e, 48), shl(e, top, 4)));
}

/* Low four bits: bytes hold elements l and l + 64 of each half of the block. */
static tn_quant decode_q6_k(const element *e) {
    kir_val place = kir_or(e->kb, shl(e, shr(e, e->at, 7), 6), block_both(e, e->at, 63));
    kir_val low =
        block_both(e, kir_shr(e->kb, byte_at(e, 0, place), shl(e, block_both(e, shr(e, e->at, 6), 1), 2)), 15);
    kir_val u = kir_add(e->kb, kir_or(e->kb, low, shl(e, pair_bits(e, 128), 4)), int_constant(e, -32));
    kir_val scale = signed_byte(e, byte_at(e, 192, shr(e, e->at, 4)));
    return decoded(kir_mul(e->kb, half_at(e, 208), block_number(e, scale)), u, KIR_NONE);
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

static tn_quant (*const decoders[TN_DTYPE_COUNT])(const element *e) = {
    [TN_Q4_0] = decode_q4_0, [TN_Q4_1] = decode_q4_1, [TN_Q5_0] = decode_q5_0, [TN_Q5_1] = decode_q5_1,
    [TN_Q8_0] = decode_q8_0, [TN_Q2_K] = decode_q2_k, [TN_Q3_K] = decode_q3_k, [TN_Q4_K] = decode_q4_k,
    [TN_Q5_K] = decode_q5_k, [TN_Q6_K] = decode_q6_k, [TN_Q8_X] = decode_q8_x,
};

static tn_dtype block_factor(tn_dtype dtype) { return dtype == TN_Q8_X ? TN_F32 : TN_F16; }

static tn_quant lower_block_parts(const tn_blocks *b, const kir_aff *index, int by) {
    int64_t block = tn_dtype_block(b->dtype), size = (int64_t)tn_dtype_size(b->dtype);
    int shift = block == 32 ? 5 : 8; /* the blocks that there are */
    kir_builder *kb = b->kb;
    kir_val number = kir_index(kb, index);
    kir_val which = kir_shr(kb, number, kir_whole(kb, shift));
    kir_val within = kir_and(kb, number, kir_whole(kb, block - 1));
    element e = {.kb = kb, .bytes = b->bytes, .halves = b->halves, .mask = b->mask};
    e.byte0 = kir_mul(kb, which, kir_whole(kb, size));
    e.half0 = kir_mul(kb, which, kir_whole(kb, size / (int64_t)tn_dtype_size(block_factor(b->dtype))));
    e.at = kir_add(e.kb, kir_cast(kb, KIR_I32, within), int_constant(&e, by));
    return decoders[b->dtype](&e);
}

static kir_val lower_block_element(const tn_blocks *b, const kir_aff *index) {
    tn_quant q = lower_block_parts(b, index, 0);
    kir_val product = kir_binary(b->kb, KIR_MUL, q.s, kir_cast(b->kb, KIR_F32, q.u));
    return q.t == KIR_NONE ? product : kir_binary(b->kb, KIR_ADD, product, q.t);
}
