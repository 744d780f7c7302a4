/* image_input.c — a picture as a network's input: scaled to its extents, and its numbers as the network was trained.
 *
 * Scaling weighs the pixels under a triangle of two pixels' width, of the larger grid: what shrinks is averaged, what
 * grows is interpolated. Rows first, then columns. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/run/image.h"
#include "trunnion/backend.h"
#include "trunnion/ops.h"

/* Numbers [height, width, 3]. */
typedef struct plane {
    int64_t height, width;
    float *at;
} plane;

static void plane_free(plane *p) { free(p->at); }

/* Pixel `to` of n out of m: from which pixel on, and how many; their weights add up to 1. */
static int64_t weights_of(int64_t to, int64_t n, int64_t m, float *weight, int64_t *first) {
    double ratio = (double)m / (double)n, reach = fmax(ratio, 1), centre = ((double)to + 0.5) * ratio, sum = 0;
    int64_t begin = (int64_t)fmax(0, floor(centre - reach + 0.5)), end = (int64_t)fmin((double)m, centre + reach + 0.5);
    for (int64_t i = begin; i < end; i++) {
        double w = fmax(0, 1 - fabs(((double)i + 0.5 - centre) / reach));
        weight[i - begin] = (float)w;
        sum += w;
    }
    for (int64_t i = 0; i < end - begin; i++)
        weight[i] = (float)((double)weight[i] / sum);
    *first = begin;
    return end - begin;
}

static void scale_rows(const plane *from, const plane *to, float *weight) {
    for (int64_t y = 0; y < to->height; y++) {
        int64_t first, count = weights_of(y, to->height, from->height, weight, &first);
        float *out = to->at + y * to->width * 3;
        memset(out, 0, (size_t)to->width * 3 * sizeof *out);
        for (int64_t i = 0; i < count; i++)
            for (int64_t x = 0; x < to->width * 3; x++)
                out[x] += weight[i] * from->at[(first + i) * from->width * 3 + x];
    }
}

static void scale_columns(const plane *from, const plane *to, float *weight) {
    for (int64_t x = 0; x < to->width; x++) {
        int64_t first, count = weights_of(x, to->width, from->width, weight, &first);
        for (int64_t y = 0; y < to->height; y++)
            for (int64_t c = 0; c < 3; c++) {
                const float *line = from->at + (y * from->width + first) * 3 + c;
                float sum = 0;
                for (int64_t i = 0; i < count; i++)
                    sum += weight[i] * line[3 * i];
                to->at[(y * to->width + x) * 3 + c] = sum;
            }
    }
}

/* Extents are the network's, whose file may be a stranger's. */
static tn_status make_plane(int64_t height, int64_t width, plane *out) {
    *out = (plane){0};
    TRY(image_check_extents(height, width, "scaling"));
    *out = (plane){height, width, calloc((size_t)(height * width) * 3 + 1, sizeof *out->at)};
    if (out->at) return TN_OK;
    return tn_backend_fail(TN_ERR_MEMORY, "out of memory for an image of %lld by %lld", (long long)width,
                           (long long)height);
}

static tn_status scale(const image *picture, int64_t height, int64_t width, plane *out) {
    AUTO_CALL(plane_free) plane whole = {0}, rows = {0};
    int64_t longest = picture->height > picture->width ? picture->height : picture->width;
    AUTO_CLI_FREE float *weight = calloc((size_t)longest + 8, sizeof *weight);
    *out = (plane){0};
    if (!weight) return tn_backend_fail(TN_ERR_MEMORY, "out of memory for the weights of resizing");
    TRY(make_plane(picture->height, picture->width, &whole));
    TRY(make_plane(height, picture->width, &rows));
    TRY(make_plane(height, width, out));
    for (int64_t i = 0; i < picture->height * picture->width * 3; i++)
        whole.at[i] = picture->rgb[i];
    scale_rows(&whole, &rows, weight);
    scale_columns(&rows, out, weight);
    return TN_OK;
}

/* The middle of `from` in the middle of `to`. */
static void put_in_middle(const plane *from, const plane *to) {
    int64_t dy = (to->height - from->height) / 2, dx = (to->width - from->width) / 2;
    for (int64_t y = 0; y < to->height; y++)
        for (int64_t x = 0; x < to->width; x++) {
            int64_t fy = y - dy, fx = x - dx;
            bool inside = fy >= 0 && fx >= 0 && fy < from->height && fx < from->width;
            if (inside)
                memcpy(to->at + (y * to->width + x) * 3, from->at + (fy * from->width + fx) * 3, 3 * sizeof(float));
        }
}

static int64_t image_input_scaled(int64_t n, double by) {
    double v = fmax(round((double)n * by), 1);
    return v < 1e9 ? (int64_t)v : 1000000000; /* more than a picture has in any case */
}

static tn_status to_extents(const image *p, image_resize way, int64_t height, int64_t width, plane *out) {
    double tall = (double)height / (double)p->height, wide = (double)width / (double)p->width;
    double by = way == IMAGE_CROP ? fmax(tall, wide) : fmin(tall, wide);
    AUTO_CALL(plane_free) plane middle = {0};
    if (way == IMAGE_STRETCH) return scale(p, height, width, out);
    *out = (plane){0};
    TRY(scale(p, image_input_scaled(p->height, by), image_input_scaled(p->width, by), &middle));
    TRY(make_plane(height, width, out));
    put_in_middle(&middle, out);
    return TN_OK;
}

/* Where channels, rows and columns stand among an input's extents. */
typedef struct places {
    int channel, row, column, count;
} places;

static bool find_places(const int64_t *shape, int rank, places *out) {
    int from = rank - 3;
    bool fits = rank == 3 || (rank == 4 && (shape[0] == 1 || shape[0] == -1));
    if (!fits) return false;
    int64_t first = shape[from], last = shape[rank - 1];
    bool behind = (last == 3 || last == 1) && first != 3 && first != 1;
    int64_t channels = behind ? last : first;
    *out =
        behind ? (places){from + 2, from, from + 1, (int)channels} : (places){from, from + 1, from + 2, (int)channels};
    if (channels == -1) out->count = 3;
    return channels == 3 || channels == 1 || channels == -1;
}

/* Rounded, and in whole numbers as the eye sees brightness: ITU-R BT.601. */
static float channel_of(const float *rgb, const places *at, const image_options *o, int c) {
    if (at->count == 1) return 0.299F * rgb[0] + 0.587F * rgb[1] + 0.114F * rgb[2];
    return rgb[o->bgr ? 2 - c : c];
}

static void fill_image_input(const plane *p, const image_options *o, const places *at, double scale, float *out) {
    for (int64_t i = 0; i < p->height * p->width; i++)
        for (int c = 0; c < at->count; c++) {
            double v = (double)channel_of(p->at + 3 * i, at, o, c) * scale - o->mean[c];
            int64_t to = at->channel > at->row ? i * at->count + c : c * p->height * p->width + i;
            out[to] = (float)(o->std[c] != 0 ? v / o->std[c] : v);
        }
}

tn_status image_tensor(const image *picture, const image_options *o, const int64_t *shape, int rank, tn_dtype dtype,
                       tn_tensor **out) {
    places at;
    AUTO_CALL(plane_free) plane p = {0};
    *out = NULL;
    if (!find_places(shape, rank, &at))
        return tn_backend_fail(
            TN_ERR_SHAPE,
            "the input does not accept an image: its shape is not [1, 3, height, width] or [1, height, width, 3]");
    int64_t height = shape[at.row], width = shape[at.column], full[4] = {1, 1, 1, 1};
    if (o->size[0] && ((height > 0 && height != o->size[0]) || (width > 0 && width != o->size[1])))
        return tn_backend_fail(
            TN_ERR_SHAPE,
            "--size %lldx%lld: the size of the input is fixed (height %lld, width %lld; -1 is open); remove --size",
            (long long)o->size[0], (long long)o->size[1], (long long)height, (long long)width);
    if (height <= 0) height = o->size[0] ? o->size[0] : picture->height;
    if (width <= 0) width = o->size[1] ? o->size[1] : picture->width;
    full[at.channel] = at.count;
    full[at.row] = height;
    full[at.column] = width;
    TRY(to_extents(picture, o->resize, height, width, &p));
    AUTO_CLI_FREE float *numbers = malloc((size_t)(height * width * at.count) * sizeof *numbers);
    if (!numbers) return tn_backend_fail(TN_ERR_MEMORY, "out of memory for an image");
    bool whole = !tn_dtype_is_float(dtype);
    fill_image_input(&p, o, &at, o->scale != 0 ? o->scale : whole ? 1 : 1.0 / 255, numbers);
    AUTO_CLI_TENSOR tn_tensor *made = tn_from_data(numbers, full, rank, TN_F32);
    AUTO_CLI_TENSOR tn_tensor *round = whole ? tn_round(made) : tn_retain(made);
    *out = tn_cast(round, dtype);
    return tn_eval(out, 1);
}
