/* onnx_math.c — ONNX: arithmetic, comparisons, logic, reductions, products, Einsum.
 *
 * Most rows only name an op of ops.h. Numbers that an operator reads from inputs (axes, k, limits of a range) come
 * from onnx_read_…, which costs nothing if they are constant. Rows state since = 1 if later versions only added dtypes
 * or turned an attribute into an input: the functions accept both. */
#include <math.h>
#include <string.h>

#include "onnx/operator_support.h"
#include "trunnion/functions.h"

static bool math_is_float(const tn_tensor *x) { return tn_dtype_is_float(tn_dtype_of(x)); }

/* Integers of 32 bits and more have roots and logarithms in f64. */
static tn_tensor *widened(const tn_tensor *x) { return tn_cast(x, math_is_float(x) ? tn_dtype_of(x) : TN_F64); }

/* ---- element by element ------------------------------------------------------------------------------------------ */

static tn_status divide_math(onnx_call *c) {
    const tn_tensor *x, *y;
    TRY(onnx_need_first(c, &x, &y));
    return onnx_put(c, 0, math_is_float(x) ? tn_div(x, y) : tn_div_trunc(x, y));
}

static tn_status modulo(onnx_call *c) {
    const tn_tensor *x, *y;
    TRY(onnx_need_first(c, &x, &y));
    return onnx_put(c, 0, onnx_int(c, "fmod", 0) ? tn_fmod(x, y) : tn_remainder(x, y));
}

/* The result has the type of the base. Powers that are known are often 2 or a half, which need no logarithm. */
static tn_status power(onnx_call *c) {
    const tn_tensor *x, *y;
    TRY(onnx_need_first(c, &x, &y));
    tn_dtype t = tn_dtype_of(x);
    if (math_is_float(x) && c->in[1]->fixed != ONNX_VARIES && tn_numel(y) == 1 && tn_rank(y) <= tn_rank(x)) {
        double exponent;
        TRY(onnx_read_float(c, 1, 1, &exponent));
        return onnx_put(c, 0, tn_pow_scalar(x, exponent));
    }
    if (math_is_float(x) || !math_is_float(y)) return onnx_put(c, 0, tn_pow(x, tn_cast(y, t)));
    tn_dtype wide = tn_dtype_size(t) < 4 ? TN_F32 : TN_F64;
    return onnx_put(c, 0, tn_cast(tn_pow(tn_cast(x, wide), tn_cast(y, wide)), t));
}

static tn_status shift(onnx_call *c) {
    const tn_tensor *x, *y;
    TRY(onnx_need_first(c, &x, &y));
    onnx_text way = onnx_string(c, "direction", "");
    if (onnx_is(way, "LEFT")) return onnx_put(c, 0, tn_bitwise_left_shift(x, y));
    if (onnx_is(way, "RIGHT")) return onnx_put(c, 0, tn_bitwise_right_shift(x, y));
    return onnx_refuse(c, "direction '%.*s' is invalid; use LEFT or RIGHT", (int)way.size, way.at);
}

static tn_status is_infinite(onnx_call *c) {
    const tn_tensor *x;
    TRY(onnx_need(c, 0, &x));
    bool above = onnx_int(c, "detect_positive", 1), below = onnx_int(c, "detect_negative", 1);
    if (above && below) return onnx_put(c, 0, tn_isinf(x));
    if (!above && !below) return onnx_put(c, 0, tn_zeros(tn_shape(x), tn_rank(x), TN_BOOL));
    return onnx_put(c, 0, tn_eq_scalar(x, above ? INFINITY : -INFINITY));
}

/* Sum, Mean, Max, Min of any number of tensors. with = 1: the mean. */
static tn_status variadic(onnx_call *c) {
    const tn_tensor *x;
    TRY(onnx_need(c, 0, &x));
    for (int i = 1; i < c->in_count; i++) {
        const tn_tensor *y;
        TRY(onnx_need(c, i, &y));
        x = c->row->binary(x, y);
    }
    return onnx_put_like(c, 0, c->row->with ? tn_div_scalar(x, c->in_count) : x, 0);
}

static bool is_number_or_absent(const onnx_call *c, int i) {
    return !onnx_has(c, i) || (c->in[i]->fixed == ONNX_CONSTANT && tn_numel(c->in[i]->tensor) == 1);
}

/* Bounds are inputs, or attributes before opset 11. The upper one wins. */
static tn_status clip(onnx_call *c) {
    const tn_tensor *x, *low, *high;
    TRY(onnx_need(c, 0, &x));
    if (c->in_count < 2 && (onnx_find(c, "min") || onnx_find(c, "max")))
        return onnx_put(c, 0, tn_clamp(x, onnx_float(c, "min", -INFINITY), onnx_float(c, "max", INFINITY)));
    if (tn_dtype_is_float(tn_dtype_of(x)) && is_number_or_absent(c, 1) && is_number_or_absent(c, 2)) {
        double least, most;
        TRY(onnx_read_float(c, 1, -INFINITY, &least));
        TRY(onnx_read_float(c, 2, INFINITY, &most));
        if (least == least && most == most) return onnx_put_like(c, 0, tn_clamp(x, least, most), 0);
    }
    low = onnx_in(c, 1);
    high = onnx_in(c, 2);
    if (low) x = tn_maximum(x, low);
    if (high) x = tn_minimum(x, high);
    return onnx_put_like(c, 0, x, 0);
}

/* ---- reductions -------------------------------------------------------------------------------------------------- */

enum { SUM, MEAN, PROD, GREATEST, LEAST, L1, L2, LOG_SUM, LOG_SUM_EXP, SUM_SQUARE };

/* The extreme of no numbers: the type's own least or greatest, or infinite. */
static tn_tensor *limit_of(const int64_t *shape, int rank, tn_dtype t, bool greatest) {
    bool is_signed = t == TN_I8 || t == TN_I16 || t == TN_I32 || t == TN_I64;
    if (tn_dtype_is_float(t)) return tn_full(shape, rank, greatest ? INFINITY : -INFINITY, t);
    tn_tensor *least = tn_full(shape, rank, is_signed ? -ldexp(1, (int)(8 * tn_dtype_size(t)) - 1) : 0, t);
    return greatest ? tn_bitwise_not(least) : least;
}

static tn_tensor *math_extreme(const tn_tensor *x, bool greatest, const int64_t *dims, int count, bool keep) {
    int64_t shape[TN_MAX_RANK];
    int rank = 0;
    unsigned reduced = count ? 0 : ~0u;
    bool empty = false;
    for (int k = 0; k < count; k++)
        reduced |= 1u << dims[k];
    for (int d = 0; d < tn_rank(x); d++) {
        bool gone = reduced >> d & 1;
        empty = empty || (gone && tn_size(x, d) == 0);
        if (!gone || keep) shape[rank++] = gone ? 1 : tn_size(x, d);
    }
    tn_dtype t = tn_dtype_of(x);
    if (empty) return limit_of(shape, rank, t, !greatest);
    if (t == TN_BOOL) x = tn_cast(x, TN_U8);
    return tn_cast(greatest ? tn_amax(x, dims, count, keep) : tn_amin(x, dims, count, keep), t);
}

static tn_tensor *reduced(int what, const tn_tensor *x, const int64_t *dims, int count, bool keep) {
    switch (what) {
    case MEAN: return tn_mean(widened(x), dims, count, keep);
    case PROD: return tn_prod(x, dims, count, keep);
    case GREATEST: return math_extreme(x, true, dims, count, keep);
    case LEAST: return math_extreme(x, false, dims, count, keep);
    case L1: return math_is_float(x) ? tn_norm(x, 1, dims, count, keep) : tn_sum(tn_abs(x), dims, count, keep);
    case L2: return tn_norm(widened(x), 2, dims, count, keep);
    case LOG_SUM: return tn_log(tn_sum(widened(x), dims, count, keep));
    case LOG_SUM_EXP: return tn_logsumexp(widened(x), dims, count, keep);
    case SUM_SQUARE: return tn_sum(tn_square(x), dims, count, keep);
    default: return tn_sum(x, dims, count, keep);
    }
}

/* Axes left out mean all, or with noop_with_empty_axes none: then each element is reduced by itself. */
static tn_status reduce(onnx_call *c) {
    const tn_tensor *x;
    int64_t axes[TN_MAX_RANK];
    int count;
    TRY(onnx_need(c, 0, &x));
    TRY(onnx_axes(c, 1, "axes", tn_rank(x), axes, &count));
    tn_dtype t = tn_dtype_of(x);
    bool keep = onnx_int(c, "keepdims", 1) != 0;
    if (count <= 0 && onnx_int(c, "noop_with_empty_axes", 0)) {
        if (c->row->with == SUM || tn_rank(x) == TN_MAX_RANK) return onnx_put_like(c, 0, x, 0);
        axes[0] = tn_rank(x);
        x = tn_unsqueeze(x, -1);
        count = 1;
        keep = false;
    }
    return onnx_put(c, 0, tn_cast(reduced(c->row->with, x, axes, count < 0 ? 0 : count, keep), t));
}

/* with = 1: the least. */
static tn_status arg_extreme(onnx_call *c) {
    const tn_tensor *x;
    int axis;
    TRY(onnx_need(c, 0, &x));
    bool keep = onnx_int(c, "keepdims", 1) != 0, last = onnx_int(c, "select_last_index", 0) != 0;
    if (tn_rank(x) == 0) return onnx_put(c, 0, tn_zeros(NULL, 0, TN_I64));
    TRY(onnx_axis(c, onnx_int(c, "axis", 0), tn_rank(x), &axis));
    int64_t size = tn_size(x, axis), dims[] = {axis};
    if (last) x = tn_slice(x, axis, INT64_MAX, INT64_MIN, -1);
    tn_tensor *place = c->row->with ? tn_argmin(x, dims, 1, keep) : tn_argmax(x, dims, 1, keep);
    return onnx_put(c, 0, last ? tn_sub(tn_scalar_int(size - 1), place) : place);
}

/* with = 1: products. */
static tn_status running(onnx_call *c) {
    const tn_tensor *x;
    int64_t given, pads[2 * TN_MAX_RANK] = {0};
    int axis;
    TRY(onnx_need(c, 0, &x));
    TRY(onnx_read_int(c, 1, 0, &given));
    TRY(onnx_axis(c, given, tn_rank(x), &axis));
    tn_dtype t = tn_dtype_of(x);
    bool reverse = onnx_int(c, "reverse", 0) != 0;
    if (reverse) x = tn_slice(x, axis, INT64_MAX, INT64_MIN, -1);
    tn_tensor *y = c->row->with ? tn_cumprod(x, axis) : tn_cumsum(x, axis);
    if (onnx_int(c, "exclusive", 0) && tn_size(x, axis) > 0) { /* moved on by one; the neutral number comes first */
        int last = 2 * (tn_rank(x) - 1 - axis);
        pads[last] = 1;
        pads[last + 1] = -1;
        y = tn_pad(y, pads, 2 * tn_rank(x), c->row->with);
    }
    if (reverse) y = tn_slice(y, axis, INT64_MAX, INT64_MIN, -1);
    return onnx_put(c, 0, tn_cast(y, t));
}

static tn_status top_k(onnx_call *c) {
    const tn_tensor *x;
    int64_t k = onnx_int(c, "k", 0);
    int axis;
    TRY(onnx_need(c, 0, &x));
    TRY(onnx_read_int(c, 1, k, &k));
    TRY(onnx_axis(c, onnx_int(c, "axis", -1), tn_rank(x), &axis));
    tn_tensor *places = tn_topk_indices(x, k, axis, onnx_int(c, "largest", 1) != 0);
    TRY(onnx_put(c, 0, tn_gather(x, axis, places)));
    return onnx_put(c, 1, places);
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

/* Factors of integers are applied in f64. */
static tn_tensor *math_scaled(const tn_tensor *x, double factor) {
    return tn_cast(tn_mul_scalar(widened(x), factor), tn_dtype_of(x));
}

static tn_status gemm(onnx_call *c) {
    const tn_tensor *x, *y, *z = onnx_in(c, 2);
    TRY(onnx_need_first(c, &x, &y));
    double alpha = onnx_float(c, "alpha", 1), beta = onnx_float(c, "beta", 1);
    bool turn_x = onnx_int(c, "transA", 0) != 0, turn_y = onnx_int(c, "transB", 0) != 0;
    if (beta == 0) z = NULL;
    if (math_is_float(x)) return onnx_put(c, 0, tn_gemm(x, y, z, alpha, beta, turn_x, turn_y));
    tn_tensor *product = tn_matmul(turn_x ? tn_t(x) : x, turn_y ? tn_t(y) : y);
    if (alpha != 1) product = math_scaled(product, alpha);
    return onnx_put(c, 0, z ? tn_add(product, beta == 1 ? z : math_scaled(z, beta)) : product);
}

/* start, start + delta … before limit, counted as if without rounding. */
static tn_status range(onnx_call *c) {
    const tn_tensor *x;
    double v[3];
    TRY(onnx_need(c, 0, &x));
    for (int i = 0; i < 3; i++)
        TRY(onnx_read_float(c, i, 0, &v[i]));
    if (v[2] == 0 || v[2] != v[2]) return onnx_refuse(c, "a step of %g is not supported", v[2]);
    int64_t none[] = {0};
    double count = ceil((v[1] - v[0]) / v[2]);
    if (!(count > 0)) return onnx_put(c, 0, tn_zeros(none, 1, tn_dtype_of(x)));
    return onnx_put(c, 0, tn_arange(v[0], v[1], v[2], tn_dtype_of(x)));
}

/* ==== products with a matrix that chooses rows ==================================================================== */
/* What frameworks write as a look-up may arrive as a comparison of indices with 0, 1, 2 …, a cast to floats and a
 * product. A value of zeros and ones that says so by where it comes from (`choice`) takes the rows themselves: with the
 * product's bits where all of the other factor's numbers are finite, which is looked at once. An index outside chooses
 * nothing, and a sum of zeros is never −0. */

enum {
    MOST_ROWS = 1 << 16,   /* of constants that are read to see whether they count up */
    MOST_NUMBERS = 1 << 22 /* … and whether they are finite */
};

static bool one_hot_is_whole(const tn_tensor *t) { return tn_dtype_of(t) == TN_I32 || tn_dtype_of(t) == TN_I64; }

/* Is input i a constant 0, 1, 2 … along its last dim? */
static bool counts_up(const onnx_call *c, int i) {
    const tn_tensor *t = c->in[i]->tensor;
    int64_t n = tn_numel(t), count = 0;
    AUTO_FREE int64_t *list = NULL;
    if (c->in[i]->fixed != ONNX_CONSTANT || tn_rank(t) < 1 || n < 2 || n > MOST_ROWS || tn_size(t, -1) != n)
        return false;
    bool up = onnx_read_ints(c, i, &list, &count, MOST_ROWS) == TN_OK && count == n;
    for (int64_t k = 0; up && k < n; k++)
        up = list[k] == k;
    return up;
}

/* Are these indices compared with others, one for each row of the result? */
static bool is_index(const tn_tensor *t, const tn_tensor *result) {
    int rank = tn_rank(result);
    if (!one_hot_is_whole(t) || tn_rank(t) != rank || tn_size(t, -1) != 1) return false;
    for (int d = 0; d < rank - 1; d++)
        if (tn_size(t, d) != tn_size(result, d)) return false;
    return true;
}

static tn_status equal_numbers(onnx_call *c) {
    TRY(onnx_binary(c));
    if (!c->out[0] || c->in_count != 2) return TN_OK;
    for (int i = 0; i < 2; i++) {
        bool index = c->in[i]->kind == ONNX_TENSOR && is_index(c->in[i]->tensor, c->out[0]->tensor);
        if (!index || c->in[i]->fixed == ONNX_CONSTANT || !counts_up(c, 1 - i)) continue;
        onnx_value_release(c->out[0]->choice);
        c->out[0]->choice = onnx_value_retain(c->in[i]);
    }
    return TN_OK;
}

/* Texts are equal where their ranks among all are. */
static tn_status equal_texts(onnx_call *c, const onnx_value *x, const onnx_value *y) {
    int64_t all = x->count + y->count;
    AUTO_FREE int64_t *ranks = NULL;
    AUTO_FREE onnx_text *texts = tn_mem_zalloc((size_t)all, sizeof *texts);
    if (!texts) return TN_ERR_MEMORY;
    if (x->count) memcpy(texts, x->strings, (size_t)x->count * sizeof *texts);
    if (y->count) memcpy(texts + x->count, y->strings, (size_t)y->count * sizeof *texts);
    TRY(onnx_text_ranks(texts, all, &ranks));
    tn_tensor *a = tn_from_data(ranks, x->shape, x->rank, TN_I64);
    return onnx_put(c, 0, tn_eq(a, tn_from_data(ranks + x->count, y->shape, y->rank, TN_I64)));
}

static tn_status equal(onnx_call *c) {
    if (onnx_has(c, 0) && onnx_has(c, 1) && c->in[0]->kind == ONNX_STRINGS && c->in[1]->kind == ONNX_STRINGS)
        return equal_texts(c, c->in[0], c->in[1]);
    return equal_numbers(c);
}

static tn_status onnx_cast_choice(onnx_call *c) {
    TRY(onnx_cast(c));
    bool kept = c->in[0]->choice && c->out[0] && tn_dtype_is_float(tn_dtype_of(c->out[0]->tensor));
    if (kept) c->out[0]->choice = onnx_value_retain(c->in[0]->choice);
    return TN_OK;
}

static bool is_finite(const onnx_call *c, int i) {
    enum { UNKNOWN, YES, NO };
    double *list = NULL;
    int64_t count = 0;
    _Atomic uint8_t *known = &c->in[i]->finite;
    if (atomic_load_explicit(known, memory_order_relaxed) == UNKNOWN) {
        bool finite = onnx_read_floats(c, i, &list, &count, MOST_NUMBERS) == TN_OK;
        for (int64_t k = 0; finite && k < count; k++)
            finite = isfinite(list[k]);
        tn_mem_free(list);
        atomic_store_explicit(known, finite ? YES : NO, memory_order_relaxed);
    }
    return atomic_load_explicit(known, memory_order_relaxed) == YES;
}

static bool chooses_rows(const onnx_call *c) {
    if (c->in_count != 2 || !c->in[0] || !c->in[0]->choice || !c->in[1] || c->in[1]->kind != ONNX_TENSOR) return false;
    const tn_tensor *x = c->in[0]->tensor, *y = c->in[1]->tensor;
    return c->in[1]->fixed == ONNX_CONSTANT && tn_rank(y) == 2 && tn_size(y, 0) == tn_size(x, -1) &&
           tn_dtype_of(x) == tn_dtype_of(y) && tn_numel(y) <= MOST_NUMBERS && is_finite(c, 1);
}

static tn_status onnx_product(onnx_call *c) {
    if (!chooses_rows(c)) return onnx_binary(c);
    const tn_tensor *table = c->in[1]->tensor, *index = tn_squeeze(c->in[0]->choice->tensor, &(int64_t){-1}, 1);
    double count = (double)tn_size(table, 0);
    tn_tensor *inside = tn_eq(tn_clamp(index, 0, count - 1), index),
              *row = tn_where(inside, index, onnx_number(count, index));
    table =
        tn_pad(tn_add(table, tn_scalar_int(0)), (int64_t[]){0, 0, 0, 1}, 4, 0); /* a row of zeros for indices outside */
    return onnx_put(c, 0, tn_embedding(row, table));
}

static tn_status einsum(onnx_call *c) {
    enum { MOST = 32 };
    char equation[1024] = {0};
    tn_tensor *x[MOST];
    onnx_text text = onnx_string(c, "equation", "");
    if (c->in_count > MOST) return onnx_refuse(c, "%d operands; the limit is %d", c->in_count, MOST);
    if (text.size >= sizeof equation || (text.size && memchr(text.at, 0, text.size)))
        return onnx_refuse(c, "an equation of %zu characters; at most %zu, none of them 0, are possible", text.size,
                           sizeof equation - 1);
    if (text.size) memcpy(equation, text.at, text.size);
    for (int i = 0; i < c->in_count; i++) {
        const tn_tensor *in;
        TRY(onnx_need(c, i, &in));
        x[i] = (tn_tensor *)(uintptr_t)in;
    }
    return onnx_put(c, 0, tn_einsum(equation, x, c->in_count));
}

// clang-format off
const onnx_op_row onnx_math_ops[] = {
    {"Abs", 1, onnx_unary, .unary = tn_abs},
    {"Acos", 1, onnx_unary, .unary = tn_acos},
    {"Acosh", 1, onnx_unary, .unary = tn_acosh},
    {"Add", 1, onnx_binary, .binary = tn_add},
    {"And", 1, onnx_binary, .binary = tn_logical_and},
    {"ArgMax", 1, .run = arg_extreme},
    {"ArgMin", 1, arg_extreme, .with = 1},
    {"Asin", 1, onnx_unary, .unary = tn_asin},
    {"Asinh", 1, onnx_unary, .unary = tn_asinh},
    {"Atan", 1, onnx_unary, .unary = tn_atan},
    {"Atanh", 1, onnx_unary, .unary = tn_atanh},
    {"BitCast", 1, .run = onnx_bit_cast},
    {"BitShift", 1, .run = shift},
    {"BitwiseAnd", 1, onnx_binary, .binary = tn_bitwise_and},
    {"BitwiseNot", 1, onnx_unary, .unary = tn_bitwise_not},
    {"BitwiseOr", 1, onnx_binary, .binary = tn_bitwise_or},
    {"BitwiseXor", 1, onnx_binary, .binary = tn_bitwise_xor},
    {"Cast", 1, .run = onnx_cast_choice},
    {"CastLike", 1, onnx_cast, .with = 1},
    {"Ceil", 1, onnx_unary, .unary = tn_ceil},
    {"Clip", 1, .run = clip},
    {"Cos", 1, onnx_unary, .unary = tn_cos},
    {"Cosh", 1, onnx_unary, .unary = tn_cosh},
    {"CumProd", 1, running, .with = 1},
    {"CumSum", 1, .run = running},
    {"Det", 1, onnx_unary, .unary = tn_linalg_det},
    {"Div", 1, .run = divide_math},
    {"Einsum", 1, .run = einsum},
    {"Equal", 1, equal, .binary = tn_eq},
    {"Erf", 1, onnx_unary, .unary = tn_erf},
    {"Exp", 1, onnx_unary, .unary = tn_exp},
    {"Floor", 1, onnx_unary, .unary = tn_floor},
    {"Gemm", 1, .run = gemm},
    {"Greater", 1, onnx_binary, .binary = tn_gt},
    {"GreaterOrEqual", 1, onnx_binary, .binary = tn_ge},
    {"IsInf", 1, .run = is_infinite},
    {"IsNaN", 1, onnx_unary, .unary = tn_isnan},
    {"Less", 1, onnx_binary, .binary = tn_lt},
    {"LessOrEqual", 1, onnx_binary, .binary = tn_le},
    {"Log", 1, onnx_unary, .unary = tn_log},
    {"MatMul", 1, onnx_product, .binary = tn_matmul},
    {"Max", 1, variadic, .binary = tn_maximum},
    {"Mean", 1, variadic, .binary = tn_add, .with = 1},
    {"Min", 1, variadic, .binary = tn_minimum},
    {"Mod", 1, .run = modulo},
    {"Mul", 1, onnx_binary, .binary = tn_mul},
    {"Neg", 1, onnx_unary, .unary = tn_neg},
    {"Not", 1, onnx_unary, .unary = tn_logical_not},
    {"Or", 1, onnx_binary, .binary = tn_logical_or},
    {"Pow", 1, .run = power},
    {"Range", 1, .run = range},
    {"Reciprocal", 1, onnx_unary, .unary = tn_reciprocal},
    {"ReduceL1", 1, reduce, .with = L1},
    {"ReduceL2", 1, reduce, .with = L2},
    {"ReduceLogSum", 1, reduce, .with = LOG_SUM},
    {"ReduceLogSumExp", 1, reduce, .with = LOG_SUM_EXP},
    {"ReduceMax", 1, reduce, .with = GREATEST},
    {"ReduceMean", 1, reduce, .with = MEAN},
    {"ReduceMin", 1, reduce, .with = LEAST},
    {"ReduceProd", 1, reduce, .with = PROD},
    {"ReduceSum", 1, reduce, .with = SUM},
    {"ReduceSumSquare", 1, reduce, .with = SUM_SQUARE},
    {"Round", 1, onnx_unary, .unary = tn_round},
    {"Sign", 1, onnx_unary, .unary = tn_sign},
    {"Sin", 1, onnx_unary, .unary = tn_sin},
    {"Sinh", 1, onnx_unary, .unary = tn_sinh},
    {"Sqrt", 1, onnx_unary, .unary = tn_sqrt},
    {"Sub", 1, onnx_binary, .binary = tn_sub},
    {"Sum", 1, variadic, .binary = tn_add},
    {"Tan", 1, onnx_unary, .unary = tn_tan},
    {"Tanh", 1, onnx_unary, .unary = tn_tanh},
    {"TopK", 1, .run = top_k},
    {"Xor", 1, onnx_binary, .binary = tn_logical_xor},
    {.name = NULL},
};
// clang-format on
