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
 * Errors: TN_ERR_DTYPE; TN_ERR_ARGUMENT if t is not a leaf or is a view. Source: torch.Tensor.requires_grad_. */
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
 * Source: torch.no_grad. */
#define TN_NO_GRAD TN_CLEANUP_(tn_grad_mode, tn_no_grad_end, tn_no_grad_begin, __LINE__)

typedef struct tn_grad_mode {
    bool before;
} tn_grad_mode;
TN_API tn_grad_mode tn_no_grad_begin(void);
TN_API void tn_no_grad_end(tn_grad_mode *mode);

/* ---- the caller's line, for error messages ----------------------------------------------------------------------- */

#ifndef TN_NO_CALLER_LINES
#define tn_backward(...) (tn_at(__FILE__, __LINE__), tn_backward(__VA_ARGS__))
#define tn_grad(...) (tn_at(__FILE__, __LINE__), tn_grad(__VA_ARGS__))
#define tn_gradients(...) (tn_at(__FILE__, __LINE__), tn_gradients(__VA_ARGS__))
#endif

#ifdef __cplusplus
}
#endif
#endif
