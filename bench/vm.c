/* vm.c — machine code and the tile VM beside loops written by hand.
 *
 * A hand loop applies the same functions (kir/kir_math.h) to the same arrays in one pass (rows: one pass a loop), in
 * the same order, compiled for AVX-512 with all optimisation: what is left between the two is what not having been
 * compiled by hand costs. Answers are compared before anything is timed. One line a case: nanoseconds an element on one
 * thread of the hand loop, of machine code and of the VM without it, each with its ratio to the hand loop, and all
 * threads. Each figure is the best of many short samples, by turns: what others do on the machine at the same time
 * shows in all but the best. Goals: machine code 1.1, the VM 1.5.
 *
 *   bench_vm [name part]             default: all cases
 *   bench_vm NAME hand|code CALLS    only calls one of the two, for a count of instructions (tools/cross.py) */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kir/kir_math.h"
#include "kir/vm.h"

enum { SAMPLES = 60, MOST = 1 << 24, BUFFERS = 4 };
static const double SAMPLE_SECONDS = 3e-4;

#if defined(__x86_64__)
#include <immintrin.h>
#define VECTORS target("avx512f,avx512bw,avx512dq,avx512vl,fma")
#if defined(__clang__)
#define TARGET __attribute__((VECTORS, noinline))
#else
#define TARGET __attribute__((VECTORS, target("prefer-vector-width=512"), optimize("O3"), noinline))
#endif
#else
#define TARGET __attribute__((noinline))
#endif

/* The arrays of a case (0: the result) and its extents; one row where it has no rows. */
typedef void hand_fn(float *const *arrays, int64_t rows, int64_t n);

#if defined(__clang__)
#define EACH _Pragma("clang loop vectorize(assume_safety)") for (int64_t i = 0; i < n; i++)
#else
#define EACH _Pragma("GCC ivdep") for (int64_t i = 0; i < n; i++)
#endif
#define HAND(name) TARGET static void hand_##name(float *const *arrays, int64_t rows, int64_t n)
#define WHOLE(name, value)                          \
    HAND(name) {                                    \
        float *d = arrays[0];                       \
        const float *x = arrays[1], *y = arrays[2]; \
        (void)rows;                                 \
        (void)y;                                    \
        EACH d[i] = value;                          \
    }

static inline float silu(float x) { return x / (kir_exp_f32(-x) + 1.0f); }

WHOLE(add, x[i] + y[i])
WHOLE(cheap, kir_max_f32((x[i] * y[i] + 1.0f) * x[i], 0.0f))
WHOLE(tanh, kir_max_f32(kir_tanh_f32(x[i] * y[i] + 1.0f) * x[i], 0.0f))
WHOLE(gelu, x[i] * 0.5f * (kir_erf_f32(x[i] * 0.70710678f) + 1.0f))
WHOLE(silu_mul, silu(x[i]) * y[i])

HAND(bias) {
    for (int64_t r = 0; r < rows; r++) {
        float *d = arrays[0] + r * n;
        const float *x = arrays[1] + r * n, *y = arrays[2];
        EACH d[i] = kir_max_f32(x[i] + y[i], 0.0f);
    }
}

static const float BETA1 = 0.9f, BETA2 = 0.999f, RATE = 1e-3f, EPSILON = 1e-8f;

/* parameter, gradient, both moments; the new moments overwrite the old ones */
HAND(adam) {
    float *p = arrays[0], *m = arrays[2], *v = arrays[3];
    const float *g = arrays[1];
    (void)rows;
    EACH {
        m[i] = m[i] * BETA1 + g[i] * (1 - BETA1);
        v[i] = v[i] * BETA2 + g[i] * g[i] * (1 - BETA2);
        p[i] = p[i] - m[i] * RATE / (__builtin_sqrtf(v[i]) + EPSILON);
    }
}

HAND(half) {
    const uint16_t *x = (const uint16_t *)(const void *)arrays[1];
    float *d = arrays[0];
    (void)rows;
#if defined(__x86_64__)
    for (int64_t i = 0; i + 16 <= n; i += 16)
        _mm512_storeu_ps(d + i, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)(x + i))));
#else
    EACH d[i] = kir_from_f16(x[i]);
#endif
}

/* Σ or max of a row in the order of the language: 64 lanes, folded by halves. */
#define ROW_OF(name, identity, value, join)                        \
    TARGET static float name(const float *x, int64_t n, float c) { \
        float lanes[KIR_LANES];                                    \
        (void)c;                                                   \
        for (int k = 0; k < KIR_LANES; k++)                        \
            lanes[k] = identity;                                   \
        int64_t at = 0;                                            \
        for (; at + KIR_LANES <= n; at += KIR_LANES) {             \
            for (int k = 0; k < KIR_LANES; k++) {                  \
                float e = x[at + k];                               \
                lanes[k] = join(lanes[k], value);                  \
            }                                                      \
        }                                                          \
        for (int k = 0; at + k < n; k++) {                         \
            float e = x[at + k];                                   \
            lanes[k] = join(lanes[k], value);                      \
        }                                                          \
        for (int half = KIR_LANES / 2; half > 0; half /= 2) {      \
            for (int k = 0; k < half; k++)                         \
                lanes[k] = join(lanes[k], lanes[k + half]);        \
        }                                                          \
        return lanes[0];                                           \
    }
ROW_OF(sum_of, 0, e, kir_add_f32)
ROW_OF(most_of, -INFINITY, e, kir_max_f32)
ROW_OF(sum_of_exp, 0, kir_exp_f32(e - c), kir_add_f32)
ROW_OF(sum_of_squares, 0, (e - c) * (e - c), kir_add_f32)

HAND(row_sum) {
    for (int64_t r = 0; r < rows; r++)
        arrays[0][r] = sum_of(arrays[1] + r * n, n, 0);
}

HAND(softmax) {
    for (int64_t r = 0; r < rows; r++) {
        float *d = arrays[0] + r * n;
        const float *x = arrays[1] + r * n;
        float most = most_of(x, n, 0), sum = sum_of_exp(x, n, most);
        EACH d[i] = kir_exp_f32(x[i] - most) / sum;
    }
}

HAND(layer_norm) {
    for (int64_t r = 0; r < rows; r++) {
        float *d = arrays[0] + r * n;
        const float *x = arrays[1] + r * n;
        float over = (float)(1 / (double)n), mean = sum_of(x, n, 0) * over;
        float scale = 1.0f / __builtin_sqrtf(sum_of_squares(x, n, mean) * over + 1e-5f);
        EACH d[i] = (x[i] - mean) * scale;
    }
}

HAND(rms_norm) {
    for (int64_t r = 0; r < rows; r++) {
        float *d = arrays[0] + r * n;
        const float *x = arrays[1] + r * n, *y = arrays[2];
        float over = (float)(1 / (double)n), scale = 1.0f / __builtin_sqrtf(sum_of_squares(x, n, 0) * over + 1e-5f);
        EACH d[i] = x[i] * scale * y[i];
    }
}

/* ---- programs ---------------------------------------------------------------------------------------------------- */

typedef struct bench_case {
    const char *name;
    void (*build)(kir_builder *b);
    hand_fn *hand;
    int n_par, n_loop;
    int64_t extent[3];
} bench_case;

static kir_aff row_major(const int64_t *extent, int n) {
    kir_aff index = kir_aff_const(0);
    int64_t stride = 1;
    for (int k = n - 1; k >= 0; k--) {
        index.s[k] = stride;
        stride *= extent[k];
    }
    return index;
}

static const bench_case *current;

static kir_aff whole_index(void) { return row_major(current->extent, current->n_par + current->n_loop); }

static kir_val load(kir_builder *b, int buffer) {
    kir_aff index = whole_index();
    return kir_load(b, buffer, &index, KIR_NONE);
}

static void store(kir_builder *b, int buffer, kir_val v) {
    kir_aff index = whole_index();
    kir_store(b, buffer, &index, v, KIR_NONE);
}

static void declare(kir_builder *b) {
    for (int i = 0; i < BUFFERS; i++)
        kir_buffer(b, TN_F32);
}

static kir_val f32(kir_builder *b, double x) { return kir_const(b, KIR_F32, x); }

static void build_chain(kir_builder *b, bool with_tanh) {
    declare(b);
    kir_val x = load(b, 1), y = load(b, 2);
    kir_val v = kir_binary(b, KIR_ADD, kir_binary(b, KIR_MUL, x, y), f32(b, 1));
    if (with_tanh) v = kir_unary(b, KIR_TANH, v);
    store(b, 0, kir_binary(b, KIR_MAX, kir_binary(b, KIR_MUL, v, x), f32(b, 0)));
}
static void build_cheap(kir_builder *b) { build_chain(b, false); }
static void build_tanh(kir_builder *b) { build_chain(b, true); }

static void build_add(kir_builder *b) {
    declare(b);
    store(b, 0, kir_binary(b, KIR_ADD, load(b, 1), load(b, 2)));
}

static void build_gelu(kir_builder *b) {
    declare(b);
    kir_val x = load(b, 1);
    kir_val e = kir_unary(b, KIR_ERF, kir_binary(b, KIR_MUL, x, f32(b, 0.70710678)));
    store(b, 0, kir_binary(b, KIR_MUL, kir_binary(b, KIR_MUL, x, f32(b, 0.5)), kir_binary(b, KIR_ADD, e, f32(b, 1))));
}

static void build_transpose(kir_builder *b) {
    declare(b);
    kir_aff index = kir_aff_const(0);
    index.s[0] = 1;
    index.s[1] = current->extent[0];
    store(b, 0, kir_load(b, 1, &index, KIR_NONE));
}

static void build_bias(kir_builder *b) {
    declare(b);
    kir_aff index = kir_aff_const(0);
    index.s[1] = 1;
    kir_val biased = kir_binary(b, KIR_ADD, load(b, 1), kir_load(b, 2, &index, KIR_NONE));
    store(b, 0, kir_binary(b, KIR_MAX, biased, f32(b, 0)));
}

static void build_bf16(kir_builder *b) {
    for (int i = 0; i < BUFFERS; i++)
        kir_buffer(b, i == 0 ? TN_BF16 : TN_F16);
    store(b, 0, kir_binary(b, KIR_ADD, load(b, 1), load(b, 2)));
}

static void build_silu_mul(kir_builder *b) {
    declare(b);
    kir_val x = load(b, 1);
    kir_val e = kir_unary(b, KIR_EXP, kir_unary(b, KIR_NEG, x));
    store(b, 0, kir_binary(b, KIR_MUL, kir_binary(b, KIR_DIV, x, kir_binary(b, KIR_ADD, e, f32(b, 1))), load(b, 2)));
}

static void build_adam(kir_builder *b) {
    declare(b);
    kir_val p = load(b, 0), g = load(b, 1);
    kir_val m = kir_binary(b, KIR_ADD, kir_binary(b, KIR_MUL, load(b, 2), f32(b, (double)BETA1)),
                           kir_binary(b, KIR_MUL, g, f32(b, (double)(1 - BETA1))));
    kir_val v = kir_binary(b, KIR_ADD, kir_binary(b, KIR_MUL, load(b, 3), f32(b, (double)BETA2)),
                           kir_binary(b, KIR_MUL, kir_binary(b, KIR_MUL, g, g), f32(b, (double)(1 - BETA2))));
    kir_val step = kir_binary(b, KIR_DIV, kir_binary(b, KIR_MUL, m, f32(b, (double)RATE)),
                              kir_binary(b, KIR_ADD, kir_unary(b, KIR_SQRT, v), f32(b, (double)EPSILON)));
    store(b, 2, m);
    store(b, 3, v);
    store(b, 0, kir_binary(b, KIR_SUB, p, step));
}

static void build_half(kir_builder *b) {
    for (int i = 0; i < BUFFERS; i++)
        kir_buffer(b, i == 1 ? TN_F16 : TN_F32);
    store(b, 0, load(b, 1));
}

static void build_softmax(kir_builder *b) {
    declare(b);
    int axis = current->n_par;
    kir_loop(b, axis, 1);
    kir_val most = kir_reduce_value(b, KIR_RMAX, load(b, 1), KIR_NONE);
    kir_end(b);
    kir_loop(b, axis, 1);
    kir_val sum =
        kir_reduce_value(b, KIR_SUM, kir_unary(b, KIR_EXP, kir_binary(b, KIR_SUB, load(b, 1), most)), KIR_NONE);
    kir_end(b);
    kir_loop(b, axis, 1);
    store(b, 0, kir_binary(b, KIR_DIV, kir_unary(b, KIR_EXP, kir_binary(b, KIR_SUB, load(b, 1), most)), sum));
    kir_end(b);
}

static void build_layer_norm(kir_builder *b) {
    declare(b);
    int axis = current->n_par;
    double length = (double)current->extent[axis];
    kir_loop(b, axis, 1);
    kir_val sum = kir_reduce_value(b, KIR_SUM, load(b, 1), KIR_NONE);
    kir_end(b);
    kir_val mean = kir_binary(b, KIR_MUL, sum, f32(b, 1 / length));
    kir_loop(b, axis, 1);
    kir_val off = kir_binary(b, KIR_SUB, load(b, 1), mean);
    kir_val squares = kir_reduce_value(b, KIR_SUM, kir_binary(b, KIR_MUL, off, off), KIR_NONE);
    kir_end(b);
    kir_val variance = kir_binary(b, KIR_ADD, kir_binary(b, KIR_MUL, squares, f32(b, 1 / length)), f32(b, 1e-5));
    kir_val scale = kir_binary(b, KIR_DIV, f32(b, 1), kir_unary(b, KIR_SQRT, variance));
    kir_loop(b, axis, 1);
    store(b, 0, kir_binary(b, KIR_MUL, kir_binary(b, KIR_SUB, load(b, 1), mean), scale));
    kir_end(b);
}

static void build_rms_norm(kir_builder *b) {
    declare(b);
    int axis = current->n_par;
    double length = (double)current->extent[axis];
    kir_loop(b, axis, 1);
    kir_val x = load(b, 1);
    kir_val squares = kir_reduce_value(b, KIR_SUM, kir_binary(b, KIR_MUL, x, x), KIR_NONE);
    kir_end(b);
    kir_val mean = kir_binary(b, KIR_ADD, kir_binary(b, KIR_MUL, squares, f32(b, 1 / length)), f32(b, 1e-5));
    kir_val scale = kir_binary(b, KIR_DIV, f32(b, 1), kir_unary(b, KIR_SQRT, mean));
    kir_aff weights = kir_aff_const(0);
    weights.s[axis] = 1;
    kir_loop(b, axis, 1);
    store(b, 0, kir_binary(b, KIR_MUL, kir_binary(b, KIR_MUL, load(b, 1), scale), kir_load(b, 2, &weights, KIR_NONE)));
    kir_end(b);
}

static void build_sum(kir_builder *b, const kir_aff *from) {
    declare(b);
    kir_loop(b, current->n_par, current->n_loop);
    kir_val sum = kir_reduce_value(b, KIR_SUM, kir_load(b, 1, from, KIR_NONE), KIR_NONE);
    kir_end(b);
    kir_aff to = row_major(current->extent, current->n_par);
    kir_store(b, 0, &to, sum, KIR_NONE);
}

static void build_row_sum(kir_builder *b) {
    kir_aff from = whole_index();
    build_sum(b, &from);
}

/* extent: columns, rows; memory is [rows][columns] */
static void build_column_sum(kir_builder *b) {
    kir_aff from = kir_aff_const(0);
    from.s[0] = 1;
    from.s[1] = current->extent[0];
    build_sum(b, &from);
}

/* What has no machine code, or has not had it always. */

static void build_sin(kir_builder *b) {
    declare(b);
    store(b, 0, kir_unary(b, KIR_SIN, load(b, 1)));
}

static void build_dropout(kir_builder *b) {
    declare(b);
    kir_aff index = whole_index();
    kir_val bits =
        kir_philox(b, kir_const_i(b, KIR_U64, 0x123456789abcdef), kir_bitcast(b, KIR_U64, kir_index(b, &index)));
    kir_val kept = kir_binary(b, KIR_LT, bits, kir_const_i(b, KIR_U32, 0xe0000000));
    store(b, 0, kir_select(b, kept, kir_binary(b, KIR_MUL, load(b, 1), f32(b, 8.0 / 7)), f32(b, 0)));
}

static void build_divide(kir_builder *b) {
    for (int i = 0; i < BUFFERS; i++)
        kir_buffer(b, TN_I32);
    store(b, 0, kir_binary(b, KIR_DIV, load(b, 1), kir_const_i(b, KIR_I32, 7)));
}

/* Rows of a table by computed numbers, as an embedding looks them up. */
static void build_lookup(kir_builder *b) {
    declare(b);
    kir_aff number = kir_aff_const(0), index = kir_aff_const(0);
    number.s[0] = 1;
    index.s[1] = 1;
    kir_val x =
        kir_binary(b, KIR_MUL, kir_binary(b, KIR_ADD, kir_load(b, 2, &number, KIR_NONE), f32(b, 1)), f32(b, 99));
    index.dyn = kir_binary(b, KIR_MUL, kir_cast(b, KIR_I64, x), kir_const_i(b, KIR_I64, current->extent[1]));
    store(b, 0, kir_load(b, 1, &index, KIR_NONE));
}

static void build_argmax(kir_builder *b) {
    kir_buffer(b, TN_I64);
    kir_buffer(b, TN_F32);
    kir_aff from = whole_index(), to = row_major(current->extent, current->n_par);
    kir_loop(b, current->n_par, current->n_loop);
    kir_val best = kir_reduce_value(b, KIR_ARGMAX, kir_load(b, 1, &from, KIR_NONE), KIR_NONE);
    kir_end(b);
    kir_store(b, 0, &to, best, KIR_NONE);
}

static void build_scan(kir_builder *b) {
    declare(b);
    kir_loop(b, current->n_par, 1);
    store(b, 0, kir_scan(b, KIR_SUM, load(b, 1)));
    kir_end(b);
}

static const bench_case CASES[] = {
    {"add-16", build_add, hand_add, 1, 0, {16}},
    {"add-2k", build_add, hand_add, 1, 0, {2048}},
    {"add-32k", build_add, hand_add, 1, 0, {32768}},
    {"add-16m", build_add, hand_add, 1, 0, {MOST}},
    {"cheap-16", build_cheap, hand_cheap, 1, 0, {16}},
    {"cheap-2k", build_cheap, hand_cheap, 1, 0, {2048}},
    {"cheap-32k", build_cheap, hand_cheap, 1, 0, {32768}},
    {"cheap-16m", build_cheap, hand_cheap, 1, 0, {MOST}},
    {"tanh-2k", build_tanh, hand_tanh, 1, 0, {2048}},
    {"tanh-32k", build_tanh, hand_tanh, 1, 0, {32768}},
    {"tanh-16m", build_tanh, hand_tanh, 1, 0, {MOST}},
    {"gelu-2k", build_gelu, hand_gelu, 1, 0, {2048}},
    {"gelu-64k", build_gelu, hand_gelu, 1, 0, {65536}},
    {"silu-mul-2k", build_silu_mul, hand_silu_mul, 1, 0, {2048}},
    {"silu-mul-64k", build_silu_mul, hand_silu_mul, 1, 0, {65536}},
    {"adam-2k", build_adam, hand_adam, 1, 0, {2048}},
    {"adam-32k", build_adam, hand_adam, 1, 0, {32768}},
    {"adam-4m", build_adam, hand_adam, 1, 0, {MOST / 4}},
    {"half-to-float-4k", build_half, hand_half, 1, 0, {4096}},
    {"half-to-float-64k", build_half, hand_half, 1, 0, {65536}},
    {"half-to-float-16m", build_half, hand_half, 1, 0, {MOST}},
    {"bias-relu-8x384", build_bias, hand_bias, 2, 0, {8, 384}},
    {"bias-relu-256x384", build_bias, hand_bias, 2, 0, {256, 384}},
    {"bias-relu-8192x1024", build_bias, hand_bias, 2, 0, {8192, 1024}},
    {"bias-relu-4096x8", build_bias, hand_bias, 2, 0, {4096, 8}},
    {"bf16-add-64k", build_bf16, NULL, 1, 0, {65536}},
    {"transpose-256", build_transpose, NULL, 2, 0, {256, 256}},
    {"transpose-2048", build_transpose, NULL, 2, 0, {2048, 2048}},
    {"softmax-4096x8", build_softmax, hand_softmax, 1, 1, {4096, 8}},
    {"softmax-16x128", build_softmax, hand_softmax, 1, 1, {16, 128}},
    {"softmax-512x128", build_softmax, hand_softmax, 1, 1, {512, 128}},
    {"softmax-64x1000", build_softmax, hand_softmax, 1, 1, {64, 1000}},
    {"softmax-8x50000", build_softmax, NULL, 1, 1, {8, 50000}},
    {"layer-norm-8x384", build_layer_norm, hand_layer_norm, 1, 1, {8, 384}},
    {"layer-norm-512x384", build_layer_norm, hand_layer_norm, 1, 1, {512, 384}},
    {"layer-norm-8192x1024", build_layer_norm, hand_layer_norm, 1, 1, {8192, 1024}},
    {"rms-norm-8x576", build_rms_norm, hand_rms_norm, 1, 1, {8, 576}},
    {"rms-norm-256x576", build_rms_norm, hand_rms_norm, 1, 1, {256, 576}},
    {"row-sum-4096x8", build_row_sum, hand_row_sum, 1, 1, {4096, 8}},
    {"row-sum-4096x10", build_row_sum, hand_row_sum, 1, 1, {4096, 10}},
    {"row-sum-2048x32", build_row_sum, hand_row_sum, 1, 1, {2048, 32}},
    {"row-sum-32x128", build_row_sum, hand_row_sum, 1, 1, {32, 128}},
    {"row-sum-512x128", build_row_sum, hand_row_sum, 1, 1, {512, 128}},
    {"row-sum-64x4096", build_row_sum, hand_row_sum, 1, 1, {64, 4096}},
    {"row-sum-4096x4096", build_row_sum, hand_row_sum, 1, 1, {4096, 4096}},
    {"sum-16m", build_row_sum, NULL, 0, 1, {MOST}},
    {"column-sum-384x512", build_column_sum, NULL, 1, 1, {384, 512}},
    {"column-sum-16x65536", build_column_sum, NULL, 1, 1, {16, 65536}},
    {"column-sum-64x9", build_column_sum, NULL, 1, 1, {64, 9}},
    {"column-sum-64x128", build_column_sum, NULL, 1, 1, {64, 128}},
    {"sin-64k", build_sin, NULL, 1, 0, {65536}},
    {"dropout-64k", build_dropout, NULL, 1, 0, {65536}},
    {"divide-i32-64k", build_divide, NULL, 1, 0, {65536}},
    {"lookup-256x384", build_lookup, NULL, 2, 0, {256, 384}},
    {"argmax-64x4096", build_argmax, NULL, 1, 1, {64, 4096}},
    {"scan-64x4096", build_scan, NULL, 1, 1, {64, 4096}},
};

/* ---- timing ------------------------------------------------------------------------------------------------------ */

/* Arrays begin at different places of a page, as they would in a larger block. */
enum { APART = 1088 };
static float *arrays[BUFFERS];
static void *allocations[BUFFERS];

typedef struct work {
    const kir_vm *vm;
    kir_launch launch;
    hand_fn *hand;
    int64_t rows, n;
} work;

static void run_code(const work *w) { kir_vm_run(w->vm, &w->launch, 1); }

static void run_vm(const work *w) { kir_vm_run(w->vm, &w->launch, 1); } /* while code is off */

static void run_hand(const work *w) { w->hand(arrays, w->rows, w->n); }

typedef void run_fn(const work *w);

static double time_calls(run_fn *run, const work *w, int64_t calls) {
    kir_code_use(run != run_vm);
    double begin = tn_now();
    for (int64_t i = 0; i < calls; i++)
        run(w);
    return (tn_now() - begin) / (double)calls;
}

static int64_t calls_for_a_sample(run_fn *run, const work *w) {
    int64_t calls = 1;
    while (calls < 1 << 20 && time_calls(run, w, calls) * (double)calls < SAMPLE_SECONDS)
        calls *= 2;
    return calls;
}

enum { WAYS = 3 };

/* Best seconds of a call, of all ways by turns; of a way that is NULL, 0. */
static void time_all(const work *w, run_fn *const *ways, double *best) {
    int64_t calls[WAYS];
    for (int k = 0; k < WAYS; k++) {
        calls[k] = ways[k] ? calls_for_a_sample(ways[k], w) : 0;
        best[k] = ways[k] ? 1e9 : 0;
    }
    for (int s = 0; s < SAMPLES; s++) {
        for (int k = 0; k < WAYS; k++) {
            double seconds = ways[k] ? time_calls(ways[k], w, calls[k]) : 0;
            if (seconds < best[k]) best[k] = seconds;
        }
    }
}

static void fail(const char *what) {
    fprintf(stderr, "bench_vm: %s\n", what);
    exit(1);
}

static void fill(int64_t n) {
    for (int i = 0; i < BUFFERS; i++) {
        for (int64_t e = 0; e < n; e++)
            arrays[i][e] = (float)((e * (7919 + 4 * i)) % 1000) / 500 - (i < 3);
    }
}

static void allocate(void) {
    for (int i = 0; i < BUFFERS; i++) {
        char *memory = tn_mem_alloc(sizeof(float) * MOST + APART * BUFFERS);
        allocations[i] = memory;
        if (!memory) fail(tn_error());
        arrays[i] = (float *)(void *)(memory + APART * i);
    }
}

static uint64_t hash_results(void) {
    uint64_t hash = 0;
    for (int i = 0; i < BUFFERS; i++)
        hash = tn_hash64(arrays[i], sizeof(float) * MOST, hash);
    return hash;
}

/* All ways leave the same bits in all arrays. */
static void check(const work *w, run_fn *const *ways, const char *name) {
    uint64_t want = 0;
    for (int k = 0; k < WAYS; k++) {
        fill(MOST);
        time_calls(ways[k], w, 1);
        uint64_t hash = hash_results();
        if (k == 0) want = hash;
        if (hash != want) {
            fprintf(stderr, "bench_vm: %s: ", name);
            fail(k == 1 ? "machine code and the hand loop differ" : "the VM and the hand loop differ");
        }
    }
}

/* way: NULL compares and times all ways; "hand" or "code" only calls that one `calls` times. */
static void run_case(const bench_case *c, const char *way, int calls) {
    kir_builder *b = NULL;
    kir_program *p = NULL;
    int64_t *sizes = NULL;
    kir_vm *vm = NULL;
    current = c;
    if (kir_begin(c->n_par, c->n_loop, c->extent, &b) != TN_OK) fail(tn_error());
    c->build(b);
    if (kir_finish(b, &p, &sizes) != TN_OK || kir_vm_compile(p, &vm) != TN_OK) fail(tn_error());
    int axes = c->n_par + c->n_loop;
    work w = {.vm = vm, .launch = {sizes, (void *const *)arrays, NULL}, .hand = c->hand, .rows = 1};
    w.n = c->extent[axes - 1];
    for (int k = 0; k < axes - 1; k++)
        w.rows *= c->extent[k];
    double each = 1e9 / ((double)w.n * (double)w.rows), best[WAYS], all[WAYS];
    run_fn *const ways[WAYS] = {c->hand ? run_hand : NULL, run_code, run_vm};
    tn_threads_set(1);
    if (way) {
        fill(w.rows * w.n);
        run_fn *run = strcmp(way, "hand") == 0 ? run_hand : run_code;
        for (int i = 0; i < calls; i++)
            run(&w);
        if (run == run_code && kir_code_made() == 0) fail("there is no machine code for this case");
        return;
    }
    if (c->hand) check(&w, ways, c->name);
    time_all(&w, ways, best);
    tn_threads_set(0);
    time_all(&w, (run_fn *const[WAYS]){NULL, run_code, NULL}, all);
    printf("%-22s %9.4f %9.4f %6.2fx %9.4f %6.2fx %9.4f   %10.3f us a launch\n", c->name, best[0] * each,
           best[1] * each, c->hand ? best[1] / best[0] : 0, best[2] * each, c->hand ? best[2] / best[0] : 0,
           all[1] * each, best[1] * 1e6);
    fflush(stdout);
    kir_vm_free(vm);
    kir_free(p);
    tn_mem_free(sizes);
}

int main(int argc, char **argv) {
    allocate();
    kir_code_worth(0);
    if (argc == 4) {
        for (size_t i = 0; i < TN_COUNT(CASES); i++)
            if (strcmp(CASES[i].name, argv[1]) == 0) run_case(&CASES[i], argv[2], atoi(argv[3]));
        return 0;
    }
    fill(MOST);
    printf("machine code: %s\n", kir_code_state());
    printf("%-22s %9s %9s %7s %9s %7s %9s   (ns an element)\n", "case", "hand", "code", "", "vm", "", "all threads");
    for (size_t i = 0; i < TN_COUNT(CASES); i++) {
        if (argc < 2 || strstr(CASES[i].name, argv[1])) run_case(&CASES[i], NULL, 0);
    }
    for (int i = 0; i < BUFFERS; i++)
        tn_mem_free(allocations[i]);
    kir_vm_trim();
    return 0;
}
