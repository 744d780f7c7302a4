/* qtile.c — products of bytes with stored weights, by dot products of small integers; compiled once per instruction
 * set. */
#include <string.h>

#include "cpu/isa.h"
#include "cpu/qvec.h"

/* ==== dot products of small integers ============================================================================== */
/* q_dot adds the products of four weights of each of VL rows with four activations to VL sums. That is one instruction
 * on processors with VNNI; on AVX2 without, it goes through 16 bits, where u·q + u·q must fit, as it does below 7 bits.
 * Wider weights are split into two parts, with the top bit separate. ARM64's sdot multiplies signed bytes: weights of 8
 * bits are taken minus 128, and their sums start at 0; usdot, which is part of i8mm, takes them as they are.
 * WebAssembly's relaxed SIMD has a product of weights below 7 bits; without it, pairs of 16 bits are multiplied. */

/* Whether the sum of 8-bit weights starts at 0 instead of −128 · Σ q, because q_dot2 takes the weights minus 128. */
#if defined(__ARM_FEATURE_DOTPROD) && !defined(__ARM_FEATURE_MATMUL_INT8)
enum { DOT_CENTERS = true };
#else
enum { DOT_CENTERS = false };
#endif

#if defined(__AVX512F__)
VEC_INLINE VI q_dot(VI sum, VB w, VI q) { return (VI)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)w, (__m512i)q); }
#elif defined(__AVXVNNI__)
VEC_INLINE VI q_dot(VI sum, VB w, VI q) { return (VI)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)w, (__m256i)q); }
#elif defined(__ARM_FEATURE_DOTPROD)
#elif defined(__AVX2__)
VEC_INLINE VI q_pairs(VB w, VI q) { return (VI)_mm256_maddubs_epi16((__m256i)w, (__m256i)q); }
VEC_INLINE VI q_add16(VI a, VI b) { return (VI)_mm256_add_epi16((__m256i)a, (__m256i)b); }
VEC_INLINE VI q_widen(VI pairs, int factor) {
    return (VI)_mm256_madd_epi16((__m256i)pairs, _mm256_set1_epi16((short)factor));
}
#elif defined(__wasm_relaxed_simd__)
VEC_INLINE VI q_dot(VI sum, VB w, VI q) {
    return (VI)wasm_i32x4_relaxed_dot_i8x16_i7x16_add((v128_t)q, (v128_t)w, (v128_t)sum);
}
#elif defined(VEC_WASM)
#else
VEC_INLINE VI q_dot(VI sum, VB w, VI q) {
    int8_t x[VEC_BYTES];
    memcpy(x, &q, sizeof x);
    for (int i = 0; i < VEC_BYTES; i++)
        sum[i / 4] += w[i] * x[i];
    return sum;
}
#endif

VEC_INLINE int32_t read_int(const uint8_t *p) {
    int32_t x;
    memcpy(&x, p, sizeof x);
    return x;
}

/* STEPS steps of four weights, with the activations at q; `wide`: weights may have 8 bits. */
#if defined(__ARM_FEATURE_DOTPROD)
enum { STEPS = 4 }; /* a register of activations, which dot products take by the lane */
#define PANEL_ORDER() VEC_KEEP_ORDER()

VEC_INLINE VI q_lane_dot(VI sum, VB w, int8x16_t x, const int lane, TN_UNUSED bool wide) {
    int32x4_t s = (int32x4_t)sum;
#if defined(__ARM_FEATURE_MATMUL_INT8)
#define DOT(lane) vusdotq_laneq_s32(s, (uint8x16_t)w, x, lane)
#else
    const uint8_t center = wide ? 128 : 0;
#define DOT(lane) vdotq_laneq_s32(s, (int8x16_t)(w ^ center), x, lane)
#endif
    return (VI)(lane == 0 ? DOT(0) : lane == 1 ? DOT(1) : lane == 2 ? DOT(2) : DOT(3));
#undef DOT
}

VEC_INLINE VI q_dots(VI sum, const VB *w, const uint8_t *q, bool wide) {
    int8x16_t x = vld1q_s8((const int8_t *)q);
    VEC_UNROLL for (int i = 0; i < STEPS; i++) sum = q_lane_dot(sum, w[i], x, i, wide);
    return sum;
}
#else
enum { STEPS = 2 };
#define PANEL_ORDER()

#if defined(__wasm_relaxed_simd__)
VEC_INLINE VI q_dot2(VI sum, VB w0, VB w1, const uint8_t *q, bool wide) {
    VI q0 = q_set1(read_int(q)), q1 = q_set1(read_int(q + 4));
    if (!wide) return q_dot(q_dot(sum, w0, q0), w1, q1);
    VI top = q_dot(q_dot((VI){0}, w0 >> 7, q0), w1 >> 7, q1);
    return q_dot(q_dot(sum + (top << 7), w0 & 127, q0), w1 & 127, q1);
}
#elif defined(VEC_WASM)
/* Of the rows 0 and 1, and of the rows 2 and 3, two sums each. */
VEC_INLINE VI q_dot2(VI sum, VB w0, VB w1, const uint8_t *q, TN_UNUSED bool wide) {
    v128_t x = wasm_i16x8_load8x8(q), x0 = wasm_i64x2_shuffle(x, x, 0, 0), x1 = wasm_i64x2_shuffle(x, x, 1, 1);
    v128_t low = wasm_i32x4_add(wasm_i32x4_dot_i16x8(wasm_u16x8_extend_low_u8x16((v128_t)w0), x0),
                                wasm_i32x4_dot_i16x8(wasm_u16x8_extend_low_u8x16((v128_t)w1), x1));
    v128_t high = wasm_i32x4_add(wasm_i32x4_dot_i16x8(wasm_u16x8_extend_high_u8x16((v128_t)w0), x0),
                                 wasm_i32x4_dot_i16x8(wasm_u16x8_extend_high_u8x16((v128_t)w1), x1));
    return sum +
           (VI)wasm_i32x4_add(wasm_i32x4_shuffle(low, high, 0, 2, 4, 6), wasm_i32x4_shuffle(low, high, 1, 3, 5, 7));
}
#else
VEC_INLINE VI q_dot2(VI sum, VB w0, VB w1, const uint8_t *q, TN_UNUSED bool wide) {
    VI q0 = q_set1(read_int(q)), q1 = q_set1(read_int(q + 4));
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__) || !defined(__AVX2__)
    return q_dot(q_dot(sum, w0, q0), w1, q1);
#else
    if (!wide) return sum + q_widen(q_add16(q_pairs(w0, q0), q_pairs(w1, q1)), 1);
    VI top = q_add16(q_pairs(q_field(w0, 7, 0, 1), q0), q_pairs(q_field(w1, 7, 0, 1), q1));
    sum = sum + q_widen(top, 128);
    sum = sum + q_widen(q_pairs(q_and(w0, 127), q0), 1);
    return sum + q_widen(q_pairs(q_and(w1, 127), q1), 1);
#endif
}
#endif

VEC_INLINE VI q_dots(VI sum, const VB *w, const uint8_t *q, bool wide) { return q_dot2(sum, w[0], w[1], q, wide); }
#endif

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

VEC_INLINE float read_real(const uint8_t *p) {
    float x;
    memcpy(&x, p, sizeof x);
    return x;
}

/* The products of one part of a block: four of its chunks, or eight. */
VEC_INLINE V finish_part(V acc, VI sum, const uint8_t *record, int part, V s, V t, bool has_minimum) {
    acc = v_fma(q_float(sum), s * v_set1(read_real(record + RECORD_SCALE)), acc);
    return has_minimum ? v_fma(t, v_set1(read_real(record + RECORD_PARTS + 4 * part)), acc) : acc;
}

VEC_INLINE VI first_sum(const uint8_t *record, int part, bool has_minimum, bool wide) {
    return q_set1(has_minimum || (DOT_CENTERS && wide) ? 0 : read_int(record + RECORD_PARTS + 4 * part));
}

/* Block b of what comes next. */
KERNEL void ask_next(const qtile *t, int64_t b) {
    for (int region = 0; region < QREGIONS; region++)
        for (int64_t i = 0; i < t->ahead_bytes[region]; i += 64)
            __builtin_prefetch(t->ahead[region] + b * t->ahead_bytes[region] + i);
}

#if defined(__ARM_FEATURE_MATMUL_INT8)
enum { PAIRS = true };

/* The 32-bit numbers at byte `at` of the two records of r's pair of rows, as [first, second, first, second]. */
VEC_INLINE V read_pair(const uint8_t *x, int64_t record, int r, int at) {
    return (V)vreinterpretq_f32_s64(vld1q_dup_s64((const void *)(x + (r & ~1) * record + 2 * at)));
}

/* usmmla multiplies 2 × 8 weights (two columns) by 8 × 2 numbers of x (two rows) and adds to 2 × 2 sums. acc[r] has the
 * sums of rows r and r + 1 with the first two columns of a vector, acc[r + 1] with its last two. */
VEC_INLINE void multiply_pairs(const qtile *t, int height, int parts, bool has_minimum) {
    const int64_t record = record_bytes(parts), block = BITS + parts * LINE * (has_minimum ? 2 : 1);
    for (int half = 0; half < HALVES; half++) {
        V acc[TILE];
        float *c = t->c + half * VL;
        VEC_UNROLL for (int r = 0; r < height; r += 2) {
            acc[r] = acc[r + 1] = v_zero();
            if (t->add) v_zip(v_load(c + r * t->c_row), v_load(c + (r + 1) * t->c_row), acc + r);
        }
        const uint8_t *x = t->x, *panel = t->panel + half * VEC_BYTES;
        for (int64_t b = 0; b < t->blocks; b++, x += t->x_step, panel += block) {
            if (half == 0 && t->ahead[0]) ask_next(t, b);
            VEC_UNROLL for (int part = 0; part < parts; part++) {
                const int at = RECORD_PARTS + 4 * part;
                V sum[TILE], w[2], s[2], m[2];
                VEC_UNROLL for (int r = 0; r < height; r++) sum[r] =
                    has_minimum ? v_zero() : read_pair(x, record, r, at);
                VEC_UNROLL for (int k = CHUNKS / parts * part; k < CHUNKS / parts * (part + 1); k += 2) {
                    VEC_KEEP_ORDER();
                    v_zip((V)q_load(panel + k * LINE), (V)q_load(panel + (k + 1) * LINE), w);
                    VEC_UNROLL for (int r = 0; r < height; r++) {
                        int8x16_t both = vld1q_s8((const int8_t *)x + (r & ~1) * record + 8 * k);
                        sum[r] = (V)vusmmlaq_s32((int32x4_t)sum[r], (uint8x16_t)w[r % 2], both);
                    }
                }
                VEC_KEEP_ORDER();
                V scale = *(const V *)(const void *)(panel + BITS + part * LINE);
                v_zip(scale, scale, s);
                V minimum = has_minimum ? *(const V *)(const void *)(panel + BITS + (parts + part) * LINE) : scale;
                v_zip(minimum, minimum, m);
                VEC_UNROLL for (int r = 0; r < height; r++) {
                    V factor = s[r % 2] * read_pair(x, record, r, RECORD_SCALE);
                    acc[r] = v_fma(q_float((VI)sum[r]), factor, acc[r]);
                    if (has_minimum) acc[r] = v_fma(m[r % 2], read_pair(x, record, r, at), acc[r]);
                }
            }
        }
        VEC_UNROLL for (int r = 0; r < height; r += 2) {
            float32x4_t low = (float32x4_t)acc[r], high = (float32x4_t)acc[r + 1];
            v_store(c + r * t->c_row, (V)vuzp1q_f32(low, high));
            v_store(c + (r + 1) * t->c_row, (V)vuzp2q_f32(low, high));
        }
    }
}
#else
enum { PAIRS = false };
VEC_INLINE void multiply_pairs(const qtile *t, int height, int parts, bool has_minimum) {
    (void)t, (void)height, (void)parts, (void)has_minimum;
}
#endif

KERNEL void multiply_panel(const qtile *t, int height, int parts, bool has_minimum, bool wide) {
    if (PAIRS && height > 1) {
        multiply_pairs(t, height, parts, has_minimum);
        return;
    }
    const int64_t record = record_bytes(parts), block = BITS + parts * LINE * (has_minimum ? 2 : 1);
    for (int half = 0; half < HALVES; half++) {
        V acc[TILE];
        VEC_UNROLL for (int r = 0; r < height; r++) acc[r] =
            t->add ? v_load(t->c + r * t->c_row + half * VL) : v_zero();
        const uint8_t *x = t->x, *panel = t->panel + half * VEC_BYTES;
        for (int64_t b = 0; b < t->blocks; b++, x += t->x_step, panel += block) {
            if (half == 0 && t->ahead[0]) ask_next(t, b);
            VEC_UNROLL for (int part = 0; part < parts; part++) {
                VI sum[TILE];
                VEC_UNROLL for (int r = 0; r < height; r++) sum[r] = first_sum(x + r * record, part, has_minimum, wide);
                VEC_UNROLL for (int c = CHUNKS / parts * part; c < CHUNKS / parts * (part + 1); c += STEPS) {
                    VB w[STEPS];
                    PANEL_ORDER();
                    VEC_UNROLL for (int i = 0; i < STEPS; i++) w[i] = q_load(panel + (c + i) * LINE);
                    VEC_UNROLL for (int r = 0; r < height; r++) sum[r] =
                        q_dots(sum[r], w, x + r * record + 4 * c, wide);
                }
                PANEL_ORDER();
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

/* Weights are unpacked in registers and used at once by `height` rows. */
KERNEL void multiply_stripe(const stripe *p, int height, tn_qbits bits, tn_qscales form, tn_qlayout l) {
    bool has_minimum = form_has_minimum(form);
    int parts = form_parts(form);
    const int64_t scale = l.scale_bytes / l.scale_blocks, ahead = QAHEAD / (l.low_bytes + l.high_bytes + scale);
    const int64_t turn = tn_max64(p->blocks - ahead, 0), record = record_bytes(parts);
    int64_t jump = 0, by = ahead;
    const uint8_t *low = p->low, *high = p->high, *x = p->x;
    V acc[HALVES][STRIPE_HIGH];
    VEC_UNROLL for (int half = 0; half < HALVES; half++) {
        VEC_UNROLL for (int r = 0; r < height; r++) acc[half][r] = v_zero();
    }
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
                VI sum[STRIPE_HIGH];
                VEC_UNROLL for (int r = 0; r < height; r++) sum[r] =
                    first_sum(x + r * record, part, has_minimum, bits == TN_QBITS_8);
                VEC_UNROLL for (int c = CHUNKS / parts * part; c < CHUNKS / parts * (part + 1); c += STEPS) {
                    VEC_UNROLL for (int r = 0; r < height; r++) sum[r] =
                        q_dots(sum[r], w + c, x + r * record + 4 * c, bits == TN_QBITS_8);
                }
                VEC_UNROLL for (int r = 0; r < height; r++) acc[half][r] =
                    finish_part(acc[half][r], sum[r], x + r * record, part, sc.s[part], sc.t[part], has_minimum);
            }
        }
        low += l.low_bytes;
        high += l.high_bytes;
        x += height * record;
    }
    VEC_UNROLL for (int half = 0; half < HALVES; half++) {
        VEC_UNROLL for (int r = 0; r < height; r++) if (r < p->rows)
            v_store(p->c + r * p->c_row + half * VL, acc[half][r]);
    }
}

/* ---- their instances --------------------------------------------------------------------------------------------- */

#define PANEL_KERNELS(name, parts, has_minimum, wide)                                                     \
    static void name##_full(const qtile *t) { multiply_panel(t, TILE, parts, has_minimum, wide); }        \
    static void name##_two(const qtile *t) { multiply_panel(t, 2 * TILE / 3, parts, has_minimum, wide); } \
    static void name##_third(const qtile *t) { multiply_panel(t, TILE / 3, parts, has_minimum, wide); }   \
    static void name##_one(const qtile *t) { multiply_panel(t, 1, parts, has_minimum, wide); }            \
    static const panel_kernels name##_panels = {{name##_full, name##_two, name##_third, name##_one}};

PANEL_KERNELS(plain, 1, false, false)
PANEL_KERNELS(plain_wide, 1, false, true)
PANEL_KERNELS(with_minimum, 1, true, false)
PANEL_KERNELS(parts, 2, false, false)
PANEL_KERNELS(parts_wide, 2, false, true)
PANEL_KERNELS(parts_with_minimum, 2, true, false)

static const panel_kernels *kernels_of(const tn_qformat *f) {
    if (f->bits == TN_QBITS_8) return f->parts == 2 ? &parts_wide_panels : &plain_wide_panels;
    if (f->parts == 2) return f->has_minimum ? &parts_with_minimum_panels : &parts_panels;
    return f->has_minimum ? &with_minimum_panels : &plain_panels;
}

#define LAYOUT(low, high, scale, blocks) \
    (tn_qlayout) { .low_bytes = low, .high_bytes = high, .scale_bytes = scale, .scale_blocks = blocks }
#if defined(__AVX512F__)
#define STRIPE_KERNEL(name, bits, form, layout)                                                     \
    static void name(const stripe *p) { multiply_stripe(p, 1, bits, form, layout); }                \
    static void name##_low(const stripe *p) { multiply_stripe(p, STRIPE_LOW, bits, form, layout); } \
    static void name##_high(const stripe *p) { multiply_stripe(p, STRIPE_HIGH, bits, form, layout); }
#define STRIPES(name) \
    { name, name##_low, name##_high }
#else
#define STRIPE_KERNEL(name, bits, form, layout) \
    static void name(const stripe *p) { multiply_stripe(p, 1, bits, form, layout); }
#define STRIPES(name) \
    { name }
#endif

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

static stripe_fn *const stripe_kernels[TN_DTYPE_COUNT][STRIPE_HEIGHTS] = {
    [TN_Q4_0] = STRIPES(stripe_q4_0), [TN_Q4_1] = STRIPES(stripe_q4_1), [TN_Q5_0] = STRIPES(stripe_q5_0),
    [TN_Q5_1] = STRIPES(stripe_q5_1), [TN_Q8_0] = STRIPES(stripe_q8_0), [TN_Q2_K] = STRIPES(stripe_q2_k),
    [TN_Q3_K] = STRIPES(stripe_q3_k), [TN_Q4_K] = STRIPES(stripe_q4_k), [TN_Q5_K] = STRIPES(stripe_q5_k),
    [TN_Q6_K] = STRIPES(stripe_q6_k), [TN_Q8_X] = STRIPES(stripe_q8_x),
};

/* ---- the set ----------------------------------------------------------------------------------------------------- */

#define SET VEC_JOIN(tn_qtiles, TN_DOT_SUFFIX)
const qtile_set SET = {.plain = &QPLAIN, .stripe = stripe_kernels, .panels = kernels_of, .pairs = PAIRS};
