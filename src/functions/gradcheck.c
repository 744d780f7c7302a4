/* gradcheck.c — gradients of a function compared with central differences. */
#include "functions/common.h"

enum { MOST_INPUTS = 128 };

typedef struct check {
    tn_differentiable *function;
    void *ctx;
    tn_tensor **inputs; /* those that require gradients: leaves of their own, which are written */
    int count;
    tn_gradcheck_options o;
} check;

/* f(inputs) as numbers. values: room for `numel` of them. */
static tn_status values_of(const check *c, double *values, int64_t numel) {
    TN_SCOPE;
    TN_NO_GRAD;
    tn_tensor *y = c->function(c->ctx, c->inputs);
    tn_status s = tn_status_of(y);
    return s == TN_OK ? tn_read_as(tn_cast(y, TN_F64), values, numel, TN_F64) : s;
}

/* d y / d (element k of input i), for all elements of y, into high. low: as much room. */
static tn_status differences(const check *c, int i, int64_t k, double *high, double *low, int64_t numel) {
    TN_SCOPE;
    TN_NO_GRAD;
    tn_tensor *x = c->inputs[i], *kept = tn_clone(x), *step;
    tn_status s = tn_status_of(kept);
    if (s != TN_OK) return s;
    step =
        times(tn_reshape(tn_one_hot(tn_from_data(&k, NULL, 0, TN_I64), tn_numel(x), TN_F64), tn_shape(x), tn_rank(x)),
              c->o.eps);
    s = tn_status_of(tn_copy_(x, tn_add(kept, step)));
    if (s == TN_OK) s = values_of(c, high, numel);
    if (s == TN_OK) s = tn_status_of(tn_copy_(x, tn_sub(kept, step)));
    if (s == TN_OK) s = values_of(c, low, numel);
    tn_status back = tn_status_of(tn_copy_(x, kept));
    for (int64_t e = 0; e < numel && s == TN_OK; e++)
        high[e] = (high[e] - low[e]) / (2 * c->o.eps);
    return s == TN_OK ? back : s;
}

/* d (element e of y) / d x, for all elements of x. */
static tn_status analytic(const tn_tensor *y, int64_t e, tn_tensor *x, double *values) {
    TN_SCOPE;
    tn_tensor *one = tn_cast(tn_one_hot(tn_from_data(&e, NULL, 0, TN_I64), tn_numel(y), TN_F64), tn_dtype_of(y));
    tn_tensor *seed = tn_reshape(one, tn_shape(y), tn_rank(y)), *grad;
    tn_tensor *output = (tn_tensor *)(uintptr_t)y;
    tn_status s = tn_gradients(&output, 1, &seed, &x, 1, false, &grad);
    return s == TN_OK ? tn_read_as(grad, values, tn_numel(x), TN_F64) : s;
}

static bool is_close(const check *c, double a, double n) {
    return a == n || (isnan(a) && isnan(n)) || fabs(a - n) <= c->o.atol + c->o.rtol * fabs(n);
}

/* jacobian: [numel of y][numel of x], analytic; columns of differences are compared with it. */
static tn_status compare_input(const check *c, int i, const double *jacobian, int64_t numel) {
    int64_t width = tn_numel(c->inputs[i]);
    double *room = malloc((size_t)(2 * numel + 1) * sizeof *room);
    tn_status s = room ? TN_OK : tn_status_of(tn_failed(TN_ERR_MEMORY, "gradcheck: out of memory"));
    for (int64_t k = 0; k < width && s == TN_OK; k++) {
        s = differences(c, i, k, room, room + numel, numel);
        for (int64_t e = 0; e < numel && s == TN_OK; e++)
            if (!is_close(c, jacobian[e * width + k], room[e]))
                s = tn_status_of(tn_failed(TN_ERR_STATE,
                                           "gradcheck: the derivative of element %lld of the result with respect to "
                                           "element %lld of input %d is %.9g, but central differences give %.9g",
                                           (long long)e, (long long)k, i, jacobian[e * width + k], room[e]));
    }
    free(room);
    return s;
}

static tn_status check_jacobian(const check *c, const tn_tensor *y, int i) {
    int64_t numel = tn_numel(y), width = tn_numel(c->inputs[i]);
    double *jacobian = calloc((size_t)(numel * width) + 1, sizeof *jacobian);
    tn_status s = jacobian ? TN_OK : tn_status_of(tn_failed(TN_ERR_MEMORY, "gradcheck: out of memory"));
    for (int64_t e = 0; e < numel && s == TN_OK; e++)
        s = analytic(y, e, c->inputs[i], jacobian + e * width);
    if (s == TN_OK) s = compare_input(c, i, jacobian, numel);
    free(jacobian);
    return s;
}

static tn_status check_first(const check *c) {
    tn_tensor *y = c->function(c->ctx, c->inputs);
    tn_status s = tn_status_of(y);
    if (s == TN_OK && !is_float(y))
        s = tn_status_of(
            tn_failed(TN_ERR_DTYPE, "gradcheck: the result is %s; it must be floating", tn_dtype_name(tn_dtype_of(y))));
    if (s == TN_OK && !tn_requires_grad(y))
        s = tn_status_of(tn_failed(TN_ERR_STATE, "gradcheck: the result does not require gradients"));
    for (int i = 0; i < c->count && s == TN_OK; i++)
        if (tn_requires_grad(c->inputs[i])) s = check_jacobian(c, y, i);
    return s;
}

/* The gradients of a function, weighted by the last input, one after the other: what the second order checks. */
static tn_tensor *gradients_of(void *ctx, tn_tensor *const *inputs) {
    const check *c = ctx;
    tn_tensor *wanted[MOST_INPUTS], *grads[MOST_INPUTS], *weight = inputs[c->count], *result;
    int n = 0;
    TN_SCOPE;
    bool before = tn_set_grad_enabled(true); /* differences are taken without gradients */
    tn_tensor *y = c->function(c->ctx, inputs);
    for (int i = 0; i < c->count; i++)
        if (tn_requires_grad(inputs[i])) wanted[n++] = inputs[i];
    tn_status s = tn_gradients(&y, 1, &weight, wanted, n, true, grads);
    for (int i = 0; i < n && s == TN_OK; i++)
        grads[i] = flat(grads[i]);
    result = tn_keep(s == TN_OK ? tn_cat(grads, n, 0) : tn_failed(s, "%s", tn_error()));
    tn_set_grad_enabled(before);
    return result;
}

static tn_status check_second(const check *c) {
    tn_tensor *inputs[MOST_INPUTS + 1];
    check second = {gradients_of, (void *)(uintptr_t)c, inputs, c->count + 1, c->o};
    tn_tensor *y = c->function(c->ctx, c->inputs);
    /* weights that are not alike, so that terms do not cancel */
    tn_tensor *w = tn_cast(plus(tn_cos(tn_cast(numbers(1, tn_numel(y)), TN_F64)), 1.5), TN_F64);
    if (tn_dtype_of(y) != TN_F64)
        return tn_status_of(
            tn_failed(TN_ERR_DTYPE, "gradcheck: order 2 needs a result of f64, not %s", tn_dtype_name(tn_dtype_of(y))));
    memcpy(inputs, c->inputs, (size_t)c->count * sizeof(tn_tensor *));
    inputs[c->count] = tn_clone(tn_detach(tn_reshape(w, tn_shape(y), tn_rank(y))));
    tn_status s = tn_set_requires_grad(inputs[c->count], true);
    return s == TN_OK ? check_first(&second) : s;
}

/* A copy of an input, which the check may write. */
static tn_status take_input(tn_tensor *x, int i, tn_tensor **copy) {
    tn_status s = tn_status_of(x);
    if (s != TN_OK) return s;
    *copy = tn_clone(tn_detach(x));
    if (!tn_requires_grad(x)) return tn_status_of(*copy);
    if (tn_dtype_of(x) != TN_F64)
        return tn_status_of(tn_failed(TN_ERR_DTYPE, "gradcheck: input %d requires gradients and is %s; it must be f64",
                                      i, tn_dtype_name(tn_dtype_of(x))));
    return tn_set_requires_grad(*copy, true);
}

tn_status tn_gradcheck(tn_differentiable *function, void *ctx, tn_tensor *const *inputs, int count,
                       const tn_gradcheck_options *options) {
    tn_tensor *copies[MOST_INPUTS];
    check c = {function, ctx, copies, count, TN_GRADCHECK_DEFAULTS};
    TN_SCOPE;
    if (!function || !inputs || count < 1 || count > MOST_INPUTS)
        return tn_status_of(tn_failed(TN_ERR_ARGUMENT, "gradcheck: needs a function and 1 to %d inputs, but has %d",
                                      MOST_INPUTS, count));
    tn_status s = tn_options_read(&c.o, options, "gradcheck", "tn_gradcheck_options o = TN_GRADCHECK_DEFAULTS");
    if (s == TN_OK &&
        (!(c.o.eps > 0 && isfinite(c.o.eps)) || !(c.o.atol >= 0) || !(c.o.rtol >= 0) || c.o.order < 1 || c.o.order > 2))
        s = tn_status_of(tn_failed(TN_ERR_ARGUMENT,
                                   "gradcheck: eps %g, atol %g, rtol %g, order %d; eps must be finite and "
                                   "greater than 0, atol and rtol at least 0, order 1 or 2",
                                   c.o.eps, c.o.atol, c.o.rtol, c.o.order));
    for (int i = 0; i < count && s == TN_OK; i++)
        s = take_input(inputs[i], i, &copies[i]);
    if (s == TN_OK) s = check_first(&c);
    return s == TN_OK && c.o.order == 2 ? check_second(&c) : s;
}
