/* vec.h — vectors of one instruction set, and conversions of f16, bf16 and bytes, for sources compiled once per set.
 *
 * `real` is float, or double where TN_VEC_F64 is defined before this file is included; V holds VL of them. With
 * TN_VEC_PAIRS sums are float, and what is multiplied are pairs of bf16 in the room of a float; with TN_VEC_QUADS sums
 * are whole numbers of 32 bits, and four bytes, of A without a sign and of B with one, take the room of a float.
 * A fused multiply-add rounds once on every instruction set: where there is no instruction for it, f64 arithmetic or
 * libm's exact function gives the same bits, slower.
 *
 * v_part_load and v_part_store access only the lanes of a mask, so edges are never read or written beyond. v_transpose
 * transposes a square of VL vectors each of which was read by one load, because lines at a distance that is a multiple
 * of 4 KiB share one set of the first-level cache and would evict each other before a second load. */
#ifndef TN_VEC_H
#define TN_VEC_H

#include "cpu/tile_set.h"

#define VEC_JOIN_(a, b) a##_##b
#define VEC_JOIN(a, b) VEC_JOIN_(a, b)
/* Whether the compiler makes one instruction of a multiplication and an addition that are rounded once. */
#if defined(__AVX2__) || defined(__FP_FAST_FMAF) || defined(__ARM_FEATURE_FMA) || defined(__wasm_relaxed_simd__)
#define VEC_HAS_FMA 1
#else
#define VEC_HAS_FMA 0
#endif

/* Before a loop of constant length: unrolls it completely, so that an array of vectors can be in registers. Processors
 * without fma get small code instead. */
#if !VEC_HAS_FMA && !defined(__wasm_simd128__)
#define VEC_UNROLL
#elif defined(__clang__)
#define VEC_UNROLL _Pragma("clang loop unroll(full)")
#else
#define VEC_UNROLL _Pragma("GCC unroll 16")
#endif

#define VEC_INLINE static inline __attribute__((always_inline, unused)) /* no copy of a file calls all of them */

#if defined(__AVX512F__)
enum { VEC_BYTES = 64 };
#elif defined(__AVX2__)
enum { VEC_BYTES = 32 };
#else
enum { VEC_BYTES = 16 };
#if defined(__aarch64__) && defined(__ARM_NEON)
#define VEC_NEON
#include <arm_neon.h>
#elif defined(__wasm_simd128__)
#define VEC_WASM
#include <wasm_simd128.h>
#endif
#endif

enum {
    VL = VEC_BYTES / sizeof(real), /* lanes of a vector */
    PANEL = 2 * VL,                /* columns of B that lie side by side for a tile */
    PIECE = 16 / sizeof(real)      /* lanes of one of its 16-byte pieces */
};

/* Other tables compiled for these vectors, for sources that use them: the f32 product kernels, and what products with
 * stored weights need besides dot products. */
#if defined(__AVX512F__)
#define TILES tn_tiles_f32_avx512
#define QPLAIN tn_qplain_avx512
#elif defined(__AVX2__)
#define TILES tn_tiles_f32_avx2
#define QPLAIN tn_qplain_avx2
#else
#define TILES tn_tiles_f32_base
#define QPLAIN tn_qplain_base
#endif

typedef real V __attribute__((vector_size(VEC_BYTES)));
typedef real v_unaligned __attribute__((vector_size(VEC_BYTES), aligned(_Alignof(real)), may_alias));

VEC_INLINE V v_zero(void) { return (V){0}; }
VEC_INLINE V v_load(const real *p) { return *(const v_unaligned *)p; }
VEC_INLINE void v_store(real *p, V x) { *(v_unaligned *)p = x; }

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>

#if defined(__AVX512F__)
#define VEC_OP_(name, type) _mm512_##name##_##type
#else
#define VEC_OP_(name, type) _mm256_##name##_##type
#endif
#ifdef TN_VEC_F64
#define VEC_OP(name) VEC_OP_(name, pd)
#else
#define VEC_OP(name) VEC_OP_(name, ps)
#endif

VEC_INLINE V v_set1(real x) { return VEC_OP(set1)(x); }
VEC_INLINE V v_fma(V a, V b, V c) { return VEC_OP(fmadd)(a, b, c); }
#endif

#if defined(__AVX512F__)

#ifdef TN_VEC_F64
typedef __mmask8 M;
#else
typedef __mmask16 M;
#endif
VEC_INLINE M v_mask(int64_t n) { return (M)(n >= VL ? (1u << VL) - 1u : (1u << n) - 1u); }
/* Lanes [low, high), which may lie outside of the vector. */
VEC_INLINE M v_mask_range(int64_t low, int64_t high) {
    return high <= low || high <= 0 ? (M)0 : (M)(v_mask(high) & ~(low <= 0 ? (M)0 : v_mask(low)));
}
VEC_INLINE V v_part_load(const real *p, M m) { return VEC_OP(maskz_loadu)(m, p); }
VEC_INLINE void v_part_store(real *p, M m, V x) { VEC_OP(mask_storeu)(p, m, x); }

#elif defined(__AVX2__)

typedef __m256i M;
#ifdef TN_VEC_F64
VEC_INLINE M v_mask(int64_t n) { return _mm256_cmpgt_epi64(_mm256_set1_epi64x(n), _mm256_setr_epi64x(0, 1, 2, 3)); }
#else
VEC_INLINE M v_mask(int64_t n) {
    int lanes = n < VL ? (int)n : VL;
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(lanes), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
VEC_INLINE M v_mask_range(int64_t low, int64_t high) {
    return _mm256_andnot_si256(v_mask(low > -1 ? low : 0), v_mask(high > -1 ? high : 0));
}
#endif
/* Untyped, because where `real` may lie at any byte clang warns of these functions, which need no alignment. */
VEC_INLINE V v_part_load(const real *p, M m) { return VEC_OP(maskload)((const void *)p, m); }
VEC_INLINE void v_part_store(real *p, M m, V x) { VEC_OP(maskstore)((void *)p, m, x); }

#else

#if defined(VEC_NEON) && defined(TN_VEC_F64)
VEC_INLINE V v_set1(real x) { return (V)vdupq_n_f64(x); }
#elif defined(VEC_NEON)
VEC_INLINE V v_set1(real x) { return (V)vdupq_n_f32(x); }
#else
VEC_INLINE V v_set1(real x) {
    V v;
    for (int i = 0; i < VL; i++)
        v[i] = x;
    return v;
}
#endif

#if defined(VEC_NEON) && defined(TN_VEC_F64)
VEC_INLINE V v_fma(V a, V b, V c) { return (V)vfmaq_f64((float64x2_t)c, (float64x2_t)a, (float64x2_t)b); }
#elif defined(VEC_NEON)
VEC_INLINE V v_fma(V a, V b, V c) { return (V)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b); }
#elif defined(__wasm_relaxed_simd__) && defined(TN_VEC_F64) /* the module runs only where these round once */
VEC_INLINE V v_fma(V a, V b, V c) { return (V)wasm_f64x2_relaxed_madd((v128_t)a, (v128_t)b, (v128_t)c); }
#elif defined(__wasm_relaxed_simd__)
VEC_INLINE V v_fma(V a, V b, V c) { return (V)wasm_f32x4_relaxed_madd((v128_t)a, (v128_t)b, (v128_t)c); }
#elif defined(TN_VEC_F64) || VEC_HAS_FMA
VEC_INLINE V v_fma(V a, V b, V c) {
    V v;
    for (int i = 0; i < VL; i++) {
#ifdef TN_VEC_F64
        v[i] = __builtin_fma(a[i], b[i], c[i]);
#else
        v[i] = __builtin_fmaf(a[i], b[i], c[i]);
#endif
    }
    return v;
}
#else
/* Without an instruction the product is made in f64, where it is exact, and the sum is rounded there first. Rounding
 * that to float is right unless the sum lies in the middle between two floats, as far as f64 tells, or the result is
 * subnormal. Those rare sums are rounded to odd, that is, with the last bit set where something was lost; then the
 * second rounding is right too (Boldo, Melquiond 2008: Emulation of a FMA and correctly rounded sums). */
typedef double v_wide __attribute__((vector_size(2 * VEC_BYTES)));
typedef int64_t v_wide_bits __attribute__((vector_size(2 * VEC_BYTES)));

static __attribute__((noinline, unused)) V v_fma_to_odd(V a, V b, V c) {
    v_wide product = __builtin_convertvector(a, v_wide) * __builtin_convertvector(b, v_wide);
    v_wide addend = __builtin_convertvector(c, v_wide), sum = product + addend, of_addend = sum - product;
    v_wide lost = (product - (sum - of_addend)) + (addend - of_addend); /* TwoSum (Knuth) */
    v_wide_bits inexact = (v_wide_bits)((lost > 0) | (lost < 0));       /* not for NaN, which infinity leaves behind */
    v_wide_bits away = (v_wide_bits)((lost > 0) == (sum > 0)); /* -1: what was lost makes the sum's magnitude larger */
    v_wide_bits even = ((v_wide_bits)sum & 1) - 1;             /* -1: the last bit is not set */
    v_wide_bits odd = (v_wide_bits)sum + ((away & 2) - 1);     /* the neighbour towards what was lost */
    sum = (v_wide)((inexact & even & odd) | (~(inexact & even) & (v_wide_bits)sum));
    return __builtin_convertvector(sum, V);
}

VEC_INLINE V v_fma(V a, V b, V c) {
    const int64_t below_float = 0x1fffffff, middle = 0x10000000; /* the bits of a double that a float has not */
    v_wide product = __builtin_convertvector(a, v_wide) * __builtin_convertvector(b, v_wide);
    v_wide sum = product + __builtin_convertvector(c, v_wide);
    v_wide_bits hard = (v_wide_bits)(((v_wide_bits)sum & below_float) == middle) |
                       (v_wide_bits)((sum < 0x1p-126) & (sum > -0x1p-126) & (sum != 0));
#if defined(__clang__)
    bool any = __builtin_reduce_or(hard) != 0;
#else
    int64_t all = 0;
    for (int i = 0; i < VL; i++)
        all |= hard[i];
    bool any = all != 0;
#endif
    return __builtin_expect(any, 0) ? v_fma_to_odd(a, b, c) : __builtin_convertvector(sum, V);
}
#endif

typedef int M; /* the number of lanes in use */
VEC_INLINE M v_mask(int64_t n) { return n < VL ? (int)n : VL; }

VEC_INLINE V v_part_load(const real *p, M m) {
    V v = v_zero();
    for (int i = 0; i < m; i++)
        v[i] = p[i];
    return v;
}

VEC_INLINE void v_part_store(real *p, M m, V x) {
    for (int i = 0; i < m; i++)
        p[i] = x[i];
}

#endif

#if !defined(TN_VEC_F64) && !defined(TN_VEC_WORDS)
/* x, but +0 where the gate is ≤ floor; x where one of these is NaN. */
VEC_INLINE V v_gate(V x, V gate, V floor) {
#if defined(__AVX512F__)
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(gate, floor, _CMP_NLE_UQ), x);
#else
    typedef int32_t bits __attribute__((vector_size(VEC_BYTES)));
    return (V)((bits)x & ~(bits)(gate <= floor));
#endif
}

/* The greater one as KIR has it: x if that is NaN, y of two that are equal. */
VEC_INLINE V v_greatest(V x, V y) {
#if defined(__AVX512F__)
    __m512 a = (__m512)x;
    return (V)_mm512_mask_mov_ps(_mm512_max_ps(a, (__m512)y), _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), a);
#else
    typedef int32_t bits __attribute__((vector_size(VEC_BYTES)));
    bits first = (x > y) | (x != x);
    return (V)((first & (bits)x) | (~first & (bits)y));
#endif
}

/* The smaller one, likewise. */
VEC_INLINE V v_least(V x, V y) {
#if defined(__AVX512F__)
    __m512 a = (__m512)x;
    return (V)_mm512_mask_mov_ps(_mm512_min_ps(a, (__m512)y), _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), a);
#else
    typedef int32_t bits __attribute__((vector_size(VEC_BYTES)));
    bits first = (x < y) | (x != x);
    return (V)((first & (bits)x) | (~first & (bits)y));
#endif
}

VEC_INLINE V v_clip(const epilogue_ops *e, V x) {
    if (e->floor) x = v_greatest(x, v_set1(*e->floor));
    return e->ceiling ? v_least(x, v_set1(*e->ceiling)) : x;
}

/* A vector of columns of an epilogue that is a bias, max(…, 0) and clipping. */
VEC_INLINE V v_end_each(const epilogue_ops *e, V x) {
    if (e->add) x = x + v_load(e->add);
    if (e->relu) x = v_gate(x, x, v_zero());
    return v_clip(e, x);
}

/* Column `column` of an epilogue that is a bias, max(…, 0) and clipping. */
VEC_INLINE V v_end(const epilogue_ops *e, int64_t column, V x) {
    if (e->add) x = x + v_set1(e->add[column]);
    if (e->relu) x = v_gate(x, x, v_zero());
    return v_clip(e, x);
}
#endif

/* One step of a micro-kernel: a·b + c; with pairs c + a₁·b₁ + a₀·b₀, rounded as the processor does; with quads the sum
 * of four products and c, with widened bytes of two, modulo 2³². */
#if defined(TN_VEC_PAIRS) && defined(VEC_NEON)
VEC_INLINE V v_step(V a, V b, V c) { return (V)vbfdotq_f32((float32x4_t)c, (bfloat16x8_t)a, (bfloat16x8_t)b); }
#elif defined(TN_VEC_PAIRS)
VEC_INLINE V v_step(V a, V b, V c) { return (V)_mm512_dpbf16_ps((__m512)c, (__m512bh)a, (__m512bh)b); }
#elif defined(TN_VEC_QUADS) && defined(__AVX512F__)
VEC_INLINE V v_step(V a, V b, V c) { return (V)_mm512_dpbusd_epi32((__m512i)c, (__m512i)a, (__m512i)b); }
#elif defined(TN_VEC_QUADS) && defined(VEC_NEON)
VEC_INLINE V v_step(V a, V b, V c) { return (V)vusdotq_s32((int32x4_t)c, (uint8x16_t)a, (int8x16_t)b); }
#elif defined(TN_VEC_WIDENED)
VEC_INLINE V v_step(V a, V b, V c) {
    return (V)_mm256_add_epi32((__m256i)c, _mm256_madd_epi16((__m256i)a, (__m256i)b));
}
#elif defined(TN_VEC_QUADS)
VEC_INLINE V v_step(V a, V b, V c) { return (V)_mm256_dpbusd_avx_epi32((__m256i)c, (__m256i)a, (__m256i)b); }
#else
VEC_INLINE V v_step(V a, V b, V c) { return v_fma(a, b, c); }
#endif

/* The same of turned tiles, whose words have four bytes: sums of two products must fit into 16 bits. */
#ifdef TN_VEC_WIDENED
VEC_INLINE V v_turned_step(V a, V b, V c) {
    const __m256i pairs = _mm256_maddubs_epi16((__m256i)a, (__m256i)b);
    return (V)_mm256_add_epi32((__m256i)c, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
#else
VEC_INLINE V v_turned_step(V a, V b, V c) { return v_step(a, b, c); }
#endif

/* The same with one lane of x in all lanes of a; `lane` is constant after inlining. */
#if defined(TN_VEC_QUADS) && defined(VEC_NEON)
VEC_INLINE V v_step_lane(V x, const int lane, V b, V c) {
    switch (lane) {
    case 0: return (V)vsudotq_laneq_s32((int32x4_t)c, (int8x16_t)b, (uint8x16_t)x, 0);
    case 1: return (V)vsudotq_laneq_s32((int32x4_t)c, (int8x16_t)b, (uint8x16_t)x, 1);
    case 2: return (V)vsudotq_laneq_s32((int32x4_t)c, (int8x16_t)b, (uint8x16_t)x, 2);
    default: return (V)vsudotq_laneq_s32((int32x4_t)c, (int8x16_t)b, (uint8x16_t)x, 3);
    }
}
#else
VEC_INLINE V v_step_lane(V x, const int lane, V b, V c) { return v_step(v_set1(x[lane]), b, c); }
#endif

#if defined(VEC_NEON) && !defined(TN_VEC_F64)
/* Interleaves the first halves of a and b, and their second halves. */
VEC_INLINE void v_zip(V a, V b, V to[2]) {
    to[0] = (V)vzip1q_f32((float32x4_t)a, (float32x4_t)b);
    to[1] = (V)vzip2q_f32((float32x4_t)a, (float32x4_t)b);
}

/* Swaps the second half of a with the first half of b. */
VEC_INLINE void v_zip_halves(V *a, V *b) {
    float64x2_t x = (float64x2_t)*a, y = (float64x2_t)*b;
    *a = (V)vzip1q_f64(x, y);
    *b = (V)vzip2q_f64(x, y);
}

/* A compiler does not move loads across it. It would move all of them to a loop's start and run out of registers. */
#define VEC_KEEP_ORDER() __asm__ volatile("" ::: "memory")
#endif

/* Matrix instructions of i8mm and BF16: two steps at once of two rows (x) and two columns (y), with a sum for each. */
#if defined(VEC_NEON) && defined(TN_VEC_WORDS)
#define VEC_MATRICES
VEC_INLINE V v_matrix(V x, V y, V sums) {
#if defined(TN_VEC_QUADS)
    __asm__("usmmla %0.4s, %1.16b, %2.16b" : "+w"(sums) : "w"(x), "w"(y));
#else
    __asm__("bfmmla %0.4s, %1.8h, %2.8h" : "+w"(sums) : "w"(x), "w"(y));
#endif
    return sums;
}
#endif

/* Sums of sums. */
#ifdef TN_VEC_QUADS
typedef uint32_t v_counts __attribute__((vector_size(VEC_BYTES)));
VEC_INLINE V v_plus(V a, V b) { return (V)((v_counts)a + (v_counts)b); }
#else
VEC_INLINE V v_plus(V a, V b) { return a + b; }
#endif

/* The same with one number at `a` in all lanes, in one instruction; where there is none, tiles do without. NEON
 * multiplies by a lane of a register, so a number that is loaded alone need not be repeated in all lanes. */
#if defined(__AVX512F__) && !defined(TN_VEC_F64) && !defined(TN_VEC_WORDS)
enum { V_FOLDS = true };
VEC_INLINE V v_fold(const real *a, V b, V c) {
    __asm__("vfmadd231ps %2%{1to16%}, %1, %0" : "+v"(c) : "v"(b), "m"(*a));
    return c;
}
#elif defined(VEC_NEON) && !defined(TN_VEC_F64) && !defined(TN_VEC_WORDS)
enum { V_FOLDS = true };
VEC_INLINE V v_fold(const real *a, V b, V c) {
    __asm__("fmla %0.4s, %1.4s, %2.s[0]" : "+w"(c) : "w"(b), "w"(*a));
    return c;
}
#else
enum { V_FOLDS = false };
VEC_INLINE V v_fold(const real *a, V b, V c) { return v_step(v_set1(*a), b, c); }
#endif

/* ---- transposes: within the pieces of PIECE vectors, then of whole pieces between PIECES vectors ----------------- */

#if defined(__AVX512F__) || defined(__AVX2__)

/* At each piece position the vectors hold a PIECE × PIECE square, a row a vector. */
#ifdef TN_VEC_F64
VEC_INLINE void v_transpose_in_pieces(V *r) {
    V low = VEC_OP(unpacklo)(r[0], r[1]);
    r[1] = VEC_OP(unpackhi)(r[0], r[1]);
    r[0] = low;
}
#else
VEC_INLINE void v_transpose_in_pieces(V *r) {
    typedef double W __attribute__((vector_size(VEC_BYTES)));
    W low01 = (W)VEC_OP(unpacklo)(r[0], r[1]);
    W high01 = (W)VEC_OP(unpackhi)(r[0], r[1]);
    W low23 = (W)VEC_OP(unpacklo)(r[2], r[3]);
    W high23 = (W)VEC_OP(unpackhi)(r[2], r[3]);
    r[0] = (V)VEC_OP_(unpacklo, pd)(low01, low23);
    r[1] = (V)VEC_OP_(unpackhi, pd)(low01, low23);
    r[2] = (V)VEC_OP_(unpacklo, pd)(high01, high23);
    r[3] = (V)VEC_OP_(unpackhi, pd)(high01, high23);
}
#endif

#else

#ifdef TN_VEC_F64
VEC_INLINE void v_transpose_in_pieces(V *r) {
    V low = __builtin_shufflevector(r[0], r[1], 0, 2);
    r[1] = __builtin_shufflevector(r[0], r[1], 1, 3);
    r[0] = low;
}
#else
VEC_INLINE void v_transpose_in_pieces(V *r) {
    V low02 = __builtin_shufflevector(r[0], r[2], 0, 4, 1, 5), high02 = __builtin_shufflevector(r[0], r[2], 2, 6, 3, 7);
    V low13 = __builtin_shufflevector(r[1], r[3], 0, 4, 1, 5), high13 = __builtin_shufflevector(r[1], r[3], 2, 6, 3, 7);
    r[0] = __builtin_shufflevector(low02, low13, 0, 4, 1, 5);
    r[1] = __builtin_shufflevector(low02, low13, 2, 6, 3, 7);
    r[2] = __builtin_shufflevector(high02, high13, 0, 4, 1, 5);
    r[3] = __builtin_shufflevector(high02, high13, 2, 6, 3, 7);
}
#endif

#endif

/* The vectors r[0], r[PIECE], r[2 · PIECE] … are a square of pieces. */
#if defined(__AVX512F__)
VEC_INLINE void v_transpose_pieces(V *r) {
    __m512 x0 = (__m512)r[0], x1 = (__m512)r[PIECE], x2 = (__m512)r[2 * PIECE], x3 = (__m512)r[3 * PIECE];
    __m512 low01 = _mm512_shuffle_f32x4(x0, x1, 0x44), high01 = _mm512_shuffle_f32x4(x0, x1, 0xee);
    __m512 low23 = _mm512_shuffle_f32x4(x2, x3, 0x44), high23 = _mm512_shuffle_f32x4(x2, x3, 0xee);
    r[0] = (V)_mm512_shuffle_f32x4(low01, low23, 0x88);
    r[PIECE] = (V)_mm512_shuffle_f32x4(low01, low23, 0xdd);
    r[2 * PIECE] = (V)_mm512_shuffle_f32x4(high01, high23, 0x88);
    r[3 * PIECE] = (V)_mm512_shuffle_f32x4(high01, high23, 0xdd);
}
#elif defined(__AVX2__)
VEC_INLINE void v_transpose_pieces(V *r) {
    __m256 x0 = (__m256)r[0], x1 = (__m256)r[PIECE];
    r[0] = (V)_mm256_permute2f128_ps(x0, x1, 0x20);
    r[PIECE] = (V)_mm256_permute2f128_ps(x0, x1, 0x31);
}
#else
VEC_INLINE void v_transpose_pieces(V *r) { (void)r; }
#endif

/* A square of VL × VL, a row a vector. */
VEC_INLINE void v_transpose(V r[VL]) {
    VEC_UNROLL for (int i = 0; i < VL; i += PIECE) v_transpose_in_pieces(r + i);
    VEC_UNROLL for (int i = 0; i < PIECE; i++) v_transpose_pieces(r + i);
}

#endif
