/* conv_bytes.c — convolutions of bytes: sums in i32, or rounded to bytes while they are in the cache; max pooling.
 *
 * Processors add up four products of bytes in a lane: a word of four channels of a pixel times the word of the same
 * channels of a filter. So images are first copied to planes of such words, padded with the byte `outside`: for the
 * tiles these are images with a quarter of the channels and no padding. The missing channels of the last word are zeros
 * there or in the filters. conv_nhwc.c does the rest. Images that lie in words already (plan/byte_layout.c) are copied
 * unchanged, or not at all if windows have one tap.
 *
 * For windows of one channel (depthwise, pooling) an input tile of words is filled, four channels at a time. */
#include <stdlib.h>
#include <string.h>

#include "cpu/conv_paths.h"
#include "cpu/isa.h"

enum {
    QUAD = 4,
    SIGN = 0x80, /* i8 is read as u8, with 128 added: the upper bit is inverted */
    SIGNS = 0x80808080,
    VECTOR = 16 /* words of the widest vector */
};

const tn_byte_rounding tn_any_byte_rounding;

static int64_t words_of(int64_t channels) { return tn_ceil_div(channels, QUAD); }
static uint32_t in_word(uint8_t byte) { return byte * 0x01010101U; }

/* ==== channels in words =========================================================================================== */

/* Whether the tiles can read the image in place: in words, unsigned, windows of one tap, no padding, stride 1. */
static bool stays(const tn_conv_args *a) {
    bool tap = a->x_blocks && !a->x_signed && a->kernel[0] * a->kernel[1] == 1;
    for (int d = 0; d < 2; d++)
        tap = tap && a->stride[d] == 1 && a->pad_before[d] == 0 && a->out_size[d] <= a->size[d];
    return tap;
}

/* The convolution of words: sizes, and strides of its planes, which begin in all sets of the first cache. */
static tn_conv_args quads_of(const tn_conv_args *a) {
    tn_conv_args q = *a;
    q.quads = q.nhwc = true;
    q.x_blocks = q.y_blocks = false;
    q.channels = words_of(a->channels);
    if (stays(a)) {
        const int64_t pixels = a->size[0] * a->size[1];
        memcpy(q.x_stride, (const int64_t[]){pixels * q.channels * a->groups, pixels, a->size[1], 1},
               sizeof q.x_stride);
        return q;
    }
    for (int d = 0; d < 2; d++) {
        q.size[d] = (a->out_size[d] - 1) * a->stride[d] + window_reach(a, d);
        q.pad_before[d] = 0;
    }
    int64_t plane = odd_lines(q.size[0] * q.size[1]);
    memcpy(q.x_stride, (const int64_t[]){plane * q.channels * a->groups, plane, q.size[1], 1}, sizeof q.x_stride);
    return q;
}

/* Size of the planes of words that x is copied to. */
static size_t image_bytes(const tn_conv_args *a) {
    const tn_conv_args q = quads_of(a);
    return stays(a) ? 0 : im2col_bytes(q.batch * q.x_stride[0]);
}

int64_t tn_conv_word_bytes(int64_t batch, int64_t channels, int64_t plane) {
    return batch * words_of(channels) * plane * QUAD;
}

/* ---- filters ----------------------------------------------------------------------------------------------------- */

/* Where tiles saturate sums of two products to 16 bits, steps in which these may be larger (PAIR_MOST) take tiles for
 * filters of 16 bits. */

typedef struct bytes_packing {
    const tn_conv_args *a;
    int64_t panel, panels, steps; /* columns of a panel; panels, steps of k a group */
    int8_t *to;
    int32_t *order; /* NULL: nothing saturates */
} bytes_packing;

static int64_t steps_of(const tn_conv_args *a) { return words_of(a->channels) * a->kernel[0] * a->kernel[1]; }

static bool saturates(void) { return tn_byte_tiles()->bytes->order; }

static size_t filters_bytes(const tn_conv_args *a) {
    const tn_conv_args q = quads_of(a);
    return tn_conv_nhwc_packed_bytes(&q) * (saturates() ? 2 : 1);
}

static size_t order_bytes(const tn_conv_args *a) {
    const int64_t panels = a->groups * tn_ceil_div(a->out_channels, panel_of(tn_conv_vec()));
    return saturates() ? im2col_bytes(panels * (2 + steps_of(a))) : 0;
}

/* Whether products of a step, or of two steps together, fit into 16 bits. */
static bool fit_into_16_bits(const int8_t *step, const int8_t *other, int64_t bytes) {
    int most = 0;
    for (int64_t i = 0; i < bytes; i += 2) {
        int above = 0, below = 0;
        for (int k = 0; k < 2; k++) {
            const int a = step[i + k], b = other ? other[i + k] : 0;
            above += (a > 0 ? a : 0) + (b > 0 ? b : 0);
            below += (a < 0 ? a : 0) + (b < 0 ? b : 0);
        }
        most = above > most ? above : most;
        most = -below > most ? -below : most;
    }
    return most <= PAIR_MOST;
}

/* Lists the steps whose products fit into 16 bits: those that do so by two first. Counts both. */
static void list_fitting(const int8_t *from, int64_t step, int64_t steps, int32_t counts[2], int32_t *order) {
    enum { WAITING = 16 }; /* steps that others are tried with: nearly all find one among these if half of them fit */
    int32_t waiting[WAITING];
    int64_t count = 0, two = 0, one = 0; /* the latter at the end of the list until all are there */
    for (int64_t k = 0, i; k < steps; k++) {
        if (!fit_into_16_bits(from + k * step, NULL, step)) continue;
        for (i = 0; i < count && !fit_into_16_bits(from + k * step, from + waiting[i] * step, step);)
            i++;
        if (i < count) {
            order[two++] = waiting[i];
            order[two++] = (int32_t)k;
            waiting[i] = waiting[--count];
            continue;
        }
        if (count == WAITING) order[steps - ++one] = waiting[--count];
        waiting[count++] = (int32_t)k;
    }
    while (count > 0)
        order[steps - ++one] = waiting[--count];
    memmove(order + two, order + steps - one, (size_t)one * sizeof *order);
    counts[0] = (int32_t)two;
    counts[1] = (int32_t)one;
}

/* A step in 16 bits: bytes 0 and 2 of each word, then bytes 1 and 3. `to` may end where `step` does. */
static void widen_step(int8_t *to, const int8_t *step, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += QUAD) {
        const int16_t wide[QUAD] = {step[i], step[i + 2], step[i + 1], step[i + 3]};
        memcpy(to + i, wide, QUAD);
        memcpy(to + bytes + i, wide + 2, QUAD);
    }
}

/* Orders the steps of panel n, which lie in the second half of its room. Its first half is large enough for those that
 * are not widened; the others, twice as large, end behind their own place at most when it is their turn. */
static void order_steps(const bytes_packing *p, int64_t n) {
    const int64_t step = p->panel * QUAD;
    int32_t *counts = p->order + n * (2 + p->steps), *order = counts + 2, *wide;
    int8_t *to = p->to + 2 * n * p->steps * step;
    const int8_t *from = to + p->steps * step;
    list_fitting(from, step, p->steps, counts, order);
    wide = order + counts[0] + counts[1];
    for (; order < wide; order++, to += step)
        memcpy(to, from + *order * step, (size_t)step);
    for (int64_t k = 0; k < p->steps; k++) {
        if (fit_into_16_bits(from + k * step, NULL, step)) continue;
        widen_step(to, from + k * step, step);
        to += 2 * step;
        *wide++ = (int32_t)k;
    }
}

/* Filter `filter` of a group as column `column` of the panel at `to`. */
static void pack_filter(const bytes_packing *p, const int8_t *from, int64_t column, int8_t *to) {
    const tn_conv_args *a = p->a;
    const int64_t *s = a->weight_stride, taps = a->kernel[0] * a->kernel[1];
    for (int64_t c = 0; c < a->channels; c++)
        for (int64_t t = 0; t < taps; t++)
            to[((c / QUAD * taps + t) * p->panel + column) * QUAD + c % QUAD] =
                from[c * s[1] + t / a->kernel[1] * s[2] + t % a->kernel[1] * s[3]];
}

static void bytes_pack_panels(void *ctx, int64_t begin, int64_t end, TN_UNUSED int worker) {
    const bytes_packing *p = ctx;
    const tn_conv_args *a = p->a;
    const int64_t bytes = p->steps * p->panel * QUAD;
    for (int64_t n = begin; n < end; n++) {
        const int64_t first = n % p->panels * p->panel, out_channels = tn_min64(p->panel, a->out_channels - first);
        const int8_t *from = (const int8_t *)(const void *)a->weight + n / p->panels * a->weight_group;
        int8_t *to = p->to + (p->order ? 2 * n + 1 : n) * bytes;
        memset(to, 0, (size_t)bytes);
        for (int64_t column = 0; column < out_channels; column++)
            pack_filter(p, from + (first + column) * a->weight_stride[0], column, to);
        if (p->order) order_steps(p, n);
    }
}

/* The convolution of words whose filters lie at `packed`. */
static tn_conv_args with_packed(const tn_conv_args *a, const void *packed) {
    tn_conv_args q = quads_of(a);
    q.packed = packed;
    q.order = saturates() ? (const int32_t *)(const void *)((const char *)packed + filters_bytes(a)) : NULL;
    return q;
}

/* Filters, then the order of their steps. */
static void pack_words(const tn_conv_args *args, void *to) {
    enum { PART_BYTES = 1 << 14 };
    bytes_packing p = {.a = args, .panel = panel_of(tn_conv_vec()), .steps = steps_of(args), .to = to};
    p.order = (int32_t *)(uintptr_t)with_packed(args, to).order;
    p.panels = tn_ceil_div(args->out_channels, p.panel);
    int64_t bytes = p.panel * args->channels * args->kernel[0] * args->kernel[1];
    tn_parallel(args->groups * p.panels, tn_max64(PART_BYTES / bytes, 1), bytes_pack_panels, &p);
}

/* ---- images ------------------------------------------------------------------------------------------------------ */

typedef struct widening {
    const tn_conv_args *a, *q;
    const tile_set *tiles;
    range inside[2];          /* rows and columns of the planes that are the image's */
    uint32_t outside, turned; /* turned: bits of all words */
    uint32_t *to;
} widening;

static void copy_words(uint32_t *to, const uint32_t *from, int64_t count, uint32_t turned) {
    for (int64_t i = 0; i < count; i++)
        to[i] = from[i] ^ turned;
}

/* Pixels of four planes as words; those of a plane lie `pixel` bytes from each other. */
static void join_pixels(const tile_set *tiles, const uint8_t *const plane[QUAD], int64_t pixel, int64_t count,
                        uint32_t turned, uint32_t *to) {
    if (pixel == 1) {
        tiles->bytes->join(plane, count, turned, to);
        return;
    }
    for (int64_t i = 0; i < QUAD * count; i++)
        ((uint8_t *)to)[i] = plane[i % QUAD][i / QUAD * pixel] ^ (uint8_t)turned;
}

/* A row of pixels as words, one plane of words `apart` from the other. If channels end inside a word, its first one is
 * repeated; the filter has zeros there. */
static void join_row(const widening *w, const uint8_t *x, uint32_t *to, int64_t apart) {
    const int64_t *stride = w->a->x_stride, channels = w->a->channels;
    for (int64_t c = 0; c < channels; c += QUAD, to += apart) {
        const uint8_t *plane[QUAD];
        for (int64_t k = 0; k < QUAD; k++)
            plane[k] = x + (c + k < channels ? c + k : c) * stride[1];
        join_pixels(w->tiles, plane, stride[3], w->inside[1].count, w->turned, to);
    }
}

static void surround(const widening *w, uint32_t *row, range columns) {
    for (int64_t k = 0; k < w->a->groups * w->q->channels; k++, row += w->q->x_stride[1])
        for (int64_t i = columns.first; i < columns.first + columns.count; i++)
            row[i] = w->outside;
}

/* Rows [begin, end) of all images' planes. */
static void widen_rows(void *ctx, int64_t begin, int64_t end, TN_UNUSED int worker) {
    const widening *w = ctx;
    const tn_conv_args *a = w->a, *q = w->q;
    const range across = w->inside[1];
    for (int64_t n = begin; n < end; n++) {
        const int64_t image = n / q->size[0], r = n % q->size[0], in_image = r - a->pad_before[0];
        uint32_t *row = w->to + image * q->x_stride[0] + r * q->x_stride[2];
        bool there = r >= w->inside[0].first && r < w->inside[0].first + w->inside[0].count;
        surround(w, row, (range){0, there ? across.first : q->size[1]});
        if (!there) continue;
        surround(w, row, (range){across.first + across.count, q->size[1] - across.first - across.count});
        const int64_t column = across.first - a->pad_before[1];
        if (a->x_blocks) {
            const int64_t planes = a->groups * q->channels, pixels = a->size[0] * a->size[1];
            const uint32_t *x =
                (const uint32_t *)(const void *)a->x + image * planes * pixels + in_image * a->size[1] + column;
            for (int64_t k = 0; k < planes && across.count > 0; k++)
                copy_words(row + k * q->x_stride[1] + across.first, x + k * pixels, across.count, w->turned);
            continue;
        }
        const uint8_t *x = (const uint8_t *)(const void *)a->x + image * a->x_stride[0] + in_image * a->x_stride[2] +
                           column * a->x_stride[3];
        for (int64_t g = 0; g < a->groups && across.count > 0; g++, x += a->channels * a->x_stride[1])
            join_row(w, x, row + g * q->channels * q->x_stride[1] + across.first, q->x_stride[1]);
    }
}

static void run_words(const tn_conv_args *args, uint8_t outside, char *memory) {
    enum { ROW_ELEMENTS = 1 << 13 };
    tn_conv_args q = with_packed(args, args->packed);
    if (stays(args)) {
        tn_conv_nhwc(&q, NULL, memory);
        return;
    }
    widening w = {.a = args, .q = &q, .tiles = tn_byte_tiles(), .outside = in_word(outside)};
    w.turned = args->x_signed ? SIGNS : 0;
    w.to = (uint32_t *)(void *)memory;
    for (int d = 0; d < 2; d++)
        w.inside[d] = look_at(-args->pad_before[d], 1, q.size[d], args->size[d]);
    int64_t row = q.size[1] * q.channels * args->groups;
    tn_parallel(q.batch * q.size[0], tn_max64(ROW_ELEMENTS / row, 1), widen_rows, &w);
    q.x = (const float *)(const void *)memory;
    tn_conv_nhwc(&q, NULL, memory + image_bytes(args));
}

/* ==== windows of single channels ================================================================================== */

static bool is_depthwise(const tn_conv_args *a) {
    return a->max_pool || (a->rounding && a->channels == 1 && a->groups > 1);
}

static int64_t rows_of_taps(const tn_conv_args *a) { return tn_ceil_div(a->kernel[0], QUAD); }

/* Words from row to row of an input tile, and its rows. */
static int64_t tile_row(const tn_conv_args *a) { return (a->out_size[1] - 1) * a->stride[1] + window_reach(a, 1); }
static int64_t tile_rows(const tn_conv_args *a) { return (a->out_size[0] - 1) * a->stride[0] + window_reach(a, 0); }

static size_t tile_bytes(const tn_conv_args *a) {
    return im2col_bytes(tile_row(a) * tile_rows(a) + VECTOR * (a->stride[1] + 2));
}

/* Room for results in words that are split to planes afterwards. */
static size_t results_bytes(const tn_conv_args *a) {
    return a->y_blocks ? 0 : im2col_bytes(a->out_size[0] * a->out_size[1]);
}

static bool fits_depthwise(const tn_conv_args *a) {
    enum { MOST_TAPS = 1 << 10, MOST_TILE = 1 << 20 };
    if (a->x_blocks && a->out_channels != 1) return false;
    return a->stride[1] <= MOST_TAPS && a->kernel[0] * a->kernel[1] <= MOST_TAPS && tile_row(a) <= MOST_TILE &&
           tile_rows(a) <= MOST_TILE && tile_row(a) * tile_rows(a) <= MOST_TILE;
}

static size_t window_words(const tn_conv_args *a) {
    return (size_t)(words_of(a->groups * a->out_channels) * rows_of_taps(a) * a->kernel[1] * QUAD);
}

/* [words of filters, rows / 4, columns, filters of a word, 4 rows]; zeros where there is nothing. */
static void pack_windows(const tn_conv_args *a, int8_t *to) {
    const int64_t *s = a->weight_stride, word = rows_of_taps(a) * a->kernel[1] * QUAD * QUAD;
    memset(to, 0, window_words(a) * QUAD);
    for (int64_t f = 0; f < a->groups * a->out_channels; f++) {
        const int8_t *from = (const int8_t *)(const void *)a->weight + f / a->out_channels * a->weight_group +
                             f % a->out_channels * s[0];
        for (int64_t r = 0; r < a->kernel[0]; r++)
            for (int64_t c = 0; c < a->kernel[1]; c++)
                to[f / QUAD * word + ((r / QUAD * a->kernel[1] + c) * QUAD + f % QUAD) * QUAD + r % QUAD] =
                    from[r * s[2] + c * s[3]];
    }
}

typedef struct windows {
    const tn_conv_args *a;
    const tile_set *tiles;
    range down, across; /* rows and columns of the input tile that are the image's */
    uint32_t outside, turned;
    char *memory; /* a tile and results a thread */
    size_t part;
} windows;

/* Copies a row of pixels to words: the channels that filters [filter, filter + count) read. */
static void copy_row(const windows *w, const uint8_t *x, int64_t filter, int64_t count, uint32_t *to) {
    const tn_conv_args *a = w->a;
    const uint8_t *plane[QUAD];
    for (int64_t k = 0; k < QUAD; k++)
        plane[k] = x + (filter + tn_min64(k, count - 1)) / a->out_channels * a->x_stride[1];
    join_pixels(w->tiles, plane, a->x_stride[3], w->across.count, w->turned, to);
}

/* Copies the channels of word `word` of an image to the input tile, whose padding stays. */
static void copy_word(const windows *w, int64_t image, int64_t word, uint32_t *to) {
    const tn_conv_args *a = w->a;
    const int64_t filters = a->groups * a->out_channels, row = tile_row(a), pixels = a->size[0] * a->size[1];
    const int64_t column = w->across.first - a->pad_before[1], first = w->down.first - a->pad_before[0];
    const uint32_t *words = (const uint32_t *)(const void *)a->x + (image * words_of(filters) + word) * pixels +
                            first * a->size[1] + column;
    const uint8_t *x =
        (const uint8_t *)(const void *)a->x + image * a->x_stride[0] + first * a->x_stride[2] + column * a->x_stride[3];
    to += w->down.first * row + w->across.first;
    for (int64_t r = 0; r < w->down.count && w->across.count > 0; r++, to += row) {
        if (a->x_blocks) {
            copy_words(to, words + r * a->size[1], w->across.count, w->turned);
            continue;
        }
        copy_row(w, x + r * a->x_stride[2], QUAD * word, tn_min64(QUAD, filters - QUAD * word), to);
    }
}

static void run_words_of_channels(void *ctx, int64_t begin, int64_t end, int worker) {
    const windows *w = ctx;
    const tn_conv_args *a = w->a;
    const int64_t filters = a->groups * a->out_channels, words = words_of(filters), row = tile_row(a);
    const int64_t plane = a->out_size[0] * a->out_size[1], taps = rows_of_taps(a) * a->kernel[1] * QUAD;
    uint32_t *seen = (uint32_t *)(void *)(w->memory + (size_t)worker * w->part);
    for (int64_t i = 0; i < row * tile_rows(a); i++)
        seen[i] = w->outside;
    for (int64_t n = begin; n < end; n++) {
        const int64_t image = n / words, word = n % words;
        byte_windows of = {.rounding = a->rounding,
                           .channel = QUAD * word,
                           .channels = (int)tn_min64(QUAD, filters - QUAD * word),
                           .from = seen,
                           .from_row = a->dilation[0] * row,
                           .from_down = a->stride[0] * row,
                           .stride = a->stride[1],
                           .dilation = a->dilation[1],
                           .weights = a->max_pool ? NULL : (const int32_t *)a->packed + word * taps,
                           .turned = w->turned,
                           .rows = (int)a->kernel[0],
                           .columns = (int)a->kernel[1],
                           .to = (uint32_t *)(void *)a->out + n * plane,
                           .out_rows = a->out_size[0],
                           .out_columns = a->out_size[1]};
        copy_word(w, image, word, seen);
        if (!a->y_blocks) of.to = (uint32_t *)(void *)((char *)seen + tile_bytes(a));
        (a->max_pool ? w->tiles->bytes->pool : w->tiles->bytes->weigh)(&of);
        if (a->y_blocks) continue;
        uint8_t *planes[QUAD], *out = (uint8_t *)(void *)a->out + (image * filters + QUAD * word) * plane;
        for (int c = 0; c < (int)QUAD; c++)
            planes[c] = out + c * plane;
        w->tiles->bytes->split(of.to, plane, of.channels, planes);
    }
}

static void run_windows(const tn_conv_args *a, uint8_t outside, char *memory) {
    enum { PART_ELEMENTS = 1 << 14 };
    windows w = {.a = a, .tiles = tn_byte_tiles(), .outside = in_word(outside), .memory = memory};
    w.turned = a->x_signed ? SIGNS : 0;
    w.down = look_at(-a->pad_before[0], 1, tile_rows(a), a->size[0]);
    w.across = look_at(-a->pad_before[1], 1, tile_row(a), a->size[1]);
    w.part = tile_bytes(a) + results_bytes(a);
    const int64_t taps = a->kernel[0] * a->kernel[1], word = a->out_size[0] * a->out_size[1] * taps;
    tn_parallel(a->batch * words_of(a->groups * a->out_channels), tn_max64(PART_ELEMENTS / word, 1),
                run_words_of_channels, &w);
}

/* ==== both ======================================================================================================== */
/* Behind packed filters lie their sums: of images in i8, which are read moved by 128, they are taken away again. */

static size_t words_bytes(const tn_conv_args *a) {
    if (a->max_pool) return 0;
    if (is_depthwise(a)) return im2col_bytes((int64_t)window_words(a));
    return filters_bytes(a) + order_bytes(a);
}

static size_t sums_bytes(const tn_conv_args *a) { return a->max_pool ? 0 : im2col_bytes(a->groups * a->out_channels); }

bool tn_conv_bytes_fits(const tn_conv_args *args) {
    if (!tn_byte_tiles() || !tn_im2col_is_small(args)) return false;
    if (args->y_blocks && !args->rounding && !args->max_pool) return false;
    if (!is_depthwise(args) && args->groups > 1) /* a word has channels of one group */
        if ((args->x_blocks && args->channels % QUAD) || (args->y_blocks && args->out_channels % QUAD)) return false;
    if (is_depthwise(args)) return fits_depthwise(args);
    tn_conv_args q = quads_of(args);
    return tn_conv_fits(&q) && tn_conv_nhwc_fits(&q);
}

size_t tn_conv_bytes_packed_bytes(const tn_conv_args *args) { return words_bytes(args) + sums_bytes(args); }

static int32_t sum_filter(const tn_conv_args *a, int64_t filter) {
    const int64_t *s = a->weight_stride, taps = a->kernel[0] * a->kernel[1];
    const int8_t *from = (const int8_t *)(const void *)a->weight + filter / a->out_channels * a->weight_group +
                         filter % a->out_channels * s[0];
    int32_t sum = 0;
    for (int64_t c = 0; c < a->channels; c++)
        for (int64_t t = 0; t < taps; t++)
            sum += from[c * s[1] + t / a->kernel[1] * s[2] + t % a->kernel[1] * s[3]];
    return sum;
}

void tn_conv_bytes_pack(const tn_conv_args *args, void *to) {
    int32_t *sums = (int32_t *)(void *)((char *)to + words_bytes(args));
    if (is_depthwise(args))
        pack_windows(args, to);
    else
        pack_words(args, to);
    for (int64_t f = 0; f < args->groups * args->out_channels; f++)
        sums[f] = sum_filter(args, f);
}

size_t tn_conv_bytes_workspace(const tn_conv_args *args, int threads) {
    tn_conv_args q = quads_of(args);
    const size_t packed = args->packed || args->keeps_packed ? 0 : tn_conv_bytes_packed_bytes(args),
                 shared = packed + sums_bytes(args), parts = threads > 1 ? (size_t)threads : 1;
    if (is_depthwise(args)) return shared + parts * (tile_bytes(args) + results_bytes(args));
    return shared + image_bytes(args) + tn_conv_nhwc_workspace(&q, NULL, threads);
}

void tn_conv_bytes(const tn_conv_args *args, uint8_t outside) {
    tn_conv_args a = *args;
    tn_byte_rounding rounding;
    char *memory = a.workspace;
    if (a.x_signed) outside ^= SIGN;
    if (a.max_pool) {
        run_windows(&a, 0, memory);
        return;
    }
    if (a.rounding) {
        rounding = *a.rounding;
        rounding.words = a.y_blocks;
        a.rounding = &rounding;
    }
    if (!a.packed) {
        tn_conv_bytes_pack(&a, memory);
        a.packed = memory;
        memory += tn_conv_bytes_packed_bytes(&a);
    }
    if (a.x_signed) {
        const int32_t *sums = (const int32_t *)(const void *)((const char *)a.packed + words_bytes(&a));
        int32_t *bias = (int32_t *)(void *)memory;
        for (int64_t f = 0; f < a.groups * a.out_channels; f++)
            bias[f] = (int32_t)((uint32_t)a.rounding->bias[f] - (uint32_t)sums[f] * SIGN);
        rounding.bias = bias;
    }
    memory += sums_bytes(&a);
    (is_depthwise(&a) ? run_windows : run_words)(&a, outside, memory);
}
