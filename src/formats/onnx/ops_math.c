/* ops_math.c — element-wise operators, comparisons, casts, products, reductions. */
#include "formats/onnx/onnx.h"

const onnx_op_row onnx_math_ops[] = {
    {.name = NULL},
};
