/* qmat.c — products with weights as files store them, quantised in blocks or in half precision; compiled once per
 * instruction set, for AVX2 with and without dot products of small integers, for AVX-512 with them.
 *
 * x is rounded to 8 bits once (a record of 32 numbers, their scale and their sum), for some hundred rows at a time that
 * the second cache holds. Each thread then takes a share of the groups of 16 weight rows. One row of x: the group's
 * bits are unpacked in registers and used at once, so that memory decides the speed. More rows: the group is unpacked
 * into a panel of plain bytes and f32 scales in the first cache, and rows of x pass by in tiles. The kernels for panels
 * know no format but only how many parts a block has and whether there is a minimum. Weights in f16 and bf16 take the
 * same way, less the rounding (half.h).
 *
 * Every result is one accumulator that goes through its blocks in order, in all of these ways: same bits. */
#include "kern/cpu/cpu.h"

#include <string.h>

#include "kern/cpu/half.h"
#include "kern/cpu/port.h"
#include "kern/cpu/qvec.h"
#include "kern/qformat.h"

/* Rows of x at once: 12 sums and 12 accumulators of 32 registers, 6 and 6 of 16. */
#if defined(__AVX512F__)
enum { TILE = 12 };
#elif defined(__AVX2__)
enum { TILE = 6 };
#else
enum { TILE = 4 };
#endif

enum {
    BLOCK_LD = TN_GEMM_BLOCK_LD,
    CHUNKS = TN_QBLOCK / 4,
    LINE = 4 * TN_QROWS,    /* bytes of a chunk */
    HALVES = TN_QROWS / VL, /* vectors of a group: one, two or four */
    BITS = CHUNKS * LINE,   /* bytes of a panel's block before its scales */
    LANE = VL * 4,          /* bytes of a vector of f32 */
    PANEL_BLOCKS = 24,      /* of a panel: with a tile of x it stays in a first cache of 32 KiB */
    ROUND_BLOCKS = 16,      /* of a row, rounded side by side */
    SLAB_ROWS = 516,        /* of x rounded at once: with a panel's blocks, half of a second cache of 1 MiB */
    SUM_COLUMNS = 128,      /* of C finished before a joint gets them: as much again … */
    FEW_ROWS = 48,          /* … if there are more rows than these */
    AHEAD = 2048            /* bytes from a block to what is asked for: five to eight blocks */
};

static const double BYTES_A_PART = 30e3; /* of weights: 2 to 3 µs from memory, less is not worth a fork-join … */
static const double OPS_A_PART = 1e6;    /* … nor are so many multiplications and additions */
static const double HALF_COST = 4;       /* of an operation with weights in f16 or bf16, beside one of small integers */
static const int64_t ROUND_A_PART = 8192; /* numbers of x to round: as much time */

/* ---- unpacking --------------------------------------------------------------------------------------------------- */

/* Chunk after chunk of a block, one vector of rows. */
KERNEL void unpack_bits(tn_qbits bits, const uint8_t *low, const uint8_t *high, VB w[CHUNKS]) {
    bool nibbles = bits <= TN_QBITS_4_2, pairs = bits == TN_QBITS_2 || bits == TN_QBITS_2_1;
    VEC_UNROLL for (int c = 0; c < CHUNKS; c++) {
        if (nibbles) w[c] = q_field(q_load(low + c % 4 * LINE), c / 4 * 4, 0, 15);
        if (pairs) w[c] = q_field(q_load(low + c / 4 * LINE), c % 4 * 2, 0, 3);
        if (bits == TN_QBITS_8) w[c] = q_load(low + c * LINE);
        if (bits == TN_QBITS_4_1) w[c] |= q_field(q_load(high), c, 4, 16);
        if (bits == TN_QBITS_4_2) w[c] |= q_field(q_load(high + c / 4 * LINE), c % 4 * 2, 4, 48);
        if (bits == TN_QBITS_2_1) w[c] |= q_field(q_load(high), c, 2, 4);
    }
}

VEC_INLINE bool form_has_minimum(tn_qscales form) {
    return form == TN_QSCALES_DM || form == TN_QSCALES_PAIR_M || form == TN_QSCALES_NIBBLE;
}

VEC_INLINE int form_parts(tn_qscales form) {
    return form == TN_QSCALES_PAIR || form >= TN_QSCALES_I8 ? 2 : 1;
}

typedef struct scales {
    V s[2], t[2];
} scales;

/* Of block `b` of a super-block, or of a block that has its own (b = 0); rows from `row` on. */
KERNEL void unpack_scales(tn_qscales form, const uint8_t *p, int b, int row, scales *out) {
    if (form == TN_QSCALES_F32) {
        VEC_UNROLL for (int part = 0; part < 2; part++) out->s[part] =
            v_load((const float *)(const void *)(p + 64 * part + 4 * row));
        out->t[0] = out->t[1] = v_zero();
        return;
    }
    bool has_minimum = form_has_minimum(form);
    V d = v_f16(p + 2 * row), m = has_minimum ? v_f16(p + 32 + 2 * row) : v_zero();
    const uint8_t *small = p + (has_minimum ? 64 : 32) + row;
    out->s[0] = d;
    out->t[0] = m;
    if (form == TN_QSCALES_PAIR || form == TN_QSCALES_PAIR_M) {
        VI low = q_u8(small + 16 * b), high = q_u8(small + 128 + b / 2 * 16) >> (b % 2 * 4);
        VI first = (low & 15) | (high & 3) << 4, second = low >> 4 | (high & 12) << 2;
        if (form == TN_QSCALES_PAIR) {
            out->s[0] = d * q_float(first - 32);
            out->s[1] = d * q_float(second - 32);
        } else {
            out->s[0] = d * q_float(first);
            out->t[0] = -(m * q_float(second));
        }
    }
    if (form == TN_QSCALES_I8 || form == TN_QSCALES_NIBBLE) {
        VEC_UNROLL for (int part = 0; part < 2; part++) {
            const uint8_t *at = small + (2 * b + part) * 16;
            if (form == TN_QSCALES_I8) {
                out->s[part] = d * q_float(q_i8(at));
            } else {
                VI both = q_u8(at);
                out->s[part] = d * q_float(both & 15);
                out->t[part] = -(m * q_float(both >> 4));
            }
        }
    }
}

/* ---- rows of x: records ------------------------------------------------------------------------------------------ */

/* 32 numbers of 8 bits, dx, then a number for each part: dx · Σ q where weights have a minimum, else −zero · Σ q, with
 * which the sum of products starts. Records of a tile's rows lie side by side, block after block. */
enum { RECORD_SCALE = TN_QBLOCK, RECORD_PARTS = RECORD_SCALE + 4, MOST_RECORD_BYTES = RECORD_PARTS + 8 };

VEC_INLINE int64_t record_bytes(int parts) { return RECORD_PARTS + 4 * parts; }

VEC_INLINE int32_t read_int(const uint8_t *p) {
    int32_t x;
    memcpy(&x, p, sizeof x);
    return x;
}

VEC_INLINE float read_real(const uint8_t *p) {
    float x;
    memcpy(&x, p, sizeof x);
    return x;
}

/* Up to ROUND_BLOCKS blocks of a row, a multiple of ROUND_AT_ONCE; step by step for all of them: each step waits for
 * the one before, blocks do not wait for each other. */
static void round_blocks(const float *x, int count, const tn_qformat *f, uint8_t *record, int64_t step) {
    static const float least = 0x1p-100f;
    int32_t most[ROUND_BLOCKS], sum[ROUND_BLOCKS][2];
    float dx[ROUND_BLOCKS], factor[ROUND_BLOCKS];
    for (int b = 0; b < count; b += ROUND_AT_ONCE)
        q_most(x + b * TN_QBLOCK, most + b);
    for (int b = 0; b < count; b++) {
        float a = kir_from_bits_f32((uint32_t)most[b]);
        dx[b] = a < least ? 0 : a / 127.0f;
        factor[b] = a < least ? 0 : 127.0f / a;
    }
    for (int b = 0; b < count; b += ROUND_AT_ONCE)
        q_round(x + b * TN_QBLOCK, factor + b, record + b * step, step, sum + b);
    for (int b = 0; b < count; b++) {
        uint8_t *to = record + b * step;
        if (most[b] >= 0x7f800000) {
            memset(to, 0, TN_QBLOCK);
            sum[b][0] = sum[b][1] = 0;
            dx[b] = __builtin_nanf("");
        }
        memcpy(to + RECORD_SCALE, &dx[b], sizeof *dx);
        if (f->parts == 1) sum[b][0] += sum[b][1];
        for (int part = 0; part < f->parts; part++) {
            float scaled = dx[b] * (float)sum[b][part];
            int32_t start = -f->zero * sum[b][part];
            memcpy(to + RECORD_PARTS + 4 * part, f->has_minimum ? (void *)&scaled : (void *)&start, 4);
        }
    }
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

/* One row of x and one group of weights, all blocks. */
typedef struct stripe {
    const uint8_t *scales, *low, *high;
    int64_t blocks;
    const uint8_t *x;
    float *c;
} stripe;

/* A tile of rows and a panel. */
typedef struct qtile {
    const uint8_t *panel;
    int64_t blocks;
    const uint8_t *x;
    int64_t x_step; /* bytes from block to block */
    float *c;
    int64_t c_row;
    bool add; /* to what stands in c: blocks before these */
} qtile;

/* The products of one part of a block: four of its chunks, or eight. */
VEC_INLINE V finish_part(V acc, VI sum, const uint8_t *record, int part, V s, V t, bool has_minimum) {
    acc = v_fma(q_float(sum), s * v_set1(read_real(record + RECORD_SCALE)), acc);
    return has_minimum ? v_fma(t, v_set1(read_real(record + RECORD_PARTS + 4 * part)), acc) : acc;
}

VEC_INLINE VI first_sum(const uint8_t *record, int part, bool has_minimum) {
    return q_set1(has_minimum ? 0 : read_int(record + RECORD_PARTS + 4 * part));
}

KERNEL void multiply_panel(const qtile *t, int height, int parts, bool has_minimum, bool wide) {
    const int64_t record = record_bytes(parts), block = BITS + parts * LINE * (has_minimum ? 2 : 1);
    for (int half = 0; half < HALVES; half++) {
        V acc[TILE];
        VEC_UNROLL for (int r = 0; r < height; r++) acc[r] =
            t->add ? v_load(t->c + r * t->c_row + half * VL) : v_zero();
        const uint8_t *x = t->x, *panel = t->panel + half * VEC_BYTES;
        for (int64_t b = 0; b < t->blocks; b++, x += t->x_step, panel += block) {
            VEC_UNROLL for (int part = 0; part < parts; part++) {
                VI sum[TILE];
                VEC_UNROLL for (int r = 0; r < height; r++) sum[r] = first_sum(x + r * record, part, has_minimum);
                VEC_UNROLL for (int c = CHUNKS / parts * part; c < CHUNKS / parts * (part + 1); c += 2) {
                    VB w0 = q_load(panel + c * LINE), w1 = q_load(panel + (c + 1) * LINE);
                    VEC_UNROLL for (int r = 0; r < height; r++) {
                        const uint8_t *q = x + r * record + 4 * c;
                        sum[r] = q_dot2(sum[r], w0, q_set1(read_int(q)), w1, q_set1(read_int(q + 4)), wide);
                    }
                }
                V s = *(const V *)(const void *)(panel + BITS + part * LINE);
                V m = has_minimum ? *(const V *)(const void *)(panel + BITS + (parts + part) * LINE) : v_zero();
                VEC_UNROLL for (int r = 0; r < height; r++) acc[r] =
                    finish_part(acc[r], sum[r], x + r * record, part, s, m, has_minimum);
            }
        }
        VEC_UNROLL for (int r = 0; r < height; r++) v_store(t->c + r * t->c_row + half * VL, acc[r]);
    }
}

KERNEL void multiply_stripe(const stripe *p, tn_qbits bits, tn_qscales form, tn_qlayout l) {
    bool has_minimum = form_has_minimum(form);
    int parts = form_parts(form);
    const uint8_t *low = p->low, *high = p->high, *x = p->x;
    V acc[HALVES];
    VEC_UNROLL for (int half = 0; half < HALVES; half++) acc[half] = v_zero();
    for (int64_t b = 0; b < p->blocks; b++) {
        const uint8_t *unit = p->scales + b / l.scale_blocks * l.scale_bytes;
        VEC_UNROLL for (int i = 0; i < l.low_bytes; i += 64) __builtin_prefetch(low + AHEAD + i);
        VEC_UNROLL for (int i = 0; i < l.high_bytes; i += 64) __builtin_prefetch(high + AHEAD + i);
        __builtin_prefetch(unit + AHEAD);
        VEC_UNROLL for (int half = 0; half < HALVES; half++) {
            VB w[CHUNKS];
            scales sc;
            unpack_bits(bits, low + half * VEC_BYTES, high + half * VEC_BYTES, w);
            unpack_scales(form, unit, (int)(b % l.scale_blocks), half * VL, &sc);
            VEC_UNROLL for (int part = 0; part < parts; part++) {
                VI sum = first_sum(x, part, has_minimum);
                VEC_UNROLL for (int c = CHUNKS / parts * part; c < CHUNKS / parts * (part + 1); c += 2) {
                    sum = q_dot2(sum, w[c], q_set1(read_int(x + 4 * c)), w[c + 1], q_set1(read_int(x + 4 * c + 4)),
                                 bits == TN_QBITS_8);
                }
                acc[half] = finish_part(acc[half], sum, x, part, sc.s[part], sc.t[part], has_minimum);
            }
        }
        low += l.low_bytes;
        high += l.high_bytes;
        x += record_bytes(parts);
    }
    VEC_UNROLL for (int half = 0; half < HALVES; half++) v_store(p->c + half * VL, acc[half]);
}

/* ---- their instances --------------------------------------------------------------------------------------------- */

#define PANEL_KERNELS(name, parts, has_minimum, wide)                                                  \
    static void name##_full(const qtile *t) { multiply_panel(t, TILE, parts, has_minimum, wide); }      \
    static void name##_third(const qtile *t) { multiply_panel(t, TILE / 3, parts, has_minimum, wide); } \
    static void name##_one(const qtile *t) { multiply_panel(t, 1, parts, has_minimum, wide); }

PANEL_KERNELS(plain, 1, false, false)
PANEL_KERNELS(plain_wide, 1, false, true)
PANEL_KERNELS(with_minimum, 1, true, false)
PANEL_KERNELS(parts, 2, false, false)
PANEL_KERNELS(parts_wide, 2, false, true)
PANEL_KERNELS(parts_with_minimum, 2, true, false)

static const int heights[] = {TILE, TILE / 3, 1};

typedef struct panel_kernels {
    void (*run[TN_COUNT(heights)])(const qtile *t);
} panel_kernels;

static const panel_kernels panels_plain = {{plain_full, plain_third, plain_one}};
static const panel_kernels panels_wide = {{plain_wide_full, plain_wide_third, plain_wide_one}};
static const panel_kernels panels_minimum = {{with_minimum_full, with_minimum_third, with_minimum_one}};
static const panel_kernels panels_parts_wide = {{parts_wide_full, parts_wide_third, parts_wide_one}};
static const panel_kernels panels_parts = {{parts_full, parts_third, parts_one}};
static const panel_kernels panels_parts_minimum = {
    {parts_with_minimum_full, parts_with_minimum_third, parts_with_minimum_one}};

static const panel_kernels *kernels_of(const tn_qformat *f) {
    if (f->bits == TN_QBITS_8) return f->parts == 2 ? &panels_parts_wide : &panels_wide;
    if (f->parts == 2) return f->has_minimum ? &panels_parts_minimum : &panels_parts;
    return f->has_minimum ? &panels_minimum : &panels_plain;
}

#define LAYOUT(low, high, scale, blocks) \
    (tn_qlayout) { .low_bytes = low, .high_bytes = high, .scale_bytes = scale, .scale_blocks = blocks }
#define STRIPE_KERNEL(name, bits, form, layout) \
    static void name(const stripe *p) { multiply_stripe(p, bits, form, layout); }

STRIPE_KERNEL(stripe_q4_0, TN_QBITS_4, TN_QSCALES_D, LAYOUT(256, 0, 32, 1))
STRIPE_KERNEL(stripe_q4_1, TN_QBITS_4, TN_QSCALES_DM, LAYOUT(256, 0, 64, 1))
STRIPE_KERNEL(stripe_q5_0, TN_QBITS_4_1, TN_QSCALES_D, LAYOUT(256, 64, 32, 1))
STRIPE_KERNEL(stripe_q5_1, TN_QBITS_4_1, TN_QSCALES_DM, LAYOUT(256, 64, 64, 1))
STRIPE_KERNEL(stripe_q8_0, TN_QBITS_8, TN_QSCALES_D, LAYOUT(512, 0, 32, 1))
STRIPE_KERNEL(stripe_q2_k, TN_QBITS_2, TN_QSCALES_NIBBLE, LAYOUT(128, 0, 320, 8))
STRIPE_KERNEL(stripe_q3_k, TN_QBITS_2_1, TN_QSCALES_PAIR, LAYOUT(128, 64, 224, 8))
STRIPE_KERNEL(stripe_q4_k, TN_QBITS_4, TN_QSCALES_PAIR_M, LAYOUT(256, 0, 256, 8))
STRIPE_KERNEL(stripe_q5_k, TN_QBITS_4_1, TN_QSCALES_PAIR_M, LAYOUT(256, 64, 256, 8))
STRIPE_KERNEL(stripe_q6_k, TN_QBITS_4_2, TN_QSCALES_I8, LAYOUT(256, 128, 288, 8))
STRIPE_KERNEL(stripe_q8_x, TN_QBITS_8, TN_QSCALES_F32, LAYOUT(512, 0, 128, 1))

static void (*const stripe_kernels[TN_DTYPE_COUNT])(const stripe *) = {
    [TN_Q4_0] = stripe_q4_0, [TN_Q4_1] = stripe_q4_1, [TN_Q5_0] = stripe_q5_0, [TN_Q5_1] = stripe_q5_1,
    [TN_Q8_0] = stripe_q8_0, [TN_Q2_K] = stripe_q2_k, [TN_Q3_K] = stripe_q3_k, [TN_Q4_K] = stripe_q4_k,
    [TN_Q5_K] = stripe_q5_k, [TN_Q6_K] = stripe_q6_k, [TN_Q8_X] = stripe_q8_x,
};

/* Tiles of two vectors, and of what the last group has; one row of one group, and of HALF_GROUPS. */
typedef struct half_set {
    void (*tile[2][TN_COUNT(heights)])(const half_tile *t);
    void (*row[2])(const uint8_t *weights, int64_t group, int64_t k, const float *x, float *c);
} half_set;

#define HALF_KERNELS(name, brain)                                                                          \
    static void name##_full(const half_tile *t) { multiply_half(t, TILE, 2, brain); }                      \
    static void name##_third(const half_tile *t) { multiply_half(t, TILE / 3, 2, brain); }                 \
    static void name##_one(const half_tile *t) { multiply_half(t, 1, 2, brain); }                          \
    static void name##_full_last(const half_tile *t) { multiply_half(t, TILE, HALF_LAST, brain); }         \
    static void name##_third_last(const half_tile *t) { multiply_half(t, TILE / 3, HALF_LAST, brain); }    \
    static void name##_one_last(const half_tile *t) { multiply_half(t, 1, HALF_LAST, brain); }             \
    static void name##_row(const uint8_t *weights, int64_t group, int64_t k, const float *x, float *c) {   \
        multiply_half_row(weights, group, 1, k, x, c, brain);                                              \
    }                                                                                                      \
    static void name##_rows(const uint8_t *weights, int64_t group, int64_t k, const float *x, float *c) {  \
        multiply_half_row(weights, group, HALF_GROUPS, k, x, c, brain);                                    \
    }                                                                                                      \
    static const half_set name##_kernels = {                                                               \
        {{name##_full, name##_third, name##_one}, {name##_full_last, name##_third_last, name##_one_last}}, \
        {name##_row, name##_rows}};

HALF_KERNELS(half, false)
HALF_KERNELS(brain, true)

/* ---- panels ------------------------------------------------------------------------------------------------------ */

KERNEL void bits_to_panel_as(tn_qbits bits, const uint8_t *low, const uint8_t *high, const tn_qlayout *l,
                             int64_t blocks, uint8_t *to, int64_t step) {
    for (int64_t b = 0; b < blocks; b++, low += l->low_bytes, high += l->high_bytes, to += step) {
        for (int i = 0; i < l->low_bytes; i += 64)
            __builtin_prefetch(low + AHEAD + i);
        for (int half = 0; half < HALVES; half++) {
            VB w[CHUNKS];
            unpack_bits(bits, low + half * VEC_BYTES, high + half * VEC_BYTES, w);
            VEC_UNROLL for (int c = 0; c < CHUNKS; c++) q_store(to + c * LINE + half * VEC_BYTES, w[c]);
        }
    }
}

typedef void bits_unpacker(const uint8_t *low, const uint8_t *high, const tn_qlayout *l, int64_t blocks, uint8_t *to,
                           int64_t step);
#define BITS_TO_PANEL(name, bits)                                                                               \
    static void name(const uint8_t *low, const uint8_t *high, const tn_qlayout *l, int64_t blocks, uint8_t *to, \
                     int64_t step) {                                                                            \
        bits_to_panel_as(bits, low, high, l, blocks, to, step);                                                 \
    }

BITS_TO_PANEL(bits_4, TN_QBITS_4)
BITS_TO_PANEL(bits_4_1, TN_QBITS_4_1)
BITS_TO_PANEL(bits_4_2, TN_QBITS_4_2)
BITS_TO_PANEL(bits_2, TN_QBITS_2)
BITS_TO_PANEL(bits_2_1, TN_QBITS_2_1)
BITS_TO_PANEL(bits_8, TN_QBITS_8)

static bits_unpacker *const bits_to_panel[TN_QBITS_COUNT] = {bits_4, bits_4_1, bits_4_2, bits_2, bits_2_1, bits_8};

KERNEL void scales_to_panel_as(tn_qscales form, const uint8_t *from, const tn_qlayout *l, int64_t blocks, uint8_t *to,
                               int64_t step) {
    bool has_minimum = form_has_minimum(form);
    int parts = form_parts(form);
    for (int64_t b = 0; b < blocks; b++, to += step) {
        const uint8_t *unit = from + b / l->scale_blocks * l->scale_bytes;
        for (int half = 0; half < HALVES; half++) {
            scales sc;
            unpack_scales(form, unit, (int)(b % l->scale_blocks), half * VL, &sc);
            uint8_t *at = to + half * LANE;
            VEC_UNROLL for (int part = 0; part < parts; part++) {
                *(V *)(void *)(at + part * LINE) = sc.s[part];
                if (has_minimum) *(V *)(void *)(at + (parts + part) * LINE) = sc.t[part];
            }
        }
    }
}

static void scales_to_panel(tn_qscales form, const uint8_t *from, const tn_qlayout *l, int64_t blocks, uint8_t *to,
                            int64_t step) {
    if (form == TN_QSCALES_D) scales_to_panel_as(TN_QSCALES_D, from, l, blocks, to, step);
    if (form == TN_QSCALES_DM) scales_to_panel_as(TN_QSCALES_DM, from, l, blocks, to, step);
    if (form == TN_QSCALES_PAIR_M) scales_to_panel_as(TN_QSCALES_PAIR_M, from, l, blocks, to, step);
    if (form == TN_QSCALES_PAIR) scales_to_panel_as(TN_QSCALES_PAIR, from, l, blocks, to, step);
    if (form == TN_QSCALES_I8) scales_to_panel_as(TN_QSCALES_I8, from, l, blocks, to, step);
    if (form == TN_QSCALES_NIBBLE) scales_to_panel_as(TN_QSCALES_NIBBLE, from, l, blocks, to, step);
    if (form == TN_QSCALES_F32) scales_to_panel_as(TN_QSCALES_F32, from, l, blocks, to, step);
}

/* ---- a call ------------------------------------------------------------------------------------------------------ */

typedef struct qmat {
    const tn_qmat_args *args;
    const tn_qformat *format; /* NULL: weights are f16 or bf16, and "blocks" are steps of k */
    void (*stripe)(const stripe *p);
    const panel_kernels *panels;
    tn_qlayout layout;
    int64_t blocks, groups; /* of 32 weights, of 16 rows */
    int64_t record, panel;  /* bytes of a record and of a panel's block */
    int64_t piece;          /* blocks of a panel */
    int64_t slab;           /* rows of x rounded at once, at most */
    int64_t sum_rows;       /* rows of C that are finished before they are written, at most */
    bool direct;            /* full groups are written to C as they are finished */
    size_t rounded_bytes, panel_bytes, sums_bytes, part_bytes;
    int64_t row0, rows;                /* the slab at hand … */
    int64_t row_strips, column_strips; /* … and how it is cut */
} qmat;

static size_t area(int64_t bytes) { return ((size_t)bytes + 63) / 64 * 64; }

static void plan_blocks(qmat *q, const tn_qmat_args *args, const tn_qformat *f) {
    q->stripe = stripe_kernels[args->dtype];
    q->panels = kernels_of(f);
    q->layout = tn_qlayout_of(f, args->k);
    q->blocks = args->k / TN_QBLOCK;
    q->record = record_bytes(f->parts);
    q->panel = BITS + f->parts * LINE * (f->has_minimum ? 2 : 1);
    int64_t pieces = tn_max64(tn_ceil_div(q->blocks, PANEL_BLOCKS), 1), unit = q->layout.scale_blocks;
    q->piece = tn_ceil_div(tn_ceil_div(q->blocks, pieces), unit) * unit;
}

static void plan(qmat *q, const tn_qmat_args *args) {
    *q = (qmat){.args = args, .format = tn_qformat_of(args->dtype)};
    q->groups = tn_ceil_div(args->n, TN_QROWS);
    if (q->format) {
        plan_blocks(q, args, q->format);
    } else {
        q->layout.group = tn_half_group_bytes(args->k);
        q->blocks = args->k;
        q->piece = KIR_KSUM;
        q->panel = q->args->m > 1 ? tn_min64(args->m, SLAB_ROWS) * (int64_t)sizeof(float) : 0;
    }
    q->slab = tn_min64(args->m, SLAB_ROWS);
    q->rounded_bytes = area(q->slab * q->blocks * q->record);
    q->panel_bytes = args->m > 1 ? area(q->piece * q->panel) : 0;
    q->direct = !args->c.joint.vm && args->c.col_stride == 1;
    q->sum_rows = tn_min64(q->slab, q->direct ? FEW_ROWS : SLAB_ROWS);
    int64_t columns = q->sum_rows > FEW_ROWS ? SUM_COLUMNS : BLOCK_LD;
    q->sums_bytes = area(((q->sum_rows - 1) * BLOCK_LD + columns) * (int64_t)sizeof(float));
    q->part_bytes = q->panel_bytes + q->sums_bytes + port_scratch(&args->c.joint, 0);
}

/* ---- rounding ---------------------------------------------------------------------------------------------------- */

static uint8_t *rounded(const qmat *q) { return q->args->workspace; }

/* What is left over at the end is rounded together with blocks before it, a second time; or beside zeros. */
static void round_row(const qmat *q, const float *x, uint8_t *to, int64_t step) {
    int64_t blocks = q->blocks, rest = blocks % ROUND_AT_ONCE;
    for (int64_t b = 0; b < blocks - rest; b += ROUND_BLOCKS) {
        int count = (int)tn_min64(ROUND_BLOCKS, blocks - rest - b);
        round_blocks(x + b * TN_QBLOCK, count, q->format, to + b * step, step);
    }
    if (rest == 0) return;
    if (blocks >= ROUND_AT_ONCE) {
        int64_t b = blocks - ROUND_AT_ONCE;
        round_blocks(x + b * TN_QBLOCK, ROUND_AT_ONCE, q->format, to + b * step, step);
        return;
    }
    float padded[ROUND_AT_ONCE * TN_QBLOCK] = {0};
    uint8_t records[ROUND_AT_ONCE * MOST_RECORD_BYTES];
    memcpy(padded, x, (size_t)rest * TN_QBLOCK * sizeof *x);
    round_blocks(padded, ROUND_AT_ONCE, q->format, records, q->record);
    for (int64_t b = 0; b < rest; b++)
        memcpy(to + b * step, records + b * q->record, (size_t)q->record);
}

/* Rows [begin, end) of the slab. */
static void round_rows(void *ctx, int64_t begin, int64_t end, int worker) {
    const qmat *q = ctx;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        int64_t first = i / TILE * TILE, height = tn_min64(TILE, q->rows - first);
        const float *x = q->args->x + (q->row0 + i) * q->args->x_stride;
        uint8_t *to = rounded(q) + (first * q->blocks + i - first) * q->record;
        round_row(q, x, to, height * q->record);
    }
}

/* ---- multiplying ------------------------------------------------------------------------------------------------- */

typedef struct part {
    uint8_t *panel;
    float *sums;
    port c;
} part;

static void part_open(part *p, const qmat *q, int worker) {
    char *memory = (char *)q->args->workspace + q->rounded_bytes + (size_t)worker * q->part_bytes;
    p->panel = (uint8_t *)memory;
    p->sums = (float *)(void *)(memory + q->panel_bytes);
    port_open(&p->c, &q->args->c.joint, memory + q->panel_bytes + q->sums_bytes);
}

static const uint8_t *group_of(const qmat *q, int64_t g) {
    return (const uint8_t *)q->args->packed + g * q->layout.group;
}

/* Rows [first, first + rows) of the slab, which start with a tile, times the panel's blocks from k on. */
static void multiply_rows(const qmat *q, const part *p, int64_t first, int64_t rows, int64_t k, int64_t blocks,
                          float *c, int64_t c_row) {
    for (int64_t i = 0; i < rows; i += TILE) {
        int64_t height = tn_min64(TILE, q->rows - first - i), done = 0;
        const uint8_t *x = rounded(q) + ((first + i) * q->blocks + k * height) * q->record;
        qtile t = {.panel = p->panel, .blocks = blocks, .x_step = height * q->record, .c_row = c_row, .add = k > 0};
        for (int64_t r = i + TILE; t.add && r < tn_min64(i + 2 * TILE, rows); r++)
            __builtin_prefetch(c + r * c_row, 1);
        for (size_t kind = 0; kind < TN_COUNT(heights); kind++) {
            for (; height - done >= heights[kind]; done += heights[kind]) {
                t.x = x + done * q->record;
                t.c = c + (i + done) * c_row;
                q->panels->run[kind](&t);
            }
        }
    }
}

/* Blocks [k, k + blocks) of a group. */
static void unpack_panel(const qmat *q, const part *p, int64_t g, int64_t k, int64_t blocks) {
    const tn_qlayout *l = &q->layout;
    const uint8_t *group = group_of(q, g), *scales_from = group + k / l->scale_blocks * l->scale_bytes;
    const uint8_t *low = group + l->low + k * l->low_bytes, *high = group + l->high + k * l->high_bytes;
    bits_to_panel[q->format->bits](low, high, l, blocks, p->panel, q->panel);
    scales_to_panel(q->format->scales, scales_from, l, blocks, p->panel + BITS, q->panel);
}

/* Rows of x at some steps of k, into tiles of the heights that kernels have: a tile lies behind the rows before it. */
static void pack_x(const qmat *q, const float *x, int64_t rows, int64_t steps, float *to) {
    for (size_t kind = 0; kind < TN_COUNT(heights) && rows > 0; kind++) {
        int64_t height = heights[kind], whole = rows / height * height;
        if (whole == 0) continue;
        TILES.pack(&(pack){.to = to,
                           .distance = height,
                           .group = height,
                           .jump = steps * height,
                           .from = x,
                           .along = 1,
                           .across = q->args->x_stride,
                           .steps = steps,
                           .lines = whole});
        x += whole * q->args->x_stride;
        to += whole * steps;
        rows -= whole;
    }
}

/* `at_once` groups of 16 columns, all rows of packed x. */
static void multiply_half_rows(const half_set *kernels, half_tile t, int64_t at_once, int64_t rows) {
    int64_t done = 0;
    for (size_t kind = 0; kind < TN_COUNT(heights); kind++) {
        for (; rows - done >= heights[kind]; done += heights[kind]) {
            kernels->tile[at_once < HALF_AT_ONCE][kind](&t);
            t.x += heights[kind] * t.steps;
            t.c += heights[kind] * t.c_row;
        }
    }
}

/* multiply_groups for weights in f16 and bf16. */
static void multiply_half_groups(const qmat *q, const part *p, int64_t group0, int64_t group1, int64_t first,
                                 int64_t rows, float *c, int64_t c_row) {
    const half_set *kernels = q->args->dtype == TN_BF16 ? &brain_kernels : &half_kernels;
    const float *x = q->args->x + (q->row0 + first) * q->args->x_stride;
    int64_t groups = 0, k = 0;
    if (q->rows == 1) {
        for (int64_t g = group0; g < group1; g += groups, c += groups * TN_QROWS) {
            groups = group1 - g >= HALF_GROUPS ? HALF_GROUPS : 1;
            kernels->row[groups > 1](group_of(q, g), q->layout.group, q->blocks, x, c);
        }
        return;
    }
    float *packed = (float *)(void *)p->panel;
    do {
        half_tile t = {.group = q->layout.group, .steps = tn_min64(q->piece, q->blocks - k), .x = packed};
        t.c_row = c_row;
        t.add = k > 0;
        pack_x(q, x + k, rows, t.steps, packed);
        for (int64_t g = group0; g < group1; g += groups) {
            groups = tn_min64(HALF_AT_ONCE, group1 - g);
            t.weights = group_of(q, g) + k * 2 * TN_QROWS;
            t.c = c + (g - group0) * TN_QROWS;
            multiply_half_rows(kernels, t, groups, rows);
        }
        k += q->piece;
    } while (k < q->blocks);
}

/* Some groups of columns; c: the first element. A panel's blocks of all rows stay in the second cache while the groups
 * pass by. */
static void multiply_groups(const qmat *q, const part *p, int64_t group0, int64_t group1, int64_t first, int64_t rows,
                            float *c, int64_t c_row) {
    if (!q->format) {
        multiply_half_groups(q, p, group0, group1, first, rows, c, c_row);
        return;
    }
    if (q->rows == 1) {
        for (int64_t g = group0; g < group1; g++, c += TN_QROWS) {
            const uint8_t *group = group_of(q, g);
            q->stripe(&(stripe){group, group + q->layout.low, group + q->layout.high, q->blocks, rounded(q), c});
        }
        return;
    }
    int64_t k = 0;
    do {
        int64_t blocks = tn_min64(q->piece, q->blocks - k);
        for (int64_t g = group0; g < group1; g++) {
            unpack_panel(q, p, g, k, blocks);
            multiply_rows(q, p, first, rows, k, blocks, c + (g - group0) * TN_QROWS, c_row);
        }
        k += q->piece;
    } while (k < q->blocks);
}

static void write_sums(const qmat *q, part *p, box at) {
    static const int64_t origin[TN_GEMM_BATCH_AXES] = {0};
    const tn_matrix *c = &q->args->c;
    if (c->joint.vm) {
        port_run(&p->c, origin, at, p->sums);
        return;
    }
    for (int64_t i = 0; i < at.rows; i++) {
        float *to = (float *)c->data + (at.row + i) * c->row_stride + at.col * c->col_stride;
        const float *from = p->sums + i * BLOCK_LD;
        if (c->col_stride == 1) {
            memcpy(to, from, (size_t)at.cols * sizeof *to);
        } else {
            for (int64_t j = 0; j < at.cols; j++)
                to[j * c->col_stride] = from[j];
        }
    }
}

/* Rows of the slab and groups of columns: blocks of C are finished, then written. */
static void multiply_to_sums(const qmat *q, part *p, int64_t row0, int64_t row1, int64_t group0, int64_t group1) {
    int64_t width = (q->sum_rows > FEW_ROWS ? SUM_COLUMNS : BLOCK_LD) / TN_QROWS;
    for (int64_t g = group0; g < group1; g += width) {
        int64_t end = tn_min64(g + width, group1), columns = tn_min64(end * TN_QROWS, q->args->n) - g * TN_QROWS;
        for (int64_t i = row0; i < row1; i += q->sum_rows) {
            int64_t rows = tn_min64(q->sum_rows, row1 - i);
            multiply_groups(q, p, g, end, i, rows, p->sums, BLOCK_LD);
            write_sums(q, p, (box){q->row0 + i, rows, g * TN_QROWS, columns});
        }
    }
}

static void multiply_strip(const qmat *q, part *p, int64_t row0, int64_t row1, int64_t group0, int64_t group1) {
    const tn_matrix *c = &q->args->c;
    int64_t full = q->direct ? tn_min64(group1, q->args->n / TN_QROWS) : group0;
    if (full > group0) {
        float *to = (float *)c->data + (q->row0 + row0) * c->row_stride + group0 * TN_QROWS;
        multiply_groups(q, p, group0, full, row0, row1 - row0, to, c->row_stride);
    }
    multiply_to_sums(q, p, row0, row1, full, group1);
}

static void multiply_strips(void *ctx, int64_t begin, int64_t end, int worker) {
    const qmat *q = ctx;
    part p;
    part_open(&p, q, worker);
    int64_t tiles = tn_ceil_div(q->rows, TILE);
    for (int64_t i = begin; i < end; i++) {
        int64_t row = i / q->column_strips, column = i % q->column_strips;
        int64_t row0 = tiles * row / q->row_strips * TILE;
        int64_t row1 = tn_min64(tiles * (row + 1) / q->row_strips * TILE, q->rows);
        int64_t group0 = q->groups * column / q->column_strips, group1 = q->groups * (column + 1) / q->column_strips;
        multiply_strip(q, &p, row0, row1, group0, group1);
    }
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

static int choose_threads(const qmat *q) {
    double bytes = (double)q->groups * (double)q->layout.group;
    double ops = 2.0 * (double)q->rows * (double)q->args->n * (double)q->args->k;
    if (!q->format) ops *= HALF_COST;
    double parts = bytes / BYTES_A_PART > ops / OPS_A_PART ? bytes / BYTES_A_PART : ops / OPS_A_PART;
    int most = tn_threads();
    return parts < 2 ? 1 : parts < most ? (int)parts : most;
}

/* Columns first, so that each group is unpacked once; rows too where that leaves threads idle. */
static void choose_strips(qmat *q, int threads) {
    q->row_strips = q->column_strips = 1;
    int64_t tiles = tn_ceil_div(q->rows, TILE), best = INT64_MAX;
    for (int64_t columns = tn_min64(threads, q->groups); columns >= 1; columns--) {
        int64_t rows = tn_min64(tn_ceil_div(threads, columns), tiles);
        int64_t strips = tn_ceil_div(rows * columns, threads);
        int64_t cost = strips * (tn_ceil_div(tiles, rows) + 1) * tn_ceil_div(q->groups, columns);
        if (cost >= best) continue;
        best = cost;
        q->row_strips = rows;
        q->column_strips = columns;
    }
}

static void run(const tn_qmat_args *args) {
    if (args->m == 0 || args->n == 0) return;
    qmat q;
    plan(&q, args);
    int64_t slabs = tn_ceil_div(args->m, q.slab);
    int64_t even = tn_ceil_div(tn_ceil_div(args->m, slabs), TILE) * TILE;
    if (even < q.slab) q.slab = even;
    for (q.row0 = 0; q.row0 < args->m; q.row0 += q.slab) {
        q.rows = tn_min64(q.slab, args->m - q.row0);
        int64_t grain = tn_ceil_div(ROUND_A_PART, tn_max64(args->k, 1));
        if (q.format) tn_parallel(q.rows, grain, round_rows, &q);
        int threads = choose_threads(&q);
        choose_strips(&q, threads);
        if (threads == 1) {
            multiply_strips(&q, 0, 1, 0);
        } else {
            tn_parallel(q.row_strips * q.column_strips, 1, multiply_strips, &q);
        }
    }
}

static size_t workspace(const tn_qmat_args *args, int threads) {
    if (args->m == 0 || args->n == 0) return 64;
    qmat q;
    plan(&q, args);
    return q.rounded_bytes + (size_t)(threads > 1 ? threads : 1) * q.part_bytes;
}

#define TABLE VEC_JOIN(tn_qmat_table, TN_DOT_SUFFIX)
const tn_qmat_table TABLE = {run, workspace};
