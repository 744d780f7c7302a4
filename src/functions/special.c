/* special.c — special functions composed of operations: polygamma.
 *
 * polygamma(n, x) is (-1)^(n+1) · n! · zeta(n + 1, x), Hurwitz's zeta function by Euler and Maclaurin's formula. For
 * x <= 0 it is reflected: the derivatives of cot are polynomials in cot. */
#include "functions/common.h"

/* MOST_F32_ORDER: above it n! and zeta leave the range of f32 where their product does not. */
enum { MOST_ORDER = 100, MOST_F32_ORDER = 12 };

/* sum over k of (z + k)^-s, for z > 0 and whole s > 1. Source: DLMF 25.11.5 with the Bernoulli numbers of 24.2. */
static tn_tensor *hurwitz_zeta(const tn_tensor *z, int s) {
    static const double bernoulli[] = {/* B_2j / (2j)! */
                                       1 / 12.0,          -1 / 720.0,
                                       1 / 30240.0,       -1 / 1209600.0,
                                       1 / 47900160.0,    -691 / 1307674368000.0,
                                       1 / 74724249600.0, -3617 / 10670622842880000.0};
    const int shift = 10 + s;
    tn_tensor *w = tn_add_scalar(z, shift), *power = tn_pow_scalar(w, -s), *inverse = tn_reciprocal(w);
    tn_tensor *rest = tn_add(tn_mul_scalar(tn_mul(power, w), 1.0 / (s - 1)), tn_mul_scalar(power, 0.5));
    double factor = s;
    power = tn_mul(power, inverse);
    for (int j = 0; j < (int)(sizeof bernoulli / sizeof *bernoulli); j++) {
        rest = tn_add(rest, tn_mul_scalar(power, bernoulli[j] * factor));
        power = tn_mul(power, tn_mul(inverse, inverse));
        factor *= (double)(s + 2 * j + 1) * (s + 2 * j + 2);
    }
    for (int k = shift - 1; k >= 0; k--) /* the smallest first */
        rest = tn_add(rest, tn_pow_scalar(tn_add_scalar(z, k), -s));
    return rest;
}

/* The n-th derivative of cot(pi·x): pi^n · P(cot(pi·x)), where P becomes -(1 + c²)·P' with each derivative. */
static tn_tensor *cot_derivative(const tn_tensor *x, int n) {
    double p[MOST_ORDER + 2] = {0, 1}, next[MOST_ORDER + 2], scale = pow(M_PI, n);
    for (int k = 0; k < n; k++) {
        memset(next, 0, sizeof next);
        for (int i = 1; i <= k + 1; i++) {
            next[i - 1] -= i * p[i];
            next[i + 1] -= i * p[i];
        }
        memcpy(p, next, sizeof p);
    }
    /* Of the fraction r, beyond a quarter by the tangent: it has the digits where cot is near 0. */
    tn_tensor *r = tn_sub(x, tn_round(x)), *far = tn_gt_scalar(tn_abs(r), 0.25);
    tn_tensor *near = tn_where(far, tn_sub(tn_mul_scalar(tn_sign(r), 0.5), r), r);
    tn_tensor *t = tn_tan(tn_mul_scalar(near, M_PI));
    tn_tensor *c = tn_where(far, t, tn_reciprocal(tn_where(far, tn_scalar(1), t)));
    tn_tensor *square = tn_mul(c, c), *sum = tn_full_like(x, p[n + 1] * scale);
    for (int i = n - 1; i >= 0; i -= 2) /* every other coefficient is 0 */
        sum = tn_add_scalar(tn_mul(sum, square), p[i] * scale);
    return n % 2 ? sum : tn_mul(sum, c);
}

tn_tensor *(tn_polygamma)(int64_t n, const tn_tensor *x) {
    TN_FUNCTION("polygamma");
    tn_tensor *bad = refused(x);
    if (bad) return tn_keep(bad);
    if (n < 0 || n > MOST_ORDER)
        return tn_keep(
            tn_failed(TN_ERR_ARGUMENT, "polygamma: n is %lld; it must be 0 to %d", (long long)n, MOST_ORDER));
    if (n < 2) return tn_keep(n ? tn_trigamma(x) : tn_digamma(x));
    if (are_halves(x, NULL)) return tn_keep(tn_cast(tn_polygamma(n, in_f32(x)), tn_dtype_of(x)));
    if (!is_float(x)) return tn_keep(tn_polygamma(n, in_f32(x)));
    if (n > MOST_F32_ORDER && tn_dtype_of(x) == TN_F32)
        return tn_keep(tn_cast(tn_polygamma(n, tn_cast(x, TN_F64)), TN_F32));
    int order = (int)n;
    tn_tensor *reflects = tn_le_scalar(x, 0), *pole = tn_logical_and(reflects, tn_eq(x, tn_floor(x)));
    tn_tensor *inside = tn_where(pole, tn_scalar(-0.5), x); /* branches that are not taken must have finite gradients */
    tn_tensor *z = tn_where(reflects, tn_sub(tn_scalar(1), inside), inside);
    double factorial = tgamma((double)order + 1);
    tn_tensor *own = tn_mul_scalar(hurwitz_zeta(z, order + 1), order % 2 ? factorial : -factorial);
    tn_tensor *left = tn_where(reflects, inside, tn_scalar(-0.25));
    tn_tensor *mirrored = tn_sub(order % 2 ? tn_neg(own) : own, tn_mul_scalar(cot_derivative(left, order), M_PI));
    tn_tensor *value = tn_where(reflects, mirrored, own);
    return tn_keep(tn_where(pole, tn_scalar(order % 2 ? INFINITY : -INFINITY), value));
}
