/* test_opencl.c — the OpenCL driver alone, on every OpenCL device of this machine: memory, kernels, launches, errors.
 *
 * The kernels here are written by hand, with the parameters that a rendered kernel has. */
#include "axpy.h"
#include "drivers/drivers.h"
#include "hal/driver.h"
#include "hal/hal.h"
#include "test_support.h"
#include "trunnion/ops.h"
#include <math.h>

static const tn_driver *cl = &tn_driver_opencl;
static void *device; /* opencl:0 */
static tn_device_info info;

/* out[i] = x[i] · scale + y[i] for n elements; the bases are bytes. */
static const char AXPY[] =
    "typedef struct { long n; float scale; int pad; long base[3]; } axpy_params;\n"
    "__kernel void axpy(__global const char *x, __global const char *y, __global char *out, axpy_params p) {\n"
    "    long i = get_global_id(0);\n"
    "    if (i >= p.n) return;\n"
    "    float a = ((__global const float *)(x + p.base[0]))[i], b = ((__global const float *)(y + p.base[1]))[i];\n"
    "    ((__global float *)(out + p.base[2]))[i] = a * p.scale + b;\n"
    "}\n";

static tn_code axpy_code(void) { return axpy_of(TN_CODE_OPENCL_C, AXPY, NULL); }

static int open_device(void **state) {
    (void)state;
    tn_device_options options = TN_DEVICE_DEFAULTS;
    tn_probe probe = {.struct_size = sizeof probe, .devices = &info, .capacity = 1};
    cl->probe(&probe);
    tn_status s = cl->open(0, &options, &device);
    if (s != TN_OK) {
        printf("skipped: no OpenCL device: %s\n", tn_error());
        device = NULL;
    }
    return 0;
}

static int close_device(void **state) {
    (void)state;
    if (device) cl->close(device);
    return 0;
}

static void *alloc(size_t bytes) { return alloc_on(cl, device, bytes); }

/* It interprets every item: large kernels take minutes. */
static bool is_simulator(void) { return strstr(info.name, "Oclgrind") != NULL; }

#define NEEDS_DEVICE \
    (void)state;     \
    if (!device) skip()

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static void addresses_can_be_offset(void **state) {
    NEEDS_DEVICE;
    addresses_are_offset(cl, device);
}

static void memory_is_counted_and_bounded(void **state) {
    NEEDS_DEVICE;
    int64_t total = 0, before = 0, after = 0;
    assert_ok(cl->memory(device, &total, &before));
    assert_true(total > 0 && before > 0 && before <= total);
    void *address = NULL;
    assert_int_equal(cl->alloc(device, (size_t)total + 1, &address), TN_ERR_MEMORY);
    assert_int_equal(cl->alloc(device, (size_t)1 << 60, &address), TN_ERR_MEMORY);
    assert_int_equal(cl->alloc(device, SIZE_MAX, &address), TN_ERR_MEMORY);
    assert_ok(cl->memory(device, &total, &after));
    assert_true(after > 0 && after <= total);
    cl->free(device, alloc(0));
}

static void spans_hold_their_order(void **state) {
    (void)state;
    enum { MANY = 2000 };
    tn_address_ranges spans;
    tn_address_ranges_open(&spans);
    static char *at[MANY];
    static char handles[MANY];
    size_t offset = 0, bytes = 0;
    for (int i = 0; i < MANY; i++)
        assert_ok(tn_address_range_add(&spans, &handles[i], (size_t)(i * 37 % 9000), (void **)&at[i]));
    for (int i = 0; i < MANY; i += 3)
        assert_ptr_equal(tn_address_range_remove(&spans, at[i], &bytes), &handles[i]);
    for (int i = 0; i < MANY; i++) {
        size_t length = (size_t)(i * 37 % 9000), middle = length / 2;
        assert_int_equal((uintptr_t)at[i] % 4096, 0);
        void *found = tn_address_range_find(&spans, at[i] + middle, length - middle, &offset);
        if (i % 3 == 0) {
            assert_null(found);
            continue;
        }
        assert_ptr_equal(found, &handles[i]);
        assert_int_equal(offset, middle);
        if (length) assert_null(tn_address_range_find(&spans, at[i], length + 1, &offset));
        assert_null(tn_address_range_find(&spans, at[i] - 1, 0, &offset));
        assert_null(tn_address_range_remove(&spans, at[i] + 1, &bytes));
    }
    tn_address_ranges_close(&spans);
}

/* When all numbers were given out once, gaps are used again, and no range touches another. */
static void spans_come_round(void **state) {
    (void)state;
    tn_address_ranges spans;
    tn_address_ranges_open(&spans);
    char handles[4], *at[4], *again = NULL;
    size_t offset, bytes;
    for (int i = 0; i < 4; i++)
        assert_ok(tn_address_range_add(&spans, &handles[i], 10000, (void **)&at[i]));
    spans.next = UINTPTR_MAX;
    assert_ptr_equal(tn_address_range_remove(&spans, at[1], &bytes), &handles[1]);
    assert_int_equal(bytes, 10000);
    assert_ok(tn_address_range_add(&spans, &handles[1], 20000, (void **)&again));
    assert_true(again > at[3]);
    assert_ok(tn_address_range_add(&spans, &handles[1], 9000, (void **)&again));
    assert_ptr_equal(again, at[1]);
    assert_ptr_equal(tn_address_range_find(&spans, at[2], 10000, &offset), &handles[2]);
    assert_int_equal(tn_address_range_add(&spans, &handles[1], SIZE_MAX / 2, (void **)&again), TN_ERR_MEMORY);
    tn_address_ranges_close(&spans);
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

/* Launches axpy on buffers at odd offsets and checks the result. */
static void run_axpy(void *module) {
    char *x = alloc(8192), *y = alloc(8192);
    axpy_run(cl, device, module, x + 64, y + 128, y + 4096, 40);
    cl->free(device, x);
    cl->free(device, y);
}

static void kernel_computes(void **state) {
    NEEDS_DEVICE;
    tn_code code = axpy_code();
    void *module = NULL;
    assert_ok(cl->load(device, &code, &module));
    run_axpy(module);
    assert_ok(cl->sync(device));
    cl->unload(device, module);
    printf("ran on: opencl:0 (%s%s): hand-written kernels\n", info.name, info.software ? ", software" : "");
}

static void binary_is_taken_back(void **state) {
    NEEDS_DEVICE;
    tn_code code = axpy_code();
    void *first = NULL, *second = NULL, *bytes = NULL;
    size_t size = 0;
    assert_ok(cl->load(device, &code, &first));
    assert_ok(cl->binary(device, first, &bytes, &size));
    assert_true(bytes && size > 0);
    code.binary = bytes;
    code.binary_size = size;
    code.data = "this is no source";
    code.size = strlen(code.data);
    assert_ok(cl->load(device, &code, &second));
    run_axpy(second);
    cl->unload(device, second);
    cl->unload(device, first);
}

static void useless_binary_is_compiled_anew(void **state) {
    NEEDS_DEVICE;
    tn_code code = axpy_code();
    void *module = NULL;
    code.binary = "neither this";
    code.binary_size = 12;
    assert_ok(cl->load(device, &code, &module));
    run_axpy(module);
    cl->unload(device, module);
}

static void compiler_words_are_told(void **state) {
    NEEDS_DEVICE;
    tn_code code = axpy_code();
    void *module = NULL;
    code.data = "__kernel void axpy(__global float *x) { x[0] = no_such_name; }";
    code.size = strlen(code.data);
    assert_int_equal(cl->load(device, &code, &module), TN_ERR_UNSUPPORTED);
    assert_text_has(tn_error(), "no_such_name");
    assert_text_has(tn_error(), "axpy: compiling failed");
    code = axpy_code();
    code.entry = "another";
    assert_int_equal(cl->load(device, &code, &module), TN_ERR_DEVICE);
    assert_text_has(tn_error(), "CL_INVALID_KERNEL_NAME");
    code = axpy_code();
    code.group[0] = 1 << 20;
    assert_int_equal(cl->load(device, &code, &module), TN_ERR_UNSUPPORTED);
    assert_text_has(tn_error(), "workgroups of 1048576 items");
}

static void empty_launch_does_nothing(void **state) {
    NEEDS_DEVICE;
    tn_code code = axpy_code();
    void *module = NULL;
    assert_ok(cl->load(device, &code, &module));
    axpy_params params = {.n = 0};
    void *buffers[3] = {NULL, NULL, NULL};
    tn_dispatch d = {.groups = {0, 1, 1}, .buffers = buffers, .params = &params};
    assert_ok(cl->dispatch(device, module, &d, 1));
    d.groups[0] = 1;
    assert_ok(cl->dispatch(device, module, &d, 1)); /* NULL is a buffer that the kernel does not touch */
    buffers[1] = (void *)0x1234;
    assert_int_equal(cl->dispatch(device, module, &d, 1), TN_ERR_INTERNAL);
    assert_ok(cl->sync(device));
    cl->unload(device, module);
}

static void large_parameters_come_in_a_buffer(void **state) {
    NEEDS_DEVICE;
    static const char TEXT[] = "__kernel void sum(__global char *out, __constant long *p) {\n"
                               "    long all = 0;\n"
                               "    for (int i = 0; i < 400; i++) all += p[i];\n"
                               "    *(__global long *)(out + p[400]) = all;\n"
                               "}\n";
    enum { WORDS = 401 };
    tn_code code = {.format = TN_CODE_OPENCL_C,
                    .data = TEXT,
                    .size = sizeof TEXT - 1,
                    .entry = "sum",
                    .buffer_count = 1,
                    .group = {1, 1, 1},
                    .params_bytes = WORDS * 8,
                    .bases_at = (WORDS - 1) * 8,
                    .params_in_buffer = true};
    void *module = NULL;
    assert_ok(cl->load(device, &code, &module));
    char *out = alloc(4096);
    int64_t params[WORDS] = {0}, sum = 0;
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < WORDS - 1; i++)
            params[i] = i * round;
        void *buffers[] = {out + 512 * round};
        tn_dispatch d = {.groups = {1, 1, 1}, .buffers = buffers, .params = params};
        assert_ok(cl->dispatch(device, module, &d, 1));
    }
    for (int round = 0; round < 3; round++) {
        assert_ok(cl->copy(device, &sum, out + 512 * round, sizeof sum, 1));
        assert_int_equal(sum, 399 * 400 / 2 * round);
    }
    cl->free(device, out);
    cl->unload(device, module);
}

/* ---- queues, events, other ways to memory ------------------------------------------------------------------------ */

static void queues_wait_for_events(void **state) {
    NEEDS_DEVICE;
    enum { ROUNDS = 50 };
    size_t length = is_simulator() ? 1 << 10 : 1 << 20, bytes = length * 4;
    tn_code code = axpy_code();
    void *module = NULL, *other = NULL, *done = NULL, *taken = NULL;
    bool passed = false;
    assert_ok(cl->load(device, &code, &module));
    assert_ok(cl->queue_new(device, &other));
    assert_ok(cl->event_new(device, false, &done));
    assert_ok(cl->event_new(device, false, &taken));
    assert_ok(cl->event_query(device, done, &passed));
    assert_true(passed); /* what was never recorded does not keep anyone waiting */
    assert_ok(cl->event_sync(device, done));
    assert_ok(cl->event_wait(other, done));
    char *x = alloc(bytes), *zero = alloc(bytes), *copy = alloc(bytes);
    assert_ok(cl->fill(device, x, 0, bytes));
    assert_ok(cl->fill(device, zero, 0, bytes));
    float one = 1.0f, seen = 0.0f;
    assert_ok(cl->copy(device, x + bytes - 4, &one, 4, 0));
    for (int round = 1; round <= ROUNDS; round++) {
        axpy_params params = {.n = (int64_t)length, .scale = 1.0f + 1.0f / (float)round};
        void *buffers[] = {x, zero, x};
        tn_dispatch d = {.groups = {(uint32_t)(length / 64), 1, 1}, .buffers = buffers, .params = &params};
        assert_ok(cl->event_wait(device, taken)); /* the other queue has read the last round's result */
        assert_ok(cl->dispatch(device, module, &d, 1));
        assert_ok(cl->event_record(device, done));
        assert_ok(cl->event_wait(other, done));
        assert_ok(cl->copy(other, copy, x, bytes, 2));
        assert_ok(cl->event_record(other, taken));
        if (round % 10) continue;
        assert_ok(cl->copy(other, &seen, copy + bytes - 4, 4, 1));
        assert_true(seen > (float)round + 0.99f && seen < (float)round + 1.01f); /* the product of (1 + 1/r) */
    }
    assert_ok(cl->event_sync(device, taken));
    assert_ok(cl->event_query(device, taken, &passed));
    assert_true(passed);
    assert_ok(cl->sync(other));
    cl->event_free(device, done);
    cl->event_free(device, taken);
    cl->queue_free(device, other);
    cl->free(device, x);
    cl->free(device, zero);
    cl->free(device, copy);
    cl->unload(device, module);
}

static void events_tell_the_time(void **state) {
    NEEDS_DEVICE;
    enum { LONG = 1 << 22 };
    void *first = NULL, *second = NULL;
    double a = 0, b = 0;
    assert_ok(cl->event_new(device, true, &first));
    assert_ok(cl->event_new(device, true, &second));
    assert_int_equal(cl->event_time(device, first, &a), TN_ERR_STATE);
    char *x = alloc(LONG), *y = alloc(LONG);
    assert_ok(cl->fill(device, x, 1, LONG));
    assert_ok(cl->event_record(device, first));
    for (int i = 0; i < 20; i++)
        assert_ok(cl->copy(device, y, x, LONG, 2));
    assert_ok(cl->event_record(device, second));
    assert_ok(cl->event_sync(device, second));
    assert_ok(cl->event_time(device, first, &a));
    assert_ok(cl->event_time(device, second, &b));
    assert_true(b >= a && b - a < 60);
    cl->event_free(device, first);
    cl->event_free(device, second);
    cl->free(device, x);
    cl->free(device, y);
}

static void pinned_memory_is_copied_beside_the_caller(void **state) {
    NEEDS_DEVICE;
    enum { BYTES = 100000 };
    unsigned char *in = NULL, *out = NULL;
    void *event = NULL;
    assert_ok(cl->host_alloc(device, BYTES, (void **)&in));
    assert_ok(cl->host_alloc(device, BYTES, (void **)&out));
    assert_ok(cl->event_new(device, false, &event));
    for (int i = 0; i < BYTES; i++)
        in[i] = (unsigned char)(i * 31 >> 3);
    memset(out, 0, BYTES);
    char *x = alloc(BYTES + 8);
    assert_ok(cl->copy_async(device, x + 5, in, BYTES, 0));
    assert_ok(cl->copy_async(device, out, x + 5, BYTES, 1));
    assert_ok(cl->event_record(device, event));
    assert_ok(cl->event_sync(device, event));
    assert_memory_equal(in, out, BYTES);
    cl->event_free(device, event);
    cl->host_free(device, in);
    cl->host_free(device, out);
    cl->free(device, x);
}

static void fills_keep_to_their_range(void **state) {
    NEEDS_DEVICE;
    unsigned char out[64], want[64];
    char *x = alloc(64);
    memset(want, 3, sizeof want);
    memset(want + 7, 0xAB, 22);
    assert_ok(cl->fill(device, x, 3, 64));
    assert_ok(cl->fill(device, x + 7, 0xAB, 22));
    assert_ok(cl->fill(device, x, 9, 0));
    assert_ok(cl->copy(device, out, x, 64, 1));
    assert_memory_equal(out, want, 64);
    assert_int_equal(cl->fill(device, x + 60, 1, 5), TN_ERR_INTERNAL);
    cl->free(device, x);
}

static void mapped_memory_shows_and_takes(void **state) {
    NEEDS_DEVICE;
    unsigned char out[300], *view = NULL;
    char *x = alloc(300);
    assert_ok(cl->fill(device, x, 7, 300));
    assert_ok(cl->map(device, x + 100, 50, true, (void **)&view));
    for (int i = 0; i < 50; i++)
        assert_int_equal(view[i], 7);
    memset(view, 9, 50);
    assert_ok(cl->unmap(device, x + 100, view));
    assert_ok(cl->map(device, x + 200, 50, false, (void **)&view));
    memset(view, 11, 50);
    assert_ok(cl->unmap(device, x + 200, view));
    assert_ok(cl->copy(device, out, x, 300, 1));
    for (int i = 0; i < 300; i++)
        assert_int_equal(out[i], i >= 100 && i < 150 ? 9 : i >= 200 && i < 250 ? 11 : 7);
    cl->free(device, x);
}

/* ---- threads ----------------------------------------------------------------------------------------------------- */

static void threads_share_a_kernel(void **state) {
    NEEDS_DEVICE;
    if (is_simulator()) skip(); /* it cannot be called from several threads */
    tn_code code = axpy_code();
    threads_launch_one_kernel(cl, device, &code);
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static void absent_device_is_named(void **state) {
    NEEDS_DEVICE;
    void *other = NULL;
    tn_device_options options = TN_DEVICE_DEFAULTS;
    assert_int_equal(cl->open(15, &options, &other), TN_ERR_UNAVAILABLE);
    assert_text_has(tn_error(), "opencl:15");
}

static void caps_are_sensible(void **state) {
    NEEDS_DEVICE;
    tn_caps caps = {.struct_size = sizeof caps};
    assert_ok(cl->caps(device, &caps));
    assert_int_equal(caps.code, TN_CODE_OPENCL_C);
    assert_true(caps.max_group >= 64 && caps.max_buffer >= (int64_t)64 << 20 && caps.shared_memory >= 16 << 10);
    assert_true(caps.max_bindings >= 64 && caps.max_groups_x > 0 && caps.i64 && !caps.host_visible);
    assert_true(caps.version[0]);
}

/* ---- wrong on purpose -------------------------------------------------------------------------------------------- */

/* Kernels with one fault each, to see that a checker of kernels finds it: `test_opencl --race` runs one. */
static const struct fault {
    const char *word, *text;
} kernel_faults[] = {
    {"--race", "__kernel void wrong(__global int *x) {\n"
               "    __local int s[64];\n"
               "    int i = get_local_id(0);\n"
               "    s[i] = x[i];\n"
               "    x[i] = s[63 - i];\n"
               "}\n"},
    {"--bounds", "__kernel void wrong(__global int *x) { x[get_local_id(0) + 1] = 1; }\n"},
    {"--uninitialised", "__kernel void wrong(__global int *x) {\n"
                        "    __local int s[64];\n"
                        "    x[get_local_id(0)] = s[get_local_id(0)];\n"
                        "}\n"},
};

/* A compiler that sees NaN in the program may fold away what is made of it: it comes with the launch. */
static void a_rounded_nan_is_stored(void **state) {
    (void)state;
    if (!device) skip();
    const float x[] = {0, 1, -2, 5};
    float y[] = {7, 7, 7, 7};
    tn_device *d;
    assert_ok(tn_device_open("opencl:0", NULL, NULL, &d));
    assert_ok(tn_set_current_device(d));
    {
        TN_SCOPE;
        assert_ok(tn_read(tn_floor(tn_mul_scalar(tn_from_data(x, (int64_t[]){4}, 1, TN_F32), NAN)), y, sizeof y));
    }
    for (int i = 0; i < 4; i++)
        assert_true(isnan(y[i]));
    assert_ok(tn_set_current_device(NULL));
    tn_device_close(d);
}

static int run_wrong(const struct fault *f) {
    static const int zeros[64];
    const tn_device_options options = TN_DEVICE_DEFAULTS;
    tn_code code = {.format = TN_CODE_OPENCL_C,
                    .data = f->text,
                    .size = strlen(f->text),
                    .entry = "wrong",
                    .buffer_count = 1,
                    .group = {64, 1, 1}};
    void *module = NULL, *x = NULL;
    tn_dispatch d = {.groups = {1, 1, 1}, .buffers = &x};
    bool ran = cl->open(0, &options, &device) == TN_OK && cl->alloc(device, sizeof zeros, &x) == TN_OK &&
               cl->copy(device, x, zeros, sizeof zeros, 0) == TN_OK && cl->load(device, &code, &module) == TN_OK &&
               cl->dispatch(device, module, &d, 1) == TN_OK && cl->sync(device) == TN_OK;
    if (!ran) fprintf(stderr, "%s: %s\n", f->word, tn_error());
    return !ran;
}

int main(int argc, char **argv) {
    for (size_t i = 0; argc > 1 && i < TN_COUNT(kernel_faults); i++)
        if (!strcmp(argv[1], kernel_faults[i].word)) return run_wrong(&kernel_faults[i]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spans_hold_their_order),
        cmocka_unit_test(spans_come_round),
        cmocka_unit_test(caps_are_sensible),
        cmocka_unit_test(absent_device_is_named),
        cmocka_unit_test(addresses_can_be_offset),
        cmocka_unit_test(memory_is_counted_and_bounded),
        cmocka_unit_test(kernel_computes),
        cmocka_unit_test(binary_is_taken_back),
        cmocka_unit_test(useless_binary_is_compiled_anew),
        cmocka_unit_test(compiler_words_are_told),
        cmocka_unit_test(empty_launch_does_nothing),
        cmocka_unit_test(large_parameters_come_in_a_buffer),
        cmocka_unit_test(queues_wait_for_events),
        cmocka_unit_test(events_tell_the_time),
        cmocka_unit_test(pinned_memory_is_copied_beside_the_caller),
        cmocka_unit_test(fills_keep_to_their_range),
        cmocka_unit_test(mapped_memory_shows_and_takes),
        cmocka_unit_test(threads_share_a_kernel),
        cmocka_unit_test(a_rounded_nan_is_stored),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
