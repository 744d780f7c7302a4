/* conv_beside.c — convolutions of many images of few places: images are the rows of the product, filters its columns.
 *
 * The tiles are those of conv_turned.c, but where an image has a handful of places in a row they would be low. So some
 * images are turned into a slab, where an element of all of them is a row: at any tap of any place, what images see
 * lies side by side, and what lies outside of them is a row of zeros. Each place has a table of its own of where its
 * taps are. Sums of an image lie together, and are turned as they are written out, or handed to the joint. The chains
 * are those of conv.c. */
#include "kern/cpu/conv_beside.h"

#include <string.h>

#include "kern/cpu/cpu.h"
#include "kern/cpu/port.h"
#include "kern/cpu/windows.h"

enum {
    CHUNK = KIR_KSUM,
    MOST_IMAGES = 28,    /* of a block: two tiles of full height */
    LEAST_IMAGES = 4,    /* tiles are no lower */
    ACROSS = 8,          /* from so many places in a row on, tiles along it are as good */
    MOST_TAPS = 1 << 12, /* of all places: tables are made at each run */
    LEAST_DEPTH = 64,    /* steps of k, or turning takes longer than it gains */
    SLAB = 1 << 17       /* elements: a part of the second cache */
};

typedef struct beside {
    tn_conv_args a;
    const conv_lines *with;
    int64_t panel, panels;         /* columns of a panel; panels of the filters */
    int64_t places, pixels, depth; /* of an image; of all its channels; steps of k */
    int64_t row;                   /* distance of the slab's rows */
    int64_t blocks, parts;         /* of images; of panels */
    const float *packed;
    int64_t *tap; /* [places, depth] */
    size_t tap_bytes, slab_bytes, sums_bytes, block_bytes, part_bytes;
    char *memory;
} beside;

static void plan(beside *b, const tn_conv_args *args) {
    *b = (beside){.a = *args, .with = tn_conv_lines(), .packed = args->packed};
    b->panel = 2 * b->with->tiles->lanes;
    b->panels = tn_ceil_div(args->filters, b->panel);
    b->places = args->places[0] * args->places[1];
    b->pixels = args->channels * args->size[0] * args->size[1];
    b->depth = args->channels * args->kernel[0] * args->kernel[1];
    b->blocks = tn_ceil_div(args->images, MOST_IMAGES);
    b->parts = 1;
    b->row = tn_ceil_div(args->images, b->blocks);
    b->tap_bytes = ((size_t)(b->places * b->depth) * sizeof(int64_t) + 63) / 64 * 64;
    b->slab_bytes = windows_area((b->pixels + 1) * b->row + MOST_LANES);
    b->sums_bytes = windows_area(b->row * b->places * b->panel);
    b->block_bytes = args->joint.vm ? windows_area(b->panel * TN_GEMM_BLOCK_LD) : 0;
    b->part_bytes = b->slab_bytes + b->sums_bytes + b->block_bytes + port_scratch(&args->joint, 0);
}

/* Columns of the last panel that are none are summed all the same: an eighth of them at most. */
bool tn_conv_beside_fits(const tn_conv_args *a) {
    beside b;
    if (a->groups != 1 || a->pool[0] > 0 || a->images < LEAST_IMAGES || a->places[1] >= ACROSS) return false;
    if ((double)a->size[0] * (double)a->size[1] * (double)a->channels > SLAB) return false;
    plan(&b, a);
    bool deep = b.depth >= LEAST_DEPTH && (double)b.depth * (double)b.places <= MOST_TAPS;
    return deep && (b.pixels + 1) * b.row <= SLAB && 8 * b.panels * b.panel <= 9 * a->filters;
}

/* ---- what is seen ------------------------------------------------------------------------------------------------ */

/* A place's taps of the first channel, then those of the others: as many rows further, or the row of zeros again. */
static void find_taps(const beside *b, int64_t place, int64_t *tap) {
    const tn_conv_args *a = &b->a;
    const int64_t taps = a->kernel[0] * a->kernel[1], channel = a->size[0] * a->size[1] * b->row;
    for (int64_t k = 0; k < taps; k++) {
        int64_t y = place / a->places[1] * a->stride[0] - a->before[0] + k / a->kernel[1] * a->dilation[0];
        int64_t x = place % a->places[1] * a->stride[1] - a->before[1] + k % a->kernel[1] * a->dilation[1];
        bool there = y >= 0 && y < a->size[0] && x >= 0 && x < a->size[1];
        const int64_t step = there ? channel : 0;
        int64_t at = there ? (y * a->size[1] + x) * b->row : b->pixels * b->row;
        for (int64_t n = k; n < b->depth; n += taps, at += step)
            tap[n] = at;
    }
}

/* Elements of an image that follow each other are turned together. */
static void fill(const beside *b, int64_t first, int64_t images, float *slab) {
    const tn_conv_args *a = &b->a;
    const int64_t *s = a->x_stride, across = a->size[1], down = a->size[0];
    bool rows = down == 1 || s[2] == across * s[3], planes = rows && (a->channels == 1 || s[1] == down * across * s[3]);
    const int64_t run = planes ? b->pixels : rows ? down * across : across;
    for (int64_t at = 0; at < b->pixels; at += run) {
        int64_t channel = at / (down * across), line = at / across % down;
        b->with->tiles->pack(&(pack){.to = slab + at * b->row,
                                     .distance = b->row,
                                     .group = images,
                                     .from = a->x + first * s[0] + channel * s[1] + line * s[2],
                                     .along = s[3],
                                     .across = s[0],
                                     .steps = run,
                                     .lines = images});
    }
    memset(slab + b->pixels * b->row, 0, (size_t)b->row * sizeof *slab);
}

/* ---- a block ----------------------------------------------------------------------------------------------------- */

/* Panel n of the filters over all places of some images. */
static void multiply(const beside *b, int64_t n, int64_t images, const float *slab, float *sums) {
    const tile_set *with = b->with->tiles;
    const int64_t c_row = b->places * b->panel;
    for (int64_t k0 = 0; k0 < b->depth; k0 += CHUNK)
        for (int64_t place = 0; place < b->places; place++) {
            tile t = {.a = slab,
                      .b = b->packed + (n * b->depth + k0) * b->panel,
                      .tap = b->tap + place * b->depth + k0,
                      .c = sums + place * b->panel,
                      .c_row = c_row,
                      .k = tn_min64(CHUNK, b->depth - k0),
                      .add = k0 > 0};
            for (int64_t left = images, rows = 0; left > 0; left -= rows, t.a += rows, t.c += rows * c_row) {
                rows = tile_turned_height(left, with->rows);
                with->turned[rows](&t);
            }
        }
}

/* `filters` of them from `first` on, of images from `image` on: to where results go, or one image after the other to
 * the joint. */
static void write_out(const beside *b, port *joint, box filters, int64_t image, int64_t images, const float *sums,
                      float *block) {
    const tn_conv_args *a = &b->a;
    pack turn = {.to = block,
                 .distance = TN_GEMM_BLOCK_LD,
                 .group = b->places,
                 .from = sums,
                 .along = 1,
                 .across = b->panel,
                 .steps = filters.rows,
                 .lines = b->places};
    if (!joint->vm) {
        turn.to = a->out + (image * a->filters + filters.row) * b->places;
        turn.distance = b->places;
        turn.jump = a->filters * b->places;
        turn.lines = images * b->places;
        b->with->tiles->pack(&turn);
        return;
    }
    for (int64_t i = 0; i < images; i++) {
        turn.from = sums + i * b->places * b->panel;
        b->with->tiles->pack(&turn);
        port_run(joint, (const int64_t[TN_GEMM_BATCH_AXES]){0, 0, 0, image + i}, filters, block);
    }
}

static void compute_blocks(void *ctx, int64_t begin, int64_t end, int worker) {
    const beside *b = ctx;
    char *memory = b->memory + (size_t)worker * b->part_bytes;
    float *slab = (float *)(void *)memory, *sums = (float *)(void *)(memory + b->slab_bytes);
    float *block = (float *)(void *)(memory + b->slab_bytes + b->sums_bytes);
    port joint;
    port_open(&joint, &b->a.joint, (char *)block + b->block_bytes);
    for (int64_t task = begin; task < end; task++) {
        const int64_t number = task / b->parts, part = task % b->parts;
        const int64_t image = b->a.images * number / b->blocks, images = b->a.images * (number + 1) / b->blocks - image;
        fill(b, image, images, slab);
        for (int64_t n = b->panels * part / b->parts; n < b->panels * (part + 1) / b->parts; n++) {
            box filters = {n * b->panel, tn_min64(b->panel, b->a.filters - n * b->panel), 0, b->places};
            multiply(b, n, images, slab, sums);
            write_out(b, &joint, filters, image, images, sums, block);
        }
    }
}

/* ---- all of them ------------------------------------------------------------------------------------------------- */

size_t tn_conv_beside_workspace(const tn_conv_args *args, int threads) {
    beside b;
    plan(&b, args);
    return b.tap_bytes + (size_t)(threads > 1 ? threads : 1) * b.part_bytes;
}

/* Threads share images; of a few of them panels, each of which is then read by one thread. */
void tn_conv_beside(const tn_conv_args *args, void *workspace) {
    beside b;
    plan(&b, args);
    const int threads = tn_windows_threads(args);
    b.tap = workspace;
    b.memory = (char *)workspace + b.tap_bytes;
    for (int64_t place = 0; place < b.places; place++)
        find_taps(&b, place, b.tap + place * b.depth);
    if (b.blocks < threads) b.parts = tn_min64(threads / b.blocks, b.panels);
    if (threads == 1) {
        compute_blocks(&b, 0, b.blocks, 0);
    } else {
        tn_parallel(b.blocks * b.parts, 1, compute_blocks, &b);
    }
}
