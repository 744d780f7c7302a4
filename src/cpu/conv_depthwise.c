/* conv_depthwise.c — depthwise convolution and max pooling: what meets no other channel.
 *
 * Lanes of a vector are output pixels of a row, or, if these would leave many lanes empty, channels: conv_channels.c.
 * Usual windows are read where they lie in the image, by loads with masks. Others, and instruction sets without masks:
 * a block of an image's rows is brought to an input tile, zeros around it (-∞ where the greatest is looked for), each
 * row as the columns of each of the stride's phases, so what one tap shows to a row of output pixels lies side by side,
 * a fixed distance away. A bias, max(…, 0) and clipping are done to sums in registers. Chains are those of conv.c. */
#include "cpu/conv.h"

#include <math.h>
#include <string.h>

#include "cpu/conv_paths.h"
#include "cpu/isa.h"

enum {
    DEPTHWISE_INPUT_TILE = 1 << 13, /* elements, unless one row of output pixels sees more */
    IMAGE_CHANNELS = 16             /* that are read in the image at once */
};

typedef struct depthwise {
    tn_conv_args a;
    im2col_plan w;          /* of one image's block: row, phase */
    int64_t rows, blocks;   /* of output pixels in a block; blocks an image */
    int64_t tile_rows;      /* of the input tile */
    int64_t lanes, vectors; /* of a row of output pixels */
    window_taps taps;
    float outside;
    bool of_four, pairs, in_image;
    bool by_rows;     /* threads divide the rows of the only image; else channels */
    int64_t channels; /* that are read in the image at once */
    bool ends;        /* all that the epilogue does is … */
    epilogue_ops epilogue_ops;
    size_t tap_bytes, input_tile_bytes, weight_bytes, sums_bytes, part_bytes;
    char *parts;
} depthwise;

/* Windows of two by two that lie side by side, and rows as they are in memory? */
static bool of_four(const tn_conv_args *a) {
    bool fits = a->max_pool && a->x_stride[3] == 1;
    for (int d = 0; d < 2; d++)
        fits = fits && a->kernel[d] == 2 && a->stride[d] == 2 && a->dilation[d] == 1 && a->pad_before[d] == 0 &&
               2 * a->out_size[d] <= a->size[d];
    return fits;
}

/* Windows of four output pixels of a row that lie side by side? */
static bool are_pairs(const tn_conv_args *a) {
    return a->max_pool && a->x_stride[3] == 1 && a->kernel[0] == 1 && a->kernel[1] == 4 && a->stride[1] == 4 &&
           a->dilation[1] == 1 && a->pad_before[0] == 0 && a->pad_before[1] == 0 && 4 * a->out_size[1] <= a->size[1] &&
           (a->out_size[0] - 1) * a->stride[0] < a->size[0];
}

static bool fills_vectors(const tn_conv_args *a) {
    return 8 * a->out_size[1] >= 7 * round_up(a->out_size[1], tn_conv_vec()->tiles->lanes);
}

/* Can windows be read where they lie in the image, and does it pay? Larger ones have to fill the vectors (measured). */
static bool reads_image(const tn_conv_args *a) {
    const bool usual = a->kernel[0] == a->kernel[1] && (a->kernel[0] == 3 || (a->kernel[0] == 5 && fills_vectors(a)));
    const bool dense = a->dilation[0] == 1 && a->dilation[1] == 1 && a->x_stride[3] == 1;
    return tn_conv_vec()->weigh_image && !a->max_pool && usual && dense && a->stride[0] == a->stride[1] &&
           a->stride[1] <= 2 && a->out_size[1] <= WEIGH_COLUMNS;
}

/* Windows that lie in one row and end where the next begins do not ask where rows end: several rows of a few output
 * pixels become one. */
static void depthwise_join_rows(tn_conv_args *a) {
    enum { MOST_COLUMNS = 2048 };
    bool apart = a->kernel[0] == 1 && a->stride[0] == 1 && a->pad_before[0] == 0 && a->out_size[0] == a->size[0] &&
                 a->pad_before[1] == 0 && window_reach(a, 1) <= a->stride[1] &&
                 a->out_size[1] * a->stride[1] == a->size[1] && a->x_stride[2] == a->size[1] * a->x_stride[3];
    int64_t most = tn_min64(MOST_COLUMNS / a->size[1], a->size[0]);
    if (!apart || most < 2) return;
    while (a->size[0] % most != 0)
        most--;
    a->size[0] = a->out_size[0] = a->size[0] / most;
    a->size[1] *= most;
    a->out_size[1] *= most;
    a->x_stride[2] *= most;
}

/* Rows of the image that `rows` rows of output pixels see. */
static int64_t rows_seen(const tn_conv_args *a, int64_t rows) { return (rows - 1) * a->stride[0] + window_reach(a, 0); }

static void plan_depthwise(depthwise *e, const tn_conv_args *a) {
    *e = (depthwise){.a = *a, .w.with = tn_conv_vec(), .outside = a->max_pool ? -INFINITY : 0, .of_four = of_four(a)};
    depthwise_join_rows(&e->a);
    a = &e->a;
    e->pairs = are_pairs(a);
    e->lanes = e->w.with->tiles->lanes;
    e->vectors = tn_ceil_div(a->out_size[1], e->lanes);
    e->w.a = &e->a;
    e->w.phase = tn_ceil_div((a->out_size[1] - 1) * a->stride[1] + window_reach(a, 1), a->stride[1]);
    e->w.row = e->w.phase * a->stride[1];
    int64_t more = (DEPTHWISE_INPUT_TILE - rows_seen(a, 1) * e->w.row) / (a->stride[0] * e->w.row);
    e->rows = tn_min64(1 + tn_max64(more, 0), a->out_size[0]);
    e->tile_rows = rows_seen(a, e->rows);
    e->taps = (window_taps){.row = e->w.row, .phase = e->w.phase, .phases = a->stride[1], .step = 1};
    e->tap_bytes = window_taps_bytes(a);
    e->in_image = reads_image(a);
    e->input_tile_bytes = im2col_bytes(e->tile_rows * e->w.row + 2 * MOST_LANES);
    const int64_t channels = e->in_image ? IMAGE_CHANNELS : 1;
    if (e->in_image) {
        e->rows = a->epilogue.vm ? tn_min64(TN_GEMM_BLOCK_LD / a->out_size[1], a->out_size[0]) : a->out_size[0];
        e->input_tile_bytes = im2col_bytes(a->size[1]);
    }
    e->weight_bytes = a->max_pool ? 0 : im2col_bytes(channels * a->kernel[0] * a->kernel[1]);
    e->sums_bytes =
        a->epilogue.vm ? im2col_bytes(e->in_image ? IMAGE_CHANNELS * TN_GEMM_BLOCK_LD : e->rows * a->out_size[1]) : 0;
    e->part_bytes = e->input_tile_bytes + e->weight_bytes + e->sums_bytes + fused_call_scratch(&a->epilogue, 0);
}

/* Windows that lie side by side, or are read in the image, need no input tile. Without masks, pixels as lanes pay for
 * small windows in rows that are several times as long and fill their vectors, and not under an epilogue's program,
 * which would get one channel at a time. */
static bool goes_by_channels(const tn_conv_args *a) {
    const int64_t side = a->kernel[1], across = a->out_size[1];
    const bool small = a->kernel[0] == side && side <= 5 && a->dilation[0] == 1 && a->dilation[1] == 1;
    const bool program = a->epilogue.vm && !a->epilogue.epilogue_ops;
    if (a->x_blocks || a->y_blocks) return true;
    if (of_four(a) || are_pairs(a) || reads_image(a)) return false;
    if (small && a->stride[1] <= 2 && fills_vectors(a) && across >= 4 * side && !program) return false;
    return tn_conv_by_channels_fits(a);
}

bool tn_conv_depthwise_fits(const tn_conv_args *a) {
    if (!tn_im2col_is_small(a)) return false;
    if ((double)a->kernel[0] * (double)a->kernel[1] > KIR_BLOCK) return false;
    depthwise e;
    e.a = *a;
    e.w.row = (a->out_size[1] - 1) * a->stride[1] + window_reach(a, 1) + a->stride[1];
    return (double)window_reach(a, 0) * (double)e.w.row <= INPUT_TILE_ELEMENTS;
}

/* ---- taps and filters -------------------------------------------------------------------------------------------- */

void tn_conv_find_window_taps(window_taps *w, const tn_conv_args *a, int64_t *at) {
    const bool square = a->kernel[0] == a->kernel[1] && a->dilation[0] == 1 && a->dilation[1] == 1;
    w->at = at;
    w->count = a->kernel[0] * a->kernel[1];
    w->square = square ? a->kernel[0] : 0;
    for (int64_t t = 0; t < w->count; t++) {
        const int64_t i = t / a->kernel[1] * a->dilation[0], j = t % a->kernel[1] * a->dilation[1];
        at[t] = i * w->row + j % w->phases * w->phase + j / w->phases * w->step;
    }
}

void tn_conv_take_filters(const conv_vec *with, const tn_conv_args *a, int64_t channel, int64_t count, int64_t lanes,
                          float *to) {
    const int64_t taps = a->kernel[0] * a->kernel[1];
    const float *from = a->weight + channel * a->weight_group;
    if (filters_follow(a)) {
        with->tiles->pack(&(pack){.to = to,
                                  .distance = lanes,
                                  .group = lanes,
                                  .from = from,
                                  .along = 1,
                                  .across = a->weight_group,
                                  .steps = taps,
                                  .lines = count});
        return;
    }
    for (int64_t c = 0; c < count; c++, from += a->weight_group)
        for (int64_t t = 0; t < taps; t++)
            to[t * lanes + c] = from[t / a->kernel[1] * a->weight_stride[2] + t % a->kernel[1] * a->weight_stride[3]];
}

/* ---- input tile -------------------------------------------------------------------------------------------------- */

static void fill(float *to, float value, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        to[i] = value;
}

/* `rows` rows of the input tile from row `first` of the image on. What lies left and right of them never changes, and
 * is there; so are rows outside of the image if the tile had this place before. */
static void fill_depthwise(const depthwise *e, const float *x, int64_t first, int64_t rows, bool same, float *to) {
    const tn_conv_args *a = &e->a;
    const range down = look_at(first, 1, rows, a->size[0]);
    const int64_t high = down.first + down.count;
    if (!same) fill(to, e->outside, down.first * e->w.row);
    if (!same) fill(to + high * e->w.row, e->outside, (rows - high) * e->w.row);
    for (int64_t phase = 0; phase < a->stride[1] && down.count > 0; phase++) {
        const inside in = tn_inside_phase(&e->w, phase, -a->pad_before[1]);
        if (in.low >= in.high) continue;
        e->w.with->copy_rows(to + down.first * e->w.row + phase * e->w.phase + in.low, e->w.row,
                             x + (first + down.first) * a->x_stride[2] + in.first * a->x_stride[3], a->x_stride[2],
                             down.count, a->stride[1] * a->x_stride[3], in.high - in.low);
    }
}

/* ---- blocks ------------------------------------------------------------------------------------------------------ */

/* Memory of one thread. */
typedef struct part {
    float *input_tile, *weight, *sums;
    fused_call epilogue;
    int64_t top, rows; /* of what the input tile holds; rows is 0: nothing yet */
} part;

static void pool_rows(const depthwise *e, const float *x, int64_t top, int64_t rows, float *to) {
    const tn_conv_args *a = &e->a;
    for (int64_t r = 0; r < rows; r++, to += a->out_size[1]) {
        const float *row = x + (top + r * a->stride[0]) * a->x_stride[2];
        if (e->of_four)
            e->w.with->greatest_of_four(row, row + a->x_stride[2], to, a->out_size[1]);
        else
            e->w.with->greatest_pairs(row, to, a->out_size[1]);
    }
}

/* Output pixels of some rows of one channel of an image. */
static void compute_rows(const depthwise *e, part *p, int64_t plane, int64_t row, int64_t rows, float *to) {
    const tn_conv_args *a = &e->a;
    const int64_t channel = plane % a->groups, top = row * a->stride[0] - a->pad_before[0], seen = rows_seen(a, rows);
    const float *x = a->x + plane / a->groups * a->x_stride[0] + channel * a->x_stride[1];
    if (e->of_four || e->pairs) {
        pool_rows(e, x, top, rows, to);
        return;
    }
    const float *weight = a->max_pool ? NULL : a->weight + channel * a->weight_group;
    if (weight && !filters_follow(a)) {
        tn_conv_take_filters(e->w.with, a, channel, 1, 1, p->weight);
        weight = p->weight;
    }
    epilogue_ops end = e->epilogue_ops;
    if (end.add) end.add += channel;
    if (p->rows == 0) fill(p->input_tile, e->outside, e->tile_rows * e->w.row);
    fill_depthwise(e, x, top, seen, p->rows == rows && p->top == top, p->input_tile);
    p->top = top;
    p->rows = rows;
    e->w.with->weigh(&(weigh_rows){.taps = &e->taps,
                                   .from = p->input_tile,
                                   .from_row = a->stride[0] * e->w.row,
                                   .step = e->lanes,
                                   .weight = weight,
                                   .to = to,
                                   .to_row = a->out_size[1],
                                   .rows = rows,
                                   .vectors = e->vectors,
                                   .last = a->out_size[1] - (e->vectors - 1) * e->lanes,
                                   .end = e->ends ? &end : NULL});
}

/* The same of some channels, without an input tile. Results go to `to`, or to the epilogue's program. */
static void compute_channels(const depthwise *e, part *p, int64_t plane, int64_t channels, int64_t row, int64_t rows,
                             float *out) {
    const tn_conv_args *a = &e->a;
    const bool joined = p->epilogue.vm && !e->ends;
    const int64_t image = plane / a->groups, channel = plane % a->groups, taps = a->kernel[0] * a->kernel[1];
    const bool follow = filters_follow(a);
    epilogue_ops end = e->epilogue_ops;
    if (end.add) end.add += channel;
    for (int64_t c = 0; !follow && c < channels; c++)
        tn_conv_take_filters(e->w.with, a, channel + c, 1, 1, p->weight + c * taps);
    e->w.with->weigh_image(&(weigh_image){.x = a->x + image * a->x_stride[0] + channel * a->x_stride[1],
                                          .x_channel = a->x_stride[1],
                                          .x_row = a->x_stride[2],
                                          .size = {a->size[0], a->size[1]},
                                          .top = row * a->stride[0] - a->pad_before[0],
                                          .left = -a->pad_before[1],
                                          .side = a->kernel[0],
                                          .stride = a->stride[0],
                                          .weight = follow ? a->weight + channel * a->weight_group : p->weight,
                                          .weight_channel = follow ? a->weight_group : taps,
                                          .zeros = p->input_tile,
                                          .to = joined ? p->sums : out,
                                          .to_channel = joined ? TN_GEMM_BLOCK_LD : a->out_size[0] * a->out_size[1],
                                          .to_row = a->out_size[1],
                                          .channels = channels,
                                          .rows = rows,
                                          .columns = a->out_size[1],
                                          .end = e->ends ? &end : NULL});
    if (!joined) return;
    box at = {channel, channels, row * a->out_size[1], rows * a->out_size[1]};
    fused_call_run(&p->epilogue, (const int64_t[TN_GEMM_BATCH_AXES]){0, 0, 0, image}, at, p->sums);
}

/* In place: the opened epilogue points into itself. */
static void open_part(part *p, const depthwise *e, int worker) {
    char *memory = e->parts + (size_t)worker * e->part_bytes;
    p->input_tile = (float *)(void *)memory;
    p->weight = (float *)(void *)(memory + e->input_tile_bytes);
    p->sums = (float *)(void *)(memory + e->input_tile_bytes + e->weight_bytes);
    p->rows = 0;
    fused_call_open(&p->epilogue, &e->a.epilogue, (char *)p->sums + e->sums_bytes);
}

static int64_t channel_parts(const depthwise *e) { return tn_ceil_div(e->a.groups, e->channels); }

/* A part of the work: number of its block of rows, and of its channels among those of all images. */
typedef struct part_at {
    int64_t block, channels;
} part_at;

static part_at find_part(const depthwise *e, int64_t n, int64_t channel_parts) {
    if (e->by_rows) return (part_at){n / channel_parts, n % channel_parts};
    return (part_at){n % e->blocks, n / e->blocks};
}

static void compute_image_parts(void *ctx, int64_t begin, int64_t end, int worker) {
    const depthwise *e = ctx;
    const tn_conv_args *a = &e->a;
    part p;
    open_part(&p, e, worker);
    memset(p.input_tile, 0, e->input_tile_bytes);
    for (int64_t n = begin; n < end; n++) {
        const part_at at = find_part(e, n, channel_parts(e));
        const int64_t channel = at.channels % channel_parts(e) * e->channels, row = at.block * e->rows;
        const int64_t plane = at.channels / channel_parts(e) * a->groups + channel;
        compute_channels(e, &p, plane, tn_min64(e->channels, a->groups - channel), row,
                         tn_min64(e->rows, a->out_size[0] - row),
                         a->out + (plane * a->out_size[0] + row) * a->out_size[1]);
    }
}

static void compute_parts(void *ctx, int64_t begin, int64_t end, int worker) {
    const depthwise *e = ctx;
    const tn_conv_args *a = &e->a;
    part p;
    open_part(&p, e, worker);
    const bool joined = p.epilogue.vm && !e->ends;
    for (int64_t n = begin; n < end; n++) {
        const part_at which = find_part(e, n, a->groups);
        const int64_t plane = which.channels, row = which.block * e->rows,
                      rows = tn_min64(e->rows, a->out_size[0] - row);
        float *out = a->out + (plane * a->out_size[0] + row) * a->out_size[1];
        compute_rows(e, &p, plane, row, rows, joined ? p.sums : out);
        if (!joined) continue;
        box at = {plane % a->groups, 1, row * a->out_size[1], rows * a->out_size[1]};
        fused_call_run(&p.epilogue, (const int64_t[TN_GEMM_BATCH_AXES]){0, 0, 0, plane / a->groups}, at, p.sums);
    }
}

size_t tn_conv_depthwise_workspace(const tn_conv_args *args, int threads) {
    depthwise e;
    if (goes_by_channels(args)) return tn_conv_by_channels_workspace(args, threads);
    plan_depthwise(&e, args);
    return e.tap_bytes + (size_t)(threads > 1 ? threads : 1) * e.part_bytes;
}

/* Whether threads divide the rows of an image, not its channels. The command that computed a large image divided its
 * rows, that of a small one its channels; the same division lets each thread read mostly what it has written itself. */
static bool splits_rows(const tn_conv_args *a, int threads) {
    enum { LARGE_PIXELS = 1 << 13 };
    const int64_t rows = tn_ceil_div(a->out_size[0], threads);
    return a->batch == 1 && a->size[0] * a->size[1] >= LARGE_PIXELS && 8 * rows * threads <= 9 * a->out_size[0];
}

/* A depthwise window takes about 8 times as long per multiplication as a product, so threads pay off earlier. */
static int depthwise_threads(const tn_conv_args *args) {
    tn_conv_args more = *args;
    more.channels *= 8;
    return tn_conv_threads(&more);
}

void tn_conv_depthwise(const tn_conv_args *args) {
    depthwise e;
    int threads = depthwise_threads(args);
    if (goes_by_channels(args)) {
        tn_conv_by_channels(args, threads);
        return;
    }
    plan_depthwise(&e, args);
    tn_conv_find_window_taps(&e.taps, &e.a, args->workspace);
    e.ends = !e.of_four && !e.pairs && epilogue_by_channels(&args->epilogue, &e.epilogue_ops);
    e.parts = (char *)args->workspace + e.tap_bytes;
    int64_t planes = args->batch * args->groups;
    e.by_rows = threads > 1 && splits_rows(&e.a, threads);
    if (planes < threads || e.by_rows) e.rows = tn_min64(e.rows, tn_ceil_div(e.a.out_size[0], threads));
    e.blocks = tn_ceil_div(e.a.out_size[0], e.rows);
    e.channels = threads > 1 ? tn_max64(tn_min64(IMAGE_CHANNELS, planes / (4 * threads)), 1) : IMAGE_CHANNELS;
    const int64_t parts = (e.in_image ? args->batch * channel_parts(&e) : planes) * e.blocks;
    im2col_parallel(parts, threads, e.in_image ? compute_image_parts : compute_parts, &e);
}
