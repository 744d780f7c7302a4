/* ops_sample.c — ONNX: images at places between pixels: GridSample, DeformConv, and the grids of AffineGrid.
 *
 * A sample is a sum over taps: 1, 2 or 4 along each axis. Where a tap lies and what it weighs depends on one axis
 * alone, so both are made an axis at a time and joined by addition and multiplication. */
#include <math.h>
#include <string.h>

#include "formats/onnx/nn.h"

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

static taps taps_of(const tn_tensor *at, int64_t size, int64_t pitch, onnx_interpolation how, onnx_outside outside,
                    bool align) {
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

tn_tensor *onnx_sample(const tn_tensor *x, tn_tensor *const *places, onnx_interpolation how, onnx_outside outside,
                       bool align_corners) {
    taps t[ONNX_MAX_AXES];
    int axes = tn_rank(x) - 2;
    int64_t pitch = 1, combinations = 1;
    for (int a = axes - 1; a >= 0; a--) {
        int64_t size = tn_size(x, 2 + a);
        if (size < 1) return tn_failed(TN_ERR_SHAPE, "samples of an image without pixels");
        t[a] = taps_of(places[a], size, pitch, how, outside, align_corners);
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
    return found == 3
               ? TN_OK
               : onnx_refuse(c, "mode '%.*s', padding '%.*s'", (int)mode.size, mode.at, (int)padding.size, padding.at);
}

tn_status onnx_grid_sample(onnx_call *c) {
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
        return onnx_refuse(c, "an image of %d axes and a grid of %d dimensions", axes, tn_rank(grid));
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

/* Homogeneous coordinates of all pixels, innermost axis first: [pixels, axes + 1]. */
static tn_tensor *homogeneous(const int64_t *size, int axes, bool align, tn_dtype t) {
    static const int64_t PIXELS_MOST = 1 << 26;
    int64_t pixels = 1;
    for (int a = 0; a < axes; a++)
        if (size[a] < 0 || tn_mul_overflow(pixels, size[a], &pixels) || pixels > PIXELS_MOST)
            return tn_failed(TN_ERR_SHAPE, "a grid of %lld along axis %d", (long long)size[a], a);
    int64_t shape[2] = {pixels, axes + 1};
    double *v = tn_mem_alloc((size_t)tn_max64(pixels * shape[1], 1) * sizeof *v);
    if (!v) return tn_failed(TN_ERR_MEMORY, "out of memory");
    for (int64_t p = 0; p < pixels; p++) {
        int64_t rest = p;
        for (int a = axes - 1; a >= 0; a--) {
            double n = (double)size[a], i = (double)(rest % size[a]);
            rest /= size[a];
            v[p * shape[1] + axes - 1 - a] = align ? (n > 1 ? 2 * i / (n - 1) - 1 : 0) : (2 * i + 1) / n - 1;
        }
        v[p * shape[1] + axes] = 1;
    }
    tn_tensor *y = onnx_from_doubles(v, shape, 2, t);
    tn_mem_free(v);
    return y;
}

tn_status onnx_affine_grid(onnx_call *c) {
    const tn_tensor *theta = onnx_in(c, 0);
    int64_t *size = NULL, count = 0, shape[TN_MAX_RANK] = {tn_size(theta, 0)};
    TRY(tn_status_of(theta));
    TRY(onnx_read_ints(c, 1, &size, &count, TN_MAX_RANK));
    int axes = (int)count - 2;
    bool fits = (axes == 2 || axes == 3) && tn_rank(theta) == 3 && tn_size(theta, 1) == axes;
    tn_tensor *places =
        fits ? homogeneous(size + 2, axes, onnx_int(c, "align_corners", 0) != 0, tn_dtype_of(theta)) : NULL;
    for (int a = 0; fits && a < axes; a++)
        shape[1 + a] = size[2 + a];
    tn_mem_free(size);
    if (!fits) return onnx_refuse(c, "a size of %lld numbers", (long long)count);
    shape[1 + axes] = axes;
    return onnx_put(c, 0, tn_reshape(tn_matmul(places, tn_transpose(theta, 1, 2)), shape, axes + 2));
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
        return onnx_refuse(c, "%lld groups, %lld of offsets", (long long)groups, (long long)parts);
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
        return onnx_refuse(c, "%lld offsets", (long long)tn_numel(offset));
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
