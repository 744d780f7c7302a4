/* expand.c — a composed op's composition: see expand.h. */
#include "core/expand.h"

#include <string.h>

static tn_status check_expansion(const tn_node *n, const tn_node *root) {
    bool same_shape = root->rank == n->rank && !memcmp(root->shape, n->shape, n->rank * sizeof *n->shape);
    if (same_shape && root->dtype == n->dtype) return TN_OK;
    char is[96], want[96];
    return tn_fail(TN_ERR_INTERNAL, "%s: its composition yields %s %s, its shape rule says %s %s: a defect in the op",
                   tn_op(n->op)->name, tn_shape_text(root, is, sizeof is), tn_dtype_name((tn_dtype)root->dtype),
                   tn_shape_text(n, want, sizeof want), tn_dtype_name((tn_dtype)n->dtype));
}

static tn_status expand_with(tn_build *b, tn_node *n) {
    tn_node *root = tn_op(n->op)->impl->compose(b, n);
    TRY(b->status);
    if (!root)
        return tn_fail(TN_ERR_INTERNAL, "%s: its composition yields nothing: a defect in the op", tn_op(n->op)->name);
    TRY(check_expansion(n, root));
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
