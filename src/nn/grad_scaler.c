/* grad_scaler.c — dynamic loss scale: unscaling, skipped steps, growth and backoff, all on the device.
 *
 * The host never learns whether a step was skipped, so a step with a scaler is one plan like any other, and can be
 * captured. Each state of the optimizer gets its new value through a select on `finite`: a skipped step writes back the
 * bits that were there. The step counts are an i32 tensor; which parameters have equal counts follows from the history
 * that the host keeps of who took part in which attempt. */
#include <math.h>
#include <stdlib.h>

#include "nn/optimizer.h"
#include "trunnion/autograd.h"
#include "trunnion/backend.h"
#include "trunnion/ops.h"

/* ---- making ------------------------------------------------------------------------------------------------------ */

void tn_grad_scaler_free(tn_grad_scaler *s) {
    if (!s) return;
    tn_free(s->scale);
    tn_free(s->growth_tracker);
    tn_free(s->skipped);
    tn_free(s->steps);
    free(s);
}

static tn_status check_scaler(const tn_grad_scaler_options *o) {
    if (!(o->init_scale > 0 && (float)o->init_scale < INFINITY))
        return tn_backend_fail(TN_ERR_ARGUMENT, "grad scaler: init_scale is %g; it must be greater than 0 and fit f32",
                               o->init_scale);
    if (!(o->growth_factor > 1 && o->growth_factor < INFINITY))
        return tn_backend_fail(TN_ERR_ARGUMENT, "grad scaler: growth_factor is %g; it must be greater than 1",
                               o->growth_factor);
    if (!(o->backoff_factor > 0 && o->backoff_factor < 1))
        return tn_backend_fail(TN_ERR_ARGUMENT, "grad scaler: backoff_factor is %g; it must be in (0, 1)",
                               o->backoff_factor);
    if (o->growth_interval < 1 || o->growth_interval > INT32_MAX)
        return tn_backend_fail(TN_ERR_ARGUMENT, "grad scaler: growth_interval is %lld; it must be 1 … %d",
                               (long long)o->growth_interval, INT32_MAX);
    return TN_OK;
}

/* The counts made so far go to the device. */
static tn_status copy_steps(const tn_optimizer *o, const tn_grad_scaler *s) {
    int32_t *counts = malloc(((size_t)o->count + 1) * sizeof *counts);
    if (!counts) return tn_optim_out_of_memory();
    for (int i = 0; i < o->count; i++)
        counts[i] = (int32_t)(o->items[i].steps < INT32_MAX ? o->items[i].steps : INT32_MAX);
    TN_SCOPE;
    TN_NO_GRAD;
    tn_status status = tn_status_of(tn_copy_(s->steps, tn_from_data(counts, TN_DIMS(o->count), TN_I32)));
    free(counts);
    return status == TN_OK ? tn_eval(NULL, 0) : status;
}

tn_status tn_optimizer_set_grad_scaler(tn_optimizer *o, const tn_grad_scaler_options *options) {
    TRY(tn_nn_need(o, "tn_optimizer_set_grad_scaler: the optimizer"));
    tn_grad_scaler_options read = TN_GRAD_SCALER_DEFAULTS;
    TRY(tn_options_read(&read, options, "grad scaler", "tn_grad_scaler_options o = TN_GRAD_SCALER_DEFAULTS"));
    TRY(check_scaler(&read));
    if (o->scaler || tn_capturing())
        return tn_backend_fail(TN_ERR_STATE, "grad scaler: %s",
                               o->scaler ? "the optimizer has one" : "it must be set before tn_capture_begin");
    tn_grad_scaler *s = calloc(1, sizeof *s);
    if (!s) return tn_optim_out_of_memory();
    s->growth = read.growth_factor;
    s->backoff = read.backoff_factor;
    s->interval = read.growth_interval;
    const tn_tensor *like = o->items[0].value;
    tn_status status = tn_optim_state(like, NULL, 0, read.init_scale, TN_F32, &s->scale);
    if (status == TN_OK) status = tn_optim_state(like, NULL, 0, 0, TN_I32, &s->growth_tracker);
    if (status == TN_OK) status = tn_optim_state(like, NULL, 0, 0, TN_I32, &s->skipped);
    if (status == TN_OK) status = tn_optim_state(like, TN_DIMS(o->count), 0, TN_I32, &s->steps);
    if (status == TN_OK) status = copy_steps(o, s);
    if (status != TN_OK) {
        tn_grad_scaler_free(s);
        return status;
    }
    for (int i = 0; i < o->count; i++)
        o->items[i].history = tn_grad_scaler_mix(0, (uint64_t)o->items[i].steps);
    o->scaler = s;
    return TN_OK;
}

/* ---- scaling ----------------------------------------------------------------------------------------------------- */

tn_tensor *tn_optimizer_scale_loss(const tn_optimizer *o, const tn_tensor *loss) {
    if (!o) return tn_failed(TN_ERR_ARGUMENT, "tn_optimizer_scale_loss: the optimizer is NULL");
    if (!loss) return tn_failed(TN_ERR_ARGUMENT, "tn_optimizer_scale_loss: loss is NULL");
    if (!o->scaler) return tn_view_as(loss, loss);
    tn_tensor *scaled = NULL;
    TN_SCOPE;
    scaled = tn_keep(tn_mul(loss, tn_to_device(o->scaler->scale, tn_device_of(loss))));
    return scaled;
}

static tn_tensor *inverse_scale(const tn_grad_scaler *s) { return tn_reciprocal(s->scale); }

tn_status tn_optimizer_unscale(tn_optimizer *o) {
    tn_status status = tn_nn_need(o, "tn_optimizer_unscale: the optimizer");
    if (status != TN_OK || !o->scaler) return status;
    if (o->scaler->unscaled)
        return tn_backend_fail(TN_ERR_STATE,
                               "tn_optimizer_unscale: the gradients are unscaled already; call it once a step");
    TN_SCOPE;
    TN_NO_GRAD;
    TN_AUTOCAST(TN_F32);
    tn_tensor *inverse = inverse_scale(o->scaler);
    for (int i = 0; i < o->count && status == TN_OK; i++) {
        tn_tensor *g = tn_grad(o->items[i].value);
        if (g) status = tn_status_of(tn_mul_(g, inverse));
    }
    o->scaler->unscaled = status == TN_OK;
    return status;
}

/* ---- a step ------------------------------------------------------------------------------------------------------ */

tn_status tn_grad_scaler_unscale(tn_optimizer *o) {
    tn_grad_scaler *s = o->scaler;
    tn_tensor *inverse = inverse_scale(s);
    tn_tensor **gradients = malloc(((size_t)o->count + 1) * sizeof *gradients);
    if (!gradients) return tn_optim_out_of_memory();
    for (int i = 0; i < o->count; i++) {
        tn_trained *v = &o->items[i];
        if (v->gradient && !s->unscaled) v->gradient = tn_mul(v->gradient, inverse);
        gradients[i] = v->gradient;
    }
    s->finite = tn_nn_all_finite(gradients, o->count);
    free(gradients);
    return tn_status_of(s->finite);
}

tn_tensor *tn_grad_scaler_step(const tn_optimizer *o, const tn_trained *v) {
    int64_t i = v - o->items;
    tn_tensor *made = tn_reshape(tn_slice(o->scaler->steps, 0, i, i + 1, 1), NULL, 0);
    return tn_add_scalar(tn_cast(made, TN_F32), 1);
}

tn_tensor *tn_grad_scaler_before(const tn_tensor *state) { return tn_contiguous(state); }

void tn_grad_scaler_keep(const tn_optimizer *o, tn_tensor *state, const tn_tensor *before) {
    tn_copy_(state, tn_where(o->scaler->finite, state, before));
}

/* 1 where a parameter takes part; NULL: all do. */
static tn_tensor *taking_part(const tn_optimizer *o) {
    AUTO_NN_FREE int32_t *part = malloc(((size_t)o->count + 1) * sizeof *part);
    if (!part) return tn_failed(TN_ERR_MEMORY, "optimizer: out of memory");
    bool all = true;
    for (int i = 0; i < o->count; i++)
        all &= part[i] = o->items[i].gradient != NULL;
    return all ? NULL : tn_to_device(tn_from_data(part, TN_DIMS(o->count), TN_I32), tn_device_of(o->scaler->steps));
}

tn_status tn_grad_scaler_update(const tn_optimizer *o) {
    const tn_grad_scaler *s = o->scaler;
    tn_tensor *one = tn_cast(s->finite, TN_I32), *part = taking_part(o);
    tn_add_(s->steps, part ? tn_mul(part, one) : one);
    tn_add_(s->skipped, tn_sub(tn_scalar_int(1), one));
    tn_tensor *clean = tn_mul(tn_add_scalar(s->growth_tracker, 1), one);
    tn_tensor *due = tn_eq_scalar(clean, (double)s->interval);
    tn_tensor *larger = tn_mul(s->scale, tn_scalar(s->growth));
    tn_tensor *grown = tn_where(tn_logical_and(due, tn_isfinite(larger)), larger, s->scale);
    tn_tensor *scale = tn_where(s->finite, grown, tn_mul(s->scale, tn_scalar(s->backoff)));
    tn_copy_(s->scale, scale);
    tn_copy_(s->growth_tracker, tn_where(due, tn_scalar_int(0), clean));
    TRY(tn_status_of(s->steps));
    TRY(tn_status_of(s->skipped));
    TRY(tn_status_of(s->scale));
    return tn_status_of(s->growth_tracker);
}

/* ---- facts ------------------------------------------------------------------------------------------------------- */

uint64_t tn_grad_scaler_mix(uint64_t history, uint64_t number) {
    uint64_t z = (history ^ number) + UINT64_C(0x9E3779B97F4A7C15); /* SplitMix64: Steele, Lea and Flood 2014 */
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

double tn_optimizer_loss_scale(const tn_optimizer *o) { return o && o->scaler ? tn_item(o->scaler->scale) : 1; }

int64_t tn_optimizer_skipped_steps(const tn_optimizer *o) {
    int32_t skipped = 0;
    if (o && o->scaler && tn_read(o->scaler->skipped, &skipped, sizeof skipped) != TN_OK) return -1;
    return skipped;
}

int64_t tn_grad_scaler_steps(const tn_optimizer *o, int i) {
    int32_t steps = 0;
    TN_SCOPE;
    tn_status status = tn_read(tn_slice(o->scaler->steps, 0, i, i + 1, 1), &steps, sizeof steps);
    return status == TN_OK ? steps : -1;
}

tn_status tn_grad_scaler_set_steps(tn_optimizer *o, int i, int64_t steps) {
    tn_grad_scaler *s = o->scaler;
    TN_SCOPE;
    TN_NO_GRAD;
    tn_tensor *count = tn_slice(s->steps, 0, i, i + 1, 1);
    tn_status status = tn_status_of(tn_copy_(count, tn_scalar_int(steps < INT32_MAX ? steps : INT32_MAX)));
    /* Parameters that are given the same count before the next step are equal from then on. */
    if (status == TN_OK) o->items[i].history = tn_grad_scaler_mix(tn_grad_scaler_mix(0, s->attempts), (uint64_t)steps);
    return status;
}

void tn_grad_scaler_variables(const tn_optimizer *o, tn_variable items[TN_GRAD_SCALER_VARIABLES]) {
    items[0] = (tn_variable){"grad_scaler.scale", o->scaler->scale, false};
    items[1] = (tn_variable){"grad_scaler.growth_tracker", o->scaler->growth_tracker, false};
    items[2] = (tn_variable){"grad_scaler.skipped", o->scaler->skipped, false};
}
