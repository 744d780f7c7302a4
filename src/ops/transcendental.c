/* transcendental.c — pow, exp2, log2, log10, atan, atan2: primitives of several instructions each.
 *
 * The kernel language has exp and log, good to two units in the last place. That is not enough for a power: an error in
 * log x is multiplied by y and then becomes a relative error of the result. So log2 is computed here as an unevaluated
 * sum of two numbers of the type itself (no wider type is needed, so every device can do it), from the series
 *     log2 m = 2/ln 2 · (s + s³/3 + s⁵/5 + …),  s = (m − 1)/(m + 1),  √½ ≤ m < √2,
 * whose first term is exact to twice the precision. The series for atan is Taylor's, after reduction to |t| ≤ tan(π/8).
 * Both are cut where the first term left out is below the rounding error. */
#include <math.h>

#include "ops/common.h"

/* ---- a little arithmetic ----------------------------------------------------------------------------------------- */

/* A value as hi + lo, |lo| far below |hi|. */
typedef struct pair {
    kir_val hi, lo;
} pair;

/* What differs between f32 and f64. */
typedef struct float_layout {
    kir_type type, bits;
    int mantissa; /* bits behind the point */
    int64_t bias;
    int64_t root_half; /* the pattern of √½ */
    double least;      /* least normal number */
    int log_terms, atan_terms;
    double far;        /* an exponent at which 2^x is 0 or infinite, and half of which is still one */
    double huge_power; /* a y for which x^y is 0, 1 or infinite, for all x */
} float_layout;

static const float_layout single_layout = {KIR_F32, KIR_I32, 23, 127, 0x3F3504F3, 0x1p-126, 6, 10, 252, 1e10};
static const float_layout double_layout = {KIR_F64,   KIR_I64, 52, 1023, 0x3FE6A09E667F3BCD,
                                           0x1p-1022, 12,      22, 2044, 1e20};

static const float_layout *layout_of(const kir_builder *kb, kir_val v) {
    return kir_val_type(kb, v) == KIR_F64 ? &double_layout : &single_layout;
}

static kir_val pair_number(kir_builder *kb, kir_val like, double v) { return kir_const(kb, kir_val_type(kb, like), v); }
static kir_val add_pair(kir_builder *kb, kir_val a, kir_val b) { return kir_binary(kb, KIR_ADD, a, b); }
static kir_val sub(kir_builder *kb, kir_val a, kir_val b) { return kir_binary(kb, KIR_SUB, a, b); }
static kir_val mul(kir_builder *kb, kir_val a, kir_val b) { return kir_binary(kb, KIR_MUL, a, b); }
static kir_val divide_pair(kir_builder *kb, kir_val a, kir_val b) { return kir_binary(kb, KIR_DIV, a, b); }
static kir_val neg(kir_builder *kb, kir_val a) { return kir_unary(kb, KIR_NEG, a); }
static kir_val equal(kir_builder *kb, kir_val a, kir_val b) { return kir_binary(kb, KIR_EQ, a, b); }
static kir_val pair_less(kir_builder *kb, kir_val a, kir_val b) { return kir_binary(kb, KIR_LT, a, b); }
static kir_val and (kir_builder * kb, kir_val a, kir_val b) { return kir_binary(kb, KIR_AND, a, b); }

/* The constant v as hi + lo in the type of `like`. */
static pair pair_of(kir_builder *kb, kir_val like, long double v) {
    bool is_double = kir_val_type(kb, like) == KIR_F64;
    double hi = is_double ? (double)v : (double)(float)v;
    return (pair){pair_number(kb, like, hi), pair_number(kb, like, (double)(v - (long double)hi))};
}

static kir_val sign_bit(kir_builder *kb, kir_val v) {
    const float_layout *f = layout_of(kb, v);
    return pair_less(kb, kir_bitcast(kb, f->bits, v), kir_const_i(kb, f->bits, 0));
}

/* v · 2^n for a whole n, |n| ≤ far: in two steps, each of which has a pattern. */
static kir_val scale_by_power(kir_builder *kb, kir_val v, kir_val n) {
    const float_layout *f = layout_of(kb, v);
    kir_val whole = kir_cast(kb, f->bits, n);
    kir_val half = kir_binary(kb, KIR_SHR, whole, kir_const_i(kb, f->bits, 1));
    kir_val rest = sub(kb, whole, half);
    kir_val bias = kir_const_i(kb, f->bits, f->bias), shift = kir_const_i(kb, f->bits, f->mantissa);
    kir_val a = kir_bitcast(kb, f->type, kir_binary(kb, KIR_SHL, add_pair(kb, half, bias), shift));
    kir_val b = kir_bitcast(kb, f->type, kir_binary(kb, KIR_SHL, add_pair(kb, rest, bias), shift));
    return mul(kb, mul(kb, v, a), b);
}

/* 2^(z.hi + z.lo) */
static kir_val power_of_two(kir_builder *kb, pair z) {
    const float_layout *f = layout_of(kb, z.hi);
    kir_val far = pair_number(kb, z.hi, f->far);
    kir_val bounded = kir_binary(kb, KIR_MIN, kir_binary(kb, KIR_MAX, z.hi, neg(kb, far)), far);
    kir_val n = kir_rounding(kb, KIR_NEAREST_EVEN, bounded);
    kir_val is_near = equal(kb, bounded, z.hi);
    kir_val rest = add_pair(kb, sub(kb, bounded, n), kir_select(kb, is_near, z.lo, pair_number(kb, z.hi, 0)));
    kir_val v = kir_unary(kb, KIR_EXP, mul(kb, rest, pair_number(kb, z.hi, M_LN2)));
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
    return mul(kb, sum, z);
}

/* s = (m − 1)/(m + 1) to twice the precision: the rest of the division is exact. */
static pair ratio_of(kir_builder *kb, kir_val m) {
    kir_val one = pair_number(kb, m, 1);
    kir_val above = sub(kb, m, one), below = add_pair(kb, m, one);
    kir_val lost = sub(kb, m, sub(kb, below, one));
    kir_val hi = divide_pair(kb, above, below);
    kir_val rest = kir_fma(kb, neg(kb, hi), below, above);
    rest = kir_fma(kb, neg(kb, hi), lost, rest);
    return (pair){hi, divide_pair(kb, rest, below)};
}

/* log2 of a positive finite x. */
static pair log2_pair(kir_builder *kb, kir_val x) {
    const float_layout *f = layout_of(kb, x);
    kir_val tiny = pair_less(kb, x, pair_number(kb, x, f->least));
    kir_val grown = kir_select(kb, tiny, mul(kb, x, pair_number(kb, x, ldexp(1, f->mantissa + 2))), x);
    kir_val pattern = kir_bitcast(kb, f->bits, grown), shift = kir_const_i(kb, f->bits, f->mantissa);
    kir_val e = kir_binary(kb, KIR_SHR, sub(kb, pattern, kir_const_i(kb, f->bits, f->root_half)), shift);
    kir_val m = kir_bitcast(kb, f->type, sub(kb, pattern, kir_binary(kb, KIR_SHL, e, shift)));
    kir_val exponent = kir_cast(kb, f->type, e);
    exponent = kir_select(kb, tiny, sub(kb, exponent, pair_number(kb, x, f->mantissa + 2)), exponent);
    pair s = ratio_of(kb, m), c = pair_of(kb, x, 2.8853900817779268147198493620037842L); /* 2 / ln 2 */
    kir_val series = odd_series(kb, mul(kb, s.hi, s.hi), f->log_terms, false);
    kir_val small = add_pair(kb, s.lo, mul(kb, s.hi, series));
    kir_val hi = mul(kb, c.hi, s.hi);
    kir_val lo = kir_fma(kb, c.hi, s.hi, neg(kb, hi));
    lo = add_pair(kb, lo, kir_fma(kb, c.lo, s.hi, mul(kb, c.hi, small)));
    kir_val sum = add_pair(kb, exponent, hi);
    lo = add_pair(kb, sub(kb, hi, sub(kb, sum, exponent)), lo);
    kir_val top = add_pair(kb, sum, lo);
    return (pair){top, add_pair(kb, sub(kb, sum, top), lo)};
}

/* (a.hi + a.lo) · (b.hi + b.lo) */
static pair pair_times(kir_builder *kb, pair a, pair b) {
    kir_val hi = mul(kb, a.hi, b.hi);
    kir_val lo = kir_fma(kb, a.hi, b.hi, neg(kb, hi));
    return (pair){hi, add_pair(kb, lo, kir_fma(kb, a.hi, b.lo, mul(kb, a.lo, b.hi)))};
}

/* ---- exp2, log2, log10 ------------------------------------------------------------------------------------------- */

typedef double one_operand(double x);

static void map_one(const tn_reference *r, one_operand *f) {
    for (int64_t i = 0, count = tn_node_numel(r->node); i < count; i++)
        r->out[i] = f(r->in[0][i]);
}

/* exp2(x): 2 to the power of x; exact for whole x. */
static kir_val lower_exp2(tn_lower *lw, const tn_node *n, const kir_aff *at) {
    kir_val x = tn_lower_in(lw, n, 0, at);
    return power_of_two(lw->kb, (pair){x, pair_number(lw->kb, x, 0)});
}
static tn_status grad_exp2(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    grads[0] = tn_b_scale(b, tn_b_mul(b, dy, tn_b_self(n)), M_LN2);
    return b->status;
}
static void reference_exp2(const tn_reference *r) { map_one(r, exp2); }
const tn_op_impl tn_impl_exp2 = {.class_ = TN_ELEMENTWISE,
                                 .to_float = true,
                                 .infer = tn_infer_float,
                                 .grad = grad_exp2,
                                 .lower = lower_exp2,
                                 .reference = reference_exp2,
                                 .cases = "types=f32,f64,i32 tol=2ulp; [2,3]; [0,3]; []; [33]@-120..120 grad=off",
                                 .flops = 16};

/* log2 x for all x: the pair, and what holds at the edges. */
static kir_val log_edges(kir_builder *kb, kir_val x, kir_val v) {
    kir_val zero = pair_number(kb, x, 0), infinite = pair_number(kb, x, INFINITY);
    v = kir_select(kb, pair_less(kb, x, infinite), v, x); /* +∞ and NaN stay */
    v = kir_select(kb, pair_less(kb, x, zero), pair_number(kb, x, NAN), v);
    return kir_select(kb, equal(kb, x, zero), neg(kb, infinite), v);
}

/* log2(x): the logarithm to base 2; exact for powers of 2. */
static kir_val lower_log2(tn_lower *lw, const tn_node *n, const kir_aff *at) {
    kir_val x = tn_lower_in(lw, n, 0, at);
    return log_edges(lw->kb, x, log2_pair(lw->kb, x).hi);
}
static tn_status grad_log2(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    grads[0] = tn_b_div(b, dy, tn_b_scale(b, n->in[0], M_LN2));
    return b->status;
}
static void reference_log2(const tn_reference *r) { map_one(r, log2); }
#define LOGARITHM \
    "types=f32,f64,i32 tol=2ulp; [2,3]@0.1..9; [0,3]; []@1..5; [33]@1e-30..1e30 grad=off; [33]@0.99..1.01 grad=off"
const tn_op_impl tn_impl_log2 = {.class_ = TN_ELEMENTWISE,
                                 .to_float = true,
                                 .infer = tn_infer_float,
                                 .grad = grad_log2,
                                 .lower = lower_log2,
                                 .reference = reference_log2,
                                 .cases = LOGARITHM,
                                 .flops = 30};

/* log10(x): the logarithm to base 10. */
static kir_val lower_log10(tn_lower *lw, const tn_node *n, const kir_aff *at) {
    kir_builder *kb = lw->kb;
    kir_val x = tn_lower_in(lw, n, 0, at);
    pair v = pair_times(kb, log2_pair(kb, x), pair_of(kb, x, 0.30102999566398119521373889472449302677L)); /* log10 2 */
    return log_edges(kb, x, add_pair(kb, v.hi, v.lo));
}
static tn_status grad_log10(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    grads[0] = tn_b_div(b, dy, tn_b_scale(b, n->in[0], M_LN10));
    return b->status;
}
static void reference_log10(const tn_reference *r) { map_one(r, log10); }
const tn_op_impl tn_impl_log10 = {.class_ = TN_ELEMENTWISE,
                                  .to_float = true,
                                  .infer = tn_infer_float,
                                  .grad = grad_log10,
                                  .lower = lower_log10,
                                  .reference = reference_log10,
                                  .cases = LOGARITHM,
                                  .flops = 32};

/* ---- pow --------------------------------------------------------------------------------------------------------- */

/* By repeated squaring; a negative exponent gives 1/x^|y|, which is whole for x = ±1 alone and 0 otherwise. */
static kir_val pow_integers(kir_builder *kb, kir_val x, kir_val y) {
    kir_type t = kir_val_type(kb, x);
    int width = (int)kir_type_size(t) * 8;
    kir_val zero = kir_const_i(kb, t, 0), one = kir_const_i(kb, t, 1);
    kir_val result = one, factor = x;
    for (int bit = 0; bit < width - 1; bit++) {
        kir_val taken = and(kb, kir_binary(kb, KIR_SHR, y, kir_const_i(kb, t, bit)), one);
        result = kir_select(kb, equal(kb, taken, zero), result, mul(kb, result, factor));
        factor = mul(kb, factor, factor);
    }
    if (t == KIR_U32 || t == KIR_U64) return result;
    kir_val odd = equal(kb, and(kb, y, one), one), minus_one = kir_const_i(kb, t, -1);
    kir_val inverse = kir_select(kb, equal(kb, x, minus_one), kir_select(kb, odd, minus_one, one), zero);
    inverse = kir_select(kb, equal(kb, x, one), one, inverse);
    return kir_select(kb, pair_less(kb, y, zero), inverse, result);
}

/* |x|^y where |x| is neither 0 nor infinite. */
static kir_val pow_plain(kir_builder *kb, kir_val size, kir_val y) {
    kir_val most = pair_number(kb, y, layout_of(kb, y)->huge_power);
    kir_val bounded = kir_binary(kb, KIR_MIN, kir_binary(kb, KIR_MAX, y, neg(kb, most)), most);
    return power_of_two(kb, pair_times(kb, log2_pair(kb, size), (pair){bounded, pair_number(kb, y, 0)}));
}

static kir_val pow_floats(kir_builder *kb, kir_val x, kir_val y) {
    kir_val zero = pair_number(kb, x, 0), one = pair_number(kb, x, 1), infinite = pair_number(kb, x, INFINITY),
            nan = pair_number(kb, x, NAN);
    kir_val size = kir_unary(kb, KIR_ABS, x);
    kir_val falls = pair_less(kb, y, zero);
    kir_val v = pow_plain(kb, size, y);
    v = kir_select(kb, equal(kb, size, zero), kir_select(kb, falls, infinite, zero), v);
    v = kir_select(kb, equal(kb, size, infinite), kir_select(kb, falls, zero, infinite), v);
    kir_val half = mul(kb, y, pair_number(kb, y, 0.5));
    kir_val whole = equal(kb, kir_rounding(kb, KIR_TRUNC, y), y);
    kir_val even = equal(kb, kir_rounding(kb, KIR_TRUNC, half), half);
    kir_val odd = kir_select(kb, even, kir_const_i(kb, KIR_BOOL, 0), whole);
    v = kir_select(kb, and(kb, odd, sign_bit(kb, x)), neg(kb, v), v);
    kir_val minus = and(kb, pair_less(kb, x, zero), pair_less(kb, neg(kb, infinite), x));
    v = kir_select(kb, and(kb, minus, kir_select(kb, whole, kir_const_i(kb, KIR_BOOL, 0), minus)), nan, v);
    v = kir_select(kb, equal(kb, x, x), v, x);
    v = kir_select(kb, equal(kb, y, y), v, y);
    v = kir_select(kb, equal(kb, x, one), one, v);
    return kir_select(kb, equal(kb, y, zero), one, v);
}

/* pow(x, y): x to the power of y, with C's results at the edges. Integers stay integers and wrap; to a negative power
 * only 1 and −1 give anything but 0. */
static kir_val lower_pow(tn_lower *lw, const tn_node *n, const kir_aff *at) {
    kir_val x = tn_lower_in(lw, n, 0, at);
    kir_val y = tn_lower_in(lw, n, 1, at);
    return tn_dtype_is_float((tn_dtype)n->dtype) ? pow_floats(lw->kb, x, y) : pow_integers(lw->kb, x, y);
}
/* d/dx = y · x^(y−1), 0 for y = 0; d/dy = x^y · log x, 0 where 0 is raised to no negative power. */
static tn_status grad_pow(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
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
    return b->status;
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
const tn_op_impl tn_impl_pow = {
    .class_ = TN_ELEMENTWISE,
    .promote = true,
    .infer = tn_infer_not_bool,
    .grad = grad_pow,
    .lower = lower_pow,
    .reference = reference_pow,
    .cases =
        "types=f32,f64 tol=4ulp; [2,3]@0.3..4 [2,3]; [3,1]@0.3..4 [4]; [0,3] [3]; [99]@1e-3..1e3 [99]@-12..12 grad=off;"
        "[9]@-3..3 []@3..3 grad=off; [9]@0.99..1.01 [9]@-3000..3000 grad=off;"
        "types=i32,i64; [9]@-3..3 [9]@0..9; [9]@-2..2 [9]@-3..3; error=broadcast [2] [3]",
    .flops = 50};

/* ---- atan, atan2 ------------------------------------------------------------------------------------------------- */

/* atan of 0 ≤ t ≤ 1 */
static kir_val atan_unit(kir_builder *kb, kir_val t) {
    const float_layout *f = layout_of(kb, t);
    kir_val one = pair_number(kb, t, 1), zero = pair_number(kb, t, 0);
    kir_val far = pair_less(kb, pair_number(kb, t, 0.41421356237309503), t); /* tan(π/8) */
    kir_val q = kir_select(kb, far, divide_pair(kb, sub(kb, t, one), add_pair(kb, t, one)), t);
    pair quarter = pair_of(kb, t, 0.785398163397448309615660845819875721L); /* π/4 */
    kir_val series = mul(kb, q, odd_series(kb, mul(kb, q, q), f->atan_terms, true));
    kir_val lo = add_pair(kb, series, kir_select(kb, far, quarter.lo, zero));
    return add_pair(kb, kir_select(kb, far, quarter.hi, zero), add_pair(kb, q, lo));
}

static kir_val angle(kir_builder *kb, kir_val y, kir_val x) {
    kir_val v = kir_unary(kb, KIR_ABS, y), h = kir_unary(kb, KIR_ABS, x);
    kir_val least = kir_binary(kb, KIR_MIN, v, h), most = kir_binary(kb, KIR_MAX, v, h);
    kir_val t = divide_pair(kb, least, most);
    t = kir_select(kb, equal(kb, most, pair_number(kb, x, 0)), most, t);
    t = kir_select(kb, equal(kb, least, pair_number(kb, x, INFINITY)), pair_number(kb, x, 1), t);
    kir_val a = atan_unit(kb, t);
    pair half = pair_of(kb, x, 1.57079632679489661923132169163975144L),
         whole = pair_of(kb, x, 3.14159265358979323846264338327950288L);
    a = kir_select(kb, pair_less(kb, h, v), sub(kb, half.hi, sub(kb, a, half.lo)), a);
    a = kir_select(kb, sign_bit(kb, x), sub(kb, whole.hi, sub(kb, a, whole.lo)), a);
    a = kir_select(kb, sign_bit(kb, y), neg(kb, a), a);
    kir_val sum = add_pair(kb, x, y), numbers = and(kb, equal(kb, x, x), equal(kb, y, y));
    return kir_select(kb, numbers, a, sum);
}

/* atan(x): the angle in [−π/2, π/2] whose tangent is x. */
static kir_val lower_atan(tn_lower *lw, const tn_node *n, const kir_aff *at) {
    kir_val x = tn_lower_in(lw, n, 0, at);
    return angle(lw->kb, x, pair_number(lw->kb, x, 1));
}
static tn_status grad_atan(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    grads[0] = tn_b_div(b, dy, tn_b_offset(b, tn_b_mul(b, n->in[0], n->in[0]), 1));
    return b->status;
}
static void reference_atan(const tn_reference *r) { map_one(r, atan); }
const tn_op_impl tn_impl_atan = {.class_ = TN_ELEMENTWISE,
                                 .to_float = true,
                                 .infer = tn_infer_float,
                                 .grad = grad_atan,
                                 .lower = lower_atan,
                                 .reference = reference_atan,
                                 .cases = "types=f32,f64,i32 tol=4ulp; [2,3]; [0,3]; []; [99]@-20..20 grad=off",
                                 .flops = 40};

/* atan2(y, x): the angle in [−π, π] of the point (x, y), signed zeros and infinities as in C. */
static kir_val lower_atan2(tn_lower *lw, const tn_node *n, const kir_aff *at) {
    kir_val y = tn_lower_in(lw, n, 0, at);
    kir_val x = tn_lower_in(lw, n, 1, at);
    return angle(lw->kb, y, x);
}
static tn_status grad_atan2(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    tn_node *y = n->in[0], *x = n->in[1], *none = tn_b_const(b, 0, n);
    tn_node *square = tn_b_add(b, tn_b_mul(b, x, x), tn_b_mul(b, y, y));
    tn_node *is_none = tn_b_eq(b, square, none), *divisor = tn_b_where(b, is_none, tn_b_const(b, 1, n), square);
    tn_node *share = tn_b_where(b, is_none, none, tn_b_div(b, dy, divisor));
    if (tn_needs_grad(n, 0)) grads[0] = tn_b_sum_to(b, tn_b_mul(b, share, x), y);
    if (tn_needs_grad(n, 1)) grads[1] = tn_b_sum_to(b, tn_b_neg(b, tn_b_mul(b, share, y)), x);
    return b->status;
}
static void reference_atan2(const tn_reference *r) {
    for (tn_walk w = tn_walk_begin(r->node); w.place < w.count; tn_walk_next(&w))
        r->out[w.place] = atan2(r->in[0][w.in[0]], r->in[1][w.in[1]]);
}
const tn_op_impl tn_impl_atan2 = {.class_ = TN_ELEMENTWISE,
                                  .promote = true,
                                  .to_float = true,
                                  .infer = tn_infer_float,
                                  .grad = grad_atan2,
                                  .lower = lower_atan2,
                                  .reference = reference_atan2,
                                  .cases =
                                      "types=f32,f64 tol=4ulp; [2,3] [2,3]; [3,1] [4]; [0,3] [3]; [99] [99] grad=off",
                                  .flops = 40};
