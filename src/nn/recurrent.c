/* recurrent.c — recurrent layers over sequences: RNN, GRU and LSTM, in layers and both directions.
 *
 * The inputs of all steps of a layer are one product; each step then adds the product with its state. All steps of a
 * GRU or LSTM are one operation. Sequences of different lengths lie in one batch, padded at their ends. The forward
 * direction computes the padding too and leaves the results out: no step depends on a later one. For the backward
 * direction each sequence is turned around within its own length, then it is a forward direction. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "nn/make.h"
#include "nn/recurrent.h"
#include "trunnion/autograd.h"
#include "trunnion/backend.h"
#include "trunnion/nn.h"
#include "trunnion/ops.h"

enum { MOST_LAYERS = 32, DIRECTIONS = 2, MOST_CHUNKS = 16 };

typedef tn_recurrent_state state;
typedef tn_recurrent_weights direction;
typedef tn_recurrent_spans spans;

typedef struct recurrent {
    tn_recurrent_cell cell;
    direction of[MOST_LAYERS][DIRECTIONS];
    int64_t input, layers, directions;
    bool batch_first;
    double dropout;
} recurrent;

/* ---- all steps --------------------------------------------------------------------------------------------------- */

/* States of all steps have one dim more in front. */
static state last_of(state all, bool backward) {
    int64_t last = backward ? 0 : tn_size(all.h, 0) - 1;
    return (state){tn_select(all.h, 0, last), all.c ? tn_select(all.c, 0, last) : NULL};
}

/* `count` tensors joined along a new first dim; tn_stack takes fewer than a long sequence has. */
static tn_tensor *stacked(tn_tensor *const *t, int64_t count) {
    enum { AT_ONCE = 128 };
    if (count <= AT_ONCE) return tn_stack(t, (int)count, 0);
    int64_t half = count / 2;
    return tn_cat((tn_tensor *[]){stacked(t, half), stacked(t + half, count - half)}, 2, 0);
}

static state steps_rnn(const tn_recurrent_cell *s, const direction *d, const tn_tensor *from_x, bool backward,
                       state from) {
    int64_t steps = tn_size(from_x, 0);
    AUTO_NN_FREE tn_tensor **out = calloc((size_t)steps, sizeof *out);
    if (!out) return (state){tn_failed(TN_ERR_MEMORY, "%s: no memory for %lld steps", s->name, (long long)steps), NULL};
    for (int64_t i = 0; i < steps; i++) {
        int64_t t = backward ? steps - 1 - i : i;
        tn_tensor *sum = tn_add(tn_select(from_x, 0, t), tn_linear(from.h, d->weight_hh, d->bias_hh));
        from.h = out[t] = s->relu ? tn_relu(sum) : tn_tanh(sum);
    }
    return (state){stacked(out, steps), NULL};
}

/* The states behind each step; from: before the first. */
static state steps_of(const tn_recurrent_cell *s, const direction *d, const tn_tensor *from_x, bool backward,
                      state from) {
    if (s->gates == 1) return steps_rnn(s, d, from_x, backward, from);
    if (s->gates == 3) return (state){tn_gru_steps(from_x, d->weight_hh, d->bias_hh, from.h, backward), NULL};
    tn_tensor *both = tn_lstm_steps(from_x, d->weight_hh, d->bias_hh, from.h, from.c, backward);
    return (state){tn_select(both, 0, 0), tn_select(both, 0, 1)};
}

/* ---- lengths ----------------------------------------------------------------------------------------------------- */

spans tn_recurrent_spans_of(const tn_tensor *lengths, int64_t steps) {
    if (!lengths) return (spans){0};
    int64_t batch = tn_size(lengths, 0);
    tn_tensor *all = tn_arange(0, (double)(steps + 1), 1, TN_I64);
    spans p = {.lengths = tn_index_select(all, 0, lengths), .number = tn_arange(0, (double)batch, 1, TN_I64)};
    tn_tensor *t = tn_unsqueeze(tn_narrow(all, 0, 0, steps), 1), *within = tn_lt(t, p.lengths);
    tn_tensor *from_end = tn_sub(tn_sub(p.lengths, t), tn_scalar_int(1));
    tn_tensor *row = tn_add(tn_mul(tn_where(within, from_end, t), tn_scalar_int(batch)), p.number);
    p.within = tn_unsqueeze(within, 2);
    p.turned = tn_reshape(row, (int64_t[]){steps * batch}, 1);
    return p;
}

/* Rows `row` of x [time, batch, features]. */
static tn_tensor *rows_of(const tn_tensor *x, const tn_tensor *row) {
    return tn_index_select(tn_flatten(x, 0, 1), 0, row);
}

/* Steps [first, end) of x with its sequences turned around. */
static tn_tensor *turned_steps(const spans *p, const tn_tensor *x, int64_t first, int64_t end) {
    int64_t batch = tn_size(x, 1), shape[] = {end - first, batch, tn_size(x, 2)};
    return tn_reshape(rows_of(x, tn_slice(p->turned, 0, first * batch, end * batch, 1)), shape, 3);
}

tn_tensor *tn_recurrent_cut(const spans *p, const tn_tensor *x, int64_t first, double behind) {
    return tn_where(tn_narrow(p->within, 0, first, tn_size(x, 0)), x, tn_full(NULL, 0, behind, tn_dtype_of(x)));
}

/* For sequences that end among steps [first, end), whose states are `all`: the state at their end; others keep `to`. */
static state at_ends(const spans *p, state all, int64_t first, int64_t end, state to) {
    tn_tensor *last = tn_sub(p->lengths, tn_scalar_int(first + 1));
    tn_tensor *ends = tn_unsqueeze(tn_logical_and(tn_ge_scalar(last, 0), tn_lt_scalar(last, (double)(end - first))), 1);
    last = tn_clamp(last, 0, (double)(end - first - 1));
    tn_tensor *row = tn_add(tn_mul(last, tn_scalar_int(tn_size(p->lengths, 0))), p->number);
    return (state){tn_where(ends, rows_of(all.h, row), to.h), to.c ? tn_where(ends, rows_of(all.c, row), to.c) : NULL};
}

/* ---- a layer ----------------------------------------------------------------------------------------------------- */

/* Chunks in which the steps are computed. Without gradients the input products of a chunk stay in the second-level
 * cache until its steps have read them, and all chunks use the same memory. */
static int chunks_of(const tn_recurrent_cell *s, const tn_tensor *x) {
    enum { CHUNK_BYTES = 3 << 19 };
    int64_t steps = tn_size(x, 0), most = steps < MOST_CHUNKS ? steps : MOST_CHUNKS; /* none is empty */
    int64_t row = tn_size(x, 1) * s->gates * s->hidden * (int64_t)tn_dtype_size(tn_dtype_of(x));
    int64_t count = tn_grad_enabled() ? 1 : steps * row / CHUNK_BYTES;
    return count < 1 ? 1 : count > most ? (int)most : (int)count;
}

tn_tensor *tn_recurrent_run(const tn_recurrent_cell *s, const direction *d, const tn_tensor *x, const spans *p,
                            bool backward, state *last) {
    int count = chunks_of(s, x);
    bool turns = backward && p->lengths;
    tn_tensor *out[MOST_CHUNKS];
    state at = *last;
    for (int i = 0; i < count; i++) {
        int k = backward && !turns ? count - 1 - i : i;
        int64_t first = k * tn_size(x, 0) / count, end = (k + 1) * tn_size(x, 0) / count;
        tn_tensor *in = turns ? turned_steps(p, x, first, end) : tn_slice(x, 0, first, end, 1);
        tn_tensor *from_x = tn_linear(in, d->weight_ih, d->bias_ih);
        if (p->lengths && s->relu) /* a state that grows to infinity, times 0, is NaN */
            from_x = tn_recurrent_cut(p, from_x, first, -HUGE_VAL);
        state all = steps_of(s, d, from_x, backward && !turns, at);
        at = last_of(all, backward && !turns);
        if (p->lengths) *last = at_ends(p, all, first, end, *last);
        out[k] = all.h;
    }
    if (!p->lengths) *last = at;
    tn_tensor *y = count == 1 ? out[0] : tn_cat(out, count, 0);
    return turns ? turned_steps(p, y, 0, tn_size(x, 0)) : y;
}

static tn_tensor *check_sequence(const recurrent *s, const tn_tensor *x, const tn_tensor *lengths, const tn_tensor *h0,
                                 const tn_tensor *c0) {
    const tn_tensor *states[] = {h0, c0};
    if (tn_status_of(x) != TN_OK) return tn_contiguous(x);
    int64_t batch = tn_size(x, s->batch_first ? 0 : 1), steps = tn_size(x, s->batch_first ? 1 : 0);
    if (tn_rank(x) != 3 || tn_size(x, 2) != s->input || steps < 1)
        return tn_failed(TN_ERR_SHAPE,
                         "%s: x must be [%s, %lld] with at least one step; its rank is %d and its last extent %lld",
                         s->cell.name, s->batch_first ? "batch, time" : "time, batch", (long long)s->input, tn_rank(x),
                         (long long)tn_size(x, -1));
    if (lengths && tn_status_of(lengths) != TN_OK) return tn_contiguous(lengths);
    if (lengths && (tn_rank(lengths) != 1 || tn_size(lengths, 0) != batch))
        return tn_failed(TN_ERR_SHAPE, "%s: lengths must have one number for each of the %lld sequences", s->cell.name,
                         (long long)batch);
    for (int k = 0; k < 2; k++) {
        const tn_tensor *t = states[k];
        if (!t) continue;
        if (tn_status_of(t) != TN_OK) return tn_contiguous(t);
        if (tn_rank(t) != 3 || tn_size(t, 0) != s->layers * s->directions || tn_size(t, 1) != batch ||
            tn_size(t, 2) != s->cell.hidden)
            return tn_failed(TN_ERR_SHAPE, "%s: states must be [%lld, %lld, %lld]", s->cell.name,
                             (long long)(s->layers * s->directions), (long long)batch, (long long)s->cell.hidden);
    }
    return NULL;
}

static tn_tensor *first_state(const recurrent *s, const tn_tensor *given, int64_t number, int64_t batch, tn_dtype t) {
    return given ? tn_select(given, 0, number) : tn_zeros((int64_t[]){batch, s->cell.hidden}, 2, t);
}

static tn_tensor *failed(tn_tensor *error, tn_tensor **h_n, tn_tensor **c_n) {
    if (h_n) *h_n = tn_keep(tn_contiguous(error));
    if (c_n) *c_n = tn_keep(tn_contiguous(error));
    return tn_keep(error);
}

tn_tensor *tn_recurrent_forward(tn_module *m, const tn_tensor *x, const tn_tensor *lengths, const tn_tensor *h0,
                                const tn_tensor *c0, tn_tensor **h_n, tn_tensor **c_n) {
    TN_SCOPE;
    if (!m) return failed(tn_failed(TN_ERR_ARGUMENT, "recurrent: the module is NULL; creating it failed"), h_n, c_n);
    const recurrent *s = tn_module_self(m);
    tn_tensor *bad = check_sequence(s, x, lengths, h0, c0), *last_h[MOST_LAYERS * DIRECTIONS],
              *last_c[MOST_LAYERS * DIRECTIONS];
    if (bad) return failed(bad, h_n, c_n);
    spans p = tn_recurrent_spans_of(lengths, tn_size(x, s->batch_first ? 1 : 0));
    tn_status status = lengths ? tn_status_of(p.turned) : TN_OK; /* a float, or out of range */
    if (status != TN_OK) return failed(tn_failed(status, "%s: lengths: %s", s->cell.name, tn_error()), h_n, c_n);
    bool lstm = s->cell.gates == 4, training = tn_module_is_training(m);
    int64_t batch = tn_size(x, s->batch_first ? 0 : 1), count = s->layers * s->directions;
    const tn_tensor *in = s->batch_first ? tn_transpose(x, 0, 1) : x;
    if (lengths) in = tn_recurrent_cut(&p, in, 0, 0);
    tn_tensor *y = NULL;
    for (int64_t l = 0; l < s->layers; l++) {
        tn_tensor *out[DIRECTIONS];
        if (l) in = s->dropout > 0 ? tn_dropout(y, s->dropout, training) : y;
        for (int64_t d = 0; d < s->directions; d++) {
            int64_t number = l * s->directions + d;
            state last = {first_state(s, h0, number, batch, tn_dtype_of(x)), NULL};
            if (lstm) last.c = first_state(s, c0, number, batch, tn_dtype_of(x));
            out[d] = tn_recurrent_run(&s->cell, &s->of[l][d], in, &p, d == 1, &last);
            last_h[number] = last.h;
            last_c[number] = last.c;
        }
        y = s->directions == 2 ? tn_cat(out, 2, 2) : out[0];
        if (lengths) y = tn_recurrent_cut(&p, y, 0, 0);
    }
    if (h_n) *h_n = tn_keep(tn_stack(last_h, (int)count, 0));
    if (c_n)
        *c_n = tn_keep(lstm ? tn_stack(last_c, (int)count, 0)
                            : tn_failed(TN_ERR_ARGUMENT, "%s: only an lstm has cell states", s->cell.name));
    return tn_keep(s->batch_first ? tn_contiguous(tn_transpose(y, 0, 1)) : y);
}

static tn_tensor *recurrent_forward(tn_module *m, const tn_tensor *x) {
    return tn_recurrent_forward(m, x, NULL, NULL, NULL, NULL, NULL);
}

/* ---- making ------------------------------------------------------------------------------------------------------ */

static tn_tensor *add_weight(tn_module *m, const recurrent *s, const char *what, int64_t layer, int64_t d,
                             const int64_t *shape, int rank) {
    char name[48];
    double bound = 1 / sqrt((double)s->cell.hidden);
    snprintf(name, sizeof name, "%s_l%lld%s", what, (long long)layer, d ? "_reverse" : "");
    return tn_module_add_parameter(m, name, tn_init_uniform(shape, rank, -bound, bound));
}

static bool check_options(tn_module *parent, const char *kind, const char *name, const tn_nn_recurrent_options *o) {
    if (o->layers >= 1 && o->layers <= MOST_LAYERS && o->dropout >= 0 && o->dropout < 1) return true;
    tn_module_fail(parent, tn_backend_fail(TN_ERR_ARGUMENT,
                                           "%s \"%s\": layers is %lld and dropout %g; layers must be from 1 to %d, and "
                                           "dropout in [0, 1)",
                                           kind, name ? name : "", (long long)o->layers, o->dropout, MOST_LAYERS));
    return false;
}

static tn_module *make(tn_module *parent, const char *name, const tn_module_type *type, int64_t gates, int64_t input,
                       int64_t hidden, const tn_nn_recurrent_options *options) {
    tn_nn_recurrent_options o = TN_NN_RECURRENT_DEFAULTS;
    tn_status status = tn_options_read(&o, options, type->name, "tn_nn_recurrent_options o = TN_NN_RECURRENT_DEFAULTS");
    if (!parent || tn_module_fail(parent, status) != TN_OK) return NULL;
    if (!tn_nn_check_sizes(parent, type->name, name, input, hidden) || !check_options(parent, type->name, name, &o))
        return NULL;
    tn_module *m = tn_nn_make(parent, name, type, sizeof(recurrent));
    if (!m) return NULL;
    recurrent *s = tn_module_self(m);
    s->cell = (tn_recurrent_cell){type->name, gates, hidden, .relu = gates == 1 && o.relu};
    s->input = input, s->layers = o.layers, s->directions = o.bidirectional ? 2 : 1;
    s->batch_first = o.batch_first, s->dropout = o.dropout;
    for (int64_t l = 0; l < o.layers; l++)
        for (int64_t d = 0; d < s->directions; d++) {
            TN_SCOPE;
            direction *w = &s->of[l][d];
            int64_t rows = gates * hidden, width = l ? hidden * s->directions : input;
            w->weight_ih = add_weight(m, s, "weight_ih", l, d, (int64_t[]){rows, width}, 2);
            w->weight_hh = add_weight(m, s, "weight_hh", l, d, (int64_t[]){rows, hidden}, 2);
            if (!o.bias) continue;
            w->bias_ih = add_weight(m, s, "bias_ih", l, d, &rows, 1);
            w->bias_hh = add_weight(m, s, "bias_hh", l, d, &rows, 1);
        }
    return tn_nn_made(m);
}

static const tn_module_type rnn_type = {sizeof(tn_module_type), "rnn", recurrent_forward, free};
static const tn_module_type gru_type = {sizeof(tn_module_type), "gru", recurrent_forward, free};
static const tn_module_type lstm_type = {sizeof(tn_module_type), "lstm", recurrent_forward, free};

tn_module *tn_nn_rnn(tn_module *parent, const char *name, int64_t input, int64_t hidden,
                     const tn_nn_recurrent_options *options) {
    return make(parent, name, &rnn_type, 1, input, hidden, options);
}

tn_module *tn_nn_gru(tn_module *parent, const char *name, int64_t input, int64_t hidden,
                     const tn_nn_recurrent_options *options) {
    return make(parent, name, &gru_type, 3, input, hidden, options);
}

tn_module *tn_nn_lstm(tn_module *parent, const char *name, int64_t input, int64_t hidden,
                      const tn_nn_recurrent_options *options) {
    return make(parent, name, &lstm_type, 4, input, hidden, options);
}
