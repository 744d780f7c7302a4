/* autograd.h — gradients: reverse mode, as graph to graph, so that a gradient can be differentiated again.
 *
 * A leaf that requires gradients collects them in tn_grad(leaf). Whatever is computed from it remembers how. Forward,
 * backward and optimiser step become one plan. Semantics are PyTorch's (torch.autograd). */
#ifndef TRUNNION_AUTOGRAD_H
#define TRUNNION_AUTOGRAD_H

#include "trunnion/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Marks a leaf (a tensor not computed from others that require gradients). Floating dtypes only; no views, to which
 * tn_detach belongs too: tn_contiguous makes a tensor of its own of one. */
TN_API tn_status tn_set_requires_grad(tn_tensor *t, bool requires_grad);
TN_API bool tn_requires_grad(const tn_tensor *t);

/* d loss / d leaf is added to every leaf's gradient. loss must have one element. Nothing is freed by it:
 * called again for the same loss it adds the same once more, and retain_graph is not needed.
 * If an index out of range is found when the gradients are computed (tensor.h, tn_eval), a leaf's gradient that depends
 * on it becomes an error tensor, what was added up in it before included; tn_zero_grad forgets it. Others are computed.
 * Errors: TN_ERR_SHAPE for a loss of several elements; TN_ERR_STATE when loss does not require gradients. */
TN_API tn_status tn_backward(const tn_tensor *loss);

/* The gradients of `outputs` (seeded with grad_outputs, one per output) with respect to `inputs`, without touching
 * tn_grad. A grad_output that is NULL means 1 and needs an output of one element, as in PyTorch; grad_outputs itself
 * may be NULL if all are. grads receives `input_count` new handles; zeros where an output does not depend on the input.
 * create_graph: the gradients can be differentiated again.
 * Errors: TN_ERR_SHAPE for a larger output without a grad_output, or one whose shape is not its output's. */
TN_API tn_status tn_gradients(tn_tensor *const *outputs, int output_count, tn_tensor *const *grad_outputs,
                              tn_tensor *const *inputs, int input_count, bool create_graph, tn_tensor **grads);

/* The gradient collected so far: a new handle, or NULL when there is none, which is to
 * be looked at before it is read. */
TN_API tn_tensor *tn_grad(const tn_tensor *leaf);
TN_API void tn_zero_grad(tn_tensor *leaf); /* forgets it */

/* Switches recording of gradients for this thread; returns what it was. */
TN_API bool tn_grad_enabled(void);
TN_API bool tn_set_grad_enabled(bool enabled);

/* TN_NO_GRAD; — a declaration: from here to the end of the enclosing block this thread records no gradients. */
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
