/* movement.c — the primitives that move elements without changing them: views first, then copies.
 *
 * A view op's infer() says where its elements lie in the buffer of its root, from where those of its input lie; its lower()
 * maps an index of the result to one of the input, for kernels that compute the input on the way instead of loading it.
 * A copy's lower() asks for its inputs at other indices, under a mask where such an index can lie outside. Comparisons are
 * made on `index − bound` against 0, so that bounds stay among a kernel's sizes and shapes share its code. */
#include <string.h>

#include "ops/common.h"

/* ---- indices ------------------------------------------------------------------------------------------------------------- */

static kir_aff shifted(const kir_aff *at, int64_t by) {
    kir_aff moved = *at;
    moved.c += by;
    return moved;
}

/* index + by < 0 */
static kir_val below(kir_builder *kb, const kir_aff *at, int64_t by) {
    kir_aff moved = shifted(at, by);
    return kir_binary(kb, KIR_LT, kir_index(kb, &moved), kir_const_i(kb, KIR_I64, 0));
}

/* 0 <= index */
static kir_val not_negative(kir_builder *kb, const kir_aff *at) {
    return kir_binary(kb, KIR_LE, kir_const_i(kb, KIR_I64, 0), kir_index(kb, at));
}

/* a and b, either of which may be KIR_NONE ("always"). */
static kir_val both(kir_builder *kb, kir_val a, kir_val b) {
    if (a == KIR_NONE) return b;
    return b == KIR_NONE ? a : kir_binary(kb, KIR_AND, a, b);
}

static kir_val in_range(kir_builder *kb, kir_val index, int64_t size) {
    kir_val low = kir_binary(kb, KIR_LE, kir_const_i(kb, KIR_I64, 0), index);
    return kir_binary(kb, KIR_AND, low, kir_binary(kb, KIR_LT, index, kir_const_i(kb, KIR_I64, size)));
}

static kir_val zero_of(tn_lower *lw, tn_dtype t) { return kir_const_i(lw->kb, kir_type_of(t), 0); }

/* Σ at[d] · stride[d] + c over `rank` dims. */
static kir_aff flat_index(tn_lower *lw, const kir_aff *at, const int64_t *stride, int rank, int64_t c) {
    kir_aff sum = kir_aff_const(c);
    for (int d = 0; d < rank; d++) {
        kir_aff part = tn_aff_scale(lw, &at[d], stride[d]);
        sum = tn_aff_add(lw, &sum, &part);
    }
    return sum;
}

/* The inverse for a contiguous tensor: dims of these extents from a flat index, by division where there is more than one. */
static void unflatten(tn_lower *lw, const kir_aff *flat, const int64_t *shape, int rank, kir_aff *out) {
    int last = -1, first = rank;
    for (int d = 0; d < rank; d++) {
        out[d] = kir_aff_const(0);
        if (shape[d] == 1) continue;
        if (last < 0) first = d;
        last = d;
    }
    if (last < 0) return;
    if (first == last) {
        out[last] = *flat;
        return;
    }
    kir_val rest = kir_index(lw->kb, flat);
    for (int d = last; d > first; d--) {
        if (shape[d] == 1) continue;
        kir_val size = kir_const_i(lw->kb, KIR_I64, shape[d]);
        out[d] = tn_aff_value(kir_binary(lw->kb, KIR_MOD, rest, size));
        rest = kir_binary(lw->kb, KIR_DIV, rest, size);
    }
    out[first] = tn_aff_value(rest);
}

static void contiguous_strides(const int64_t *shape, int rank, int64_t *stride) {
    int64_t s = 1;
    for (int d = rank - 1; d >= 0; d--) {
        stride[d] = s;
        s *= shape[d];
    }
}

/* ---- view ------------------------------------------------------------------------------------------------------------------ */

/* Fills in one extent of -1 and checks that the number of elements stays. */
static tn_status resolve_shape(const tn_infer *c, int64_t *shape, int64_t rank) {
    int64_t numel = tn_node_numel(c->in[0]), known = 1, open = -1;
    char text[96];
    for (int d = 0; d < rank; d++) {
        if (shape[d] == -1 && open < 0)
            open = d;
        else if (shape[d] < 0 || tn_mul_overflow(known, shape[d], &known))
            return tn_fail(TN_ERR_SHAPE, "%s: extent %lld of dimension %d: extents are ≥ 0, one may be -1", c->row->name,
                           (long long)shape[d], d);
    }
    if (open >= 0 && known > 0 && numel % known == 0) {
        shape[open] = numel / known;
        known = numel;
    }
    if (known != numel || (open >= 0 && shape[open] < 0))
        return tn_fail(TN_ERR_SHAPE, "%s: shape %s has %lld elements, the new shape %s%lld: they must be as many", c->row->name,
                       tn_shape_text(c->in[0], text, sizeof text), (long long)numel, open >= 0 ? "a multiple of " : "",
                       (long long)known);
    return TN_OK;
}

/* Strides of `shape` over the elements of x, whose own strides are `have`; false when only a copy can do it. Runs of dims
 * of x that lie one behind the other form chunks; each chunk must be cut by the new shape without crossing its border. */
static bool view_strides(const tn_node *x, const int64_t *have, const int64_t *shape, int rank, int64_t *stride) {
    if (tn_node_numel(x) == 0) {
        contiguous_strides(shape, rank, stride);
        return true;
    }
    int to = rank - 1;
    int64_t base = 1, chunk = 1, covered = 1;
    bool begun = false;
    for (int d = x->rank - 1; d >= 0; d--) {
        if (x->shape[d] == 1) continue;
        if (!begun) base = have[d];
        begun = true;
        chunk *= x->shape[d];
        int above = d - 1;
        while (above >= 0 && x->shape[above] == 1) above--;
        if (above >= 0 && have[above] == chunk * base) continue;
        while (to >= 0 && (covered < chunk || shape[to] == 1)) {
            stride[to] = base * covered;
            covered *= shape[to--];
        }
        if (covered != chunk) return false;
        base = above >= 0 ? have[above] : 1;
        chunk = covered = 1;
    }
    for (; to >= 0; to--) stride[to] = 1;
    return true;
}

static tn_status fill_shape(tn_infer *c, const int64_t *shape, int64_t rank) {
    TRY(tn_infer_shape(c, shape, rank));
    c->dtype = (tn_dtype)c->in[0]->dtype;
    return TN_OK;
}

/* An extent that stays where it is keeps its symbol: leading dims and trailing dims that are equal. */
static void keep_symbols(tn_infer *c) {
    const tn_node *x = c->in[0];
    for (int d = 0; d < c->rank && d < x->rank && c->shape[d] == x->shape[d]; d++) c->symbol[d] = x->symbol[d];
    for (int e = 1; e <= c->rank && e <= x->rank && c->shape[c->rank - e] == x->shape[x->rank - e]; e++)
        c->symbol[c->rank - e] = x->symbol[x->rank - e];
}

/* view(x, shape): the same elements in another shape, without a copy; one extent may be -1. An error when x's strides do not
 * allow it: reshape copies then. */
static tn_status infer_view(tn_infer *c) {
    int64_t stride[TN_MAX_RANK], *shape = c->attrs->i + 1;
    int64_t rank = c->attrs->i[0];
    char text[96];
    TRY(resolve_shape(c, shape, rank));
    TRY(fill_shape(c, shape, rank));
    tn_node_layout(c->in[0], &c->offset, stride);
    keep_symbols(c);
    if (view_strides(c->in[0], stride, shape, (int)rank, c->stride)) return TN_OK;
    return tn_fail(TN_ERR_SHAPE, "view: the elements of %s do not lie so that this shape could be seen in them: use reshape",
                   tn_shape_text(c->in[0], text, sizeof text));
}
static tn_status grad_view(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    grads[0] = tn_b_reshape(b, dy, n->in[0]->shape, n->in[0]->rank);
    return b->status;
}
/* Dims of both shapes are matched in groups of equal size: inside a group the index is flattened and cut again. */
static kir_val lower_view(tn_lower *lw, const tn_node *n, const kir_aff *at) {
    const tn_node *x = n->in[0];
    kir_aff in[TN_MAX_RANK];
    int i = 0, j = 0;
    while (i < x->rank || j < n->rank) {
        int i0 = i, j0 = j;
        int64_t a = i < x->rank ? x->shape[i++] : 1;
        int64_t b = j < n->rank ? n->shape[j++] : 1;
        while (a != b && (i < x->rank || j < n->rank)) {
            if (j == n->rank || (a < b && i < x->rank))
                a *= x->shape[i++];
            else
                b *= n->shape[j++];
        }
        int64_t stride[TN_MAX_RANK];
        contiguous_strides(n->shape + j0, j - j0, stride);
        kir_aff flat = flat_index(lw, at + j0, stride, j - j0, 0);
        unflatten(lw, &flat, x->shape + i0, i - i0, in + i0);
    }
    return tn_lower_at(lw, x, in);
}
static void reference_copy(const tn_reference *r) {
    memcpy(r->out, r->in[0], (size_t)tn_node_numel(r->node) * sizeof *r->out);
}
const tn_op_impl tn_impl_view = {
    .class_ = TN_VIEW_OP, .infer = infer_view, .grad = grad_view, .lower = lower_view, .reference = reference_copy,
    .cases = "types=f32,f64,i32; [2,6] shape=(3,4); [2,6] shape=(-1); [2,3,4] shape=(6,4); [12] shape=(2,2,3); [] shape=(1,1);"
             "[0,3] shape=(3,0); error=elements [2,3] shape=(4,2)"};

/* ---- permute, expand, slice, as_strided, detach ------------------------------------------------------------------------------ */

/* permute(x, dims): dimension d of the result is dimension dims[d] of x; a view. */
static tn_status infer_permute(tn_infer *c) {
    const tn_node *x = c->in[0];
    int64_t stride[TN_MAX_RANK], *dims = c->attrs->i + 1;
    bool used[TN_MAX_RANK] = {false};
    if (c->attrs->i[0] != x->rank)
        return tn_fail(TN_ERR_SHAPE, "permute: %lld dims given for a tensor of rank %d", (long long)c->attrs->i[0], x->rank);
    tn_node_layout(x, &c->offset, stride);
    for (int d = 0; d < x->rank; d++) {
        TRY(tn_infer_dim(c, dims[d], x->rank, &dims[d]));
        if (used[dims[d]]) return tn_fail(TN_ERR_SHAPE, "permute: dim %lld is named twice", (long long)dims[d]);
        used[dims[d]] = true;
        c->shape[d] = x->shape[dims[d]];
        c->symbol[d] = x->symbol[dims[d]];
        c->stride[d] = stride[dims[d]];
    }
    c->rank = x->rank;
    c->dtype = (tn_dtype)x->dtype;
    return TN_OK;
}
static tn_status grad_permute(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    int64_t inverse[TN_MAX_RANK];
    for (int d = 0; d < n->rank; d++) inverse[n->i[1 + d]] = d;
    grads[0] = tn_b_permute(b, dy, inverse, n->rank);
    return b->status;
}
static kir_val lower_permute(tn_lower *lw, const tn_node *n, const kir_aff *at) {
    kir_aff in[TN_MAX_RANK];
    for (int d = 0; d < n->rank; d++) in[n->i[1 + d]] = at[d];
    return tn_lower_at(lw, n->in[0], in);
}
static void reference_permute(const tn_reference *r) {
    int64_t from[TN_MAX_RANK];
    for (tn_walk w = tn_walk_begin(r->node); w.place < w.count; tn_walk_next(&w)) {
        for (int d = 0; d < r->node->rank; d++) from[r->node->i[1 + d]] = w.at[d];
        r->out[w.place] = r->in[0][tn_place(r->node->in[0], from)];
    }
}
const tn_op_impl tn_impl_permute = {
    .class_ = TN_VIEW_OP, .infer = infer_permute, .grad = grad_permute, .lower = lower_permute,
    .reference = reference_permute,
    .cases = "types=f32,f64,i32; [2,3] dims=(1,0); [2,3,4] dims=(2,0,1); [2,3,4,5] dims=(0,-1,1,2); [] dims=(); [0,3] dims=(1,0);"
             "error=twice [2,3] dims=(0,0); error=range [2,3] dims=(0,2); error=rank [2,3] dims=(0)"};

/* expand(x, shape): extents of 1 repeated to those of shape, new dimensions in front; -1 keeps an extent. A view. */
static tn_status infer_expand(tn_infer *c) {
    const tn_node *x = c->in[0];
    int64_t stride[TN_MAX_RANK], *shape = c->attrs->i + 1;
    int rank = (int)c->attrs->i[0], extra = rank - x->rank;
    char text[96];
    if (extra < 0)
        return tn_fail(TN_ERR_SHAPE, "expand: %d extents for a tensor of rank %d: name at least its own", rank, x->rank);
    tn_node_layout(x, &c->offset, stride);
    for (int d = extra; d < rank; d++)
        if (shape[d] == -1) shape[d] = x->shape[d - extra];
    TRY(fill_shape(c, shape, rank));
    for (int d = 0; d < rank; d++) {
        bool repeated = d < extra || (x->shape[d - extra] == 1 && shape[d] != 1);
        c->stride[d] = repeated ? 0 : stride[d - extra];
        if (!repeated) c->symbol[d] = x->symbol[d - extra];
        if (!repeated && shape[d] != x->shape[d - extra])
            return tn_fail(TN_ERR_SHAPE, "expand: extent %lld of %s cannot become %lld: only extents of 1 repeat",
                           (long long)x->shape[d - extra], tn_shape_text(x, text, sizeof text), (long long)shape[d]);
    }
    return TN_OK;
}
static tn_status grad_expand(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    grads[0] = tn_b_sum_to(b, dy, n->in[0]);
    return b->status;
}
static kir_val lower_expand(tn_lower *lw, const tn_node *n, const kir_aff *at) { return tn_lower_in(lw, n, 0, at); }
static void reference_expand(const tn_reference *r) {
    for (tn_walk w = tn_walk_begin(r->node); w.place < w.count; tn_walk_next(&w)) r->out[w.place] = r->in[0][w.in[0]];
}
const tn_op_impl tn_impl_expand = {
    .class_ = TN_VIEW_OP, .infer = infer_expand, .grad = grad_expand, .lower = lower_expand, .reference = reference_expand,
    .cases = "types=f32,f64,i32; [2,1] shape=(2,3); [3] shape=(2,3); [] shape=(2,2); [1,3] shape=(-1,3); [1] shape=(0);"
             "error=repeat [2] shape=(3)"};

/* Python's rules for start and stop. The canonical form reads the same when it is read again: a stop before the first
 * element (steps backwards) stays INT64_MIN, for -1 would mean the last one. */
static int64_t resolve_slice(int64_t size, int64_t *start, int64_t *stop, int64_t step) {
    int64_t lo = step > 0 ? 0 : -1, hi = step > 0 ? size : size - 1;
    if (*start < 0 && *start > INT64_MIN + size) *start += size;
    if (*stop < 0 && *stop > INT64_MIN + size) *stop += size;
    *start = tn_min64(tn_max64(*start, lo), hi);
    *stop = tn_min64(tn_max64(*stop, lo), hi);
    int64_t span = step > 0 ? *stop - *start : *start - *stop;
    int64_t pace = step > 0 ? step : -step;
    int64_t count = span > 0 ? tn_ceil_div(span, pace) : 0;
    if (count == 0) *start = *stop = 0;
    if (count > 0 && *stop < 0) *stop = INT64_MIN;
    return count;
}

/* slice(x, dim, start, stop, step): elements start, start + step, … before stop along dim; a view. Negative start and stop
 * count from the end; INT64_MAX as stop goes to the end, INT64_MIN to the beginning for a negative step. */
static tn_status infer_slice(tn_infer *c) {
    const tn_node *x = c->in[0];
    int64_t *a = c->attrs->i, step = a[TN_SLICE_STEP];
    if (step == 0 || step < -INT32_MAX || step > INT32_MAX)
        return tn_fail(TN_ERR_ARGUMENT, "slice: a step of %lld: take one that is not 0", (long long)step);
    if (x->rank == 0) return tn_fail(TN_ERR_SHAPE, "slice: the tensor has no dimension");
    TRY(tn_infer_same(c));
    TRY(tn_infer_dim(c, a[TN_SLICE_DIM], x->rank, &a[TN_SLICE_DIM]));
    int64_t dim = a[TN_SLICE_DIM];
    tn_node_layout(x, &c->offset, c->stride);
    int64_t count = resolve_slice(x->shape[dim], &a[TN_SLICE_START], &a[TN_SLICE_STOP], step);
    if (count > 0) c->offset += a[TN_SLICE_START] * c->stride[dim];
    c->stride[dim] *= step;
    if (count != x->shape[dim]) c->symbol[dim] = 0;
    c->shape[dim] = count;
    return TN_OK;
}
static tn_status grad_slice(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    const tn_node *x = n->in[0];
    int64_t dim = n->i[TN_SLICE_DIM], start = n->i[TN_SLICE_START], step = n->i[TN_SLICE_STEP];
    if (step == 1) {
        int64_t pads[2 * TN_MAX_RANK] = {0};
        int place = 2 * (x->rank - 1 - (int)dim);
        pads[place] = start;
        pads[place + 1] = x->shape[dim] - start - n->shape[dim];
        grads[0] = tn_b_pad(b, dy, pads, 2 * x->rank, 0);
        return b->status;
    }
    int64_t stride[TN_MAX_RANK];
    contiguous_strides(x->shape, x->rank, stride);
    int64_t offset = start * stride[dim];
    stride[dim] *= step;
    tn_node *zeros = tn_b_expand(b, tn_b_const(b, 0, dy), x->shape, x->rank);
    grads[0] = tn_b_assign_view(b, zeros, dy, offset, stride, x->rank);
    return b->status;
}
static kir_val lower_slice(tn_lower *lw, const tn_node *n, const kir_aff *at) {
    kir_aff in[TN_MAX_RANK];
    int64_t dim = n->i[TN_SLICE_DIM];
    memcpy(in, at, (size_t)n->rank * sizeof *in);
    in[dim] = tn_aff_scale(lw, &at[dim], n->i[TN_SLICE_STEP]);
    in[dim].c += n->i[TN_SLICE_START];
    return tn_lower_at(lw, n->in[0], in);
}
static void reference_slice(const tn_reference *r) {
    const tn_node *n = r->node;
    int64_t dim = n->i[TN_SLICE_DIM], from[TN_MAX_RANK];
    for (tn_walk w = tn_walk_begin(n); w.place < w.count; tn_walk_next(&w)) {
        memcpy(from, w.at, sizeof from);
        from[dim] = n->i[TN_SLICE_START] + w.at[dim] * n->i[TN_SLICE_STEP];
        r->out[w.place] = r->in[0][tn_place(n->in[0], from)];
    }
}
const tn_op_impl tn_impl_slice = {
    .class_ = TN_VIEW_OP, .infer = infer_slice, .grad = grad_slice, .lower = lower_slice, .reference = reference_slice,
    .cases = "types=f32,f64,i32; [7] dim=0 start=1 stop=5 step=1; [7,2] dim=0 start=0 stop=99 step=3;"
             "[2,5] dim=-1 start=-1 stop=min step=-1; [2,5] dim=1 start=4 stop=0 step=-2; [3,4] dim=1 start=2 stop=2 step=1;"
             "[0,4] dim=0 start=0 stop=9 step=1; error=step [3] dim=0 start=0 stop=1 step=0;"
             "error=range [3] dim=1 start=0 stop=1 step=1; error=dimension [] dim=0 start=0 stop=1 step=1"};

/* as_strided(x, shape, strides, offset): any places of a contiguous x: element at[] is x's element
 * offset + Σ at[d] · strides[d], counted in row-major order. A view; places may repeat. */
static tn_status infer_as_strided(tn_infer *c) {
    const int64_t *a = c->attrs->i;
    const int64_t *shape = a + 1, *strides = a + 2 + a[0];
    int64_t offset = strides[a[0]], lowest = offset, highest = offset;
    char text[96];
    if (strides[-1] != a[0])
        return tn_fail(TN_ERR_SHAPE, "as_strided: %lld extents but %lld strides", (long long)a[0], (long long)strides[-1]);
    if (!tn_node_contiguous(c->in[0]))
        return tn_fail(TN_ERR_SHAPE, "as_strided: %s is not contiguous: call tn_contiguous first",
                       tn_shape_text(c->in[0], text, sizeof text));
    TRY(fill_shape(c, shape, a[0]));
    bool empty = false;
    for (int d = 0; d < c->rank; d++) {
        int64_t reach = 0, *end = strides[d] < 0 ? &lowest : &highest;
        empty |= shape[d] == 0;
        if (tn_mul_overflow(shape[d] - 1, strides[d], &reach) || tn_add_overflow(*end, reach, end))
            return tn_fail(TN_ERR_SHAPE, "as_strided: stride %lld of dimension %d is too large", (long long)strides[d], d);
        c->stride[d] = strides[d];
    }
    c->offset = offset;
    if (!empty && (lowest < 0 || highest >= tn_node_numel(c->in[0])))
        return tn_fail(TN_ERR_SHAPE, "as_strided: elements %lld to %lld are asked for, %s has %lld", (long long)lowest,
                       (long long)highest, tn_shape_text(c->in[0], text, sizeof text), (long long)tn_node_numel(c->in[0]));
    return TN_OK;
}
/* Places may repeat, so their gradients are added: by row number, on the flat tensor. */
static tn_status grad_as_strided(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    const tn_node *x = n->in[0];
    int64_t numel = tn_node_numel(x), count = tn_node_numel(n);
    const int64_t *strides = n->i + 2 + n->rank;
    tn_node *places = tn_b_arange(b, 0, (double)numel, 1, TN_I64);
    places = tn_b_as_strided(b, places, n->shape, n->rank, strides, n->rank, strides[n->rank]);
    places = tn_b_reshape(b, places, &count, 1);
    tn_node *zeros = tn_b_expand(b, tn_b_const(b, 0, dy), &numel, 1);
    tn_node *sum = tn_b_index_add(b, zeros, 0, places, tn_b_reshape(b, dy, &count, 1));
    grads[0] = tn_b_reshape(b, sum, x->shape, x->rank);
    return b->status;
}
static kir_val lower_as_strided(tn_lower *lw, const tn_node *n, const kir_aff *at) {
    const tn_node *x = n->in[0];
    const int64_t *strides = n->i + 2 + n->rank;
    kir_aff in[TN_MAX_RANK], flat = flat_index(lw, at, strides, n->rank, strides[n->rank]);
    unflatten(lw, &flat, x->shape, x->rank, in);
    return tn_lower_at(lw, x, in);
}
static void reference_as_strided(const tn_reference *r) {
    const int64_t *strides = r->node->i + 2 + r->node->rank;
    for (tn_walk w = tn_walk_begin(r->node); w.place < w.count; tn_walk_next(&w)) {
        int64_t from = strides[r->node->rank];
        for (int d = 0; d < r->node->rank; d++) from += w.at[d] * strides[d];
        r->out[w.place] = r->in[0][from];
    }
}
const tn_op_impl tn_impl_as_strided = {
    .class_ = TN_VIEW_OP, .infer = infer_as_strided, .grad = grad_as_strided, .lower = lower_as_strided,
    .reference = reference_as_strided,
    .cases = "types=f32,f64,i32; [12] shape=(3,2) strides=(4,1) offset=1; [3,4] shape=(3) strides=(5) offset=0;"
             "[6] shape=(4,3) strides=(1,1) offset=0; [6] shape=(3) strides=(-2) offset=5; [2] shape=() strides=() offset=1;"
             "error=asked [4] shape=(3) strides=(2) offset=0; error=strides [4] shape=(3) strides=(1,1) offset=0"};

/* detach(x): x as a constant: gradients stop here. A view. */
static tn_status infer_detach(tn_infer *c) {
    tn_node_layout(c->in[0], &c->offset, c->stride);
    return tn_infer_same(c);
}
const tn_op_impl tn_impl_detach = {
    .class_ = TN_VIEW_OP, .infer = infer_detach, .lower = lower_expand, .reference = reference_copy,
    .cases = "types=f32,i32; [2,3]; [0]; []"};

/* ---- copies ------------------------------------------------------------------------------------------------------------------- */

/* contiguous(x): the elements in row-major order; a copy where they do not lie so. */
static tn_status grad_contiguous(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    (void)n;
    grads[0] = dy;
    return b->status;
}
const tn_op_impl tn_impl_contiguous = {
    .class_ = TN_ELEMENTWISE, .infer = tn_infer_same, .grad = grad_contiguous, .lower = lower_expand,
    .reference = reference_copy, .cases = "types=f32,f64,i32,bool; [2,3]; [0]; []"};

/* An empty tensor of rank 1 is left out, as in PyTorch: "nothing yet", to which anything can be joined. */
static bool is_nothing(const tn_node *x) { return x->rank == 1 && x->shape[0] == 0; }

static tn_status check_cat_shape(const tn_infer *c, const tn_node *x, int64_t dim) {
    char first[96], other[96];
    bool fits = x->rank == c->rank;
    for (int d = 0; fits && d < c->rank; d++) fits = d == dim || x->shape[d] == c->shape[d];
    if (fits) return TN_OK;
    tn_node shown = {.rank = (uint8_t)c->rank};
    memcpy(shown.shape, c->shape, sizeof shown.shape);
    return tn_fail(TN_ERR_SHAPE, "%s: %s does not fit to %s: all extents but that of dim %lld must be equal", c->row->name,
                   tn_shape_text(x, other, sizeof other), tn_shape_text(&shown, first, sizeof first), (long long)dim);
}

/* cat_few(tensors, dim): joined along dim; at most 16 tensors, as a kernel has few buffers. */
static tn_status infer_cat(tn_infer *c) {
    int64_t dim = 0, sum = 0;
    const tn_node *like = NULL;
    if (c->n_in == 0) return tn_fail(TN_ERR_ARGUMENT, "%s: no tensor given", c->row->name);
    for (int i = 0; i < c->n_in && !like; i++)
        if (!is_nothing(c->in[i]) || i == c->n_in - 1) like = c->in[i];
    if (like->rank == 0) return tn_fail(TN_ERR_SHAPE, "%s: tensors of rank 0 have no dim: use stack", c->row->name);
    TRY(tn_infer_dim(c, c->attrs->i[0], like->rank, &dim));
    c->attrs->i[0] = dim;
    c->rank = like->rank;
    c->dtype = (tn_dtype)c->in[0]->dtype;
    memcpy(c->shape, like->shape, sizeof c->shape);
    memcpy(c->symbol, like->symbol, sizeof c->symbol);
    for (int i = 0; i < c->n_in; i++) {
        if (is_nothing(c->in[i])) continue;
        TRY(check_cat_shape(c, c->in[i], dim));
        if (tn_add_overflow(sum, c->in[i]->shape[dim], &sum)) return tn_fail(TN_ERR_SHAPE, "%s: too long", c->row->name);
    }
    c->shape[dim] = sum;
    c->symbol[dim] = 0;
    return TN_OK;
}
static tn_status grad_cat_few(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    int64_t dim = n->i[0], start = 0;
    for (int i = 0; i < n->n_in; i++) {
        if (is_nothing(n->in[i])) continue;
        int64_t end = start + n->in[i]->shape[dim];
        if (tn_needs_grad(n, i)) grads[i] = tn_b_slice(b, dy, dim, start, end, 1);
        start = end;
    }
    return b->status;
}
static kir_val lower_cat_few(tn_lower *lw, const tn_node *n, const kir_aff *at) {
    int64_t dim = n->i[0], start = 0;
    kir_val result = KIR_NONE;
    for (int i = 0; i < n->n_in; i++) {
        const tn_node *x = n->in[i];
        if (x->rank != n->rank || x->shape[dim] == 0) continue;
        kir_aff in[TN_MAX_RANK];
        memcpy(in, at, (size_t)n->rank * sizeof *in);
        in[dim] = shifted(&at[dim], -start);
        kir_val here = both(lw->kb, start > 0 ? not_negative(lw->kb, &in[dim]) : KIR_NONE,
                            below(lw->kb, &in[dim], -x->shape[dim]));
        kir_val v = tn_lower_at_masked(lw, x, in, here);
        result = result == KIR_NONE ? v : kir_select(lw->kb, here, v, result);
        start += x->shape[dim];
    }
    return result == KIR_NONE ? zero_of(lw, (tn_dtype)n->dtype) : result;
}
static void reference_cat_few(const tn_reference *r) {
    const tn_node *n = r->node;
    int64_t dim = n->i[0];
    for (tn_walk w = tn_walk_begin(n); w.place < w.count; tn_walk_next(&w)) {
        int64_t from[TN_MAX_RANK];
        memcpy(from, w.at, sizeof from);
        int i = 0;
        while (is_nothing(n->in[i]) || from[dim] >= n->in[i]->shape[dim]) {
            if (!is_nothing(n->in[i])) from[dim] -= n->in[i]->shape[dim];
            i++;
        }
        r->out[w.place] = r->in[i][tn_place(n->in[i], from)];
    }
}
const tn_op_impl tn_impl_cat_few = {
    .class_ = TN_MOVEMENT, .promote = true, .infer = infer_cat, .grad = grad_cat_few, .lower = lower_cat_few,
    .reference = reference_cat_few,
    .cases = "types=f32,f64,i32,bool; [2,3] [4,3] dim=0; [2,3] [2,1] [2,2] dim=-1; [0] [2,3] dim=1; [0,3] [2,3] dim=0; [3] dim=0;"
             "error=fit [2,3] [2,4] dim=0; error=stack [] [] dim=0"};

/* cat(tensors, dim): the tensors joined along dim; their other extents are equal. */
enum { CAT_AT_ONCE = 16 }; /* of the 32 buffers of a kernel: room for what is fused into it */
static tn_node *compose_cat(tn_build *b, const tn_node *n) {
    tn_node *parts[UINT8_MAX];
    int count = n->n_in;
    memcpy(parts, n->in, (size_t)count * sizeof *parts);
    while (count > 1 || n->n_in == 1) {
        int made = 0;
        for (int i = 0; i < count; i += CAT_AT_ONCE) {
            int some = count - i < CAT_AT_ONCE ? count - i : CAT_AT_ONCE;
            parts[made++] = tn_b_cat_few(b, parts + i, some, n->i[TN_CAT_DIM]);
        }
        count = made;
        if (b->status != TN_OK || count == 1) break;
    }
    return parts[0];
}
const tn_op_impl tn_impl_cat = {
    .promote = true, .infer = infer_cat, .compose = compose_cat,
    .cases = "types=f32,f64,i32; [2,3] [4,3] dim=0; [3] dim=0; error=fit [2,3] [2,4] dim=0"};

/* pad(x, pads, value): x with `value` around it. pads holds (before, after) of the last dimension, then of the one before it,
 * and so on; negative ones cut off. */
static void pads_of(const int64_t *i, int rank, int d, int64_t *before, int64_t *after) {
    int64_t place = 2 * (int64_t)(rank - 1 - d);
    *before = place < i[0] ? i[1 + place] : 0;
    *after = place < i[0] ? i[2 + place] : 0;
}
static tn_status infer_pad(tn_infer *c) {
    const int64_t *i = c->attrs->i;
    TRY(tn_infer_same(c));
    if (i[0] % 2 != 0 || i[0] > 2 * c->rank)
        return tn_fail(TN_ERR_ARGUMENT, "pad: %lld pads for a tensor of rank %d: give two a dimension, from the last on",
                       (long long)i[0], c->rank);
    for (int d = 0; d < c->rank; d++) {
        int64_t before, after, size = c->shape[d];
        pads_of(i, c->rank, d, &before, &after);
        if (before || after) c->symbol[d] = 0;
        bool too_much = tn_add_overflow(size, before, &size) || tn_add_overflow(size, after, &size);
        if (too_much || size < 0)
            return tn_fail(TN_ERR_SHAPE, "pad: extent %lld of dimension %d with pads %lld and %lld is negative",
                           (long long)c->shape[d], d, (long long)before, (long long)after);
        c->shape[d] = size;
    }
    return tn_infer_shape(c, c->shape, c->rank);
}
static tn_status grad_pad(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    int64_t pads[2 * TN_MAX_RANK];
    for (int64_t k = 0; k < n->i[0]; k++) pads[k] = -n->i[1 + k];
    grads[0] = tn_b_pad(b, dy, pads, (int)n->i[0], 0);
    return b->status;
}
static kir_val lower_pad(tn_lower *lw, const tn_node *n, const kir_aff *at) {
    kir_aff in[TN_MAX_RANK];
    kir_val inside = KIR_NONE;
    for (int d = 0; d < n->rank; d++) {
        int64_t before, after;
        pads_of(n->i, n->rank, d, &before, &after);
        in[d] = shifted(&at[d], -before);
        if (before > 0) inside = both(lw->kb, inside, not_negative(lw->kb, &in[d]));
        if (after > 0) inside = both(lw->kb, inside, below(lw->kb, &in[d], -n->in[0]->shape[d]));
    }
    if (inside == KIR_NONE) return tn_lower_at(lw, n->in[0], in);
    kir_val v = tn_lower_at_masked(lw, n->in[0], in, inside);
    tn_dtype t = (tn_dtype)n->dtype;
    kir_val value = tn_lower_narrow(lw->kb, t, kir_const(lw->kb, kir_type_of(t), n->f[TN_PAD_VALUE]));
    return kir_select(lw->kb, inside, v, value);
}
static void reference_pad(const tn_reference *r) {
    const tn_node *n = r->node;
    for (tn_walk w = tn_walk_begin(n); w.place < w.count; tn_walk_next(&w)) {
        int64_t from[TN_MAX_RANK], before, after;
        bool inside = true;
        for (int d = 0; d < n->rank; d++) {
            pads_of(n->i, n->rank, d, &before, &after);
            from[d] = w.at[d] - before;
            inside &= from[d] >= 0 && from[d] < n->in[0]->shape[d];
        }
        r->out[w.place] = inside ? r->in[0][tn_place(n->in[0], from)] : n->f[TN_PAD_VALUE];
    }
}
const tn_op_impl tn_impl_pad = {
    .class_ = TN_MOVEMENT, .infer = infer_pad, .grad = grad_pad, .lower = lower_pad, .reference = reference_pad,
    .cases = "types=f32,f64,i32; [3] pads=(1,2) value=7; [2,3] pads=(0,1,2,0) value=0; [4,5] pads=(-1,-2,1,-1) value=1;"
             "[2,3] pads=() value=0; [0,2] pads=(1,1,1,0) value=3; error=negative [2] pads=(-2,-1) value=0;"
             "error=pads [2] pads=(1) value=0"};

/* ---- by computed indices --------------------------------------------------------------------------------------------------------- */

/* What stands where an index leads outside: NaN, so that it is seen; 0 for types without one. */
static kir_val outside_value(tn_lower *lw, tn_dtype t) {
    if (!tn_dtype_is_float(t)) return zero_of(lw, t);
    return kir_const(lw->kb, kir_type_of(t), __builtin_nan(""));
}
static double outside_reference(tn_dtype t) { return tn_dtype_is_float(t) ? __builtin_nan("") : 0; }

static kir_val load_gathered(tn_lower *lw, const tn_node *n, const kir_aff *at, int64_t dim, kir_val index) {
    const tn_node *x = n->in[0];
    kir_aff in[TN_MAX_RANK];
    memcpy(in, at, (size_t)n->rank * sizeof *in);
    index = kir_cast(lw->kb, KIR_I64, index);
    in[dim] = tn_aff_value(index);
    kir_val inside = in_range(lw->kb, index, x->shape[dim]);
    kir_val v = tn_lower_at_masked(lw, x, in, inside);
    return kir_select(lw->kb, inside, v, outside_value(lw, (tn_dtype)n->dtype));
}

/* gather(x, dim, index): out[…, i, …] = x[…, index[…, i, …], …]; the result has index's shape. An index outside [0, size)
 * yields NaN (0 for integers). */
static tn_status infer_gather(tn_infer *c) {
    const tn_node *x = c->in[0], *index = c->in[1];
    int64_t dim;
    char a[96], b[96];
    TRY(tn_need_integer(c, 1));
    TRY(tn_infer_dim(c, c->attrs->i[TN_GATHER_DIM], x->rank, &dim));
    c->attrs->i[TN_GATHER_DIM] = dim;
    bool fits = x->rank == index->rank && x->rank > 0;
    for (int d = 0; fits && d < x->rank; d++) fits = d == dim || index->shape[d] <= x->shape[d];
    if (!fits)
        return tn_fail(TN_ERR_SHAPE, "gather: index %s does not fit to %s: ranks must be equal, extents but that of dim %lld ≤",
                       tn_shape_text(index, b, sizeof b), tn_shape_text(x, a, sizeof a), (long long)dim);
    c->rank = x->rank;
    c->dtype = (tn_dtype)x->dtype;
    memcpy(c->shape, index->shape, sizeof c->shape);
    memcpy(c->symbol, index->symbol, sizeof c->symbol);
    return TN_OK;
}
static tn_status grad_gather(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    grads[0] = tn_b_scatter_sum(b, n->in[1], dy, n->i[TN_GATHER_DIM], n->in[0]->shape, n->in[0]->rank);
    return b->status;
}
static kir_val lower_gather(tn_lower *lw, const tn_node *n, const kir_aff *at) {
    return load_gathered(lw, n, at, n->i[TN_GATHER_DIM], tn_lower_at(lw, n->in[1], at));
}
static void reference_gather(const tn_reference *r) {
    const tn_node *n = r->node;
    int64_t dim = n->i[TN_GATHER_DIM], from[TN_MAX_RANK];
    for (tn_walk w = tn_walk_begin(n); w.place < w.count; tn_walk_next(&w)) {
        memcpy(from, w.at, sizeof from);
        from[dim] = (int64_t)r->in[1][w.place];
        bool inside = from[dim] >= 0 && from[dim] < n->in[0]->shape[dim];
        r->out[w.place] = inside ? r->in[0][tn_place(n->in[0], from)] : outside_reference((tn_dtype)n->dtype);
    }
}
const tn_op_impl tn_impl_gather = {
    .class_ = TN_MOVEMENT, .infer = infer_gather, .grad = grad_gather, .lower = lower_gather, .reference = reference_gather,
    .cases = "types=f32,f64,i32; [4,5] [2,5]:i64@0..3 dim=0; [4,5] [4,7]:i32@0..4 dim=-1; [5] [0]:i64@0..0 dim=0;"
             "[3,4,2] [2,6,1]:i64@0..3 dim=1; [4] [6]:i64@-2..6 dim=0 grad=off; error=fit [4,5] [2]:i64@0..1 dim=0;"
             "error=integer [4] [4]:f32 dim=0"};

/* index_select(x, dim, index): the slices of x along dim that index (rank 1 or 0) names, in its order. An index outside
 * yields NaN (0 for integers). */
static tn_status infer_index_select(tn_infer *c) {
    const tn_node *x = c->in[0], *index = c->in[1];
    int64_t dim;
    char a[96];
    TRY(tn_need_integer(c, 1));
    if (index->rank > 1 || x->rank == 0)
        return tn_fail(TN_ERR_SHAPE, "index_select: index has shape %s; it must have rank 1, and x a dimension",
                       tn_shape_text(index, a, sizeof a));
    TRY(tn_infer_dim(c, c->attrs->i[TN_INDEX_SELECT_DIM], x->rank, &dim));
    c->attrs->i[TN_INDEX_SELECT_DIM] = dim;
    TRY(tn_infer_same(c));
    c->shape[dim] = tn_node_numel(index);
    c->symbol[dim] = index->rank ? index->symbol[0] : 0;
    return tn_infer_shape(c, c->shape, c->rank);
}
static tn_status grad_index_select(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    tn_node *zeros = tn_b_expand(b, tn_b_const(b, 0, dy), n->in[0]->shape, n->in[0]->rank);
    grads[0] = tn_b_index_add(b, zeros, n->i[TN_INDEX_SELECT_DIM], n->in[1], dy);
    return b->status;
}
static kir_val lower_index_select(tn_lower *lw, const tn_node *n, const kir_aff *at) {
    int64_t dim = n->i[TN_INDEX_SELECT_DIM];
    return load_gathered(lw, n, at, dim, tn_lower_at(lw, n->in[1], &at[dim]));
}
static void reference_index_select(const tn_reference *r) {
    const tn_node *n = r->node;
    int64_t dim = n->i[TN_INDEX_SELECT_DIM], from[TN_MAX_RANK];
    for (tn_walk w = tn_walk_begin(n); w.place < w.count; tn_walk_next(&w)) {
        memcpy(from, w.at, sizeof from);
        from[dim] = (int64_t)r->in[1][w.at[dim]];
        bool inside = from[dim] >= 0 && from[dim] < n->in[0]->shape[dim];
        r->out[w.place] = inside ? r->in[0][tn_place(n->in[0], from)] : outside_reference((tn_dtype)n->dtype);
    }
}
const tn_op_impl tn_impl_index_select = {
    .class_ = TN_MOVEMENT, .infer = infer_index_select, .grad = grad_index_select, .lower = lower_index_select,
    .reference = reference_index_select,
    .cases = "types=f32,f64,i32; [4,5] [3]:i64@0..3 dim=0; [4,5] [7]:i32@0..4 dim=1; [4] []:i64@0..3 dim=0;"
             "[3,2] [0]:i64@0..0 dim=0; [4] [6]:i64@-2..6 dim=0 grad=off; error=rank [4,5] [2,2]:i64@0..1 dim=0"};

/* scatter_sum(index, src, dim, shape): zeros of `shape`, to which src[…, j, …] is added at […, index[…, j, …], …]; what an
 * index puts outside is left out. One owner an element: it looks through all of dim, in ascending order. */
static tn_status infer_scatter_sum(tn_infer *c) {
    const tn_node *index = c->in[0], *src = c->in[1];
    int64_t dim, rank = c->attrs->i[1];
    const int64_t *shape = c->attrs->i + 2;
    char a[96], b[96];
    TRY(tn_need_integer(c, 0));
    TRY(tn_infer_dim(c, c->attrs->i[0], (int)rank, &dim));
    c->attrs->i[0] = dim;
    bool fits = rank > 0 && index->rank == rank && src->rank == rank;
    for (int d = 0; fits && d < rank; d++)
        fits = index->shape[d] <= src->shape[d] && (d == dim || index->shape[d] <= shape[d]);
    if (!fits)
        return tn_fail(TN_ERR_SHAPE, "scatter: index %s and source %s do not fit to the target: equal ranks, and no extent of "
                       "index greater than the source's, nor (but along dim) than the target's",
                       tn_shape_text(index, a, sizeof a), tn_shape_text(src, b, sizeof b));
    c->dtype = (tn_dtype)src->dtype;
    return tn_infer_shape(c, shape, rank);
}
static tn_status grad_scatter_sum(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    const tn_node *index = n->in[0], *src = n->in[1];
    int64_t dim = n->i[0], pads[2 * TN_MAX_RANK], last = n->shape[dim] - 1;
    /* What fell outside has no part in the result: its gradient is 0, at any place that exists. */
    tn_node *low = tn_b_maximum(b, n->in[0], tn_b_const(b, 0, index));
    tn_node *place = tn_b_minimum(b, low, tn_b_const(b, (double)last, index));
    tn_node *taken = last < 0 ? tn_b_expand(b, tn_b_const(b, 0, dy), index->shape, index->rank) : tn_b_gather(b, dy, dim, place);
    tn_node *g = tn_b_where(b, tn_b_eq(b, place, n->in[0]), taken, tn_b_const(b, 0, dy));
    for (int d = 0; d < n->rank; d++) {
        pads[2 * (n->rank - 1 - d)] = 0;
        pads[2 * (n->rank - 1 - d) + 1] = src->shape[d] - index->shape[d];
    }
    grads[1] = tn_b_pad(b, g, pads, 2 * n->rank, 0);
    return b->status;
}
static int loops_scatter_sum(const tn_node *n, int64_t extent[TN_MAX_RANK]) {
    extent[0] = n->in[0]->shape[n->i[0]];
    return 1;
}
static kir_val lower_scatter_sum(tn_lower *lw, const tn_node *n, const kir_aff *at) {
    kir_builder *kb = lw->kb;
    const tn_node *index = n->in[0];
    int64_t dim = n->i[0];
    kir_aff in[TN_MAX_RANK];
    kir_val there = KIR_NONE;
    for (int d = 0; d < n->rank; d++) {
        in[d] = d == dim ? at[n->rank] : at[d];
        if (d != dim && index->shape[d] < n->shape[d]) there = both(kb, there, below(kb, &in[d], -index->shape[d]));
    }
    kir_val place = there == KIR_NONE ? tn_lower_at(lw, index, in) : tn_lower_at_masked(lw, index, in, there);
    kir_val hit = kir_binary(kb, KIR_EQ, kir_cast(kb, KIR_I64, place), kir_index(kb, &at[dim]));
    hit = both(kb, there, hit);
    kir_val v = tn_lower_at_masked(lw, n->in[1], in, hit);
    return kir_select(kb, hit, v, zero_of(lw, (tn_dtype)n->dtype));
}
static void reference_scatter_sum(const tn_reference *r) {
    const tn_node *n = r->node, *index = n->in[0];
    int64_t dim = n->i[0], to[TN_MAX_RANK];
    memset(r->out, 0, (size_t)tn_node_numel(n) * sizeof *r->out);
    tn_node like = {.rank = index->rank};
    memcpy(like.shape, index->shape, sizeof like.shape);
    for (tn_walk w = tn_walk_begin(&like); w.place < w.count; tn_walk_next(&w)) {
        memcpy(to, w.at, sizeof to);
        to[dim] = (int64_t)r->in[0][w.place];
        if (to[dim] >= 0 && to[dim] < n->shape[dim]) r->out[tn_place(n, to)] += r->in[1][tn_place(n->in[1], w.at)];
    }
}
const tn_op_impl tn_impl_scatter_sum = {
    .class_ = TN_REDUCTION, .reduce = KIR_SEQ, .infer = infer_scatter_sum, .grad = grad_scatter_sum,
    .lower = lower_scatter_sum, .loops = loops_scatter_sum, .reference = reference_scatter_sum,
    .cases = "types=f32,f64,i32 tol=4ulp atol=1e-6; [9,2]:i64@0..3 [9,2] dim=0 shape=(4,2); [2,7]:i32@0..4 [3,8] dim=1 shape=(3,5);"
             "[5]:i64@-2..6 [5] dim=0 shape=(4); [0]:i64@0..0 [0] dim=0 shape=(3);"
             "error=fit [2]:i64@0..1 [2,2] dim=0 shape=(2,2)",
    .flops = 1};

/* index_add_rows(x, index, src): x with row src[i] added to row index[i], in ascending i; rows outside are left out. */
static tn_status infer_index_add_rows(tn_infer *c) {
    const tn_node *x = c->in[0], *index = c->in[1], *src = c->in[2];
    char a[96], b[96], i[96];
    for (int k = 0; k < 3; k++) TRY(tn_need_contiguous(c, k));
    if (index->dtype != TN_I64)
        return tn_fail(TN_ERR_DTYPE, "index_add: the index is %s; it must be i64", tn_dtype_name((tn_dtype)index->dtype));
    bool fits = x->rank > 0 && src->rank == x->rank && index->rank == 1 && index->shape[0] == src->shape[0];
    for (int d = 1; fits && d < x->rank; d++) fits = src->shape[d] == x->shape[d];
    if (!fits)
        return tn_fail(TN_ERR_SHAPE, "index_add: source %s with index %s does not fit to %s: one index a row, rows as in x",
                       tn_shape_text(src, b, sizeof b), tn_shape_text(index, i, sizeof i), tn_shape_text(x, a, sizeof a));
    if (x->dtype != src->dtype)
        return tn_fail(TN_ERR_DTYPE, "index_add: %s and source %s: they must have one dtype",
                       tn_dtype_name((tn_dtype)x->dtype), tn_dtype_name((tn_dtype)src->dtype));
    return tn_infer_same(c);
}
static tn_status grad_index_add_rows(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    grads[0] = dy;
    if (!tn_needs_grad(n, 2)) return b->status;
    int64_t last = n->shape[0] - 1;
    tn_node *zero = tn_b_const(b, 0, n->in[1]);
    tn_node *place = tn_b_minimum(b, tn_b_maximum(b, n->in[1], zero), tn_b_const(b, (double)last, n->in[1]));
    tn_node *taken = last < 0 ? tn_b_expand(b, tn_b_const(b, 0, dy), n->in[2]->shape, n->rank) : tn_b_index_select(b, dy, 0, place);
    int64_t column[TN_MAX_RANK];
    for (int d = 0; d < n->rank; d++) column[d] = d ? 1 : n->in[1]->shape[0];
    tn_node *inside = tn_b_reshape(b, tn_b_eq(b, place, n->in[1]), column, n->rank);
    grads[2] = tn_b_where(b, inside, taken, tn_b_const(b, 0, dy));
    return b->status;
}
static void reference_index_add_rows(const tn_reference *r) {
    const tn_node *n = r->node;
    int64_t rows = n->shape[0], count = n->in[1]->shape[0];
    int64_t width = 1;
    for (int d = 1; d < n->rank; d++) width *= n->shape[d];
    memcpy(r->out, r->in[0], (size_t)(rows * width) * sizeof *r->out);
    for (int64_t i = 0; i < count; i++) {
        int64_t row = (int64_t)r->in[1][i];
        for (int64_t k = 0; k < width && row >= 0 && row < rows; k++) r->out[row * width + k] += r->in[2][i * width + k];
    }
}
const tn_op_impl tn_impl_index_add_rows = {
    .class_ = TN_NATIVE, .infer = infer_index_add_rows, .grad = grad_index_add_rows, .reference = reference_index_add_rows,
    .cases = "types=f32,f64 tol=4ulp atol=1e-6; [4,3] [9]:i64@0..3 [9,3]; [5] [3]:i64@-1..6 [3]; [2,2,3] [0]:i64@0..0 [0,2,3];"
             "error=fit [4,3] [9]:i64@0..3 [8,3]",
    .flops = 1};

/* ---- writing through a view --------------------------------------------------------------------------------------------------------- */

/* A view of a contiguous base, dims sorted by stride, the greatest first; each place belongs to one element alone when every
 * stride is greater than the reach of the dims behind it. */
typedef struct view_places {
    int rank;
    int dim[TN_MAX_RANK];       /* of the view */
    int64_t size[TN_MAX_RANK], step[TN_MAX_RANK]; /* step ≥ 1 */
    bool backwards[TN_MAX_RANK];
    int64_t first; /* the lowest place */
} view_places;

static bool sort_places(const int64_t *shape, const int64_t *stride, int rank, int64_t offset, view_places *p) {
    p->rank = 0;
    p->first = offset;
    for (int d = 0; d < rank; d++) {
        if (shape[d] == 1) continue;
        int at = p->rank++;
        int64_t step = stride[d] < 0 ? -stride[d] : stride[d];
        for (; at > 0 && p->step[at - 1] < step; at--) {
            p->dim[at] = p->dim[at - 1];
            p->size[at] = p->size[at - 1];
            p->step[at] = p->step[at - 1];
            p->backwards[at] = p->backwards[at - 1];
        }
        p->dim[at] = d;
        p->size[at] = shape[d];
        p->step[at] = step;
        p->backwards[at] = stride[d] < 0;
        if (stride[d] < 0) p->first += (shape[d] - 1) * stride[d];
    }
    int64_t reach = 0;
    for (int k = p->rank - 1; k >= 0; k--) {
        if (p->step[k] <= reach) return false;
        reach += (p->size[k] - 1) * p->step[k];
    }
    return true;
}

/* assign_view(base, value, offset, strides): base, but value where a view of base with this offset and these strides (in
 * elements of the contiguous base) lies: what an in-place write through a view means. The view's shape is value's. */
static tn_status infer_assign_view(tn_infer *c) {
    const tn_node *base = c->in[0], *value = c->in[1];
    const int64_t *strides = c->attrs->i + 2;
    view_places p;
    char a[96], b[96];
    if (base->dtype != value->dtype)
        return tn_fail(TN_ERR_DTYPE, "assign_view: %s into %s: cast it first", tn_dtype_name((tn_dtype)value->dtype),
                       tn_dtype_name((tn_dtype)base->dtype));
    if (c->attrs->i[1] != value->rank)
        return tn_fail(TN_ERR_SHAPE, "assign_view: %lld strides for %s", (long long)c->attrs->i[1],
                       tn_shape_text(value, a, sizeof a));
    if (tn_node_numel(value) > 0 && !sort_places(value->shape, strides, value->rank, c->attrs->i[0], &p))
        return tn_fail(TN_ERR_UNSUPPORTED, "writing %s through a view of %s whose elements overlap or interleave: write to a "
                       "copy of it (tn_contiguous)", tn_shape_text(value, a, sizeof a), tn_shape_text(base, b, sizeof b));
    return tn_infer_same(c);
}
static tn_status grad_assign_view(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    const tn_node *value = n->in[1];
    if (tn_needs_grad(n, 0)) {
        tn_node *none = tn_b_expand(b, tn_b_const(b, 0, dy), value->shape, value->rank);
        grads[0] = tn_b_assign_view(b, dy, none, n->i[0], n->i + 2, value->rank);
    }
    if (tn_needs_grad(n, 1)) {
        tn_node *flat = tn_b_contiguous(b, dy);
        grads[1] = tn_b_as_strided(b, flat, value->shape, value->rank, n->i + 2, value->rank, n->i[0]);
    }
    return b->status;
}
/* Undoes the strides from the greatest on: each quotient is a coordinate, and the last rest must be 0. */
static kir_val invert_places(tn_lower *lw, const kir_aff *flat, const view_places *p, kir_aff *in) {
    kir_builder *kb = lw->kb;
    kir_aff from = shifted(flat, -p->first);
    kir_val rest = kir_index(kb, &from);
    kir_val hit = kir_binary(kb, KIR_LE, kir_const_i(kb, KIR_I64, 0), rest);
    for (int k = 0; k < p->rank; k++) {
        kir_val step = kir_const_i(kb, KIR_I64, p->step[k]);
        kir_val q = p->step[k] == 1 ? rest : kir_binary(kb, KIR_DIV, rest, step);
        hit = kir_binary(kb, KIR_AND, hit, kir_binary(kb, KIR_LT, q, kir_const_i(kb, KIR_I64, p->size[k])));
        rest = p->step[k] == 1 ? kir_const_i(kb, KIR_I64, 0) : kir_binary(kb, KIR_MOD, rest, step);
        if (p->backwards[k]) q = kir_binary(kb, KIR_SUB, kir_const_i(kb, KIR_I64, p->size[k] - 1), q);
        in[p->dim[k]] = tn_aff_value(q);
    }
    return kir_binary(kb, KIR_AND, hit, kir_binary(kb, KIR_EQ, rest, kir_const_i(kb, KIR_I64, 0)));
}

/* The common case, a box of the base: each of base's dims holds at most one dim of the view, in steps of whole extents. Then
 * coordinates follow without division (but for steps > 1). Returns false when it is not so. */
static bool box_of(const tn_node *base, const view_places *p, int64_t *start, int *which) {
    int64_t stride = 1, end = tn_node_numel(base), rest = p->first;
    int k = 0;
    for (int d = 0; d < base->rank; d++) {
        stride = base->shape[d] ? end / base->shape[d] : 1;
        start[d] = rest / stride;
        rest %= stride;
        which[d] = -1;
        end = stride;
        if (k == p->rank || p->step[k] < stride) continue;
        if (p->step[k] % stride != 0) return false;
        int64_t last = start[d] + (p->size[k] - 1) * (p->step[k] / stride);
        if (last >= base->shape[d]) return false;
        which[d] = k++;
        if (k < p->rank && p->step[k] >= stride) return false;
    }
    return k == p->rank && rest == 0;
}
static kir_val invert_box(tn_lower *lw, const tn_node *base, const kir_aff *at, const view_places *p, const int64_t *start,
                          const int *which, kir_aff *in) {
    kir_builder *kb = lw->kb;
    kir_val hit = KIR_NONE;
    int64_t stride = tn_node_numel(base);
    for (int d = 0; d < base->rank; d++) {
        stride /= base->shape[d];
        if (base->shape[d] == 1) continue;
        int k = which[d];
        int64_t count = k < 0 ? 1 : p->size[k], step = k < 0 ? 1 : p->step[k] / stride;
        kir_aff from = shifted(&at[d], -start[d]);
        if (start[d] > 0) hit = both(kb, hit, not_negative(kb, &from));
        if (start[d] + (count - 1) * step + 1 < base->shape[d]) hit = both(kb, hit, below(kb, &from, -((count - 1) * step + 1)));
        if (k < 0) continue;
        if (step > 1) {
            kir_val size = kir_const_i(kb, KIR_I64, step), q = kir_index(kb, &from);
            hit = both(kb, hit, kir_binary(kb, KIR_EQ, kir_binary(kb, KIR_MOD, q, size), kir_const_i(kb, KIR_I64, 0)));
            from = tn_aff_value(kir_binary(kb, KIR_DIV, q, size));
        }
        if (p->backwards[k]) {
            from = tn_aff_scale(lw, &from, -1);
            from.c += count - 1;
        }
        in[p->dim[k]] = from;
    }
    return hit;
}
static kir_val lower_assign_view(tn_lower *lw, const tn_node *n, const kir_aff *at) {
    const tn_node *base = n->in[0], *value = n->in[1];
    if (tn_node_numel(value) == 0) return tn_lower_at(lw, base, at);
    view_places p;
    kir_aff in[TN_MAX_RANK];
    int64_t start[TN_MAX_RANK], stride[TN_MAX_RANK];
    int which[TN_MAX_RANK];
    for (int d = 0; d < value->rank; d++) in[d] = kir_aff_const(0);
    sort_places(value->shape, n->i + 2, value->rank, n->i[0], &p);
    kir_val hit;
    if (box_of(base, &p, start, which)) {
        hit = invert_box(lw, base, at, &p, start, which, in);
    } else {
        contiguous_strides(base->shape, base->rank, stride);
        kir_aff flat = flat_index(lw, at, stride, base->rank, 0);
        hit = invert_places(lw, &flat, &p, in);
    }
    if (hit == KIR_NONE) return tn_lower_at(lw, value, in);
    kir_val v = tn_lower_at_masked(lw, value, in, hit);
    return kir_select(lw->kb, hit, v, tn_lower_at(lw, base, at));
}
static void reference_assign_view(const tn_reference *r) {
    const tn_node *value = r->node->in[1];
    memcpy(r->out, r->in[0], (size_t)tn_node_numel(r->node) * sizeof *r->out);
    tn_node like = {.rank = value->rank};
    memcpy(like.shape, value->shape, sizeof like.shape);
    for (tn_walk w = tn_walk_begin(&like); w.place < w.count; tn_walk_next(&w)) {
        int64_t to = r->node->i[0];
        for (int d = 0; d < value->rank; d++) to += w.at[d] * r->node->i[2 + d];
        r->out[to] = r->in[1][w.place];
    }
}
const tn_op_impl tn_impl_assign_view = {
    .class_ = TN_MOVEMENT, .infer = infer_assign_view, .grad = grad_assign_view, .lower = lower_assign_view,
    .reference = reference_assign_view,
    .cases = "types=f32,f64,i32; [4,5] [2,3] offset=6 strides=(5,1); [4,5] [5] offset=10 strides=(1); [7] [3] offset=5 strides=(-2);"
             "[4,5] [4] offset=0 strides=(6) error=; [4,3] [4,3] offset=0 strides=(3,1); [4,6] [3,4] offset=18 strides=(2,-6);"
             "[4,5] [4] offset=0 strides=(6); [2,3,4] [2,4] offset=4 strides=(12,1); [3] [] offset=1 strides=();"
             "[3] [0] offset=0 strides=(1); error=overlap [6] [2,3] offset=0 strides=(1,1)"};

/* ---- windows of images ---------------------------------------------------------------------------------------------------------------- */

/* Places of the attributes that windows2d and fold_windows2d share. */
enum { WINDOW_KERNEL = 0, WINDOW_STRIDE = 2, WINDOW_PADDING = 4, WINDOW_DILATION = 6 };

static int64_t window_count(const int64_t *i, int64_t size, int axis) {
    int64_t reach = i[WINDOW_DILATION + axis] * (i[WINDOW_KERNEL + axis] - 1) + 1;
    int64_t room = size + 2 * i[WINDOW_PADDING + axis] - reach;
    return room < 0 ? 0 : room / i[WINDOW_STRIDE + axis] + 1;
}

static tn_status check_windows(const tn_infer *c) {
    static const struct {
        const char *name;
        int place;
        int64_t least;
    } rows[] = {{"kernel size", WINDOW_KERNEL, 1}, {"stride", WINDOW_STRIDE, 1}, {"padding", WINDOW_PADDING, 0},
                {"dilation", WINDOW_DILATION, 1}};
    for (size_t k = 0; k < 2 * TN_COUNT(rows); k++) {
        int64_t v = c->attrs->i[rows[k / 2].place + (int)(k % 2)];
        if (v < rows[k / 2].least || v > INT32_MAX)
            return tn_fail(TN_ERR_ARGUMENT, "%s: a %s of %lld: at least %lld", c->row->name, rows[k / 2].name, (long long)v,
                           (long long)rows[k / 2].least);
    }
    return TN_OK;
}

/* windows2d(x, kernel, stride, padding, dilation, value): the patches under a kernel that slides over images:
 * [n, c, h, w] → [n, c, kh, kw, oh, ow], `value` where the kernel reaches into the padding. */
static tn_status infer_windows2d(tn_infer *c) {
    const tn_node *x = c->in[0];
    const int64_t *i = c->attrs->i;
    char text[96];
    TRY(check_windows(c));
    if (x->rank != 4)
        return tn_fail(TN_ERR_SHAPE, "%s: %s is no batch of images [n, c, h, w]", c->row->name, tn_shape_text(x, text, sizeof text));
    int64_t shape[6] = {x->shape[0], x->shape[1], i[0], i[1], window_count(i, x->shape[2], 0), window_count(i, x->shape[3], 1)};
    if (shape[4] == 0 || shape[5] == 0)
        return tn_fail(TN_ERR_SHAPE, "%s: a kernel of %lld × %lld does not fit into %s with padding %lld × %lld", c->row->name,
                       (long long)i[0], (long long)i[1], tn_shape_text(x, text, sizeof text), (long long)i[WINDOW_PADDING],
                       (long long)i[WINDOW_PADDING + 1]);
    TRY(fill_shape(c, shape, 6));
    c->symbol[0] = x->symbol[0];
    c->symbol[1] = x->symbol[1];
    return TN_OK;
}
static tn_status grad_windows2d(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    grads[0] = tn_b_fold_windows2d(b, dy, n->i + WINDOW_KERNEL, n->i + WINDOW_STRIDE, n->i + WINDOW_PADDING,
                                   n->i + WINDOW_DILATION, n->in[0]->shape + 2);
    return b->status;
}
/* out · stride + in_kernel · dilation − padding */
static kir_aff window_place(tn_lower *lw, const int64_t *i, int axis, const kir_aff *out, const kir_aff *in_kernel) {
    kir_aff a = tn_aff_scale(lw, out, i[WINDOW_STRIDE + axis]);
    kir_aff k = tn_aff_scale(lw, in_kernel, i[WINDOW_DILATION + axis]);
    a = tn_aff_add(lw, &a, &k);
    return shifted(&a, -i[WINDOW_PADDING + axis]);
}
static kir_val lower_windows2d(tn_lower *lw, const tn_node *n, const kir_aff *at) {
    const tn_node *x = n->in[0];
    kir_aff in[4] = {at[0], at[1]};
    kir_val inside = KIR_NONE;
    for (int axis = 0; axis < 2; axis++) {
        in[2 + axis] = window_place(lw, n->i, axis, &at[4 + axis], &at[2 + axis]);
        if (n->i[WINDOW_PADDING + axis] == 0) continue;
        inside = both(lw->kb, inside, not_negative(lw->kb, &in[2 + axis]));
        inside = both(lw->kb, inside, below(lw->kb, &in[2 + axis], -x->shape[2 + axis]));
    }
    if (inside == KIR_NONE) return tn_lower_at(lw, x, in);
    kir_val v = tn_lower_at_masked(lw, x, in, inside);
    return kir_select(lw->kb, inside, v, kir_const(lw->kb, kir_type_of((tn_dtype)n->dtype), n->f[TN_WINDOWS2D_VALUE]));
}
static void reference_windows2d(const tn_reference *r) {
    const tn_node *n = r->node, *x = n->in[0];
    const int64_t *i = n->i;
    for (tn_walk w = tn_walk_begin(n); w.place < w.count; tn_walk_next(&w)) {
        int64_t y = w.at[4] * i[WINDOW_STRIDE] + w.at[2] * i[WINDOW_DILATION] - i[WINDOW_PADDING];
        int64_t z = w.at[5] * i[WINDOW_STRIDE + 1] + w.at[3] * i[WINDOW_DILATION + 1] - i[WINDOW_PADDING + 1];
        bool inside = y >= 0 && y < x->shape[2] && z >= 0 && z < x->shape[3];
        int64_t from[4] = {w.at[0], w.at[1], y, z};
        r->out[w.place] = inside ? r->in[0][tn_place(x, from)] : n->f[TN_WINDOWS2D_VALUE];
    }
}
const tn_op_impl tn_impl_windows2d = {
    .class_ = TN_MOVEMENT, .infer = infer_windows2d, .grad = grad_windows2d, .lower = lower_windows2d,
    .reference = reference_windows2d,
    .cases = "types=f32,f64; [2,3,5,4] kernel=(3,2) stride=(1,1) padding=(0,0) dilation=(1,1) value=0;"
             "[1,2,6,7] kernel=(3,3) stride=(2,3) padding=(1,2) dilation=(1,1) value=-1;"
             "[1,1,7,5] kernel=(2,2) stride=(1,2) padding=(0,1) dilation=(3,2) value=0;"
             "[0,2,4,4] kernel=(2,2) stride=(1,1) padding=(0,0) dilation=(1,1) value=0;"
             "error=fit [1,1,2,2] kernel=(3,3) stride=(1,1) padding=(0,0) dilation=(1,1) value=0;"
             "error=images [2,2] kernel=(1,1) stride=(1,1) padding=(0,0) dilation=(1,1) value=0"};

/* fold_windows2d(y, kernel, stride, padding, dilation, size): the adjoint of windows2d: each pixel of [n, c, size] sums the
 * places in all patches [n, c, kh, kw, oh, ow] that came from it. */
static tn_status infer_fold_windows2d(tn_infer *c) {
    const tn_node *y = c->in[0];
    const int64_t *i = c->attrs->i, *size = i + TN_FOLD_WINDOWS2D_SIZE;
    char text[96];
    TRY(check_windows(c));
    bool fits = y->rank == 6 && y->shape[2] == i[0] && y->shape[3] == i[1];
    for (int axis = 0; fits && axis < 2; axis++) fits = size[axis] >= 0 && y->shape[4 + axis] == window_count(i, size[axis], axis);
    if (!fits)
        return tn_fail(TN_ERR_SHAPE, "%s: %s are not the windows [n, c, kh, kw, oh, ow] of images of %lld × %lld", c->row->name,
                       tn_shape_text(y, text, sizeof text), (long long)size[0], (long long)size[1]);
    TRY(fill_shape(c, (int64_t[]){y->shape[0], y->shape[1], size[0], size[1]}, 4));
    c->symbol[0] = y->symbol[0];
    c->symbol[1] = y->symbol[1];
    return TN_OK;
}
static tn_status grad_fold_windows2d(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    grads[0] = tn_b_windows2d(b, dy, n->i + WINDOW_KERNEL, n->i + WINDOW_STRIDE, n->i + WINDOW_PADDING,
                              n->i + WINDOW_DILATION, 0);
    return b->status;
}
static int loops_fold_windows2d(const tn_node *n, int64_t extent[TN_MAX_RANK]) {
    extent[0] = n->i[WINDOW_KERNEL];
    extent[1] = n->i[WINDOW_KERNEL + 1];
    return 2;
}
/* (pixel + padding − in_kernel · dilation) / stride, where that is whole and one of the patches. */
static kir_val fold_place(tn_lower *lw, const tn_node *n, int axis, const kir_aff *at, kir_aff *out) {
    kir_builder *kb = lw->kb;
    int64_t stride = n->i[WINDOW_STRIDE + axis];
    kir_aff back = tn_aff_scale(lw, &at[4 + axis], -n->i[WINDOW_DILATION + axis]);
    back = tn_aff_add(lw, &at[2 + axis], &back);
    back = shifted(&back, n->i[WINDOW_PADDING + axis]);
    kir_val there = not_negative(kb, &back);
    *out = back;
    if (stride > 1) {
        kir_val size = kir_const_i(kb, KIR_I64, stride), v = kir_index(kb, &back);
        there = both(kb, there, kir_binary(kb, KIR_EQ, kir_binary(kb, KIR_MOD, v, size), kir_const_i(kb, KIR_I64, 0)));
        *out = tn_aff_value(kir_binary(kb, KIR_DIV, v, size));
    }
    return both(kb, there, below(kb, out, -n->in[0]->shape[4 + axis]));
}
static kir_val lower_fold_windows2d(tn_lower *lw, const tn_node *n, const kir_aff *at) {
    kir_aff in[6] = {at[0], at[1], at[4], at[5]};
    kir_val there = KIR_NONE;
    for (int axis = 0; axis < 2; axis++) there = both(lw->kb, there, fold_place(lw, n, axis, at, &in[4 + axis]));
    kir_val v = tn_lower_at_masked(lw, n->in[0], in, there);
    return kir_select(lw->kb, there, v, zero_of(lw, (tn_dtype)n->dtype));
}
static void reference_fold_windows2d(const tn_reference *r) {
    const tn_node *n = r->node, *y = n->in[0];
    const int64_t *i = n->i;
    memset(r->out, 0, (size_t)tn_node_numel(n) * sizeof *r->out);
    tn_node like = {.rank = y->rank};
    memcpy(like.shape, y->shape, sizeof like.shape);
    for (tn_walk w = tn_walk_begin(&like); w.place < w.count; tn_walk_next(&w)) {
        int64_t a = w.at[4] * i[WINDOW_STRIDE] + w.at[2] * i[WINDOW_DILATION] - i[WINDOW_PADDING];
        int64_t b = w.at[5] * i[WINDOW_STRIDE + 1] + w.at[3] * i[WINDOW_DILATION + 1] - i[WINDOW_PADDING + 1];
        int64_t to[4] = {w.at[0], w.at[1], a, b};
        if (a >= 0 && a < n->shape[2] && b >= 0 && b < n->shape[3]) r->out[tn_place(n, to)] += r->in[0][w.place];
    }
}
const tn_op_impl tn_impl_fold_windows2d = {
    .class_ = TN_REDUCTION, .reduce = KIR_SEQ, .infer = infer_fold_windows2d, .grad = grad_fold_windows2d,
    .lower = lower_fold_windows2d, .loops = loops_fold_windows2d, .reference = reference_fold_windows2d,
    .cases = "types=f32,f64 tol=8ulp atol=1e-6; [2,3,3,2,3,3] kernel=(3,2) stride=(1,1) padding=(0,0) dilation=(1,1) size=(5,4);"
             "[1,2,3,3,3,3] kernel=(3,3) stride=(2,3) padding=(1,2) dilation=(1,1) size=(6,7);"
             "[1,1,2,2,4,3] kernel=(2,2) stride=(1,2) padding=(0,1) dilation=(3,2) size=(7,5);"
             "error=windows [1,1,2,2,4,4] kernel=(2,2) stride=(1,1) padding=(0,0) dilation=(1,1) size=(7,5)",
    .flops = 1};
