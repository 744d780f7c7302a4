/* test_far.c — promises of everything above a driver on a device whose memory is not the host's (far_driver.h): what is
 * recorded there computes there, with the bits that the cpu computes. */
#include "test_support.h"

#include "far_driver.h"
#include "trunnion/trunnion.h"

static tn_device *far, *cpu;

static int open_devices(void **state) {
    tn_device_options o = TN_DEVICE_DEFAULTS;
    o.fallback = TN_FALLBACK_STRICT;
    if (make_scratch(state) != 0 || tn_device_open("cpu", &o, NULL, &cpu) != TN_OK) return -1;
    far = far_open(0, NULL);
    return 0;
}

static int close_devices(void **state) {
    tn_set_current_device(NULL);
    tn_device_close(far);
    tn_device_close(cpu);
    return remove_scratch(state);
}

static void use(tn_device *d) { assert_ok(tn_set_current_device(d)); }

/* ---- values ------------------------------------------------------------------------------------------------------ */

static void a_sum_is_computed_there(void **state) {
    (void)state;
    use(far);
    TN_SCOPE;
    float a[5] = {1, 2, 3, 4, 5}, b[5] = {10, 20, 30, 40, 50}, c[5] = {0};
    int64_t before = far_counts_now.launches;
    tn_tensor *x = tn_from_data(a, (int64_t[]){5}, 1, TN_F32), *y = tn_from_data(b, (int64_t[]){5}, 1, TN_F32);
    tn_tensor *z = tn_add(x, y);
    assert_ptr_equal(tn_device_of(z), far);
    assert_ok(tn_read(z, c, sizeof c));
    for (int i = 0; i < 5; i++)
        assert_float_equal(c[i], a[i] + b[i], 0);
    assert_true(far_counts_now.launches > before);
}

static void views_and_writes(void **state) {
    (void)state;
    use(far);
    TN_SCOPE;
    float a[12], back[4], whole[12];
    for (int i = 0; i < 12; i++)
        a[i] = (float)i;
    tn_tensor *x = tn_from_data(a, (int64_t[]){3, 4}, 2, TN_F32);
    tn_tensor *column = tn_select(x, 1, 2);
    assert_ok(tn_status_of(tn_mul_(column, tn_scalar(10))));
    assert_ok(tn_read(tn_permute(x, (int64_t[]){1, 0}, 2), whole, sizeof whole));
    for (int i = 0; i < 12; i++)
        assert_float_equal(whole[i], (float)(i % 3 * 4 + i / 3) * (i / 3 == 2 ? 10 : 1), 0);
    assert_ok(tn_read(tn_select(x, 0, 1), back, sizeof back));
    assert_float_equal(back[2], 60, 0);
    assert_float_equal(tn_item(tn_sum(x, NULL, 0, false)), 66 + 9 * 18, 0);
}

static void borrowed_memory_is_copied_and_given_back(void **state) {
    (void)state;
    use(far);
    TN_SCOPE;
    static float own[3] = {1, 2, 3};
    float c[3];
    tn_tensor *x = tn_from_ptr(own, (int64_t[]){3}, 1, TN_F32, NULL, NULL);
    assert_ok(tn_read(tn_neg(x), c, sizeof c));
    assert_float_equal(c[2], -3, 0);
}

/* ---- training ---------------------------------------------------------------------------------------------------- */

enum { ROWS = 16, FEATURES = 6, HIDDEN = 12, CLASSES = 3, STEPS = 12 };

/* The losses, and all parameters and moments at the end in the file `save`. */
static void train_on(tn_device *device, const char *save, float loss[STEPS]) {
    use(device);
    tn_manual_seed(7);
    tn_module *root = tn_module_root(), *net = tn_nn_sequential(root, "net");
    tn_nn_linear(net, "0", FEATURES, HIDDEN, true);
    tn_nn_function(net, "1", tn_tanh);
    tn_nn_dropout(net, "2", 0.1);
    tn_nn_linear(net, "3", HIDDEN, CLASSES, true);
    assert_ok(tn_module_status(root));
    tn_adam_options adam = TN_ADAM_DEFAULTS;
    adam.lr = 0.05;
    adam.max_grad_norm = 1;
    tn_optimizer *optimizer = NULL;
    assert_ok(tn_optimizer_adamw(root, &adam, &optimizer));
    for (int step = 0; step < STEPS; step++) {
        TN_SCOPE;
        float data[ROWS * FEATURES];
        int64_t labels[ROWS];
        for (int i = 0; i < ROWS * FEATURES; i++)
            data[i] = (float)((i * 37 + step) % 23) / 23 - 0.5F;
        for (int i = 0; i < ROWS; i++)
            data[i * FEATURES + (labels[i] = i % CLASSES)] += 2;
        tn_tensor *x = tn_from_data(data, (int64_t[]){ROWS, FEATURES}, 2, TN_F32);
        tn_tensor *y = tn_from_data(labels, (int64_t[]){ROWS}, 1, TN_I64);
        tn_tensor *out = tn_cross_entropy(tn_forward(net, x), y, NULL, NULL);
        assert_ok(tn_minimize(optimizer, out));
        loss[step] = (float)tn_item(out);
    }
    tn_checkpoint c = TN_CHECKPOINT_DEFAULTS;
    c.model = root;
    c.optimizer = optimizer;
    assert_ok(tn_checkpoint_save(save, &c));
    tn_optimizer_free(optimizer);
    tn_module_free(root);
}

static void a_training_has_the_bits_of_the_cpu(void **state) {
    (void)state;
    float here[STEPS], there[STEPS];
    const char *cpu_file = test_scratch("cpu"), *far_file = test_scratch("far");
    train_on(cpu, cpu_file, here);
    int64_t before = far_counts_now.launches;
    train_on(far, far_file, there);
    assert_true(far_counts_now.launches > before);
    assert_true(there[STEPS - 1] < there[0]);
    assert_memory_equal(here, there, sizeof here);
    char *a, *b;
    size_t m, n;
    assert_ok(tn_file_read(cpu_file, &a, &m, 1 << 24));
    assert_ok(tn_file_read(far_file, &b, &n, 1 << 24));
    assert_int_equal(m, n);
    assert_memory_equal(a, b, m);
    tn_mem_free(a);
    tn_mem_free(b);
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

enum { WIDE = 40, NUMBERS = 10, LEARNED = 3 };

/* One step of a training in which a number stands everywhere that it can: the loss, and what the step left of x. */
static void step_with(tn_device *device, double v, tn_dtype dtype, float out[WIDE + 1]) {
    use(device);
    TN_SCOPE;
    float data[WIDE];
    for (int i = 0; i < WIDE; i++)
        data[i] = (float)(i - 7) / 8;
    tn_tensor *x = tn_cast(tn_from_data(data, (int64_t[]){WIDE}, 1, TN_F32), dtype);
    assert_ok(tn_set_requires_grad(x, true));
    tn_tensor *scaled = tn_mul(tn_add_scalar(x, v), tn_scalar(v + 0.125));
    tn_tensor *y = tn_sub(tn_div_scalar(scaled, v * 3), tn_full(TN_DIMS(WIDE), v / 7, dtype));
    tn_tensor *loss = tn_mean(tn_mul(y, y), NULL, 0, false);
    assert_ok(tn_backward(loss));
    tn_tensor *moved = tn_sub(x, tn_mul(tn_grad(x), tn_scalar(v / 16)));
    assert_ok(tn_read(tn_cast(moved, TN_F32), out, WIDE * sizeof *out));
    out[WIDE] = (float)tn_item(loss);
}

/* The first runs teach which numbers vary (plan/values.c); one that becomes a runtime scalar may load one kernel more.
 * */
static void other_numbers_are_the_same_kernels(void **state) {
    (void)state;
    static const tn_dtype dtypes[] = {TN_F32, TN_F64, TN_BF16};
    for (size_t t = 0; t < TN_COUNT(dtypes); t++) {
        int64_t loaded = 0;
        for (int i = 0; i < NUMBERS; i++) {
            float here[WIDE + 1], there[WIDE + 1];
            step_with(cpu, 0.3 + 0.17 * i, dtypes[t], here);
            step_with(far, 0.3 + 0.17 * i, dtypes[t], there);
            assert_memory_equal(here, there, sizeof here);
            if (i == LEARNED) loaded = far_counts_now.loads;
        }
        assert_int_equal(far_counts_now.loads, loaded);
    }
}

/* A mean's gradient is 1 / elements, which comes with the launch: another batch needs no other kernel. */
static void another_batch_is_the_same_kernels(void **state) {
    (void)state;
    enum { FIRST = 5, LAST = 40, COLUMNS = 3 };
    int64_t loaded = 0;
    for (int batch = FIRST; batch <= LAST; batch++) {
        float got[2][LAST * COLUMNS];
        for (int k = 0; k < 2; k++) {
            use(k ? far : cpu);
            TN_SCOPE;
            tn_tensor *x = tn_contiguous(tn_expand(tn_full(NULL, 0, 0.3, TN_F32), TN_DIMS(batch, COLUMNS)));
            assert_ok(tn_set_requires_grad(x, true));
            assert_ok(tn_backward(tn_mean(tn_mul(x, x), TN_ALL, false)));
            assert_ok(tn_read(tn_grad(x), got[k], (size_t)batch * COLUMNS * sizeof **got));
        }
        assert_memory_equal(got[0], got[1], (size_t)batch * COLUMNS * sizeof **got);
        if (batch == FIRST + 4) loaded = far_counts_now.loads;
    }
    assert_int_equal(far_counts_now.loads, loaded);
}

/* More numbers in one kernel than it takes as runtime scalars, and some that stay in it. */
static void a_kernel_of_many_numbers(void **state) {
    (void)state;
    float data[3] = {1, -2, 0.75F}, got[2][3];
    for (int k = 0; k < 2; k++) {
        use(k ? far : cpu);
        TN_SCOPE;
        tn_tensor *x = tn_from_data(data, (int64_t[]){3}, 1, TN_F32);
        for (int i = 0; i < 40; i++)
            x = tn_add_scalar(tn_mul_scalar(x, i % 5 ? 1.01 + i * 0.001 : 0.5), i % 7 ? -0.003 * i : 2);
        assert_ok(tn_read(tn_atan(x), got[k], sizeof got[k]));
    }
    assert_memory_equal(got[0], got[1], sizeof got[0]);
}

static int64_t begun, ended, latest;

static void count_load(void *ctx, const char *device, int64_t number, bool done) {
    assert_ptr_equal(ctx, &begun);
    assert_string_equal(device, "far:0");
    *(done ? &ended : &begun) += 1;
    assert_true(done ? number == latest : number > latest);
    latest = number;
}

static void each_load_of_a_kernel_is_told(void **state) {
    (void)state;
    use(far);
    int64_t before = far_counts_now.loads;
    float got[7];
    tn_on_kernel_load(count_load, &begun);
    {
        TN_SCOPE;
        assert_ok(tn_read(tn_tanh(tn_rsqrt(tn_full(TN_DIMS(7), 0.3, TN_F32))), got, sizeof got));
    }
    tn_on_kernel_load(NULL, NULL);
    assert_true(begun > 0);
    assert_int_equal(begun, far_counts_now.loads - before);
    assert_int_equal(ended, begun);
    {
        TN_SCOPE;
        assert_ok(tn_read(tn_sin(tn_rsqrt(tn_full(TN_DIMS(7), 0.3, TN_F32))), got, sizeof got));
    }
    assert_int_equal(ended, begun); /* nobody listens any more */
    assert_true(far_counts_now.loads > before + begun);
}

/* ---- closed devices ---------------------------------------------------------------------------------------------- */

/* What nothing but the recording knows of the device. */
static void what_is_recorded_keeps_its_device(void **state) {
    (void)state;
    tn_device *other = far_open(1, NULL);
    float got[4];
    use(other);
    tn_tensor *x = tn_full(TN_DIMS(4), 3, TN_F32), *y = tn_add(x, x);
    use(cpu);
    tn_device_close(other);
    assert_ok(tn_read(y, got, sizeof got));
    assert_float_equal(got[3], 6, 0);
    tn_free(x);
    tn_free(y);
}

static tn_status keep_zeros(void *context, tn_device *device) {
    (void)device;
    *(tn_tensor **)context = tn_keep(tn_add(tn_zeros(TN_DIMS(4), TN_F32), tn_scalar(1)));
    return TN_OK;
}

static void what_is_kept_of_a_trial_stays_valid(void **state) {
    (void)state;
    const char *const on[] = {"far:1"};
    tn_tensor *kept = NULL;
    float got[4];
    tn_device_close(far_open(1, NULL)); /* registered */
    assert_ok(tn_try(on, 1, NULL, keep_zeros, &kept, NULL));
    assert_ok(tn_read(kept, got, sizeof got));
    assert_float_equal(got[3], 1, 0);
    tn_free(kept);
}

static void a_graph_keeps_its_device(void **state) {
    (void)state;
    tn_graph *g = NULL;
    float got[6];
    tn_device *other = far_open(1, NULL);
    use(other);
    assert_ok(tn_capture_begin());
    tn_tensor *x = tn_full(TN_DIMS(6), 5, TN_F32), *y = NULL;
    assert_ok(tn_capture_end(NULL, 0, &x, 1, &g));
    tn_free(x);
    use(cpu);
    tn_device_close(other);
    for (int i = 0; i < 4; i++) {
        assert_ok(tn_graph_launch(g, NULL, &y));
        assert_ok(tn_read(y, got, sizeof got));
        assert_float_equal(got[5], 5, 0);
        tn_free(y);
    }
    tn_graph_free(g);
}

/* ---- captures ---------------------------------------------------------------------------------------------------- */

static void a_capture_of_nothing_launches_nothing(void **state) {
    (void)state;
    tn_graph *g = NULL;
    assert_ok(tn_capture_begin());
    assert_ok(tn_capture_end(NULL, 0, NULL, 0, &g));
    for (int i = 0; i < 4; i++)
        assert_ok(tn_graph_launch(g, NULL, NULL));
    tn_graph_free(g);
}

static void a_capture_leaves_no_states_out(void **state) {
    (void)state;
    {
        TN_SCOPE;
        tn_graph *g = NULL;
        tn_tensor *s[2];
        tn_device *const on[2] = {far, cpu};
        for (int i = 0; i < 2; i++) {
            use(on[i]);
            s[i] = tn_zeros(TN_DIMS(4), TN_F32);
            assert_ok(tn_make_state(s[i]));
        }
        assert_ok(tn_capture_begin());
        for (int i = 0; i < 2; i++)
            (void)tn_add_(s[i], tn_scalar(1));
        assert_int_equal(tn_capture_end(NULL, 0, NULL, 0, &g), TN_ERR_ARGUMENT);
        assert_text_has(tn_error(), "two devices");
        assert_null(g);
    }
    use(cpu);
}

/* There each has memory of its own, nothing else is computed with them, and there is nowhere to peek at. */
static void states_of_one_shape_take_their_own_memory(void **state) {
    (void)state;
    enum { COUNT = 4, BYTES = 1 << 20 };
    tn_tensor *s[COUNT];
    const void *at = s;
    use(far);
    tn_runtime_stats stats = {.struct_size = sizeof stats};
    tn_reset_runtime_stats();
    assert_ok(tn_get_runtime_stats(&stats));
    int64_t before = stats.live_bytes;
    assert_ok(tn_zero_states(TN_DIMS(BYTES / 4), TN_F32, s, COUNT));
    assert_ok(tn_get_runtime_stats(&stats));
    assert_true(stats.peak_bytes - before <= (COUNT + 1) * BYTES); /* the last one's zeros, which it copies */
    assert_ok(tn_peek(s[0], &at));
    assert_null(at);
    {
        TN_SCOPE;
        (void)tn_fill_(s[1], 2);
        for (int i = 0; i < COUNT; i++)
            assert_true(tn_item(tn_sum(s[i], TN_ALL, false)) == (i == 1 ? BYTES / 2 : 0));
    }
    for (int i = 0; i < COUNT; i++)
        tn_free(s[i]);
    use(cpu);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sum_is_computed_there),
        cmocka_unit_test(views_and_writes),
        cmocka_unit_test(borrowed_memory_is_copied_and_given_back),
        cmocka_unit_test(a_training_has_the_bits_of_the_cpu),
        cmocka_unit_test(other_numbers_are_the_same_kernels),
        cmocka_unit_test(another_batch_is_the_same_kernels),
        cmocka_unit_test(a_kernel_of_many_numbers),
        cmocka_unit_test(each_load_of_a_kernel_is_told),
        cmocka_unit_test(what_is_recorded_keeps_its_device),
        cmocka_unit_test(what_is_kept_of_a_trial_stays_valid),
        cmocka_unit_test(a_graph_keeps_its_device),
        cmocka_unit_test(a_capture_of_nothing_launches_nothing),
        cmocka_unit_test(a_capture_leaves_no_states_out),
        cmocka_unit_test(states_of_one_shape_take_their_own_memory),
    };
    return cmocka_run_group_tests_name("far", tests, open_devices, close_devices);
}
