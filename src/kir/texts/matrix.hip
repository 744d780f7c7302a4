/* matrix.hip — matrices in HIP C. An item has elements of one row or column of a factor: with MFMA every fourth of k,
 * with WMMA all of them. */
#define MAT static __device__ inline __attribute__((always_inline))
#if MAT_LANES == 64
enum { MAT_K = 4, MAT_ROWS = 4 };
#else
enum { MAT_K = 16, MAT_ROWS = 8 };
#endif
typedef short mat_s __attribute__((vector_size(2 * MAT_K)));
typedef float mat_v __attribute__((vector_size(4 * MAT_ROWS)));
#ifdef __AMDGCN__
typedef _Float16 mat_h __attribute__((ext_vector_type(MAT_K)));
#if MAT_LANES == 64
MAT mat_v amd_mma_f16(mat_s a, mat_s b, mat_v c) {
    return __builtin_amdgcn_mfma_f32_16x16x16f16(__builtin_bit_cast(mat_h, a), __builtin_bit_cast(mat_h, b), c, 0, 0, 0);
}
MAT mat_v amd_mma_bf16(mat_s a, mat_s b, mat_v c) {
    return __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(a, b, c, 0, 0, 0);
}
#else
MAT mat_v amd_mma_f16(mat_s a, mat_s b, mat_v c) {
    return __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(__builtin_bit_cast(mat_h, a), __builtin_bit_cast(mat_h, b), c);
}
MAT mat_v amd_mma_bf16(mat_s a, mat_s b, mat_v c) {
    return __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(a, b, c);
}
#endif
#endif
struct mat_c { mat_v e; };
template <int B> struct mat_factor { mat_s e; };
typedef mat_factor<0> mat_f16;
typedef mat_factor<1> mat_bf16;
struct __attribute__((aligned(16))) mat_packet { unsigned e[4]; };
MAT void mat_zero(mat_c &c) { c.e = mat_v{}; }
template <int KIND, int B> MAT void mat_load(mat_factor<B> &f, const unsigned short *p, int line) {
    const int own = threadIdx.x & 15, k = MAT_K == 4 ? (threadIdx.x >> 4 & 3) * 4 : 0;
#pragma unroll
    for (int i = 0; i < MAT_K; i++) f.e[i] = (short)(KIND & 2 ? p[own * line + k + i] : p[(k + i) * line + own]);
}
MAT void mat_mul(mat_c &c, const mat_f16 &a, const mat_f16 &b) { c.e = amd_mma_f16(a.e, b.e, c.e); }
MAT void mat_mul(mat_c &c, const mat_bf16 &a, const mat_bf16 &b) { c.e = amd_mma_bf16(a.e, b.e, c.e); }
MAT void mat_store(float *p, int line, const mat_c &c) {
    const int lane = threadIdx.x & (MAT_LANES - 1), own = lane & 15, part = lane >> 4;
#pragma unroll
    for (int i = 0; i < MAT_ROWS; i++) p[(MAT_ROWS == 4 ? part * 4 + i : 2 * i + part) * line + own] = c.e[i];
}
#include "packets.cu"
MAT void mat_copy(void *to, const void *from, bool there) { mat_put(to, mat_fetch(from, there)); }
MAT void mat_commit() {}
template <int N> MAT void mat_wait() {}
