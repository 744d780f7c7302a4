/* optim.c — optimizers: steps, captured steps, facts.
 *
 * A step records element-wise writes to state and then runs everything at once. What changes from step to step
 * (learning rate, bias corrections) are runtime scalars, shared by all parameters, so every step is the same plan. With
 * a gradient scaler the step count is on the device, and every new value is written only if all gradients are finite.
 * Nothing is recorded before every gradient has been seen to be sound: a write of an error would spoil its variable. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nn/optimizer.h"
#include "trunnion/autograd.h"
#include "trunnion/backend.h"
#include "trunnion/ops.h"

void tn_optimizer_zero_grad(tn_optimizer *o) {
    for (int i = 0; o && i < o->count; i++)
        tn_zero_grad(o->items[i].value);
    if (o && o->scaler) o->scaler->unscaled = false;
}

/* ---- a step ------------------------------------------------------------------------------------------------------ */

/* Where a step's gradients come from: as tn_nn_step has it. */
typedef struct gradients {
    tn_tensor *(*of)(void *ctx, const tn_tensor *parameter);
    tn_status (*also)(void *ctx); /* may be NULL */
    void *ctx;
    const tn_tensor *loss; /* computed in the same evaluation, or the step fails; NULL: none */
} gradients;

static tn_tensor *collected(TN_UNUSED void *ctx, const tn_tensor *parameter) { return tn_grad(parameter); }

static tn_status collect_gradients(tn_optimizer *o, const gradients *g) {
    for (int i = 0; i < o->count; i++) {
        tn_trained *v = &o->items[i];
        v->gradient = g->of(g->ctx, v->value);
        TRY(v->gradient ? tn_status_of(v->gradient) : TN_OK);
    }
    return TN_OK;
}

/* Gradients of a step as a list: o->count entries, freed with free; NULL when memory is out. */
static tn_tensor **gradient_list(const tn_optimizer *o) {
    tn_tensor **list = malloc(((size_t)o->count + 1) * sizeof *list);
    for (int i = 0; list && i < o->count; i++)
        list[i] = o->items[i].gradient;
    return list;
}

tn_status tn_optim_change_divided(tn_optimizer *o, tn_division_change *change) {
    tn_status first = TN_OK;
    for (int i = 0; i < o->count; i++) {
        tn_status status = tn_nn_change_divided(&o->items[i].division, o->items[i].slots, TN_OPTIM_SLOTS, change);
        if (first == TN_OK) first = status;
    }
    return first;
}

tn_status tn_optim_refuse_shares(const tn_optimizer *o, const char *what, const char *advice) {
    for (int i = 0; i < o->count; i++)
        for (int k = 0; k < TN_OPTIM_SLOTS && tn_nn_is_share(&o->items[i].division); k++)
            if (o->items[i].slots[k])
                return tn_backend_fail(
                    TN_ERR_STATE,
                    "%s: the optimizer's %s of %s is divided among %d processes, and this one has its "
                    "share; %s",
                    what, o->method->slot_names[k], o->items[i].name, tn_group_size(o->items[i].division.group),
                    advice);
    return TN_OK;
}

/* The group among whose ranks parameters are divided; NULL: none. */
static tn_group *divided_group(const tn_optimizer *o) {
    tn_group *group = NULL;
    for (int i = 0; i < o->count && !group; i++)
        if (o->items[i].gradient) group = o->items[i].division.group;
    return group;
}

/* Sums of squares of the gradients, for clipping: one for each parameter that is whole on each rank, and one, added
 * over all ranks, for all divided ones together. Gradients of sharded parameters are gathered one after the other, so
 * that the sum has the bits of an undivided one. Freed with free. */
static tn_status squares_of_ranks(const tn_optimizer *o, tn_group *group, tn_tensor ***squares) {
    tn_tensor *divided = NULL;
    int last = 0;
    *squares = calloc((size_t)o->count + 1, sizeof **squares);
    if (!*squares) return tn_optim_out_of_memory();
    for (int i = 0; i < o->count; i++) {
        const tn_trained *v = &o->items[i];
        const tn_division *d = &v->division;
        tn_tensor *whole =
            v->gradient && d->elements ? tn_group_whole(group, v->gradient, d->shape, d->rank) : v->gradient;
        tn_tensor *square = whole ? tn_nn_sum_of_squares(whole) : NULL;
        if (square && d->group && !d->elements) {
            divided = divided ? tn_add(divided, square) : square;
            last = i;
        } else {
            (*squares)[i] = square;
        }
    }
    if (divided) (*squares)[last] = tn_group_sum_forward(group, divided);
    return divided ? tn_status_of(divided) : TN_OK;
}

/* squares: of the gradients of all ranks, if they are divided; otherwise NULL. */
static tn_status clip_collected(tn_optimizer *o, tn_tensor **squares) {
    tn_tensor **list = squares ? NULL : gradient_list(o), *factor;
    if (!squares && !list) return tn_optim_out_of_memory();
    factor = squares ? tn_nn_clip_factor_of(squares, o->count, o->max_grad_norm, NULL)
                     : tn_nn_clip_factor(list, o->count, o->max_grad_norm, NULL);
    free(list);
    for (int i = 0; i < o->count; i++)
        if (o->items[i].gradient) o->items[i].gradient = tn_mul(o->items[i].gradient, factor);
    return tn_status_of(factor);
}

/* Parameters with equal keys have made the same number of steps. */
static uint64_t count_key(const tn_optimizer *o, const tn_trained *v) {
    return o->scaler ? v->history : (uint64_t)v->steps;
}

/* Of one set of runtime scalars: how many, and their values. */
static int runtime_count(const tn_optimizer *o) {
    return o->scaler && o->method->device_scalars ? TN_STEP_NUMBERS : o->method->scalar_count;
}

static void runtime_values(const tn_optimizer *o, const tn_trained *v, double *values) {
    const tn_optim_group *g = &o->groups[v->group];
    if (o->scaler && o->method->device_scalars) {
        values[TN_STEP_LR] = o->lr * g->lr_factor;
        values[TN_STEP_LR_DECAY] = o->lr * g->lr_factor * g->weight_decay;
    } else {
        o->method->scalars(o, g, v->steps + 1, values);
    }
}

/* A step within a capture: which parameters it moves, and with which runtime scalars. Parameters with one step count
 * share a set of runtime scalars; launches give each set the values that the learning rate and the step count then
 * have. */
typedef struct captured_step {
    tn_optimizer *o; /* retained */
    int *set;        /* of each parameter's runtime scalars; -1: the step leaves the parameter alone */
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
    if (!c) return tn_optim_out_of_memory();
    atomic_fetch_add(&o->refs, 1);
    c->o = o;
    c->set = malloc((size_t)o->count * sizeof *c->set);
    c->scalars = calloc((size_t)o->count * TN_OPTIM_NUMBERS, sizeof *c->scalars);
    if (!c->set || !c->scalars) return tn_optim_out_of_memory();
    for (int i = 0; i < o->count; i++)
        c->set[i] = -1;
    return TN_OK;
}

/* Counts a step of those parameters for which `moves` holds; -1: takes it back. What the device counts follows from the
 * run itself; there the key only has to differ from that of parameters that did not take part. */
static void count_step(tn_optimizer *o, bool (*moves)(const void *ctx, int i), const void *ctx, int change) {
    for (int i = 0; i < o->count; i++) {
        if (!moves(ctx, i)) continue;
        if (!o->scaler)
            o->items[i].steps += change;
        else if (change > 0)
            o->items[i].history = tn_grad_scaler_mix(o->items[i].history, o->scaler->attempts);
    }
    if (o->scaler && change > 0) o->scaler->attempts++;
}

static bool captured_moves(const void *ctx, int i) { return ((const captured_step *)ctx)->set[i] >= 0; }

static void captured_undo(void *ctx) { count_step(((captured_step *)ctx)->o, captured_moves, ctx, -1); }

static tn_status captured_advance(void *ctx, double *values) {
    const captured_step *c = ctx;
    tn_optimizer *o = c->o;
    const tn_trained *first = NULL; /* of a set; sets follow each other in the order of the parameters */
    int last = -1;
    for (int i = 0; i < o->count; i++) {
        if (c->set[i] < 0) continue;
        if (c->set[i] != last) {
            first = &o->items[i];
            last = c->set[i];
            runtime_values(o, first, values + last * runtime_count(o));
        }
        if (count_key(o, &o->items[i]) != count_key(o, first))
            return tn_backend_fail(TN_ERR_STATE,
                                   "optimizer: %s has made %lld steps and %s %lld, but they were equal when the "
                                   "step was captured; capture it again",
                                   o->items[i].name, (long long)tn_optimizer_steps(o, i), first->name,
                                   (long long)tn_optimizer_steps(o, (int)(first - o->items)));
    }
    count_step(o, captured_moves, c, 1);
    return TN_OK;
}

/* The step has been recorded: from now on it belongs to the capture. */
static tn_status captured_add(captured_step *c) {
    const tn_capture_hook hook = {.struct_size = sizeof hook,
                                  .advance = captured_advance,
                                  .undo = captured_undo,
                                  .release = captured_free,
                                  .ctx = c};
    tn_status status = tn_capture_add_hook(&hook, c->scalars, c->set_count * runtime_count(c->o));
    free(c->scalars);
    c->scalars = NULL;
    return status;
}

/* Makes the scalars of a step of v, which parameters with the same count share, and notes them for a capture. */
static void make_scalars(const tn_optimizer *o, const tn_trained *v, tn_tensor **scalars, captured_step *c) {
    double values[TN_OPTIM_NUMBERS];
    tn_tensor *numbers[TN_OPTIM_NUMBERS] = {NULL};
    int count = runtime_count(o);
    runtime_values(o, v, values);
    for (int k = 0; k < count; k++) {
        numbers[k] = scalars[k] = tn_runtime_scalar(values[k]);
        if (c) c->scalars[c->set_count * count + k] = numbers[k];
    }
    if (c) c->set_count++;
    if (o->scaler && o->method->device_scalars)
        o->method->device_scalars(o, &o->groups[v->group], numbers, tn_grad_scaler_step(o, v), scalars);
}

/* Records the update of one parameter. With a gradient scaler, states keep their values if the step is skipped. */
static tn_status record_update(const tn_optimizer *o, tn_trained *v, tn_tensor *const *scalars,
                               tn_tensor *const *constants) {
    tn_tensor *states[1 + TN_OPTIM_SLOTS], *before[1 + TN_OPTIM_SLOTS];
    int count = 0;
    states[count++] = v->value;
    for (int k = 0; k < TN_OPTIM_SLOTS; k++)
        if (v->slots[k]) states[count++] = v->slots[k];
    for (int k = 0; k < count && o->scaler; k++)
        before[k] = tn_grad_scaler_before(states[k]);
    o->method->update(o, &o->groups[v->group], v, scalars, constants);
    for (int k = 0; k < count && o->scaler; k++)
        tn_grad_scaler_keep(o, states[k], before[k]);
    /* Only memory can run out here, and then the parameter is spoiled: that must not pass for a step. */
    tn_status status = TN_OK;
    for (int k = 0; k < count && status == TN_OK; k++)
        status = tn_status_of(states[k]);
    return status;
}

/* Parameters that joined later count their own steps, and so have scalars of their own; as a rule all share one set. */
static tn_status record_updates(tn_optimizer *o, captured_step *captured) {
    const tn_optim_method *m = o->method;
    double values[TN_OPTIM_NUMBERS];
    tn_tensor *scalars[TN_OPTIM_NUMBERS] = {NULL}, *constants[TN_OPTIM_NUMBERS] = {NULL};
    const tn_trained *last = NULL;
    for (int i = 0; i < o->count; i++) {
        tn_trained *v = &o->items[i];
        if (!v->gradient || !tn_optim_is_own(o, i)) continue;
        bool group_begins = !last || v->group != last->group;
        if (group_begins || count_key(o, v) != count_key(o, last)) make_scalars(o, v, scalars, captured);
        if (group_begins) m->constants(o, &o->groups[v->group], values);
        for (int k = 0; group_begins && k < m->constant_count; k++)
            constants[k] = tn_scalar(values[k]);
        last = v;
        if (captured) captured->set[i] = captured->set_count - 1;
        TRY(record_update(o, v, scalars, constants));
    }
    return TN_OK;
}

static bool recorded_moves(const void *ctx, int i) { return ((const tn_optimizer *)ctx)->items[i].gradient != NULL; }

static tn_status record_step(tn_optimizer *o, const gradients *g) {
    TN_SCOPE;
    TN_NO_GRAD;
    TN_AUTOCAST(TN_F32);
    captured_step *captured = NULL;
    tn_status status = tn_capturing() ? captured_new(o, &captured) : TN_OK;
    if (status == TN_OK) status = collect_gradients(o, g);
    if (status == TN_OK && o->scaler) status = tn_grad_scaler_unscale(o);
    tn_tensor **squares = NULL;
    if (o->gradients_divided) status = tn_optim_share_facts(o, status, &squares);
    tn_group *divided = divided_group(o);
    if (status == TN_OK && divided && o->max_grad_norm < INFINITY) status = squares_of_ranks(o, divided, &squares);
    if (status == TN_OK && divided && o->scaler) {
        tn_tensor *bad = tn_cast(tn_logical_not(o->scaler->finite), TN_F32);
        o->scaler->finite = tn_eq_scalar(tn_group_sum_forward(divided, bad), 0);
    }
    if (status == TN_OK && o->max_grad_norm < INFINITY) status = clip_collected(o, squares);
    free(squares);
    if (status == TN_OK) status = record_updates(o, captured);
    if (status == TN_OK && o->scaler) status = tn_grad_scaler_update(o);
    if (status == TN_OK && g->also) status = g->also(g->ctx);
    if (status == TN_OK && captured) status = captured_add(captured);
    if (status != TN_OK) captured_free(captured);
    return status;
}

/* Records the step; forget: gradients are let go before the run, so that it need not store them. */
static tn_status step(tn_optimizer *o, bool forget, const gradients *g) {
    tn_status status = tn_optim_shard_begin(o);
    if (status == TN_OK) status = record_step(o, g);
    if (status == TN_OK) count_step(o, recorded_moves, o, 1);
    if (forget) tn_optimizer_zero_grad(o);
    if (status == TN_OK) {
        tn_tensor *loss = (tn_tensor *)(uintptr_t)g->loss;
        status = tn_eval(&loss, loss && !tn_capturing());
        if (status != TN_OK) {
            count_step(o, recorded_moves, o, -1);
            tn_discard_writes(); /* else a later evaluation would make this step, too */
        }
    }
    status = tn_optim_shard_end(o, status);
    for (int i = 0; i < o->count; i++)
        o->items[i].gradient = NULL;
    if (o->scaler) o->scaler->unscaled = false;
    return status;
}

tn_status tn_optimizer_step(tn_optimizer *o) {
    TRY(tn_nn_need(o, "tn_optimizer_step: the optimizer"));
    return step(o, false, &(gradients){.of = collected});
}

tn_status tn_minimize(tn_optimizer *o, const tn_tensor *loss) {
    tn_status status = tn_nn_need(o, "tn_minimize: the optimizer");
    if (status != TN_OK) return status;
    tn_optimizer_zero_grad(o);
    {
        TN_SCOPE;
        status = tn_backward(tn_optimizer_scale_loss(o, loss));
    }
    if (status == TN_OK) return step(o, true, &(gradients){.of = collected, .loss = loss});
    tn_optimizer_zero_grad(o);
    return status;
}

tn_status tn_nn_step(tn_optimizer *o, tn_tensor *(*gradient)(void *ctx, const tn_tensor *parameter),
                     tn_status (*also)(void *ctx), void *ctx) {
    return step(o, true, &(gradients){gradient, also, ctx, NULL});
}

/* ---- facts ------------------------------------------------------------------------------------------------------- */

double tn_optimizer_lr(const tn_optimizer *o) { return o ? o->lr : 0; }
tn_status tn_optimizer_set_lr(tn_optimizer *o, double lr) {
    tn_status status = tn_nn_need(o, "tn_optimizer_set_lr: the optimizer");
    if (status == TN_OK) status = tn_optim_check("lr", lr, 0, INFINITY);
    if (status == TN_OK) o->lr = lr;
    return status;
}
int tn_optimizer_count(const tn_optimizer *o) { return o ? o->count : 0; }

int64_t tn_optimizer_steps(const tn_optimizer *o, int i) {
    if (i < 0 || i >= tn_optimizer_count(o)) return -1;
    return o->scaler ? tn_grad_scaler_steps(o, i) : o->items[i].steps;
}

tn_status tn_optimizer_set_steps(tn_optimizer *o, int i, int64_t steps) {
    TRY(tn_nn_need(o, "tn_optimizer_set_steps: the optimizer"));
    if (i < 0 || i >= o->count || steps < 0)
        return tn_backend_fail(TN_ERR_ARGUMENT, "optimizer: variable %d of %d cannot have made %lld steps", i, o->count,
                               (long long)steps);
    if (o->scaler) return tn_grad_scaler_set_steps(o, i, steps);
    o->items[i].steps = steps;
    return TN_OK;
}

tn_status tn_optimizer_variables(const tn_optimizer *o, tn_variable **items, int *count) {
    if (!o || !items || !count) return tn_nn_need(NULL, "tn_optimizer_variables: the optimizer, items or count");
    *items = NULL;
    *count = 0;
    if (o->owners && !o->gathered)
        return tn_backend_fail(TN_ERR_STATE,
                               "optimizer: its state is divided among %d processes; call "
                               "tn_optimizer_gather on all of them first",
                               tn_group_size(o->group));
    int total = o->scaler ? TN_GRAD_SCALER_VARIABLES : 0;
    size_t text_size = 0;
    for (int i = 0; i < o->count; i++)
        for (int k = 0; k < TN_OPTIM_SLOTS; k++) {
            if (!o->items[i].slots[k]) continue;
            text_size += strlen(o->method->slot_names[k]) + strlen(o->items[i].name) + 2;
            total++;
        }
    if (total == 0) return TN_OK;
    tn_variable *block = malloc((size_t)total * sizeof *block + text_size);
    if (!block) return tn_optim_out_of_memory();
    char *text = (char *)(block + total);
    int n = 0;
    for (int k = 0; k < TN_OPTIM_SLOTS; k++)
        for (int i = 0; i < o->count; i++) {
            if (!o->items[i].slots[k]) continue;
            block[n++] = (tn_variable){text, o->items[i].slots[k], false};
            const char *slot = o->method->slot_names[k], *name = o->items[i].name;
            text += snprintf(text, strlen(slot) + strlen(name) + 2, "%s.%s", slot, name) + 1;
        }
    if (o->scaler) tn_grad_scaler_variables(o, block + n);
    *items = block;
    *count = total;
    return TN_OK;
}
