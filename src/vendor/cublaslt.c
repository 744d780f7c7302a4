/* cublaslt.c — NVIDIA's cuBLASLt: matrix products on CUDA devices.
 *
 * The library counts columns first, so it is told the transpose, Cᵀ = Bᵀ·Aᵀ: B comes first, and what has contiguous
 * rows for us has contiguous columns for it. Its heuristics choose an algorithm for layouts, alignments and as much
 * workspace as we allow. Sums are f32's (f64's), also where parts of a split sum meet. No TF32: that is another class.
 * tools/checks/gpu_headers.py compares the declarations with NVIDIA's header where that is. */
#include "vendor/vendor.h"

#if TRUNNION_WITH_CUDA

/* A way of computing; opaque, and small enough to be copied. */
typedef struct cublaslt_algorithm {
    uint64_t data[8];
} cublaslt_algorithm;

typedef struct cublaslt_answer {
    cublaslt_algorithm algorithm;
    size_t workspace;
    int state; /* 0: the rest counts */
    float waves;
    int reserved[4];
} cublaslt_answer;

/* X(field, name, parameters) */
#define CALLS(X)                                                                                                      \
    X(open, "cublasLtCreate", (void **handle))                                                                        \
    X(close, "cublasLtDestroy", (void *handle))                                                                       \
    X(matrix_new, "cublasLtMatrixLayoutCreate",                                                                       \
      (void **matrix, int type, uint64_t rows, uint64_t columns, int64_t ld))                                         \
    X(matrix_free, "cublasLtMatrixLayoutDestroy", (void *matrix))                                                     \
    X(matrix_set, "cublasLtMatrixLayoutSetAttribute", (void *matrix, int what, const void *value, size_t bytes))      \
    X(product_new, "cublasLtMatmulDescCreate", (void **product, int sums, int scale))                                 \
    X(product_free, "cublasLtMatmulDescDestroy", (void *product))                                                     \
    X(product_set, "cublasLtMatmulDescSetAttribute", (void *product, int what, const void *value, size_t bytes))      \
    X(wish_new, "cublasLtMatmulPreferenceCreate", (void **wish))                                                      \
    X(wish_free, "cublasLtMatmulPreferenceDestroy", (void *wish))                                                     \
    X(wish_set, "cublasLtMatmulPreferenceSetAttribute", (void *wish, int what, const void *value, size_t bytes))      \
    X(choose_cublaslt, "cublasLtMatmulAlgoGetHeuristic",                                                              \
      (void *handle, void *product, void *a, void *b, void *c, void *d, void *wish, int most,                         \
       cublaslt_answer *answers, int *count))                                                                         \
    X(multiply, "cublasLtMatmul",                                                                                     \
      (void *handle, void *product, const void *alpha, const void *a, void *a_matrix, const void *b, void *b_matrix,  \
       const void *beta, const void *c, void *c_matrix, void *d, void *d_matrix, const cublaslt_algorithm *algorithm, \
       void *workspace, size_t bytes, void *stream))

enum { /* as NVIDIA numbers them */
       CUDA_R_32F = 0,
       CUDA_R_64F = 1,
       CUDA_R_16F = 2,
       CUDA_R_16BF = 14,
       CUBLAS_COMPUTE_32F = 68,
       CUBLAS_COMPUTE_64F = 70,
       CUBLAS_OP_T = 1,
       CUBLASLT_MATMUL_DESC_TRANSA = 3,
       CUBLASLT_MATMUL_DESC_TRANSB = 4,
       CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT = 5,
       CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET = 6,
       CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES = 1,
       CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK = 3,
       CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES = 5, /* then B's, C's, D's */
       CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE = 2
};

static const tn_vendor_error errors[] = {
    {1, "CUBLAS_STATUS_NOT_INITIALIZED", TN_ERR_UNAVAILABLE}, {3, "CUBLAS_STATUS_ALLOC_FAILED", TN_ERR_MEMORY},
    {7, "CUBLAS_STATUS_INVALID_VALUE", TN_ERR_UNSUPPORTED},   {8, "CUBLAS_STATUS_ARCH_MISMATCH", TN_ERR_UNSUPPORTED},
    {11, "CUBLAS_STATUS_MAPPING_ERROR", TN_ERR_DEVICE},       {13, "CUBLAS_STATUS_EXECUTION_FAILED", TN_ERR_DEVICE},
    {14, "CUBLAS_STATUS_INTERNAL_ERROR", TN_ERR_DEVICE},      {15, "CUBLAS_STATUS_NOT_SUPPORTED", TN_ERR_UNSUPPORTED},
    {16, "CUBLAS_STATUS_LICENSE_ERROR", TN_ERR_UNAVAILABLE},  {0, NULL, TN_OK},
};

static const char *const names[] = {
    "libcublasLt.so.13",
    "site-packages/nvidia/cu13/lib/libcublasLt.so.13",
    "libcublasLt.so.12",
    "site-packages/nvidia/cublas/lib/libcublasLt.so.12",
    "libcublasLt.so.11",
    "/usr/local/cuda*/lib64/libcublasLt.so",
    NULL,
};

TN_VENDOR_CALLS(CALLS);

#define CALL(field, arguments) \
    tn_vendor_check(&tn_vendor_cublaslt, errors, calls.field arguments, symbols[CALL_##field].name)

static tn_status lt_open(TN_UNUSED const tn_lent *lent, void **handle) { return CALL(open, (handle)); }

static void lt_close(TN_UNUSED const tn_lent *lent, void *handle) { (void)calls.close(handle); }

/* ---- choosing ---------------------------------------------------------------------------------------------------- */

typedef struct lt_call {
    tn_vendor_product p;
    void *product, *matrix[TN_VENDOR_SIDES];
    cublaslt_algorithm algorithm;
    size_t workspace;
} lt_call;

static void lt_free(void *call) {
    lt_call *c = call;
    for (int s = 0; s < TN_VENDOR_SIDES; s++)
        if (c->matrix[s]) (void)calls.matrix_free(c->matrix[s]);
    if (c->product) (void)calls.product_free(c->product);
    tn_mem_free(c);
}

static int cublaslt_type_of(tn_dtype dtype) {
    return dtype == TN_F64 ? CUDA_R_64F : dtype == TN_F16 ? CUDA_R_16F : dtype == TN_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

/* A matrix of ours is the transpose of what the library sees in the same memory. */
static tn_status add_matrix(lt_call *c, int s, int64_t rows, int64_t columns) {
    const tn_vendor_side *side = &c->p.side[s];
    int32_t batch = (int32_t)c->p.batch;
    uint64_t long_side = (uint64_t)(side->transposed ? rows : columns),
             lines = (uint64_t)(side->transposed ? columns : rows);
    TRY(CALL(matrix_new, (&c->matrix[s], cublaslt_type_of(c->p.dtype), long_side, lines, side->ld)));
    if (batch == 1) return TN_OK;
    TRY(CALL(matrix_set, (c->matrix[s], CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch)));
    return CALL(matrix_set, (c->matrix[s], CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &side->batch_stride,
                             sizeof side->batch_stride));
}

static tn_status describe_cublaslt(lt_call *c) {
    bool wide = c->p.dtype == TN_F64;
    const int turned = CUBLAS_OP_T;
    TRY(CALL(product_new,
             (&c->product, wide ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F, wide ? CUDA_R_64F : CUDA_R_32F)));
    if (c->p.side[TN_VENDOR_B].transposed)
        TRY(CALL(product_set, (c->product, CUBLASLT_MATMUL_DESC_TRANSA, &turned, sizeof turned)));
    if (c->p.side[TN_VENDOR_A].transposed)
        TRY(CALL(product_set, (c->product, CUBLASLT_MATMUL_DESC_TRANSB, &turned, sizeof turned)));
    TRY(add_matrix(c, TN_VENDOR_A, c->p.m, c->p.k));
    TRY(add_matrix(c, TN_VENDOR_B, c->p.k, c->p.n));
    return add_matrix(c, TN_VENDOR_C, c->p.m, c->p.n);
}

static tn_status fill_wish(const lt_call *c, void *wish) {
    static const int in_order[] = {TN_VENDOR_B, TN_VENDOR_A, TN_VENDOR_C, TN_VENDOR_C};
    const uint64_t most = 32 << 20; /* what NVIDIA advises for Hopper; a plan takes what the choice wants of it */
    const uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    TRY(CALL(wish_set, (wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most, sizeof most)));
    TRY(CALL(wish_set, (wish, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof schemes)));
    for (int i = 0; i < (int)TN_COUNT(in_order); i++) {
        uint32_t bytes = (uint32_t)c->p.side[in_order[i]].alignment;
        TRY(CALL(wish_set, (wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES + i, &bytes, sizeof bytes)));
    }
    return TN_OK;
}

static tn_status choose_cublaslt(lt_call *c, void *handle, void *wish) {
    cublaslt_answer answer;
    int count = 0;
    void *const *m = c->matrix;
    TRY(fill_wish(c, wish));
    TRY(CALL(choose_cublaslt, (handle, c->product, m[TN_VENDOR_B], m[TN_VENDOR_A], m[TN_VENDOR_C], m[TN_VENDOR_C], wish,
                               1, &answer, &count)));
    if (count < 1 || answer.state != 0)
        return tn_fail(TN_ERR_UNSUPPORTED, "%s: no algorithm for this problem", tn_vendor_cublaslt.spec.title);
    c->algorithm = answer.algorithm;
    c->workspace = answer.workspace;
    return TN_OK;
}

static tn_status lt_make(void *handle, TN_UNUSED const tn_lent *lent, const tn_vendor_product *p, void **call,
                         size_t *workspace) {
    void *wish = NULL;
    lt_call *c = tn_mem_zalloc(1, sizeof *c);
    if (!c) return TN_ERR_MEMORY;
    *call = c;
    c->p = *p;
    TRY(describe_cublaslt(c));
    TRY(CALL(wish_new, (&wish)));
    tn_status s = choose_cublaslt(c, handle, wish);
    (void)calls.wish_free(wish);
    *workspace = c->workspace;
    return s;
}

static tn_status lt_run(void *handle, const tn_lent *lent, const void *call, void *const *pointers) {
    const lt_call *c = call;
    const void *zero = tn_vendor_zero(c->p.dtype), *one = tn_vendor_one(c->p.dtype);
    void *at[TN_VENDOR_SIDES] = {pointers[TN_VENDOR_A], pointers[TN_VENDOR_B], pointers[TN_VENDOR_C]};
    void *const *m = c->matrix;
    for (int64_t i = 0; i < c->p.outer; i++) {
        TRY(CALL(multiply, (handle, c->product, one, at[TN_VENDOR_B], m[TN_VENDOR_B], at[TN_VENDOR_A], m[TN_VENDOR_A],
                            zero, at[TN_VENDOR_C], m[TN_VENDOR_C], at[TN_VENDOR_C], m[TN_VENDOR_C], &c->algorithm,
                            pointers[TN_VENDOR_WORKSPACE], c->workspace, lent->stream)));
        tn_vendor_step(&c->p, at);
    }
    return TN_OK;
}

const tn_vendor_library tn_vendor_cublaslt = {
    .name = "cublaslt",
    .backend = "cuda",
    .spec = {"NVIDIA cuBLASLt", "TRUNNION_CUBLASLT_LIB", names, symbols, TN_COUNT(symbols),
             "pip install nvidia-cublas (CUDA 12: nvidia-cublas-cu12), or the toolkit's package libcublas"},
    .open = lt_open,
    .close = lt_close,
    .make = lt_make,
    .run = lt_run,
    .free = lt_free,
};

#endif
