/* conv_batch_rows.c — convolutions of many images of few output pixels: images are the rows of the product, filters its
 * columns.
 *
 * The tiles are those of conv_nhwc.c, but where an image has a handful of output pixels in a row they would be low. So
 * some images are turned into an input tile, where an element of all of them is a row: at any tap of any output pixel,
 * what images see lies side by side, and what lies outside of them is a row of zeros. Each output pixel has a table of
 * its own of where its taps are. Sums of an image lie together, and are turned as they are written out, or handed to
 * the epilogue. The chains are those of conv.c. */
#include "kern/cpu/conv_batch_rows.h"

#include <string.h>

#include "kern/cpu/cpu.h"
#include "kern/cpu/fused_program.h"
#include "kern/cpu/im2col.h"

enum {
    CHUNK = KIR_KSUM,
    MOST_IMAGES = 28,    /* of a block: two tiles of full height */
    LEAST_IMAGES = 4,    /* tiles are no lower */
    ACROSS = 8,          /* from so many output pixels in a row on, tiles along it are as good */
    MOST_TAPS = 1 << 12, /* of all output pixels: tables are made at each run */
    LEAST_DEPTH = 64,    /* steps of k, or turning takes longer than it gains */
    INPUT_TILE = 1 << 17 /* elements: a part of the second cache */
};

typedef struct batch_rows {
    tn_conv_args a;
    const conv_vec *with;
    int64_t panel, panels;           /* columns of a panel; panels of the filters */
    int64_t out_size, pixels, depth; /* of an image; of all its channels; steps of k */
    int64_t row;                     /* distance of the input tile's rows */
    int64_t blocks, parts;           /* of images; of panels */
    const float *packed;
    int64_t *tap; /* [output pixels, depth] */
    size_t tap_bytes, input_tile_bytes, sums_bytes, block_bytes, part_bytes;
    char *memory;
} batch_rows;

static void plan_batch_rows(batch_rows *b, const tn_conv_args *args) {
    *b = (batch_rows){.a = *args, .with = tn_conv_vec(), .packed = args->packed};
    b->panel = 2 * b->with->tiles->lanes;
    b->panels = tn_ceil_div(args->out_channels, b->panel);
    b->out_size = args->out_size[0] * args->out_size[1];
    b->pixels = args->channels * args->size[0] * args->size[1];
    b->depth = args->channels * args->kernel[0] * args->kernel[1];
    b->blocks = tn_ceil_div(args->batch, MOST_IMAGES);
    b->parts = 1;
    b->row = tn_ceil_div(args->batch, b->blocks);
    b->tap_bytes = ((size_t)(b->out_size * b->depth) * sizeof(int64_t) + 63) / 64 * 64;
    b->input_tile_bytes = im2col_bytes((b->pixels + 1) * b->row + MOST_LANES);
    b->sums_bytes = im2col_bytes(b->row * b->out_size * b->panel);
    b->block_bytes = args->epilogue.vm ? im2col_bytes(b->panel * TN_GEMM_BLOCK_LD) : 0;
    b->part_bytes = b->input_tile_bytes + b->sums_bytes + b->block_bytes + fused_call_scratch(&args->epilogue, 0);
}

/* Columns of the last panel that are none are summed all the same: an eighth of them at most. */
bool tn_conv_batch_rows_fits(const tn_conv_args *a) {
    batch_rows b;
    if (a->groups != 1 || a->pool[0] > 0 || a->batch < LEAST_IMAGES || a->out_size[1] >= ACROSS) return false;
    if ((double)a->size[0] * (double)a->size[1] * (double)a->channels > INPUT_TILE) return false;
    plan_batch_rows(&b, a);
    bool deep = b.depth >= LEAST_DEPTH && (double)b.depth * (double)b.out_size <= MOST_TAPS;
    return deep && (b.pixels + 1) * b.row <= INPUT_TILE && 8 * b.panels * b.panel <= 9 * a->out_channels;
}

/* ---- what is seen ------------------------------------------------------------------------------------------------ */

/* An output pixel's taps of the first channel, then those of the others: as many rows further, or the row of zeros
 * again. */
static void find_taps(const batch_rows *b, int64_t place, int64_t *tap) {
    const tn_conv_args *a = &b->a;
    const int64_t taps = a->kernel[0] * a->kernel[1], channel = a->size[0] * a->size[1] * b->row;
    for (int64_t k = 0; k < taps; k++) {
        int64_t y = place / a->out_size[1] * a->stride[0] - a->pad_before[0] + k / a->kernel[1] * a->dilation[0];
        int64_t x = place % a->out_size[1] * a->stride[1] - a->pad_before[1] + k % a->kernel[1] * a->dilation[1];
        bool there = y >= 0 && y < a->size[0] && x >= 0 && x < a->size[1];
        const int64_t step = there ? channel : 0;
        int64_t at = there ? (y * a->size[1] + x) * b->row : b->pixels * b->row;
        for (int64_t n = k; n < b->depth; n += taps, at += step)
            tap[n] = at;
    }
}

/* Elements of an image that follow each other are turned together. */
static void fill_batch_rows(const batch_rows *b, int64_t first, int64_t batch, float *input_tile) {
    const tn_conv_args *a = &b->a;
    const int64_t *s = a->x_stride, across = a->size[1], down = a->size[0];
    bool rows = down == 1 || s[2] == across * s[3], planes = rows && (a->channels == 1 || s[1] == down * across * s[3]);
    const int64_t run = planes ? b->pixels : rows ? down * across : across;
    for (int64_t at = 0; at < b->pixels; at += run) {
        int64_t channel = at / (down * across), line = at / across % down;
        b->with->tiles->pack(&(pack){.to = input_tile + at * b->row,
                                     .distance = b->row,
                                     .group = batch,
                                     .from = a->x + first * s[0] + channel * s[1] + line * s[2],
                                     .along = s[3],
                                     .across = s[0],
                                     .steps = run,
                                     .lines = batch});
    }
    memset(input_tile + b->pixels * b->row, 0, (size_t)b->row * sizeof *input_tile);
}

/* ---- a block ----------------------------------------------------------------------------------------------------- */

/* Panel n of the filters over all output pixels of some images. */
static void multiply_batch_rows(const batch_rows *b, int64_t n, int64_t batch, const float *input_tile, float *sums) {
    const tile_set *with = b->with->tiles;
    const int64_t c_row = b->out_size * b->panel;
    for (int64_t k0 = 0; k0 < b->depth; k0 += CHUNK)
        for (int64_t place = 0; place < b->out_size; place++) {
            tile t = {.a = input_tile,
                      .b = b->packed + (n * b->depth + k0) * b->panel,
                      .tap = b->tap + place * b->depth + k0,
                      .c = sums + place * b->panel,
                      .c_row = c_row,
                      .k = tn_min64(CHUNK, b->depth - k0),
                      .add = k0 > 0};
            for (int64_t left = batch, rows = 0; left > 0; left -= rows, t.a += rows, t.c += rows * c_row) {
                rows = tile_nhwc_height(left, with->rows);
                with->nhwc[rows](&t);
            }
        }
}

/* `filters` of them from `first` on, of images from `image` on: to where results go, or one image after the other to
 * the epilogue. */
static void write_out(const batch_rows *b, fused_call *epilogue, box out_channels, int64_t image, int64_t batch,
                      const float *sums, float *block) {
    const tn_conv_args *a = &b->a;
    pack turn = {.to = block,
                 .distance = TN_GEMM_BLOCK_LD,
                 .group = b->out_size,
                 .from = sums,
                 .along = 1,
                 .across = b->panel,
                 .steps = out_channels.rows,
                 .lines = b->out_size};
    if (!epilogue->vm) {
        turn.to = a->out + (image * a->out_channels + out_channels.row) * b->out_size;
        turn.distance = b->out_size;
        turn.jump = a->out_channels * b->out_size;
        turn.lines = batch * b->out_size;
        b->with->tiles->pack(&turn);
        return;
    }
    for (int64_t i = 0; i < batch; i++) {
        turn.from = sums + i * b->out_size * b->panel;
        b->with->tiles->pack(&turn);
        fused_call_run(epilogue, (const int64_t[TN_GEMM_BATCH_AXES]){0, 0, 0, image + i}, out_channels, block);
    }
}

static void compute_blocks(void *ctx, int64_t begin, int64_t end, int worker) {
    const batch_rows *b = ctx;
    char *memory = b->memory + (size_t)worker * b->part_bytes;
    float *input_tile = (float *)(void *)memory, *sums = (float *)(void *)(memory + b->input_tile_bytes);
    float *block = (float *)(void *)(memory + b->input_tile_bytes + b->sums_bytes);
    fused_call epilogue;
    fused_call_open(&epilogue, &b->a.epilogue, (char *)block + b->block_bytes);
    for (int64_t task = begin; task < end; task++) {
        const int64_t number = task / b->parts, part = task % b->parts;
        const int64_t image = b->a.batch * number / b->blocks, batch = b->a.batch * (number + 1) / b->blocks - image;
        fill_batch_rows(b, image, batch, input_tile);
        for (int64_t n = b->panels * part / b->parts; n < b->panels * (part + 1) / b->parts; n++) {
            box out_channels = {n * b->panel, tn_min64(b->panel, b->a.out_channels - n * b->panel), 0, b->out_size};
            multiply_batch_rows(b, n, batch, input_tile, sums);
            write_out(b, &epilogue, out_channels, image, batch, sums, block);
        }
    }
}

/* ---- all of them ------------------------------------------------------------------------------------------------- */

size_t tn_conv_batch_rows_workspace(const tn_conv_args *args, int threads) {
    batch_rows b;
    plan_batch_rows(&b, args);
    return b.tap_bytes + (size_t)(threads > 1 ? threads : 1) * b.part_bytes;
}

/* Threads share images; of a few of them panels, each of which is then read by one thread. */
void tn_conv_batch_rows(const tn_conv_args *args, void *workspace) {
    batch_rows b;
    plan_batch_rows(&b, args);
    const int threads = tn_conv_threads(args);
    b.tap = workspace;
    b.memory = (char *)workspace + b.tap_bytes;
    for (int64_t place = 0; place < b.out_size; place++)
        find_taps(&b, place, b.tap + place * b.depth);
    if (b.blocks < threads) b.parts = tn_min64(threads / b.blocks, b.panels);
    if (threads == 1) {
        compute_blocks(&b, 0, b.blocks, 0);
    } else {
        tn_parallel(b.blocks * b.parts, 1, compute_blocks, &b);
    }
}
