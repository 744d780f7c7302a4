/* qformat.c — the block formats of quantized weights, and packing them in groups of 16 rows.
 *
 * The formats are GGUF's; in memory, f16 factors have the machine's byte order. Speed does not matter here: weights are
 * unpacked once, and few rows of an embedding are read. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "cpu/qformat.h"
#include "kir/kir_math.h"

static uint16_t factor(const uint8_t *p) {
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return h;
}

static uint32_t four_bytes(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* ---- blocks of 32: low nibbles are weights 0 … 15, high nibbles 16 … 31 ------------------------------------------ */

static void split_nibbles(const uint8_t *bytes, int count, uint8_t *u) {
    for (int i = 0; i < count; i++) {
        u[i] = bytes[i] & 15;
        u[count + i] = bytes[i] >> 4;
    }
}

/* Bit i of `bits` is the fifth of weight i. */
static void add_fifth_bits(uint32_t bits, uint8_t *u) {
    for (int i = 0; i < TN_QBLOCK; i++)
        u[i] |= (uint8_t)((bits >> i & 1) << 4);
}

static void unpack_q4_0(const uint8_t *b, tn_qunpacked *out) {
    out->d = factor(b);
    split_nibbles(b + 2, 16, out->u);
}

static void unpack_q4_1(const uint8_t *b, tn_qunpacked *out) {
    out->d = factor(b);
    out->minimum = factor(b + 2);
    split_nibbles(b + 4, 16, out->u);
}

static void unpack_q5_0(const uint8_t *b, tn_qunpacked *out) {
    out->d = factor(b);
    split_nibbles(b + 6, 16, out->u);
    add_fifth_bits(four_bytes(b + 2), out->u);
}

static void unpack_q5_1(const uint8_t *b, tn_qunpacked *out) {
    out->d = factor(b);
    out->minimum = factor(b + 2);
    split_nibbles(b + 8, 16, out->u);
    add_fifth_bits(four_bytes(b + 4), out->u);
}

static void unpack_q8_0(const uint8_t *b, tn_qunpacked *out) {
    out->d = factor(b);
    for (int i = 0; i < TN_QBLOCK; i++)
        out->u[i] = b[2 + i] ^ 0x80; /* i8 + 128 */
}

static void unpack_q8_x(const uint8_t *b, tn_qunpacked *out) {
    memcpy(out->scale, b, 2 * sizeof(float));
    for (int i = 0; i < TN_QBLOCK; i++)
        out->u[i] = b[8 + i] ^ 0x80;
}

/* ---- blocks of 256 ----------------------------------------------------------------------------------------------- */

/* Halves of 128 weights: byte l of 32 holds weights l, 32 + l, 64 + l and 96 + l of its half, lowest bits first. */
static void split_pairs(const uint8_t *bytes, uint8_t *u) {
    for (int half = 0; half < 2; half++) {
        for (int j = 0; j < 4; j++)
            for (int l = 0; l < 32; l++)
                u[128 * half + 32 * j + l] = bytes[32 * half + l] >> (2 * j) & 3;
    }
}

static void unpack_q2_k(const uint8_t *b, tn_qunpacked *out) {
    for (int i = 0; i < 16; i++) {
        out->scale[i] = b[i] & 15;
        out->min[i] = b[i] >> 4;
    }
    split_pairs(b + 16, out->u);
    out->d = factor(b + 80);
    out->minimum = factor(b + 82);
}

/* Bit j of byte l is one bit of weight 32j + l. */
static void add_bits(const uint8_t *bytes, int shift, uint8_t *u) {
    for (int j = 0; j < 8; j++)
        for (int l = 0; l < 32; l++)
            u[32 * j + l] |= (uint8_t)((bytes[l] >> j & 1) << shift);
}

static void unpack_q3_k(const uint8_t *b, tn_qunpacked *out) {
    const uint8_t *scales = b + 96;
    split_pairs(b + 32, out->u);
    add_bits(b, 2, out->u);
    for (int i = 0; i < 16; i++) {
        int low = i < 8 ? scales[i] & 15 : scales[i - 8] >> 4;
        int high = scales[8 + i % 4] >> (2 * (i / 4)) & 3;
        out->scale[i] = (uint8_t)(low | high << 4);
    }
    out->d = factor(b + 108);
}

/* Eight scales and eight minima of 6 bits in 12 bytes. */
static void split_scales(const uint8_t *b, tn_qunpacked *out) {
    for (int i = 0; i < 4; i++) {
        out->scale[i] = b[i] & 63;
        out->min[i] = b[4 + i] & 63;
        out->scale[4 + i] = (uint8_t)((b[8 + i] & 15) | b[i] >> 6 << 4);
        out->min[4 + i] = (uint8_t)(b[8 + i] >> 4 | b[4 + i] >> 6 << 4);
    }
}

static void unpack_q4_k(const uint8_t *b, tn_qunpacked *out) {
    out->d = factor(b);
    out->minimum = factor(b + 2);
    split_scales(b + 4, out);
    for (int i = 0; i < 4; i++)
        split_nibbles(b + 16 + 32 * i, 32, out->u + 64 * i);
}

static void unpack_q5_k(const uint8_t *b, tn_qunpacked *out) {
    out->d = factor(b);
    out->minimum = factor(b + 2);
    split_scales(b + 4, out);
    for (int i = 0; i < 4; i++)
        split_nibbles(b + 48 + 32 * i, 32, out->u + 64 * i);
    add_bits(b + 16, 4, out->u);
}

static void unpack_q6_k(const uint8_t *b, tn_qunpacked *out) {
    uint8_t high[TN_QSUPER];
    split_nibbles(b, 64, out->u);
    split_nibbles(b + 64, 64, out->u + 128);
    split_pairs(b + 128, high);
    for (int i = 0; i < TN_QSUPER; i++)
        out->u[i] |= (uint8_t)(high[i] << 4);
    memcpy(out->scale, b + 192, 16);
    out->d = factor(b + 208);
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

static const tn_qformat formats[] = {
    {TN_Q4_0, 32, 18, 1, false, 8, TN_QBITS_4, TN_QSCALES_D, unpack_q4_0},
    {TN_Q4_1, 32, 20, 1, true, 0, TN_QBITS_4, TN_QSCALES_DM, unpack_q4_1},
    {TN_Q5_0, 32, 22, 1, false, 16, TN_QBITS_4_1, TN_QSCALES_D, unpack_q5_0},
    {TN_Q5_1, 32, 24, 1, true, 0, TN_QBITS_4_1, TN_QSCALES_DM, unpack_q5_1},
    {TN_Q8_0, 32, 34, 1, false, 128, TN_QBITS_8, TN_QSCALES_D, unpack_q8_0},
    {TN_Q2_K, 256, 84, 2, true, 0, TN_QBITS_2, TN_QSCALES_NIBBLE, unpack_q2_k},
    {TN_Q3_K, 256, 110, 2, false, 4, TN_QBITS_2_1, TN_QSCALES_PAIR, unpack_q3_k},
    {TN_Q4_K, 256, 144, 1, true, 0, TN_QBITS_4, TN_QSCALES_PAIR_M, unpack_q4_k},
    {TN_Q5_K, 256, 176, 1, true, 0, TN_QBITS_4_1, TN_QSCALES_PAIR_M, unpack_q5_k},
    {TN_Q6_K, 256, 210, 2, false, 32, TN_QBITS_4_2, TN_QSCALES_I8, unpack_q6_k},
    {TN_Q8_X, 32, 40, 2, false, 128, TN_QBITS_8, TN_QSCALES_F32, unpack_q8_x},
};

const tn_qformat *tn_qformat_of(tn_dtype dtype) {
    for (size_t i = 0; i < TN_COUNT(formats); i++)
        if (formats[i].dtype == dtype) return &formats[i];
    return NULL;
}

static float tn_qscale(const tn_qformat *f, const tn_qunpacked *block, int i) {
    float d = kir_from_f16(block->d);
    if (f->scales == TN_QSCALES_F32) memcpy(&d, block->scale + 4 * i, sizeof d);
    if (f->elements == TN_QBLOCK) return d;
    if (f->scales == TN_QSCALES_I8) return d * (float)(int8_t)block->scale[i];
    return d * (float)(block->scale[i] - (f->scales == TN_QSCALES_PAIR ? 32 : 0));
}

/* s and t of part `i` of a block. */
static float tn_qminimum(const tn_qformat *f, const tn_qunpacked *block, int i) {
    if (!f->has_minimum) return 0;
    float m = kir_from_f16(block->minimum);
    return f->elements == TN_QBLOCK ? m : -(m * (float)block->min[i]);
}

void tn_decode_blocks(tn_dtype dtype, const void *blocks, int64_t count, float *out) {
    const tn_qformat *f = tn_qformat_of(dtype);
    if (!f) return;
    const uint8_t *from = blocks;
    int length = TN_QBLOCK / f->parts;
    for (int64_t b = 0; b < count; b++, from += f->bytes, out += f->elements) {
        tn_qunpacked block;
        f->unpack(from, &block);
        for (int part = 0; part * length < f->elements; part++) {
            float s = tn_qscale(f, &block, part), t = tn_qminimum(f, &block, part);
            for (int i = part * length; i < (part + 1) * length; i++) {
                float product = s * (float)(block.u[i] - f->zero);
                out[i] = f->has_minimum ? product + t : product;
            }
        }
    }
}

/* ---- the packed form --------------------------------------------------------------------------------------------- */

tn_qlayout tn_qlayout_of(const tn_qformat *f, int64_t k) {
    static const int low[TN_QBITS_COUNT] = {256, 256, 256, 128, 128, 512};
    static const int high[TN_QBITS_COUNT] = {0, 64, 128, 0, 64, 0};
    static const int scales[TN_QSCALES_COUNT] = {32, 64, 64 + 192, 32 + 192, 32 + 256, 64 + 256, 128};
    tn_qlayout l = {.low_bytes = low[f->bits], .high_bytes = high[f->bits], .scale_bytes = scales[f->scales]};
    l.scale_blocks = f->elements / TN_QBLOCK;
    int64_t blocks = k / TN_QBLOCK;
    l.low = tn_round_up(blocks / l.scale_blocks * l.scale_bytes, 64);
    l.high = l.low + blocks * l.low_bytes;
    l.group = l.high + blocks * l.high_bytes;
    return l;
}

/* ==== packing ===================================================================================================== */
/* Each block is unpacked to bytes, whatever its format; four weights of one row are then a word, and words are combined
 * by shifts that never carry from one byte into the next. Missing rows of the last group are zero. */

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

static void pack_groups(void *ctx, int64_t begin, int64_t end, TN_UNUSED int worker) {
    const qpack *q = ctx;
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

static void pack_half_groups(void *ctx, int64_t begin, int64_t end, TN_UNUSED int worker) {
    const qpack *q = ctx;
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

/* ---- q8_0 blocks of a cache of keys and values ------------------------------------------------------------------ */
/* cpu_kernels.h has the definition. */

/* The quotient fits int8, because |x| ≤ 127 · d, except after rounding of 1 / d or if d was clamped. */
static int8_t round_to_byte(float x) {
    float bounded = x > 127 ? 127 : x < -127 ? -127 : x;
    return (int8_t)(bounded + (bounded < 0 ? -0.5f : 0.5f));
}

void tn_kv_block_encode(const float *x, uint8_t *block) {
    float most = 0, sum = 0;
    for (int i = 0; i < TN_KV_BLOCK; i++) {
        float size = x[i] < 0 ? -x[i] : x[i];
        most = size > most ? size : most;
        sum += x[i] * 0; /* NaN if one is not finite */
    }
    float d = most / 127, largest = 65504;
    d = d > largest ? largest : d;
    float by = sum == 0 && d > 0 ? 1 / d : 0;
    if (!(by <= FLT_MAX)) by = 0; /* 1 / d overflows: d is 0 in f16 */
    uint16_t h = kir_to_f16(sum == 0 ? d : NAN);
    memcpy(block, &h, sizeof h);
    for (int i = 0; i < TN_KV_BLOCK; i++)
        block[2 + i] = (uint8_t)(sum == 0 ? round_to_byte(x[i] * by) : 0);
}

void tn_kv_block_decode(const uint8_t *block, float *x) {
    uint16_t h;
    memcpy(&h, block, sizeof h);
    float d = kir_from_f16(h);
    for (int i = 0; i < TN_KV_BLOCK; i++)
        x[i] = d * (float)(int8_t)block[2 + i];
}
