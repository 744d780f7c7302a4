/* attention.h — shared by attention over a cache (attention.c) and over tensors (sdpa.c): small matrix products in the
 * first-level cache, and parts of a softmax. For sources that are compiled once per instruction set. */
#ifndef TN_CPU_ATTENTION_H
#define TN_CPU_ATTENTION_H

#include "cpu/isa.h"
#include "kir/kir_math.h"

#include "cpu/vec.h"

enum {
    KEYS = TN_PAGE_TOKENS,
    LANES = 16, /* of the sum of weights: part of the definition */
    LANE_VECTORS = LANES / VL
};

/* ---- small matrix products (attention.c) ------------------------------------------------------------------------- */

typedef struct product {
    const char *ask;   /* halves: memory to prefetch meanwhile, at most two lines a step … */
    int64_t ask_bytes; /* … and its size; 0: none. multiply makes it bytes a step. */
    const float *a;
    const void *b; /* f32 or, if `half`, f16 */
    float *c;
    int64_t a_row, b_row, c_row; /* distances between rows */
    int64_t a_step;              /* … and between the columns of A */
    int64_t steps;
    bool half;
    bool add;     /* the result to what C holds */
    bool extends; /* the chains that C holds */
} product;

/* C[rows, columns] = A · B, one chain a result; columns: a multiple of VL. */
#define multiply VEC_JOIN(tn_attention_multiply, TN_ISA_SUFFIX)
void multiply(product p, int64_t rows, int64_t columns);

/* VL keys, `row` apart, become a column each. */
VEC_INLINE void put_columns(const float *from, int64_t row, int64_t width, float *to) {
    for (int64_t j = 0; j < width; j += VL) {
        V r[VL];
        VEC_UNROLL for (int l = 0; l < VL; l++) r[l] = v_load(from + l * row + j);
        v_transpose(r);
        VEC_UNROLL for (int l = 0; l < VL; l++) v_store(to + (j + l) * KEYS, r[l]);
    }
}

/* ---- softmax ----------------------------------------------------------------------------------------------------- */

VEC_INLINE float greater(float x, float y) { return x > y ? x : y; }

/* The bits of kir_exp_f32 for x ≤ 0 or NaN. Below LEAST the result is 0 and not computed, because processors take a
 * hundred cycles when a result underflows. */
#define LEAST (-104.0f)

VEC_INLINE float exp_down(float x) {
    float y = kir_exp_f32(x < LEAST ? 0 : x);
    return x < LEAST ? 0 : y;
}

#if defined(__AVX2__)
/* exp(x - n · ln 2), for the whole number n of doublings that is nearest to x / ln 2. */
VEC_INLINE V v_exp_rest(V x, V n) {
    V r = v_fma(n, v_set1(0x1.05c61p-29f), v_fma(n, v_set1(-0x1.62e43p-1f), x));
    V p = v_fma(v_set1(0x1.6a2352p-10f), r, v_set1(0x1.123a6ap-7f));
    p = v_fma(p, r, v_set1(0x1.5558f4p-5f));
    p = v_fma(p, r, v_set1(0x1.55549p-3f));
    p = v_fma(p, r, v_set1(0x1.fffffcp-2f));
    return v_set1(1.0f) + v_fma(p, r * r, r);
}
#endif

#if defined(__AVX512F__)
VEC_INLINE V v_greater(V x, V y) { return (V)_mm512_max_ps((__m512)x, (__m512)y); }

VEC_INLINE V v_exp_down(V x) {
    __mmask16 matters = _mm512_cmp_ps_mask((__m512)x, (__m512)v_set1(LEAST), _CMP_NLT_UQ);
    V n = v_fma(x, v_set1(0x1.715476p0f), v_set1(KIR_MAGIC_F32)) - v_set1(KIR_MAGIC_F32);
    V y = v_exp_rest(x, n);
    return (V)_mm512_maskz_scalef_ps(matters, (__m512)y, (__m512)n);
}
#elif defined(__AVX2__)
VEC_INLINE V v_greater(V x, V y) { return (V)_mm256_max_ps((__m256)x, (__m256)y); }

/* y · 2^n for n = t - KIR_MAGIC_F32 below the exponents of normal results, in two steps. Apart: it is rare. */
static __attribute__((noinline, unused)) V v_exp_scale_down(V y, V t) {
    __m256i whole = _mm256_sub_epi32((__m256i)t, (__m256i)v_set1(KIR_MAGIC_F32)), bias = _mm256_set1_epi32(127);
    __m256i part = _mm256_srai_epi32(whole, 1), rest = _mm256_sub_epi32(whole, part);
    return y * (V)_mm256_slli_epi32(_mm256_add_epi32(part, bias), 23) *
           (V)_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23);
}

VEC_INLINE V v_exp_down(V x) {
    __m256 matters = _mm256_cmp_ps((__m256)x, (__m256)v_set1(LEAST), _CMP_NLT_UQ);
    x = (V)_mm256_and_ps((__m256)x, matters);
    V t = v_fma(x, v_set1(0x1.715476p0f), v_set1(KIR_MAGIC_F32)), n = t - v_set1(KIR_MAGIC_F32);
    V y = v_exp_rest(x, n);
    int small = _mm256_movemask_ps(_mm256_cmp_ps((__m256)n, (__m256)v_set1(-125.0f), _CMP_NGE_UQ));
    if (__builtin_expect(small, 0))
        y = v_exp_scale_down(y, t);
    else /* n goes into the exponent: the bits of t end with it */
        y = (V)_mm256_add_epi32((__m256i)y, _mm256_slli_epi32((__m256i)t, 23));
    return (V)_mm256_and_ps((__m256)y, matters);
}
#else
VEC_INLINE V v_greater(V x, V y) {
    V z;
    for (int i = 0; i < VL; i++)
        z[i] = greater(x[i], y[i]);
    return z;
}

VEC_INLINE V v_exp_down(V x) {
    float each[VL];
    v_store(each, x);
    for (int i = 0; i < VL; i++)
        each[i] = exp_down(each[i]);
    return v_load(each);
}
#endif

typedef float quad __attribute__((vector_size(16)));

/* Lane t takes lane t + w, for w = 8, 4, 2, 1. */
VEC_INLINE float fold_sum(const V *lanes) {
    quad q[LANES / 4];
    memcpy(q, lanes, sizeof q);
    quad s = (q[0] + q[2]) + (q[1] + q[3]);
    return s[0] + s[2] + (s[1] + s[3]);
}

VEC_INLINE quad quad_greater(quad x, quad y) {
    quad z;
    for (int i = 0; i < 4; i++)
        z[i] = greater(x[i], y[i]);
    return z;
}

VEC_INLINE float fold_most(const V *lanes) {
    quad q[LANES / 4];
    memcpy(q, lanes, sizeof q);
    quad m = quad_greater(quad_greater(q[3], q[1]), quad_greater(q[2], q[0]));
    return greater(greater(m[0], m[2]), greater(m[1], m[3]));
}

#endif
