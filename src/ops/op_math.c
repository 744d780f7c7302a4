/* op_math.c — element-wise functions: pow, exp2, log2, log10, atan, atan2 as primitives; all others composed. */
#include <math.h>

#include "ops/ops_common.h"

/* ==== primitives ================================================================================================== */
/* The kernel language has exp and log, good to two units in the last place. That is not enough for a power: an error in
 * log x is multiplied by y and then becomes a relative error of the result. So log2 is computed here as an unevaluated
 * sum of two numbers of the type itself (no wider type is needed, so every device can do it), from the series
 *     log2 m = 2/ln 2 · (s + s³/3 + s⁵/5 + …),  s = (m − 1)/(m + 1),  √½ ≤ m < √2,
 * whose first term is exact to twice the precision. The series for atan is Taylor's, after reduction to |t| ≤ tan(π/8).
 * Both are cut where the first term left out is below the rounding error. */

/* ---- a little arithmetic ----------------------------------------------------------------------------------------- */

/* A value as hi + lo, |lo| far below |hi|. */
typedef struct pair {
    kir_val hi, lo;
} pair;

/* What differs between f32 and f64. */
typedef struct float_layout {
    kir_type type, bits;
    int mantissa; /* bits after the point */
    int64_t bias;
    int64_t root_half; /* the pattern of √½ */
    double least;      /* least normal number */
    int log_terms, atan_terms;
    double far;        /* 2^x is 0 or infinite for this exponent; half of it is a valid exponent */
    double huge_power; /* a y for which x^y is 0, 1 or infinite, for all x */
} float_layout;

static const float_layout single_layout = {KIR_F32, KIR_I32, 23, 127, 0x3F3504F3, 0x1p-126, 6, 10, 252, 1e10};
static const float_layout double_layout = {KIR_F64,   KIR_I64, 52, 1023, 0x3FE6A09E667F3BCD,
                                           0x1p-1022, 12,      22, 2044, 1e20};

static const float_layout *layout_of(const kir_builder *kb, kir_val v) {
    return kir_val_type(kb, v) == KIR_F64 ? &double_layout : &single_layout;
}

static kir_val pair_number(kir_builder *kb, kir_val like, double v) { return kir_const(kb, kir_val_type(kb, like), v); }

/* The constant v as hi + lo in the type of `like`. */
static pair pair_of(kir_builder *kb, kir_val like, long double v) {
    bool is_double = kir_val_type(kb, like) == KIR_F64;
    double hi = is_double ? (double)v : (double)(float)v;
    return (pair){pair_number(kb, like, hi), pair_number(kb, like, (double)(v - (long double)hi))};
}

static kir_val sign_bit(kir_builder *kb, kir_val v) {
    const float_layout *f = layout_of(kb, v);
    return kir_lt(kb, kir_bitcast(kb, f->bits, v), kir_const_i(kb, f->bits, 0));
}

/* v · 2^n for a whole n, |n| ≤ far: in two steps, each of which has a pattern. */
static kir_val scale_by_power(kir_builder *kb, kir_val v, kir_val n) {
    const float_layout *f = layout_of(kb, v);
    kir_val whole = kir_cast(kb, f->bits, n);
    kir_val half = kir_shr(kb, whole, kir_const_i(kb, f->bits, 1));
    kir_val rest = kir_sub(kb, whole, half);
    kir_val bias = kir_const_i(kb, f->bits, f->bias), shift = kir_const_i(kb, f->bits, f->mantissa);
    kir_val a = kir_bitcast(kb, f->type, kir_shl(kb, kir_add(kb, half, bias), shift));
    kir_val b = kir_bitcast(kb, f->type, kir_shl(kb, kir_add(kb, rest, bias), shift));
    return kir_mul(kb, kir_mul(kb, v, a), b);
}

/* 2^(z.hi + z.lo) */
static kir_val power_of_two(kir_builder *kb, pair z) {
    const float_layout *f = layout_of(kb, z.hi);
    kir_val far = pair_number(kb, z.hi, f->far);
    kir_val bounded = kir_min(kb, kir_max(kb, z.hi, kir_neg(kb, far)), far);
    kir_val n = kir_rounding(kb, KIR_NEAREST_EVEN, bounded);
    kir_val is_near = kir_eq(kb, bounded, z.hi);
    kir_val rest = kir_add(kb, kir_sub(kb, bounded, n), kir_select(kb, is_near, z.lo, pair_number(kb, z.hi, 0)));
    kir_val v = kir_unary(kb, KIR_EXP, kir_mul(kb, rest, pair_number(kb, z.hi, M_LN2)));
    return scale_by_power(kb, v, n);
}

/* Σ z^k / (2k + 1) for 1 ≤ k ≤ terms, with alternating signs when `turning`. */
static kir_val odd_series(kir_builder *kb, kir_val z, int terms, bool turning) {
    kir_val sum = pair_number(kb, z, 0);
    for (int k = terms; k >= 1; k--) {
        double c = 1.0 / (2 * k + 1);
        kir_val v = pair_number(kb, z, turning && k % 2 ? -c : c);
        sum = k == terms ? v : kir_fma(kb, sum, z, v);
    }
    return kir_mul(kb, sum, z);
}

/* s = (m − 1)/(m + 1) to twice the precision: the rest of the division is exact. */
static pair ratio_of(kir_builder *kb, kir_val m) {
    kir_val one = pair_number(kb, m, 1);
    kir_val above = kir_sub(kb, m, one), below = kir_add(kb, m, one);
    kir_val lost = kir_sub(kb, m, kir_sub(kb, below, one));
    kir_val hi = kir_div(kb, above, below);
    kir_val rest = kir_fma(kb, kir_neg(kb, hi), below, above);
    rest = kir_fma(kb, kir_neg(kb, hi), lost, rest);
    return (pair){hi, kir_div(kb, rest, below)};
}

/* log2 of a positive finite x. */
static pair log2_pair(kir_builder *kb, kir_val x) {
    const float_layout *f = layout_of(kb, x);
    kir_val tiny = kir_lt(kb, x, pair_number(kb, x, f->least));
    kir_val grown = kir_select(kb, tiny, kir_mul(kb, x, pair_number(kb, x, ldexp(1, f->mantissa + 2))), x);
    kir_val pattern = kir_bitcast(kb, f->bits, grown), shift = kir_const_i(kb, f->bits, f->mantissa);
    kir_val e = kir_shr(kb, kir_sub(kb, pattern, kir_const_i(kb, f->bits, f->root_half)), shift);
    kir_val m = kir_bitcast(kb, f->type, kir_sub(kb, pattern, kir_shl(kb, e, shift)));
    kir_val exponent = kir_cast(kb, f->type, e);
    exponent = kir_select(kb, tiny, kir_sub(kb, exponent, pair_number(kb, x, f->mantissa + 2)), exponent);
    pair s = ratio_of(kb, m), c = pair_of(kb, x, 2.8853900817779268147198493620037842L); /* 2 / ln 2 */
    kir_val series = odd_series(kb, kir_mul(kb, s.hi, s.hi), f->log_terms, false);
    kir_val small = kir_add(kb, s.lo, kir_mul(kb, s.hi, series));
    kir_val hi = kir_mul(kb, c.hi, s.hi);
    kir_val lo = kir_fma(kb, c.hi, s.hi, kir_neg(kb, hi));
    lo = kir_add(kb, lo, kir_fma(kb, c.lo, s.hi, kir_mul(kb, c.hi, small)));
    kir_val sum = kir_add(kb, exponent, hi);
    lo = kir_add(kb, kir_sub(kb, hi, kir_sub(kb, sum, exponent)), lo);
    kir_val top = kir_add(kb, sum, lo);
    return (pair){top, kir_add(kb, kir_sub(kb, sum, top), lo)};
}

/* (a.hi + a.lo) · (b.hi + b.lo) */
static pair pair_times(kir_builder *kb, pair a, pair b) {
    kir_val hi = kir_mul(kb, a.hi, b.hi);
    kir_val lo = kir_fma(kb, a.hi, b.hi, kir_neg(kb, hi));
    return (pair){hi, kir_add(kb, lo, kir_fma(kb, a.hi, b.lo, kir_mul(kb, a.lo, b.hi)))};
}

/* ---- exp2, log2, log10 ------------------------------------------------------------------------------------------- */

/* exp2(x): 2 to the power of x; exact for whole x. */
static kir_val lower_exp2(tn_lower *lw, const tn_node *n, const kir_aff *at) {
    kir_val x = tn_lower_in(lw, n, 0, at);
    return power_of_two(lw->kb, (pair){x, pair_number(lw->kb, x, 0)});
}
static tn_node *grad_exp2(tn_build *b, const tn_node *n, tn_node *dy) {
    return tn_b_scale(b, tn_b_mul(b, dy, tn_b_self(n)), M_LN2);
}
OP_CODE(exp2, .class_ = TN_ELEMENTWISE, .to_float = true, .infer = tn_infer_float, .grad_first = grad_exp2,
        .lower = lower_exp2, .define_one = exp2,
        .cases = "types=f32,f64,i32 tol=2ulp; [2,3]; [0,3]; []; [33]@-120..120 grad=off", .flops = 16);

/* log2 x for all x: the pair, and what holds at the edges. */
static kir_val log_edges(kir_builder *kb, kir_val x, kir_val v) {
    kir_val zero = pair_number(kb, x, 0), infinite = pair_number(kb, x, INFINITY);
    v = kir_select(kb, kir_lt(kb, x, infinite), v, x); /* +∞ and NaN stay */
    v = kir_select(kb, kir_lt(kb, x, zero), pair_number(kb, x, NAN), v);
    return kir_select(kb, kir_eq(kb, x, zero), kir_neg(kb, infinite), v);
}

/* log2(x): the logarithm to base 2; exact for powers of 2. */
static kir_val lower_log2(tn_lower *lw, const tn_node *n, const kir_aff *at) {
    kir_val x = tn_lower_in(lw, n, 0, at);
    return log_edges(lw->kb, x, log2_pair(lw->kb, x).hi);
}
static tn_node *grad_log2(tn_build *b, const tn_node *n, tn_node *dy) {
    return tn_b_div(b, dy, tn_b_scale(b, n->in[0], M_LN2));
}
#define LOGARITHM \
    "types=f32,f64,i32 tol=2ulp; [2,3]@0.1..9; [0,3]; []@1..5; [33]@1e-30..1e30 grad=off; [33]@0.99..1.01 grad=off"
OP_CODE(log2, .class_ = TN_ELEMENTWISE, .to_float = true, .infer = tn_infer_float, .grad_first = grad_log2,
        .lower = lower_log2, .define_one = log2, .cases = LOGARITHM, .flops = 30);

/* log10(x): the logarithm to base 10. */
static kir_val lower_log10(tn_lower *lw, const tn_node *n, const kir_aff *at) {
    kir_builder *kb = lw->kb;
    kir_val x = tn_lower_in(lw, n, 0, at);
    pair v = pair_times(kb, log2_pair(kb, x), pair_of(kb, x, 0.30102999566398119521373889472449302677L)); /* log10 2 */
    return log_edges(kb, x, kir_add(kb, v.hi, v.lo));
}
static tn_node *grad_log10(tn_build *b, const tn_node *n, tn_node *dy) {
    return tn_b_div(b, dy, tn_b_scale(b, n->in[0], M_LN10));
}
OP_CODE(log10, .class_ = TN_ELEMENTWISE, .to_float = true, .infer = tn_infer_float, .grad_first = grad_log10,
        .lower = lower_log10, .define_one = log10, .cases = LOGARITHM, .flops = 32);

/* ---- pow --------------------------------------------------------------------------------------------------------- */

/* By repeated squaring; a negative exponent gives 1/x^|y|, which is ±1 for x = ±1 and 0 otherwise. */
static kir_val pow_integers(kir_builder *kb, kir_val x, kir_val y) {
    kir_type t = kir_val_type(kb, x);
    int width = (int)kir_type_size(t) * 8;
    kir_val zero = kir_const_i(kb, t, 0), one = kir_const_i(kb, t, 1);
    kir_val result = one, factor = x;
    for (int bit = 0; bit < width - 1; bit++) {
        kir_val taken = kir_and(kb, kir_shr(kb, y, kir_const_i(kb, t, bit)), one);
        result = kir_select(kb, kir_eq(kb, taken, zero), result, kir_mul(kb, result, factor));
        factor = kir_mul(kb, factor, factor);
    }
    if (t == KIR_U32 || t == KIR_U64) return result;
    kir_val odd = kir_eq(kb, kir_and(kb, y, one), one), minus_one = kir_const_i(kb, t, -1);
    kir_val inverse = kir_select(kb, kir_eq(kb, x, minus_one), kir_select(kb, odd, minus_one, one), zero);
    inverse = kir_select(kb, kir_eq(kb, x, one), one, inverse);
    return kir_select(kb, kir_lt(kb, y, zero), inverse, result);
}

/* |x|^y where |x| is neither 0 nor infinite. */
static kir_val pow_plain(kir_builder *kb, kir_val size, kir_val y) {
    kir_val most = pair_number(kb, y, layout_of(kb, y)->huge_power);
    kir_val bounded = kir_min(kb, kir_max(kb, y, kir_neg(kb, most)), most);
    return power_of_two(kb, pair_times(kb, log2_pair(kb, size), (pair){bounded, pair_number(kb, y, 0)}));
}

static kir_val pow_floats(kir_builder *kb, kir_val x, kir_val y) {
    kir_val zero = pair_number(kb, x, 0), one = pair_number(kb, x, 1), infinite = pair_number(kb, x, INFINITY),
            nan = pair_number(kb, x, NAN);
    kir_val size = kir_unary(kb, KIR_ABS, x);
    kir_val falls = kir_lt(kb, y, zero);
    kir_val v = pow_plain(kb, size, y);
    v = kir_select(kb, kir_eq(kb, size, zero), kir_select(kb, falls, infinite, zero), v);
    v = kir_select(kb, kir_eq(kb, size, infinite), kir_select(kb, falls, zero, infinite), v);
    kir_val half = kir_mul(kb, y, pair_number(kb, y, 0.5));
    kir_val whole = kir_eq(kb, kir_rounding(kb, KIR_TRUNC, y), y);
    kir_val even = kir_eq(kb, kir_rounding(kb, KIR_TRUNC, half), half);
    kir_val odd = kir_select(kb, even, kir_const_i(kb, KIR_BOOL, 0), whole);
    v = kir_select(kb, kir_and(kb, odd, sign_bit(kb, x)), kir_neg(kb, v), v);
    kir_val minus = kir_and(kb, kir_lt(kb, x, zero), kir_lt(kb, kir_neg(kb, infinite), x));
    v = kir_select(kb, kir_and(kb, minus, kir_select(kb, whole, kir_const_i(kb, KIR_BOOL, 0), minus)), nan, v);
    v = kir_select(kb, kir_eq(kb, x, x), v, x);
    v = kir_select(kb, kir_eq(kb, y, y), v, y);
    v = kir_select(kb, kir_eq(kb, x, one), one, v);
    return kir_select(kb, kir_eq(kb, y, zero), one, v);
}

/* pow(x, y): x to the power of y, with C's results for special values. Integers wrap; with a negative power the result
 * is 0 except for x = 1 and x = −1. */
static kir_val lower_pow(tn_lower *lw, const tn_node *n, const kir_aff *at) {
    kir_val x = tn_lower_in(lw, n, 0, at);
    kir_val y = tn_lower_in(lw, n, 1, at);
    return tn_dtype_is_float((tn_dtype)n->dtype) ? pow_floats(lw->kb, x, y) : pow_integers(lw->kb, x, y);
}
/* d/dx = y · x^(y−1), 0 for y = 0; d/dy = x^y · log x, 0 where 0 is raised to no negative power. */
static void grad_pow(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    tn_node *x = n->in[0], *y = n->in[1], *none = tn_b_const(b, 0, n);
    if (tn_needs_grad(n, 0)) {
        tn_node *slope = tn_b_mul(b, y, tn_b_pow(b, x, tn_b_offset(b, y, -1)));
        grads[0] = tn_b_sum_to(b, tn_b_where(b, tn_b_eq(b, y, none), none, tn_b_mul(b, dy, slope)), x);
    }
    if (tn_needs_grad(n, 1)) {
        tn_node *flat = tn_b_bitwise_and(b, tn_b_eq(b, x, none), tn_b_le(b, none, y));
        tn_node *slope = tn_b_mul(b, tn_b_self(n), tn_b_log(b, x));
        grads[1] = tn_b_sum_to(b, tn_b_where(b, flat, none, tn_b_mul(b, dy, slope)), y);
    }
}
static double pow_of_integers(double x, double y) {
    if (y >= 0) return pow(x, y);
    if (x == 1) return 1;
    return x == -1 ? (fmod(y, 2) == 0 ? 1 : -1) : 0;
}
static void reference_pow(const tn_reference *r) {
    bool is_float = tn_dtype_is_float((tn_dtype)r->node->dtype);
    for (tn_walk w = tn_walk_begin(r->node); w.place < w.count; tn_walk_next(&w)) {
        double x = r->in[0][w.in[0]], y = r->in[1][w.in[1]];
        r->out[w.place] = is_float ? pow(x, y) : pow_of_integers(x, y);
    }
}
OP_CODE(
    pow, .class_ = TN_ELEMENTWISE, .promote = true, .infer = tn_infer_not_bool, .grad = grad_pow, .lower = lower_pow,
    .reference = reference_pow,
    .cases =
        "types=f32,f64 tol=4ulp; [2,3]@0.3..4 [2,3]; [3,1]@0.3..4 [4]; [0,3] [3]; [99]@1e-3..1e3 [99]@-12..12 grad=off;"
        "[9]@-3..3 []@3..3 grad=off; [9]@0.99..1.01 [9]@-3000..3000 grad=off;"
        "types=i32,i64; [9]@-3..3 [9]@0..9; [9]@-2..2 [9]@-3..3; error=broadcast [2] [3]",
    .flops = 50);

/* ---- atan, atan2 ------------------------------------------------------------------------------------------------- */

/* atan of 0 ≤ t ≤ 1 */
static kir_val atan_unit(kir_builder *kb, kir_val t) {
    const float_layout *f = layout_of(kb, t);
    kir_val one = pair_number(kb, t, 1), zero = pair_number(kb, t, 0);
    kir_val far = kir_lt(kb, pair_number(kb, t, 0.41421356237309503), t); /* tan(π/8) */
    kir_val q = kir_select(kb, far, kir_div(kb, kir_sub(kb, t, one), kir_add(kb, t, one)), t);
    pair quarter = pair_of(kb, t, 0.785398163397448309615660845819875721L); /* π/4 */
    kir_val series = kir_mul(kb, q, odd_series(kb, kir_mul(kb, q, q), f->atan_terms, true));
    kir_val lo = kir_add(kb, series, kir_select(kb, far, quarter.lo, zero));
    return kir_add(kb, kir_select(kb, far, quarter.hi, zero), kir_add(kb, q, lo));
}

static kir_val angle(kir_builder *kb, kir_val y, kir_val x) {
    kir_val v = kir_unary(kb, KIR_ABS, y), h = kir_unary(kb, KIR_ABS, x);
    kir_val least = kir_min(kb, v, h), most = kir_max(kb, v, h);
    kir_val t = kir_div(kb, least, most);
    t = kir_select(kb, kir_eq(kb, most, pair_number(kb, x, 0)), most, t);
    t = kir_select(kb, kir_eq(kb, least, pair_number(kb, x, INFINITY)), pair_number(kb, x, 1), t);
    kir_val a = atan_unit(kb, t);
    pair half = pair_of(kb, x, 1.57079632679489661923132169163975144L),
         whole = pair_of(kb, x, 3.14159265358979323846264338327950288L);
    a = kir_select(kb, kir_lt(kb, h, v), kir_sub(kb, half.hi, kir_sub(kb, a, half.lo)), a);
    a = kir_select(kb, sign_bit(kb, x), kir_sub(kb, whole.hi, kir_sub(kb, a, whole.lo)), a);
    a = kir_select(kb, sign_bit(kb, y), kir_neg(kb, a), a);
    kir_val sum = kir_add(kb, x, y), numbers = kir_and(kb, kir_eq(kb, x, x), kir_eq(kb, y, y));
    return kir_select(kb, numbers, a, sum);
}

/* atan(x): the angle in [−π/2, π/2] whose tangent is x. */
static kir_val lower_atan(tn_lower *lw, const tn_node *n, const kir_aff *at) {
    kir_val x = tn_lower_in(lw, n, 0, at);
    return angle(lw->kb, x, pair_number(lw->kb, x, 1));
}
static tn_node *grad_atan(tn_build *b, const tn_node *n, tn_node *dy) {
    return tn_b_div(b, dy, tn_b_offset(b, tn_b_mul(b, n->in[0], n->in[0]), 1));
}
OP_CODE(atan, .class_ = TN_ELEMENTWISE, .to_float = true, .infer = tn_infer_float, .grad_first = grad_atan,
        .lower = lower_atan, .define_one = atan,
        .cases = "types=f32,f64,i32 tol=4ulp; [2,3]; [0,3]; []; [99]@-20..20 grad=off", .flops = 40);

/* atan2(y, x): the angle in [−π, π] of the point (x, y), signed zeros and infinities as in C. */
static kir_val lower_atan2(tn_lower *lw, const tn_node *n, const kir_aff *at) {
    kir_val y = tn_lower_in(lw, n, 0, at);
    kir_val x = tn_lower_in(lw, n, 1, at);
    return angle(lw->kb, y, x);
}
static void grad_atan2(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    tn_node *y = n->in[0], *x = n->in[1], *none = tn_b_const(b, 0, n);
    tn_node *square = tn_b_add(b, tn_b_mul(b, x, x), tn_b_mul(b, y, y));
    tn_node *is_none = tn_b_eq(b, square, none), *divisor = tn_b_where(b, is_none, tn_b_const(b, 1, n), square);
    tn_node *share = tn_b_where(b, is_none, none, tn_b_div(b, dy, divisor));
    if (tn_needs_grad(n, 0)) grads[0] = tn_b_sum_to(b, tn_b_mul(b, share, x), y);
    if (tn_needs_grad(n, 1)) grads[1] = tn_b_sum_to(b, tn_b_neg(b, tn_b_mul(b, share, y)), x);
}
OP_CODE(atan2, .class_ = TN_ELEMENTWISE, .promote = true, .to_float = true, .infer = tn_infer_float, .grad = grad_atan2,
        .lower = lower_atan2, .define_two = atan2,
        .cases = "types=f32,f64 tol=4ulp; [2,3] [2,3]; [3,1] [4]; [0,3] [3]; [99] [99] grad=off", .flops = 40);

/* ==== compositions ================================================================================================ */
/* Formulas are chosen for accuracy near their zeros and for no overflow before the result's. Where the derivative has a
 * closed form that is better than what the composition's steps would give, the op brings its own gradient. A reference,
 * where one stands here, is C's function of that name: a check of the composition by something
 * that does not share its formula. */

/* ---- what the compositions below use ----------------------------------------------------------------------------- */

static tn_node *square(tn_build *b, tn_node *x) { return tn_b_mul(b, x, x); }

/* sqrt(1 + sign · x²) */
static tn_node *root_of_one_and_square(tn_build *b, tn_node *x, double sign) {
    return tn_b_sqrt(b, tn_b_offset(b, tn_b_scale(b, square(b, x), sign), 1));
}

/* x < 0 ? −v : v, also for a v that is NaN; the sign of a zero x is kept where v is a
 * zero, too: v·x is used for that. */
static tn_node *with_sign_of(tn_build *b, tn_node *x, tn_node *v) {
    tn_node *zero = tn_b_const(b, 0, x);
    tn_node *turned = tn_b_where(b, tn_b_lt(b, x, zero), tn_b_neg(b, v), v);
    return tn_b_where(b, tn_b_eq(b, x, zero), x, turned);
}

static bool math_is_float(const tn_node *n) { return tn_dtype_is_float((tn_dtype)n->dtype); }

/* ---- powers and roots -------------------------------------------------------------------------------------------- */

/* square(x): x · x; for bool in i64. */
static tn_status infer_square(tn_infer *c) {
    TRY(tn_infer_same(c));
    if (c->dtype == TN_BOOL) c->dtype = TN_I64;
    return TN_OK;
}
static tn_node *compose_square(tn_build *b, const tn_node *n) { return square(b, tn_b_cast_like(b, n->in[0], n)); }
OP_CODE(square, .infer = infer_square, .compose = compose_square, .cases = "types=f32,f64,i32,bool; [2,3]; [0,3]; []");

/* rsqrt(x): 1 / sqrt(x). */
static tn_node *compose_rsqrt(tn_build *b, const tn_node *n) {
    return tn_b_div(b, tn_b_const(b, 1, n->in[0]), tn_b_sqrt(b, n->in[0]));
}
static tn_node *grad_rsqrt(tn_build *b, const tn_node *n, tn_node *dy) {
    tn_node *y = tn_b_self(n);
    return tn_b_mul(b, tn_b_scale(b, dy, -0.5), tn_b_mul(b, square(b, y), y));
}
OP_CODE(rsqrt, .to_float = true, .infer = tn_infer_float, .compose = compose_rsqrt, .grad_first = grad_rsqrt,
        .cases = "types=f32,f64,i32 tol=2ulp; [2,3]@0.1..9; [0,3]; []@1..5");

/* reciprocal(x): 1 / x. */
static tn_node *compose_reciprocal(tn_build *b, const tn_node *n) {
    return tn_b_div(b, tn_b_const(b, 1, n->in[0]), n->in[0]);
}
static tn_node *grad_reciprocal(tn_build *b, const tn_node *n, tn_node *dy) {
    return tn_b_neg(b, tn_b_mul(b, dy, square(b, tn_b_self(n))));
}
OP_CODE(reciprocal, .to_float = true, .infer = tn_infer_float, .compose = compose_reciprocal,
        .grad_first = grad_reciprocal, .cases = "types=f32,f64,i32; [2,3]@0.5..9; [0,3]; []@1..5");

/* hypot(x, y): sqrt(x² + y²) without intermediate overflow. */
static tn_node *compose_hypot(tn_build *b, const tn_node *n) {
    tn_node *x = tn_b_abs(b, n->in[0]), *y = tn_b_abs(b, n->in[1]);
    tn_node *big = tn_b_maximum(b, x, y), *small = tn_b_minimum(b, x, y);
    tn_node *zero = tn_b_const(b, 0, n), *infinite = tn_b_const(b, INFINITY, n);
    tn_node *endless = tn_b_bitwise_or(b, tn_b_eq(b, x, infinite), tn_b_eq(b, y, infinite)); /* beside NaN, too */
    tn_node *ratio = tn_b_where(b, tn_b_eq(b, big, zero), zero, tn_b_div(b, small, big));
    tn_node *length = tn_b_mul(b, big, root_of_one_and_square(b, ratio, 1));
    return tn_b_where(b, endless, infinite, length);
}
static void grad_hypot(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    tn_node *per_length = tn_b_div(b, dy, tn_b_self(n));
    for (int i = 0; i < 2; i++)
        if (tn_needs_grad(n, i)) grads[i] = tn_b_sum_to(b, tn_b_mul(b, per_length, n->in[i]), n->in[i]);
}
OP_CODE(hypot, .promote = true, .to_float = true, .infer = tn_infer_float, .compose = compose_hypot, .grad = grad_hypot,
        .define_two = hypot,
        .cases = "types=f32,f64 tol=4ulp; [2,3] [2,3]; [3,1] [4]; [2]@1e30..2e30 [2]@1e30..2e30 grad=off");

/* ---- exponentials and logarithms --------------------------------------------------------------------------------- */

/* log1p(x): log(1 + x), accurate near 0. With the rounded u = 1 + x, log(u) · x / (u − 1) corrects the rounding
 * (Goldberg 1991, theorem 4). */
static tn_node *compose_log1p(tn_build *b, const tn_node *n) {
    tn_node *x = n->in[0];
    tn_node *u = tn_b_offset(b, x, 1), *kept = tn_b_offset(b, u, -1);
    tn_node *exact = tn_b_eq(b, kept, x);
    tn_node *ratio = tn_b_where(b, exact, tn_b_const(b, 1, x), tn_b_div(b, x, kept));
    tn_node *lost = tn_b_eq(b, kept, tn_b_const(b, 0, x));
    return tn_b_where(b, lost, x, tn_b_mul(b, tn_b_log(b, u), ratio));
}
static tn_node *grad_log1p(tn_build *b, const tn_node *n, tn_node *dy) {
    return tn_b_div(b, dy, tn_b_offset(b, n->in[0], 1));
}
OP_CODE(log1p, .to_float = true, .infer = tn_infer_float, .compose = compose_log1p, .grad_first = grad_log1p,
        .define_one = log1p,
        .cases = "types=f32,f64 tol=4ulp; [2,3]@-0.9..9; [0,3]; []@0..5; [33]@-1e-3..1e-3; "
                 "[9]@-1e-9..1e-9 grad=off; [9]@1..1e30 grad=off; error= types=f16,bf16 tol=1ulp atol=0; [9]@-0.9..9");

/* expm1(x): exp(x) − 1, accurate near 0. With the rounded u = exp(x), (u − 1) · x / log(u) corrects the rounding
 * (Kahan's method). */
static tn_node *compose_expm1(tn_build *b, const tn_node *n) {
    tn_node *x = n->in[0], *one = tn_b_const(b, 1, x);
    tn_node *u = tn_b_exp(b, x), *kept = tn_b_offset(b, u, -1);
    tn_node *accurate = tn_b_mul(b, kept, tn_b_div(b, x, tn_b_log(b, u)));
    /* Past |x| = 1 the plain difference is accurate, and safe where u is 0 or infinite. */
    tn_node *far = tn_b_lt(b, one, tn_b_abs(b, x));
    return tn_b_where(b, far, kept, tn_b_where(b, tn_b_eq(b, u, one), x, accurate));
}
static tn_node *grad_expm1(tn_build *b, const tn_node *n, tn_node *dy) {
    return tn_b_mul(b, dy, tn_b_offset(b, tn_b_self(n), 1));
}
OP_CODE(
    expm1, .to_float = true, .infer = tn_infer_float, .compose = compose_expm1, .grad_first = grad_expm1,
    .define_one = expm1,
    .cases =
        "types=f32,f64 tol=4ulp; [2,3]; [0,3]; []; [33]@-1e-3..1e-3; [9]@-1e-9..1e-9 grad=off; [33]@-30..80 grad=off");

/* xlogy(x, y): x · log(y); 0 for x = 0, unless y is NaN. */
static tn_node *compose_xlogy(tn_build *b, const tn_node *n) {
    tn_node *x = n->in[0], *y = n->in[1];
    tn_node *product = tn_b_mul(b, x, tn_b_log(b, y));
    tn_node *nothing = tn_b_bitwise_and(b, tn_b_eq(b, x, tn_b_const(b, 0, x)), tn_b_eq(b, y, y));
    return tn_b_where(b, nothing, tn_b_const(b, 0, x), product);
}
static void grad_xlogy(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    tn_node *x = n->in[0], *y = n->in[1], *zero = tn_b_const(b, 0, x);
    tn_node *nothing = tn_b_bitwise_and(b, tn_b_eq(b, x, zero), tn_b_le(b, y, tn_b_const(b, 0, y)));
    tn_node *log_y = tn_b_where(b, nothing, zero, tn_b_log(b, y));
    if (tn_needs_grad(n, 0)) grads[0] = tn_b_sum_to(b, tn_b_mul(b, dy, log_y), x);
    if (tn_needs_grad(n, 1)) grads[1] = tn_b_sum_to(b, tn_b_div(b, tn_b_mul(b, dy, x), y), y);
}
OP_CODE(xlogy, .promote = true, .to_float = true, .infer = tn_infer_float, .compose = compose_xlogy, .grad = grad_xlogy,
        .cases = "types=f32,f64 tol=4ulp; [2,3] [2,3]@0.1..4; [3,1] [4]@0.1..4; [3]@0..0 [3]@0..0 grad=off");

/* logaddexp(x, y): log(exp(x) + exp(y)) without overflow. */
static tn_node *compose_logaddexp(tn_build *b, const tn_node *n) {
    tn_node *x = n->in[0], *y = n->in[1];
    tn_node *distance = tn_b_abs(b, tn_b_sub(b, x, y));
    tn_node *apart = tn_b_log1p(b, tn_b_exp(b, tn_b_neg(b, distance)));
    /* Equal ones, infinite ones too, whose distance would be NaN. */
    tn_node *more = tn_b_where(b, tn_b_eq(b, x, y), tn_b_const(b, M_LN2, x), apart);
    return tn_b_add(b, tn_b_maximum(b, x, y), more);
}
static void grad_logaddexp(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    for (int i = 0; i < 2; i++) {
        if (!tn_needs_grad(n, i)) continue;
        tn_node *x = n->in[i], *y = tn_b_self(n);
        tn_node *share = tn_b_exp(b, tn_b_sub(b, x, y));
        /* The result is one of them if that is infinite or the other is far below it. */
        share = tn_b_where(b, tn_b_eq(b, x, y), tn_b_const(b, 1, n), share);
        share = tn_b_where(b, tn_b_eq(b, x, n->in[1 - i]), tn_b_const(b, 0.5, n), share);
        grads[i] = tn_b_sum_to(b, tn_b_mul(b, dy, share), x);
    }
}
OP_CODE(logaddexp, .promote = true, .to_float = true, .infer = tn_infer_float, .compose = compose_logaddexp,
        .grad = grad_logaddexp,
        .cases = "types=f32,f64 tol=4ulp atol=4ulp; [2,3] [2,3]; [3,1] [4]@-50..50; [2] []@-300..300 grad=off; error= "
                 "types=f16,bf16 tol=1ulp atol=0; [9]@-50..50 []");

/* ---- circular and hyperbolic ------------------------------------------------------------------------------------- */

/* tan(x): sin(x) / cos(x). */
static tn_node *compose_tan(tn_build *b, const tn_node *n) {
    return tn_b_div(b, tn_b_sin(b, n->in[0]), tn_b_cos(b, n->in[0]));
}
static tn_node *grad_tan(tn_build *b, const tn_node *n, tn_node *dy) {
    return tn_b_mul(b, dy, tn_b_offset(b, square(b, tn_b_self(n)), 1));
}
OP_CODE(tan, .to_float = true, .infer = tn_infer_float, .compose = compose_tan, .grad_first = grad_tan,
        .define_one = tan, .cases = "types=f32,f64 tol=4ulp; [2,3]@-1.4..1.4; [0,3]; []@2..4; [33]@-1.5..1.5 grad=off");

/* sinh(x): (exp(x) − exp(−x)) / 2, accurate near 0. */
static tn_node *compose_sinh(tn_build *b, const tn_node *n) {
    tn_node *x = n->in[0], *size = tn_b_abs(b, x);
    tn_node *e = tn_b_expm1(b, size);
    tn_node *near = tn_b_scale(b, tn_b_add(b, e, tn_b_div(b, e, tn_b_offset(b, e, 1))), 0.5);
    tn_node *half = tn_b_exp(b, tn_b_scale(b, size, 0.5)); /* its square overflows only when the result does */
    tn_node *far = tn_b_mul(b, tn_b_scale(b, half, 0.5), half);
    tn_node *is_far = tn_b_lt(b, tn_b_const(b, 40, x), size);
    return with_sign_of(b, x, tn_b_where(b, is_far, far, near));
}
static tn_node *grad_sinh(tn_build *b, const tn_node *n, tn_node *dy) {
    return tn_b_mul(b, dy, tn_b_cosh(b, n->in[0]));
}
OP_CODE(sinh, .to_float = true, .infer = tn_infer_float, .compose = compose_sinh, .grad_first = grad_sinh,
        .define_one = sinh,
        .cases = "types=f32,f64 tol=4ulp; [2,3]; [0,3]; []; [33]@-1e-3..1e-3; [33]@-85..85 "
                 "grad=off; error= types=f16,bf16 tol=1ulp atol=0; [9]@-8..8");

/* cosh(x): (exp(x) + exp(−x)) / 2. */
static tn_node *compose_cosh(tn_build *b, const tn_node *n) {
    tn_node *size = tn_b_abs(b, n->in[0]);
    tn_node *half = tn_b_exp(b, tn_b_scale(b, size, 0.5));
    tn_node *rising = tn_b_mul(b, tn_b_scale(b, half, 0.5), half);
    return tn_b_add(b, rising, tn_b_scale(b, tn_b_exp(b, tn_b_neg(b, size)), 0.5));
}
static tn_node *grad_cosh(tn_build *b, const tn_node *n, tn_node *dy) {
    return tn_b_mul(b, dy, tn_b_sinh(b, n->in[0]));
}
OP_CODE(cosh, .to_float = true, .infer = tn_infer_float, .compose = compose_cosh, .grad_first = grad_cosh,
        .define_one = cosh, .cases = "types=f32,f64 tol=4ulp; [2,3]; [0,3]; []; [33]@-85..85 grad=off");

/* asin(x): the angle in [−π/2, π/2] whose sine is x. */
static tn_node *compose_asin(tn_build *b, const tn_node *n) {
    tn_node *x = n->in[0];
    tn_node *below = tn_b_sub(b, tn_b_const(b, 1, x), x), *above = tn_b_offset(b, x, 1);
    return tn_b_atan2(b, x, tn_b_sqrt(b, tn_b_mul(b, below, above)));
}
static tn_node *grad_asin(tn_build *b, const tn_node *n, tn_node *dy) {
    return tn_b_div(b, dy, root_of_one_and_square(b, n->in[0], -1));
}
OP_CODE(asin, .to_float = true, .infer = tn_infer_float, .compose = compose_asin, .grad_first = grad_asin,
        .define_one = asin,
        .cases =
            "types=f32,f64 tol=4ulp; [2,3]@-0.9..0.9; [0,3]; []@0..0.5; [33]@-1..1 grad=off; [9]@-1e-4..1e-4 grad=off");

/* acos(x): the angle in [0, π] whose cosine is x. */
static tn_node *compose_acos(tn_build *b, const tn_node *n) {
    tn_node *x = n->in[0];
    tn_node *below = tn_b_sub(b, tn_b_const(b, 1, x), x), *above = tn_b_offset(b, x, 1);
    return tn_b_atan2(b, tn_b_sqrt(b, tn_b_mul(b, below, above)), x);
}
static tn_node *grad_acos(tn_build *b, const tn_node *n, tn_node *dy) {
    return tn_b_neg(b, tn_b_div(b, dy, root_of_one_and_square(b, n->in[0], -1)));
}
OP_CODE(acos, .to_float = true, .infer = tn_infer_float, .compose = compose_acos, .grad_first = grad_acos,
        .define_one = acos, .cases = "types=f32,f64 tol=4ulp; [2,3]@-0.9..0.9; [0,3]; []@0..0.5; [33]@-1..1 grad=off");

/* asinh(x): log(x + sqrt(x² + 1)), accurate near 0 and without overflow. */
static tn_node *compose_asinh(tn_build *b, const tn_node *n) {
    tn_node *x = n->in[0], *size = tn_b_abs(b, x), *large = tn_b_const(b, 1e8, x);
    tn_node *t = tn_b_minimum(b, size, large); /* keeps the square finite where it is not used */
    tn_node *root = tn_b_offset(b, root_of_one_and_square(b, t, 1), 1);
    tn_node *near = tn_b_log1p(b, tn_b_add(b, t, tn_b_div(b, square(b, t), root)));
    tn_node *far = tn_b_offset(b, tn_b_log(b, size), M_LN2);
    return with_sign_of(b, x, tn_b_where(b, tn_b_lt(b, large, size), far, near));
}
/* Beyond it sqrt(x² ± 1) is |x|, and squares would soon overflow. */
static tn_node *square_limit(tn_build *b, const tn_node *x) {
    return tn_b_const(b, x->dtype == TN_F64 ? 1e150 : 1e18, x);
}

static tn_node *grad_asinh(tn_build *b, const tn_node *n, tn_node *dy) {
    tn_node *size = tn_b_abs(b, n->in[0]), *large = square_limit(b, n->in[0]);
    tn_node *root = root_of_one_and_square(b, tn_b_minimum(b, size, large), 1);
    return tn_b_div(b, dy, tn_b_where(b, tn_b_lt(b, large, size), size, root));
}
OP_CODE(asinh, .to_float = true, .infer = tn_infer_float, .compose = compose_asinh, .grad_first = grad_asinh,
        .define_one = asinh,
        .cases = "types=f32,f64 tol=4ulp; [2,3]; [0,3]; []; [33]@-1e-3..1e-3; [9]@-1e30..1e30 "
                 "grad=off; error= types=f16,bf16 tol=1ulp atol=0; [9]@-2000..2000");

/* acosh(x): log(x + sqrt(x² − 1)) for x ≥ 1, accurate near 1 and without overflow. */
static tn_node *compose_acosh(tn_build *b, const tn_node *n) {
    tn_node *x = n->in[0], *large = tn_b_const(b, 1e8, x);
    tn_node *t = tn_b_offset(b, tn_b_minimum(b, x, large), -1);
    /* as a product of two roots, each NaN below 1, whatever the squares become there */
    tn_node *root = tn_b_mul(b, tn_b_sqrt(b, t), tn_b_sqrt(b, tn_b_offset(b, t, 2)));
    tn_node *near = tn_b_log1p(b, tn_b_add(b, t, root));
    return tn_b_where(b, tn_b_lt(b, large, x), tn_b_offset(b, tn_b_log(b, x), M_LN2), near);
}
static tn_node *grad_acosh(tn_build *b, const tn_node *n, tn_node *dy) {
    tn_node *x = n->in[0], *large = square_limit(b, x), *t = tn_b_minimum(b, x, large);
    tn_node *root = tn_b_sqrt(b, tn_b_mul(b, tn_b_offset(b, t, -1), tn_b_offset(b, t, 1)));
    tn_node *size = tn_b_abs(b, x); /* below -1 the formula has a value, as PyTorch's */
    return tn_b_div(b, dy, tn_b_where(b, tn_b_lt(b, large, size), size, root));
}
OP_CODE(acosh, .to_float = true, .infer = tn_infer_float, .compose = compose_acosh, .grad_first = grad_acosh,
        .define_one = acosh,
        .cases = "types=f32,f64 tol=4ulp; [2,3]@1.1..9; [0,3]; []@2..5; [33]@1..1.01 grad=off; [9]@1..1e30 grad=off; "
                 "[9]@-1e30..0.9 grad=off; error= types=f16,bf16 tol=1ulp atol=0; [9]@1..3000");

/* atanh(x): log((1 + x) / (1 − x)) / 2, accurate near 0. */
static tn_node *compose_atanh(tn_build *b, const tn_node *n) {
    tn_node *x = n->in[0], *size = tn_b_abs(b, x);
    tn_node *ratio = tn_b_div(b, tn_b_scale(b, size, 2), tn_b_sub(b, tn_b_const(b, 1, x), size));
    return with_sign_of(b, x, tn_b_scale(b, tn_b_log1p(b, ratio), 0.5));
}
static tn_node *grad_atanh(tn_build *b, const tn_node *n, tn_node *dy) {
    tn_node *one = tn_b_const(b, 1, n);
    return tn_b_div(b, dy, tn_b_sub(b, one, square(b, n->in[0])));
}
OP_CODE(
    atanh, .to_float = true, .infer = tn_infer_float, .compose = compose_atanh, .grad_first = grad_atanh,
    .define_one = atanh,
    .cases = "types=f32,f64 tol=4ulp; [2,3]@-0.9..0.9; [0,3]; []@0..0.5; [33]@-1e-3..1e-3; [33]@-0.99..0.99 grad=off");

/* ---- parts of numbers -------------------------------------------------------------------------------------------- */

/* sign(x): −1, 0 or 1; 0 for NaN; a bool is unchanged. */
static tn_node *compose_sign(tn_build *b, const tn_node *n) {
    if (n->dtype == TN_BOOL) return tn_b_contiguous(b, n->in[0]);
    tn_node *x = n->in[0], *zero = tn_b_const(b, 0, x);
    tn_node *up = tn_b_cast(b, tn_b_lt(b, zero, x), (tn_dtype)x->dtype);
    tn_node *down = tn_b_cast(b, tn_b_lt(b, x, zero), (tn_dtype)x->dtype);
    return tn_b_sub(b, up, down);
}
OP_CODE(sign, .keeps_half = true, .infer = tn_infer_same, .compose = compose_sign, .grad = tn_grad_none,
        .cases = "types=f32,f64,i32,bool; [2,3]; [0,3]; []");

/* frac(x): x − trunc(x), with the sign of x. */
static tn_node *compose_frac(tn_build *b, const tn_node *n) { return tn_b_sub(b, n->in[0], tn_b_trunc(b, n->in[0])); }
OP_CODE(frac, .keeps_half = true, .infer = tn_infer_float, .compose = compose_frac,
        .cases = "types=f32,f64; [2,3]@-9..9~0.1; [0,3]; []@0..9~0.1");

/* isnan(x): true where x is not a number. */
static tn_node *compose_isnan(tn_build *b, const tn_node *n) {
    return tn_b_bitwise_not(b, tn_b_eq(b, n->in[0], n->in[0]));
}
OP_CODE(isnan, .infer = tn_infer_compare, .compose = compose_isnan, .cases = "types=f32,f64,i32; [2,3]; [0,3]");

/* isinf(x): true where x is +∞ or −∞. */
static tn_node *compose_isinf(tn_build *b, const tn_node *n) {
    tn_node *x = n->in[0];
    if (!math_is_float(x)) return tn_b_isnan(b, x);
    return tn_b_eq(b, tn_b_abs(b, x), tn_b_const(b, INFINITY, x));
}
OP_CODE(isinf, .infer = tn_infer_compare, .compose = compose_isinf, .cases = "types=f32,f64,i32; [2,3]; [0,3]");

/* isfinite(x): true where x is neither NaN nor infinite. */
static tn_node *compose_isfinite(tn_build *b, const tn_node *n) {
    tn_node *x = n->in[0];
    if (!math_is_float(x)) return tn_b_eq(b, x, x);
    return tn_b_lt(b, tn_b_abs(b, x), tn_b_const(b, INFINITY, x));
}
OP_CODE(isfinite, .infer = tn_infer_compare, .compose = compose_isfinite, .cases = "types=f32,f64,i32; [2,3]; [0,3]");

static double largest_of(tn_dtype t) {
    switch (t) {
    case TN_F16: return 65504;
    case TN_BF16: return 0x1.FEp127;
    case TN_F64: return 0x1.FFFFFFFFFFFFFp1023;
    default: return 0x1.FFFFFEp127;
    }
}

/* nan_to_num(x, nan, posinf, neginf): x with NaN and infinities replaced. An infinite posinf or neginf means the
 * largest or smallest finite number of the dtype. */
static tn_node *compose_nan_to_num(tn_build *b, const tn_node *n) {
    tn_node *x = n->in[0];
    if (!math_is_float(x)) return tn_b_contiguous(b, x);
    double high = n->f[TN_NAN_TO_NUM_POSINF], low = n->f[TN_NAN_TO_NUM_NEGINF],
           largest = largest_of((tn_dtype)x->dtype);
    tn_node *high_value = tn_b_const(b, isinf(high) ? largest : high, x);
    tn_node *low_value = tn_b_const(b, isinf(low) ? -largest : low, x);
    tn_node *y = tn_b_where(b, tn_b_eq(b, x, tn_b_const(b, INFINITY, x)), high_value, x);
    y = tn_b_where(b, tn_b_eq(b, x, tn_b_const(b, -INFINITY, x)), low_value, y);
    return tn_b_where(b, tn_b_eq(b, x, x), y, tn_b_const(b, n->f[TN_NAN_TO_NUM_NAN], x));
}
OP_CODE(nan_to_num, .keeps_half = true, .infer = tn_infer_broadcast, .compose = compose_nan_to_num,
        .cases = "types=f32,f64,i32; [2,3] nan=0 posinf=9 neginf=-9; [0,3] nan=1 posinf=1 neginf=1");

/* ---- bounds and mixtures ----------------------------------------------------------------------------------------- */

/* clamp(x, min, max): x limited to [min, max]; −INFINITY and INFINITY: no bound. Bounds of an integer tensor are
 * integers and may lie outside its dtype; it is an error if no number of the dtype is within them. NaN stays NaN. */
static tn_status infer_clamp(tn_infer *c) {
    double lo = c->attrs->f[TN_CLAMP_MIN], hi = c->attrs->f[TN_CLAMP_MAX];
    TRY(tn_infer_not_bool(c));
    if (tn_dtype_is_float(c->dtype)) return TN_OK;
    if (lo == floor(lo) && hi == floor(hi)) return tn_need_bounds(c, c->dtype, lo, hi);
    return tn_fail(TN_ERR_DTYPE,
                   "clamp: the bounds %g and %g of a %s tensor must be whole numbers: cast the tensor to a float type "
                   "to use others",
                   lo, hi, tn_dtype_name(c->dtype));
}
static tn_node *compose_clamp(tn_build *b, const tn_node *n) {
    tn_node *x = n->in[0];
    double lo = n->f[TN_CLAMP_MIN], hi = n->f[TN_CLAMP_MAX];
    tn_dtype t = (tn_dtype)x->dtype;
    if (lo != -INFINITY && tn_dtype_holds(t, lo)) x = tn_b_maximum(b, x, tn_b_const(b, lo, x));
    if (hi != INFINITY && tn_dtype_holds(t, hi)) x = tn_b_minimum(b, x, tn_b_const(b, hi, x));
    return x == n->in[0] ? tn_b_contiguous(b, x) : x;
}
static tn_node *grad_clamp(tn_build *b, const tn_node *n, tn_node *dy) {
    tn_node *x = n->in[0];
    tn_node *above = tn_b_le(b, tn_b_const(b, n->f[TN_CLAMP_MIN], x), x);
    tn_node *inside = tn_b_bitwise_and(b, above, tn_b_le(b, x, tn_b_const(b, n->f[TN_CLAMP_MAX], x)));
    return tn_b_where(b, inside, dy, tn_b_const(b, 0, dy));
}
OP_CODE(clamp, .keeps_half = true, .infer = infer_clamp, .compose = compose_clamp, .grad_first = grad_clamp,
        .cases = "types=f32,f64,i32; [2,3] min=-1 max=1; [0,3] min=0 max=1; [9] min=0 "
                 "max=inf; [9] min=-inf max=1; [3] min=-inf max=inf;"
                 "types=i32; error=whole [2] min=0.5 max=1; types=i8,u8; [9] min=-300 max=2;"
                 "[9] min=1 max=300; error=hold [2] min=300 max=400; "
                 "error=hold [2] min=-400 max=-300");

/* lerp(x, end, weight): x + weight · (end − x), from whichever end is nearer, so that weight 1 gives end exactly. */
static tn_node *compose_lerp(tn_build *b, const tn_node *n) {
    tn_node *x = n->in[0], *end = n->in[1], *w = n->in[2];
    tn_node *way = tn_b_sub(b, end, x);
    tn_node *forward = tn_b_add(b, x, tn_b_mul(b, w, way));
    tn_node *back = tn_b_sub(b, end, tn_b_mul(b, tn_b_sub(b, tn_b_const(b, 1, w), w), way));
    return tn_b_where(b, tn_b_lt(b, tn_b_abs(b, w), tn_b_const(b, 0.5, w)), forward, back);
}
OP_CODE(lerp, .promote = true, .infer = tn_infer_float, .compose = compose_lerp,
        .cases =
            "types=f32,f64 tol=1e-5 atol=1e-6; [2,3] [2,3] []@0.1..0.4; [3,1] [4] [4]@0.6..0.9; [0,3] [3] []; error= "
            "types=f16,bf16 tol=1ulp atol=0; [9] [9] []@0.1..0.4");

/* addcmul(x, tensor1, tensor2, value): x + value · tensor1 · tensor2. Integers: the value is truncated, and must be in
 * the dtype's range. */
static tn_status infer_addcmul(tn_infer *c) {
    TRY(tn_infer_not_bool(c));
    return tn_need_held(c, c->dtype, "value", c->attrs->f[TN_ADDCMUL_VALUE]);
}
static tn_node *compose_addcmul(tn_build *b, const tn_node *n) {
    tn_node *product = tn_b_mul(b, n->in[1], n->in[2]);
    return tn_b_add(b, n->in[0], tn_b_scale(b, product, n->f[TN_ADDCMUL_VALUE]));
}
OP_CODE(
    addcmul, .promote = true, .infer = infer_addcmul, .compose = compose_addcmul,
    .cases =
        "types=f32,f64 tol=1e-5 atol=1e-6; [2,3] [2,3] [2,3] value=0.5; [3,1] [4] "
        "[] value=-2; types=i32; [3] [3] [3] value=2; error= types=f16,bf16 tol=1ulp atol=0; [9] [9] [9] value=0.3");

/* addcdiv(x, tensor1, tensor2, value): x + value · tensor1 / tensor2. */
static tn_node *compose_addcdiv(tn_build *b, const tn_node *n) {
    tn_node *quotient = tn_b_div(b, n->in[1], n->in[2]);
    return tn_b_add(b, n->in[0], tn_b_scale(b, quotient, n->f[TN_ADDCDIV_VALUE]));
}
OP_CODE(addcdiv, .promote = true, .to_float = true, .infer = tn_infer_float, .compose = compose_addcdiv,
        .cases = "types=f32,f64 tol=1e-5 atol=1e-6; [2,3] [2,3] [2,3]@1..3 value=0.5; [3,1] [4] []@1..2 value=-2");

/* masked_fill(x, mask, value): value where the bool mask is true, else x; both broadcast. x's dtype stays, and must be
 * able to hold the value: see full. */
static tn_status infer_masked_fill(tn_infer *c) {
    if (c->in[1]->dtype != TN_BOOL)
        return tn_fail(TN_ERR_DTYPE, "masked_fill: the mask is %s; it must be bool: compare, or cast it",
                       tn_dtype_name((tn_dtype)c->in[1]->dtype));
    TRY(tn_need_held(c, (tn_dtype)c->in[0]->dtype, "value", c->attrs->f[TN_MASKED_FILL_VALUE]));
    return tn_infer_broadcast(c);
}
static tn_node *compose_masked_fill(tn_build *b, const tn_node *n) {
    return tn_b_where(b, n->in[1], tn_b_const(b, n->f[TN_MASKED_FILL_VALUE], n->in[0]), n->in[0]);
}
OP_CODE(masked_fill, .keeps_half = true, .infer = infer_masked_fill, .compose = compose_masked_fill,
        .cases = "types=f32,f64,i32; [2,3] [2,3]:bool value=7; [2,3] [3]:bool "
                 "value=-1; [3] [2,1]:bool value=0; [0,3] []:bool value=1;"
                 "error=bool [2] [2]:i32 value=0; types=i8; error=hold [2] [2]:bool "
                 "value=300");

/* ---- truth ------------------------------------------------------------------------------------------------------- */

static tn_node *truth(tn_build *b, tn_node *x) { return tn_b_cast(b, x, TN_BOOL); }

/* ne(x, y): true where x ≠ y, also where an operand is NaN. */
static tn_node *compose_ne(tn_build *b, const tn_node *n) {
    return tn_b_bitwise_not(b, tn_b_eq(b, n->in[0], n->in[1]));
}
/* gt(x, y): true where x > y. */
static tn_node *compose_gt(tn_build *b, const tn_node *n) { return tn_b_lt(b, n->in[1], n->in[0]); }
/* ge(x, y): true where x ≥ y. */
static tn_node *compose_ge(tn_build *b, const tn_node *n) { return tn_b_le(b, n->in[1], n->in[0]); }

#define COMPARED(compose_)                                                                              \
    {                                                                                                   \
        .promote = true, .infer = tn_infer_compare, .compose = compose_,                                \
        .cases = "types=f32,f64,i32; [2,3] [2,3]; [3,1] [4]; [0,3] [3]; types=i32; [50]@0..2 [50]@0..2" \
    }
const tn_op_impl tn_impl_ne = COMPARED(compose_ne);
const tn_op_impl tn_impl_gt = COMPARED(compose_gt);
const tn_op_impl tn_impl_ge = COMPARED(compose_ge);

/* logical_not(x): true where x is 0 or false. */
static tn_node *compose_logical_not(tn_build *b, const tn_node *n) { return tn_b_bitwise_not(b, truth(b, n->in[0])); }
/* logical_and(x, y): true where both operands are nonzero (true). */
static tn_node *compose_logical_and(tn_build *b, const tn_node *n) {
    return tn_b_bitwise_and(b, truth(b, n->in[0]), truth(b, n->in[1]));
}
/* logical_or(x, y): true where at least one operand is nonzero (true). */
static tn_node *compose_logical_or(tn_build *b, const tn_node *n) {
    return tn_b_bitwise_or(b, truth(b, n->in[0]), truth(b, n->in[1]));
}
/* logical_xor(x, y): true where exactly one operand is nonzero (true). */
static tn_node *compose_logical_xor(tn_build *b, const tn_node *n) {
    return tn_b_bitwise_xor(b, truth(b, n->in[0]), truth(b, n->in[1]));
}

#define LOGICAL(compose_)                                                                    \
    {                                                                                        \
        .infer = tn_infer_compare, .compose = compose_,                                      \
        .cases = "types=bool,i32,f32; [9]@-1..1 [9]@-1..1; [3,1]@-1..1 [4]@-1..1; [0,3] [3]" \
    }
OP_CODE(logical_not, .infer = tn_infer_compare, .compose = compose_logical_not,
        .cases = "types=bool,i32,f32; [9]@-1..1; [0,3]; []@0..0");
const tn_op_impl tn_impl_logical_and = LOGICAL(compose_logical_and);
const tn_op_impl tn_impl_logical_or = LOGICAL(compose_logical_or);
const tn_op_impl tn_impl_logical_xor = LOGICAL(compose_logical_xor);

/* ---- with a number ----------------------------------------------------------------------------------------------- */

/* A C double is a Python float: an integer or bool tensor becomes f32, whatever the number's value. tn_scalar_int is
 * the number that leaves an integer tensor's dtype alone. */
static tn_dtype dtype_with(const tn_node *x) {
    return tn_dtype_is_float((tn_dtype)x->dtype) ? (tn_dtype)x->dtype : TN_F32;
}
static tn_status infer_with_number(tn_infer *c) {
    TRY(tn_infer_same(c));
    c->dtype = dtype_with(c->in[0]);
    return TN_OK;
}
/* A comparison is bool in any case, so it may be made where it is exact: whole numbers among integers. A whole number
 * outside the integers' dtype compares as infinity of its sign does. */
static tn_dtype dtype_compared(const tn_node *x, double *v) {
    tn_dtype t = (tn_dtype)x->dtype, whole = t == TN_BOOL ? TN_I64 : t;
    if (tn_dtype_is_float(t)) return t;
    if (*v != floor(*v)) return TN_F32;
    if (tn_dtype_holds(whole, *v)) return whole;
    *v = copysign(INFINITY, *v);
    return TN_F32;
}
typedef tn_node *two_operands(tn_build *b, tn_node *x, tn_node *y);

static tn_node *join_number(tn_build *b, const tn_node *n, two_operands *op, bool number_first) {
    double number = n->f[0];
    tn_dtype t = n->dtype == TN_BOOL ? dtype_compared(n->in[0], &number) : dtype_with(n->in[0]);
    tn_node *x = tn_b_cast(b, n->in[0], t);
    if (!x) return NULL;
    tn_node *v = tn_b_const(b, number, x);
    return number_first ? op(b, v, x) : op(b, x, v);
}

#define WITH_NUMBER(name, op, number_first, cases_)                                                               \
    static tn_node *compose_##name(tn_build *b, const tn_node *n) { return join_number(b, n, op, number_first); } \
    OP_CODE(name, .infer = infer_with_number, .compose = compose_##name, .cases = cases_)

/* A comparison with a number. */
#define BY_NUMBER(op)                                                                                          \
    static tn_node *compose_##op##_scalar(tn_build *b, const tn_node *n) {                                     \
        return join_number(b, n, tn_b_##op, false);                                                            \
    }                                                                                                          \
    OP_CODE(op##_scalar, .infer = tn_infer_same, .gives = TN_GIVES(TN_BOOL), .compose = compose_##op##_scalar, \
            .cases = COMPARED_NUMBERS)

#define NUMBERS                                                                                                  \
    "types=f32,f64; [2,3] other=1.5; [] other=-2; types=i32,i64; [2,3] other=3; [3] other=0.5; types=bool; [3] " \
    "other=2"

/* add_scalar(x, other): x + other. */
WITH_NUMBER(add_scalar, tn_b_add, false, NUMBERS);
/* sub_scalar(x, other): x − other. */
WITH_NUMBER(sub_scalar, tn_b_sub, false, NUMBERS);
/* rsub_scalar(x, other): other − x. */
WITH_NUMBER(rsub_scalar, tn_b_sub, true, NUMBERS);
/* mul_scalar(x, other): x · other. */
WITH_NUMBER(mul_scalar, tn_b_mul, false, NUMBERS);
/* div_scalar(x, other): x / other, always floating point. */
WITH_NUMBER(div_scalar, tn_b_div, false, NUMBERS);
/* rdiv_scalar(x, other): other / x, always floating point. */
WITH_NUMBER(rdiv_scalar, tn_b_div, true, "types=f32,f64,i32; [2,3]@1..5 other=1.5; []@2..3 other=-2");
/* floor_divide_scalar(x, other): the greatest integer ≤ x / other. */
WITH_NUMBER(floor_divide_scalar, tn_b_floor_divide, false, NUMBERS);
/* remainder_scalar(x, other): x modulo other, with the sign of other. */
WITH_NUMBER(remainder_scalar, tn_b_remainder, false,
            "types=f32,f64; [2,3]@0.1..1.4 other=1.5; types=i32; [9] other=3; [9] other=-4");
/* fmod_scalar(x, other): x modulo other, with the sign of x. */
WITH_NUMBER(fmod_scalar, tn_b_fmod, false,
            "types=f32,f64; [2,3]@0.1..1.4 other=1.5; types=i32; [9] other=3; [9] other=-4");
/* maximum_scalar(x, other): the maximum of x and other. */
WITH_NUMBER(maximum_scalar, tn_b_maximum, false, NUMBERS);
/* minimum_scalar(x, other): the minimum of x and other. */
WITH_NUMBER(minimum_scalar, tn_b_minimum, false, NUMBERS);

#define COMPARED_NUMBERS                                                                               \
    "types=f32,f64; [2,3] other=0.5; [] other=-2; types=i32; [30]@0..4 other=2; [30]@0..4 other=1.5; " \
    "types=i8,u8; [30]@0..100 other=300; [30]@0..100 other=-300"
/* eq_scalar(x, other): true where x = other. */
BY_NUMBER(eq);
/* ne_scalar(x, other): true where x ≠ other. */
BY_NUMBER(ne);
/* lt_scalar(x, other): true where x < other. */
BY_NUMBER(lt);
/* le_scalar(x, other): true where x ≤ other. */
BY_NUMBER(le);
/* gt_scalar(x, other): true where x > other. */
BY_NUMBER(gt);
/* ge_scalar(x, other): true where x ≥ other. */
BY_NUMBER(ge);

/* pow_scalar(x, other): x to the power of other; small integer powers and roots are computed by multiplication and
 * sqrt. */
static tn_node *compose_pow_scalar(tn_build *b, const tn_node *n) {
    double e = n->f[0];
    tn_node *x = tn_b_cast(b, n->in[0], (tn_dtype)n->dtype);
    if (!x) return NULL;
    if (e == 1) return tn_b_contiguous(b, x);
    if (e == 2) return square(b, x);
    if (e == 3) return tn_b_mul(b, square(b, x), x);
    if (e == 0.5) return tn_b_sqrt(b, x);
    if (e == -0.5) return tn_b_rsqrt(b, x);
    if (e == -1 && math_is_float(x)) return tn_b_reciprocal(b, x);
    return tn_b_pow(b, x, tn_b_const(b, e, x));
}
OP_CODE(
    pow_scalar, .infer = infer_with_number, .compose = compose_pow_scalar,
    .cases =
        "types=f32,f64 tol=4ulp; [2,3] other=2; [2,3] other=3; [3]@0.5..3 other=0.5; [3]@0.5..3 other=-0.5; [3]@0.5..3 "
        "other=-1;"
        "[5]@0.5..3 other=2.7; [5] other=4; [3] other=1; [3] other=0; types=i32; [9]@-3..3 other=3; [9]@-3..3 other=5;"
        "[3]@1..4 other=0.5 tol=4ulp");
