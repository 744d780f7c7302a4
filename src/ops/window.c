/* window.c — a window that slides over images: see window.h. */
#include "ops/window.h"

/* ---- shapes ------------------------------------------------------------------------------------------------------ */

int64_t tn_window_reach(const tn_window *w, int axis) { return w->dilation[axis] * (w->kernel[axis] - 1) + 1; }

int64_t tn_window_out_size(const tn_window *w, int axis, int64_t size, bool ceil_mode) {
    int64_t room = size + 2 * w->padding[axis] - tn_window_reach(w, axis), stride = w->stride[axis];
    if (room < 0) return -1;
    int64_t count = (ceil_mode ? room + stride - 1 : room) / stride + 1;
    return ceil_mode && (count - 1) * stride >= size + w->padding[axis] ? count - 1 : count;
}

tn_status tn_window_check(const tn_infer *c, const tn_window *w, int first_axis) {
    for (int a = first_axis; a < 2; a++) {
        int64_t most = tn_max64(tn_max64(w->kernel[a], w->stride[a]), tn_max64(w->padding[a], w->dilation[a]));
        bool fine = w->kernel[a] >= 1 && w->stride[a] >= 1 && w->dilation[a] >= 1 && w->padding[a] >= 0;
        if (fine && most <= INT32_MAX) continue;
        return tn_fail(TN_ERR_ARGUMENT,
                       "%s: kernel %lld, stride %lld, padding %lld, dilation %lld: all but the padding must be "
                       "at least 1, the padding at least 0, and none above 2147483647",
                       c->row->name, (long long)w->kernel[a], (long long)w->stride[a], (long long)w->padding[a],
                       (long long)w->dilation[a]);
    }
    return TN_OK;
}

tn_status tn_window_too_large(const tn_infer *c, const tn_window *w, int axis, int64_t size) {
    return tn_fail(TN_ERR_SHAPE, "%s: a kernel that spans %lld does not fit into %lld with padding %lld on both sides",
                   c->row->name, (long long)tn_window_reach(w, axis), (long long)size, (long long)w->padding[axis]);
}

/* ---- images ------------------------------------------------------------------------------------------------------ */

tn_status tn_nchw_check(const tn_infer *c, int axes) {
    const tn_node *x = c->in[0];
    char text[96];
    if (x->rank == axes + 1 || x->rank == axes + 2) return TN_OK;
    return tn_fail(TN_ERR_SHAPE, "%s: the input must be [batch, channels, %s], or that without the batch; it is %s",
                   c->row->name, axes == 2 ? "height, width" : "length", tn_shape_text(x, text, sizeof text));
}

int tn_nchw_channel_dim(const tn_node *x, int axes) { return x->rank - axes - 1; }

static void set_dim(tn_infer *c, int dim, int64_t extent, int symbol) {
    c->shape[dim] = extent;
    c->symbol[dim] = (uint8_t)symbol;
}

void tn_nchw_infer(tn_infer *c, int axes, int64_t channels, const int64_t *size) {
    const tn_node *x = c->in[0];
    int at = tn_nchw_channel_dim(x, axes);
    c->dtype = (tn_dtype)x->dtype;
    c->rank = x->rank;
    if (at) set_dim(c, 0, x->shape[0], x->symbol[0]);
    set_dim(c, at, channels, 0);
    for (int a = 0; a < axes; a++)
        set_dim(c, at + 1 + a, size[a], 0);
}

tn_node *tn_b_as_nchw(tn_build *b, tn_node *x, int axes) {
    if (!x || (x->rank == 4 && axes == 2)) return x;
    int at = tn_nchw_channel_dim(x, axes);
    int64_t shape[4] = {at ? x->shape[0] : 1, x->shape[at], axes == 2 ? x->shape[at + 1] : 1, x->shape[x->rank - 1]};
    return tn_b_reshape(b, x, shape, 4);
}

/* ---- what the window sees ---------------------------------------------------------------------------------------- */

tn_node *tn_b_padded(tn_build *b, tn_node *x, const int64_t pads[4], double value) {
    if (pads[0] > 0 || pads[1] > 0 || pads[2] > 0 || pads[3] > 0) return tn_b_pad(b, x, pads, 4, value);
    for (int a = 0; a < 2 && x; a++) {
        const int64_t *cut = pads + 2 * (1 - a);
        if (cut[0] || cut[1]) x = tn_b_slice(b, x, 2 + a, -cut[0], x->shape[2 + a] + cut[1], 1);
    }
    return x;
}

static const int64_t none[2] = {0, 0}, ones[2] = {1, 1};

/* A window of one tap moves nothing: every stride-th element, as [n, c, 1, 1, …]. */
static tn_node *one_tap(tn_build *b, tn_node *x, const int64_t *stride) {
    for (int a = 0; a < 2 && x; a++)
        if (stride[a] > 1) x = tn_b_slice(b, x, 2 + a, 0, x->shape[2 + a], stride[a]);
    return x ? tn_b_reshape(b, x, (int64_t[]){x->shape[0], x->shape[1], 1, 1, x->shape[2], x->shape[3]}, 6) : NULL;
}

tn_node *tn_b_im2col(tn_build *b, tn_node *x, const tn_window *w, const int64_t *places, double value) {
    int64_t pads[4];
    if (!x) return NULL;
    for (int a = 0; a < 2; a++) {
        int64_t end = (places[a] - 1) * w->stride[a] + tn_window_reach(w, a); /* of what is seen, in the padded image */
        int64_t behind = end - w->padding[a] - x->shape[2 + a];
        pads[2 * (1 - a)] = w->padding[a];
        pads[2 * (1 - a) + 1] =
            behind < 0 && -behind < w->stride[a] ? 0 : behind; /* the rest is too short for a step */
    }
    x = tn_b_padded(b, x, pads, value);
    if (w->kernel[0] == 1 && w->kernel[1] == 1) return one_tap(b, x, w->stride);
    return tn_b_unfold2d(b, x, w->kernel, w->stride, none, w->dilation, value);
}

/* ---- the way back ------------------------------------------------------------------------------------------------ */

bool tn_window_has_phases(const tn_window *w) {
    for (int a = 0; a < 2; a++)
        if (w->stride[a] > TN_MAX_PHASES || (w->stride[a] > 1 && w->dilation[a] > 1)) return false;
    return true;
}

/* Pixel y = number + stride·i lies in the padded image at stride·(i + skip) + first, and tap first + stride·t of the
 * result at i + skip - t covers it. Taps run downwards, so the window over the results
 * begins taps - 1 before i + skip. */
tn_phase tn_phase_of(const tn_window *w, const int64_t *number, const int64_t *size, const int64_t *places) {
    tn_phase p;
    for (int a = 0; a < 2; a++) {
        int64_t stride = w->stride[a], at = number[a] + w->padding[a], skip = at / stride;
        p.first[a] = at % stride;
        p.taps[a] = p.first[a] < w->kernel[a] ? tn_ceil_div(w->kernel[a] - p.first[a], stride) : 0;
        p.pixels[a] = tn_ceil_div(size[a], stride);
        p.spacing[a] = stride == 1 ? w->dilation[a] : 1;
        p.pads[2 * (1 - a)] = (p.taps[a] - 1) * p.spacing[a] - skip;
        p.pads[2 * (1 - a) + 1] = p.pixels[a] + skip - places[a];
    }
    return p;
}

tn_node *tn_b_im2col_phase(tn_build *b, tn_node *y, const tn_phase *p, double value) {
    y = tn_b_padded(b, y, p->pads, value);
    if (p->taps[0] == 1 && p->taps[1] == 1) return one_tap(b, y, ones);
    return tn_b_unfold2d(b, y, p->taps, ones, none, p->spacing, value);
}

/* Several parts as one, their elements alternating along dim. */
static tn_node *alternate(tn_build *b, tn_node *const *parts, int64_t count, int dim) {
    int64_t shape[TN_MAX_RANK];
    if (count == 1 || !parts[0]) return parts[0];
    for (int d = 0; d < 4; d++)
        shape[d] = parts[0]->shape[d];
    shape[dim] *= count;
    return tn_b_reshape(b, tn_b_stack(b, parts, (int)count, dim + 1), shape, 4);
}

tn_node *tn_b_join_phases(tn_build *b, tn_node *const *parts, const tn_window *w, const int64_t *size) {
    tn_node *rows[TN_MAX_PHASES];
    for (int64_t k = 0; k < w->stride[0]; k++)
        rows[k] = alternate(b, parts + k * w->stride[1], w->stride[1], 3);
    tn_node *y = alternate(b, rows, w->stride[0], 2);
    for (int a = 0; a < 2; a++)
        if (y && y->shape[2 + a] != size[a]) y = tn_b_slice(b, y, 2 + a, 0, size[a], 1);
    return y;
}
