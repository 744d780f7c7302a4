/* ops_training.c — gradients and optimisers. */
#include "formats/onnx/onnx.h"

const onnx_op_row onnx_training_ops[] = {
    {.name = NULL},
};
