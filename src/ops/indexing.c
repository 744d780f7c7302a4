/* indexing.c — composed ops that pick, place and order elements by index. */
#include "ops/common.h"

/* index_add(x, dim, index, src): x with slice i of src along dim added to slice index[i]; indices outside are left out. */
static tn_status infer_index_add(tn_infer *c) {
    const tn_node *x = c->in[0], *index = c->in[1], *src = c->in[2];
    int64_t dim;
    char a[96], b[96], i[96];
    TRY(tn_need_integer(c, 1));
    TRY(tn_infer_dim(c, c->attrs->i[0], x->rank, &dim));
    c->attrs->i[0] = dim;
    bool fits = x->rank > 0 && src->rank == x->rank && index->rank <= 1 && tn_node_numel(index) == src->shape[dim];
    for (int d = 0; fits && d < x->rank; d++) fits = d == dim || src->shape[d] == x->shape[d];
    if (!fits)
        return tn_fail(TN_ERR_SHAPE, "index_add: source %s with index %s does not fit to %s along dim %lld: one index a slice, "
                       "slices as in x", tn_shape_text(src, b, sizeof b), tn_shape_text(index, i, sizeof i),
                       tn_shape_text(x, a, sizeof a), (long long)dim);
    if (x->dtype != src->dtype)
        return tn_fail(TN_ERR_DTYPE, "index_add: %s and source %s: they must have one dtype",
                       tn_dtype_name((tn_dtype)x->dtype), tn_dtype_name((tn_dtype)src->dtype));
    return tn_infer_same(c);
}
/* Floats go through the native kernel for rows; for the others every element looks for what belongs to it. */
static tn_node *compose_index_add(tn_build *b, const tn_node *n) {
    int64_t dim = n->i[0], count = tn_node_numel(n->in[1]);
    tn_node *index = tn_b_reshape(b, n->in[1], &count, 1);
    if (n->dtype == TN_F32 || n->dtype == TN_F64) {
        tn_node *x = tn_b_movedim(b, n->in[0], dim, 0);
        tn_node *sum = tn_b_index_add_rows(b, x, index, tn_b_movedim(b, n->in[2], dim, 0));
        return dim == 0 ? sum : tn_b_contiguous(b, tn_b_movedim(b, sum, 0, dim));
    }
    int64_t column[TN_MAX_RANK];
    for (int d = 0; d < n->rank; d++) column[d] = d == dim ? count : 1;
    tn_node *all = tn_b_expand(b, tn_b_reshape(b, index, column, n->rank), n->in[2]->shape, n->rank);
    return tn_b_add(b, n->in[0], tn_b_scatter_sum(b, all, n->in[2], dim, n->shape, n->rank));
}
const tn_op_impl tn_impl_index_add = {
    .infer = infer_index_add, .compose = compose_index_add,
    .cases = "types=f32,f64,i32 tol=4ulp atol=1e-6; [4,3] [9]:i64@0..3 [9,3] dim=0; [2,5] [3]:i32@0..4 [2,3] dim=-1;"
             "error=fit [4,3] [9]:i64@0..3 [8,3] dim=0"};
