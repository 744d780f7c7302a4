/* im2col.h — what a window sees at a run of output pixels, as rows that the micro-kernels' operands are copied from.
 *
 * A window's tap k = (channel, kernel row, kernel column) meets, output pixel after output pixel, elements of the image
 * that follow each other too, but at the image's edge. So the rows of the image that a run of output pixels needs are
 * first copied to an input tile
 * , zeros around them; with a stride along the row, columns that taps meet together lie together (a phase). In the
 * input tile each tap is a fixed distance away, and a run of output pixels is a few pieces of consecutive elements:
 * operands are made of it by whole vectors, without a question asked. */
#ifndef TN_IM2COL_H
#define TN_IM2COL_H

#include "kern/cpu/conv_vec.h"

enum {
    IM2COL_PIXELS = 256,          /* of a run, at most */
    WIDE_ROW = 512,               /* output pixels: of longer rows an input tile holds a piece */
    INPUT_TILE_ELEMENTS = 1 << 22 /* more is no cache's */
};

typedef struct im2col_plan {
    const tn_conv_args *a;
    const conv_vec *with;
    int64_t taps, depth;                 /* a channel's, all */
    int64_t plane;                       /* output pixels of an image */
    int64_t line;                        /* output pixels that a run may go through: all images', or a row's */
    bool apart;                          /* a row's */
    int64_t phase;                       /* distance of phases in a row of the input tile */
    int64_t row, rows, section, channel; /* … of rows (a section has `rows`), of sections, of channels */
    int64_t channels;                    /* that the input tile holds, at most */
    int64_t *tap;                        /* [depth], in the input tile, counted from the first channel */
} im2col_plan;

/* A part of one image: output pixels [at, at + count) of it are columns [to, to + count) of the run. They see rows of
 * the image from `first` on, which are the input tile's; rows [low, high) of these are there. */
typedef struct section {
    int64_t image, at, count, to;
    int64_t first, low, high;
} section;

/* A run of output pixels. Zeros stay in the input tile as long as runs lie alike in their images. */
typedef struct im2col_run {
    float *input_tile;
    bool clean;   /* the zeros are those of this run */
    int64_t rows; /* conv_nhwc.c's: one more than the first of those whose input tile it has; 0: of none … */
    int64_t top;  /* … and the row of the input tile in which the first section begins */
    int64_t left; /* column of output pixels where the input tile's rows begin */
    int sections, pieces;
    section section[IM2COL_PIXELS];
    piece piece[IM2COL_PIXELS];
} im2col_run;

enum { IM2COL_BYTES = (sizeof(im2col_run) + 63) / 64 * 64 };

/* At the begin of each thread's memory, which lies `apart`: a thread that takes more work up goes on with its input
 * tile. If there are several, all of the pool may come. */
static inline void im2col_open(char *memory, size_t apart, int threads) {
    const int parts = threads > 1 ? tn_threads() : 1;
    for (int i = 0; i < parts; i++) {
        im2col_run *s = (im2col_run *)(void *)(memory + (size_t)i * apart);
        s->rows = s->top = s->sections = 0;
    }
}

static inline int64_t window_reach(const tn_conv_args *a, int axis) {
    return a->dilation[axis] * (a->kernel[axis] - 1) + 1;
}

static inline int64_t round_up(int64_t x, int64_t unit) { return tn_ceil_div(x, unit) * unit; }

/* As elements of whole lines whose number is odd: so far apart numbers are in different sets of a cache. */
static inline int64_t odd_lines(int64_t elements) { return (tn_ceil_div(elements, MOST_LANES) | 1) * MOST_LANES; }

static inline size_t im2col_bytes(int64_t elements) { return ((size_t)elements * sizeof(float) + 63) / 64 * 64; }

/* Columns of B that lie side by side for a tile. */
static inline int64_t panel_of(const conv_vec *with) { return 2 * with->tiles->lanes; }

/* [first, first + count) of something. */
typedef struct range {
    int64_t first, count;
} range;

/* Part `number` of `parts` that are nearly alike. */
static inline range split_range(int64_t count, int64_t parts, int64_t number) {
    int64_t first = count * number / parts;
    return (range){first, count * (number + 1) / parts - first};
}

/* Which of `length` rows or columns from `first` on, each `step` behind the last, lie in an image of `size`. */
static inline range look_at(int64_t first, int64_t step, int64_t length, int64_t size) {
    int64_t low = tn_min64(tn_ceil_div(tn_max64(-first, 0), step), length);
    int64_t high = tn_min64(tn_ceil_div(tn_max64(size - first, 0), step), length);
    return (range){low, tn_max64(high - low, 0)};
}

/* Each takes its part in pieces, and then what is left of the others'. */
static inline void im2col_parallel(int64_t tasks, int threads, tn_parallel_body *run, void *ctx) {
    if (threads == 1)
        run(ctx, 0, tasks, 0);
    else
        tn_parallel_shared(tasks, 1, run, ctx);
}

/* Of the input tile; vectors may reach over its end. */
static inline int64_t im2col_elements(const im2col_plan *w) { return w->channels * w->channel + 2 * MOST_LANES; }

/* How many threads are worth it. */
int tn_conv_threads(const tn_conv_args *a);

/* Is there anything to be seen, and nothing of it endless? */
bool tn_im2col_is_small(const tn_conv_args *a);

/* For runs of up to `width` output pixels. `lines`: may a row be a line of its own? `with`: NULL if only sizes are
 * asked. */
void tn_im2col_plan(im2col_plan *w, const conv_vec *with, const tn_conv_args *a, int64_t width, int64_t channels,
                    bool lines);
void tn_im2col_find_taps(im2col_plan *w, int64_t *tap); /* tap: [depth] */

/* Which rows of its image a section needs, of those that its output pixels see. */
void tn_im2col_section(const tn_conv_args *a, section *s);

/* Output pixels [first, first + count) of a line: where they lie, and where they will lie in the input tile. No piece
 * crosses a multiple of `panel` columns. A new `seen` has no sections. */
void tn_im2col_pixels(const im2col_plan *w, im2col_run *s, int64_t line, int64_t first, int64_t count, int64_t panel);

/* Rows [top, top + count) of one image's output pixels, to be read where they lie in the input tile: no pieces. */
void tn_im2col_rows(const im2col_plan *w, im2col_run *s, int64_t image, int64_t top, int64_t count);

/* A part of the input tile's rows that lies inside of the image: columns [low, high) of one phase. */
typedef struct inside {
    int64_t phase, low, high;
    int64_t first; /* of the image's row, at `low` */
} inside;

inside tn_inside_phase(const im2col_plan *w, int64_t phase, int64_t left); /* left: column of the image */

void tn_clear_input_tile(const im2col_plan *w, im2col_run *s);

/* Channels [begin, end) of a group, for the output pixels that `s` has. */
void tn_fill_input_tile(const im2col_plan *w, im2col_run *s, int64_t group, int64_t begin, int64_t end);

#endif
