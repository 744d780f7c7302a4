/* rocblas.c — AMD's rocBLAS: matrix products on ROCm devices.
 *
 * The library counts columns first, so it is told the transpose, Cᵀ = Bᵀ·Aᵀ, as cuBLASLt is. A handle has the stream
 * and the workspace of the next call, so both are set before each product; how much workspace a product wants is asked
 * when it is planned. Sums are f32's (f64's), and no part of them is added by atomics, whose order changes.
 * tools/checks/gpu_headers.py compares the declarations with AMD's headers where these are. */
#include "vendor/vendor.h"

#if TRUNNION_WITH_ROCM

/* X(field, name, parameters) */
#define CALLS(X)                                                                                                \
    X(open, "rocblas_create_handle", (void **handle))                                                           \
    X(close, "rocblas_destroy_handle", (void *handle))                                                          \
    X(in_stream, "rocblas_set_stream", (void *handle, void *stream))                                            \
    X(set_atomics, "rocblas_set_atomics_mode", (void *handle, int mode))                                        \
    X(set_workspace, "rocblas_set_workspace", (void *handle, void *address, size_t bytes))                      \
    X(size_begin, "rocblas_start_device_memory_size_query", (void *handle))                                     \
    X(size_end, "rocblas_stop_device_memory_size_query", (void *handle, size_t *bytes))                         \
    X(multiply, "rocblas_gemm_strided_batched_ex",                                                              \
      (void *handle, int turn_a, int turn_b, int m, int n, int k, const void *alpha, const void *a, int a_type, \
       int a_ld, int64_t a_stride, const void *b, int b_type, int b_ld, int64_t b_stride, const void *beta,     \
       const void *c, int c_type, int c_ld, int64_t c_stride, void *d, int d_type, int d_ld, int64_t d_stride,  \
       int batch, int sums, int algorithm, int32_t solution, uint32_t flags))

enum { /* as AMD numbers them */
       rocblas_operation_none = 111,
       rocblas_operation_transpose = 112,
       rocblas_datatype_f16_r = 150,
       rocblas_datatype_f32_r = 151,
       rocblas_datatype_f64_r = 152,
       rocblas_datatype_bf16_r = 168,
       rocblas_atomics_not_allowed = 0,
       rocblas_gemm_algo_standard = 0,
       rocblas_status_perf_degraded = 7,
       rocblas_status_size_increased = 9,
       rocblas_status_size_unchanged = 10,
       rocblas_status_continue = 12
};

static const tn_vendor_error errors[] = {
    {1, "rocblas_status_invalid_handle", TN_ERR_DEVICE},      {2, "rocblas_status_not_implemented", TN_ERR_UNSUPPORTED},
    {3, "rocblas_status_invalid_pointer", TN_ERR_DEVICE},     {4, "rocblas_status_invalid_size", TN_ERR_UNSUPPORTED},
    {5, "rocblas_status_memory_error", TN_ERR_MEMORY},        {6, "rocblas_status_internal_error", TN_ERR_DEVICE},
    {11, "rocblas_status_invalid_value", TN_ERR_UNSUPPORTED}, {0, NULL, TN_OK},
};

static const char *const names[] = {
    "librocblas.so",
    "librocblas.so.*",
    "/opt/rocm*/lib/librocblas.so",
    NULL,
};

TN_VENDOR_CALLS(CALLS);

#define CALL(field, arguments) \
    tn_vendor_check(&tn_vendor_rocblas, errors, calls.field arguments, symbols[CALL_##field].name)

static void rocblas_close(TN_UNUSED const tn_lent *lent, void *handle) { (void)calls.close(handle); }

static tn_status rocblas_open(const tn_lent *lent, void **handle) {
    TRY(CALL(open, (handle)));
    tn_status s = CALL(set_atomics, (*handle, rocblas_atomics_not_allowed));
    if (s == TN_OK) return s;
    rocblas_close(lent, *handle);
    *handle = NULL;
    return s;
}

typedef struct rocblas_call {
    tn_vendor_product p;
    size_t workspace;
} rocblas_call;

static int rocblas_type_of(tn_dtype dtype) {
    return dtype == TN_F64    ? rocblas_datatype_f64_r
           : dtype == TN_F16  ? rocblas_datatype_f16_r
           : dtype == TN_BF16 ? rocblas_datatype_bf16_r
                              : rocblas_datatype_f32_r;
}

static int transpose_of(const tn_vendor_side *side) {
    return side->transposed ? rocblas_operation_transpose : rocblas_operation_none;
}

static int multiply(void *handle, const tn_vendor_product *p, void *const *at) {
    const void *zero = tn_vendor_zero(p->dtype), *one = tn_vendor_one(p->dtype);
    const tn_vendor_side *a = &p->side[TN_VENDOR_A], *b = &p->side[TN_VENDOR_B], *c = &p->side[TN_VENDOR_C];
    int type = rocblas_type_of(p->dtype), sums = p->dtype == TN_F64 ? rocblas_datatype_f64_r : rocblas_datatype_f32_r;
    return calls.multiply(handle, transpose_of(b), transpose_of(a), (int)p->n, (int)p->m, (int)p->k, one,
                          at[TN_VENDOR_B], type, (int)b->ld, b->batch_stride, at[TN_VENDOR_A], type, (int)a->ld,
                          a->batch_stride, zero, at[TN_VENDOR_C], type, (int)c->ld, c->batch_stride, at[TN_VENDOR_C],
                          type, (int)c->ld, c->batch_stride, (int)p->batch, sums, rocblas_gemm_algo_standard, 0, 0);
}

/* Between begin and end a product is not computed, and says what it would want. */
static tn_status ask_workspace(void *handle, rocblas_call *c) {
    void *const nowhere[TN_VENDOR_SIDES] = {NULL};
    TRY(CALL(size_begin, (handle)));
    int code = multiply(handle, &c->p, nowhere);
    tn_status s = CALL(size_end, (handle, &c->workspace));
    bool told = code == rocblas_status_size_increased || code == rocblas_status_size_unchanged ||
                code == rocblas_status_continue;
    return s != TN_OK || told ? s : tn_vendor_check(&tn_vendor_rocblas, errors, code, symbols[CALL_multiply].name);
}

static tn_status rocblas_make(void *handle, TN_UNUSED const tn_lent *lent, const tn_vendor_product *p, void **call,
                              size_t *workspace) {
    rocblas_call *c = tn_mem_zalloc(1, sizeof *c);
    if (!c) return TN_ERR_MEMORY;
    *call = c;
    c->p = *p;
    TRY(ask_workspace(handle, c));
    *workspace = c->workspace;
    return TN_OK;
}

static tn_status rocblas_run(void *handle, const tn_lent *lent, const void *call, void *const *pointers) {
    const rocblas_call *c = call;
    void *at[] = {pointers[TN_VENDOR_A], pointers[TN_VENDOR_B], pointers[TN_VENDOR_C]};
    TRY(CALL(in_stream, (handle, lent->stream)));
    TRY(CALL(set_workspace, (handle, c->workspace ? pointers[TN_VENDOR_WORKSPACE] : NULL, c->workspace)));
    for (int64_t i = 0; i < c->p.outer; i++) {
        int code = multiply(handle, &c->p, at);
        if (code != rocblas_status_perf_degraded)
            TRY(tn_vendor_check(&tn_vendor_rocblas, errors, code, symbols[CALL_multiply].name));
        tn_vendor_step(&c->p, at);
    }
    return TN_OK;
}

const tn_vendor_library tn_vendor_rocblas = {
    .name = "rocblas",
    .backend = "rocm",
    .spec = {"AMD rocBLAS", "TRUNNION_ROCBLAS_LIB", names, symbols, TN_COUNT(symbols), "install AMD's package rocblas"},
    .open = rocblas_open,
    .close = rocblas_close,
    .make = rocblas_make,
    .run = rocblas_run,
    .free = tn_mem_free,
};

#endif
