/* ops_quant.c — quantised operators. */
#include "formats/onnx/onnx.h"

const onnx_op_row onnx_quant_ops[] = {
    {.name = NULL},
};
