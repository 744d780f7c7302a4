/* shapes.c — copies with a part replaced, diagonals, grids of indices, windows, padding with values of the tensor. */
#include "functions/common.h"

/* ---- copies with a part replaced --------------------------------------------------------------------------------- */

/* Repeated once: tn_contiguous would share the storage of a tensor that is contiguous. */
tn_tensor *(tn_clone)(const tn_tensor *x) {
    static const int64_t once[TN_MAX_RANK] = {1, 1, 1, 1, 1, 1, 1, 1};
    TN_FUNCTION("clone");
    return tn_keep(tn_repeat(x, once, tn_rank(x)));
}

/* Writes src into a view of a copy of x; `part` belongs to the copy. */
static tn_tensor *with_part(const char *name, tn_tensor *copy, tn_tensor *part, const tn_tensor *src) {
    if (tn_status_of(part) != TN_OK) return part;
    bool same = tn_rank(part) == tn_rank(src);
    for (int d = 0; same && d < tn_rank(src); d++)
        same = tn_size(part, d) == tn_size(src, d);
    if (!same)
        return tn_failed(TN_ERR_SHAPE, "%s: the source does not have the shape of the part that it replaces", name);
    tn_tensor *written = tn_copy_(part, src);
    return tn_status_of(written) == TN_OK ? copy : tn_failed(tn_status_of(written), "%s: %s", name, tn_error());
}

tn_tensor *(tn_select_scatter)(const tn_tensor *x, const tn_tensor *src, int64_t dim, int64_t index) {
    TN_FUNCTION("select_scatter");
    tn_tensor *bad = refused2(x, src);
    if (bad) return tn_keep(bad);
    tn_tensor *copy = (tn_clone)(x);
    return tn_keep(with_part("select_scatter", copy, tn_select(copy, dim, index), src));
}

tn_tensor *(tn_slice_scatter)(const tn_tensor *x, const tn_tensor *src, int64_t dim, int64_t start, int64_t stop,
                              int64_t step) {
    TN_FUNCTION("slice_scatter");
    tn_tensor *bad = refused2(x, src);
    if (bad) return tn_keep(bad);
    tn_tensor *copy = (tn_clone)(x);
    return tn_keep(with_part("slice_scatter", copy, tn_slice(copy, dim, start, stop, step), src));
}

tn_tensor *(tn_as_strided_scatter)(const tn_tensor *x, const tn_tensor *src, const int64_t *shape, int rank,
                                   const int64_t *strides, int stride_count, int64_t offset) {
    TN_FUNCTION("as_strided_scatter");
    tn_tensor *bad = refused2(x, src);
    if (bad) return tn_keep(bad);
    tn_tensor *copy = (tn_clone)(x);
    tn_tensor *part = tn_as_strided(copy, shape, rank, strides, stride_count, offset);
    return tn_keep(with_part("as_strided_scatter", copy, part, src));
}

/* ---- diagonals --------------------------------------------------------------------------------------------------- */

/* x's own strides, counted in its elements. */
static void own_strides(const tn_tensor *x, int64_t strides[TN_MAX_RANK]) {
    int64_t stride = 1;
    for (int d = tn_rank(x) - 1; d >= 0; stride *= tn_size(x, d--))
        strides[d] = stride;
}

/* The diagonal of two dims as the last one; a view. Of the last two it is every (m + 1)-th element of rows of n · m,
 * which can be fused with what makes x. */
static tn_tensor *diagonal_of(const tn_tensor *x, int64_t offset, int64_t dim1, int64_t dim2) {
    int64_t shape[TN_MAX_RANK], strides[TN_MAX_RANK], own[TN_MAX_RANK], n = tn_size(x, (int)dim1),
                                                                        m = tn_size(x, (int)dim2);
    int64_t rows = offset < 0 ? n + offset : n, columns = offset > 0 ? m - offset : m;
    int64_t count = rows < columns ? rows : columns;
    int rank = 0;
    own_strides(x, own);
    if (count < 0) count = 0;
    int64_t first = count == 0 ? 0 : offset < 0 ? -offset * own[dim1] : offset * own[dim2];
    for (int d = 0; d < tn_rank(x); d++) {
        if (d == dim1 || d == dim2) continue;
        shape[rank] = tn_size(x, d);
        strides[rank++] = own[d];
    }
    if (dim1 == rank && dim2 == rank + 1) {
        shape[rank] = n * m;
        tn_tensor *flat_rows = tn_view(x, shape, rank + 1);
        int64_t stop = count == 0 ? 0 : first + (count - 1) * (m + 1) + 1;
        if (tn_status_of(flat_rows) == TN_OK) return tn_slice(flat_rows, -1, first, stop, m + 1);
    }
    shape[rank] = count;
    strides[rank++] = own[dim1] + own[dim2];
    return tn_as_strided(x, shape, rank, strides, rank, first);
}

/* Makes the dims of a diagonal positive; an error tensor if they are none. */
static tn_tensor *check_dims(const char *name, const tn_tensor *x, int64_t *dim1, int64_t *dim2) {
    int64_t a = dim_of(x, *dim1), b = dim_of(x, *dim2);
    if (tn_rank(x) < 2 || a < 0 || b < 0 || a == b)
        return tn_failed(TN_ERR_SHAPE, "%s: dims %lld and %lld of a tensor of rank %d: two different dims are needed",
                         name, (long long)*dim1, (long long)*dim2, tn_rank(x));
    *dim1 = a;
    *dim2 = b;
    return NULL;
}

tn_tensor *(tn_diagonal)(const tn_tensor *x, int64_t offset, int64_t dim1, int64_t dim2) {
    TN_FUNCTION("diagonal");
    tn_tensor *bad = refused(x);
    if (!bad) bad = check_dims("diagonal", x, &dim1, &dim2);
    if (bad) return tn_keep(bad);
    return tn_keep(diagonal_of(x, offset, dim1, dim2));
}

tn_tensor *(tn_diagonal_scatter)(const tn_tensor *x, const tn_tensor *src, int64_t offset, int64_t dim1, int64_t dim2) {
    TN_FUNCTION("diagonal_scatter");
    tn_tensor *bad = refused2(x, src);
    if (!bad) bad = check_dims("diagonal_scatter", x, &dim1, &dim2);
    if (bad) return tn_keep(bad);
    tn_tensor *copy = (tn_clone)(x);
    return tn_keep(with_part("diagonal_scatter", copy, diagonal_of(copy, offset, dim1, dim2), src));
}

tn_tensor *(tn_diag_embed)(const tn_tensor *x, int64_t offset, int64_t dim1, int64_t dim2) {
    TN_FUNCTION("diag_embed");
    tn_tensor *bad = refused(x);
    if (bad) return tn_keep(bad);
    int rank = tn_rank(x) + 1;
    int64_t a = dim1 < 0 ? dim1 + rank : dim1, b = dim2 < 0 ? dim2 + rank : dim2;
    if (tn_rank(x) == 0 || a < 0 || b < 0 || a >= rank || b >= rank || a == b)
        return tn_keep(tn_failed(TN_ERR_SHAPE,
                                 "diag_embed: dims %lld and %lld of a result of rank %d: two different dims are needed",
                                 (long long)dim1, (long long)dim2, rank));
    int64_t k = tn_size(x, -1), gap = offset < 0 ? -offset : offset, n = k + gap;
    /* row r has x's element r (or r − gap) in column r + offset */
    tn_tensor *row = tn_unsqueeze(numbers(0, n), 1), *hit = tn_eq(tn_add(row, tn_scalar_int(offset)), numbers(0, n));
    tn_tensor *padded = tn_pad(x, (int64_t[]){offset < 0 ? gap : 0, offset < 0 ? 0 : gap}, 2, 0);
    tn_tensor *zero = tn_zeros(NULL, 0, tn_dtype_of(x));
    tn_tensor *y = tn_where(hit, tn_unsqueeze(padded, -1), zero);
    if (a < b)
        y = tn_movedim(tn_movedim(y, -2, a), -1, b);
    else
        y = tn_movedim(tn_movedim(y, -1, b), -1, a);
    return tn_keep(tn_contiguous(y));
}

tn_tensor *(tn_diag)(const tn_tensor *x, int64_t diagonal) {
    TN_FUNCTION("diag");
    tn_tensor *bad = refused(x);
    if (bad) return tn_keep(bad);
    if (tn_rank(x) == 1) return tn_keep((tn_diag_embed)(x, diagonal, 0, 1));
    if (tn_rank(x) == 2) return tn_keep((tn_diagonal)(x, diagonal, 0, 1));
    return tn_keep(
        tn_failed(TN_ERR_SHAPE, "diag: the tensor has rank %d; it must be a vector or a matrix", tn_rank(x)));
}

tn_tensor *(tn_diagflat)(const tn_tensor *x, int64_t offset) {
    TN_FUNCTION("diagflat");
    tn_tensor *bad = refused(x);
    if (bad) return tn_keep(bad);
    return tn_keep(tn_diag_embed(flat(x), offset, 0, 1));
}

/* ---- grids of numbers -------------------------------------------------------------------------------------------- */

static tn_tensor *triangle_indices(const char *name, int64_t rows, int64_t columns, int64_t offset, bool lower) {
    if (rows < 0 || columns < 0 || rows > 1 << 29 || columns > 1 << 29) /* so that no count of bytes overflows */
        return tn_failed(TN_ERR_ARGUMENT, "%s: %lld rows and %lld columns; both must be from 0 to 2^29", name,
                         (long long)rows, (long long)columns);
    int64_t count = 0, *places = NULL, size = 0;
    offset = offset < -rows ? -rows : offset > columns ? columns : offset;
    for (int pass = 0; pass < 2; pass++) {
        size = count;
        if (pass && !(places = malloc((size_t)(2 * size + 1) * sizeof *places)))
            return tn_failed(TN_ERR_MEMORY, "%s: no memory for %lld places", name, (long long)size);
        count = 0;
        for (int64_t r = 0; r < rows; r++) {
            int64_t bound = r + offset, begin = lower || bound < 0 ? 0 : bound;
            int64_t end = lower && bound < columns ? bound + 1 : columns;
            for (int64_t c = begin; c < end && pass; c++)
                places[count + c - begin] = r, places[size + count + c - begin] = c;
            count += end > begin ? end - begin : 0;
        }
    }
    tn_tensor *t = tn_from_data(places, (int64_t[]){2, size}, 2, TN_I64);
    free(places);
    return t;
}

tn_tensor *(tn_tril_indices)(int64_t row, int64_t col, int64_t offset) {
    return triangle_indices("tril_indices", row, col, offset, true);
}
tn_tensor *(tn_triu_indices)(int64_t row, int64_t col, int64_t offset) {
    return triangle_indices("triu_indices", row, col, offset, false);
}

static tn_status check_vectors(const char *name, tn_tensor *const *tensors, int count) {
    tn_status s = TN_OK;
    if (!tensors || count < 1 || count > TN_MAX_RANK) s = TN_ERR_ARGUMENT;
    for (int k = 0; s == TN_OK && k < count; k++) {
        s = tn_status_of(tensors[k]);
        if (s == TN_OK && tn_rank(tensors[k]) > 1) s = TN_ERR_SHAPE;
    }
    if (s == TN_ERR_ARGUMENT || s == TN_ERR_SHAPE)
        tn_free(tn_failed(s, "%s: pass 1 to %d tensors of rank 0 or 1", name, TN_MAX_RANK));
    return s;
}

tn_status(tn_meshgrid)(tn_tensor *const *tensors, int count, bool xy, tn_tensor **out) {
    int64_t shape[TN_MAX_RANK];
    if (!out && count > 0) return check_vectors("meshgrid", NULL, 0);
    tn_status s = check_vectors("meshgrid", tensors, count);
    for (int k = 0; k < count && k < TN_MAX_RANK; k++)
        shape[k] = s == TN_OK ? tn_numel(tensors[k]) : 0;
    for (int k = 0; k < count; k++) {
        TN_SCOPE;
        if (s != TN_OK) {
            out[k] = tn_keep(tn_failed(s, "meshgrid: %s", tn_error()));
            continue;
        }
        tn_tensor *grid = tn_expand(along(tensors[k], k, count), shape, count);
        out[k] = tn_keep(xy && count > 1 ? tn_transpose(grid, 0, 1) : tn_contiguous(grid));
    }
    return s;
}

tn_tensor *(tn_cartesian_prod)(tn_tensor *const *tensors, int count) {
    tn_tensor *grid[TN_MAX_RANK];
    TN_FUNCTION("cartesian_prod");
    tn_status s = check_vectors("cartesian_prod", tensors, count);
    if (s != TN_OK) return tn_keep(tn_failed(s, "cartesian_prod: %s", tn_error()));
    if (count == 1) return tn_keep(tn_contiguous(tensors[0]));
    (tn_meshgrid)(tensors, count, false, grid);
    for (int k = 0; k < count; k++)
        grid[k] = flat(grid[k]);
    return tn_keep(tn_stack(grid, count, 1));
}

tn_tensor *(tn_combinations)(const tn_tensor *x, int64_t r, bool with_replacement) {
    TN_FUNCTION("combinations");
    tn_tensor *grid[TN_MAX_RANK], *all[TN_MAX_RANK], *bad = refused(x);
    if (bad) return tn_keep(bad);
    if (tn_rank(x) != 1 || r < 0 || r > TN_MAX_RANK)
        return tn_keep(tn_failed(TN_ERR_ARGUMENT, "combinations: a vector and r from 0 to %d are needed", TN_MAX_RANK));
    if (r == 0) return tn_keep(tn_zeros((int64_t[]){0}, 1, tn_dtype_of(x)));
    for (int64_t k = 0; k < r; k++)
        all[k] = numbers(0, tn_numel(x));
    (tn_meshgrid)(all, (int)r, false, grid);
    tn_tensor *kept = tn_ones(tn_shape(grid[0]), (int)r, TN_BOOL);
    for (int64_t k = 1; k < r; k++)
        kept = tn_logical_and(kept, with_replacement ? tn_le(grid[k - 1], grid[k]) : tn_lt(grid[k - 1], grid[k]));
    for (int64_t k = 0; k < r; k++) {
        tn_tensor *places = tn_masked_select(grid[k], kept);
        grid[k] = tn_index_select(x, 0, places);
    }
    return tn_keep(tn_stack(grid, (int)r, 1));
}

tn_tensor *(tn_block_diag)(tn_tensor *const *tensors, int count) {
    enum { MOST = 255 }; /* as tn_cat takes them */
    tn_tensor *row[MOST];
    int64_t columns = 0, before = 0;
    TN_FUNCTION("block_diag");
    if (!tensors || count < 1 || count > MOST)
        return tn_keep(tn_failed(TN_ERR_ARGUMENT, "block_diag: pass 1 to %d tensors", MOST));
    for (int k = 0; k < count; k++) {
        tn_tensor *bad = refused(tensors[k]);
        if (bad) return tn_keep(bad);
        if (tn_rank(tensors[k]) > 2)
            return tn_keep(tn_failed(TN_ERR_SHAPE, "block_diag: tensor %d has rank %d; at most 2 is possible", k,
                                     tn_rank(tensors[k])));
        row[k] = tn_rank(tensors[k]) == 2 ? tn_contiguous(tensors[k])
                                          : tn_reshape(tensors[k], (int64_t[]){1, tn_numel(tensors[k])}, 2);
        columns += tn_size(row[k], 1);
    }
    for (int k = 0; k < count; k++) {
        int64_t width = tn_size(row[k], 1);
        row[k] = tn_pad(row[k], (int64_t[]){before, columns - before - width}, 2, 0);
        before += width;
    }
    return tn_keep(tn_cat(row, count, 0));
}

/* ---- windows, powers --------------------------------------------------------------------------------------------- */

tn_tensor *(tn_unfold)(const tn_tensor *x, int64_t dim, int64_t size, int64_t step) {
    TN_FUNCTION("unfold");
    tn_tensor *bad = refused(x);
    if (bad) return tn_keep(bad);
    int64_t at = dim_of(x, dim), extent = at < 0 ? 0 : extent_of(x, at);
    if (at < 0) return no_dim("unfold", x, dim);
    if (size < 0 || size > extent || step < 1)
        return tn_keep(tn_failed(TN_ERR_ARGUMENT, "unfold: windows of %lld, %lld apart, do not fit extent %lld",
                                 (long long)size, (long long)step, (long long)extent));
    int rank = tn_rank(x);
    int64_t count = (extent - size) / step + 1, shape[TN_MAX_RANK], strides[TN_MAX_RANK];
    if (rank == 0) return tn_keep(tn_reshape(x, &size, 1));
    if (size == step && count * size == extent && size > 0) /* side by side */
        return tn_keep(tn_movedim(tn_unflatten(x, at, (int64_t[]){count, size}, 2), at + 1, -1));
    if (rank == TN_MAX_RANK)
        return tn_keep(tn_failed(TN_ERR_SHAPE, "unfold: the result would exceed the maximum rank, %d", TN_MAX_RANK));
    own_strides(x, strides);
    memcpy(shape, tn_shape(x), (size_t)rank * sizeof *shape);
    shape[at] = count;
    shape[rank] = size;
    strides[rank] = strides[at];
    strides[at] *= step;
    return tn_keep(tn_as_strided(x, shape, rank + 1, strides, rank + 1, 0));
}

tn_tensor *(tn_vander)(const tn_tensor *x, int64_t n) {
    enum { MOST = 255 };
    TN_FUNCTION("vander");
    tn_tensor *power[MOST], *bad = refused(x);
    if (bad) return tn_keep(bad);
    if (n < 0 || n > MOST)
        return tn_keep(tn_failed(TN_ERR_ARGUMENT, "vander: n is %lld; it must be from 0 to %d", (long long)n, MOST));
    tn_tensor *v = tn_dtype_of(x) == TN_BOOL ? tn_cast(x, TN_I64) : tn_contiguous(x);
    if (tn_rank(x) == 0) v = tn_unsqueeze(v, 0);
    if (n == 0) return tn_keep(tn_slice(tn_unsqueeze(v, -1), -1, 0, 0, 1));
    power[0] = tn_ones_like(v);
    for (int64_t k = 1; k < n; k++)
        power[k] = tn_mul(power[k - 1], v);
    return tn_keep(tn_stack(power, (int)n, -1));
}

/* ---- padding with values of the tensor --------------------------------------------------------------------------- */

/* For each place of the padded dim the place that it copies. */
static tn_tensor *mirrored(int64_t before, int64_t size, int64_t count, tn_pad_mode mode) {
    tn_tensor *i = numbers(-before, count);
    if (mode == TN_PAD_CIRCULAR) return tn_remainder(i, tn_scalar_int(size));
    if (mode == TN_PAD_REPLICATE) return tn_minimum(tn_maximum(i, tn_scalar_int(0)), tn_scalar_int(size - 1));
    tn_tensor *last = tn_scalar_int(size - 1);
    return tn_sub(last, tn_abs(tn_sub(last, tn_abs(i))));
}

tn_tensor *(tn_pad_by)(const tn_tensor *x, const int64_t *pads, int pad_count, tn_pad_mode mode) {
    TN_FUNCTION("pad_by");
    tn_tensor *bad = refused(x);
    if (bad) return tn_keep(bad);
    bad = no_choice("pad_by: mode", (int)mode, TN_PAD_CIRCULAR, "TN_PAD_REFLECT, TN_PAD_REPLICATE, TN_PAD_CIRCULAR");
    if (!bad) bad = no_list("pad: the list of pads", pads, pad_count);
    if (bad) return tn_keep(bad);
    if (pad_count < 0 || pad_count % 2 || pad_count / 2 > tn_rank(x))
        return tn_keep(tn_failed(TN_ERR_ARGUMENT, "pad: %d pads for a tensor of rank %d: pass two for each padded dim",
                                 pad_count, tn_rank(x)));
    tn_tensor *y = tn_contiguous(x);
    for (int k = 0; k < pad_count / 2; k++) {
        int64_t before = pads[2 * k], after = pads[2 * k + 1], size = tn_size(y, -1 - k);
        if (mode == TN_PAD_CIRCULAR && (before < 0 || after < 0)) { /* what is left is what is repeated */
            int64_t stop = after < 0 ? size + after : size;
            y = tn_slice(y, -1 - k, before < 0 ? -before : 0, stop < 0 ? 0 : stop, 1);
            before = before < 0 ? 0 : before, after = after < 0 ? 0 : after, size = tn_size(y, -1 - k);
        }
        int64_t count = before + size + after;
        int64_t most = mode == TN_PAD_REFLECT ? size - 1 : mode == TN_PAD_CIRCULAR ? size : INT64_MAX;
        if (before > most || after > most || count < 0 || (size == 0 && count > 0))
            return tn_keep(tn_failed(TN_ERR_SHAPE, "pad: pads %lld and %lld are too large for extent %lld of dim %d",
                                     (long long)before, (long long)after, (long long)size, tn_rank(x) - 1 - k));
        if (before || after) y = tn_index_select(y, -1 - k, mirrored(before, size, count, mode));
    }
    return tn_keep(y);
}
