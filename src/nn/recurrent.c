/* recurrent.c — recurrent layers over sequences: RNN, GRU and LSTM, in layers and both directions.
 *
 * The inputs of all steps of a layer are one product; each step then adds the product with its state. All steps of a
 * GRU or LSTM are one operation if the sequences have one length. Sequences of different lengths lie in one batch:
 * behind its end a sequence keeps its state and yields 0, so the backward direction begins at each sequence's own last
 * step. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "nn/make.h"
#include "trunnion/autograd.h"
#include "trunnion/backend.h"
#include "trunnion/nn.h"
#include "trunnion/ops.h"

enum { MOST_LAYERS = 32, DIRECTIONS = 2, MOST_CHUNKS = 16 };

typedef struct direction {
    tn_tensor *weight_ih, *weight_hh, *bias_ih, *bias_hh; /* biases may be NULL */
} direction;

typedef struct recurrent {
    direction of[MOST_LAYERS][DIRECTIONS];
    int64_t input, hidden, layers, directions, gates;
    bool batch_first, relu;
    double dropout;
    const char *name;
} recurrent;

/* ---- steps ------------------------------------------------------------------------------------------------------- */

static tn_tensor *part(const recurrent *s, const tn_tensor *gates, int64_t k) {
    return tn_narrow(gates, 1, k * s->hidden, s->hidden);
}

/* One step of h (and c, of an LSTM) from the step's input product. */
typedef void recurrent_step(const recurrent *s, const direction *d, const tn_tensor *from_x, tn_tensor **h,
                            tn_tensor **c);

static void step_rnn(const recurrent *s, const direction *d, const tn_tensor *from_x, tn_tensor **h,
                     TN_UNUSED tn_tensor **c) {
    tn_tensor *sum = tn_add(from_x, tn_linear(*h, d->weight_hh, d->bias_hh));
    *h = s->relu ? tn_relu(sum) : tn_tanh(sum);
}

/* r, z = σ(…); n = tanh(x's part + r · h's part); h' = n + z·(h − n). */
static void step_gru(const recurrent *s, const direction *d, const tn_tensor *from_x, tn_tensor **h,
                     TN_UNUSED tn_tensor **c) {
    tn_tensor *from_h = tn_linear(*h, d->weight_hh, d->bias_hh);
    tn_tensor *reset = tn_sigmoid(tn_add(part(s, from_x, 0), part(s, from_h, 0)));
    tn_tensor *update = tn_sigmoid(tn_add(part(s, from_x, 1), part(s, from_h, 1)));
    tn_tensor *candidate = tn_tanh(tn_add(part(s, from_x, 2), tn_mul(reset, part(s, from_h, 2))));
    *h = tn_add(candidate, tn_mul(update, tn_sub(*h, candidate)));
}

/* i, f, o = σ(…), g = tanh(…); c' = f·c + i·g; h' = o·tanh(c'). */
static void step_lstm(const recurrent *s, const direction *d, const tn_tensor *from_x, tn_tensor **h, tn_tensor **c) {
    tn_tensor *gates = tn_add(from_x, tn_linear(*h, d->weight_hh, d->bias_hh));
    tn_tensor *input = tn_sigmoid(part(s, gates, 0)), *forget = tn_sigmoid(part(s, gates, 1));
    tn_tensor *candidate = tn_tanh(part(s, gates, 2)), *output = tn_sigmoid(part(s, gates, 3));
    *c = tn_add(tn_mul(forget, *c), tn_mul(input, candidate));
    *h = tn_mul(output, tn_tanh(*c));
}

/* ---- all steps in one operation ---------------------------------------------------------------------------------- */

/* Sequences of one length: returns the states of all steps; *h and *c become the last ones. */
typedef tn_tensor *recurrent_steps(const direction *d, const tn_tensor *from_x, bool backward, tn_tensor **h,
                                   tn_tensor **c);

static tn_tensor *last_of(const tn_tensor *states, bool backward) {
    return tn_select(states, 0, backward ? 0 : tn_size(states, 0) - 1);
}

static tn_tensor *steps_gru(const direction *d, const tn_tensor *from_x, bool backward, tn_tensor **h,
                            TN_UNUSED tn_tensor **c) {
    tn_tensor *all = tn_gru_steps(from_x, d->weight_hh, d->bias_hh, *h, backward);
    *h = last_of(all, backward);
    return all;
}

static tn_tensor *steps_lstm(const direction *d, const tn_tensor *from_x, bool backward, tn_tensor **h, tn_tensor **c) {
    tn_tensor *both = tn_lstm_steps(from_x, d->weight_hh, d->bias_hh, *h, *c, backward), *all = tn_select(both, 0, 0);
    *h = last_of(all, backward);
    *c = last_of(tn_select(both, 0, 1), backward);
    return all;
}

static const struct kind {
    const char *name;
    int64_t gates;
    recurrent_step *step;
    recurrent_steps *steps; /* NULL: step by step */
} kinds[] = {{"rnn", 1, step_rnn, NULL}, {"gru", 3, step_gru, steps_gru}, {"lstm", 4, step_lstm, steps_lstm}};

static const struct kind *kind_of(const recurrent *s) {
    const struct kind *k = kinds;
    while (k->gates != s->gates)
        k++;
    return k;
}

/* ---- a layer ----------------------------------------------------------------------------------------------------- */

/* `count` tensors joined along a new first dim; tn_stack takes fewer than a long sequence has. */
static tn_tensor *stacked(tn_tensor *const *t, int64_t count) {
    enum { AT_ONCE = 128 };
    if (count <= AT_ONCE) return tn_stack(t, (int)count, 0);
    int64_t half = count / 2;
    return tn_cat((tn_tensor *[]){stacked(t, half), stacked(t + half, count - half)}, 2, 0);
}

/* Chunks in which the steps are computed. Without gradients the input products of a chunk stay in the second-level
 * cache until its steps have read them, and all chunks use the same memory. */
static int chunks_of(const recurrent *s, const tn_tensor *x) {
    enum { CHUNK_BYTES = 3 << 19 };
    int64_t steps = tn_size(x, 0), most = steps < MOST_CHUNKS ? steps : MOST_CHUNKS; /* none is empty */
    int64_t row = tn_size(x, 1) * s->gates * s->hidden * (int64_t)tn_dtype_size(tn_dtype_of(x));
    int64_t count = tn_grad_enabled() ? 1 : steps * row / CHUNK_BYTES;
    return count < 1 ? 1 : count > most ? (int)most : (int)count;
}

static tn_tensor *run_chunks(const recurrent *s, const direction *d, const tn_tensor *x, bool backward, tn_tensor **h,
                             tn_tensor **c) {
    int count = chunks_of(s, x);
    tn_tensor *out[MOST_CHUNKS];
    for (int i = 0; i < count; i++) {
        int k = backward ? count - 1 - i : i;
        int64_t first = k * tn_size(x, 0) / count, end = (k + 1) * tn_size(x, 0) / count;
        tn_tensor *from_x = tn_linear(tn_slice(x, 0, first, end, 1), d->weight_ih, d->bias_ih);
        out[k] = kind_of(s)->steps(d, from_x, backward, h, c);
    }
    return count == 1 ? out[0] : tn_cat(out, count, 0);
}

/* x [time, batch, features] → [time, batch, hidden], and the last states in *h and *c. */
static tn_tensor *run_direction(const recurrent *s, const direction *d, const tn_tensor *x, const tn_tensor *lengths,
                                bool backward, tn_tensor **h, tn_tensor **c) {
    int64_t steps = tn_size(x, 0);
    if (!lengths && kind_of(s)->steps) return run_chunks(s, d, x, backward, h, c);
    tn_tensor *from_x = tn_linear(x, d->weight_ih, d->bias_ih), *none, *result;
    none = tn_zeros_like(*h);
    tn_tensor **out = calloc((size_t)steps, sizeof *out);
    if (!out) return tn_failed(TN_ERR_MEMORY, "%s: no memory for %lld steps", s->name, (long long)steps);
    for (int64_t i = 0; i < steps; i++) {
        int64_t t = backward ? steps - 1 - i : i;
        tn_tensor *old_h = *h, *old_c = *c;
        kind_of(s)->step(s, d, tn_select(from_x, 0, t), h, c);
        out[t] = *h;
        if (!lengths) continue;
        tn_tensor *goes_on = tn_unsqueeze(tn_gt(lengths, tn_scalar_int(t)), 1);
        out[t] = tn_where(goes_on, *h, none);
        *h = tn_where(goes_on, *h, old_h);
        if (*c) *c = tn_where(goes_on, *c, old_c);
    }
    result = stacked(out, steps);
    free(out);
    return result;
}

static tn_tensor *check_sequence(const recurrent *s, const tn_tensor *x, const tn_tensor *lengths, const tn_tensor *h0,
                                 const tn_tensor *c0) {
    const tn_tensor *states[] = {h0, c0};
    if (tn_status_of(x) != TN_OK) return tn_contiguous(x);
    int64_t batch = tn_size(x, s->batch_first ? 0 : 1), steps = tn_size(x, s->batch_first ? 1 : 0);
    if (tn_rank(x) != 3 || tn_size(x, 2) != s->input || steps < 1)
        return tn_failed(TN_ERR_SHAPE,
                         "%s: x must be [%s, %lld] with at least one step; its rank is %d and its last extent %lld",
                         s->name, s->batch_first ? "batch, time" : "time, batch", (long long)s->input, tn_rank(x),
                         (long long)tn_size(x, -1));
    if (lengths && (tn_status_of(lengths) != TN_OK || tn_rank(lengths) != 1 || tn_size(lengths, 0) != batch))
        return tn_failed(TN_ERR_SHAPE, "%s: lengths must have one number for each of the %lld sequences", s->name,
                         (long long)batch);
    for (int k = 0; k < 2; k++) {
        const tn_tensor *t = states[k];
        if (!t) continue;
        if (tn_status_of(t) != TN_OK) return tn_contiguous(t);
        if (tn_rank(t) != 3 || tn_size(t, 0) != s->layers * s->directions || tn_size(t, 1) != batch ||
            tn_size(t, 2) != s->hidden)
            return tn_failed(TN_ERR_SHAPE, "%s: states must be [%lld, %lld, %lld]", s->name,
                             (long long)(s->layers * s->directions), (long long)batch, (long long)s->hidden);
    }
    return NULL;
}

/* The same lengths, of which each is 0 to `steps`: else they or, computed later, their evaluation fails as an index. */
static tn_tensor *lengths_within(const tn_tensor *lengths, int64_t steps) {
    return tn_index_select(tn_arange(0, (double)(steps + 1), 1, TN_I64), 0, lengths);
}

static tn_tensor *first_state(const recurrent *s, const tn_tensor *given, int64_t number, int64_t batch, tn_dtype t) {
    return given ? tn_select(given, 0, number) : tn_zeros((int64_t[]){batch, s->hidden}, 2, t);
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
    if (lengths) lengths = lengths_within(lengths, tn_size(x, s->batch_first ? 1 : 0));
    if (lengths && tn_status_of(lengths) != TN_OK) return failed(tn_contiguous(lengths), h_n, c_n);
    bool lstm = s->gates == 4, training = tn_module_is_training(m);
    int64_t batch = tn_size(x, s->batch_first ? 0 : 1), count = s->layers * s->directions;
    const tn_tensor *in = s->batch_first ? tn_transpose(x, 0, 1) : x;
    tn_tensor *y = NULL;
    for (int64_t l = 0; l < s->layers; l++) {
        tn_tensor *out[DIRECTIONS];
        if (l) in = s->dropout > 0 ? tn_dropout(y, s->dropout, training) : y;
        for (int64_t d = 0; d < s->directions; d++) {
            int64_t number = l * s->directions + d;
            tn_tensor *h = first_state(s, h0, number, batch, tn_dtype_of(x));
            tn_tensor *c = lstm ? first_state(s, c0, number, batch, tn_dtype_of(x)) : NULL;
            out[d] = run_direction(s, &s->of[l][d], in, lengths, d == 1, &h, &c);
            last_h[number] = h;
            last_c[number] = c;
        }
        y = s->directions == 2 ? tn_cat(out, 2, 2) : out[0];
    }
    if (h_n) *h_n = tn_keep(tn_stack(last_h, (int)count, 0));
    if (c_n)
        *c_n = tn_keep(lstm ? tn_stack(last_c, (int)count, 0)
                            : tn_failed(TN_ERR_ARGUMENT, "%s: only an lstm has cell states", s->name));
    return tn_keep(s->batch_first ? tn_contiguous(tn_transpose(y, 0, 1)) : y);
}

static tn_tensor *recurrent_forward(tn_module *m, const tn_tensor *x) {
    return tn_recurrent_forward(m, x, NULL, NULL, NULL, NULL, NULL);
}

/* ---- making ------------------------------------------------------------------------------------------------------ */

static tn_tensor *add_weight(tn_module *m, const recurrent *s, const char *what, int64_t layer, int64_t d,
                             const int64_t *shape, int rank) {
    char name[48];
    double bound = 1 / sqrt((double)s->hidden);
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

static tn_module *make(tn_module *parent, const char *name, const struct kind *k, const tn_module_type *type,
                       int64_t input, int64_t hidden, const tn_nn_recurrent_options *options) {
    tn_nn_recurrent_options o = TN_NN_RECURRENT_DEFAULTS;
    tn_status status = tn_options_read(&o, options, k->name, "tn_nn_recurrent_options o = TN_NN_RECURRENT_DEFAULTS");
    if (!parent || tn_module_fail(parent, status) != TN_OK) return NULL;
    if (!tn_nn_check_sizes(parent, k->name, name, input, hidden) || !check_options(parent, k->name, name, &o))
        return NULL;
    tn_module *m = tn_nn_make(parent, name, type, sizeof(recurrent));
    if (!m) return NULL;
    recurrent *s = tn_module_self(m);
    s->input = input, s->hidden = hidden, s->layers = o.layers, s->gates = k->gates, s->name = k->name;
    s->directions = o.bidirectional ? 2 : 1, s->batch_first = o.batch_first, s->relu = o.relu, s->dropout = o.dropout;
    for (int64_t l = 0; l < o.layers; l++)
        for (int64_t d = 0; d < s->directions; d++) {
            TN_SCOPE;
            direction *w = &s->of[l][d];
            int64_t rows = k->gates * hidden, width = l ? hidden * s->directions : input;
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
    return make(parent, name, &kinds[0], &rnn_type, input, hidden, options);
}

tn_module *tn_nn_gru(tn_module *parent, const char *name, int64_t input, int64_t hidden,
                     const tn_nn_recurrent_options *options) {
    return make(parent, name, &kinds[1], &gru_type, input, hidden, options);
}

tn_module *tn_nn_lstm(tn_module *parent, const char *name, int64_t input, int64_t hidden,
                      const tn_nn_recurrent_options *options) {
    return make(parent, name, &kinds[2], &lstm_type, input, hidden, options);
}
