/* onnx_rnn.c — ONNX: RNN, GRU and LSTM.
 *
 * The usual LSTM, and the GRU that PyTorch writes, are the layers of nn: one operation for all steps. Of others the
 * contribution of the inputs, which does not depend on earlier steps, is one product for all steps; a product with the
 * state and a few element-wise ops, which fuse, are recorded for each step. Where possible both directions advance
 * together then, the second from the end: half as many steps of twice the size.
 *
 * DynamicQuantizeLSTM of ONNX Runtime is the same network with matrices of bytes, [inputs, gates]; the other operand
 * is rounded to bytes at each step. */
#include <string.h>

#include "nn/recurrent.h"
#include "onnx/operator_support.h"

enum { STEPS_MOST = 65536, FUNCTIONS = 3, TOGETHER = 8 /* steps that pay for a matrix of both directions */ };

/* The gates of one row of an operator's parameters lie one after the other. */
typedef struct net {
    onnx_call *c;
    int gates; /* 1: RNN, 3: GRU, 4: LSTM */
    int64_t steps, batch, hidden;
    bool linear_before_reset, input_forget, batch_first, of_bytes;
    double clip;              /* 0: none */
    const tn_tensor *lengths; /* [batch, 1], i64; NULL: all steps of all sequences count */
} net;

/* One direction; or two, as one dim more before the others. */
typedef struct course {
    const tn_tensor *recurrent, *hidden_bias; /* R; what a GRU adds before it resets */
    onnx_byte_weight recurrent_bytes;         /* R where it is of bytes */
    tn_tensor *given;                         /* [steps, batch, gates · hidden]: from the inputs, with the biases */
    const tn_tensor *peephole;                /* [3 · hidden] or NULL */
    const onnx_activation *of[FUNCTIONS];
    double alpha[FUNCTIONS], beta[FUNCTIONS];
    tn_tensor *h, *cell; /* the state; [batch, hidden] */
} course;

static tn_tensor *apply_rnn(const net *n, const course *k, int function, const tn_tensor *x) {
    if (n->clip > 0) x = tn_clamp(x, -n->clip, n->clip);
    return k->of[function]->of(x, k->alpha[function], k->beta[function]);
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

static tn_tensor *gate(const net *n, const tn_tensor *x, int i) {
    return tn_narrow(x, tn_rank(x) - 1, i * n->hidden, n->hidden);
}

/* Rows `first` to `first + count` of the recurrent matrix times the state, or times a value derived from it. */
static tn_tensor *recur(const course *k, const tn_tensor *state, int64_t first, int64_t count) {
    if (tn_rank(state) == 2) return tn_linear(state, tn_narrow(k->recurrent, 0, first, count), NULL);
    return tn_matmul(state, tn_narrow(k->recurrent, 2, first, count));
}

static tn_tensor *step_rnn(const net *n, course *k, const tn_tensor *given) {
    return apply_rnn(n, k, 0, tn_add(given, recur(k, k->h, 0, n->hidden)));
}

static tn_tensor *step_gru(const net *n, course *k, const tn_tensor *given) {
    int64_t h = n->hidden;
    enum { UPDATE, RESET, HIDDEN };
    tn_tensor *next, *from_hidden;
    if (n->linear_before_reset) {
        from_hidden = recur(k, k->h, 0, 3 * h);
        tn_tensor *reset = apply_rnn(n, k, 0, tn_add(gate(n, given, RESET), gate(n, from_hidden, RESET)));
        tn_tensor *inner = gate(n, from_hidden, HIDDEN);
        if (k->hidden_bias) inner = tn_add(inner, k->hidden_bias);
        next = apply_rnn(n, k, 1, tn_add(gate(n, given, HIDDEN), tn_mul(reset, inner)));
    } else {
        from_hidden = recur(k, k->h, 0, 2 * h);
        tn_tensor *reset = apply_rnn(n, k, 0, tn_add(gate(n, given, RESET), gate(n, from_hidden, RESET)));
        tn_tensor *inner = recur(k, tn_mul(reset, k->h), 2 * h, h);
        next = apply_rnn(n, k, 1, tn_add(gate(n, given, HIDDEN), inner));
    }
    tn_tensor *update = apply_rnn(n, k, 0, tn_add(gate(n, given, UPDATE), gate(n, from_hidden, UPDATE)));
    return tn_add(tn_mul(tn_rsub_scalar(update, 1), next), tn_mul(update, k->h));
}

/* An LSTM's gate with what it sees of the cell. */
static tn_tensor *peeking(const net *n, const course *k, const tn_tensor *all, int i, const tn_tensor *cell) {
    tn_tensor *x = gate(n, all, i);
    return k->peephole ? tn_add(x, tn_mul(gate(n, k->peephole, i), cell)) : x;
}

static tn_tensor *step_lstm(const net *n, course *k, const tn_tensor *given) {
    enum { INPUT, OUTPUT, FORGET, CELL };
    tn_tensor *recurred =
        n->of_bytes ? onnx_product_of_rounded(n->c, k->h, &k->recurrent_bytes) : recur(k, k->h, 0, 4 * n->hidden);
    tn_tensor *all = tn_add(given, recurred);
    tn_tensor *input = apply_rnn(n, k, 0, peeking(n, k, all, INPUT, k->cell));
    tn_tensor *forget =
        n->input_forget ? tn_rsub_scalar(input, 1) : apply_rnn(n, k, 0, peeking(n, k, all, FORGET, k->cell));
    tn_tensor *fresh = apply_rnn(n, k, 1, gate(n, all, CELL));
    k->cell = tn_add(tn_mul(forget, k->cell), tn_mul(input, fresh));
    tn_tensor *output = apply_rnn(n, k, 0, peeking(n, k, all, OUTPUT, k->cell));
    return tn_mul(output, k->of[2]->of(k->cell, k->alpha[2], k->beta[2]));
}

static tn_tensor *step(const net *n, course *k, int64_t t) {
    tn_tensor *given = tn_select(k->given, tn_rank(k->given) - 3, t), *h = k->h, *cell = k->cell;
    k->h = (n->gates == 4 ? step_lstm : n->gates == 3 ? step_gru : step_rnn)(n, k, given);
    if (!n->lengths) return k->h;
    tn_tensor *counts = tn_gt_scalar(n->lengths, (double)t), *y = tn_where(counts, k->h, tn_zeros_like(h));
    k->h = tn_where(counts, k->h, h);
    if (cell) k->cell = tn_where(counts, k->cell, cell);
    return y;
}

/* All steps of a direction: [steps, batch, hidden]. */
static tn_tensor *walk_rnn(const net *n, course *k, bool backwards) {
    AUTO_FREE tn_tensor **y = tn_mem_alloc((size_t)tn_max64(n->steps, 1) * sizeof *y);
    if (!y) return tn_failed(TN_ERR_MEMORY, "%s: out of memory", n->c->row->name);
    for (int64_t i = 0; i < n->steps; i++) {
        int64_t t = backwards ? n->steps - 1 - i : i;
        y[t] = step(n, k, t);
    }
    return n->steps ? onnx_joined(y, n->steps, 0, true)
                    : tn_zeros((int64_t[]){0, n->batch, n->hidden}, 3, tn_dtype_of(k->h));
}

static bool same_functions(const course *k) {
    bool same = true;
    for (int i = 0; i < FUNCTIONS; i++)
        same = same && k[0].of[i] == k[1].of[i] && k[0].alpha[i] == k[1].alpha[i] && k[0].beta[i] == k[1].beta[i];
    return same;
}

/* Of both directions, NULL where they have none; `more`: with a dim of one between. */
static tn_tensor *beside(const tn_tensor *a, const tn_tensor *b, bool more) {
    tn_tensor *both = a ? tn_stack((tn_tensor *[]){(tn_tensor *)(uintptr_t)a, (tn_tensor *)(uintptr_t)b}, 2, 0) : NULL;
    return both && more ? tn_unsqueeze(both, 1) : both;
}

/* Both directions, with the same functions, of sequences that all have all steps; the second was given its inputs from
 * the end. */
static void walk_together(const net *n, course *k, tn_tensor **y) {
    course both = k[0];
    both.recurrent = tn_contiguous(tn_transpose(onnx_in(n->c, 2), 1, 2)); /* steps of k are lines: read as they lie */
    both.given = beside(k[0].given, k[1].given, false);
    both.hidden_bias = beside(k[0].hidden_bias, k[1].hidden_bias, true);
    both.peephole = beside(k[0].peephole, k[1].peephole, true);
    both.h = beside(k[0].h, k[1].h, false);
    both.cell = beside(k[0].cell, k[1].cell, false);
    tn_tensor *all = walk_rnn(n, &both, false);
    y[0] = tn_select(all, 1, 0);
    y[1] = tn_flip(tn_select(all, 1, 1), (int64_t[]){0}, 1);
    for (int d = 0; d < 2; d++) {
        k[d].h = tn_select(both.h, 0, d);
        if (both.cell) k[d].cell = tn_select(both.cell, 0, d);
    }
}

/* ---- the usual steps --------------------------------------------------------------------------------------------- */

static const char *const usual[][FUNCTIONS] = {
    [1] = {"Tanh"}, [3] = {"Sigmoid", "Tanh"}, [4] = {"Sigmoid", "Tanh", "Tanh"}};

static bool is_usual(const net *n, const course *k, int directions) {
    if (n->gates == 1 || n->of_bytes || n->clip > 0 || n->input_forget || onnx_has(n->c, 7)) return false;
    if ((n->gates == 3 && !n->linear_before_reset) || n->steps < 1 || n->hidden < 1) return false;
    for (int d = 0; d < directions; d++)
        for (int i = 0; i < FUNCTIONS && usual[n->gates][i]; i++)
            if (strcmp(k[d].of[i]->name, usual[n->gates][i]) != 0) return false;
    return true;
}

/* `gates` blocks of each direction, or of each of both biases, in another order: the i-th was the one at order[i]. */
static tn_tensor *reordered(const tn_tensor *x, const int *order, int gates) {
    int64_t directions = tn_size(x, 0), sets = tn_rank(x) == 2 ? 2 : 1, hidden = tn_size(x, 1) / (sets * gates);
    const tn_tensor *parts = tn_reshape(x, (int64_t[]){directions * sets, gates, hidden, -1}, 4);
    tn_tensor *part[ONNX_LSTM];
    for (int i = 0; i < gates; i++)
        part[i] = tn_select(parts, 1, order[i]);
    return tn_reshape(tn_stack(part, gates, 1), tn_shape(x), tn_rank(x));
}

/* ONNX: i, o, f, c and z, r, h. */
static tn_tensor *lstm_order(const tn_tensor *x) { return reordered(x, (const int[]){0, 2, 3, 1}, ONNX_LSTM); }
static tn_tensor *gru_order(const tn_tensor *x) { return reordered(x, (const int[]){1, 0, 2}, ONNX_GRU); }

static tn_tensor *in_order(const net *n, int input, int d) {
    bool lstm = n->gates == ONNX_LSTM;
    return tn_select(onnx_derived(n->c, input, lstm ? ONNX_LSTM_GATES : ONNX_GRU_GATES, lstm ? lstm_order : gru_order),
                     0, d);
}

/* The results of all directions; the states are the last ones afterwards. */
static void walk_usual(const net *n, course *k, const tn_tensor *x, int directions, bool reverse, tn_tensor **y) {
    const tn_recurrent_cell cell = {n->c->row->name, n->gates, n->hidden, false};
    const int64_t rows = n->gates * n->hidden;
    tn_recurrent_spans p = tn_recurrent_spans_of(n->lengths ? tn_select(n->lengths, 1, 0) : NULL, n->steps);
    if (n->lengths) x = tn_recurrent_cut(&p, x, 0, 0);
    for (int d = 0; d < directions; d++) {
        tn_recurrent_weights w = {.weight_ih = in_order(n, 1, d), .weight_hh = in_order(n, 2, d)};
        if (onnx_has(n->c, 3)) {
            tn_tensor *both = in_order(n, 3, d);
            w.bias_ih = tn_narrow(both, 0, 0, rows);
            w.bias_hh = tn_narrow(both, 0, rows, rows);
        }
        tn_recurrent_state state = {k[d].h, k[d].cell};
        y[d] = tn_recurrent_run(&cell, &w, x, &p, d == 1 || reverse, &state);
        if (n->lengths) y[d] = tn_recurrent_cut(&p, y[d], 0, 0);
        k[d].h = state.h;
        k[d].cell = state.c;
    }
}

/* ---- what a node says -------------------------------------------------------------------------------------------- */

/* Numbers are given only for functions that have any, in the order of the functions. */
static double next_number(const onnx_attribute *given, size_t *used, const char *name, double otherwise) {
    return name && given && given->floats && *used < given->count ? (double)given->floats[(*used)++] : otherwise;
}

static tn_status read_functions(const net *n, course *k, int directions) {
    const onnx_attribute *names = onnx_find(n->c, "activations"), *alphas = onnx_find(n->c, "activation_alpha"),
                         *betas = onnx_find(n->c, "activation_beta");
    int each = n->gates == 4 ? 3 : n->gates == 3 ? 2 : 1;
    size_t alpha = 0, beta = 0;
    if (names && names->count && names->count != (size_t)(each * directions))
        return onnx_refuse(n->c, "%zu activations, but %d are required: %d for each of %d directions", names->count,
                           each * directions, each, directions);
    for (int i = 0; i < each * directions; i++) {
        const char *name = usual[n->gates][i % each];
        bool given = names && names->strings && (size_t)i < names->count;
        onnx_text text = given ? names->strings[i] : (onnx_text){name, strlen(name)};
        const onnx_activation *a = onnx_activation_named(text);
        if (!a) return onnx_refuse(n->c, "activation '%.*s' is not supported", (int)text.size, text.at);
        course *to = &k[i / each];
        to->of[i % each] = a;
        to->alpha[i % each] = next_number(alphas, &alpha, a->alpha_name, a->alpha);
        to->beta[i % each] = next_number(betas, &beta, a->beta_name, a->beta);
    }
    return TN_OK;
}

/* initial_h or initial_c of direction d. */
static tn_tensor *initial(const net *n, int input, int d) {
    tn_dtype t = tn_dtype_of(onnx_in(n->c, 0));
    if (!onnx_has(n->c, input)) return tn_zeros((int64_t[]){n->batch, n->hidden}, 2, t);
    return tn_select(onnx_in(n->c, input), n->batch_first ? 1 : 0, d);
}

/* x as rows, those after the end of the longest sequence 0: their numbers count for no scale. */
static tn_tensor *without_rest(const net *n, const tn_tensor *x) {
    tn_tensor *step = tn_unsqueeze(tn_unsqueeze(tn_arange(0, (double)n->steps, 1, TN_I64), 1), 1);
    tn_tensor *within = tn_lt(step, tn_amax(n->lengths, TN_ALL, false));
    return tn_reshape(tn_where(within, x, tn_zeros_like(x)), (int64_t[]){n->steps * n->batch, tn_size(x, 2)}, 2);
}

static void prepare_rnn(const net *n, course *k, int d, const tn_tensor *x) {
    onnx_call *c = n->c;
    int64_t wide = n->gates * n->hidden;
    tn_tensor *bias = NULL;
    static const onnx_byte_operands w_bytes = {.b = 1, .b_scale = 8, .b_zero = 9},
                                    r_bytes = {.b = 2, .b_scale = 10, .b_zero = 11};
    if (n->of_bytes)
        k->recurrent_bytes = onnx_byte_weight_of(c, &r_bytes, d);
    else
        k->recurrent = tn_select(onnx_in(c, 2), 0, d);
    if (onnx_has(c, 3)) {
        tn_tensor *both = tn_select(onnx_in(c, 3), 0, d), *r = tn_narrow(both, 0, wide, wide);
        bias = tn_narrow(both, 0, 0, wide);
        if (n->linear_before_reset) {
            k->hidden_bias = gate(n, r, 2);
            tn_tensor *parts[] = {tn_narrow(r, 0, 0, 2 * n->hidden), tn_zeros_like(k->hidden_bias)};
            r = tn_cat(parts, 2, 0);
        }
        bias = tn_add(bias, r);
    }
    tn_tensor *rows = tn_reshape(x, (int64_t[]){n->steps * n->batch, tn_size(x, 2)}, 2); /* of one product */
    tn_tensor *given;
    if (n->of_bytes) {
        if (n->lengths) rows = without_rest(n, x);
        onnx_byte_weight w = onnx_byte_weight_of(c, &w_bytes, d);
        given = onnx_product_of_rounded(c, rows, &w);
        if (bias) given = tn_add(given, bias);
    } else {
        given = tn_linear(rows, tn_select(onnx_in(c, 1), 0, d), bias);
    }
    k->given = tn_reshape(given, (int64_t[]){n->steps, n->batch, wide}, 3);
    if (n->gates == 4 && onnx_has(c, 7)) k->peephole = tn_select(onnx_in(c, 7), 0, d);
}

/* Input i, if it is there, is [a, b, c], or [a, b] for c = −1, or [a] for b = −1. */
static tn_status check_shape(const onnx_call *call, int i, int64_t a, int64_t b, int64_t c) {
    const tn_tensor *t = onnx_in(call, i);
    const int64_t want[] = {a, b, c};
    int rank = 1 + (b >= 0) + (c >= 0);
    if (!t) return TN_OK;
    TRY(tn_status_of(t));
    bool fits = tn_rank(t) == rank;
    for (int d = 0; d < rank && fits; d++)
        fits = tn_size(t, d) == want[d];
    AUTO_STR tn_str given = {0}, wanted = {0};
    for (int d = 0; d < tn_rank(t); d++)
        tn_str_add(&given, "%s%lld", d ? ", " : "", (long long)tn_size(t, d));
    for (int d = 0; d < rank; d++)
        tn_str_add(&wanted, "%s%lld", d ? ", " : "", (long long)want[d]);
    return fits ? TN_OK
                : onnx_refuse(call, "input %d is [%s], but directions, hidden size and the other inputs require [%s]",
                              i, tn_str_text(&given), tn_str_text(&wanted));
}

/* What the node says of directions and the hidden size, and what its inputs say, is the same. */
static tn_status check_extents(const net *n, const tn_tensor *x, int directions) {
    const onnx_call *c = n->c;
    int64_t h = n->hidden, wide = n->gates * h, in = tn_size(x, 2), told = onnx_int(c, "hidden_size", h);
    int64_t lead = n->batch_first ? n->batch : directions, next = n->batch_first ? directions : n->batch;
    if (told != h)
        return onnx_refuse(c, "hidden_size is %lld, but input 2 has a hidden size of %lld", (long long)told,
                           (long long)h);
    TRY(check_shape(c, 1, directions, n->of_bytes ? in : wide, n->of_bytes ? wide : in));
    TRY(check_shape(c, 2, directions, n->of_bytes ? h : wide, n->of_bytes ? wide : h));
    TRY(check_shape(c, 3, directions, 2 * wide, -1));
    TRY(check_shape(c, 4, n->batch, -1, -1));
    TRY(check_shape(c, 5, lead, next, h));
    if (n->gates != 4) return TN_OK;
    TRY(check_shape(c, 6, lead, next, h));
    return check_shape(c, 7, directions, 3 * h, -1);
}

static tn_status read_net(net *n, const tn_tensor *x, int directions) {
    const tn_tensor *r = onnx_in(n->c, 2);
    TRY(tn_status_of(x));
    TRY(tn_status_of(r));
    if (tn_rank(x) != 3 || tn_rank(r) != 3) return onnx_refuse(n->c, "inputs X and R must have three dimensions");
    n->steps = tn_size(x, 0);
    n->batch = tn_size(x, 1);
    n->hidden = tn_size(r, n->of_bytes ? 1 : 2);
    n->clip = onnx_float(n->c, "clip", 0);
    n->linear_before_reset = n->gates == 3 && onnx_int(n->c, "linear_before_reset", 0) != 0;
    n->input_forget = onnx_int(n->c, "input_forget", 0) != 0;
    TRY(check_extents(n, x, directions));
    if (n->steps > STEPS_MOST) return onnx_refuse(n->c, "%lld steps are not supported", (long long)n->steps);
    if (onnx_has(n->c, 4)) n->lengths = tn_unsqueeze(onnx_as(onnx_in(n->c, 4), TN_I64), 1);
    return TN_OK;
}

/* The final states of the directions, concatenated. */
static tn_status put_state(const net *n, int output, tn_tensor *const *state, int directions) {
    return onnx_wants(n->c, output) ? onnx_put(n->c, output, tn_stack(state, directions, n->batch_first ? 1 : 0))
                                    : TN_OK;
}

/* What an LSTM of bytes has besides: scales and zero points of both matrices, and two directions' worth of each. */
static tn_status check_bytes(const onnx_call *c, int directions) {
    for (int i = 1; i <= 2; i++) {
        const tn_tensor *bytes, *scale, *zero;
        TRY(onnx_need(c, i, &bytes));
        TRY(onnx_need(c, 6 + 2 * i, &scale));
        TRY(onnx_need(c, 7 + 2 * i, &zero));
        tn_dtype t = tn_dtype_of(bytes);
        if ((t != TN_I8 && t != TN_U8) || tn_dtype_of(zero) != t || tn_rank(bytes) != 3)
            return onnx_refuse(
                c, "input %d must have three dimensions and be INT8 or UINT8, with zero points of the same type", i);
        if (tn_size(bytes, 0) != directions || tn_size(scale, 0) != directions || tn_size(zero, 0) != directions)
            return onnx_refuse(c, "input %d, its scales and its zero points must have first dimension %d (directions)",
                               i, directions);
        for (int k = 0; k < 2; k++) {
            int64_t count = tn_numel(k ? zero : scale), columns = tn_size(bytes, 2);
            if (count != directions && count != directions * columns)
                return onnx_refuse(
                    c, "input %d has %lld scales or zero points; expected one, or %lld, for each of %d directions",
                    6 + 2 * i + k, (long long)count, (long long)columns, directions);
        }
    }
    return TN_OK;
}

/* The same of other nodes, recorded step by step. */
static void walk_by_steps(const net *n, course *k, const tn_tensor *x, int directions, bool reverse, tn_tensor **y) {
    bool together = directions == 2 && n->steps >= TOGETHER && !n->lengths && !n->of_bytes && same_functions(k);
    for (int d = 0; d < directions; d++)
        prepare_rnn(n, &k[d], d, together && d == 1 ? tn_flip(x, (int64_t[]){0}, 1) : x);
    if (together) {
        walk_together(n, k, y);
        return;
    }
    for (int d = 0; d < directions; d++)
        y[d] = walk_rnn(n, &k[d], d == 1 || reverse);
}

tn_status onnx_recurrent(onnx_call *c) {
    bool of_bytes = c->row->with == ONNX_LSTM_OF_BYTES;
    net n = {.c = c,
             .gates = of_bytes ? ONNX_LSTM : c->row->with,
             .batch_first = onnx_int(c, "layout", 0) != 0,
             .of_bytes = of_bytes};
    onnx_text direction = onnx_string(c, "direction", "forward");
    int directions = onnx_is(direction, "bidirectional") ? 2 : 1;
    const tn_tensor *x = n.batch_first ? tn_transpose(onnx_in(c, 0), 0, 1) : onnx_in(c, 0);
    course k[2] = {0};
    tn_tensor *y[2], *h[2], *cell[2];
    if (of_bytes) TRY(check_bytes(c, directions));
    TRY(read_net(&n, x, directions));
    TRY(read_functions(&n, k, directions));
    for (int d = 0; d < directions; d++) {
        k[d].h = initial(&n, 5, d);
        if (n.gates == 4) k[d].cell = initial(&n, 6, d);
    }
    if (is_usual(&n, k, directions))
        walk_usual(&n, k, x, directions, onnx_is(direction, "reverse"), y);
    else
        walk_by_steps(&n, k, x, directions, onnx_is(direction, "reverse"), y);
    for (int d = 0; d < directions; d++) {
        h[d] = k[d].h;
        cell[d] = k[d].cell;
    }
    static const int64_t batch_first[] = {2, 0, 1, 3};
    tn_tensor *all = tn_stack(y, directions, 1);
    TRY(onnx_put(c, 0, n.batch_first ? tn_permute(all, batch_first, 4) : all));
    TRY(put_state(&n, 1, h, directions));
    return n.gates == 4 ? put_state(&n, 2, cell, directions) : TN_OK;
}

const onnx_op_row onnx_rnn_ops[] = {{"GRU", 7, .run = onnx_recurrent, .with = ONNX_GRU},
                                    {"LSTM", 7, .run = onnx_recurrent, .with = ONNX_LSTM},
                                    {"RNN", 7, .run = onnx_recurrent, .with = ONNX_RNN},
                                    {.name = NULL}};
