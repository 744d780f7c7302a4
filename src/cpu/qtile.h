/* qtile.h — products with weights as stored in files: the interface between their driver and the kernels.
 *
 * The driver (qmat.c) divides a product into blocks and is compiled once. The kernels that round x and unpack weights
 * (qplain.c) and those that multiply bytes (qtile.c) are compiled once per instruction set, into a qtile_set. */
#ifndef TN_QTILE_H
#define TN_QTILE_H

#include "cpu/qformat.h"
#include "cpu/tile_set.h"

enum {
    QCHUNKS = TN_QBLOCK / 4,
    QLINE = 4 * TN_QROWS,    /* bytes of a chunk */
    QBITS = QCHUNKS * QLINE, /* bytes of a panel's block before its scales */
    QHEIGHTS = 4,            /* heights of tiles */
    QREGIONS = 3,            /* of a group of weights: scales, low bits, high bits */
    ROUND_BLOCKS = 16,       /* of a row, rounded side by side at most */
    HALF_GROUPS = 4,         /* for one row of x with weights in half precision, side by side */
    QAHEAD = 5120            /* prefetch distance in bytes: over ten blocks, because memory is the limit */
};

/* 32 numbers of 8 bits, dx, then a number for each part: dx · Σ q if weights have a minimum, else −zero · Σ q, with
 * which the sum of products starts. Records of a tile's rows are contiguous, block after block. */
enum { RECORD_SCALE = TN_QBLOCK, RECORD_PARTS = RECORD_SCALE + 4, MOST_RECORD_BYTES = RECORD_PARTS + 8 };

/* Records of two rows of x as one, for kernels that multiply rows in pairs: eight numbers of one row, eight of the
 * other, and so on; then their scales; then, part by part, the numbers of both. */

static inline int64_t record_bytes(int parts) { return RECORD_PARTS + 4 * parts; }

/* A few rows of x and one group of weights, all blocks. */
typedef struct stripe {
    const uint8_t *scales, *low, *high;
    int64_t blocks;
    const uint8_t *x; /* block after block, as many records as the kernel has rows */
    float *c;
    int64_t next;        /* bytes to the group that is read after this one */
    int64_t rows, c_row; /* written to c: at most the kernel's */
} stripe;

typedef void stripe_fn(const stripe *p);

/* Rows of the kernels for one to few rows of x; the last ones are only for processors with 32 vectors of 16 numbers. */
enum { STRIPE_HEIGHTS = 3, STRIPE_LOW = 4, STRIPE_HIGH = 8 };

/* A tile of rows and a panel. */
typedef struct qtile {
    const uint8_t *panel;
    int64_t blocks;
    const uint8_t *x;
    int64_t x_step; /* bytes from block to block */
    float *c;
    int64_t c_row;
    bool add; /* to the contents of c: earlier blocks */
    /* What the next panel is made of: scales, low and high bits. It comes from memory while this one is multiplied. */
    const uint8_t *ahead[QREGIONS]; /* the first is NULL: nothing */
    int64_t ahead_bytes[QREGIONS];  /* of a block */
} qtile;

/* A tile of rows of x, packed step by step, one chain at most; and one group of weights, or two. */
typedef struct half_tile {
    const uint8_t *weights;
    int64_t group; /* bytes to the next one */
    int64_t steps;
    const float *x;
    float *c;
    int64_t c_row;
    bool add; /* to the contents of c: earlier chains */
} half_tile;

/* Rows of x and a panel, by height of the tile. */
typedef struct panel_kernels {
    void (*run[QHEIGHTS])(const qtile *t);
} panel_kernels;

/* Tiles of two vectors, and of what the last group has; one row of one group, and of HALF_GROUPS. */
typedef struct half_set {
    void (*tile[2][QHEIGHTS])(const half_tile *t);
    void (*row[2])(const uint8_t *weights, int64_t group, int64_t k, const float *x, float *c);
} half_set;

typedef void bits_unpacker(const uint8_t *low, const uint8_t *high, const tn_qlayout *l, int64_t blocks, uint8_t *to,
                           int64_t step);

typedef struct qplain_set {
    const tile_set *tiles;
    int heights[QHEIGHTS]; /* rows of a tile of x, the greatest first */
    int round_at_once;     /* blocks of a row, at least */
    int halves_at_once;    /* groups of weights in half precision that a tile takes */
    /* Up to ROUND_BLOCKS blocks of a row, a multiple of round_at_once. */
    void (*round)(const float *x, int count, const tn_qformat *f, uint8_t *record, int64_t step);
    bits_unpacker *const *bits_to_panel; /* by tn_qbits */
    void (*scales_to_panel)(tn_qscales format, const uint8_t *from, const tn_qlayout *l, int64_t blocks, uint8_t *to,
                            int64_t step);
    const half_set *half, *brain;
} qplain_set;

typedef struct qtile_set {
    const qplain_set *plain;                    /* of the same vectors, with or without dot products */
    stripe_fn *const (*stripe)[STRIPE_HEIGHTS]; /* by dtype: for 1, STRIPE_LOW and STRIPE_HIGH rows of x, or NULL */
    const panel_kernels *(*panels)(const tn_qformat *f);
    bool pairs; /* kernels for panels, except those of one row, take records in pairs; round_at_once is 1 */
} qtile_set;

extern const qplain_set tn_qplain_base, tn_qplain_avx2, tn_qplain_avx512;
extern const qtile_set tn_qtiles_base, tn_qtiles_avx2;
extern const qtile_set tn_qtiles_avx2vnni, tn_qtiles_avx512vnni; /* with dot products of small integers */
extern const qtile_set tn_qtiles_dotprod, tn_qtiles_i8mm;        /* ARM64's */
const qtile_set *tn_qtiles(void);                                /* the processor's (select.c) */

#endif
