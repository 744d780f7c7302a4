/* test_engine_onnxruntime.c — ONNX Runtime as an engine: libraries that cannot be used are refused with the reason, and
 * recorded graphs that it computes are those of the cpu.
 *
 * The failures are those of a stand-in (tests/fakes/onnxruntime.c). The rest needs the library:
 * TRUNNION_ONNXRUNTIME_LIB, or where it is found by itself, as after `pip install onnxruntime`. */
#include "device_support.h"

#include <math.h>

#include "trunnion/trunnion.h"

static const char ENGINE[] = "engine:onnxruntime";
static char real_library[600];

/* ---- libraries that cannot be used ------------------------------------------------------------------------------- */

static void assert_refused(const char *does, const char *version, const char *why) {
    tn_device_options o = TN_DEVICE_DEFAULTS;
    tn_device *d;
    o.fallback = TN_FALLBACK_STRICT;
    setenv("FAKE_DOES", does, 1);
    setenv("FAKE_VERSION", version, 1);
    assert_int_equal(tn_device_open(ENGINE, &o, NULL, &d), TN_ERR_UNAVAILABLE);
    assert_null(d);
    assert_text_has(tn_error(), why);
}

static void absent_library_is_named_with_what_to_do(void **state) {
    (void)state;
    assert_refused("", "1.31.1", "TRUNNION_ONNXRUNTIME_LIB points: /nowhere/at-all.so");
    assert_text_has(tn_error(), "pip install onnxruntime");
}

static void library_without_the_interface_is_refused(void **state) {
    (void)state;
    setenv("TRUNNION_ONNXRUNTIME_LIB", build_fake("engine.c", "libonnxruntime.so.1.31.1", ""), 1);
    assert_refused("", "1.31.1", "OrtGetApiBase");
}

static void broken_libraries_are_refused_with_the_reason(void **state) {
    (void)state;
    setenv("TRUNNION_ONNXRUNTIME_LIB", build_fake("onnxruntime.c", "libonnxruntime.so", ""), 1);
    setenv("TRUNNION_PROBE_SECONDS", "1", 1);
    assert_refused("loading-crash", "1.31.1", "it crashed");
    assert_refused("crash", "1.31.1", "it crashed");
    assert_refused("abort", "1.31.1", "it crashed");
    assert_refused("end", "1.31.1", "it crashed");
    assert_refused("hang", "1.31.1", "it took too long");
    assert_refused("no-base", "1.31.1", "OrtGetApiBase yields no interface");
    assert_refused("", "1.17.3", "version \"1.17.3\"; needed is 1.18");
    assert_refused("", "2.0.0", "version \"2.0.0\"");
    assert_refused("", "nightly", "version \"nightly\"");
    assert_refused("no-table", "1.31.1", "no version 12 of its interface");
    assert_refused("no-call", "1.31.1", "env_new");
    assert_refused("", "1.31.1", "the fake refuses (error 6)");
}

/* ---- recorded graphs --------------------------------------------------------------------------------------------- */

static tn_device *engine;

static bool open_engine(void) {
    if (!real_library[0]) {
        print_message("skipped: ONNX Runtime is not installed\n");
        return false;
    }
    setenv("TRUNNION_ONNXRUNTIME_LIB", real_library, 1);
    if (!engine) {
        tn_device_options o = TN_DEVICE_DEFAULTS;
        o.fallback = TN_FALLBACK_SILENT;
        assert_ok(tn_device_open(ENGINE, &o, NULL, &engine));
        assert_non_null(engine);
        print_message("ran on: %s\n", ENGINE);
    }
    assert_ok(tn_set_current_device(engine));
    return true;
}

static int64_t ran_on_the_host(void) {
    int64_t operations = 0;
    for (int i = 0; i < tn_device_host_count(engine); i++) {
        tn_host_use use = {.struct_size = sizeof use};
        assert_ok(tn_device_host_at(engine, i, &use));
        operations += use.operations;
    }
    return operations;
}

static tn_tensor *numbers(int64_t rows, int64_t columns) {
    float v[64];
    for (int64_t i = 0; i < rows * columns; i++)
        v[i] = (float)(i % 7) * 0.25f - 0.5f;
    return tn_from_data(v, (int64_t[]){rows, columns}, 2, TN_F32);
}

static void assert_reads(tn_tensor *t, const float *want, int count, float within) {
    float got[64];
    assert_ok(tn_read(t, got, (size_t)count * sizeof *got));
    for (int i = 0; i < count; i++)
        if (!(fabsf(got[i] - want[i]) <= within)) fail_msg("element %d is %.9g instead of %.9g", i, got[i], want[i]);
}

static void graph_runs_there_whole(void **state) {
    (void)state;
    if (!open_engine()) return;
    int64_t before = ran_on_the_host();
    float want[20], have[20];
    for (int pass = 0; pass < 2; pass++) {
        tn_device *d = NULL;
        assert_ok(tn_device_open("cpu", NULL, NULL, &d));
        assert_ok(tn_set_current_device(pass ? engine : d));
        tn_tensor *x = numbers(4, 6), *w = numbers(6, 5);
        tn_tensor *y = tn_softmax(tn_relu(tn_matmul(x, w)), 1);
        assert_ok(tn_read(y, pass ? have : want, sizeof want));
        tn_device_close(d);
    }
    for (int i = 0; i < 20; i++)
        assert_true(fabsf(have[i] - want[i]) <= 1e-6f);
    assert_int_equal(ran_on_the_host(), before);
}

static void strided_views_are_inputs(void **state) {
    (void)state;
    if (!open_engine()) return;
    tn_tensor *x = numbers(3, 4);
    assert_ok(tn_eval(&x, 1));
    tn_tensor *columns = tn_transpose(x, 0, 1), *part = tn_slice(x, 1, 1, 4, 2);
    float flat[12], direct[12];
    assert_ok(tn_read(x, direct, sizeof direct));
    assert_ok(tn_read(tn_mul(columns, tn_scalar(2)), flat, sizeof flat));
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 3; k++)
            assert_true(flat[i * 3 + k] == 2 * direct[k * 4 + i]);
    assert_ok(tn_read(tn_mul(part, tn_scalar(2)), flat, 6 * sizeof *flat));
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < 2; i++)
            assert_true(flat[k * 2 + i] == 2 * direct[k * 4 + 1 + 2 * i]);
}

static void states_are_written_behind_the_graph(void **state) {
    (void)state;
    if (!open_engine()) return;
    tn_tensor *s = numbers(2, 2);
    assert_ok(tn_make_state(s));
    const float first[] = {-0.5f, -0.25f, 0.0f, 0.25f}, then[] = {0.25f, 0.0625f, 0.0f, 0.0625f};
    assert_reads(s, first, 4, 0);
    tn_tensor *before = tn_add(s, tn_scalar(1));
    tn_mul_(s, s);
    const float with_old[] = {0.5f, 0.75f, 1.0f, 1.25f};
    assert_reads(before, with_old, 4, 0); /* one graph reads the old value and makes the new one */
    assert_reads(s, then, 4, 0);
}

static void runtime_scalars_come_with_each_run(void **state) {
    (void)state;
    if (!open_engine()) return;
    tn_tensor *x = numbers(2, 2);
    assert_ok(tn_eval(&x, 1));
    for (int i = 1; i < 4; i++) {
        float f = (float)i;
        const float want[] = {-0.5f * f, -0.25f * f, 0.0f, 0.25f * f};
        assert_reads(tn_mul(x, tn_runtime_scalar(i)), want, 4, 0);
    }
}

static void index_out_of_range_is_an_error_of_the_caller(void **state) {
    (void)state;
    if (!open_engine()) return;
    tn_tensor *x = numbers(3, 4), *at = tn_from_data((int64_t[]){0, 2}, (int64_t[]){2}, 1, TN_I64);
    float got[8];
    assert_ok(tn_read(tn_index_select(x, 0, tn_sub(at, tn_scalar_int(0))), got, sizeof got));
    tn_tensor *wrong = tn_index_select(x, 0, tn_sub(at, tn_scalar_int(1)));
    assert_int_equal(tn_read(wrong, got, sizeof got), TN_ERR_ARGUMENT);
    assert_text_has(tn_error(), "index -1");
    assert_int_equal(tn_read(wrong, got, sizeof got), TN_ERR_ARGUMENT);
}

static void what_it_lacks_is_computed_by_the_host_and_told(void **state) {
    (void)state;
    if (!open_engine()) return;
    int64_t before = ran_on_the_host();
    tn_manual_seed(7);
    tn_tensor *r = tn_rand((int64_t[]){4}, 1);
    float got[4];
    assert_ok(tn_read(tn_mul(r, tn_scalar(0)), got, sizeof got));
    for (int i = 0; i < 4; i++)
        assert_true(got[i] == 0);
    assert_true(ran_on_the_host() > before);
}

int main(void) {
    const char *given = getenv("TRUNNION_ONNXRUNTIME_LIB");
    tn_library_spec library = {
        "ONNX Runtime",
        "TRUNNION_ONNXRUNTIME_LIB",
        (const char *const[]){"libonnxruntime.so.1", "site-packages/onnxruntime/capi/libonnxruntime.so.1.*", NULL},
        NULL,
        0,
        ""};
    if (given || !tn_library_locate(&library, real_library, sizeof real_library))
        snprintf(real_library, sizeof real_library, "%s", given ? given : "");
#define TEST(f) cmocka_unit_test_setup(f, clean_environment)
    const struct CMUnitTest tests[] = {
        TEST(absent_library_is_named_with_what_to_do),
        TEST(library_without_the_interface_is_refused),
        TEST(broken_libraries_are_refused_with_the_reason),
        TEST(graph_runs_there_whole),
        TEST(strided_views_are_inputs),
        TEST(states_are_written_behind_the_graph),
        TEST(runtime_scalars_come_with_each_run),
        TEST(index_out_of_range_is_an_error_of_the_caller),
        TEST(what_it_lacks_is_computed_by_the_host_and_told),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
