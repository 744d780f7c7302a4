/* ops_nn.c — convolutions, pools, norms, activations, losses, attention. */
#include "formats/onnx/onnx.h"

const onnx_op_row onnx_nn_ops[] = {
    {.name = NULL},
};
