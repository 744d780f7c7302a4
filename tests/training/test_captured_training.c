/* test_captured_training.c — a captured training step leaves the same behind as a recorded one, bit for bit: weights,
 * the optimiser's memory and counts, random numbers, gradients, checkpoints. What a launch could not repeat is
 * refused. */
#include "test_support.h"

#include "trunnion/trunnion.h"

enum { STEPS = 7, ROWS = 8, FEATURES = 6, CLASSES = 3 };

/* ---- two runs of one training ------------------------------------------------------------------------------------ */

typedef enum method {
    SGD,
    SGD_MOMENTUM,
    SGD_DAMPENED,
    SGD_NESTEROV,
    ADAM,
    ADAMW,
    AMSGRAD,
    RMSPROP,
    ADAGRAD,
    LION,
    LAMB,
    ADAFACTOR,
    METHODS
} method;

typedef struct run {
    tn_module *root, *net;
    tn_optimizer *optimizer;
    tn_graph *graph; /* NULL: every step is recorded */
} run;

static tn_optimizer *optimizer_new(tn_module *root, method m, double max_grad_norm) {
    tn_optimizer *o = NULL;
    tn_sgd_options sgd = TN_SGD_DEFAULTS;
    sgd.lr = 0.1;
    sgd.max_grad_norm = max_grad_norm;
    sgd.weight_decay = 0.01;
    tn_adam_options adam = TN_ADAM_DEFAULTS;
    adam.lr = 0.01;
    adam.max_grad_norm = max_grad_norm;
    adam.weight_decay = 0.05;
    sgd.momentum = m == SGD ? 0 : 0.9;
    sgd.dampening = m == SGD_DAMPENED ? 0.3 : 0;
    sgd.nesterov = m == SGD_NESTEROV;
    tn_rmsprop_options rmsprop = TN_RMSPROP_DEFAULTS;
    rmsprop.momentum = 0.9;
    rmsprop.centered = true;
    rmsprop.max_grad_norm = max_grad_norm;
    tn_adagrad_options adagrad = TN_ADAGRAD_DEFAULTS;
    adagrad.lr_decay = 0.1;
    adagrad.max_grad_norm = max_grad_norm;
    tn_lion_options lion = TN_LION_DEFAULTS;
    lion.weight_decay = 0.05;
    lion.max_grad_norm = max_grad_norm;
    tn_lamb_options lamb = TN_LAMB_DEFAULTS;
    lamb.weight_decay = 0.05;
    lamb.max_grad_norm = max_grad_norm;
    adam.amsgrad = m == AMSGRAD;
    if (m == RMSPROP)
        assert_ok(tn_optimizer_rmsprop(root, &rmsprop, &o));
    else if (m == ADAGRAD)
        assert_ok(tn_optimizer_adagrad(root, &adagrad, &o));
    else if (m == LION)
        assert_ok(tn_optimizer_lion(root, &lion, &o));
    else if (m == ADAFACTOR)
        assert_ok(tn_optimizer_adafactor(root, NULL, &o));
    else if (m == LAMB)
        assert_ok(tn_optimizer_lamb(root, &lamb, &o));
    else if (m == ADAM || m == AMSGRAD)
        assert_ok(tn_optimizer_adam(root, &adam, &o));
    else if (m == ADAMW)
        assert_ok(tn_optimizer_adamw(root, &adam, &o));
    else
        assert_ok(tn_optimizer_sgd(root, &sgd, &o));
    return o;
}

static run run_new(method m, double max_grad_norm) {
    run r = {.root = tn_module_root()};
    tn_manual_seed(11);
    r.net = tn_nn_sequential(r.root, "net");
    tn_nn_linear(r.net, "0", FEATURES, 5, true);
    tn_nn_function(r.net, "1", tn_relu);
    tn_nn_dropout(r.net, "2", 0.3);
    tn_nn_linear(r.net, "3", 5, CLASSES, true);
    assert_ok(tn_module_status(r.root));
    r.optimizer = optimizer_new(r.root, m, max_grad_norm);
    return r;
}

static void run_free(run *r) {
    tn_graph_free(r->graph);
    tn_optimizer_free(r->optimizer);
    tn_module_free(r->root);
}

static void make_batch(int step, tn_tensor *in[2]) {
    float x[ROWS * FEATURES];
    int64_t y[ROWS];
    for (int i = 0; i < ROWS * FEATURES; i++)
        x[i] = (float)((i * 37 + step * 101) % 64) / 32 - 1;
    for (int i = 0; i < ROWS; i++)
        y[i] = (i + step) % CLASSES;
    in[0] = tn_from_data(x, TN_DIMS(ROWS, FEATURES), TN_F32);
    in[1] = tn_from_data(y, TN_DIMS(ROWS), TN_I64);
}

typedef void recorder(run *r, tn_tensor *const in[2], tn_tensor **loss);

static void record_minimize(run *r, tn_tensor *const in[2], tn_tensor **loss) {
    tn_tensor *unused = tn_rand(TN_DIMS(5)); /* numbers that nobody reads are used up all the same */
    (void)unused;
    *loss = tn_cross_entropy(tn_forward(r->net, in[0]), in[1], NULL, NULL);
    assert_ok(tn_minimize(r->optimizer, *loss));
}

static void record_by_hand(run *r, tn_tensor *const in[2], tn_tensor **loss) {
    tn_optimizer_zero_grad(r->optimizer);
    *loss = tn_cross_entropy(tn_forward(r->net, in[0]), in[1], NULL, NULL);
    assert_ok(tn_backward(*loss));
    assert_ok(tn_clip_grad_norm(r->root, 0.5, NULL));
    assert_ok(tn_optimizer_step(r->optimizer));
}

static void record_twice(run *r, tn_tensor *const in[2], tn_tensor **loss) {
    record_minimize(r, in, loss);
    record_minimize(r, in, loss);
}

/* captured: the first step is captured, the others are launches. */
static float run_step(run *r, int step, bool captured, recorder *record) {
    TN_SCOPE;
    tn_tensor *in[2], *loss = NULL;
    make_batch(step, in);
    if (captured && r->graph) {
        assert_ok(tn_graph_launch(r->graph, in, &loss));
    } else if (captured) {
        assert_ok(tn_capture_begin());
        record(r, in, &loss);
        assert_ok(tn_capture_end(in, 2, &loss, 1, &r->graph));
    } else {
        record(r, in, &loss);
    }
    return (float)tn_item(loss);
}

/* ---- what two runs must agree on --------------------------------------------------------------------------------- */

static void same_values(const tn_tensor *a, const tn_tensor *b, const char *name) {
    float x[64], y[64];
    int64_t n = tn_numel(a);
    assert_true(n <= 64);
    assert_ok(tn_read(a, x, (size_t)n * sizeof *x));
    assert_ok(tn_read(b, y, (size_t)n * sizeof *y));
    for (int64_t i = 0; i < n; i++)
        if (memcmp(&x[i], &y[i], sizeof *x) != 0)
            fail_msg("%s, number %d: recorded %.9g, captured %.9g", name, (int)i, (double)x[i], (double)y[i]);
}

static void same_variables(tn_variable *a, int count, tn_variable *b, int other) {
    assert_int_equal(count, other);
    for (int i = 0; i < count; i++)
        same_values(a[i].tensor, b[i].tensor, a[i].name);
    tn_variables_free(a);
    tn_variables_free(b);
}

static void same_runs(const run *a, const run *b) {
    tn_variable *x, *y;
    int m, n;
    assert_ok(tn_module_variables(a->root, &x, &m));
    assert_ok(tn_module_variables(b->root, &y, &n));
    same_variables(x, m, y, n);
    assert_ok(tn_optimizer_variables(a->optimizer, &x, &m));
    assert_ok(tn_optimizer_variables(b->optimizer, &y, &n));
    same_variables(x, m, y, n);
    for (int i = 0; i < tn_optimizer_count(a->optimizer); i++)
        assert_int_equal(tn_optimizer_steps(a->optimizer, i), tn_optimizer_steps(b->optimizer, i));
}

static double rate(int step) {
    tn_schedule s = TN_SCHEDULE_DEFAULTS;
    s.kind = TN_SCHEDULE_COSINE;
    s.lr = 0.1;
    s.warmup = 2;
    s.total = STEPS;
    return tn_schedule_at(&s, step);
}

/* Both runs, step by step, with a schedule; what they leave is compared at the end. */
static void compare(method m, double max_grad_norm, recorder *record) {
    run runs[2];
    float losses[2][STEPS];
    tn_random_state random[2];
    for (int captured = 0; captured < 2; captured++) {
        runs[captured] = run_new(m, max_grad_norm);
        for (int step = 0; step < STEPS; step++) {
            tn_optimizer_set_lr(runs[captured].optimizer, rate(step));
            losses[captured][step] = run_step(&runs[captured], step, captured, record);
        }
        random[captured] = tn_get_random_state();
    }
    for (int step = 0; step < STEPS; step++)
        if (losses[0][step] != losses[1][step])
            fail_msg("method %d, step %d: loss %.9g recorded, %.9g captured", (int)m, step, (double)losses[0][step],
                     (double)losses[1][step]);
    assert_true(random[0].offset == random[1].offset);
    same_runs(&runs[0], &runs[1]);
    run_free(&runs[0]);
    run_free(&runs[1]);
}

static void captured_steps_have_the_bits_of_recorded_ones(void **state) {
    (void)state;
    for (method m = 0; m < METHODS; m++) {
        compare(m, INFINITY, record_minimize);
        compare(m, 0.2, record_minimize);
    }
}

static void a_capture_may_hold_two_steps(void **state) {
    (void)state;
    compare(ADAM, INFINITY, record_twice);
    compare(SGD_DAMPENED, 0.2, record_twice);
}

static void backward_clip_and_step_apart_do_the_same(void **state) {
    (void)state;
    for (method m = 0; m < METHODS; m++)
        compare(m, INFINITY, record_by_hand);
}

/* Variables that joined later count their own steps; and counts that part from each other need a new capture. */
static void counts_of_single_variables_go_on(void **state) {
    (void)state;
    run runs[2];
    for (int captured = 0; captured < 2; captured++) {
        run *r = &runs[captured];
        *r = run_new(ADAMW, INFINITY);
        assert_ok(tn_optimizer_set_steps(r->optimizer, 1, 5));
        for (int step = 0; step < STEPS; step++)
            (void)run_step(r, step, captured, record_minimize);
        assert_int_equal(tn_optimizer_steps(r->optimizer, 0), STEPS);
        assert_int_equal(tn_optimizer_steps(r->optimizer, 1), STEPS + 5);
    }
    same_runs(&runs[0], &runs[1]);
    TN_SCOPE;
    tn_tensor *in[2], *loss = NULL;
    make_batch(0, in);
    assert_ok(tn_optimizer_set_steps(runs[1].optimizer, 3, 1));
    assert_int_equal(tn_graph_launch(runs[1].graph, in, &loss), TN_ERR_STATE);
    assert_text_has(tn_error(), "capture it again");
    assert_int_equal(tn_optimizer_steps(runs[1].optimizer, 0), STEPS);
    run_free(&runs[0]);
    run_free(&runs[1]);
}

/* ---- what is left besides weights -------------------------------------------------------------------------------- */

static void gradients_are_those_of_the_last_launch(void **state) {
    (void)state;
    run runs[2];
    for (int captured = 0; captured < 2; captured++) {
        runs[captured] = run_new(ADAM, INFINITY);
        for (int step = 0; step < STEPS; step++)
            (void)run_step(&runs[captured], step, captured, record_by_hand);
    }
    TN_SCOPE;
    tn_variable *x, *y;
    int m, n;
    assert_ok(tn_module_variables(runs[0].root, &x, &m));
    assert_ok(tn_module_variables(runs[1].root, &y, &n));
    for (int i = 0; i < m; i++)
        same_values(tn_grad(x[i].tensor), tn_grad(y[i].tensor), x[i].name);
    tn_variables_free(x);
    tn_variables_free(y);
    run_free(&runs[0]);
    run_free(&runs[1]);
}

static void launches_are_counted_as_writes(void **state) {
    (void)state;
    run runs[2];
    int64_t writes[2];
    for (int captured = 0; captured < 2; captured++) {
        run *r = &runs[captured];
        *r = run_new(SGD, INFINITY);
        for (int step = 0; step < STEPS; step++)
            (void)run_step(r, step, captured, record_minimize);
        writes[captured] = tn_write_count(tn_module_variable(r->net, "0.weight"));
    }
    assert_int_equal(writes[0], writes[1]);
    run_free(&runs[0]);
    run_free(&runs[1]);
}

/* A loss recorded before a launch needs weights that the launch has overwritten. */
static void a_launch_makes_earlier_histories_stale(void **state) {
    (void)state;
    run r = run_new(SGD, INFINITY);
    (void)run_step(&r, 0, true, record_minimize);
    TN_SCOPE;
    tn_tensor *w = tn_module_variable(r.net, "0.weight");
    tn_tensor *early = tn_sum(tn_mul(w, w), NULL, 0, false);
    assert_ok(tn_eval(&early, 1));
    (void)run_step(&r, 1, true, record_minimize);
    assert_int_equal(tn_backward(early), TN_ERR_STATE);
    assert_text_has(tn_error(), "modified in place");
    tn_tensor *now = tn_sum(tn_mul(w, w), NULL, 0, false);
    assert_ok(tn_backward(now));
    tn_optimizer_zero_grad(r.optimizer);
    (void)run_step(&r, 2, true, record_minimize); /* and it goes on */
    run_free(&r);
}

static void a_new_seed_is_seen_by_launches(void **state) {
    (void)state;
    float losses[2];
    for (int captured = 0; captured < 2; captured++) {
        run r = run_new(ADAM, INFINITY);
        for (int step = 0; step < STEPS; step++) {
            if (step == 3) tn_manual_seed(99);
            losses[captured] = run_step(&r, step, captured, record_minimize);
        }
        run_free(&r);
    }
    assert_memory_equal(&losses[0], &losses[1], sizeof losses[0]);
}

static void an_optimizer_outlives_its_handle_in_a_graph(void **state) {
    (void)state;
    run r = run_new(ADAM, INFINITY);
    (void)run_step(&r, 0, true, record_minimize);
    tn_optimizer_free(r.optimizer);
    r.optimizer = NULL;
    (void)run_step(&r, 1, true, record_minimize);
    run_free(&r);
}

/* ---- checkpoints ------------------------------------------------------------------------------------------------- */

static void checkpoints_of_captured_runs_go_on_as_recorded_ones(void **state) {
    (void)state;
    run runs[2], resumed[2];
    for (int captured = 0; captured < 2; captured++) {
        char path[512];
        snprintf(path, sizeof path, "%s", test_scratch("half"));
        runs[captured] = run_new(ADAMW, INFINITY);
        for (int step = 0; step < STEPS; step++) {
            tn_optimizer_set_lr(runs[captured].optimizer, rate(step));
            (void)run_step(&runs[captured], step, captured, record_minimize);
            tn_checkpoint c = TN_CHECKPOINT_DEFAULTS;
            c.model = runs[captured].root;
            c.optimizer = runs[captured].optimizer;
            c.step = step;
            if (step == 3) assert_ok(tn_checkpoint_save(path, &c));
        }
        resumed[captured] = run_new(ADAMW, INFINITY);
        run *r = &resumed[captured];
        if (captured) (void)run_step(r, 0, true, record_minimize); /* a graph from before the checkpoint goes on too */
        tn_checkpoint c = TN_CHECKPOINT_DEFAULTS;
        c.model = r->root;
        c.optimizer = r->optimizer;
        assert_ok(tn_checkpoint_load(path, &c));
        assert_int_equal(c.step, 3);
        assert_true(tn_optimizer_lr(r->optimizer) == rate(3));
        for (int step = 4; step < STEPS; step++) {
            tn_optimizer_set_lr(r->optimizer, rate(step));
            (void)run_step(r, step, captured, record_minimize);
        }
    }
    same_runs(&runs[0], &runs[1]);
    same_runs(&runs[0], &resumed[0]);
    same_runs(&runs[0], &resumed[1]);
    for (int i = 0; i < 2; i++) {
        run_free(&runs[i]);
        run_free(&resumed[i]);
    }
}

/* ---- what is refused --------------------------------------------------------------------------------------------- */

static void values_cannot_be_read_while_they_are_captured(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = tn_ones(TN_DIMS(3), TN_F32), *y;
    tn_graph *g = NULL;
    float numbers[3];
    assert_ok(tn_eval(&x, 1));
    assert_ok(tn_capture_begin());
    y = tn_add(x, x);
    assert_int_equal(tn_read(y, numbers, sizeof numbers), TN_ERR_STATE);
    assert_text_has(tn_error(), "tn_capture_end");
    assert_ok(tn_read(x, numbers, sizeof numbers)); /* this one is there */
    assert_ok(tn_eval(&x, 1));
    assert_ok(tn_capture_end(&x, 1, &y, 1, &g));
    assert_ok(tn_read(y, numbers, sizeof numbers));
    assert_true(numbers[0] == 2);
    assert_ok(tn_capture_begin());
    assert_int_equal(tn_graph_launch(g, &x, &y), TN_ERR_STATE);
    tn_graph *nothing = NULL;
    assert_ok(tn_capture_end(NULL, 0, NULL, 0, &nothing));
    assert_ok(tn_graph_launch(g, &x, &y));
    tn_graph_free(nothing);
    tn_graph_free(g);
}

static void random_numbers_cannot_be_set_in_a_capture(void **state) {
    (void)state;
    TN_SCOPE;
    tn_graph *g = NULL;
    assert_ok(tn_capture_begin());
    tn_manual_seed(3);
    tn_tensor *y = tn_rand(TN_DIMS(3));
    assert_int_equal(tn_capture_end(NULL, 0, &y, 1, &g), TN_ERR_STATE);
    assert_text_has(tn_error(), "tn_manual_seed");
    assert_null(g);
}

/* A moving average that is not state would stay what the capture made of it; as state it moves. */
static void writes_in_place_need_state(void **state) {
    (void)state;
    float numbers[3];
    for (int is_state = 0; is_state < 2; is_state++) {
        TN_SCOPE;
        tn_tensor *x = tn_ones(TN_DIMS(3), TN_F32), *mean = tn_zeros(TN_DIMS(3), TN_F32);
        tn_graph *g = NULL;
        assert_ok(tn_eval((tn_tensor *[]){x, mean}, 2));
        if (is_state) assert_ok(tn_make_state(mean));
        assert_ok(tn_capture_begin());
        tn_tensor *own = tn_from_data((float[]){1, 2, 3}, TN_DIMS(3), TN_F32);
        tn_add_(own, x); /* made inside: fine */
        tn_lerp_(mean, own, tn_scalar(0.5));
        tn_status s = tn_capture_end(&x, 1, &own, 1, &g);
        if (!is_state) {
            assert_int_equal(s, TN_ERR_STATE);
            assert_text_has(tn_error(), "lerp_ wrote in place");
            continue;
        }
        assert_ok(s);
        assert_ok(tn_graph_launch(g, &x, &own));
        assert_ok(tn_read(mean, numbers, sizeof numbers));
        assert_true(numbers[0] == 1.5F && numbers[2] == 3);
        tn_graph_free(g);
    }
}

static void gradients_from_before_a_capture_are_refused(void **state) {
    (void)state;
    run r = run_new(SGD, INFINITY);
    TN_SCOPE;
    tn_tensor *in[2], *loss;
    make_batch(0, in);
    assert_ok(tn_backward(tn_cross_entropy(tn_forward(r.net, in[0]), in[1], NULL, NULL)));
    assert_ok(tn_capture_begin());
    assert_ok(tn_optimizer_step(r.optimizer));
    assert_int_equal(tn_capture_end(NULL, 0, NULL, 0, &r.graph), TN_ERR_STATE);
    assert_text_has(tn_error(), "tn_backward");
    assert_ok(tn_capture_begin());
    loss = tn_cross_entropy(tn_forward(r.net, in[0]), in[1], NULL, NULL);
    assert_ok(tn_backward(loss));
    assert_int_equal(tn_capture_end(in, 2, &loss, 1, &r.graph), TN_ERR_STATE);
    tn_optimizer_zero_grad(r.optimizer);
    /* Without a gradient before, and cleared before each launch: fine. */
    assert_ok(tn_capture_begin());
    loss = tn_cross_entropy(tn_forward(r.net, in[0]), in[1], NULL, NULL);
    assert_ok(tn_backward(loss));
    assert_ok(tn_optimizer_step(r.optimizer));
    assert_ok(tn_capture_end(in, 2, &loss, 1, &r.graph));
    assert_int_equal(tn_graph_launch(r.graph, in, &loss), TN_ERR_STATE);
    assert_text_has(tn_error(), "has a gradient now");
    tn_optimizer_zero_grad(r.optimizer);
    assert_ok(tn_graph_launch(r.graph, in, &loss));
    run_free(&r);
}

static void a_runtime_scalar_of_an_optimizer_is_its_own(void **state) {
    (void)state;
    run r = run_new(SGD, INFINITY);
    (void)run_step(&r, 0, true, record_minimize);
    int refused = 0;
    for (int scalar = 0; scalar < 8; scalar++)
        if (tn_graph_set_runtime_scalar(r.graph, scalar, 0) == TN_ERR_ARGUMENT &&
            strstr(tn_error(), "tn_optimizer_set_lr"))
            refused++;
    assert_int_equal(refused, 1);
    run_free(&r);
    TN_SCOPE;
    tn_tensor *scalar = tn_runtime_scalar(1);
    tn_capture_hook hook = {.struct_size = sizeof hook};
    assert_false(tn_capturing());
    assert_int_equal(tn_capture_add_hook(NULL, NULL, 0), TN_ERR_ARGUMENT);
    assert_int_equal(tn_capture_add_hook(&hook, &scalar, 1), TN_ERR_ARGUMENT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(captured_steps_have_the_bits_of_recorded_ones),
        cmocka_unit_test(a_capture_may_hold_two_steps),
        cmocka_unit_test(backward_clip_and_step_apart_do_the_same),
        cmocka_unit_test(counts_of_single_variables_go_on),
        cmocka_unit_test(gradients_are_those_of_the_last_launch),
        cmocka_unit_test(launches_are_counted_as_writes),
        cmocka_unit_test(a_launch_makes_earlier_histories_stale),
        cmocka_unit_test(a_new_seed_is_seen_by_launches),
        cmocka_unit_test(an_optimizer_outlives_its_handle_in_a_graph),
        cmocka_unit_test(checkpoints_of_captured_runs_go_on_as_recorded_ones),
        cmocka_unit_test(values_cannot_be_read_while_they_are_captured),
        cmocka_unit_test(random_numbers_cannot_be_set_in_a_capture),
        cmocka_unit_test(writes_in_place_need_state),
        cmocka_unit_test(gradients_from_before_a_capture_are_refused),
        cmocka_unit_test(a_runtime_scalar_of_an_optimizer_is_its_own),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
