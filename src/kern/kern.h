/* kern.h — kernels with a shape of their own, where register blocking, packing or order decide.
 *
 * A native kernel has three joints: `load` (a tile program that yields an operand's elements), the kernel itself, and
 * `store` (a tile program over a block of finished elements still in cache). It knows no activation and no other op.
 * Each computes what its KIR form defines, to the bit (design: numerics, KIR_KSUM). Sources in cpu/ are compiled once
 * per instruction set; cpu/select.c picks the table at start. */
#ifndef TN_KERN_H
#define TN_KERN_H

#include "base/base.h"
#include "kir/kir.h"

enum { TN_GEMM_BATCH_AXES = 4 };

/* A program at a joint. Its parallel axes are all TN_GEMM_BATCH_AXES batch axes (extent 1 where unused), then the
 * operand's two axes: (m, k), (k, n) or (m, n). What a joint of B yields may differ from batch to batch, whatever the
 * batch strides say, unless packed_b is given. The kernel evaluates boxes of it (kir_vm_run_box). `launch.buffers[block_buffer]` is replaced by the kernel: it is where a
 * load program stores its f32 results, or a store program reads the finished f32 block. The access to that buffer must
 * have stride 0 in the batch axes, TN_GEMM_BLOCK_LD in the row axis and 1 in the column axis, and offset 0. */
enum { TN_GEMM_BLOCK_LD = 512 };
typedef struct tn_joint {
    const kir_vm *vm; /* NULL: no joint, plain memory */
    kir_launch launch;
    int block_buffer, buffer_count;
} tn_joint;

/* One operand in memory: element (batch…, row, col) at data + Σ batch·batch_stride + row·row_stride + col·col_stride. */
typedef struct tn_matrix {
    void *data;
    int64_t batch_stride[TN_GEMM_BATCH_AXES]; /* 0 where broadcast */
    int64_t row_stride, col_stride;
    tn_joint joint; /* used instead of data when joint.vm is set */
} tn_matrix;

/* C[batch, m, n] = A[batch, m, k] · B[batch, k, n] in f32 or f64 (joints: f32 only). */
typedef struct tn_gemm_args {
    int64_t batch[TN_GEMM_BATCH_AXES]; /* extents, 1 where unused */
    int64_t m, n, k;
    tn_matrix a, b, c;
    /* A packed copy of B that may be kept between calls: space of tn_gemm_packed_bytes, filled when *packed_valid is false
     * and then set to true; from then on neither B's data nor its joint is read. NULL: packed anew each time. Only for
     * one B for all batches. */
    void *packed_b;
    bool *packed_valid;
    void *workspace; /* tn_gemm_workspace bytes, 64-byte aligned: part of the plan's arena, never allocated here */
} tn_gemm_args;

size_t tn_gemm_packed_bytes(int64_t n, int64_t k, tn_dtype dtype);
/* `threads`: tn_threads() when the product will run, or more. Reads sizes, strides and joints of args, no data; enough
 * with and without packed_b. */
size_t tn_gemm_workspace(const tn_gemm_args *args, tn_dtype dtype, int threads);
/* Cannot fail: all memory is given. Same bits for any thread count, any split, any instruction set. */
void tn_gemm_f32(const tn_gemm_args *args);
void tn_gemm_f64(const tn_gemm_args *args);

/* out[index[i], :] += src[i, :] in ascending i for each row (one owner a row); rows outside [0, rows) are skipped and
 * counted. out [rows, width] is read and written; src row i at src + i·src_stride. f32 or f64 by element size. */
typedef struct tn_scatter_args {
    void *out;
    const void *src;
    const int64_t *index;
    int64_t rows, width, count, src_stride;
} tn_scatter_args;
int64_t tn_scatter_add_f32(const tn_scatter_args *args);
int64_t tn_scatter_add_f64(const tn_scatter_args *args);

/* Stable order of each row: order[r, i] = position of the i-th smallest (largest if descending) element of row r.
 * NaN is the greatest. Rows of `length` contiguous elements; scratch: 2·length int64 a thread. Any compute dtype. */
typedef struct tn_argsort_args {
    const void *data;
    int64_t *order;
    int64_t rows, length;
    tn_dtype dtype;
    bool descending;
    void *workspace; /* threads · 2 · length int64 */
} tn_argsort_args;
void tn_argsort_rows(const tn_argsort_args *args);

#endif
