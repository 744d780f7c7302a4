/* optim.c — SGD, Adam and AdamW, gradient clipping, learning-rate schedules.
 *
 * A step records element-wise writes to state and then runs everything at once. What changes from step to step
 * (learning rate, bias corrections) are runtime scalars, shared by all variables, so every step is the same plan.
 * Nothing is recorded before every gradient has been seen to be sound: a write of an error would spoil its variable. */
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nn/make.h"
#include "trunnion/autograd.h"
#include "trunnion/backend.h"
#include "trunnion/ops.h"
#include "trunnion/optim.h"

enum { MAX_SLOTS = 2, MAX_NUMBERS = 3 };

/* One variable that is trained. */
typedef struct trained {
    char *name;
    tn_tensor *value;
    tn_tensor *slots[MAX_SLOTS]; /* the method's memory, as the method names it */
    tn_tensor *gradient;         /* during a step; NULL: left alone */
    int64_t steps;
} trained;

/* A method: what it remembers a variable, the numbers that all variables share in a step, and what it records a
 * variable. Runtime scalars differ from step to step and must not be part of the plan; constants are part of it. */
typedef struct method {
    const char *name;
    const char *slot_names[MAX_SLOTS];
    int slot_count, scalar_count, constant_count;
    void (*scalars)(const tn_optimizer *o, int64_t step, double *values);
    void (*constants)(const tn_optimizer *o, double *values);
    void (*update)(const tn_optimizer *o, trained *v, tn_tensor *const *scalars, tn_tensor *const *constants);
} method;

struct tn_optimizer {
    _Atomic int refs; /* the caller's, and one for each captured step */
    const method *method;
    trained *items;
    int count;
    int slot_count; /* of the method; SGD without momentum needs none */
    double lr, weight_decay, max_grad_norm;
    double momentum, dampening; /* SGD */
    bool nesterov;
    double beta1, beta2, eps; /* Adam */
};

/* The gradient, plus weight_decay times the variable. */
static tn_tensor *decayed(const tn_optimizer *o, const trained *v, const tn_tensor *weight_decay) {
    return o->weight_decay == 0 ? v->gradient : tn_add(v->gradient, tn_mul(v->value, weight_decay));
}

/* ---- SGD --------------------------------------------------------------------------------------------------------- */

enum { SGD_RATE, SGD_NEW, SGD_RUNTIME_SCALARS }; /* learning rate; what of the gradient enters the momentum */
enum { SGD_DECAY, SGD_MOMENTUM, SGD_CONSTANTS };

static void sgd_runtime_scalars(const tn_optimizer *o, int64_t step, double *values) {
    values[SGD_RATE] = o->lr;
    values[SGD_NEW] = step == 1 ? 1 : 1 - o->dampening; /* all of it the first time */
}

static void sgd_constants(const tn_optimizer *o, double *values) {
    values[SGD_DECAY] = o->weight_decay;
    values[SGD_MOMENTUM] = o->momentum;
}

static void sgd_update(const tn_optimizer *o, trained *v, tn_tensor *const *scalars, tn_tensor *const *constants) {
    tn_tensor *g = decayed(o, v, constants[SGD_DECAY]);
    if (o->momentum != 0) {
        tn_tensor *buffer = v->slots[0];
        tn_mul_(buffer, constants[SGD_MOMENTUM]);
        tn_add_(buffer, o->dampening != 0 ? tn_mul(g, scalars[SGD_NEW]) : g);
        g = o->nesterov ? tn_add(g, tn_mul(buffer, constants[SGD_MOMENTUM])) : buffer;
    }
    tn_sub_(v->value, tn_mul(g, scalars[SGD_RATE]));
}

/* ---- Adam, AdamW ------------------------------------------------------------------------------------------------- */

enum { ADAM_SIZE, ADAM_EPS, ADAM_RUNTIME_SCALARS, ADAMW_KEPT = ADAM_RUNTIME_SCALARS, ADAMW_RUNTIME_SCALARS };
enum { ADAM_DECAY, ADAM_NEW, ADAM_BETA2, ADAM_CONSTANTS };

/* The definition's fraction, numerator and denominator times c = sqrt(1 − beta2^t):
 * lr·c / (1 − beta1^t) · m / (sqrt(v) + eps·c) has one multiplication less an element. */
static void adam_runtime_scalars(const tn_optimizer *o, int64_t step, double *values) {
    double c = sqrt(1 - pow(o->beta2, (double)step));
    values[ADAM_SIZE] = o->lr * c / (1 - pow(o->beta1, (double)step));
    values[ADAM_EPS] = o->eps * c;
}

static void adamw_runtime_scalars(const tn_optimizer *o, int64_t step, double *values) {
    adam_runtime_scalars(o, step, values);
    values[ADAMW_KEPT] = 1 - o->lr * o->weight_decay;
}

static void adam_constants(const tn_optimizer *o, double *values) {
    values[ADAM_DECAY] = o->weight_decay;
    values[ADAM_NEW] = 1 - o->beta1;
    values[ADAM_BETA2] = o->beta2;
}

static void adam_move(const tn_optimizer *o, trained *v, tn_tensor *g, tn_tensor *const *scalars,
                      tn_tensor *const *constants) {
    tn_tensor *mean = v->slots[0], *square = v->slots[1];
    tn_lerp_(mean, g, constants[ADAM_NEW]);
    tn_addcmul_(tn_mul_(square, constants[ADAM_BETA2]), g, g, 1 - o->beta2);
    tn_tensor *root = tn_add(tn_sqrt(square), scalars[ADAM_EPS]);
    tn_sub_(v->value, tn_div(tn_mul(mean, scalars[ADAM_SIZE]), root));
}

static void adam_update(const tn_optimizer *o, trained *v, tn_tensor *const *scalars, tn_tensor *const *constants) {
    adam_move(o, v, decayed(o, v, constants[ADAM_DECAY]), scalars, constants);
}

static void adamw_update(const tn_optimizer *o, trained *v, tn_tensor *const *scalars, tn_tensor *const *constants) {
    if (o->weight_decay != 0) tn_mul_(v->value, scalars[ADAMW_KEPT]);
    adam_move(o, v, v->gradient, scalars, constants);
}

static const method sgd = {.name = "sgd",
                           .slot_names = {"momentum_buffer"},
                           .slot_count = 1,
                           .scalar_count = SGD_RUNTIME_SCALARS,
                           .constant_count = SGD_CONSTANTS,
                           .scalars = sgd_runtime_scalars,
                           .constants = sgd_constants,
                           .update = sgd_update};
static const method adam = {.name = "adam",
                            .slot_names = {"exp_avg", "exp_avg_sq"},
                            .slot_count = 2,
                            .scalar_count = ADAM_RUNTIME_SCALARS,
                            .constant_count = ADAM_CONSTANTS,
                            .scalars = adam_runtime_scalars,
                            .constants = adam_constants,
                            .update = adam_update};
static const method adamw = {.name = "adamw",
                             .slot_names = {"exp_avg", "exp_avg_sq"},
                             .slot_count = 2,
                             .scalar_count = ADAMW_RUNTIME_SCALARS,
                             .constant_count = ADAM_CONSTANTS,
                             .scalars = adamw_runtime_scalars,
                             .constants = adam_constants,
                             .update = adamw_update};

/* ---- making ------------------------------------------------------------------------------------------------------ */

void tn_optimizer_free(tn_optimizer *o) {
    if (!o || atomic_fetch_sub(&o->refs, 1) != 1) return;
    for (int i = 0; i < o->count; i++) {
        for (int k = 0; k < MAX_SLOTS; k++)
            tn_free(o->items[i].slots[k]);
        tn_free(o->items[i].value);
        free(o->items[i].name);
    }
    free(o->items);
    free(o);
}

static tn_status optim_out_of_memory(void) { return tn_backend_fail(TN_ERR_MEMORY, "optimizer: out of memory"); }

static tn_status add_variable(tn_optimizer *o, const tn_variable *variable) {
    trained *v = &o->items[o->count];
    v->name = strdup(variable->name);
    if (!v->name) return optim_out_of_memory();
    v->value = tn_retain(variable->tensor);
    o->count++;
    for (int k = 0; k < o->slot_count; k++) {
        tn_status status = TN_OK;
        {
            TN_SCOPE;
            tn_tensor *zero = tn_full(tn_shape(v->value), tn_rank(v->value), 0, tn_dtype_of(v->value));
            status = tn_make_state(zero);
            if (status == TN_OK) v->slots[k] = tn_retain(zero);
        }
        if (status != TN_OK) return status;
    }
    return TN_OK;
}

static tn_status add_variables(tn_optimizer *o, const tn_variable *variables, int count) {
    o->items = calloc((size_t)count + 1, sizeof *o->items);
    if (!o->items) return optim_out_of_memory();
    tn_status status = TN_OK;
    for (int i = 0; i < count && status == TN_OK; i++)
        if (tn_requires_grad(variables[i].tensor)) status = add_variable(o, &variables[i]);
    if (status == TN_OK && o->count == 0)
        status = tn_backend_fail(TN_ERR_ARGUMENT, "%s: the module has no parameter that requires gradients",
                                 o->method->name);
    return status;
}

static tn_status check_value(const char *what, double value, double low, double high) {
    if (value >= low && value < high) return TN_OK;
    return tn_backend_fail(TN_ERR_ARGUMENT, "optimizer: %s is %g; it must be at least %g and less than %g", what, value,
                           low, high);
}

/* Takes the settings in `model`, adds the variables below m. */
static tn_status make_optim(tn_module *m, const tn_optimizer *model, tn_optimizer **out) {
    *out = NULL;
    tn_status status = tn_module_status(m);
    if (status == TN_OK) status = check_value("lr", model->lr, 0, INFINITY);
    if (status == TN_OK) status = check_value("weight_decay", model->weight_decay, 0, INFINITY);
    if (status == TN_OK && !(model->max_grad_norm >= 0))
        status = tn_backend_fail(TN_ERR_ARGUMENT,
                                 "optimizer: max_grad_norm is %g; it must be at least 0 (INFINITY: no limit)",
                                 model->max_grad_norm);
    if (status != TN_OK) return status;

    tn_variable *variables = NULL;
    int count = 0;
    status = tn_module_parameters(m, &variables, &count);
    tn_optimizer *o = status == TN_OK ? malloc(sizeof *o) : NULL;
    if (o) {
        memcpy(o, model, sizeof *o);
        atomic_init(&o->refs, 1);
        status = add_variables(o, variables, count);
    } else if (status == TN_OK) {
        status = optim_out_of_memory();
    }
    tn_variables_free(variables);
    if (status == TN_OK)
        *out = o;
    else
        tn_optimizer_free(o);
    return status;
}

tn_status tn_optimizer_sgd(tn_module *m, const tn_sgd_options *options, tn_optimizer **out) {
    tn_status status = tn_nn_need(out, "sgd: out");
    if (status != TN_OK) return status;
    *out = NULL;
    tn_sgd_options o = TN_SGD_DEFAULTS;
    status = tn_options_read(&o, options, "sgd", "tn_sgd_options o = TN_SGD_DEFAULTS");
    if (status == TN_OK) status = check_value("momentum", o.momentum, 0, INFINITY);
    if (status == TN_OK && o.nesterov && (o.momentum == 0 || o.dampening != 0))
        status = tn_backend_fail(TN_ERR_ARGUMENT, "sgd: nesterov requires momentum above 0 and dampening 0");
    if (status != TN_OK) return status;
    tn_optimizer model = {.method = &sgd,
                          .slot_count = o.momentum != 0,
                          .lr = o.lr,
                          .momentum = o.momentum,
                          .dampening = o.dampening,
                          .weight_decay = o.weight_decay,
                          .nesterov = o.nesterov,
                          .max_grad_norm = o.max_grad_norm};
    return make_optim(m, &model, out);
}

/* o: the defaults; the caller's options go over them. */
static tn_status make_adam(const method *how, tn_module *m, tn_adam_options o, const tn_adam_options *options,
                           const char *initialiser, tn_optimizer **out) {
    tn_status status = tn_nn_need(out, "adam: out");
    if (status != TN_OK) return status;
    *out = NULL;
    status = tn_options_read(&o, options, how == &adamw ? "adamw" : "adam", initialiser);
    if (status != TN_OK) return status;
    tn_optimizer model = {.method = how,
                          .slot_count = how->slot_count,
                          .lr = o.lr,
                          .beta1 = o.beta1,
                          .beta2 = o.beta2,
                          .eps = o.eps,
                          .weight_decay = o.weight_decay,
                          .max_grad_norm = o.max_grad_norm};
    status = check_value("beta1", model.beta1, 0, 1);
    if (status == TN_OK) status = check_value("beta2", model.beta2, 0, 1);
    if (status == TN_OK) status = check_value("eps", model.eps, 0, INFINITY);
    return status == TN_OK ? make_optim(m, &model, out) : status;
}

tn_status tn_optimizer_adam(tn_module *m, const tn_adam_options *options, tn_optimizer **out) {
    return make_adam(&adam, m, (tn_adam_options)TN_ADAM_DEFAULTS, options, "tn_adam_options o = TN_ADAM_DEFAULTS", out);
}

tn_status tn_optimizer_adamw(tn_module *m, const tn_adam_options *options, tn_optimizer **out) {
    return make_adam(&adamw, m, (tn_adam_options)TN_ADAMW_DEFAULTS, options, "tn_adam_options o = TN_ADAMW_DEFAULTS",
                     out);
}

/* ---- gradients --------------------------------------------------------------------------------------------------- */

/* The sum of squares so far, with one more tensor's; NULL: nothing yet. */
static tn_tensor *add_squares(tn_tensor *sum, const tn_tensor *x) {
    tn_tensor *square = tn_sum(tn_mul(x, x), NULL, 0, false);
    return sum ? tn_add(sum, square) : square;
}

/* What gradients of this norm are multiplied with so that it becomes max_norm at most. */
static tn_tensor *clip_factor(const tn_tensor *norm, double max_norm) {
    return tn_minimum(tn_div(tn_scalar(max_norm), tn_add(norm, tn_scalar(1e-6))), tn_scalar(1));
}

static tn_status clip_variables(const tn_variable *variables, int count, double max_norm, tn_tensor **total_norm) {
    tn_tensor *sum = NULL;
    for (int i = 0; i < count; i++) {
        tn_tensor *g = tn_grad(variables[i].tensor);
        tn_status status = g ? tn_status_of(g) : TN_OK;
        if (status != TN_OK) return status;
        if (g) sum = add_squares(sum, g);
    }
    tn_tensor *norm = tn_sqrt(sum ? sum : tn_scalar(0)), *factor = clip_factor(norm, max_norm);
    for (int i = 0; i < count; i++) {
        tn_tensor *g = tn_grad(variables[i].tensor);
        if (g) tn_mul_(g, factor);
    }
    if (total_norm) *total_norm = tn_keep(norm);
    return tn_status_of(norm);
}

tn_status tn_clip_grad_norm(tn_module *m, double max_norm, tn_tensor **total_norm) {
    if (total_norm) *total_norm = NULL;
    if (!(max_norm >= 0))
        return tn_backend_fail(
            TN_ERR_ARGUMENT, "tn_clip_grad_norm: max_norm is %g; it must be at least 0 (INFINITY: no limit)", max_norm);
    tn_variable *variables = NULL;
    int count = 0;
    tn_status status = tn_module_parameters(m, &variables, &count);
    if (status != TN_OK) return status;
    {
        TN_SCOPE;
        TN_NO_GRAD;
        status = clip_variables(variables, count, max_norm, total_norm);
    }
    tn_variables_free(variables);
    return status;
}

/* Numbers in a row, [1] each, joined in groups that tn_cat takes: reductions of one form side by side share launches,
 * which a chain of sums would part. */
static tn_tensor *join_all(tn_tensor **parts, int count) {
    enum { GROUP = 64 };
    while (count > 1) {
        int groups = 0;
        for (int i = 0; i < count; i += GROUP)
            parts[groups++] = tn_cat(parts + i, count - i < GROUP ? count - i : GROUP, 0);
        if (groups == 1) break;
        for (int i = 0; i < groups; i++)
            parts[i] = tn_all(parts[i], TN_DIMS(0), true);
        count = groups;
    }
    return tn_all(parts[0], TN_ALL, false);
}

static tn_tensor *all_finite(const tn_variable *variables, int count) {
    int n = 0;
    tn_tensor **parts = malloc(((size_t)count + 1) * sizeof *parts);
    if (!parts) return tn_failed(TN_ERR_MEMORY, "tn_grad_is_finite: out of memory");
    for (int i = 0; i < count; i++) {
        const tn_tensor *g = tn_grad(variables[i].tensor);
        if (g) parts[n++] = tn_all(tn_isfinite(tn_reshape(g, TN_DIMS(-1))), TN_DIMS(0), true);
    }
    tn_tensor *result = n ? join_all(parts, n) : tn_full(NULL, 0, 1, TN_BOOL);
    free(parts);
    return result;
}

tn_tensor *tn_grad_is_finite(const tn_module *m) {
    tn_variable *variables = NULL;
    int count = 0;
    tn_status status = tn_module_parameters(m, &variables, &count);
    if (status != TN_OK) return tn_failed(status, "%s", tn_error());
    TN_SCOPE;
    TN_NO_GRAD;
    tn_tensor *result = tn_keep(all_finite(variables, count));
    tn_variables_free(variables);
    return result;
}

void tn_optimizer_zero_grad(tn_optimizer *o) {
    for (int i = 0; o && i < o->count; i++)
        tn_zero_grad(o->items[i].value);
}

/* ---- a step ------------------------------------------------------------------------------------------------------ */

/* Where a step's gradients come from: as tn_nn_step has it. */
typedef struct gradients {
    tn_tensor *(*of)(void *ctx, const tn_tensor *parameter);
    tn_status (*also)(void *ctx); /* may be NULL */
    void *ctx;
} gradients;

static tn_tensor *collected(void *ctx, const tn_tensor *parameter) {
    (void)ctx;
    return tn_grad(parameter);
}

static tn_status collect_gradients(tn_optimizer *o, const gradients *g) {
    for (int i = 0; i < o->count; i++) {
        trained *v = &o->items[i];
        v->gradient = g->of(g->ctx, v->value);
        tn_status status = v->gradient ? tn_status_of(v->gradient) : TN_OK;
        if (status != TN_OK) return status;
    }
    return TN_OK;
}

static tn_status clip_collected(tn_optimizer *o) {
    tn_tensor *sum = NULL;
    for (int i = 0; i < o->count; i++)
        if (o->items[i].gradient) sum = add_squares(sum, o->items[i].gradient);
    if (!sum) return TN_OK;
    tn_tensor *factor = clip_factor(tn_sqrt(sum), o->max_grad_norm);
    for (int i = 0; i < o->count; i++)
        if (o->items[i].gradient) o->items[i].gradient = tn_mul(o->items[i].gradient, factor);
    return tn_status_of(factor);
}

/* A step within a capture: which variables it moves, and with which runtime scalars. Variables with one step count
 * share a set of runtime scalars; launches give each set the values that the learning rate and the step count then
 * have. */
typedef struct captured_step {
    tn_optimizer *o; /* retained */
    int *set;        /* of each variable's runtime scalars; -1: the step leaves the variable alone */
    int set_count;
    tn_tensor **scalars; /* of all sets; gone when the step has been recorded */
} captured_step;

static void captured_free(void *ctx) {
    captured_step *c = ctx;
    if (!c) return;
    tn_optimizer_free(c->o);
    free(c->set);
    free(c->scalars);
    free(c);
}

static tn_status captured_new(tn_optimizer *o, captured_step **out) {
    captured_step *c = *out = calloc(1, sizeof *c);
    if (!c) return optim_out_of_memory();
    atomic_fetch_add(&o->refs, 1);
    c->o = o;
    c->set = malloc((size_t)o->count * sizeof *c->set);
    c->scalars = calloc((size_t)o->count * MAX_NUMBERS, sizeof *c->scalars);
    if (!c->set || !c->scalars) return optim_out_of_memory();
    for (int i = 0; i < o->count; i++)
        c->set[i] = -1;
    return TN_OK;
}

static void captured_count(const captured_step *c, int64_t change) {
    for (int i = 0; i < c->o->count; i++)
        if (c->set[i] >= 0) c->o->items[i].steps += change;
}

static void captured_undo(void *ctx) { captured_count(ctx, -1); }

static tn_status captured_advance(void *ctx, double *values) {
    const captured_step *c = ctx;
    const tn_optimizer *o = c->o;
    int64_t steps = 0;
    int last = -1; /* sets follow each other in the order of the variables */
    for (int i = 0; i < o->count; i++) {
        if (c->set[i] < 0) continue;
        if (c->set[i] != last) {
            steps = o->items[i].steps;
            last = c->set[i];
            o->method->scalars(o, steps + 1, values + last * o->method->scalar_count);
        }
        if (o->items[i].steps != steps)
            return tn_backend_fail(TN_ERR_STATE,
                                   "optimizer: %s has made %lld steps and others %lld, but they were equal when the "
                                   "step was captured; capture it again",
                                   o->items[i].name, (long long)o->items[i].steps, (long long)steps);
    }
    captured_count(c, 1);
    return TN_OK;
}

/* The step has been recorded: from now on it belongs to the capture. */
static tn_status captured_add(captured_step *c) {
    const tn_capture_hook hook = {.struct_size = sizeof hook,
                                  .advance = captured_advance,
                                  .undo = captured_undo,
                                  .release = captured_free,
                                  .ctx = c};
    tn_status status = tn_capture_add_hook(&hook, c->scalars, c->set_count * c->o->method->scalar_count);
    free(c->scalars);
    c->scalars = NULL;
    return status;
}

/* Makes the runtime scalars of a step, which variables with the same count share, and notes them for a capture. */
static void make_runtime_scalars(const tn_optimizer *o, int64_t step, tn_tensor **scalars, captured_step *c) {
    double values[MAX_NUMBERS];
    o->method->scalars(o, step, values);
    for (int k = 0; k < o->method->scalar_count; k++) {
        scalars[k] = tn_runtime_scalar(values[k]);
        if (c) c->scalars[c->set_count * o->method->scalar_count + k] = scalars[k];
    }
    if (c) c->set_count++;
}

/* Variables that joined later count their own steps, and so have runtime scalars of their own; as a rule all share one
 * pair. */
static tn_status record_updates(tn_optimizer *o, captured_step *captured) {
    const method *m = o->method;
    double values[MAX_NUMBERS];
    tn_tensor *scalars[MAX_NUMBERS] = {NULL}, *constants[MAX_NUMBERS];
    m->constants(o, values);
    for (int k = 0; k < m->constant_count; k++)
        constants[k] = tn_scalar(values[k]);
    int64_t step = -1;
    for (int i = 0; i < o->count; i++) {
        trained *v = &o->items[i];
        if (!v->gradient) continue;
        if (v->steps + 1 != step) {
            step = v->steps + 1;
            make_runtime_scalars(o, step, scalars, captured);
        }
        if (captured) captured->set[i] = captured->set_count - 1;
        m->update(o, v, scalars, constants);
        /* Only memory can run out here, and then the variable is spoiled: that must not pass for a step. */
        tn_status status = tn_status_of(v->value);
        for (int k = 0; k < o->slot_count && status == TN_OK; k++)
            status = tn_status_of(v->slots[k]);
        if (status != TN_OK) return status;
    }
    return TN_OK;
}

static void count_step(tn_optimizer *o, int64_t change) {
    for (int i = 0; i < o->count; i++)
        if (o->items[i].gradient) o->items[i].steps += change;
}

static tn_status record_step(tn_optimizer *o, const gradients *g) {
    TN_SCOPE;
    TN_NO_GRAD;
    captured_step *captured = NULL;
    tn_status status = tn_capturing() ? captured_new(o, &captured) : TN_OK;
    if (status == TN_OK) status = collect_gradients(o, g);
    if (status == TN_OK && o->max_grad_norm < INFINITY) status = clip_collected(o);
    if (status == TN_OK) status = record_updates(o, captured);
    if (status == TN_OK && g->also) status = g->also(g->ctx);
    if (status == TN_OK && captured) status = captured_add(captured);
    if (status != TN_OK) captured_free(captured);
    return status;
}

/* Records the step; forget: gradients are let go before the run, so that it need not store them. */
static tn_status step(tn_optimizer *o, bool forget, const gradients *g) {
    tn_status status = record_step(o, g);
    if (status == TN_OK) count_step(o, 1);
    if (forget) tn_optimizer_zero_grad(o);
    if (status == TN_OK) {
        status = tn_eval(NULL, 0);
        if (status != TN_OK) count_step(o, -1);
    }
    for (int i = 0; i < o->count; i++)
        o->items[i].gradient = NULL;
    return status;
}

tn_status tn_optimizer_step(tn_optimizer *o) {
    tn_status status = tn_nn_need(o, "tn_optimizer_step: the optimizer");
    return status == TN_OK ? step(o, false, &(gradients){.of = collected}) : status;
}

tn_status tn_minimize(tn_optimizer *o, const tn_tensor *loss) {
    tn_status status = tn_nn_need(o, "tn_minimize: the optimizer");
    if (status != TN_OK) return status;
    tn_optimizer_zero_grad(o);
    status = tn_backward(loss);
    if (status == TN_OK) return step(o, true, &(gradients){.of = collected});
    tn_optimizer_zero_grad(o);
    return status;
}

tn_status tn_nn_step(tn_optimizer *o, tn_tensor *(*gradient)(void *ctx, const tn_tensor *parameter),
                     tn_status (*also)(void *ctx), void *ctx) {
    return step(o, true, &(gradients){gradient, also, ctx});
}

/* ---- facts ------------------------------------------------------------------------------------------------------- */

double tn_optimizer_lr(const tn_optimizer *o) { return o ? o->lr : 0; }
tn_status tn_optimizer_set_lr(tn_optimizer *o, double lr) {
    tn_status status = tn_nn_need(o, "tn_optimizer_set_lr: the optimizer");
    if (status == TN_OK) status = check_value("lr", lr, 0, INFINITY);
    if (status == TN_OK) o->lr = lr;
    return status;
}
int tn_optimizer_count(const tn_optimizer *o) { return o ? o->count : 0; }

int64_t tn_optimizer_steps(const tn_optimizer *o, int i) {
    return i >= 0 && i < tn_optimizer_count(o) ? o->items[i].steps : -1;
}

tn_status tn_optimizer_set_steps(tn_optimizer *o, int i, int64_t steps) {
    tn_status status = tn_nn_need(o, "tn_optimizer_set_steps: the optimizer");
    if (status != TN_OK) return status;
    if (i < 0 || i >= o->count || steps < 0)
        return tn_backend_fail(TN_ERR_ARGUMENT, "optimizer: variable %d of %d cannot have made %lld steps", i, o->count,
                               (long long)steps);
    o->items[i].steps = steps;
    return TN_OK;
}

tn_status tn_optimizer_variables(const tn_optimizer *o, tn_variable **items, int *count) {
    if (!o || !items || !count) return tn_nn_need(NULL, "tn_optimizer_variables: the optimizer, items or count");
    *items = NULL;
    *count = 0;
    int total = o->count * o->slot_count;
    size_t text_size = 0;
    for (int i = 0; i < o->count; i++)
        for (int k = 0; k < o->slot_count; k++)
            text_size += strlen(o->method->slot_names[k]) + strlen(o->items[i].name) + 2;
    if (total == 0) return TN_OK;
    tn_variable *block = malloc((size_t)total * sizeof *block + text_size);
    if (!block) return optim_out_of_memory();
    char *text = (char *)(block + total);
    for (int k = 0, n = 0; k < o->slot_count; k++)
        for (int i = 0; i < o->count; i++) {
            block[n++] = (tn_variable){text, o->items[i].slots[k], false};
            text += sprintf(text, "%s.%s", o->method->slot_names[k], o->items[i].name) + 1;
        }
    *items = block;
    *count = total;
    return TN_OK;
}

/* ---- learning-rate schedules ------------------------------------------------------------------------------------- */

static tn_status check_schedule(const tn_schedule *s, int64_t at) {
    if ((unsigned)s->kind > TN_SCHEDULE_COSINE)
        return tn_backend_fail(TN_ERR_ARGUMENT,
                               "tn_schedule_at: kind is %d; it must be one of TN_SCHEDULE_CONSTANT, "
                               "TN_SCHEDULE_LINEAR, TN_SCHEDULE_COSINE",
                               (int)s->kind);
    if (!(s->lr >= 0 && isfinite(s->lr)) || !(s->final_lr >= 0 && isfinite(s->final_lr)))
        return tn_backend_fail(TN_ERR_ARGUMENT,
                               "tn_schedule_at: lr is %g and final_lr %g; they must be finite and at least 0", s->lr,
                               s->final_lr);
    if (at < 0 || s->warmup < 0 || s->total < 0)
        return tn_backend_fail(TN_ERR_ARGUMENT,
                               "tn_schedule_at: step %lld, warmup %lld, total %lld; all must be at least 0",
                               (long long)at, (long long)s->warmup, (long long)s->total);
    return TN_OK;
}

double tn_schedule_at(const tn_schedule *given, int64_t at) {
    if (!given) return NAN;
    tn_schedule read = TN_SCHEDULE_DEFAULTS, *s = &read;
    if (tn_options_read(s, given, "tn_schedule_at", "tn_schedule s = TN_SCHEDULE_DEFAULTS") != TN_OK) return NAN;
    if (check_schedule(s, at) != TN_OK) return NAN;
    if (at < s->warmup) return s->lr * (double)(at + 1) / (double)s->warmup;
    if (s->kind == TN_SCHEDULE_CONSTANT) return s->lr;
    if (at >= s->total) return s->final_lr;
    double part = (double)(at - s->warmup) / (double)(s->total - s->warmup); /* of the way down: [0, 1) */
    double left = s->kind == TN_SCHEDULE_LINEAR ? 1 - part : 0.5 * (1 + cos(acos(-1) * part));
    return s->final_lr + (s->lr - s->final_lr) * left;
}
