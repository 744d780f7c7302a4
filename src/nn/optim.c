/* optim.c — SGD, Adam and AdamW, gradient clipping, learning-rate schedules.
 *
 * A step records element-wise writes to state and then runs everything at once. What changes from step to step (learning
 * rate, bias corrections) are dials, shared by all variables, so every step is the same plan. Nothing is recorded before
 * every gradient has been seen to be sound: a write of an error would spoil its variable. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trunnion/autograd.h"
#include "trunnion/backend.h"
#include "trunnion/ops.h"
#include "trunnion/optim.h"

enum { MAX_SLOTS = 2, MAX_DIALS = 3 };

/* One variable that is trained. */
typedef struct trained {
    char *name;
    tn_tensor *value;
    tn_tensor *slots[MAX_SLOTS]; /* the method's memory, as the method names it */
    tn_tensor *gradient;         /* during a step; NULL: left alone */
    int64_t steps;
} trained;

/* A method: how many tensors it remembers a variable, what a step's dials are, and what it records a variable. */
typedef struct method {
    const char *name;
    const char *slot_names[MAX_SLOTS];
    int slot_count;
    int dial_count;
    void (*dials)(const tn_optimizer *o, int64_t step, double *values);
    void (*update)(const tn_optimizer *o, trained *v, tn_tensor *const *dials);
} method;

struct tn_optimizer {
    const method *method;
    trained *items;
    int count;
    int slot_count; /* of the method; SGD without momentum needs none */
    double lr, weight_decay, max_grad_norm;
    double momentum, dampening; /* SGD */
    bool nesterov;
    double beta1, beta2, eps; /* Adam */
};

/* ---- SGD --------------------------------------------------------------------------------------------------------- */

/* The learning rate, and what of the gradient enters the momentum: all of it the first time. */
static void sgd_dials(const tn_optimizer *o, int64_t step, double *values) {
    values[0] = o->lr;
    values[1] = step == 1 ? 1 : 1 - o->dampening;
}

static tn_tensor *decayed(const tn_optimizer *o, const trained *v) {
    if (o->weight_decay == 0) return v->gradient;
    return tn_add(v->gradient, tn_mul(v->value, tn_scalar(o->weight_decay)));
}

static void sgd_update(const tn_optimizer *o, trained *v, tn_tensor *const *dials) {
    tn_tensor *g = decayed(o, v);
    if (o->momentum != 0) {
        tn_tensor *buffer = v->slots[0];
        tn_mul_(buffer, tn_scalar(o->momentum));
        tn_add_(buffer, o->dampening != 0 ? tn_mul(g, dials[1]) : g);
        g = o->nesterov ? tn_add(g, tn_mul(buffer, tn_scalar(o->momentum))) : buffer;
    }
    tn_sub_(v->value, tn_mul(g, dials[0]));
}

/* ---- Adam, AdamW ------------------------------------------------------------------------------------------------- */

/* The step size lr / (1 − beta1^t), the factor 1 / sqrt(1 − beta2^t) of the root of v, and AdamW's decay. */
static void adam_dials(const tn_optimizer *o, int64_t step, double *values) {
    values[0] = o->lr / (1 - pow(o->beta1, (double)step));
    values[1] = 1 / sqrt(1 - pow(o->beta2, (double)step));
    values[2] = 1 - o->lr * o->weight_decay;
}

static void adam_move(const tn_optimizer *o, trained *v, tn_tensor *g, tn_tensor *const *dials) {
    tn_tensor *m = v->slots[0], *s = v->slots[1];
    tn_add_(m, tn_mul(tn_sub(g, m), tn_scalar(1 - o->beta1)));
    tn_mul_(s, tn_scalar(o->beta2));
    tn_add_(s, tn_mul(tn_mul(g, g), tn_scalar(1 - o->beta2)));
    tn_tensor *root = tn_add(tn_mul(tn_sqrt(s), dials[1]), tn_scalar(o->eps));
    tn_sub_(v->value, tn_div(tn_mul(m, dials[0]), root));
}

static void adam_update(const tn_optimizer *o, trained *v, tn_tensor *const *dials) {
    adam_move(o, v, decayed(o, v), dials);
}

static void adamw_update(const tn_optimizer *o, trained *v, tn_tensor *const *dials) {
    if (o->weight_decay != 0) tn_mul_(v->value, dials[2]);
    adam_move(o, v, v->gradient, dials);
}

static const method sgd = {"sgd", {"momentum_buffer"}, 1, 2, sgd_dials, sgd_update};
static const method adam = {"adam", {"exp_avg", "exp_avg_sq"}, 2, 2, adam_dials, adam_update};
static const method adamw = {"adamw", {"exp_avg", "exp_avg_sq"}, 2, 3, adam_dials, adamw_update};

/* ---- making ------------------------------------------------------------------------------------------------------ */

void tn_optimizer_free(tn_optimizer *o) {
    if (!o) return;
    for (int i = 0; i < o->count; i++) {
        for (int k = 0; k < MAX_SLOTS; k++)
            tn_free(o->items[i].slots[k]);
        tn_free(o->items[i].value);
        free(o->items[i].name);
    }
    free(o->items);
    free(o);
}

static tn_status out_of_memory(void) { return tn_backend_fail(TN_ERR_MEMORY, "optimizer: out of memory"); }

static tn_status add_variable(tn_optimizer *o, const tn_variable *variable) {
    trained *v = &o->items[o->count];
    v->name = strdup(variable->name);
    if (!v->name) return out_of_memory();
    v->value = tn_retain(variable->tensor);
    o->count++;
    for (int k = 0; k < o->slot_count; k++) {
        tn_status status = TN_OK;
        TN_SCOPE {
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
    if (!o->items) return out_of_memory();
    tn_status status = TN_OK;
    for (int i = 0; i < count && status == TN_OK; i++)
        if (variables[i].parameter && tn_requires_grad(variables[i].tensor)) status = add_variable(o, &variables[i]);
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
static tn_status make(tn_module *m, const tn_optimizer *model, tn_optimizer **out) {
    *out = NULL;
    tn_status status = tn_module_status(m);
    if (status == TN_OK) status = check_value("lr", model->lr, 0, INFINITY);
    if (status == TN_OK) status = check_value("weight_decay", model->weight_decay, 0, INFINITY);
    if (status == TN_OK) status = check_value("max_grad_norm", model->max_grad_norm, 0, INFINITY);
    if (status != TN_OK) return status;

    tn_variable *variables = NULL;
    int count = 0;
    status = tn_module_variables(m, &variables, &count);
    tn_optimizer *o = status == TN_OK ? malloc(sizeof *o) : NULL;
    if (o) {
        *o = *model;
        status = add_variables(o, variables, count);
    } else if (status == TN_OK) {
        status = out_of_memory();
    }
    tn_variables_free(variables);
    if (status == TN_OK)
        *out = o;
    else
        tn_optimizer_free(o);
    return status;
}

tn_status tn_optimizer_sgd(tn_module *m, const tn_sgd_options *options, tn_optimizer **out) {
    *out = NULL;
    tn_sgd_options o = {.struct_size = sizeof o};
    if (options && options->struct_size >= sizeof o) o = *options;
    tn_status status = check_value("momentum", o.momentum, 0, INFINITY);
    if (status == TN_OK && o.nesterov && (o.momentum == 0 || o.dampening != 0))
        status = tn_backend_fail(TN_ERR_ARGUMENT, "sgd: nesterov needs momentum and no dampening");
    if (status != TN_OK) return status;
    tn_optimizer model = {.method = &sgd,
                          .slot_count = o.momentum != 0,
                          .lr = o.lr != 0 ? o.lr : 1e-3,
                          .momentum = o.momentum,
                          .dampening = o.dampening,
                          .weight_decay = o.weight_decay,
                          .nesterov = o.nesterov,
                          .max_grad_norm = o.max_grad_norm};
    return make(m, &model, out);
}

static tn_status make_adam(const method *how, tn_module *m, const tn_adam_options *options, double weight_decay,
                           tn_optimizer **out) {
    *out = NULL;
    tn_adam_options o = {.struct_size = sizeof o};
    if (options && options->struct_size >= sizeof o) o = *options;
    if (o.weight_decay != 0) weight_decay = how == &adamw && o.weight_decay < 0 ? 0 : o.weight_decay;
    tn_optimizer model = {.method = how,
                          .slot_count = how->slot_count,
                          .lr = o.lr != 0 ? o.lr : 1e-3,
                          .beta1 = o.beta1 != 0 ? o.beta1 : 0.9,
                          .beta2 = o.beta2 != 0 ? o.beta2 : 0.999,
                          .eps = o.eps != 0 ? o.eps : 1e-8,
                          .weight_decay = weight_decay,
                          .max_grad_norm = o.max_grad_norm};
    tn_status status = check_value("beta1", model.beta1, 0, 1);
    if (status == TN_OK) status = check_value("beta2", model.beta2, 0, 1);
    if (status == TN_OK) status = check_value("eps", model.eps, 0, INFINITY);
    return status == TN_OK ? make(m, &model, out) : status;
}

tn_status tn_optimizer_adam(tn_module *m, const tn_adam_options *options, tn_optimizer **out) {
    return make_adam(&adam, m, options, 0, out);
}

tn_status tn_optimizer_adamw(tn_module *m, const tn_adam_options *options, tn_optimizer **out) {
    return make_adam(&adamw, m, options, 0.01, out);
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
        tn_tensor *g = variables[i].parameter ? tn_grad(variables[i].tensor) : NULL;
        tn_status status = g ? tn_status_of(g) : TN_OK;
        if (status != TN_OK) return status;
        if (g) sum = add_squares(sum, g);
    }
    tn_tensor *norm = tn_sqrt(sum ? sum : tn_scalar(0)), *factor = clip_factor(norm, max_norm);
    for (int i = 0; i < count; i++) {
        tn_tensor *g = variables[i].parameter ? tn_grad(variables[i].tensor) : NULL;
        if (g) tn_mul_(g, factor);
    }
    if (total_norm) *total_norm = tn_keep(norm);
    return tn_status_of(norm);
}

tn_status tn_clip_grad_norm(tn_module *m, double max_norm, tn_tensor **total_norm) {
    if (total_norm) *total_norm = NULL;
    tn_variable *variables = NULL;
    int count = 0;
    tn_status status = tn_module_variables(m, &variables, &count);
    if (status != TN_OK) return status;
    TN_SCOPE TN_NO_GRAD status = clip_variables(variables, count, max_norm, total_norm);
    tn_variables_free(variables);
    return status;
}

void tn_optimizer_zero_grad(tn_optimizer *o) {
    for (int i = 0; i < o->count; i++)
        tn_zero_grad(o->items[i].value);
}

/* ---- a step ------------------------------------------------------------------------------------------------------ */

static tn_status collect_gradients(tn_optimizer *o) {
    for (int i = 0; i < o->count; i++) {
        trained *v = &o->items[i];
        v->gradient = tn_grad(v->value);
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

/* Variables that joined later count their own steps, and so have dials of their own; as a rule all share one pair. */
static void record_updates(tn_optimizer *o) {
    int64_t step = -1;
    tn_tensor *dials[MAX_DIALS] = {NULL};
    for (int i = 0; i < o->count; i++) {
        trained *v = &o->items[i];
        if (!v->gradient) continue;
        if (v->steps + 1 != step) {
            double values[MAX_DIALS];
            step = v->steps + 1;
            o->method->dials(o, step, values);
            for (int k = 0; k < o->method->dial_count; k++)
                dials[k] = tn_dial(values[k]);
        }
        o->method->update(o, v, dials);
    }
}

static void count_step(tn_optimizer *o, int64_t change) {
    for (int i = 0; i < o->count; i++)
        if (o->items[i].gradient) o->items[i].steps += change;
}

/* Records the step; forget: gradients are let go before the run, so that it need not store them. */
static tn_status step(tn_optimizer *o, bool forget) {
    tn_status status = TN_OK;
    TN_SCOPE TN_NO_GRAD {
        status = collect_gradients(o);
        if (status == TN_OK && o->max_grad_norm > 0) status = clip_collected(o);
        if (status == TN_OK) record_updates(o);
    }
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

tn_status tn_optimizer_step(tn_optimizer *o) { return step(o, false); }

tn_status tn_minimize(tn_optimizer *o, const tn_tensor *loss) {
    tn_optimizer_zero_grad(o);
    tn_status status = tn_backward(loss);
    if (status == TN_OK) return step(o, true);
    tn_optimizer_zero_grad(o);
    return status;
}

/* ---- facts ------------------------------------------------------------------------------------------------------- */

double tn_optimizer_lr(const tn_optimizer *o) { return o->lr; }
void tn_optimizer_set_lr(tn_optimizer *o, double lr) { o->lr = lr; }
int tn_optimizer_count(const tn_optimizer *o) { return o->count; }

int64_t tn_optimizer_steps(const tn_optimizer *o, int i) { return i >= 0 && i < o->count ? o->items[i].steps : -1; }

tn_status tn_optimizer_set_steps(tn_optimizer *o, int i, int64_t steps) {
    if (i < 0 || i >= o->count || steps < 0)
        return tn_backend_fail(TN_ERR_ARGUMENT, "optimizer: variable %d of %d cannot have made %lld steps", i, o->count,
                               (long long)steps);
    o->items[i].steps = steps;
    return TN_OK;
}

tn_status tn_optimizer_variables(const tn_optimizer *o, tn_variable **items, int *count) {
    *items = NULL;
    *count = 0;
    int total = o->count * o->slot_count;
    size_t text_size = 0;
    for (int i = 0; i < o->count; i++)
        for (int k = 0; k < o->slot_count; k++)
            text_size += strlen(o->method->slot_names[k]) + strlen(o->items[i].name) + 2;
    if (total == 0) return TN_OK;
    tn_variable *block = malloc((size_t)total * sizeof *block + text_size);
    if (!block) return out_of_memory();
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

double tn_schedule_at(const tn_schedule *s, int64_t at) {
    if (at < s->warmup) return s->lr * (double)(at + 1) / (double)s->warmup;
    if (s->kind == TN_SCHEDULE_CONSTANT) return s->lr;
    if (at >= s->total) return s->final_lr;
    double part = (double)(at - s->warmup) / (double)(s->total - s->warmup); /* of the way down: [0, 1) */
    double left = s->kind == TN_SCHEDULE_LINEAR ? 1 - part : 0.5 * (1 + cos(acos(-1) * part));
    return s->final_lr + (s->lr - s->final_lr) * left;
}
