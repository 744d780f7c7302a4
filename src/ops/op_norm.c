/* op_norm.c — softmax and normalization layers.
 *
 * Layer, group, instance and batch normalization differ only in the dimensions that they standardize. One internal op
 * does that for all four and states the only gradient rule; reshaping, weight and bias are composed around it and
 * differentiated automatically. */
#include <float.h>
#include <stdio.h>
#include <string.h>

#include "ops/ops_common.h"

/* ---- small words ------------------------------------------------------------------------------------------------- */

static tn_node *squared(tn_build *b, tn_node *x) { return tn_b_mul(b, x, x); }

static tn_status wrong_shape(const tn_infer *c, const char *name, const tn_node *is, const char *want) {
    char text[96];
    return tn_fail(TN_ERR_SHAPE, "%s: %s must be %s; it is %s", c->row->name, name, want,
                   tn_shape_text(is, text, sizeof text));
}

/* ---- softmax ----------------------------------------------------------------------------------------------------- */

static tn_status infer_softmax(tn_infer *c) {
    int rank = c->in[0]->rank;
    TRY(tn_need_float(c, 0));
    TRY(tn_infer_dim(c, c->attrs->i[0], rank ? rank : 1, &c->attrs->i[0]));
    return tn_infer_same(c);
}

/* A single number has no dimension to reduce: the empty list then means all none of them. */
static int one_dim(const tn_node *n) { return n->rank ? 1 : 0; }

static tn_node *below_maximum(tn_build *b, const tn_node *n) {
    tn_node *x = n->in[0];
    if (n->rank && n->shape[n->i[0]] == 0) return x; /* an empty row has no maximum */
    return tn_b_sub(b, x, tn_b_amax(b, x, n->i, one_dim(n), true));
}

static tn_node *compose_softmax(tn_build *b, const tn_node *n) {
    tn_node *e = tn_b_exp(b, below_maximum(b, n));
    return tn_b_div(b, e, tn_b_sum(b, e, n->i, one_dim(n), true));
}

static tn_node *grad_softmax(tn_build *b, const tn_node *n, tn_node *dy) {
    tn_node *y = tn_b_self(n), *sum = tn_b_sum(b, tn_b_mul(b, dy, y), n->i, one_dim(n), true);
    return tn_b_mul(b, y, tn_b_sub(b, dy, sum));
}

/* softmax(x, dim): exp(x) / Σ exp(x) along dim, computed from x - max(x). */
OP_CODE(softmax, .infer = infer_softmax, .compose = compose_softmax, .grad_first = grad_softmax,
        .cases =
            "tol=4e-6 atol=1e-7; [3,5] dim=1; [2,3,4]@-80..80 dim=-2; [7] dim=0; [] dim=0; [0,3] dim=1; "
            "[3,0] dim=1; error=range [3] dim=1; error=floating [3]:i64 dim=0; error= types=f16,bf16 tol=1ulp atol=0; "
            "[3,5] dim=1");

static tn_node *compose_softmin(tn_build *b, const tn_node *n) {
    return tn_b_softmax(b, tn_b_neg(b, n->in[0]), n->i[0]);
}

/* softmin(x, dim): softmax of −x. */
OP_CODE(softmin, .infer = infer_softmax, .compose = compose_softmin,
        .cases = "tol=4e-6 atol=1e-7; [3,5] dim=1; [] dim=0; error=range [3] dim=1");

static tn_node *compose_log_softmax(tn_build *b, const tn_node *n) {
    tn_node *z = below_maximum(b, n);
    tn_node *sum = tn_b_sum(b, tn_b_exp(b, z), n->i, one_dim(n), true);
    return tn_b_sub(b, z, tn_b_log(b, sum));
}

static tn_node *grad_log_softmax(tn_build *b, const tn_node *n, tn_node *dy) {
    tn_node *sum = tn_b_sum(b, dy, n->i, one_dim(n), true);
    return tn_b_sub(b, dy, tn_b_mul(b, tn_b_exp(b, tn_b_self(n)), sum));
}

/* log_softmax(x, dim): log(softmax(x)) along dim, without underflow. */
OP_CODE(log_softmax, .infer = infer_softmax, .compose = compose_log_softmax, .grad_first = grad_log_softmax,
        .cases = "tol=4e-6 atol=4e-6; [3,5] dim=1; [2,3,4]@-80..80 dim=-2 atol=4e-5; [7] dim=0; [] dim=0; "
                 "[0,3] dim=1; [0,3] dim=0; error=range [3] dim=1");

/* ---- standardising over some dimensions -------------------------------------------------------------------------- */

/* Attributes of both internal ops: the list of dims, then eps in f[0]. */
static const int64_t *dims_of(const tn_node *n) { return n->i + 1; }
static int dim_count_of(const tn_node *n) { return (int)n->i[0]; }

static tn_node *mean_over(tn_build *b, const tn_node *n, tn_node *x) {
    return tn_b_mean_apart(b, x, dims_of(n), dim_count_of(n));
}

static tn_node *centred(tn_build *b, const tn_node *n) { return tn_b_sub(b, n->in[0], mean_over(b, n, n->in[0])); }

/* 1 / sqrt(mean(c²) + eps) */
static tn_node *inverse_deviation(tn_build *b, const tn_node *n, tn_node *c) {
    return tn_b_rsqrt(b, tn_b_offset(b, mean_over(b, n, squared(b, c)), n->f[0]));
}

static tn_node *compose_standardize(tn_build *b, const tn_node *n) {
    tn_node *c = centred(b, n);
    return tn_b_mul(b, c, inverse_deviation(b, n, c));
}

/* r · (dy - mean(dy) - y · mean(dy · y)), r = 1/deviation */
static tn_node *grad_standardize(tn_build *b, const tn_node *n, tn_node *dy) {
    tn_node *y = tn_b_self(n), *r = inverse_deviation(b, n, centred(b, n));
    tn_node *along = tn_b_mul(b, y, mean_over(b, n, tn_b_mul(b, dy, y)));
    tn_node *across = tn_b_sub(b, tn_b_sub(b, dy, mean_over(b, n, dy)), along);
    return tn_b_mul(b, r, across);
}

/* standardize(x, dims, eps): (x - mean(x)) / sqrt(var(x) + eps) with mean and (biased) variance over dims. */
OP_CODE(standardize, .infer = tn_infer_float, .compose = compose_standardize, .grad_first = grad_standardize,
        .cases = "tol=2e-5 atol=2e-5; [3,6] dims=(1) eps=1e-5; [2,3,4] dims=(0,2) eps=0.1");

static tn_node *compose_rms_scale(tn_build *b, const tn_node *n) {
    return tn_b_mul(b, n->in[0], inverse_deviation(b, n, n->in[0]));
}

static tn_node *grad_rms_scale(tn_build *b, const tn_node *n, tn_node *dy) {
    tn_node *y = tn_b_self(n), *r = inverse_deviation(b, n, n->in[0]);
    tn_node *along = tn_b_mul(b, y, mean_over(b, n, tn_b_mul(b, dy, y)));
    return tn_b_mul(b, r, tn_b_sub(b, dy, along));
}

/* rms_scale(x, dims, eps): x / sqrt(mean(x²) + eps) with the mean over dims. */
OP_CODE(rms_scale, .infer = tn_infer_float, .compose = compose_rms_scale, .grad_first = grad_rms_scale,
        .cases = "tol=1e-5 atol=1e-5; [3,6] dims=(1) eps=1e-5; [2,3,4] dims=(0,2) eps=0.1");

/* x · weight + bias, each NULL or seen in `shape` so that it meets x's dimensions. */
static tn_node *affine(tn_build *b, tn_node *x, tn_node *weight, tn_node *bias, const int64_t *shape, int rank) {
    if (weight) x = tn_b_mul(b, x, tn_b_view(b, weight, shape, rank));
    if (bias) x = tn_b_add(b, x, tn_b_view(b, bias, shape, rank));
    return x;
}

/* ---- over the last dimensions: layer_norm, rms_norm -------------------------------------------------------------- */

/* Attributes: normalized_shape as a list, then eps. */
static tn_status check_last_dims(const tn_infer *c, const tn_node *x, const char *name) {
    int count = (int)c->attrs->i[0], first = x->rank - count;
    bool fits = first >= 0;
    for (int i = 0; fits && i < count; i++)
        fits = x->shape[first + i] == c->attrs->i[1 + i];
    if (fits) return TN_OK;
    tn_node want = {.rank = (uint8_t)count};
    char text[96];
    memcpy(want.shape, c->attrs->i + 1, (size_t)count * sizeof *want.shape);
    tn_shape_text(&want, text, sizeof text);
    return wrong_shape(c, name, x, text);
}

static tn_status infer_last_dims(tn_infer *c) {
    static const char *const names[] = {"the input's last dimensions", "the weight", "the bias"};
    TRY(tn_need_float(c, 0));
    if (c->attrs->i[0] < 1)
        return tn_fail(TN_ERR_SHAPE, "%s: normalized_shape must have at least one entry", c->row->name);
    for (int i = 0; i < c->n_in; i++) {
        if (!c->in[i]) continue;
        TRY(tn_need_float(c, i));
        TRY(check_last_dims(c, c->in[i], names[i]));
        if (i > 0 && c->in[i]->rank != c->attrs->i[0]) return wrong_shape(c, names[i], c->in[i], "normalized_shape");
    }
    return tn_infer_same(c);
}

static tn_status infer_layer_norm(tn_infer *c) {
    TRY(tn_need_finite(c, "eps", c->attrs->f[0]));
    return infer_last_dims(c);
}

static tn_status infer_rms_norm(tn_infer *c) {
    if (c->attrs->f[0] != TN_AUTO) TRY(tn_need_finite(c, "eps", c->attrs->f[0]));
    return infer_last_dims(c);
}

/* The numbers of the last n->i[0] dimensions. */
static int last_dims(const tn_node *n, int64_t *dims) {
    int count = (int)n->i[0];
    for (int i = 0; i < count; i++)
        dims[i] = n->rank - count + i;
    return count;
}

static tn_node *compose_layer_norm(tn_build *b, const tn_node *n) {
    int64_t dims[TN_MAX_RANK];
    int count = last_dims(n, dims);
    tn_node *y = tn_b_standardize(b, n->in[0], dims, count, n->f[0]);
    return tn_b_cast_like(b, affine(b, y, n->in[1], n->in[2], n->i + 1, count), n);
}

/* layer_norm(x, normalized_shape, weight, bias, eps): (x - mean) / sqrt(var + eps) · weight + bias, mean and variance
 * over the last dimensions, which are normalized_shape; weight and bias have that shape or are
 * NULL. Source: Ba et al. 2016. */
OP_CODE(layer_norm, .infer = infer_layer_norm, .compose = compose_layer_norm,
        .cases = "tol=2e-5 atol=2e-5; [3,6] [6] [6] normalized_shape=(6); "
                 "[2,3,4] - - normalized_shape=(3,4) eps=0.1; [2,3,4] [4] - normalized_shape=(4); "
                 "[0,4] [4] [4] normalized_shape=(4); error=weight [3,6] [5] - normalized_shape=(6); "
                 "error=last [3,6] - - normalized_shape=(5); error=entry [3] - - normalized_shape=()");

static tn_node *compose_rms_norm(tn_build *b, const tn_node *n) {
    int64_t dims[TN_MAX_RANK];
    int count = last_dims(n, dims);
    tn_node *x = n->in[0];
    if (!x) return NULL;
    double eps = n->f[0] != TN_AUTO ? n->f[0] : x->dtype == TN_F64 ? DBL_EPSILON : (double)FLT_EPSILON;
    return tn_b_cast_like(b, affine(b, tn_b_rms_scale(b, x, dims, count, eps), n->in[1], NULL, n->i + 1, count), n);
}

/* rms_norm(x, normalized_shape, weight, eps): x / sqrt(mean(x²) + eps) · weight, the mean over the last dimensions,
 * which are normalized_shape; eps TN_AUTO means the machine epsilon of the computation. Source: Zhang and Sennrich
 * 2019. */
OP_CODE(rms_norm, .infer = infer_rms_norm, .compose = compose_rms_norm,
        .cases = "tol=1e-5 atol=1e-5; [3,6] [6] normalized_shape=(6); [2,3,4] - normalized_shape=(3,4) eps=0.01; "
                 "error=weight [3,6] [3] normalized_shape=(6)");

/* ---- over groups of channels: group_norm, instance_norm ---------------------------------------------------------- */

static tn_status check_channels(const tn_infer *c, int first) {
    TRY(tn_need_finite(c, "eps", c->attrs->f[0]));
    const tn_node *x = c->in[0];
    char want[48];
    if (x->rank < 2) return wrong_shape(c, "the input", x, "[batch, channels, ...]");
    snprintf(want, sizeof want, "[%lld], one entry per channel", (long long)x->shape[1]);
    for (int i = first; i < c->n_in; i++) {
        if (!c->in[i]) continue;
        TRY(tn_need_float(c, i));
        static const char *const names[] = {"running_mean", "running_var", "weight", "bias"};
        const char *name = names[i - first + (c->n_in - first == 4 ? 0 : 2)];
        if (c->in[i]->rank != 1 || c->in[i]->shape[0] != x->shape[1]) return wrong_shape(c, name, c->in[i], want);
    }
    return TN_OK;
}

/* [channels, 1, 1 …], which meets dimension 1 of x. */
static int channel_shape(const tn_node *x, int64_t *shape) {
    shape[0] = x->shape[1];
    for (int d = 2; d < x->rank; d++)
        shape[d - 1] = 1;
    return x->rank - 1;
}

static tn_node *normalize_groups(tn_build *b, const tn_node *n, int64_t groups, double eps) {
    tn_node *x = n->in[0];
    int64_t batch = x->shape[0], rows = batch * groups, shape[TN_MAX_RANK];
    int64_t length = rows ? tn_node_numel(x) / rows : 0;
    tn_node *flat = tn_b_reshape(b, x, (int64_t[]){batch, groups, length}, 3);
    tn_node *y = tn_b_standardize(b, flat, (int64_t[]){2}, 1, eps);
    int rank = channel_shape(x, shape);
    return tn_b_cast_like(b, affine(b, tn_b_view(b, y, x->shape, x->rank), n->in[1], n->in[2], shape, rank), n);
}

static tn_status infer_group_norm(tn_infer *c) {
    int64_t groups = c->attrs->i[TN_GROUP_NORM_NUM_GROUPS];
    TRY(tn_need_float(c, 0));
    TRY(check_channels(c, 1));
    if (groups < 1 || c->in[0]->shape[1] % groups)
        return tn_fail(TN_ERR_SHAPE,
                       "group_norm: %lld channels cannot be split into %lld groups: the number of channels must be a "
                       "multiple of groups",
                       (long long)c->in[0]->shape[1], (long long)groups);
    int64_t values = c->in[0]->shape[1] / groups;
    for (int d = 2; d < c->in[0]->rank; d++)
        values *= c->in[0]->shape[d];
    if (values == 0 && c->in[0]->shape[0] > 0) {
        char text[96];
        return tn_fail(TN_ERR_SHAPE, "group_norm: the groups of %s are empty, so there is nothing to normalize",
                       tn_shape_text(c->in[0], text, sizeof text));
    }
    return tn_infer_same(c);
}

static tn_node *compose_group_norm(tn_build *b, const tn_node *n) {
    return normalize_groups(b, n, n->i[TN_GROUP_NORM_NUM_GROUPS], n->f[TN_GROUP_NORM_EPS]);
}

/* group_norm(x, num_groups, weight, bias, eps): x [batch, channels, ...] normalized over each group of channels /
 * num_groups channels and all following dimensions, then · weight + bias per channel. Source: Wu and He 2018. */
OP_CODE(group_norm, .infer = infer_group_norm, .compose = compose_group_norm,
        .cases =
            "tol=2e-5 atol=2e-5; [2,4,3] [4] [4] num_groups=2; [2,6,2,2] - - num_groups=3 eps=0.1; "
            "[0,4,3] - - num_groups=2; error=empty [1,0,2] - - num_groups=1; error=empty [1,2,0] - - num_groups=1; "
            "error=split [2,4,3] - - num_groups=3; error=channels [4] - - num_groups=1; "
            "error=weight [2,4,3] [3] - num_groups=2");

static tn_status infer_channels_norm(tn_infer *c) {
    TRY(tn_need_float(c, 0));
    TRY(check_channels(c, 1));
    return tn_infer_same(c);
}

static tn_node *compose_instance_norm(tn_build *b, const tn_node *n) {
    return normalize_groups(b, n, n->in[0]->shape[1], n->f[TN_INSTANCE_NORM_EPS]);
}

/* instance_norm(x, weight, bias, eps): x [batch, channels, ...] normalized over each channel of each sample, then ·
 * weight + bias per channel. Source: Ulyanov et al. 2016. */
OP_CODE(instance_norm, .infer = infer_channels_norm, .compose = compose_instance_norm,
        .cases = "tol=2e-5 atol=2e-5; [2,3,5] [3] [3]; [2,2,2,3] - -; error=bias [2,3,5] [3] [2]");

/* ---- over the batch ---------------------------------------------------------------------------------------------- */

enum { BN_MEAN = 1, BN_VAR, BN_WEIGHT, BN_BIAS }; /* inputs of batch_norm after x */

/* All dimensions but that of the channels. */
static int batch_dims(const tn_node *x, int64_t *dims) {
    int count = 0;
    for (int d = 0; d < x->rank; d++)
        if (d != 1) dims[count++] = d;
    return count;
}

static tn_status infer_batch_norm(tn_infer *c) {
    const tn_node *x = c->in[0];
    bool training = c->attrs->i[TN_BATCH_NORM_TRAINING];
    TRY(tn_need_float(c, 0));
    TRY(check_channels(c, 1));
    if (!training && (!c->in[BN_MEAN] || !c->in[BN_VAR]))
        return tn_fail(
            TN_ERR_ARGUMENT,
            "batch_norm: evaluation requires running_mean and running_var; set training to use the batch's statistics");
    if (training && tn_node_numel(x) == x->shape[1])
        return tn_fail(TN_ERR_SHAPE, "batch_norm: training requires more than one value per channel");
    return tn_infer_same(c);
}

/* With fixed statistics the whole is one multiplication and one addition an element. */
static tn_node *normalize_fixed(tn_build *b, const tn_node *n) {
    int64_t shape[TN_MAX_RANK];
    int rank = channel_shape(n->in[0], shape);
    tn_node *scale = tn_b_rsqrt(b, tn_b_offset(b, n->in[BN_VAR], n->f[TN_BATCH_NORM_EPS]));
    if (n->in[BN_WEIGHT]) scale = tn_b_mul(b, scale, n->in[BN_WEIGHT]);
    tn_node *shift = tn_b_neg(b, tn_b_mul(b, n->in[BN_MEAN], scale));
    if (n->in[BN_BIAS]) shift = tn_b_add(b, shift, n->in[BN_BIAS]);
    tn_node *y = tn_b_mul(b, n->in[0], tn_b_view(b, scale, shape, rank));
    return tn_b_add(b, y, tn_b_view(b, shift, shape, rank));
}

/* With the statistics of this batch: an op of its own, whose gradient needs two sums over the batch, where that of its
 * parts would need four. */
static tn_node *normalize_batch(tn_build *b, const tn_node *n) {
    tn_node *x = n->in[0], *weight = n->in[BN_WEIGHT], *bias = n->in[BN_BIAS];
    if (!x) return NULL;
    if (weight) weight = tn_b_cast_like(b, weight, x);
    if (bias) bias = tn_b_cast_like(b, bias, x);
    return tn_b_batch_normalize(b, x, weight, bias, n->f[TN_BATCH_NORM_EPS]);
}

static tn_node *compose_batch_norm(tn_build *b, const tn_node *n) {
    return tn_b_cast_like(b, n->i[TN_BATCH_NORM_TRAINING] ? normalize_batch(b, n) : normalize_fixed(b, n), n);
}

/* batch_norm(x, running_mean, running_var, weight, bias, training, eps): x [batch, channels, ...] normalised a channel,
 * then · weight + bias. training: with the statistics of this batch (batch_mean and batch_var give them, to update
 * running ones); else with the running ones. Source: Ioffe and Szegedy 2015. */
OP_CODE(batch_norm, .infer = infer_batch_norm, .compose = compose_batch_norm,
        .cases = "tol=2e-5 atol=2e-5; [5,3] - - [3] [3] training=true; [2,3,2,2] - - - - training=true; "
                 "[4,3] [3] [3]@0.5..2 [3] [3] training=false eps=0.01; [2,3,3] [3] [3]@0.5..2 - - training=false; "
                 "error=running [4,3] - - - - training=false; error=more [1,3] - - - - training=true; "
                 "error=weight [4,3] - - [4] - training=true; "
                 "types=f64; [5,3] - - [3]:f32 [3]:f32 training=true");

enum { BATCH_WEIGHT = 1, BATCH_BIAS }; /* inputs of batch_normalize after x */

static tn_node *batch_standard(tn_build *b, const tn_node *n) {
    int64_t dims[TN_MAX_RANK];
    int count = batch_dims(n, dims);
    return tn_b_standardize(b, n->in[0], dims, count, n->f[0]);
}

static tn_node *compose_batch_normalize(tn_build *b, const tn_node *n) {
    int64_t shape[TN_MAX_RANK];
    int rank = channel_shape(n, shape);
    return affine(b, batch_standard(b, n), n->in[BATCH_WEIGHT], n->in[BATCH_BIAS], shape, rank);
}

/* 1 / sqrt(var + eps) over the batch, of the nodes that standardize builds. */
static tn_node *batch_inverse(tn_build *b, const tn_node *n, const int64_t *dims, int count) {
    tn_node *c = tn_b_sub(b, n->in[0], tn_b_mean_apart(b, n->in[0], dims, count));
    return tn_b_rsqrt(b, tn_b_offset(b, tn_b_mean_apart(b, squared(b, c), dims, count), n->f[0]));
}

/* The sum of `values` numbers a channel from their mean; of none it is 0, and their mean NaN. */
static tn_node *sum_of_mean(tn_build *b, tn_node *mean, int64_t values, int64_t channels) {
    tn_node *sum = tn_b_scale(b, tn_b_view(b, mean, &channels, 1), (double)values);
    return sum && values == 0 ? tn_b_zeros_like(b, sum) : sum;
}

/* With y standardised, r = 1/deviation, means over the batch: dx = w · r · (dy - mean(dy) - y · mean(dy · y)). */
static void grad_batch_normalize(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    int64_t dims[TN_MAX_RANK], shape[TN_MAX_RANK], channels = n->shape[1];
    int count = batch_dims(n, dims), rank = channel_shape(n, shape);
    int64_t values = tn_node_numel(n) / (channels ? channels : 1);
    tn_node *y = batch_standard(b, n), *weight = n->in[BATCH_WEIGHT];
    tn_node *mean = tn_b_mean_apart(b, dy, dims, count), *along = tn_b_mean_apart(b, tn_b_mul(b, dy, y), dims, count);
    if (tn_needs_grad(n, 0)) {
        tn_node *across = tn_b_sub(b, tn_b_sub(b, dy, mean), tn_b_mul(b, y, along));
        tn_node *r = batch_inverse(b, n, dims, count);
        if (weight) r = tn_b_mul(b, r, tn_b_view(b, weight, shape, rank));
        grads[0] = tn_b_mul(b, across, r);
    }
    if (tn_needs_grad(n, BATCH_WEIGHT)) grads[BATCH_WEIGHT] = sum_of_mean(b, along, values, channels);
    if (tn_needs_grad(n, BATCH_BIAS)) grads[BATCH_BIAS] = sum_of_mean(b, mean, values, channels);
}

/* batch_normalize(x, weight, bias, eps): batch_norm with the statistics of this batch, in f32 or f64. */
OP_CODE(batch_normalize, .infer = infer_channels_norm, .compose = compose_batch_normalize, .grad = grad_batch_normalize,
        .cases = "tol=2e-5 atol=2e-5; [5,3] [3] [3] eps=1e-5; "
                 "[2,3,2,2] [3] - eps=0.1; [3,2,4] - [2] eps=0.01; "
                 "[2,2,9,8] [2] [2] eps=1e-5; [2,3,0] [3] [3] eps=1e-5");

static tn_status infer_batch_statistic(tn_infer *c) {
    const tn_node *x = c->in[0];
    TRY(tn_need_float(c, 0));
    if (x->rank < 2) return wrong_shape(c, "the input", x, "[batch, channels, ...]");
    c->dtype = x->dtype == TN_F64 ? TN_F64 : TN_F32;
    c->rank = 1;
    c->shape[0] = x->shape[1];
    c->symbol[0] = x->symbol[1];
    return TN_OK;
}

/* These build the nodes that standardize builds, so that a plan with both computes them once. */
static tn_node *compose_batch_mean(tn_build *b, const tn_node *n) {
    int64_t dims[TN_MAX_RANK];
    int count = batch_dims(n->in[0], dims);
    return tn_b_view(b, tn_b_mean_apart(b, tn_b_cast_like(b, n->in[0], n), dims, count), n->shape, 1);
}

/* batch_mean(x): the mean of each channel of x [batch, channels, ...], as batch_norm uses it in training. */
OP_CODE(batch_mean, .infer = infer_batch_statistic, .compose = compose_batch_mean,
        .cases = "tol=4e-6 atol=4e-6; [3,2,4]; [5,3]; error=batch [3]");

static tn_node *compose_batch_var(tn_build *b, const tn_node *n) {
    int64_t dims[TN_MAX_RANK];
    int count = batch_dims(n->in[0], dims);
    tn_node *x = tn_b_cast_like(b, n->in[0], n);
    tn_node *c = tn_b_sub(b, x, tn_b_mean_apart(b, x, dims, count));
    return tn_b_view(b, tn_b_mean_apart(b, squared(b, c), dims, count), n->shape, 1);
}

/* batch_var(x): the biased variance (divided by the number of values) of each channel of x [batch, channels, ...], as
 * batch_norm uses it in training; PyTorch's running_var collects it times count / (count - 1). */
OP_CODE(batch_var, .infer = infer_batch_statistic, .compose = compose_batch_var,
        .cases = "tol=1e-5 atol=4e-6; [3,2,4]; [5,3]; error=batch [3]");
