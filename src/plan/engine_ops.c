/* engine_ops.c — single operations that the device's engine computes (engine.h): which values those are, what they
 * are handed, and what is left to the cpu's kernels. */
#include "plan/plan.h"

#include <stdio.h>
#include <string.h>

const tn_op_engine *tn_op_engine_of(const tn_device *d) {
    for (int i = 0; d->is_engine && tn_op_engines[i]; i++)
        if (!strcmp(tn_op_engines[i]->backend, d->info.backend)) return tn_op_engines[i];
    return NULL;
}

/* Numbers that are made of nothing: constants, counters, random bits. As data, they come from the host; the bits of
 * random numbers are then the same on every device. */
static bool is_source(const tn_node *n) { return tn_op_has(n, TN_FACT_SOURCE); }

bool tn_engine_made_of_nothing(const tn_graph_plan *g, const tn_value *v) {
    if (is_source(v->node)) return true;
    for (int k = 0; k < v->n_in; k++)
        if (v->in[k] >= 0 && !g->values[v->in[k]].by.of_nothing) return false;
    return v->n_in > 0;
}

/* What was differentiated in other steps is computed in these, which its gradient has in common with it. */
bool tn_engine_takes(const tn_graph_plan *g, const tn_node *n, const char **why) {
    *why = NULL;
    if (!g->engine || n->op == TN_OP_NONE || tn_node_computed(n) || n->expansion) return false;
    if (is_source(n) || (n->flags & TN_NODE_VIEW)) return false;
    return g->engine->takes(n, why);
}

bool tn_engine_has_constant(const tn_graph_plan *g, int value) {
    const tn_value *root = &g->values[g->values[value].root];
    return root->row && tn_op_has(root->node, TN_FACT_CONSTANT) && root->scalar < 0;
}

tn_status tn_engine_op_make(tn_graph_plan *g, tn_group *group) {
    const tn_value *v = &g->values[group->lead];
    tn_engine_input in[TN_MAX_INPUTS] = {{0}};
    for (int k = 0; k < v->n_in; k++) {
        if (v->in[k] < 0) continue;
        const tn_value *x = &g->values[v->in[k]];
        in[k].node = x->node;
        in[k].constant = tn_engine_has_constant(g, v->in[k]);
        if (in[k].constant) in[k].value = g->values[x->root].node->f[0];
        memcpy(in[k].stride, x->stride, sizeof in[k].stride);
    }
    group->run.engine = g->engine;
    return g->engine->make(v->node, in, &group->run.engine_op);
}

/* ---- what the engine leaves -------------------------------------------------------------------------------------- */

static const char NO_KERNEL[] = "no_kernel"; /* a word of placement.c's table */

static bool is_left(const tn_value *v) {
    return !v->by.engine && v->by.engine_why && !v->by.of_nothing && tn_value_numel(v) > 0;
}

tn_status tn_engine_note_rest(const tn_graph_plan *g, tn_plan *p) {
    p->placement.placed = tn_plan_own(p, ((size_t)p->placement.operations + 1) * sizeof *p->placement.placed);
    if (!p->placement.placed) return TN_ERR_MEMORY;
    for (size_t i = 0; i < g->group_count; i++)
        for (size_t k = 0; k < g->groups[i].member_count; k++) {
            const tn_value *v = &g->values[g->groups[i].members[k]];
            if (!is_left(v)) continue;
            tn_placed *at = &p->placement.placed[p->placement.placed_count++];
            *at = (tn_placed){.op = v->row->name, .code = NO_KERNEL};
            snprintf(at->reason, sizeof at->reason, "%s", v->by.engine_why);
            tn_node_describe(v->node, at->where, sizeof at->where);
        }
    if (!p->placement.placed_count || p->device->fallback != TN_FALLBACK_STRICT) return TN_OK;
    return tn_fail(
        TN_ERR_UNSUPPORTED,
        "%s: %s %s, and the cpu may not compute it (strict): choose another dtype or device, or allow fallback",
        p->placement.placed[0].where, p->device->info.id, p->placement.placed[0].reason);
}
