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

#include "kern/cpu/conv_lines.h"

enum {
    SEEN_PLACES = 256,      /* of a run, at most */
    WIDE_ROW = 512,         /* places: of longer rows a slab holds a piece */
    SLAB_ELEMENTS = 1 << 22 /* more is no cache's */
};

typedef struct windows {
    const tn_conv_args *a;
    const conv_lines *with;
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

/* A run of places. Zeros stay in the slab as long as runs lie alike in their images. */
typedef struct seen {
    float *slab;
    bool clean;   /* the zeros are those of this run */
    int64_t rows; /* conv_turned.c's: one more than the first of those whose slab it has; 0: of none … */
    int64_t top;  /* … and the row of the slab in which the first section begins */
    int64_t left; /* column of places where the slab's rows begin */
    int sections, pieces;
    section section[SEEN_PLACES];
    piece piece[SEEN_PLACES];
} seen;

enum { SEEN_BYTES = (sizeof(seen) + 63) / 64 * 64 };

/* At the begin of each thread's memory, which lies `apart`: a thread that takes more work up goes on with its slab. If
 * there are several, all of the pool may come. */
static inline void windows_open(char *memory, size_t apart, int threads) {
    const int parts = threads > 1 ? tn_threads() : 1;
    for (int i = 0; i < parts; i++) {
        seen *s = (seen *)(void *)(memory + (size_t)i * apart);
        s->rows = s->top = s->sections = 0;
    }
}

static inline int64_t window_reach(const tn_conv_args *a, int axis) {
    return a->dilation[axis] * (a->kernel[axis] - 1) + 1;
}

static inline int64_t round_up(int64_t x, int64_t unit) { return tn_ceil_div(x, unit) * unit; }

/* As elements of whole lines whose number is odd: so far apart numbers are in different sets of a cache. */
static inline int64_t odd_lines(int64_t elements) { return (tn_ceil_div(elements, MOST_LANES) | 1) * MOST_LANES; }

static inline size_t windows_area(int64_t elements) { return ((size_t)elements * sizeof(float) + 63) / 64 * 64; }

/* Columns of B that lie side by side for a tile. */
static inline int64_t panel_of(const conv_lines *with) { return 2 * with->tiles->lanes; }

/* [first, first + count) of something. */
typedef struct range {
    int64_t first, count;
} range;

/* Part `number` of `parts` that are nearly alike. */
static inline range cut(int64_t count, int64_t parts, int64_t number) {
    int64_t first = count * number / parts;
    return (range){first, count * (number + 1) / parts - first};
}

/* Which of `length` rows or columns from `first` on, each `step` behind the last, lie in an image of `size`. */
static inline range look_at(int64_t first, int64_t step, int64_t length, int64_t size) {
    int64_t low = tn_min64(tn_ceil_div(tn_max64(-first, 0), step), length);
    int64_t high = tn_min64(tn_ceil_div(tn_max64(size - first, 0), step), length);
    return (range){low, tn_max64(high - low, 0)};
}

/* How many threads are worth it. */
static inline int windows_threads(const tn_conv_args *a) {
    static const double PART_FLOPS = 5e5; /* as in gemm.c */
    double places = (double)(a->images * a->places[0] * a->places[1]);
    double parts =
        (double)(a->groups * a->filters * a->channels * a->kernel[0] * a->kernel[1]) * 2 * places / PART_FLOPS;
    if (parts < 2) return 1;
    int most = tn_threads();
    return parts < most ? (int)parts : most;
}

/* Each takes its part in pieces, and then what is left of the others'. */
static inline void windows_share(int64_t tasks, int threads, tn_parallel_body *run, void *ctx) {
    if (threads == 1)
        run(ctx, 0, tasks, 0);
    else
        tn_parallel_shared(tasks, 1, run, ctx);
}

/* Is there anything to be seen, and nothing of it endless? */
static inline bool windows_are_small(const tn_conv_args *a) {
    bool some = a->images > 0 && a->groups > 0 && a->channels > 0 && a->filters > 0;
    for (int axis = 0; axis < 2; axis++) {
        some = some && a->size[axis] > 0 && a->kernel[axis] > 0 && a->places[axis] > 0;
        if (!some || (double)a->dilation[axis] * (double)a->kernel[axis] > SLAB_ELEMENTS) return false;
        if ((double)a->places[axis] * (double)a->stride[axis] > SLAB_ELEMENTS) return false;
    }
    return true;
}

/* For runs of up to `width` places. `lines`: may a row be a line of its own? `with`: NULL if only sizes are asked. */
static inline void windows_plan(windows *w, const conv_lines *with, const tn_conv_args *a, int64_t width,
                                int64_t channels, bool lines) {
    int64_t across = a->places[1], down = a->places[0];
    *w = (windows){.a = a, .with = with, .plane = across * down, .channels = channels};
    w->taps = a->kernel[0] * a->kernel[1];
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
static inline int64_t windows_elements(const windows *w) { return w->channels * w->channel + 2 * MOST_LANES; }

static inline void windows_find_taps(windows *w, int64_t *tap) {
    const tn_conv_args *a = w->a;
    w->tap = tap;
    for (int64_t k = 0; k < w->taps; k++) {
        int64_t i = k / a->kernel[1] * a->dilation[0], j = k % a->kernel[1] * a->dilation[1];
        tap[k] = i * w->row + j % a->stride[1] * w->phase + j / a->stride[1];
    }
    for (int64_t k = w->taps; k < w->depth; k++)
        tap[k] = tap[k - w->taps] + w->channel;
}

/* ---- a run of places --------------------------------------------------------------------------------------------- */

static inline void see_pieces(seen *s, int64_t lanes, int64_t to, int64_t count, int64_t from, int64_t panel) {
    for (int64_t i = 0, n = 0; i < count; i += n) {
        n = tn_min64(tn_min64(lanes, count - i), panel - (to + i) % panel);
        s->piece[s->pieces++] = (piece){(int32_t)(from + i), (int32_t)(to + i), (int32_t)n};
    }
}

static inline void see_rows(const tn_conv_args *a, section *s) {
    int64_t top = s->at / a->places[1], down = (s->at + s->count - 1) / a->places[1] - top;
    s->first = top * a->stride[0] - a->before[0];
    s->low = s->first < 0 ? -s->first : 0;
    s->high = tn_min64(down * a->stride[0] + window_reach(a, 0), a->size[0] - s->first);
}

/* Places [first, first + count) of a line: where they lie, and where they will lie in the slab. No piece crosses a
 * multiple of `panel` columns. A new `seen` has no sections. */
static inline void see(const windows *w, seen *s, int64_t line, int64_t first, int64_t count, int64_t panel) {
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
            see_pieces(s, w->with->tiles->lanes, q, run, from, panel);
            from += w->a->stride[0] * w->row - column;
            column = 0;
        }
    }
    s->sections = k;
    s->clean = alike && k == before;
}

/* Rows [top, top + count) of one image's places, to be read where they lie in the slab: no pieces. */
static inline void see_whole_rows(const windows *w, seen *s, int64_t image, int64_t top, int64_t count) {
    section now = {.image = image, .at = top * w->a->places[1], .count = count * w->a->places[1]};
    see_rows(w->a, &now);
    bool inside = now.low == 0 && now.high == (count - 1) * w->a->stride[0] + window_reach(w->a, 0);
    s->clean = s->sections == 1 && inside; /* left and right of its rows are the zeros that always were there */
    s->left = 0;
    s->pieces = 0;
    s->sections = 1;
    s->section[0] = now;
}

/* ---- the slab ---------------------------------------------------------------------------------------------------- */

/* A part of the slab's rows that lies inside of the image: columns [low, high) of one phase. */
typedef struct inside {
    int64_t phase, low, high;
    int64_t first; /* of the image's row, at `low` */
} inside;

static inline inside inside_phase(const windows *w, int64_t phase, int64_t left) {
    int64_t stride = w->a->stride[1], size = w->a->size[1], begin = left + phase;
    inside in = {.phase = phase};
    in.low = begin < 0 ? tn_ceil_div(-begin, stride) : 0;
    in.high = size > begin ? tn_min64(tn_ceil_div(size - begin, stride), w->phase) : 0;
    in.first = begin + in.low * stride;
    return in;
}

/* What one channel shows of one section. */
static inline void fill_section(const windows *w, const section *part, const float *x, const inside *in, float *to) {
    const tn_conv_args *a = w->a;
    to += in->phase * w->phase + in->low;
    int64_t first = part->first * a->x_stride[2] + in->first * a->x_stride[3];
    w->with->copy_rows(to + part->low * w->row, w->row, x + first + part->low * a->x_stride[2], a->x_stride[2],
                       part->high - part->low, a->stride[1] * a->x_stride[3], in->high - in->low);
}

static inline void clean_slab(const windows *w, seen *s) {
    if (!s->clean) memset(s->slab, 0, (size_t)windows_elements(w) * sizeof *s->slab);
    s->clean = true;
}

/* Some phases of channels [begin, end): one channel after the other, while it is in the first cache. */
static inline void fill_phases(const windows *w, const seen *s, int64_t group, int64_t begin, int64_t end,
                               const inside *in, int count) {
    const tn_conv_args *a = w->a;
    for (int64_t c = begin; c < end; c++) {
        const float *x = a->x + (group * a->channels + c) * a->x_stride[1];
        float *to = s->slab + (c - begin) * w->channel;
        for (int k = 0; k < s->sections; k++)
            for (int p = 0; p < count; p++)
                fill_section(w, &s->section[k], x + s->section[k].image * a->x_stride[0], &in[p], to + k * w->section);
    }
}

/* Channels [begin, end) of a group, for the places that `s` has. */
static inline void fill_slab(const windows *w, seen *s, int64_t group, int64_t begin, int64_t end) {
    enum { MOST = 4 };
    const tn_conv_args *a = w->a;
    inside in[MOST];
    int count = 0;
    clean_slab(w, s);
    for (int64_t phase = 0; phase < a->stride[1]; phase++) {
        in[count] = inside_phase(w, phase, s->left * a->stride[1] - a->before[1]);
        count += in[count].low < in[count].high;
        if (count < MOST && phase < a->stride[1] - 1) continue;
        fill_phases(w, s, group, begin, end, in, count);
        count = 0;
    }
}

#endif
