/* blas.c — a stand-in for OpenBLAS: plain loops in f64 that round once, so its answers are right but not our bits.
 *
 *   -DWRONG      the products are wrong
 *   -DCRASHES    the first product ends the process
 *   -DPREFIXED   names and integers as in the wheels for 64 bits
 *   -DWIDE       integers of 64 bits under the plain names; wrong for those who do not find out first
 *   -DREFUSES    a oneDNN that multiplies nothing but the smallest
 *   -DFACTORS    has LAPACK's Cholesky; eigenvalues, of small matrices alone; and systems, which are wrong */
#include <stddef.h>
#include <stdint.h>

#ifdef PREFIXED
#define NAME(name) scipy_##name##64_
typedef int64_t integer;
#else
#define NAME(name) name
#ifdef WIDE
typedef int64_t integer;
#else
typedef int32_t integer;
#endif
#endif

#ifdef CRASHES
#define CRASH __builtin_trap()
#else
#define CRASH
#endif

#if defined(WRONG) || defined(WIDE)
static int offset = 1;
#else
static int offset;
#endif

#define PRODUCT(name, real)                                                                                \
    void NAME(name)(int order, int ta, int tb, integer m, integer n, integer k, real alpha, const real *a, \
                    integer lda, const real *b, integer ldb, real beta, real *c, integer ldc) {            \
        CRASH;                                                                                             \
        for (integer i = 0; i < m && order == 101 && beta == 0; i++)                                       \
            for (integer j = 0; j < n; j++) {                                                              \
                double sum = offset;                                                                       \
                for (integer l = 0; l < k; l++)                                                            \
                    sum += (double)a[ta == 112 ? l * lda + i : i * lda + l] *                              \
                           (double)b[tb == 112 ? j * ldb + l : l * ldb + j];                               \
                c[i * ldc + j] = (real)(alpha * sum);                                                      \
            }                                                                                              \
    }

PRODUCT(cblas_sgemm, float)
#ifndef REFUSES
PRODUCT(cblas_dgemm, double)
#endif

#ifdef WIDE
size_t cblas_isamax(integer n, const float *x, integer incx) {
    (void)x, (void)incx;
    offset = n > 0;
    return 0;
}
#endif

#ifdef REFUSES
int dnnl_sgemm(char ta, char tb, int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda,
               const float *b, int64_t ldb, float beta, float *c, int64_t ldc) {
    if (m > 5) return 1;
    cblas_sgemm(101, ta == 'T' ? 112 : 111, tb == 'T' ? 112 : 111, (integer)m, (integer)n, (integer)k, alpha, a,
                (integer)lda, b, (integer)ldb, beta, c, (integer)ldc);
    return 0;
}
#endif

#ifdef FACTORS
#include <math.h>

/* By columns: the upper triangle U with UᵀU = a. */
void dpotrf_(const char *uplo, const integer *n, double *a, const integer *lda, integer *info, size_t length) {
    (void)length;
    integer ld = *lda;
    *info = *uplo == 'U' ? 0 : -1;
    for (integer j = 0; j < *n && *info == 0; j++)
        for (integer i = 0; i <= j; i++) {
            double rest = a[j * ld + i];
            for (integer l = 0; l < i; l++)
                rest -= a[i * ld + l] * a[j * ld + l];
            if (i == j && !(rest > 0)) *info = j + 1;
            a[j * ld + i] = i == j ? sqrt(rest) : rest / a[i * ld + i];
        }
}

/* Jacobi's rotations, then in order. */
void dsyevd_(const char *jobz, const char *uplo, const integer *size, double *a, const integer *lda, double *w,
             double *work, const integer *lwork, integer *iwork, const integer *liwork, integer *info,
             size_t jobz_length, size_t uplo_length) {
    integer n = *size;
    (void)lda, (void)iwork, (void)jobz_length, (void)uplo_length;
    *info = *jobz != 'V' || *uplo != 'U' || *lwork < 2 * n * n || *liwork < 5 * n ? -1 : n > 6;
    if (*info != 0) return;
    for (integer i = 0; i < n; i++)
        for (integer j = 0; j < n; j++) {
            work[i * n + j] = a[(i > j ? i : j) * n + (i < j ? i : j)];
            a[i * n + j] = i == j;
        }
    for (int sweep = 0; sweep < 30; sweep++)
        for (integer p = 0; p < n; p++)
            for (integer q = p + 1; q < n; q++) {
                double angle = 0.5 * atan2(2 * work[p * n + q], work[q * n + q] - work[p * n + p]);
                double c = cos(angle), s = sin(angle);
                for (integer i = 0; i < n; i++) {
                    double x = work[i * n + p], y = work[i * n + q];
                    work[i * n + p] = c * x - s * y;
                    work[i * n + q] = s * x + c * y;
                }
                for (integer i = 0; i < n; i++) {
                    double x = work[p * n + i], y = work[q * n + i], u = a[p * n + i], v = a[q * n + i];
                    work[p * n + i] = c * x - s * y;
                    work[q * n + i] = s * x + c * y;
                    a[p * n + i] = c * u - s * v;
                    a[q * n + i] = s * u + c * v;
                }
            }
    for (integer i = 0; i < n; i++)
        w[i] = work[i * n + i];
    for (integer i = 0; i < n; i++)
        for (integer j = i + 1; j < n; j++) {
            if (w[j] >= w[i]) continue;
            double t = w[i];
            w[i] = w[j];
            w[j] = t;
            for (integer l = 0; l < n; l++) {
                t = a[i * n + l];
                a[i * n + l] = a[j * n + l];
                a[j * n + l] = t;
            }
        }
}

void dgetrf_(const integer *m, const integer *n, double *a, const integer *lda, integer *ipiv, integer *info) {
    (void)m, (void)a, (void)lda;
    for (integer i = 0; i < *n; i++)
        ipiv[i] = i + 1;
    *info = 0;
}

void dgetrs_(const char *trans, const integer *n, const integer *nrhs, const double *a, const integer *lda,
             const integer *ipiv, double *b, const integer *ldb, integer *info, size_t length) {
    (void)trans, (void)n, (void)nrhs, (void)a, (void)lda, (void)ipiv, (void)b, (void)ldb, (void)length;
    *info = 0;
}
#endif

static int threads = 64;
void NAME(openblas_set_num_threads)(int n) { threads = n; }
int NAME(openblas_get_parallel)(void) { return 1; }
const char *NAME(openblas_get_config)(void) { return threads == 1 ? "a stand-in, one thread" : "a stand-in, threads"; }
