/* onnx_window.c — ONNX: operators with a sliding window: convolution, pooling and their inverses.
 *
 * An image may have one to three axes. Convolutions of one and two axes are conv2d, which has kernels; those of three
 * axes are conv3d. Pooling reads one view of the padded image, whose dims are the kernel's and the output's. */
#include <math.h>
#include <string.h>

#include "onnx/operator_support.h"
#include "trunnion/functions.h"

/* ---- attributes -------------------------------------------------------------------------------------------------- */

static int64_t onnx_reach(const onnx_window *w, int a) { return w->dilation[a] * (w->kernel[a] - 1) + 1; }

tn_status onnx_ints_of(const onnx_call *c, const char *name, int count, int64_t otherwise, int64_t *out) {
    int given;
    const int64_t *v = onnx_ints(c, name, &given);
    if (v && given != count) return onnx_refuse(c, "%s has %d numbers; expected %d", name, given, count);
    for (int i = 0; i < count; i++) {
        out[i] = v ? v[i] : otherwise;
        if (out[i] < -INT32_MAX || out[i] > INT32_MAX)
            return onnx_refuse(c, "%s is out of range: %lld", name, (long long)out[i]);
    }
    return TN_OK;
}

/* Both sides' share of `total`, the odd one after or (lower) before. */
static void share_padding(onnx_window *w, int a, int64_t total, bool lower) {
    w->before[a] = lower ? total - total / 2 : total / 2;
    w->after[a] = total - w->before[a];
}

/* A node may say again what its weight says: the same. */
static tn_status read_kernel(const onnx_call *c, const int64_t *kernel, onnx_window *w) {
    TRY(onnx_ints_of(c, "kernel_shape", w->axes, 0, w->kernel));
    for (int a = 0; kernel && a < w->axes; a++) {
        if (w->kernel[a] != 0 && w->kernel[a] != kernel[a])
            return onnx_refuse(c, "kernel_shape is %lld along axis %d, but the weight has %lld",
                               (long long)w->kernel[a], a, (long long)kernel[a]);
        w->kernel[a] = kernel[a];
    }
    return TN_OK;
}

static tn_status read_sizes_window(const onnx_call *c, const int64_t *kernel, onnx_window *w) {
    TRY(read_kernel(c, kernel, w));
    TRY(onnx_ints_of(c, "strides", w->axes, 1, w->stride));
    TRY(onnx_ints_of(c, "dilations", w->axes, 1, w->dilation));
    for (int a = 0; a < w->axes; a++)
        if (w->kernel[a] < 1 || w->stride[a] < 1 || w->dilation[a] < 1 || w->kernel[a] > INT32_MAX)
            return onnx_refuse(c, "kernel %lld, stride %lld, dilation %lld: all must be at least 1",
                               (long long)w->kernel[a], (long long)w->stride[a], (long long)w->dilation[a]);
    return TN_OK;
}

static tn_status read_pads(const onnx_call *c, onnx_window *w) {
    int64_t pads[2 * ONNX_MAX_AXES];
    TRY(onnx_ints_of(c, "pads", 2 * w->axes, 0, pads));
    memcpy(w->before, pads, (size_t)w->axes * sizeof *pads);
    memcpy(w->after, pads + w->axes, (size_t)w->axes * sizeof *pads);
    return TN_OK;
}

static tn_status read_window(const onnx_call *c, const tn_tensor *x, const int64_t *kernel, onnx_window *w) {
    TRY(tn_status_of(x));
    *w = (onnx_window){.axes = tn_rank(x) - 2};
    if (w->axes < 1 || w->axes > ONNX_MAX_AXES)
        return onnx_refuse(c, "an input of %d dimensions is not supported: one to three spatial axes are", tn_rank(x));
    return read_sizes_window(c, kernel, w);
}

static bool is_same(onnx_text pad) { return onnx_is(pad, "SAME_UPPER") || onnx_is(pad, "SAME_LOWER"); }

tn_status onnx_window_read(const onnx_call *c, const tn_tensor *x, const int64_t *kernel, onnx_window *w) {
    onnx_text pad = onnx_string(c, "auto_pad", "NOTSET");
    TRY(read_window(c, x, kernel, w));
    if (!is_same(pad)) return onnx_is(pad, "VALID") ? TN_OK : read_pads(c, w);
    for (int a = 0; a < w->axes; a++) {
        int64_t size = tn_size(x, 2 + a), places = tn_ceil_div(size, w->stride[a]);
        int64_t total = (places - 1) * w->stride[a] + onnx_reach(w, a) - size;
        share_padding(w, a, tn_max64(total, 0), onnx_is(pad, "SAME_LOWER"));
    }
    return TN_OK;
}

int64_t onnx_places(const onnx_window *w, int a, int64_t size, bool ceil_mode) {
    int64_t room = size + w->before[a] + w->after[a] - onnx_reach(w, a), stride = w->stride[a];
    if (room < 0) return 0;
    int64_t count = (ceil_mode ? room + stride - 1 : room) / stride + 1;
    return ceil_mode && (count - 1) * stride >= size + w->before[a] ? count - 1 : count;
}

static tn_status places_of(const onnx_call *c, const tn_tensor *x, const onnx_window *w, int64_t *places) {
    static const int64_t WORK_MOST = 1 << 28; /* taps of all windows along an axis, which the host counts */
    for (int a = 0; a < w->axes; a++) {
        places[a] = onnx_places(w, a, tn_size(x, 2 + a), onnx_int(c, "ceil_mode", 0) != 0);
        if (w->kernel[a] > WORK_MOST / tn_max64(places[a], 1))
            return onnx_refuse(c, "%lld outputs of a kernel of %lld are too much work", (long long)places[a],
                               (long long)w->kernel[a]);
        if (places[a] < 1)
            return onnx_refuse(c, "a kernel that spans %lld does not fit an extent of %lld",
                               (long long)onnx_reach(w, a), (long long)tn_size(x, 2 + a));
    }
    return TN_OK;
}

/* x [n, c, size…] with before[a] and after[a] more (or less) along each axis. */
static tn_tensor *padded(const tn_tensor *x, int axes, const int64_t *before, const int64_t *after, double value) {
    int64_t pads[2 * ONNX_MAX_AXES], any = 0;
    for (int a = 0; a < axes; a++) {
        int at = 2 * (axes - 1 - a);
        pads[at] = before[a];
        pads[at + 1] = after[a];
        any |= before[a] | after[a];
    }
    return any ? tn_pad(x, pads, 2 * axes, value) : tn_contiguous(x);
}

/* ---- convolution ------------------------------------------------------------------------------------------------- */

/* [n, c, l] as [n, c, 1, l]. */
static tn_tensor *as_image(const tn_tensor *x, int axes) { return axes == 1 ? tn_unsqueeze(x, 2) : tn_detach(x); }

static const int64_t no_padding[ONNX_MAX_AXES];

tn_tensor *onnx_convolve(const tn_tensor *x, const tn_tensor *weight, const tn_tensor *bias, const onnx_window *w,
                         int64_t groups) {
    static const int64_t last_but_one = 2;
    tn_conv2d_options o = TN_CONV2D_DEFAULTS;
    o.groups = groups;
    int first = 2 - w->axes;
    bool even = true;
    for (int a = 0; a < w->axes; a++)
        even &= w->before[a] == w->after[a] && w->before[a] >= 0;
    if (!even) x = padded(x, w->axes, w->before, w->after, 0);
    if (w->axes == 3) return tn_conv3d(x, weight, bias, w->stride, even ? w->before : no_padding, w->dilation, groups);
    for (int a = 0; a < w->axes; a++) {
        o.stride[first + a] = w->stride[a];
        o.dilation[first + a] = w->dilation[a];
        o.padding[first + a] = even ? w->before[a] : 0;
    }
    if (w->axes == 2) return tn_conv2d(x, weight, bias, &o);
    return tn_squeeze(tn_conv2d(as_image(x, 1), as_image(weight, 1), bias, &o), &last_but_one, 1);
}

tn_status onnx_conv(onnx_call *c) {
    const tn_tensor *x = onnx_in(c, 0), *weight = onnx_in(c, 1), *bias = onnx_has(c, 2) ? onnx_in(c, 2) : NULL;
    int64_t groups = onnx_int(c, "group", 1);
    onnx_window w;
    TRY(tn_status_of(weight));
    if (tn_rank(weight) != tn_rank(x) && tn_status_of(x) == TN_OK)
        return onnx_refuse(c, "a weight of %d dimensions does not fit an input of %d", tn_rank(weight), tn_rank(x));
    if (groups < 1) return onnx_refuse(c, "group is %lld; it must be at least 1", (long long)groups);
    TRY(onnx_window_read(c, x, tn_shape(weight) + 2, &w));
    return onnx_put(c, 0, onnx_convolve(x, weight, bias, &w, groups));
}

/* ---- transposed convolution -------------------------------------------------------------------------------------- */

/* tn_conv_transpose2d or 3d, where it pads alike on both sides; else its whole image, cut. */
static tn_tensor *spread(const tn_tensor *x, const tn_tensor *weight, const tn_tensor *bias, const onnx_window *w,
                         const int64_t *extra, int64_t groups) {
    static const int64_t last_but_one = 2;
    tn_conv_transpose2d_options o = TN_CONV_TRANSPOSE2D_DEFAULTS;
    tn_tensor *y;
    o.groups = groups;
    int first = 2 - w->axes;
    bool even = true;
    for (int a = 0; a < w->axes; a++)
        even &=
            w->before[a] == w->after[a] && w->before[a] >= 0 && (extra[a] < w->stride[a] || extra[a] < w->dilation[a]);
    const int64_t *padding = even ? w->before : no_padding, *more = even ? extra : no_padding;
    const tn_tensor *within = even ? bias : NULL;
    if (w->axes == 3) {
        y = tn_conv_transpose3d(x, weight, within, w->stride, padding, more, groups, w->dilation);
    } else {
        for (int a = 0; a < w->axes; a++) {
            o.stride[first + a] = w->stride[a];
            o.dilation[first + a] = w->dilation[a];
            o.padding[first + a] = padding[a];
            o.output_padding[first + a] = more[a];
        }
        y = tn_conv_transpose2d(as_image(x, w->axes), as_image(weight, w->axes), within, &o);
        if (w->axes == 1) y = tn_squeeze(y, &last_but_one, 1);
    }
    if (even) return y;
    int64_t before[ONNX_MAX_AXES], after[ONNX_MAX_AXES];
    for (int a = 0; a < w->axes; a++) {
        before[a] = -w->before[a];
        after[a] = extra[a] - w->after[a];
    }
    y = padded(y, w->axes, before, after, 0);
    return bias ? tn_add(y, onnx_per_channel(bias, tn_rank(y))) : y;
}

/* Padding that yields output_shape, or the input's extents times the strides. */
static tn_status transposed_padding(const onnx_call *c, const tn_tensor *x, const int64_t *extra, onnx_window *w) {
    int64_t shape[ONNX_MAX_AXES];
    int given;
    onnx_text pad = onnx_string(c, "auto_pad", "NOTSET");
    bool asked = onnx_ints(c, "output_shape", &given) && given > 0;
    if (!asked && !is_same(pad)) return onnx_is(pad, "VALID") ? TN_OK : read_pads(c, w);
    if (asked && given == w->axes + 2) return onnx_refuse(c, "output_shape with batch and channels is not supported");
    if (asked) TRY(onnx_ints_of(c, "output_shape", w->axes, 0, shape));
    for (int a = 0; a < w->axes; a++) {
        int64_t size = tn_size(x, 2 + a), want = asked ? shape[a] : size * w->stride[a];
        int64_t total = w->stride[a] * (size - 1) + extra[a] + onnx_reach(w, a) - want;
        if (total < 0)
            w->after[a] = total; /* more than there is: zeros after */
        else
            share_padding(w, a, total, !onnx_is(pad, "SAME_UPPER"));
    }
    return TN_OK;
}

tn_status onnx_conv_transpose(onnx_call *c) {
    const tn_tensor *x = onnx_in(c, 0), *weight = onnx_in(c, 1), *bias = onnx_has(c, 2) ? onnx_in(c, 2) : NULL;
    int64_t extra[ONNX_MAX_AXES], groups = onnx_int(c, "group", 1);
    onnx_window w;
    TRY(tn_status_of(weight));
    if (tn_rank(weight) != tn_rank(x) || groups < 1 || tn_size(weight, 0) % groups)
        return onnx_refuse(c, "the weight does not fit the input with %lld groups", (long long)groups);
    TRY(read_window(c, x, tn_shape(weight) + 2, &w));
    TRY(onnx_ints_of(c, "output_padding", w.axes, 0, extra));
    TRY(transposed_padding(c, x, extra, &w));
    return onnx_put(c, 0, spread(x, weight, bias, &w, extra, groups));
}

/* ---- pooling ----------------------------------------------------------------------------------------------------- */

/* As far as `places` reach. */
static tn_tensor *reached(const tn_tensor *x, const onnx_window *w, const int64_t *places, double value) {
    int64_t after[ONNX_MAX_AXES];
    for (int a = 0; a < w->axes; a++)
        after[a] = (places[a] - 1) * w->stride[a] + onnx_reach(w, a) - w->before[a] - tn_size(x, 2 + a);
    return padded(x, w->axes, w->before, after, value);
}

tn_tensor *onnx_seen_by_place(const tn_tensor *x, const onnx_window *w, const int64_t *places, double value) {
    int axes = w->axes, rank = 2 + 2 * axes;
    int64_t shape[TN_MAX_RANK] = {tn_size(x, 0)}, strides[TN_MAX_RANK], pitch = tn_size(x, 1);
    tn_tensor *y = tn_contiguous(tn_movedim(reached(x, w, places, value), 1, -1));
    shape[rank - 1] = pitch;
    strides[rank - 1] = 1;
    for (int a = axes - 1; a >= 0; a--) {
        shape[1 + a] = places[a];
        strides[1 + a] = pitch * w->stride[a];
        shape[1 + axes + a] = w->kernel[a];
        strides[1 + axes + a] = pitch * w->dilation[a];
        pitch *= tn_size(y, 1 + a);
    }
    strides[0] = pitch;
    return tn_as_strided(y, shape, rank, strides, rank, 0);
}

/* x [n, c, size…] padded with `value` as far as `places` reach: what the window sees, [n, c, kernel…, places…]. */
static tn_tensor *onnx_seen(const tn_tensor *x, const onnx_window *w, const int64_t *places, double value) {
    int axes = w->axes, rank = 2 + 2 * axes;
    int64_t shape[TN_MAX_RANK] = {tn_size(x, 0), tn_size(x, 1)}, strides[TN_MAX_RANK], pitch = 1;
    tn_tensor *y = reached(x, w, places, value);
    for (int a = axes - 1; a >= 0; a--) {
        shape[2 + a] = w->kernel[a];
        strides[2 + a] = pitch * w->dilation[a];
        shape[2 + axes + a] = places[a];
        strides[2 + axes + a] = pitch * w->stride[a];
        pitch *= tn_size(y, 2 + a);
    }
    strides[1] = pitch;
    strides[0] = pitch * shape[1];
    return tn_as_strided(y, shape, rank, strides, rank, 0);
}

/* Where taps and windows lie in a flat image [size…]: `steps` apart, `counts` of them, each axis from `first`. */
static tn_tensor *offsets(int axes, const int64_t *counts, const int64_t *steps, const int64_t *first,
                          const int64_t *pitch) {
    int64_t shape[ONNX_MAX_AXES];
    tn_tensor *sum = NULL;
    for (int a = 0; a < axes; a++) {
        tn_tensor *along = tn_arange(0, (double)counts[a], 1, TN_I64);
        along = tn_add(tn_mul(along, tn_scalar_int(steps[a] * pitch[a])), tn_scalar_int(-first[a] * pitch[a]));
        for (int d = 0; d < axes; d++)
            shape[d] = d == a ? counts[a] : 1;
        along = tn_reshape(along, shape, axes);
        sum = sum ? tn_add(sum, along) : along;
    }
    return sum;
}

/* Where in x, counted through all of it, the greatest element of each window lies. */
static tn_tensor *greatest_places(const tn_tensor *x, const tn_tensor *seen, const onnx_window *w,
                                  const int64_t *places, bool column_major) {
    int64_t dims[ONNX_MAX_AXES], pitch[ONNX_MAX_AXES], plane = 1,
                                                       planes[TN_MAX_RANK] = {tn_size(x, 0), tn_size(x, 1), 1, 1, 1};
    const int64_t none[ONNX_MAX_AXES] = {0};
    int axes = w->axes, count = onnx_dims(2, 2 + axes, dims);
    for (int i = 0; i < axes; i++) {
        int a = column_major ? i : axes - 1 - i;
        pitch[a] = plane;
        plane *= tn_size(x, 2 + a);
    }
    tn_tensor *tap = tn_argmax(seen, dims, count, false);
    int64_t numel = tn_numel(tap);
    tn_tensor *taps = tn_flatten(offsets(axes, w->kernel, w->dilation, none, pitch), 0, -1);
    tn_tensor *in_window =
        tn_reshape(tn_index_select(taps, 0, tn_reshape(tap, &numel, 1)), tn_shape(tap), tn_rank(tap));
    tn_tensor *first = tn_arange(0, (double)(planes[0] * planes[1]), 1, TN_I64);
    first = tn_reshape(tn_mul(first, tn_scalar_int(plane)), planes, 2 + axes);
    return tn_add(tn_add(first, offsets(axes, places, w->stride, w->before, pitch)), in_window);
}

/* What no element is less than. */
static double least_of(tn_dtype t) {
    if (t == TN_I8) return INT8_MIN;
    return t == TN_U8 ? 0 : -INFINITY;
}

/* A window over planes, as the pooling operations take it. */
typedef struct plane_window {
    int64_t kernel[2], stride[2], dilation[2], padding[2];
    bool ceil_mode;
} plane_window;

/* Reads a window of one or two axes. The operations pad on both sides alike, and if `ceils` may have a last window that
 * ends outside; other images get their padding, of `value`, before: returns x or the padded image. */
static const tn_tensor *window_of_planes(const tn_tensor *x, const onnx_window *w, const int64_t *places, double value,
                                         bool ceils, plane_window *p) {
    int64_t after[ONNX_MAX_AXES];
    onnx_window alike = *w;
    bool even = true, even_ceiled = ceils;
    memcpy(alike.after, w->before, sizeof alike.after);
    *p = (plane_window){{1, 1}, {1, 1}, {1, 1}, {0, 0}, false};
    for (int a = 0; a < w->axes; a++) {
        int to = 2 - w->axes + a;
        int64_t size = tn_size(x, 2 + a), reach = onnx_reach(w, a);
        p->kernel[to] = w->kernel[a];
        p->stride[to] = w->stride[a];
        p->dilation[to] = w->dilation[a];
        p->padding[to] = w->before[a];
        after[a] = (places[a] - 1) * w->stride[a] + reach - w->before[a] - size;
        const bool takes = w->before[a] >= 0 && w->before[a] <= w->kernel[a] / 2;
        even &= takes && onnx_places(&alike, a, size, false) == places[a];
        even_ceiled &= takes && onnx_places(&alike, a, size, true) == places[a];
    }
    p->ceil_mode = even_ceiled && !even;
    if (even || even_ceiled) return x;
    memset(p->padding, 0, sizeof p->padding);
    return padded(x, w->axes, w->before, after, value);
}

static tn_tensor *as_line(tn_tensor *image, int axes) {
    static const int64_t last_but_one = 2;
    return axes == 2 ? image : tn_squeeze(image, &last_but_one, 1);
}

static tn_tensor *greatest_seen(const tn_tensor *x, const onnx_window *w, const int64_t *places) {
    tn_max_pool2d_options o = TN_MAX_POOL2D_DEFAULTS;
    plane_window p;
    x = window_of_planes(x, w, places, least_of(tn_dtype_of(x)), true, &p);
    memcpy(o.stride, p.stride, sizeof o.stride);
    memcpy(o.dilation, p.dilation, sizeof o.dilation);
    memcpy(o.padding, p.padding, sizeof o.padding);
    o.ceil_mode = p.ceil_mode;
    return as_line(tn_max_pool2d(w->axes == 2 ? x : as_image(x, 1), p.kernel, &o), w->axes);
}

tn_status onnx_max_pool(onnx_call *c) {
    const tn_tensor *x = onnx_in(c, 0);
    int64_t places[ONNX_MAX_AXES], dims[ONNX_MAX_AXES];
    onnx_window w;
    TRY(onnx_window_read(c, x, NULL, &w));
    TRY(places_of(c, x, &w, places));
    tn_dtype own = tn_dtype_of(x);
    if (w.axes < 3 && !onnx_wants(c, 1) && (tn_dtype_is_float(own) || own == TN_I8 || own == TN_U8))
        return onnx_put(c, 0, greatest_seen(x, &w, places));
    tn_tensor *seen = onnx_seen(x, &w, places, least_of(tn_dtype_of(x)));
    TRY(onnx_put(c, 0, tn_amax(seen, dims, onnx_dims(2, 2 + w.axes, dims), false)));
    if (!onnx_wants(c, 1)) return TN_OK;
    return onnx_put(c, 1, greatest_places(x, seen, &w, places, onnx_int(c, "storage_order", 0) != 0));
}

/* Taps of each window along an axis that count: those inside the image, or inside image and padding. */
static tn_tensor *window_counted(const onnx_window *w, int a, int64_t size, int64_t places, bool padding_counts,
                                 tn_dtype t) {
    AUTO_FREE double *v = places > 0 ? tn_mem_alloc((size_t)places * sizeof *v) : NULL;
    if (!v) return tn_failed(TN_ERR_MEMORY, "AveragePool: out of memory");
    int64_t low = padding_counts ? -w->before[a] : 0, high = padding_counts ? size + w->after[a] : size;
    for (int64_t p = 0; p < places; p++) {
        int64_t at = p * w->stride[a] - w->before[a], inside = 0;
        for (int64_t k = 0; k < w->kernel[a]; k++, at += w->dilation[a])
            inside += at >= low && at < high;
        v[p] = (double)tn_max64(inside, 1);
    }
    int64_t shape[ONNX_MAX_AXES] = {places, 1, 1};
    return onnx_from_doubles(v, shape, w->axes - a, t);
}

/* Of planes by the operation that has a kernel for them. */
static tn_tensor *window_sums(const tn_tensor *x, const onnx_window *w, const int64_t *places) {
    tn_avg_pool2d_options o = TN_AVG_POOL2D_DEFAULTS;
    int64_t dims[ONNX_MAX_AXES];
    bool planes = w->axes < 3;
    plane_window p;
    for (int a = 0; a < w->axes; a++)
        planes &= w->dilation[a] == 1;
    if (!planes) return tn_sum(onnx_seen(x, w, places, 0), dims, onnx_dims(2, 2 + w->axes, dims), false);
    x = window_of_planes(x, w, places, 0, false, &p);
    memcpy(o.stride, p.stride, sizeof o.stride);
    memcpy(o.padding, p.padding, sizeof o.padding);
    o.divisor_override = 1;
    return as_line(tn_avg_pool2d(w->axes == 2 ? x : as_image(x, 1), p.kernel, &o), w->axes);
}

tn_status onnx_average_pool(onnx_call *c) {
    const tn_tensor *x = onnx_in(c, 0);
    int64_t places[ONNX_MAX_AXES], taps = 1;
    bool padding_counts = onnx_int(c, "count_include_pad", 0) != 0, padding = false;
    onnx_window w;
    TRY(onnx_window_read(c, x, NULL, &w));
    TRY(places_of(c, x, &w, places));
    tn_dtype wide = tn_dtype_of(x) == TN_F64 ? TN_F64 : TN_F32;
    for (int a = 0; a < w.axes; a++) {
        int64_t end = (places[a] - 1) * w.stride[a] + onnx_reach(&w, a) - w.before[a];
        taps *= w.kernel[a];
        padding |= padding_counts ? end > tn_size(x, 2 + a) + w.after[a] : w.before[a] || end > tn_size(x, 2 + a);
    }
    tn_tensor *y = window_sums(onnx_as(x, wide), &w, places);
    if (!padding) return onnx_put(c, 0, tn_cast(tn_mul_scalar(y, 1.0 / (double)taps), tn_dtype_of(x)));
    for (int a = 0; a < w.axes; a++)
        y = tn_div(y, window_counted(&w, a, tn_size(x, 2 + a), places[a], padding_counts, wide));
    return onnx_put(c, 0, tn_cast(y, tn_dtype_of(x)));
}

tn_status onnx_lp_pool(onnx_call *c) {
    const tn_tensor *x = onnx_in(c, 0);
    int64_t places[ONNX_MAX_AXES], dims[ONNX_MAX_AXES];
    onnx_window w;
    TRY(onnx_window_read(c, x, NULL, &w));
    TRY(places_of(c, x, &w, places));
    tn_tensor *seen = onnx_seen(x, &w, places, 0);
    return onnx_put(c, 0, tn_norm(seen, (double)onnx_int(c, "p", 2), dims, onnx_dims(2, 2 + w.axes, dims), false));
}

/* Places are those of the image that the attributes yield; output_shape is this image with zeros after. */
tn_status onnx_max_unpool(onnx_call *c) {
    const tn_tensor *x = onnx_in(c, 0);
    int64_t shape[TN_MAX_RANK], flat[1], numel = tn_numel(x), *wanted = NULL, count = 0;
    int64_t none[ONNX_MAX_AXES] = {0}, behind[ONNX_MAX_AXES];
    onnx_window w;
    TRY(read_window(c, x, NULL, &w));
    TRY(read_pads(c, &w));
    memcpy(shape, tn_shape(x), (size_t)tn_rank(x) * sizeof *shape);
    for (int a = 0; a < w.axes; a++)
        shape[2 + a] = (shape[2 + a] - 1) * w.stride[a] + w.kernel[a] - w.before[a] - w.after[a];
    tn_tensor *image = tn_zeros(shape, tn_rank(x), tn_dtype_of(x));
    TRY(tn_status_of(image));
    flat[0] = tn_numel(image);
    image = tn_scatter(tn_reshape(image, flat, 1), 0, tn_reshape(onnx_in(c, 1), &numel, 1), tn_reshape(x, &numel, 1));
    image = tn_reshape(image, shape, tn_rank(x));
    TRY(onnx_read_ints(c, 2, &wanted, &count, TN_MAX_RANK));
    for (int a = 0; a < w.axes; a++)
        behind[a] = count == tn_rank(x) ? wanted[2 + a] - shape[2 + a] : 0;
    tn_mem_free(wanted);
    return onnx_put(c, 0, padded(image, w.axes, none, behind, 0));
}
