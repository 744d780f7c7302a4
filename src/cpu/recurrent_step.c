/* recurrent_step.c — the element-wise part of a step of LSTM and GRU layers, forward and backward; compiled once per
 * instruction set. The compiler makes vectors of the loops, whose functions have no branches (kir_math.h). */
#include "cpu/isa.h"
#include "cpu/vec.h"
#include "kir/kir_math.h"

/* EACH: the iterations of the loop are independent. WHOLE: with all that it calls in it, or there are no vectors. */
#if defined(__clang__)
#define EACH _Pragma("clang loop vectorize(assume_safety)")
#else
#define EACH _Pragma("GCC ivdep")
#endif
#define WHOLE __attribute__((flatten)) static

static inline float sigmoid(float x) { return 1.0f / (kir_exp_f32(-x) + 1.0f); }
static inline float sigmoid_slope(float y) { return y * (1.0f - y); }
static inline float tanh_slope(float y) { return 1.0f - y * y; }

static inline float biased(const float *bias, float product, int64_t k) { return bias ? product + bias[k] : product; }

VEC_INLINE void lstm_row(const recurrent_step *s, int64_t row, const float *bias) {
    int64_t n = s->hidden;
    const float *restrict x = s->x + row * 4 * n, *restrict p = s->from_h + row * 4 * n, *restrict c = s->c + row * n;
    float *restrict h_out = s->h_out + row * n, *restrict c_out = s->c_out + row * n;
    EACH for (int64_t j = 0; j < n; j++) {
        float in = sigmoid(x[j] + biased(bias, p[j], j));
        float forget = sigmoid(x[n + j] + biased(bias, p[n + j], n + j));
        float cell = kir_tanh_f32(x[2 * n + j] + biased(bias, p[2 * n + j], 2 * n + j));
        float opens = sigmoid(x[3 * n + j] + biased(bias, p[3 * n + j], 3 * n + j));
        float state = forget * c[j] + in * cell;
        c_out[j] = state;
        h_out[j] = opens * kir_tanh_f32(state);
    }
}

VEC_INLINE void gru_row(const recurrent_step *s, int64_t row, const float *bias) {
    int64_t n = s->hidden;
    const float *restrict x = s->x + row * 3 * n, *restrict p = s->from_h + row * 3 * n, *restrict h = s->h + row * n;
    float *restrict h_out = s->h_out + row * n;
    EACH for (int64_t j = 0; j < n; j++) {
        float reset = sigmoid(x[j] + biased(bias, p[j], j));
        float keep = sigmoid(x[n + j] + biased(bias, p[n + j], n + j));
        float fresh = kir_tanh_f32(x[2 * n + j] + reset * biased(bias, p[2 * n + j], 2 * n + j));
        h_out[j] = fresh + keep * (h[j] - fresh);
    }
}

WHOLE void lstm(const recurrent_step *s, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; row++) {
        if (s->bias)
            lstm_row(s, row, s->bias);
        else
            lstm_row(s, row, NULL);
    }
}

WHOLE void gru(const recurrent_step *s, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; row++) {
        if (s->bias)
            gru_row(s, row, s->bias);
        else
            gru_row(s, row, NULL);
    }
}

VEC_INLINE void lstm_row_back(const recurrent_step *s, int64_t row, bool last) {
    int64_t n = s->hidden;
    const float *restrict x = s->x + row * 4 * n, *restrict c = s->c + row * n, *restrict state = s->c_out + row * n;
    const float *restrict own_h = s->dh + row * n, *restrict own_c = s->dc + row * n;
    const float *restrict later = s->from_later + row * n;
    float *restrict carry = s->carry + row * n, *restrict d = s->d_x + row * 4 * n;
    EACH for (int64_t j = 0; j < n; j++) {
        float in = sigmoid(x[j]), forget = sigmoid(x[n + j]), cell = kir_tanh_f32(x[2 * n + j]);
        float opens = sigmoid(x[3 * n + j]), shown = kir_tanh_f32(state[j]);
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

VEC_INLINE void gru_row_back(const recurrent_step *s, int64_t row, bool last) {
    int64_t n = s->hidden;
    const float *restrict x = s->x + row * 3 * n, *restrict p = s->from_h + row * 3 * n, *restrict h = s->h + row * n;
    const float *restrict own = s->dh + row * n, *restrict later = s->from_later + row * n;
    float *restrict carry = s->carry + row * n, *restrict d_x = s->d_x + row * 3 * n,
                    *restrict d_h = s->d_h + row * 3 * n;
    EACH for (int64_t j = 0; j < n; j++) {
        float reset = sigmoid(x[j] + p[j]), keep = sigmoid(x[n + j] + p[n + j]), in = p[2 * n + j];
        float fresh = kir_tanh_f32(x[2 * n + j] + reset * in);
        float dh = last ? own[j] : own[j] + (carry[j] + later[j]);
        float d_fresh = dh * (1.0f - keep) * tanh_slope(fresh), d_reset = d_fresh * in * sigmoid_slope(reset);
        float d_keep = dh * (h[j] - fresh) * sigmoid_slope(keep);
        d_x[j] = d_h[j] = d_reset;
        d_x[n + j] = d_h[n + j] = d_keep;
        d_x[2 * n + j] = d_fresh;
        d_h[2 * n + j] = d_fresh * reset;
        carry[j] = dh * keep;
    }
}

WHOLE void lstm_back(const recurrent_step *s, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; row++) {
        if (s->last)
            lstm_row_back(s, row, true);
        else
            lstm_row_back(s, row, false);
    }
}

WHOLE void gru_back(const recurrent_step *s, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; row++) {
        if (s->last)
            gru_row_back(s, row, true);
        else
            gru_row_back(s, row, false);
    }
}

const tn_recurrent_table VEC_JOIN(tn_recurrent_table, TN_ISA_SUFFIX) = {lstm, gru, lstm_back, gru_back};
