/* ops_sequence.c — sequences, optionals, maps. */
#include "formats/onnx/onnx.h"

const onnx_op_row onnx_sequence_ops[] = {
    {.name = NULL},
};
