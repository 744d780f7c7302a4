/* ops_image.c — resizing, sampling, spectra. */
#include "formats/onnx/onnx.h"

const onnx_op_row onnx_image_ops[] = {
    {.name = NULL},
};
