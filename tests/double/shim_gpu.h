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
#define __syncthreads() ENGINE_BARRIER()
#define __threadfence() ((void)0)

#define INFINITY (__builtin_inff())
#define NAN (__builtin_nanf(""))

#define ENGINE_MATHS(X) X(fabs) X(sqrt) X(floor) X(ceil) X(trunc) X(rint)
#define X(name)                                                                      \
    static inline float name##f(float x) { return __builtin_##name##f(x); }           \
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
