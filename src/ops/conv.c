/* conv.c — convolution and pooling of images (and, with a height of 1, of sequences).
 *
 * All slide a window, and windows2d (movement.c) names what is under it at each place: a convolution is a product of the
 * weight with these columns, a pooling a reduction over them. Nothing is copied where the planner joins the windows to the
 * product's load or to the reduction. A transposed convolution goes the other way, through fold_windows2d. */
#include <math.h>

#include "ops/common.h"

/* A window over two axes. */
typedef struct window {
    int64_t kernel[2], stride[2], padding[2], dilation[2];
} window;

/* ---- shapes ---------------------------------------------------------------------------------------------------------------- */

static int64_t reach(const window *w, int axis) { return w->dilation[axis] * (w->kernel[axis] - 1) + 1; }

static tn_status check_window(const tn_infer *c, const window *w, int first_axis) {
    for (int a = first_axis; a < 2; a++) {
        bool fine = w->kernel[a] >= 1 && w->stride[a] >= 1 && w->dilation[a] >= 1 && w->padding[a] >= 0;
        fine = fine && w->kernel[a] <= INT32_MAX && w->stride[a] <= INT32_MAX && w->dilation[a] <= INT32_MAX &&
               w->padding[a] <= INT32_MAX;
        if (fine) continue;
        return tn_fail(TN_ERR_ARGUMENT,
                       "%s: kernel %lld, stride %lld, padding %lld, dilation %lld: all but the padding must be "
                       "at least 1, the padding at least 0",
                       c->row->name, (long long)w->kernel[a], (long long)w->stride[a], (long long)w->padding[a],
                       (long long)w->dilation[a]);
    }
    return TN_OK;
}

static tn_status kernel_too_large(const tn_infer *c, const window *w, int axis, int64_t size) {
    return tn_fail(TN_ERR_SHAPE, "%s: a kernel that spans %lld does not fit into %lld with padding %lld on both sides",
                   c->row->name, (long long)reach(w, axis), (long long)size, (long long)w->padding[axis]);
}

/* Places of the window along an axis, -1 when it does not fit. Rounding up, the last one must still begin inside. */
static int64_t places(const window *w, int axis, int64_t size, bool ceil_mode) {
    int64_t room = size + 2 * w->padding[axis] - reach(w, axis), stride = w->stride[axis];
    if (room < 0) return -1;
    int64_t count = (ceil_mode ? room + stride - 1 : room) / stride + 1;
    return ceil_mode && (count - 1) * stride >= size + w->padding[axis] ? count - 1 : count;
}

static void set_dim(tn_infer *c, int dim, int64_t extent, int symbol) {
    c->shape[dim] = extent;
    c->symbol[dim] = (uint8_t)symbol;
}

static tn_status check_same_dtype(const tn_infer *c) {
    for (int i = 0; i < c->n_in; i++) {
        if (!c->in[i]) continue;
        TRY(tn_need_float(c, i));
        if (c->in[i]->dtype != c->in[0]->dtype)
            return tn_fail(TN_ERR_DTYPE, "%s: dtypes %s and %s differ; cast one of them", c->row->name,
                           tn_dtype_name((tn_dtype)c->in[0]->dtype), tn_dtype_name((tn_dtype)c->in[i]->dtype));
    }
    return TN_OK;
}

static tn_status check_bias(const tn_infer *c, int64_t channels) {
    const tn_node *bias = c->in[2];
    char text[96];
    if (!bias || (bias->rank == 1 && bias->shape[0] == channels)) return TN_OK;
    return tn_fail(TN_ERR_SHAPE, "%s: the bias must be [%lld], it is %s", c->row->name, (long long)channels,
                   tn_shape_text(bias, text, sizeof text));
}

/* Images come as [batch, channels, size…], or without the batch. */
static tn_status check_images(const tn_infer *c, int axes) {
    const tn_node *x = c->in[0];
    char text[96];
    if (x->rank == axes + 1 || x->rank == axes + 2) return TN_OK;
    return tn_fail(TN_ERR_SHAPE, "%s: the input must be [batch, channels, %s], or that without the batch; it is %s",
                   c->row->name, axes == 2 ? "height, width" : "length", tn_shape_text(x, text, sizeof text));
}

static int channel_dim(const tn_node *x, int axes) { return x->rank - axes - 1; }

/* The shape of result and input from the channels on; the batch, if any, is the input's. */
static void infer_images(tn_infer *c, int axes, int64_t channels, const int64_t *size) {
    const tn_node *x = c->in[0];
    int at = channel_dim(x, axes);
    c->dtype = (tn_dtype)x->dtype;
    c->rank = x->rank;
    if (at) set_dim(c, 0, x->shape[0], x->symbol[0]);
    set_dim(c, at, channels, 0);
    for (int a = 0; a < axes; a++)
        set_dim(c, at + 1 + a, size[a], 0);
}

/* x as a batch of images [n, c, h, w], whatever it was. */
static tn_node *as_images(tn_build *b, tn_node *x, int axes) {
    int at = channel_dim(x, axes);
    int64_t shape[4] = {at ? x->shape[0] : 1, x->shape[at], axes == 2 ? x->shape[at + 1] : 1, x->shape[x->rank - 1]};
    return x->rank == 4 && axes == 2 ? x : tn_b_reshape(b, x, shape, 4);
}

/* ---- conv1d, conv2d --------------------------------------------------------------------------------------------------------- */

/* Attributes of a convolution over `axes` axes: stride, padding, dilation (one an axis), groups. */
static window conv_window(const int64_t *i, const tn_node *weight, int axes) {
    window w = {.kernel = {1, 1}, .stride = {1, 1}, .dilation = {1, 1}};
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

static tn_status check_conv_channels(const tn_infer *c, int axes) {
    const tn_node *x = c->in[0], *w = c->in[1];
    int64_t groups = conv_groups(c->attrs->i, axes), channels = x->shape[channel_dim(x, axes)];
    char xt[96], wt[96];
    if (groups >= 1 && channels == w->shape[1] * groups && w->shape[0] % groups == 0) return TN_OK;
    return tn_fail(TN_ERR_SHAPE,
                   "%s: input %s, weight %s and %lld groups do not fit: the weight is [out channels, in channels / "
                   "groups, kernel], and groups divides both numbers of channels",
                   c->row->name, tn_shape_text(x, xt, sizeof xt), tn_shape_text(w, wt, sizeof wt), (long long)groups);
}

static tn_status infer_conv(tn_infer *c, int axes) {
    const tn_node *x = c->in[0], *weight = c->in[1];
    char text[96];
    int64_t size[2];
    TRY(check_same_dtype(c));
    TRY(check_images(c, axes));
    if (weight->rank != axes + 2)
        return tn_fail(TN_ERR_SHAPE, "%s: the weight must have %d dimensions, it is %s", c->row->name, axes + 2,
                       tn_shape_text(weight, text, sizeof text));
    TRY(check_conv_channels(c, axes));
    TRY(check_bias(c, weight->shape[0]));
    window w = conv_window(c->attrs->i, weight, axes);
    TRY(check_window(c, &w, 2 - axes));
    for (int a = 0; a < axes; a++) {
        int64_t extent = x->shape[x->rank - axes + a];
        size[a] = places(&w, 2 - axes + a, extent, false);
        if (size[a] < 0) return kernel_too_large(c, &w, 2 - axes + a, extent);
    }
    infer_images(c, axes, weight->shape[0], size);
    return TN_OK;
}

static tn_status infer_conv1d(tn_infer *c) { return infer_conv(c, 1); }
static tn_status infer_conv2d(tn_infer *c) { return infer_conv(c, 2); }

static bool pointwise(const window *w) {
    return w->kernel[0] == 1 && w->kernel[1] == 1 && !w->padding[0] && !w->padding[1];
}

/* What the window sees: [n, groups, channels of the group · kernel, places]; without the groups when there is one. */
static tn_node *columns(tn_build *b, tn_node *x, const window *w, int64_t groups) {
    if (!x) return NULL;
    int64_t n = x->shape[0], depth = x->shape[1] / groups * w->kernel[0] * w->kernel[1];
    int64_t count = places(w, 0, x->shape[2], false) * places(w, 1, x->shape[3], false);
    tn_node *seen = NULL;
    if (pointwise(w)) {
        seen = x;
        for (int a = 0; a < 2; a++)
            if (w->stride[a] > 1) seen = tn_b_slice(b, seen, 2 + a, 0, x->shape[2 + a], w->stride[a]);
    } else {
        seen = tn_b_windows2d(b, x, w->kernel, w->stride, w->padding, w->dilation, 0.0);
    }
    if (groups == 1) return tn_b_reshape(b, seen, (int64_t[]){n, depth, count}, 3);
    return tn_b_reshape(b, seen, (int64_t[]){n, groups, depth, count}, 4);
}

/* One filter a channel: a product of matrices would be all edges, so it is a sum over the window. */
static tn_node *depthwise(tn_build *b, tn_node *x, tn_node *weight, const window *w) {
    if (!x) return NULL;
    int64_t channels = x->shape[1], taps = w->kernel[0] * w->kernel[1], over = 2;
    tn_node *filter = tn_b_reshape(b, weight, (int64_t[]){channels, taps, 1}, 3);
    return tn_b_sum(b, tn_b_mul(b, columns(b, x, w, channels), filter), &over, 1, false);
}

static tn_node *grouped(tn_build *b, tn_node *x, tn_node *weight, const window *w, int64_t groups) {
    int64_t filters = weight->shape[0] / groups, depth = 1;
    for (int d = 1; d < weight->rank; d++)
        depth *= weight->shape[d];
    tn_node *matrix = groups == 1 ? tn_b_reshape(b, weight, (int64_t[]){filters, depth}, 2)
                                  : tn_b_reshape(b, weight, (int64_t[]){groups, filters, depth}, 3);
    return tn_b_matmul_batched(b, matrix, columns(b, x, w, groups));
}

static tn_node *add_bias(tn_build *b, tn_node *y, tn_node *bias, int axes) {
    if (!bias) return y;
    return tn_b_add(b, y, tn_b_reshape(b, bias, (int64_t[]){bias->shape[0], 1, 1}, 1 + axes));
}

static tn_node *compose_conv(tn_build *b, const tn_node *n, int axes) {
    tn_node *weight = n->in[1], *x = as_images(b, n->in[0], axes);
    window w = conv_window(n->i, weight, axes);
    int64_t groups = conv_groups(n->i, axes);
    bool one_each = groups > 1 && weight->shape[0] == groups && weight->shape[1] == 1;
    tn_node *y = one_each ? depthwise(b, x, weight, &w) : grouped(b, x, weight, &w, groups);
    return add_bias(b, tn_b_view(b, y, n->shape, n->rank), n->in[2], axes);
}

static tn_node *compose_conv1d(tn_build *b, const tn_node *n) { return compose_conv(b, n, 1); }
static tn_node *compose_conv2d(tn_build *b, const tn_node *n) { return compose_conv(b, n, 2); }

/* conv1d(x, weight, bias, stride, padding, dilation, groups): cross-correlation of x [batch, channels, length] (or without
 * the batch) with weight [out, channels / groups, kernel]; bias [out] or NULL. */
const tn_op_impl tn_impl_conv1d = {
    .infer = infer_conv1d,
    .compose = compose_conv1d,
    .cases = "tol=1e-5 atol=1e-5; [2,3,7] [2,3,3] [2] stride=2 padding=1; [4,6] [4,2,2] - dilation=2 groups=2; "
             "error=fit [1,1,2] [1,1,3] -; error=groups [1,3,5] [2,2,2] -; error=dimensions [1,3,5] [2,3] -"};

/* conv2d(x, weight, bias, stride, padding, dilation, groups): cross-correlation of x [batch, channels, height, width] (or
 * without the batch) with weight [out, channels / groups, kernel height, kernel width]; bias [out] or NULL. */
const tn_op_impl tn_impl_conv2d = {
    .infer = infer_conv2d,
    .compose = compose_conv2d,
    .cases = "tol=1e-5 atol=1e-5; [2,2,4,5] [3,2,3,2] [3]; [1,3,5,4] [2,3,3,3] [2] stride=(2,2) padding=(1,1); "
             "[1,2,5,6] [2,2,2,2] - stride=(1,2) padding=(1,0) dilation=(2,1); [1,4,3,3] [2,2,2,2] [2] groups=2; "
             "[2,3,4,4] [3,1,3,3] [3] padding=(1,1) groups=3; [1,2,3,4] [4,1,2,2] - groups=2; "
             "[2,3,3,4] [2,3,1,1] [2]; [1,3,5,4] [2,3,1,1] - stride=(2,2); [2,4,4] [3,2,2,2] [3]; "
             "[0,2,4,4] [3,2,2,2] -; error=fit [1,1,2,2] [1,1,3,3] -; error=bias [1,1,3,3] [2,1,2,2] [3]; "
             "error=groups [1,4,3,3] [3,2,2,2] - groups=2; error=without [3,3] [2,3,2,2] -"};

/* ---- conv_transpose2d --------------------------------------------------------------------------------------------------------- */

static window transposed_window(const int64_t *i, const tn_node *weight) {
    return (window){.kernel = {weight->shape[2], weight->shape[3]},
                    .stride = {i[TN_CONV_TRANSPOSE2D_STRIDE], i[TN_CONV_TRANSPOSE2D_STRIDE + 1]},
                    .padding = {i[TN_CONV_TRANSPOSE2D_PADDING], i[TN_CONV_TRANSPOSE2D_PADDING + 1]},
                    .dilation = {i[TN_CONV_TRANSPOSE2D_DILATION], i[TN_CONV_TRANSPOSE2D_DILATION + 1]}};
}

static tn_status check_output_padding(const tn_infer *c, const window *w) {
    const int64_t *extra = c->attrs->i + TN_CONV_TRANSPOSE2D_OUTPUT_PADDING;
    for (int a = 0; a < 2; a++) {
        if (extra[a] >= 0 && (extra[a] < w->stride[a] || extra[a] < w->dilation[a])) continue;
        return tn_fail(TN_ERR_ARGUMENT,
                       "conv_transpose2d: an output_padding of %lld: it must be less than stride %lld or dilation %lld",
                       (long long)extra[a], (long long)w->stride[a], (long long)w->dilation[a]);
    }
    return TN_OK;
}

static tn_status infer_conv_transpose2d(tn_infer *c) {
    const tn_node *x = c->in[0], *weight = c->in[1];
    const int64_t *i = c->attrs->i, *extra = i + TN_CONV_TRANSPOSE2D_OUTPUT_PADDING;
    int64_t groups = i[TN_CONV_TRANSPOSE2D_GROUPS], size[2];
    char xt[96], wt[96];
    TRY(check_same_dtype(c));
    TRY(check_images(c, 2));
    bool fits = weight->rank == 4 && groups >= 1 && weight->shape[0] == x->shape[channel_dim(x, 2)];
    if (!fits || weight->shape[0] % groups)
        return tn_fail(TN_ERR_SHAPE,
                       "conv_transpose2d: input %s, weight %s and %lld groups do not fit: the weight is [in channels, "
                       "out channels / groups, kernel height, kernel width]",
                       tn_shape_text(x, xt, sizeof xt), tn_shape_text(weight, wt, sizeof wt), (long long)groups);
    TRY(check_bias(c, weight->shape[1] * groups));
    window w = transposed_window(i, weight);
    TRY(check_window(c, &w, 0));
    TRY(check_output_padding(c, &w));
    for (int a = 0; a < 2; a++) {
        size[a] = (x->shape[x->rank - 2 + a] - 1) * w.stride[a] - 2 * w.padding[a] + reach(&w, a) + extra[a];
        if (size[a] < 1)
            return tn_fail(TN_ERR_SHAPE, "conv_transpose2d: the result's extent %d would be %lld", a,
                           (long long)size[a]);
    }
    infer_images(c, 2, weight->shape[1] * groups, size);
    return TN_OK;
}

/* What each input pixel contributes to its window: [n, out channels, kernel height, kernel width, h, w]. */
static tn_node *contributions(tn_build *b, tn_node *x, tn_node *weight, int64_t groups) {
    if (!x) return NULL;
    int64_t n = x->shape[0], depth = weight->shape[0] / groups, pixels = x->shape[2] * x->shape[3];
    int64_t filters = weight->shape[1] * weight->shape[2] * weight->shape[3];
    tn_node *matrix = tn_b_reshape(b, weight, (int64_t[]){groups, depth, filters}, 3);
    tn_node *pixel = tn_b_reshape(b, x, (int64_t[]){n, groups, depth, pixels}, 4);
    tn_node *product = tn_b_matmul_batched(b, tn_b_transpose(b, matrix, -2, -1), pixel);
    return tn_b_view(
        b, product,
        (int64_t[]){n, weight->shape[1] * groups, weight->shape[2], weight->shape[3], x->shape[2], x->shape[3]}, 6);
}

/* Sums the windows into an image of `size`. Beyond a whole step of the stride the windows would not be as many as the input's
 * pixels: then the uncut image is made first. */
static tn_node *fold_to(tn_build *b, tn_node *y, const window *w, const int64_t *size, const int64_t *extra) {
    if (extra[0] < w->stride[0] && extra[1] < w->stride[1])
        return tn_b_fold_windows2d(b, y, w->kernel, w->stride, w->padding, w->dilation, size);
    int64_t whole[2], pads[4];
    for (int a = 0; a < 2; a++) {
        whole[a] = size[a] + 2 * w->padding[a] - extra[a];
        pads[2 * (1 - a)] = -w->padding[a];
        pads[2 * (1 - a) + 1] = extra[a] - w->padding[a];
    }
    tn_node *full = tn_b_fold_windows2d(b, y, w->kernel, w->stride, (int64_t[]){0, 0}, w->dilation, whole);
    return tn_b_pad(b, full, pads, 4, 0.0);
}

static tn_node *compose_conv_transpose2d(tn_build *b, const tn_node *n) {
    tn_node *weight = n->in[1], *x = as_images(b, n->in[0], 2);
    window w = transposed_window(n->i, weight);
    tn_node *y = contributions(b, x, weight, n->i[TN_CONV_TRANSPOSE2D_GROUPS]);
    y = fold_to(b, y, &w, n->shape + n->rank - 2, n->i + TN_CONV_TRANSPOSE2D_OUTPUT_PADDING);
    return add_bias(b, n->rank == 4 ? y : tn_b_view(b, y, n->shape, n->rank), n->in[2], 2);
}

/* conv_transpose2d(x, weight, bias, stride, padding, output_padding, groups, dilation): the adjoint of conv2d, as a layer: x
 * [batch, channels, height, width] (or without the batch), weight [channels, out / groups, kernel height, kernel width]. */
const tn_op_impl tn_impl_conv_transpose2d = {
    .infer = infer_conv_transpose2d,
    .compose = compose_conv_transpose2d,
    .cases = "tol=1e-5 atol=1e-5; [2,2,3,2] [2,3,2,2] [3]; "
             "[1,2,2,3] [2,2,3,3] [2] stride=(2,2) padding=(1,1) output_padding=(1,1); "
             "[1,4,2,2] [4,1,2,3] - stride=(2,3) groups=2 dilation=(2,1); "
             "[1,1,2,2] [1,2,2,2] [2] padding=(1,1) output_padding=(1,1) dilation=(2,2); [2,3,2] [2,1,2,2] -; "
             "error=output_padding [1,1,2,2] [1,1,2,2] - output_padding=(1,0); error=weight [1,2,2,2] [3,1,2,2] -"};

/* ---- pooling ------------------------------------------------------------------------------------------------------------------- */

/* Attributes of both poolings begin so: kernel_size, stride (0: the kernel's), padding. */
enum { POOL_KERNEL = 0, POOL_STRIDE = 2, POOL_PADDING = 4 };
_Static_assert((int)POOL_KERNEL == (int)TN_MAX_POOL2D_KERNEL_SIZE &&
                   (int)POOL_KERNEL == (int)TN_AVG_POOL2D_KERNEL_SIZE &&
                   (int)POOL_STRIDE == (int)TN_MAX_POOL2D_STRIDE && (int)POOL_STRIDE == (int)TN_AVG_POOL2D_STRIDE &&
                   (int)POOL_PADDING == (int)TN_MAX_POOL2D_PADDING && (int)POOL_PADDING == (int)TN_AVG_POOL2D_PADDING,
               "both poolings begin with these attributes");

static window pool_window(const int64_t *i, const int64_t *dilation) {
    window w = {.dilation = {dilation ? dilation[0] : 1, dilation ? dilation[1] : 1}};
    for (int a = 0; a < 2; a++) {
        w.kernel[a] = i[POOL_KERNEL + a];
        w.stride[a] = i[POOL_STRIDE + a] ? i[POOL_STRIDE + a] : w.kernel[a];
        w.padding[a] = i[POOL_PADDING + a];
    }
    return w;
}

static tn_status infer_pool(tn_infer *c, const window *w, bool ceil_mode) {
    const tn_node *x = c->in[0];
    int64_t size[2];
    TRY(tn_need_float(c, 0));
    TRY(check_images(c, 2));
    TRY(check_window(c, w, 0));
    for (int a = 0; a < 2; a++) {
        int64_t extent = x->shape[x->rank - 2 + a];
        if (w->padding[a] > w->kernel[a] / 2)
            return tn_fail(TN_ERR_ARGUMENT, "%s: padding %lld is more than half of the kernel, %lld", c->row->name,
                           (long long)w->padding[a], (long long)w->kernel[a]);
        size[a] = places(w, a, extent, ceil_mode);
        if (size[a] < 0) return kernel_too_large(c, w, a, extent);
    }
    infer_images(c, 2, x->shape[channel_dim(x, 2)], size);
    return TN_OK;
}

/* Rows and columns that must be added behind x so that windows rounded up find something. */
static void missing_behind(const tn_node *n, const tn_node *x, const window *w, int64_t *extra) {
    for (int a = 0; a < 2; a++) {
        int64_t need = (n->shape[n->rank - 2 + a] - 1) * w->stride[a] + reach(w, a);
        extra[a] = tn_max64(0, need - (x->shape[x->rank - 2 + a] + 2 * w->padding[a]));
    }
}

/* What the window sees as [n, c, kernel, places]; x [n, c, h, w]. */
static tn_node *pool_columns(tn_build *b, const tn_node *n, tn_node *x, const window *w, double value) {
    int64_t extra[2];
    if (!x) return NULL;
    missing_behind(n, x, w, extra);
    int64_t shape[4] = {x->shape[0], x->shape[1], w->kernel[0] * w->kernel[1],
                        n->shape[n->rank - 2] * n->shape[n->rank - 1]};
    if (extra[0] || extra[1]) x = tn_b_pad(b, x, (int64_t[]){0, extra[1], 0, extra[0]}, 4, value);
    return tn_b_view(b, tn_b_windows2d(b, x, w->kernel, w->stride, w->padding, w->dilation, value), shape, 4);
}

static window max_window(const int64_t *i) { return pool_window(i, i + TN_MAX_POOL2D_DILATION); }

static tn_status infer_max_pool2d(tn_infer *c) {
    window w = max_window(c->attrs->i);
    return infer_pool(c, &w, c->attrs->i[TN_MAX_POOL2D_CEIL_MODE]);
}

static tn_node *compose_max_pool2d(tn_build *b, const tn_node *n) {
    window w = max_window(n->i);
    int64_t over = 2;
    tn_node *seen = pool_columns(b, n, as_images(b, n->in[0], 2), &w, -INFINITY);
    return tn_b_view(b, tn_b_amax(b, seen, &over, 1, false), n->shape, n->rank);
}

/* The first greatest element of each window takes its whole gradient. */
static tn_status grad_max_pool2d(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    window w = max_window(n->i);
    tn_node *x = as_images(b, n->in[0], 2), *seen = pool_columns(b, n, x, &w, -INFINITY);
    if (!seen) return b->status;
    int64_t taps = seen->shape[2], high = n->shape[n->rank - 2], across = n->shape[n->rank - 1], extra[2];
    missing_behind(n, x, &w, extra);
    tn_node *number = tn_b_view(b, tn_b_arange(b, 0.0, (double)taps, 1.0, TN_I64), (int64_t[]){taps, 1}, 2);
    tn_node *chosen = tn_b_eq(b, tn_b_argmax(b, seen, (int64_t[]){2}, 1, true), number);
    tn_node *g = tn_b_reshape(b, dy, (int64_t[]){x->shape[0], x->shape[1], 1, high * across}, 4);
    g = tn_b_where(b, chosen, g, tn_b_const(b, 0.0, dy));
    g = tn_b_view(b, g, (int64_t[]){x->shape[0], x->shape[1], w.kernel[0], w.kernel[1], high, across}, 6);
    g = tn_b_fold_windows2d(b, g, w.kernel, w.stride, w.padding, w.dilation,
                            (int64_t[]){x->shape[2] + extra[0], x->shape[3] + extra[1]});
    if (extra[0] || extra[1]) g = tn_b_pad(b, g, (int64_t[]){0, -extra[1], 0, -extra[0]}, 4, 0.0);
    grads[0] = tn_b_view(b, g, n->in[0]->shape, n->in[0]->rank);
    return b->status;
}

/* max_pool2d(x, kernel_size, stride, padding, dilation, ceil_mode): the greatest value of each window of x [batch, channels,
 * height, width] (or without the batch); stride 0 means the kernel's size. */
const tn_op_impl tn_impl_max_pool2d = {
    .infer = infer_max_pool2d,
    .compose = compose_max_pool2d,
    .grad = grad_max_pool2d,
    .cases = "types=f32,f64; [2,2,4,5] kernel_size=(2,2); "
             "[1,2,5,6] kernel_size=(3,2) stride=(2,1) padding=(1,1); "
             "[1,1,6,6] kernel_size=(2,2) stride=(2,2) dilation=(2,3); "
             "[1,2,5,5] kernel_size=(2,2) stride=(2,2) ceil_mode=true; "
             "[1,1,6,7] kernel_size=(3,3) stride=(3,2) padding=(1,1) ceil_mode=true; "
             "[2,4,4] kernel_size=(2,2) stride=(1,1); error=half [1,1,4,4] kernel_size=(2,2) padding=(2,0); "
             "error=fit [1,1,2,2] kernel_size=(3,3); error=floating [1,1,2,2]:i64 kernel_size=(1,1)"};

static tn_status infer_avg_pool2d(tn_infer *c) {
    window w = pool_window(c->attrs->i, NULL);
    if (c->attrs->i[TN_AVG_POOL2D_DIVISOR_OVERRIDE] < 0)
        return tn_fail(TN_ERR_ARGUMENT, "avg_pool2d: divisor_override must not be negative");
    return infer_pool(c, &w, c->attrs->i[TN_AVG_POOL2D_CEIL_MODE]);
}

/* Elements of each window along an axis that count: those inside the image, or inside image and padding. */
static tn_node *counted(tn_build *b, const tn_node *n, const window *w, int axis, bool padding_counts) {
    int64_t size = n->in[0]->shape[n->rank - 2 + axis], pad = w->padding[axis];
    double count = (double)n->shape[n->rank - 2 + axis];
    tn_node *first =
        tn_b_arange(b, (double)-pad, count * (double)w->stride[axis] - (double)pad, (double)w->stride[axis], TN_I64);
    tn_node *end = tn_b_offset(b, first, (double)w->kernel[axis]);
    if (!end) return NULL;
    end = tn_b_minimum(b, end, tn_b_const(b, (double)(padding_counts ? size + pad : size), end));
    if (!padding_counts) first = tn_b_maximum(b, first, tn_b_const(b, 0.0, first));
    return tn_b_cast(b, tn_b_sub(b, end, first), (tn_dtype)n->dtype);
}

static tn_node *compose_avg_pool2d(tn_build *b, const tn_node *n) {
    window w = pool_window(n->i, NULL);
    int64_t over = 2, divisor = n->i[TN_AVG_POOL2D_DIVISOR_OVERRIDE];
    bool varies = n->i[TN_AVG_POOL2D_CEIL_MODE] || n->i[TN_AVG_POOL2D_COUNT_EXCLUDE_PAD];
    tn_node *sum = tn_b_sum(b, pool_columns(b, n, as_images(b, n->in[0], 2), &w, 0.0), &over, 1, false);
    sum = tn_b_view(b, sum, n->shape, n->rank);
    if (divisor || !varies) return tn_b_scale(b, sum, 1.0 / (double)(divisor ? divisor : w.kernel[0] * w.kernel[1]));
    bool padding_counts = !n->i[TN_AVG_POOL2D_COUNT_EXCLUDE_PAD];
    tn_node *rows = tn_b_unsqueeze(b, counted(b, n, &w, 0, padding_counts), 1);
    return tn_b_div(b, sum, tn_b_mul(b, rows, counted(b, n, &w, 1, padding_counts)));
}

/* avg_pool2d(x, kernel_size, stride, padding, ceil_mode, count_exclude_pad, divisor_override): the mean of each window of x
 * [batch, channels, height, width] (or without the batch); stride 0 means the kernel's size. Zeros of the padding count
 * unless count_exclude_pad (PyTorch's count_include_pad turned round); divisor_override, if not 0, divides instead. */
const tn_op_impl tn_impl_avg_pool2d = {
    .infer = infer_avg_pool2d,
    .compose = compose_avg_pool2d,
    .cases = "tol=1e-5 atol=1e-5; [2,2,4,5] kernel_size=(2,2); "
             "[1,2,5,4] kernel_size=(3,2) stride=(2,1) padding=(1,1); "
             "[1,2,5,4] kernel_size=(3,2) stride=(2,1) padding=(1,1) count_exclude_pad=true; "
             "[1,1,6,7] kernel_size=(3,3) stride=(2,2) padding=(1,0) ceil_mode=true; "
             "[1,1,6,6] kernel_size=(3,3) stride=(2,3) padding=(1,1) ceil_mode=true count_exclude_pad=true; "
             "[2,5,5] kernel_size=(2,2) stride=(2,2) divisor_override=3; "
             "error=half [1,1,4,4] kernel_size=(2,2) padding=(2,0); "
             "error=negative [1,1,4,4] kernel_size=(2,2) divisor_override=-1"};

static tn_status infer_adaptive_avg_pool2d(tn_infer *c) {
    const tn_node *x = c->in[0];
    const int64_t *size = c->attrs->i;
    TRY(tn_need_float(c, 0));
    TRY(check_images(c, 2));
    if (size[0] < 1 || size[1] < 1)
        return tn_fail(TN_ERR_ARGUMENT, "adaptive_avg_pool2d: output_size must be at least 1 × 1");
    if (x->shape[x->rank - 1] < 1 || x->shape[x->rank - 2] < 1)
        return tn_fail(TN_ERR_SHAPE, "adaptive_avg_pool2d: the image is empty");
    infer_images(c, 2, x->shape[channel_dim(x, 2)], size);
    return TN_OK;
}

/* [out, in]: row i averages the inputs from ⌊i·in/out⌋ to ⌈(i + 1)·in/out⌉. */
static tn_node *averaging_matrix(tn_build *b, int64_t in, int64_t out, const tn_node *like) {
    tn_node *i = tn_b_view(b, tn_b_arange(b, 0.0, (double)out, 1.0, TN_I64), (int64_t[]){out, 1}, 2);
    tn_node *place = tn_b_arange(b, 0.0, (double)in, 1.0, TN_I64);
    tn_node *first = tn_b_floor_divide(b, tn_b_scale(b, i, (double)in), tn_b_const(b, (double)out, i));
    tn_node *end = tn_b_floor_divide(b, tn_b_offset(b, tn_b_scale(b, i, (double)in), (double)(in + out - 1)),
                                     tn_b_const(b, (double)out, i));
    tn_node *inside = tn_b_bitwise_and(b, tn_b_le(b, first, place), tn_b_lt(b, place, end));
    tn_dtype t = (tn_dtype)like->dtype;
    return tn_b_div(b, tn_b_cast(b, inside, t), tn_b_cast(b, tn_b_sub(b, end, first), t));
}

static tn_node *compose_adaptive_avg_pool2d(tn_build *b, const tn_node *n) {
    const tn_node *given = n->in[0];
    tn_node *x = as_images(b, n->in[0], 2);
    int64_t h = given->shape[given->rank - 2], w = given->shape[given->rank - 1], oh = n->i[0], ow = n->i[1];
    if (!x) return NULL;
    if (h % oh == 0 && w % ow == 0) {
        tn_node *tiles = tn_b_reshape(b, x, (int64_t[]){x->shape[0], x->shape[1], oh, h / oh, ow, w / ow}, 6);
        return tn_b_view(b, tn_b_mean(b, tiles, (int64_t[]){3, 5}, 2, false), n->shape, n->rank);
    }
    tn_node *across = tn_b_matmul_batched(b, x, tn_b_transpose(b, averaging_matrix(b, w, ow, n), -2, -1));
    tn_node *y = tn_b_matmul_batched(b, averaging_matrix(b, h, oh, n), across);
    return n->rank == 4 ? y : tn_b_view(b, y, n->shape, n->rank);
}

/* adaptive_avg_pool2d(x, output_size): the mean of each of height × width equal (or overlapping by one) parts of x [batch,
 * channels, height, width] (or without the batch). */
const tn_op_impl tn_impl_adaptive_avg_pool2d = {
    .infer = infer_adaptive_avg_pool2d,
    .compose = compose_adaptive_avg_pool2d,
    .cases = "tol=1e-5 atol=1e-5; [2,2,4,6] output_size=(1,1); [1,2,4,6] output_size=(2,3); "
             "[1,2,4,6] output_size=(3,4); [2,5,3] output_size=(2,2); error=least [1,1,4,4] output_size=(0,1); "
             "error=empty [1,1,0,4] output_size=(1,1)"};
