/* op_reduce.c — reductions over dimensions: sums, extremes, running sums, order statistics, and ops composed of them.
 *
 * The shape rule replaces the list of dims by the full ascending list, so the code after it never sees negative or
 * omitted dims. */
#include <math.h>

#include "ops/ops_common.h"

/* ---- gradients and references of reductions over a dims list ----------------------------------------------------- */

static int64_t dims_count(const tn_node *n) { return n->i[0]; }
static const int64_t *dims_of(const tn_node *n) { return n->i + 1; }

/* v, of n's shape, with the reduced dims back as extents of 1. */
static tn_node *with_dims(tn_build *b, const tn_node *n, tn_node *v) {
    int64_t shape[TN_MAX_RANK];
    const tn_node *x = n->in[0];
    for (int d = 0; d < x->rank; d++)
        shape[d] = tn_is_reduced(n, d) ? 1 : x->shape[d];
    if (!v || v->rank == x->rank) return v;
    return tn_b_reshape(b, v, shape, x->rank);
}

static int64_t reduced_count(const tn_node *n) {
    int64_t count = 1;
    for (int64_t k = 0; k < dims_count(n); k++)
        count *= n->in[0]->shape[dims_of(n)[k]];
    return count;
}

/* One more value; `number` counts a place's elements in row-major order, `extreme` is what an index belongs to. */
static void fold_step(kir_reduce kind, double *result, double v, int64_t number, double *extreme) {
    bool greatest = kind == KIR_RMAX || kind == KIR_ARGMAX, is_index = kind == KIR_ARGMAX || kind == KIR_ARGMIN;
    double *best = is_index ? extreme : result;
    if (kind == KIR_SUM) *result += v;
    if (kind == KIR_PROD) *result *= v;
    if (kind == KIR_SUM || kind == KIR_PROD) return;
    if (number > 0 && (*best != *best || !((greatest ? v > *best : v < *best) || v != v))) return;
    *best = v;
    if (is_index) *result = (double)number;
}

/* Folds every element of the input into its place of the result. */
static void reference_reduced(const tn_reference *r) {
    const tn_node *n = r->node, *x = n->in[0];
    kir_reduce kind = (kir_reduce)tn_op(n->op)->impl->reduce;
    double first = kind == KIR_PROD ? 1 : kind == KIR_RMAX ? -INFINITY : kind == KIR_RMIN ? INFINITY : 0;
    int64_t size = tn_node_numel(n), to_stride[TN_MAX_RANK] = {0}, number_stride[TN_MAX_RANK] = {0}, s = 1, t = 1;
    for (int d = x->rank - 1; d >= 0; d--) {
        if (tn_is_reduced(n, d)) {
            number_stride[d] = t;
            t *= x->shape[d];
        } else {
            to_stride[d] = s;
            s *= x->shape[d];
        }
    }
    double *extreme = tn_mem_zalloc((size_t)size + 1, sizeof *extreme);
    for (int64_t i = 0; i < size; i++)
        r->out[i] = first;
    for (tn_walk w = tn_walk_begin(x); extreme && w.place < w.count; tn_walk_next(&w)) {
        int64_t to = 0, number = 0;
        for (int d = 0; d < x->rank; d++) {
            to += w.at[d] * to_stride[d];
            number += w.at[d] * number_stride[d];
        }
        fold_step(kind, &r->out[to], r->in[0][w.place], number, &extreme[to]);
    }
    tn_mem_free(extreme);
}

/* Whether ops on x are recorded, because a gradient of the gradient may be requested. */
static bool differentiated_again(tn_build *b, tn_node *x) {
    tn_node *made = tn_b_mul(b, x, tn_b_const(b, 1, x));
    return made && made->flags & TN_NODE_GRAD;
}

/* Whole sums of integers and bools are i64, as in PyTorch. */
static tn_status infer_sum(tn_infer *c) {
    TRY(tn_infer_reduce(c));
    if (!tn_dtype_is_float(c->dtype)) c->dtype = TN_I64;
    return TN_OK;
}
static kir_val lower_sum(tn_lower *lw, const tn_node *n, const kir_aff *at) {
    return kir_cast(lw->kb, kir_type_of((tn_dtype)n->dtype), tn_lower_reduced(lw, n, at));
}

/* A sum's rounding error grows with its length; lanes keep it near the logarithm of that, 16
 * ulp of the largest sums here. */
#define REDUCTIONS                                                                                                 \
    "[2,3] dims=() keepdim=false; [2,3] dims=(0) keepdim=false; [2,3] dims=(1) keepdim=true; [2,3,4] dims=(0,-1) " \
    "keepdim=false;"                                                                                               \
    "[] dims=() keepdim=false; [5,1] dims=(1) keepdim=false; [3,200] dims=(1) keepdim=false; [300,3] dims=(0) "    \
    "keepdim=false;"                                                                                               \
    "error=range [2] dims=(1) keepdim=false; error=twice [2] dims=(0,0) keepdim=false"
#define EMPTY_REDUCTIONS "[0,3] dims=(0) keepdim=false; [0,3] dims=(1) keepdim=true; [2,0] dims=() keepdim=false"

/* Reductions over the dims attribute. */
#define OVER_DIMS(kind) \
    .class_ = TN_REDUCTION, .reduce = kind, .loops = tn_loops_over_dims, .reference = reference_reduced, .flops = 1

/* sum(x, dims, keepdim): the sum over dims (TN_ALL: all). The sum of integers and bools is i64. */
static tn_node *grad_sum(tn_build *b, const tn_node *n, tn_node *dy) {
    return tn_b_expand(b, with_dims(b, n, dy), n->in[0]->shape, n->in[0]->rank);
}

/* Sums of one element each, as over a batch of one: +0 and that, computed where they are needed. */
static tn_node *compose_sum(tn_build *b, const tn_node *n) {
    tn_node *x = n->in[0];
    bool fixed = tn_dtype_is_float((tn_dtype)n->dtype) && tn_node_numel(x) == tn_node_numel(n);
    for (int d = 0; d < x->rank; d++)
        fixed = fixed && !x->symbol[d];
    return fixed ? tn_b_offset(b, tn_b_reshape(b, x, n->shape, n->rank), 0) : tn_b_self(n);
}
OP_CODE(sum, OVER_DIMS(KIR_SUM), .keeps_half = true, .infer = infer_sum, .compose = compose_sum, .grad_first = grad_sum,
        .lower = lower_sum,
        .cases = "types=f32,f64,i32,i64,bool tol=1e-5 atol=1e-5; " REDUCTIONS ";" EMPTY_REDUCTIONS
                 "; types=f16,bf16 tol=1ulp; [2,3] dims=(1) keepdim=false");

/* Running products along the last dim of rows, each without the last factor of its own. */
static tn_node *products_before(tn_build *b, tn_node *rows) {
    if (!rows) return NULL;
    int64_t count = rows->shape[0], length = rows->shape[1];
    tn_node *first = tn_b_expand(b, tn_b_const(b, 1, rows), (int64_t[]){count, 1}, 2);
    if (length == 1) return first;
    return tn_b_cat(b, (tn_node *[]){first, tn_b_cumprod(b, tn_b_slice(b, rows, 1, 0, length - 1, 1), 1)}, 2, 1);
}
static tn_node *backwards(tn_build *b, tn_node *rows) { return tn_b_slice(b, rows, 1, INT64_MAX, INT64_MIN, -1); }

/* For each element of x, the product of those that n multiplies it with: of those before it and those after. */
static tn_node *product_of_others(tn_build *b, const tn_node *n, tn_node *x) {
    int64_t order[TN_MAX_RANK], back[TN_MAX_RANK], shape[TN_MAX_RANK], length = 1;
    int kept = 0, rank = x->rank;
    bool reduced[TN_MAX_RANK] = {false};
    for (int64_t k = 0; k < dims_count(n); k++)
        reduced[dims_of(n)[k]] = true;
    for (int pass = 0; pass < 2; pass++)
        for (int d = 0; d < rank; d++)
            if ((dims_count(n) == 0 || reduced[d]) == (pass == 1)) order[kept++] = d;
    for (int d = 0; d < rank; d++) {
        back[order[d]] = d;
        shape[d] = x->shape[order[d]];
        if (dims_count(n) == 0 || reduced[order[d]]) length *= shape[d];
    }
    tn_node *turned = tn_b_permute(b, x, order, rank);
    tn_node *rows = tn_b_reshape(b, turned, (int64_t[]){tn_node_numel(x) / length, length}, 2);
    tn_node *others = tn_b_mul(b, products_before(b, rows), backwards(b, products_before(b, backwards(b, rows))));
    return tn_b_permute(b, tn_b_reshape(b, others, shape, rank), back, rank);
}

/* `share`, and for the only element of a product that is NaN or infinite the product of the others. filled: x with 1
 * for its zeros, of which there are `zeros`. */
static tn_node *beside_infinite(tn_build *b, const tn_node *n, tn_node *filled, tn_node *zeros, tn_node *share) {
    tn_node *none = tn_b_const(b, 0, filled), *one = tn_b_const(b, 1, filled);
    tn_node *odd = tn_b_bitwise_not(b, tn_b_lt(b, tn_b_abs(b, filled), tn_b_const(b, INFINITY, filled)));
    tn_node *others = tn_b_prod(b, tn_b_where(b, odd, one, filled), dims_of(n), (int)dims_count(n), true);
    tn_node *count = tn_b_sum(b, tn_b_cast(b, odd, (tn_dtype)filled->dtype), dims_of(n), (int)dims_count(n), true);
    others = tn_b_where(b, tn_b_eq(b, zeros, none), others, none);
    return tn_b_where(b, tn_b_bitwise_and(b, odd, tn_b_eq(b, count, one)), others, share);
}

/* prod(x, dims, keepdim): the product over dims (TN_ALL: all). The product of integers and bools is i64.
 *
 * Gradient: the product of the others is y / x where x is not 0; where it is, the others' product, for a single zero.
 * The same holds for a single element that is NaN or infinite: by division it would spoil its own gradient. Of these
 * the gradient does not follow if there are two zeros: where it will be asked for, nothing is divided. */
static void grad_prod(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    tn_node *x = n->in[0], *y = with_dims(b, n, tn_b_self(n)), *d = with_dims(b, n, dy);
    tn_node *none = tn_b_const(b, 0, x), *one = tn_b_const(b, 1, x);
    if (tn_node_numel(x) > 0 && differentiated_again(b, x)) {
        for (int k = 0; k < x->rank && b->status == TN_OK; k++)
            if (x->symbol[k])
                b->status =
                    tn_fail(TN_ERR_UNSUPPORTED, "prod: dim %d is symbolic, so second derivatives are not supported", k);
        if (b->status == TN_OK) grads[0] = tn_b_mul(b, d, product_of_others(b, n, x));
        return;
    }
    tn_node *zero = tn_b_eq(b, x, none);
    tn_node *filled = tn_b_where(b, zero, one, x);
    tn_node *others = tn_b_prod(b, filled, dims_of(n), (int)dims_count(n), true);
    tn_node *zeros = tn_b_sum(b, tn_b_cast(b, zero, (tn_dtype)x->dtype), dims_of(n), (int)dims_count(n), true);
    tn_node *single = tn_b_where(b, tn_b_eq(b, zeros, one), others, none);
    tn_node *share = tn_b_where(b, zero, single, tn_b_div(b, y, filled));
    grads[0] = tn_b_mul(b, d, beside_infinite(b, n, filled, zeros, share));
}
OP_CODE(
    prod, OVER_DIMS(KIR_PROD), .infer = infer_sum, .grad = grad_prod, .lower = lower_sum,
    .cases =
        "types=f32,f64,bool tol=1e-5; [2,3] dims=() keepdim=false; [2,3]@0.5..2 dims=(0) keepdim=true;"
        "[2,3,4]@0.5..1.5 dims=(0,-1) keepdim=false; [] dims=() keepdim=false; [9,2]@-1.2..1.2 dims=(0) keepdim=false;"
        "types=i32; [2,3]@-3..3 dims=(1) keepdim=false; types=f32,i32; " EMPTY_REDUCTIONS);

/* ---- extremes ---------------------------------------------------------------------------------------------------- */

static tn_status infer_extreme(tn_infer *c) {
    TRY(tn_infer_reduce(c));
    const tn_node *x = c->in[0];
    char text[96];
    for (int64_t k = 0; k < c->attrs->i[0]; k++)
        if (x->shape[c->attrs->i[1 + k]] == 0)
            return tn_fail(TN_ERR_SHAPE, "%s: dim %lld of %s is empty, so it has no extreme element", c->row->name,
                           (long long)c->attrs->i[1 + k], tn_shape_text(x, text, sizeof text));
    return TN_OK;
}

/* All elements that reach the extreme share its gradient evenly. */
static tn_node *grad_extreme(tn_build *b, const tn_node *n, tn_node *dy) {
    tn_node *x = n->in[0];
    tn_node *reached = tn_b_cast(b, tn_b_eq(b, x, with_dims(b, n, tn_b_self(n))), (tn_dtype)x->dtype);
    tn_node *many = tn_b_sum(b, reached, dims_of(n), (int)dims_count(n), true);
    return tn_b_mul(b, reached, tn_b_div(b, with_dims(b, n, dy), many));
}

#define EXTREMES \
    "types=f32,f64,i32,i64; " REDUCTIONS "; [0,3] dims=(1) keepdim=false; error=element [0,3] dims=(0) keepdim=false"

/* amax(x, dims, keepdim): the maximum over dims (TN_ALL: all); NaN if there is a NaN. Equal elements share the
 * gradient. */
OP_CODE(amax, OVER_DIMS(KIR_RMAX), .infer = infer_extreme, .grad_first = grad_extreme, .lower = tn_lower_reduced,
        .cases = EXTREMES);

/* amin(x, dims, keepdim): the minimum over dims (TN_ALL: all); NaN if there is a NaN. Equal elements share the
 * gradient. */
OP_CODE(amin, OVER_DIMS(KIR_RMIN), .infer = infer_extreme, .grad_first = grad_extreme, .lower = tn_lower_reduced,
        .cases = EXTREMES);

/* argmax(x, dims, keepdim): the index of the maximum along dims, the first one of equal elements; over several dims
 * (TN_ALL: all) counted in row-major order. NaN is the greatest. */
OP_CODE(argmax, OVER_DIMS(KIR_ARGMAX), .infer = infer_extreme, .gives = TN_GIVES(TN_I64), .lower = tn_lower_reduced,
        .cases = EXTREMES);

/* argmin(x, dims, keepdim): the index of the minimum along dims, the first one of equal elements; over several dims
 * (TN_ALL: all) counted in row-major order. NaN is the least. */
OP_CODE(argmin, OVER_DIMS(KIR_ARGMIN), .infer = infer_extreme, .gives = TN_GIVES(TN_I64), .lower = tn_lower_reduced,
        .cases = EXTREMES);

/* ---- running ----------------------------------------------------------------------------------------------------- */

static tn_status infer_running(tn_infer *c) {
    TRY(tn_infer_same(c));
    TRY(tn_infer_dim(c, c->attrs->i[0], c->rank, &c->attrs->i[0]));
    if (!tn_dtype_is_float(c->dtype)) c->dtype = TN_I64;
    return TN_OK;
}
/* One number is its own running sum and product. */
static tn_node *compose_running(tn_build *b, const tn_node *n) {
    tn_node *x = n->in[0];
    if (n->rank > 0) return tn_b_self(n);
    return x->dtype == n->dtype ? tn_b_contiguous(b, x) : tn_b_cast(b, x, (tn_dtype)n->dtype);
}

enum { SUM_ROW = 4096, SUM_BLOCK = 512 }; /* longer rows are added in blocks */

/* A running sum in f32 that adds number by number loses what is below half an ulp of the sum: 2^24 ones and one more
 * are 2^24. So the blocks of a long row have running sums of their own, and each starts at that of the blocks before
 * it. */
static bool in_blocks(const tn_node *n) {
    for (int d = 0; d < n->rank; d++)
        if (n->symbol[d]) return false;
    return n->dtype == TN_F32 && n->rank > 0 && n->rank < TN_MAX_RANK && n->shape[n->i[0]] > SUM_ROW;
}
static tn_node *compose_cumsum(tn_build *b, const tn_node *n) {
    if (!in_blocks(n)) return compose_running(b, n);
    int dim = (int)n->i[0], place = 2 * (n->rank - 1 - dim);
    int64_t size = n->shape[dim], blocks = tn_ceil_div(size, SUM_BLOCK);
    int64_t pads[2 * TN_MAX_RANK] = {0}, first[2 * TN_MAX_RANK] = {0}, shape[TN_MAX_RANK];
    pads[place + 1] = blocks * SUM_BLOCK - size;
    first[place] = 1;
    for (int d = 0; d <= n->rank; d++)
        shape[d] = d < dim ? n->shape[d] : d == dim ? blocks : d == dim + 1 ? SUM_BLOCK : n->shape[d - 1];
    tn_node *x = pads[place + 1] ? tn_b_pad(b, n->in[0], pads, place + 2, 0) : n->in[0];
    tn_node *inner = tn_b_cumsum(b, tn_b_reshape(b, x, shape, n->rank + 1), dim + 1);
    tn_node *ends = tn_b_cumsum(b, tn_b_select(b, inner, dim + 1, SUM_BLOCK - 1), dim);
    tn_node *starts = tn_b_pad(b, tn_b_narrow(b, ends, dim, 0, blocks - 1), first, place + 2, 0);
    memcpy(shape, n->shape, (size_t)n->rank * sizeof *shape);
    shape[dim] = blocks * SUM_BLOCK;
    tn_node *sums = tn_b_reshape(b, tn_b_add(b, inner, tn_b_unsqueeze(b, starts, dim + 1)), shape, n->rank);
    return tn_b_contiguous(b, tn_b_narrow(b, sums, dim, 0, size));
}
static kir_val lower_running(tn_lower *lw, const tn_node *n, const kir_aff *at) {
    return kir_cast(lw->kb, kir_type_of((tn_dtype)n->dtype), tn_lower_in(lw, n, 0, at));
}
static void reference_running(const tn_reference *r) {
    const tn_node *n = r->node;
    bool multiply = tn_op(n->op)->impl->reduce == KIR_PROD;
    int64_t dim = n->i[0], stride = tn_product(n->shape + dim + 1, n->rank - dim - 1);
    for (tn_walk w = tn_walk_begin(n); w.place < w.count; tn_walk_next(&w)) {
        double v = r->in[0][w.place];
        double before = n->rank && w.at[dim] > 0 ? r->out[w.place - stride] : multiply ? 1 : 0;
        r->out[w.place] = multiply ? before * v : before + v;
    }
}

/* The sums of all that comes after, this one included: a running sum from the end. */
static tn_node *sum_from_end(tn_build *b, tn_node *v, int64_t dim) {
    tn_node *turned = tn_b_slice(b, v, dim, INT64_MAX, INT64_MIN, -1);
    return tn_b_slice(b, tn_b_cumsum(b, turned, dim), dim, INT64_MAX, INT64_MIN, -1);
}

#define RUNNING                                                                                              \
    "[5] dim=0; [2,3] dim=0; [2,3] dim=-1; [3,0] dim=0; [2,3,4] dim=1; error=range [2] dim=1; [] dim=0; [] " \
    "dim=-1; error=range [] dim=1"

/* cumsum(x, dim): the cumulative sum along dim. The sum of integers and bools is i64. */
static tn_node *grad_cumsum(tn_build *b, const tn_node *n, tn_node *dy) {
    return n->rank ? sum_from_end(b, dy, n->i[0]) : dy;
}
OP_CODE(cumsum, .class_ = TN_SCANNING, .keeps_half = true, .reduce = KIR_SUM, .infer = infer_running,
        .compose = compose_cumsum, .grad_first = grad_cumsum, .lower = lower_running, .reference = reference_running,
        .cases = "types=f32,f64,i32,bool tol=1e-5 atol=1e-5; " RUNNING "; [300] dim=0 grad=off atol=1e-4; "
                 "types=f32 tol=1e-5 atol=1e-4; [5000] dim=0 grad=off",
        .flops = 1);

/* cumprod(x, dim): the cumulative product along dim. The product of integers and bools is i64.
 *
 * Gradient: dx[k] = Σ dy[i] · Π x[j] over i ≥ k, j ≤ i, j ≠ k. With the first zero of each row replaced by 1, p are
 * the running products: up to that zero (at k) the sums of dy·p are its gradient; elsewhere a product after the zero
 * is p times that zero, and division by x[k] leaves it out. A further zero makes p 0.
 *
 * With two zeros the gradient's own gradient does not follow from this. Where it will be asked for, dx[k] is
 * Π x[j] over j < k times q[k], with q[k] = dy[k] + x[k + 1]·q[k + 1]: a chain of maps that are joined in pairs, in
 * log n steps and without a division. */
static tn_node *along(tn_build *b, tn_node *x, int64_t dim, int64_t from, int64_t to) {
    return tn_b_slice(b, x, dim, from, to, 1);
}
static tn_node *cumprod_gradient_again(tn_build *b, tn_node *x, tn_node *dy, int64_t dim) {
    int64_t n = x->shape[dim];
    if (n < 2) return dy;
    tn_node *q = dy, *factor = along(b, x, dim, 1, n); /* q[k] + factor[k]·q[k + step] */
    for (int64_t step = 1; step < n; step *= 2) {
        tn_node *reached = tn_b_mul(b, factor, along(b, q, dim, step, n));
        tn_node *first = tn_b_add(b, along(b, q, dim, 0, n - step), reached);
        q = tn_b_cat(b, (tn_node *[]){first, along(b, q, dim, n - step, n)}, 2, dim);
        if (2 * step < n)
            factor = tn_b_mul(b, along(b, factor, dim, 0, n - 2 * step), along(b, factor, dim, step, n - step));
    }
    tn_node *before = tn_b_cumprod(b, along(b, x, dim, 0, n - 1), dim);
    tn_node *rest = tn_b_mul(b, before, along(b, q, dim, 1, n));
    return tn_b_cat(b, (tn_node *[]){along(b, q, dim, 0, 1), rest}, 2, dim);
}
static void grad_cumprod(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    tn_node *x = n->in[0], *zero = tn_b_const(b, 0, x), *one = tn_b_const(b, 1, x);
    int64_t dim = n->i[0];
    grads[0] = dy;
    if (n->rank == 0 || tn_node_numel(n) == 0) return;
    if (differentiated_again(b, x)) {
        if (n->symbol[dim])
            b->status =
                tn_fail(TN_ERR_UNSUPPORTED, "cumprod: dim %lld is symbolic, so second derivatives are not supported",
                        (long long)dim);
        else
            grads[0] = cumprod_gradient_again(b, x, dy, dim);
        return;
    }
    tn_node *is_zero = tn_b_eq(b, x, zero), *count = tn_b_cumsum(b, is_zero, dim);
    tn_node *first = count ? tn_b_bitwise_and(b, is_zero, tn_b_eq(b, count, tn_b_const(b, 1, count))) : NULL;
    tn_node *before = count ? tn_b_eq(b, count, tn_b_const(b, 0, count)) : NULL;
    tn_node *the_zero = tn_b_sum(b, tn_b_where(b, first, x, zero), &dim, 1, true);
    tn_node *filled = tn_b_where(b, first, one, x);
    tn_node *weighted = tn_b_mul(b, dy, tn_b_cumprod(b, filled, dim));
    tn_node *of_zero = sum_from_end(b, weighted, dim);
    tn_node *others = sum_from_end(b, tn_b_mul(b, weighted, tn_b_where(b, before, one, the_zero)), dim);
    tn_node *divisor = tn_b_where(b, is_zero, one, x);
    grads[0] = tn_b_where(b, first, of_zero, tn_b_div(b, others, divisor));
}
OP_CODE(cumprod, .class_ = TN_SCANNING, .reduce = KIR_PROD, .infer = infer_running, .compose = compose_running,
        .grad = grad_cumprod, .lower = lower_running, .reference = reference_running,
        .cases = "types=f32,f64,i32 tol=1e-5; " RUNNING, .flops = 1);

/* ---- composed: means, deviations, norms -------------------------------------------------------------------------- */

static bool keeps_dims(const tn_node *n) { return n->rank == n->in[0]->rank; }

static tn_status infer_float_reduce(tn_infer *c) {
    if (!tn_dtype_is_float((tn_dtype)c->in[0]->dtype))
        return tn_fail(TN_ERR_DTYPE, "%s: the tensor is %s, but the result is not: cast it to a float type first",
                       c->row->name, tn_dtype_name((tn_dtype)c->in[0]->dtype));
    return tn_infer_reduce(c);
}

/* mean(x, dims, keepdim): the mean over dims (TN_ALL: all). Floating dtypes only. */
static tn_node *compose_mean(tn_build *b, const tn_node *n) {
    tn_node *sum = tn_b_sum(b, n->in[0], dims_of(n), (int)dims_count(n), keeps_dims(n));
    return sum ? tn_b_div(b, sum, tn_b_const(b, (double)reduced_count(n), sum)) : NULL;
}
OP_CODE(mean, .infer = infer_float_reduce, .compose = compose_mean,
        .cases = "types=f32,f64 tol=1e-5 atol=1e-6; " REDUCTIONS
                 "; types=i32; error=cast [2] dims=() keepdim=false; types=f16,bf16 tol=1ulp "
                 "error=; [2,30] dims=(1) keepdim=false");

/* var(x, dims, correction, keepdim): the variance over dims (TN_ALL: all): the sum of squared deviations divided by the
 * number of elements minus `correction` (1: sample variance, 0: population variance). */
static tn_status infer_var(tn_infer *c) {
    int64_t count = c->attrs->i[0];
    if (!tn_dtype_is_float((tn_dtype)c->in[0]->dtype)) return infer_float_reduce(c);
    /* The shared rule wants keepdim after the dims. */
    tn_attrs *given = c->attrs, plain = *given;
    int64_t correction = given->i[1 + count];
    plain.i[1 + count] = given->i[2 + count];
    plain.n_i--;
    c->attrs = &plain;
    tn_status s = infer_float_reduce(c);
    c->attrs = given;
    TRY(s);
    *given = plain;
    int64_t *end = given->i + 1 + given->i[0];
    end[1] = end[0];
    end[0] = correction;
    given->n_i++;
    return TN_OK;
}
static tn_node *compose_var(tn_build *b, const tn_node *n) {
    tn_node *x = n->in[0];
    tn_node *mean = tn_b_mean(b, x, dims_of(n), (int)dims_count(n), true);
    tn_node *apart = x ? tn_b_sub(b, x, mean) : NULL;
    tn_node *sum = tn_b_sum(b, tn_b_mul(b, apart, apart), dims_of(n), (int)dims_count(n), keeps_dims(n));
    int64_t free_count = reduced_count(n) - n->i[1 + dims_count(n)];
    return sum ? tn_b_div(b, sum, tn_b_const(b, (double)tn_max64(free_count, 0), sum)) : NULL;
}
#define DEVIATIONS                                                                                             \
    "types=f32,f64 tol=1e-5 atol=1e-6; [2,3] dims=() correction=1 keepdim=false; [2,3] dims=(0) correction=0 " \
    "keepdim=true;"                                                                                            \
    "[2,3,4] dims=(0,-1) correction=1 keepdim=false; [3,200] dims=(1) correction=1 keepdim=true;"              \
    "[4] dims=() correction=0 keepdim=false; [4] dims=() correction=-1 keepdim=false"
OP_CODE(var, .infer = infer_var, .compose = compose_var, .cases = DEVIATIONS);

/* std(x, dims, correction, keepdim): the square root of var. The gradient of equal elements is 0. */
static tn_node *compose_std(tn_build *b, const tn_node *n) {
    tn_node *x = n->in[0];
    if (!x) return NULL;
    tn_node *v = tn_b_var(b, x, dims_of(n), (int)dims_count(n), n->i[1 + dims_count(n)], keeps_dims(n));
    tn_node *none = tn_b_const(b, 0, v), *is_none = tn_b_eq(b, v, none);
    /* of the square root of 0 the gradient is infinite, and times 0 NaN: it is not taken */
    tn_node *root = tn_b_sqrt(b, tn_b_where(b, is_none, tn_b_const(b, 1, v), v));
    return tn_b_where(b, is_none, none, root);
}
OP_CODE(std, .infer = infer_var, .compose = compose_std, .cases = DEVIATIONS);

/* Is one element reduced, at every run of the plan? */
static bool is_single(const tn_node *n) {
    for (int64_t k = 0; k < dims_count(n); k++)
        if (n->in[0]->symbol[dims_of(n)[k]]) return false;
    return reduced_count(n) == 1;
}

/* The norm of one element is its size, for any p but 0 and without overflow on the way: as with p = 1. */
static double norm_order(const tn_node *n) {
    double p = n->f[TN_NORM_P];
    return is_single(n) && p != 0 && !isnan(p) ? 1 : p;
}

/* norm(x, p, dims, keepdim): (Σ |x|^p)^(1/p) over dims (TN_ALL: all); p INFINITY or −INFINITY: the greatest or least
 * |x|, 0: how many are not 0. The gradient at 0 is 0. */
static tn_node *compose_norm(tn_build *b, const tn_node *n) {
    double p = norm_order(n);
    const int64_t *dims = dims_of(n);
    int count = (int)dims_count(n);
    bool keep = keeps_dims(n);
    tn_node *x = n->in[0];
    if (!x) return NULL;
    tn_node *v;
    if (p == 2)
        v = tn_b_sqrt(b, tn_b_sum(b, tn_b_mul(b, x, x), dims, count, keep));
    else if (p == 1)
        v = tn_b_sum(b, tn_b_abs(b, x), dims, count, keep);
    else if (p == INFINITY)
        v = tn_b_amax(b, tn_b_abs(b, x), dims, count, keep);
    else if (p == -INFINITY)
        v = tn_b_amin(b, tn_b_abs(b, x), dims, count, keep);
    else if (p == 0)
        v = tn_b_sum(b, tn_b_cast(b, tn_b_cast(b, x, TN_BOOL), (tn_dtype)x->dtype), dims, count, keep);
    else
        v = tn_b_pow_scalar(b, tn_b_sum(b, tn_b_pow_scalar(b, tn_b_abs(b, x), p), dims, count, keep), 1 / p);
    return v;
}
/* d/dx = x · |x|^(p−2) / y^(p−1); where x or y is 0, nothing, and nothing is divided by 0, so that the gradient of this
 * is finite too. The extremes share among those that reach them. */
static void grad_norm(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    double p = norm_order(n);
    tn_node *x = n->in[0], *y = with_dims(b, n, tn_b_self(n)), *d = with_dims(b, n, dy), *none = tn_b_const(b, 0, x);
    if (p == 0 || !x || !y) return;
    if (p == 1) {
        grads[0] = tn_b_mul(b, d, tn_b_sign(b, x));
    } else if (isinf(p)) {
        tn_node *reached = tn_b_cast(b, tn_b_eq(b, tn_b_abs(b, x), y), (tn_dtype)x->dtype);
        tn_node *share = tn_b_div(b, d, tn_b_sum(b, reached, dims_of(n), (int)dims_count(n), true));
        grads[0] = tn_b_mul(b, tn_b_mul(b, reached, tn_b_sign(b, x)), share);
    } else {
        tn_node *one = tn_b_const(b, 1, x), *is_none = tn_b_eq(b, y, none);
        tn_node *ratio = tn_b_div(b, x, tn_b_where(b, is_none, one, y));
        if (p != 2) {
            tn_node *size = tn_b_where(b, tn_b_eq(b, x, none), one, tn_b_abs(b, ratio));
            ratio = tn_b_mul(b, tn_b_sign(b, x), tn_b_pow_scalar(b, size, p - 1));
        }
        grads[0] = tn_b_where(b, is_none, none, tn_b_mul(b, d, ratio));
    }
}
OP_CODE(norm, .infer = infer_float_reduce, .compose = compose_norm, .grad = grad_norm,
        .cases =
            "types=f32,f64 tol=1e-5 atol=1e-6; [2,3] p=2 dims=() keepdim=false; [2,3] p=1 dims=(0) keepdim=true;"
            "[2,3] p=inf dims=(1) keepdim=false; [2,3] p=-inf dims=(1) keepdim=false; [2,3] p=3 dims=() keepdim=false;"
            "[2,3] p=0 dims=() keepdim=false; [2,3]@0.5..2 p=0.5 dims=(1) keepdim=true; [3]@0..0 p=2 dims=() "
            "keepdim=false grad=off;"
            "[0] p=2 dims=() keepdim=false");

/* logsumexp(x, dims, keepdim): log Σ exp(x) over dims (TN_ALL: all) without overflow. */
static tn_node *compose_logsumexp(tn_build *b, const tn_node *n) {
    const int64_t *dims = dims_of(n);
    int count = (int)dims_count(n);
    tn_node *x = n->in[0];
    if (!x) return NULL;
    if (reduced_count(n) == 0) return tn_b_log(b, tn_b_sum(b, x, dims, count, keeps_dims(n)));
    tn_node *top = tn_b_amax(b, x, dims, count, true), *infinite = tn_b_const(b, INFINITY, x);
    top = tn_b_where(b, tn_b_lt(b, tn_b_abs(b, top), infinite), top, tn_b_const(b, 0, x));
    tn_node *sum = tn_b_log(b, tn_b_sum(b, tn_b_exp(b, tn_b_sub(b, x, top)), dims, count, true));
    return tn_b_reshape(b, tn_b_add(b, sum, top), n->shape, n->rank);
}
static tn_node *grad_logsumexp(tn_build *b, const tn_node *n, tn_node *dy) {
    tn_node *share = tn_b_exp(b, tn_b_sub(b, n->in[0], with_dims(b, n, tn_b_self(n))));
    return tn_b_mul(b, with_dims(b, n, dy), share);
}
OP_CODE(logsumexp, .to_float = true, .infer = infer_float_reduce, .compose = compose_logsumexp,
        .grad_first = grad_logsumexp,
        .cases = "types=f32,f64 tol=1e-5 atol=1e-6; " REDUCTIONS
                 "; [3]@500..600 dims=() keepdim=false grad=off; [0] dims=() keepdim=false grad=off;"
                 "types=i32,i64,bool; [2,3]@0..1 dims=(1) keepdim=false; [] dims=(0) keepdim=true");

/* ---- composed: truth over dims ----------------------------------------------------------------------------------- */

static tn_node *count_true(tn_build *b, const tn_node *n, tn_node *truth) {
    return tn_b_sum(b, truth, dims_of(n), (int)dims_count(n), keeps_dims(n));
}
#define TRUTHS                                                                                               \
    "types=bool,i32,f32; [2,3]@-1..1 dims=() keepdim=false; [4,3]@0..1 dims=(0) keepdim=true; [2,3,4]@0..1 " \
    "dims=(0,-1) keepdim=false;"                                                                             \
    "[] dims=() keepdim=false; [0,3] dims=(0) keepdim=false"

/* any(x, dims, keepdim): true where any element over dims (TN_ALL: all) is nonzero (true); false over no elements. */
static tn_node *compose_any(tn_build *b, const tn_node *n) {
    return tn_b_cast(b, count_true(b, n, tn_b_cast(b, n->in[0], TN_BOOL)), TN_BOOL);
}
OP_CODE(any, .infer = tn_infer_reduce, .gives = TN_GIVES(TN_BOOL), .compose = compose_any, .cases = TRUTHS);

/* all(x, dims, keepdim): true where all elements over dims (TN_ALL: all) are nonzero (true); true over no elements. */
static tn_node *compose_all(tn_build *b, const tn_node *n) {
    tn_node *falses = count_true(b, n, tn_b_logical_not(b, n->in[0]));
    return tn_b_logical_not(b, falses);
}
OP_CODE(all, .infer = tn_infer_reduce, .gives = TN_GIVES(TN_BOOL), .compose = compose_all, .cases = TRUTHS);

/* count_nonzero(x, dims, keepdim): the number of nonzero (true) elements over dims (TN_ALL: all), as i64. */
static tn_node *compose_count_nonzero(tn_build *b, const tn_node *n) {
    return count_true(b, n, tn_b_cast(b, n->in[0], TN_BOOL));
}
OP_CODE(count_nonzero, .infer = tn_infer_reduce, .gives = TN_GIVES(TN_I64), .compose = compose_count_nonzero,
        .cases = TRUTHS);

/* ---- composed: without NaN --------------------------------------------------------------------------------------- */

static tn_node *without_nan(tn_build *b, tn_node *x) {
    if (!x || !tn_dtype_is_float((tn_dtype)x->dtype)) return x;
    return tn_b_where(b, tn_b_eq(b, x, x), x, tn_b_const(b, 0, x));
}

/* nansum(x, dims, keepdim): the sum over dims (TN_ALL: all) of all elements that are not NaN. */
static tn_node *compose_nansum(tn_build *b, const tn_node *n) {
    return tn_b_sum(b, without_nan(b, n->in[0]), dims_of(n), (int)dims_count(n), keeps_dims(n));
}
static tn_status infer_nansum(tn_infer *c) {
    TRY(tn_infer_reduce(c));
    if (!tn_dtype_is_float((tn_dtype)c->in[0]->dtype)) c->dtype = TN_I64;
    return TN_OK;
}
OP_CODE(nansum, .infer = infer_nansum, .compose = compose_nansum,
        .cases = "types=f32,f64,i32 tol=1e-5 atol=1e-6; [2,3] dims=() keepdim=false; [2,3,4] dims=(0,-1) keepdim=true");

/* nanmean(x, dims, keepdim): the mean over dims (TN_ALL: all) of all elements that are not NaN. */
static tn_node *compose_nanmean(tn_build *b, const tn_node *n) {
    tn_node *x = n->in[0], *sum = tn_b_nansum(b, x, dims_of(n), (int)dims_count(n), keeps_dims(n));
    tn_node *count = tn_b_sum(b, tn_b_eq(b, x, x), dims_of(n), (int)dims_count(n), keeps_dims(n));
    return sum ? tn_b_div(b, sum, tn_b_cast(b, count, (tn_dtype)sum->dtype)) : NULL;
}
OP_CODE(nanmean, .infer = infer_float_reduce, .compose = compose_nanmean,
        .cases = "types=f32,f64 tol=1e-5 atol=1e-6; [2,3] dims=() keepdim=false; [2,3,4] dims=(0,-1) keepdim=true; "
                 "types=i32; error=cast [2] dims=() keepdim=false");

/* ---- composed: one extreme element ------------------------------------------------------------------------------- */

/* The shape of reducing one dim; attributes: dim, keepdim. */
static tn_status infer_one_dim(tn_infer *c) {
    const tn_node *x = c->in[0];
    tn_attrs *given = c->attrs, list = {.n_i = 3, .i = {1, given->i[0], given->i[1]}};
    if (x->rank == 0) list = (tn_attrs){.n_i = 2, .i = {0, given->i[1]}};
    c->attrs = &list;
    tn_status s = infer_extreme(c);
    c->attrs = given;
    TRY(s);
    return tn_infer_dim(c, given->i[0], x->rank, &given->i[0]);
}
static tn_node *compose_chosen(tn_build *b, const tn_node *n, bool greatest) {
    int64_t dim = n->i[0];
    tn_node *x = n->in[0];
    if (x->rank == 0) return tn_b_contiguous(b, x);
    tn_node *where = greatest ? tn_b_argmax(b, x, &dim, 1, true) : tn_b_argmin(b, x, &dim, 1, true);
    tn_node *v = tn_b_gather(b, x, dim, where);
    return keeps_dims(n) ? v : tn_b_contiguous(b, tn_b_squeeze(b, v, &dim, 1));
}
static tn_node *compose_max(tn_build *b, const tn_node *n) { return compose_chosen(b, n, true); }
static tn_node *compose_min(tn_build *b, const tn_node *n) { return compose_chosen(b, n, false); }
#define CHOSEN                                                                                                        \
    "types=f32,f64,i32; [2,3] dim=0 keepdim=false; [2,3] dim=-1 keepdim=true; [2,3,4] dim=1 keepdim=false; [] dim=0 " \
    "keepdim=false;"                                                                                                  \
    "error=element [0,3] dim=0 keepdim=false"

/* max(x, dim, keepdim): the maximum along dim; the gradient goes to the first of equal elements (amax shares it).
 * argmax gives its index. */
OP_CODE(max, .keeps_half = true, .infer = infer_one_dim, .compose = compose_max, .cases = CHOSEN);

/* min(x, dim, keepdim): the minimum along dim; the gradient goes to the first of equal elements (amin shares it).
 * argmin gives its index. */
OP_CODE(min, .keeps_half = true, .infer = infer_one_dim, .compose = compose_min, .cases = CHOSEN);
