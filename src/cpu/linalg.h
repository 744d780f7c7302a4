/* linalg.h — linear systems, factorizations and eigenvalues of batches of matrices: own kernels, and LAPACK's.
 *
 * Everything is computed in f64 and rounded once, f32 included. Each matrix is computed by one thread, so results have
 * the same bits for any number of threads. Matrices are row-major and contiguous. Undefined results (a singular system,
 * a matrix that is not positive definite or contains NaN) are NaN or infinity, never an error, and do not affect the
 * other matrices of the batch. Signs that mathematics leaves open are fixed as stated below. */
#ifndef TN_LINALG_H
#define TN_LINALG_H

#include "base/base.h"
#include "cpu/blas.h"

typedef enum tn_linalg_kind {
    /* a [n, n] symmetric, only the lower triangle is read: L [n, n] with L·Lᵀ = a, 0 above the diagonal; all NaN if a
     * is not positive definite */
    TN_LINALG_CHOLESKY,
    /* a [n, n], b [n, k]: x [n, k] with a·x = b, by elimination with exchanges of rows */
    TN_LINALG_SOLVE,
    /* the same for a triangular a: only that triangle is read */
    TN_LINALG_SOLVE_LOWER,
    TN_LINALG_SOLVE_UPPER,
    /* a [n, n]: three numbers, its determinant, the sign of that (0 when it is 0) and the logarithm of its size */
    TN_LINALG_DETERMINANT,
    /* a [m, n]: L below the diagonal, whose own is 1, and U, in one matrix [m, n]; then the permutation P [m, m]; a =
     * P·L·U, pivots are the greatest of their column */
    TN_LINALG_LU,
    /* a [m, n], k = min(m, n): Q [m, k] with orthonormal columns, then R [k, n], 0 below the diagonal; a = Q·R, no
     * diagonal element of R negative */
    TN_LINALG_QR,
    /* a [n, n] symmetric, only the lower triangle is read: [n + 1, n], the eigenvalues ascending, then the eigenvectors
     * as columns; in each, the element of greatest magnitude (the first of them) is positive */
    TN_LINALG_EIGH,
    /* a [n, n]: [n, 2], the eigenvalues by real part, pairs with the positive imaginary part first; then [n, n, 2], the
     * eigenvectors as columns; in each, the element of greatest magnitude (the first of them) is positive */
    TN_LINALG_EIG,
    /* a [m, n], k = min(m, n): U [m, k], the singular values [k] descending, Vᵀ [k, n], one after the other; a =
     * U·diag(S)·Vᵀ, signs of U's columns as for eigenvectors */
    TN_LINALG_SVD,
    TN_LINALG_KINDS
} tn_linalg_kind;

typedef struct tn_linalg_args {
    tn_linalg_kind kind;
    tn_dtype dtype;                 /* TN_F32 or TN_F64, of everything */
    int64_t batch, m, n, k;         /* m = n if a is square; k: columns of b, if there is a b */
    const struct tn_lapack *lapack; /* used instead of our own functions (below), unless NULL */
    const void *a, *b;              /* b: systems only; one for each matrix of a */
    void *out;
    void *workspace; /* tn_linalg_workspace bytes, 64-byte aligned */
} tn_linalg_args;

/* Elements of one matrix's result. */
int64_t tn_linalg_result(tn_linalg_kind kind, int64_t m, int64_t n, int64_t k);
/* `threads`: tn_threads() when it will run, or more. */
size_t tn_linalg_workspace(const tn_linalg_args *args, int threads);
/* Cannot fail: all memory is given. */
void tn_linalg(const tn_linalg_args *args);

/* ---- inside cpu/: one matrix in f64; `work` holds the elements that tn_linalg_workspace counts ------------------- */

typedef struct tn_linalg_matrix {
    int64_t m, n, k;
    double *a, *b; /* may be overwritten */
    double *out, *work;
} tn_linalg_matrix;
void tn_linalg_own(tn_linalg_kind kind, const tn_linalg_matrix *x);

/* TN_LINALG_EIG (linalg_eig.c) */
void tn_linalg_eig_matrix(const tn_linalg_matrix *x);
int64_t tn_linalg_eig_work(int64_t n);

/* Infinities and NaN in: NaN everywhere out. false: all is well. lower: only that triangle counts. */
bool tn_linalg_is_lost(const tn_linalg_matrix *x, bool lower, int64_t result);

/* The result of TN_LINALG_DETERMINANT from the diagonal of an eliminated a and the sign of the row exchanges. */
void tn_linalg_determinant(const tn_linalg_matrix *x, double sign);
/* Of a vector: -1 when its element of the greatest size (of equal ones the first) is negative, else 1. */
double tn_linalg_sign(const double *x, int64_t n, int64_t stride);

static inline double tn_linalg_dot(const double *x, const double *y, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * y[i];
    return sum;
}
static inline void tn_linalg_add(double *x, double factor, const double *y, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        x[i] += factor * y[i];
}
static inline void tn_linalg_scale(double *x, double factor, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        x[i] *= factor;
}

/* ==== LAPACK inside a BLAS library ================================================================================ */
/* Used only when a library was requested, as for products (cpu/blas.h). The results keep the conventions stated above,
 * including signs and order, but not the bits. A library computes one matrix on the calling thread; our own pool
 * divides batches. */

typedef struct tn_lapack tn_lapack; /* lives as long as the process */

/* The calls that linalg.c makes. Every tn_lapack begins with these. */
typedef struct tn_lapack_calls {
    /* Numbers in f64 that it needs besides a, b and the result. */
    int64_t (*work)(const tn_lapack *l, tn_linalg_kind kind, int64_t m, int64_t n, int64_t k);
    /* false: it did not converge; a and b are lost, and the result is not to be used. */
    bool (*run)(const tn_lapack *l, tn_linalg_kind kind, const tn_linalg_matrix *x);
} tn_lapack_calls;
static inline const tn_lapack_calls *tn_lapack_calls_of(const tn_lapack *l) { return (const tn_lapack_calls *)l; }

/* The functions of this library; NULL: none. On first use each factorization is compared with ours on small matrices,
 * and one with wrong results is never used. Thread-safe. */
const tn_lapack *tn_lapack_of(const tn_blas *library);
/* Whether it computes this kind, and matrices of this size are large enough to gain from it. */
bool tn_lapack_takes(const tn_lapack *l, tn_linalg_kind kind, int64_t m, int64_t n, int64_t k);

#endif
