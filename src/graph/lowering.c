/* lowering.c — what the ops' lower functions share: index arithmetic, masked loads, reductions over dims.
 *
 * Values come from the planner through tn_lower_calls; nothing here knows groups or buffers. */
#include "graph/graph.h"

kir_aff tn_aff_value(kir_val v) {
    kir_aff a = kir_aff_const(0);
    a.dyn = v;
    return a;
}

kir_val tn_dyn_add(tn_lower *lw, kir_val a, kir_val b) {
    if (a == KIR_NONE || b == KIR_NONE) return a == KIR_NONE ? b : a;
    return kir_binary(lw->kb, KIR_ADD, a, b);
}

kir_val tn_dyn_scale(tn_lower *lw, kir_val dyn, int64_t k) {
    if (dyn == KIR_NONE || k == 1) return dyn;
    kir_aff size = kir_aff_const(k);
    kir_val by = lw->sized ? kir_index(lw->kb, &size) : kir_const_i(lw->kb, KIR_I64, k);
    return k == 0 ? KIR_NONE : kir_binary(lw->kb, KIR_MUL, dyn, by);
}

kir_aff tn_aff_add(tn_lower *lw, const kir_aff *a, const kir_aff *b) {
    kir_aff r = *a;
    r.c += b->c;
    for (int x = 0, axes = kir_axes(lw->kb); x < axes; x++)
        r.s[x] += b->s[x];
    r.dyn = tn_dyn_add(lw, a->dyn, b->dyn);
    return r;
}

kir_aff tn_aff_scale(tn_lower *lw, const kir_aff *a, int64_t k) {
    kir_aff r = *a;
    r.c *= k;
    for (int x = 0, axes = kir_axes(lw->kb); x < axes; x++)
        r.s[x] *= k;
    r.dyn = tn_dyn_scale(lw, a->dyn, k);
    return r;
}

kir_val tn_lower_at_masked(tn_lower *lw, const tn_node *node, const kir_aff *at, kir_val mask) {
    kir_val before = lw->mask;
    lw->mask = before == KIR_NONE ? mask : kir_binary(lw->kb, KIR_AND, before, mask);
    kir_val r = tn_lower_at(lw, node, at);
    lw->mask = before;
    return r;
}

bool tn_is_reduced(const tn_node *r, int d) {
    for (int64_t k = 0; k < r->i[0]; k++)
        if (r->i[1 + k] == d) return true;
    return r->i[0] == 0;
}

int tn_loops_over_dims(const tn_node *n, int64_t extent[TN_MAX_RANK]) {
    const tn_node *in = n->in[0];
    int count = 0;
    for (int d = 0; d < in->rank; d++)
        if (tn_is_reduced(n, d)) extent[count++] = in->shape[d];
    return count;
}

kir_val tn_lower_reduced(tn_lower *lw, const tn_node *n, const kir_aff *at) {
    const tn_node *in = n->in[0];
    bool keepdim = n->rank == in->rank;
    kir_aff index[TN_MAX_RANK];
    int out = 0, loop = n->rank;
    for (int d = 0; d < in->rank; d++) {
        bool reduced = tn_is_reduced(n, d);
        index[d] = reduced ? at[loop++] : at[out];
        if (!reduced || keepdim) out++;
    }
    return tn_lower_at(lw, in, index);
}
