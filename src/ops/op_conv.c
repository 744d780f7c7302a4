/* op_conv.c — convolution of images (and, with a height of 1, of sequences), and the windows of convolution and
 * pooling. */
#include <math.h>
#include <string.h>

#include "ops/ops_common.h"

/* ==== windows ===================================================================================================== */

/* ---- shapes ------------------------------------------------------------------------------------------------------ */

int64_t tn_window_reach(const tn_window *w, int axis) { return w->dilation[axis] * (w->kernel[axis] - 1) + 1; }

int64_t tn_window_out_size(const tn_window *w, int axis, int64_t size, bool ceil_mode) {
    int64_t room = size + 2 * w->padding[axis] - tn_window_reach(w, axis), stride = w->stride[axis];
    if (room < 0) return -1;
    int64_t count = (ceil_mode ? room + stride - 1 : room) / stride + 1;
    return ceil_mode && (count - 1) * stride >= size + w->padding[axis] ? count - 1 : count;
}

tn_status tn_window_check(const tn_infer *c, const tn_window *w, int first_axis) {
    for (int a = first_axis; a < 2; a++) {
        int64_t most = tn_max64(tn_max64(w->kernel[a], w->stride[a]), tn_max64(w->padding[a], w->dilation[a]));
        bool fine = w->kernel[a] >= 1 && w->stride[a] >= 1 && w->dilation[a] >= 1 && w->padding[a] >= 0;
        if (fine && most <= INT32_MAX) continue;
        return tn_fail(TN_ERR_ARGUMENT,
                       "%s: kernel %lld, stride %lld, padding %lld, dilation %lld: all except padding must be at least "
                       "1, padding at least 0, and none above 2147483647",
                       c->row->name, (long long)w->kernel[a], (long long)w->stride[a], (long long)w->padding[a],
                       (long long)w->dilation[a]);
    }
    return TN_OK;
}

tn_status tn_window_too_large(const tn_infer *c, const tn_window *w, int axis, int64_t size) {
    return tn_fail(TN_ERR_SHAPE,
                   "%s: a kernel that spans %lld does not fit an extent of %lld with padding %lld on both sides",
                   c->row->name, (long long)tn_window_reach(w, axis), (long long)size, (long long)w->padding[axis]);
}

/* ---- images ------------------------------------------------------------------------------------------------------ */

tn_status tn_nchw_check(const tn_infer *c, int axes) {
    const tn_node *x = c->in[0];
    char text[96];
    if (x->rank == axes + 1 || x->rank == axes + 2) return TN_OK;
    return tn_fail(TN_ERR_SHAPE, "%s: the input must be [batch, channels, %s], or that without the batch; it is %s",
                   c->row->name, axes == 2 ? "height, width" : "length", tn_shape_text(x, text, sizeof text));
}

int tn_nchw_channel_dim(const tn_node *x, int axes) { return x->rank - axes - 1; }

static void set_dim(tn_infer *c, int dim, int64_t extent, int symbol) {
    c->shape[dim] = extent;
    c->symbol[dim] = (uint8_t)symbol;
}

void tn_nchw_infer(tn_infer *c, int axes, int64_t channels, const int64_t *size) {
    const tn_node *x = c->in[0];
    int at = tn_nchw_channel_dim(x, axes);
    c->dtype = (tn_dtype)x->dtype;
    c->rank = x->rank;
    if (at) set_dim(c, 0, x->shape[0], x->symbol[0]);
    set_dim(c, at, channels, 0);
    for (int a = 0; a < axes; a++)
        set_dim(c, at + 1 + a, size[a], 0);
}

tn_node *tn_b_as_nchw(tn_build *b, tn_node *x, int axes) {
    if (!x || (x->rank == 4 && axes == 2)) return x;
    int at = tn_nchw_channel_dim(x, axes);
    int64_t shape[4] = {at ? x->shape[0] : 1, x->shape[at], axes == 2 ? x->shape[at + 1] : 1, x->shape[x->rank - 1]};
    return tn_b_reshape(b, x, shape, 4);
}

/* ---- what the window sees ---------------------------------------------------------------------------------------- */

tn_node *tn_b_padded(tn_build *b, tn_node *x, const int64_t pads[4], double value) {
    if (pads[0] > 0 || pads[1] > 0 || pads[2] > 0 || pads[3] > 0) return tn_b_pad(b, x, pads, 4, value);
    for (int a = 0; a < 2 && x; a++) {
        const int64_t *cut = pads + 2 * (1 - a);
        if (cut[0] || cut[1]) x = tn_b_slice(b, x, 2 + a, -cut[0], x->shape[2 + a] + cut[1], 1);
    }
    return x;
}

static const int64_t window_none[2] = {0, 0}, ones[2] = {1, 1};

/* A window of one tap moves nothing: every stride-th element, as [n, c, 1, 1, …]. */
static tn_node *one_tap(tn_build *b, tn_node *x, const int64_t *stride) {
    for (int a = 0; a < 2 && x; a++)
        if (stride[a] > 1) x = tn_b_slice(b, x, 2 + a, 0, x->shape[2 + a], stride[a]);
    return x ? tn_b_reshape(b, x, (int64_t[]){x->shape[0], x->shape[1], 1, 1, x->shape[2], x->shape[3]}, 6) : NULL;
}

tn_node *tn_b_im2col(tn_build *b, tn_node *x, const tn_window *w, const int64_t *out_size, double value) {
    int64_t pads[4];
    if (!x) return NULL;
    for (int a = 0; a < 2; a++) {
        int64_t end =
            (out_size[a] - 1) * w->stride[a] + tn_window_reach(w, a); /* of what is seen, in the padded image */
        int64_t behind = end - w->padding[a] - x->shape[2 + a];
        pads[2 * (1 - a)] = w->padding[a];
        pads[2 * (1 - a) + 1] =
            behind < 0 && -behind < w->stride[a] ? 0 : behind; /* the rest is too short for a step */
    }
    x = tn_b_padded(b, x, pads, value);
    if (w->kernel[0] == 1 && w->kernel[1] == 1) return one_tap(b, x, w->stride);
    return tn_b_unfold2d(b, x, w->kernel, w->stride, window_none, w->dilation, value);
}

/* ---- the way back ------------------------------------------------------------------------------------------------ */

tn_node *tn_b_col2im(tn_build *b, tn_node *seen, const tn_window *w, const int64_t *size) {
    int64_t whole[2], pads[4];
    if (!seen) return NULL;
    for (int a = 0; a < 2; a++) {
        whole[a] = (seen->shape[4 + a] - 1) * w->stride[a] + tn_window_reach(w, a);
        pads[2 * (1 - a)] = -w->padding[a];
        pads[2 * (1 - a) + 1] = size[a] + w->padding[a] - whole[a];
    }
    tn_node *image = tn_b_fold2d(b, seen, w->kernel, w->stride, window_none, w->dilation, whole);
    return tn_b_padded(b, image, pads, 0.0);
}

bool tn_window_has_phases(const tn_window *w) {
    for (int a = 0; a < 2; a++)
        if (w->stride[a] > TN_MAX_PHASES || (w->stride[a] > 1 && w->dilation[a] > 1)) return false;
    return true;
}

/* Pixel y = number + stride·i lies in the padded image at stride·(i + skip) + first, and tap first + stride·t of the
 * result at i + skip - t covers it. Taps run downwards, so the window over the results
 * begins taps - 1 before i + skip. */
tn_phase tn_phase_of(const tn_window *w, const int64_t *number, const int64_t *size, const int64_t *out_size) {
    tn_phase p;
    for (int a = 0; a < 2; a++) {
        int64_t stride = w->stride[a], at = number[a] + w->padding[a], skip = at / stride;
        p.first[a] = at % stride;
        p.taps[a] = p.first[a] < w->kernel[a] ? tn_ceil_div(w->kernel[a] - p.first[a], stride) : 0;
        p.pixels[a] = tn_ceil_div(size[a], stride);
        p.spacing[a] = stride == 1 ? w->dilation[a] : 1;
        p.pads[2 * (1 - a)] = (p.taps[a] - 1) * p.spacing[a] - skip;
        p.pads[2 * (1 - a) + 1] = p.pixels[a] + skip - out_size[a];
    }
    return p;
}

tn_node *tn_b_im2col_phase(tn_build *b, tn_node *y, const tn_phase *p, double value) {
    y = tn_b_padded(b, y, p->pads, value);
    if (p->taps[0] == 1 && p->taps[1] == 1) return one_tap(b, y, ones);
    return tn_b_unfold2d(b, y, p->taps, ones, window_none, p->spacing, value);
}

/* Several parts as one, their elements alternating along dim. */
static tn_node *alternate(tn_build *b, tn_node *const *parts, int64_t count, int dim) {
    int64_t shape[TN_MAX_RANK];
    if (count == 1 || !parts[0]) return parts[0];
    for (int d = 0; d < 4; d++)
        shape[d] = parts[0]->shape[d];
    shape[dim] *= count;
    return tn_b_reshape(b, tn_b_stack(b, parts, (int)count, dim + 1), shape, 4);
}

tn_node *tn_b_join_phases(tn_build *b, tn_node *const *parts, const tn_window *w, const int64_t *size) {
    tn_node *rows[TN_MAX_PHASES];
    for (int64_t k = 0; k < w->stride[0]; k++)
        rows[k] = alternate(b, parts + k * w->stride[1], w->stride[1], 3);
    tn_node *y = alternate(b, rows, w->stride[0], 2);
    for (int a = 0; a < 2; a++)
        if (y && y->shape[2 + a] != size[a]) y = tn_b_slice(b, y, 2 + a, 0, size[a], 1);
    return y;
}

/* ==== convolution ================================================================================================= */
/* A convolution is a product of the weight with what its window sees at each place (ops_common.h). Its gradients are a
 * transposed convolution and a third op, the product over all output pixels that yields the weight's; each of the three
 * has the other two as its gradients, so they can be differentiated for ever.
 *
 * All of them come down to three primitives. conv2d_forward is the product of filters with windows: a convolution is
 * one. conv2d_dgrad, the way back, is one for each of its phases. conv2d_wgrad is the product over all output pixels.
 * Where there is a kernel for them no window is ever made; elsewhere they are what their compositions say, to the same
 * bits. */

/* ---- shapes ------------------------------------------------------------------------------------------------------ */

static tn_status check_dtypes(const tn_infer *c, bool integers) {
    tn_dtype t = (tn_dtype)c->in[0]->dtype;
    for (int i = 0; i < c->n_in; i++) {
        if (!c->in[i]) continue;
        if (!integers || tn_dtype_is_float(t)) TRY(tn_need_float(c, i));
        if (t == TN_BOOL) return tn_refuse_dtype(c, i, "floating point or an integer type");
        if (c->in[i]->dtype != t)
            return tn_fail(TN_ERR_DTYPE, "%s: dtypes %s and %s differ; cast one of them", c->row->name,
                           tn_dtype_name(t), tn_dtype_name((tn_dtype)c->in[i]->dtype));
    }
    return TN_OK;
}

static tn_status check_same_dtype(const tn_infer *c) { return check_dtypes(c, false); }
/* The public convolutions take integers too. */
static tn_status check_numbers(const tn_infer *c) { return check_dtypes(c, true); }

static tn_status check_bias(const tn_infer *c, int64_t channels) {
    const tn_node *bias = c->in[2];
    char text[96];
    if (!bias || (bias->rank == 1 && bias->shape[0] == channels)) return TN_OK;
    return tn_fail(TN_ERR_SHAPE, "%s: the bias must be [%lld]; it is %s", c->row->name, (long long)channels,
                   tn_shape_text(bias, text, sizeof text));
}

/* Attributes of a convolution over `axes` axes: stride, padding, dilation (one an axis), groups. */
static tn_window conv_window(const int64_t *i, const tn_node *weight, int axes) {
    tn_window w = {.kernel = {1, 1}, .stride = {1, 1}, .dilation = {1, 1}};
    for (int a = 0; a < axes; a++) {
        int to = 2 - axes + a;
        w.kernel[to] = weight->shape[2 + a];
        w.stride[to] = i[a];
        w.padding[to] = i[axes + a];
        w.dilation[to] = i[2 * axes + a];
    }
    return w;
}

static int64_t conv_groups(const int64_t *i, int axes) { return i[3 * axes]; }

/* By division: groups may be any number. */
static bool groups_fit(int64_t channels, const tn_node *weight, int64_t groups) {
    if (groups < 1 || channels % groups != 0 || weight->shape[0] % groups != 0) return false;
    return channels / groups == weight->shape[1];
}

/* The same of a weight [in channels, out channels / groups, …], which may have no channels, so that any number divides
 * them. */
static bool groups_spread(const tn_node *weight, int64_t groups) {
    return groups >= 1 && weight->shape[0] % groups == 0 && weight->shape[1] <= INT64_MAX / groups;
}

static tn_status check_conv_channels(const tn_infer *c, int axes) {
    const tn_node *x = c->in[0], *w = c->in[1];
    int64_t groups = conv_groups(c->attrs->i, axes), channels = x->shape[tn_nchw_channel_dim(x, axes)];
    char xt[96], wt[96];
    if (groups_fit(channels, w, groups)) return TN_OK;
    return tn_fail(TN_ERR_SHAPE,
                   "%s: input %s, weight %s and %lld groups do not fit together: the weight must be [out_channels, "
                   "in_channels / groups, kernel], and groups must divide both channel counts",
                   c->row->name, tn_shape_text(x, xt, sizeof xt), tn_shape_text(w, wt, sizeof wt), (long long)groups);
}

static tn_status infer_conv(tn_infer *c, int axes) {
    const tn_node *x = c->in[0], *weight = c->in[1];
    char text[96];
    int64_t size[2];
    TRY(check_numbers(c));
    TRY(tn_nchw_check(c, axes));
    if (weight->rank != axes + 2)
        return tn_fail(TN_ERR_SHAPE, "%s: the weight must have %d dimensions; it is %s", c->row->name, axes + 2,
                       tn_shape_text(weight, text, sizeof text));
    TRY(check_conv_channels(c, axes));
    TRY(check_bias(c, weight->shape[0]));
    tn_window w = conv_window(c->attrs->i, weight, axes);
    TRY(tn_window_check(c, &w, 2 - axes));
    for (int a = 0; a < axes; a++) {
        int64_t extent = x->shape[x->rank - axes + a];
        size[a] = tn_window_out_size(&w, 2 - axes + a, extent, false);
        if (size[a] < 0) return tn_window_too_large(c, &w, 2 - axes + a, extent);
    }
    tn_nchw_infer(c, axes, weight->shape[0], size);
    return TN_OK;
}

static tn_status infer_conv1d(tn_infer *c) { return infer_conv(c, 1); }
static tn_status infer_conv2d(tn_infer *c) { return infer_conv(c, 2); }

/* ---- the three products ------------------------------------------------------------------------------------------ */

/* One filter a channel: a product of matrices would be all edges, so it is a sum over the window. */
static bool depthwise(const tn_node *weight, int64_t groups) {
    return groups > 1 && weight->shape[0] == groups && weight->shape[1] == 1;
}

/* [n, channels, taps, taps, out_h, out_w] as matrices [n, (groups,) channels of a group · taps, output pixels]. */
static tn_node *columns(tn_build *b, tn_node *seen, int64_t groups) {
    if (!seen) return NULL;
    const int64_t *s = seen->shape;
    int64_t depth = s[1] / groups * s[2] * s[3], count = s[4] * s[5];
    if (groups == 1) return tn_b_reshape(b, seen, (int64_t[]){s[0], depth, count}, 3);
    return tn_b_reshape(b, seen, (int64_t[]){s[0], groups, depth, count}, 4);
}

/* Images [n, channels, h, w] as such matrices. */
static tn_node *pixels(tn_build *b, tn_node *y, int64_t groups) {
    if (!y) return NULL;
    const int64_t *s = y->shape;
    if (groups == 1) return tn_b_reshape(b, y, (int64_t[]){s[0], s[1], s[2] * s[3]}, 3);
    return tn_b_reshape(b, y, (int64_t[]){s[0], groups, s[1] / groups, s[2] * s[3]}, 4);
}

/* A weight [channels, …] as matrices [(groups,) channels of a group, the rest]. */
static tn_node *filters(tn_build *b, tn_node *weight, int64_t groups) {
    int64_t count = weight->shape[0] / groups, depth = weight->shape[1] * weight->shape[2] * weight->shape[3];
    if (groups == 1) return tn_b_reshape(b, weight, (int64_t[]){count, depth}, 2);
    return tn_b_reshape(b, weight, (int64_t[]){groups, count, depth}, 3);
}

/* The window of filters [.., .., kernel, kernel]; of each number two. */
static tn_window filter_taps(const tn_node *weight, const int64_t *stride, const int64_t *before,
                             const int64_t *dilation) {
    tn_window w;
    for (int a = 0; a < 2; a++) {
        w.kernel[a] = weight->shape[2 + a];
        w.stride[a] = stride[a];
        w.padding[a] = before[a];
        w.dilation[a] = dilation[a];
    }
    return w;
}

/* Σ over k of x·y: of halves in f32 if the sums are to be `wide`. */
/* Sums of whole numbers are those modulo the type's range. */
static tn_node *product(tn_build *b, tn_node *x, tn_node *y, bool wide) {
    if (x && !tn_dtype_is_float((tn_dtype)x->dtype)) return tn_b_matmul(b, x, y);
    return wide ? tn_b_matmul_wide(b, x, y) : tn_b_matmul_batched(b, x, y);
}

/* The convolution by its definition: a product of the filters with what windows see. Of `w` the kernel is not read. */
static tn_node *conv_forward_im2col(tn_build *b, tn_node *x, tn_node *weight, const tn_window *w, int64_t groups,
                                    const int64_t *out_size, bool wide) {
    if (!x || !weight) return NULL;
    tn_window window = filter_taps(weight, w->stride, w->padding, w->dilation);
    if (depthwise(weight, groups) && tn_dtype_is_float((tn_dtype)x->dtype)) { /* sums are f32 */
        tn_node *y = tn_b_conv2d_forward(b, tn_b_as_f32(b, x), tn_b_as_f32(b, weight), out_size, w->stride, w->padding,
                                         w->dilation, groups);
        return wide ? y : tn_b_cast_like(b, y, x);
    }
    tn_node *seen = tn_b_im2col(b, x, &window, out_size, 0.0);
    tn_node *y = product(b, filters(b, weight, groups), columns(b, seen, groups), wide);
    return tn_b_view(b, y, (int64_t[]){x->shape[0], weight->shape[0], out_size[0], out_size[1]}, 4);
}

/* Does tap `tap` of an axis see the image from any output pixel? */
static bool tap_sees(const tn_window *w, int axis, int64_t tap, int64_t size, int64_t out_size) {
    const int64_t stride = w->stride[axis], first = tap * w->dilation[axis] - w->padding[axis];
    const int64_t last = first + (out_size - 1) * stride;
    const int64_t inside = first < 0 ? first + tn_ceil_div(-first, stride) * stride : first;
    return inside < size && inside <= last;
}

/* The window without the taps at its ends that see only zeros, as those of a widely dilated window do on a small image:
 * they take no part in the sums. At least one tap stays. Changes w's padding; returns the filters that are left. */
static tn_node *seeing_taps(tn_build *b, const tn_node *x, tn_node *weight, tn_window *w, const int64_t *out_size) {
    for (int a = 0; a < 2 && weight; a++) {
        int64_t low = 0, high = weight->shape[2 + a];
        if (w->dilation[a] == 1) continue;
        while (high - low > 1 && !tap_sees(w, a, low, x->shape[2 + a], out_size[a]))
            low++;
        while (high - low > 1 && !tap_sees(w, a, high - 1, x->shape[2 + a], out_size[a]))
            high--;
        if (high - low == weight->shape[2 + a]) continue;
        weight = tn_b_slice(b, weight, 2 + a, low, high, 1);
        w->padding[a] -= low * w->dilation[a];
    }
    return weight;
}

bool tn_conv_in_f32(const tn_node *n) {
    bool own = n->dtype == TN_BF16 && tn_cpu().bf16;
    return tn_dtype_is_half(n->dtype) && n->device->is_cpu && !n->device->is_engine && !own;
}

/* The convolution: x [n, channels, h, w] → [n, out, output pixels], in x's dtype or, for halves, `wide`: in f32. */
static tn_node *conv_forward(tn_build *b, tn_node *x, tn_node *weight, const tn_window *w, int64_t groups,
                             const int64_t *out_size, bool wide) {
    if (!x || !weight) return NULL;
    tn_window seen = *w;
    weight = seeing_taps(b, x, weight, &seen, out_size);
    if (wide && tn_conv_in_f32(x)) {
        x = tn_b_as_f32(b, x);
        weight = tn_b_as_f32(b, weight);
    } else if (wide) {
        return conv_forward_im2col(b, x, weight, &seen, groups, out_size, true);
    }
    return tn_b_conv2d_forward(b, x, weight, out_size, seen.stride, seen.padding, seen.dilation, groups);
}

/* Output pixels [out, out + count) of an axis, which see the image by taps [first, end). */
typedef struct tap_band {
    int64_t out, count, first, end;
} tap_band;

enum { MOST_BANDS = 5 };

/* How often the taps of large filters may be packed for all bands: more costs more than the steps that are spared
 * (measured). */
static double most_copies(const tn_node *weight) {
    enum { LARGE = 1 << 18 };
    return weight && tn_node_numel(weight) < LARGE ? INFINITY : 3;
}

/* The bands of an axis; 0: there are too many, they spare less than a quarter of the steps, or they have more than
 * `*copies` times the taps of the window, which all are packed. *copies is divided by what they have. */
static int tap_bands(const tn_window *w, int axis, int64_t size, int64_t taps, int64_t out_size, tap_band *band,
                     double *copies) {
    int count = 0;
    int64_t seen = 0, packed = 0;
    for (int64_t u = 0; u < out_size && w->dilation[axis] > 1; u++) {
        const int64_t begin = u * w->stride[axis] - w->padding[axis];
        tap_band at = {u, 1, 0, taps};
        while (at.end - at.first > 1 && begin + at.first * w->dilation[axis] < 0)
            at.first++;
        while (at.end - at.first > 1 && begin + (at.end - 1) * w->dilation[axis] >= size)
            at.end--;
        seen += at.end - at.first;
        tap_band *last = count > 0 ? &band[count - 1] : NULL;
        if (last && last->first == at.first && last->end == at.end)
            last->count++;
        else if (count == MOST_BANDS)
            return 0;
        else
            band[count++] = at;
    }
    for (int k = 0; k < count; k++)
        packed += band[k].end - band[k].first;
    if (count < 2 || 4 * seen > 3 * taps * out_size || (double)packed > *copies * (double)taps) return 0;
    *copies *= (double)taps / (double)packed;
    return count;
}

/* The convolution of a widely dilated window, for bands of output pixels of `axis` and the axes after it: the taps of
 * a band that see only padding from all of it take no part. */
static tn_node *conv_in_bands(tn_build *b, tn_node *x, tn_node *weight, const tn_window *w, int64_t groups,
                              const int64_t *out_size, bool wide, int axis, double copies) {
    const int64_t few_steps = 1 << 22;
    tap_band band[MOST_BANDS];
    if (!x || !weight) return NULL;
    if (axis == 2) return conv_forward(b, x, weight, w, groups, out_size, wide);
    const int64_t *s = weight->shape;
    const double steps = (double)(x->shape[0] * out_size[0] * out_size[1]) * (double)tn_node_numel(weight);
    int count = 0;
    if (!depthwise(weight, groups) && steps >= (double)few_steps)
        count = tap_bands(w, axis, x->shape[2 + axis], s[2 + axis], out_size[axis], band, &copies);
    if (count == 0) return conv_in_bands(b, x, weight, w, groups, out_size, wide, axis + 1, copies);
    tn_node *part[MOST_BANDS];
    for (int k = 0; k < count; k++) {
        tn_window own = *w;
        int64_t size[2] = {out_size[0], out_size[1]};
        own.padding[axis] -= band[k].out * w->stride[axis] + band[k].first * w->dilation[axis];
        size[axis] = band[k].count;
        tn_node *taps = tn_b_slice(b, weight, 2 + axis, band[k].first, band[k].end, 1);
        part[k] = conv_in_bands(b, x, taps, &own, groups, size, wide, axis + 1, copies);
    }
    return tn_b_cat(b, part, count, 2 + axis);
}

/* The taps of a phase, from the last to the first. */
static tn_node *phase_taps(tn_build *b, tn_node *weight, const tn_window *w, const tn_phase *p) {
    for (int a = 0; a < 2; a++) {
        int64_t last = p->first[a] + w->stride[a] * (p->taps[a] - 1);
        bool all = w->kernel[a] == 1;
        if (!all) weight = tn_b_slice(b, weight, 2 + a, last, INT64_MIN, -w->stride[a]);
    }
    return weight;
}

/* weight [groups · in, out, taps, taps] as filters of the other direction: [groups · out, in, taps, taps]. */
static tn_node *turned_filters(tn_build *b, tn_node *weight, int64_t groups) {
    if (!weight) return NULL;
    const int64_t *s = weight->shape;
    if (groups == 1) return tn_b_permute(b, weight, (int64_t[]){1, 0, 2, 3}, 4);
    int64_t in = s[0] / groups;
    tn_node *split = tn_b_reshape(b, weight, (int64_t[]){groups, in, s[1], s[2], s[3]}, 5);
    tn_node *turned = tn_b_permute(b, split, (int64_t[]){0, 2, 1, 3, 4}, 5);
    return tn_b_reshape(b, turned, (int64_t[]){groups * s[1], in, s[2], s[3]}, 4);
}

static tn_node *spread_phase(tn_build *b, tn_node *y, tn_node *weight, const tn_window *w, int64_t groups,
                             const tn_phase *p, bool wide) {
    int64_t shape[4] = {y->shape[0], weight->shape[1] * groups, p->pixels[0], p->pixels[1]};
    if (tn_phase_is_empty(p)) {
        tn_node *zero = tn_b_const(b, 0.0, y);
        return tn_b_expand(b, wide ? tn_b_as_f32(b, zero) : zero, shape, 4);
    }
    tn_node *taps = turned_filters(b, phase_taps(b, weight, w, p), groups);
    tn_window over = {.stride = {1, 1}, .padding = {p->pads[2], p->pads[0]}};
    memcpy(over.dilation, p->spacing, sizeof over.dilation);
    return conv_forward(b, y, taps, &over, groups, p->pixels, wide);
}

static tn_node *spread_in_phases(tn_build *b, tn_node *y, tn_node *weight, const tn_window *w, int64_t groups,
                                 const int64_t *size, bool wide) {
    tn_node *parts[TN_MAX_PHASES * TN_MAX_PHASES];
    for (int64_t k = 0; k < w->stride[0] * w->stride[1]; k++) {
        int64_t number[2] = {k / w->stride[1], k % w->stride[1]};
        tn_phase p = tn_phase_of(w, number, size, y->shape + 2);
        parts[k] = spread_phase(b, y, weight, w, groups, &p, wide);
    }
    return tn_b_join_phases(b, parts, w, size);
}

/* What each pixel of y contributes to its window, summed. */
static tn_node *spread_and_fold(tn_build *b, tn_node *y, tn_node *weight, const tn_window *w, int64_t groups,
                                const int64_t *size, bool wide) {
    const int64_t *s = weight->shape;
    tn_node *each = product(b, tn_b_transpose(b, filters(b, weight, groups), -2, -1), pixels(b, y, groups), wide);
    int64_t shape[6] = {y->shape[0], s[1] * groups, s[2], s[3], y->shape[2], y->shape[3]};
    return tn_b_col2im(b, tn_b_view(b, each, shape, 6), w, size);
}

static tn_node *spread_im2col(tn_build *b, tn_node *y, tn_node *weight, const tn_window *w, int64_t groups,
                              const int64_t *size, bool wide) {
    if (!y || !weight) return NULL;
    bool phases = tn_window_has_phases(w) && tn_dtype_is_float((tn_dtype)y->dtype);
    return (phases ? spread_in_phases : spread_and_fold)(b, y, weight, w, groups, size, wide);
}

/* The transposed convolution: y [n, groups · in, output pixels] → images of `size`, in y's dtype or `wide`. */
static tn_node *spread_conv(tn_build *b, tn_node *y, tn_node *weight, const tn_window *w, int64_t groups,
                            const int64_t *size, bool wide) {
    if (wide && tn_conv_in_f32(y)) {
        y = tn_b_as_f32(b, y);
        weight = tn_b_as_f32(b, weight);
    } else if (wide) {
        return spread_im2col(b, y, weight, w, groups, size, true);
    }
    return tn_b_conv2d_dgrad(b, y, weight, size, w->stride, w->padding, w->dilation, groups);
}

/* Matrices [n, (groups,) rows, output pixels] as [(groups,) rows, n · output pixels]: one chain through the output
 * pixels of all images. */
static tn_node *pixels_last(tn_build *b, tn_node *m) {
    if (!m) return NULL;
    const int64_t *s = m->shape;
    if (m->rank == 3)
        return tn_b_reshape(b, tn_b_permute(b, m, (int64_t[]){1, 0, 2}, 3), (int64_t[]){s[1], s[0] * s[2]}, 2);
    tn_node *turned = tn_b_permute(b, m, (int64_t[]){1, 2, 0, 3}, 4);
    return tn_b_reshape(b, turned, (int64_t[]){s[1], s[2], s[0] * s[3]}, 3);
}

/* The product over all output pixels: x [n, channels, h, w] and y [n, out, output pixels] → [out, channels / groups,
 * kernel]. */
static tn_node *collect(tn_build *b, tn_node *x, tn_node *y, const tn_window *w, int64_t groups, const tn_node *like) {
    if (!x || !y) return NULL;
    tn_node *seen = tn_b_im2col(b, x, w, y->shape + 2, 0.0);
    if (depthwise(like, groups)) {
        tn_node *each = tn_b_reshape(b, y, (int64_t[]){y->shape[0], groups, 1, 1, y->shape[2], y->shape[3]}, 6);
        return tn_b_view(b, tn_b_sum(b, tn_b_mul(b, seen, each), (int64_t[]){0, 4, 5}, 3, false), like->shape, 4);
    }
    tn_node *taps = tn_b_transpose(b, pixels_last(b, columns(b, seen, groups)), -2, -1);
    return tn_b_view(b, tn_b_matmul_batched(b, pixels_last(b, pixels(b, y, groups)), taps), like->shape, 4);
}

/* To sums of halves the bias is added before they are rounded. */
static bool wants_wide(const tn_node *n) { return n->in[2] && tn_dtype_is_half(n->dtype); }

/* n's result, of the sums y. */
static tn_node *add_bias(tn_build *b, const tn_node *n, tn_node *y) {
    tn_node *bias = n->in[2];
    if (!bias) return y;
    tn_node *channels = tn_b_reshape(b, tn_b_as_f32(b, bias), (int64_t[]){bias->shape[0], 1, 1}, 3);
    return tn_b_cast_like(b, tn_b_add(b, y, channels), bias);
}

static tn_node *bias_gradient(tn_build *b, const tn_node *n, tn_node *dy) {
    int channels = tn_nchw_channel_dim(n, 2), count = 0;
    int64_t dims[3];
    for (int d = 0; d < n->rank; d++)
        if (d != channels) dims[count++] = d;
    return tn_b_sum(b, dy, dims, count, false);
}

/* ---- conv2d_forward ---------------------------------------------------------------------------------------------- */

static tn_status check_filters(const tn_infer *c, int64_t groups) {
    const tn_node *x = c->in[0], *weight = c->in[1];
    char xt[96], wt[96];
    if (x->rank == 4 && weight->rank == 4 && groups_fit(x->shape[1], weight, groups)) return TN_OK;
    return tn_fail(TN_ERR_SHAPE, "%s: input %s, weight %s and %lld groups do not fit together", c->row->name,
                   tn_shape_text(x, xt, sizeof xt), tn_shape_text(weight, wt, sizeof wt), (long long)groups);
}

/* Before the first element of an axis: rows and columns that are zero, or if negative are left out. */
static tn_window filter_window(const int64_t *i, const tn_node *weight) {
    return filter_taps(weight, i + TN_CONV2D_FORWARD_STRIDE, i + TN_CONV2D_FORWARD_PAD_BEFORE,
                       i + TN_CONV2D_FORWARD_DILATION);
}

static tn_status infer_conv2d_forward(tn_infer *c) {
    TRY(check_same_dtype(c));
    TRY(check_filters(c, c->attrs->i[TN_CONV2D_FORWARD_GROUPS]));
    tn_nchw_infer(c, 2, c->in[1]->shape[0], c->attrs->i + TN_CONV2D_FORWARD_OUT_SIZE);
    return TN_OK;
}

static tn_node *compose_conv2d_forward(tn_build *b, const tn_node *n) {
    tn_node *x = n->in[0], *weight = n->in[1];
    const int64_t groups = n->i[TN_CONV2D_FORWARD_GROUPS];
    tn_window w = filter_window(n->i, weight);
    if (depthwise(weight, groups) && !tn_dtype_is_half(n->dtype)) return tn_b_self(n); /* what it lowers to */
    return conv_forward_im2col(b, x, weight, &w, groups, n->shape + 2, false);
}

/* Of one filter a channel: a chain over the taps of the window. */
static int loops_conv2d_forward(const tn_node *n, int64_t extent[TN_MAX_RANK]) {
    memcpy(extent, n->in[1]->shape + 2, 2 * sizeof *extent);
    return 2;
}

static kir_val lower_conv2d_forward(tn_lower *lw, const tn_node *n, const kir_aff *at) {
    const tn_node *x = n->in[0], *weight = n->in[1];
    const kir_aff *tap = at + 4, filter[4] = {at[1], kir_aff_const(0), tap[0], tap[1]};
    tn_window w = filter_window(n->i, weight);
    kir_aff in[4] = {at[0], at[1]};
    kir_val inside = KIR_NONE;
    for (int a = 0; a < 2; a++) {
        kir_aff first = tn_aff_scale(lw, &at[2 + a], w.stride[a]), step = tn_aff_scale(lw, &tap[a], w.dilation[a]);
        first = tn_aff_add(lw, &first, &step);
        in[2 + a] = index_shifted(&first, -w.padding[a]);
        const int64_t end = (n->shape[2 + a] - 1) * w.stride[a] + tn_window_reach(&w, a) - w.padding[a];
        if (w.padding[a] > 0) inside = mask_both(lw->kb, inside, index_not_negative(lw->kb, &in[2 + a]));
        if (end > x->shape[2 + a])
            inside = mask_both(lw->kb, inside, index_below(lw->kb, &in[2 + a], -x->shape[2 + a]));
    }
    kir_val v = inside == KIR_NONE ? tn_lower_at(lw, x, in) : tn_lower_at_masked(lw, x, in, inside);
    const kir_val zero = kir_const(lw->kb, kir_type_of((tn_dtype)n->dtype), 0);
    if (inside != KIR_NONE) v = kir_select(lw->kb, inside, v, zero);
    return kir_reduce_value(lw->kb, KIR_CHAIN, v, tn_lower_at(lw, weight, filter));
}

/* Where tap `tap` of the window at (`y`, `x`) lies in an image of `size`, row by row; -1 outside. */
static int64_t tap_pixel(const tn_window *w, const int64_t *size, int64_t y, int64_t x, int64_t tap) {
    int64_t row = y * w->stride[0] + tap / w->kernel[1] * w->dilation[0] - w->padding[0];
    int64_t column = x * w->stride[1] + tap % w->kernel[1] * w->dilation[1] - w->padding[1];
    bool inside = row >= 0 && row < size[0] && column >= 0 && column < size[1];
    return inside ? row * size[1] + column : -1;
}

/* A definition of its own: one place of one filter. `x`: the first of the group's `channels` planes. */
static double conv_forward_pixel(const double *x, const int64_t *size, const double *filter, int64_t channels,
                                 const tn_window *w, int64_t pixel_y, int64_t pixel_x, double outside) {
    int64_t taps = w->kernel[0] * w->kernel[1], plane = size[0] * size[1];
    double sum = 0;
    for (int64_t c = 0; c < channels; c++) {
        for (int64_t t = 0; t < taps; t++) {
            int64_t at = tap_pixel(w, size, pixel_y, pixel_x, t);
            sum += (at >= 0 ? x[c * plane + at] : outside) * filter[c * taps + t];
        }
    }
    return sum;
}

static void define_correlation(const tn_reference *r, const tn_window *w, int64_t groups, double outside) {
    const tn_node *n = r->node, *x = n->in[0], *weight = n->in[1];
    int64_t out = n->shape[1], channels = weight->shape[1], out_pixels = n->shape[2] * n->shape[3];
    int64_t of_group = out / groups, plane = x->shape[2] * x->shape[3];
    for (int64_t i = 0; i < tn_node_numel(n); i++) {
        int64_t o = i / out_pixels % out, image = i / out_pixels / out, place = i % out_pixels;
        const double *planes = r->in[0] + (image * x->shape[1] + o / of_group * channels) * plane;
        const double *filter = r->in[1] + o * channels * w->kernel[0] * w->kernel[1];
        r->out[i] = conv_forward_pixel(planes, x->shape + 2, filter, channels, w, place / n->shape[3],
                                       place % n->shape[3], outside);
    }
}

static void reference_conv2d_forward(const tn_reference *r) {
    tn_window w = filter_window(r->node->i, r->node->in[1]);
    define_correlation(r, &w, r->node->i[TN_CONV2D_FORWARD_GROUPS], 0);
}

/* conv2d_forward(x, weight, out_size, stride, before, dilation, groups): filters [out, channels / groups, kernel,
 * kernel] over the windows of images [n, channels, h, w] at out_size[0] × out_size[1]: the window of output pixel (u,
 * v) begins at (u, v) · stride − before, and what lies outside of the image is zero. */
OP_CODE(conv2d_forward, .facts = TN_FACT_CONV_FORWARD, .class_ = TN_NATIVE, .reduce = KIR_CHAIN,
        .infer = infer_conv2d_forward, .compose = compose_conv2d_forward, .lower = lower_conv2d_forward,
        .loops = loops_conv2d_forward, .reference = reference_conv2d_forward,
        .cases = "grad=off tol=1e-5 atol=1e-5; "
                 "[2,2,4,5] [3,2,3,2] out_size=(2,4) stride=(1,1) pad_before=(0,0) dilation=(1,1) groups=1; "
                 "[2,3,5,6] [4,3,3,3] out_size=(3,3) stride=(2,2) pad_before=(1,1) dilation=(1,1) groups=1; "
                 "[1,2,6,5] [2,2,2,2] out_size=(5,3) stride=(1,1) pad_before=(-1,2) dilation=(1,3) groups=1; "
                 "[2,4,3,4] [6,2,2,3] out_size=(4,4) stride=(1,1) pad_before=(1,1) dilation=(1,1) groups=2; "
                 "[2,3,4,4] [3,1,3,3] out_size=(4,4) stride=(1,1) pad_before=(1,1) dilation=(1,1) groups=3; "
                 "[1,20,9,9] [17,20,3,3] out_size=(9,9) stride=(1,1) pad_before=(1,1) dilation=(1,1) groups=1; "
                 "[0,2,3,3] [2,2,2,2] out_size=(2,2) stride=(1,1) pad_before=(0,0) dilation=(1,1) groups=1; "
                 "error=fit [1,2,3,3] [2,3,2,2] out_size=(2,2) stride=(1,1) pad_before=(0,0) dilation=(1,1) groups=1");

/* ---- int_conv2d -------------------------------------------------------------------------------------------------- */

static tn_window byte_window(const int64_t *i, const tn_node *weight) {
    return filter_taps(weight, i + TN_INT_CONV2D_STRIDE, i + TN_INT_CONV2D_PADDING, i + TN_INT_CONV2D_DILATION);
}

/* Images and filters are bytes, and what lies outside is one of the images'. */
static tn_status check_bytes(const tn_infer *c) {
    int64_t outside = c->attrs->i[TN_INT_CONV2D_OUTSIDE];
    for (int i = 0; i < 2; i++)
        if (c->in[i]->dtype != TN_I8 && c->in[i]->dtype != TN_U8)
            return tn_fail(TN_ERR_DTYPE, "%s: input and weight must be i8 or u8; one is %s", c->row->name,
                           tn_dtype_name((tn_dtype)c->in[i]->dtype));
    bool is_signed = c->in[0]->dtype == TN_I8;
    if (outside >= (is_signed ? INT8_MIN : 0) && outside <= (is_signed ? INT8_MAX : UINT8_MAX)) return TN_OK;
    return tn_fail(TN_ERR_ARGUMENT, "%s: the input is %s, so outside cannot be %lld", c->row->name,
                   tn_dtype_name((tn_dtype)c->in[0]->dtype), (long long)outside);
}

static tn_status infer_int_conv2d(tn_infer *c) {
    const tn_node *x = c->in[0], *weight = c->in[1];
    const int64_t *pads = c->attrs->i + TN_INT_CONV2D_PADDING;
    int64_t out_size[2];
    TRY(check_bytes(c));
    TRY(check_filters(c, c->attrs->i[TN_INT_CONV2D_GROUPS]));
    tn_window w = byte_window(c->attrs->i, weight), behind = w;
    memcpy(behind.padding, pads + 2, sizeof behind.padding);
    TRY(tn_window_check(c, &w, 0));
    TRY(tn_window_check(c, &behind, 0));
    for (int a = 0; a < 2; a++) {
        int64_t size = x->shape[2 + a], room = size + pads[a] + pads[2 + a] - tn_window_reach(&w, a);
        if (room < 0)
            return tn_fail(TN_ERR_SHAPE,
                           "%s: a kernel that reaches over %lld does not fit an extent of %lld with padding "
                           "%lld before and %lld after",
                           c->row->name, (long long)tn_window_reach(&w, a), (long long)size, (long long)pads[a],
                           (long long)pads[2 + a]);
        out_size[a] = room / w.stride[a] + 1;
    }
    tn_nchw_infer(c, 2, weight->shape[0], out_size);
    c->dtype = TN_I32;
    return TN_OK;
}

static tn_node *compose_int_conv2d(tn_build *b, const tn_node *n) {
    tn_node *x = n->in[0], *weight = n->in[1];
    tn_window w = byte_window(n->i, weight);
    int64_t groups = n->i[TN_INT_CONV2D_GROUPS];
    tn_node *seen = tn_b_im2col(b, x, &w, n->shape + 2, (double)n->i[TN_INT_CONV2D_OUTSIDE]);
    tn_node *wide = tn_b_cast(b, weight, TN_I32), *rows = columns(b, tn_b_cast(b, seen, TN_I32), groups);
    return wide ? tn_b_view(b, tn_b_matmul_batched(b, filters(b, wide, groups), rows), n->shape, 4) : NULL;
}

static void reference_int_conv2d(const tn_reference *r) {
    const int64_t *i = r->node->i;
    tn_window w = byte_window(i, r->node->in[1]);
    define_correlation(r, &w, i[TN_INT_CONV2D_GROUPS], (double)i[TN_INT_CONV2D_OUTSIDE]);
}

/* int_conv2d(x, weight, stride, padding, dilation, groups, outside): cross-correlation of bytes, in i32: exact, modulo
 * 2^32. Images [batch, channels, height, width] and filters [out, channels / groups, kernel height, kernel width] are
 * i8 or u8, each their own; padding is rows above, columns before, rows below, columns after, each of them `outside`
 * (a zero point). Processors that add up four products of bytes at once take u8 images and i8 filters fastest. */
OP_CODE(int_conv2d, .class_ = TN_NATIVE, .infer = infer_int_conv2d, .compose = compose_int_conv2d,
        .reference = reference_int_conv2d,
        .cases = "types=i8,u8 grad=off; [2,3,5,6] [4,3,3,2] padding=(1,0,1,1) outside=3; "
                 "[1,40,9,9]:u8 [17,40,3,3]:i8 padding=(1,1,1,1) outside=7; "
                 "[2,33,8,11]:u8 [32,33,2,3]:i8 stride=(2,2) padding=(0,1,1,2) outside=200; "
                 "[1,128,5,6]:u8 [40,64,1,1]:i8 groups=2; [1,4,6,5] [2,2,2,2] dilation=(1,3) groups=2; "
                 "[1,2,4,4]:i8 [2,2,3,3]:u8 padding=(2,2,2,2) outside=-128; [0,2,3,3] [2,2,2,2]; "
                 "error=fit [1,2,3,3] [2,3,2,2]; error=i8 [1,1,3,3]:f32 [1,1,2,2]; error=reaches [1,1,2,2] [1,1,3,3]; "
                 "error=fit [1,1,3,3] [2,4,2,2] groups=4611686018427387904; "
                 "error=above [1,1,3,3] [1,1,2,2] padding=(1,0,9223372036854775807,0); "
                 "error=outside [1,1,3,3]:u8 [1,1,2,2] outside=256; error=outside [1,1,3,3]:i8 [1,1,2,2] outside=-129");

/* ---- quantized_conv2d -------------------------------------------------------------------------------------------- */

static tn_status check_addend(const tn_infer *c, const tn_node *addend) {
    char text[96];
    bool same = addend->rank == 4 && addend->dtype == c->dtype;
    for (int d = 0; d < 4 && same; d++)
        same = addend->shape[d] == c->shape[d];
    return same ? TN_OK
                : tn_fail(TN_ERR_SHAPE, "quantized_conv2d: the addend, %s %s, has not the result's shape and dtype",
                          tn_dtype_name((tn_dtype)addend->dtype), tn_shape_text(addend, text, sizeof text));
}

/* Scales of an addend must be so small that no operation has infinite operands. */
static tn_status check_scales(const tn_infer *c) {
    static const double most = 1e18;
    static const char *const names[] = {"own_scale", "addend_scale", "sum_scale"};
    for (int k = 0; k < 3; k++) {
        const double scale = c->attrs->f[TN_QUANTIZED_CONV2D_OWN_SCALE + k];
        if (!(fabs(scale) <= most))
            return tn_fail(TN_ERR_ARGUMENT, "quantized_conv2d: %s is %g; at most %g is allowed", names[k], scale, most);
    }
    return TN_OK;
}

static tn_status infer_quantized_conv2d(tn_infer *c) {
    static const int zeros[] = {TN_QUANTIZED_CONV2D_ZERO, TN_QUANTIZED_CONV2D_ADDEND_ZERO,
                                TN_QUANTIZED_CONV2D_SUM_ZERO};
    TRY(infer_int_conv2d(c));
    for (size_t k = 0; k < TN_COUNT(zeros); k++)
        TRY(tn_infer_rounding(c, c->shape[1], c->attrs->i[zeros[k]]));
    TRY(check_scales(c));
    return c->in[4] ? check_addend(c, c->in[4]) : TN_OK;
}

static tn_quantized_conv2d_options options_of(const tn_node *n) {
    tn_quantized_conv2d_options o = TN_QUANTIZED_CONV2D_DEFAULTS;
    memcpy(o.stride, n->i + TN_QUANTIZED_CONV2D_STRIDE, sizeof o.stride);
    memcpy(o.padding, n->i + TN_QUANTIZED_CONV2D_PADDING, sizeof o.padding);
    memcpy(o.dilation, n->i + TN_QUANTIZED_CONV2D_DILATION, sizeof o.dilation);
    o.groups = n->i[TN_QUANTIZED_CONV2D_GROUPS];
    o.outside = n->i[TN_QUANTIZED_CONV2D_OUTSIDE];
    o.zero = n->i[TN_QUANTIZED_CONV2D_ZERO];
    o.own_scale = n->f[TN_QUANTIZED_CONV2D_OWN_SCALE];
    o.addend_scale = n->f[TN_QUANTIZED_CONV2D_ADDEND_SCALE];
    o.sum_scale = n->f[TN_QUANTIZED_CONV2D_SUM_SCALE];
    o.addend_zero = n->i[TN_QUANTIZED_CONV2D_ADDEND_ZERO];
    o.sum_zero = n->i[TN_QUANTIZED_CONV2D_SUM_ZERO];
    return o;
}

static tn_node *numbers_of(tn_build *b, tn_node *bytes, int64_t zero, double scale) {
    return tn_b_mul_scalar(b, tn_b_add_scalar(b, tn_b_cast(b, bytes, TN_F32), -(double)zero), scale);
}

/* The kernels read dense images; another one is copied first, since the composition takes a hundred times as long. */
static tn_node *compose_quantized_conv2d(tn_build *b, const tn_node *n) {
    const tn_quantized_conv2d_options o = options_of(n);
    const int64_t channels[] = {n->in[1]->shape[0], 1, 1};
    int64_t offset, stride[TN_MAX_RANK];
    tn_node_layout(n->in[0], &offset, stride);
    tn_node *x = n->in[0], *addend = n->in[4];
    if (!tn_strides_are_contiguous(x->shape, x->rank, stride))
        return tn_b_quantized_conv2d(b, tn_b_contiguous(b, x), n->in[1], n->in[2], n->in[3], addend, &o);
    if (addend) {
        tn_node *own = tn_b_quantized_conv2d(b, x, n->in[1], n->in[2], n->in[3], NULL, &o);
        tn_node *sum =
            tn_b_add(b, numbers_of(b, own, o.zero, o.own_scale), numbers_of(b, addend, o.addend_zero, o.addend_scale));
        return tn_b_bytes(b, tn_b_mul_scalar(b, sum, o.sum_scale), o.sum_zero, (tn_dtype)n->dtype);
    }
    tn_int_conv2d_options sum = TN_INT_CONV2D_DEFAULTS;
    memcpy(sum.stride, o.stride, sizeof o.stride);
    memcpy(sum.padding, o.padding, sizeof o.padding);
    memcpy(sum.dilation, o.dilation, sizeof o.dilation);
    sum.groups = o.groups;
    sum.outside = o.outside;
    return tn_b_rounded(b, tn_b_int_conv2d(b, x, n->in[1], &sum), tn_b_view(b, n->in[2], channels, 3),
                        tn_b_view(b, n->in[3], channels, 3), o.zero, (tn_dtype)n->dtype);
}

static void reference_quantized_conv2d(const tn_reference *r) {
    const tn_quantized_conv2d_options o = options_of(r->node);
    const int64_t filters = r->node->shape[1], out = r->node->shape[2] * r->node->shape[3];
    const bool is_signed = r->node->dtype == TN_I8;
    tn_window w = byte_window(r->node->i, r->node->in[1]);
    define_correlation(r, &w, o.groups, (double)o.outside);
    for (int64_t k = 0; k < r->node->shape[0] * filters * out; k++) {
        const int64_t f = k / out % filters;
        r->out[k] = tn_reference_byte((float)(r->out[k] + r->in[2][f]) * (float)r->in[3][f], o.zero, is_signed);
        if (!r->node->in[4]) continue;
        const float own = (float)(r->out[k] - (double)o.zero) * (float)o.own_scale;
        const float other = (float)(r->in[4][k] - (double)o.addend_zero) * (float)o.addend_scale;
        r->out[k] = tn_reference_byte((own + other) * (float)o.sum_scale, o.sum_zero, is_signed);
    }
}

/* quantized_conv2d(x, weight, bias, scale, addend, …): int_conv2d's sums as bytes of x's dtype: round((sum + bias) ·
 * scale) + zero, saturated, NaN as the least one; the sums are i32, the rest f32, rounded to the nearest number, ties
 * to even. bias (i32) and scale (f32) have a number for each filter. With an addend (a residual, of the result's shape
 * and dtype) the result is round(((byte − zero) · own_scale + (addend − addend_zero) · addend_scale) · sum_scale) +
 * sum_zero of these bytes, saturated; scales are at most 1e18. */
OP_CODE(quantized_conv2d, .class_ = TN_NATIVE, .infer = infer_quantized_conv2d, .compose = compose_quantized_conv2d,
        .reference = reference_quantized_conv2d,
        .cases =
            "types=i8,u8 grad=off; [2,3,5,6] [4,3,3,2] [4]:i32 [4]:f32@0..1 - padding=(1,0,1,1) outside=3 zero=7; "
            "[1,40,9,9]:u8 [17,40,3,3]:i8 [17]:i32 [17]:f32@0..1 - padding=(1,1,1,1) outside=7 zero=128; "
            "[2,9,11,20] [9,1,3,3]:i8 [9]:i32 [9]:f32@0..1 - padding=(1,1,1,1) stride=(2,2) groups=9 outside=5 zero=3; "
            "[1,5,9,37] [5,1,5,5]:i8 [5]:i32 [5]:f32@0..1 - padding=(2,2,2,2) groups=5 zero=1; "
            "[1,128,5,6]:i8 [40,64,1,1]:i8 [40]:i32 [40]:f32@0..1 - groups=2 zero=-9; "
            "[0,2,3,3] [2,2,2,2] [2]:i32 [2]:f32 -; "
            "[1,7,5,6] [18,7,3,3]:i8 [18]:i32 [18]:f32@0..1 [1,18,3,4] zero=4 own_scale=0.5 addend_scale=0.25 "
            "sum_scale=1.75 addend_zero=9 sum_zero=11; "
            "error=one [1,2,3,3] [2,2,2,2] [3]:i32 [2]:f32 -; error=i32 [1,2,3,3] [2,2,2,2] [2]:f32 [2]:f32 -; "
            "error=zero [1,2,3,3]:u8 [2,2,2,2] [2]:i32 [2]:f32 - zero=-1; "
            "error=addend [1,2,3,3]:u8 [2,2,2,2] [2]:i32 [2]:f32 [1,2,2,3]:u8; "
            "error=sum_scale [1,2,3,3]:u8 [2,2,2,2] [2]:i32 [2]:f32 [1,2,2,2]:u8 sum_scale=1e19");

/* ---- conv2d_dgrad ------------------------------------------------------------------------------------------------ */

static tn_window spread_window(const int64_t *i, const tn_node *weight) {
    return filter_taps(weight, i + TN_CONV2D_DGRAD_STRIDE, i + TN_CONV2D_DGRAD_PADDING, i + TN_CONV2D_DGRAD_DILATION);
}

static tn_status infer_conv2d_dgrad(tn_infer *c) {
    const tn_node *y = c->in[0], *weight = c->in[1];
    int64_t groups = c->attrs->i[TN_CONV2D_DGRAD_GROUPS];
    char yt[96], wt[96];
    TRY(check_same_dtype(c));
    if (y->rank != 4 || weight->rank != 4 || y->shape[1] != weight->shape[0] || !groups_spread(weight, groups))
        return tn_fail(TN_ERR_SHAPE, "conv2d_dgrad: grad_output %s, weight %s and %lld groups do not fit together",
                       tn_shape_text(y, yt, sizeof yt), tn_shape_text(weight, wt, sizeof wt), (long long)groups);
    tn_nchw_infer(c, 2, weight->shape[1] * groups, c->attrs->i + TN_CONV2D_DGRAD_SIZE);
    return TN_OK;
}

static tn_node *compose_conv2d_dgrad(tn_build *b, const tn_node *n) {
    tn_node *y = n->in[0], *weight = n->in[1];
    tn_window w = spread_window(n->i, weight);
    return spread_im2col(b, y, weight, &w, n->i[TN_CONV2D_DGRAD_GROUPS], n->shape + 2, false);
}

/* One result `y` of channel `channel` to all planes of its group that its window covers. */
static void spread_result(const tn_reference *r, const tn_window *w, int64_t channel, int64_t place, double y,
                          double *planes) {
    const tn_node *n = r->node, *weight = n->in[1];
    int64_t taps = w->kernel[0] * w->kernel[1], across = n->in[0]->shape[3], plane = n->shape[2] * n->shape[3];
    for (int64_t i = 0; i < weight->shape[1] * taps; i++) {
        int64_t at = tap_pixel(w, n->shape + 2, place / across, place % across, i % taps);
        if (at >= 0) planes[i / taps * plane + at] += y * r->in[1][channel * weight->shape[1] * taps + i];
    }
}

static void reference_conv2d_dgrad(const tn_reference *r) {
    const tn_node *n = r->node, *y = n->in[0];
    tn_window w = spread_window(n->i, n->in[1]);
    int64_t out_pixels = y->shape[2] * y->shape[3], of_group = y->shape[1] / n->i[TN_CONV2D_DGRAD_GROUPS];
    int64_t plane = n->shape[2] * n->shape[3];
    for (int64_t i = 0; i < tn_node_numel(n); i++)
        r->out[i] = 0;
    for (int64_t i = 0; i < tn_node_numel(y); i++) {
        int64_t channel = i / out_pixels % y->shape[1], image = i / out_pixels / y->shape[1];
        int64_t first = image * n->shape[1] + channel / of_group * n->in[1]->shape[1];
        spread_result(r, &w, channel, i % out_pixels, r->in[0][i], r->out + first * plane);
    }
}

/* conv2d_dgrad(y, weight, size, stride, padding, dilation, groups): the adjoint of conv2d_forward: results y [n, groups
 * · in, output pixels] times filters [groups · in, out, kernel, kernel], to images of `size`. */
OP_CODE(conv2d_dgrad, .facts = TN_FACT_CONV_DGRAD, .class_ = TN_NATIVE, .infer = infer_conv2d_dgrad,
        .compose = compose_conv2d_dgrad, .reference = reference_conv2d_dgrad,
        .cases = "grad=off tol=1e-5 atol=1e-5; "
                 "[2,3,2,4] [3,2,3,2] size=(4,5) stride=(1,1) padding=(0,0) dilation=(1,1) groups=1; "
                 "[2,4,3,4] [4,3,3,3] size=(5,8) stride=(2,2) padding=(1,1) dilation=(1,1) groups=1; "
                 "[1,17,3,3] [17,20,3,2] size=(8,7) stride=(3,2) padding=(2,1) dilation=(1,1) groups=1; "
                 "[2,2,2,3] [2,3,2,1] size=(6,7) stride=(3,3) padding=(0,0) dilation=(1,1) groups=1; "
                 "[1,4,3,3] [4,2,2,2] size=(6,6) stride=(2,2) padding=(0,0) dilation=(1,1) groups=2; "
                 "[1,2,2,2] [2,2,2,2] size=(5,5) stride=(2,2) padding=(0,0) dilation=(2,2) groups=1; "
                 "error=fit [1,2,3,3] [3,2,2,2] size=(2,2) stride=(1,1) padding=(0,0) dilation=(1,1) groups=1");

/* ---- conv2d, conv1d ---------------------------------------------------------------------------------------------- */

static tn_node *compose_conv2d(tn_build *b, const tn_node *n) {
    tn_node *weight = n->in[1], *x = tn_b_as_nchw(b, n->in[0], 2);
    tn_window w = conv_window(n->i, weight, 2);
    const int64_t *out_size = n->shape + n->rank - 2, groups = conv_groups(n->i, 2);
    bool whole = !tn_dtype_is_float((tn_dtype)n->dtype);
    tn_node *y = whole ? conv_forward_im2col(b, x, weight, &w, groups, out_size, false)
                       : conv_in_bands(b, x, weight, &w, groups, out_size, wants_wide(n), 0, most_copies(weight));
    return add_bias(b, n, n->rank == 4 ? y : tn_b_view(b, y, n->shape, n->rank));
}

static void grad_conv2d(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    tn_node *x = n->in[0], *weight = n->in[1];
    tn_window w = conv_window(n->i, weight, 2);
    int64_t groups = conv_groups(n->i, 2);
    if (tn_needs_grad(n, 0)) {
        tn_conv_transpose2d_options o = TN_CONV_TRANSPOSE2D_DEFAULTS;
        o.groups = groups;
        for (int a = 0; a < 2; a++) {
            int64_t least = (n->shape[n->rank - 2 + a] - 1) * w.stride[a] - 2 * w.padding[a] + tn_window_reach(&w, a);
            o.stride[a] = w.stride[a];
            o.padding[a] = w.padding[a];
            o.dilation[a] = w.dilation[a];
            o.output_padding[a] = x->shape[x->rank - 2 + a] - least;
        }
        grads[0] = tn_b_conv_transpose2d(b, dy, weight, NULL, &o);
    }
    if (tn_needs_grad(n, 1)) grads[1] = tn_b_conv2d_wgrad(b, x, dy, w.kernel, w.stride, w.padding, w.dilation, groups);
    if (tn_needs_grad(n, 2)) grads[2] = bias_gradient(b, n, dy);
}

/* conv2d(x, weight, bias, stride, padding, dilation, groups): cross-correlation of x [batch, channels, height, width]
 * (or without the batch) with weight [out, channels / groups, kernel height, kernel width]; bias [out] or NULL.
 * Integers wrap as their type does. */
OP_CODE(conv2d, .keeps_half = true, .infer = infer_conv2d, .compose = compose_conv2d, .grad = grad_conv2d,
        .cases =
            "tol=1e-5 atol=1e-5; [2,2,4,5] [3,2,3,2] [3]; [1,3,5,4] [2,3,3,3] [2] stride=(2,2) padding=(1,1); "
            "[1,2,5,6] [2,2,2,2] - stride=(1,2) padding=(1,0) dilation=(2,1); [1,4,3,3] [2,2,2,2] [2] groups=2; "
            "[2,2,5,4] [3,2,3,3] [3] padding=(6,3) dilation=(6,3); [1,4,3,4] [2,2,4,3] - stride=(2,1) padding=(8,5) "
            "dilation=(5,5) groups=2; [2,3,4,4] [3,1,3,3] [3] padding=(4,4) dilation=(4,4) groups=3; "
            "[2,3,4,4] [3,1,3,3] [3] padding=(1,1) groups=3; [1,2,3,4] [4,1,2,2] - groups=2; "
            "[2,3,3,4] [2,3,1,1] [2]; [1,3,5,4] [2,3,1,1] - stride=(2,2); [2,4,4] [3,2,2,2] [3]; "
            "[1,3,6,5] [3,1,5,5] - padding=(2,2) groups=3; [1,2,5,7] [2,1,3,3] - stride=(2,2) groups=2; "
            "[0,2,4,4] [3,2,2,2] -; types=f16 tol=2ulp atol=1ulp; [1,3,4,5] [3,1,3,3] - padding=(1,1) groups=3; "
            "types=i64,i32; [2,4,5,6]@-9..9 [2,2,3,2]@-9..9 [2]@-9..9 stride=(2,1) padding=(1,1) groups=2; "
            "[3,4,4]@-9..9 [2,3,2,2]@-9..9 - dilation=(2,1); error=integer [1,1,3,3]:bool [1,1,2,2]:bool -; "
            "types=f32,f64 tol=1e-5 atol=1e-5; error=fit [1,1,2,2] [1,1,3,3] -; error=bias [1,1,3,3] [2,1,2,2] [3]; "
            "error=groups [1,4,3,3] [3,2,2,2] - groups=2; "
            "error=groups [1,1,3,3] [2,4,2,2] - groups=4611686018427387904; error=without [3,3] [2,3,2,2] -");

/* A sequence is an image of height 1. */
static tn_node *compose_conv1d(tn_build *b, const tn_node *n) {
    tn_node *x = n->in[0], *weight = n->in[1];
    const int64_t *i = n->i, *s = weight->shape;
    int64_t batch = x->rank == 3 ? x->shape[0] : 1;
    tn_conv2d_options o = TN_CONV2D_DEFAULTS;
    o.stride[1] = i[0];
    o.padding[1] = i[1];
    o.dilation[1] = i[2];
    o.groups = i[3];
    tn_node *image = tn_b_reshape(b, x, (int64_t[]){batch, x->shape[x->rank - 2], 1, x->shape[x->rank - 1]}, 4);
    tn_node *kernel = tn_b_reshape(b, weight, (int64_t[]){s[0], s[1], 1, s[2]}, 4);
    return tn_b_view(b, tn_b_conv2d(b, image, kernel, n->in[2], &o), n->shape, n->rank);
}

/* conv1d(x, weight, bias, stride, padding, dilation, groups): cross-correlation of x [batch, channels, length] (or
 * without the batch) with weight [out, channels / groups, kernel]; bias [out] or NULL. */
OP_CODE(conv1d, .keeps_half = true, .infer = infer_conv1d, .compose = compose_conv1d,
        .cases = "tol=1e-5 atol=1e-5; [2,3,7] [2,3,3] [2] stride=2 padding=1; [4,6] [4,2,2] - dilation=2 groups=2; "
                 "types=i64; [2,3,7]@-9..9 [2,3,3]@-9..9 [2]@-9..9 stride=2 padding=1; types=f32; "
                 "error=fit [1,1,2] [1,1,3] -; error=groups [1,3,5] [2,2,2] -; error=dimensions [1,3,5] [2,3] -");

/* ---- conv2d_wgrad ----------------------------------------------------------------------------------------------- */

static tn_status infer_conv2d_wgrad(tn_infer *c) {
    const tn_node *x = c->in[0], *y = c->in[1];
    char xt[96], yt[96];
    int64_t groups = c->attrs->i[TN_CONV2D_WGRAD_GROUPS];
    tn_window w = tn_window_of(c->attrs->i);
    TRY(check_same_dtype(c));
    TRY(tn_nchw_check(c, 2));
    TRY(tn_window_check(c, &w, 0));
    int at = tn_nchw_channel_dim(x, 2);
    bool fits = y->rank == x->rank && groups >= 1 && x->shape[at] % groups == 0 && y->shape[at] % groups == 0;
    fits = fits && (at == 0 || x->shape[0] == y->shape[0]);
    for (int a = 0; fits && a < 2; a++)
        fits = y->shape[y->rank - 2 + a] <= tn_window_out_size(&w, a, x->shape[x->rank - 2 + a], false);
    if (!fits)
        return tn_fail(TN_ERR_SHAPE, "conv2d_wgrad: input %s and grad_output %s do not fit together",
                       tn_shape_text(x, xt, sizeof xt), tn_shape_text(y, yt, sizeof yt));
    c->dtype = (tn_dtype)x->dtype;
    c->rank = 4;
    int64_t shape[4] = {y->shape[at], x->shape[at] / groups, w.kernel[0], w.kernel[1]};
    memcpy(c->shape, shape, sizeof shape);
    return TN_OK;
}

static tn_node *compose_conv2d_wgrad(tn_build *b, const tn_node *n) {
    tn_window w = tn_window_of(n->i);
    tn_node *x = n->in[0], *y = n->in[1];
    int64_t groups = n->i[TN_CONV2D_WGRAD_GROUPS];
    if (x->rank == 4) return collect(b, x, y, &w, groups, n);
    x = tn_b_as_nchw(b, x, 2);
    return tn_b_conv2d_wgrad(b, x, tn_b_as_nchw(b, y, 2), w.kernel, w.stride, w.padding, w.dilation, groups);
}

/* What the results of one channel of one image add to its filter, [channels, kernel, kernel]. */
static void collect_image(const double *x, const int64_t *size, const double *y, const int64_t *out_size,
                          const tn_window *w, int64_t channels, double *filter) {
    int64_t taps = w->kernel[0] * w->kernel[1];
    for (int64_t i = 0; i < channels * taps; i++) {
        for (int64_t p = 0; p < out_size[0] * out_size[1]; p++) {
            int64_t at = tap_pixel(w, size, p / out_size[1], p % out_size[1], i % taps);
            if (at >= 0) filter[i] += x[i / taps * size[0] * size[1] + at] * y[p];
        }
    }
}

static void reference_conv2d_wgrad(const tn_reference *r) {
    const tn_node *n = r->node, *x = n->in[0], *y = n->in[1];
    tn_window w = tn_window_of(n->i);
    const int64_t *size = x->shape + x->rank - 2, *out_size = y->shape + y->rank - 2;
    int64_t images = x->rank == 4 ? x->shape[0] : 1, out = n->shape[0], channels = n->shape[1];
    int64_t of_group = out / n->i[TN_CONV2D_WGRAD_GROUPS], all = x->shape[x->rank - 3];
    for (int64_t i = 0; i < tn_node_numel(n); i++)
        r->out[i] = 0;
    for (int64_t k = 0; k < images * out; k++) {
        int64_t image = k / out, o = k % out;
        const double *planes = r->in[0] + (image * all + o / of_group * channels) * size[0] * size[1];
        collect_image(planes, size, r->in[1] + k * out_size[0] * out_size[1], out_size, &w, channels,
                      r->out + o * channels * w.kernel[0] * w.kernel[1]);
    }
}

/* Of a transposed convolution the window may have more output pixels than y has pixels: those are left out. */
static tn_node *first_pixels(tn_build *b, tn_node *y, const tn_node *like) {
    for (int d = like->rank - 2; y && d < like->rank; d++)
        if (y->shape[d] > like->shape[d]) y = tn_b_slice(b, y, d, 0, like->shape[d], 1);
    return y;
}

static tn_conv2d_options conv_options(const tn_window *w, int64_t groups) {
    tn_conv2d_options o = TN_CONV2D_DEFAULTS;
    o.groups = groups;
    memcpy(o.stride, w->stride, sizeof o.stride);
    memcpy(o.padding, w->padding, sizeof o.padding);
    memcpy(o.dilation, w->dilation, sizeof o.dilation);
    return o;
}

static void grad_conv2d_wgrad(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    tn_node *x = n->in[0], *y = n->in[1];
    tn_window w = tn_window_of(n->i);
    tn_conv2d_options o = conv_options(&w, n->i[TN_CONV2D_WGRAD_GROUPS]);
    if (tn_needs_grad(n, 0))
        grads[0] = tn_b_view(b, spread_conv(b, tn_b_as_nchw(b, y, 2), dy, &w, o.groups, x->shape + x->rank - 2, false),
                             x->shape, x->rank);
    if (tn_needs_grad(n, 1)) grads[1] = first_pixels(b, tn_b_conv2d(b, x, dy, NULL, &o), y);
}

/* conv2d_wgrad(x, y, kernel, stride, padding, dilation, groups): the gradient of a convolution's weight: images x
 * times results y, over all output pixels of the window. */
OP_CODE(conv2d_wgrad, .facts = TN_FACT_CONV_WGRAD, .class_ = TN_NATIVE, .infer = infer_conv2d_wgrad,
        .compose = compose_conv2d_wgrad, .reference = reference_conv2d_wgrad, .grad = grad_conv2d_wgrad,
        .cases = "tol=1e-5 atol=1e-5; "
                 "[2,2,4,5] [2,3,2,4] kernel=(3,2) stride=(1,1) padding=(0,0) dilation=(1,1) groups=1; "
                 "[1,2,5,4] [1,3,3,2] kernel=(3,3) stride=(2,2) padding=(1,1) dilation=(1,1) groups=1; "
                 "[2,4,3,3] [2,2,2,2] kernel=(2,2) stride=(1,1) padding=(0,0) dilation=(1,1) groups=2; "
                 "[2,3,4,4] [2,3,4,4] kernel=(3,3) stride=(1,1) padding=(1,1) dilation=(1,1) groups=3; "
                 "[2,5,4] [3,2,2] kernel=(2,2) stride=(2,2) padding=(0,0) dilation=(2,1) groups=1; "
                 "[1,1,6,6] [1,2,2,2] kernel=(2,2) stride=(2,2) padding=(0,0) dilation=(1,1) groups=1; "
                 "error=fit [1,1,3,3] [1,1,3,3] kernel=(2,2) stride=(1,1) padding=(0,0) dilation=(1,1) groups=1");

/* ---- conv_transpose2d -------------------------------------------------------------------------------------------- */

static tn_window transposed_window(const int64_t *i, const tn_node *weight) {
    return (tn_window){.kernel = {weight->shape[2], weight->shape[3]},
                       .stride = {i[TN_CONV_TRANSPOSE2D_STRIDE], i[TN_CONV_TRANSPOSE2D_STRIDE + 1]},
                       .padding = {i[TN_CONV_TRANSPOSE2D_PADDING], i[TN_CONV_TRANSPOSE2D_PADDING + 1]},
                       .dilation = {i[TN_CONV_TRANSPOSE2D_DILATION], i[TN_CONV_TRANSPOSE2D_DILATION + 1]}};
}

static tn_status check_output_padding(const tn_infer *c, const tn_window *w) {
    const int64_t *extra = c->attrs->i + TN_CONV_TRANSPOSE2D_OUTPUT_PADDING;
    for (int a = 0; a < 2; a++) {
        if (extra[a] >= 0 && (extra[a] < w->stride[a] || extra[a] < w->dilation[a])) continue;
        return tn_fail(TN_ERR_ARGUMENT,
                       "conv_transpose2d: output_padding is %lld; it must be less than stride %lld or dilation %lld",
                       (long long)extra[a], (long long)w->stride[a], (long long)w->dilation[a]);
    }
    return TN_OK;
}

static tn_status infer_conv_transpose2d(tn_infer *c) {
    const tn_node *x = c->in[0], *weight = c->in[1];
    const int64_t *i = c->attrs->i, *extra = i + TN_CONV_TRANSPOSE2D_OUTPUT_PADDING;
    int64_t groups = i[TN_CONV_TRANSPOSE2D_GROUPS], size[2];
    char xt[96], wt[96];
    TRY(check_numbers(c));
    TRY(tn_nchw_check(c, 2));
    bool fits = weight->rank == 4 && weight->shape[0] == x->shape[tn_nchw_channel_dim(x, 2)];
    if (!fits || !groups_spread(weight, groups))
        return tn_fail(TN_ERR_SHAPE,
                       "conv_transpose2d: input %s, weight %s and %lld groups do not fit together: the weight must be "
                       "[in_channels, out_channels / groups, kernel_height, kernel_width]",
                       tn_shape_text(x, xt, sizeof xt), tn_shape_text(weight, wt, sizeof wt), (long long)groups);
    TRY(check_bias(c, weight->shape[1] * groups));
    tn_window w = transposed_window(i, weight);
    TRY(tn_window_check(c, &w, 0));
    TRY(check_output_padding(c, &w));
    for (int a = 0; a < 2; a++) {
        size[a] = (x->shape[x->rank - 2 + a] - 1) * w.stride[a] - 2 * w.padding[a] + tn_window_reach(&w, a) + extra[a];
        if (size[a] < 1)
            return tn_fail(TN_ERR_SHAPE,
                           "conv_transpose2d: extent %d of the result would be %lld; it must be at least 1", a,
                           (long long)size[a]);
    }
    tn_nchw_infer(c, 2, weight->shape[1] * groups, size);
    return TN_OK;
}

static tn_node *compose_conv_transpose2d(tn_build *b, const tn_node *n) {
    tn_node *weight = n->in[1], *x = tn_b_as_nchw(b, n->in[0], 2);
    tn_window w = transposed_window(n->i, weight);
    const int64_t *size = n->shape + n->rank - 2, groups = n->i[TN_CONV_TRANSPOSE2D_GROUPS];
    bool whole = !tn_dtype_is_float((tn_dtype)n->dtype);
    tn_node *y = whole ? spread_im2col(b, x, weight, &w, groups, size, false)
                       : spread_conv(b, x, weight, &w, groups, size, wants_wide(n));
    return add_bias(b, n, n->rank == 4 ? y : tn_b_reshape(b, y, n->shape, n->rank));
}

static void grad_conv_transpose2d(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    tn_node *x = n->in[0], *weight = n->in[1];
    tn_window w = transposed_window(n->i, weight);
    int64_t groups = n->i[TN_CONV_TRANSPOSE2D_GROUPS];
    tn_conv2d_options o = conv_options(&w, groups);
    if (tn_needs_grad(n, 0)) grads[0] = first_pixels(b, tn_b_conv2d(b, dy, weight, NULL, &o), x);
    if (tn_needs_grad(n, 1)) grads[1] = tn_b_conv2d_wgrad(b, dy, x, w.kernel, w.stride, w.padding, w.dilation, groups);
    if (tn_needs_grad(n, 2)) grads[2] = bias_gradient(b, n, dy);
}

/* conv_transpose2d(x, weight, bias, stride, padding, output_padding, groups, dilation): the adjoint of conv2d, as a
 * layer: x [batch, channels, height, width] (or without the batch), weight [channels, out / groups,
 * kernel height, kernel width]. */
OP_CODE(conv_transpose2d, .keeps_half = true, .infer = infer_conv_transpose2d, .compose = compose_conv_transpose2d,
        .grad = grad_conv_transpose2d,
        .cases =
            "tol=1e-5 atol=1e-5; [2,2,3,2] [2,3,2,2] [3]; "
            "[1,2,2,3] [2,2,3,3] [2] stride=(2,2) padding=(1,1) output_padding=(1,1); "
            "[1,4,2,2] [4,1,2,3] - stride=(2,3) groups=2 dilation=(2,1); "
            "[1,1,2,2] [1,2,2,2] [2] padding=(1,1) output_padding=(1,1) dilation=(2,2); [2,3,2] [2,1,2,2] -; "
            "types=i64,i32; [1,2,2,3]@-9..9 [2,2,3,3]@-9..9 [2]@-9..9 stride=(2,2) padding=(1,1) output_padding=(1,1); "
            "[1,4,2,2]@-9..9 [4,1,2,3]@-9..9 - stride=(2,3) groups=2 dilation=(2,1); types=f32,f64; "
            "error=output_padding [1,1,2,2] [1,1,2,2] - output_padding=(1,0); error=weight [1,2,2,2] [3,1,2,2] -; "
            "error=groups [1,0,2,2] [0,4,2,2] - groups=4611686018427387904");
