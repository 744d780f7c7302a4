/* recurrent_walk.c — all steps of an LSTM or GRU layer: a product with the packed weight, then the gates, step by step.
 *
 * The weight is packed once for all steps. The products are those of gemm.c; the gates are element-wise functions of
 * each instruction set (recurrent_step.c), cut by rows of the batch if they are many. */
#include <string.h>

#include "cpu/isa.h"

enum { LSTM = 4, ELEMENTS_A_THREAD = 1 << 13 };

typedef struct walk {
    const tn_recurrent_args *args;
    tn_gemm_args product; /* of a step: from_h = h·weightᵀ, or backward the gradient of h */
    bool packed;
    float *result; /* of the product */
    float *carry;  /* backward */
    size_t bytes;
} walk;

static void *take(walk *w, char *base, size_t bytes) {
    void *at = base ? base + w->bytes : NULL;
    w->bytes += (bytes + 63) / 64 * 64;
    return at;
}

/* The product, and the workspace divided; base NULL: only its size. */
static void open_walk(walk *w, const tn_recurrent_args *x, int threads) {
    int64_t wide = x->gates * x->hidden;
    char *base = x->workspace;
    tn_gemm_args *g = &w->product;
    *w = (walk){.args = x};
    *g = (tn_gemm_args){.m = x->batch, .n = x->backward ? x->hidden : wide, .k = x->backward ? wide : x->hidden};
    for (int d = 0; d < TN_GEMM_BATCH_AXES; d++)
        g->batch[d] = 1;
    g->a = (tn_matrix){.row_stride = g->k, .col_stride = 1};
    g->b = (tn_matrix){.data = (void *)(uintptr_t)x->weight,
                       .row_stride = x->backward ? x->hidden : 1,
                       .col_stride = x->backward ? 1 : x->hidden};
    g->c = (tn_matrix){.row_stride = g->n, .col_stride = 1};
    w->result = take(w, base, (size_t)(g->m * g->n) * sizeof(float));
    w->carry = take(w, base, (size_t)(x->batch * x->hidden) * sizeof(float));
    g->packed_b = take(w, base, tn_gemm_packed_bytes(g->n, g->k, TN_F32));
    g->packed_valid = &w->packed;
    g->workspace = base ? base + w->bytes : NULL;
    g->c.data = w->result;
    w->bytes += tn_gemm_workspace(g, TN_F32, threads);
}

static void multiply(walk *w, const float *a) {
    w->product.a.data = (void *)(uintptr_t)a;
    tn_gemm_f32(&w->product);
}

/* ---- gates ------------------------------------------------------------------------------------------------------- */

typedef struct gates_call {
    void (*run)(const recurrent_step *s, int64_t begin, int64_t end);
    const recurrent_step *step;
} gates_call;

static void run_rows(void *ctx, int64_t begin, int64_t end, TN_UNUSED int worker) {
    const gates_call *g = ctx;
    g->run(g->step, begin, end);
}

static void run_gates(const tn_recurrent_args *x, const recurrent_step *s) {
    const tn_recurrent_table *t = tn_recurrent_steps();
    gates_call g = {.step = s};
    if (x->gates == LSTM)
        g.run = x->backward ? t->lstm_back : t->lstm;
    else
        g.run = x->backward ? t->gru_back : t->gru;
    tn_parallel(x->batch, ELEMENTS_A_THREAD / (x->gates * x->hidden) + 1, run_rows, &g);
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

static void walk_forward(walk *w) {
    const tn_recurrent_args *x = w->args;
    int64_t state = x->batch * x->hidden, wide = state * x->gates;
    const float *h = x->h, *c = x->c;
    for (int64_t i = 0; i < x->steps; i++) {
        int64_t t = x->reverse ? x->steps - 1 - i : i;
        float *h_out = x->out + t * state, *c_out = h_out + x->steps * state;
        multiply(w, h);
        run_gates(x, &(recurrent_step){.hidden = x->hidden,
                                       .x = x->x + t * wide,
                                       .from_h = w->result,
                                       .bias = x->bias,
                                       .h = h,
                                       .c = c,
                                       .h_out = h_out,
                                       .c_out = c_out});
        h = h_out;
        c = c_out;
    }
}

/* Rows of `wide` behind the gradients of all steps: those of the first states, then zeros. */
static void write_first(const tn_recurrent_args *x, float *to, const float *dh, const float *dc, bool adds) {
    int64_t n = x->hidden, row_floats = x->gates * n;
    memset(to, 0, (size_t)(x->batch * row_floats) * sizeof *to);
    for (int64_t row = 0; row < x->batch; row++)
        for (int64_t j = 0; j < n; j++) {
            float a = dh[row * n + j], b = dc[row * n + j];
            to[row * row_floats + j] = adds ? b + a : a;
            if (!adds) to[row * row_floats + n + j] = b;
        }
}

static void walk_lstm_back(walk *w) {
    const tn_recurrent_args *x = w->args;
    int64_t state = x->batch * x->hidden, wide = state * LSTM;
    for (int64_t i = x->steps; i-- > 0;) {
        int64_t t = x->reverse ? x->steps - 1 - i : i, before = x->reverse ? t + 1 : t - 1;
        float *d = x->out + t * wide;
        run_gates(x, &(recurrent_step){.hidden = x->hidden,
                                       .last = i == x->steps - 1,
                                       .x = x->x + t * wide,
                                       .c = i ? x->cells + before * state : x->c,
                                       .c_out = (float *)(uintptr_t)(x->cells + t * state),
                                       .dh = x->dy + t * state,
                                       .dc = x->dy + (x->steps + t) * state,
                                       .from_later = w->result,
                                       .carry = w->carry,
                                       .d_x = d});
        multiply(w, d);
    }
    write_first(x, x->out + x->steps * wide, w->result, w->carry, false);
}

static void walk_gru_back(walk *w) {
    const tn_recurrent_args *x = w->args;
    int64_t state = x->batch * x->hidden, wide = state * x->gates;
    float *of_h = x->out + (x->steps + 1) * wide;
    for (int64_t i = x->steps; i-- > 0;) {
        int64_t t = x->reverse ? x->steps - 1 - i : i;
        run_gates(x, &(recurrent_step){.hidden = x->hidden,
                                       .last = i == x->steps - 1,
                                       .x = x->x + t * wide,
                                       .from_h = x->c + t * wide,
                                       .h = x->h + t * state,
                                       .dh = x->dy + t * state,
                                       .from_later = w->result,
                                       .carry = w->carry,
                                       .d_x = x->out + t * wide,
                                       .d_h = of_h + t * wide});
        multiply(w, of_h + t * wide);
    }
    write_first(x, x->out + x->steps * wide, w->result, w->carry, true);
    memset(of_h + x->steps * wide, 0, (size_t)wide * sizeof *of_h);
}

size_t tn_recurrent_workspace(const tn_recurrent_args *args, int threads) {
    tn_recurrent_args sizes = *args;
    sizes.workspace = NULL;
    walk w;
    open_walk(&w, &sizes, threads);
    return w.bytes + 64;
}

void tn_recurrent(const tn_recurrent_args *args) {
    if (args->batch < 1) return;
    walk w;
    open_walk(&w, args, tn_threads());
    if (!args->backward)
        walk_forward(&w);
    else if (args->gates == LSTM)
        walk_lstm_back(&w);
    else
        walk_gru_back(&w);
}
