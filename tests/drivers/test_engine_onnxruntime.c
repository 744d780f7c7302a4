/* test_engine_onnxruntime.c — ONNX Runtime as an engine: libraries that cannot be used are refused with the reason, and
 * recorded graphs that it computes are those of the cpu.
 *
 * The failures are those of a stand-in (tests/fakes/onnxruntime.c). The rest needs the library:
 * TRUNNION_ONNXRUNTIME_LIB, or where it is found by itself, as after `pip install onnxruntime`. */
#include "engine_support.h"

#include <math.h>

static const char *const LIBRARIES[] = {"libonnxruntime.so.1", "site-packages/onnxruntime/capi/libonnxruntime.so.1.*",
                                        NULL};
static const engine_subject SUBJECT = {"engine:onnxruntime", "ONNX Runtime", "TRUNNION_ONNXRUNTIME_LIB", LIBRARIES};

/* ---- libraries that cannot be used ------------------------------------------------------------------------------- */

static void assert_refused(const char *does, const char *version, const char *why) {
    assert_engine_refused(&SUBJECT, does, version, why);
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
    assert_refused("no-call", "1.31.1", "CreateEnvWithGlobalThreadPools");
    assert_refused("", "1.31.1", "the fake refuses (error 6)");
}

/* ---- recorded graphs --------------------------------------------------------------------------------------------- */

static bool open_engine(void) { return open_real_engine(&SUBJECT); }

static void graph_runs_there_whole(void **state) {
    (void)state;
    if (!open_engine()) return;
    TN_SCOPE;
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
    TN_SCOPE;
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
    TN_SCOPE;
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
    tn_tensor *wrong = tn_index_select(x, 0, tn_sub(at, tn_scalar_int(1)));
    assert_int_equal(tn_read(wrong, got, sizeof got), TN_ERR_ARGUMENT);
    assert_text_has(tn_error(), "index -1");
    assert_int_equal(tn_read(wrong, got, sizeof got), TN_ERR_ARGUMENT);
}

static void what_it_lacks_is_computed_by_the_host_and_told(void **state) {
    (void)state;
    if (!open_engine()) return;
    TN_SCOPE;
    int64_t before = ran_on_the_host();
    const int64_t numbers_of_x[] = {2, -3, 1, 5}, exponents[] = {3, 2, -1, -2}, want[] = {10, 11, 3, 2};
    tn_tensor *x = tn_from_data(numbers_of_x, (int64_t[]){4}, 1, TN_I64);
    tn_tensor *y = tn_from_data(exponents, (int64_t[]){4}, 1, TN_I64);
    /* on both sides of the operation that is the host's stand others, which are the engine's */
    tn_tensor *made = tn_add(tn_pow(tn_mul(x, tn_scalar_int(1)), y), tn_scalar_int(2));
    int64_t got[4];
    assert_ok(tn_read(made, got, sizeof got));
    assert_memory_equal(got, want, sizeof got);
    assert_int_equal(ran_on_the_host(), before + 1);
}

static void failed_run_is_done_again_by_the_host(void **state) {
    (void)state;
    if (!open_engine()) return;
    TN_SCOPE;
    int64_t before = ran_on_the_host();
    tn_tensor *s = tn_from_data((int64_t[]){7, 8}, (int64_t[]){2}, 1, TN_I64);
    tn_tensor *x = tn_from_data((int64_t[]){0, 3}, (int64_t[]){2}, 1, TN_I64);
    assert_ok(tn_make_state(s));
    tn_remainder_(s, x); /* ONNX Runtime ends with "Integer modulo by zero" */
    int64_t got[2];
    assert_ok(tn_read(s, got, sizeof got));
    assert_int_equal(got[1], 2);
    assert_true(ran_on_the_host() > before);
}

/* Weights become constants of the graph after a few runs, and are seen when they change all the same. */
static void weights_that_stay_are_constants_until_they_are_written(void **state) {
    (void)state;
    if (!open_engine()) return;
    enum { ROWS = 2, IN = 12, OUT = 10, RUNS = 24, WRITTEN = 7 };
    int with_constants = 0;
    TN_SCOPE;
    float weights[OUT * IN], biases[OUT];
    for (int i = 0; i < OUT * IN; i++)
        weights[i] = (float)(i * 5 % 11) / 16 - 0.25f;
    for (int i = 0; i < OUT; i++)
        biases[i] = (float)i / 4;
    tn_tensor *w = tn_from_data(weights, (int64_t[]){OUT, IN}, 2, TN_F32);
    tn_tensor *bias = tn_from_data(biases, (int64_t[]){1, OUT}, 2, TN_F32);
    assert_ok(tn_make_state(w));
    for (int run = 0; run < RUNS; run++) {
        float x[ROWS * IN], have[ROWS * OUT];
        for (int i = 0; i < ROWS * IN; i++)
            x[i] = (float)((i * 7 + run) % 5) - 2;
        if (run % 8 == WRITTEN) {
            assert_ok(tn_status_of(tn_mul_(w, tn_scalar(-2))));
            for (int i = 0; i < OUT * IN; i++)
                weights[i] *= -2;
        }
        tn_tensor *in = tn_from_data(x, (int64_t[]){ROWS, IN}, 2, TN_F32);
        assert_ok(tn_read(tn_add(tn_matmul(in, tn_transpose(w, 0, 1)), bias), have, sizeof have));
        for (int i = 0; i < ROWS * OUT; i++) {
            double want = (double)biases[i % OUT];
            for (int k = 0; k < IN; k++)
                want += (double)x[i / OUT * IN + k] * (double)weights[i % OUT * IN + k];
            assert_true(fabs((double)have[i] - want) < 1e-5);
        }
        char *plan = tn_explain_last();
        bool constants = strstr(plan, ", 2 constants") != NULL;
        if (constants) assert_true(run > 2 && run < WRITTEN); /* later it is more patient */
        with_constants += constants;
        tn_text_free(plan);
    }
    assert_true(with_constants >= 3);
}

/* Indices that are gathered and checked, as a backward pass reads those of the forward pass, are constants too. */
static void indices_that_are_constants_stay_what_they_were(void **state) {
    (void)state;
    if (!open_engine()) return;
    enum { N = (1 << 16) + 8, RUNS = 8 };
    int64_t *index = malloc(2 * N * sizeof *index);
    float *one = malloc(2 * N * sizeof *one), *have = malloc(N * sizeof *have);
    assert_true(index && one && have);
    for (int i = 0; i < 2 * N; i++) {
        index[i] = i / 2 * 7 % N;
        one[i] = (float)i;
    }
    {
        TN_SCOPE;
        tn_tensor *x = tn_from_data(one, TN_DIMS(N), TN_F32), *all = tn_from_data(index, TN_DIMS(2 * N), TN_I64);
        tn_tensor *sums = tn_from_data(one, TN_DIMS(2 * N), TN_F32);
        tn_tensor *apart = tn_slice(sums, 0, 0, 2 * N, 2), *far = tn_slice(all, 0, 0, 2 * N, 2), *made = NULL;
        assert_ok(tn_set_requires_grad(x, true));
        tn_tensor *y = tn_gather(x, 0, far);
        assert_ok(tn_eval((tn_tensor *[]){y, apart}, 2));
        for (int run = 0; run < RUNS; run++) {
            tn_tensor *dy = tn_full(TN_DIMS(N), run + 1, TN_F32);
            assert_ok(tn_eval(&dy, 1));
            assert_ok(tn_gradients(&y, 1, &dy, &x, 1, false, &made));
            assert_ok(tn_read(made, have, N * sizeof *have));
            for (int i = 0; i < N; i++)
                assert_true(have[i] == (float)(run + 1));
            char *plan = tn_explain_last();
            assert_text_has(plan, run > 2 ? ", 1 constants" : "graph of");
            tn_text_free(plan);
            assert_ok(tn_read(tn_add(apart, apart), have, N * sizeof *have)); /* gathers to the same arena */
        }
    }
    free(index);
    free(one);
    free(have);
}

static void failed_launch_of_a_graph_is_done_again_by_the_host(void **state) {
    (void)state;
    if (!open_engine()) return;
    TN_SCOPE;
    int64_t before = ran_on_the_host(), pair[] = {2}, got[2];
    tn_tensor *s = tn_from_data((int64_t[]){17, 18}, pair, 1, TN_I64);
    tn_tensor *good = tn_from_data((int64_t[]){5, 7}, pair, 1, TN_I64);
    tn_tensor *bad = tn_from_data((int64_t[]){0, 3}, pair, 1, TN_I64), *made = NULL;
    tn_graph *graph = NULL;
    assert_ok(tn_make_state(s));
    assert_ok(tn_eval((tn_tensor *[]){good, bad, s}, 3));
    assert_ok(tn_capture_begin());
    made = tn_add(tn_remainder_(s, good), tn_scalar_int(1));
    assert_ok(tn_capture_end(&good, 1, &made, 1, &graph));
    assert_int_equal(ran_on_the_host(), before);
    const int64_t after_capture[] = {2, 4}, after_launches[][2] = {{2, 4}, {0, 1}, {0, 1}};
    assert_ok(tn_read(s, got, sizeof got));
    assert_memory_equal(got, after_capture, sizeof got);
    tn_tensor *inputs[] = {good, bad, good};
    for (int i = 0; i < 3; i++) { /* the second one ends with "Integer modulo by zero" */
        assert_ok(tn_graph_launch(graph, &inputs[i], &made));
        assert_ok(tn_read(s, got, sizeof got));
        assert_int_equal(got[1], after_launches[i][1]);
        assert_ok(tn_read(made, got, sizeof got));
        assert_int_equal(got[1], after_launches[i][1] + 1);
        assert_true((ran_on_the_host() > before) == (i > 0));
    }
    tn_graph_free(graph);
}

static void clamp_with_a_bound_that_is_nan_is_nan(void **state) {
    (void)state;
    if (!open_engine()) return;
    for (int low = 0; low < 2; low++) {
        TN_SCOPE;
        double bounds[] = {-1, 1};
        float out[24];
        bounds[low] = NAN;
        assert_ok(tn_read(tn_clamp(numbers(4, 6), bounds[0], bounds[1]), out, sizeof out));
        for (int i = 0; i < 24; i++)
            assert_true(isnan(out[i]));
    }
}

/* The number that a scatter starts at is the least or the greatest of its type. */
static void extremes_of_unsigned_numbers_are_scattered(void **state) {
    (void)state;
    if (!open_engine()) return;
    static const uint32_t x[] = {1, 2}, src[] = {7, 4100000000u, 4200000000u, 4000000000u};
    for (int least = 0; least < 2; least++)
        for (int own = 0; own < 2; own++) {
            TN_SCOPE;
            tn_reduce kind = least ? TN_REDUCE_AMIN : TN_REDUCE_AMAX;
            tn_tensor *index = tn_from_data((int64_t[]){0, 0, 1, 1}, (int64_t[]){4}, 1, TN_I64);
            tn_tensor *to = tn_from_data(x, (int64_t[]){2}, 1, TN_U32),
                      *from = tn_from_data(src, (int64_t[]){4}, 1, TN_U32);
            uint32_t out[2];
            assert_ok(tn_read(tn_scatter_reduce(to, 0, index, from, kind, own), out, sizeof out));
            assert_int_equal(out[0], !least ? 4100000000u : own ? 1 : 7);
            assert_int_equal(out[1], !least ? 4200000000u : own ? 2 : 4000000000u);
        }
}

static void random_numbers_are_those_of_every_device(void **state) {
    (void)state;
    if (!open_engine()) return;
    TN_SCOPE;
    int64_t before = ran_on_the_host();
    tn_device *d = NULL;
    float want[16], have[16];
    assert_ok(tn_device_open("cpu", NULL, NULL, &d));
    for (int pass = 0; pass < 2; pass++) {
        assert_ok(tn_set_current_device(pass ? engine : d));
        tn_manual_seed(7);
        tn_tensor *x = tn_add(tn_rand((int64_t[]){16}, 1), tn_scalar(1));
        assert_ok(tn_read(tn_dropout(x, 0.5, true), pass ? have : want, sizeof want));
    }
    assert_memory_equal(have, want, sizeof want);
    assert_int_equal(ran_on_the_host(), before); /* no lack of the engine's */
    tn_device_close(d);
}

/* ---- training ---------------------------------------------------------------------------------------------------- */

enum { STEPS = 12, BATCH = 6, CLASSES = 5, WIDTH = 16, TIMES = 4 };

typedef struct net {
    tn_module *root;
    tn_tensor *(*forward)(tn_module *root, const tn_tensor *x);
    int64_t shape[4]; /* of x */
    int rank;
} net;

static tn_tensor *layers_forward(tn_module *root, const tn_tensor *x) {
    return tn_forward(tn_module_child(root, "layers"), x);
}

static net mlp(void) {
    net n = {.root = tn_module_root(), .forward = layers_forward, .shape = {BATCH, WIDTH}, .rank = 2};
    tn_module *layers = tn_nn_sequential(n.root, "layers");
    tn_nn_linear(layers, "first", WIDTH, 24, true);
    tn_nn_function(layers, "silu", tn_silu);
    tn_nn_dropout(layers, "dropout", 0.25);
    tn_nn_linear(layers, "second", 24, CLASSES, true);
    return n;
}

static tn_tensor *flat_rows(const tn_tensor *x) { return tn_reshape(x, (int64_t[]){BATCH, -1}, 2); }

static net cnn(void) {
    net n = {.root = tn_module_root(), .forward = layers_forward, .shape = {BATCH, 1, 8, 8}, .rank = 4};
    tn_nn_conv2d_options o = TN_NN_CONV2D_DEFAULTS;
    o.padding = 1;
    tn_module *layers = tn_nn_sequential(n.root, "layers");
    tn_nn_conv2d(layers, "conv1", 1, 4, 3, &o);
    tn_nn_batch_norm2d(layers, "norm", 4, NULL);
    tn_nn_function(layers, "relu", tn_relu);
    o.stride = 2;
    tn_nn_conv2d(layers, "conv2", 4, 4, 3, &o);
    tn_nn_function(layers, "flat", flat_rows);
    tn_nn_linear(layers, "head", 64, CLASSES, true);
    return n;
}

static tn_tensor *lstm_forward(tn_module *root, const tn_tensor *x) {
    tn_module *cell = tn_module_child(root, "cell"), *head = tn_module_child(root, "head");
    tn_tensor *h = tn_zeros((int64_t[]){BATCH, WIDTH}, 2, TN_F32), *c = tn_zeros((int64_t[]){BATCH, WIDTH}, 2, TN_F32);
    for (int t = 0; t < TIMES; t++)
        tn_lstm_cell_forward(cell, tn_squeeze(tn_slice(x, 1, t, t + 1, 1), (int64_t[]){1}, 1), h, c, &h, &c);
    return tn_forward(head, h);
}

static net lstm(void) {
    net n = {.root = tn_module_root(), .forward = lstm_forward, .shape = {BATCH, TIMES, 8}, .rank = 3};
    tn_nn_lstm_cell(n.root, "cell", 8, WIDTH);
    tn_nn_linear(n.root, "head", WIDTH, CLASSES, true);
    return n;
}

static tn_tensor *encoder_forward(tn_module *root, const tn_tensor *x) {
    tn_tensor *y = tn_transformer_encoder_layer_forward(tn_module_child(root, "block"), x, NULL);
    return tn_forward(tn_module_child(root, "head"), tn_mean(y, (int64_t[]){1}, 1, false));
}

static net transformer(void) {
    net n = {.root = tn_module_root(), .forward = encoder_forward, .shape = {BATCH, TIMES, WIDTH}, .rank = 3};
    tn_nn_transformer_encoder_layer(n.root, "block", WIDTH, 2, NULL);
    tn_nn_linear(n.root, "head", WIDTH, CLASSES, true);
    return n;
}

/* The losses of some steps of Adam, recorded anew each time or captured. */
static void train(net (*make)(void), bool captured, float losses[STEPS]) {
    tn_manual_seed(11);
    net n = make();
    tn_adam_options o = TN_ADAM_DEFAULTS;
    tn_optimizer *adam = NULL;
    tn_graph *graph = NULL;
    int64_t labels[BATCH];
    o.lr = 1e-2;
    assert_ok(tn_module_status(n.root));
    assert_ok(tn_optimizer_adam(n.root, &o, &adam));
    for (int i = 0; i < BATCH; i++)
        labels[i] = i % CLASSES;
    tn_tensor *x = tn_randn(n.shape, n.rank), *y = tn_from_data(labels, (int64_t[]){BATCH}, 1, TN_I64);
    assert_ok(tn_eval((tn_tensor *[]){x, y}, 2));
    for (int step = 0; step < STEPS; step++) {
        tn_tensor *loss = NULL;
        if (graph) {
            assert_ok(tn_graph_launch(graph, NULL, &loss));
        } else {
            if (captured) assert_ok(tn_capture_begin());
            loss = tn_cross_entropy(n.forward(n.root, x), y, NULL, NULL);
            assert_ok(tn_minimize(adam, loss));
            if (captured) assert_ok(tn_capture_end(NULL, 0, &loss, 1, &graph));
        }
        assert_ok(tn_read(loss, &losses[step], sizeof losses[step]));
    }
    tn_graph_free(graph);
    tn_optimizer_free(adam);
    tn_module_free(n.root);
}

static void assert_trains_alike(const char *name, net (*make)(void), bool captured) {
    float want[STEPS], have[STEPS];
    double worst = 0;
    tn_device *d = NULL;
    assert_ok(tn_device_open("cpu", NULL, NULL, &d));
    assert_ok(tn_set_current_device(d));
    train(make, captured, want);
    assert_ok(tn_set_current_device(engine));
    train(make, captured, have);
    tn_device_close(d);
    for (int i = 0; i < STEPS; i++)
        worst = fmax(worst, fabs((double)have[i] - (double)want[i]) / (double)want[i]);
    print_message("%s%s: loss %g to %g in %d steps, off the cpu's by %.1e at most\n", name,
                  captured ? ", captured" : "", (double)have[0], (double)have[STEPS - 1], STEPS, worst);
    assert_true(have[STEPS - 1] < 0.9f * have[0]);
    assert_true(worst < 2e-5); /* sums of other orders, through 12 steps of Adam */
}

static void training_steps_are_the_engines(void **state) {
    (void)state;
    if (!open_engine()) return;
    TN_SCOPE;
    int64_t before = ran_on_the_host();
    assert_trains_alike("mlp", mlp, false);
    assert_trains_alike("cnn", cnn, false);
    assert_trains_alike("lstm", lstm, false);
    assert_trains_alike("transformer", transformer, false);
    assert_int_equal(ran_on_the_host(), before);
    assert_trains_alike("cnn", cnn, true);
    assert_trains_alike("transformer", transformer, true);
    assert_int_equal(ran_on_the_host(), before);
}

/* ---- model files and options ------------------------------------------------------------------------------------- */

/* y = relu(x w), x [n, 6] with an open extent; returns its path. */
static const char *write_model(void) {
    const char *path = test_scratch("model.onnx");
    tn_onnx_export_options o = TN_ONNX_EXPORT_DEFAULTS;
    tn_device *d = NULL;
    assert_ok(tn_device_open("cpu", NULL, NULL, &d));
    assert_ok(tn_set_current_device(d));
    tn_tensor *x = tn_symbolic(numbers(4, 6), 0, 0), *y = tn_relu(tn_matmul(x, numbers(6, 5)));
    assert_ok(tn_onnx_export(path, &(tn_named_tensor){"x", x}, 1, &(tn_named_tensor){"y", y}, 1, &o));
    assert_ok(tn_set_current_device(engine));
    tn_device_close(d);
    return path;
}

static void run_model(tn_onnx *m, int64_t rows, float *out) {
    tn_onnx_value *in = tn_onnx_value_tensor(numbers(rows, 6)), *made = NULL;
    int64_t shape[TN_MAX_RANK];
    assert_ok(tn_onnx_run(m, &in, &made));
    assert_int_equal(tn_onnx_value_shape(made, shape), 2);
    assert_int_equal(shape[0], rows);
    assert_ok(tn_read(tn_onnx_value_get(made), out, (size_t)rows * 5 * sizeof *out));
    tn_onnx_value_free(in);
    tn_onnx_value_free(made);
}

static void model_file_runs_there_with_any_rows(void **state) {
    (void)state;
    if (!open_engine()) return;
    TN_SCOPE;
    float file[30], recorded[30];
    tn_onnx_options o = TN_ONNX_DEFAULTS;
    for (int pass = 0; pass < 2; pass++) {
        tn_onnx *m = NULL;
        o.recorded = pass;
        assert_ok(tn_onnx_open(write_model(), &o, &m));
        for (int64_t rows = 2; rows <= 6; rows += 2)
            run_model(m, rows, pass ? recorded : file);
        tn_onnx_close(m);
    }
    for (int i = 0; i < 30; i++)
        assert_true(fabsf(file[i] - recorded[i]) <= 1e-6f);
}

static void its_errors_come_with_its_words(void **state) {
    (void)state;
    if (!open_engine()) return;
    TN_SCOPE;
    tn_onnx *m = NULL;
    assert_ok(tn_onnx_open(write_model(), NULL, &m));
    tn_onnx_value *in = tn_onnx_value_tensor(tn_zeros((int64_t[]){2, 7}, 2, TN_F32)), *out = NULL;
    assert_int_equal(tn_onnx_run(m, &in, &out), TN_ERR_SHAPE); /* ours: the model's own shape says so */
    assert_null(out);
    tn_onnx_value_free(in);
    tn_onnx_close(m);
    char *bytes, *op;
    size_t size;
    assert_ok(tn_file_read(write_model(), &bytes, &size, 1 << 20));
    for (op = bytes; memcmp(op, "Relu", 4) != 0; op++) {
    }
    op[3] = 'x'; /* an operator that nobody has */
    assert_true(tn_onnx_open_memory(bytes, size, NULL, &m) != TN_OK);
    tn_mem_free(bytes);
    assert_text_has(tn_error(), "ONNX Runtime: CreateSessionFromArray: ");
    assert_text_has(tn_error(), "Relx");
}

static void options_choose_provider_level_and_threads(void **state) {
    (void)state;
    if (!open_engine()) return;
    TN_SCOPE;
    tn_engine_options o = TN_ENGINE_DEFAULTS;
    tn_onnx *m = NULL;
    float out[10];
    assert_true(tn_engine_provider_count(engine) > 0);
    assert_null(tn_engine_provider_at(engine, tn_engine_provider_count(engine)));
    o.provider = "NoSuchProvider";
    assert_ok(tn_engine_set_options(engine, &o));
    assert_true(tn_onnx_open(write_model(), NULL, &m) != TN_OK);
    assert_text_has(tn_error(), "CPUExecutionProvider");
    o.provider = "cpu";
    o.level = TN_ENGINE_LEVEL_NONE;
    o.threads = 1;
    assert_ok(tn_engine_set_options(engine, &o));
    assert_ok(tn_onnx_open(write_model(), NULL, &m));
    run_model(m, 2, out);
    tn_onnx_close(m);
    o.threads = -1;
    assert_int_equal(tn_engine_set_options(engine, &o), TN_ERR_ARGUMENT);
    o.threads = 0;
    o.level = (tn_engine_level)9;
    assert_int_equal(tn_engine_set_options(engine, &o), TN_ERR_ARGUMENT);
    assert_ok(tn_engine_set_options(engine, NULL));
    assert_int_equal(tn_engine_set_options(NULL, NULL), TN_ERR_ARGUMENT);
}

static int close_engine(void **state) {
    (void)tn_set_current_device(NULL);
    tn_device_close(engine);
    return remove_scratch(state);
}

int main(void) {
    find_real_library(&SUBJECT);
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
        TEST(failed_run_is_done_again_by_the_host),
        TEST(weights_that_stay_are_constants_until_they_are_written),
        TEST(indices_that_are_constants_stay_what_they_were),
        TEST(failed_launch_of_a_graph_is_done_again_by_the_host),
        TEST(clamp_with_a_bound_that_is_nan_is_nan),
        TEST(extremes_of_unsigned_numbers_are_scattered),
        TEST(random_numbers_are_those_of_every_device),
        TEST(training_steps_are_the_engines),
        TEST(model_file_runs_there_with_any_rows),
        TEST(its_errors_come_with_its_words),
        TEST(options_choose_provider_level_and_threads),
    };
    return cmocka_run_group_tests(tests, make_scratch, close_engine);
}
