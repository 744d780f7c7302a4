/* test_nn.c — modules own what they say they own; layers compute what PyTorch's compute
 * (tests/golden/layers.safetensors); initial values are distributed as they should be; policies have
 * the shapes that they promise. */
#include "test_support.h"

#include <math.h>

#include "trunnion/trunnion.h"

static const char golden_path[] = "tests/golden/layers.safetensors";

static void assert_near(double got, double expected, double tolerance) {
    if (!(fabs(got - expected) <= tolerance)) fail_msg("%.9g, not %.9g", got, expected);
}

/* ---- the tree ---------------------------------------------------------------------------------------------------- */

static void names_are_paths(void **state) {
    (void)state;
    tn_module *root = tn_module_root(), *blocks = tn_module_new(root, "blocks", NULL, NULL);
    tn_module *first = tn_nn_linear(blocks, "0", 3, 2, true);
    tn_nn_batch_norm2d(blocks, "1", 4, NULL);
    assert_ok(tn_module_status(root));
    assert_ptr_equal(tn_module_child(root, "blocks.0"), first);
    assert_ptr_equal(tn_module_variable(root, "blocks.0.weight"), tn_module_variable(first, "weight"));
    assert_null(tn_module_variable(root, "blocks.2.weight"));
    assert_null(tn_module_variable(root, "blocks.0"));
    assert_null(tn_module_child(root, "blocks.0.weight"));

    static const char *const names[] = {"blocks.0.weight",
                                        "blocks.0.bias",
                                        "blocks.1.weight",
                                        "blocks.1.bias",
                                        "blocks.1.running_mean",
                                        "blocks.1.running_var",
                                        "blocks.1.num_batches_tracked"};
    tn_variable *items;
    int count;
    assert_ok(tn_module_variables(root, &items, &count));
    assert_int_equal(count, 7);
    for (int i = 0; i < count; i++) {
        assert_string_equal(items[i].name, names[i]);
        assert_int_equal(items[i].parameter, i < 4);
        assert_int_equal(tn_requires_grad(items[i].tensor), i < 4);
    }
    tn_variables_free(items);
    assert_int_equal(tn_module_parameter_count(root), 3 * 2 + 2 + 4 + 4);
    tn_module_free(root);
}

static void the_first_failure_is_remembered(void **state) {
    (void)state;
    tn_module *root = tn_module_root();
    assert_non_null(tn_nn_linear(root, "a", 3, 2, true));
    assert_null(tn_nn_linear(root, "a", 3, 2, true));
    assert_null(tn_nn_dropout(root, "b", 0.5)); /* fine by itself, but the tree has failed */
    assert_null(tn_nn_linear(tn_nn_linear(root, "c", 1, 1, true), "d", 1, 1, true));
    assert_int_equal(tn_module_status(root), TN_ERR_ARGUMENT);
    assert_text_has(tn_error(), "\"a\" is already in use");
    {
        TN_SCOPE;
        tn_tensor *y = tn_forward(NULL, tn_scalar(1));
        assert_int_equal(tn_status_of(y), TN_ERR_ARGUMENT);
    }
    tn_module_free(root);
}

static void wrong_sizes_are_refused(void **state) {
    (void)state;
    static const double bad_p[] = {-0.1, 1, NAN};
    for (int k = 0; k < 7; k++) {
        tn_module *root = tn_module_root();
        tn_nn_conv2d_options groups = TN_NN_CONV2D_DEFAULTS;
        groups.groups = 3;
        tn_module *m = k < 3    ? tn_nn_dropout(root, "m", bad_p[k])
                       : k == 3 ? tn_nn_linear(root, "m", 0, 2, true)
                       : k == 4 ? tn_nn_conv2d(root, "m", 4, 6, 3, &groups)
                       : k == 5 ? tn_nn_multihead_attention(root, "m", 10, 3, 0)
                                : tn_nn_linear(root, "m.n", 1, 2, true);
        assert_null(m);
        assert_int_equal(tn_module_status(root), TN_ERR_ARGUMENT);
        assert_text_has(tn_error(), "\"m");
        tn_module_free(root);
    }
}

static tn_tensor *twice(tn_module *m, const tn_tensor *x) {
    const double *factor = tn_module_self(m);
    return tn_mul(x, tn_scalar(*factor));
}

static int destroyed;
static void count_destroyed(void *self) {
    (void)self;
    destroyed++;
}

static void modules_of_the_users_own_work(void **state) {
    (void)state;
    static const tn_module_type type = {sizeof(tn_module_type), "twice", twice, count_destroyed};
    double two = 2;
    tn_module *root = tn_module_root(), *net = tn_nn_sequential(root, "net");
    tn_module_new(net, "first", &type, &two);
    tn_nn_function(net, "second", tn_neg);
    assert_ok(tn_module_status(root));
    {
        TN_SCOPE;
        assert_near(tn_item(tn_forward(net, tn_scalar(3))), -6, 0);
    }
    assert_null(tn_module_new(net, "first", &type, &two)); /* taken: self is given back at once */
    assert_int_equal(destroyed, 1);
    tn_module_free(root);
    assert_int_equal(destroyed, 2);
}

/* ---- layers against PyTorch -------------------------------------------------------------------------------------- */

typedef struct fixture {
    tn_module *root;
    tn_safetensors *file;
} fixture;

static int load_fixture(void **state) {
    static fixture f;
    tn_nn_conv2d_options conv = TN_NN_CONV2D_DEFAULTS;
    conv.stride = 2;
    conv.padding = 1;
    conv.groups = 2;
    tn_nn_encoder_options encoder = TN_NN_ENCODER_DEFAULTS;
    encoder.feedforward = 20;
    tn_nn_encoder_options first = TN_NN_ENCODER_DEFAULTS;
    first.feedforward = 20;
    first.norm_first = true;
    f.root = tn_module_root();
    tn_nn_linear(f.root, "linear", 5, 7, true);
    tn_nn_conv2d(f.root, "conv2d", 4, 6, 3, &conv);
    tn_nn_batch_norm2d(f.root, "batch_norm2d", 3, NULL);
    tn_nn_layer_norm(f.root, "layer_norm", 9, NULL);
    tn_nn_embedding(f.root, "embedding", 10, 4);
    tn_nn_multihead_attention(f.root, "attention", 12, 3, 0);
    tn_nn_transformer_encoder_layer(f.root, "encoder", 12, 3, &encoder);
    tn_nn_transformer_encoder_layer(f.root, "encoder_first", 12, 3, &first);
    tn_nn_lstm_cell(f.root, "lstm_cell", 5, 6);
    conv = (tn_nn_conv2d_options)TN_NN_CONV2D_DEFAULTS;
    conv.stride = conv.dilation = 2;
    conv.padding = 1;
    tn_nn_conv1d(f.root, "conv1d", 4, 6, 3, &conv);
    conv.stride = conv.dilation = 1;
    conv.groups = 2;
    tn_nn_conv3d(f.root, "conv3d", 2, 4, 2, &conv);
    tn_nn_batch_norm1d(f.root, "batch_norm1d", 5, NULL);
    tn_nn_batch_norm3d(f.root, "batch_norm3d", 2, NULL);
    tn_nn_group_norm(f.root, "group_norm", 2, 6, NULL);
    tn_nn_rms_norm(f.root, "rms_norm", 7, 1e-6);
    *state = &f;
    if (tn_module_status(f.root) == TN_OK && tn_module_load(f.root, golden_path) == TN_OK &&
        tn_safetensors_open(golden_path, &f.file) == TN_OK)
        return 0;
    print_error("%s\n", tn_error());
    return -1;
}

static int free_fixture(void **state) {
    fixture *f = *state;
    tn_safetensors_close(f->file);
    tn_module_free(f->root);
    return 0;
}

/* expected: the file's tensor "kind.name". */
static void assert_equals_file(const fixture *f, const tn_tensor *got, const char *kind, const char *name) {
    char path[80];
    snprintf(path, sizeof path, "%s.%s", kind, name);
    tn_tensor *expected = tn_safetensors_tensor(f->file, path);
    assert_ok(tn_status_of(got));
    assert_ok(tn_status_of(expected));
    int64_t n = tn_numel(expected);
    assert_int_equal(tn_numel(got), n);
    float *a = malloc((size_t)n * sizeof *a), *b = malloc((size_t)n * sizeof *b);
    assert_ok(tn_read(got, a, (size_t)n * sizeof *a));
    assert_ok(tn_read(expected, b, (size_t)n * sizeof *b));
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(a[i] - b[i]) <= 1e-5 * (1 + fabs(b[i]))))
            fail_msg("%s, element %d: %.9g, PyTorch has %.9g", path, (int)i, (double)a[i], (double)b[i]);
    free(a);
    free(b);
}

static tn_tensor *input(const fixture *f, const char *name) {
    char path[80];
    snprintf(path, sizeof path, "input.%s", name);
    tn_tensor *x = tn_safetensors_tensor(f->file, path);
    assert_ok(tn_status_of(x));
    if (tn_dtype_is_float(tn_dtype_of(x))) assert_ok(tn_set_requires_grad(x, true));
    return x;
}

/* The gradient of the sum of squares of y with respect to x. */
static void assert_gradient(const fixture *f, tn_tensor *x, tn_tensor *y, const char *name) {
    tn_tensor *loss = tn_sum(tn_mul(y, y), NULL, 0, false), *gradient;
    assert_ok(tn_gradients(&loss, 1, NULL, &x, 1, false, &gradient));
    assert_equals_file(f, gradient, "gradient", name);
}

static void layers_compute_what_pytorch_computes(void **state) {
    const fixture *f = *state;
    static const char *const names[] = {"linear",       "conv2d",       "batch_norm2d",  "layer_norm", "embedding",
                                        "attention",    "encoder",      "encoder_first", "conv1d",     "conv3d",
                                        "batch_norm1d", "batch_norm3d", "group_norm",    "rms_norm"};
    for (size_t i = 0; i < TN_COUNT(names); i++) {
        TN_SCOPE;
        tn_tensor *x = input(f, names[i]), *y = tn_forward(tn_module_child(f->root, names[i]), x);
        assert_equals_file(f, y, "output", names[i]);
        if (strcmp(names[i], "embedding") != 0) assert_gradient(f, x, y, names[i]);
    }
}

static void lstm_cell_computes_what_pytorchs_computes(void **state) {
    const fixture *f = *state;
    TN_SCOPE;
    tn_tensor *x = input(f, "lstm_cell"), *out[2];
    tn_lstm_cell_forward(tn_module_child(f->root, "lstm_cell"), x, input(f, "lstm_h"), input(f, "lstm_c"), &out[0],
                         &out[1]);
    tn_tensor *y = tn_cat(out, 2, 1);
    assert_equals_file(f, y, "output", "lstm_cell");
    assert_gradient(f, x, y, "lstm_cell");
}

/* Runs behind layers_compute…, whose forward pass in training mode moved the statistics once. */
static void batch_norm_moves_its_statistics_and_uses_them(void **state) {
    const fixture *f = *state;
    tn_module *norm = tn_module_child(f->root, "batch_norm2d");
    TN_SCOPE;
    assert_equals_file(f, tn_module_variable(norm, "running_mean"), "output", "running_mean");
    assert_equals_file(f, tn_module_variable(norm, "running_var"), "output", "running_var");
    assert_near(tn_item(tn_module_variable(norm, "num_batches_tracked")), 1, 0);
    tn_module_train(f->root, false);
    assert_false(tn_module_is_training(norm));
    assert_equals_file(f, tn_forward(norm, input(f, "batch_norm2d")), "output", "batch_norm2d_evaluated");
    assert_near(tn_item(tn_module_variable(norm, "num_batches_tracked")), 1, 0);
    tn_module_train(f->root, true);
}

static void attention_of_three_equals_attention_of_one(void **state) {
    const fixture *f = *state;
    TN_SCOPE;
    tn_tensor *x = input(f, "attention"), *copy = tn_contiguous(x);
    tn_tensor *y = tn_multihead_attention_forward(tn_module_child(f->root, "attention"), x, copy, x, NULL);
    assert_equals_file(f, y, "output", "attention");
    tn_tensor *narrow = tn_narrow(x, 2, 0, 6);
    y = tn_multihead_attention_forward(tn_module_child(f->root, "attention"), x, narrow, x, NULL);
    assert_int_equal(tn_status_of(y), TN_ERR_SHAPE);
    assert_text_has(tn_error(), "key must be [batch, n, 12]");
}

static void dropout_acts_in_training_alone(void **state) {
    (void)state;
    enum { N = 20000 };
    int64_t n = N;
    static float got[N];
    tn_module *root = tn_module_root(), *m = tn_nn_dropout(root, "m", 0.25);
    double sum = 0;
    int zeros = 0;
    {
        TN_SCOPE;
        tn_tensor *ones = tn_full(&n, 1, 1, TN_F32);
        assert_ok(tn_read(tn_forward(m, ones), got, sizeof got));
        for (int i = 0; i < N; i++) {
            zeros += got[i] == 0;
            sum += got[i];
        }
        assert_true(fabs(zeros / (double)N - 0.25) < 0.02);
        assert_true(fabs(sum / N - 1) < 0.03);
        tn_module_train(m, false);
        assert_ok(tn_read(tn_forward(m, ones), got, sizeof got));
        for (int i = 0; i < N; i++)
            assert_near(got[i], 1, 0);
    }
    tn_module_free(root);
}

/* ---- initial values ---------------------------------------------------------------------------------------------- */

static void default_weights_are_pytorchs(void **state) {
    (void)state;
    enum { IN = 100, OUT = 200 };
    static float w[OUT * IN];
    tn_manual_seed(5);
    tn_module *root = tn_module_root();
    tn_nn_linear(root, "m", IN, OUT, true);
    assert_ok(tn_read(tn_module_variable(root, "m.weight"), w, sizeof w));
    double bound = 1 / sqrt(IN), square = 0, most = 0;
    for (int i = 0; i < OUT * IN; i++) {
        assert_true(fabs(w[i]) <= bound);
        most = fmax(most, fabs(w[i]));
        square += (double)w[i] * (double)w[i];
    }
    assert_true(most > 0.99 * bound);
    assert_true(fabs(square / (OUT * IN) - bound * bound / 3) < 0.02 * bound * bound);
    tn_module_free(root);
}

static void orthogonal_matrices_are_orthogonal(void **state) {
    (void)state;
    static const int64_t shapes[][2] = {{5, 12}, {12, 5}, {7, 7}, {1, 3}};
    for (size_t k = 0; k < TN_COUNT(shapes); k++) {
        TN_SCOPE;
        int64_t rows = shapes[k][0], columns = shapes[k][1], small = rows < columns ? rows : columns;
        tn_tensor *w = tn_init_orthogonal(rows, columns, 2), *t = tn_t(w);
        tn_tensor *product = rows <= columns ? tn_matmul(w, t) : tn_matmul(t, w);
        float got[7 * 7];
        assert_ok(tn_read(product, got, (size_t)(small * small) * sizeof *got));
        for (int64_t i = 0; i < small * small; i++)
            assert_near(got[i], i % (small + 1) == 0 ? 4 : 0, 1e-5);
    }
}

static void equal_seeds_give_equal_weights(void **state) {
    (void)state;
    float w[2][12];
    for (int k = 0; k < 2; k++) {
        tn_manual_seed(77);
        tn_module *root = tn_module_root();
        tn_nn_linear(root, "m", 4, 3, false);
        assert_ok(tn_read(tn_module_variable(root, "m.weight"), w[k], sizeof w[k]));
        tn_module_free(root);
    }
    assert_memory_equal(w[0], w[1], sizeof w[0]);
}

/* ---- policies ---------------------------------------------------------------------------------------------------- */

static tn_policy_options small_policy(void) {
    tn_policy_options o = TN_POLICY_DEFAULTS;
    o.observations = 6;
    o.actions = 3;
    o.recurrent = 5;
    return o;
}

static void assert_matrix(const tn_tensor *t, int64_t rows, int64_t columns) {
    assert_ok(tn_status_of(t));
    assert_int_equal(tn_rank(t), 2);
    assert_int_equal(tn_size(t, 0), rows);
    assert_int_equal(tn_size(t, 1), columns);
}

static void mlp_policy_has_no_state(void **state) {
    (void)state;
    tn_policy_options o = small_policy();
    tn_policy *p;
    assert_ok(tn_policy_mlp(&o, &p));
    assert_int_equal(tn_policy_state_count(p), 0);
    {
        TN_SCOPE;
        tn_tensor *logits, *value, *x = tn_randn((int64_t[]){4, 2, 3}, 3); /* observations of any shape */
        tn_policy_forward(p, x, NULL, &logits, &value, NULL);
        assert_matrix(logits, 4, 3);
        assert_matrix(value, 4, 1);
        assert_ok(tn_eval((tn_tensor *[]){logits, value}, 2));
    }
    tn_policy_free(p);
}

static void lstm_policy_carries_its_state(void **state) {
    (void)state;
    tn_policy_options o = small_policy();
    tn_policy *p;
    assert_ok(tn_policy_lstm(&o, &p));
    assert_int_equal(tn_policy_state_count(p), 2);
    {
        TN_SCOPE;
        tn_tensor *x = tn_randn((int64_t[]){4, 6}, 2), *zero[2], *first[2], *second[2], *logits[3], *value;
        tn_policy_initial_state(p, 4, zero);
        assert_matrix(zero[0], 4, 5);
        tn_policy_forward(p, x, zero, &logits[0], &value, first);
        tn_policy_forward(p, x, NULL, &logits[1], &value, NULL); /* NULL: the initial state */
        tn_policy_forward(p, x, first, &logits[2], &value, second);
        assert_matrix(first[0], 4, 5);
        assert_matrix(second[1], 4, 5);
        float got[3][12];
        for (int i = 0; i < 3; i++)
            assert_ok(tn_read(logits[i], got[i], sizeof got[i]));
        assert_memory_equal(got[0], got[1], sizeof got[0]);
        assert_memory_not_equal(got[0], got[2], sizeof got[0]);
    }
    tn_policy_free(p);
}

static void policies_report_what_is_wrong(void **state) {
    (void)state;
    tn_policy_options o = small_policy();
    tn_policy *p;
    assert_ok(tn_policy_lstm(&o, &p));
    {
        TN_SCOPE;
        tn_tensor *logits, *value, *next[2];
        tn_policy_forward(p, tn_scalar(1), NULL, &logits, &value, next);
        assert_int_equal(tn_status_of(logits), TN_ERR_SHAPE);
        assert_int_equal(tn_status_of(value), TN_ERR_SHAPE);
        assert_int_equal(tn_status_of(next[1]), TN_ERR_SHAPE);
        tn_policy_forward(p, tn_randn((int64_t[]){4, 7}, 2), NULL, &logits, &value, next);
        assert_true(tn_status_of(logits) != TN_OK);
    }
    tn_policy_free(p);
    o.actions = 0;
    assert_int_equal(tn_policy_mlp(&o, &p), TN_ERR_ARGUMENT);
    assert_null(p);
}

/* A policy of the user's own: logits are the observation, the value its sum, the state counts calls. */
static void counting_forward(tn_policy *p, const tn_tensor *observations, tn_tensor *const *state, tn_tensor **logits,
                             tn_tensor **value, tn_tensor **new_state) {
    (void)p;
    *logits = tn_mul(observations, tn_scalar(1));
    *value = tn_sum(observations, (int64_t[]){1}, 1, true);
    new_state[0] = tn_add(state[0], tn_scalar(1));
}

static void counting_initial(tn_policy *p, int64_t batch, tn_tensor **state) {
    (void)p;
    state[0] = tn_full(&batch, 1, 0, TN_F32);
}

static void policies_of_the_users_own_work(void **state) {
    (void)state;
    static const tn_policy_type type = {sizeof(tn_policy_type), "counting",       1,
                                        counting_forward,       counting_initial, NULL};
    tn_policy *p;
    assert_ok(tn_policy_new(&type, tn_module_root(), NULL, &p));
    {
        TN_SCOPE;
        tn_tensor *x = tn_full((int64_t[]){1, 3}, 2, 2, TN_F32), *logits, *value, *next, *again;
        tn_policy_forward(p, x, NULL, &logits, &value, &next);
        tn_policy_forward(p, x, &next, &logits, &value, &again);
        assert_near(tn_item(value), 6, 0);
        assert_near(tn_item(again), 2, 0);
    }
    tn_policy_free(p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_paths),
        cmocka_unit_test(the_first_failure_is_remembered),
        cmocka_unit_test(wrong_sizes_are_refused),
        cmocka_unit_test(modules_of_the_users_own_work),
        cmocka_unit_test(dropout_acts_in_training_alone),
        cmocka_unit_test(default_weights_are_pytorchs),
        cmocka_unit_test(orthogonal_matrices_are_orthogonal),
        cmocka_unit_test(equal_seeds_give_equal_weights),
        cmocka_unit_test(mlp_policy_has_no_state),
        cmocka_unit_test(lstm_policy_carries_its_state),
        cmocka_unit_test(policies_report_what_is_wrong),
        cmocka_unit_test(policies_of_the_users_own_work),
    };
    const struct CMUnitTest golden[] = {
        cmocka_unit_test(layers_compute_what_pytorch_computes),
        cmocka_unit_test(lstm_cell_computes_what_pytorchs_computes),
        cmocka_unit_test(batch_norm_moves_its_statistics_and_uses_them),
        cmocka_unit_test(attention_of_three_equals_attention_of_one),
    };
    int failed = cmocka_run_group_tests_name("modules", tests, NULL, NULL);
    return failed + cmocka_run_group_tests_name("layers", golden, load_fixture, free_fixture);
}
