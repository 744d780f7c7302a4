/* op_activation.c — activation functions.
 *
 * All are composed. Most also state their gradient, for two reasons: the derived gradient would split ties between
 * both sides, where PyTorch gives all of it to one, or it would multiply infinity by zero in the branch that was not
 * taken. Gradients reuse the result where the formula allows it. */
#include <math.h>

#include "ops/ops_common.h"

/* ---- small words ------------------------------------------------------------------------------------------------- */

static tn_node *zero(tn_build *b, const tn_node *like) { return tn_b_const(b, 0.0, like); }
static tn_node *at_least(tn_build *b, tn_node *x, double v) { return tn_b_maximum(b, x, tn_b_const(b, v, x)); }
static tn_node *at_most(tn_build *b, tn_node *x, double v) { return tn_b_minimum(b, x, tn_b_const(b, v, x)); }
static tn_node *activation_less(tn_build *b, tn_node *x, double v) { return tn_b_lt(b, x, tn_b_const(b, v, x)); }
static tn_node *less_equal(tn_build *b, tn_node *x, double v) { return tn_b_le(b, x, tn_b_const(b, v, x)); }
static tn_node *positive(tn_build *b, tn_node *x) { return tn_b_lt(b, zero(b, x), x); }
static tn_node *clamped(tn_build *b, tn_node *x, double low, double high) {
    return at_most(b, at_least(b, x, low), high);
}

/* 1 - x */
static tn_node *rest(tn_build *b, tn_node *x) { return tn_b_sub(b, tn_b_const(b, 1.0, x), x); }

/* dy where low < x < high, else 0. */
static tn_node *inside(tn_build *b, tn_node *x, double low, double high, tn_node *dy) {
    tn_node *in = tn_b_bitwise_and(b, tn_b_lt(b, tn_b_const(b, low, x), x), activation_less(b, x, high));
    return tn_b_where(b, in, dy, zero(b, dy));
}

/* Bounds of an integer tensor lose their fraction, as in PyTorch. */
static double bound_for(const tn_node *x, double v) { return tn_dtype_is_float((tn_dtype)x->dtype) ? v : trunc(v); }

/* ---- relu and its kin -------------------------------------------------------------------------------------------- */

static tn_node *compose_relu(tn_build *b, const tn_node *n) { return at_least(b, n->in[0], 0.0); }

static tn_node *grad_relu(tn_build *b, const tn_node *n, tn_node *dy) {
    return tn_b_where(b, less_equal(b, tn_b_self(n), 0.0), zero(b, dy), dy);
}

/* relu(x): max(x, 0); NaN stays NaN. */
OP_CODE(relu, .keeps_half = true, .infer = tn_infer_not_bool, .compose = compose_relu, .grad_first = grad_relu,
        .cases = "types=f32,f64,i32; [3,5]@-4..4~0.1; [2,0]; []; error=number [3]:bool");

static tn_node *compose_relu6(tn_build *b, const tn_node *n) { return clamped(b, n->in[0], 0.0, 6.0); }

static tn_node *grad_relu6(tn_build *b, const tn_node *n, tn_node *dy) { return inside(b, n->in[0], 0.0, 6.0, dy); }

/* relu6(x): min(max(x, 0), 6). */
OP_CODE(relu6, .keeps_half = true, .infer = tn_infer_not_bool, .compose = compose_relu6, .grad_first = grad_relu6,
        .cases = "types=f32,f64,i32,i64; [3,5]@-4..9~0.1; [2,0]; error=number [3]:bool");

static tn_node *compose_hardtanh(tn_build *b, const tn_node *n) {
    tn_node *x = n->in[0];
    return tn_b_clamp(b, x, bound_for(x, n->f[TN_HARDTANH_MIN_VAL]), bound_for(x, n->f[TN_HARDTANH_MAX_VAL]));
}

static tn_status infer_hardtanh(tn_infer *c) {
    double low = c->attrs->f[TN_HARDTANH_MIN_VAL], high = c->attrs->f[TN_HARDTANH_MAX_VAL];
    if (!(low <= high))
        return tn_fail(TN_ERR_ARGUMENT, "hardtanh: min_val is %g and max_val %g; min_val must not exceed max_val", low,
                       high);
    TRY(tn_infer_not_bool(c));
    return tn_need_bounds(c, c->dtype, low, high);
}

static tn_node *grad_hardtanh(tn_build *b, const tn_node *n, tn_node *dy) {
    return inside(b, n->in[0], n->f[TN_HARDTANH_MIN_VAL], n->f[TN_HARDTANH_MAX_VAL], dy);
}

/* hardtanh(x, min_val, max_val): min(max(x, min_val), max_val); usually -1 and 1. For integers the bounds lose their
 * fraction; see clamp for those outside the dtype. */
OP_CODE(hardtanh, .keeps_half = true, .infer = infer_hardtanh, .compose = compose_hardtanh, .grad_first = grad_hardtanh,
        .cases =
            "types=f32,f64; [3,5]@-4..4~0.1 min_val=-1 max_val=2; types=i32,i64; [9]@-4..4 min_val=-1.5 max_val=2.5; "
            "error=number [3]:bool min_val=-1 max_val=1; error=min_val [3]:f32 min_val=1 max_val=-1");

static tn_node *compose_hardsigmoid(tn_build *b, const tn_node *n) {
    return tn_b_scale(b, clamped(b, tn_b_offset(b, n->in[0], 3.0), 0.0, 6.0), 1.0 / 6.0);
}

static tn_node *grad_hardsigmoid(tn_build *b, const tn_node *n, tn_node *dy) {
    return inside(b, n->in[0], -3.0, 3.0, tn_b_scale(b, dy, 1.0 / 6.0));
}

/* hardsigmoid(x): relu6(x + 3) / 6. */
OP_CODE(hardsigmoid, .infer = tn_infer_float, .compose = compose_hardsigmoid, .grad_first = grad_hardsigmoid,
        .cases = "tol=4e-6 atol=2e-6; [3,5]@-4..4~0.1; [2,0]; []@-3..3~0.1; error=floating [3]:i64");

static tn_node *compose_hardswish(tn_build *b, const tn_node *n) {
    return tn_b_mul(b, n->in[0], tn_b_hardsigmoid(b, n->in[0]));
}

static tn_node *grad_hardswish(tn_build *b, const tn_node *n, tn_node *dy) {
    tn_node *x = n->in[0];
    tn_node *slope = tn_b_offset(b, tn_b_scale(b, x, 1.0 / 3.0), 0.5);
    tn_node *middle = tn_b_where(b, activation_less(b, x, 3.0), tn_b_mul(b, dy, slope), dy);
    return tn_b_where(b, less_equal(b, x, -3.0), zero(b, dy), middle);
}

/* hardswish(x): x · relu6(x + 3) / 6. */
OP_CODE(hardswish, .infer = tn_infer_float, .compose = compose_hardswish, .grad_first = grad_hardswish,
        .cases = "tol=4e-6 atol=2e-6; [3,5]@-4..4~0.1; [2,0]; []@-3..3~0.1; error=floating [3]:i64");

static tn_node *compose_leaky_relu(tn_build *b, const tn_node *n) {
    tn_node *x = n->in[0];
    return tn_b_where(b, positive(b, x), x, tn_b_scale(b, x, n->f[TN_LEAKY_RELU_NEGATIVE_SLOPE]));
}

static tn_node *grad_leaky_relu(tn_build *b, const tn_node *n, tn_node *dy) {
    return tn_b_where(b, positive(b, n->in[0]), dy, tn_b_scale(b, dy, n->f[TN_LEAKY_RELU_NEGATIVE_SLOPE]));
}

/* leaky_relu(x, negative_slope): x where x > 0, else negative_slope · x; usually 0.01. */
OP_CODE(leaky_relu, .infer = tn_infer_float, .compose = compose_leaky_relu, .grad_first = grad_leaky_relu,
        .cases = "tol=4e-6 atol=2e-6; [3,5]@-4..4~0.1 negative_slope=0.01; [2,0] negative_slope=0; "
                 "error=floating [3]:i64 negative_slope=0.1");

/* The weight as it meets x: one for all, or one a channel (dimension 1). */
static tn_node *prelu_weight(tn_build *b, const tn_node *n) {
    const tn_node *x = n->in[0];
    tn_node *w = n->in[1];
    int64_t shape[TN_MAX_RANK];
    if (x->rank < 2 || tn_node_numel(w) == 1) return tn_b_view(b, w, (int64_t[]){1}, x->rank ? 1 : 0);
    for (int d = 0; d < x->rank; d++)
        shape[d] = d == 1 ? w->shape[0] : 1;
    return tn_b_view(b, w, shape, x->rank);
}

static tn_status infer_prelu(tn_infer *c) {
    const tn_node *x = c->in[0], *w = c->in[1];
    char xt[96], wt[96];
    int64_t channels = x->rank < 2 ? 1 : x->shape[1];
    TRY(tn_need_float(c, 0));
    TRY(tn_infer_same(c));
    if (w->dtype != x->dtype)
        return tn_fail(TN_ERR_DTYPE, "prelu: x is %s but the weight is %s; cast one of them",
                       tn_dtype_name((tn_dtype)x->dtype), tn_dtype_name((tn_dtype)w->dtype));
    if (w->rank <= 1 && (tn_node_numel(w) == 1 || (w->rank == 1 && w->shape[0] == channels))) return TN_OK;
    return tn_fail(TN_ERR_SHAPE,
                   "prelu: the weight must have one element or one for each of the %lld channels of %s; it is %s",
                   (long long)channels, tn_shape_text(x, xt, sizeof xt), tn_shape_text(w, wt, sizeof wt));
}

static tn_node *compose_prelu(tn_build *b, const tn_node *n) {
    tn_node *x = n->in[0];
    return tn_b_where(b, positive(b, x), x, tn_b_mul(b, x, prelu_weight(b, n)));
}

static void grad_prelu(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    tn_node *x = n->in[0], *up = positive(b, x), *w = prelu_weight(b, n);
    if (!w) return;
    if (tn_needs_grad(n, 0)) grads[0] = tn_b_where(b, up, dy, tn_b_mul(b, dy, w));
    if (!tn_needs_grad(n, 1)) return;
    tn_node *dw = tn_b_where(b, up, zero(b, dy), tn_b_mul(b, dy, x));
    grads[1] = tn_b_view(b, tn_b_sum_to(b, dw, w), n->in[1]->shape, n->in[1]->rank);
}

/* prelu(x, weight): x where x > 0, else weight · x; weight has one element, or one per channel (dimension 1 of x). */
OP_CODE(prelu, .infer = infer_prelu, .compose = compose_prelu, .grad = grad_prelu,
        .cases = "tol=4e-6 atol=2e-6; [2,3,4]@-4..4~0.1 [3]; [2,3]@-4..4~0.1 [1]; [4]@-4..4~0.1 []; "
                 "[3]@-4..4~0.1 [1]; error=channels [2,3] [2]; error=cast [2,3]:f32 [3]:f64");

/* ---- exponential ones -------------------------------------------------------------------------------------------- */

/* scale · (x where x > 0, else alpha · (exp(x) - 1)) */
static tn_node *elu_with(tn_build *b, tn_node *x, double alpha, double scale) {
    tn_node *low = tn_b_scale(b, tn_b_expm1(b, at_most(b, x, 0.0)), alpha * scale);
    return tn_b_where(b, positive(b, x), scale == 1.0 ? x : tn_b_scale(b, x, scale), low);
}

static tn_node *elu_gradient(tn_build *b, tn_node *x, tn_node *dy, double alpha, double scale) {
    tn_node *low = tn_b_scale(b, tn_b_mul(b, dy, tn_b_exp(b, at_most(b, x, 0.0))), alpha * scale);
    return tn_b_where(b, positive(b, x), scale == 1.0 ? dy : tn_b_scale(b, dy, scale), low);
}

static tn_node *compose_elu(tn_build *b, const tn_node *n) { return elu_with(b, n->in[0], n->f[TN_ELU_ALPHA], 1.0); }

static tn_node *grad_elu(tn_build *b, const tn_node *n, tn_node *dy) {
    return elu_gradient(b, n->in[0], dy, n->f[TN_ELU_ALPHA], 1.0);
}

/* elu(x, alpha): x where x > 0, else alpha · (exp(x) - 1); usually 1. Source: Clevert et al. 2015. */
OP_CODE(elu, .infer = tn_infer_float, .compose = compose_elu, .grad_first = grad_elu,
        .cases = "tol=4e-6 atol=2e-6; [3,5]@-4..4~0.1 alpha=1.5; [40]@-100..100~0.1 alpha=1; "
                 "error=floating [3]:i64 alpha=1");

/* Klambauer et al. 2017, eq. 14. */
static const double selu_alpha = 1.6732632423543772848170429916717, selu_scale = 1.0507009873554804934193349852946;

static tn_node *compose_selu(tn_build *b, const tn_node *n) { return elu_with(b, n->in[0], selu_alpha, selu_scale); }

static tn_node *grad_selu(tn_build *b, const tn_node *n, tn_node *dy) {
    return elu_gradient(b, n->in[0], dy, selu_alpha, selu_scale);
}

/* selu(x): 1.0507 · elu(x, 1.6733), which keeps mean 0 and variance 1 through layers. Source: Klambauer et al. 2017. */
OP_CODE(selu, .infer = tn_infer_float, .compose = compose_selu, .grad_first = grad_selu,
        .cases = "tol=4e-6 atol=2e-6; [3,5]@-4..4~0.1; [2,0]; []@-3..3~0.1; error=floating [3]:i64");

static tn_node *compose_sigmoid(tn_build *b, const tn_node *n) {
    tn_node *below = tn_b_offset(b, tn_b_exp(b, tn_b_neg(b, n->in[0])), 1.0);
    return below ? tn_b_div(b, tn_b_const(b, 1.0, below), below) : NULL;
}

static tn_node *grad_sigmoid(tn_build *b, const tn_node *n, tn_node *dy) {
    tn_node *y = tn_b_self(n);
    return tn_b_mul(b, dy, tn_b_mul(b, y, rest(b, y)));
}

/* sigmoid(x): 1 / (1 + exp(-x)). */
OP_CODE(sigmoid, .to_float = true, .infer = tn_infer_broadcast, .compose = compose_sigmoid, .grad_first = grad_sigmoid,
        .cases = "types=f32,f64,i32 tol=4e-6 atol=2e-6; [3,5]@-8..8; [2,0]; []; [40]@-200..200");

static tn_node *compose_silu(tn_build *b, const tn_node *n) { return tn_b_mul(b, n->in[0], tn_b_sigmoid(b, n->in[0])); }

static void grad_silu(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    tn_node *x = n->in[0], *s = tn_b_sigmoid(b, x);
    if (!s) return;
    tn_node *slope = tn_b_mul(b, s, tn_b_offset(b, tn_b_mul(b, x, rest(b, s)), 1.0));
    grads[0] = tn_b_mul(b, dy, slope);
}

/* silu(x): x · sigmoid(x), also called swish. */
OP_CODE(silu, .infer = tn_infer_float, .compose = compose_silu, .grad = grad_silu,
        .cases = "tol=4e-6 atol=2e-6; [3,5]@-8..8; [40]@-200..200; error=floating [3]:i64; "
                 "error= types=f16,bf16 tol=1ulp atol=0; [40]@-14..14");

/* log(1 + exp(x)) for any x, without overflow. */
static tn_node *log1p_exp(tn_build *b, tn_node *x) {
    return tn_b_add(b, at_least(b, x, 0.0), tn_b_log1p(b, tn_b_exp(b, tn_b_neg(b, tn_b_abs(b, x)))));
}

static tn_status infer_softplus(tn_infer *c) {
    TRY(tn_need_finite(c, "beta", c->attrs->f[TN_SOFTPLUS_BETA]));
    TRY(tn_need_range(c, "threshold", c->attrs->f[TN_SOFTPLUS_THRESHOLD], -INFINITY, INFINITY));
    return tn_infer_float(c);
}

static tn_node *compose_softplus(tn_build *b, const tn_node *n) {
    double beta = n->f[TN_SOFTPLUS_BETA], threshold = n->f[TN_SOFTPLUS_THRESHOLD];
    tn_node *x = n->in[0], *z = tn_b_scale(b, x, beta);
    if (!z) return NULL;
    tn_node *straight = tn_b_lt(b, tn_b_const(b, threshold, z), z);
    return tn_b_where(b, straight, x, tn_b_scale(b, log1p_exp(b, z), 1.0 / beta));
}

static void grad_softplus(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    tn_node *z = tn_b_scale(b, n->in[0], n->f[TN_SOFTPLUS_BETA]);
    if (!z) return;
    tn_node *straight = tn_b_lt(b, tn_b_const(b, n->f[TN_SOFTPLUS_THRESHOLD], z), z);
    grads[0] = tn_b_where(b, straight, dy, tn_b_mul(b, dy, tn_b_sigmoid(b, z)));
}

/* softplus(x, beta, threshold): log(1 + exp(beta·x)) / beta; x itself where beta·x > threshold. */
OP_CODE(softplus, .infer = infer_softplus, .compose = compose_softplus, .grad = grad_softplus,
        .cases = "tol=4e-6 atol=2e-6; [3,5]@-8..8; [3,5]@-8..8~0.1 beta=2 threshold=5; [40]@-200..200~0.1; "
                 "error=floating [3]:i64; error= types=f16,bf16 tol=1ulp atol=0; [40]@-14..14");

static tn_node *compose_mish(tn_build *b, const tn_node *n) {
    return tn_b_mul(b, n->in[0], tn_b_tanh(b, log1p_exp(b, n->in[0])));
}

static void grad_mish(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    tn_node *x = n->in[0], *t = tn_b_tanh(b, log1p_exp(b, x));
    if (!t) return;
    tn_node *bend = tn_b_mul(b, rest(b, tn_b_mul(b, t, t)), tn_b_sigmoid(b, x));
    grads[0] = tn_b_mul(b, dy, tn_b_add(b, t, tn_b_mul(b, x, bend)));
}

/* mish(x): x · tanh(softplus(x)). Source: Misra 2019. */
OP_CODE(mish, .infer = tn_infer_float, .compose = compose_mish, .grad = grad_mish,
        .cases = "tol=4e-6 atol=2e-6; [3,5]@-8..8; [40]@-200..200; error=floating [3]:i64; "
                 "error= types=f16,bf16 tol=1ulp atol=0; [40]@-14..14");

static tn_node *compose_logsigmoid(tn_build *b, const tn_node *n) {
    return tn_b_neg(b, log1p_exp(b, tn_b_neg(b, n->in[0])));
}

static tn_node *grad_logsigmoid(tn_build *b, const tn_node *n, tn_node *dy) {
    return tn_b_mul(b, dy, tn_b_sigmoid(b, tn_b_neg(b, n->in[0])));
}

/* logsigmoid(x): log(sigmoid(x)) without overflow. */
OP_CODE(logsigmoid, .infer = tn_infer_float, .compose = compose_logsigmoid, .grad_first = grad_logsigmoid,
        .cases = "tol=4e-6 atol=2e-6; [3,5]@-8..8; [40]@-200..200; error=floating [3]:i64");

/* ---- gelu -------------------------------------------------------------------------------------------------------- */

enum { GELU_TANH = 1 }; /* of the choices none, tanh */
static const double gelu_cubic = 0.044715;

/* sqrt(2/π) · (x + 0.044715 x³) */
static tn_node *gelu_argument(tn_build *b, tn_node *x) {
    tn_node *square = tn_b_scale(b, tn_b_mul(b, x, x), gelu_cubic);
    return tn_b_scale(b, tn_b_mul(b, x, tn_b_offset(b, square, 1.0)), M_2_SQRTPI * M_SQRT1_2);
}

/* The distribution function of the normal distribution, or its approximation. */
static tn_node *gelu_cdf(tn_build *b, const tn_node *n) {
    tn_node *x = n->in[0];
    bool tanh_form = n->i[TN_GELU_APPROXIMATE] == GELU_TANH;
    tn_node *f = tanh_form ? tn_b_tanh(b, gelu_argument(b, x)) : tn_b_erf(b, tn_b_scale(b, x, M_SQRT1_2));
    return tn_b_scale(b, tn_b_offset(b, f, 1.0), 0.5);
}

static tn_node *compose_gelu(tn_build *b, const tn_node *n) { return tn_b_mul(b, n->in[0], gelu_cdf(b, n)); }

/* The derivative of gelu_cdf. */
static tn_node *gelu_density(tn_build *b, const tn_node *n) {
    tn_node *x = n->in[0], *square = tn_b_mul(b, x, x);
    if (n->i[TN_GELU_APPROXIMATE] != GELU_TANH)
        return tn_b_scale(b, tn_b_exp(b, tn_b_scale(b, square, -0.5)), 0.5 * M_2_SQRTPI * M_SQRT1_2);
    tn_node *t = tn_b_tanh(b, gelu_argument(b, x));
    if (!t) return NULL;
    square = at_most(b, square, 1e12); /* 1 - t² is 0 there, and 0 times infinity would be NaN */
    tn_node *slope = tn_b_offset(b, tn_b_scale(b, square, 3.0 * gelu_cubic), 1.0);
    return tn_b_scale(b, tn_b_mul(b, rest(b, tn_b_mul(b, t, t)), slope), 0.5 * M_2_SQRTPI * M_SQRT1_2);
}

static tn_node *grad_gelu(tn_build *b, const tn_node *n, tn_node *dy) {
    tn_node *slope = tn_b_add(b, gelu_cdf(b, n), tn_b_mul(b, n->in[0], gelu_density(b, n)));
    return tn_b_mul(b, dy, slope);
}

/* gelu(x, approximate): x · Φ(x), Φ the normal distribution function; approximate=tanh uses
 * (1 + tanh(sqrt(2/π)(x + 0.044715 x³))) / 2 for it. Source: Hendrycks and Gimpel 2016. */
OP_CODE(
    gelu, .infer = tn_infer_float, .compose = compose_gelu, .grad_first = grad_gelu,
    .cases =
        "tol=4e-6 atol=2e-6; [3,5]@-4..4; [3,5]@-4..4 approximate=tanh; [40]@-30..30; "
        "[40]@-30..30 approximate=tanh; error=floating [3]:i64; error= types=f16,bf16 tol=1ulp atol=0; [40]@-4..14");

/* ---- gates ------------------------------------------------------------------------------------------------------- */

static tn_status infer_glu(tn_infer *c) {
    const tn_node *x = c->in[0];
    char text[96];
    int64_t *dim = &c->attrs->i[TN_GLU_DIM];
    TRY(tn_need_float(c, 0));
    TRY(tn_infer_dim(c, *dim, x->rank, dim));
    TRY(tn_infer_same(c));
    if (x->rank == 0) return tn_fail(TN_ERR_SHAPE, "glu: the tensor has no dimensions, so it cannot be halved");
    if (x->shape[*dim] % 2)
        return tn_fail(TN_ERR_SHAPE, "glu: extent %lld of dimension %lld of %s is odd and cannot be halved",
                       (long long)x->shape[*dim], (long long)*dim, tn_shape_text(x, text, sizeof text));
    c->shape[*dim] = x->shape[*dim] / 2;
    c->symbol[*dim] = 0;
    return TN_OK;
}

static tn_node *compose_glu(tn_build *b, const tn_node *n) {
    int64_t dim = n->i[TN_GLU_DIM], half = n->shape[dim];
    tn_node *gate = tn_b_slice(b, n->in[0], dim, half, 2 * half, 1);
    return tn_b_mul(b, tn_b_slice(b, n->in[0], dim, 0, half, 1), tn_b_sigmoid(b, gate));
}

/* glu(x, dim): a · sigmoid(b), where a and b are the halves of x along dim. Source: Dauphin et al. 2016. */
OP_CODE(glu, .infer = infer_glu, .compose = compose_glu,
        .cases = "tol=4e-6 atol=2e-6; [3,4] dim=1; [4,3] dim=-2; [0,4] dim=1; error=halved [3] dim=0; "
                 "error=dimensions [] dim=0; error=range [4] dim=1");

static tn_node *compose_swiglu(tn_build *b, const tn_node *n) { return tn_b_mul(b, tn_b_silu(b, n->in[0]), n->in[1]); }

/* swiglu(gate, up): silu(gate) · up. Source: Shazeer 2020. */
OP_CODE(swiglu, .promote = true, .infer = tn_infer_float, .compose = compose_swiglu,
        .cases = "tol=4e-6 atol=2e-6; [3,4] [3,4]; [3,4] [4]; error=floating [3]:i64 [3]:i64");

/* ---- shrinking and thresholds ------------------------------------------------------------------------------------ */

static tn_status infer_celu(tn_infer *c) {
    if (c->attrs->f[0] == 0) return tn_fail(TN_ERR_ARGUMENT, "celu: alpha is 0; it must not be 0");
    return tn_infer_float(c);
}

static tn_node *compose_celu(tn_build *b, const tn_node *n) {
    double alpha = n->f[TN_CELU_ALPHA];
    tn_node *x = n->in[0];
    tn_node *low = tn_b_scale(b, tn_b_expm1(b, tn_b_scale(b, at_most(b, x, 0.0), 1.0 / alpha)), alpha);
    return tn_b_where(b, positive(b, x), x, low);
}

static tn_node *grad_celu(tn_build *b, const tn_node *n, tn_node *dy) {
    tn_node *x = n->in[0], *slope = tn_b_exp(b, tn_b_scale(b, at_most(b, x, 0.0), 1.0 / n->f[TN_CELU_ALPHA]));
    return tn_b_where(b, positive(b, x), dy, tn_b_mul(b, dy, slope));
}

/* celu(x, alpha): x where x > 0, else alpha · (exp(x / alpha) - 1). Source: Barron 2017. */
OP_CODE(celu, .infer = infer_celu, .compose = compose_celu, .grad_first = grad_celu,
        .cases = "tol=4e-6 atol=2e-6; [3,5]@-4..4~0.1 alpha=1.5; [2,0] alpha=1; "
                 "error=alpha [3] alpha=0; error=floating [3]:i64 alpha=1");

static tn_node *compose_softsign(tn_build *b, const tn_node *n) {
    return tn_b_div(b, n->in[0], tn_b_offset(b, tn_b_abs(b, n->in[0]), 1.0));
}

static tn_node *grad_softsign(tn_build *b, const tn_node *n, tn_node *dy) {
    tn_node *below = tn_b_offset(b, tn_b_abs(b, n->in[0]), 1.0);
    return tn_b_div(b, tn_b_div(b, dy, below), below);
}

/* softsign(x): x / (1 + |x|). */
OP_CODE(softsign, .to_float = true, .infer = tn_infer_float, .compose = compose_softsign, .grad_first = grad_softsign,
        .cases = "types=f32,f64,i32 tol=4ulp; [3,5]@-4..4~0.1; [2,0]; []");

static tn_node *compose_tanhshrink(tn_build *b, const tn_node *n) {
    return tn_b_sub(b, n->in[0], tn_b_tanh(b, n->in[0]));
}

static tn_node *grad_tanhshrink(tn_build *b, const tn_node *n, tn_node *dy) {
    tn_node *t = tn_b_tanh(b, n->in[0]);
    return tn_b_mul(b, dy, tn_b_mul(b, t, t));
}

/* tanhshrink(x): x - tanh(x). */
OP_CODE(tanhshrink, .to_float = true, .infer = tn_infer_float, .compose = compose_tanhshrink,
        .grad_first = grad_tanhshrink, .cases = "tol=4e-6 atol=1e-6; [3,5]; [2,0]; []");

static tn_node *compose_hardshrink(tn_build *b, const tn_node *n) {
    tn_node *x = n->in[0];
    return tn_b_where(b, less_equal(b, tn_b_abs(b, x), n->f[TN_HARDSHRINK_LAMBD]), zero(b, x), x);
}

/* hardshrink(x, lambd): 0 where |x| ≤ lambd, else x; usually 0.5. */
OP_CODE(hardshrink, .infer = tn_infer_float, .compose = compose_hardshrink,
        .cases = "[3,5]@-4..4~0.1 lambd=0.5; [2,0] lambd=1; [] lambd=3; "
                 "error=floating [3]:i64 lambd=1");

static tn_status infer_softshrink(tn_infer *c) {
    TRY(tn_need_range(c, "lambd", c->attrs->f[0], 0, INFINITY));
    return tn_infer_float(c);
}

static tn_node *compose_softshrink(tn_build *b, const tn_node *n) {
    double width = n->f[TN_SOFTSHRINK_LAMBD];
    tn_node *x = n->in[0];
    tn_node *low = tn_b_where(b, activation_less(b, x, -width), tn_b_offset(b, x, width), tn_b_mul(b, x, zero(b, x)));
    return tn_b_where(b, tn_b_lt(b, tn_b_const(b, width, x), x), tn_b_offset(b, x, -width), low);
}

static tn_node *grad_softshrink(tn_build *b, const tn_node *n, tn_node *dy) {
    tn_node *flat = less_equal(b, tn_b_abs(b, n->in[0]), n->f[TN_SOFTSHRINK_LAMBD]);
    return tn_b_where(b, flat, zero(b, dy), dy);
}

/* softshrink(x, lambd): x moved by lambd towards 0, and 0 where |x| ≤ lambd; usually 0.5. */
OP_CODE(softshrink, .infer = infer_softshrink, .compose = compose_softshrink, .grad_first = grad_softshrink,
        .cases = "[3,5]@-4..4~0.1 lambd=0.5; [2,0] lambd=1; [] lambd=3; "
                 "error=lambd [3] lambd=-1; error=floating [3]:i64 lambd=1");

static tn_status infer_threshold(tn_infer *c) {
    TRY(tn_infer_not_bool(c));
    TRY(tn_need_held(c, c->dtype, "threshold", c->attrs->f[TN_THRESHOLD_THRESHOLD]));
    return tn_need_held(c, c->dtype, "value", c->attrs->f[TN_THRESHOLD_VALUE]);
}

static tn_node *compose_threshold(tn_build *b, const tn_node *n) {
    tn_node *x = n->in[0];
    tn_node *low = less_equal(b, x, bound_for(x, n->f[TN_THRESHOLD_THRESHOLD]));
    return tn_b_where(b, low, tn_b_const(b, bound_for(x, n->f[TN_THRESHOLD_VALUE]), x), x);
}

/* threshold(x, threshold, value): x where x > threshold, else value. */
OP_CODE(threshold, .keeps_half = true, .infer = infer_threshold, .compose = compose_threshold,
        .cases = "types=f32,f64,i32; [3,5]@-4..4~0.1 threshold=0.5 value=-2; "
                 "[2,0] threshold=1 value=0; types=u8; error=value [3] threshold=1 value=-1; "
                 "error=threshold [3] threshold=-1 value=1");
