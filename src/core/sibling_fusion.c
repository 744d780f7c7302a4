/* sibling_fusion.c — products that share their left operand become one launch: queries, keys and values; gate and up.
 *
 * Weights stay where they are: the launch goes over several of them, with the operand rounded once and threads woken
 * once. A product that needs no more than is there before the first of a chain is moved behind the last. It may also
 * need what a product of the chain makes, if its epilogue reads there just the places at which it writes itself: these
 * are computed by the same thread, one after the other. What a chain touches is laid out as if it was all done at once,
 * so large results are not moved up: they would wait for their readers. */
#include "core/native.h"

enum { WITHIN = 32 }; /* groups behind the last of a chain that are looked at */

typedef struct chain {
    int first, count; /* positions */
    int64_t made;     /* bytes of results */
} chain;

static tn_group *at_position(const tn_graph_plan *g, int position) { return &g->groups[g->order[position]]; }

static const tn_value *left_of(const tn_graph_plan *g, const tn_group *group) {
    return &g->values[g->values[group->lead].in[0]];
}

static bool can_chain(const tn_group *group) {
    return group->kind == TN_GROUP_MATMUL && group->native && !group->commit && !group->appends && !group->host;
}

static bool reads(const tn_group *group, int value) {
    for (int k = 0; k < group->read_count; k++)
        if (group->reads[k] == value) return true;
    return false;
}

static bool same_shape(const tn_node *a, const tn_node *b) {
    for (int d = 0; d < a->rank; d++)
        if (a->rank != b->rank || a->shape[d] != b->shape[d]) return false;
    return a->rank == b->rank;
}

/* What `group` reads of group `made`, which is to be in the same launch, it reads at the places where it writes. */
static bool reads_same_places(const tn_graph_plan *g, const tn_group *group, int made) {
    const tn_value *lead = &g->values[group->lead];
    if (!same_shape(lead->node, g->values[g->groups[made].lead].node)) return false;
    for (int k = 0; k < lead->n_in; k++)
        if (g->values[g->values[lead->in[k]].root].group == made) return false; /* as a factor: all over */
    for (int b = 0; b < group->buffer_count; b++) {
        int v = group->buffer_values[b];
        if (v != TN_BLOCK && g->values[v].group == made && !group->buffer_same_place[b]) return false;
    }
    return true;
}

/* Its memory may become the result of who reads it last, while others of the launch are still at it. */
static bool shares_more(const tn_graph_plan *g, const tn_group *group, const tn_group *other) {
    for (int k = 0; k < group->read_count; k++) {
        int v = group->reads[k];
        if (g->values[v].slot < 0 && v != left_of(g, group)->root && reads(other, v)) return true;
    }
    return false;
}

static bool sibling_fits(const tn_graph_plan *g, const chain *c, const tn_group *group) {
    const tn_group *first = at_position(g, c->first);
    const tn_value *x = left_of(g, first), *y = left_of(g, group);
    if (x->root != y->root || x->offset != y->offset || !tn_native_are_siblings(first->native, group->native))
        return false;
    for (size_t k = 0; k < group->dep_count; k++) {
        int needed = group->deps[k], position = g->groups[needed].position;
        if (position >= c->first + c->count) return false;
        if (position >= c->first && !reads_same_places(g, group, needed)) return false;
    }
    if (group->position > c->first + c->count && c->made + tn_group_makes(g, group) > TN_MOST_MADE) return false;
    for (int i = c->first; i < c->first + c->count; i++)
        if (shares_more(g, group, at_position(g, i))) return false;
    return true;
}

void tn_group_move_up(tn_graph_plan *g, int from, int to) {
    int moved = g->order[from];
    for (int i = from; i > to; i--) {
        g->order[i] = g->order[i - 1];
        at_position(g, i)->position = i;
    }
    g->order[to] = moved;
    g->groups[moved].position = to;
}

/* The first one's workspace serves all. */
static void take_siblings(tn_graph_plan *g, chain *c, int position) {
    tn_group *first = at_position(g, c->first), *group = at_position(g, position);
    tn_native_add_sibling(at_position(g, c->first + c->count - 1)->native, group->native);
    if (group->workspace > first->workspace) first->workspace = group->workspace;
    group->workspace = 0;
    group->sibling = true;
    c->made += tn_group_makes(g, group);
    tn_group_move_up(g, position, c->first + c->count++);
}

void tn_fuse_siblings(tn_graph_plan *g) {
    tn_native *before = NULL;
    chain c;
    for (int i = 0; i < (int)g->group_count; i += c.count) {
        tn_native *own = at_position(g, i)->native;
        c = (chain){i, 1, tn_group_makes(g, at_position(g, i))};
        if (own) before = tn_native_set_next_weight(own, before);
        if (!can_chain(at_position(g, i))) continue;
        int end = i + 1;
        for (int j = i + 1; j < (int)g->group_count && j - end < WITHIN && c.count < TN_MOST_SIBLINGS; j++) {
            const tn_group *group = at_position(g, j);
            if (!can_chain(group) || !sibling_fits(g, &c, group)) continue;
            take_siblings(g, &c, j);
            end = j + 1;
        }
    }
}
