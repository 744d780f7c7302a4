/* onnx_index.c — ONNX: operators that read, write or select elements by an index tensor.
 *
 * Negative indices count from the end. GatherND and ScatterND flatten the dimensions that an index addresses into one,
 * and the rest into rows, so both select or write rows. Operators whose result size depends on values (NonZero,
 * Compress, Unique) run on the host. */
#include <string.h>

#include "onnx/operator_support.h"

/* ---- indices ----------------------------------------------------------------------------------------------------- */

static tn_tensor *from_front(const tn_tensor *index, int64_t size) {
    tn_tensor *i = tn_cast(index, TN_I64);
    return tn_where(tn_lt_scalar(i, 0), tn_add(i, tn_scalar_int(size)), i);
}

/* Constant indices are known before anything is computed: one outside its dimension is an error. Input i holds tuples
 * of `width` indices for dims from, from + 1 … of x; width 0: single indices for dim `from`. */
static tn_status check_constant(const onnx_call *c, int i, const tn_tensor *x, int from, int width) {
    AUTO_FREE int64_t *list = NULL;
    int64_t count;
    if (!onnx_has(c, i) || c->in[i]->fixed != ONNX_CONSTANT) return TN_OK;
    TRY(onnx_read_ints(c, i, &list, &count, INT64_MAX));
    for (int64_t k = 0; k < count; k++) {
        int dim = from + (int)(width ? k % width : 0);
        int64_t size = tn_rank(x) ? tn_size(x, dim) : 1;
        if (list[k] < -size || list[k] >= size)
            return onnx_refuse(c, "index %lld (element %lld of input %d) is outside dimension %d of extent %lld",
                               (long long)list[k], (long long)k, i, dim, (long long)size);
    }
    return TN_OK;
}

/* 0, 1, 2 … along a dimension of tensors of this rank. */
static tn_tensor *counted_along(int64_t size, int dim, int rank) {
    int64_t shape[TN_MAX_RANK];
    for (int d = 0; d < rank; d++)
        shape[d] = d == dim ? size : 1;
    return tn_reshape(tn_arange(0, (double)size, 1, TN_I64), shape, rank);
}

/* ---- Gather ------------------------------------------------------------------------------------------------------ */

/* A single index that is known is a view. */
static tn_status take_one(onnx_call *c, const tn_tensor *x, int axis, const int64_t *shape, int rank) {
    int64_t i, size = tn_size(x, axis);
    TRY(onnx_read_int(c, 1, 0, &i));
    if (i < -size || i >= size)
        return onnx_refuse(c, "index %lld is out of range for %lld elements", (long long)i, (long long)size);
    i = i < 0 ? i + size : i;
    return onnx_put_like(c, 0, tn_reshape(tn_slice(x, axis, i, i + 1, 1), shape, rank), 0);
}

tn_status onnx_gather(onnx_call *c) {
    const tn_tensor *x, *index;
    int64_t shape[2 * TN_MAX_RANK];
    int axis, rank = 0;
    TRY(onnx_need_first(c, &x, &index));
    TRY(onnx_axis(c, onnx_int(c, "axis", 0), tn_rank(x), &axis));
    if (tn_rank(x) - 1 + tn_rank(index) > TN_MAX_RANK)
        return onnx_refuse(c, "the rank of the result exceeds %d", TN_MAX_RANK);
    for (int d = 0; d < axis; d++)
        shape[rank++] = tn_size(x, d);
    for (int d = 0; d < tn_rank(index); d++)
        shape[rank++] = tn_size(index, d);
    for (int d = axis + 1; d < tn_rank(x); d++)
        shape[rank++] = tn_size(x, d);
    if (c->in[1]->fixed != ONNX_VARIES && tn_numel(index) == 1) return take_one(c, x, axis, shape, rank);
    TRY(check_constant(c, 1, x, axis, 0));
    tn_tensor *flat = tn_reshape(from_front(index, tn_size(x, axis)), (int64_t[]){tn_numel(index)}, 1);
    return onnx_put_like(c, 0, tn_reshape(tn_index_select(x, axis, flat), shape, rank), 0);
}

tn_status onnx_gather_elements(onnx_call *c) {
    const tn_tensor *x, *index;
    int axis;
    TRY(onnx_need_first(c, &x, &index));
    TRY(onnx_axis(c, onnx_int(c, "axis", 0), tn_rank(x), &axis));
    TRY(check_constant(c, 1, x, axis, 0));
    return onnx_put_like(c, 0, tn_gather(x, axis, from_front(index, tn_size(x, axis))), 0);
}

/* Where tuples of indices (the last dim of `index`) lead in dims [from, from + width) of x, taken as one: index's shape
 * without its last dim. */
static tn_tensor *tuple_places(const tn_tensor *index, const tn_tensor *x, int from, int width) {
    tn_tensor *place = NULL;
    for (int k = 0; k < width; k++) {
        int64_t step = tn_product(tn_shape(x) + from + k + 1, width - k - 1);
        tn_tensor *part = tn_mul(from_front(tn_select(index, -1, k), tn_size(x, from + k)), tn_scalar_int(step));
        place = place ? tn_add(place, part) : part;
    }
    return place;
}

static tn_status check_tuples(const onnx_call *c, const tn_tensor *x, const tn_tensor *index, int batch) {
    int q = tn_rank(index);
    bool fits = batch >= 0 && q > batch && tn_size(index, -1) >= 1 && tn_size(index, -1) <= tn_rank(x) - batch;
    for (int d = 0; fits && d < batch; d++)
        fits = tn_size(x, d) == tn_size(index, d);
    return fits ? TN_OK : onnx_refuse(c, "indices do not fit the data: their last extent must be at most its rank");
}

tn_status onnx_gather_nd(onnx_call *c) {
    const tn_tensor *x, *index;
    int64_t shape[2 * TN_MAX_RANK], batch = onnx_int(c, "batch_dims", 0);
    TRY(onnx_need_first(c, &x, &index));
    TRY(check_tuples(c, x, index, (int)tn_max64(tn_min64(batch, TN_MAX_RANK), -1)));
    int b = (int)batch, width = (int)tn_size(index, -1), rank = tn_rank(index) - 1;
    TRY(check_constant(c, 1, x, b, width));
    memcpy(shape, tn_shape(index), (size_t)rank * sizeof *shape);
    for (int d = b + width; d < tn_rank(x); d++)
        shape[rank++] = tn_size(x, d);
    if (rank > TN_MAX_RANK) return onnx_refuse(c, "a result of rank %d is not supported", rank);
    int64_t batches = tn_product(tn_shape(x), b), places = tn_product(tn_shape(x) + b, width);
    int64_t rows = tn_product(tn_shape(x) + b + width, tn_rank(x) - b - width);
    tn_tensor *place = tuple_places(index, x, b, width);
    if (b > 0 && batches > 0) {
        place = tn_reshape(place, (int64_t[]){batches, tn_numel(place) / batches}, 2);
        place = tn_add(place, tn_mul(counted_along(batches, 0, 2), tn_scalar_int(places)));
    }
    place = tn_reshape(place, (int64_t[]){tn_numel(place)}, 1);
    tn_tensor *y = tn_index_select(tn_reshape(x, (int64_t[]){batches * places, rows}, 2), 0, place);
    return onnx_put_like(c, 0, tn_reshape(y, shape, rank), 0);
}

/* ---- Scatter ----------------------------------------------------------------------------------------------------- */

/* −1 where nothing is asked for: the last one stays. */
static tn_status reduction_of(const onnx_call *c, int *out) {
    static const struct {
        const char *name;
        int reduce;
    } names[] = {{"none", -1},
                 {"add", TN_REDUCE_SUM},
                 {"mul", TN_REDUCE_PROD},
                 {"max", TN_REDUCE_AMAX},
                 {"min", TN_REDUCE_AMIN}};
    onnx_text name = onnx_string(c, "reduction", "none");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (onnx_is(name, names[i].name)) {
            *out = names[i].reduce;
            return TN_OK;
        }
    return onnx_refuse(c, "reduction '%.*s' is not supported", (int)name.size, name.at);
}

tn_status onnx_scatter_elements(onnx_call *c) {
    const tn_tensor *x, *index, *updates;
    int axis, reduce;
    TRY(onnx_need_first(c, &x, &index, &updates));
    TRY(reduction_of(c, &reduce));
    TRY(onnx_axis(c, onnx_int(c, "axis", 0), tn_rank(x), &axis));
    TRY(check_constant(c, 1, x, axis, 0));
    tn_tensor *place = from_front(index, tn_size(x, axis));
    tn_tensor *y = reduce < 0 ? tn_scatter(x, axis, place, updates)
                              : tn_scatter_reduce(x, axis, place, updates, (tn_reduce)reduce, true);
    return onnx_put_like(c, 0, y, 0);
}

/* Rows of x [places, width] replaced by those of updates that `place` leads there, the last one staying. */
static tn_tensor *placed_rows(const tn_tensor *x, const tn_tensor *place, const tn_tensor *updates) {
    int64_t places = tn_size(x, 0), count = tn_numel(place);
    if (count == 0 || places == 0) return tn_contiguous(x);
    tn_tensor *none = tn_full((int64_t[]){places}, 1, -1, TN_I64);
    tn_tensor *last = tn_scatter(none, 0, place, tn_arange(0, (double)count, 1, TN_I64));
    tn_tensor *rows = tn_index_select(updates, 0, tn_maximum(last, tn_scalar_int(0)));
    return tn_where(tn_unsqueeze(tn_ge_scalar(last, 0), 1), rows, x);
}

tn_status onnx_scatter_nd(onnx_call *c) {
    const tn_tensor *x, *index, *updates;
    int reduce;
    TRY(onnx_need_first(c, &x, &index, &updates));
    TRY(reduction_of(c, &reduce));
    TRY(check_tuples(c, x, index, 0));
    int width = (int)tn_size(index, -1);
    TRY(check_constant(c, 1, x, 0, width));
    int64_t places = tn_product(tn_shape(x), width), rows = tn_product(tn_shape(x) + width, tn_rank(x) - width);
    tn_tensor *place = tuple_places(index, x, 0, width);
    int64_t count = tn_numel(place);
    place = tn_reshape(place, &count, 1);
    tn_tensor *data = tn_reshape(x, (int64_t[]){places, rows}, 2);
    tn_tensor *source = tn_reshape(updates, (int64_t[]){count, rows}, 2);
    tn_tensor *y;
    if (reduce < 0)
        y = placed_rows(data, place, source);
    else if (reduce == TN_REDUCE_SUM)
        y = tn_index_add(data, 0, place, source);
    else
        y = tn_scatter_reduce(data, 0, tn_expand(tn_unsqueeze(place, 1), (int64_t[]){count, rows}, 2), source,
                              (tn_reduce)reduce, true);
    return onnx_put_like(c, 0, tn_reshape(y, tn_shape(x), tn_rank(x)), 0);
}

/* A cache's places from write_indices on are the update's; mode circular begins anew after the last. */
tn_status onnx_tensor_scatter(onnx_call *c) {
    const tn_tensor *cache, *update;
    int axis;
    TRY(onnx_need_first(c, &cache, &update));
    int rank = tn_rank(cache);
    TRY(onnx_axis(c, onnx_int(c, "axis", -2), rank, &axis));
    tn_tensor *place = counted_along(tn_size(update, axis), axis, rank);
    if (onnx_in(c, 2)) {
        int64_t shape[TN_MAX_RANK] = {tn_numel(onnx_in(c, 2))};
        for (int d = 1; d < rank; d++)
            shape[d] = 1;
        place = tn_add(place, tn_reshape(tn_cast(onnx_in(c, 2), TN_I64), shape, rank));
    }
    if (onnx_is(onnx_string(c, "mode", "linear"), "circular") && tn_size(cache, axis) > 0)
        place = tn_remainder(place, tn_scalar_int(tn_size(cache, axis)));
    place = tn_expand(place, tn_shape(update), rank);
    return onnx_put_like(c, 0, tn_scatter(cache, axis, place, update), 0);
}

/* ---- patterns ---------------------------------------------------------------------------------------------------- */

tn_status onnx_one_hot(onnx_call *c) {
    const tn_tensor *index, *values;
    double depth;
    int axis;
    TRY(onnx_need(c, 0, &index));
    TRY(onnx_need(c, 2, &values));
    TRY(onnx_read_float(c, 1, 0, &depth));
    TRY(onnx_axis(c, onnx_int(c, "axis", -1), tn_rank(index) + 1, &axis));
    if (!(depth >= 0 && depth < 0x1p31)) return onnx_refuse(c, "depth is %g; it must be at least 0", depth);
    tn_tensor *place = tn_unsqueeze(from_front(index, (int64_t)depth), axis);
    tn_tensor *hot = tn_eq(place, counted_along((int64_t)depth, axis, tn_rank(index) + 1));
    return onnx_put_like(c, 0, tn_where(hot, tn_select(values, 0, 1), tn_select(values, 0, 0)), 2);
}

/* The first elements of each sequence in reverse order. */
tn_status onnx_reverse_sequence(onnx_call *c) {
    const tn_tensor *x, *lengths;
    int batch, time;
    TRY(onnx_need_first(c, &x, &lengths));
    int rank = tn_rank(x);
    TRY(onnx_axis(c, onnx_int(c, "batch_axis", 1), rank, &batch));
    TRY(onnx_axis(c, onnx_int(c, "time_axis", 0), rank, &time));
    int64_t shape[TN_MAX_RANK];
    for (int d = 0; d < rank; d++)
        shape[d] = d == batch ? tn_numel(lengths) : 1;
    tn_tensor *length = tn_reshape(tn_cast(lengths, TN_I64), shape, rank);
    tn_tensor *number = counted_along(tn_size(x, time), time, rank);
    tn_tensor *turned = tn_sub(tn_sub(length, number), tn_scalar_int(1));
    tn_tensor *place = tn_where(tn_lt(number, length), turned, number);
    return onnx_put_like(c, 0, tn_take_along_dim(x, time, place), 0);
}

/* ---- extents that numbers decide --------------------------------------------------------------------------------- */

enum { MOST_READ = 1 << 28 }; /* numbers read on the host */

/* Input i's numbers as keys whose order as unsigned integers is that of the numbers; −0 is 0, NaN the greatest. */
static tn_status read_keys(const onnx_call *c, int i, uint64_t **out, int64_t *count) {
    const uint64_t top = UINT64_C(1) << 63;
    const onnx_value *v = c->in[i];
    int64_t *whole = NULL;
    double *number = NULL;
    if (v->kind == ONNX_STRINGS) {
        *count = v->count;
        TRY(onnx_text_ranks(v->strings, v->count, &whole));
        *out = (uint64_t *)whole;
        return TN_OK;
    }
    const tn_tensor *x;
    TRY(onnx_need(c, i, &x));
    tn_dtype t = tn_dtype_of(x);
    if (!tn_dtype_is_float(t)) {
        TRY(onnx_read_ints(c, i, &whole, count, MOST_READ));
        *out = (uint64_t *)whole;
        for (int64_t k = 0; k < *count && t != TN_U64; k++)
            (*out)[k] ^= top;
        return TN_OK;
    }
    TRY(onnx_read_floats(c, i, &number, count, MOST_READ));
    *out = (uint64_t *)(void *)number;
    for (int64_t k = 0; k < *count; k++) {
        uint64_t bits;
        double v64 = number[k] == 0 ? 0 : number[k];
        memcpy(&bits, &v64, sizeof bits);
        bits = v64 != v64 ? UINT64_MAX : bits & top ? ~bits : bits | top;
        memcpy(&number[k], &bits, sizeof bits);
    }
    return TN_OK;
}

static tn_tensor *from_ints(const int64_t *numbers, int64_t count) { return tn_from_data(numbers, &count, 1, TN_I64); }

/* Elements are counted by pieces, then each piece knows where its places go. */
enum { PIECE = 1 << 14 };
typedef struct finding {
    uint8_t *holds; /* 0 or 1 of each of count elements */
    int64_t count, shape[TN_MAX_RANK], found;
    int64_t *before, *places; /* found before each piece; [rank, found] */
    int rank;
} finding;
static void free_finding(finding *f) { tn_mem_free_each(f->holds, f->places, f->before); }

static tn_status read_truth(const onnx_call *c, const tn_tensor *x, uint8_t **out) {
    AUTO_FREE double *numbers = NULL;
    int64_t count = tn_numel(x);
    if (count > MOST_READ) return onnx_refuse(c, "%lld elements; the limit is %d", (long long)count, MOST_READ);
    *out = tn_mem_alloc((size_t)tn_max64(count, 1));
    if (!*out) return TN_ERR_MEMORY;
    if (onnx_reads_freely(c, 0))
        return tn_read(tn_dtype_of(x) == TN_BOOL ? x : tn_ne_scalar(x, 0), *out, (size_t)count);
    TRY(onnx_read_floats(c, 0, &numbers, &count, MOST_READ));
    for (int64_t i = 0; i < count; i++)
        (*out)[i] = numbers[i] != 0;
    return TN_OK;
}

static void count_pieces(void *ctx, int64_t begin, int64_t end, TN_UNUSED int worker) {
    const finding *f = ctx;
    for (int64_t p = begin; p < end; p++) {
        int64_t last = tn_min64((p + 1) * PIECE, f->count), sum = 0;
        for (int64_t i = p * PIECE; i < last; i++)
            sum += f->holds[i];
        f->before[p + 1] = sum;
    }
}

static void place_piece(const finding *f, int64_t p) {
    int64_t at[TN_MAX_RANK] = {0}, rest = p * PIECE, last = tn_min64((p + 1) * PIECE, f->count);
    int64_t *to = f->places + f->before[p];
    for (int d = f->rank - 1; d >= 0; d--) {
        at[d] = rest % f->shape[d];
        rest /= f->shape[d];
    }
    for (int64_t i = p * PIECE; i < last; i++) {
        if (f->holds[i]) {
            for (int d = 0; d < f->rank; d++)
                to[d * f->found] = at[d];
            to++;
        }
        for (int d = f->rank - 1; d >= 0 && ++at[d] == f->shape[d]; d--)
            at[d] = 0;
    }
}

static void place_pieces(void *ctx, int64_t begin, int64_t end, TN_UNUSED int worker) {
    for (int64_t p = begin; p < end; p++)
        place_piece(ctx, p);
}

static tn_status find_places(finding *f) {
    int64_t pieces = tn_ceil_div(f->count, PIECE);
    f->before = tn_mem_zalloc((size_t)pieces + 1, sizeof *f->before);
    if (!f->before) return TN_ERR_MEMORY;
    tn_parallel(pieces, 1, count_pieces, f);
    for (int64_t p = 0; p < pieces; p++)
        f->before[p + 1] += f->before[p];
    f->found = f->before[pieces];
    f->places = tn_mem_alloc((size_t)tn_max64(f->found * f->rank, 1) * sizeof *f->places);
    if (!f->places) return TN_ERR_MEMORY;
    tn_parallel(pieces, 1, place_pieces, f);
    return TN_OK;
}

/* Where x is not 0: [rank, count], in row-major order. */
tn_status onnx_non_zero(onnx_call *c) {
    const tn_tensor *x;
    AUTO_CALL(free_finding) finding f = {0};
    TRY(onnx_need(c, 0, &x));
    f.rank = tn_rank(x);
    if (f.rank) memcpy(f.shape, tn_shape(x), (size_t)f.rank * sizeof *f.shape);
    f.count = tn_numel(x);
    TRY(read_truth(c, x, &f.holds));
    TRY(find_places(&f));
    return onnx_put(c, 0, tn_from_data(f.places, (int64_t[]){f.rank, f.found}, 2, TN_I64));
}

/* The slices along axis, or elements, for which the condition holds. */
tn_status onnx_compress(onnx_call *c) {
    const tn_tensor *x;
    int64_t *condition, count, kept = 0;
    int axis = 0;
    TRY(onnx_need(c, 0, &x));
    if (onnx_find(c, "axis"))
        TRY(onnx_axis(c, onnx_int(c, "axis", 0), tn_rank(x), &axis));
    else
        x = tn_reshape(x, (int64_t[]){tn_numel(x)}, 1);
    TRY(onnx_read_ints(c, 1, &condition, &count, MOST_READ));
    count = tn_min64(count, tn_size(x, axis));
    for (int64_t i = 0; i < count; i++)
        if (condition[i]) condition[kept++] = i;
    tn_tensor *y = tn_index_select(x, axis, from_ints(condition, kept));
    tn_mem_free(condition);
    return onnx_put_like(c, 0, y, 0);
}

/* What Unique orders: `count` items, each of `width` keys; key j of item i lies at
 * j / inner · count · inner + i · inner + j % inner. */
typedef struct items {
    uint64_t *keys;
    int64_t count, width, inner;
} items;

static int compare_items(const items *all, int64_t a, int64_t b) {
    for (int64_t j = 0; j < all->width; j++) {
        int64_t at = j / all->inner * all->count * all->inner + j % all->inner;
        uint64_t x = all->keys[at + a * all->inner], y = all->keys[at + b * all->inner];
        if (x != y) return x < y ? -1 : 1;
    }
    return 0;
}
static bool item_before(const void *data, int64_t a, int64_t b) { return compare_items(data, a, b) < 0; }
static bool earlier(const void *data, int64_t a, int64_t b) {
    const int64_t *first = data;
    return first[a] < first[b];
}

typedef struct unique {
    int64_t *first, *inverse, *counts; /* of each group, of each item, of each group */
    int64_t groups;
} unique;

/* Groups of equal items in ascending order. */
static tn_status group_items(const items *all, unique *u) {
    AUTO_FREE int64_t *order = NULL;
    TRY(onnx_sort(all->count, item_before, all, &order));
    for (int64_t i = 0; i < all->count; i++) {
        if (i == 0 || compare_items(all, order[i - 1], order[i]) != 0) u->first[u->groups++] = order[i];
        u->inverse[order[i]] = u->groups - 1;
        u->counts[u->groups - 1]++;
    }
    return TN_OK;
}

/* The same groups in the order in which they first occur. */
static tn_status as_they_come(unique *u, int64_t count) {
    int64_t *order;
    TRY(onnx_sort(u->groups, earlier, u->first, &order));
    int64_t *now = tn_mem_zalloc((size_t)u->groups * 3, sizeof *now);
    for (int64_t g = 0; now && g < u->groups; g++) {
        now[order[g]] = g;
        now[u->groups + g] = u->first[order[g]];
        now[2 * u->groups + g] = u->counts[order[g]];
    }
    for (int64_t i = 0; now && i < count; i++)
        u->inverse[i] = now[u->inverse[i]];
    if (now && u->groups) {
        memcpy(u->first, now + u->groups, (size_t)u->groups * sizeof *now);
        memcpy(u->counts, now + 2 * u->groups, (size_t)u->groups * sizeof *now);
    }
    tn_mem_free_each(order, now);
    return now || !u->groups ? TN_OK : TN_ERR_MEMORY;
}

static tn_status put_unique(onnx_call *c, int axis, bool flat, const unique *u, int64_t count) {
    const onnx_value *v = c->in[0];
    if (v->kind == ONNX_STRINGS) {
        onnx_text *texts = tn_mem_zalloc((size_t)u->groups, sizeof *texts);
        if (!texts) return TN_ERR_MEMORY;
        for (int64_t g = 0; g < u->groups; g++)
            texts[g] = v->strings[u->first[g]];
        onnx_value *y = onnx_value_strings(texts, &u->groups, 1);
        tn_mem_free(texts);
        if (!y) return TN_ERR_MEMORY;
        TRY(onnx_put_value(c, 0, y));
    } else {
        const tn_tensor *x = flat ? tn_reshape(v->tensor, (int64_t[]){count}, 1) : v->tensor;
        TRY(onnx_put_like(c, 0, tn_index_select(x, axis, from_ints(u->first, u->groups)), 0));
    }
    TRY(onnx_put(c, 1, from_ints(u->first, u->groups)));
    TRY(onnx_put(c, 2, from_ints(u->inverse, count)));
    return onnx_put(c, 3, from_ints(u->counts, u->groups));
}

tn_status onnx_unique(onnx_call *c) {
    int axis = 0;
    items all;
    if (!onnx_has(c, 0)) return onnx_refuse(c, "input 1 is missing");
    bool flat = !onnx_find(c, "axis"), texts = c->in[0]->kind == ONNX_STRINGS;
    if (texts && !flat && c->in[0]->rank != 1)
        return onnx_refuse(c, "slices of strings along an axis are not supported");
    const tn_tensor *x = texts ? NULL : onnx_in(c, 0);
    if (!flat && !texts) TRY(onnx_axis(c, onnx_int(c, "axis", 0), tn_rank(x), &axis));
    TRY(read_keys(c, 0, &all.keys, &all.count));
    all.width = all.inner = 1;
    if (!flat && !texts) {
        all.inner = tn_product(tn_shape(x) + axis + 1, tn_rank(x) - axis - 1);
        all.width = tn_product(tn_shape(x), axis) * all.inner;
        all.count = tn_size(x, axis);
    }
    size_t room = (size_t)all.count;
    unique u = {tn_mem_zalloc(room, sizeof(int64_t)), tn_mem_zalloc(room, sizeof(int64_t)),
                tn_mem_zalloc(room, sizeof(int64_t)), 0};
    tn_status status = u.first && u.inverse && u.counts ? group_items(&all, &u) : TN_ERR_MEMORY;
    if (status == TN_OK && !onnx_int(c, "sorted", 1)) status = as_they_come(&u, all.count);
    if (status == TN_OK) status = put_unique(c, axis, flat, &u, all.count);
    tn_mem_free_each(all.keys, u.first, u.inverse, u.counts);
    return status;
}
