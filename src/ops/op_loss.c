/* op_loss.c — losses: an element-wise distance, then the mean, the sum, or no reduction.
 *
 * Most gradients follow from the composition. Two are stated: that of cross-entropy (softmax minus one-hot: no
 * logarithm, no gather), and that of binary cross-entropy, whose logarithms are clamped. */
#include <math.h>
#include <stdatomic.h>

#include "ops/ops_common.h"

/* ---- shared ------------------------------------------------------------------------------------------------------ */

static tn_node *reduced(tn_build *b, tn_node *loss, int64_t reduction) {
    if (reduction == TN_REDUCTION_NONE) return loss;
    return reduction == TN_REDUCTION_SUM ? tn_b_sum(b, loss, TN_ALL, false) : tn_b_mean(b, loss, TN_ALL, false);
}

/* dy of the reduced loss as a factor of each element's gradient; count: elements that were averaged. */
static tn_node *spread_loss(tn_build *b, tn_node *dy, int64_t reduction, int64_t count) {
    return reduction == TN_REDUCTION_MEAN ? tn_b_scale(b, dy, 1.0 / (double)count) : dy;
}

/* [n, 1] and [n] broadcast to n² distances: rarely intended, and hidden by the reduction. PyTorch warns too. */
static void notice_outer_distance(const tn_infer *c) {
    static atomic_bool told;
    char x[128], target[128];
    int64_t count = tn_product(c->shape, c->rank);
    if (count <= tn_node_numel(c->in[0]) || count <= tn_node_numel(c->in[1]) || atomic_exchange(&told, true)) return;
    tn_log_line(TN_LOG_NOTICE, "%s: input %s and target %s are broadcast to %lld elements; is one dimension missing?",
                c->row->name, tn_shape_text(c->in[0], x, sizeof x), tn_shape_text(c->in[1], target, sizeof target),
                (long long)count);
}

/* All inputs broadcast together; reduction is the first attribute of all losses of this form. */
static tn_status infer_distance(tn_infer *c) {
    int64_t reduction = c->attrs->i[0];
    TRY(tn_need_float(c, 0));
    TRY(tn_infer_broadcast(c));
    if (reduction == TN_REDUCTION_NONE) return TN_OK;
    notice_outer_distance(c);
    c->rank = 0;
    return TN_OK;
}

/* ---- distances --------------------------------------------------------------------------------------------------- */

static tn_node *difference(tn_build *b, const tn_node *n) { return tn_b_sub(b, n->in[0], n->in[1]); }

static tn_node *compose_mse_loss(tn_build *b, const tn_node *n) {
    tn_node *d = difference(b, n);
    return reduced(b, tn_b_mul(b, d, d), n->i[0]);
}

static void grad_mse_loss(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    tn_node *d = difference(b, n);
    if (!d) return;
    tn_node *g = tn_b_mul(b, tn_b_scale(b, spread_loss(b, dy, n->i[0], tn_node_numel(d)), 2.0), d);
    if (tn_needs_grad(n, 0)) grads[0] = tn_b_sum_to(b, g, n->in[0]);
    if (tn_needs_grad(n, 1)) grads[1] = tn_b_sum_to(b, tn_b_neg(b, g), n->in[1]);
}

/* mse_loss(x, target, reduction): (x - target)². */
OP_CODE(mse_loss, .promote = true, .infer = infer_distance, .compose = compose_mse_loss, .grad = grad_mse_loss,
        .cases = "tol=4e-6 atol=1e-6; [3,4] [3,4] reduction=mean; [3,4] [3,4] reduction=sum; "
                 "[3,4] [4] reduction=none; [0,2] [0,2] reduction=sum; error=broadcast [3] [4] reduction=mean; "
                 "error=floating [3]:i64 [3]:i64 reduction=mean");

static tn_node *compose_l1_loss(tn_build *b, const tn_node *n) {
    return reduced(b, tn_b_abs(b, difference(b, n)), n->i[0]);
}

/* l1_loss(x, target, reduction): |x - target|. */
OP_CODE(l1_loss, .promote = true, .infer = infer_distance, .compose = compose_l1_loss,
        .cases = "tol=4e-6 atol=1e-6; [3,4] [3,4] reduction=mean; [3,4] [3,4] reduction=sum; "
                 "[3,4] [4] reduction=none; [0,2] [0,2] reduction=sum; error=broadcast [3] [4] reduction=mean; "
                 "error=floating [3]:i64 [3]:i64 reduction=mean");

static tn_node *below(tn_build *b, tn_node *x, double v) { return tn_b_lt(b, x, tn_b_const(b, v, x)); }

/* d² / (2 width) where |d| < width, else |d| - width / 2: a parabola that goes over into a line. The parabola is not
 * taken of an infinite d, whose gradient, infinity times 0, would be NaN. */
static tn_node *rounded_distance(tn_build *b, const tn_node *n, double width) {
    tn_node *d = difference(b, n), *size = tn_b_abs(b, d), *is_near = below(b, size, width);
    tn_node *near = tn_b_where(b, is_near, d, tn_b_const(b, 0, d));
    tn_node *parabola = tn_b_scale(b, tn_b_mul(b, near, near), 0.5 / width);
    return tn_b_where(b, is_near, parabola, tn_b_offset(b, size, -0.5 * width));
}

static tn_node *compose_smooth_l1_loss(tn_build *b, const tn_node *n) {
    double beta = n->f[TN_SMOOTH_L1_LOSS_BETA];
    if (beta == 0.0) return compose_l1_loss(b, n); /* the parabola has no width: its gradient at 0 would be NaN */
    return reduced(b, rounded_distance(b, n, beta), n->i[0]);
}

static tn_status infer_smooth_l1_loss(tn_infer *c) {
    TRY(tn_need_range(c, "beta", c->attrs->f[TN_SMOOTH_L1_LOSS_BETA], 0, INFINITY));
    return infer_distance(c);
}

/* smooth_l1_loss(x, target, reduction, beta): d²/(2·beta) where |d| < beta, else |d| - beta/2, with d = x - target.
 * Source: Girshick 2015. */
OP_CODE(smooth_l1_loss, .promote = true, .infer = infer_smooth_l1_loss, .compose = compose_smooth_l1_loss,
        .cases = "tol=4e-6 atol=1e-6; [3,4] [3,4] reduction=mean; [3,4] [3,4] reduction=sum beta=0.3; "
                 "[3,4] [4] reduction=none beta=2; [3,4] [3,4] reduction=sum beta=0; "
                 "error=beta [3] [3] reduction=mean beta=-1");

static tn_node *compose_huber_loss(tn_build *b, const tn_node *n) {
    double delta = n->f[TN_HUBER_LOSS_DELTA];
    return reduced(b, tn_b_scale(b, rounded_distance(b, n, delta), delta), n->i[0]);
}

static tn_status infer_huber_loss(tn_infer *c) {
    double delta = c->attrs->f[TN_HUBER_LOSS_DELTA];
    if (!(delta > 0.0)) return tn_fail(TN_ERR_ARGUMENT, "huber_loss: delta is %g; it must be positive", delta);
    return infer_distance(c);
}

/* huber_loss(x, target, reduction, delta): d²/2 where |d| < delta, else delta·(|d| - delta/2), with d = x - target.
 * Source: Huber 1964. */
OP_CODE(huber_loss, .promote = true, .infer = infer_huber_loss, .compose = compose_huber_loss,
        .cases =
            "tol=4e-6 atol=1e-6; [3,4] [3,4] reduction=mean; [3,4] [3,4] reduction=sum delta=0.3; "
            "[3,4] [4] reduction=none delta=2; error= types=f16,bf16 tol=1ulp atol=0; [9]@-90..90 [9] reduction=mean "
            "delta=1");

/* ---- margins and likelihoods ------------------------------------------------------------------------------------- */

static tn_node *not_negative(tn_build *b, tn_node *x) { return x ? tn_b_relu(b, x) : NULL; }

static tn_node *compose_soft_margin_loss(tn_build *b, const tn_node *n) {
    tn_node *agreed = tn_b_mul(b, n->in[1], n->in[0]);
    return reduced(b, tn_b_neg(b, tn_b_logsigmoid(b, agreed)), n->i[0]);
}

/* soft_margin_loss(x, target, reduction): log(1 + exp(−target·x)), targets being 1 or −1. */
OP_CODE(soft_margin_loss, .promote = true, .infer = infer_distance, .compose = compose_soft_margin_loss,
        .cases = "tol=1e-5 atol=2e-6; [3,4] [3,4] reduction=mean; [3,4] [4] reduction=none; [3,4] [3,4] reduction=sum");

static tn_status infer_hinge_embedding_loss(tn_infer *c) {
    TRY(tn_need_finite(c, "margin", c->attrs->f[TN_HINGE_EMBEDDING_LOSS_MARGIN]));
    return infer_distance(c);
}

static tn_node *compose_hinge_embedding_loss(tn_build *b, const tn_node *n) {
    tn_node *x = n->in[0], *t = n->in[1], *zero = tn_b_const(b, 0, x);
    tn_node *apart = not_negative(b, tn_b_sub(b, tn_b_const(b, n->f[TN_HINGE_EMBEDDING_LOSS_MARGIN], x), x));
    tn_node *unlike = tn_b_where(b, tn_b_ne(b, t, tn_b_const(b, 1, t)), apart, zero);
    tn_node *like = tn_b_where(b, tn_b_ne(b, t, tn_b_const(b, -1, t)), x, zero);
    return reduced(b, tn_b_add(b, unlike, like), n->i[0]);
}

/* hinge_embedding_loss(x, target, reduction, margin): x where target is 1, max(0, margin − x) where it is −1. */
OP_CODE(hinge_embedding_loss, .promote = true, .infer = infer_hinge_embedding_loss,
        .compose = compose_hinge_embedding_loss,
        .cases = "tol=1e-5 atol=2e-6; [3,4] [3,4] reduction=mean; [3,4] [4] reduction=none margin=0.5");

static tn_status infer_margin_ranking_loss(tn_infer *c) {
    TRY(tn_need_finite(c, "margin", c->attrs->f[TN_MARGIN_RANKING_LOSS_MARGIN]));
    return infer_distance(c);
}

static tn_node *compose_margin_ranking_loss(tn_build *b, const tn_node *n) {
    tn_node *d = tn_b_mul(b, tn_b_neg(b, n->in[2]), difference(b, n));
    return reduced(b, not_negative(b, tn_b_offset(b, d, n->f[TN_MARGIN_RANKING_LOSS_MARGIN])), n->i[0]);
}

/* margin_ranking_loss(x1, x2, target, reduction, margin): max(0, margin − target·(x1 − x2)), targets being 1 or −1. */
OP_CODE(margin_ranking_loss, .promote = true, .infer = infer_margin_ranking_loss,
        .compose = compose_margin_ranking_loss,
        .cases = "tol=1e-5 atol=2e-6; [3,4] [3,4] [3,4] reduction=mean; [3,4] [4] [4] reduction=none margin=0.5");

static tn_status infer_poisson_nll_loss(tn_infer *c) {
    TRY(tn_need_finite(c, "eps", c->attrs->f[TN_POISSON_NLL_LOSS_EPS]));
    return infer_distance(c);
}

static tn_node *compose_poisson_nll_loss(tn_build *b, const tn_node *n) {
    tn_node *x = n->in[0], *t = n->in[1];
    double eps = n->f[TN_POISSON_NLL_LOSS_EPS];
    tn_node *loss = n->i[TN_POISSON_NLL_LOSS_LOG_INPUT]
                        ? tn_b_sub(b, tn_b_exp(b, x), tn_b_mul(b, t, x))
                        : tn_b_sub(b, x, tn_b_mul(b, t, tn_b_log(b, tn_b_offset(b, x, eps))));
    if (n->i[TN_POISSON_NLL_LOSS_FULL] && t) { /* Stirling's approximation of log(target!) */
        tn_node *one = tn_b_const(b, 1, t), *many = tn_b_lt(b, one, t), *safe = tn_b_where(b, many, t, one);
        tn_node *log = tn_b_sub(b, tn_b_mul(b, safe, tn_b_log(b, safe)), safe);
        log = tn_b_add(b, log, tn_b_scale(b, tn_b_log(b, tn_b_scale(b, safe, 2 * M_PI)), 0.5));
        loss = tn_b_add(b, loss, tn_b_where(b, many, log, tn_b_const(b, 0, t)));
    }
    return reduced(b, loss, n->i[0]);
}

/* poisson_nll_loss(x, target, reduction, log_input, full, eps): exp(x) − target·x, or with log_input false
 * x − target·log(x + eps); full adds Stirling's approximation of log(target!) where target > 1. */
OP_CODE(poisson_nll_loss, .promote = true, .infer = infer_poisson_nll_loss, .compose = compose_poisson_nll_loss,
        .cases = "tol=1e-5 atol=2e-6; [3,4] [3,4]@0.1..4 reduction=mean; [3,4]@0.1..4 [4]@1.1..4 reduction=none "
                 "log_input=false full=true eps=1e-3; error=floating [3]:i64 [3]:i64 reduction=mean");

static tn_status infer_gaussian_nll_loss(tn_infer *c) {
    TRY(tn_need_range(c, "eps", c->attrs->f[TN_GAUSSIAN_NLL_LOSS_EPS], 0, INFINITY));
    return infer_distance(c);
}

static tn_node *held_variance(tn_build *b, const tn_node *n) {
    return tn_b_maximum(b, n->in[2], tn_b_const(b, n->f[TN_GAUSSIAN_NLL_LOSS_EPS], n->in[2]));
}

static tn_node *compose_gaussian_nll_loss(tn_build *b, const tn_node *n) {
    tn_node *d = difference(b, n), *var = held_variance(b, n);
    tn_node *loss = tn_b_scale(b, tn_b_add(b, tn_b_log(b, var), tn_b_div(b, tn_b_mul(b, d, d), var)), 0.5);
    if (n->i[TN_GAUSSIAN_NLL_LOSS_FULL]) loss = tn_b_offset(b, loss, 0.91893853320467274178); /* log(2π) / 2 */
    return reduced(b, loss, n->i[0]);
}

/* The variance is bounded by eps as if that were its value: its gradient goes on, as in PyTorch. */
static void grad_gaussian_nll_loss(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    tn_node *d = difference(b, n), *var = held_variance(b, n), *slope = tn_b_div(b, d, var);
    if (!slope) return;
    tn_node *g = spread_loss(b, dy, n->i[0], tn_node_numel(slope)), *to_x = tn_b_mul(b, g, slope);
    tn_node *to_var = tn_b_sub(b, tn_b_reciprocal(b, var), tn_b_mul(b, slope, slope));
    if (tn_needs_grad(n, 0)) grads[0] = tn_b_sum_to(b, to_x, n->in[0]);
    if (tn_needs_grad(n, 1)) grads[1] = tn_b_sum_to(b, tn_b_neg(b, to_x), n->in[1]);
    if (tn_needs_grad(n, 2)) grads[2] = tn_b_sum_to(b, tn_b_mul(b, g, tn_b_scale(b, to_var, 0.5)), n->in[2]);
}

/* gaussian_nll_loss(x, target, var, reduction, full, eps): (log(v) + (x − target)²/v) / 2 with v = max(var, eps); full
 * adds log(2π)/2. */
OP_CODE(gaussian_nll_loss, .promote = true, .infer = infer_gaussian_nll_loss, .compose = compose_gaussian_nll_loss,
        .grad = grad_gaussian_nll_loss,
        .cases = "tol=1e-5 atol=4e-6; [3,4] [3,4] [3,4]@0.3..4 reduction=mean; [3,4] [4] [3,1]@0.3..4 reduction=none "
                 "full=true; error=eps [3] [3] [3] reduction=mean eps=-1");

static tn_node *compose_kl_div(tn_build *b, const tn_node *n) {
    tn_node *x = n->in[0], *t = n->in[1];
    tn_node *loss = n->i[TN_KL_DIV_LOG_TARGET] ? tn_b_mul(b, tn_b_exp(b, t), tn_b_sub(b, t, x))
                                               : tn_b_sub(b, tn_b_xlogy(b, t, t), tn_b_mul(b, t, x));
    return reduced(b, loss, n->i[0]);
}

/* kl_div(x, target, reduction, log_target): target · (log(target) - x), x holding log-probabilities; with log_target
 * the target does too. The mean a sample (PyTorch's batchmean) is the sum divided by the batch.
 * Source: Kullback, Leibler 1951. */
OP_CODE(kl_div, .promote = true, .infer = infer_distance, .compose = compose_kl_div,
        .cases = "tol=4e-6 atol=1e-6; [3,4] [3,4]@0.1..1 reduction=mean; [3,4] [3,4]@0.1..1 reduction=none; "
                 "[3,4] [3,4] reduction=sum log_target=true");

/* ---- binary cross-entropy ---------------------------------------------------------------------------------------- */

static tn_node *weighted(tn_build *b, tn_node *x, tn_node *weight) { return weight ? tn_b_mul(b, x, weight) : x; }

/* PyTorch keeps logarithms above -100, so that the loss stays finite. */
static tn_node *clamped_log(tn_build *b, tn_node *x) {
    tn_node *log = tn_b_log(b, x);
    return tn_b_maximum(b, log, tn_b_const(b, -100.0, log));
}

static tn_node *one_minus(tn_build *b, tn_node *x) { return tn_b_sub(b, tn_b_const(b, 1.0, x), x); }

static tn_node *compose_binary_cross_entropy(tn_build *b, const tn_node *n) {
    tn_node *x = n->in[0], *t = n->in[1];
    tn_node *yes = tn_b_mul(b, t, clamped_log(b, x)),
            *no = tn_b_mul(b, one_minus(b, t), clamped_log(b, one_minus(b, x)));
    return reduced(b, weighted(b, tn_b_neg(b, tn_b_add(b, yes, no)), n->in[2]), n->i[0]);
}

static int64_t broadcast_count(tn_build *b, const tn_node *n) {
    const tn_node *d = difference(b, n);
    return d ? tn_node_numel(d) : 1;
}

static void grad_binary_cross_entropy(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    tn_node *x = n->in[0], *t = n->in[1];
    tn_node *g = weighted(b, spread_loss(b, dy, n->i[0], broadcast_count(b, n)), n->in[2]);
    if (tn_needs_grad(n, 0)) {
        tn_node *spreads = tn_b_mul(b, one_minus(b, x), x);
        tn_node *slope = tn_b_div(b, tn_b_sub(b, x, t), tn_b_maximum(b, spreads, tn_b_const(b, 1e-12, x)));
        grads[0] = tn_b_sum_to(b, tn_b_mul(b, g, slope), x);
    }
    if (tn_needs_grad(n, 1)) {
        tn_node *slope = tn_b_sub(b, clamped_log(b, one_minus(b, x)), clamped_log(b, x));
        grads[1] = tn_b_sum_to(b, tn_b_mul(b, g, slope), t);
    }
}

/* As in PyTorch, only the weights are broadcast. */
static tn_status infer_binary(tn_infer *c) {
    char x[128], target[128];
    if (tn_same_shape(c->in[0], c->in[1])) return infer_distance(c);
    return tn_fail(TN_ERR_SHAPE, "%s: input %s and target %s must have the same shape", c->row->name,
                   tn_shape_text(c->in[0], x, sizeof x), tn_shape_text(c->in[1], target, sizeof target));
}

/* binary_cross_entropy(x, target, weight, reduction): -(t·log(x) + (1 - t)·log(1 - x)) of probabilities x, logarithms
 * kept above -100, times weight unless it is NULL. */
OP_CODE(binary_cross_entropy, .promote = true, .infer = infer_binary, .compose = compose_binary_cross_entropy,
        .grad = grad_binary_cross_entropy,
        .cases = "tol=1e-5 atol=2e-6; [3,4]@0.1..0.9 [3,4]@0..1 - reduction=mean; "
                 "[3,4]@0.1..0.9 [3,4]@0..1 [4]@0.5..2 reduction=none grad=off; "
                 "[3,4]@0.1..0.9 [3,4]@0..1 - reduction=sum; error=same [4,1] [4] - reduction=mean");

/* With l = log(sigmoid(x)): -(p·t·l + (1 - t)·(l - x)). */
static tn_node *compose_binary_cross_entropy_with_logits(tn_build *b, const tn_node *n) {
    tn_node *x = n->in[0], *t = n->in[1], *positive = n->in[3];
    tn_node *factor = positive ? tn_b_offset(b, tn_b_mul(b, tn_b_offset(b, positive, -1.0), t), 1.0) : NULL;
    tn_node *loss = tn_b_sub(b, tn_b_mul(b, one_minus(b, t), x), weighted(b, tn_b_logsigmoid(b, x), factor));
    return reduced(b, weighted(b, loss, n->in[2]), n->i[0]);
}

/* binary_cross_entropy_with_logits(x, target, weight, pos_weight, reduction): binary_cross_entropy of sigmoid(x)
 * without overflow; pos_weight multiplies the part of the positive class; both weights may be NULL. */
OP_CODE(binary_cross_entropy_with_logits, .promote = true, .infer = infer_binary,
        .compose = compose_binary_cross_entropy_with_logits,
        .cases = "tol=1e-5 atol=2e-6; [3,4]@-5..5 [3,4]@0..1 - - reduction=mean; "
                 "[3,4]@-5..5 [3,4]@0..1 [4]@0.5..2 [4]@0.5..3 reduction=none; "
                 "[20]@-200..200 [20]@0..1 - - reduction=sum; error=same [4,1] [4] - - reduction=mean");

/* ---- classes ----------------------------------------------------------------------------------------------------- */

/* Both losses of classes: x [batch, classes, ...] or [classes], target [batch, ...] or [] with class numbers, weight
 * [classes] or NULL; attributes reduction, ignore_index lead. */
enum { CLASS_REDUCTION, CLASS_IGNORE_INDEX };
_Static_assert((int)CLASS_REDUCTION == (int)TN_NLL_LOSS_REDUCTION &&
                   (int)CLASS_REDUCTION == (int)TN_CROSS_ENTROPY_REDUCTION &&
                   (int)CLASS_IGNORE_INDEX == (int)TN_NLL_LOSS_IGNORE_INDEX &&
                   (int)CLASS_IGNORE_INDEX == (int)TN_CROSS_ENTROPY_IGNORE_INDEX,
               "both losses have their attributes in this order");

static int class_dim(const tn_node *x) { return x->rank > 1 ? 1 : 0; }

/* A target of probabilities has x's shape and a float dtype. */
static bool of_probabilities(const tn_node *target) { return tn_dtype_is_float((tn_dtype)target->dtype); }

static tn_status check_probabilities(const tn_infer *c) {
    const tn_node *x = c->in[0], *t = c->in[1];
    char xt[96], tt[96];
    bool fits = x->rank >= 1 && t->rank == x->rank;
    for (int d = 0; fits && d < x->rank; d++)
        fits = t->shape[d] == x->shape[d];
    if (!fits)
        return tn_fail(TN_ERR_SHAPE,
                       "%s: input %s and target %s do not fit together: a target of probabilities (%s) must have the "
                       "input's shape; a target of class indices must have an integer dtype",
                       c->row->name, tn_shape_text(x, xt, sizeof xt), tn_shape_text(t, tt, sizeof tt),
                       tn_dtype_name((tn_dtype)t->dtype));
    if (t->dtype == x->dtype) return TN_OK;
    return tn_fail(TN_ERR_DTYPE, "%s: the input is %s but the target's probabilities are %s; cast one of them",
                   c->row->name, tn_dtype_name((tn_dtype)x->dtype), tn_dtype_name((tn_dtype)t->dtype));
}

static tn_status check_target(const tn_infer *c) {
    const tn_node *x = c->in[0], *t = c->in[1];
    char xt[96], tt[96];
    if (tn_dtype_is_float((tn_dtype)t->dtype) || t->dtype == TN_BOOL)
        return tn_fail(TN_ERR_DTYPE, "%s: the target must contain class indices (an integer dtype); it is %s",
                       c->row->name, tn_dtype_name((tn_dtype)t->dtype));
    bool fits = x->rank >= 1 && t->rank == x->rank - 1;
    for (int d = 0, k = 0; fits && d < x->rank; d++)
        if (d != class_dim(x)) fits = t->shape[k++] == x->shape[d];
    if (fits) return TN_OK;
    return tn_fail(TN_ERR_SHAPE,
                   "%s: input %s and target %s do not fit together: the target must have the input's shape without the "
                   "class dimension (dimension %d)",
                   c->row->name, tn_shape_text(x, xt, sizeof xt), tn_shape_text(t, tt, sizeof tt), class_dim(x));
}

static tn_status check_class_weight(const tn_infer *c) {
    const tn_node *x = c->in[0], *w = c->in[2];
    char text[96];
    if (!w) return TN_OK;
    int64_t classes = x->shape[class_dim(x)];
    if (w->rank != 1 || w->shape[0] != classes)
        return tn_fail(TN_ERR_SHAPE, "%s: the weight must be [%lld], one entry per class; it is %s", c->row->name,
                       (long long)classes, tn_shape_text(w, text, sizeof text));
    if (w->dtype == x->dtype) return TN_OK;
    return tn_fail(TN_ERR_DTYPE, "%s: the input is %s but the weight is %s; cast one of them", c->row->name,
                   tn_dtype_name((tn_dtype)x->dtype), tn_dtype_name((tn_dtype)w->dtype));
}

static tn_status infer_classes(tn_infer *c) {
    const tn_node *t = c->in[1];
    TRY(tn_need_float(c, 0));
    TRY(check_target(c));
    TRY(check_class_weight(c));
    c->dtype = (tn_dtype)c->in[0]->dtype;
    c->rank = 0;
    if (c->attrs->i[CLASS_REDUCTION] != TN_REDUCTION_NONE) return TN_OK;
    c->rank = t->rank;
    for (int d = 0; d < t->rank; d++) {
        c->shape[d] = t->shape[d];
        c->symbol[d] = t->symbol[d];
    }
    return TN_OK;
}

static tn_status infer_cross_entropy(tn_infer *c) {
    const tn_node *x = c->in[0];
    TRY(tn_need_range(c, "label_smoothing", c->attrs->f[TN_CROSS_ENTROPY_LABEL_SMOOTHING], 0, 1));
    if (!of_probabilities(c->in[1])) return infer_classes(c);
    TRY(tn_need_float(c, 0));
    TRY(check_probabilities(c));
    TRY(check_class_weight(c));
    TRY(tn_infer_same(c));
    c->rank = 0;
    for (int d = 0; c->attrs->i[CLASS_REDUCTION] == TN_REDUCTION_NONE && d < x->rank; d++) {
        if (d == class_dim(x)) continue;
        c->shape[c->rank] = x->shape[d];
        c->symbol[c->rank++] = x->symbol[d];
    }
    return TN_OK;
}

/* What the losses of classes need of the target. */
typedef struct class_terms {
    int dim;
    tn_node *valid;  /* bool: not ignored */
    tn_node *target; /* i64, 0 where ignored */
    tn_node *factor; /* the weight of each sample's class; 0 where ignored */
    tn_node *zero, *one;
} class_terms;

/* v as a rank-0 i64 on like's device. A double has not every v: then it is the sum of two that it has. */
static tn_node *whole_number(tn_build *b, int64_t v, const tn_node *like) {
    const int64_t exact = INT64_C(1) << 53, half = INT64_C(1) << 32;
    if (v >= -exact && v <= exact) return tn_b_const(b, (double)v, like);
    return tn_b_offset(b, tn_b_const(b, (double)(v - v % half), like), (double)(v % half));
}

static class_terms terms_of(tn_build *b, const tn_node *n) {
    class_terms k = {.dim = class_dim(n->in[0])};
    tn_node *t = tn_b_cast(b, n->in[1], TN_I64), *weight = n->in[2];
    k.zero = tn_b_const(b, 0.0, n->in[0]);
    k.one = tn_b_const(b, 1.0, n->in[0]);
    k.valid = tn_b_ne(b, t, whole_number(b, n->i[CLASS_IGNORE_INDEX], t));
    k.target = tn_b_where(b, k.valid, t, tn_b_const(b, 0.0, t));
    tn_node *own = k.one;
    if (weight) {
        const tn_node *target = n->in[1];
        tn_node *flat = tn_b_reshape(b, k.target, (int64_t[]){tn_node_numel(target)}, 1);
        own = tn_b_view(b, tn_b_index_select(b, weight, 0, flat), target->shape, target->rank);
    }
    k.factor = tn_b_where(b, k.valid, own, k.zero);
    return k;
}

/* Sum, mean by the samples' weights, or the losses themselves. */
static tn_node *reduced_by_weight(tn_build *b, tn_node *loss, const class_terms *k, int64_t reduction) {
    if (reduction == TN_REDUCTION_NONE) return loss;
    tn_node *sum = tn_b_sum(b, loss, TN_ALL, false);
    return reduction == TN_REDUCTION_SUM ? sum : tn_b_div(b, sum, tn_b_sum(b, k->factor, TN_ALL, false));
}

/* -factor · x[target], 0 where ignored even if x is infinite there. */
static tn_node *picked_loss(tn_build *b, const tn_node *n, tn_node *x, const class_terms *k) {
    tn_node *picked = tn_b_gather(b, x, k->dim, tn_b_unsqueeze(b, k->target, k->dim));
    picked = tn_b_view(b, picked, n->in[1]->shape, n->in[1]->rank);
    return tn_b_where(b, k->valid, tn_b_neg(b, weighted(b, picked, n->in[2] ? k->factor : NULL)), k->zero);
}

static tn_node *compose_nll_loss(tn_build *b, const tn_node *n) {
    class_terms k = terms_of(b, n);
    return reduced_by_weight(b, picked_loss(b, n, n->in[0], &k), &k, n->i[CLASS_REDUCTION]);
}

/* nll_loss(x, target, weight, reduction, ignore_index): -weight[target] · x[target] of log-probabilities
 * x [batch, classes, ...] and class numbers target [batch, ...]. Samples whose target is ignore_index do not
 * count; the mean divides by the sum of the weights. */
OP_CODE(nll_loss, .infer = infer_classes, .compose = compose_nll_loss,
        .cases = "tol=4e-6 atol=1e-6; [3,4] [3]:i64@0..3 -; [3,4] [3]:i64@0..3 [4]@0.5..2 reduction=sum grad=off; "
                 "[2,4,3] [2,3]:i64@0..3 - reduction=none; [3,4] [3]:i64@0..3 - ignore_index=0 reduction=sum; "
                 "[4] []:i64@0..3 -; [3,4] [3]:i32@0..3 - ignore_index=2 reduction=sum; error=class [3,4] [3]:f32 -; "
                 "error=fit [3,4] [4]:i64@0..3 -; error=weight [3,4] [3]:i64@0..3 [3]");

/* The class weights as they meet dimension `dim` of x. */
static tn_node *weight_along(tn_build *b, const tn_node *n, const class_terms *k) {
    const tn_node *x = n->in[0];
    int64_t shape[TN_MAX_RANK];
    int rank = x->rank - k->dim;
    shape[0] = x->shape[k->dim];
    for (int d = 1; d < rank; d++)
        shape[d] = 1;
    return tn_b_view(b, n->in[2], shape, rank);
}

/* -Σ weight · log_softmax over all classes: what label smoothing mixes in. */
static tn_node *smooth_loss(tn_build *b, const tn_node *n, tn_node *log_p, const class_terms *k) {
    int64_t dim = k->dim;
    tn_node *all = n->in[2] ? tn_b_mul(b, log_p, weight_along(b, n, k)) : log_p;
    return tn_b_where(b, k->valid, tn_b_neg(b, tn_b_sum(b, all, &dim, 1, false)), k->zero);
}

static int64_t sample_count(const tn_node *x, int64_t dim) {
    return tn_product(x->shape, dim) * tn_product(x->shape + dim + 1, x->rank - dim - 1);
}

/* -Σ weight · target · log_softmax(x) over the classes; the mean is over the samples, whatever their weights. */
static tn_node *probability_loss(tn_build *b, const tn_node *n) {
    tn_node *x = n->in[0], *target = n->in[1];
    int64_t dim = class_dim(x), classes = x->shape[dim], samples = sample_count(x, dim);
    class_terms k = {.dim = (int)dim};
    double smoothing = n->f[TN_CROSS_ENTROPY_LABEL_SMOOTHING];
    if (smoothing != 0.0) target = tn_b_offset(b, tn_b_scale(b, target, 1.0 - smoothing), smoothing / (double)classes);
    if (n->in[2]) target = tn_b_mul(b, target, weight_along(b, n, &k));
    tn_node *each = tn_b_sum(b, tn_b_mul(b, target, tn_b_log_softmax(b, x, dim)), &dim, 1, false);
    tn_node *loss = tn_b_neg(b, each);
    if (n->i[CLASS_REDUCTION] == TN_REDUCTION_NONE) return loss;
    tn_node *sum = tn_b_sum(b, loss, TN_ALL, false);
    if (n->i[CLASS_REDUCTION] == TN_REDUCTION_SUM) return sum;
    return tn_b_div(b, sum, tn_b_const(b, (double)samples, sum));
}

/* (softmax · Σ q - q) times the factor of the reduction, q the weighted target; a target's gradient is -log_softmax.
 * Both follow from the composition, whose gradient is written out here because a composed op with `grad` has only
 * that. */
static void grad_probability_loss(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    tn_node *x = n->in[0], *target = n->in[1];
    int64_t dim = class_dim(x), samples = sample_count(x, dim);
    class_terms k = {.dim = (int)dim};
    double smoothing = n->f[TN_CROSS_ENTROPY_LABEL_SMOOTHING];
    int64_t reduction = n->i[CLASS_REDUCTION];
    if (reduction == TN_REDUCTION_NONE) dy = tn_b_unsqueeze(b, dy, dim);
    if (reduction == TN_REDUCTION_MEAN && dy) dy = tn_b_div(b, dy, tn_b_const(b, (double)samples, dy));
    tn_node *weight = n->in[2] ? weight_along(b, n, &k) : NULL;
    tn_node *log_p = tn_b_log_softmax(b, x, dim);
    if (tn_needs_grad(n, 0)) {
        tn_node *q = target;
        if (smoothing != 0.0) q = tn_b_offset(b, tn_b_scale(b, q, 1.0 - smoothing), smoothing / (double)x->shape[dim]);
        q = weighted(b, q, weight);
        tn_node *total = tn_b_sum(b, q, &dim, 1, true);
        grads[0] = tn_b_mul(b, dy, tn_b_sub(b, tn_b_mul(b, tn_b_exp(b, log_p), total), q));
    }
    if (tn_needs_grad(n, 1))
        grads[1] = tn_b_neg(b, tn_b_mul(b, dy, tn_b_scale(b, weighted(b, log_p, weight), 1.0 - smoothing)));
}

static tn_node *compose_cross_entropy(tn_build *b, const tn_node *n) {
    if (of_probabilities(n->in[1])) return probability_loss(b, n);
    class_terms k = terms_of(b, n);
    double smoothing = n->f[TN_CROSS_ENTROPY_LABEL_SMOOTHING], classes = (double)n->in[0]->shape[k.dim];
    tn_node *log_p = tn_b_log_softmax(b, n->in[0], k.dim);
    tn_node *loss = picked_loss(b, n, log_p, &k);
    if (smoothing != 0.0)
        loss = tn_b_add(b, tn_b_scale(b, loss, 1.0 - smoothing),
                        tn_b_scale(b, smooth_loss(b, n, log_p, &k), smoothing / classes));
    return reduced_by_weight(b, loss, &k, n->i[CLASS_REDUCTION]);
}

/* The classes' numbers along dimension `dim` of x. */
static tn_node *class_numbers(tn_build *b, const tn_node *x, int dim) {
    int64_t shape[TN_MAX_RANK];
    int rank = x->rank - dim;
    shape[0] = x->shape[dim];
    for (int d = 1; d < rank; d++)
        shape[d] = 1;
    return tn_b_view(b, tn_b_arange(b, 0.0, (double)x->shape[dim], 1.0, TN_I64), shape, rank);
}

/* Smoothing's part: e/classes · (softmax · Σ weight - weight), for each sample that counts. */
static tn_node *smooth_gradient(tn_build *b, const tn_node *n, tn_node *p, tn_node *dy, const class_terms *k) {
    double classes = (double)n->in[0]->shape[k->dim], share = n->f[TN_CROSS_ENTROPY_LABEL_SMOOTHING] / classes;
    tn_node *w = n->in[2] ? weight_along(b, n, k) : k->one;
    tn_node *total = n->in[2] ? tn_b_sum(b, n->in[2], TN_ALL, false) : tn_b_const(b, classes, n->in[0]);
    tn_node *factor = tn_b_where(b, k->valid, tn_b_scale(b, dy, share), k->zero);
    return tn_b_mul(b, tn_b_unsqueeze(b, factor, k->dim), tn_b_sub(b, tn_b_mul(b, p, total), w));
}

/* factor · (softmax - onehot), with the factor of the reduction. */
static void grad_cross_entropy(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    if (of_probabilities(n->in[1])) {
        grad_probability_loss(b, n, dy, grads);
        return;
    }
    tn_node *x = n->in[0];
    class_terms k = terms_of(b, n);
    double smoothing = n->f[TN_CROSS_ENTROPY_LABEL_SMOOTHING];
    if (n->i[CLASS_REDUCTION] == TN_REDUCTION_MEAN) dy = tn_b_div(b, dy, tn_b_sum(b, k.factor, TN_ALL, false));
    tn_node *p = tn_b_softmax(b, x, k.dim);
    tn_node *factor = tn_b_mul(b, k.factor, smoothing != 0.0 ? tn_b_scale(b, dy, 1.0 - smoothing) : dy);
    tn_node *each = tn_b_unsqueeze(b, factor, k.dim);
    tn_node *hit = tn_b_eq(b, class_numbers(b, x, k.dim), tn_b_unsqueeze(b, k.target, k.dim));
    grads[0] = tn_b_sub(b, tn_b_mul(b, p, each), tn_b_where(b, hit, each, k.zero));
    if (smoothing != 0.0) grads[0] = tn_b_add(b, grads[0], smooth_gradient(b, n, p, dy, &k));
}

/* cross_entropy(x, target, weight, reduction, ignore_index, label_smoothing): -weight[target] ·
 * log_softmax(x)[target] of logits x [batch, classes, ...] and class numbers target [batch, ...]. Samples whose target
 * is ignore_index do not count; the mean divides by the sum of the weights; label_smoothing mixes in the uniform
 * distribution. A target of x's shape and dtype holds probabilities: the loss of a sample is then -Σ weight · target ·
 * log_softmax(x) over the classes, and the mean divides by the number of samples. Source: Szegedy et al. 2015 for
 * smoothing. */
OP_CODE(cross_entropy, .infer = infer_cross_entropy, .compose = compose_cross_entropy, .grad = grad_cross_entropy,
        .cases = "tol=1e-5 atol=2e-6; [3,4] [3]:i64@0..3 -; [3,4] [3]:i64@0..3 [4]@0.5..2 reduction=sum grad=off; "
                 "[2,4,3] [2,3]:i64@0..3 - reduction=none; [3,4] [3]:i64@0..3 - ignore_index=0 reduction=sum; "
                 "[4] []:i64@0..3 -; [3,4] [3]:i64@0..3 - label_smoothing=0.1; "
                 "[2,4,3] [2,3]:i64@0..3 [4]@0.5..2 label_smoothing=0.2 reduction=none grad=off; "
                 "[3,4]@-80..80 [3]:i64@0..3 - atol=4e-5; [3,4] [3,4]@0..1 -; [2,4,3] [2,4,3]@0..1 - reduction=none; "
                 "[4] [4]@0..1 - reduction=sum; [3,4] [3,4]@0..1 [4]@0.5..2 label_smoothing=0.2 grad=off; "
                 "error=class [3,4] [3]:f32 -; error=probabilities [3,4]:f32 [3,4]:f64 -; "
                 "error=fit [3,4] [4]:i64@0..3 -; error=weight [3,4] [3]:i64@0..3 [3]");
