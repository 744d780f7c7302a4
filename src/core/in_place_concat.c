/* in_place_concat.c — tensors joined by cat whose parts are made where the joined one has them.
 *
 * Where nothing but ones stands before the dim of joining, each part is one piece of the joined tensor's memory. A part
 * that is computed here, that nobody keeps and that is joined once lies there from the beginning: it is written once,
 * and nothing is copied when the parts are all there. Slices that are the whole of a tensor again, one behind the
 * other, are one part. On the processor what is missing is copied; elsewhere parts lie so all or not at all, for a
 * program that reads other parts' memory than it writes is none that writes over what it reads. */
#include <string.h>

#include "core/core.h"

enum {
    MANY = 512,     /* elements below which one pass over all is as good */
    PART_ALIGN = 64 /* bytes: where an arena's values lie */
};

/* May this value lie inside another's memory? */
static bool can_be_part(const tn_value *r) {
    tn_op_class c = tn_value_class(r);
    return r->row && r->slot < 0 && r->output < 0 && r->scalar < 0 && r->concat_into < 0 && r->n_in > 0 &&
           c != TN_LEAF_VALUE && c != TN_VIEW_OP && tn_value_numel(r) > 0;
}

/* Would it be in memory although only a cat needs it? Steps from data alone are as quickly taken where it is joined. */
static bool is_made(const tn_graph_plan *g, int value, int depth) {
    enum { DEEPEST = 6 };
    const tn_value *r = &g->values[g->values[value].root];
    tn_op_class c = tn_value_class(r);
    if (r->slot >= 0 || depth > DEEPEST) return false;
    if ((c != TN_ELEMENTWISE && c != TN_MOVEMENT) || (depth == 0 && r->user_count > 1) || r->alone) return true;
    for (int k = 0; k < r->n_in; k++)
        if (r->in[k] >= 0 && is_made(g, r->in[k], depth + 1)) return true;
    return false;
}

static bool lies_in_pieces(const tn_value *v) {
    for (int d = 0; d < (int)v->node->i[0]; d++)
        if (v->node->shape[d] != 1) return false;
    return true;
}

static bool can_be_in_place(const tn_graph_plan *g, const tn_value *v) {
    if (v->node->op != TN_OP_CAT_FEW || v->n_in < 2 || v->vendor || v->host_only) return false;
    if (v->output >= 0 && g->binding->outputs[v->output].home >= 0) return false;
    return lies_in_pieces(v) && tn_value_numel(v) >= MANY && tn_dtype_block((tn_dtype)v->node->dtype) == 1;
}

/* How many inputs, from k on, are the whole of a value in order, which may be a part that begins at byte `at`; 0: none.
 */
static int run_of(const tn_graph_plan *g, const tn_value *v, int k, int64_t at) {
    int root = g->values[v->in[k]].root;
    const tn_value *r = &g->values[root];
    int64_t done = 0;
    if (at % PART_ALIGN != 0 || !can_be_part(r) || r->node->dtype != v->node->dtype) return 0;
    for (int count = 0; k + count < v->n_in;) {
        const tn_value *x = &g->values[v->in[k + count++]];
        if (x->root != root || x->offset != done || !tn_value_dense(x)) return 0;
        done += tn_value_numel(x);
        if (done == tn_value_numel(r)) return count;
    }
    return 0;
}

/* Notes the parts of a joined value. Returns how many inputs are such; *made: elements of those that would be in memory
 * anyway. */
static int note_parts(tn_graph_plan *g, int joined, int64_t *made) {
    const tn_value *v = &g->values[joined];
    int64_t element = (int64_t)tn_dtype_size((tn_dtype)v->node->dtype), at = 0;
    int found = 0;
    *made = 0;
    for (int k = 0, count; k < v->n_in; k += count ? count : 1) {
        tn_value *r = &g->values[g->values[v->in[k]].root];
        count = run_of(g, v, k, at);
        at += element * tn_value_numel(count ? r : &g->values[v->in[k]]);
        if (!count) continue;
        found += count;
        if (is_made(g, v->in[k], 0)) *made += tn_value_numel(r);
        r->concat_into = joined;
        r->concat_at = at - element * tn_value_numel(r);
    }
    return found;
}

static void leave_parts(tn_graph_plan *g, int joined) {
    const tn_value *v = &g->values[joined];
    for (int k = 0; k < v->n_in; k++) {
        tn_value *r = &g->values[g->values[v->in[k]].root];
        if (r->concat_into == joined) r->concat_into = -1;
    }
}

static void choose_concat(tn_graph_plan *g, int value) {
    tn_value *v = &g->values[value];
    int64_t made;
    if (!can_be_in_place(g, v)) return;
    int found = note_parts(g, value, &made);
    bool copies = v->node->device->is_cpu && tn_value_class(v) == TN_NATIVE;
    if (found > 0 && (found == v->n_in || copies) && 2 * made >= tn_value_numel(v))
        v->alone = true;
    else
        leave_parts(g, value);
}

/* ---- copying ----------------------------------------------------------------------------------------------------- */

/* The input of an element-wise x of which x may be the epilogue: a computed one of x's shape; -1: none. */
static int computed_input(const tn_graph_plan *g, const tn_value *x) {
    for (int k = 0; k < x->n_in; k++) {
        const tn_value *in = x->in[k] >= 0 ? &g->values[x->in[k]] : NULL;
        if (!in || !in->row || in->node->rank != x->node->rank) continue;
        if (memcmp(in->node->shape, x->node->shape, (size_t)x->node->rank * sizeof *x->node->shape) == 0)
            return x->in[k];
    }
    return -1;
}

/* Does a kernel read it that can only read memory? */
static bool feeds_kernel(const tn_graph_plan *g, const tn_value *v, int depth) {
    enum { DEEPEST = 4 };
    for (int k = 0; k < v->user_count && depth < DEEPEST; k++) {
        const tn_value *u = &g->values[v->users[k]];
        tn_op_class c = tn_value_class(u);
        if (u->node->op != TN_OP_CAT_FEW && (c == TN_MATMUL || c == TN_NATIVE)) return true;
        if (c == TN_VIEW_OP && feeds_kernel(g, u, depth + 1)) return true;
    }
    return false;
}

/* Is the value stored in memory even if the concatenation does not ask for it? True for the epilogue of a product or a
 * convolution and for operands of kernels; false for element-wise values, which are better computed in the
 * concatenation. */
static bool is_stored_anyway(const tn_graph_plan *g, int value) {
    enum { EPILOGUE = 4 }; /* steps */
    int steps = 0;
    while (value >= 0 && g->values[value].row) {
        const tn_value *v = &g->values[value];
        tn_op_class c = tn_value_class(v);
        if (c != TN_VIEW_OP && c != TN_ELEMENTWISE) return steps == 0 || c == TN_MATMUL || c == TN_NATIVE;
        if (c == TN_ELEMENTWISE && steps == 0 && (v->output >= 0 || feeds_kernel(g, v, 0))) return true;
        if (c == TN_VIEW_OP ? steps > 0 : steps++ == EPILOGUE) return false;
        value = c == TN_VIEW_OP ? v->in[0] : computed_input(g, v);
    }
    return value >= 0 && steps == 0;
}

/* A fused concatenation evaluates every part at each element and selects one. So parts are stored first and copied if
 * all are in memory anyway, if most of several parts are, or if the parts alternate every few elements. */
static bool is_copied(const tn_graph_plan *g, const tn_value *v) {
    enum { FEW = 16, SEVERAL = 3 };
    const tn_node *n = v->node;
    int64_t inner = 1, longest = 0, stored = 0, all = tn_value_numel(v);
    for (int d = (int)n->i[0] + 1; d < n->rank; d++)
        inner *= n->shape[d];
    for (int k = 0; k < v->n_in; k++) {
        const tn_node *x = g->values[v->in[k]].node;
        if (x->rank == n->rank) longest = tn_max64(longest, x->shape[n->i[0]] * inner);
        if (is_stored_anyway(g, v->in[k])) stored += tn_node_numel(x);
    }
    return stored == all || (v->n_in >= SEVERAL && 2 * stored >= all) || longest <= FEW;
}

void tn_concat_choose(tn_graph_plan *g) {
    for (size_t i = 0; i < g->value_count; i++) {
        tn_value *v = &g->values[i];
        v->concat_into = -1;
        v->copied = v->row && v->node->op == TN_OP_CAT_FEW && is_copied(g, v);
    }
    for (size_t i = 0; i < g->value_count; i++)
        choose_concat(g, (int)i);
}

/* An input that stands there a second time lies elsewhere than where it is joined again. */
bool tn_concat_is_in_place(const tn_graph_plan *g, int value) {
    const tn_value *v = &g->values[value];
    int64_t element = (int64_t)tn_dtype_size((tn_dtype)v->node->dtype), at = 0;
    if (v->node->op != TN_OP_CAT_FEW) return false; /* others may lack inputs */
    for (int k = 0; k < v->n_in; k++) {
        const tn_value *x = &g->values[v->in[k]], *r = &g->values[x->root];
        if (r->concat_into != value || r->concat_at + element * x->offset != at) return false;
        at += element * tn_value_numel(x);
    }
    return true;
}

/* The host has memory of its own. */
void tn_concat_leave_host(tn_graph_plan *g) {
    for (size_t i = 0; i < g->value_count; i++) {
        int joined = g->values[i].concat_into;
        if (joined < 0) continue;
        int own = g->values[i].group, whole = g->values[joined].group;
        if (own < 0 || whole < 0 || g->groups[own].host || g->groups[whole].host) leave_parts(g, joined);
    }
}

static int last_reader(const tn_graph_plan *g, const tn_value *v) {
    int last = g->groups[v->group].position;
    for (int k = 0; k < v->pull_count; k++)
        last = (int)tn_max64(last, g->groups[v->pulls[k]].position);
    return last;
}

int tn_last_reader(const tn_graph_plan *g, int value) {
    const tn_value *v = &g->values[value];
    int last = last_reader(g, v);
    for (int k = 0; k < v->n_in; k++) {
        int part = v->in[k] >= 0 ? g->values[v->in[k]].root : -1;
        if (part >= 0 && g->values[part].concat_into == value) last = (int)tn_max64(last, tn_last_reader(g, part));
    }
    return last;
}
