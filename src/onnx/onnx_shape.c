/* onnx_shape.c — ONNX: shapes, views, joins, patterns: the rows of onnx_shape_ops.
 *
 * Values that follow from input extents are known when a run begins (onnx_put_fixed), and so is everything that a
 * model computes from them. Operators that only move elements also accept texts (onnx_text.c). */
#include <string.h>

#include "onnx/operator_support.h"

/* ---- facts ------------------------------------------------------------------------------------------------------- */

static tn_status extents_of(const onnx_call *c, const int64_t **shape, int *rank) {
    const tn_tensor *x;
    if (onnx_has(c, 0) && c->in[0]->kind == ONNX_STRINGS) {
        *shape = c->in[0]->shape;
        *rank = c->in[0]->rank;
        return TN_OK;
    }
    TRY(onnx_need(c, 0, &x));
    *shape = tn_shape(x);
    *rank = tn_rank(x);
    return TN_OK;
}

static int64_t within(int64_t i, int64_t low, int64_t high) { return i < low ? low : i > high ? high : i; }

static tn_status shape(onnx_call *c) {
    const int64_t *extents;
    int rank;
    TRY(extents_of(c, &extents, &rank));
    int64_t start = onnx_int(c, "start", 0), end = onnx_int(c, "end", rank);
    start = within(start < 0 ? start + rank : start, 0, rank);
    end = within(end < 0 ? end + rank : end, start, rank);
    return onnx_put_fixed(c, 0, tn_from_data(extents + start, (int64_t[]){end - start}, 1, TN_I64));
}

static tn_status size(onnx_call *c) {
    const int64_t *extents;
    int rank;
    TRY(extents_of(c, &extents, &rank));
    int64_t count = 1;
    for (int d = 0; d < rank; d++)
        count *= extents[d];
    return onnx_put_fixed(c, 0, tn_from_data(&count, NULL, 0, TN_I64));
}

/* ---- views ------------------------------------------------------------------------------------------------------- */

static tn_status reshape(onnx_call *c) {
    const tn_tensor *x;
    int64_t to[2 * TN_MAX_RANK];
    int rank;
    TRY(onnx_need(c, 0, &x));
    TRY(onnx_list(c, 1, "shape", to, &rank));
    for (int d = 0; d < rank && !onnx_int(c, "allowzero", 0); d++) {
        if (to[d] != 0) continue;
        if (d >= tn_rank(x))
            return onnx_refuse(c, "extent %d is to be kept, but the tensor has rank %d", d, tn_rank(x));
        to[d] = tn_size(x, d);
    }
    return onnx_put_like(c, 0, tn_reshape(x, to, (int)tn_max64(rank, 0)), 0);
}

/* To a matrix: the dims before axis are rows. */
static tn_status flatten(onnx_call *c) {
    const tn_tensor *x;
    int64_t axis = onnx_int(c, "axis", 1), to[2] = {1, 1};
    TRY(onnx_need(c, 0, &x));
    int rank = tn_rank(x);
    if (axis < -rank || axis > rank)
        return onnx_refuse(c, "axis %lld is out of range for rank %d", (long long)axis, rank);
    axis = axis < 0 ? axis + rank : axis;
    for (int d = 0; d < rank; d++)
        to[d >= axis] *= tn_size(x, d);
    return onnx_put_like(c, 0, tn_reshape(x, to, 2), 0);
}

static tn_status squeeze(onnx_call *c) {
    const tn_tensor *x;
    int64_t axes[TN_MAX_RANK], to[TN_MAX_RANK];
    int count, rank = 0;
    TRY(onnx_need(c, 0, &x));
    TRY(onnx_axes(c, 1, "axes", tn_rank(x), axes, &count));
    unsigned gone = 0;
    for (int k = 0; k < count; k++) {
        if (tn_size(x, axes[k]) != 1)
            return onnx_refuse(c, "dimension %lld has extent %lld; it must be 1", (long long)axes[k],
                               (long long)tn_size(x, axes[k]));
        gone |= 1u << axes[k];
    }
    for (int d = 0; d < tn_rank(x); d++)
        if (count < 0 ? tn_size(x, d) != 1 : !(gone >> d & 1)) to[rank++] = tn_size(x, d);
    return onnx_put_like(c, 0, tn_reshape(x, to, rank), 0);
}

static tn_status unsqueeze(onnx_call *c) {
    const tn_tensor *x;
    int64_t given[2 * TN_MAX_RANK], axes[TN_MAX_RANK], to[TN_MAX_RANK];
    int count, from = 0;
    TRY(onnx_need(c, 0, &x));
    TRY(onnx_list(c, 1, "axes", given, &count));
    int rank = tn_rank(x) + (int)tn_max64(count, 0);
    if (rank > TN_MAX_RANK)
        return onnx_refuse(c, "a result of rank %d is not supported; the limit is %d", rank, TN_MAX_RANK);
    TRY(onnx_axes(c, 1, "axes", rank, axes, &count));
    unsigned added = 0;
    for (int k = 0; k < count; k++)
        added |= 1u << axes[k];
    for (int d = 0; d < rank; d++)
        to[d] = added >> d & 1 ? 1 : tn_size(x, from++);
    return onnx_put_like(c, 0, tn_reshape(x, to, rank), 0);
}

static tn_status transpose(onnx_call *c) {
    const tn_tensor *x;
    int64_t order[TN_MAX_RANK];
    int count;
    TRY(onnx_need(c, 0, &x));
    TRY(onnx_axes(c, -1, "perm", tn_rank(x), order, &count));
    if (count < 0 && tn_rank(x) > 0 && onnx_find(c, "perm"))
        return onnx_refuse(c, "perm is empty, but its input has %d dimensions", tn_rank(x));
    for (int d = 0; count < 0 && d < tn_rank(x); d++)
        order[d] = tn_rank(x) - 1 - d;
    return onnx_put_like(c, 0, tn_permute(x, order, count < 0 ? tn_rank(x) : count), 0);
}

static tn_status expand(onnx_call *c) {
    const tn_tensor *x;
    int64_t to[2 * TN_MAX_RANK];
    int rank;
    TRY(onnx_need(c, 0, &x));
    TRY(onnx_list(c, 1, NULL, to, &rank));
    int own = tn_rank(x);
    if (rank > TN_MAX_RANK)
        return onnx_refuse(c, "a result of rank %d is not supported; the limit is %d", rank, TN_MAX_RANK);
    if (rank < own) {
        memmove(to + own - tn_max64(rank, 0), to, (size_t)tn_max64(rank, 0) * sizeof *to);
        for (int d = 0; d < own - tn_max64(rank, 0); d++)
            to[d] = 1;
        rank = own;
    }
    for (int d = 0; d < own; d++) /* either may be 1 */
        if (to[rank - own + d] == 1) to[rank - own + d] = tn_size(x, d);
    return onnx_put_like(c, 0, tn_expand(x, to, rank), 0);
}

/* starts, ends, axes, steps: inputs, or before opset 10 attributes. */
static tn_status slice(onnx_call *c) {
    const tn_tensor *x;
    int64_t start[2 * TN_MAX_RANK], end[2 * TN_MAX_RANK], step[2 * TN_MAX_RANK], axes[TN_MAX_RANK];
    int starts, ends, count, steps;
    TRY(onnx_need(c, 0, &x));
    TRY(onnx_list(c, 1, "starts", start, &starts));
    TRY(onnx_list(c, 2, "ends", end, &ends));
    TRY(onnx_axes(c, 3, "axes", tn_rank(x), axes, &count));
    TRY(onnx_list(c, 4, NULL, step, &steps));
    bool fits = starts >= 0 && starts == ends && (count < 0 || count == starts) && (steps < 0 || steps == starts);
    if (!fits || starts > tn_rank(x))
        return onnx_refuse(c, "%d starts, %d ends, %d axes and %d steps for rank %d do not fit together", starts, ends,
                           count, steps, tn_rank(x));
    for (int k = 0; k < starts; k++) {
        int d = count < 0 ? k : (int)axes[k];
        int64_t by = steps < 0 ? 1 : step[k], extent = tn_size(x, d), low = by < 0 ? -1 : 0;
        if (by == 0) return onnx_refuse(c, "step is 0; it must not be 0");
        int64_t first = within(start[k] < 0 ? start[k] + extent : start[k], 0, extent + low);
        int64_t last = within(end[k] < 0 ? tn_max64(end[k], -extent - 1) + extent : end[k], low, extent);
        if (by < 0 && last < 0) last = INT64_MIN;
        x = tn_slice(x, d, first, last, by < INT32_MIN ? INT32_MIN : by);
    }
    return onnx_put_like(c, 0, x, 0);
}

/* Sizes: an input, before opset 13 an attribute; else num_outputs (or the node's) equal parts, the last one smaller. */
static tn_status split(onnx_call *c) {
    const tn_tensor *x;
    int axis, listed = 0;
    TRY(onnx_need(c, 0, &x));
    TRY(onnx_axis(c, onnx_int(c, "axis", 0), tn_rank(x), &axis));
    AUTO_FREE int64_t *read = NULL;
    int64_t many = 0, extent = tn_size(x, axis), from = 0;
    const int64_t *sizes = onnx_ints(c, "split", &listed);
    if (onnx_has(c, 1)) TRY(onnx_read_ints(c, 1, &read, &many, c->out_count));
    if (read) sizes = read;
    int64_t parts = read ? many : sizes ? listed : onnx_int(c, "num_outputs", c->out_count);
    int64_t part = parts > 0 ? tn_ceil_div(extent, parts) : 0;
    if (parts != c->out_count)
        return onnx_refuse(c, "it has %d outputs, but must be split into %lld parts", c->out_count, (long long)parts);
    for (int k = 0; k < c->out_count; k++) {
        int64_t length = sizes ? sizes[k] : tn_max64(tn_min64(part, extent - from), 0);
        if (length < 0 || length > extent - from)
            return onnx_refuse(c, "output %d needs %lld elements, but only %lld are left", k, (long long)length,
                               (long long)(extent - from));
        TRY(onnx_put_like(c, k, tn_narrow(x, axis, from, length), 0));
        from += length;
    }
    if (from == extent) return TN_OK;
    return onnx_refuse(c, "its outputs have %lld of %lld elements along axis %d", (long long)from, (long long)extent,
                       axis);
}

/* ---- joins, repetitions, borders --------------------------------------------------------------------------------- */

static tn_status concat(onnx_call *c) {
    enum { AT_ONCE = 64 }; /* an operation takes no more */
    tn_tensor *parts[AT_ONCE];
    const tn_tensor *x;
    int axis, count = 0;
    for (int i = 0; i < c->in_count; i++) {
        TRY(onnx_need(c, i, &x));
        if (i == 0) TRY(onnx_axis(c, onnx_int(c, "axis", 1), tn_rank(x), &axis));
        parts[count++] = (tn_tensor *)(uintptr_t)x;
        if (count < AT_ONCE) continue;
        parts[0] = tn_cat(parts, count, axis);
        count = 1;
    }
    if (count == 0) return onnx_refuse(c, "there are no tensors to concatenate");
    return onnx_put_like(c, 0, c->in_count == 1 ? parts[0] : tn_cat(parts, count, axis), 0);
}

static tn_status tile(onnx_call *c) {
    const tn_tensor *x;
    int64_t repeats[2 * TN_MAX_RANK];
    int count;
    TRY(onnx_need(c, 0, &x));
    TRY(onnx_list(c, 1, NULL, repeats, &count));
    if (count != tn_rank(x))
        return onnx_refuse(c, "%d repeats for rank %d; one per dimension is required", count, tn_rank(x));
    return onnx_put_like(c, 0, tn_tile(x, repeats, count), 0);
}

/* The element that stands at place i of a row of n which is continued on both sides. */
static int64_t continued(int64_t i, int64_t n, char mode) {
    if (mode == 'e') return within(i, 0, n - 1);
    int64_t period = mode == 'r' ? tn_max64(2 * (n - 1), 1) : n;
    i = (i % period + period) % period;
    return i < n ? i : period - i;
}

/* One dimension by its index in x; nothing where no element can be continued. */
static tn_status pad_by_index(const onnx_call *c, const tn_tensor **y, int axis, int64_t before, int64_t after,
                              char mode) {
    enum { MOST = 1 << 24 };
    int64_t n = tn_size(*y, axis), length;
    if (tn_add_overflow(n, before, &length) || tn_add_overflow(length, after, &length) || length < 0 || length > MOST)
        return onnx_refuse(c, "pads %lld and %lld are out of range", (long long)before, (long long)after);
    if (n == 0 && length > 0)
        return onnx_refuse(c, "dimension %d is empty and cannot be padded from its elements", axis);
    AUTO_FREE int64_t *index = tn_mem_zalloc((size_t)length, sizeof *index);
    if (!index) return TN_ERR_MEMORY;
    for (int64_t i = 0; i < length; i++)
        index[i] = continued(i - before, n, mode);
    *y = tn_index_select(*y, axis, tn_from_data(index, &length, 1, TN_I64));
    return TN_OK;
}

/* pads: all that come before, then all that come after. */
static tn_status pad(onnx_call *c) {
    const tn_tensor *x;
    int64_t pads[2 * TN_MAX_RANK], axes[TN_MAX_RANK], inner[2 * TN_MAX_RANK] = {0};
    int many, count;
    TRY(onnx_need(c, 0, &x));
    TRY(onnx_list(c, 1, "pads", pads, &many));
    TRY(onnx_axes(c, 3, NULL, tn_rank(x), axes, &count));
    int rank = tn_rank(x), padded = count < 0 ? rank : count;
    if (many != 2 * padded)
        return onnx_refuse(c, "%d pads for %d dimensions; two per dimension are required", many, padded);
    onnx_text mode = onnx_string(c, "mode", "constant");
    bool constant = onnx_is(mode, "constant");
    if (!constant && !onnx_is(mode, "edge") && !onnx_is(mode, "reflect") && !onnx_is(mode, "wrap"))
        return onnx_refuse(c, "mode '%.*s' is not supported", (int)mode.size, mode.at);
    for (int k = 0; k < padded; k++) {
        int d = count < 0 ? k : (int)axes[k];
        inner[2 * (rank - 1 - d)] = pads[k];
        inner[2 * (rank - 1 - d) + 1] = pads[padded + k];
        if (!constant && (pads[k] || pads[padded + k]))
            TRY(pad_by_index(c, &x, d, pads[k], pads[padded + k], mode.at[0]));
    }
    if (!constant) return onnx_put_like(c, 0, x, 0);
    double value = onnx_float(c, "value", 0);
    if (!onnx_has(c, 2) || c->in[2]->fixed != ONNX_VARIES) {
        TRY(onnx_read_float(c, 2, value, &value));
        return onnx_put_like(c, 0, tn_pad(x, inner, 2 * rank, value), 0);
    }
    tn_tensor *own = tn_pad(tn_ones(tn_shape(x), rank, TN_BOOL), inner, 2 * rank, 0);
    tn_tensor *number = tn_reshape(onnx_in(c, 2), NULL, 0);
    return onnx_put_like(c, 0, tn_where(own, tn_pad(x, inner, 2 * rank, 0), number), 0);
}

/* [n, c·b², h, w] to [n, c, h·b, w·b]: `dcr` says whether the block's place is the slower part of the channel. */
static tn_status depth_to_space(onnx_call *c) {
    const tn_tensor *x;
    int64_t b = onnx_int(c, "blocksize", 0);
    TRY(onnx_need(c, 0, &x));
    if (tn_rank(x) != 4 || b < 1 || b > INT16_MAX || tn_size(x, 1) % (b * b))
        return onnx_refuse(c, "blocks of %lld do not fit an input of rank %d", (long long)b, tn_rank(x));
    int64_t n = tn_size(x, 0), depth = tn_size(x, 1) / (b * b), h = tn_size(x, 2), w = tn_size(x, 3);
    tn_tensor *y;
    if (onnx_is(onnx_string(c, "mode", "DCR"), "CRD"))
        y = tn_permute(tn_reshape(x, TN_DIMS(n, depth, b, b, h, w)), TN_DIMS(0, 1, 4, 2, 5, 3));
    else
        y = tn_permute(tn_reshape(x, TN_DIMS(n, b, b, depth, h, w)), TN_DIMS(0, 3, 4, 1, 5, 2));
    return onnx_put_like(c, 0, tn_reshape(y, TN_DIMS(n, depth, h * b, w * b)), 0);
}

static tn_status space_to_depth(onnx_call *c) {
    const tn_tensor *x;
    int64_t b = onnx_int(c, "blocksize", 0);
    TRY(onnx_need(c, 0, &x));
    if (tn_rank(x) != 4 || b < 1 || b > INT16_MAX || tn_size(x, 2) % b || tn_size(x, 3) % b)
        return onnx_refuse(c, "blocks of %lld do not fit an input of rank %d", (long long)b, tn_rank(x));
    int64_t n = tn_size(x, 0), depth = tn_size(x, 1), h = tn_size(x, 2) / b, w = tn_size(x, 3) / b;
    tn_tensor *parts = tn_reshape(x, TN_DIMS(n, depth, h, b, w, b)), *y;
    if (onnx_is(onnx_string(c, "mode", "DCR"), "CRD"))
        y = tn_permute(parts, TN_DIMS(0, 1, 3, 5, 2, 4));
    else
        y = tn_permute(parts, TN_DIMS(0, 3, 5, 1, 2, 4));
    return onnx_put_like(c, 0, tn_reshape(y, TN_DIMS(n, depth * b * b, h, w)), 0);
}

static tn_status where(onnx_call *c) {
    const tn_tensor *condition, *x, *y;
    TRY(onnx_need_first(c, &condition, &x, &y));
    return onnx_put_like(c, 0, tn_where(condition, x, y), 1);
}

/* ---- patterns ---------------------------------------------------------------------------------------------------- */

static tn_status constant_of_shape(onnx_call *c) {
    const onnx_attribute *value = onnx_find(c, "value");
    int64_t to[2 * TN_MAX_RANK];
    int rank;
    TRY(onnx_list(c, 0, NULL, to, &rank));
    rank = (int)tn_max64(rank, 0);
    if (!value || !value->tensor) return onnx_put(c, 0, tn_zeros(to, rank, TN_F32));
    tn_tensor *number = tn_reshape(value->tensor->tensor, NULL, 0);
    return onnx_put_typed(c, 0, tn_expand(number, to, rank), value->tensor->type);
}

/* Ones on the diagonal k, in the shape and, unless another is named, the type of the input. */
static tn_status eye_like(onnx_call *c) {
    const tn_tensor *x;
    int64_t type = onnx_int(c, "dtype", onnx_in_type(c, 0));
    TRY(onnx_need(c, 0, &x));
    if (tn_rank(x) < 1 || tn_rank(x) > 2 || type <= ONNX_UNDEFINED || type >= ONNX_TYPE_COUNT || type == ONNX_STRING)
        return onnx_refuse(c, "a matrix from rank %d with type %lld is not supported", tn_rank(x), (long long)type);
    tn_tensor *row = tn_arange(0, (double)tn_size(x, 0), 1, TN_I64);
    tn_tensor *column = tn_arange(0, (double)tn_size(x, -1), 1, TN_I64);
    row = tn_add(tn_unsqueeze(row, 1), tn_scalar_int(onnx_int(c, "k", 0)));
    tn_tensor *y = tn_cast(tn_eq(row, column), onnx_types[type].dtype);
    return onnx_put_typed(c, 0, y, (onnx_type)type);
}

static tn_status triangle(onnx_call *c) {
    const tn_tensor *x;
    int64_t k;
    TRY(onnx_need(c, 0, &x));
    TRY(onnx_read_int(c, 1, 0, &k));
    return onnx_put_like(c, 0, onnx_int(c, "upper", 1) ? tn_triu(x, k) : tn_tril(x, k), 0);
}

// clang-format off
const onnx_op_row onnx_shape_ops[] = {
    {"Compress", 1, .run = onnx_compress, .moves = true},
    {"Concat", 1, .run = concat, .moves = true},
    {"ConstantOfShape", 1, .run = constant_of_shape},
    {"DepthToSpace", 1, .run = depth_to_space, .moves = true},
    {"Expand", 1, .run = expand, .moves = true},
    {"EyeLike", 1, .run = eye_like},
    {"Flatten", 1, .run = flatten, .moves = true},
    {"Gather", 1, .run = onnx_gather, .moves = true},
    {"GatherElements", 1, .run = onnx_gather_elements, .moves = true},
    {"GatherND", 1, .run = onnx_gather_nd, .moves = true},
    {"NonZero", 1, .run = onnx_non_zero},
    {"OneHot", 1, .run = onnx_one_hot},
    {"Pad", 1, .run = pad, .moves = true},
    {"Reshape", 1, .run = reshape, .moves = true},
    {"ReverseSequence", 1, .run = onnx_reverse_sequence, .moves = true},
    {"Scatter", 1, .run = onnx_scatter_elements, .moves = true},
    {"ScatterElements", 1, .run = onnx_scatter_elements, .moves = true},
    {"ScatterND", 1, .run = onnx_scatter_nd, .moves = true},
    {"Shape", 1, .run = shape},
    {"Size", 1, .run = size},
    {"Slice", 1, .run = slice, .moves = true},
    {"SpaceToDepth", 1, .run = space_to_depth, .moves = true},
    {"Split", 1, .run = split, .moves = true},
    {"Squeeze", 1, .run = squeeze, .moves = true},
    {"TensorScatter", 1, .run = onnx_tensor_scatter},
    {"Tile", 1, .run = tile, .moves = true},
    {"Transpose", 1, .run = transpose, .moves = true},
    {"Trilu", 1, .run = triangle},
    {"Unique", 1, .run = onnx_unique},
    {"Unsqueeze", 1, .run = unsqueeze, .moves = true},
    {"Where", 1, .run = where, .moves = true},
    {.name = NULL},
};
// clang-format on
