/* optim_methods.c — the formulas of the optimizers: PyTorch's (torch.optim).
 *
 * An update is recorded as element-wise writes to states; equal updates of several parameters share a launch. */
#include <math.h>

#include "nn/optimizer.h"
#include "trunnion/ops.h"

/* The gradient, plus weight_decay times the variable. */
static tn_tensor *decayed(const tn_optimizer *o, const tn_trained *v, const tn_tensor *weight_decay) {
    return o->weight_decay == 0 ? v->gradient : tn_add(v->gradient, tn_mul(v->value, weight_decay));
}

/* ---- SGD --------------------------------------------------------------------------------------------------------- */

enum { SGD_RATE, SGD_NEW, SGD_RUNTIME_SCALARS }; /* learning rate; what of the gradient enters the momentum */
enum { SGD_DECAY, SGD_MOMENTUM, SGD_CONSTANTS };

static void sgd_runtime_scalars(const tn_optimizer *o, int64_t step, double *values) {
    values[SGD_RATE] = o->lr;
    values[SGD_NEW] = step == 1 ? 1 : 1 - o->dampening; /* all of it the first time */
}

/* The momentum takes all of the first gradient. */
static void sgd_device_scalars(const tn_optimizer *o, tn_tensor *const *numbers, const tn_tensor *step,
                               tn_tensor **scalars) {
    scalars[SGD_RATE] = numbers[TN_STEP_LR];
    scalars[SGD_NEW] = tn_where(tn_eq_scalar(step, 1), tn_scalar(1), tn_scalar(1 - o->dampening));
}

static void sgd_constants(const tn_optimizer *o, double *values) {
    values[SGD_DECAY] = o->weight_decay;
    values[SGD_MOMENTUM] = o->momentum;
}

static void sgd_update(const tn_optimizer *o, tn_trained *v, tn_tensor *const *scalars, tn_tensor *const *constants) {
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

/* 1 − beta^step, through expm1: the difference of two f32 numbers near 1 would keep few digits. */
static tn_tensor *bias_correction(double beta, const tn_tensor *step) {
    return tn_neg(tn_expm1(tn_mul(step, tn_scalar(log(beta)))));
}

static void adam_device_scalars(const tn_optimizer *o, tn_tensor *const *numbers, const tn_tensor *step,
                                tn_tensor **scalars) {
    tn_tensor *c = tn_sqrt(bias_correction(o->beta2, step)), *lr = numbers[TN_STEP_LR];
    scalars[ADAM_SIZE] = tn_div(tn_mul(lr, c), bias_correction(o->beta1, step));
    scalars[ADAM_EPS] = tn_mul(c, tn_scalar(o->eps));
}

static void adamw_device_scalars(const tn_optimizer *o, tn_tensor *const *numbers, const tn_tensor *step,
                                 tn_tensor **scalars) {
    tn_tensor *lr_decay = numbers[TN_STEP_LR_DECAY];
    adam_device_scalars(o, numbers, step, scalars);
    scalars[ADAMW_KEPT] = tn_sub(tn_scalar(1), lr_decay);
}

static void adam_constants(const tn_optimizer *o, double *values) {
    values[ADAM_DECAY] = o->weight_decay;
    values[ADAM_NEW] = 1 - o->beta1;
    values[ADAM_BETA2] = o->beta2;
}

static void adam_move(const tn_optimizer *o, tn_trained *v, tn_tensor *g, tn_tensor *const *scalars,
                      tn_tensor *const *constants) {
    tn_tensor *mean = v->slots[0], *square = v->slots[1];
    tn_lerp_(mean, g, constants[ADAM_NEW]);
    tn_addcmul_(tn_mul_(square, constants[ADAM_BETA2]), g, g, 1 - o->beta2);
    tn_tensor *root = tn_add(tn_sqrt(square), scalars[ADAM_EPS]);
    tn_sub_(v->value, tn_div(tn_mul(mean, scalars[ADAM_SIZE]), root));
}

static void adam_update(const tn_optimizer *o, tn_trained *v, tn_tensor *const *scalars, tn_tensor *const *constants) {
    adam_move(o, v, decayed(o, v, constants[ADAM_DECAY]), scalars, constants);
}

static void adamw_update(const tn_optimizer *o, tn_trained *v, tn_tensor *const *scalars, tn_tensor *const *constants) {
    if (o->weight_decay != 0) tn_mul_(v->value, scalars[ADAMW_KEPT]);
    adam_move(o, v, v->gradient, scalars, constants);
}

const tn_optim_method tn_optim_sgd = {.name = "sgd",
                                      .slot_names = {"momentum_buffer"},
                                      .scalar_count = SGD_RUNTIME_SCALARS,
                                      .constant_count = SGD_CONSTANTS,
                                      .scalars = sgd_runtime_scalars,
                                      .device_scalars = sgd_device_scalars,
                                      .constants = sgd_constants,
                                      .update = sgd_update};
const tn_optim_method tn_optim_adam = {.name = "adam",
                                       .slot_names = {"exp_avg", "exp_avg_sq"},
                                       .scalar_count = ADAM_RUNTIME_SCALARS,
                                       .constant_count = ADAM_CONSTANTS,
                                       .scalars = adam_runtime_scalars,
                                       .device_scalars = adam_device_scalars,
                                       .constants = adam_constants,
                                       .update = adam_update};
const tn_optim_method tn_optim_adamw = {.name = "adamw",
                                        .slot_names = {"exp_avg", "exp_avg_sq"},
                                        .scalar_count = ADAMW_RUNTIME_SCALARS,
                                        .constant_count = ADAM_CONSTANTS,
                                        .scalars = adamw_runtime_scalars,
                                        .device_scalars = adamw_device_scalars,
                                        .constants = adam_constants,
                                        .update = adamw_update};
