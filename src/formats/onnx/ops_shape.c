/* ops_shape.c — operators that move elements: shapes, slices, gathers, scatters, pads. */
#include "formats/onnx/onnx.h"

const onnx_op_row onnx_shape_ops[] = {
    {.name = NULL},
};
