/* amp.h — mixed precision: products in f16 or bf16, weights and optimizer state in f32, dynamic loss scale.
 *
 * Two parts that work together or alone. TN_AUTOCAST makes the ops recorded in a block choose their precision; the
 * gradient scaler of an optimizer keeps f16 gradients from underflowing and skips the steps that overflow:
 *
 *     tn_optimizer_adamw(net, NULL, &adamw);
 *     tn_optimizer_set_grad_scaler(adamw, NULL);            f16 only: bf16 has the range of f32
 *     for (...) {
 *         TN_SCOPE;
 *         tn_tensor *loss;
 *         {
 *             TN_AUTOCAST(TN_F16);
 *             loss = tn_cross_entropy(tn_forward(net, x), y, NULL, NULL);
 *         }
 *         if (tn_minimize(adamw, loss) != TN_OK) ...        scales the loss, unscales the gradients, steps or skips
 *     }
 *
 * Semantics are those of torch.autocast and torch.amp.GradScaler. */
#ifndef TRUNNION_AMP_H
#define TRUNNION_AMP_H

#include "trunnion/optim.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- autocast ---------------------------------------------------------------------------------------------------- */

/* TN_AUTOCAST(TN_F16); — a declaration: from here to the end of the enclosing block, floating point inputs (f32, f16,
 * bf16) of the ops that this thread records are cast first:
 *   - to the low precision for products: matmul, linear, convolutions, attention, … Their sums are accumulated in f32;
 *   - to f32 where range or precision matters: exp, log, pow, softmax, norms, sums, losses, …;
 *   - not at all for the others, whose dtype follows from promotion (f16 + f32 is f32).
 * docs/ops.md marks each op `low` or `f32`. f64, integers, weights quantized in blocks and in-place ops are left alone.
 * Parameters stay f32: a cast is recorded, and computed once a step however often the weight is used. Gradients flow
 * back through the casts, so parameters get f32 gradients; tn_backward itself casts nothing. TN_F32 turns it off in a
 * block inside. With another dtype the products fail with TN_ERR_DTYPE. Blocks nest; each thread has its own.
 * Source: torch.autocast, the lists of ATen's autocast_mode. */
#define TN_AUTOCAST(dtype) TN_AUTOCAST_AT_(dtype, __LINE__)
#define TN_AUTOCAST_AT_(dtype, line) TN_AUTOCAST_ON_(dtype, line)
#define TN_AUTOCAST_ON_(dtype, line) \
    TN_AT_BLOCK_END_(tn_autocast, tn_autocast_end, tn_autocast_begin(dtype), tn_autocast_##line)

typedef struct tn_autocast {
    tn_dtype before;
} tn_autocast;
TN_API tn_autocast tn_autocast_begin(tn_dtype dtype);
TN_API void tn_autocast_end(tn_autocast *scope);
TN_API tn_dtype tn_autocast_dtype(void); /* the low precision of this thread now; TN_F32: off */

/* ---- dynamic loss scale ------------------------------------------------------------------------------------------ */

/* The loss is multiplied by `scale` before backward and the gradients by 1 / scale after it. If a gradient is then Inf
 * or NaN, the step is skipped as a whole, on the device: parameters, optimizer state and step counts keep their bits,
 * and scale becomes scale · backoff_factor. After growth_interval steps in a row without a skip, scale becomes
 * scale · growth_factor, unless that overflows. (Buffers that the forward pass writes, such as running statistics, are
 * not part of the step.) */
typedef struct tn_grad_scaler_options {
    size_t struct_size;
    double init_scale;       /* default 65536; greater than 0 */
    double growth_factor;    /* default 2; greater than 1 */
    double backoff_factor;   /* default 0.5; in (0, 1) */
    int64_t growth_interval; /* default 2000; 1 … 2^31 - 1 */
} tn_grad_scaler_options;
#define TN_GRAD_SCALER_DEFAULTS \
    { TN_OPTIONS_SIZE(tn_grad_scaler_options, growth_interval), 65536, 2, 0.5, 2000 }

/* Gives o a gradient scaler, for all following steps. options may be NULL. From then on the step counts are on the
 * device of the parameters, since only the device knows whether a step was skipped; nothing is read back, so a step can
 * be captured. Scale, growth tracker and number of skipped steps are in tn_optimizer_variables ("grad_scaler.scale", …)
 * and so in checkpoints. tn_minimize and tn_data_parallel_minimize do everything; with tn_backward, the caller scales:
 *
 *     tn_backward(tn_optimizer_scale_loss(o, loss));        several times to accumulate gradients
 *     tn_optimizer_unscale(o);                              only to clip the gradients, or to look at them
 *     tn_clip_grad_norm(net, 1.0, NULL);
 *     tn_optimizer_step(o);                                 unscales unless that was done; steps or skips
 *
 * Errors: TN_ERR_ARGUMENT for values out of range; TN_ERR_STATE if o has a scaler, and inside a capture.
 * Source: torch.amp.GradScaler. */
TN_API tn_status tn_optimizer_set_grad_scaler(tn_optimizer *o, const tn_grad_scaler_options *options);

/* loss · scale, a new handle; without a scaler a view of loss. */
TN_API tn_tensor *tn_optimizer_scale_loss(const tn_optimizer *o, const tn_tensor *loss);

/* Multiplies the collected gradients by 1 / scale, in place; the next step does not repeat it. Without a scaler it does
 * nothing. Errors: TN_ERR_STATE if called twice before a step. */
TN_API tn_status tn_optimizer_unscale(tn_optimizer *o);

/* The scale now, and the steps skipped so far. They read from the device; without a scaler 1 and 0. NaN and -1 on
 * failure, as within a capture. */
TN_API double tn_optimizer_loss_scale(const tn_optimizer *o);
TN_API int64_t tn_optimizer_skipped_steps(const tn_optimizer *o);

/* ---- the caller's line, for error messages ----------------------------------------------------------------------- */

#ifndef TN_NO_CALLER_LINES
#define tn_optimizer_scale_loss(...) (tn_at(__FILE__, __LINE__), tn_optimizer_scale_loss(__VA_ARGS__))
#define tn_optimizer_set_grad_scaler(...) (tn_at(__FILE__, __LINE__), tn_optimizer_set_grad_scaler(__VA_ARGS__))
#define tn_optimizer_unscale(...) (tn_at(__FILE__, __LINE__), tn_optimizer_unscale(__VA_ARGS__))
#endif

#ifdef __cplusplus
}
#endif
#endif
