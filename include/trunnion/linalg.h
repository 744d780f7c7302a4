/* linalg.h — factorizations with several results: PyTorch's torch.linalg of the same names. Those with one result
 * (linalg_solve, linalg_cholesky, linalg_inv, linalg_det …) are in ops.h.
 *
 * All take matrices [..., m, n] in f32 or f64 (integers are cast to f32) and compute in f64 on the CPU, also for a
 * tensor on another device. The same input gives the same bits for any number of threads (with a library,
 * tn_set_library, signs and order are still as stated here, but not the bits). Each result is a new handle in *pointer,
 * freed by the caller; NULL: not needed. On failure the results are error tensors (TN_ERR_SHAPE, TN_ERR_DTYPE).
 * Infinities or NaN in a matrix make all of its results NaN. Gradients of any order, through all results; they are
 * infinite or NaN where two eigenvalues or singular values are equal, or R is singular.
 *
 * Threads: as in ops.h. Source: Golub and Van Loan, Matrix Computations. */
#ifndef TRUNNION_LINALG_H
#define TRUNNION_LINALG_H

#include "trunnion/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* QR factorization x = Q·R: *q [..., m, k] with orthonormal columns, *r [..., k, n] upper triangular, k = min(m, n)
 * (PyTorch's mode "reduced"). The diagonal of R is not negative, so the result is unique (in PyTorch the signs depend
 * on the library). Source: torch.linalg.qr. */
TN_API void tn_linalg_qr(const tn_tensor *x, tn_tensor **q, tn_tensor **r);

/* LU factorization x = P·L·U with partial pivoting: *p [..., m, m] a permutation, *l
 * [..., m, k] lower triangular with ones on the diagonal, *u [..., k, n] upper triangular, k = min(m, n). With
 * tn_linalg_lu_solve (functions.h) one factorization serves several systems. Gradients need a leading k × k part of
 * P⁻¹·x that is not singular. Source: torch.linalg.lu. */
TN_API void tn_linalg_lu(const tn_tensor *x, tn_tensor **p, tn_tensor **l, tn_tensor **u);

/* Eigenvalues and eigenvectors of a symmetric x [..., n, n]; only its lower triangle is read (PyTorch's UPLO "L"):
 * *values [..., n] ascending; *vectors [..., n, n], columns of length 1 whose element of largest magnitude is positive
 * (in PyTorch the sign depends on the library). The gradient is symmetric. Source: torch.linalg.eigh. */
TN_API void tn_linalg_eigh(const tn_tensor *x, tn_tensor **values, tn_tensor **vectors);

/* Eigenvalues and eigenvectors of any square x [..., n, n], as complex numbers whose real and imaginary parts are the
 * last dimension (as in tn_fft, functions.h): *values [..., n, 2] by ascending real part (PyTorch: in any order), pairs
 * next to each other, the positive imaginary part first; *vectors [..., n, n, 2], columns of length 1 whose element of
 * largest magnitude is real and positive (in PyTorch only real). A matrix with fewer than n independent eigenvectors
 * repeats some. Gradients are those of functions that do not depend on the phase of a vector, as in PyTorch, which
 * refuses others. Source: torch.linalg.eig. */
TN_API void tn_linalg_eig(const tn_tensor *x, tn_tensor **values, tn_tensor **vectors);

/* Singular value decomposition x = U·diag(S)·Vᵀ: *u [..., m, k], *s [..., k] descending, *vh [..., k, n],
 * k = min(m, n). In each of these columns of U the element of largest magnitude is positive. full_matrices: *u
 * [..., m, m] and *vh [..., n, n] are completed to orthogonal matrices; the additional columns and rows are an
 * arbitrary basis, as in PyTorch. Source: torch.linalg.svd. */
TN_API void tn_linalg_svd(const tn_tensor *x, bool full_matrices, tn_tensor **u, tn_tensor **s, tn_tensor **vh);

/* Sign and logarithm of the determinant of a square x [..., n, n]: *sign [...] is 1, -1 or 0, *logabsdet [...] the
 * natural logarithm of its absolute value, -infinity for a singular matrix. Source: torch.linalg.slogdet. */
TN_API void tn_linalg_slogdet(const tn_tensor *x, tn_tensor **sign, tn_tensor **logabsdet);

#ifdef __cplusplus
}
#endif

#ifndef TN_NO_CALLER_LINES
#define tn_linalg_qr(...) (tn_at(__FILE__, __LINE__), tn_linalg_qr(__VA_ARGS__))
#define tn_linalg_lu(...) (tn_at(__FILE__, __LINE__), tn_linalg_lu(__VA_ARGS__))
#define tn_linalg_eigh(...) (tn_at(__FILE__, __LINE__), tn_linalg_eigh(__VA_ARGS__))
#define tn_linalg_eig(...) (tn_at(__FILE__, __LINE__), tn_linalg_eig(__VA_ARGS__))
#define tn_linalg_svd(...) (tn_at(__FILE__, __LINE__), tn_linalg_svd(__VA_ARGS__))
#define tn_linalg_slogdet(...) (tn_at(__FILE__, __LINE__), tn_linalg_slogdet(__VA_ARGS__))
#endif

#endif
