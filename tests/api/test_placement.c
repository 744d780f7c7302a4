/* test_placement.c — promises of fallback: what a device lacks is computed by the host with the right bits, never
 * silently, and not at all when the device was opened strictly. On far devices (far_driver.h). */
#include "test_support.h"

#include "far_driver.h"
#include "trunnion/trunnion.h"

static tn_device *open_far(tn_fallback fallback, far_nature nature) {
    far_nature_now = nature;
    tn_device_options o = TN_DEVICE_DEFAULTS;
    o.fallback = fallback;
    tn_device *d = far_open(0, &o);
    assert_ok(tn_set_current_device(d));
    return d;
}

static void close_far(tn_device *d) {
    assert_ok(tn_set_current_device(NULL));
    tn_device_close(d);
    far_nature_now = (far_nature){0};
}

static tn_placement placement(void) {
    tn_placement p = {.struct_size = sizeof p};
    assert_ok(tn_get_placement(&p));
    return p;
}

static tn_placed_operation placed(int64_t i) {
    tn_placed_operation o = {.struct_size = sizeof o};
    assert_ok(tn_get_placed(i, &o));
    return o;
}

/* What is written to standard error between the two. */
static FILE *heard_file;
static int stderr_before;

static void hear_begin(void) {
    fflush(stderr);
    stderr_before = dup(STDERR_FILENO);
    heard_file = fopen(test_scratch("heard"), "w+");
    assert_non_null(heard_file);
    dup2(fileno(heard_file), STDERR_FILENO);
}

static void hear_end(char *heard, size_t size) {
    fflush(stderr);
    dup2(stderr_before, STDERR_FILENO);
    close(stderr_before);
    rewind(heard_file);
    heard[fread(heard, 1, size - 1, heard_file)] = 0;
    fclose(heard_file);
}

static void hear(void (*what)(void), char *heard, size_t size) {
    hear_begin();
    what();
    hear_end(heard, size);
}

/* ---- one operation ----------------------------------------------------------------------------------------------- */

enum { N = 6 };

/* f32 → f64 → f32, so that two of three steps lack a type where there is no f64; the sum is needed on the device. */
static void mixed(void) {
    TN_SCOPE;
    float x[N] = {1, 2, 3, 4, 5, 6}, y[N];
    tn_tensor *a = tn_exp(tn_from_data(x, (int64_t[]){N}, 1, TN_F32));
    tn_tensor *mean = tn_mean(tn_cast(a, TN_F64), NULL, 0, false);
    tn_tensor *b = tn_div(a, tn_cast(mean, TN_F32));
    assert_ok(tn_read(b, y, sizeof y));
    double sum = 0;
    for (int i = 0; i < N; i++)
        sum += (double)y[i];
    assert_float_equal(sum, N, 1e-5);
}

static void the_host_computes_what_a_device_lacks(void **state) {
    (void)state;
    tn_device *d = open_far(TN_FALLBACK_SILENT, (far_nature){.no_f64 = true});
    int64_t before = far_counts_now.launches;
    mixed();
    tn_placement p = placement();
    assert_string_equal(p.device, "far:0");
    assert_true(p.on_device > 0);
    assert_true(p.on_host > 0);
    assert_true(p.to_host > 0);
    assert_true(p.from_host > 0);
    assert_true(far_counts_now.launches > before);
    for (int64_t i = 0; i < p.on_host; i++) {
        assert_string_equal(placed(i).code, "no_f64");
        assert_string_equal(placed(i).reason, "has no f64");
        assert_text_has(placed(i).where, "test_placement.c:");
    }
    tn_placed_operation none = {.struct_size = sizeof none};
    assert_int_equal(tn_get_placed(p.on_host, &none), TN_ERR_ARGUMENT);
    assert_int_equal(tn_get_placed(-1, &none), TN_ERR_ARGUMENT);
    tn_placement unset = {0};
    assert_int_equal(tn_get_placement(&unset), TN_ERR_ARGUMENT);
    char *text = tn_explain_last();
    assert_text_has(text, "has no f64");
    assert_text_has(text, "fetch");
    assert_text_has(text, "send");
    tn_text_free(text);
    close_far(d);
}

static void nothing_is_lacking_on_a_whole_device(void **state) {
    (void)state;
    tn_device *d = open_far(TN_FALLBACK_STRICT, (far_nature){0});
    mixed();
    assert_int_equal(placement().on_host, 0);
    assert_int_equal(tn_device_host_count(d), 0);
    assert_int_equal(placement().to_host, 0);
    assert_true(placement().on_device > 0);
    close_far(d);
}

static void people_are_told_once_a_reason(void **state) {
    (void)state;
    char heard[2000];
    tn_device *d = open_far(TN_FALLBACK_WARN, (far_nature){.no_f64 = true});
    hear(mixed, heard, sizeof heard);
    assert_text_has(heard, "far:0 has no f64");
    assert_text_has(heard, "on the cpu");
    assert_text_has(heard, "test_placement.c:");
    tn_host_use use = {.struct_size = sizeof use};
    int64_t operations = 0;
    for (int i = 0; i < tn_device_host_count(d); i++) {
        assert_ok(tn_device_host_at(d, i, &use));
        assert_string_equal(use.code, "no_f64");
        assert_string_equal(use.reason, "has no f64");
        operations += use.operations;
    }
    assert_int_equal(operations, placement().on_host);
    assert_int_equal(tn_device_host_at(d, tn_device_host_count(d), &use), TN_ERR_ARGUMENT);
    hear(mixed, heard, sizeof heard);
    assert_string_equal(heard, "");
    close_far(d);
    d = open_far(TN_FALLBACK_SILENT, (far_nature){.no_f64 = true});
    hear(mixed, heard, sizeof heard);
    assert_string_equal(heard, "");
    close_far(d);
}

static void strictly_it_is_an_error_of_the_line(void **state) {
    (void)state;
    tn_device *d = open_far(TN_FALLBACK_STRICT, (far_nature){.no_f64 = true});
    {
        TN_SCOPE;
        float y;
        tn_tensor *x = tn_from_data((float[]){4}, (int64_t[]){1}, 1, TN_F32);
        int line = __LINE__ + 1;
        tn_tensor *wide = tn_sqrt(tn_cast(x, TN_F64));
        char place[64];
        snprintf(place, sizeof place, "test_placement.c:%d: ", line);
        assert_int_equal(tn_read(tn_cast(wide, TN_F32), &y, sizeof y), TN_ERR_UNSUPPORTED);
        assert_text_has(tn_error(), "far:0 has no f64");
        assert_text_has(tn_error(), place);
        assert_ok(tn_read(tn_sqrt(x), &y, sizeof y)); /* the rest goes on */
        assert_float_equal(y, 2, 0);
    }
    close_far(d);
}

static void what_the_compiler_refuses_the_host_computes(void **state) {
    (void)state;
    tn_device *d = open_far(TN_FALLBACK_SILENT, (far_nature){.refuses_code = true});
    mixed();
    assert_int_equal(placement().on_device, 0);
    assert_string_equal(placed(0).code, "refused_by_compiler");
    assert_text_has(placed(0).reason, "it refuses all code");
    close_far(d);
}

/* ---- native kernels ---------------------------------------------------------------------------------------------- */

/* What the device cannot run as a program has a better kernel on the host than that program. */
static void products_are_the_hosts_own(void **state) {
    (void)state;
    enum { M = 40 };
    static double a[M * M], here[M * M], there[M * M];
    for (int i = 0; i < M * M; i++)
        a[i] = (double)(i % 17) / 7 - 1;
    for (int round = 0; round < 2; round++) {
        tn_device *d = round ? open_far(TN_FALLBACK_SILENT, (far_nature){.no_f64 = true}) : NULL;
        if (!d) assert_ok(tn_device_open("cpu", NULL, NULL, &d));
        assert_ok(tn_set_current_device(d));
        {
            TN_SCOPE;
            tn_tensor *x = tn_from_data(a, (int64_t[]){M, M}, 2, TN_F64);
            tn_tensor *y = tn_relu(tn_matmul(x, tn_transpose(x, 0, 1)));
            assert_ok(tn_read(y, round ? there : here, sizeof here));
            char *text = tn_explain_last();
            if (round) {
                assert_text_has(text, "host    matmul");
                for (int64_t i = 0; i < placement().on_host; i++) /* of the program that was meant for the device */
                    assert_string_equal(placed(i).code, "no_f64");
            }
            tn_text_free(text);
        }
        close_far(d);
    }
    assert_memory_equal(here, there, sizeof here);
}

/* ---- states ------------------------------------------------------------------------------------------------------ */

enum { ROWS = 8, WIDTH = 5, STEPS = 6 };

static void train(tn_device *device, tn_dtype dtype, double loss[STEPS], const char *save) {
    assert_ok(tn_set_current_device(device));
    tn_manual_seed(5);
    tn_module *root = tn_module_root();
    tn_tensor *first = tn_full((int64_t[]){WIDTH, WIDTH}, 2, 0.3, dtype),
              *zeros = tn_zeros((int64_t[]){WIDTH}, 1, dtype);
    tn_tensor *w = tn_module_add_parameter(root, "w", first), *b = tn_module_add_parameter(root, "b", zeros);
    tn_free(first);
    tn_free(zeros);
    assert_ok(tn_module_status(root));
    tn_adam_options adam = TN_ADAM_DEFAULTS;
    adam.lr = 0.05;
    tn_optimizer *optimizer = NULL;
    assert_ok(tn_optimizer_adam(root, &adam, &optimizer));
    for (int step = 0; step < STEPS; step++) {
        TN_SCOPE;
        tn_tensor *x = tn_cast(tn_randn((int64_t[]){ROWS, WIDTH}, 2), dtype);
        tn_tensor *y = tn_tanh(tn_add(tn_matmul(x, w), b));
        tn_tensor *l = tn_mean(tn_square(tn_sub(y, tn_mul(x, tn_scalar(0.5)))), NULL, 0, false);
        assert_ok(tn_minimize(optimizer, l));
        loss[step] = tn_item(l);
    }
    tn_checkpoint c = TN_CHECKPOINT_DEFAULTS;
    c.model = root;
    c.optimizer = optimizer;
    assert_ok(tn_checkpoint_save(save, &c));
    tn_optimizer_free(optimizer);
    tn_module_free(root);
}

static void assert_same_files(const char *a, const char *b) {
    char *x, *y;
    size_t m, n;
    assert_ok(tn_file_read(a, &x, &m, 1 << 24));
    assert_ok(tn_file_read(b, &y, &n, 1 << 24));
    assert_int_equal(m, n);
    assert_memory_equal(x, y, m);
    tn_mem_free(x);
    tn_mem_free(y);
}

static void a_training_partly_on_the_host_has_the_bits_of_the_cpu(void **state) {
    (void)state;
    double here[STEPS], there[STEPS];
    const char *cpu_file = test_scratch("cpu"), *far_file = test_scratch("far");
    tn_device *cpu = NULL;
    assert_ok(tn_device_open("cpu", NULL, NULL, &cpu));
    train(cpu, TN_F64, here, cpu_file);
    tn_device_close(cpu);
    tn_device *d = open_far(TN_FALLBACK_SILENT, (far_nature){.no_f64 = true});
    train(d, TN_F64, there, far_file);
    assert_true(placement().on_host > 0);
    close_far(d);
    assert_memory_equal(here, there, sizeof here);
    assert_same_files(cpu_file, far_file);
}

/* ---- captured ---------------------------------------------------------------------------------------------------- */

static void captured_parts_of_the_host_are_launched_again(void **state) {
    (void)state;
    tn_device *d = open_far(TN_FALLBACK_SILENT, (far_nature){.no_f64 = true});
    {
        TN_SCOPE;
        float data[N] = {1, 2, 3, 4, 5, 6}, got[N];
        tn_tensor *x = tn_from_data(data, (int64_t[]){N}, 1, TN_F32);
        assert_ok(tn_capture_begin());
        tn_tensor *y = tn_cast(tn_mul(tn_cast(x, TN_F64), tn_scalar(3)), TN_F32);
        tn_tensor *z = tn_add(y, x), *out = NULL;
        tn_graph *graph = NULL;
        assert_ok(tn_capture_end(&x, 1, &z, 1, &graph));
        for (int k = 0; k < 3; k++) {
            for (int i = 0; i < N; i++)
                data[i] = (float)(i + 10 * k);
            tn_tensor *next = tn_from_data(data, (int64_t[]){N}, 1, TN_F32);
            assert_ok(tn_graph_launch(graph, &next, &out));
            assert_ok(tn_read(out, got, sizeof got));
            for (int i = 0; i < N; i++)
                assert_float_equal(got[i], 4 * data[i], 0);
            tn_free(out);
        }
        tn_graph_free(graph);
    }
    close_far(d);
}

/* ---- tn_try ------------------------------------------------------------------------------------------------------ */

typedef struct job {
    int calls;
    const char *ids[4];
    double random[4], result;
    tn_status answer; /* other than TN_OK: what it returns at the first call */
} job;

/* Needs f64. */
static tn_status wide_mean(void *ctx, tn_device *device) {
    job *j = ctx;
    static char ids[4][32];
    tn_device_info info = {.struct_size = sizeof info};
    assert_ok(tn_device_get_info(device, &info));
    assert_ptr_equal(tn_current_device(), device);
    snprintf(ids[j->calls], sizeof ids[0], "%s", info.id);
    j->ids[j->calls] = ids[j->calls];
    j->random[j->calls] = tn_item(tn_randn((int64_t[]){1}, 1));
    j->calls++;
    if (j->calls == 1 && j->answer != TN_OK) return j->answer;
    tn_tensor *x = tn_from_data((double[]){1, 2, 6}, (int64_t[]){3}, 1, TN_F64);
    return tn_read(tn_mean(x, NULL, 0, false), &j->result, sizeof j->result);
}

static void what_one_device_cannot_the_next_one_does(void **state) {
    (void)state;
    far_nature_now = (far_nature){.no_f64 = true};
    tn_device_close(far_open(0, NULL)); /* the driver is registered */
    job j = {0};
    tn_try_report r = {.struct_size = sizeof r};
    tn_device_options silent = TN_DEVICE_DEFAULTS;
    silent.fallback = TN_FALLBACK_SILENT;
    tn_device *before = tn_current_device();
    assert_ok(tn_try((const char *[]){"far:7", "far:1", "far", "cpu"}, 4, &silent, wide_mean, &j, &r));
    assert_float_equal(j.result, 3, 0);
    assert_int_equal(j.calls, 3);
    assert_string_equal(j.ids[0], "far:1");
    assert_string_equal(j.ids[2], "cpu");
    assert_true(j.random[0] == j.random[1] && j.random[1] == j.random[2]);
    assert_ptr_equal(tn_current_device(), before);
    assert_int_equal(r.attempt_count, 4);
    assert_string_equal(r.ran, "cpu");
    assert_string_equal(r.attempts[0].id, "far:7");
    assert_int_equal(r.attempts[0].status, TN_ERR_UNAVAILABLE);
    assert_text_has(r.attempts[1].reason, "far:1 has no f64");
    assert_text_has(r.attempts[1].reason, "test_placement.c:");
    assert_int_equal(r.attempts[3].status, TN_OK);
    assert_string_equal(r.attempts[3].reason, "");
    far_nature_now = (far_nature){0};
}

static void each_failure_is_said_unless_asked_not_to(void **state) {
    (void)state;
    far_nature_now = (far_nature){.no_f64 = true};
    job j = {0};
    char heard[2000];
    hear_begin();
    tn_status s = tn_try((const char *[]){"far", "cpu"}, 2, NULL, wide_mean, &j, NULL);
    hear_end(heard, sizeof heard);
    assert_ok(s);
    assert_text_has(heard, "far:0 failed");
    assert_text_has(heard, "trying cpu");
    far_nature_now = (far_nature){0};
}

static void when_none_does_it_all_reasons_are_told(void **state) {
    (void)state;
    far_nature_now = (far_nature){.no_f64 = true};
    tn_device_options silent = TN_DEVICE_DEFAULTS;
    silent.fallback = TN_FALLBACK_SILENT;
    job j = {0};
    tn_try_report r = {.struct_size = sizeof r};
    assert_int_equal(tn_try((const char *[]){"far:0", "far:1"}, 2, &silent, wide_mean, &j, &r), TN_ERR_UNSUPPORTED);
    assert_text_has(tn_error(), "far:0 has no f64");
    assert_text_has(tn_error(), "far:1 has no f64");
    assert_string_equal(r.ran, "");
    assert_int_equal(r.attempt_count, 2);
    /* strict: the first alone; a fault of the work's own ends it; the same device is not asked twice */
    tn_device_options strict = TN_DEVICE_DEFAULTS;
    strict.fallback = TN_FALLBACK_STRICT;
    j = (job){0};
    assert_int_equal(tn_try((const char *[]){"far:0", "cpu"}, 2, &strict, wide_mean, &j, NULL), TN_ERR_UNSUPPORTED);
    assert_int_equal(j.calls, 1);
    j = (job){.answer = TN_ERR_SHAPE};
    assert_int_equal(tn_try((const char *[]){"far:0", "cpu"}, 2, &silent, wide_mean, &j, NULL), TN_ERR_SHAPE);
    assert_int_equal(j.calls, 1);
    j = (job){.answer = TN_ERR_DEVICE};
    assert_int_equal(tn_try((const char *[]){"cpu", "cpu"}, 2, &silent, wide_mean, &j, &r), TN_ERR_DEVICE);
    assert_int_equal(j.calls, 1);
    assert_string_equal(r.attempts[0].reason, tn_status_name(TN_ERR_DEVICE));
    far_nature_now = (far_nature){0};
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_host_computes_what_a_device_lacks),
        cmocka_unit_test(nothing_is_lacking_on_a_whole_device),
        cmocka_unit_test(people_are_told_once_a_reason),
        cmocka_unit_test(strictly_it_is_an_error_of_the_line),
        cmocka_unit_test(what_the_compiler_refuses_the_host_computes),
        cmocka_unit_test(products_are_the_hosts_own),
        cmocka_unit_test(a_training_partly_on_the_host_has_the_bits_of_the_cpu),
        cmocka_unit_test(captured_parts_of_the_host_are_launched_again),
        cmocka_unit_test(what_one_device_cannot_the_next_one_does),
        cmocka_unit_test(each_failure_is_said_unless_asked_not_to),
        cmocka_unit_test(when_none_does_it_all_reasons_are_told),
    };
    return cmocka_run_group_tests_name("placement", tests, make_scratch, remove_scratch);
}
