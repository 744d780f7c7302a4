/* qvec.h — vectors of small integers for block-quantized weights: loads, unpacking to bytes and scales.
 *
 * A vector of bytes has four weights of each of VL rows. */
#ifndef TN_QVEC_H
#define TN_QVEC_H

#include <string.h>

#include "cpu/qtile.h"
#include "cpu/vec.h"
#include "cpu/widen.h"
#include "kir/kir_math.h"

/* A function that is instantiated for each format. Without vector units one function for all is small and hardly
 * slower. */
#if defined(__AVX2__) || defined(VEC_NEON) || defined(VEC_WASM)
#define KERNEL VEC_INLINE
#else
#define KERNEL static __attribute__((noinline))
#endif

typedef uint8_t VB __attribute__((vector_size(VEC_BYTES)));
typedef uint16_t VH __attribute__((vector_size(VEC_BYTES)));
typedef int32_t VI __attribute__((vector_size(VEC_BYTES)));

VEC_INLINE VB q_load(const uint8_t *p) { return *(const VB *)(const void *)p; } /* aligned */
VEC_INLINE void q_store(uint8_t *p, VB x) { *(VB *)(void *)p = x; }
VEC_INLINE VB q_and(VB x, int mask) { return x & (uint8_t)mask; }

/* Each byte's field from bit `from` on, moved to bit `to`; `mask` in its place afterwards. */
VEC_INLINE VB q_field(VB x, int from, int to, int mask) {
#if defined(VEC_NEON) || defined(VEC_WASM) /* they shift bytes: a field of the highest bits needs no mask */
    VB moved = to >= from ? x << (uint8_t)(to - from) : x >> (uint8_t)(from - to);
    if (from > to && (255 >> (from - to) & ~mask) == 0) return moved;
#else
    VH moved = to >= from ? (VH)x << (to - from) : (VH)x >> (from - to);
#endif
    return q_and((VB)moved, mask);
}

#if defined(__AVX512F__)

VEC_INLINE VI q_set1(int32_t x) { return (VI)_mm512_set1_epi32(x); }
VEC_INLINE V q_float(VI x) { return (V)_mm512_cvtepi32_ps((__m512i)x); }
VEC_INLINE VI q_u8(const void *p) { return (VI)_mm512_cvtepu8_epi32(_mm_loadu_si128(p)); }
VEC_INLINE VI q_i8(const void *p) { return (VI)_mm512_cvtepi8_epi32(_mm_loadu_si128(p)); }

#elif defined(__AVX2__)

VEC_INLINE VI q_set1(int32_t x) { return (VI)_mm256_set1_epi32(x); }
VEC_INLINE V q_float(VI x) { return (V)_mm256_cvtepi32_ps((__m256i)x); }
VEC_INLINE VI q_u8(const void *p) { return (VI)_mm256_cvtepu8_epi32(_mm_loadl_epi64(p)); }
VEC_INLINE VI q_i8(const void *p) { return (VI)_mm256_cvtepi8_epi32(_mm_loadl_epi64(p)); }

#else

VEC_INLINE VI q_set1(int32_t x) { return (VI){0} + x; }

VEC_INLINE V q_float(VI x) { return __builtin_convertvector(x, V); }

VEC_INLINE VI q_u8(const void *p) {
    uint8_t b __attribute__((vector_size(VL)));
    memcpy(&b, p, sizeof b);
    return __builtin_convertvector(b, VI);
}

VEC_INLINE VI q_i8(const void *p) {
    int8_t b __attribute__((vector_size(VL)));
    memcpy(&b, p, sizeof b);
    return __builtin_convertvector(b, VI);
}

#endif

/* ---- blocks of 32 numbers to 8 bits, ROUND_AT_ONCE of them ------------------------------------------------------- */

/* q_most: the bits of each block's largest absolute value; as integers, NaN is above infinity and infinity above all
 * numbers. q_round: x · factor[b] rounded to integers, which fit in 8 bits, blocks at a distance of `step`, and the
 * sums of the first and second 16 of them. */

#if defined(__AVX512F__)
enum { ROUND_AT_ONCE = 4 };

VEC_INLINE __m512i q_sizes(const float *x) {
    const __m512i size = _mm512_set1_epi32(0x7fffffff);
    __m512i a = _mm512_and_si512(_mm512_loadu_si512(x), size), b = _mm512_and_si512(_mm512_loadu_si512(x + 16), size);
    return _mm512_max_epi32(a, b);
}

VEC_INLINE void q_most(const float *x, int32_t *most) {
    __m512i a = q_sizes(x), b = q_sizes(x + 32), c = q_sizes(x + 64), d = q_sizes(x + 96);
    __m512i ab = _mm512_max_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    __m512i cd = _mm512_max_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
    __m512i all = _mm512_max_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
    __m256i half = _mm256_max_epi32(_mm512_castsi512_si256(all), _mm512_extracti64x4_epi64(all, 1));
    __m128i four = _mm_max_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    _mm_storeu_si128((void *)most, four);
}

VEC_INLINE __m512i q_integers(const float *x, float factor) {
    return _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x), _mm512_set1_ps(factor)));
}

/* Two blocks share a vector. Packing leaves four bytes of each half of each block in each 128 bits. */
VEC_INLINE void q_round_two(const float *x, const float *factor, uint8_t *q, int64_t step, int32_t sum[][2]) {
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i one8 = _mm512_set1_epi8(1), one16 = _mm512_set1_epi16(1);
    __m512i a = _mm512_packs_epi32(q_integers(x, factor[0]), q_integers(x + 16, factor[0]));
    __m512i b = _mm512_packs_epi32(q_integers(x + 32, factor[1]), q_integers(x + 48, factor[1]));
    __m512i bytes = _mm512_packs_epi16(a, b), sums = _mm512_madd_epi16(_mm512_maddubs_epi16(one8, bytes), one16);
    __m256i half = _mm256_add_epi32(_mm512_castsi512_si256(sums), _mm512_extracti64x4_epi64(sums, 1));
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    _mm_storeu_si128((void *)sum, four);
    bytes = _mm512_permutexvar_epi32(order, bytes);
    _mm256_storeu_si256((void *)q, _mm512_castsi512_si256(bytes));
    _mm256_storeu_si256((void *)(q + step), _mm512_extracti64x4_epi64(bytes, 1));
}

VEC_INLINE void q_round(const float *x, const float *factor, uint8_t *q, int64_t step, int32_t sum[][2]) {
    q_round_two(x, factor, q, step, sum);
    q_round_two(x + 64, factor + 2, q + 2 * step, step, sum + 2);
}

#elif defined(__AVX2__)
enum { ROUND_AT_ONCE = 1 };

VEC_INLINE void q_most(const float *x, int32_t *most) {
    const __m256i size = _mm256_set1_epi32(0x7fffffff);
    __m256i a[4];
    VEC_UNROLL for (int i = 0; i < 4; i++) a[i] = _mm256_and_si256(_mm256_loadu_si256((const void *)(x + 8 * i)), size);
    __m256i b = _mm256_max_epi32(_mm256_max_epi32(a[0], a[1]), _mm256_max_epi32(a[2], a[3]));
    __m128i c = _mm_max_epi32(_mm256_castsi256_si128(b), _mm256_extracti128_si256(b, 1));
    c = _mm_max_epi32(c, _mm_shuffle_epi32(c, 0x4e));
    *most = _mm_cvtsi128_si32(_mm_max_epi32(c, _mm_shuffle_epi32(c, 0xb1)));
}

VEC_INLINE void q_round(const float *x, const float *factor, uint8_t *q, TN_UNUSED int64_t step, int32_t sum[][2]) {
    __m256i a[4];
    VEC_UNROLL for (int i = 0; i < 4; i++) a[i] =
        _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), _mm256_set1_ps(*factor)));
    __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(a[0], a[1]), _mm256_packs_epi32(a[2], a[3]));
    bytes =
        _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)); /* halves were packed apart */
    _mm256_storeu_si256((void *)q, bytes);
    int64_t of_eight[4]; /* of q + 128 */
    bytes = _mm256_xor_si256(bytes, _mm256_set1_epi8(-128));
    _mm256_storeu_si256((void *)of_eight, _mm256_sad_epu8(bytes, _mm256_setzero_si256()));
    sum[0][0] = (int32_t)(of_eight[0] + of_eight[1]) - 128 * 16;
    sum[0][1] = (int32_t)(of_eight[2] + of_eight[3]) - 128 * 16;
}

#elif defined(VEC_NEON)
enum { ROUND_AT_ONCE = 1 };

VEC_INLINE void q_most(const float *x, int32_t *most) {
    uint32x4_t a = vdupq_n_u32(0);
    VEC_UNROLL for (int i = 0; i < 8; i++) a = vmaxq_u32(a, vreinterpretq_u32_f32(vabsq_f32(vld1q_f32(x + 4 * i))));
    *most = (int32_t)vmaxvq_u32(a);
}

VEC_INLINE void q_round(const float *x, const float *factor, uint8_t *q, TN_UNUSED int64_t step, int32_t sum[][2]) {
    VEC_UNROLL for (int part = 0; part < 2; part++, x += 16, q += 16) {
        int16x4_t a[4];
        VEC_UNROLL for (int i = 0; i < 4; i++) a[i] =
            vqmovn_s32(vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + 4 * i), *factor)));
        int8x16_t bytes = vcombine_s8(vqmovn_s16(vcombine_s16(a[0], a[1])), vqmovn_s16(vcombine_s16(a[2], a[3])));
        vst1q_s8((int8_t *)q, bytes);
        sum[0][part] = vaddlvq_s8(bytes);
    }
}

#elif defined(VEC_WASM)
enum { ROUND_AT_ONCE = 1 };

VEC_INLINE int32_t q_add_lanes(v128_t x) {
    x = wasm_i32x4_add(x, wasm_i32x4_shuffle(x, x, 2, 3, 0, 1));
    return wasm_i32x4_extract_lane(x, 0) + wasm_i32x4_extract_lane(x, 1);
}

VEC_INLINE void q_most(const float *x, int32_t *most) {
    v128_t a = wasm_i32x4_splat(0);
    for (int i = 0; i < 8; i++)
        a = wasm_i32x4_max(a, wasm_f32x4_abs(wasm_v128_load(x + 4 * i)));
    a = wasm_i32x4_max(a, wasm_i32x4_shuffle(a, a, 2, 3, 0, 1));
    *most = wasm_i32x4_extract_lane(wasm_i32x4_max(a, wasm_i32x4_shuffle(a, a, 1, 0, 3, 2)), 0);
}

/* Adding 1.5 · 2²³ leaves no room for a fraction: the integer is what the bits exceed that number's by. */
VEC_INLINE v128_t q_integers(const float *x, float factor) {
    const v128_t large = wasm_f32x4_splat(12582912.0f);
    return wasm_i32x4_sub(wasm_f32x4_add(wasm_f32x4_mul(wasm_v128_load(x), wasm_f32x4_splat(factor)), large), large);
}

VEC_INLINE void q_round(const float *x, const float *factor, uint8_t *q, TN_UNUSED int64_t step, int32_t sum[][2]) {
    for (int part = 0; part < 2; part++, x += 16, q += 16) {
        v128_t a = wasm_i16x8_narrow_i32x4(q_integers(x, *factor), q_integers(x + 4, *factor));
        v128_t b = wasm_i16x8_narrow_i32x4(q_integers(x + 8, *factor), q_integers(x + 12, *factor));
        v128_t bytes = wasm_i8x16_narrow_i16x8(a, b);
        wasm_v128_store(q, bytes);
        sum[0][part] = q_add_lanes(wasm_i32x4_extadd_pairwise_i16x8(wasm_i16x8_extadd_pairwise_i8x16(bytes)));
    }
}

#else
enum { ROUND_AT_ONCE = 1 };

VEC_INLINE void q_most(const float *x, int32_t *most) {
    *most = 0;
    for (int i = 0; i < 32; i++) {
        int32_t size = (int32_t)(kir_bits_f32(x[i]) & 0x7fffffff);
        *most = size > *most ? size : *most;
    }
}

/* Adding 1.5 · 2²³ leaves no room for a fraction: the integer is in the lowest bits. */
VEC_INLINE void q_round(const float *x, const float *factor, uint8_t *q, TN_UNUSED int64_t step, int32_t sum[][2]) {
    sum[0][0] = sum[0][1] = 0;
    for (int i = 0; i < 32; i++) {
        q[i] = (uint8_t)kir_bits_f32(x[i] * *factor + 12582912.0f);
        sum[0][i / 16] += (int8_t)q[i];
    }
}

#endif

/* ==== unpacking weights =========================================================================================== */

/* Rows of x at once: 12 sums and 12 accumulators of 32 registers, 6 and 6 of 16. */
#if defined(__AVX512F__) || defined(VEC_NEON)
enum { TILE = 12 };
#elif defined(__AVX2__) || defined(__wasm_relaxed_simd__)
enum { TILE = 6 };
#else
enum { TILE = 4 };
#endif

enum {
    CHUNKS = QCHUNKS,
    LINE = QLINE,
    BITS = QBITS,
    HALVES = TN_QROWS / VL, /* vectors of a group: one, two or four */
    LANE = VL * 4           /* bytes of a vector of f32 */
};

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

VEC_INLINE int form_parts(tn_qscales form) { return form == TN_QSCALES_PAIR || form >= TN_QSCALES_I8 ? 2 : 1; }

typedef struct scales {
    V s[2], t[2];
} scales;

/* For block `b` of a super-block, or for a block with its own scales (b = 0); rows from `row` on. */
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

#endif
