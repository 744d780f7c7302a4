/* tile_set.h — the interface between the driver of matrix products and its kernels for one instruction set.
 *
 * The driver (gemm.c) divides products into blocks and is compiled once per type. The packing and multiplying kernels
 * (tiles.c) are compiled once per instruction set; each instruction set exports one tile_set. Because vector width and
 * number of registers differ, the driver takes the sizes of panels and tiles from the tile_set. */
#ifndef TN_TILE_SET_H
#define TN_TILE_SET_H

#include <stdbool.h>
#include <stdint.h>

#if defined(TN_VEC_PAIRS) || defined(TN_VEC_QUADS)
#define TN_VEC_WORDS /* several elements of k in the room of a sum */
#endif

#if defined(TN_VEC_F64)
typedef double real;
#elif defined(TN_VEC_PAIRS)
typedef float real __attribute__((aligned(2), may_alias)); /* or two numbers in bf16, where these stand in memory */
#elif defined(TN_VEC_QUADS)
typedef float real __attribute__((aligned(1), may_alias)); /* the bits of a sum, or four bytes that stand in memory */
#else
typedef float real;
#endif

/* ---- multiplying (tiles.c) --------------------------------------------------------------------------------------- */

enum {
    WIDE_HEIGHT = 4, /* the greatest height of a tile that may be several panels wide */
    TILE_COPY = 272, /* distance of copied rows of A: a chain's steps, and each in other sets of the first cache */
    LINES_ROWS = 4   /* rows of A up to which lines of B are read; with more, packing B pays */
};

/* A fused epilogue applied to finished f32 sums before they are stored: a tn_fused_epilogue with its addresses. */
typedef struct epilogue_ops {
    const real *add;   /* a number a column; NULL: none */
    const real *times; /* a number a row, times_row apart; NULL: none */
    const real *gate;  /* a matrix whose rows are gate_row apart; NULL: none */
    int64_t times_row, gate_row;
    const real *each; /* a number a row, each_row apart; NULL: none */
    const real *also; /* a matrix whose rows are also_row apart; NULL: none */
    int64_t each_row, also_row;
    const real *floor, *ceiling; /* a number; NULL: none */
    real zero;
    bool relu;
} epilogue_ops;

/* Sums, the first of which is C's at (row, column), and their destination if there is a gate. */
typedef struct epilogue_block {
    const epilogue_ops *epilogue_ops;
    const real *from;
    real *to;
    int64_t from_row, to_row, row, rows, column, columns;
} epilogue_block;

typedef struct tile {
    const real *a;
    int64_t a_row, a_k; /* distance between rows and between steps of k */
    /* For a full tile of full height with a_row TILE_COPY: rows from_row apart are copied to `copy` first; NULL: they
     * are there already. */
    const real *from;
    int64_t from_row;
    real *copy;
    const real *b;
    int64_t b_k, b_panel;     /* distance between steps of k and between panels */
    const int64_t *tap;       /* where each step of A begins in a turned tile */
    const int64_t *ahead_tap; /* of a turned tile: what to prefetch at each step, from A; NULL: nothing */
    real *c;
    int64_t c_row;
    const real *c_next; /* start of the next tile in C; NULL: unknown */
    int64_t k;
    int64_t columns; /* of an edge tile, at most a vector of them; of a turned one with `to`, those that are channels */
    bool add;        /* to what C holds; else C is overwritten */
    /* of a full tile of full height, or NULL: its sums are finished, and begin in C at … */
    const epilogue_ops *epilogue_ops;
    int64_t row, column;
    /* Prefetched meanwhile, one cache line every 16 steps: rows of A for the next tile, or other data; if B is
     * contiguous along k, the next vector's columns, or NULL. */
    const real *ahead;
    int64_t ahead_row;  /* distance; of a turned tile lines every NHWC_AHEAD steps */
    int64_t ahead_rows; /* how many of them: 0 for none; of a turned tile lines of the cache, each behind the last */
    bool goes_on;       /* a turned tile whose chains began before: their sums so far are … */
    int64_t begun;      /* … this many elements after C's */
    /* Of a turned tile of floats: finished sums go here, a vector of columns after the other row by row, the second
     * vector's `to_block` elements further, with its epilogue_ops done, of which the first column is the tile's; NULL:
     * to C. `also` lies in the same way, and takes the place of epilogue_ops->also; NULL: nothing is added. */
    real *to;
    const real *also;
    int64_t to_block;
    /* Of a turned tile over steps in order: how many steps have products that fit into 16 bits by two, and one by one.
     * The others of the k have filters of 16 bits. */
    int64_t two, one;
} tile;

enum { NHWC_AHEAD = 8 }; /* steps of a turned tile between two prefetches: it has others to wait for */

typedef void tile_fn(const tile *t);

/* Are A's rows where a tile of full height is one, whose fused epilogue is known, and not two lower ones? */
static inline bool tile_has_rows(const tile *t) { return t->a_row == 1 || (t->a_row == TILE_COPY && t->a_k == 1); }

/* Height of the next tile from the rows left in a block: full height, except that the last two tiles share the rest if
 * the last one would have too few rows to keep the multipliers busy. Odd heights of high tiles are two tiles
 * (tiles.c). */
static inline int64_t tile_height(int64_t left, int64_t full) {
    enum { BUSY = 5, HIGH = 8 };
    if (left <= full) return left;
    if (left >= 2 * full || left - full >= BUSY) return full;
    int64_t half = (left + 1) / 2;
    return half > HIGH ? half + (half & 1) : half;
}

/* The same for turned tiles: as few of them as can be, and nearly alike; of 9 and 11 rows there are none. Divisions of
 * 32 bits, because they take half as long. */
static inline int64_t tile_nhwc_height(int64_t left, int64_t full) {
    enum { HIGH = 8 };
    const uint32_t rows_left = (uint32_t)left, most = (uint32_t)full;
    const uint32_t tiles = (rows_left + most - 1) / most, rows = (rows_left + tiles - 1) / tiles;
    return rows > HIGH && tiles > 1 && rows < most - 1 ? rows + (rows & 1) : rows;
}

/* ---- packing (tiles.c) ------------------------------------------------------------------------------------------- */

/* Element kind in memory. Constant after inlining wherever it decides anything. Where a step has two bytes, these are
 * PACK_I8 or PACK_U8, and `second` is the distance between the two. */
typedef enum pack_kind { PACK_REAL, PACK_F16, PACK_BF16, PACK_PAIRS, PACK_I8, PACK_U8, PACK_QUADS } pack_kind;

static const int64_t pack_size[] = {sizeof(real), 2, 2, 2, 1, 1, 1};

/* Line l of a step goes to[l / group · jump + step · distance + l % group], from element step · along + l · across. A
 * pair is this element and the one `second` further; a quad continues so. */
typedef struct pack {
    real *to;
    int64_t distance;
    int64_t group, jump; /* lines of a packed panel or tile, and the distance between these */
    pack_kind kind;
    const void *from;
    int64_t along, across, second;
    int rest; /* elements of the last step's pairs or quads, which then have zeros behind, where nothing is; 0: all */
    int64_t steps, lines;
    const epilogue_ops *epilogue_ops; /* of floats that lie along k, or NULL: done to them, a step being its column */
} pack;

/* ---- results that are not stored as they were summed ------------------------------------------------------------- */

/* A block in separate rows of sums, and the destination of its elements: distances in elements of the stored dtype. */
typedef struct result_block {
    void *to;
    int64_t row_stride, col_stride;
    const real *from;
    int64_t from_row, rows, columns;
} result_block;

/* ---- sums of bytes as bytes -------------------------------------------------------------------------------------- */

/* Rounds sums, which lie side by side for each pixel, of `channels` channels from `channel` on. The bytes go to planes
 * of channels, to planes of words of four channels (rounding->words), or side by side too (row). */
typedef struct byte_result {
    const struct tn_byte_rounding *rounding;
    int64_t channel;
    const int32_t *from;
    int64_t from_row;
    uint8_t *to;
    const uint8_t *addend; /* of rounding->addend, at the place of `to` */
    int64_t row;           /* bytes from pixel to pixel of which channels are side by side; 0: planes */
    int64_t plane, channels, pixels;
} byte_result;

/* Rows of output pixels of one word of channels, `channels` of which exist: windows of `rows` × `columns` words. The 16
 * · (stride + 2) words after the last window must be readable. */
typedef struct byte_windows {
    const struct tn_byte_rounding *rounding; /* of weigh */
    int64_t channel;
    int channels;
    const uint32_t *from;
    int64_t from_row, from_down; /* words from a window's row to its next; from a row of output pixels to the next */
    int64_t stride, dilation;    /* of columns */
    const int32_t *weights;      /* [rows / 4, columns, channels of a word]: taps of four rows; zeros behind the last */
    uint32_t turned;             /* of pool: bits of the results that are inverted */
    int rows, columns;
    uint32_t *to;
    int64_t out_rows, out_columns;
} byte_windows;

/* Sums of filters whose products with bytes fit into 16 bits. */
enum { PAIR_MOST = INT16_MAX / UINT8_MAX };
enum { ORDER_ROWS = 4 }; /* of tiles over steps in order, whose filters of two steps need registers */

typedef struct byte_kernels {
    void (*round)(const byte_result *r);
    void (*weigh)(const byte_windows *w);
    void (*pool)(const byte_windows *w); /* the greatest byte of each window, without sign */
    /* Interleaves the pixels of four planes to words and inverts the bits of `turned`; split: back, to `channels`
     * planes. */
    void (*join)(const uint8_t *const plane[4], int64_t count, uint32_t turned, uint32_t *to);
    void (*split)(const uint32_t *from, int64_t count, int channels, uint8_t *const plane[4]);
    /* Where tiles saturate sums of the products of a word's first two and last two bytes to 16 bits: turned tiles over
     * steps in order, of a panel, and of its first vector, of up to ORDER_ROWS rows; else NULL. */
    tile_fn *const *order, *const *order_half;
} byte_kernels;

/* All of an instruction set, by height of tiles where that matters. */
typedef struct tile_set {
    tile_fn *const *full, *const *edge, *const *wide;
    /* Over one packed panel of B, contiguous rows of A, and C one panel wide and contiguous; the heights of
     * tile_nhwc_height; f32 and bytes. */
    tile_fn *const *nhwc, *const *nhwc_half;     /* half: of the panel's first vector only */
    tile_fn *const *blocks, *const *blocks_half; /* the same over rows of A that are a vector apart; f32 */
    const int *wide_panels;
    void (*pack)(const pack *p);
    /* C of `rows` rows of A (t->a …) and t->columns columns of B that are contiguous along k, `distance` bytes apart
     * (tiles.c). */
    void (*lines)(const tile *t, pack_kind kind, const char *first, int64_t distance, int rows);
    const bool *lines_take;                               /* which kinds */
    void (*end)(const epilogue_block *block);             /* only f32 */
    void (*round)(const result_block *block, bool brain); /* to f16 or bf16 */
    void (*add)(const result_block *block, bool add);     /* whole numbers, modulo 2³², to what is there or over it */
    int lanes, rows;                                      /* of a vector; of a tile of full height */
    int width;                                            /* elements in a step: 2 of bf16, 4 or 2 bytes, else 1 */
    bool folds;                                           /* packed rows of A take fewer instructions */
    const byte_kernels *bytes;                            /* of bytes, whose sums are integers; else NULL */
} tile_set;

/* Some µs of one core's work: less than two of that are not worth a fork-join. */
static const double PART_FLOPS = 5e5;

/* One row of tiles: `height` rows of A times the panels that `t` points at. */
static inline void tiles_multiply(const tile_set *with, tile t, int64_t height, int64_t columns) {
    const int64_t lanes = with->lanes, panel = 2 * lanes;
    if (height <= WIDE_HEIGHT) {
        int64_t panels = with->wide_panels[height];
        for (; columns >= panels * panel; columns -= panels * panel) {
            with->wide[height](&t);
            t.b += panels * t.b_panel;
            t.c += panels * panel;
        }
    }
    for (; columns >= panel; columns -= panel) {
        with->full[height](&t);
        t.b += t.b_panel;
        t.c += panel;
    }
    for (; columns > 0; columns -= lanes) {
        t.columns = columns;
        with->edge[height](&t);
        t.b += lanes;
        t.c += lanes;
    }
}

#endif
