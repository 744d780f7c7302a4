/* test_conform.c — every driver of this build keeps what a driver promises (conform.h), and each device computes random
 * kernels with the interpreter's bits. Names the devices that it ran on. */
#include "test_support.h"

#include "cli/device/conform.h"
#include "drivers/drivers.h"
#include "far_driver.h"
#include "hal/kernel_code.h"
#include "kir_random.h"
#include "random_numbers.h"
#include "trunnion/trunnion.h"

#if defined(TEST_ADDRESS_SANITIZER) || defined(TEST_THREAD_SANITIZER)
enum { NO_HUGE = 1 }; /* an allocation that nobody has ends the process */
#else
enum { NO_HUGE = 0 };
#endif

/* The drivers of this build that compute, and one whose memory is far. */
static const struct {
    const char *id;
    const tn_driver *driver;
} devices[] = {
    {"cpu", &tn_driver_cpu},         {"far:0", &far_driver},
#if TRUNNION_WITH_OPENCL
    {"opencl:0", &tn_driver_opencl},
#endif
#if TRUNNION_WITH_METAL
    {"metal:0", &tn_driver_metal},
#endif
#if TRUNNION_WITH_CUDA
    {"cuda:0", &tn_driver_cuda},
#endif
#if TRUNNION_WITH_ROCM
    {"rocm:0", &tn_driver_rocm},
#endif
#if TRUNNION_WITH_VULKAN
    {"vulkan:0", &tn_driver_vulkan},
#endif
#if TRUNNION_WITH_WEBGPU
    {"webgpu:0", &tn_driver_webgpu},
#endif
};

/* The device, or NULL when this machine has none. With TRUNNION_TEST_DEVICE that backend's alone takes part. */
static tn_device *open_one(size_t i) {
    const char *only = getenv("TRUNNION_TEST_DEVICE");
    if (only && strncmp(devices[i].id, only, strlen(only)) != 0) return NULL;
    tn_device_options o = TN_DEVICE_DEFAULTS;
    o.fallback = TN_FALLBACK_STRICT;
    tn_device *d = NULL;
    if (devices[i].driver == &far_driver) return far_open(0, NULL);
    if (tn_device_open(devices[i].id, &o, NULL, &d) != TN_OK) {
        printf("%s is not here: %s\n", devices[i].id, tn_error());
        return NULL;
    }
    return d;
}

static void drivers_keep_their_promises(void **state) {
    (void)state;
    for (size_t i = 0; i < TN_COUNT(devices); i++) {
        tn_device *d = open_one(i);
        if (!d) continue;
        tn_device_close(d);
        conform_options o = {.large = 4 << 20, .no_huge = NO_HUGE};
        conform_result r = conform_driver(devices[i].driver, 0, &o, stdout);
        assert_int_equal(r.broken, 0);
        assert_true(r.promises > 15);
    }
}

/* ---- kernels against the interpreter ----------------------------------------------------------------------------- */

/* Bytes by which element 0 of some buffer lies outside of the block: its accesses begin further on. */
static size_t margin_of(const kir_program *p, void *const *first, const char *host, size_t bytes) {
    ptrdiff_t outside = 0;
    for (int i = 0; i < p->n_buffers; i++) {
        if (tn_is_local(p, i)) continue;
        ptrdiff_t at = (const char *)first[i] - host;
        if (-at > outside) outside = -at;
        if (at - (ptrdiff_t)bytes > outside) outside = at - (ptrdiff_t)bytes;
    }
    return ((size_t)outside + 63) / 64 * 64;
}

/* One block of memory that all buffers of a launch lie in; `first` says where in it each begins. */
static void run_on(tn_device *d, const kir_program *p, const int64_t *sizes, void *const *first, const char *host,
                   const kir_scalar *scalars, char *memory, size_t bytes) {
    tn_kernel *k;
    tn_buffer *b;
    void *buffers[KIR_MAX_BUFFERS] = {NULL};
    assert_ok(tn_kernel_get(d, p, &k));
    size_t margin = margin_of(p, first, host, bytes);
    assert_ok(tn_buffer_new(d, bytes + 2 * margin, &b));
    assert_ok(tn_buffer_write(b, margin, memory, bytes));
    for (int i = 0; i < p->n_buffers; i++)
        if (!tn_is_local(p, i)) buffers[i] = (char *)b->address + margin + ((const char *)first[i] - host);
    tn_launch launch = {sizes, buffers, scalars};
    assert_ok(tn_kernel_prepare(d, k, &launch, 1));
    assert_ok(tn_kernel_launch(d, k, &launch, 1));
    assert_ok(tn_buffer_read(b, margin, memory, bytes));
    tn_kernel_release(k);
    tn_buffer_release(b);
}

static bool lacks(tn_device *d, const kir_program *p, const int64_t *sizes, int *refused) {
    tn_kernel_answer a;
    if (tn_kernel_supported(d, p, sizes, &a)) {
        /* the tile VM leaves some programs to native kernels, and says so when it is given one */
        tn_kernel *k = NULL;
        tn_status s = d->is_cpu ? tn_kernel_get(d, p, &k) : TN_OK;
        tn_kernel_release(k);
        if (s != TN_ERR_UNSUPPORTED) return false;
        snprintf(a.why, sizeof a.why, "%s", tn_error());
    }
    if ((*refused)++ == 0) printf("%s %s\n", d->info.id, a.why);
    return true;
}

/* A random program on a device beside the interpreter. */
static void compare_random(tn_device *d, uint64_t seed, const kir_random_options *o, int *ran, int *refused) {
    kir_random t;
    kir_random_make(&t, seed, o);
    if (!lacks(d, t.program, t.sizes, refused)) {
        char *want = kir_random_memory(&t, seed), *got = kir_random_memory(&t, seed);
        void *buffers[KIR_MAX_BUFFERS];
        kir_random_buffers(&t, want, buffers);
        run_on(d, t.program, t.sizes, buffers, want, t.scalars, got, t.bytes);
        assert_ok(kir_interpret(t.program, &(kir_launch){t.sizes, buffers, t.scalars}));
        if (!kir_random_same(&t, want, got, d->info.id)) {
            kir_random_print(&t, seed);
            fail_msg("%s: seed %llu", d->info.id, (unsigned long long)seed);
        }
        free(want);
        free(got);
        ++*ran;
    }
    kir_random_free(&t);
}

/* Kernels of a test: `few` of them; with TRUNNION_TEST_FULL 25 of 100, which SEED of the environment draws. */
typedef struct sample {
    int first, count;
} sample;

static sample draw_sample(int few) {
    const char *seed = getenv("SEED");
    uint64_t state = seed ? strtoull(seed, NULL, 10) : 1;
    if (!test_is_full()) return (sample){0, few};
    return (sample){(int)(random_mixed(&state) % 4) * 25, 25};
}

static void random_kernels_have_the_interpreters_bits(void **state) {
    (void)state;
    const sample drawn = draw_sample(4);
    for (size_t i = 0; i < TN_COUNT(devices); i++) {
        tn_device *d = open_one(i);
        if (!d) continue;
        int ran = 0, refused = 0;
        bool quick = d->caps.code == TN_CODE_KIR; /* others compile each */
        kir_random_options o = {.no_f64 = !d->caps.f64};
        int times = !quick ? 1 : test_is_thin() ? 6 : 30;
        for (int n = drawn.first * times; n < (drawn.first + drawn.count) * times; n++) {
            o.group = n % 3 == 1; /* plain and group, with and without variables, long loops */
            o.variables = n % 2 == 1;
            o.long_loop = n % 6 == 5;
            compare_random(d, 1000 + (uint64_t)n, &o, &ran, &refused);
        }
        printf("ran on: %s (%s%s)\n", d->info.id, d->info.name, d->info.software ? ", software" : "");
        printf("%d random kernels, %d that it cannot run\n", ran, refused);
        assert_true(ran > refused);
        tn_device_close(d);
    }
}

/* Whether the device's own compiler may end the process. PoCL 3.1 (LLVM 15) takes barriers behind a workgroup's early
 * return for conditional ones; where loops that reduce nothing stand on both sides of a barrier, its check of what it
 * makes of them may then fail: "Incoming edges to non-entry block!". It compiles the same kernels without that return,
 * which is for workgroups that are too many. Software shares rows nowhere but here (row_split_pays). */
static bool may_end_its_compiler(const tn_device *d, uint64_t seed, const kir_random_options *o) {
    int loops = 0;
    bool reduces = false;
    kir_random t;
    if (!d->info.software || strncmp(d->info.id, "opencl", 6) != 0) return false;
    kir_random_make(&t, seed, o);
    for (int i = 0; i < t.program->n_ins; i++) {
        kir_op op = t.program->ins[i].op;
        reduces = op != KIR_LOOP && (reduces || op == KIR_REDUCE);
        loops += op == KIR_END && !reduces;
    }
    kir_random_free(&t);
    return loops > 1;
}

/* Programs with loops, their rows shared by workgroups whether it pays or not. */
static void shared_rows_have_the_interpreters_bits(void **state) {
    (void)state;
    const sample drawn = draw_sample(6);
    for (size_t i = 0; i < TN_COUNT(devices); i++) {
        tn_device *d = open_one(i);
        if (d && d->caps.code != TN_CODE_KIR) {
            int ran = 0, refused = 0, left = 0;
            tn_row_split_set(TN_ROW_SPLIT_ALWAYS);
            for (int n = drawn.first; n < drawn.first + drawn.count; n++) {
                uint64_t seed = 2000 + (uint64_t)n;
                kir_random_options o = {.no_chains = true, .no_f64 = !d->caps.f64, .long_loop = n % 6 == 3};
                o.most_buffers = KIR_MAX_BUFFERS - KIR_TYPE_COUNT;
                if (may_end_its_compiler(d, seed, &o))
                    left++;
                else
                    compare_random(d, seed, &o, &ran, &refused);
            }
            tn_row_split_set(TN_ROW_SPLIT_AUTO);
            printf("ran on: %s: %d random kernels with shared rows\n", d->info.id, ran);
            if (left) printf("skipped: %s: %d kernels that may end its compiler\n", d->info.id, left);
            assert_true(ran > refused);
        }
        if (d) tn_device_close(d);
    }
}

/* A sum of n times m ones, 0 where the device may not compute it. */
static double sum_of_ones(tn_device *d, int64_t n, int64_t m) {
    static float ones[1 << 16], y = 0;
    for (int i = 0; i < 1 << 16; i++)
        ones[i] = 1;
    assert_ok(tn_set_current_device(d));
    {
        TN_SCOPE;
        tn_tensor *x = tn_from_data(ones, (int64_t[]){n, m}, 2, TN_F32);
        tn_status s = tn_read(tn_sum(x, NULL, 0, false), &y, sizeof y);
        if (s == TN_ERR_UNSUPPORTED) y = 0;
        if (s != TN_ERR_UNSUPPORTED) assert_ok(s);
    }
    assert_ok(tn_set_current_device(NULL));
    return (double)y;
}

/* A device that ends long loops says so before it computes, or is right; of several axes as of one. */
static void loops_that_are_too_long_are_refused(void **state) {
    (void)state;
    static const int64_t lengths[][2] = {{200, 96},  {300, 100}, {500, 100}, {600, 100},
                                         {1, 56000}, {1, 60000}, {1, 62000}, {1, 63000}};
    for (size_t i = 0; i < TN_COUNT(devices); i++) {
        tn_device *d = open_one(i);
        for (size_t k = 0; d && d->caps.max_loop && k < TN_COUNT(lengths); k++) {
            int64_t n = lengths[k][0], m = lengths[k][1];
            double sum = sum_of_ones(d, n, m);
            if (sum != (double)(n * m) && (sum != 0 || n * m < d->caps.max_loop / 2))
                fail_msg("%s: %lld x %lld ones are %g", d->info.id, (long long)n, (long long)m, sum);
        }
        if (d) tn_device_close(d);
    }
}

int main(void) {
    if (make_scratch(NULL)) return 1;
    setenv("TRUNNION_CACHE", test_scratch("cache"), 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drivers_keep_their_promises),
        cmocka_unit_test(random_kernels_have_the_interpreters_bits),
        cmocka_unit_test(shared_rows_have_the_interpreters_bits),
        cmocka_unit_test(loops_that_are_too_long_are_refused),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    remove_scratch(NULL);
    return failed;
}
