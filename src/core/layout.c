/* layout.c — where the values of a plan lie: what groups read, states' homes, the arena.
 *
 * All memory is known before the first launch. A result that replaces its own operand element by element is written
 * over it; a state's new value is written into its home if nobody needs the old one any more. */
#include <string.h>

#include "core/arena.h"
#include "core/core.h"

/* ---- what groups read -------------------------------------------------------------------------------------------- */

tn_status tn_group_find_reads(tn_graph_plan *g, tn_group *group) {
    int operands[TN_NATIVE_POINTERS];
    int count = tn_group_is_native(group) ? tn_native_operands(g, group, operands) : 0;
    group->reads = tn_scratch_take(&g->scratch, (size_t)(group->buffer_count + count) * sizeof *group->reads);
    if (!group->reads) return TN_ERR_MEMORY;
    int own = (int)(group - g->groups);
    for (int b = 0; b < group->buffer_count; b++) {
        int v = group->buffer_values[b];
        if (v != TN_BLOCK && g->values[v].group != own) group->reads[group->read_count++] = v;
    }
    for (int k = 0; k < count; k++)
        if (operands[k] >= 0 && g->values[operands[k]].group != own)
            group->reads[group->read_count++] = g->values[operands[k]].root;
    return TN_OK;
}

bool tn_group_reads_slot(const tn_graph_plan *g, const tn_group *group, int slot) {
    for (int k = 0; k < group->read_count; k++)
        if (g->values[group->reads[k]].slot == slot) return true;
    return false;
}

/* May `group` write over this memory while it reads it? Only element by element, at the same
 * place, or if it is made for it. */
static bool same_place_only(const tn_graph_plan *g, const tn_group *group, int slot, size_t element) {
    if (group->host) return true; /* what it reads has been copied before */
    if (group->kind == TN_GROUP_NATIVE && !group->workgroup) return tn_native_updates(g, group, slot);
    if (group->kind == TN_GROUP_ROWS || group->kind == TN_GROUP_SCAN) return false;
    const tn_value *lead = &g->values[group->lead];
    for (int k = 0; k < lead->n_in && group->kind == TN_GROUP_MATMUL; k++)
        /* a product reads its operands all over */
        if (g->values[g->values[lead->in[k]].root].slot == slot) return false;
    for (int b = 0; b < group->buffer_count; b++) {
        if (group->buffer_values[b] == TN_BLOCK) continue;
        const tn_value *v = &g->values[group->buffer_values[b]];
        if (v->slot != slot) continue;
        if (!group->buffer_same_place[b] || tn_dtype_size((tn_dtype)v->node->dtype) != element) return false;
    }
    return true;
}

/* Can a state's new value be written into its home as it is made? */
static bool home_is_free(const tn_graph_plan *g, const tn_value *v, int home) {
    const tn_group *maker = &g->groups[v->group];
    if (!maker->commit && !maker->appends) return false;
    size_t element = tn_dtype_size((tn_dtype)v->node->dtype);
    if (tn_group_reads_slot(g, maker, home) && !same_place_only(g, maker, home, element)) return false;
    for (size_t i = (size_t)maker->position + 1; i < g->group_count; i++)
        if (tn_group_reads_slot(g, &g->groups[g->order[i]], home)) return false;
    return true;
}

/* ---- the arena --------------------------------------------------------------------------------------------------- */

static bool is_factor(const tn_graph_plan *g, const tn_group *group, int value) {
    const tn_value *lead = &g->values[group->lead];
    for (int k = 0; k < lead->n_in && group->kind == TN_GROUP_MATMUL; k++)
        if (g->values[lead->in[k]].root == value) return true;
    return false;
}

/* Does the group read a part of this value by its own name? Then not only where it reads the whole. */
static bool reads_part(const tn_graph_plan *g, const tn_group *group, int value) {
    for (int b = 0; b < group->buffer_count; b++)
        for (int x = group->buffer_values[b]; x >= 0 && g->values[x].concat_into >= 0;) {
            x = g->values[x].concat_into;
            if (x == value) return true;
        }
    return false;
}

/* An operand that dies here and whose elements are read only where v's are written; -1: none. */
static int value_to_replace(const tn_graph_plan *g, const tn_arena *a, const tn_group *group, const tn_value *v) {
    if (group->kind != TN_GROUP_MAP && group->kind != TN_GROUP_MATMUL) return -1;
    if (group->row_fused) return -1;              /* others of its launch may read all of it later */
    if (group != &g->groups[v->group]) return -1; /* it makes a part of it, elsewhere */
    for (int b = 0; b < group->buffer_count; b++) {
        int x = group->buffer_values[b];
        if (x == TN_BLOCK || is_factor(g, group, x)) continue; /* a product reads its factors all over */
        if (reads_part(g, group, x)) continue;
        if (g->values[x].group == v->group || g->values[x].bytes != v->bytes || !group->buffer_same_place[b]) continue;
        if (tn_dtype_size((tn_dtype)g->values[x].node->dtype) != tn_dtype_size((tn_dtype)v->node->dtype)) continue;
        const tn_arena_block *block = tn_arena_find(a, x);
        if (block && block->last == group->position) return x;
    }
    return -1;
}

static tn_status place_in_arena(tn_graph_plan *g, tn_arena *a, const tn_group *group, tn_value *v, int value,
                                int last) {
    v->place = (int)(g->binding->buffer_count + g->binding->output_count);
    int replaced = value_to_replace(g, a, group, v);
    if (replaced < 0) {
        TRY(tn_arena_take(a, v->bytes, last, value, &v->byte_offset));
        v->byte_offset += v->padded_before;
        return TN_OK;
    }
    v->byte_offset = tn_arena_find(a, replaced)->offset;
    tn_arena_pass_on(a, replaced, value, last);
    return TN_OK;
}

/* ---- the host's part of a plan ----------------------------------------------------------------------------------- */

/* Does the device's memory need this value of a group? Results do; between groups of the host a value stays there. */
static bool needed_there(const tn_graph_plan *g, const tn_group *maker, const tn_value *v) {
    if (!maker->host || maker->checked || v->output >= 0) return true;
    for (int k = 0; k < v->pull_count; k++)
        if (!g->groups[v->pulls[k]].host) return true;
    return false;
}

static bool reads_root(const tn_group *group, int root) {
    for (int k = 0; k < group->read_count; k++)
        if (group->reads[k] == root) return true;
    return false;
}

/* The last group of the host, from `first` on, that reads a value. */
static int last_host_reader(const tn_graph_plan *g, int root, int first) {
    for (int i = (int)g->group_count - 1; i > first; i--) {
        const tn_group *group = &g->groups[g->order[i]];
        if (group->host && reads_root(group, root)) return i;
    }
    return first;
}

/* A group of the host finds and leaves everything in host memory, each value at a place of its own from the first such
 * group that makes or reads it to the last. */
static tn_status place_on_host(tn_graph_plan *g, tn_arena *h, int value, int position) {
    tn_value *v = &g->values[value];
    if (v->host_from >= 0) return TN_OK;
    v->host_from = position;
    return tn_arena_take(h, v->bytes, last_host_reader(g, value, position), -1, &v->host_offset);
}

static tn_status lay_out_host(tn_graph_plan *g, tn_arena *h, tn_group *group, int position) {
    if (!group->host) return TN_OK;
    tn_arena_release_before(h, position);
    for (int k = 0; k < group->read_count; k++)
        TRY(place_on_host(g, h, group->reads[k], position));
    for (size_t k = 0; k < group->member_count; k++)
        if (g->values[group->members[k]].stored) TRY(place_on_host(g, h, group->members[k], position));
    return group->workspace ? tn_arena_take(h, (int64_t)group->workspace, position, -1, &group->workspace_offset)
                            : TN_OK;
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

static tn_status place_value(tn_graph_plan *g, tn_arena *a, const tn_group *group, int value, size_t *copies);

/* Where the joined tensor has it. What is made first of all that lies there takes the room. */
static tn_status place_part(tn_graph_plan *g, tn_arena *a, const tn_group *group, tn_value *v, size_t *copies) {
    tn_value *joined = &g->values[v->concat_into];
    TRY(place_value(g, a, group, v->concat_into, copies));
    v->place = joined->place;
    v->byte_offset = joined->byte_offset + v->concat_at;
    return TN_OK;
}

/* copies: states whose new value had to be made beside their home. */
static tn_status place_value(tn_graph_plan *g, tn_arena *a, const tn_group *group, int value, size_t *copies) {
    tn_value *v = &g->values[value];
    v->bytes = v->padded_bytes > 0 ? v->padded_bytes : (int64_t)tn_node_bytes(v->node);
    if (v->place >= 0 || !v->stored || !needed_there(g, group, v)) return TN_OK;
    if (v->concat_into >= 0) return place_part(g, a, group, v, copies);
    int home = v->output >= 0 ? g->binding->outputs[v->output].home : -1;
    if (v->output >= 0 && home < 0) {
        v->place = (int)g->binding->buffer_count + v->output;
        return TN_OK;
    }
    if (home >= 0 && home_is_free(g, v, home)) {
        v->place = home;
        return TN_OK;
    }
    if (home >= 0) (*copies)++;
    return place_in_arena(g, a, group, v, value, home >= 0 ? (int)g->group_count : tn_last_reader(g, value));
}

/* Data may be a view of what is bound: the bytes from its first element in memory to its last. */
void tn_leaf_byte_range(tn_value *v) {
    tn_dtype dtype = (tn_dtype)v->node->dtype;
    int64_t first = v->offset, last = v->offset, block = tn_dtype_block(dtype);
    v->byte_first = v->bytes = 0;
    if (tn_value_numel(v) == 0) return;
    for (int d = 0; d < v->node->rank; d++) {
        int64_t reach = (v->node->shape[d] - 1) * v->stride[d];
        first += tn_min64(reach, 0);
        last += tn_max64(reach, 0);
    }
    v->byte_first = (int64_t)tn_dtype_bytes(dtype, first / block * block);
    v->bytes = (int64_t)tn_dtype_bytes(dtype, (last / block + 1) * block) - v->byte_first;
}

static void place_leaves(tn_graph_plan *g) {
    for (size_t i = 0; i < g->value_count; i++) {
        tn_value *v = &g->values[i];
        v->host_from = -1;
        if (v->slot < 0) continue;
        v->place = v->slot;
        tn_leaf_byte_range(v);
    }
}

static tn_status lay_out_group(tn_graph_plan *g, tn_arena *a, tn_arena *h, int position, size_t *copies) {
    tn_group *group = &g->groups[g->order[position]];
    if (!group->sibling)
        tn_arena_release_before(a, position); /* else what those before it in the chain need is in use */
    for (size_t k = 0; k < group->member_count; k++)
        TRY(place_value(g, a, group, group->members[k], copies));
    if (group->workspace && !group->host)
        TRY(tn_arena_take(a, (int64_t)group->workspace, position, -1, &group->workspace_offset));
    return lay_out_host(g, h, group, position);
}

static bool computes_on_host(const tn_graph_plan *g) {
    for (size_t i = 0; i < g->group_count; i++)
        if (g->groups[i].host) return true;
    return false;
}

tn_status tn_lay_out(tn_graph_plan *g, size_t *arena_bytes, size_t *host_bytes, size_t *copies) {
    tn_arena a = {0}, h = {0};
    place_leaves(g);
    tn_concat_leave_host(g);
    tn_status s = tn_arena_begin(&a, (int)g->group_count, g->value_count);
    if (s == TN_OK && computes_on_host(g)) s = tn_arena_begin(&h, (int)g->group_count, g->value_count);
    for (size_t i = 0; i < g->group_count && s == TN_OK; i++)
        s = lay_out_group(g, &a, &h, (int)i, copies);
    *arena_bytes = (size_t)a.high;
    *host_bytes = (size_t)h.high;
    tn_arena_end(&a);
    tn_arena_end(&h);
    return s;
}
