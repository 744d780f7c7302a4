/* conv_depthwise.c — one filter a channel, and the greatest number of each window: what meets no other channel.
 *
 * A product of matrices would be all edges. Many channels are computed a vector at a time: conv_channels.c. Of few, a
 * block of an image's rows is brought to an input tile (conv_paths.h),
 * zeros around it (-∞ where the greatest is looked for), where each tap is a fixed distance away from its output pixel;
 * runs of output pixels are weighed there by whole vectors. Chains are those of the composition, so its bits come out.
 * */
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
    int64_t chains;         /* sums side by side */
    int64_t end[KIR_LANES]; /* of each chain, in `order` and in the input tile's distances */
    /* [taps], one chain after the other: where a tap's number lies in a filter, and what it sees in the input tile */
    int64_t *number, *at;
    int64_t plane; /* distance of the phases' planes in the input tile */
    float outside; /* what the window sees there */
    bool of_four, pairs;
    bool run; /* short rows are weighed as one, with the output pixels between them that are none */
    size_t order_bytes, input_tile_bytes, run_bytes, sums_bytes, part_bytes;
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

/* Rows of a phase that `rows` rows of output pixels see. */
static int64_t phase_rows(const depthwise *e, int64_t rows) {
    return tn_ceil_div((rows - 1) * e->a.stride[0] + window_reach(&e->a, 0), e->a.stride[0]);
}

static int64_t depthwise_input_tile(const depthwise *e, int64_t rows) {
    return phase_rows(e, rows) * e->w.phase * e->a.stride[0] * e->a.stride[1];
}

/* Where row i and column j of what is seen lie: each of the stride's phases has a plane, in which all that one tap
 * meets lies side by side. */
static int64_t tile_place(const depthwise *e, int64_t i, int64_t j) {
    const int64_t *s = e->a.stride;
    return (i % s[0] * s[1] + j % s[1]) * e->plane + i / s[0] * e->w.phase + j / s[1];
}

static void plan_depthwise(depthwise *e, const tn_conv_args *a) {
    *e = (depthwise){.a = *a, .w.with = tn_conv_vec(), .outside = a->max_pool ? -INFINITY : 0, .of_four = of_four(a)};
    depthwise_join_rows(&e->a);
    a = &e->a;
    e->pairs = are_pairs(a);
    int64_t taps = a->kernel[0] * a->kernel[1];
    e->w.a = &e->a;
    e->w.phase = tn_ceil_div((a->out_size[1] - 1) * a->stride[1] + window_reach(a, 1), a->stride[1]);
    e->w.row = e->w.phase * a->stride[1];
    int64_t more = (DEPTHWISE_INPUT_TILE - depthwise_input_tile(e, 1)) / (a->stride[0] * e->w.row);
    e->rows = tn_min64(1 + tn_max64(more, 0), a->out_size[0]);
    e->plane = phase_rows(e, e->rows) * e->w.phase;
    e->chains = a->pass > 0 ? tn_ceil_div(taps, a->pass) : tn_min64(taps, KIR_LANES);
    e->order_bytes = ((size_t)taps * 2 * sizeof(int64_t) + 63) / 64 * 64;
    e->input_tile_bytes = im2col_bytes(depthwise_input_tile(e, e->rows) + (WEIGH_RUN + 1) * MOST_LANES);
    e->run = a->out_size[1] < WEIGH_RUN * MOST_LANES && e->rows > 1;
    e->run_bytes = e->run ? im2col_bytes(e->rows * e->w.phase) : 0;
    e->sums_bytes = a->epilogue.vm ? im2col_bytes(e->rows * a->out_size[1]) : 0;
    e->part_bytes =
        e->input_tile_bytes + im2col_bytes(taps) + e->run_bytes + e->sums_bytes + fused_call_scratch(&a->epilogue, 0);
}

/* Windows that lie side by side need no input tile. */
static bool goes_by_channels(const tn_conv_args *a) {
    return !of_four(a) && !are_pairs(a) && tn_conv_by_channels_fits(a);
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

static void order_taps(depthwise *e, int64_t *memory) {
    const tn_conv_args *a = &e->a;
    int64_t taps = a->kernel[0] * a->kernel[1], n = 0;
    e->number = memory;
    e->at = memory + taps;
    for (int64_t l = 0; l < e->chains; l++) {
        int64_t first = a->pass > 0 ? l * a->pass : l, step = a->pass > 0 ? 1 : KIR_LANES;
        int64_t last = a->pass > 0 ? tn_min64(first + a->pass, taps) : taps;
        for (int64_t t = first; t < last; t += step, n++) {
            int64_t i = t / a->kernel[1], j = t % a->kernel[1];
            e->number[n] = i * a->weight_stride[2] + j * a->weight_stride[3];
            e->at[n] = tile_place(e, i * a->dilation[0], j * a->dilation[1]);
        }
        e->end[l] = n;
    }
}

static void fill(float *to, float value, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        to[i] = value;
}

/* Rows [first, end) of a phase that lie outside of the image. */
static void fill_outside(const depthwise *e, int64_t row, int64_t first, int64_t end, float *input_tile) {
    const int64_t side = e->a.stride[1];
    for (int64_t column = 0; column < side && first < end; column++)
        fill(input_tile + (row * side + column) * e->plane + first * e->w.phase, e->outside,
             (end - first) * e->w.phase);
}

/* `rows` rows of the input tile from row `first` of the image on. What lies left and right of them never changes, and
 * is there; so are rows outside of the image if the tile had this place before. */
static void fill_depthwise(const depthwise *e, const float *x, int64_t first, int64_t rows, bool same, float *to) {
    const tn_conv_args *a = &e->a;
    const int64_t down = a->stride[0], side = a->stride[1];
    for (int64_t row = 0; row < down && row < rows; row++) {
        const int64_t count = tn_ceil_div(rows - row, down), begin = first + row;
        const int64_t low = tn_min64(begin < 0 ? tn_ceil_div(-begin, down) : 0, count);
        const int64_t high = tn_max64(tn_min64(tn_ceil_div(a->size[0] - begin, down), count), low);
        if (!same) fill_outside(e, row, 0, low, to);
        if (!same) fill_outside(e, row, high, count, to);
        for (int64_t column = 0; column < side && low < high; column++) {
            const inside in = tn_inside_phase(&e->w, column, -a->pad_before[1]);
            if (in.low >= in.high) continue;
            e->w.with->copy_rows(to + (row * side + column) * e->plane + low * e->w.phase + in.low, e->w.phase,
                                 x + (begin + low * down) * a->x_stride[2] + in.first * a->x_stride[3],
                                 down * a->x_stride[2], high - low, side * a->x_stride[3], in.high - in.low);
        }
    }
}

/* A channel's numbers in the order of the taps. */
static void take_filter(const depthwise *e, int64_t channel, float *weight) {
    const tn_conv_args *a = &e->a;
    const float *filter = a->weight + channel * a->weight_group;
    for (int64_t k = 0; k < a->kernel[0] * a->kernel[1]; k++)
        weight[k] = filter[e->number[k]];
}

/* Memory of one thread. */
typedef struct part {
    float *input_tile, *weight, *run;
    tap_chains chains;
    int64_t top, rows; /* of what the input tile holds; rows is 0: nothing yet */
} part;

/* Output pixels of some rows of one channel of an image. */
static void compute_rows(const depthwise *e, part *p, int64_t plane, int64_t row, int64_t rows, float *to) {
    const tn_conv_args *a = &e->a;
    const conv_vec *with = e->w.with;
    int64_t channel = plane % a->groups, down = a->stride[0], top = row * down - a->pad_before[0];
    const float *x = a->x + plane / a->groups * a->x_stride[0] + channel * a->x_stride[1];
    if (e->of_four) {
        for (int64_t r = 0; r < rows; r++, to += a->out_size[1])
            with->greatest_of_four(x + (top + 2 * r) * a->x_stride[2], x + (top + 2 * r + 1) * a->x_stride[2], to,
                                   a->out_size[1]);
        return;
    }
    for (int64_t r = 0; e->pairs && r < rows; r++, to += a->out_size[1])
        with->greatest_pairs(x + (top + r * down) * a->x_stride[2], to, a->out_size[1]);
    if (e->pairs) return;
    if (!a->max_pool) take_filter(e, channel, p->weight);
    if (p->rows == 0) fill(p->input_tile, e->outside, e->plane * a->stride[0] * a->stride[1]);
    fill_depthwise(e, x, top, (rows - 1) * down + window_reach(a, 0), p->rows == rows && p->top == top, p->input_tile);
    p->top = top;
    p->rows = rows;
    void (*look)(const tap_chains *c, const float *from, const float *weight, float *to, int64_t out_pixels) =
        a->max_pool ? with->greatest_row : with->weigh_row;
    if (e->run) {
        look(&p->chains, p->input_tile, p->weight, p->run, (rows - 1) * e->w.phase + a->out_size[1]);
        with->copy_rows(to, a->out_size[1], p->run, e->w.phase, rows, 1, a->out_size[1]);
        return;
    }
    for (int64_t r = 0; r < rows; r++, to += a->out_size[1])
        look(&p->chains, p->input_tile + r * e->w.phase, p->weight, to, a->out_size[1]);
}

static void compute_parts(void *ctx, int64_t begin, int64_t end, int worker) {
    const depthwise *e = ctx;
    const tn_conv_args *a = &e->a;
    char *memory = e->parts + (size_t)worker * e->part_bytes;
    part p = {.input_tile = (float *)(void *)memory, .weight = (float *)(void *)(memory + e->input_tile_bytes)};
    p.run = (float *)(void *)(memory + e->input_tile_bytes + im2col_bytes(a->kernel[0] * a->kernel[1]));
    float *sums = (float *)(void *)((char *)p.run + e->run_bytes);
    fused_call epilogue;
    fused_call_open(&epilogue, &a->epilogue, (char *)sums + e->sums_bytes);
    p.chains = (tap_chains){.at = e->at, .end = e->end, .chains = e->chains};
    p.chains.taps = a->kernel[0] * a->kernel[1];
    p.chains.pass = a->pass;
    p.chains.from_zero = !a->max_pool && (a->pass == 0 || e->chains > 1);
    for (int64_t n = begin; n < end; n++) {
        int64_t plane = n / e->blocks, row = n % e->blocks * e->rows, rows = tn_min64(e->rows, a->out_size[0] - row);
        compute_rows(e, &p, plane, row, rows,
                     epilogue.vm ? sums : a->out + (plane * a->out_size[0] + row) * a->out_size[1]);
        if (!epilogue.vm) continue;
        box at = {plane % a->groups, 1, row * a->out_size[1], rows * a->out_size[1]};
        fused_call_run(&epilogue, (const int64_t[TN_GEMM_BATCH_AXES]){0, 0, 0, plane / a->groups}, at, sums);
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
    order_taps(&e, args->workspace);
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
