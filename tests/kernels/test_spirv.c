/* test_spirv.c — kernels as SPIR-V: the Khronos validator takes every one of them, and they stay as they are.
 *
 * Programs made by hand and at random are written for devices that have everything, that have only storage of small
 * elements, and that have nothing but words of 32 bits; their values are compared with the interpreter's on the first
 * Vulkan device, where it rounds as IEEE 754 has it. */
#include "test_support.h"

#include "drivers/drivers.h"
#include "hal/kernel_code.h"
#include "kir/render.h"
#include "kir_cases.h"
#include "kir_device.h"
#include "kir_random.h"
#include "spirv_val.h"
#include "trunnion/backend.h"

enum { CASES = 12, GROUP_CASES = 8, LONG_CASES = 3 };

enum { ALL_FEATURES = (TN_SPIRV_RTE_64 << 1) - 1, STORAGE = TN_SPIRV_STORAGE_8 | TN_SPIRV_STORAGE_16 };

#define SPIRV .dialect = &kir_dialect_spirv, .group_size = 64, .i64 = true

static const struct {
    const char *name;
    kir_target target;
} DEVICES[] = {
    {"all", {SPIRV, .f64 = true, .f16 = true, .features = ALL_FEATURES}},
    {"storage-32", {SPIRV, .index32 = true, .features = STORAGE}},
    {"words-32", {.dialect = &kir_dialect_spirv, .group_size = 64, .index32 = true, .words_only = true}},
};

/* ---- the validator ----------------------------------------------------------------------------------------------- */

static bool has_validator;

static int find_validator(void **state) {
    (void)state;
    has_validator = spirv_val_find();
    return 0;
}

static void validate(const kir_rendering *r, const char *what) {
    if (has_validator) assert_true(spirv_val_check(r, "1.1", what));
}

/* What every module promises: whole words, the header's fields, instructions that end with the module. */
static void check_words(const kir_rendering *r) {
    const char *bytes = tn_str_text(&r->text);
    size_t n = r->text.length / 4;
    uint32_t *words = malloc(r->text.length);
    assert_non_null(words);
    assert_int_equal(r->text.length % 4, 0);
    memcpy(words, bytes, r->text.length);
    assert_true(words[0] == 0x07230203 && words[1] == 0x00010300 && words[3] > 1 && words[4] == 0);
    size_t at = 5;
    while (at < n && words[at] >> 16 > 0)
        at += words[at] >> 16;
    assert_int_equal(at, n);
    assert_true(r->params_in_buffer);
    free(words);
}

/* ---- every program ----------------------------------------------------------------------------------------------- */

/* false: a program that this device cannot have. */
static bool check_for(const kir_program *p, kir_target target, const char *what) {
    kir_rendering r;
    tn_status s = kir_render(p, &target, &r);
    if (s == TN_ERR_UNSUPPORTED) return false;
    assert_ok(s);
    check_words(&r);
    validate(&r, what);
    kir_rendering_free(&r);
    return true;
}

static bool check(const kir_program *p, size_t number, const char *what) {
    return check_for(p, DEVICES[number].target, what);
}

static void every_operation_is_valid(void **state) {
    (void)state;
    for (int i = 0; i < kir_case_count; i++) {
        kir_random t;
        kir_case_make(&t, &kir_cases[i]);
        for (size_t d = 0; d < TN_COUNT(DEVICES); d++) {
            bool written = check(t.program, d, kir_cases[i].name);
            bool lacks = kir_cases[i].f64 && !DEVICES[d].target.f64;
            if (!written && !lacks) fail_msg("%s for %s: %s", kir_cases[i].name, DEVICES[d].name, tn_error());
            assert_true(written != lacks);
        }
        kir_random_free(&t);
    }
}

static uint64_t cases(uint64_t few) { return test_is_full() ? 10 * few : TEST_SWEEP(few); }

static void check_random(uint64_t count, kir_random_options options) {
    for (uint64_t seed = 0; seed < count; seed++) {
        size_t d = seed % TN_COUNT(DEVICES);
        kir_random t;
        char what[40];
        options.no_f64 = !DEVICES[d].target.f64;
        kir_random_make(&t, seed, &options);
        snprintf(what, sizeof what, "seed %d", (int)seed);
        if (!check(t.program, d, what)) print_message("%s: %s\n", what, tn_error());
        kir_random_free(&t);
    }
}

static void random_programs_are_valid(void **state) {
    (void)state;
    check_random(cases(CASES), (kir_random_options){.variables = true});
    check_random(cases(LONG_CASES), (kir_random_options){.long_loop = true});
    check_random(cases(GROUP_CASES), (kir_random_options){.group = true, .variables = true});
}

/* Each allocation of a rendering fails once. */
static void no_memory_is_an_error(void **state) {
    (void)state;
    for (int i = 0; i < kir_case_count; i++) {
        kir_random t;
        if (strcmp(kir_cases[i].name, "reductions f32") != 0 && strcmp(kir_cases[i].name, "memory") != 0) continue;
        kir_case_make(&t, &kir_cases[i]);
        kir_render_without_memory(t.program, &DEVICES[2].target);
        kir_random_free(&t);
    }
}

static void one_module_has_one_kernel(void **state) {
    (void)state;
    kir_random t;
    kir_rendering k[2];
    kir_case_make(&t, &kir_cases[0]);
    const kir_program *const both[] = {t.program, t.program};
    assert_int_equal(kir_render_all(both, 2, &DEVICES[1].target, k), TN_ERR_ARGUMENT);
    kir_rendering_free(&k[0]);
    kir_random_free(&t);
}

/* ---- on a device ------------------------------------------------------------------------------------------------- */

static kir_device device;

static int prepare(void **state) {
    kir_device_open(&tn_driver_vulkan, &kir_dialect_spirv, &device);
    if (device.handle && !device.caps.exact) {
        printf("skipped: the Vulkan device rounds in its own way: no values are compared\n");
        kir_device_close(&device);
    }
    if (device.handle) printf("ran on: vulkan\n");
    return find_validator(state);
}

static int close_device(void **state) {
    (void)state;
    kir_device_close(&device);
    return 0;
}

/* Frees t. */
static bool check_on_device(kir_random *t, uint64_t seed) {
    bool good = false;
    tn_status s = kir_device_check(&device, t, seed, seed % 2, &good);
    if (s != TN_OK) assert_int_equal(s, TN_ERR_UNSUPPORTED);
    kir_random_free(t);
    return good || s != TN_OK;
}

static bool check_seed(uint64_t seed, kir_random_options options) {
    kir_random t;
    options.no_f64 = !device.caps.f64;
    kir_random_make(&t, seed, &options);
    return check_on_device(&t, seed);
}

/* Whether the device goes round so often: each loop has all of the loop axes at most. */
static bool bears_loops(const kir_random *t) {
    int64_t points = 1, loops = 0;
    for (int k = t->n_par; k < t->n_par + t->n_loop; k++)
        points *= t->sizes[k];
    for (int i = 0; i < t->program->n_ins; i++)
        loops += t->program->ins[i].op == KIR_LOOP;
    return device.caps.max_loop == 0 || points * loops * 5 / 4 < device.caps.max_loop;
}

static void check_long_loops(void) {
    int ran = 0;
    for (uint64_t seed = 0; seed < 40 && ran < (int)cases(LONG_CASES); seed++) {
        kir_random t;
        kir_random_make(&t, seed, &(kir_random_options){.long_loop = true, .no_f64 = !device.caps.f64});
        if (bears_loops(&t)) {
            assert_true(check_on_device(&t, seed));
            ran++;
        } else {
            kir_random_free(&t);
        }
    }
    assert_true(ran > 0);
}

static bool check_shared_rows(uint64_t seed) {
    kir_random t;
    kir_random_options options = {.no_chains = true, .no_f64 = !device.caps.f64, .most_points = 60};
    options.most_buffers = KIR_MAX_BUFFERS - KIR_TYPE_COUNT;
    kir_random_make(&t, seed, &options);
    if (kir_random_share_rows(&t)) return check_on_device(&t, seed);
    kir_random_free(&t);
    return true;
}

static void every_operation_has_the_interpreters_bits(void **state) {
    (void)state;
    int failed = 0;
    if (!device.handle) skip();
    for (int i = 0; i < kir_case_count; i++) {
        kir_random t;
        if (kir_cases[i].f64 && !device.caps.f64) continue;
        kir_case_make(&t, &kir_cases[i]);
        if (check_on_device(&t, (uint64_t)i)) continue;
        print_error("%s\n", kir_cases[i].name);
        failed++;
    }
    assert_int_equal(failed, 0);
}

static void random_programs_have_the_interpreters_bits(void **state) {
    (void)state;
    if (!device.handle) skip();
    for (uint64_t seed = 0; seed < cases(CASES); seed++)
        assert_true(check_seed(seed, (kir_random_options){.variables = true}));
    check_long_loops();
    for (uint64_t seed = 0; seed < cases(GROUP_CASES); seed++)
        assert_true(check_seed(seed, (kir_random_options){.group = true, .variables = true}));
    for (uint64_t seed = 0; seed < cases(LONG_CASES); seed++)
        assert_true(check_shared_rows(seed));
}

/* Some buffers in windows, as many as the device binds: each a fourth of all memory, or less. */
static void take_windows(const kir_random *t, int first) {
    enum { EACH = 6 };
    uint8_t windows[KIR_MAX_BUFFERS] = {0};
    for (int b = first % 3; b < t->program->n_buffers; b += 3) {
        if (tn_global_bindings(t->program) + EACH - 1 > device.caps.max_bindings) break;
        windows[b] = (uint8_t)(t->program->local[b] == 0 ? EACH : 0);
        kir_set_windows(t->program, windows, t->program->n_buffers);
    }
    int64_t window = 1024;
    while (4 * window < (int64_t)t->bytes + 4096)
        window *= 2;
    device.caps.max_buffer = window - device.caps.alignment;
}

/* Whether a buffer in windows has elements of 8 or 16 bits. */
static bool has_small_window(const kir_program *p) {
    for (int b = 0; b < p->n_buffers; b++)
        if (p->windows[b] > 1 && tn_dtype_size(p->buffer_dtype[b]) < 4) return true;
    return false;
}

/* On the device as it is, and as one that has nothing but words. */
static void windows_have_the_interpreters_bits(void **state) {
    (void)state;
    enum { PLAIN = TN_SPIRV_FMA_SPLITS | TN_SPIRV_PRESERVE_32 | TN_SPIRV_DENORM_32 | TN_SPIRV_RTE_32 };
    if (!device.handle) skip();
    const tn_caps whole = device.caps;
    for (int i = 0; i < kir_case_count + (int)cases(CASES); i++) {
        kir_random t;
        bool by_hand = i < kir_case_count;
        device.caps = whole;
        if (i % 3 == 2) {
            device.caps.words_only = true;
            device.caps.i64 = device.caps.f64 = device.caps.f16 = false;
            device.caps.features &= PLAIN;
        }
        if (!by_hand)
            kir_random_make(&t, (uint64_t)i, &(kir_random_options){.variables = true, .no_f64 = !device.caps.f64});
        else if (kir_cases[i].f64 && !device.caps.f64)
            continue;
        else
            kir_case_make(&t, &kir_cases[i]);
        take_windows(&t, i);
        if (i % 4 == 0 || has_small_window(t.program))
            check_for(t.program, kir_device_target(&device, !device.caps.i64), "windows");
        if (!check_on_device(&t, device.caps.i64 ? (uint64_t)i : 1))
            fail_msg("%s, number %d", by_hand ? kir_cases[i].name : "seed", i);
    }
    device.caps = whole;
}

/* --plain, --long, --group or --rows, first seed, one past the last. */
static int run_seeds(const char *kind, uint64_t begin, uint64_t end) {
    kir_random_options options = {.variables = true, .group = strcmp(kind, "--group") == 0};
    options.long_loop = strcmp(kind, "--long") == 0;
    bool rows = strcmp(kind, "--rows") == 0;
    int failed = 0;
    prepare(NULL);
    for (uint64_t seed = begin; device.handle && seed < end; seed++)
        failed += rows ? !check_shared_rows(seed) : !check_seed(seed, options);
    printf("%d of %d differ\n", failed, (int)(end - begin));
    close_device(NULL);
    return failed > 0;
}

int main(int argc, char **argv) {
    if (argc == 4) return run_seeds(argv[1], strtoull(argv[2], NULL, 10), strtoull(argv[3], NULL, 10));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_operation_is_valid),
        cmocka_unit_test(random_programs_are_valid),
        cmocka_unit_test(no_memory_is_an_error),
        cmocka_unit_test(one_module_has_one_kernel),
        cmocka_unit_test(every_operation_has_the_interpreters_bits),
        cmocka_unit_test(random_programs_have_the_interpreters_bits),
        cmocka_unit_test(windows_have_the_interpreters_bits),
    };
    return cmocka_run_group_tests(tests, prepare, close_device);
}
