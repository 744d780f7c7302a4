/* op_movement.c — ops that move elements without changing them: views, copies, writes, and functions composed of
 * views.
 *
 * The infer() of a view op computes where its elements lie in the buffer of its root. Its lower() maps an index of the
 * result to an index of the input, for kernels that compute the input instead of loading it. The lower() of a copy
 * reads its inputs at other indices, masked where an index may be out of range. */
#include <string.h>

#include "ops/ops_common.h"

/* ---- view -------------------------------------------------------------------------------------------------------- */

/* Fills in one extent of -1 and checks that the number of elements stays. */
static tn_status resolve_shape(const tn_infer *c, int64_t *shape, int64_t rank) {
    int64_t numel = tn_node_numel(c->in[0]), known = 1, open = -1;
    char text[96];
    for (int d = 0; d < rank; d++) {
        if (shape[d] == -1 && open < 0)
            open = d;
        else if (shape[d] < 0 || tn_mul_overflow(known, shape[d], &known))
            return tn_fail(TN_ERR_SHAPE,
                           "%s: extent %lld of dimension %d is invalid: extents must be ≥ 0, and one may be -1",
                           c->row->name, (long long)shape[d], d);
    }
    if (open >= 0 && known > 0 && numel % known == 0) {
        shape[open] = numel / known;
        known = numel;
    }
    if (known != numel || (open >= 0 && shape[open] < 0))
        return tn_fail(TN_ERR_SHAPE, "%s: shape %s has %lld elements, but the new shape needs %s%lld", c->row->name,
                       tn_shape_text(c->in[0], text, sizeof text), (long long)numel, open >= 0 ? "a multiple of " : "",
                       (long long)known);
    return TN_OK;
}

/* Strides of `shape` over the elements of x, whose own strides are `have`; false when only a copy can do it. Runs of
 * dims of x that lie one after the other form chunks; each chunk must be cut by the new
 * shape without crossing its border. */
static bool view_strides(const tn_node *x, const int64_t *have, const int64_t *shape, int rank, int64_t *stride) {
    if (tn_node_numel(x) == 0) {
        tn_strides_contiguous(shape, rank, stride);
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
        while (above >= 0 && x->shape[above] == 1)
            above--;
        if (above >= 0 && have[above] == chunk * base) continue;
        while (to >= 0 && (covered < chunk || shape[to] == 1)) {
            stride[to] = base * covered;
            covered *= shape[to--];
        }
        if (covered != chunk) return false;
        base = above >= 0 ? have[above] : 1;
        chunk = covered = 1;
    }
    for (; to >= 0; to--)
        stride[to] = 1;
    return true;
}

/* An extent that stays where it is keeps its symbol: leading dims and trailing dims that are equal. */
static void keep_symbols(tn_infer *c) {
    const tn_node *x = c->in[0];
    for (int d = 0; d < c->rank && d < x->rank && c->shape[d] == x->shape[d]; d++)
        c->symbol[d] = x->symbol[d];
    for (int e = 1; e <= c->rank && e <= x->rank && c->shape[c->rank - e] == x->shape[x->rank - e]; e++)
        c->symbol[c->rank - e] = x->symbol[x->rank - e];
}

/* view(x, shape): the same elements in another shape, without a copy; one extent may be -1. An error if x's strides do
 * not allow it; then use reshape. */
static tn_status infer_view(tn_infer *c) {
    int64_t stride[TN_MAX_RANK], *shape = c->attrs->i + 1;
    int64_t rank = c->attrs->i[0];
    char text[96];
    TRY(resolve_shape(c, shape, rank));
    TRY(tn_infer_reshaped(c, shape, rank));
    tn_node_layout(c->in[0], &c->offset, stride);
    keep_symbols(c);
    if (view_strides(c->in[0], stride, shape, (int)rank, c->stride)) return TN_OK;
    return tn_fail(TN_ERR_SHAPE, "view: the memory layout of %s does not allow this shape without a copy: use reshape",
                   tn_shape_text(c->in[0], text, sizeof text));
}
static tn_node *grad_view(tn_build *b, const tn_node *n, tn_node *dy) {
    return tn_b_reshape(b, dy, n->in[0]->shape, n->in[0]->rank);
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
        tn_strides_contiguous(n->shape + j0, j - j0, stride);
        kir_aff flat = index_flat(lw, at + j0, stride, j - j0, 0);
        index_unflatten(lw, &flat, x->shape + i0, i - i0, in + i0);
    }
    return tn_lower_at(lw, x, in);
}
static void reference_copy(const tn_reference *r) {
    memcpy(r->out, r->in[0], (size_t)tn_node_numel(r->node) * sizeof *r->out);
}
OP_CODE(view, .facts = TN_FACT_RESHAPE | TN_FACT_EXTENTS, .class_ = TN_VIEW_OP, .quantized = 1, .infer = infer_view,
        .grad_first = grad_view, .lower = lower_view, .reference = reference_copy,
        .cases = "types=f32,f64,i32; [2,6] shape=(3,4); [2,6] shape=(-1); [2,3,4] "
                 "shape=(6,4); [12] shape=(2,2,3); [] shape=(1,1);"
                 "[0,3] shape=(3,0); error=elements [2,3] shape=(4,2)");

/* ---- permute, expand, slice, as_strided, detach ------------------------------------------------------------------ */

/* permute(x, dims): dimension d of the result is dimension dims[d] of x; a view. */
static tn_status infer_permute(tn_infer *c) {
    const tn_node *x = c->in[0];
    int64_t stride[TN_MAX_RANK], *dims = c->attrs->i + 1;
    bool used[TN_MAX_RANK] = {false};
    if (c->attrs->i[0] != x->rank)
        return tn_fail(TN_ERR_SHAPE, "permute: %lld dims given for a tensor of rank %d; pass one per dimension",
                       (long long)c->attrs->i[0], x->rank);
    tn_node_layout(x, &c->offset, stride);
    for (int d = 0; d < x->rank; d++) {
        TRY(tn_infer_dim(c, dims[d], x->rank, &dims[d]));
        if (used[dims[d]]) return tn_fail(TN_ERR_SHAPE, "permute: dim %lld is given twice", (long long)dims[d]);
        used[dims[d]] = true;
        c->shape[d] = x->shape[dims[d]];
        c->symbol[d] = x->symbol[dims[d]];
        c->stride[d] = stride[dims[d]];
    }
    c->rank = x->rank;
    c->dtype = (tn_dtype)x->dtype;
    return TN_OK;
}
static tn_node *grad_permute(tn_build *b, const tn_node *n, tn_node *dy) {
    int64_t inverse[TN_MAX_RANK];
    for (int d = 0; d < n->rank; d++)
        inverse[n->i[1 + d]] = d;
    return tn_b_permute(b, dy, inverse, n->rank);
}
static kir_val lower_permute(tn_lower *lw, const tn_node *n, const kir_aff *at) {
    kir_aff in[TN_MAX_RANK];
    for (int d = 0; d < n->rank; d++)
        in[n->i[1 + d]] = at[d];
    return tn_lower_at(lw, n->in[0], in);
}
static void reference_permute(const tn_reference *r) {
    int64_t from[TN_MAX_RANK];
    for (tn_walk w = tn_walk_begin(r->node); w.place < w.count; tn_walk_next(&w)) {
        for (int d = 0; d < r->node->rank; d++)
            from[r->node->i[1 + d]] = w.at[d];
        r->out[w.place] = r->in[0][tn_element_offset(r->node->in[0], from)];
    }
}
OP_CODE(permute, .class_ = TN_VIEW_OP, .infer = infer_permute, .grad_first = grad_permute, .lower = lower_permute,
        .reference = reference_permute,
        .cases =
            "types=f32,f64,i32; [2,3] dims=(1,0); [2,3,4] dims=(2,0,1); [2,3,4,5] dims=(0,-1,1,2); [] dims=(); [0,3] "
            "dims=(1,0);"
            "error=twice [2,3] dims=(0,0); error=range [2,3] dims=(0,2); error=rank [2,3] dims=(0)");

/* expand(x, shape): x with extents of 1 expanded to those of shape, and new leading dimensions; -1 keeps an extent. A
 * view. */
static tn_status infer_expand(tn_infer *c) {
    const tn_node *x = c->in[0];
    int64_t stride[TN_MAX_RANK], *shape = c->attrs->i + 1;
    int rank = (int)c->attrs->i[0], extra = rank - x->rank;
    char text[96];
    if (extra < 0)
        return tn_fail(TN_ERR_SHAPE, "expand: the new shape has %d dimensions, fewer than the %d of the tensor %s",
                       rank, x->rank, tn_shape_text(x, text, sizeof text));
    tn_node_layout(x, &c->offset, stride);
    for (int d = extra; d < rank; d++)
        if (shape[d] == -1) shape[d] = x->shape[d - extra];
    TRY(tn_infer_reshaped(c, shape, rank));
    for (int d = 0; d < rank; d++) {
        bool repeated = d < extra || (x->shape[d - extra] == 1 && shape[d] != 1);
        c->stride[d] = repeated ? 0 : stride[d - extra];
        if (!repeated) c->symbol[d] = x->symbol[d - extra];
        if (!repeated && shape[d] != x->shape[d - extra])
            return tn_fail(TN_ERR_SHAPE,
                           "expand: extent %lld of %s cannot become %lld: only extents of 1 can be expanded",
                           (long long)x->shape[d - extra], tn_shape_text(x, text, sizeof text), (long long)shape[d]);
    }
    return TN_OK;
}
static tn_node *grad_expand(tn_build *b, const tn_node *n, tn_node *dy) { return tn_b_sum_to(b, dy, n->in[0]); }
static kir_val lower_expand(tn_lower *lw, const tn_node *n, const kir_aff *at) { return tn_lower_in(lw, n, 0, at); }
static void reference_expand(const tn_reference *r) {
    for (tn_walk w = tn_walk_begin(r->node); w.place < w.count; tn_walk_next(&w))
        r->out[w.place] = r->in[0][w.in[0]];
}
OP_CODE(expand, .facts = TN_FACT_EXTENTS, .class_ = TN_VIEW_OP, .infer = infer_expand, .grad_first = grad_expand,
        .lower = lower_expand, .reference = reference_expand,
        .cases =
            "types=f32,f64,i32; [2,1] shape=(2,3); [3] shape=(2,3); [] shape=(2,2); [1,3] shape=(-1,3); [1] shape=(0);"
            "error=expanded [2] shape=(3)");

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

/* slice(x, dim, start, stop, step): elements start, start + step, … before stop along dim; a view. Negative start and
 * stop count from the end; INT64_MAX as stop goes to the end, INT64_MIN to the beginning for a negative step. */
static tn_status infer_slice(tn_infer *c) {
    const tn_node *x = c->in[0];
    int64_t *a = c->attrs->i, step = a[TN_SLICE_STEP];
    if (step == 0) return tn_fail(TN_ERR_ARGUMENT, "slice: step is 0; it must not be 0");
    if (x->rank == 0) return tn_fail(TN_ERR_SHAPE, "slice: the tensor has no dimension");
    TRY(tn_infer_same(c));
    TRY(tn_infer_dim(c, a[TN_SLICE_DIM], x->rank, &a[TN_SLICE_DIM]));
    int64_t dim = a[TN_SLICE_DIM];
    tn_node_layout(x, &c->offset, c->stride);
    int64_t longest = tn_max64(x->shape[dim], INT32_MAX); /* leads outside at once, as all longer ones do */
    a[TN_SLICE_STEP] = step = tn_max64(tn_min64(step, longest), -longest);
    int64_t count = resolve_slice(x->shape[dim], &a[TN_SLICE_START], &a[TN_SLICE_STOP], step);
    if (count > 0) c->offset += a[TN_SLICE_START] * c->stride[dim];
    c->stride[dim] *= step;
    if (count != x->shape[dim]) c->symbol[dim] = 0;
    c->shape[dim] = count;
    return TN_OK;
}
static void grad_slice(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    const tn_node *x = n->in[0];
    int64_t dim = n->i[TN_SLICE_DIM], start = n->i[TN_SLICE_START], step = n->i[TN_SLICE_STEP];
    if (step == 1 && n->shape[dim] == x->shape[dim]) {
        grads[0] = dy;
        return;
    }
    if (step == 1) {
        int64_t pads[2 * TN_MAX_RANK] = {0};
        int place = 2 * (x->rank - 1 - (int)dim);
        pads[place] = start;
        pads[place + 1] = x->shape[dim] - start - n->shape[dim];
        grads[0] = tn_b_pad(b, dy, pads, 2 * x->rank, 0);
        return;
    }
    int64_t stride[TN_MAX_RANK];
    tn_strides_contiguous(x->shape, x->rank, stride);
    int64_t offset = start * stride[dim];
    stride[dim] *= step;
    tn_node *zeros = tn_b_expand(b, tn_b_const(b, 0, dy), x->shape, x->rank);
    grads[0] = tn_b_assign_view(b, zeros, dy, offset, stride, x->rank);
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
        r->out[w.place] = r->in[0][tn_element_offset(n->in[0], from)];
    }
}
OP_CODE(
    slice, .class_ = TN_VIEW_OP, .quantized = 1, .infer = infer_slice, .grad = grad_slice, .lower = lower_slice,
    .reference = reference_slice,
    .cases =
        "types=f32,f64,i32; [7] dim=0 start=1 stop=5 step=1; [7,2] dim=0 start=0 stop=99 step=3;"
        "[2,5] dim=-1 start=-1 stop=min step=-1; [2,5] dim=1 start=4 stop=0 step=-2; [3,4] dim=1 start=2 stop=2 step=1;"
        "[0,4] dim=0 start=0 stop=9 step=1; error=step [3] dim=0 start=0 stop=1 step=0;"
        "error=range [3] dim=1 start=0 stop=1 step=1; error=dimension [] dim=0 start=0 stop=1 step=1");

/* The distance in memory of x's elements, which follow each other in row-major order at equal distances; 0 if not. */
static int64_t even_distance(const tn_node *x, int64_t *offset) {
    int64_t stride[TN_MAX_RANK], count = 1, distance = 0;
    tn_node_layout(x, offset, stride);
    for (int d = x->rank - 1; d >= 0; d--) {
        if (x->shape[d] == 1) continue;
        if (distance == 0) distance = stride[d];
        if (stride[d] != distance * count) return tn_node_numel(x) == 0;
        count *= x->shape[d];
    }
    return count > 1 ? distance : 1;
}

/* A stride over x's elements in row-major order as steps along its dims: a diagonal has one along two of them. */
static void steps_of(const tn_node *x, int64_t stride, int64_t steps[TN_MAX_RANK]) {
    int64_t own[TN_MAX_RANK];
    tn_strides_contiguous(x->shape, x->rank, own);
    for (int e = 0; e < x->rank; e++) {
        steps[e] = x->shape[e] > 1 ? stride / own[e] : 0;
        stride -= steps[e] * own[e];
    }
}

/* The layout of a view, by strides over x's elements, of an x that is a view itself. False if its elements are not at
 * equal distances in memory: where steps along x's dims would leave them for the next row. */
static bool strided_layout(tn_infer *c, const int64_t *strides, int64_t offset) {
    const tn_node *x = c->in[0];
    int64_t stride[TN_MAX_RANK], steps[TN_MAX_RANK], low[TN_MAX_RANK], high[TN_MAX_RANK];
    tn_node_layout(x, &c->offset, stride);
    steps_of(x, offset, low);
    for (int e = 0; e < x->rank; e++) {
        high[e] = low[e];
        c->offset += low[e] * stride[e];
    }
    for (int d = 0; d < c->rank; d++) {
        c->stride[d] = 0;
        if (c->shape[d] == 1) continue;
        steps_of(x, strides[d], steps);
        for (int e = 0; e < x->rank; e++) {
            c->stride[d] += steps[e] * stride[e];
            *(steps[e] < 0 ? &low[e] : &high[e]) += steps[e] * (c->shape[d] - 1);
        }
    }
    for (int e = 0; e < x->rank; e++)
        if (low[e] < 0 || high[e] >= x->shape[e]) return false;
    return true;
}

/* as_strided(x, shape, strides, offset): a view, with arbitrary strides over x's elements in row-major order: element
 * at[] is x's element offset + Σ at[d] · strides[d]. Elements may occur several times. If x has gaps or permuted dims,
 * the strides must be steps along its dims, as those of windows and diagonals are. */
static tn_status infer_as_strided(tn_infer *c) {
    const int64_t *a = c->attrs->i;
    int64_t first, distance = even_distance(c->in[0], &first);
    const int64_t *shape = a + 1, *strides = a + 2 + a[0];
    int64_t offset = strides[a[0]], lowest = offset, highest = offset;
    char text[96];
    if (strides[-1] != a[0])
        return tn_fail(TN_ERR_SHAPE, "as_strided: %lld extents but %lld strides", (long long)a[0],
                       (long long)strides[-1]);
    TRY(tn_infer_reshaped(c, shape, a[0]));
    bool empty = false;
    for (int d = 0; d < c->rank; d++) {
        int64_t reach = 0, *end = strides[d] < 0 ? &lowest : &highest;
        empty |= shape[d] == 0;
        if (tn_mul_overflow(shape[d] - 1, strides[d], &reach) || tn_add_overflow(*end, reach, end))
            return tn_fail(TN_ERR_SHAPE, "as_strided: stride %lld of dimension %d is too large", (long long)strides[d],
                           d);
    }
    if (!empty && (lowest < 0 || highest >= tn_node_numel(c->in[0])))
        return tn_fail(TN_ERR_SHAPE, "as_strided: elements %lld to %lld are addressed, but %s has %lld",
                       (long long)lowest, (long long)highest, tn_shape_text(c->in[0], text, sizeof text),
                       (long long)tn_node_numel(c->in[0]));
    if (distance == 0 && strided_layout(c, strides, offset)) return TN_OK;
    if (distance == 0)
        return tn_fail(TN_ERR_SHAPE, "as_strided: %s is not contiguous: call tn_contiguous first",
                       tn_shape_text(c->in[0], text, sizeof text));
    c->offset = first + (empty ? 0 : offset * distance);
    for (int d = 0; d < c->rank; d++)
        c->stride[d] = empty || shape[d] == 1 ? 0 : strides[d] * distance;
    return TN_OK;
}
/* Places may repeat, so their gradients are added: by row number, on the flat tensor. */
static tn_node *grad_as_strided(tn_build *b, const tn_node *n, tn_node *dy) {
    const tn_node *x = n->in[0];
    int64_t numel = tn_node_numel(x), count = tn_node_numel(n);
    const int64_t *strides = n->i + 2 + n->rank;
    tn_node *places = tn_b_arange(b, 0, (double)numel, 1, TN_I64);
    places = tn_b_as_strided(b, places, n->shape, n->rank, strides, n->rank, strides[n->rank]);
    places = tn_b_reshape(b, places, &count, 1);
    tn_node *zeros = tn_b_expand(b, tn_b_const(b, 0, dy), &numel, 1);
    tn_node *sum = tn_b_index_add(b, zeros, 0, places, tn_b_reshape(b, dy, &count, 1));
    return tn_b_reshape(b, sum, x->shape, x->rank);
}
static kir_val lower_as_strided(tn_lower *lw, const tn_node *n, const kir_aff *at) {
    const tn_node *x = n->in[0];
    const int64_t *strides = n->i + 2 + n->rank;
    kir_aff in[TN_MAX_RANK], flat = index_flat(lw, at, strides, n->rank, strides[n->rank]);
    index_unflatten(lw, &flat, x->shape, x->rank, in);
    return tn_lower_at(lw, x, in);
}
static void reference_as_strided(const tn_reference *r) {
    const int64_t *strides = r->node->i + 2 + r->node->rank;
    for (tn_walk w = tn_walk_begin(r->node); w.place < w.count; tn_walk_next(&w)) {
        int64_t from = strides[r->node->rank];
        for (int d = 0; d < r->node->rank; d++)
            from += w.at[d] * strides[d];
        r->out[w.place] = r->in[0][from];
    }
}
OP_CODE(
    as_strided, .facts = TN_FACT_RAW_STRIDES, .class_ = TN_VIEW_OP, .infer = infer_as_strided,
    .grad_first = grad_as_strided, .lower = lower_as_strided, .reference = reference_as_strided,
    .cases =
        "types=f32,f64,i32; [12] shape=(3,2) strides=(4,1) offset=1; [3,4] shape=(3) strides=(5) offset=0;"
        "[6] shape=(4,3) strides=(1,1) offset=0; [6] shape=(3) strides=(-2) offset=5; [2] shape=() strides=() offset=1;"
        "error=addressed [4] shape=(3) strides=(2) offset=0; error=strides [4] shape=(3) strides=(1,1) offset=0");

/* detach(x): x without its gradient history. A view: what is written to it in place is seen in x, which keeps its
 * history. A result that requires gradients is not written to it: copy it with tn_clone before. */
static tn_status infer_detach(tn_infer *c) {
    tn_node_layout(c->in[0], &c->offset, c->stride);
    return tn_infer_same(c);
}
OP_CODE(detach, .class_ = TN_VIEW_OP, .infer = infer_detach, .lower = lower_expand, .reference = reference_copy,
        .cases = "types=f32,i32; [2,3]; [0]; []");

static tn_node *grad_same(TN_UNUSED tn_build *b, TN_UNUSED const tn_node *n, tn_node *dy) { return dy; }

/* gated(x, gate): x, as a value of its own that is computed after gate; a view. The gradient of a region of
 * TN_RECOMPUTE begins with it. */
OP_CODE(gated, .facts = TN_FACT_GATE, .class_ = TN_VIEW_OP, .infer = infer_detach, .grad_first = grad_same,
        .lower = lower_expand, .reference = reference_copy, .cases = "types=f32,f64,i32; [2,3] [4]; [0] [1]; [] [2,2]");

/* rewritten(x, value): value, with the gradient history of x: what x becomes by a write in place that is not recorded
 * for gradients. Both have the same shape and dtype. */
static tn_node *compose_rewritten(tn_build *b, const tn_node *n) { return tn_b_contiguous(b, n->in[1]); }
OP_CODE(rewritten, .keeps_half = true, .infer = tn_infer_same, .compose = compose_rewritten, .grad_first = grad_same,
        .cases = "types=f32,f64,i32 grad=off; [2,3] [2,3]; [0] [0]; [] []");

/* ---- copies ------------------------------------------------------------------------------------------------------ */

/* contiguous(x): a copy of x in row-major order. */
OP_CODE(contiguous, .facts = TN_FACT_COPY, .class_ = TN_ELEMENTWISE, .infer = tn_infer_same, .grad_first = grad_same,
        .lower = lower_expand, .reference = reference_copy, .cases = "types=f32,f64,i32,bool; [2,3]; [0]; []");

/* An empty tensor of rank 1 is left out, as in PyTorch: "nothing yet", to which anything can be joined. */
static bool is_nothing(const tn_node *x) { return x->rank == 1 && x->shape[0] == 0; }

static tn_status check_cat_shape(const tn_infer *c, const tn_node *x, int64_t dim) {
    char first[96], other[96];
    bool fits = x->rank == c->rank;
    for (int d = 0; fits && d < c->rank; d++)
        fits = d == dim || x->shape[d] == c->shape[d];
    if (fits) return TN_OK;
    tn_node shown = {.rank = (uint8_t)c->rank};
    memcpy(shown.shape, c->shape, sizeof shown.shape);
    return tn_fail(TN_ERR_SHAPE, "%s: %s does not fit %s: all extents except that of dim %lld must be equal",
                   c->row->name, tn_shape_text(x, other, sizeof other), tn_shape_text(&shown, first, sizeof first),
                   (long long)dim);
}

/* Of an extent that is joined: a sum, where all parts have symbols that differ. */
static uint8_t joined_symbol(const tn_infer *c, int64_t dim) {
    unsigned all = 0;
    int parts = 0;
    for (int i = 0; i < c->n_in; i++) {
        if (is_nothing(c->in[i])) continue;
        unsigned symbol = c->in[i]->symbol[dim],
                 bits = symbol & TN_SYMBOL_SUM ? symbol - TN_SYMBOL_SUM : 1u << symbol >> 1;
        if (!bits || all & bits) return 0;
        all |= bits;
        parts++;
    }
    return parts > 1 ? (uint8_t)(TN_SYMBOL_SUM | all) : 0;
}

/* cat_few(tensors, dim): joined along dim; at most 16 tensors, as a kernel has few buffers. */
static tn_status infer_cat(tn_infer *c) {
    int64_t dim = 0, sum = 0;
    const tn_node *like = NULL;
    if (c->n_in == 0) return tn_fail(TN_ERR_ARGUMENT, "%s: the list of tensors is empty", c->row->name);
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
        if (tn_add_overflow(sum, c->in[i]->shape[dim], &sum))
            return tn_fail(TN_ERR_SHAPE, "%s: the result is too long", c->row->name);
    }
    c->shape[dim] = sum;
    c->symbol[dim] = joined_symbol(c, dim);
    return TN_OK;
}
static void grad_cat_few(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    int64_t dim = n->i[0], start = 0;
    for (int i = 0; i < n->n_in; i++) {
        if (is_nothing(n->in[i])) continue;
        int64_t end = start + n->in[i]->shape[dim];
        if (tn_needs_grad(n, i)) grads[i] = tn_b_slice(b, dy, dim, start, end, 1);
        start = end;
    }
}
static kir_val lower_cat_few(tn_lower *lw, const tn_node *n, const kir_aff *at) {
    int64_t dim = n->i[0], start = 0;
    kir_val result = KIR_NONE;
    for (int i = 0; i < n->n_in; i++) {
        const tn_node *x = n->in[i];
        if (x->rank != n->rank || x->shape[dim] == 0) continue;
        kir_aff in[TN_MAX_RANK];
        memcpy(in, at, (size_t)n->rank * sizeof *in);
        in[dim] = index_shifted(&at[dim], -start);
        kir_val here = mask_both(lw->kb, start > 0 ? index_not_negative(lw->kb, &in[dim]) : KIR_NONE,
                                 index_below(lw->kb, &in[dim], -x->shape[dim]));
        kir_val v = tn_lower_at_masked(lw, x, in, here);
        result = result == KIR_NONE ? v : kir_select(lw->kb, here, v, result);
        start += x->shape[dim];
    }
    return result == KIR_NONE ? index_zero(lw, (tn_dtype)n->dtype) : result;
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
        r->out[w.place] = r->in[i][tn_element_offset(n->in[i], from)];
    }
}
OP_CODE(cat_few, .facts = TN_FACT_CONCAT, .class_ = TN_MOVEMENT, .flops = 4, /* finding the tensor */
        .promote = true, .infer = infer_cat, .grad = grad_cat_few, .lower = lower_cat_few,
        .reference = reference_cat_few,
        .cases = "types=f32,f64,i32,bool; [2,3] [4,3] dim=0; [2,3] [2,1] [2,2] dim=-1; [0] "
                 "[2,3] dim=1; [0,3] [2,3] dim=0; [3] dim=0;"
                 "error=fit [2,3] [2,4] dim=0; error=stack [] [] dim=0");

/* cat(tensors, dim): the tensors concatenated along dim; their other extents must be equal. */
enum { CAT_AT_ONCE = 16 }; /* of a kernel's 32 buffers; the rest are for fused operands */
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
OP_CODE(cat, .keeps_half = true, .promote = true, .infer = infer_cat, .compose = compose_cat,
        .cases = "types=f32,f64,i32; [2,3] [4,3] dim=0; [3] dim=0; error=fit [2,3] [2,4] dim=0");

/* pad(x, pads, value): x with `value` around it, which x's dtype must be able to hold: see full. pads holds (before,
 * after) of the last dimension, then of the one before it, and so on; negative ones cut off. */
static void pads_of(const int64_t *i, int rank, int d, int64_t *before, int64_t *after) {
    int64_t place = 2 * (int64_t)(rank - 1 - d);
    *before = place < i[0] ? i[1 + place] : 0;
    *after = place < i[0] ? i[2 + place] : 0;
}
static tn_status infer_pad(tn_infer *c) {
    const int64_t *i = c->attrs->i;
    TRY(tn_infer_same(c));
    TRY(tn_need_held(c, c->dtype, "value", c->attrs->f[TN_PAD_VALUE]));
    if (i[0] % 2 != 0 || i[0] > 2 * c->rank)
        return tn_fail(
            TN_ERR_ARGUMENT,
            "pad: %lld pads for a tensor of rank %d: pass two per dimension, starting with the last dimension",
            (long long)i[0], c->rank);
    for (int d = 0; d < c->rank; d++) {
        int64_t before, after, size = c->shape[d];
        pads_of(i, c->rank, d, &before, &after);
        if (before || after) c->symbol[d] = 0;
        bool too_much = tn_add_overflow(size, before, &size) || tn_add_overflow(size, after, &size);
        if (too_much || size < 0)
            return tn_fail(TN_ERR_SHAPE, "pad: extent %lld of dimension %d with pads %lld and %lld is %s",
                           (long long)c->shape[d], d, (long long)before, (long long)after,
                           too_much ? "more than 64 bits hold" : "negative");
        c->shape[d] = size;
    }
    return tn_infer_shape(c, c->shape, c->rank);
}
static tn_node *grad_pad(tn_build *b, const tn_node *n, tn_node *dy) {
    int64_t pads[2 * TN_MAX_RANK];
    for (int64_t k = 0; k < n->i[0]; k++)
        pads[k] = -n->i[1 + k];
    return tn_b_pad(b, dy, pads, (int)n->i[0], 0);
}
static kir_val lower_pad(tn_lower *lw, const tn_node *n, const kir_aff *at) {
    kir_aff in[TN_MAX_RANK];
    kir_val inside = KIR_NONE;
    for (int d = 0; d < n->rank; d++) {
        int64_t before, after;
        pads_of(n->i, n->rank, d, &before, &after);
        in[d] = index_shifted(&at[d], -before);
        if (before > 0) inside = mask_both(lw->kb, inside, index_not_negative(lw->kb, &in[d]));
        if (after > 0) inside = mask_both(lw->kb, inside, index_below(lw->kb, &in[d], -n->in[0]->shape[d]));
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
        r->out[w.place] = inside ? r->in[0][tn_element_offset(n->in[0], from)] : n->f[TN_PAD_VALUE];
    }
}
/* The comparisons with the edges cost: a window that slides over a padded image had better find it made. */
OP_CODE(pad, .class_ = TN_MOVEMENT, .flops = 4, .infer = infer_pad, .grad_first = grad_pad, .lower = lower_pad,
        .reference = reference_pad,
        .cases =
            "types=f32,f64,i32; [3] pads=(1,2) value=7; [2,3] pads=(0,1,2,0) value=0; [4,5] pads=(-1,-2,1,-1) value=1;"
            "[2,3] pads=() value=0; [0,2] pads=(1,1,1,0) value=3; error=negative [2] pads=(-2,-1) value=0;"
            "error=pads [2] pads=(1) value=0");

/* ---- writing through a view -------------------------------------------------------------------------------------- */

/* A view of a contiguous base, dims sorted by stride, the greatest first; each place belongs to one element alone when
 * every stride is greater than the reach of the dims after it. */
typedef struct view_places {
    int rank;
    int dim[TN_MAX_RANK];                         /* of the view */
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

/* assign_view(base, value, offset, strides): base, but value where a view of base with this offset and these strides
 * (in elements of the contiguous base) lies: what an in-place write through a view
 * means. The view's shape is value's. */
static tn_status infer_assign_view(tn_infer *c) {
    const tn_node *base = c->in[0], *value = c->in[1];
    const int64_t *strides = c->attrs->i + 2;
    view_places p;
    char a[96], b[96];
    if (base->dtype != value->dtype)
        return tn_fail(TN_ERR_DTYPE, "assign_view: cannot write %s into %s: cast it first",
                       tn_dtype_name((tn_dtype)value->dtype), tn_dtype_name((tn_dtype)base->dtype));
    if (c->attrs->i[1] != value->rank)
        return tn_fail(TN_ERR_SHAPE, "assign_view: %lld strides for %s; pass one per dimension",
                       (long long)c->attrs->i[1], tn_shape_text(value, a, sizeof a));
    if (tn_node_numel(value) > 0 && !sort_places(value->shape, strides, value->rank, c->attrs->i[0], &p))
        return tn_fail(TN_ERR_UNSUPPORTED,
                       "cannot write %s through a view of %s whose elements overlap or interleave: write to a copy of "
                       "it (tn_contiguous)",
                       tn_shape_text(value, a, sizeof a), tn_shape_text(base, b, sizeof b));
    return tn_infer_same(c);
}
static void grad_assign_view(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    const tn_node *value = n->in[1];
    if (tn_needs_grad(n, 0)) {
        tn_node *none = tn_b_expand(b, tn_b_const(b, 0, dy), value->shape, value->rank);
        grads[0] = tn_b_assign_view(b, dy, none, n->i[0], n->i + 2, value->rank);
    }
    if (tn_needs_grad(n, 1)) {
        tn_node *flat = tn_b_contiguous(b, dy);
        grads[1] = tn_b_as_strided(b, flat, value->shape, value->rank, n->i + 2, value->rank, n->i[0]);
    }
}
/* Undoes the strides from the greatest on: each quotient is a coordinate, and the last rest must be 0. */
static kir_val invert_places(tn_lower *lw, const kir_aff *flat, const view_places *p, kir_aff *in) {
    kir_builder *kb = lw->kb;
    kir_aff from = index_shifted(flat, -p->first);
    kir_val rest = kir_index(kb, &from);
    kir_val hit = kir_le(kb, kir_whole(kb, 0), rest);
    for (int k = 0; k < p->rank; k++) {
        kir_val step = kir_whole(kb, p->step[k]);
        kir_val q = p->step[k] == 1 ? rest : kir_div(kb, rest, step);
        hit = kir_and(kb, hit, kir_lt(kb, q, kir_whole(kb, p->size[k])));
        rest = p->step[k] == 1 ? kir_whole(kb, 0) : kir_mod(kb, rest, step);
        if (p->backwards[k]) q = kir_sub(kb, kir_whole(kb, p->size[k] - 1), q);
        in[p->dim[k]] = kir_aff_value(q);
    }
    return kir_and(kb, hit, kir_eq(kb, rest, kir_whole(kb, 0)));
}

/* The common case, a box of the base: each of base's dims holds at most one dim of the view, in steps of whole extents.
 * Then coordinates follow without division (but for steps > 1). Returns false when it is not so. */
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
static kir_val invert_box(tn_lower *lw, const tn_node *base, const kir_aff *at, const view_places *p,
                          const int64_t *start, const int *which, kir_aff *in) {
    kir_builder *kb = lw->kb;
    kir_val hit = KIR_NONE;
    int64_t stride = tn_node_numel(base);
    for (int d = 0; d < base->rank; d++) {
        stride /= base->shape[d];
        if (base->shape[d] == 1) continue;
        int k = which[d];
        int64_t count = k < 0 ? 1 : p->size[k], step = k < 0 ? 1 : p->step[k] / stride;
        kir_aff from = index_shifted(&at[d], -start[d]);
        if (start[d] > 0) hit = mask_both(kb, hit, index_not_negative(kb, &from));
        if (start[d] + (count - 1) * step + 1 < base->shape[d])
            hit = mask_both(kb, hit, index_below(kb, &from, -((count - 1) * step + 1)));
        if (k < 0) continue;
        if (step > 1) {
            kir_val size = kir_whole(kb, step), q = kir_index(kb, &from);
            hit = mask_both(kb, hit, kir_eq(kb, kir_mod(kb, q, size), kir_whole(kb, 0)));
            from = kir_aff_value(kir_div(kb, q, size));
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
    for (int d = 0; d < value->rank; d++)
        in[d] = kir_aff_const(0);
    sort_places(value->shape, n->i + 2, value->rank, n->i[0], &p);
    kir_val hit;
    if (box_of(base, &p, start, which)) {
        hit = invert_box(lw, base, at, &p, start, which, in);
    } else {
        tn_strides_contiguous(base->shape, base->rank, stride);
        kir_aff flat = index_flat(lw, at, stride, base->rank, 0);
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
        for (int d = 0; d < value->rank; d++)
            to += w.at[d] * r->node->i[2 + d];
        r->out[to] = r->in[1][w.place];
    }
}
OP_CODE(assign_view, .class_ = TN_MOVEMENT, .infer = infer_assign_view, .grad = grad_assign_view,
        .lower = lower_assign_view, .reference = reference_assign_view,
        .cases =
            "types=f32,f64,i32; [4,5] [2,3] offset=6 strides=(5,1); [4,5] [5] offset=10 strides=(1); [7] [3] offset=5 "
            "strides=(-2);"
            "[4,5] [4] offset=0 strides=(6) error=; [4,3] [4,3] offset=0 strides=(3,1); [4,6] [3,4] offset=18 "
            "strides=(2,-6);"
            "[4,5] [4] offset=0 strides=(6); [2,3,4] [2,4] offset=4 strides=(12,1); [3] [] offset=1 strides=();"
            "[3] [0] offset=0 strides=(1); error=overlap [6] [2,3] offset=0 strides=(1,1)");

/* ==== compositions of views ======================================================================================= */
/* A rule (tn_view_NAME) says which view ops a call stands for, from the shape of its tensor; the generated function
 * records them for a user's tensor or inside a graph that is being built. So gradients, aliasing
 * and in-place writes are theirs. */

/* ---- reshaping --------------------------------------------------------------------------------------------------- */

/* Would view() refuse? Asked of its own rule, so that both always agree. */
static bool can_view(const tn_node *x, const int64_t *shape, int rank) {
    tn_attrs a = {.n_i = (uint8_t)(rank + 1), .i = {rank}};
    memcpy(a.i + 1, shape, (size_t)rank * sizeof *shape);
    tn_node *in[1] = {tn_b_self(x)};
    tn_infer c = {.row = tn_op(TN_OP_VIEW), .in = in, .n_in = 1, .attrs = &a};
    return tn_op(TN_OP_VIEW)->impl->infer(&c) == TN_OK;
}

/* reshape(x, shape): the same elements in another shape; a view if possible, otherwise a copy. One extent may be -1. */
static tn_status reshape_to(const tn_node *x, const int64_t *shape, int rank, tn_view_steps *steps) {
    if (!tn_node_contiguous(x) && !can_view(x, shape, rank)) tn_view_step(steps, TN_OP_CONTIGUOUS);
    tn_view_shape(steps, TN_OP_VIEW, shape, rank);
    return TN_OK;
}
tn_status tn_view_reshape(const tn_node *const *in, const tn_attrs *args, tn_view_steps *steps) {
    return reshape_to(in[0], args->i + 1, (int)args->i[0], steps);
}

/* flatten(x, start_dim, end_dim): x with dimensions start_dim to end_dim, inclusive, merged into one. */
tn_status tn_view_flatten(const tn_node *const *in, const tn_attrs *args, tn_view_steps *steps) {
    const tn_node *x = in[0];
    int64_t first, last, shape[TN_MAX_RANK], rank = 0;
    TRY(tn_view_dim(steps, args->i[0], x->rank, &first));
    TRY(tn_view_dim(steps, args->i[1], x->rank, &last));
    if (first > last)
        return tn_fail(TN_ERR_SHAPE, "flatten: start_dim %lld is after end_dim %lld", (long long)first,
                       (long long)last);
    for (int64_t d = 0; d < first; d++)
        shape[rank++] = x->shape[d];
    shape[rank++] = tn_product(x->shape + first, tn_min64(last + 1, x->rank) - first);
    for (int64_t d = last + 1; d < x->rank; d++)
        shape[rank++] = x->shape[d];
    return reshape_to(x, shape, (int)rank, steps);
}

/* unflatten(x, dim, sizes): x with one dimension split into several; one of sizes may be -1. */
tn_status tn_view_unflatten(const tn_node *const *in, const tn_attrs *args, tn_view_steps *steps) {
    const tn_node *x = in[0];
    int64_t dim, count = args->i[1], shape[2 * TN_MAX_RANK], known = 1;
    const int64_t *sizes = args->i + 2;
    TRY(tn_view_dim(steps, args->i[0], x->rank, &dim));
    if (x->rank == 0 || x->rank - 1 + count > TN_MAX_RANK)
        return tn_fail(TN_ERR_SHAPE, "unflatten: rank %d with %lld sizes exceeds the maximum rank", x->rank,
                       (long long)count);
    memcpy(shape, x->shape, (size_t)dim * sizeof *shape);
    memcpy(shape + dim, sizes, (size_t)count * sizeof *shape);
    memcpy(shape + dim + count, x->shape + dim + 1, (size_t)(x->rank - 1 - dim) * sizeof *shape);
    for (int64_t k = 0; k < count; k++)
        known *= sizes[k] == -1 ? 1 : sizes[k];
    for (int64_t k = 0; k < count; k++)
        if (sizes[k] == -1 && known > 0) shape[dim + k] = x->shape[dim] / known;
    int64_t product = tn_product(shape + dim, count);
    if (product != x->shape[dim])
        return tn_fail(TN_ERR_SHAPE, "unflatten: the product of the sizes is %lld, but the extent is %lld",
                       (long long)product, (long long)x->shape[dim]);
    return reshape_to(x, shape, (int)(x->rank - 1 + count), steps);
}

/* squeeze(x, dims): x without those of the given dimensions (TN_ALL: all) whose extent is 1. */
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

/* unsqueeze(x, dim): x with a new dimension of extent 1 at dim. */
tn_status tn_view_unsqueeze(const tn_node *const *in, const tn_attrs *args, tn_view_steps *steps) {
    const tn_node *x = in[0];
    int64_t dim, shape[TN_MAX_RANK + 1];
    TRY(tn_view_dim(steps, args->i[0], x->rank + 1, &dim));
    if (x->rank == TN_MAX_RANK)
        return tn_fail(TN_ERR_SHAPE, "unsqueeze: the tensor has rank %d; the result would exceed the maximum rank",
                       x->rank);
    memcpy(shape, x->shape, (size_t)dim * sizeof *shape);
    shape[dim] = 1;
    memcpy(shape + dim + 1, x->shape + dim, (size_t)(x->rank - dim) * sizeof *shape);
    tn_view_shape(steps, TN_OP_VIEW, shape, x->rank + 1);
    return TN_OK;
}

/* view_as(x, other): view(x, shape of other). */
tn_status tn_view_view_as(const tn_node *const *in, TN_UNUSED const tn_attrs *args, tn_view_steps *steps) {
    tn_view_shape(steps, TN_OP_VIEW, in[1]->shape, in[1]->rank);
    return TN_OK;
}

/* expand_as(x, other): expand(x, shape of other). */
tn_status tn_view_expand_as(const tn_node *const *in, TN_UNUSED const tn_attrs *args, tn_view_steps *steps) {
    tn_view_shape(steps, TN_OP_EXPAND, in[1]->shape, in[1]->rank);
    return TN_OK;
}

/* broadcast_to(x, shape): expand under PyTorch's other name. */
tn_status tn_view_broadcast_to(TN_UNUSED const tn_node *const *in, const tn_attrs *args, tn_view_steps *steps) {
    tn_view_shape(steps, TN_OP_EXPAND, args->i + 1, (int)args->i[0]);
    return TN_OK;
}

/* ---- order of dimensions ----------------------------------------------------------------------------------------- */

static void view_identity(int64_t *dims, int rank) {
    for (int d = 0; d < rank; d++)
        dims[d] = d;
}

/* transpose(x, dim0, dim1): x with two dimensions swapped. */
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

/* t(x): the transpose of a matrix; vectors and scalars are unchanged. */
tn_status tn_view_t(const tn_node *const *in, TN_UNUSED const tn_attrs *args, tn_view_steps *steps) {
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

/* movedim(x, source, destination): x with one dimension moved to another position; the others keep their order. */
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
        return tn_fail(TN_ERR_SHAPE, "narrow: %lld elements from %lld on exceed the %lld elements along dim %lld",
                       (long long)length, (long long)args->i[1], (long long)size, (long long)dim);
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
        return tn_fail(TN_ERR_SHAPE, "select: index %lld is out of bounds: there are %lld elements along dim %lld",
                       (long long)args->i[1], (long long)x->shape[dim], (long long)dim);
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
    for (int i = 0; i < count; i++)
        if (sizes[i] < 0 || tn_add_overflow(sum, sizes[i], &sum))
            return tn_fail(TN_ERR_SHAPE, "split: the part size is %lld; it must be at least 1", (long long)sizes[i]);
    if (sum == n->shape[*dim]) return TN_OK;
    return tn_fail(TN_ERR_SHAPE, "split: the parts have %lld elements in total, but dim %lld has %lld", (long long)sum,
                   (long long)*dim, (long long)n->shape[*dim]);
}

/* split(x, sizes, dim): consecutive views of x along dim; sizes must sum to its extent. out receives one handle per
 * size, error tensors on failure. Returns their number. */
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

/* chunk(x, chunks, dim): views of x of equal length along dim, the last one perhaps shorter; as in PyTorch there can be
 * fewer than `chunks`. out has room for `chunks` handles. Returns their number. */
int(tn_chunk)(const tn_tensor *x, int64_t chunks, int64_t dim, tn_tensor **out) {
    if (tn_need(out, "chunk: out") != TN_OK) return 0;
    if (!x || chunks < 1 || chunks > INT32_MAX) {
        tn_status s =
            tn_fail(TN_ERR_ARGUMENT, "chunk: cannot make %lld chunks of %s tensor", (long long)chunks, x ? "a" : "no");
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
