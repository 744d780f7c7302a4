/* ops_rnn.c — RNN, GRU, LSTM. */
#include "formats/onnx/onnx.h"

const onnx_op_row onnx_rnn_ops[] = {
    {.name = NULL},
};
