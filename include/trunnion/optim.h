/* optim.h — optimizers (SGD, Adam, AdamW, RMSprop, Adagrad, Lion, LAMB, Adafactor, Muon), clipping, learning-rate
 * schedules, moving averages of parameters.
 *
 * A step is recorded after forward and backward and runs with them as one plan. The learning rate and the step count
 * are runtime scalars, so every step reuses the plan of the previous one. Updates are element-wise and in place;
 * updates of equal structure share a launch, so a step over 12 variables of rank 1 and 2 whose gradients are computed
 * takes two launches. With tn_minimize an update can be fused into the kernel that computes its gradient.
 *
 * A step is atomic: if a gradient is an error tensor, or the run fails, neither variables nor step counts change. (One
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
 * Threads: one thread at a time may use an optimizer. */
#ifndef TRUNNION_OPTIM_H
#define TRUNNION_OPTIM_H

#include "trunnion/nn.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tn_optimizer tn_optimizer;

/* A group of parameters with its own settings: tensors of a module, or plain tensors. Parameters of the optimizer's
 * module that are in no group have the optimizer's settings.
 *
 *     tn_param_group slow = TN_PARAM_GROUP_DEFAULTS;
 *     slow.params = body;
 *     slow.count = body_count;
 *     slow.lr_factor = 0.1;
 *     tn_adam_options o = TN_ADAMW_DEFAULTS;
 *     o.groups = (const tn_param_group *[]){&slow};
 *     o.group_count = 1;
 *     tn_optimizer_adamw(net, &o, &adamw);                  net may be NULL if there are groups
 *
 * Source: param_groups of torch.optim. */
typedef struct tn_param_group {
    size_t struct_size;
    tn_tensor *const *params; /* leaves that require gradients; retained, and made states (tn_make_state) */
    int count;
    const char *const *names; /* for checkpoints; default NULL: the module's, else "GROUP.INDEX" as in "0.3" */
    double lr_factor;         /* the group's learning rate is this times the optimizer's; default 1; at least 0 */
    double weight_decay;      /* default TN_AUTO: the optimizer's; the same below */
    double beta1, beta2;      /* Adam, AdamW, LAMB, Lion; in [0, 1); TN_ERR_ARGUMENT for other methods */
    double eps;               /* the same and RMSprop, Adagrad; not Lion */
} tn_param_group;
#define TN_PARAM_GROUP_DEFAULTS \
    { TN_OPTIONS_SIZE(tn_param_group, eps), NULL, 0, NULL, 1, TN_AUTO, TN_AUTO, TN_AUTO, TN_AUTO }

/* Stochastic gradient descent. With g = gradient + weight_decay·w:
 * momentum > 0: b ← momentum·b + (1 − dampening)·g (first step: b ← g); g ← g + momentum·b (nesterov) or g ← b.
 * w ← w − lr·g. Source: torch.optim.SGD. */
typedef struct tn_sgd_options {
    size_t struct_size;
    double lr;                                /* default 1e-3; at least 0 */
    double momentum, dampening, weight_decay; /* default 0 */
    bool nesterov;                            /* requires momentum > 0 and dampening 0; default false */
    double max_grad_norm; /* gradients are scaled down together so that their norm is at most this; default INFINITY */
    const tn_param_group *const *groups; /* default NULL, 0: the parameters of the module, with these settings */
    int group_count;
} tn_sgd_options;
#define TN_SGD_DEFAULTS \
    { TN_OPTIONS_SIZE(tn_sgd_options, group_count), 1e-3, 0, 0, 0, false, INFINITY, NULL, 0 }

/* m ← beta1·m + (1 − beta1)·g; v ← beta2·v + (1 − beta2)·g²;
 * w ← w − lr / (1 − beta1^t) · m / (sqrt(v / (1 − beta2^t)) + eps), t the number of this step.
 * Adam adds weight_decay·w to g first; AdamW instead makes w ← w − lr·weight_decay·w first.
 * Sources: Kingma and Ba 2015; Loshchilov and Hutter 2019. */
typedef struct tn_adam_options {
    size_t struct_size;
    double lr;                           /* default 1e-3; at least 0 */
    double beta1, beta2;                 /* in [0, 1); default 0.9, 0.999 */
    double eps;                          /* default 1e-8 */
    double weight_decay;                 /* TN_ADAM_DEFAULTS: 0; TN_ADAMW_DEFAULTS: 0.01 */
    double max_grad_norm;                /* as above */
    bool amsgrad;                        /* divide by the largest v so far (Reddi et al. 2018); default false */
    const tn_param_group *const *groups; /* default NULL, 0: the parameters of the module, with these settings */
    int group_count;
} tn_adam_options;
#define TN_ADAM_DEFAULTS \
    { TN_OPTIONS_SIZE(tn_adam_options, group_count), 1e-3, 0.9, 0.999, 1e-8, 0, INFINITY, false, NULL, 0 }
#define TN_ADAMW_DEFAULTS \
    { TN_OPTIONS_SIZE(tn_adam_options, group_count), 1e-3, 0.9, 0.999, 1e-8, 0.01, INFINITY, false, NULL, 0 }

/* g ← gradient + weight_decay·w; v ← alpha·v + (1 − alpha)·g²; d ← sqrt(v) + eps, centered: sqrt(v − m²) + eps with
 * m ← alpha·m + (1 − alpha)·g; b ← momentum·b + g / d; w ← w − lr·b. Source: Tieleman and Hinton 2012. */
typedef struct tn_rmsprop_options {
    size_t struct_size;
    double lr;                           /* default 1e-2; at least 0 */
    double alpha;                        /* in [0, 1); default 0.99 */
    double eps;                          /* default 1e-8 */
    double momentum, weight_decay;       /* default 0 */
    bool centered;                       /* default false */
    double max_grad_norm;                /* as above */
    const tn_param_group *const *groups; /* default NULL, 0: the parameters of the module, with these settings */
    int group_count;
} tn_rmsprop_options;
#define TN_RMSPROP_DEFAULTS \
    { TN_OPTIONS_SIZE(tn_rmsprop_options, group_count), 1e-2, 0.99, 1e-8, 0, 0, false, INFINITY, NULL, 0 }

/* g ← gradient + weight_decay·w; s ← s + g²; w ← w − lr / (1 + (t − 1)·lr_decay) · g / (sqrt(s) + eps).
 * Source: Duchi et al. 2011. */
typedef struct tn_adagrad_options {
    size_t struct_size;
    double lr;                           /* default 1e-2; at least 0 */
    double lr_decay, weight_decay;       /* default 0 */
    double initial_accumulator_value;    /* s before the first step; default 0 */
    double eps;                          /* default 1e-10 */
    double max_grad_norm;                /* as above */
    const tn_param_group *const *groups; /* default NULL, 0: the parameters of the module, with these settings */
    int group_count;
} tn_adagrad_options;
#define TN_ADAGRAD_DEFAULTS \
    { TN_OPTIONS_SIZE(tn_adagrad_options, group_count), 1e-2, 0, 0, 0, 1e-10, INFINITY, NULL, 0 }

/* w ← w·(1 − lr·weight_decay) − lr·sign(beta1·m + (1 − beta1)·g); m ← beta2·m + (1 − beta2)·g.
 * Source: Chen et al. 2023, algorithm 2. */
typedef struct tn_lion_options {
    size_t struct_size;
    double lr;                           /* default 1e-4; at least 0 */
    double beta1, beta2;                 /* in [0, 1); default 0.9, 0.99 */
    double weight_decay;                 /* default 0 */
    double max_grad_norm;                /* as above */
    const tn_param_group *const *groups; /* default NULL, 0: the parameters of the module, with these settings */
    int group_count;
} tn_lion_options;
#define TN_LION_DEFAULTS \
    { TN_OPTIONS_SIZE(tn_lion_options, group_count), 1e-4, 0.9, 0.99, 0, INFINITY, NULL, 0 }

/* m and v as Adam; r ← m / (1 − beta1^t) / (sqrt(v / (1 − beta2^t)) + eps) + weight_decay·w;
 * w ← w − lr·‖w‖/‖r‖·r; if one of the norms is 0: w ← w − lr·r.
 * Source: You et al. 2020, algorithm 2, with the identity as scaling function. */
typedef struct tn_lamb_options {
    size_t struct_size;
    double lr;                           /* default 1e-3; at least 0 */
    double beta1, beta2;                 /* in [0, 1); default 0.9, 0.999 */
    double eps;                          /* default 1e-6 */
    double weight_decay;                 /* default 0 */
    double max_grad_norm;                /* as above */
    const tn_param_group *const *groups; /* default NULL, 0: the parameters of the module, with these settings */
    int group_count;
} tn_lamb_options;
#define TN_LAMB_DEFAULTS \
    { TN_OPTIONS_SIZE(tn_lamb_options, group_count), 1e-3, 0.9, 0.999, 1e-6, 0, INFINITY, NULL, 0 }

/* w ← w·(1 − lr·weight_decay); V ← V + t^beta2_decay·(g² − V), of a matrix only the means of rows and columns are kept,
 * and V is their product divided by the mean of the rows' (and at least eps1); u ← g / sqrt(max(V, eps1²));
 * w ← w − max(eps2, rms(w))·min(lr, 1/sqrt(t)) / max(1, rms(u) / d)·u, rms(w) before the decay.
 * Source: Shazeer and Stern 2018; torch.optim.Adafactor. */
typedef struct tn_adafactor_options {
    size_t struct_size;
    double lr;                           /* default 1e-2; at least 0 */
    double beta2_decay;                  /* default -0.8; at most 0 */
    double eps1, eps2;                   /* default TN_AUTO: 2^-23; 1e-3 */
    double d;                            /* default 1; at least 1 */
    double weight_decay;                 /* default 0 */
    double max_grad_norm;                /* as above */
    const tn_param_group *const *groups; /* default NULL, 0: the parameters of the module, with these settings */
    int group_count;
} tn_adafactor_options;
#define TN_ADAFACTOR_DEFAULTS \
    { TN_OPTIONS_SIZE(tn_adafactor_options, group_count), 1e-2, -0.8, TN_AUTO, 1e-3, 1, 0, INFINITY, NULL, 0 }

/* b ← b + (1 − momentum)·(g − b); u ← b, with nesterov g + momentum·(b − g); w ← w·(1 − lr·weight_decay) − lr·s·O(u),
 * where O makes the rows or columns of a matrix about orthonormal (ns_steps steps of x ← c0·x + (c1·x·xᵀ +
 * c2·(x·xᵀ)²)·x from u / max(‖u‖, eps)), and s is sqrt(max(1, rows / columns)), or 0.2·sqrt(max(rows, columns)) with
 * match_rms_adamw. For weights of hidden layers: parameters of other than two dimensions are refused (TN_ERR_SHAPE),
 * and embeddings and heads usually belong to AdamW. O is computed in f32 (PyTorch: bf16).
 * Source: Jordan et al. 2024; torch.optim.Muon. */
typedef struct tn_muon_options {
    size_t struct_size;
    double lr;                           /* default 1e-3; at least 0 */
    double momentum;                     /* default 0.95 */
    double weight_decay;                 /* default 0.1 */
    bool nesterov;                       /* default true */
    double ns_coefficients[3];           /* default 3.4445, -4.775, 2.0315 */
    double eps;                          /* default 1e-7 */
    int ns_steps;                        /* 0 … 99; default 5 */
    bool match_rms_adamw;                /* default false */
    double max_grad_norm;                /* as above */
    const tn_param_group *const *groups; /* default NULL, 0: the parameters of the module, with these settings */
    int group_count;
} tn_muon_options;
#define TN_MUON_DEFAULTS                                                                                         \
    {                                                                                                            \
        TN_OPTIONS_SIZE(tn_muon_options, group_count), 1e-3, 0.95, 0.1, true, {3.4445, -4.775, 2.0315}, 1e-7, 5, \
            false, INFINITY, NULL, 0                                                                             \
    }

/* Creates an optimizer for the parameters below m that require gradients at this time, and those of the groups; it
 * retains them.
 *   m: may be NULL if there are groups. options: NULL for the defaults. *out: freed with tn_optimizer_free.
 * Errors: TN_ERR_ARGUMENT for options out of range, a tensor that is in two groups or cannot be trained, or if there is
 * nothing to train. Source: torch.optim. */
TN_API tn_status tn_optimizer_sgd(tn_module *m, const tn_sgd_options *options, tn_optimizer **out);
TN_API tn_status tn_optimizer_adam(tn_module *m, const tn_adam_options *options, tn_optimizer **out);
TN_API tn_status tn_optimizer_adamw(tn_module *m, const tn_adam_options *options, tn_optimizer **out);
TN_API tn_status tn_optimizer_rmsprop(tn_module *m, const tn_rmsprop_options *options, tn_optimizer **out);
TN_API tn_status tn_optimizer_adagrad(tn_module *m, const tn_adagrad_options *options, tn_optimizer **out);
TN_API tn_status tn_optimizer_lion(tn_module *m, const tn_lion_options *options, tn_optimizer **out);
TN_API tn_status tn_optimizer_lamb(tn_module *m, const tn_lamb_options *options, tn_optimizer **out);
TN_API tn_status tn_optimizer_adafactor(tn_module *m, const tn_adafactor_options *options, tn_optimizer **out);
TN_API tn_status tn_optimizer_muon(tn_module *m, const tn_muon_options *options, tn_optimizer **out);
TN_API void tn_optimizer_free(tn_optimizer *o); /* NULL is allowed */

/* Records one step of Adam or AdamW on plain tensors, in place, without an optimizer. Updates of equal structure share
 * a launch.
 *   params, exp_avgs, exp_avg_sqs, grads: `count` tensors each, of equal shapes; the first three are written. Outside a
 *     capture these are made states (tn_make_state: the first step evaluates them), except views.
 *   step: the number of this step, from 1, for the bias corrections. A captured step repeats its number.
 *   options: NULL for the defaults; amsgrad and groups are not supported (TN_ERR_UNSUPPORTED).
 * Errors: TN_ERR_ARGUMENT for a missing tensor, a step below 1, options out of range, an expanded view that would be
 * written; TN_ERR_DTYPE; TN_ERR_SHAPE. On failure nothing is written. Source: torch._fused_adam_. */
TN_API tn_status tn_fused_adam_step(tn_tensor *const *params, tn_tensor *const *grads, tn_tensor *const *exp_avgs,
                                    tn_tensor *const *exp_avg_sqs, int count, int64_t step,
                                    const tn_adam_options *options);
TN_API tn_status tn_fused_adamw_step(tn_tensor *const *params, tn_tensor *const *grads, tn_tensor *const *exp_avgs,
                                     tn_tensor *const *exp_avg_sqs, int count, int64_t step,
                                     const tn_adam_options *options);

/* Makes one step with the gradients that tn_backward accumulated, and evaluates everything recorded. Variables without
 * a gradient do not change. Gradients stay until tn_optimizer_zero_grad: for a batch in n parts, call tn_backward for
 * the mean loss of each part divided by n, and then step once (gradient accumulation). */
TN_API tn_status tn_optimizer_step(tn_optimizer *o);
TN_API void tn_optimizer_zero_grad(tn_optimizer *o);

/* tn_optimizer_zero_grad, tn_backward(loss), tn_optimizer_step and tn_optimizer_zero_grad in one call: gradients are
 * used directly in the update and need no memory of their own. Other handles (loss) are computed in the same run.
 * Errors: those of tn_backward and tn_optimizer_step. */
TN_API tn_status tn_minimize(tn_optimizer *o, const tn_tensor *loss);

/* Scales all gradients of the parameters below m by min(1, max_norm / (norm + 1e-6)), so that their total Euclidean
 * norm is at most max_norm. *total_norm: a new handle to the norm before clipping; may be NULL.
 * Errors: TN_ERR_ARGUMENT if max_norm is negative or NaN; TN_ERR_UNSUPPORTED if parameters are divided among ranks (set
 * max_grad_norm in the optimizer's options instead). Source: torch.nn.utils.clip_grad_norm_. */
TN_API tn_status tn_clip_grad_norm(tn_module *m, double max_norm, tn_tensor **total_norm);

/* Limits each element of the gradients of the parameters below m to [-clip_value, clip_value].
 * Errors: TN_ERR_ARGUMENT if clip_value is negative or NaN. Source: torch.nn.utils.clip_grad_value_. */
TN_API tn_status tn_clip_grad_value(tn_module *m, double clip_value);

/* Records whether all gradients of the parameters below m are finite. Returns a new handle to one bool (tn_item: 1 or
 * 0); true if there are no gradients; an error tensor on failure. A step with an Inf or NaN gradient makes the variable
 * and Adam's moments NaN permanently; clipping does not help, because the norm is NaN too. With a gradient scaler
 * (amp.h) such steps are skipped on the device. Without one, check before the step:
 *
 *     tn_optimizer_zero_grad(o);
 *     if (tn_backward(loss) != TN_OK) ...
 *     if (tn_item(tn_grad_is_finite(net)) == 1) tn_optimizer_step(o);
 *
 * Of parameters that are divided among ranks only this rank's gradients are examined.
 * Source: found_inf of torch.amp.GradScaler. */
TN_API tn_tensor *tn_grad_is_finite(const tn_module *m);

TN_API double tn_optimizer_lr(const tn_optimizer *o); /* the current learning rate */
/* Sets the learning rate of the following steps. Errors: TN_ERR_ARGUMENT for NaN, infinity or a negative rate; the rate
 * is then unchanged. */
TN_API tn_status tn_optimizer_set_lr(tn_optimizer *o, double lr);

/* Lists the optimizer's state as variables ("exp_avg.hidden.weight", "momentum_buffer.hidden.weight"), for checkpoints;
 * freed with tn_variables_free. */
TN_API tn_status tn_optimizer_variables(const tn_optimizer *o, tn_variable **items, int *count);
/* Number of variables that the optimizer trains, and the steps that variable i has made. tn_optimizer_set_steps returns
 * TN_ERR_ARGUMENT if i is out of range. */
TN_API int tn_optimizer_count(const tn_optimizer *o);
TN_API int64_t tn_optimizer_steps(const tn_optimizer *o, int i); /* -1 if i is out of range */
TN_API tn_status tn_optimizer_set_steps(tn_optimizer *o, int i, int64_t steps);

/* ---- L-BFGS ------------------------------------------------------------------------------------------------------ */

/* A quasi-Newton method for small problems whose loss has no noise: a step evaluates the loss several times. All
 * parameters are one vector, which is kept 2 · history_size times. Source: torch.optim.LBFGS. */
typedef struct tn_lbfgs tn_lbfgs;
typedef struct tn_lbfgs_options {
    size_t struct_size;
    double lr;               /* default 1 */
    int max_iter;            /* iterations of a step; default 20 */
    int max_eval;            /* evaluations of a step; default 0: max_iter · 5/4 */
    double tolerance_grad;   /* a step ends if no gradient is larger; default 1e-7 */
    double tolerance_change; /* … or parameters or loss change by less; default 1e-9 */
    int history_size;        /* default 100 */
    bool strong_wolfe;       /* line search for the strong Wolfe conditions; default false: the step length is lr */
} tn_lbfgs_options;
#define TN_LBFGS_DEFAULTS \
    { TN_OPTIONS_SIZE(tn_lbfgs_options, strong_wolfe), 1, 20, 0, 1e-7, 1e-9, 100, false }

/* Records the loss with the current parameters and returns a new handle. */
typedef tn_tensor *tn_loss_function(void *ctx);

/* Trains the parameters below m that require gradients, all of one dtype. m must outlive *out, which is freed with
 * tn_lbfgs_free. Errors: TN_ERR_ARGUMENT for options out of range or nothing to train; TN_ERR_DTYPE. */
TN_API tn_status tn_lbfgs_new(tn_module *m, const tn_lbfgs_options *options, tn_lbfgs **out);
TN_API void tn_lbfgs_free(tn_lbfgs *l); /* NULL is allowed */
/* Makes one step, up to max_iter iterations. *value: the loss before it; may be NULL. If the loss fails, the parameters
 * are those of the last completed iteration. Errors: what the loss fails with; TN_ERR_STATE inside a capture. */
TN_API tn_status tn_lbfgs_step(tn_lbfgs *l, tn_loss_function *loss, void *ctx, double *value);

/* ---- learning-rate schedules ------------------------------------------------------------------------------------- */

typedef enum tn_schedule_kind {
    TN_SCHEDULE_CONSTANT = 0,
    TN_SCHEDULE_LINEAR,
    TN_SCHEDULE_COSINE,
    TN_SCHEDULE_STEP,
    TN_SCHEDULE_EXPONENTIAL,
    TN_SCHEDULE_ONE_CYCLE
} tn_schedule_kind;

/* A learning-rate schedule: rises linearly to lr in `warmup` steps (step s: lr·(s + 1) / warmup). Then, with s counted
 * from there:
 *   constant;
 *   linear, cosine: decreases to final_lr at step `total`, linearly or along half a cosine; final_lr afterwards;
 *   step: lr·gamma^floor(s / step_size), torch's StepLR; exponential: lr·gamma^s, ExponentialLR.
 * One cycle (without warm-up): from lr / div_factor to lr at step pct_start·total − 1, then to
 * lr / div_factor / final_div_factor at step total − 1, along cosines: torch's OneCycleLR (Smith and Topin 2018).
 * For any other function of the step call tn_optimizer_set_lr; changing the rate needs no new plan. */
typedef struct tn_schedule {
    size_t struct_size;
    tn_schedule_kind kind;                          /* default TN_SCHEDULE_CONSTANT */
    double lr, final_lr;                            /* default 1e-3, 0 */
    int64_t warmup, total;                          /* steps; default 0, 0; linear, cosine and one cycle need a total */
    int64_t step_size;                              /* default 1 */
    double gamma;                                   /* default 0.1 */
    double pct_start, div_factor, final_div_factor; /* default 0.3, 25, 1e4 */
} tn_schedule;
#define TN_SCHEDULE_DEFAULTS \
    { TN_OPTIONS_SIZE(tn_schedule, final_div_factor), TN_SCHEDULE_CONSTANT, 1e-3, 0, 0, 0, 1, 0.1, 0.3, 25, 1e4 }

/* Returns the learning rate at a step, counted from 0, for tn_optimizer_set_lr. NaN if s is NULL; NaN with tn_error set
 * for an unknown kind, a rate that is negative or not finite, a negative step, warmup or total, and a missing total. */
TN_API double tn_schedule_at(const tn_schedule *s, int64_t step);

/* A learning rate that falls when a metric no longer improves: after more than `patience` calls in a row without a
 * better metric it becomes max(lr·factor, min_lr), and `cooldown` calls are not counted. torch's ReduceLROnPlateau. */
typedef struct tn_plateau {
    size_t struct_size;
    double lr;                  /* default 1e-3; changed by tn_plateau_step */
    double factor;              /* in (0, 1); default 0.1 */
    double min_lr;              /* default 0 */
    int64_t patience;           /* default 10 */
    int64_t cooldown;           /* default 0 */
    double threshold;           /* a metric is better by more than this; default 1e-4 */
    bool absolute;              /* the threshold is a difference, not a part of the best metric; default false */
    bool maximize;              /* larger metrics are better; default false */
    double best;                /* the best metric so far; default NAN: none */
    int64_t bad_steps, cooling; /* calls without a better one; calls that are still not counted; default 0 */
} tn_plateau;
#define TN_PLATEAU_DEFAULTS \
    { TN_OPTIONS_SIZE(tn_plateau, cooling), 1e-3, 0.1, 0, 10, 0, 1e-4, false, false, NAN, 0, 0 }

/* Notes a metric and returns the learning rate from now on, for tn_optimizer_set_lr. *p is the whole state: save it to
 * go on later. NaN for NULL, and with tn_error set for settings out of range. */
TN_API double tn_plateau_step(tn_plateau *p, double metric);

/* ---- moving averages of parameters ------------------------------------------------------------------------------- */

/* Averages of the parameters below a module, which often evaluate better than the parameters themselves:
 * average ← decay·average + (1 − decay)·parameter. At first they are the parameters. Tied parameters have one average.
 * Source: torch.optim.swa_utils.AveragedModel with get_ema_multi_avg_fn. */
typedef struct tn_ema tn_ema;
/* m must outlive *out, which is freed with tn_ema_free. Errors: TN_ERR_ARGUMENT for a decay outside [0, 1]. */
TN_API tn_status tn_ema_new(tn_module *m, double decay, tn_ema **out);
TN_API void tn_ema_free(tn_ema *e); /* NULL is fine. Swap back first: the module keeps what it has */
/* Takes the parameters into the averages. Runs everything recorded; can be captured. TN_ERR_STATE while swapped. */
TN_API tn_status tn_ema_update(tn_ema *e);
/* The module gets the averages, to be evaluated or saved, or back its parameters: each call exchanges them. While it
 * has the averages, no optimizer may step, and nothing may be captured or launched that uses the module. */
TN_API tn_status tn_ema_swap(tn_ema *e);
/* The averages as variables ("ema.hidden.weight"), for the extras of a checkpoint; freed with tn_variables_free. */
TN_API tn_status tn_ema_variables(const tn_ema *e, tn_variable **items, int *count);
/* Of parameters that ranks divide (tn_module_shard, tn_module_divide) each rank keeps the averages of its shares. These
 * make the averages whole on every rank, and shares again: call them with tn_module_join and tn_module_split, on all
 * ranks. tn_ema_variables then needs whole averages, tn_ema_update shares if the parameters are (TN_ERR_STATE).
 * Errors: those of tn_module_join. */
TN_API tn_status tn_ema_join(tn_ema *e);
TN_API tn_status tn_ema_split(tn_ema *e);

/* ---- the caller's line, for error messages ----------------------------------------------------------------------- */

#ifndef TN_NO_CALLER_LINES
#define tn_clip_grad_norm(...) (tn_at(__FILE__, __LINE__), tn_clip_grad_norm(__VA_ARGS__))
#define tn_clip_grad_value(...) (tn_at(__FILE__, __LINE__), tn_clip_grad_value(__VA_ARGS__))
#define tn_ema_new(...) (tn_at(__FILE__, __LINE__), tn_ema_new(__VA_ARGS__))
#define tn_ema_update(...) (tn_at(__FILE__, __LINE__), tn_ema_update(__VA_ARGS__))
#define tn_fused_adam_step(...) (tn_at(__FILE__, __LINE__), tn_fused_adam_step(__VA_ARGS__))
#define tn_fused_adamw_step(...) (tn_at(__FILE__, __LINE__), tn_fused_adamw_step(__VA_ARGS__))
#define tn_grad_is_finite(...) (tn_at(__FILE__, __LINE__), tn_grad_is_finite(__VA_ARGS__))
#define tn_minimize(...) (tn_at(__FILE__, __LINE__), tn_minimize(__VA_ARGS__))
#define tn_optimizer_adam(...) (tn_at(__FILE__, __LINE__), tn_optimizer_adam(__VA_ARGS__))
#define tn_optimizer_adamw(...) (tn_at(__FILE__, __LINE__), tn_optimizer_adamw(__VA_ARGS__))
#define tn_optimizer_adafactor(...) (tn_at(__FILE__, __LINE__), tn_optimizer_adafactor(__VA_ARGS__))
#define tn_optimizer_adagrad(...) (tn_at(__FILE__, __LINE__), tn_optimizer_adagrad(__VA_ARGS__))
#define tn_optimizer_lamb(...) (tn_at(__FILE__, __LINE__), tn_optimizer_lamb(__VA_ARGS__))
#define tn_optimizer_lion(...) (tn_at(__FILE__, __LINE__), tn_optimizer_lion(__VA_ARGS__))
#define tn_optimizer_muon(...) (tn_at(__FILE__, __LINE__), tn_optimizer_muon(__VA_ARGS__))
#define tn_optimizer_rmsprop(...) (tn_at(__FILE__, __LINE__), tn_optimizer_rmsprop(__VA_ARGS__))
#define tn_optimizer_sgd(...) (tn_at(__FILE__, __LINE__), tn_optimizer_sgd(__VA_ARGS__))
#define tn_optimizer_step(...) (tn_at(__FILE__, __LINE__), tn_optimizer_step(__VA_ARGS__))
#endif

#ifdef __cplusplus
}
#endif
#endif
