/* slice_gradients.c — gradients of a tensor that was cut into parts.
 *
 * Each part of a tensor (slice, chunk, split) sends back its gradient with zeros around it, and what arrives is added.
 * Where two such parts are neighbours nothing needs to be added: they are put side by side, and once they are the whole
 * there are no zeros left. Parts that lie in one buffer as they lay in the tensor, as attention yields the gradients of
 * a joined projection, are just a view of it. */
#include <string.h>

#include "core/expand.h"
#include "ops/ops_build.h"

/* Zeros around `inner` along one dimension. */
typedef struct padded {
    tn_node *inner;
    int dim;
    int64_t before, after;
} padded;

static bool is_padded(const tn_node *n, padded *p) {
    if (n->op != TN_OP_PAD || n->f[TN_PAD_VALUE] != 0) return false;
    int padded_dims = 0;
    p->inner = n->in[0];
    for (int64_t k = 0; k + 1 < n->i[0]; k += 2) {
        if (n->i[1 + k] < 0 || n->i[2 + k] < 0) return false;
        if (n->i[1 + k] == 0 && n->i[2 + k] == 0) continue;
        padded_dims++;
        p->dim = n->rank - 1 - (int)k / 2;
        p->before = n->i[1 + k];
        p->after = n->i[2 + k];
    }
    return padded_dims == 1;
}

static bool fit_but_for(const tn_node *a, const tn_node *b, int dim) {
    for (int d = 0; d < a->rank; d++)
        if (d != dim && a->shape[d] != b->shape[d]) return false;
    return true;
}

/* Both as one view, if `b` follows `a` in one buffer; NULL otherwise. */
static tn_node *as_one_view(tn_build *b, const padded *first, const padded *second) {
    const tn_node *x = first->inner, *y = second->inner;
    int64_t offset[2], stride[2][TN_MAX_RANK], shape[TN_MAX_RANK];
    if (!x->root || x->root != y->root) return NULL;
    tn_node_layout(x, &offset[0], stride[0]);
    tn_node_layout(y, &offset[1], stride[1]);
    size_t bytes = (size_t)x->rank * sizeof *shape;
    if (memcmp(stride[0], stride[1], bytes) != 0) return NULL;
    if (offset[0] + x->shape[first->dim] * stride[0][first->dim] != offset[1]) return NULL;
    memcpy(shape, x->shape, bytes);
    shape[first->dim] += y->shape[first->dim];
    tn_node *view = tn_b_as_strided(b, x->root, shape, x->rank, stride[0], x->rank, offset[0]);
    bool whole = view && tn_node_contiguous(view);
    return whole ? tn_b_view(b, x->root, shape, x->rank) : view;
}

tn_node *tn_join_slice_gradients(tn_build *b, tn_node *x, tn_node *y) {
    padded first, second;
    if (!is_padded(x, &first) || !is_padded(y, &second) || first.dim != second.dim || x->dtype != y->dtype) return NULL;
    if (first.before > second.before) {
        padded swap = first;
        first = second;
        second = swap;
    }
    int dim = first.dim;
    if (first.before + first.inner->shape[dim] != second.before || !fit_but_for(first.inner, second.inner, dim))
        return NULL;
    tn_node *joined = as_one_view(b, &first, &second);
    if (!joined) joined = tn_b_cat(b, (tn_node *[]){first.inner, second.inner}, 2, dim);
    if (first.before == 0 && second.after == 0) return joined;
    int64_t pads[2 * TN_MAX_RANK] = {0};
    pads[2 * (x->rank - 1 - dim)] = first.before;
    pads[2 * (x->rank - 1 - dim) + 1] = second.after;
    return tn_b_pad(b, joined, pads, 2 * x->rank, 0);
}
