/* shim_gpu.h — CUDA C and HIP C, as far as kernels are rendered in them, in terms of shim.h. */

#define threadIdx (engine_here->item)
#define blockIdx (engine_here->group)
#define blockDim (engine_here->items)
#define gridDim (engine_here->groups)
#define warpSize ((int)engine_here->warp)

#define __global__ __attribute__((visibility("hidden")))
#define __device__
#define __constant__
#define __forceinline__ inline
#define __noinline__
#define __shared__ ENGINE_WORKGROUP
#define __launch_bounds__(...)
#define workgroup_memory (engine_here->dynamic)
#define __syncthreads() ENGINE_BARRIER()
#define __threadfence() ((void)0)

#define INFINITY (__builtin_inff())
#define NAN (__builtin_nanf(""))

#define ENGINE_MATHS(X) X(fabs) X(sqrt) X(floor) X(ceil) X(trunc) X(rint)
#define X(name)                                                             \
    static inline float name##f(float x) { return __builtin_##name##f(x); } \
    static inline double name(double x) { return __builtin_##name(x); }
ENGINE_MATHS(X)
#undef X
static inline float fmodf(float x, float y) { return __builtin_fmodf(x, y); }
static inline double fmod(double x, double y) { return __builtin_fmod(x, y); }
static inline float copysignf(float x, float y) { return __builtin_copysignf(x, y); }
static inline double copysign(double x, double y) { return __builtin_copysign(x, y); }
static inline float fmaf(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
static inline double fma(double x, double y, double z) { return __builtin_fma(x, y, z); }

template <class To, class From> static inline To engine_bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "bits of the same number");
    To to;
    __builtin_memcpy(&to, &from, sizeof to);
    return to;
}
static inline float __int_as_float(int x) { return engine_bits<float>(x); }
static inline int __float_as_int(float x) { return engine_bits<int>(x); }
static inline float __uint_as_float(unsigned x) { return engine_bits<float>(x); }
static inline unsigned __float_as_uint(float x) { return engine_bits<unsigned>(x); }
static inline double __longlong_as_double(long long x) { return engine_bits<double>(x); }
static inline long long __double_as_longlong(double x) { return engine_bits<long long>(x); }

/* Rounded to nearest, never contracted. */
static inline float __fadd_rn(float x, float y) { return x + y; }
static inline float __fsub_rn(float x, float y) { return x - y; }
static inline float __fmul_rn(float x, float y) { return x * y; }
static inline float __fdiv_rn(float x, float y) { return x / y; }
static inline float __fsqrt_rn(float x) { return __builtin_sqrtf(x); }
static inline float __fmaf_rn(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
static inline double __dadd_rn(double x, double y) { return x + y; }
static inline double __dsub_rn(double x, double y) { return x - y; }
static inline double __dmul_rn(double x, double y) { return x * y; }
static inline double __ddiv_rn(double x, double y) { return x / y; }
static inline double __dsqrt_rn(double x) { return __builtin_sqrt(x); }
static inline double __fma_rn(double x, double y, double z) { return __builtin_fma(x, y, z); }

/* ---- matrix units ------------------------------------------------------------------------------------------------ */

/* What a subgroup's items do together: each puts down what it has, all wait, and each reads what others put down. Two
 * sets of places in turn, so one barrier is enough; it is the whole workgroup's, for in kernels of ours all subgroups
 * come to it. The tables of which item has which element are those of the vendors' manuals: PTX ISA (ldmatrix,
 * mma.m16n8k16) and AMD's of V_MFMA_F32_16X16X16 and V_WMMA_F32_16X16X16. */
struct engine_hand {
    unsigned e[16];
    const unsigned short *p;
};
static engine_hand engine_hands[2][1024];
static unsigned char engine_turns[1024];
static inline const engine_hand *engine_show(const engine_hand &mine) {
    const unsigned me = engine_here->linear, lanes = engine_here->warp, turn = engine_turns[me] ^= 1;
    engine_hands[turn][me] = mine;
    ENGINE_BARRIER();
    return engine_hands[turn] + me / lanes * lanes;
}
static inline unsigned engine_lane() { return engine_here->linear % engine_here->warp; }

static inline float engine_half(unsigned short h, bool brain) {
    const unsigned sign = (unsigned)(h >> 15) << 31, e = h >> 10 & 31, m = h & 1023;
    if (brain) return engine_bits<float>((unsigned)h << 16);
    if (e == 31) return engine_bits<float>(sign | 0x7f800000u | m << 13);
    const float size = e ? engine_bits<float>((e + 112) << 23 | m << 13) : (float)m * 5.9604644775390625e-8f;
    return engine_bits<float>(engine_bits<unsigned>(size) | sign);
}
/* The i-th of the elements that lie in words. */
static inline float engine_element(const unsigned *e, int i, bool brain) {
    return engine_half((unsigned short)(e[i / 2] >> i % 2 * 16), brain);
}

static inline void engine_ldmatrix(unsigned *e, const void *p, bool turned) {
    engine_hand mine = {};
    if ((__UINTPTR_TYPE__)p % 16) __builtin_trap();
    mine.p = (const unsigned short *)p;
    const engine_hand *all = engine_show(mine);
    const unsigned lane = engine_lane(), line = lane / 4, two = lane % 4 * 2;
    for (int i = 0; i < 4; i++) {
        unsigned short low, high;
        low = turned ? all[8 * i + two].p[line] : all[8 * i + line].p[two];
        high = turned ? all[8 * i + two + 1].p[line] : all[8 * i + line].p[two + 1];
        e[i] = low | (unsigned)high << 16;
    }
}
static inline void ptx_ldmatrix_x4(unsigned *e, const void *p) { engine_ldmatrix(e, p, false); }
static inline void ptx_ldmatrix_x4_trans(unsigned *e, const void *p) { engine_ldmatrix(e, p, true); }

/* c[row][column] += a[row][k] b[k][column]: item 4 g + t has rows g and g + 8 of a, k in 2t, 2t + 1 and 8 more; column
 * g of b at these k; columns 2t and 2t + 1 of c. */
static inline void engine_mma(float *c, const unsigned *a, const unsigned *b, bool brain) {
    engine_hand mine = {};
    for (int i = 0; i < 4; i++)
        mine.e[i] = a[i];
    mine.e[4] = b[0];
    mine.e[5] = b[1];
    const engine_hand *all = engine_show(mine);
    const int lane = (int)engine_lane();
    for (int i = 0; i < 4; i++) {
        const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        for (int k = 0; k < 16; k++) {
            const int t = k % 8 / 2, place = k / 8 * 2 + k % 2; /* a's words: halves of (row, k) 00 10 01 11 */
            const float x = engine_element(all[row % 8 * 4 + t].e + row / 8 + k / 8 * 2, k % 2, brain);
            const float y = engine_element(all[column * 4 + t].e + 4, place, brain);
            c[i] = __builtin_fmaf(x, y, c[i]);
        }
    }
}
static inline void ptx_mma_f16(float *c, const unsigned *a, const unsigned *b) { engine_mma(c, a, b, false); }
static inline void ptx_mma_bf16(float *c, const unsigned *a, const unsigned *b) { engine_mma(c, a, b, true); }

/* m16n8k8 of numbers with 10 bits of fraction: item 4 g + t has rows g and g + 8 of a at k = t and t + 4, and column g
 * of b there. */
static inline unsigned ptx_tf32(float x) { return (engine_bits<unsigned>(x) + 0x1000u) & ~0x1fffu; }
static inline void ptx_mma_tf32(float *c, const unsigned *a, const unsigned *b) {
    engine_hand mine = {};
    for (int i = 0; i < 6; i++) {
        mine.e[i] = i < 4 ? a[i] : b[i - 4];
        if (mine.e[i] & 0x1fff) __builtin_trap();
    }
    const engine_hand *all = engine_show(mine);
    const int lane = (int)engine_lane();
    for (int i = 0; i < 4; i++) {
        const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        for (int k = 0; k < 8; k++) {
            const unsigned x = all[row % 8 * 4 + k % 4].e[row / 8 + k / 4 * 2];
            const unsigned y = all[column * 4 + k % 4].e[4 + k / 4];
            c[i] = __builtin_fmaf(engine_bits<float>(x), engine_bits<float>(y), c[i]);
        }
    }
}

/* Item l has row l % 16 of a and column l % 16 of b: of 64 items four elements of k, of 32 all, each twice. */
template <class S, class V> static inline V engine_amd(S a, S b, V c, bool brain) {
    enum { K = sizeof(S) / 2, ROWS = sizeof(V) / 4 };
    engine_hand mine = {};
    __builtin_memcpy(mine.e, &a, sizeof a);
    __builtin_memcpy(mine.e + 8, &b, sizeof b);
    const engine_hand *all = engine_show(mine);
    const int lane = (int)engine_lane(), own = lane % 16, part = lane / 16;
    if (K == 16 && __builtin_memcmp(all[own].e, all[own + 16].e, 64)) __builtin_trap();
    for (int i = 0; i < ROWS; i++) {
        const int row = ROWS == 4 ? part * 4 + i : 2 * i + part;
        for (int k = 0; k < 16; k++) {
            const int from = K == 4 ? k / 4 * 16 : 0;
            const float x = engine_element(all[from + row].e, k % K, brain);
            const float y = engine_element(all[from + own].e + 8, k % K, brain);
            c[i] = __builtin_fmaf(x, y, c[i]);
        }
    }
    return c;
}
template <class S, class V> static inline V amd_mma_f16(S a, S b, V c) { return engine_amd(a, b, c, false); }
template <class S, class V> static inline V amd_mma_bf16(S a, S b, V c) { return engine_amd(a, b, c, true); }

/* Late copies happen when they are waited for; until then the place has NaN. */
enum { ENGINE_LATE = 256 };
struct engine_late {
    void *to;
    unsigned e[4], batch;
};
static engine_late engine_lates[1024][ENGINE_LATE];
static unsigned engine_late_count[1024], engine_batches[1024];
static inline void ptx_cp_async_16(void *to, const void *from, int bytes) {
    const unsigned me = engine_here->linear, n = engine_late_count[me]++;
    if (n >= ENGINE_LATE || (__UINTPTR_TYPE__)to % 16 || (bytes && (__UINTPTR_TYPE__)from % 16)) __builtin_trap();
    engine_late *l = &engine_lates[me][n];
    *l = {to, {0, 0, 0, 0}, engine_batches[me]};
    if (bytes) __builtin_memcpy(l->e, from, 16);
    __builtin_memset(to, 0xff, 16);
}
static inline void ptx_cp_async_commit() { engine_batches[engine_here->linear]++; }
template <int N> static inline void ptx_cp_async_wait() {
    const unsigned me = engine_here->linear;
    unsigned left = 0;
    for (unsigned i = 0; i < engine_late_count[me]; i++) {
        const engine_late l = engine_lates[me][i];
        if (engine_batches[me] - l.batch > N)
            __builtin_memcpy(l.to, l.e, 16);
        else
            engine_lates[me][left++] = l;
    }
    engine_late_count[me] = left;
}

/* wgmma, as PTX ISA has it for sm_90a: both factors in workgroup memory, found by descriptors without swizzling. It is
 * done when it is waited for, by each item for its own elements of the sums, out of what stands there then. Its sums
 * may be another instruction's between a wait and the next fence. */
enum { ENGINE_WGMMAS = 64, ENGINE_BROUGHT = 227 << 10 };
struct engine_wgmma {
    float *c;
    engine_u64 a, b;
    int columns;
    bool brain, turned_a, turned_b;
    unsigned batch;
};
static engine_wgmma engine_wgmmas[1024][ENGINE_WGMMAS];
static unsigned engine_wgmma_count[1024], engine_wgmma_batches[1024];
static bool engine_fenced[1024];

static inline unsigned ptx_shared(const void *p) {
    const engine_u64 at = (engine_u64)((const engine_u8 *)p - engine_here->dynamic);
    if (at >= ENGINE_BROUGHT || at % 16) __builtin_trap();
    return (unsigned)at;
}
/* Element (across, k) of the factor with descriptor d: squares of 8 × 16 bytes, the second distance apart across and
 * the first one along k; inside, lines of 16 bytes go along k, or across. */
static inline float engine_factor(engine_u64 d, bool turned, bool brain, unsigned across, unsigned k) {
    const unsigned down = turned ? k % 8 : across % 8, along = turned ? across % 8 : k % 8;
    const unsigned at = (unsigned)(d & 0x3fff) * 16 + (unsigned)(d >> 16 & 0x3fff) * 16 * (k / 8) +
                        (unsigned)(d >> 32 & 0x3fff) * 16 * (across / 8) + down * 16 + along * 2;
    if (d & 0xffffc000c000c000ull || at + 2 > ENGINE_BROUGHT) __builtin_trap();
    return engine_half(*(const unsigned short *)(engine_here->dynamic + at), brain);
}
static inline void engine_multiply(const engine_wgmma &w) {
    const unsigned me = engine_here->linear % 128, row = me / 32 * 16 + me % 32 / 4, column = me % 4 * 2;
    for (int k = 0; k < 16; k++) {
        const float x[2] = {engine_factor(w.a, w.turned_a, w.brain, row, k),
                            engine_factor(w.a, w.turned_a, w.brain, row + 8, k)};
        for (int i = 0; i < w.columns / 2; i += 4)
            for (int right = 0; right < 2; right++) {
                const float y = engine_factor(w.b, w.turned_b, w.brain, (unsigned)(i * 2) + column + right, k);
                w.c[i + right] = __builtin_fmaf(x[0], y, w.c[i + right]);
                w.c[i + 2 + right] = __builtin_fmaf(x[1], y, w.c[i + 2 + right]);
            }
    }
}
static inline void engine_give(const engine_wgmma &w) {
    const unsigned me = engine_here->linear, n = engine_wgmma_count[me]++;
    if (n >= ENGINE_WGMMAS || !engine_fenced[me]) __builtin_trap();
    engine_wgmmas[me][n] = w;
    engine_wgmmas[me][n].batch = engine_wgmma_batches[me];
}
#define ENGINE_WGMMA(columns, type, brain)                                                                            \
    template <int TA, int TB> static inline void ptx_wgmma_##columns##_##type(float *c, engine_u64 a, engine_u64 b) { \
        engine_give({c, a, b, columns, brain, TA == 1, TB == 1, 0});                                                  \
    }
ENGINE_WGMMA(256, f16, false)
ENGINE_WGMMA(256, bf16, true)
ENGINE_WGMMA(128, f16, false)
ENGINE_WGMMA(128, bf16, true)
static inline void ptx_wgmma_fence() { engine_fenced[engine_here->linear] = true; }
static inline void ptx_wgmma_commit() { engine_wgmma_batches[engine_here->linear]++; }
template <int N> static inline void ptx_wgmma_wait() {
    const unsigned me = engine_here->linear;
    unsigned left = 0;
    for (unsigned i = 0; i < engine_wgmma_count[me]; i++) {
        const engine_wgmma w = engine_wgmmas[me][i];
        if (engine_wgmma_batches[me] - w.batch > N)
            engine_multiply(w);
        else
            engine_wgmmas[me][left++] = w;
    }
    engine_wgmma_count[me] = left;
    engine_fenced[me] = false;
}
static inline void ptx_publish() {}
static inline void ptx_hold(float &) {}
