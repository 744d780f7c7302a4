/* test_watch_gradients.c — what helps with gradients: regions that are recomputed, hooks, retained gradients, anomaly
 * detection, gradcheck, Jacobians and Hessians, functions of examples applied to batches. */
#include "test_support.h"

#include <math.h>

#include "tensor/graph.h"
#include "trunnion/autograd.h"
#include "trunnion/functions.h"
#include "trunnion/nn.h"
#include "trunnion/ops.h"
#include "trunnion/optim.h"

static tn_tensor *vector(const double *values, int64_t count) {
    tn_tensor *t = tn_from_data(values, &count, 1, TN_F64);
    assert_ok(tn_set_requires_grad(t, true));
    return t;
}
#define LEAF(...) \
    vector((const double[]){__VA_ARGS__}, (int64_t)(sizeof((const double[]){__VA_ARGS__}) / sizeof(double)))

static void assert_f64(const tn_tensor *t, const double *want, int64_t count) {
    double is[16];
    assert_non_null(t);
    assert_ok(tn_read_as(t, is, count, TN_F64));
    for (int64_t i = 0; i < count; i++)
        if (fabs(is[i] - want[i]) > 1e-12 * fmax(1, fabs(want[i])))
            fail_msg("element %lld is %g, it should be %g", (long long)i, is[i], want[i]);
}
#define ASSERT_F64(t, ...) \
    assert_f64(t, (const double[]){__VA_ARGS__}, (int64_t)(sizeof((const double[]){__VA_ARGS__}) / sizeof(double)))

static tn_tensor *total(const tn_tensor *x) { return tn_sum(x, TN_ALL, false); }

/* ---- recomputing ------------------------------------------------------------------------------------------------- */

enum { LAYERS = 6, WIDTH = 64, ROWS = 512, STEPS = 3 };

/* Residual blocks with everything that makes copies hard: composed operations, random numbers, a cast to half
 * precision, views, reductions. */
static tn_module *deep_network(tn_module *root, bool recompute) {
    tn_module *net = tn_nn_sequential(root, "net");
    for (int i = 0; i < LAYERS; i++) {
        char name[16];
        snprintf(name, sizeof name, "%d", i);
        tn_module *block = tn_nn_sequential(net, name);
        tn_nn_linear(block, "up", WIDTH, 4 * WIDTH, true);
        tn_nn_function(block, "act", i % 2 ? tn_silu : tn_relu);
        if (i % 3 == 0) tn_nn_dropout(block, "drop", 0.25);
        tn_nn_linear(block, "down", 4 * WIDTH, WIDTH, true);
        tn_nn_layer_norm(block, "norm", WIDTH, NULL);
        tn_module_set_recompute(block, recompute);
    }
    assert_ok(tn_module_status(root));
    return net;
}

static int64_t train_deep(bool recompute, bool read_first, float *weights, int64_t room) {
    tn_manual_seed(7);
    tn_clear_plans();
    tn_module *root = tn_module_root(), *net = deep_network(root, recompute);
    tn_optimizer *adam;
    assert_ok(tn_optimizer_adam(net, NULL, &adam));
    tn_tensor *x = tn_randn(TN_DIMS(ROWS, WIDTH));
    assert_ok(tn_eval(&x, 1));
    tn_runtime_stats stats = {.struct_size = sizeof stats};
    for (int step = 0; step < STEPS; step++) {
        TN_SCOPE;
        tn_tensor *y = tn_forward(net, x);
        tn_tensor *loss = tn_mean(tn_mul(y, tn_tanh(y)), TN_ALL, false);
        if (read_first) assert_true(isfinite(tn_item(loss)));
        assert_ok(tn_minimize(adam, loss));
        if (step == 0) tn_reset_runtime_stats();
    }
    assert_ok(tn_get_runtime_stats(&stats));
    tn_variable *v;
    int count;
    int64_t at = 0;
    assert_ok(tn_module_variables(net, &v, &count));
    for (int i = 0; i < count; i++) {
        assert_true(at + tn_numel(v[i].tensor) <= room);
        assert_ok(tn_read_as(v[i].tensor, weights + at, tn_numel(v[i].tensor), TN_F32));
        at += tn_numel(v[i].tensor);
    }
    tn_variables_free(v);
    tn_optimizer_free(adam);
    tn_module_free(root);
    tn_free(x);
    tn_clear_plans();
    return stats.peak_bytes;
}

static void recomputing_keeps_the_bits_and_saves_memory(void **state) {
    (void)state;
    enum { ROOM = LAYERS * (8 * WIDTH * WIDTH + 8 * WIDTH) };
    float *kept = calloc(ROOM, sizeof *kept), *again = calloc(ROOM, sizeof *again);
    int64_t with_all = train_deep(false, false, kept, ROOM), less = train_deep(true, false, again, ROOM);
    print_message("peak: %lld bytes, with recomputing %lld\n", (long long)with_all, (long long)less);
    assert_memory_equal(kept, again, ROOM * sizeof *kept);
    assert_true(kept[0] != 0);
    assert_true(less * 10 < with_all * 7);
    memset(again, 0, ROOM * sizeof *again);
    train_deep(true, true, again, ROOM);
    assert_memory_equal(kept, again, ROOM * sizeof *kept);
    free(kept);
    free(again);
}

/* Nested regions, values of one region that another one and the outside use, a second derivative. */
static tn_tensor *nested(tn_tensor *x, bool recompute) {
    tn_tensor *y, *z;
    if (!recompute) {
        y = tn_tanh(tn_mul(x, x));
        z = tn_exp(tn_sin(y));
        return total(tn_mul(tn_add(z, y), tn_sigmoid(z)));
    }
    TN_RECOMPUTE;
    y = tn_tanh(tn_mul(x, x));
    {
        TN_RECOMPUTE;
        z = tn_exp(tn_sin(y));
    }
    return total(tn_mul(tn_add(z, y), tn_sigmoid(z)));
}

static void regions_nest_and_can_be_differentiated_twice(void **state) {
    (void)state;
    double grads[2][2][4];
    for (int recompute = 0; recompute < 2; recompute++) {
        TN_SCOPE;
        tn_tensor *x = LEAF(0.5, -1, 2, 0.1), *y = nested(x, recompute), *first, *second;
        assert_ok(tn_gradients(&y, 1, NULL, &x, 1, true, &first));
        tn_tensor *squares = total(tn_mul(first, first));
        assert_ok(tn_gradients(&squares, 1, NULL, &x, 1, false, &second));
        assert_ok(tn_read_as(first, grads[recompute][0], 4, TN_F64));
        assert_ok(tn_read_as(second, grads[recompute][1], 4, TN_F64));
    }
    assert_memory_equal(grads[0], grads[1], sizeof grads[0]);
}

/* ---- hooks ------------------------------------------------------------------------------------------------------- */

typedef struct seen {
    int calls, order;
    int64_t id;
    tn_tensor *from;
    double first;
} seen;

static tn_tensor *double_it(void *ctx, const tn_tensor *grad) {
    seen *s = ctx;
    s->calls++;
    return tn_mul(grad, tn_scalar(2));
}

static tn_tensor *look_and_leave(void *ctx, const tn_tensor *grad) {
    seen *s = ctx;
    double values[2];
    s->calls++;
    assert_ok(tn_read_as(grad, values, 2, TN_F64));
    s->first = values[0];
    assert_ok(tn_remove_hook(s->from, s->id));
    return NULL;
}

static tn_tensor *wrong_shape(void *ctx, const tn_tensor *grad) {
    (void)ctx;
    return tn_sum(grad, TN_ALL, false);
}

static void hooks_see_and_replace_gradients(void **state) {
    (void)state;
    TN_SCOPE;
    seen twice = {0}, once = {0};
    tn_tensor *x = LEAF(2, 3), *middle = tn_mul(x, x);
    once.from = middle;
    assert_ok(tn_register_hook(middle, double_it, &twice, NULL));
    assert_ok(tn_register_hook(middle, look_and_leave, &once, &once.id));
    for (int i = 0; i < 2; i++) {
        tn_zero_grad(x);
        assert_ok(tn_backward(total(tn_mul(middle, middle))));
        ASSERT_F64(tn_grad(x), 2 * (2 * 4) * (2 * 2), 2 * (2 * 9) * (2 * 3));
    }
    assert_int_equal(twice.calls, 2);
    assert_int_equal(once.calls, 1);
    assert_true(once.first == 16); /* after the first hook */
    assert_int_equal(tn_remove_hook(middle, once.id), TN_ERR_ARGUMENT);
}

static void a_hook_of_a_leaf_acts_before_the_gradient_is_added(void **state) {
    (void)state;
    TN_SCOPE;
    seen s = {0};
    tn_tensor *x = LEAF(2, 3);
    assert_ok(tn_register_hook(x, double_it, &s, &s.id));
    assert_ok(tn_backward(total(x)));
    assert_ok(tn_backward(total(x)));
    ASSERT_F64(tn_grad(x), 4, 4);
    assert_ok(tn_remove_hook(x, s.id));
    assert_ok(tn_backward(total(x)));
    ASSERT_F64(tn_grad(x), 5, 5);
}

static void a_wrong_hook_fails_the_backward_pass(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = LEAF(2, 3), *y = tn_exp(x);
    assert_ok(tn_register_hook(y, wrong_shape, NULL, NULL));
    assert_int_equal(tn_backward(total(y)), TN_ERR_SHAPE);
    assert_text_has(tn_error(), "hook");
    assert_null(tn_grad(x));
    assert_int_equal(tn_register_hook(tn_detach(x), double_it, NULL, NULL), TN_ERR_STATE);
    assert_int_equal(tn_register_hook(x, NULL, NULL, NULL), TN_ERR_ARGUMENT);
}

static tn_tensor *unmark(void *ctx, const tn_tensor *grad) {
    (void)grad;
    assert_int_equal(tn_set_requires_grad(ctx, false), TN_ERR_STATE);
    return NULL;
}

static void a_hook_cannot_unmark_a_leaf(void **state) {
    (void)state;
    TN_SCOPE;
    seen s = {0};
    tn_tensor *x = LEAF(2, 3), *w = LEAF(5, 7);
    assert_ok(tn_register_hook(x, unmark, x, NULL));
    assert_ok(tn_register_hook(x, unmark, w, NULL));
    assert_ok(tn_register_hook(x, double_it, &s, NULL));
    assert_ok(tn_backward(total(tn_mul(w, tn_mul(x, x)))));
    ASSERT_F64(tn_grad(x), 40, 84);
    ASSERT_F64(tn_grad(w), 4, 9);
    assert_ok(tn_set_requires_grad(x, false));
}

static void a_retained_gradient_is_collected(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = LEAF(2, 3), *middle = tn_mul(x, x), *view = tn_slice(middle, 0, 0, 1, 1);
    assert_null(tn_grad(middle));
    assert_ok(tn_retain_grad(middle));
    assert_ok(tn_retain_grad(view));
    for (int i = 1; i <= 2; i++) {
        assert_ok(tn_backward(tn_add(total(tn_mul(middle, middle)), total(view))));
        ASSERT_F64(tn_grad(middle), 9 * i, 18 * i);
        ASSERT_F64(tn_grad(view), 1 * i);
    }
    tn_zero_grad(middle);
    assert_null(tn_grad(middle));
}

/* ---- anomalies --------------------------------------------------------------------------------------------------- */

static void the_first_operation_with_a_nan_is_named(void **state) {
    (void)state;
    assert_ok(tn_set_detect_anomaly(TN_ANOMALY_NAN));
    {
        TN_SCOPE;
        tn_tensor *x = LEAF(1, -1, 4);
        int line = __LINE__ + 1;
        tn_tensor *bad = tn_log(x);
        char where[64];
        snprintf(where, sizeof where, "test_watch_gradients.c:%d: log", line);
        assert_int_equal(tn_status_of(total(tn_mul(bad, bad))), TN_ERR_STATE);
        assert_text_has(tn_error(), where);
        assert_text_has(tn_error(), "[3] f64 has NaN at element 1 (1 of 3");
        /* an infinity is none */
        assert_ok(tn_status_of(tn_log(LEAF(0, 1))));
    }
    assert_ok(tn_set_detect_anomaly(TN_ANOMALY_INF));
    {
        TN_SCOPE;
        tn_tensor *masked = tn_where(tn_gt(LEAF(1, -1), tn_scalar(0)), LEAF(1, 2), tn_scalar(-INFINITY));
        assert_ok(tn_status_of(tn_softmax(masked, 0)));
        assert_int_equal(tn_status_of(tn_exp(LEAF(1, 1000))), TN_ERR_STATE);
        assert_text_has(tn_error(), "exp: the result [2] f64 has an infinity at element 1");
    }
    assert_ok(tn_set_detect_anomaly(TN_ANOMALY_OFF));
    {
        TN_SCOPE;
        assert_ok(tn_status_of(tn_log(LEAF(-1))));
    }
    assert_int_equal(tn_set_detect_anomaly((tn_anomaly)3), TN_ERR_ARGUMENT);
}

static void a_nan_of_the_backward_pass_names_the_forward_operation(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = LEAF(4, 0), *y = NULL;
    assert_ok(tn_set_detect_anomaly(TN_ANOMALY_NAN));
    int line = __LINE__ + 1;
    y = tn_mul(tn_sqrt(x), LEAF(1, 0)); /* 0 · ∞ */
    tn_status s = tn_backward(total(y));
    assert_ok(tn_set_detect_anomaly(TN_ANOMALY_OFF));
    char where[64];
    snprintf(where, sizeof where, "test_watch_gradients.c:%d", line);
    assert_int_equal(s, TN_ERR_STATE);
    assert_text_has(tn_error(), "in the gradient of sqrt");
    assert_text_has(tn_error(), where);
    assert_null(tn_grad(x));
}

/* ---- gradcheck --------------------------------------------------------------------------------------------------- */

static tn_tensor *right(void *ctx, tn_tensor *const *in) {
    (void)ctx;
    return tn_mul(tn_sin(in[0]), tn_exp(tn_mul(in[1], in[0])));
}

/* x² whose gradient forgets a factor: the detached operand counts as constant. */
static tn_tensor *wrong(void *ctx, tn_tensor *const *in) {
    (void)ctx;
    return tn_mul(in[0], tn_detach(in[0]));
}

static void gradcheck_finds_wrong_gradients(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *in[] = {LEAF(0.3, -0.7), LEAF(0.2, 0.9)}, *single = tn_cast(in[0], TN_F32);
    tn_gradcheck_options o = TN_GRADCHECK_DEFAULTS;
    o.order = 2;
    assert_ok(tn_gradcheck(right, NULL, in, 2, &o));
    ASSERT_F64(in[0], 0.3, -0.7);
    assert_null(tn_grad(in[0]));
    assert_int_equal(tn_gradcheck(wrong, NULL, in, 1, NULL), TN_ERR_STATE);
    assert_text_has(tn_error(), "element 0 of the result with respect to element 0 of input 0 is 0.3, but");
    o.rtol = 2; /* a bound that even this keeps */
    assert_ok(tn_gradcheck(wrong, NULL, in, 1, &(tn_gradcheck_options){o.struct_size, 1e-6, 0, 2, 1}));
    assert_int_equal(tn_gradcheck(right, NULL, (tn_tensor *[]){single, in[1]}, 2, NULL), TN_ERR_DTYPE);
    o.eps = 0;
    assert_int_equal(tn_gradcheck(right, NULL, in, 2, &o), TN_ERR_ARGUMENT);
    assert_int_equal(tn_gradcheck(right, NULL, in, 0, NULL), TN_ERR_ARGUMENT);
}

/* ---- derivatives of functions ------------------------------------------------------------------------------------ */

/* y = (x0² w0 x1, x1 w1) */
static tn_tensor *products_of(void *ctx, tn_tensor *const *in) {
    TN_SCOPE;
    (void)ctx;
    tn_tensor *x0 = tn_select(in[0], 0, 0), *x1 = tn_select(in[0], 0, 1), *w0 = tn_select(in[1], 0, 0);
    tn_tensor *y[] = {tn_mul(tn_mul(tn_square(x0), w0), x1), tn_mul(x1, tn_select(in[1], 0, 1))};
    return tn_keep(tn_stack(y, 2, 0));
}

static tn_tensor *sum_of_products(void *ctx, tn_tensor *const *in) {
    TN_SCOPE;
    return tn_keep(total(products_of(ctx, in)));
}

static tn_tensor *constant(void *ctx, tn_tensor *const *in) {
    (void)ctx;
    return tn_zeros_like(in[1]);
}

static tn_tensor *tripled(void *ctx, tn_tensor *const *in) {
    (void)ctx;
    return tn_mul_scalar(in[0], 3);
}

static void jacobians_have_an_element_for_each_pair(void **state) {
    (void)state;
    TN_SCOPE;
    TN_NO_GRAD; /* of the caller: derivatives are recorded all the same */
    tn_tensor *in[] = {LEAF(2, 3), LEAF(5, 7)}, *j[2], *y, *d;
    assert_ok(tn_jacobian(products_of, NULL, in, 2, false, j));
    ASSERT_F64(j[0], 60, 20, 0, 7);
    ASSERT_F64(j[1], 12, 0, 0, 3);
    assert_false(tn_requires_grad(j[0]) || tn_grad_enabled());
    assert_ok(tn_jvp(products_of, NULL, in, (tn_tensor *[]){LEAF(1, -1), LEAF(0.5, 2)}, 2, false, &y, &d));
    ASSERT_F64(y, 60, 21);
    ASSERT_F64(d, 46, -1);
    assert_ok(tn_jacobian(constant, NULL, in, 2, false, j));
    ASSERT_F64(j[0], 0, 0, 0, 0);
    assert_ok(tn_jvp(constant, NULL, in, in, 2, false, NULL, &d));
    ASSERT_F64(d, 0, 0);
    tn_tensor *wide = tn_full(TN_DIMS(13, 10), 1, TN_F32), *off;
    assert_ok(tn_jacobian(tripled, NULL, &wide, 1, false, j)); /* more rows than are evaluated at once */
    assert_int_equal(tn_rank(j[0]), 4);
    off = tn_sub(tn_reshape(j[0], TN_DIMS(130, 130)), tn_mul_scalar(tn_eye(130, 130, TN_F32), 3));
    assert_true(tn_item(total(tn_abs(off))) == 0);
}

static void hessians_are_second_derivatives(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *in[] = {LEAF(2, 3), LEAF(5, 7)}, *h[4], *g, *sum;
    assert_ok(tn_hessian(sum_of_products, NULL, in, 2, false, h));
    ASSERT_F64(h[0], 30, 20, 20, 0);
    ASSERT_F64(h[1], 12, 0, 4, 1);
    ASSERT_F64(h[2], 12, 4, 0, 1);
    ASSERT_F64(h[3], 0, 0, 0, 0);
    assert_ok(tn_hessian(sum_of_products, NULL, in, 2, true, h));
    sum = total(h[0]);
    assert_ok(tn_gradients(&sum, 1, NULL, in, 1, false, &g));
    ASSERT_F64(g, 20, 10);
    assert_int_equal(tn_hessian(products_of, NULL, in, 2, false, h), TN_ERR_SHAPE);
    assert_null(h[3]);
}

static void derivatives_of_wrong_arguments_are_refused(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *in[] = {LEAF(2, 3), LEAF(5, 7)}, *out[4];
    tn_tensor *whole = tn_full(TN_DIMS(2), 1, TN_I64), *deep = tn_full(TN_DIMS(1, 1, 1, 1, 1), 1, TN_F32);
    assert_int_equal(tn_jacobian(products_of, NULL, in, 0, false, out), TN_ERR_ARGUMENT);
    assert_int_equal(tn_jacobian(tripled, NULL, &whole, 1, false, out), TN_ERR_DTYPE);
    assert_int_equal(tn_jacobian(tripled, NULL, &deep, 1, false, out), TN_ERR_SHAPE);
    assert_null(out[0]);
    assert_int_equal(
        tn_jvp(products_of, NULL, in, (tn_tensor *[]){in[0], tn_zeros(TN_DIMS(1), TN_F64)}, 2, false, NULL, out),
        TN_ERR_SHAPE);
}

/* ---- batches of a function --------------------------------------------------------------------------------------- */

/* Of an example x [4], a weight [3, 4] and a number: views, norms, products, reductions, gathering. */
static tn_tensor *many_operations(void *ctx, tn_tensor *const *in) {
    TN_SCOPE;
    (void)ctx;
    tn_tensor *y = tn_softmax(tn_linear(in[0], in[1], NULL), -1);
    tn_tensor *z = tn_matmul(tn_unsqueeze(y, 1), tn_reshape(in[0], TN_DIMS(1, 4))); /* [3, 4] */
    z = tn_add(tn_permute(tn_tanh(z), TN_DIMS(1, 0)), tn_mul(in[2], tn_mean(in[0], TN_ALL, false)));
    tn_tensor *parts[] = {z, tn_cumsum(tn_slice(z, 0, 1, 4, 1), 0)};
    z = tn_layer_norm(tn_pad(tn_cat(parts, 2, 0), TN_DIMS(0, 0, 0, 1), 0.5), TN_DIMS(3), NULL, NULL, NULL);
    tn_tensor *index = tn_argmax(z, TN_DIMS(1), true);
    return tn_keep(
        tn_add(tn_gather(z, 1, index), tn_index_select(z, 1, tn_from_data((int64_t[]){2, 0}, TN_DIMS(2), TN_I64))));
}

/* The gradient of a loss of one example, of a weight that all have in common. */
static tn_tensor *gradient_of_example(void *ctx, tn_tensor *const *in) {
    tn_tensor *grad = NULL, *result = NULL;
    TN_SCOPE;
    (void)ctx;
    tn_tensor *loss =
        tn_cross_entropy(tn_unsqueeze(tn_linear(in[0], in[1], NULL), 0), tn_reshape(in[2], TN_DIMS(1)), NULL, NULL);
    if (tn_gradients(&loss, 1, NULL, &in[1], 1, false, &grad) == TN_OK) result = tn_keep(grad);
    return result;
}

static tn_tensor *numbers(const int64_t *shape, int rank) { return tn_cast(tn_randn(shape, rank), TN_F64); }

/* The function of each example, stacked. in_dims: 0 or TN_NOT_MAPPED. */
static tn_tensor *one_by_one(tn_differentiable *function, tn_tensor *const *in, int count, const int64_t *in_dims) {
    enum { MOST = 8 };
    tn_tensor *y[MOST], *own[3];
    int64_t batch = tn_size(in[0], 0);
    for (int64_t e = 0; e < batch; e++) {
        for (int k = 0; k < count; k++)
            own[k] = in_dims[k] == TN_NOT_MAPPED ? in[k] : tn_select(in[k], 0, e);
        y[e] = function(NULL, own);
    }
    return tn_stack(y, (int)batch, 0);
}

static void assert_same(tn_tensor *x, tn_tensor *y) {
    assert_ok(tn_status_of(x));
    assert_ok(tn_status_of(y));
    assert_int_equal(tn_rank(x), tn_rank(y));
    double apart = tn_item(tn_amax(tn_abs(tn_sub(x, y)), TN_ALL, false));
    if (!(apart < 1e-12)) fail_msg("%g apart", apart);
}

static void a_function_of_examples_is_applied_to_a_batch(void **state) {
    (void)state;
    TN_SCOPE;
    tn_manual_seed(3);
    static const int64_t dims[] = {0, TN_NOT_MAPPED, 0};
    tn_tensor *in[] = {numbers(TN_DIMS(5, 4)), numbers(TN_DIMS(3, 4)), numbers(TN_DIMS(5))};
    tn_tensor *want = one_by_one(many_operations, in, 3, dims);
    assert_same(tn_vmap(many_operations, NULL, in, 3, dims, 0), want);
    tn_tensor *turned[] = {tn_transpose(in[0], 0, 1), in[1], in[2]};
    assert_same(tn_vmap(many_operations, NULL, turned, 3, (int64_t[]){-1, TN_NOT_MAPPED, 0}, 2),
                tn_movedim(want, 0, 2));
    assert_same(tn_vmap(constant, NULL, in, 2, (int64_t[]){0, TN_NOT_MAPPED}, 0), tn_zeros(TN_DIMS(5, 3, 4), TN_F64));
}

static tn_tensor *long_function(void *ctx, tn_tensor *const *inputs) {
    tn_tensor *result = inputs[0];
    TN_SCOPE;
    for (int i = 0; i < *(const int *)ctx; i++)
        result = tn_mul_scalar(tn_sin(result), 1.5);
    return tn_keep(result);
}

/* Neither the function nor its batch may be evaluated in pieces, although the recording is long. */
static void a_function_of_any_length_is_applied_to_a_batch(void **state) {
    (void)state;
    static const int lengths[] = {500, 1500, 2500, 5000};
    for (size_t i = 0; i < TN_COUNT(lengths); i++) {
        TN_SCOPE;
        int length = lengths[i];
        tn_tensor *x = numbers(TN_DIMS(3, 2));
        assert_same(tn_vmap(long_function, &length, &x, 1, NULL, 0), long_function(&length, &x));
    }
}

static void gradients_of_each_example_are_found_at_once(void **state) {
    (void)state;
    TN_SCOPE;
    tn_manual_seed(4);
    static const int64_t dims[] = {0, TN_NOT_MAPPED, 0};
    tn_tensor *target = tn_from_data((int64_t[]){2, 0, 1, 1}, TN_DIMS(4), TN_I64);
    tn_tensor *in[] = {numbers(TN_DIMS(4, 6)), numbers(TN_DIMS(3, 6)), target};
    assert_ok(tn_set_requires_grad(in[1], true));
    assert_same(tn_vmap(gradient_of_example, NULL, in, 3, dims, 0), one_by_one(gradient_of_example, in, 3, dims));
    tn_tensor *y = total(tn_square(tn_vmap(products_of, NULL, (tn_tensor *[]){in[1], in[1]}, 2, NULL, 0))), *grad;
    tn_tensor *want = total(tn_square(one_by_one(products_of, (tn_tensor *[]){in[1], in[1]}, 2, (int64_t[]){0, 0})));
    assert_ok(tn_gradients(&y, 1, NULL, &in[1], 1, false, &grad)); /* gradients through the batch */
    assert_ok(tn_gradients(&want, 1, NULL, &in[1], 1, false, &y));
    assert_same(grad, y);
}

static tn_tensor *convolved(void *ctx, tn_tensor *const *in) {
    (void)ctx;
    return tn_conv2d(in[0], in[1], NULL, NULL);
}

static tn_tensor *evaluated(void *ctx, tn_tensor *const *in) {
    (void)ctx;
    return tn_mul_scalar(in[0], tn_item(total(in[0])));
}

static tn_tensor *place_of_number(void *ctx, tn_tensor *const *in) {
    (void)ctx;
    return tn_argmax(in[0], TN_ALL, false);
}

static tn_tensor *running_sum(void *ctx, tn_tensor *const *in) {
    (void)ctx;
    return tn_cumsum(in[0], 0);
}

static void what_has_no_rule_for_batches_is_named(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *in[] = {tn_ones(TN_DIMS(2, 1, 3, 8, 8), TN_F32), tn_ones(TN_DIMS(4, 3, 3, 3), TN_F32)};
    static const int64_t dims[] = {0, TN_NOT_MAPPED};
    assert_int_equal(tn_status_of(tn_vmap(convolved, NULL, in, 2, dims, 0)), TN_ERR_UNSUPPORTED);
    assert_non_null(strstr(tn_error(), "vmap: conv2d_forward ("));
    tn_tensor *whole = tn_from_data((int64_t[]){7, 8}, TN_DIMS(2), TN_I64); /* each example is a number */
    assert_int_equal(tn_status_of(tn_vmap(place_of_number, NULL, &whole, 1, NULL, 0)), TN_ERR_UNSUPPORTED);
    assert_int_equal(tn_status_of(tn_vmap(running_sum, NULL, &whole, 1, NULL, 0)), TN_ERR_UNSUPPORTED);
    assert_non_null(strstr(tn_error(), "vmap: cumsum ("));
    assert_int_equal(tn_status_of(tn_vmap(evaluated, NULL, in, 1, NULL, 0)), TN_ERR_STATE);
    assert_int_equal(tn_status_of(tn_vmap(tripled, NULL, in, 2, NULL, 0)), TN_ERR_SHAPE);
    assert_non_null(strstr(tn_error(), "input 1 has 4 examples, but an earlier input has another number"));
    assert_int_equal(tn_status_of(tn_vmap(tripled, NULL, in, 1, (int64_t[]){5}, 0)), TN_ERR_SHAPE);
    assert_int_equal(tn_status_of(tn_vmap(tripled, NULL, in, 1, (int64_t[]){TN_NOT_MAPPED}, 0)), TN_ERR_ARGUMENT);
    tn_tensor *deep = tn_ones(TN_DIMS(1, 1, 1, 1, 1, 1, 1, 2), TN_F32);
    assert_int_equal(tn_status_of(tn_vmap(tripled, NULL, &deep, 1, NULL, 0)), TN_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recomputing_keeps_the_bits_and_saves_memory),
        cmocka_unit_test(regions_nest_and_can_be_differentiated_twice),
        cmocka_unit_test(hooks_see_and_replace_gradients),
        cmocka_unit_test(a_hook_of_a_leaf_acts_before_the_gradient_is_added),
        cmocka_unit_test(a_wrong_hook_fails_the_backward_pass),
        cmocka_unit_test(a_hook_cannot_unmark_a_leaf),
        cmocka_unit_test(a_retained_gradient_is_collected),
        cmocka_unit_test(the_first_operation_with_a_nan_is_named),
        cmocka_unit_test(a_nan_of_the_backward_pass_names_the_forward_operation),
        cmocka_unit_test(gradcheck_finds_wrong_gradients),
        cmocka_unit_test(jacobians_have_an_element_for_each_pair),
        cmocka_unit_test(hessians_are_second_derivatives),
        cmocka_unit_test(derivatives_of_wrong_arguments_are_refused),
        cmocka_unit_test(a_function_of_examples_is_applied_to_a_batch),
        cmocka_unit_test(a_function_of_any_length_is_applied_to_a_batch),
        cmocka_unit_test(gradients_of_each_example_are_found_at_once),
        cmocka_unit_test(what_has_no_rule_for_batches_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
