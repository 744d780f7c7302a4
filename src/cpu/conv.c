/* conv.c — convolutions on the CPU: choice of the path, windows, and input tiles of the other paths.
 *
 * A convolution: for each group out[out_channels, output pixels] = weight[out_channels, taps] · im2col[taps, output
 * pixels]. A block is some rows of an image's output pixels. What they see is copied to an input tile in the cache: of
 * each channel rows with zeros around them, and with a stride rows and columns that taps meet together side by side (a
 * phase). There each tap is a fixed distance away whatever the kernel, stride, dilation and padding, and vectors of
 * output pixels are read as they lie, for 256 steps of k at a time; if that takes fewer vectors, they go through the
 * ends of rows. Tiles of filters and vectors (conv_vec.c) leave results where they go, with a bias, max(…, 0) and
 * clipping done to them; other epilogues get blocks. A group is a range of channels. Filters are packed as tiles, once
 * if they stay as they are.
 *
 * Other paths: NHWC (filters as columns of the product, for many filters) and batch as rows (for many images with few
 * output pixels) in conv_nhwc.c; depthwise in conv_depthwise.c; Winograd (fewer multiplications, different rounding) in
 * conv_winograd.c; wgrad in conv_wgrad.c. All have the same chains: any cut gives the same bits. */
#include <string.h>

#include "cpu/conv.h"
#include "cpu/conv_paths.h"
#include "cpu/isa.h"

enum {
    CHUNK = KIR_KSUM,
    BLOCK_PIXELS = TN_GEMM_BLOCK_LD, /* of a block, at most, including padding between rows */
    INPUT_TILE = 1 << 15,            /* elements of a block's input tile, unless one row of output pixels sees more */
    PART_ROWS = 512,                 /* filters that pass over a block, at most */
    LEAST_LANES = 4,                 /* of a vector of any instruction set */
    MOST_VECTORS = BLOCK_PIXELS / LEAST_LANES,
    MOST_RUNS = MOST_VECTORS + BLOCK_PIXELS,
    BLOCK_FILTERS = 64 /* that are handed over at once */
};

/* Channels that a chunk of k can have to do with. */
static int64_t chunk_channels(const tn_conv_args *a) {
    return tn_min64(a->channels, (CHUNK - 2) / (a->kernel[0] * a->kernel[1]) + 2);
}

bool tn_conv_fits(const tn_conv_args *a) {
    im2col_plan w;
    if (!tn_im2col_is_small(a)) return false;
    tn_im2col_plan(&w, NULL, a, IM2COL_PIXELS, tn_max64(chunk_channels(a), tn_conv_weight_channels(a)));
    return (double)w.channel * (double)w.channels <= INPUT_TILE_ELEMENTS;
}

/* ---- filters, packed --------------------------------------------------------------------------------------------- */

/* Tiles of a group's filters are nearly alike. */
static int64_t tiles_of(const tn_conv_args *a) { return tn_ceil_div(a->out_channels, tn_conv_vec()->window_rows); }

/* Chunk k0 of a group lies at k0 · filters, the tile of filter i in it at i · steps, its filters side by side. */
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

static void pack_tile(const tn_conv_args *a, const float *from, int64_t rows, int64_t k0, int64_t steps, float *to) {
    const int64_t *s = a->weight_stride;
    int64_t taps = a->kernel[0] * a->kernel[1];
    if (taps_follow(a)) {
        tn_conv_vec()->tiles->pack(&(pack){.to = to,
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
    const tn_conv_args *a;
    float *to;
} packing;

static void pack_chunks(void *ctx, int64_t begin, int64_t end, TN_UNUSED int worker) {
    const packing *p = ctx;
    const tn_conv_args *a = p->a;
    int64_t depth = a->channels * a->kernel[0] * a->kernel[1], chunks = tn_ceil_div(depth, CHUNK);
    for (int64_t n = begin; n < end; n++) {
        int64_t group = n / chunks, k0 = n % chunks * CHUNK, steps = tn_min64(CHUNK, depth - k0);
        float *to = p->to + (group * depth + k0) * a->out_channels;
        for (int64_t i = 0; i < tiles_of(a); i++) {
            const range filters = split_range(a->out_channels, tiles_of(a), i);
            const float *from = a->weight + group * a->weight_group + filters.first * a->weight_stride[0];
            pack_tile(a, from, filters.count, k0, steps, to + filters.first * steps);
        }
    }
}

void tn_conv_pack(const tn_conv_args *a, void *to) {
    enum { PART_ELEMENTS = 1 << 14 };
    if (a->nhwc || a->winograd) {
        (a->nhwc ? tn_conv_nhwc_pack : tn_conv_winograd_pack)(a, to);
        return;
    }
    packing p = {a, to};
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
    const conv_vec *with;
    target out;
    int64_t taps, depth, channels;  /* a channel's, all; channels that the input tile has */
    int64_t rows, columns;          /* of output pixels: of a block, at most */
    int64_t row_blocks, row_pieces; /* blocks of rows, pieces of a row: of an image */
    int64_t parts, tiles;           /* parts and tiles of a group's filters */
    int64_t phases[2];              /* of the input tile */
    int64_t pitch, input_rows, plane,
        channel; /* of the input tile: elements of a row; rows; elements of a phase, a channel */
    bool flat;   /* vectors go through rows */
    bool ends;   /* all that the epilogue does is … */
    epilogue_ops epilogue_ops;
    const int64_t *tap; /* [depth] in the input tile, counted from the first channel */
    const float *packed;
    size_t input_tile_bytes, sums_bytes, block_bytes, part_bytes, tap_bytes;
    char *memory; /* of each thread */
} conv;

static int64_t vectors_of(int64_t pixels) { return tn_ceil_div(pixels, tn_conv_vec()->tiles->lanes); }

/* Elements of a row of the input tile: the zeros to the right of a row are those to the left of the next one, as far as
 * there are. Rows that are cut have their own. */
static int64_t pitch_of(const conv *c) {
    const tn_conv_args *a = &c->a;
    const int64_t stride = a->stride[1], seen = c->columns + (window_reach(a, 1) - 1) / stride;
    int64_t pitch = c->columns;
    if (c->row_pieces > 1) return seen;
    for (int64_t p = 0; p < c->phases[1]; p++) {
        const range in = look_at(p - a->pad_before[1], stride, seen, a->size[1]);
        pitch = tn_max64(pitch, tn_max64(in.first + in.count, seen - in.first));
    }
    return pitch;
}

static int64_t flat_vectors(const conv *c, int64_t rows) { return vectors_of((rows - 1) * c->pitch + c->columns); }
static int64_t row_vectors(const conv *c, int64_t rows) { return rows * vectors_of(c->columns); }

/* Rows of output pixels whose vectors a block has room for. */
static int64_t most_rows(const conv *c) {
    const int64_t width = c->flat ? c->pitch : round_up(c->columns, c->with->tiles->lanes);
    return c->row_pieces > 1 ? 1 : (BLOCK_PIXELS - c->columns) / width + 1;
}

/* Rows of a block: whole rows of windows that are pooled. */
static int64_t rows_of_block(const conv *c) {
    const tn_conv_args *a = &c->a;
    const int64_t row = c->pitch * c->phases[0] * c->phases[1] * c->channels, unit = pooled_rows(a);
    const int64_t seen = INPUT_TILE / row - (window_reach(a, 0) - 1) / a->stride[0];
    return tn_min64(tn_max64(tn_min64(most_rows(c), seen) / unit, 1) * unit, a->out_size[0]);
}

static void plan_conv(conv *c, const tn_conv_args *args) {
    const conv_vec *with = tn_conv_vec();
    *c = (conv){.a = *args, .with = with, .taps = args->kernel[0] * args->kernel[1]};
    const tn_conv_args *a = &c->a;
    c->depth = a->channels * c->taps;
    c->channels = chunk_channels(a);
    c->row_pieces = tn_ceil_div(a->out_size[1], BLOCK_PIXELS);
    c->columns = tn_ceil_div(a->out_size[1], c->row_pieces);
    c->row_pieces = tn_ceil_div(a->out_size[1], c->columns);
    for (int d = 0; d < 2; d++)
        c->phases[d] = tn_min64(a->stride[d], window_reach(a, d));
    c->pitch = pitch_of(c);
    c->flat = c->row_pieces == 1 && 16 * flat_vectors(c, a->out_size[0]) < 15 * row_vectors(c, a->out_size[0]);
    c->rows = rows_of_block(c);
    c->row_blocks = tn_ceil_div(a->out_size[0], c->rows);
    c->input_rows = c->rows + (window_reach(a, 0) - 1) / a->stride[0];
    c->plane = c->input_rows * c->pitch + (window_reach(a, 1) - 1) / a->stride[1]; /* zeros behind the last row */
    c->channel = odd_lines(c->phases[0] * c->phases[1] * c->plane);
    c->tiles = tiles_of(a);
    c->parts = tn_ceil_div(a->out_channels, PART_ROWS);
    const int64_t vectors = c->flat ? flat_vectors(c, c->rows) : row_vectors(c, c->rows);
    const int64_t filters = tn_min64(a->out_channels, tn_ceil_div(c->tiles, c->parts) * with->window_rows);
    c->input_tile_bytes = im2col_bytes(c->channels * c->channel + (WINDOW_VECTORS + 1) * MOST_LANES);
    c->sums_bytes = c->depth > CHUNK ? im2col_bytes(filters * vectors * with->tiles->lanes) : 0;
    c->block_bytes = im2col_bytes(tn_min64(filters, BLOCK_FILTERS + WINDOW_ROWS) * TN_GEMM_BLOCK_LD);
    c->tap_bytes = im2col_bytes(2 * c->depth);
}

/* ---- a block ----------------------------------------------------------------------------------------------------- */

/* Memory of a thread, and what it holds from block to block. */
typedef struct conv_part {
    bool filled;                /* the input tile has zeros where rows have */
    int64_t rows, columns, row; /* of the vectors; distance of rows of what they are stored to */
    int64_t vectors;
    window_vector vector[MOST_VECTORS + 1];
    window_run run[MOST_RUNS];
} conv_part;

/* Rows [row, row + rows), columns [column, column + columns) of an image's output pixels. */
typedef struct block {
    conv_part *s;
    float *input_tile, *sums, *block;
    fused_call epilogue;
    int64_t image, group, row, rows, column, columns;
    range tiles;
    target out;
} block;

static void add_vector(const conv *c, conv_part *s, int64_t from, int64_t row, int64_t *run) {
    const int64_t lanes = c->with->tiles->lanes, pitch = c->flat ? c->pitch : round_up(s->columns, lanes),
                  end = from + lanes;
    s->vector[s->vectors] = (window_vector){from / pitch * c->pitch + from % pitch, *run};
    for (int64_t u = from / pitch; u < s->rows && u * pitch < end; u++) {
        const int64_t low = tn_max64(u * pitch - from, 0), high = tn_min64(u * pitch + s->columns - from, lanes);
        if (low < high) s->run[(*run)++] = (window_run){from + u * (row - pitch), (int32_t)low, (int32_t)high};
    }
    s->vectors += *run > s->vector[s->vectors].run;
}

/* Vectors of a block's output pixels, whose results are stored to rows `row` apart. */
static void list_vectors(const conv *c, conv_part *s, int64_t rows, int64_t columns, int64_t row) {
    const int64_t lanes = c->with->tiles->lanes;
    int64_t run = 0;
    if (s->vectors > 0 && s->rows == rows && s->columns == columns && s->row == row) return;
    s->rows = rows;
    s->columns = columns;
    s->row = row;
    s->vectors = 0;
    const int64_t end = c->flat ? (rows - 1) * c->pitch + columns : rows * round_up(columns, lanes);
    for (int64_t from = 0; from < end; from += lanes)
        add_vector(c, s, from, row, &run);
    s->vector[s->vectors].run = run;
}

/* What `channels` channels show of one phase: rows that lie in the image, and zeros. */
static void fill_phase(const conv *c, const block *b, const float *x, int64_t channels, const int64_t *phase,
                       float *to) {
    const tn_conv_args *a = &c->a;
    const int64_t rows = b->rows + (window_reach(a, 0) - 1) / a->stride[0], pitch = c->pitch;
    const int64_t top = b->row * a->stride[0] + phase[0] - a->pad_before[0];
    const int64_t left = b->column * a->stride[1] + phase[1] - a->pad_before[1];
    range down = look_at(top, a->stride[0], rows, a->size[0]);
    const range across = look_at(left, a->stride[1], pitch, a->size[1]);
    if (across.count == 0) down = (range){rows, 0};
    const int64_t end = down.first + down.count, right = across.first + across.count,
                  row = a->stride[0] * a->x_stride[2];
    const float *from =
        x + (top + down.first * a->stride[0]) * a->x_stride[2] + (left + across.first * a->stride[1]) * a->x_stride[3];
    for (int64_t channel = 0; channel < channels; channel++, to += c->channel, from += a->x_stride[1]) {
        for (int64_t r = 0; c->row_pieces > 1 && r < rows; r++) {
            memset(to + r * pitch, 0, (size_t)across.first * sizeof *to);
            memset(to + r * pitch + right, 0, (size_t)(pitch - right) * sizeof *to);
        }
        if (down.first > 0) memset(to, 0, (size_t)(down.first * pitch) * sizeof *to);
        if (down.count > 0)
            c->with->copy_rows(to + down.first * pitch + across.first, pitch, from, row, down.count,
                               a->stride[1] * a->x_stride[3], across.count);
        if (end < rows) memset(to + end * pitch, 0, (size_t)((rows - end) * pitch) * sizeof *to);
    }
}

/* Channels [begin, end) of the group. Zeros beside whole rows stay from block to block. */
static void fill_input(const conv *c, const block *b, int64_t begin, int64_t end) {
    const tn_conv_args *a = &c->a;
    const float *x = a->x + b->image * a->x_stride[0] + (b->group * a->channels + begin) * a->x_stride[1];
    float *to = b->input_tile;
    if (!b->s->filled) memset(b->input_tile, 0, c->input_tile_bytes);
    b->s->filled = true;
    for (int64_t p = 0; p < c->phases[0] * c->phases[1]; p++, to += c->plane)
        fill_phase(c, b, x, end - begin, (int64_t[]){p / c->phases[1], p % c->phases[1]}, to);
}

/* A tile of filters over all vectors; `t` has the chunk and where results go. */
static void multiply_tile(const conv *c, const block *b, window_tile t, range filters) {
    const conv_part *s = b->s;
    const int64_t runs = tn_ceil_div(s->vectors, WINDOW_VECTORS), lanes = c->with->tiles->lanes;
    float *sums = t.sums;
    for (int64_t i = 0; i < runs; i++) {
        const range vectors = split_range(s->vectors, runs, i);
        t.vector = s->vector + vectors.first;
        t.sums = sums + vectors.first * lanes;
        c->with->window[filters.count][vectors.count](&t);
    }
}

static range filters_of(const conv *c, int64_t number) { return split_range(c->a.out_channels, c->tiles, number); }

static float *image_out(const conv *c, const block *b, int64_t filter) {
    const int64_t channel = (b->image * c->a.groups + b->group) * c->a.out_channels + filter;
    return b->out.data + channel * b->out.channel + b->row * b->out.row + b->column * b->out.place;
}

/* Do tiles write the results themselves? */
static bool is_direct(const conv *c, const target *out) {
    return c->a.pool[0] == 0 && out->data && out->place == 1 && (c->ends || !c->a.epilogue.vm);
}

/* `count` finished filters from `first` on, in the block: to the epilogue, or to where results go. */
static void finish_filters(const conv *c, block *b, int64_t first, int64_t count) {
    const tn_conv_args *a = &c->a;
    const box at = {b->group * a->out_channels + first, count, b->row * a->out_size[1] + b->column,
                    b->rows * b->columns};
    if (a->epilogue.vm && !c->ends) {
        hand_over_result(&b->epilogue, c->with, a, b->image, at, b->block);
    } else if (a->pool[0] > 0) {
        pool_block(c->with, a, b->image, at, b->block);
    } else {
        for (int64_t i = 0; i < count; i++)
            for (int64_t u = 0; u < b->rows; u++)
                c->with->spread_row(image_out(c, b, first + i) + u * b->out.row,
                                    b->block + i * TN_GEMM_BLOCK_LD + u * b->columns, b->out.place, b->columns);
    }
}

/* A chunk of k. What does not leave registers as a result is handed over while it is in the first cache. */
static void multiply_chunk(const conv *c, block *b, window_tile t, const float *packed, bool direct) {
    enum { IN_CACHE = 6144 }; /* elements: half of that cache */
    const int64_t first = filters_of(c, b->tiles.first).first, last = b->tiles.first + b->tiles.count - 1;
    int64_t begin = first, end = first;
    for (int64_t i = b->tiles.first; i <= last; i++) {
        const range filters = filters_of(c, i);
        t.weight = packed + filters.first * t.k;
        t.sums = b->sums + (filters.first - first) * t.sums_row;
        if (t.last)
            t.to = direct ? image_out(c, b, filters.first) : b->block + (filters.first - begin) * TN_GEMM_BLOCK_LD;
        t.channel = b->group * c->a.out_channels + filters.first;
        multiply_tile(c, b, t, filters);
        end = filters.first + filters.count;
        const int64_t there = end - begin, pixels = b->rows * b->columns;
        const bool full = there * pixels >= IN_CACHE || there >= BLOCK_FILTERS || i == last;
        if (!t.last || direct || !full) continue;
        finish_filters(c, b, begin, there);
        begin = end;
    }
}

static void compute_block(const conv *c, block *b) {
    const bool direct = is_direct(c, &b->out);
    list_vectors(c, b->s, b->rows, b->columns, direct ? b->out.row : b->columns);
    window_tile t = {.run = b->s->run, .sums_row = b->s->vectors * c->with->tiles->lanes};
    t.to_row = direct ? b->out.channel : TN_GEMM_BLOCK_LD;
    t.end = c->ends ? &c->epilogue_ops : NULL;
    for (int64_t k0 = 0; k0 < c->depth; k0 += CHUNK) {
        const int64_t channel = k0 / c->taps;
        t.k = tn_min64(CHUNK, c->depth - k0);
        t.add = k0 > 0;
        t.last = k0 + t.k == c->depth;
        t.tap = c->tap + k0;
        t.input_tile = b->input_tile - channel * c->channel;
        fill_input(c, b, channel, (k0 + t.k - 1) / c->taps + 1);
        multiply_chunk(c, b, t, c->packed + (b->group * c->depth + k0) * c->a.out_channels, direct);
    }
}

static size_t part_bytes(const conv *c) {
    return tn_whole_lines(sizeof(conv_part)) + c->input_tile_bytes + c->sums_bytes + c->block_bytes +
           fused_call_scratch(&c->a.epilogue, 0);
}

static void open_part(char *memory) {
    conv_part *s = (conv_part *)(void *)memory;
    s->filled = false;
    s->vectors = 0;
}

/* A thread's memory. */
static void open_block(const conv *c, char *memory, block *b) {
    *b = (block){.s = (conv_part *)(void *)memory, .out = c->out};
    memory += tn_whole_lines(sizeof(conv_part));
    b->input_tile = (float *)(void *)memory;
    b->sums = (float *)(void *)(memory + c->input_tile_bytes);
    b->block = (float *)(void *)(memory + c->input_tile_bytes + c->sums_bytes);
    fused_call_open(&b->epilogue, &c->a.epilogue, memory + c->input_tile_bytes + c->sums_bytes + c->block_bytes);
}

static void compute_blocks(void *ctx, int64_t begin, int64_t end, int worker) {
    const conv *c = ctx;
    const int64_t down = c->a.out_size[0], across = c->a.out_size[1];
    block b;
    open_block(c, c->memory + (size_t)worker * c->part_bytes, &b);
    for (int64_t n = begin; n < end; n++) {
        const int64_t at = n / c->row_pieces, image = at / c->row_blocks, part = image / c->a.batch;
        b.column = n % c->row_pieces * c->columns;
        b.columns = tn_min64(c->columns, across - b.column);
        b.row = at % c->row_blocks * c->rows;
        b.rows = tn_min64(c->rows, down - b.row);
        b.image = image % c->a.batch;
        b.tiles = split_range(c->tiles, c->parts, part % c->parts);
        b.group = part / c->parts;
        if (b.rows > 0) compute_block(c, &b);
    }
}

/* Blocks of nearly the same number of rows, as many as keep all threads busy; filters are shared where there are not
 * enough. */
static void share_blocks(conv *c, int threads) {
    const int64_t others = c->a.groups * c->parts * c->a.batch * c->row_pieces, unit = pooled_rows(&c->a);
    const int64_t units = tn_ceil_div(c->a.out_size[0], unit), share = others % threads == 0 ? 1 : threads;
    const int64_t blocks = tn_min64(round_up(tn_ceil_div(units, c->rows / unit), share), units);
    c->rows = tn_ceil_div(units, blocks) * unit;
    c->row_blocks = tn_ceil_div(c->a.out_size[0], c->rows);
    const int64_t tasks = others * c->row_blocks;
    if (tasks < threads) c->parts = tn_min64(c->tiles, c->parts * (threads / tasks));
}

static void find_taps(conv *c, int64_t *tap) {
    const tn_conv_args *a = &c->a;
    c->tap = tap;
    for (int64_t k = 0; k < c->taps; k++) {
        const int64_t i = k / a->kernel[1] * a->dilation[0], j = k % a->kernel[1] * a->dilation[1];
        tap[k] = (i % a->stride[0] * c->phases[1] + j % a->stride[1]) * c->plane + i / a->stride[0] * c->pitch +
                 j / a->stride[1];
    }
    for (int64_t k = c->taps; k < c->depth; k++)
        tap[k] = tap[k - c->taps] + c->channel;
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

/* ---- all of it --------------------------------------------------------------------------------------------------- */

static size_t nhwc_workspace(const tn_conv_args *a, int threads) {
    if (tn_conv_batch_rows_fits(a)) return tn_conv_batch_rows_workspace(a, threads);
    return tn_conv_nhwc_workspace(a, NULL, threads);
}

size_t tn_conv_workspace(const tn_conv_args *args, int threads) {
    conv c;
    size_t packed = args->packed || args->keeps_packed ? 0 : tn_conv_packed_bytes(args);
    if (args->nhwc) return packed + nhwc_workspace(args, threads);
    if (args->winograd) return packed + tn_conv_winograd_workspace(args, threads);
    plan_conv(&c, args);
    return c.tap_bytes + packed + (size_t)(threads > 1 ? threads : 1) * part_bytes(&c);
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
    c.ends = epilogue_by_channels(&args->epilogue, &c.epilogue_ops);
    int threads = tn_conv_threads(args);
    char *memory = args->workspace;
    find_taps(&c, (int64_t *)(void *)memory);
    memory += c.tap_bytes;
    c.packed = packed_out_channels(args, &memory);
    c.memory = memory;
    c.part_bytes = part_bytes(&c);
    share_blocks(&c, threads);
    for (int i = 0; i < (threads > 1 ? tn_threads() : 1); i++)
        open_part(c.memory + (size_t)i * c.part_bytes);
    int64_t tasks = c.a.groups * c.parts * c.a.batch * c.row_blocks * c.row_pieces;
    im2col_parallel(tasks, threads, compute_blocks, &c);
}

bool tn_conv_prefers_nhwc(const tn_conv_args *args) {
    return tn_conv_fits(args) && (tn_conv_nhwc_fits(args) || tn_conv_batch_rows_fits(args));
}

bool tn_conv_tap_prefers_nhwc(const tn_conv_args *args) {
    /* Measured: turning a result takes as long as so many steps of k, and where rows of pixels are not whole vectors,
     * the product's loads cross lines, and its steps take a 25th longer. Half a panel of filters takes three quarters
     * of a panel's time. Pixels are read once for each panel. */
    enum { TURNING = 16, NEAR_ELEMENTS = (1 << 20) / sizeof(float) };
    const int64_t lanes = tn_conv_vec()->tiles->lanes, pixels = args->out_size[1], filters = args->out_channels;
    const int64_t columns = round_up(pixels, lanes), depth = args->channels, last = filters % (2 * lanes);
    const int64_t turned = round_up(filters, 2 * lanes) - (last > 0 && last <= lanes ? lanes / 2 : 0);
    const bool near = depth * pixels <= NEAR_ELEMENTS, crossing = pixels % lanes != 0;
    const bool faster = 25 * columns * filters * depth > 24 * turned * pixels * (depth + TURNING);
    return near && crossing && faster && tn_conv_prefers_nhwc(args);
}

bool tn_conv_is_product(const tn_conv_args *args) {
    bool product = args->kernel[0] * args->kernel[1] == 1;
    for (int d = 0; d < 2; d++)
        product = product && args->stride[d] == 1 && args->pad_before[d] == 0 && args->out_size[d] == args->size[d];
    return product;
}

bool tn_conv_takes_blocks(const tn_conv_args *args) {
    if (args->pool[0] > 0 && args->y_blocks) return false;
    const int64_t lanes = tn_conv_vec()->tiles->lanes;
    if (args->max_pool || (args->groups > 1 && args->channels == 1 && args->out_channels == 1)) {
        const int64_t computed = round_up(args->groups, lanes); /* the rest: at most an eighth */
        return 8 * computed <= 9 * args->groups && tn_conv_by_channels_fits(args);
    }
    const bool cuts = (args->x_blocks && args->channels % lanes) || (args->y_blocks && args->out_channels % lanes);
    if (args->groups > 1 && cuts) return false; /* a block of channels has those of one group */
    return tn_conv_fits(args) && tn_conv_nhwc_fits(args) && !tn_conv_batch_rows_fits(args);
}

int64_t tn_conv_block_elements(int64_t batch, int64_t channels, int64_t plane) {
    return batch * round_up(channels, tn_conv_vec()->tiles->lanes) * plane;
}

bool tn_conv_pools(const tn_conv_args *args) {
    tn_conv_args plain = *args;
    conv c;
    plain.pool[0] = plain.pool[1] = 0;
    if (!pooled_fits(args) || !tn_conv_fits(args)) return false;
    if (tn_conv_prefers_nhwc(&plain)) return tn_conv_prefers_nhwc(args);
    plan_conv(&c, args);
    return most_rows(&c) >= pooled_rows(args);
}

void tn_conv(const tn_conv_args *args) {
    float *to = args->pool[0] > 0 ? NULL : args->out;
    target out = {.data = to, .channel = result_plane(args), .row = result_extent(args, 1), .place = 1};
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

void tn_im2col_plan(im2col_plan *w, const conv_vec *with, const tn_conv_args *a, int64_t width, int64_t channels) {
    int64_t across = a->out_size[1], down = a->out_size[0];
    *w = (im2col_plan){.a = a, .with = with, .plane = across * down, .channels = channels};
    w->taps = a->kernel[0] * a->kernel[1];
    w->depth = a->channels * w->taps;
    w->line = a->batch * w->plane;
    width = tn_min64(width, w->line);
    int64_t pixel_rows = tn_min64(down, tn_ceil_div(width - 1, across) + 1);
    int64_t sections = tn_min64(a->batch, tn_ceil_div(width - 1, w->plane) + 1);
    w->phase = tn_ceil_div((across - 1) * a->stride[1] + window_reach(a, 1), a->stride[1]);
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

void tn_im2col_pixels(const im2col_plan *w, im2col_run *s, int64_t first, int64_t count, int64_t panel) {
    int64_t across = w->a->out_size[1];
    int k = 0, before = s->sections;
    bool alike = before > 0;
    s->pieces = 0;
    for (int64_t q = 0; q < count; k++) {
        int64_t flat = first + q;
        section now = {.image = flat / w->plane, .at = flat % w->plane, .to = q};
        now.count = tn_min64(w->plane - now.at, count - q);
        alike = alike && k < before && s->section[k].at == now.at && s->section[k].count == now.count;
        tn_im2col_section(w->a, &now);
        s->section[k] = now;
        int64_t column = now.at % across, from = k * w->section + column, end = q + now.count;
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
    const int64_t phases = tn_min64(a->stride[1], window_reach(a, 1)); /* that taps reach */
    tn_clear_input_tile(w, s);
    for (int64_t phase = 0; phase < phases; phase++) {
        in[count] = tn_inside_phase(w, phase, -a->pad_before[1]);
        count += in[count].low < in[count].high;
        if (count < MOST && phase < phases - 1) continue;
        fill_phases(w, s, group, begin, end, in, count);
        count = 0;
    }
}
