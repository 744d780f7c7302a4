/* indexing.c — picking, placing and ordering elements by index: composed of the primitives of gather.c, and of
 * argsort_last, whose kernel sorts the rows of the last dimension. */
#include "ops/common.h"

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
                       "index_add: source %s with index %s does not fit to %s along dim %lld: one index a slice, "
                       "slices as in x",
                       tn_shape_text(src, b, sizeof b), tn_shape_text(index, i, sizeof i),
                       tn_shape_text(x, a, sizeof a), (long long)dim);
    if (x->dtype != src->dtype)
        return tn_fail(TN_ERR_DTYPE, "index_add: %s and source %s: they must have one dtype",
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
        tn_node *x = tn_b_whole(b, tn_b_movedim(b, n->in[0], dim, 0));
        tn_node *sum =
            tn_b_index_add_rows(b, x, tn_b_whole(b, index), tn_b_whole(b, tn_b_movedim(b, n->in[2], dim, 0)));
        return dim == 0 ? sum : tn_b_contiguous(b, tn_b_movedim(b, sum, 0, dim));
    }
    int64_t column[TN_MAX_RANK];
    for (int d = 0; d < n->rank; d++)
        column[d] = d == dim ? count : 1;
    tn_node *all = tn_b_expand(b, tn_b_reshape(b, index, column, n->rank), n->in[2]->shape, n->rank);
    return tn_b_scatter_add(b, n->in[0], dim, all, n->in[2]);
}
const tn_op_impl tn_impl_index_add = {
    .infer = infer_index_add,
    .compose = compose_index_add,
    .cases = "types=f32,f64,i32 tol=4ulp atol=1e-6; [4,3] [9]:i64@0..3 [9,3] dim=0; [2,5] [3]:i32@0..4 [2,3] dim=-1;"
             "[] [1]:i64@0..0 [] dim=0; [] [1]:i64@0..0 [1] dim=-1; [3] []:i64@0..2 [] dim=0; "
             "types=bool; [4,3] [9]:i64@0..3 [9,3] dim=0; [] [1]:i64@0..0 [] dim=0; types=f32; "
             "error=fit [4,3] [9]:i64@0..3 [8,3] dim=0"};

/* take_along_dim(x, dim, index): gather after broadcasting x and index against each other in all dims but dim; negative
 * indices count from the end. */
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
    return tn_fail(TN_ERR_SHAPE, "take_along_dim: index %s does not broadcast with %s beside dim %lld",
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
const tn_op_impl tn_impl_take_along_dim = {
    .keeps_half = true,
    .infer = infer_take_along_dim,
    .compose = compose_take_along_dim,
    .cases = "types=f32,f64,i32; [4,5] [1,5]:i64@0..3 dim=0; [4,1] [4,3]:i64@0..0 dim=1; [1,5] [3,2]:i64@0..4 dim=1;"
             "[4,5] [4,7]:i64@-5..4 dim=1; [3] [4]:i32@-3..-1 dim=0; [] []:i64@-1..0 dim=0; "
             "error=broadcast [4,5] [2,2]:i64@0..1 dim=0"};

/* scatter_add(x, dim, index, src): x with src[…, j, …] added at […, index[…, j, …], …]; bools: or. Indices outside are
 * left out. */
static tn_status infer_scatter_add(tn_infer *c) {
    const tn_node *x = c->in[0];
    if (x->dtype != c->in[2]->dtype)
        return tn_fail(TN_ERR_DTYPE, "%s: %s and source %s: they must have one dtype", c->row->name,
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

/* The bytes of bools, of which the greatest is "or" and the least "and". */
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
const tn_op_impl tn_impl_scatter_add = {
    .infer = infer_scatter_add,
    .compose = compose_scatter_add,
    .cases =
        "types=f32,f64,i32 tol=4ulp atol=1e-6; [4,2] [9,2]:i64@0..3 [9,2] dim=0; [3,5] [2,7]:i32@0..4 [3,8] dim=1;"
        "[] []:i64@0..0 [] dim=0; [] [1]:i64@0..0 [1] dim=-1; [3] []:i64@0..2 [] dim=0; [4] [2,0]:i64@0..0 [4] dim=0; "
        "types=bool; [4,2] [9,2]:i64@0..3 [9,2] dim=0; []@0..1 []:i64@0..0 [] dim=0; types=f32; "
        "error=fit [2,2] [2]:i64@0..1 [2,2] dim=0"};

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
        return tn_b_where(b, tn_b_le(b, last ? tn_b_const(b, 0, last) : NULL, last), made, x);
    }
    return kind == TN_REDUCE_PROD ? tn_b_mul(b, x, made) : tn_b_add(b, x, made);
}
static tn_node *compose_scatter_reduce(tn_build *b, const tn_node *n) { return scatter_lines(b, n, reduce_scattered); }
const tn_op_impl tn_impl_scatter_reduce = {
    .infer = infer_scatter_add,
    .compose = compose_scatter_reduce,
    .cases = "types=f32,f64,i32 tol=4ulp atol=1e-6; [4,2] [9,2]:i64@0..3 [9,2] dim=0 reduce=sum include_self=true; "
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
             "[2,2] dim=0 reduce=sum include_self=true"};

/* scatter(x, dim, index, src): x with src[…, j, …] put at […, index[…, j, …], …]; of several for one place the last one
 * stays. An index outside is an error. */
static tn_node *put_scattered(tn_build *b, tn_node *x, int64_t dim, tn_node *index, tn_node *src, const tn_node *n) {
    int64_t pads[2 * TN_MAX_RANK];
    int rank = tn_line_rank(n);
    tn_node *last = x ? tn_b_scatter_last(b, index, dim, x->shape, rank) : NULL;
    if (!last) return NULL;
    tn_node *none = tn_b_const(b, 0, last);
    /* gather wants a source that is as large as x beside dim; what it reads there is not used. */
    for (int d = 0; d < rank; d++) {
        pads[2 * (rank - 1 - d)] = 0;
        pads[2 * (rank - 1 - d) + 1] = d == dim ? 0 : x->shape[d] - src->shape[d];
    }
    tn_node *taken = tn_b_gather(b, tn_b_pad(b, src, pads, 2 * rank, 0), dim, tn_b_maximum(b, last, none));
    return tn_b_where(b, tn_b_le(b, none, last), taken, x);
}
static tn_node *compose_scatter(tn_build *b, const tn_node *n) { return scatter_lines(b, n, put_scattered); }
const tn_op_impl tn_impl_scatter = {
    .keeps_half = true,
    .infer = infer_scatter_add,
    .compose = compose_scatter,
    .cases =
        "types=f32,f64,i32; [4,2] [9,2]:i64@0..3 [9,2] dim=0; [3,5] [2,7]:i32@0..4 [3,8] dim=1;"
        "[5] [3]:i64@-1..5 [3] dim=0; [3] [0]:i64@0..0 [0] dim=0; [] []:i64@0..0 [] dim=0; [] [1]:i64@0..0 [1] dim=-1; "
        "[3] []:i64@0..2 [] dim=0; types=bool; [4,2] [9,2]:i64@0..3 [9,2] dim=0; types=f32; error=fit [2,2] "
        "[2]:i64@0..1 [2,2] dim=0"};

/* ---- order ------------------------------------------------------------------------------------------------------- */

/* argsort_last(x, descending): for each row of the last dimension, the places of its elements in ascending (or
 * descending) order; equal ones stay in order, NaN is the greatest. */
static tn_status infer_argsort_last(tn_infer *c) {
    TRY(tn_infer_same(c));
    TRY(tn_need_contiguous(c, 0));
    c->dtype = TN_I64;
    return c->rank > 0 ? TN_OK : tn_fail(TN_ERR_SHAPE, "argsort: the tensor has no dimension");
}
/* Insertion sort: short, stable, and a definition that nobody doubts. */
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
/* Is x before y, on values alone? NaN is the greatest. */
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
const tn_op_impl tn_impl_argsort_last = {.class_ = TN_NATIVE,
                                         .infer = infer_argsort_last,
                                         .compose = compose_argsort_last,
                                         .reference = reference_argsort_last,
                                         .cases = "types=f32,f64,i32,i64; [7] descending=false; [3,5] descending=true; "
                                                  "[2,0] descending=false; [40]@0..3 descending=false;"
                                                  "[40]@0..3 descending=true; error=dimension [] descending=false",
                                         .flops = 10};

static tn_status infer_order(tn_infer *c) {
    TRY(tn_infer_same(c));
    return tn_infer_dim(c, c->attrs->i[0], c->rank, &c->attrs->i[0]);
}
static tn_status infer_argsort(tn_infer *c) {
    TRY(infer_order(c));
    c->dtype = TN_I64;
    return TN_OK;
}

/* argsort(x, dim, descending): the places along dim of x's elements in ascending (or descending) order; equal ones stay
 * in order, NaN is the greatest. */
static tn_node *compose_argsort(tn_build *b, const tn_node *n) {
    tn_node *x = n->in[0];
    int64_t dim = n->i[TN_ARGSORT_DIM], last = x->rank - 1;
    bool descending = n->i[TN_ARGSORT_DESCENDING];
    if (x->rank == 0) return tn_b_full(b, NULL, 0, 0, TN_I64);
    tn_node *order = tn_b_argsort_last(b, tn_b_whole(b, tn_b_movedim(b, x, dim, last)), descending);
    return dim == last ? order : tn_b_contiguous(b, tn_b_movedim(b, order, last, dim));
}
#define ORDERS                                                                                                   \
    "types=f32,f64,i32; [7] dim=0 descending=false; [3,5] dim=0 descending=true; [3,5] dim=-1 descending=false;" \
    "[] dim=0 descending=false; [0,3] dim=0 descending=false; error=range [3] dim=1 descending=false"
const tn_op_impl tn_impl_argsort = {.infer = infer_argsort, .compose = compose_argsort, .cases = ORDERS};

/* sort(x, dim, descending): x's elements in ascending (or descending) order along dim;
 * where they come from says argsort. */
static tn_node *compose_sort(tn_build *b, const tn_node *n) {
    if (n->rank == 0) return tn_b_contiguous(b, n->in[0]);
    return tn_b_gather(b, n->in[0], n->i[0], tn_b_argsort(b, n->in[0], n->i[0], n->i[1] != 0));
}
/* Back by the inverse order: one look-up an element, where the gradient of gather would search. */
static tn_status grad_sort(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    int64_t dim = n->i[0];
    grads[0] = dy;
    if (n->rank == 0) return b->status;
    tn_node *order = tn_b_argsort(b, n->in[0], dim, n->i[1] != 0);
    grads[0] = tn_b_gather(b, dy, dim, tn_b_argsort(b, order, dim, false));
    return b->status;
}
const tn_op_impl tn_impl_sort = {
    .keeps_half = true, .infer = infer_order, .compose = compose_sort, .grad = grad_sort, .cases = ORDERS};

static tn_status infer_topk(tn_infer *c) {
    int64_t k = c->attrs->i[TN_TOPK_K];
    TRY(tn_infer_same(c));
    TRY(tn_infer_dim(c, c->attrs->i[TN_TOPK_DIM], c->rank, &c->attrs->i[TN_TOPK_DIM]));
    int64_t dim = c->attrs->i[TN_TOPK_DIM], size = c->rank ? c->shape[dim] : 1;
    if (k < 0 || k > size)
        return tn_fail(TN_ERR_ARGUMENT, "%s: the first %lld of %lld elements", c->row->name, (long long)k,
                       (long long)size);
    if (c->rank == 0) return TN_OK;
    c->shape[dim] = k;
    c->symbol[dim] = 0;
    return TN_OK;
}
static tn_status infer_topk_indices(tn_infer *c) {
    TRY(infer_topk(c));
    c->dtype = TN_I64;
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

/* topk(x, k, dim, largest): the k greatest (or least) elements along dim, the first first. */
static tn_node *compose_topk(tn_build *b, const tn_node *n) {
    return tn_b_gather(b, n->in[0], n->i[TN_TOPK_DIM], first_places(b, n));
}
const tn_op_impl tn_impl_topk = {.keeps_half = true, .infer = infer_topk, .compose = compose_topk, .cases = TOPS};

/* topk_indices(x, k, dim, largest): where the elements of topk lie along dim. */
static tn_node *compose_topk_indices(tn_build *b, const tn_node *n) { return tn_b_contiguous(b, first_places(b, n)); }
const tn_op_impl tn_impl_topk_indices = {.infer = infer_topk_indices, .compose = compose_topk_indices, .cases = TOPS};
