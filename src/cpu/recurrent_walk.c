/* recurrent_walk.c — all steps of an LSTM or GRU layer: a product with the packed weight, then the gates, step by step.
 *
 * The weight is packed once for all steps. The products are those of gemm.c; the gates are element-wise functions of
 * each instruction set (recurrent_step.c). Sequences do not depend on each other, so threads share the rows of the
 * batch and walk through all steps without waiting. With few rows one thread walks, and products are divided. */
#include <string.h>

#include "cpu/isa.h"

enum {
    LSTM = 4,
    LEAST_ROWS = 4, /* of a thread: worth reading the whole weight at each step from a second-level cache, … */
    FAR_ROWS = 32,  /* … or from further away, with more than … */
    NEAR_BYTES = 512 << 10,
    ELEMENTS_A_THREAD = 1 << 13 /* gates of all steps: fewer take less time than waking a thread */
};

/* Some rows of the batch. */
typedef struct walk {
    tn_recurrent_args args; /* from the first row on; steps are still `batch` rows apart */
    int64_t rows;
    tn_gemm_args product; /* of a step: from_h = h·weightᵀ, or backward the gradient of h */
    float *result;        /* of the product */
    float *carry;         /* backward */
} walk;

/* A call: its parts, and the workspace. */
typedef struct call {
    const tn_recurrent_args *args;
    int64_t parts;
    size_t result, carry, packed, memory; /* bytes; memory: of a part's products */
    bool is_packed;
} call;

static int64_t row_of_part(const call *c, int64_t part) { return c->args->batch * part / c->parts; }

static tn_gemm_args product_of(call *c, int64_t rows) {
    const tn_recurrent_args *x = c->args;
    const int64_t wide = x->gates * x->hidden;
    const int64_t n = x->backward ? x->hidden : wide, k = x->backward ? wide : x->hidden;
    return (tn_gemm_args){
        .batch = {1, 1, 1, 1},
        .m = rows,
        .n = n,
        .k = k,
        .a = {.row_stride = k, .col_stride = 1},
        .b = {.data = (void *)(uintptr_t)x->weight,
              .row_stride = x->backward ? n : 1,
              .col_stride = x->backward ? 1 : k},
        .c = {.row_stride = n, .col_stride = 1},
        .packed_valid = &c->is_packed,
        .way.threads = c->parts > 1,
    };
}

static call call_of(const tn_recurrent_args *x, int threads) {
    call c = {.args = x, .parts = 1};
    tn_gemm_args g = product_of(&c, x->batch);
    c.result = tn_whole_lines((size_t)(g.m * g.n) * sizeof(float));
    c.carry = tn_whole_lines((size_t)(x->batch * x->hidden) * sizeof(float));
    c.packed = tn_whole_lines(tn_gemm_packed_bytes(g.n, g.k, TN_F32));
    int64_t most = x->steps * x->batch * x->gates * x->hidden / ELEMENTS_A_THREAD;
    most = tn_min64(most, x->batch / (c.packed <= NEAR_BYTES ? LEAST_ROWS : FAR_ROWS));
    c.parts = tn_max64(tn_min64(most, threads), 1);
    g.way.threads = c.parts > 1;
    for (g.m = x->batch / c.parts; g.m <= tn_ceil_div(x->batch, c.parts); g.m++) {
        size_t memory = tn_whole_lines(tn_gemm_workspace(&g, TN_F32, threads));
        if (memory > c.memory) c.memory = memory;
    }
    return c;
}

static const float *from(const float *x, int64_t elements) { return x ? x + elements : NULL; }

static void open_walk(walk *w, call *c, int64_t part) {
    const tn_recurrent_args *x = c->args;
    const int64_t row = row_of_part(c, part), state = row * x->hidden, wide = state * x->gates;
    char *shared = x->workspace, *memory = shared + c->result + c->carry + c->packed;
    *w = (walk){.args = *x, .rows = row_of_part(c, part + 1) - row};
    w->args.x = from(x->x, wide);
    w->args.h = from(x->h, state);
    w->args.c = from(x->c, x->backward && x->gates != LSTM ? wide : state);
    w->args.cells = from(x->cells, state);
    w->args.dy = from(x->dy, state);
    w->args.out = x->out + (x->backward ? wide : state);
    w->product = product_of(c, w->rows);
    w->result = (float *)(void *)shared + row * w->product.n;
    w->carry = (float *)(void *)(shared + c->result) + state;
    w->product.c.data = w->result;
    w->product.packed_b = shared + c->result + c->carry;
    w->product.workspace = memory + (size_t)part * c->memory;
}

static void multiply(walk *w, const float *a) {
    w->product.a.data = (void *)(uintptr_t)a;
    tn_gemm_f32(&w->product);
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

static void walk_forward(walk *w) {
    const tn_recurrent_args *x = &w->args;
    const tn_recurrent_table *run = tn_recurrent_steps();
    int64_t state = x->batch * x->hidden, wide = state * x->gates;
    const float *h = x->h, *c = x->c;
    for (int64_t i = 0; i < x->steps; i++) {
        int64_t t = x->reverse ? x->steps - 1 - i : i;
        float *h_out = x->out + t * state, *c_out = h_out + x->steps * state;
        multiply(w, h);
        recurrent_step s = {.hidden = x->hidden,
                            .x = x->x + t * wide,
                            .from_h = w->result,
                            .bias = x->bias,
                            .h = h,
                            .c = c,
                            .h_out = h_out,
                            .c_out = c_out};
        (x->gates == LSTM ? run->lstm : run->gru)(&s, 0, w->rows);
        h = h_out;
        c = c_out;
    }
}

/* The gradients of the first states, behind those of all steps; zeros behind them. */
static void write_first(const walk *w, float *to, bool lstm) {
    const int64_t n = w->args.hidden, row_floats = w->args.gates * n;
    memset(to, 0, (size_t)(w->rows * row_floats) * sizeof *to);
    for (int64_t row = 0; row < w->rows; row++)
        for (int64_t j = 0; j < n; j++) {
            float a = w->result[row * n + j], b = w->carry[row * n + j];
            to[row * row_floats + j] = lstm ? a : b + a;
            if (lstm) to[row * row_floats + n + j] = b;
        }
}

static void walk_back(walk *w) {
    const tn_recurrent_args *x = &w->args;
    const tn_recurrent_table *run = tn_recurrent_steps();
    const bool lstm = x->gates == LSTM;
    const int64_t state = x->batch * x->hidden, wide = state * x->gates;
    float *of_h = lstm ? x->out : x->out + (x->steps + 1) * wide;
    for (int64_t i = x->steps; i-- > 0;) {
        int64_t t = x->reverse ? x->steps - 1 - i : i, before = x->reverse ? t + 1 : t - 1;
        recurrent_step s = {.hidden = x->hidden,
                            .last = i == x->steps - 1,
                            .x = x->x + t * wide,
                            .dh = x->dy + t * state,
                            .from_later = w->result,
                            .carry = w->carry,
                            .d_x = x->out + t * wide,
                            .d_h = of_h + t * wide};
        if (lstm) {
            s.c = i ? x->cells + before * state : x->c;
            s.c_out = (float *)(uintptr_t)(x->cells + t * state);
            s.dc = s.dh + x->steps * state;
        } else {
            s.from_h = x->c + t * wide;
            s.h = x->h + t * state;
        }
        (lstm ? run->lstm_back : run->gru_back)(&s, 0, w->rows);
        multiply(w, s.d_h);
    }
    write_first(w, x->out + x->steps * wide, lstm);
    if (!lstm) memset(of_h + x->steps * wide, 0, (size_t)(w->rows * x->gates * x->hidden) * sizeof *of_h);
}

static void walk_parts(void *ctx, int64_t begin, int64_t end, TN_UNUSED int worker) {
    call *c = ctx;
    for (int64_t part = begin; part < end; part++) {
        walk w;
        open_walk(&w, c, part);
        (c->args->backward ? walk_back : walk_forward)(&w);
    }
}

/* For any number of threads up to `threads`. */
size_t tn_recurrent_workspace(const tn_recurrent_args *args, int threads) {
    size_t most = 0;
    for (; threads > 0; threads--) {
        call c = call_of(args, threads);
        size_t bytes = c.result + c.carry + c.packed + (size_t)c.parts * c.memory;
        if (bytes > most) most = bytes;
    }
    return most;
}

void tn_recurrent(const tn_recurrent_args *args) {
    if (args->batch < 1) return;
    call c = call_of(args, tn_threads());
    tn_gemm_args g = product_of(&c, args->batch);
    g.packed_b = (char *)args->workspace + c.result + c.carry;
    tn_gemm_pack(&g, TN_F32);
    c.is_packed = true;
    if (c.parts == 1)
        walk_parts(&c, 0, 1, 0);
    else
        tn_parallel(c.parts, 1, walk_parts, &c);
}
