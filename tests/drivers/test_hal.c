/* test_hal.c — promises of choosing, kernels and the driver interface, with a driver made for these tests.
 * Memory: test_hal_memory.c. What is found on a machine, and why not: test_device.c. Threads: test_device_threads.c. */
#include "device_support.h"

#include <fcntl.h>
#include <math.h>

#include "drivers/drivers.h"
#include "mock_driver.h"

static int clean_mock(void **state) {
    memset(&mock, 0, sizeof mock);
    return clean_environment(state);
}

static void wrong_drivers_are_refused(void **state) {
    (void)state;
    tn_driver d = mock_driver;
    assert_int_equal(tn_backend_register(NULL), TN_ERR_ARGUMENT);
    assert_int_equal(tn_backend_register(&mock_driver), TN_ERR_ARGUMENT); /* its name is taken */
    assert_text_has(tn_error(), "mock");
    d.name = "other";
    d.abi = 99;
    assert_int_equal(tn_backend_register(&d), TN_ERR_ARGUMENT);
    d = mock_driver;
    d.name = "other";
    d.copy = NULL;
    assert_int_equal(tn_backend_register(&d), TN_ERR_ARGUMENT);
    assert_text_has(tn_error(), "copy");
    d = mock_driver;
    d.name = "other";
    d.struct_size = 8;
    assert_int_equal(tn_backend_register(&d), TN_ERR_ARGUMENT);
    d = mock_driver;
    d.name = "My Chip";
    assert_int_equal(tn_backend_register(&d), TN_ERR_ARGUMENT);
    assert_text_has(tn_error(), "lower-case letters");
    d = mock_driver; /* an older one whose name is taken, again and again: nothing is kept of it */
    d.struct_size = offsetof(tn_driver, memory);
    for (int i = 0; i < 4000; i++)
        assert_int_equal(tn_backend_register(&d), TN_ERR_ARGUMENT);
}

static void registered_driver_is_listed_opened_and_launched(void **state) {
    (void)state;
    mock.devices = 2;
    tn_device_list *l = list_new(false);
    const tn_backend_info *b = backend_in(l, "mock");
    assert_true(b->available);
    assert_int_equal(b->device_count, 2);
    assert_string_equal(b->devices[1].id, "mock:1");
    assert_true(b->devices[1].usable);
    assert_string_equal(tn_device_list_recommended(l), "mock:0");
    tn_device_list_free(l);

    tn_device *d;
    assert_ok(tn_device_open("mock:1", NULL, NULL, &d));
    tn_buffer *buffer;
    assert_ok(tn_buffer_new(d, 100, &buffer));
    kir_program p = {.hash = 1};
    tn_kernel *k;
    assert_ok(tn_kernel_get(d, &p, &k));
    tn_launch launches[3] = {0};
    assert_ok(tn_kernel_launch(d, k, launches, 3));
    assert_int_equal(mock.launches, 3);
    tn_kernel_release(k);
    tn_buffer_release(buffer);
    tn_device_close(d);
    assert_int_equal(mock.live, 0);
    assert_int_equal(mock.loads, mock.unloads);
}

/* ---- choosing ---------------------------------------------------------------------------------------------------- */

static const tn_selection_step *step_of(const tn_selection *s, const char *id) {
    for (int i = 0; i < s->step_count; i++)
        if (!strcmp(s->steps[i].id, id)) return &s->steps[i];
    fail_msg("no step %s", id);
    return NULL;
}

static void auto_prefers_hardware_then_cpu_then_software(void **state) {
    (void)state;
    tn_selection s = {.struct_size = sizeof s};
    tn_device *d;
    mock.devices = 1;
    assert_ok(tn_device_open("auto", NULL, &s, &d));
    assert_string_equal(s.chosen, "mock:0");
    tn_device_close(d);
    mock.software = true;
    assert_ok(tn_device_open(NULL, NULL, &s, &d));
    assert_string_equal(s.chosen, "cpu");
    tn_device_close(d);
}

static void auto_passes_over_with_reasons(void **state) {
    (void)state;
    tn_selection s = {.struct_size = sizeof s};
    tn_device *d;
    assert_ok(tn_device_open("auto", NULL, &s, &d));
    tn_device_close(d);
    assert_string_equal(step_of(&s, "cuda")->reason_code, "library_not_found");
    assert_string_equal(step_of(&s, "mock")->reason_code, "no_device");
    assert_string_equal(step_of(&s, "mock")->fix, "give it some");
    assert_true(step_of(&s, "cpu")->chosen);
    const char *order[] = {"cuda", "rocm", "metal", "vulkan", "opencl", "webgpu", "mock", "cpu"};
    for (size_t i = 0; i < TN_COUNT(order); i++)
        assert_string_equal(s.steps[i].id, order[i]);
}

/* Runs `preference` under a policy and catches standard error. */
static tn_status open_and_listen(const char *preference, tn_fallback policy, tn_selection *s, char *heard,
                                 size_t size) {
    const char *path = test_scratch("stderr");
    fflush(stderr);
    int kept = dup(2), file = open(path, O_CREAT | O_TRUNC | O_RDWR, 0600);
    dup2(file, 2);
    tn_device_options o = TN_DEVICE_DEFAULTS;
    o.fallback = policy;
    tn_device *d;
    tn_status status = tn_device_open(preference, &o, s, &d);
    tn_device_close(d);
    fflush(stderr);
    dup2(kept, 2);
    ssize_t n = pread(file, heard, size - 1, 0);
    heard[n > 0 ? n : 0] = 0;
    close(file);
    close(kept);
    return status;
}

static void fallback_policies_do_what_they_say(void **state) {
    (void)state;
    char heard[1024];
    tn_selection s = {.struct_size = sizeof s};
    assert_ok(open_and_listen("mock", TN_FALLBACK_WARN, &s, heard, sizeof heard));
    assert_string_equal(s.chosen, "cpu");
    assert_text_has(heard, "mock");
    assert_text_has(heard, "using cpu");
    assert_ptr_equal(strchr(heard, '\n'), heard + strlen(heard) - 1); /* one line */
    assert_ok(open_and_listen("mock", TN_FALLBACK_SILENT, &s, heard, sizeof heard));
    assert_string_equal(heard, "");
    assert_int_equal(open_and_listen("mock", TN_FALLBACK_STRICT, &s, heard, sizeof heard), TN_ERR_UNAVAILABLE);
    assert_text_has(tn_error(), "the mock has no device now");
    assert_text_has(tn_error(), "give it some");
    assert_string_equal(s.chosen, "");
    assert_int_equal(s.step_count, 1);
}

static void failing_open_is_a_step(void **state) {
    (void)state;
    mock.devices = 1;
    mock.open_fails = true;
    tn_selection s = {.struct_size = sizeof s};
    tn_device *d;
    assert_ok(tn_device_open("auto", NULL, &s, &d));
    tn_device_close(d);
    assert_string_equal(step_of(&s, "mock:0")->reason_code, "init_failed");
    assert_string_equal(step_of(&s, "mock:0")->reason, "mkOpen gives error 77");
}

static void too_little_memory_passes_a_device_over(void **state) {
    (void)state;
    mock.devices = 1;
    mock.free_memory = 1 << 20;
    tn_device_options o = TN_DEVICE_DEFAULTS;
    o.minimum_memory = 2 << 20;
    tn_selection s = {.struct_size = sizeof s};
    tn_device *d;
    assert_ok(tn_device_open("auto", &o, &s, &d));
    tn_device_close(d);
    assert_string_equal(s.chosen, "cpu");
    assert_string_equal(step_of(&s, "mock:0")->reason_code, "no_memory");
    assert_text_has(step_of(&s, "mock:0")->reason, "1.0 MiB free, 2.0 MiB requested");
    assert_int_equal(mock.live, 0);
    o.minimum_memory = INT64_MAX;
    assert_int_equal(tn_device_open("auto", &o, &s, &d), TN_ERR_UNAVAILABLE);
    assert_null(d);
}

static void wrong_names_are_arguments(void **state) {
    (void)state;
    tn_device *d;
    const char *wrong[] = {"cuad", "cuda:", "cuda:x", "cuda:99999", "", ":", "cpu:1:2"};
    for (size_t i = 0; i < TN_COUNT(wrong); i++) {
        assert_int_equal(tn_device_open(wrong[i], NULL, NULL, &d), TN_ERR_ARGUMENT);
        assert_null(d);
    }
    assert_text_has(tn_error(), "cuda, rocm");
    mock.devices = 2;
    tn_device_options o = TN_DEVICE_DEFAULTS;
    o.fallback = TN_FALLBACK_STRICT;
    assert_int_equal(tn_device_open("mock:7", &o, NULL, &d), TN_ERR_UNAVAILABLE);
    assert_text_has(tn_error(), "the last is mock:1");
    assert_ok(tn_device_open("cpu:0", NULL, NULL, &d));
    tn_device_close(d);
}

static void options_and_results_carry_their_size(void **state) {
    (void)state;
    tn_device *d;
    tn_device_options none = {0};
    assert_int_equal(tn_device_open("cpu", &none, NULL, &d), TN_ERR_ARGUMENT);
    tn_device_options old = TN_DEVICE_DEFAULTS;
    old.struct_size = TN_OPTIONS_SIZE(tn_device_options, fallback);
    old.threads = -4;
    assert_ok(tn_device_open("cpu", &old, NULL, &d)); /* fields behind the size are not read */
    tn_device_options wrong = TN_DEVICE_DEFAULTS;
    wrong.threads = -4;
    tn_device *e;
    assert_int_equal(tn_device_open("cpu", &wrong, NULL, &e), TN_ERR_ARGUMENT);
    tn_selection nothing = {0};
    assert_int_equal(tn_device_open("cpu", NULL, &nothing, &e), TN_ERR_ARGUMENT);
    tn_device_info info = {.struct_size = offsetof(tn_device_info, name)};
    info.name[0] = 'x';
    assert_ok(tn_device_get_info(d, &info));
    assert_string_equal(info.id, "cpu");
    assert_int_equal(info.name[0], 'x');
    info.struct_size = 0;
    assert_int_equal(tn_device_get_info(d, &info), TN_ERR_ARGUMENT);
    assert_int_equal(tn_device_get_info(NULL, &info), TN_ERR_ARGUMENT);
    assert_int_equal(tn_device_open("cpu", NULL, NULL, NULL), TN_ERR_ARGUMENT);
    tn_device_close(d);
    tn_device_close(NULL);
}

static void opening_twice_shares_the_device(void **state) {
    (void)state;
    mock.devices = 1;
    tn_device *a, *b;
    assert_ok(tn_device_open("mock", NULL, NULL, &a));
    assert_ok(tn_device_open("mock:0", NULL, NULL, &b));
    assert_ptr_equal(a, b);
    assert_int_equal(mock.live, 1);
    tn_device_close(a);
    assert_int_equal(mock.live, 1);
    tn_device_close(b);
    assert_int_equal(mock.live, 0);
}

static void buffers_keep_a_closed_device_alive(void **state) {
    (void)state;
    mock.devices = 1;
    tn_device *d;
    tn_buffer *b;
    assert_ok(tn_device_open("mock", NULL, NULL, &d));
    assert_ok(tn_buffer_new(d, 1000, &b));
    tn_device_close(d);
    assert_int_equal(mock.live, 1);
    assert_ok(tn_buffer_write(b, 0, "text", 5));
    tn_buffer_release(b);
    assert_int_equal(mock.live, 0);
}

static void current_device_is_the_best_until_set(void **state) {
    (void)state;
    tn_device *best = tn_best_device();
    assert_non_null(best);
    assert_ptr_equal(tn_best_device(), best);
    assert_ptr_equal(tn_current_device(), best);
    mock.devices = 1;
    tn_device *d;
    assert_ok(tn_device_open("mock", NULL, NULL, &d));
    assert_ok(tn_set_current_device(d));
    assert_ptr_equal(tn_current_device(), d);
    assert_ok(tn_set_current_device(NULL));
    assert_ptr_equal(tn_current_device(), best);
    tn_device_close(d);
}

static void threads_are_set_for_all(void **state) {
    (void)state;
    assert_ok(tn_set_num_threads(2));
    assert_int_equal(tn_get_num_threads(), 2);
    tn_device_info info = {.struct_size = sizeof info};
    assert_ok(tn_device_get_info(tn_best_device(), &info));
    assert_int_equal(info.threads, 2);
    assert_ok(tn_set_num_threads(0));
    assert_true(tn_get_num_threads() >= 1);
    assert_int_not_equal(tn_set_num_threads(-1), TN_OK);
}

static tn_device *cpu(void) {
    tn_device *d = tn_best_device();
    assert_non_null(d);
    assert_true(d->is_cpu);
    return d;
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

/* y[i] = x[i] · factor */
static void build_scale(int64_t n, double factor, kir_program **p, int64_t **sizes) {
    kir_builder *b;
    assert_ok(kir_begin(1, 0, &n, &b));
    int x = kir_buffer(b, TN_F32), y = kir_buffer(b, TN_F32);
    kir_aff at = {.s = {1}, .dyn = KIR_NONE};
    kir_val v = kir_load(b, x, &at, KIR_NONE);
    kir_store(b, y, &at, kir_binary(b, KIR_MUL, v, kir_const(b, KIR_F32, factor)), KIR_NONE);
    assert_ok(kir_finish(b, p, sizes));
}

static void cpu_runs_a_kernel(void **state) {
    (void)state;
    enum { N = 5000 };
    tn_device *d = cpu();
    kir_program *p;
    int64_t *sizes;
    build_scale(N, 3, &p, &sizes);
    tn_buffer *x, *y;
    float in[N], out[N];
    for (int i = 0; i < N; i++)
        in[i] = (float)i / 8;
    assert_ok(tn_buffer_new(d, sizeof in, &x));
    assert_ok(tn_buffer_new(d, sizeof out, &y));
    assert_ok(tn_buffer_write(x, 0, in, sizeof in));
    tn_kernel *k;
    assert_ok(tn_kernel_get(d, p, &k));
    void *buffers[] = {x->address, y->address};
    tn_launch launch = {sizes, buffers, NULL};
    assert_ok(tn_kernel_launch(d, k, &launch, 1));
    assert_ok(tn_buffer_read(y, 0, out, sizeof out));
    for (int i = 0; i < N; i++)
        if (out[i] != in[i] * 3) fail_msg("element %d: %g, not %g", i, (double)out[i], (double)in[i] * 3);
    print_message("ran on: cpu (a kernel through the device layer)\n");
    tn_kernel_release(k);
    tn_buffer_release(x);
    tn_buffer_release(y);
    kir_free(p);
    tn_mem_free(sizes);
}

static void equal_structures_share_a_kernel(void **state) {
    (void)state;
    mock.devices = 1;
    tn_device *d;
    assert_ok(tn_device_open("mock", NULL, NULL, &d));
    tn_kernel *first[200], *again;
    for (int i = 0; i < 200; i++) { /* more than the table begins with */
        kir_program *p;
        int64_t *sizes;
        build_scale(8, i + 2, &p, &sizes);
        assert_ok(tn_kernel_get(d, p, &first[i]));
        kir_free(p);
        tn_mem_free(sizes);
        for (int k = 0; k < i; k++)
            assert_ptr_not_equal(first[i], first[k]);
    }
    for (int i = 0; i < 200; i++) {
        kir_program *p;
        int64_t *sizes;
        build_scale(800 + i, i + 2, &p, &sizes); /* another size is the same structure */
        assert_ok(tn_kernel_get(d, p, &again));
        assert_ptr_equal(again, first[i]);
        tn_kernel_release(again);
        tn_kernel_release(first[i]);
        kir_free(p);
        tn_mem_free(sizes);
    }
    assert_int_equal(mock.loads, 200);
    tn_device_close(d);
    assert_int_equal(mock.unloads, 200);
}

/* The kernel of one structure among many, its user gone at once. */
static tn_kernel *pass_by(tn_device *d, int factor) {
    kir_program *p;
    int64_t *sizes;
    tn_kernel *k;
    build_scale(8, factor, &p, &sizes);
    assert_ok(tn_kernel_get(d, p, &k));
    tn_kernel_release(k);
    kir_free(p);
    tn_mem_free(sizes);
    return k;
}

static void only_the_latest_unused_kernels_are_kept(void **state) {
    (void)state;
    enum { STRUCTURES = 2000, KEPT = 512 };
    mock.devices = 1;
    mock.loads = mock.unloads = 0;
    tn_device *d;
    kir_program *p;
    int64_t *sizes;
    tn_kernel *held;
    assert_ok(tn_device_open("mock", NULL, NULL, &d));
    build_scale(8, 1, &p, &sizes);
    assert_ok(tn_kernel_get(d, p, &held));
    for (int i = 0; i < STRUCTURES; i++)
        pass_by(d, i + 2);
    assert_int_equal(mock.loads, STRUCTURES + 1);
    assert_int_equal(mock.unloads, STRUCTURES - KEPT);
    for (int i = STRUCTURES - KEPT; i < STRUCTURES; i++) /* the oldest of them leaves first, but each was used again */
        pass_by(d, i + 2);
    assert_int_equal(mock.loads, STRUCTURES + 1);
    pass_by(d, 2);
    assert_int_equal(mock.loads, STRUCTURES + 2);
    tn_kernel *again;
    assert_ok(tn_kernel_get(d, p, &again)); /* in use all the time */
    assert_ptr_equal(again, held);
    assert_int_equal(mock.loads, STRUCTURES + 2);
    tn_kernel_release(again);
    tn_device_close(d);
    assert_int_equal(mock.unloads, mock.loads);
    tn_kernel_release(held); /* its device has ended */
    kir_free(p);
    tn_mem_free(sizes);
}

static void equal_hashes_of_different_structures_stay_apart(void **state) {
    (void)state;
    mock.devices = 1;
    tn_device *d;
    assert_ok(tn_device_open("mock", NULL, NULL, &d));
    kir_program *p, *q;
    int64_t *sizes, *more;
    build_scale(8, 2, &p, &sizes);
    build_scale(8, 5, &q, &more);
    q->hash = p->hash;
    tn_kernel *a, *b;
    assert_ok(tn_kernel_get(d, p, &a));
    assert_ok(tn_kernel_get(d, q, &b));
    assert_ptr_not_equal(a, b);
    tn_kernel_release(a);
    tn_kernel_release(b);
    kir_free(p);
    kir_free(q);
    tn_mem_free(sizes);
    tn_mem_free(more);
    tn_device_close(d);
}

/* ---- the null driver --------------------------------------------------------------------------------------------- */

static void null_driver_sees_right_use(void **state) {
    (void)state;
    tn_null_reset_counts();
    tn_device *d;
    assert_ok(tn_device_open("null", NULL, NULL, &d));
    kir_program *p;
    int64_t *sizes;
    build_scale(16, 2, &p, &sizes);
    tn_buffer *x, *y;
    float data[16] = {1, 2, 3}, out[16] = {0};
    assert_ok(tn_buffer_new(d, sizeof data, &x));
    assert_ok(tn_buffer_new(d, sizeof data, &y));
    assert_ok(tn_buffer_write(x, 0, data, sizeof data));
    tn_kernel *k;
    assert_ok(tn_kernel_get(d, p, &k));
    void *buffers[] = {x->address, y->address};
    tn_launch launch = {sizes, buffers, NULL};
    assert_ok(tn_kernel_launch(d, k, &launch, 1));
    assert_ok(tn_buffer_read(x, 4, out, 8));
    assert_true(out[0] == 2 && out[1] == 3);
    tn_kernel_release(k);
    tn_buffer_release(x);
    tn_buffer_release(y);
    tn_device_close(d);
    kir_free(p);
    tn_mem_free(sizes);
    tn_null_counts c = tn_null_get_counts();
    assert_string_equal(c.first_fault, "");
    assert_int_equal(c.opens, 1);
    assert_int_equal(c.closes, 1);
    assert_int_equal(c.allocs, c.frees);
    assert_int_equal(c.loads, 1);
    assert_int_equal(c.unloads, 1);
    assert_int_equal(c.launches, 1);
    assert_int_equal(c.copies, 2);
    assert_int_equal(c.live_blocks + c.live_modules, 0);
}

static void null_driver_sees_wrong_use(void **state) {
    (void)state;
    tn_null_reset_counts();
    tn_device *d;
    assert_ok(tn_device_open("null", NULL, NULL, &d));
    int there = 1;
    assert_int_equal(tn_device_copy(d, &there, NULL, &there, sizeof there), TN_ERR_INTERNAL);
    assert_text_has(tn_error(), "outside of any allocation");
    assert_int_equal(tn_null_get_counts().faults, 1);
    tn_device_close(d);
    tn_null_reset_counts();
}

/* ---- memory that runs out ---------------------------------------------------------------------------------------- */

/* Runs `work` with each of its allocations failing in turn: every failure is clean and leaves nothing behind. */
static void assert_failures_are_clean(tn_status (*work)(void)) {
    assert_ok(work()); /* what is made once a process is made now */
    for (int64_t n = 1;; n++) {
        tn_mem_stats before = tn_mem_get_stats();
        tn_memory_stats buffers = tn_memory_get_stats();
        tn_mem_fail_at(n);
        tn_status s = work();
        tn_mem_fail_at(0);
        tn_mem_stats after = tn_mem_get_stats();
        if (s != TN_OK && s != TN_ERR_MEMORY)
            fail_msg("failure %d gives %s: %s", (int)n, tn_status_name(s), tn_error());
        assert_int_equal(after.live_blocks, before.live_blocks);
        assert_int_equal(tn_memory_get_stats().live_buffers, buffers.live_buffers);
        if (after.calls - before.calls < n) return; /* the work makes fewer allocations than n */
        assert_true(n < 1000);
    }
}

static tn_status list_work(void) {
    tn_device_list *l;
    TRY(tn_device_list_new(true, &l));
    tn_device_list_free(l);
    return TN_OK;
}

static tn_status open_work(void) {
    tn_device *d;
    TRY(tn_device_open("mock", NULL, NULL, &d));
    tn_device_close(d);
    return TN_OK;
}

static tn_status buffer_work(void) {
    tn_device *d;
    tn_buffer *a = NULL, *b = NULL;
    void *p = NULL;
    char c[8] = {0};
    TRY(tn_device_open("mock", NULL, NULL, &d));
    tn_status s = tn_buffer_new(d, 100, &a);
    if (s == TN_OK) s = tn_buffer_borrow(d, c, sizeof c, NULL, NULL, &b);
    if (s == TN_OK) s = tn_device_alloc(d, 5000, 4096, &p);
    tn_buffer_release(a);
    tn_buffer_release(b);
    tn_device_dealloc(d, p);
    tn_device_close(d);
    return s;
}

static kir_program *some_program;

static tn_status kernel_work(void) {
    tn_device *d;
    tn_kernel *k;
    TRY(tn_device_open("mock", NULL, NULL, &d));
    tn_status s = tn_kernel_get(d, some_program, &k);
    if (s == TN_OK) tn_kernel_release(k);
    tn_device_close(d);
    return s;
}

static tn_status staged_work(void) {
    tn_device *a, *b;
    void *p = NULL, *q = NULL;
    TRY(tn_device_open("mock:0", NULL, NULL, &a));
    tn_status s = tn_device_open("mock:1", NULL, NULL, &b);
    if (s == TN_OK) s = tn_device_alloc(a, 100, 64, &p);
    if (s == TN_OK) s = tn_device_alloc(b, 100, 64, &q);
    if (s == TN_OK) s = tn_device_copy(a, p, b, q, 100);
    tn_device_dealloc(a, p);
    tn_device_dealloc(b, q);
    tn_device_close(a);
    tn_device_close(b);
    return s;
}

static void every_failed_allocation_is_clean(void **state) {
    (void)state;
    int64_t *sizes;
    build_scale(8, 2, &some_program, &sizes);
    mock.devices = 2;
    setenv("TRUNNION_CUDA_LIB", build_fake("gpu.c", "libcuda.so.1", ""), 1);
    setenv("TRUNNION_LOG", "0", 1);
    assert_failures_are_clean(list_work);
    assert_failures_are_clean(open_work);
    assert_failures_are_clean(buffer_work);
    assert_failures_are_clean(kernel_work);
    assert_failures_are_clean(staged_work);
    kir_free(some_program);
    tn_mem_free(sizes);
}

/* A driver around another one asks for it where it is loaded or asked itself. */
static const tn_driver *asked_for;
static tn_status asked_to_register;

static void asking_probe(tn_probe *out) {
    (void)out;
    asked_for = tn_backend_driver("cpu");
    asked_to_register = tn_backend_register(&mock_driver);
}

static void drivers_may_ask_for_others(void **state) {
    (void)state;
    static tn_driver asking;
    tn_device_options o = TN_DEVICE_DEFAULTS;
    o.fallback = TN_FALLBACK_STRICT;
    tn_device *d = NULL;
    asking = mock_driver;
    asking.name = "asking";
    asking.probe = asking_probe;
    assert_ok(tn_backend_register(&asking));
    assert_int_equal(tn_device_open("asking", &o, NULL, &d), TN_ERR_UNAVAILABLE);
    assert_non_null(asked_for);
    assert_int_equal(asked_to_register, TN_ERR_STATE);
}

int main(void) {
    if (tn_backend_register(&mock_driver) != TN_OK || tn_backend_register(&tn_driver_null) != TN_OK) return 1;
#define TEST(f) cmocka_unit_test_setup(f, clean_mock)
    const struct CMUnitTest tests[] = {
        TEST(cpu_runs_a_kernel),
        TEST(wrong_drivers_are_refused),
        TEST(registered_driver_is_listed_opened_and_launched),
        TEST(auto_prefers_hardware_then_cpu_then_software),
        TEST(auto_passes_over_with_reasons),
        TEST(fallback_policies_do_what_they_say),
        TEST(failing_open_is_a_step),
        TEST(too_little_memory_passes_a_device_over),
        TEST(wrong_names_are_arguments),
        TEST(options_and_results_carry_their_size),
        TEST(opening_twice_shares_the_device),
        TEST(buffers_keep_a_closed_device_alive),
        TEST(current_device_is_the_best_until_set),
        TEST(threads_are_set_for_all),
        TEST(equal_structures_share_a_kernel),
        TEST(only_the_latest_unused_kernels_are_kept),
        TEST(equal_hashes_of_different_structures_stay_apart),
        TEST(null_driver_sees_right_use),
        TEST(null_driver_sees_wrong_use),
        TEST(every_failed_allocation_is_clean),
        TEST(drivers_may_ask_for_others),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
