/* test_msl.c — the kernels of the Metal shading language that this library writes are kernels of that language, as far
 * as this can be told without Apple's compiler: every pointer says in which address space it points, and clang, which
 * sees three different address spaces there, takes the text. That they compute what they should: test_metal.c.
 */
#include "test_support.h"

#include <ctype.h>
#include <unistd.h>

#include "hal/hal.h"
#include "kir/render.h"
#include "kir_cases.h"
#include "kir_random.h"

static const char SHIM[] = "tests/double/shim_metal.h";

/* All cases made by hand that have no doubles, and some random programs, in one source. */
typedef struct programs {
    kir_random *all;
    const kir_program **list;
    int count;
} programs;

static programs make_programs(int random) {
    programs p = {calloc((size_t)(kir_case_count + random), sizeof *p.all), NULL, 0};
    p.list = calloc((size_t)(kir_case_count + random), sizeof *p.list);
    assert_true(p.all && p.list);
    for (int i = 0; i < kir_case_count; i++)
        if (!kir_cases[i].f64) kir_case_make(&p.all[p.count++], &kir_cases[i]);
    for (int i = 0; i < random; i++) {
        kir_random_options o = {.no_f64 = true, .variables = true, .group = i % 2, .long_loop = i % 5 == 4};
        kir_random_make(&p.all[p.count++], 500 + (uint64_t)i, &o);
    }
    for (int i = 0; i < p.count; i++)
        p.list[i] = p.all[i].program;
    return p;
}

static void free_programs(programs *p) {
    for (int i = 0; i < p->count; i++)
        kir_random_free(&p->all[i]);
    free(p->all);
    free(p->list);
}

static char *render_programs(bool narrow) {
    programs p = make_programs(getenv("TRUNNION_TEST_FULL") ? 200 : 20);
    kir_target target = {.dialect = &kir_dialect_msl, .group_size = 64, .index32 = narrow, .i64 = true};
    kir_rendering *kernels = calloc((size_t)p.count, sizeof *kernels);
    assert_non_null(kernels);
    assert_ok(kir_render_all(p.list, p.count, &target, kernels));
    for (int i = 0; i < p.count; i++)
        assert_true(kernels[i].params_in_buffer);
    char *text = strdup(tn_str_text(&kernels[0].text));
    assert_non_null(text);
    kir_rendering_free(&kernels[0]);
    free(kernels);
    free_programs(&p);
    return text;
}

/* ---- as text ----------------------------------------------------------------------------------------------------- */

static bool is_type(const char *word, size_t n) {
    static const char *const types[] = {"float",  "int",  "uint",  "long", "ulong", "short",
                                        "ushort", "char", "uchar", "bool", "half",  "void"};
    for (size_t i = 0; i < TN_COUNT(types); i++)
        if (strlen(types[i]) == n && !strncmp(types[i], word, n)) return true;
    return false;
}

/* Steps back over one word and the space before it; where the word begins. */
static const char *word_before(const char *text, const char *end) {
    while (end > text && (isalnum((unsigned char)end[-1]) || end[-1] == '_'))
        end--;
    return end;
}

static bool ends_with(const char *text, const char *end, const char *word) {
    size_t n = strlen(word);
    return (size_t)(end - text) >= n && !strncmp(end - n, word, n);
}

/* The text before a pointer's type names an address space. */
static bool has_space(const char *text, const char *type) {
    static const char *const spaces[] = {"device ", "thread ", "constant ", "threadgroup "};
    if (ends_with(text, type, "const ")) type -= strlen("const ");
    for (size_t i = 0; i < TN_COUNT(spaces); i++)
        if (ends_with(text, type, spaces[i])) return true;
    return false;
}

static void every_pointer_names_its_address_space(void **state) {
    (void)state;
    char *text = render_programs(false);
    int pointers = 0;
    for (const char *star = strchr(text, '*'); star; star = strchr(star + 1, '*')) {
        const char *end = star > text && star[-1] == ' ' ? star - 1 : star, *type = word_before(text, end);
        if (!is_type(type, (size_t)(end - type))) continue;
        pointers++;
        if (!has_space(text, type)) fail_msg("no address space: %.*s", 60, type > text + 20 ? type - 20 : type);
    }
    assert_true(pointers > 100);
    assert_null(strstr(text, "double"));
    free(text);
}

/* ---- by clang ---------------------------------------------------------------------------------------------------- */

static bool has_clang(void) { return system("clang++ --version >/dev/null 2>&1") == 0; }

static bool clang_takes(const char *text) {
    char command[600], path[200];
    snprintf(path, sizeof path, "%s", test_scratch("kernels.cc"));
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    const char *line = strchr(text, '\n'); /* the first one includes Apple's header */
    fprintf(f, "#line 2 \"kernels.metal\"%s", line);
    assert_int_equal(fclose(f), 0);
    snprintf(command, sizeof command,
             "clang++ -std=c++17 -fsyntax-only -w -ferror-limit=5 -DMETAL_STRICT -include %s %s 2>%s", SHIM, path,
             test_scratch("log"));
    return system(command) == 0;
}

static void must_pass(const char *text) {
    char *log = NULL;
    size_t size = 0;
    if (clang_takes(text)) return;
    (void)tn_file_read(test_scratch("log"), &log, &size, 1 << 20);
    fail_msg("%.2000s", log ? log : "no log");
}

static void clang_takes_all_kernels(void **state) {
    (void)state;
    if (!has_clang()) {
        printf("skipped: no clang++: address spaces of Metal's kernels\n");
        skip();
    }
    for (int narrow = 0; narrow < 2; narrow++) {
        char *text = render_programs(narrow);
        must_pass(text);
        free(text);
    }
}

/* What the check is for: each of these would be an error of Apple's compiler. */
static void wrong_address_spaces_are_found(void **state) {
    (void)state;
    static const char *const wrong[] = {
        "[[kernel]] void k(device float *a [[buffer(0)]]) { float *b = a; b[0] = 1; }\n",
        "[[kernel]] void k(device float *a [[buffer(0)]]) { constant float *b = a; a[0] = b[0]; }\n",
        "[[kernel]] void k(device float *a [[buffer(0)]]) { threadgroup float b[4]; device float *c = b; c[0] = a[0]; "
        "}\n",
        "constant uint t[2] = {1U, 2U};\nstatic inline uint f(const uint *x) { return x[0]; }\n"
        "[[kernel]] void k(device uint *a [[buffer(0)]]) { a[0] = f(t); }\n",
    };
    if (!has_clang()) skip();
    static const char head[] = "#include <metal_stdlib>\nusing namespace metal;\n";
    char text[400];
    for (size_t i = 0; i < TN_COUNT(wrong); i++) {
        snprintf(text, sizeof text, "%s%s", head, wrong[i]);
        if (clang_takes(text)) fail_msg("taken: %s", wrong[i]);
    }
    snprintf(text, sizeof text, "%s[[kernel]] void k(device float *a [[buffer(0)]]) { a[0] = 1.0f; }\n", head);
    must_pass(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pointer_names_its_address_space),
        cmocka_unit_test_setup_teardown(clang_takes_all_kernels, make_scratch, remove_scratch),
        cmocka_unit_test_setup_teardown(wrong_address_spaces_are_found, make_scratch, remove_scratch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
