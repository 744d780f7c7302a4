/* op_pool.c — pooling of images; im2col and its adjoint.
 *
 * The gradient of max pooling runs over input pixels, not over windows: each pixel tests which of the windows that
 * cover it selected it. So no two threads write the same element. */
#include <math.h>
#include <string.h>

#include "ops/ops_common.h"

/* ---- shapes ------------------------------------------------------------------------------------------------------ */

/* Attributes of both poolings begin so: kernel_size, stride (0: the kernel's), padding. */
enum { POOL_KERNEL = 0, POOL_STRIDE = 2, POOL_PADDING = 4 };
_Static_assert((int)POOL_KERNEL == (int)TN_MAX_POOL2D_KERNEL_SIZE &&
                   (int)POOL_KERNEL == (int)TN_AVG_POOL2D_KERNEL_SIZE &&
                   (int)POOL_STRIDE == (int)TN_MAX_POOL2D_STRIDE && (int)POOL_STRIDE == (int)TN_AVG_POOL2D_STRIDE &&
                   (int)POOL_PADDING == (int)TN_MAX_POOL2D_PADDING && (int)POOL_PADDING == (int)TN_AVG_POOL2D_PADDING,
               "both poolings begin with these attributes");

static tn_window pool_window(const int64_t *i, const int64_t *dilation) {
    tn_window w = {.dilation = {dilation ? dilation[0] : 1, dilation ? dilation[1] : 1}};
    for (int a = 0; a < 2; a++) {
        w.kernel[a] = i[POOL_KERNEL + a];
        w.stride[a] = i[POOL_STRIDE + a] ? i[POOL_STRIDE + a] : w.kernel[a];
        w.padding[a] = i[POOL_PADDING + a];
    }
    return w;
}

static tn_status infer_pool(tn_infer *c, const tn_window *w, bool ceil_mode) {
    const tn_node *x = c->in[0];
    int64_t size[2];
    if (x->dtype == TN_BOOL) return tn_refuse_dtype(c, 0, "floating point or an integer type");
    TRY(tn_nchw_check(c, 2));
    TRY(tn_window_check(c, w, 0));
    for (int a = 0; a < 2; a++) {
        int64_t extent = x->shape[x->rank - 2 + a];
        if (w->padding[a] > w->kernel[a] / 2)
            return tn_fail(TN_ERR_ARGUMENT, "%s: padding %lld exceeds half of the kernel size, %lld", c->row->name,
                           (long long)w->padding[a], (long long)w->kernel[a]);
        size[a] = tn_window_out_size(w, a, extent, ceil_mode);
        if (size[a] < 0) return tn_window_too_large(c, w, a, extent);
    }
    tn_nchw_infer(c, 2, x->shape[tn_nchw_channel_dim(x, 2)], size);
    return TN_OK;
}

static const int64_t *pixels_of(const tn_node *n) { return n->shape + n->rank - 2; }

static const int64_t taps_dims[2] = {2, 3}; /* of what a window sees: [n, c, kernel, kernel, out_h, out_w] */

/* ---- the way back ------------------------------------------------------------------------------------------------ */

/* Row-major numbers of the taps at rows `down` and columns `across`, which lie inside the image. */
static tn_node *tap_numbers(tn_build *b, const tn_window *w, tn_node *down, tn_node *across) {
    return tn_b_add(b, tn_b_scale(b, down, (double)w->kernel[1]), across);
}

static tn_node *steps(tn_build *b, int64_t first, int64_t count, int64_t step, const int64_t *shape, int rank) {
    return tn_b_view(b, tn_b_arange(b, (double)first, (double)(first + count * step), (double)step, TN_I64), shape,
                     rank);
}

/* g where the window chose this tap; all of it when every tap has its share. */
static tn_node *chosen(tn_build *b, tn_node *g, tn_node *index, tn_node *number) {
    return index ? tn_b_where(b, tn_b_eq(b, index, number), g, tn_b_const(b, 0.0, g)) : g;
}

/* Windows that lie side by side: each pixel has one. */
static tn_node *back_in_tiles(tn_build *b, tn_node *g, tn_node *index, const tn_window *w, const int64_t *size) {
    const int64_t *s = g->shape, *k = w->kernel;
    int64_t one[6] = {s[0], s[1], s[2], 1, s[3], 1}, tiles[6] = {s[0], s[1], s[2], k[0], s[3], k[1]};
    tn_node *number =
        tap_numbers(b, w, steps(b, 0, k[0], 1, (int64_t[]){k[0], 1, 1}, 3), steps(b, 0, k[1], 1, (int64_t[]){k[1]}, 1));
    tn_node *each = chosen(b, tn_b_reshape(b, g, one, 6), index ? tn_b_reshape(b, index, one, 6) : NULL, number);
    tn_node *image =
        tn_b_reshape(b, tn_b_expand(b, each, tiles, 6), (int64_t[]){s[0], s[1], s[2] * k[0], s[3] * k[1]}, 4);
    int64_t pads[4];
    for (int a = 0; a < 2; a++) {
        pads[2 * (1 - a)] = -w->padding[a];
        pads[2 * (1 - a) + 1] = size[a] + w->padding[a] - s[2 + a] * k[a];
    }
    return tn_b_padded(b, image, pads, 0.0);
}

static tn_node *back_in_phase(tn_build *b, tn_node *g, tn_node *index, const tn_window *w, const tn_phase *p) {
    int64_t shape[4] = {g->shape[0], g->shape[1], p->pixels[0], p->pixels[1]}, last[2];
    if (tn_phase_is_empty(p)) return tn_b_expand(b, tn_b_const(b, 0.0, g), shape, 4);
    for (int a = 0; a < 2; a++)
        last[a] = p->first[a] + w->stride[a] * (p->taps[a] - 1);
    tn_node *seen = tn_b_im2col_phase(b, g, p, 0.0), *from = index ? tn_b_im2col_phase(b, index, p, -1.0) : NULL;
    tn_node *number =
        tap_numbers(b, w, steps(b, last[0], p->taps[0], -w->stride[0], (int64_t[]){p->taps[0], 1, 1, 1}, 4),
                    steps(b, last[1], p->taps[1], -w->stride[1], (int64_t[]){p->taps[1], 1, 1}, 3));
    return tn_b_sum(b, chosen(b, seen, from, number), taps_dims, 2, false);
}

static tn_node *back_in_phases(tn_build *b, tn_node *g, tn_node *index, const tn_window *w, const int64_t *size) {
    tn_node *parts[TN_MAX_PHASES * TN_MAX_PHASES];
    for (int64_t k = 0; k < w->stride[0] * w->stride[1]; k++) {
        int64_t number[2] = {k / w->stride[1], k % w->stride[1]};
        tn_phase p = tn_phase_of(w, number, size, g->shape + 2);
        parts[k] = back_in_phase(b, g, index, w, &p);
    }
    return tn_b_join_phases(b, parts, w, size);
}

/* Any window: what each tap has of each result, folded. */
static tn_node *back_by_folding(tn_build *b, tn_node *g, tn_node *index, const tn_window *w, const int64_t *size) {
    const int64_t *s = g->shape, *k = w->kernel;
    int64_t one[6] = {s[0], s[1], 1, 1, s[2], s[3]}, all[6] = {s[0], s[1], k[0], k[1], s[2], s[3]};
    tn_node *number = tap_numbers(b, w, steps(b, 0, k[0], 1, (int64_t[]){k[0], 1, 1, 1}, 4),
                                  steps(b, 0, k[1], 1, (int64_t[]){k[1], 1, 1}, 3));
    tn_node *each = chosen(b, tn_b_reshape(b, g, one, 6), index ? tn_b_reshape(b, index, one, 6) : NULL, number);
    return tn_b_col2im(b, tn_b_expand(b, each, all, 6), w, size);
}

/* The gradient g of the results [n, c, output pixels] at the pixels of n's input: to the tap that index names, or to
 * all. */
static tn_node *back(tn_build *b, const tn_node *n, tn_node *g, tn_node *index, const tn_window *w) {
    const tn_node *x = n->in[0];
    const int64_t *size = x->shape + x->rank - 2;
    if (!g || (!index && b->status != TN_OK)) return NULL;
    bool tiles =
        w->dilation[0] == 1 && w->dilation[1] == 1 && w->stride[0] == w->kernel[0] && w->stride[1] == w->kernel[1];
    tn_node *dx = tiles                     ? back_in_tiles(b, g, index, w, size)
                  : tn_window_has_phases(w) ? back_in_phases(b, g, index, w, size)
                                            : back_by_folding(b, g, index, w, size);
    return tn_b_reshape(b, dx, x->shape, x->rank);
}

/* ---- max_pool2d -------------------------------------------------------------------------------------------------- */

static tn_window max_window(const int64_t *i) { return pool_window(i, i + TN_MAX_POOL2D_DILATION); }

static tn_status infer_max_pool2d(tn_infer *c) {
    tn_window w = max_window(c->attrs->i);
    return infer_pool(c, &w, c->attrs->i[TN_MAX_POOL2D_CEIL_MODE]);
}

/* Less than or equal to every number of the type: what the padding holds. */
static double least_of(tn_dtype t) {
    int bits = (int)(8 * tn_dtype_size(t));
    if (tn_dtype_is_float(t)) return -INFINITY;
    return t == TN_U8 || t == TN_U16 || t == TN_U32 || t == TN_U64 ? 0 : -ldexp(1, bits - 1);
}

/* What the windows of max_pool2d see: [n, c, kernel, kernel, out_h, out_w]. */
static tn_node *im2col_for_max(tn_build *b, const tn_node *n, const tn_window *w) {
    return tn_b_im2col(b, tn_b_as_nchw(b, n->in[0], 2), w, pixels_of(n), least_of((tn_dtype)n->in[0]->dtype));
}

/* Bytes as floats, for which there are kernels wherever there are none for bytes. */
static tn_node *pool_as_floats(tn_build *b, const tn_node *n) {
    const tn_window w = max_window(n->i);
    tn_max_pool2d_options o = TN_MAX_POOL2D_DEFAULTS;
    memcpy(o.stride, w.stride, sizeof o.stride);
    memcpy(o.padding, w.padding, sizeof o.padding);
    memcpy(o.dilation, w.dilation, sizeof o.dilation);
    o.ceil_mode = n->i[TN_MAX_POOL2D_CEIL_MODE];
    tn_node *y = tn_b_max_pool2d(b, tn_b_cast(b, n->in[0], TN_F32), w.kernel, &o);
    return tn_b_cast(b, tn_b_maximum_scalar(b, y, least_of((tn_dtype)n->dtype)), (tn_dtype)n->dtype);
}

static tn_node *compose_max_pool2d(tn_build *b, const tn_node *n) {
    tn_window w = max_window(n->i);
    if (tn_dtype_is_byte(n->dtype)) return pool_as_floats(b, n);
    tn_node *seen = im2col_for_max(b, n, &w);
    return tn_b_view(b, tn_b_amax(b, seen, taps_dims, 2, false), n->shape, n->rank);
}

/* The first greatest element of each window takes its whole gradient. */
static tn_node *grad_max_pool2d(tn_build *b, const tn_node *n, tn_node *dy) {
    tn_window w = max_window(n->i);
    tn_node *index = tn_b_argmax(b, im2col_for_max(b, n, &w), taps_dims, 2, false);
    return index ? back(b, n, tn_b_as_nchw(b, dy, 2), index, &w) : NULL;
}

/* max_pool2d(x, kernel_size, stride, padding, dilation, ceil_mode): the greatest value of each window of x [batch,
 * channels, height, width] (or without the batch); stride 0 means the kernel's size. */
OP_CODE(max_pool2d, .class_ = TN_NATIVE, .keeps_half = true, .infer = infer_max_pool2d, .compose = compose_max_pool2d,
        .grad_first = grad_max_pool2d,
        .cases = "types=f32,f64; [2,2,4,5] kernel_size=(2,2); "
                 "[1,2,5,6] kernel_size=(3,2) stride=(2,1) padding=(1,1); "
                 "[1,1,6,6] kernel_size=(2,2) stride=(2,2) dilation=(2,3); "
                 "[1,2,5,5] kernel_size=(2,2) stride=(2,2) ceil_mode=true; "
                 "[1,1,6,7] kernel_size=(3,3) stride=(3,2) padding=(1,1) ceil_mode=true; "
                 "[2,4,4] kernel_size=(2,2) stride=(1,1); error=half [1,1,4,4] kernel_size=(2,2) padding=(2,0); "
                 "types=i64,u8; [1,2,5,6]@-9..9 kernel_size=(3,2) stride=(2,1) padding=(1,1); types=f32,f64; "
                 "error=fit [1,1,2,2] kernel_size=(3,3); error=floating [1,1,2,2]:bool kernel_size=(1,1)");

/* Place of tap `number` of each window along an axis, in the image: the window's first place and dilation steps on. */
static tn_node *tap_pixel(tn_build *b, const tn_node *n, const tn_window *w, int axis, tn_node *number) {
    int64_t count = pixels_of(n)[axis], pad = w->padding[axis], step = w->stride[axis];
    int64_t shape[2] = {count, 1};
    tn_node *first = steps(b, -pad, count, step, shape, axis ? 1 : 2);
    return tn_b_add(b, tn_b_mul(b, number, tn_b_const(b, (double)w->dilation[axis], number)), first);
}

/* A window without a number above −∞, which padding is, has its first tap as the greatest. If that lies before the
 * image, this is the window's first place inside. */
static tn_node *first_inside(tn_build *b, tn_node *place, int64_t dilation) {
    if (!place) return NULL;
    tn_node *first = tn_b_remainder(b, place, tn_b_const(b, (double)dilation, place));
    return tn_b_where(b, tn_b_lt(b, place, tn_b_const(b, 0, place)), first, place);
}

static tn_node *compose_max_pool2d_indices(tn_build *b, const tn_node *n) {
    tn_window w = max_window(n->i);
    const tn_node *x = n->in[0];
    tn_node *tap = tn_b_argmax(b, im2col_for_max(b, n, &w), taps_dims, 2, false);
    tn_node *across = tn_b_const(b, (double)w.kernel[1], tap);
    tn_node *row = tap_pixel(b, n, &w, 0, tn_b_floor_divide(b, tap, across));
    tn_node *column = tap_pixel(b, n, &w, 1, tn_b_remainder(b, tap, across));
    row = first_inside(b, row, w.dilation[0]);
    column = first_inside(b, column, w.dilation[1]);
    tn_node *width = tn_b_const(b, (double)x->shape[x->rank - 1], row);
    return tn_b_view(b, tn_b_add(b, tn_b_mul(b, row, width), column), n->shape, n->rank);
}

/* max_pool2d_indices(x, kernel_size, stride, padding, dilation, ceil_mode): the index of each
 * maximum of max_pool2d in its channel's image, row · width + column in i64; of equal ones the first. PyTorch's
 * return_indices. */
OP_CODE(max_pool2d_indices, .infer = infer_max_pool2d, .gives = TN_GIVES(TN_I64), .compose = compose_max_pool2d_indices,
        .grad = tn_grad_none,
        .cases = "types=f32,f64,i64; [2,2,4,5] kernel_size=(2,2); "
                 "[1,2,5,6] kernel_size=(3,2) stride=(2,1) padding=(1,1); "
                 "[1,1,6,6] kernel_size=(2,2) stride=(2,2) dilation=(2,3); [2,5,5] kernel_size=(2,2) ceil_mode=true; "
                 "error=fit [1,1,2,2] kernel_size=(3,3)");

/* ---- avg_pool2d -------------------------------------------------------------------------------------------------- */

static tn_status infer_avg_pool2d(tn_infer *c) {
    tn_window w = pool_window(c->attrs->i, NULL);
    return infer_pool(c, &w, c->attrs->i[TN_AVG_POOL2D_CEIL_MODE]);
}

/* Elements of each window along an axis that count: those inside the image, or inside image and padding. */
static tn_node *pool_counted(tn_build *b, const tn_node *n, const tn_window *w, int axis, bool padding_counts) {
    int64_t size = n->in[0]->shape[n->rank - 2 + axis], pad = w->padding[axis];
    double count = (double)n->shape[n->rank - 2 + axis];
    tn_node *first =
        tn_b_arange(b, (double)-pad, count * (double)w->stride[axis] - (double)pad, (double)w->stride[axis], TN_I64);
    tn_node *end = tn_b_offset(b, first, (double)w->kernel[axis]);
    if (!end) return NULL;
    end = tn_b_minimum(b, end, tn_b_const(b, (double)(padding_counts ? size + pad : size), end));
    if (!padding_counts) first = tn_b_maximum(b, first, tn_b_const(b, 0.0, first));
    tn_dtype t = (tn_dtype)n->dtype;
    return tn_b_cast(b, tn_b_sub(b, end, first), tn_dtype_is_float(t) ? t : TN_I64);
}

/* x divided by the number of elements in its window. */
static tn_node *divided(tn_build *b, const tn_node *n, const tn_window *w, tn_node *x) {
    int64_t divisor = n->i[TN_AVG_POOL2D_DIVISOR_OVERRIDE];
    bool varies = n->i[TN_AVG_POOL2D_CEIL_MODE] || !n->i[TN_AVG_POOL2D_COUNT_INCLUDE_PAD];
    bool whole = !tn_dtype_is_float((tn_dtype)n->dtype);
    if (divisor || !varies) {
        double by = (double)(divisor ? divisor : w->kernel[0] * w->kernel[1]);
        if (!whole) return tn_b_scale(b, x, 1.0 / by);
        tn_node *wide = tn_dtype_holds((tn_dtype)n->dtype, by) ? x : tn_b_cast(b, x, TN_I64);
        return tn_b_cast_like(b, tn_b_div_trunc(b, wide, tn_b_const(b, by, wide)), n);
    }
    bool padding_counts = n->i[TN_AVG_POOL2D_COUNT_INCLUDE_PAD];
    tn_node *rows = tn_b_unsqueeze(b, pool_counted(b, n, w, 0, padding_counts), 1);
    tn_node *count = tn_b_mul(b, rows, pool_counted(b, n, w, 1, padding_counts));
    return whole ? tn_b_div_trunc(b, x, count) : tn_b_div(b, x, count);
}

/* Sums of the windows of x [batch, channels, h, w]: of floats a depthwise convolution with ones, for which the CPU has
 * a kernel; where windows are few, a reduction over what they see. */
static tn_node *window_sums(tn_build *b, tn_node *x, const tn_window *w, const int64_t *out_size) {
    enum { FEW_WINDOWS = 16 };
    if (!x || x->dtype != TN_F32 || x->shape[1] < 2 || out_size[0] * out_size[1] < FEW_WINDOWS)
        return tn_b_sum(b, tn_b_im2col(b, x, w, out_size, 0.0), taps_dims, 2, false); /* of integers in i64 */
    const int64_t filters[4] = {x->shape[1], 1, w->kernel[0], w->kernel[1]};
    tn_node *ones = tn_b_expand(b, tn_b_const(b, 1.0, x), filters, 4);
    return tn_b_conv2d_forward(b, x, ones, out_size, w->stride, w->padding, w->dilation, x->shape[1]);
}

static tn_node *compose_avg_pool2d(tn_build *b, const tn_node *n) {
    tn_window w = pool_window(n->i, NULL);
    tn_node *sum = window_sums(b, tn_b_as_nchw(b, n->in[0], 2), &w, pixels_of(n));
    if (sum && !tn_same_shape(sum, n)) sum = tn_b_view(b, sum, n->shape, n->rank);
    return tn_b_cast_like(b, divided(b, n, &w, sum), n);
}

static tn_node *grad_avg_pool2d(tn_build *b, const tn_node *n, tn_node *dy) {
    tn_window w = pool_window(n->i, NULL);
    return back(b, n, tn_b_as_nchw(b, divided(b, n, &w, dy), 2), NULL, &w);
}

/* avg_pool2d(x, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override): the mean of each window
 * of x [batch, channels, height, width] (or without the batch); stride 0 means the kernel's size. Zeros of the padding
 * count if count_include_pad; divisor_override, if not 0, divides instead. */
OP_CODE(avg_pool2d, .infer = infer_avg_pool2d, .compose = compose_avg_pool2d, .grad_first = grad_avg_pool2d,
        .cases =
            "tol=1e-5 atol=1e-5; [2,2,4,5] kernel_size=(2,2); "
            "[1,2,5,4] kernel_size=(3,2) stride=(2,1) padding=(1,1); "
            "[1,2,5,4] kernel_size=(3,2) stride=(2,1) padding=(1,1) count_include_pad=false; "
            "[1,1,6,7] kernel_size=(3,3) stride=(2,2) padding=(1,0) ceil_mode=true; "
            "[1,1,6,6] kernel_size=(3,3) stride=(2,3) padding=(1,1) ceil_mode=true count_include_pad=false; "
            "[2,5,5] kernel_size=(2,2) stride=(2,2) divisor_override=3; "
            "[2,5,5] kernel_size=(2,2) divisor_override=-3; types=i64,i32; [1,2,5,4]@-9..9 kernel_size=(3,2) "
            "stride=(2,1) padding=(1,1); [1,1,6,6]@-9..9 kernel_size=(3,3) stride=(2,3) padding=(1,1) ceil_mode=true "
            "count_include_pad=false; [2,5,5]@-9..9 kernel_size=(2,2) divisor_override=3; types=f32,f64; "
            "error=half [1,1,4,4] kernel_size=(2,2) padding=(2,0); error=floating [1,1,4,4]:bool kernel_size=(2,2)");

/* ---- adaptive_avg_pool2d ----------------------------------------------------------------------------------------- */

static tn_status infer_adaptive_avg_pool2d(tn_infer *c) {
    const tn_node *x = c->in[0];
    const int64_t *size = c->attrs->i;
    TRY(tn_need_float(c, 0));
    TRY(tn_nchw_check(c, 2));
    if (size[0] < 1 || size[1] < 1)
        return tn_fail(TN_ERR_ARGUMENT, "adaptive_avg_pool2d: output_size must be at least 1 × 1");
    if (x->shape[x->rank - 1] < 1 || x->shape[x->rank - 2] < 1)
        return tn_fail(TN_ERR_SHAPE, "adaptive_avg_pool2d: the input has an empty spatial dimension");
    tn_nchw_infer(c, 2, x->shape[tn_nchw_channel_dim(x, 2)], size);
    return TN_OK;
}

/* Part i of an extent, of `out` parts: from ⌊i·in/out⌋ to ⌈(i + 1)·in/out⌉. All as columns [out, 1]. */
typedef struct parts {
    tn_node *first, *length;
    int64_t longest;
} parts;

static parts parts_of(tn_build *b, int64_t in, int64_t out) {
    tn_node *i = tn_b_view(b, tn_b_arange(b, 0.0, (double)out, 1.0, TN_I64), (int64_t[]){out, 1}, 2);
    parts p = {.longest = 0};
    p.first = tn_b_floor_divide(b, tn_b_scale(b, i, (double)in), tn_b_const(b, (double)out, i));
    tn_node *end = tn_b_floor_divide(b, tn_b_offset(b, tn_b_scale(b, i, (double)in), (double)(in + out - 1)),
                                     tn_b_const(b, (double)out, i));
    p.length = tn_b_sub(b, end, p.first);
    for (int64_t k = 0; k < out; k++)
        p.longest = tn_max64(p.longest, tn_ceil_div((k + 1) * in, out) - k * in / out);
    return p;
}

/* x with dim cut into its parts, [out, longest] in its place: after a part's end is 0. No part sees a NaN or an
 * infinity of another. */
static tn_node *cut_into_parts(tn_build *b, tn_node *x, int dim, const parts *p, int64_t out) {
    if (!x || !p->first) return NULL;
    int64_t shape[TN_MAX_RANK], there[TN_MAX_RANK], last = x->shape[dim] - 1, count = out * p->longest;
    tn_node *step = tn_b_arange(b, 0.0, (double)p->longest, 1.0, TN_I64);
    tn_node *place = tn_b_minimum(b, tn_b_add(b, p->first, step), tn_b_const(b, (double)last, p->first));
    tn_node *taken = tn_b_index_select(b, x, dim, tn_b_reshape(b, place, &count, 1));
    for (int d = 0; d <= x->rank; d++) {
        shape[d] = d < dim ? x->shape[d] : d == dim ? out : d == dim + 1 ? p->longest : x->shape[d - 1];
        there[d] = d == dim || d == dim + 1 ? shape[d] : 1;
    }
    tn_node *inside = tn_b_reshape(b, tn_b_lt(b, step, p->length), there, x->rank + 1);
    return tn_b_where(b, inside, tn_b_reshape(b, taken, shape, x->rank + 1), tn_b_const(b, 0, x));
}

static tn_node *compose_adaptive_avg_pool2d(tn_build *b, const tn_node *n) {
    const tn_node *given = n->in[0];
    tn_node *x = tn_b_as_nchw(b, n->in[0], 2);
    int64_t h = given->shape[given->rank - 2], w = given->shape[given->rank - 1], oh = n->i[0], ow = n->i[1];
    if (!x) return NULL;
    if (h % oh == 0 && w % ow == 0) {
        tn_node *tiles = tn_b_reshape(b, x, (int64_t[]){x->shape[0], x->shape[1], oh, h / oh, ow, w / ow}, 6);
        return tn_b_view(b, tn_b_mean(b, tiles, (int64_t[]){3, 5}, 2, false), n->shape, n->rank);
    }
    parts down = parts_of(b, h, oh), across = parts_of(b, w, ow);
    tn_node *cut = cut_into_parts(b, cut_into_parts(b, x, 2, &down, oh), 4, &across, ow);
    tn_node *sum = tn_b_sum(b, cut, (int64_t[]){3, 5}, 2, false);
    tn_node *count = tn_b_mul(b, down.length, tn_b_view(b, across.length, (int64_t[]){1, ow}, 2));
    return tn_b_view(b, tn_b_div(b, sum, tn_b_cast_like(b, count, x)), n->shape, n->rank);
}

/* adaptive_avg_pool2d(x, output_size): the mean of each of height × width equal (or overlapping by one) parts of x
 * [batch, channels, height, width] (or without the batch). */
OP_CODE(adaptive_avg_pool2d, .infer = infer_adaptive_avg_pool2d, .compose = compose_adaptive_avg_pool2d,
        .cases = "tol=1e-5 atol=1e-5; [2,2,4,6] output_size=(1,1); [1,2,4,6] output_size=(2,3); "
                 "[1,2,4,6] output_size=(3,4); [2,5,3] output_size=(2,2); error=least [1,1,4,4] output_size=(0,1); "
                 "error=empty [1,1,0,4] output_size=(1,1)");

/* ==== im2col and its adjoint ====================================================================================== */
/* The window's own two dimensions stay dimensions of the result, so that every index is an affine one and no element is
 * looked for by division. */

/* Places of the attributes that unfold2d and fold2d share. */
enum { WINDOW_KERNEL = 0, WINDOW_STRIDE = 2, WINDOW_PADDING = 4, WINDOW_DILATION = 6 };

/* unfold2d(x, kernel, stride, padding, dilation, value): the patches under a kernel that slides over images:
 * [n, c, h, w] → [n, c, kh, kw, oh, ow], `value` where the kernel reaches into the padding. */
static tn_status infer_unfold2d(tn_infer *c) {
    const tn_node *x = c->in[0];
    const int64_t *i = c->attrs->i;
    const tn_window w = tn_window_of(i);
    char text[96];
    TRY(tn_window_check(c, &w, 0));
    if (x->rank != 4)
        return tn_fail(TN_ERR_SHAPE, "%s: %s is not a batch of images [n, c, h, w]", c->row->name,
                       tn_shape_text(x, text, sizeof text));
    int64_t shape[6] = {x->shape[0], x->shape[1], i[0], i[1]};
    for (int axis = 0; axis < 2; axis++)
        shape[4 + axis] = tn_window_out_size(&w, axis, x->shape[2 + axis], false);
    if (shape[4] < 0 || shape[5] < 0)
        return tn_fail(TN_ERR_SHAPE, "%s: a kernel of %lld × %lld does not fit %s with padding %lld × %lld",
                       c->row->name, (long long)i[0], (long long)i[1], tn_shape_text(x, text, sizeof text),
                       (long long)i[WINDOW_PADDING], (long long)i[WINDOW_PADDING + 1]);
    TRY(tn_infer_reshaped(c, shape, 6));
    c->symbol[0] = x->symbol[0];
    c->symbol[1] = x->symbol[1];
    return TN_OK;
}
static tn_node *grad_unfold2d(tn_build *b, const tn_node *n, tn_node *dy) {
    return tn_b_fold2d(b, dy, n->i + WINDOW_KERNEL, n->i + WINDOW_STRIDE, n->i + WINDOW_PADDING, n->i + WINDOW_DILATION,
                       n->in[0]->shape + 2);
}
/* out · stride + in_kernel · dilation − padding */
static kir_aff window_place(tn_lower *lw, const int64_t *i, int axis, const kir_aff *out, const kir_aff *in_kernel) {
    kir_aff a = tn_aff_scale(lw, out, i[WINDOW_STRIDE + axis]);
    kir_aff k = tn_aff_scale(lw, in_kernel, i[WINDOW_DILATION + axis]);
    a = tn_aff_add(lw, &a, &k);
    return index_shifted(&a, -i[WINDOW_PADDING + axis]);
}
static kir_val lower_unfold2d(tn_lower *lw, const tn_node *n, const kir_aff *at) {
    const tn_node *x = n->in[0];
    kir_aff in[4] = {at[0], at[1]};
    kir_val inside = KIR_NONE;
    for (int axis = 0; axis < 2; axis++) {
        in[2 + axis] = window_place(lw, n->i, axis, &at[4 + axis], &at[2 + axis]);
        if (n->i[WINDOW_PADDING + axis] == 0) continue;
        inside = mask_both(lw->kb, inside, index_not_negative(lw->kb, &in[2 + axis]));
        inside = mask_both(lw->kb, inside, index_below(lw->kb, &in[2 + axis], -x->shape[2 + axis]));
    }
    if (inside == KIR_NONE) return tn_lower_at(lw, x, in);
    kir_val v = tn_lower_at_masked(lw, x, in, inside);
    return kir_select(lw->kb, inside, v, kir_const(lw->kb, kir_type_of((tn_dtype)n->dtype), n->f[TN_UNFOLD2D_VALUE]));
}
static void reference_unfold2d(const tn_reference *r) {
    const tn_node *n = r->node, *x = n->in[0];
    const int64_t *i = n->i;
    for (tn_walk w = tn_walk_begin(n); w.place < w.count; tn_walk_next(&w)) {
        int64_t y = w.at[4] * i[WINDOW_STRIDE] + w.at[2] * i[WINDOW_DILATION] - i[WINDOW_PADDING];
        int64_t z = w.at[5] * i[WINDOW_STRIDE + 1] + w.at[3] * i[WINDOW_DILATION + 1] - i[WINDOW_PADDING + 1];
        bool inside = y >= 0 && y < x->shape[2] && z >= 0 && z < x->shape[3];
        int64_t from[4] = {w.at[0], w.at[1], y, z};
        r->out[w.place] = inside ? r->in[0][tn_element_offset(x, from)] : n->f[TN_UNFOLD2D_VALUE];
    }
}
OP_CODE(unfold2d, .class_ = TN_MOVEMENT, .infer = infer_unfold2d, .grad_first = grad_unfold2d, .lower = lower_unfold2d,
        .reference = reference_unfold2d,
        .cases = "types=f32,f64; [2,3,5,4] kernel=(3,2) stride=(1,1) padding=(0,0) dilation=(1,1) value=0;"
                 "[1,2,6,7] kernel=(3,3) stride=(2,3) padding=(1,2) dilation=(1,1) value=-1;"
                 "[1,1,7,5] kernel=(2,2) stride=(1,2) padding=(0,1) dilation=(3,2) value=0;"
                 "[0,2,4,4] kernel=(2,2) stride=(1,1) padding=(0,0) dilation=(1,1) value=0;"
                 "error=fit [1,1,2,2] kernel=(3,3) stride=(1,1) padding=(0,0) dilation=(1,1) value=0;"
                 "error=images [2,2] kernel=(1,1) stride=(1,1) padding=(0,0) dilation=(1,1) value=0");

/* fold2d(y, kernel, stride, padding, dilation, size): the adjoint of unfold2d: each pixel of [n, c, size] sums
 * the places in all patches [n, c, kh, kw, oh, ow] that came from it. */
static tn_status infer_fold2d(tn_infer *c) {
    const tn_node *y = c->in[0];
    const int64_t *i = c->attrs->i, *size = i + TN_FOLD2D_SIZE;
    const tn_window w = tn_window_of(i);
    char text[96];
    TRY(tn_window_check(c, &w, 0));
    bool fits = y->rank == 6 && y->shape[2] == i[0] && y->shape[3] == i[1];
    for (int axis = 0; fits && axis < 2; axis++)
        fits = size[axis] >= 0 && y->shape[4 + axis] == tn_max64(tn_window_out_size(&w, axis, size[axis], false), 0);
    if (!fits)
        return tn_fail(TN_ERR_SHAPE, "%s: %s must be [n, c, kh, kw, oh, ow], the windows of images of %lld × %lld",
                       c->row->name, tn_shape_text(y, text, sizeof text), (long long)size[0], (long long)size[1]);
    TRY(tn_infer_reshaped(c, (int64_t[]){y->shape[0], y->shape[1], size[0], size[1]}, 4));
    c->symbol[0] = y->symbol[0];
    c->symbol[1] = y->symbol[1];
    return TN_OK;
}
static tn_node *grad_fold2d(tn_build *b, const tn_node *n, tn_node *dy) {
    return tn_b_unfold2d(b, dy, n->i + WINDOW_KERNEL, n->i + WINDOW_STRIDE, n->i + WINDOW_PADDING,
                         n->i + WINDOW_DILATION, 0);
}
static int loops_fold2d(const tn_node *n, int64_t extent[TN_MAX_RANK]) {
    extent[0] = n->i[WINDOW_KERNEL];
    extent[1] = n->i[WINDOW_KERNEL + 1];
    return 2;
}
/* (pixel + padding − in_kernel · dilation) / stride, where that is whole and one of the patches. */
static kir_val fold_place(tn_lower *lw, const tn_node *n, int axis, const kir_aff *at, kir_aff *out) {
    kir_builder *kb = lw->kb;
    int64_t stride = n->i[WINDOW_STRIDE + axis];
    kir_aff back = tn_aff_scale(lw, &at[4 + axis], -n->i[WINDOW_DILATION + axis]);
    back = tn_aff_add(lw, &at[2 + axis], &back);
    back = index_shifted(&back, n->i[WINDOW_PADDING + axis]);
    kir_val there = index_not_negative(kb, &back);
    *out = back;
    if (stride > 1) {
        kir_val size = kir_whole(kb, stride), v = kir_index(kb, &back);
        there = mask_both(kb, there, kir_eq(kb, kir_mod(kb, v, size), kir_whole(kb, 0)));
        *out = kir_aff_value(kir_div(kb, v, size));
    }
    return mask_both(kb, there, index_below(kb, out, -n->in[0]->shape[4 + axis]));
}
static kir_val lower_fold2d(tn_lower *lw, const tn_node *n, const kir_aff *at) {
    kir_aff in[6] = {at[0], at[1], at[4], at[5]};
    kir_val there = KIR_NONE;
    for (int axis = 0; axis < 2; axis++)
        there = mask_both(lw->kb, there, fold_place(lw, n, axis, at, &in[4 + axis]));
    kir_val v = tn_lower_at_masked(lw, n->in[0], in, there);
    return kir_select(lw->kb, there, v, index_zero(lw, (tn_dtype)n->dtype));
}
static void reference_fold2d(const tn_reference *r) {
    const tn_node *n = r->node, *y = n->in[0];
    const int64_t *i = n->i;
    memset(r->out, 0, (size_t)tn_node_numel(n) * sizeof *r->out);
    tn_node like = {.rank = y->rank};
    memcpy(like.shape, y->shape, sizeof like.shape);
    for (tn_walk w = tn_walk_begin(&like); w.place < w.count; tn_walk_next(&w)) {
        int64_t a = w.at[4] * i[WINDOW_STRIDE] + w.at[2] * i[WINDOW_DILATION] - i[WINDOW_PADDING];
        int64_t b = w.at[5] * i[WINDOW_STRIDE + 1] + w.at[3] * i[WINDOW_DILATION + 1] - i[WINDOW_PADDING + 1];
        int64_t to[4] = {w.at[0], w.at[1], a, b};
        if (a >= 0 && a < n->shape[2] && b >= 0 && b < n->shape[3])
            r->out[tn_element_offset(n, to)] += r->in[0][w.place];
    }
}
OP_CODE(fold2d, .class_ = TN_REDUCTION, .reduce = KIR_SEQ, .infer = infer_fold2d, .grad_first = grad_fold2d,
        .lower = lower_fold2d, .loops = loops_fold2d, .reference = reference_fold2d,
        .cases =
            "types=f32,f64 tol=8ulp atol=1e-6; [2,3,3,2,3,3] kernel=(3,2) stride=(1,1) padding=(0,0) dilation=(1,1) "
            "size=(5,4);"
            "[1,2,3,3,3,3] kernel=(3,3) stride=(2,3) padding=(1,2) dilation=(1,1) size=(6,7);"
            "[1,1,2,2,4,3] kernel=(2,2) stride=(1,2) padding=(0,1) dilation=(3,2) size=(7,5);"
            "error=windows [1,1,2,2,4,4] kernel=(2,2) stride=(1,1) padding=(0,0) dilation=(1,1) size=(7,5)",
        .flops = 1);
