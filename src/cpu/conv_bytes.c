/* conv_bytes.c — convolutions of bytes: sums in i32, or rounded to bytes while they are in the cache.
 *
 * Processors add up four products of bytes in a lane: a word of four channels of a pixel times the word of the same
 * channels of a filter. So images are first copied to planes of such words, which also have what lies around them (the
 * byte `outside`): to the tiles they are images of a quarter of the channels, whose windows never leave them. Channels
 * that are missing in the last word are zeros there and in the filters. The rest is conv_nhwc.c's.
 *
 * Depthwise windows meet one channel: a word has four taps of a row of the window, and lanes are output pixels. */
#include <string.h>

#include "cpu/conv_paths.h"
#include "cpu/isa.h"

enum {
    QUAD = 4,
    SIGN = 0x80,    /* i8 is read as u8, moved by 128: its upper bit is turned */
    TILES = 4,      /* channels of depthwise windows that are copied together */
    READ_AHEAD = 64 /* bytes that kernels may read behind what they need */
};

/* ==== channels in words =========================================================================================== */

/* The convolution of words: sizes, and strides of its planes, which begin in all sets of the first cache. */
static tn_conv_args quads_of(const tn_conv_args *a) {
    tn_conv_args q = *a;
    q.quads = q.nhwc = true;
    q.channels = tn_ceil_div(a->channels, QUAD);
    for (int d = 0; d < 2; d++) {
        q.size[d] = (a->out_size[d] - 1) * a->stride[d] + window_reach(a, d);
        q.pad_before[d] = 0;
    }
    int64_t plane = odd_lines(q.size[0] * q.size[1]);
    memcpy(q.x_stride, (const int64_t[]){plane * q.channels * a->groups, plane, q.size[1], 1}, sizeof q.x_stride);
    return q;
}

static size_t image_bytes(const tn_conv_args *q) { return im2col_bytes(q->batch * q->x_stride[0]); }

/* ---- filters ----------------------------------------------------------------------------------------------------- */

typedef struct bytes_packing {
    const tn_conv_args *a;
    int64_t panel, panels, quads; /* columns of a panel; panels, words of a pixel's channels a group */
    int8_t *to;
} bytes_packing;

/* Filter `filter` of a group as column `column` of the panel at `to`. */
static void pack_filter(const bytes_packing *p, const int8_t *from, int64_t column, int8_t *to) {
    const tn_conv_args *a = p->a;
    const int64_t *s = a->weight_stride, taps = a->kernel[0] * a->kernel[1];
    for (int64_t c = 0; c < a->channels; c++)
        for (int64_t t = 0; t < taps; t++)
            to[((c / QUAD * taps + t) * p->panel + column) * QUAD + c % QUAD] =
                from[c * s[1] + t / a->kernel[1] * s[2] + t % a->kernel[1] * s[3]];
}

static void bytes_pack_panels(void *ctx, int64_t begin, int64_t end, int worker) {
    const bytes_packing *p = ctx;
    const tn_conv_args *a = p->a;
    const int64_t bytes = p->quads * a->kernel[0] * a->kernel[1] * p->panel * QUAD;
    (void)worker;
    for (int64_t n = begin; n < end; n++) {
        const int64_t first = n % p->panels * p->panel, out_channels = tn_min64(p->panel, a->out_channels - first);
        const int8_t *from = (const int8_t *)(const void *)a->weight + n / p->panels * a->weight_group;
        memset(p->to + n * bytes, 0, (size_t)bytes);
        for (int64_t column = 0; column < out_channels; column++)
            pack_filter(p, from + (first + column) * a->weight_stride[0], column, p->to + n * bytes);
    }
}

static void pack_words(const tn_conv_args *args, void *to) {
    enum { PART_BYTES = 1 << 14 };
    bytes_packing p = {
        .a = args, .panel = panel_of(tn_conv_vec()), .quads = tn_ceil_div(args->channels, QUAD), .to = to};
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

static void surround(const widening *w, uint32_t *row, range columns) {
    for (int64_t k = 0; k < w->a->groups * w->q->channels; k++, row += w->q->x_stride[1])
        for (int64_t i = columns.first; i < columns.first + columns.count; i++)
            row[i] = w->outside;
}

static void turn_bits(const widening *w, uint32_t *row, int64_t count) {
    for (int64_t k = 0; k < w->a->groups * w->q->channels && w->turned; k++, row += w->q->x_stride[1])
        for (int64_t i = 0; i < count; i++)
            row[i] ^= w->turned;
}

/* Rows [begin, end) of all images' planes. */
static void widen_rows(void *ctx, int64_t begin, int64_t end, int worker) {
    const widening *w = ctx;
    const tn_conv_args *a = w->a, *q = w->q;
    const range across = w->inside[1];
    (void)worker;
    for (int64_t n = begin; n < end; n++) {
        const int64_t image = n / q->size[0], r = n % q->size[0], in_image = r - a->pad_before[0];
        uint32_t *row = w->to + image * q->x_stride[0] + r * q->x_stride[2];
        bool there = r >= w->inside[0].first && r < w->inside[0].first + w->inside[0].count;
        surround(w, row, (range){0, there ? across.first : q->size[1]});
        if (!there) continue;
        surround(w, row, (range){across.first + across.count, q->size[1] - across.first - across.count});
        const uint8_t *x = (const uint8_t *)(const void *)a->x + image * a->x_stride[0] + in_image * a->x_stride[2] +
                           (across.first - a->pad_before[1]) * a->x_stride[3];
        for (int64_t g = 0; g < a->groups && across.count > 0; g++, x += a->channels * a->x_stride[1])
            w->tiles->pack(&(pack){.to = (real *)(void *)(row + g * q->channels * q->x_stride[1] + across.first),
                                   .distance = q->x_stride[1],
                                   .group = across.count,
                                   .kind = PACK_QUADS,
                                   .from = x,
                                   .along = QUAD * a->x_stride[1],
                                   .across = a->x_stride[3],
                                   .second = a->x_stride[1],
                                   .rest = (int)(a->channels % QUAD),
                                   .steps = q->channels,
                                   .lines = across.count});
        turn_bits(w, row + across.first, across.count);
    }
}

static void run_words(const tn_conv_args *args, uint8_t outside, char *memory) {
    enum { ROW_ELEMENTS = 1 << 13, SIGNS = SIGN * 0x01010101U };
    tn_conv_args q = quads_of(args);
    widening w = {.a = args, .q = &q, .tiles = tn_byte_tiles(), .outside = outside * 0x01010101U};
    w.turned = args->x_signed ? SIGNS : 0;
    w.to = (uint32_t *)(void *)memory;
    for (int d = 0; d < 2; d++)
        w.inside[d] = look_at(-args->pad_before[d], 1, q.size[d], args->size[d]);
    int64_t row = q.size[1] * q.channels * args->groups;
    tn_parallel(q.batch * q.size[0], tn_max64(ROW_ELEMENTS / row, 1), widen_rows, &w);
    q.x = (const float *)(const void *)memory;
    tn_conv_nhwc(&q, NULL, memory + image_bytes(&q));
}

/* ==== depthwise windows =========================================================================================== */

static int words_of(const tn_conv_args *a) { return (int)tn_ceil_div(a->kernel[1], QUAD); }

static bool is_depthwise(const tn_conv_args *a) { return a->rounding && a->channels == 1 && a->groups > 1; }

/* Bytes from row to row of a channel's input tile, and its rows. */
static int64_t tile_row(const tn_conv_args *a) { return (a->out_size[1] - 1) * a->stride[1] + window_reach(a, 1); }
static int64_t tile_rows(const tn_conv_args *a) { return (a->out_size[0] - 1) * a->stride[0] + window_reach(a, 0); }

static size_t tile_bytes(const tn_conv_args *a) {
    return ((size_t)(tile_row(a) * tile_rows(a)) + QUAD * (size_t)(words_of(a) * a->dilation[1]) + READ_AHEAD + 63) /
           64 * 64;
}

static bool fits_depthwise(const tn_conv_args *a) {
    enum { MOST_STEPS = 5, MOST_TAPS = 1 << 10, MOST_TILE = 1 << 20 }; /* steps: tile_set.h */
    return a->stride[1] + a->dilation[1] <= MOST_STEPS && a->kernel[0] * a->kernel[1] <= MOST_TAPS &&
           tile_row(a) <= MOST_TILE && tile_rows(a) <= MOST_TILE && tile_row(a) * tile_rows(a) <= MOST_TILE;
}

static size_t window_words(const tn_conv_args *a) {
    return (size_t)(a->groups * a->out_channels * a->kernel[0] * words_of(a));
}

static void pack_windows(const tn_conv_args *a, int8_t *to) {
    const int64_t *s = a->weight_stride, row = QUAD * words_of(a);
    for (int64_t f = 0; f < a->groups * a->out_channels; f++) {
        const int8_t *from = (const int8_t *)(const void *)a->weight + f / a->out_channels * a->weight_group +
                             f % a->out_channels * s[0];
        for (int64_t r = 0; r < a->kernel[0]; r++, to += row)
            for (int64_t c = 0; c < row; c++)
                to[c] = c < a->kernel[1] ? from[r * s[2] + c * s[3]] : 0;
    }
}

typedef struct windows {
    const tn_conv_args *a;
    const byte_kernels *kernels;
    const int32_t *weights;
    uint8_t outside;
    char *tiles; /* TILES a thread */
    size_t tile;
    int32_t word_at[MOST_LANES]; /* tile_set.h */
    uint8_t byte_at[MOST_LANES * QUAD];
} windows;

/* Short rows by two moves that overlap, which take less time than a call. */
static void copy_row(uint8_t *to, const uint8_t *from, int64_t count) {
    enum { HALF = 4, WHOLE = 8 };
    if (count >= 2 * WHOLE || count < HALF) {
        memcpy(to, from, (size_t)count);
    } else if (count >= WHOLE) {
        memcpy(to, from, WHOLE);
        memcpy(to + count - WHOLE, from + count - WHOLE, WHOLE);
    } else {
        memcpy(to, from, HALF);
        memcpy(to + count - HALF, from + count - HALF, HALF);
    }
}

/* A channel of an image, between the bytes that lie around all of them. */
static void copy_channel(const windows *w, int64_t image, int64_t channel, uint8_t *to) {
    const tn_conv_args *a = w->a;
    const int64_t *s = a->x_stride, row = tile_row(a);
    const range down = look_at(-a->pad_before[0], 1, tile_rows(a), a->size[0]);
    const range across = look_at(-a->pad_before[1], 1, row, a->size[1]);
    const uint8_t *x = (const uint8_t *)(const void *)a->x + image * s[0] + channel * s[1];
    for (int64_t r = down.first; r < down.first + down.count && across.count > 0; r++) {
        uint8_t *at = to + r * row + across.first;
        copy_row(at, x + (r - a->pad_before[0]) * s[2] + across.first - a->pad_before[1], across.count);
        for (int64_t i = 0; i < across.count && a->x_signed; i++)
            at[i] ^= SIGN;
    }
}

static void weigh_channel(const windows *w, int64_t n, const uint8_t *seen) {
    const tn_conv_args *a = w->a;
    const int64_t plane = a->out_size[0] * a->out_size[1], taps = a->kernel[0] * words_of(a), row = tile_row(a);
    for (int64_t k = 0; k < a->out_channels; k++) {
        const int64_t filter = n % a->groups * a->out_channels + k;
        w->kernels->weigh(&(byte_windows){.rounding = a->rounding,
                                          .channel = filter,
                                          .from = seen,
                                          .from_row = a->dilation[0] * row,
                                          .from_down = a->stride[0] * row,
                                          .stride = a->stride[1],
                                          .dilation = a->dilation[1],
                                          .weights = w->weights + filter * taps,
                                          .word_at = w->word_at,
                                          .byte_at = w->byte_at,
                                          .rows = (int)a->kernel[0],
                                          .words = words_of(a),
                                          .to = (uint8_t *)(void *)a->out + (n * a->out_channels + k) * plane,
                                          .out_rows = a->out_size[0],
                                          .out_columns = a->out_size[1]});
    }
}

/* Several channels are copied before the first is read: loads would wait for smaller stores on their way. */
static void run_channels(void *ctx, int64_t begin, int64_t end, int worker) {
    const windows *w = ctx;
    uint8_t *seen = (uint8_t *)w->tiles + (size_t)worker * w->tile * TILES;
    memset(seen, w->outside, w->tile * TILES);
    for (int64_t n = begin; n < end; n += TILES) {
        const int64_t count = tn_min64(TILES, end - n);
        for (int64_t k = 0; k < count; k++)
            copy_channel(w, (n + k) / w->a->groups, (n + k) % w->a->groups, seen + (size_t)k * w->tile);
        for (int64_t k = 0; k < count; k++)
            weigh_channel(w, n + k, seen + (size_t)k * w->tile);
    }
}

static void run_windows(const tn_conv_args *a, uint8_t outside, char *memory) {
    enum { PART_ELEMENTS = 1 << 14, PIECE = 16 };
    windows w = {.a = a, .kernels = tn_byte_tiles()->bytes, .weights = a->packed, .outside = outside, .tiles = memory};
    w.tile = tile_bytes(a);
    for (int i = 0; i < MOST_LANES; i++)
        w.word_at[i] = (int32_t)(a->stride[1] * (i / QUAD) + i % QUAD);
    for (int i = 0; i < MOST_LANES * QUAD; i++)
        w.byte_at[i] = (uint8_t)(i % PIECE / QUAD * a->stride[1] + i % QUAD * a->dilation[1]);
    const int64_t channel = a->out_channels * a->out_size[0] * a->out_size[1] * a->kernel[0] * words_of(a);
    tn_parallel(a->batch * a->groups, tn_max64(PART_ELEMENTS / channel, 1), run_channels, &w);
}

/* ==== both ======================================================================================================== */
/* Behind packed filters lie their sums: of images in i8, which are read moved by 128, they are taken away again. */

static size_t words_bytes(const tn_conv_args *a) {
    tn_conv_args q = quads_of(a);
    return is_depthwise(a) ? im2col_bytes((int64_t)window_words(a)) : tn_conv_nhwc_packed_bytes(&q);
}

static size_t sums_bytes(const tn_conv_args *a) { return im2col_bytes(a->groups * a->out_channels); }

bool tn_conv_bytes_fits(const tn_conv_args *args) {
    if (!tn_byte_tiles() || !tn_im2col_is_small(args)) return false;
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
    const size_t shared = tn_conv_bytes_packed_bytes(args) + sums_bytes(args),
                 parts = threads > 1 ? (size_t)threads : 1;
    if (is_depthwise(args)) return shared + parts * tile_bytes(args) * TILES;
    return shared + image_bytes(&q) + tn_conv_nhwc_workspace(&q, NULL, threads);
}

void tn_conv_bytes(const tn_conv_args *args, uint8_t outside) {
    tn_conv_args a = *args;
    tn_byte_rounding rounding;
    char *memory = a.workspace;
    if (!a.packed) {
        tn_conv_bytes_pack(&a, memory);
        a.packed = memory;
    }
    memory += tn_conv_bytes_packed_bytes(&a);
    if (a.x_signed) {
        const int32_t *sums = (const int32_t *)(const void *)((const char *)a.packed + words_bytes(&a));
        int32_t *bias = (int32_t *)(void *)memory;
        for (int64_t f = 0; f < a.groups * a.out_channels; f++)
            bias[f] = (int32_t)((uint32_t)a.rounding->bias[f] - (uint32_t)sums[f] * SIGN);
        rounding = *a.rounding;
        rounding.bias = bias;
        a.rounding = &rounding;
        outside ^= SIGN;
    }
    memory += sums_bytes(&a);
    (is_depthwise(&a) ? run_windows : run_words)(&a, outside, memory);
}
