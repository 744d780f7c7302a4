/* optim.h — optimisers: what a step does with the gradients, and how the learning rate moves.
 *
 * A step is recorded after forward and backward and runs with them as one plan. The learning rate and the step count
 * are runtime scalars, so every step reuses the plan of the previous one. Updates are element-wise and in place;
 * updates of equal structure share a launch, so a step over 12 variables of rank 1 and 2 whose gradients are computed
 * takes two launches. With tn_minimize an update can be fused into the kernel that computes its gradient.
 *
 * A step is all or nothing: if a gradient is an error, or the run fails, neither variables nor counts change. (The one
 * exception: if host memory runs out while the step is recorded, the error says so, and the model must be loaded
 * again.) Inf and NaN are values, not errors: see tn_grad_is_finite. A step can be captured (tn_capture_begin): each
 * launch is then one step with the current learning rate and step count. Definitions are PyTorch's (torch.optim).
 *
 *     tn_optimizer *adam;
 *     if (tn_optimizer_adam(net, NULL, &adam) != TN_OK) ...
 *     for (...) {
 *         TN_SCOPE;
 *         tn_tensor *loss = tn_cross_entropy(tn_forward(net, x), y, NULL, NULL);
 *         if (tn_minimize(adam, loss) != TN_OK) ...
 *         printf("%g\n", tn_item(loss));
 *     }
 *
 * Threads: an optimiser may be used by one thread at a time. */
#ifndef TRUNNION_OPTIM_H
#define TRUNNION_OPTIM_H

#include "trunnion/nn.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tn_optimizer tn_optimizer;

/* g ← gradient + weight_decay·w; b ← momentum·b + (1 − dampening)·g, the first time b ← g; with nesterov g ← g +
 * momentum·b, else g ← b where there is momentum; w ← w − lr·g. */
typedef struct tn_sgd_options {
    size_t struct_size;
    double lr;                                /* default 1e-3; at least 0 */
    double momentum, dampening, weight_decay; /* default 0 */
    bool nesterov;                            /* needs momentum and no dampening; default false */
    double max_grad_norm; /* gradients are scaled down together so that their norm is at most this; default INFINITY */
} tn_sgd_options;
#define TN_SGD_DEFAULTS \
    { TN_OPTIONS_SIZE(tn_sgd_options, max_grad_norm), 1e-3, 0, 0, 0, false, INFINITY }

/* m ← beta1·m + (1 − beta1)·g; v ← beta2·v + (1 − beta2)·g²;
 * w ← w − lr / (1 − beta1^t) · m / (sqrt(v / (1 − beta2^t)) + eps), t the number of this step.
 * Adam adds weight_decay·w to g first; AdamW instead makes w ← w − lr·weight_decay·w first.
 * Sources: Kingma and Ba 2015; Loshchilov and Hutter 2019. */
typedef struct tn_adam_options {
    size_t struct_size;
    double lr;            /* default 1e-3; at least 0 */
    double beta1, beta2;  /* in [0, 1); default 0.9, 0.999 */
    double eps;           /* default 1e-8 */
    double weight_decay;  /* TN_ADAM_DEFAULTS: 0; TN_ADAMW_DEFAULTS: 0.01 */
    double max_grad_norm; /* as above */
} tn_adam_options;
#define TN_ADAM_DEFAULTS \
    { TN_OPTIONS_SIZE(tn_adam_options, max_grad_norm), 1e-3, 0.9, 0.999, 1e-8, 0, INFINITY }
#define TN_ADAMW_DEFAULTS \
    { TN_OPTIONS_SIZE(tn_adam_options, max_grad_norm), 1e-3, 0.9, 0.999, 1e-8, 0.01, INFINITY }

/* An optimiser for the parameters below m that require gradients now; they are retained. options may be NULL.
 * *out: freed with tn_optimizer_free. Errors: TN_ERR_ARGUMENT for values out of range or
 * when there is nothing to train. */
TN_API tn_status tn_optimizer_sgd(tn_module *m, const tn_sgd_options *options, tn_optimizer **out);
TN_API tn_status tn_optimizer_adam(tn_module *m, const tn_adam_options *options, tn_optimizer **out);
TN_API tn_status tn_optimizer_adamw(tn_module *m, const tn_adam_options *options, tn_optimizer **out);
TN_API void tn_optimizer_free(tn_optimizer *o); /* NULL is fine */

/* One step with the gradients that tn_backward collected; variables without one are left alone. Runs everything
 * recorded. Gradients stay until tn_optimizer_zero_grad. */
TN_API tn_status tn_optimizer_step(tn_optimizer *o);
TN_API void tn_optimizer_zero_grad(tn_optimizer *o);

/* zero_grad, backward of loss, step and zero_grad in one: gradients go straight into the update and need no memory of
 * their own. Held handles (loss) are computed in the same run. */
TN_API tn_status tn_minimize(tn_optimizer *o, const tn_tensor *loss);

/* Scales the gradients of the parameters below m, together, so that their Euclidean norm is at most max_norm: by
 * min(1, max_norm / (norm + 1e-6)). *total_norm (NULL: not wanted): a new handle on the norm before.
 * Errors: TN_ERR_ARGUMENT for a max_norm that is negative or NaN. */
TN_API tn_status tn_clip_grad_norm(tn_module *m, double max_norm, tn_tensor **total_norm);

/* Limits each element of the gradients of the parameters below m to [-clip_value, clip_value].
 * Errors: TN_ERR_ARGUMENT for a value that is negative or NaN. Source: torch.nn.utils.clip_grad_value_. */
TN_API tn_status tn_clip_grad_value(tn_module *m, double clip_value);

/* Whether all gradients that tn_backward collected for the parameters below m are finite. Returns a new handle on one
 * bool, not yet computed (tn_item: 1 or 0); true if there are no gradients; an error tensor on failure. A step with an
 * Inf or NaN gradient makes the variable, and Adam's moments, NaN permanently; clipping does not help, because the norm
 * is then NaN too. With a gradient scaler (amp.h) such steps are skipped on the device. Without one, check first:
 *
 *     tn_optimizer_zero_grad(o);
 *     if (tn_backward(loss) != TN_OK) ...
 *     if (tn_item(tn_grad_is_finite(net)) == 1) tn_optimizer_step(o);
 *
 * Source: found_inf of torch.amp.GradScaler. */
TN_API tn_tensor *tn_grad_is_finite(const tn_module *m);

TN_API double tn_optimizer_lr(const tn_optimizer *o);
/* Sets the learning rate of the following steps. Errors: TN_ERR_ARGUMENT for NaN, infinity or a negative rate; the rate
 * then stays unchanged. */
TN_API tn_status tn_optimizer_set_lr(tn_optimizer *o, double lr);

/* The optimiser's memory as variables ("exp_avg.hidden.weight", "momentum_buffer.hidden.weight"), for checkpoints;
 * freed with tn_variables_free. */
TN_API tn_status tn_optimizer_variables(const tn_optimizer *o, tn_variable **items, int *count);
/* Steps that variable i of the optimiser has made; TN_ERR_ARGUMENT outside [0, count). */
TN_API int tn_optimizer_count(const tn_optimizer *o);
TN_API int64_t tn_optimizer_steps(const tn_optimizer *o, int i); /* -1 when there is no such variable */
TN_API tn_status tn_optimizer_set_steps(tn_optimizer *o, int i, int64_t steps);

/* ---- learning-rate schedules ------------------------------------------------------------------------------------- */

typedef enum tn_schedule_kind { TN_SCHEDULE_CONSTANT = 0, TN_SCHEDULE_LINEAR, TN_SCHEDULE_COSINE } tn_schedule_kind;

/* From 0 up to lr in `warmup` steps (step s of them: lr·(s + 1) / warmup), then constant, or down to final_lr at step
 * `total` along a line or half a cosine wave, and final_lr ever after. */
typedef struct tn_schedule {
    size_t struct_size;
    tn_schedule_kind kind; /* default TN_SCHEDULE_CONSTANT */
    double lr, final_lr;   /* default 1e-3, 0 */
    int64_t warmup, total; /* steps; default 0, 0 */
} tn_schedule;
#define TN_SCHEDULE_DEFAULTS \
    { TN_OPTIONS_SIZE(tn_schedule, total), TN_SCHEDULE_CONSTANT, 1e-3, 0, 0, 0 }

/* The learning rate at a step counted from 0, for tn_optimizer_set_lr. NaN without a schedule; NaN with tn_error set
 * for an unknown kind, a rate that is negative or not finite, and a negative step, warmup or total. */
TN_API double tn_schedule_at(const tn_schedule *s, int64_t step);

/* ---- the caller's line, for error messages ----------------------------------------------------------------------- */

#ifndef TN_NO_CALLER_LINES
#define tn_clip_grad_norm(...) (tn_at(__FILE__, __LINE__), tn_clip_grad_norm(__VA_ARGS__))
#define tn_clip_grad_value(...) (tn_at(__FILE__, __LINE__), tn_clip_grad_value(__VA_ARGS__))
#define tn_grad_is_finite(...) (tn_at(__FILE__, __LINE__), tn_grad_is_finite(__VA_ARGS__))
#define tn_minimize(...) (tn_at(__FILE__, __LINE__), tn_minimize(__VA_ARGS__))
#define tn_optimizer_adam(...) (tn_at(__FILE__, __LINE__), tn_optimizer_adam(__VA_ARGS__))
#define tn_optimizer_adamw(...) (tn_at(__FILE__, __LINE__), tn_optimizer_adamw(__VA_ARGS__))
#define tn_optimizer_sgd(...) (tn_at(__FILE__, __LINE__), tn_optimizer_sgd(__VA_ARGS__))
#define tn_optimizer_step(...) (tn_at(__FILE__, __LINE__), tn_optimizer_step(__VA_ARGS__))
#endif

#ifdef __cplusplus
}
#endif
#endif
