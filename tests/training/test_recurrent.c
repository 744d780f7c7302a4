/* test_recurrent.c — recurrent layers over sequences have PyTorch's results and gradients (tests/golden/recurrent.h),
 * for packed lengths too; long sequences; what is refused. */
#include "test_support.h"

#include <math.h>

#include "trunnion/autograd.h"
#include "trunnion/functions.h"
#include "trunnion/nn.h"
#include "trunnion/ops.h"

#include "tests/golden/recurrent.h"

/* The values of torch_recurrent.py. */
static tn_tensor *values(const int64_t *shape, int rank, int k) {
    int64_t n = 1;
    for (int d = 0; d < rank; d++)
        n *= shape[d];
    float *v = malloc((size_t)(n + 1) * sizeof *v);
    assert_non_null(v);
    for (int64_t i = 0; i < n; i++)
        v[i] = (float)((i * 37 + k * 11) % 41 - 20) / 32;
    tn_tensor *t = tn_from_data(v, shape, rank, TN_F32);
    free(v);
    return t;
}

static void fill_weights(tn_module *m) {
    tn_variable *items;
    int count;
    assert_ok(tn_module_parameters(m, &items, &count));
    TN_NO_GRAD;
    for (int k = 0; k < count; k++)
        assert_ok(
            tn_status_of(tn_copy_(items[k].tensor, values(tn_shape(items[k].tensor), tn_rank(items[k].tensor), k))));
    tn_variables_free(items);
}

static void agrees(const char *what, const tn_tensor *t, const double *want) {
    int64_t n = tn_numel(t);
    float *v = malloc((size_t)(n + 1) * sizeof *v);
    assert_non_null(v);
    if (tn_read(t, v, (size_t)n * sizeof *v) != TN_OK) fail_msg("%s: %s", what, tn_error());
    for (int64_t i = 0; i < n; i++)
        if (!(fabs((double)v[i] - want[i]) <= 2e-6 + 1e-5 * fabs(want[i])))
            fail_msg("%s: [%lld] is %.8g, PyTorch has %.8g", what, (long long)i, (double)v[i], want[i]);
    free(v);
}

static void assert_same_bits(const tn_tensor *a, const tn_tensor *b) {
    size_t bytes = (size_t)tn_numel(a) * sizeof(float);
    assert_int_equal(tn_numel(a), tn_numel(b));
    float *x = malloc(2 * bytes), *y = x + tn_numel(a);
    assert_non_null(x);
    assert_ok(tn_read(a, x, bytes));
    assert_ok(tn_read(b, y, bytes));
    assert_memory_equal(x, y, bytes);
    free(x);
}

typedef struct golden {
    const double *y, *h, *dx;
} golden;

/* x [a, b, features], with first states [states, batch, hidden] if states is not 0. */
static void follow(tn_module *m, const int64_t *shape, const tn_tensor *lengths, const int64_t *states, bool cells,
                   golden want) {
    fill_weights(m);
    tn_tensor *x = values(shape, 3, 50), *h0 = states ? values(states, 3, 60) : NULL, *h, *dx;
    tn_tensor *c0 = cells ? values(states, 3, 61) : NULL;
    assert_ok(tn_set_requires_grad(x, true));
    tn_tensor *y = tn_recurrent_forward(m, x, lengths, h0, c0, &h, NULL);
    agrees("output", y, want.y);
    agrees("last state", h, want.h);
    tn_tensor *out[] = {y, h}, *seed[] = {values(tn_shape(y), 3, 70), tn_ones_like(h)};
    assert_ok(tn_gradients(out, 2, seed, &x, 1, false, &dx));
    agrees("gradient", dx, want.dx);
}

static void recurrent_layers_are_pytorchs(void **state) {
    (void)state;
    TN_SCOPE;
    tn_module *root = tn_module_root();
    tn_nn_recurrent_options o = TN_NN_RECURRENT_DEFAULTS;
    o.relu = true;
    follow(tn_nn_rnn(root, "rnn", 3, 4, &o), (int64_t[]){5, 2, 3}, NULL, NULL, false, (golden){rnn_y, rnn_h, rnn_dx});
    o = (tn_nn_recurrent_options)TN_NN_RECURRENT_DEFAULTS;
    o.layers = 2;
    o.bidirectional = o.batch_first = true;
    follow(tn_nn_gru(root, "gru", 3, 4, &o), (int64_t[]){2, 5, 3}, NULL, (int64_t[]){4, 2, 4}, false,
           (golden){gru_y, gru_h, gru_dx});
    tn_tensor *lengths = tn_from_data((int64_t[]){3, 5, 1}, TN_DIMS(3), TN_I64);
    follow(tn_nn_gru(root, "packed_gru", 3, 4, &o), (int64_t[]){3, 5, 3}, lengths, (int64_t[]){4, 3, 4}, false,
           (golden){packed_gru_y, packed_gru_h, packed_gru_dx});
    o.batch_first = false;
    follow(tn_nn_rnn(root, "packed_rnn", 3, 4, &o), (int64_t[]){5, 3, 3}, lengths, NULL, false,
           (golden){packed_rnn_y, packed_rnn_h, packed_rnn_dx});
    follow(tn_nn_lstm(root, "lstm", 3, 4, &o), (int64_t[]){5, 3, 3}, lengths, (int64_t[]){4, 3, 4}, true,
           (golden){lstm_y, lstm_h, lstm_dx});
    o = (tn_nn_recurrent_options)TN_NN_RECURRENT_DEFAULTS;
    o.bias = false;
    o.batch_first = true;
    follow(tn_nn_lstm(root, "plain", 2, 3, &o), (int64_t[]){2, 4, 2}, NULL, NULL, false,
           (golden){plain_y, plain_h, plain_dx});
    assert_non_null(tn_module_variable(root, "gru.weight_hh_l1_reverse"));
    assert_null(tn_module_variable(root, "plain.bias_ih_l0"));
    tn_module_free(root);
}

/* More steps than one stack takes; the same as the steps of a cell by hand, which is this layer on one step each. */
static void a_long_sequence_is_its_steps(void **state) {
    enum { STEPS = 300 };
    (void)state;
    TN_SCOPE;
    tn_module *root = tn_module_root(), *m = tn_nn_gru(root, "gru", 2, 3, NULL);
    tn_tensor *x = values((int64_t[]){STEPS, 1, 2}, 3, 5), *h = NULL, *last;
    tn_tensor *y = tn_recurrent_forward(m, x, NULL, NULL, NULL, &last, NULL);
    for (int t = 0; t < STEPS; t++) {
        tn_recurrent_forward(m, tn_narrow(x, 0, t, 1), NULL, h, NULL, &h, NULL);
        assert_ok(tn_eval(&h, 1));
    }
    assert_true(tn_item(tn_amax(tn_abs(tn_sub(h, last)), TN_ALL, false)) < 1e-6);
    assert_true(tn_item(tn_amax(tn_abs(tn_sub(tn_select(y, 0, STEPS - 1), tn_select(last, 0, 0))), TN_ALL, false)) ==
                0);
    tn_module_free(root);
}

static double furthest(const tn_tensor *x, const tn_tensor *y) {
    return tn_item(tn_amax(tn_abs(tn_sub(x, y)), TN_ALL, false));
}

/* y, its last states, and the gradients of x and of two weights. */
static void layer_results(tn_module *m, tn_tensor *x, const tn_tensor *lengths, bool cells, tn_tensor *out[6]) {
    tn_tensor *to[] = {x, tn_module_variable(m, "weight_hh_l0"), tn_module_variable(m, "weight_ih_l0_reverse")};
    out[0] = tn_recurrent_forward(m, x, lengths, NULL, NULL, &out[1], cells ? &out[2] : NULL);
    if (!cells) out[2] = tn_zeros_like(out[1]);
    tn_tensor *loss = tn_add(tn_sum(tn_mul(out[0], out[0]), TN_ALL, false), tn_sum(out[2], TN_ALL, false));
    assert_ok(tn_gradients(&loss, 1, NULL, to, 3, false, out + 3));
}

static void nearly(int layer, int k, const tn_tensor *x, const tn_tensor *want) {
    double most = tn_item(tn_amax(tn_abs(want), TN_ALL, false)), off = furthest(x, want);
    if (!(off <= 2e-6 * most)) fail_msg("layer %d, gradient %d: %g off, of at most %g", layer, k, off, most);
}

static tn_tensor *gate(const tn_tensor *x, int k, int64_t hidden) { return tn_narrow(x, 1, k * hidden, hidden); }

/* The equations of torch.nn.LSTM and GRU for one direction, step by step; *c: NULL for a GRU. */
static tn_tensor *by_hand(tn_module *m, const char *suffix, const tn_tensor *x, bool backward, tn_tensor **h,
                          tn_tensor **c) {
    enum { MOST = 16 };
    static const char *const names[] = {"weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"};
    tn_tensor *w[4], *out[MOST];
    for (int i = 0; i < 4; i++) {
        char name[40];
        snprintf(name, sizeof name, "%s%s", names[i], suffix);
        w[i] = tn_module_variable(m, name);
    }
    int64_t steps = tn_size(x, 0), n = tn_size(w[1], 1);
    tn_tensor *inputs = tn_linear(x, w[0], w[2]);
    *h = tn_zeros(TN_DIMS(tn_size(x, 1), n), TN_F32);
    if (c) *c = *h;
    for (int64_t i = 0; i < steps; i++) {
        int64_t t = backward ? steps - 1 - i : i;
        tn_tensor *a = tn_select(inputs, 0, t), *b = tn_linear(*h, w[1], w[3]), *sum = tn_add(a, b);
        tn_tensor *first = tn_sigmoid(gate(sum, 0, n)), *second = tn_sigmoid(gate(sum, 1, n));
        if (c) {
            *c = tn_add(tn_mul(second, *c), tn_mul(first, tn_tanh(gate(sum, 2, n))));
            *h = tn_mul(tn_sigmoid(gate(sum, 3, n)), tn_tanh(*c));
        } else {
            tn_tensor *fresh = tn_tanh(tn_add(gate(a, 2, n), tn_mul(first, gate(b, 2, n))));
            *h = tn_add(fresh, tn_mul(second, tn_sub(*h, fresh)));
        }
        out[t] = *h;
    }
    return tn_stack(out, (int)steps, 0);
}

/* Of all full lengths too, which is another plan: states have the same bits. */
static void all_steps_at_once_have_the_bits_of_the_steps(void **state) {
    enum { STEPS = 6, BATCH = 25, HIDDEN = 37 }; /* enough for two threads to divide the batch */
    (void)state;
    TN_SCOPE;
    tn_nn_recurrent_options o = TN_NN_RECURRENT_DEFAULTS;
    o.bidirectional = true;
    tn_module *root = tn_module_root();
    tn_module *layers[] = {tn_nn_lstm(root, "lstm", 3, HIDDEN, &o), tn_nn_gru(root, "gru", 3, HIDDEN, &o)};
    tn_tensor *x = values((int64_t[]){STEPS, BATCH, 3}, 3, 5), *lengths = tn_full(TN_DIMS(BATCH), STEPS, TN_I64);
    assert_ok(tn_set_requires_grad(x, true));
    for (int i = 0; i < 2; i++) {
        tn_tensor *at_once[6], *packed[6], *y[2], *h[2], *c[2], *grads[3];
        tn_tensor *to[] = {x, tn_module_variable(layers[i], "weight_hh_l0"),
                           tn_module_variable(layers[i], "weight_ih_l0_reverse")};
        layer_results(layers[i], x, NULL, i == 0, at_once);
        layer_results(layers[i], x, lengths, i == 0, packed);
        for (int d = 0; d < 2; d++)
            y[d] = by_hand(layers[i], d ? "_reverse" : "", x, d, &h[d], i == 0 ? &c[d] : NULL);
        tn_tensor *all = tn_cat(y, 2, 2), *loss = tn_sum(tn_mul(all, all), TN_ALL, false);
        if (i == 0) loss = tn_add(loss, tn_sum(tn_stack(c, 2, 0), TN_ALL, false));
        assert_ok(tn_gradients(&loss, 1, NULL, to, 3, false, grads));
        assert_same_bits(at_once[0], all);
        assert_same_bits(at_once[1], tn_stack(h, 2, 0));
        if (i == 0) assert_same_bits(at_once[2], tn_stack(c, 2, 0));
        for (int k = 0; k < 3; k++)
            assert_same_bits(packed[k], at_once[k]);
        for (int k = 0; k < 3; k++) {
            nearly(i, k, at_once[3 + k], grads[k]);
            nearly(i, k, packed[3 + k], grads[k]);
        }
    }
    tn_module_free(root);
}

/* Each sequence computed without the others, by an own call without lengths. What lies behind its end is never used,
 * not even a NaN; a sequence without steps keeps its first state. Other lengths use the same plan. */
static void padding_has_no_influence(void **state) {
    enum { STEPS = 7, BATCH = 4, HIDDEN = 5, ROUNDS = 3 };
    static const int64_t lengths[ROUNDS][BATCH] = {{3, 7, 1, 4}, {7, 2, 0, 5}, {1, 1, 6, 2}};
    (void)state;
    TN_SCOPE;
    tn_nn_recurrent_options o = TN_NN_RECURRENT_DEFAULTS;
    o.bidirectional = true;
    tn_module *root = tn_module_root(), *m = tn_nn_lstm(root, "lstm", 3, HIDDEN, &o);
    fill_weights(m);
    tn_tensor *h0 = values((int64_t[]){2, BATCH, HIDDEN}, 3, 8), *c0 = values((int64_t[]){2, BATCH, HIDDEN}, 3, 9);
    tn_tensor *weight = tn_module_variable(m, "weight_ih_l0_reverse");
    int64_t made = 0;
    for (int round = 0; round < ROUNDS; round++) {
        float x[STEPS * BATCH * 3];
        tn_runtime_stats before = {.struct_size = sizeof before}, after = before;
        assert_ok(tn_get_runtime_stats(&before));
        for (int i = 0; i < STEPS * BATCH * 3; i++)
            x[i] = i / (BATCH * 3) < lengths[round][i / 3 % BATCH] ? (float)(i * 37 % 41 - 20) / 32 : NAN;
        tn_tensor *all = tn_from_data(x, TN_DIMS(STEPS, BATCH, 3), TN_F32), *h, *c, *grads[2];
        assert_ok(tn_set_requires_grad(all, true));
        tn_tensor *y =
            tn_recurrent_forward(m, all, tn_from_data(lengths[round], TN_DIMS(BATCH), TN_I64), h0, c0, &h, &c);
        tn_tensor *loss = tn_sum(tn_mul(y, y), TN_ALL, false), *to[] = {all, weight};
        assert_ok(tn_gradients(&loss, 1, NULL, to, 2, false, grads));
        assert_ok(tn_eval((tn_tensor *[]){y, h, c, grads[0], grads[1]}, 5));
        assert_ok(tn_get_runtime_stats(&after));
        made = after.plans_made - before.plans_made;
        tn_tensor *sum = tn_zeros_like(weight);
        for (int64_t b = 0; b < BATCH; b++) {
            int64_t n = lengths[round][b];
            tn_tensor *first_h = tn_narrow(h0, 1, b, 1), *first_c = tn_narrow(c0, 1, b, 1),
                      *own[2] = {first_h, first_c};
            tn_tensor *of_x = tn_narrow(tn_narrow(grads[0], 1, b, 1), 0, 0, n), *own_y = tn_narrow(y, 1, b, 1);
            if (n) {
                tn_tensor *alone = tn_clone(tn_narrow(tn_narrow(tn_detach(all), 1, b, 1), 0, 0, n)), *own_grads[2];
                assert_ok(tn_set_requires_grad(alone, true));
                tn_tensor *want = tn_recurrent_forward(m, alone, NULL, first_h, first_c, &own[0], &own[1]);
                tn_tensor *own_loss = tn_sum(tn_mul(want, want), TN_ALL, false), *own_to[] = {alone, weight};
                assert_ok(tn_gradients(&own_loss, 1, NULL, own_to, 2, false, own_grads));
                assert_true(furthest(tn_narrow(own_y, 0, 0, n), want) < 1e-6);
                nearly(round, (int)b, of_x, own_grads[0]);
                sum = tn_add(sum, own_grads[1]);
            }
            assert_true(tn_item(tn_sum(tn_abs(tn_narrow(own_y, 0, n, STEPS - n)), TN_ALL, false)) == 0);
            assert_true(furthest(tn_narrow(h, 1, b, 1), own[0]) < 1e-6);
            assert_true(furthest(tn_narrow(c, 1, b, 1), own[1]) < 1e-6);
        }
        nearly(round, -1, grads[1], sum);
    }
    assert_int_equal(made, 0);
    tn_module_free(root);
}

/* The states of a relu would reach infinity there, and their product with a gradient of 0 is NaN. */
static void states_do_not_grow_in_the_padding(void **state) {
    enum { STEPS = 80, BATCH = 2 };
    static const int64_t lengths[BATCH] = {2, STEPS};
    (void)state;
    TN_SCOPE;
    float x[STEPS * BATCH];
    tn_nn_recurrent_options o = TN_NN_RECURRENT_DEFAULTS;
    o.relu = o.bidirectional = true;
    tn_module *root = tn_module_root(), *m = tn_nn_rnn(root, "rnn", 1, 1, &o);
    tn_variable *items;
    int count;
    assert_ok(tn_module_parameters(m, &items, &count));
    tn_tensor *to[8], *grads[8];
    for (int k = 0; k < count; k++) {
        to[k] = items[k].tensor;
        TN_NO_GRAD;
        assert_ok(tn_status_of(tn_fill_(to[k], strstr(items[k].name, "bias") ? 0 : 4)));
    }
    tn_variables_free(items);
    for (int i = 0; i < STEPS * BATCH; i++)
        x[i] = i % BATCH ? -1 : 1; /* the longer sequence has states of 0 */
    tn_tensor *y = tn_recurrent_forward(m, tn_from_data(x, TN_DIMS(STEPS, BATCH, 1), TN_F32),
                                        tn_from_data(lengths, TN_DIMS(BATCH), TN_I64), NULL, NULL, NULL, NULL);
    tn_tensor *loss = tn_sum(y, TN_ALL, false);
    assert_ok(tn_gradients(&loss, 1, NULL, to, count, false, grads));
    assert_true(tn_item(loss) == 2 * (4 + 4 * 4 + 4));
    for (int k = 0; k < count; k++)
        assert_true(isfinite(tn_item(grads[k])));
    tn_module_free(root);
}

/* Without gradients the steps are computed in chunks, whose input products share memory. */
static void chunks_of_steps_have_the_same_bits_in_less_memory(void **state) {
    (void)state;
    for (int kind = 0; kind < 4; kind++) {
        TN_SCOPE;
        bool lstm = kind % 2, packed = kind > 1;
        tn_module *root = tn_module_root();
        tn_nn_recurrent_options o = TN_NN_RECURRENT_DEFAULTS;
        o.bidirectional = true;
        tn_module *m = (lstm ? tn_nn_lstm : tn_nn_gru)(root, "net", 8, 32, &o);
        assert_ok(tn_module_status(root));
        fill_weights(m);
        tn_tensor *x = values(TN_DIMS(801, 32, 8), 50), *h[2], *y[2];
        tn_tensor *lengths = tn_arange(25, 825, 25, TN_I64); /* the ends lie in different chunks */
        int64_t peak[2];
        for (int chunks = 0; chunks < 2; chunks++) {
            tn_pool_stats now = {.struct_size = sizeof now}, after = now;
            bool before = tn_set_grad_enabled(!chunks);
            assert_ok(tn_eval((tn_tensor *[]){x, lengths}, 2));
            tn_clear_plans(); /* their memory would be used again */
            tn_device_reset_pool_peak(tn_device_of(x));
            assert_ok(tn_device_get_pool_stats(tn_device_of(x), &now));
            y[chunks] = tn_recurrent_forward(m, x, packed ? lengths : NULL, NULL, NULL, &h[chunks], NULL);
            assert_ok(tn_eval((tn_tensor *[]){y[chunks], h[chunks]}, 2));
            assert_ok(tn_device_get_pool_stats(tn_device_of(x), &after));
            peak[chunks] = after.peak_bytes - now.in_use_bytes;
            (void)tn_set_grad_enabled(before);
        }
        assert_same_bits(y[1], y[0]);
        assert_same_bits(h[1], h[0]);
        int64_t products = tn_numel(x) / 8 * (lstm ? 4 : 3) * 32 * 4;
        if (!packed && peak[1] > peak[0] - products / 2)
            fail_msg("%lld bytes in chunks, %lld at once, where input products take %lld", (long long)peak[1],
                     (long long)peak[0], (long long)products);
        tn_module_free(root);
    }
}

/* One step of a wide batch is larger than a chunk; no chunk may be without steps. */
static void few_steps_of_a_wide_batch_are_as_many_chunks(void **state) {
    (void)state;
    for (int kind = 0; kind < 4; kind++) {
        TN_SCOPE;
        tn_module *root = tn_module_root();
        tn_module *m = (kind % 2 ? tn_nn_lstm : tn_nn_gru)(root, "net", 4, 64, NULL);
        assert_ok(tn_module_status(root));
        fill_weights(m);
        tn_tensor *x = values(TN_DIMS(1 + kind / 2, 3000, 4), 50), *h[2], *y[2];
        for (int chunks = 0; chunks < 2; chunks++) {
            bool before = tn_set_grad_enabled(!chunks);
            y[chunks] = tn_recurrent_forward(m, x, NULL, NULL, NULL, &h[chunks], NULL);
            assert_ok(tn_eval((tn_tensor *[]){y[chunks], h[chunks]}, 2));
            (void)tn_set_grad_enabled(before);
        }
        assert_same_bits(y[1], y[0]);
        assert_same_bits(h[1], h[0]);
        tn_module_free(root);
    }
}

static void refused(tn_tensor *t, const char *words) {
    assert_int_not_equal(tn_status_of(t), TN_OK);
    if (!strstr(tn_error(), words)) fail_msg("\"%s\" is not in: %s", words, tn_error());
}

static void what_does_not_fit_is_refused(void **state) {
    (void)state;
    TN_SCOPE;
    tn_module *root = tn_module_root(), *m = tn_nn_gru(root, "gru", 2, 3, NULL);
    tn_tensor *x = tn_ones(TN_DIMS(4, 5, 2), TN_F32), *two = tn_ones(TN_DIMS(2), TN_I64), *c;
    refused(tn_forward(m, tn_ones(TN_DIMS(4, 5, 3), TN_F32)), "its rank is 3 and its last extent 3");
    refused(tn_forward(m, tn_ones(TN_DIMS(0, 5, 2), TN_F32)), "at least one step");
    refused(tn_recurrent_forward(m, x, two, NULL, NULL, NULL, NULL), "one number for each of the 5 sequences");
    tn_tensor *bad = tn_recurrent_forward(m, x, tn_from_data((int64_t[]){4, 3, 5, 1, 0}, TN_DIMS(5), TN_I64), NULL,
                                          NULL, NULL, NULL);
    refused(bad, "gru: lengths: ");
    refused(bad, "index 5, element 2 of [5], is out of bounds: valid indices are 0 to 4");
    refused(tn_recurrent_forward(m, x, tn_from_data((int32_t[]){4, 3, -1, 1, 0}, TN_DIMS(5), TN_I32), NULL, NULL, NULL,
                                 NULL),
            "index -1, element 2");
    bad = tn_recurrent_forward(m, x, tn_ones(TN_DIMS(5), TN_F32), NULL, NULL, NULL, NULL);
    refused(bad, "gru: lengths: ");
    refused(bad, "integer");
    refused(tn_recurrent_forward(m, x, tn_add(x, tn_ones(TN_DIMS(3), TN_F32)), NULL, NULL, NULL, NULL),
            "add"); /* the cause is kept */
    refused(tn_recurrent_forward(m, x, NULL, x, NULL, NULL, NULL), "states must be [1, 5, 3]");
    refused(tn_recurrent_forward(NULL, x, NULL, NULL, NULL, NULL, NULL), "the module is NULL");
    tn_recurrent_forward(m, x, NULL, NULL, NULL, NULL, &c);
    refused(c, "only an lstm has cell states");
    tn_nn_recurrent_options o = TN_NN_RECURRENT_DEFAULTS;
    o.layers = 0;
    assert_null(tn_nn_lstm(root, "none", 2, 3, &o));
    assert_int_equal(tn_module_status(root), TN_ERR_ARGUMENT);
    tn_module_free(root);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recurrent_layers_are_pytorchs),
        cmocka_unit_test(a_long_sequence_is_its_steps),
        cmocka_unit_test(all_steps_at_once_have_the_bits_of_the_steps),
        cmocka_unit_test(padding_has_no_influence),
        cmocka_unit_test(states_do_not_grow_in_the_padding),
        cmocka_unit_test(chunks_of_steps_have_the_same_bits_in_less_memory),
        cmocka_unit_test(few_steps_of_a_wide_batch_are_as_many_chunks),
        cmocka_unit_test(what_does_not_fit_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
