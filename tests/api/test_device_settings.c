/* test_device_settings.c — settings of tn_device_options that belong to a device, not to the process. */
#include "test_support.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "async_driver.h"
#include "hal/hal.h"
#include "hal/queue.h"
#include "trunnion/trunnion.h"

enum { CHANNELS = 64, SIDE = 56, ELEMENTS = CHANNELS * SIDE * SIDE };

static tn_device *open_with(const tn_device_options *o) {
    tn_device *device = NULL;
    assert_ok(tn_device_open("cpu", o, NULL, &device));
    return device;
}

/* A convolution that Winograd's algorithm computes under fast numerics. */
static void convolve(tn_device *device, float out[ELEMENTS]) {
    assert_ok(tn_set_current_device(device));
    tn_manual_seed(1);
    tn_conv2d_options o = TN_CONV2D_DEFAULTS;
    o.padding[0] = o.padding[1] = 1;
    {
        TN_SCOPE;
        tn_tensor *x = tn_randn(TN_DIMS(1, CHANNELS, SIDE, SIDE)), *w = tn_randn(TN_DIMS(CHANNELS, CHANNELS, 3, 3));
        assert_ok(tn_read(tn_conv2d(x, w, NULL, &o), out, ELEMENTS * sizeof *out));
    }
    assert_ok(tn_set_current_device(NULL));
}

static void numerics_belong_to_the_device(void **state) {
    (void)state;
    static float by[3][ELEMENTS];
    for (int numerics = 0; numerics < 3; numerics++) {
        tn_device_options o = TN_DEVICE_DEFAULTS;
        o.numerics = numerics;
        tn_device *device = open_with(&o);
        assert_int_equal(tn_device_numerics(device), numerics == 2 ? TN_NUMERICS_FAST : TN_NUMERICS_EXACT);
        convolve(device, by[numerics]);
        tn_clear_plans();
        tn_device_close(device);
    }
    assert_int_equal(tn_get_numerics(), TN_NUMERICS_EXACT);
    assert_memory_equal(by[0], by[1], sizeof by[0]);
    assert_true(memcmp(by[1], by[2], sizeof by[1]) != 0);
}

static void graphs_can_be_turned_off(void **state) {
    (void)state;
    for (int graphs = 0; graphs < 3; graphs++) {
        tn_device_options o = TN_DEVICE_DEFAULTS;
        o.graphs = graphs;
        o.matrix = 1;
        tn_device *device = open_with(&o);
        assert_int_equal(device->no_graphs, graphs == 1);
        assert_int_equal(device->caps.matrix, 0);
        tn_device_close(device);
    }
}

/* Multiplies on the cpu with this tuning; returns the number of entries in the cache. */
static int entries_after(int tuning, const char *file) {
    tn_device_options o = TN_DEVICE_DEFAULTS;
    char path[512];
    o.tuning = tuning;
    o.tuning_file = file ? strcpy(path, file) : NULL;
    tn_device *device = open_with(&o);
    memset(path, 0, sizeof path); /* the device has a copy */
    assert_ok(tn_set_current_device(device));
    {
        TN_SCOPE;
        tn_tensor *a = tn_randn(TN_DIMS(96, 96)), *b = tn_randn(TN_DIMS(96, 96));
        tn_tensor *y = tn_matmul(a, tn_mul_scalar(b, 1.5));
        assert_ok(tn_eval(&y, 1));
    }
    tn_clear_plans();
    assert_ok(tn_set_current_device(NULL));
    tn_device_close(device);
    return tn_tuned_count();
}

static void tuning_belongs_to_the_device(void **state) {
    (void)state;
    setenv("TRUNNION_TUNE_CACHE", test_scratch("tune.json"), 1);
    assert_ok(tn_set_tuning(TN_TUNING_FIRST_USE));
    assert_int_equal(entries_after(3, NULL), 0); /* rules only */
    assert_int_equal(entries_after(1, NULL), 0); /* nothing is measured */
    assert_ok(tn_set_tuning(TN_TUNING_OFF));
    assert_int_equal(entries_after(0, NULL), 0);
    assert_int_equal(entries_after(2, NULL), 1);
    assert_ok(tn_set_tuning(TN_TUNING_USE));
}

static void the_file_of_tuning_belongs_to_the_device(void **state) {
    (void)state;
    char path[256];
    snprintf(path, sizeof path, "%s", test_scratch("of_device.json"));
    setenv("TRUNNION_TUNE_CACHE", test_scratch("of_process.json"), 1);
    assert_ok(tn_set_tuning(TN_TUNING_USE)); /* reads the files again */
    int before = tn_tuned_count();
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(entries_after(2, path), before); /* measured, and put into the device's file */
    assert_int_equal(access(path, F_OK), 0);
    assert_int_equal(access(test_scratch("of_process.json"), F_OK), -1);
}

/* Which library computes the product that was planned last. */
static bool last_product_is_by(const char *name) {
    char *plan = tn_explain_last();
    bool by = plan && strstr(plan, name);
    tn_text_free(plan);
    return by;
}

static void the_library_belongs_to_the_device(void **state) {
    (void)state;
    tn_device_options o = TN_DEVICE_DEFAULTS;
    tn_device *device;
    o.library = "cublaslt";
    assert_int_not_equal(tn_device_open("cpu", &o, NULL, &device), TN_OK);
    o.library = "no such library";
    assert_int_not_equal(tn_device_open("cpu", &o, NULL, &device), TN_OK);
    tn_library_info l = {.struct_size = sizeof l};
    char name[sizeof l.name] = "none";
    for (int i = 0; i < tn_library_count(); i++)
        if (tn_library_at(i, &l) == TN_OK && l.available && !strcmp(l.backend, "cpu"))
            snprintf(name, sizeof name, "%s", l.name);
    o.library = name;
    device = open_with(&o);
    assert_string_equal(tn_get_library(), "none"); /* the process keeps its own kernels */
    assert_ok(tn_set_current_device(device));
    {
        TN_SCOPE;
        tn_tensor *y = tn_matmul(tn_randn(TN_DIMS(96, 96)), tn_randn(TN_DIMS(96, 96)));
        assert_ok(tn_eval(&y, 1));
        assert_int_equal(last_product_is_by(name), strcmp(name, "none") != 0);
    }
    tn_clear_plans();
    assert_ok(tn_set_current_device(NULL));
    tn_device_close(device);
}

static void the_library_of_factorizations_belongs_to_the_device(void **state) {
    (void)state;
    tn_library_info l = {.struct_size = sizeof l};
    char name[sizeof l.name] = "none";
    for (int i = 0; i < tn_library_count(); i++)
        if (tn_library_at(i, &l) == TN_OK && l.available && !strcmp(l.backend, "cpu"))
            snprintf(name, sizeof name, "%s", l.name);
    bool has = strcmp(name, "none") != 0;
    for (int far = 0; far < 2; far++)
        for (int named = 0; named < 2; named++) {
            tn_device_options o = TN_DEVICE_DEFAULTS;
            o.library = named ? name : NULL;
            tn_device *device = far ? async_open(0, &o) : open_with(&o);
            assert_ok(tn_set_current_device(device));
            {
                TN_SCOPE;
                tn_tensor *x = tn_randn(TN_DIMS(96, 96)), *y = tn_linalg_cholesky(tn_matmul(x, tn_t(x)));
                assert_ok(tn_eval(&y, 1));
                assert_int_equal(last_product_is_by(name), named && has);
            }
            assert_string_equal(tn_get_library(), "none");
            tn_clear_plans();
            assert_ok(tn_set_current_device(NULL));
            tn_device_close(device);
        }
}

/* Queues beyond the limit have the default stream, and a stream that was freed is there for the next queue. */
static void streams_belong_to_the_device(void **state) {
    (void)state;
    enum { QUEUES = 4 };
    for (int most = 0; most < 4; most++) {
        tn_device_options o = TN_DEVICE_DEFAULTS;
        o.streams = most;
        tn_device *device = async_open(0, &o);
        tn_queue *queues[QUEUES], *further;
        for (int i = 0; i < QUEUES; i++) {
            assert_ok(tn_queue_new(device, &queues[i]));
            assert_int_equal(queues[i]->handle == device->handle, most && i + 1 >= most);
        }
        assert_ok(tn_set_current_device(device));
        float sums[QUEUES];
        for (int i = 0; i < QUEUES; i++) {
            TN_SCOPE;
            tn_tensor *y = tn_sum(tn_full(TN_DIMS(100), i + 1, TN_F32), NULL, 0, false);
            assert_ok(tn_eval_async(&y, 1, queues[i], NULL));
            assert_ok(tn_read(y, &sums[i], sizeof sums[i]));
            assert_true(sums[i] == 100.0f * (float)(i + 1));
        }
        tn_queue_free(queues[0]);
        assert_ok(tn_queue_new(device, &further));
        assert_int_equal(further->handle == device->handle, most == 1);
        tn_queue_free(further);
        for (int i = 1; i < QUEUES; i++)
            tn_queue_free(queues[i]);
        tn_clear_plans();
        assert_ok(tn_set_current_device(NULL));
        tn_device_close(device);
        assert_string_equal(async_fault(), "");
    }
}

static void values_out_of_range_are_refused(void **state) {
    (void)state;
    tn_device *device;
    for (int k = 0; k < 10; k++) {
        tn_device_options o = TN_DEVICE_DEFAULTS;
        int *fields[] = {&o.matrix, &o.numerics, &o.graphs, &o.vendor, &o.tuning};
        *fields[k / 2] = k % 2 ? 4 : -1;
        assert_int_equal(tn_device_open("cpu", &o, NULL, &device), TN_ERR_ARGUMENT);
        assert_text_has(tn_error(), "out of range");
    }
    tn_device_options o = TN_DEVICE_DEFAULTS;
    o.streams = -1;
    assert_int_equal(tn_device_open("cpu", &o, NULL, &device), TN_ERR_ARGUMENT);
    assert_text_has(tn_error(), "streams is -1");
}

/* What opening the device a second time prints. */
static void second_open_says(const tn_device_options *second, char *text, size_t size) {
    tn_device_options o = TN_DEVICE_DEFAULTS;
    o.numerics = 1;
    tn_device *first = open_with(&o);
    int kept = dup(2), file = open(test_scratch("notices"), O_RDWR | O_CREAT | O_TRUNC, 0600);
    assert_true(kept >= 0 && file >= 0 && dup2(file, 2) == 2);
    tn_device *again = open_with(second);
    assert_int_equal(dup2(kept, 2), 2);
    ssize_t n = pread(file, text, size - 1, 0);
    text[n > 0 ? n : 0] = 0;
    close(kept);
    close(file);
    assert_ptr_equal(first, again);
    tn_device_close(first);
    tn_device_close(again);
}

static void a_second_open_names_what_has_no_effect(void **state) {
    (void)state;
    char text[512];
    tn_device_options o = TN_DEVICE_DEFAULTS;
    second_open_says(&o, text, sizeof text);
    assert_string_equal(text, "");
    o.numerics = 2;
    o.pool_max = 1 << 20;
    o.vendor = 1;
    o.tuning_file = "other.json";
    o.streams = 2;
    second_open_says(&o, text, sizeof text);
    assert_text_has(text, "pool_max 1048576 (it has 0), numerics 2 (it has 1), vendor 1 (it has 0), tuning_file "
                          "\"other.json\" (it has none), streams 2 (it has 0)");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numerics_belong_to_the_device),
        cmocka_unit_test(graphs_can_be_turned_off),
        cmocka_unit_test(tuning_belongs_to_the_device),
        cmocka_unit_test(values_out_of_range_are_refused),
        cmocka_unit_test(the_file_of_tuning_belongs_to_the_device),
        cmocka_unit_test(the_library_belongs_to_the_device),
        cmocka_unit_test(a_second_open_names_what_has_no_effect),
        cmocka_unit_test(the_library_of_factorizations_belongs_to_the_device), /* its host device stays open */
        cmocka_unit_test(streams_belong_to_the_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
