/* lapack.h — factorizations by the LAPACK inside a BLAS library of the system, instead of our own.
 *
 * As products, only when somebody asked for a library (kern/blas.h): the results keep every promise of kern/linalg.h,
 * signs and order included, but not our bits. A library computes one matrix on the thread that calls it; batches are
 * cut by our own pool. */
#ifndef TN_KERN_LAPACK_H
#define TN_KERN_LAPACK_H

#include "kern/blas.h"
#include "kern/linalg.h"

typedef struct tn_lapack tn_lapack; /* lives as long as the process */

/* What this library has; NULL: nothing. When it is first asked for, each factorization is compared with ours on small
 * matrices, and what is wrong there is never used. Safe from any thread. */
const tn_lapack *tn_lapack_of(const tn_blas *library);
/* Whether it computes this kind, and matrices of this size are large enough to gain from it. */
bool tn_lapack_takes(const tn_lapack *l, tn_linalg_kind kind, int64_t m, int64_t n, int64_t k);
/* Numbers in f64 that it needs beside a, b and the result. */
int64_t tn_lapack_work(const tn_lapack *l, tn_linalg_kind kind, int64_t m, int64_t n, int64_t k);
/* false: it came to no end; a and b are lost, and the result is not to be used. */
bool tn_lapack_run(const tn_lapack *l, tn_linalg_kind kind, const tn_linalg_matrix *x);

#endif
