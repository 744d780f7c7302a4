/* simd.c — the tile VM's routines as plain loops, compiled once per instruction set (TN_ISA_SUFFIX) into one table.
 *
 * Each loop applies a scalar function of kir_math.h; the compiler vectorizes it. The functions spell out every fused
 * multiply-add and contraction is off, so all tables and the interpreter compute the same bits. The order of the sums,
 * which also decides the bits, is spelled out here. */
#include "kir/simd.h"
#include "kir/kir_math.h"

#if defined(__F16C__) || defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__) && defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)

/* Of the widest vectors, for what does not leave them to the compiler. */
#if defined(__AVX512F__)
enum { VECTOR_BYTES = 64 };
#elif defined(__AVX2__)
enum { VECTOR_BYTES = 32 };
#else
enum { VECTOR_BYTES = 16 };
#endif

/* EACH: iterations of the following loop are independent; output and input are the same memory or disjoint. ROLLED:
 * unrolling would take space and save nothing, nor would vector code for the last few elements. */
#if defined(__clang__)
#define ROLLED _Pragma("clang loop unroll(disable)")
#define UNROLLED _Pragma("clang loop unroll(full)")
#define EACH _Pragma("clang loop vectorize(assume_safety)") for (int64_t i = 0; i < n; i++)
#else
#define ROLLED _Pragma("GCC unroll 1")
#define UNROLLED _Pragma("GCC unroll 16")
#define EACH _Pragma("GCC ivdep") ROLLED for (int64_t i = 0; i < n; i++)
#endif

/* Called from several routines and long enough that copies of it would only fill the instruction cache. */
#define SHARED __attribute__((noinline)) static
#define ALWAYS_INLINE __attribute__((always_inline)) static inline

/* Parameters of a kir_fn. */
#define ARGS_A void *d_, const void *a_, TN_UNUSED const void *b_, TN_UNUSED const void *c_, TN_UNUSED int64_t n

/* ---- element by element ------------------------------------------------------------------------------------------ */

#define UNARY(OP, op, TYPE, t)            \
    static void op##_##t(ARGS_A) {        \
        kir_##t *d = d_;                  \
        const kir_##t *a = a_;            \
        EACH d[i] = kir_##op##_##t(a[i]); \
    }

/* Arguments too far for the quick reduction are rare: one of them sends the tile through the full function. */
#define TRIGONOMETRIC(OP, op, TYPE, t)                                           \
    static void op##_##t(ARGS_A) {                                               \
        kir_##t *d = d_;                                                         \
        const kir_##t *a = a_;                                                   \
        int far = 0;                                                             \
        ROLLED for (int64_t i = 0; i < n; i++) far |= kir_trig_is_far_##t(a[i]); \
        if (far) {                                                               \
            ROLLED for (int64_t i = 0; i < n; i++) d[i] = kir_##op##_##t(a[i]);  \
            return;                                                              \
        }                                                                        \
        EACH d[i] = kir_##op##_near_##t(a[i]);                                   \
    }

/* Integer operations that do not depend on the sign have only a signed version. */
#define EACH_SIGNED(X, OP, op) X(OP, op, I32, i32) X(OP, op, I64, i64)
#define UNSIGNED(X, OP, op) X(OP, op, U32, u32) X(OP, op, U64, u64)
#define BOOLEAN(X, OP, op) X(OP, op, BOOL, b8)
#define LONG(X, OP, op) X(OP, op, I64, i64)
#define EACH_INT KIR_EACH_INT
#define EACH_FLOAT KIR_EACH_FLOAT
#define EACH_SIGNLESS(X, OP, op) EACH_FLOAT(X, OP, op) EACH_SIGNED(X, OP, op)
#define EACH_BUT_LONG(X, OP, op) EACH_FLOAT(X, OP, op) X(OP, op, I32, i32)

// clang-format off
#define PLAIN_UNARY_LIST(X)                                                                     \
    EACH_SIGNLESS(X, NEG, neg) EACH_SIGNLESS(X, ABS, abs) EACH_FLOAT(X, SQRT, sqrt)         \
    EACH_FLOAT(X, EXP, exp) EACH_FLOAT(X, LOG, log) EACH_FLOAT(X, TANH, tanh)       \
    EACH_FLOAT(X, ERF, erf)
// clang-format on
#define ROUND_LIST(X)           \
    EACH_FLOAT(X, FLOOR, floor) \
    EACH_FLOAT(X, CEIL, ceil) EACH_FLOAT(X, TRUNC, trunc) EACH_FLOAT(X, NEAREST_EVEN, nearest)
#define TRIGONOMETRIC_LIST(X) EACH_FLOAT(X, SIN, sin) EACH_FLOAT(X, COS, cos)

PLAIN_UNARY_LIST(UNARY)
ROUND_LIST(UNARY)
TRIGONOMETRIC_LIST(TRIGONOMETRIC)

static void copy_32(ARGS_A) { memmove(d_, a_, (size_t)n * 4); }
static void copy_64(ARGS_A) { memmove(d_, a_, (size_t)n * 8); }

#define CAST(FROM, from, TO, to)                  \
    static void cast_##from##_##to(ARGS_A) {      \
        kir_##to *d = d_;                         \
        const kir_##from *a = a_;                 \
        EACH d[i] = kir_cast_##from##_##to(a[i]); \
    }
KIR_CAST_LIST(CAST)

/* One variant of a binary operation: A and B say how the i-th operand is read. */
#define BINARY_VARIANT(name, fn, r, t, A, B) \
    static void name(ARGS_A) {               \
        kir_##r *d = d_;                     \
        const kir_##t *a = a_, *b = b_;      \
        SINGLE_OR_VECTOR(t, A, B)            \
        EACH d[i] = fn(A, B);                \
    }
#define SINGLE_OR_VECTOR(t, A, B) TN_UNUSED const kir_##t a0 = a[0], b0 = b[0];

#define BINARY_VV(OP, op, TYPE, t) BINARY_VARIANT(op##_vv_##t, kir_##op##_##t, t, t, a[i], b[i])
#define BINARY_VS(OP, op, TYPE, t) BINARY_VARIANT(op##_vs_##t, kir_##op##_##t, t, t, a[i], b0)
#define BINARY_SV(OP, op, TYPE, t) BINARY_VARIANT(op##_sv_##t, kir_##op##_##t, t, t, a0, b[i])
#define COMPARE_VV(OP, op, TYPE, t) BINARY_VARIANT(op##_vv_##t, kir_##op##_##t, b8, t, a[i], b[i])
#define COMPARE_VS(OP, op, TYPE, t) BINARY_VARIANT(op##_vs_##t, kir_##op##_##t, b8, t, a[i], b0)
#define COMPARE_SV(OP, op, TYPE, t) BINARY_VARIANT(op##_sv_##t, kir_##op##_##t, b8, t, a0, b[i])

/* Operations with variants for single elements: commutative ones, so that the single one is the second operand
 * (bind_make), … */
// clang-format off
#define EVEN_LIST(X)                                                                                         \
    EACH_SIGNLESS(X, ADD, add) EACH_SIGNLESS(X, MUL, mul)                                                    \
    EACH_SIGNED(X, AND, and) EACH_SIGNED(X, OR, or) EACH_SIGNED(X, XOR, xor)
#define ODD_LIST(X)                                                                                          \
    EACH_SIGNLESS(X, SUB, sub) EACH_FLOAT(X, DIV, div) EACH_SIGNLESS(X, MIN, min) EACH_SIGNLESS(X, MAX, max)
// clang-format on
#define EVEN_COMPARE_LIST(X) EACH_BUT_LONG(X, EQ, eq)
#define ODD_COMPARE_LIST(X) EACH_BUT_LONG(X, LT, lt) EACH_BUT_LONG(X, LE, le)
#define LONG_COMPARE_LIST(X) LONG(X, EQ, eq) LONG(X, LT, lt) LONG(X, LE, le)

/* … and those that take vectors only. Vectors have no division of integers, and no remainders. */
#define SEQUENTIAL_LIST(X) EACH_INT(X, DIV, div) EACH_INT(X, MOD, mod) EACH_FLOAT(X, MOD, mod)
// clang-format off
#define PAIRED_LIST(X)                                                                                       \
    UNSIGNED(X, MIN, min) UNSIGNED(X, MAX, max) BOOLEAN(X, MIN, min) BOOLEAN(X, MAX, max)                    \
    BOOLEAN(X, AND, and) BOOLEAN(X, OR, or) BOOLEAN(X, XOR, xor)                                             \
    EACH_SIGNED(X, SHL, shl) EACH_INT(X, SHR, shr)
// clang-format off
#define PAIRED_COMPARE_LIST(X)                                                                               \
    BOOLEAN(X, EQ, eq) X(LT, lt, U32, u32) BOOLEAN(X, LT, lt) X(LE, le, U32, u32) BOOLEAN(X, LE, le)
#define LONG_PAIRED_COMPARE_LIST(X) X(LT, lt, U64, u64) X(LE, le, U64, u64)
// clang-format on
// clang-format on

EVEN_LIST(BINARY_VV)
EVEN_LIST(BINARY_VS)
ODD_LIST(BINARY_VV)
ODD_LIST(BINARY_VS)
ODD_LIST(BINARY_SV)
PAIRED_LIST(BINARY_VV)
SEQUENTIAL_LIST(BINARY_VV)
EVEN_COMPARE_LIST(COMPARE_VV)
EVEN_COMPARE_LIST(COMPARE_VS)
ODD_COMPARE_LIST(COMPARE_VV)
ODD_COMPARE_LIST(COMPARE_VS)
ODD_COMPARE_LIST(COMPARE_SV)
PAIRED_COMPARE_LIST(COMPARE_VV)
LONG_COMPARE_LIST(COMPARE_VV)
LONG_COMPARE_LIST(COMPARE_VS)
LONG_COMPARE_LIST(COMPARE_SV)
LONG_PAIRED_COMPARE_LIST(COMPARE_VV)

#define FMA_VARIANT(t, name, A, B, C)            \
    static void fma_##name##_##t(ARGS_A) {       \
        kir_##t *d = d_;                         \
        const kir_##t *a = a_, *b = b_, *c = c_; \
        SINGLE_OR_VECTOR(t, A, B)                \
        TN_UNUSED const kir_##t c0 = c[0];       \
        EACH d[i] = kir_fma_##t(A, B, C);        \
    }
#define FMA_VARIANTS(t)                   \
    FMA_VARIANT(t, vvv, a[i], b[i], c[i]) \
    FMA_VARIANT(t, vsv, a[i], b0, c[i])   \
    FMA_VARIANT(t, vvs, a[i], b[i], c0)   \
    FMA_VARIANT(t, vss, a[i], b0, c0)
FMA_VARIANTS(f32)
FMA_VARIANTS(f64)

#define SELECT_VARIANT(t, name, B, C)                 \
    static void select_##name##_##t(ARGS_A) {         \
        kir_##t *d = d_;                              \
        const kir_b8 *a = a_;                         \
        const kir_##t *b = b_, *c = c_;               \
        TN_UNUSED const kir_##t b0 = b[0], c0 = c[0]; \
        EACH d[i] = a[i] ? B : C;                     \
    }
#define SELECT_VARIANTS(t)            \
    SELECT_VARIANT(t, vv, b[i], c[i]) \
    SELECT_VARIANT(t, sv, b0, c[i])   \
    SELECT_VARIANT(t, vs, b[i], c0)   \
    SELECT_VARIANT(t, ss, b0, c0)
SELECT_VARIANTS(u32)
SELECT_VARIANTS(u64)
SELECT_VARIANT(b8, vv, b[i], c[i])

static void philox_vv(ARGS_A) {
    uint32_t *d = d_;
    const uint64_t *a = a_, *b = b_;
    ROLLED for (int64_t i = 0; i < n; i++) d[i] = kir_philox_u32(a[i], b[i]); /* the output is narrower: not in place */
}

/* Counters in vectors of 64-bit lanes whose upper halves are arbitrary: products use only the lower ones. */
#if defined(__AVX2__)
enum { COUNTERS = VECTOR_BYTES / 8 };
typedef uint64_t counters __attribute__((vector_size(VECTOR_BYTES)));
typedef uint64_t counters_anywhere __attribute__((vector_size(VECTOR_BYTES), aligned(8), may_alias));
typedef uint32_t numbers_anywhere __attribute__((vector_size(VECTOR_BYTES / 2), aligned(4), may_alias));
#if defined(__AVX512F__)
#define LOWER_PRODUCT(x, y) ((counters)_mm512_mul_epu32((__m512i)(x), _mm512_set1_epi64(y)))
#else
#define LOWER_PRODUCT(x, y) ((counters)_mm256_mul_epu32((__m256i)(x), _mm256_set1_epi64x(y)))
#endif
static int64_t philox_vectors(uint32_t *d, uint64_t key, const uint64_t *counter, int64_t n) {
    int64_t i = 0;
    for (; i + COUNTERS <= n; i += COUNTERS) {
        counters c0 = *(const counters_anywhere *)(const void *)(counter + i), c1 = c0 >> 32, c2 = c0 ^ c0, c3 = c2;
        uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
        UNROLLED for (int round = 0; round < 10; round++) {
            counters p0 = LOWER_PRODUCT(c0, 0xD2511F53), p1 = LOWER_PRODUCT(c2, 0xCD9E8D57);
            c0 = (p1 >> 32) ^ c1 ^ k0;
            c2 = (p0 >> 32) ^ c3 ^ k1;
            c1 = p1;
            c3 = p0;
            k0 += 0x9E3779B9U;
            k1 += 0xBB67AE85U;
        }
        *(numbers_anywhere *)(void *)(d + i) = __builtin_convertvector(c0, numbers_anywhere);
    }
    return i;
}
#endif

static void philox_sv(ARGS_A) {
    uint32_t *d = d_;
    const uint64_t *a = a_, *b = b_;
    const uint64_t key = a[0];
    int64_t i = 0;
#if defined(__AVX2__)
    i = philox_vectors(d, key, b, n);
#endif
    ROLLED for (; i < n; i++) d[i] = kir_philox_u32(key, b[i]);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

#define CONVERT(name, D, S, EXPR) \
    static void name(ARGS_A) {    \
        D *d = d_;                \
        const S *a = a_;          \
        EACH d[i] = EXPR;         \
    }
CONVERT(load_bf16, float, uint16_t, kir_from_bf16(a[i]))
CONVERT(load_i8, int32_t, int8_t, a[i])
CONVERT(load_u8, int32_t, uint8_t, a[i])
CONVERT(load_i16, int32_t, int16_t, a[i])
CONVERT(load_u16, int32_t, uint16_t, a[i])
CONVERT(store_bf16, uint16_t, float, kir_to_bf16(a[i]))
CONVERT(store_8, uint8_t, int32_t, (uint8_t)a[i])
CONVERT(store_16, uint16_t, int32_t, (uint16_t)a[i])

/* Processors convert halves to the same bits (except for which NaN). The elements after the last whole vector are
 * converted in a vector that overlaps it, or padded with zeros. */
#if defined(__AVX512F__)
enum { HALVES = 16 };
static void widen_halves(float *d, const uint16_t *a) {
    _mm512_storeu_ps(d, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)a)));
}
static void narrow_halves(uint16_t *d, const float *a) {
    _mm256_storeu_si256((__m256i *)(void *)d, _mm512_cvtps_ph(_mm512_loadu_ps(a), _MM_FROUND_TO_NEAREST_INT));
}
#elif defined(__F16C__)
enum { HALVES = 8 };
static void widen_halves(float *d, const uint16_t *a) {
    _mm256_storeu_ps(d, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)a)));
}
static void narrow_halves(uint16_t *d, const float *a) {
    _mm_storeu_si128((__m128i *)(void *)d, _mm256_cvtps_ph(_mm256_loadu_ps(a), _MM_FROUND_TO_NEAREST_INT));
}
#elif defined(__aarch64__) && defined(__ARM_NEON)
enum { HALVES = 4 };
static void widen_halves(float *d, const uint16_t *a) { vst1q_f32(d, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(a)))); }
static void narrow_halves(uint16_t *d, const float *a) {
    vst1_u16(d, vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(a))));
}
#else
enum { HALVES = 1 };
static void widen_halves(float *d, const uint16_t *a) { *d = kir_from_f16(*a); }
static void narrow_halves(uint16_t *d, const float *a) { *d = kir_to_f16(*a); }
#endif

/* The elements behind the last whole vector: once more with those before, or padded. */
#define HALVES_OF(name, convert, from, to)                            \
    static void name(ARGS_A) {                                        \
        to *d = d_;                                                   \
        const from *a = a_;                                           \
        int64_t rest = n % HALVES, vectors = n - rest;                \
        for (int64_t i = 0; i < vectors; i += HALVES)                 \
            convert(d + i, a + i);                                    \
        if (rest > 0 && vectors > 0) {                                \
            convert(d + n - HALVES, a + n - HALVES);                  \
        } else if (rest > 0) {                                        \
            from last[HALVES] = {0};                                  \
            to converted[HALVES];                                     \
            memcpy(last, a + vectors, (size_t)rest * sizeof *a);      \
            convert(converted, last);                                 \
            memcpy(d + vectors, converted, (size_t)rest * sizeof *d); \
        }                                                             \
    }
HALVES_OF(load_f16, widen_halves, uint16_t, float)
HALVES_OF(store_f16, narrow_halves, float, uint16_t)

/* A square of 32-bit elements is transposed in rounds, each of which interleaves two vectors: d[i·d_step + j] =
 * s[j·s_step + i], i and j below `side`. */
#define LOWER8(a, b) __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define UPPER8(a, b) __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15)
#define LOWER16(a, b) __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define UPPER16(a, b) __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
#define TURN(side, rounds)                                                                                     \
    typedef uint32_t row_of_##side __attribute__((vector_size(side * 4), aligned(4), may_alias));              \
    static void turn_##side(uint32_t *d, int64_t d_step, const uint32_t *s, int64_t s_step) {                  \
        row_of_##side x[side], y[side];                                                                        \
        UNROLLED for (int k = 0; k < side; k++) x[k] = *(const row_of_##side *)(const void *)(s + k * s_step); \
        UNROLLED for (int round = 0; round < rounds; round++) {                                                \
            UNROLLED for (int k = 0; k < side / 2; k++) {                                                      \
                y[2 * k] = LOWER##side(x[k], x[k + side / 2]);                                                 \
                y[2 * k + 1] = UPPER##side(x[k], x[k + side / 2]);                                             \
            }                                                                                                  \
            UNROLLED for (int k = 0; k < side; k++) x[k] = y[k];                                               \
        }                                                                                                      \
        UNROLLED for (int k = 0; k < side; k++) * (row_of_##side *)(void *)(d + k * d_step) = x[k];            \
    }
TURN(8, 3)
#if defined(__AVX512F__)
TURN(16, 4)
#else
static void turn_16(uint32_t *d, int64_t d_step, const uint32_t *s, int64_t s_step) {
    for (int i = 0; i < 16; i += 8)
        for (int j = 0; j < 16; j += 8)
            turn_8(d + i * d_step + j, d_step, s + j * s_step + i, s_step);
}
#endif
enum { SQUARE = 16, SMALL_SQUARE = 8 };

/* The block with its two sides exchanged. */
static kir_block transposed_block(const kir_block *k) {
    return (kir_block){.d = k->d,
                       .s = k->s,
                       .d_outer = k->d_inner,
                       .d_inner = k->d_outer,
                       .s_outer = k->s_inner,
                       .s_inner = k->s_outer,
                       .outer = k->inner,
                       .inner = k->outer};
}

/* across: the source is contiguous from row to row, the destination within a row. It is done in squares, so that each
 * cache line is used up while it is cached. */
#define MOVES(u)                                                                                                  \
    static void row_##u(u##_t *d, int64_t d_step, const u##_t *s, int64_t s_step, int64_t n) {                    \
        if (d_step == 1 && s_step == 1) {                                                                         \
            memmove(d, s, (size_t)n * sizeof *d);                                                                 \
        } else if (d_step == 1 && s_step == 0) {                                                                  \
            const u##_t x = s[0];                                                                                 \
            EACH d[i] = x;                                                                                        \
        } else if (d_step == 1) {                                                                                 \
            EACH d[i] = s[i * s_step];                                                                            \
        } else {                                                                                                  \
            ROLLED for (int64_t i = 0; i < n; i++) d[i * d_step] = s[i * s_step];                                 \
        }                                                                                                         \
    }                                                                                                             \
    static void rest_##u(u##_t *d, const u##_t *s, const kir_block *k, int64_t rows, int64_t columns) {           \
        for (int64_t i = 0; i < rows; i++) {                                                                      \
            ROLLED for (int64_t j = 0; j < columns; j++) d[i * k->d_outer + j] = s[i + j * k->s_inner];           \
        }                                                                                                         \
    }                                                                                                             \
    static void square_##u(u##_t *d, const u##_t *s, const kir_block *k, int64_t rows, int64_t columns) {         \
        enum { SIDE = SMALL_SQUARE };                                                                             \
        if (sizeof *d != 4) {                                                                                     \
            rest_##u(d, s, k, rows, columns);                                                                     \
        } else if (rows == SQUARE && columns == SQUARE) {                                                         \
            turn_16((uint32_t *)(void *)d, k->d_outer, (const uint32_t *)(const void *)s, k->s_inner);            \
        } else {                                                                                                  \
            int64_t down = rows / SIDE * SIDE, along = columns / SIDE * SIDE;                                     \
            for (int64_t i = 0; i < down; i += SIDE) {                                                            \
                for (int64_t j = 0; j < along; j += SIDE)                                                         \
                    turn_8((uint32_t *)(void *)(d + i * k->d_outer + j), k->d_outer,                              \
                           (const uint32_t *)(const void *)(s + j * k->s_inner + i), k->s_inner);                 \
            }                                                                                                     \
            rest_##u(d + along, s + along * k->s_inner, k, rows, columns - along);                                \
            rest_##u(d + down * k->d_outer, s + down, k, rows - down, along);                                     \
        }                                                                                                         \
    }                                                                                                             \
    static void across_##u(const kir_block *k) {                                                                  \
        for (int64_t row = 0; row < k->outer; row += SQUARE) {                                                    \
            int64_t rows = tn_min64(k->outer - row, SQUARE);                                                      \
            u##_t *d = (u##_t *)k->d + row * k->d_outer;                                                          \
            const u##_t *s = (const u##_t *)k->s + row;                                                           \
            for (int64_t column = 0; column < k->inner; column += SQUARE) {                                       \
                int64_t columns = tn_min64(k->inner - column, SQUARE);                                            \
                square_##u(d + column, s + column * k->s_inner, k, rows, columns);                                \
            }                                                                                                     \
        }                                                                                                         \
    }                                                                                                             \
    /* One row again and again: what is there already is copied along. */                                         \
    static void repeat_##u(const kir_block *k) {                                                                  \
        u##_t *d = k->d;                                                                                          \
        int64_t all = k->outer * k->inner;                                                                        \
        memmove(d, k->s, (size_t)k->inner * sizeof *d);                                                           \
        for (int64_t done = k->inner; done < all; done *= 2) {                                                    \
            memcpy(d + done, d, (size_t)tn_min64(done, all - done) * sizeof *d);                                  \
        }                                                                                                         \
    }                                                                                                             \
    /* Each element of a line `inner` times. */                                                                   \
    static void each_##u(const kir_block *k) {                                                                    \
        u##_t *d = k->d;                                                                                          \
        const u##_t *s = k->s;                                                                                    \
        const int64_t n = k->outer;                                                                               \
        if (k->inner == 2) {                                                                                      \
            EACH d[2 * i] = d[2 * i + 1] = s[i];                                                                  \
        } else if (k->inner == 3) {                                                                               \
            EACH d[3 * i] = d[3 * i + 1] = d[3 * i + 2] = s[i];                                                   \
        } else if (k->inner == 4) {                                                                               \
            EACH d[4 * i] = d[4 * i + 1] = d[4 * i + 2] = d[4 * i + 3] = s[i];                                    \
        } else {                                                                                                  \
            ROLLED for (int64_t i = 0; i < n; i++) {                                                              \
                for (int64_t j = 0; j < k->inner; j++)                                                            \
                    d[i * k->inner + j] = s[i];                                                                   \
            }                                                                                                     \
        }                                                                                                         \
    }                                                                                                             \
    static void rows_##u(const kir_block *k) {                                                                    \
        ROLLED for (int64_t r = 0; r < k->outer; r++) {                                                           \
            row_##u((u##_t *)k->d + r * k->d_outer, k->d_inner, (const u##_t *)k->s + r * k->s_outer, k->s_inner, \
                    k->inner);                                                                                    \
        }                                                                                                         \
    }                                                                                                             \
    static void copy_##u(const kir_block *k) {                                                                    \
        bool rows = k->d_inner == 1 && k->s_inner == 1 && k->d_outer == k->inner;                                 \
        bool stands = k->d_outer == 1 && k->d_inner != 1 && k->inner > 1;                                         \
        kir_block lying = transposed_block(k);                                                                    \
        if (k->inner == 1)                                                                                        \
            rows_##u(&lying);                                                                                     \
        else if (rows && k->s_outer == k->inner)                                                                  \
            row_##u(k->d, 1, k->s, 1, k->outer * k->inner);                                                       \
        else if (rows && k->s_outer == 0 && k->outer > 0)                                                         \
            repeat_##u(k);                                                                                        \
        else if (k->s_outer == 1 && k->s_inner == 0 && k->d_inner == 1 && k->d_outer == k->inner && k->inner < 8) \
            each_##u(k);                                                                                          \
        else if (k->s_outer == 1 && k->d_inner == 1 && k->s_inner != 1 && k->outer > 1)                           \
            across_##u(k);                                                                                        \
        else if (stands && k->s_inner == 1)                                                                       \
            across_##u(&lying);                                                                                   \
        else if (stands)                                                                                          \
            rows_##u(&lying);                                                                                     \
        else                                                                                                      \
            rows_##u(k);                                                                                          \
    }                                                                                                             \
    static void gather_##u(void *d_, const void *s_, const int64_t *index, const uint8_t *mask, int64_t n) {      \
        u##_t *d = d_;                                                                                            \
        const u##_t *s = s_;                                                                                      \
        if (!mask) {                                                                                              \
            EACH d[i] = s[index[i]];                                                                              \
            return;                                                                                               \
        }                                                                                                         \
        ROLLED for (int64_t i = 0; i < n; i++) d[i] = mask[i] ? s[index[i]] : 0;                                  \
    }                                                                                                             \
    static void scatter_##u(void *d_, const void *s_, const int64_t *index, const uint8_t *mask, int64_t n) {     \
        u##_t *d = d_;                                                                                            \
        const u##_t *s = s_;                                                                                      \
        ROLLED for (int64_t i = 0; i < n; i++) {                                                                  \
            if (!mask || mask[i]) d[index[i]] = s[i];                                                             \
        }                                                                                                         \
    }                                                                                                             \
    static void load_masked_##u(void *d_, const void *s_, int64_t stride, const uint8_t *mask, int64_t n) {       \
        u##_t *d = d_;                                                                                            \
        const u##_t *s = s_;                                                                                      \
        ROLLED for (int64_t i = 0; i < n; i++) d[i] = mask[i] ? s[i * stride] : 0;                                \
    }                                                                                                             \
    static void store_masked_##u(void *d_, const void *s_, int64_t stride, const uint8_t *mask, int64_t n) {      \
        u##_t *d = d_;                                                                                            \
        const u##_t *s = s_;                                                                                      \
        ROLLED for (int64_t i = 0; i < n; i++) {                                                                  \
            if (mask[i]) d[i * stride] = s[i];                                                                    \
        }                                                                                                         \
    }
MOVES(uint8)
MOVES(uint16)
MOVES(uint32)
MOVES(uint64)

static void ramp(int64_t *d, int64_t first, int64_t step, int64_t n) { EACH d[i] = first + i * step; }

/* ---- reductions -------------------------------------------------------------------------------------------------- */

/* Lanes stay in registers as vectors: loops over arrays would not be sure to keep them there. */
#define LANE_VECTOR(t, bits)                                                                                    \
    typedef kir_##t vector_##t __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(kir_##t)), may_alias)); \
    typedef bits bits_##t __attribute__((vector_size(VECTOR_BYTES)));                                           \
    ALWAYS_INLINE vector_##t vectors_add_##t(vector_##t a, vector_##t b) { return a + b; }                      \
    ALWAYS_INLINE vector_##t vectors_mul_##t(vector_##t a, vector_##t b) { return a * b; }                      \
    ALWAYS_INLINE vector_##t either_##t(bits_##t which, vector_##t a, vector_##t b) {                           \
        return (vector_##t)((which & (bits_##t)a) | (~which & (bits_##t)b));                                    \
    }                                                                                                           \
    ALWAYS_INLINE vector_##t vectors_max_##t(vector_##t a, vector_##t b) {                                      \
        return either_##t((bits_##t)(a > b) | (bits_##t)(a != a), a, b);                                        \
    }                                                                                                           \
    ALWAYS_INLINE vector_##t vectors_min_##t(vector_##t a, vector_##t b) {                                      \
        return either_##t((bits_##t)(a < b) | (bits_##t)(a != a), a, b);                                        \
    }
LANE_VECTOR(f32, int32_t)
LANE_VECTOR(f64, int64_t)

/* The elements from lane 0 on. */
#define TAKE(OP, op, t)                                                                             \
    ALWAYS_INLINE void take_##OP##_##t(kir_##t *lane, const kir_##t *a, int64_t n) {                \
        enum { WIDE = VECTOR_BYTES / sizeof(kir_##t), VECTORS = KIR_LANES / WIDE };                 \
        vector_##t x[VECTORS], *to = (vector_##t *)(void *)lane;                                    \
        UNROLLED for (int k = 0; k < VECTORS; k++) x[k] = to[k];                                    \
        ROLLED for (; n >= KIR_LANES; n -= KIR_LANES, a += KIR_LANES) {                             \
            UNROLLED for (int k = 0; k < VECTORS; k++) {                                            \
                x[k] = vectors_##op##_##t(x[k], *(const vector_##t *)(const void *)(a + k * WIDE)); \
            }                                                                                       \
        }                                                                                           \
        UNROLLED for (int k = 0; k < VECTORS; k++) to[k] = x[k];                                    \
        ROLLED for (; n >= WIDE; n -= WIDE, a += WIDE, to++) {                                      \
            *to = vectors_##op##_##t(*to, *(const vector_##t *)(const void *)a);                    \
        }                                                                                           \
        lane = (kir_##t *)(void *)to;                                                               \
        ROLLED for (int64_t l = 0; l < n; l++) lane[l] = kir_##op##_##t(lane[l], a[l]);             \
    }

/* `first` is what a lane begins with. Lanes that hold no element are not folded: op(x, first) is x. */
#define FOLD(op, t, half)          \
    for (int l = 0; l < half; l++) \
        lane[l] = kir_##op##_##t(lane[l], lane[l + half]);

#define REDUCTION(OP, op, t, first)                                                             \
    ALWAYS_INLINE kir_##t tree_##OP##_##t(kir_##t *lane, int size) {                            \
        if (size > 32) FOLD(op, t, 32)                                                          \
        if (size > 16) FOLD(op, t, 16)                                                          \
        if (size > 8) FOLD(op, t, 8)                                                            \
        FOLD(op, t, 4)                                                                          \
        FOLD(op, t, 2)                                                                          \
        FOLD(op, t, 1)                                                                          \
        return lane[0];                                                                         \
    }                                                                                           \
    TAKE(OP, op, t)                                                                             \
    static void lanes_##OP##_##t(ARGS_A) {                                                      \
        kir_##t *lane = d_;                                                                     \
        const kir_##t *a = a_;                                                                  \
        for (int64_t at = *(const int64_t *)b_; at % KIR_LANES != 0 && n > 0; at++, a++, n--) { \
            lane[at] = kir_##op##_##t(lane[at], *a);                                            \
        }                                                                                       \
        take_##OP##_##t(lane, a, n);                                                            \
    }                                                                                           \
    SHARED void fold_##OP##_##t(ARGS_A) {                                                       \
        kir_##t lane[KIR_LANES];                                                                \
        memcpy(lane, a_, sizeof lane);                                                          \
        *(kir_##t *)d_ = tree_##OP##_##t(lane, KIR_LANES);                                      \
    }                                                                                           \
    ALWAYS_INLINE kir_##t short_##OP##_##t(const kir_##t *a, int64_t length, int size) {        \
        kir_##t lane[KIR_LANES];                                                                \
        for (int l = 0; l < size; l++)                                                          \
            lane[l] = first;                                                                    \
        for (int64_t l = 0; l < length; l++)                                                    \
            lane[l] = kir_##op##_##t(first, a[l]);                                              \
        return tree_##OP##_##t(lane, size);                                                     \
    }                                                                                           \
    SHARED kir_##t long_##OP##_##t(const kir_##t *a, int64_t length) {                          \
        kir_##t lane[KIR_LANES];                                                                \
        for (int l = 0; l < KIR_LANES; l++)                                                     \
            lane[l] = first;                                                                    \
        take_##OP##_##t(lane, a, length);                                                       \
        return tree_##OP##_##t(lane, KIR_LANES);                                                \
    }                                                                                           \
    static void rows_##OP##_##t(ARGS_A) {                                                       \
        kir_##t *d = d_;                                                                        \
        const kir_##t *a = a_;                                                                  \
        const int64_t length = *(const int64_t *)b_;                                            \
        ROLLED for (int64_t i = 0; i < n; i++, a += length) {                                   \
            d[i] = length == 8    ? short_##OP##_##t(a, 8, 8)                                   \
                   : length <= 16 ? short_##OP##_##t(a, length, 16)                             \
                                  : long_##OP##_##t(a, length);                                 \
        }                                                                                       \
    }
REDUCTION(SUM, add, f32, 0.0f)
REDUCTION(PROD, mul, f32, 1.0f)
REDUCTION(RMAX, max, f32, -INFINITY)
REDUCTION(RMIN, min, f32, INFINITY)
REDUCTION(SUM, add, f64, 0.0)
REDUCTION(PROD, mul, f64, 1.0)
REDUCTION(RMAX, max, f64, -(double)INFINITY)
REDUCTION(RMIN, min, f64, (double)INFINITY)

/* Integers may be taken in any order: one lane does. */
#define WHOLE_REDUCTION(OP, op, t, first)                                                      \
    SHARED kir_##t long_##OP##_##t(const kir_##t *a, int64_t length) {                         \
        kir_##t x = first;                                                                     \
        ROLLED for (int64_t i = 0; i < length; i++) x = kir_##op##_##t(x, a[i]);               \
        return x;                                                                              \
    }                                                                                          \
    static void lanes_##OP##_##t(ARGS_A) {                                                     \
        kir_##t *lane = d_;                                                                    \
        lane[0] = kir_##op##_##t(lane[0], long_##OP##_##t(a_, n));                             \
    }                                                                                          \
    static void fold_##OP##_##t(ARGS_A) { *(kir_##t *)d_ = *(const kir_##t *)a_; }             \
    static void rows_##OP##_##t(ARGS_A) {                                                      \
        kir_##t *d = d_;                                                                       \
        const kir_##t *a = a_;                                                                 \
        const int64_t length = *(const int64_t *)b_;                                           \
        ROLLED for (int64_t i = 0; i < n; i++) d[i] = long_##OP##_##t(a + i * length, length); \
    }
WHOLE_REDUCTION(SUM, add, i32, 0)
WHOLE_REDUCTION(SUM, add, i64, 0)
WHOLE_REDUCTION(PROD, mul, i32, 1)
WHOLE_REDUCTION(PROD, mul, i64, 1)
WHOLE_REDUCTION(RMAX, max, i32, INT32_MIN)
WHOLE_REDUCTION(RMAX, max, i64, INT64_MIN)
WHOLE_REDUCTION(RMAX, max, u32, 0)
WHOLE_REDUCTION(RMAX, max, u64, 0)
WHOLE_REDUCTION(RMAX, max, b8, 0)
WHOLE_REDUCTION(RMIN, min, i32, INT32_MAX)
WHOLE_REDUCTION(RMIN, min, i64, INT64_MAX)
WHOLE_REDUCTION(RMIN, min, u32, UINT32_MAX)
WHOLE_REDUCTION(RMIN, min, u64, UINT64_MAX)
WHOLE_REDUCTION(RMIN, min, b8, 1)

/* The reduction above finds the extreme value and passes a NaN on; the first element equal to it (or the first NaN) is
 * the result. */
#define ARG(name, R, beyond, t)                                                                                   \
    static bool beats_##name##_##t(kir_##t x, kir_##t best) { return best == best && (x != x || x beyond best); } \
    static void arg_##name##_##t(ARGS_A) {                                                                        \
        int64_t *index = d_, first = *(const int64_t *)c_, at = 0;                                                \
        const kir_##t *a = a_;                                                                                    \
        kir_##t *best = (kir_##t *)(uintptr_t)b_;                                                                 \
        if (n == 0) return;                                                                                       \
        kir_##t extreme = long_##R##_##t(a, n);                                                                   \
        if (*index >= 0 && !beats_##name##_##t(extreme, *best)) return;                                           \
        while (at < n - 1 && !(a[at] == extreme || a[at] != a[at]))                                               \
            at++;                                                                                                 \
        *best = a[at];                                                                                            \
        *index = first + at;                                                                                      \
    }                                                                                                             \
    static void arg_columns_##name##_##t(ARGS_A) {                                                                \
        int64_t *index = d_;                                                                                      \
        const int64_t row = *(const int64_t *)c_;                                                                 \
        const kir_##t *a = a_;                                                                                    \
        kir_##t *best = (kir_##t *)(uintptr_t)b_;                                                                 \
        ROLLED for (int64_t i = 0; i < n; i++) {                                                                  \
            bool better = row == 0 || beats_##name##_##t(a[i], best[i]);                                          \
            best[i] = better ? a[i] : best[i];                                                                    \
            index[i] = better ? row : index[i];                                                                   \
        }                                                                                                         \
    }
#define ARG_BOTH(OP, op, TYPE, t) ARG(max, RMAX, >, t) ARG(min, RMIN, <, t)
EACH_FLOAT(ARG_BOTH, ARG, arg)
EACH_INT(ARG_BOTH, ARG, arg)
BOOLEAN(ARG_BOTH, ARG, arg)

#define SCAN(OP, op, t)                                                            \
    static void scan_##OP##_##t(ARGS_A) {                                          \
        kir_##t *d = d_;                                                           \
        const kir_##t *a = a_;                                                     \
        kir_##t *last = (kir_##t *)(uintptr_t)b_;                                  \
        kir_##t x = *last;                                                         \
        ROLLED for (int64_t i = 0; i < n; i++) d[i] = x = kir_##op##_##t(x, a[i]); \
        *last = x;                                                                 \
    }
#define SCAN_TWO(OP, op, TYPE, t) SCAN(SUM, add, t) SCAN(PROD, mul, t)
#define SCAN_EXTREMES(OP, op, TYPE, t) SCAN(RMAX, max, t) SCAN(RMIN, min, t)
EACH_SIGNLESS(SCAN_TWO, SCAN, scan)
EACH_FLOAT(SCAN_EXTREMES, SCAN, scan)
EACH_INT(SCAN_EXTREMES, SCAN, scan)
BOOLEAN(SCAN_EXTREMES, SCAN, scan)

#define STEP_FLOAT(t, a, b, c) kir_fma_##t(a, b, c)
#define STEP_INT(t, a, b, c) kir_add_##t(kir_mul_##t(a, b), c)

/* Four chains at once keep the multiplier busy; the last one stays open, as if they had been computed in order. */
enum { CHAINS = 4 };
#define CHAIN(t, STEP)                                                                                \
    static void close_##t(kir_##t *open, kir_##t *total, int64_t before) {                            \
        *total = before == KIR_KSUM ? *open : kir_add_##t(*total, *open);                             \
        *open = 0;                                                                                    \
    }                                                                                                 \
    static void four_chains_##t(kir_##t *state, const kir_##t *a, const kir_##t *b, int64_t before) { \
        kir_##t x[CHAINS] = {0};                                                                      \
        for (int i = 0; i < KIR_KSUM; i++) {                                                          \
            for (int k = 0; k < CHAINS; k++)                                                          \
                x[k] = STEP(t, a[k * KIR_KSUM + i], b[k * KIR_KSUM + i], x[k]);                       \
        }                                                                                             \
        for (int k = 0; k < CHAINS; k++) {                                                            \
            int64_t at = before + k * KIR_KSUM;                                                       \
            if (at > 0) close_##t(&state[0], &state[1], at);                                          \
            state[0] = x[k];                                                                          \
        }                                                                                             \
    }                                                                                                 \
    static void chain_##t(ARGS_A) {                                                                   \
        kir_##t *state = d_;                                                                          \
        const kir_##t *a = a_, *b = b_;                                                               \
        int64_t at = *(const int64_t *)c_, end = at + n;                                              \
        while (at < end) {                                                                            \
            int64_t step = tn_min64(end - at, KIR_KSUM - at % KIR_KSUM);                              \
            if (at % KIR_KSUM == 0 && end - at >= CHAINS * KIR_KSUM) {                                \
                step = CHAINS * KIR_KSUM;                                                             \
                four_chains_##t(state, a, b, at);                                                     \
            } else {                                                                                  \
                if (at > 0 && at % KIR_KSUM == 0) close_##t(&state[0], &state[1], at);                \
                for (int64_t i = 0; i < step; i++)                                                    \
                    state[0] = STEP(t, a[i], b[i], state[0]);                                         \
            }                                                                                         \
            at += step;                                                                               \
            a += step;                                                                                \
            b += step;                                                                                \
        }                                                                                             \
    }
CHAIN(f32, STEP_FLOAT)
CHAIN(f64, STEP_FLOAT)
CHAIN(i32, STEP_INT)
CHAIN(i64, STEP_INT)

/* ==== the table: which routine is which entry ===================================================================== */

#define AT(field, routine) .field = (routine),
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
#define ROWS_FLOATS(field, f) AT(field[KIR_F32], f##_f32) AT(field[KIR_F64], f##_f64)
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

#define ROWS_WIDTHS(f) AT(f[0], f##_uint8) AT(f[1], f##_uint16) AT(f[2], f##_uint32) AT(f[3], f##_uint64)

#define ALL_ROWS                                                                                                 \
    PLAIN_UNARY_LIST(ROW) TRIGONOMETRIC_LIST(ROW) ROUND_LIST(ROW_ROUND)                                          \
    ROWS_FLOATS(fma[0], fma_vvv) ROWS_FLOATS(fma[2], fma_vsv) ROWS_FLOATS(fma[4], fma_vvs)                       \
    ROWS_FLOATS(fma[6], fma_vss)                                                                                 \
    AT(select[0][0], select_vv_b8) AT(select[0][2], select_vv_u32) AT(select[2][2], select_sv_u32)               \
    AT(select[4][2], select_vs_u32) AT(select[6][2], select_ss_u32) AT(philox[1], philox_sv)                     \
    AT(load[TN_F16], load_f16) AT(load[TN_BF16], load_bf16) AT(load[TN_I8], load_i8) AT(load[TN_U8], load_u8)    \
    AT(load[TN_I16], load_i16) AT(load[TN_U16], load_u16)                                                        \
    AT(store[TN_F16], store_f16) AT(store[TN_BF16], store_bf16) AT(store[TN_I8], store_8)                        \
    AT(store[TN_U8], store_8) AT(store[TN_I16], store_16) AT(store[TN_U16], store_16) AT(ramp, ramp) \
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
    AT(select[6][3], select_ss_u64) SEQUENTIAL_LIST(ROW_VV) ROWS_REDUCE(scan)                                    \
    ROWS_ARG(ROWS_SIGNED, arg) ROWS_ARG(ROWS_SIGNED, arg_columns)
// clang-format on

const kir_simd_table JOIN(kir_simd_, TN_ISA_SUFFIX) = {ALL_ROWS};
