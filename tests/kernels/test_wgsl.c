/* test_wgsl.c — kernels as WGSL, on the first WebGPU device that there is: bits of the interpreter, from elements of
 * every size, 64-bit integers in words, and sums that round once although the device's may not.
 *
 * What a program needs more bindings for than the device has is left out; texts are kept by test_render.c. */
#include "test_support.h"

#include "drivers/drivers.h"
#include "hal/hal.h"
#include "kir_cases.h"
#include "kir_device.h"

/* Workgroups begin at a seed behind which no stored index leaves 32 bits: of more, the low word alone is promised. */
enum { CASES = 10, FULL_CASES = 30, GROUP_FIRST = 13, GROUP_CASES = 5, FULL_GROUP_CASES = 14 };

static kir_device device;

static int open_device(void **state) {
    (void)state;
    kir_device_open(&tn_driver_webgpu, &kir_dialect_wgsl, &device);
    return 0;
}

static int close_device(void **state) {
    (void)state;
    kir_device_close(&device);
    return 0;
}

static int bindings_of(const kir_program *p) {
    int n = 0;
    for (int b = 0; b < p->n_buffers; b++)
        n += p->local[b] == 0;
    return n;
}

static bool fits(const kir_program *p) {
    return (!device.caps.max_bindings || bindings_of(p) <= device.caps.max_bindings) &&
           kir_items(p) <= device.caps.max_group && kir_local_bytes(p) <= device.caps.shared_memory;
}

/* Compares, unless the device is too small for it. */
static void check(kir_random *t, uint64_t seed, const char *name) {
    bool good = true;
    if (fits(t->program)) assert_ok(kir_device_check(&device, t, seed, true, &good));
    kir_random_free(t);
    if (!good) fail_msg("%s", name);
}

static void every_operation(void **state) {
    (void)state;
    if (!device.handle) skip();
    for (int i = 0; i < kir_case_count; i++) {
        kir_random t;
        bool too_long = device.caps.max_loop && strcmp(kir_cases[i].name, "reductions f32") == 0;
        if (kir_cases[i].f64 || too_long) continue;
        kir_case_make(&t, &kir_cases[i]);
        check(&t, (uint64_t)i, kir_cases[i].name);
    }
}

static void check_seeds(uint64_t first, uint64_t count, kir_random_options options) {
    char name[40];
    options.no_f64 = true;
    options.most_buffers = 7;
    for (uint64_t seed = first; seed < first + count; seed++) {
        kir_random t;
        kir_random_make(&t, seed, &options);
        snprintf(name, sizeof name, "seed %llu", (unsigned long long)seed);
        check(&t, seed, name);
    }
}

static void random_programs(void **state) {
    (void)state;
    if (!device.handle) skip();
    check_seeds(0, test_is_full() ? FULL_CASES : CASES, (kir_random_options){.variables = true});
    check_seeds(7001, 1, (kir_random_options){.variables = true}); /* element 0 lies before all memory */
}

/* A product beyond all numbers, and infinity with the other sign, which is what there is of both. */
static void infinity_outweighs_a_product(void **state) {
    (void)state;
    if (!device.handle) skip();
    kir_random t;
    kir_random_make(&t, 1066, &(kir_random_options){.no_f64 = true});
    check(&t, 1066, "seed 1066");
}

static void random_workgroups(void **state) {
    (void)state;
    if (!device.handle) skip();
    check_seeds(GROUP_FIRST, test_is_full() ? FULL_GROUP_CASES : GROUP_CASES,
                (kir_random_options){.group = true, .variables = true});
}

/* What the language cannot say is an error with words. */
static void what_has_no_wgsl_is_refused(void **state) {
    (void)state;
    kir_target target = {.dialect = &kir_dialect_wgsl, .group_size = 64, .index32 = true};
    for (int i = 0; i < kir_case_count; i++) {
        kir_random t;
        kir_rendering k;
        kir_case_make(&t, &kir_cases[i]);
        assert_int_equal(kir_render(t.program, &target, &k), kir_cases[i].f64 ? TN_ERR_UNSUPPORTED : TN_OK);
        kir_rendering_free(&k);
        kir_random_free(&t);
    }
    kir_random t;
    kir_rendering k;
    target.index32 = false;
    kir_case_make(&t, &kir_cases[2]);
    assert_int_equal(kir_render(t.program, &target, &k), TN_ERR_UNSUPPORTED);
    assert_text_has(tn_error(), "beyond 32 bits");
    kir_rendering_free(&k);
    kir_random_free(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_has_no_wgsl_is_refused),
        cmocka_unit_test(every_operation),
        cmocka_unit_test(random_programs),
        cmocka_unit_test(infinity_outweighs_a_product),
        cmocka_unit_test(random_workgroups),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
