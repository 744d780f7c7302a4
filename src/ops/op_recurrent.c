/* op_recurrent.c — all steps of an LSTM or GRU layer in one direction: lstm_steps, gru_steps.
 *
 * The products of the input with its weights are made before, for all steps at once; only what depends on the step
 * before is left. On the CPU one kernel walks through the steps, forward and backward (cpu/recurrent_walk.c); elsewhere
 * each step is composed. Only states are kept for the gradient: the gates are computed again, by one product for all
 * steps. The gradient walks back and yields the gradients of the gates' sums; those of the weights are products again.
 */
#include "ops/ops_common.h"

/* Inputs of the forward ops, and of the gradients. */
enum { FROM_X, WEIGHT, BIAS, FIRST_H, FIRST_C };
enum { LSTM_GATES = 4, GRU_GATES = 3 };

/* ---- shapes ------------------------------------------------------------------------------------------------------ */

static tn_status no_steps(const tn_infer *c, int gates) {
    char x[96], w[96], h[96];
    return tn_fail(TN_ERR_SHAPE,
                   "%s: from_x %s, weight %s and h0 %s do not fit together: they must be [steps, batch, %d·hidden], "
                   "[%d·hidden, hidden] and [batch, hidden], with at least one step",
                   c->row->name, tn_shape_text(c->in[FROM_X], x, sizeof x), tn_shape_text(c->in[WEIGHT], w, sizeof w),
                   tn_shape_text(c->in[FIRST_H], h, sizeof h), gates, gates);
}

static tn_status check_steps(const tn_infer *c, int gates) {
    const tn_node *x = c->in[FROM_X], *w = c->in[WEIGHT], *bias = c->in[BIAS], *h = c->in[FIRST_H];
    if (x->rank != 3 || w->rank != 2 || h->rank != 2 || x->shape[0] < 1) return no_steps(c, gates);
    int64_t hidden = w->shape[1];
    bool fits = hidden > 0 && w->shape[0] == gates * hidden && x->shape[2] == gates * hidden && h->shape[1] == hidden &&
                h->shape[0] == x->shape[1];
    if (!fits) return no_steps(c, gates);
    if (bias && (bias->rank != 1 || bias->shape[0] != gates * hidden))
        return tn_fail(TN_ERR_SHAPE, "%s: the bias must have %lld elements", c->row->name, (long long)(gates * hidden));
    if (gates == LSTM_GATES && !tn_same_shape(c->in[FIRST_C], h))
        return tn_fail(TN_ERR_SHAPE, "%s: c0 must have the shape of h0", c->row->name);
    if (x->symbol[0]) return tn_fail(TN_ERR_UNSUPPORTED, "%s: the number of steps must not be a symbol", c->row->name);
    return TN_OK;
}

static tn_status infer_steps(tn_infer *c, int gates) {
    const tn_node *x = c->in[FROM_X];
    int extra = gates == LSTM_GATES; /* h and c */
    TRY(check_steps(c, gates));
    c->dtype = (tn_dtype)x->dtype;
    c->rank = 3 + extra;
    c->shape[0] = 2;
    c->symbol[0] = 0;
    tn_infer_dim_of(c, extra, x, 0);
    tn_infer_dim_of(c, extra + 1, x, 1);
    tn_infer_dim_of(c, extra + 2, c->in[FIRST_H], 1);
    return TN_OK;
}

static tn_status infer_lstm_steps(tn_infer *c) { return infer_steps(c, LSTM_GATES); }
static tn_status infer_gru_steps(tn_infer *c) { return infer_steps(c, GRU_GATES); }

/* ---- steps, forward ---------------------------------------------------------------------------------------------- */

static tn_node *gate(tn_build *b, tn_node *gates, int64_t k, int count) {
    if (!gates) return NULL;
    int64_t hidden = gates->shape[gates->rank - 1] / count;
    return tn_b_narrow(b, gates, -1, k * hidden, hidden);
}

/* h·weightᵀ + bias */
static tn_node *from_state(tn_build *b, const tn_node *n, tn_node *h) {
    return tn_b_linear(b, h, n->in[WEIGHT], n->in[BIAS]);
}

typedef struct state {
    tn_node *h, *c;
} state;

/* i, f, o = σ(…), g = tanh(…) */
typedef struct lstm_gates {
    tn_node *in, *forget, *cell, *out;
} lstm_gates;

static lstm_gates lstm_gates_of(tn_build *b, tn_node *sums) {
    return (lstm_gates){.in = tn_b_sigmoid(b, gate(b, sums, 0, LSTM_GATES)),
                        .forget = tn_b_sigmoid(b, gate(b, sums, 1, LSTM_GATES)),
                        .cell = tn_b_tanh(b, gate(b, sums, 2, LSTM_GATES)),
                        .out = tn_b_sigmoid(b, gate(b, sums, 3, LSTM_GATES))};
}

/* c' = f·c + i·g; h' = o·tanh(c'). */
static state step_lstm(tn_build *b, tn_node *from_x, tn_node *from_h, state s) {
    lstm_gates g = lstm_gates_of(b, tn_b_add(b, from_x, from_h));
    s.c = tn_b_add(b, tn_b_mul(b, g.forget, s.c), tn_b_mul(b, g.in, g.cell));
    s.h = tn_b_mul(b, g.out, tn_b_tanh(b, s.c));
    return s;
}

/* r, z = σ(…); n = tanh(x's part + r·h's part) */
typedef struct gru_gates {
    tn_node *reset, *keep, *fresh, *of_state; /* of_state: h's part of n */
} gru_gates;

static gru_gates gru_gates_of(tn_build *b, tn_node *from_x, tn_node *from_h) {
    gru_gates g;
    g.reset = tn_b_sigmoid(b, tn_b_add(b, gate(b, from_x, 0, GRU_GATES), gate(b, from_h, 0, GRU_GATES)));
    g.keep = tn_b_sigmoid(b, tn_b_add(b, gate(b, from_x, 1, GRU_GATES), gate(b, from_h, 1, GRU_GATES)));
    g.of_state = gate(b, from_h, 2, GRU_GATES);
    g.fresh = tn_b_tanh(b, tn_b_add(b, gate(b, from_x, 2, GRU_GATES), tn_b_mul(b, g.reset, g.of_state)));
    return g;
}

/* h' = n + z·(h − n). */
static state step_gru(tn_build *b, tn_node *from_x, tn_node *from_h, state s) {
    gru_gates g = gru_gates_of(b, from_x, from_h);
    s.h = tn_b_add(b, g.fresh, tn_b_mul(b, g.keep, tn_b_sub(b, s.h, g.fresh)));
    return s;
}

/* Joined along a new first dim; a node has few inputs. */
static tn_node *stack_steps(tn_build *b, tn_node *const *x, int64_t count) {
    enum { AT_ONCE = 16 };
    if (count <= AT_ONCE) return tn_b_stack(b, x, (int)count, 0);
    int64_t half = count / 2;
    return tn_b_cat(b, (tn_node *[]){stack_steps(b, x, half), stack_steps(b, x + half, count - half)}, 2, 0);
}

/* Room for a node of each step, `kinds` times. */
static tn_node **room_for_steps(tn_build *b, int64_t steps, int kinds) {
    tn_node **room = b->status == TN_OK ? tn_mem_zalloc((size_t)steps * (size_t)kinds, sizeof *room) : NULL;
    if (!room && b->status == TN_OK) b->status = TN_ERR_MEMORY;
    return room;
}

static int64_t step_at(int64_t i, int64_t steps, bool reverse) { return reverse ? steps - 1 - i : i; }

static tn_node *compose_rows(tn_build *b, const tn_node *n, int gates, bool reverse) {
    int64_t steps = n->in[FROM_X]->shape[0];
    tn_node **out = room_for_steps(b, steps, 2), *all[2] = {NULL};
    state s = {n->in[FIRST_H], gates == LSTM_GATES ? n->in[FIRST_C] : NULL};
    if (!out) return NULL;
    for (int64_t i = 0; i < steps; i++) {
        int64_t t = step_at(i, steps, reverse);
        tn_node *from_x = tn_b_select(b, n->in[FROM_X], 0, t), *from_h = from_state(b, n, s.h);
        s = gates == LSTM_GATES ? step_lstm(b, from_x, from_h, s) : step_gru(b, from_x, from_h, s);
        out[t] = s.h;
        out[steps + t] = s.c;
    }
    for (int k = 0; k < (s.c ? 2 : 1) && b->status == TN_OK; k++)
        all[k] = stack_steps(b, out + k * steps, steps);
    tn_mem_free(out);
    return s.c ? tn_b_stack(b, all, 2, 0) : all[0];
}

static tn_node *compose_lstm_rows(tn_build *b, const tn_node *n) {
    return compose_rows(b, n, LSTM_GATES, n->i[TN_LSTM_ROWS_REVERSE]);
}

static tn_node *compose_gru_rows(tn_build *b, const tn_node *n) {
    return compose_rows(b, n, GRU_GATES, n->i[TN_GRU_ROWS_REVERSE]);
}

/* ---- gradients --------------------------------------------------------------------------------------------------- */

static tn_node *complement(tn_build *b, tn_node *x) { return tn_b_rsub_scalar(b, x, 1); }
static tn_node *sigmoid_slope(tn_build *b, tn_node *y) { return tn_b_mul(b, y, complement(b, y)); }
static tn_node *tanh_slope(tn_build *b, tn_node *y) { return complement(b, tn_b_mul(b, y, y)); }

/* The states that the steps began with: first, then all but the last. */
static tn_node *states_before(tn_build *b, tn_node *all, tn_node *first, bool reverse) {
    if (!all || !first) return NULL;
    int64_t steps = all->shape[0];
    tn_node *lead = tn_b_unsqueeze(b, first, 0);
    if (steps == 1) return lead;
    tn_node *others = tn_b_narrow(b, all, 0, reverse ? 1 : 0, steps - 1);
    return tn_b_cat(b, reverse ? (tn_node *[]){others, lead} : (tn_node *[]){lead, others}, 2, 0);
}

static tn_node *rows_of_steps(tn_build *b, tn_node *x) { return tn_b_flatten(b, x, 0, 1); }

/* What all steps have in common: the gradients of the weights from those of the products with the state. */
static void grads_of_state(tn_build *b, const tn_node *n, tn_node *d_product, tn_node *before, tn_node **grads) {
    if (tn_needs_grad(n, WEIGHT))
        grads[WEIGHT] =
            tn_b_matmul_batched(b, tn_b_transpose(b, rows_of_steps(b, d_product), 0, 1), rows_of_steps(b, before));
    if (tn_needs_grad(n, BIAS)) grads[BIAS] = tn_b_sum_to(b, d_product, n->in[BIAS]);
}

static void grad_lstm_rows(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    bool reverse = n->i[TN_LSTM_ROWS_REVERSE];
    int64_t steps = n->in[FROM_X]->shape[0], hidden = n->in[FIRST_H]->shape[1];
    tn_node *h = tn_b_select(b, tn_b_self(n), 0, 0), *c = tn_b_select(b, tn_b_self(n), 0, 1);
    tn_node *before = states_before(b, h, n->in[FIRST_H], reverse);
    tn_node *sums = tn_b_add(b, n->in[FROM_X], from_state(b, n, before));
    tn_node *all = tn_b_lstm_gradient(b, tn_b_row_major(b, sums), n->in[WEIGHT], tn_b_row_major(b, c), n->in[FIRST_C],
                                      tn_b_row_major(b, dy), reverse);
    tn_node *d_sums = tn_b_narrow(b, all, 0, 0, steps), *first = tn_b_select(b, all, 0, steps);
    grads[FROM_X] = d_sums;
    grads_of_state(b, n, d_sums, before, grads);
    grads[FIRST_H] = tn_b_narrow(b, first, 1, 0, hidden);
    grads[FIRST_C] = tn_b_narrow(b, first, 1, hidden, hidden);
}

static void grad_gru_rows(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    bool reverse = n->i[TN_GRU_ROWS_REVERSE];
    int64_t steps = n->in[FROM_X]->shape[0], hidden = n->in[FIRST_H]->shape[1];
    tn_node *before = states_before(b, tn_b_self(n), n->in[FIRST_H], reverse);
    tn_node *all = tn_b_gru_gradient(b, n->in[FROM_X], n->in[WEIGHT], tn_b_row_major(b, from_state(b, n, before)),
                                     tn_b_row_major(b, before), tn_b_row_major(b, dy), reverse);
    tn_node *of_x = tn_b_select(b, all, 0, 0), *of_h = tn_b_select(b, all, 0, 1);
    grads[FROM_X] = tn_b_narrow(b, of_x, 0, 0, steps);
    grads_of_state(b, n, tn_b_narrow(b, of_h, 0, 0, steps), before, grads);
    grads[FIRST_H] = tn_b_narrow(b, tn_b_select(b, of_x, 0, steps), 1, 0, hidden);
}

/* ---- back through the steps -------------------------------------------------------------------------------------- */

enum { SUMS, BACK_WEIGHT, CELLS, CELL_BEFORE, LSTM_DY };

static tn_status infer_lstm_gradient(tn_infer *c) {
    TRY(tn_infer_same(c));
    c->shape[0]++;
    c->symbol[0] = 0;
    return TN_OK;
}

/* Of sums [steps, batch, 4·hidden]; after them, [h0's, c0's, zeros]. */
static tn_node *compose_lstm_gradient(tn_build *b, const tn_node *n) {
    bool reverse = n->i[TN_LSTM_GRADIENT_REVERSE];
    int64_t steps = n->in[SUMS]->shape[0];
    AUTO_FREE tn_node **out = room_for_steps(b, steps + 1, 1);
    tn_node *dh = NULL, *carry = NULL;
    if (!out) return NULL;
    for (int64_t i = steps; i-- > 0;) {
        int64_t t = step_at(i, steps, reverse);
        tn_node *sums = tn_b_select(b, n->in[SUMS], 0, t), *dy = tn_b_select(b, n->in[LSTM_DY], 1, t);
        tn_node *c_before = i ? tn_b_select(b, n->in[CELLS], 0, step_at(i - 1, steps, reverse)) : n->in[CELL_BEFORE];
        tn_node *c = tn_b_tanh(b, tn_b_select(b, n->in[CELLS], 0, t));
        lstm_gates g = lstm_gates_of(b, sums);
        tn_node *own = tn_b_select(b, dy, 0, 0), *dc = tn_b_select(b, dy, 0, 1);
        dh = dh ? tn_b_add(b, own, dh) : own;
        dc = carry ? tn_b_add(b, dc, carry) : dc;
        dc = tn_b_add(b, dc, tn_b_mul(b, tn_b_mul(b, dh, g.out), tanh_slope(b, c)));
        tn_node *part[] = {tn_b_mul(b, tn_b_mul(b, dc, g.cell), sigmoid_slope(b, g.in)),
                           tn_b_mul(b, tn_b_mul(b, dc, c_before), sigmoid_slope(b, g.forget)),
                           tn_b_mul(b, tn_b_mul(b, dc, g.in), tanh_slope(b, g.cell)),
                           tn_b_mul(b, tn_b_mul(b, dh, c), sigmoid_slope(b, g.out))};
        out[t] = tn_b_cat(b, part, LSTM_GATES, 1);
        carry = tn_b_mul(b, dc, g.forget);
        dh = tn_b_matmul_batched(b, out[t], n->in[BACK_WEIGHT]);
    }
    tn_node *none = b->status == TN_OK ? tn_b_zeros_like(b, dh) : NULL;
    out[steps] = tn_b_cat(b, (tn_node *[]){dh, carry, none, none}, LSTM_GATES, 1);
    return b->status == TN_OK ? stack_steps(b, out, steps + 1) : NULL;
}

enum { GRU_FROM_X, GRU_WEIGHT, GRU_FROM_H, GRU_BEFORE, GRU_DY };

static tn_status infer_gru_gradient(tn_infer *c) {
    const tn_node *x = c->in[GRU_FROM_X];
    c->dtype = (tn_dtype)x->dtype;
    c->rank = 4;
    c->shape[0] = 2;
    c->shape[1] = x->shape[0] + 1;
    c->symbol[0] = c->symbol[1] = 0;
    tn_infer_dim_of(c, 2, x, 1);
    tn_infer_dim_of(c, 3, x, 2);
    return TN_OK;
}

/* Of from_x and of from_h, [2, steps, batch, 3·hidden]; after the first, [h0's, zeros]. */
static tn_node *compose_gru_gradient(tn_build *b, const tn_node *n) {
    bool reverse = n->i[TN_GRU_GRADIENT_REVERSE];
    int64_t steps = n->in[GRU_FROM_X]->shape[0];
    tn_node **of_x = room_for_steps(b, steps + 1, 2), *carry = NULL, *both[2] = {NULL};
    if (!of_x) return NULL;
    tn_node **of_h = of_x + steps + 1;
    for (int64_t i = steps; i-- > 0;) {
        int64_t t = step_at(i, steps, reverse);
        tn_node *x = tn_b_select(b, n->in[GRU_FROM_X], 0, t), *from_h = tn_b_select(b, n->in[GRU_FROM_H], 0, t);
        tn_node *h = tn_b_select(b, n->in[GRU_BEFORE], 0, t), *dh = tn_b_select(b, n->in[GRU_DY], 0, t);
        gru_gates g = gru_gates_of(b, x, from_h);
        dh = carry ? tn_b_add(b, dh, carry) : dh;
        tn_node *d_fresh = tn_b_mul(b, tn_b_mul(b, dh, complement(b, g.keep)), tanh_slope(b, g.fresh));
        tn_node *d_reset = tn_b_mul(b, tn_b_mul(b, d_fresh, g.of_state), sigmoid_slope(b, g.reset));
        tn_node *d_keep = tn_b_mul(b, tn_b_mul(b, dh, tn_b_sub(b, h, g.fresh)), sigmoid_slope(b, g.keep));
        of_x[t] = tn_b_cat(b, (tn_node *[]){d_reset, d_keep, d_fresh}, GRU_GATES, 1);
        of_h[t] = tn_b_cat(b, (tn_node *[]){d_reset, d_keep, tn_b_mul(b, d_fresh, g.reset)}, GRU_GATES, 1);
        carry = tn_b_add(b, tn_b_mul(b, dh, g.keep), tn_b_matmul_batched(b, of_h[t], n->in[GRU_WEIGHT]));
    }
    tn_node *none = b->status == TN_OK ? tn_b_zeros_like(b, carry) : NULL;
    of_x[steps] = tn_b_cat(b, (tn_node *[]){carry, none, none}, GRU_GATES, 1);
    of_h[steps] = tn_b_cat(b, (tn_node *[]){none, none, none}, GRU_GATES, 1);
    for (int k = 0; k < 2 && b->status == TN_OK; k++)
        both[k] = stack_steps(b, of_x + k * (steps + 1), steps + 1);
    tn_mem_free(of_x);
    return tn_b_stack(b, both, 2, 0);
}

/* ---- the ops ----------------------------------------------------------------------------------------------------- */

/* lstm_rows(from_x, weight, bias, h0, c0, reverse): lstm_steps of contiguous tensors. */
OP_CODE(lstm_rows, .class_ = TN_NATIVE, .infer = infer_lstm_steps, .contiguous = 0xff, .compose = compose_lstm_rows,
        .grad = grad_lstm_rows,
        .cases = "types=f32,f64 tol=1e-5 atol=1e-5; [3,2,12] [12,3] [12] [2,3] [2,3] reverse=false; "
                 "[2,1,8] [8,2] - [1,2] [1,2] reverse=true; [1,0,4] [4,1] [4] [0,1] [0,1] reverse=false");

/* gru_rows(from_x, weight, bias, h0, reverse): gru_steps of contiguous tensors. */
OP_CODE(
    gru_rows, .class_ = TN_NATIVE, .infer = infer_gru_steps, .contiguous = 0xff, .compose = compose_gru_rows,
    .grad = grad_gru_rows,
    .cases =
        "types=f32,f64 tol=1e-5 atol=1e-5; [3,2,9] [9,3] [9] [2,3] reverse=false; [2,1,6] [6,2] - [1,2] reverse=true; "
        "[1,0,3] [3,1] [3] [0,1] reverse=false");

/* lstm_gradient(sums, weight, cells, c0, dy, reverse): the gradients of the gates' sums and of the first states. */
OP_CODE(lstm_gradient, .class_ = TN_NATIVE, .infer = infer_lstm_gradient, .contiguous = 0xff,
        .compose = compose_lstm_gradient,
        .cases = "types=f32,f64 tol=2e-5 atol=2e-5; [3,2,12] [12,3] [3,2,3] [2,3] [2,3,2,3] reverse=false; "
                 "[2,1,8] [8,2] [2,1,2] [1,2] [2,2,1,2] reverse=true");

/* gru_gradient(from_x, weight, from_h, before, dy, reverse): the gradients of both and of the first state. */
OP_CODE(gru_gradient, .class_ = TN_NATIVE, .infer = infer_gru_gradient, .contiguous = 0xff,
        .compose = compose_gru_gradient,
        .cases = "types=f32,f64 tol=2e-5 atol=2e-5; [3,2,9] [9,3] [3,2,9] [3,2,3] [3,2,3] reverse=false; "
                 "[2,1,6] [6,2] [2,1,6] [2,1,2] [2,1,2] reverse=true");

static tn_node *compose_lstm_steps(tn_build *b, const tn_node *n) {
    return tn_b_lstm_rows(b, tn_b_row_major(b, n->in[FROM_X]), tn_b_row_major(b, n->in[WEIGHT]),
                          tn_b_row_major(b, n->in[BIAS]), tn_b_row_major(b, n->in[FIRST_H]),
                          tn_b_row_major(b, n->in[FIRST_C]), n->i[TN_LSTM_STEPS_REVERSE]);
}

static tn_node *compose_gru_steps(tn_build *b, const tn_node *n) {
    return tn_b_gru_rows(b, tn_b_row_major(b, n->in[FROM_X]), tn_b_row_major(b, n->in[WEIGHT]),
                         tn_b_row_major(b, n->in[BIAS]), tn_b_row_major(b, n->in[FIRST_H]), n->i[TN_GRU_STEPS_REVERSE]);
}

/* lstm_steps(from_x, weight, bias, h0, c0, reverse): all steps of an LSTM layer in one direction. from_x [steps, batch,
 * 4·hidden] are the products of the inputs with their weights, gates in PyTorch's order i, f, g, o; weight [4·hidden,
 * hidden] and bias [4·hidden], or NULL, are those of the state; h0 and c0 [batch, hidden]. reverse: the last step
 * comes first. Returns h and c of all steps, [2, steps, batch, hidden]. For layers, tn_nn_lstm uses it. */
OP_CODE(lstm_steps, .promote = true, .to_float = true, .infer = infer_lstm_steps, .compose = compose_lstm_steps,
        .cases =
            "types=f32,f64 tol=1e-5 atol=1e-5; [3,2,12] [12,3] [12] [2,3] [2,3] reverse=false; [19,1,4] [4,1] - [1,1] "
            "[1,1] "
            "reverse=true; "
            "[2,0,8] [8,2] [8] [0,2] [0,2] reverse=false; error=fit [2,3] [12,3] - [2,3] [2,3] reverse=false; "
            "error=fit [0,2,12] [12,3] - [2,3] [2,3] reverse=false; "
            "error=bias [3,2,12] [12,3] [3] [2,3] [2,3] reverse=false; error=c0 [3,2,12] [12,3] - [2,3] [2,1] "
            "reverse=false");

/* gru_steps(from_x, weight, bias, h0, reverse): the same of a GRU layer, gates in PyTorch's order r, z, n: from_x
 * [steps, batch, 3·hidden], weight [3·hidden, hidden]. Returns h of all steps, [steps, batch, hidden]. */
OP_CODE(
    gru_steps, .promote = true, .to_float = true, .infer = infer_gru_steps, .compose = compose_gru_steps,
    .cases =
        "types=f32,f64 tol=1e-5 atol=1e-5; [3,2,9] [9,3] [9] [2,3] reverse=false; [19,1,3] [3,1] - [1,1] reverse=true; "
        "[2,0,6] [6,2] [6] [0,2] reverse=false; error=fit [2,3] [9,3] - [2,3] reverse=false; error=bias [3,2,9] [9,3] "
        "[3] [2,3] reverse=false");
