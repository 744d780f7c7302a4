/* functions.h — functions that are composed of the operations of ops.h: indexing by masks and index tensors, einsum,
 * padding and resizing, order statistics, pools and convolutions of 1 and 3 dimensions, distances, losses of classes.
 *
 * Names, arguments and semantics are PyTorch's. Gradients of any order, ONNX export and every device follow from the
 * operations that are recorded. Index numbers are made on the current device.
 *
 * Each function returns a new handle, never NULL; on failure an error tensor (tensor.h). Its message may name the
 * operation that refused its input. `tn_tensor **` arguments receive further results, which the caller frees; NULL: not
 * needed.
 *
 * Data-dependent shapes: functions marked "evaluates" must know values to know the result's shape. They compute their
 * input at once and read it on the host, so they fail with TN_ERR_STATE inside a graph capture.
 *
 * Threads: as in ops.h. */
#ifndef TRUNNION_FUNCTIONS_H
#define TRUNNION_FUNCTIONS_H

#include "trunnion/autograd.h"
#include "trunnion/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- text -------------------------------------------------------------------------------------------------------- */

/* Writes x as text into `to`, as PyTorch's repr lays it out: four digits, one format for all elements, the three outer
 * ones of each dimension if there are more than 1000. dtype and requires_grad follow where they are not the default;
 * dtypes have the names of tn_dtype_name. Evaluates x.
 *   to, size: a buffer, always ended by a 0; what does not fit is left out. to may be NULL.
 *   length: receives the characters of the whole text, without the 0; may be NULL. */
TN_API tn_status tn_tensor_text(const tn_tensor *x, char *to, size_t size, size_t *length);
TN_API tn_status tn_print(const tn_tensor *x); /* to standard output, with a line feed */

/* ---- indexing ---------------------------------------------------------------------------------------------------- */

/* x[indices[0], indices[1], …] as in PyTorch and NumPy: each entry is NULL (a full slice), an integer tensor (negative
 * numbers count from the end), or a bool mask over as many dimensions as it has (evaluates). Integer tensors broadcast
 * against each other; their dimensions stand where the first of them stood if they are adjacent, else in front.
 * Errors: TN_ERR_SHAPE, TN_ERR_DTYPE; TN_ERR_ARGUMENT for an index out of range. Source: torch.Tensor.__getitem__. */
TN_API tn_tensor *tn_index(const tn_tensor *x, tn_tensor *const *indices, int count);
/* x with values, broadcast to the shape of tn_index, written at (accumulate: added to) these places. Of several values
 * for one place the last stays. Source: torch.Tensor.index_put. */
TN_API tn_tensor *tn_index_put(const tn_tensor *x, tn_tensor *const *indices, int count, const tn_tensor *values,
                               bool accumulate);
TN_API tn_tensor *tn_nonzero(const tn_tensor *x); /* evaluates; [n, rank] in i64, in row-major order */
TN_API tn_tensor *tn_masked_select(const tn_tensor *x, const tn_tensor *mask); /* evaluates; [n] */
/* x with its masked elements replaced by source's first elements, in order. */
TN_API tn_tensor *tn_masked_scatter(const tn_tensor *x, const tn_tensor *mask, const tn_tensor *source);
TN_API tn_tensor *tn_take(const tn_tensor *x, const tn_tensor *index); /* of x as one row */
TN_API tn_tensor *tn_put(const tn_tensor *x, const tn_tensor *index, const tn_tensor *source, bool accumulate);
TN_API tn_tensor *tn_index_fill(const tn_tensor *x, int64_t dim, const tn_tensor *index, double value);
TN_API tn_tensor *tn_index_copy(const tn_tensor *x, int64_t dim, const tn_tensor *index, const tn_tensor *source);
TN_API tn_tensor *tn_index_reduce(const tn_tensor *x, int64_t dim, const tn_tensor *index, const tn_tensor *source,
                                  tn_reduce reduce, bool include_self);
/* As tn_scatter_reduce, with the mean of what is combined; integers: rounded down. */
TN_API tn_tensor *tn_scatter_mean(const tn_tensor *x, int64_t dim, const tn_tensor *index, const tn_tensor *source,
                                  bool include_self);
/* Distinct values of x in ascending order (consecutive: of each run of equal ones, the first), evaluates. *inverse: for
 * each element of x its place in the result, in x's shape; *counts: how often each value occurs; both i64. */
TN_API tn_tensor *tn_unique(const tn_tensor *x, tn_tensor **inverse, tn_tensor **counts);
TN_API tn_tensor *tn_unique_consecutive(const tn_tensor *x, tn_tensor **inverse, tn_tensor **counts);
/* Number of (or with weights, not NULL, their sum over) occurrences of 0, 1, … in x [n], which holds integers of at
 * least 0; at least minlength places. Evaluates. */
TN_API tn_tensor *tn_bincount(const tn_tensor *x, const tn_tensor *weights, int64_t minlength);
/* Histogram of x: `bins` counts, in x's dtype, of equal intervals of [min, max]. min = max: the extremes of x are used
 * (evaluates). */
TN_API tn_tensor *tn_histc(const tn_tensor *x, int64_t bins, double min, double max);
/* For each value its place in the sorted rows of `sorted` [..., n] (or [n]): the first place whose element is ≥ the
 * value (right: > the value), n if there is none; i64. */
TN_API tn_tensor *tn_searchsorted(const tn_tensor *sorted, const tn_tensor *values, bool right);
TN_API tn_tensor *tn_bucketize(const tn_tensor *x, const tn_tensor *boundaries, bool right);
TN_API tn_tensor *tn_isin(const tn_tensor *x, const tn_tensor *values, bool invert);
/* Each slice of x along dim repeated: `repeats` times, or as often as the tensor (one number or one a slice, evaluates)
 * says. */
TN_API tn_tensor *tn_repeat_interleave(const tn_tensor *x, int64_t repeats, int64_t dim);
TN_API tn_tensor *tn_repeat_interleave_by(const tn_tensor *x, const tn_tensor *repeats, int64_t dim);

/* ---- copies, diagonals, shapes ----------------------------------------------------------------------------------- */

TN_API tn_tensor *tn_clone(const tn_tensor *x); /* a copy with its own storage; gradients flow back to x */
/* x with src in place of diagonal / select / slice / as_strided of x. */
TN_API tn_tensor *tn_diagonal_scatter(const tn_tensor *x, const tn_tensor *src, int64_t offset, int64_t dim1,
                                      int64_t dim2);
TN_API tn_tensor *tn_select_scatter(const tn_tensor *x, const tn_tensor *src, int64_t dim, int64_t index);
TN_API tn_tensor *tn_slice_scatter(const tn_tensor *x, const tn_tensor *src, int64_t dim, int64_t start, int64_t stop,
                                   int64_t step);
TN_API tn_tensor *tn_as_strided_scatter(const tn_tensor *x, const tn_tensor *src, const int64_t *shape, int rank,
                                        const int64_t *strides, int stride_count, int64_t offset);
/* The diagonal of dims dim1 and dim2, `offset` above the main one, as the last dimension; a view. */
TN_API tn_tensor *tn_diagonal(const tn_tensor *x, int64_t offset, int64_t dim1, int64_t dim2);
/* The last dimension of x as a diagonal of new dims dim1 and dim2, zeros elsewhere. */
TN_API tn_tensor *tn_diag_embed(const tn_tensor *x, int64_t offset, int64_t dim1, int64_t dim2);
TN_API tn_tensor *tn_diag(const tn_tensor *x, int64_t diagonal); /* of a vector: the matrix; of a matrix: the vector */
TN_API tn_tensor *tn_diagflat(const tn_tensor *x, int64_t offset);
TN_API tn_tensor *tn_tril_indices(int64_t row, int64_t col, int64_t offset); /* [2, n] in i64; also triu */
TN_API tn_tensor *tn_triu_indices(int64_t row, int64_t col, int64_t offset);
/* `count` grids of the vectors' extents, in out[0 … count); indexing "xy": the first two dims exchanged. Source:
 * torch.meshgrid, whose default is "ij". */
TN_API tn_status tn_meshgrid(tn_tensor *const *tensors, int count, bool xy, tn_tensor **out);
TN_API tn_tensor *tn_cartesian_prod(tn_tensor *const *tensors, int count);
TN_API tn_tensor *tn_combinations(const tn_tensor *x, int64_t r, bool with_replacement);
TN_API tn_tensor *tn_block_diag(tn_tensor *const *tensors, int count);
/* Windows of `size` elements, `step` apart, along dim; a window is a new last dimension. A view.
 * Source: torch.Tensor.unfold. */
TN_API tn_tensor *tn_unfold(const tn_tensor *x, int64_t dim, int64_t size, int64_t step);
TN_API tn_tensor *tn_vander(const tn_tensor *x, int64_t n); /* powers 0 … n − 1 of x along a new last dim */

/* ---- products ---------------------------------------------------------------------------------------------------- */

/* Sum of products by Einstein's convention: "bij,bjk->bik", "ii", "...ij->...ji". Labels are letters; without "->" the
 * labels that occur once, in alphabetical order. Operands are multiplied from left to right, in pairs, as batched
 * matrix products, whose results have at most TN_MAX_RANK dims. Source: torch.einsum. */
TN_API tn_tensor *tn_einsum(const char *equation, tn_tensor *const *tensors, int count);
/* Sum over dims_x of x and dims_y of y. Source: torch.tensordot. */
TN_API tn_tensor *tn_tensordot(const tn_tensor *x, const tn_tensor *y, const int64_t *dims_x, int dims_x_count,
                               const int64_t *dims_y, int dims_y_count);
TN_API tn_tensor *tn_inner(const tn_tensor *x, const tn_tensor *y);
TN_API tn_tensor *tn_kron(const tn_tensor *x, const tn_tensor *y);
TN_API tn_tensor *tn_linalg_cross(const tn_tensor *x, const tn_tensor *y, int64_t dim);
TN_API tn_tensor *tn_bilinear(const tn_tensor *x1, const tn_tensor *x2, const tn_tensor *weight, const tn_tensor *bias);
TN_API tn_tensor *tn_linalg_matrix_power(const tn_tensor *x, int64_t n);
/* Taylor's series to degree 18, scaled and squared. NaN for matrices whose 1-norm is above 2048. */
TN_API tn_tensor *tn_linalg_matrix_exp(const tn_tensor *x);
/* The pseudo-inverse: singular values below rtol · the greatest one count as 0; rtol < 0: max(m, n) · eps.
 * First and second derivatives are right for all matrices whose rank does not change, also where singular values are
 * equal or 0; higher ones are not computed right. */
TN_API tn_tensor *tn_linalg_pinv(const tn_tensor *x, double rtol);
TN_API tn_tensor *tn_linalg_matrix_rank(const tn_tensor *x, double rtol); /* i64; rtol as for pinv */
/* The X [..., n, k] of least norm for which the norm of a·X - b is least, a [..., m, n], b [..., m, k], by the
 * pseudo-inverse: also for matrices without full rank. rtol as for pinv. Source: torch.linalg.lstsq, its solution. */
TN_API tn_tensor *tn_linalg_lstsq(const tn_tensor *a, const tn_tensor *b, double rtol);
/* X of P·L·U·X = B, from the factors of tn_linalg_lu of a square matrix. Source: torch.linalg.lu_solve. */
TN_API tn_tensor *tn_linalg_lu_solve(const tn_tensor *p, const tn_tensor *l, const tn_tensor *u, const tn_tensor *b);
/* Condition number in the 2-norm (p 2, −2), else the product of the norms of x and its inverse. */
TN_API tn_tensor *tn_linalg_cond(const tn_tensor *x, double p);
typedef enum tn_matrix_norm { TN_MATRIX_NORM_FRO, TN_MATRIX_NORM_NUC } tn_matrix_norm;
TN_API tn_tensor *tn_linalg_matrix_norm(const tn_tensor *x, tn_matrix_norm ord,
                                        bool keepdim); /* of the last two dims */
/* The same for ord 1, −1, 2, −2, INFINITY, −INFINITY. */
TN_API tn_tensor *tn_linalg_matrix_norm_of(const tn_tensor *x, double ord, bool keepdim);

/* The n-th derivative of digamma, n from 0 to 100; above 12 computed in f64. Infinite at 0, -1, -2 …
 * Source: torch.polygamma. */
TN_API tn_tensor *tn_polygamma(int64_t n, const tn_tensor *x);

/* ---- order statistics, running values ---------------------------------------------------------------------------- */

/* Values along dim; *indices, if not NULL, receives their places (i64). median: the lower one of two; NaN if there is
 * a NaN. nanmedian passes over NaN. mode: the most frequent value, the least of several. kthvalue counts k from 1. */
TN_API tn_tensor *tn_kthvalue(const tn_tensor *x, int64_t k, int64_t dim, bool keepdim, tn_tensor **indices);
TN_API tn_tensor *tn_median(const tn_tensor *x, int64_t dim, bool keepdim, tn_tensor **indices);
TN_API tn_tensor *tn_nanmedian(const tn_tensor *x, int64_t dim, bool keepdim, tn_tensor **indices);
TN_API tn_tensor *tn_mode(const tn_tensor *x, int64_t dim, bool keepdim, tn_tensor **indices);
typedef enum tn_quantile_mode {
    TN_QUANTILE_LINEAR,
    TN_QUANTILE_LOWER,
    TN_QUANTILE_HIGHER,
    TN_QUANTILE_MIDPOINT,
    TN_QUANTILE_NEAREST
} tn_quantile_mode;
/* Quantiles q (rank 0 or 1, in x's dtype) along dim: [size of q, …] or […]. NaN where q is not in [0, 1], and if a row
 * has NaN; nanquantile passes over them. */
TN_API tn_tensor *tn_quantile(const tn_tensor *x, const tn_tensor *q, int64_t dim, bool keepdim, tn_quantile_mode mode);
TN_API tn_tensor *tn_nanquantile(const tn_tensor *x, const tn_tensor *q, int64_t dim, bool keepdim,
                                 tn_quantile_mode mode);
TN_API tn_tensor *tn_cummax(const tn_tensor *x, int64_t dim, tn_tensor **indices); /* of equal ones the last */
TN_API tn_tensor *tn_cummin(const tn_tensor *x, int64_t dim, tn_tensor **indices);
TN_API tn_tensor *tn_logcumsumexp(const tn_tensor *x, int64_t dim);
TN_API tn_tensor *tn_diff(const tn_tensor *x, int64_t n, int64_t dim);
TN_API tn_tensor *tn_trapezoid(const tn_tensor *y, const tn_tensor *x, double dx, int64_t dim); /* x: NULL, or places */
TN_API tn_tensor *tn_cumulative_trapezoid(const tn_tensor *y, const tn_tensor *x, double dx, int64_t dim);
TN_API tn_tensor *tn_cov(const tn_tensor *x, int64_t correction); /* rows are variables */
TN_API tn_tensor *tn_corrcoef(const tn_tensor *x);
TN_API tn_tensor *tn_renorm(const tn_tensor *x, double p, int64_t dim, double maxnorm);

/* ---- distances and losses ---------------------------------------------------------------------------------------- */

TN_API tn_tensor *tn_pairwise_distance(const tn_tensor *x, const tn_tensor *y, double p, double eps, bool keepdim);
TN_API tn_tensor *tn_cdist(const tn_tensor *x, const tn_tensor *y,
                           double p);                     /* [..., n, d], [..., m, d] → [..., n, m] */
TN_API tn_tensor *tn_pdist(const tn_tensor *x, double p); /* [n, d] → [n (n − 1) / 2] */
TN_API tn_tensor *tn_cosine_embedding_loss(const tn_tensor *x1, const tn_tensor *x2, const tn_tensor *target,
                                           double margin, tn_reduction reduction);
TN_API tn_tensor *tn_triplet_margin_loss(const tn_tensor *anchor, const tn_tensor *positive, const tn_tensor *negative,
                                         double margin, double p, double eps, bool swap, tn_reduction reduction);
TN_API tn_tensor *tn_multi_margin_loss(const tn_tensor *x, const tn_tensor *target, const tn_tensor *weight, double p,
                                       double margin, tn_reduction reduction);
TN_API tn_tensor *tn_multilabel_margin_loss(const tn_tensor *x, const tn_tensor *target, tn_reduction reduction);
TN_API tn_tensor *tn_multilabel_soft_margin_loss(const tn_tensor *x, const tn_tensor *target, const tn_tensor *weight,
                                                 tn_reduction reduction);
/* Connectionist temporal classification: log_probs [time, batch, classes]; targets [batch, longest] of classes (i64);
 * lengths [batch] (i64). blank: the class that means "none". Mean: each loss divided by its target's length, then the
 * mean. zero_infinity: infinite losses (a target that does not fit its input) and their gradients are 0.
 * Source: Graves et al. 2006. */
TN_API tn_tensor *tn_ctc_loss(const tn_tensor *log_probs, const tn_tensor *targets, const tn_tensor *input_lengths,
                              const tn_tensor *target_lengths, int64_t blank, tn_reduction reduction,
                              bool zero_infinity);

/* ---- images and sequences: [batch, channels, size…] or without the batch ----------------------------------------- */

typedef enum tn_pad_mode { TN_PAD_REFLECT, TN_PAD_REPLICATE, TN_PAD_CIRCULAR } tn_pad_mode;
/* As tn_pad (pairs from the last dim on), with values of x outside it. */
TN_API tn_tensor *tn_pad_by(const tn_tensor *x, const int64_t *pads, int pad_count, tn_pad_mode mode);
typedef enum tn_interpolate_mode {
    TN_INTERPOLATE_NEAREST,
    TN_INTERPOLATE_NEAREST_EXACT,
    TN_INTERPOLATE_LINEAR, /* bilinear and trilinear, by the number of sizes */
    TN_INTERPOLATE_CUBIC,  /* PyTorch's bicubic, A = −0.75 */
    TN_INTERPOLATE_AREA,
    TN_INTERPOLATE_LINEAR_ANTIALIAS, /* PyTorch's antialias=True: the filter widens as the image shrinks */
    TN_INTERPOLATE_CUBIC_ANTIALIAS   /* the same with A = −0.5, as in Pillow */
} tn_interpolate_mode;
/* x [batch, channels, …] resized to `size` (1 to 3 of them). scales: NULL, or PyTorch's scale_factor of each axis,
 * which then replaces size / old size in the arithmetic. */
TN_API tn_tensor *tn_interpolate(const tn_tensor *x, const int64_t *size, int size_count, const double *scales,
                                 tn_interpolate_mode mode, bool align_corners);
TN_API tn_tensor *tn_pixel_shuffle(const tn_tensor *x, int64_t upscale_factor);
TN_API tn_tensor *tn_pixel_unshuffle(const tn_tensor *x, int64_t downscale_factor);
TN_API tn_tensor *tn_channel_shuffle(const tn_tensor *x, int64_t groups);
TN_API tn_tensor *tn_local_response_norm(const tn_tensor *x, int64_t size, double alpha, double beta, double k);
/* The windows of images as columns: [batch, channels · kernel, windows]. Source: torch.nn.functional.unfold, fold. */
TN_API tn_tensor *tn_im2col(const tn_tensor *x, const int64_t kernel[2], const int64_t dilation[2],
                            const int64_t padding[2], const int64_t stride[2]);
TN_API tn_tensor *tn_col2im(const tn_tensor *x, const int64_t size[2], const int64_t kernel[2],
                            const int64_t dilation[2], const int64_t padding[2], const int64_t stride[2]);
typedef enum tn_grid_mode { TN_GRID_BILINEAR, TN_GRID_NEAREST } tn_grid_mode;
typedef enum tn_grid_padding { TN_GRID_ZEROS, TN_GRID_BORDER, TN_GRID_REFLECTION } tn_grid_padding;
/* x [n, c, (d,) h, w] at the places grid [n, (od,) oh, ow, 2 or 3] in [−1, 1]. */
TN_API tn_tensor *tn_grid_sample(const tn_tensor *x, const tn_tensor *grid, tn_grid_mode mode, tn_grid_padding padding,
                                 bool align_corners);
TN_API tn_tensor *tn_affine_grid(const tn_tensor *theta, const int64_t *size, int size_count, bool align_corners);

/* Pools and convolutions over `axes` (1 to 3) last dims, with one number an axis in each array. NULL stands for a
 * stride
 * of kernel_size (pools) or 1, a padding of 0, a dilation of 1. */
TN_API tn_tensor *tn_max_pool(const tn_tensor *x, int axes, const int64_t *kernel_size, const int64_t *stride,
                              const int64_t *padding, const int64_t *dilation, bool ceil_mode, tn_tensor **indices);
TN_API tn_tensor *tn_avg_pool(const tn_tensor *x, int axes, const int64_t *kernel_size, const int64_t *stride,
                              const int64_t *padding, bool ceil_mode, bool count_include_pad, int64_t divisor_override);
TN_API tn_tensor *tn_lp_pool(const tn_tensor *x, int axes, double norm_type, const int64_t *kernel_size,
                             const int64_t *stride, bool ceil_mode);
/* output_size: an entry of −1 keeps that extent. */
TN_API tn_tensor *tn_adaptive_avg_pool(const tn_tensor *x, int axes, const int64_t *output_size);
TN_API tn_tensor *tn_adaptive_max_pool(const tn_tensor *x, int axes, const int64_t *output_size, tn_tensor **indices);
/* The inverse of max_pool: x's elements at `indices` of images of `size`, zeros elsewhere. */
TN_API tn_tensor *tn_max_unpool(const tn_tensor *x, const tn_tensor *indices, int axes, const int64_t *size);
TN_API tn_tensor *tn_conv3d(const tn_tensor *x, const tn_tensor *weight, const tn_tensor *bias, const int64_t *stride,
                            const int64_t *padding, const int64_t *dilation, int64_t groups);
TN_API tn_tensor *tn_conv_transpose1d(const tn_tensor *x, const tn_tensor *weight, const tn_tensor *bias,
                                      int64_t stride, int64_t padding, int64_t output_padding, int64_t groups,
                                      int64_t dilation);
TN_API tn_tensor *tn_conv_transpose3d(const tn_tensor *x, const tn_tensor *weight, const tn_tensor *bias,
                                      const int64_t *stride, const int64_t *padding, const int64_t *output_padding,
                                      int64_t groups, const int64_t *dilation);
typedef enum tn_bag_mode { TN_BAG_SUM, TN_BAG_MEAN, TN_BAG_MAX } tn_bag_mode;
/* Rows of weight [count, features] combined by bag: index [bags, n], or index [n] with the start of each bag in offsets
 * [bags] (evaluates). per_sample_weights (sum only) in index's shape, or NULL. Empty bags give 0. */
TN_API tn_tensor *tn_embedding_bag(const tn_tensor *index, const tn_tensor *weight, const tn_tensor *offsets,
                                   tn_bag_mode mode, const tn_tensor *per_sample_weights);

/* ---- Fourier transforms ------------------------------------------------------------------------------------------ */

/* Complex tensors have a last dimension of extent 2, the real and the imaginary part, as torch.view_as_real; `dim` and
 * `dims` count without it. n: points of the transform, to which x is cut or padded with zeros; −1: as many as there are
 * (irfft: 2 · (extent − 1)). Any length up to 2^24. Sums are f32's, in f64 f64's; half precision is computed in f32;
 * rfft takes integers and bool as f32. norm: what is scaled. Errors: TN_ERR_SHAPE, TN_ERR_DTYPE, TN_ERR_ARGUMENT.
 * Source: torch.fft. */
typedef enum tn_fft_norm {
    TN_FFT_BACKWARD, /* 1/n in the inverse */
    TN_FFT_ORTHO,    /* 1/sqrt(n) in both */
    TN_FFT_FORWARD   /* 1/n in the forward transform */
} tn_fft_norm;
TN_API tn_tensor *tn_fft(const tn_tensor *x, int64_t n, int64_t dim, tn_fft_norm norm);
TN_API tn_tensor *tn_ifft(const tn_tensor *x, int64_t n, int64_t dim, tn_fft_norm norm);
TN_API tn_tensor *tn_rfft(const tn_tensor *x, int64_t n, int64_t dim, tn_fft_norm norm);  /* real: n / 2 + 1 points */
TN_API tn_tensor *tn_irfft(const tn_tensor *x, int64_t n, int64_t dim, tn_fft_norm norm); /* of those: n real ones */
/* Over several dims; rfftn and irfftn halve the last of them. n: a length for each of the `count` dims, or NULL for the
 * tensor's own. dims: which dims, or NULL for the last `count` (fft2 is count = 2). */
TN_API tn_tensor *tn_fftn(const tn_tensor *x, const int64_t *n, const int64_t *dims, int count, tn_fft_norm norm);
TN_API tn_tensor *tn_ifftn(const tn_tensor *x, const int64_t *n, const int64_t *dims, int count, tn_fft_norm norm);
TN_API tn_tensor *tn_rfftn(const tn_tensor *x, const int64_t *n, const int64_t *dims, int count, tn_fft_norm norm);
TN_API tn_tensor *tn_irfftn(const tn_tensor *x, const int64_t *n, const int64_t *dims, int count, tn_fft_norm norm);
/* Spectra of frames of n_fft points, hop apart: x [length] or [batch, length] to [batch, n_fft / 2 + 1, frames, 2].
 * window: a vector of at most n_fft elements, in the middle of a frame; NULL: ones. center: x is padded with n_fft / 2
 * reflected points at both ends. normalized: divided by sqrt(n_fft). Signal and window are promoted.
 * Source: torch.stft, torch.istft. */
TN_API tn_tensor *tn_stft(const tn_tensor *x, int64_t n_fft, int64_t hop, const tn_tensor *window, bool center,
                          bool normalized);
/* The signal of such spectra, `length` points of it (−1: all); Inf or NaN where windows do not overlap. */
TN_API tn_tensor *tn_istft(const tn_tensor *x, int64_t n_fft, int64_t hop, const tn_tensor *window, bool center,
                           bool normalized, int64_t length);

/* ---- random numbers (f32) ---------------------------------------------------------------------------------------- */

/* num_samples places drawn by the weights p [classes] or [rows, classes]: i64. Without replacement a place is drawn
 * once (Efraimidis and Spirakis 2006); weights of 0 then come last. A row with a weight that is negative, NaN or
 * infinite, or whose weights are all 0, is an error (index -1) where indices are checked, and -1 elsewhere. */
TN_API tn_tensor *tn_multinomial(const tn_tensor *p, int64_t num_samples, bool replacement);
TN_API tn_tensor *tn_exponential(double lambd, const int64_t *shape, int rank);
TN_API tn_tensor *tn_cauchy(double median, double sigma, const int64_t *shape, int rank);
TN_API tn_tensor *tn_log_normal(double mean, double std, const int64_t *shape, int rank);
TN_API tn_tensor *tn_geometric(double p, const int64_t *shape, int rank);
TN_API tn_tensor *tn_rrelu(const tn_tensor *x, double lower, double upper, bool training);
/* Dropout of whole channels (dim 1 of [batch, channels, …]; dim 0 of [channels, …] if batched is false). */
TN_API tn_tensor *tn_feature_dropout(const tn_tensor *x, double p, bool training, bool batched);
TN_API tn_tensor *tn_alpha_dropout(const tn_tensor *x, double p, bool training);

#ifdef __cplusplus
}
#endif

#ifndef TN_NO_CALLER_LINES
#define tn_fft(...) (tn_at(__FILE__, __LINE__), tn_fft(__VA_ARGS__))
#define tn_ifft(...) (tn_at(__FILE__, __LINE__), tn_ifft(__VA_ARGS__))
#define tn_rfft(...) (tn_at(__FILE__, __LINE__), tn_rfft(__VA_ARGS__))
#define tn_irfft(...) (tn_at(__FILE__, __LINE__), tn_irfft(__VA_ARGS__))
#define tn_fftn(...) (tn_at(__FILE__, __LINE__), tn_fftn(__VA_ARGS__))
#define tn_ifftn(...) (tn_at(__FILE__, __LINE__), tn_ifftn(__VA_ARGS__))
#define tn_rfftn(...) (tn_at(__FILE__, __LINE__), tn_rfftn(__VA_ARGS__))
#define tn_irfftn(...) (tn_at(__FILE__, __LINE__), tn_irfftn(__VA_ARGS__))
#define tn_stft(...) (tn_at(__FILE__, __LINE__), tn_stft(__VA_ARGS__))
#define tn_istft(...) (tn_at(__FILE__, __LINE__), tn_istft(__VA_ARGS__))
#define tn_print(...) (tn_at(__FILE__, __LINE__), tn_print(__VA_ARGS__))
#define tn_index(...) (tn_at(__FILE__, __LINE__), tn_index(__VA_ARGS__))
#define tn_index_put(...) (tn_at(__FILE__, __LINE__), tn_index_put(__VA_ARGS__))
#define tn_nonzero(...) (tn_at(__FILE__, __LINE__), tn_nonzero(__VA_ARGS__))
#define tn_masked_select(...) (tn_at(__FILE__, __LINE__), tn_masked_select(__VA_ARGS__))
#define tn_masked_scatter(...) (tn_at(__FILE__, __LINE__), tn_masked_scatter(__VA_ARGS__))
#define tn_take(...) (tn_at(__FILE__, __LINE__), tn_take(__VA_ARGS__))
#define tn_put(...) (tn_at(__FILE__, __LINE__), tn_put(__VA_ARGS__))
#define tn_index_fill(...) (tn_at(__FILE__, __LINE__), tn_index_fill(__VA_ARGS__))
#define tn_index_copy(...) (tn_at(__FILE__, __LINE__), tn_index_copy(__VA_ARGS__))
#define tn_index_reduce(...) (tn_at(__FILE__, __LINE__), tn_index_reduce(__VA_ARGS__))
#define tn_scatter_mean(...) (tn_at(__FILE__, __LINE__), tn_scatter_mean(__VA_ARGS__))
#define tn_unique(...) (tn_at(__FILE__, __LINE__), tn_unique(__VA_ARGS__))
#define tn_unique_consecutive(...) (tn_at(__FILE__, __LINE__), tn_unique_consecutive(__VA_ARGS__))
#define tn_bincount(...) (tn_at(__FILE__, __LINE__), tn_bincount(__VA_ARGS__))
#define tn_histc(...) (tn_at(__FILE__, __LINE__), tn_histc(__VA_ARGS__))
#define tn_searchsorted(...) (tn_at(__FILE__, __LINE__), tn_searchsorted(__VA_ARGS__))
#define tn_bucketize(...) (tn_at(__FILE__, __LINE__), tn_bucketize(__VA_ARGS__))
#define tn_isin(...) (tn_at(__FILE__, __LINE__), tn_isin(__VA_ARGS__))
#define tn_repeat_interleave(...) (tn_at(__FILE__, __LINE__), tn_repeat_interleave(__VA_ARGS__))
#define tn_repeat_interleave_by(...) (tn_at(__FILE__, __LINE__), tn_repeat_interleave_by(__VA_ARGS__))
#define tn_clone(...) (tn_at(__FILE__, __LINE__), tn_clone(__VA_ARGS__))
#define tn_diagonal_scatter(...) (tn_at(__FILE__, __LINE__), tn_diagonal_scatter(__VA_ARGS__))
#define tn_select_scatter(...) (tn_at(__FILE__, __LINE__), tn_select_scatter(__VA_ARGS__))
#define tn_slice_scatter(...) (tn_at(__FILE__, __LINE__), tn_slice_scatter(__VA_ARGS__))
#define tn_as_strided_scatter(...) (tn_at(__FILE__, __LINE__), tn_as_strided_scatter(__VA_ARGS__))
#define tn_diagonal(...) (tn_at(__FILE__, __LINE__), tn_diagonal(__VA_ARGS__))
#define tn_diag_embed(...) (tn_at(__FILE__, __LINE__), tn_diag_embed(__VA_ARGS__))
#define tn_diag(...) (tn_at(__FILE__, __LINE__), tn_diag(__VA_ARGS__))
#define tn_diagflat(...) (tn_at(__FILE__, __LINE__), tn_diagflat(__VA_ARGS__))
#define tn_tril_indices(...) (tn_at(__FILE__, __LINE__), tn_tril_indices(__VA_ARGS__))
#define tn_triu_indices(...) (tn_at(__FILE__, __LINE__), tn_triu_indices(__VA_ARGS__))
#define tn_meshgrid(...) (tn_at(__FILE__, __LINE__), tn_meshgrid(__VA_ARGS__))
#define tn_cartesian_prod(...) (tn_at(__FILE__, __LINE__), tn_cartesian_prod(__VA_ARGS__))
#define tn_combinations(...) (tn_at(__FILE__, __LINE__), tn_combinations(__VA_ARGS__))
#define tn_block_diag(...) (tn_at(__FILE__, __LINE__), tn_block_diag(__VA_ARGS__))
#define tn_unfold(...) (tn_at(__FILE__, __LINE__), tn_unfold(__VA_ARGS__))
#define tn_vander(...) (tn_at(__FILE__, __LINE__), tn_vander(__VA_ARGS__))
#define tn_einsum(...) (tn_at(__FILE__, __LINE__), tn_einsum(__VA_ARGS__))
#define tn_tensordot(...) (tn_at(__FILE__, __LINE__), tn_tensordot(__VA_ARGS__))
#define tn_inner(...) (tn_at(__FILE__, __LINE__), tn_inner(__VA_ARGS__))
#define tn_kron(...) (tn_at(__FILE__, __LINE__), tn_kron(__VA_ARGS__))
#define tn_linalg_cross(...) (tn_at(__FILE__, __LINE__), tn_linalg_cross(__VA_ARGS__))
#define tn_bilinear(...) (tn_at(__FILE__, __LINE__), tn_bilinear(__VA_ARGS__))
#define tn_linalg_matrix_power(...) (tn_at(__FILE__, __LINE__), tn_linalg_matrix_power(__VA_ARGS__))
#define tn_linalg_matrix_exp(...) (tn_at(__FILE__, __LINE__), tn_linalg_matrix_exp(__VA_ARGS__))
#define tn_linalg_pinv(...) (tn_at(__FILE__, __LINE__), tn_linalg_pinv(__VA_ARGS__))
#define tn_linalg_lu_solve(...) (tn_at(__FILE__, __LINE__), tn_linalg_lu_solve(__VA_ARGS__))
#define tn_linalg_lstsq(...) (tn_at(__FILE__, __LINE__), tn_linalg_lstsq(__VA_ARGS__))
#define tn_polygamma(...) (tn_at(__FILE__, __LINE__), tn_polygamma(__VA_ARGS__))
#define tn_linalg_matrix_rank(...) (tn_at(__FILE__, __LINE__), tn_linalg_matrix_rank(__VA_ARGS__))
#define tn_linalg_cond(...) (tn_at(__FILE__, __LINE__), tn_linalg_cond(__VA_ARGS__))
#define tn_linalg_matrix_norm(...) (tn_at(__FILE__, __LINE__), tn_linalg_matrix_norm(__VA_ARGS__))
#define tn_linalg_matrix_norm_of(...) (tn_at(__FILE__, __LINE__), tn_linalg_matrix_norm_of(__VA_ARGS__))
#define tn_kthvalue(...) (tn_at(__FILE__, __LINE__), tn_kthvalue(__VA_ARGS__))
#define tn_median(...) (tn_at(__FILE__, __LINE__), tn_median(__VA_ARGS__))
#define tn_nanmedian(...) (tn_at(__FILE__, __LINE__), tn_nanmedian(__VA_ARGS__))
#define tn_mode(...) (tn_at(__FILE__, __LINE__), tn_mode(__VA_ARGS__))
#define tn_quantile(...) (tn_at(__FILE__, __LINE__), tn_quantile(__VA_ARGS__))
#define tn_nanquantile(...) (tn_at(__FILE__, __LINE__), tn_nanquantile(__VA_ARGS__))
#define tn_cummax(...) (tn_at(__FILE__, __LINE__), tn_cummax(__VA_ARGS__))
#define tn_cummin(...) (tn_at(__FILE__, __LINE__), tn_cummin(__VA_ARGS__))
#define tn_logcumsumexp(...) (tn_at(__FILE__, __LINE__), tn_logcumsumexp(__VA_ARGS__))
#define tn_diff(...) (tn_at(__FILE__, __LINE__), tn_diff(__VA_ARGS__))
#define tn_trapezoid(...) (tn_at(__FILE__, __LINE__), tn_trapezoid(__VA_ARGS__))
#define tn_cumulative_trapezoid(...) (tn_at(__FILE__, __LINE__), tn_cumulative_trapezoid(__VA_ARGS__))
#define tn_cov(...) (tn_at(__FILE__, __LINE__), tn_cov(__VA_ARGS__))
#define tn_corrcoef(...) (tn_at(__FILE__, __LINE__), tn_corrcoef(__VA_ARGS__))
#define tn_renorm(...) (tn_at(__FILE__, __LINE__), tn_renorm(__VA_ARGS__))
#define tn_pairwise_distance(...) (tn_at(__FILE__, __LINE__), tn_pairwise_distance(__VA_ARGS__))
#define tn_cdist(...) (tn_at(__FILE__, __LINE__), tn_cdist(__VA_ARGS__))
#define tn_pdist(...) (tn_at(__FILE__, __LINE__), tn_pdist(__VA_ARGS__))
#define tn_cosine_embedding_loss(...) (tn_at(__FILE__, __LINE__), tn_cosine_embedding_loss(__VA_ARGS__))
#define tn_triplet_margin_loss(...) (tn_at(__FILE__, __LINE__), tn_triplet_margin_loss(__VA_ARGS__))
#define tn_multi_margin_loss(...) (tn_at(__FILE__, __LINE__), tn_multi_margin_loss(__VA_ARGS__))
#define tn_multilabel_margin_loss(...) (tn_at(__FILE__, __LINE__), tn_multilabel_margin_loss(__VA_ARGS__))
#define tn_multilabel_soft_margin_loss(...) (tn_at(__FILE__, __LINE__), tn_multilabel_soft_margin_loss(__VA_ARGS__))
#define tn_ctc_loss(...) (tn_at(__FILE__, __LINE__), tn_ctc_loss(__VA_ARGS__))
#define tn_pad_by(...) (tn_at(__FILE__, __LINE__), tn_pad_by(__VA_ARGS__))
#define tn_interpolate(...) (tn_at(__FILE__, __LINE__), tn_interpolate(__VA_ARGS__))
#define tn_pixel_shuffle(...) (tn_at(__FILE__, __LINE__), tn_pixel_shuffle(__VA_ARGS__))
#define tn_pixel_unshuffle(...) (tn_at(__FILE__, __LINE__), tn_pixel_unshuffle(__VA_ARGS__))
#define tn_channel_shuffle(...) (tn_at(__FILE__, __LINE__), tn_channel_shuffle(__VA_ARGS__))
#define tn_local_response_norm(...) (tn_at(__FILE__, __LINE__), tn_local_response_norm(__VA_ARGS__))
#define tn_im2col(...) (tn_at(__FILE__, __LINE__), tn_im2col(__VA_ARGS__))
#define tn_col2im(...) (tn_at(__FILE__, __LINE__), tn_col2im(__VA_ARGS__))
#define tn_grid_sample(...) (tn_at(__FILE__, __LINE__), tn_grid_sample(__VA_ARGS__))
#define tn_affine_grid(...) (tn_at(__FILE__, __LINE__), tn_affine_grid(__VA_ARGS__))
#define tn_max_pool(...) (tn_at(__FILE__, __LINE__), tn_max_pool(__VA_ARGS__))
#define tn_avg_pool(...) (tn_at(__FILE__, __LINE__), tn_avg_pool(__VA_ARGS__))
#define tn_lp_pool(...) (tn_at(__FILE__, __LINE__), tn_lp_pool(__VA_ARGS__))
#define tn_adaptive_avg_pool(...) (tn_at(__FILE__, __LINE__), tn_adaptive_avg_pool(__VA_ARGS__))
#define tn_adaptive_max_pool(...) (tn_at(__FILE__, __LINE__), tn_adaptive_max_pool(__VA_ARGS__))
#define tn_max_unpool(...) (tn_at(__FILE__, __LINE__), tn_max_unpool(__VA_ARGS__))
#define tn_conv3d(...) (tn_at(__FILE__, __LINE__), tn_conv3d(__VA_ARGS__))
#define tn_conv_transpose1d(...) (tn_at(__FILE__, __LINE__), tn_conv_transpose1d(__VA_ARGS__))
#define tn_conv_transpose3d(...) (tn_at(__FILE__, __LINE__), tn_conv_transpose3d(__VA_ARGS__))
#define tn_embedding_bag(...) (tn_at(__FILE__, __LINE__), tn_embedding_bag(__VA_ARGS__))
#define tn_multinomial(...) (tn_at(__FILE__, __LINE__), tn_multinomial(__VA_ARGS__))
#define tn_exponential(...) (tn_at(__FILE__, __LINE__), tn_exponential(__VA_ARGS__))
#define tn_cauchy(...) (tn_at(__FILE__, __LINE__), tn_cauchy(__VA_ARGS__))
#define tn_log_normal(...) (tn_at(__FILE__, __LINE__), tn_log_normal(__VA_ARGS__))
#define tn_geometric(...) (tn_at(__FILE__, __LINE__), tn_geometric(__VA_ARGS__))
#define tn_rrelu(...) (tn_at(__FILE__, __LINE__), tn_rrelu(__VA_ARGS__))
#define tn_feature_dropout(...) (tn_at(__FILE__, __LINE__), tn_feature_dropout(__VA_ARGS__))
#define tn_alpha_dropout(...) (tn_at(__FILE__, __LINE__), tn_alpha_dropout(__VA_ARGS__))
#endif

#endif
