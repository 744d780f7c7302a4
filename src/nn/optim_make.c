/* optim_make.c — making optimizers: their settings, parameters in groups, and the memory of the methods. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nn/optimizer.h"
#include "trunnion/autograd.h"
#include "trunnion/backend.h"
#include "trunnion/ops.h"

/* ---- memory ------------------------------------------------------------------------------------------------------ */

void tn_optimizer_free(tn_optimizer *o) {
    if (!o || atomic_fetch_sub(&o->refs, 1) != 1) return;
    for (int i = 0; i < o->count; i++) {
        for (int k = 0; k < TN_OPTIM_SLOTS; k++)
            tn_free(o->items[i].slots[k]);
        tn_free(o->items[i].value);
        free(o->items[i].name);
    }
    tn_grad_scaler_free(o->scaler);
    free(o->items);
    free(o->groups);
    free(o->owners);
    free(o);
}

tn_status tn_optim_out_of_memory(void) { return tn_backend_fail(TN_ERR_MEMORY, "optimizer: out of memory"); }

tn_status tn_optim_state(const tn_tensor *like, const int64_t *shape, int rank, double value, tn_dtype dtype,
                         tn_tensor **out) {
    tn_device *before = tn_current_device();
    *out = NULL;
    tn_status status = tn_set_current_device(tn_device_of(like));
    if (status != TN_OK) return status;
    {
        TN_SCOPE;
        tn_tensor *state = tn_full(shape, rank, value, dtype);
        status = tn_make_state(state);
        if (status == TN_OK) *out = tn_retain(state);
    }
    (void)tn_set_current_device(before);
    return status;
}

/* ---- settings ---------------------------------------------------------------------------------------------------- */

tn_status tn_optim_check(const char *what, double value, double low, double high) {
    if (value >= low && value < high) return TN_OK;
    return tn_backend_fail(TN_ERR_ARGUMENT, "optimizer: %s is %g; it must be at least %g and less than %g", what, value,
                           low, high);
}

/* Settings that no method gives a meaning of its own have the value 0. */
static tn_status check_settings(const tn_optimizer *o) {
    const struct {
        const char *name;
        double value, high;
    } rows[] = {{"lr", o->lr, INFINITY},
                {"weight_decay", o->weight_decay, INFINITY},
                {"momentum", o->momentum, INFINITY},
                {"beta1", o->beta1, 1},
                {"beta2", o->beta2, 1},
                {"alpha", o->alpha, 1},
                {"eps", o->eps, INFINITY},
                {"lr_decay", o->lr_decay, INFINITY},
                {"initial_accumulator_value", o->initial, INFINITY}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        TRY(tn_optim_check(rows[i].name, rows[i].value, 0, rows[i].high));
    if (o->max_grad_norm >= 0) return TN_OK;
    return tn_backend_fail(TN_ERR_ARGUMENT,
                           "optimizer: max_grad_norm is %g; it must be at least 0 (INFINITY: no limit)",
                           o->max_grad_norm);
}

/* ---- parameters -------------------------------------------------------------------------------------------------- */

/* What an optimizer is made for. */
typedef struct wanted {
    tn_module *m;
    const tn_param_group *const *groups;
    tn_param_group *read; /* the groups with all fields */
    int group_count;
    tn_variable *variables; /* of m */
    int variable_count;
} wanted;

static const tn_trained *find_trained(const tn_optimizer *o, const tn_tensor *t) {
    uint64_t id = tn_value_id(t);
    for (int i = 0; i < o->count; i++)
        if (tn_value_id(o->items[i].value) == id) return &o->items[i];
    return NULL;
}

tn_status tn_optim_make_slots(const tn_optimizer *o, tn_trained *v) {
    tn_status status = TN_OK;
    int rank = tn_rank(v->value);
    for (int k = 0; k < TN_OPTIM_SLOTS && status == TN_OK; k++) {
        int64_t shape[TN_MAX_RANK];
        if (rank) memcpy(shape, tn_shape(v->value), (size_t)rank * sizeof *shape);
        if (!(o->slots >> k & 1) || (o->method->slot_shape && !o->method->slot_shape(k, shape, rank))) continue;
        if (!v->slots[k])
            status = tn_optim_state(v->value, shape, rank, o->initial, tn_dtype_of(v->value), &v->slots[k]);
    }
    return status;
}

static tn_status add_trained(tn_optimizer *o, const tn_module *m, tn_tensor *value, const char *name, int group) {
    tn_trained *v = &o->items[o->count];
    v->name = strdup(name);
    if (!v->name) return tn_optim_out_of_memory();
    v->value = tn_retain(value);
    v->group = group;
    v->division = tn_nn_division(m, value);
    o->count++;
    int rank = tn_rank(value);
    if (v->division.group && (o->method->matrices || o->method->slot_shape || o->method == &tn_optim_lamb))
        return tn_backend_fail(TN_ERR_UNSUPPORTED,
                               "%s: %s is divided among ranks, but the method needs whole matrices; use another one",
                               o->method->name, v->name);
    if (o->method->matrices && rank != 2)
        return tn_backend_fail(TN_ERR_SHAPE,
                               "%s: %s has %d dimensions; it must have 2: give other parameters to another optimizer, "
                               "by groups",
                               o->method->name, v->name, rank);
    return tn_optim_make_slots(o, v);
}

/* "GROUP.INDEX" into text, unless the tensor has a name. */
static const char *name_in_group(const wanted *w, const tn_param_group *g, int group, int i, char text[32]) {
    if (g->names && g->names[i]) return g->names[i];
    uint64_t id = tn_value_id(g->params[i]);
    for (int k = 0; k < w->variable_count; k++)
        if (tn_value_id(w->variables[k].tensor) == id) return w->variables[k].name;
    snprintf(text, 32, "%d.%d", group, i);
    return text;
}

static tn_status add_member(tn_optimizer *o, const wanted *w, const tn_param_group *g, int group, int i) {
    char text[32];
    tn_tensor *t = g->params[i];
    const char *name = t ? name_in_group(w, g, group, i, text) : "";
    if (!t || tn_status_of(t) != TN_OK)
        return tn_backend_fail(TN_ERR_ARGUMENT, "optimizer: tensor %d of group %d is %s", i, group,
                               t ? tn_error() : "NULL");
    if (!tn_requires_grad(t))
        return tn_backend_fail(TN_ERR_ARGUMENT,
                               "optimizer: tensor %d of group %d does not require gradients; call "
                               "tn_set_requires_grad first",
                               i, group);
    if (find_trained(o, t))
        return tn_backend_fail(TN_ERR_ARGUMENT, "optimizer: tensor %d of group %d is in group %d already, as %s", i,
                               group, find_trained(o, t)->group, find_trained(o, t)->name);
    TRY(tn_make_state(t));
    return add_trained(o, w->m, t, name, group);
}

/* The settings of parameters in no group. */
static tn_optim_group common_settings(const tn_optimizer *o) {
    return (tn_optim_group){1, o->weight_decay, o->beta1, o->beta2, o->eps};
}

/* Groups of the caller first; what is left of the module is the last one. */
static double own_or(double own, double common) { return own == TN_AUTO ? common : own; }

static tn_status add_groups(tn_optimizer *o, const wanted *w) {
    const tn_optim_group common = common_settings(o);
    for (int k = 0; k < w->group_count; k++) {
        const tn_param_group *g = &w->read[k];
        o->groups[k] =
            (tn_optim_group){g->lr_factor, own_or(g->weight_decay, common.weight_decay), own_or(g->beta1, common.beta1),
                             own_or(g->beta2, common.beta2), own_or(g->eps, common.eps)};
        tn_status status = TN_OK;
        for (int i = 0; i < g->count && status == TN_OK; i++)
            status = add_member(o, w, g, k, i);
        if (status != TN_OK) return status;
    }
    o->groups[w->group_count] = common;
    tn_status status = TN_OK;
    for (int i = 0; i < w->variable_count && status == TN_OK; i++) {
        tn_tensor *t = w->variables[i].tensor;
        if (tn_requires_grad(t) && !(w->group_count && find_trained(o, t)))
            status = add_trained(o, w->m, t, w->variables[i].name, w->group_count);
    }
    if (status == TN_OK && o->count == 0)
        status = tn_backend_fail(TN_ERR_ARGUMENT, "%s: the module has no parameter that requires gradients",
                                 o->method->name);
    return status;
}

/* A setting of a group that the method may not have: in [0, high). */
static tn_status check_own(const tn_optimizer *o, const char *what, double value, bool has, double high) {
    if (value == TN_AUTO) return TN_OK;
    if (has) return tn_optim_check(what, value, 0, high);
    return tn_backend_fail(TN_ERR_ARGUMENT, "optimizer: a group sets %s to %g, which %s does not have for groups", what,
                           value, o->method->name);
}

static tn_status read_groups(const tn_optimizer *o, const wanted *w) {
    const tn_optim_method *m = o->method;
    tn_status status = TN_OK;
    for (int k = 0; k < w->group_count && status == TN_OK; k++) {
        tn_param_group *g = &w->read[k];
        *g = (tn_param_group)TN_PARAM_GROUP_DEFAULTS;
        status = w->groups ? tn_options_read(g, w->groups[k], "optimizer", "tn_param_group g = TN_PARAM_GROUP_DEFAULTS")
                           : tn_nn_need(NULL, "optimizer: groups");
        if (status == TN_OK) status = tn_optim_check("lr_factor", g->lr_factor, 0, INFINITY);
        if (status == TN_OK) status = check_own(o, "weight_decay", g->weight_decay, true, INFINITY);
        if (status == TN_OK) status = check_own(o, "beta1", g->beta1, m->has_betas, 1);
        if (status == TN_OK) status = check_own(o, "beta2", g->beta2, m->has_betas, 1);
        if (status == TN_OK) status = check_own(o, "eps", g->eps, m->has_eps, INFINITY);
        if (status == TN_OK && (g->count < 0 || (g->count > 0 && !g->params)))
            status = tn_backend_fail(TN_ERR_ARGUMENT, "optimizer: group %d has %d tensors, params is %s", k, g->count,
                                     g->params ? "there" : "NULL");
    }
    return status;
}

static tn_status fill_optimizer(tn_optimizer *o, wanted *w) {
    w->read = calloc((size_t)w->group_count + 1, sizeof *w->read);
    if (!w->read) return tn_optim_out_of_memory();
    TRY(read_groups(o, w));
    size_t most = (size_t)w->variable_count;
    for (int k = 0; k < w->group_count; k++)
        most += (size_t)w->read[k].count;
    o->items = calloc(most + 1, sizeof *o->items);
    o->groups = calloc((size_t)w->group_count + 1, sizeof *o->groups);
    return o->items && o->groups ? add_groups(o, w) : tn_optim_out_of_memory();
}

/* Takes the settings in `model`, adds the parameters below m and of the groups. */
static tn_status make_optimizer(tn_module *m, const tn_param_group *const *groups, int group_count,
                                const tn_optimizer *model, tn_optimizer **out) {
    wanted w = {.m = m, .groups = groups, .group_count = group_count};
    tn_status status = m || group_count <= 0 ? tn_module_status(m) : TN_OK;
    if (status == TN_OK) status = check_settings(model);
    if (status == TN_OK && group_count < 0)
        status = tn_backend_fail(TN_ERR_ARGUMENT, "optimizer: group_count is %d; it must be at least 0", group_count);
    if (status == TN_OK && m) status = tn_module_parameters(m, &w.variables, &w.variable_count);
    if (status != TN_OK) return status;
    tn_optimizer *o = malloc(sizeof *o);
    if (o) {
        memcpy(o, model, sizeof *o);
        atomic_init(&o->refs, 1);
        status = fill_optimizer(o, &w);
    } else {
        status = tn_optim_out_of_memory();
    }
    tn_variables_free(w.variables);
    free(w.read);
    if (status == TN_OK)
        *out = o;
    else
        tn_optimizer_free(o);
    return status;
}

/* ---- the methods ------------------------------------------------------------------------------------------------- */

/* What each constructor begins with: o has the defaults, and gets the caller's options over them. */
static tn_status read_options(tn_optimizer **out, void *o, const void *options, const char *method,
                              const char *initializer) {
    TRY(out ? TN_OK : tn_backend_fail(TN_ERR_ARGUMENT, "%s: out is NULL", method));
    *out = NULL;
    return tn_options_read(o, options, method, initializer);
}

/* What all options have. */
#define COMMON_SETTINGS(o) .lr = (o).lr, .weight_decay = (o).weight_decay, .max_grad_norm = (o).max_grad_norm

tn_status tn_optimizer_sgd(tn_module *m, const tn_sgd_options *options, tn_optimizer **out) {
    tn_sgd_options o = TN_SGD_DEFAULTS;
    TRY(read_options(out, &o, options, "sgd", "tn_sgd_options o = TN_SGD_DEFAULTS"));
    if (!isfinite(o.dampening))
        return tn_backend_fail(TN_ERR_ARGUMENT, "sgd: dampening is %g; it must be finite", o.dampening);
    if (o.nesterov && (o.momentum == 0 || o.dampening != 0))
        return tn_backend_fail(TN_ERR_ARGUMENT, "sgd: nesterov requires momentum above 0 and dampening 0");
    tn_optimizer model = {.method = &tn_optim_sgd,
                          .slots = o.momentum != 0,
                          COMMON_SETTINGS(o),
                          .momentum = o.momentum,
                          .dampening = o.dampening,
                          .nesterov = o.nesterov};
    return make_optimizer(m, o.groups, o.group_count, &model, out);
}

static tn_optimizer adam_model(const tn_optim_method *how, const tn_adam_options *o) {
    return (tn_optimizer){.method = how,
                          .slots = o->amsgrad ? 7 : 3,
                          COMMON_SETTINGS(*o),
                          .beta1 = o->beta1,
                          .beta2 = o->beta2,
                          .eps = o->eps};
}

tn_status tn_optimizer_adam(tn_module *m, const tn_adam_options *options, tn_optimizer **out) {
    tn_adam_options o = TN_ADAM_DEFAULTS;
    TRY(read_options(out, &o, options, "adam", "tn_adam_options o = TN_ADAM_DEFAULTS"));
    tn_optimizer model = adam_model(&tn_optim_adam, &o);
    return make_optimizer(m, o.groups, o.group_count, &model, out);
}

tn_status tn_optimizer_adamw(tn_module *m, const tn_adam_options *options, tn_optimizer **out) {
    tn_adam_options o = TN_ADAMW_DEFAULTS;
    TRY(read_options(out, &o, options, "adamw", "tn_adam_options o = TN_ADAMW_DEFAULTS"));
    tn_optimizer model = adam_model(&tn_optim_adamw, &o);
    return make_optimizer(m, o.groups, o.group_count, &model, out);
}

tn_status tn_optimizer_rmsprop(tn_module *m, const tn_rmsprop_options *options, tn_optimizer **out) {
    tn_rmsprop_options o = TN_RMSPROP_DEFAULTS;
    TRY(read_options(out, &o, options, "rmsprop", "tn_rmsprop_options o = TN_RMSPROP_DEFAULTS"));
    tn_optimizer model = {.method = &tn_optim_rmsprop,
                          .slots = 1U | (o.momentum != 0 ? 2U : 0) | (o.centered ? 4U : 0),
                          COMMON_SETTINGS(o),
                          .alpha = o.alpha,
                          .eps = o.eps,
                          .momentum = o.momentum};
    return make_optimizer(m, o.groups, o.group_count, &model, out);
}

tn_status tn_optimizer_adagrad(tn_module *m, const tn_adagrad_options *options, tn_optimizer **out) {
    tn_adagrad_options o = TN_ADAGRAD_DEFAULTS;
    TRY(read_options(out, &o, options, "adagrad", "tn_adagrad_options o = TN_ADAGRAD_DEFAULTS"));
    tn_optimizer model = {.method = &tn_optim_adagrad,
                          .slots = 1,
                          COMMON_SETTINGS(o),
                          .lr_decay = o.lr_decay,
                          .initial = o.initial_accumulator_value,
                          .eps = o.eps};
    return make_optimizer(m, o.groups, o.group_count, &model, out);
}

tn_status tn_optimizer_lion(tn_module *m, const tn_lion_options *options, tn_optimizer **out) {
    tn_lion_options o = TN_LION_DEFAULTS;
    TRY(read_options(out, &o, options, "lion", "tn_lion_options o = TN_LION_DEFAULTS"));
    tn_optimizer model = {.method = &tn_optim_lion, .slots = 1, COMMON_SETTINGS(o), .beta1 = o.beta1, .beta2 = o.beta2};
    return make_optimizer(m, o.groups, o.group_count, &model, out);
}

tn_status tn_optimizer_lamb(tn_module *m, const tn_lamb_options *options, tn_optimizer **out) {
    tn_lamb_options o = TN_LAMB_DEFAULTS;
    TRY(read_options(out, &o, options, "lamb", "tn_lamb_options o = TN_LAMB_DEFAULTS"));
    tn_optimizer model = {
        .method = &tn_optim_lamb, .slots = 3, COMMON_SETTINGS(o), .beta1 = o.beta1, .beta2 = o.beta2, .eps = o.eps};
    return make_optimizer(m, o.groups, o.group_count, &model, out);
}

tn_status tn_optimizer_adafactor(tn_module *m, const tn_adafactor_options *options, tn_optimizer **out) {
    tn_adafactor_options o = TN_ADAFACTOR_DEFAULTS;
    TRY(read_options(out, &o, options, "adafactor", "tn_adafactor_options o = TN_ADAFACTOR_DEFAULTS"));
    TRY(tn_optim_check("beta2_decay", o.beta2_decay, -DBL_MAX, 0x1p-1022));
    if (o.eps1 != TN_AUTO) TRY(tn_optim_check("eps1", o.eps1, 0, INFINITY));
    TRY(tn_optim_check("eps2", o.eps2, 0, INFINITY));
    TRY(tn_optim_check("d", o.d, 1, INFINITY));
    tn_optimizer model = {.method = &tn_optim_adafactor,
                          .slots = 7,
                          COMMON_SETTINGS(o),
                          .beta2_decay = o.beta2_decay,
                          .eps = o.eps1 == TN_AUTO ? 0x1p-23 : o.eps1,
                          .eps2 = o.eps2,
                          .d = o.d};
    return make_optimizer(m, o.groups, o.group_count, &model, out);
}

tn_status tn_optimizer_muon(tn_module *m, const tn_muon_options *options, tn_optimizer **out) {
    enum { MOST_STEPS = 99 };
    tn_muon_options o = TN_MUON_DEFAULTS;
    TRY(read_options(out, &o, options, "muon", "tn_muon_options o = TN_MUON_DEFAULTS"));
    if (o.ns_steps < 0 || o.ns_steps > MOST_STEPS)
        return tn_backend_fail(TN_ERR_ARGUMENT, "muon: ns_steps is %d; it must be 0 … %d", o.ns_steps, MOST_STEPS);
    for (int i = 0; i < 3; i++)
        if (!isfinite(o.ns_coefficients[i]))
            return tn_backend_fail(TN_ERR_ARGUMENT, "muon: ns_coefficients[%d] is %g; it must be finite", i,
                                   o.ns_coefficients[i]);
    tn_optimizer model = {.method = &tn_optim_muon,
                          .slots = 1,
                          COMMON_SETTINGS(o),
                          .momentum = o.momentum,
                          .nesterov = o.nesterov,
                          .eps = o.eps,
                          .ns_coefficients = {o.ns_coefficients[0], o.ns_coefficients[1], o.ns_coefficients[2]},
                          .ns_steps = o.ns_steps,
                          .match_rms_adamw = o.match_rms_adamw};
    return make_optimizer(m, o.groups, o.group_count, &model, out);
}

/* ---- plain tensors ----------------------------------------------------------------------------------------------- */

/* The tensors of one step of Adam, as tn_fused_adam_step has them. */
typedef struct plain_step {
    const char *name;
    tn_tensor *const *params, *const *grads, *const *exp_avgs, *const *exp_avg_sqs;
    int count;
    int64_t step;
} plain_step;

static tn_status check_same(const plain_step *p, const char *what, const tn_tensor *t, int i) {
    const tn_tensor *like = p->params[i];
    TRY(t ? tn_status_of(t) : tn_backend_fail(TN_ERR_ARGUMENT, "%s: %s[%d] is NULL", p->name, what, i));
    bool same = tn_rank(t) == tn_rank(like) && tn_dtype_of(t) == tn_dtype_of(like);
    for (int d = 0; same && d < tn_rank(t); d++)
        same = tn_size(t, d) == tn_size(like, d);
    if (same) return TN_OK;
    return tn_backend_fail(TN_ERR_SHAPE, "%s: %s[%d] has not the shape and dtype of params[%d]", p->name, what, i, i);
}

static tn_status check_plain(const plain_step *p, const tn_adam_options *o) {
    if (!p->params || !p->grads || !p->exp_avgs || !p->exp_avg_sqs)
        return tn_backend_fail(TN_ERR_ARGUMENT, "%s: params, grads, exp_avgs or exp_avg_sqs is NULL", p->name);
    if (p->count < 0 || p->step < 1)
        return tn_backend_fail(TN_ERR_ARGUMENT, "%s: count is %d, step %lld; they must be at least 0 and 1", p->name,
                               p->count, (long long)p->step);
    if (o->amsgrad || o->group_count)
        return tn_backend_fail(TN_ERR_UNSUPPORTED, "%s: amsgrad and groups require an optimizer (tn_optimizer_adam)",
                               p->name);
    for (int i = 0; i < p->count; i++) {
        if (!p->params[i]) return tn_backend_fail(TN_ERR_ARGUMENT, "%s: params[%d] is NULL", p->name, i);
        TRY(tn_status_of(p->params[i]));
        if (!tn_dtype_is_float(tn_dtype_of(p->params[i])))
            TRY(tn_backend_fail(TN_ERR_DTYPE, "%s: params[%d] is %s; it must have a floating-point dtype", p->name, i,
                                tn_dtype_name(tn_dtype_of(p->params[i]))));
        TRY(check_same(p, "grads", p->grads[i], i));
        TRY(check_same(p, "exp_avgs", p->exp_avgs[i], i));
        TRY(check_same(p, "exp_avg_sqs", p->exp_avg_sqs[i], i));
    }
    return TN_OK;
}

/* Else a refused write (elements of an expanded view share memory) would be reported only by the next read. */
static tn_status try_writing(tn_tensor *view) {
    TN_SCOPE;
    TN_NO_GRAD;
    return tn_status_of(tn_mul_(view, tn_scalar(1)));
}

/* Makes what is written states, which keep their memory: writing to new memory takes 1.6 times as long. Views are no
 * states; tn_make_state refuses them. */
static tn_status make_plain_states(const plain_step *p) {
    tn_tensor *const *written[] = {p->params, p->exp_avgs, p->exp_avg_sqs};
    for (int i = 0; i < p->count && !tn_capturing(); i++)
        for (size_t k = 0; k < sizeof written / sizeof *written; k++) {
            tn_status status = tn_make_state(written[k][i]);
            if (status == TN_ERR_ARGUMENT) status = try_writing(written[k][i]);
            if (status != TN_OK) return status;
        }
    return TN_OK;
}

static tn_status record_plain(const plain_step *p, const tn_optimizer *o) {
    const tn_optim_method *m = o->method;
    const tn_optim_group group = common_settings(o);
    double values[TN_OPTIM_NUMBERS];
    tn_tensor *scalars[TN_OPTIM_NUMBERS], *constants[TN_OPTIM_NUMBERS], *factor = NULL;
    TN_SCOPE;
    TN_NO_GRAD;
    TN_AUTOCAST(TN_F32);
    m->scalars(o, &group, p->step, values);
    for (int k = 0; k < m->scalar_count; k++)
        scalars[k] = tn_runtime_scalar(values[k]);
    m->constants(o, &group, values);
    for (int k = 0; k < m->constant_count; k++)
        constants[k] = tn_scalar(values[k]);
    if (o->max_grad_norm < INFINITY) factor = tn_nn_clip_factor(p->grads, p->count, o->max_grad_norm, NULL);
    tn_status status = TN_OK;
    for (int i = 0; i < p->count && status == TN_OK; i++) {
        tn_trained v = {.value = p->params[i],
                        .slots = {p->exp_avgs[i], p->exp_avg_sqs[i]},
                        .gradient = factor ? tn_mul(p->grads[i], factor) : p->grads[i]};
        m->update(o, &group, &v, scalars, constants);
        status = tn_status_of(v.value);
        for (int k = 0; k < 2 && status == TN_OK; k++)
            status = tn_status_of(v.slots[k]);
    }
    return status;
}

static tn_status plain_adam(const tn_optim_method *how, const plain_step *p, tn_adam_options o,
                            const tn_adam_options *options, const char *initializer) {
    TRY(tn_options_read(&o, options, p->name, initializer));
    const tn_optimizer model = adam_model(how, &o);
    TRY(check_settings(&model));
    TRY(check_plain(p, &o));
    TRY(make_plain_states(p));
    return record_plain(p, &model);
}

tn_status tn_fused_adam_step(tn_tensor *const *params, tn_tensor *const *grads, tn_tensor *const *exp_avgs,
                             tn_tensor *const *exp_avg_sqs, int count, int64_t step, const tn_adam_options *options) {
    const plain_step p = {"tn_fused_adam_step", params, grads, exp_avgs, exp_avg_sqs, count, step};
    return plain_adam(&tn_optim_adam, &p, (tn_adam_options)TN_ADAM_DEFAULTS, options,
                      "tn_adam_options o = TN_ADAM_DEFAULTS");
}

tn_status tn_fused_adamw_step(tn_tensor *const *params, tn_tensor *const *grads, tn_tensor *const *exp_avgs,
                              tn_tensor *const *exp_avg_sqs, int count, int64_t step, const tn_adam_options *options) {
    const plain_step p = {"tn_fused_adamw_step", params, grads, exp_avgs, exp_avg_sqs, count, step};
    return plain_adam(&tn_optim_adamw, &p, (tn_adam_options)TN_ADAMW_DEFAULTS, options,
                      "tn_adam_options o = TN_ADAMW_DEFAULTS");
}
