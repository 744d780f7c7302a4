/* row_fused_gemm.c — products of which each reads what the one before made, row by row: one command that threads run by
 * rows.
 *
 * A small network's layers take little more time than handing their rows from thread to thread does. So products that
 * follow each other in the order, or can, become a run: row r of each needs of the others' results their rows r alone,
 * and a thread takes its rows through all of them (kern/cpu/gemm_row_fused.h). Groups of a run write memory that no
 * other one of it reads or writes but so, which layout.c sees to. Weights beyond a share of the second cache would be
 * fetched anew for each block of rows, and are left to products of their own. */
#include "core/native.h"

enum {
    FAR = 24,       /* groups that a product may be moved past */
    MANY_ROWS = 256 /* with fewer, threads had rather share the columns of a weight that they have just changed */
};

/* ---- what may be in a run ---------------------------------------------------------------------------------------- */

static int64_t row_run_rows_of(const tn_graph_plan *g, const tn_group *group) {
    return g->values[group->lead].node->shape[0];
}

static int64_t weight_of(const tn_graph_plan *g, const tn_group *group) {
    return (int64_t)tn_node_bytes(g->values[g->values[group->lead].in[1]].node);
}

int64_t tn_group_makes(const tn_graph_plan *g, const tn_group *group) {
    int64_t bytes = 0;
    for (size_t i = 0; i < group->member_count; i++)
        if (g->values[group->members[i]].stored) bytes += (int64_t)tn_node_bytes(g->values[group->members[i]].node);
    return bytes;
}

/* A weight that other plans change, or none, is in every thread's cache. */
static bool weight_stays(const tn_graph_plan *g, const tn_group *group) {
    const tn_value *b = &g->values[g->values[group->lead].in[1]];
    return tn_native_may_pack(g, g->values[b->root].slot);
}

static bool is_product(const tn_graph_plan *g, const tn_group *group) {
    if (group->kind != TN_GROUP_MATMUL || !group->native || group->commit || group->appends || group->host)
        return false;
    return !tn_group_writes_state(g, group) && g->values[group->lead].node->rank == 2 && group->pool < 0 &&
           (row_run_rows_of(g, group) >= MANY_ROWS || weight_stays(g, group)) &&
           tn_native_is_row_fusable(group->native);
}

typedef struct run {
    int first, count;     /* positions */
    int64_t weight, made; /* bytes */
} run;

static bool made_in(const tn_graph_plan *g, const run *r, int value) {
    int group = g->values[g->values[value].root].group;
    int at = group >= 0 ? g->groups[group].position : -1;
    return at >= r->first && at < r->first + r->count;
}

/* Does row r of the group's result read nothing of the run but rows r? Its first operand as it was stored; what joins
 * it at the place that it writes. */
static bool reads_own_rows(const tn_graph_plan *g, const run *r, const tn_group *group) {
    const tn_value *lead = &g->values[group->lead];
    int own = (int)(group - g->groups);
    if (made_in(g, r, lead->in[1])) return false;
    if (made_in(g, r, lead->in[0]) && g->values[lead->in[0]].root != lead->in[0]) return false;
    for (int b = 0; b < group->buffer_count; b++) {
        int x = group->buffer_values[b];
        if (x == TN_BLOCK || g->values[x].group == own || !made_in(g, r, x)) continue;
        const tn_node *n = g->values[x].node;
        if (!group->buffer_same_place[b] || n->rank != 2 || n->shape[0] != lead->node->shape[0] ||
            n->shape[1] != lead->node->shape[1])
            return false;
    }
    return true;
}

/* Can the group at this position stand directly behind the run? What lies between must not make what it needs. */
static bool may_follow(const tn_graph_plan *g, const run *r, int position) {
    const tn_group *group = &g->groups[g->order[position]];
    if (!is_product(g, group) || row_run_rows_of(g, group) != row_run_rows_of(g, &g->groups[g->order[r->first]]))
        return false;
    if (r->weight + weight_of(g, group) > tn_cpu().l2 / 2) return false;
    if (r->made + tn_group_makes(g, group) > TN_MOST_MADE) return false;
    for (size_t k = 0; k < group->dep_count; k++)
        if (g->groups[group->deps[k]].position >= r->first + r->count) return false;
    return reads_own_rows(g, r, group);
}

/* ---- choosing ---------------------------------------------------------------------------------------------------- */

static void add_row_run(const tn_graph_plan *g, run *r, const tn_group *group) {
    r->weight += weight_of(g, group);
    r->made += tn_group_makes(g, group);
}

static void grow_run(tn_graph_plan *g, run *r) {
    for (int at = r->first + r->count; at < (int)g->group_count && at < r->first + r->count + FAR; at++) {
        if (r->count == TN_ROW_FUSED_MOST || g->groups[g->order[at]].commit) return;
        if (!may_follow(g, r, at)) continue;
        add_row_run(g, r, &g->groups[g->order[at]]);
        tn_group_move_up(g, at, r->first + r->count);
        at = r->first + r->count++;
    }
}

static tn_status join_row_run(tn_graph_plan *g, const run *r) {
    tn_native *natives[TN_ROW_FUSED_MOST];
    for (int i = 0; i < r->count; i++) {
        tn_group *group = &g->groups[g->order[r->first + i]];
        natives[i] = group->native;
        group->workspace = 0;
        group->row_fused = true;
        group->sibling = i > 0;
    }
    return tn_native_fuse_rows(natives, r->count, &g->groups[g->order[r->first]].workspace);
}

tn_status tn_fuse_gemm_rows(tn_graph_plan *g) {
    run r;
    for (int i = 0; i < (int)g->group_count; i += r.count) {
        const tn_group *first = &g->groups[g->order[i]];
        r = (run){.first = i, .count = 1};
        if (!is_product(g, first)) continue;
        add_row_run(g, &r, first);
        if (r.weight > tn_cpu().l2 / 2) continue;
        grow_run(g, &r);
        if (r.count > 1) TRY(join_row_run(g, &r));
    }
    return TN_OK;
}
