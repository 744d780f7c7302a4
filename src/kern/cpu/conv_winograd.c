/* conv_winograd.c — 3×3 convolutions with a stride of 1 by Winograd's algorithm: a quarter of the multiplications.
 *
 * Results are computed in tiles of 4×4. What a tile sees, 6×6 numbers of each channel, becomes 36 values, and so does
 * each filter once, when it is packed. For each of these points sums[filters, tiles] = filters[filters, channels] ·
 * values[channels, tiles] is a product like others, by their micro-kernels; 36 sums become 16 results. The transforms
 * are winograd.h's, and what is known of their error stands in kern/conv.h.
 *
 * Where a filter's rows meet each n-th row of the image, every n-th row of results is a convolution of its own: a block
 * has tiles of all of them, so that together they are rows that follow each other.
 *
 * A block is some tiles: rows of them, a piece of a long row, or whole images. A thread transforms what a block sees
 * channel after channel, so that the input tile of one channel stays in the first cache, and the values of all of them
 * in the second; then some filters at a time are multiplied over it, point after point, and finished a few at a time,
 * for the epilogue or to where results go. A number depends on its own tile alone: any cut gives the same bits. */
#include "kern/cpu/conv_winograd.h"

#include <string.h>

#include "kern/cpu/conv_winograd_1d.h"
#include "kern/cpu/cpu.h"
#include "kern/cpu/fused_pool.h"
#include "kern/cpu/im2col.h"

enum {
    OUT = WINOGRAD_OUT,
    IN = WINOGRAD_IN,
    POINTS = WINOGRAD_POINTS,
    OVERLAP = IN - OUT,
    WIDEST_PANEL = 2 * MOST_LANES,
    VALUE_ELEMENTS = 160 << 10, /* of a block, at most: a third of the second cache */
    MOST_TILES = TN_GEMM_BLOCK_LD / OUT,
    MOST_APART = 4,        /* convolutions of every n-th row: few enough for the rows of the narrowest block */
    FILTERS = 28,          /* that are multiplied at once: their sums and the values fit the second cache together */
    RESULT_ELEMENTS = 6144 /* that are finished at once, in elements: half of the first cache */
};

/* Of the memory of a thread. */
enum { LINES, SLAB, VALUES, SUMS, RESULTS, PARTS };

typedef struct winograd {
    tn_conv_args a;
    const conv_vec *with;
    int64_t apart;                                          /* convolutions whose rows take turns */
    int64_t down, across;                                   /* tiles of an image, in each of these */
    int64_t batch, rows, columns;                           /* of a block, at most: images, and tiles in each */
    int64_t image_blocks, row_blocks, column_blocks, parts; /* parts: of the filters */
    int64_t tiles;                            /* of a block, rounded up to panels: distance of channels and sums */
    /* distance of lines, of all of them, of planes of the input tile, of points */
    int64_t line, lines, plane, values, sums;
    int64_t out_channels, few;                /* that are multiplied, and finished, at once */
    int64_t box_rows;                         /* rows of results in a block for the epilogue */
    size_t bytes[PARTS], part_bytes;          /* of a block's memory: in the order of its struct */
    char *memory;
} winograd;

/* ---- filters, packed --------------------------------------------------------------------------------------------- */

/* From the filters of a point, tiles like those of any product, to those of the next: they are written together. */
static int64_t point_elements(const tn_conv_args *a) { return odd_lines(a->out_channels * a->channels); }

size_t tn_conv_winograd_packed_bytes(const tn_conv_args *a) {
    return tn_conv_is_winograd_1d(a) ? tn_conv_winograd_1d_packed_bytes(a) : im2col_bytes(POINTS * point_elements(a));
}

typedef struct packing {
    const tn_conv_args *a;
    int64_t full; /* rows of a tile */
    float *to;
} packing;

/* The nine taps of a tile's rows for one channel, the filters of a tap side by side, to taps[tap · MOST_LANES], in the
 * order in which they stand in memory: the way back reads filters from their end. Returns the distance of two taps, the
 * first of which is where *first says. */
static int64_t gather_taps(const tn_conv_args *a, const float *from, int64_t rows, float *taps, const float **first) {
    enum { TAPS = 9, SIDE = 3 };
    const int64_t *s = a->weight_stride, back = s[3] < 0 ? -1 : 1;
    if (back < 0) from += (SIDE - 1) * (s[2] + s[3]);
    const int64_t steps = s[2] == SIDE * s[3] ? TAPS : SIDE;
    for (int64_t k = 0; k < TAPS; k += steps)
        tn_conv_vec()->tiles->pack(&(pack){.to = taps + k * MOST_LANES,
                                           .distance = MOST_LANES,
                                           .group = rows,
                                           .from = from + k / SIDE * back * s[2],
                                           .along = back * s[3],
                                           .across = s[0],
                                           .steps = steps,
                                           .lines = rows});
    *first = back < 0 ? taps + (TAPS - 1) * MOST_LANES : taps;
    return back * MOST_LANES;
}

static void pack_out_channels(void *ctx, int64_t begin, int64_t end, int worker) {
    const packing *p = ctx;
    const tn_conv_args *a = p->a;
    float taps[9 * MOST_LANES] = {0};
    (void)worker;
    for (int64_t i = 0, n = 0, rows = 0; i < a->out_channels; i += rows, n++) {
        rows = tile_height(a->out_channels - i, p->full);
        if (n < begin || n >= end) continue;
        for (int64_t c = 0; c < a->channels; c++) {
            const float *first, *from = a->weight + i * a->weight_stride[0] + c * a->weight_stride[1];
            int64_t step = gather_taps(a, from, rows, taps, &first);
            float *to = p->to + i * a->channels + c * rows;
            tn_conv_vec()->winograd_out_channels(first, step, to, point_elements(a), rows);
        }
    }
}

void tn_conv_winograd_pack(const tn_conv_args *a, void *to) {
    enum { PART_OUT_CHANNELS = 1 << 8 };
    if (tn_conv_is_winograd_1d(a)) {
        tn_conv_winograd_1d_pack(a, to);
        return;
    }
    packing p = {a, tn_conv_vec()->tiles->rows, to};
    int64_t tiles = 0;
    for (int64_t i = 0; i < a->out_channels; i += tile_height(a->out_channels - i, p.full))
        tiles++;
    tn_parallel(tiles, tn_max64(PART_OUT_CHANNELS / a->channels / p.full, 1), pack_out_channels, &p);
}

/* ---- sizes ------------------------------------------------------------------------------------------------------- */

bool tn_conv_winograd_fits(const tn_conv_args *a) {
    if (tn_conv_is_winograd_1d(a)) return tn_conv_winograd_1d_fits(a);
    bool fits = a->groups == 1 && tn_im2col_is_small(a) && tn_conv_vec()->winograd_rows;
    for (int d = 0; d < 2; d++)
        fits = fits && a->kernel[d] == 3 && a->stride[d] == 1;
    return fits && a->dilation[0] <= MOST_APART && a->dilation[1] == 1;
}

/* Where rows take turns: of the first of them, which has most. */
static int64_t tiles_down(const tn_conv_args *a) { return tn_ceil_div(a->out_size[0], OUT * a->dilation[0]); }

/* A block as large as the caches have room for. */
static void choose_block(winograd *w) {
    const tn_conv_args *a = &w->a;
    w->apart = a->dilation[0];
    w->down = tiles_down(a);
    w->across = tn_ceil_div(a->out_size[1], OUT);
    int64_t most = tn_max64(tn_min64(VALUE_ELEMENTS / POINTS / a->channels, MOST_TILES) / w->apart, WIDEST_PANEL);
    w->batch = w->rows = 1;
    w->columns = w->across;
    if (a->pool[0] > 0) most = tn_max64(most, w->across);                  /* whole rows are pooled */
    if (w->across > most) w->columns = most / WIDEST_PANEL * WIDEST_PANEL; /* all panels but the last are full */
    if (w->columns < w->across) return;
    w->rows = tn_min64(w->down, most / w->across);
    if (w->rows == w->down) w->batch = tn_min64(a->batch, most / (w->down * w->across));
}

static void plan_winograd(winograd *w, const tn_conv_args *args) {
    *w = (winograd){.a = *args, .with = tn_conv_vec()};
    const tn_conv_args *a = &w->a;
    choose_block(w);
    const int64_t columns = tn_min64(w->columns * OUT, a->out_size[1]), rows = w->rows * OUT * w->apart;
    w->tiles = round_up(w->batch * w->apart * w->rows * w->columns, WIDEST_PANEL);
    w->line = round_up(w->columns * OUT + OVERLAP, MOST_LANES);
    w->plane = (w->rows + 1) * w->columns + MOST_LANES;
    w->out_channels = tn_min64(a->out_channels, FILTERS);
    w->values = a->channels * w->tiles + MOST_LANES; /* an odd number of lines apart: all sets of the first cache */
    w->sums = w->out_channels * w->tiles + MOST_LANES;
    w->few = tn_min64(tn_max64(RESULT_ELEMENTS / (rows * columns), 1), w->out_channels);
    w->box_rows = w->columns < w->across ? 1 : TN_GEMM_BLOCK_LD / columns / pooled_rows(a) * pooled_rows(a);
    w->lines = (w->rows * OUT + OVERLAP) * w->line;
    w->bytes[LINES] = im2col_bytes(w->apart * w->lines + (OUT + 1) * MOST_LANES);
    w->bytes[SLAB] = im2col_bytes(OUT * IN * w->plane);
    w->bytes[VALUES] = im2col_bytes(POINTS * w->values);
    w->bytes[SUMS] = im2col_bytes(POINTS * w->sums);
    if (a->epilogue.vm) w->bytes[RESULTS] = im2col_bytes(tn_ceil_div(rows, w->box_rows) * w->few * TN_GEMM_BLOCK_LD);
    w->part_bytes = fused_call_scratch(&a->epilogue, 0);
    for (int i = 0; i < PARTS; i++)
        w->part_bytes += w->bytes[i];
}

/* What takes as long as multiplying so many vectors of 16: fitted to 154 measured pairs of both ways (1 to 32 images of
 * 4×4 to 450×60, 3 to 512 channels and filters, two threads). Where this says that it pays, it took 0.3 to 1.05 of the
 * time. */
static const struct {
    double exact, line, tile, result, filter, far, change, call;
} takes = {
    .exact = 1.5,   /* a vector multiplied by the other ways */
    .line = 90,     /* a vector of tiles transformed along a row of a channel … */
    .tile = 400,    /* … and down */
    .result = 1200, /* a filter's finished */
    .filter = 40,   /* reading one of a channel */
    .far = 160,     /* … of more than FAR bytes: other programs may want the memory's speed too */
    .change = 60,   /* transforming one of a channel */
    .call = 4e4     /* what does not depend on sizes */
};
enum { FAR = 16 << 20 };

bool tn_conv_winograd_pays(const tn_conv_args *a, bool kept) {
    if (tn_conv_is_winograd_1d(a)) return tn_conv_winograd_1d_pays(a, kept);
    bool pools = a->pool[0] == 0 || a->pool[0] * a->out_size[1] <= TN_GEMM_BLOCK_LD;
    if (!pools || !tn_conv_winograd_fits(a)) return false;
    const int64_t down = tiles_down(a), across = tn_ceil_div(a->out_size[1], OUT), lanes = MOST_LANES;
    const int64_t planes = a->batch * a->dilation[0];
    const double c = (double)a->channels, f = (double)a->out_channels, batch = (double)planes;
    double tiles = batch * (double)tn_ceil_div(down * across, lanes);
    double lines = batch * (double)((down * OUT + OVERLAP) * tn_ceil_div(across, lanes));
    double products = POINTS * (double)tn_ceil_div(planes * down * across, lanes);
    double reading = tn_conv_winograd_packed_bytes(a) > FAR ? takes.far : takes.filter;
    double fast = c * (takes.line * lines + takes.tile * tiles) + takes.result * f * tiles + takes.call;
    fast += c * f * (products + reading + (kept ? 0 : takes.change));
    return takes.exact * 9 * c * f * (double)(a->batch * a->out_size[0] * a->out_size[1]) > fast * (double)lanes;
}

/* Blocks are as alike as can be, and as many for each thread; where they would become too small for full panels,
 * threads share the filters, and each transforms what they see. */
static void share_out(winograd *w, int threads) {
    w->image_blocks = tn_ceil_div(w->a.batch, w->batch);
    w->row_blocks = tn_ceil_div(w->down, w->rows);
    w->column_blocks = tn_ceil_div(w->across, w->columns);
    w->parts = 1;
    int64_t all = w->image_blocks * w->row_blocks * w->column_blocks, image = w->down * w->across * w->apart;
    if (all % threads == 0 || all > 8 * threads) return;
    int64_t batch = round_up(w->image_blocks, threads), rows = round_up(w->row_blocks, threads);
    if (w->image_blocks > 1 && w->a.batch / batch * image >= WIDEST_PANEL)
        w->image_blocks = batch;
    else if (rows <= w->down && tn_ceil_div(w->down, rows) * w->columns * w->apart * 4 >= 3 * WIDEST_PANEL)
        w->row_blocks = rows;
    else if (all < threads)
        w->parts = tn_min64(tn_ceil_div(threads, all), tn_ceil_div(w->a.out_channels, w->with->tiles->rows));
}

/* ---- a block ----------------------------------------------------------------------------------------------------- */

/* Images, and rows and columns of tiles in each. */
typedef struct block {
    range image, row, column, filter;
    float *lines, *input_tile, *values, *sums, *results;
    fused_call epilogue;
    /* Rows (of each of the convolutions that take turns) and columns of `lines` that are the image's; others are 0 */
    range down[MOST_APART], across;
} block;

/* The row and the column of the image that the block's lines begin with. */
static int64_t first_row(const winograd *w, const block *b, int64_t turn) {
    return b->row.first * OUT * w->apart + turn - w->a.pad_before[0];
}

static int64_t first_column(const winograd *w, const block *b) { return b->column.first * OUT - w->a.pad_before[1]; }

/* What the block's tiles see of convolution `turn` of those whose rows take turns: of one channel of an image. */
static void copy_lines(const winograd *w, const block *b, int64_t channel, int64_t image, int64_t turn, float *lines) {
    const tn_conv_args *a = &w->a;
    const range *down = &b->down[turn], *across = &b->across;
    const float *x = a->x + (b->image.first + image) * a->x_stride[0] + channel * a->x_stride[1];
    x += (first_row(w, b, turn) + down->first * w->apart) * a->x_stride[2];
    x += (first_column(w, b) + across->first) * a->x_stride[3];
    w->with->copy_rows(lines + down->first * w->line + across->first, w->line, x, a->x_stride[2] * w->apart,
                       down->count, a->x_stride[3], across->count);
}

/* Channel after channel, and of each one image after the other: vectors of tiles reach over the end of one's. */
static void transform_tiles(const winograd *w, block *b) {
    const tn_conv_args *a = &w->a;
    const int64_t tiles = b->row.count * b->column.count, length = b->row.count * OUT + OVERLAP;
    const int64_t planes = b->image.count * w->apart, pieces = a->channels * planes;
    for (int64_t turn = 0; turn < w->apart; turn++)
        b->down[turn] = look_at(first_row(w, b, turn), w->apart, length, a->size[0]);
    b->across = look_at(first_column(w, b), 1, b->column.count * OUT + OVERLAP, a->size[1]);
    memset(b->lines, 0, w->bytes[LINES]); /* what lies outside of the image stays so */
    for (int64_t n = 0; n < pieces; n++) {
        const int64_t channel = n / planes, image = n % planes / w->apart, turn = n % w->apart;
        float *lines = b->lines + turn * w->lines;
        copy_lines(w, b, channel, image, turn, lines);
        w->with->winograd_rows(lines, w->line, length, b->input_tile, w->plane, b->column.count);
        float *to = b->values + channel * w->tiles + n % planes * tiles;
        w->with->winograd_columns(b->input_tile, w->plane, b->column.count, to, w->values, tiles);
    }
}

/* The tile of packed filters behind another; the first is behind that of none. */
static range next_tile(const winograd *w, range t) {
    int64_t first = t.first + t.count;
    return (range){first, tile_height(w->a.out_channels - first, w->with->tiles->rows)};
}

/* … that has filter f. */
static range tile_of(const winograd *w, int64_t f) {
    range t = {0, 0};
    do
        t = next_tile(w, t);
    while (t.first + t.count <= f);
    return t;
}

/* Filters [first, first + count), which need not be whole tiles of packed ones, over all tiles of the block. */
static void multiply_winograd(const winograd *w, const block *b, range out_channels) {
    const tn_conv_args *a = &w->a;
    const int64_t panel = 2 * w->with->tiles->lanes;
    const range first = tile_of(w, out_channels.first);
    int64_t tiles = b->image.count * w->apart * b->row.count * b->column.count;
    if (tiles % panel > panel / 2) tiles = round_up(tiles, panel);
    for (int64_t p = 0; p < POINTS; p++) {
        const float *packed = (const float *)a->packed + p * point_elements(a);
        tile t = {.a_row = 1, .b_k = w->tiles, .b_panel = panel, .c_row = w->tiles, .k = a->channels};
        range from = first;
        for (int64_t f = out_channels.first, end = f + out_channels.count, rows = 0; f < end; f += rows) {
            rows = tn_min64(from.first + from.count, end) - f;
            t.a_k = from.count;
            t.a = packed + from.first * a->channels + f - from.first;
            t.b = b->values + p * w->values;
            t.c = b->sums + p * w->sums + (f - out_channels.first) * w->tiles;
            tiles_multiply(w->with->tiles, t, rows, tiles);
            from = next_tile(w, from);
        }
    }
}

/* One image's results in the block: where its rows begin, in memory, of the first filter, or in blocks for the
 * epilogue, `few` filters each; and how many there are. Rows of each of the convolutions that take turns follow each
 * other. */
typedef struct results {
    float *row[MOST_TILES * OUT];
    int64_t image, rows, columns;
} results;

static float **row_at(const winograd *w, const block *b, results *r, int64_t y) {
    return &r->row[y % w->apart * b->row.count * OUT + y / w->apart];
}

static void find_results(const winograd *w, const block *b, results *r) {
    const tn_conv_args *a = &w->a;
    const int64_t top = b->row.first * OUT * w->apart, left = b->column.first * OUT;
    r->rows = tn_min64(a->out_size[0] - top, b->row.count * OUT * w->apart);
    r->columns = tn_min64(a->out_size[1] - left, b->column.count * OUT);
    for (int64_t y = 0; y < r->rows; y++) {
        int64_t joined = y / w->box_rows * w->few * TN_GEMM_BLOCK_LD + y % w->box_rows * r->columns;
        int64_t stored = (r->image * a->out_channels * a->out_size[0] + top + y) * a->out_size[1] + left;
        *row_at(w, b, r, y) = b->epilogue.vm ? b->results + joined : a->out + stored;
    }
}

/* `filters` have been finished; their results lie in blocks. */
static void join_winograd(const winograd *w, block *b, results *r, range out_channels) {
    const int64_t first = b->row.first * OUT * w->apart * w->a.out_size[1] + b->column.first * OUT;
    for (int64_t y = 0; y < r->rows; y += w->box_rows) {
        box at = {out_channels.first, out_channels.count, first + y * w->a.out_size[1],
                  tn_min64(r->rows - y, w->box_rows) * r->columns};
        hand_over_result(&b->epilogue, w->with, &w->a, r->image, at, *row_at(w, b, r, y));
    }
}

/* A filter's sums, whose results begin `offset` behind the rows. */
static void finish_filter(const winograd *w, const block *b, results *r, const float *sums, int64_t offset) {
    const int64_t tiles = b->row.count * b->column.count;
    winograd_area area = {.down = b->row.count, .across = b->column.count, .columns = r->columns};
    for (int64_t turn = 0; turn < tn_min64(w->apart, r->rows); turn++, sums += tiles) {
        area.row = row_at(w, b, r, turn);
        area.rows = tn_ceil_div(r->rows - turn, w->apart);
        w->with->winograd_finish(&area, sums, w->sums, offset);
    }
}

static void finish_winograd(const winograd *w, block *b, range out_channels) {
    results r;
    const int64_t tiles = w->apart * b->row.count * b->column.count, plane = w->a.out_size[0] * w->a.out_size[1];
    for (int64_t i = 0; i < b->image.count; i++) {
        r.image = b->image.first + i;
        find_results(w, b, &r);
        for (int64_t f = 0, few = 0; f < out_channels.count; f += few) {
            few = tn_min64(w->few, out_channels.count - f);
            for (int64_t k = 0; k < few; k++)
                finish_filter(w, b, &r, b->sums + (f + k) * w->tiles + i * tiles,
                              b->epilogue.vm ? k * TN_GEMM_BLOCK_LD : (out_channels.first + f + k) * plane);
            if (b->epilogue.vm) join_winograd(w, b, &r, (range){out_channels.first + f, few});
        }
    }
}

/* Tiles of filters, or what is left of them: as many as there is room for sums. */
static range next_out_channels(const winograd *w, int64_t first, int64_t end) {
    range r = {first, 0}, t = tile_of(w, first);
    for (int64_t next; first + r.count < end; r.count = next - first, t = next_tile(w, t)) {
        next = tn_min64(t.first + t.count, end);
        if (next - first > w->out_channels) break;
    }
    return r;
}

static void compute_block(const winograd *w, block *b) {
    const int64_t end = b->filter.first + b->filter.count;
    transform_tiles(w, b);
    for (range r = {b->filter.first, 0}; r.first < end; r.first += r.count) {
        r = next_out_channels(w, r.first, end);
        multiply_winograd(w, b, r);
        finish_winograd(w, b, r);
    }
}

static void compute_blocks(void *ctx, int64_t begin, int64_t end, int worker) {
    const winograd *w = ctx;
    char *memory = w->memory + (size_t)worker * w->part_bytes;
    block b;
    float **const parts[] = {&b.lines, &b.input_tile, &b.values, &b.sums, &b.results};
    for (size_t i = 0; i < TN_COUNT(parts); memory += w->bytes[i++])
        *parts[i] = (float *)(void *)memory;
    fused_call_open(&b.epilogue, &w->a.epilogue, memory);
    for (int64_t n = begin; n < end; n++) {
        int64_t at = n;
        b.column.first = at % w->column_blocks * w->columns;
        b.column.count = tn_min64(w->columns, w->across - b.column.first);
        at /= w->column_blocks;
        b.row = split_range(w->down, w->row_blocks, at % w->row_blocks);
        at /= w->row_blocks;
        b.image = split_range(w->a.batch, w->image_blocks, at % w->image_blocks);
        b.filter = split_range(w->a.out_channels, w->parts, at / w->image_blocks);
        compute_block(w, &b);
    }
}

/* ---- all of them ------------------------------------------------------------------------------------------------- */

size_t tn_conv_winograd_workspace(const tn_conv_args *args, int threads) {
    if (tn_conv_is_winograd_1d(args)) return tn_conv_winograd_1d_workspace(args, threads);
    winograd w;
    plan_winograd(&w, args);
    return (size_t)(threads > 1 ? threads : 1) * w.part_bytes;
}

void tn_conv_winograd(const tn_conv_args *args, void *workspace) {
    if (tn_conv_is_winograd_1d(args)) {
        tn_conv_winograd_1d(args, workspace);
        return;
    }
    winograd w;
    plan_winograd(&w, args);
    int threads = tn_conv_threads(args);
    share_out(&w, threads);
    w.memory = workspace;
    int64_t tasks = w.image_blocks * w.row_blocks * w.column_blocks * w.parts;
    im2col_parallel(tasks, threads, compute_blocks, &w);
}
