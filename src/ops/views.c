/* views.c — functions that are nothing but one or two of the view ops of movement.c, and splitting into parts.
 *
 * A rule (tn_view_NAME) says which view ops a call stands for, from the shape of its tensor; the generated function
 * records them for a user's tensor or inside a graph that is being built. So gradients, aliasing
 * and in-place writes are theirs. */
#include <string.h>

#include "ops/common.h"

/* ---- reshaping --------------------------------------------------------------------------------------------------- */

/* Would view() refuse? Asked of its own rule, so that both always agree. */
static bool can_view(const tn_node *x, const int64_t *shape, int rank) {
    tn_attrs a = {.n_i = (uint8_t)(rank + 1), .i = {rank}};
    memcpy(a.i + 1, shape, (size_t)rank * sizeof *shape);
    tn_node *in[1] = {tn_b_self(x)};
    tn_infer c = {.row = tn_op(TN_OP_VIEW), .in = in, .n_in = 1, .attrs = &a};
    return tn_op(TN_OP_VIEW)->impl->infer(&c) == TN_OK;
}

/* reshape(x, shape): the same elements in another shape, as a view where possible and a copy
 * otherwise; one extent may be -1. */
static tn_status reshape_to(const tn_node *x, const int64_t *shape, int rank, tn_view_steps *steps) {
    if (!tn_node_contiguous(x) && !can_view(x, shape, rank)) tn_view_step(steps, TN_OP_CONTIGUOUS);
    tn_view_shape(steps, TN_OP_VIEW, shape, rank);
    return TN_OK;
}
tn_status tn_view_reshape(const tn_node *const *in, const tn_attrs *args, tn_view_steps *steps) {
    return reshape_to(in[0], args->i + 1, (int)args->i[0], steps);
}

/* flatten(x, start_dim, end_dim): dims start_dim to end_dim, both included, made one. */
tn_status tn_view_flatten(const tn_node *const *in, const tn_attrs *args, tn_view_steps *steps) {
    const tn_node *x = in[0];
    int64_t first, last, shape[TN_MAX_RANK], rank = 0, joined = 1;
    TRY(tn_view_dim(steps, args->i[0], x->rank, &first));
    TRY(tn_view_dim(steps, args->i[1], x->rank, &last));
    if (first > last)
        return tn_fail(TN_ERR_SHAPE, "flatten: start_dim %lld lies behind end_dim %lld", (long long)first,
                       (long long)last);
    for (int64_t d = first; d <= last && d < x->rank; d++)
        joined *= x->shape[d];
    for (int64_t d = 0; d < first; d++)
        shape[rank++] = x->shape[d];
    shape[rank++] = joined;
    for (int64_t d = last + 1; d < x->rank; d++)
        shape[rank++] = x->shape[d];
    return reshape_to(x, shape, (int)rank, steps);
}

/* unflatten(x, dim, sizes): one dimension cut into several; one of sizes may be -1. */
tn_status tn_view_unflatten(const tn_node *const *in, const tn_attrs *args, tn_view_steps *steps) {
    const tn_node *x = in[0];
    int64_t dim, count = args->i[1], shape[2 * TN_MAX_RANK], known = 1;
    const int64_t *sizes = args->i + 2;
    TRY(tn_view_dim(steps, args->i[0], x->rank, &dim));
    if (x->rank == 0 || x->rank - 1 + count > TN_MAX_RANK)
        return tn_fail(TN_ERR_SHAPE, "unflatten: rank %d with %lld sizes", x->rank, (long long)count);
    memcpy(shape, x->shape, (size_t)dim * sizeof *shape);
    memcpy(shape + dim, sizes, (size_t)count * sizeof *shape);
    memcpy(shape + dim + count, x->shape + dim + 1, (size_t)(x->rank - 1 - dim) * sizeof *shape);
    for (int64_t k = 0; k < count; k++)
        known *= sizes[k] == -1 ? 1 : sizes[k];
    for (int64_t k = 0; k < count; k++)
        if (sizes[k] == -1 && known > 0) shape[dim + k] = x->shape[dim] / known;
    int64_t product = 1;
    for (int64_t k = 0; k < count; k++)
        product *= shape[dim + k];
    if (product != x->shape[dim])
        return tn_fail(TN_ERR_SHAPE, "unflatten: sizes with a product of %lld for an extent of %lld",
                       (long long)product, (long long)x->shape[dim]);
    return reshape_to(x, shape, (int)(x->rank - 1 + count), steps);
}

/* squeeze(x, dims): without those of the named dimensions (TN_ALL: all) whose extent is 1. */
tn_status tn_view_squeeze(const tn_node *const *in, const tn_attrs *args, tn_view_steps *steps) {
    const tn_node *x = in[0];
    bool named[TN_MAX_RANK];
    int64_t shape[TN_MAX_RANK];
    int rank = 0;
    for (int d = 0; d < x->rank; d++)
        named[d] = args->i[0] == 0;
    for (int64_t k = 0; k < args->i[0]; k++) {
        int64_t dim;
        TRY(tn_view_dim(steps, args->i[1 + k], x->rank, &dim));
        if (x->rank > 0) named[dim] = true;
    }
    for (int d = 0; d < x->rank; d++)
        if (!named[d] || x->shape[d] != 1) shape[rank++] = x->shape[d];
    tn_view_shape(steps, TN_OP_VIEW, shape, rank);
    return TN_OK;
}

/* unsqueeze(x, dim): with a dimension of extent 1 put in at dim. */
tn_status tn_view_unsqueeze(const tn_node *const *in, const tn_attrs *args, tn_view_steps *steps) {
    const tn_node *x = in[0];
    int64_t dim, shape[TN_MAX_RANK + 1];
    TRY(tn_view_dim(steps, args->i[0], x->rank + 1, &dim));
    if (x->rank == TN_MAX_RANK) return tn_fail(TN_ERR_SHAPE, "unsqueeze: the tensor has rank %d already", x->rank);
    memcpy(shape, x->shape, (size_t)dim * sizeof *shape);
    shape[dim] = 1;
    memcpy(shape + dim + 1, x->shape + dim, (size_t)(x->rank - dim) * sizeof *shape);
    tn_view_shape(steps, TN_OP_VIEW, shape, x->rank + 1);
    return TN_OK;
}

/* view_as(x, other): view(x, shape of other). */
tn_status tn_view_view_as(const tn_node *const *in, const tn_attrs *args, tn_view_steps *steps) {
    (void)args;
    tn_view_shape(steps, TN_OP_VIEW, in[1]->shape, in[1]->rank);
    return TN_OK;
}

/* expand_as(x, other): expand(x, shape of other). */
tn_status tn_view_expand_as(const tn_node *const *in, const tn_attrs *args, tn_view_steps *steps) {
    (void)args;
    tn_view_shape(steps, TN_OP_EXPAND, in[1]->shape, in[1]->rank);
    return TN_OK;
}

/* broadcast_to(x, shape): expand under PyTorch's other name. */
tn_status tn_view_broadcast_to(const tn_node *const *in, const tn_attrs *args, tn_view_steps *steps) {
    (void)in;
    tn_view_shape(steps, TN_OP_EXPAND, args->i + 1, (int)args->i[0]);
    return TN_OK;
}

/* ---- order of dimensions ----------------------------------------------------------------------------------------- */

static void view_identity(int64_t *dims, int rank) {
    for (int d = 0; d < rank; d++)
        dims[d] = d;
}

/* transpose(x, dim0, dim1): two dimensions exchanged. */
tn_status tn_view_transpose(const tn_node *const *in, const tn_attrs *args, tn_view_steps *steps) {
    int64_t a, b, dims[TN_MAX_RANK];
    TRY(tn_view_dim(steps, args->i[0], in[0]->rank, &a));
    TRY(tn_view_dim(steps, args->i[1], in[0]->rank, &b));
    view_identity(dims, in[0]->rank);
    if (in[0]->rank > 0) {
        dims[a] = b;
        dims[b] = a;
    }
    tn_view_shape(steps, TN_OP_PERMUTE, dims, in[0]->rank);
    return TN_OK;
}

/* t(x): a matrix transposed; vectors and numbers stay as they are. */
tn_status tn_view_t(const tn_node *const *in, const tn_attrs *args, tn_view_steps *steps) {
    (void)args;
    int64_t dims[TN_MAX_RANK];
    char text[96];
    if (in[0]->rank > 2)
        return tn_fail(TN_ERR_SHAPE, "t: %s has more than two dimensions: use transpose",
                       tn_shape_text(in[0], text, sizeof text));
    for (int d = 0; d < in[0]->rank; d++)
        dims[d] = in[0]->rank - 1 - d;
    tn_view_shape(steps, TN_OP_PERMUTE, dims, in[0]->rank);
    return TN_OK;
}

/* movedim(x, source, destination): one dimension moved to another place, the others in their order. */
tn_status tn_view_movedim(const tn_node *const *in, const tn_attrs *args, tn_view_steps *steps) {
    int64_t from, to, dims[TN_MAX_RANK];
    int rank = in[0]->rank;
    TRY(tn_view_dim(steps, args->i[0], rank, &from));
    TRY(tn_view_dim(steps, args->i[1], rank, &to));
    for (int d = 0, next = 0; d < rank; d++) {
        if (next == from) next++;
        dims[d] = d == to ? from : next++;
    }
    tn_view_shape(steps, TN_OP_PERMUTE, dims, rank);
    return TN_OK;
}

/* ---- parts ------------------------------------------------------------------------------------------------------- */

static void add_slice(tn_view_steps *steps, int64_t dim, int64_t start, int64_t stop) {
    tn_attrs *a = tn_view_step(steps, TN_OP_SLICE);
    a->n_i = 4;
    a->i[TN_SLICE_DIM] = dim;
    a->i[TN_SLICE_START] = start;
    a->i[TN_SLICE_STOP] = stop;
    a->i[TN_SLICE_STEP] = 1;
}

/* narrow(x, dim, start, length): the elements start … start + length − 1 along dim. */
tn_status tn_view_narrow(const tn_node *const *in, const tn_attrs *args, tn_view_steps *steps) {
    int64_t dim, start = args->i[1], length = args->i[2];
    TRY(tn_view_dim(steps, args->i[0], in[0]->rank, &dim));
    if (in[0]->rank == 0) return tn_fail(TN_ERR_SHAPE, "narrow: the tensor has no dimension");
    int64_t size = in[0]->shape[dim];
    if (start < 0) start += size;
    if (start < 0 || length < 0 || start > size || length > size - start)
        return tn_fail(TN_ERR_SHAPE, "narrow: %lld elements from %lld on, of %lld along dim %lld", (long long)length,
                       (long long)args->i[1], (long long)size, (long long)dim);
    add_slice(steps, dim, start, start + length);
    return TN_OK;
}

/* select(x, dim, index): the slice at index along dim, without that dimension; a negative index counts from the end. */
tn_status tn_view_select(const tn_node *const *in, const tn_attrs *args, tn_view_steps *steps) {
    const tn_node *x = in[0];
    int64_t dim, index = args->i[1], shape[TN_MAX_RANK];
    TRY(tn_view_dim(steps, args->i[0], x->rank, &dim));
    if (x->rank == 0) return tn_fail(TN_ERR_SHAPE, "select: the tensor has no dimension");
    if (index < 0) index += x->shape[dim];
    if (index < 0 || index >= x->shape[dim])
        return tn_fail(TN_ERR_SHAPE, "select: index %lld of %lld along dim %lld", (long long)args->i[1],
                       (long long)x->shape[dim], (long long)dim);
    add_slice(steps, dim, index, index + 1);
    memcpy(shape, x->shape, (size_t)dim * sizeof *shape);
    memcpy(shape + dim, x->shape + dim + 1, (size_t)(x->rank - 1 - dim) * sizeof *shape);
    tn_view_shape(steps, TN_OP_VIEW, shape, x->rank - 1);
    return TN_OK;
}

/* ---- several parts at once --------------------------------------------------------------------------------------- */

static int all_failed(tn_tensor **out, int count, tn_status s) {
    for (int i = 0; i < count; i++)
        out[i] = tn_tensor_error(s);
    return count;
}

static tn_status check_split(const tn_tensor *x, const int64_t *sizes, int count, int64_t *dim) {
    const tn_node *n = tn_tensor_node(x);
    tn_view_steps name = {.name = "split"};
    int64_t sum = 0;
    if (n->flags & TN_NODE_ERROR) return tn_fail(n->status, "%s", n->error);
    TRY(tn_view_dim(&name, *dim, n->rank, dim));
    if (n->rank == 0) return tn_fail(TN_ERR_SHAPE, "split: the tensor has no dimension");
    for (int i = 0; i < count; i++) {
        if (sizes[i] < 0 || tn_add_overflow(sum, sizes[i], &sum))
            return tn_fail(TN_ERR_SHAPE, "split: a part of %lld elements", (long long)sizes[i]);
    }
    if (sum == n->shape[*dim]) return TN_OK;
    return tn_fail(TN_ERR_SHAPE, "split: the parts have %lld elements together, dim %lld has %lld", (long long)sum,
                   (long long)*dim, (long long)n->shape[*dim]);
}

/* split(x, sizes, dim): views of x that follow each other along dim; sizes sum to its extent. out receives as many
 * handles as there are sizes, error tensors when something is wrong. Returns their number. */
int(tn_split)(const tn_tensor *x, const int64_t *sizes, int size_count, int64_t dim, tn_tensor **out) {
    tn_status s = tn_need(out, "split: out");
    if (s != TN_OK) return 0;
    s = x && (sizes || size_count <= 0)
            ? check_split(x, sizes, size_count, &dim)
            : tn_fail(TN_ERR_ARGUMENT, "split: the %s is NULL", x ? "list of sizes" : "tensor");
    if (s != TN_OK) return all_failed(out, size_count, s);
    int64_t start = 0;
    for (int i = 0; i < size_count; i++) {
        out[i] = (tn_slice)(x, dim, start, start + sizes[i], 1);
        start += sizes[i];
    }
    return size_count;
}

/* chunk(x, chunks, dim): views of x of equal length along dim, but for a shorter last one; as in PyTorch there can be
 * fewer than `chunks` of them. out has room for `chunks` handles. Returns their number. */
int(tn_chunk)(const tn_tensor *x, int64_t chunks, int64_t dim, tn_tensor **out) {
    if (tn_need(out, "chunk: out") != TN_OK) return 0;
    if (!x || chunks < 1 || chunks > INT32_MAX) {
        tn_status s = tn_fail(TN_ERR_ARGUMENT, "chunk: %lld chunks of %s tensor", (long long)chunks, x ? "a" : "no");
        return chunks < 1 ? 0 : all_failed(out, 1, s);
    }
    const tn_node *n = tn_tensor_node(x);
    tn_view_steps name = {.name = "chunk"};
    if (n->flags & TN_NODE_ERROR) return all_failed(out, 1, tn_fail(n->status, "%s", n->error));
    if (n->rank == 0) return all_failed(out, 1, tn_fail(TN_ERR_SHAPE, "chunk: the tensor has no dimension"));
    tn_status s = tn_view_dim(&name, dim, n->rank, &dim);
    if (s != TN_OK) return all_failed(out, 1, s);
    int64_t size = n->shape[dim], length = tn_ceil_div(size, chunks), count = 0;
    for (int64_t start = 0; count == 0 || start < size; start += length)
        out[count++] = (tn_slice)(x, dim, start, start + length, 1);
    return (int)count;
}
