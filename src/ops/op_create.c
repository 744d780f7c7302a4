/* op_create.c — tensors without tensor inputs: constants, patterns, random numbers (Philox-4x32-10). */
#include <math.h>
#include <string.h>

#include "kir/kir_math.h"
#include "ops/ops_common.h"

/* ---- one value --------------------------------------------------------------------------------------------------- */

/* The result's dtype, as the caller gave it. */
static tn_status take_dtype(tn_infer *c, int64_t dtype) {
    if (dtype < 0 || dtype >= TN_PLAIN_DTYPES)
        return tn_fail(TN_ERR_DTYPE, "%s: %lld is not a dtype", c->row->name, (long long)dtype);
    c->dtype = (tn_dtype)dtype;
    return TN_OK;
}

static tn_status infer_made(tn_infer *c) {
    int64_t rank = c->attrs->i[0];
    TRY(take_dtype(c, c->attrs->i[1 + rank]));
    return tn_infer_shape(c, c->attrs->i + 1, rank);
}

/* The value once, and repeated by strides of 0: nothing is stored until it is asked for. */
static tn_node *filled(tn_build *b, const tn_node *n, double v) {
    return tn_b_full(b, n->shape, n->rank, v, (tn_dtype)n->dtype);
}

/* zeros(shape, dtype): a tensor of zeros. */
static tn_node *compose_zeros(tn_build *b, const tn_node *n) { return filled(b, n, 0); }
OP_CODE(zeros, .infer = infer_made, .compose = compose_zeros,
        .cases = "shape=(2,3) dtype=f32; shape=() dtype=i64; shape=(0,3) dtype=bool");

/* ones(shape, dtype): a tensor of ones. */
static tn_node *compose_ones(tn_build *b, const tn_node *n) { return filled(b, n, 1); }
OP_CODE(ones, .infer = infer_made, .compose = compose_ones,
        .cases = "shape=(2,3) dtype=f32; shape=() dtype=i64; shape=(0,3) dtype=bool");

/* zeros_like(x): zeros with x's shape and dtype. */
static tn_node *compose_zeros_like(tn_build *b, const tn_node *n) { return filled(b, n, 0); }
OP_CODE(zeros_like, .keeps_half = true, .infer = tn_infer_same, .compose = compose_zeros_like, .grad = tn_grad_none,
        .cases = "types=f32,i32,bool; [2,3]; []; [0,3]");

/* ones_like(x): ones with x's shape and dtype. */
static tn_node *compose_ones_like(tn_build *b, const tn_node *n) { return filled(b, n, 1); }
OP_CODE(ones_like, .keeps_half = true, .infer = tn_infer_same, .compose = compose_ones_like, .grad = tn_grad_none,
        .cases = "types=f32,i32,bool; [2,3]; []; [0,3]");

/* A number with which a tensor like in[0] is filled. */
static tn_status infer_filled(tn_infer *c) {
    TRY(tn_infer_same(c));
    return tn_need_held(c, c->dtype, "value", c->attrs->f[0]);
}

/* full_like(x, value): `value` everywhere, with x's shape and dtype, which must be able to hold it: see full. */
static tn_node *compose_full_like(tn_build *b, const tn_node *n) { return filled(b, n, n->f[TN_FULL_LIKE_VALUE]); }
OP_CODE(full_like, .keeps_half = true, .infer = infer_filled, .compose = compose_full_like, .grad = tn_grad_none,
        .cases = "types=f32,i32; [2,3] value=7; [] value=-1; [0,3] value=2; "
                 "types=u8; error=hold [2] value=-1");

/* fill(x, value): `value` everywhere, with x's shape and dtype, which must be able to hold it: see full. fill_ writes
 * it into x. */
static tn_node *compose_fill(tn_build *b, const tn_node *n) { return filled(b, n, n->f[TN_FILL_VALUE]); }
OP_CODE(fill, .keeps_half = true, .infer = infer_filled, .compose = compose_fill, .grad = tn_grad_none,
        .cases = "types=f32,i32; [2,3] value=7; types=i8; error=hold [2] value=128");

/* zero(x): zeros with x's shape and dtype; zero_ writes them into x. */
OP_CODE(zero, .keeps_half = true, .infer = tn_infer_same, .compose = compose_zeros_like, .grad = tn_grad_none,
        .cases = "types=f32,i32; [2,3]");

/* ---- sequences and patterns -------------------------------------------------------------------------------------- */

/* linspace(start, end, steps, dtype): `steps` evenly spaced numbers from start to end, both included. For an
 * integer dtype, which must be able to hold start and end, these and the numbers are truncated. */
static tn_status infer_linspace(tn_infer *c) {
    int64_t steps = c->attrs->i[TN_LINSPACE_STEPS];
    int64_t dtype = c->attrs->i[TN_LINSPACE_DTYPE];
    if (dtype < 0 || dtype >= TN_PLAIN_DTYPES || dtype == TN_BOOL)
        return tn_fail(TN_ERR_DTYPE, "linspace: dtype %s is not supported: it must be a float or integer type",
                       tn_dtype_name((tn_dtype)dtype));
    c->dtype = (tn_dtype)dtype;
    TRY(tn_need_held(c, c->dtype, "start", c->attrs->f[TN_LINSPACE_START]));
    TRY(tn_need_held(c, c->dtype, "end", c->attrs->f[TN_LINSPACE_END]));
    return tn_infer_shape(c, &steps, 1);
}
/* From both ends towards the middle, so that both are exact. */
static tn_node *compose_linspace(tn_build *b, const tn_node *n) {
    double start = n->f[TN_LINSPACE_START], end = n->f[TN_LINSPACE_END];
    int64_t steps = n->shape[0];
    if (!tn_dtype_is_float((tn_dtype)n->dtype)) { /* whole ends; what lies between is cut off to whole numbers */
        tn_node *exact = tn_b_linspace(b, trunc(start), trunc(end), steps, TN_F64);
        return tn_b_cast(b, exact, (tn_dtype)n->dtype);
    }
    double step = steps > 1 ? (end - start) / (double)(steps - 1) : 0;
    tn_node *i = tn_b_arange(b, 0, (double)steps, 1, tn_dtype_is_half(n->dtype) ? TN_F32 : (tn_dtype)n->dtype);
    tn_node *rising = tn_b_offset(b, tn_b_scale(b, i, step), start);
    if (!i || steps < 2) return tn_b_cast_like(b, rising, n);
    tn_node *left = tn_b_sub(b, tn_b_const(b, (double)(steps - 1), i), i);
    tn_node *falling = tn_b_sub(b, tn_b_const(b, end, i), tn_b_scale(b, left, step));
    tn_node *near_start = tn_b_lt(b, i, tn_b_const(b, (double)(steps / 2), i));
    return tn_b_cast_like(b, tn_b_where(b, near_start, rising, falling), n);
}
OP_CODE(
    linspace, .infer = infer_linspace, .compose = compose_linspace,
    .cases =
        "start=0 end=1 steps=5 dtype=f32; start=-3 end=3 steps=7 dtype=f64 tol=1e-12; start=2 end=9 steps=1 dtype=f32;"
        "start=0 end=1 steps=0 dtype=f32; start=0.1 end=0.7 steps=11 dtype=f32 tol=1e-6; start=-3.7 end=9.2 steps=7 "
        "dtype=i64; start=0 end=5 steps=11 dtype=i32; error=integer start=0 end=1 steps=3 dtype=bool; error=negative "
        "start=0 end=1 "
        "steps=-1 dtype=f32");

/* row − column of an [n, m] pattern, as i64: [n, 1] − [m]. */
static tn_node *diagonal_number(tn_build *b, int64_t rows, int64_t columns) {
    tn_node *row = tn_b_unsqueeze(b, tn_b_arange(b, 0, (double)rows, 1, TN_I64), 1);
    return tn_b_sub(b, row, tn_b_arange(b, 0, (double)columns, 1, TN_I64));
}

/* eye(n, m, dtype): a matrix with ones on the diagonal and zeros elsewhere. */
static tn_status infer_eye(tn_infer *c) {
    TRY(take_dtype(c, c->attrs->i[TN_EYE_DTYPE]));
    return tn_infer_shape(c, c->attrs->i, 2);
}
static tn_node *compose_eye(tn_build *b, const tn_node *n) {
    tn_node *d = diagonal_number(b, n->shape[0], n->shape[1]);
    return d ? tn_b_cast(b, tn_b_eq(b, d, tn_b_const(b, 0, d)), (tn_dtype)n->dtype) : NULL;
}
OP_CODE(eye, .infer = infer_eye, .compose = compose_eye,
        .cases = "n=3 m=3 dtype=f32; n=2 m=4 dtype=i32; n=0 m=3 dtype=f32; error=negative n=-1 m=2 dtype=f32");

static tn_status infer_triangle(tn_infer *c) {
    char text[96];
    if (c->in[0]->rank < 2)
        return tn_fail(TN_ERR_SHAPE, "%s: %s is not a matrix", c->row->name,
                       tn_shape_text(c->in[0], text, sizeof text));
    return tn_infer_same(c);
}
static tn_node *triangle(tn_build *b, const tn_node *n, bool lower) {
    tn_node *x = n->in[0], *d = diagonal_number(b, x->shape[x->rank - 2], x->shape[x->rank - 1]);
    if (!d) return NULL;
    tn_node *bound = tn_b_const(b, -(double)n->i[0], d);
    tn_node *kept = lower ? tn_b_le(b, bound, d) : tn_b_le(b, d, bound);
    return tn_b_where(b, kept, x, tn_b_const(b, 0, x));
}
static tn_node *compose_tril(tn_build *b, const tn_node *n) { return triangle(b, n, true); }
static tn_node *compose_triu(tn_build *b, const tn_node *n) { return triangle(b, n, false); }
#define TRIANGLES                                                                                                     \
    "types=f32,f64,i32; [3,3] diagonal=0; [2,4] diagonal=1; [2,4,3] diagonal=-1; [0,3] diagonal=0; error=matrix [3] " \
    "diagonal=0"

/* tril(x, diagonal): the lower triangle of matrices; elements above the given diagonal are 0 (diagonal 0: the main one,
 * 1: the one above). */
OP_CODE(tril, .keeps_half = true, .infer = infer_triangle, .compose = compose_tril, .cases = TRIANGLES);

/* triu(x, diagonal): the upper triangle of matrices; elements below the given diagonal are 0 (diagonal 0: the main one,
 * 1: the one above). */
OP_CODE(triu, .keeps_half = true, .infer = infer_triangle, .compose = compose_triu, .cases = TRIANGLES);

/* one_hot(index, classes, dtype): 1 at position index, 0 elsewhere, along a new last dimension of extent `classes`. An
 * index outside [0, classes) is an error (see "Indices" above). */
static tn_status infer_one_hot(tn_infer *c) {
    const tn_node *x = c->in[0];
    TRY(tn_need_integer(c, 0));
    TRY(tn_infer_same(c));
    if (x->rank == TN_MAX_RANK)
        return tn_fail(TN_ERR_SHAPE, "one_hot: the index has rank %d; the result would exceed the maximum rank",
                       x->rank);
    c->shape[c->rank] = c->attrs->i[TN_ONE_HOT_CLASSES];
    c->symbol[c->rank] = 0;
    c->rank++;
    TRY(take_dtype(c, c->attrs->i[TN_ONE_HOT_DTYPE]));
    return tn_infer_shape(c, c->shape, c->rank);
}
static tn_node *compose_one_hot(tn_build *b, const tn_node *n) {
    double count = (double)n->i[TN_ONE_HOT_CLASSES];
    tn_dtype own = (tn_dtype)n->in[0]->dtype;
    tn_node *classes = tn_b_arange(b, 0, count, 1, tn_dtype_holds(own, count) ? own : TN_I64);
    return tn_b_cast(b, tn_b_eq(b, tn_b_unsqueeze(b, n->in[0], -1), classes), (tn_dtype)n->dtype);
}
OP_CODE(one_hot, .infer = infer_one_hot, .compose = compose_one_hot,
        .cases = "types=i64,i32; [4]@0..4 classes=5 dtype=f32; [2,3]@0..2 classes=3 dtype=i64; []@0..1 classes=2 "
                 "dtype=f32; types=f32; error=integer [2] classes=2 dtype=f32");

/* ---- repeated, joined, turned ------------------------------------------------------------------------------------ */

/* stack(tensors, dim): tensors of equal shape joined along a new dimension dim. */
static tn_status infer_stack(tn_infer *c) {
    char a[96], b[96];
    int64_t dim;
    if (c->n_in == 0) return tn_fail(TN_ERR_ARGUMENT, "stack: the list of tensors is empty");
    const tn_node *x = c->in[0];
    for (int i = 1; i < c->n_in; i++)
        if (c->in[i]->rank != x->rank || memcmp(c->in[i]->shape, x->shape, (size_t)x->rank * sizeof *x->shape) != 0)
            return tn_fail(TN_ERR_SHAPE, "stack: shapes %s and %s differ", tn_shape_text(x, a, sizeof a),
                           tn_shape_text(c->in[i], b, sizeof b));
    if (x->rank == TN_MAX_RANK)
        return tn_fail(TN_ERR_SHAPE, "stack: the tensors have rank %d; the result would exceed the maximum rank",
                       x->rank);
    TRY(tn_infer_dim(c, c->attrs->i[0], x->rank + 1, &dim));
    c->attrs->i[0] = dim;
    TRY(tn_infer_same(c));
    for (int64_t d = c->rank; d > dim; d--) {
        c->shape[d] = c->shape[d - 1];
        c->symbol[d] = c->symbol[d - 1];
    }
    c->shape[dim] = c->n_in;
    c->symbol[dim] = 0;
    c->rank++;
    return TN_OK;
}
static tn_node *compose_stack(tn_build *b, const tn_node *n) {
    tn_node *parts[UINT8_MAX];
    for (int i = 0; i < n->n_in; i++)
        parts[i] = tn_b_unsqueeze(b, n->in[i], n->i[0]);
    return b->status == TN_OK ? tn_b_cat(b, parts, n->n_in, n->i[0]) : NULL;
}
OP_CODE(stack, .keeps_half = true, .promote = true, .infer = infer_stack, .compose = compose_stack,
        .cases = "types=f32,f64,i32; [2,3] [2,3] dim=0; [2] [2] [2] dim=-1; [] [] dim=0; "
                 "[2,3] dim=1; error=differ [2] [3] dim=0");

/* repeat(x, repeats): x repeated repeats[d] times along dimension d. If repeats has more entries than x dimensions, the
 * first ones are new dimensions. */
static tn_status infer_repeat(tn_infer *c) {
    const tn_node *x = c->in[0];
    int64_t count = c->attrs->i[0], shape[2 * TN_MAX_RANK];
    const int64_t *repeats = c->attrs->i + 1;
    if (count < x->rank)
        return tn_fail(TN_ERR_SHAPE, "%s: %lld numbers for a tensor of rank %d: pass one per dimension", c->row->name,
                       (long long)count, x->rank);
    for (int64_t d = 0; d < count; d++) {
        shape[d] = d < count - x->rank ? 1 : x->shape[d - (count - x->rank)];
        if (tn_mul_overflow(shape[d], repeats[d], &shape[d]))
            return tn_fail(TN_ERR_SHAPE, "%s: the result is too large", c->row->name);
    }
    TRY(tn_infer_shape(c, shape, count));
    c->dtype = (tn_dtype)x->dtype;
    return TN_OK;
}
/* One dimension: put a repeated dimension before it, and join both. */
static tn_node *repeat_one(tn_build *b, tn_node *x, int d, int64_t times) {
    int64_t shape[TN_MAX_RANK + 1];
    if (!x) return NULL;
    int rank = x->rank;
    memcpy(shape, x->shape, (size_t)d * sizeof *shape);
    shape[d] = times;
    memcpy(shape + d + 1, x->shape + d, (size_t)(rank - d) * sizeof *shape);
    tn_node *wide = tn_b_expand(b, tn_b_unsqueeze(b, x, d), shape, rank + 1);
    shape[d + 1] *= times;
    memmove(shape + d, shape + d + 1, (size_t)(rank - d) * sizeof *shape);
    return tn_b_reshape(b, wide, shape, rank);
}
static tn_node *compose_repeat(tn_build *b, const tn_node *n) {
    int64_t shape[TN_MAX_RANK];
    int extra = n->rank - n->in[0]->rank;
    for (int d = 0; d < n->rank; d++)
        shape[d] = d < extra ? 1 : n->in[0]->shape[d - extra];
    tn_node *x = tn_b_reshape(b, n->in[0], shape, n->rank);
    for (int d = 0; d < n->rank; d++) {
        int64_t times = n->i[1 + d];
        if (times == 1 || !x) continue;
        if (shape[d] != 1) {
            x = repeat_one(b, x, d, times);
            continue;
        }
        memcpy(shape, x->shape, (size_t)n->rank * sizeof *shape);
        shape[d] = times;
        x = tn_b_expand(b, x, shape, n->rank);
    }
    return tn_b_contiguous(b, x);
}
OP_CODE(repeat, .keeps_half = true, .infer = infer_repeat, .compose = compose_repeat,
        .cases = "types=f32,f64,i32; [3] repeats=(2); [2,3] repeats=(2,3); [2,1] "
                 "repeats=(1,4); [3] repeats=(2,2); [2,3] repeats=(0,1);"
                 "[] repeats=(3); error=dimension [2,3] repeats=(2)");

/* tile(x, repeats): repeat, with repeats padded by leading ones up to the rank of x. */
static tn_status infer_tile(tn_infer *c) {
    tn_attrs *a = c->attrs;
    int64_t missing = c->in[0]->rank - a->i[0];
    if (missing > 0) {
        memmove(a->i + 1 + missing, a->i + 1, (size_t)a->i[0] * sizeof *a->i);
        for (int64_t k = 0; k < missing; k++)
            a->i[1 + k] = 1;
        a->i[0] += missing;
        a->n_i = (uint8_t)(a->n_i + missing);
    }
    return infer_repeat(c);
}
static tn_node *compose_tile(tn_build *b, const tn_node *n) { return tn_b_repeat(b, n->in[0], n->i + 1, (int)n->i[0]); }
OP_CODE(tile, .keeps_half = true, .infer = infer_tile, .compose = compose_tile,
        .cases = "types=f32,i32; [2,3] repeats=(2); [2,3] repeats=(2,2); [2] repeats=(2,1)");

/* flip(x, dims): x with the order of elements reversed along dims; a copy. */
static tn_status infer_flip(tn_infer *c) {
    int64_t *dims = c->attrs->i + 1;
    for (int64_t k = 0; k < c->attrs->i[0]; k++) {
        TRY(tn_infer_dim(c, dims[k], c->in[0]->rank, &dims[k]));
        for (int64_t j = 0; j < k; j++)
            if (dims[j] == dims[k]) return tn_fail(TN_ERR_SHAPE, "flip: dim %lld is given twice", (long long)dims[k]);
    }
    return tn_infer_same(c);
}
static tn_node *compose_flip(tn_build *b, const tn_node *n) {
    tn_node *x = n->in[0];
    for (int64_t k = 0; k < n->i[0] && n->rank > 0; k++)
        x = tn_b_slice(b, x, n->i[1 + k], INT64_MAX, INT64_MIN, -1);
    return tn_b_contiguous(b, x);
}
OP_CODE(flip, .keeps_half = true, .infer = infer_flip, .compose = compose_flip,
        .cases = "types=f32,f64,i32; [5] dims=(0); [2,3] dims=(0,1); [2,3] dims=(-1); [0,3] "
                 "dims=(0); [] dims=(); error=range [2] dims=(1); error=twice [2,3] dims=(0,-2)");

/* roll(x, shifts, dims): x shifted by shifts[k] along dims[k]; elements that leave at the end re-enter at the
 * beginning. */
static tn_status infer_roll(tn_infer *c) {
    int64_t *shifts = c->attrs->i, *dims = shifts + 1 + shifts[0];
    if (shifts[0] != dims[0])
        return tn_fail(TN_ERR_ARGUMENT, "roll: %lld shifts but %lld dims; pass equally many", (long long)shifts[0],
                       (long long)dims[0]);
    if (c->in[0]->rank == 0 && dims[0] > 0)
        return tn_fail(TN_ERR_SHAPE, "roll: dim %lld is given, but the tensor has no dimensions", (long long)dims[1]);
    for (int64_t k = 0; k < dims[0]; k++)
        TRY(tn_infer_dim(c, dims[1 + k], c->in[0]->rank, &dims[1 + k]));
    return tn_infer_same(c);
}
static tn_node *compose_roll(tn_build *b, const tn_node *n) {
    const int64_t *shifts = n->i + 1, *dims = n->i + 2 + n->i[0];
    tn_node *x = n->in[0];
    for (int64_t k = 0; k < n->i[0] && n->rank > 0; k++) {
        int64_t size = n->shape[dims[k]];
        int64_t shift = size ? ((shifts[k] % size) + size) % size : 0;
        if (shift == 0) continue;
        tn_node *parts[2] = {tn_b_slice(b, x, dims[k], size - shift, size, 1),
                             tn_b_slice(b, x, dims[k], 0, size - shift, 1)};
        x = b->status == TN_OK ? tn_b_cat_few(b, parts, 2, dims[k]) : NULL;
    }
    return x == n->in[0] ? tn_b_contiguous(b, x) : x;
}
OP_CODE(roll, .keeps_half = true, .infer = infer_roll, .compose = compose_roll,
        .cases = "types=f32,f64,i32; [5] shifts=(2) dims=(0); [2,3] shifts=(-1,1) "
                 "dims=(0,-1); [4] shifts=(4) dims=(0); [0] shifts=(1) dims=(0);"
                 "error=shifts [4] shifts=(1,2) dims=(0); error=dimensions [] shifts=(0) dims=(0)");

/* ==== random numbers ============================================================================================== */
/* One primitive yields 32 random bits an element: Philox keyed with the seed, at a counter that begins at the
 * recorder's next free number. Seed and counter are runtime scalars, so new numbers make no new plan, a captured graph
 * moves on by as many as it used at every launch, and whatever a backward pass needs again (a dropout mask) is computed
 * again instead of kept. The same numbers come from every device and any number of threads. The public functions take a
 * run of counters and record. */

/* ---- bits -------------------------------------------------------------------------------------------------------- */

/* Attributes: skip (numbers left out between the counter and the first element), shape. */
static tn_status infer_random_bits(tn_infer *c) {
    c->dtype = TN_U32;
    return tn_infer_shape(c, c->attrs->i + 2, c->attrs->i[1]);
}

/* The element's number in row-major order. */
static kir_aff flat_index(tn_lower *lw, const tn_node *n, const kir_aff *at) {
    kir_aff flat = kir_aff_const(0);
    for (int d = 0; d < n->rank; d++) {
        flat = tn_aff_scale(lw, &flat, n->shape[d]);
        flat = tn_aff_add(lw, &flat, &at[d]);
    }
    return flat;
}

static kir_val lower_random_bits(tn_lower *lw, const tn_node *n, const kir_aff *at) {
    kir_builder *kb = lw->kb;
    kir_aff flat = flat_index(lw, n, at);
    kir_val skip = kir_whole(kb, n->i[TN_RANDOM_BITS_SKIP]);
    kir_val first = kir_add(kb, tn_lower_in(lw, n, 1, at), skip);
    kir_val counter = kir_add(kb, first, kir_index(kb, &flat));
    kir_val key = tn_lower_in(lw, n, 0, at);
    return kir_philox(kb, kir_bitcast(kb, KIR_U64, key), kir_bitcast(kb, KIR_U64, counter));
}

static void reference_random_bits(const tn_reference *r) {
    int64_t count = tn_node_numel(r->node);
    uint64_t key = (uint64_t)(int64_t)r->in[0][0];
    uint64_t first = (uint64_t)((int64_t)r->in[1][0] + r->node->i[TN_RANDOM_BITS_SKIP]);
    for (int64_t i = 0; i < count; i++)
        r->out[i] = kir_philox_u32(key, first + (uint64_t)i);
}

/* random_bits(key, counter, skip, shape): 32 random bits an element: Philox of key at counter
 * + skip + the element's number. */
OP_CODE(random_bits, .facts = TN_FACT_SOURCE | TN_FACT_RANDOM, .class_ = TN_ELEMENTWISE, .infer = infer_random_bits,
        .lower = lower_random_bits, .reference = reference_random_bits,
        .cases = "[]:i64@0..99 []:i64@0..99 skip=0 shape=(2,3,5); []:i64@0..9 []:i64@0..9 skip=7 shape=();"
                 "[]:i64@0..9 []:i64@0..9 skip=0 shape=(0,4); []:i64@0..9 []:i64@0..9 skip=3 shape=(1300)",
        .flops = 60);

/* ---- distributions ----------------------------------------------------------------------------------------------- */

/* The upper 24 bits, all that an f32 holds, over 2^24. */
static tn_node *uniform(tn_build *b, tn_node *key, tn_node *counter, int64_t skip, const int64_t *shape, int rank) {
    tn_node *bits = tn_b_random_bits(b, key, counter, skip, shape, rank);
    tn_node *upper = tn_b_bitwise_right_shift(b, bits, tn_b_const(b, 8.0, bits));
    return tn_b_scale(b, tn_b_cast(b, upper, TN_F32), 0x1p-24);
}

static tn_node *compose_random_uniform(tn_build *b, const tn_node *n) {
    return uniform(b, n->in[0], n->in[1], n->i[TN_RANDOM_UNIFORM_SKIP], n->shape, n->rank);
}

/* random_uniform(key, counter, skip, shape): f32 in [0, 1) of random_bits. */
OP_CODE(random_uniform, .facts = TN_FACT_RANDOM, .infer = infer_random_bits, .gives = TN_GIVES(TN_F32),
        .compose = compose_random_uniform,
        .cases = "[]:i64@0..99 []:i64@0..99 skip=0 shape=(2,3,5); []:i64@0..9 []:i64@0..9 skip=7 shape=(); "
                 "[]:i64@0..9 []:i64@0..9 skip=0 shape=(0,4)");

/* Attributes: only the shape. */
static tn_status infer_random_normal(tn_infer *c) {
    c->dtype = TN_F32;
    return tn_infer_shape(c, c->attrs->i + 1, c->attrs->i[0]);
}

/* sqrt(-2 log(1 - u)) · cos(2π v): u < 1, so the logarithm is finite. Uses two numbers an element. */
static tn_node *compose_random_normal(tn_build *b, const tn_node *n) {
    tn_node *u = uniform(b, n->in[0], n->in[1], 0, n->shape, n->rank);
    tn_node *v = uniform(b, n->in[0], n->in[1], tn_node_numel(n), n->shape, n->rank);
    tn_node *tail = tn_b_sub(b, tn_b_const(b, 1.0, u), u);
    tn_node *radius = tn_b_sqrt(b, tn_b_scale(b, tn_b_log(b, tail), -2.0));
    return tn_b_mul(b, radius, tn_b_cos(b, tn_b_scale(b, v, 2.0 * M_PI)));
}

/* random_normal(key, counter, shape): f32 with mean 0 and variance 1. Source: Box and Muller 1958. */
OP_CODE(random_normal, .facts = TN_FACT_RANDOM, .infer = infer_random_normal, .compose = compose_random_normal,
        .cases = "tol=4e-6 atol=4e-6; []:i64@0..99 []:i64@0..99 shape=(2,3,50); []:i64@0..9 []:i64@0..9 shape=()");

static tn_status infer_random_integers(tn_infer *c) {
    int64_t low = c->attrs->i[TN_RANDOM_INTEGERS_LOW], high = c->attrs->i[TN_RANDOM_INTEGERS_HIGH], span;
    if (tn_add_overflow(high, -low, &span) || span < 1 || span > INT64_C(1) << 32)
        return tn_fail(TN_ERR_ARGUMENT, "randint: the range from %lld to below %lld must contain 1 to 2^32 numbers",
                       (long long)low, (long long)high);
    c->dtype = TN_I64;
    return tn_infer_shape(c, c->attrs->i + TN_RANDOM_INTEGERS_SHAPE + 1, c->attrs->i[TN_RANDOM_INTEGERS_SHAPE]);
}

/* low + ⌊bits · span / 2^32⌋: each number's share of 2^32 differs by at most one. */
static tn_node *compose_random_integers(tn_build *b, const tn_node *n) {
    int64_t low = n->i[TN_RANDOM_INTEGERS_LOW], span = n->i[TN_RANDOM_INTEGERS_HIGH] - low;
    tn_node *bits = tn_b_cast(b, tn_b_random_bits(b, n->in[0], n->in[1], 0, n->shape, n->rank), TN_U64);
    tn_node *scaled = tn_b_mul(b, bits, tn_b_const(b, (double)span, bits));
    tn_node *upper = tn_b_bitwise_right_shift(b, scaled, tn_b_const(b, 32.0, scaled));
    return tn_b_offset(b, tn_b_cast(b, upper, TN_I64), (double)low);
}

/* random_integers(key, counter, low, high, shape): i64 from low to below high, all equally likely. */
OP_CODE(random_integers, .facts = TN_FACT_RANDOM, .infer = infer_random_integers, .compose = compose_random_integers,
        .cases = "[]:i64@0..99 []:i64@0..99 low=-3 high=4 shape=(2,30); "
                 "error=range []:i64@0..9 []:i64@0..9 low=2 high=2 shape=(3)");

static tn_status infer_bernoulli_by(tn_infer *c) {
    TRY(tn_need_float(c, 0));
    return tn_infer_same(c);
}

static tn_node *compose_bernoulli_by(tn_build *b, const tn_node *n) {
    tn_node *u = uniform(b, n->in[1], n->in[2], 0, n->shape, n->rank), *p = tn_b_cast(b, n->in[0], TN_F32);
    if (!p) return NULL;
    tn_node *valid = tn_b_logical_and(b, tn_b_le(b, tn_b_const(b, 0, p), p), tn_b_le(b, p, tn_b_const(b, 1, p)));
    tn_node *drawn = tn_b_cast(b, tn_b_lt(b, u, p), TN_F32);
    return tn_b_cast_like(b, tn_b_where(b, valid, drawn, tn_b_const(b, NAN, p)), n);
}

static void no_gradient(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) { tn_grad_none(b, n, dy, grads); }

/* bernoulli_by(p, key, counter): 1 with probability p, else 0, in p's dtype; NaN where p is not in [0, 1]. */
OP_CODE(bernoulli_by, .facts = TN_FACT_RANDOM, .keeps_half = true, .infer = infer_bernoulli_by,
        .compose = compose_bernoulli_by, .grad = no_gradient,
        .cases = "types=f32,f64 grad=off; [7,9]@0..1 []:i64@0..99 []:i64@0..99; "
                 "error=floating [3]:i64 []:i64@0..9 []:i64@0..9");

/* ---- dropout ----------------------------------------------------------------------------------------------------- */

static tn_status infer_dropout_by(tn_infer *c) {
    double p = c->attrs->f[TN_DROPOUT_BY_P];
    if (!(p >= 0.0 && p <= 1.0)) return tn_fail(TN_ERR_ARGUMENT, "dropout: p is %g; it must lie in [0, 1]", p);
    TRY(tn_need_float(c, 0));
    return tn_infer_same(c);
}

/* What x is multiplied with: 0 with probability p, else 1/(1 - p). */
static tn_node *dropout_mask(tn_build *b, const tn_node *n) {
    double p = n->f[TN_DROPOUT_BY_P];
    tn_node *u = uniform(b, n->in[1], n->in[2], 0, n->shape, n->rank);
    tn_node *dropped = tn_b_lt(b, u, tn_b_const(b, p, u));
    tn_node *kept = tn_b_const(b, p < 1.0 ? 1.0 / (1.0 - p) : 0.0, n);
    return tn_b_where(b, dropped, tn_b_const(b, 0.0, n), kept);
}

static tn_node *compose_dropout_by(tn_build *b, const tn_node *n) { return tn_b_mul(b, n->in[0], dropout_mask(b, n)); }

static tn_node *grad_dropout_by(tn_build *b, const tn_node *n, tn_node *dy) {
    return tn_b_mul(b, dy, dropout_mask(b, n));
}

/* dropout_by(x, key, counter, p): x with each element 0 with probability p, the others times 1/(1 - p). */
OP_CODE(dropout_by, .facts = TN_FACT_RANDOM, .infer = infer_dropout_by, .compose = compose_dropout_by,
        .grad_first = grad_dropout_by,
        .cases = "types=f32,f64 tol=1e-6; [4,5] []:i64@0..99 []:i64@0..99 p=0.3; [4,5] []:i64@0..9 []:i64@0..9 p=1; "
                 "error=lie [3] []:i64@0..9 []:i64@0..9 p=1.5; error=floating [3]:i64 []:i64@0..9 []:i64@0..9 p=0.5");

/* ---- the public functions: a run of counters, then a record ------------------------------------------------------ */

/* The seed of a thread that was given none. The first such thread to ask has seed 0, so a program with one thread needs
 * no thought; each further one gets a number of its own, else all threads would draw the same numbers. A thread keeps
 * its seed when its recorder is dropped. */
static uint64_t own_seed(void) {
    static _Atomic uint64_t threads;
    static _Thread_local uint64_t number; /* from 1; 0: not yet given */
    if (!number) number = 1 + atomic_fetch_add_explicit(&threads, 1, memory_order_relaxed);
    if (number == 1) return 0;
    /* SplitMix64 (Steele, Lea, Flood 2014): far from the small numbers that people choose as seeds */
    uint64_t z = (number - 1) * UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

tn_recorder *tn_random_here(void) {
    tn_recorder *r = tn_recorder_here();
    if (!r || r->seeded) return r;
    r->seed = own_seed();
    r->seeded = true;
    return r;
}

void tn_set_random_state(tn_random_state state) {
    tn_recorder *r = tn_recorder_here();
    if (!r) return;
    r->seed = state.seed;
    r->random_offset = state.offset;
    r->reseeds++;
    r->seeded = true;
}

void tn_manual_seed(uint64_t seed) { tn_set_random_state((tn_random_state){.seed = seed}); }

tn_random_state tn_get_random_state(void) {
    const tn_recorder *r = tn_random_here();
    return r ? (tn_random_state){r->seed, r->random_offset} : (tn_random_state){0};
}

static tn_tensor *scalar(int64_t kind, int64_t value, int64_t count) {
    tn_attrs a = {.n_i = 3, .n_f = 1};
    a.i[TN_RUNTIME_SCALAR_KIND] = kind;
    a.i[TN_RUNTIME_SCALAR_VALUE] = value;
    a.i[TN_RUNTIME_SCALAR_COUNT] = count;
    return tn_record(TN_OP_RUNTIME_SCALAR, NULL, 0, &a);
}

/* Seed, and a range of `count` counters that is used once. */
typedef struct draw {
    tn_tensor *key, *counter;
} draw;

static draw draw_numbers(int64_t count) {
    tn_recorder *r = tn_random_here();
    draw d = {0};
    if (!r) return d;
    d.key = scalar(TN_SCALAR_SEED, (int64_t)r->seed, 0);
    d.counter = scalar(TN_SCALAR_RANDOM, (int64_t)r->random_offset, count);
    r->random_offset += (uint64_t)count;
    return d;
}

static void draw_free(draw d) {
    tn_free(d.key);
    tn_free(d.counter);
}

/* The attributes `before` and a shape; TN_ERR_ARGUMENT if it is not a list, TN_ERR_SHAPE for a negative extent. */
static tn_status put_shape(tn_attrs *a, const char *op, const int64_t *shape, int rank) {
    if (rank < 0 || rank > TN_MAX_RANK || (rank && !shape))
        return tn_fail(TN_ERR_ARGUMENT, "%s: the shape has %d extents; 0 to %d are supported", op, rank, TN_MAX_RANK);
    a->i[a->n_i++] = rank;
    for (int d = 0; d < rank; d++) {
        if (shape[d] < 0)
            return tn_fail(TN_ERR_SHAPE, "%s: extent %lld of dimension %d is negative", op, (long long)shape[d], d);
        a->i[a->n_i++] = shape[d];
    }
    return TN_OK;
}

/* Elements of a shape that may still be too large: then the op says so, and no number is used. */
static int64_t element_count(const int64_t *shape, int rank) {
    int64_t count = 1;
    for (int d = 0; d < rank; d++)
        if (tn_mul_overflow(count, shape[d], &count)) return 0;
    return count > INT64_MAX / 8 ? 0 : count;
}

/* Records op(key, counter; attributes of a, shape), which uses `each` numbers an element. */
static tn_tensor *record_shaped(int op, const char *name, tn_attrs a, const int64_t *shape, int rank, int64_t each) {
    tn_status s = put_shape(&a, name, shape, rank);
    if (s != TN_OK) return tn_tensor_error(s);
    draw d = draw_numbers(each * element_count(shape, rank));
    if (!d.key) return tn_tensor_error(TN_ERR_MEMORY);
    tn_tensor *t = tn_record(op, (const tn_tensor *const[]){d.key, d.counter}, 2, &a);
    draw_free(d);
    return t;
}

/* Records op(x, key, counter; a), which uses one number an element of x. */
static tn_tensor *record_on(int op, const tn_tensor *x, const tn_attrs *a) {
    draw d = draw_numbers(tn_numel(x));
    if (!d.key) return tn_tensor_error(TN_ERR_MEMORY);
    tn_tensor *t = tn_record(op, (const tn_tensor *const[]){x, d.key, d.counter}, 3, a);
    draw_free(d);
    return t;
}

/* y · factor + offset */
static tn_tensor *moved(tn_tensor *y, double factor, double offset) {
    return (tn_add)((tn_mul)(y, tn_scalar(factor)), tn_scalar(offset));
}

/* rand(shape): f32, uniform in [0, 1). */
tn_tensor *(tn_rand)(const int64_t *shape, int rank) {
    return record_shaped(TN_OP_RANDOM_UNIFORM, "rand", (tn_attrs){.n_i = 1}, shape, rank, 1);
}

/* uniform(low, high, shape): f32, uniform in [low, high). */
tn_tensor *(tn_uniform)(double low, double high, const int64_t *shape, int rank) {
    if (!(low <= high) || !isfinite(high - low))
        return tn_tensor_error(
            tn_fail(TN_ERR_ARGUMENT,
                    "uniform: low is %g and high %g; both must be finite, and low must not exceed high", low, high));
    TN_FUNCTION("uniform");
    return tn_keep(moved((tn_rand)(shape, rank), high - low, low));
}

/* randn(shape): f32, normally distributed with mean 0 and variance 1. */
tn_tensor *(tn_randn)(const int64_t *shape, int rank) {
    return record_shaped(TN_OP_RANDOM_NORMAL, "randn", (tn_attrs){0}, shape, rank, 2);
}

/* normal(mean, std, shape): f32, normally distributed. */
tn_tensor *(tn_normal)(double mean, double std, const int64_t *shape, int rank) {
    if (!(std >= 0.0))
        return tn_tensor_error(tn_fail(TN_ERR_ARGUMENT, "normal: std is %g; it must be at least 0", std));
    TN_FUNCTION("normal");
    return tn_keep(moved((tn_randn)(shape, rank), std, mean));
}

/* randint(low, high, shape): i64, uniform from low to below high (at most 2^32 numbers). */
tn_tensor *(tn_randint)(int64_t low, int64_t high, const int64_t *shape, int rank) {
    return record_shaped(TN_OP_RANDOM_INTEGERS, "randint", (tn_attrs){.n_i = 2, .i = {low, high}}, shape, rank, 1);
}

/* randperm(n): the numbers 0 … n - 1 in random order, as i64. */
tn_tensor *(tn_randperm)(int64_t n) {
    if (n < 0)
        return tn_tensor_error(tn_fail(TN_ERR_SHAPE, "randperm: n is %lld; it must be at least 0", (long long)n));
    AUTO_TENSOR tn_tensor *bits = record_shaped(TN_OP_RANDOM_BITS, "randperm", (tn_attrs){.n_i = 1}, &n, 1, 1);
    return (tn_argsort)(bits, 0, false);
}

/* bernoulli(p): 1 with probability p, else 0, element by element, in p's dtype; NaN where p is not in [0, 1]. No
 * gradient. */
tn_tensor *(tn_bernoulli)(const tn_tensor *p) {
    if (!p) return tn_tensor_error(tn_fail(TN_ERR_ARGUMENT, "bernoulli: the tensor is NULL"));
    TN_FUNCTION("bernoulli");
    return tn_keep(record_on(TN_OP_BERNOULLI_BY, p, &(tn_attrs){0}));
}

/* dropout(x, p, training): in training, each element 0 with probability p and the others times 1/(1 - p); else x
 * itself. The mask is not kept for the backward pass but drawn again. Source: Srivastava et al. 2014. */
tn_tensor *(tn_dropout)(const tn_tensor *x, double p, bool training) {
    if (!x) return tn_tensor_error(tn_fail(TN_ERR_ARGUMENT, "dropout: the tensor is NULL"));
    if (!(p >= 0.0 && p <= 1.0))
        return tn_tensor_error(tn_fail(TN_ERR_ARGUMENT, "dropout: p is %g; it must lie in [0, 1]", p));
    tn_attrs a = {.n_f = 1, .f = {p}};
    if (training && p != 0.0) return record_on(TN_OP_DROPOUT_BY, x, &a);
    return (tn_view_as)(x, x);
}
