/* vendor.h — matrix products and convolutions by the library that a device's vendor ships, instead of our kernels.
 *
 * As with blas.h, one is used only when somebody asks for it: results are of the class `library`. A library is a row of
 * the table in vendor.c and a file of its own, which declares what it calls. It works in a queue of ours and in memory
 * of ours: a driver lends the queue for the time of a call (tn_driver.lend; hal/libraries.c), a plan the workspace.
 * What it chooses for a product or a convolution it chooses when that is planned. */
#ifndef TN_KERN_VENDOR_H
#define TN_KERN_VENDOR_H

#include "cpu/cpu_kernels.h"
#include "trunnion/backend.h"

/* A matrix, or `batch` of them (× `outer`); distances in elements. Rows are contiguous, or with `turned` columns. */
typedef struct tn_vendor_side {
    int64_t ld, batch_stride, outer_stride;
    bool transposed;
    int64_t alignment; /* bytes that its address is a multiple of */
} tn_vendor_side;

enum { TN_VENDOR_A, TN_VENDOR_B, TN_VENDOR_C, TN_VENDOR_SIDES, TN_VENDOR_WORKSPACE = TN_VENDOR_SIDES };

/* C[outer, batch, m, n] = A[outer, batch, m, k] · B[outer, batch, k, n], all of one dtype, sums in f32 (f64 in f64).
 * Libraries know one batch; `outer` is for them to go round. All numbers but strides fit 32 bits. */
typedef struct tn_vendor_product {
    tn_dtype dtype;
    int64_t m, n, k, batch, outer;
    tn_vendor_side side[TN_VENDOR_SIDES];
} tn_vendor_product;

/* Whether a product is of this form; else *why is the rest of a sentence that begins with the library. Alignments are
 * the caller's, of the whole operand; what outer strides leave of them is worked out here. */
bool tn_vendor_product_of(const tn_gemm_args *args, tn_dtype dtype, const int64_t alignment[TN_VENDOR_SIDES],
                          tn_vendor_product *out, const char **why);

/* 0 and 1 of the dtype in which a product of `dtype` is added and scaled: f64's own, f32's for all others. */
const void *tn_vendor_zero(tn_dtype dtype);
const void *tn_vendor_one(tn_dtype dtype);
/* The operands' addresses from one of the outer axis' products to the next. */
void tn_vendor_step(const tn_vendor_product *p, void *at[TN_VENDOR_SIDES]);

/* What is made of the other two: results of images and filters, or a gradient. The order of their pointers: what is
 * made, then images before results, results before filters, images before filters. */
typedef enum tn_vendor_way {
    TN_VENDOR_RESULTS,
    TN_VENDOR_INPUT,
    TN_VENDOR_WEIGHT,
} tn_vendor_way;

/* Images [n, channels, size], filters [out, channels / groups, kernel], results [n, out, places], each of which lies
 * whole in memory, at a multiple of 64 bytes; sums in f32. All numbers and counts of elements fit 32 bits. */
typedef struct tn_vendor_conv {
    tn_dtype dtype;
    tn_vendor_way way;
    int input[4], weight[4], results[4];
    int padding[2], stride[2], dilation[2], groups;
} tn_vendor_conv;

typedef struct tn_vendor_library {
    const char *name, *backend; /* "cublaslt", "cuda" */
    tn_library_spec spec;
    /* On the device whose queue is lent. *handle is used by one thread at a time. */
    tn_status (*open)(const tn_lent *lent, void **handle);
    void (*close)(const tn_lent *lent, void *handle);
    /* Chooses how. TN_ERR_UNSUPPORTED: it has nothing for this product. workspace: bytes that a run wants. What *call
     * holds, also after a failure, is freed by the caller. */
    tn_status (*make)(void *handle, const tn_lent *lent, const tn_vendor_product *p, void **call, size_t *workspace);
    /* The same for a convolution. A library has one of the two, the other one is NULL. */
    tn_status (*make_conv)(void *handle, const tn_lent *lent, const tn_vendor_conv *c, void **call, size_t *workspace);
    /* In order, in the queue that is lent. pointers: A, B, C or a convolution's, then the workspace. */
    tn_status (*run)(void *handle, const tn_lent *lent, const void *call, void *const *pointers);
    void (*free)(void *call);
} tn_vendor_library;

/* NULL behind the last row. */
const tn_vendor_library *tn_vendor_library_at(int row);
int tn_vendor_row(const char *name); /* -1: there is none of this name */

/* The rows' files. */
extern const tn_vendor_library tn_vendor_cublaslt, tn_vendor_cudnn, tn_vendor_rocblas, tn_vendor_mps;

/* TN_OK, or the failure of a library's call: "cuBLASLt: cublasLtMatmul: CUBLAS_STATUS_NOT_SUPPORTED (15)". A code above
 * 1000 that has no row is of the kind of its thousand. */
typedef struct tn_vendor_error {
    int code;
    const char *name;
    tn_status status;
} tn_vendor_error;
tn_status tn_vendor_check(const tn_vendor_library *l, const tn_vendor_error *errors, int code, const char *call);

/* A library's calls, out of a list of X(field, name, parameters): the struct `calls` of pointers to them, `symbols` to
 * find them by, and of each its number there, CALL_field. */
#define TN_VENDOR_FIELD(field, name, parameters) int(*field) parameters;
#define TN_VENDOR_SYMBOL(field, name, parameters) {name, (void **)&calls.field, false},
#define TN_VENDOR_NUMBER(field, name, parameters) CALL_##field,
#define TN_VENDOR_CALLS(LIST)                                    \
    static struct { LIST(TN_VENDOR_FIELD) } calls;               \
    static const tn_symbol symbols[] = {LIST(TN_VENDOR_SYMBOL)}; \
    enum { LIST(TN_VENDOR_NUMBER) }

#endif
