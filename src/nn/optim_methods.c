/* optim_methods.c — the formulas of the optimizers: PyTorch's (torch.optim) where it has them.
 *
 * An update is recorded as element-wise writes to states; equal updates of several parameters share a launch. */
#include <math.h>

#include "nn/optimizer.h"
#include "trunnion/ops.h"

static double lr_of(const tn_optimizer *o, const tn_optim_group *g) { return o->lr * g->lr_factor; }

/* The gradient, plus weight_decay times the parameter. */
static tn_tensor *decayed(const tn_optim_group *g, const tn_trained *v, const tn_tensor *weight_decay) {
    return g->weight_decay == 0 ? v->gradient : tn_add(v->gradient, tn_mul(v->value, weight_decay));
}

/* ---- SGD --------------------------------------------------------------------------------------------------------- */

enum { SGD_RATE, SGD_NEW, SGD_RUNTIME_SCALARS }; /* learning rate; what of the gradient enters the momentum */
enum { SGD_DECAY, SGD_MOMENTUM, SGD_CONSTANTS };

static void sgd_runtime_scalars(const tn_optimizer *o, const tn_optim_group *g, int64_t step, double *values) {
    values[SGD_RATE] = lr_of(o, g);
    values[SGD_NEW] = step == 1 ? 1 : 1 - o->dampening; /* all of it the first time */
}

static void sgd_device_scalars(const tn_optimizer *o, tn_tensor *const *numbers, const tn_tensor *step,
                               tn_tensor **scalars) {
    scalars[SGD_RATE] = numbers[TN_STEP_LR];
    scalars[SGD_NEW] = tn_where(tn_eq_scalar(step, 1), tn_scalar(1), tn_scalar(1 - o->dampening));
}

static void sgd_constants(const tn_optimizer *o, const tn_optim_group *g, double *values) {
    values[SGD_DECAY] = g->weight_decay;
    values[SGD_MOMENTUM] = o->momentum;
}

static void sgd_update(const tn_optimizer *o, const tn_optim_group *group, tn_trained *v, tn_tensor *const *scalars,
                       tn_tensor *const *constants) {
    tn_tensor *g = decayed(group, v, constants[SGD_DECAY]);
    if (o->momentum != 0) {
        tn_tensor *buffer = v->slots[0];
        tn_mul_(buffer, constants[SGD_MOMENTUM]);
        tn_add_(buffer, o->dampening != 0 ? tn_mul(g, scalars[SGD_NEW]) : g);
        g = o->nesterov ? tn_add(g, tn_mul(buffer, constants[SGD_MOMENTUM])) : buffer;
    }
    tn_sub_(v->value, tn_mul(g, scalars[SGD_RATE]));
}

const tn_optim_method tn_optim_sgd = {.name = "sgd",
                                      .slot_names = {"momentum_buffer"},
                                      .scalar_count = SGD_RUNTIME_SCALARS,
                                      .constant_count = SGD_CONSTANTS,
                                      .scalars = sgd_runtime_scalars,
                                      .device_scalars = sgd_device_scalars,
                                      .constants = sgd_constants,
                                      .update = sgd_update};

/* ---- Adam, AdamW ------------------------------------------------------------------------------------------------- */

enum { ADAM_SIZE, ADAM_EPS, ADAM_RUNTIME_SCALARS, ADAMW_KEPT = ADAM_RUNTIME_SCALARS, ADAMW_RUNTIME_SCALARS };
enum { ADAM_DECAY, ADAM_NEW, ADAM_BETA2, ADAM_CONSTANTS };
enum { ADAM_MEAN, ADAM_SQUARE, ADAM_MOST };

/* The definition's fraction, numerator and denominator times c = sqrt(1 − beta2^t):
 * lr·c / (1 − beta1^t) · m / (sqrt(v) + eps·c) has one multiplication less an element. */
static void adam_runtime_scalars(const tn_optimizer *o, const tn_optim_group *g, int64_t step, double *values) {
    double c = sqrt(1 - pow(o->beta2, (double)step));
    values[ADAM_SIZE] = lr_of(o, g) * c / (1 - pow(o->beta1, (double)step));
    values[ADAM_EPS] = o->eps * c;
}

static void adamw_runtime_scalars(const tn_optimizer *o, const tn_optim_group *g, int64_t step, double *values) {
    adam_runtime_scalars(o, g, step, values);
    values[ADAMW_KEPT] = 1 - lr_of(o, g) * g->weight_decay;
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
    adam_device_scalars(o, numbers, step, scalars);
    scalars[ADAMW_KEPT] = tn_sub(tn_scalar(1), numbers[TN_STEP_LR_DECAY]);
}

static void adam_constants(const tn_optimizer *o, const tn_optim_group *g, double *values) {
    values[ADAM_DECAY] = g->weight_decay;
    values[ADAM_NEW] = 1 - o->beta1;
    values[ADAM_BETA2] = o->beta2;
}

static void adam_move(const tn_optimizer *o, tn_trained *v, tn_tensor *g, tn_tensor *const *scalars,
                      tn_tensor *const *constants) {
    tn_tensor *mean = v->slots[ADAM_MEAN], *square = v->slots[ADAM_SQUARE];
    tn_lerp_(mean, g, constants[ADAM_NEW]);
    tn_addcmul_(tn_mul_(square, constants[ADAM_BETA2]), g, g, 1 - o->beta2);
    if (v->slots[ADAM_MOST]) square = tn_copy_(v->slots[ADAM_MOST], tn_maximum(v->slots[ADAM_MOST], square));
    tn_tensor *root = tn_add(tn_sqrt(square), scalars[ADAM_EPS]);
    tn_sub_(v->value, tn_div(tn_mul(mean, scalars[ADAM_SIZE]), root));
}

static void adam_update(const tn_optimizer *o, const tn_optim_group *group, tn_trained *v, tn_tensor *const *scalars,
                        tn_tensor *const *constants) {
    adam_move(o, v, decayed(group, v, constants[ADAM_DECAY]), scalars, constants);
}

static void adamw_update(const tn_optimizer *o, const tn_optim_group *group, tn_trained *v, tn_tensor *const *scalars,
                         tn_tensor *const *constants) {
    if (group->weight_decay != 0) tn_mul_(v->value, scalars[ADAMW_KEPT]);
    adam_move(o, v, v->gradient, scalars, constants);
}

const tn_optim_method tn_optim_adam = {.name = "adam",
                                       .slot_names = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"},
                                       .scalar_count = ADAM_RUNTIME_SCALARS,
                                       .constant_count = ADAM_CONSTANTS,
                                       .scalars = adam_runtime_scalars,
                                       .device_scalars = adam_device_scalars,
                                       .constants = adam_constants,
                                       .update = adam_update};
const tn_optim_method tn_optim_adamw = {.name = "adamw",
                                        .slot_names = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"},
                                        .scalar_count = ADAMW_RUNTIME_SCALARS,
                                        .constant_count = ADAM_CONSTANTS,
                                        .scalars = adamw_runtime_scalars,
                                        .device_scalars = adamw_device_scalars,
                                        .constants = adam_constants,
                                        .update = adamw_update};

/* ---- LAMB -------------------------------------------------------------------------------------------------------- */

enum { LAMB_RATE, LAMB_ROOT, LAMB_MEAN, LAMB_RUNTIME_SCALARS }; /* lr, sqrt(1 − beta2^t), 1 − beta1^t */

static void lamb_runtime_scalars(const tn_optimizer *o, const tn_optim_group *g, int64_t step, double *values) {
    values[LAMB_RATE] = lr_of(o, g);
    values[LAMB_ROOT] = sqrt(1 - pow(o->beta2, (double)step));
    values[LAMB_MEAN] = 1 - pow(o->beta1, (double)step);
}

static void lamb_device_scalars(const tn_optimizer *o, tn_tensor *const *numbers, const tn_tensor *step,
                                tn_tensor **scalars) {
    scalars[LAMB_RATE] = numbers[TN_STEP_LR];
    scalars[LAMB_ROOT] = tn_sqrt(bias_correction(o->beta2, step));
    scalars[LAMB_MEAN] = bias_correction(o->beta1, step);
}

static tn_tensor *norm_of(const tn_tensor *x) { return tn_sqrt(tn_sum(tn_mul(x, x), TN_ALL, false)); }

/* The step has the norm of the parameter; where one of the two is 0, it is Adam's. */
static void lamb_update(const tn_optimizer *o, const tn_optim_group *group, tn_trained *v, tn_tensor *const *scalars,
                        tn_tensor *const *constants) {
    tn_tensor *mean = v->slots[ADAM_MEAN], *square = v->slots[ADAM_SQUARE], *g = v->gradient;
    tn_lerp_(mean, g, constants[ADAM_NEW]);
    tn_addcmul_(tn_mul_(square, constants[ADAM_BETA2]), g, g, 1 - o->beta2);
    tn_tensor *root = tn_add(tn_div(tn_sqrt(square), scalars[LAMB_ROOT]), tn_scalar(o->eps));
    tn_tensor *step = tn_div(tn_div(mean, scalars[LAMB_MEAN]), root);
    if (group->weight_decay != 0) step = tn_add(step, tn_mul(v->value, constants[ADAM_DECAY]));
    tn_tensor *weight_norm = norm_of(v->value), *step_norm = norm_of(step), *zero = tn_scalar(0);
    tn_tensor *both = tn_logical_and(tn_gt(weight_norm, zero), tn_gt(step_norm, zero));
    tn_tensor *trust = tn_where(both, tn_div(weight_norm, step_norm), tn_scalar(1));
    tn_sub_(v->value, tn_mul(step, tn_mul(trust, scalars[LAMB_RATE])));
}

const tn_optim_method tn_optim_lamb = {.name = "lamb",
                                       .slot_names = {"exp_avg", "exp_avg_sq"},
                                       .scalar_count = LAMB_RUNTIME_SCALARS,
                                       .constant_count = ADAM_CONSTANTS,
                                       .scalars = lamb_runtime_scalars,
                                       .device_scalars = lamb_device_scalars,
                                       .constants = adam_constants,
                                       .update = lamb_update};

/* ---- RMSprop ----------------------------------------------------------------------------------------------------- */

enum { RMSPROP_RATE, RMSPROP_RUNTIME_SCALARS };
enum { RMSPROP_DECAY, RMSPROP_MOMENTUM, RMSPROP_ALPHA, RMSPROP_EPS, RMSPROP_CONSTANTS };
enum { RMSPROP_SQUARE, RMSPROP_BUFFER, RMSPROP_MEAN };

static void lr_only(const tn_optimizer *o, const tn_optim_group *g, int64_t step, double *values) {
    (void)step;
    values[RMSPROP_RATE] = lr_of(o, g);
}

static void rmsprop_constants(const tn_optimizer *o, const tn_optim_group *g, double *values) {
    values[RMSPROP_DECAY] = g->weight_decay;
    values[RMSPROP_MOMENTUM] = o->momentum;
    values[RMSPROP_ALPHA] = o->alpha;
    values[RMSPROP_EPS] = o->eps;
}

static void rmsprop_update(const tn_optimizer *o, const tn_optim_group *group, tn_trained *v, tn_tensor *const *scalars,
                           tn_tensor *const *constants) {
    tn_tensor *g = decayed(group, v, constants[RMSPROP_DECAY]), *square = v->slots[RMSPROP_SQUARE];
    tn_tensor *buffer = v->slots[RMSPROP_BUFFER], *mean = v->slots[RMSPROP_MEAN];
    tn_addcmul_(tn_mul_(square, constants[RMSPROP_ALPHA]), g, g, 1 - o->alpha);
    tn_tensor *variance = square;
    if (mean) {
        tn_lerp_(mean, g, tn_scalar(1 - o->alpha));
        variance = tn_sub(square, tn_mul(mean, mean));
    }
    tn_tensor *step = tn_div(g, tn_add(tn_sqrt(variance), constants[RMSPROP_EPS]));
    if (buffer) step = tn_add_(tn_mul_(buffer, constants[RMSPROP_MOMENTUM]), step);
    tn_sub_(v->value, tn_mul(step, scalars[RMSPROP_RATE]));
}

const tn_optim_method tn_optim_rmsprop = {.name = "rmsprop",
                                          .slot_names = {"square_avg", "momentum_buffer", "grad_avg"},
                                          .scalar_count = RMSPROP_RUNTIME_SCALARS,
                                          .constant_count = RMSPROP_CONSTANTS,
                                          .scalars = lr_only,
                                          .constants = rmsprop_constants,
                                          .update = rmsprop_update};

/* ---- Adagrad ----------------------------------------------------------------------------------------------------- */

enum { ADAGRAD_RATE, ADAGRAD_RUNTIME_SCALARS };
enum { ADAGRAD_DECAY, ADAGRAD_EPS, ADAGRAD_CONSTANTS };

static void adagrad_runtime_scalars(const tn_optimizer *o, const tn_optim_group *g, int64_t step, double *values) {
    values[ADAGRAD_RATE] = lr_of(o, g) / (1 + (double)(step - 1) * o->lr_decay);
}

static void adagrad_device_scalars(const tn_optimizer *o, tn_tensor *const *numbers, const tn_tensor *step,
                                   tn_tensor **scalars) {
    tn_tensor *slower = tn_add_scalar(tn_mul(tn_sub_scalar(step, 1), tn_scalar(o->lr_decay)), 1);
    scalars[ADAGRAD_RATE] = tn_div(numbers[TN_STEP_LR], slower);
}

static void adagrad_constants(const tn_optimizer *o, const tn_optim_group *g, double *values) {
    values[ADAGRAD_DECAY] = g->weight_decay;
    values[ADAGRAD_EPS] = o->eps;
}

static void adagrad_update(const tn_optimizer *o, const tn_optim_group *group, tn_trained *v, tn_tensor *const *scalars,
                           tn_tensor *const *constants) {
    (void)o;
    tn_tensor *g = decayed(group, v, constants[ADAGRAD_DECAY]), *sum = v->slots[0];
    tn_addcmul_(sum, g, g, 1);
    tn_tensor *root = tn_add(tn_sqrt(sum), constants[ADAGRAD_EPS]);
    tn_sub_(v->value, tn_div(tn_mul(g, scalars[ADAGRAD_RATE]), root));
}

const tn_optim_method tn_optim_adagrad = {.name = "adagrad",
                                          .slot_names = {"sum"},
                                          .scalar_count = ADAGRAD_RUNTIME_SCALARS,
                                          .constant_count = ADAGRAD_CONSTANTS,
                                          .scalars = adagrad_runtime_scalars,
                                          .device_scalars = adagrad_device_scalars,
                                          .constants = adagrad_constants,
                                          .update = adagrad_update};

/* ---- Lion -------------------------------------------------------------------------------------------------------- */

enum { LION_RATE, LION_KEPT, LION_RUNTIME_SCALARS };
enum { LION_NEW_STEP, LION_NEW_MEAN, LION_CONSTANTS };

static void lion_runtime_scalars(const tn_optimizer *o, const tn_optim_group *g, int64_t step, double *values) {
    (void)step;
    values[LION_RATE] = lr_of(o, g);
    values[LION_KEPT] = 1 - lr_of(o, g) * g->weight_decay;
}

static void lion_constants(const tn_optimizer *o, const tn_optim_group *g, double *values) {
    (void)g;
    values[LION_NEW_STEP] = 1 - o->beta1;
    values[LION_NEW_MEAN] = 1 - o->beta2;
}

static void lion_update(const tn_optimizer *o, const tn_optim_group *group, tn_trained *v, tn_tensor *const *scalars,
                        tn_tensor *const *constants) {
    (void)o;
    tn_tensor *mean = v->slots[0], *g = v->gradient;
    tn_tensor *direction = tn_sign(tn_lerp(mean, g, constants[LION_NEW_STEP]));
    if (group->weight_decay != 0) tn_mul_(v->value, scalars[LION_KEPT]);
    tn_sub_(v->value, tn_mul(direction, scalars[LION_RATE]));
    tn_lerp_(mean, g, constants[LION_NEW_MEAN]);
}

const tn_optim_method tn_optim_lion = {.name = "lion",
                                       .slot_names = {"exp_avg"},
                                       .scalar_count = LION_RUNTIME_SCALARS,
                                       .constant_count = LION_CONSTANTS,
                                       .scalars = lion_runtime_scalars,
                                       .constants = lion_constants,
                                       .update = lion_update};
