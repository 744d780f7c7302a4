/* device_kernels.c — the kernels of kernels.h on a device: each records the operation that its comment names.
 *
 * So a device needs no kernel of its own for them, and the bits are those of the operation there. Plans are cached by
 * shape like any other. Without a device, or on the cpu, the immediate kernels compute. */
#include "trunnion/kernels.h"

#include <stdio.h>

#include "functions/common.h"
#include "trunnion/amp.h"
#include "trunnion/autograd.h"
#include "trunnion/backend.h"

/* A call's device is current until its end. */
typedef struct call {
    const char *name;
    tn_device *device, *before;
} call;

bool tn_kernel_is_available(const char *device) {
    tn_device_list *list = NULL;
    bool found = false;
    if (!device || tn_device_list_new(false, &list) != TN_OK) return false;
    for (int b = 0; b < tn_device_list_count(list) && !found; b++) {
        const tn_backend_info *backend = tn_device_list_at(list, b);
        bool any = strcmp(device, backend->name) == 0;
        for (int i = 0; i < backend->device_count && !found; i++)
            found = backend->devices[i].usable && (any || strcmp(device, backend->devices[i].id) == 0);
    }
    tn_device_list_free(list);
    return found;
}

tn_status tn_kernel_device_name(const tn_device *device, char name[32]) {
    tn_device_info info = {.struct_size = sizeof info};
    if (!name) return tn_backend_fail(TN_ERR_ARGUMENT, "tn_kernel_device_name: name is NULL");
    snprintf(name, 32, "%s", "cpu");
    if (!device) return TN_OK;
    tn_status s = tn_device_get_info(device, &info);
    if (s == TN_OK) snprintf(name, 32, "%s", info.id);
    return s;
}

static bool is_host(const tn_device *device) {
    char name[32];
    return tn_kernel_device_name(device, name) == TN_OK && strcmp(name, "cpu") == 0;
}

static tn_status begin_call(call *c, const char *name, tn_device *device) {
    *c = (call){.name = name, .device = device, .before = tn_current_device()};
    return tn_set_current_device(device);
}

/* Sizes as in the immediate kernels: what does not fit in memory is refused before anything is read. */
static tn_status check(const call *c, const char *what, const void *data, int64_t rows, int64_t cols, int64_t stride) {
    if (rows < 0 || cols < 0 || (rows > 1 && stride < cols))
        return tn_backend_fail(
            TN_ERR_ARGUMENT,
            "%s: %s has %lld rows of %lld elements, %lld apart: sizes must not be negative, and rows "
            "must not overlap",
            c->name, what, (long long)rows, (long long)cols, (long long)stride);
    if (rows && cols && !data) return tn_backend_fail(TN_ERR_ARGUMENT, "%s: %s is NULL", c->name, what);
    if (cols && rows > INT64_MAX / 8 / (stride > cols ? stride : cols))
        return tn_backend_fail(TN_ERR_ARGUMENT, "%s: %s with %lld rows, %lld elements apart, exceeds the address space",
                               c->name, what, (long long)rows, (long long)stride);
    return TN_OK;
}

/* rows < 0: a vector. Borrowed if it is the device's memory, else a copy. */
static tn_tensor *dense(const float *data, int64_t rows, int64_t cols) {
    const int64_t shape[] = {rows, cols};
    return tn_from_ptr((void *)(uintptr_t)data, rows < 0 ? shape + 1 : shape, rows < 0 ? 1 : 2, TN_F32, NULL, NULL);
}

static tn_tensor *matrix(const float *data, int64_t rows, int64_t cols, int64_t stride) {
    if (stride == cols || rows < 2 || cols == 0) return dense(data, rows, cols);
    tn_tensor *all = dense(data, -1, (rows - 1) * stride + cols);
    return tn_contiguous(tn_as_strided(all, (int64_t[]){rows, cols}, 2, (int64_t[]){stride, 1}, 2, 0));
}

static tn_status write_result(const call *c, tn_tensor *value, float *out) {
    size_t bytes = (size_t)tn_numel(value) * sizeof *out;
    tn_status s = tn_status_of(value);
    if (s != TN_OK || !bytes) return s;
    return tn_device_owns(c->device, out, bytes) ? tn_read_to_device(value, out, bytes) : tn_read(value, out, bytes);
}

static tn_status end_call(call *c, tn_status s) {
    (void)tn_set_current_device(c->before);
    return s;
}

/* The operations of a call are recorded in f32 and without gradients, whatever the caller has turned on. */
#define RECORDING \
    TN_SCOPE;     \
    TN_NO_GRAD;   \
    TN_AUTOCAST(TN_F32)

tn_status tn_kernel_matmul_vec_on(tn_device *device, const float *w, int64_t row_stride, int64_t rows, int64_t cols,
                                  const float *x, float *out) {
    if (is_host(device)) return tn_kernel_matmul_vec_into(w, row_stride, rows, cols, x, out);
    call c;
    tn_status s = begin_call(&c, "tn_kernel_matmul_vec_on", device);
    if (s == TN_OK) s = check(&c, "w", w, rows, cols, row_stride);
    if (s == TN_OK) s = check(&c, "x", x, 1, cols, cols);
    if (s == TN_OK) s = check(&c, "out", out, 1, rows, rows);
    RECORDING;
    if (s == TN_OK) s = write_result(&c, tn_linear(dense(x, -1, cols), matrix(w, rows, cols, row_stride), NULL), out);
    return end_call(&c, s);
}

tn_status tn_kernel_matmul_on(tn_device *device, const float *a, const float *b, int64_t m, int64_t k, int64_t n,
                              float *out) {
    if (is_host(device)) return tn_kernel_matmul(a, b, m, k, n, out);
    call c;
    tn_status s = begin_call(&c, "tn_kernel_matmul_on", device);
    if (s == TN_OK) s = check(&c, "a", a, m, k, k);
    if (s == TN_OK) s = check(&c, "b", b, k, n, n);
    if (s == TN_OK) s = check(&c, "out", out, m, n, n);
    RECORDING;
    if (s == TN_OK) s = write_result(&c, tn_matmul(dense(a, m, k), dense(b, k, n)), out);
    return end_call(&c, s);
}

tn_status tn_kernel_matmul_vec_quantized_on(tn_device *device, tn_dtype dtype, const void *blocks, int64_t rows,
                                            int64_t cols, const float *x, float *out) {
    if (is_host(device)) return tn_kernel_matmul_vec_quantized(dtype, blocks, rows, cols, x, out);
    call c;
    tn_status s = begin_call(&c, "tn_kernel_matmul_vec_quantized_on", device);
    if (s == TN_OK) s = check(&c, "blocks", blocks, rows, cols, cols);
    if (s == TN_OK) s = check(&c, "x", x, 1, cols, cols);
    if (s == TN_OK) s = check(&c, "out", out, 1, rows, rows);
    RECORDING;
    if (s == TN_OK && tn_dtype_block(dtype) <= 1)
        s = tn_backend_fail(TN_ERR_DTYPE, "%s: %s is not block-quantized", c.name, tn_dtype_name(dtype));
    if (s == TN_OK) {
        tn_tensor *w = tn_from_ptr((void *)(uintptr_t)blocks, (int64_t[]){rows, cols}, 2, dtype, NULL, NULL);
        s = write_result(&c, tn_linear(dense(x, -1, cols), w, NULL), out);
    }
    return end_call(&c, s);
}

tn_status tn_kernel_rmsnorm_on(tn_device *device, float *x, const float *weight, int64_t n, float eps) {
    if (is_host(device)) return tn_kernel_rmsnorm(x, weight, n, eps);
    call c;
    tn_status s = begin_call(&c, "tn_kernel_rmsnorm_on", device);
    if (s == TN_OK) s = check(&c, "x", x, 1, n, n);
    if (s == TN_OK) s = check(&c, "weight", weight, 1, n, n);
    if (s == TN_OK && !(eps >= 0))
        s = tn_backend_fail(TN_ERR_ARGUMENT, "%s: eps is %g; it must not be negative", c.name, (double)eps);
    RECORDING;
    tn_rms_norm_options o = TN_RMS_NORM_DEFAULTS;
    o.eps = (double)eps;
    if (s == TN_OK && n > 0) s = write_result(&c, tn_rms_norm(dense(x, -1, n), &n, 1, dense(weight, -1, n), &o), x);
    return end_call(&c, s);
}

tn_status tn_kernel_softmax_on(tn_device *device, float *x, int64_t n) {
    if (is_host(device)) return tn_kernel_softmax(x, n);
    call c;
    tn_status s = begin_call(&c, "tn_kernel_softmax_on", device);
    if (s == TN_OK) s = check(&c, "x", x, 1, n, n);
    RECORDING;
    if (s == TN_OK && n > 0) s = write_result(&c, tn_softmax(dense(x, -1, n), 0), x);
    return end_call(&c, s);
}

tn_status tn_kernel_softmax_view_on(tn_device *device, float *x, int64_t n, int64_t stride) {
    if (is_host(device)) return tn_kernel_softmax_view(x, n, stride);
    call c;
    tn_status s = begin_call(&c, "tn_kernel_softmax_view_on", device);
    if (s == TN_OK) s = check(&c, "x", x, n, 1, stride);
    if (s == TN_OK && stride < 1)
        s = tn_backend_fail(TN_ERR_ARGUMENT, "%s: stride is %lld; it must be at least 1", c.name, (long long)stride);
    RECORDING;
    if (s == TN_OK && n > 0) { /* what lies between the elements is written back as it was read */
        tn_tensor *all = dense(x, -1, (n - 1) * stride + 1), *rest = tn_pad(all, (int64_t[]){0, stride - 1}, 2, 0);
        tn_tensor *rows = tn_reshape(rest, (int64_t[]){n, stride}, 2);
        tn_tensor *parts[] = {tn_softmax(tn_narrow(rows, 1, 0, 1), 0), tn_narrow(rows, 1, 1, stride - 1)};
        tn_tensor *whole = flat(tn_cat(parts, stride > 1 ? 2 : 1, 1));
        s = write_result(&c, tn_contiguous(tn_narrow(whole, 0, 0, (n - 1) * stride + 1)), x);
    }
    return end_call(&c, s);
}

tn_status tn_kernel_silu_on(tn_device *device, const float *x, int64_t n, float *out) {
    if (is_host(device)) return tn_kernel_silu(x, n, out);
    call c;
    tn_status s = begin_call(&c, "tn_kernel_silu_on", device);
    if (s == TN_OK) s = check(&c, "x", x, 1, n, n);
    if (s == TN_OK) s = check(&c, "out", out, 1, n, n);
    RECORDING;
    if (s == TN_OK) s = write_result(&c, tn_silu(dense(x, -1, n)), out);
    return end_call(&c, s);
}

tn_status tn_kernel_apply_rope_on(tn_device *device, float *x, int64_t rows, int64_t features, const float *cos,
                                  const float *sin, int64_t half, bool interleaved) {
    if (is_host(device)) return tn_kernel_apply_rope(x, rows, features, cos, sin, half, interleaved);
    call c;
    tn_status s = begin_call(&c, "tn_kernel_apply_rope_on", device);
    if (s == TN_OK) s = check(&c, "x", x, rows, features, features);
    if (s == TN_OK) s = check(&c, "cos", cos, 1, half, half);
    if (s == TN_OK) s = check(&c, "sin", sin, 1, half, half);
    if (s == TN_OK && half > features / 2)
        s = tn_backend_fail(TN_ERR_ARGUMENT, "%s: half is %lld, but x has only %lld features", c.name, (long long)half,
                            (long long)features);
    RECORDING;
    tn_rope_options o = TN_ROPE_DEFAULTS;
    o.interleaved = interleaved;
    if (s == TN_OK && rows && half) { /* one position; the rows are heads */
        tn_tensor *heads = tn_reshape(dense(x, rows, features), (int64_t[]){rows, 1, features}, 3);
        s = write_result(&c, tn_contiguous(tn_rope(heads, dense(cos, 1, half), dense(sin, 1, half), &o)), x);
    }
    return end_call(&c, s);
}

tn_status tn_kernel_attention_scores_on(tn_device *device, const float *query, const float *keys, int64_t row_stride,
                                        int64_t n, int64_t d, float scale, float *scores) {
    if (is_host(device)) return tn_kernel_attention_scores(query, keys, row_stride, n, d, scale, scores);
    call c;
    tn_status s = begin_call(&c, "tn_kernel_attention_scores_on", device);
    if (s == TN_OK) s = check(&c, "query", query, 1, d, d);
    if (s == TN_OK) s = check(&c, "keys", keys, n, d, row_stride);
    if (s == TN_OK) s = check(&c, "scores", scores, 1, n, n);
    RECORDING;
    if (s == TN_OK) {
        tn_tensor *product = tn_linear(dense(query, -1, d), matrix(keys, n, d, row_stride), NULL);
        s = write_result(&c, tn_mul(product, tn_scalar((double)scale)), scores);
    }
    return end_call(&c, s);
}

tn_status tn_kernel_weighted_sum_rows_on(tn_device *device, const float *weights, const float *rows, int64_t row_stride,
                                         int64_t n, int64_t d, float *out) {
    if (is_host(device)) return tn_kernel_weighted_sum_rows(weights, rows, row_stride, n, d, out);
    call c;
    tn_status s = begin_call(&c, "tn_kernel_weighted_sum_rows_on", device);
    if (s == TN_OK) s = check(&c, "weights", weights, 1, n, n);
    if (s == TN_OK) s = check(&c, "matrix", rows, n, d, row_stride);
    if (s == TN_OK) s = check(&c, "out", out, 1, d, d);
    RECORDING;
    if (s == TN_OK) s = write_result(&c, tn_matmul(dense(weights, -1, n), matrix(rows, n, d, row_stride)), out);
    return end_call(&c, s);
}
