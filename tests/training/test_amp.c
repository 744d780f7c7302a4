/* test_amp.c — mixed precision: autocast chooses PyTorch's precision; the gradient scaler has GradScaler's history
 * (tests/golden/amp.h), skips steps as a whole, also in captured steps and on every device; training reaches the loss
 * of f32. */
#include "test_support.h"

#include <math.h>

#include "tensor/graph.h"
#include "tests/golden/amp.h"
#include "trunnion/trunnion.h"

/* ---- autocast ---------------------------------------------------------------------------------------------------- */

static bool is_listed(const char *const *list, size_t count, const char *name) {
    for (size_t i = 0; i < count; i++)
        if (strcmp(list[i], name) == 0) return true;
    return false;
}

/* PyTorch's name of an op that its lists have under another one. */
static const char *pytorchs_name(const char *name) {
    static const char *const names[][2] = {
        {"pow_scalar", "pow"},         /* an overload */
        {"rdiv_scalar", "reciprocal"}, /* Tensor.__rdiv__ is reciprocal times a number */
        {"gemm", "addmm"},             /* ONNX's */
        {"gemv", "addmv"},
        {"cross_entropy", "nll_loss"},                                /* composed of log_softmax and nll_loss */
        {"binary_cross_entropy", "binary_cross_entropy_with_logits"}, /* PyTorch refuses it under autocast */
    };
    for (size_t i = 0; i < TN_COUNT(names); i++)
        if (strcmp(names[i][0], name) == 0) return names[i][1];
    return name;
}

static void op_lists_are_pytorchs(void **state) {
    (void)state;
    int low = 0, f32 = 0;
    for (int i = 0; i < tn_op_count(); i++) {
        const tn_op_row *row = tn_op(i);
        const char *name = pytorchs_name(row->name);
        tn_autocast_class expected = TN_AUTOCAST_NONE;
        if (is_listed(golden_autocast_low, TN_COUNT(golden_autocast_low), name)) expected = TN_AUTOCAST_LOW;
        if (is_listed(golden_autocast_f32, TN_COUNT(golden_autocast_f32), name)) expected = TN_AUTOCAST_F32;
        if (row->autocast != expected) fail_msg("%s: class %d, PyTorch's is %d", row->name, row->autocast, expected);
        low += expected == TN_AUTOCAST_LOW;
        f32 += expected == TN_AUTOCAST_F32;
    }
    assert_true(low >= 14 && f32 >= 38);
}

static void autocast_chooses_dtypes(void **state) {
    (void)state;
    static const tn_dtype lows[] = {TN_F16, TN_BF16};
    for (size_t k = 0; k < TN_COUNT(lows); k++) {
        tn_dtype low = lows[k];
        TN_SCOPE;
        tn_tensor *x = tn_ones(TN_DIMS(4, 8), TN_F32), *w = tn_ones(TN_DIMS(3, 8), TN_F32);
        tn_tensor *bias = tn_ones(TN_DIMS(3), TN_F32), *wide = tn_ones(TN_DIMS(8, 8), TN_F64);
        TN_AUTOCAST(low);
        assert_int_equal(tn_autocast_dtype(), low);
        tn_tensor *y = tn_linear(x, w, bias);
        assert_int_equal(tn_dtype_of(y), low);
        assert_int_equal(tn_dtype_of(tn_relu(y)), low);
        assert_int_equal(tn_dtype_of(tn_add(y, bias)), TN_F32); /* promotion */
        assert_int_equal(tn_dtype_of(tn_softmax(y, 1)), TN_F32);
        assert_int_equal(tn_dtype_of(tn_sum(y, TN_ALL, false)), TN_F32);
        assert_int_equal(tn_dtype_of(tn_layer_norm(y, TN_DIMS(3), NULL, NULL, NULL)), TN_F32);
        assert_int_equal(tn_dtype_of(tn_matmul(wide, wide)), TN_F64);
        assert_int_equal(tn_dtype_of(tn_sum(tn_cast(x, TN_I32), TN_ALL, false)), TN_I64);
        assert_true(tn_item(tn_sum(y, TN_ALL, false)) == 4 * 3 * 9);
        {
            TN_AUTOCAST(TN_F32);
            assert_int_equal(tn_dtype_of(tn_linear(x, w, bias)), TN_F32);
            assert_int_equal(tn_dtype_of(tn_exp(tn_cast(x, low))), low);
        }
        assert_int_equal(tn_dtype_of(tn_linear(x, w, bias)), low);
    }
    assert_int_equal(tn_autocast_dtype(), TN_F32);
}

static void a_wrong_dtype_fails_the_products(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = tn_ones(TN_DIMS(2, 2), TN_F32);
    TN_AUTOCAST(TN_I8);
    assert_int_equal(tn_status_of(tn_matmul(x, x)), TN_ERR_DTYPE);
    assert_text_has(tn_error(), "TN_F16 or TN_BF16");
    assert_ok(tn_status_of(tn_add(x, x)));
}

static void quantized_weights_keep_their_input(void **state) {
    (void)state;
    TN_SCOPE;
    static const unsigned char blocks[3 * 34]; /* q8_0: three rows of zeros */
    tn_tensor *x = tn_ones(TN_DIMS(2, 32), TN_F32), *w = tn_from_data(blocks, TN_DIMS(3, 32), TN_Q8_0);
    TN_AUTOCAST(TN_F16);
    tn_tensor *y = tn_linear(x, w, NULL);
    assert_ok(tn_status_of(y));
    assert_int_equal(tn_dtype_of(y), TN_F32);
}

/* Products of a row and a column that f16 cannot represent, and that f32 sums can. */
static void products_accumulate_in_f32(void **state) {
    (void)state;
    enum { N = 4096 };
    TN_SCOPE;
    tn_tensor *x = tn_full(TN_DIMS(1, N), 1, TN_F32), *y = tn_full(TN_DIMS(N, 1), 1 + 1.0 / 1024, TN_F32);
    TN_AUTOCAST(TN_F16);
    assert_true(tn_item(tn_matmul(x, y)) == 4100); /* in f16, sums stay at 2048 */
}

static void parameters_get_f32_gradients(void **state) {
    (void)state;
    tn_module *root = tn_module_root();
    tn_module *net = tn_nn_linear(root, "0", 8, 3, true);
    assert_ok(tn_module_status(root));
    {
        TN_SCOPE;
        tn_tensor *loss;
        {
            TN_AUTOCAST(TN_F16);
            tn_tensor *y = tn_forward(net, tn_ones(TN_DIMS(4, 8), TN_F32));
            loss = tn_mean(tn_mul(y, y), TN_ALL, false);
        }
        assert_ok(tn_backward(loss));
        tn_tensor *g = tn_grad(tn_module_variable(root, "0.weight"));
        assert_non_null(g);
        assert_int_equal(tn_dtype_of(g), TN_F32);
        assert_true(tn_item(tn_all(tn_isfinite(g), TN_ALL, false)) == 1);
    }
    tn_module_free(root);
}

/* ---- the problem of tools/pytorch/torch_amp.py ------------------------------------------------------------------- */

static const float start[2][3] = {{0.5F, -1.25F, 2.0F}, {0.75F, -0.1F}};
static const float a_of[2][3] = {{1.0F, 0.5F, 2.0F}, {3.0F, 0.25F}};
static const float b_of[2][3] = {{0.3F, -0.7F, 1.1F}, {-0.2F, 0.9F}};
static const int64_t extents[2] = {3, 2};

typedef struct problem {
    tn_module *root;
    tn_tensor *w[2];
    tn_optimizer *optimizer;
    tn_graph *graph; /* NULL: not captured yet */
} problem;

typedef enum kind {
    SGD,
    SGD_MOMENTUM,
    SGD_DAMPENED,
    ADAM,
    ADAM_CLIPPED,
    ADAM_AMSGRAD,
    ADAMW,
    RMSPROP,
    ADAGRAD,
    LION,
    LAMB,
    ADAFACTOR,
    KINDS
} kind;

static tn_optimizer *optimizer_new(tn_module *root, kind k) {
    tn_optimizer *o = NULL;
    tn_sgd_options sgd = TN_SGD_DEFAULTS;
    sgd.momentum = k == SGD ? 0 : 0.9;
    sgd.dampening = k == SGD_DAMPENED ? 0.3 : 0;
    tn_adam_options adam = TN_ADAM_DEFAULTS, adamw = TN_ADAMW_DEFAULTS;
    if (k == ADAM_CLIPPED) adam.max_grad_norm = 0.5;
    if (k <= SGD_DAMPENED) assert_ok(tn_optimizer_sgd(root, &sgd, &o));
    adam.amsgrad = k == ADAM_AMSGRAD;
    tn_rmsprop_options rmsprop = TN_RMSPROP_DEFAULTS;
    rmsprop.centered = true;
    rmsprop.momentum = 0.9;
    tn_adagrad_options adagrad = TN_ADAGRAD_DEFAULTS;
    adagrad.lr_decay = 0.1;
    if (k == RMSPROP) assert_ok(tn_optimizer_rmsprop(root, &rmsprop, &o));
    if (k == ADAGRAD) assert_ok(tn_optimizer_adagrad(root, &adagrad, &o));
    if (k == LION) assert_ok(tn_optimizer_lion(root, NULL, &o));
    if (k == ADAFACTOR) assert_ok(tn_optimizer_adafactor(root, NULL, &o));
    if (k == LAMB) assert_ok(tn_optimizer_lamb(root, NULL, &o));
    if (k >= ADAM && k <= ADAM_AMSGRAD) assert_ok(tn_optimizer_adam(root, &adam, &o));
    if (k == ADAMW) assert_ok(tn_optimizer_adamw(root, &adamw, &o));
    return o;
}

static problem problem_new(kind k, const tn_grad_scaler_options *scaling) {
    problem p = {.root = tn_module_root()};
    {
        TN_SCOPE;
        p.w[0] = tn_module_add_parameter(p.root, "first", tn_from_data(start[0], &extents[0], 1, TN_F32));
        p.w[1] = tn_module_add_parameter(p.root, "second", tn_from_data(start[1], &extents[1], 1, TN_F32));
    }
    assert_ok(tn_module_status(p.root));
    p.optimizer = optimizer_new(p.root, k);
    assert_ok(tn_optimizer_set_grad_scaler(p.optimizer, scaling));
    return p;
}

static void problem_free(problem *p) {
    tn_graph_free(p->graph);
    tn_optimizer_free(p->optimizer);
    tn_module_free(p->root);
}

/* factor: a number that comes with each step; infinity overflows the gradients. */
static tn_tensor *problem_loss(const problem *p, const tn_tensor *factor) {
    tn_tensor *loss = NULL;
    for (int i = 0; i < 2; i++) {
        tn_tensor *a = tn_from_data(a_of[i], &extents[i], 1, TN_F32),
                  *b = tn_from_data(b_of[i], &extents[i], 1, TN_F32);
        tn_tensor *square = tn_mul(tn_mul(tn_mul(a, tn_scalar(0.5)), p->w[i]), p->w[i]);
        tn_tensor *part = tn_sum(tn_add(square, tn_mul(b, tn_sin(p->w[i]))), TN_ALL, false);
        loss = loss ? tn_add(loss, part) : part;
    }
    return tn_mul(loss, factor);
}

static void problem_read(const problem *p, float out[5]) {
    assert_ok(tn_read(p->w[0], out, 3 * sizeof *out));
    assert_ok(tn_read(p->w[1], out + 3, 2 * sizeof *out));
}

typedef enum way { TOGETHER, SEPARATE, UNSCALED, CAPTURED, WAYS } way;

static void problem_step(problem *p, way how, double factor) {
    TN_SCOPE;
    float value = (float)factor;
    tn_tensor *in = tn_from_data(&value, NULL, 0, TN_F32);
    if (p->graph) {
        assert_ok(tn_graph_launch(p->graph, &in, NULL));
        return;
    }
    if (how == CAPTURED) assert_ok(tn_capture_begin());
    tn_tensor *loss = problem_loss(p, in);
    if (how == TOGETHER || how == CAPTURED) {
        assert_ok(tn_minimize(p->optimizer, loss));
    } else {
        tn_optimizer_zero_grad(p->optimizer);
        assert_ok(tn_backward(tn_optimizer_scale_loss(p->optimizer, loss)));
        if (how == UNSCALED) assert_ok(tn_optimizer_unscale(p->optimizer));
        assert_ok(tn_optimizer_step(p->optimizer));
    }
    if (how == CAPTURED) assert_ok(tn_capture_end(&in, 1, NULL, 0, &p->graph));
}

static bool overflows(int step) {
    for (int i = 0; i < GOLDEN_OVERFLOWS; i++)
        if (golden_overflows[i] == step) return true;
    return false;
}

/* ---- GradScaler's history ---------------------------------------------------------------------------------------- */

static double rate(int step) {
    tn_schedule s = TN_SCHEDULE_DEFAULTS;
    s.kind = TN_SCHEDULE_COSINE;
    s.lr = 0.1;
    s.final_lr = 0.01;
    s.total = 20;
    return tn_schedule_at(&s, step % 20);
}

#define SCALER(...) \
    &(const tn_grad_scaler_options) { TN_OPTIONS_SIZE(tn_grad_scaler_options, growth_interval), __VA_ARGS__ }

static const struct {
    const char *name;
    kind kind;
    const tn_grad_scaler_options *scaling;
    const double (*expected)[GOLDEN_FIELDS];
} runs[] = {
    {"defaults", SGD_MOMENTUM, NULL, golden_defaults},
    {"growing", ADAM, SCALER(65536, 2, 0.5, 4), golden_growing},
    {"factors", ADAMW, SCALER(1000, 3, 0.25, 3), golden_factors},
    {"too large", ADAM, SCALER(0x1p127, 2, 0.5, 2), golden_too_large},
    {"dampened", SGD_DAMPENED, SCALER(65536, 2, 0.5, 1), golden_dampened},
};

static double growth_tracker(const tn_optimizer *o) {
    tn_variable *items;
    int count;
    double value = NAN;
    assert_ok(tn_optimizer_variables(o, &items, &count));
    for (int i = 0; i < count; i++)
        if (strcmp(items[i].name, "grad_scaler.growth_tracker") == 0) value = tn_item(items[i].tensor);
    tn_variables_free(items);
    return value;
}

static void the_scale_has_gradscalers_history(void **state) {
    (void)state;
    for (size_t r = 0; r < TN_COUNT(runs); r++)
        for (int how = 0; how < WAYS; how++) {
            problem p = problem_new(runs[r].kind, runs[r].scaling);
            int64_t skipped = 0;
            for (int step = 0; step < GOLDEN_STEPS; step++) {
                const double *expected = runs[r].expected[step];
                double before = tn_optimizer_loss_scale(p.optimizer);
                float got[5];
                tn_optimizer_set_lr(p.optimizer, rate(step));
                problem_step(&p, (way)how, overflows(step + 1) ? INFINITY : 1);
                double scale = tn_optimizer_loss_scale(p.optimizer), tracker = growth_tracker(p.optimizer);
                if (scale != (double)(float)expected[0] || tracker != expected[1])
                    fail_msg("%s, way %d, step %d: scale %.9g, tracker %g; PyTorch has %.9g, %g", runs[r].name, how,
                             step + 1, scale, tracker, expected[0], expected[1]);
                skipped += scale < before;
                problem_read(&p, got);
                for (int i = 0; i < 5; i++)
                    if (fabs((double)got[i] - expected[2 + i]) > 2e-6 * (1 + fabs(expected[2 + i])))
                        fail_msg("%s, way %d, step %d, number %d: %.9g, PyTorch has %.9g", runs[r].name, how, step + 1,
                                 i, (double)got[i], expected[2 + i]);
            }
            assert_int_equal(tn_optimizer_skipped_steps(p.optimizer), skipped);
            assert_int_equal(tn_optimizer_steps(p.optimizer, 1), GOLDEN_STEPS - skipped);
            problem_free(&p);
        }
}

/* ---- skipped steps ----------------------------------------------------------------------------------------------- */

/* Weights, the optimizer's memory but for the scaler, and counts have the same bits. */
static void assert_same(const problem *a, const problem *b, const char *what) {
    tn_variable *x, *y;
    int m, n;
    float one[5], other[5];
    problem_read(a, one);
    problem_read(b, other);
    if (memcmp(one, other, sizeof one) != 0) fail_msg("%s: the weights differ", what);
    assert_ok(tn_optimizer_variables(a->optimizer, &x, &m));
    assert_ok(tn_optimizer_variables(b->optimizer, &y, &n));
    assert_int_equal(m, n);
    for (int i = 0; i < m; i++) {
        if (strncmp(x[i].name, "grad_scaler.", 12) == 0) continue;
        assert_ok(tn_read(x[i].tensor, one, (size_t)tn_numel(x[i].tensor) * sizeof *one));
        assert_ok(tn_read(y[i].tensor, other, (size_t)tn_numel(y[i].tensor) * sizeof *other));
        if (memcmp(one, other, (size_t)tn_numel(x[i].tensor) * sizeof *one) != 0)
            fail_msg("%s: %s differs", what, x[i].name);
    }
    for (int i = 0; i < 2; i++)
        assert_int_equal(tn_optimizer_steps(a->optimizer, i), tn_optimizer_steps(b->optimizer, i));
    tn_variables_free(x);
    tn_variables_free(y);
}

/* With overflows at steps 3, 7 and 8 the run is that without these steps, bit for bit, recorded or captured. Twice the
 * interval between halvings the scale stays within powers of two, so no gradient is rounded. */
static void skipped_steps_leave_no_trace(void **state) {
    (void)state;
    for (int k = 0; k < KINDS; k++)
        for (int how = 0; how < WAYS; how++) {
            problem with = problem_new((kind)k, NULL), without = problem_new((kind)k, NULL);
            for (int step = 1; step <= 12; step++) {
                bool bad = step == 3 || step == 7 || step == 8;
                double scale = tn_optimizer_loss_scale(with.optimizer);
                problem_step(&with, (way)how, bad ? (step == 7 ? NAN : INFINITY) : 1);
                if (!bad) problem_step(&without, TOGETHER, 1);
                assert_true(tn_optimizer_loss_scale(with.optimizer) == (bad ? scale / 2 : scale));
                char what[64];
                snprintf(what, sizeof what, "optimizer %d, way %d, step %d", k, how, step);
                assert_same(&with, &without, what);
            }
            assert_int_equal(tn_optimizer_skipped_steps(with.optimizer), 3);
            assert_int_equal(tn_optimizer_steps(with.optimizer, 0), 9);
            problem_free(&with);
            problem_free(&without);
        }
}

/* A parameter that takes part in some steps only has its own count, and so its own bias corrections. */
static void parameters_that_join_later_count_their_own_steps(void **state) {
    (void)state;
    problem p = problem_new(ADAM, NULL), alone = problem_new(ADAM, NULL);
    static const struct {
        double factor;
        bool both;
    } steps[] = {{INFINITY, false}, {1, false}, {1, true}, {INFINITY, true}, {1, true}, {1, false}, {1, true}};
    int first = 0, second = 0;
    for (size_t i = 0; i < TN_COUNT(steps); i++) {
        TN_SCOPE;
        tn_tensor *loss = tn_mul(tn_sum(tn_mul(p.w[0], p.w[0]), TN_ALL, false), tn_scalar(steps[i].factor));
        if (steps[i].both) {
            tn_tensor *square = tn_sum(tn_mul(p.w[1], p.w[1]), TN_ALL, false);
            loss = tn_add(loss, square);
            if (isfinite(steps[i].factor))
                assert_ok(tn_minimize(alone.optimizer, tn_sum(tn_mul(alone.w[1], alone.w[1]), TN_ALL, false)));
        }
        assert_ok(tn_minimize(p.optimizer, loss));
        first += isfinite(steps[i].factor);
        second += isfinite(steps[i].factor) && steps[i].both;
        assert_int_equal(tn_optimizer_steps(p.optimizer, 0), first);
        assert_int_equal(tn_optimizer_steps(p.optimizer, 1), second);
    }
    float got[2], expected[2];
    assert_ok(tn_read(p.w[1], got, sizeof got));
    assert_ok(tn_read(alone.w[1], expected, sizeof expected));
    assert_memory_equal(got, expected, sizeof got);
    problem_free(&p);
    problem_free(&alone);
}

static void clipping_sees_unscaled_gradients(void **state) {
    (void)state;
    problem inside = problem_new(ADAM_CLIPPED, NULL), outside = problem_new(ADAM, NULL);
    for (int step = 1; step <= 5; step++) {
        problem_step(&inside, TOGETHER, step == 2 ? INFINITY : 1);
        TN_SCOPE;
        tn_tensor *factor = step == 2 ? tn_scalar(INFINITY) : tn_scalar(1);
        tn_optimizer_zero_grad(outside.optimizer);
        assert_ok(tn_backward(tn_optimizer_scale_loss(outside.optimizer, problem_loss(&outside, factor))));
        assert_ok(tn_optimizer_unscale(outside.optimizer));
        assert_int_equal(tn_optimizer_unscale(outside.optimizer), TN_ERR_STATE);
        assert_ok(tn_clip_grad_norm(outside.root, 0.5, NULL));
        assert_ok(tn_optimizer_step(outside.optimizer));
    }
    assert_same(&inside, &outside, "clipped");
    problem_free(&inside);
    problem_free(&outside);
}

/* Bias corrections on the device are those of the host, also for betas of 0. */
static void device_counts_yield_the_hosts_steps(void **state) {
    (void)state;
    static const double betas[][2] = {{0.9, 0.999}, {0, 0.99}, {0.5, 0}, {0.99, 0.99999}};
    for (size_t k = 0; k < TN_COUNT(betas); k++) {
        problem p[2] = {problem_new(SGD, NULL), problem_new(SGD, NULL)};
        float got[2][5];
        for (int i = 0; i < 2; i++) {
            tn_adam_options adam = TN_ADAMW_DEFAULTS;
            adam.beta1 = betas[k][0];
            adam.beta2 = betas[k][1];
            tn_optimizer_free(p[i].optimizer);
            assert_ok(tn_optimizer_adamw(p[i].root, &adam, &p[i].optimizer));
            problem_step(&p[i], TOGETHER, 1); /* before there is a scaler: the device takes over the host's count */
            if (i) assert_ok(tn_optimizer_set_grad_scaler(p[i].optimizer, NULL));
            for (int step = 0; step < 30; step++)
                problem_step(&p[i], TOGETHER, 1);
            problem_read(&p[i], got[i]);
            assert_int_equal(tn_optimizer_steps(p[i].optimizer, 0), 31);
        }
        for (int i = 0; i < 5; i++)
            if (!(fabsf(got[0][i] - got[1][i]) <= 1e-6F))
                fail_msg("betas %g, %g: %.9g, on the host %.9g", betas[k][0], betas[k][1], (double)got[1][i],
                         (double)got[0][i]);
        problem_free(&p[0]);
        problem_free(&p[1]);
    }
}

static void clip_by_value_limits_each_element(void **state) {
    (void)state;
    problem p = problem_new(SGD, NULL);
    {
        TN_SCOPE;
        float before[3], after[3];
        assert_ok(tn_backward(problem_loss(&p, tn_scalar(1))));
        assert_ok(tn_read(tn_grad(p.w[0]), before, sizeof before));
        assert_ok(tn_clip_grad_value(p.root, 0.75));
        assert_ok(tn_read(tn_grad(p.w[0]), after, sizeof after));
        for (int i = 0; i < 3; i++)
            assert_true(after[i] == fmaxf(-0.75F, fminf(0.75F, before[i])));
        assert_int_equal(tn_clip_grad_value(p.root, -1), TN_ERR_ARGUMENT);
    }
    problem_free(&p);
}

/* ---- checkpoints ------------------------------------------------------------------------------------------------- */

static void a_checkpoint_carries_scale_and_counts(void **state) {
    (void)state;
    enum { SAVED = 7, LAST = 14 };
    const char *path = test_scratch("amp.safetensors");
    const tn_grad_scaler_options *scaling = SCALER(65536, 2, 0.5, 4);
    problem through = problem_new(ADAMW, scaling), resumed = problem_new(ADAMW, scaling);
    for (int step = 1; step <= LAST; step++) {
        problem_step(&through, TOGETHER, step == 2 || step == 9 ? INFINITY : 1);
        tn_checkpoint c = TN_CHECKPOINT_DEFAULTS;
        c.model = through.root;
        c.optimizer = through.optimizer;
        if (step == SAVED) assert_ok(tn_checkpoint_save(path, &c));
    }
    problem_step(&resumed, CAPTURED, 1); /* something to be overwritten; the capture goes on with what is loaded */
    tn_checkpoint c = TN_CHECKPOINT_DEFAULTS;
    c.model = resumed.root;
    c.optimizer = resumed.optimizer;
    assert_ok(tn_checkpoint_load(path, &c));
    assert_int_equal(tn_optimizer_steps(resumed.optimizer, 0), SAVED - 1);
    assert_int_equal(tn_optimizer_skipped_steps(resumed.optimizer), 1);
    for (int step = SAVED + 1; step <= LAST; step++)
        problem_step(&resumed, CAPTURED, step == 9 ? INFINITY : 1);
    assert_same(&through, &resumed, "resumed");
    assert_true(tn_optimizer_loss_scale(through.optimizer) == tn_optimizer_loss_scale(resumed.optimizer));
    assert_true(growth_tracker(through.optimizer) == growth_tracker(resumed.optimizer));
    problem_free(&through);
    problem_free(&resumed);
}

static void wrong_scalers_are_refused(void **state) {
    (void)state;
    problem p = problem_new(SGD, NULL);
    assert_int_equal(tn_optimizer_set_grad_scaler(p.optimizer, NULL), TN_ERR_STATE);
    tn_optimizer *o = optimizer_new(p.root, SGD);
    assert_int_equal(tn_optimizer_set_grad_scaler(o, SCALER(0, 2, 0.5, 2000)), TN_ERR_ARGUMENT);
    assert_int_equal(tn_optimizer_set_grad_scaler(o, SCALER(65536, 1, 0.5, 2000)), TN_ERR_ARGUMENT);
    assert_int_equal(tn_optimizer_set_grad_scaler(o, SCALER(65536, 2, 1, 2000)), TN_ERR_ARGUMENT);
    assert_int_equal(tn_optimizer_set_grad_scaler(o, SCALER(65536, 2, 0.5, 0)), TN_ERR_ARGUMENT);
    assert_true(tn_optimizer_loss_scale(o) == 1);
    tn_optimizer_free(o);
    problem_free(&p);
}

/* A step with a scaler is one plan, whatever it does. */
static void skipped_and_made_steps_share_one_plan(void **state) {
    (void)state;
    problem p = problem_new(ADAM, SCALER(65536, 2, 0.5, 3));
    int64_t plans = 0;
    for (int step = 0; step < 8; step++) {
        tn_optimizer_set_lr(p.optimizer, rate(step));
        problem_step(&p, TOGETHER, step % 3 == 2 ? INFINITY : 1);
        tn_runtime_stats now = {.struct_size = sizeof now};
        assert_ok(tn_get_runtime_stats(&now));
        if (step == 1) plans = now.plans_made;
        if (step > 1) assert_int_equal(now.plans_made, plans);
    }
    problem_free(&p);
}

/* ---- training ---------------------------------------------------------------------------------------------------- */

enum { BATCH = 32, SIDE = 8, CLASSES = 4, TOKENS = 12, FEATURES = 32 };

typedef struct training {
    tn_module *root, *net, *head;
    tn_optimizer *optimizer;
} training;

static tn_tensor *mean_of_channels(const tn_tensor *x) { return tn_mean(x, TN_DIMS(2, 3), false); }

static training training_new(bool transformer, tn_dtype low) {
    training t = {.root = tn_module_root()};
    tn_manual_seed(5);
    if (transformer) {
        tn_nn_encoder_options block = TN_NN_ENCODER_DEFAULTS;
        block.norm_first = true;
        tn_nn_embedding(t.root, "tokens", 16, FEATURES);
        t.net = tn_nn_transformer_encoder_layer(t.root, "block", FEATURES, 4, &block);
        t.head = tn_nn_linear(t.root, "head", FEATURES, 16, true);
    } else {
        tn_nn_conv2d_options same = TN_NN_CONV2D_DEFAULTS;
        same.padding = 1;
        t.net = tn_nn_sequential(t.root, "net");
        tn_nn_conv2d(t.net, "0", 1, 8, 3, &same);
        tn_nn_batch_norm2d(t.net, "1", 8, NULL);
        tn_nn_function(t.net, "2", tn_relu);
        tn_nn_conv2d(t.net, "3", 8, 16, 3, &same);
        tn_nn_function(t.net, "4", tn_relu);
        tn_nn_function(t.net, "5", mean_of_channels);
        tn_nn_linear(t.net, "6", 16, CLASSES, true);
    }
    assert_ok(tn_module_status(t.root));
    tn_adam_options adam = TN_ADAMW_DEFAULTS;
    adam.lr = 3e-3;
    assert_ok(tn_optimizer_adamw(t.root, &adam, &t.optimizer));
    if (low == TN_F16) assert_ok(tn_optimizer_set_grad_scaler(t.optimizer, NULL));
    return t;
}

static void training_free(training *t) {
    tn_optimizer_free(t->optimizer);
    tn_module_free(t->root);
}

static uint32_t next_random(uint32_t *state) { return *state = *state * 1664525U + 1013904223U; }

/* Images of a bright quarter in noise, told by the quarter. */
static tn_tensor *image_loss(const training *t, int step, tn_dtype low) {
    static float pixels[BATCH * SIDE * SIDE];
    int64_t labels[BATCH];
    uint32_t random = (uint32_t)step * 7919 + 1;
    for (int b = 0; b < BATCH; b++) {
        labels[b] = next_random(&random) >> 30;
        for (int i = 0; i < SIDE * SIDE; i++) {
            int quarter = i / SIDE / (SIDE / 2) * 2 + i % SIDE / (SIDE / 2);
            float noise = (float)(next_random(&random) >> 8) / (1 << 24);
            pixels[b * SIDE * SIDE + i] = noise + (quarter == labels[b] ? 0.5F * (float)(1 + quarter) : 0);
        }
    }
    TN_AUTOCAST(low);
    tn_tensor *x = tn_from_data(pixels, TN_DIMS(BATCH, 1, SIDE, SIDE), TN_F32);
    tn_tensor *y = tn_from_data(labels, TN_DIMS(BATCH), TN_I64);
    return tn_cross_entropy(tn_forward(t->net, x), y, NULL, NULL);
}

/* Each token is to be told by the one before it and itself; every fourth answer is noise, so the loss has a floor. */
static tn_tensor *token_loss(const training *t, int step, tn_dtype low) {
    int64_t tokens[BATCH * TOKENS], next[BATCH * TOKENS];
    uint32_t random = (uint32_t)step * 104729 + 1;
    for (int i = 0; i < BATCH * TOKENS; i++)
        tokens[i] = next_random(&random) >> 28;
    for (int i = 0; i < BATCH * TOKENS; i++)
        next[i] = next_random(&random) >> 30 ? (tokens[i] * 3 + 1) % 16 : next_random(&random) >> 28;
    TN_AUTOCAST(low);
    tn_tensor *ids = tn_from_data(tokens, TN_DIMS(BATCH, TOKENS), TN_I64);
    tn_tensor *x = tn_forward(tn_module_child(t->root, "tokens"), ids);
    x = tn_forward(t->head, tn_transformer_encoder_layer_forward(t->net, x, NULL));
    tn_tensor *y = tn_from_data(next, TN_DIMS(BATCH * TOKENS), TN_I64);
    return tn_cross_entropy(tn_reshape(x, TN_DIMS(BATCH * TOKENS, 16)), y, NULL, NULL);
}

/* The mean loss of the last steps; *first: the loss of the first one. */
static double train(bool transformer, tn_dtype low, int steps, double *first) {
    enum { AVERAGED = 20 };
    training t = training_new(transformer, low);
    double sum = 0;
    for (int step = 0; step < steps; step++) {
        TN_SCOPE;
        tn_tensor *loss = transformer ? token_loss(&t, step, low) : image_loss(&t, step, low);
        assert_ok(tn_minimize(t.optimizer, loss));
        if (step == 0) *first = tn_item(loss);
        if (step >= steps - AVERAGED) sum += tn_item(loss) / AVERAGED;
    }
    training_free(&t);
    return sum;
}

static void training_reaches_the_loss_of_f32(void **state) {
    (void)state;
    static const int steps[] = {150, 150};
    if (test_is_thin()) skip(); /* a loss shows a sanitizer nothing; the other tests take these steps */
    for (int transformer = 0; transformer < 2; transformer++) {
        double first, f32 = train(transformer, TN_F32, steps[transformer], &first);
        assert_true(f32 < 0.6 * first);
        for (tn_dtype low = TN_F16; low <= TN_BF16; low++) {
            double ours = train(transformer, low, steps[transformer], &first);
            print_message("%s, %s: loss %.5f, f32's is %.5f\n", transformer ? "transformer" : "CNN", tn_dtype_name(low),
                          ours, f32);
            if (!(fabs(ours - f32) <= 0.02 * f32)) fail_msg("more than 2 %% from f32");
        }
    }
}

/* ---- devices ----------------------------------------------------------------------------------------------------- */

/* A few steps of the CNN with an overflow among them: the parameters after it are those before it. */
static void train_on_device(tn_device *d, const char *name, tn_dtype low, double *loss_out) {
    tn_device *before = tn_current_device();
    assert_ok(tn_set_current_device(d));
    training t = training_new(false, low);
    if (low == TN_BF16) assert_ok(tn_optimizer_set_grad_scaler(t.optimizer, NULL));
    float weight[2][8 * 9];
    tn_tensor *w = tn_module_variable(t.root, "net.0.weight");
    for (int step = 0; step < 5; step++) {
        TN_SCOPE;
        tn_tensor *loss = image_loss(&t, step, low);
        if (step == 2) loss = tn_mul(loss, tn_scalar(INFINITY));
        assert_ok(tn_read(w, weight[0], sizeof weight[0]));
        assert_ok(tn_minimize(t.optimizer, loss));
        assert_ok(tn_read(w, weight[1], sizeof weight[1]));
        bool same = memcmp(weight[0], weight[1], sizeof weight[0]) == 0;
        if (same != (step == 2)) fail_msg("%s, step %d: the weights %s", name, step, same ? "stayed" : "changed");
        *loss_out = tn_item(loss);
    }
    assert_int_equal(tn_optimizer_steps(t.optimizer, 0), 4);
    assert_true(tn_optimizer_loss_scale(t.optimizer) == 32768);
    training_free(&t);
    assert_ok(tn_set_current_device(before));
}

static void every_device_trains_and_skips(void **state) {
    (void)state;
    tn_device_list *list = NULL;
    assert_ok(tn_device_list_new(false, &list));
    int count = 0;
    double here[2];
    train_on_device(tn_current_device(), "cpu", TN_F16, &here[0]);
    train_on_device(tn_current_device(), "cpu", TN_BF16, &here[1]);
    for (int i = 0; i < tn_device_list_count(list); i++) {
        const tn_backend_info *b = tn_device_list_at(list, i);
        if (!b->available || strcmp(b->name, "cpu") == 0) continue;
        tn_device *d = NULL;
        assert_ok(tn_device_open(b->devices[0].id, NULL, NULL, &d));
        for (int k = 0; k < 2; k++) {
            double loss;
            train_on_device(d, b->devices[0].id, k ? TN_BF16 : TN_F16, &loss);
            print_message("ran on: %s (%s): loss %.9g, the cpu's is %.9g\n", b->devices[0].id, b->devices[0].name, loss,
                          here[k]);
            assert_true(fabs(loss - here[k]) <= 1e-3 * here[k]);
        }
        tn_device_close(d);
        count++;
    }
    tn_device_list_free(list);
    if (count == 0) print_message("skipped: this machine has the cpu alone\n");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(op_lists_are_pytorchs),
        cmocka_unit_test(autocast_chooses_dtypes),
        cmocka_unit_test(a_wrong_dtype_fails_the_products),
        cmocka_unit_test(quantized_weights_keep_their_input),
        cmocka_unit_test(products_accumulate_in_f32),
        cmocka_unit_test(parameters_get_f32_gradients),
        cmocka_unit_test(the_scale_has_gradscalers_history),
        cmocka_unit_test(skipped_steps_leave_no_trace),
        cmocka_unit_test(parameters_that_join_later_count_their_own_steps),
        cmocka_unit_test(clipping_sees_unscaled_gradients),
        cmocka_unit_test(device_counts_yield_the_hosts_steps),
        cmocka_unit_test(clip_by_value_limits_each_element),
        cmocka_unit_test(a_checkpoint_carries_scale_and_counts),
        cmocka_unit_test(wrong_scalers_are_refused),
        cmocka_unit_test(skipped_and_made_steps_share_one_plan),
        cmocka_unit_test(training_reaches_the_loss_of_f32),
        cmocka_unit_test(every_device_trains_and_skips),
    };
    return cmocka_run_group_tests_name("amp", tests, make_scratch, remove_scratch);
}
