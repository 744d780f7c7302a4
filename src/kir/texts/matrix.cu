/* matrix.cu — matrices in CUDA C (kir/render_c.c).
 *
 * ldmatrix gives item i of each eight the i-th row of an 8×8 square: those of two squares below each other, and of two
 * beside them (`down`), or the other way round. With .trans it hands out columns. So all four kinds are one. */
#define MAT static __device__ inline __attribute__((always_inline))
#ifdef __CUDA_ARCH__
MAT unsigned ptx_shared(const void *p) {
    unsigned long long at;
    asm("cvta.to.shared.u64 %0, %1;" : "=l"(at) : "l"(p));
    return (unsigned)at;
}
#define PTX_LDMATRIX(name, how) \
    MAT void name(unsigned *e, const void *p) { \
        asm volatile("ldmatrix.sync.aligned.m8n8.x4" how ".shared.b16 {%0, %1, %2, %3}, [%4];" \
                     : "=r"(e[0]), "=r"(e[1]), "=r"(e[2]), "=r"(e[3]) : "r"(ptx_shared(p))); \
    }
PTX_LDMATRIX(ptx_ldmatrix_x4, "")
PTX_LDMATRIX(ptx_ldmatrix_x4_trans, ".trans")
#define PTX_MMA(name, type) \
    MAT void name(float *c, const unsigned *a, const unsigned *b) { \
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 {%0, %1, %2, %3}, " \
                     "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1])); \
    }
PTX_MMA(ptx_mma_f16, "f16")
PTX_MMA(ptx_mma_bf16, "bf16")
MAT void ptx_mma_tf32(float *c, const unsigned *a, const unsigned *b) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                 "{%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
MAT unsigned ptx_tf32(float x) {
    unsigned r;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(x));
    return r;
}
MAT void ptx_cp_async_16(void *to, const void *from, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"(ptx_shared(to)), "l"(from), "r"(bytes) : "memory");
}
MAT void ptx_cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> MAT void ptx_cp_async_wait() { asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory"); }
#endif
struct mat_c { float e[8]; };
template <int B> struct mat_factor { unsigned e[4]; };
typedef mat_factor<0> mat_f16;
typedef mat_factor<1> mat_bf16;
struct __attribute__((aligned(16))) mat_packet { unsigned e[4]; };
MAT void mat_zero(mat_c &c) {
#pragma unroll
    for (int i = 0; i < 8; i++) c.e[i] = 0.0f;
}
template <int KIND, int B> MAT void mat_load(mat_factor<B> &f, const unsigned short *p, int line) {
    const int lane = threadIdx.x & 31, low = lane & 7, one = lane >> 3 & 1, two = lane >> 4;
    const bool down = KIND == 2 || KIND == 1;
    p += (low + 8 * (down ? one : two)) * line + 8 * (down ? two : one);
    if (KIND & 2) ptx_ldmatrix_x4(f.e, p);
    else ptx_ldmatrix_x4_trans(f.e, p);
}
MAT void mat_mul(mat_c &c, const mat_f16 &a, const mat_f16 &b) {
    ptx_mma_f16(c.e, a.e, b.e);
    ptx_mma_f16(c.e + 4, a.e, b.e + 2);
}
MAT void mat_mul(mat_c &c, const mat_bf16 &a, const mat_bf16 &b) {
    ptx_mma_bf16(c.e, a.e, b.e);
    ptx_mma_bf16(c.e + 4, a.e, b.e + 2);
}
struct mat_tf32 { unsigned e[8]; };
template <int KIND> MAT void mat_load(mat_tf32 &f, const float *p, int line) {
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int across = (lane >> 2) + 8 * (KIND & 1 ? i >> 2 : i & 1);
        const int k = (lane & 3) + (KIND & 1 ? 4 * (i & 1) + 8 * (i >> 1 & 1) : 4 * (i >> 1 & 1) + 8 * (i >> 2));
        f.e[i] = ptx_tf32(KIND & 2 ? p[across * line + k] : p[k * line + across]);
    }
}
MAT void mat_mul(mat_c &c, const mat_tf32 &a, const mat_tf32 &b) {
#pragma unroll
    for (int i = 0; i < 4; i++) ptx_mma_tf32(c.e + 4 * (i & 1), a.e + 4 * (i >> 1), b.e + 4 * (i & 1) + 2 * (i >> 1));
}
MAT void mat_store(float *p, int line, const mat_c &c) {
    const int lane = threadIdx.x & 31;
    p += (lane >> 2) * line + (lane & 3) * 2;
#pragma unroll
    for (int i = 0; i < 8; i++) p[(i >> 1 & 1) * 8 * line + (i >> 2) * 8 + (i & 1)] = c.e[i];
}
#include "packets.cu"
MAT void mat_copy(void *to, const void *from, bool there) { ptx_cp_async_16(to, from, there ? 16 : 0); }
MAT void mat_commit() { ptx_cp_async_commit(); }
template <int N> MAT void mat_wait() { ptx_cp_async_wait<N>(); }
