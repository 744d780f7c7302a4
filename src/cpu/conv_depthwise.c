/* conv_depthwise.c — depthwise convolution and max pooling: what meets no other channel.
 *
 * Lanes of a vector are output pixels of a row, or, if these would leave many lanes empty, channels: conv_channels.c.
 * Here a block of an image's rows is brought to an input tile, zeros around it (-∞ where the greatest is looked for),
 * each row as the columns of each of the stride's phases. So what one tap shows to a row of output pixels lies side by
 * side, a fixed distance away. A bias, max(…, 0) and clipping are done to sums in registers. Chains are those of the
 * composition, so its bits come out. */
#include "cpu/conv.h"

#include <math.h>
#include <string.h>

#include "cpu/conv_paths.h"
#include "cpu/isa.h"

enum {
    DEPTHWISE_INPUT_TILE = 1 << 13 /* elements, unless one row of output pixels sees more */
};

typedef struct depthwise {
    tn_conv_args a;
    im2col_plan w;          /* of one image's block: row, phase */
    int64_t rows, blocks;   /* of output pixels in a block; blocks an image */
    int64_t tile_rows;      /* of the input tile */
    int64_t lanes, vectors; /* of a row of output pixels */
    tap_chains chains;
    int64_t end[KIR_LANES];
    float outside;
    bool of_four, pairs;
    bool ends; /* all that the epilogue does is … */
    epilogue_ops epilogue_ops;
    size_t order_bytes, input_tile_bytes, weight_bytes, sums_bytes, part_bytes;
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
    e->chains = (tap_chains){.row = e->w.row, .phase = e->w.phase, .phases = a->stride[1], .step = 1};
    e->order_bytes = tap_chains_bytes(a);
    e->input_tile_bytes = im2col_bytes(e->tile_rows * e->w.row + 2 * MOST_LANES);
    e->weight_bytes = a->max_pool ? 0 : im2col_bytes(a->kernel[0] * a->kernel[1]);
    e->sums_bytes = a->epilogue.vm ? im2col_bytes(e->rows * a->out_size[1]) : 0;
    e->part_bytes = e->input_tile_bytes + e->weight_bytes + e->sums_bytes + fused_call_scratch(&a->epilogue, 0);
}

/* Windows that lie side by side need no input tile. Pixels as lanes need no transposes, but pay only for small windows
 * in rows that are several times as long and fill their vectors (measured), and not under an epilogue's program, which
 * would get one channel at a time. */
static bool goes_by_channels(const tn_conv_args *a) {
    const int64_t side = a->kernel[1], across = a->out_size[1];
    const bool small = a->kernel[0] == side && side <= 5 && a->dilation[0] == 1 && a->dilation[1] == 1;
    const bool filled = 8 * across >= 7 * round_up(across, tn_conv_vec()->tiles->lanes) && across >= 4 * side;
    const bool program = a->epilogue.vm && !a->epilogue.epilogue_ops;
    if (of_four(a) || are_pairs(a) || (small && a->stride[1] <= 2 && filled && !program)) return false;
    return tn_conv_by_channels_fits(a);
}

bool tn_conv_depthwise_fits(const tn_conv_args *a) {
    if (!tn_im2col_is_small(a)) return false;
    if ((double)a->kernel[0] * (double)a->kernel[1] > KIR_BLOCK) return false;
    if (a->pass > 0 && a->kernel[0] * a->kernel[1] > a->pass * KIR_LANES) return false;
    depthwise e;
    e.a = *a;
    e.w.row = (a->out_size[1] - 1) * a->stride[1] + window_reach(a, 1) + a->stride[1];
    return (double)window_reach(a, 0) * (double)e.w.row <= INPUT_TILE_ELEMENTS;
}

/* ---- taps and filters -------------------------------------------------------------------------------------------- */

void tn_conv_order_taps(tap_chains *c, const tn_conv_args *a, int64_t *memory, int64_t *end) {
    const int64_t taps = a->kernel[0] * a->kernel[1], chains = a->pass > 0 ? tn_ceil_div(taps, a->pass) : taps;
    int64_t *at = memory, *order = memory + taps, n = 0;
    for (int64_t t = 0; t < taps; t++) {
        const int64_t i = t / a->kernel[1] * a->dilation[0], j = t % a->kernel[1] * a->dilation[1];
        at[t] = i * c->row + j % c->phases * c->phase + j / c->phases * c->step;
    }
    c->chains = tn_min64(chains, KIR_LANES);
    for (int64_t l = 0; l < c->chains; l++) {
        const int64_t first = a->pass > 0 ? l * a->pass : l, step = a->pass > 0 ? 1 : KIR_LANES;
        const int64_t last = a->pass > 0 ? tn_min64(first + a->pass, taps) : taps;
        for (int64_t t = first; t < last; t += step)
            order[n++] = t;
        end[l] = n;
    }
    const bool square = a->kernel[0] == a->kernel[1] && a->dilation[0] == 1 && a->dilation[1] == 1;
    c->at = at;
    c->order = order;
    c->end = end;
    c->taps = taps;
    c->pass = a->pass;
    c->square = square ? a->kernel[0] : 0;
    c->from_zero = a->pass == 0 || c->chains > 1;
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
    if (p->rows == 0) fill(p->input_tile, e->outside, e->tile_rows * e->w.row);
    fill_depthwise(e, x, top, seen, p->rows == rows && p->top == top, p->input_tile);
    p->top = top;
    p->rows = rows;
    epilogue_ops end = e->epilogue_ops;
    if (end.add) end.add += channel;
    e->w.with->weigh(&(weigh_rows){.chains = &e->chains,
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

static void compute_parts(void *ctx, int64_t begin, int64_t end, int worker) {
    const depthwise *e = ctx;
    const tn_conv_args *a = &e->a;
    char *memory = e->parts + (size_t)worker * e->part_bytes;
    part p = {.input_tile = (float *)(void *)memory, .weight = (float *)(void *)(memory + e->input_tile_bytes)};
    p.sums = (float *)(void *)(memory + e->input_tile_bytes + e->weight_bytes);
    fused_call_open(&p.epilogue, &a->epilogue, (char *)p.sums + e->sums_bytes);
    const bool joined = p.epilogue.vm && !e->ends;
    for (int64_t n = begin; n < end; n++) {
        int64_t plane = n / e->blocks, row = n % e->blocks * e->rows, rows = tn_min64(e->rows, a->out_size[0] - row);
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
    return e.order_bytes + (size_t)(threads > 1 ? threads : 1) * e.part_bytes;
}

/* Windows of one channel are seen an eighth as fast as a product's: threads pay for less. */
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
    tn_conv_order_taps(&e.chains, &e.a, args->workspace, e.end);
    e.ends = !e.of_four && !e.pairs && epilogue_by_channels(&args->epilogue, &e.epilogue_ops);
    e.parts = (char *)args->workspace + e.order_bytes;
    int64_t planes = args->batch * args->groups;
    if (planes < threads) e.rows = tn_min64(e.rows, tn_ceil_div(e.a.out_size[0], threads));
    e.blocks = tn_ceil_div(e.a.out_size[0], e.rows);
    if (threads == 1) {
        compute_parts(&e, 0, planes * e.blocks, 0);
    } else {
        tn_parallel(planes * e.blocks, tn_max64(planes * e.blocks / (4 * threads), 1), compute_parts, &e);
    }
}
