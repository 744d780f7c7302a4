/* windows.h — what a window sees at a run of places, as rows that the micro-kernels' operands are copied from.
 *
 * A window's tap k = (channel, kernel row, kernel column) meets, place after place, elements of the image that follow
 * each other too, but at the image's edge. So the rows of the image that a run of places needs are first copied to a
 * slab, zeros around them; with a stride along the row, columns that taps meet together lie together (a phase). In the
 * slab each tap is a fixed distance away, and a run of places is a few pieces of consecutive elements: operands are
 * made of it by whole vectors, without a question asked. */
#ifndef TN_WINDOWS_H
#define TN_WINDOWS_H

#include "kern/conv.h"
#include "vec.h"

enum {
    SEEN_PLACES = 256, /* of a run, at most */
    WIDE_ROW = 512     /* places: of longer rows a slab holds a piece */
};

typedef struct windows {
    const tn_conv_args *a;
    int64_t taps, depth;             /* a channel's, all */
    int64_t plane;                   /* places of an image */
    int64_t line;                    /* places that a run may go through: all images', or a row's */
    bool apart;                      /* a row's */
    int64_t phase;                   /* distance of phases in a row of the slab */
    int64_t row, rows, section, channel; /* … of rows, of which a section has `rows`; of sections, of channels */
    int64_t channels;                /* that the slab holds, at most */
    int64_t *tap;                    /* [depth], in the slab, counted from the first channel */
} windows;

/* A part of one image: places [at, at + count) of it are columns [to, to + count) of the run. */
typedef struct section {
    int64_t image, at, count, to;
} section;

/* At most VL elements of the slab that become columns [to, to + count). */
typedef struct piece {
    int32_t from, to, count;
} piece;

typedef struct seen {
    float *slab;
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

/* Places [first, first + count) of a line: where they lie, and where they will lie in the slab. No piece crosses a
 * multiple of `panel` columns. */
static void see(const windows *w, seen *s, int64_t line, int64_t first, int64_t count, int64_t panel) {
    int64_t across = w->a->places[1];
    s->sections = s->pieces = 0;
    s->left = w->apart ? first : 0;
    for (int64_t q = 0, run = 0; q < count; q += run) {
        int64_t flat = line * w->line + first + q, image = flat / w->plane, at = flat % w->plane;
        if (s->sections == 0 || s->section[s->sections - 1].image != image)
            s->section[s->sections++] = (section){.image = image, .at = at, .to = q};
        section *own = &s->section[s->sections - 1];
        int64_t down = at / across - own->at / across, column = at % across;
        run = tn_min64(across - column, count - q);
        own->count += run;
        int64_t from = (s->sections - 1) * w->section + down * w->a->stride[0] * w->row + column - s->left;
        see_pieces(s, q, run, from, panel);
    }
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

/* Writes whole vectors: what lies behind is written later. */
static void copy_row(float *to, const float *from, int64_t step, int64_t count) {
    int64_t i = 0;
    if (step == 1) {
        for (; i + VL <= count; i += VL)
            v_store(to + i, v_load(from + i));
        if (i < count) v_store(to + i, v_part_load(from + i, v_mask(count - i)));
        return;
    }
    if (step == 2) {
        for (; i + VL < count; i += VL)
            v_store(to + i, v_evens(v_load(from + 2 * i), v_load(from + 2 * i + VL)));
    }
    for (; i < count; i++)
        to[i] = from[i * step];
}

static void zero_row(float *to, int64_t count) {
    for (int64_t i = 0; i < count; i += VL)
        v_store(to + i, v_zero());
}

/* One row of an image from column `first` on, phase after phase; NULL: a row outside of it. */
static void fill_row(const windows *w, float *to, const float *row, int64_t first) {
    int64_t stride = w->a->stride[1], size = w->a->size[1], distance = w->a->x_stride[3];
    for (int64_t p = 0; p < stride; p++, to += w->phase) {
        int64_t begin = first + p;
        int64_t low = begin < 0 ? tn_min64(tn_ceil_div(-begin, stride), w->phase) : 0;
        int64_t high = size > begin ? tn_min64(tn_ceil_div(size - begin, stride), w->phase) : 0;
        if (!row || high <= low) {
            zero_row(to, w->phase);
            continue;
        }
        if (low > 0) zero_row(to, low);
        copy_row(to + low, row + (begin + low * stride) * distance, stride * distance, high - low);
        if (high < w->phase) zero_row(to + high, w->phase - high);
    }
}

/* Channels [begin, end) of a group, for the places that `s` has; ascending, as vectors reach over a row's end. */
static void fill_slab(const windows *w, const seen *s, int64_t group, int64_t begin, int64_t end) {
    const tn_conv_args *a = w->a;
    int64_t across = a->places[1], left = s->left * a->stride[1] - a->before[1];
    for (int64_t c = begin; c < end; c++) {
        for (int k = 0; k < s->sections; k++) {
            const section *part = &s->section[k];
            const float *x = a->x + part->image * a->x_stride[0] + (group * a->channels + c) * a->x_stride[1];
            int64_t top = part->at / across, down = (part->at + part->count - 1) / across - top;
            int64_t rows = down * a->stride[0] + window_reach(a, 0), first = top * a->stride[0] - a->before[0];
            float *to = s->slab + (c - begin) * w->channel + k * w->section;
            for (int64_t r = 0; r < rows; r++, to += w->row) {
                bool inside = first + r >= 0 && first + r < a->size[0];
                fill_row(w, to, inside ? x + (first + r) * a->x_stride[2] : NULL, left);
            }
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

/* The same for its first `count` elements alone. */
static void copy_part(float *to, int64_t distance, const float *from, const int64_t *tap, int64_t base, int64_t rows,
                      int64_t count) {
    M mask = v_mask(count);
    for (int64_t r = 0; r < rows; r++, to += distance)
        v_part_store(to, mask, v_load(from + (tap[r] - base)));
}

#endif
