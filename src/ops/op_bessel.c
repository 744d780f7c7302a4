/* op_bessel.c — element by element, composed: modified Bessel functions of the first kind, i0, i0e, i1, i1e.
 *
 * Up to 20 the power series, whose terms are all positive; beyond, the asymptotic series. Both are computed divided by
 * exp(|x|), as i0e and i1e. Source: Abramowitz and Stegun 9.6.10 and 9.7.1. */
#include <math.h>

#include "ops/ops_common.h"

enum { POWERS = 40, ASYMPTOTIC = 24, NEAR = 20 };

/* Horner's scheme with the ratios of neighbouring coefficients: Σ xᵏ · ratio(1) … ratio(k). */
static tn_node *by_ratios(tn_build *b, tn_node *x, int terms, double (*ratio)(int order, int k), int order) {
    tn_node *sum = tn_b_const(b, 1, x);
    for (int k = terms; k > 0; k--)
        sum = tn_b_offset(b, tn_b_mul(b, tn_b_scale(b, x, ratio(order, k)), sum), 1);
    return sum;
}

static double power_ratio(int order, int k) { return 1.0 / ((double)k * (k + order)); }

static double asymptotic_ratio(int order, int k) {
    return ((2.0 * k - 1) * (2.0 * k - 1) - 4.0 * order * order) / (8.0 * k);
}

/* I of this order divided by exp(|x|). */
static tn_node *scaled(tn_build *b, tn_node *x, int order) {
    tn_node *size = tn_b_abs(b, x), *bound = tn_b_const(b, NEAR, x), *near = tn_b_le(b, size, bound);
    tn_node *small = tn_b_where(b, near, size, tn_b_const(b, 0, x)), *large = tn_b_where(b, near, bound, size);
    tn_node *half = tn_b_scale(b, small, 0.5);
    tn_node *powers = by_ratios(b, tn_b_mul(b, half, half), POWERS, power_ratio, order);
    if (order) powers = tn_b_mul(b, powers, half);
    powers = tn_b_mul(b, powers, tn_b_exp(b, tn_b_neg(b, small)));
    tn_node *far = by_ratios(b, tn_b_reciprocal(b, large), ASYMPTOTIC, asymptotic_ratio, order);
    far = tn_b_mul(b, far, tn_b_scale(b, tn_b_rsqrt(b, large), 1 / sqrt(2 * M_PI)));
    tn_node *y = tn_b_where(b, near, powers, far);
    return order ? tn_b_where(b, tn_b_lt(b, x, tn_b_const(b, 0, x)), tn_b_neg(b, y), y) : y;
}

/* y · exp(|x|), in two steps: the product may be a number where exp(|x|) is none. */
static tn_node *grown(tn_build *b, tn_node *x, tn_node *y) {
    tn_node *step = tn_b_exp(b, tn_b_scale(b, tn_b_abs(b, x), 0.5));
    return tn_b_mul(b, tn_b_mul(b, y, step), step);
}

static tn_node *compose_i0e(tn_build *b, const tn_node *n) { return scaled(b, n->in[0], 0); }
static tn_node *compose_i1e(tn_build *b, const tn_node *n) { return scaled(b, n->in[0], 1); }
static tn_node *compose_i0(tn_build *b, const tn_node *n) { return grown(b, n->in[0], scaled(b, n->in[0], 0)); }
static tn_node *compose_i1(tn_build *b, const tn_node *n) { return grown(b, n->in[0], scaled(b, n->in[0], 1)); }

/* y / x, the half of `even` at 0 (the limit). */
static tn_node *over(tn_build *b, tn_node *y, tn_node *x, tn_node *even) {
    tn_node *zero = tn_b_eq(b, x, tn_b_const(b, 0, x)), *safe = tn_b_where(b, zero, tn_b_const(b, 1, x), x);
    return tn_b_where(b, zero, tn_b_scale(b, even, 0.5), tn_b_div(b, y, safe));
}

static tn_node *grad_i0(tn_build *b, const tn_node *n, tn_node *dy) { return tn_b_mul(b, dy, tn_b_i1(b, n->in[0])); }

static tn_node *grad_i1(tn_build *b, const tn_node *n, tn_node *dy) {
    tn_node *x = n->in[0], *even = tn_b_i0e(b, x), *slope = tn_b_sub(b, even, over(b, tn_b_i1e(b, x), x, even));
    return tn_b_mul(b, dy, grown(b, x, slope));
}

static tn_node *grad_i0e(tn_build *b, const tn_node *n, tn_node *dy) {
    tn_node *x = n->in[0], *down = tn_b_mul(b, tn_b_sign(b, x), tn_b_self(n));
    return tn_b_mul(b, dy, tn_b_sub(b, tn_b_i1e(b, x), down));
}

static tn_node *grad_i1e(tn_build *b, const tn_node *n, tn_node *dy) {
    tn_node *x = n->in[0], *even = tn_b_i0e(b, x), *y = tn_b_self(n);
    tn_node *slope = tn_b_sub(b, even, over(b, y, x, even));
    return tn_b_mul(b, dy, tn_b_sub(b, slope, tn_b_mul(b, tn_b_sign(b, x), y)));
}

/* The mean of exp(x·cos t − |x|·scaled) · cos(order·t) over a period: the trapezoidal rule converges exponentially. */
static double bessel_by_integral(double x, int order, bool is_scaled) {
    enum { POINTS = 1 << 12 };
    double sum = 0;
    if (x == 0) return order ? 0 : 1;
    for (int i = 0; i < POINTS; i++) {
        double t = 2 * M_PI * i / POINTS;
        sum += exp(x * cos(t) - (is_scaled ? fabs(x) : 0)) * cos(order * t);
    }
    return sum / POINTS;
}

static double define_i0(double x) { return bessel_by_integral(x, 0, false); }
static double define_i0e(double x) { return bessel_by_integral(x, 0, true); }
static double define_i1(double x) { return bessel_by_integral(x, 1, false); }
static double define_i1e(double x) { return bessel_by_integral(x, 1, true); }

/* i0(x): the modified Bessel function of the first kind, of order 0. */
OP_CODE(i0, .to_float = true, .infer = tn_infer_float, .compose = compose_i0, .grad_first = grad_i0,
        .define_one = define_i0,
        .cases = "types=f32,f64 tol=4e-6 atol=4e-6 special=off; [3,5]@-8..8; [5]@15..40 tol=8e-6 grad=off; "
                 "[2]@0..0; [0,3]; []@2..3; types=i32; [4]@-5..9");

/* i0e(x): i0(x) · exp(−|x|), which does not overflow. */
OP_CODE(i0e, .to_float = true, .infer = tn_infer_float, .compose = compose_i0e, .grad_first = grad_i0e,
        .define_one = define_i0e,
        .cases = "types=f32,f64 tol=4e-6 atol=4e-6 special=off; [3,5]@-8..8~0.1; [9]@15..1e3; "
                 "[2]@0..0 grad=off; [0,3]; []@2..3");

/* i1(x): the modified Bessel function of the first kind, of order 1. */
OP_CODE(i1, .to_float = true, .infer = tn_infer_float, .compose = compose_i1, .grad_first = grad_i1,
        .define_one = define_i1,
        .cases = "types=f32,f64 tol=4e-6 atol=4e-6 special=off; [3,5]@-8..8~0.1; [5]@15..40 "
                 "tol=8e-6 grad=off; [2]@0..0 grad=off; [0,3]; []@2..3; types=i32; [4]@-5..9");

/* i1e(x): i1(x) · exp(−|x|), which does not overflow. */
OP_CODE(i1e, .to_float = true, .infer = tn_infer_float, .compose = compose_i1e, .grad_first = grad_i1e,
        .define_one = define_i1e,
        .cases = "types=f32,f64 tol=4e-6 atol=4e-6 special=off; [3,5]@-8..8~0.1; [9]@15..1e3; "
                 "[2]@0..0 grad=off; [0,3]; []@2..3");
