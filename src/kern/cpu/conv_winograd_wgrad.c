/* conv_winograd_wgrad.c — the gradient of 3×3 filters by Winograd's algorithm: a quarter of the multiplications.
 *
 * A tile of 4×4 results and the 6×6 numbers of an image that it has seen give nine sums of products, which are a
 * product of polynomials again: both become 36 values, at each of these points
 *     sums[filters, channels] = Σ over tiles results[tile, filters] · images[tile, channels]
 * is a product like others, and 36 sums become nine gradients, once. The transforms are winograd.h's: those of the way
 * forth, turned around.
 *
 * Some tiles at a time are the k of the products. Here lanes are channels, so images and results are turned first, a
 * few rows of tiles at once. A task is half of the points, for some filters; all see the same tiles in the same order.
 * How many make a chain depends on sizes alone, so that the bits are the same for any number of threads. */
#include <string.h>

#include "kern/cpu/conv_winograd.h"
#include "kern/cpu/cpu.h"
#include "kern/cpu/im2col.h"

enum {
    OUT = WINOGRAD_OUT,
    IN = WINOGRAD_IN,
    OVERLAP = IN - OUT,
    HALF = IN / 2, /* rows of points of a task */
    TASK_POINTS = HALF * IN,
    TAPS = 9,
    TRANSPOSED_ELEMENTS = 1 << 15, /* of an image at once, about: half of the values' share of the second cache */
    VALUE_ELEMENTS = 5 << 16       /* of a task's images and results together: with these two thirds of that cache */
};

/* Of the memory of a thread. */
enum { SLAB, TRANSPOSED, IMAGES, RESULTS, AREAS };

/* What is turned and transformed: images, or results. */
typedef struct side {
    const float *from;
    int64_t stride[4], size[2], pad_before[2];
    int64_t pixel;                 /* distance of pixels, and of tiles' values: an odd number of lines */
    int64_t point;                 /* distance of points */
    int64_t border;                /* rows and columns that a tile sees beyond its own */
    winograd_values_fn *transform; /* of a tile */
} side;

typedef struct gradient {
    tn_conv_args a;
    const conv_vec *with;
    side x, y;
    int64_t down, across;        /* tiles of an image */
    int64_t image_units, blocks; /* a unit is some rows of tiles of one image, a block some units */
    int64_t unit_rows, tiles;    /* of tiles in a unit, and tiles in a block, at most */
    int64_t filter_parts;        /* tasks of half of the points */
    int64_t sum_row, sum_point;  /* distance of rows and of points in the sums */
    float *sums;                 /* [points, filters, channels] */
    size_t bytes[AREAS], memory; /* of a thread */
    char *parts;
} gradient;

/* Rows and columns that `rows` rows of tiles see. */
static int64_t im2col_pixels(const gradient *g, int64_t rows) {
    return (rows * OUT + OVERLAP) * (g->across * OUT + OVERLAP);
}

static void plan_winograd_wgrad(gradient *g, const tn_conv_args *a) {
    *g = (gradient){.a = *a, .with = tn_conv_vec()};
    g->down = tn_ceil_div(a->out_size[0], OUT);
    g->across = tn_ceil_div(a->out_size[1], OUT);
    g->x = (side){.from = a->x, .pixel = odd_lines(a->channels), .border = OVERLAP};
    g->y = (side){.from = a->y, .pixel = odd_lines(a->out_channels)};
    g->x.transform = g->with->winograd_images;
    g->y.transform = g->with->winograd_gradients;
    memcpy(g->x.stride, a->x_stride, sizeof g->x.stride);
    memcpy(g->y.stride, a->y_stride, sizeof g->y.stride);
    for (int d = 0; d < 2; d++) {
        g->x.size[d] = a->size[d];
        g->x.pad_before[d] = a->pad_before[d];
        g->y.size[d] = a->out_size[d];
    }
    const int64_t widest = tn_max64(g->x.pixel, g->y.pixel), both = TASK_POINTS * (g->x.pixel + g->y.pixel);
    int64_t rows = tn_min64(TRANSPOSED_ELEMENTS / (OUT * OUT * g->across * g->x.pixel), g->down);
    g->image_units = tn_ceil_div(g->down, tn_max64(rows, 1));
    g->unit_rows = tn_ceil_div(g->down, g->image_units);
    int64_t units = a->batch * g->image_units;
    g->blocks = tn_ceil_div(units, tn_max64(VALUE_ELEMENTS / both / (g->unit_rows * g->across), 1));
    g->tiles = tn_ceil_div(units, g->blocks) * g->unit_rows * g->across;
    g->x.point = odd_lines(g->tiles * g->x.pixel);
    g->y.point = odd_lines(g->tiles * g->y.pixel);
    g->sum_row = round_up(a->channels, MOST_LANES);
    g->sum_point = odd_lines(a->out_channels * g->sum_row);
    g->bytes[SLAB] = im2col_bytes(widest * im2col_pixels(g, g->unit_rows) + MOST_LANES);
    g->bytes[TRANSPOSED] = g->bytes[SLAB];
    g->bytes[IMAGES] = im2col_bytes(TASK_POINTS * g->x.point);
    g->bytes[RESULTS] = im2col_bytes(TASK_POINTS * g->y.point);
    for (int i = 0; i < AREAS; i++)
        g->memory += g->bytes[i];
}

/* ---- a task ------------------------------------------------------------------------------------------------------ */

/* A thread's memory: what one unit sees, turned too, and the values of a block. */
typedef struct task {
    float *input_tile, *nhwc, *batch, *results;
    int64_t first; /* row of points */
    range out_channels;
} task;

/* What rows of tiles see of some channels of an image: where it lies there if that is all, one row behind the other;
 * else in the input tile, zeros around. Channels are *across apart. */
static const float *see_tiles(const gradient *g, const side *s, const task *p, int64_t image, range rows,
                              range channels, int64_t *apart) {
    const int64_t across = g->across * OUT + s->border, down = rows.count * OUT + s->border, plane = down * across;
    const int64_t top = rows.first * OUT - s->pad_before[0], left = -s->pad_before[1];
    const range row = look_at(top, 1, down, s->size[0]), column = look_at(left, 1, across, s->size[1]);
    const float *from = s->from + image * s->stride[0] + channels.first * s->stride[1];
    from += (top + row.first) * s->stride[2] + (left + column.first) * s->stride[3];
    *apart = s->stride[1];
    bool all = row.count == down && column.count == across;
    if (all && s->stride[2] == across && s->stride[3] == 1) return from;
    *apart = plane;
    if (!all) memset(p->input_tile, 0, (size_t)(channels.count * plane) * sizeof(float));
    for (int64_t c = 0; c < channels.count && row.count > 0 && column.count > 0; c++, from += s->stride[1])
        g->with->copy_rows(p->input_tile + c * plane + row.first * across + column.first, across, from, s->stride[2],
                           row.count, s->stride[3], column.count);
    return p->input_tile;
}

/* To p->turned: pixel after pixel, channels side by side. */
static void transpose_tiles(const gradient *g, const side *s, const task *p, int64_t image, range rows,
                            range channels) {
    int64_t apart;
    const float *from = see_tiles(g, s, p, image, rows, channels, &apart);
    g->with->tiles->pack(&(pack){.to = p->nhwc,
                                 .distance = s->pixel,
                                 .group = channels.count,
                                 .from = from,
                                 .along = 1,
                                 .across = apart,
                                 .steps = (rows.count * OUT + s->border) * (g->across * OUT + s->border),
                                 .lines = channels.count});
}

static void transform(const gradient *g, const side *s, const task *p, int64_t rows, int64_t channels, float *to) {
    const int64_t row = (g->across * OUT + s->border) * s->pixel;
    for (int64_t n = 0; n < rows * g->across; n++, to += s->pixel)
        s->transform(p->nhwc + n / g->across * OUT * row + n % g->across * OUT * s->pixel, row, s->pixel, to, s->point,
                     channels, p->first, HALF);
}

/* Units [begin, end). Returns their tiles. */
static int64_t transform_block(const gradient *g, const task *p, range units) {
    const range channels = {0, g->a.channels};
    int64_t tiles = 0;
    for (int64_t u = units.first; u < units.first + units.count; u++) {
        const int64_t image = u / g->image_units;
        const range rows = split_range(g->down, g->image_units, u % g->image_units);
        transpose_tiles(g, &g->x, p, image, rows, channels);
        transform(g, &g->x, p, rows.count, channels.count, p->batch + tiles * g->x.pixel);
        transpose_tiles(g, &g->y, p, image, rows, p->out_channels);
        transform(g, &g->y, p, rows.count, p->out_channels.count, p->results + tiles * g->y.pixel);
        tiles += rows.count * g->across;
    }
    return tiles;
}

static void multiply_winograd_wgrad(const gradient *g, const task *p, int64_t tiles, bool add) {
    const tile_set *with = g->with->tiles;
    tile t = {.a_row = 1, .a_k = g->y.pixel, .b_k = g->x.pixel, .b_panel = panel_of(g->with), .k = tiles, .add = add};
    t.c_row = g->sum_row;
    for (int64_t n = 0; n < TASK_POINTS; n++)
        for (int64_t i = 0, height = 0; i < p->out_channels.count; i += height) {
            height = tile_height(p->out_channels.count - i, with->rows);
            t.a = p->results + n * g->y.point + i;
            t.b = p->batch + n * g->x.point;
            t.c = g->sums + (p->first * IN + n) * g->sum_point + (p->out_channels.first + i) * g->sum_row;
            tiles_multiply(with, t, height, g->a.channels);
        }
}

static void sum_up(void *ctx, int64_t begin, int64_t end, int worker) {
    const gradient *g = ctx;
    char *memory = g->parts + (size_t)worker * g->memory;
    task p;
    float **const areas[] = {&p.input_tile, &p.nhwc, &p.batch, &p.results};
    for (size_t i = 0; i < TN_COUNT(areas); memory += g->bytes[i++])
        *areas[i] = (float *)(void *)memory;
    for (int64_t n = begin; n < end; n++) {
        p.first = n % 2 * HALF;
        p.out_channels = split_range(g->a.out_channels, g->filter_parts, n / 2);
        memset(p.nhwc, 0, g->bytes[TRANSPOSED]); /* lanes beyond the last channel: numbers, whatever they are */
        for (int64_t b = 0; b < g->blocks; b++)
            multiply_winograd_wgrad(
                g, &p, transform_block(g, &p, split_range(g->a.batch * g->image_units, g->blocks, b)), b > 0);
    }
}

/* ---- the gradients ----------------------------------------------------------------------------------------------- */

static void finish_winograd_wgrad(void *ctx, int64_t begin, int64_t end, int worker) {
    const gradient *g = ctx;
    float *taps = (float *)(void *)(g->parts + (size_t)worker * g->memory);
    for (int64_t f = begin; f < end; f++) {
        g->with->winograd_taps(g->sums + f * g->sum_row, g->sum_point, taps, g->sum_row);
        g->with->tiles->pack(&(pack){.to = g->a.out + f * g->a.channels * TAPS,
                                     .distance = TAPS,
                                     .group = TAPS,
                                     .from = taps,
                                     .along = 1,
                                     .across = g->sum_row,
                                     .steps = g->a.channels,
                                     .lines = TAPS});
    }
}

size_t tn_conv_winograd_weight_workspace(const tn_conv_args *args, int threads) {
    gradient g;
    plan_winograd_wgrad(&g, args);
    return im2col_bytes(IN * IN * g.sum_point) + (size_t)(threads > 1 ? threads : 1) * g.memory;
}

void tn_conv_winograd_weight(const tn_conv_args *args) {
    gradient g;
    plan_winograd_wgrad(&g, args);
    int threads = tn_conv_threads(args);
    g.sums = args->workspace;
    g.parts = (char *)args->workspace + im2col_bytes(IN * IN * g.sum_point);
    g.filter_parts = tn_min64(threads % 2 == 0 ? threads / 2 : threads, tn_ceil_div(args->out_channels, MOST_LANES));
    im2col_parallel(2 * g.filter_parts, threads, sum_up, &g);
    im2col_parallel(args->out_channels, threads, finish_winograd_wgrad, &g);
}

/* ---- where it is taken ------------------------------------------------------------------------------------------- */

bool tn_conv_wgrad_winograd_fits(const tn_conv_args *a) {
    enum { WIDEST = 1 << 14 }; /* of so many channels times tiles one row of tiles fills a block */
    bool plain = tn_conv_winograd_fits(a) && a->kernel[0] == 3 && a->dilation[0] == 1;
    return plain && tn_max64(a->channels, a->out_channels) <= WIDEST &&
           tn_ceil_div(a->out_size[1], OUT) <= WIDEST / (a->channels + a->out_channels);
}

/* What takes as long as multiplying so many vectors of 16: fitted to 22 measured pairs of both ways (1 to 128 images of
 * 4×4 to 224×224, 3 to 512 channels and filters, two threads), `value` then set lower, for few channels were judged too
 * slow. Where this says that it pays, it took 0.28 to 1.0 of the time. */
bool tn_conv_wgrad_winograd_pays(const tn_conv_args *a) {
    static const struct {
        double exact, value, sum, call;
    } takes = {
        .exact = 1.34, /* a vector multiplied by the other way */
        .value = 75,   /* a tile of a channel or a filter transformed */
        .sum = 62,     /* what a filter's channel adds up to, back and forth */
        .call = 3e4    /* what does not depend on sizes */
    };
    if (!tn_conv_wgrad_winograd_fits(a)) return false;
    const double pairs = (double)a->channels * (double)a->out_channels, batch = (double)a->batch;
    double tiles = batch * (double)(tn_ceil_div(a->out_size[0], OUT) * tn_ceil_div(a->out_size[1], OUT));
    double fast = takes.value * tiles * (double)(a->channels + a->out_channels) + takes.sum * pairs + takes.call;
    double exact = TAPS * takes.exact * batch * (double)(a->out_size[0] * a->out_size[1]);
    return (exact - IN * IN * tiles) * pairs > fast * MOST_LANES;
}
