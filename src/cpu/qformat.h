/* qformat.h — the block formats of quantized weights, one row each, and the packed layout that products read.
 *
 * Eleven ways to store a block become one canonical block (unsigned integers, two f16 factors, small integer scales),
 * and the packed layout has six layouts of bits times seven layouts of scales. So a format is a row that names its two
 * layouts, and a function that unpacks its blocks; kernels know only layouts. */
#ifndef TN_QFORMAT_H
#define TN_QFORMAT_H

#include "cpu/cpu_kernels.h"

enum {
    TN_QROWS = 16,  /* weight rows side by side in the packed form */
    TN_QBLOCK = 32, /* weights of a row for which the activations are rounded together */
    TN_QSUPER = 256 /* weights of a block in the K formats */
};

/* Bits of 32 weights of 16 rows. Weights are in groups of four: chunk c has weights 4c … 4c + 3 of each row, 64 bytes.
 * "low" and "high" are two consecutive regions of a group of 16 rows. */
typedef enum tn_qbits {
    TN_QBITS_4,   /* low: 4 × 64 bytes; low nibbles are chunks 0 … 3, high ones 4 … 7 */
    TN_QBITS_4_1, /* the same, and high: 64 bytes, bit c of each belongs to chunk c */
    TN_QBITS_4_2, /* the same, and high: 2 × 64 bytes, bits 2t, 2t + 1 of the p-th belong to chunk 4p + t */
    TN_QBITS_2,   /* low: 2 × 64 bytes, bits 2t, 2t + 1 of the p-th are chunk 4p + t */
    TN_QBITS_2_1, /* the same, and high as TN_QBITS_4_1 */
    TN_QBITS_8,   /* low: 8 × 64 bytes */
    TN_QBITS_COUNT
} tn_qbits;

/* Scales of 16 rows, side by side at each step: f16 d[16], f16 minimum[16], then small integers. */
typedef enum tn_qscales {
    TN_QSCALES_D,      /* each block: d */
    TN_QSCALES_DM,     /* each block: d, minimum */
    TN_QSCALES_PAIR_M, /* each super-block: d, minimum, pairs (scale, min) of a block; see below */
    TN_QSCALES_PAIR,   /* each super-block: d, pairs (scale + 32 of the first part, of the second) of a block */
    TN_QSCALES_I8,     /* each super-block: d, then i8 scale[2][16] a block */
    TN_QSCALES_NIBBLE, /* each super-block: d, minimum, then u8 (scale | min << 4)[2][16] a block */
    TN_QSCALES_F32,    /* each block: f32 of the first part, of the second; no d */
    TN_QSCALES_COUNT
} tn_qscales;
/* Pairs of 6-bit numbers of 8 blocks: u8 low[8][16], the low nibbles of first | second << 4; then u8 high[4][16], whose
 * low nibble belongs to block 2i and whose high nibble to block 2i + 1: upper bits of first | second << 2. */

/* One block of a file, in any format: weight i is s·(u[i] − zero) + t, s and t by the part it is in. */
typedef struct tn_qunpacked {
    uint8_t u[TN_QSUPER];
    uint16_t d, minimum;        /* f16 */
    uint8_t scale[16], min[16]; /* of parts; i8 with TN_QSCALES_I8, 32 more than meant with TN_QSCALES_PAIR; with
                                   TN_QSCALES_F32 two floats */
} tn_qunpacked;

typedef struct tn_qformat {
    tn_dtype dtype;
    int elements, bytes; /* of a block in the file */
    int parts;           /* of 32 weights */
    bool has_minimum;
    int zero;
    tn_qbits bits;
    tn_qscales scales;
    void (*unpack)(const uint8_t *block, tn_qunpacked *out);
} tn_qformat;

/* NULL if `dtype` is not a block format. */
const tn_qformat *tn_qformat_of(tn_dtype dtype);

/* Where a group of 16 rows keeps what. Regions start at multiples of 64 bytes. */
typedef struct tn_qlayout {
    int64_t low, high;         /* where they start; scales start at 0 */
    int64_t group;             /* bytes of all */
    int low_bytes, high_bytes; /* of a block of 32 */
    int scale_bytes;           /* of `scale_blocks` blocks of 32: 1 or 8 */
    int scale_blocks;
} tn_qlayout;
tn_qlayout tn_qlayout_of(const tn_qformat *f, int64_t k);

/* Weights in f16 and bf16 go the same way, without blocks: u16[k][16] a group of 16 rows. */
static inline bool tn_qmat_is_half(tn_dtype dtype) { return dtype == TN_F16 || dtype == TN_BF16; }
static inline int64_t tn_half_group_bytes(int64_t k) { return tn_round_up(k * 2 * TN_QROWS, 64); }

#endif
