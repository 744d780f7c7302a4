/* ops_image.c — ONNX: images that change their size; and the table of all operators on images and signals.
 *
 * Resizing is separable. For each axis the host computes from the sizes alone which elements weigh how much in which
 * result; what is recorded are selections along the axis, or one product where there are many. */
#include <math.h>
#include <string.h>

#include "formats/onnx/nn.h"

/* ---- which coordinates ------------------------------------------------------------------------------------------- */

typedef enum placing { HALF_PIXEL, SYMMETRIC, PYTORCH, ALIGN_CORNERS, ASYMMETRIC, CROP, PLACINGS } placing;
static const char *const placing_names[] = {"half_pixel",    "half_pixel_symmetric", "pytorch_half_pixel",
                                            "align_corners", "asymmetric",           "tf_crop_and_resize"};
enum { ROUND_FLOOR, ROUND_CEIL, FLOOR, CEIL, ROUNDINGS };
static const char *const rounding_names[] = {"round_prefer_floor", "round_prefer_ceil", "floor", "ceil"};

static const int64_t MOST_PLACES = 1 << 26; /* along an axis, of all taps */

typedef struct resize {
    placing placing;
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
    tn_tensor *sum = NULL;
    for (int64_t t = 0; t < a->taps; t++) {
        tn_tensor *part = tn_index_select(x, dim, tn_from_data(a->index + t * a->out, &a->out, 1, TN_I64));
        if (a->taps == 1) return part;
        tn_tensor *weight = onnx_from_doubles(a->weight + t * a->out, &a->out, 1, tn_dtype_of(x));
        part = tn_mul(part, along(weight, dim, tn_rank(x)));
        sum = sum ? tn_add(sum, part) : part;
    }
    return sum;
}

static tn_tensor *by_product(const tn_tensor *x, const axis *a, int dim) {
    static const int64_t MOST = 1 << 27;
    int64_t shape[2] = {a->in, a->out};
    if (a->out && a->in > MOST / a->out) return tn_failed(TN_ERR_UNSUPPORTED, "Resize: an axis that is too long");
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
        return tn_failed(TN_ERR_UNSUPPORTED, "Resize: from %lld to %lld elements", (long long)a->in, (long long)a->out);
    int64_t count = a->taps * a->out;
    a->index = tn_mem_alloc((size_t)count * sizeof *a->index);
    a->weight = tn_mem_alloc((size_t)count * sizeof *a->weight);
    a->outside = tn_mem_alloc((size_t)a->out);
    bool whole = a->index && a->weight && a->outside;
    tn_tensor *y = whole ? resized_along(x, r, a, dim) : tn_failed(TN_ERR_MEMORY, "Resize: out of memory");
    tn_mem_free(a->index);
    tn_mem_free(a->weight);
    tn_mem_free(a->outside);
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
    return onnx_refuse(c, "%s '%.*s'", name, (int)t.size, t.at);
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
    r->placing = (placing)place;
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
        return onnx_refuse(c, "%lld scales or sizes for %d axes", (long long)have, count);
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
            return onnx_refuse(c, "scale %g of axis %d", a->scale, (int)dims[i]);
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
    tn_mem_free(g.scales);
    tn_mem_free(g.sizes);
    tn_mem_free(g.roi);
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
    if (count != axes) return onnx_refuse(c, "%lld extents for %d axes", (long long)count, axes);
    if (!possible) return onnx_refuse(c, "a negative extent");
    return onnx_put_like(c, 0, tn_pad(x, pads, 2 * rank, 0), 0);
}

/* Where tap and block of each column lie in the flat image; behind it what is padding. */
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
        s = onnx_refuse(c, "images of %lld axes, blocks of %lld", (long long)count[0], (long long)count[1]);
    for (int a = 0; s == TN_OK && a < count[0]; a++) {
        size[a] = given[0][a];
        w->kernel[a] = given[1][a];
        if (size[a] < 1 || w->kernel[a] < 1 || size[a] > INT32_MAX || w->kernel[a] > INT32_MAX)
            s = onnx_refuse(c, "an extent of %lld, blocks of %lld", (long long)size[a], (long long)w->kernel[a]);
    }
    w->axes = (int)count[0];
    tn_mem_free(given[0]);
    tn_mem_free(given[1]);
    TRY(s);
    TRY(onnx_ints_of(c, "strides", w->axes, 1, w->stride));
    TRY(onnx_ints_of(c, "dilations", w->axes, 1, w->dilation));
    TRY(onnx_ints_of(c, "pads", 2 * w->axes, 0, pads));
    memcpy(w->before, pads, (size_t)w->axes * sizeof *pads);
    memcpy(w->after, pads + w->axes, (size_t)w->axes * sizeof *pads);
    for (int a = 0; a < w->axes; a++)
        if (w->stride[a] < 1 || w->dilation[a] < 1) return onnx_refuse(c, "a stride or dilation below 1");
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
        if (large || tn_mul_overflow(pixels, size[a], &pixels)) return onnx_refuse(c, "an image that is too large");
    }
    if (tn_rank(x) != 3 || tn_size(x, 1) < 1 || tn_size(x, 1) % taps || tn_size(x, 2) != count)
        return onnx_refuse(c, "columns that are not those of %lld blocks of %lld", (long long)count, (long long)taps);
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

/* ---- the table --------------------------------------------------------------------------------------------------- */

const onnx_op_row onnx_image_ops[] = {{"AffineGrid", 20, .run = onnx_affine_grid},
                                      {"BlackmanWindow", 17, .run = onnx_signal_window, .with = 2},
                                      {"CenterCropPad", 18, .run = center_crop_pad},
                                      {"Col2Im", 18, .run = col2im},
                                      {"DFT", 17, .run = onnx_dft},
                                      {"DFT", 20, .run = onnx_dft},
                                      {"GridSample", 16, .run = onnx_grid_sample},
                                      {"HammingWindow", 17, .run = onnx_signal_window, .with = 1},
                                      {"HannWindow", 17, .run = onnx_signal_window, .with = 0},
                                      {"ImageDecoder", 20, .run = onnx_image_decoder},
                                      {"MaxRoiPool", 1, .run = onnx_max_roi_pool},
                                      {"MelWeightMatrix", 17, .run = onnx_mel_weight_matrix},
                                      {"NonMaxSuppression", 10, .run = onnx_non_max_suppression},
                                      {"Resize", 10, .run = run_resize},
                                      {"Resize", 11, .run = run_resize},
                                      {"RoiAlign", 10, .run = onnx_roi_align},
                                      {"RoiAlign", 16, .run = onnx_roi_align},
                                      {"STFT", 17, .run = onnx_stft},
                                      {"Upsample", 7, .run = run_resize, .with = 1},
                                      {"Upsample", 9, .run = run_resize, .with = 1},
                                      {.name = NULL}};
