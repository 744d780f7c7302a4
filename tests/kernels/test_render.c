/* test_render.c — rendered kernels yield the interpreter's bits, and stay as they are.
 *
 * Random programs are rendered in plain C, many into one file, compiled by the system's compiler and run; and in OpenCL
 * C, with workgroups too, one by one, on the first OpenCL device that there is. */
#include "test_support.h"

#include <dlfcn.h>
#include <unistd.h>

#include "hal/hal.h"
#include "kir/render.h"
#include "kir_cases.h"
#include "kir_device.h"
#include "kir_random.h"
#include "sources.h"

enum { CASES = 60, LONG_CASES = 4, DEVICE_CASES = 8, DEVICE_LONG_CASES = 2, GROUP = 16 };

typedef void kernel_fn(const void *params, void *const *buffers, uint64_t first, uint64_t last);

/* ---- compiling --------------------------------------------------------------------------------------------------- */

static const char *folder(void) {
    static char path[64];
    if (!path[0]) {
        snprintf(path, sizeof path, "/tmp/trunnion-render-XXXXXX");
        assert_non_null(mkdtemp(path));
    }
    return path;
}

/* The library that the system's compiler makes of this text. */
static void *compile(const char *text) {
    static int number;
    char source[128], library[128], command[512];
    snprintf(source, sizeof source, "%s/%d.c", folder(), number);
    snprintf(library, sizeof library, "%s/%d.so", folder(), number++);
    FILE *f = fopen(source, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
    snprintf(command, sizeof command, "cc -std=c11 -O1 -ffp-contract=off -w -shared -fPIC -o %s %s -lm", library,
             source);
    if (system(command) != 0) fail_msg("the compiler refuses %s", source);
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (!handle) fail_msg("%s", dlerror());
    unlink(source);
    unlink(library);
    return handle;
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

/* Sizes, runtime scalars and bases as a kernel takes them. The buffers' addresses are told apart from their bases, to
 * see that the bases are added. */
static int64_t *make_params(const kir_random *t, const int64_t *sizes, const kir_rendering *k, void **buffers) {
    int64_t *params = calloc(1, k->params_bytes + 8);
    assert_non_null(params);
    size_t count = kir_sizes_count(t->program);
    memcpy(params, sizes, count * 8);
    memcpy(params + count, t->scalars, (size_t)t->program->n_scalars * 8);
    for (int i = 0; i < k->buffer_count; i++) {
        params[k->bases_at / 8 + (size_t)i] = 64 * (i % 3);
        buffers[i] = (char *)buffers[i] - 64 * (i % 3);
    }
    return params;
}

static bool run_kernel(const kir_random *t, const kir_rendering *k, kernel_fn *fn, const int64_t *sizes, uint64_t seed,
                       const kir_target *target) {
    char *want = kir_random_memory(t, seed), *got = kir_random_memory(t, seed);
    void *buffers[KIR_MAX_BUFFERS];
    kir_random_buffers(t, want, buffers);
    assert_ok(kir_interpret(t->program, &(kir_launch){sizes, buffers, t->scalars}));
    kir_random_buffers(t, got, buffers);
    int64_t *params = make_params(t, sizes, k, buffers);
    uint32_t groups[3];
    kir_count_groups(t->program, sizes, target, 0, groups);
    uint64_t all = (uint64_t)groups[0] * groups[1] * groups[2], middle = all / 2;
    fn(params, buffers, middle, all);
    fn(params, buffers, 0, middle);
    bool good = kir_random_same(t, want, got, "plain C");
    free(params);
    free(want);
    free(got);
    return good;
}

static void show_failure(const kir_random *t, uint64_t seed, const kir_target *target) {
    kir_rendering alone;
    kir_random_print(t, seed);
    assert_ok(kir_render(t->program, target, &alone));
    fprintf(stderr, "%s", tn_str_text(&alone.text));
    kir_rendering_free(&alone);
}

/* Renders all in one source, and runs them whole and, if asked, with fewer points. */
static void check_all(const kir_random *all, int count, const kir_target *target, bool smaller_too) {
    const kir_program **programs = calloc((size_t)count, sizeof *programs);
    kir_rendering *kernels = calloc((size_t)count, sizeof *kernels);
    assert_true(programs && kernels);
    for (int i = 0; i < count; i++)
        programs[i] = all[i].program;
    assert_ok(kir_render_all(programs, count, target, kernels));
    void *library = compile(tn_str_text(&kernels[0].text));
    for (int i = 0; i < count; i++) {
        kernel_fn *fn = NULL;
        *(void **)&fn = dlsym(library, kernels[i].entry);
        assert_non_null(fn);
        bool good = run_kernel(&all[i], &kernels[i], fn, all[i].sizes, (uint64_t)i, target);
        int64_t *smaller = kir_random_smaller(&all[i]);
        if (smaller_too) good = good && run_kernel(&all[i], &kernels[i], fn, smaller, (uint64_t)i, target);
        free(smaller);
        if (!good) show_failure(&all[i], (uint64_t)i, target);
        assert_true(good);
    }
    dlclose(library);
    kir_rendering_free(&kernels[0]);
    free(programs);
    free(kernels);
}

static void check_cases(uint64_t count, const kir_random_options *options, const kir_target *target) {
    kir_random *all = calloc(count, sizeof *all);
    assert_non_null(all);
    for (uint64_t i = 0; i < count; i++)
        kir_random_make(&all[i], i, options);
    check_all(all, (int)count, target, true);
    for (uint64_t i = 0; i < count; i++)
        kir_random_free(&all[i]);
    free(all);
}

/* The cases made by hand that this target can run. */
static void check_hand_made(const kir_target *target) {
    kir_random *all = calloc((size_t)kir_case_count, sizeof *all);
    int count = 0;
    assert_non_null(all);
    for (int i = 0; i < kir_case_count; i++) {
        if (!kir_cases[i].group && (target->f64 || !kir_cases[i].f64)) kir_case_make(&all[count++], &kir_cases[i]);
    }
    check_all(all, count, target, false);
    for (int i = 0; i < count; i++)
        kir_random_free(&all[i]);
    free(all);
}

static uint64_t cases(uint64_t few) { return test_is_full() ? 10 * few : TEST_SWEEP(few); }

static const kir_target TARGET = {.dialect = &kir_dialect_c, .group_size = GROUP, .f64 = true};

static void every_operation_in_plain_c(void **state) {
    (void)state;
    check_hand_made(&TARGET);
    check_hand_made(&(kir_target){.dialect = &kir_dialect_c, .group_size = 7, .index32 = true});
}

static void plain_c_matches_the_interpreter(void **state) {
    (void)state;
    check_cases(cases(CASES), &(kir_random_options){.variables = true}, &TARGET);
}

static void long_loops_match_the_interpreter(void **state) {
    (void)state;
    check_cases(cases(LONG_CASES), &(kir_random_options){.long_loop = true}, &TARGET);
}

static void without_doubles_or_long_indices_too(void **state) {
    (void)state;
    kir_target target = {.dialect = &kir_dialect_c, .group_size = 1, .index32 = true};
    check_cases(cases(CASES / 2), &(kir_random_options){.no_f64 = true}, &target);
}

/* ---- texts ------------------------------------------------------------------------------------------------------- */

static const char golden_path[] = "tests/golden/render.txt";

#define SPIRV .dialect = &kir_dialect_spirv, .group_size = 64

static const struct {
    const char *name;
    kir_target target;
} TEXTS[] = {
    {"opencl", {.dialect = &kir_dialect_opencl, .group_size = 64, .f64 = true}},
    {"opencl-32", {.dialect = &kir_dialect_opencl, .group_size = 64, .index32 = true}},
    {"msl", {.dialect = &kir_dialect_msl, .group_size = 64, .i64 = true}},
    {"msl-32", {.dialect = &kir_dialect_msl, .group_size = 64, .index32 = true, .i64 = true}},
    {"wgsl", {.dialect = &kir_dialect_wgsl, .group_size = 64, .index32 = true}},
    {"cuda", {.dialect = &kir_dialect_cuda, .group_size = 64, .index32 = true, .f64 = true, .i64 = true}},
    {"hip", {.dialect = &kir_dialect_hip, .group_size = 64, .f64 = true, .i64 = true}},
    {"spirv", {SPIRV, .f64 = true, .i64 = true, .features = (TN_SPIRV_FMA_SPLITS << 1) - 1}},
    {"spirv-32", {SPIRV, .i64 = true, .index32 = true, .features = TN_SPIRV_STORAGE_8 | TN_SPIRV_STORAGE_16}},
    {"spirv-words", {SPIRV, .index32 = true, .words_only = true}},
    {"c", {.dialect = &kir_dialect_c, .group_size = 64, .f64 = true}},
};

/* One line for each case and target that can have it: the hash of its text, and its name. */
static void list_texts(tn_str *out) {
    for (int i = 0; i < kir_case_count; i++) {
        kir_random t;
        kir_case_make(&t, &kir_cases[i]);
        for (size_t k = 0; k < TN_COUNT(TEXTS); k++) {
            kir_rendering text;
            if (kir_render(t.program, &TEXTS[k].target, &text) != TN_OK) continue;
            uint64_t hash = tn_hash64(tn_str_text(&text.text), text.text.length, 0);
            tn_str_add(out, "%016llx %s: %s\n", (unsigned long long)hash, TEXTS[k].name, kir_cases[i].name);
            kir_rendering_free(&text);
        }
        kir_random_free(&t);
    }
}

/* A change of these texts is meant or is not: look at it, then write the file anew with --golden. */
static void texts_are_as_they_were(void **state) {
    (void)state;
    char *want = NULL, *rest = NULL;
    size_t size = 0;
    tn_str got = {0};
    assert_ok(tn_file_read(golden_path, &want, &size, 1 << 20));
    list_texts(&got);
    char *text = tn_mem_strdup(tn_str_text(&got));
    assert_non_null(text);
    int different = 0;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        if (strstr(want, line)) continue;
        different++;
        print_error("not as in %s: %s\n", golden_path, line);
    }
    assert_int_equal(different, 0);
    assert_string_equal(want, tn_str_text(&got));
    tn_mem_free(text);
    tn_mem_free(want);
    tn_str_free(&got);
}

static void texts_have_points_in_every_locale(void **state) {
    test_enter_comma_locale();
    texts_are_as_they_were(state);
    setlocale(LC_ALL, "C");
}

static int write_golden(void) {
    tn_str text = {0};
    list_texts(&text);
    FILE *f = fopen(golden_path, "w");
    bool good = f && fputs(tn_str_text(&text), f) >= 0;
    good = f && fclose(f) == 0 && good;
    tn_str_free(&text);
    return good ? 0 : 1;
}

static void what_a_target_lacks_is_refused(void **state) {
    (void)state;
    kir_target no_doubles = {.dialect = &kir_dialect_opencl, .group_size = 64}, c = TARGET;
    for (int i = 0; i < kir_case_count; i++) {
        kir_random t;
        kir_rendering k;
        kir_case_make(&t, &kir_cases[i]);
        assert_int_equal(kir_render(t.program, &no_doubles, &k), kir_cases[i].f64 ? TN_ERR_UNSUPPORTED : TN_OK);
        kir_rendering_free(&k);
        assert_int_equal(kir_render(t.program, &c, &k), kir_cases[i].group ? TN_ERR_UNSUPPORTED : TN_OK);
        if (kir_cases[i].group) assert_text_has(tn_error(), "workgroups");
        kir_rendering_free(&k);
        kir_random_free(&t);
    }
}

/* Each allocation of a rendering fails once. */
static void no_memory_is_an_error(void **state) {
    (void)state;
    kir_random t;
    kir_case_make(&t, &kir_cases[0]);
    kir_render_without_memory(t.program, &TARGET);
    kir_random_free(&t);
}

static void groups_cover_all_points(void **state) {
    (void)state;
    kir_random t;
    uint32_t g[3];
    kir_case_make(&t, &kir_cases[0]);
    for (int64_t points = 0; points < 3000; points = points * 3 / 2 + 1) {
        for (uint64_t limit = 0; limit < 20; limit += 5) {
            kir_count_groups(t.program, &points, &TARGET, limit, g);
            uint64_t all = (uint64_t)g[0] * g[1] * g[2], need = (uint64_t)(points + GROUP - 1) / GROUP;
            assert_true(points == 0 ? all == 0 : all >= need && all < need + g[0]);
            assert_true(limit == 0 || g[0] <= limit);
        }
    }
    kir_count_groups(t.program, &(int64_t){INT64_MAX}, &TARGET, 0, g);
    assert_true(g[0] == INT32_MAX && g[1] == UINT16_MAX && g[2] > 1);
    kir_random_free(&t);
}

/* ---- on a device ------------------------------------------------------------------------------------------------- */

static kir_device device;

/* OpenCL's first, or the first of the backend that TRUNNION_TEST_DEVICE names. */
static int open_device(void **state) {
    (void)state;
    static const struct {
        const char *name;
        const kir_dialect *dialect;
    } languages[] = {
        {"opencl", &kir_dialect_opencl},
        {"cuda", &kir_dialect_cuda},
        {"rocm", &kir_dialect_hip},
        {"metal", &kir_dialect_msl},
    };
    const char *name = getenv("TRUNNION_TEST_DEVICE");
    for (size_t i = 0; i < TN_COUNT(languages); i++) {
        if (strcmp(languages[i].name, name ? name : "opencl") != 0) continue;
        const tn_driver *driver = tn_backend_driver(languages[i].name);
        if (driver) kir_device_open(driver, languages[i].dialect, &device);
    }
    return 0;
}

static int close_device(void **state) {
    (void)state;
    kir_device_close(&device);
    return 0;
}

static bool check_on_device(kir_random *t, uint64_t seed) {
    bool good = false;
    assert_ok(kir_device_check(&device, t, seed, seed % 2, &good));
    kir_random_free(t);
    return good;
}

static bool check_seed(uint64_t seed, kir_random_options options) {
    kir_random t;
    options.no_f64 = !device.caps.f64;
    kir_random_make(&t, seed, &options);
    return check_on_device(&t, seed);
}

static bool check_case(uint64_t i) {
    kir_random t;
    if (i >= (uint64_t)kir_case_count || (kir_cases[i].f64 && !device.caps.f64)) return true;
    kir_case_make(&t, &kir_cases[i]);
    return check_on_device(&t, i);
}

static void every_operation_in_opencl(void **state) {
    (void)state;
    if (!device.handle) skip();
    for (int i = 0; i < kir_case_count; i++)
        if (!check_case((uint64_t)i)) fail_msg("%s", kir_cases[i].name);
}

static void opencl_matches_the_interpreter(void **state) {
    (void)state;
    if (!device.handle) skip();
    for (uint64_t seed = 0; seed < cases(DEVICE_CASES); seed++)
        assert_true(check_seed(seed, (kir_random_options){.variables = true}));
    for (uint64_t seed = 0; seed < cases(DEVICE_LONG_CASES); seed++)
        assert_true(check_seed(seed, (kir_random_options){.long_loop = true}));
}

static void opencl_workgroups_match_the_interpreter(void **state) {
    (void)state;
    if (!device.handle) skip();
    for (uint64_t seed = 0; seed < cases(DEVICE_CASES); seed++)
        assert_true(check_seed(seed, (kir_random_options){.group = true, .variables = true}));
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

static void opencl_shares_rows_among_workgroups(void **state) {
    (void)state;
    if (!device.handle) skip();
    for (uint64_t seed = 0; seed < cases(DEVICE_LONG_CASES); seed++)
        assert_true(check_shared_rows(seed));
}

/* --cases (made by hand), or random ones: --plain, --long, --group, --rows; first number or seed, one past the last. */
static int run_seeds(const char *kind, uint64_t begin, uint64_t end) {
    kir_random_options options = {.variables = true, .group = strcmp(kind, "--group") == 0};
    options.long_loop = strcmp(kind, "--long") == 0;
    bool rows = strcmp(kind, "--rows") == 0, by_hand = strcmp(kind, "--cases") == 0;
    open_device(NULL);
    if (!device.handle) return 2;
    for (uint64_t seed = begin; seed < end; seed++) {
        bool good = by_hand ? check_case(seed) : rows ? check_shared_rows(seed) : check_seed(seed, options);
        if (!good) return 1;
    }
    return close_device(NULL);
}

/* The cases made by hand, and as many random programs of each kind, as files for compilers. */
static int write_sources(const char *to, uint64_t random) {
    static const kir_random_options kinds[] = {
        {.variables = true}, {.group = true, .variables = true}, {.long_loop = true}};
    kir_random t;
    char name[80];
    for (int i = 0; i < kir_case_count; i++) {
        snprintf(name, sizeof name, "case-%03d", i);
        kir_case_make(&t, &kir_cases[i]);
        sources_write(to, name, t.program);
        kir_random_free(&t);
    }
    for (uint64_t i = 0; i < random * TN_COUNT(kinds); i++) {
        snprintf(name, sizeof name, "random-%03llu", (unsigned long long)i);
        kir_random_make(&t, i, &kinds[i % TN_COUNT(kinds)]);
        sources_write(to, name, t.program);
        kir_random_free(&t);
    }
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 4 && strcmp(argv[1], "--sources") == 0) return write_sources(argv[2], strtoull(argv[3], NULL, 10));
    if (argc == 2 && strcmp(argv[1], "--golden") == 0) return write_golden();
    if (argc == 4) return run_seeds(argv[1], strtoull(argv[2], NULL, 10), strtoull(argv[3], NULL, 10));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_are_as_they_were),
        cmocka_unit_test(texts_have_points_in_every_locale),
        cmocka_unit_test(what_a_target_lacks_is_refused),
        cmocka_unit_test(no_memory_is_an_error),
        cmocka_unit_test(groups_cover_all_points),
        cmocka_unit_test(every_operation_in_plain_c),
        cmocka_unit_test(plain_c_matches_the_interpreter),
        cmocka_unit_test(long_loops_match_the_interpreter),
        cmocka_unit_test(without_doubles_or_long_indices_too),
        cmocka_unit_test(every_operation_in_opencl),
        cmocka_unit_test(opencl_matches_the_interpreter),
        cmocka_unit_test(opencl_workgroups_match_the_interpreter),
        cmocka_unit_test(opencl_shares_rows_among_workgroups),
    };
    int failed = cmocka_run_group_tests(tests, open_device, close_device);
    rmdir(folder());
    return failed;
}
