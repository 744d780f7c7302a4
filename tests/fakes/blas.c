/* blas.c — a stand-in for OpenBLAS: plain loops in f64 that round once, so its answers are right but not our bits.
 *
 *   -DWRONG      the products are wrong
 *   -DCRASHES    the first product ends the process
 *   -DPREFIXED   names and integers as in the wheels for 64 bits */
#include <stdint.h>

#ifdef PREFIXED
#define NAME(name) scipy_##name##64_
typedef int64_t integer;
#else
#define NAME(name) name
typedef int32_t integer;
#endif

#ifdef CRASHES
#define CRASH __builtin_trap()
#else
#define CRASH
#endif

#ifdef WRONG
enum { OFFSET = 1 };
#else
enum { OFFSET = 0 };
#endif

#define PRODUCT(name, real)                                                                                \
    void NAME(name)(int order, int ta, int tb, integer m, integer n, integer k, real alpha, const real *a, \
                    integer lda, const real *b, integer ldb, real beta, real *c, integer ldc) {            \
        CRASH;                                                                                             \
        for (integer i = 0; i < m && order == 101 && beta == 0; i++)                                       \
            for (integer j = 0; j < n; j++) {                                                              \
                double sum = OFFSET;                                                                       \
                for (integer l = 0; l < k; l++)                                                            \
                    sum += (double)a[ta == 112 ? l * lda + i : i * lda + l] *                              \
                           (double)b[tb == 112 ? j * ldb + l : l * ldb + j];                               \
                c[i * ldc + j] = (real)(alpha * sum);                                                      \
            }                                                                                              \
    }

PRODUCT(cblas_sgemm, float)
PRODUCT(cblas_dgemm, double)

static int threads = 64;
void NAME(openblas_set_num_threads)(int n) { threads = n; }
int NAME(openblas_get_parallel)(void) { return 1; }
const char *NAME(openblas_get_config)(void) { return threads == 1 ? "a stand-in, one thread" : "a stand-in, threads"; }
