/* onnx_nn.c — ONNX: activations, softmax, norms, losses, random numbers, optimiser steps; the table of network
 * operators.
 *
 * Rows record operations; what differs between operators of one kind is in their row or in a small table. */
#include <math.h>
#include <string.h>

#include "onnx/operator_support.h"

/* ---- small things ------------------------------------------------------------------------------------------------ */

tn_tensor *onnx_per_channel(const tn_tensor *t, int rank) {
    int64_t shape[TN_MAX_RANK] = {tn_numel(t), 1, 1, 1, 1, 1, 1, 1};
    return tn_reshape(t, shape, rank > 1 ? rank - 1 : 1);
}

int onnx_dims(int first, int end, int64_t *dims) {
    for (int d = first; d < end; d++)
        dims[d - first] = d;
    return end > first ? end - first : 0;
}

tn_tensor *onnx_joined(tn_tensor *const *parts, int64_t count, int dim, bool fresh) {
    if (fresh) return tn_stack(parts, (int)count, dim);
    return count == 1 ? parts[0] : tn_cat(parts, (int)count, dim);
}

tn_tensor *onnx_from_doubles(const double *v, const int64_t *shape, int rank, tn_dtype dtype) {
    tn_tensor *t = tn_from_data(v, shape, rank, TN_F64);
    if (dtype == TN_F64) return t;
    int64_t count = tn_numel(t);
    float *f = count > 0 ? tn_mem_alloc((size_t)count * sizeof *f) : NULL;
    if (!f) return tn_cast(t, dtype);
    for (int64_t i = 0; i < count; i++)
        f[i] = (float)v[i];
    t = tn_from_data(f, shape, rank, TN_F32);
    tn_mem_free(f);
    return dtype == TN_F32 ? t : tn_cast(t, dtype);
}

onnx_type onnx_type_attribute(const onnx_call *c, const char *name, onnx_type otherwise) {
    int64_t t = onnx_int(c, name, otherwise);
    return t > ONNX_UNDEFINED && t < ONNX_TYPE_COUNT ? (onnx_type)t : otherwise;
}

const tn_tensor *onnx_as(const tn_tensor *x, tn_dtype dtype) { return tn_dtype_of(x) == dtype ? x : tn_cast(x, dtype); }

/* ---- activations ------------------------------------------------------------------------------------------------- */

static tn_tensor *relu(const tn_tensor *x, double a, double b) { return (void)a, (void)b, tn_relu(x); }
static tn_tensor *tanh_of(const tn_tensor *x, double a, double b) { return (void)a, (void)b, tn_tanh(x); }
static tn_tensor *sigmoid(const tn_tensor *x, double a, double b) { return (void)a, (void)b, tn_sigmoid(x); }
static tn_tensor *affine(const tn_tensor *x, double a, double b) { return tn_add_scalar(tn_mul_scalar(x, a), b); }
static tn_tensor *leaky_relu(const tn_tensor *x, double a, double b) { return (void)b, tn_leaky_relu(x, a); }
static tn_tensor *thresholded_relu(const tn_tensor *x, double a, double b) {
    return (void)b, tn_masked_fill(x, tn_logical_not(tn_gt_scalar(x, a)), 0);
}
static tn_tensor *scaled_tanh(const tn_tensor *x, double a, double b) {
    return tn_mul_scalar(tn_tanh(tn_mul_scalar(x, b)), a);
}
static tn_tensor *hard_sigmoid(const tn_tensor *x, double a, double b) { return tn_clamp(affine(x, a, b), 0, 1); }
static tn_tensor *elu(const tn_tensor *x, double a, double b) { return (void)b, tn_elu(x, a); }
static tn_tensor *softsign(const tn_tensor *x, double a, double b) {
    return (void)a, (void)b, tn_div(x, tn_add_scalar(tn_abs(x), 1));
}
static tn_tensor *softplus(const tn_tensor *x, double a, double b) { return (void)a, (void)b, tn_softplus(x, NULL); }
static tn_tensor *hard_swish(const tn_tensor *x, double a, double b) { return (void)a, (void)b, tn_hardswish(x); }
static tn_tensor *mish(const tn_tensor *x, double a, double b) { return (void)a, (void)b, tn_mish(x); }
static tn_tensor *selu(const tn_tensor *x, double a, double g) { return tn_mul_scalar(tn_elu(x, a), g); }
static tn_tensor *celu(const tn_tensor *x, double a, double b) {
    return (void)b, tn_mul_scalar(tn_elu(tn_div_scalar(x, a), 1), a);
}
static tn_tensor *swish(const tn_tensor *x, double a, double b) {
    return (void)b, a == 1 ? tn_silu(x) : tn_mul(x, tn_sigmoid(tn_mul_scalar(x, a)));
}
static tn_tensor *shrink(const tn_tensor *x, double lambd, double bias) {
    tn_tensor *low = tn_add_scalar(x, bias), *high = tn_sub_scalar(x, bias);
    tn_tensor *rest = tn_where(tn_gt_scalar(x, lambd), high, tn_zeros_like(x));
    return tn_where(tn_lt_scalar(x, -lambd), low, rest);
}

static const onnx_activation activations[] = {
    {"Relu", relu, NULL, NULL, 0, 0},
    {"Tanh", tanh_of, NULL, NULL, 0, 0},
    {"Sigmoid", sigmoid, NULL, NULL, 0, 0},
    {"Affine", affine, "alpha", "beta", 1, 0},
    {"LeakyRelu", leaky_relu, "alpha", NULL, 0.01f, 0},
    {"ThresholdedRelu", thresholded_relu, "alpha", NULL, 1, 0},
    {"ScaledTanh", scaled_tanh, "alpha", "beta", 1, 1},
    {"HardSigmoid", hard_sigmoid, "alpha", "beta", 0.2f, 0.5},
    {"Elu", elu, "alpha", NULL, 1, 0},
    {"Softsign", softsign, NULL, NULL, 0, 0},
    {"Softplus", softplus, NULL, NULL, 0, 0},
    {"HardSwish", hard_swish, NULL, NULL, 0, 0},
    {"Mish", mish, NULL, NULL, 0, 0},
    {"Selu", selu, "alpha", "gamma", 1.67326319217681884765625f, 1.05070102214813232421875f},
    {"Celu", celu, "alpha", NULL, 1, 0},
    {"Swish", swish, "alpha", NULL, 1, 0},
    {"Shrink", shrink, "lambd", "bias", 0.5, 0}};

static bool same_letters(onnx_text t, const char *name) {
    if (t.size != strlen(name)) return false;
    for (size_t i = 0; i < t.size; i++)
        if ((t.at[i] | 32) != (name[i] | 32)) return false;
    return true;
}

const onnx_activation *onnx_activation_named(onnx_text name) {
    for (size_t i = 0; i < TN_COUNT(activations); i++)
        if (same_letters(name, activations[i].name)) return &activations[i];
    return NULL;
}

static tn_status activation(onnx_call *c) {
    const onnx_activation *a = onnx_activation_named((onnx_text){c->row->name, strlen(c->row->name)});
    if (!a) return onnx_refuse(c, "unknown");
    double alpha = a->alpha_name ? onnx_float(c, a->alpha_name, a->alpha) : 0;
    double beta = a->beta_name ? onnx_float(c, a->beta_name, a->beta) : 0;
    return onnx_put(c, 0, a->of(onnx_in(c, 0), alpha, beta));
}

static tn_status gelu(onnx_call *c) {
    bool tanh_form = onnx_is(onnx_string(c, "approximate", "none"), "tanh");
    tn_gelu_options o = TN_GELU_DEFAULTS;
    o.approximate = tanh_form ? TN_APPROXIMATE_TANH : TN_APPROXIMATE_NONE;
    return onnx_put(c, 0, tn_gelu(onnx_in(c, 0), &o));
}

static tn_status prelu(onnx_call *c) {
    const tn_tensor *x = onnx_in(c, 0);
    return onnx_put(c, 0, tn_where(tn_lt_scalar(x, 0), tn_mul(x, onnx_in(c, 1)), x));
}

static tn_status swiglu(onnx_call *c) {
    return onnx_put(c, 0, tn_mul(swish(onnx_in(c, 0), onnx_float(c, "alpha", 1), 0), onnx_in(c, 1)));
}

/* ---- softmax ----------------------------------------------------------------------------------------------------- */

/* 1 at the first greatest element along dim, 0 elsewhere. */
static tn_tensor *hardmax(const tn_tensor *x, int64_t dim) {
    int64_t shape[TN_MAX_RANK], size = tn_size(x, dim);
    int rank = tn_rank(x);
    if (size == 0) return tn_contiguous(x);
    for (int d = 0; d < rank; d++)
        shape[d] = d == dim ? size : 1;
    tn_tensor *places = tn_reshape(tn_arange(0, (double)size, 1, TN_I64), shape, rank);
    return tn_cast(tn_eq(tn_argmax(x, &dim, 1, true), places), tn_dtype_of(x));
}

static tn_tensor *(*const softmaxes[])(const tn_tensor *x, int64_t dim) = {(tn_softmax), (tn_log_softmax), hardmax};

/* Before opset 13 all dims from axis on were one. */
static tn_status softmax(onnx_call *c) {
    const tn_tensor *x = onnx_in(c, 0);
    bool one_axis = c->row->since >= 13;
    int axis, rank = tn_rank(x);
    TRY(tn_status_of(x));
    TRY(onnx_axis(c, onnx_int(c, "axis", one_axis ? -1 : 1), rank + (rank == 0), &axis));
    if (one_axis) return onnx_put(c, 0, softmaxes[c->row->with](x, axis));
    int64_t flat[2] = {1, 1};
    for (int d = 0; d < rank; d++)
        flat[d >= axis] *= tn_size(x, d);
    return onnx_put(c, 0, tn_reshape(softmaxes[c->row->with](tn_reshape(x, flat, 2), 1), tn_shape(x), rank));
}

/* ---- norms ------------------------------------------------------------------------------------------------------- */

/* x · factor + shift a channel, numbers that are known once for all. */
static tn_status known_batch_norm(onnx_call *c, const tn_tensor *x, double eps) {
    double *v[4] = {NULL};
    int64_t count[4] = {0}, n = tn_numel(onnx_in(c, 1));
    tn_status s = TN_OK;
    for (int i = 0; i < 4 && s == TN_OK; i++)
        s = onnx_read_floats(c, 1 + i, &v[i], &count[i], n);
    for (int i = 1; i < 4 && s == TN_OK; i++)
        if (count[i] != count[0])
            s = onnx_refuse(c, "the inputs have different numbers of channels: %lld and %lld", (long long)count[0],
                            (long long)count[i]);
    if (s == TN_OK) {
        for (int64_t i = 0; i < n; i++) {
            v[0][i] /= sqrt(v[3][i] + eps);
            v[1][i] -= v[2][i] * v[0][i];
        }
        tn_dtype t = tn_dtype_of(x) == TN_F64 ? TN_F64 : TN_F32;
        tn_tensor *factor = onnx_per_channel(onnx_from_doubles(v[0], &n, 1, t), tn_rank(x));
        tn_tensor *shift = onnx_per_channel(onnx_from_doubles(v[1], &n, 1, t), tn_rank(x));
        s = onnx_put(c, 0, tn_cast(tn_add(tn_mul(x, factor), shift), tn_dtype_of(x)));
    }
    for (int i = 0; i < 4; i++)
        tn_mem_free(v[i]);
    return s;
}

/* All dims but that of the channels. */
static int other_dims(const tn_tensor *x, int64_t *dims) {
    dims[0] = 0;
    return 1 + onnx_dims(2, tn_rank(x), dims + 1);
}

static tn_status put_running(onnx_call *c, int k, const tn_tensor *now) {
    double momentum = onnx_float(c, "momentum", 0.9f);
    const tn_tensor *before = onnx_in(c, 2 + k);
    tn_tensor *old = tn_mul_scalar(before, momentum),
              *new = tn_mul_scalar(tn_reshape(now, tn_shape(before), 1), 1 - momentum);
    return onnx_put(c, k, tn_cast(tn_add(old, new), tn_dtype_of(before)));
}

static tn_status batch_norm(onnx_call *c) {
    const tn_tensor *x = onnx_in(c, 0), *mean = onnx_in(c, 3), *var = onnx_in(c, 4);
    double eps = onnx_float(c, "epsilon", 1e-5f);
    int rank = tn_rank(x);
    bool training = c->row->since >= 14 ? onnx_int(c, "training_mode", 0) : onnx_wants(c, 1), known = !training;
    for (int i = 1; known && i < 5; i++)
        known = onnx_has(c, i) && c->in[i]->fixed == ONNX_CONSTANT;
    TRY(tn_status_of(x));
    if (known) return known_batch_norm(c, x, eps);
    if (training) {
        int64_t dims[TN_MAX_RANK];
        int count = other_dims(x, dims);
        const tn_tensor *wide = onnx_as(x, tn_dtype_of(x) == TN_F64 ? TN_F64 : TN_F32);
        mean = tn_mean(wide, dims, count, false);
        var = tn_var(wide, dims, count, 0, false);
    }
    tn_tensor *factor = tn_div(onnx_in(c, 1), tn_sqrt(tn_add_scalar(var, eps)));
    tn_tensor *y = tn_mul(tn_sub(x, onnx_per_channel(mean, rank)), onnx_per_channel(factor, rank));
    TRY(onnx_put(c, 0, tn_cast(tn_add(y, onnx_per_channel(onnx_in(c, 2), rank)), tn_dtype_of(x))));
    if (training && onnx_wants(c, 1)) TRY(put_running(c, 1, mean));
    if (training && onnx_wants(c, 2)) TRY(put_running(c, 2, var));
    return TN_OK;
}

static tn_status instance_norm(onnx_call *c) {
    tn_instance_norm_options o = TN_INSTANCE_NORM_DEFAULTS;
    o.eps = onnx_float(c, "epsilon", 1e-5f);
    return onnx_put(c, 0, tn_instance_norm(onnx_in(c, 0), onnx_in(c, 1), onnx_in(c, 2), &o));
}

/* Numbers of groups as numbers of channels. */
static tn_tensor *of_channels(const tn_tensor *t, int64_t groups, int64_t channels) {
    int64_t each[2] = {groups, channels / groups};
    return tn_reshape(tn_expand(tn_unsqueeze(t, 1), each, 2), &channels, 1);
}

static tn_status group_norm(onnx_call *c) {
    const tn_tensor *x = onnx_in(c, 0), *scale = onnx_in(c, 1), *bias = onnx_in(c, 2);
    int64_t groups = onnx_int(c, "num_groups", 1), channels = tn_size(x, 1);
    tn_group_norm_options o = TN_GROUP_NORM_DEFAULTS;
    o.eps = onnx_float(c, "epsilon", 1e-5f);
    if (groups < 1 || channels % groups)
        return onnx_refuse(c, "%lld groups do not divide %lld channels", (long long)groups, (long long)channels);
    if (c->row->since < 21) {
        scale = of_channels(scale, groups, channels);
        bias = of_channels(bias, groups, channels);
    }
    return onnx_put(c, 0, tn_group_norm(x, groups, scale, bias, &o));
}

static bool has_shape(const tn_tensor *t, const int64_t *shape, int rank) {
    return tn_rank(t) == rank && memcmp(tn_shape(t), shape, (size_t)rank * sizeof *shape) == 0;
}

/* Mean and 1 / standard deviation, in f32 as the standard wants them. */
static tn_status put_moments(onnx_call *c, const tn_tensor *x, int axis, double eps) {
    int64_t dims[TN_MAX_RANK];
    int count = onnx_dims(axis, tn_rank(x), dims);
    const tn_tensor *wide = onnx_as(x, tn_dtype_of(x) == TN_F64 ? TN_F64 : TN_F32);
    tn_dtype t = onnx_types[onnx_type_attribute(c, "stash_type", ONNX_FLOAT)].dtype;
    if (onnx_wants(c, 1)) TRY(onnx_put(c, 1, tn_cast(tn_mean(wide, dims, count, true), t)));
    if (!onnx_wants(c, 2)) return TN_OK;
    return onnx_put(c, 2, tn_cast(tn_rsqrt(tn_add_scalar(tn_var(wide, dims, count, 0, true), eps)), t));
}

static tn_status layer_norm(onnx_call *c) {
    const tn_tensor *x = onnx_in(c, 0), *scale = onnx_in(c, 1), *bias = onnx_has(c, 2) ? onnx_in(c, 2) : NULL;
    double eps = onnx_float(c, "epsilon", 1e-5f);
    int axis, rank = tn_rank(x);
    TRY(tn_status_of(x));
    TRY(onnx_axis(c, onnx_int(c, "axis", -1), rank, &axis));
    const int64_t *shape = tn_shape(x) + axis;
    tn_layer_norm_options o = TN_LAYER_NORM_DEFAULTS;
    o.eps = eps;
    bool whole = has_shape(scale, shape, rank - axis) && (!bias || has_shape(bias, shape, rank - axis));
    tn_tensor *y = tn_layer_norm(x, shape, rank - axis, whole ? scale : NULL, whole ? bias : NULL, &o);
    if (!whole) y = bias ? tn_add(tn_mul(y, scale), bias) : tn_mul(y, scale);
    TRY(onnx_put(c, 0, y));
    return put_moments(c, x, axis, eps);
}

static tn_status rms_norm(onnx_call *c) {
    const tn_tensor *x = onnx_in(c, 0), *scale = onnx_in(c, 1);
    int axis, rank = tn_rank(x);
    TRY(tn_status_of(x));
    TRY(onnx_axis(c, onnx_int(c, "axis", -1), rank, &axis));
    tn_rms_norm_options o = TN_RMS_NORM_DEFAULTS;
    o.eps = onnx_float(c, "epsilon", 1e-5f);
    bool whole = has_shape(scale, tn_shape(x) + axis, rank - axis) && tn_dtype_of(scale) == tn_dtype_of(x);
    tn_tensor *y = tn_rms_norm(x, tn_shape(x) + axis, rank - axis, whole ? scale : NULL, &o);
    return onnx_put(c, 0, whole ? y : tn_cast(tn_mul(y, scale), tn_dtype_of(scale)));
}

static tn_status mean_variance(onnx_call *c) {
    static const int64_t usual[] = {0, 2, 3};
    const tn_tensor *x = onnx_in(c, 0);
    int count;
    const int64_t *axes = onnx_ints(c, "axes", &count);
    if (!axes) axes = usual, count = TN_COUNT(usual);
    tn_tensor *deviation = tn_add_scalar(tn_std(x, axes, count, 0, true), 1e-9);
    return onnx_put(c, 0, tn_div(tn_sub(x, tn_mean(x, axes, count, true)), deviation));
}

static tn_status lp_normalization(onnx_call *c) {
    const tn_tensor *x = onnx_in(c, 0);
    int64_t axis = onnx_int(c, "axis", -1);
    tn_tensor *norm = tn_norm(x, (double)onnx_int(c, "p", 2), &axis, 1, true);
    return onnx_put(c, 0, tn_where(tn_eq_scalar(norm, 0), tn_zeros_like(x), tn_div(x, norm)));
}

/* Squares summed over neighbouring channels. */
static tn_status local_response(onnx_call *c) {
    const tn_tensor *x = onnx_in(c, 0);
    int64_t size = onnx_int(c, "size", 1), pads[2 * TN_MAX_RANK] = {0};
    double alpha = onnx_float(c, "alpha", 1e-4f), beta = onnx_float(c, "beta", 0.75), bias = onnx_float(c, "bias", 1);
    int rank = tn_rank(x);
    TRY(tn_status_of(x));
    if (rank < 2 || size < 1 || size > 1024) return onnx_refuse(c, "size %lld is not supported", (long long)size);
    pads[2 * (rank - 2)] = (size - 1) / 2;
    pads[2 * (rank - 2) + 1] = size / 2;
    tn_tensor *square = tn_pad(tn_square(x), pads, 2 * (rank - 1), 0), *sum = NULL;
    for (int64_t i = 0; i < size; i++) {
        tn_tensor *part = tn_narrow(square, 1, i, tn_size(x, 1));
        sum = sum ? tn_add(sum, part) : part;
    }
    tn_tensor *region = tn_add_scalar(tn_mul_scalar(sum, alpha / (double)size), bias);
    return onnx_put(c, 0, tn_mul(x, tn_pow_scalar(region, -beta)));
}

/* ---- pooling of whole channels ----------------------------------------------------------------------------------- */

enum { POOL_MEAN, POOL_MAX, POOL_LP };

/* Over one dim that holds all of a channel: rows of a reduction are then long, whatever the image's last extent. */
static tn_status global_pool(onnx_call *c) {
    const tn_tensor *x = onnx_in(c, 0);
    int64_t shape[TN_MAX_RANK];
    int rank = tn_rank(x);
    if (rank < 3) return onnx_refuse(c, "its input has %d dimensions; at least 3 are required", rank);
    for (int d = 0; d < rank; d++)
        shape[d] = d < 2 ? tn_size(x, d) : 1;
    tn_tensor *flat = tn_flatten(x, 2, -1), *y;
    if (c->row->with == POOL_MEAN)
        y = tn_mean(flat, TN_DIMS(2), true);
    else if (c->row->with == POOL_MAX)
        y = tn_amax(flat, TN_DIMS(2), true);
    else
        y = tn_norm(flat, (double)onnx_int(c, "p", 2), TN_DIMS(2), true);
    return onnx_put(c, 0, tn_reshape(y, shape, rank));
}

/* ---- random numbers ---------------------------------------------------------------------------------------------- */

static tn_status put_mask(onnx_call *c, tn_tensor *mask) {
    return onnx_put(c, 1, c->row->since < 10 ? tn_cast(mask, tn_dtype_of(onnx_in(c, 0))) : mask);
}

/* Only since opset 12 may a model be in training; a seed is the thread's (tn_manual_seed). */
static tn_status dropout(onnx_call *c) {
    const tn_tensor *x = onnx_in(c, 0);
    int64_t training = 0;
    double ratio = 0.5;
    if (c->row->since >= 12) {
        TRY(onnx_read_float(c, 1, 0.5, &ratio));
        TRY(onnx_read_int(c, 2, 0, &training));
    }
    if (!training || ratio == 0) {
        TRY(onnx_put_typed(c, 0, tn_detach(x), onnx_in_type(c, 0)));
        return onnx_wants(c, 1) ? put_mask(c, tn_ones(tn_shape(x), tn_rank(x), TN_BOOL)) : TN_OK;
    }
    onnx_varies(c);
    tn_tensor *kept = tn_bernoulli(tn_full(tn_shape(x), tn_rank(x), 1 - ratio, TN_F32));
    tn_tensor *y = tn_cast(tn_mul(x, tn_mul_scalar(kept, 1 / (1 - ratio))), tn_dtype_of(x));
    TRY(onnx_put(c, 0, y));
    return onnx_wants(c, 1) ? put_mask(c, tn_cast(kept, TN_BOOL)) : TN_OK;
}

enum { RANDOM_UNIFORM, RANDOM_NORMAL, RANDOM_LIKE = 2 };

static tn_status random_numbers(onnx_call *c) {
    bool like = c->row->with & RANDOM_LIKE, normal = c->row->with & RANDOM_NORMAL;
    int rank = 0;
    const int64_t *shape = like ? tn_shape(onnx_in(c, 0)) : onnx_ints(c, "shape", &rank);
    if (like) rank = tn_rank(onnx_in(c, 0));
    onnx_type type = onnx_type_attribute(c, "dtype", like ? onnx_in_type(c, 0) : ONNX_FLOAT);
    double a = onnx_float(c, normal ? "mean" : "low", 0), b = onnx_float(c, normal ? "scale" : "high", 1);
    if (rank > TN_MAX_RANK) return onnx_refuse(c, "%d dimensions are not supported", rank);
    onnx_varies(c);
    tn_tensor *t = normal ? tn_normal(a, b, shape, rank) : tn_uniform(a, b, shape, rank);
    return onnx_put_typed(c, 0, tn_cast(t, onnx_types[type].dtype), type);
}

static tn_status bernoulli(onnx_call *c) {
    onnx_type type = onnx_type_attribute(c, "dtype", onnx_in_type(c, 0));
    onnx_varies(c);
    return onnx_put_typed(c, 0, tn_cast(tn_bernoulli(onnx_in(c, 0)), onnx_types[type].dtype), type);
}

/* The greatest of log-probabilities with Gumbel's noise is a draw (Gumbel 1954). */
static tn_status multinomial(onnx_call *c) {
    const tn_tensor *x = onnx_in(c, 0);
    int64_t samples = onnx_int(c, "sample_size", 1), shape[3] = {tn_size(x, 0), samples, tn_size(x, 1)}, last = 2;
    onnx_varies(c);
    tn_tensor *u = tn_clamp(tn_uniform(0, 1, shape, 3), 1e-20, 1);
    tn_tensor *noise = tn_neg(tn_log(tn_neg(tn_log(u))));
    tn_tensor *drawn = tn_argmax(tn_add(tn_unsqueeze(x, 1), noise), &last, 1, false);
    return onnx_put(c, 0, tn_cast(drawn, onnx_types[onnx_type_attribute(c, "dtype", ONNX_INT32)].dtype));
}

/* ---- losses ------------------------------------------------------------------------------------------------------ */

static tn_status put_nll(onnx_call *c, const tn_tensor *x) {
    onnx_text reduction = onnx_string(c, "reduction", "mean");
    int64_t ignored = onnx_int(c, "ignore_index", -100);
    tn_nll_loss_options o = TN_NLL_LOSS_DEFAULTS;
    o.ignore_index = ignored;
    if (onnx_is(reduction, "sum")) o.reduction = TN_REDUCTION_SUM;
    if (onnx_is(reduction, "none")) o.reduction = TN_REDUCTION_NONE;
    return onnx_put(c, 0, tn_nll_loss(x, onnx_as(onnx_in(c, 1), TN_I64), onnx_has(c, 2) ? onnx_in(c, 2) : NULL, &o));
}

static tn_status nll_loss(onnx_call *c) { return put_nll(c, onnx_in(c, 0)); }

static tn_status cross_entropy(onnx_call *c) {
    tn_tensor *x = tn_log_softmax(onnx_in(c, 0), 1);
    TRY(put_nll(c, x));
    return onnx_wants(c, 1) ? onnx_put(c, 1, x) : TN_OK;
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

const onnx_op_row onnx_nn_ops[] = {
    {"Attention", 23, .run = onnx_attention},
    {"AveragePool", 1, .run = onnx_average_pool},
    {"BatchNormalization", 6, .run = batch_norm},
    {"BatchNormalization", 14, .run = batch_norm},
    {"Bernoulli", 15, .run = bernoulli},
    {"CausalConvWithState", 27, .run = onnx_causal_conv},
    {"Celu", 12, .run = activation},
    {"Conv", 1, .run = onnx_conv},
    {"ConvTranspose", 1, .run = onnx_conv_transpose},
    {"DeformConv", 19, .run = onnx_deform_conv},
    {"Dropout", 7, .run = dropout},
    {"Dropout", 10, .run = dropout},
    {"Dropout", 12, .run = dropout},
    {"Elu", 6, .run = activation},
    {"Gelu", 20, .run = gelu},
    {"GlobalAveragePool", 1, .run = global_pool, .with = POOL_MEAN},
    {"GlobalLpPool", 2, .run = global_pool, .with = POOL_LP},
    {"GlobalMaxPool", 1, .run = global_pool, .with = POOL_MAX},
    {"GroupNormalization", 18, .run = group_norm},
    {"GroupNormalization", 21, .run = group_norm},
    {"HardSigmoid", 6, .run = activation},
    {"HardSwish", 14, .run = activation},
    {"Hardmax", 1, .run = softmax, .with = 2},
    {"Hardmax", 13, .run = softmax, .with = 2},
    {"InstanceNormalization", 6, .run = instance_norm},
    {"LRN", 1, .run = local_response},
    {"LayerNormalization", 1, .run = layer_norm}, /* of opset 17, in files of ONNX Runtime of any */
    {"LeakyRelu", 6, .run = activation},
    {"LinearAttention", 27, .run = onnx_linear_attention},
    {"LogSoftmax", 1, .run = softmax, .with = 1},
    {"LogSoftmax", 13, .run = softmax, .with = 1},
    {"LpNormalization", 1, .run = lp_normalization},
    {"LpPool", 2, .run = onnx_lp_pool},
    {"MaxPool", 1, .run = onnx_max_pool},
    {"MaxUnpool", 9, .run = onnx_max_unpool},
    {"MeanVarianceNormalization", 9, .run = mean_variance},
    {"Mish", 18, .run = activation},
    {"Multinomial", 7, .run = multinomial},
    {"NegativeLogLikelihoodLoss", 12, .run = nll_loss},
    {"PRelu", 7, .run = prelu},
    {"RMSNormalization", 23, .run = rms_norm},
    {"RandomNormal", 1, .run = random_numbers, .with = RANDOM_NORMAL},
    {"RandomNormalLike", 1, .run = random_numbers, .with = RANDOM_NORMAL | RANDOM_LIKE},
    {"RandomUniform", 1, .run = random_numbers, .with = RANDOM_UNIFORM},
    {"RandomUniformLike", 1, .run = random_numbers, .with = RANDOM_UNIFORM | RANDOM_LIKE},
    {"Relu", 6, .run = onnx_unary, .unary = (tn_relu)},
    {"RotaryEmbedding", 23, .run = onnx_rotary_embedding},
    {"Selu", 6, .run = activation},
    {"Shrink", 9, .run = activation},
    {"Sigmoid", 6, .run = onnx_unary, .unary = (tn_sigmoid)},
    {"Softmax", 1, .run = softmax},
    {"Softmax", 13, .run = softmax},
    {"SoftmaxCrossEntropyLoss", 12, .run = cross_entropy},
    {"Softplus", 1, .run = activation},
    {"Softsign", 1, .run = activation},
    {"SwiGLU", 28, .run = swiglu},
    {"Swish", 24, .run = activation},
    {"ThresholdedRelu", 10, .run = activation},
    {.name = NULL}};

/* ==== optimiser steps ============================================================================================= */
/* Inputs are the rate R, the count of updates T, then for n tensors their values, their gradients and each of their
 * states in turn; outputs are the new values and states in the same order. Each tensor is updated by itself. */

/* One tensor's step; the rate and the count are tensors of one element. */
typedef struct step {
    const tn_tensor *rate, *count, *x, *gradient, *state[2];
    tn_tensor *new_x, *new_state[2];
} step;

/* With the gradient of ½ · norm_coefficient · |x|². */
static tn_tensor *regularized(const onnx_call *c, const step *s) {
    return tn_add(tn_mul_scalar(s->x, onnx_float(c, "norm_coefficient", 0)), s->gradient);
}

static void adagrad(const onnx_call *c, step *s) {
    tn_tensor *g = regularized(c, s), *count = tn_cast(s->count, tn_dtype_of(s->rate));
    tn_tensor *slowed = tn_add_scalar(tn_mul_scalar(count, onnx_float(c, "decay_factor", 0)), 1);
    s->new_state[0] = tn_add(s->state[0], tn_square(g));
    tn_tensor *root = tn_add_scalar(tn_sqrt(s->new_state[0]), onnx_float(c, "epsilon", 1e-6F));
    s->new_x = tn_sub(s->x, tn_div(tn_mul(tn_div(s->rate, slowed), g), root));
}

/* 1 − base^count */
static tn_tensor *correction(double base, const tn_tensor *count) {
    return tn_rsub_scalar(tn_exp2(tn_mul(count, tn_log2(onnx_number(base, count)))), 1);
}

static void adam(const onnx_call *c, step *s) {
    double alpha = onnx_float(c, "alpha", 0.9F), beta = onnx_float(c, "beta", 0.999F);
    double after = onnx_float(c, "norm_coefficient_post", 0);
    tn_tensor *g = regularized(c, s), *count = tn_cast(s->count, tn_dtype_of(s->rate));
    s->new_state[0] = tn_add(tn_mul_scalar(s->state[0], alpha), tn_mul_scalar(g, 1 - alpha));
    s->new_state[1] = tn_add(tn_mul_scalar(s->state[1], beta), tn_mul_scalar(tn_square(g), 1 - beta));
    tn_tensor *root = tn_add_scalar(tn_sqrt(s->new_state[1]), onnx_float(c, "epsilon", 1e-6F));
    tn_tensor *adjusted = tn_div(tn_mul(s->rate, tn_sqrt(correction(beta, count))), correction(alpha, count));
    tn_tensor *rate = tn_where(tn_gt_scalar(count, 0), adjusted, s->rate);
    s->new_x = tn_mul_scalar(tn_sub(s->x, tn_div(tn_mul(rate, s->new_state[0]), root)), 1 - after);
}

static void momentum(const onnx_call *c, step *s) {
    double alpha = onnx_float(c, "alpha", 0), beta = onnx_float(c, "beta", 0);
    tn_tensor *g = regularized(c, s), *one = onnx_number(1, g);
    tn_tensor *weight = tn_where(tn_gt_scalar(s->count, 0), onnx_number(beta, g), one);
    s->new_state[0] = tn_add(tn_mul_scalar(s->state[0], alpha), tn_mul(weight, g));
    bool nesterov = onnx_is(onnx_string(c, "mode", "standard"), "nesterov");
    tn_tensor *way = nesterov ? tn_add(g, tn_mul_scalar(s->new_state[0], alpha)) : s->new_state[0];
    s->new_x = tn_sub(s->x, tn_mul(s->rate, way));
}

enum { ADAGRAD, ADAM, MOMENTUM };
static const struct {
    void (*step)(const onnx_call *c, step *s);
    int states;
} optimisers[] = {[ADAGRAD] = {adagrad, 1}, [ADAM] = {adam, 2}, [MOMENTUM] = {momentum, 1}};

static tn_status optimise(onnx_call *c) {
    int states = optimisers[c->row->with].states, each = 2 + states, many = (c->in_count - 2) / each;
    if (many < 1 || c->in_count != 2 + many * each)
        return onnx_refuse(c, "%d inputs; expected rate, count, and %d for each tensor", c->in_count, each);
    for (int i = 0; i < many; i++) {
        step s = {0};
        TRY(onnx_need_first(c, &s.rate, &s.count));
        TRY(onnx_need(c, 2 + i, &s.x));
        TRY(onnx_need(c, 2 + many + i, &s.gradient));
        for (int k = 0; k < states; k++)
            TRY(onnx_need(c, 2 + (2 + k) * many + i, &s.state[k]));
        optimisers[c->row->with].step(c, &s);
        TRY(onnx_put(c, i, s.new_x));
        for (int k = 0; k < states; k++)
            TRY(onnx_put(c, (1 + k) * many + i, s.new_state[k]));
    }
    return TN_OK;
}

// clang-format off
const onnx_op_row onnx_training_ops[] = {
    {"Adagrad", 1, optimise, .with = ADAGRAD},
    {"Adam", 1, optimise, .with = ADAM},
    {"Momentum", 1, optimise, .with = MOMENTUM},
    {.name = NULL},
};
// clang-format on
