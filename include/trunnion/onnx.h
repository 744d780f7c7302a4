/* onnx.h — ONNX models: opening, asking what they need, running.
 *
 * A model is a graph of the standard's operators. Opening it reads the file's structure and leaves the weights in the
 * mapping; nodes that Trunnion cannot run are reported all at once, before anything is computed. A run takes values by
 * the names of the inputs and hands out one value an output; what it computes is operations of ops.h on the current
 * device, planned, fused and replayed as they are anywhere else.
 *
 *   tn_onnx *m;
 *   tn_onnx_value *in = tn_onnx_value_tensor(x), *out;
 *   tn_onnx_open("model.onnx", NULL, &m);
 *   tn_onnx_run(m, &in, &out);            // as many as the model has, in its order
 *   tn_read(tn_onnx_value_get(out), numbers, sizeof numbers);
 *
 * Threads: one thread at a time uses a model, and always the same one: plans belong to the thread that made them. */
#ifndef TRUNNION_ONNX_H
#define TRUNNION_ONNX_H

#include "trunnion/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

#ifdef __cplusplus
}
#endif
#endif
