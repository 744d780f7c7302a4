/* op_indexing.c — reading, writing and ordering elements by index: gather and scatter primitives, compositions, range
 * errors. */
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "ops/ops_common.h"
#include "tensor/graph.h"

#include "gen/ops_build.h"

/* ==== primitives ================================================================================================== */

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
    in[dim] = kir_aff_value(index);
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
                       "gather: index %s does not fit %s: ranks must be equal, and every extent except that of dim "
                       "%lld at most x's",
                       tn_shape_text(index, b, sizeof b), tn_shape_text(x, a, sizeof a), (long long)dim);
    c->rank = index->rank;
    c->dtype = (tn_dtype)x->dtype;
    memcpy(c->shape, index->shape, sizeof c->shape);
    memcpy(c->symbol, index->symbol, sizeof c->symbol);
    return TN_OK;
}
static void grad_gather(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    const tn_node *x = n->in[0];
    int64_t one = 1;
    if (tn_node_numel(n) == 0) { /* an empty index may have any rank */
        grads[0] = tn_b_expand(b, tn_b_const(b, 0, n), x->shape, x->rank);
        return;
    }
    tn_node *sum = tn_b_scatter_sum(b, tn_b_line(b, n->in[1]), tn_b_line(b, dy), n->i[TN_GATHER_DIM],
                                    x->rank ? x->shape : &one, tn_line_rank(x));
    grads[0] = x->rank ? sum : tn_b_view(b, sum, NULL, 0);
}
static kir_val lower_gather(tn_lower *lw, const tn_node *n, const kir_aff *at) {
    return load_gathered(lw, n, at, n->i[TN_GATHER_DIM], tn_lower_at(lw, n->in[1], at));
}
static void reference_gather(const tn_reference *r) {
    const tn_node *n = r->node;
    int64_t dim = n->i[0], from[TN_MAX_RANK];
    for (tn_walk w = tn_walk_begin(n); w.place < w.count; tn_walk_next(&w)) {
        memcpy(from, w.at, sizeof from);
        from[dim] = (int64_t)r->in[1][n->op == TN_OP_GATHER ? w.place : n->rank ? w.at[dim] : 0];
        bool inside = from[dim] >= 0 && from[dim] < tn_line_extent(n->in[0], dim);
        r->out[w.place] = inside ? r->in[0][tn_element_offset(n->in[0], from)] : outside_reference((tn_dtype)n->dtype);
    }
}
OP_CODE(gather, .class_ = TN_MOVEMENT, .infer = infer_gather, .grad = grad_gather, .lower = lower_gather,
        .reference = reference_gather,
        .cases =
            "types=f32,f64,i32; [4,5] [2,5]:i64@0..3 dim=0; [4,5] [4,7]:i32@0..4 dim=-1; [5] [0]:i64@0..0 dim=0;"
            "[3,4,2] [2,6,1]:i64@0..3 dim=1; [4] [6]:i64@-2..6 dim=0 grad=off; [] []:i64@0..0 dim=0; "
            "[] [3]:i64@0..0 dim=-1; [4] []:i64@0..3 dim=0; [] [4]:i64@-1..1 dim=0 grad=off; [5] [2,0]:i64@0..0 dim=0; "
            "error=fit [4,5] [2]:i64@0..1 dim=0; error=integer [4] [4]:f32 dim=0");

/* index_select(x, dim, index): the slices of x along dim given by index (rank 1 or 0), in its order. An index out of
 * range is an error (see "Indices" above). */
static tn_status infer_index_select(tn_infer *c) {
    const tn_node *x = c->in[0], *index = c->in[1];
    int64_t dim;
    char a[96];
    TRY(tn_need_integer(c, 1));
    if (index->rank > 1)
        return tn_fail(TN_ERR_SHAPE, "index_select: index must have rank 1; its shape is %s",
                       tn_shape_text(index, a, sizeof a));
    TRY(tn_infer_dim(c, c->attrs->i[TN_INDEX_SELECT_DIM], x->rank, &dim));
    c->attrs->i[TN_INDEX_SELECT_DIM] = dim;
    TRY(tn_infer_same(c));
    if (x->rank == 0 && tn_node_numel(index) != 1)
        return tn_fail(TN_ERR_SHAPE,
                       "index_select: x has no dimensions, so index must have one element; its shape is %s",
                       tn_shape_text(index, a, sizeof a));
    if (x->rank == 0) return TN_OK;
    c->shape[dim] = tn_node_numel(index);
    c->symbol[dim] = index->rank ? index->symbol[0] : 0;
    return tn_infer_shape(c, c->shape, c->rank);
}
static tn_node *grad_index_select(tn_build *b, const tn_node *n, tn_node *dy) {
    tn_node *zeros = tn_b_expand(b, tn_b_const(b, 0, dy), n->in[0]->shape, n->in[0]->rank);
    return tn_b_index_add(b, zeros, n->i[TN_INDEX_SELECT_DIM], n->in[1], dy);
}
static kir_val lower_index_select(tn_lower *lw, const tn_node *n, const kir_aff *at) {
    int64_t dim = n->i[TN_INDEX_SELECT_DIM];
    kir_aff first = kir_aff_const(0);
    return load_gathered(lw, n, at, dim, tn_lower_at(lw, n->in[1], n->rank ? &at[dim] : &first));
}
OP_CODE(index_select, .facts = TN_FACT_TAKE, .class_ = TN_MOVEMENT, .infer = infer_index_select,
        .grad_first = grad_index_select, .lower = lower_index_select, .reference = reference_gather,
        .cases = "types=f32,f64,i32; [4,5] [3]:i64@0..3 dim=0; [4,5] [7]:i32@0..4 dim=1; [4] []:i64@0..3 dim=0;"
                 "[3,2] [0]:i64@0..0 dim=0; [4] [6]:i64@-2..6 dim=0 grad=off; [] [1]:i64@0..0 dim=0; "
                 "[] []:i64@0..0 dim=-1; error=element [] [2]:i64@0..0 dim=0; error=rank [4,5] [2,2]:i64@0..1 dim=0");

static tn_status infer_resample(tn_infer *c) {
    const tn_node *x = c->in[0], *index = c->in[1], *weight = c->in[2];
    int64_t dim;
    char a[96], b[96];
    TRY(tn_need_integer(c, 1));
    TRY(tn_infer_dim(c, c->attrs->i[TN_RESAMPLE_DIM], x->rank, &dim));
    if (x->rank == 0 || index->rank != 2 || index->shape[0] < 1 || !tn_same_shape(index, weight))
        return tn_fail(TN_ERR_SHAPE,
                       "resample: index %s and weight %s must both be [taps, places], and x a line or more",
                       tn_shape_text(index, a, sizeof a), tn_shape_text(weight, b, sizeof b));
    if (x->dtype != weight->dtype || !tn_dtype_is_float((tn_dtype)x->dtype))
        return tn_fail(TN_ERR_DTYPE, "resample: x and weight must have one dtype, of floats; they are %s and %s",
                       tn_dtype_name((tn_dtype)x->dtype), tn_dtype_name((tn_dtype)weight->dtype));
    c->attrs->i[TN_RESAMPLE_DIM] = dim;
    TRY(tn_infer_same(c));
    c->shape[dim] = index->shape[1];
    c->symbol[dim] = index->symbol[1];
    return tn_infer_shape(c, c->shape, c->rank);
}
static tn_node *compose_resample(tn_build *b, const tn_node *n) {
    const int64_t dim = n->i[TN_RESAMPLE_DIM], places = n->in[1]->shape[1];
    int64_t shape[TN_MAX_RANK];
    tn_node *sum = NULL;
    for (int d = 0; d < n->rank; d++)
        shape[d] = d == dim ? places : 1;
    for (int64_t t = 0; t < n->in[1]->shape[0]; t++) {
        tn_node *index = tn_b_view(b, tn_b_slice(b, n->in[1], 0, t, t + 1, 1), &places, 1);
        tn_node *weight = tn_b_reshape(b, tn_b_slice(b, n->in[2], 0, t, t + 1, 1), shape, n->rank);
        tn_node *part = tn_b_mul(b, tn_b_index_select(b, n->in[0], dim, index), weight);
        sum = sum ? tn_b_add(b, sum, part) : part;
    }
    return sum;
}
/* resample(x, dim, index, weight): Σ over taps t of x[…, index[t, i], …] · weight[t, i] at place i of dim, in order,
 * each operation rounded: images of another size. index (integers within 0 … the extent − 1) and weight (of x's dtype)
 * are [taps, places]. */
OP_CODE(resample, .class_ = TN_NATIVE, .keeps_half = true, .infer = infer_resample, .compose = compose_resample,
        .cases =
            "types=f32,f64 tol=4e-6 atol=4e-6; [4,5] [2,3]:i64@0..3 [2,3] dim=0; [3,7] [1,5]:i32@0..6 [1,5] dim=1; "
            "[2,13,9] [4,40]:i64@0..8 [4,40] dim=-1; [2,9,40] [2,30]:i64@0..8 [2,30] dim=1; "
            "[0,4] [2,3]:i64@0..3 [2,3] dim=1; error=taps [4] [3]:i64@0..3 [3] dim=0; "
            "error=dtype [4] [2,3]:i64@0..3 [2,3]:f16 dim=0");

/* scatter_sum(index, src, dim, shape): zeros of `shape`, to which src[…, j, …] is added at […, index[…, j, …], …]; what
 * an index puts outside is left out. One owner an element: it looks through all of dim, in ascending order. */
static tn_status infer_scatter_sum(tn_infer *c) {
    const tn_node *index = c->in[0], *src = c->in[1];
    int64_t dim, rank = c->attrs->i[1];
    const int64_t *shape = c->attrs->i + 2;
    if (c->in[1]->dtype == TN_BOOL) return tn_fail(TN_ERR_DTYPE, "%s: bool is not supported: cast it", c->row->name);
    TRY(tn_need_integer(c, 0));
    TRY(tn_infer_dim(c, c->attrs->i[0], (int)rank, &dim));
    c->attrs->i[0] = dim;
    if (rank == 0 || index->rank != rank || src->rank != rank)
        return tn_fail(TN_ERR_SHAPE, "%s: index and source do not fit a target of rank %lld: ranks must be equal",
                       c->row->name, (long long)rank);
    TRY(tn_infer_scattered(c, index, src, dim, shape, rank));
    c->dtype = (tn_dtype)src->dtype;
    return tn_infer_shape(c, shape, rank);
}
/* For each element of the source, v's value at the place to which it went; v has n's shape. 0 for omitted elements. */
static tn_node *back_to_source(tn_build *b, const tn_node *n, tn_node *v) {
    const tn_node *index = n->in[0], *src = n->in[1];
    int64_t dim = n->i[0], pads[2 * TN_MAX_RANK], last = n->shape[dim] - 1;
    if (!v) return NULL;
    /* What fell outside has no part in the result: it looks at any place that exists. */
    tn_node *from = tn_b_cast(b, n->in[0], TN_I64); /* a narrow type need not hold `last` */
    tn_node *place = tn_b_clamp(b, from, 0, (double)(last < 0 ? 0 : last));
    tn_node *taken =
        last < 0 ? tn_b_expand(b, tn_b_const(b, 0, v), index->shape, index->rank) : tn_b_gather(b, v, dim, place);
    tn_node *g = tn_b_where(b, tn_b_eq(b, place, from), taken, tn_b_const(b, 0, v));
    for (int d = 0; d < n->rank; d++) {
        pads[2 * (n->rank - 1 - d)] = 0;
        pads[2 * (n->rank - 1 - d) + 1] = src->shape[d] - index->shape[d];
    }
    return tn_b_pad(b, g, pads, 2 * n->rank, 0);
}
static void grad_scatter_sum(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    grads[1] = back_to_source(b, n, dy);
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
    kir_val hit = kir_eq(kb, kir_cast(kb, KIR_I64, place), kir_index(kb, &at[dim]));
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
    tn_strides_contiguous(n->shape, n->rank, stride);
    tn_node *last = tn_b_const(b, (double)(n->shape[dim] - 1), index), *none = tn_b_const(b, -1, index);
    tn_node *inside = tn_b_logical_and(b, tn_b_le(b, tn_b_const(b, 0, index), index), tn_b_le(b, index, last));
    place = tn_b_mul(b, index, tn_b_const(b, (double)stride[dim], index));
    for (int d = 0; d < n->rank; d++) {
        if (d == dim || index->shape[d] == 1) continue;
        tn_node *steps = numbers_along(b, index->shape[d], d, n->rank);
        place = tn_b_add(b, place, tn_b_mul(b, steps, tn_b_const(b, (double)stride[d], index)));
    }
    return tn_b_row_major(b, tn_b_reshape(b, tn_b_where(b, inside, place, none), &count, 1));
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
    tn_node *sum = tn_b_index_add_rows(b, zeros, flat_places(b, n), tn_b_row_major(b, tn_b_reshape(b, src, &count, 1)));
    return tn_b_view(b, sum, n->shape, n->rank);
}

/* All reductions of what goes to one place; of scatter_last the numbers along dim. */
static void reference_scattered(const tn_reference *r) {
    const tn_node *n = r->node, *index = n->in[0];
    int64_t dim = n->i[0], to[TN_MAX_RANK];
    int op = n->op;
    bool is_float = tn_dtype_is_float((tn_dtype)n->dtype);
    double low = is_float ? -INFINITY : -0x1p31, high = is_float ? INFINITY : 0x1p31 - 1;
    double none = op == TN_OP_SCATTER_SUM    ? 0
                  : op == TN_OP_SCATTER_PROD ? 1
                  : op == TN_OP_SCATTER_LAST ? -1
                  : op == TN_OP_SCATTER_AMAX ? low
                                             : high;
    for (int64_t i = 0, count = tn_node_numel(n); i < count; i++)
        r->out[i] = none;
    tn_node like = {.rank = index->rank};
    memcpy(like.shape, index->shape, sizeof like.shape);
    for (tn_walk w = tn_walk_begin(&like); w.place < w.count; tn_walk_next(&w)) {
        memcpy(to, w.at, sizeof to);
        to[dim] = (int64_t)r->in[0][w.place];
        if (to[dim] < 0 || to[dim] >= n->shape[dim]) continue;
        double *own = &r->out[tn_element_offset(n, to)];
        double v = op == TN_OP_SCATTER_LAST ? (double)w.at[dim] : r->in[1][tn_element_offset(n->in[1], w.at)];
        if (op == TN_OP_SCATTER_SUM)
            *own += v;
        else if (op == TN_OP_SCATTER_PROD)
            *own *= v;
        else if (v != v || (op == TN_OP_SCATTER_AMIN ? v < *own : v > *own))
            *own = v;
    }
}
OP_CODE(scatter_sum, .facts = TN_FACT_SORTS, .class_ = TN_REDUCTION, .reduce = KIR_SEQ, .infer = infer_scatter_sum,
        .compose = compose_scatter_sum, .grad = grad_scatter_sum, .lower = lower_scatter_sum,
        .loops = loops_scatter_sum, .reference = reference_scattered,
        .cases = "types=f32,f64,i32 tol=4ulp atol=1e-6; [9,2]:i64@0..3 [9,2] dim=0 "
                 "shape=(4,2); [2,7]:i32@0..4 [3,8] dim=1 shape=(3,5);"
                 "[2,40,2]:i64@-2..34 [3,41,2] dim=1 shape=(3,33,3);"
                 "[5]:i64@-2..6 [5] dim=0 shape=(4); [0]:i64@0..0 [0] dim=0 shape=(3);"
                 "error=bool [2]:i64@0..1 [2]:bool dim=0 shape=(2); "
                 "error=fit [2]:i64@0..1 [2,2] dim=0 shape=(2,2)",
        .flops = 1);

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
static void grad_scatter_prod(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    tn_node *src = n->in[1], *zero = tn_b_const(b, 0, src), *one = tn_b_const(b, 1, src);
    tn_node *is_zero = tn_b_eq(b, src, zero), *factor = tn_b_where(b, is_zero, one, src);
    tn_node *zeros = scattered(b, n, tn_b_cast(b, is_zero, TN_I64), false);
    tn_node *no_zero = tn_b_eq(b, zeros, tn_b_const(b, 0, zeros));
    tn_node *one_zero = tn_b_eq(b, zeros, tn_b_const(b, 1, zeros));
    tn_node *product = scattered(b, n, factor, true);
    tn_node *the_zero = scattered(b, n, tn_b_where(b, is_zero, src, zero), false);
    tn_node *beside_zero = tn_b_mul(b, product, tn_b_where(b, no_zero, one, tn_b_where(b, one_zero, the_zero, zero)));
    tn_node *of_zero = back_to_source(b, n, tn_b_mul(b, dy, tn_b_where(b, one_zero, product, zero)));
    tn_node *of_other = tn_b_div(b, back_to_source(b, n, tn_b_mul(b, dy, beside_zero)), factor);
    grads[1] = tn_b_where(b, is_zero, of_zero, of_other);
}
/* Equal ones share the gradient. */
static void grad_scatter_extreme(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    tn_node *reached = tn_b_eq(b, n->in[1], back_to_source(b, n, tn_b_self(n)));
    reached = tn_b_cast(b, reached, (tn_dtype)n->dtype);
    tn_node *many = tn_b_scatter_sum(b, n->in[0], reached, n->i[0], n->shape, n->rank);
    grads[1] = tn_b_mul(b, reached, back_to_source(b, n, tn_b_div(b, dy, many)));
}
#define SCATTER_REDUCED(kind, grad_)                                                                                   \
    .class_ = TN_REDUCTION, .reduce = kind, .infer = infer_scatter_sum, .grad = grad_, .lower = lower_scatter_reduced, \
    .loops = loops_scatter_sum, .reference = reference_scattered, .flops = 1,                                          \
    .cases = "types=f32,f64,i32 tol=4ulp; [9,2]:i64@0..3 [9,2] dim=0 shape=(4,2) grad=off; [2,7]:i32@0..4 [3,8] "      \
             "dim=1 shape=(3,5) grad=off; error=bool [2]:i64@0..1 [2]:bool dim=0 shape=(2)"

/* scatter_prod(index, src, dim, shape): ones of `shape`, multiplied by src[…, j, …] at […, index[…, j, …], …].
 * The gradient is right beside zeros too. */
OP_CODE(scatter_prod, SCATTER_REDUCED(KIR_PROD, grad_scatter_prod));

/* scatter_amax(index, src, dim, shape): for each place of `shape` the greatest src[…, j, …] that index leads there; −∞,
 * or the least number of the type, where there is none. */
OP_CODE(scatter_amax, SCATTER_REDUCED(KIR_RMAX, grad_scatter_extreme));

/* scatter_amin(index, src, dim, shape): for each place of `shape` the least src[…, j, …] that index leads there; ∞, or
 * the greatest number of the type, where there is none. */
OP_CODE(scatter_amin, SCATTER_REDUCED(KIR_RMIN, grad_scatter_extreme));

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
static void grad_scatter_with_own(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    tn_node *y = tn_b_self(n);
    tn_node *own = tn_b_cast(b, tn_b_eq(b, n->in[2], y), (tn_dtype)n->dtype);
    tn_node *reached = tn_b_cast(b, tn_b_eq(b, n->in[1], back_to_source(b, n, y)), (tn_dtype)n->dtype);
    tn_node *many = tn_b_add(b, own, tn_b_scatter_sum(b, n->in[0], reached, n->i[0], n->shape, n->rank));
    tn_node *share = tn_b_div(b, dy, many);
    if (tn_needs_grad(n, 1)) grads[1] = tn_b_mul(b, reached, back_to_source(b, n, share));
    if (tn_needs_grad(n, 2)) grads[2] = tn_b_mul(b, own, share);
}
OP_CODE(
    scatter_extreme, .infer = infer_scatter_extreme, .compose = compose_scatter_extreme, .grad = grad_scatter_with_own,
    .cases = "types=f32,f64,i32; [9,2]:i64@0..3 [9,2] [4,2] dim=0 greatest=true; "
             "[2,7]:i32@0..4 [3,8] [3,5] dim=1 greatest=false; error=fit [2]:i64@0..1 [2,2] [2] dim=0 greatest=true");

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
        return tn_fail(TN_ERR_SHAPE, "%s: index %s does not fit the target", c->row->name,
                       tn_shape_text(index, text, sizeof text));
    TRY(tn_infer_shape(c, shape, rank));
    c->dtype = TN_I64;
    return TN_OK;
}
static kir_val lower_scatter_last(tn_lower *lw, const tn_node *n, const kir_aff *at) {
    kir_builder *kb = lw->kb;
    kir_aff in[TN_MAX_RANK];
    kir_val hit = scatter_hits(lw, n, at, in);
    return kir_select(kb, hit, kir_index(kb, &at[n->rank]), kir_whole(kb, -1));
}
/* The same for the last index of each place: indices are sorted by place, and the last of equal ones writes its number
 * plus 1, so that 0 means that no index leads there. */
static tn_node *compose_scatter_last(tn_build *b, const tn_node *n) {
    const tn_node *index = n->in[0];
    int64_t dim = n->i[0], count = tn_node_numel(index), pads[2] = {0, 1};
    if (!many_to_look_through(n)) return tn_b_self(n);
    tn_node *place = flat_places(b, n), *order = tn_b_argsort_last(b, place, false);
    tn_node *sorted = tn_b_row_major(b, tn_b_index_select(b, place, 0, order));
    tn_node *next = tn_b_pad(b, tn_b_slice(b, sorted, 0, 1, count, 1), pads, 2, -2);
    tn_node *last = tn_b_where(b, tn_b_ne(b, sorted, next), sorted, tn_b_const(b, -1, sorted));
    tn_node *number = numbers_along(b, index->shape[dim], (int)dim, n->rank);
    number = tn_b_reshape(b, tn_b_expand(b, number, index->shape, n->rank), &count, 1);
    tn_node *counted = tn_b_cast(b, tn_b_index_select(b, tn_b_row_major(b, number), 0, order), TN_F64);
    counted = tn_b_offset(b, counted, 1);
    tn_node *zeros = zeros_for(b, n, TN_F64);
    tn_node *found = tn_b_index_add_rows(b, zeros, tn_b_row_major(b, last), tn_b_row_major(b, counted));
    found = tn_b_cast(b, tn_b_offset(b, found, -1), TN_I64);
    return tn_b_view(b, found, n->shape, n->rank);
}

OP_CODE(scatter_last, .class_ = TN_REDUCTION, .reduce = KIR_RMAX, .infer = infer_scatter_last,
        .compose = compose_scatter_last, .lower = lower_scatter_last, .loops = loops_scatter_sum,
        .reference = reference_scattered,
        .cases = "[9,2]:i64@0..3 dim=0 shape=(4,2); [2,7]:i32@0..4 dim=1 shape=(3,5); [5]:i64@-2..6 dim=0 shape=(4);"
                 "[2,40,2]:i64@-2..34 dim=1 shape=(3,33,3);"
                 "error=fit [2]:i64@0..1 dim=0 shape=(2,2)",
        .flops = 1);

/* index_add_rows(x, index, src): x with row src[i] added to row index[i], in ascending i; rows outside are left out. */
static tn_status infer_index_add_rows(tn_infer *c) {
    const tn_node *x = c->in[0], *index = c->in[1], *src = c->in[2];
    char a[96], b[96], i[96];
    if (index->dtype != TN_I64)
        return tn_fail(TN_ERR_DTYPE, "index_add: the index must be i64; it is %s",
                       tn_dtype_name((tn_dtype)index->dtype));
    bool fits = x->rank > 0 && src->rank == x->rank && index->rank == 1 && index->shape[0] == src->shape[0];
    for (int d = 1; fits && d < x->rank; d++)
        fits = src->shape[d] == x->shape[d];
    if (!fits)
        return tn_fail(TN_ERR_SHAPE,
                       "index_add: source %s with index %s does not fit %s: pass one index per row, with rows as in x",
                       tn_shape_text(src, b, sizeof b), tn_shape_text(index, i, sizeof i),
                       tn_shape_text(x, a, sizeof a));
    if (x->dtype != src->dtype)
        return tn_fail(TN_ERR_DTYPE, "index_add: %s and source %s must have the same dtype",
                       tn_dtype_name((tn_dtype)x->dtype), tn_dtype_name((tn_dtype)src->dtype));
    return tn_infer_same(c);
}
static void grad_index_add_rows(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    grads[0] = dy;
    if (!tn_needs_grad(n, 2)) return;
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
    kir_val hit = kir_and(kb, source, kir_eq(kb, place, kir_index(kb, &at[0])));
    kir_val added = tn_lower_at_masked(lw, n->in[2], from, hit);
    kir_val own = tn_lower_at_masked(lw, n->in[0], at, first);
    kir_val none = kir_const(kb, kir_type_of((tn_dtype)n->dtype), -0.0);
    return kir_select(kb, first, own, kir_select(kb, hit, added, none));
}
static void reference_index_add_rows(const tn_reference *r) {
    const tn_node *n = r->node;
    int64_t rows = n->shape[0], count = n->in[1]->shape[0];
    int64_t width = tn_product(n->shape + 1, n->rank - 1);
    memcpy(r->out, r->in[0], (size_t)(rows * width) * sizeof *r->out);
    for (int64_t i = 0; i < count; i++) {
        int64_t row = (int64_t)r->in[1][i];
        for (int64_t k = 0; k < width && row >= 0 && row < rows; k++)
            r->out[row * width + k] += r->in[2][i * width + k];
    }
}
OP_CODE(index_add_rows, .class_ = TN_NATIVE, .infer = infer_index_add_rows, .contiguous = 7, .reduce = KIR_SEQ,
        .grad = grad_index_add_rows, .lower = lower_index_add_rows, .loops = loops_index_add_rows,
        .reference = reference_index_add_rows,
        .cases = "types=f32,f64 tol=4ulp atol=1e-6; [4,3] [9]:i64@0..3 [9,3]; [5] "
                 "[3]:i64@-2..6 [3]; [2,2,3] [0]:i64@0..0 [0,2,3];"
                 "error=fit [4,3] [9]:i64@0..3 [8,3]",
        .flops = 1);

/* ==== compositions ================================================================================================ */

/* index_add(x, dim, index, src): x with slice i of src along dim added to slice index[i];
 * an index outside is an error. */
static tn_status infer_index_add(tn_infer *c) {
    const tn_node *x = c->in[0], *index = c->in[1], *src = c->in[2];
    int64_t dim;
    char a[96], b[96], i[96];
    TRY(tn_need_integer(c, 1));
    TRY(tn_infer_dim(c, c->attrs->i[0], x->rank, &dim));
    c->attrs->i[0] = dim;
    bool fits =
        tn_line_rank(src) == tn_line_rank(x) && index->rank <= 1 && tn_node_numel(index) == tn_line_extent(src, dim);
    for (int d = 0; fits && d < tn_line_rank(x); d++)
        fits = d == dim || tn_line_extent(src, d) == tn_line_extent(x, d);
    if (!fits)
        return tn_fail(TN_ERR_SHAPE,
                       "index_add: source %s with index %s does not fit %s along dim %lld: pass one index per slice, "
                       "with slices as in x",
                       tn_shape_text(src, b, sizeof b), tn_shape_text(index, i, sizeof i),
                       tn_shape_text(x, a, sizeof a), (long long)dim);
    if (x->dtype != src->dtype)
        return tn_fail(TN_ERR_DTYPE, "index_add: %s and source %s must have the same dtype",
                       tn_dtype_name((tn_dtype)x->dtype), tn_dtype_name((tn_dtype)src->dtype));
    return tn_infer_same(c);
}
/* Floats go through the native kernel for rows; for the others every element looks for what belongs to it. */
static tn_node *compose_index_add(tn_build *b, const tn_node *n) {
    int64_t dim = n->i[0], count = tn_node_numel(n->in[1]);
    if (n->rank == 0) {
        tn_node *sum = tn_b_index_add(b, tn_b_line(b, n->in[0]), 0, n->in[1], tn_b_line(b, n->in[2]));
        return tn_b_view(b, sum, NULL, 0);
    }
    if (n->in[2]->rank == 0) return tn_b_index_add(b, n->in[0], dim, n->in[1], tn_b_line(b, n->in[2]));
    tn_node *index = tn_b_cast(b, tn_b_reshape(b, n->in[1], &count, 1), TN_I64);
    if (n->dtype == TN_F32 || n->dtype == TN_F64) {
        tn_node *x = tn_b_row_major(b, tn_b_movedim(b, n->in[0], dim, 0));
        tn_node *sum =
            tn_b_index_add_rows(b, x, tn_b_row_major(b, index), tn_b_row_major(b, tn_b_movedim(b, n->in[2], dim, 0)));
        return dim == 0 ? sum : tn_b_contiguous(b, tn_b_movedim(b, sum, 0, dim));
    }
    int64_t column[TN_MAX_RANK];
    for (int d = 0; d < n->rank; d++)
        column[d] = d == dim ? count : 1;
    tn_node *all = tn_b_expand(b, tn_b_reshape(b, index, column, n->rank), n->in[2]->shape, n->rank);
    return tn_b_scatter_add(b, n->in[0], dim, all, n->in[2]);
}
OP_CODE(index_add, .infer = infer_index_add, .compose = compose_index_add,
        .cases =
            "types=f32,f64,i32 tol=4ulp atol=1e-6; [4,3] [9]:i64@0..3 [9,3] dim=0; [2,5] [3]:i32@0..4 [2,3] dim=-1;"
            "[] [1]:i64@0..0 [] dim=0; [] [1]:i64@0..0 [1] dim=-1; [3] []:i64@0..2 [] dim=0; "
            "types=bool; [4,3] [9]:i64@0..3 [9,3] dim=0; [] [1]:i64@0..0 [] dim=0; types=f32; "
            "error=fit [4,3] [9]:i64@0..3 [8,3] dim=0");

/* take_along_dim(x, dim, index): gather, after broadcasting x and index against each other in all dimensions except
 * dim; negative indices count from the end. */
static tn_status infer_take_along_dim(tn_infer *c) {
    const tn_node *x = c->in[0], *index = c->in[1];
    int64_t dim;
    char a[96], b[96];
    TRY(tn_need_integer(c, 1));
    TRY(tn_infer_dim(c, c->attrs->i[0], x->rank, &dim));
    c->attrs->i[0] = dim;
    bool fits = index->rank == x->rank;
    TRY(tn_infer_same(c));
    for (int d = 0; fits && d < x->rank; d++) {
        fits = d == dim || x->shape[d] == index->shape[d] || x->shape[d] == 1 || index->shape[d] == 1;
        if (d != dim && x->shape[d] != 1) continue;
        c->shape[d] = index->shape[d];
        c->symbol[d] = index->symbol[d];
    }
    if (fits) return TN_OK;
    return tn_fail(TN_ERR_SHAPE,
                   "take_along_dim: index %s does not broadcast with %s in the dimensions other than dim %lld",
                   tn_shape_text(index, b, sizeof b), tn_shape_text(x, a, sizeof a), (long long)dim);
}
static tn_node *compose_take_along_dim(tn_build *b, const tn_node *n) {
    int64_t dim = n->i[0], shape[TN_MAX_RANK];
    for (int d = 0; d < n->rank; d++)
        shape[d] = d == dim ? n->in[0]->shape[d] : n->shape[d];
    tn_node *x = tn_b_expand(b, n->in[0], shape, n->rank);
    tn_node *index = tn_b_cast(b, tn_b_expand(b, n->in[1], n->shape, n->rank), TN_I64);
    if (!index) return NULL;
    tn_node *from_end = tn_b_offset(b, index, (double)tn_line_extent(n->in[0], dim));
    index = tn_b_where(b, tn_b_lt(b, index, tn_b_const(b, 0, index)), from_end, index);
    return tn_b_gather(b, x, dim, index);
}
OP_CODE(take_along_dim, .keeps_half = true, .infer = infer_take_along_dim, .compose = compose_take_along_dim,
        .cases =
            "types=f32,f64,i32; [4,5] [1,5]:i64@0..3 dim=0; [4,1] [4,3]:i64@0..0 dim=1; [1,5] [3,2]:i64@0..4 dim=1;"
            "[4,5] [4,7]:i64@-5..4 dim=1; [3] [4]:i32@-3..-1 dim=0; [] []:i64@-1..0 dim=0; "
            "error=broadcast [4,5] [2,2]:i64@0..1 dim=0");

/* scatter_add(x, dim, index, src): x with src[…, j, …] added at […, index[…, j, …], …]; bools: or. An index outside
 * is an error. */
static tn_status infer_scatter_add(tn_infer *c) {
    const tn_node *x = c->in[0];
    if (x->dtype != c->in[2]->dtype)
        return tn_fail(TN_ERR_DTYPE, "%s: %s and source %s must have the same dtype", c->row->name,
                       tn_dtype_name((tn_dtype)x->dtype), tn_dtype_name((tn_dtype)c->in[2]->dtype));
    TRY(tn_need_integer(c, 1));
    TRY(tn_infer_dim(c, c->attrs->i[0], x->rank, &c->attrs->i[0]));
    TRY(tn_infer_scattered(c, c->in[1], c->in[2], c->attrs->i[0], x->shape, x->rank));
    return tn_infer_same(c);
}

typedef tn_node *scatter_of(tn_build *b, tn_node *x, int64_t dim, tn_node *index, tn_node *src, const tn_node *n);

/* `of` on operands with a dimension; where nothing is to be put, x. */
static tn_node *scatter_lines(tn_build *b, const tn_node *n, scatter_of *of) {
    tn_node *x = n->in[0], *index = n->in[1], *src = n->in[2];
    if (tn_node_numel(index) == 0 || tn_node_numel(x) == 0) return tn_b_contiguous(b, x);
    tn_node *y = of(b, tn_b_line(b, x), n->i[0], tn_b_line(b, index), tn_b_line(b, src), n);
    return n->rank ? y : tn_b_view(b, y, NULL, 0);
}

/* The bytes of bools: their maximum is "or", their minimum "and". */
static tn_node *reduce_bools(tn_build *b, tn_node *x, int64_t dim, tn_node *index, tn_node *src, bool all,
                             bool include_self) {
    tn_node *bytes = tn_b_cast(b, x, TN_U8), *added = tn_b_cast(b, src, TN_U8);
    tn_reduce kind = all ? TN_REDUCE_AMIN : TN_REDUCE_AMAX;
    return tn_b_cast(b, tn_b_scatter_reduce(b, bytes, dim, index, added, kind, include_self), TN_BOOL);
}

static tn_node *add_scattered(tn_build *b, tn_node *x, int64_t dim, tn_node *index, tn_node *src, const tn_node *n) {
    if (!x || n->dtype == TN_BOOL) return x ? reduce_bools(b, x, dim, index, src, false, true) : NULL;
    return tn_b_add(b, x, tn_b_scatter_sum(b, index, src, dim, x->shape, x->rank));
}
static tn_node *compose_scatter_add(tn_build *b, const tn_node *n) { return scatter_lines(b, n, add_scattered); }
OP_CODE(
    scatter_add, .infer = infer_scatter_add, .compose = compose_scatter_add,
    .cases =
        "types=f32,f64,i32 tol=4ulp atol=1e-6; [4,2] [9,2]:i64@0..3 [9,2] dim=0; [3,5] [2,7]:i32@0..4 [3,8] dim=1;"
        "[] []:i64@0..0 [] dim=0; [] [1]:i64@0..0 [1] dim=-1; [3] []:i64@0..2 [] dim=0; [4] [2,0]:i64@0..0 [4] dim=0; "
        "types=bool; [4,2] [9,2]:i64@0..3 [9,2] dim=0; []@0..1 []:i64@0..0 [] dim=0; types=f32; "
        "error=fit [2,2] [2]:i64@0..1 [2,2] dim=0");

/* scatter_reduce(x, dim, index, src, reduce, include_self): x in which element […, index[…, j, …], …] is combined
 * with src[…, j, …]: sum, prod, amax or amin. With include_self false the element's own value is not included. For
 * bools sum and amax are or, prod and amin are and. An index outside is an error. */
static tn_node *reduce_scattered(tn_build *b, tn_node *x, int64_t dim, tn_node *index, tn_node *src, const tn_node *n) {
    tn_reduce kind = (tn_reduce)n->i[TN_SCATTER_REDUCE_REDUCE];
    bool include_self = n->i[TN_SCATTER_REDUCE_INCLUDE_SELF] != 0;
    if (!x) return NULL;
    if (n->dtype == TN_BOOL)
        return reduce_bools(b, x, dim, index, src, kind == TN_REDUCE_PROD || kind == TN_REDUCE_AMIN, include_self);
    const int64_t *shape = x->shape;
    if (include_self && (kind == TN_REDUCE_AMAX || kind == TN_REDUCE_AMIN))
        return tn_b_scatter_extreme(b, index, src, x, dim, kind == TN_REDUCE_AMAX);
    tn_node *made = kind == TN_REDUCE_PROD   ? tn_b_scatter_prod(b, index, src, dim, shape, x->rank)
                    : kind == TN_REDUCE_AMAX ? tn_b_scatter_amax(b, index, src, dim, shape, x->rank)
                    : kind == TN_REDUCE_AMIN ? tn_b_scatter_amin(b, index, src, dim, shape, x->rank)
                                             : tn_b_scatter_sum(b, index, src, dim, shape, x->rank);
    if (!include_self) {
        tn_node *last = tn_b_scatter_last(b, index, dim, shape, x->rank);
        return tn_b_where(b, tn_b_le(b, tn_b_const(b, 0, last), last), made, x);
    }
    return kind == TN_REDUCE_PROD ? tn_b_mul(b, x, made) : tn_b_add(b, x, made);
}
static tn_node *compose_scatter_reduce(tn_build *b, const tn_node *n) { return scatter_lines(b, n, reduce_scattered); }
OP_CODE(scatter_reduce, .infer = infer_scatter_add, .compose = compose_scatter_reduce,
        .cases =
            "types=f32,f64,i32 tol=4ulp atol=1e-6; [4,2] [9,2]:i64@0..3 [9,2] dim=0 reduce=sum include_self=true; "
            "[3,5]@0.5..2 [2,7]:i32@0..4 [3,8]@0.5..2 dim=1 reduce=prod include_self=true; [4,2] [9,2]:i64@0..3 [9,2] "
            "dim=0 reduce=amax include_self=true;"
            "[3,5] [2,7]:i32@-1..5 [3,8] dim=1 reduce=amin include_self=true; [3] [0]:i64@0..0 [0] dim=0 reduce=amax "
            "include_self=true;"
            "types=i8,u8; [4]@0..9 [6]:i64@0..2 [6]@0..9 dim=0 reduce=amax include_self=true; [4]@0..9 [6]:i64@0..2 "
            "[6]@0..9 dim=0 "
            "reduce=amin include_self=true;"
            "types=f32,f64,i32; [4,2]@0.5..2 [9,2]:i64@0..2 [9,2]@0.5..2 dim=0 reduce=prod include_self=false; "
            "[4,2] [9,2]:i64@0..2 [9,2] dim=0 reduce=sum include_self=false; "
            "[4,2] [9,2]:i64@0..2 [9,2] dim=0 reduce=amax include_self=false; "
            "[4,2] [9,2]:i64@0..2 [9,2] dim=0 reduce=amin include_self=false; [] []:i64@0..0 [] dim=0 reduce=amax "
            "include_self=true; types=bool; [4,2] [9,2]:i64@0..3 [9,2] dim=0 reduce=sum include_self=true; "
            "[4,2] [9,2]:i64@0..3 [9,2] dim=0 reduce=prod include_self=false; types=f32; error=fit [2,2] [2]:i64@0..1 "
            "[2,2] dim=0 reduce=sum include_self=true");

/* scatter(x, dim, index, src): x with src[…, j, …] put at […, index[…, j, …], …]; of several for one place the last one
 * stays. An index outside is an error. */
static tn_node *put_scattered(tn_build *b, tn_node *x, int64_t dim, tn_node *index, tn_node *src, const tn_node *n) {
    int64_t pads[2 * TN_MAX_RANK];
    int rank = tn_line_rank(n);
    tn_node *last = x ? tn_b_scatter_last(b, index, dim, x->shape, rank) : NULL;
    if (!last) return NULL;
    tn_node *none = tn_b_const(b, 0, last);
    /* gather requires a source of x's size in the other dims; the values read there are not used. */
    for (int d = 0; d < rank; d++) {
        pads[2 * (rank - 1 - d)] = 0;
        pads[2 * (rank - 1 - d) + 1] = d == dim ? 0 : x->shape[d] - src->shape[d];
    }
    tn_node *taken = tn_b_gather(b, tn_b_pad(b, src, pads, 2 * rank, 0), dim, tn_b_maximum(b, last, none));
    return tn_b_where(b, tn_b_le(b, none, last), taken, x);
}
static tn_node *compose_scatter(tn_build *b, const tn_node *n) { return scatter_lines(b, n, put_scattered); }
OP_CODE(
    scatter, .keeps_half = true, .infer = infer_scatter_add, .compose = compose_scatter,
    .cases =
        "types=f32,f64,i32; [4,2] [9,2]:i64@0..3 [9,2] dim=0; [3,5] [2,7]:i32@0..4 [3,8] dim=1;"
        "[5] [3]:i64@-1..5 [3] dim=0; [3] [0]:i64@0..0 [0] dim=0; [] []:i64@0..0 [] dim=0; [] [1]:i64@0..0 [1] dim=-1; "
        "[3] []:i64@0..2 [] dim=0; types=bool; [4,2] [9,2]:i64@0..3 [9,2] dim=0; types=f32; error=fit [2,2] "
        "[2]:i64@0..1 [2,2] dim=0");

/* ---- order ------------------------------------------------------------------------------------------------------- */

/* argsort_last(x, descending): for each row of the last dimension, the places of its elements in ascending (or
 * descending) order; equal ones stay in order, NaN is the greatest. */
static tn_status infer_argsort_last(tn_infer *c) {
    TRY(tn_infer_same(c));
    return c->rank > 0 ? TN_OK : tn_fail(TN_ERR_SHAPE, "argsort: the tensor has no dimension");
}
/* Insertion sort: short, stable, and obviously correct. */
static void reference_argsort_last(const tn_reference *r) {
    const tn_node *n = r->node;
    int64_t length = n->shape[n->rank - 1], count = tn_node_numel(n);
    bool descending = n->i[0] != 0;
    for (int64_t row = 0; row < count; row += length) {
        const double *x = r->in[0] + row;
        for (int64_t i = 0; i < length; i++) {
            int64_t at = i;
            for (; at > 0; at--) {
                double before = x[(int64_t)r->out[row + at - 1]], now = x[i];
                bool less = now < before || (before != before && now == now);
                bool greater = before < now || (now != now && before == before);
                if (!(descending ? greater : less)) break;
                r->out[row + at] = r->out[row + at - 1];
            }
            r->out[row + at] = (double)i;
        }
    }
}
/* Whether x sorts before y by value; NaN sorts last. */
static tn_node *precedes(tn_build *b, tn_node *x, tn_node *y, bool descending) {
    if (descending) return precedes(b, y, x, false);
    return tn_b_logical_or(b, tn_b_lt(b, x, y), tn_b_logical_and(b, tn_b_ne(b, y, y), tn_b_eq(b, x, x)));
}
/* Where no kernel sorts: each element counts those before it, which is its place; the order is the inverse of that. */
static tn_node *compose_argsort_last(tn_build *b, const tn_node *n) {
    int64_t last = n->rank - 1, length = n->shape[last];
    bool descending = n->i[TN_ARGSORT_LAST_DESCENDING];
    if (tn_node_numel(n) == 0) return tn_b_full(b, n->shape, n->rank, 0, TN_I64);
    if (n->rank == TN_MAX_RANK) { /* the pairs below need a dimension more */
        tn_node *rows = tn_b_view(b, n->in[0], (int64_t[]){tn_node_numel(n) / length, length}, 2);
        return tn_b_view(b, tn_b_argsort_last(b, rows, descending), n->shape, n->rank);
    }
    tn_node *own = tn_b_unsqueeze(b, n->in[0], last + 1), *other = tn_b_unsqueeze(b, n->in[0], last);
    tn_node *number = tn_b_arange(b, 0, (double)length, 1, TN_I64);
    tn_node *earlier = tn_b_lt(b, number, tn_b_unsqueeze(b, number, 1));
    tn_node *tie = tn_b_logical_and(b, earlier, tn_b_logical_not(b, precedes(b, own, other, descending)));
    tn_node *before = tn_b_logical_or(b, precedes(b, other, own, descending), tie);
    tn_node *place = tn_b_sum(b, before, (int64_t[]){last + 1}, 1, false);
    return tn_b_scatter_last(b, place, last, n->shape, n->rank);
}
OP_CODE(argsort_last, .class_ = TN_NATIVE, .infer = infer_argsort_last, .gives = TN_GIVES(TN_I64), .contiguous = 1,
        .compose = compose_argsort_last, .reference = reference_argsort_last,
        .cases = "types=f32,f64,i32,i64; [7] descending=false; [3,5] descending=true; "
                 "[2,0] descending=false; [40]@0..3 descending=false;"
                 "[40]@0..3 descending=true; error=dimension [] descending=false",
        .flops = 10);

static tn_status infer_order(tn_infer *c) {
    TRY(tn_infer_same(c));
    return tn_infer_dim(c, c->attrs->i[0], c->rank, &c->attrs->i[0]);
}
/* argsort(x, dim, descending): the indices along dim that sort x in ascending (or descending) order; stable, NaN is the
 * greatest. */
static tn_node *compose_argsort(tn_build *b, const tn_node *n) {
    tn_node *x = n->in[0];
    int64_t dim = n->i[TN_ARGSORT_DIM], last = x->rank - 1;
    bool descending = n->i[TN_ARGSORT_DESCENDING];
    if (x->rank == 0) return tn_b_full(b, NULL, 0, 0, TN_I64);
    tn_node *order = tn_b_argsort_last(b, tn_b_row_major(b, tn_b_movedim(b, x, dim, last)), descending);
    return dim == last ? order : tn_b_contiguous(b, tn_b_movedim(b, order, last, dim));
}
#define ORDERS                                                                                                   \
    "types=f32,f64,i32; [7] dim=0 descending=false; [3,5] dim=0 descending=true; [3,5] dim=-1 descending=false;" \
    "[] dim=0 descending=false; [0,3] dim=0 descending=false; error=range [3] dim=1 descending=false"
OP_CODE(argsort, .infer = infer_order, .gives = TN_GIVES(TN_I64), .compose = compose_argsort, .cases = ORDERS);

/* sort(x, dim, descending): x's elements in ascending (or descending) order along dim; argsort gives their indices. */
static tn_node *compose_sort(tn_build *b, const tn_node *n) {
    if (n->rank == 0) return tn_b_contiguous(b, n->in[0]);
    return tn_b_gather(b, n->in[0], n->i[0], tn_b_argsort(b, n->in[0], n->i[0], n->i[1] != 0));
}
/* Back by the inverse order: one look-up an element, where the gradient of gather would search. */
static void grad_sort(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    int64_t dim = n->i[0];
    grads[0] = dy;
    if (n->rank == 0) return;
    tn_node *order = tn_b_argsort(b, n->in[0], dim, n->i[1] != 0);
    grads[0] = tn_b_gather(b, dy, dim, tn_b_argsort(b, order, dim, false));
}
OP_CODE(sort, .keeps_half = true, .infer = infer_order, .compose = compose_sort, .grad = grad_sort, .cases = ORDERS);

static tn_status infer_topk(tn_infer *c) {
    int64_t k = c->attrs->i[TN_TOPK_K];
    TRY(tn_infer_same(c));
    TRY(tn_infer_dim(c, c->attrs->i[TN_TOPK_DIM], c->rank, &c->attrs->i[TN_TOPK_DIM]));
    int64_t dim = c->attrs->i[TN_TOPK_DIM], size = c->rank ? c->shape[dim] : 1;
    if (k < 0 || k > size)
        return tn_fail(TN_ERR_ARGUMENT, "%s: k is %lld, but the dimension has %lld elements", c->row->name,
                       (long long)k, (long long)size);
    if (c->rank == 0) return TN_OK;
    c->shape[dim] = k;
    c->symbol[dim] = 0;
    return TN_OK;
}
static tn_node *first_places(tn_build *b, const tn_node *n) {
    int64_t dim = n->i[TN_TOPK_DIM];
    tn_node *order = tn_b_argsort(b, n->in[0], dim, n->i[TN_TOPK_LARGEST] != 0);
    if (n->rank == 0) return order;
    return tn_b_slice(b, order, dim, 0, n->i[TN_TOPK_K], 1);
}
#define TOPS                                                                                                           \
    "types=f32,f64,i32; [7] k=3 dim=0 largest=true; [3,5] k=2 dim=1 largest=false; [3,5] k=3 dim=0 largest=true; [4] " \
    "k=0 dim=0 largest=true; [] k=1 dim=0 largest=true; [] k=1 dim=-1 largest=false;"                                  \
    "error=elements [3] k=4 dim=0 largest=true"

/* topk(x, k, dim, largest): the k greatest (or least) elements along dim, sorted. */
static tn_node *compose_topk(tn_build *b, const tn_node *n) {
    return tn_b_gather(b, n->in[0], n->i[TN_TOPK_DIM], first_places(b, n));
}
OP_CODE(topk, .keeps_half = true, .infer = infer_topk, .compose = compose_topk, .cases = TOPS);

/* topk_indices(x, k, dim, largest): the indices of topk's elements along dim. */
static tn_node *compose_topk_indices(tn_build *b, const tn_node *n) { return tn_b_contiguous(b, first_places(b, n)); }
OP_CODE(topk_indices, .infer = infer_topk, .gives = TN_GIVES(TN_I64), .compose = compose_topk_indices, .cases = TOPS);

/* ==== indices out of range ======================================================================================== */
/* Usually the host has the indices when an op is recorded, because they were made from data or computed before. Then
 * they are compared with the range here: about a nanosecond each, and only once while they do not change. Indices that
 * are computed later, that lie in memory which its owner may change, or that may be others at each launch of a captured
 * graph, get a check instead: a plan compares them when it computes or reads them (plan/index_check.c), before it
 * writes any state. Nothing is done for indices whose range follows from how they are made (argmax, clamp). Of those on
 * another device the host knows the range if it has sent them; what was computed there is counted there. */

typedef enum counts { NO_INDICES, ALONG_DIM, FROM_END_TOO, ROWS, CLASSES, PLACES } counts;

const tn_index_rule tn_index_rules[TN_OP_COUNT] = {
    [TN_OP_GATHER] = {ALONG_DIM, 1},         [TN_OP_INDEX_SELECT] = {ALONG_DIM, 1},
    [TN_OP_RESAMPLE] = {ALONG_DIM, 1},       [TN_OP_INDEX_ADD] = {ALONG_DIM, 1},
    [TN_OP_SCATTER] = {ALONG_DIM, 1},        [TN_OP_SCATTER_ADD] = {ALONG_DIM, 1},
    [TN_OP_SCATTER_REDUCE] = {ALONG_DIM, 1}, [TN_OP_TAKE_ALONG_DIM] = {FROM_END_TOO, 1},
    [TN_OP_EMBEDDING] = {ROWS, 0},           [TN_OP_NLL_LOSS] = {CLASSES, 1},
    [TN_OP_CROSS_ENTROPY] = {CLASSES, 1},    [TN_OP_ONE_HOT] = {PLACES, 0},
};

typedef tn_index_range range;

static range range_of(const tn_node *n, counts counted) {
    if (counted == PLACES) return (range){.high = n->i[TN_ONE_HOT_CLASSES]};
    const tn_node *x = n->in[counted == ROWS ? 1 : 0];
    int64_t dim = counted == ROWS ? 0 : counted == CLASSES ? x->rank > 1 : n->i[0];
    int64_t size = x->rank ? x->shape[dim] : 1;
    range r = {.low = counted == FROM_END_TOO ? -size : 0, .high = size, .ignores = counted == CLASSES};
    if (r.ignores) r.ignored = n->i[TN_CROSS_ENTROPY_IGNORE_INDEX];
    return r;
}

/* ---- comparing ------------------------------------------------------------------------------------ */

static inline bool outside(int64_t v, const range *r) {
    return (v < r->low || v >= r->high) && (v != r->ignored || !r->ignores);
}

/* An unsigned number that is negative as i64 is outside, whatever that negative number is. */
static inline bool is_above_i64(const tn_index_list *l, int64_t v) { return l->dtype == TN_U64 && v < 0; }

/* If low is 0, an index v is outside where v or high - 1 - v is negative. The sign bits of a block of vectors are ORed;
 * if one is set, each index of the block is compared, because it may be the ignored one. */
enum { VECTOR = 16 /* bytes */ };
#define ANY_OUTSIDE(name, type, bits, most)                                                         \
    static bool name(const void *base, int64_t count, const range *r) {                             \
        typedef bits vector __attribute__((vector_size(VECTOR), aligned(sizeof(bits)), may_alias)); \
        enum { LANES = VECTOR / sizeof(bits), BLOCK = 8 * LANES };                                  \
        const type *v = base;                                                                       \
        const bits last = (bits)(r->high - 1 < most ? r->high - 1 : most);                          \
        int64_t i = 0;                                                                              \
        for (; r->low == 0 && i + BLOCK <= count; i += BLOCK) {                                     \
            const vector *x = (const vector *)(const void *)(v + i);                                \
            vector any = {0};                                                                       \
            for (int k = 0; k < BLOCK / LANES; k += 4) {                                            \
                vector first = x[k] | (last - x[k]) | x[k + 1] | (last - x[k + 1]);                 \
                any |= first | x[k + 2] | (last - x[k + 2]) | x[k + 3] | (last - x[k + 3]);         \
            }                                                                                       \
            bits signs = 0;                                                                         \
            for (int k = 0; k < LANES; k++)                                                         \
                signs |= any[k];                                                                    \
            if (!(signs >> (8 * sizeof(bits) - 1))) continue;                                       \
            for (int k = 0; k < BLOCK; k++)                                                         \
                if (outside(v[i + k], r)) return true;                                              \
        }                                                                                           \
        for (; i < count; i++)                                                                      \
            if (outside(v[i], r)) return true;                                                      \
        return false;                                                                               \
    }
ANY_OUTSIDE(any_of_i64, int64_t, uint64_t, INT64_MAX)
ANY_OUTSIDE(any_of_i32, int32_t, uint32_t, INT32_MAX)

/* The first index outside, as a number of the list's elements, or -1. */
static int64_t first_outside(const tn_index_list *l, const range *r, int64_t *value) {
    int64_t at[TN_MAX_RANK] = {0};
    for (int64_t i = 0, place = 0; i < l->count; i++) {
        *value = tn_integer_at(l->dtype, l->first, place);
        if (outside(*value, r) || is_above_i64(l, *value)) return i;
        for (int d = l->rank - 1; d >= 0; d--) {
            place += l->stride[d];
            if (++at[d] < l->shape[d]) break;
            place -= l->stride[d] * l->shape[d];
            at[d] = 0;
        }
    }
    return -1;
}

typedef struct search {
    const tn_index_list *list;
    const range *range;
    atomic_bool found;
} search;

static void search_part(void *ctx, int64_t begin, int64_t end, TN_UNUSED int worker) {
    search *s = ctx;
    const char *base = s->list->first + begin * (int64_t)tn_dtype_size(s->list->dtype);
    bool out =
        s->list->dtype == TN_I64 ? any_of_i64(base, end - begin, s->range) : any_of_i32(base, end - begin, s->range);
    if (out) atomic_store_explicit(&s->found, true, memory_order_relaxed);
}

bool tn_indices_inside(const tn_index_list *l, const range *r) {
    enum { GRAIN = 1 << 16 }; /* elements that are worth waking a thread */
    int64_t value;
    if (!l->dense || (l->dtype != TN_I64 && l->dtype != TN_I32)) return first_outside(l, r, &value) < 0;
    search s = {.list = l, .range = r};
    tn_parallel(l->count, GRAIN, search_part, &s);
    return !atomic_load_explicit(&s.found, memory_order_relaxed);
}

tn_status tn_indices_refuse(const char *name, const tn_index_list *l, const range *r) {
    int64_t value = 0, at = first_outside(l, r, &value);
    tn_node shape = {.rank = (uint8_t)l->rank};
    char text[96], number[32];
    memcpy(shape.shape, l->shape, sizeof shape.shape);
    tn_shape_text(&shape, text, sizeof text);
    if (is_above_i64(l, value))
        snprintf(number, sizeof number, "%llu", (unsigned long long)value);
    else
        snprintf(number, sizeof number, "%lld", (long long)value);
    if (r->high <= r->low)
        return tn_fail(TN_ERR_ARGUMENT, "%s: index %s, element %lld of %s, is out of bounds: the dimension is empty",
                       name, number, (long long)at, text);
    return tn_fail(TN_ERR_ARGUMENT,
                   "%s: index %s, element %lld of %s, is out of bounds: valid indices are %lld to %lld", name, number,
                   (long long)at, text, (long long)r->low, (long long)r->high - 1);
}

/* ---- values that the host has ------------------------------------------------------------------------------------ */

/* Ranges that a buffer's content was found to lie in; a version of a buffer is never seen twice in a process. */
typedef struct seen {
    const tn_buffer *buffer;
    uint64_t version;
    range within;
} seen;

static bool seen_before(const tn_buffer *b, const range *r, seen **place) {
    enum { REMEMBERED = 8 };
    static _Thread_local seen last[REMEMBERED];
    *place = &last[b->version * UINT64_C(0x9E3779B97F4A7C15) >> 61];
    const seen *s = *place;
    return s->buffer == b && s->version == b->version && memcmp(&s->within, r, sizeof *r) == 0;
}

/* The number of elements that are looked at when an op is recorded. More are looked at by the plan, once. */
enum { MOST_LOOKED_AT = 1 << 16 };

static const tn_node *root_of(const tn_node *x) { return x->flags & TN_NODE_VIEW ? x->root : x; }

/* Is every value of the one integer type a value of the other? */
static bool keeps_values(tn_dtype from, tn_dtype to) {
    const unsigned is_unsigned = 1u << TN_U8 | 1u << TN_U16 | 1u << TN_U32 | 1u << TN_U64 | 1u << TN_BOOL;
    if (tn_dtype_is_float(from) || tn_dtype_is_float(to) || to == TN_BOOL) return from == to;
    bool was = is_unsigned >> from & 1, is = is_unsigned >> to & 1;
    size_t before = tn_dtype_size(from), after = tn_dtype_size(to);
    return was == is ? after >= before : was && after > before;
}

const tn_node *tn_index_source(const tn_node *x) {
    while (x->op == TN_OP_CAST && x->n_in == 1 && !x->buffer &&
           keeps_values((tn_dtype)x->in[0]->dtype, (tn_dtype)x->dtype))
        x = x->in[0];
    return x;
}

static bool host_has(const tn_node *x) {
    const tn_node *root = root_of(x);
    return root->buffer && root->device->is_cpu && !(root->flags & TN_NODE_STALE) && !tn_queues_exist() &&
           tn_node_numel(x) <= MOST_LOOKED_AT && !tn_buffer_is_borrowed(root->buffer);
}

/* The values in the memory `data`, which is that of x's buffer or a copy. */
static tn_status check_values(int op, const tn_node *x, const char *data, const range *r) {
    const tn_buffer *b = root_of(x)->buffer;
    tn_index_list l = {.dtype = (tn_dtype)x->dtype, .rank = x->rank, .count = tn_node_numel(x)};
    int64_t offset = 0;
    seen *place = NULL;
    (void)tn_node_layout(x, &offset, l.stride);
    memcpy(l.shape, x->shape, sizeof l.shape);
    l.first = data + offset * (int64_t)tn_dtype_size(l.dtype);
    l.dense = tn_node_contiguous(x);
    if (l.dense && seen_before(b, r, &place)) return TN_OK;
    if (!tn_indices_inside(&l, r)) return tn_indices_refuse(tn_op(op)->name, &l, r);
    if (l.dense) *place = (seen){b, b->version, *r};
    return TN_OK;
}

bool tn_known_inside(const tn_buffer *b, const range *r) {
    int64_t low = b->known.low, high = b->known.high;
    if (r->ignores && low == r->ignored) low = b->known.second_low;
    if (r->ignores && high == r->ignored) high = b->known.second_high;
    return low > high || (low >= r->low && high < r->high);
}

/* Indices that the host has sent to a device. If the range of the whole buffer is too wide they are fetched: x may be
 * a view of those that are inside. */
static tn_status check_sent(int op, const tn_node *x, const range *r) {
    const tn_buffer *b = root_of(x)->buffer;
    if (tn_known_inside(b, r)) return TN_OK;
    AUTO_FREE char *data = tn_mem_alloc(b->bytes);
    if (!data) return TN_ERR_MEMORY;
    TRY(tn_buffer_read(b, 0, data, b->bytes));
    return check_values(op, x, data, r);
}

static bool was_sent(const tn_node *x) {
    const tn_node *root = root_of(x);
    return root->buffer && !root->device->is_cpu && !(root->flags & TN_NODE_STALE) && tn_buffer_is_known(root->buffer);
}

/* ---- values that follow from how they are made ------------------------------------------------------------------- */

enum { MOST_STEPS = 8 }; /* ops that are followed back */

static bool lies_inside(const tn_node *x, const range *r, int steps);

static bool inputs_inside(const tn_node *x, int from, const range *r, int steps) {
    for (int i = from; i < x->n_in; i++)
        if (!x->in[i] || !lies_inside(x->in[i], r, steps)) return false;
    return x->n_in > from;
}

/* Are numbers from first to last, as x's dtype has them, in the range? */
static bool within(const tn_node *x, double first, double last, const range *r) {
    tn_dtype t = (tn_dtype)x->dtype;
    return first >= (double)r->low && last <= (double)r->high - 1 && tn_dtype_holds(t, first) &&
           tn_dtype_holds(t, last);
}

/* Are all values of the pending x in the range, whatever the numbers are that it is made of? */
static bool lies_inside(const tn_node *x, const range *r, int steps) {
    if (steps == 0 || x->buffer || x->n_in + x->n_i + x->n_f == 0 || (x->flags & TN_NODE_VARIES)) return false;
    if (x->flags & TN_NODE_VIEW) return inputs_inside(x, 0, r, steps - 1);
    switch (x->op) {
    case TN_OP_ARGMAX:
    case TN_OP_ARGMIN: {
        int64_t kept = tn_node_numel(x);
        return r->low <= 0 && kept > 0 && tn_node_numel(x->in[0]) / kept <= r->high;
    }
    case TN_OP_ARGSORT: return r->low <= 0 && x->rank && x->shape[x->i[TN_ARGSORT_DIM]] <= r->high;
    case TN_OP_ARGSORT_LAST: return r->low <= 0 && x->rank && x->shape[x->rank - 1] <= r->high;
    case TN_OP_TOPK_INDICES: return r->low <= 0 && x->rank && x->in[0]->shape[x->i[TN_TOPK_INDICES_DIM]] <= r->high;
    case TN_OP_RANDOM_INTEGERS:
        return x->i[TN_RANDOM_INTEGERS_LOW] >= r->low && x->i[TN_RANDOM_INTEGERS_HIGH] <= r->high;
    case TN_OP_FULL: return within(x, x->f[TN_FULL_VALUE], x->f[TN_FULL_VALUE], r);
    case TN_OP_ARANGE:
        return x->f[TN_ARANGE_STEP] > 0 && within(x, x->f[TN_ARANGE_START], ceil(x->f[TN_ARANGE_END]) - 1, r);
    case TN_OP_CLAMP:
        return x->f[TN_CLAMP_MIN] <= x->f[TN_CLAMP_MAX] && within(x, x->f[TN_CLAMP_MIN], x->f[TN_CLAMP_MAX], r);
    case TN_OP_CAST:
        return keeps_values((tn_dtype)x->in[0]->dtype, (tn_dtype)x->dtype) && inputs_inside(x, 0, r, steps - 1);
    case TN_OP_WHERE: return inputs_inside(x, 1, r, steps - 1);
    case TN_OP_CONTIGUOUS:
    case TN_OP_CAT:
    case TN_OP_CAT_FEW: return inputs_inside(x, 0, r, steps - 1);
    default: return false;
    }
}

/* ---- checks ------------------------------------------------------------------------------------------------------ */

bool tn_indices_checked_everywhere(void) {
    static atomic_int known; /* 0: not looked up yet, else 1 + whether it is set */
    int k = atomic_load_explicit(&known, memory_order_relaxed);
    if (k == 0) {
        k = tn_env_switch("TRUNNION_CHECK_INDICES", false) ? 2 : 1;
        atomic_store_explicit(&known, k, memory_order_relaxed);
    }
    return k == 2;
}

static tn_status set_check(tn_node *x, const tn_node *user, const range *r) {
    x->check = tn_mem_alloc(sizeof *x->check);
    if (!x->check) return TN_ERR_MEMORY;
    const char *called = tn_recorder_here()->called;
    *x->check = (tn_index_check){
        .range = *r, .name = called ? called : tn_op(user->op)->name, .line = user->line, .file = user->file};
    return TN_OK;
}

/* The check is that of a view which takes the place of input k of n. Others may use the indices for something else. */
static tn_status add_check(tn_node *n, int k, const range *r) {
    tn_node *view = tn_node_make(TN_OP_DETACH, &n->in[k], 1, NULL);
    tn_status s = view->flags & TN_NODE_ERROR ? view->status : set_check(view, n, r);
    if (s != TN_OK) {
        tn_node_release(view);
        return s;
    }
    tn_node_exchange_input(n, k, view);
    tn_node_release(view);
    return TN_OK;
}

tn_status tn_check_indices(tn_node *n) {
    tn_index_rule own = n->op < TN_OP_COUNT ? tn_index_rules[n->op] : (tn_index_rule){0};
    if (own.counts == NO_INDICES || n->n_in <= own.input) return TN_OK; /* an error, or computed meanwhile */
    tn_node *index = n->in[own.input];
    if (tn_dtype_is_float((tn_dtype)index->dtype)) return TN_OK; /* cross_entropy's probabilities */
    const tn_node *x = tn_index_source(index);
    const tn_recorder *r = tn_recorder_here();
    range wanted = range_of(n, (counts)own.counts);
    bool now = host_has(x);
    if (now) TRY(check_values(n->op, x, root_of(x)->buffer->address, &wanted));
    bool sent = was_sent(x);
    if (sent) TRY(check_sent(n->op, x, &wanted));
    if (((now || sent) && !r->capturing) || n->recorder != r) return TN_OK;
    if (lies_inside(index, &wanted, MOST_STEPS)) return TN_OK;
    return add_check(n, own.input, &wanted);
}
