/* operands.c — what rows ask of their inputs and attributes: tensors that must be there, axes, lists of numbers. */
#include <string.h>

#include "formats/onnx/operator_support.h"

tn_status onnx_need(const onnx_call *c, int i, const tn_tensor **out) {
    *out = onnx_in(c, i);
    if (!*out) return onnx_refuse(c, "input %d is missing", i + 1);
    return tn_status_of(*out);
}

tn_tensor *onnx_number(double v, const tn_tensor *like) { return tn_full(NULL, 0, v, tn_dtype_of(like)); }

tn_status onnx_axis(const onnx_call *c, int64_t axis, int rank, int *out) {
    if (axis < -rank || axis >= rank) return onnx_refuse(c, "axis %lld of a tensor of rank %d", (long long)axis, rank);
    *out = (int)(axis < 0 ? axis + rank : axis);
    return TN_OK;
}

tn_status onnx_list(const onnx_call *c, int i, const char *name, int64_t out[2 * TN_MAX_RANK], int *count) {
    enum { MOST = 2 * TN_MAX_RANK };
    const int64_t *given = name ? onnx_ints(c, name, count) : NULL;
    if (i < 0 || !onnx_has(c, i)) {
        if (given && *count > MOST) return onnx_refuse(c, "%d numbers in '%s'; at most %d", *count, name, MOST);
        if (given) memcpy(out, given, (size_t)*count * sizeof *out);
        if (!given) *count = -1;
        return TN_OK;
    }
    int64_t *read, many;
    TRY(onnx_read_ints(c, i, &read, &many, MOST));
    memcpy(out, read, (size_t)many * sizeof *out);
    tn_mem_free(read);
    *count = (int)many;
    return TN_OK;
}

tn_status onnx_axes(const onnx_call *c, int i, const char *name, int rank, int64_t axes[TN_MAX_RANK], int *count) {
    int64_t given[2 * TN_MAX_RANK];
    unsigned seen = 0;
    TRY(onnx_list(c, i, name, given, count));
    if (*count > rank) return onnx_refuse(c, "%d axes for a tensor of rank %d", *count, rank);
    for (int k = 0; k < *count; k++) {
        int axis;
        TRY(onnx_axis(c, given[k], rank, &axis));
        if (seen >> axis & 1) return onnx_refuse(c, "axis %d is named twice", axis);
        seen |= 1u << axis;
        axes[k] = axis;
    }
    return TN_OK;
}

tn_status onnx_put_like(onnx_call *c, int k, const tn_tensor *t, int i) {
    tn_tensor *own = (tn_tensor *)(uintptr_t)t;
    return onnx_put_typed(c, k, t == onnx_in(c, i) ? tn_retain(own) : own, onnx_in_type(c, i));
}
