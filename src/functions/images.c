/* images.c — windows over images and sequences of 1 to 3 dimensions: pools, convolutions, resizing, sampling.
 *
 * Windows are taken axis by axis: the axis is padded, and its windows become a further dimension (tn_unfold, or
 * as_strided with a dilation). A maximum or a sum over a box is then one over each of its sides, last axis first, so
 * that of equal maxima the first in row-major order is chosen. */
#include "functions/common.h"

enum { MOST_AXES = 3, MOST_NUMBER = 1 << 30 /* of a window, so that products fit 63 bits */ };

/* ---- windows of one axis ----------------------------------------------------------------------------------------- */

/* Windows of `kernel` elements, `dilation` apart, along dim of x, which is padded (or cut, if negative) before: the
 * window is a new last dimension. */
static tn_tensor *windows(const tn_tensor *x, int dim, int64_t kernel, int64_t stride, int64_t dilation, int64_t before,
                          int64_t after, double value) {
    int64_t pads[2 * TN_MAX_RANK] = {0}, shape[TN_MAX_RANK], strides[TN_MAX_RANK], step = 1;
    int rank = tn_rank(x), at = 2 * (rank - 1 - dim);
    pads[at] = before;
    pads[at + 1] = after;
    tn_tensor *padded = before || after ? tn_pad(x, pads, at + 2, value) : tn_contiguous(x);
    if (dilation == 1 || tn_status_of(padded) != TN_OK) return tn_unfold(padded, dim, kernel, stride);
    int64_t count = (tn_size(padded, dim) - dilation * (kernel - 1) - 1) / stride + 1;
    for (int d = rank - 1; d >= 0; d--) {
        shape[d] = d == dim ? count : tn_size(padded, d);
        strides[d] = d == dim ? step * stride : step;
        if (d == dim) shape[rank] = kernel, strides[rank] = step * dilation;
        step *= tn_size(padded, d);
    }
    return tn_as_strided(padded, shape, rank + 1, strides, rank + 1, 0);
}

typedef struct axis {
    int64_t size, kernel, stride, padding, dilation, out, after;
} axis;

static tn_tensor *read_axes(const char *name, const tn_tensor *x, int axes, const int64_t *kernel,
                            const int64_t *stride, const int64_t *padding, const int64_t *dilation, bool ceil_mode,
                            bool pools, axis *a) {
    if (axes < 1 || axes > MOST_AXES) return tn_failed(TN_ERR_ARGUMENT, "%s: %d axes; 1 to 3 are possible", name, axes);
    if (tn_rank(x) != axes + 1 && tn_rank(x) != axes + 2)
        return tn_failed(TN_ERR_SHAPE,
                         "%s: the tensor has rank %d; it must be [batch, channels, …] or [channels, …] with %d sizes",
                         name, tn_rank(x), axes);
    if (!kernel) return tn_failed(TN_ERR_ARGUMENT, "%s: the kernel size is NULL", name);
    if (pools && tn_size(x, -axes - 1) == 0) return tn_failed(TN_ERR_SHAPE, "%s: the tensor has no channels", name);
    for (int k = 0; k < axes; k++) {
        axis *t = &a[k];
        *t = (axis){.size = tn_size(x, k - axes),
                    .kernel = kernel[k],
                    .stride = stride  ? stride[k]
                              : pools ? kernel[k]
                                      : 1,
                    .padding = padding ? padding[k] : 0,
                    .dilation = dilation ? dilation[k] : 1};
        if (t->kernel < 1 || t->kernel > MOST_NUMBER || t->stride < 1 || t->stride > MOST_NUMBER ||
            t->dilation > MOST_NUMBER || t->padding > MOST_NUMBER || t->padding < 0 || t->dilation < 1)
            return tn_failed(
                TN_ERR_ARGUMENT, "%s: kernel %lld, stride %lld, padding %lld, dilation %lld of axis %d: invalid", name,
                (long long)t->kernel, (long long)t->stride, (long long)t->padding, (long long)t->dilation, k);
        if (pools && t->padding > t->kernel / 2)
            return tn_failed(TN_ERR_ARGUMENT, "%s: padding %lld exceeds half of the kernel size, %lld", name,
                             (long long)t->padding, (long long)t->kernel);
        int64_t reach = t->dilation * (t->kernel - 1) + 1, room = t->size + 2 * t->padding - reach;
        if (room < 0)
            return tn_failed(TN_ERR_SHAPE, "%s: a window of %lld does not fit extent %lld with padding %lld", name,
                             (long long)reach, (long long)t->size, (long long)t->padding);
        t->out = (room + (ceil_mode ? t->stride - 1 : 0)) / t->stride + 1;
        if (ceil_mode && (t->out - 1) * t->stride >= t->size + t->padding) t->out--;
        t->after = (t->out - 1) * t->stride + reach - t->size - t->padding;
    }
    return NULL;
}

static tn_tensor *axis_windows(const tn_tensor *x, int dim, const axis *a, double value) {
    return windows(x, dim, a->kernel, a->stride, a->dilation, a->padding, a->after, value);
}

/* A number that no element of x's dtype is below. */
static double least_number(const tn_tensor *x) {
    switch (tn_dtype_of(x)) {
    case TN_I8: return -128;
    case TN_I16: return -32768;
    case TN_I32: return -2147483648.0;
    case TN_I64: return -9223372036854775808.0;
    default: return tn_dtype_is_float(tn_dtype_of(x)) ? -INFINITY : 0; /* 0: unsigned ones and bool */
    }
}

/* The number of each element in its image: [size…]. */
static tn_tensor *image_numbers(const tn_tensor *x, int axes) {
    int64_t count = product(tn_shape(x) + tn_rank(x) - axes, axes);
    tn_tensor *n = tn_reshape(numbers(0, count), tn_shape(x) + tn_rank(x) - axes, axes);
    return tn_contiguous(tn_expand(n, tn_shape(x), tn_rank(x)));
}

/* Of each window (last dim) the first greatest value, and with it the number that *place has there. */
static tn_tensor *greatest(const tn_tensor *seen, const tn_tensor *numbers_seen, tn_tensor **place) {
    if (!place) return tn_max(seen, -1, false);
    tn_tensor *at = tn_argmax(seen, (int64_t[]){-1}, 1, true);
    *place = tn_select(tn_gather(numbers_seen, -1, at), -1, 0);
    return tn_select(tn_gather(seen, -1, at), -1, 0);
}

/* ---- pools ------------------------------------------------------------------------------------------------------- */

static tn_tensor *failed_pool(tn_tensor *error, tn_tensor **indices) {
    if (indices) *indices = tn_keep(tn_contiguous(error));
    return tn_keep(error);
}

tn_tensor *(tn_max_pool)(const tn_tensor *x, int axes, const int64_t *kernel_size, const int64_t *stride,
                         const int64_t *padding, const int64_t *dilation, bool ceil_mode, tn_tensor **indices) {
    axis a[MOST_AXES];
    TN_FUNCTION("max_pool");
    tn_tensor *bad = refused(x);
    if (!bad) bad = read_axes("max_pool", x, axes, kernel_size, stride, padding, dilation, ceil_mode, true, a);
    if (bad) return failed_pool(bad, indices);
    bool widens = indices && !is_float(x) && tn_dtype_of(x) != TN_U64; /* the padding must lose against every element */
    tn_tensor *y = widens ? tn_cast(x, TN_I64) : tn_contiguous(x), *place = indices ? image_numbers(x, axes) : NULL;
    if (tn_dtype_of(x) == TN_BOOL)
        return failed_pool(tn_failed(TN_ERR_DTYPE, "max_pool: bool is not supported: cast it"), indices);
    for (int k = axes - 1; k >= 0; k--) {
        int dim = tn_rank(x) - axes + k;
        tn_tensor *seen = axis_windows(y, dim, &a[k], least_number(y)),
                  *from = place ? axis_windows(place, dim, &a[k], -1) : NULL;
        y = greatest(seen, from, indices ? &place : NULL);
    }
    if (indices) *indices = tn_keep(tn_contiguous(place));
    return tn_keep(widens ? tn_cast(y, tn_dtype_of(x)) : tn_contiguous(y));
}

/* Elements of each window of the axis that count: [out] in x's dtype, or i64. */
static tn_tensor *window_counts(const axis *a, bool padding_counts, tn_dtype t) {
    tn_tensor *first = tn_sub(tn_mul(numbers(0, a->out), tn_scalar_int(a->stride)), tn_scalar_int(a->padding));
    tn_tensor *end =
        tn_minimum(tn_add(first, tn_scalar_int(a->kernel)), tn_scalar_int(a->size + (padding_counts ? a->padding : 0)));
    if (!padding_counts) first = tn_maximum(first, tn_scalar_int(0));
    return tn_cast(tn_sub(end, first), t);
}

tn_tensor *(tn_avg_pool)(const tn_tensor *x, int axes, const int64_t *kernel_size, const int64_t *stride,
                         const int64_t *padding, bool ceil_mode, bool count_include_pad, int64_t divisor_override) {
    axis a[MOST_AXES];
    TN_FUNCTION("avg_pool");
    tn_tensor *bad = refused(x);
    if (!bad) bad = read_axes("avg_pool", x, axes, kernel_size, stride, padding, NULL, ceil_mode, true, a);
    if (bad) return tn_keep(bad);
    bool floats = is_float(x);
    if (tn_dtype_of(x) == TN_BOOL) return tn_keep(tn_failed(TN_ERR_DTYPE, "avg_pool: bool is not supported: cast it"));
    tn_tensor *y = floats ? tn_contiguous(x) : tn_cast(x, TN_I64), *count = NULL;
    bool wide = tn_dtype_of(x) == TN_F16 || tn_dtype_of(x) == TN_BF16;
    if (wide) y = tn_cast(x, TN_F32); /* rounded once */
    tn_dtype t = tn_dtype_of(y);
    for (int k = axes - 1; k >= 0; k--) {
        y = sum_dim(axis_windows(y, tn_rank(x) - axes + k, &a[k], 0), -1, false);
        tn_tensor *own = along(window_counts(&a[k], count_include_pad, t), k, axes);
        count = count ? tn_mul(count, own) : own;
    }
    if (divisor_override) count = tn_full(NULL, 0, (double)divisor_override, t);
    y = floats ? tn_div(y, count) : tn_div_trunc(y, count);
    return tn_keep(tn_cast(y, tn_dtype_of(x)));
}

tn_tensor *(tn_lp_pool)(const tn_tensor *x, int axes, double norm_type, const int64_t *kernel_size,
                        const int64_t *stride, bool ceil_mode) {
    double count = 1;
    TN_FUNCTION("lp_pool");
    tn_tensor *bad = refused(x);
    if (bad) return tn_keep(bad);
    if (are_halves(x, NULL))
        return tn_keep(
            tn_cast((tn_lp_pool)(in_f32(x), axes, norm_type, kernel_size, stride, ceil_mode), tn_dtype_of(x)));
    for (int k = 0; kernel_size && k < axes && k < MOST_AXES; k++)
        count *= (double)kernel_size[k];
    tn_tensor *mean = tn_avg_pool(tn_pow_scalar(x, norm_type), axes, kernel_size, stride, NULL, ceil_mode, true, 0);
    tn_tensor *sum = tn_mul(tn_mul(tn_sign(mean), tn_relu(tn_abs(mean))), tn_scalar(count));
    return tn_keep(tn_pow_scalar(sum, 1 / norm_type));
}

/* ---- adaptive pools: windows of different lengths ---------------------------------------------------------------- */

/* Axis `dim` cut into `out` windows of about equal length, as a dim after it; windows that are shorter than the
 * longest repeat their last element. *weight: 1 / length for elements that count, 0 for repeated ones. */
static tn_tensor *adaptive_windows(const tn_tensor *x, int dim, int64_t out, tn_tensor **weight) {
    int64_t n = tn_size(x, dim), longest = 0;
    if (n % out == 0) {
        if (weight) *weight = tn_full((int64_t[]){out, n / out}, 2, (double)out / (double)n, TN_F64);
        return tn_unflatten(x, dim, (int64_t[]){out, n / out}, 2);
    }
    for (int64_t i = 0; i < out; i++) {
        int64_t length = ((i + 1) * n + out - 1) / out - i * n / out;
        if (length > longest) longest = length;
    }
    tn_tensor *i = tn_unsqueeze(numbers(0, out), 1), *size = tn_scalar_int(n), *many = tn_scalar_int(out);
    tn_tensor *start = tn_floor_divide(tn_mul(i, size), many);
    tn_tensor *end = tn_floor_divide(tn_add(tn_mul(tn_add(i, tn_scalar_int(1)), size), tn_scalar_int(out - 1)), many);
    tn_tensor *place = tn_add(start, numbers(0, longest)), *inside = tn_lt(place, end);
    if (weight) *weight = tn_div(tn_cast(inside, TN_F64), tn_cast(tn_sub(end, start), TN_F64));
    place = tn_where(inside, place, tn_sub(end, tn_scalar_int(1)));
    return tn_unflatten(tn_index_select(x, dim, flat(place)), dim, (int64_t[]){out, longest}, 2);
}

static tn_tensor *check_adaptive(const char *name, const tn_tensor *x, int axes, const int64_t *output_size) {
    tn_tensor *bad = refused(x);
    if (!bad) bad = no_list("adaptive pool: output_size", output_size, axes);
    if (bad) return bad;
    if (axes < 1 || axes > MOST_AXES || (tn_rank(x) != axes + 1 && tn_rank(x) != axes + 2))
        return tn_failed(TN_ERR_SHAPE,
                         "%s: the tensor has rank %d; it must be [batch, channels, …] or [channels, …] with %d sizes",
                         name, tn_rank(x), axes);
    for (int k = 0; k < axes; k++)
        if (output_size[k] < -1 || output_size[k] > MOST_NUMBER || tn_size(x, k - axes) == 0)
            return tn_failed(TN_ERR_SHAPE, "%s: output size %lld of extent %lld: invalid", name,
                             (long long)output_size[k], (long long)tn_size(x, k - axes));
    if (!is_float(x)) return tn_failed(TN_ERR_DTYPE, "%s: the tensor must be of a floating point type", name);
    return NULL;
}

tn_tensor *(tn_adaptive_avg_pool)(const tn_tensor *x, int axes, const int64_t *output_size) {
    TN_FUNCTION("adaptive_avg_pool");
    tn_tensor *bad = check_adaptive("adaptive_avg_pool", x, axes, output_size), *weight;
    if (bad) return tn_keep(bad);
    tn_dtype wide = tn_dtype_of(x) == TN_F64 ? TN_F64 : TN_F32;
    tn_tensor *y = tn_cast(x, wide);
    for (int k = axes - 1; k >= 0; k--) {
        int dim = tn_rank(x) - axes + k, rank = tn_rank(x) + 1;
        int64_t shape[TN_MAX_RANK], out = output_size[k];
        if (out < 0) continue;
        if (out == 0) {
            y = tn_slice(y, dim, 0, 0, 1);
            continue;
        }
        y = adaptive_windows(y, dim, out, &weight);
        for (int d = 0; d < rank; d++)
            shape[d] = d == dim || d == dim + 1 ? tn_size(y, d) : 1;
        y = sum_dim(tn_mul(y, tn_reshape(tn_cast(weight, wide), shape, rank)), dim + 1, false);
    }
    return tn_keep(tn_cast(y, tn_dtype_of(x)));
}

tn_tensor *(tn_adaptive_max_pool)(const tn_tensor *x, int axes, const int64_t *output_size, tn_tensor **indices) {
    TN_FUNCTION("adaptive_max_pool");
    tn_tensor *bad = check_adaptive("adaptive_max_pool", x, axes, output_size);
    if (bad) return failed_pool(bad, indices);
    tn_tensor *y = tn_contiguous(x), *place = indices ? image_numbers(x, axes) : NULL;
    for (int k = axes - 1; k >= 0; k--) {
        int dim = tn_rank(x) - axes + k;
        int64_t out = output_size[k];
        if (out < 0) continue;
        if (out == 0) {
            y = tn_slice(y, dim, 0, 0, 1);
            place = place ? tn_slice(place, dim, 0, 0, 1) : NULL;
            continue;
        }
        tn_tensor *seen = tn_movedim(adaptive_windows(y, dim, out, NULL), dim + 1, -1);
        tn_tensor *from = place ? tn_movedim(adaptive_windows(place, dim, out, NULL), dim + 1, -1) : NULL;
        y = greatest(seen, from, indices ? &place : NULL);
    }
    if (indices) *indices = tn_keep(tn_contiguous(place));
    return tn_keep(tn_contiguous(y));
}

tn_tensor *(tn_max_unpool)(const tn_tensor *x, const tn_tensor *indices, int axes, const int64_t *size) {
    TN_FUNCTION("max_unpool");
    tn_tensor *bad = refused2(x, indices);
    if (bad) return tn_keep(bad);
    int lead = tn_rank(x) - axes;
    bool fits =
        size && axes >= 1 && axes <= MOST_AXES && lead >= 1 && tn_rank(indices) == tn_rank(x) && is_index(indices);
    for (int d = 0; fits && d < tn_rank(x); d++)
        fits = tn_size(x, d) == tn_size(indices, d);
    if (!fits) return tn_keep(tn_failed(TN_ERR_SHAPE, "max_unpool: indices must be integers in x's shape"));
    int64_t rows = product(tn_shape(x), lead), from = product(tn_shape(x) + lead, axes), to = product(size, axes),
            shape[TN_MAX_RANK];
    memcpy(shape, tn_shape(x), (size_t)lead * sizeof *shape);
    memcpy(shape + lead, size, (size_t)axes * sizeof *shape);
    tn_tensor *zeros = tn_zeros((int64_t[]){rows, to}, 2, tn_dtype_of(x));
    tn_tensor *y = tn_scatter(zeros, 1, tn_reshape(indices, (int64_t[]){rows, from}, 2),
                              tn_reshape(x, (int64_t[]){rows, from}, 2));
    return tn_keep(tn_reshape(y, shape, tn_rank(x)));
}

/* ---- convolutions ------------------------------------------------------------------------------------------------ */

static tn_tensor *with_bias(tn_tensor *y, const tn_tensor *bias, int axes) {
    if (!bias) return y;
    int64_t shape[MOST_AXES + 1] = {tn_numel(bias), 1, 1, 1};
    return tn_add(y, tn_reshape(bias, shape, axes + 1));
}

/* x [n, c, …, h, w, kernel] seen along depth as images [n · depth, c · kernel, h, w]. */
static tn_tensor *depth_as_channels(const tn_tensor *seen) {
    const int64_t *s = tn_shape(seen);
    tn_tensor *t = tn_permute(seen, (int64_t[]){0, 2, 1, 5, 3, 4}, 6);
    return tn_reshape(t, (int64_t[]){s[0] * s[2], s[1] * s[5], s[3], s[4]}, 4);
}

static tn_tensor *depth_back(const tn_tensor *y, int64_t batch, bool batched) {
    const int64_t *s = tn_shape(y);
    int64_t shape[5] = {batch, batch ? s[0] / batch : 0, s[1], s[2], s[3]};
    tn_tensor *t = tn_transpose(tn_reshape(y, shape, 5), 1, 2);
    return tn_contiguous(batched ? t : tn_select(t, 0, 0));
}

static tn_tensor *check_conv(const char *name, const tn_tensor *x, const tn_tensor *weight, const tn_tensor *bias,
                             int axes) {
    tn_tensor *bad = refused2(x, weight);
    if (!bad && bias) bad = refused(bias);
    if (bad) return bad;
    if (tn_dtype_of(x) != tn_dtype_of(weight) || (bias && tn_dtype_of(bias) != tn_dtype_of(x)))
        return tn_failed(TN_ERR_DTYPE, "%s: x, weight and bias must have the same dtype", name);
    if (tn_rank(weight) != axes + 2 || (tn_rank(x) != axes + 2 && tn_rank(x) != axes + 1))
        return tn_failed(TN_ERR_SHAPE,
                         "%s: x [batch, channels, …] (or without the batch) and a weight of rank %d are needed", name,
                         axes + 2);
    return NULL;
}

tn_tensor *(tn_conv3d)(const tn_tensor *x, const tn_tensor *weight, const tn_tensor *bias, const int64_t *stride,
                       const int64_t *padding, const int64_t *dilation, int64_t groups) {
    axis a[MOST_AXES];
    TN_FUNCTION("conv3d");
    tn_tensor *bad = check_conv("conv3d", x, weight, bias, 3);
    if (!bad) bad = read_axes("conv3d", x, 3, tn_shape(weight) + 2, stride, padding, dilation, false, false, a);
    if (bad) return tn_keep(bad);
    const int64_t *w = tn_shape(weight);
    bool batched = tn_rank(x) == 5;
    tn_tensor *all = batched ? tn_contiguous(x) : tn_unsqueeze(x, 0), *seen = axis_windows(all, 2, &a[0], 0);
    tn_tensor *filters = tn_reshape(weight, (int64_t[]){w[0], w[1] * w[2], w[3], w[4]}, 4);
    tn_conv2d_options o = TN_CONV2D_DEFAULTS;
    for (int k = 0; k < 2; k++)
        o.stride[k] = a[k + 1].stride, o.padding[k] = a[k + 1].padding, o.dilation[k] = a[k + 1].dilation;
    o.groups = groups;
    tn_tensor *y = tn_conv2d(depth_as_channels(seen), filters, NULL, &o);
    if (tn_status_of(y) != TN_OK) return tn_keep(y);
    return tn_keep(with_bias(depth_back(y, tn_size(all, 0), batched), bias, 3));
}

tn_tensor *(tn_conv_transpose1d)(const tn_tensor *x, const tn_tensor *weight, const tn_tensor *bias, int64_t stride,
                                 int64_t padding, int64_t output_padding, int64_t groups, int64_t dilation) {
    TN_FUNCTION("conv_transpose1d");
    tn_tensor *bad = check_conv("conv_transpose1d", x, weight, bias, 1);
    if (bad) return tn_keep(bad);
    tn_conv_transpose2d_options o = TN_CONV_TRANSPOSE2D_DEFAULTS;
    o.stride[1] = stride, o.padding[1] = padding, o.output_padding[1] = output_padding, o.dilation[1] = dilation;
    o.groups = groups;
    return tn_keep(
        tn_squeeze(tn_conv_transpose2d(tn_unsqueeze(x, -2), tn_unsqueeze(weight, -2), bias, &o), (int64_t[]){-2}, 1));
}

/* Along depth: zeros between the frames, and the taps from the last to the first as channels of a transposed
 * convolution in two dimensions. */
tn_tensor *(tn_conv_transpose3d)(const tn_tensor *x, const tn_tensor *weight, const tn_tensor *bias,
                                 const int64_t *stride, const int64_t *padding, const int64_t *output_padding,
                                 int64_t groups, const int64_t *dilation) {
    TN_FUNCTION("conv_transpose3d");
    tn_tensor *bad = check_conv("conv_transpose3d", x, weight, bias, 3);
    if (bad) return tn_keep(bad);
    bool batched = tn_rank(x) == 5;
    tn_tensor *all = batched ? tn_contiguous(x) : tn_unsqueeze(x, 0);
    const int64_t *w = tn_shape(weight), *s = tn_shape(all);
    int64_t step = stride ? stride[0] : 1, apart = dilation ? dilation[0] : 1, pad = padding ? padding[0] : 0,
            more = output_padding ? output_padding[0] : 0;
    tn_conv_transpose2d_options o = TN_CONV_TRANSPOSE2D_DEFAULTS;
    for (int k = 0; k < 2; k++) {
        o.stride[k] = stride ? stride[k + 1] : 1;
        o.padding[k] = padding ? padding[k + 1] : 0;
        o.output_padding[k] = output_padding ? output_padding[k + 1] : 0;
        o.dilation[k] = dilation ? dilation[k + 1] : 1;
    }
    o.groups = groups;
    int64_t reach = apart * (w[2] - 1), out = (s[2] - 1) * step - 2 * pad + reach + more + 1;
    if (step < 1 || apart < 1 || pad < 0 || more < 0 || out < 1 || (more >= step && more >= apart))
        return tn_keep(tn_failed(
            TN_ERR_ARGUMENT,
            "conv_transpose3d: stride %lld, padding %lld, output padding %lld, dilation %lld of depth %lld: invalid",
            (long long)step, (long long)pad, (long long)more, (long long)apart, (long long)s[2]));
    tn_tensor *spread = tn_pad(tn_unsqueeze(all, 3), (int64_t[]){0, 0, 0, 0, 0, step - 1}, 6, 0);
    spread = tn_slice(tn_flatten(spread, 2, 3), 2, 0, (s[2] - 1) * step + 1, 1);
    tn_tensor *seen = windows(spread, 2, w[2], 1, apart, reach - pad, reach - pad + more, 0);
    tn_tensor *turned = tn_transpose(tn_flip(weight, (int64_t[]){2}, 1), 1, 2);
    tn_tensor *filters = tn_reshape(turned, (int64_t[]){w[0] * w[2], w[1], w[3], w[4]}, 4);
    tn_tensor *y = tn_conv_transpose2d(depth_as_channels(seen), filters, NULL, &o);
    if (tn_status_of(y) != TN_OK) return tn_keep(y);
    return tn_keep(with_bias(depth_back(y, s[0], batched), bias, 3));
}

/* ---- columns of windows ------------------------------------------------------------------------------------------ */

static tn_tensor *columns_of(const tn_tensor *x, const axis *a) {
    tn_tensor *seen = axis_windows(axis_windows(x, 2, &a[0], 0), 3, &a[1], 0); /* [n, c, oh, ow, kh, kw] */
    tn_tensor *t = tn_permute(seen, (int64_t[]){0, 1, 4, 5, 2, 3}, 6);
    int64_t shape[3] = {tn_size(x, 0), tn_size(x, 1) * a[0].kernel * a[1].kernel, a[0].out * a[1].out};
    return tn_reshape(t, shape, 3);
}

tn_tensor *(tn_im2col)(const tn_tensor *x, const int64_t kernel[2], const int64_t dilation[2], const int64_t padding[2],
                       const int64_t stride[2]) {
    axis a[MOST_AXES];
    TN_FUNCTION("im2col");
    tn_tensor *bad = refused(x);
    if (!bad) bad = read_axes("unfold", x, 2, kernel, stride, padding, dilation, false, false, a);
    if (bad) return tn_keep(bad);
    tn_tensor *y = columns_of(tn_rank(x) == 4 ? tn_contiguous(x) : tn_unsqueeze(x, 0), a);
    return tn_keep(tn_rank(x) == 4 ? y : tn_select(y, 0, 0));
}

tn_tensor *(tn_col2im)(const tn_tensor *x, const int64_t size[2], const int64_t kernel[2], const int64_t dilation[2],
                       const int64_t padding[2], const int64_t stride[2]) {
    axis a[MOST_AXES];
    TN_FUNCTION("col2im");
    tn_tensor *bad = refused(x);
    if (bad) return tn_keep(bad);
    if (!size || !kernel) return tn_keep(tn_failed(TN_ERR_ARGUMENT, "fold: size or kernel is NULL"));
    for (int k = 0; k < 2; k++)
        if (size[k] < 1 || size[k] > MOST_NUMBER || kernel[k] < 1 || kernel[k] > MOST_NUMBER ||
            (padding && (padding[k] < 0 || padding[k] > MOST_NUMBER)))
            return tn_keep(
                tn_failed(TN_ERR_ARGUMENT, "fold: size %lld, kernel %lld or padding %lld of axis %d is out of range",
                          (long long)size[k], (long long)kernel[k], (long long)(padding ? padding[k] : 0), k));
    int64_t whole[2], taps = kernel[0] * kernel[1];
    for (int k = 0; k < 2; k++)
        whole[k] = size[k] + 2 * (padding ? padding[k] : 0);
    if ((tn_rank(x) != 2 && tn_rank(x) != 3) || whole[0] < 1 || whole[1] < 1)
        return tn_keep(tn_failed(
            TN_ERR_SHAPE, "fold: columns [batch, channels · kernel, windows] (or without the batch) are needed"));
    tn_tensor *places = tn_reshape(numbers(0, whole[0] * whole[1]), (int64_t[]){1, 1, whole[0], whole[1]}, 4);
    bad = read_axes("fold", places, 2, kernel, stride, NULL, dilation, false, false, a);
    if (bad) return tn_keep(bad);
    int64_t batch = tn_rank(x) == 3 ? tn_size(x, 0) : 1, channels = taps ? tn_size(x, -2) / taps : 0,
            seen = a[0].out * a[1].out;
    if (tn_size(x, -2) % taps || tn_size(x, -1) != seen)
        return tn_keep(tn_failed(
            TN_ERR_SHAPE, "fold: %lld rows and %lld columns, but kernel and size need a multiple of %lld and %lld",
            (long long)tn_size(x, -2), (long long)tn_size(x, -1), (long long)taps, (long long)seen));
    tn_tensor *rows = tn_reshape(x, (int64_t[]){batch * channels, taps * seen}, 2);
    tn_tensor *zeros = tn_zeros((int64_t[]){batch * channels, whole[0] * whole[1]}, 2, tn_dtype_of(x));
    tn_tensor *y = tn_index_add(zeros, 1, flat(columns_of(places, a)), rows);
    y = tn_reshape(y, (int64_t[]){batch, channels, whole[0], whole[1]}, 4);
    if (padding) y = tn_pad(y, (int64_t[]){-padding[1], -padding[1], -padding[0], -padding[0]}, 4, 0);
    return tn_keep(tn_contiguous(tn_rank(x) == 3 ? y : tn_select(y, 0, 0)));
}

/* ---- resizing ---------------------------------------------------------------------------------------------------- */

/* Per output place of an axis: `count` places that it reads, and their weights. */
typedef struct taps {
    int64_t count, *place;
    double *weight;
} taps;

/* Keys' weight of a neighbour at distance d, at most 2. */
static double cubic_weight(double A, double d) {
    return d <= 1 ? ((A + 2) * d - (A + 3)) * d * d + 1 : ((A * d - 5 * A) * d + 8 * A) * d - 4 * A;
}

/* How far apart what two neighbours of the result see is. */
static double step_of(int64_t n, int64_t out, double scale, bool align) {
    if (align) return out > 1 ? (double)(n - 1) / (double)(out - 1) : 0;
    return scale > 0 ? 1 / scale : (double)n / (double)out;
}

/* [count, out]. */
static void fill_taps(const taps *t, int64_t n, int64_t out, double scale, tn_interpolate_mode mode, bool align,
                      bool in_f32) {
    for (int64_t i = 0; i < out; i++) {
        if (t->count == 1) {
            double exact = mode == TN_INTERPOLATE_NEAREST_EXACT ? 0.5 : 0, at = ((double)i + exact) * scale;
            int64_t p = (int64_t)floor(fmin(in_f32 ? (double)(float)at : at, (double)n));
            t->place[i] = p < n ? p : n - 1;
            t->weight[i] = 1;
            continue;
        }
        double at = align ? (double)i * scale : ((double)i + 0.5) * scale - 0.5;
        if (t->count == 2 && at < 0) at = 0;
        at = fmin(at, (double)n + 1); /* a tiny scale: the last element */
        double low = floor(at), part = at - low;
        for (int64_t k = 0; k < t->count; k++) {
            int64_t p = (int64_t)low + k - (t->count == 4);
            t->place[k * out + i] = p < 0 ? 0 : p < n ? p : n - 1;
            t->weight[k * out + i] =
                t->count == 2 ? (k ? part : 1 - part) : cubic_weight(-0.75, fabs(part - (double)(k - 1)));
        }
    }
}

static tn_tensor *weighed(const tn_tensor *x, int dim, int64_t out, const taps *t) {
    const int64_t shape[] = {t->count, out};
    if (t->count == 1) return tn_index_select(x, dim, tn_from_data(t->place, &out, 1, TN_I64));
    return tn_resample(x, dim, tn_from_data(t->place, shape, 2, TN_I64),
                       tn_cast(tn_from_data(t->weight, shape, 2, TN_F64), tn_dtype_of(x)));
}

/* The filters of Pillow: a triangle, or Keys' with A = −0.5. */
static double filter_weight(bool cubic, double d) {
    d = fabs(d);
    if (cubic) return d < 2 ? cubic_weight(-0.5, d) : 0;
    return d < 1 ? 1 - d : 0;
}

/* [out, count]: the places that each output place reads, at least the last one, and weights with a sum of 1. Where
 * fewer count, the last of them is repeated with a weight of 0, so that no other element's NaN takes part. */
static void fill_filter(const taps *t, int64_t n, int64_t out, double step, bool cubic) {
    double width = fmax(step, 1), support = (cubic ? 2 : 1) * width;
    for (int64_t i = 0; i < out; i++) {
        int64_t *place = t->place + i * t->count;
        double *weight = t->weight + i * t->count;
        double center = fmin(step * ((double)i + 0.5), (double)n + support - 1), sum = 0;
        int64_t first = (int64_t)fmax(center - support + 0.5, 0),
                end = (int64_t)fmin(center + support + 0.5, (double)n);
        if (first > n - 1) first = n - 1;
        int64_t count = end - first < t->count ? end - first : t->count;
        if (count < 1) count = 1;
        for (int64_t k = 0; k < t->count; k++) {
            place[k] = first + (k < count ? k : count - 1);
            weight[k] = k < count ? filter_weight(cubic, ((double)(first + k) - center + 0.5) / width) : 0;
            sum += weight[k];
        }
        for (int64_t k = 0; k < t->count && sum != 0; k++)
            weight[k] /= sum;
    }
}

/* The same in one sum, for many taps. */
static tn_tensor *filtered(const tn_tensor *x, int dim, int64_t out, const taps *t) {
    int64_t shape[TN_MAX_RANK + 1], count = t->count * out;
    int rank = tn_rank(x);
    for (int k = 0; k <= rank; k++)
        shape[k] = k < dim ? tn_size(x, k) : k == dim ? out : k == dim + 1 ? t->count : tn_size(x, k - 1);
    tn_tensor *y = tn_reshape(tn_index_select(x, dim, tn_from_data(t->place, &count, 1, TN_I64)), shape, rank + 1);
    for (int k = 0; k <= rank; k++)
        shape[k] = k == dim ? out : k == dim + 1 ? t->count : 1;
    tn_tensor *w = tn_reshape(tn_from_data(t->weight, &count, 1, TN_F64), shape, rank + 1);
    return tn_sum(tn_mul(y, tn_cast(w, tn_dtype_of(x))), (int64_t[]){dim + 1}, 1, false);
}

static tn_tensor *resized(const tn_tensor *x, int dim, int64_t out, double scale, tn_interpolate_mode mode,
                          bool align) {
    int64_t n = tn_size(x, dim);
    bool cubic = mode == TN_INTERPOLATE_CUBIC_ANTIALIAS, smooth = cubic || mode == TN_INTERPOLATE_LINEAR_ANTIALIAS;
    taps t = {.count = mode == TN_INTERPOLATE_LINEAR ? 2 : mode == TN_INTERPOLATE_CUBIC ? 4 : 1};
    double step = step_of(n, out, scale, align && (smooth || t.count > 1));
    if (smooth) { /* smaller without aliases: the filter is as much wider as the image shrinks */
        const double reach = ceil((cubic ? 2 : 1) * fmax(step, 1));
        t.count = 2 * reach + 1 < (double)n ? 2 * (int64_t)reach + 1 : n;
    }
    bool fits = t.count <= INT64_MAX / out / (int64_t)sizeof(double), in_f32 = tn_dtype_of(x) != TN_F64;
    t.place = fits ? malloc((size_t)(t.count * out) * sizeof *t.place) : NULL;
    t.weight = fits ? malloc((size_t)(t.count * out) * sizeof *t.weight) : NULL;
    tn_tensor *y;
    if (!t.place || !t.weight) {
        y = tn_failed(TN_ERR_MEMORY, "interpolate: no memory for %lld weights of each of %lld places",
                      (long long)t.count, (long long)out);
    } else if (smooth) {
        fill_filter(&t, n, out, step, cubic);
        y = filtered(x, dim, out, &t);
    } else {
        fill_taps(&t, n, out, in_f32 && t.count == 1 ? (double)(float)step : step, mode, align, in_f32);
        y = weighed(x, dim, out, &t);
    }
    free(t.place);
    free(t.weight);
    return y;
}

tn_tensor *(tn_interpolate)(const tn_tensor *x, const int64_t *size, int size_count, const double *scales,
                            tn_interpolate_mode mode, bool align_corners) {
    TN_FUNCTION("interpolate");
    tn_tensor *bad = refused(x);
    if (bad) return tn_keep(bad);
    bad =
        no_choice("interpolate: mode", (int)mode, TN_INTERPOLATE_CUBIC_ANTIALIAS,
                  "TN_INTERPOLATE_NEAREST, TN_INTERPOLATE_NEAREST_EXACT, TN_INTERPOLATE_LINEAR, TN_INTERPOLATE_CUBIC, "
                  "TN_INTERPOLATE_AREA, TN_INTERPOLATE_LINEAR_ANTIALIAS, TN_INTERPOLATE_CUBIC_ANTIALIAS");
    if (bad) return tn_keep(bad);
    bool fits = size && size_count >= 1 && size_count <= MOST_AXES && tn_rank(x) == size_count + 2;
    for (int k = 0; fits && k < size_count; k++)
        fits = size[k] >= 1 && size[k] <= MOST_NUMBER && tn_size(x, k + 2) >= 1;
    if (!fits)
        return tn_keep(tn_failed(
            TN_ERR_SHAPE, "interpolate: x [batch, channels, …] of rank %d and %d sizes from 1 to 2^30 do not fit",
            tn_rank(x), size_count));
    if (mode == TN_INTERPOLATE_AREA) return tn_keep(tn_adaptive_avg_pool(x, size_count, size));
    if (!is_float(x) && mode != TN_INTERPOLATE_NEAREST && mode != TN_INTERPOLATE_NEAREST_EXACT)
        return tn_keep(tn_failed(TN_ERR_DTYPE, "interpolate: the tensor must be of a floating point type"));
    bool wide = tn_dtype_of(x) == TN_F16 || tn_dtype_of(x) == TN_BF16;
    tn_tensor *y = wide ? tn_cast(x, TN_F32) : tn_contiguous(x);
    for (int k = size_count - 1; k >= 0; k--)
        y = resized(y, k + 2, size[k], scales ? scales[k] : 0, mode, align_corners);
    return tn_keep(tn_cast(y, tn_dtype_of(x)));
}

/* ---- channels ---------------------------------------------------------------------------------------------------- */

static tn_tensor *shuffled(const char *name, const tn_tensor *x, int64_t r, bool up) {
    tn_tensor *bad = refused(x);
    if (bad) return bad;
    if (tn_rank(x) < 3 || r < 1 || r > MOST_NUMBER)
        return tn_failed(TN_ERR_SHAPE,
                         "%s: a tensor [..., channels, height, width] and a factor of at least 1 are needed", name);
    int rank = tn_rank(x);
    int64_t c = tn_size(x, -3), h = tn_size(x, -2), w = tn_size(x, -1), shape[TN_MAX_RANK],
            batch = product(tn_shape(x), rank - 3);
    memcpy(shape, tn_shape(x), (size_t)rank * sizeof *shape);
    if (up ? c % (r * r) : h % r || w % r)
        return tn_failed(TN_ERR_SHAPE, "%s: factor %lld does not divide [%lld, %lld, %lld]", name, (long long)r,
                         (long long)c, (long long)h, (long long)w);
    shape[rank - 3] = up ? c / (r * r) : c * r * r;
    shape[rank - 2] = up ? h * r : h / r;
    shape[rank - 1] = up ? w * r : w / r;
    if (up) {
        tn_tensor *t = tn_reshape(x, (int64_t[]){batch, c / (r * r), r, r, h, w}, 6);
        return tn_reshape(tn_permute(t, (int64_t[]){0, 1, 4, 2, 5, 3}, 6), shape, rank);
    }
    tn_tensor *t = tn_reshape(x, (int64_t[]){batch, c, h / r, r, w / r, r}, 6);
    return tn_reshape(tn_permute(t, (int64_t[]){0, 1, 3, 5, 2, 4}, 6), shape, rank);
}

tn_tensor *(tn_pixel_shuffle)(const tn_tensor *x, int64_t upscale_factor) {
    TN_FUNCTION("pixel_shuffle");
    return tn_keep(tn_contiguous(shuffled("pixel_shuffle", x, upscale_factor, true)));
}
tn_tensor *(tn_pixel_unshuffle)(const tn_tensor *x, int64_t downscale_factor) {
    TN_FUNCTION("pixel_unshuffle");
    return tn_keep(tn_contiguous(shuffled("pixel_unshuffle", x, downscale_factor, false)));
}

tn_tensor *(tn_channel_shuffle)(const tn_tensor *x, int64_t groups) {
    TN_FUNCTION("channel_shuffle");
    tn_tensor *bad = refused(x);
    if (bad) return tn_keep(bad);
    if (tn_rank(x) < 3 || groups < 1 || tn_size(x, 1) % groups)
        return tn_keep(tn_failed(
            TN_ERR_SHAPE, "channel_shuffle: %lld groups do not divide the channels of a tensor [batch, channels, …]",
            (long long)groups));
    tn_tensor *t = tn_transpose(tn_unflatten(x, 1, (int64_t[]){groups, tn_size(x, 1) / groups}, 2), 1, 2);
    return tn_keep(tn_contiguous(tn_reshape(t, tn_shape(x), tn_rank(x))));
}

tn_tensor *(tn_local_response_norm)(const tn_tensor *x, int64_t size, double alpha, double beta, double k) {
    TN_FUNCTION("local_response_norm");
    tn_tensor *bad = refused(x);
    if (bad) return tn_keep(bad);
    if (are_halves(x, NULL))
        return tn_keep(tn_cast((tn_local_response_norm)(in_f32(x), size, alpha, beta, k), tn_dtype_of(x)));
    if (tn_rank(x) < 3 || size < 1)
        return tn_keep(tn_failed(
            TN_ERR_SHAPE, "local_response_norm: a tensor [batch, channels, …] and a size of at least 1 are needed"));
    tn_tensor *seen = windows(tn_mul(x, x), 1, size, 1, 1, size / 2, (size - 1) / 2, 0);
    tn_tensor *mean = tn_mean(seen, (int64_t[]){-1}, 1, false);
    tn_tensor *divisor = tn_pow_scalar(tn_add(tn_mul(mean, tn_scalar(alpha)), tn_scalar(k)), beta);
    return tn_keep(tn_div(x, divisor));
}

/* ---- sampling at places ------------------------------------------------------------------------------------------ */

/* A place reflected at the borders as often as needed. */
static tn_tensor *reflected(const tn_tensor *at, double low, double high) {
    double span = high - low;
    if (span <= 0) return tn_zeros_like(at);
    tn_tensor *from = tn_abs(tn_sub(at, tn_scalar(low))), *width = tn_scalar(span), *two = tn_scalar(2);
    tn_tensor *extra = tn_fmod(from, width),
              *odd = tn_ne(tn_fmod(tn_floor(tn_div(tn_detach(from), width)), two), tn_scalar(0));
    return tn_add(tn_where(odd, tn_sub(width, extra), extra), tn_scalar(low));
}

/* Coordinates in [−1, 1] as places of an axis of n elements. */
static tn_tensor *place_on_axis(const tn_tensor *grid, int64_t n, tn_grid_padding padding, bool align) {
    double last = (double)(n - 1), size = (double)n;
    tn_tensor *one = tn_scalar(1), *half = tn_scalar(0.5);
    tn_tensor *at = align ? tn_mul(tn_mul(tn_add(grid, one), half), tn_scalar(last))
                          : tn_mul(tn_sub(tn_mul(tn_add(grid, one), tn_scalar(size)), one), half);
    if (padding == TN_GRID_REFLECTION) at = align ? reflected(at, 0, last) : reflected(at, -0.5, last + 0.5);
    if (padding != TN_GRID_ZEROS) at = tn_clamp(at, 0, last);
    return at;
}

/* The elements of x [n, c, elements] at places [n, 1, points], 0 where `inside` is false. */
static tn_tensor *look_up(const tn_tensor *x, const tn_tensor *place, const tn_tensor *inside) {
    int64_t shape[3] = {tn_size(x, 0), tn_size(x, 1), tn_size(place, 2)};
    tn_tensor *v = tn_gather(x, 2, tn_expand(tn_where(inside, place, tn_scalar_int(0)), shape, 3));
    return tn_where(inside, v, tn_zeros(NULL, 0, tn_dtype_of(x)));
}

tn_tensor *(tn_grid_sample)(const tn_tensor *x, const tn_tensor *grid, tn_grid_mode mode, tn_grid_padding padding,
                            bool align_corners) {
    TN_FUNCTION("grid_sample");
    tn_tensor *bad = refused2(x, grid);
    if (bad) return tn_keep(bad);
    bad = no_choice("grid_sample: mode", (int)mode, TN_GRID_NEAREST, "TN_GRID_BILINEAR, TN_GRID_NEAREST");
    if (!bad)
        bad = no_choice("grid_sample: padding", (int)padding, TN_GRID_REFLECTION,
                        "TN_GRID_ZEROS, TN_GRID_BORDER, TN_GRID_REFLECTION");
    if (bad) return tn_keep(bad);
    int axes = tn_rank(x) - 2;
    bool fits = (axes == 2 || axes == 3) && tn_rank(grid) == axes + 2 && tn_size(grid, -1) == axes &&
                tn_numel(grid) > 0 && tn_size(grid, 0) == tn_size(x, 0) && tn_numel(x) > 0;
    if (!fits || !is_float(x) || tn_dtype_of(x) != tn_dtype_of(grid))
        return tn_keep(tn_failed(
            TN_ERR_SHAPE,
            "grid_sample: x [n, c, (d,) h, w] and a grid [n, (od,) oh, ow, 2 or 3] of the same dtype are needed"));
    int64_t n = tn_size(x, 0), points = product(tn_shape(grid) + 1, axes), shape[TN_MAX_RANK] = {n, tn_size(x, 1)};
    int corners = mode == TN_GRID_NEAREST ? 1 : 2; /* along each axis; each axis of corners is a dim of its own */
    tn_tensor *place = NULL, *inside = NULL, *weight = NULL;
    for (int k = 0; k < axes; k++) {
        int64_t extent = tn_size(x, 2 + k), own[MOST_AXES + 2] = {n, 1, 1, 1, points},
                corner[MOST_AXES + 1] = {1, 1, 1, 1};
        corner[k] = corners;
        tn_tensor *at = tn_reshape(tn_select(grid, -1, axes - 1 - k), own, 5);
        at = place_on_axis(at, extent, padding, align_corners);
        tn_tensor *low = corners == 1 ? tn_round(at) : tn_floor(at), *part = tn_sub(at, low);
        tn_tensor *upper = tn_reshape(tn_arange(0, corners, 1, tn_dtype_of(x)), corner, 4), *i = tn_add(low, upper);
        tn_tensor *fits_here = tn_logical_and(tn_ge(i, tn_scalar(0)), tn_le(i, tn_scalar((double)(extent - 1))));
        tn_tensor *share = tn_where(tn_gt(upper, tn_scalar(0)), part, tn_sub(tn_scalar(1), part));
        tn_tensor *number = tn_cast(i, TN_I64);
        place = place ? tn_add(tn_mul(place, tn_scalar_int(extent)), number) : number;
        inside = inside ? tn_logical_and(inside, fits_here) : fits_here;
        weight = weight ? tn_mul(weight, share) : share;
        shape[2 + k] = tn_size(grid, 1 + k);
    }
    int64_t seen = tn_numel(place) / (n * points), flat_shape[] = {n, 1, seen * points},
            by_corner[] = {n, shape[1], seen, points};
    tn_tensor *v = look_up(tn_flatten(x, 2, -1), tn_reshape(place, flat_shape, 3), tn_reshape(inside, flat_shape, 3));
    if (corners == 1) return tn_keep(tn_reshape(v, shape, axes + 2));
    v = tn_mul(v, tn_reshape(weight, flat_shape, 3));
    return tn_keep(tn_reshape(sum_dim(tn_reshape(v, by_corner, 4), 2, false), shape, axes + 2));
}

tn_tensor *(tn_affine_grid)(const tn_tensor *theta, const int64_t *size, int size_count, bool align_corners) {
    TN_FUNCTION("affine_grid");
    tn_tensor *bad = refused(theta);
    if (bad) return tn_keep(bad);
    int axes = size ? size_count - 2 : 0;
    if ((axes != 2 && axes != 3) || tn_rank(theta) != 3 || tn_size(theta, 0) != size[0] || tn_size(theta, 1) != axes ||
        tn_size(theta, 2) != axes + 1 || !is_float(theta))
        return tn_keep(
            tn_failed(TN_ERR_SHAPE, "affine_grid: theta [n, 2, 3] with 4 sizes, or [n, 3, 4] with 5, is needed"));
    int64_t shape[MOST_AXES + 2] = {size[0]};
    tn_tensor *parts[MOST_AXES + 1];
    for (int k = 0; k < axes; k++) {
        int64_t n = size[2 + k];
        double most = align_corners ? 1 : (double)(n - 1) / (double)n;
        tn_tensor *places =
            n > 1 ? tn_linspace(-most, most, n, tn_dtype_of(theta)) : tn_zeros(&n, 1, tn_dtype_of(theta));
        parts[axes - 1 - k] = flat(tn_expand(along(places, k, axes), size + 2, axes));
        shape[1 + k] = n;
    }
    parts[axes] = tn_ones_like(parts[0]);
    tn_tensor *base = tn_stack(parts, axes + 1, 1); /* [points, axes + 1] */
    shape[1 + axes] = axes;
    return tn_keep(tn_reshape(tn_matmul(base, tn_transpose(theta, 1, 2)), shape, axes + 2));
}
