/* op_special.c — element by element, composed: signs, extremes that pass over NaN, closeness, functions of
 * torch.special, gamma and Bessel functions. */
#include <math.h>

#include "ops/ops_common.h"

/* ---- signs ------------------------------------------------------------------------------------------------------- */

/* The bit that also −0 and NaN have. */
static tn_node *is_negative(tn_build *b, tn_node *x) {
    if (!x) return NULL;
    tn_dtype t = (tn_dtype)x->dtype;
    if (t == TN_BOOL) return tn_b_lt(b, x, x);
    if (tn_dtype_is_float(t)) {
        size_t size = tn_dtype_size(t);
        x = tn_b_view_dtype(b, x, size == 8 ? TN_I64 : size == 4 ? TN_I32 : TN_I16);
    }
    return tn_b_lt(b, x, tn_b_const(b, 0, x));
}

static tn_node *compose_signbit(tn_build *b, const tn_node *n) { return is_negative(b, n->in[0]); }

/* signbit(x): true where x is negative, −0 included. */
OP_CODE(signbit, .infer = tn_infer_compare, .compose = compose_signbit, .grad = tn_grad_none,
        .cases = "types=f32,f64,f16,i32,u8,bool; [2,3]; [0]; []");

static tn_node *compose_copysign(tn_build *b, const tn_node *n) {
    tn_node *size = tn_b_abs(b, n->in[0]);
    return tn_b_where(b, is_negative(b, n->in[1]), tn_b_neg(b, size), size);
}

static void grad_copysign(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    tn_node *turned = tn_b_mul(b, tn_b_sign(b, n->in[0]), tn_b_sign(b, tn_b_self(n)));
    if (tn_needs_grad(n, 0)) grads[0] = tn_b_sum_to(b, tn_b_mul(b, dy, turned), n->in[0]);
}

/* copysign(x, y): the size of x with the sign of y, which may be that of a zero. */
OP_CODE(copysign, .promote = true, .to_float = true, .infer = tn_infer_float, .compose = compose_copysign,
        .grad = grad_copysign, .define_two = copysign,
        .cases = "types=f32,f64; [2,3] [2,3]; [3,1] [4]; error=broadcast [2] [3]");

/* ---- extremes ---------------------------------------------------------------------------------------------------- */

/* The whole gradient goes to x where both are equal, as in PyTorch. */
static tn_node *chosen(tn_build *b, const tn_node *n, tn_node *x_wins) {
    tn_node *y = n->in[1];
    tn_node *takes = tn_b_logical_or(b, x_wins, tn_b_ne(b, y, y));
    return tn_b_where(b, takes, n->in[0], y);
}

static tn_node *compose_fmax(tn_build *b, const tn_node *n) { return chosen(b, n, tn_b_le(b, n->in[1], n->in[0])); }
static tn_node *compose_fmin(tn_build *b, const tn_node *n) { return chosen(b, n, tn_b_le(b, n->in[0], n->in[1])); }

/* fmax(x, y): the element-wise maximum; NaN only where both operands are NaN. */
OP_CODE(fmax, .keeps_half = true, .promote = true, .infer = tn_infer_broadcast, .compose = compose_fmax,
        .cases = "types=f32,f64,i32; [2,3] [2,3]; [3,1] [4]; error=broadcast [2] [3]");

/* fmin(x, y): the element-wise minimum; NaN only where both operands are NaN. */
OP_CODE(fmin, .keeps_half = true, .promote = true, .infer = tn_infer_broadcast, .compose = compose_fmin,
        .cases = "types=f32,f64,i32; [2,3] [2,3]; [3,1] [4]; error=broadcast [2] [3]");

/* ---- closeness --------------------------------------------------------------------------------------------------- */

static tn_status infer_isclose(tn_infer *c) {
    TRY(tn_need_range(c, "rtol", c->attrs->f[TN_ISCLOSE_RTOL], 0, INFINITY));
    TRY(tn_need_range(c, "atol", c->attrs->f[TN_ISCLOSE_ATOL], 0, INFINITY));
    return tn_infer_compare(c);
}

static tn_node *compose_isclose(tn_build *b, const tn_node *n) {
    tn_node *x = n->in[0], *y = n->in[1], *close = tn_b_eq(b, x, y);
    double rtol = n->f[TN_ISCLOSE_RTOL], atol = n->f[TN_ISCLOSE_ATOL];
    if (n->i[TN_ISCLOSE_EQUAL_NAN])
        close = tn_b_logical_or(b, close, tn_b_logical_and(b, tn_b_ne(b, x, x), tn_b_ne(b, y, y)));
    if (!x || (rtol == 0 && atol == 0)) return close;
    tn_dtype wide = tn_dtype_is_float((tn_dtype)x->dtype) ? (tn_dtype)x->dtype : TN_F32;
    tn_node *apart =
        x->dtype == TN_BOOL ? tn_b_cast(b, tn_b_ne(b, x, y), wide) : tn_b_cast(b, tn_b_abs(b, tn_b_sub(b, x, y)), wide);
    tn_node *allowed = tn_b_offset(b, tn_b_scale(b, tn_b_abs(b, tn_b_cast(b, y, wide)), rtol), atol);
    tn_node *within = tn_b_logical_and(b, tn_b_isfinite(b, apart), tn_b_le(b, apart, allowed));
    return tn_b_logical_or(b, close, within);
}

/* isclose(x, y, rtol, atol, equal_nan): true where |x − y| ≤ atol + rtol·|y|, or both are equal, or (with equal_nan)
 * both are NaN. */
OP_CODE(isclose, .promote = true, .infer = infer_isclose, .compose = compose_isclose, .grad = tn_grad_none,
        .cases = "types=f32,f64,i32,bool; [9] [9] rtol=0 atol=1.1; [3,1] [4]; [2] [] rtol=0.5 atol=0 equal_nan=true; "
                 "types=f32; error=rtol [2] [2] rtol=-1");

static tn_status infer_allclose(tn_infer *c) {
    TRY(infer_isclose(c));
    c->rank = 0;
    return TN_OK;
}

static tn_node *compose_allclose(tn_build *b, const tn_node *n) {
    tn_isclose_options o = TN_ISCLOSE_DEFAULTS;
    o.rtol = n->f[TN_ISCLOSE_RTOL];
    o.atol = n->f[TN_ISCLOSE_ATOL];
    o.equal_nan = n->i[TN_ISCLOSE_EQUAL_NAN] != 0;
    return tn_b_all(b, tn_b_isclose(b, n->in[0], n->in[1], &o), TN_ALL, false);
}

/* allclose(x, y, rtol, atol, equal_nan): true if isclose is true for all elements; rank 0. */
OP_CODE(allclose, .promote = true, .infer = infer_allclose, .compose = compose_allclose, .grad = tn_grad_none,
        .cases = "types=f32,f64,i32; [9] [9] rtol=0 atol=1.1; [3,1] [4] atol=9; "
                 "[0] [0]; error=atol [2]:f32 [2]:f32 atol=-1");

/* ---- logarithms, entropy ----------------------------------------------------------------------------------------- */

static tn_node *compose_logaddexp2(tn_build *b, const tn_node *n) {
    tn_node *x = n->in[0], *y = n->in[1];
    tn_node *distance = tn_b_abs(b, tn_b_sub(b, x, y));
    tn_node *apart = tn_b_scale(b, tn_b_log1p(b, tn_b_exp2(b, tn_b_neg(b, distance))), M_LOG2E);
    /* Equal ones, infinite ones too, whose distance would be NaN. */
    tn_node *more = tn_b_where(b, tn_b_eq(b, x, y), tn_b_const(b, 1, x), apart);
    return tn_b_add(b, tn_b_maximum(b, x, y), more);
}
static void grad_logaddexp2(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    for (int i = 0; i < 2; i++) {
        if (!tn_needs_grad(n, i)) continue;
        tn_node *x = n->in[i], *y = tn_b_self(n);
        tn_node *share = tn_b_exp2(b, tn_b_sub(b, x, y));
        share = tn_b_where(b, tn_b_eq(b, x, y), tn_b_const(b, 1, n), share);
        share = tn_b_where(b, tn_b_eq(b, x, n->in[1 - i]), tn_b_const(b, 0.5, n), share);
        grads[i] = tn_b_sum_to(b, tn_b_mul(b, dy, share), x);
    }
}

/* logaddexp2(x, y): log2(2^x + 2^y) without overflow. */
OP_CODE(logaddexp2, .promote = true, .to_float = true, .infer = tn_infer_float, .compose = compose_logaddexp2,
        .grad = grad_logaddexp2, .cases = "types=f32,f64 tol=4ulp atol=4ulp; [2,3] [2,3]; [3,1] [4]@-50..50");

/* x without zeros, so that no infinity meets one in a branch that is not taken. */
static tn_node *or_one(tn_build *b, tn_node *is_zero, tn_node *x) {
    return tn_b_where(b, is_zero, tn_b_const(b, 1, x), x);
}

/* sin(πx), exact at whole numbers: x − 2·round(x / 2) is in [−1, 1], and sin(πr) = sin(π(±1 − r)) leaves |r| ≤ 1/2. */
static tn_node *sine_of_turns(tn_build *b, tn_node *x) {
    tn_node *r = tn_b_sub(b, x, tn_b_scale(b, tn_b_round(b, tn_b_scale(b, x, 0.5)), 2)), *half = tn_b_const(b, 0.5, r);
    tn_node *turned = tn_b_sub(b, tn_b_sign(b, r), r);
    r = tn_b_where(b, tn_b_lt(b, half, tn_b_abs(b, r)), turned, r);
    return tn_b_sin(b, tn_b_scale(b, r, M_PI));
}

/* cos(πx) = sin(π(1/2 − |r|)) with the same r. */
static tn_node *cosine_of_turns(tn_build *b, tn_node *x) {
    tn_node *r = tn_b_sub(b, x, tn_b_scale(b, tn_b_round(b, tn_b_scale(b, x, 0.5)), 2));
    tn_node *apart = tn_b_offset(b, tn_b_neg(b, tn_b_abs(b, r)), 0.5);
    return tn_b_sin(b, tn_b_scale(b, apart, M_PI));
}

static tn_node *compose_sinc(tn_build *b, const tn_node *n) {
    tn_node *x = n->in[0], *is_zero = tn_b_eq(b, x, tn_b_const(b, 0, x));
    tn_node *safe = or_one(b, is_zero, x), *angle = tn_b_scale(b, safe, M_PI);
    return tn_b_where(b, is_zero, tn_b_const(b, 1, x), tn_b_div(b, sine_of_turns(b, safe), angle));
}

static tn_node *grad_sinc(tn_build *b, const tn_node *n, tn_node *dy) {
    tn_node *x = n->in[0], *safe = or_one(b, tn_b_eq(b, x, tn_b_const(b, 0, x)), x);
    tn_node *slope = tn_b_div(b, tn_b_sub(b, cosine_of_turns(b, safe), tn_b_self(n)), safe);
    /* Near 0 that cancels. There it is π · Σ (−1)^k · 2k / (2k + 1)! · (πx)^(2k − 1). */
    static const double series[] = {1. / 518918400, -1. / 3991680, 1. / 45360, -1. / 840, 1. / 30, -1. / 3};
    tn_node *angle = tn_b_scale(b, x, M_PI), *square = tn_b_mul(b, angle, angle), *sum = tn_b_const(b, 0, x);
    for (size_t k = 0; k < sizeof series / sizeof *series; k++)
        sum = tn_b_offset(b, tn_b_mul(b, sum, square), series[k]);
    tn_node *small = tn_b_lt(b, tn_b_abs(b, x), tn_b_const(b, 0.08, x));
    sum = tn_b_scale(b, tn_b_mul(b, sum, angle), M_PI);
    return tn_b_mul(b, dy, tn_b_where(b, small, sum, slope));
}

/* sinc(x): sin(πx) / (πx); 1 at 0. */
OP_CODE(sinc, .to_float = true, .infer = tn_infer_float, .compose = compose_sinc, .grad_first = grad_sinc,
        .cases = "types=f32,f64,i32 tol=4ulp atol=4ulp; [2,3]@-2..2~0.1; [0,3]; []@0.1..0.9");

static tn_node *compose_logit(tn_build *b, const tn_node *n) {
    double eps = n->f[TN_LOGIT_EPS];
    tn_node *x = n->in[0];
    if (eps >= 0) { /* as PyTorch, whose lower bound may be above the upper one */
        tn_node *low = tn_b_const(b, eps, x), *high = tn_b_const(b, 1 - eps, x);
        tn_node *bounded = tn_b_where(b, tn_b_lt(b, high, x), high, x);
        x = tn_b_where(b, tn_b_lt(b, x, low), low, bounded);
    }
    return x ? tn_b_log(b, tn_b_div(b, x, tn_b_sub(b, tn_b_const(b, 1, x), x))) : NULL;
}
static tn_node *grad_logit(tn_build *b, const tn_node *n, tn_node *dy) {
    double eps = n->f[TN_LOGIT_EPS];
    tn_node *x = n->in[0], *g = tn_b_div(b, dy, tn_b_mul(b, x, tn_b_sub(b, tn_b_const(b, 1, x), x)));
    if (eps >= 0) {
        tn_node *outside =
            tn_b_logical_or(b, tn_b_lt(b, x, tn_b_const(b, eps, x)), tn_b_lt(b, tn_b_const(b, 1 - eps, x), x));
        g = tn_b_where(b, outside, tn_b_const(b, 0, x), g);
    }
    return g;
}

/* logit(x, eps): log(x / (1 − x)); with eps ≥ 0, of x clamped to [eps, 1 − eps]; a negative eps: no clamping. */
OP_CODE(logit, .to_float = true, .infer = tn_infer_float, .compose = compose_logit, .grad_first = grad_logit,
        .cases = "types=f32,f64 tol=4ulp atol=4ulp; [2,3]@0.1..0.9 eps=-1; [9]@0.15..0.85 eps=0.1; []@0.1..0.9 eps=-1");

/* x · v, and 0 where x is 0 unless y is NaN. */
static tn_node *zero_times(tn_build *b, tn_node *x, tn_node *y, tn_node *v) {
    tn_node *nothing = tn_b_bitwise_and(b, tn_b_eq(b, x, tn_b_const(b, 0, x)), tn_b_eq(b, y, y));
    return tn_b_where(b, nothing, tn_b_const(b, 0, x), tn_b_mul(b, x, v));
}

static tn_node *compose_xlog1py(tn_build *b, const tn_node *n) {
    return zero_times(b, n->in[0], n->in[1], tn_b_log1p(b, n->in[1]));
}
static void grad_xlog1py(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    tn_node *x = n->in[0], *y = n->in[1], *zero = tn_b_const(b, 0, x);
    tn_node *nothing = tn_b_bitwise_and(b, tn_b_eq(b, x, zero), tn_b_le(b, y, tn_b_const(b, -1, y)));
    tn_node *log_y = tn_b_where(b, nothing, zero, tn_b_log1p(b, y));
    if (tn_needs_grad(n, 0)) grads[0] = tn_b_sum_to(b, tn_b_mul(b, dy, log_y), x);
    if (tn_needs_grad(n, 1)) grads[1] = tn_b_sum_to(b, tn_b_div(b, tn_b_mul(b, dy, x), tn_b_offset(b, y, 1)), y);
}

/* xlog1py(x, y): x · log(1 + y); 0 for x = 0, unless y is NaN. */
OP_CODE(xlog1py, .promote = true, .to_float = true, .infer = tn_infer_float, .compose = compose_xlog1py,
        .grad = grad_xlog1py,
        .cases = "types=f32,f64 tol=4ulp; [2,3] [2,3]@0.1..4; [3,1] [4]@-0.5..2; [3]@0..0 [3]@-1..-1 grad=off");

static tn_node *compose_entr(tn_build *b, const tn_node *n) {
    tn_node *x = n->in[0], *zero = tn_b_const(b, 0, x);
    tn_node *v = tn_b_neg(b, zero_times(b, x, x, tn_b_log(b, x)));
    return tn_b_where(b, tn_b_lt(b, x, zero), tn_b_const(b, -INFINITY, x), v);
}
static tn_node *grad_entr(tn_build *b, const tn_node *n, tn_node *dy) {
    tn_node *slope = tn_b_offset(b, tn_b_neg(b, tn_b_log(b, n->in[0])), -1);
    return tn_b_mul(b, dy, slope);
}

/* entr(x): −x · log(x); 0 at 0, −∞ below (torch.special.entr). */
OP_CODE(entr, .to_float = true, .infer = tn_infer_float, .compose = compose_entr, .grad_first = grad_entr,
        .cases = "types=f32,f64,i32 tol=4ulp; [2,3]@0.1..4; [0,3]; [3]@-2..-1 grad=off");

/* ---- inverse of erf ---------------------------------------------------------------------------------------------- */

/* coefficients[0] · xᵐ + … + coefficients[m]. */
static tn_node *polynomial(tn_build *b, tn_node *x, const double *coefficients, int count) {
    tn_node *sum = tn_b_const(b, coefficients[0], x);
    for (int k = 1; k < count; k++)
        sum = tn_b_offset(b, tn_b_mul(b, sum, x), coefficients[k]);
    return sum;
}

/* Giles 2010: x times a polynomial of w = −log(1 − x²), or of its root. */
static tn_node *compose_erfinv(tn_build *b, const tn_node *n) {
    static const double near[] = {
        -3.6444120640178196996e-21, -1.685059138182016589e-19,  1.2858480715256400167e-18,  1.115787767802518096e-17,
        -1.333171662854620906e-16,  2.0972767875968561637e-17,  6.6376381343583238325e-15,  -4.0545662729752068639e-14,
        -8.1519341976054721522e-14, 2.6335093153082322977e-12,  -1.2975133253453532498e-11, -5.4154120542946279317e-11,
        1.051212273321532285e-09,   -4.1126339803469836976e-09, -2.9070369957882005086e-08, 4.2347877827932403518e-07,
        -1.3654692000834678645e-06, -1.3882523362786468719e-05, 0.0001867342080340571352,   -0.00074070253416626697512,
        -0.0060336708714301490533,  0.24015818242558961693,     1.6536545626831027356};
    static const double far[] = {
        2.2137376921775787049e-09,  9.0756561938885390979e-08, -2.7517406297064545428e-07, 1.8239629214389227755e-08,
        1.5027403968909827627e-06,  -4.013867526981545969e-06, 2.9234449089955446044e-06,  1.2475304481671778723e-05,
        -4.7318229009055733981e-05, 6.8284851459573175448e-05, 2.4031110387097893999e-05,  -0.0003550375203628474796,
        0.00095328937973738049703,  -0.0016882755560235047313, 0.0024914420961078508066,   -0.0037512085075692412107,
        0.005370914553590063617,    1.0052589676941592334,     3.0838856104922207635};
    static const double last[] = {-2.7109920616438573243e-11, -2.5556418169965252055e-10, 1.5076572693500548083e-09,
                                  -3.7894654401267369937e-09, 7.6157012080783393804e-09,  -1.4960026627149240478e-08,
                                  2.9147953450901080826e-08,  -6.7711997758452339498e-08, 2.2900482228026654717e-07,
                                  -9.9298272942317002539e-07, 4.5260625972231537039e-06,  -1.9681778105531670567e-05,
                                  7.5995277030017761139e-05,  -0.00021503011930044477347, -0.00013871931833623122026,
                                  1.0103004648645343977,      4.8499064014085844221};
    tn_node *x = n->in[0], *one = tn_b_const(b, 1, x), *edge = tn_b_eq(b, tn_b_abs(b, x), one);
    tn_node *inside = tn_b_where(b, edge, tn_b_const(b, 0, x), x);
    tn_node *w = tn_b_neg(b, tn_b_log(b, tn_b_mul(b, tn_b_sub(b, one, inside), tn_b_offset(b, inside, 1))));
    tn_node *root = tn_b_sqrt(b, w);
    tn_node *p = tn_b_where(b, tn_b_lt(b, w, tn_b_const(b, 16, w)),
                            polynomial(b, tn_b_offset(b, root, -3.25), far, sizeof far / sizeof *far),
                            polynomial(b, tn_b_offset(b, root, -5), last, sizeof last / sizeof *last));
    p = tn_b_where(b, tn_b_lt(b, w, tn_b_const(b, 6.25, w)),
                   polynomial(b, tn_b_offset(b, w, -3.125), near, sizeof near / sizeof *near), p);
    return tn_b_where(b, edge, tn_b_scale(b, x, INFINITY), tn_b_mul(b, p, inside));
}
static tn_node *grad_erfinv(tn_build *b, const tn_node *n, tn_node *dy) {
    tn_node *y = tn_b_self(n), *slope = tn_b_scale(b, tn_b_exp(b, tn_b_mul(b, y, y)), 1 / M_2_SQRTPI);
    return tn_b_mul(b, dy, slope);
}
static double inverse_of_erf(double x) {
    double low = 0, high = 7, size = fabs(x);
    for (int k = 0; k < 200; k++) {
        double middle = (low + high) / 2;
        bool below = size < 0.5 ? erf(middle) < size : erfc(middle) > 1 - size;
        *(below ? &low : &high) = middle;
    }
    return size > 1 ? NAN : size == 1 ? x * INFINITY : copysign((low + high) / 2, x);
}
/* erfinv(x): the y with erf(y) = x; infinite at ±1, NaN beyond. */
OP_CODE(erfinv, .to_float = true, .infer = tn_infer_float, .compose = compose_erfinv, .grad_first = grad_erfinv,
        .define_one = inverse_of_erf,
        .cases = "types=f32,f64 tol=8ulp atol=1ulp special=off; [3,5]@-0.9..0.9; "
                 "[9]@0.9..0.99; [2]@1..1 grad=off; [0,3]; []@0.1..0.3");

/* ==== logarithm of the gamma function and its derivatives ========================================================= */
/* Stirling's series needs arguments of 8 and more: smaller ones are shifted with Γ(z + 1) = z·Γ(z), by 8 or to where
 * lgamma has a polynomial. Negative ones are reflected. Source: Abramowitz and Stegun 6.1 to 6.4. */

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

/* ==== modified Bessel functions of the first kind: i0, i0e, i1, i1e =============================================== */
/* Up to 20 the power series, whose terms are all positive; beyond, the asymptotic series. Both are computed divided by
 * exp(|x|), as i0e and i1e. Source: Abramowitz and Stegun 9.6.10 and 9.7.1. */

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

/* y · exp(|x|), in two steps: the product may be finite although exp(|x|) overflows. */
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
