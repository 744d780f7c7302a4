/* conv_winograd_1d.c — windows of five taps in a row by Winograd's algorithm: six multiplications instead of ten.
 *
 * Two results of five taps see six numbers, as four of three taps do: the points and the way forth are those of
 * conv_winograd.c, along one axis. So a tile is two output pixels side by side, and a block a piece of one row of an
 * image: what it sees is transformed channel after channel, then some filters at a time are multiplied over it, point
 * after point, and finished. A number depends on its own tile alone: any cut gives the same bits. */
#include "kern/cpu/conv_winograd_1d.h"

#include <string.h>

#include "kern/cpu/cpu.h"
#include "kern/cpu/fused_program.h"
#include "kern/cpu/im2col.h"

enum {
    OUT = WINOGRAD_1D_OUT,
    IN = WINOGRAD_IN,
    TAPS = IN - OUT + 1,
    PANEL = 2 * MOST_LANES,
    VALUE_ELEMENTS = 320 << 10, /* of a block, at most: two thirds of the second cache, as sums are few */
    MOST_TILES = TN_GEMM_BLOCK_LD / OUT / 2,
    FILTERS = 28, /* that are multiplied at once: two tiles */
    SLACK = 3 * MOST_LANES
};

/* Of the memory of a thread. */
enum { LINE, VALUES, SUMS, RESULTS, PARTS };

typedef struct winograd_1d {
    tn_conv_args a;
    const conv_vec *with;
    int64_t across, columns, blocks; /* tiles of a row; of a block, at most; blocks of a row */
    int64_t parts;                   /* of the filters */
    int64_t tiles, values, sums;     /* distance of channels and filters; of points */
    size_t bytes[PARTS], part_bytes;
    char *memory;
} winograd_1d;

bool tn_conv_is_winograd_1d(const tn_conv_args *a) { return a->kernel[0] == 1 && a->kernel[1] == TAPS; }

/* ---- filters, packed --------------------------------------------------------------------------------------------- */

/* Point p's filters lie at p · filters · channels, as tiles like those of any product. */
size_t tn_conv_winograd_1d_packed_bytes(const tn_conv_args *a) {
    return im2col_bytes(IN * a->out_channels * a->channels);
}

/* Values of the taps at the points of winograd.h, each divided by what its distances from the other points multiply to:
 * to[point · distance]. */
static void pack_taps(const float *g, int64_t step, float *to, int64_t distance) {
    static const double point[] = {0.75, 1.5};
    to[0] = (float)((double)g[0] * (64.0 / 81.0));
    to[(IN - 1) * distance] = g[(TAPS - 1) * step];
    for (int i = 0; i < 2; i++) {
        double p = point[i], q = point[1 - i], pp = p * p, scale = 1 / (2 * pp * (pp - q * q));
        double even = (double)g[0] + pp * ((double)g[2 * step] + pp * (double)g[4 * step]);
        double odd = p * ((double)g[step] + pp * (double)g[3 * step]);
        to[(1 + 2 * i) * distance] = (float)((even + odd) * scale);
        to[(2 + 2 * i) * distance] = (float)((even - odd) * scale);
    }
}

typedef struct packing {
    const tn_conv_args *a;
    int64_t full; /* rows of a tile */
    float *to;
} packing;

static void pack_out_channels(void *ctx, int64_t begin, int64_t end, int worker) {
    const packing *p = ctx;
    const tn_conv_args *a = p->a;
    (void)worker;
    for (int64_t i = 0, rows = 0; i < end; i += rows) {
        rows = tile_height(a->out_channels - i, p->full);
        for (int64_t f = tn_max64(i, begin); f < tn_min64(i + rows, end); f++)
            for (int64_t c = 0; c < a->channels; c++)
                pack_taps(a->weight + f * a->weight_stride[0] + c * a->weight_stride[1], a->weight_stride[3],
                          p->to + i * a->channels + c * rows + f - i, a->out_channels * a->channels);
    }
}

void tn_conv_winograd_1d_pack(const tn_conv_args *a, void *to) {
    enum { PART_OUT_CHANNELS = 1 << 8 };
    packing p = {a, tn_conv_vec()->tiles->rows, to};
    tn_parallel(a->out_channels, tn_max64(PART_OUT_CHANNELS / a->channels, 1), pack_out_channels, &p);
}

/* ---- sizes ------------------------------------------------------------------------------------------------------- */

bool tn_conv_winograd_1d_fits(const tn_conv_args *a) {
    bool plain = a->groups == 1 && a->pool[0] == 0 && a->stride[0] == 1 && a->stride[1] == 1 && a->dilation[1] == 1;
    return tn_conv_is_winograd_1d(a) && plain && tn_im2col_is_small(a) && tn_conv_vec()->winograd_1d;
}

/* Rows so long that panels are full, and channels and filters so many that transforming is little: in nine measured
 * pairs (64 to 1024 channels, 64 to 512 filters, 128 to 1000 columns) it took 0.5 to 1.0 of the time. Filters that
 * change would be transformed anew each time. */
bool tn_conv_winograd_1d_pays(const tn_conv_args *a, bool kept) {
    enum { MANY = 64, LONG = 128 };
    return kept && tn_conv_winograd_1d_fits(a) && a->channels >= MANY && a->out_channels >= MANY &&
           a->out_size[1] >= LONG;
}

/* Blocks of a row are alike, and as many for each thread. */
static void plan_winograd_1d(winograd_1d *l, const tn_conv_args *args, int threads) {
    *l = (winograd_1d){.a = *args, .with = tn_conv_vec(), .parts = 1};
    const tn_conv_args *a = &l->a;
    const int64_t rows = a->batch * a->out_size[0];
    int64_t most = tn_min64(VALUE_ELEMENTS / IN / a->channels, MOST_TILES) / PANEL * PANEL;
    l->across = tn_ceil_div(a->out_size[1], OUT);
    l->blocks = tn_ceil_div(l->across, tn_max64(most, PANEL));
    if (rows % threads != 0) l->blocks = round_up(l->blocks, threads);
    l->columns = tn_min64(round_up(tn_ceil_div(l->across, l->blocks), PANEL), tn_max64(most, PANEL));
    l->blocks = tn_ceil_div(l->across, l->columns);
    if (rows * l->blocks < threads)
        l->parts = tn_min64(threads / (rows * l->blocks), tn_ceil_div(a->out_channels, FILTERS));
    l->tiles = l->columns;
    l->values = a->channels * l->tiles + MOST_LANES; /* an odd number of lines apart: all sets of the first cache */
    l->sums = FILTERS * l->tiles + MOST_LANES;
    l->bytes[LINE] = im2col_bytes(l->columns * OUT + IN + SLACK);
    l->bytes[VALUES] = im2col_bytes(IN * l->values);
    l->bytes[SUMS] = im2col_bytes(IN * l->sums);
    if (a->epilogue.vm) l->bytes[RESULTS] = im2col_bytes(FILTERS * TN_GEMM_BLOCK_LD);
    l->part_bytes = fused_call_scratch(&a->epilogue, 0);
    for (int i = 0; i < PARTS; i++)
        l->part_bytes += l->bytes[i];
}

/* ---- a block ----------------------------------------------------------------------------------------------------- */

/* Tiles [first, first + count) of a row of an image. */
typedef struct block {
    int64_t image, row, first, count;
    float *line, *values, *sums, *results;
    fused_call epilogue;
} block;

static void transform(const winograd_1d *l, const block *b) {
    const tn_conv_args *a = &l->a;
    const int64_t y = b->row - a->pad_before[0], x = b->first * OUT - a->pad_before[1],
                  length = b->count * OUT + IN - OUT;
    const int64_t low = tn_min64(tn_max64(-x, 0), length), high = tn_max64(tn_min64(a->size[1] - x, length), low);
    const int64_t rows = y >= 0 && y < a->size[0] ? 1 : 0;
    memset(b->line, 0, l->bytes[LINE]); /* what lies outside of the image stays so */
    for (int64_t c = 0; c < a->channels; c++) {
        const float *from = a->x + b->image * a->x_stride[0] + c * a->x_stride[1];
        if (rows) from += y * a->x_stride[2] + (x + low) * a->x_stride[3];
        l->with->copy_rows(b->line + low, 0, from, 0, rows, a->x_stride[3], high - low);
        l->with->winograd_1d(b->line, b->count, b->values + c * l->tiles, l->values);
    }
}

/* Filters [first, first + count), which are whole tiles of packed ones. */
static void multiply_winograd_1d(const winograd_1d *l, const block *b, int64_t first, int64_t count) {
    const tn_conv_args *a = &l->a;
    const int64_t panel = 2 * l->with->tiles->lanes, height = l->with->tiles->rows;
    const int64_t tiles = b->count % panel > panel / 2 ? round_up(b->count, panel) : b->count;
    for (int64_t p = 0; p < IN; p++) {
        const float *packed = (const float *)a->packed + p * a->out_channels * a->channels;
        tile t = {.a_row = 1, .b_k = l->tiles, .b_panel = panel, .c_row = l->tiles, .k = a->channels};
        for (int64_t f = first; f < first + count; f += t.a_k) {
            t.a_k = tile_height(a->out_channels - f, height);
            t.a = packed + f * a->channels;
            t.b = b->values + p * l->values;
            t.c = b->sums + p * l->sums + (f - first) * l->tiles;
            tiles_multiply(l->with->tiles, t, t.a_k, tiles);
        }
    }
}

static void finish_winograd_1d(const winograd_1d *l, block *b, int64_t first, int64_t count) {
    const tn_conv_args *a = &l->a;
    const int64_t place = b->row * a->out_size[1] + b->first * OUT, plane = a->out_size[0] * a->out_size[1];
    const int64_t out_pixels = tn_min64(b->count * OUT, a->out_size[1] - b->first * OUT);
    for (int64_t f = 0; f < count; f++) {
        float *to = b->results + f * TN_GEMM_BLOCK_LD;
        if (!b->epilogue.vm) to = a->out + (b->image * a->out_channels + first + f) * plane + place;
        l->with->winograd_1d_finish(b->sums + f * l->tiles, l->sums, to, out_pixels);
    }
    if (!b->epilogue.vm) return;
    box at = {first, count, place, out_pixels};
    fused_call_run(&b->epilogue, (const int64_t[TN_GEMM_BATCH_AXES]){0, 0, 0, b->image}, at, b->results);
}

/* Part `number` of the filters, some whole tiles at a time. */
static void compute_out_channels(const winograd_1d *l, block *b, int64_t number) {
    const int64_t height = l->with->tiles->rows, all = l->a.out_channels, part = tn_ceil_div(all, l->parts);
    for (int64_t first = 0, count = 0; first < all; first += count) {
        count = 0;
        for (int64_t next = 0; first + count < all; count += next) {
            next = tile_height(all - first - count, height);
            if (count > 0 && count + next > FILTERS) break;
        }
        if (first / part != number) continue;
        multiply_winograd_1d(l, b, first, count);
        finish_winograd_1d(l, b, first, count);
    }
}

static void compute_blocks(void *ctx, int64_t begin, int64_t end, int worker) {
    const winograd_1d *l = ctx;
    char *memory = l->memory + (size_t)worker * l->part_bytes;
    block b;
    float **const parts[] = {&b.line, &b.values, &b.sums, &b.results};
    for (size_t i = 0; i < TN_COUNT(parts); memory += l->bytes[i++])
        *parts[i] = (float *)(void *)memory;
    fused_call_open(&b.epilogue, &l->a.epilogue, memory);
    for (int64_t n = begin; n < end; n++) {
        int64_t row = n / l->parts / l->blocks;
        b.first = n / l->parts % l->blocks * l->columns;
        b.count = tn_min64(l->columns, l->across - b.first);
        b.image = row / l->a.out_size[0];
        b.row = row % l->a.out_size[0];
        transform(l, &b);
        compute_out_channels(l, &b, n % l->parts);
    }
}

/* ---- all of them ------------------------------------------------------------------------------------------------- */

/* Blocks are widest for one thread. */
size_t tn_conv_winograd_1d_workspace(const tn_conv_args *args, int threads) {
    winograd_1d l;
    plan_winograd_1d(&l, args, 1);
    return (size_t)(threads > 1 ? threads : 1) * l.part_bytes;
}

void tn_conv_winograd_1d(const tn_conv_args *args, void *workspace) {
    winograd_1d l;
    int threads = tn_conv_threads(args);
    plan_winograd_1d(&l, args, threads);
    l.memory = workspace;
    int64_t tasks = args->batch * args->out_size[0] * l.blocks * l.parts;
    if (threads == 1) {
        compute_blocks(&l, 0, tasks, 0);
    } else {
        tn_parallel(tasks, 1, compute_blocks, &l);
    }
}
