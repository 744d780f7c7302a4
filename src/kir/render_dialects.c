/* render_dialects.c — how each language spells what render_c.c writes: one row a language.
 *
 * A further language of C's family is one more row. Texts may use the words of render_text.h and, of the kernel being
 * written: $entry its name, $items of a workgroup, $words in its block of parameters, $p that block, $ix the type of
 * indices; of the buffer at hand $n its number, $type its elements' type, $const ("const " unless it is written), $base
 * the number of its base, $slot its number among the global ones, which are $buffers, $size its elements if it is
 * local. */
#include "kir/render_text.h"
#include "trunnion/backend.h"

#define SAME_NAME(name) [WORD_##name##_f32] = #name, [WORD_##name##_f64] = #name
#define C_NAME(name) [WORD_##name##_f32] = #name "f", [WORD_##name##_f64] = #name

const kir_dialect kir_dialect_opencl = {
    .name = "OpenCL C",
    .words =
        {
            [WORD_f32] = "float",
            [WORD_f64] = "double",
            [WORD_i32] = "int",
            [WORD_i64] = "long",
            [WORD_u32] = "uint",
            [WORD_u64] = "ulong",
            [WORD_i16] = "short",
            [WORD_u16] = "ushort",
            [WORD_i8] = "char",
            [WORD_u8] = "uchar",
            [WORD_bool] = "bool",
            [WORD_function] = "static inline",
            [WORD_table] = "__constant const",
            [WORD_constant] = "__constant const",
            [WORD_global] = "__global ",
            [WORD_local] = "__local ",
            [WORD_l] = "L",
            [WORD_ul] = "UL",
            [WORD_inf] = "INFINITY",
            [WORD_nan] = "NAN",
            [WORD_barrier] = "barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);",
            [WORD_group] = "(get_group_id(0) + get_num_groups(0) * (get_group_id(1) + get_num_groups(1) * "
                           "get_group_id(2)))",
            [WORD_item] = "get_local_id(0)",
            [WORD_bits_f32] = "as_uint",
            [WORD_from_bits_f32] = "as_float",
            [WORD_bits_f64] = "as_ulong",
            [WORD_from_bits_f64] = "as_double",
            SAME_NAME(fabs),
            SAME_NAME(sqrt),
            SAME_NAME(floor),
            SAME_NAME(ceil),
            SAME_NAME(trunc),
            SAME_NAME(rint),
            SAME_NAME(fmod),
            SAME_NAME(fma),
            SAME_NAME(copysign),
        },
    .head = "#pragma OPENCL FP_CONTRACT OFF\n",
    .head_f64 = "#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n",
    .params_type = "typedef struct { $i64 w[$words]; } params_$entry;\n",
    .open = "__kernel __attribute__((reqd_work_group_size($items, 1, 1)))\nvoid $entry(",
    .buffer = "__global $const$u8 *a$n, ",
    .by_value = "const params_$entry p) {\n",
    .by_address = "__global const $i64 *restrict p) {\n",
    .bind = "    __global $const$type *b$n = (__global $const$type *)(a$n + $p[$base]);\n",
    .points = "    const $u64 begin = $group * $items;\n"
              "    if (begin + $item >= ($u64)count) return;\n"
              "    const $ix start = ($ix)begin, item = ($ix)$item;\n",
    .items = "    const $u64 workgroup = $group;\n"
             "    if (workgroup >= ($u64)count) return;\n"
             "    const $ix group = ($ix)workgroup, item = ($ix)$item;\n",
    .close = "}\n",
    .params_by_value = "p.w",
    .params_by_address = "p",
    .groups = true,
    .choice = "#0 ? #1 : #2",
    .word = "$p[$n]",
    .array = "$type s$n[$size];\n",
    .local = "    $local$type b$n[$size];\n",
};

/* Every pointer names its address space, and nothing converts between them. The words' binding is that behind the
 * buffers'. What Apple's specification promises with safe mathematics: sums, products, fma, quotients and square roots
 * are rounded correctly, but subnormal numbers may be zero; so tn_caps.exact is false there. Its `precise` functions
 * are named where there is a choice. Not compiled by Apple's compiler so far: see the tests' double. */
const kir_dialect kir_dialect_msl = {
    .name = "the Metal shading language",
    .words =
        {
            [WORD_f32] = "float",
            [WORD_i32] = "int",
            [WORD_i64] = "long",
            [WORD_u32] = "uint",
            [WORD_u64] = "ulong",
            [WORD_i16] = "short",
            [WORD_u16] = "ushort",
            [WORD_i8] = "char",
            [WORD_u8] = "uchar",
            [WORD_bool] = "bool",
            [WORD_function] = "static inline",
            [WORD_table] = "constant",
            [WORD_constant] = "constant",
            [WORD_global] = "device ",
            [WORD_local] = "threadgroup ",
            [WORD_own] = "thread ",
            [WORD_l] = "L",
            [WORD_ul] = "UL",
            [WORD_inf] = "as_type<float>(0x7f800000U)",
            [WORD_nan] = "as_type<float>(0x7fc00000U)",
            [WORD_barrier] = "threadgroup_barrier(mem_flags::mem_threadgroup | mem_flags::mem_device);",
            [WORD_group] = "((ulong)at.x + (ulong)across.x * ((ulong)at.y + (ulong)across.y * (ulong)at.z))",
            [WORD_item] = "me",
            [WORD_bits_f32] = "as_type<uint>",
            [WORD_from_bits_f32] = "as_type<float>",
            [WORD_fabs_f32] = "fabs",
            [WORD_sqrt_f32] = "precise::sqrt",
            [WORD_floor_f32] = "floor",
            [WORD_ceil_f32] = "ceil",
            [WORD_trunc_f32] = "trunc",
            [WORD_rint_f32] = "rint",
            [WORD_fmod_f32] = "fmod",
            [WORD_fma_f32] = "fma",
            [WORD_copysign_f32] = "copysign",
        },
    .head = "#include <metal_stdlib>\n"
            "#pragma METAL fp math_mode(safe)\n"
            "#pragma METAL fp contract(off)\n"
            "#pragma STDC FP_CONTRACT OFF\n"
            "using namespace metal;\n",
    .open = "[[kernel, max_total_threads_per_threadgroup($items)]] void $entry(\n    ",
    .buffer = "device $const$u8 *a$n [[buffer($slot)]], ",
    .by_address = "constant $i64 *p [[buffer($buffers)]],\n    uint3 at [[threadgroup_position_in_grid]], "
                  "uint3 across [[threadgroups_per_grid]],\n    uint me [[thread_index_in_threadgroup]]) {\n",
    .bind = "    device $const$type *b$n = (device $const$type *)(a$n + $p[$base]);\n",
    .points = "    const $u64 begin = $group * $items;\n"
              "    if (begin + $item >= ($u64)count) return;\n"
              "    const $ix start = ($ix)begin, item = ($ix)$item;\n",
    .items = "    const $u64 workgroup = $group;\n"
             "    if (workgroup >= ($u64)count) return;\n"
             "    const $ix group = ($ix)workgroup, item = ($ix)$item;\n",
    .close = "}\n",
    .params_by_address = "p",
    .groups = true,
    .choice = "#0 ? #1 : #2",
    .word = "$p[$n]",
    .array = "$type s$n[$size];\n",
    .local = "    $local$type b$n[$size]$aligned;\n",
    .by_address_always = true,
    .matrices = kir_matrix_msl,
};

const kir_dialect kir_dialect_c = {
    .name = "C",
    .words =
        {
            [WORD_f32] = "float",
            [WORD_f64] = "double",
            [WORD_i32] = "int32_t",
            [WORD_i64] = "int64_t",
            [WORD_u32] = "uint32_t",
            [WORD_u64] = "uint64_t",
            [WORD_i16] = "int16_t",
            [WORD_u16] = "uint16_t",
            [WORD_i8] = "int8_t",
            [WORD_u8] = "uint8_t",
            [WORD_bool] = "bool",
            [WORD_function] = "static inline",
            [WORD_table] = "const",
            [WORD_constant] = "const",
            [WORD_global] = "",
            [WORD_l] = "LL",
            [WORD_ul] = "ULL",
            [WORD_inf] = "INFINITY",
            [WORD_nan] = "NAN",
            [WORD_bits_f32] = "bits_f32",
            [WORD_from_bits_f32] = "from_bits_f32",
            [WORD_bits_f64] = "bits_f64",
            [WORD_from_bits_f64] = "from_bits_f64",
            C_NAME(fabs),
            C_NAME(sqrt),
            C_NAME(floor),
            C_NAME(ceil),
            C_NAME(trunc),
            C_NAME(rint),
            C_NAME(fmod),
            C_NAME(fma),
            C_NAME(copysign),
        },
    .head = "/* to be compiled with -ffp-contract=off */\n"
            "#include <math.h>\n#include <stdbool.h>\n#include <stdint.h>\n#include <string.h>\n\n"
            "static inline uint32_t bits_f32(float x) { uint32_t u; memcpy(&u, &x, 4); return u; }\n"
            "static inline float from_bits_f32(uint32_t u) { float x; memcpy(&x, &u, 4); return x; }\n",
    .head_f64 = "static inline uint64_t bits_f64(double x) { uint64_t u; memcpy(&u, &x, 8); return u; }\n"
                "static inline double from_bits_f64(uint64_t u) { double x; memcpy(&x, &u, 8); return x; }\n",
    .params_type = "",
    .open = "void $entry(",
    .buffer = "",
    .by_value = "const void *params, void *const *a, uint64_t first, uint64_t last) {\n"
                "    const int64_t *p = params;\n",
    .by_address = "const void *params, void *const *a, uint64_t first, uint64_t last) {\n"
                  "    const int64_t *p = params;\n",
    .bind = "    $const$type *b$n = ($const$type *)((char *)a[$n] + $p[$base]);\n",
    .points =
        "    for ($u64 group = first; group < last; group++) {\n"
        "        const $ix start = ($ix)(group * $items), most = count - start < $items ? count - start : $items;\n"
        "        for ($ix item = 0; item < most; item++) {\n",
    .close = "        }\n    }\n}\n",
    .params_by_value = "p",
    .params_by_address = "p",
    .loops = true,
    .choice = "#0 ? #1 : #2",
    .word = "$p[$n]",
    .array = "$type s$n[$size];\n",
    .local = "",
};

/* CUDA C and HIP C. Both compilers know their functions without any header, and get told to round as IEEE 754 has it
 * (drivers/cuda.c): no contraction, division and square root correct to the last bit, subnormal numbers kept. */
#define GPU_WORDS                                                                                                    \
    [WORD_f32] = "float", [WORD_f64] = "double", [WORD_i32] = "int", [WORD_i64] = "long long",                       \
    [WORD_u32] = "unsigned", [WORD_u64] = "unsigned long long", [WORD_i16] = "short", [WORD_u16] = "unsigned short", \
    [WORD_i8] = "signed char", [WORD_u8] = "unsigned char", [WORD_bool] = "bool",                                    \
    [WORD_function] = "static __device__ inline", [WORD_table] = "__device__ const", [WORD_constant] = "const",      \
    [WORD_global] = "", [WORD_local] = "__shared__ ", [WORD_l] = "LL", [WORD_ul] = "ULL",                            \
    [WORD_inf] = "__uint_as_float(0x7f800000U)", [WORD_nan] = "__uint_as_float(0x7fc00000U)",                        \
    [WORD_barrier] = "__syncthreads();",                                                                             \
    [WORD_group] = "(blockIdx.x + (unsigned long long)gridDim.x * (blockIdx.y + (unsigned long long)gridDim.y "      \
                   "* blockIdx.z))",                                                                                 \
    [WORD_item] = "threadIdx.x", [WORD_bits_f32] = "__float_as_uint", [WORD_from_bits_f32] = "__uint_as_float",      \
    [WORD_bits_f64] = "(unsigned long long)__double_as_longlong", [WORD_from_bits_f64] = "__longlong_as_double",     \
    C_NAME(fabs), C_NAME(sqrt), C_NAME(floor), C_NAME(ceil), C_NAME(trunc), C_NAME(rint), C_NAME(fmod), C_NAME(fma), \
    C_NAME(copysign)

#define GPU_TEXTS                                                                                              \
    .head = "", .head_f64 = "", .params_type = "struct params_$entry { $i64 w[$words]; };\n",                  \
    .open = "extern \"C\" __global__ void __launch_bounds__($items) $entry(", .buffer = "$const$u8 *a$n, ",    \
    .by_value = "const params_$entry p) {\n", .by_address = "const $i64 *__restrict__ p) {\n",                 \
    .bind = "    $const$type *b$n = ($const$type *)(a$n + $p[$base]);\n",                                      \
    .points = "    const $u64 begin = $group * $items;\n"                                                      \
              "    if (begin + $item >= ($u64)count) return;\n"                                                \
              "    const $ix start = ($ix)begin, item = ($ix)$item;\n",                                        \
    .items = "    const $u64 workgroup = $group;\n"                                                            \
             "    if (workgroup >= ($u64)count) return;\n"                                                     \
             "    const $ix group = ($ix)workgroup, item = ($ix)$item;\n",                                     \
    .close = "}\n", .params_by_value = "p.w", .params_by_address = "p", .most_by_value = 4096, .groups = true, \
    .choice = "#0 ? #1 : #2", .word = "$p[$n]", .array = "$type s$n[$size];\n",                                \
    .local = "    $local$type b$n[$size]$aligned;\n"

const kir_dialect kir_dialect_cuda = {
    .name = "CUDA C",
    .most_declared = TN_CUDA_DECLARED,
    .dynamic_shared = "#ifdef __CUDA_ARCH__\n"
                      "    extern __shared__ __attribute__((aligned(16))) unsigned char workgroup_memory[];\n"
                      "#endif\n",
    .local_dynamic_shared = "    $type *const b$n = ($type *)(workgroup_memory + $base);\n",
    .matrices = kir_matrix_cuda,
    .wide = kir_wide_cuda,
    .short_f32 = true,
    .words = {GPU_WORDS},
    GPU_TEXTS,
    .halves_if = "__CUDA_ARCH__",
    .from_half = "static __device__ inline float kir_from_f16(unsigned short h) {\n"
                 "    float x;\n"
                 "    asm(\"cvt.f32.f16 %0, %1;\" : \"=f\"(x) : \"h\"(h));\n"
                 "    return x;\n"
                 "}\n",
    .to_half = "static __device__ inline unsigned short kir_to_f16(float x) {\n"
               "    unsigned short h;\n"
               "    asm(\"cvt.rn.f16.f32 %0, %1;\" : \"=h\"(h) : \"f\"(x));\n"
               "    return h;\n"
               "}\n",
};

const kir_dialect kir_dialect_hip = {
    .name = "HIP C",
    .matrices = kir_matrix_hip,
    .words = {GPU_WORDS},
    GPU_TEXTS,
    .halves_if = "__AMDGCN__",
    .from_half = "static __device__ inline float kir_from_f16(unsigned short h) {\n"
                 "    return (float)__builtin_bit_cast(_Float16, h);\n"
                 "}\n",
    .to_half = "static __device__ inline unsigned short kir_to_f16(float x) {\n"
               "    return __builtin_bit_cast(unsigned short, (_Float16)x);\n"
               "}\n",
};
