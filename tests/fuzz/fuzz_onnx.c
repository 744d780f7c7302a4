/* fuzz_onnx.c — any bytes as an ONNX model, and as the values of its test cases: refused with a reason, or all that it
 * says of itself can be read. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "trunnion/onnx.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds) {
    if (!holds) abort();
}

/* Every byte of a text; the sanitizers see one that is not there. */
static void touch(const char *text) {
    volatile char sum = 0;
    for (; text && *text; text++)
        sum = (char)(sum + *text);
}

static void look_at_info(const tn_onnx_info *info) {
    touch(info->name);
    touch(info->type);
    require(info->rank >= -1 && info->rank <= TN_MAX_RANK);
    for (int d = 0; d < info->rank; d++) {
        require(info->shape[d] >= -1);
        touch(info->dims[d]);
    }
}

static void look_at_value(const tn_onnx_value *v, int depth) {
    int64_t shape[TN_MAX_RANK], count = tn_onnx_value_count(v);
    touch(tn_onnx_value_type(v));
    if (tn_onnx_value_shape(v, shape) >= 0 && tn_onnx_value_kind(v) == TN_ONNX_TENSOR) {
        tn_tensor *t = tn_onnx_value_get(v);
        size_t bytes = tn_dtype_bytes(tn_dtype_of(t), count);
        void *numbers = malloc(bytes + 1);
        require(numbers && tn_read(t, numbers, bytes) == TN_OK);
        free(numbers);
        return;
    }
    for (int64_t i = 0; i < count && tn_onnx_value_kind(v) == TN_ONNX_STRINGS; i++) {
        size_t length;
        volatile char sum = 0;
        const char *text = tn_onnx_value_string(v, i, &length);
        for (size_t k = 0; k < length; k++)
            sum = (char)(sum + text[k]);
    }
    if (tn_onnx_value_kind(v) == TN_ONNX_STRINGS) return;
    require(depth < 64);
    for (int64_t i = 0; i < count; i++)
        look_at_value(tn_onnx_value_item(v, i), depth + 1);
    if (tn_onnx_value_kind(v) == TN_ONNX_MAP) look_at_value(tn_onnx_value_keys(v), depth + 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    tn_onnx *m = NULL;
    if (tn_onnx_open_memory(data ? data : (const uint8_t *)"", size, NULL, &m) != TN_OK) require(*tn_error() != '\0');
    tn_onnx_info info = {.struct_size = sizeof info};
    for (int i = 0; i < tn_onnx_input_count(m); i++) {
        require(tn_onnx_input_at(m, i, &info) == TN_OK);
        look_at_info(&info);
    }
    for (int i = 0; i < tn_onnx_output_count(m); i++) {
        require(tn_onnx_output_at(m, i, &info) == TN_OK);
        look_at_info(&info);
    }
    tn_onnx_close(m);
    for (int kind = TN_ONNX_TENSOR; kind <= TN_ONNX_MAP; kind++) {
        tn_onnx_value *v = NULL;
        if (tn_onnx_value_decode(data ? data : (const uint8_t *)"", size, (tn_onnx_kind)kind, &v) == TN_OK)
            look_at_value(v, 0);
        else
            require(*tn_error() != '\0');
        tn_onnx_value_free(v);
    }
    return 0;
}
