/* renderings.h — what clang needs to know of CUDA C and HIP C to compile rendered kernels without the vendors' headers.
 * Only for checks that compile: its fmod is not the exact one. */
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))

struct triple {
    unsigned x, y, z;
};
#ifdef __HIP__
#define OF_ITEM(axis) ((unsigned)__builtin_amdgcn_workitem_id_##axis())
#define OF_GROUP(axis) ((unsigned)__builtin_amdgcn_workgroup_id_##axis())
#define OF_GRID(axis) ((unsigned)(__builtin_amdgcn_grid_size_##axis() / __builtin_amdgcn_workgroup_size_##axis()))
#define __syncthreads __builtin_amdgcn_s_barrier
#define __launch_bounds__(n) __attribute__((amdgpu_flat_work_group_size(1, n)))
#else
#define __launch_bounds__(n) __attribute__((launch_bounds(n)))
#define OF_ITEM(axis) ((unsigned)__nvvm_read_ptx_sreg_tid_##axis())
#define OF_GROUP(axis) ((unsigned)__nvvm_read_ptx_sreg_ctaid_##axis())
#define OF_GRID(axis) ((unsigned)__nvvm_read_ptx_sreg_nctaid_##axis())
#endif
#define threadIdx (triple{OF_ITEM(x), OF_ITEM(y), OF_ITEM(z)})
#define blockIdx (triple{OF_GROUP(x), OF_GROUP(y), OF_GROUP(z)})
#define gridDim (triple{OF_GRID(x), OF_GRID(y), OF_GRID(z)})

#define HERE static __device__ inline
#define ONE(name)                                                  \
    HERE float name##f(float x) { return __builtin_##name##f(x); } \
    HERE double name(double x) { return __builtin_##name(x); }
#define TWO(name, f32, f64)                              \
    HERE float name##f(float x, float y) { return f32; } \
    HERE double name(double x, double y) { return f64; }
ONE(fabs)
ONE(sqrt)
ONE(floor)
ONE(ceil)
ONE(trunc)
ONE(rint)
TWO(copysign, __builtin_copysignf(x, y), __builtin_copysign(x, y))
TWO(fmod, x - y * truncf(x / y), x - y * trunc(x / y))
HERE float fmaf(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
HERE double fma(double x, double y, double z) { return __builtin_fma(x, y, z); }
HERE unsigned __float_as_uint(float x) { return __builtin_bit_cast(unsigned, x); }
HERE float __uint_as_float(unsigned x) { return __builtin_bit_cast(float, x); }
HERE long long __double_as_longlong(double x) { return __builtin_bit_cast(long long, x); }
HERE double __longlong_as_double(long long x) { return __builtin_bit_cast(double, x); }
