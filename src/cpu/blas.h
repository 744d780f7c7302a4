/* blas.h — matrix products by a BLAS library of the system, instead of our own kernel.
 *
 * A library is used only when somebody asks for one by name: its sums run in an order of its own, so its results are
 * of the class `library` (close to ours, not the same bits). Nothing is loaded before that. A library computes on one
 * thread; the pool of threads (base/threads.c) cuts the product, so there are never two pools side by side, and an
 * epilogue
 *  runs on each part's blocks while they are in cache. */
#ifndef TN_KERN_BLAS_H
#define TN_KERN_BLAS_H

#include "cpu/kern.h"

/* A matrix as libraries want it: rows of contiguous elements, `ld` from one to the next, or turned: the transpose of
 * such a matrix. */
typedef struct tn_side {
    int64_t ld;
    bool transposed;
} tn_side;
/* Is it one, contiguous along rows or columns with a distance that libraries accept? Then which. */
bool tn_matrix_has_side(const tn_matrix *x, int64_t rows, int64_t cols);
tn_side tn_matrix_side(const tn_matrix *x, int64_t rows, int64_t cols);

typedef struct tn_blas tn_blas; /* a loaded library; lives as long as the process */

/* What is known of row i of the table, without loading anything that is not loaded yet. */
typedef struct tn_blas_facts {
    const char *name, *title;
    char path[256];       /* the file that was or would be loaded, "" if there is none */
    char description[96]; /* what it says of itself; "" until it is loaded, or if it says nothing */
    tn_reason why;        /* TN_REASON_NONE: found, and usable as far as is known */
    bool chosen;
} tn_blas_facts;

int tn_blas_count(void);
void tn_blas_probe(int i, tn_blas_facts *out); /* 0 <= i < tn_blas_count() */

/* From now on new plans compute products with this library: a name of the table, "auto" (the first that works, or what
 * tuning found to be the fastest: plan/tuner.c), NULL or "none" (our own kernels). Loads it and compares its answer on
 * a small product before it is trusted with any; hal/libraries.c has tried that in a process of its own before.
 * Errors: TN_ERR_ARGUMENT for a name that is not in the table, TN_ERR_UNAVAILABLE with the reason; nothing changes. */
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

/* A function of it under any prefix and suffix that such libraries have ("dgetrf_"), NULL if there is none; and whether
 * integers that it takes have 64 bits. */
void *tn_blas_function(const tn_blas *b, const char *name);
bool tn_blas_is_wide(const tn_blas *b);

/* Whether it can compute this product: its operands and result have contiguous rows or columns, and no program
 * loads them. */
bool tn_blas_takes(const tn_blas *b, const tn_gemm_args *args, tn_dtype dtype);
/* As tn_gemm_workspace. */
size_t tn_blas_workspace(const tn_gemm_args *args, int threads);
/* As tn_gemm_run, except for the order of sums. packed_b is neither read nor written. */
void tn_blas_gemm(const tn_blas *b, const tn_gemm_args *args, tn_dtype dtype);

#endif
