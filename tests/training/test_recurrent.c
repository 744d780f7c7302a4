/* test_recurrent.c — recurrent layers over sequences have PyTorch's results and gradients (tests/golden/recurrent.h),
 * for packed lengths too; long sequences; what is refused. */
#include "test_support.h"

#include <math.h>

#include "trunnion/autograd.h"
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
    o.batch_first = false;
    const int64_t steps[] = {3, 5, 1}, three = 3;
    follow(tn_nn_lstm(root, "lstm", 3, 4, &o), (int64_t[]){5, 3, 3}, tn_from_data(steps, &three, 1, TN_I64),
           (int64_t[]){4, 3, 4}, true, (golden){lstm_y, lstm_h, lstm_dx});
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

/* Sequences that all have their full length go step by step if the lengths are given: states have the same bits. */
static void all_steps_at_once_have_the_bits_of_the_steps(void **state) {
    enum { STEPS = 6, BATCH = 5, HIDDEN = 37 };
    (void)state;
    TN_SCOPE;
    const int64_t full[BATCH] = {STEPS, STEPS, STEPS, STEPS, STEPS}, batch = BATCH;
    tn_nn_recurrent_options o = TN_NN_RECURRENT_DEFAULTS;
    o.bidirectional = true;
    tn_module *root = tn_module_root();
    tn_module *layers[] = {tn_nn_lstm(root, "lstm", 3, HIDDEN, &o), tn_nn_gru(root, "gru", 3, HIDDEN, &o)};
    tn_tensor *x = values((int64_t[]){STEPS, BATCH, 3}, 3, 5), *lengths = tn_from_data(full, &batch, 1, TN_I64);
    assert_ok(tn_set_requires_grad(x, true));
    for (int i = 0; i < 2; i++) {
        tn_tensor *at_once[6], *by_step[6];
        layer_results(layers[i], x, NULL, i == 0, at_once);
        layer_results(layers[i], x, lengths, i == 0, by_step);
        for (int k = 0; k < 3; k++)
            assert_true(furthest(at_once[k], by_step[k]) == 0);
        for (int k = 3; k < 6; k++) {
            double most = tn_item(tn_amax(tn_abs(by_step[k]), TN_ALL, false)), off = furthest(at_once[k], by_step[k]);
            if (!(off <= 2e-6 * most)) fail_msg("layer %d, gradient %d: %g off, of at most %g", i, k - 3, off, most);
        }
    }
    tn_module_free(root);
}

/* Without gradients the steps are computed in chunks, whose input products share memory. */
static void chunks_of_steps_have_the_same_bits_in_less_memory(void **state) {
    (void)state;
    for (int lstm = 0; lstm < 2; lstm++) {
        TN_SCOPE;
        tn_module *root = tn_module_root();
        tn_nn_recurrent_options o = TN_NN_RECURRENT_DEFAULTS;
        o.bidirectional = true;
        tn_module *m = (lstm ? tn_nn_lstm : tn_nn_gru)(root, "net", 8, 32, &o);
        assert_ok(tn_module_status(root));
        fill_weights(m);
        tn_tensor *x = values(TN_DIMS(801, 32, 8), 50), *h[2], *y[2];
        int64_t peak[2];
        for (int chunks = 0; chunks < 2; chunks++) {
            tn_pool_stats now = {.struct_size = sizeof now}, after = now;
            bool before = tn_set_grad_enabled(!chunks);
            assert_ok(tn_eval(&x, 1));
            tn_device_reset_pool_peak(tn_device_of(x));
            assert_ok(tn_device_get_pool_stats(tn_device_of(x), &now));
            y[chunks] = tn_recurrent_forward(m, x, NULL, NULL, NULL, &h[chunks], NULL);
            assert_ok(tn_eval((tn_tensor *[]){y[chunks], h[chunks]}, 2));
            assert_ok(tn_device_get_pool_stats(tn_device_of(x), &after));
            peak[chunks] = after.peak_bytes - now.in_use_bytes;
            (void)tn_set_grad_enabled(before);
        }
        assert_same_bits(y[1], y[0]);
        assert_same_bits(h[1], h[0]);
        int64_t products = tn_numel(x) / 8 * (lstm ? 4 : 3) * 32 * 4;
        if (peak[1] > peak[0] - products / 2)
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
    refused(tn_recurrent_forward(m, x, tn_from_data((int64_t[]){4, 3, 5, 1, 0}, TN_DIMS(5), TN_I64), NULL, NULL, NULL,
                                 NULL),
            "index 5, element 2 of [5], is out of bounds: valid indices are 0 to 4");
    refused(tn_recurrent_forward(m, x, tn_from_data((int32_t[]){4, 3, -1, 1, 0}, TN_DIMS(5), TN_I32), NULL, NULL, NULL,
                                 NULL),
            "index -1, element 2");
    refused(tn_recurrent_forward(m, x, tn_ones(TN_DIMS(5), TN_F32), NULL, NULL, NULL, NULL), "integer");
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
        cmocka_unit_test(chunks_of_steps_have_the_same_bits_in_less_memory),
        cmocka_unit_test(few_steps_of_a_wide_batch_are_as_many_chunks),
        cmocka_unit_test(what_does_not_fit_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
