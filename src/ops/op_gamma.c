/* op_gamma.c — element by element, composed: logarithm of the gamma function and its derivatives.
 *
 * Stirling's series needs arguments of 8 and more: smaller ones are shifted with Γ(z + 1) = z·Γ(z), by 8 or to where
 * lgamma has a polynomial. Negative ones are reflected. Source: Abramowitz and Stegun 6.1 to 6.4. */
#include <math.h>

#include "ops/ops_common.h"

enum { SHIFT = 8, TERMS = 8 };
/* Bernoulli numbers B2, B4 … */
static const double bernoulli[TERMS] = {1.0 / 6,  -1.0 / 30,     1.0 / 42, -1.0 / 30,
                                        5.0 / 66, -691.0 / 2730, 7.0 / 6,  -3617.0 / 510};

static tn_node *is_below_zero(tn_build *b, tn_node *x) { return tn_b_lt(b, x, tn_b_const(b, 0, x)); }

/* x, or 1 − x where x is negative: never negative. */
static tn_node *reflected(tn_build *b, tn_node *x) {
    return tn_b_where(b, is_below_zero(b, x), tn_b_rsub_scalar(b, x, 1), x);
}

/* π·x modulo π of a negative x, in [−π/2, π/2]; π/2 elsewhere. */
static tn_node *turn_of_negative(tn_build *b, tn_node *x) {
    tn_node *rest = tn_b_scale(b, tn_b_sub(b, x, tn_b_round(b, x)), M_PI);
    return tn_b_where(b, is_below_zero(b, x), rest, tn_b_const(b, M_PI / 2, x));
}

/* |sin(π·x)| of a negative x, 1 elsewhere. Near its poles and halfway between them what is small is small before it is
 * multiplied by π, and so are derivatives. */
static tn_node *sine_of_negative(tn_build *b, tn_node *x) {
    tn_node *rest = tn_b_abs(b, tn_b_sub(b, x, tn_b_round(b, x))), *half = tn_b_rsub_scalar(b, rest, 0.5);
    tn_node *near = tn_b_lt(b, rest, tn_b_const(b, 0.25, x));
    tn_node *sine = tn_b_where(b, near, tn_b_sin(b, tn_b_scale(b, rest, M_PI)), tn_b_cos(b, tn_b_scale(b, half, M_PI)));
    return tn_b_where(b, is_below_zero(b, x), sine, tn_b_const(b, 1, x));
}

/* Σ coefficients[k] · xᵏ */
static tn_node *series(tn_build *b, tn_node *x, const double *coefficients, int count) {
    tn_node *sum = tn_b_const(b, coefficients[count - 1], x);
    for (int k = count - 1; k-- > 0;)
        sum = tn_b_offset(b, tn_b_mul(b, sum, x), coefficients[k]);
    return sum;
}

/* ---- lgamma ------------------------------------------------------------------------------------------------------ */

static double lgamma_term(int k) { return bernoulli[k] / (2.0 * (k + 1) * (2.0 * k + 1)); }

/* log Γ(z) of |z − 1.5| ≤ 0.8, which is 0 at 1 and 2: (z − 1)·(z − 2) times a polynomial of z − 1.5 (interpolated at
 * Chebyshev's points, 5e-17 off). */
static tn_node *lgamma_between(tn_build *b, tn_node *t) {
    static const double coefficients[] = {
        0.483128950540980867,     -0.145959895914306067,     0.0629114010745789024,   -0.0313084875010200466,
        0.01679709862977359,      -0.0094256224475540567,    0.00544645790072285048,  -0.00321207411359163217,
        0.00192291497917620701,   -0.00116441372174362998,   0.00071153657945884473,  -0.000438004400315657575,
        0.000271163212313103499,  -0.000168820535345846115,  0.000106234607983236236, -0.0000667093922488342128,
        0.0000395115986231273718, -0.0000249320522512590594, 0.000022576234455401021, -0.0000144145206570200598,
        -3.63990657953482292e-6,  2.42426861272071327e-6,    0.000015091550922469403, -9.75389784992839539e-6,
        -7.87344544655477863e-6,  5.10445407477450198e-6,    3.78008579820800946e-6,  -2.44509624909311784e-6};
    tn_node *roots = tn_b_mul(b, tn_b_offset(b, t, 0.5), tn_b_offset(b, t, -0.5));
    return tn_b_mul(b, roots, series(b, t, coefficients, sizeof coefficients / sizeof *coefficients));
}

/* log Γ(z) of 0.7 ≤ z < 8 is log Γ(z − m), which lies in the polynomial's range, plus the logarithm of `factor`,
 * (z − 1) … (z − m); of z < 0.7 it is log Γ(z + 1) − log z. Neither cancels. */
static tn_node *lgamma_shifted(tn_build *b, tn_node *z, tn_node **factor) {
    tn_node *one = tn_b_const(b, 1, z), *rest = z, *product = one;
    for (int k = 1; k <= SHIFT - 2; k++) {
        tn_node *next = tn_b_offset(b, z, -k), *more = tn_b_gt(b, next, tn_b_const(b, 1.3, z));
        product = tn_b_mul(b, product, tn_b_where(b, more, next, one));
        rest = tn_b_where(b, more, next, rest);
    }
    tn_node *low = tn_b_lt(b, z, tn_b_const(b, 0.7, z));
    *factor = tn_b_where(b, low, z, product);
    return tn_b_where(b, low, tn_b_offset(b, z, 1), rest);
}

/* log Γ(z) of z ≥ 0. */
static tn_node *lgamma_of(tn_build *b, tn_node *z) {
    double coefficients[TERMS];
    for (int k = 0; k < TERMS; k++)
        coefficients[k] = lgamma_term(k);
    tn_node *small = tn_b_lt(b, z, tn_b_const(b, SHIFT, z)), *factor;
    tn_node *shifted = lgamma_shifted(b, tn_b_where(b, small, z, tn_b_const(b, 1, z)), &factor);
    tn_node *y = tn_b_where(b, small, tn_b_const(b, SHIFT, z), z), *inverse = tn_b_reciprocal(b, y);
    tn_node *log_of = tn_b_log(b, tn_b_where(b, small, factor, z));
    tn_node *rest = tn_b_mul(b, series(b, tn_b_mul(b, inverse, inverse), coefficients, TERMS), inverse);
    tn_node *main_part = tn_b_sub(b, tn_b_mul(b, tn_b_offset(b, y, -0.5), log_of), y);
    tn_node *large = tn_b_add(b, tn_b_offset(b, main_part, 0.5 * log(2 * M_PI)), rest);
    tn_node *signed_log = tn_b_where(b, tn_b_lt(b, z, tn_b_const(b, 0.7, z)), tn_b_neg(b, log_of), log_of);
    tn_node *near = tn_b_add(b, lgamma_between(b, tn_b_offset(b, shifted, -1.5)), signed_log);
    return tn_b_where(b, small, near, large);
}

static tn_node *compose_lgamma(tn_build *b, const tn_node *n) {
    tn_node *x = n->in[0], *own = lgamma_of(b, reflected(b, x));
    tn_node *sine = sine_of_negative(b, x), *pole = tn_b_eq(b, sine, tn_b_const(b, 0, x));
    tn_node *mirrored = tn_b_sub(b, tn_b_rsub_scalar(b, tn_b_log(b, sine), log(M_PI)), own);
    tn_node *y = tn_b_where(b, is_below_zero(b, x), mirrored, own);
    return tn_b_where(b, tn_b_logical_or(b, tn_b_isinf(b, x), pole), tn_b_const(b, INFINITY, x), y);
}

static tn_node *grad_lgamma(tn_build *b, const tn_node *n, tn_node *dy) {
    return tn_b_mul(b, dy, tn_b_digamma(b, n->in[0]));
}

/* lgamma(x): the natural logarithm of |Γ(x)|; infinite at 0 and negative whole numbers. */
OP_CODE(lgamma, .to_float = true, .infer = tn_infer_float, .compose = compose_lgamma, .grad_first = grad_lgamma,
        .define_one = lgamma,
        .cases = "types=f32,f64 tol=6e-7 atol=2e-7 special=off; [3,5]@0.1..9; [4]@0.6..0.8; [6]@2.2..2.6; [9]@9..1e4; "
                 "[5]@-0.45..-0.1 tol=4e-6; [5]@-1.8..-1.2 tol=4e-6; [7]@-2.9..-2.1 tol=6e-7 atol=6e-7 grad=off; "
                 "[2]@0..0 grad=off; [0,3]; []@3..4; types=i32; [4]@3..9");

/* ---- digamma ----------------------------------------------------------------------------------------------------- */

/* ψ(z) of z ≥ 0. */
static tn_node *digamma_of(tn_build *b, tn_node *z) {
    double coefficients[TERMS];
    for (int k = 0; k < TERMS; k++)
        coefficients[k] = bernoulli[k] / (2.0 * (k + 1));
    tn_node *before = tn_b_reciprocal(b, z); /* keeps the sign of a zero */
    for (int k = 1; k < SHIFT; k++)
        before = tn_b_add(b, before, tn_b_reciprocal(b, tn_b_offset(b, z, k)));
    tn_node *y = tn_b_offset(b, z, SHIFT), *inverse = tn_b_reciprocal(b, y), *square = tn_b_mul(b, inverse, inverse);
    tn_node *rest =
        tn_b_add(b, tn_b_scale(b, inverse, 0.5), tn_b_mul(b, series(b, square, coefficients, TERMS), square));
    return tn_b_sub(b, tn_b_sub(b, tn_b_log(b, y), rest), before);
}

static tn_node *compose_digamma(tn_build *b, const tn_node *n) {
    tn_node *x = n->in[0], *own = digamma_of(b, reflected(b, x)), *turn = turn_of_negative(b, x);
    tn_node *slope = tn_b_div(b, tn_b_scale(b, tn_b_cos(b, turn), M_PI), tn_b_sin(b, turn));
    tn_node *pole = tn_b_eq(b, turn, tn_b_const(b, 0, turn));
    tn_node *mirrored = tn_b_where(b, pole, tn_b_const(b, NAN, x), tn_b_sub(b, own, slope));
    return tn_b_where(b, is_below_zero(b, x), mirrored, own);
}

static tn_node *grad_digamma(tn_build *b, const tn_node *n, tn_node *dy) {
    return tn_b_mul(b, dy, tn_b_trigamma(b, n->in[0]));
}

/* By another way: a long shift, few terms. */
static double digamma_by_steps(double x) {
    double sum = 0;
    if (x < 0 && x == floor(x)) return NAN;
    if (x < 0) return digamma_by_steps(1 - x) - M_PI / tan(M_PI * (x - floor(x)));
    for (; x < 200; x += 1)
        sum -= 1 / x;
    double s = 1 / (x * x);
    return sum + log(x) - 0.5 / x - s / 12 + s * s / 120 - s * s * s / 252;
}

/* digamma(x): the derivative of lgamma; infinite at 0, NaN at negative whole numbers. */
OP_CODE(
    digamma, .to_float = true, .infer = tn_infer_float, .compose = compose_digamma, .grad_first = grad_digamma,
    .define_one = digamma_by_steps,
    .cases =
        "types=f32,f64 tol=4e-6 atol=4e-6 special=off; [3,5]@2..9; [4]@0.1..1.2; [9]@9..1e4; [5]@-0.4..-0.1 tol=2e-5 "
        "atol=2e-5; [5]@-1.4..-1.1 tol=2e-5 atol=2e-5; [2]@0..0 grad=off; [0,3]; []@2..3; types=i32; [4]@2..9");

/* ---- trigamma ---------------------------------------------------------------------------------------------------- */

/* Σ 1 / (z + k)² of z ≥ 0. */
static tn_node *trigamma_of(tn_build *b, tn_node *z) {
    tn_node *sum = NULL;
    for (int k = 0; k < SHIFT; k++) {
        tn_node *inverse = tn_b_reciprocal(b, k ? tn_b_offset(b, z, k) : z), *term = tn_b_mul(b, inverse, inverse);
        sum = sum ? tn_b_add(b, sum, term) : term;
    }
    tn_node *inverse = tn_b_reciprocal(b, tn_b_offset(b, z, SHIFT)), *square = tn_b_mul(b, inverse, inverse);
    tn_node *rest = tn_b_mul(b, series(b, square, bernoulli, TERMS), tn_b_mul(b, square, inverse));
    return tn_b_add(b, sum, tn_b_add(b, tn_b_add(b, inverse, tn_b_scale(b, square, 0.5)), rest));
}

static tn_node *compose_trigamma(tn_build *b, const tn_node *n) {
    tn_node *x = n->in[0], *own = trigamma_of(b, reflected(b, x));
    tn_node *ratio = tn_b_scale(b, tn_b_reciprocal(b, sine_of_negative(b, x)), M_PI);
    return tn_b_where(b, is_below_zero(b, x), tn_b_sub(b, tn_b_mul(b, ratio, ratio), own), own);
}

static double trigamma_by_steps(double x) {
    double sum = 0;
    if (x < 0) return pow(M_PI / sin(M_PI * (x - floor(x))), 2) - trigamma_by_steps(1 - x);
    for (; x < 200; x += 1)
        sum += 1 / (x * x);
    double s = 1 / (x * x);
    return sum + 1 / x + s / 2 + s / (6 * x) - s * s / (30 * x);
}

/* trigamma(x): the derivative of digamma, polygamma(1, x) of PyTorch; infinite at 0 and negative whole numbers. Its
 * gradient follows from the composition, to any order. */
OP_CODE(trigamma, .to_float = true, .infer = tn_infer_float, .compose = compose_trigamma,
        .define_one = trigamma_by_steps,
        .cases = "types=f32,f64 tol=4e-6 atol=4e-6 special=off; [3,5]@0.2..9; [9]@9..1e4; "
                 "[7]@-7..-1~0.2 tol=2e-5 atol=2e-5; [2]@0..0 grad=off; [0,3]; []@2..3; "
                 "types=i32; [4]@1..9");
