/* optimizer.h — what the files of an optimizer share: parameters in groups, the method, the gradient scaler.
 *
 * optim_make.c makes optimizers, optim.c steps; optim_methods.c has the formulas; grad_scaler.c the dynamic loss scale;
 * clip.c what concerns gradients only. */
#ifndef TN_NN_OPTIMIZER_H
#define TN_NN_OPTIMIZER_H

#include <stdatomic.h>

#include "nn/make.h"
#include "trunnion/amp.h"
#include "trunnion/data_parallel.h"

enum { TN_OPTIM_SLOTS = 3, TN_OPTIM_NUMBERS = 4 };

/* One parameter. */
typedef struct tn_trained {
    char *name;
    tn_tensor *value;
    tn_tensor *slots[TN_OPTIM_SLOTS]; /* the method's memory; NULL where it keeps none */
    tn_tensor *gradient;              /* during a step; NULL: left alone */
    tn_division division;             /* tensor parallelism: the value is this rank's share */
    int group;
    int64_t steps;    /* made so far; with a gradient scaler the device counts them */
    uint64_t history; /* with a gradient scaler: parameters of equal history made the same steps */
} tn_trained;

/* Settings of a group of parameters. */
typedef struct tn_optim_group {
    double lr_factor, weight_decay, beta1, beta2, eps;
} tn_optim_group;

/* Inputs of device_scalars that come with each step. */
enum { TN_STEP_LR, TN_STEP_LR_DECAY, TN_STEP_NUMBERS }; /* learning rate; learning rate · weight_decay */

/* A method: what it remembers of a parameter, the numbers that all parameters share in a step, and what it records for
 * a parameter. Runtime scalars differ from step to step and must not be part of the plan; constants are part of it. */
typedef struct tn_optim_method {
    const char *name;
    const char *slot_names[TN_OPTIM_SLOTS];
    bool matrices;           /* parameters must have two dimensions */
    bool has_betas, has_eps; /* groups may have their own */
    int scalar_count, constant_count;
    /* Whether a parameter of this shape has slot k; changes the shape to the slot's. NULL: the parameter's shape. */
    bool (*slot_shape)(int k, int64_t *shape, int rank);
    void (*scalars)(const tn_optimizer *o, const tn_optim_group *g, int64_t step, double *values);
    /* The same where only the device knows the step count: `step` is an f32 number. NULL: the scalars do not depend on
     * the step count. */
    void (*device_scalars)(const tn_optimizer *o, const tn_optim_group *g, tn_tensor *const *numbers,
                           const tn_tensor *step, tn_tensor **scalars);
    void (*constants)(const tn_optimizer *o, const tn_optim_group *g, double *values);
    void (*update)(const tn_optimizer *o, const tn_optim_group *g, tn_trained *v, tn_tensor *const *scalars,
                   tn_tensor *const *constants);
} tn_optim_method;
extern const tn_optim_method tn_optim_sgd, tn_optim_adam, tn_optim_adamw, tn_optim_rmsprop, tn_optim_adagrad,
    tn_optim_lion, tn_optim_lamb, tn_optim_adafactor, tn_optim_muon;

/* The dynamic loss scale of an optimizer; all tensors are states. */
typedef struct tn_grad_scaler {
    tn_tensor *scale;                    /* f32 */
    tn_tensor *growth_tracker, *skipped; /* i32: steps in a row without a skip; skipped steps */
    tn_tensor *steps;                    /* i32 [parameters]: steps that each has made */
    double growth, backoff;
    int64_t interval;
    tn_tensor *finite; /* during a step: whether all gradients are */
    bool unscaled;     /* the collected gradients are */
    uint64_t attempts; /* steps so far, skipped ones included */
} tn_grad_scaler;

struct tn_optimizer {
    _Atomic int refs; /* the caller's, and one for each captured step */
    const tn_optim_method *method;
    tn_trained *items;
    int count;
    unsigned slots;         /* bit k: the method keeps slot k */
    tn_optim_group *groups; /* the last one: those of the module that are in no other */
    tn_grad_scaler *scaler;
    /* Settings; those that the method does not have are 0. */
    double lr, weight_decay, max_grad_norm;
    double momentum, dampening, beta1, beta2, alpha, eps, lr_decay;
    double beta2_decay, eps2, d; /* Adafactor */
    double ns_coefficients[3];   /* Muon */
    int ns_steps;
    bool match_rms_adamw;
    double initial; /* value of the slots before the first step */
    bool nesterov;
    /* Divided among processes; otherwise owners is NULL. */
    tn_group *group;
    int *owners;            /* of each parameter: the rank that keeps its slots */
    bool gathered;          /* this rank has the slots of all until its next step */
    bool diverged;          /* a step failed on another rank only: parameters differ */
    bool gradients_divided; /* during a step: this rank has the gradients of its own parameters only */
};

/* ---- optim_make.c ------------------------------------------------------------------------------------------------ */

/* TN_OK for low <= value < high. */
tn_status tn_optim_check(const char *what, double value, double low, double high);

tn_status tn_optim_out_of_memory(void);
/* A new state, filled with `value`, on the device of `like`. NULL on failure. */
tn_status tn_optim_state(const tn_tensor *like, const int64_t *shape, int rank, double value, tn_dtype dtype,
                         tn_tensor **out);

/* Makes the slots of a parameter that are not there yet. */
tn_status tn_optim_make_slots(const tn_optimizer *o, tn_trained *v);

/* ---- optim_shard.c ----------------------------------------------------------------------------------------------- */

/* Whether this process updates parameter i. */
bool tn_optim_is_own(const tn_optimizer *o, int i);
/* Before a step of a divided optimizer: lets go of gathered slots; TN_ERR_STATE inside a capture. */
tn_status tn_optim_shard_begin(tn_optimizer *o);
/* In a step whose gradients are divided, on every rank, whatever `status` it had there: the loss scaler learns whether
 * the gradients of all ranks are finite, and *squares (freed with free) are the sums of squares of each gradient, NULL
 * for parameters without one. */
tn_status tn_optim_share_facts(tn_optimizer *o, tn_status status, tn_tensor ***squares);
/* After it, on every rank, whatever `status` it had there: fails on all if it failed on one, otherwise copies the new
 * values of all parameters with a gradient from their owners. */
tn_status tn_optim_shard_end(tn_optimizer *o, tn_status status);

/* ---- clip.c ------------------------------------------------------------------------------------------------------ */

/* Gradients: `count` tensors, NULL where there is none. */
tn_tensor *tn_nn_all_finite(tn_tensor *const *gradients, int count);
/* What they are multiplied by so that their common norm is at most max_norm; NULL if there are none. */
tn_tensor *tn_nn_clip_factor(tn_tensor *const *gradients, int count, double max_norm, tn_tensor **norm);
/* The same from the sums of squares of the gradients. */
tn_tensor *tn_nn_sum_of_squares(const tn_tensor *gradient);
tn_tensor *tn_nn_clip_factor_of(tn_tensor *const *squares, int count, double max_norm, tn_tensor **norm);

/* ---- grad_scaler.c; o has a scaler ------------------------------------------------------------------------------- */

void tn_grad_scaler_free(tn_grad_scaler *s);
/* During a step: unscales the gradients of o's parameters and finds out whether all are finite. */
tn_status tn_grad_scaler_unscale(tn_optimizer *o);
/* The number of the step that v makes, an f32 of one element. */
tn_tensor *tn_grad_scaler_step(const tn_optimizer *o, const tn_trained *v);
/* The value that a state has now; and writes it back if the step is to be skipped. */
tn_tensor *tn_grad_scaler_before(const tn_tensor *state);
void tn_grad_scaler_keep(const tn_optimizer *o, tn_tensor *state, const tn_tensor *before);
/* At the end of a step: records the new scale and counts. */
tn_status tn_grad_scaler_update(const tn_optimizer *o);
/* The history of a parameter that takes part in attempt `number`. */
uint64_t tn_grad_scaler_mix(uint64_t history, uint64_t number);
int64_t tn_grad_scaler_steps(const tn_optimizer *o, int i);
tn_status tn_grad_scaler_set_steps(tn_optimizer *o, int i, int64_t steps);
/* The scaler's states as variables; returns how many. */
enum { TN_GRAD_SCALER_VARIABLES = 3 };
void tn_grad_scaler_variables(const tn_optimizer *o, tn_variable items[TN_GRAD_SCALER_VARIABLES]);

#endif
