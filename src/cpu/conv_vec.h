/* conv_vec.h — the vector code of convolutions, compiled once per instruction set.
 *
 * conv.c, compiled once, divides a convolution into blocks and calls the table `conv_vec` for each: kernels for tiles
 * and copies between images and input tiles. */
#ifndef TN_CONV_VEC_H
#define TN_CONV_VEC_H

#include "cpu/conv.h"
#include "cpu/tile_set.h"

enum {
    MOST_LANES = 16 /* of a vector of any instruction set */
};

/* Lanes [low, high) of a vector of sums, and where they go: lane l to to[l], from where a filter's results begin. */
typedef struct window_run {
    int64_t to;
    int32_t low, high;
} window_run;

/* A vector of output pixels: where their first taps lie in the input tile, and which runs of it are results. The runs
 * end where those of the next vector begin. */
typedef struct window_vector {
    int64_t from;
    int64_t run;
} window_vector;

enum { WINDOW_ROWS = 8, WINDOW_VECTORS = 3 }; /* of a tile, at most */

/* Some filters over some vectors of output pixels: a chunk of their chains. */
typedef struct window_tile {
    const float *input_tile; /* what is seen, as rows with zeros around them (conv.c) */
    const int64_t *tap;      /* [k] elements from where the first tap lies */
    const float *weight;     /* [k, rows] */
    int64_t k;
    const window_vector *vector; /* of the tile, and one more */
    const window_run *run;
    float *sums; /* [rows, sums_row]: those of the chunks before, vectors side by side */
    int64_t sums_row;
    bool add, last; /* to the sums before; results are finished and go … */
    float *to;      /* … here, those of the next filter to_row further */
    int64_t to_row;
    const struct epilogue_ops *end; /* done to the results; NULL: nothing */
    int64_t channel;                /* of the first filter, in what `end` adds */
} window_tile;

typedef void window_fn(const window_tile *t);

/* At most a vector's elements of an input tile that become columns [to, to + count) of a run of output pixels. */
typedef struct piece {
    int32_t from, to, count;
} piece;

/* The window of a depthwise convolution in an input tile. Tap (i, j) lies at
 * i · row + j % phases · phase + j / phases · step, dilation included. */
typedef struct window_taps {
    const int64_t *at; /* [count] */
    int64_t count;
    int64_t row, phase, phases, step;
    int64_t square; /* taps of a row of a square window without dilation; 0: another window */
} window_taps;

/* Rows of vectors of results of a depthwise convolution. Lanes are output pixels of a row, or channels. */
typedef struct weigh_rows {
    const window_taps *taps;
    const float *from;      /* where the first vector's windows begin; elements … */
    int64_t from_row, step; /* … from row to row and from vector to vector */
    const float *weight;    /* [taps] of pixels, [taps, lanes] of channels; NULL: the greatest is looked for */
    float *to;              /* vectors side by side */
    int64_t to_row, rows, vectors;
    int64_t last;                   /* lanes of a row's last vector that are stored */
    const struct epilogue_ops *end; /* done to the results, with one number to add to all of them; NULL: nothing */
    bool each_lane;                 /* … with one to add to each lane */
} weigh_rows;

/* The same of rows of output pixels of some channels, read where they lie in the image: square windows without
 * dilation, the same stride along both axes. Elements from channel to channel and from row to row. */
typedef struct weigh_image {
    const float *x;
    int64_t x_channel, x_row, size[2];
    int64_t top, left; /* where the first output pixel's window begins; may be outside of the image */
    int64_t side, stride;
    const float *weight; /* [side, side] of each channel */
    int64_t weight_channel;
    const float *zeros; /* a row of the image's width */
    float *to;
    int64_t to_channel, to_row;
    int64_t channels, rows, columns; /* columns: WEIGH_COLUMNS at most */
    const struct epilogue_ops *end;  /* done to the results, with a number to add a channel; NULL: nothing */
} weigh_image;

enum { WEIGH_COLUMNS = 512 };

/* A piece of one image's results in tiles of 4×4 (conv_vec.c): where each row begins, the results that it has (rows ×
 * columns; of the last tiles not all exist), and the tiles. */
enum { WINOGRAD_OUT = 4, WINOGRAD_IN = 6, WINOGRAD_POINTS = WINOGRAD_IN * WINOGRAD_IN, WINOGRAD_1D_OUT = 2 };
typedef struct winograd_area {
    float *const *row;
    int64_t rows, columns, down, across;
} winograd_area;

typedef void winograd_values_fn(const float *pixels, int64_t row, int64_t pixel, float *to, int64_t point,
                                int64_t channels, int64_t first, int64_t count);

typedef struct conv_vec {
    const tile_set *tiles;
    /* Every `step`-th element of some rows that are `to_row` and `from_row` apart; the way back, of one row. */
    void (*copy_rows)(float *to, int64_t to_row, const float *from, int64_t from_row, int64_t rows, int64_t step,
                      int64_t count);
    void (*spread_row)(float *to, const float *from, int64_t step, int64_t count);
    /* A piece for each of `rows` taps: row r from from[tap[r] − base] to to[r · distance]. */
    void (*copy_piece)(float *to, int64_t distance, const float *from, const int64_t *tap, int64_t base, int64_t rows);
    /* Tiles of up to `window_rows` filters, by their number and that of vectors. */
    window_fn *const (*window)[WINDOW_VECTORS + 1];
    int window_rows;
    /* Sums over a window's taps: chains of KIR_KSUM fused multiply-adds. Greatest numbers: as a reduction of KIR. */
    void (*weigh)(const weigh_rows *w);
    /* Windows of 3 × 3 and 5 × 5 with a stride of 1 or 2; NULL: loads have no masks. */
    void (*weigh_image)(const weigh_image *w);
    /* The same for one block of channels of an image (conv.h): each pixel, each weight and the bias is a vector of
     * channels. Requires two columns of output pixels or more. */
    void (*weigh_block)(const weigh_image *w);
    /* A row of output pixels, each the greatest of two neighbours in two rows, without an input tile. */
    void (*greatest_of_four)(const float *upper, const float *lower, float *to, int64_t out_size);
    void (*greatest_pairs)(const float *from, float *to, int64_t out_size); /* … of four neighbours in one row */
    /* Winograd's transforms; NULL: none of them. Lines of 4 · across + 2 numbers, `line` apart: value i of tile t
     * of line y goes to input tile[(y % 4 · 6 + i) · distance + y / 4 · across + t]. Down that input tile: value (i, j)
     * of tile t goes to to[(i · 6 + j) · point + t]. */
    void (*winograd_rows)(const float *lines, int64_t line, int64_t count, float *input_tile, int64_t distance,
                          int64_t across);
    void (*winograd_columns)(const float *input_tile, int64_t distance, int64_t across, float *to, int64_t point,
                             int64_t tiles);
    /* The way back of sums[(i · 6 + j) · point + t], `offset` elements behind where the area's rows begin. All three
     * read and write whole vectors of tiles, but for the results. */
    void (*winograd_finish)(const winograd_area *area, const float *sums, int64_t point, int64_t offset);
    /* Of `rows` filters side by side, at most a vector of them, whose taps are `step` apart: value (i, j) of each goes
     * to to[(i · 6 + j) · point + row]. */
    void (*winograd_out_channels)(const float *taps, int64_t step, float *to, int64_t point, int64_t rows);
    /* The same along one axis, tiles being two output pixels: value i of tile t of a line of 2 · tiles + 4 numbers goes
     * to to[i · point + t], whole vectors of them; and back, `count` results. */
    void (*winograd_1d)(const float *line, int64_t tiles, float *to, int64_t point);
    void (*winograd_1d_finish)(const float *sums, int64_t point, float *to, int64_t count);
    /* The gradient of filters, whole vectors of channels side by side. Values of the 6×6 pixels that a tile sees, or
     * of its 4×4 results: of rows [first, first + count) of points, to to[((i − first) · 6 + j) · point + channel]. And
     * the way back: tap k of channel c to to[k · channels + c]. */
    winograd_values_fn *winograd_images, *winograd_gradients;
    void (*winograd_taps)(const float *sums, int64_t point, float *to, int64_t channels);
} conv_vec;

extern const conv_vec tn_conv_vec_base, tn_conv_vec_avx2, tn_conv_vec_avx512;
const conv_vec *tn_conv_vec(void);   /* the processor's (select.c) */
const tile_set *tn_byte_tiles(void); /* of bytes four at a time, as wide as these; NULL: it has no such instruction */

#endif
