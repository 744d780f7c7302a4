/* shim_metal.h — the Metal shading language, as far as kernels are rendered in it, in terms of C++.
 *
 * For running it stands behind shim.h: all address spaces are one, and workgroup memory is the engine's section.
 *
 * With METAL_STRICT, for clang, it stands alone, and nothing runs: the address spaces are three different ones, so
 * that a pointer without its qualifier, or from one into another, is an error, as it is for Apple's compiler. What is
 * `thread` there has none here: tests/test_msl.c looks at those pointers as text. */

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
