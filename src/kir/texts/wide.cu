/* wide.cu — wide matrices by wgmma (PTX for sm_90a), behind matrix.cu.
 *
 * Their factors come out of workgroup memory, told of by a descriptor: their address, and two distances, all in units
 * of 16 bytes. Without swizzling squares of 8 packets, one below the other, stand apart as those say: along k and
 * across, with lines that go across, packet by packet, or the other way round. What items have written must be
 * published to it; before a batch its sums must be no other instruction's. Item t of each 32 has of 16 rows those of
 * t / 4 and 8 more, of each 8 columns those of 2 (t mod 4) and the next one. */
#ifdef __CUDA_ARCH__
#define P10(t) "%" #t "0, %" #t "1, %" #t "2, %" #t "3, %" #t "4, %" #t "5, %" #t "6, %" #t "7, %" #t "8, %" #t "9, "
#define P60 P10() P10(1) P10(2) P10(3) P10(4) P10(5)
#define S4(i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
#define S16(i) S4(i), S4(i + 4), S4(i + 8), S4(i + 12)
#define S64(i) S16(i), S16(i + 16), S16(i + 32), S16(i + 48)
#define PTX_WGMMA(name, columns, type, places, sums, x, y, one, ta, tb) \
    template <int TA, int TB> MAT void name(float *c, unsigned long long a, unsigned long long b) { \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " one ", 0;\n" \
                     "wgmma.mma_async.sync.aligned.m64n" columns "k16.f32." type "." type \
                     " {" places "}, " \
                     x ", " y ", p, 1, 1, " ta ", " tb ";\n}" \
                     : sums : "l"(a), "l"(b), "r"(1), "n"(TA), "n"(TB)); \
    }
#define PTX_WGMMAS(type) \
    PTX_WGMMA(ptx_wgmma_256_##type, "256", #type, P60 P10(6) P10(7) P10(8) P10(9) P10(10) P10(11) \
              "%120, %121, %122, %123, %124, %125, %126, %127", S64(0) MAT_AND S64(64), \
              "%128", "%129", "%130", "%131", "%132") \
    PTX_WGMMA(ptx_wgmma_128_##type, "128", #type, P60 "%60, %61, %62, %63", S64(0), \
              "%64", "%65", "%66", "%67", "%68")
#define MAT_AND ,
PTX_WGMMAS(f16)
PTX_WGMMAS(bf16)
MAT void ptx_wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
MAT void ptx_wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> MAT void ptx_wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(N) : "memory"); }
MAT void ptx_publish() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
MAT void ptx_hold(float &x) { asm volatile("" : "+f"(x) :: "memory"); }
#endif
template <int N> struct mat_wide { float e[N / 2]; };
template <int B, int T> struct mat_place { unsigned long long at; };
template <int N> MAT void mat_zero(mat_wide<N> &c) {
#pragma unroll
    for (int i = 0; i < N / 2; i++) c.e[i] = 0.0f;
}
template <int N> MAT void mat_hold(mat_wide<N> &c) {
#pragma unroll
    for (int i = 0; i < N / 2; i++) ptx_hold(c.e[i]);
}
template <int B, int T> MAT mat_place<B, T> mat_factor_at(const unsigned short *p, int pitch) {
    const unsigned long long lines = 128 >> 4, packets = pitch >> 3;
    return {(ptx_shared(p) & 0x3ffff) >> 4 | (T ? lines : packets) << 16 | (T ? packets : lines) << 32};
}
#define MAT_WIDE(columns, type, brain) \
    template <int TA, int TB> \
    MAT void mat_mul(mat_wide<columns> &c, mat_place<brain, TA> a, mat_place<brain, TB> b) { \
        ptx_wgmma_##columns##_##type<TA, TB>(c.e, a.at, b.at); \
    }
MAT_WIDE(256, f16, 0)
MAT_WIDE(256, bf16, 1)
MAT_WIDE(128, f16, 0)
MAT_WIDE(128, bf16, 1)
template <int FROM, int N> MAT void mat_store(float *p, int line, const mat_wide<N> &c) {
    const int lane = threadIdx.x & 31;
    p += ((threadIdx.x >> 5 & 3) * 16 + (lane >> 2)) * line + (lane & 3) * 2;
#pragma unroll
    for (int i = 0; i < 8; i++) p[(i >> 1 & 1) * 8 * line + (i >> 2) * 8 + (i & 1)] = c.e[FROM / 2 + i];
}
MAT void mat_publish() { ptx_publish(); }
