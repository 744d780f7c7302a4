/* test_dry_run.c — a dry device plans as a real one does: its pool has the same peak, and nothing large has memory. */
#include <unistd.h>

#include "test_support.h"

#include "base/base.h"
#include "drivers/drivers.h"
#include "trunnion/backend.h"
#include "trunnion/trunnion.h"

static tn_device *open_on(const char *name, bool dry) {
    tn_device_options o = TN_DEVICE_DEFAULTS;
    o.dry_run = dry;
    o.fallback = TN_FALLBACK_SILENT;
    tn_device *d = NULL;
    assert_ok(tn_device_open(name, &o, NULL, &d));
    assert_ok(tn_set_current_device(d));
    return d;
}

static tn_pool_stats stats_of(const tn_device *d) {
    tn_pool_stats s = {.struct_size = sizeof s};
    assert_ok(tn_device_get_pool_stats(d, &s));
    return s;
}

static void close_current(tn_device *d) {
    tn_clear_plans();
    assert_ok(tn_set_current_device(NULL));
    tn_device_close(d);
}

enum { ROWS = 32 };
static tn_tensor *one_row(const tn_tensor *x) { return tn_reshape(x, TN_DIMS(ROWS, -1)); }

/* Some steps of a small CNN, the last ones replayed. */
static void train(void) {
    TN_SCOPE;
    tn_module *root = tn_module_root(), *net = tn_nn_sequential(root, "net");
    tn_nn_conv2d(net, "conv", 1, 16, 3, NULL);
    tn_nn_function(net, "relu", tn_relu);
    tn_nn_function(net, "flat", one_row);
    tn_nn_linear(net, "head", 16 * 14 * 14, 10, true);
    tn_optimizer *adam = NULL;
    assert_ok(tn_optimizer_adam(root, NULL, &adam));
    const int64_t classes[ROWS] = {0, 3, 1};
    tn_tensor *x = tn_randn(TN_DIMS(ROWS, 1, 16, 16)), *y = tn_from_data(classes, TN_DIMS(ROWS), TN_I64);
    float loss;
    for (int i = 0; i < 4; i++) {
        TN_SCOPE;
        tn_tensor *l = tn_cross_entropy(tn_forward(net, x), y, NULL, NULL);
        assert_ok(tn_minimize(adam, l));
        assert_ok(tn_read(l, &loss, sizeof loss));
    }
    tn_optimizer_free(adam);
    tn_module_free(root);
}

static int64_t peak_of_training(const char *name, bool dry) {
    tn_device *d = open_on(name, dry);
    train();
    tn_pool_stats s = stats_of(d);
    if (!dry) assert_int_equal(s.dry_peak_bytes, 0);
    close_current(d);
    return s.peak_bytes;
}

static void a_training_has_the_peak_of_a_real_device(void **state) {
    (void)state;
    int64_t real = peak_of_training("cpu", false);
    assert_true(real > 1 << 20);
    assert_int_equal(peak_of_training("cpu", true), real);
}

static void the_driver_allocates_small_blocks_only(void **state) {
    (void)state;
    assert_ok(tn_backend_register(&tn_driver_null));
    int64_t real = peak_of_training("null", false);
    tn_null_reset_counts();
    assert_int_equal(peak_of_training("null", true), real);
    tn_null_counts c = tn_null_get_counts();
    assert_string_equal(c.first_fault, "");
    assert_int_equal(c.faults, 0);
    tn_device *d = open_on("null", true);
    {
        TN_SCOPE;
        tn_tensor *x = tn_randn(TN_DIMS(1024, 1024));
        int64_t before = tn_null_get_counts().live_blocks;
        assert_ok(tn_eval(&x, 1));
        assert_true(tn_null_get_counts().live_blocks <= before);
        assert_true(stats_of(d).in_use_bytes >= 4 << 20);
        assert_true(stats_of(d).dry_peak_bytes > 4 << 20);
    }
    close_current(d);
}

/* Not under a limit of address space, nor where the system promises no more memory than there is. */
static bool has_address_space(size_t bytes) {
    void *space = tn_address_space(bytes);
    if (space) tn_address_space_free(space, bytes);
    return space != NULL;
}

static void more_than_the_machine_has_can_be_planned(void **state) {
    (void)state;
    if (!has_address_space((size_t)3 << 38)) skip();
    tn_device *d = open_on("cpu", true);
    {
        TN_SCOPE;
        tn_tensor *x = tn_mul_scalar(tn_randn(TN_DIMS(1 << 18, 1 << 18)), 2), *y = tn_matmul(x, x);
        float corner = 1;
        assert_ok(tn_eval(&y, 1));
        assert_ok(tn_read(tn_slice(tn_slice(y, 0, 0, 1, 1), 1, 0, 1, 1), &corner, sizeof corner));
        assert_true(corner == 0);
        assert_true(stats_of(d).peak_bytes >= (int64_t)2 << 38);
        assert_true(stats_of(d).dry_peak_bytes >= (int64_t)2 << 38);
    }
    close_current(d);
}

/* What a result is read into is touched, too. */
static void copies_in_the_hosts_memory_count(void **state) {
    (void)state;
    enum { SIDE = 4096, BYTES = SIDE * SIDE * 4 };
    if (access("/proc/self/statm", R_OK) != 0) skip(); /* the system does not say what is resident */
    tn_device *d = open_on("cpu", true);
    {
        TN_SCOPE;
        tn_tensor *x = tn_full(TN_DIMS(SIDE, SIDE), 1, TN_F32);
        assert_ok(tn_eval(&x, 1));
        int64_t before = stats_of(d).dry_peak_bytes;
        float *copy = malloc(BYTES);
        assert_non_null(copy);
        assert_ok(tn_read(x, copy, BYTES));
        free(copy);
        assert_true(stats_of(d).dry_peak_bytes >= before + BYTES * 3 / 4);
    }
    close_current(d);
}

/* Integers beside large results, read in one evaluation or later, are right: shapes are made of them. */
static void small_values_are_computed(void **state) {
    (void)state;
    tn_device *d = open_on("cpu", true);
    {
        TN_SCOPE;
        const int64_t sides[] = {3, 5};
        tn_tensor *n = tn_from_data(sides, TN_DIMS(2), TN_I64), *area = tn_prod(n, TN_ALL, false);
        tn_tensor *large = tn_randn(TN_DIMS(512, 512)), *twice = tn_add(area, area);
        int64_t out = 0;
        float sum = 1;
        assert_ok(tn_eval(&large, 1));
        assert_ok(tn_read(tn_sum(large, TN_ALL, false), &sum, sizeof sum));
        assert_true(sum == 0);
        assert_ok(tn_read(twice, &out, sizeof out));
        assert_int_equal(out, 30);
        assert_ok(tn_read(area, &out, sizeof out));
        assert_int_equal(out, 15);
    }
    close_current(d);
}

static void the_real_device_can_be_open_too(void **state) {
    (void)state;
    tn_device *dry = open_on("cpu", true), *real = open_on("cpu", false), *again = open_on("cpu", true);
    assert_ptr_not_equal(dry, real);
    assert_ptr_equal(dry, again);
    assert_ok(tn_set_current_device(real));
    {
        TN_SCOPE;
        float sum = 0;
        assert_ok(tn_read(tn_sum(tn_ones(TN_DIMS(512, 512), TN_F32), TN_ALL, false), &sum, sizeof sum));
        assert_true(sum == 512 * 512);
    }
    tn_device_close(again);
    tn_device_close(real);
    close_current(dry);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_training_has_the_peak_of_a_real_device),
        cmocka_unit_test(the_driver_allocates_small_blocks_only),
        cmocka_unit_test(more_than_the_machine_has_can_be_planned),
        cmocka_unit_test(copies_in_the_hosts_memory_count),
        cmocka_unit_test(small_values_are_computed),
        cmocka_unit_test(the_real_device_can_be_open_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
