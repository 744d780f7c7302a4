/* blas.h — matrix products by a BLAS library of the system instead of our own kernels.
 *
 * A library is used only if it was requested by name, because its order of sums differs: its results are of class
 * `library` (close to ours, not the same bits). Nothing is loaded before that. A library computes on one thread, and
 * our thread pool (base/threads.c) divides the product, so there are never two pools; an epilogue runs on each part's
 * blocks while they are in cache. */
#ifndef TN_CPU_BLAS_H
#define TN_CPU_BLAS_H

#include "cpu/cpu_kernels.h"

/* A matrix as libraries need it: rows of contiguous elements, `ld` from one to the next, or the transpose of such a
 * matrix. */
typedef struct tn_side {
    int64_t ld;
    bool transposed;
} tn_side;
/* Is it one, contiguous along rows or columns with a distance that libraries accept? Then which. */
bool tn_matrix_has_side(const tn_matrix *x, int64_t rows, int64_t cols);
tn_side tn_matrix_side(const tn_matrix *x, int64_t rows, int64_t cols);

typedef struct tn_blas tn_blas; /* a loaded library; lives as long as the process */

/* What is known of row i of the table without loading anything. */
typedef struct tn_blas_facts {
    const char *name, *title;
    char path[256];       /* the file that was or would be loaded, "" if there is none */
    char description[96]; /* what it says of itself; "" until it is loaded, or if it says nothing */
    tn_reason why;        /* TN_REASON_NONE: found, and usable as far as is known */
    bool chosen;
} tn_blas_facts;

int tn_blas_count(void);
void tn_blas_probe(int i, tn_blas_facts *out); /* 0 <= i < tn_blas_count() */

/* New plans compute products with this library from now on: a name of the table, "auto" (the first that works, or the
 * fastest measured: plan/tuner.c), NULL or "none" (our own kernels). Loads it and checks its result for a small product
 * first; hal/libraries.c has done that before in a child process. Errors: TN_ERR_ARGUMENT for a name that is not in the
 * table, TN_ERR_UNAVAILABLE with the reason; then nothing changes. */
tn_status tn_blas_choose(const char *name);
/* Whether choosing by this name would load row i for the first time; and row i is known to be of no use. */
bool tn_blas_untried(int i, const char *asked);
void tn_blas_refuse(int i, tn_reason_code code, const char *why);
/* The library in use; NULL: none. */
const tn_blas *tn_blas_chosen(void);
const char *tn_blas_name(const tn_blas *b); /* "none" for NULL */
/* Whether the choice was "auto": another one may be taken where it is known to be faster. */
bool tn_blas_is_open_choice(void);
/* The library of this name, loaded; NULL when it cannot be used. */
const tn_blas *tn_blas_by_name(const char *name);

/* Whether it can compute this product: operands and result have contiguous rows or columns, and there is no
 * prologue. */
bool tn_blas_takes(const tn_blas *b, const tn_gemm_args *args, tn_dtype dtype);
/* As tn_gemm_workspace. */
size_t tn_blas_workspace(const tn_gemm_args *args, int threads);
/* As tn_gemm_run, except for the order of sums. packed_b is neither read nor written. */
void tn_blas_gemm(const tn_blas *b, const tn_gemm_args *args, tn_dtype dtype);

#endif
