/* unfold.c — windows that slide over images, and the way back: im2col and its adjoint as primitives.
 *
 * The window's own two dimensions stay dimensions of the result, so that every index is an affine one and no element is
 * looked for by division. */
#include <string.h>

#include "ops/element_index.h"

/* Places of the attributes that unfold2d and fold2d share. */
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
    } rows[] = {{"kernel size", WINDOW_KERNEL, 1},
                {"stride", WINDOW_STRIDE, 1},
                {"padding", WINDOW_PADDING, 0},
                {"dilation", WINDOW_DILATION, 1}};
    for (size_t k = 0; k < 2 * TN_COUNT(rows); k++) {
        int64_t v = c->attrs->i[rows[k / 2].place + (int)(k % 2)];
        if (v < rows[k / 2].least || v > INT32_MAX)
            return tn_fail(TN_ERR_ARGUMENT, "%s: a %s of %lld: at least %lld", c->row->name, rows[k / 2].name,
                           (long long)v, (long long)rows[k / 2].least);
    }
    return TN_OK;
}

/* unfold2d(x, kernel, stride, padding, dilation, value): the patches under a kernel that slides over images:
 * [n, c, h, w] → [n, c, kh, kw, oh, ow], `value` where the kernel reaches into the padding. */
static tn_status infer_unfold2d(tn_infer *c) {
    const tn_node *x = c->in[0];
    const int64_t *i = c->attrs->i;
    char text[96];
    TRY(check_windows(c));
    if (x->rank != 4)
        return tn_fail(TN_ERR_SHAPE, "%s: %s is no batch of images [n, c, h, w]", c->row->name,
                       tn_shape_text(x, text, sizeof text));
    int64_t shape[6] = {
        x->shape[0], x->shape[1], i[0], i[1], window_count(i, x->shape[2], 0), window_count(i, x->shape[3], 1)};
    if (shape[4] == 0 || shape[5] == 0)
        return tn_fail(TN_ERR_SHAPE, "%s: a kernel of %lld × %lld does not fit into %s with padding %lld × %lld",
                       c->row->name, (long long)i[0], (long long)i[1], tn_shape_text(x, text, sizeof text),
                       (long long)i[WINDOW_PADDING], (long long)i[WINDOW_PADDING + 1]);
    TRY(tn_infer_reshaped(c, shape, 6));
    c->symbol[0] = x->symbol[0];
    c->symbol[1] = x->symbol[1];
    return TN_OK;
}
static tn_status grad_unfold2d(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    grads[0] = tn_b_fold2d(b, dy, n->i + WINDOW_KERNEL, n->i + WINDOW_STRIDE, n->i + WINDOW_PADDING,
                           n->i + WINDOW_DILATION, n->in[0]->shape + 2);
    return b->status;
}
/* out · stride + in_kernel · dilation − padding */
static kir_aff window_place(tn_lower *lw, const int64_t *i, int axis, const kir_aff *out, const kir_aff *in_kernel) {
    kir_aff a = tn_aff_scale(lw, out, i[WINDOW_STRIDE + axis]);
    kir_aff k = tn_aff_scale(lw, in_kernel, i[WINDOW_DILATION + axis]);
    a = tn_aff_add(lw, &a, &k);
    return index_shifted(&a, -i[WINDOW_PADDING + axis]);
}
static kir_val lower_unfold2d(tn_lower *lw, const tn_node *n, const kir_aff *at) {
    const tn_node *x = n->in[0];
    kir_aff in[4] = {at[0], at[1]};
    kir_val inside = KIR_NONE;
    for (int axis = 0; axis < 2; axis++) {
        in[2 + axis] = window_place(lw, n->i, axis, &at[4 + axis], &at[2 + axis]);
        if (n->i[WINDOW_PADDING + axis] == 0) continue;
        inside = mask_both(lw->kb, inside, index_not_negative(lw->kb, &in[2 + axis]));
        inside = mask_both(lw->kb, inside, index_below(lw->kb, &in[2 + axis], -x->shape[2 + axis]));
    }
    if (inside == KIR_NONE) return tn_lower_at(lw, x, in);
    kir_val v = tn_lower_at_masked(lw, x, in, inside);
    return kir_select(lw->kb, inside, v, kir_const(lw->kb, kir_type_of((tn_dtype)n->dtype), n->f[TN_UNFOLD2D_VALUE]));
}
static void reference_unfold2d(const tn_reference *r) {
    const tn_node *n = r->node, *x = n->in[0];
    const int64_t *i = n->i;
    for (tn_walk w = tn_walk_begin(n); w.place < w.count; tn_walk_next(&w)) {
        int64_t y = w.at[4] * i[WINDOW_STRIDE] + w.at[2] * i[WINDOW_DILATION] - i[WINDOW_PADDING];
        int64_t z = w.at[5] * i[WINDOW_STRIDE + 1] + w.at[3] * i[WINDOW_DILATION + 1] - i[WINDOW_PADDING + 1];
        bool inside = y >= 0 && y < x->shape[2] && z >= 0 && z < x->shape[3];
        int64_t from[4] = {w.at[0], w.at[1], y, z};
        r->out[w.place] = inside ? r->in[0][tn_element_offset(x, from)] : n->f[TN_UNFOLD2D_VALUE];
    }
}
const tn_op_impl tn_impl_unfold2d = {
    .class_ = TN_MOVEMENT,
    .infer = infer_unfold2d,
    .grad = grad_unfold2d,
    .lower = lower_unfold2d,
    .reference = reference_unfold2d,
    .cases = "types=f32,f64; [2,3,5,4] kernel=(3,2) stride=(1,1) padding=(0,0) dilation=(1,1) value=0;"
             "[1,2,6,7] kernel=(3,3) stride=(2,3) padding=(1,2) dilation=(1,1) value=-1;"
             "[1,1,7,5] kernel=(2,2) stride=(1,2) padding=(0,1) dilation=(3,2) value=0;"
             "[0,2,4,4] kernel=(2,2) stride=(1,1) padding=(0,0) dilation=(1,1) value=0;"
             "error=fit [1,1,2,2] kernel=(3,3) stride=(1,1) padding=(0,0) dilation=(1,1) value=0;"
             "error=images [2,2] kernel=(1,1) stride=(1,1) padding=(0,0) dilation=(1,1) value=0"};

/* fold2d(y, kernel, stride, padding, dilation, size): the adjoint of unfold2d: each pixel of [n, c, size] sums
 * the places in all patches [n, c, kh, kw, oh, ow] that came from it. */
static tn_status infer_fold2d(tn_infer *c) {
    const tn_node *y = c->in[0];
    const int64_t *i = c->attrs->i, *size = i + TN_FOLD2D_SIZE;
    char text[96];
    TRY(check_windows(c));
    bool fits = y->rank == 6 && y->shape[2] == i[0] && y->shape[3] == i[1];
    for (int axis = 0; fits && axis < 2; axis++)
        fits = size[axis] >= 0 && y->shape[4 + axis] == window_count(i, size[axis], axis);
    if (!fits)
        return tn_fail(TN_ERR_SHAPE, "%s: %s are not the windows [n, c, kh, kw, oh, ow] of images of %lld × %lld",
                       c->row->name, tn_shape_text(y, text, sizeof text), (long long)size[0], (long long)size[1]);
    TRY(tn_infer_reshaped(c, (int64_t[]){y->shape[0], y->shape[1], size[0], size[1]}, 4));
    c->symbol[0] = y->symbol[0];
    c->symbol[1] = y->symbol[1];
    return TN_OK;
}
static tn_status grad_fold2d(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    grads[0] = tn_b_unfold2d(b, dy, n->i + WINDOW_KERNEL, n->i + WINDOW_STRIDE, n->i + WINDOW_PADDING,
                             n->i + WINDOW_DILATION, 0);
    return b->status;
}
static int loops_fold2d(const tn_node *n, int64_t extent[TN_MAX_RANK]) {
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
    back = index_shifted(&back, n->i[WINDOW_PADDING + axis]);
    kir_val there = index_not_negative(kb, &back);
    *out = back;
    if (stride > 1) {
        kir_val size = kir_const_i(kb, KIR_I64, stride), v = kir_index(kb, &back);
        there =
            mask_both(kb, there, kir_binary(kb, KIR_EQ, kir_binary(kb, KIR_MOD, v, size), kir_const_i(kb, KIR_I64, 0)));
        *out = tn_aff_value(kir_binary(kb, KIR_DIV, v, size));
    }
    return mask_both(kb, there, index_below(kb, out, -n->in[0]->shape[4 + axis]));
}
static kir_val lower_fold2d(tn_lower *lw, const tn_node *n, const kir_aff *at) {
    kir_aff in[6] = {at[0], at[1], at[4], at[5]};
    kir_val there = KIR_NONE;
    for (int axis = 0; axis < 2; axis++)
        there = mask_both(lw->kb, there, fold_place(lw, n, axis, at, &in[4 + axis]));
    kir_val v = tn_lower_at_masked(lw, n->in[0], in, there);
    return kir_select(lw->kb, there, v, index_zero(lw, (tn_dtype)n->dtype));
}
static void reference_fold2d(const tn_reference *r) {
    const tn_node *n = r->node, *y = n->in[0];
    const int64_t *i = n->i;
    memset(r->out, 0, (size_t)tn_node_numel(n) * sizeof *r->out);
    tn_node like = {.rank = y->rank};
    memcpy(like.shape, y->shape, sizeof like.shape);
    for (tn_walk w = tn_walk_begin(&like); w.place < w.count; tn_walk_next(&w)) {
        int64_t a = w.at[4] * i[WINDOW_STRIDE] + w.at[2] * i[WINDOW_DILATION] - i[WINDOW_PADDING];
        int64_t b = w.at[5] * i[WINDOW_STRIDE + 1] + w.at[3] * i[WINDOW_DILATION + 1] - i[WINDOW_PADDING + 1];
        int64_t to[4] = {w.at[0], w.at[1], a, b};
        if (a >= 0 && a < n->shape[2] && b >= 0 && b < n->shape[3])
            r->out[tn_element_offset(n, to)] += r->in[0][w.place];
    }
}
const tn_op_impl tn_impl_fold2d = {
    .class_ = TN_REDUCTION,
    .reduce = KIR_SEQ,
    .infer = infer_fold2d,
    .grad = grad_fold2d,
    .lower = lower_fold2d,
    .loops = loops_fold2d,
    .reference = reference_fold2d,
    .cases = "types=f32,f64 tol=8ulp atol=1e-6; [2,3,3,2,3,3] kernel=(3,2) stride=(1,1) padding=(0,0) dilation=(1,1) "
             "size=(5,4);"
             "[1,2,3,3,3,3] kernel=(3,3) stride=(2,3) padding=(1,2) dilation=(1,1) size=(6,7);"
             "[1,1,2,2,4,3] kernel=(2,2) stride=(1,2) padding=(0,1) dilation=(3,2) size=(7,5);"
             "error=windows [1,1,2,2,4,4] kernel=(2,2) stride=(1,1) padding=(0,0) dilation=(1,1) size=(7,5)",
    .flops = 1};
