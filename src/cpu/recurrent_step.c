/* recurrent_step.c — the element-wise part of a step of LSTM and GRU layers, forward and backward; compiled once per
 * instruction set.
 *
 * A row is computed in blocks, one function after the other over several vectors at once, because the chain of
 * dependent instructions from a sum to its state is too long to be overlapped by the processor. The bits are those of
 * kir_math.h. */
#include "cpu/isa.h"
#include "cpu/vec.h"
#include "kir/kir_math.h"

/* EACH: the iterations of the loop are independent. */
#if defined(__clang__)
#define EACH _Pragma("clang loop vectorize(assume_safety)")
#else
#define EACH _Pragma("GCC ivdep")
#endif

/* Vectors in flight: a function is a chain of some 70 cycles, and schedulers hold few instructions. */
enum { TOGETHER = VEC_HAS_FMA ? 4 : 1 };
enum { BLOCK = 128 }; /* elements of a row, a multiple of VL: their gates stay in the first-level cache */

/* ---- functions of vectors ---------------------------------------------------------------------------------------- */

typedef uint32_t bits __attribute__((vector_size(VEC_BYTES)));

/* Limits that are not 0; NaN stays. */
#if defined(__AVX2__) || defined(__AVX512F__)
VEC_INLINE V at_most(V x, float limit) { return (V)VEC_OP(min)(v_set1(limit), x); }
VEC_INLINE V at_least(V x, float limit) { return (V)VEC_OP(max)(v_set1(limit), x); }
#else
VEC_INLINE V at_most(V x, float limit) { return v_least(x, v_set1(limit)); }
VEC_INLINE V at_least(V x, float limit) { return v_greatest(x, v_set1(limit)); }
#endif

/* Loops over the vectors that are computed together. */
#define ALL(statement) VEC_UNROLL for (int k = 0; k < count; k++) statement

/* x = factor · e^x + 1, where n = round(x / ln 2) lies in [-126, 128] and 2^(127 - exponent) is the factor. */
VEC_INLINE void exp_plus_one(V *x, const int count, uint32_t exponent, float factor) {
    V n[TOGETHER], p[TOGETHER], square[TOGETHER];
    bits power[TOGETHER];
    ALL(n[k] = v_fma(x[k], v_set1(0x1.715476p0f), v_set1(KIR_MAGIC_F32));)
    ALL(power[k] = ((bits)n[k] << 23) + (exponent << 23);) /* the low bits of this sum are n */
    ALL(n[k] = n[k] - v_set1(KIR_MAGIC_F32);)
    ALL(x[k] = v_fma(n[k], v_set1(-0x1.62e43p-1f), x[k]);)
    ALL(x[k] = v_fma(n[k], v_set1(0x1.05c61p-29f), x[k]);)
    ALL(p[k] = v_fma(v_set1(0x1.6a2352p-10f), x[k], v_set1(0x1.123a6ap-7f));)
    ALL(square[k] = x[k] * x[k];)
    ALL(p[k] = v_fma(p[k], x[k], v_set1(0x1.5558f4p-5f));)
    ALL(p[k] = v_fma(p[k], x[k], v_set1(0x1.55549p-3f));)
    ALL(p[k] = v_fma(p[k], x[k], v_set1(0x1.fffffcp-2f));)
    ALL(x[k] = v_set1(1.0f) + v_fma(p[k], square[k], x[k]);)
    ALL(x[k] = v_fma(x[k] * (V)power[k], v_set1(factor), v_set1(1.0f));)
}

/* 1 / (kir_exp_f32(-x) + 1): below -87 the sum is 1; e^89, 2^128 at most, is halved before it is doubled. */
VEC_INLINE void sigmoid(V *x, const int count) {
    ALL(x[k] = at_least(at_most(-x[k], 89.0f), -87.0f);)
    exp_plus_one(x, count, 126, 2.0f);
    ALL(x[k] = v_set1(1.0f) / x[k];)
}

/* kir_tanh_f32 */
VEC_INLINE void hyperbolic(V *x, const int count) {
    const bits sign = (bits)v_set1(-0.0f);
    V small[TOGETHER], large[TOGETHER], s[TOGETHER];
    ALL(large[k] = (V)((bits)x[k] & ~sign);)
    ALL(large[k] = at_most(large[k] + large[k], 20.0f);)
    exp_plus_one(large, count, 127, 1.0f);
    ALL(large[k] = v_set1(1.0f) - v_set1(2.0f) / large[k];)
    ALL(s[k] = x[k] * x[k];)
    ALL(small[k] = v_fma(v_set1(-0x1.963d5cp-8f), s[k], v_set1(0x1.58669ap-6f));)
    ALL(small[k] = v_fma(small[k], s[k], v_set1(-0x1.b90fcp-5f));)
    ALL(small[k] = v_fma(small[k], s[k], v_set1(0x1.110c98p-3f));)
    ALL(small[k] = v_fma(small[k], s[k], v_set1(-0x1.555548p-2f));)
    ALL(small[k] = v_fma(x[k] * s[k], small[k], x[k]);)
    for (int k = 0; k < count; k++) {
        bits is_small = (bits)((V)((bits)x[k] & ~sign) < v_set1(0.56f));
        bits y = (is_small & (bits)small[k]) | (~is_small & (bits)large[k]);
        x[k] = (V)((y & ~sign) | ((bits)x[k] & sign));
    }
}

VEC_INLINE V load(const float *p, int64_t j, int64_t n) {
    return n - j >= VL ? v_load(p + j) : v_part_load(p + j, v_mask(n - j));
}

/* y = f(x + product + bias); y [BLOCK], n elements of it; product, bias: may be NULL. */
#define OVER_BLOCK(name, f)                                                                                            \
    VEC_INLINE void name##_at(float *y, const float *x, const float *product, const float *bias, int64_t j, int64_t n, \
                              const int count) {                                                                       \
        V sum[TOGETHER];                                                                                               \
        ALL(sum[k] = load(x, j + k * VL, n);)                                                                          \
        if (product && bias) ALL(sum[k] = sum[k] + (load(product, j + k * VL, n) + load(bias, j + k * VL, n));)        \
        if (product && !bias) ALL(sum[k] = sum[k] + load(product, j + k * VL, n);)                                     \
        f(sum, count);                                                                                                 \
        ALL(v_store(y + j + k * VL, sum[k]);)                                                                          \
    }                                                                                                                  \
    static void name(float *y, const float *x, const float *product, const float *bias, int64_t n) {                   \
        int64_t j = 0;                                                                                                 \
        for (; TOGETHER > 1 && j + TOGETHER * VL <= n; j += TOGETHER * VL)                                             \
            name##_at(y, x, product, bias, j, INT64_MAX, TOGETHER);                                                    \
        for (; j < n; j += VL)                                                                                         \
            name##_at(y, x, product, bias, j, n, 1);                                                                   \
    }
OVER_BLOCK(sigmoids, sigmoid)
OVER_BLOCK(tanhs, hyperbolic)

/* Of a block: LSTM: input gate, forget gate, new cell, output gate, tanh(c). GRU: reset, update, new. */
typedef struct gates_block {
    _Alignas(64) float a[BLOCK], b[BLOCK], cell[BLOCK], opens[BLOCK], shown[BLOCK];
} gates_block;

static const float *at(const float *bias, int64_t k) { return bias ? bias + k : NULL; }

/* ---- forward ----------------------------------------------------------------------------------------------------- */

static void lstm_block(const recurrent_step *s, int64_t row, int64_t first, int64_t count) {
    int64_t n = s->hidden;
    const float *x = s->x + row * 4 * n + first, *p = s->from_h + row * 4 * n + first, *bias = at(s->bias, first);
    const float *restrict c = s->c + row * n + first;
    float *restrict h_out = s->h_out + row * n + first, *restrict c_out = s->c_out + row * n + first;
    gates_block g;
    sigmoids(g.a, x, p, bias, count);
    sigmoids(g.b, x + n, p + n, at(bias, n), count);
    tanhs(g.cell, x + 2 * n, p + 2 * n, at(bias, 2 * n), count);
    sigmoids(g.opens, x + 3 * n, p + 3 * n, at(bias, 3 * n), count);
    EACH for (int64_t j = 0; j < count; j++) c_out[j] = g.b[j] * c[j] + g.a[j] * g.cell[j];
    tanhs(g.shown, c_out, NULL, NULL, count);
    EACH for (int64_t j = 0; j < count; j++) h_out[j] = g.opens[j] * g.shown[j];
}

static void gru_block(const recurrent_step *s, int64_t row, int64_t first, int64_t count) {
    int64_t n = s->hidden;
    const float *x = s->x + row * 3 * n + first, *p = s->from_h + row * 3 * n + first, *bias = at(s->bias, first);
    const float *restrict h = s->h + row * n + first, *of_state = p + 2 * n, *of_x = x + 2 * n, *own = at(bias, 2 * n);
    float *restrict h_out = s->h_out + row * n + first;
    gates_block g;
    sigmoids(g.a, x, p, bias, count);
    sigmoids(g.b, x + n, p + n, at(bias, n), count);
    if (own)
        EACH for (int64_t j = 0; j < count; j++) g.cell[j] = of_x[j] + g.a[j] * (of_state[j] + own[j]);
    else
        EACH for (int64_t j = 0; j < count; j++) g.cell[j] = of_x[j] + g.a[j] * of_state[j];
    tanhs(g.cell, g.cell, NULL, NULL, count);
    EACH for (int64_t j = 0; j < count; j++) h_out[j] = g.cell[j] + g.b[j] * (h[j] - g.cell[j]);
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

static inline float sigmoid_slope(float y) { return y * (1.0f - y); }
static inline float tanh_slope(float y) { return 1.0f - y * y; }

static void lstm_back_block(const recurrent_step *s, int64_t row, int64_t first, int64_t count) {
    int64_t n = s->hidden, at_row = row * n + first;
    const float *x = s->x + row * 4 * n + first, *restrict c = s->c + at_row;
    const float *restrict own_h = s->dh + at_row, *restrict own_c = s->dc + at_row, *later = s->from_later + at_row;
    float *restrict carry = s->carry + at_row, *restrict d = s->d_x + row * 4 * n + first;
    bool last = s->last;
    gates_block g;
    sigmoids(g.a, x, NULL, NULL, count);
    sigmoids(g.b, x + n, NULL, NULL, count);
    tanhs(g.cell, x + 2 * n, NULL, NULL, count);
    sigmoids(g.opens, x + 3 * n, NULL, NULL, count);
    tanhs(g.shown, s->c_out + at_row, NULL, NULL, count);
    EACH for (int64_t j = 0; j < count; j++) {
        float in = g.a[j], forget = g.b[j], cell = g.cell[j], opens = g.opens[j], shown = g.shown[j];
        float dh = last ? own_h[j] : own_h[j] + later[j];
        float dc = last ? own_c[j] : own_c[j] + carry[j];
        dc = dc + dh * opens * tanh_slope(shown);
        d[j] = dc * cell * sigmoid_slope(in);
        d[n + j] = dc * c[j] * sigmoid_slope(forget);
        d[2 * n + j] = dc * in * tanh_slope(cell);
        d[3 * n + j] = dh * shown * sigmoid_slope(opens);
        carry[j] = dc * forget;
    }
}

static void gru_back_block(const recurrent_step *s, int64_t row, int64_t first, int64_t count) {
    int64_t n = s->hidden, at_row = row * n + first, at_gates = row * 3 * n + first;
    const float *x = s->x + at_gates, *p = s->from_h + at_gates, *restrict of_state = p + 2 * n, *of_x = x + 2 * n;
    const float *restrict h = s->h + at_row, *restrict own = s->dh + at_row, *restrict later = s->from_later + at_row;
    float *restrict carry = s->carry + at_row, *restrict d_x = s->d_x + at_gates, *restrict d_h = s->d_h + at_gates;
    bool last = s->last;
    gates_block g;
    sigmoids(g.a, x, p, NULL, count);
    sigmoids(g.b, x + n, p + n, NULL, count);
    EACH for (int64_t j = 0; j < count; j++) g.cell[j] = of_x[j] + g.a[j] * of_state[j];
    tanhs(g.cell, g.cell, NULL, NULL, count);
    EACH for (int64_t j = 0; j < count; j++) {
        float reset = g.a[j], keep = g.b[j], fresh = g.cell[j];
        float dh = last ? own[j] : own[j] + (carry[j] + later[j]);
        float d_fresh = dh * (1.0f - keep) * tanh_slope(fresh), d_reset = d_fresh * of_state[j] * sigmoid_slope(reset);
        float d_keep = dh * (h[j] - fresh) * sigmoid_slope(keep);
        d_x[j] = d_h[j] = d_reset;
        d_x[n + j] = d_h[n + j] = d_keep;
        d_x[2 * n + j] = d_fresh;
        d_h[2 * n + j] = d_fresh * reset;
        carry[j] = dh * keep;
    }
}

#define OVER_ROWS(name)                                                                             \
    static void name(const recurrent_step *s, int64_t begin, int64_t end) {                         \
        for (int64_t row = begin; row < end; row++)                                                 \
            for (int64_t first = 0; first < s->hidden; first += BLOCK)                              \
                name##_block(s, row, first, s->hidden - first < BLOCK ? s->hidden - first : BLOCK); \
    }
OVER_ROWS(lstm)
OVER_ROWS(gru)
OVER_ROWS(lstm_back)
OVER_ROWS(gru_back)

const tn_recurrent_table VEC_JOIN(tn_recurrent_table, TN_ISA_SUFFIX) = {lstm, gru, lstm_back, gru_back};
