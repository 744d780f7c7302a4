/* qpack.c — block-quantised weights into the form that products read: 16 rows side by side (qformat.h).
 *
 * Each block is unpacked to bytes, whatever its format; four weights of one row are then a word, and words are joined
 * by shifts that never carry from one byte into the next. Rows that the last group lacks are zero. */
#include <string.h>

#include "kern/qformat.h"

enum { CHUNKS = TN_QBLOCK / 4 };

typedef struct qpack {
    const tn_qformat *format;
    tn_qlayout layout;
    const uint8_t *blocks;
    int64_t n, k;
    uint8_t *packed;
} qpack;

/* One row's place in a group, at some block of 32. */
typedef struct place {
    uint8_t *scales, *low, *high;
    int row;
} place;

static uint32_t qpack_word(const uint8_t *u, int chunk) {
    uint32_t w;
    memcpy(&w, u + 4 * chunk, sizeof w);
    return w;
}

static void put_word(uint8_t *line, int row, uint32_t w) { memcpy(line + 4 * row, &w, sizeof w); }

/* ---- bits -------------------------------------------------------------------------------------------------------- */

static void put_nibbles(const uint8_t *u, uint8_t *to, int row) {
    for (int c = 0; c < 4; c++)
        put_word(to + 64 * c, row, (qpack_word(u, c) & 0x0f0f0f0fu) | (qpack_word(u, c + 4) & 0x0f0f0f0fu) << 4);
}

/* Two bits of each weight, from bit `shift` on. */
static void put_pairs(const uint8_t *u, int shift, uint8_t *to, int row) {
    for (int p = 0; p < 2; p++) {
        uint32_t w = 0;
        for (int t = 0; t < 4; t++)
            w |= (qpack_word(u, 4 * p + t) >> shift & 0x03030303u) << (2 * t);
        put_word(to + 64 * p, row, w);
    }
}

static void put_bits(const uint8_t *u, int shift, uint8_t *to, int row) {
    uint32_t w = 0;
    for (int c = 0; c < CHUNKS; c++)
        w |= (qpack_word(u, c) >> shift & 0x01010101u) << c;
    put_word(to, row, w);
}

static void put_bytes(const uint8_t *u, uint8_t *to, int row) {
    for (int c = 0; c < CHUNKS; c++)
        put_word(to + 64 * c, row, qpack_word(u, c));
}

static void put_weights(tn_qbits bits, const uint8_t *u, const place *at) {
    if (bits == TN_QBITS_8) put_bytes(u, at->low, at->row);
    if (bits <= TN_QBITS_4_2) put_nibbles(u, at->low, at->row);
    if (bits == TN_QBITS_2 || bits == TN_QBITS_2_1) put_pairs(u, 0, at->low, at->row);
    if (bits == TN_QBITS_4_1) put_bits(u, 4, at->high, at->row);
    if (bits == TN_QBITS_4_2) put_pairs(u, 4, at->high, at->row);
    if (bits == TN_QBITS_2_1) put_bits(u, 2, at->high, at->row);
}

/* ---- scales ------------------------------------------------------------------------------------------------------ */

static void put_f16(uint8_t *line, int row, uint16_t h) { memcpy(line + 2 * row, &h, sizeof h); }

/* The pair of block `b`; the group's memory was zeroed before. */
static void put_pair(uint8_t *pairs, int b, int row, int first, int second) {
    int upper = first >> 4 | second >> 4 << 2;
    pairs[16 * b + row] = (uint8_t)((first & 15) | (second & 15) << 4);
    pairs[128 + 16 * (b / 2) + row] |= (uint8_t)(upper << (4 * (b % 2)));
}

static void put_scales(const tn_qformat *f, const tn_qunpacked *x, const place *at) {
    uint8_t *to = at->scales;
    int row = at->row;
    bool has_minimum = f->has_minimum;
    if (f->scales == TN_QSCALES_F32) {
        put_word(to, row, qpack_word(x->scale, 0));
        put_word(to + 64, row, qpack_word(x->scale, 1));
        return;
    }
    put_f16(to, row, x->d);
    if (has_minimum) put_f16(to + 32, row, x->minimum);
    uint8_t *small = to + (has_minimum ? 64 : 32);
    for (int b = 0; b < f->elements / TN_QBLOCK; b++) {
        if (f->scales == TN_QSCALES_PAIR_M) put_pair(small, b, row, x->scale[b], x->min[b]);
        if (f->scales == TN_QSCALES_PAIR) put_pair(small, b, row, x->scale[2 * b], x->scale[2 * b + 1]);
        if (f->scales != TN_QSCALES_I8 && f->scales != TN_QSCALES_NIBBLE) continue;
        for (int part = 2 * b; part < 2 * b + 2; part++)
            small[16 * part + row] = (uint8_t)(x->scale[part] | (has_minimum ? x->min[part] << 4 : 0));
    }
}

/* ---- groups ------------------------------------------------------------------------------------------------------ */

static void pack_row(const qpack *q, const uint8_t *from, place at) {
    const tn_qformat *f = q->format;
    const tn_qlayout *l = &q->layout;
    for (int64_t k = 0; k < q->k; k += f->elements, from += f->bytes) {
        tn_qunpacked block;
        f->unpack(from, &block);
        put_scales(f, &block, &at);
        at.scales += l->scale_bytes;
        for (int i = 0; i < f->elements; i += TN_QBLOCK) {
            put_weights(f->bits, block.u + i, &at);
            at.low += l->low_bytes;
            at.high += l->high_bytes;
        }
    }
}

static void pack_groups(void *ctx, int64_t begin, int64_t end, int worker) {
    const qpack *q = ctx;
    (void)worker;
    int64_t row_bytes = q->k / q->format->elements * q->format->bytes;
    for (int64_t g = begin; g < end; g++) {
        uint8_t *group = q->packed + g * q->layout.group;
        memset(group, 0, (size_t)q->layout.group);
        for (int row = 0; row < TN_QROWS && g * TN_QROWS + row < q->n; row++) {
            place at = {group, group + q->layout.low, group + q->layout.high, row};
            pack_row(q, q->blocks + (g * TN_QROWS + row) * row_bytes, at);
        }
    }
}

/* ---- f16, bf16 --------------------------------------------------------------------------------------------------- */

static void pack_half_groups(void *ctx, int64_t begin, int64_t end, int worker) {
    const qpack *q = ctx;
    (void)worker;
    int64_t row_bytes = 2 * q->k, group_bytes = tn_half_group_bytes(q->k);
    for (int64_t g = begin; g < end; g++) {
        uint8_t *group = q->packed + g * group_bytes;
        int64_t rows = tn_min64(TN_QROWS, q->n - g * TN_QROWS);
        if (rows < TN_QROWS) memset(group, 0, (size_t)group_bytes);
        for (int64_t row = 0; row < rows; row++) {
            const uint8_t *from = q->blocks + (g * TN_QROWS + row) * row_bytes;
            for (int64_t k = 0; k < q->k; k++)
                memcpy(group + 2 * (k * TN_QROWS + row), from + 2 * k, 2);
        }
    }
}

/* ---- any weights ------------------------------------------------------------------------------------------------- */

size_t tn_qmat_packed_bytes(int64_t n, int64_t k, tn_dtype dtype) {
    const tn_qformat *f = tn_qformat_of(dtype);
    if (!f && !tn_qmat_is_half(dtype)) return 0;
    return (size_t)(tn_ceil_div(n, TN_QROWS) * (f ? tn_qlayout_of(f, k).group : tn_half_group_bytes(k)));
}

void tn_qmat_pack(tn_dtype dtype, const void *blocks, int64_t n, int64_t k, void *packed) {
    const tn_qformat *f = tn_qformat_of(dtype);
    if (!f && !tn_qmat_is_half(dtype)) return;
    qpack q = {.format = f, .blocks = blocks, .n = n, .k = k, .packed = packed};
    if (f) q.layout = tn_qlayout_of(f, k);
    tn_parallel(tn_ceil_div(n, TN_QROWS), 1, f ? pack_groups : pack_half_groups, &q);
}
