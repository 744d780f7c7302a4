/* qtile.c — what touches every number of products with weights as files store them (qmat.c): rounding x, unpacking,
 * multiplying; compiled once per instruction set, for AVX2 with and without dot products of small integers, for AVX-512
 * with them. */
#include "kern/cpu/cpu.h"

#include <string.h>

#include "kern/cpu/half.h"

/* Rows of x at once: 12 sums and 12 accumulators of 32 registers, 6 and 6 of 16. */
#if defined(__AVX512F__)
enum { TILE = 12 };
#elif defined(__AVX2__)
enum { TILE = 6 };
#else
enum { TILE = 4 };
#endif

enum {
    CHUNKS = QCHUNKS,
    LINE = QLINE,
    BITS = QBITS,
    HALVES = TN_QROWS / VL, /* vectors of a group: one, two or four */
    LANE = VL * 4,          /* bytes of a vector of f32 */
    AHEAD = 2048,           /* bytes from a block to what is asked for: five to eight blocks */
    STRIPE_AHEAD = 4096     /* … where memory alone decides: twice as far reads a tenth faster */
};

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

/* Of a region of the group: bytes of a block, `ahead` blocks on; behind the last block the next group begins. */
KERNEL void ask_ahead(const uint8_t *block, int64_t bytes, int64_t ahead) {
    VEC_UNROLL for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(block + ahead * bytes + i);
}

KERNEL void multiply_stripe(const stripe *p, tn_qbits bits, tn_qscales form, tn_qlayout l) {
    bool has_minimum = form_has_minimum(form);
    int parts = form_parts(form);
    const int64_t scale = l.scale_bytes / l.scale_blocks, ahead = STRIPE_AHEAD / (l.low_bytes + l.high_bytes + scale);
    const int64_t turn = tn_max64(p->blocks - ahead, 0);
    int64_t jump = 0, by = ahead;
    const uint8_t *low = p->low, *high = p->high, *x = p->x;
    V acc[HALVES];
    VEC_UNROLL for (int half = 0; half < HALVES; half++) acc[half] = v_zero();
    for (int64_t b = 0; b < p->blocks; b++) {
        const uint8_t *unit = p->scales + b / l.scale_blocks * l.scale_bytes;
        if (b == turn) {
            jump = p->next;
            by = ahead - p->blocks;
        }
        ask_ahead(low + jump, l.low_bytes, by);
        ask_ahead(high + jump, l.high_bytes, by);
        ask_ahead(p->scales + jump + b * scale, scale, by);
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

/* ---- the set ----------------------------------------------------------------------------------------------------- */

#define SET VEC_JOIN(tn_qtiles, TN_DOT_SUFFIX)
const qtile_set SET = {.tiles = &TILES,
                       .heights = {TILE, TILE / 3, 1},
                       .round_at_once = ROUND_AT_ONCE,
                       .halves_at_once = HALF_AT_ONCE,
                       .round = round_blocks,
                       .stripe = stripe_kernels,
                       .panels = kernels_of,
                       .bits_to_panel = bits_to_panel,
                       .scales_to_panel = scales_to_panel,
                       .half = &half_kernels,
                       .brain = &brain_kernels};
