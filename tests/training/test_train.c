/* test_train.c — whole trainings: a run that stops and resumes has the bits of one that does not; a checkpoint that
 * does not fit changes nothing; small problems are learned; the cart moves as Gymnasium's. */
#include "test_support.h"

#include <math.h>

#include "cli/random.c"
#include "cli/train/cartpole.c"
#include "trunnion/trunnion.h"

/* ---- a run with everything that has state: batch norm, dropout, Adam, random numbers ----------------------------- */

enum { FEATURES = 6, ROWS = 8, SIDE = 4 };

typedef struct trial {
    tn_module *root, *net;
    tn_optimizer *optimizer;
} trial;

static tn_tensor *flat(const tn_tensor *x) { return tn_flatten(x, 1, -1); }

static trial trial_new(uint64_t seed) {
    tn_nn_conv2d_options same = TN_NN_CONV2D_DEFAULTS;
    same.padding = 1;
    tn_adam_options adam = TN_ADAM_DEFAULTS;
    adam.lr = 0.01;
    adam.max_grad_norm = 1;
    tn_manual_seed(seed);
    trial t = {.root = tn_module_root()};
    t.net = tn_nn_sequential(t.root, "net");
    tn_nn_conv2d(t.net, "0", 1, 2, 3, &same);
    tn_nn_batch_norm2d(t.net, "1", 2, NULL);
    tn_nn_function(t.net, "2", tn_relu);
    tn_nn_function(t.net, "3", flat);
    tn_nn_dropout(t.net, "4", 0.3);
    tn_nn_linear(t.net, "5", 2 * SIDE * SIDE, 3, true);
    assert_ok(tn_module_status(t.root));
    assert_ok(tn_optimizer_adamw(t.root, &adam, &t.optimizer));
    return t;
}

static void trial_free(trial *t) {
    tn_optimizer_free(t->optimizer);
    tn_module_free(t->root);
}

/* Steps `from` … `to` − 1; a step's data follows from its number, noise from the thread's random numbers. */
static void trial_run(trial *t, int64_t from, int64_t to) {
    for (int64_t step = from; step < to; step++) {
        TN_SCOPE;
        int64_t labels[ROWS];
        for (int i = 0; i < ROWS; i++)
            labels[i] = (i + step) % 3;
        tn_tensor *x = tn_randn((int64_t[]){ROWS, 1, SIDE, SIDE}, 4);
        tn_tensor *y = tn_from_data(labels, (int64_t[]){ROWS}, 1, TN_I64);
        tn_optimizer_set_lr(t->optimizer, 0.01 / (double)(1 + step));
        assert_ok(tn_minimize(t->optimizer, tn_cross_entropy(tn_forward(t->net, x), y, NULL, NULL)));
    }
}

static tn_checkpoint trial_checkpoint(const trial *t) {
    tn_checkpoint c = TN_CHECKPOINT_DEFAULTS;
    c.model = t->root;
    c.optimizer = t->optimizer;
    return c;
}

static bool same_files(const char *a, const char *b) {
    char *x, *y;
    size_t m, n;
    assert_ok(tn_file_read(a, &x, &m, 1 << 24));
    assert_ok(tn_file_read(b, &y, &n, 1 << 24));
    bool same = m == n && memcmp(x, y, n) == 0;
    tn_mem_free(x);
    tn_mem_free(y);
    return same;
}

static void resumed_runs_have_the_same_bits(void **state) {
    (void)state;
    const char *half = test_scratch("half"), *straight = test_scratch("straight"), *resumed = test_scratch("resumed");
    trial t = trial_new(3);
    trial_run(&t, 0, 5);
    tn_checkpoint c = trial_checkpoint(&t);
    c.step = 5;
    c.json = "{\"note\": \"at the half\"}";
    assert_ok(tn_checkpoint_save(half, &c));
    trial_run(&t, 5, 10);
    c.step = 10;
    c.json = NULL;
    assert_ok(tn_checkpoint_save(straight, &c));
    trial_free(&t);

    t = trial_new(99); /* other weights, other random numbers: all must come from the file */
    c = trial_checkpoint(&t);
    assert_ok(tn_checkpoint_load(half, &c));
    assert_int_equal(c.step, 5);
    assert_string_equal(c.loaded_json, "{\"note\": \"at the half\"}");
    tn_text_free(c.loaded_json);
    trial_run(&t, 5, 10);
    c = trial_checkpoint(&t);
    c.step = 10;
    assert_ok(tn_checkpoint_save(resumed, &c));
    trial_free(&t);
    assert_true(same_files(straight, resumed));
}

static void threads_change_no_bit(void **state) {
    (void)state;
    const char *one = test_scratch("one"), *two = test_scratch("two");
    for (int threads = 1; threads <= 2; threads++) {
        assert_ok(tn_set_num_threads(threads));
        trial t = trial_new(3);
        trial_run(&t, 0, 4);
        tn_checkpoint c = trial_checkpoint(&t);
        assert_ok(tn_checkpoint_save(threads == 1 ? one : two, &c));
        trial_free(&t);
    }
    assert_ok(tn_set_num_threads(0));
    assert_true(same_files(one, two));
}

static void extras_come_back(void **state) {
    (void)state;
    const char *path = test_scratch("extras");
    double numbers[2] = {1.25, -3}, got[2];
    int64_t n = 2;
    TN_SCOPE;
    tn_variable extra = {"numbers", tn_from_data(numbers, &n, 1, TN_F64), false};
    tn_checkpoint c = TN_CHECKPOINT_DEFAULTS;
    c.extras = &extra;
    c.extra_count = 1;
    assert_ok(tn_checkpoint_save(path, &c));
    extra.tensor = tn_full(&n, 1, 0, TN_F64);
    assert_ok(tn_checkpoint_load(path, &c));
    assert_null(c.loaded_json);
    assert_ok(tn_read(extra.tensor, got, sizeof got));
    assert_memory_equal(got, numbers, sizeof got);
}

/* A run that resumes goes on with the rate it had, not with that of the options; older files have none. */
static void the_learning_rate_comes_back(void **state) {
    (void)state;
    const char *path = test_scratch("rate"), *old = test_scratch("old");
    trial t = trial_new(3);
    tn_optimizer_set_lr(t.optimizer, 0.1 / 3);
    tn_checkpoint c = trial_checkpoint(&t);
    assert_ok(tn_checkpoint_save(path, &c));
    tn_optimizer_set_lr(t.optimizer, 0.5);
    assert_ok(tn_checkpoint_load(path, &c));
    assert_true(tn_optimizer_lr(t.optimizer) == 0.1 / 3);

    char *bytes;
    size_t size;
    assert_ok(tn_file_read(path, &bytes, &size, 1 << 24));
    char *key = memmem(bytes, size, "optimizer.lr", 12);
    assert_non_null(key);
    memcpy(key, "optimizer.xx", 12);
    FILE *f = fopen(old, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, size, f), size);
    assert_int_equal(fclose(f), 0);
    tn_mem_free(bytes);
    tn_optimizer_set_lr(t.optimizer, 0.25);
    assert_ok(tn_checkpoint_load(old, &c));
    assert_true(tn_optimizer_lr(t.optimizer) == 0.25);
    trial_free(&t);
}

/* ---- files that do not fit --------------------------------------------------------------------------------------- */

static void assert_load_refused(tn_module *m, const char *path, const char *reason) {
    float before[6], after[6];
    assert_ok(tn_read(tn_module_variable(m, "a.weight"), before, sizeof before));
    assert_int_equal(tn_module_load(m, path), TN_ERR_FORMAT);
    assert_text_has(tn_error(), reason);
    assert_ok(tn_read(tn_module_variable(m, "a.weight"), after, sizeof after));
    assert_memory_equal(before, after, sizeof before);
}

static tn_module *two_layers(int64_t width, bool bias) {
    tn_module *root = tn_module_root();
    tn_nn_linear(root, "a", 3, 2, true);
    tn_nn_linear(root, "b", width, 2, bias);
    assert_ok(tn_module_status(root));
    return root;
}

static void weights_that_do_not_fit_change_nothing(void **state) {
    (void)state;
    const char *path = test_scratch("weights");
    tn_module *m = two_layers(2, true), *wider = two_layers(4, true), *poorer = two_layers(2, false);
    assert_ok(tn_module_save(m, path));
    assert_ok(tn_module_load(poorer, path)); /* more in the file is fine */
    assert_load_refused(wider, path, "'b.weight' is F32 [2, 2] in the file, but f32 [2, 4]");
    assert_ok(tn_module_save(poorer, path));
    assert_load_refused(m, path, "'b.bias' is missing");
    tn_checkpoint c = TN_CHECKPOINT_DEFAULTS;
    c.model = m;
    assert_int_equal(tn_checkpoint_load(path, &c), TN_ERR_FORMAT);
    assert_text_has(tn_error(), "not a checkpoint");
    tn_module_free(m);
    tn_module_free(wider);
    tn_module_free(poorer);
}

static void weights_of_other_types_are_converted(void **state) {
    (void)state;
    const char *path = test_scratch("half_precision");
    float got[4];
    tn_module *m = tn_module_root();
    {
        TN_SCOPE;
        tn_tensor *w = tn_cast(tn_from_data((float[]){1, -2, 0.5F, 8}, (int64_t[]){2, 2}, 2, TN_F32), TN_BF16);
        assert_ok(tn_safetensors_save(path, &(tn_named_tensor){"weight", w}, 1, NULL, 0));
        tn_module_add_parameter(m, "weight", tn_full((int64_t[]){2, 2}, 2, 0, TN_F32));
    }
    assert_ok(tn_module_load(m, path));
    assert_ok(tn_read(tn_module_variable(m, "weight"), got, sizeof got));
    assert_memory_equal(got, ((float[]){1, -2, 0.5F, 8}), sizeof got);
    tn_module_free(m);
}

/* ---- learning ---------------------------------------------------------------------------------------------------- */

static void exclusive_or_is_learned(void **state) {
    (void)state;
    static const float inputs[] = {0, 0, 0, 1, 1, 0, 1, 1}, outputs[] = {0, 1, 1, 0};
    tn_manual_seed(1);
    tn_module *root = tn_module_root(), *net = tn_nn_sequential(root, "net");
    tn_nn_linear(net, "0", 2, 8, true);
    tn_nn_function(net, "1", tn_tanh);
    tn_nn_linear(net, "2", 8, 1, true);
    tn_optimizer *o;
    tn_adam_options adam = TN_ADAM_DEFAULTS;
    adam.lr = 0.05;
    assert_ok(tn_optimizer_adam(root, &adam, &o));
    double last = INFINITY;
    for (int step = 0; step < 200; step++) {
        TN_SCOPE;
        tn_tensor *x = tn_from_data(inputs, (int64_t[]){4, 2}, 2, TN_F32);
        tn_tensor *y = tn_from_data(outputs, (int64_t[]){4, 1}, 2, TN_F32);
        tn_tensor *loss = tn_mse_loss(tn_forward(net, x), y, TN_REDUCTION_MEAN);
        assert_ok(tn_minimize(o, loss));
        last = tn_item(loss);
    }
    if (!(last < 1e-3)) fail_msg("the loss is still %g", last);
    tn_optimizer_free(o);
    tn_module_free(root);
}

/* Was the first of six inputs positive? Only a memory can tell at the end. */
static tn_tensor *memory_loss(tn_module *cell, tn_module *head, int64_t step) {
    enum { BATCH = 16, LENGTH = 6, WIDTH = 8 };
    uint64_t seed = (uint64_t)step;
    float inputs[LENGTH][BATCH];
    int64_t labels[BATCH];
    for (int t = 0; t < LENGTH; t++)
        for (int i = 0; i < BATCH; i++)
            inputs[t][i] = (float)(2 * random_uniform(&seed) - 1);
    for (int i = 0; i < BATCH; i++)
        labels[i] = inputs[0][i] > 0;
    tn_tensor *h = tn_full((int64_t[]){BATCH, WIDTH}, 2, 0, TN_F32), *c = h;
    for (int t = 0; t < LENGTH; t++)
        tn_lstm_cell_forward(cell, tn_from_data(inputs[t], (int64_t[]){BATCH, 1}, 2, TN_F32), h, c, &h, &c);
    tn_tensor *y = tn_from_data(labels, (int64_t[]){BATCH}, 1, TN_I64);
    return tn_cross_entropy(tn_forward(head, h), y, NULL, NULL);
}

static void an_lstm_learns_to_remember(void **state) {
    (void)state;
    tn_manual_seed(4);
    tn_module *root = tn_module_root(), *cell = tn_nn_lstm_cell(root, "cell", 1, 8),
              *head = tn_nn_linear(root, "head", 8, 2, true);
    tn_optimizer *o;
    tn_adam_options adam = TN_ADAM_DEFAULTS;
    adam.lr = 0.02;
    assert_ok(tn_optimizer_adam(root, &adam, &o));
    double mean = 1;
    for (int64_t step = 0; step < 400; step++) {
        TN_SCOPE;
        tn_tensor *loss = memory_loss(cell, head, step);
        assert_ok(tn_minimize(o, loss));
        mean += 0.05 * (tn_item(loss) - mean);
    }
    if (!(mean < 0.2)) fail_msg("the loss is still %g (0.69 is guessing)", mean);
    tn_optimizer_free(o);
    tn_module_free(root);
}

/* ---- the cart ---------------------------------------------------------------------------------------------------- */

/* States of Gymnasium 1.4.0's CartPole-v1 after so many of these actions from (0.01, -0.02, 0.03, 0.04). */
static const char actions[] =
    "101010101010101010101010101011001101001100110011010011001011001100110011001100110011001100110"
    "011001100110011001100110011001";
static const struct {
    int steps;
    double values[4];
    bool terminated;
} trajectory[] = {
    {1, {0x1.3a92a30553262p-7, 0x1.65be34c837f9ep-3, 0x1.f8a0902de00d1p-6, -0x1.f1ce03128d125p-3}, false},
    {10, {0x1.9c65dc4857bfbp-6, -0x1.7fe23e11450e8p-6, 0x1.0a4c98e6fb378p-6, 0x1.d9c852a74b51ep-4}, false},
    {30, {0x1.b9b97862203f2p-5, 0x1.72667c51abffcp-2, 0x1.87071435d90b0p-6, -0x1.6e0a6c7ffa64ap-2}, false},
    {60, {0x1.408f6e9962d5ep-3, 0x1.6f843daf9ff24p-2, 0x1.c9b603e617f21p-8, -0x1.2e4d2a2a5c6f4p-2}, false},
    {123, {0x1.69e7a49f8eafcp-2, 0x1.03504c3314df7p-3, 0x1.b62703b6f0f24p-3, 0x1.ab7a59ec07d14p-1}, true},
};

static void the_cart_moves_as_gymnasiums(void **state) {
    (void)state;
    cartpole cart = {.x = 0.01, .x_dot = -0.02, .theta = 0.03, .theta_dot = 0.04};
    size_t shown = 0;
    for (int step = 1; actions[step - 1]; step++) {
        cartpole_result r = cartpole_step(&cart, actions[step - 1] - '0');
        assert_int_equal(r.terminated, step == trajectory[TN_COUNT(trajectory) - 1].steps);
        if (step != trajectory[shown].steps) continue;
        const double got[] = {cart.x, cart.x_dot, cart.theta, cart.theta_dot};
        for (int k = 0; k < 4; k++) /* sine and cosine may differ by an ulp between libraries */
            if (fabs(got[k] - trajectory[shown].values[k]) > 1e-11)
                fail_msg("step %d, value %d: %.17g, not %.17g", step, k, got[k], trajectory[shown].values[k]);
        shown++;
    }
    assert_int_equal(shown, TN_COUNT(trajectory));
}

static void an_episode_is_cut_after_500_steps(void **state) {
    (void)state;
    cartpole cart;
    cartpole_seed(&cart, 9);
    for (int step = 1; step <= CARTPOLE_LIMIT; step++) {
        cart.x = cart.x_dot = cart.theta = cart.theta_dot = 0;
        cartpole_result r = cartpole_step(&cart, step % 2);
        assert_false(r.terminated);
        assert_int_equal(r.truncated, step == CARTPOLE_LIMIT);
    }
}

/* The command: who shares a batch changes no digit of what it says. */
static void devices_share_a_batch(void **state) {
    (void)state;
    static const char *const rows[] = {"--device cpu --parts 3", "--devices cpu,cpu --parts 3"};
    char said[2][2048], *metric[2];
    for (int i = 0; i < 2; i++) {
        char command[200];
        snprintf(command, sizeof command, "%%s train chars --steps 2 --seed 3 --json %s", rows[i]);
        assert_int_equal(run_trunnion(command, said[i], sizeof said[i]), 0);
        metric[i] = strstr(said[i], "\"metric\": ");
        assert_non_null(metric[i]);
        *strchr(metric[i], ',') = 0;
    }
    assert_string_equal(metric[0], metric[1]);
    assert_text_has(metric[1] + strlen(metric[1]) + 1, "{\"id\": \"cpu\", \"parts\": 2,");
    char heard[200];
    assert_int_equal(run_trunnion("%s train cartpole --devices cpu,cpu 2>&1", heard, sizeof heard), 2);
    assert_text_has(heard, "--devices does not apply to the task cartpole");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(resumed_runs_have_the_same_bits),
        cmocka_unit_test(threads_change_no_bit),
        cmocka_unit_test(extras_come_back),
        cmocka_unit_test(the_learning_rate_comes_back),
        cmocka_unit_test(weights_that_do_not_fit_change_nothing),
        cmocka_unit_test(weights_of_other_types_are_converted),
        cmocka_unit_test(exclusive_or_is_learned),
        cmocka_unit_test(an_lstm_learns_to_remember),
        cmocka_unit_test(the_cart_moves_as_gymnasiums),
        cmocka_unit_test(an_episode_is_cut_after_500_steps),
        cmocka_unit_test(devices_share_a_batch),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
