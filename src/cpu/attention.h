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
    const char *ask;  /* halves: memory to prefetch meanwhile, up to two lines a step; NULL: none … */
    int64_t ask_step; /* … and its bytes a step */
    const float *a;
    const void *b; /* f32 or, if `half`, f16 */
    float *c;
    int64_t a_row, b_row, c_row; /* distances between rows */
    int64_t a_step;              /* … and between the columns of A */
    int64_t steps;
    bool half;
    bool add; /* to what C holds */
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

#if defined(__AVX512F__)
VEC_INLINE V v_greater(V x, V y) { return (V)_mm512_max_ps((__m512)x, (__m512)y); }

VEC_INLINE V v_exp_down(V x) {
    __mmask16 matters = _mm512_cmp_ps_mask((__m512)x, (__m512)v_set1(LEAST), _CMP_NLT_UQ);
    V n = v_fma(x, v_set1(0x1.715476p0f), v_set1(KIR_MAGIC_F32)) - v_set1(KIR_MAGIC_F32);
    V r = v_fma(n, v_set1(0x1.05c61p-29f), v_fma(n, v_set1(-0x1.62e43p-1f), x));
    V p = v_fma(v_set1(0x1.6a2352p-10f), r, v_set1(0x1.123a6ap-7f));
    p = v_fma(p, r, v_set1(0x1.5558f4p-5f));
    p = v_fma(p, r, v_set1(0x1.55549p-3f));
    p = v_fma(p, r, v_set1(0x1.fffffcp-2f));
    V y = v_set1(1.0f) + v_fma(p, r * r, r);
    return (V)_mm512_maskz_scalef_ps(matters, (__m512)y, (__m512)n);
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

/* Lane t takes lane t + w, for w = 8, 4, 2, 1. */
VEC_INLINE float fold_sum(const V *lanes) {
    float lane[LANES];
    VEC_UNROLL for (int i = 0; i < LANE_VECTORS; i++) v_store(lane + i * VL, lanes[i]);
    for (int t = 0; t < 8; t++)
        lane[t] += lane[t + 8];
    for (int t = 0; t < 4; t++)
        lane[t] += lane[t + 4];
    return lane[0] + lane[2] + (lane[1] + lane[3]);
}

VEC_INLINE float fold_most(const V *lanes) {
    float lane[LANES];
    VEC_UNROLL for (int i = 0; i < LANE_VECTORS; i++) v_store(lane + i * VL, lanes[i]);
    for (int t = 0; t < 8; t++)
        lane[t] = greater(lane[t + 8], lane[t]);
    for (int t = 0; t < 4; t++)
        lane[t] = greater(lane[t + 4], lane[t]);
    return greater(greater(lane[0], lane[2]), greater(lane[1], lane[3]));
}

#endif
