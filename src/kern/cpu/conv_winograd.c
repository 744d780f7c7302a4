/* conv_winograd.c — 3×3 convolutions with a stride of 1 by Winograd's algorithm: a quarter of the multiplications.
 *
 * Results are computed in tiles of 4×4. What a tile sees, 6×6 numbers of each channel, becomes 36 values, and so does
 * each filter once, when it is packed. For each of these points sums[filters, tiles] = filters[filters, channels] ·
 * values[channels, tiles] is a product like others, by their micro-kernels; 36 sums become 16 results. The transforms
 * are winograd.h's, and what is known of their error stands in kern/conv.h.
 *
 * A block is some tiles: rows of them, a piece of a long row, or whole images. A thread transforms what a block sees
 * channel after channel, so that the slab of one channel stays in the first cache, and the values of all of them in the
 * second; then some filters at a time are multiplied over it, point after point, and finished a few at a time, for the
 * joint or to where results go. A number depends on its own tile alone: any cut gives the same bits. */
#include "kern/cpu/conv_winograd.h"

#include <string.h>

#include "kern/cpu/cpu.h"
#include "kern/cpu/pooled.h"
#include "kern/cpu/windows.h"

enum {
    OUT = WINOGRAD_OUT,
    IN = WINOGRAD_IN,
    POINTS = WINOGRAD_POINTS,
    OVERLAP = IN - OUT,
    WIDEST_PANEL = 2 * MOST_LANES,
    VALUE_ELEMENTS = 160 << 10, /* of a block, at most: a third of the second cache */
    MOST_TILES = TN_GEMM_BLOCK_LD / OUT,
    FILTERS = 28,          /* that are multiplied at once: their sums and the values fit the second cache together */
    RESULT_ELEMENTS = 6144 /* that are finished at once, in elements: half of the first cache */
};

/* Of the memory of a thread. */
enum { LINES, SLAB, VALUES, SUMS, RESULTS, PARTS };

typedef struct winograd {
    tn_conv_args a;
    const conv_lines *with;
    int64_t down, across;                                   /* tiles of an image */
    int64_t images, rows, columns;                          /* of a block, at most: images, and tiles in each */
    int64_t image_blocks, row_blocks, column_blocks, parts; /* parts: of the filters */
    int64_t tiles;                     /* of a block, rounded up to panels: distance of channels and sums */
    int64_t line, plane, values, sums; /* distance of lines, of planes of the slab, of points */
    int64_t filters, few;              /* that are multiplied, and finished, at once */
    int64_t box_rows;                  /* rows of results in a block for the joint */
    size_t bytes[PARTS], part_bytes;   /* of a block's memory: in the order of its struct */
    char *memory;
} winograd;

/* ---- filters, packed --------------------------------------------------------------------------------------------- */

/* Point p's filters lie at p · filters · channels, as tiles like those of any product. */
size_t tn_conv_winograd_packed_bytes(const tn_conv_args *a) { return windows_area(POINTS * a->filters * a->channels); }

typedef struct packing {
    const tn_conv_args *a;
    int64_t full; /* rows of a tile */
    float *to;
} packing;

/* Values of a filter's three taps at the points of winograd.h, each divided by what its distances from the other points
 * multiply to. */
static void values_of_taps(const double *g, int64_t step, double *u) {
    static const double point[] = {0.75, 1.5};
    u[0] = g[0] * (64.0 / 81.0);
    u[IN - 1] = g[2 * step];
    for (int i = 0; i < 2; i++) {
        double p = point[i], q = point[1 - i], even = g[0] + p * p * g[2 * step], odd = p * g[step];
        double scale = 1 / (2 * p * p * (p * p - q * q));
        u[1 + 2 * i] = (even + odd) * scale;
        u[2 + 2 * i] = (even - odd) * scale;
    }
}

/* Element p of a filter's channel to[p · distance]. */
static void pack_taps(const tn_conv_args *a, const float *from, float *to, int64_t distance) {
    double g[9], half[3][IN], column[3], u[IN];
    for (int64_t k = 0; k < 9; k++)
        g[k] = (double)from[k / 3 * a->weight_stride[2] + k % 3 * a->weight_stride[3]];
    for (int i = 0; i < 3; i++)
        values_of_taps(g + 3 * i, 1, half[i]);
    for (int j = 0; j < IN; j++) {
        for (int i = 0; i < 3; i++)
            column[i] = half[i][j];
        values_of_taps(column, 1, u);
        for (int i = 0; i < IN; i++)
            to[(i * IN + j) * distance] = (float)u[i];
    }
}

static void pack_filters(void *ctx, int64_t begin, int64_t end, int worker) {
    const packing *p = ctx;
    const tn_conv_args *a = p->a;
    (void)worker;
    for (int64_t i = 0, rows = 0; i < end; i += rows) {
        rows = tile_height(a->filters - i, p->full);
        for (int64_t f = tn_max64(i, begin); f < tn_min64(i + rows, end); f++)
            for (int64_t c = 0; c < a->channels; c++) {
                const float *from = a->weight + f * a->weight_stride[0] + c * a->weight_stride[1];
                pack_taps(a, from, p->to + i * a->channels + c * rows + f - i, a->filters * a->channels);
            }
    }
}

void tn_conv_winograd_pack(const tn_conv_args *a, void *to) {
    enum { PART_FILTERS = 1 << 8 };
    packing p = {a, tn_conv_lines()->tiles->rows, to};
    tn_parallel(a->filters, tn_max64(PART_FILTERS / a->channels, 1), pack_filters, &p);
}

/* ---- sizes ------------------------------------------------------------------------------------------------------- */

bool tn_conv_winograd_fits(const tn_conv_args *a) {
    bool fits = a->groups == 1 && windows_are_small(a) && tn_conv_lines()->winograd_rows;
    for (int d = 0; d < 2; d++)
        fits = fits && a->kernel[d] == 3 && a->stride[d] == 1 && a->dilation[d] == 1;
    return fits;
}

/* A block as large as the caches have room for. */
static void choose_block(winograd *w) {
    const tn_conv_args *a = &w->a;
    w->down = tn_ceil_div(a->places[0], OUT);
    w->across = tn_ceil_div(a->places[1], OUT);
    int64_t most = tn_max64(tn_min64(VALUE_ELEMENTS / POINTS / a->channels, MOST_TILES), WIDEST_PANEL);
    w->images = w->rows = 1;
    w->columns = w->across;
    if (a->pool[0] > 0) most = tn_max64(most, w->across);                  /* whole rows are pooled */
    if (w->across > most) w->columns = most / WIDEST_PANEL * WIDEST_PANEL; /* all panels but the last are full */
    if (w->columns < w->across) return;
    w->rows = tn_min64(w->down, most / w->across);
    if (w->rows == w->down) w->images = tn_min64(a->images, most / (w->down * w->across));
}

static void plan(winograd *w, const tn_conv_args *args) {
    *w = (winograd){.a = *args, .with = tn_conv_lines()};
    const tn_conv_args *a = &w->a;
    choose_block(w);
    const int64_t columns = tn_min64(w->columns * OUT, a->places[1]);
    w->tiles = round_up(w->images * w->rows * w->columns, WIDEST_PANEL);
    w->line = round_up(w->columns * OUT + OVERLAP, MOST_LANES);
    w->plane = (w->rows + 1) * w->columns + MOST_LANES;
    w->filters = tn_min64(a->filters, FILTERS);
    w->values = a->channels * w->tiles + MOST_LANES; /* an odd number of lines apart: all sets of the first cache */
    w->sums = w->filters * w->tiles + MOST_LANES;
    w->few = tn_min64(tn_max64(RESULT_ELEMENTS / (w->rows * OUT * columns), 1), w->filters);
    w->box_rows = w->columns < w->across ? 1 : TN_GEMM_BLOCK_LD / columns / pooled_rows(a) * pooled_rows(a);
    w->bytes[LINES] = windows_area((w->rows * OUT + OVERLAP) * w->line + (OUT + 1) * MOST_LANES);
    w->bytes[SLAB] = windows_area(OUT * IN * w->plane);
    w->bytes[VALUES] = windows_area(POINTS * w->values);
    w->bytes[SUMS] = windows_area(POINTS * w->sums);
    if (a->joint.vm)
        w->bytes[RESULTS] = windows_area(tn_ceil_div(w->rows * OUT, w->box_rows) * w->few * TN_GEMM_BLOCK_LD);
    w->part_bytes = port_scratch(&a->joint, 0);
    for (int i = 0; i < PARTS; i++)
        w->part_bytes += w->bytes[i];
}

/* What takes as long as multiplying so many vectors of 16: fitted to 154 measured pairs of both ways (1 to 32 images of
 * 4×4 to 450×60, 3 to 512 channels and filters, two threads). Where this says that it pays, it took 0.3 to 1.05 of the
 * time. */
static const struct {
    double exact, line, tile, result, filter, far, call;
} takes = {
    .exact = 1.5,   /* a vector multiplied by the other ways */
    .line = 90,     /* a vector of tiles transformed along a row of a channel … */
    .tile = 400,    /* … and down */
    .result = 1200, /* a filter's finished */
    .filter = 40,   /* reading one of a channel */
    .far = 160,     /* … of more than FAR bytes: other programs may want the memory's speed too */
    .call = 4e4     /* what does not depend on sizes */
};
enum { FAR = 16 << 20 };

bool tn_conv_winograd_pays(const tn_conv_args *a) {
    bool pools = a->pool[0] == 0 || a->pool[0] * a->places[1] <= TN_GEMM_BLOCK_LD;
    if (!pools || !tn_conv_winograd_fits(a)) return false;
    const int64_t down = tn_ceil_div(a->places[0], OUT), across = tn_ceil_div(a->places[1], OUT), lanes = MOST_LANES;
    const double c = (double)a->channels, f = (double)a->filters, images = (double)a->images;
    double tiles = images * (double)tn_ceil_div(down * across, lanes);
    double lines = images * (double)((down * OUT + OVERLAP) * tn_ceil_div(across, lanes));
    double products = POINTS * (double)tn_ceil_div(a->images * down * across, lanes);
    double reading = tn_conv_winograd_packed_bytes(a) > FAR ? takes.far : takes.filter;
    double fast = c * (takes.line * lines + takes.tile * tiles) + takes.result * f * tiles + takes.call;
    fast += c * f * (products + reading);
    return takes.exact * 9 * c * f * images * (double)(a->places[0] * a->places[1]) > fast * (double)lanes;
}

/* Blocks are as alike as can be, and as many for each thread; where they would become too small for full panels,
 * threads share the filters, and each transforms what they see. */
static void share_out(winograd *w, int threads) {
    w->image_blocks = tn_ceil_div(w->a.images, w->images);
    w->row_blocks = tn_ceil_div(w->down, w->rows);
    w->column_blocks = tn_ceil_div(w->across, w->columns);
    w->parts = 1;
    int64_t all = w->image_blocks * w->row_blocks * w->column_blocks, image = w->down * w->across;
    if (all % threads == 0 || all > 8 * threads) return;
    int64_t images = round_up(w->image_blocks, threads), rows = round_up(w->row_blocks, threads);
    if (w->image_blocks > 1 && w->a.images / images * image >= WIDEST_PANEL)
        w->image_blocks = images;
    else if (rows <= w->down && tn_ceil_div(w->down, rows) * w->columns * 4 >= 3 * MOST_LANES)
        w->row_blocks = rows;
    else if (all < threads)
        w->parts = tn_min64(tn_ceil_div(threads, all), tn_ceil_div(w->a.filters, w->with->tiles->rows));
}

/* ---- a block ----------------------------------------------------------------------------------------------------- */

/* Images, and rows and columns of tiles in each: [first, first + count). */
typedef struct range {
    int64_t first, count;
} range;

typedef struct block {
    range image, row, column, filter;
    float *lines, *slab, *values, *sums, *results;
    port joint;
    int64_t low[2], high[2]; /* rows and columns of `lines` that are the image's; the others are zero */
} block;

static range cut(int64_t count, int64_t parts, int64_t number) {
    int64_t first = count * number / parts;
    return (range){first, count * (number + 1) / parts - first};
}

/* Which rows and columns of what the block's tiles see lie in the image: [low, high). */
static void look(int64_t first, int64_t length, int64_t size, int64_t *low, int64_t *high) {
    *low = tn_min64(tn_max64(-first, 0), length);
    *high = tn_max64(tn_min64(size - first, length), *low);
}

/* The block's piece of one channel of an image. */
static const float *piece_of(const winograd *w, const block *b, int64_t number) {
    const tn_conv_args *a = &w->a;
    const float *x = a->x + (b->image.first + number % b->image.count) * a->x_stride[0];
    x += number / b->image.count * a->x_stride[1];
    x += (b->row.first * OUT - a->before[0] + b->low[0]) * a->x_stride[2];
    return x + (b->column.first * OUT - a->before[1] + b->low[1]) * a->x_stride[3];
}

/* Channel after channel, and of each one image after the other. */
static void transform_tiles(const winograd *w, block *b) {
    const tn_conv_args *a = &w->a;
    const int64_t tiles = b->row.count * b->column.count, length = b->row.count * OUT + OVERLAP;
    const int64_t pieces = a->channels * b->image.count;
    look(b->row.first * OUT - a->before[0], length, a->size[0], &b->low[0], &b->high[0]);
    look(b->column.first * OUT - a->before[1], b->column.count * OUT + OVERLAP, a->size[1], &b->low[1], &b->high[1]);
    memset(b->lines, 0, w->bytes[LINES]); /* what lies outside of the image stays so */
    for (int64_t n = 0; n < pieces; n++) {
        w->with->copy_rows(b->lines + b->low[0] * w->line + b->low[1], w->line, piece_of(w, b, n), a->x_stride[2],
                           b->high[0] - b->low[0], a->x_stride[3], b->high[1] - b->low[1]);
        w->with->winograd_rows(b->lines, w->line, length, b->slab, w->plane, b->column.count);
        float *to = b->values + n / b->image.count * w->tiles + n % b->image.count * tiles;
        w->with->winograd_columns(b->slab, w->plane, b->column.count, to, w->values, tiles);
    }
}

/* Filters [first, first + count), which are whole tiles of packed ones, over all tiles of the block. */
static void multiply(const winograd *w, const block *b, range filters) {
    const tn_conv_args *a = &w->a;
    const int64_t panel = 2 * w->with->tiles->lanes, height = w->with->tiles->rows;
    int64_t tiles = b->image.count * b->row.count * b->column.count;
    if (tiles % panel > panel / 2) tiles = round_up(tiles, panel);
    for (int64_t p = 0; p < POINTS; p++) {
        const float *packed = (const float *)a->packed + p * a->filters * a->channels;
        tile t = {.a_row = 1, .b_k = w->tiles, .b_panel = panel, .c_row = w->tiles, .k = a->channels};
        for (int64_t f = filters.first; f < filters.first + filters.count; f += t.a_k) {
            t.a_k = tile_height(a->filters - f, height);
            t.a = packed + f * a->channels;
            t.b = b->values + p * w->values;
            t.c = b->sums + p * w->sums + (f - filters.first) * w->tiles;
            tiles_multiply(w->with->tiles, t, t.a_k, tiles);
        }
    }
}

/* The rows of one image's results: in memory, of the first filter; or in blocks for the joint, `few` filters each. */
static winograd_area area_of(const winograd *w, const block *b, int64_t image, float **row) {
    const tn_conv_args *a = &w->a;
    winograd_area area = {.row = row, .down = b->row.count, .across = b->column.count};
    const int64_t top = b->row.first * OUT, left = b->column.first * OUT;
    area.rows = tn_min64(a->places[0] - top, area.down * OUT);
    area.columns = tn_min64(a->places[1] - left, area.across * OUT);
    for (int64_t y = 0; y < area.rows; y++)
        if (b->joint.vm)
            row[y] = b->results + y / w->box_rows * w->few * TN_GEMM_BLOCK_LD + y % w->box_rows * area.columns;
        else
            row[y] = a->out + (image * a->filters * a->places[0] + top + y) * a->places[1] + left;
    return area;
}

/* `filters` have been finished; their results lie in blocks. */
static void join(const winograd *w, block *b, const winograd_area *area, int64_t image, range filters) {
    const int64_t first = b->row.first * OUT * w->a.places[1] + b->column.first * OUT;
    for (int64_t y = 0; y < area->rows; y += w->box_rows) {
        box at = {filters.first, filters.count, first + y * w->a.places[1],
                  tn_min64(area->rows - y, w->box_rows) * area->columns};
        hand_over(&b->joint, w->with, &w->a, image, at, area->row[y]);
    }
}

static void finish(const winograd *w, block *b, range filters) {
    float *row[MOST_TILES * OUT];
    const int64_t tiles = b->row.count * b->column.count, plane = w->a.places[0] * w->a.places[1];
    for (int64_t i = 0; i < b->image.count; i++) {
        winograd_area area = area_of(w, b, b->image.first + i, row);
        for (int64_t f = 0, few = 0; f < filters.count; f += few) {
            few = tn_min64(w->few, filters.count - f);
            for (int64_t k = 0; k < few; k++)
                w->with->winograd_finish(&area, b->sums + (f + k) * w->tiles + i * tiles, w->sums,
                                         b->joint.vm ? k * TN_GEMM_BLOCK_LD : (filters.first + f + k) * plane);
            if (b->joint.vm) join(w, b, &area, b->image.first + i, (range){filters.first + f, few});
        }
    }
}

/* Whole tiles of filters: as many as there is room for sums, or are left. */
static range next_filters(const winograd *w, int64_t first, int64_t end) {
    const int64_t height = w->with->tiles->rows;
    range r = {first, 0};
    for (int64_t next = 0; first + r.count < end; r.count += next) {
        next = tile_height(w->a.filters - first - r.count, height);
        if (r.count > 0 && r.count + next > w->filters) break;
    }
    return r;
}

static void compute_block(const winograd *w, block *b) {
    const int64_t end = b->filter.first + b->filter.count;
    transform_tiles(w, b);
    for (range r = {b->filter.first, 0}; r.first < end; r.first += r.count) {
        r = next_filters(w, r.first, end);
        multiply(w, b, r);
        finish(w, b, r);
    }
}

/* Part `number` of the filters: whole tiles. */
static range part_of_filters(const winograd *w, int64_t number) {
    const int64_t height = w->with->tiles->rows, all = w->a.filters;
    range tiles = cut(tn_ceil_div(all, height), w->parts, number), r = {0, 0};
    for (int64_t n = 0, row = 0; row < all; n++) {
        if (n == tiles.first) r.first = row;
        row += tile_height(all - row, height);
        if (n + 1 == tiles.first + tiles.count) r.count = row - r.first;
    }
    return r;
}

static void compute_blocks(void *ctx, int64_t begin, int64_t end, int worker) {
    const winograd *w = ctx;
    char *memory = w->memory + (size_t)worker * w->part_bytes;
    block b;
    float **const parts[] = {&b.lines, &b.slab, &b.values, &b.sums, &b.results};
    for (size_t i = 0; i < TN_COUNT(parts); memory += w->bytes[i++])
        *parts[i] = (float *)(void *)memory;
    port_open(&b.joint, &w->a.joint, memory);
    for (int64_t n = begin; n < end; n++) {
        int64_t at = n;
        b.column.first = at % w->column_blocks * w->columns;
        b.column.count = tn_min64(w->columns, w->across - b.column.first);
        at /= w->column_blocks;
        b.row = cut(w->down, w->row_blocks, at % w->row_blocks);
        at /= w->row_blocks;
        b.image = cut(w->a.images, w->image_blocks, at % w->image_blocks);
        b.filter = part_of_filters(w, at / w->image_blocks);
        compute_block(w, &b);
    }
}

/* ---- all of them ------------------------------------------------------------------------------------------------- */

size_t tn_conv_winograd_workspace(const tn_conv_args *args, int threads) {
    winograd w;
    plan(&w, args);
    return (size_t)(threads > 1 ? threads : 1) * w.part_bytes;
}

void tn_conv_winograd(const tn_conv_args *args, void *workspace) {
    winograd w;
    plan(&w, args);
    int threads = windows_threads(args);
    share_out(&w, threads);
    w.memory = workspace;
    int64_t tasks = w.image_blocks * w.row_blocks * w.column_blocks * w.parts;
    if (threads == 1) {
        compute_blocks(&w, 0, tasks, 0);
    } else {
        tn_parallel(tasks, 1, compute_blocks, &w);
    }
}
