/* windows.h — what a window sees at a run of places, as rows that the micro-kernels' operands are copied from.
 *
 * A window's tap k = (channel, kernel row, kernel column) meets, place after place, elements of the image that follow
 * each other too, but at the image's edge. So the rows of the image that a run of places needs are first copied to a
 * slab, zeros around them; with a stride along the row, columns that taps meet together lie together (a phase). In the
 * slab each tap is a fixed distance away, and a run of places is a few pieces of consecutive elements: operands are
 * made of it by whole vectors, without a question asked. */
#ifndef TN_WINDOWS_H
#define TN_WINDOWS_H

#include <string.h>

#include "kern/conv.h"
#include "vec.h"

enum {
    SEEN_PLACES = 256, /* of a run, at most */
    WIDE_ROW = 512     /* places: of longer rows a slab holds a piece */
};

typedef struct windows {
    const tn_conv_args *a;
    int64_t taps, depth;                 /* a channel's, all */
    int64_t plane;                       /* places of an image */
    int64_t line;                        /* places that a run may go through: all images', or a row's */
    bool apart;                          /* a row's */
    int64_t phase;                       /* distance of phases in a row of the slab */
    int64_t row, rows, section, channel; /* … of rows (a section has `rows`), of sections, of channels */
    int64_t channels;                    /* that the slab holds, at most */
    int64_t *tap;                        /* [depth], in the slab, counted from the first channel */
} windows;

/* A part of one image: places [at, at + count) of it are columns [to, to + count) of the run. They see rows of the
 * image from `first` on, which are the slab's; rows [low, high) of these are there. */
typedef struct section {
    int64_t image, at, count, to;
    int64_t first, low, high;
} section;

/* At most VL elements of the slab that become columns [to, to + count). */
typedef struct piece {
    int32_t from, to, count;
} piece;

/* A run of places. Zeros stay in the slab as long as runs lie alike in their images. */
typedef struct seen {
    float *slab;
    bool clean;   /* the zeros are those of this run */
    int64_t left; /* column of places where the slab's rows begin */
    int sections, pieces;
    section section[SEEN_PLACES];
    piece piece[SEEN_PLACES];
} seen;

static inline int64_t window_reach(const tn_conv_args *a, int axis) {
    return a->dilation[axis] * (a->kernel[axis] - 1) + 1;
}

/* For runs of up to `width` places. `lines`: may a row be a line of its own? */
static void windows_plan(windows *w, const tn_conv_args *a, int64_t width, int64_t channels, bool lines) {
    int64_t across = a->places[1], down = a->places[0];
    *w = (windows){.a = a, .taps = a->kernel[0] * a->kernel[1], .plane = across * down, .channels = channels};
    w->depth = a->channels * w->taps;
    bool apart = w->apart = lines && across > WIDE_ROW;
    w->line = apart ? across : a->images * w->plane;
    width = tn_min64(width, w->line);
    int64_t place_rows = apart ? 1 : tn_min64(down, tn_ceil_div(width - 1, across) + 1);
    int64_t sections = apart ? 1 : tn_min64(a->images, tn_ceil_div(width - 1, w->plane) + 1);
    int64_t columns = ((apart ? width : across) - 1) * a->stride[1] + window_reach(a, 1);
    w->phase = tn_ceil_div(columns, a->stride[1]);
    w->row = w->phase * a->stride[1];
    w->rows = (place_rows - 1) * a->stride[0] + window_reach(a, 0);
    w->section = w->rows * w->row;
    w->channel = w->section * sections;
}

/* Of the slab; vectors may reach over its end. */
static int64_t windows_elements(const windows *w) { return w->channels * w->channel + 2 * VL; }

static void windows_find_taps(windows *w, int64_t *tap) {
    const tn_conv_args *a = w->a;
    w->tap = tap;
    for (int64_t k = 0; k < w->depth; k++) {
        int64_t i = k % w->taps / a->kernel[1] * a->dilation[0], j = k % a->kernel[1] * a->dilation[1];
        tap[k] = k / w->taps * w->channel + i * w->row + j % a->stride[1] * w->phase + j / a->stride[1];
    }
}

/* ---- a run of places --------------------------------------------------------------------------------------------- */

static void see_pieces(seen *s, int64_t to, int64_t count, int64_t from, int64_t panel) {
    for (int64_t i = 0, n = 0; i < count; i += n) {
        n = tn_min64(tn_min64(VL, count - i), panel - (to + i) % panel);
        s->piece[s->pieces++] = (piece){(int32_t)(from + i), (int32_t)(to + i), (int32_t)n};
    }
}

static void see_rows(const tn_conv_args *a, section *s) {
    int64_t top = s->at / a->places[1], down = (s->at + s->count - 1) / a->places[1] - top;
    s->first = top * a->stride[0] - a->before[0];
    s->low = s->first < 0 ? -s->first : 0;
    s->high = tn_min64(down * a->stride[0] + window_reach(a, 0), a->size[0] - s->first);
}

/* Places [first, first + count) of a line: where they lie, and where they will lie in the slab. No piece crosses a
 * multiple of `panel` columns. A new `seen` has no sections. */
static void see(const windows *w, seen *s, int64_t line, int64_t first, int64_t count, int64_t panel) {
    int64_t across = w->a->places[1], left = w->apart ? first : 0;
    int k = 0, before = s->sections;
    bool alike = before > 0 && left == s->left;
    s->left = left;
    s->pieces = 0;
    for (int64_t q = 0; q < count; k++) {
        int64_t flat = line * w->line + first + q;
        section now = {.image = flat / w->plane, .at = flat % w->plane, .to = q};
        now.count = tn_min64(w->plane - now.at, count - q);
        alike = alike && k < before && s->section[k].at == now.at && s->section[k].count == now.count;
        see_rows(w->a, &now);
        s->section[k] = now;
        int64_t column = now.at % across, from = k * w->section + column - left, end = q + now.count;
        for (int64_t run = 0; q < end; q += run) {
            run = tn_min64(across - column, end - q);
            see_pieces(s, q, run, from, panel);
            from += w->a->stride[0] * w->row - column;
            column = 0;
        }
    }
    s->sections = k;
    s->clean = alike && k == before;
}

/* ---- the slab ---------------------------------------------------------------------------------------------------- */

/* Every second element of two vectors. */
VEC_INLINE V v_evens(V a, V b) {
#if defined(__AVX512F__)
    return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
#elif defined(__AVX2__)
    return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14);
#else
    return __builtin_shufflevector(a, b, 0, 2, 4, 6);
#endif
}

/* The first `count` elements of x to every second place. */
VEC_INLINE void v_store_apart(float *to, V x, int64_t count) {
#if defined(__AVX512F__)
    V low = __builtin_shufflevector(x, x, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    V high = __builtin_shufflevector(x, x, 8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13, 14, 14, 15, 15);
    uint32_t mask = count >= VL ? 0x55555555u : 0x55555555u & ((1u << 2 * count) - 1u);
    v_part_store(to, (M)mask, low);
    v_part_store(to + VL, (M)(mask >> VL), high);
#elif defined(__AVX2__)
    V low = __builtin_shufflevector(x, x, 0, 0, 1, 1, 2, 2, 3, 3);
    V high = __builtin_shufflevector(x, x, 4, 4, 5, 5, 6, 6, 7, 7);
    const M evens = _mm256_setr_epi32(-1, 0, -1, 0, -1, 0, -1, 0);
    v_part_store(to, _mm256_and_si256(evens, v_mask(2 * count)), low);
    v_part_store(to + VL, _mm256_and_si256(evens, v_mask(2 * count - VL)), high);
#else
    for (int64_t i = 0; i < count && i < VL; i++)
        to[2 * i] = x[i];
#endif
}

/* The way back to every `step`-th element. */
static void spread_row(float *to, const float *from, int64_t step, int64_t count) {
    int64_t i = 0;
    for (; step == 2 && i < count; i += VL)
        v_store_apart(to + 2 * i, v_part_load(from + i, v_mask(count - i)), count - i);
    for (; i < count; i++)
        to[i * step] = from[i];
}

/* Every `step`-th element of a row. */
static void copy_row(float *to, const float *from, int64_t step, int64_t count) {
    int64_t i = 0;
    if (step == 1) {
        for (; i + VL <= count; i += VL)
            v_store(to + i, v_load(from + i));
        M rest = v_mask(count - i);
        if (i < count) v_part_store(to + i, rest, v_part_load(from + i, rest));
    } else if (step == 2) {
        for (; i < count; i += VL) {
            int64_t there = 2 * (count - i) - 1; /* elements up to the last one that is taken */
            V low = v_part_load(from + 2 * i, v_mask(there));
            V high = there > VL ? v_part_load(from + 2 * i + VL, v_mask(there - VL)) : v_zero();
            v_part_store(to + i, v_mask(count - i), v_evens(low, high));
        }
    } else {
        for (; i < count; i++)
            to[i] = from[i * step];
    }
}

/* A part of the slab's rows that lies inside of the image: columns [low, high) of one phase. */
typedef struct inside {
    int64_t phase, low, high;
    int64_t first; /* of the image's row, at `low` */
} inside;

static inside inside_phase(const windows *w, int64_t phase, int64_t left) {
    int64_t stride = w->a->stride[1], size = w->a->size[1], begin = left + phase;
    inside in = {.phase = phase};
    in.low = begin < 0 ? tn_ceil_div(-begin, stride) : 0;
    in.high = size > begin ? tn_min64(tn_ceil_div(size - begin, stride), w->phase) : 0;
    in.first = begin + in.low * stride;
    return in;
}

/* What one channel shows of one section. */
static void fill_section(const windows *w, const section *part, const float *x, const inside *in, float *to) {
    const tn_conv_args *a = w->a;
    to += in->phase * w->phase + in->low;
    int64_t first = part->first * a->x_stride[2] + in->first * a->x_stride[3];
    for (int64_t r = part->low; r < part->high; r++)
        copy_row(to + r * w->row, x + first + r * a->x_stride[2], a->stride[1] * a->x_stride[3], in->high - in->low);
}

/* Channels [begin, end) of a group, for the places that `s` has. */
static void fill_slab(const windows *w, seen *s, int64_t group, int64_t begin, int64_t end) {
    const tn_conv_args *a = w->a;
    if (!s->clean) memset(s->slab, 0, (size_t)windows_elements(w) * sizeof *s->slab);
    s->clean = true;
    for (int64_t phase = 0; phase < a->stride[1]; phase++) {
        inside in = inside_phase(w, phase, s->left * a->stride[1] - a->before[1]);
        if (in.low >= in.high) continue;
        for (int64_t c = begin; c < end; c++) {
            const float *x = a->x + (group * a->channels + c) * a->x_stride[1];
            float *to = s->slab + (c - begin) * w->channel;
            for (int k = 0; k < s->sections; k++)
                fill_section(w, &s->section[k], x + s->section[k].image * a->x_stride[0], &in, to + k * w->section);
        }
    }
}

/* ---- operands ---------------------------------------------------------------------------------------------------- */

/* A piece for each of `rows` taps: row r from from[tap[r] − base] to to[r · distance]. */
VEC_INLINE void copy_piece(float *to, int64_t distance, const float *from, const int64_t *tap, int64_t base,
                           int64_t rows) {
    for (int64_t r = 0; r < rows; r++, to += distance)
        v_store(to, v_load(from + (tap[r] - base)));
}

/* Several pieces of one panel, step after step: whole vectors, as what lies behind a piece is written later; one vector
 * behind the panel is touched too. */
VEC_INLINE void copy_steps(float *to, int64_t distance, const float *slab, const piece *p, const int n,
                           const int64_t *tap, int64_t base, int64_t steps) {
    for (int64_t k = 0; k < steps; k++, to += distance) {
        const float *from = slab + (tap[k] - base);
        VEC_UNROLL for (int i = 0; i < n; i++) v_store(to + p[i].to % distance, v_load(from + p[i].from));
    }
}

#endif
