/* ops_contrib.c — ONNX Runtime's operators that exported transformers use. */
#include "formats/onnx/onnx.h"

const onnx_op_row onnx_contrib_ops[] = {
    {.name = NULL},
};
