/* autograd.h — gradients by reverse-mode automatic differentiation.
 *
 * A leaf that requires gradients accumulates them in tn_grad(leaf). Gradients are recorded operations themselves, so
 * they can be differentiated again, and forward pass, backward pass and optimizer step become one plan. Semantics are
 * PyTorch's (torch.autograd).
 *
 * Threads: gradients are recorded by the thread that calls; a leaf must not be used by two threads at once. */
#ifndef TRUNNION_AUTOGRAD_H
#define TRUNNION_AUTOGRAD_H

#include "trunnion/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Marks t as a leaf whose gradients are computed. t must be a leaf (not computed from tensors that require gradients),
 * of a floating dtype, and not a view (tn_detach returns a view; tn_contiguous copies one).
 * Errors: TN_ERR_DTYPE; TN_ERR_ARGUMENT if t is not a leaf or is a view; TN_ERR_STATE if a hook unmarks a leaf.
 * Source: torch.Tensor.requires_grad_. */
TN_API tn_status tn_set_requires_grad(tn_tensor *t, bool requires_grad);
/* Returns whether t requires gradients, as a leaf or because it was computed from one. */
TN_API bool tn_requires_grad(const tn_tensor *t);

/* Adds d loss / d leaf to the gradient of every leaf. loss must have one element. Nothing is freed: a second call for
 * the same loss adds the gradients again, and retain_graph is not needed.
 * If an index out of range is found when the gradients are computed (tensor.h, tn_eval), the gradient of each leaf that
 * depends on it becomes an error tensor, including what was accumulated before; tn_zero_grad removes it. Other
 * gradients are computed.
 * Errors: TN_ERR_SHAPE if loss has several elements; TN_ERR_STATE if it does not require gradients.
 * Source: torch.Tensor.backward. */
TN_API tn_status tn_backward(const tn_tensor *loss);

/* Computes the gradients of `outputs` with respect to `inputs`, without changing tn_grad.
 *   grad_outputs: one per output, of its shape and dtype. NULL for one of them means 1, for an output of one element;
 *     grad_outputs may be NULL if all are.
 *   create_graph: true: the gradients can be differentiated again.
 *   grads: receives `input_count` new handles; zeros if no output depends on the input.
 * Errors: TN_ERR_SHAPE if an output of several elements has no grad_output, or their shapes differ; TN_ERR_STATE if an
 * output or input does not require gradients. Source: torch.autograd.grad. */
TN_API tn_status tn_gradients(tn_tensor *const *outputs, int output_count, tn_tensor *const *grad_outputs,
                              tn_tensor *const *inputs, int input_count, bool create_graph, tn_tensor **grads);

/* Returns the gradient accumulated so far as a new handle, or NULL if there is none: check before reading it.
 * Source: torch.Tensor.grad. */
TN_API tn_tensor *tn_grad(const tn_tensor *leaf);
TN_API void tn_zero_grad(tn_tensor *leaf); /* removes the gradient; tn_grad then returns NULL */

/* Whether this thread records gradients (default: true). tn_set_grad_enabled returns the previous setting.
 * Source: torch.set_grad_enabled. */
TN_API bool tn_grad_enabled(void);
TN_API bool tn_set_grad_enabled(bool enabled);

/* TN_NO_GRAD; is a declaration: from here to the end of the enclosing block this thread records no gradients.
 * An in-place write then changes its target's value but not its gradient history: gradients flow on to what the target
 * was computed from, as if it had not been written. The same holds for a write through tn_detach.
 * Source: torch.no_grad. */
#define TN_NO_GRAD TN_CLEANUP_(tn_grad_mode, tn_no_grad_end, tn_no_grad_begin, __LINE__)

typedef struct tn_grad_mode {
    bool before;
} tn_grad_mode;
TN_API tn_grad_mode tn_no_grad_begin(void);
TN_API void tn_no_grad_end(tn_grad_mode *mode);

/* ---- less memory for the backward pass --------------------------------------------------------------------------- */

/* Activation checkpointing. TN_RECOMPUTE; is a declaration: what this thread records from here to the end of the
 * enclosing block is a region whose intermediate values are not kept for the backward pass, which computes them again
 * from the region's inputs. Results and gradients have the same bits. Of nested regions the innermost one counts. Saves
 * memory where forward and backward pass are evaluated together, as tn_minimize does.
 *
 *     for (int i = 0; i < layers; i++) {
 *         TN_RECOMPUTE;
 *         x = block(i, x);
 *     }
 *
 * tn_module_set_recompute (nn.h) does it for each call of a module. Source: torch.utils.checkpoint. */
#define TN_RECOMPUTE TN_CLEANUP_(tn_recompute, tn_recompute_end, tn_recompute_begin, __LINE__)

typedef struct tn_recompute {
    int32_t before;
} tn_recompute;
TN_API tn_recompute tn_recompute_begin(void);
TN_API void tn_recompute_end(tn_recompute *scope);

/* Recomputation without marks: while it is on, each tn_backward of this thread divides the forward pass into regions by
 * itself, so that what is kept and the largest region together take few bytes. Takes about the time of a second forward
 * pass; the bits stay the same. Regions of TN_RECOMPUTE stay as they are. tn_data_parallel_options.save_memory turns it
 * on if a step runs out of memory. Default: off. Returns the previous setting.
 * Source: Chen et al. 2016, "Training deep nets with sublinear memory cost". */
TN_API bool tn_set_auto_recompute(bool on);

/* ---- watching gradients ------------------------------------------------------------------------------------------ */

/* Called when the gradient of a tensor is complete, before it is passed on or collected. Returns NULL to keep it, or a
 * new handle of the same shape, dtype and device that takes its place (grad itself only after tn_retain). An error
 * tensor ends the backward pass. grad is valid during the call; it is recorded, and reading it evaluates it. A captured
 * graph repeats what was recorded, without calling the hook again. */
typedef tn_tensor *tn_grad_hook(void *ctx, const tn_tensor *grad);
/* Adds a hook to t, which requires gradients. Hooks are called in the order in which they were added, by every
 * tn_backward and tn_gradients that passes t, as long as t's value exists. *id: for tn_remove_hook; may be NULL.
 * Errors: TN_ERR_STATE if t does not require gradients. Source: torch.Tensor.register_hook. */
TN_API tn_status tn_register_hook(tn_tensor *t, tn_grad_hook *hook, void *ctx, int64_t *id);
/* Removes a hook; also inside one. Errors: TN_ERR_ARGUMENT if t has none with this id. */
TN_API tn_status tn_remove_hook(tn_tensor *t, int64_t id);
/* tn_backward collects t's gradient, although t is not a leaf: tn_grad(t) returns it.
 * Errors: TN_ERR_STATE if t does not require gradients. Source: torch.Tensor.retain_grad. */
TN_API tn_status tn_retain_grad(tn_tensor *t);

/* ---- finding faults ---------------------------------------------------------------------------------------------- */

/* Anomaly detection: every operation, forward and backward, is evaluated when it is recorded, and the first whose
 * result has a NaN fails, with its name, shapes and the caller's file and line. For finding errors: it is slow, writes
 * of states are evaluated one by one, and what is recorded in a graph capture is not examined.
 * TN_ANOMALY_INF: also for the first that makes an infinity of finite inputs. Applies to all threads. The environment
 * variable TRUNNION_DETECT_ANOMALY (nan or inf) is the default. Source: torch.autograd.set_detect_anomaly. */
typedef enum tn_anomaly { TN_ANOMALY_OFF = 0, TN_ANOMALY_NAN, TN_ANOMALY_INF } tn_anomaly;
/* Errors: TN_ERR_ARGUMENT for another value. */
TN_API tn_status tn_set_detect_anomaly(tn_anomaly mode);
TN_API tn_anomaly tn_detect_anomaly(void);

/* A function of `inputs` that records its result and returns a new handle. */
typedef tn_tensor *tn_differentiable(void *ctx, tn_tensor *const *inputs);

typedef struct tn_gradcheck_options {
    size_t struct_size;
    double eps;  /* step of the differences; default 1e-6 */
    double atol; /* |analytic - numerical| <= atol + rtol * |numerical|; default 1e-5 */
    double rtol; /* default 1e-3 */
    int order;   /* 2: the gradients of the gradients are compared as well; default 1 */
} tn_gradcheck_options;
#define TN_GRADCHECK_DEFAULTS \
    { TN_OPTIONS_SIZE(tn_gradcheck_options, order), 1e-6, 1e-5, 1e-3, 1 }

/* Compares the gradients of a function with central differences, (f(x + eps) - f(x - eps)) / (2 eps), for every element
 * of every input that requires gradients and every element of the result. The function must be deterministic. Inputs
 * that require gradients must be f64; they keep their values and gradients.
 * Errors: TN_ERR_STATE with the first element that differs and both numbers; TN_ERR_DTYPE; TN_ERR_ARGUMENT; what the
 * function fails with. Source: torch.autograd.gradcheck, gradgradcheck. */
TN_API tn_status tn_gradcheck(tn_differentiable *function, void *ctx, tn_tensor *const *inputs, int count,
                              const tn_gradcheck_options *options);

/* ---- derivatives of functions ------------------------------------------------------------------------------------ */

/* Derivatives of a function's result y at `count` inputs (1 to 128, floating), whether or not they require gradients.
 * The function is called once, with copies of the inputs; y must be floating, its operations must have gradients.
 *   create_graph: true: the results can be differentiated again; inputs that require gradients are then not copied.
 * Results are new handles; NULL on failure; zeros if y does not depend on an input.
 * Errors: TN_ERR_ARGUMENT, TN_ERR_DTYPE, TN_ERR_SHAPE for results of more than TN_MAX_RANK dims, and the errors of the
 * function. */

/* jacobians[i]: d y / d inputs[i]; its shape is that of y followed by that of the input. Runs one backward pass per
 * element of y. Source: torch.autograd.functional.jacobian. */
TN_API tn_status tn_jacobian(tn_differentiable *function, void *ctx, tn_tensor *const *inputs, int count,
                             bool create_graph, tn_tensor **jacobians);
/* hessians[i * count + j]: d² y / d inputs[i] d inputs[j], the shapes of both in that order; y has one element (else
 * TN_ERR_SHAPE). Runs one backward pass per element of the inputs. Source: torch.autograd.functional.hessian. */
TN_API tn_status tn_hessian(tn_differentiable *function, void *ctx, tn_tensor *const *inputs, int count,
                            bool create_graph, tn_tensor **hessians);
/* *derivative: Σ d y / d inputs[i] · tangents[i], of y's shape, by two backward passes. tangents: one for each input,
 * of its shape (else TN_ERR_SHAPE). *value: y; value may be NULL. Source: torch.autograd.functional.jvp. */
TN_API tn_status tn_jvp(tn_differentiable *function, void *ctx, tn_tensor *const *inputs, tn_tensor *const *tangents,
                        int count, bool create_graph, tn_tensor **value, tn_tensor **derivative);

/* ---- batches of a function --------------------------------------------------------------------------------------- */

/* A dim for tn_vmap: the input is the same for all examples. */
#define TN_NOT_MAPPED INT64_MIN

/* A function of single examples applied to a batch. The function is called once, with the first example of each input,
 * and what it records is recorded again for all examples, with the batch as a further dimension: the number of
 * operations does not depend on the batch. in_dims[i]: the dim of inputs[i] along which the examples lie, which the
 * function does not see, or TN_NOT_MAPPED; NULL: dim 0 of each. out_dim: where the examples lie in the result.
 * The function must not evaluate tensors, and random numbers that depend on no example are the same for all.
 * Gradients flow through the result. Returns a new handle.
 * Errors: an error tensor with TN_ERR_UNSUPPORTED and the name and line of an operation without a rule for batches
 * (convolutions, pools, scattering); TN_ERR_SHAPE, TN_ERR_STATE, TN_ERR_ARGUMENT; the errors of the function.
 * Source: torch.vmap. */
TN_API tn_tensor *tn_vmap(tn_differentiable *function, void *ctx, tn_tensor *const *inputs, int count,
                          const int64_t *in_dims, int64_t out_dim);

/* ---- the caller's line, for error messages ----------------------------------------------------------------------- */

#ifndef TN_NO_CALLER_LINES
#define tn_backward(...) (tn_at(__FILE__, __LINE__), tn_backward(__VA_ARGS__))
#define tn_grad(...) (tn_at(__FILE__, __LINE__), tn_grad(__VA_ARGS__))
#define tn_vmap(...) (tn_at(__FILE__, __LINE__), tn_vmap(__VA_ARGS__))
#define tn_gradients(...) (tn_at(__FILE__, __LINE__), tn_gradients(__VA_ARGS__))
#endif

#ifdef __cplusplus
}
#endif
#endif
