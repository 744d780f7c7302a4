/* ops_math.c — arithmetic, comparisons, logic, bits, reductions, products: the rows of onnx_math_ops.
 *
 * Most are a name beside the operation of ops.h. What an operator reads from inputs as numbers (axes, k, bounds of a
 * range) comes through onnx_read_…, so it costs nothing where it is constant. Rows say since = 1 where later versions
 * only added types, or turned an attribute into an input: the functions take either. */
#include <math.h>
#include <string.h>

#include "formats/onnx/operator_support.h"

static bool math_is_float(const tn_tensor *x) { return tn_dtype_is_float(tn_dtype_of(x)); }

/* Integers of 32 bits and more have roots and logarithms in f64. */
static tn_tensor *widened(const tn_tensor *x) { return tn_cast(x, math_is_float(x) ? tn_dtype_of(x) : TN_F64); }

/* ---- element by element ------------------------------------------------------------------------------------------ */

static tn_status divide_math(onnx_call *c) {
    const tn_tensor *x, *y;
    TRY(onnx_need(c, 0, &x));
    TRY(onnx_need(c, 1, &y));
    return onnx_put(c, 0, math_is_float(x) ? tn_div(x, y) : tn_div_trunc(x, y));
}

static tn_status modulo(onnx_call *c) {
    const tn_tensor *x, *y;
    TRY(onnx_need(c, 0, &x));
    TRY(onnx_need(c, 1, &y));
    return onnx_put(c, 0, onnx_int(c, "fmod", 0) ? tn_fmod(x, y) : tn_remainder(x, y));
}

/* The result has the type of the base. Powers that are known are often 2 or a half, which need no logarithm. */
static tn_status power(onnx_call *c) {
    const tn_tensor *x, *y;
    TRY(onnx_need(c, 0, &x));
    TRY(onnx_need(c, 1, &y));
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
    TRY(onnx_need(c, 0, &x));
    TRY(onnx_need(c, 1, &y));
    onnx_text way = onnx_string(c, "direction", "");
    if (onnx_is(way, "LEFT")) return onnx_put(c, 0, tn_bitwise_left_shift(x, y));
    if (onnx_is(way, "RIGHT")) return onnx_put(c, 0, tn_bitwise_right_shift(x, y));
    return onnx_refuse(c, "direction '%.*s'; it is LEFT or RIGHT", (int)way.size, way.at);
}

/* Texts are equal where their ranks among all are. */
static tn_status equal_texts(onnx_call *c, const onnx_value *x, const onnx_value *y) {
    int64_t all = x->count + y->count, *ranks = NULL;
    onnx_text *texts = tn_mem_zalloc((size_t)all, sizeof *texts);
    if (!texts) return TN_ERR_MEMORY;
    if (x->count) memcpy(texts, x->strings, (size_t)x->count * sizeof *texts);
    if (y->count) memcpy(texts + x->count, y->strings, (size_t)y->count * sizeof *texts);
    tn_status status = onnx_text_ranks(texts, all, &ranks);
    if (status == TN_OK) {
        tn_tensor *a = tn_from_data(ranks, x->shape, x->rank, TN_I64);
        status = onnx_put(c, 0, tn_eq(a, tn_from_data(ranks + x->count, y->shape, y->rank, TN_I64)));
    }
    tn_mem_free(ranks);
    tn_mem_free(texts);
    return status;
}

static tn_status equal(onnx_call *c) {
    if (onnx_has(c, 0) && onnx_has(c, 1) && c->in[0]->kind == ONNX_STRINGS && c->in[1]->kind == ONNX_STRINGS)
        return equal_texts(c, c->in[0], c->in[1]);
    return onnx_equal_numbers(c);
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

/* Bounds are inputs, or attributes before opset 11. The upper one wins. */
static tn_status clip(onnx_call *c) {
    const tn_tensor *x, *low, *high;
    TRY(onnx_need(c, 0, &x));
    if (c->in_count < 2 && (onnx_find(c, "min") || onnx_find(c, "max")))
        return onnx_put(c, 0, tn_clamp(x, onnx_float(c, "min", -INFINITY), onnx_float(c, "max", INFINITY)));
    low = onnx_in(c, 1);
    high = onnx_in(c, 2);
    if (low) x = tn_maximum(x, low);
    if (high) x = tn_minimum(x, high);
    return onnx_put_like(c, 0, x, 0);
}

/* ---- reductions -------------------------------------------------------------------------------------------------- */

enum { SUM, MEAN, PROD, GREATEST, LEAST, L1, L2, LOG_SUM, LOG_SUM_EXP, SUM_SQUARE };

/* The extreme of no numbers: the type's own least or greatest, or infinite. */
static double limit_of(tn_dtype t, bool greatest) {
    bool is_signed = t == TN_I8 || t == TN_I16 || t == TN_I32 || t == TN_I64;
    double size = ldexp(1, (int)(8 * tn_dtype_size(t)) - is_signed);
    if (tn_dtype_is_float(t)) return greatest ? INFINITY : -INFINITY;
    if (t == TN_BOOL) return greatest;
    return greatest ? size - (size < 0x1p53) : is_signed ? -size : 0;
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
    if (empty) return tn_full(shape, rank, limit_of(t, !greatest), t);
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
    TRY(onnx_need(c, 0, &x));
    TRY(onnx_need(c, 1, &y));
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
    if (v[2] == 0 || v[2] != v[2]) return onnx_refuse(c, "steps of %g", v[2]);
    int64_t none[] = {0};
    double count = ceil((v[1] - v[0]) / v[2]);
    if (!(count > 0)) return onnx_put(c, 0, tn_zeros(none, 1, tn_dtype_of(x)));
    return onnx_put(c, 0, tn_arange(v[0], v[1], v[2], tn_dtype_of(x)));
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
    {"Einsum", 1, .run = onnx_einsum},
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
