/* blas.c — a stand-in for OpenBLAS: plain loops in f64 that round once, so its answers are right but not our bits.
 *
 *   -DWRONG      the products are wrong
 *   -DCRASHES    the first product ends the process
 *   -DPREFIXED   names and integers as in the wheels for 64 bits
 *   -DWIDE       integers of 64 bits under the plain names; wrong for those who do not find out first
 *   -DREFUSES    a oneDNN that multiplies nothing but the smallest */
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

static int threads = 64;
void NAME(openblas_set_num_threads)(int n) { threads = n; }
int NAME(openblas_get_parallel)(void) { return 1; }
const char *NAME(openblas_get_config)(void) { return threads == 1 ? "a stand-in, one thread" : "a stand-in, threads"; }
