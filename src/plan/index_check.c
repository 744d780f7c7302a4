/* index_check.c — compares indices with their range while a plan runs.
 *
 * A kernel cannot fail, so it reads NaN or skips for an index out of range. Instead the host checks the indices: right
 * after the command that computes them, or before the first command if they are data. So indices are always stored in
 * memory. No check is in the commit section, so a run that is stopped by a check has changed no state. On the CPU a
 * check is one pass over the indices; on other devices indices that the host has sent are compared by what it knows of
 * them, and others are copied to the host, which happens only if TRUNNION_CHECK_INDICES asks for it.
 *
 * An op reads its indices through a view that has the check, so the results that depend on this view are those that a
 * failed check affects. They become errors; everything else is computed. */
#include <string.h>

#include "ops/ops_common.h"
#include "plan/plan.h"

typedef struct tn_plan_check {
    tn_index_list list;
    tn_index_range range;
    int op;
    int node;     /* place in the binding's list of nodes with a check; -1: not there */
    int32_t line; /* where the op was recorded when the plan was made */
    const char *file;
    size_t before;  /* the command before which it runs */
    int slot;       /* of data */
    void **pointer; /* of the first of `bytes` bytes that have the indices */
    int64_t first;  /* bytes from there to element 0, …, 0 */
    size_t bytes;
    char *fetched;            /* on other devices: room on the host */
    const tn_buffer *checked; /* data: in this buffer and version of it all indices are inside */
    uint64_t version;
} tn_plan_check;

/* ---- when a plan is made ----------------------------------------------------------------------------------------- */

tn_status tn_note_checked(tn_graph_plan *g, const tn_node *n) {
    if (tn_map_find(&g->checked.of, n) >= 0) return TN_OK;
    TRY(tn_scratch_grow(&g->scratch, &g->checked.list, &g->checked.capacity, g->checked.count + 1,
                        sizeof *g->checked.list));
    TRY(tn_map_put(&g->checked.of, n, (int32_t)g->checked.count));
    g->checked.list[g->checked.count++] = (tn_checked_value){.node = n, .value = -1};
    return TN_OK;
}

tn_status tn_find_checked(tn_graph_plan *g) {
    for (size_t i = 0; i < g->checked.count; i++) {
        tn_checked_value *c = &g->checked.list[i];
        c->value = tn_value_of(g, tn_index_source(c->node));
        if (c->value < 0) c->value = tn_value_of(g, c->node);
        if (c->value < 0)
            return tn_fail(TN_ERR_INTERNAL, "%s: the indices to check have no value", tn_op(c->node->check->op)->name);
    }
    return TN_OK;
}

void tn_want_checked(tn_graph_plan *g) {
    for (size_t i = 0; i < g->checked.count; i++) {
        tn_value *root = &g->values[g->values[g->checked.list[i].value].root];
        if (root->row) root->fusion.wants_memory = true;
    }
}

void tn_mark_checked(tn_graph_plan *g) {
    for (size_t i = 0; i < g->checked.count; i++) {
        const tn_value *root = &g->values[g->values[g->checked.list[i].value].root];
        if (root->group >= 0) g->groups[root->group].order.checked = true;
    }
}

tn_status tn_make_checks(const tn_graph_plan *g, tn_plan *p) {
    if (g->checked.count == 0) return TN_OK;
    p->checks.list = tn_plan_own(p, g->checked.count * sizeof *p->checks.list);
    return p->checks.list ? TN_OK : TN_ERR_MEMORY;
}

static int place_in_binding(const tn_binding *b, const tn_node *n) {
    for (size_t i = 0; i < b->key.checked_count; i++)
        if (b->key.checked[i] == n) return (int)i;
    return -1;
}

/* The check of node n, whose value is v. */
static tn_status add_check(tn_plan *p, const tn_node *n, const tn_value *v, const tn_value *root, void ***pointer) {
    int64_t size = (int64_t)tn_dtype_size((tn_dtype)v->node->dtype);
    tn_plan_check *k = &p->checks.list[p->checks.count];
    *k = (tn_plan_check){.range = n->check->range,
                         .op = n->check->op,
                         .line = n->check->line,
                         .file = n->check->file,
                         .before = p->command_count,
                         .slot = root->slot,
                         .pointer = *pointer,
                         .first = v->offset * size - root->memory.first,
                         .bytes = (size_t)root->memory.bytes};
    k->list = (tn_index_list){.dtype = (tn_dtype)v->node->dtype,
                              .rank = v->node->rank,
                              .dense = tn_value_dense(v),
                              .count = tn_value_numel(v)};
    memcpy(k->list.shape, v->node->shape, sizeof k->list.shape);
    memcpy(k->list.stride, v->stride, sizeof k->list.stride);
    if (!p->device->is_cpu && !(k->fetched = tn_plan_own(p, k->bytes))) return TN_ERR_MEMORY;
    tn_plan_patch(p, (*pointer)++, root->memory.place, root->memory.offset + root->memory.first);
    p->checks.count++;
    if (root->slot >= 0) p->checks.leaf_count++;
    return TN_OK;
}

tn_status tn_add_checks(const tn_graph_plan *g, tn_plan *p, int group, void ***pointer) {
    if (g->checked.count == 0 || (group >= 0 && !g->groups[group].order.checked)) return TN_OK;
    for (size_t i = 0; i < g->checked.count; i++) {
        const tn_value *v = &g->values[g->checked.list[i].value], *root = &g->values[v->root];
        bool here = group < 0 ? root->slot >= 0 : root->slot < 0 && root->group == group;
        if (!here || root->memory.place < 0 || tn_value_numel(v) == 0) continue;
        TRY(add_check(p, g->checked.list[i].node, v, root, pointer));
        p->checks.list[p->checks.count - 1].node = place_in_binding(g->binding, g->checked.list[i].node);
    }
    return TN_OK;
}

/* ---- when it runs ------------------------------------------------------------------------------------------------ */

static tn_status check(tn_plan *p, tn_plan_check *k) {
    k->list.first = (const char *)*k->pointer + k->first;
    if (k->fetched) {
        TRY(tn_device_fetch(p->device, tn_stream_handle(p->device), k->fetched, *k->pointer, k->bytes));
        k->list.first = k->fetched + k->first;
    }
    if (tn_indices_inside(&k->list, &k->range)) return TN_OK;
    p->runs.failed = k;
    return tn_indices_refuse(k->op, &k->list, &k->range);
}

/* Borrowed memory may change without a new version. */
static bool seen_before(const tn_plan *p, const tn_plan_check *k, const tn_buffer *b) {
    return k->checked == b && k->version == b->version && p->shift_count == 0 && !tn_buffer_is_borrowed(b);
}

/* On another device nothing is fetched to be checked, unless it is known to be outside or all is to be checked. */
static bool is_left_out(const tn_plan_check *k, tn_buffer *const *bound) {
    if (!k->fetched || tn_indices_checked_everywhere()) return false;
    return !bound || !tn_buffer_is_known(bound[k->slot]) || tn_known_inside(bound[k->slot], &k->range);
}

tn_status tn_check_leaves(tn_plan *p, tn_buffer *const *bound) {
    for (size_t i = 0; i < p->checks.leaf_count; i++) {
        tn_plan_check *k = &p->checks.list[i];
        if (is_left_out(k, bound)) continue;
        if (bound && seen_before(p, k, bound[k->slot])) continue;
        TRY(check(p, k));
        k->checked = bound ? bound[k->slot] : NULL;
        k->version = bound ? bound[k->slot]->version : 0;
    }
    return TN_OK;
}

tn_status tn_check_before(tn_plan *p, size_t command, size_t *next) {
    for (; *next < p->checks.count && p->checks.list[*next].before <= command; ++*next)
        TRY(check(p, &p->checks.list[*next]));
    return TN_OK;
}

const tn_node *tn_failed_indices(const tn_plan *p, const tn_binding *b) {
    return p->runs.failed && p->runs.failed->node >= 0 ? b->key.checked[p->runs.failed->node] : NULL;
}

tn_status tn_check_name_line(const tn_plan *p, const tn_node *indices, tn_status s) {
    const tn_plan_check *k = p->runs.failed;
    if (s == TN_OK || !k) return s;
    const char *file = indices ? indices->check->file : k->file;
    int line = indices ? (int)indices->check->line : (int)k->line;
    return file ? tn_fail_prefix(s, "%s:%d", file, line) : s;
}
