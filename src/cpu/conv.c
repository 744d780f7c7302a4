/* conv.c — convolutions on the CPU: choice of the path, blocks, and input windows.
 *
 * A convolution: for each group out[out_channels, output pixels] = weight[out_channels, taps] · im2col[taps, output
 * pixels]. Output pixels are cut into blocks, which threads share; for 256 steps of k at a time a block of what is seen
 * is packed into panels (conv_paths.h), and all filters pass over it while it is in the second cache. Packing costs a
 * few loads and stores a step, which all filters share. With a stride of 1 nothing need be packed: output pixels are
 * counted as they lie in the input tile, with those between two rows that are none (few, or it is not done), and each
 * step of k is a row of the input tile as it is. So it is with any stride where rows are multiplied one by one, for an
 * epilogue. Filters are packed as tiles, once if they stay as they are.
 *
 * Other paths: NHWC (filters as columns of the product, for many filters) and batch as rows (for many images with few
 * output pixels) in conv_nhwc.c; depthwise in conv_depthwise.c; Winograd (fewer multiplications, different rounding) in
 * conv_winograd.c; wgrad in conv_wgrad.c.
 *
 * The micro-kernels are those of products (tiles.c), and so are the chains: any cut gives the same bits. What is moved
 * a vector at a time is in conv_vec.c. */
#include <string.h>

#include "cpu/conv.h"
#include "cpu/conv_paths.h"
#include "cpu/isa.h"

enum {
    CHUNK = KIR_KSUM,
    COLUMNS = IM2COL_PIXELS, /* of a block: 256 steps of them are 256 KiB */
    WHOLE_COLUMNS = 512,     /* of one that is not packed: more rows share the rows around them */
    PART_ROWS = 512          /* filters that pass over a block, at most */
};

/* Channels that a chunk of k can have to do with. */
static int64_t chunk_channels(const tn_conv_args *a) {
    return tn_min64(a->channels, (CHUNK - 2) / (a->kernel[0] * a->kernel[1]) + 2);
}

bool tn_conv_fits(const tn_conv_args *a) {
    im2col_plan w;
    if (!tn_im2col_is_small(a)) return false;
    tn_im2col_plan(&w, NULL, a, COLUMNS, tn_max64(chunk_channels(a), tn_conv_weight_channels(a)), false);
    return (double)w.channel * (double)w.channels <= INPUT_TILE_ELEMENTS;
}

/* ---- filters, packed --------------------------------------------------------------------------------------------- */

/* Chunk k0 of a group lies at k0 · filters, the tile of row i in it at i · steps, its rows side by side. */
size_t tn_conv_packed_bytes(const tn_conv_args *a) {
    if (a->nhwc) return tn_conv_nhwc_packed_bytes(a);
    if (a->winograd) return tn_conv_winograd_packed_bytes(a);
    return im2col_bytes(a->groups * a->out_channels * a->channels * a->kernel[0] * a->kernel[1]);
}

/* Are a filter's taps consecutive? */
static bool taps_follow(const tn_conv_args *a) {
    const int64_t *s = a->weight_stride;
    bool columns = a->kernel[1] == 1 || s[3] == 1, rows = a->kernel[0] == 1 || s[2] == a->kernel[1];
    return columns && rows && (a->channels == 1 || s[1] == a->kernel[0] * a->kernel[1]);
}

static void pack_tile(const tile_set *with, const tn_conv_args *a, const float *from, int64_t rows, int64_t k0,
                      int64_t steps, float *to) {
    const int64_t *s = a->weight_stride;
    int64_t taps = a->kernel[0] * a->kernel[1];
    if (taps_follow(a)) {
        with->pack(&(pack){.to = to,
                           .distance = rows,
                           .group = rows,
                           .from = from + k0,
                           .along = 1,
                           .across = s[0],
                           .steps = steps,
                           .lines = rows});
        return;
    }
    for (int64_t k = k0; k < k0 + steps; k++, to += rows) {
        const float *at = from + k / taps * s[1] + k % taps / a->kernel[1] * s[2] + k % a->kernel[1] * s[3];
        for (int64_t i = 0; i < rows; i++)
            to[i] = at[i * s[0]];
    }
}

typedef struct packing {
    const tile_set *with;
    const tn_conv_args *a;
    float *to;
} packing;

static void pack_chunks(void *ctx, int64_t begin, int64_t end, int worker) {
    const packing *p = ctx;
    const tn_conv_args *a = p->a;
    int64_t depth = a->channels * a->kernel[0] * a->kernel[1], chunks = tn_ceil_div(depth, CHUNK);
    (void)worker;
    for (int64_t n = begin; n < end; n++) {
        int64_t group = n / chunks, k0 = n % chunks * CHUNK, steps = tn_min64(CHUNK, depth - k0);
        float *to = p->to + (group * depth + k0) * a->out_channels;
        for (int64_t i = 0, rows = 0; i < a->out_channels; i += rows) {
            rows = tile_height(a->out_channels - i, p->with->rows);
            const float *from = a->weight + group * a->weight_group + i * a->weight_stride[0];
            pack_tile(p->with, a, from, rows, k0, steps, to + i * steps);
        }
    }
}

void tn_conv_pack(const tn_conv_args *a, void *to) {
    enum { PART_ELEMENTS = 1 << 14 };
    if (a->nhwc || a->winograd) {
        (a->nhwc ? tn_conv_nhwc_pack : tn_conv_winograd_pack)(a, to);
        return;
    }
    packing p = {tn_conv_vec()->tiles, a, to};
    int64_t depth = a->channels * a->kernel[0] * a->kernel[1], chunks = a->groups * tn_ceil_div(depth, CHUNK);
    int64_t grain = tn_max64(PART_ELEMENTS / (a->out_channels * tn_min64(depth, CHUNK)), 1);
    tn_parallel(chunks, grain, pack_chunks, &p);
}

/* ---- a convolution ----------------------------------------------------------------------------------------------- */

/* Where the results go: the first of them, and elements from channel to channel (all images' follow each other), from
 * row to row, from output pixel to output pixel. */
typedef struct target {
    float *data;
    int64_t channel, row, place;
} target;

typedef struct conv {
    tn_conv_args a;
    im2col_plan w;
    target out;
    /* output pixels are counted as they lie in the input tile, an image is a line */
    bool whole;
    bool closed;     /* … and in the sums as in the image: a block is whole rows */
    int64_t columns; /* of a block, at most */
    /* lines of output pixels, output pixels a line, blocks a line, columns a block */
    int64_t lines, line, blocks, width;
    int64_t row_parts; /* of the filters */
    const float *packed;
    size_t input_tile_bytes, panel_bytes, sums_bytes, part_bytes, tap_bytes;
    char *parts; /* memory of each thread */
} conv;

static int64_t part_rows(const conv *c) {
    int64_t height = c->w.with->tiles->rows;
    return tn_min64(c->a.out_channels, tn_ceil_div(tn_ceil_div(c->a.out_channels, height), c->row_parts) * height);
}

/* What is pooled has an epilogue, also while the plan is made. */
static bool is_joined(const tn_conv_args *a) { return a->epilogue.vm || a->pool[0] > 0; }

/* Distance of the rows of a block's sums. */
static int64_t sum_row(const tn_conv_args *a, int64_t columns) { return is_joined(a) ? TN_GEMM_BLOCK_LD : columns; }

static bool is_strided(const tn_conv_args *a) { return a->stride[0] != 1 || a->stride[1] != 1; }

/* Worth it where few output pixels are none, and copying the sums out, which an epilogue does anyway, costs less than
 * packing. */
static bool counts_whole_rows(const conv *c) {
    const tn_conv_args *a = &c->a;
    const int64_t few = is_joined(a) ? 8 : 16; /* of so many output pixels one may be none */
    if (is_strided(a) || c->w.apart) return false;
    if ((c->w.row - a->out_size[1]) * few > a->out_size[1]) return false;
    if (a->out_size[0] * c->w.row < 2 * panel_of(c->w.with)) return false;
    return is_joined(a) || 2 * a->out_channels <= c->w.depth;
}

/* Rows of output pixels whose sums, side by side as in the image, an epilogue's block has room for: tiles write whole
 * panels, so the last one's rest lies behind its row, where the next row is written afterwards. */
static int64_t closed_rows(const conv *c) {
    int64_t across = c->a.out_size[1], rest = TN_GEMM_BLOCK_LD - round_up(across, panel_of(c->w.with));
    return rest < 0 ? 0 : tn_min64(rest / across + 1, c->a.out_size[0]);
}

/* Worth it where the columns that are summed for nothing take less time than to put rows side by side for the epilogue:
 * the few taps of a network's first layer. */
static bool closes_rows(const conv *c) {
    const int64_t across = c->a.out_size[1], none = round_up(across, panel_of(c->w.with)) - across;
    if (c->w.apart || !is_joined(&c->a) || c->w.row == across || c->w.depth > CHUNK) return false;
    return closed_rows(c) >= pooled_rows(&c->a) && 2 * none * c->w.depth <= 3 * across; /* steps a vector: measured */
}

static void plan_conv(conv *c, const tn_conv_args *args) {
    *c = (conv){.a = *args};
    c->columns = COLUMNS;
    tn_im2col_plan(&c->w, tn_conv_vec(), &c->a, COLUMNS, chunk_channels(args), true);
    c->whole = counts_whole_rows(c);
    c->closed = (c->whole || is_strided(args)) && closes_rows(c);
    c->whole |= c->closed;
    if (c->whole) {
        c->columns = WHOLE_COLUMNS;
        tn_im2col_plan(&c->w, tn_conv_vec(), &c->a, WHOLE_COLUMNS, chunk_channels(args), true);
    }
    c->line = c->whole ? (args->out_size[0] - 1) * c->w.row + args->out_size[1] : c->w.line;
    if (c->closed) c->line = c->w.plane;
    c->lines = c->whole ? args->batch : args->batch * c->w.plane / c->w.line;
    c->row_parts = tn_ceil_div(args->out_channels, PART_ROWS);
    c->input_tile_bytes = im2col_bytes(im2col_elements(&c->w));
    c->panel_bytes = c->whole ? 0 : im2col_bytes(COLUMNS * CHUNK + MOST_LANES);
    c->sums_bytes = im2col_bytes(part_rows(c) * sum_row(&c->a, c->columns));
    c->part_bytes =
        IM2COL_BYTES + c->input_tile_bytes + c->panel_bytes + c->sums_bytes + fused_call_scratch(&c->a.epilogue, 0);
    c->tap_bytes = ((size_t)c->w.depth * sizeof(int64_t) + 63) / 64 * 64;
}

/* Blocks of whole rows, which may be pooled. */
static void share_rows(conv *c, int threads) {
    const int64_t down = c->a.out_size[0], others = c->lines * c->a.groups * c->row_parts, unit = pooled_rows(&c->a);
    int64_t share = others % threads == 0 ? 1 : threads, units = tn_ceil_div(down, unit);
    int64_t rows = tn_ceil_div(units, tn_ceil_div(units, closed_rows(c) / unit * share) * share) * unit;
    c->width = rows * c->a.out_size[1];
    c->blocks = tn_ceil_div(down, rows);
}

/* Blocks of equal width, as many as keep all threads busy to the end. Many filters over few output pixels are shared
 * out themselves: reading them takes longer than packing what they see once a thread. */
static void choose_blocks(conv *c, int threads) {
    const int64_t panel = panel_of(c->w.with), height = c->w.with->tiles->rows;
    if (c->closed) {
        share_rows(c, threads);
        return;
    }
    int64_t most = c->columns / panel, panels = tn_ceil_div(c->line, panel);
    bool tall = c->lines == 1 && panels <= most && c->a.out_channels >= 8 * height * threads;
    if (tall) c->row_parts = round_up(c->row_parts, threads);
    int64_t others = c->lines * c->a.groups * c->row_parts;
    int64_t share = others % threads == 0 ? 1 : threads;
    int64_t rounds = tn_ceil_div(panels, most * share);
    c->width = tn_ceil_div(panels, share * rounds) * panel;
    c->blocks = tn_ceil_div(c->line, c->width);
    int64_t tiles = tn_ceil_div(c->a.out_channels, height), tasks = others * c->blocks;
    if (tasks < threads) c->row_parts = tn_min64(tiles, c->row_parts * (threads / tasks));
}

static void pack_panels(const conv *c, const im2col_run *s, int64_t k0, int64_t steps, float *panels) {
    const int64_t panel = panel_of(c->w.with), *tap = c->w.tap + k0, base = k0 / c->w.taps * c->w.channel;
    for (int i = 0, next = 0; i < s->pieces; i = next, panels += steps * panel) {
        while (next < s->pieces && s->piece[next].to / panel == s->piece[i].to / panel)
            next++;
        c->w.with->copy_steps(panels, s->input_tile, &s->piece[i], next - i, tap, base, steps);
    }
}

/* One block of output pixels for the filters [first, first + rows). */
typedef struct block {
    int64_t group, first, rows, columns;
    float *input_tile, *panels, *sums;
    fused_call *epilogue;
    float *ahead;   /* where the image's results go, if that is known: of the group's first filter … */
    int64_t column; /* … and where among them the block begins, as they lie in the input tile */
} block;

/* As many columns as there are panels in the input tile, the last one's rest too. The lines that results will be stored
 * to are asked for while there is something to compute: from `channel` on, which is the first row's, or NULL. (Not in a
 * function of its own: compilers take one that does nothing else for one that does nothing.) */
static void multiply_tapped(const conv *c, tile t, int64_t height, int64_t columns, float *channel, int64_t column) {
    enum { LINE = 64 / sizeof *channel };
    const int64_t panel = panel_of(c->w.with);
    float *row = channel ? channel + column / c->w.row * c->out.row : NULL;
    for (int64_t at = column % c->w.row; columns > 0; columns -= panel, at += panel) {
        for (; at >= c->w.row; at -= c->w.row)
            row = row ? row + c->out.row : NULL;
        float *to = row ? row + at : NULL;
        for (int64_t i = 0; to && i < height; i++, to += c->out.channel)
            for (int64_t j = 0; j < panel; j += LINE)
                __builtin_prefetch(to + j, 1);
        c->w.with->tiles->tapped[height](&t);
        t.b += panel;
        t.c += panel;
    }
}

/* The same row by row, each from where it begins in the input tile; `out`: the first of these rows. */
static void multiply_rows(const conv *c, tile t, int64_t height, int64_t columns, const float *out) {
    enum { LINE = 64 / sizeof *out };
    const int64_t panel = panel_of(c->w.with), across = c->a.out_size[1];
    const float *row = t.b;
    float *sums = t.c;
    for (int64_t first = 0; first < columns; first += across, row += c->w.row * c->a.stride[0]) {
        for (int64_t at = 0; at < across; at += panel) {
            const float *to = out ? out + first / across * c->out.row + at : NULL;
            for (int64_t i = 0; to && i < height; i++, to += c->out.channel)
                for (int64_t j = 0; j < panel; j += LINE)
                    __builtin_prefetch(to + j, 1);
            t.b = row + at;
            t.c = sums + first + at;
            c->w.with->tiles->tapped[height](&t);
        }
    }
}

/* All filters of the block, which begin with a row of tiles, over one chunk, into `t.c`. */
static void multiply_out_channels(const conv *c, const block *b, int64_t k0, tile t) {
    const tile_set *with = c->w.with->tiles;
    const float *packed = c->packed + (b->group * c->w.depth + k0) * c->a.out_channels;
    bool last = k0 + t.k == c->w.depth;
    float *out = t.c;
    for (int64_t i = b->first, height = 0; i < b->first + b->rows; i += height) {
        height = tile_height(c->a.out_channels - i, with->rows);
        t.a = packed + i * t.k;
        t.a_row = 1;
        t.a_k = height;
        t.c = out + (i - b->first) * t.c_row;
        float *channel = last && b->ahead ? b->ahead + i * c->out.channel : NULL;
        if (c->closed)
            multiply_rows(c, t, height, b->columns,
                          channel ? channel + b->column / c->a.out_size[1] * c->out.row : NULL);
        else if (c->whole)
            multiply_tapped(c, t, height, b->columns, channel, b->column);
        else
            tiles_multiply(with, t, height, b->columns);
    }
}

static float *image_out(const conv *c, const block *b, int64_t row, const section *s) {
    int64_t channel = (s->image * c->a.groups + b->group) * c->a.out_channels + b->first + row,
            across = c->a.out_size[1];
    return c->out.data + channel * c->out.channel + s->at / across * c->out.row + s->at % across * c->out.place;
}

static bool pixels_follow(const conv *c) { return c->out.place == 1 && c->out.row == c->a.out_size[1]; }

/* Output pixels of one image that begin in column `column`. */
static void copy_pixels(const conv *c, float *to, const float *from, int64_t column, int64_t count) {
    if (pixels_follow(c)) {
        memcpy(to, from, (size_t)count * sizeof(float));
        return;
    }
    for (int64_t run = 0; count > 0; count -= run, from += run) {
        run = tn_min64(c->a.out_size[1] - column, count);
        c->w.with->spread_row(to, from, c->out.place, run);
        to += c->out.row - column * c->out.place;
        column = 0;
    }
}

static void copy_out(const conv *c, const block *b, const section *run, int runs) {
    for (int64_t i = 0; i < b->rows; i++) {
        const float *sums = b->sums + i * sum_row(&c->a, c->width);
        for (int k = 0; k < runs; k++)
            copy_pixels(c, image_out(c, b, i, &run[k]), sums + run[k].to, run[k].at % c->a.out_size[1], run[k].count);
    }
}

/* Puts runs side by side that follow each other in the image: an epilogue's rows are better long. */
static section close_up(const conv *c, const block *b, const section *run, int runs) {
    section all = run[0];
    for (int k = 1; k < runs; k++) {
        for (int64_t i = 0; i < b->rows; i++) {
            float *sums = b->sums + i * sum_row(&c->a, c->width);
            memmove(sums + all.to + all.count, sums + run[k].to, (size_t)run[k].count * sizeof *sums);
        }
        all.count += run[k].count;
    }
    return all;
}

/* To the epilogue, or to where results go. */
static void finish_conv(const conv *c, const block *b, const section *run, int runs) {
    if (!b->epilogue->vm) {
        copy_out(c, b, run, runs);
        return;
    }
    section all;
    if (c->whole && runs > 1 && c->a.border.row == 0) {
        all = close_up(c, b, run, runs);
        run = &all;
        runs = 1;
    }
    for (int k = 0; k < runs; k++) {
        box at = {b->group * c->a.out_channels + b->first, b->rows, run[k].at, run[k].count};
        hand_over_result(b->epilogue, c->w.with, &c->a, run[k].image, at, b->sums + run[k].to);
    }
}

/* The rows of tiles from `first` on that have `least` rows, or all that are left. */
static int64_t rows_of_tiles(const conv *c, int64_t first, int64_t end, int64_t least) {
    int64_t row = first;
    while (row < end && row - first < least)
        row += tile_height(c->a.out_channels - row, c->w.with->tiles->rows);
    return row - first;
}

/* The last chunk: sums are handed over while they are in the first cache. */
static void multiply_last(const conv *c, const block *b, int64_t k0, tile t, const section *run, int runs) {
    enum { SUMS = 6144 }; /* elements: half of that cache */
    block part = *b;
    for (int64_t end = b->first + b->rows; part.first < end; part.first += part.rows) {
        part.sums = t.add ? b->sums + (part.first - b->first) * t.c_row : b->sums;
        part.rows = rows_of_tiles(c, part.first, end, tn_max64(SUMS / b->columns, 1));
        t.c = part.sums;
        multiply_out_channels(c, &part, k0, t);
        finish_conv(c, &part, run, runs);
    }
}

/* Tiles write the result itself where the block lies in one image and nothing is joined. */
static void compute_block(const conv *c, const block *b, im2col_run *s) {
    bool direct = s->sections == 1 && pixels_follow(c) && !b->epilogue->vm;
    tile t = {.c = direct ? image_out(c, b, 0, &s->section[0]) : b->sums};
    t.c_row = direct ? c->out.channel : sum_row(&c->a, c->width);
    t.b_k = panel_of(c->w.with);
    for (int64_t k0 = 0; k0 < c->w.depth; k0 += CHUNK) {
        t.k = tn_min64(CHUNK, c->w.depth - k0);
        t.add = k0 > 0;
        tn_fill_input_tile(&c->w, s, b->group, k0 / c->w.taps, (k0 + t.k - 1) / c->w.taps + 1);
        pack_panels(c, s, k0, t.k, b->panels);
        t.b = b->panels;
        t.b_panel = t.k * t.b_k;
        if (direct || k0 + t.k < c->w.depth)
            multiply_out_channels(c, b, k0, t);
        else
            multiply_last(c, b, k0, t, s->section, s->sections);
    }
}

/* Of output pixels from `first` on that are counted as they lie in the input tile, those that are some: a run a row, or
 * one of all rows where there is nothing between them. */
static int runs_of_rows(const conv *c, const block *b, int64_t image, int64_t first, section *run) {
    const int64_t across = c->a.out_size[1], row = c->w.row, end = first + b->columns;
    int runs = 0;
    if (row == across || c->closed) {
        run[0] = (section){.image = image, .at = first, .count = b->columns};
        return 1;
    }
    for (int64_t r = first / row; r * row < end; r++) {
        int64_t from = tn_max64(first, r * row), to = tn_min64(end, r * row + across);
        if (from >= to) continue;
        run[runs++] =
            (section){.image = image, .at = r * across + from - r * row, .count = to - from, .to = from - first};
    }
    return runs;
}

static void compute_whole_rows(const conv *c, block *b, im2col_run *s, int64_t image, int64_t first) {
    b->column = first;
    b->ahead = NULL;
    if (c->out.data && c->out.place == 1)
        b->ahead = c->out.data + (image * c->a.groups + b->group) * c->a.out_channels * c->out.channel;
    const int64_t row = c->closed ? c->a.out_size[1] : c->w.row, top = first / row;
    tile t = {.c = b->sums, .c_row = sum_row(&c->a, c->width)};
    section run[IM2COL_PIXELS];
    int runs = runs_of_rows(c, b, image, first, run);
    tn_im2col_rows(&c->w, s, image, top, (first + b->columns - 1) / row - top + 1);
    for (int64_t k0 = 0; k0 < c->w.depth; k0 += CHUNK) {
        int64_t channel = k0 / c->w.taps;
        t.k = tn_min64(CHUNK, c->w.depth - k0);
        t.add = k0 > 0;
        tn_fill_input_tile(&c->w, s, b->group, channel, (k0 + t.k - 1) / c->w.taps + 1);
        t.b = s->input_tile + first % row - channel * c->w.channel;
        t.tap = c->w.tap + k0;
        if (k0 + t.k < c->w.depth)
            multiply_out_channels(c, b, k0, t);
        else
            multiply_last(c, b, k0, t, run, runs);
    }
}

/* Rows of a part: whole tiles. */
static int64_t part_begin(const conv *c, int64_t part) {
    const int64_t height = c->w.with->tiles->rows;
    int64_t before = tn_ceil_div(c->a.out_channels, height) * part / c->row_parts, row = 0;
    for (; before > 0; before--)
        row += tile_height(c->a.out_channels - row, height);
    return row;
}

/* A thread's memory, begun. */
static block open_block(const conv *c, char *memory, im2col_run **s, fused_call *epilogue) {
    *s = (im2col_run *)(void *)memory;
    memory += IM2COL_BYTES;
    (*s)->input_tile = (float *)(void *)memory;
    block b = {.panels = (float *)(void *)(memory + c->input_tile_bytes),
               .sums = (float *)(void *)(memory + c->input_tile_bytes + c->panel_bytes),
               .epilogue = epilogue};
    fused_call_open(epilogue, &c->a.epilogue, (char *)b.sums + c->sums_bytes);
    return b;
}

static void compute_blocks(void *ctx, int64_t begin, int64_t end, int worker) {
    const conv *c = ctx;
    im2col_run *s;
    fused_call epilogue;
    block b = open_block(c, c->parts + (size_t)worker * c->part_bytes, &s, &epilogue);
    for (int64_t n = begin; n < end; n++) {
        int64_t at = n % c->blocks, line = n / c->blocks % c->lines, part = n / c->blocks / c->lines % c->row_parts;
        b.group = n / c->blocks / c->lines / c->row_parts;
        b.first = part_begin(c, part);
        b.rows = part_begin(c, part + 1) - b.first;
        b.columns = tn_min64(c->width, c->line - at * c->width);
        if (c->whole) {
            compute_whole_rows(c, &b, s, line, at * c->width);
            continue;
        }
        tn_im2col_pixels(&c->w, s, line, at * c->width, b.columns, panel_of(c->w.with));
        compute_block(c, &b, s);
    }
}

/* Filters are packed before, or now, at the begin of the workspace, which moves on. */
static const void *packed_out_channels(const tn_conv_args *a, char **memory) {
    const void *packed = a->packed;
    if (packed) return packed;
    packed = *memory;
    tn_conv_pack(a, *memory);
    *memory += tn_conv_packed_bytes(a);
    return packed;
}

static void run_otherwise(const tn_conv_args *args) {
    tn_conv_args a = *args;
    char *memory = a.workspace;
    a.packed = packed_out_channels(args, &memory);
    if (a.winograd)
        tn_conv_winograd(&a, memory);
    else if (tn_conv_batch_rows_fits(&a))
        tn_conv_batch_rows(&a, memory);
    else
        tn_conv_nhwc(&a, NULL, memory);
}

/* ---- some rows of it --------------------------------------------------------------------------------------------- */

/* Of output pixels that a block has room for. */
static int64_t rows_at_once(const conv *c) {
    if (c->closed) return closed_rows(c);
    return (c->columns - c->a.out_size[1]) / c->w.row + 1;
}

bool tn_conv_producer_fits(const tn_conv_args *args) {
    enum { FEW_STEPS = 64 }; /* of k: more take longer than a result's way to memory and back */
    conv c;
    if (!is_joined(args) || args->pool[0] > 0 || args->nhwc || args->winograd || args->groups > 1) return false;
    plan_conv(&c, args);
    return c.whole && c.w.depth <= FEW_STEPS && c.row_parts == 1;
}

static size_t plan_bytes(void) { return (sizeof(conv) + 63) / 64 * 64; }

size_t tn_conv_producer_bytes(const tn_conv_args *args) {
    conv c;
    plan_conv(&c, args);
    return plan_bytes() + c.tap_bytes + (args->packed ? 0 : tn_conv_packed_bytes(args));
}

size_t tn_conv_producer_thread_bytes(const tn_conv_args *args) {
    conv c;
    plan_conv(&c, args);
    return c.part_bytes;
}

void tn_conv_producer_open(const tn_conv_args *args, void *memory) {
    conv *c = memory;
    char *next = (char *)memory + plan_bytes();
    plan_conv(c, args);
    tn_im2col_find_taps(&c->w, (int64_t *)(void *)next);
    next += c->tap_bytes;
    c->packed = packed_out_channels(args, &next);
}

void tn_conv_producer_run(const void *plan, int64_t image, int64_t first, int64_t count, float *to, void *memory) {
    const conv *c = plan;
    const int64_t row = c->closed ? c->a.out_size[1] : c->w.row, most = rows_at_once(c);
    im2col_run *s;
    fused_call epilogue;
    block b = open_block(c, memory, &s, &epilogue);
    b.rows = c->a.out_channels;
    epilogue.buffers[c->a.border.buffer] = (void *)((uintptr_t)to - (uintptr_t)(first * c->a.border.row) * sizeof *to);
    s->sections = 0;
    for (int64_t end = first + count, rows; first < end; first += rows) {
        rows = tn_min64(most, end - first);
        b.columns = (rows - 1) * row + c->a.out_size[1];
        compute_whole_rows(c, &b, s, image, first * row);
    }
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

static size_t nhwc_workspace(const tn_conv_args *a, int threads) {
    if (tn_conv_batch_rows_fits(a)) return tn_conv_batch_rows_workspace(a, threads);
    return tn_conv_nhwc_workspace(a, NULL, threads);
}

size_t tn_conv_workspace(const tn_conv_args *args, int threads) {
    conv c;
    if (args->nhwc) return tn_conv_packed_bytes(args) + nhwc_workspace(args, threads);
    if (args->winograd) return tn_conv_packed_bytes(args) + tn_conv_winograd_workspace(args, threads);
    plan_conv(&c, args);
    return c.tap_bytes + tn_conv_packed_bytes(args) + (size_t)(threads > 1 ? threads : 1) * c.part_bytes;
}

/* `out` has what args->out says, or where results go that do not follow each other; these go no other way. */
static void run_to(const tn_conv_args *args, const target *out) {
    if (args->nhwc || args->winograd) {
        run_otherwise(args);
        return;
    }
    conv c;
    plan_conv(&c, args);
    c.out = *out;
    int threads = tn_conv_threads(args);
    char *memory = args->workspace;
    tn_im2col_find_taps(&c.w, (int64_t *)(void *)memory);
    memory += c.tap_bytes;
    c.packed = packed_out_channels(args, &memory);
    c.parts = memory;
    choose_blocks(&c, threads);
    im2col_open(c.parts, c.part_bytes, threads);
    int64_t tasks = c.a.groups * c.row_parts * c.lines * c.blocks;
    im2col_parallel(tasks, threads, compute_blocks, &c);
}

bool tn_conv_prefers_nhwc(const tn_conv_args *args) {
    return tn_conv_fits(args) && (tn_conv_nhwc_fits(args) || tn_conv_batch_rows_fits(args));
}

bool tn_conv_tap_prefers_nhwc(const tn_conv_args *args) {
    enum { TURNING = 20 }; /* turning the results takes as long as a twentieth of a panel: measured */
    const int64_t lanes = tn_conv_vec()->tiles->lanes, pixels = args->out_size[1], filters = args->out_channels;
    const int64_t columns = round_up(pixels, lanes), panels = round_up(filters, 2 * lanes);
    return TURNING * columns * filters > (TURNING + 1) * panels * pixels && tn_conv_prefers_nhwc(args);
}

bool tn_conv_pools(const tn_conv_args *args) {
    tn_conv_args plain = *args;
    conv c;
    plain.pool[0] = plain.pool[1] = 0;
    if (!pooled_fits(args) || !tn_conv_fits(args)) return false;
    if (tn_conv_prefers_nhwc(&plain)) return tn_conv_prefers_nhwc(args);
    plan_conv(&c, args);
    return c.closed;
}

/* An epilogue gets rows one by one then: of more than a vector, and the last one nearly full. */
static bool joins_rows(const tn_conv_args *a) {
    const int64_t across = a->out_size[1];
    const bool full = 8 * round_up(across, tn_conv_vec()->tiles->lanes) <= 9 * across;
    return !is_joined(a) || a->pool[0] > 0 || (full && across > MOST_LANES);
}

bool tn_conv_fuses_producer(const tn_conv_args *args, const tn_conv_args *producer, tn_conv_border *edge) {
    const bool turned = args->nhwc && !tn_conv_batch_rows_fits(args);
    return turned && joins_rows(producer) && tn_conv_producer_fits(producer) &&
           tn_conv_nhwc_fuses_producer(args, producer, edge);
}

bool tn_conv_wants_border(const tn_conv_args *args, tn_conv_border *edge) {
    return args->nhwc && !tn_conv_batch_rows_fits(args) && tn_conv_nhwc_wants_border(args, edge);
}

/* Tiles that write results themselves leave nothing around them. */
bool tn_conv_writes_border(const tn_conv_args *args) {
    conv c;
    if (!joins_rows(args)) return false;
    if (args->nhwc) return !tn_conv_batch_rows_fits(args);
    if (args->winograd) return false;
    plan_conv(&c, args);
    return c.closed || (c.whole && is_joined(args));
}

int64_t tn_conv_padded_elements(const tn_conv_border *edge, int64_t planes, int64_t *first) {
    *first = round_up((edge->above + 1) * edge->row, MOST_LANES);
    return *first + planes * edge->plane;
}

void tn_conv(const tn_conv_args *args) {
    float *to = args->pool[0] > 0 ? NULL : args->out;
    target out = {.data = to, .channel = result_plane(args), .row = result_row(args), .place = 1};
    run_to(args, &out);
}

/* ---- the way back ------------------------------------------------------------------------------------------------ */

enum { MAX_PHASES = 8 }; /* along an axis */

static int64_t phases(const tn_conv_args *a) { return a->stride[0] * a->stride[1]; }

/* Phase k as a convolution of y, and where its pixels go. false: it has none, or nothing reaches them. */
static bool phase_args(const tn_conv_args *a, int64_t k, tn_conv_args *p, target *out) {
    int64_t number[2] = {k / a->stride[1], k % a->stride[1]};
    *p = (tn_conv_args){
        .batch = a->batch, .groups = a->groups, .channels = a->out_channels, .out_channels = a->channels};
    memcpy(p->x_stride, a->y_stride, sizeof p->x_stride);
    p->x = a->y;
    p->workspace = a->workspace;
    p->weight = a->weight;
    p->weight_group = a->weight_group;
    p->weight_stride[0] = a->weight_stride[1];
    p->weight_stride[1] = a->weight_stride[0];
    for (int d = 0; d < 2; d++) {
        int64_t stride = a->stride[d], at = number[d] + a->pad_before[d], first = at % stride;
        p->kernel[d] = first < a->kernel[d] ? tn_ceil_div(a->kernel[d] - first, stride) : 0;
        p->dilation[d] = stride == 1 ? a->dilation[d] : 1;
        p->stride[d] = 1;
        p->size[d] = a->out_size[d];
        p->pad_before[d] = (p->kernel[d] - 1) * p->dilation[d] - at / stride;
        p->out_size[d] = number[d] < a->size[d] ? tn_ceil_div(a->size[d] - number[d], stride) : 0;
        p->weight_stride[2 + d] = -stride * a->weight_stride[2 + d];
        if (a->weight) p->weight += (first + stride * (p->kernel[d] - 1)) * a->weight_stride[2 + d];
    }
    *out = (target){.channel = a->size[0] * a->size[1], .row = a->size[1] * a->stride[0], .place = a->stride[1]};
    if (a->out) out->data = a->out + number[0] * a->size[1] + number[1];
    p->out = out->data;
    p->winograd = a->winograd;
    p->nhwc = !p->winograd && phases(a) == 1 && tn_conv_prefers_nhwc(p);
    return p->kernel[0] * p->kernel[1] > 0 && p->out_size[0] * p->out_size[1] > 0;
}

/* All phases as parts of one convolution of y, of windows that hold theirs. false: pixels are no whole number of
 * phases, some have no taps, or filters are better no columns. */
static bool phases_meet(const tn_conv_args *a, tn_conv_args *all, nhwc_phases *parts) {
    target out;
    if (phases(a) == 1 || phases(a) > NHWC_PHASES) return false;
    int64_t reach[2] = {0};
    for (int64_t k = 0; k < phases(a); k++) {
        tn_conv_args *p = &parts->of[k];
        if (!phase_args(a, k, p, &out)) return false;
        if (k == 0) *all = *p;
        for (int d = 0; d < 2; d++) {
            all->pad_before[d] = tn_max64(all->pad_before[d], p->pad_before[d]);
            reach[d] = tn_max64(reach[d], p->kernel[d] - p->pad_before[d]);
        }
    }
    for (int d = 0; d < 2; d++) {
        parts->split[d] = a->stride[d];
        all->kernel[d] = reach[d] + all->pad_before[d];
        if (a->size[d] % a->stride[d] != 0) return false;
    }
    return tn_conv_fits(all) && tn_conv_nhwc_fits(all);
}

static size_t met_workspace(const tn_conv_args *all, const nhwc_phases *parts, int threads) {
    size_t bytes = tn_conv_nhwc_workspace(all, parts, threads);
    for (int64_t k = 0; k < parts->split[0] * parts->split[1]; k++)
        bytes += tn_conv_nhwc_packed_bytes(&parts->of[k]);
    return bytes;
}

static void run_met(tn_conv_args *all, nhwc_phases *parts, const tn_conv_args *a) {
    char *memory = a->workspace;
    for (int64_t k = 0; k < parts->split[0] * parts->split[1]; k++) {
        tn_conv_args *p = &parts->of[k];
        tn_conv_nhwc_pack(p, memory);
        p->packed = memory;
        memory += tn_conv_nhwc_packed_bytes(p);
    }
    all->out = a->out;
    tn_conv_nhwc(all, parts, memory);
}

bool tn_conv_dgrad_fits(const tn_conv_args *a) {
    tn_conv_args p;
    target out;
    for (int d = 0; d < 2; d++) {
        if (a->stride[d] < 1 || a->stride[d] > MAX_PHASES || (a->stride[d] > 1 && a->dilation[d] > 1)) return false;
        if (a->pad_before[d] < 0 || a->size[d] < 1) return false;
    }
    for (int64_t k = 0; k < phases(a); k++)
        if (phase_args(a, k, &p, &out) && !tn_conv_fits(&p)) return false;
    return true;
}

bool tn_conv_dgrad_winograd_pays(const tn_conv_args *a) {
    tn_conv_args p;
    target out;
    return phases(a) == 1 && phase_args(a, 0, &p, &out) && tn_conv_winograd_pays(&p, false);
}

size_t tn_conv_dgrad_workspace(const tn_conv_args *a, int threads) {
    tn_conv_args p;
    target out;
    nhwc_phases parts;
    if (phases_meet(a, &p, &parts)) return met_workspace(&p, &parts, threads);
    size_t most = 64;
    for (int64_t k = 0; k < phases(a); k++) {
        size_t bytes = phase_args(a, k, &p, &out) ? tn_conv_workspace(&p, threads) : 0;
        if (bytes > most) most = bytes;
    }
    return most;
}

void tn_conv_dgrad(const tn_conv_args *a) {
    tn_conv_args p;
    target out;
    nhwc_phases parts;
    if (phases_meet(a, &p, &parts)) {
        run_met(&p, &parts, a);
        return;
    }
    int64_t plane = a->size[0] * a->size[1], reached = 0;
    for (int64_t k = 0; k < phases(a); k++)
        reached += phase_args(a, k, &p, &out) ? p.out_size[0] * p.out_size[1] : 0;
    if (reached < plane) memset(a->out, 0, (size_t)(a->batch * a->groups * a->channels * plane) * sizeof(float));
    for (int64_t k = 0; k < phases(a); k++)
        if (phase_args(a, k, &p, &out)) run_to(&p, &out);
}

/* ==== input windows =============================================================================================== */

int tn_conv_threads(const tn_conv_args *a) {
    double out_pixels = (double)(a->batch * a->out_size[0] * a->out_size[1]);
    double parts =
        (double)(a->groups * a->out_channels * a->channels * a->kernel[0] * a->kernel[1]) * 2 * out_pixels / PART_FLOPS;
    if (parts < 2) return 1;
    int most = tn_threads();
    return parts < most ? (int)parts : most;
}

bool tn_im2col_is_small(const tn_conv_args *a) {
    bool some = a->batch > 0 && a->groups > 0 && a->channels > 0 && a->out_channels > 0;
    for (int axis = 0; axis < 2; axis++) {
        some = some && a->size[axis] > 0 && a->kernel[axis] > 0 && a->out_size[axis] > 0;
        if (!some || (double)a->dilation[axis] * (double)a->kernel[axis] > INPUT_TILE_ELEMENTS) return false;
        if ((double)a->out_size[axis] * (double)a->stride[axis] > INPUT_TILE_ELEMENTS) return false;
    }
    return true;
}

void tn_im2col_plan(im2col_plan *w, const conv_vec *with, const tn_conv_args *a, int64_t width, int64_t channels,
                    bool lines) {
    int64_t across = a->out_size[1], down = a->out_size[0];
    *w = (im2col_plan){.a = a, .with = with, .plane = across * down, .channels = channels};
    w->taps = a->kernel[0] * a->kernel[1];
    w->depth = a->channels * w->taps;
    bool apart = w->apart = lines && across > WIDE_ROW;
    w->line = apart ? across : a->batch * w->plane;
    width = tn_min64(width, w->line);
    int64_t pixel_rows = apart ? 1 : tn_min64(down, tn_ceil_div(width - 1, across) + 1);
    int64_t sections = apart ? 1 : tn_min64(a->batch, tn_ceil_div(width - 1, w->plane) + 1);
    int64_t columns = ((apart ? width : across) - 1) * a->stride[1] + window_reach(a, 1);
    w->phase = tn_ceil_div(columns, a->stride[1]);
    w->row = w->phase * a->stride[1];
    w->rows = (pixel_rows - 1) * a->stride[0] + window_reach(a, 0);
    w->section = w->rows * w->row;
    w->channel = w->section * sections;
}

void tn_im2col_find_taps(im2col_plan *w, int64_t *tap) {
    const tn_conv_args *a = w->a;
    w->tap = tap;
    for (int64_t k = 0; k < w->taps; k++) {
        int64_t i = k / a->kernel[1] * a->dilation[0], j = k % a->kernel[1] * a->dilation[1];
        tap[k] = i * w->row + j % a->stride[1] * w->phase + j / a->stride[1];
    }
    for (int64_t k = w->taps; k < w->depth; k++)
        tap[k] = tap[k - w->taps] + w->channel;
}

/* ---- a run of output pixels -------------------------------------------------------------------------------------- */

static void see_pieces(im2col_run *s, int64_t lanes, int64_t to, int64_t count, int64_t from, int64_t panel) {
    for (int64_t i = 0, n = 0; i < count; i += n) {
        n = tn_min64(tn_min64(lanes, count - i), panel - (to + i) % panel);
        s->piece[s->pieces++] = (piece){(int32_t)(from + i), (int32_t)(to + i), (int32_t)n};
    }
}

void tn_im2col_section(const tn_conv_args *a, section *s) {
    int64_t top = s->at / a->out_size[1], down = (s->at + s->count - 1) / a->out_size[1] - top;
    s->first = top * a->stride[0] - a->pad_before[0];
    s->low = s->first < 0 ? -s->first : 0;
    s->high = tn_min64(down * a->stride[0] + window_reach(a, 0), a->size[0] - s->first);
}

void tn_im2col_pixels(const im2col_plan *w, im2col_run *s, int64_t line, int64_t first, int64_t count, int64_t panel) {
    int64_t across = w->a->out_size[1], left = w->apart ? first : 0;
    int k = 0, before = s->sections;
    bool alike = before > 0 && left == s->left;
    s->left = left;
    s->pieces = 0;
    for (int64_t q = 0; q < count; k++) {
        int64_t flat = line * w->line + first + q;
        section now = {.image = flat / w->plane, .at = flat % w->plane, .to = q};
        now.count = tn_min64(w->plane - now.at, count - q);
        alike = alike && k < before && s->section[k].at == now.at && s->section[k].count == now.count;
        tn_im2col_section(w->a, &now);
        s->section[k] = now;
        int64_t column = now.at % across, from = k * w->section + column - left, end = q + now.count;
        for (int64_t run = 0; q < end; q += run) {
            run = tn_min64(across - column, end - q);
            see_pieces(s, w->with->tiles->lanes, q, run, from, panel);
            from += w->a->stride[0] * w->row - column;
            column = 0;
        }
    }
    s->sections = k;
    s->clean = alike && k == before;
}

void tn_im2col_rows(const im2col_plan *w, im2col_run *s, int64_t image, int64_t top, int64_t count) {
    section now = {.image = image, .at = top * w->a->out_size[1], .count = count * w->a->out_size[1]};
    tn_im2col_section(w->a, &now);
    bool whole = now.low == 0 && now.high == (count - 1) * w->a->stride[0] + window_reach(w->a, 0);
    s->clean = s->sections == 1 && whole; /* left and right of its rows are the zeros that always were there */
    s->left = 0;
    s->pieces = 0;
    s->sections = 1;
    s->section[0] = now;
}

/* ---- the input tile ---------------------------------------------------------------------------------------------- */

inside tn_inside_phase(const im2col_plan *w, int64_t phase, int64_t left) {
    int64_t stride = w->a->stride[1], size = w->a->size[1], begin = left + phase;
    inside in = {.phase = phase};
    in.low = begin < 0 ? tn_ceil_div(-begin, stride) : 0;
    in.high = size > begin ? tn_min64(tn_ceil_div(size - begin, stride), w->phase) : 0;
    in.first = begin + in.low * stride;
    return in;
}

/* What one channel shows of one section. */
static void fill_section(const im2col_plan *w, const section *part, const float *x, const inside *in, float *to) {
    const tn_conv_args *a = w->a;
    to += in->phase * w->phase + in->low;
    int64_t first = part->first * a->x_stride[2] + in->first * a->x_stride[3];
    w->with->copy_rows(to + part->low * w->row, w->row, x + first + part->low * a->x_stride[2], a->x_stride[2],
                       part->high - part->low, a->stride[1] * a->x_stride[3], in->high - in->low);
}

void tn_clear_input_tile(const im2col_plan *w, im2col_run *s) {
    if (!s->clean) memset(s->input_tile, 0, (size_t)im2col_elements(w) * sizeof *s->input_tile);
    s->clean = true;
}

/* Some phases of channels [begin, end): one channel after the other, while it is in the first cache. */
static void fill_phases(const im2col_plan *w, const im2col_run *s, int64_t group, int64_t begin, int64_t end,
                        const inside *in, int count) {
    const tn_conv_args *a = w->a;
    for (int64_t c = begin; c < end; c++) {
        const float *x = a->x + (group * a->channels + c) * a->x_stride[1];
        float *to = s->input_tile + (c - begin) * w->channel;
        for (int k = 0; k < s->sections; k++)
            for (int p = 0; p < count; p++)
                fill_section(w, &s->section[k], x + s->section[k].image * a->x_stride[0], &in[p], to + k * w->section);
    }
}

void tn_fill_input_tile(const im2col_plan *w, im2col_run *s, int64_t group, int64_t begin, int64_t end) {
    enum { MOST = 4 };
    const tn_conv_args *a = w->a;
    inside in[MOST];
    int count = 0;
    tn_clear_input_tile(w, s);
    for (int64_t phase = 0; phase < a->stride[1]; phase++) {
        in[count] = tn_inside_phase(w, phase, s->left * a->stride[1] - a->pad_before[1]);
        count += in[count].low < in[count].high;
        if (count < MOST && phase < a->stride[1] - 1) continue;
        fill_phases(w, s, group, begin, end, in, count);
        count = 0;
    }
}
