/* rematerialize.c — large values that are computed again instead of being stored, or read.
 *
 * A value that caches do not keep until it is read costs a way to memory for each group that reads it, and two for the
 * one that stores it, since its lines are fetched before they are written over. Element-wise values of few operands are
 * often made in less: of a norm's operand, and its means and deviations, follows all that lies between, in the gradient
 * too. So such a value is not stored where making it again takes no more of memory, and a group that reads all it is
 * made of anyway does not read it even if it is. The bits are the same: what is made again is rounded as if stored. */
#include "core/core.h"

enum {
    LARGE = 1 << 17, /* elements that caches do not keep */
    SPREAD = 4,      /* an operand of so many times fewer is as good as in them */
    CHEAP = 16,      /* operations on an element that take no longer than reading it */
    MOST_SOURCES = 3
};

static float work_of(const tn_value *v) { return 1.0f + (float)v->row->impl->flops; }

static bool is_candidate(const tn_graph_plan *g, const tn_value *v) {
    return g->binding->device->is_cpu && tn_value_class(v) == TN_ELEMENTWISE && tn_value_numel(v) >= LARGE;
}

/* Does `in` have about as many elements as v, which is made of it? */
static bool rematerialized_is_wide(const tn_value *in, const tn_value *v) {
    return tn_value_numel(in) > tn_value_numel(v) / SPREAD;
}

/* A kernel of its own makes it, whatever else is decided. */
static bool must_lie_in_memory(const tn_value *v) {
    tn_op_class c = tn_value_class(v);
    return !v->row || v->wants_memory || (c != TN_ELEMENTWISE && c != TN_VIEW_OP && c != TN_MOVEMENT);
}

/* ---- not stored -------------------------------------------------------------------------------------------------- */

/* What v is made of, as it lies in memory. */
typedef struct sources {
    int last; /* the last value that needs v */
    int of[MOST_SOURCES], count;
    int dying; /* of these; nobody needs them later than v */
    float work;
} sources;

static bool add_source(const tn_graph_plan *g, sources *s, int value) {
    const tn_value *in = &g->values[value];
    bool later = in->slot >= 0 || in->output >= 0;
    for (int k = 0; k < s->count; k++)
        if (s->of[k] == value) return true;
    if (s->count == MOST_SOURCES) return false;
    for (int k = 0; k < in->user_count && !later; k++)
        later = in->users[k] > s->last;
    s->of[s->count++] = value;
    s->dying += !later;
    return true;
}

/* false: they are too many, or v is made of more than elements at its own place. */
static bool find_sources(const tn_graph_plan *g, const tn_value *v, sources *s) {
    if (tn_value_class(v) != TN_ELEMENTWISE) return false;
    s->work += work_of(v);
    for (int k = 0; k < v->n_in && s->work <= CHEAP; k++) {
        const tn_value *in = v->in[k] >= 0 ? &g->values[v->in[k]] : NULL;
        if (!in || !rematerialized_is_wide(in, v)) continue;
        if (must_lie_in_memory(in) ? !add_source(g, s, v->in[k]) : !find_sources(g, in, s)) return false;
    }
    return s->work <= CHEAP;
}

bool tn_is_rematerialized(const tn_graph_plan *g, const tn_value *v) {
    sources s = {.last = -1};
    if (!is_candidate(g, v)) return false;
    for (int k = 0; k < v->user_count; k++)
        s.last = v->users[k] > s.last ? v->users[k] : s.last;
    bool saves = find_sources(g, v, &s) && (v->pull_count - 1) * s.count < v->pull_count + 1;
    return saves && s.dying <= 1; /* no more is kept for it than it would take itself */
}

/* ---- stored, but not read ---------------------------------------------------------------------------------------- */

/* Does the group read what this operand of v is made of for something else, or is that small and there? */
static bool is_there(const tn_graph_plan *g, const tn_value *v, int group, int operand, float *work) {
    const tn_value *in = &g->values[operand], *root = &g->values[in->root];
    bool wide = rematerialized_is_wide(in, v);
    if (!root->row || in->scalar >= 0) return !wide;
    for (int k = 0; root->stored && k < root->pull_count; k++)
        if (root->pulls[k] == group) return true;
    if (root->stored || (tn_value_class(in) != TN_ELEMENTWISE && tn_value_class(in) != TN_VIEW_OP)) return false;
    if (wide) *work += work_of(in);
    for (int k = 0; k < in->n_in; k++)
        if (in->in[k] >= 0 && (*work > CHEAP || !is_there(g, v, group, in->in[k], work))) return false;
    return true;
}

bool tn_group_rematerializes(const tn_graph_plan *g, int group, int value) {
    const tn_value *v = &g->values[value];
    if (!is_candidate(g, v) || tn_group_is_native(&g->groups[group])) return false;
    float work = work_of(v);
    for (int k = 0; k < v->n_in; k++)
        if (v->in[k] >= 0 && !is_there(g, v, group, v->in[k], &work)) return false;
    return work <= CHEAP;
}
