/* conv_bytes.c — convolutions of bytes: conv_nhwc.c's tiles over words of four channels.
 *
 * Processors add up four products of bytes in a lane: a word of four channels of a pixel times the word of the same
 * channels of a filter. So images are first copied to planes of such words, which also have what lies around them (the
 * byte `outside`): to the tiles they are images of a quarter of the channels, whose windows never leave them. Channels
 * that are missing in the last word are zeros there and in the filters. */
#include "kern/cpu/conv_nhwc.h"

#include <string.h>

#include "kern/cpu/cpu.h"
#include "kern/cpu/im2col.h"

enum { QUAD = 4 };

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

bool tn_conv_bytes_fits(const tn_conv_args *args) {
    if (!tn_byte_tiles() || !tn_im2col_is_small(args)) return false;
    tn_conv_args q = quads_of(args);
    return tn_conv_fits(&q) && tn_conv_nhwc_fits(&q);
}

/* ---- filters ----------------------------------------------------------------------------------------------------- */

size_t tn_conv_bytes_packed_bytes(const tn_conv_args *args) {
    tn_conv_args q = quads_of(args);
    return tn_conv_nhwc_packed_bytes(&q);
}

typedef struct packing {
    const tn_conv_args *a;
    int64_t panel, panels, quads; /* columns of a panel; panels, words of a pixel's channels a group */
    int8_t *to;
} packing;

/* Filter `filter` of a group as column `column` of the panel at `to`. */
static void pack_filter(const packing *p, const int8_t *from, int64_t column, int8_t *to) {
    const tn_conv_args *a = p->a;
    const int64_t *s = a->weight_stride, taps = a->kernel[0] * a->kernel[1];
    for (int64_t c = 0; c < a->channels; c++)
        for (int64_t t = 0; t < taps; t++)
            to[((c / QUAD * taps + t) * p->panel + column) * QUAD + c % QUAD] =
                from[c * s[1] + t / a->kernel[1] * s[2] + t % a->kernel[1] * s[3]];
}

static void pack_panels(void *ctx, int64_t begin, int64_t end, int worker) {
    const packing *p = ctx;
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

void tn_conv_bytes_pack(const tn_conv_args *args, void *to) {
    enum { PART_BYTES = 1 << 14 };
    packing p = {.a = args, .panel = panel_of(tn_conv_vec()), .quads = tn_ceil_div(args->channels, QUAD), .to = to};
    p.panels = tn_ceil_div(args->out_channels, p.panel);
    int64_t bytes = p.panel * args->channels * args->kernel[0] * args->kernel[1];
    tn_parallel(args->groups * p.panels, tn_max64(PART_BYTES / bytes, 1), pack_panels, &p);
}

/* ---- images ------------------------------------------------------------------------------------------------------ */

typedef struct widening {
    const tn_conv_args *a, *q;
    const tile_set *tiles;
    range inside[2]; /* rows and columns of the planes that are the image's */
    uint32_t outside;
    uint32_t *to;
} widening;

static void surround(const widening *w, uint32_t *row, range columns) {
    for (int64_t k = 0; k < w->a->groups * w->q->channels; k++, row += w->q->x_stride[1])
        for (int64_t i = columns.first; i < columns.first + columns.count; i++)
            row[i] = w->outside;
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
    }
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

size_t tn_conv_bytes_workspace(const tn_conv_args *args, int threads) {
    tn_conv_args q = quads_of(args);
    return image_bytes(&q) + tn_conv_nhwc_packed_bytes(&q) + tn_conv_nhwc_workspace(&q, NULL, threads);
}

void tn_conv_bytes(const tn_conv_args *args, uint8_t outside) {
    enum { ROW_ELEMENTS = 1 << 13 };
    tn_conv_args q = quads_of(args);
    char *memory = args->workspace;
    widening w = {.a = args, .q = &q, .tiles = tn_byte_tiles(), .outside = outside * 0x01010101U};
    w.to = (uint32_t *)(void *)memory;
    for (int d = 0; d < 2; d++)
        w.inside[d] = look_at(-args->pad_before[d], 1, q.size[d], args->size[d]);
    int64_t row = q.size[1] * q.channels * args->groups;
    tn_parallel(q.batch * q.size[0], tn_max64(ROW_ELEMENTS / row, 1), widen_rows, &w);
    q.x = (const float *)(const void *)memory;
    memory += image_bytes(&q);
    if (!q.packed) {
        tn_conv_bytes_pack(args, memory);
        q.packed = memory;
    }
    tn_conv_nhwc(&q, NULL, memory + tn_conv_nhwc_packed_bytes(&q));
}
