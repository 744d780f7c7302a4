/* ops_text.c — operators on texts, computed on the host. */
#include "formats/onnx/onnx.h"

const onnx_op_row onnx_text_ops[] = {
    {.name = NULL},
};
