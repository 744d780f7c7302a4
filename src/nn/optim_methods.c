/* optim_methods.c — the update formulas of the optimizers: PyTorch's (torch.optim) where it has them.
 *
 * An update is recorded as element-wise writes to states. Parameters with equal updates share one launch. */
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

static void sgd_device_scalars(const tn_optimizer *o, TN_UNUSED const tn_optim_group *g, tn_tensor *const *numbers,
                               const tn_tensor *step, tn_tensor **scalars) {
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
    double c = sqrt(1 - pow(g->beta2, (double)step));
    values[ADAM_SIZE] = lr_of(o, g) * c / (1 - pow(g->beta1, (double)step));
    values[ADAM_EPS] = g->eps * c;
}

static void adamw_runtime_scalars(const tn_optimizer *o, const tn_optim_group *g, int64_t step, double *values) {
    adam_runtime_scalars(o, g, step, values);
    values[ADAMW_KEPT] = 1 - lr_of(o, g) * g->weight_decay;
}

/* 1 − beta^step, through expm1: the difference of two f32 numbers near 1 would keep few digits. */
static tn_tensor *bias_correction(double beta, const tn_tensor *step) {
    return tn_neg(tn_expm1(tn_mul(step, tn_scalar(log(beta)))));
}

static void adam_device_scalars(TN_UNUSED const tn_optimizer *o, const tn_optim_group *g, tn_tensor *const *numbers,
                                const tn_tensor *step, tn_tensor **scalars) {
    tn_tensor *c = tn_sqrt(bias_correction(g->beta2, step)), *lr = numbers[TN_STEP_LR];
    scalars[ADAM_SIZE] = tn_div(tn_mul(lr, c), bias_correction(g->beta1, step));
    scalars[ADAM_EPS] = tn_mul(c, tn_scalar(g->eps));
}

static void adamw_device_scalars(const tn_optimizer *o, const tn_optim_group *g, tn_tensor *const *numbers,
                                 const tn_tensor *step, tn_tensor **scalars) {
    adam_device_scalars(o, g, numbers, step, scalars);
    scalars[ADAMW_KEPT] = tn_sub(tn_scalar(1), numbers[TN_STEP_LR_DECAY]);
}

static void adam_constants(TN_UNUSED const tn_optimizer *o, const tn_optim_group *g, double *values) {
    values[ADAM_DECAY] = g->weight_decay;
    values[ADAM_NEW] = 1 - g->beta1;
    values[ADAM_BETA2] = g->beta2;
}

static void adam_move(const tn_optim_group *group, tn_trained *v, tn_tensor *g, tn_tensor *const *scalars,
                      tn_tensor *const *constants) {
    tn_tensor *mean = v->slots[ADAM_MEAN], *square = v->slots[ADAM_SQUARE];
    tn_lerp_(mean, g, constants[ADAM_NEW]);
    tn_addcmul_(tn_mul_(square, constants[ADAM_BETA2]), g, g, 1 - group->beta2);
    if (v->slots[ADAM_MOST]) square = tn_copy_(v->slots[ADAM_MOST], tn_maximum(v->slots[ADAM_MOST], square));
    tn_tensor *root = tn_add(tn_sqrt(square), scalars[ADAM_EPS]);
    tn_sub_(v->value, tn_div(tn_mul(mean, scalars[ADAM_SIZE]), root));
}

static void adam_update(TN_UNUSED const tn_optimizer *o, const tn_optim_group *group, tn_trained *v,
                        tn_tensor *const *scalars, tn_tensor *const *constants) {
    adam_move(group, v, decayed(group, v, constants[ADAM_DECAY]), scalars, constants);
}

static void adamw_update(TN_UNUSED const tn_optimizer *o, const tn_optim_group *group, tn_trained *v,
                         tn_tensor *const *scalars, tn_tensor *const *constants) {
    if (group->weight_decay != 0) tn_mul_(v->value, scalars[ADAMW_KEPT]);
    adam_move(group, v, v->gradient, scalars, constants);
}

const tn_optim_method tn_optim_adam = {.name = "adam",
                                       .has_betas = true,
                                       .has_eps = true,
                                       .slot_names = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"},
                                       .scalar_count = ADAM_RUNTIME_SCALARS,
                                       .constant_count = ADAM_CONSTANTS,
                                       .scalars = adam_runtime_scalars,
                                       .device_scalars = adam_device_scalars,
                                       .constants = adam_constants,
                                       .update = adam_update};
const tn_optim_method tn_optim_adamw = {.name = "adamw",
                                        .has_betas = true,
                                        .has_eps = true,
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
    values[LAMB_ROOT] = sqrt(1 - pow(g->beta2, (double)step));
    values[LAMB_MEAN] = 1 - pow(g->beta1, (double)step);
}

static void lamb_device_scalars(TN_UNUSED const tn_optimizer *o, const tn_optim_group *g, tn_tensor *const *numbers,
                                const tn_tensor *step, tn_tensor **scalars) {
    scalars[LAMB_RATE] = numbers[TN_STEP_LR];
    scalars[LAMB_ROOT] = tn_sqrt(bias_correction(g->beta2, step));
    scalars[LAMB_MEAN] = bias_correction(g->beta1, step);
}

static tn_tensor *norm_of(const tn_tensor *x) { return tn_sqrt(tn_sum(tn_mul(x, x), TN_ALL, false)); }

/* The step has the norm of the parameter; where one of the two is 0, it is Adam's. */
static void lamb_update(TN_UNUSED const tn_optimizer *o, const tn_optim_group *group, tn_trained *v,
                        tn_tensor *const *scalars, tn_tensor *const *constants) {
    tn_tensor *mean = v->slots[ADAM_MEAN], *square = v->slots[ADAM_SQUARE], *g = v->gradient;
    tn_lerp_(mean, g, constants[ADAM_NEW]);
    tn_addcmul_(tn_mul_(square, constants[ADAM_BETA2]), g, g, 1 - group->beta2);
    tn_tensor *root = tn_add(tn_div(tn_sqrt(square), scalars[LAMB_ROOT]), tn_scalar(group->eps));
    tn_tensor *step = tn_div(tn_div(mean, scalars[LAMB_MEAN]), root);
    if (group->weight_decay != 0) step = tn_add(step, tn_mul(v->value, constants[ADAM_DECAY]));
    tn_tensor *weight_norm = norm_of(v->value), *step_norm = norm_of(step), *zero = tn_scalar(0);
    tn_tensor *both = tn_logical_and(tn_gt(weight_norm, zero), tn_gt(step_norm, zero));
    tn_tensor *trust = tn_where(both, tn_div(weight_norm, step_norm), tn_scalar(1));
    tn_sub_(v->value, tn_mul(step, tn_mul(trust, scalars[LAMB_RATE])));
}

const tn_optim_method tn_optim_lamb = {.name = "lamb",
                                       .has_betas = true,
                                       .has_eps = true,
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

static void lr_only(const tn_optimizer *o, const tn_optim_group *g, TN_UNUSED int64_t step, double *values) {
    values[RMSPROP_RATE] = lr_of(o, g);
}

static void rmsprop_constants(const tn_optimizer *o, const tn_optim_group *g, double *values) {
    values[RMSPROP_DECAY] = g->weight_decay;
    values[RMSPROP_MOMENTUM] = o->momentum;
    values[RMSPROP_ALPHA] = o->alpha;
    values[RMSPROP_EPS] = g->eps;
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
                                          .has_eps = true,
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

static void adagrad_device_scalars(const tn_optimizer *o, TN_UNUSED const tn_optim_group *g, tn_tensor *const *numbers,
                                   const tn_tensor *step, tn_tensor **scalars) {
    tn_tensor *slower = tn_add_scalar(tn_mul(tn_sub_scalar(step, 1), tn_scalar(o->lr_decay)), 1);
    scalars[ADAGRAD_RATE] = tn_div(numbers[TN_STEP_LR], slower);
}

static void adagrad_constants(TN_UNUSED const tn_optimizer *o, const tn_optim_group *g, double *values) {
    values[ADAGRAD_DECAY] = g->weight_decay;
    values[ADAGRAD_EPS] = g->eps;
}

static void adagrad_update(TN_UNUSED const tn_optimizer *o, const tn_optim_group *group, tn_trained *v,
                           tn_tensor *const *scalars, tn_tensor *const *constants) {
    tn_tensor *g = decayed(group, v, constants[ADAGRAD_DECAY]), *sum = v->slots[0];
    tn_addcmul_(sum, g, g, 1);
    tn_tensor *root = tn_add(tn_sqrt(sum), constants[ADAGRAD_EPS]);
    tn_sub_(v->value, tn_div(tn_mul(g, scalars[ADAGRAD_RATE]), root));
}

const tn_optim_method tn_optim_adagrad = {.name = "adagrad",
                                          .has_eps = true,
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

static void lion_runtime_scalars(const tn_optimizer *o, const tn_optim_group *g, TN_UNUSED int64_t step,
                                 double *values) {
    values[LION_RATE] = lr_of(o, g);
    values[LION_KEPT] = 1 - lr_of(o, g) * g->weight_decay;
}

static void lion_constants(TN_UNUSED const tn_optimizer *o, const tn_optim_group *g, double *values) {
    values[LION_NEW_STEP] = 1 - g->beta1;
    values[LION_NEW_MEAN] = 1 - g->beta2;
}

static void lion_update(TN_UNUSED const tn_optimizer *o, const tn_optim_group *group, tn_trained *v,
                        tn_tensor *const *scalars, tn_tensor *const *constants) {
    tn_tensor *mean = v->slots[0], *g = v->gradient;
    tn_tensor *direction = tn_sign(tn_lerp(mean, g, constants[LION_NEW_STEP]));
    if (group->weight_decay != 0) tn_mul_(v->value, scalars[LION_KEPT]);
    tn_sub_(v->value, tn_mul(direction, scalars[LION_RATE]));
    tn_lerp_(mean, g, constants[LION_NEW_MEAN]);
}

const tn_optim_method tn_optim_lion = {.name = "lion",
                                       .has_betas = true,
                                       .slot_names = {"exp_avg"},
                                       .scalar_count = LION_RUNTIME_SCALARS,
                                       .constant_count = LION_CONSTANTS,
                                       .scalars = lion_runtime_scalars,
                                       .constants = lion_constants,
                                       .update = lion_update};

/* ---- Adafactor --------------------------------------------------------------------------------------------------- */

enum { ADAFACTOR_NEW, ADAFACTOR_RHO, ADAFACTOR_KEPT, ADAFACTOR_RUNTIME_SCALARS };
enum { ADAFACTOR_ROWS, ADAFACTOR_COLUMNS, ADAFACTOR_VARIANCE };

static void adafactor_runtime_scalars(const tn_optimizer *o, const tn_optim_group *g, int64_t step, double *values) {
    values[ADAFACTOR_NEW] = pow((double)step, o->beta2_decay);
    values[ADAFACTOR_RHO] = fmin(lr_of(o, g), 1 / sqrt((double)step));
    values[ADAFACTOR_KEPT] = 1 - lr_of(o, g) * g->weight_decay;
}

static void adafactor_device_scalars(const tn_optimizer *o, TN_UNUSED const tn_optim_group *g,
                                     tn_tensor *const *numbers, const tn_tensor *step, tn_tensor **scalars) {
    scalars[ADAFACTOR_NEW] = tn_pow(step, tn_scalar(o->beta2_decay));
    scalars[ADAFACTOR_RHO] = tn_minimum(numbers[TN_STEP_LR], tn_rsqrt(step));
    scalars[ADAFACTOR_KEPT] = tn_sub(tn_scalar(1), numbers[TN_STEP_LR_DECAY]);
}

static void no_constants(TN_UNUSED const tn_optimizer *o, TN_UNUSED const tn_optim_group *g, TN_UNUSED double *values) {
}

/* A matrix has the means of its rows and of its columns, anything else all squares. */
static bool adafactor_slot_shape(int k, int64_t *shape, int rank) {
    if (rank < 2) return k == ADAFACTOR_VARIANCE;
    if (k == ADAFACTOR_ROWS) shape[rank - 1] = 1;
    if (k == ADAFACTOR_COLUMNS) shape[rank - 2] = 1;
    return k != ADAFACTOR_VARIANCE;
}

/* The running mean of the squares, from two vectors where the parameter is a matrix. */
static tn_tensor *adafactor_variance(const tn_optimizer *o, tn_trained *v, const tn_tensor *new_part) {
    tn_tensor *rows = v->slots[ADAFACTOR_ROWS], *columns = v->slots[ADAFACTOR_COLUMNS];
    tn_tensor *square = tn_mul(v->gradient, v->gradient);
    if (!rows) return tn_lerp_(v->slots[ADAFACTOR_VARIANCE], square, new_part);
    tn_lerp_(rows, tn_mean(square, TN_DIMS(-1), true), new_part);
    tn_lerp_(columns, tn_mean(square, TN_DIMS(-2), true), new_part);
    tn_tensor *mean = tn_maximum(tn_mean(rows, TN_DIMS(-2), true), tn_scalar(o->eps));
    return tn_div(tn_mul(rows, columns), mean);
}

static void adafactor_update(const tn_optimizer *o, const tn_optim_group *group, tn_trained *v,
                             tn_tensor *const *scalars, TN_UNUSED tn_tensor *const *constants) {
    double root = sqrt((double)tn_numel(v->value));
    tn_tensor *size = tn_maximum(tn_div(norm_of(v->value), tn_scalar(root)), tn_scalar(o->eps2));
    if (group->weight_decay != 0) tn_mul_(v->value, scalars[ADAFACTOR_KEPT]);
    tn_tensor *variance = tn_maximum(adafactor_variance(o, v, scalars[ADAFACTOR_NEW]), tn_scalar(o->eps * o->eps));
    tn_tensor *step = tn_mul(tn_rsqrt(variance), v->gradient);
    tn_tensor *clipped = tn_maximum(tn_div(norm_of(step), tn_scalar(root * o->d)), tn_scalar(1));
    tn_sub_(v->value, tn_mul(step, tn_div(tn_mul(size, scalars[ADAFACTOR_RHO]), clipped)));
}

const tn_optim_method tn_optim_adafactor = {.name = "adafactor",
                                            .slot_names = {"row_var", "col_var", "variance"},
                                            .scalar_count = ADAFACTOR_RUNTIME_SCALARS,
                                            .slot_shape = adafactor_slot_shape,
                                            .scalars = adafactor_runtime_scalars,
                                            .device_scalars = adafactor_device_scalars,
                                            .constants = no_constants,
                                            .update = adafactor_update};

/* ---- Muon -------------------------------------------------------------------------------------------------------- */

/* About U·Vᵀ of the singular value decomposition U·S·Vᵀ: some steps of a Newton–Schulz iteration, in f32. */
static tn_tensor *orthogonalize(const tn_optimizer *o, tn_tensor *x) {
    bool tall = tn_size(x, 0) > tn_size(x, 1);
    if (tall) x = tn_t(x);
    x = tn_div(x, tn_maximum(norm_of(x), tn_scalar(o->eps)));
    for (int i = 0; i < o->ns_steps; i++) {
        tn_tensor *gram = tn_matmul(x, tn_t(x));
        tn_tensor *change = tn_add(tn_mul(gram, tn_scalar(o->ns_coefficients[1])),
                                   tn_mul(tn_matmul(gram, gram), tn_scalar(o->ns_coefficients[2])));
        x = tn_add(tn_mul(x, tn_scalar(o->ns_coefficients[0])), tn_matmul(change, x));
    }
    return tall ? tn_t(x) : x;
}

static void muon_update(const tn_optimizer *o, const tn_optim_group *group, tn_trained *v, tn_tensor *const *scalars,
                        TN_UNUSED tn_tensor *const *constants) {
    tn_tensor *buffer = v->slots[0], *g = v->gradient;
    double rows = (double)tn_size(v->value, 0), columns = (double)tn_size(v->value, 1);
    double ratio = o->match_rms_adamw ? 0.2 * sqrt(fmax(rows, columns)) : sqrt(fmax(1, rows / columns));
    tn_lerp_(buffer, g, tn_scalar(1 - o->momentum));
    tn_tensor *step = orthogonalize(o, o->nesterov ? tn_lerp(g, buffer, tn_scalar(o->momentum)) : buffer);
    if (group->weight_decay != 0) tn_mul_(v->value, scalars[LION_KEPT]);
    tn_sub_(v->value, tn_mul(step, tn_mul(scalars[LION_RATE], tn_scalar(ratio))));
}

const tn_optim_method tn_optim_muon = {.name = "muon",
                                       .slot_names = {"momentum_buffer"},
                                       .matrices = true,
                                       .scalar_count = LION_RUNTIME_SCALARS,
                                       .scalars = lion_runtime_scalars,
                                       .constants = no_constants,
                                       .update = muon_update};
