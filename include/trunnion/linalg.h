/* linalg.h — factorizations with several results: PyTorch's torch.linalg of the same names. Those with one result
 * (linalg_solve, linalg_cholesky, linalg_inv, linalg_det …) are in ops.h.
 *
 * All take matrices [..., m, n] in f32 or f64 (integers are cast to f32) and compute in f64, on the processor; for a
 * tensor on another device the host does it. The same input gives the same bits, for any number of threads (unless a
 * library computes, tn_set_library: then signs and order stay as they are said here, bits do not). Each result
 * is written to where its pointer says and is the caller's to free; NULL leaves it out. A wrong argument yields error
 * tensors. Infinities or NaN in a matrix make all of its results NaN. Gradients of any order, through all results; they
 * are infinite or NaN where two eigenvalues or singular values are equal, or R is singular.
 *
 * Threads: as ops.h. Source: Golub and Van Loan, Matrix Computations. */
#ifndef TRUNNION_LINALG_H
#define TRUNNION_LINALG_H

#include "trunnion/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* x = Q·R: *q [..., m, k] with orthonormal columns, *r [..., k, n] with zeros below the diagonal, k = min(m, n)
 * (PyTorch's mode "reduced"). No element of R's diagonal is negative, so the result is the only one (PyTorch leaves
 * the signs to its library). */
TN_API void tn_linalg_qr(const tn_tensor *x, tn_tensor **q, tn_tensor **r);

/* Symmetric x [..., n, n], of which the lower triangle is read (PyTorch's UPLO "L"): *values [..., n] ascending,
 * *vectors [..., n, n], as columns of length 1 whose element of the greatest size is positive (PyTorch leaves the sign
 * to its library). The gradient is symmetric. */
TN_API void tn_linalg_eigh(const tn_tensor *x, tn_tensor **values, tn_tensor **vectors);

/* x = U·diag(S)·Vᵀ: *u [..., m, k], *s [..., k] descending, *vh [..., k, n], k = min(m, n). In each of these columns
 * of U the element of the greatest size is positive. full_matrices: *u [..., m, m] and *vh [..., n, n] are completed
 * to orthogonal matrices; their further columns and rows are any such basis, as in PyTorch. */
TN_API void tn_linalg_svd(const tn_tensor *x, bool full_matrices, tn_tensor **u, tn_tensor **s, tn_tensor **vh);

/* Square x [..., n, n]: *sign [...] is 1, -1 or 0, *logabsdet [...] the logarithm of the determinant's size, which is
 * -infinity for a singular matrix. */
TN_API void tn_linalg_slogdet(const tn_tensor *x, tn_tensor **sign, tn_tensor **logabsdet);

#ifdef __cplusplus
}
#endif

#ifndef TN_NO_CALLER_LINES
#define tn_linalg_qr(...) (tn_at(__FILE__, __LINE__), tn_linalg_qr(__VA_ARGS__))
#define tn_linalg_eigh(...) (tn_at(__FILE__, __LINE__), tn_linalg_eigh(__VA_ARGS__))
#define tn_linalg_svd(...) (tn_at(__FILE__, __LINE__), tn_linalg_svd(__VA_ARGS__))
#define tn_linalg_slogdet(...) (tn_at(__FILE__, __LINE__), tn_linalg_slogdet(__VA_ARGS__))
#endif

#endif
