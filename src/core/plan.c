/* plan.c — groups → commands: the order, the memory, the commit section; and running them.
 *
 * All memory is known before the first launch: results in buffers of their own, states in their homes, the rest in one
 * arena laid out by when each value is last read. New values of states are written last: what runs before can be run
 * again, here or elsewhere. A result that replaces its own operand element by element is written over it. */
#include "core/core.h"

#include <stdio.h>
#include <string.h>

enum { ALIGN = 64 };

static int64_t align_up(int64_t n) { return (n + ALIGN - 1) / ALIGN * ALIGN; }

/* ---- order ------------------------------------------------------------------------------------------------------- */

static int last_member(const tn_group *group) { return group->members[group->member_count - 1]; }

static void sort_by_last_member(const tn_graph_plan *g, int *groups, int count) {
    /* Groups were made from the last value to the first, so this is nearly sorted in
     * reverse: insertion from the back. */
    for (int i = 1; i < count; i++)
        for (int j = i; j > 0 && last_member(&g->groups[groups[j - 1]]) > last_member(&g->groups[groups[j]]); j--) {
            int swap = groups[j];
            groups[j] = groups[j - 1];
            groups[j - 1] = swap;
        }
}

typedef struct order_walk {
    int *stack, *next; /* next[k]: dependencies of stack[k] already looked at */
    int top, done;
} order_walk;

static void order_visit(tn_graph_plan *g, order_walk *w, int root) {
    if (g->groups[root].seen == g->stamp) return;
    g->groups[root].seen = g->stamp;
    w->stack[w->top] = root;
    w->next[w->top++] = 0;
    while (w->top > 0) {
        tn_group *at = &g->groups[w->stack[w->top - 1]];
        if (w->next[w->top - 1] == (int)at->dep_count) {
            g->order[w->done++] = w->stack[--w->top];
            continue;
        }
        int d = at->deps[w->next[w->top - 1]++];
        if (g->groups[d].seen == g->stamp) continue;
        g->groups[d].seen = g->stamp;
        w->stack[w->top] = d;
        w->next[w->top++] = 0;
    }
}

static tn_status topological_order(tn_graph_plan *g) {
    int count = (int)g->group_count;
    int *room = tn_mem_alloc((size_t)(3 * count + 1) * sizeof *room);
    if (!room) return TN_ERR_MEMORY;
    int *by_member = room;
    order_walk w = {.stack = room + count, .next = room + 2 * count};
    for (int i = 0; i < count; i++)
        by_member[i] = count - 1 - i;
    sort_by_last_member(g, by_member, count);
    g->stamp++;
    for (int i = 0; i < count; i++)
        order_visit(g, &w, by_member[i]);
    tn_mem_free(room);
    return TN_OK;
}

static uint64_t structure_of(const tn_group *group) {
    return group->kind == TN_GROUP_MATMUL || !group->program ? 0 : group->program->hash;
}

/* Commit groups that wait for others, and these, are stamped. */
static void stamp_chained(tn_graph_plan *g, const int *groups, int count) {
    g->stamp++;
    for (int i = 0; i < count; i++) {
        tn_group *group = &g->groups[groups[i]];
        for (size_t k = 0; k < group->dep_count; k++) {
            if (!g->groups[group->deps[k]].commit) continue;
            group->seen = g->stamp;
            g->groups[group->deps[k]].seen = g->stamp;
        }
    }
}

/* Equal kernels side by side, so that they can be one launch. What must keep its order comes last. */
static void gather_equal(tn_graph_plan *g, int *groups, int count) {
    stamp_chained(g, groups, count);
    for (int i = 1; i < count; i++)
        for (int j = i; j > 0; j--) {
            const tn_group *before = &g->groups[groups[j - 1]], *after = &g->groups[groups[j]];
            bool chained = before->seen == g->stamp, free = after->seen != g->stamp;
            if (!free || (!chained && structure_of(before) <= structure_of(after))) break;
            int swap = groups[j];
            groups[j] = groups[j - 1];
            groups[j - 1] = swap;
        }
}

/* Marks the groups that make states' new values, and whose results only such groups read: they run last. */
static void mark_commits(tn_graph_plan *g) {
    int count = (int)g->group_count;
    for (int i = 0; i < count; i++)
        g->groups[i].commit = true;
    for (int i = count; i-- > 0;) {
        tn_group *group = &g->groups[g->order[i]];
        if (!tn_group_writes_state(g, group)) group->commit = false;
        for (size_t k = 0; k < group->dep_count && !group->commit; k++)
            g->groups[group->deps[k]].commit = false;
    }
}

static bool reads_slot(const tn_graph_plan *g, const tn_group *group, int slot) {
    for (int k = 0; k < group->read_count; k++)
        if (g->values[group->reads[k]].slot == slot) return true;
    return false;
}

/* The state that `group` appends to in place, -1 if it does something else. What was appended lies behind what a state
 * holds, so it may be there although the rest of the plan failed; and what it was made
 * from need not be kept to the end. */
static int appends_to(const tn_graph_plan *g, const tn_group *group) {
    const tn_value *v = &g->values[group->lead];
    if (!group->commit || group->kind != TN_GROUP_NATIVE || v->output < 0) return -1;
    int home = g->binding->outputs[v->output].home;
    const tn_value *old = &g->values[g->values[v->in[0]].root];
    return home >= 0 && old->slot == home && tn_native_appends(g, group, home) ? home : -1;
}

/* The group behind which one that appends can run: the last that it needs, or that reads the state as it was. -1 when a
 * group that commits is among these. Positions are those before commits were moved. */
static int last_before_append(const tn_graph_plan *g, const tn_group *group, int home) {
    int last = 0;
    for (size_t k = 0; k < group->dep_count; k++) {
        const tn_group *needed = &g->groups[group->deps[k]];
        if (needed->commit) return -1;
        last = needed->position > last ? needed->position : last;
    }
    for (size_t i = 0; i < g->group_count; i++) {
        const tn_group *other = &g->groups[i];
        if (other == group || !reads_slot(g, other, home)) continue;
        if (other->commit) return -1;
        last = other->position > last ? other->position : last;
    }
    return last;
}

/* Appends stand behind the last group that they wait for, in `early` by that group's position. */
static void place_appends(tn_graph_plan *g, int *early) {
    for (int i = 0; i < (int)g->group_count; i++)
        early[i] = -1;
    for (int i = 0; i < (int)g->group_count; i++) {
        tn_group *group = &g->groups[g->order[i]];
        int home = appends_to(g, group);
        int behind = home >= 0 ? last_before_append(g, group, home) : -1;
        if (behind < 0) continue;
        group->next_append = early[behind];
        group->appends = true;
        early[behind] = g->order[i];
    }
}

static void number_groups(tn_graph_plan *g) {
    for (int i = 0; i < (int)g->group_count; i++)
        g->groups[g->order[i]].position = i;
}

/* The order again: what computes, each append as soon as it can, at the end what commits.
 * room: three times the groups. */
static void order_commits(tn_graph_plan *g, int *room) {
    int count = (int)g->group_count, kept = 0, late = 0;
    int *early = room, *first = room + count, *last = room + 2 * count;
    place_appends(g, early);
    for (int i = 0; i < count; i++) {
        int at = g->order[i];
        if (g->groups[at].appends) continue;
        if (g->groups[at].commit)
            last[late++] = at;
        else
            first[kept++] = at;
        for (int k = early[i]; k >= 0; k = g->groups[k].next_append)
            first[kept++] = k;
    }
    for (int i = 0; i < count; i++)
        g->groups[i].commit &= !g->groups[i].appends;
    gather_equal(g, last, late);
    memcpy(g->order, first, (size_t)kept * sizeof *first);
    memcpy(g->order + kept, last, (size_t)late * sizeof *last);
}

static tn_status commit_last(tn_graph_plan *g) {
    int *room = tn_mem_alloc((3 * g->group_count + 1) * sizeof *room);
    if (!room) return TN_ERR_MEMORY;
    mark_commits(g);
    number_groups(g);
    order_commits(g, room);
    number_groups(g);
    tn_mem_free(room);
    return TN_OK;
}

/* ---- what groups read -------------------------------------------------------------------------------------------- */

static tn_status find_reads(tn_graph_plan *g, tn_group *group) {
    int operands[TN_NATIVE_POINTERS];
    int count =
        group->kind == TN_GROUP_MATMUL || group->kind == TN_GROUP_NATIVE ? tn_native_operands(g, group, operands) : 0;
    group->reads = tn_mem_alloc((size_t)(group->buffer_count + count + 1) * sizeof *group->reads);
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

/* May `group` write over this memory while it reads it? Only element by element, at the same
 * place, or if it is made for it. */
static bool same_place_only(const tn_graph_plan *g, const tn_group *group, int slot, size_t element) {
    if (group->kind == TN_GROUP_NATIVE) return tn_native_updates(g, group, slot);
    if (group->kind != TN_GROUP_MAP && group->kind != TN_GROUP_MATMUL) return false;
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
    if (reads_slot(g, maker, home) && !same_place_only(g, maker, home, element)) return false;
    for (size_t i = (size_t)maker->position + 1; i < g->group_count; i++)
        if (reads_slot(g, &g->groups[g->order[i]], home)) return false;
    return true;
}

/* ---- the arena --------------------------------------------------------------------------------------------------- */

typedef struct arena_block {
    int64_t offset, bytes;
    int last; /* position of the last group that needs it */
    int value;
} arena_block;

typedef struct arena {
    arena_block *blocks; /* by offset */
    size_t count, capacity;
    int64_t high;
} arena;

static tn_status arena_take(arena *a, int64_t bytes, int last, int value, int64_t *offset) {
    bytes = align_up(tn_max64(bytes, 1));
    TRY(tn_mem_grow(&a->blocks, &a->capacity, a->count + 1, sizeof *a->blocks));
    size_t best = a->count;
    int64_t best_gap = INT64_MAX, end = 0,
            best_offset = a->count ? a->blocks[a->count - 1].offset + a->blocks[a->count - 1].bytes : 0;
    for (size_t i = 0; i < a->count; i++) {
        int64_t gap = a->blocks[i].offset - end;
        if (gap >= bytes && gap < best_gap) {
            best = i;
            best_gap = gap;
            best_offset = end;
        }
        end = a->blocks[i].offset + a->blocks[i].bytes;
    }
    memmove(a->blocks + best + 1, a->blocks + best, (a->count - best) * sizeof *a->blocks);
    a->blocks[best] = (arena_block){.offset = best_offset, .bytes = bytes, .last = last, .value = value};
    a->count++;
    a->high = tn_max64(a->high, best_offset + bytes);
    *offset = best_offset;
    return TN_OK;
}

static void arena_release_before(arena *a, int position) {
    size_t kept = 0;
    for (size_t i = 0; i < a->count; i++)
        if (a->blocks[i].last >= position) a->blocks[kept++] = a->blocks[i];
    a->count = kept;
}

static bool is_factor(const tn_graph_plan *g, const tn_group *group, int value) {
    const tn_value *lead = &g->values[group->lead];
    for (int k = 0; k < lead->n_in && group->kind == TN_GROUP_MATMUL; k++)
        if (g->values[lead->in[k]].root == value) return true;
    return false;
}

/* The block of an operand that dies here and whose elements are read only where v's are written. */
static arena_block *block_to_reuse(const tn_graph_plan *g, arena *a, const tn_group *group, const tn_value *v) {
    if (group->kind != TN_GROUP_MAP && group->kind != TN_GROUP_MATMUL) return NULL;
    for (int b = 0; b < group->buffer_count; b++) {
        int x = group->buffer_values[b];
        if (x == TN_BLOCK || is_factor(g, group, x)) continue; /* a product reads its factors all over */
        if (g->values[x].group == v->group || g->values[x].bytes != v->bytes || !group->buffer_same_place[b]) continue;
        if (tn_dtype_size((tn_dtype)g->values[x].node->dtype) != tn_dtype_size((tn_dtype)v->node->dtype)) continue;
        for (size_t i = 0; i < a->count; i++)
            if (a->blocks[i].value == x && a->blocks[i].last == group->position) return &a->blocks[i];
    }
    return NULL;
}

static int last_reader(const tn_graph_plan *g, const tn_value *v) {
    int last = g->groups[v->group].position;
    for (int k = 0; k < v->pull_count; k++)
        if (g->groups[v->pulls[k]].position > last) last = g->groups[v->pulls[k]].position;
    return last;
}

static tn_status place_in_arena(tn_graph_plan *g, arena *a, const tn_group *group, tn_value *v, int value, int last) {
    v->place = (int)(g->binding->buffer_count + g->binding->output_count);
    arena_block *reused = block_to_reuse(g, a, group, v);
    if (!reused) return arena_take(a, v->bytes, last, value, &v->byte_offset);
    v->byte_offset = reused->offset;
    reused->value = value;
    reused->last = last;
    return TN_OK;
}

/* copies: states whose new value had to be made beside their home. */
static tn_status place_value(tn_graph_plan *g, arena *a, const tn_group *group, int value, size_t *copies) {
    tn_value *v = &g->values[value];
    v->bytes = (int64_t)tn_node_bytes(v->node);
    if (!v->stored) return TN_OK;
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
    return place_in_arena(g, a, group, v, value, home >= 0 ? (int)g->group_count : last_reader(g, v));
}

/* "train.c:12: matmul [64, 128] f32", for messages. */
void tn_node_describe(const tn_node *n, char *text, size_t size) {
    char shape[96], line[64] = "";
    if (n->file) snprintf(line, sizeof line, "%s:%d: ", n->file, n->line);
    snprintf(text, size, "%s%s %s %s", line, n->op == TN_OP_NONE ? "data" : tn_op(n->op)->name,
             tn_shape_text(n, shape, sizeof shape), tn_dtype_name((tn_dtype)n->dtype));
}

static void describe_largest(const tn_graph_plan *g, tn_plan *p) {
    const tn_value *largest = NULL;
    for (size_t i = 0; i < g->value_count; i++) {
        const tn_value *v = &g->values[i];
        if (v->place == p->bound_count + p->output_count && (!largest || v->bytes > largest->bytes)) largest = v;
    }
    if (largest) tn_node_describe(largest->node, p->largest, sizeof p->largest);
}

static tn_status lay_out(tn_graph_plan *g, size_t *arena_bytes, size_t *copies) {
    arena a = {0};
    tn_status s = TN_OK;
    for (size_t i = 0; i < g->value_count; i++)
        if (g->values[i].slot >= 0) {
            g->values[i].place = g->values[i].slot;
            g->values[i].bytes = (int64_t)tn_node_bytes(g->values[i].node);
        }
    for (size_t i = 0; i < g->group_count && s == TN_OK; i++) {
        tn_group *group = &g->groups[g->order[i]];
        arena_release_before(&a, (int)i);
        for (size_t k = 0; k < group->member_count && s == TN_OK; k++)
            s = place_value(g, &a, group, group->members[k], copies);
        if (s == TN_OK && group->workspace > 0)
            s = arena_take(&a, (int64_t)group->workspace, (int)i, -1, &group->workspace_offset);
    }
    *arena_bytes = (size_t)a.high;
    tn_mem_free(a.blocks);
    return s;
}

/* ---- commands ---------------------------------------------------------------------------------------------------- */

void *tn_plan_own(tn_plan *p, size_t bytes) {
    if (tn_mem_grow(&p->owned, &p->owned_capacity, p->owned_count + 1, sizeof *p->owned) != TN_OK) return NULL;
    void *block = tn_mem_zalloc(1, bytes ? bytes : 1);
    if (block) p->owned[p->owned_count++] = block;
    return block;
}

static void patch(tn_plan *p, void **at, int slot, int64_t offset) {
    p->patches[p->patch_count++] = (tn_patch){.pointer = (int32_t)(at - p->pointers), .slot = slot, .offset = offset};
}

static void patch_value(tn_plan *p, void **at, const tn_graph_plan *g, int value) {
    if (value == TN_BLOCK) return; /* the kernel supplies it */
    const tn_value *v = &g->values[value];
    if (v->place >= 0) patch(p, at, v->place, v->byte_offset);
}

static void add_label(const tn_graph_plan *g, const tn_group *group, char *label, size_t size) {
    size_t n = 0;
    label[0] = 0;
    for (size_t i = 0; i < group->member_count && n + 1 < size; i++) {
        int w = snprintf(label + n, size - n, "%s%s", i ? "+" : "", g->values[group->members[i]].row->name);
        n += w > 0 ? (size_t)w : 0;
    }
    if (n + 1 >= size) return;
    char shape[80];
    snprintf(label + n, size - n, " %s", tn_shape_text(g->values[group->lead].node, shape, sizeof shape));
}

static bool ranges_meet(const tn_value *a, const tn_value *b) {
    return a->place >= 0 && a->place == b->place && a->byte_offset < b->byte_offset + b->bytes &&
           b->byte_offset < a->byte_offset + a->bytes;
}

static bool touches(const tn_graph_plan *g, const tn_group *writer, const tn_group *other) {
    for (size_t i = 0; i < writer->member_count; i++) {
        const tn_value *w = &g->values[writer->members[i]];
        if (!w->stored) continue;
        for (int k = 0; k < other->read_count; k++)
            if (ranges_meet(w, &g->values[other->reads[k]])) return true;
        for (size_t k = 0; k < other->member_count; k++)
            if (g->values[other->members[k]].stored && ranges_meet(w, &g->values[other->members[k]])) return true;
    }
    return false;
}

/* Equal kernels that do not touch each other's memory are one launch: an optimiser's step over all its tensors. */
static bool joins_batch(const tn_graph_plan *g, const tn_command *last, const tn_kernel *kernel, int first,
                        int position) {
    if (!last || last->kind != TN_CMD_KERNEL || last->kernel != kernel) return false;
    const tn_group *group = &g->groups[g->order[position]];
    for (int i = first; i < position; i++) {
        const tn_group *before = &g->groups[g->order[i]];
        if (touches(g, group, before) || touches(g, before, group)) return false;
    }
    return true;
}

typedef struct command_maker {
    tn_plan *p;
    tn_graph_plan *g;
    tn_launch *launches;
    size_t launch_count;
    int batch_first; /* position of the last command's first launch; groups without elements may lie between */
    void **next_pointer;
    kir_dial *next_dial;
} command_maker;

static kir_dial *take_dials(command_maker *m, const tn_group *group) {
    kir_dial *first = m->next_dial;
    for (int d = 0; d < group->dial_count; d++) {
        m->p->dial_source[m->next_dial - m->p->dials] = group->dials[d];
        m->next_dial++;
    }
    return first;
}

static void **take_program_pointers(command_maker *m, const tn_group *group) {
    void **first = m->next_pointer;
    for (int b = 0; b < group->buffer_count; b++)
        patch_value(m->p, m->next_pointer++, m->g, group->buffer_values[b]);
    return first;
}

static tn_status add_kernel(command_maker *m, int position) {
    tn_group *group = &m->g->groups[m->g->order[position]];
    tn_kernel *kernel = NULL;
    TRY(tn_kernel_get(m->p->device, group->program, &kernel));
    size_t bytes = kir_sizes_count(group->program) * sizeof(int64_t);
    int64_t *sizes = tn_plan_own(m->p, bytes);
    if (!sizes) {
        tn_kernel_release(kernel);
        return TN_ERR_MEMORY;
    }
    memcpy(sizes, group->sizes, bytes);
    tn_launch *launch = &m->launches[m->launch_count++];
    *launch = (tn_launch){.sizes = sizes, .buffers = take_program_pointers(m, group), .dials = take_dials(m, group)};
    tn_command *last = m->p->command_count ? &m->p->commands[m->p->command_count - 1] : NULL;
    if (joins_batch(m->g, last, kernel, m->batch_first, position)) {
        tn_cost more = tn_group_cost(m->g, group);
        last->launch_count++;
        last->cost.bytes += more.bytes;
        last->cost.flops += more.flops;
        tn_kernel_release(kernel); /* the command has it already */
        return TN_OK;
    }
    m->batch_first = position;
    tn_command *c = &m->p->commands[m->p->command_count++];
    *c = (tn_command){
        .kind = TN_CMD_KERNEL, .kernel = kernel, .launches = launch, .launch_count = 1, .commit = group->commit};
    c->cost = tn_group_cost(m->g, group);
    add_label(m->g, group, c->label, sizeof c->label);
    return TN_OK;
}

static void add_native(command_maker *m, tn_group *group) {
    int operands[TN_NATIVE_POINTERS];
    int count = tn_native_operands(m->g, group, operands);
    tn_command *c = &m->p->commands[m->p->command_count++];
    *c = (tn_command){
        .kind = TN_CMD_NATIVE, .native = group->native, .pointers = m->next_pointer, .commit = group->commit};
    c->cost = tn_group_cost(m->g, group);
    for (int k = 0; k < count; k++, m->next_pointer++) {
        if (operands[k] >= 0) patch_value(m->p, m->next_pointer, m->g, m->g->values[operands[k]].root);
        if (operands[k] == TN_WORKSPACE)
            patch(m->p, m->next_pointer, m->p->bound_count + m->p->output_count, group->workspace_offset);
    }
    take_program_pointers(m, group);
    c->dials = take_dials(m, group);
    add_label(m->g, group, c->label, sizeof c->label);
    m->p->natives[m->p->native_count++] = group->native;
    group->native = NULL;
}

static void add_copies(command_maker *m) {
    for (size_t i = 0; i < m->g->value_count; i++) {
        const tn_value *v = &m->g->values[i];
        int home = v->output >= 0 ? m->g->binding->outputs[v->output].home : -1;
        if (home < 0 || v->place == home) continue;
        tn_command *c = &m->p->commands[m->p->command_count++];
        *c = (tn_command){.kind = TN_CMD_COPY, .pointers = m->next_pointer, .bytes = (size_t)v->bytes, .commit = true};
        c->cost.bytes = 2 * v->bytes;
        snprintf(c->label, sizeof c->label, "copy to state");
        patch(m->p, m->next_pointer++, home, 0);
        patch_value(m->p, m->next_pointer++, m->g, (int)i);
    }
}

static bool computes_nothing(const tn_graph_plan *g, const tn_group *group) {
    for (size_t i = 0; i < group->member_count; i++)
        if (tn_value_numel(&g->values[group->members[i]]) > 0) return false;
    return true;
}

static tn_status make_room(command_maker *m, size_t copies) {
    tn_plan *p = m->p;
    size_t groups = m->g->group_count, pointers = 2 * copies, dials = 0;
    for (size_t i = 0; i < groups; i++) {
        pointers += (size_t)m->g->groups[i].buffer_count + TN_NATIVE_POINTERS;
        dials += (size_t)m->g->groups[i].dial_count;
    }
    p->pointer_count = pointers;
    p->dial_count = dials;
    p->commands = tn_plan_own(p, (groups + copies) * sizeof *p->commands);
    p->pointers = tn_plan_own(p, pointers * sizeof *p->pointers);
    p->patches = tn_plan_own(p, pointers * sizeof *p->patches);
    p->dials = tn_plan_own(p, dials * sizeof *p->dials);
    p->dial_source = tn_plan_own(p, dials * sizeof *p->dial_source);
    p->natives = tn_plan_own(p, groups * sizeof *p->natives);
    p->addresses = tn_plan_own(p, (size_t)(p->bound_count + p->output_count + 1) * sizeof *p->addresses);
    m->launches = tn_plan_own(p, groups * sizeof *m->launches);
    if (!p->commands || !p->pointers || !p->patches || !p->dials || !p->dial_source || !p->natives || !p->addresses ||
        !m->launches)
        return TN_ERR_MEMORY;
    m->next_pointer = p->pointers;
    m->next_dial = p->dials;
    return TN_OK;
}

static tn_status make_commands(tn_graph_plan *g, tn_plan *p, size_t copies) {
    command_maker m = {.p = p, .g = g};
    TRY(make_room(&m, copies));
    for (size_t i = 0; i < g->group_count; i++) {
        tn_group *group = &g->groups[g->order[i]];
        if (computes_nothing(g, group)) continue;
        if (group->native)
            add_native(&m, group);
        else
            TRY(add_kernel(&m, (int)i));
    }
    add_copies(&m);
    return TN_OK;
}

/* ---- making ------------------------------------------------------------------------------------------------------ */

/* Fuses and lowers until no join is refused. Each round leaves one more value alone, so it ends. */
static tn_status fuse_and_lower(tn_graph_plan *g) {
    for (;;) {
        g->forbid = -1;
        TRY(tn_fuse(g));
        for (size_t i = 0; i < g->group_count && g->forbid < 0; i++)
            TRY(tn_lower_group(g, (int)i));
        if (g->forbid < 0) return TN_OK;
        tn_value *v = &g->values[g->forbid];
        if (v->alone)
            return tn_fail(TN_ERR_INTERNAL, "%s cannot be lowered even on its own", v->row ? v->row->name : "data");
        v->alone = true;
    }
}

static tn_status prepare_groups(tn_graph_plan *g) {
    for (size_t i = 0; i < g->group_count; i++) {
        tn_group *group = &g->groups[i];
        TRY(find_reads(g, group));
        if (group->kind != TN_GROUP_MATMUL && group->kind != TN_GROUP_NATIVE) continue;
        TRY(tn_native_make(g, group, &group->native, &group->workspace));
    }
    return TN_OK;
}

static tn_status copy_key(tn_plan *p, const tn_binding *b) {
    p->key = tn_plan_own(p, b->key_count * sizeof *p->key);
    p->sizes = tn_plan_own(p, b->size_count * sizeof *p->sizes);
    p->output_bytes = tn_plan_own(p, b->output_count * sizeof *p->output_bytes);
    p->output_home = tn_plan_own(p, b->output_count * sizeof *p->output_home);
    if (!p->key || !p->sizes || !p->output_bytes || !p->output_home) return TN_ERR_MEMORY;
    if (b->key_count) memcpy(p->key, b->key, b->key_count * sizeof *p->key);
    if (b->size_count) memcpy(p->sizes, b->sizes, b->size_count * sizeof *p->sizes);
    p->key_count = b->key_count;
    p->size_count = b->size_count;
    p->bound_count = (int)b->buffer_count;
    p->output_count = (int)b->output_count;
    for (size_t i = 0; i < b->output_count; i++) {
        p->output_bytes[i] = (int64_t)tn_node_bytes(b->outputs[i].node);
        p->output_home[i] = b->outputs[i].home;
    }
    return TN_OK;
}

static tn_status plan_steps(tn_graph_plan *g, tn_plan *p) {
    size_t copies = 0;
    TRY(copy_key(p, g->binding));
    TRY(tn_values_make(g));
    TRY(fuse_and_lower(g));
    TRY(topological_order(g));
    TRY(prepare_groups(g));
    TRY(commit_last(g));
    TRY(lay_out(g, &p->arena_bytes, &copies));
    describe_largest(g, p);
    p->values_planned = (int64_t)g->value_count;
    return make_commands(g, p, copies);
}

/* Nodes that the planner made leave the recorder with it. */
static void forget_planners_nodes(tn_recorder *r, size_t keep) {
    while (r->count > keep) {
        tn_node *n = r->pending[--r->count];
        if (!n) continue;
        n->recorder = NULL;
        n->index = -1;
        tn_node_release(n);
    }
}

tn_status tn_plan_make(const tn_binding *b, tn_plan **out) {
    tn_recorder *r = b->recorder;
    tn_graph_plan g = {.binding = b, .recorder = r, .pending_before = r->count, .forbid = -1};
    tn_plan *p = tn_mem_zalloc(1, sizeof *p);
    if (!p) return TN_ERR_MEMORY;
    p->device = b->device;
    bool no_grad = r->no_grad;
    int64_t recorded = r->nodes_recorded;
    r->planning = r->no_grad = true;
    p->threads = tn_threads();
    int limit = tn_threads_limit(p->threads);
    tn_status s = plan_steps(&g, p);
    tn_threads_limit(limit);
    tn_graph_plan_free(&g);
    forget_planners_nodes(r, g.pending_before);
    r->planning = false;
    r->no_grad = no_grad;
    r->nodes_recorded = recorded;
    if (s != TN_OK) {
        tn_plan_free(p);
        return s;
    }
    *out = p;
    return TN_OK;
}

void tn_plan_free(tn_plan *p) {
    if (!p) return;
    for (size_t i = 0; i < p->native_count; i++)
        tn_native_free(p->natives[i]);
    for (size_t i = 0; i < p->command_count; i++)
        tn_kernel_release(p->commands[i].kernel);
    for (size_t i = 0; i < p->owned_count; i++)
        tn_mem_free(p->owned[i]);
    tn_mem_free(p->owned);
    tn_mem_free(p);
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

static void bind(tn_plan *p, tn_buffer *const *bound, tn_buffer *const *outputs, const tn_buffer *memory,
                 const kir_dial *dials) {
    for (int i = 0; i < p->bound_count; i++)
        p->addresses[i] = bound[i]->address;
    for (int i = 0; i < p->output_count; i++)
        p->addresses[p->bound_count + i] = outputs[i]->address;
    p->addresses[p->bound_count + p->output_count] = memory ? memory->address : NULL;
    for (size_t i = 0; i < p->patch_count; i++) {
        const tn_patch *at = &p->patches[i];
        p->pointers[at->pointer] = (char *)p->addresses[at->slot] + at->offset;
    }
    for (size_t i = 0; i < p->dial_count; i++)
        p->dials[i] = dials[p->dial_source[i]];
}

static tn_status run_command(tn_plan *p, const tn_command *c, tn_buffer *const *bound) {
    switch (c->kind) {
    case TN_CMD_KERNEL: return tn_kernel_launch(p->device, c->kernel, c->launches, c->launch_count);
    case TN_CMD_NATIVE: return tn_native_run(c->native, c->pointers, c->dials, bound);
    case TN_CMD_COPY:
        return c->bytes ? p->device->driver->copy(p->device->handle, c->pointers[0], c->pointers[1], c->bytes, 2)
                        : TN_OK;
    }
    return TN_ERR_INTERNAL;
}

/* The same with its time taken; a device that works beside the host is waited for. */
static tn_status run_timed(tn_profile *profile, tn_plan *p, const tn_command *c, tn_buffer *const *bound) {
    double begun = tn_now();
    TRY(run_command(p, c, bound));
    if (!p->device->is_cpu) TRY(p->device->driver->sync(p->device->handle));
    tn_profile_add(profile, c, tn_now() - begun);
    return TN_OK;
}

/* From the first write to a state on nothing may fail that could have failed before. */
static tn_status prepare_commits(const tn_plan *p, size_t first) {
    for (size_t i = first; i < p->command_count; i++) {
        const tn_command *c = &p->commands[i];
        if (c->kind == TN_CMD_KERNEL) TRY(tn_kernel_prepare(p->device, c->kernel, c->launches, c->launch_count));
    }
    return TN_OK;
}

static tn_status run_commands(tn_plan *p, tn_buffer *const *bound) {
    tn_profile *profile = tn_profile_here();
    bool committing = false;
    for (size_t i = 0; i < p->command_count; i++) {
        if (p->commands[i].commit && !committing) TRY(prepare_commits(p, i));
        committing |= p->commands[i].commit;
        TRY(profile ? run_timed(profile, p, &p->commands[i], bound) : run_command(p, &p->commands[i], bound));
    }
    return TN_OK;
}

/* A clock costs as much as a small kernel: of plans that take little time every sixteenth run is timed, for those
 * before it too, once the first have shown that they do. */
static bool is_timed(const tn_plan *p) {
    enum { FIRST_RUNS = 4, TIMED_OF = 16 };
    const double little = 10e-6;
    return p->runs < FIRST_RUNS || p->last_seconds > little || p->runs % TIMED_OF == 0;
}

tn_status tn_plan_run(tn_plan *p, tn_buffer *const *bound, tn_buffer *const *outputs, tn_buffer *memory,
                      const kir_dial *dials, double *seconds) {
    for (size_t i = 0; i < p->native_count; i++)
        TRY(tn_native_prepare(p->natives[i], bound));
    bind(p, bound, outputs, memory, dials);
    bool timed = is_timed(p);
    double begun = timed ? tn_now() : 0;
    int limit = tn_threads_limit(p->threads);
    tn_status status = run_commands(p, bound);
    tn_threads_limit(limit);
    TRY(status);
    p->runs++;
    p->untimed_runs++;
    if (!timed) return TN_OK;
    p->last_seconds = tn_now() - begun;
    *seconds += p->last_seconds * (double)p->untimed_runs;
    p->untimed_runs = 0;
    return TN_OK;
}
