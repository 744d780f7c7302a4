/* statistics.c — order statistics, running extremes, differences and integrals, covariances. */
#include "functions/common.h"

/* ---- one element of a sorted row --------------------------------------------------------------------------------- */

typedef struct row_order {
    tn_tensor *x, *order; /* dim moved to the end; places in ascending order, NaN last */
    int64_t dim, n;
    tn_tensor *error;
} row_order;

static row_order ordered_rows(const char *name, const tn_tensor *x, int64_t dim) {
    row_order r = {.dim = dim_of(x, dim), .error = refused(x)};
    if (r.error) return r;
    if (r.dim < 0) {
        r.error = tn_failed(TN_ERR_SHAPE, "%s: dim %lld is out of range for a tensor of rank %d", name, (long long)dim,
                            tn_rank(x));
        return r;
    }
    r.x = tn_rank(x) ? tn_contiguous(tn_movedim(x, r.dim, -1)) : tn_unsqueeze(x, 0);
    r.n = tn_size(r.x, -1);
    if (r.n == 0)
        r.error = tn_failed(TN_ERR_SHAPE, "%s: dim %lld has no elements", name, (long long)dim);
    else
        r.order = tn_argsort(r.x, -1, false);
    return r;
}

/* The elements at `rank_of` (places in the sorted rows, [..., k]) back in x's order of dims; with k = 1 as a
 * reduction. */
static tn_tensor *taken(const tn_tensor *x, const row_order *r, const tn_tensor *index, bool keepdim,
                        tn_tensor **indices) {
    tn_tensor *v = tn_gather(r->x, -1, index), *where = tn_contiguous(index);
    tn_tensor **both[] = {&v, &where};
    for (int k = 0; k < 2; k++) {
        tn_tensor *t = *both[k];
        t = keepdim && tn_rank(x) ? tn_contiguous(tn_movedim(t, -1, r->dim)) : tn_select(t, -1, 0);
        *both[k] = t;
    }
    if (indices) *indices = tn_keep(tn_contiguous(where));
    return tn_keep(tn_contiguous(v));
}

static tn_tensor *both_failed(tn_tensor *error, tn_tensor **indices) {
    if (indices) *indices = tn_keep(tn_contiguous(error));
    return tn_keep(error);
}

static tn_tensor *element_of_order(const row_order *r, int64_t place) {
    return tn_slice(r->order, -1, place, place + 1, 1);
}

/* True for rows that hold a NaN, [..., 1]. */
static tn_tensor *has_nan(const row_order *r) { return tn_any(tn_isnan(r->x), (int64_t[]){-1}, 1, true); }

tn_tensor *(tn_kthvalue)(const tn_tensor *x, int64_t k, int64_t dim, bool keepdim, tn_tensor **indices) {
    TN_FUNCTION("kthvalue");
    row_order r = ordered_rows("kthvalue", x, dim);
    if (r.error) return both_failed(r.error, indices);
    if (k < 1 || k > r.n)
        return both_failed(
            tn_failed(TN_ERR_ARGUMENT, "kthvalue: k is %lld; it must be from 1 to %lld", (long long)k, (long long)r.n),
            indices);
    return taken(x, &r, element_of_order(&r, k - 1), keepdim, indices);
}

tn_tensor *(tn_median)(const tn_tensor *x, int64_t dim, bool keepdim, tn_tensor **indices) {
    TN_FUNCTION("median");
    row_order r = ordered_rows("median", x, dim);
    if (r.error) return both_failed(r.error, indices);
    tn_tensor *index = element_of_order(&r, (r.n - 1) / 2);
    /* the first NaN of a row that has one */
    if (is_float(x))
        index = tn_where(has_nan(&r), tn_argmax(tn_cast(tn_isnan(r.x), TN_U8), (int64_t[]){-1}, 1, true), index);
    return taken(x, &r, index, keepdim, indices);
}

tn_tensor *(tn_nanmedian)(const tn_tensor *x, int64_t dim, bool keepdim, tn_tensor **indices) {
    TN_FUNCTION("nanmedian");
    row_order r = ordered_rows("nanmedian", x, dim);
    if (r.error) return both_failed(r.error, indices);
    tn_tensor *count = sum_dim(tn_logical_not(tn_isnan(r.x)), -1, true);
    tn_tensor *place = tn_floor_divide(tn_maximum(tn_sub(count, tn_scalar_int(1)), tn_scalar_int(0)), tn_scalar_int(2));
    return taken(x, &r, tn_gather(r.order, -1, place), keepdim, indices);
}

/* In a sorted row a run's length so far is its place minus that of its first element; the first of the longest runs has
 * the least value. The last of equal elements is named, as PyTorch does. */
tn_tensor *(tn_mode)(const tn_tensor *x, int64_t dim, bool keepdim, tn_tensor **indices) {
    TN_FUNCTION("mode");
    row_order r = ordered_rows("mode", x, dim);
    if (r.error) return both_failed(r.error, indices);
    tn_tensor *sorted = tn_gather(r.x, -1, r.order), *place = numbers(0, r.n);
    tn_tensor *begins = tn_ne(tn_slice(sorted, -1, 1, r.n, 1), tn_slice(sorted, -1, 0, r.n - 1, 1));
    tn_tensor *begin = tn_mul(tn_cast(begins, TN_I64), tn_slice(place, 0, 1, r.n, 1));
    begin = tn_pad(begin, (int64_t[]){1, 0}, 2, 0);
    tn_tensor *length = tn_sub(place, tn_cummax(begin, -1, NULL));
    tn_tensor *last = tn_argmax(length, (int64_t[]){-1}, 1, true);
    return taken(x, &r, tn_gather(r.order, -1, last), keepdim, indices);
}

/* ---- quantiles --------------------------------------------------------------------------------------------------- */

static tn_tensor *quantiles(const char *name, const tn_tensor *x, const tn_tensor *q, int64_t dim, bool keepdim,
                            tn_quantile_mode mode, bool over_nan) {
    row_order r = ordered_rows(name, x, dim);
    if (!r.error)
        r.error = no_choice("quantile: mode", (int)mode, TN_QUANTILE_NEAREST,
                            "TN_QUANTILE_LINEAR, TN_QUANTILE_LOWER, TN_QUANTILE_HIGHER, TN_QUANTILE_MIDPOINT, "
                            "TN_QUANTILE_NEAREST");
    if (r.error) return r.error;
    if (tn_status_of(q) != TN_OK) return tn_contiguous(q);
    if (!is_float(x) || tn_dtype_of(q) != tn_dtype_of(x) || tn_rank(q) > 1)
        return tn_failed(TN_ERR_DTYPE, "%s: x must be of a floating point type, and q of the same with rank 0 or 1",
                         name);
    tn_dtype wide = tn_dtype_of(x) == TN_F64 ? TN_F64 : TN_F32; /* places must be exact */
    tn_tensor *sorted = tn_gather(r.x, -1, r.order), *last = tn_scalar((double)(r.n - 1));
    if (over_nan) last = plus(tn_cast(sum_dim(tn_logical_not(tn_isnan(r.x)), -1, true), wide), -1);
    tn_tensor *given = tn_cast(flat(q), wide);
    tn_tensor *valid = tn_logical_and(tn_ge(given, tn_scalar(0)), tn_le(given, tn_scalar(1)));
    tn_tensor *place = tn_mul(tn_where(valid, given, tn_scalar(0)), last); /* [..., k] or [k] */
    if (over_nan) place = tn_maximum(place, tn_scalar(0));                 /* a row of NaN alone */
    tn_tensor *half = tn_scalar(0.5);
    if (mode == TN_QUANTILE_LOWER) place = tn_floor(place);
    if (mode == TN_QUANTILE_HIGHER) place = tn_ceil(place);
    if (mode == TN_QUANTILE_NEAREST) place = tn_round(place);
    tn_tensor *low = tn_floor(place), *weight = tn_sub(place, low);
    weight = tn_cast(weight, tn_dtype_of(x));
    if (mode == TN_QUANTILE_MIDPOINT) weight = tn_mul(tn_cast(tn_gt(weight, tn_scalar(0)), tn_dtype_of(x)), half);
    int64_t shape[TN_MAX_RANK], rank = tn_rank(r.x), k = tn_numel(q);
    memcpy(shape, tn_shape(r.x), (size_t)rank * sizeof *shape);
    shape[rank - 1] = k;
    tn_tensor *from = tn_expand(tn_cast(low, TN_I64), shape, (int)rank);
    tn_tensor *to = tn_expand(tn_cast(tn_ceil(place), TN_I64), shape, (int)rank);
    tn_tensor *a = tn_gather(sorted, -1, from), *b = tn_gather(sorted, -1, to);
    tn_tensor *y = tn_where(tn_eq(from, to), a, tn_lerp(a, b, tn_expand(weight, shape, (int)rank)));
    if (!over_nan) y = tn_where(has_nan(&r), tn_scalar(NAN), y);
    y = tn_where(tn_expand(valid, shape, (int)rank), y, tn_scalar(NAN));
    y = tn_movedim(y, -1, 0); /* [k, the other dims] */
    if (keepdim && tn_rank(x)) y = tn_unsqueeze(y, r.dim + 1);
    return tn_contiguous(tn_rank(q) ? y : tn_select(y, 0, 0));
}

tn_tensor *(tn_quantile)(const tn_tensor *x, const tn_tensor *q, int64_t dim, bool keepdim, tn_quantile_mode mode) {
    TN_FUNCTION("quantile");
    return tn_keep(quantiles("quantile", x, q, dim, keepdim, mode, false));
}
tn_tensor *(tn_nanquantile)(const tn_tensor *x, const tn_tensor *q, int64_t dim, bool keepdim, tn_quantile_mode mode) {
    TN_FUNCTION("nanquantile");
    return tn_keep(quantiles("nanquantile", x, q, dim, keepdim, mode, true));
}

/* ---- running values ---------------------------------------------------------------------------------------------- */

/* v moved by `step` along the last dim; what comes from before the row is `value`. */
static tn_tensor *shifted(const tn_tensor *v, int64_t n, int64_t step, double value) {
    return tn_pad(tn_slice(v, -1, 0, n - step, 1), (int64_t[]){step, 0}, 2, value);
}

/* In log2 n steps each place looks at the winner 1, 2, 4 … places before it. The winner's place wins ties if it is
 * later,
 * and a NaN wins against every number. */
static tn_tensor *running_extreme(const char *name, const tn_tensor *x, int64_t dim, bool greatest,
                                  tn_tensor **indices) {
    tn_tensor *bad = refused(x);
    int64_t at = bad ? 0 : dim_of(x, dim);
    if (!bad && at < 0)
        bad = tn_failed(TN_ERR_SHAPE, "%s: dim %lld is out of range for a tensor of rank %d", name, (long long)dim,
                        tn_rank(x));
    if (bad) return both_failed(bad, indices);
    tn_tensor *rows = tn_rank(x) ? tn_contiguous(tn_movedim(x, at, -1)) : tn_unsqueeze(x, 0);
    int64_t n = tn_size(rows, -1);
    tn_tensor *v = tn_detach(rows), *place = tn_expand(numbers(0, n), tn_shape(rows), tn_rank(rows));
    if (tn_dtype_of(v) == TN_BOOL) v = tn_cast(v, TN_U8);
    place = tn_contiguous(place);
    for (int64_t step = 1; step < n; step *= 2) {
        tn_tensor *before = shifted(v, n, step, 0), *before_place = shifted(place, n, step, -1);
        tn_tensor *wins = greatest ? tn_gt(before, v) : tn_lt(before, v);
        if (is_float(v)) wins = tn_logical_or(wins, tn_isnan(before));
        if (is_float(v)) wins = tn_logical_and(wins, tn_logical_not(tn_isnan(v)));
        wins = tn_logical_and(wins, tn_ge(before_place, tn_scalar_int(0)));
        v = tn_where(wins, before, v);
        place = tn_where(wins, before_place, place);
    }
    tn_tensor *y = tn_gather(rows, -1, place);
    if (indices)
        *indices =
            tn_keep(tn_rank(x) ? tn_contiguous(tn_movedim(place, -1, at)) : tn_contiguous(tn_select(place, 0, 0)));
    return tn_keep(tn_rank(x) ? tn_contiguous(tn_movedim(y, -1, at)) : tn_contiguous(tn_select(y, 0, 0)));
}

tn_tensor *(tn_cummax)(const tn_tensor *x, int64_t dim, tn_tensor **indices) {
    TN_FUNCTION("cummax");
    return running_extreme("cummax", x, dim, true, indices);
}
tn_tensor *(tn_cummin)(const tn_tensor *x, int64_t dim, tn_tensor **indices) {
    TN_FUNCTION("cummin");
    return running_extreme("cummin", x, dim, false, indices);
}

tn_tensor *(tn_logcumsumexp)(const tn_tensor *x, int64_t dim) {
    TN_FUNCTION("logcumsumexp");
    tn_tensor *bad = refused(x);
    if (bad) return tn_keep(bad);
    int64_t at = dim_of(x, dim);
    if (at < 0) return no_dim("logcumsumexp", x, dim);
    if (!is_float(x))
        return tn_keep(tn_failed(TN_ERR_DTYPE, "logcumsumexp: the tensor must be of a floating point type"));
    if (tn_rank(x) == 0) return tn_keep(tn_contiguous(x));
    tn_tensor *v = tn_contiguous(tn_movedim(x, at, -1));
    int64_t n = tn_size(v, -1);
    for (int64_t step = 1; step < n; step *= 2) {
        /* only places that have one before them: of two −∞ the gradient would be NaN */
        tn_tensor *joined = tn_logaddexp(tn_slice(v, -1, step, n, 1), tn_slice(v, -1, 0, n - step, 1));
        v = tn_cat((tn_tensor *[]){tn_slice(v, -1, 0, step, 1), joined}, 2, -1);
    }
    return tn_keep(tn_contiguous(tn_movedim(v, -1, at)));
}

/* ---- differences, integrals -------------------------------------------------------------------------------------- */

static tn_tensor *from_second(const tn_tensor *x, int64_t dim) { return tn_slice(x, dim, 1, INT64_MAX, 1); }
static tn_tensor *but_last(const tn_tensor *x, int64_t dim) {
    int64_t n = tn_size(x, dim);
    return tn_slice(x, dim, 0, n ? n - 1 : 0, 1);
}

tn_tensor *(tn_diff)(const tn_tensor *x, int64_t n, int64_t dim) {
    TN_FUNCTION("diff");
    tn_tensor *bad = refused(x);
    if (bad) return tn_keep(bad);
    if (tn_rank(x) == 0 || dim_of(x, dim) < 0) return no_dim("diff", x, dim);
    if (n < 0) return tn_keep(tn_failed(TN_ERR_ARGUMENT, "diff: n is %lld; it must be at least 0", (long long)n));
    tn_tensor *y = tn_contiguous(x);
    bool truth = tn_dtype_of(x) == TN_BOOL;
    for (int64_t k = 0; k < n && tn_size(y, dim) > 0; k++)
        y = truth ? tn_ne(from_second(y, dim), but_last(y, dim)) : tn_sub(from_second(y, dim), but_last(y, dim));
    return tn_keep(tn_contiguous(y));
}

/* The areas between neighbours along dim. */
static tn_tensor *areas(const char *name, const tn_tensor *y, const tn_tensor *x, double dx, int64_t dim) {
    int64_t at = dim_of(y, dim);
    if (tn_rank(y) == 0 || at < 0)
        return tn_failed(TN_ERR_SHAPE, "%s: dim %lld is out of range for a tensor of rank %d", name, (long long)dim,
                         tn_rank(y));
    tn_tensor *sum = tn_add(from_second(y, at), but_last(y, at)), *half = tn_scalar(0.5);
    if (!x) return tn_mul(sum, tn_scalar(dx * 0.5));
    tn_tensor *place = tn_rank(x) == 1 ? along(x, (int)at, tn_rank(y)) : tn_contiguous(x);
    if (tn_rank(place) != tn_rank(y) || (tn_size(place, at) != tn_size(y, at)))
        return tn_failed(TN_ERR_SHAPE, "%s: x must be a vector, or a tensor of y's rank, with y's extent in dim %lld",
                         name, (long long)at);
    return tn_mul(tn_mul(sum, tn_sub(from_second(place, at), but_last(place, at))), half);
}

tn_tensor *(tn_trapezoid)(const tn_tensor *y, const tn_tensor *x, double dx, int64_t dim) {
    TN_FUNCTION("trapezoid");
    tn_tensor *bad = x ? refused2(y, x) : refused(y);
    if (bad) return tn_keep(bad);
    if (are_halves(y, x)) return tn_keep(tn_cast((tn_trapezoid)(in_f32(y), in_f32(x), dx, dim), tn_dtype_of(y)));
    return tn_keep(sum_dim(areas("trapezoid", y, x, dx, dim), dim, false));
}

tn_tensor *(tn_cumulative_trapezoid)(const tn_tensor *y, const tn_tensor *x, double dx, int64_t dim) {
    TN_FUNCTION("cumulative_trapezoid");
    tn_tensor *bad = x ? refused2(y, x) : refused(y);
    if (bad) return tn_keep(bad);
    if (are_halves(y, x))
        return tn_keep(tn_cast((tn_cumulative_trapezoid)(in_f32(y), in_f32(x), dx, dim), tn_dtype_of(y)));
    return tn_keep(tn_cumsum(areas("cumulative_trapezoid", y, x, dx, dim), dim));
}

/* ---- covariances ------------------------------------------------------------------------------------------------- */

static tn_tensor *covariance(const char *name, const tn_tensor *x, int64_t correction) {
    if (tn_rank(x) > 2)
        return tn_failed(TN_ERR_SHAPE, "%s: the tensor has rank %d; at most 2 is possible", name, tn_rank(x));
    if (tn_dtype_of(x) == TN_BOOL) return tn_failed(TN_ERR_DTYPE, "%s: bool is not supported: cast it", name);
    tn_tensor *rows = is_float(x) ? tn_contiguous(x) : tn_cast(x, TN_F32);
    rows = tn_rank(x) == 2 ? rows : tn_reshape(rows, (int64_t[]){1, tn_numel(x)}, 2);
    int64_t n = tn_size(rows, 1);
    tn_tensor *apart = tn_sub(rows, tn_div(sum_dim(rows, 1, true), tn_scalar((double)n)));
    double count = n > correction ? (double)(n - correction) : 0;
    tn_tensor *c = tn_div(tn_matmul(apart, tn_t(apart)), tn_scalar(count));
    return tn_size(c, 0) != 1 ? c : tn_select(tn_select(c, 0, 0), 0, 0); /* of one variable: a number */
}

tn_tensor *(tn_cov)(const tn_tensor *x, int64_t correction) {
    TN_FUNCTION("cov");
    tn_tensor *bad = refused(x);
    if (bad) return tn_keep(bad);
    if (are_halves(x, NULL)) return tn_keep(tn_cast((tn_cov)(in_f32(x), correction), tn_dtype_of(x)));
    return tn_keep(tn_contiguous(covariance("cov", x, correction)));
}

tn_tensor *(tn_corrcoef)(const tn_tensor *x) {
    TN_FUNCTION("corrcoef");
    tn_tensor *bad = refused(x);
    if (bad) return tn_keep(bad);
    if (are_halves(x, NULL)) return tn_keep(tn_cast((tn_corrcoef)(in_f32(x)), tn_dtype_of(x)));
    tn_tensor *c = covariance("corrcoef", x, 1);
    if (tn_status_of(c) != TN_OK) return tn_keep(c);
    if (tn_rank(c) == 0) return tn_keep(tn_div(c, c));
    tn_tensor *size = tn_sqrt(tn_diagonal(c, 0, 0, 1));
    c = tn_div(tn_div(c, tn_unsqueeze(size, 1)), size);
    return tn_keep(tn_clamp(c, -1, 1));
}

tn_tensor *(tn_renorm)(const tn_tensor *x, double p, int64_t dim, double maxnorm) {
    int64_t others[TN_MAX_RANK];
    TN_FUNCTION("renorm");
    tn_tensor *bad = refused(x);
    if (bad) return tn_keep(bad);
    int64_t at = dim_of(x, dim);
    if (tn_rank(x) < 2 || at < 0) return no_dim("renorm", x, dim);
    if (!(p > 0) || !(maxnorm >= 0))
        return tn_keep(tn_failed(TN_ERR_ARGUMENT,
                                 "renorm: p is %g and maxnorm %g; p must be positive, maxnorm at least 0", p, maxnorm));
    for (int d = 0, k = 0; d < tn_rank(x); d++)
        if (d != at) others[k++] = d;
    tn_tensor *size = tn_norm(x, p, others, tn_rank(x) - 1, true);
    tn_tensor *factor = tn_div(tn_scalar(maxnorm), tn_add(size, tn_scalar(1e-7)));
    return tn_keep(tn_mul(x, tn_where(tn_gt(size, tn_scalar(maxnorm)), factor, tn_scalar(1))));
}
