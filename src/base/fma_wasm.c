/* fma_wasm.c — fmaf and fma by relaxed SIMD, in place of those of the C library, which compute with several numbers.
 *
 * Such a build is only for engines whose relaxed multiply-add rounds once; web/trunnion.js tries that before it loads
 * the module. */
#if defined(__wasm_relaxed_simd__)
#include <math.h>
#include <wasm_simd128.h>

float fmaf(float x, float y, float z) {
    return wasm_f32x4_extract_lane(
        wasm_f32x4_relaxed_madd(wasm_f32x4_splat(x), wasm_f32x4_splat(y), wasm_f32x4_splat(z)), 0);
}

double fma(double x, double y, double z) {
    return wasm_f64x2_extract_lane(
        wasm_f64x2_relaxed_madd(wasm_f64x2_splat(x), wasm_f64x2_splat(y), wasm_f64x2_splat(z)), 0);
}
#else
typedef int tn_no_wasm; /* a source has to hold something */
#endif
