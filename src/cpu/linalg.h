/* linalg.h — linear systems, factorizations and eigenvalues of batches of matrices: own kernels, and LAPACK's.
 *
 * Everything is computed in f64 and rounded once, f32 included; one matrix is one thread's work, so results have the
 * same bits for any number of threads. Matrices are row-major and contiguous. What is not defined (a singular system, a
 * matrix that is not positive definite, NaN in it) comes out as NaN or infinity, never as an error: a batch's other
 * matrices are none the worse for it. Where mathematics leaves a sign open it is fixed: see below. */
#ifndef TN_LINALG_H
#define TN_LINALG_H

#include "base/base.h"
#include "cpu/blas.h"

typedef enum tn_linalg_kind {
    /* a [n, n] symmetric, of which the lower triangle is read: L [n, n] with L·Lᵀ = a, above the diagonal 0; all NaN
     * when a is not positive definite */
    TN_LINALG_CHOLESKY,
    /* a [n, n], b [n, k]: x [n, k] with a·x = b, by elimination with exchanges of rows */
    TN_LINALG_SOLVE,
    /* the same of a triangular a: only that triangle is read */
    TN_LINALG_SOLVE_LOWER,
    TN_LINALG_SOLVE_UPPER,
    /* a [n, n]: three numbers, its determinant, the sign of that (0 when it is 0) and the logarithm of its size */
    TN_LINALG_DETERMINANT,
    /* a [m, n], k = min(m, n): Q [m, k] with orthonormal columns and R [k, n], 0 below the diagonal, one behind the
     * other; a = Q·R, no diagonal element of R negative */
    TN_LINALG_QR,
    /* a [n, n] symmetric, of which the lower triangle is read: [n + 1, n], the eigenvalues ascending, then the
     * eigenvectors as columns; in each, the element of the greatest size (the first of them) is positive */
    TN_LINALG_EIGH,
    /* a [m, n], k = min(m, n): U [m, k], the singular values [k] descending, Vᵀ [k, n], one behind the other;
     * a = U·diag(S)·Vᵀ, signs of U's columns as those of eigenvectors */
    TN_LINALG_SVD,
    TN_LINALG_KINDS
} tn_linalg_kind;

typedef struct tn_linalg_args {
    tn_linalg_kind kind;
    tn_dtype dtype;                 /* TN_F32 or TN_F64, of everything */
    int64_t batch, m, n, k;         /* m = n where a is square; k: columns of b, where there is a b */
    const struct tn_lapack *lapack; /* computes instead (below); NULL: our own functions */
    const void *a, *b;              /* b: systems only; each matrix of a has one of its own */
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
void tn_eigh_matrix(const tn_linalg_matrix *x);
void tn_svd_matrix(const tn_linalg_matrix *x);

/* Infinities and NaN in: NaN everywhere out. false: all is well. lower: only that triangle counts. */
bool tn_linalg_is_lost(const tn_linalg_matrix *x, bool lower, int64_t result);

/* The result of TN_LINALG_DETERMINANT from an eliminated a, of which the diagonal is read, and the exchanges' sign. */
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

/* What linalg.c calls of it. Every tn_lapack begins with these. */
typedef struct tn_lapack_calls {
    /* Numbers in f64 that it needs beside a, b and the result. */
    int64_t (*work)(const tn_lapack *l, tn_linalg_kind kind, int64_t m, int64_t n, int64_t k);
    /* false: it did not converge; a and b are lost, and the result is not to be used. */
    bool (*run)(const tn_lapack *l, tn_linalg_kind kind, const tn_linalg_matrix *x);
} tn_lapack_calls;
static inline const tn_lapack_calls *tn_lapack_calls_of(const tn_lapack *l) { return (const tn_lapack_calls *)l; }

/* What this library has; NULL: nothing. When it is first asked for, each factorization is compared with ours on small
 * matrices, and what is wrong there is never used. Safe from any thread. */
const tn_lapack *tn_lapack_of(const tn_blas *library);
/* Whether it computes this kind, and matrices of this size are large enough to gain from it. */
bool tn_lapack_takes(const tn_lapack *l, tn_linalg_kind kind, int64_t m, int64_t n, int64_t k);

#endif
