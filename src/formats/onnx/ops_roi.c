/* ops_roi.c — ONNX: boxes in images: RoiAlign, MaxRoiPool.
 *
 * What a box is made of depends on its numbers, so they are read here; RoiAlign and MaxRoiPool then record one look-up
 * for all boxes and channels. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "formats/onnx/nn.h"

/* ---- look-ups ---------------------------------------------------------------------------------------------------- */

/* Places in a flat image [c, n · h · w], `each` of them a result. */
typedef struct places {
    int64_t boxes, results, each; /* results a box */
    int64_t *at;
    double *weight;
} places;

static tn_status make_places(const onnx_call *c, places *p) {
    static const int64_t MOST = (int64_t)1 << 25;
    int64_t count;
    *p = (places){p->boxes, p->results, p->each, NULL, NULL};
    if (tn_mul_overflow(p->boxes, p->results, &count) || tn_mul_overflow(count, p->each, &count) || count > MOST)
        return onnx_refuse(c, "%lld boxes with %lld samples a result", (long long)p->boxes, (long long)p->each);
    p->at = tn_mem_zalloc((size_t)tn_max64(count, 1), sizeof *p->at);
    p->weight = tn_mem_zalloc((size_t)tn_max64(count, 1), sizeof *p->weight);
    return p->at && p->weight ? TN_OK : TN_ERR_MEMORY;
}

static void free_places(places *p) {
    tn_mem_free(p->at);
    tn_mem_free(p->weight);
}

/* x [n, c, h, w] at these places, weighted: [c, boxes, results, each]. */
static tn_tensor *looked_up(const tn_tensor *x, const places *p) {
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

typedef struct align {
    int64_t high, wide, ratio; /* of the result; samples along each axis of a bin, 0: as many as pixels */
    double scale, shift;
    bool one_at_least, max;
} align;

/* One axis of a box: where its bins begin, how far they reach; in f32, as the number of samples may hang on a bit. */
typedef struct extent {
    double from, bin;
    int64_t samples;
} extent;

static extent extent_of(const align *a, double from, double to, int64_t bins) {
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
static void fill_bin(const align *a, const extent *e, const int64_t *bin, const int64_t *size, int64_t first,
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

static tn_status fill_boxes(const onnx_call *c, const align *a, const double *box, const int64_t *image,
                            const tn_tensor *x, places *p) {
    int64_t size[2] = {tn_size(x, 2), tn_size(x, 3)}, most = 1;
    for (int64_t b = 0; b < p->boxes; b++) {
        extent high = extent_of(a, box[4 * b + 1], box[4 * b + 3], a->high);
        extent wide = extent_of(a, box[4 * b], box[4 * b + 2], a->wide);
        most = tn_max64(most, high.samples * wide.samples);
        if (image[b] < 0 || image[b] >= tn_size(x, 0)) return onnx_refuse(c, "image %lld", (long long)image[b]);
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
        return onnx_refuse(c, "an image of %d dimensions, boxes of %lld numbers", tn_rank(x),
                           (long long)tn_size(boxes, 1));
    TRY(onnx_read_floats(c, 1, box, count, INT32_MAX));
    *count /= numbers;
    return TN_OK;
}

tn_status onnx_roi_align(onnx_call *c) {
    const int64_t last = 3;
    onnx_text placing =
        onnx_string(c, "coordinate_transformation_mode", c->row->since < 16 ? "output_half_pixel" : "half_pixel");
    bool half = onnx_is(placing, "half_pixel");
    align a = {.high = onnx_int(c, "output_height", 1),
               .wide = onnx_int(c, "output_width", 1),
               .ratio = onnx_int(c, "sampling_ratio", 0),
               .scale = onnx_float(c, "spatial_scale", 1),
               .shift = half ? 0.5 : 0,
               .one_at_least = !half,
               .max = onnx_is(onnx_string(c, "mode", "avg"), "max")};
    double *box = NULL;
    int64_t *image = NULL, images = 0;
    places p = {0};
    if (a.high < 1 || a.wide < 1 || a.high > 4096 || a.wide > 4096 || a.ratio > 4096)
        return onnx_refuse(c, "a result of %lld × %lld", (long long)a.high, (long long)a.wide);
    p.results = a.high * a.wide;
    tn_status s = read_boxes(c, 4, &box, &p.boxes);
    if (s == TN_OK) s = onnx_read_ints(c, 2, &image, &images, INT32_MAX);
    if (s == TN_OK && images != p.boxes)
        s = onnx_refuse(c, "%lld boxes in %lld images", (long long)p.boxes, (long long)images);
    if (s == TN_OK) s = fill_boxes(c, &a, box, image, onnx_in(c, 0), &p);
    if (s == TN_OK) {
        tn_tensor *v = looked_up(onnx_in(c, 0), &p);
        v = a.max ? tn_amax(v, &last, 1, false) : tn_sum(v, &last, 1, false);
        s = onnx_put(c, 0, as_boxes(v, a.high, a.wide));
    }
    free_places(&p);
    tn_mem_free(box);
    tn_mem_free(image);
    return s;
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

static tn_status fill_pools(const onnx_call *c, const double *box, const int64_t *bins, double scale, places *p) {
    const tn_tensor *x = onnx_in(c, 0);
    int64_t high = tn_size(x, 2), wide = tn_size(x, 3);
    for (int pass = 0; pass < 2; pass++) { /* the first finds out how many pixels a bin has */
        int64_t most = 1;
        for (int64_t i = 0; i < p->boxes * p->results; i++) {
            const double *b = box + 5 * (i / p->results);
            int64_t rows[2], columns[2];
            if (!(b[0] >= 0 && b[0] < (double)tn_size(x, 0))) return onnx_refuse(c, "image %g", b[0]);
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

tn_status onnx_max_roi_pool(onnx_call *c) {
    const int64_t last = 3;
    double *box = NULL;
    int64_t bins[2];
    places p = {0};
    TRY(onnx_ints_of(c, "pooled_shape", 2, 0, bins));
    if (bins[0] < 1 || bins[1] < 1)
        return onnx_refuse(c, "a result of %lld × %lld", (long long)bins[0], (long long)bins[1]);
    p.results = bins[0] * bins[1];
    tn_status s = read_boxes(c, 5, &box, &p.boxes);
    if (s == TN_OK) s = fill_pools(c, box, bins, onnx_float(c, "spatial_scale", 1), &p);
    if (s == TN_OK)
        s = onnx_put(c, 0, as_boxes(tn_amax(looked_up(onnx_in(c, 0), &p), &last, 1, false), bins[0], bins[1]));
    free_places(&p);
    tn_mem_free(box);
    return s;
}
