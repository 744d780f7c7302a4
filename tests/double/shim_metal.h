/* shim_metal.h — the Metal shading language, as far as kernels are rendered in it, in terms of C++.
 *
 * For running it stands behind shim.h: all address spaces are one, and workgroup memory is the engine's section.
 *
 * With METAL_STRICT, for clang, it stands alone, and nothing runs: the address spaces are three different ones, so
 * that a pointer without its qualifier, or from one into another, is an error, as it is for Apple's compiler. What is
 * `thread` there has none here: tests/kernels/test_msl.c looks at those pointers as text. */

#ifdef METAL_STRICT
#define device __attribute__((address_space(1)))
#define constant const __attribute__((address_space(2)))
#define threadgroup static __attribute__((address_space(3)))
#define METAL_BARRIER() ((void)0)
#else
#define device
#define constant const
#define threadgroup ENGINE_WORKGROUP
#define METAL_BARRIER() ENGINE_BARRIER()
#endif
#define thread

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;

struct uint3 {
    uint x, y, z;
};

template <class To, class From> static inline To as_type(From from) {
    static_assert(sizeof(To) == sizeof(From), "bits of the same number");
    To to;
    __builtin_memcpy(&to, &from, sizeof to);
    return to;
}

namespace metal {
namespace precise {
static inline float sqrt(float x) { return __builtin_sqrtf(x); }
} // namespace precise
static inline float fabs(float x) { return __builtin_fabsf(x); }
static inline float floor(float x) { return __builtin_floorf(x); }
static inline float ceil(float x) { return __builtin_ceilf(x); }
static inline float trunc(float x) { return __builtin_truncf(x); }
static inline float rint(float x) { return __builtin_rintf(x); }
static inline float fmod(float x, float y) { return __builtin_fmodf(x, y); }
static inline float copysign(float x, float y) { return __builtin_copysignf(x, y); }
static inline float fma(float x, float y, float z) { return __builtin_fmaf(x, y, z); }

/* Flags that are joined by |, as bits of a set. */
enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };
static constexpr mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(int(a) | int(b)); }
} // namespace metal

#ifndef METAL_STRICT
/* ---- matrices of 8×8 --------------------------------------------------------------------------------------------- */

#define MAT_LOCAL
struct alignas(16) uint4 {
    uint e[4];
    uint4() = default;
    uint4(uint a, uint b, uint c, uint d) : e{a, b, c, d} {}
};
struct ulong2 {
    ulong x, y;
    ulong2(ulong a, ulong b) : x(a), y(b) {}
};
struct half {
    ushort bits;
    operator float() const {
        const uint sign = (uint)(bits >> 15) << 31, e = bits >> 10 & 31, m = bits & 1023;
        if (e == 31) return as_type<float>(sign | 0x7f800000u | m << 13);
        const float size = e ? as_type<float>((e + 112) << 23 | m << 13) : (float)m * 5.9604644775390625e-8f;
        return as_type<float>(as_type<uint>(size) | sign);
    }
};

/* How a simdgroup's items share one is Apple's secret; here item l has two neighbours in row l / 4. */
static inline uint metal_lane() { return engine_here->linear % engine_here->warp; }
template <class T, int R, int C> struct simdgroup_matrix {
    T e[2];
    simdgroup_matrix() = default;
    explicit simdgroup_matrix(T x) : e{x, x} {}
};
template <class T>
static inline void simdgroup_load(simdgroup_matrix<T, 8, 8> &m, const T *p, ulong line, ulong2 origin, bool turned) {
    const ulong row = metal_lane() / 4, column = metal_lane() % 4 * 2;
    p += origin.y * line + origin.x;
    for (ulong i = 0; i < 2; i++)
        m.e[i] = turned ? p[(column + i) * line + row] : p[row * line + column + i];
}
static inline void simdgroup_store(const simdgroup_matrix<float, 8, 8> &m, float *p, ulong line) {
    for (ulong i = 0; i < 2; i++)
        p[metal_lane() / 4 * line + metal_lane() % 4 * 2 + i] = m.e[i];
}

/* Each puts down what it has, all wait, and each reads; two sets of places in turn, so one barrier is enough. */
struct metal_hand {
    float a[2], b[2];
};
static metal_hand metal_hands[2][1024];
static uchar metal_turns[1024];
template <class T>
static inline void simdgroup_multiply_accumulate(simdgroup_matrix<float, 8, 8> &d, const simdgroup_matrix<T, 8, 8> &a,
                                                 const simdgroup_matrix<T, 8, 8> &b,
                                                 const simdgroup_matrix<float, 8, 8> &c) {
    const uint me = engine_here->linear, turn = metal_turns[me] ^= 1, row = metal_lane() / 4;
    metal_hands[turn][me] = {{(float)a.e[0], (float)a.e[1]}, {(float)b.e[0], (float)b.e[1]}};
    ENGINE_BARRIER();
    const metal_hand *all = metal_hands[turn] + me / engine_here->warp * engine_here->warp;
    for (int i = 0; i < 2; i++) {
        float sum = c.e[i];
        for (uint k = 0; k < 8; k++)
            sum = __builtin_fmaf(all[row * 4 + k / 2].a[k % 2], all[k * 4 + metal_lane() % 4].b[i], sum);
        d.e[i] = sum;
    }
}
#endif

/* In the caller's line, which tells barriers apart. */
#define threadgroup_barrier(flags) METAL_BARRIER()

#ifndef METAL_STRICT
/* A binding: what is there, as whatever the kernel takes it for. */
struct metal_binding {
    void *address;
    template <class T> operator T *() const { return (T *)address; }
};
static inline uint3 metal_triple(engine_triple t) { return {t.x, t.y, t.z}; }
#endif
