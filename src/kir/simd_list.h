/* simd_list.h — which routine of simd.c is which entry of kir_simd_table; part of simd.c.
 *
 * ALL_ROWS is the list of all that this instruction set has, each as AT(field, routine): simd.c defines AT twice, for
 * where and for what. Each instruction set lists what it does faster than the one below it:
 *   base     everything, but no two operations in one pass on x86-64, where it is only for old processors;
 *   AVX2     floats and conversions of them; of integers what indices, masks and the columns of reductions are made of.
 *            Machine code does most programs there, so what is rare, or waits for memory or for itself, is base's: no
 *            scans, no moves but of 4 and 8 bytes, no reductions but sums and floats' maxima, no comparisons of 64-bit
 *            words, single elements beside integers in sums and products alone, and of two operations in one pass
 *            those that programs have most;
 *   AVX-512  what machine code (render_x64.c) leaves to the VM (functions, random numbers, places of extremes, columns,
 *            turned squares), and what programs have most where there is no machine code. */
#ifndef KIR_SIMD_LIST_H
#define KIR_SIMD_LIST_H

#define ROW(OP, op, TYPE, t) AT(unary[KIR_##OP][KIR_##TYPE], op##_##t)
#define ROW_ROUND(OP, op, TYPE, t) AT(round[KIR_##OP][KIR_##TYPE], op##_##t)
#define ROW_VV(OP, op, TYPE, t) AT(binary[KIR_VV][KIR_##OP][KIR_##TYPE], op##_vv_##t)
#define ROW_VS(OP, op, TYPE, t) AT(binary[KIR_VS][KIR_##OP][KIR_##TYPE], op##_vs_##t)
#define ROW_SV(OP, op, TYPE, t) AT(binary[KIR_SV][KIR_##OP][KIR_##TYPE], op##_sv_##t)
#define ROW_CAST(FROM, from, TO, to) AT(cast[KIR_##FROM][KIR_##TO], cast_##from##_##to)

// clang-format off
/* The signed routine under the unsigned type of the same width. */
#define UNSIGNED_SHAPE(OP, op, SHAPE, shape)                   \
    AT(binary[KIR_##SHAPE][KIR_##OP][KIR_U32], op##_##shape##_i32) \
    AT(binary[KIR_##SHAPE][KIR_##OP][KIR_U64], op##_##shape##_i64)
#define UNSIGNED_EVEN(OP, op) UNSIGNED_SHAPE(OP, op, VV, vv) UNSIGNED_SHAPE(OP, op, VS, vs)

#define UNSIGNED_UNARY                                                            \
    AT(unary[KIR_NEG][KIR_U32], neg_i32) AT(unary[KIR_NEG][KIR_U64], neg_i64)     \
    AT(unary[KIR_ABS][KIR_U32], copy_32) AT(unary[KIR_ABS][KIR_U64], copy_64)
#define UNSIGNED_BINARY                                                           \
    UNSIGNED_EVEN(ADD, add) UNSIGNED_EVEN(MUL, mul) UNSIGNED_EVEN(SUB, sub)       \
    UNSIGNED_SHAPE(SUB, sub, SV, sv)                                              \
    UNSIGNED_EVEN(AND, and) UNSIGNED_EVEN(OR, or) UNSIGNED_EVEN(XOR, xor)         \
    UNSIGNED_SHAPE(SHL, shl, VV, vv)                                              \
    AT(binary[KIR_VV][KIR_EQ][KIR_U32], eq_vv_i32) AT(binary[KIR_VS][KIR_EQ][KIR_U32], eq_vs_i32)
#define ROWS_F32(field, f) AT(field[KIR_F32], f##_f32)
#define ROWS_FLOATS(field, f) ROWS_F32(field, f) AT(field[KIR_F64], f##_f64)
#define ROWS_SIGNLESS(field, f)                                                   \
    ROWS_FLOATS(field, f) AT(field[KIR_I32], f##_i32) AT(field[KIR_I64], f##_i64) \
    AT(field[KIR_U32], f##_i32) AT(field[KIR_U64], f##_i64)
#define ROWS_SIGNED(field, f)                                                     \
    ROWS_FLOATS(field, f) AT(field[KIR_I32], f##_i32) AT(field[KIR_I64], f##_i64) \
    AT(field[KIR_U32], f##_u32) AT(field[KIR_U64], f##_u64) AT(field[KIR_BOOL], f##_b8)
#define ROWS_REDUCE(f)                                                                      \
    ROWS_SIGNLESS(f[KIR_SUM], f##_SUM) ROWS_SIGNLESS(f[KIR_PROD], f##_PROD)                 \
    ROWS_SIGNED(f[KIR_RMAX], f##_RMAX) ROWS_SIGNED(f[KIR_RMIN], f##_RMIN)
#define ROWS_ARG(ROWS_OF, f) ROWS_OF(f[0], f##_max) ROWS_OF(f[1], f##_min)

#define ROWS_FUSED_RSUB(F, S)                                     \
    AT(fused[KIR_1_##F][KIR_2_##S][1][0], fused_##F##_##S##_sv)   \
    AT(fused[KIR_1_##F][KIR_2_##S][1][1], fused_##F##_##S##_ss)
#define ROWS_FUSED_BOTH(F, S)                                     \
    AT(fused[KIR_1_##F][KIR_2_##S][0][0], fused_##F##_##S##_vv)   \
    AT(fused[KIR_1_##F][KIR_2_##S][0][1], fused_##F##_##S##_vs) ROWS_FUSED_RSUB(F, S)
#define ROWS_CHOOSE_SHAPE(i, op, SHAPE, shape)                                                                    \
    AT(choose[i][SHAPE][0][0], choose_##op##_##shape##_vv) AT(choose[i][SHAPE][0][1], choose_##op##_##shape##_vs) \
    AT(choose[i][SHAPE][1][0], choose_##op##_##shape##_sv) AT(choose[i][SHAPE][1][1], choose_##op##_##shape##_ss)
#define ROWS_CHOOSE(i, op)                                                                      \
    ROWS_CHOOSE_SHAPE(i, op, KIR_VV, vv) ROWS_CHOOSE_SHAPE(i, op, KIR_VS, vs)                   \
    ROWS_CHOOSE_SHAPE(i, op, KIR_SV, sv)
#define ROWS_JOINED                                                                                       \
    FUSED_LIST(ROWS_FUSED_BOTH) SECOND_LIST(ROWS_FUSED_RSUB, RSUB) AT(rows_of_products, rows_product_f32)
/* The pairs that programs have most. */
#define ROWS_MOST_FUSED                                                                                   \
    ROWS_FUSED_BOTH(MUL, ADD) ROWS_FUSED_BOTH(MUL, MUL) ROWS_FUSED_BOTH(ADD, MAX) ROWS_FUSED_BOTH(ADD, MUL) \
    ROWS_FUSED_BOTH(SUB, MUL) ROWS_FUSED_BOTH(MUL, MAX) ROWS_FUSED_BOTH(ADD, RDIV)
#define ROWS_CHOICES ROWS_CHOOSE(0, eq) ROWS_CHOOSE(1, lt) ROWS_CHOOSE(2, le)
#define ROWS_SEQUENTIAL                                                                                   \
    SEQUENTIAL_LIST(ROW_VV) ROWS_REDUCE(scan) ROWS_ARG(ROWS_SIGNED, arg) ROWS_ARG(ROWS_SIGNED, arg_columns)

#define ROWS_WIDTHS(f) AT(f[0], f##_uint8) AT(f[1], f##_uint16) AT(f[2], f##_uint32) AT(f[3], f##_uint64)

/* What every list below AVX-512's has. */
#define MOST_ROWS                                                                                                \
    PLAIN_UNARY_LIST(ROW) TRIGONOMETRIC_LIST(ROW) ROUND_LIST(ROW_ROUND)                                          \
    ROWS_FLOATS(fma[0], fma_vvv) ROWS_FLOATS(fma[2], fma_vsv) ROWS_FLOATS(fma[4], fma_vvs)                       \
    ROWS_FLOATS(fma[6], fma_vss)                                                                                 \
    AT(select[0][0], select_vv_b8) AT(select[0][2], select_vv_u32) AT(select[2][2], select_sv_u32)               \
    AT(select[4][2], select_vs_u32) AT(select[6][2], select_ss_u32) AT(philox[1], philox_sv)                     \
    AT(load[TN_F16], load_f16) AT(load[TN_BF16], load_bf16) AT(load[TN_I8], load_i8) AT(load[TN_U8], load_u8)    \
    AT(load[TN_I16], load_i16) AT(load[TN_U16], load_u16)                                                        \
    AT(store[TN_F16], store_f16) AT(store[TN_BF16], store_bf16) AT(store[TN_I8], store_8)                        \
    AT(store[TN_U8], store_8) AT(store[TN_I16], store_16) AT(store[TN_U16], store_16) AT(ramp, ramp)

/* The rest, but two operations in one pass. */
#define OTHER_ROWS                                                                                               \
    UNSIGNED_UNARY KIR_CAST_LIST(ROW_CAST) EVEN_LIST(ROW_VV) EVEN_LIST(ROW_VS) ODD_LIST(ROW_VV) ODD_LIST(ROW_VS) \
    ODD_LIST(ROW_SV) PAIRED_LIST(ROW_VV) EVEN_COMPARE_LIST(ROW_VV) EVEN_COMPARE_LIST(ROW_VS)                     \
    ODD_COMPARE_LIST(ROW_VV) ODD_COMPARE_LIST(ROW_VS) ODD_COMPARE_LIST(ROW_SV) PAIRED_COMPARE_LIST(ROW_VV)       \
    UNSIGNED_BINARY AT(philox[0], philox_vv) ROWS_REDUCE(lanes) ROWS_REDUCE(fold) ROWS_REDUCE(rows)              \
    ROWS_SIGNLESS(chain, chain) ROWS_WIDTHS(copy) ROWS_WIDTHS(gather) ROWS_WIDTHS(scatter)                       \
    ROWS_WIDTHS(load_masked) ROWS_WIDTHS(store_masked)                                                           \
    LONG_COMPARE_LIST(ROW_VV) LONG_COMPARE_LIST(ROW_VS) LONG_COMPARE_LIST(ROW_SV) LONG_PAIRED_COMPARE_LIST(ROW_VV) \
    AT(binary[KIR_VV][KIR_EQ][KIR_U64], eq_vv_i64) AT(binary[KIR_VS][KIR_EQ][KIR_U64], eq_vs_i64)                \
    AT(binary[KIR_SV][KIR_EQ][KIR_U64], eq_sv_i64)                                                               \
    AT(select[0][3], select_vv_u64) AT(select[2][3], select_sv_u64) AT(select[4][3], select_vs_u64)              \
    AT(select[6][3], select_ss_u64)

#if defined(__AVX512F__)
#define F32_SHAPES(X) X(ADD, add, F32, f32) X(SUB, sub, F32, f32) X(MUL, mul, F32, f32) X(MAX, max, F32, f32)
#define ALL_ROWS                                                                                                 \
    ROW(SQRT, sqrt, F32, f32) ROW(EXP, exp, F32, f32) ROW(LOG, log, F32, f32) ROW(SIN, sin, F32, f32)            \
    ROW(COS, cos, F32, f32) ROW(TANH, tanh, F32, f32) ROW(ERF, erf, F32, f32) ROW_CAST(U32, u32, F32, f32)       \
    F32_SHAPES(ROW_VV) F32_SHAPES(ROW_VS) ROW_SV(SUB, sub, F32, f32) ROW_SV(MAX, max, F32, f32)                  \
    ROW_VV(MIN, min, F32, f32) ROW_VV(DIV, div, F32, f32)                                                        \
    ROWS_F32(fma[0], fma_vvv) ROWS_F32(fma[2], fma_vsv) ROWS_F32(fma[4], fma_vvs) ROWS_F32(fma[6], fma_vss)      \
    ROWS_MOST_FUSED AT(select[0][2], select_vv_u32)                                                              \
    AT(select[2][2], select_sv_u32) AT(select[4][2], select_vs_u32) AT(select[6][2], select_ss_u32)              \
    AT(load[TN_F16], load_f16) AT(load[TN_BF16], load_bf16) AT(store[TN_F16], store_f16)                         \
    AT(store[TN_BF16], store_bf16)                                                                               \
    AT(philox[1], philox_sv) ROWS_F32(lanes[KIR_SUM], lanes_SUM)                        \
    ROWS_F32(rows[KIR_SUM], rows_SUM) ROWS_F32(lanes[KIR_RMAX], lanes_RMAX) ROWS_F32(rows[KIR_RMAX], rows_RMAX)  \
    AT(rows_of_products, rows_product_f32) ROWS_ARG(ROWS_F32, arg) ROWS_ARG(ROWS_F32, arg_columns)               \
    AT(copy[2], copy_uint32)
#elif defined(__AVX2__)
/* All of floats; of integers what indices and the columns of reductions are made of. */
#define FLOAT_EVEN(X) EACH_FLOAT(X, ADD, add) EACH_FLOAT(X, MUL, mul)
#define FLOAT_ODD(X)                                                                                             \
    EACH_FLOAT(X, SUB, sub) EACH_FLOAT(X, DIV, div) EACH_FLOAT(X, MIN, min) EACH_FLOAT(X, MAX, max)
#define WHOLE_EVEN(X) EACH_SIGNED(X, ADD, add) EACH_SIGNED(X, MUL, mul)
#define WHOLE_PAIRS(X)                                                                                           \
    EACH_SIGNED(X, SUB, sub) EACH_SIGNED(X, MIN, min) EACH_SIGNED(X, MAX, max) EACH_SIGNED(X, AND, and)          \
    EACH_SIGNED(X, OR, or) EACH_SIGNED(X, XOR, xor) X(EQ, eq, I32, i32) X(LT, lt, I32, i32) X(LE, le, I32, i32)  \
    X(MIN, min, U32, u32) X(MAX, max, U32, u32) X(SHL, shl, I32, i32) X(SHR, shr, I32, i32) X(SHR, shr, U32, u32) \
    X(DIV, div, I32, i32) X(MOD, mod, I32, i32) BOOLEAN(X, AND, and) BOOLEAN(X, OR, or) BOOLEAN(X, XOR, xor)
#define F32_ODD_COMPARISONS(X) X(LT, lt, F32, f32) X(LE, le, F32, f32)
#define CASTS                                                                                                    \
    ROW_CAST(F32, f32, F64, f64) ROW_CAST(F64, f64, F32, f32) ROW_CAST(F32, f32, I32, i32)                       \
    ROW_CAST(I32, i32, F32, f32) ROW_CAST(I32, i32, F64, f64) ROW_CAST(U32, u32, F32, f32)                       \
    ROW_CAST(F32, f32, BOOL, b8) ROW_CAST(BOOL, b8, F32, f32) ROW_CAST(I32, i32, BOOL, b8)                       \
    ROW_CAST(BOOL, b8, I32, i32) ROW_CAST(BOOL, b8, I64, i64) ROW_CAST(I32, i32, I64, i64)                       \
    ROW_CAST(U32, u32, I64, i64) ROW_CAST(I64, i64, I32, i32)
#define ALL_ROWS                                                                                                 \
    MOST_ROWS CASTS FLOAT_EVEN(ROW_VV) FLOAT_EVEN(ROW_VS) FLOAT_ODD(ROW_VV) FLOAT_ODD(ROW_VS) FLOAT_ODD(ROW_SV)  \
    WHOLE_EVEN(ROW_VV) WHOLE_EVEN(ROW_VS) WHOLE_PAIRS(ROW_VV) ROW_VV(EQ, eq, F32, f32) ROW_VS(EQ, eq, F32, f32)  \
    F32_ODD_COMPARISONS(ROW_VV) F32_ODD_COMPARISONS(ROW_VS) F32_ODD_COMPARISONS(ROW_SV) ROWS_MOST_FUSED          \
    ROWS_FLOATS(lanes[KIR_SUM], lanes_SUM) ROWS_FLOATS(rows[KIR_SUM], rows_SUM)                                  \
    AT(lanes[KIR_SUM][KIR_I64], lanes_SUM_i64) AT(rows[KIR_SUM][KIR_I64], rows_SUM_i64)                          \
    ROWS_FLOATS(lanes[KIR_RMAX], lanes_RMAX) ROWS_FLOATS(rows[KIR_RMAX], rows_RMAX)                              \
    AT(rows_of_products, rows_product_f32) ROWS_FLOATS(chain, chain)                                             \
    ROWS_ARG(ROWS_F32, arg) ROWS_ARG(ROWS_F32, arg_columns) AT(copy[2], copy_uint32) AT(copy[3], copy_uint64)    \
    AT(gather[2], gather_uint32)
#elif defined(__x86_64__)
#define ALL_ROWS MOST_ROWS OTHER_ROWS ROWS_SEQUENTIAL
#else
#define ALL_ROWS MOST_ROWS OTHER_ROWS ROWS_SEQUENTIAL ROWS_JOINED ROWS_CHOICES
#endif
// clang-format on

#endif
