/* conv_channels.c — depthwise convolution and pooling of a vector of channels at a time.
 *
 * A piece of some rows of output pixels and as many channels as a vector has lanes is computed from an input tile
 * [row, column, channel], into which images are turned, with zeros around them (-∞ where the greatest is looked for).
 * So all loads are aligned, whatever the stride, and no lane is lost on images of seven columns. Sums are turned back
 * as they are written out or handed to the epilogue; what the epilogue does to each channel is done meanwhile. Images
 * in blocks of channels (conv.h) are read in place if windows are 3 × 3 or 5 × 5 (reads_in_place), otherwise copied;
 * results are stored without transposing. Chains are those of conv_depthwise.c. */
#include <math.h>
#include <string.h>

#include "cpu/conv_paths.h"
#include "cpu/isa.h"

enum {
    CHANNELS_TILE = 3 << 13,      /* elements of the input tile: in the second cache, and pieces share few rows; … */
    BLOCKS_TILE = 3 << 11,        /* … of one that is copied, in the first */
    CHANNELS_MOST_TILE = 1 << 17, /* … of one that a single row of output pixels fills */
    IN_PLACE_ROWS = 28,           /* of output pixels, of a piece that is read in place */
    RUN_PIXELS = TN_GEMM_BLOCK_LD /* that are turned back at once, while they are in the first cache */
};

typedef struct by_channels {
    tn_conv_args a;
    const conv_vec *with;
    int64_t lanes, channel_blocks;
    int64_t rows, columns, row_pieces, column_pieces; /* of output pixels: of a piece, at most; pieces of an image */
    int64_t pitch, tile_rows;                         /* columns and rows of the input tile */
    window_taps taps;
    float outside;
    bool in_place; /* windows are read where the image lies; the input tile is a row of zeros */
    bool ends;     /* all that the epilogue does is … */
    epilogue_ops epilogue_ops;
    size_t tap_bytes, tile_bytes, weight_bytes, sums_bytes, block_bytes, part_bytes;
    char *parts;
} by_channels;

/* Can the image be read where it lies? */
static bool reads_in_place(const tn_conv_args *a) {
    const bool usual = a->kernel[0] == a->kernel[1] && (a->kernel[0] == 3 || a->kernel[0] == 5);
    const bool dense = a->dilation[0] == 1 && a->dilation[1] == 1 && a->stride[0] == a->stride[1] && a->stride[1] <= 2;
    return a->x_blocks && usual && dense && tn_conv_vec()->weigh_block && !a->max_pool && a->out_size[1] >= 2 &&
           a->out_size[1] <= RUN_PIXELS;
}

static void plan_by_channels(by_channels *e, const tn_conv_args *a) {
    const int64_t lanes = tn_conv_vec()->tiles->lanes, taps = a->kernel[0] * a->kernel[1];
    *e = (by_channels){.a = *a, .with = tn_conv_vec(), .lanes = lanes, .outside = a->max_pool ? -INFINITY : 0};
    e->channel_blocks = tn_ceil_div(a->groups, lanes);
    e->column_pieces = tn_ceil_div(a->out_size[1], RUN_PIXELS);
    e->columns = tn_ceil_div(a->out_size[1], e->column_pieces);
    e->pitch = (e->columns - 1) * a->stride[1] + window_reach(a, 1);
    const int64_t seen = (a->x_blocks ? BLOCKS_TILE : CHANNELS_TILE) / (e->pitch * lanes);
    const int64_t fits = (seen - window_reach(a, 0)) / a->stride[0] + 1;
    e->rows = tn_min64(a->out_size[0], tn_max64(fits, 1));
    if (e->column_pieces > 1) e->rows = 1;
    e->in_place = reads_in_place(a);
    if (e->in_place) e->rows = tn_min64(a->out_size[0], IN_PLACE_ROWS);
    e->row_pieces = tn_ceil_div(a->out_size[0], e->rows);
    e->rows = tn_ceil_div(a->out_size[0], e->row_pieces);
    e->tile_rows = (e->rows - 1) * a->stride[0] + window_reach(a, 0);
    e->tap_bytes = window_taps_bytes(a);
    e->tile_bytes = im2col_bytes((e->in_place ? a->size[1] : e->tile_rows * e->pitch) * lanes);
    e->weight_bytes = im2col_bytes(taps * lanes);
    e->sums_bytes = im2col_bytes(RUN_PIXELS * lanes);
    e->block_bytes = a->epilogue.vm ? im2col_bytes(lanes * TN_GEMM_BLOCK_LD) : 0;
    e->part_bytes =
        e->tile_bytes + e->weight_bytes + e->sums_bytes + e->block_bytes + fused_call_scratch(&a->epilogue, 0);
}

bool tn_conv_by_channels_fits(const tn_conv_args *a) {
    by_channels e;
    if (a->groups < tn_conv_vec()->tiles->lanes) return false;
    plan_by_channels(&e, a);
    return e.in_place || (double)e.tile_rows * (double)e.pitch * (double)e.lanes <= CHANNELS_MOST_TILE;
}

/* ---- what a piece sees ------------------------------------------------------------------------------------------- */

/* Output pixels [row, row + rows) × [column, column + columns) of some channels of an image. */
typedef struct piece_at {
    int64_t image, channel, channels, row, rows, column, columns;
} piece_at;

/* Memory of one thread, and what it holds. */
typedef struct channels_part {
    float *tile, *weight, *sums, *block;
    fused_call epilogue;
    int64_t top, rows, left; /* of the input tile, in the image; rows is 0: nothing yet */
    int64_t channel;         /* of `weight`; -1: none yet */
} channels_part;

static void fill_pixels(const by_channels *e, float *to, int64_t pixels) {
    for (int64_t i = 0; i < pixels * e->lanes; i++)
        to[i] = e->outside;
}

/* Left and right of an image's rows lies the same in all pieces unless rows are cut; above and below it in pieces at
 * the same place. */
static void see_piece(const by_channels *e, channels_part *p, const piece_at *at) {
    const tn_conv_args *a = &e->a;
    const int64_t top = at->row * a->stride[0] - a->pad_before[0], left = at->column * a->stride[1] - a->pad_before[1];
    const int64_t rows = (at->rows - 1) * a->stride[0] + window_reach(a, 0);
    const int64_t columns = (at->columns - 1) * a->stride[1] + window_reach(a, 1);
    const int64_t low = tn_min64(tn_max64(-top, 0), rows), high = tn_max64(tn_min64(a->size[0] - top, rows), low);
    const int64_t from = tn_min64(tn_max64(-left, 0), columns);
    const int64_t to = tn_max64(tn_min64(a->size[1] - left, columns), from), row = e->pitch * e->lanes;
    if (p->rows == 0 || p->left != left) fill_pixels(e, p->tile, e->tile_rows * e->pitch);
    if (p->rows > 0 && p->left == left && (p->top != top || p->rows != rows)) {
        fill_pixels(e, p->tile, low * e->pitch);
        fill_pixels(e, p->tile + high * row, (rows - high) * e->pitch);
    }
    p->top = top;
    p->rows = rows;
    p->left = left;
    if (a->x_blocks && low < high && from < to) {
        const float *x = a->x + (at->image * e->channel_blocks * e->lanes + at->channel) * a->size[0] * a->size[1];
        e->with->copy_rows(p->tile + low * row + from * e->lanes, row,
                           x + ((top + low) * a->size[1] + left + from) * e->lanes, a->size[1] * e->lanes, high - low,
                           1, (to - from) * e->lanes);
        return;
    }
    const float *x = a->x + at->image * a->x_stride[0] + at->channel * a->x_stride[1];
    for (int64_t r = low; r < high && from < to; r++)
        e->with->tiles->pack(&(pack){.to = p->tile + r * row + from * e->lanes,
                                     .distance = e->lanes,
                                     .group = e->lanes,
                                     .from = x + (top + r) * a->x_stride[2] + (left + from) * a->x_stride[3],
                                     .along = a->x_stride[3],
                                     .across = a->x_stride[1],
                                     .steps = to - from,
                                     .lines = at->channels});
}

static void take_filters(const by_channels *e, channels_part *p, const piece_at *at) {
    if (e->a.max_pool || p->channel == at->channel) return;
    p->channel = at->channel;
    tn_conv_take_filters(e->with, &e->a, at->channel, at->channels, e->lanes, p->weight);
}

/* ---- a piece ----------------------------------------------------------------------------------------------------- */

static void write_run(const by_channels *e, channels_part *p, const piece_at *at) {
    const tn_conv_args *a = &e->a;
    const int64_t plane = a->out_size[0] * a->out_size[1], first = at->row * a->out_size[1] + at->column;
    const int64_t pixels = at->rows * at->columns;
    const bool joined = p->epilogue.vm && !e->ends;
    epilogue_ops ops = e->epilogue_ops;
    if (ops.add) ops.add += at->channel;
    float *out = joined ? p->block : a->out + (at->image * a->groups + at->channel) * plane + first;
    e->with->tiles->pack(&(pack){.to = out,
                                 .distance = joined ? TN_GEMM_BLOCK_LD : plane,
                                 .group = pixels,
                                 .from = p->sums,
                                 .along = 1,
                                 .across = e->lanes,
                                 .steps = at->channels,
                                 .lines = pixels,
                                 .epilogue_ops = e->ends ? &ops : NULL});
    if (!joined) return;
    const box where = {at->channel, at->channels, first, pixels};
    fused_call_run(&p->epilogue, (const int64_t[TN_GEMM_BATCH_AXES]){0, 0, 0, at->image}, where, p->block);
}

/* Windows of output pixels `run` of piece `at`, to `to`. */
static void weigh_run(const by_channels *e, const channels_part *p, const piece_at *at, const piece_at *run, float *to,
                      const epilogue_ops *end) {
    const tn_conv_args *a = &e->a;
    const int64_t row = a->stride[0] * e->pitch * e->lanes;
    const int64_t to_row = (a->y_blocks ? a->out_size[1] : run->columns) * e->lanes;
    if (e->in_place) {
        const int64_t first = at->image * e->channel_blocks * e->lanes + at->channel;
        e->with->weigh_block(&(weigh_image){.x = a->x + first * a->size[0] * a->size[1],
                                            .x_row = a->size[1] * e->lanes,
                                            .size = {a->size[0], a->size[1]},
                                            .top = run->row * a->stride[0] - a->pad_before[0],
                                            .left = -a->pad_before[1],
                                            .side = a->kernel[0],
                                            .stride = a->stride[0],
                                            .weight = p->weight,
                                            .zeros = p->tile,
                                            .to = to,
                                            .to_row = to_row,
                                            .rows = run->rows,
                                            .columns = run->columns,
                                            .end = end});
        return;
    }
    e->with->weigh(&(weigh_rows){.taps = &e->taps,
                                 .from = p->tile + (run->row - at->row) * row,
                                 .from_row = row,
                                 .step = a->stride[1] * e->lanes,
                                 .weight = a->max_pool ? NULL : p->weight,
                                 .to = to,
                                 .to_row = to_row,
                                 .rows = run->rows,
                                 .vectors = run->columns,
                                 .last = e->lanes,
                                 .end = end,
                                 .each_lane = true});
}

static void compute_piece(const by_channels *e, channels_part *p, const piece_at *at) {
    const tn_conv_args *a = &e->a;
    const int64_t most = a->y_blocks && e->in_place ? at->rows : RUN_PIXELS / at->columns;
    float *to = p->sums;
    float add[MOST_LANES] = {0};
    epilogue_ops end = e->epilogue_ops;
    if (end.add) end.add = memcpy(add, end.add + at->channel, (size_t)at->channels * sizeof *add);
    take_filters(e, p, at);
    if (!e->in_place) see_piece(e, p, at);
    for (int64_t first = 0; first < at->rows; first += most) {
        piece_at run = *at;
        run.row += first;
        run.rows = tn_min64(most, at->rows - first);
        if (a->y_blocks)
            to = a->out + (at->image * e->channel_blocks * e->lanes + at->channel) * a->out_size[0] * a->out_size[1] +
                 (run.row * a->out_size[1] + run.column) * e->lanes;
        weigh_run(e, p, at, &run, to, a->y_blocks && e->ends ? &end : NULL);
        if (!a->y_blocks) write_run(e, p, &run);
        if (a->epilogue.flat) fused_call_flat(&p->epilogue, a->out, to - a->out, run.rows * run.columns * e->lanes);
    }
}

static void compute_pieces(void *ctx, int64_t begin, int64_t end, int worker) {
    const by_channels *e = ctx;
    char *memory = e->parts + (size_t)worker * e->part_bytes;
    channels_part p = {.tile = (float *)(void *)memory, .channel = -1};
    p.weight = (float *)(void *)(memory + e->tile_bytes);
    p.sums = (float *)(void *)(memory + e->tile_bytes + e->weight_bytes);
    p.block = (float *)(void *)(memory + e->tile_bytes + e->weight_bytes + e->sums_bytes);
    memset(p.weight, 0, e->weight_bytes);
    if (e->in_place) memset(p.tile, 0, e->tile_bytes);
    fused_call_open(&p.epilogue, &e->a.epilogue, (char *)p.block + e->block_bytes);
    for (int64_t n = begin; n < end; n++) {
        const int64_t in_image = n % (e->row_pieces * e->column_pieces), all = n / (e->row_pieces * e->column_pieces);
        piece_at at = {.image = all / e->channel_blocks, .channel = all % e->channel_blocks * e->lanes};
        at.channels = tn_min64(e->lanes, e->a.groups - at.channel);
        at.row = in_image / e->column_pieces * e->rows;
        at.rows = tn_min64(e->rows, e->a.out_size[0] - at.row);
        at.column = in_image % e->column_pieces * e->columns;
        at.columns = tn_min64(e->columns, e->a.out_size[1] - at.column);
        if (at.rows > 0 && at.columns > 0) compute_piece(e, &p, &at);
    }
}

size_t tn_conv_by_channels_workspace(const tn_conv_args *args, int threads) {
    by_channels e;
    plan_by_channels(&e, args);
    return e.tap_bytes + (size_t)(threads > 1 ? threads : 1) * e.part_bytes;
}

/* Pieces become smaller where there are too few for all threads. */
static void share_pieces(by_channels *e, int threads) {
    const int64_t others = e->a.batch * e->channel_blocks * e->column_pieces;
    if (others * e->row_pieces >= threads) return;
    e->rows = tn_min64(e->rows, tn_ceil_div(e->a.out_size[0], tn_ceil_div(threads, others)));
    e->row_pieces = tn_ceil_div(e->a.out_size[0], e->rows);
}

void tn_conv_by_channels(const tn_conv_args *args, int threads) {
    by_channels e;
    plan_by_channels(&e, args);
    e.taps = (window_taps){.row = e.pitch * e.lanes, .phases = 1, .step = e.lanes};
    tn_conv_find_window_taps(&e.taps, args, args->workspace);
    e.parts = (char *)args->workspace + e.tap_bytes;
    e.ends = epilogue_by_channels(&args->epilogue, &e.epilogue_ops);
    share_pieces(&e, threads);
    const int64_t pieces = args->batch * e.channel_blocks * e.row_pieces * e.column_pieces;
    im2col_parallel(pieces, threads, compute_pieces, &e);
}
