/* test_onnx_export.c — models that are written: what was recorded, exported and read again computes the same.
 *
 * Each case records a network. It is exported, then evaluated, then opened by our own reader and run. With
 * TRUNNION_ONNX_EXPORT naming a folder, the models and what they were computed to stay there, as NAME.onnx and
 * NAME.safetensors, for tools/checks/onnx_export.py to run with ONNX Runtime. */
#include "test_support.h"

#include <math.h>

#include "trunnion/trunnion.h"

enum { MOST = 8 };

typedef struct trial {
    tn_named_tensor in[MOST], out[MOST];
    int in_count, out_count;
    tn_module *root, *net;
    tn_optimizer *optimizer;
    tn_onnx_export_options options;
    int64_t batch, length; /* named extents, at which the model is run a second time */
} trial;

static tn_tensor *numbers(const int64_t *shape, int rank) { return tn_mul_scalar(tn_randn(shape, rank), 0.5); }
#define SHAPE(...) (int64_t[]){__VA_ARGS__}, (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t))
#define NUMBERS(...) numbers(SHAPE(__VA_ARGS__))

static tn_tensor *input(trial *t, const char *name, tn_tensor *x) {
    assert_ok(tn_eval(&x, 1));
    t->in[t->in_count++] = (tn_named_tensor){name, x};
    return x;
}

static void output(trial *t, const char *name, tn_tensor *y) {
    assert_ok(tn_status_of(y));
    t->out[t->out_count++] = (tn_named_tensor){name, y};
}

/* ---- networks ---------------------------------------------------------------------------------------------------- */

/* An input whose first extents have names. */
static tn_tensor *named(trial *t, tn_tensor *x, int extents) {
    static const char *const names[] = {"batch", "length"};
    input(t, "x", x);
    for (int d = 0; d < extents; d++) {
        t->in[0].tensor = tn_symbolic(t->in[0].tensor, d, d);
        t->options.dims[d] = names[d];
    }
    return (tn_tensor *)(uintptr_t)t->in[0].tensor;
}

static void record_mlp(trial *t) {
    t->net = tn_nn_sequential(t->root, "net");
    tn_nn_linear(t->net, "0", 6, 16, true);
    tn_nn_function(t->net, "1", (tn_relu));
    tn_nn_linear(t->net, "2", 16, 3, true);
    output(t, "y", tn_softmax(tn_forward(t->net, named(t, NUMBERS(t->batch, 6), 1)), -1));
}

/* The same with its weights in a file beside it. */
static void record_mlp_beside(trial *t) {
    t->options.external_data = true;
    record_mlp(t);
}

/* Two open extents and their sum, which shapes ask for as well. */
static void record_joined(trial *t) {
    tn_tensor *x = named(t, NUMBERS(t->batch, 3), 1);
    tn_tensor *y = tn_symbolic(input(t, "more", NUMBERS(t->length, 3)), 0, 1);
    t->in[1].tensor = y;
    t->options.dims[1] = "length";
    tn_tensor *both = tn_cat((tn_tensor *[]){x, y}, 2, 0);
    tn_tensor *scores = tn_matmul(both, tn_transpose(both, 0, 1));
    output(t, "joined", both);
    output(t, "y", tn_mul(tn_softmax(scores, -1), tn_cumsum(tn_ones_like(scores), 1)));
    output(t, "seen", tn_reshape(tn_unsqueeze(both, 1), TN_DIMS(t->batch + t->length, 3, 1)));
}

static tn_module *make_cnn(trial *t, bool training) {
    t->net = tn_nn_sequential(t->root, "net");
    tn_nn_conv2d_options o = TN_NN_CONV2D_DEFAULTS;
    o.stride = 2;
    o.padding = 1;
    tn_nn_conv2d(t->net, "0", 3, 8, 3, &o);
    tn_nn_batch_norm2d(t->net, "1", 8, NULL);
    tn_nn_function(t->net, "2", (tn_silu));
    tn_nn_conv2d_options options = TN_NN_CONV2D_DEFAULTS;
    options.groups = 4;
    options.dilation = 2;
    tn_nn_conv2d(t->net, "3", 8, 8, 3, &options);
    tn_module_train(t->net, training);
    return t->net;
}

static void record_cnn(trial *t) {
    tn_module *net = make_cnn(t, false);
    tn_tensor *y = tn_forward(net, named(t, NUMBERS(t->batch, 3, 17, 15), 1));
    tn_tensor *pooled = tn_max_pool2d(y, (int64_t[]){2, 2}, NULL);
    output(t, "pooled", tn_avg_pool2d(pooled, (int64_t[]){2, 1}, NULL));
    output(t, "mean", tn_adaptive_avg_pool2d(y, (int64_t[]){1, 1}));
}

static void record_cnn_training(trial *t) {
    tn_tensor *x = input(t, "x", NUMBERS(2, 3, 17, 15));
    make_cnn(t, true);
    tn_sgd_options o = TN_SGD_DEFAULTS;
    o.lr = 0.1;
    o.momentum = 0.9;
    assert_ok(tn_optimizer_sgd(t->net, &o, &t->optimizer));
    assert_ok(tn_capture_begin());
    tn_max_pool2d_options options = TN_MAX_POOL2D_DEFAULTS;
    options.stride[0] = options.stride[1] = 2;
    options.padding[0] = options.padding[1] = 1;
    tn_tensor *y = tn_max_pool2d(tn_forward(t->net, x), (int64_t[]){3, 3}, &options);
    tn_tensor *loss = tn_mean(tn_square(y), TN_ALL, false);
    assert_ok(tn_minimize(t->optimizer, loss));
    output(t, "loss", loss);
}

static void record_lstm(trial *t) {
    t->net = tn_nn_lstm_cell(t->root, "net", 5, 7);
    tn_tensor *x = input(t, "x", NUMBERS(3, 2, 5));
    tn_tensor *h = input(t, "h", NUMBERS(2, 7)), *c = input(t, "c", NUMBERS(2, 7));
    for (int i = 0; i < 3; i++)
        tn_lstm_cell_forward(t->net, tn_select(x, 0, i), h, c, &h, &c);
    output(t, "h_n", h);
    output(t, "c_n", c);
}

static void record_transformer(trial *t) {
    t->net = tn_nn_transformer_encoder_layer(t->root, "net", 16, 4, NULL);
    tn_module_train(t->net, false);
    output(t, "y", tn_forward(t->net, named(t, NUMBERS(t->batch, t->length, 16), 2)));
}

static tn_tensor *kept(tn_tensor *t) {
    assert_ok(tn_eval(&t, 1));
    return t;
}

/* Positions of a Llama block: grouped queries, rotary embedding, a causal mask, gated feed-forward. */
static void record_llama(trial *t) {
    enum { POSITIONS = 6, WIDTH = 32, HEADS = 4, KEYS = 2, HEAD = 8 };
    tn_tensor *x = input(t, "x", NUMBERS(1, POSITIONS, WIDTH));
    tn_tensor *cosine = input(t, "cos", NUMBERS(POSITIONS, HEAD / 2)),
              *sine = input(t, "sin", NUMBERS(POSITIONS, HEAD / 2));
    tn_tensor *norm = kept(NUMBERS(WIDTH)), *wq = kept(NUMBERS(WIDTH, WIDTH)), *wk = kept(NUMBERS(KEYS * HEAD, WIDTH));
    tn_tensor *wv = kept(NUMBERS(KEYS * HEAD, WIDTH)), *wo = kept(NUMBERS(WIDTH, WIDTH));
    tn_tensor *gate = kept(NUMBERS(48, WIDTH)), *up = kept(NUMBERS(48, WIDTH)), *down = kept(NUMBERS(WIDTH, 48));
    tn_rms_norm_options eps = TN_RMS_NORM_DEFAULTS;
    eps.eps = 1e-5;
    tn_tensor *h = tn_rms_norm(x, SHAPE(WIDTH), norm, &eps);
    tn_tensor *q = tn_transpose(tn_reshape(tn_linear(h, wq, NULL), SHAPE(1, POSITIONS, HEADS, HEAD)), 1, 2);
    tn_tensor *k = tn_transpose(tn_reshape(tn_linear(h, wk, NULL), SHAPE(1, POSITIONS, KEYS, HEAD)), 1, 2);
    tn_tensor *v = tn_transpose(tn_reshape(tn_linear(h, wv, NULL), SHAPE(1, POSITIONS, KEYS, HEAD)), 1, 2);
    tn_scaled_dot_product_attention_options causal = TN_SCALED_DOT_PRODUCT_ATTENTION_DEFAULTS;
    causal.is_causal = true;
    tn_tensor *a = tn_scaled_dot_product_attention(tn_rope(q, cosine, sine, NULL), tn_rope(k, cosine, sine, NULL), v,
                                                   NULL, &causal);
    a = tn_add(x, tn_linear(tn_reshape(tn_transpose(a, 1, 2), SHAPE(1, POSITIONS, WIDTH)), wo, NULL));
    h = tn_rms_norm(a, SHAPE(WIDTH), norm, &eps);
    output(t, "y", tn_add(a, tn_linear(tn_swiglu(tn_linear(h, gate, NULL), tn_linear(h, up, NULL)), down, NULL)));
}

/* Loss, gradients and Adam of a small classifier with an embedding and attention. */
static void record_step(trial *t) {
    t->net = tn_nn_sequential(t->root, "net");
    tn_nn_embedding(t->net, "0", 11, 16);
    tn_nn_transformer_encoder_layer(t->net, "1", 16, 2, NULL);
    tn_nn_linear(t->net, "2", 16, 11, true);
    tn_tensor *ids = input(t, "ids", tn_randint(0, 11, SHAPE(2, 5)));
    tn_tensor *next = input(t, "next", tn_randint(0, 11, SHAPE(10)));
    /* The bias of attention's keys has a gradient of 0, of which rounding leaves 1e-9: eps must be above that. */
    tn_adam_options adam = TN_ADAM_DEFAULTS;
    adam.lr = 0.01;
    adam.eps = 1e-4;
    assert_ok(tn_optimizer_adamw(t->net, &adam, &t->optimizer));
    assert_ok(tn_capture_begin());
    tn_tensor *y = tn_reshape(tn_forward(t->net, ids), SHAPE(10, 11));
    tn_tensor *loss = tn_cross_entropy(y, next, NULL, NULL);
    assert_ok(tn_minimize(t->optimizer, loss));
    output(t, "loss", loss);
}

/* What no network above needs: views that are written, orders, indices, whole numbers. */
static void record_pieces(trial *t) {
    tn_tensor *x = input(t, "x", NUMBERS(3, 4)), *i = input(t, "i", tn_randint(0, 3, SHAPE(2, 4)));
    tn_tensor *copy = tn_add_scalar(x, 1);
    tn_copy_(tn_slice(tn_select(copy, 0, 1), 0, 3, INT64_MIN, -2), tn_slice(tn_select(x, 1, 0), 0, 0, 2, 1));
    output(t, "written", copy);
    output(t, "gathered", tn_gather(x, 0, i));
    output(t, "scattered", tn_scatter_add(x, 0, i, tn_gather(x, 0, i)));
    output(t, "sorted", tn_sort(x, 1, true));
    output(t, "at", tn_argmax(x, TN_ALL, false));
    output(t, "rest", tn_remainder(tn_cumsum(i, 1), tn_add_scalar(i, 2)));
    output(t, "floor", tn_floor_divide(x, tn_abs(x)));
    output(t, "shown", tn_where(tn_gt_scalar(x, 0), tn_log2(tn_exp2(x)), tn_trunc(tn_mul_scalar(x, 7))));
}

/* One line, one number and one place of `x`: what differs there from call to call comes with the run. */
static tn_tensor *moved(const tn_tensor *x, int k) {
    tn_tensor *rows = tn_narrow(x, 0, k, 3), *column = tn_select(rows, 1, k % 4);
    tn_tensor *kept = tn_clamp(tn_mul_scalar(rows, 0.5 + 0.25 * k), -1 - 0.125 * k, 2);
    return tn_add(tn_elu(kept, 0.1 * (k + 1)), tn_unsqueeze(tn_add_scalar(column, k), 1));
}

/* Lines of which it was learned that they vary: the model has the values of this recording, as constants. */
static void record_varying(trial *t) {
    enum { CALLS = 12 };
    tn_tensor *x = input(t, "x", NUMBERS(CALLS + 3, 4));
    tn_runtime_stats before = {.struct_size = sizeof before}, after = {.struct_size = sizeof after};
    assert_ok(tn_get_runtime_stats(&before));
    for (int k = 0; k < CALLS; k++) {
        tn_tensor *y = moved(x, k);
        assert_ok(tn_eval(&y, 1));
    }
    assert_ok(tn_get_runtime_stats(&after));
    assert_true(after.plans_made - before.plans_made < CALLS); /* else nothing varies here */
    output(t, "moved", moved(x, 5));
    output(t, "product", tn_matmul(moved(x, 7), tn_transpose(moved(x, 2), 0, 1)));
}

/* Operators that lack a type: these are cast before and behind them. All numbers are small whole ones. */
static void record_narrow_types(trial *t) {
    tn_tensor *x = input(t, "x", tn_round(tn_mul_scalar(NUMBERS(1, 2, 5, 4), 8)));
    tn_tensor *b = tn_cast(x, TN_BF16), *v = tn_gt_scalar(x, 0), *w = tn_flip(v, TN_DIMS(2));
    tn_tensor *u = tn_cast(tn_abs(x), TN_U8), *filters = tn_cast(tn_full(SHAPE(3, 2, 2, 2), 2, TN_F32), TN_BF16);
    output(t, "pooled", tn_cast(tn_max_pool2d(b, (int64_t[]){2, 2}, NULL), TN_F32));
    output(t, "conv", tn_cast(tn_conv2d(b, filters, NULL, NULL), TN_F32));
    output(t, "best", tn_cast(tn_topk(tn_round(b), 2, 3, true), TN_F32));
    output(t, "or", tn_cast(tn_add(v, w), TN_F32));
    output(t, "less", tn_cast(tn_lt(tn_maximum(v, w), tn_mul(v, w)), TN_F32));
    output(t, "first", tn_argmax(v, TN_DIMS(3), false));
    output(t, "negative", tn_cast(tn_neg(u), TN_F32));
    output(t, "product", tn_cast(tn_matmul(u, tn_transpose(u, 2, 3)), TN_F32));
}

/* ---- the comparison ---------------------------------------------------------------------------------------------- */

static tn_tensor *same_type(const tn_tensor *t) { return tn_cast(t, TN_F64); }

static double worst(const tn_tensor *a, const tn_tensor *b) {
    tn_tensor *x = same_type(a), *y = same_type(b);
    double top = tn_item(tn_amax(tn_abs(y), TN_ALL, false));
    return tn_item(tn_amax(tn_abs(tn_sub(x, y)), TN_ALL, false)) / (top > 1 ? top : 1);
}

static void compare_again(const trial *t, const char *path, const char *name) {
    tn_onnx *m = NULL;
    tn_onnx_value *in[MOST] = {0}, *out[64] = {0};
    assert_ok(tn_onnx_open(path, NULL, &m));
    assert_int_equal(tn_onnx_input_count(m), t->in_count);
    assert_true(tn_onnx_output_count(m) >= t->out_count && tn_onnx_output_count(m) <= 64);
    for (int i = 0; i < t->in_count; i++)
        in[i] = tn_onnx_value_tensor((tn_tensor *)(uintptr_t)t->in[i].tensor);
    assert_ok(tn_onnx_run(m, in, out));
    for (int i = 0; i < tn_onnx_output_count(m); i++) {
        tn_onnx_info info = {.struct_size = sizeof info};
        assert_ok(tn_onnx_output_at(m, i, &info));
        const tn_tensor *want = i < t->out_count ? t->out[i].tensor : NULL;
        char state[128];
        snprintf(state, sizeof state, "%.*s", (int)strlen(info.name) - 4, info.name);
        if (!want) want = tn_module_variable(t->net, state);
        if (!want) continue; /* an optimiser's */
        double error = worst(tn_onnx_value_get(out[i]), want);
        if (!(error <= 1e-5)) fail_msg("%s: %s differs by %g", name, info.name, error);
    }
    for (int i = 0; i < 64; i++)
        tn_onnx_value_free(out[i]);
    for (int i = 0; i < t->in_count; i++)
        tn_onnx_value_free(in[i]);
    tn_onnx_close(m);
}

enum { MOST_EXPECTED = 128 };

static int add_expected(tn_named_tensor *all, char (*names)[128], int n, const char *format, const char *name,
                        const tn_tensor *t) {
    assert_true(n < MOST_EXPECTED);
    snprintf(names[n], sizeof names[n], format, name);
    all[n] = (tn_named_tensor){names[n], t};
    return n + 1;
}

static void save_expected(const trial *t, const char *path) {
    tn_named_tensor all[MOST_EXPECTED];
    static char names[MOST_EXPECTED][128];
    tn_variable *variables = NULL;
    int count = 0, n = 0;
    if (t->optimizer) assert_ok(tn_module_variables(t->net, &variables, &count));
    for (int i = 0; i < t->in_count; i++)
        n = add_expected(all, names, n, "in:%s", t->in[i].name, t->in[i].tensor);
    for (int i = 0; i < t->out_count; i++)
        n = add_expected(all, names, n, "out:%s", t->out[i].name, tn_contiguous(t->out[i].tensor));
    for (int i = 0; i < count; i++)
        n = add_expected(all, names, n, "out:%s_out", variables[i].name, variables[i].tensor);
    assert_ok(tn_safetensors_save(path, all, n, NULL, 0));
    tn_variables_free(variables);
}

static void export_trial(trial *t, const char *path) {
    tn_variable *variables = NULL;
    tn_named_tensor weights[MOST_EXPECTED];
    int count = 0;
    if (t->net) assert_ok(tn_module_variables(t->net, &variables, &count));
    for (int i = 0; i < count && i < MOST_EXPECTED; i++)
        weights[i] = (tn_named_tensor){variables[i].name, variables[i].tensor};
    t->options.weights = weights;
    t->options.weight_count = count;
    assert_ok(tn_onnx_export(path, t->in, t->in_count, t->out, t->out_count, &t->options));
    tn_variables_free(variables);
}

static void evaluate(trial *t) {
    tn_tensor *outputs[MOST];
    tn_graph *step = NULL;
    for (int i = 0; i < t->out_count; i++)
        outputs[i] = (tn_tensor *)(uintptr_t)t->out[i].tensor;
    if (t->optimizer)
        assert_ok(tn_capture_end(NULL, 0, outputs, t->out_count, &step));
    else
        assert_ok(tn_eval(outputs, t->out_count));
    tn_graph_free(step);
}

/* The first time exports; the second time has the same weights and other extents. */
static void run_trial(void (*record)(trial *t), const char *name, bool again) {
    const char *folder = getenv("TRUNNION_ONNX_EXPORT");
    char model[512], expected[512];
    snprintf(model, sizeof model, "%s/%s.onnx", folder ? folder : scratch_folder, name);
    snprintf(expected, sizeof expected, "%s/%s%s.safetensors", folder ? folder : scratch_folder, name,
             again ? "+again" : "");
    tn_manual_seed(7);
    trial t = {.options = TN_ONNX_EXPORT_DEFAULTS, .batch = again ? 3 : 2, .length = again ? 9 : 5};
    t.root = tn_module_root();
    {
        TN_SCOPE;
        record(&t);
        if (!again) export_trial(&t, model);
        evaluate(&t);
        if (folder) save_expected(&t, expected);
        compare_again(&t, model, name);
    }
    tn_optimizer_free(t.optimizer);
    tn_module_free(t.root);
    if (!again && t.options.dims[0]) run_trial(record, name, true);
}

/* Every allocation fails in its turn; the same recording can be exported afterwards, and computes the same. */
static void export_in_spite_of_failures(void (*record)(trial *t), const char *name) {
    const char *path = test_scratch("failing.onnx");
    tn_manual_seed(7);
    trial t = {.options = TN_ONNX_EXPORT_DEFAULTS, .batch = 2, .length = 5};
    t.root = tn_module_root();
    {
        TN_SCOPE;
        tn_status s = TN_ERR_MEMORY;
        record(&t);
        for (int64_t n = 1; s != TN_OK; n += 1 + n / 16) {
            tn_mem_fail_at(n);
            s = tn_onnx_export(path, t.in, t.in_count, t.out, t.out_count, &t.options);
            tn_mem_fail_at(0);
            if (s == TN_OK) break;
            if (s != TN_ERR_MEMORY) fail_msg("%s, after allocation %d failed: %s", name, (int)n, tn_error());
            assert_int_not_equal(access(path, F_OK), 0);
        }
        evaluate(&t);
        compare_again(&t, path, name);
        remove(path);
    }
    tn_optimizer_free(t.optimizer);
    tn_module_free(t.root);
}

static void failing_allocations_leave_no_file_and_the_recording(void **state) {
    (void)state;
#define EXPORT(name) export_in_spite_of_failures(record_##name, #name);
    EXPORT(mlp_beside)
    EXPORT(joined)
    EXPORT(cnn_training)
    EXPORT(lstm)
    EXPORT(transformer)
    EXPORT(llama)
    EXPORT(step)
    EXPORT(pieces)
    EXPORT(varying)
    EXPORT(narrow_types)
#undef EXPORT
}

/* Each allocation while weights are written, also those that are decoded first. */
static void failing_allocations_while_weights_are_written_are_clean(void **state) {
    (void)state;
    enum { ROWS = 2, WIDTH = 32, BLOCK = 34 };
    const char *path = test_scratch("failing.onnx");
    const uint8_t blocks[ROWS * BLOCK] = {0};
    TN_SCOPE;
    tn_tensor *x = tn_ones(SHAPE(ROWS, WIDTH), TN_F32), *w = tn_from_data(blocks, SHAPE(ROWS, WIDTH), TN_Q8_0);
    tn_tensor *bias = tn_ones(SHAPE(ROWS), TN_F32);
    tn_status s = TN_ERR_MEMORY;
    assert_ok(tn_eval((tn_tensor *[]){x, w, bias}, 3));
    tn_named_tensor in = {"x", x}, out = {"y", tn_linear(x, w, bias)};
    for (int64_t n = 1; s != TN_OK; n++) {
        tn_mem_fail_at(n);
        s = tn_onnx_export(path, &in, 1, &out, 1, NULL);
        tn_mem_fail_at(0);
        assert_true(s == TN_OK || s == TN_ERR_MEMORY);
    }
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

static void what_cannot_be_exported_is_named(void **state) {
    (void)state;
    const char *path = test_scratch("refused.onnx");
    TN_SCOPE;
    tn_tensor *x = tn_ones(SHAPE(2, 2), TN_F32);
    assert_ok(tn_eval(&x, 1));
    tn_named_tensor in = {"x", x}, out = {"y", tn_add(x, tn_rand(SHAPE(2, 2)))};
    assert_int_equal(tn_onnx_export(path, &in, 1, &out, 1, NULL), TN_ERR_UNSUPPORTED);
    assert_text_has(tn_error(), "random");
    assert_text_has(tn_error(), "test_onnx_export.c");
    out.tensor = tn_exp(x);
    assert_true(isfinite(tn_item(tn_sum(out.tensor, TN_ALL, false))));
    assert_int_equal(tn_onnx_export(path, &in, 1, &out, 1, NULL), TN_ERR_STATE);
    assert_text_has(tn_error(), "before reading");
    out = (tn_named_tensor){"x", tn_exp(x)};
    assert_int_equal(tn_onnx_export(path, &in, 1, &out, 1, NULL), TN_ERR_ARGUMENT);
    assert_text_has(tn_error(), "two names");
    out.name = "_v0";
    assert_int_equal(tn_onnx_export(path, &in, 1, &out, 1, NULL), TN_ERR_ARGUMENT);
    assert_int_not_equal(access(path, F_OK), 0);
}

/* x times w and tanh, again and again. */
static tn_tensor *deep(const tn_tensor *x, const tn_tensor *w, int times) {
    tn_tensor *y = tn_mul(x, w);
    for (int i = 0; i < times; i++)
        y = i % 2 ? tn_mul(y, w) : tn_tanh(y);
    return y;
}

/* Opens what was exported and runs it with another x than it was exported with. */
static void expect_follows_input(const char *path, const tn_tensor *w, int times) {
    tn_onnx *m = NULL;
    tn_onnx_value *result = NULL, *given;
    float want[4], got[4];
    tn_tensor *x = tn_from_data((float[]){-0.5F, 0.25F, 2, -3}, SHAPE(2, 2), TN_F32);
    assert_ok(tn_read(deep(x, w, times), want, sizeof want));
    assert_ok(tn_onnx_open(path, NULL, &m));
    given = tn_onnx_value_tensor(x);
    assert_ok(tn_onnx_run(m, &given, &result));
    assert_ok(tn_read(tn_onnx_value_get(result), got, sizeof got));
    assert_memory_equal(got, want, sizeof want);
    tn_onnx_value_free(result);
    tn_onnx_value_free(given);
    tn_onnx_close(m);
}

/* A value that was computed before the export must not silently take the place of what depends on an input. */
static void values_computed_before_the_export_do_not_become_constants(void **state) {
    (void)state;
    enum { TIMES = 20, MANY = 5000 };
    const char *path = test_scratch("before.onnx");
    TN_SCOPE;
    tn_tensor *x = tn_ones(SHAPE(2, 2), TN_F32), *w = tn_full(SHAPE(2, 2), 1.5, TN_F32);
    assert_ok(tn_eval((tn_tensor *[]){x, w}, 2));
    tn_tensor *half = deep(x, w, TIMES);
    assert_ok(tn_eval(&half, 1));
    tn_named_tensor in = {"x", x}, out = {"y", tn_tanh(half)};
    assert_int_equal(tn_onnx_export(path, &in, 1, &out, 1, NULL), TN_ERR_STATE);
    assert_text_has(tn_error(), "do not read input 'x'");
    assert_ok(tn_onnx_export(path, NULL, 0, &out, 1, NULL)); /* as the constant that it is then */

    remove(path);
    out.tensor = deep(x, w, MANY); /* evaluated in pieces */
    assert_int_equal(tn_onnx_export(path, &in, 1, &out, 1, NULL), TN_ERR_STATE);
    assert_text_has(tn_error(), "tn_capture_begin");
    assert_int_not_equal(access(path, F_OK), 0);
    tn_graph *g = NULL;
    assert_ok(tn_capture_begin());
    out.tensor = deep(x, w, MANY);
    assert_ok(tn_onnx_export(path, &in, 1, &out, 1, NULL));
    assert_ok(tn_capture_end(NULL, 0, (tn_tensor *[]){(tn_tensor *)(uintptr_t)out.tensor}, 1, &g));
    tn_graph_free(g);
    expect_follows_input(path, w, MANY);

    tn_tensor *trained = tn_full(SHAPE(2, 2), 1.5, TN_F32); /* gradients keep what was evaluated */
    assert_ok(tn_set_requires_grad(trained, true));
    half = deep(x, trained, TIMES);
    assert_ok(tn_eval(&half, 1));
    out.tensor = half;
    assert_ok(tn_onnx_export(path, &in, 1, &out, 1, NULL));
    expect_follows_input(path, w, TIMES);
    out.tensor = deep(x, trained, MANY);
    assert_ok(tn_onnx_export(path, &in, 1, &out, 1, NULL));
    expect_follows_input(path, w, MANY);
}

static void an_operation_that_failed_in_place_is_not_left_out(void **state) {
    (void)state;
    const char *path = test_scratch("left_out.onnx");
    TN_SCOPE;
    tn_tensor *x = tn_ones(SHAPE(2, 2), TN_F32);
    assert_ok(tn_eval(&x, 1));
    tn_named_tensor in = {"x", x}, out = {"y", tn_exp(x)};
    (void)tn_add_((tn_tensor *)(uintptr_t)out.tensor, tn_ones(SHAPE(3), TN_F32));
    assert_int_equal(tn_onnx_export(path, &in, 1, &out, 1, NULL), TN_ERR_SHAPE);
    assert_int_not_equal(access(path, F_OK), 0);
}

#define TRIAL(name)                                \
    static void name##_is_exported(void **state) { \
        (void)state;                               \
        run_trial(record_##name, #name, false);    \
    }
TRIAL(mlp)
TRIAL(mlp_beside)
TRIAL(joined)
TRIAL(cnn)
TRIAL(cnn_training)
TRIAL(lstm)
TRIAL(transformer)
TRIAL(llama)
TRIAL(step)
TRIAL(pieces)
TRIAL(varying)
TRIAL(narrow_types)

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mlp_is_exported),
        cmocka_unit_test(mlp_beside_is_exported),
        cmocka_unit_test(joined_is_exported),
        cmocka_unit_test(cnn_is_exported),
        cmocka_unit_test(cnn_training_is_exported),
        cmocka_unit_test(lstm_is_exported),
        cmocka_unit_test(transformer_is_exported),
        cmocka_unit_test(llama_is_exported),
        cmocka_unit_test(step_is_exported),
        cmocka_unit_test(pieces_is_exported),
        cmocka_unit_test(varying_is_exported),
        cmocka_unit_test(narrow_types_is_exported),
        cmocka_unit_test(what_cannot_be_exported_is_named),
        cmocka_unit_test(values_computed_before_the_export_do_not_become_constants),
        cmocka_unit_test(an_operation_that_failed_in_place_is_not_left_out),
        cmocka_unit_test(failing_allocations_leave_no_file_and_the_recording),
        cmocka_unit_test(failing_allocations_while_weights_are_written_are_clean),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
