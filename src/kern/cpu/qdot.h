/* qdot.h — dot products of small integers, beside qvec.h; for sources that are compiled with and without instructions
 * for them.
 *
 * q_dot adds the products of four weights of each of VL rows with four activations to VL sums. That is one instruction
 * where the processor has it (VNNI), and else goes through 16 bits: u·q + u·q must fit there, which it does below
 * 7 bits. Wider weights go in two parts, the top bit for itself. */
#ifndef TN_QDOT_H
#define TN_QDOT_H

#include "kern/cpu/qvec.h"

#if defined(__AVX512F__)
VEC_INLINE VI q_dot(VI sum, VB w, VI q) { return (VI)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)w, (__m512i)q); }
#elif defined(__AVXVNNI__)
VEC_INLINE VI q_dot(VI sum, VB w, VI q) { return (VI)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)w, (__m256i)q); }
#elif defined(__AVX2__)
VEC_INLINE VI q_pairs(VB w, VI q) { return (VI)_mm256_maddubs_epi16((__m256i)w, (__m256i)q); }
VEC_INLINE VI q_add16(VI a, VI b) { return (VI)_mm256_add_epi16((__m256i)a, (__m256i)b); }
VEC_INLINE VI q_widen(VI pairs, int factor) {
    return (VI)_mm256_madd_epi16((__m256i)pairs, _mm256_set1_epi16((short)factor));
}
#else
VEC_INLINE VI q_dot(VI sum, VB w, VI q) {
    int8_t x[VEC_BYTES];
    memcpy(x, &q, sizeof x);
    for (int i = 0; i < VEC_BYTES; i++)
        sum[i / 4] += w[i] * x[i];
    return sum;
}
#endif

/* Two steps of four weights; `wide`: they may have 8 bits. */
VEC_INLINE VI q_dot2(VI sum, VB w0, VI q0, VB w1, VI q1, bool wide) {
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__) || !defined(__AVX2__)
    (void)wide;
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
