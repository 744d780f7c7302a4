/* expand.c — a composed op's composition: see expand.h. */
#include "core/expand.h"

#include <string.h>

enum { MOST_INPUTS = 64 }; /* that a node can have */

static bool reads_half(const tn_node *n) {
    for (int i = 0; i < n->n_in; i++)
        if (n->in[i] && tn_dtype_is_half(n->in[i]->dtype)) return true;
    return false;
}

bool tn_is_widened(const tn_node *n) {
    const tn_op_row *row = tn_op(n->op);
    if (!tn_dtype_is_half(n->dtype) || row->impl->keeps_half) return false;
    tn_op_class c = row->impl->class_;
    bool computes = row->kind == TN_COMPOSED || c == TN_ELEMENTWISE || c == TN_REDUCTION || c == TN_SCANNING;
    return computes && reads_half(n);
}

static tn_node *widened(tn_build *b, const tn_node *n) {
    tn_node *in[MOST_INPUTS];
    tn_attrs a = {.n_i = n->n_i, .n_f = n->n_f};
    for (int i = 0; i < n->n_in; i++)
        in[i] = n->in[i] && tn_dtype_is_half(n->in[i]->dtype) ? tn_b_cast(b, n->in[i], TN_F32) : n->in[i];
    if (n->n_i) memcpy(a.i, n->i, n->n_i * sizeof *n->i);
    if (n->n_f) memcpy(a.f, n->f, n->n_f * sizeof *n->f);
    tn_node *wide = b->status == TN_OK ? tn_b_op(b, n->op, in, n->n_in, &a) : NULL;
    return wide ? tn_b_cast(b, wide, (tn_dtype)n->dtype) : NULL;
}

tn_node *tn_compose(tn_build *b, const tn_node *n) {
    return tn_is_widened(n) ? widened(b, n) : tn_op(n->op)->impl->compose(b, n);
}

static tn_status check_composition_shape(const tn_node *n, const tn_node *root) {
    bool same_shape = root->rank == n->rank && !memcmp(root->shape, n->shape, n->rank * sizeof *n->shape);
    if (same_shape && root->dtype == n->dtype) return TN_OK;
    char is[96], want[96];
    return tn_fail(TN_ERR_INTERNAL, "%s: its composition yields %s %s, its shape rule says %s %s: a defect in the op",
                   tn_op(n->op)->name, tn_shape_text(root, is, sizeof is), tn_dtype_name((tn_dtype)root->dtype),
                   tn_shape_text(n, want, sizeof want), tn_dtype_name((tn_dtype)n->dtype));
}

static tn_status expand_with(tn_build *b, tn_node *n) {
    tn_node *root = tn_compose(b, n);
    TRY(b->status);
    if (!root)
        return tn_fail(TN_ERR_INTERNAL, "%s: its composition yields nothing: a defect in the op", tn_op(n->op)->name);
    TRY(check_composition_shape(n, root));
    n->expansion = tn_node_retain(root);
    return TN_OK;
}

tn_status tn_expand_node(tn_node *n) {
    if (n->expansion) return TN_OK;
    tn_recorder *r = tn_recorder_here();
    if (!r) return TN_ERR_MEMORY;
    bool no_grad = r->no_grad;
    r->no_grad = !(n->flags & TN_NODE_GRAD);
    tn_build b = {0};
    tn_status s = expand_with(&b, n);
    tn_build_end(&b);
    r->no_grad = no_grad;
    return s;
}
