/* widen.h — vectors of f32 from f16, bf16 and bytes in memory, and back; used with vec.h by the same sources.
 *
 * Widening is exact; narrowing rounds to nearest even, as kir_to_f16 and kir_to_bf16 do. NaN stays NaN. */
#ifndef TN_WIDEN_H
#define TN_WIDEN_H

#include <string.h>

#include "cpu/vec.h"
#include "kir/kir_math.h"

typedef uint32_t v_words __attribute__((vector_size(VEC_BYTES)));
typedef uint16_t v_halves __attribute__((vector_size(VEC_BYTES / 2)));

VEC_INLINE v_halves v_load_halves(const void *p) {
    v_halves h;
    memcpy(&h, p, sizeof h);
    return h;
}

/* `n` of them, at most VL; zeros behind. */
VEC_INLINE v_halves v_part_halves(const void *p, int64_t n) {
#if defined(__AVX512F__)
    return (v_halves)_mm256_maskz_loadu_epi16((__mmask16)((1u << n) - 1u), p);
#else
    v_halves h = {0};
    memcpy(&h, p, (size_t)n * sizeof(uint16_t));
    return h;
#endif
}

VEC_INLINE v_words v_widen_words(v_halves h) { return __builtin_convertvector(h, v_words); }

VEC_INLINE V v_widen_bf16(v_halves h) { return (V)(v_widen_words(h) << 16); }

VEC_INLINE v_halves v_narrow_bf16(V x) {
    v_words bits = (v_words)x, rounded = (bits + 0x7fffU + (bits >> 16 & 1)) >> 16;
    v_words nan = (v_words)((bits & 0x7fffffffU) > 0x7f800000U);
    return __builtin_convertvector((rounded & ~nan) | ((bits >> 16 | 0x40U) & nan), v_halves);
}

#if defined(__AVX512F__)
VEC_INLINE V v_widen_f16(v_halves h) { return (V)_mm512_cvtph_ps((__m256i)h); }
VEC_INLINE v_halves v_narrow_f16(V x) { return (v_halves)_mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT); }
#elif defined(__AVX2__)
VEC_INLINE V v_widen_f16(v_halves h) { return (V)_mm256_cvtph_ps((__m128i)h); }
VEC_INLINE v_halves v_narrow_f16(V x) { return (v_halves)_mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT); }
#elif defined(VEC_NEON)
VEC_INLINE V v_widen_f16(v_halves h) { return (V)vcvt_f32_f16((float16x4_t)h); }
VEC_INLINE v_halves v_narrow_f16(V x) { return (v_halves)vcvt_f16_f32((float32x4_t)x); }
#else
/* kir_from_f16 for each lane. */
VEC_INLINE V v_widen_f16(v_halves h) {
    v_words w = v_widen_words(h), magnitude = w & 0x7fffU, shifted = magnitude << 13;
    v_words subnormal = (v_words)((V)(shifted | 0x38800000U) - 0x1p-14f), small = (v_words)(magnitude < 0x400U);
    v_words special = (v_words)(magnitude >= 0x7c00U) & 0x7f800000U;
    v_words bits = (small & subnormal) | (~small & (shifted + (112U << 23)));
    return (V)((bits | special) | (w & 0x8000U) << 16);
}

VEC_INLINE v_halves v_narrow_f16(V x) {
    v_halves h;
    for (int i = 0; i < VL; i++)
        h[i] = kir_to_f16(x[i]);
    return h;
}
#endif

/* VL bytes. */
#if defined(__AVX512F__)
VEC_INLINE V v_widen_bytes(const void *p, bool with_sign) {
    __m128i b = _mm_loadu_si128(p);
    return (V)_mm512_cvtepi32_ps(with_sign ? _mm512_cvtepi8_epi32(b) : _mm512_cvtepu8_epi32(b));
}
#elif defined(__AVX2__)
VEC_INLINE V v_widen_bytes(const void *p, bool with_sign) {
    __m128i b = _mm_loadl_epi64(p);
    return (V)_mm256_cvtepi32_ps(with_sign ? _mm256_cvtepi8_epi32(b) : _mm256_cvtepu8_epi32(b));
}
#else
VEC_INLINE V v_widen_bytes(const void *p, bool with_sign) {
    typedef int8_t with __attribute__((vector_size(VL)));
    typedef uint8_t without __attribute__((vector_size(VL)));
    with b;
    memcpy(&b, p, sizeof b);
    return with_sign ? __builtin_convertvector(b, V) : __builtin_convertvector((without)b, V);
}
#endif

VEC_INLINE V v_f16(const void *p) { return v_widen_f16(v_load_halves(p)); }
VEC_INLINE V v_bf16(const void *p) { return v_widen_bf16(v_load_halves(p)); }

#endif
