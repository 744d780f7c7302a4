/* indexing.c — reading and writing by masks and index tensors; values sorted, found and counted. */
#include "functions/common.h"

/* ---- places ------------------------------------------------------------------------------------------------------ */

/* The places in row-major order of the elements of x that are not zero: [n, rank] in i64. */
static tn_tensor *places_of(const tn_tensor *x) {
    int rank = tn_rank(x);
    int64_t count = tn_numel(x), found = 0, at[TN_MAX_RANK] = {0}, shape[2] = {0, rank};
    const int64_t *extent = tn_shape(x);
    uint8_t *is_set = malloc((size_t)count + 1);
    int64_t *places = malloc(((size_t)count * (size_t)rank + 1) * sizeof *places);
    tn_tensor *out = NULL;
    if (!is_set || !places)
        out = tn_failed(TN_ERR_MEMORY, "nonzero: no memory for the places of %lld elements", (long long)count);
    else if (tn_read(tn_cast(x, TN_BOOL), is_set, (size_t)count) != TN_OK)
        out = tn_failed(tn_status_of(x) == TN_OK ? TN_ERR_STATE : tn_status_of(x), "nonzero: %s", tn_error());
    for (int64_t i = 0; !out && i < count; i++) {
        if (is_set[i]) memcpy(places + found++ * rank, at, (size_t)rank * sizeof *at);
        for (int d = rank - 1; d >= 0 && ++at[d] == extent[d]; d--)
            at[d] = 0;
    }
    shape[0] = found;
    if (!out) out = tn_from_data(places, shape, 2, TN_I64);
    free(is_set);
    free(places);
    return out;
}

tn_tensor *(tn_nonzero)(const tn_tensor *x) {
    TN_FUNCTION("nonzero");
    tn_tensor *bad = refused(x);
    if (bad) return tn_keep(bad);
    return tn_keep(places_of(x));
}

static tn_tensor *rows_set(const tn_tensor *mask) { return tn_select(places_of(flat(mask)), 1, 0); }

tn_tensor *(tn_masked_select)(const tn_tensor *x, const tn_tensor *mask) {
    int64_t shape[TN_MAX_RANK];
    TN_FUNCTION("masked_select");
    tn_tensor *bad = refused2(x, mask);
    if (bad) return tn_keep(bad);
    int rank = common_shape(tn_shape(x), tn_rank(x), tn_shape(mask), tn_rank(mask), shape);
    if (tn_dtype_of(mask) != TN_BOOL) return tn_keep(tn_failed(TN_ERR_DTYPE, "masked_select: the mask must be bool"));
    if (rank < 0) return tn_keep(tn_failed(TN_ERR_SHAPE, "masked_select: mask and tensor do not broadcast"));
    tn_tensor *rows = rows_set(tn_expand(mask, shape, rank));
    return tn_keep(tn_index_select(flat(tn_expand(x, shape, rank)), 0, rows));
}

tn_tensor *(tn_masked_scatter)(const tn_tensor *x, const tn_tensor *mask, const tn_tensor *source) {
    int64_t shape[TN_MAX_RANK];
    TN_FUNCTION("masked_scatter");
    tn_tensor *bad = refused2(x, mask);
    if (!bad) bad = refused(source);
    if (bad) return tn_keep(bad);
    if (tn_dtype_of(mask) != TN_BOOL) return tn_keep(tn_failed(TN_ERR_DTYPE, "masked_scatter: the mask must be bool"));
    if (tn_dtype_of(x) != tn_dtype_of(source))
        return tn_keep(tn_failed(TN_ERR_DTYPE, "masked_scatter: tensor and source must have the same dtype"));
    int rank = common_shape(tn_shape(x), tn_rank(x), tn_shape(mask), tn_rank(mask), shape);
    if (rank < 0) return tn_keep(tn_failed(TN_ERR_SHAPE, "masked_scatter: mask and tensor do not broadcast"));
    tn_tensor *to = tn_expand(x, shape, rank), *set = tn_expand(mask, shape, rank);
    if (tn_numel(to) == 0) return tn_keep(tn_contiguous(to));
    tn_tensor *order = tn_sub(tn_cumsum(tn_cast(flat(set), TN_I64), 0), tn_scalar_int(1));
    tn_tensor *from = tn_where(flat(set), order, tn_scalar_int(0));
    if (tn_numel(source) == 0) from = tn_where(flat(set), tn_scalar_int(1), tn_scalar_int(0)); /* out of range */
    if (tn_numel(source) == 0) source = tn_zeros((int64_t[]){1}, 1, tn_dtype_of(source));
    tn_tensor *taken = tn_reshape(tn_index_select(flat(source), 0, from), shape, rank);
    return tn_keep(tn_where(set, taken, to));
}

/* ---- x[i, j, …] -------------------------------------------------------------------------------------------------- */

/* An index over several dims, as one index of rows: x's indexed dims lead and are one, `rows` of them. */
typedef struct by_rows {
    tn_tensor *error;           /* or NULL */
    tn_tensor *x;               /* [rows, rest] */
    tn_tensor *places;          /* [count] */
    int64_t shape[TN_MAX_RANK]; /* of the broadcast index */
    int rank;                   /* of it */
    int64_t order[TN_MAX_RANK]; /* of x's dims: the indexed ones, then the others */
    int indexed;                /* how many */
    int64_t moved[TN_MAX_RANK]; /* x's shape in that order */
    int x_rank, first;          /* first: the result's dim at which the index stands */
} by_rows;

/* A mask of rank r stands for r index tensors. Returns how many dims the list covers, −1 after an error in *error. */
static int spread_masks(const tn_tensor *x, tn_tensor *const *indices, int count, tn_tensor **index,
                        tn_tensor **error) {
    int dims = 0;
    for (int k = 0; k < count; k++) {
        const tn_tensor *i = indices[k];
        int covers = i && tn_dtype_of(i) == TN_BOOL ? tn_rank(i) : 1;
        if (i && tn_status_of(i) != TN_OK)
            *error = tn_contiguous(i);
        else if (i && is_float(i))
            *error = tn_failed(TN_ERR_DTYPE, "index: entry %d must be bool or an integer type", k);
        else if (covers == 0)
            *error = tn_failed(TN_ERR_UNSUPPORTED, "index: entry %d is a mask without dimensions", k);
        else if (dims + covers > tn_rank(x))
            *error = tn_failed(TN_ERR_SHAPE, "index: too many indices for a tensor of rank %d", tn_rank(x));
        if (*error) return -1;
        for (int d = 0; i && tn_dtype_of(i) == TN_BOOL && d < covers; d++)
            if (tn_size(i, d) != tn_size(x, dims + d)) {
                *error = tn_failed(TN_ERR_SHAPE, "index: the mask has extent %lld at dim %d, the tensor %lld at dim %d",
                                   (long long)tn_size(i, d), d, (long long)tn_size(x, dims + d), dims + d);
                return -1;
            }
        tn_tensor *places = i && tn_dtype_of(i) == TN_BOOL ? places_of(i) : NULL;
        for (int d = 0; d < covers; d++)
            index[dims++] = places ? tn_select(places, 1, d) : i ? tn_cast(i, TN_I64) : NULL;
    }
    return dims;
}

/* Row numbers of the indexed dims; an index outside its dim stays (of several, −1), and the operation refuses it. */
static void join_places(by_rows *r, const tn_tensor *x, tn_tensor *const *index) {
    tn_tensor *place = NULL, *inside = NULL;
    for (int k = 0; k < r->indexed; k++) {
        int64_t size = tn_size(x, r->order[k]);
        tn_tensor *i = index[r->order[k]];
        i = tn_where(tn_lt(i, tn_scalar_int(0)), tn_add(i, tn_scalar_int(size)), i);
        tn_tensor *fits = tn_logical_and(tn_ge(i, tn_scalar_int(0)), tn_lt(i, tn_scalar_int(size)));
        place = place ? tn_add(tn_mul(place, tn_scalar_int(size)), i) : i;
        inside = inside ? tn_logical_and(inside, fits) : fits;
    }
    tn_tensor *outside = r->indexed == 1 ? index[r->order[0]] : tn_scalar_int(-1);
    r->places = flat(tn_expand(tn_where(inside, place, outside), r->shape, r->rank));
}

static by_rows rows_for(const tn_tensor *x, tn_tensor *const *indices, int count) {
    by_rows r = {.x_rank = tn_rank(x)};
    tn_tensor *index[TN_MAX_RANK] = {0};
    r.error = no_list("index: the list of indices", indices, count);
    int last = -1, dims = r.error ? 0 : spread_masks(x, indices, count, index, &r.error);
    bool apart = false;
    for (int d = 0; d < dims; d++) {
        if (!index[d]) continue;
        apart |= last >= 0 && d != last + 1;
        if (last < 0) r.first = d;
        last = d;
        r.order[r.indexed++] = d;
        r.rank = common_shape(r.shape, r.rank, tn_shape(index[d]), tn_rank(index[d]), r.shape);
        if (r.rank >= 0) continue;
        r.error = tn_failed(TN_ERR_SHAPE, "index: the index tensors do not broadcast against each other");
        return r;
    }
    if (r.error || r.indexed == 0) return r;
    if (apart) r.first = 0;
    for (int d = 0, k = r.indexed; d < r.x_rank; d++)
        if (!index[d]) r.order[k++] = d;
    if (r.rank + r.x_rank - r.indexed > TN_MAX_RANK) {
        r.error = tn_failed(TN_ERR_SHAPE, "index: the result would exceed the maximum rank, %d", TN_MAX_RANK);
        return r;
    }
    for (int d = 0; d < r.x_rank; d++)
        r.moved[d] = tn_size(x, r.order[d]);
    int64_t rows[2] = {product(r.moved, r.indexed), product(r.moved + r.indexed, r.x_rank - r.indexed)};
    r.x = tn_reshape(tn_permute(x, r.order, r.x_rank), rows, 2);
    join_places(&r, x, index);
    return r;
}

/* The dims of the result in the order: index first, then the others; inverse: from that order to the result's. */
static void order_of_result(const by_rows *r, bool inverse, int64_t *order) {
    int rest = r->x_rank - r->indexed;
    for (int d = 0; d < r->rank + rest; d++) {
        int from = d < r->rank ? r->first + d : d - r->rank < r->first ? d - r->rank : d; /* in the result */
        if (inverse)
            order[from] = d;
        else
            order[d] = from;
    }
}

static int shape_of_rows(const by_rows *r, int64_t *shape) {
    int rest = r->x_rank - r->indexed;
    memcpy(shape, r->shape, (size_t)r->rank * sizeof *shape);
    memcpy(shape + r->rank, r->moved + r->indexed, (size_t)rest * sizeof *shape);
    return r->rank + rest;
}

tn_tensor *(tn_index)(const tn_tensor *x, tn_tensor *const *indices, int count) {
    int64_t shape[2 * TN_MAX_RANK], order[2 * TN_MAX_RANK];
    TN_FUNCTION("index");
    tn_tensor *bad = refused(x);
    if (bad) return tn_keep(bad);
    by_rows r = rows_for(x, indices, count);
    if (r.error) return tn_keep(r.error);
    if (r.indexed == 0) return tn_keep(tn_contiguous(x));
    int rank = shape_of_rows(&r, shape);
    tn_tensor *taken = tn_reshape(tn_index_select(r.x, 0, r.places), shape, rank);
    order_of_result(&r, true, order);
    return tn_keep(r.first ? tn_contiguous(tn_permute(taken, order, rank)) : taken);
}

tn_tensor *(tn_index_put)(const tn_tensor *x, tn_tensor *const *indices, int count, const tn_tensor *values,
                          bool accumulate) {
    int64_t shape[2 * TN_MAX_RANK], order[2 * TN_MAX_RANK], back[TN_MAX_RANK], wanted[2 * TN_MAX_RANK];
    TN_FUNCTION("index_put");
    tn_tensor *bad = refused2(x, values);
    if (bad) return tn_keep(bad);
    if (tn_dtype_of(values) != tn_dtype_of(x))
        return tn_keep(tn_failed(TN_ERR_DTYPE, "index_put: tensor and values must have the same dtype"));
    by_rows r = rows_for(x, indices, count);
    if (r.error) return tn_keep(r.error);
    if (r.indexed == 0) {
        tn_tensor *all = tn_expand(values, tn_shape(x), tn_rank(x));
        return tn_keep(accumulate ? tn_add(x, all) : tn_contiguous(all));
    }
    int rank = shape_of_rows(&r, shape);
    if (product(shape, rank) == 0) return tn_keep(tn_clone(x)); /* nothing is put */
    order_of_result(&r, false, order);
    for (int d = 0; d < rank; d++)
        wanted[order[d]] = shape[d];
    tn_tensor *placed = tn_permute(tn_expand(values, wanted, rank), order, rank);
    int64_t size[2] = {product(shape, r.rank), tn_size(r.x, 1)};
    placed = tn_reshape(placed, size, 2);
    tn_tensor *y = accumulate ? tn_index_add(r.x, 0, r.places, placed)
                              : tn_scatter(r.x, 0, tn_expand(tn_unsqueeze(r.places, 1), size, 2), placed);
    for (int d = 0; d < r.x_rank; d++)
        back[r.order[d]] = d;
    return tn_keep(tn_contiguous(tn_permute(tn_reshape(y, r.moved, r.x_rank), back, r.x_rank)));
}

tn_tensor *(tn_take)(const tn_tensor *x, const tn_tensor *index) {
    TN_FUNCTION("take");
    tn_tensor *bad = refused2(x, index);
    if (bad) return tn_keep(bad);
    if (!is_index(index)) return tn_keep(tn_failed(TN_ERR_DTYPE, "take: the index must be of an integer type"));
    tn_tensor *from = flat(index), *taken = tn_index(flat(x), &from, 1);
    return tn_keep(tn_reshape(taken, tn_shape(index), tn_rank(index)));
}

tn_tensor *(tn_put)(const tn_tensor *x, const tn_tensor *index, const tn_tensor *source, bool accumulate) {
    TN_FUNCTION("put");
    tn_tensor *bad = refused2(x, index);
    if (!bad) bad = refused(source);
    if (bad) return tn_keep(bad);
    if (!is_index(index)) return tn_keep(tn_failed(TN_ERR_DTYPE, "put: the index must be of an integer type"));
    if (tn_numel(index) != tn_numel(source))
        return tn_keep(tn_failed(TN_ERR_SHAPE, "put: %lld indices, but %lld elements of the source",
                                 (long long)tn_numel(index), (long long)tn_numel(source)));
    tn_tensor *from = flat(index), *y = tn_index_put(flat(x), &from, 1, flat(source), accumulate);
    return tn_keep(tn_reshape(y, tn_shape(x), tn_rank(x)));
}

/* ---- slices by number -------------------------------------------------------------------------------------------- */

/* Indices along dim, as wide as `like` (NULL: x); with x without dimensions as one of [1]. */
static tn_tensor *spread_index(const tn_tensor *x, int64_t dim, const tn_tensor *index, const tn_tensor *like) {
    int rank = tn_rank(x) ? tn_rank(x) : 1;
    int64_t shape[TN_MAX_RANK];
    for (int d = 0; d < rank; d++)
        shape[d] = d == dim ? tn_numel(index) : extent_of(like ? like : x, d);
    return tn_expand(along(index, (int)dim, rank), shape, rank);
}

static tn_tensor *as_line(const tn_tensor *x) { return tn_rank(x) ? tn_contiguous(x) : tn_unsqueeze(x, 0); }

static tn_tensor *check_slices(const char *name, const tn_tensor *x, int64_t *dim, const tn_tensor *index) {
    tn_tensor *bad = refused2(x, index);
    if (bad) return bad;
    if (!is_index(index) || tn_rank(index) > 1)
        return tn_failed(TN_ERR_DTYPE, "%s: the index must be an integer tensor of rank 0 or 1", name);
    int64_t found = dim_of(x, *dim);
    if (found < 0)
        return tn_failed(TN_ERR_SHAPE, "%s: dim %lld is out of range for a tensor of rank %d", name, (long long)*dim,
                         tn_rank(x));
    *dim = found;
    return NULL;
}

tn_tensor *(tn_index_fill)(const tn_tensor *x, int64_t dim, const tn_tensor *index, double value) {
    TN_FUNCTION("index_fill");
    tn_tensor *bad = check_slices("index_fill", x, &dim, index);
    if (bad) return tn_keep(bad);
    int64_t size = extent_of(x, dim);
    tn_tensor *none = tn_zeros(&size, 1, TN_BOOL), *from = tn_cast(flat(index), TN_I64);
    from = tn_where(tn_lt(from, tn_scalar_int(0)), tn_add(from, tn_scalar_int(size)), from);
    tn_tensor *hit = tn_scatter(none, 0, from, tn_ones((int64_t[]){tn_numel(index)}, 1, TN_BOOL));
    hit = tn_rank(x) ? along(hit, (int)dim, tn_rank(x)) : tn_squeeze(hit, NULL, 0);
    return tn_keep(tn_masked_fill(x, hit, value));
}

static bool slices_fit(const tn_tensor *x, int64_t dim, const tn_tensor *index, const tn_tensor *source) {
    bool fits =
        tn_rank(source) == tn_rank(x) || (!tn_rank(source) && tn_rank(x) == 1) || (!tn_rank(x) && tn_rank(source) == 1);
    int rank = tn_rank(x) ? tn_rank(x) : 1;
    for (int d = 0; fits && d < rank; d++)
        fits = extent_of(source, d) == (d == dim ? tn_numel(index) : extent_of(x, d));
    return fits;
}

/* x with slices of the source put (how: −1) or combined at `index`. */
static tn_tensor *combined(const char *name, const tn_tensor *x, int64_t dim, const tn_tensor *index,
                           const tn_tensor *source, int how, bool include_self) {
    tn_tensor *bad = refused(source);
    if (!bad) bad = check_slices(name, x, &dim, index);
    if (bad) return bad;
    if (tn_dtype_of(x) != tn_dtype_of(source))
        return tn_failed(TN_ERR_DTYPE, "%s: tensor and source must have the same dtype", name);
    if (!slices_fit(x, dim, index, source))
        return tn_failed(TN_ERR_SHAPE, "%s: the source must have one slice of x's shape for each of the %lld indices",
                         name, (long long)tn_numel(index));
    tn_tensor *to = as_line(x), *all = spread_index(x, dim, index, NULL), *from = as_line(source);
    tn_tensor *y =
        how < 0 ? tn_scatter(to, dim, all, from) : tn_scatter_reduce(to, dim, all, from, (tn_reduce)how, include_self);
    return tn_rank(x) ? y : tn_select(y, 0, 0);
}

tn_tensor *(tn_index_copy)(const tn_tensor *x, int64_t dim, const tn_tensor *index, const tn_tensor *source) {
    TN_FUNCTION("index_copy");
    return tn_keep(combined("index_copy", x, dim, index, source, -1, true));
}

tn_tensor *(tn_index_reduce)(const tn_tensor *x, int64_t dim, const tn_tensor *index, const tn_tensor *source,
                             tn_reduce reduce, bool include_self) {
    TN_FUNCTION("index_reduce");
    return tn_keep(combined("index_reduce", x, dim, index, source, (int)reduce, include_self));
}

tn_tensor *(tn_scatter_mean)(const tn_tensor *x, int64_t dim, const tn_tensor *index, const tn_tensor *source,
                             bool include_self) {
    TN_FUNCTION("scatter_mean");
    tn_tensor *bad = refused2(x, index);
    if (!bad) bad = refused(source);
    if (bad) return tn_keep(bad);
    tn_tensor *sum = tn_scatter_reduce(x, dim, index, source, TN_REDUCE_SUM, include_self);
    tn_tensor *ones = tn_ones(tn_shape(source), tn_rank(source), TN_I64);
    tn_tensor *count = tn_scatter_add(tn_full(tn_shape(x), tn_rank(x), include_self, TN_I64), dim, index, ones);
    count = tn_cast(tn_maximum(count, tn_scalar_int(1)), tn_dtype_of(sum));
    return tn_keep(is_float(sum) ? tn_div(sum, count) : tn_floor_divide(sum, count));
}

/* ---- distinct values --------------------------------------------------------------------------------------------- */

/* Of a row of values: the first of each run of equal ones; their numbers, and how often each occurs. order: where the
 * row's elements stood before they were sorted, or NULL. */
static tn_tensor *runs(const tn_tensor *x, const tn_tensor *row, const tn_tensor *order, tn_tensor **inverse,
                       tn_tensor **counts) {
    int64_t n = tn_numel(row);
    tn_tensor *first = tn_ones((int64_t[]){n < 1 ? n : 1}, 1, TN_BOOL);
    if (n > 1) {
        tn_tensor *begins = tn_ne(tn_slice(row, 0, 1, n, 1), tn_slice(row, 0, 0, n - 1, 1));
        first = tn_cat((tn_tensor *[]){first, begins}, 2, 0);
    }
    tn_tensor *places = tn_select(places_of(first), 1, 0);
    if (inverse) {
        tn_tensor *number = tn_sub(tn_cumsum(first, 0), tn_scalar_int(1));
        if (order) number = tn_scatter(tn_zeros(&n, 1, TN_I64), 0, order, number);
        *inverse = tn_keep(tn_reshape(number, tn_shape(x), tn_rank(x)));
    }
    if (counts) {
        tn_tensor *end = tn_full((int64_t[]){1}, 1, (double)n, TN_I64);
        tn_tensor *ends = tn_cat((tn_tensor *[]){tn_slice(places, 0, 1, INT64_MAX, 1), end}, 2, 0);
        *counts = tn_keep(n ? tn_sub(ends, places) : tn_contiguous(places));
    }
    return tn_index_select(row, 0, places);
}

static tn_tensor *all_bad(tn_tensor *bad, tn_tensor **inverse, tn_tensor **counts) {
    if (inverse) *inverse = tn_keep(tn_contiguous(bad));
    if (counts) *counts = tn_keep(tn_contiguous(bad));
    return tn_keep(bad);
}

tn_tensor *(tn_unique)(const tn_tensor *x, tn_tensor **inverse, tn_tensor **counts) {
    TN_FUNCTION("unique");
    tn_tensor *bad = refused(x);
    if (bad) return all_bad(bad, inverse, counts);
    bool truth = tn_dtype_of(x) == TN_BOOL;
    tn_tensor *row = truth ? tn_cast(flat(x), TN_U8) : flat(x), *order = tn_argsort(row, 0, false);
    tn_tensor *y = runs(x, tn_index_select(row, 0, order), order, inverse, counts);
    return tn_keep(truth ? tn_cast(y, TN_BOOL) : y);
}

tn_tensor *(tn_unique_consecutive)(const tn_tensor *x, tn_tensor **inverse, tn_tensor **counts) {
    TN_FUNCTION("unique_consecutive");
    tn_tensor *bad = refused(x);
    if (bad) return all_bad(bad, inverse, counts);
    return tn_keep(runs(x, flat(x), NULL, inverse, counts));
}

/* ---- counting and searching -------------------------------------------------------------------------------------- */

tn_tensor *(tn_bincount)(const tn_tensor *x, const tn_tensor *weights, int64_t minlength) {
    double most = -1, least = 0;
    TN_FUNCTION("bincount");
    tn_tensor *bad = weights ? refused2(x, weights) : refused(x);
    if (bad) return tn_keep(bad);
    if (tn_rank(x) != 1 || !is_index(x))
        return tn_keep(
            tn_failed(TN_ERR_DTYPE, "bincount: x is %s; pass a vector of integers", tn_dtype_name(tn_dtype_of(x))));
    if (minlength < 0)
        return tn_keep(
            tn_failed(TN_ERR_ARGUMENT, "bincount: minlength is %lld; it must be at least 0", (long long)minlength));
    if (weights && (tn_rank(weights) != 1 || tn_numel(weights) != tn_numel(x)))
        return tn_keep(tn_failed(TN_ERR_SHAPE, "bincount: weights must have the shape of x"));
    if (tn_numel(x)) {
        if (tn_read_item(tn_amax(x, NULL, 0, false), &most) != TN_OK)
            return tn_keep(tn_failed(TN_ERR_STATE, "bincount: %s", tn_error()));
        if (tn_read_item(tn_amin(x, NULL, 0, false), &least) != TN_OK)
            return tn_keep(tn_failed(TN_ERR_STATE, "bincount: %s", tn_error()));
    }
    if (least < 0)
        return tn_keep(tn_failed(TN_ERR_ARGUMENT, "bincount: x holds %g; its numbers must be at least 0", least));
    if (most >= 0x1p53)
        return tn_keep(tn_failed(TN_ERR_ARGUMENT, "bincount: x holds %g; that many places are impossible", most));
    int64_t size = (int64_t)most + 1 > minlength ? (int64_t)most + 1 : minlength;
    tn_dtype t = weights && tn_dtype_of(weights) == TN_F32 ? TN_F32 : TN_F64; /* f64 counts exactly, and has a kernel */
    tn_tensor *each = weights ? tn_cast(weights, t) : tn_ones(tn_shape(x), 1, t);
    tn_tensor *sum = tn_index_add(tn_zeros(&size, 1, t), 0, tn_cast(x, TN_I64), each);
    return tn_keep(weights ? sum : tn_cast(sum, TN_I64));
}

tn_tensor *(tn_histc)(const tn_tensor *x, int64_t bins, double min, double max) {
    TN_FUNCTION("histc");
    tn_tensor *bad = refused(x);
    if (bad) return tn_keep(bad);
    if (bins < 1)
        return tn_keep(tn_failed(TN_ERR_ARGUMENT, "histc: bins is %lld; it must be at least 1", (long long)bins));
    if (!is_float(x)) return tn_keep(tn_failed(TN_ERR_DTYPE, "histc: the tensor must be of a floating point type"));
    if (min == max && tn_numel(x)) {
        if (tn_read_item(tn_amin(x, NULL, 0, false), &min) != TN_OK)
            return tn_keep(tn_failed(TN_ERR_STATE, "histc: %s", tn_error()));
        if (tn_read_item(tn_amax(x, NULL, 0, false), &max) != TN_OK)
            return tn_keep(tn_failed(TN_ERR_STATE, "histc: %s", tn_error()));
    }
    if (min == max) min -= 1, max += 1;
    if (!(min < max) || !isfinite(max - min))
        return tn_keep(tn_failed(TN_ERR_ARGUMENT, "histc: the range from %g to %g is invalid", min, max));
    tn_tensor *v = flat(x);
    tn_tensor *inside = tn_logical_and(tn_ge(v, tn_scalar(min)), tn_le(v, tn_scalar(max)));
    tn_tensor *part = tn_div(tn_sub(v, tn_scalar(min)), tn_scalar(max - min));
    tn_tensor *place = tn_cast(times(tn_where(inside, part, tn_scalar(0)), (double)bins), TN_I64);
    place = tn_minimum(place, tn_scalar_int(bins - 1));
    tn_tensor *sum = tn_index_add(tn_zeros(&bins, 1, TN_F64), 0, place, tn_cast(inside, TN_F64));
    return tn_keep(tn_cast(sum, tn_dtype_of(x)));
}

/* By halving: `low` elements are known to be before the value; each step tries `step` more. */
static tn_tensor *search(const tn_tensor *sorted, const tn_tensor *values, bool right) {
    int rank = tn_rank(values);
    bool one_row = tn_rank(sorted) == 1;
    int64_t n = tn_size(sorted, -1), step = 1;
    tn_tensor *low = tn_zeros(tn_shape(values), rank, TN_I64);
    while (step <= n / 2)
        step *= 2;
    for (; n && step; step /= 2) {
        tn_tensor *next = tn_add(low, tn_scalar_int(step));
        tn_tensor *place = tn_sub(tn_minimum(next, tn_scalar_int(n)), tn_scalar_int(1));
        tn_tensor *v = one_row ? tn_reshape(tn_index_select(sorted, 0, flat(place)), tn_shape(values), rank)
                               : tn_gather(sorted, -1, place);
        tn_tensor *before = tn_logical_not(right ? tn_gt(v, values) : tn_ge(v, values));
        before = tn_logical_and(before, tn_le(next, tn_scalar_int(n)));
        low = tn_where(before, next, low);
    }
    return low;
}

tn_tensor *(tn_searchsorted)(const tn_tensor *sorted, const tn_tensor *values, bool right) {
    TN_FUNCTION("searchsorted");
    tn_tensor *bad = refused2(sorted, values);
    if (bad) return tn_keep(bad);
    int rank = tn_rank(sorted);
    bool fits = rank == 1 || (rank > 1 && rank == tn_rank(values));
    for (int d = 0; fits && rank > 1 && d < rank - 1; d++)
        fits = tn_size(sorted, d) == tn_size(values, d);
    if (!fits)
        return tn_keep(tn_failed(
            TN_ERR_SHAPE, "searchsorted: rows of the sorted tensor (rank %d) and of the values (rank %d) do not match",
            rank, tn_rank(values)));
    return tn_keep(search(sorted, values, right));
}

tn_tensor *(tn_bucketize)(const tn_tensor *x, const tn_tensor *boundaries, bool right) {
    TN_FUNCTION("bucketize");
    tn_tensor *bad = refused2(x, boundaries);
    if (bad) return tn_keep(bad);
    if (tn_rank(boundaries) != 1)
        return tn_keep(
            tn_failed(TN_ERR_SHAPE, "bucketize: boundaries must have rank 1; they have %d", tn_rank(boundaries)));
    return tn_keep(search(boundaries, x, right));
}

tn_tensor *(tn_isin)(const tn_tensor *x, const tn_tensor *values, bool invert) {
    TN_FUNCTION("isin");
    tn_tensor *bad = refused2(x, values);
    if (bad) return tn_keep(bad);
    int64_t n = tn_numel(values);
    tn_tensor *found;
    if (n == 0) {
        found = tn_zeros(tn_shape(x), tn_rank(x), TN_BOOL);
    } else {
        tn_tensor *row = tn_sort(flat(values), 0, false);
        tn_tensor *place = tn_minimum(search(row, x, false), tn_scalar_int(n - 1));
        found = tn_eq(tn_reshape(tn_index_select(row, 0, flat(place)), tn_shape(x), tn_rank(x)), x);
    }
    return tn_keep(invert ? tn_logical_not(found) : found);
}

tn_tensor *(tn_repeat_interleave)(const tn_tensor *x, int64_t repeats, int64_t dim) {
    TN_FUNCTION("repeat_interleave");
    tn_tensor *bad = refused(x);
    if (bad) return tn_keep(bad);
    int64_t at = dim_of(x, dim);
    if (at < 0) return no_dim("repeat_interleave", x, dim);
    if (repeats < 0)
        return tn_keep(tn_failed(TN_ERR_ARGUMENT, "repeat_interleave: repeats is %lld; it must be at least 0",
                                 (long long)repeats));
    tn_tensor *line = as_line(x);
    int64_t n = tn_size(line, at);
    if (n && repeats > INT64_MAX / n)
        return tn_keep(tn_failed(TN_ERR_ARGUMENT, "repeat_interleave: repeats is %lld; so many slices are impossible",
                                 (long long)repeats));
    tn_tensor *from =
        tn_reshape(tn_expand(tn_unsqueeze(numbers(0, n), 1), (int64_t[]){n, repeats}, 2), (int64_t[]){n * repeats}, 1);
    return tn_keep(tn_index_select(line, at, from));
}

/* Slice k ends where the running sum of the repeats says: each place of the result looks up which slice that is. */
tn_tensor *(tn_repeat_interleave_by)(const tn_tensor *x, const tn_tensor *repeats, int64_t dim) {
    double total = 0, least = 0, most = 0;
    TN_FUNCTION("repeat_interleave_by");
    tn_tensor *bad = refused2(x, repeats);
    if (bad) return tn_keep(bad);
    int64_t at = dim_of(x, dim);
    if (at < 0) return no_dim("repeat_interleave", x, dim);
    tn_tensor *line = as_line(x);
    int64_t n = tn_size(line, at);
    if (!is_index(repeats) || tn_rank(repeats) > 1 || (tn_numel(repeats) != 1 && tn_numel(repeats) != n))
        return tn_keep(tn_failed(TN_ERR_SHAPE,
                                 "repeat_interleave: repeats must be one integer, or one for each of the %lld slices",
                                 (long long)n));
    tn_tensor *each = tn_expand(tn_cast(flat(repeats), TN_I64), &n, 1);
    if (n && (tn_read_item(tn_sum(each, NULL, 0, false), &total) != TN_OK ||
              tn_read_item(tn_amin(each, NULL, 0, false), &least) != TN_OK ||
              tn_read_item(tn_amax(each, NULL, 0, false), &most) != TN_OK))
        return tn_keep(tn_failed(TN_ERR_STATE, "repeat_interleave: %s", tn_error()));
    if (least < 0)
        return tn_keep(tn_failed(TN_ERR_ARGUMENT, "repeat_interleave: a repeat is %g; it must be at least 0", least));
    if (most * (double)n >= 0x1p53) /* the sum might not fit */
        return tn_keep(
            tn_failed(TN_ERR_ARGUMENT, "repeat_interleave: a repeat is %g; so many slices are impossible", most));
    if (n == 0) return tn_keep(tn_contiguous(line));
    tn_tensor *from = search(tn_cumsum(each, 0), numbers(0, (int64_t)total), true);
    return tn_keep(tn_index_select(line, at, from));
}
