/* conv_paths.h — shared by the convolution kernels of the CPU: the paths of conv.c, input windows, pooling. */
#ifndef TN_CONV_PATHS_H
#define TN_CONV_PATHS_H

#include <string.h>

#include "cpu/conv.h"
#include "cpu/conv_vec.h"
#include "cpu/isa.h"

/* ==== batch as rows of the product ================================================================================ */

/* Whether this path supports the sizes and is faster. Weights are packed by tn_conv_nhwc_pack. */
bool tn_conv_batch_rows_fits(const tn_conv_args *args);
size_t tn_conv_batch_rows_workspace(const tn_conv_args *args, int threads);
void tn_conv_batch_rows(const tn_conv_args *args, void *workspace);

/* ==== filters as columns of the product =========================================================================== */

/* Does it take these sizes, and is it worth it? The others take sizes for which this is so. */
bool tn_conv_nhwc_fits(const tn_conv_args *args);
size_t tn_conv_nhwc_packed_bytes(const tn_conv_args *args);
void tn_conv_nhwc_pack(const tn_conv_args *args, void *to);

/* Parts of one convolution whose results are the pixels of a larger image: phase (i, j), i · split[1] + j in `of`, has
 * pixel (split[0] · u + i, split[1] · v + j). Windows of all lie within the whole one's, whose output pixels are
 * theirs. */
enum { NHWC_PHASES = 4 };
typedef struct nhwc_phases {
    int64_t split[2];
    tn_conv_args of[NHWC_PHASES];
} nhwc_phases;

/* `phases`: NULL where there are none. Packed filters, of each phase, have memory of their own and are there. */
size_t tn_conv_nhwc_workspace(const tn_conv_args *args, const nhwc_phases *phases, int threads);
void tn_conv_nhwc(const tn_conv_args *args, const nhwc_phases *phases, void *workspace);

/* ==== epilogues by channels ======================================================================================= */

/* Where an element of what an epilogue reads lies; NULL: it does not read that. */
static inline const float *epilogue_reads(const tn_fused_program *epilogue, const tn_epilogue_access *at) {
    return at->buffer < 0 ? NULL : (const float *)epilogue->launch.buffers[at->buffer] + at->first;
}

/* Whether an epilogue only adds a bias, adds an image (if the results lie in blocks of channels), takes max(…, 0) and
 * clips. *ops: these operations, with the addresses of channel 0 … */
static inline bool epilogue_by_channels(const tn_fused_program *epilogue, epilogue_ops *ops) {
    const tn_fused_epilogue *e = epilogue->vm ? epilogue->epilogue_ops : NULL;
    if (!e) return false;
    *ops = (epilogue_ops){.add = epilogue_reads(epilogue, &e->add),
                          .also = epilogue_reads(epilogue, &e->also),
                          .floor = epilogue_reads(epilogue, &e->floor),
                          .ceiling = epilogue_reads(epilogue, &e->ceiling),
                          .relu = e->relu};
    return true;
}

/* ==== depthwise windows =========================================================================================== */

/* Memory for the offset of each tap of a window. */
static inline size_t window_taps_bytes(const tn_conv_args *a) {
    return tn_whole_lines((size_t)(a->kernel[0] * a->kernel[1]) * sizeof(int64_t));
}
/* Computes these offsets from the distances in `w`, in `at`. */
void tn_conv_find_window_taps(window_taps *w, const tn_conv_args *a, int64_t *at);

/* Are a filter's taps consecutive? */
static inline bool filters_follow(const tn_conv_args *a) {
    return a->weight_stride[3] == 1 && a->weight_stride[2] == a->kernel[1];
}

/* Of channels from `channel` on: to[tap · lanes + channel], `count` of them. */
void tn_conv_take_filters(const conv_vec *with, const tn_conv_args *a, int64_t channel, int64_t count, int64_t lanes,
                          float *to);

/* ==== a vector of channels at a time ============================================================================== */

/* Of tn_conv_depthwise: are there as many channels, and does the input tile of a row of output pixels fit? */
bool tn_conv_by_channels_fits(const tn_conv_args *args);
size_t tn_conv_by_channels_workspace(const tn_conv_args *args, int threads);
void tn_conv_by_channels(const tn_conv_args *args, int threads);

/* ==== gradient of the weight ====================================================================================== */

/* Channels that the input tile of a part has, where input tiles are to be small. */
int64_t tn_conv_weight_channels(const tn_conv_args *args);

/* ==== Winograd ==================================================================================================== */

size_t tn_conv_winograd_packed_bytes(const tn_conv_args *args);
void tn_conv_winograd_pack(const tn_conv_args *args, void *to);
size_t tn_conv_winograd_workspace(const tn_conv_args *args, int threads); /* beside packed filters */
void tn_conv_winograd(const tn_conv_args *args, void *workspace);         /* args->packed is there */

/* The weight's gradient, of windows for which tn_conv_wgrad_winograd_fits. */
size_t tn_conv_winograd_weight_workspace(const tn_conv_args *args, int threads);
void tn_conv_winograd_weight(const tn_conv_args *args);

/* ==== input windows =============================================================================================== */
/* A window's tap k = (channel, kernel row, kernel column) meets, output pixel after output pixel, elements of the image
 * that follow each other too, but at the image's edge. So the rows of the image that a run of output pixels needs are
 * first copied to an input tile, zeros around them; with a stride along the row, columns that taps meet together lie
 * together (a phase). In the input tile each tap is a fixed distance away, and a run of output pixels is a few pieces
 * of consecutive elements: operands are made of it by whole vectors, without a question asked. */

enum {
    IM2COL_PIXELS = 256,          /* of a run, at most */
    INPUT_TILE_ELEMENTS = 1 << 22 /* more is no cache's */
};

typedef struct im2col_plan {
    const tn_conv_args *a;
    const conv_vec *with;
    int64_t taps, depth;                 /* a channel's, all */
    int64_t plane;                       /* output pixels of an image */
    int64_t line;                        /* output pixels of all images */
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
        s->rows = s->sections = 0;
    }
}

static inline int64_t window_reach(const tn_conv_args *a, int axis) {
    return a->dilation[axis] * (a->kernel[axis] - 1) + 1;
}

static inline int64_t round_up(int64_t x, int64_t unit) { return tn_ceil_div(x, unit) * unit; }

/* As elements of whole lines whose number is odd: so far apart numbers are in different sets of a cache. */
static inline int64_t odd_lines(int64_t elements) { return (tn_ceil_div(elements, MOST_LANES) | 1) * MOST_LANES; }

static inline size_t im2col_bytes(int64_t elements) { return tn_whole_lines((size_t)elements * sizeof(float)); }

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

/* For runs of up to `width` output pixels. `with`: NULL if only sizes are asked. */
void tn_im2col_plan(im2col_plan *w, const conv_vec *with, const tn_conv_args *a, int64_t width, int64_t channels);
void tn_im2col_find_taps(im2col_plan *w, int64_t *tap); /* tap: [depth] */

/* Which rows of its image a section needs, of those that its output pixels see. */
void tn_im2col_section(const tn_conv_args *a, section *s);

/* Output pixels [first, first + count) of all images: where they lie, and where they will lie in the input tile. No
 * piece crosses a multiple of `panel` columns. A new `seen` has no sections. */
void tn_im2col_pixels(const im2col_plan *w, im2col_run *s, int64_t first, int64_t count, int64_t panel);

/* A part of the input tile's rows that lies inside of the image: columns [low, high) of one phase. */
typedef struct inside {
    int64_t phase, low, high;
    int64_t first; /* of the image's row, at `low` */
} inside;

inside tn_inside_phase(const im2col_plan *w, int64_t phase, int64_t left); /* left: column of the image */

void tn_clear_input_tile(const im2col_plan *w, im2col_run *s);

/* Channels [begin, end) of a group, for the output pixels that `s` has. */
void tn_fill_input_tile(const im2col_plan *w, im2col_run *s, int64_t group, int64_t begin, int64_t end);

/* ==== results ===================================================================================================== */

/* Rows and columns of the results of one channel, as they reach memory. */
static inline int64_t result_extent(const tn_conv_args *a, int axis) {
    return a->pool[0] > 0 ? a->out_size[axis] / a->pool[axis] : a->out_size[axis];
}

static inline int64_t result_plane(const tn_conv_args *a) { return result_extent(a, 0) * result_extent(a, 1); }

/* Where a row of a channel (of all groups) of an image begins. */
static inline float *result_at(const tn_conv_args *a, int64_t image, int64_t channel, int64_t row) {
    return a->out + (image * a->groups * a->out_channels + channel) * result_plane(a) + row * result_extent(a, 1);
}

/* ==== pooling of a block ========================================================================================== */
/* Windows lie side by side, and blocks are whole rows of them, so no window meets two blocks: what is pooled needs no
 * memory but its result's. */

/* Rows of output pixels that a block has to be a multiple of. */
static inline int64_t pooled_rows(const tn_conv_args *a) { return a->pool[0] > 0 ? a->pool[0] : 1; }

/* Is there a routine for such windows? */
static inline bool pooled_fits(const tn_conv_args *a) {
    bool of_four = a->pool[0] == 2 && a->pool[1] == 2, beside = a->pool[0] == 1 && a->pool[1] == 4;
    return (of_four || beside) && a->out_size[0] >= a->pool[0] && a->out_size[1] >= a->pool[1];
}

/* Channels and output pixels `at` of an image; what is left of them at the image's end takes no part. */
static inline void pool_block(const conv_vec *with, const tn_conv_args *a, int64_t image, box at, const float *block) {
    const int64_t down = a->pool[0], across = a->out_size[1], row = down * across;
    const int64_t columns = across / a->pool[1];
    float *out = result_at(a, image, at.row, at.col / row);
    for (int64_t i = 0; i < at.rows; i++, out += result_plane(a), block += TN_GEMM_BLOCK_LD)
        for (int64_t r = 0; r < at.cols / row; r++) {
            const float *from = block + r * row;
            if (down == 1)
                with->greatest_pairs(from, out + r * columns, columns);
            else
                with->greatest_of_four(from, from + across, out + r * columns, columns);
        }
}

/* To the epilogue, and on to where the image's results go. */
static inline void hand_over_result(fused_call *epilogue, const conv_vec *with, const tn_conv_args *a, int64_t image,
                                    box at, float *block) {
    fused_call_run(epilogue, (const int64_t[TN_GEMM_BATCH_AXES]){0, 0, 0, image}, at, block);
    if (a->pool[0] > 0) pool_block(with, a, image, at, block);
}

#endif
