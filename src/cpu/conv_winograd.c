/* conv_winograd.c — 3x3 convolutions by Winograd's algorithm: forward, along one axis, and gradient of the weight. */
#include <string.h>

#include "cpu/conv_paths.h"
#include "cpu/isa.h"

/* Whether windows have one row and five columns. The other conv_winograd_1d functions accept only these. */
static bool conv_is_winograd_1d(const tn_conv_args *args);
static bool conv_winograd_1d_fits(const tn_conv_args *args);
static bool conv_winograd_1d_pays(const tn_conv_args *args, bool kept);
static size_t conv_winograd_1d_packed_bytes(const tn_conv_args *args);
static void conv_winograd_1d_pack(const tn_conv_args *args, void *to);
static size_t conv_winograd_1d_workspace(const tn_conv_args *args, int threads); /* beside packed filters */
static void conv_winograd_1d(const tn_conv_args *args, void *workspace);         /* args->packed is there */

/* ==== forward ===================================================================================================== */
/* Results are computed in tiles of 4×4. What a tile sees, 6×6 numbers of each channel, becomes 36 values, and so does
 * each filter once, when it is packed. For each of these points sums[filters, tiles] = filters[filters, channels] ·
 * values[channels, tiles] is a product like others, by their micro-kernels; 36 sums become 16 results. The transforms
 * are conv_vec.c's, and what is known of their error stands in cpu/conv.h.
 *
 * Where a filter's rows meet each n-th row of the image, every n-th row of results is a convolution of its own: a block
 * has tiles of all of them, so that together they are rows that follow each other.
 *
 * A block is some tiles: rows of them, a piece of a long row, or whole images. A thread transforms what a block sees
 * channel after channel, so that the input tile of one channel stays in the first cache, and the values of all of them
 * in the second; then some filters at a time are multiplied over it, point after point, and finished a few at a time,
 * for the epilogue or to where results go. A number depends on its own tile alone: any cut gives the same bits. */

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
    int64_t tiles; /* of a block, rounded up to panels: distance of channels and sums */
    /* distance of lines, of all of them, of planes of the input tile, of points */
    int64_t line, lines, plane, values, sums;
    int64_t out_channels, few;       /* that are multiplied, and finished, at once */
    int64_t box_rows;                /* rows of results in a block for the epilogue */
    size_t bytes[PARTS], part_bytes; /* of a block's memory: in the order of its struct */
    char *memory;
} winograd;

/* ---- filters, packed --------------------------------------------------------------------------------------------- */

/* From the filters of a point, tiles like those of any product, to those of the next: they are written together. */
static int64_t point_elements(const tn_conv_args *a) { return odd_lines(a->out_channels * a->channels); }

size_t tn_conv_winograd_packed_bytes(const tn_conv_args *a) {
    return conv_is_winograd_1d(a) ? conv_winograd_1d_packed_bytes(a) : im2col_bytes(POINTS * point_elements(a));
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

static void pack_out_channels(void *ctx, int64_t begin, int64_t end, TN_UNUSED int worker) {
    const packing *p = ctx;
    const tn_conv_args *a = p->a;
    float taps[9 * MOST_LANES] = {0};
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
    if (conv_is_winograd_1d(a)) {
        conv_winograd_1d_pack(a, to);
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
    if (conv_is_winograd_1d(a)) return conv_winograd_1d_fits(a);
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
} winograd_takes = {
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
    if (conv_is_winograd_1d(a)) return conv_winograd_1d_pays(a, kept);
    bool pools = a->pool[0] == 0 || a->pool[0] * a->out_size[1] <= TN_GEMM_BLOCK_LD;
    if (!pools || !tn_conv_winograd_fits(a)) return false;
    const int64_t down = tiles_down(a), across = tn_ceil_div(a->out_size[1], OUT), lanes = MOST_LANES;
    const int64_t planes = a->batch * a->dilation[0];
    const double c = (double)a->channels, f = (double)a->out_channels, batch = (double)planes;
    double tiles = batch * (double)tn_ceil_div(down * across, lanes);
    double lines = batch * (double)((down * OUT + OVERLAP) * tn_ceil_div(across, lanes));
    double products = POINTS * (double)tn_ceil_div(planes * down * across, lanes);
    double reading = tn_conv_winograd_packed_bytes(a) > FAR ? winograd_takes.far : winograd_takes.filter;
    double fast = c * (winograd_takes.line * lines + winograd_takes.tile * tiles) + winograd_takes.result * f * tiles +
                  winograd_takes.call;
    fast += c * f * (products + reading + (kept ? 0 : winograd_takes.change));
    return winograd_takes.exact * 9 * c * f * (double)(a->batch * a->out_size[0] * a->out_size[1]) >
           fast * (double)lanes;
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
typedef struct winograd_results {
    float *row[MOST_TILES * OUT];
    int64_t image, rows, columns;
} winograd_results;

static float **row_at(const winograd *w, const block *b, winograd_results *r, int64_t y) {
    return &r->row[y % w->apart * b->row.count * OUT + y / w->apart];
}

static void find_results(const winograd *w, const block *b, winograd_results *r) {
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
static void join_winograd(const winograd *w, block *b, winograd_results *r, range out_channels) {
    const int64_t first = b->row.first * OUT * w->apart * w->a.out_size[1] + b->column.first * OUT;
    for (int64_t y = 0; y < r->rows; y += w->box_rows) {
        box at = {out_channels.first, out_channels.count, first + y * w->a.out_size[1],
                  tn_min64(r->rows - y, w->box_rows) * r->columns};
        hand_over_result(&b->epilogue, w->with, &w->a, r->image, at, *row_at(w, b, r, y));
    }
}

/* A filter's sums, whose results begin `offset` behind the rows. */
static void finish_filter(const winograd *w, const block *b, winograd_results *r, const float *sums, int64_t offset) {
    const int64_t tiles = b->row.count * b->column.count;
    winograd_area area = {.down = b->row.count, .across = b->column.count, .columns = r->columns};
    for (int64_t turn = 0; turn < tn_min64(w->apart, r->rows); turn++, sums += tiles) {
        area.row = row_at(w, b, r, turn);
        area.rows = tn_ceil_div(r->rows - turn, w->apart);
        w->with->winograd_finish(&area, sums, w->sums, offset);
    }
}

static void finish_winograd(const winograd *w, block *b, range out_channels) {
    winograd_results r;
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
    if (conv_is_winograd_1d(args)) return conv_winograd_1d_workspace(args, threads);
    winograd w;
    plan_winograd(&w, args);
    return (size_t)(threads > 1 ? threads : 1) * w.part_bytes;
}

void tn_conv_winograd(const tn_conv_args *args, void *workspace) {
    if (conv_is_winograd_1d(args)) {
        conv_winograd_1d(args, workspace);
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

/* ==== along one axis: F(2, 5) ===================================================================================== */
/* Two outputs of five taps read six inputs, as four outputs of three taps do, so the points and the input transform are
 * those of F(4, 3), along one axis. A tile is two neighbouring output pixels, a block is a piece of one row of an
 * image. The block's input is transformed one channel at a time; then, for some filters at a time, the products are
 * computed point by point and transformed back. A result depends only on its own tile, so any division gives the same
 * bits. */

enum {
    ONE_AXIS_OUT = WINOGRAD_1D_OUT,
    ONE_AXIS_IN = WINOGRAD_IN,
    ONE_AXIS_TAPS = ONE_AXIS_IN - ONE_AXIS_OUT + 1,
    PANEL = 2 * MOST_LANES,
    ONE_AXIS_VALUE_ELEMENTS = 320 << 10, /* of a block, at most: two thirds of the second cache, as sums are few */
    ONE_AXIS_MOST_TILES = TN_GEMM_BLOCK_LD / ONE_AXIS_OUT / 2,
    ONE_AXIS_FILTERS = 28, /* that are multiplied at once: two tiles */
    SLACK = 3 * MOST_LANES
};

/* Of the memory of a thread. */
enum { LINE, ONE_AXIS_VALUES, ONE_AXIS_SUMS, ONE_AXIS_RESULTS, ONE_AXIS_PARTS };

typedef struct winograd_1d {
    tn_conv_args a;
    const conv_vec *with;
    int64_t across, columns, blocks; /* tiles of a row; of a block, at most; blocks of a row */
    int64_t parts;                   /* of the filters */
    int64_t tiles, values, sums;     /* distance of channels and filters; of points */
    size_t bytes[ONE_AXIS_PARTS], part_bytes;
    char *memory;
} winograd_1d;

static bool conv_is_winograd_1d(const tn_conv_args *a) { return a->kernel[0] == 1 && a->kernel[1] == ONE_AXIS_TAPS; }

/* ---- filters, packed --------------------------------------------------------------------------------------------- */

/* Point p's filters lie at p · filters · channels, as tiles like those of any product. */
static size_t conv_winograd_1d_packed_bytes(const tn_conv_args *a) {
    return im2col_bytes(ONE_AXIS_IN * a->out_channels * a->channels);
}

/* Values of the taps at the points of conv_vec.c, each divided by what its distances from the other points multiply to:
 * to[point · distance]. */
static void pack_taps(const float *g, int64_t step, float *to, int64_t distance) {
    static const double point[] = {0.75, 1.5};
    to[0] = (float)((double)g[0] * (64.0 / 81.0));
    to[(ONE_AXIS_IN - 1) * distance] = g[(ONE_AXIS_TAPS - 1) * step];
    for (int i = 0; i < 2; i++) {
        double p = point[i], q = point[1 - i], pp = p * p, scale = 1 / (2 * pp * (pp - q * q));
        double even = (double)g[0] + pp * ((double)g[2 * step] + pp * (double)g[4 * step]);
        double odd = p * ((double)g[step] + pp * (double)g[3 * step]);
        to[(1 + 2 * i) * distance] = (float)((even + odd) * scale);
        to[(2 + 2 * i) * distance] = (float)((even - odd) * scale);
    }
}

typedef struct one_axis_packing {
    const tn_conv_args *a;
    int64_t full; /* rows of a tile */
    float *to;
} one_axis_packing;

static void one_axis_pack_out_channels(void *ctx, int64_t begin, int64_t end, TN_UNUSED int worker) {
    const one_axis_packing *p = ctx;
    const tn_conv_args *a = p->a;
    for (int64_t i = 0, rows = 0; i < end; i += rows) {
        rows = tile_height(a->out_channels - i, p->full);
        for (int64_t f = tn_max64(i, begin); f < tn_min64(i + rows, end); f++)
            for (int64_t c = 0; c < a->channels; c++)
                pack_taps(a->weight + f * a->weight_stride[0] + c * a->weight_stride[1], a->weight_stride[3],
                          p->to + i * a->channels + c * rows + f - i, a->out_channels * a->channels);
    }
}

static void conv_winograd_1d_pack(const tn_conv_args *a, void *to) {
    enum { ONE_AXIS_PART_OUT_CHANNELS = 1 << 8 };
    one_axis_packing p = {a, tn_conv_vec()->tiles->rows, to};
    tn_parallel(a->out_channels, tn_max64(ONE_AXIS_PART_OUT_CHANNELS / a->channels, 1), one_axis_pack_out_channels, &p);
}

/* ---- sizes ------------------------------------------------------------------------------------------------------- */

static bool conv_winograd_1d_fits(const tn_conv_args *a) {
    bool plain = a->groups == 1 && a->pool[0] == 0 && a->stride[0] == 1 && a->stride[1] == 1 && a->dilation[1] == 1;
    return conv_is_winograd_1d(a) && plain && tn_im2col_is_small(a) && tn_conv_vec()->winograd_1d;
}

/* Rows so long that panels are full, and channels and filters so many that transforming is little: in nine measured
 * pairs (64 to 1024 channels, 64 to 512 filters, 128 to 1000 columns) it took 0.5 to 1.0 of the time. Filters that
 * change would be transformed anew each time. */
static bool conv_winograd_1d_pays(const tn_conv_args *a, bool kept) {
    enum { MANY = 64, LONG = 128 };
    return kept && conv_winograd_1d_fits(a) && a->channels >= MANY && a->out_channels >= MANY && a->out_size[1] >= LONG;
}

/* Blocks of a row are alike, and as many for each thread. */
static void plan_winograd_1d(winograd_1d *l, const tn_conv_args *args, int threads) {
    *l = (winograd_1d){.a = *args, .with = tn_conv_vec(), .parts = 1};
    const tn_conv_args *a = &l->a;
    const int64_t rows = a->batch * a->out_size[0];
    int64_t most = tn_min64(ONE_AXIS_VALUE_ELEMENTS / ONE_AXIS_IN / a->channels, ONE_AXIS_MOST_TILES) / PANEL * PANEL;
    l->across = tn_ceil_div(a->out_size[1], ONE_AXIS_OUT);
    l->blocks = tn_ceil_div(l->across, tn_max64(most, PANEL));
    if (rows % threads != 0) l->blocks = round_up(l->blocks, threads);
    l->columns = tn_min64(round_up(tn_ceil_div(l->across, l->blocks), PANEL), tn_max64(most, PANEL));
    l->blocks = tn_ceil_div(l->across, l->columns);
    if (rows * l->blocks < threads)
        l->parts = tn_min64(threads / (rows * l->blocks), tn_ceil_div(a->out_channels, ONE_AXIS_FILTERS));
    l->tiles = l->columns;
    l->values = a->channels * l->tiles + MOST_LANES; /* an odd number of lines apart: all sets of the first cache */
    l->sums = ONE_AXIS_FILTERS * l->tiles + MOST_LANES;
    l->bytes[LINE] = im2col_bytes(l->columns * ONE_AXIS_OUT + ONE_AXIS_IN + SLACK);
    l->bytes[ONE_AXIS_VALUES] = im2col_bytes(ONE_AXIS_IN * l->values);
    l->bytes[ONE_AXIS_SUMS] = im2col_bytes(ONE_AXIS_IN * l->sums);
    if (a->epilogue.vm) l->bytes[ONE_AXIS_RESULTS] = im2col_bytes(ONE_AXIS_FILTERS * TN_GEMM_BLOCK_LD);
    l->part_bytes = fused_call_scratch(&a->epilogue, 0);
    for (int i = 0; i < ONE_AXIS_PARTS; i++)
        l->part_bytes += l->bytes[i];
}

/* ---- a block ----------------------------------------------------------------------------------------------------- */

/* Tiles [first, first + count) of a row of an image. */
typedef struct one_axis_block {
    int64_t image, row, first, count;
    float *line, *values, *sums, *results;
    fused_call epilogue;
} one_axis_block;

static void transform(const winograd_1d *l, const one_axis_block *b) {
    const tn_conv_args *a = &l->a;
    const int64_t y = b->row - a->pad_before[0], x = b->first * ONE_AXIS_OUT - a->pad_before[1],
                  length = b->count * ONE_AXIS_OUT + ONE_AXIS_IN - ONE_AXIS_OUT;
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
static void multiply_winograd_1d(const winograd_1d *l, const one_axis_block *b, int64_t first, int64_t count) {
    const tn_conv_args *a = &l->a;
    const int64_t panel = 2 * l->with->tiles->lanes, height = l->with->tiles->rows;
    const int64_t tiles = b->count % panel > panel / 2 ? round_up(b->count, panel) : b->count;
    for (int64_t p = 0; p < ONE_AXIS_IN; p++) {
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

static void finish_winograd_1d(const winograd_1d *l, one_axis_block *b, int64_t first, int64_t count) {
    const tn_conv_args *a = &l->a;
    const int64_t place = b->row * a->out_size[1] + b->first * ONE_AXIS_OUT, plane = a->out_size[0] * a->out_size[1];
    const int64_t out_pixels = tn_min64(b->count * ONE_AXIS_OUT, a->out_size[1] - b->first * ONE_AXIS_OUT);
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
static void compute_out_channels(const winograd_1d *l, one_axis_block *b, int64_t number) {
    const int64_t height = l->with->tiles->rows, all = l->a.out_channels, part = tn_ceil_div(all, l->parts);
    for (int64_t first = 0, count = 0; first < all; first += count) {
        count = 0;
        for (int64_t next = 0; first + count < all; count += next) {
            next = tile_height(all - first - count, height);
            if (count > 0 && count + next > ONE_AXIS_FILTERS) break;
        }
        if (first / part != number) continue;
        multiply_winograd_1d(l, b, first, count);
        finish_winograd_1d(l, b, first, count);
    }
}

static void one_axis_compute_blocks(void *ctx, int64_t begin, int64_t end, int worker) {
    const winograd_1d *l = ctx;
    char *memory = l->memory + (size_t)worker * l->part_bytes;
    one_axis_block b;
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
static size_t conv_winograd_1d_workspace(const tn_conv_args *args, int threads) {
    winograd_1d l;
    plan_winograd_1d(&l, args, 1);
    return (size_t)(threads > 1 ? threads : 1) * l.part_bytes;
}

static void conv_winograd_1d(const tn_conv_args *args, void *workspace) {
    winograd_1d l;
    int threads = tn_conv_threads(args);
    plan_winograd_1d(&l, args, threads);
    l.memory = workspace;
    int64_t tasks = args->batch * args->out_size[0] * l.blocks * l.parts;
    im2col_parallel(tasks, threads, one_axis_compute_blocks, &l);
}

/* ==== gradient of the weight ====================================================================================== */
/* A tile of 4×4 results and the 6×6 numbers of an image that it has seen give nine sums of products, which are a
 * product of polynomials again: both become 36 values, at each of these points
 *     sums[filters, channels] = Σ over tiles results[tile, filters] · images[tile, channels]
 * is a product like others, and 36 sums become nine gradients, once. The transforms are conv_vec.c's: those of the way
 * forth, turned around.
 *
 * Some tiles at a time are the k of the products. Here lanes are channels, so images and results are turned first, a
 * few rows of tiles at once. A task is half of the points, for some filters; all see the same tiles in the same order.
 * How many make a chain depends on sizes alone, so that the bits are the same for any number of threads. */

enum {
    WGRAD_OUT = WINOGRAD_OUT,
    WGRAD_IN = WINOGRAD_IN,
    WGRAD_OVERLAP = WGRAD_IN - WGRAD_OUT,
    HALF = WGRAD_IN / 2, /* rows of points of a task */
    TASK_POINTS = HALF * WGRAD_IN,
    WGRAD_TAPS = 9,
    TRANSPOSED_ELEMENTS = 1 << 15, /* of an image at once, about: half of the values' share of the second cache */
    WGRAD_VALUE_ELEMENTS = 5 << 16 /* of a task's images and results together: with these two thirds of that cache */
};

/* Of the memory of a thread. */
enum { WGRAD_SLAB, TRANSPOSED, IMAGES, WGRAD_RESULTS, AREAS };

/* What is turned and transformed: images, or results. */
typedef struct side {
    const float *from;
    int64_t stride[4], size[2], pad_before[2];
    int64_t pixel;                 /* distance of pixels, and of tiles' values: an odd number of lines */
    int64_t point;                 /* distance of points */
    int64_t border;                /* rows and columns that a tile sees beyond its own */
    winograd_values_fn *transform; /* of a tile */
} side;

typedef struct gradient {
    tn_conv_args a;
    const conv_vec *with;
    side x, y;
    int64_t down, across;        /* tiles of an image */
    int64_t image_units, blocks; /* a unit is some rows of tiles of one image, a block some units */
    int64_t unit_rows, tiles;    /* of tiles in a unit, and tiles in a block, at most */
    int64_t filter_parts;        /* tasks of half of the points */
    int64_t sum_row, sum_point;  /* distance of rows and of points in the sums */
    float *sums;                 /* [points, filters, channels] */
    size_t bytes[AREAS], memory; /* of a thread */
    char *parts;
} gradient;

/* Rows and columns that `rows` rows of tiles see. */
static int64_t im2col_pixels(const gradient *g, int64_t rows) {
    return (rows * WGRAD_OUT + WGRAD_OVERLAP) * (g->across * WGRAD_OUT + WGRAD_OVERLAP);
}

static void plan_winograd_wgrad(gradient *g, const tn_conv_args *a) {
    *g = (gradient){.a = *a, .with = tn_conv_vec()};
    g->down = tn_ceil_div(a->out_size[0], WGRAD_OUT);
    g->across = tn_ceil_div(a->out_size[1], WGRAD_OUT);
    g->x = (side){.from = a->x, .pixel = odd_lines(a->channels), .border = WGRAD_OVERLAP};
    g->y = (side){.from = a->y, .pixel = odd_lines(a->out_channels)};
    g->x.transform = g->with->winograd_images;
    g->y.transform = g->with->winograd_gradients;
    memcpy(g->x.stride, a->x_stride, sizeof g->x.stride);
    memcpy(g->y.stride, a->y_stride, sizeof g->y.stride);
    for (int d = 0; d < 2; d++) {
        g->x.size[d] = a->size[d];
        g->x.pad_before[d] = a->pad_before[d];
        g->y.size[d] = a->out_size[d];
    }
    const int64_t widest = tn_max64(g->x.pixel, g->y.pixel), both = TASK_POINTS * (g->x.pixel + g->y.pixel);
    int64_t rows = tn_min64(TRANSPOSED_ELEMENTS / (WGRAD_OUT * WGRAD_OUT * g->across * g->x.pixel), g->down);
    g->image_units = tn_ceil_div(g->down, tn_max64(rows, 1));
    g->unit_rows = tn_ceil_div(g->down, g->image_units);
    int64_t units = a->batch * g->image_units;
    g->blocks = tn_ceil_div(units, tn_max64(WGRAD_VALUE_ELEMENTS / both / (g->unit_rows * g->across), 1));
    g->tiles = tn_ceil_div(units, g->blocks) * g->unit_rows * g->across;
    g->x.point = odd_lines(g->tiles * g->x.pixel);
    g->y.point = odd_lines(g->tiles * g->y.pixel);
    g->sum_row = round_up(a->channels, MOST_LANES);
    g->sum_point = odd_lines(a->out_channels * g->sum_row);
    g->bytes[WGRAD_SLAB] = im2col_bytes(widest * im2col_pixels(g, g->unit_rows) + MOST_LANES);
    g->bytes[TRANSPOSED] = g->bytes[WGRAD_SLAB];
    g->bytes[IMAGES] = im2col_bytes(TASK_POINTS * g->x.point);
    g->bytes[WGRAD_RESULTS] = im2col_bytes(TASK_POINTS * g->y.point);
    for (int i = 0; i < AREAS; i++)
        g->memory += g->bytes[i];
}

/* ---- a task ------------------------------------------------------------------------------------------------------ */

/* A thread's memory: what one unit sees, turned too, and the values of a block. */
typedef struct task {
    float *input_tile, *nhwc, *batch, *results;
    int64_t first; /* row of points */
    range out_channels;
} task;

/* What rows of tiles see of some channels of an image: where it lies there if that is all, one row behind the other;
 * else in the input tile, zeros around. Channels are *across apart. */
static const float *see_tiles(const gradient *g, const side *s, const task *p, int64_t image, range rows,
                              range channels, int64_t *apart) {
    const int64_t across = g->across * WGRAD_OUT + s->border, down = rows.count * WGRAD_OUT + s->border,
                  plane = down * across;
    const int64_t top = rows.first * WGRAD_OUT - s->pad_before[0], left = -s->pad_before[1];
    const range row = look_at(top, 1, down, s->size[0]), column = look_at(left, 1, across, s->size[1]);
    const float *from = s->from + image * s->stride[0] + channels.first * s->stride[1];
    from += (top + row.first) * s->stride[2] + (left + column.first) * s->stride[3];
    *apart = s->stride[1];
    bool all = row.count == down && column.count == across;
    if (all && s->stride[2] == across && s->stride[3] == 1) return from;
    *apart = plane;
    if (!all) memset(p->input_tile, 0, (size_t)(channels.count * plane) * sizeof(float));
    for (int64_t c = 0; c < channels.count && row.count > 0 && column.count > 0; c++, from += s->stride[1])
        g->with->copy_rows(p->input_tile + c * plane + row.first * across + column.first, across, from, s->stride[2],
                           row.count, s->stride[3], column.count);
    return p->input_tile;
}

/* To p->turned: pixel after pixel, channels side by side. */
static void transpose_tiles(const gradient *g, const side *s, const task *p, int64_t image, range rows,
                            range channels) {
    int64_t apart;
    const float *from = see_tiles(g, s, p, image, rows, channels, &apart);
    g->with->tiles->pack(&(pack){.to = p->nhwc,
                                 .distance = s->pixel,
                                 .group = channels.count,
                                 .from = from,
                                 .along = 1,
                                 .across = apart,
                                 .steps = (rows.count * WGRAD_OUT + s->border) * (g->across * WGRAD_OUT + s->border),
                                 .lines = channels.count});
}

static void wgrad_transform(const gradient *g, const side *s, const task *p, int64_t rows, int64_t channels,
                            float *to) {
    const int64_t row = (g->across * WGRAD_OUT + s->border) * s->pixel;
    for (int64_t n = 0; n < rows * g->across; n++, to += s->pixel)
        s->transform(p->nhwc + n / g->across * WGRAD_OUT * row + n % g->across * WGRAD_OUT * s->pixel, row, s->pixel,
                     to, s->point, channels, p->first, HALF);
}

/* Units [begin, end). Returns their tiles. */
static int64_t transform_block(const gradient *g, const task *p, range units) {
    const range channels = {0, g->a.channels};
    int64_t tiles = 0;
    for (int64_t u = units.first; u < units.first + units.count; u++) {
        const int64_t image = u / g->image_units;
        const range rows = split_range(g->down, g->image_units, u % g->image_units);
        transpose_tiles(g, &g->x, p, image, rows, channels);
        wgrad_transform(g, &g->x, p, rows.count, channels.count, p->batch + tiles * g->x.pixel);
        transpose_tiles(g, &g->y, p, image, rows, p->out_channels);
        wgrad_transform(g, &g->y, p, rows.count, p->out_channels.count, p->results + tiles * g->y.pixel);
        tiles += rows.count * g->across;
    }
    return tiles;
}

static void multiply_winograd_wgrad(const gradient *g, const task *p, int64_t tiles, bool add) {
    const tile_set *with = g->with->tiles;
    tile t = {.a_row = 1, .a_k = g->y.pixel, .b_k = g->x.pixel, .b_panel = panel_of(g->with), .k = tiles, .add = add};
    t.c_row = g->sum_row;
    for (int64_t n = 0; n < TASK_POINTS; n++)
        for (int64_t i = 0, height = 0; i < p->out_channels.count; i += height) {
            height = tile_height(p->out_channels.count - i, with->rows);
            t.a = p->results + n * g->y.point + i;
            t.b = p->batch + n * g->x.point;
            t.c = g->sums + (p->first * WGRAD_IN + n) * g->sum_point + (p->out_channels.first + i) * g->sum_row;
            tiles_multiply(with, t, height, g->a.channels);
        }
}

static void sum_up(void *ctx, int64_t begin, int64_t end, int worker) {
    const gradient *g = ctx;
    char *memory = g->parts + (size_t)worker * g->memory;
    task p;
    float **const areas[] = {&p.input_tile, &p.nhwc, &p.batch, &p.results};
    for (size_t i = 0; i < TN_COUNT(areas); memory += g->bytes[i++])
        *areas[i] = (float *)(void *)memory;
    for (int64_t n = begin; n < end; n++) {
        p.first = n % 2 * HALF;
        p.out_channels = split_range(g->a.out_channels, g->filter_parts, n / 2);
        memset(p.nhwc, 0, g->bytes[TRANSPOSED]); /* lanes beyond the last channel: numbers, whatever they are */
        for (int64_t b = 0; b < g->blocks; b++)
            multiply_winograd_wgrad(
                g, &p, transform_block(g, &p, split_range(g->a.batch * g->image_units, g->blocks, b)), b > 0);
    }
}

/* ---- the gradients ----------------------------------------------------------------------------------------------- */

static void finish_winograd_wgrad(void *ctx, int64_t begin, int64_t end, int worker) {
    const gradient *g = ctx;
    float *taps = (float *)(void *)(g->parts + (size_t)worker * g->memory);
    for (int64_t f = begin; f < end; f++) {
        g->with->winograd_taps(g->sums + f * g->sum_row, g->sum_point, taps, g->sum_row);
        g->with->tiles->pack(&(pack){.to = g->a.out + f * g->a.channels * WGRAD_TAPS,
                                     .distance = WGRAD_TAPS,
                                     .group = WGRAD_TAPS,
                                     .from = taps,
                                     .along = 1,
                                     .across = g->sum_row,
                                     .steps = g->a.channels,
                                     .lines = WGRAD_TAPS});
    }
}

size_t tn_conv_winograd_weight_workspace(const tn_conv_args *args, int threads) {
    gradient g;
    plan_winograd_wgrad(&g, args);
    return im2col_bytes(WGRAD_IN * WGRAD_IN * g.sum_point) + (size_t)(threads > 1 ? threads : 1) * g.memory;
}

void tn_conv_winograd_weight(const tn_conv_args *args) {
    gradient g;
    plan_winograd_wgrad(&g, args);
    int threads = tn_conv_threads(args);
    g.sums = args->workspace;
    g.parts = (char *)args->workspace + im2col_bytes(WGRAD_IN * WGRAD_IN * g.sum_point);
    g.filter_parts = tn_min64(threads % 2 == 0 ? threads / 2 : threads, tn_ceil_div(args->out_channels, MOST_LANES));
    im2col_parallel(2 * g.filter_parts, threads, sum_up, &g);
    im2col_parallel(args->out_channels, threads, finish_winograd_wgrad, &g);
}

/* ---- where it is taken ------------------------------------------------------------------------------------------- */

bool tn_conv_wgrad_winograd_fits(const tn_conv_args *a) {
    enum { WIDEST = 1 << 14 }; /* of so many channels times tiles one row of tiles fills a block */
    bool plain = tn_conv_winograd_fits(a) && a->kernel[0] == 3 && a->dilation[0] == 1;
    return plain && tn_max64(a->channels, a->out_channels) <= WIDEST &&
           tn_ceil_div(a->out_size[1], WGRAD_OUT) <= WIDEST / (a->channels + a->out_channels);
}

/* What takes as long as multiplying so many vectors of 16: fitted to 22 measured pairs of both ways (1 to 128 images of
 * 4×4 to 224×224, 3 to 512 channels and filters, two threads), `value` then set lower, for few channels were judged too
 * slow. Where this says that it pays, it took 0.28 to 1.0 of the time. */
bool tn_conv_wgrad_winograd_pays(const tn_conv_args *a) {
    static const struct {
        double exact, value, sum, call;
    } takes = {
        .exact = 1.34, /* a vector multiplied by the other way */
        .value = 75,   /* a tile of a channel or a filter transformed */
        .sum = 62,     /* what a filter's channel adds up to, back and forth */
        .call = 3e4    /* what does not depend on sizes */
    };
    if (!tn_conv_wgrad_winograd_fits(a)) return false;
    const double pairs = (double)a->channels * (double)a->out_channels, batch = (double)a->batch;
    double tiles = batch * (double)(tn_ceil_div(a->out_size[0], WGRAD_OUT) * tn_ceil_div(a->out_size[1], WGRAD_OUT));
    double fast = takes.value * tiles * (double)(a->channels + a->out_channels) + takes.sum * pairs + takes.call;
    double exact = WGRAD_TAPS * takes.exact * batch * (double)(a->out_size[0] * a->out_size[1]);
    return (exact - WGRAD_IN * WGRAD_IN * tiles) * pairs > fast * MOST_LANES;
}
