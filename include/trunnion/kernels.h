/* kernels.h — single kernels on plain memory, without tensors and graphs: on the CPU, and on any device.
 *
 * For programs with their own loop around a model, for ports of such programs, and for tests. A call computes
 * immediately. All numbers are f32 in the caller's memory; vectors are contiguous, matrices row-major unless a stride
 * is given; strides count elements. Kernels use the best instruction set of the CPU and, for large work, the library's
 * threads (tn_set_num_threads).
 *
 * Each result has the same bits as the operation of ops.h that its comment names, so a model can be moved from one to
 * the other without a change of its numbers.
 *
 * Errors: TN_ERR_ARGUMENT, with the name of the argument, for NULL with elements, negative sizes, sizes whose bytes
 * overflow, and an output that overlaps an input where this is not allowed; TN_ERR_MEMORY. Sizes of 0 are allowed. On
 * failure the output is unchanged. Threads: any number may call at once, also with the same inputs. */
#ifndef TRUNNION_KERNELS_H
#define TRUNNION_KERNELS_H

#include "trunnion/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- products ---------------------------------------------------------------------------------------------------- */

/* out[rows] = w · x for w [rows, cols], x [cols]. Same bits as tn_linear without a bias.
 * tn_kernel_matmul_vec allocates the result: *out is freed with tn_kernel_free, and NULL on failure.
 * tn_kernel_matmul_vec_into writes to the caller's memory; rows of w are row_stride ≥ cols apart (a part of a wider
 * matrix). */
TN_API tn_status tn_kernel_matmul_vec(const float *w, int64_t rows, int64_t cols, const float *x, float **out);
TN_API tn_status tn_kernel_matmul_vec_into(const float *w, int64_t row_stride, int64_t rows, int64_t cols,
                                           const float *x, float *out);
TN_API void tn_kernel_free(float *result); /* NULL is allowed */

/* out[m, n] = a[m, k] · b[k, n]. As tn_matmul. */
TN_API tn_status tn_kernel_matmul(const float *a, const float *b, int64_t m, int64_t k, int64_t n, float *out);

/* out[rows] = w · x for block-quantized weights (TN_Q4_0 … TN_Q6_K) in the layout of GGUF files: `rows` rows of
 * cols / tn_dtype_block(dtype) blocks, at any address. x is rounded to 8 bits in blocks of 32. Same bits as tn_linear
 * with such a weight. Errors: TN_ERR_ARGUMENT if cols is not a multiple of the block size; TN_ERR_DTYPE for another
 * dtype. */
TN_API tn_status tn_kernel_matmul_vec_quantized(tn_dtype dtype, const void *blocks, int64_t rows, int64_t cols,
                                                const float *x, float *out);

/* The same for weights that are used often. tn_kernel_pack_quantized copies the weights to a layout for this CPU, of
 * about the same size; tn_kernel_matmul_packed multiplies m rows: out[m, rows] = x[m, cols] · wᵀ. A packed matrix is
 * only read, so threads may share it. */
typedef struct tn_kernel_matrix tn_kernel_matrix;
TN_API tn_status tn_kernel_pack_quantized(tn_dtype dtype, const void *blocks, int64_t rows, int64_t cols,
                                          tn_kernel_matrix **out);
TN_API tn_status tn_kernel_matmul_packed(const tn_kernel_matrix *w, const float *x, int64_t m, float *out);
TN_API void tn_kernel_matrix_free(tn_kernel_matrix *w); /* NULL is allowed */

/* ---- rows -------------------------------------------------------------------------------------------------------- */

/* x = x / sqrt(mean(x²) + eps) · weight, in place; x and weight [n]. eps ≥ 0. As tn_rms_norm (whose eps of 0 means
 * f32's machine epsilon: here 0 is 0). Source: Zhang and Sennrich 2019. */
TN_API tn_status tn_kernel_rmsnorm(float *x, const float *weight, int64_t n, float eps);

/* x = exp(x - max x) / Σ exp(x - max x), in place; x [n]. As tn_softmax. */
TN_API tn_status tn_kernel_softmax(float *x, int64_t n);
/* The same for n elements that are `stride` apart (a column, a part of a row, backwards if negative; not 0). */
TN_API tn_status tn_kernel_softmax_view(float *x, int64_t n, int64_t stride);

/* out = x / (1 + exp(-x)), element by element; out may be x. As tn_silu. */
TN_API tn_status tn_kernel_silu(const float *x, int64_t n, float *out);

/* Rotary position embedding of one position, in place: each pair (a, b) of a row of x [rows, features] becomes
 * (a · cos - b · sin, b · cos + a · sin). cos and sin [half] are shared by all rows. Pairs are (i, i + half), or the
 * neighbours (2i, 2i + 1) if interleaved; features behind 2 · half stay. As tn_rope. Source: Su et al. 2021.
 * Errors: 2 · half > features. */
TN_API tn_status tn_kernel_apply_rope(float *x, int64_t rows, int64_t features, const float *cos, const float *sin,
                                      int64_t half, bool interleaved);

/* ---- attention, one query at a time ------------------------------------------------------------------------------ */

/* scores[n] = scale · (keys · query): query [d], keys [n, d] with rows row_stride ≥ d apart. As tn_matmul, then
 * tn_mul. */
TN_API tn_status tn_kernel_attention_scores(const float *query, const float *keys, int64_t row_stride, int64_t n,
                                            int64_t d, float scale, float *scores);

/* out[d] = Σ weights[i] · matrix[i, :]: weights [n], matrix [n, d] with rows row_stride ≥ d apart. As tn_matmul. */
TN_API tn_status tn_kernel_weighted_sum_rows(const float *weights, const float *matrix, int64_t row_stride, int64_t n,
                                             int64_t d, float *out);

/* ---- on a device ------------------------------------------------------------------------------------------------- */

/* The kernels above on a device: tn_kernel_NAME_on(device, …). NULL and the cpu: as above.
 *   operands: each in host memory, which is copied, or in memory of tn_device_alloc of this device, also behind its
 *     beginning, which is used in place. A call returns when its result is there.
 * Results have the bits of the operation of the same name on that device: those of the cpu, unless the device rounds
 * otherwise (docs/numerics.md). An operation that the device lacks is computed by the host.
 * Errors: as above, except that operands may overlap, and those of the device. Threads: as above; a call also evaluates
 * what the calling thread has recorded for the device. */

/* Whether this device ("cuda:1"), or a device of this backend ("cuda"), can be used. */
TN_API bool tn_kernel_is_available(const char *device);
/* The name of the device: "cuda:0", "cpu" for NULL. */
TN_API tn_status tn_kernel_device_name(const tn_device *device, char name[32]);

TN_API tn_status tn_kernel_matmul_vec_on(tn_device *device, const float *w, int64_t row_stride, int64_t rows,
                                         int64_t cols, const float *x, float *out);
TN_API tn_status tn_kernel_matmul_on(tn_device *device, const float *a, const float *b, int64_t m, int64_t k, int64_t n,
                                     float *out);
TN_API tn_status tn_kernel_matmul_vec_quantized_on(tn_device *device, tn_dtype dtype, const void *blocks, int64_t rows,
                                                   int64_t cols, const float *x, float *out);
TN_API tn_status tn_kernel_rmsnorm_on(tn_device *device, float *x, const float *weight, int64_t n, float eps);
TN_API tn_status tn_kernel_softmax_on(tn_device *device, float *x, int64_t n);
TN_API tn_status tn_kernel_softmax_view_on(tn_device *device, float *x, int64_t n, int64_t stride); /* stride ≥ 1 */
TN_API tn_status tn_kernel_silu_on(tn_device *device, const float *x, int64_t n, float *out);
TN_API tn_status tn_kernel_apply_rope_on(tn_device *device, float *x, int64_t rows, int64_t features, const float *cos,
                                         const float *sin, int64_t half, bool interleaved);
TN_API tn_status tn_kernel_attention_scores_on(tn_device *device, const float *query, const float *keys,
                                               int64_t row_stride, int64_t n, int64_t d, float scale, float *scores);
TN_API tn_status tn_kernel_weighted_sum_rows_on(tn_device *device, const float *weights, const float *matrix,
                                                int64_t row_stride, int64_t n, int64_t d, float *out);

#ifdef __cplusplus
}
#endif
#endif
