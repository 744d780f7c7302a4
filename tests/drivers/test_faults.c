/* test_faults.c — devices that are small, and devices that fail: with shrunk limits everything computes the same;
 * when a call of the driver fails, whichever it is, the work ends with an error in words or with the right result,
 * states are as before or as after a step, nothing is lost and nothing hangs.
 *
 * The device is a wrapped one (wrap_driver.h): around far memory, and around OpenCL where there is one. */
#include "test_support.h"

#include "cli/device/conform.h"
#include "drivers/drivers.h"
#include "far_driver.h"
#include "hal/kernel_code.h"
#include "kir_random.h"
#include "tensor/graph.h"
#include "trunnion/trunnion.h"
#include "two_states.h"
#include "wrap_driver.h"

#if defined(TEST_ADDRESS_SANITIZER) || defined(TEST_THREAD_SANITIZER)
enum { NO_HUGE = 1 }; /* an allocation that nobody has ends the process */
#else
enum { NO_HUGE = 0 };
#endif

static const tn_driver *driver; /* wrapped */

static int use_far(void **state) {
    driver = wrap_driver(&far_driver);
    wrap_reset();
    return make_scratch(state) || setenv("TRUNNION_CACHE", test_scratch("cache"), 1);
}

/* Leaves the driver NULL where there is no OpenCL. */
static int use_opencl(void **state) {
    driver = NULL;
    wrap_reset();
#if TRUNNION_WITH_OPENCL
    tn_device_options o = TN_DEVICE_DEFAULTS;
    o.fallback = TN_FALLBACK_STRICT;
    tn_device *d;
    if (tn_device_open("opencl:0", &o, NULL, &d) == TN_OK) {
        tn_device_close(d);
        driver = wrap_driver(&tn_driver_opencl);
    }
#endif
    return make_scratch(state) || setenv("TRUNNION_CACHE", test_scratch("cache"), 1);
}

static tn_status open_wrapped(tn_device **out) {
    static const tn_driver *registered[4];
    tn_device_options o = TN_DEVICE_DEFAULTS;
    o.fallback = TN_FALLBACK_STRICT;
    size_t i = 0;
    while (registered[i] && registered[i] != driver)
        i++;
    if (!registered[i]) {
        TRY(tn_backend_register(driver));
        registered[i] = driver;
    }
    return tn_device_open(driver->name, &o, NULL, out);
}

/* All that this thread and the device keep for reuse is given back; nothing of the driver's is alive then. */
static void end(tn_device *device) {
    tn_recorder_drop();
    tn_handles_drop();
    if (device) tn_memory_trim(device);
    assert_ok(tn_set_current_device(NULL));
    tn_device_close(device);
    wrap_counts c = wrap_get_counts();
    if (c.devices || c.blocks || c.modules || c.queues || c.events || c.pinned || c.mapped)
        fail_msg(
            "left alive: %lld devices, %lld blocks, %lld modules, %lld queues, %lld events, %lld pinned, %lld mapped",
            (long long)c.devices, (long long)c.blocks, (long long)c.modules, (long long)c.queues, (long long)c.events,
            (long long)c.pinned, (long long)c.mapped);
}

/* ---- shrunk limits ----------------------------------------------------------------------------------------------- */

static void promises_are_kept_with_small_limits(void **state) {
    (void)state;
    wrap_now = (wrap_nature){.max_buffer = 4096, .max_group = 16, .shared_memory = 1024, .max_groups_x = 3};
    conform_options o = {.large = 1 << 20, .no_huge = NO_HUGE};
    assert_int_equal(conform_driver(driver, 0, &o, stdout).broken, 0);
    wrap_counts c = wrap_get_counts();
    assert_int_equal(c.devices + c.blocks + c.modules + c.queues + c.events + c.pinned + c.mapped, 0);
}

/* One random kernel with its memory on the device; true when it ran. */
static bool random_kernel(tn_device *d, uint64_t seed, int *divided) {
    kir_random t;
    kir_random_options o = {.most_buffers = 12};
    kir_random_make(&t, seed, &o);
    bool can = tn_kernel_supported(d, t.program, t.sizes, NULL);
    if (can) {
        enum { MARGIN = 1 << 20 }; /* element 0 of a buffer may lie outside: its accesses begin further on */
        char *want = kir_random_memory(&t, seed), *got = kir_random_memory(&t, seed);
        void *buffers[KIR_MAX_BUFFERS], *there[KIR_MAX_BUFFERS];
        kir_random_buffers(&t, want, buffers);
        tn_buffer *b;
        tn_kernel *k;
        assert_ok(tn_buffer_new(d, t.bytes + 2 * MARGIN, &b));
        assert_ok(tn_buffer_write(b, MARGIN, got, t.bytes));
        for (int i = 0; i < t.program->n_buffers; i++)
            there[i] = (char *)b->address + MARGIN + ((char *)buffers[i] - want);
        assert_ok(tn_kernel_get(d, t.program, &k));
        int64_t before = wrap_get_counts().of[WRAP_LAUNCH];
        assert_ok(tn_kernel_launch(d, k, &(tn_launch){t.sizes, there, t.scalars}, 1));
        *divided += wrap_get_counts().of[WRAP_LAUNCH] - before > 1;
        assert_ok(tn_buffer_read(b, MARGIN, got, t.bytes));
        assert_ok(kir_interpret(t.program, &(kir_launch){t.sizes, buffers, t.scalars}));
        if (!kir_random_same(&t, want, got, "shrunk")) fail_msg("seed %llu", (unsigned long long)seed);
        tn_kernel_release(k);
        tn_buffer_release(b);
        free(want);
        free(got);
    }
    kir_random_free(&t);
    return can;
}

static void small_bindings_give_the_same_bits(void **state) {
    (void)state;
    enum { KERNELS = 300 };
    tn_device *d;
    int ran = 0, divided = 0;
    wrap_now = (wrap_nature){.max_buffer = 2048, .alignment = 16};
    assert_ok(open_wrapped(&d));
    for (uint64_t seed = 0; seed < KERNELS; seed++)
        ran += random_kernel(d, seed, &divided);
    printf("%s: %d of %d random kernels, %d of them in parts\n", d->info.id, ran, (int)KERNELS, divided);
    assert_true(ran > KERNELS / 4 && divided > 20);
    end(d);
}

/* ---- calls that fail --------------------------------------------------------------------------------------------- */

typedef struct values {
    float weight[ELEMENTS], momentum[ELEMENTS], loss;
} values;

static tn_status read_states(const model *m, values *v) {
    TRY(tn_read(m->weight_seen, v->weight, sizeof v->weight));
    return tn_read(m->momentum_seen, v->momentum, sizeof v->momentum);
}

static values before_step, after_step;

static void find_expected(void) {
    model m = {0};
    tn_device *d;
    assert_ok(open_wrapped(&d));
    assert_ok(tn_set_current_device(d));
    assert_ok(make_model(&m));
    assert_ok(read_states(&m, &before_step));
    assert_ok(train(&m, false, &after_step.loss));
    assert_ok(read_states(&m, &after_step));
    free_model(&m);
    end(d);
}

static bool is_state(const float *v, const float *old, const float *new) {
    return !memcmp(v, old, ELEMENTS * sizeof *v) || !memcmp(v, new, ELEMENTS * sizeof *v);
}

typedef struct fault_run {
    tn_status with;
    bool stays;
    int64_t runs, errors, mixed, lost; /* lost: states that say so */
} fault_run;

/* A failure has words that name its call. */
static void check_error(tn_status s, const fault_run *f, int64_t n) {
    bool named = s == f->with || s == TN_ERR_UNAVAILABLE || s == TN_ERR_UNSUPPORTED; /* strict: no other */
    if (!named || !tn_error()[0])
        fail_msg("call %lld fails with status %d, the work with %d: %s", (long long)n, (int)f->with, (int)s,
                 tn_error());
}

/* What the states may be after a step that failed or not: each as before or as after it. */
static void check_states(const model *m, tn_status step, fault_run *f, int64_t n) {
    values now;
    wrap_now.fail_at = 0;
    tn_status s = read_states(m, &now);
    if (s != TN_OK) { /* known to be lost, and said so */
        assert_true(step != TN_OK);
        f->lost++;
        return;
    }
    bool whole = is_state(now.weight, before_step.weight, after_step.weight) &&
                 is_state(now.momentum, before_step.momentum, after_step.momentum);
    if (!whole) fail_msg("call %lld fails: a state is neither as before nor as after the step", (long long)n);
    bool weight_new = !memcmp(now.weight, after_step.weight, sizeof now.weight);
    bool momentum_new = !memcmp(now.momentum, after_step.momentum, sizeof now.momentum);
    f->mixed += weight_new != momentum_new;
    if (step == TN_OK) assert_true(weight_new && momentum_new);
}

/* Everything from opening the device to closing it, in which the n-th call of the driver fails. False: it has fewer. */
static bool run_with_fault(int64_t n, fault_run *f) {
    model m = {0};
    tn_device *d = NULL;
    float loss = 0;
    wrap_reset();
    wrap_now.fail_kind = WRAP_ANY;
    wrap_now.fail_with = f->with;
    wrap_now.stays = f->stays;
    wrap_now.fail_at = n;
    tn_status s = open_wrapped(&d);
    if (s == TN_OK) {
        assert_ok(tn_set_current_device(d));
        s = make_model(&m);
    }
    if (s == TN_OK) {
        s = train(&m, false, &loss);
        if (s == TN_OK) assert_memory_equal(&loss, &after_step.loss, sizeof loss);
        if (s != TN_OK) check_error(s, f, n);
        check_states(&m, s, f, n);
    } else {
        check_error(s, f, n);
    }
    f->runs++;
    f->errors += s != TN_OK;
    bool reached = wrap_get_counts().faults > 0;
    wrap_now.fail_at = 0;
    free_model(&m);
    end(d);
    return reached;
}

/* Each `step`-th of the calls. */
static void every_call_may_fail(tn_status with, bool stays, int64_t step) {
    fault_run f = {.with = with, .stays = stays};
    wrap_reset();
    find_expected();
    tn_mem_stats before = tn_mem_get_stats();
    int64_t n = 1;
    while (run_with_fault(n, &f)) {
        tn_mem_stats now = tn_mem_get_stats();
        if (now.live_blocks != before.live_blocks)
            fail_msg("call %lld fails: %lld blocks more than before", (long long)n,
                     (long long)(now.live_blocks - before.live_blocks));
        n += step;
    }
    printf("%s: %lld calls fail (status %d%s): %lld errors, states lost %lld times, one new and one old %lld "
           "times\n",
           driver->name, (long long)f.runs - 1, (int)with, stays ? ", and all after it" : "", (long long)f.errors,
           (long long)f.lost, (long long)f.mixed);
    assert_int_equal(f.mixed, 0);
    assert_true(n > 20);
}

static void each_call_may_fail_once(void **state) {
    (void)state;
    every_call_may_fail(TN_ERR_DEVICE, false, 1);
}

static void each_call_may_run_out_of_memory(void **state) {
    (void)state;
    every_call_may_fail(TN_ERR_MEMORY, false, 1);
}

static void the_device_may_be_lost_at_each_call(void **state) {
    (void)state;
    every_call_may_fail(TN_ERR_LOST, true, 1);
}

/* The same on OpenCL, through the renderer, the disk cache and dispatches. */
/* States as results are copied: one copy that fails leaves no handle of those before it. */
static void results_of_a_graph_are_all_or_none(void **state) {
    (void)state;
    tn_device *d;
    tn_graph *g;
    int failed = 0;
    assert_ok(open_wrapped(&d));
    assert_ok(tn_set_current_device(d));
    tn_tensor *s[2], *out[2] = {NULL, NULL};
    for (int i = 0; i < 2; i++) {
        s[i] = tn_zeros(TN_DIMS(8), TN_F32);
        assert_ok(tn_make_state(s[i]));
    }
    assert_ok(tn_capture_begin());
    for (int i = 0; i < 2; i++) {
        TN_SCOPE;
        (void)tn_add_(s[i], tn_scalar(1));
    }
    assert_ok(tn_capture_end(NULL, 0, s, 2, &g));
    for (int at = 1; at <= 4; at++) {
        int64_t before = tn_memory_get_stats().live_buffers;
        wrap_now.fail_at = at;
        wrap_now.fail_kind = WRAP_COPY;
        wrap_now.fail_with = TN_ERR_DEVICE;
        if (tn_graph_launch(g, NULL, out) != TN_OK) {
            failed++;
            assert_int_equal(tn_memory_get_stats().live_buffers, before);
            continue;
        }
        for (int i = 0; i < 2; i++)
            tn_free(out[i]);
    }
    assert_in_range(failed, 2, 4);
    wrap_reset();
    tn_graph_free(g);
    for (int i = 0; i < 2; i++)
        tn_free(s[i]);
    end(d);
}

static int64_t steps_counted;

static tn_status count_step(void *ctx, double *scalars) {
    (void)ctx;
    scalars[0] = (double)++steps_counted;
    return TN_OK;
}

static void uncount_step(void *ctx) {
    (void)ctx;
    steps_counted--;
}

/* A capture that adds 1 to two states and counts it; one launch, in which a call fails. */
static void launch_with_fault(wrap_call kind, int at, int *failed, int *kept) {
    tn_device *d;
    tn_graph *g;
    tn_tensor *s[2], *out[2] = {NULL, NULL};
    wrap_reset();
    assert_ok(open_wrapped(&d));
    assert_ok(tn_set_current_device(d));
    for (int i = 0; i < 2; i++) {
        s[i] = tn_zeros(TN_DIMS(8 + i), TN_F32);
        assert_ok(tn_make_state(s[i]));
    }
    assert_ok(tn_capture_begin());
    {
        TN_SCOPE;
        tn_capture_hook hook = {.struct_size = sizeof hook, .advance = count_step, .undo = uncount_step};
        tn_tensor *scalar = tn_runtime_scalar(1);
        assert_ok(tn_capture_add_hook(&hook, &scalar, 1));
        for (int i = 0; i < 2; i++)
            (void)tn_add_(s[i], tn_scalar(1));
    }
    steps_counted = 1;
    assert_ok(tn_capture_end(NULL, 0, s, 2, &g));
    wrap_now.fail_kind = kind;
    wrap_now.fail_with = TN_ERR_DEVICE;
    wrap_now.fail_at = at;
    tn_status launched = tn_graph_launch(g, NULL, out);
    wrap_now.fail_at = 0;
    *failed += launched != TN_OK;
    for (int i = 0; i < 2; i++) {
        float now[9];
        tn_status read = tn_read(s[i], now, (size_t)(8 + i) * sizeof *now);
        if (read != TN_OK) assert_int_not_equal(launched, TN_OK); /* known to be lost, and said so */
        if (read == TN_OK && (int64_t)now[0] != steps_counted)
            fail_msg("call %d of kind %d fails: state %d is %g, %d steps are counted", at, (int)kind, i, (double)now[0],
                     (int)steps_counted);
        *kept += launched != TN_OK && read == TN_OK;
    }
    for (int i = 0; i < 2; i++) {
        tn_free(out[i]);
        tn_free(s[i]);
    }
    tn_graph_free(g);
    end(d);
}

/* Whatever fails: what a hook has counted is what the states have gone through, or they say that they are lost. */
static void a_launch_counts_what_was_done(void **state) {
    (void)state;
    int failed = 0, kept = 0;
    for (int at = 1; at <= 4; at++) {
        launch_with_fault(WRAP_COPY, at, &failed, &kept);
        launch_with_fault(WRAP_LAUNCH, at, &failed, &kept);
    }
    if (failed < 3 || kept < 2) fail_msg("%d launches failed, %d states were there after it", failed, kept);
    wrap_reset();
}

static void opencl_keeps_its_promises_with_small_limits(void **state) {
    (void)state;
    if (!driver) skip();
    wrap_now = (wrap_nature){.max_buffer = 4096, .max_group = 16, .shared_memory = 1024, .max_groups_x = 3};
    conform_options o = {.large = 1 << 20, .no_huge = NO_HUGE};
    assert_int_equal(conform_driver(driver, 0, &o, stdout).broken, 0);
}

static void calls_of_opencl_may_fail(void **state) {
    (void)state;
    if (!driver) skip();
    int64_t step = getenv("TRUNNION_TEST_FULL") ? 1 : 7;
    every_call_may_fail(TN_ERR_DEVICE, false, step);
    every_call_may_fail(TN_ERR_LOST, true, 3 * step);
}

int main(void) {
#define TEST(f) cmocka_unit_test_setup_teardown(f, use_far, remove_scratch)
    const struct CMUnitTest tests[] = {
        TEST(promises_are_kept_with_small_limits),
        TEST(small_bindings_give_the_same_bits),
        TEST(each_call_may_fail_once),
        TEST(each_call_may_run_out_of_memory),
        TEST(the_device_may_be_lost_at_each_call),
        TEST(results_of_a_graph_are_all_or_none),
        TEST(a_launch_counts_what_was_done),
        cmocka_unit_test_setup_teardown(opencl_keeps_its_promises_with_small_limits, use_opencl, remove_scratch),
        cmocka_unit_test_setup_teardown(calls_of_opencl_may_fail, use_opencl, remove_scratch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
