/* test_async.c — promises of evaluating beside the caller: on each kind of queue the values are those of tn_eval, bit
 * by bit, in whatever order queues and devices come. */
#include "test_support.h"

#include "async_driver.h"
#include "far_driver.h"
#include "hal/queue.h"
#include "trunnion/trunnion.h"

/* The last only where there is one, or TRUNNION_TEST_DEVICE names another, which has to be there; it cannot be held
 * up, and takes seconds to compile a product: one test is for it. */
static tn_device *devices[4];
static const char *names[] = {"cpu", "far", "async", "opencl"};
enum { HELD = 3, ALL = 4 };

static int open_devices(void **state) {
    tn_device_options o = TN_DEVICE_DEFAULTS;
    o.fallback = TN_FALLBACK_STRICT;
    tn_device_options s = TN_DEVICE_DEFAULTS;
    s.fallback = TN_FALLBACK_SILENT;
    if (make_scratch(state) != 0 || tn_device_open("cpu", &o, NULL, &devices[0]) != TN_OK) return -1;
    devices[1] = far_open(0, &s);
    devices[2] = async_open(0, &s);
    const char *another = getenv("TRUNNION_TEST_DEVICE");
    if (another) names[3] = another;
    return tn_device_open(names[3], &o, NULL, &devices[3]) != TN_OK && another ? -1 : 0;
}

static int close_devices(void **state) {
    tn_set_current_device(NULL);
    for (size_t i = 0; i < TN_COUNT(devices); i++)
        tn_device_close(devices[i]);
    return remove_scratch(state);
}

static int back_to_normal(void **state) {
    (void)state;
    tn_set_current_queue(NULL);
    tn_set_current_device(NULL);
    return 0;
}

static void on_each(void (*test)(tn_device *d), int count) {
    for (int i = 0; i < count; i++) {
        if (!devices[i]) continue;
        assert_ok(tn_set_current_device(devices[i]));
        {
            TN_SCOPE;
            test(devices[i]);
        }
        assert_ok(tn_set_current_queue(NULL));
        print_message("ran on: %s\n", names[i]);
    }
    assert_string_equal(async_fault(), "");
}

static tn_queue *queue_of(tn_device *d) {
    tn_queue *q;
    assert_ok(tn_queue_new(d, &q));
    return q;
}

/* Work that holds a queue up until the mutex is free. */
typedef struct gate {
    tn_task task;
    pthread_mutex_t closed;
    bool failing;
} gate;

static tn_status stand_at_gate(tn_task *t) {
    gate *g = (gate *)t;
    pthread_mutex_lock(&g->closed);
    pthread_mutex_unlock(&g->closed);
    return g->failing ? tn_fail(TN_ERR_DEVICE, "the gate broke") : TN_OK;
}

static void close_gate(gate *g, tn_queue *q) {
    memset(g, 0, sizeof *g);
    if (!tn_queue_has_thread(q)) {
        async_hold(q->handle, true);
        return;
    }
    pthread_mutex_init(&g->closed, NULL);
    pthread_mutex_lock(&g->closed);
    g->task.run = stand_at_gate;
    tn_submission o;
    tn_submission_begin(&o, q->device, q);
    tn_submission_enqueue(&o, &g->task);
}

static void open_gate(gate *g, tn_queue *q) {
    if (tn_queue_has_thread(q))
        pthread_mutex_unlock(&g->closed);
    else
        async_hold(q->handle, false);
}

static tn_tensor *ramp(int64_t rows, int64_t columns, float by) {
    float data[64 * 64];
    for (int64_t i = 0; i < rows * columns; i++)
        data[i] = (float)(i % 17) * by;
    return tn_from_data(data, (int64_t[]){rows, columns}, 2, TN_F32);
}

static void assert_same(tn_tensor *a, const float *expected, int count) {
    float got[64 * 64];
    assert_ok(tn_read(a, got, (size_t)count * sizeof(float)));
    assert_memory_equal(got, expected, (size_t)count * sizeof(float));
}

/* ---- evaluations ------------------------------------------------------------------------------------------------- */

static void a_product_goes_beside_the_caller_on(tn_device *d) {
    tn_queue *q = queue_of(d), *other = queue_of(d);
    tn_event *e;
    gate g;
    bool passed;
    float expected[16 * 16], more[16 * 16];
    tn_tensor *x = ramp(16, 32, 0.5F), *w = ramp(32, 16, 0.25F);
    tn_tensor *y = tn_matmul(x, w), *z = tn_relu(tn_sub(y, tn_scalar(3)));
    assert_ok(tn_read(y, expected, sizeof expected));
    assert_ok(tn_read(z, more, sizeof more));
    assert_ok(tn_event_new(false, &e));
    close_gate(&g, q);
    tn_tensor *again = tn_matmul(x, w);
    assert_ok(tn_eval_async(&again, 1, q, e));
    assert_ok(tn_event_query(e, &passed));
    assert_false(passed);
    tn_tensor *behind = tn_relu(tn_sub(again, tn_scalar(3)));
    assert_ok(tn_eval_async(&behind, 1, other, NULL)); /* reads what the other queue has yet to make */
    open_gate(&g, q);
    assert_same(behind, more, 16 * 16);
    assert_same(again, expected, 16 * 16);
    assert_ok(tn_event_synchronize(e));
    assert_same(tn_permute(again, (int64_t[]){0, 1}, 2), expected, 16 * 16);
    tn_event_free(e);
    tn_queue_free(q);
    tn_queue_free(other);
}

static void a_product_goes_beside_the_caller(void **state) {
    (void)state;
    on_each(a_product_goes_beside_the_caller_on, HELD);
}

/* Values are dropped as soon as they are recorded, so memory is used again and again while work is under way. */
static void chains_over_two_queues_on(tn_device *d) {
    enum { STEPS = 60 };
    tn_queue *q[3] = {queue_of(d), queue_of(d), NULL};
    float got[32 * 32], expected[32 * 32];
    for (int run = 0; run < 2; run++) {
        tn_tensor *x = ramp(32, 32, 0.01F);
        for (int i = 0; i < STEPS; i++) {
            assert_ok(tn_set_current_queue(run ? q[i % 3] : NULL));
            tn_tensor *p = tn_matmul(x, x), *m = tn_mul(p, tn_scalar(0.01)), *y = tn_add(m, x);
            tn_free(p);
            tn_free(m);
            tn_free(x);
            assert_ok(tn_eval(&y, 1));
            x = tn_tanh(y);
            tn_free(y);
        }
        assert_ok(tn_read(x, run ? got : expected, sizeof got));
        tn_free(x);
    }
    assert_ok(tn_set_current_queue(NULL));
    assert_memory_equal(got, expected, sizeof got);
    tn_queue_free(q[0]);
    tn_queue_free(q[1]);
}

static void chains_over_two_queues(void **state) {
    (void)state;
    on_each(chains_over_two_queues_on, HELD);
}

/* The same with one kernel, which every device has compiled soon. */
static void maps_over_two_queues_on(tn_device *d) {
    enum { STEPS = 60 };
    tn_queue *q[3] = {queue_of(d), queue_of(d), NULL};
    float got[32 * 32], expected[32 * 32];
    for (int run = 0; run < 2; run++) {
        tn_tensor *x = ramp(32, 32, 0.125F);
        for (int i = 0; i < STEPS; i++) {
            assert_ok(tn_set_current_queue(run ? q[i % 3] : NULL));
            tn_tensor *m = tn_mul(x, x), *y = tn_sub(m, x);
            tn_free(m);
            tn_free(x);
            assert_ok(tn_eval(&y, 1));
            x = y;
        }
        assert_ok(tn_read(x, run ? got : expected, sizeof got));
        tn_free(x);
    }
    assert_ok(tn_set_current_queue(NULL));
    assert_memory_equal(got, expected, sizeof got);
    tn_queue_free(q[0]);
    tn_queue_free(q[1]);
}

static void maps_over_two_queues(void **state) {
    (void)state;
    on_each(maps_over_two_queues_on, ALL);
}

/* A weight that is written on one queue and multiplied with on another: its packed form is that of the right moment. */
static void weights_change_between_products_on(tn_device *d) {
    enum { STEPS = 12 };
    tn_queue *writes = queue_of(d), *reads = queue_of(d);
    float expected[STEPS][8 * 24];
    for (int run = 0; run < 2; run++) {
        tn_tensor *w = ramp(32, 24, 0.5F), *x = ramp(8, 32, 1), *y[STEPS];
        assert_ok(tn_make_state(w));
        for (int i = 0; i < STEPS; i++) {
            y[i] = tn_matmul(x, w);
            assert_ok(tn_eval_async(&y[i], 1, run ? reads : NULL, NULL));
            (void)tn_add_(w, tn_scalar(i + 1));
            assert_ok(tn_eval_async(&w, 1, run ? writes : NULL, NULL));
        }
        for (int i = 0; i < STEPS; i++) {
            if (run)
                assert_same(y[i], expected[i], 8 * 24);
            else
                assert_ok(tn_read(y[i], expected[i], sizeof expected[i]));
        }
    }
    assert_true(expected[0][0] != expected[STEPS - 1][0]);
    tn_queue_free(writes);
    tn_queue_free(reads);
}

static void weights_change_between_products(void **state) {
    (void)state;
    on_each(weights_change_between_products_on, HELD);
}

/* ---- training ---------------------------------------------------------------------------------------------------- */

enum { ROWS = 16, FEATURES = 6, HIDDEN = 12, CLASSES = 3, STEPS = 25 };

static tn_tensor *loss_of(tn_module *net, int step) {
    float data[ROWS * FEATURES];
    int64_t labels[ROWS];
    for (int i = 0; i < ROWS * FEATURES; i++)
        data[i] = (float)((i * 37 + step) % 23) / 23 - 0.5F;
    for (int i = 0; i < ROWS; i++)
        data[i * FEATURES + (labels[i] = i % CLASSES)] += 2;
    tn_tensor *x = tn_from_data(data, (int64_t[]){ROWS, FEATURES}, 2, TN_F32);
    tn_tensor *y = tn_from_data(labels, (int64_t[]){ROWS}, 1, TN_I64);
    return tn_cross_entropy(tn_forward(net, x), y, NULL, NULL);
}

/* No loss is read before the last step has been given. */
static void train(tn_queue *q, float losses[STEPS]) {
    tn_tensor *kept[STEPS];
    tn_manual_seed(7);
    tn_module *root = tn_module_root(), *net = tn_nn_sequential(root, "net");
    tn_nn_linear(net, "0", FEATURES, HIDDEN, true);
    tn_nn_function(net, "1", tn_tanh);
    tn_nn_dropout(net, "2", 0.1);
    tn_nn_linear(net, "3", HIDDEN, CLASSES, true);
    tn_adam_options adam = TN_ADAM_DEFAULTS;
    adam.lr = 0.05;
    adam.max_grad_norm = 1;
    tn_optimizer *optimizer = NULL;
    assert_ok(tn_optimizer_adamw(root, &adam, &optimizer));
    assert_ok(tn_set_current_queue(q));
    for (int step = 0; step < STEPS; step++) {
        TN_SCOPE;
        tn_tensor *loss = loss_of(net, step);
        assert_ok(tn_minimize(optimizer, loss));
        kept[step] = tn_keep(loss);
    }
    for (int step = 0; step < STEPS; step++) {
        losses[step] = (float)tn_item(kept[step]);
        tn_free(kept[step]);
    }
    assert_ok(tn_set_current_queue(NULL));
    tn_optimizer_free(optimizer);
    tn_module_free(root);
}

static void a_training_on_a_queue_has_the_same_bits_on(tn_device *d) {
    float here[STEPS], there[STEPS];
    tn_queue *q = queue_of(d);
    train(NULL, here);
    train(q, there);
    assert_ok(tn_queue_synchronize(q));
    assert_memory_equal(here, there, sizeof here);
    assert_true(there[STEPS - 1] < there[0]);
    tn_queue_free(q);
}

static void a_training_on_a_queue_has_the_same_bits(void **state) {
    (void)state;
    on_each(a_training_on_a_queue_has_the_same_bits_on, HELD);
}

/* ---- replay ------------------------------------------------------------------------------------------------------ */

static void captured_graphs_go_beside_the_caller_on(tn_device *d) {
    enum { LAUNCHES = 40 };
    tn_queue *q = queue_of(d);
    tn_graph *graph;
    tn_event *e;
    tn_tensor *x = ramp(4, 8, 1), *w = ramp(8, 8, 0.125F), *sum = ramp(4, 8, 0), *out[LAUNCHES][2];
    assert_ok(tn_make_state(sum));
    assert_ok(tn_eval(&w, 1));
    assert_ok(tn_capture_begin());
    tn_tensor *y = tn_matmul(x, w);
    (void)tn_add_(sum, y);
    tn_tensor *outputs[2] = {y, sum};
    assert_ok(tn_capture_end(&x, 1, outputs, 2, &graph));
    assert_ok(tn_event_new(true, &e));
    float one[32], total[32], got[32];
    assert_ok(tn_read(y, one, sizeof one));
    for (int i = 0; i < LAUNCHES; i++)
        assert_ok(tn_graph_launch_async(graph, &x, out[i], q, i + 1 == LAUNCHES ? e : NULL));
    for (int i = 0; i < LAUNCHES; i++) {
        assert_same(out[i][0], one, 32);
        assert_ok(tn_read(out[i][1], got, sizeof got));
        for (int k = 0; k < 32; k++) {
            float expected = 0;
            for (int n = 0; n < i + 2; n++)
                expected += one[k];
            total[k] = expected;
        }
        assert_memory_equal(got, total, sizeof got);
    }
    assert_ok(tn_event_synchronize(e));
    tn_graph_free(graph);
    tn_event_free(e);
    tn_queue_free(q);
}

static void captured_graphs_go_beside_the_caller(void **state) {
    (void)state;
    on_each(captured_graphs_go_beside_the_caller_on, HELD);
}

/* ---- several devices --------------------------------------------------------------------------------------------- */

static void two_devices_in_one_recording(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *a[3], *sum[3];
    for (int i = 0; i < 3; i++) {
        assert_ok(tn_set_current_device(devices[i]));
        a[i] = ramp(4, 4, (float)(i + 1));
        assert_ok(tn_make_state(a[i]));
    }
    for (int i = 0; i < 3; i++) {
        assert_ok(tn_set_current_device(devices[i]));
        (void)tn_add_(a[i], tn_scalar(10));
        sum[i] = tn_sum(tn_mul(a[i], a[i]), NULL, 0, false);
        assert_ptr_equal(tn_device_of(sum[i]), devices[i]);
    }
    assert_ok(tn_eval(sum, 3));
    for (int i = 0; i < 3; i++) {
        double expected = 0;
        for (int k = 0; k < 16; k++)
            expected += (double)((k * (i + 1) + 10) * (k * (i + 1) + 10));
        assert_float_equal(tn_item(sum[i]), expected, 0);
        float got[16];
        assert_ok(tn_read(a[i], got, sizeof got));
        assert_float_equal(got[5], (float)(5 * (i + 1) + 10), 0);
    }
}

/* What one device refuses leaves what is pending on the other as it is. */
static void a_failure_on_one_device_is_its_own(void **state) {
    (void)state;
    TN_SCOPE;
    assert_ok(tn_set_current_device(devices[0]));
    tn_tensor *there = ramp(4, 4, 1);
    assert_ok(tn_make_state(there));
    assert_ok(tn_set_current_device(devices[1]));
    tn_tensor *here = ramp(4, 4, 1);
    assert_ok(tn_make_state(here));
    (void)tn_add_(here, tn_scalar(1));
    assert_ok(tn_set_current_device(devices[0]));
    (void)tn_add_(there, tn_scalar(1));
    far_nature_now.loses = true;
    far_nature_now.launches_left = 0;
    assert_int_not_equal(tn_eval(NULL, 0), TN_OK);
    far_nature_now.loses = false;
    assert_ok(tn_eval(NULL, 0));
    float got[16];
    assert_ok(tn_read(there, got, sizeof got));
    assert_float_equal(got[3], 4, 0);
    assert_ok(tn_read(here, got, sizeof got));
    assert_float_equal(got[3], 4, 0);
}

static void tensors_move_between_devices(void **state) {
    (void)state;
    TN_SCOPE;
    for (int from = 0; from < 3; from++)
        for (int to = 0; to < 3; to++) {
            float got[12], expected[12];
            assert_ok(tn_set_current_device(devices[from]));
            tn_tensor *x = ramp(3, 4, 1), *y = tn_permute(tn_mul(x, tn_scalar(2)), (int64_t[]){1, 0}, 2);
            tn_tensor *moved = tn_to_device(y, devices[to]);
            assert_ok(tn_status_of(moved));
            assert_ptr_equal(tn_device_of(moved), devices[to]);
            assert_int_equal(tn_size(moved, 0), 4);
            assert_ok(tn_read(y, expected, sizeof expected));
            assert_same(moved, expected, 12);
            assert_ok(tn_read(tn_add(moved, moved), got, sizeof got)); /* it computes there */
            assert_float_equal(got[7], 2 * expected[7], 0);
            assert_ptr_equal(tn_device_of(tn_add(moved, tn_scalar(1))), devices[to]);
        }
}

static void moving_refuses_what_it_would_get_wrong(void **state) {
    (void)state;
    TN_SCOPE;
    assert_ok(tn_set_current_device(devices[0]));
    tn_tensor *x = ramp(2, 2, 1);
    assert_ok(tn_set_requires_grad(x, true));
    assert_int_equal(tn_status_of(tn_to_device(tn_mul(x, x), devices[1])), TN_ERR_UNSUPPORTED);
    assert_text_has(tn_error(), "gradients");
    {
        TN_NO_GRAD;
        assert_ok(tn_status_of(tn_to_device(x, devices[1])));
    }
    tn_tensor *y = tn_to_device(ramp(2, 2, 1), devices[1]);
    assert_int_equal(tn_status_of(tn_add(y, ramp(2, 2, 1))), TN_ERR_ARGUMENT);
    assert_text_has(tn_error(), "tn_to_device");
    tn_tensor *wrong = tn_to_device(tn_failed(TN_ERR_SHAPE, "made wrong"), devices[1]);
    assert_int_equal(tn_status_of(wrong), TN_ERR_SHAPE);
}

/* ---- failures ---------------------------------------------------------------------------------------------------- */

static void a_failed_run_leaves_states_and_is_told(void **state) {
    (void)state;
    tn_device *d = devices[0];
    TN_SCOPE;
    assert_ok(tn_set_current_device(d));
    tn_queue *q = queue_of(d);
    tn_event *e;
    gate g;
    float before[16], got[16];
    tn_tensor *s = ramp(4, 4, 1);
    assert_ok(tn_make_state(s));
    assert_ok(tn_read(s, before, sizeof before));
    assert_ok(tn_event_new(false, &e));
    close_gate(&g, q);
    tn_tensor *y = tn_mul(s, tn_scalar(2));
    (void)tn_add_(s, tn_scalar(1));
    assert_ok(tn_eval_async(&y, 1, q, e));
    g.failing = true;
    open_gate(&g, q);
    assert_int_equal(tn_event_synchronize(e), TN_ERR_DEVICE);
    assert_int_equal(tn_read(y, got, sizeof got), TN_ERR_DEVICE);
    assert_text_has(tn_error(), "the gate broke");
    {
        TN_SCOPE;
        assert_int_equal(tn_eval((tn_tensor *[]){tn_sum(y, NULL, 0, false)}, 1), TN_ERR_DEVICE);
    }
    assert_ok(tn_read(s, got, sizeof got));
    assert_memory_equal(got, before, sizeof got);
    assert_int_equal(tn_queue_synchronize(q), TN_ERR_DEVICE);
    (void)tn_add_(s, tn_scalar(1));
    assert_ok(tn_eval_async(&s, 1, q, NULL));
    assert_ok(tn_read(s, got, sizeof got));
    assert_float_equal(got[2], before[2] + 1, 0);
    tn_event_free(e);
    tn_queue_free(q);
}

/* Plans go when their thread's cache is full, and graphs when they are freed, though a queue has yet to run them. */
static void plans_outlive_their_runs_on(tn_device *d) {
    tn_queue *q = queue_of(d);
    tn_tensor *x = ramp(1, 8, 1), *y[300];
    assert_ok(tn_set_current_queue(q));
    for (int i = 0; i < 300; i++) {
        y[i] = tn_add(tn_slice(x, 1, 0, 1 + i % 8, 1), tn_full((int64_t[]){1 + i / 8, 1 + i % 8}, 2, i, TN_F32));
        assert_ok(tn_eval(&y[i], 1));
    }
    for (int i = 0; i < 300; i++) {
        float got[38 * 8];
        assert_ok(tn_read(y[i], got, (size_t)tn_numel(y[i]) * sizeof(float)));
        assert_float_equal(got[tn_numel(y[i]) - 1], (float)(i % 8 + i), 0);
    }
    assert_ok(tn_set_current_queue(NULL));
    tn_queue_free(q);
}

static void plans_outlive_their_runs(void **state) {
    (void)state;
    on_each(plans_outlive_their_runs_on, HELD);
}

static void profiles_see_what_queues_do(void **state) {
    (void)state;
    TN_SCOPE;
    assert_ok(tn_set_current_device(devices[0]));
    tn_queue *q = queue_of(devices[0]);
    tn_profile *p = tn_profile_begin();
    tn_tensor *y = tn_matmul(ramp(8, 8, 1), ramp(8, 8, 1));
    assert_ok(tn_eval_async(&y, 1, q, NULL));
    tn_profile_end(p);
    assert_int_equal(tn_profile_count(p), 1);
    tn_profile_free(p);
    tn_queue_free(q);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(a_product_goes_beside_the_caller, back_to_normal),
        cmocka_unit_test_teardown(chains_over_two_queues, back_to_normal),
        cmocka_unit_test_teardown(maps_over_two_queues, back_to_normal),
        cmocka_unit_test_teardown(weights_change_between_products, back_to_normal),
        cmocka_unit_test_teardown(a_training_on_a_queue_has_the_same_bits, back_to_normal),
        cmocka_unit_test_teardown(captured_graphs_go_beside_the_caller, back_to_normal),
        cmocka_unit_test_teardown(two_devices_in_one_recording, back_to_normal),
        cmocka_unit_test_teardown(a_failure_on_one_device_is_its_own, back_to_normal),
        cmocka_unit_test_teardown(tensors_move_between_devices, back_to_normal),
        cmocka_unit_test_teardown(moving_refuses_what_it_would_get_wrong, back_to_normal),
        cmocka_unit_test_teardown(a_failed_run_leaves_states_and_is_told, back_to_normal),
        cmocka_unit_test_teardown(plans_outlive_their_runs, back_to_normal),
        cmocka_unit_test_teardown(profiles_see_what_queues_do, back_to_normal),
    };
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
