/* gather.c — the primitives that read and add at places which another tensor names. */
#include <math.h>
#include <string.h>

#include "ops/element_index.h"

/* What stands where an index leads outside: NaN, so that it is seen; 0 for types without one. */
static kir_val outside_value(tn_lower *lw, tn_dtype t) {
    if (!tn_dtype_is_float(t)) return index_zero(lw, t);
    return kir_const(lw->kb, kir_type_of(t), __builtin_nan(""));
}
static double outside_reference(tn_dtype t) { return tn_dtype_is_float(t) ? __builtin_nan("") : 0; }

static kir_val load_gathered(tn_lower *lw, const tn_node *n, const kir_aff *at, int64_t dim, kir_val index) {
    const tn_node *x = n->in[0];
    kir_aff in[TN_MAX_RANK];
    for (int d = 0; d < TN_MAX_RANK; d++)
        in[d] = d < n->rank ? at[d] : kir_aff_const(0);
    index = kir_cast(lw->kb, KIR_I64, index);
    in[dim] = tn_aff_value(index);
    kir_val inside = index_in_range(lw->kb, index, tn_line_extent(x, dim));
    kir_val v = tn_lower_at_masked(lw, x, in, inside);
    return kir_select(lw->kb, inside, v, outside_value(lw, (tn_dtype)n->dtype));
}

/* gather(x, dim, index): out[…, i, …] = x[…, index[…, i, …], …]; the result has index's shape. An index outside [0,
 * size) is an error (see "Indices" above). */
static tn_status infer_gather(tn_infer *c) {
    const tn_node *x = c->in[0], *index = c->in[1];
    int64_t dim;
    char a[96], b[96];
    TRY(tn_need_integer(c, 1));
    TRY(tn_infer_dim(c, c->attrs->i[TN_GATHER_DIM], x->rank, &dim));
    c->attrs->i[TN_GATHER_DIM] = dim;
    bool fits = tn_line_rank(x) == tn_line_rank(index);
    for (int d = 0; fits && d < tn_line_rank(x); d++)
        fits = d == dim || tn_line_extent(index, d) <= tn_line_extent(x, d);
    if (!fits && tn_node_numel(index))
        return tn_fail(TN_ERR_SHAPE,
                       "gather: index %s does not fit to %s: ranks must be equal, extents but that of dim %lld ≤",
                       tn_shape_text(index, b, sizeof b), tn_shape_text(x, a, sizeof a), (long long)dim);
    c->rank = index->rank;
    c->dtype = (tn_dtype)x->dtype;
    memcpy(c->shape, index->shape, sizeof c->shape);
    memcpy(c->symbol, index->symbol, sizeof c->symbol);
    return TN_OK;
}
static tn_status grad_gather(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    const tn_node *x = n->in[0];
    int64_t one = 1;
    if (tn_node_numel(n) == 0) { /* an empty index may have any rank */
        grads[0] = tn_b_expand(b, tn_b_const(b, 0, n), x->shape, x->rank);
        return b->status;
    }
    tn_node *sum = tn_b_scatter_sum(b, tn_b_line(b, n->in[1]), tn_b_line(b, dy), n->i[TN_GATHER_DIM],
                                    x->rank ? x->shape : &one, tn_line_rank(x));
    grads[0] = x->rank ? sum : tn_b_view(b, sum, NULL, 0);
    return b->status;
}
static kir_val lower_gather(tn_lower *lw, const tn_node *n, const kir_aff *at) {
    return load_gathered(lw, n, at, n->i[TN_GATHER_DIM], tn_lower_at(lw, n->in[1], at));
}
static void reference_gather(const tn_reference *r) {
    const tn_node *n = r->node;
    int64_t dim = n->i[TN_GATHER_DIM], from[TN_MAX_RANK];
    for (tn_walk w = tn_walk_begin(n); w.place < w.count; tn_walk_next(&w)) {
        memcpy(from, w.at, sizeof from);
        from[dim] = (int64_t)r->in[1][w.place];
        bool inside = from[dim] >= 0 && from[dim] < tn_line_extent(n->in[0], dim);
        r->out[w.place] = inside ? r->in[0][tn_element_offset(n->in[0], from)] : outside_reference((tn_dtype)n->dtype);
    }
}
const tn_op_impl tn_impl_gather = {
    .class_ = TN_MOVEMENT,
    .infer = infer_gather,
    .grad = grad_gather,
    .lower = lower_gather,
    .reference = reference_gather,
    .cases =
        "types=f32,f64,i32; [4,5] [2,5]:i64@0..3 dim=0; [4,5] [4,7]:i32@0..4 dim=-1; [5] [0]:i64@0..0 dim=0;"
        "[3,4,2] [2,6,1]:i64@0..3 dim=1; [4] [6]:i64@-2..6 dim=0 grad=off; [] []:i64@0..0 dim=0; "
        "[] [3]:i64@0..0 dim=-1; [4] []:i64@0..3 dim=0; [] [4]:i64@-1..1 dim=0 grad=off; [5] [2,0]:i64@0..0 dim=0; "
        "error=fit [4,5] [2]:i64@0..1 dim=0; error=integer [4] [4]:f32 dim=0"};

/* index_select(x, dim, index): the slices of x along dim that index (rank 1 or 0) names, in its order. An index outside
 * is an error (see "Indices" above). */
static tn_status infer_index_select(tn_infer *c) {
    const tn_node *x = c->in[0], *index = c->in[1];
    int64_t dim;
    char a[96];
    TRY(tn_need_integer(c, 1));
    if (index->rank > 1)
        return tn_fail(TN_ERR_SHAPE, "index_select: index has shape %s; it must have rank 1",
                       tn_shape_text(index, a, sizeof a));
    TRY(tn_infer_dim(c, c->attrs->i[TN_INDEX_SELECT_DIM], x->rank, &dim));
    c->attrs->i[TN_INDEX_SELECT_DIM] = dim;
    TRY(tn_infer_same(c));
    if (x->rank == 0 && tn_node_numel(index) != 1)
        return tn_fail(TN_ERR_SHAPE, "index_select: x has no dimensions, so index must have one element; it is %s",
                       tn_shape_text(index, a, sizeof a));
    if (x->rank == 0) return TN_OK;
    c->shape[dim] = tn_node_numel(index);
    c->symbol[dim] = index->rank ? index->symbol[0] : 0;
    return tn_infer_shape(c, c->shape, c->rank);
}
static tn_status grad_index_select(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    tn_node *zeros = tn_b_expand(b, tn_b_const(b, 0, dy), n->in[0]->shape, n->in[0]->rank);
    grads[0] = tn_b_index_add(b, zeros, n->i[TN_INDEX_SELECT_DIM], n->in[1], dy);
    return b->status;
}
static kir_val lower_index_select(tn_lower *lw, const tn_node *n, const kir_aff *at) {
    int64_t dim = n->i[TN_INDEX_SELECT_DIM];
    kir_aff first = kir_aff_const(0);
    return load_gathered(lw, n, at, dim, tn_lower_at(lw, n->in[1], n->rank ? &at[dim] : &first));
}
static void reference_index_select(const tn_reference *r) {
    const tn_node *n = r->node;
    int64_t dim = n->i[TN_INDEX_SELECT_DIM], from[TN_MAX_RANK];
    for (tn_walk w = tn_walk_begin(n); w.place < w.count; tn_walk_next(&w)) {
        memcpy(from, w.at, sizeof from);
        from[dim] = (int64_t)r->in[1][n->rank ? w.at[dim] : 0];
        bool inside = from[dim] >= 0 && from[dim] < tn_line_extent(n->in[0], dim);
        r->out[w.place] = inside ? r->in[0][tn_element_offset(n->in[0], from)] : outside_reference((tn_dtype)n->dtype);
    }
}
const tn_op_impl tn_impl_index_select = {
    .class_ = TN_MOVEMENT,
    .infer = infer_index_select,
    .grad = grad_index_select,
    .lower = lower_index_select,
    .reference = reference_index_select,
    .cases = "types=f32,f64,i32; [4,5] [3]:i64@0..3 dim=0; [4,5] [7]:i32@0..4 dim=1; [4] []:i64@0..3 dim=0;"
             "[3,2] [0]:i64@0..0 dim=0; [4] [6]:i64@-2..6 dim=0 grad=off; [] [1]:i64@0..0 dim=0; "
             "[] []:i64@0..0 dim=-1; error=element [] [2]:i64@0..0 dim=0; error=rank [4,5] [2,2]:i64@0..1 dim=0"};

/* scatter_sum(index, src, dim, shape): zeros of `shape`, to which src[…, j, …] is added at […, index[…, j, …], …]; what
 * an index puts outside is left out. One owner an element: it looks through all of dim, in ascending order. */
static tn_status infer_scatter_sum(tn_infer *c) {
    const tn_node *index = c->in[0], *src = c->in[1];
    int64_t dim, rank = c->attrs->i[1];
    const int64_t *shape = c->attrs->i + 2;
    if (c->in[1]->dtype == TN_BOOL) return tn_fail(TN_ERR_DTYPE, "%s: not for bool: cast it", c->row->name);
    TRY(tn_need_integer(c, 0));
    TRY(tn_infer_dim(c, c->attrs->i[0], (int)rank, &dim));
    c->attrs->i[0] = dim;
    if (rank == 0 || index->rank != rank || src->rank != rank)
        return tn_fail(TN_ERR_SHAPE, "%s: index and source do not fit a target of rank %lld", c->row->name,
                       (long long)rank);
    TRY(tn_infer_scattered(c, index, src, dim, shape, rank));
    c->dtype = (tn_dtype)src->dtype;
    return tn_infer_shape(c, shape, rank);
}
/* For each element of the source what v, a tensor of n's shape, has where it went; 0 for what is left out. */
static tn_node *back_to_source(tn_build *b, const tn_node *n, tn_node *v) {
    const tn_node *index = n->in[0], *src = n->in[1];
    int64_t dim = n->i[0], pads[2 * TN_MAX_RANK], last = n->shape[dim] - 1;
    if (!v) return NULL;
    /* What fell outside has no part in the result: it looks at any place that exists. */
    tn_node *low = tn_b_maximum(b, n->in[0], tn_b_const(b, 0, index));
    tn_node *place = tn_b_minimum(b, low, tn_b_const(b, (double)last, index));
    tn_node *taken =
        last < 0 ? tn_b_expand(b, tn_b_const(b, 0, v), index->shape, index->rank) : tn_b_gather(b, v, dim, place);
    tn_node *g = tn_b_where(b, tn_b_eq(b, place, n->in[0]), taken, tn_b_const(b, 0, v));
    for (int d = 0; d < n->rank; d++) {
        pads[2 * (n->rank - 1 - d)] = 0;
        pads[2 * (n->rank - 1 - d) + 1] = src->shape[d] - index->shape[d];
    }
    return tn_b_pad(b, g, pads, 2 * n->rank, 0);
}
static tn_status grad_scatter_sum(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    grads[1] = back_to_source(b, n, dy);
    return b->status;
}
static int loops_scatter_sum(const tn_node *n, int64_t extent[TN_MAX_RANK]) {
    extent[0] = n->in[0]->shape[n->i[0]];
    return 1;
}
/* Whether the index leads from place `in` (set here: the loop's place along dim, else the result's) to place `at`. */
static kir_val scatter_hits(tn_lower *lw, const tn_node *n, const kir_aff *at, kir_aff in[TN_MAX_RANK]) {
    kir_builder *kb = lw->kb;
    const tn_node *index = n->in[0];
    int64_t dim = n->i[0];
    kir_val there = KIR_NONE;
    for (int d = 0; d < n->rank; d++) {
        in[d] = d == dim ? at[n->rank] : at[d];
        if (d != dim && index->shape[d] < n->shape[d])
            there = mask_both(kb, there, index_below(kb, &in[d], -index->shape[d]));
    }
    kir_val place = there == KIR_NONE ? tn_lower_at(lw, index, in) : tn_lower_at_masked(lw, index, in, there);
    kir_val hit = kir_binary(kb, KIR_EQ, kir_cast(kb, KIR_I64, place), kir_index(kb, &at[dim]));
    return mask_both(kb, there, hit);
}
static kir_val lower_scatter_sum(tn_lower *lw, const tn_node *n, const kir_aff *at) {
    kir_aff in[TN_MAX_RANK];
    kir_val hit = scatter_hits(lw, n, at, in);
    kir_val v = tn_lower_at_masked(lw, n->in[1], in, hit);
    return kir_select(lw->kb, hit, v, index_zero(lw, (tn_dtype)n->dtype));
}
/* 0, 1, 2 … along a dim of a tensor of this rank, the other dims being 1. */
static tn_node *numbers_along(tn_build *b, int64_t count, int dim, int rank) {
    int64_t shape[TN_MAX_RANK];
    for (int d = 0; d < rank; d++)
        shape[d] = d == dim ? count : 1;
    return tn_b_reshape(b, tn_b_arange(b, 0, (double)count, 1, TN_I64), shape, rank);
}

/* Where each element of the index leads in the target as one row, −1 for what falls outside: [elements]. */
static tn_node *flat_places(tn_build *b, const tn_node *n) {
    tn_node *index = tn_b_cast(b, n->in[0], TN_I64), *place = NULL;
    int64_t dim = n->i[0], stride[TN_MAX_RANK], count = tn_node_numel(n->in[0]);
    if (!index) return NULL;
    index_strides(n->shape, n->rank, stride);
    tn_node *last = tn_b_const(b, (double)(n->shape[dim] - 1), index), *none = tn_b_const(b, -1, index);
    tn_node *inside = tn_b_logical_and(b, tn_b_le(b, tn_b_const(b, 0, index), index), tn_b_le(b, index, last));
    place = tn_b_mul(b, index, tn_b_const(b, (double)stride[dim], index));
    for (int d = 0; d < n->rank; d++) {
        if (d == dim || index->shape[d] == 1) continue;
        tn_node *steps = numbers_along(b, index->shape[d], d, n->rank);
        place = tn_b_add(b, place, tn_b_mul(b, steps, tn_b_const(b, (double)stride[d], index)));
    }
    return tn_b_whole(b, tn_b_reshape(b, tn_b_where(b, inside, place, none), &count, 1));
}

/* Looking through all of dim takes time that grows with its square. */
static bool many_to_look_through(const tn_node *n) {
    enum { MANY = 32 };
    const tn_node *index = n->in[0];
    return index->shape[n->i[0]] >= MANY && n->shape[n->i[0]] >= MANY && tn_node_numel(n) && tn_node_numel(index);
}

/* What is added up by place: one row an element of n. */
static tn_node *zeros_for(tn_build *b, const tn_node *n, tn_dtype t) {
    int64_t count = tn_node_numel(n);
    return tn_b_contiguous(b, tn_b_expand(b, tn_b_cast(b, tn_b_const(b, 0, n), t), &count, 1));
}

/* Where the processor has many to look through, each element of the source goes to its place instead: the sums are the
 * same, begun at 0 and in ascending order. */
static tn_node *compose_scatter_sum(tn_build *b, const tn_node *n) {
    tn_node *index = n->in[0], *src = n->in[1];
    int64_t count = tn_node_numel(index);
    if ((n->dtype != TN_F32 && n->dtype != TN_F64) || !many_to_look_through(n)) return tn_b_self(n);
    for (int d = 0; d < n->rank; d++)
        if (index->shape[d] < src->shape[d]) src = tn_b_slice(b, src, d, 0, index->shape[d], 1);
    tn_node *zeros = zeros_for(b, n, (tn_dtype)n->dtype);
    tn_node *sum = tn_b_index_add_rows(b, zeros, flat_places(b, n), tn_b_whole(b, tn_b_reshape(b, src, &count, 1)));
    return tn_b_view(b, sum, n->shape, n->rank);
}

static void reference_scatter_sum(const tn_reference *r) {
    const tn_node *n = r->node, *index = n->in[0];
    int64_t dim = n->i[0], to[TN_MAX_RANK];
    memset(r->out, 0, (size_t)tn_node_numel(n) * sizeof *r->out);
    tn_node like = {.rank = index->rank};
    memcpy(like.shape, index->shape, sizeof like.shape);
    for (tn_walk w = tn_walk_begin(&like); w.place < w.count; tn_walk_next(&w)) {
        memcpy(to, w.at, sizeof to);
        to[dim] = (int64_t)r->in[0][w.place];
        if (to[dim] >= 0 && to[dim] < n->shape[dim])
            r->out[tn_element_offset(n, to)] += r->in[1][tn_element_offset(n->in[1], w.at)];
    }
}
const tn_op_impl tn_impl_scatter_sum = {.class_ = TN_REDUCTION,
                                        .reduce = KIR_SEQ,
                                        .infer = infer_scatter_sum,
                                        .compose = compose_scatter_sum,
                                        .grad = grad_scatter_sum,
                                        .lower = lower_scatter_sum,
                                        .loops = loops_scatter_sum,
                                        .reference = reference_scatter_sum,
                                        .cases = "types=f32,f64,i32 tol=4ulp atol=1e-6; [9,2]:i64@0..3 [9,2] dim=0 "
                                                 "shape=(4,2); [2,7]:i32@0..4 [3,8] dim=1 shape=(3,5);"
                                                 "[2,40,2]:i64@-2..34 [3,41,2] dim=1 shape=(3,33,3);"
                                                 "[5]:i64@-2..6 [5] dim=0 shape=(4); [0]:i64@0..0 [0] dim=0 shape=(3);"
                                                 "error=bool [2]:i64@0..1 [2]:bool dim=0 shape=(2); "
                                                 "error=fit [2]:i64@0..1 [2,2] dim=0 shape=(2,2)",
                                        .flops = 1};

/* The other reductions of what goes to one place: as scatter_sum, from the number that changes nothing. */
static kir_val neutral_of(kir_builder *kb, const tn_node *n) {
    tn_dtype t = (tn_dtype)n->dtype;
    kir_type type = kir_type_of(t);
    int bits = (int)(8 * tn_dtype_size(t));
    bool greatest = n->op == TN_OP_SCATTER_AMIN, is_signed = t == TN_I8 || t == TN_I16 || t == TN_I32 || t == TN_I64;
    if (n->op == TN_OP_SCATTER_PROD) return kir_const(kb, type, 1);
    if (tn_dtype_is_float(t)) return kir_const(kb, type, greatest ? INFINITY : -INFINITY);
    uint64_t ones = UINT64_MAX >> (64 - bits), top = ones >> is_signed;
    return kir_const_i(kb, type, (int64_t)(greatest ? top : is_signed ? ~top : 0));
}
static kir_val lower_scatter_reduced(tn_lower *lw, const tn_node *n, const kir_aff *at) {
    kir_aff in[TN_MAX_RANK];
    kir_val hit = scatter_hits(lw, n, at, in);
    kir_val v = tn_lower_at_masked(lw, n->in[1], in, hit);
    return kir_select(lw->kb, hit, v, neutral_of(lw->kb, n));
}
static tn_node *scattered(tn_build *b, const tn_node *n, tn_node *src, bool multiply) {
    return multiply ? tn_b_scatter_prod(b, n->in[0], src, n->i[0], n->shape, n->rank)
                    : tn_b_scatter_sum(b, n->in[0], src, n->i[0], n->shape, n->rank);
}
/* The product of all others that go to the same place. Others are the place's product without zeros, divided by the
 * own factor; with one zero among them they are that zero (of which a gradient can be taken again), with more they are
 * 0. */
static tn_status grad_scatter_prod(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    tn_node *src = n->in[1], *zero = tn_b_const(b, 0, src), *one = tn_b_const(b, 1, src);
    tn_node *is_zero = tn_b_eq(b, src, zero), *factor = tn_b_where(b, is_zero, one, src);
    tn_node *zeros = scattered(b, n, tn_b_cast(b, is_zero, TN_I64), false);
    tn_node *no_zero = tn_b_eq(b, zeros, zeros ? tn_b_const(b, 0, zeros) : NULL);
    tn_node *one_zero = tn_b_eq(b, zeros, zeros ? tn_b_const(b, 1, zeros) : NULL);
    tn_node *product = scattered(b, n, factor, true);
    tn_node *the_zero = scattered(b, n, tn_b_where(b, is_zero, src, zero), false);
    tn_node *beside_zero = tn_b_mul(b, product, tn_b_where(b, no_zero, one, tn_b_where(b, one_zero, the_zero, zero)));
    tn_node *of_zero = back_to_source(b, n, tn_b_mul(b, dy, tn_b_where(b, one_zero, product, zero)));
    tn_node *of_other = tn_b_div(b, back_to_source(b, n, tn_b_mul(b, dy, beside_zero)), factor);
    grads[1] = tn_b_where(b, is_zero, of_zero, of_other);
    return b->status;
}
/* Equal ones share the gradient. */
static tn_status grad_scatter_extreme(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    tn_node *reached = tn_b_eq(b, n->in[1], back_to_source(b, n, tn_b_self(n)));
    reached = tn_b_cast(b, reached, (tn_dtype)n->dtype);
    tn_node *many = tn_b_scatter_sum(b, n->in[0], reached, n->i[0], n->shape, n->rank);
    grads[1] = tn_b_mul(b, reached, back_to_source(b, n, tn_b_div(b, dy, many)));
    return b->status;
}
static void reference_scatter_reduced(const tn_reference *r) {
    const tn_node *n = r->node, *index = n->in[0];
    int64_t to[TN_MAX_RANK];
    int op = n->op;
    bool is_float = tn_dtype_is_float((tn_dtype)n->dtype);
    double low = is_float ? -INFINITY : -0x1p31, high = is_float ? INFINITY : 0x1p31 - 1;
    for (int64_t i = 0, count = tn_node_numel(n); i < count; i++)
        r->out[i] = op == TN_OP_SCATTER_PROD ? 1 : op == TN_OP_SCATTER_AMAX ? low : high;
    tn_node like = {.rank = index->rank};
    memcpy(like.shape, index->shape, sizeof like.shape);
    for (tn_walk w = tn_walk_begin(&like); w.place < w.count; tn_walk_next(&w)) {
        memcpy(to, w.at, sizeof to);
        to[n->i[0]] = (int64_t)r->in[0][w.place];
        if (to[n->i[0]] < 0 || to[n->i[0]] >= n->shape[n->i[0]]) continue;
        double v = r->in[1][tn_element_offset(n->in[1], w.at)], *own = &r->out[tn_element_offset(n, to)];
        if (op == TN_OP_SCATTER_PROD)
            *own *= v;
        else if (v != v || (op == TN_OP_SCATTER_AMAX ? v > *own : v < *own))
            *own = v;
    }
}
#define SCATTER_REDUCED(kind, grad_)                                                                                   \
    .class_ = TN_REDUCTION, .reduce = kind, .infer = infer_scatter_sum, .grad = grad_, .lower = lower_scatter_reduced, \
    .loops = loops_scatter_sum, .reference = reference_scatter_reduced, .flops = 1,                                    \
    .cases = "types=f32,f64,i32 tol=4ulp; [9,2]:i64@0..3 [9,2] dim=0 shape=(4,2) grad=off; [2,7]:i32@0..4 [3,8] "      \
             "dim=1 shape=(3,5) grad=off; error=bool [2]:i64@0..1 [2]:bool dim=0 shape=(2)"

/* scatter_prod(index, src, dim, shape): ones of `shape`, multiplied by src[…, j, …] at […, index[…, j, …], …].
 * The gradient is right beside zeros too. */
const tn_op_impl tn_impl_scatter_prod = {SCATTER_REDUCED(KIR_PROD, grad_scatter_prod)};

/* scatter_amax(index, src, dim, shape): for each place of `shape` the greatest src[…, j, …] that index leads there; −∞,
 * or the least number of the type, where there is none. */
const tn_op_impl tn_impl_scatter_amax = {SCATTER_REDUCED(KIR_RMAX, grad_scatter_extreme)};

/* scatter_amin(index, src, dim, shape): for each place of `shape` the least src[…, j, …] that index leads there; ∞, or
 * the greatest number of the type, where there is none. */
const tn_op_impl tn_impl_scatter_amin = {SCATTER_REDUCED(KIR_RMIN, grad_scatter_extreme)};

/* scatter_extreme(index, src, x, dim, greatest): the greatest, or least, of each element of x and all src[…, j, …] that
 * index leads there. Equal ones share the gradient, as in PyTorch: x's element counts as one of them. */
static tn_status infer_scatter_extreme(tn_infer *c) {
    const tn_node *x = c->in[2];
    int64_t *dim = &c->attrs->i[0];
    TRY(tn_infer_dim(c, *dim, x->rank, dim));
    TRY(tn_infer_scattered(c, c->in[0], c->in[1], *dim, x->shape, x->rank));
    c->dtype = (tn_dtype)x->dtype;
    return tn_infer_shape(c, x->shape, x->rank);
}
static tn_node *compose_scatter_extreme(tn_build *b, const tn_node *n) {
    tn_node *index = n->in[0], *src = n->in[1], *x = n->in[2];
    int64_t dim = n->i[0];
    if (n->i[1]) return tn_b_maximum(b, x, tn_b_scatter_amax(b, index, src, dim, n->shape, n->rank));
    return tn_b_minimum(b, x, tn_b_scatter_amin(b, index, src, dim, n->shape, n->rank));
}
static tn_status grad_scatter_with_own(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    tn_node *y = tn_b_self(n);
    tn_node *own = tn_b_cast(b, tn_b_eq(b, n->in[2], y), (tn_dtype)n->dtype);
    tn_node *reached = tn_b_cast(b, tn_b_eq(b, n->in[1], back_to_source(b, n, y)), (tn_dtype)n->dtype);
    tn_node *many = tn_b_add(b, own, tn_b_scatter_sum(b, n->in[0], reached, n->i[0], n->shape, n->rank));
    tn_node *share = tn_b_div(b, dy, many);
    if (tn_needs_grad(n, 1)) grads[1] = tn_b_mul(b, reached, back_to_source(b, n, share));
    if (tn_needs_grad(n, 2)) grads[2] = tn_b_mul(b, own, share);
    return b->status;
}
const tn_op_impl tn_impl_scatter_extreme = {
    .infer = infer_scatter_extreme,
    .compose = compose_scatter_extreme,
    .grad = grad_scatter_with_own,
    .cases = "types=f32,f64,i32; [9,2]:i64@0..3 [9,2] [4,2] dim=0 greatest=true; "
             "[2,7]:i32@0..4 [3,8] [3,5] dim=1 greatest=false; error=fit [2]:i64@0..1 [2,2] [2] dim=0 greatest=true"};

/* scatter_last(index, dim, shape): for each element of `shape` the greatest j with index[…, j, …] leading to it, −1
 * where there is none. */
static tn_status infer_scatter_last(tn_infer *c) {
    const tn_node *index = c->in[0];
    int64_t dim, rank = c->attrs->i[1];
    const int64_t *shape = c->attrs->i + 2;
    char text[96];
    TRY(tn_need_integer(c, 0));
    TRY(tn_infer_dim(c, c->attrs->i[0], (int)rank, &dim));
    c->attrs->i[0] = dim;
    bool fits = rank > 0 && index->rank == rank && index->shape[dim] > 0;
    for (int d = 0; fits && d < rank; d++)
        fits = d == dim || index->shape[d] <= shape[d];
    if (!fits)
        return tn_fail(TN_ERR_SHAPE, "%s: index %s does not fit to the target", c->row->name,
                       tn_shape_text(index, text, sizeof text));
    TRY(tn_infer_shape(c, shape, rank));
    c->dtype = TN_I64;
    return TN_OK;
}
static kir_val lower_scatter_last(tn_lower *lw, const tn_node *n, const kir_aff *at) {
    kir_builder *kb = lw->kb;
    kir_aff in[TN_MAX_RANK];
    kir_val hit = scatter_hits(lw, n, at, in);
    return kir_select(kb, hit, kir_index(kb, &at[n->rank]), kir_const_i(kb, KIR_I64, -1));
}
/* The same for the last that leads to a place: in order of places the last of equal ones, whose number (and one, so
 * that 0 is none) alone goes there. */
static tn_node *compose_scatter_last(tn_build *b, const tn_node *n) {
    const tn_node *index = n->in[0];
    int64_t dim = n->i[0], count = tn_node_numel(index), pads[2] = {0, 1};
    if (!many_to_look_through(n)) return tn_b_self(n);
    tn_node *place = flat_places(b, n), *order = tn_b_argsort_last(b, place, false);
    tn_node *sorted = tn_b_whole(b, tn_b_index_select(b, place, 0, order));
    tn_node *next = tn_b_pad(b, tn_b_slice(b, sorted, 0, 1, count, 1), pads, 2, -2);
    tn_node *last = tn_b_where(b, tn_b_ne(b, sorted, next), sorted, sorted ? tn_b_const(b, -1, sorted) : NULL);
    tn_node *number = numbers_along(b, index->shape[dim], (int)dim, n->rank);
    number = tn_b_reshape(b, tn_b_expand(b, number, index->shape, n->rank), &count, 1);
    tn_node *counted = tn_b_cast(b, tn_b_index_select(b, tn_b_whole(b, number), 0, order), TN_F64);
    counted = tn_b_offset(b, counted, 1);
    tn_node *zeros = zeros_for(b, n, TN_F64);
    tn_node *found = tn_b_index_add_rows(b, zeros, tn_b_whole(b, last), tn_b_whole(b, counted));
    found = tn_b_cast(b, tn_b_offset(b, found, -1), TN_I64);
    return tn_b_view(b, found, n->shape, n->rank);
}

static void reference_scatter_last(const tn_reference *r) {
    const tn_node *n = r->node, *index = n->in[0];
    int64_t dim = n->i[0], to[TN_MAX_RANK];
    for (int64_t i = 0, count = tn_node_numel(n); i < count; i++)
        r->out[i] = -1;
    tn_node like = {.rank = index->rank};
    memcpy(like.shape, index->shape, sizeof like.shape);
    for (tn_walk w = tn_walk_begin(&like); w.place < w.count; tn_walk_next(&w)) {
        memcpy(to, w.at, sizeof to);
        to[dim] = (int64_t)r->in[0][w.place];
        if (to[dim] < 0 || to[dim] >= n->shape[dim]) continue;
        double *last = &r->out[tn_element_offset(n, to)];
        if ((double)w.at[dim] > *last) *last = (double)w.at[dim];
    }
}
const tn_op_impl tn_impl_scatter_last = {
    .class_ = TN_REDUCTION,
    .reduce = KIR_RMAX,
    .infer = infer_scatter_last,
    .compose = compose_scatter_last,
    .lower = lower_scatter_last,
    .loops = loops_scatter_sum,
    .reference = reference_scatter_last,
    .cases = "[9,2]:i64@0..3 dim=0 shape=(4,2); [2,7]:i32@0..4 dim=1 shape=(3,5); [5]:i64@-2..6 dim=0 shape=(4);"
             "[2,40,2]:i64@-2..34 dim=1 shape=(3,33,3);"
             "error=fit [2]:i64@0..1 dim=0 shape=(2,2)",
    .flops = 1};

/* index_add_rows(x, index, src): x with row src[i] added to row index[i], in ascending i; rows outside are left out. */
static tn_status infer_index_add_rows(tn_infer *c) {
    const tn_node *x = c->in[0], *index = c->in[1], *src = c->in[2];
    char a[96], b[96], i[96];
    for (int k = 0; k < 3; k++)
        TRY(tn_need_contiguous(c, k));
    if (index->dtype != TN_I64)
        return tn_fail(TN_ERR_DTYPE, "index_add: the index is %s; it must be i64",
                       tn_dtype_name((tn_dtype)index->dtype));
    bool fits = x->rank > 0 && src->rank == x->rank && index->rank == 1 && index->shape[0] == src->shape[0];
    for (int d = 1; fits && d < x->rank; d++)
        fits = src->shape[d] == x->shape[d];
    if (!fits)
        return tn_fail(
            TN_ERR_SHAPE, "index_add: source %s with index %s does not fit to %s: one index a row, rows as in x",
            tn_shape_text(src, b, sizeof b), tn_shape_text(index, i, sizeof i), tn_shape_text(x, a, sizeof a));
    if (x->dtype != src->dtype)
        return tn_fail(TN_ERR_DTYPE, "index_add: %s and source %s: they must have one dtype",
                       tn_dtype_name((tn_dtype)x->dtype), tn_dtype_name((tn_dtype)src->dtype));
    return tn_infer_same(c);
}
static tn_status grad_index_add_rows(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    grads[0] = dy;
    if (!tn_needs_grad(n, 2)) return b->status;
    int64_t last = n->shape[0] - 1;
    tn_node *zero = tn_b_const(b, 0, n->in[1]);
    tn_node *place = tn_b_minimum(b, tn_b_maximum(b, n->in[1], zero), tn_b_const(b, (double)last, n->in[1]));
    tn_node *taken =
        last < 0 ? tn_b_expand(b, tn_b_const(b, 0, dy), n->in[2]->shape, n->rank) : tn_b_index_select(b, dy, 0, place);
    int64_t column[TN_MAX_RANK];
    for (int d = 0; d < n->rank; d++)
        column[d] = d ? 1 : n->in[1]->shape[0];
    tn_node *inside = tn_b_reshape(b, tn_b_eq(b, place, n->in[1]), column, n->rank);
    grads[2] = tn_b_where(b, inside, taken, tn_b_const(b, 0, dy));
    return b->status;
}
/* x first, then each source row, −0 in place of those for other rows: that leaves every number as it is. */
static int loops_index_add_rows(const tn_node *n, int64_t extent[TN_MAX_RANK]) {
    extent[0] = n->in[1]->shape[0] + 1;
    return 1;
}
static kir_val lower_index_add_rows(tn_lower *lw, const tn_node *n, const kir_aff *at) {
    kir_builder *kb = lw->kb;
    kir_aff from[TN_MAX_RANK], row = index_shifted(&at[n->rank], -1);
    memcpy(from, at, (size_t)n->rank * sizeof *from);
    from[0] = row;
    kir_val source = index_not_negative(kb, &row), first = index_below(kb, &at[n->rank], -1);
    kir_val place = tn_lower_at_masked(lw, n->in[1], &row, source);
    kir_val hit = kir_binary(kb, KIR_AND, source, kir_binary(kb, KIR_EQ, place, kir_index(kb, &at[0])));
    kir_val added = tn_lower_at_masked(lw, n->in[2], from, hit);
    kir_val own = tn_lower_at_masked(lw, n->in[0], at, first);
    kir_val none = kir_const(kb, kir_type_of((tn_dtype)n->dtype), -0.0);
    return kir_select(kb, first, own, kir_select(kb, hit, added, none));
}
static void reference_index_add_rows(const tn_reference *r) {
    const tn_node *n = r->node;
    int64_t rows = n->shape[0], count = n->in[1]->shape[0];
    int64_t width = 1;
    for (int d = 1; d < n->rank; d++)
        width *= n->shape[d];
    memcpy(r->out, r->in[0], (size_t)(rows * width) * sizeof *r->out);
    for (int64_t i = 0; i < count; i++) {
        int64_t row = (int64_t)r->in[1][i];
        for (int64_t k = 0; k < width && row >= 0 && row < rows; k++)
            r->out[row * width + k] += r->in[2][i * width + k];
    }
}
const tn_op_impl tn_impl_index_add_rows = {.class_ = TN_NATIVE,
                                           .infer = infer_index_add_rows,
                                           .reduce = KIR_SEQ,
                                           .grad = grad_index_add_rows,
                                           .lower = lower_index_add_rows,
                                           .loops = loops_index_add_rows,
                                           .reference = reference_index_add_rows,
                                           .cases = "types=f32,f64 tol=4ulp atol=1e-6; [4,3] [9]:i64@0..3 [9,3]; [5] "
                                                    "[3]:i64@-2..6 [3]; [2,2,3] [0]:i64@0..0 [0,2,3];"
                                                    "error=fit [4,3] [9]:i64@0..3 [8,3]",
                                           .flops = 1};
