/* ops_ml.c — classic machine learning: trees, linear models, encoders. */
#include "formats/onnx/onnx.h"

const onnx_op_row onnx_ml_ops[] = {
    {.name = NULL},
};
