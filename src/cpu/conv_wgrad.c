/* conv_wgrad.c — the gradient of a convolution's weight on the processor.
 *
 * [taps, filters] = im2col[taps, output pixels] · yᵀ[output pixels, filters], the output pixels being the long axis. y
 * is packed into panels,
 * 256 output pixels at a time, and what is seen is copied to rows that the tiles read as they are; threads share the
 * taps. Of few taps they share the output pixels, or each would pack all of y: sums of a chunk of output pixels lie
 * apart then, and are added in the order of the chunks when all threads are done.
 *
 * With fewer multiplications, rounded otherwise: conv_winograd.c. */
#include "cpu/conv_paths.h"

#include <string.h>

#include "cpu/isa.h"

enum {
    CHUNK = KIR_KSUM,
    ROW = TILE_COPY,         /* distance of the rows of what is seen, as tiles like it */
    WEIGHT_CHANNELS = 64,    /* as many taps as so many have a part has, at most … */
    MORE_CHANNELS = 192,     /* … or as so many: results are packed for fewer parts … */
    MORE_ELEMENTS = 1 << 17, /* … where an input tile of them is a part of the second cache */
    FEW_TAPS = 64,           /* whose sums are soon added: y has 256 output pixels in a chunk */
    APART_ELEMENTS = 1 << 16 /* of sums that lie apart, or those of one chunk */
};

/* Channels that a part can have to do with, where it has as many taps as `most` have. */
static int64_t part_channels(const tn_conv_args *a, int64_t most) { return tn_min64(a->channels, most + 1); }

int64_t tn_conv_weight_channels(const tn_conv_args *a) { return part_channels(a, WEIGHT_CHANNELS); }

typedef struct weight_gradient {
    tn_conv_args a;
    im2col_plan w;
    int64_t channels;                /* of a part, but for one that two parts share */
    int64_t parts_a_group, out_size; /* of all images */
    int64_t sum_row;                 /* distance of the rows of sums */
    float *sums;                     /* [groups, depth, filters] */
    int64_t few, first, last;        /* chunks whose sums lie apart at once, 0: none; chunks now */
    float *apart;                    /* [few, groups, depth, filters] */
    size_t input_tile_bytes, panel_bytes, part_bytes, tap_bytes, sums_bytes, apart_bytes;
    char *parts;
} weight_gradient;

static int64_t all_sums(const weight_gradient *g) { return g->a.groups * g->w.depth * g->sum_row; }

static void plan_weight(weight_gradient *g, const tn_conv_args *args) {
    const conv_vec *with = tn_conv_vec();
    *g = (weight_gradient){.a = *args};
    g->channels = MORE_CHANNELS;
    tn_im2col_plan(&g->w, with, &g->a, CHUNK, part_channels(args, g->channels));
    if (im2col_elements(&g->w) > MORE_ELEMENTS) {
        g->channels = WEIGHT_CHANNELS;
        tn_im2col_plan(&g->w, with, &g->a, CHUNK, part_channels(args, g->channels));
    }
    g->out_size = g->w.line;
    g->sum_row = round_up(args->out_channels, with->tiles->lanes);
    g->input_tile_bytes = im2col_bytes(im2col_elements(&g->w));
    g->panel_bytes = im2col_bytes(CHUNK * round_up(args->out_channels, panel_of(with)));
    g->part_bytes = g->input_tile_bytes + g->panel_bytes + im2col_bytes(with->tiles->rows * ROW);
    g->tap_bytes = tn_whole_lines((size_t)g->w.depth * sizeof(int64_t));
    g->sums_bytes = im2col_bytes(args->groups * g->w.depth * g->sum_row);
    if (g->w.depth > FEW_TAPS) return;
    g->few = tn_min64(tn_max64(APART_ELEMENTS / all_sums(g), 1), tn_ceil_div(g->out_size, CHUNK));
    g->apart_bytes = im2col_bytes(g->few * all_sums(g));
}

/* ---- what is multiplied ------------------------------------------------------------------------------------------ */

/* y at output pixels that follow each other in one image and, unless y is contiguous, in one row. */
static void pack_results_run(const weight_gradient *g, const float *y, int64_t steps, int64_t distance, float *to) {
    const int64_t panel = panel_of(g->w.with);
    g->w.with->tiles->pack(&(pack){.to = to,
                                   .distance = panel,
                                   .group = panel,
                                   .jump = distance,
                                   .from = y,
                                   .along = g->a.y_stride[3],
                                   .across = g->a.y_stride[1],
                                   .steps = steps,
                                   .lines = g->a.out_channels});
}

/* y as panels of filters: a step is an output pixel. */
static void pack_results(const weight_gradient *g, const im2col_run *s, int64_t group, int64_t steps, float *panels) {
    const tn_conv_args *a = &g->a;
    const int64_t across = a->out_size[1], panel = panel_of(g->w.with);
    bool rows_follow = a->y_stride[2] == across * a->y_stride[3];
    for (int k = 0; k < s->sections; k++) {
        const section *part = &s->section[k];
        const float *y = a->y + part->image * a->y_stride[0] + group * a->out_channels * a->y_stride[1];
        for (int64_t i = 0, run = 0; i < part->count; i += run) {
            int64_t at = part->at + i, column = at % across;
            run = rows_follow ? part->count : tn_min64(across - column, part->count - i);
            const float *from = y + at / across * a->y_stride[2] + column * a->y_stride[3];
            pack_results_run(g, from, run, steps * panel, panels + (part->to + i) * panel);
        }
    }
}

/* What `height` taps see, a row each. */
static void copy_rows(const weight_gradient *g, const im2col_run *s, int64_t channel, int64_t first, int64_t height,
                      float *to) {
    int64_t base = channel * g->w.channel;
    for (int i = 0; i < s->pieces; i++) {
        const piece *p = &s->piece[i];
        g->w.with->copy_piece(to + p->to, ROW, s->input_tile + p->from, g->w.tap + first, base, height);
    }
}

/* ---- sums -------------------------------------------------------------------------------------------------------- */

/* Taps [begin, end) of one group at output pixels [q, last), chunk after chunk: their sums `next` behind each other,
 * or, if that is 0, the sum of all. */
static void collect_pixels(const weight_gradient *g, int64_t group, int64_t begin, int64_t end, int64_t q, int64_t last,
                           float *sums, int64_t next, char *memory) {
    const tile_set *with = g->w.with->tiles;
    const int64_t panel = panel_of(g->w.with), channel = begin / g->w.taps;
    float *panels = (float *)(void *)(memory + g->input_tile_bytes);
    float *rows = (float *)(void *)(memory + g->input_tile_bytes + g->panel_bytes);
    im2col_run s;
    s.sections = 0;
    s.input_tile = (float *)(void *)memory;
    sums += group * g->w.depth * g->sum_row;
    for (; q < last; q += CHUNK, sums += next) {
        tile t = {.a = rows, .a_row = ROW, .a_k = 1, .b = panels, .b_k = panel, .c_row = g->sum_row};
        t.add = next == 0 && q > 0;
        t.k = tn_min64(CHUNK, g->out_size - q);
        t.b_panel = t.k * panel;
        tn_im2col_pixels(&g->w, &s, q, t.k, CHUNK);
        pack_results(g, &s, group, t.k, panels);
        tn_fill_input_tile(&g->w, &s, group, channel, (end - 1) / g->w.taps + 1);
        for (int64_t i = begin, height = 0; i < end; i += height) {
            height = tile_height(end - i, with->rows);
            copy_rows(g, &s, channel, i, height, rows);
            t.c = sums + i * g->sum_row;
            tiles_multiply(with, t, height, g->a.out_channels);
        }
    }
}

static void write_taps(const weight_gradient *g, int64_t group, int64_t begin, int64_t end) {
    g->w.with->tiles->pack(&(pack){.to = g->a.out + group * g->a.out_channels * g->w.depth + begin,
                                   .distance = g->w.depth,
                                   .group = end - begin,
                                   .from = g->sums + (group * g->w.depth + begin) * g->sum_row,
                                   .along = 1,
                                   .across = g->sum_row,
                                   .steps = g->a.out_channels,
                                   .lines = end - begin});
}

static void collect_taps(const weight_gradient *g, int64_t group, int64_t begin, int64_t end, char *memory) {
    collect_pixels(g, group, begin, end, 0, g->out_size, g->sums, 0, memory);
    write_taps(g, group, begin, end);
}

static void collect_parts(void *ctx, int64_t begin, int64_t end, int worker) {
    const weight_gradient *g = ctx;
    const int64_t height = g->w.with->tiles->rows, tiles = tn_ceil_div(g->w.depth, height);
    for (int64_t n = begin; n < end; n++) {
        int64_t part = n % g->parts_a_group;
        int64_t first = tiles * part / g->parts_a_group * height;
        int64_t last = tn_min64(tiles * (part + 1) / g->parts_a_group * height, g->w.depth);
        if (first < last) collect_taps(g, n / g->parts_a_group, first, last, g->parts + (size_t)worker * g->part_bytes);
    }
}

/* Chunks of all groups. */
static void collect_chunks(void *ctx, int64_t begin, int64_t end, int worker) {
    const weight_gradient *g = ctx;
    const int64_t q = (g->first + begin) * CHUNK, last = tn_min64((g->first + end) * CHUNK, g->out_size);
    for (int64_t group = 0; group < g->a.groups; group++)
        collect_pixels(g, group, 0, g->w.depth, q, last, g->apart + begin * all_sums(g), all_sums(g),
                       g->parts + (size_t)worker * g->part_bytes);
}

/* Some of the sums, in the order that one thread would have. */
static void add_chunks(void *ctx, int64_t begin, int64_t end, TN_UNUSED int worker) {
    const weight_gradient *g = ctx;
    float *restrict to = g->sums;
    const float *restrict from = g->apart;
    for (int64_t n = g->first; n < g->last; n++, from += all_sums(g)) {
        if (n == 0) {
            memcpy(to + begin, from + begin, (size_t)(end - begin) * sizeof *to);
            continue;
        }
        for (int64_t i = begin; i < end; i++)
            to[i] += from[i];
    }
}

static void collect_apart(weight_gradient *g, int threads) {
    const int64_t chunks = tn_ceil_div(g->out_size, CHUNK);
    for (; g->first < chunks; g->first = g->last) {
        g->last = tn_min64(g->first + g->few, chunks);
        im2col_parallel(g->last - g->first, threads, collect_chunks, g);
        tn_parallel(all_sums(g), MOST_LANES, add_chunks, g);
    }
    for (int64_t group = 0; group < g->a.groups; group++)
        write_taps(g, group, 0, g->w.depth);
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

size_t tn_conv_wgrad_workspace(const tn_conv_args *args, int threads) {
    if (args->winograd) return tn_conv_winograd_weight_workspace(args, threads);
    weight_gradient g;
    plan_weight(&g, args);
    return g.tap_bytes + g.sums_bytes + g.apart_bytes + (size_t)(threads > 1 ? threads : 1) * g.part_bytes;
}

void tn_conv_wgrad(const tn_conv_args *args) {
    if (args->winograd) {
        tn_conv_winograd_weight(args);
        return;
    }
    weight_gradient g;
    plan_weight(&g, args);
    int threads = tn_conv_threads(args);
    char *memory = args->workspace;
    tn_im2col_find_taps(&g.w, (int64_t *)(void *)memory);
    g.sums = (float *)(void *)(memory + g.tap_bytes);
    g.apart = (float *)(void *)(memory + g.tap_bytes + g.sums_bytes);
    g.parts = memory + g.tap_bytes + g.sums_bytes + g.apart_bytes;
    if (args->groups % threads != 0 && g.few >= threads) { /* groups that come out even are shared themselves */
        collect_apart(&g, threads);
        return;
    }
    int64_t height = g.w.with->tiles->rows;
    int64_t tiles = tn_ceil_div(g.w.depth, height), most = g.channels * g.w.taps / height;
    g.parts_a_group = round_up(tn_ceil_div(tiles, most), args->groups % threads == 0 ? 1 : threads);
    int64_t parts = args->groups * g.parts_a_group;
    im2col_parallel(parts, threads, collect_parts, &g);
}
