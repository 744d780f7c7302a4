/* test_engine_torch.c — LibTorch as an engine: libraries that cannot be used are refused with the reason, operations
 * give what the cpu's kernels give, and networks are trained to the same losses.
 *
 * The failures are those of a stand-in (tests/fakes/torch.c). The rest needs the library: TRUNNION_TORCH_LIB, or where
 * it is found by itself, as after `pip install torch`. */
#include "engine_support.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>

static const char *const LIBRARIES[] = {"libtorch_cpu.so", "site-packages/torch/lib/libtorch_cpu.so", NULL};
static const engine_subject SUBJECT = {"engine:torch", "LibTorch", "TRUNNION_TORCH_LIB", LIBRARIES};

/* ---- libraries that cannot be used ------------------------------------------------------------------------------- */

static void assert_refused(const char *does, const char *version, const char *why) {
    assert_engine_refused(&SUBJECT, does, version, why);
}

static void absent_library_is_named_with_what_to_do(void **state) {
    (void)state;
    assert_refused("", "2.15", "TRUNNION_TORCH_LIB points: /nowhere/at-all.so");
    assert_text_has(tn_error(), "pip install 'torch>=2.10'");
}

static void library_without_the_interface_is_refused(void **state) {
    (void)state;
    setenv("TRUNNION_TORCH_LIB", build_fake("engine.c", "libtorch_cpu.so.2.15", ""), 1);
    assert_refused("", "2.15", "aoti_torch_abi_version");
}

static void broken_libraries_are_refused_with_the_reason(void **state) {
    (void)state;
    setenv("TRUNNION_TORCH_LIB", build_fake("torch.c", "libtorch_cpu.so", ""), 1);
    setenv("TRUNNION_PROBE_SECONDS", "1", 1);
    assert_refused("loading-crash", "2.15", "it crashed");
    assert_refused("crash", "2.15", "it crashed");
    assert_refused("abort", "2.15", "it crashed");
    assert_refused("end", "2.15", "it crashed");
    assert_refused("hang", "2.15", "it took too long");
    assert_refused("", "2.9", "LibTorch 2.9.0 is older than 2.10");
    assert_refused("", "1.13", "LibTorch 1.13.0 is older than 2.10");
}

/* In a process of its own: the stand-in stays loaded. */
static void operator_that_fails_is_an_error_with_its_words(void **state) {
    (void)state;
    setenv("TRUNNION_TORCH_LIB", build_fake("torch.c", "libtorch_cpu.so", ""), 1);
    int status = 0, pid = fork();
    if (pid == 0) {
        tn_device_options o = TN_DEVICE_DEFAULTS;
        tn_device *d = NULL;
        float got[2];
        o.fallback = TN_FALLBACK_STRICT;
        bool opened = tn_device_open(SUBJECT.name, &o, NULL, &d) == TN_OK && tn_set_current_device(d) == TN_OK;
        tn_tensor *x = tn_from_data((float[]){1, 2}, (int64_t[]){2}, 1, TN_F32);
        bool failed = opened && tn_read(tn_exp(x), got, sizeof got) == TN_ERR_DEVICE;
        bool told = failed && strstr(tn_error(), "aten::exp.out failed (1): the fake refuses");
        if (!told) fprintf(stderr, "%s\n", tn_error()); /* what came instead */
        _exit(!opened ? 1 : !failed ? 2 : !told ? 3 : 0);
    }
    assert_true(pid > 0 && waitpid(pid, &status, 0) == pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static tn_status double_two(void *ctx, tn_device *device) {
    TN_SCOPE;
    (void)device;
    return tn_read(tn_mul(tn_scalar(2), tn_scalar(2)), ctx, sizeof(float));
}

static void work_goes_on_where_the_library_crashes(void **state) {
    (void)state;
    const char *const preferences[] = {SUBJECT.name, "cpu"};
    tn_device_options o = TN_DEVICE_DEFAULTS;
    tn_try_report report = {.struct_size = sizeof report};
    float got = 0;
    o.fallback = TN_FALLBACK_SILENT;
    setenv("TRUNNION_TORCH_LIB", build_fake("torch.c", "libtorch_cpu.so", ""), 1);
    setenv("FAKE_DOES", "loading-crash", 1);
    assert_ok(tn_try(preferences, 2, &o, double_two, &got, &report));
    assert_true(got == 4);
    assert_string_equal(report.ran, "cpu");
    assert_int_equal(report.attempt_count, 2);
    assert_text_has(report.attempts[0].reason, "it crashed");
}

/* ---- operations -------------------------------------------------------------------------------------------------- */

static tn_device *cpu;

static bool open_engine(void) {
    if (!open_real_engine(&SUBJECT)) return false;
    if (!cpu) assert_ok(tn_device_open("cpu", NULL, NULL, &cpu));
    return true;
}

static void operations_run_there_and_none_on_the_host(void **state) {
    (void)state;
    if (!open_engine()) return;
    TN_SCOPE;
    int64_t before = ran_on_the_host();
    float want[20], have[20];
    for (int pass = 0; pass < 2; pass++) {
        assert_ok(tn_set_current_device(pass ? engine : cpu));
        tn_tensor *y = tn_softmax(tn_relu(tn_matmul(numbers(4, 6), numbers(6, 5))), 1);
        assert_ok(tn_read(y, pass ? have : want, sizeof want));
    }
    for (int i = 0; i < 20; i++)
        assert_true(fabsf(have[i] - want[i]) <= 1e-6f);
    assert_int_equal(ran_on_the_host(), before);
}

static void views_are_read_where_they_lie(void **state) {
    (void)state;
    if (!open_engine()) return;
    TN_SCOPE;
    tn_tensor *x = numbers(3, 4);
    assert_ok(tn_eval(&x, 1));
    float flat[12], direct[12];
    assert_ok(tn_read(x, direct, sizeof direct));
    assert_ok(tn_read(tn_mul(tn_transpose(x, 0, 1), tn_scalar(2)), flat, sizeof flat));
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 3; k++)
            assert_true(flat[i * 3 + k] == 2 * direct[k * 4 + i]);
    assert_ok(tn_read(tn_mul(tn_slice(x, 1, 3, INT64_MIN, -2), tn_scalar(2)), flat, 6 * sizeof *flat));
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < 2; i++)
            assert_true(flat[k * 2 + i] == 2 * direct[k * 4 + 3 - 2 * i]);
}

static void states_are_written_behind_the_operations(void **state) {
    (void)state;
    if (!open_engine()) return;
    TN_SCOPE;
    tn_tensor *s = numbers(2, 2);
    assert_ok(tn_make_state(s));
    const float with_old[] = {0.5f, 0.75f, 1.0f, 1.25f}, then[] = {0.25f, 0.0625f, 0.0f, 0.0625f};
    tn_tensor *before = tn_add(s, tn_scalar(1));
    tn_mul_(s, s);
    assert_reads(before, with_old, 4, 0);
    assert_reads(s, then, 4, 0);
}

static void runtime_scalars_come_with_each_run(void **state) {
    (void)state;
    if (!open_engine()) return;
    TN_SCOPE;
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
    TN_SCOPE;
    tn_tensor *x = numbers(3, 4), *at = tn_from_data((int64_t[]){0, 2}, (int64_t[]){2}, 1, TN_I64);
    float got[8];
    assert_ok(tn_read(tn_index_select(x, 0, tn_sub(at, tn_scalar_int(0))), got, sizeof got));
    assert_int_equal(tn_read(tn_index_select(x, 0, tn_sub(at, tn_scalar_int(1))), got, sizeof got), TN_ERR_ARGUMENT);
    assert_text_has(tn_error(), "index -1");
}

static void what_it_lacks_the_cpu_computes_and_tells(void **state) {
    (void)state;
    if (!open_engine()) return;
    TN_SCOPE;
    int64_t before = ran_on_the_host();
    uint16_t got[4];
    tn_tensor *a = tn_from_data((float[]){1, 2, 3, 4}, (int64_t[]){2, 2}, 2, TN_F32);
    assert_ok(tn_read(tn_cast(a, TN_U16), got, sizeof got));
    assert_memory_equal(got, ((uint16_t[]){1, 2, 3, 4}), sizeof got);
    assert_true(ran_on_the_host() > before);
}

/* The second matrix of the batch has a NaN, for which LibTorch raises errors: only its own results are NaN. */
static void factorizations_are_those_of_the_cpu(void **state) {
    (void)state;
    if (!open_engine()) return;
    TN_SCOPE;
    int64_t before = ran_on_the_host();
    float values[4], determinants[2];
    tn_tensor *a = tn_from_data((float[]){2, 1, 1, 2, NAN, 1, 1, 2}, (int64_t[]){2, 2, 2}, 3, TN_F32);
    assert_ok(tn_read(tn_linalg_eigvalsh(a), values, sizeof values));
    assert_true(fabsf(values[0] - 1) <= 1e-6f && fabsf(values[1] - 3) <= 1e-6f && isnan(values[2]) && isnan(values[3]));
    assert_ok(tn_read(tn_linalg_svdvals(a), values, sizeof values));
    assert_true(fabsf(values[0] - 3) <= 1e-6f && fabsf(values[1] - 1) <= 1e-6f && isnan(values[2]) && isnan(values[3]));
    assert_ok(tn_read(tn_linalg_det(a), determinants, sizeof determinants));
    assert_true(fabsf(determinants[0] - 3) <= 1e-6f && isnan(determinants[1]));
    assert_int_equal(ran_on_the_host(), before);
}

/* LibTorch fails where integers are divided by 0, and the processor traps where the least one is divided by -1. */
static void integers_are_divided_as_on_the_cpu(void **state) {
    (void)state;
    if (!open_engine()) return;
    TN_SCOPE;
    int64_t before = ran_on_the_host();
    const int32_t quotients[] = {3, 0, INT32_MIN, -4}, rests[] = {1, 0, 0, 1};
    int32_t got[4];
    tn_tensor *a = tn_from_data((int32_t[]){7, -7, INT32_MIN, -7}, (int64_t[]){4}, 1, TN_I32);
    tn_tensor *b = tn_from_data((int32_t[]){2, 0, -1, 2}, (int64_t[]){4}, 1, TN_I32);
    assert_ok(tn_read(tn_floor_divide(a, b), got, sizeof got));
    assert_memory_equal(got, quotients, sizeof got);
    assert_ok(tn_read(tn_remainder(a, b), got, sizeof got));
    assert_memory_equal(got, rests, sizeof got);
    assert_int_equal(ran_on_the_host(), before);
}

static void random_numbers_are_those_of_the_cpu(void **state) {
    (void)state;
    if (!open_engine()) return;
    TN_SCOPE;
    int64_t before = ran_on_the_host();
    float want[8], have[8];
    for (int pass = 0; pass < 2; pass++) {
        assert_ok(tn_set_current_device(pass ? engine : cpu));
        tn_manual_seed(7);
        assert_ok(tn_read(tn_rand((int64_t[]){8}, 1), pass ? have : want, sizeof want));
    }
    assert_memory_equal(have, want, sizeof want);
    assert_int_equal(ran_on_the_host(), before);
}

enum { THREADS = 4, ROUNDS = 40 };

static void *compute_often(void *wrong) {
    for (int i = 0; i < ROUNDS; i++) {
        TN_SCOPE;
        float got = 0;
        tn_status s = tn_set_current_device(engine);
        tn_tensor *x = numbers(6, 6), *y = tn_softmax(tn_mul(tn_matmul(x, x), tn_runtime_scalar(i)), 1);
        if (s == TN_OK) s = tn_read(tn_sum(y, TN_ALL, false), &got, sizeof got);
        if (s != TN_OK || fabsf(got - 6) > 1e-5f) atomic_fetch_add((atomic_int *)wrong, 1);
    }
    return NULL;
}

static void threads_compute_at_once(void **state) {
    (void)state;
    pthread_t threads[THREADS];
    atomic_int wrong = 0;
    if (!open_engine()) return;
    TN_SCOPE;
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, compute_often, &wrong), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(atomic_load(&wrong), 0);
}

/* ---- a block of SmolLM2 ------------------------------------------------------------------------------------------ */

/* SmolLM2-135M: 9 heads of 64 features, three for keys and values; 1536 features between the two products. */
enum { PLACES = 12, FEATURES = 576, HEADS = 9, KV_HEADS = 3, PER_HEAD = 64, INNER = 1536 };
enum { INPUT, NORM, QUERY, KEY, VALUE, OUTPUT, NORM_2, GATE, UP, DOWN, TENSORS };

static tn_tensor *of_heads(const tn_tensor *x, int64_t heads) {
    return tn_transpose(tn_view(x, (int64_t[]){1, PLACES, heads, PER_HEAD}, 4), 1, 2);
}

static tn_tensor *smollm2_block(tn_tensor *const *w, const tn_tensor *cosine, const tn_tensor *sine) {
    tn_scaled_dot_product_attention_options o = TN_SCALED_DOT_PRODUCT_ATTENTION_DEFAULTS;
    o.is_causal = true;
    tn_tensor *x = tn_rms_norm(w[INPUT], (int64_t[]){FEATURES}, 1, w[NORM], NULL);
    tn_tensor *q = tn_rope(of_heads(tn_linear(x, w[QUERY], NULL), HEADS), cosine, sine, NULL);
    tn_tensor *k = tn_rope(of_heads(tn_linear(x, w[KEY], NULL), KV_HEADS), cosine, sine, NULL);
    tn_tensor *v = of_heads(tn_linear(x, w[VALUE], NULL), KV_HEADS);
    tn_tensor *seen = tn_transpose(tn_scaled_dot_product_attention(q, k, v, NULL, &o), 1, 2);
    seen = tn_reshape(seen, (int64_t[]){1, PLACES, FEATURES}, 3);
    tn_tensor *y = tn_add(w[INPUT], tn_linear(seen, w[OUTPUT], NULL));
    x = tn_rms_norm(y, (int64_t[]){FEATURES}, 1, w[NORM_2], NULL);
    x = tn_swiglu(tn_linear(x, w[GATE], NULL), tn_linear(x, w[UP], NULL));
    return tn_add(y, tn_linear(x, w[DOWN], NULL));
}

static void compute_block(tn_device *d, float *result, float *gradient) {
    static const int64_t shapes[TENSORS][3] = {[INPUT] = {1, PLACES, FEATURES},
                                               [NORM] = {FEATURES},
                                               [QUERY] = {FEATURES, FEATURES},
                                               [KEY] = {KV_HEADS * PER_HEAD, FEATURES},
                                               [VALUE] = {KV_HEADS * PER_HEAD, FEATURES},
                                               [OUTPUT] = {FEATURES, FEATURES},
                                               [NORM_2] = {FEATURES},
                                               [GATE] = {INNER, FEATURES},
                                               [UP] = {INNER, FEATURES},
                                               [DOWN] = {FEATURES, INNER}};
    TN_SCOPE;
    tn_tensor *w[TENSORS], *gradients[TENSORS];
    assert_ok(tn_set_current_device(d));
    tn_manual_seed(3);
    for (int i = 0; i < TENSORS; i++) {
        int rank = shapes[i][2] ? 3 : shapes[i][1] ? 2 : 1;
        w[i] = i == INPUT ? tn_randn(shapes[i], rank) : tn_normal(rank == 1 ? 1 : 0, 0.05, shapes[i], rank);
        assert_ok(tn_eval(&w[i], 1));
        assert_ok(tn_set_requires_grad(w[i], true));
    }
    tn_tensor *angles = tn_uniform(0, 6, (int64_t[]){PLACES, PER_HEAD / 2}, 2);
    tn_tensor *y = smollm2_block(w, tn_cos(angles), tn_sin(angles));
    tn_tensor *dy = tn_full((int64_t[]){1, PLACES, FEATURES}, 3, 1, TN_F32);
    assert_ok(tn_gradients(&y, 1, &dy, w, TENSORS, false, gradients));
    assert_ok(tn_read(y, result, PLACES * FEATURES * sizeof *result));
    assert_ok(tn_read(gradients[INPUT], gradient, PLACES * FEATURES * sizeof *gradient));
    for (int i = 0; i < TENSORS; i++)
        tn_free(gradients[i]);
}

static float apart(const float *have, const float *want, int64_t count) {
    float worst = 0, greatest = 0;
    for (int64_t i = 0; i < count; i++) {
        worst = fmaxf(worst, fabsf(have[i] - want[i]));
        greatest = fmaxf(greatest, fabsf(want[i]));
    }
    return worst / greatest;
}

static void block_of_smollm2_gives_the_same_results_and_gradients(void **state) {
    (void)state;
    static float want[2][PLACES * FEATURES], have[2][PLACES * FEATURES];
    if (!open_engine()) return;
    TN_SCOPE;
    int64_t before = ran_on_the_host();
    compute_block(cpu, want[0], want[1]);
    compute_block(engine, have[0], have[1]);
    float result = apart(have[0], want[0], PLACES * FEATURES), gradient = apart(have[1], want[1], PLACES * FEATURES);
    print_message("block of SmolLM2: result differs by %.2g, the gradient by %.2g\n", result, gradient);
    assert_true(result <= 1e-5f);
    assert_true(gradient <= 1e-5f);
    assert_int_equal(ran_on_the_host(), before);
}

/* Convolutions with a bias, norms and pools are one call each, with the cpu's results. */
static void composed_operations_are_single_calls(void **state) {
    (void)state;
    enum { CASES = 8, MOST = 2 * 6 * 8 * 8 };
    static const char *const names[CASES] = {"conv2d",     "batch_norm", "batch_norm",          "group_norm",
                                             "layer_norm", "rms_norm",   "adaptive_avg_pool2d", "avg_pool2d"};
    static float got[2][CASES][MOST];
    if (!open_engine()) return;
    for (int there = 0; there < 2; there++)
        for (int i = 0; i < CASES; i++) {
            TN_SCOPE;
            assert_ok(tn_set_current_device(there ? engine : cpu));
            tn_manual_seed(5);
            tn_tensor *x = tn_randn(TN_DIMS(2, 6, 8, 8)), *weight = tn_randn(TN_DIMS(6, 3, 3, 3));
            tn_tensor *a = tn_randn(TN_DIMS(6)), *b = tn_randn(TN_DIMS(6)), *c = tn_rand(TN_DIMS(6));
            tn_tensor *row = tn_randn(TN_DIMS(8));
            assert_ok(tn_eval((tn_tensor *[]){x, weight, a, b, c, row}, 6));
            tn_conv2d_options o = TN_CONV2D_DEFAULTS;
            tn_avg_pool2d_options pool = TN_AVG_POOL2D_DEFAULTS;
            o.groups = 2;
            o.padding[0] = o.padding[1] = 1;
            pool.padding[0] = pool.padding[1] = 1;
            tn_tensor *y = i == 0   ? tn_conv2d(x, weight, a, &o)
                           : i == 1 ? tn_batch_norm(x, a, c, b, NULL, false, NULL)
                           : i == 2 ? tn_batch_norm(x, NULL, NULL, a, b, true, NULL)
                           : i == 3 ? tn_group_norm(x, 3, a, b, NULL)
                           : i == 4 ? tn_layer_norm(x, (int64_t[]){8}, 1, row, row, NULL)
                           : i == 5 ? tn_rms_norm(x, (int64_t[]){8}, 1, row, NULL)
                           : i == 6 ? tn_adaptive_avg_pool2d(x, (int64_t[]){3, 5})
                                    : tn_avg_pool2d(x, (int64_t[]){3, 2}, &pool);
            assert_ok(tn_eval(&y, 1));
            char *plan = tn_explain_last(), call[48];
            snprintf(call, sizeof call, "engine  %s ", names[i]);
            if (there && (!strstr(plan, "in 1 command") || !strstr(plan, call))) fail_msg("%s:\n%s", names[i], plan);
            tn_text_free(plan);
            assert_ok(tn_read(y, got[there][i], (size_t)tn_numel(y) * sizeof(float)));
        }
    for (int i = 0; i < CASES; i++)
        if (!(apart(got[1][i], got[0][i], MOST) <= 1e-5f)) fail_msg("%s differs from the cpu's", names[i]);
}

/* ---- training ---------------------------------------------------------------------------------------------------- */

enum { BATCH = 16, CLASSES = 4, STEPS = 25, TOKENS = 6, WIDE = 16 };

typedef struct network {
    tn_module *root, *body, *head;
    tn_tensor *(*forward)(const struct network *n, const tn_tensor *x);
    int64_t shape[4];
    int rank;
} network;

static tn_tensor *forward_all(const network *n, const tn_tensor *x) { return tn_forward(n->body, x); }

static void make_mlp(network *n) {
    n->body = tn_nn_sequential(n->root, "net");
    tn_nn_linear(n->body, "0", WIDE, 32, true);
    tn_nn_function(n->body, "1", tn_relu);
    tn_nn_dropout(n->body, "2", 0.1);
    tn_nn_linear(n->body, "3", 32, CLASSES, true);
    n->forward = forward_all;
    memcpy(n->shape, (int64_t[]){BATCH, WIDE}, 2 * sizeof *n->shape);
    n->rank = 2;
}

static tn_tensor *mean_of_channels(const tn_tensor *x) { return tn_mean(x, (int64_t[]){2, 3}, 2, false); }
static tn_tensor *smooth(const tn_tensor *x) { return tn_gelu(x, NULL); }
static tn_tensor *pooled(const tn_tensor *x) { return tn_max_pool2d(x, (int64_t[]){2, 2}, NULL); }

static void make_cnn(network *n) {
    tn_nn_conv2d_options same = TN_NN_CONV2D_DEFAULTS, half = TN_NN_CONV2D_DEFAULTS;
    same.padding = half.padding = 1;
    half.stride = 2;
    n->body = tn_nn_sequential(n->root, "net");
    tn_nn_conv2d(n->body, "0", 2, 8, 3, &same);
    tn_nn_batch_norm2d(n->body, "1", 8, NULL);
    tn_nn_function(n->body, "2", tn_relu);
    tn_nn_function(n->body, "3", pooled);
    tn_nn_conv2d(n->body, "4", 8, 8, 3, &half);
    tn_nn_function(n->body, "5", smooth);
    tn_nn_function(n->body, "6", mean_of_channels);
    tn_nn_linear(n->body, "7", 8, CLASSES, true);
    n->forward = forward_all;
    memcpy(n->shape, (int64_t[]){BATCH, 2, 8, 8}, sizeof n->shape);
    n->rank = 4;
}

static tn_tensor *token(const tn_tensor *x, int64_t t) { return tn_select(x, 1, t); }

static tn_tensor *forward_lstm(const network *n, const tn_tensor *x) {
    tn_tensor *h = tn_zeros((int64_t[]){BATCH, WIDE}, 2, TN_F32), *c = tn_zeros((int64_t[]){BATCH, WIDE}, 2, TN_F32);
    for (int64_t t = 0; t < TOKENS; t++)
        tn_lstm_cell_forward(n->body, token(x, t), h, c, &h, &c);
    return tn_forward(n->head, h);
}

static void make_lstm(network *n) {
    n->body = tn_nn_lstm_cell(n->root, "cell", WIDE, WIDE);
    n->head = tn_nn_linear(n->root, "head", WIDE, CLASSES, true);
    n->forward = forward_lstm;
    memcpy(n->shape, (int64_t[]){BATCH, TOKENS, WIDE}, 3 * sizeof *n->shape);
    n->rank = 3;
}

static tn_tensor *forward_transformer(const network *n, const tn_tensor *x) {
    tn_tensor *y = tn_transformer_encoder_layer_forward(n->body, x, NULL);
    return tn_forward(n->head, tn_mean(y, (int64_t[]){1}, 1, false));
}

static void make_transformer(network *n) {
    n->body = tn_nn_transformer_encoder_layer(n->root, "block", WIDE, 4, NULL);
    n->head = tn_nn_linear(n->root, "head", WIDE, CLASSES, true);
    n->forward = forward_transformer;
    memcpy(n->shape, (int64_t[]){BATCH, TOKENS, WIDE}, 3 * sizeof *n->shape);
    n->rank = 3;
}

/* The losses of the steps on one batch of random numbers, recorded anew each time or captured. */
static void train(tn_device *d, void (*make)(network *n), bool captured, float *losses) {
    network n = {NULL};
    tn_optimizer *adam = NULL;
    tn_graph *graph = NULL;
    tn_adam_options o = TN_ADAM_DEFAULTS;
    int64_t labels[BATCH];
    assert_ok(tn_set_current_device(d));
    tn_manual_seed(11);
    n.root = tn_module_root();
    make(&n);
    assert_ok(tn_module_status(n.root));
    o.lr = 5e-3;
    assert_ok(tn_optimizer_adam(n.root, &o, &adam));
    for (int i = 0; i < BATCH; i++)
        labels[i] = i % CLASSES;
    tn_tensor *x = tn_randn(n.shape, n.rank), *y = tn_from_data(labels, (int64_t[]){BATCH}, 1, TN_I64);
    assert_ok(tn_eval((tn_tensor *[]){x, y}, 2));
    for (int step = 0; step < STEPS; step++) {
        TN_SCOPE;
        tn_tensor *loss = NULL;
        if (graph) {
            assert_ok(tn_graph_launch(graph, NULL, &loss));
        } else {
            if (captured) assert_ok(tn_capture_begin());
            loss = tn_cross_entropy(n.forward(&n, x), y, NULL, NULL);
            assert_ok(tn_minimize(adam, loss));
            if (captured) assert_ok(tn_capture_end(NULL, 0, &loss, 1, &graph));
        }
        losses[step] = (float)tn_item(loss);
    }
    char *plan = tn_explain_last();
    if (!captured) assert_int_equal(strstr(plan, "by engine:torch") != NULL, d == engine);
    tn_text_free(plan);
    tn_free(x);
    tn_free(y);
    tn_graph_free(graph);
    tn_optimizer_free(adam);
    tn_module_free(n.root);
}

static void assert_trains_alike(const char *name, void (*make)(network *n), float within) {
    float want[STEPS], have[STEPS];
    if (!open_engine()) return;
    int64_t before = ran_on_the_host();
    train(cpu, make, false, want);
    assert_true(want[STEPS - 1] < 0.9f * want[0]);
    for (int captured = 0; captured < 2; captured++) {
        float worst = 0;
        train(engine, make, captured, have);
        for (int i = 0; i < STEPS; i++)
            worst = fmaxf(worst, fabsf(have[i] - want[i]) / fmaxf(1, fabsf(want[i])));
        print_message("%s%s: loss %.5f to %.5f, differs by %.2g at most\n", name, captured ? ", captured" : "", want[0],
                      want[STEPS - 1], worst);
        if (!(worst <= within)) fail_msg("%s: losses differ by %.3g, more than %.3g", name, worst, within);
    }
    assert_int_equal(ran_on_the_host(), before);
}

static void mlp_trains_to_the_same_losses(void **state) {
    (void)state;
    assert_trains_alike("mlp", make_mlp, 1e-5f);
}

static void cnn_trains_to_the_same_losses(void **state) {
    (void)state;
    assert_trains_alike("cnn", make_cnn, 1e-3f);
}

static void lstm_trains_to_the_same_losses(void **state) {
    (void)state;
    assert_trains_alike("lstm", make_lstm, 1e-4f);
}

static void transformer_trains_to_the_same_losses(void **state) {
    (void)state;
    assert_trains_alike("transformer", make_transformer, 1e-4f);
}

int main(void) {
    find_real_library(&SUBJECT);
#define TEST(f) cmocka_unit_test_setup(f, clean_environment)
    const struct CMUnitTest tests[] = {
        TEST(absent_library_is_named_with_what_to_do),
        TEST(library_without_the_interface_is_refused),
        TEST(work_goes_on_where_the_library_crashes), /* while the stand-in is not loaded here */
        TEST(broken_libraries_are_refused_with_the_reason),
        TEST(operator_that_fails_is_an_error_with_its_words),
        TEST(operations_run_there_and_none_on_the_host),
        TEST(views_are_read_where_they_lie),
        TEST(states_are_written_behind_the_operations),
        TEST(runtime_scalars_come_with_each_run),
        TEST(index_out_of_range_is_an_error_of_the_caller),
        TEST(what_it_lacks_the_cpu_computes_and_tells),
        TEST(factorizations_are_those_of_the_cpu),
        TEST(integers_are_divided_as_on_the_cpu),
        TEST(random_numbers_are_those_of_the_cpu),
        TEST(threads_compute_at_once),
        TEST(block_of_smollm2_gives_the_same_results_and_gradients),
        TEST(composed_operations_are_single_calls),
        TEST(mlp_trains_to_the_same_losses),
        TEST(cnn_trains_to_the_same_losses),
        TEST(lstm_trains_to_the_same_losses),
        TEST(transformer_trains_to_the_same_losses),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
