/* onnx_image.c — ONNX: resizing, boxes, sampling between pixels, image decoding.
 *
 * Resizing is separable. For each axis the host computes the weight of each input element in each result from the
 * sizes only. The recorded ops are selections along the axis, or one matrix product if there are many. */
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "onnx/model.h"
#include "onnx/operator_support.h"
#include "trunnion/functions.h"

/* ---- which coordinates ------------------------------------------------------------------------------------------- */

typedef enum ops_image_placing {
    HALF_PIXEL,
    SYMMETRIC,
    PYTORCH,
    ALIGN_CORNERS,
    ASYMMETRIC,
    CROP,
    PLACINGS
} ops_image_placing;
static const char *const placing_names[] = {"half_pixel",    "half_pixel_symmetric", "pytorch_half_pixel",
                                            "align_corners", "asymmetric",           "tf_crop_and_resize"};
enum { ROUND_FLOOR, ROUND_CEIL, FLOOR, CEIL, ROUNDINGS };
static const char *const rounding_names[] = {"round_prefer_floor", "round_prefer_ceil", "floor", "ceil"};

static const int64_t MOST_PLACES = 1 << 26; /* along an axis, of all taps */

typedef struct resize {
    ops_image_placing placing;
    int rounding;
    onnx_interpolation how;
    bool antialias, exclude_outside;
    double a, extrapolation; /* the cubic's coefficient; what lies outside of a crop */
} resize;

/* Of one axis. */
typedef struct axis {
    int64_t in, out, taps;
    double scale, from, to; /* of a crop */
    int64_t *index;         /* [taps, out] */
    double *weight;         /* [taps, out] */
    bool *outside;          /* [out], of a crop */
} axis;

/* In f64 from the scale as stored, as in the reference implementation of the onnx package: it decides which neighbor of
 * a tie is the nearest one. ONNX Runtime's f32 places differ at scales such as 0.6. */
static double source(const resize *r, const axis *x, int64_t i) {
    double at = (double)i, in = (double)x->in, out = x->scale * in;
    switch (r->placing) {
    case ALIGN_CORNERS: return out == 1 ? 0 : at * (in - 1) / (out - 1);
    case ASYMMETRIC: return at / x->scale;
    case CROP:
        if (out == 1) return (x->to - x->from) * (in - 1) / 2 + x->from * (in - 1);
        return at * (x->to - x->from) * (in - 1) / (out - 1) + x->from * (in - 1);
    case PYTORCH: return out == 1 ? -0.5 : (at + 0.5) / x->scale - 0.5;
    case SYMMETRIC: return in / 2 * (1 - (double)x->out / out) + (at + 0.5) / x->scale - 0.5;
    default: return (at + 0.5) / x->scale - 0.5;
    }
}

static double nearest(int rounding, double at) {
    if (rounding == FLOOR) return floor(at);
    if (rounding == CEIL) return ceil(at);
    return rounding == ROUND_FLOOR ? ceil(at - 0.5) : floor(at + 0.5);
}

/* How much an element at this distance weighs. */
static double kernel(const resize *r, double d) {
    double a = r->a;
    d = fabs(d);
    if (r->how == ONNX_LINEAR) return d < 1 ? 1 - d : 0;
    if (d <= 1) return ((a + 2) * d - (a + 3)) * d * d + 1;
    return d < 2 ? ((a * d - 5 * a) * d + 8 * a) * d - 4 * a : 0;
}

static void fill_tap(const resize *r, const axis *x, int64_t i) {
    double at = source(r, x, i), stretch = r->antialias && x->scale < 1 ? x->scale : 1, sum = 0;
    double first = r->how == ONNX_NEAREST ? nearest(r->rounding, at) : floor(at) - (double)(x->taps / 2 - 1);
    for (int64_t t = 0; t < x->taps; t++) {
        double place = first + (double)t, *weight = &x->weight[t * x->out + i];
        bool inside = place >= 0 && place < (double)x->in;
        *weight = r->how == ONNX_NEAREST ? 1 : kernel(r, (place - at) * stretch);
        if (r->exclude_outside && !inside) *weight = 0;
        sum += *weight;
        place = place < 0 ? 0 : place > (double)(x->in - 1) ? (double)(x->in - 1) : place;
        x->index[t * x->out + i] = (int64_t)place;
    }
    for (int64_t t = 0; t < x->taps && sum != 0; t++)
        x->weight[t * x->out + i] /= sum;
    x->outside[i] = r->placing == CROP && !(at >= 0 && at <= (double)(x->in - 1));
}

/* ---- one axis ---------------------------------------------------------------------------------------------------- */

/* [1, …, out, …, 1] */
static tn_tensor *along(tn_tensor *t, int dim, int rank) {
    int64_t shape[TN_MAX_RANK];
    for (int d = 0; d < rank; d++)
        shape[d] = d == dim ? tn_numel(t) : 1;
    return tn_reshape(t, shape, rank);
}

static tn_tensor *by_selection(const tn_tensor *x, const axis *a, int dim) {
    const int64_t shape[] = {a->taps, a->out};
    if (a->taps == 1) return tn_index_select(x, dim, tn_from_data(a->index, &a->out, 1, TN_I64));
    return tn_resample(x, dim, tn_from_data(a->index, shape, 2, TN_I64),
                       onnx_from_doubles(a->weight, shape, 2, tn_dtype_of(x)));
}

static tn_tensor *by_product(const tn_tensor *x, const axis *a, int dim) {
    static const int64_t MOST = 1 << 27;
    int64_t shape[2] = {a->in, a->out};
    if (a->out && a->in > MOST / a->out) return tn_failed(TN_ERR_UNSUPPORTED, "Resize: an axis is too long");
    double *v = tn_mem_zalloc((size_t)(a->in * a->out), sizeof *v);
    if (!v) return tn_failed(TN_ERR_MEMORY, "Resize: out of memory");
    for (int64_t i = 0; i < a->taps * a->out; i++)
        v[a->index[i] * a->out + i % a->out] += a->weight[i];
    tn_tensor *m = onnx_from_doubles(v, shape, 2, tn_dtype_of(x));
    tn_mem_free(v);
    return tn_movedim(tn_matmul(tn_movedim(x, dim, -1), m), -1, dim);
}

static tn_tensor *resized_along(const tn_tensor *x, const resize *r, axis *a, int dim) {
    enum { FEW_TAPS = 4 };
    for (int64_t i = 0; i < a->out; i++)
        fill_tap(r, a, i);
    tn_tensor *y = (a->taps <= FEW_TAPS ? by_selection : by_product)(x, a, dim);
    if (r->placing != CROP) return y;
    tn_tensor *outside = along(tn_from_data(a->outside, &a->out, 1, TN_BOOL), dim, tn_rank(x));
    return tn_masked_fill(y, outside, r->extrapolation);
}

static int64_t taps_of(const resize *r, double scale) {
    double stretch = r->antialias && scale < 1 ? scale : 1;
    if (r->how == ONNX_NEAREST) return 1;
    return 2 * (int64_t)ceil((r->how == ONNX_LINEAR ? 1 : 2) / stretch);
}

static tn_tensor *resize_axis(const tn_tensor *x, const resize *r, axis *a, int dim) {
    if (a->in == a->out && a->scale == 1 && r->placing != CROP) return tn_detach(x);
    a->taps = taps_of(r, a->scale);
    if (a->in < 1 || a->out < 0 || a->taps < 1 || a->out > MOST_PLACES / a->taps)
        return tn_failed(TN_ERR_UNSUPPORTED, "Resize: from %lld to %lld elements is not supported", (long long)a->in,
                         (long long)a->out);
    int64_t count = a->taps * a->out;
    a->index = tn_mem_alloc((size_t)count * sizeof *a->index);
    a->weight = tn_mem_alloc((size_t)count * sizeof *a->weight);
    a->outside = tn_mem_alloc((size_t)a->out);
    bool whole = a->index && a->weight && a->outside;
    tn_tensor *y = whole ? resized_along(x, r, a, dim) : tn_failed(TN_ERR_MEMORY, "Resize: out of memory");
    tn_mem_free_each(a->index, a->weight, a->outside);
    return y;
}

/* ---- whole factors ----------------------------------------------------------------------------------------------- */

/* How often each element of an axis stands in the result, if that is all there is to it; 0: it is not. */
static int64_t times_of(const resize *r, const axis *x) {
    int64_t times = x->in > 0 ? x->out / x->in : 0;
    if (r->how != ONNX_NEAREST || r->placing == CROP || times < 1 || x->out != times * x->in) return 0;
    if (x->out > MOST_PLACES) return 0; /* refused where taps are laid out, before all of them are looked at */
    for (int64_t i = 0; i < x->out; i++) {
        double place = nearest(r->rounding, source(r, x, i)), last = (double)(x->in - 1);
        if ((int64_t)(place < 0 ? 0 : place > last ? last : place) != i / times) return 0;
    }
    return times;
}

/* All such axes at once, as many as a rank allows: a view that is copied, bytes as floats, which are copied natively.
 * Those that are done are marked so. */
static tn_tensor *repeated(const tn_tensor *x, const resize *r, axis *axes) {
    int64_t thin[TN_MAX_RANK], wide[TN_MAX_RANK], shape[TN_MAX_RANK];
    int rank = tn_rank(x), n = 0;
    for (int d = 0; d < rank; d++) {
        int64_t times = n + rank - d < TN_MAX_RANK && axes[d].in != axes[d].out ? times_of(r, &axes[d]) : 0;
        thin[n] = wide[n] = axes[d].in;
        shape[d] = axes[d].in;
        n++;
        if (times == 0) continue;
        thin[n] = 1;
        wide[n++] = times;
        shape[d] = axes[d].out;
        axes[d] = (axis){.in = axes[d].out, .out = axes[d].out, .scale = 1, .to = 1};
    }
    if (n == rank) return tn_detach(x);
    tn_dtype own = tn_dtype_of(x);
    bool bytes = own == TN_I8 || own == TN_U8;
    const tn_tensor *seen = tn_expand(tn_reshape(bytes ? tn_cast(x, TN_F32) : x, thin, n), wide, n);
    tn_tensor *y = tn_reshape(seen, shape, rank);
    return bytes ? tn_cast(y, own) : y;
}

/* ---- what a node says -------------------------------------------------------------------------------------------- */

static tn_status choose_resize(const onnx_call *c, const char *name, const char *const *names, int count, int *out) {
    onnx_text t = onnx_string(c, name, names[*out]);
    for (int i = 0; i < count; i++)
        if (onnx_is(t, names[i])) return *out = i, TN_OK;
    return onnx_refuse(c, "%s '%.*s' is not supported", name, (int)t.size, t.at);
}

static tn_status read_resize(const onnx_call *c, resize *r) {
    static const char *const modes[] = {"nearest", "linear", "cubic"};
    bool old = c->row->since < 11 || c->row->with; /* Upsample, and Resize as it began */
    int mode = ONNX_NEAREST, place = old ? ASYMMETRIC : HALF_PIXEL, rounding = old ? FLOOR : ROUND_FLOOR;
    onnx_text name = onnx_string(c, "mode", "nearest");
    if (onnx_is(name, "bilinear"))
        mode = ONNX_LINEAR;
    else
        TRY(choose_resize(c, "mode", modes, TN_COUNT(modes), &mode));
    TRY(choose_resize(c, "coordinate_transformation_mode", placing_names, PLACINGS, &place));
    TRY(choose_resize(c, "nearest_mode", rounding_names, ROUNDINGS, &rounding));
    r->placing = (ops_image_placing)place;
    r->rounding = rounding;
    r->how = (onnx_interpolation)mode;
    r->antialias = onnx_int(c, "antialias", 0) != 0;
    r->exclude_outside = onnx_int(c, "exclude_outside", 0) != 0;
    r->a = onnx_float(c, "cubic_coeff_a", -0.75);
    r->extrapolation = onnx_float(c, "extrapolation_value", 0);
    return TN_OK;
}

/* Numbers per axis as the model gives them: scales, sizes, the crop. */
typedef struct wishes {
    double *scales, *roi;
    int64_t *sizes;
    int64_t scale_count, size_count, roi_count;
} wishes;

static tn_status read_given(const onnx_call *c, wishes *g) {
    int rank = tn_rank(onnx_in(c, 0));
    const onnx_attribute *scales = onnx_find(c, "scales");
    if (c->row->since < 9 && scales && scales->floats) {
        g->scales = tn_mem_alloc((scales->count + 1) * sizeof *g->scales);
        if (!g->scales) return TN_ERR_MEMORY;
        for (size_t i = 0; i < scales->count; i++)
            g->scales[i] = (double)scales->floats[i];
        g->scale_count = (int64_t)scales->count;
        return TN_OK;
    }
    bool old = c->row->since < 11 || c->row->with;
    TRY(onnx_read_floats(c, old ? 1 : 2, &g->scales, &g->scale_count, rank));
    if (old) return TN_OK;
    TRY(onnx_read_ints(c, 3, &g->sizes, &g->size_count, rank));
    return onnx_read_floats(c, 1, &g->roi, &g->roi_count, 2 * rank);
}

/* The common scale that keeps the aspect ratio; 0: each axis has its own. */
static double common_scale(const onnx_call *c, const wishes *g, const axis *axes, const int64_t *dims, int count) {
    onnx_text policy = onnx_string(c, "keep_aspect_ratio_policy", "stretch");
    bool larger = onnx_is(policy, "not_smaller");
    double best = 0;
    if (!g->size_count || (!larger && !onnx_is(policy, "not_larger"))) return 0;
    for (int i = 0; i < count; i++) {
        double s = (double)g->sizes[i] / (double)axes[dims[i]].in;
        if (i == 0 || (larger ? s > best : s < best)) best = s;
    }
    return best;
}

static tn_status set_axes(const onnx_call *c, const wishes *g, bool crop, axis *axes, int rank) {
    int64_t dims[TN_MAX_RANK];
    int count;
    TRY(onnx_axes(c, INT8_MAX, "axes", rank, dims, &count));
    if (count < 0) count = onnx_dims(0, rank, dims);
    int64_t have = g->scale_count ? g->scale_count : g->size_count;
    if (have != count || (crop && g->roi_count != 2 * count))
        return onnx_refuse(c, "%lld scales or sizes for %d axes; one per axis is required", (long long)have, count);
    double common = common_scale(c, g, axes, dims, count);
    for (int i = 0; i < count; i++) {
        axis *a = &axes[dims[i]];
        double in = (double)a->in, share = 1;
        if (crop) {
            a->from = g->roi[i];
            a->to = g->roi[count + i];
            share = a->to - a->from;
        }
        if (g->scale_count)
            a->scale = g->scales[i];
        else
            a->scale = common > 0 ? common : (double)g->sizes[i] / in;
        double out = g->scale_count ? floor((double)(float)(in * share * a->scale)) /* 5 · 2.6f is 13 to everybody */
                     : common > 0   ? floor(common * in + 0.5)
                                    : (double)g->sizes[i];
        if (!(a->scale > 0 || out == 0) || !(out >= 0 && out <= INT32_MAX))
            return onnx_refuse(c, "scale %g of axis %d is not supported", a->scale, (int)dims[i]);
        a->out = (int64_t)out;
    }
    return TN_OK;
}

static tn_status run_resize(onnx_call *c) {
    const tn_tensor *x = onnx_in(c, 0), *y = x;
    axis axes[TN_MAX_RANK] = {{0}};
    wishes g = {0};
    resize r;
    int rank = tn_rank(x);
    TRY(tn_status_of(x));
    TRY(read_resize(c, &r));
    for (int d = 0; d < rank; d++)
        axes[d] = (axis){.in = tn_size(x, d), .out = tn_size(x, d), .scale = 1, .to = 1};
    tn_status s = read_given(c, &g);
    if (s == TN_OK) s = set_axes(c, &g, r.placing == CROP, axes, rank);
    tn_mem_free_each(g.scales, g.sizes, g.roi);
    TRY(s);
    tn_dtype t = tn_dtype_of(x);
    y = r.how == ONNX_NEAREST ? repeated(x, &r, axes) : onnx_as(x, t == TN_F64 ? TN_F64 : TN_F32);
    for (int d = 0; d < rank; d++)
        if (axes[d].scale != 1 || axes[d].in != axes[d].out || axes[d].from != 0 || axes[d].to != 1)
            y = resize_axis(y, &r, &axes[d], d);
    bool whole = t != TN_F32 && t != TN_F64 && t != TN_F16 && t != TN_BF16 && r.how != ONNX_NEAREST;
    return onnx_put_like(c, 0, tn_cast(whole ? tn_round(y) : y, t), 0);
}

/* ---- crops, folds ------------------------------------------------------------------------------------------------ */

static tn_status center_crop_pad(onnx_call *c) {
    const tn_tensor *x = onnx_in(c, 0);
    int64_t dims[TN_MAX_RANK], *size = NULL, count = 0, pads[2 * TN_MAX_RANK] = {0};
    int rank = tn_rank(x), axes;
    TRY(tn_status_of(x));
    TRY(onnx_axes(c, INT8_MAX, "axes", rank, dims, &axes));
    if (axes < 0) axes = onnx_dims(0, rank, dims);
    TRY(onnx_read_ints(c, 1, &size, &count, TN_MAX_RANK));
    bool possible = true;
    for (int i = 0; i < axes && i < count; i++) {
        possible &= size[i] >= 0;
        int64_t have = tn_size(x, dims[i]), more = tn_max64(size[i], 0) - have, at = 2 * (rank - 1 - dims[i]);
        pads[at] = more >= 0 ? more / 2 : -(-more / 2);
        pads[at + 1] = more - pads[at];
    }
    tn_mem_free(size);
    if (count != axes)
        return onnx_refuse(c, "%lld extents for %d axes; one per axis is required", (long long)count, axes);
    if (!possible) return onnx_refuse(c, "an extent is negative");
    return onnx_put_like(c, 0, tn_pad(x, pads, 2 * rank, 0), 0);
}

/* The index of each column's tap and block in the flat image; padding has the index after its end. */
static int64_t fold_place(const onnx_window *w, const int64_t *size, const int64_t *blocks, int64_t tap,
                          int64_t block) {
    int64_t place = 0, pitch = 1;
    bool inside = true;
    for (int a = w->axes - 1; a >= 0; a--) {
        int64_t at = block % blocks[a] * w->stride[a] + tap % w->kernel[a] * w->dilation[a] - w->before[a];
        block /= blocks[a];
        tap /= w->kernel[a];
        inside &= at >= 0 && at < size[a];
        place += at * pitch;
        pitch *= size[a];
    }
    return inside ? place : pitch;
}

static tn_status read_fold(const onnx_call *c, onnx_window *w, int64_t *size) {
    int64_t *given[2] = {NULL, NULL}, count[2] = {0, 0}, pads[2 * ONNX_MAX_AXES];
    tn_status s = onnx_read_ints(c, 1, &given[0], &count[0], TN_MAX_RANK);
    if (s == TN_OK) s = onnx_read_ints(c, 2, &given[1], &count[1], TN_MAX_RANK);
    if (s == TN_OK && (count[0] != count[1] || count[0] < 1 || count[0] > ONNX_MAX_AXES))
        s = onnx_refuse(c, "an image of %lld axes and blocks of %lld axes do not fit together", (long long)count[0],
                        (long long)count[1]);
    for (int a = 0; s == TN_OK && a < count[0]; a++) {
        size[a] = given[0][a];
        w->kernel[a] = given[1][a];
        if (size[a] < 1 || w->kernel[a] < 1 || size[a] > INT32_MAX || w->kernel[a] > INT32_MAX)
            s = onnx_refuse(c, "an extent of %lld with blocks of %lld is not supported", (long long)size[a],
                            (long long)w->kernel[a]);
    }
    w->axes = (int)count[0];
    tn_mem_free_each(given[0], given[1]);
    TRY(s);
    TRY(onnx_ints_of(c, "strides", w->axes, 1, w->stride));
    TRY(onnx_ints_of(c, "dilations", w->axes, 1, w->dilation));
    TRY(onnx_ints_of(c, "pads", 2 * w->axes, 0, pads));
    memcpy(w->before, pads, (size_t)w->axes * sizeof *pads);
    memcpy(w->after, pads + w->axes, (size_t)w->axes * sizeof *pads);
    for (int a = 0; a < w->axes; a++)
        if (w->stride[a] < 1 || w->dilation[a] < 1) return onnx_refuse(c, "strides and dilations must be at least 1");
    return TN_OK;
}

static tn_status col2im(onnx_call *c) {
    const tn_tensor *x = onnx_in(c, 0);
    int64_t size[ONNX_MAX_AXES], blocks[ONNX_MAX_AXES], taps = 1, count = 1, pixels = 1;
    onnx_window w = {0};
    TRY(tn_status_of(x));
    TRY(read_fold(c, &w, size));
    for (int a = 0; a < w.axes; a++) {
        blocks[a] = onnx_places(&w, a, size[a], false);
        bool large = tn_mul_overflow(taps, w.kernel[a], &taps) || tn_mul_overflow(count, blocks[a], &count);
        if (large || tn_mul_overflow(pixels, size[a], &pixels)) return onnx_refuse(c, "the image is too large");
    }
    if (tn_rank(x) != 3 || tn_size(x, 1) < 1 || tn_size(x, 1) % taps || tn_size(x, 2) != count)
        return onnx_refuse(c, "the input does not consist of %lld blocks of %lld columns", (long long)count,
                           (long long)taps);
    int64_t n = tn_size(x, 0), channels = tn_size(x, 1) / taps, all = taps * count, shape[TN_MAX_RANK] = {n, channels};
    int64_t *place = tn_mem_alloc((size_t)tn_max64(all, 1) * sizeof *place);
    if (!place) return TN_ERR_MEMORY;
    for (int64_t i = 0; i < all; i++)
        place[i] = fold_place(&w, size, blocks, i / count, i % count);
    tn_tensor *index = tn_from_data(place, &all, 1, TN_I64);
    tn_mem_free(place);
    tn_tensor *flat = tn_zeros((int64_t[]){n, channels, pixels + 1}, 3, tn_dtype_of(x));
    flat = tn_index_add(flat, 2, index, tn_reshape(x, (int64_t[]){n, channels, all}, 3));
    memcpy(shape + 2, size, (size_t)w.axes * sizeof *size);
    return onnx_put(c, 0, tn_reshape(tn_narrow(flat, 2, 0, pixels), shape, 2 + w.axes));
}

/* ==== boxes: RoiAlign, MaxRoiPool ================================================================================= */
/* What a box is made of depends on its numbers, so they are read here; RoiAlign and MaxRoiPool then record one look-up
 * for all boxes and channels. */

/* ---- look-ups ---------------------------------------------------------------------------------------------------- */

/* Places in a flat image [c, n · h · w], `each` of them a result. */
typedef struct boxes_places {
    int64_t boxes, results, each; /* results a box */
    int64_t *at;
    double *weight;
} boxes_places;

static tn_status make_places(const onnx_call *c, boxes_places *p) {
    static const int64_t MOST = (int64_t)1 << 25;
    int64_t count;
    *p = (boxes_places){p->boxes, p->results, p->each, NULL, NULL};
    if (tn_mul_overflow(p->boxes, p->results, &count) || tn_mul_overflow(count, p->each, &count) || count > MOST)
        return onnx_refuse(c, "%lld boxes with %lld samples per result are too many", (long long)p->boxes,
                           (long long)p->each);
    p->at = tn_mem_zalloc((size_t)tn_max64(count, 1), sizeof *p->at);
    p->weight = tn_mem_zalloc((size_t)tn_max64(count, 1), sizeof *p->weight);
    return p->at && p->weight ? TN_OK : TN_ERR_MEMORY;
}

static void free_places(boxes_places *p) { tn_mem_free_each(p->at, p->weight); }

/* x [n, c, h, w] at these places, weighted: [c, boxes, results, each]. */
static tn_tensor *looked_up(const tn_tensor *x, const boxes_places *p) {
    int64_t count = p->boxes * p->results * p->each, shape[] = {tn_size(x, 1), p->boxes, p->results, p->each};
    tn_tensor *flat = tn_flatten(tn_transpose(x, 0, 1), 1, 3);
    tn_tensor *v = tn_reshape(tn_index_select(flat, 1, tn_from_data(p->at, &count, 1, TN_I64)), shape, 4);
    return tn_mul(v, onnx_from_doubles(p->weight, shape + 1, 3, tn_dtype_of(x)));
}

static tn_tensor *as_boxes(tn_tensor *y, int64_t high, int64_t wide) {
    int64_t shape[] = {tn_size(y, 1), tn_size(y, 0), high, wide};
    return tn_reshape(tn_transpose(y, 0, 1), shape, 4);
}

/* ---- RoiAlign ---------------------------------------------------------------------------------------------------- */

typedef struct boxes_align {
    int64_t high, wide, ratio; /* of the result; samples along each axis of a bin, 0: as many as pixels */
    double scale, shift;
    bool one_at_least, max;
} boxes_align;

/* One axis of a box: where its bins begin, how far they reach; in f32, as the number of samples may hang on a bit. */
typedef struct extent {
    double from, bin;
    int64_t samples;
} extent;

static extent extent_of(const boxes_align *a, double from, double to, int64_t bins) {
    float scale = (float)a->scale, shift = (float)a->shift, begin = (float)from * scale - shift;
    float size = (float)to * scale - shift - begin;
    if (a->one_at_least && size < 1) size = 1;
    extent e = {.from = (double)begin, .bin = (double)(size / (float)bins)};
    double samples = a->ratio > 0 ? (double)a->ratio : ceil(e.bin);
    e.samples = samples >= 1 && samples < 4096 ? (int64_t)samples : samples >= 1 ? 4096 : 0;
    return e;
}

/* The two pixels around a place and their shares; false outside of the image. */
static bool neighbours(double at, int64_t size, int64_t *pixel, double *share) {
    if (!(at >= -1 && at <= (double)size)) return false;
    at = at > 0 ? at : 0;
    pixel[0] = (int64_t)at < size - 1 ? (int64_t)at : size - 1;
    pixel[1] = pixel[0] < size - 1 ? pixel[0] + 1 : pixel[0];
    share[1] = pixel[0] < size - 1 ? at - (double)pixel[0] : 0;
    share[0] = 1 - share[1];
    return true;
}

/* One bin: four pixels a sample. */
static void fill_bin(const boxes_align *a, const extent *e, const int64_t *bin, const int64_t *size, int64_t first,
                     int64_t *at, double *weight) {
    int64_t count = tn_max64(e[0].samples * e[1].samples, 1);
    for (int64_t s = 0; s < e[0].samples * e[1].samples; s++) {
        int64_t number[2] = {s / e[1].samples, s % e[1].samples}, pixel[2][2];
        double share[2][2];
        bool inside = true;
        for (int d = 0; d < 2; d++) {
            double part = ((double)number[d] + 0.5) / (double)e[d].samples;
            inside &= neighbours(e[d].from + ((double)bin[d] + part) * e[d].bin, size[d], pixel[d], share[d]);
        }
        for (int k = 0; k < 4 && inside; k++) {
            at[4 * s + k] = first + pixel[0][k / 2] * size[1] + pixel[1][k % 2];
            weight[4 * s + k] = share[0][k / 2] * share[1][k % 2] / (a->max ? 1 : (double)count);
        }
    }
}

static tn_status fill_boxes(const onnx_call *c, const boxes_align *a, const double *box, const int64_t *image,
                            const tn_tensor *x, boxes_places *p) {
    int64_t size[2] = {tn_size(x, 2), tn_size(x, 3)}, most = 1;
    for (int64_t b = 0; b < p->boxes; b++) {
        extent high = extent_of(a, box[4 * b + 1], box[4 * b + 3], a->high);
        extent wide = extent_of(a, box[4 * b], box[4 * b + 2], a->wide);
        most = tn_max64(most, high.samples * wide.samples);
        if (image[b] < 0 || image[b] >= tn_size(x, 0))
            return onnx_refuse(c, "image index %lld is out of range", (long long)image[b]);
    }
    p->each = 4 * most;
    TRY(make_places(c, p));
    for (int64_t i = 0; i < p->boxes * p->results; i++) {
        int64_t b = i / p->results, bin[2] = {i % p->results / a->wide, i % a->wide};
        extent e[2] = {extent_of(a, box[4 * b + 1], box[4 * b + 3], a->high),
                       extent_of(a, box[4 * b], box[4 * b + 2], a->wide)};
        fill_bin(a, e, bin, size, image[b] * size[0] * size[1], p->at + i * p->each, p->weight + i * p->each);
        int64_t filled = 4 * e[0].samples * e[1].samples;
        for (int64_t k = filled; a->max && filled && k < p->each; k++) { /* the greatest stays so */
            p->at[i * p->each + k] = p->at[i * p->each];
            p->weight[i * p->each + k] = p->weight[i * p->each];
        }
    }
    return TN_OK;
}

static tn_status read_boxes(const onnx_call *c, int64_t numbers, double **box, int64_t *count) {
    const tn_tensor *x = onnx_in(c, 0), *boxes = onnx_in(c, 1);
    TRY(tn_status_of(x));
    TRY(tn_status_of(boxes));
    if (tn_rank(x) != 4 || tn_rank(boxes) != 2 || tn_size(boxes, 1) != numbers || tn_numel(x) == 0)
        return onnx_refuse(c, "an image of %d dimensions with boxes of %lld numbers is not supported", tn_rank(x),
                           (long long)tn_size(boxes, 1));
    TRY(onnx_read_floats(c, 1, box, count, INT32_MAX));
    *count /= numbers;
    return TN_OK;
}

static tn_status roi_align(onnx_call *c) {
    const int64_t last = 3;
    onnx_text placing =
        onnx_string(c, "coordinate_transformation_mode", c->row->since < 16 ? "output_half_pixel" : "half_pixel");
    bool half = onnx_is(placing, "half_pixel");
    boxes_align a = {.high = onnx_int(c, "output_height", 1),
                     .wide = onnx_int(c, "output_width", 1),
                     .ratio = onnx_int(c, "sampling_ratio", 0),
                     .scale = onnx_float(c, "spatial_scale", 1),
                     .shift = half ? 0.5 : 0,
                     .one_at_least = !half,
                     .max = onnx_is(onnx_string(c, "mode", "avg"), "max")};
    AUTO_FREE double *box = NULL;
    AUTO_FREE int64_t *image = NULL;
    int64_t images = 0;
    AUTO_CALL(free_places) boxes_places p = {0};
    if (a.high < 1 || a.wide < 1 || a.high > 4096 || a.wide > 4096 || a.ratio > 4096)
        return onnx_refuse(c, "a result of %lld × %lld is not supported", (long long)a.high, (long long)a.wide);
    p.results = a.high * a.wide;
    TRY(read_boxes(c, 4, &box, &p.boxes));
    TRY(onnx_read_ints(c, 2, &image, &images, INT32_MAX));
    if (images != p.boxes)
        return onnx_refuse(c, "%lld boxes, but %lld batch indices", (long long)p.boxes, (long long)images);
    TRY(fill_boxes(c, &a, box, image, onnx_in(c, 0), &p));
    tn_tensor *v = looked_up(onnx_in(c, 0), &p);
    v = a.max ? tn_amax(v, &last, 1, false) : tn_sum(v, &last, 1, false);
    return onnx_put(c, 0, as_boxes(v, a.high, a.wide));
}

/* ---- MaxRoiPool -------------------------------------------------------------------------------------------------- */

static int64_t clipped(double v, int64_t most) { return v < 0 ? 0 : v < (double)most ? (int64_t)v : most; }

/* A box's bin along an axis: from … to. */
static void bin_of(double from, double to, int64_t bin, int64_t bins, int64_t size, int64_t *out) {
    double length = fmax(to - from + 1, 1) / (double)bins;
    out[0] = clipped(floor((double)bin * length) + from, size);
    out[1] = clipped(ceil((double)(bin + 1) * length) + from, size);
}

/* The pixels of a bin, the first again for what is left; none: a weight of 0. */
static int64_t fill_pixels(const int64_t *rows, const int64_t *columns, int64_t width, int64_t first, int64_t each,
                           int64_t *at, double *weight) {
    int64_t high = rows[1] - rows[0], wide = columns[1] - columns[0], count = high > 0 && wide > 0 ? high * wide : 0;
    for (int64_t k = 0; k < each && count; k++) {
        int64_t i = k < count ? k : 0;
        at[k] = first + (rows[0] + i / wide) * width + columns[0] + i % wide;
        weight[k] = 1;
    }
    return count;
}

static tn_status fill_pools(const onnx_call *c, const double *box, const int64_t *bins, double scale, boxes_places *p) {
    const tn_tensor *x = onnx_in(c, 0);
    int64_t high = tn_size(x, 2), wide = tn_size(x, 3);
    for (int pass = 0; pass < 2; pass++) { /* the first finds out how many pixels a bin has */
        int64_t most = 1;
        for (int64_t i = 0; i < p->boxes * p->results; i++) {
            const double *b = box + 5 * (i / p->results);
            int64_t rows[2], columns[2];
            if (!(b[0] >= 0 && b[0] < (double)tn_size(x, 0)))
                return onnx_refuse(c, "image index %g is out of range", b[0]);
            bin_of(round(b[2] * scale), round(b[4] * scale), i % p->results / bins[1], bins[0], high, rows);
            bin_of(round(b[1] * scale), round(b[3] * scale), i % bins[1], bins[1], wide, columns);
            int64_t count = fill_pixels(rows, columns, wide, (int64_t)b[0] * high * wide, pass ? p->each : 0,
                                        pass ? p->at + i * p->each : NULL, pass ? p->weight + i * p->each : NULL);
            most = tn_max64(most, count);
        }
        p->each = most;
        if (pass == 0) TRY(make_places(c, p));
    }
    return TN_OK;
}

static tn_status max_roi_pool(onnx_call *c) {
    const int64_t last = 3;
    AUTO_FREE double *box = NULL;
    int64_t bins[2];
    AUTO_CALL(free_places) boxes_places p = {0};
    TRY(onnx_ints_of(c, "pooled_shape", 2, 0, bins));
    if (bins[0] < 1 || bins[1] < 1)
        return onnx_refuse(c, "a result of %lld × %lld is not supported", (long long)bins[0], (long long)bins[1]);
    p.results = bins[0] * bins[1];
    TRY(read_boxes(c, 5, &box, &p.boxes));
    TRY(fill_pools(c, box, bins, onnx_float(c, "spatial_scale", 1), &p));
    return onnx_put(c, 0, as_boxes(tn_amax(looked_up(onnx_in(c, 0), &p), &last, 1, false), bins[0], bins[1]));
}

/* ==== sampling: GridSample, DeformConv, AffineGrid ================================================================ */
/* A sample is a sum over taps: 1, 2 or 4 along each axis. Where a tap lies and what it weighs depends on one axis
 * alone, so both are made an axis at a time and joined by addition and multiplication. */

enum { TAPS_MOST = 4 };

/* Along one axis. */
typedef struct taps {
    int count;
    tn_tensor *place[TAPS_MOST];  /* i64: in elements of the flat image */
    tn_tensor *weight[TAPS_MOST]; /* NULL: 1 */
} taps;

/* ---- outside of the image ---------------------------------------------------------------------------------------- */

/* Places thrown back at both ends as often as it takes. */
static tn_tensor *reflected(const tn_tensor *x, double low, double high) {
    double span = high - low;
    if (span <= 0) return tn_full_like(x, low);
    tn_tensor *way = tn_remainder_scalar(tn_abs(tn_sub_scalar(x, low)), 2 * span);
    return tn_add_scalar(tn_minimum(way, tn_rsub_scalar(way, 2 * span)), low);
}

static const tn_tensor *moved_inside(const tn_tensor *x, int64_t size, onnx_outside outside, bool align) {
    double edge = align ? 0 : 0.5, last = (double)(size - 1);
    if (outside == ONNX_ZEROS) return x;
    if (outside == ONNX_REFLECTION) x = reflected(x, -edge, last + edge);
    return tn_clamp(x, 0, last);
}

/* ---- taps -------------------------------------------------------------------------------------------------------- */

/* Keys 1981, eq. 4 with a = −3/4, for a tap at this distance; far: between 1 and 2. */
static tn_tensor *cubic_weight(const tn_tensor *d, bool far) {
    const double a = -0.75;
    if (far) {
        tn_tensor *t = tn_add_scalar(tn_mul(tn_add_scalar(tn_mul_scalar(d, a), -5 * a), d), 8 * a);
        return tn_add_scalar(tn_mul(t, d), -4 * a);
    }
    tn_tensor *t = tn_add_scalar(tn_mul_scalar(d, a + 2), -(a + 3));
    return tn_add_scalar(tn_mul(tn_mul(t, d), d), 1);
}

static tn_tensor *weight_of(const tn_tensor *part, int tap, int count) {
    if (count == 1) return NULL;
    if (count == 2) return tap ? tn_detach(part) : tn_rsub_scalar(part, 1);
    bool before = tap < 2;
    tn_tensor *d = before ? tn_add_scalar(part, 1 - tap) : tn_rsub_scalar(part, tap - 1);
    return cubic_weight(d, tap == 0 || tap == 3);
}

static taps sample_taps_of(const tn_tensor *at, int64_t size, int64_t pitch, onnx_interpolation how,
                           onnx_outside outside, bool align) {
    taps t = {.count = how == ONNX_NEAREST ? 1 : how == ONNX_LINEAR ? 2 : 4};
    if (how == ONNX_NEAREST) at = tn_round(at);
    if (how != ONNX_CUBIC) at = moved_inside(at, size, outside, align);
    tn_tensor *base = how == ONNX_NEAREST ? tn_round(at) : tn_floor(at), *part = tn_sub(at, base);
    for (int i = 0; i < t.count; i++) {
        const tn_tensor *place = t.count == 1 ? base : tn_add_scalar(base, i - (t.count == 4));
        t.weight[i] = weight_of(part, i, t.count);
        if (outside == ONNX_ZEROS) {
            tn_tensor *inside = tn_logical_and(tn_ge_scalar(place, 0), tn_le_scalar(place, (double)(size - 1)));
            tn_tensor *mask = tn_cast(inside, tn_dtype_of(at));
            t.weight[i] = t.weight[i] ? tn_mul(t.weight[i], mask) : mask;
        }
        place = moved_inside(place, size, outside, align);
        t.place[i] = tn_mul(tn_cast(tn_clamp(place, 0, (double)(size - 1)), TN_I64), tn_scalar_int(pitch));
    }
    return t;
}

/* The values of flat images [n, c, pixels] under one combination of taps. */
static tn_tensor *tap_values(const tn_tensor *flat, const taps *t, int axes, int64_t combination) {
    tn_tensor *place = NULL, *weight = NULL;
    for (int a = 0; a < axes; a++) {
        int i = (int)(combination % t[a].count);
        combination /= t[a].count;
        place = place ? tn_add(place, t[a].place[i]) : t[a].place[i];
        if (t[a].weight[i]) weight = weight ? tn_mul(weight, t[a].weight[i]) : t[a].weight[i];
    }
    int64_t shape[3] = {tn_size(flat, 0), tn_size(flat, 1), tn_size(place, 1)};
    tn_tensor *v = tn_gather(flat, 2, tn_expand(tn_unsqueeze(place, 1), shape, 3));
    return weight ? tn_mul(v, tn_unsqueeze(weight, 1)) : v;
}

static tn_tensor *onnx_sample(const tn_tensor *x, tn_tensor *const *places, onnx_interpolation how,
                              onnx_outside outside, bool align_corners) {
    taps t[ONNX_MAX_AXES];
    int axes = tn_rank(x) - 2;
    int64_t pitch = 1, combinations = 1;
    for (int a = axes - 1; a >= 0; a--) {
        int64_t size = tn_size(x, 2 + a);
        if (size < 1) return tn_failed(TN_ERR_SHAPE, "the image has no pixels to sample");
        t[a] = sample_taps_of(places[a], size, pitch, how, outside, align_corners);
        pitch *= size;
        combinations *= t[a].count;
    }
    tn_tensor *flat = tn_flatten(x, 2, -1), *sum = NULL;
    for (int64_t i = 0; i < combinations; i++) {
        tn_tensor *v = tap_values(flat, t, axes, i);
        sum = sum ? tn_add(sum, v) : v;
    }
    return sum;
}

/* ---- GridSample -------------------------------------------------------------------------------------------------- */

static tn_status read_ways(const onnx_call *c, onnx_interpolation *how, onnx_outside *outside) {
    static const struct {
        const char *name;
        int value;
    } modes[] = {{"linear", ONNX_LINEAR},
                 {"bilinear", ONNX_LINEAR},
                 {"cubic", ONNX_CUBIC},
                 {"bicubic", ONNX_CUBIC},
                 {"nearest", ONNX_NEAREST}},
      paddings[] = {{"zeros", ONNX_ZEROS}, {"border", ONNX_BORDER}, {"reflection", ONNX_REFLECTION}};
    onnx_text mode = onnx_string(c, "mode", "linear"), padding = onnx_string(c, "padding_mode", "zeros");
    int found = 0;
    for (size_t i = 0; i < TN_COUNT(modes); i++)
        if (onnx_is(mode, modes[i].name)) *how = (onnx_interpolation)modes[i].value, found |= 1;
    for (size_t i = 0; i < TN_COUNT(paddings); i++)
        if (onnx_is(padding, paddings[i].name)) *outside = (onnx_outside)paddings[i].value, found |= 2;
    return found == 3 ? TN_OK
                      : onnx_refuse(c, "mode '%.*s' with padding '%.*s' is not supported", (int)mode.size, mode.at,
                                    (int)padding.size, padding.at);
}

static tn_status grid_sample(onnx_call *c) {
    const tn_tensor *x = onnx_in(c, 0), *grid = onnx_in(c, 1);
    onnx_interpolation how = ONNX_LINEAR;
    onnx_outside outside = ONNX_ZEROS;
    int64_t shape[TN_MAX_RANK], flat[3];
    int axes = tn_rank(x) - 2;
    bool align = onnx_int(c, "align_corners", 0) != 0;
    tn_tensor *places[ONNX_MAX_AXES];
    TRY(read_ways(c, &how, &outside));
    TRY(tn_status_of(x));
    TRY(tn_status_of(grid));
    if (axes < 1 || axes > ONNX_MAX_AXES || tn_rank(grid) != axes + 2 || tn_size(grid, -1) != axes)
        return onnx_refuse(c, "an image of %d axes and a grid of %d dimensions do not fit together", axes,
                           tn_rank(grid));
    memcpy(shape, tn_shape(x), 2 * sizeof *shape);
    memcpy(shape + 2, tn_shape(grid) + 1, (size_t)axes * sizeof *shape);
    flat[0] = tn_size(grid, 0);
    flat[2] = axes;
    flat[1] = flat[0] ? tn_numel(grid) / flat[0] / axes : 0;
    tn_tensor *points = tn_reshape(grid, flat, 3);
    for (int a = 0; a < axes; a++) {
        double size = (double)tn_size(x, 2 + a), half = align ? (size - 1) / 2 : size / 2;
        tn_tensor *g = onnx_has(c, 1) ? tn_add_scalar(tn_select(points, 2, axes - 1 - a), 1) : NULL;
        places[a] = tn_add_scalar(tn_mul_scalar(g, half), align ? 0 : -0.5);
    }
    tn_dtype t = tn_dtype_of(x);
    bool floats = t == TN_F32 || t == TN_F64 || t == TN_F16 || t == TN_BF16;
    tn_tensor *y = onnx_sample(floats ? x : tn_cast(x, TN_F32), places, how, outside, align);
    return onnx_put(c, 0, tn_cast(tn_reshape(y, shape, tn_rank(x)), t));
}

/* ---- AffineGrid -------------------------------------------------------------------------------------------------- */

static tn_status affine_grid(onnx_call *c) {
    const tn_tensor *theta = onnx_in(c, 0);
    int64_t *size = NULL, count = 0;
    TRY(tn_status_of(theta));
    TRY(onnx_read_ints(c, 1, &size, &count, TN_MAX_RANK));
    tn_tensor *y = tn_affine_grid(theta, size, (int)count, onnx_int(c, "align_corners", 0) != 0);
    tn_mem_free(size);
    return onnx_put(c, 0, y);
}

/* ---- DeformConv -------------------------------------------------------------------------------------------------- */

/* Where tap and place of the undeformed window lie along axis a: [taps, places]. */
static tn_tensor *window_places(const onnx_window *w, int a, const int64_t *places) {
    int64_t shape[2 * ONNX_MAX_AXES], flat[2] = {1, 1};
    tn_tensor *tap = tn_mul_scalar(tn_arange(0, (double)w->kernel[a], 1, TN_F32), (double)w->dilation[a]);
    tn_tensor *place = tn_arange(0, (double)places[a], 1, TN_F32);
    place = tn_add_scalar(tn_mul_scalar(place, (double)w->stride[a]), (double)-w->before[a]);
    for (int d = 0; d < w->axes; d++) {
        flat[0] *= w->kernel[d];
        flat[1] *= places[d];
        shape[d] = d == a ? w->kernel[d] : 1;
        shape[w->axes + d] = d == a ? places[d] : 1;
    }
    int64_t alone[2 * ONNX_MAX_AXES];
    memcpy(alone, shape, sizeof alone);
    for (int d = 0; d < w->axes; d++)
        shape[w->axes + d] = 1, alone[d] = 1;
    tn_tensor *sum = tn_add(tn_reshape(tap, shape, 2 * w->axes), tn_reshape(place, alone, 2 * w->axes));
    for (int d = 0; d < w->axes; d++) {
        shape[d] = w->kernel[d];
        shape[w->axes + d] = places[d];
    }
    return tn_reshape(tn_expand(sum, shape, 2 * w->axes), flat, 2);
}

tn_status onnx_deform_conv(onnx_call *c) {
    const tn_tensor *x = onnx_in(c, 0), *weight = onnx_in(c, 1), *offset = onnx_in(c, 2);
    int64_t groups = onnx_int(c, "group", 1), parts = onnx_int(c, "offset_group", 1), sizes[ONNX_MAX_AXES],
            tap_count = 1, places = 1;
    int64_t shape[TN_MAX_RANK], image[TN_MAX_RANK];
    tn_tensor *at[ONNX_MAX_AXES];
    onnx_window w;
    TRY(tn_status_of(weight));
    TRY(tn_status_of(offset));
    TRY(onnx_window_read(c, x, tn_shape(weight) + 2, &w));
    int64_t n = tn_size(x, 0), in = tn_size(x, 1), out = tn_size(weight, 0);
    if (tn_rank(weight) != tn_rank(x) || groups < 1 || parts < 1 || in % parts || in != tn_size(weight, 1) * groups ||
        out % groups)
        return onnx_refuse(c, "%lld groups and %lld offset groups do not fit the channels", (long long)groups,
                           (long long)parts);
    memcpy(image, tn_shape(x), (size_t)tn_rank(x) * sizeof *image);
    image[0] = n * parts;
    image[1] = in / parts;
    for (int a = 0; a < w.axes; a++) {
        sizes[a] = onnx_places(&w, a, tn_size(x, 2 + a), false);
        tap_count *= w.kernel[a];
        places *= sizes[a];
        shape[2 + a] = sizes[a];
    }
    if (tn_numel(offset) != n * parts * tap_count * w.axes * places)
        return onnx_refuse(c, "offset has %lld elements, which does not fit the input", (long long)tn_numel(offset));
    int64_t split[] = {n * parts, tap_count, w.axes, places}, points[] = {n * parts, tap_count * places};
    tn_tensor *moves = tn_reshape(offset, split, 4);
    for (int a = 0; a < w.axes; a++)
        at[a] = tn_reshape(tn_add(tn_select(moves, 2, a), window_places(&w, a, sizes)), points, 2);
    tn_tensor *seen = onnx_sample(tn_reshape(x, image, tn_rank(x)), at, ONNX_LINEAR, ONNX_ZEROS, true);
    if (onnx_has(c, 4)) seen = tn_mul(seen, tn_reshape(onnx_in(c, 4), (int64_t[]){points[0], 1, points[1]}, 3));
    int64_t depth = in / groups * tap_count;
    tn_tensor *columns = tn_reshape(seen, (int64_t[]){n, groups, depth, places}, 4);
    tn_tensor *filters = tn_reshape(weight, (int64_t[]){groups, out / groups, depth}, 3);
    shape[0] = n;
    shape[1] = out;
    tn_tensor *y = tn_cast(tn_reshape(tn_matmul(filters, columns), shape, tn_rank(x)), tn_dtype_of(x));
    return onnx_put(c, 0, onnx_has(c, 3) ? tn_add(y, onnx_per_channel(onnx_in(c, 3), tn_rank(x))) : y);
}

/* ==== ImageDecoder ================================================================================================ */
/* The output's extents are read from the bytes, so a model that decodes is recorded at each run. */

static _Atomic(tn_image_decoder *) decoder;

void tn_onnx_set_image_decoder(tn_image_decoder *decode) { atomic_store(&decoder, decode); }
bool onnx_decodes_images(void) { return atomic_load(&decoder) != NULL; }

/* Brightness in 16 bits after the point: ITU-R BT.601. */
static uint8_t grey(const uint8_t *p) {
    return (uint8_t)((19595U * p[0] + 38470U * p[1] + 7471U * p[2] + 32768U) >> 16);
}

/* In place: 1 or 3 numbers a pixel. */
static void arrange(uint8_t *rgb, int64_t pixels, bool is_grey, bool is_bgr) {
    for (int64_t i = 0; i < pixels; i++) {
        uint8_t *p = rgb + 3 * i, red = p[0];
        if (is_grey) rgb[i] = grey(p);
        if (!is_bgr) continue;
        p[0] = p[2];
        p[2] = red;
    }
}

tn_status onnx_image_decoder(onnx_call *c) {
    const tn_tensor *x = onnx_in(c, 0);
    tn_image_decoder *decode = atomic_load(&decoder);
    onnx_text format = onnx_string(c, "pixel_format", "RGB");
    bool is_grey = onnx_is(format, "Grayscale"), is_bgr = onnx_is(format, "BGR");
    if (!decode) return onnx_refuse(c, "no image decoder is set");
    if (!is_grey && !is_bgr && !onnx_is(format, "RGB")) return onnx_refuse(c, "unknown pixel_format");
    if (onnx_in_type(c, 0) != ONNX_UINT8) return onnx_refuse(c, "the bytes must be UINT8");
    if (c->fixed != ONNX_CONSTANT) c->run->varied = true;
    size_t size = (size_t)tn_numel(x);
    int64_t shape[3] = {0, 0, is_grey ? 1 : 3};
    uint8_t *bytes = tn_mem_alloc(size), *rgb = NULL;
    tn_status status = bytes ? tn_read(x, bytes, size) : TN_ERR_MEMORY;
    if (status == TN_OK) status = decode(bytes, size, shape, &rgb);
    tn_mem_free(bytes);
    if (status != TN_OK) return tn_fail_prefix(status, "ImageDecoder");
    arrange(rgb, shape[0] * shape[1], is_grey, is_bgr);
    tn_tensor *picture = tn_from_data(rgb, shape, 3, TN_U8);
    free(rgb);
    return onnx_put(c, 0, picture);
}

/* ==== the table =================================================================================================== */

const onnx_op_row onnx_image_ops[] = {{"AffineGrid", 20, .run = affine_grid},
                                      {"BlackmanWindow", 17, .run = onnx_signal_window, .with = 2},
                                      {"CenterCropPad", 18, .run = center_crop_pad},
                                      {"Col2Im", 18, .run = col2im},
                                      {"DFT", 17, .run = onnx_dft},
                                      {"DFT", 20, .run = onnx_dft},
                                      {"GridSample", 16, .run = grid_sample},
                                      {"HammingWindow", 17, .run = onnx_signal_window, .with = 1},
                                      {"HannWindow", 17, .run = onnx_signal_window, .with = 0},
                                      {"ImageDecoder", 20, .run = onnx_image_decoder},
                                      {"MaxRoiPool", 1, .run = max_roi_pool},
                                      {"MelWeightMatrix", 17, .run = onnx_mel_weight_matrix},
                                      {"NonMaxSuppression", 10, .run = onnx_non_max_suppression},
                                      {"Resize", 10, .run = run_resize},
                                      {"Resize", 11, .run = run_resize},
                                      {"RoiAlign", 10, .run = roi_align},
                                      {"RoiAlign", 16, .run = roi_align},
                                      {"STFT", 17, .run = onnx_stft},
                                      {"Upsample", 7, .run = run_resize, .with = 1},
                                      {"Upsample", 9, .run = run_resize, .with = 1},
                                      {.name = NULL}};
