/* common.h — what the files of functions/ share. Everything here is made inside a TN_SCOPE of the caller, which
 * frees it.
 *
 * A function of this folder opens a scope, checks its inputs (tn_status_of also finds NULL and error tensors), records
 * operations, and returns tn_keep of the last. */
#ifndef TN_FUNCTIONS_COMMON_H
#define TN_FUNCTIONS_COMMON_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "trunnion/functions.h"
#include "trunnion/linalg.h"

/* The first of the inputs that is NULL or an error, as an error tensor; NULL if all are good. */
static inline tn_tensor *refused(const tn_tensor *x) { return tn_status_of(x) == TN_OK ? NULL : tn_contiguous(x); }

static inline tn_tensor *refused2(const tn_tensor *x, const tn_tensor *y) {
    tn_tensor *bad = refused(x);
    return bad ? bad : refused(y);
}

/* An error if `list` is NULL though `count` entries are to be read from it; else NULL. */
static inline tn_tensor *no_list(const char *what, const void *list, int64_t count) {
    return list || count <= 0 ? NULL : tn_failed(TN_ERR_ARGUMENT, "%s is NULL", what);
}

static inline bool is_float(const tn_tensor *x) {
    tn_dtype t = tn_dtype_of(x);
    return t == TN_F32 || t == TN_F64 || t == TN_F16 || t == TN_BF16;
}

/* Whether x is of a half type, and y, which may be NULL, of the same: functions whose steps would lose or overflow in
 * halves call themselves with f32 (in_f32) and round the result once. */
static inline bool are_halves(const tn_tensor *x, const tn_tensor *y) {
    tn_dtype t = tn_dtype_of(x);
    return (t == TN_F16 || t == TN_BF16) && (!y || tn_dtype_of(y) == t);
}
static inline tn_tensor *in_f32(const tn_tensor *x) { return x ? tn_cast(x, TN_F32) : NULL; }

static inline bool is_index(const tn_tensor *x) { return !is_float(x) && tn_dtype_of(x) != TN_BOOL; }

static inline tn_tensor *times(const tn_tensor *x, double v) {
    return tn_mul(x, is_float(x) ? tn_scalar(v) : tn_scalar_int((int64_t)v));
}
static inline tn_tensor *plus(const tn_tensor *x, double v) {
    return tn_add(x, is_float(x) ? tn_scalar(v) : tn_scalar_int((int64_t)v));
}

static inline tn_tensor *numbers(int64_t first, int64_t count) {
    return tn_arange((double)first, (double)(first + count), 1, TN_I64);
}

/* The vector x of integers, which must be 0 to `most`: any other is an error where indices are checked, else 0. */
static inline tn_tensor *within(const tn_tensor *x, int64_t most) {
    return tn_index_select(numbers(0, most + 1), 0, tn_cast(x, TN_I64));
}

static inline tn_tensor *flat(const tn_tensor *x) { return tn_reshape(x, (int64_t[]){-1}, 1); }

/* The vector v along `dim` of a tensor of this rank. */
static inline tn_tensor *along(const tn_tensor *v, int dim, int rank) {
    int64_t shape[TN_MAX_RANK];
    for (int d = 0; d < rank; d++)
        shape[d] = d == dim ? -1 : 1;
    return tn_reshape(v, shape, rank);
}

/* dim in [−rank, rank) made ≥ 0; −1 if it is outside. A tensor without dimensions has one. */
static inline int64_t dim_of(const tn_tensor *x, int64_t dim) {
    int64_t rank = tn_rank(x) ? tn_rank(x) : 1;
    if (dim < -rank || dim >= rank) return -1;
    return dim < 0 ? dim + rank : dim;
}

static inline tn_tensor *no_dim(const char *name, const tn_tensor *x, int64_t dim) {
    return tn_keep(tn_failed(TN_ERR_SHAPE, "%s: dim %lld is out of range for a tensor of rank %d", name, (long long)dim,
                             tn_rank(x)));
}

static inline int64_t extent_of(const tn_tensor *x, int64_t dim) { return tn_rank(x) ? tn_size(x, dim) : 1; }

static inline tn_tensor *sum_dim(const tn_tensor *x, int64_t dim, bool keep) { return tn_sum(x, &dim, 1, keep); }

/* An error unless `value` is one of the enumeration's values, 0 to `last`; else NULL. */
static inline tn_tensor *no_choice(const char *what, int value, int last, const char *names) {
    if (value >= 0 && value <= last) return NULL;
    return tn_failed(TN_ERR_ARGUMENT, "%s is %d; it must be one of %s", what, value, names);
}

static inline tn_tensor *reduced(const tn_tensor *loss, tn_reduction reduction) {
    tn_tensor *wrong = no_choice("loss: reduction", (int)reduction, TN_REDUCTION_NONE,
                                 "TN_REDUCTION_MEAN, TN_REDUCTION_SUM, TN_REDUCTION_NONE");
    if (wrong) return wrong;
    if (reduction == TN_REDUCTION_NONE) return tn_contiguous(loss);
    return reduction == TN_REDUCTION_SUM ? tn_sum(loss, NULL, 0, false) : tn_mean(loss, NULL, 0, false);
}

/* The shape that x and y broadcast to, in shape[]; returns its rank, or −1 if they do not. */
static inline int common_shape(const int64_t *x, int x_rank, const int64_t *y, int y_rank, int64_t *shape) {
    int rank = x_rank > y_rank ? x_rank : y_rank;
    for (int e = 1; e <= rank; e++) {
        int64_t a = e <= x_rank ? x[x_rank - e] : 1, b = e <= y_rank ? y[y_rank - e] : 1;
        if (a != b && a != 1 && b != 1) return -1;
        shape[rank - e] = a == 1 ? b : a;
    }
    return rank;
}

static inline int64_t product(const int64_t *shape, int count) {
    int64_t n = 1;
    for (int d = 0; d < count; d++)
        n *= shape[d];
    return n;
}

#endif
