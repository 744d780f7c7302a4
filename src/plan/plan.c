/* plan.c — makes the commands of a plan from its groups (order, commit section), and runs them.
 *
 * All memory is reserved before the first launch (layout.c): results have their own buffers, states their homes,
 * everything else is in one arena laid out by lifetimes. New values of states are written last, so everything before
 * can be run again, on this device or another.
 *
 * If the plan's device cannot compute a group, the host does (placement.c). The operands of such groups are copied to
 * the host part of the memory once per run; results that the device or the caller needs are copied back. */
#include "plan/plan.h"
#include "gen/ops_build.h"
#include "hal/hal.h"

#include <stdio.h>
#include <string.h>

/* ---- order ------------------------------------------------------------------------------------------------------- */

static int last_member(const tn_group *group) { return group->members[group->member_count - 1]; }

static void sort_by_last_member(const tn_graph_plan *g, int *groups, int count) {
    /* Groups were made from the last value to the first, so the list is nearly sorted in reverse: insert from the
     * back. */
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
    if (g->groups[root].order.seen == g->fusion.stamp) return;
    g->groups[root].order.seen = g->fusion.stamp;
    w->stack[w->top] = root;
    w->next[w->top++] = 0;
    while (w->top > 0) {
        tn_group *at = &g->groups[w->stack[w->top - 1]];
        if (w->next[w->top - 1] == (int)at->order.dep_count) {
            g->fusion.order[w->done++] = w->stack[--w->top];
            continue;
        }
        int d = at->order.deps[w->next[w->top - 1]++];
        if (g->groups[d].order.seen == g->fusion.stamp) continue;
        g->groups[d].order.seen = g->fusion.stamp;
        w->stack[w->top] = d;
        w->next[w->top++] = 0;
    }
}

static bool exchanges(const tn_graph_plan *g, int group) {
    return tn_op_has(g->values[g->groups[group].lead].node, TN_FACT_EXCHANGE);
}

/* Exchanges run as early as possible: the rest is computed meanwhile, and what they have sent is freed sooner. But if
 * parameters are gathered, they run in order: otherwise all would be gathered first. */
static tn_status topological_order(tn_graph_plan *g) {
    int count = (int)g->group_count;
    int *room = tn_scratch_take(&g->scratch, (size_t)(3 * count) * sizeof *room);
    if (!room) return TN_ERR_MEMORY;
    int *by_member = room;
    order_walk w = {.stack = room + count, .next = room + 2 * count};
    for (int i = 0; i < count; i++)
        by_member[i] = count - 1 - i;
    sort_by_last_member(g, by_member, count);
    g->fusion.stamp++;
    for (int i = 0; i < count && !g->fusion.gathers; i++)
        if (exchanges(g, by_member[i])) order_visit(g, &w, by_member[i]);
    for (int i = 0; i < count; i++)
        order_visit(g, &w, by_member[i]);
    return TN_OK;
}

static uint64_t structure_of(const tn_group *group) {
    return tn_group_is_native(group) || !group->lowered.program ? 0 : group->lowered.program->hash;
}

/* Commit groups that wait for others, and these, are stamped. */
static void stamp_chained(tn_graph_plan *g, const int *groups, int count) {
    g->fusion.stamp++;
    for (int i = 0; i < count; i++) {
        tn_group *group = &g->groups[groups[i]];
        for (size_t k = 0; k < group->order.dep_count; k++) {
            if (!g->groups[group->order.deps[k]].order.commit) continue;
            group->order.seen = g->fusion.stamp;
            g->groups[group->order.deps[k]].order.seen = g->fusion.stamp;
        }
    }
}

/* Moves equal kernels next to each other so that they can be one launch. Groups whose order matters come last. */
static void gather_equal(tn_graph_plan *g, int *groups, int count) {
    stamp_chained(g, groups, count);
    for (int i = 1; i < count; i++)
        for (int j = i; j > 0; j--) {
            const tn_group *before = &g->groups[groups[j - 1]], *after = &g->groups[groups[j]];
            bool sibling = before->order.seen == g->fusion.stamp, free = after->order.seen != g->fusion.stamp;
            if (!free || (!sibling && structure_of(before) <= structure_of(after))) break;
            int swap = groups[j];
            groups[j] = groups[j - 1];
            groups[j - 1] = swap;
        }
}

/* Marks the groups that compute new values of states and whose results only such groups read. They run last. */
static void mark_commits(tn_graph_plan *g) {
    int count = (int)g->group_count;
    for (int i = 0; i < count; i++)
        g->groups[i].order.commit = true;
    for (int i = count; i-- > 0;) {
        tn_group *group = &g->groups[g->fusion.order[i]];
        bool may_fail = g->values[group->lead].by.engine; /* its results are copied home when all has gone well */
        if (!tn_group_writes_state(g, group) || group->order.checked || may_fail) group->order.commit = false;
        for (size_t k = 0; k < group->order.dep_count && !group->order.commit; k++)
            g->groups[group->order.deps[k]].order.commit = false;
    }
}

/* The state that `group` appends to in place; -1: none. Appended elements are after the valid part of the state, so
 * they may be written even if the rest of the plan fails, and their operands need not be kept until the end. */
static int appends_to(const tn_graph_plan *g, const tn_group *group) {
    const tn_value *v = &g->values[group->lead];
    if (!group->order.commit || group->kind != TN_GROUP_NATIVE || v->output < 0) return -1;
    int home = g->binding->outputs[v->output].home;
    const tn_value *old = &g->values[g->values[v->in[0]].root];
    return home >= 0 && old->slot == home && tn_native_appends(g, group, home) ? home : -1;
}

/* Position of the last group that must run before an appending group: one that computes its operands or reads the old
 * state. -1: one of these commits. Positions are those before commits were moved. */
static int last_before_append(const tn_graph_plan *g, const tn_group *group, int home) {
    int last = 0;
    for (size_t k = 0; k < group->order.dep_count; k++) {
        const tn_group *needed = &g->groups[group->order.deps[k]];
        if (needed->order.commit) return -1;
        last = needed->order.position > last ? needed->order.position : last;
    }
    for (size_t i = 0; i < g->group_count; i++) {
        const tn_group *other = &g->groups[i];
        if (other == group || !tn_group_reads_slot(g, other, home)) continue;
        if (other->order.commit) return -1;
        last = other->order.position > last ? other->order.position : last;
    }
    return last;
}

/* Places appending groups after the last group that they wait for; `early` is indexed by that group's position. */
static void place_appends(tn_graph_plan *g, int *early) {
    for (int i = 0; i < (int)g->group_count; i++)
        early[i] = -1;
    for (int i = 0; i < (int)g->group_count; i++) {
        tn_group *group = &g->groups[g->fusion.order[i]];
        int home = appends_to(g, group);
        int behind = home >= 0 ? last_before_append(g, group, home) : -1;
        if (behind < 0) continue;
        group->order.next_append = early[behind];
        group->order.appends = true;
        early[behind] = g->fusion.order[i];
    }
}

static void number_groups(tn_graph_plan *g) {
    for (int i = 0; i < (int)g->group_count; i++)
        g->groups[g->fusion.order[i]].order.position = i;
}

/* Reorders: computing groups first, each append as early as possible, commits at the end. room: three times the
 * groups. */
static void order_commits(tn_graph_plan *g, int *room) {
    int count = (int)g->group_count, kept = 0, late = 0;
    int *early = room, *first = room + count, *last = room + 2 * count;
    place_appends(g, early);
    for (int i = 0; i < count; i++) {
        int at = g->fusion.order[i];
        if (g->groups[at].order.appends) continue;
        if (g->groups[at].order.commit)
            last[late++] = at;
        else
            first[kept++] = at;
        for (int k = early[i]; k >= 0; k = g->groups[k].order.next_append)
            first[kept++] = k;
    }
    for (int i = 0; i < count; i++)
        g->groups[i].order.commit &= !g->groups[i].order.appends;
    gather_equal(g, last, late);
    memcpy(g->fusion.order, first, (size_t)kept * sizeof *first);
    memcpy(g->fusion.order + kept, last, (size_t)late * sizeof *last);
}

static tn_status commit_last(tn_graph_plan *g) {
    int *room = tn_scratch_take(&g->scratch, 3 * g->group_count * sizeof *room);
    if (!room) return TN_ERR_MEMORY;
    tn_mark_checked(g);
    mark_commits(g);
    number_groups(g);
    order_commits(g, room);
    number_groups(g);
    return TN_OK;
}
static int arena_slot(const tn_plan *p) { return p->bound_count + p->output_count; }
static int host_slot(const tn_plan *p) { return arena_slot(p) + 1; }

/* ---- for messages ------------------------------------------------------------------------------------------------ */

/* "train.c:12: matmul [64, 128] f32", for messages. */
void tn_node_describe(const tn_node *n, char *text, size_t size) {
    char shape[96], line[64] = "";
    size_t used = n->file ? tn_text_put(line, sizeof line, 0, n->file) : 0;
    if (n->file) used = tn_text_put(line, sizeof line, used, ":");
    if (n->file) used = tn_text_put_number(line, sizeof line, used, n->line);
    if (n->file) tn_text_put(line, sizeof line, used, ": ");
    const char *const words[] = {line, n->op == TN_OP_NONE ? "data" : tn_op(n->op)->name,
                                 " ",  tn_shape_text(n, shape, sizeof shape),
                                 " ",  tn_dtype_name((tn_dtype)n->dtype)};
    used = 0;
    for (size_t i = 0; i < TN_COUNT(words); i++)
        used = tn_text_put(text, size, used, words[i]);
}

static void describe_largest(const tn_graph_plan *g, tn_plan *p) {
    const tn_value *largest = NULL;
    for (size_t i = 0; i < g->value_count; i++) {
        const tn_value *v = &g->values[i];
        if (v->memory.place == arena_slot(p) && (!largest || v->memory.bytes > largest->memory.bytes)) largest = v;
    }
    if (largest) tn_node_describe(largest->node, p->report.largest, sizeof p->report.largest);
}

/* ---- commands ---------------------------------------------------------------------------------------------------- */

/* Small blocks are cut from a larger one: a plan has twenty of them, and allocating them took a tenth of making it. */
void *tn_plan_own(tn_plan *p, size_t bytes) {
    enum { TOGETHER = 4096, ALIGN = 64 };
    size_t rounded = bytes > SIZE_MAX - TOGETHER ? bytes : (bytes / ALIGN + 1) * ALIGN;
    if (rounded > p->blocks.spare_bytes) {
        size_t taken = rounded > TOGETHER / 2 ? rounded : TOGETHER;
        if (tn_mem_grow(&p->blocks.owned, &p->blocks.owned_capacity, p->blocks.owned_count + 1,
                        sizeof *p->blocks.owned) != TN_OK)
            return NULL;
        char *block = taken == TOGETHER ? tn_mem_alloc(taken) : tn_mem_zalloc(1, taken);
        if (!block) return NULL;
        p->blocks.owned[p->blocks.owned_count++] = block;
        p->bytes += taken;
        if (taken != TOGETHER) return block;
        p->blocks.spare = block;
        p->blocks.spare_bytes = taken;
    }
    char *block = p->blocks.spare;
    p->blocks.spare += rounded;
    p->blocks.spare_bytes -= rounded;
    memset(block, 0, rounded);
    return block;
}

void tn_plan_patch(tn_plan *p, void **at, int slot, int64_t offset) {
    p->patches[p->patch_count++] = (tn_patch){.pointer = (int32_t)(at - p->pointers), .slot = slot, .offset = offset};
}

static void patch_value(tn_plan *p, void **at, const tn_graph_plan *g, int value, int64_t first) {
    const tn_value *v = &g->values[value];
    if (v->memory.place >= 0) tn_plan_patch(p, at, v->memory.place, v->memory.offset + first);
}

static void patch_on_host(tn_plan *p, void **at, const tn_graph_plan *g, int value, int64_t first) {
    const tn_value *v = &g->values[value];
    if (v->host.from >= 0) tn_plan_patch(p, at, host_slot(p), v->host.offset - v->memory.first + first);
}

/* A value where a group reads or writes it, or a view of it that begins at byte `first`. */
static void patch_operand(tn_plan *p, void **at, const tn_graph_plan *g, const tn_group *group, int value,
                          int64_t first) {
    if (value == TN_BLOCK) return; /* the kernel supplies it */
    if (group->host)
        patch_on_host(p, at, g, value, first);
    else
        patch_value(p, at, g, value, first);
}

static void add_label(const tn_graph_plan *g, const tn_group *group, char *label, size_t size) {
    size_t n = 0;
    for (size_t i = 0; i < group->member_count; i++) {
        if (i > 0) n = tn_text_put(label, size, n, "+");
        n = tn_text_put(label, size, n, g->values[group->members[i]].row->name);
    }
    char shape[80];
    n = tn_text_put(label, size, n, " ");
    tn_text_put(label, size, n, tn_shape_text(g->values[group->lead].node, shape, sizeof shape));
}

static void add_by(tn_command *c, const char *words, const char *by) {
    size_t used = tn_text_put(c->label, sizeof c->label, strlen(c->label), words);
    tn_text_put(c->label, sizeof c->label, used, by);
}

static bool ranges_meet(const tn_value *a, const tn_value *b) {
    int64_t first = a->memory.offset + a->memory.first, other = b->memory.offset + b->memory.first;
    return a->memory.place >= 0 && a->memory.place == b->memory.place && first < other + b->memory.bytes &&
           other < first + a->memory.bytes;
}

static bool touches(const tn_graph_plan *g, const tn_group *writer, const tn_group *other) {
    for (size_t i = 0; i < writer->member_count; i++) {
        const tn_value *w = &g->values[writer->members[i]];
        if (!w->stored) continue;
        for (int k = 0; k < other->run.read_count; k++)
            if (ranges_meet(w, &g->values[other->run.reads[k]])) return true;
        for (size_t k = 0; k < other->member_count; k++)
            if (g->values[other->members[k]].stored && ranges_meet(w, &g->values[other->members[k]])) return true;
    }
    return false;
}

/* Equal kernels that do not touch each other's memory are one launch: an optimiser's step over all its tensors. */
static bool joins_batch(const tn_graph_plan *g, const tn_command *last, const tn_kernel *kernel, int first,
                        int position) {
    const tn_group *group = &g->groups[g->fusion.order[position]];
    if (!last || last->kind != TN_CMD_KERNEL || last->kernel != kernel || group->host) return false;
    for (int i = first; i < position; i++) {
        const tn_group *before = &g->groups[g->fusion.order[i]];
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
    kir_scalar *next_scalar;
} command_maker;

static kir_scalar *take_runtime_scalars(command_maker *m, const tn_group *group) {
    kir_scalar *first = m->next_scalar;
    for (int d = 0; d < group->lowered.scalar_count; d++) {
        int scalar = group->lowered.scalars[d];
        m->p->scalar_source[m->next_scalar - m->p->scalars] = scalar < 0 ? -1 : scalar;
        if (scalar < 0) m->next_scalar->f = m->g->values[tn_number_of_scalar(scalar)].node->f[TN_FULL_VALUE];
        m->next_scalar++;
    }
    return first;
}

static void **take_program_pointers(command_maker *m, const tn_group *group) {
    void **first = m->next_pointer;
    for (int b = 0; b < group->lowered.buffer_count; b++)
        patch_operand(m->p, m->next_pointer++, m->g, group, group->lowered.buffer_values[b], 0);
    return first;
}

static tn_device *device_of(const tn_plan *p, const tn_group *group) {
    return group->host ? tn_host_device() : p->device;
}

/* The group's kernel, for the command that is being made. */
static tn_status take_kernel(const tn_plan *p, tn_group *group, tn_kernel **kernel) {
    *kernel = group->run.kernel;
    group->run.kernel = NULL;
    return *kernel ? TN_OK : tn_kernel_get(device_of(p, group), group->lowered.program, kernel);
}

static tn_status add_kernel(command_maker *m, int position) {
    tn_group *group = &m->g->groups[m->g->fusion.order[position]];
    tn_kernel *kernel = NULL;
    TRY(take_kernel(m->p, group, &kernel));
    size_t bytes = kir_sizes_count(group->lowered.program) * sizeof(int64_t);
    int64_t *sizes = tn_plan_own(m->p, bytes);
    if (!sizes) {
        tn_kernel_release(kernel);
        return TN_ERR_MEMORY;
    }
    memcpy(sizes, group->lowered.sizes, bytes);
    tn_launch *launch = &m->launches[m->launch_count++];
    *launch = (tn_launch){
        .sizes = sizes, .buffers = take_program_pointers(m, group), .scalars = take_runtime_scalars(m, group)};
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
    *c = (tn_command){.kind = TN_CMD_KERNEL,
                      .kernel = kernel,
                      .device = device_of(m->p, group),
                      .launches = launch,
                      .launch_count = 1,
                      .commit = group->order.commit,
                      .host = group->host != NULL};
    c->cost = tn_group_cost(m->g, group);
    add_label(m->g, group, c->label, sizeof c->label);
    const char *why = m->g->values[group->lead].by.vendor_why;
    if (why) add_by(c, " not by the library, which ", why);
    return TN_OK;
}

/* A native kernel's, or a library's. */
static void **take_operands(command_maker *m, const tn_group *group) {
    int operands[TN_NATIVE_POINTERS];
    int count = tn_native_operands(m->g, group, operands);
    void **first = m->next_pointer;
    for (int k = 0; k < count; k++, m->next_pointer++) {
        const tn_value *v = operands[k] >= 0 ? &m->g->values[operands[k]] : NULL;
        if (v) patch_operand(m->p, m->next_pointer, m->g, group, v->root, (int64_t)tn_native_byte_offset(v));
        if (operands[k] == TN_WORKSPACE)
            tn_plan_patch(m->p, m->next_pointer, group->host ? host_slot(m->p) : arena_slot(m->p),
                          group->run.workspace_offset);
    }
    return first;
}

static tn_command *add_call(command_maker *m, const tn_group *group) {
    tn_command *c = &m->p->commands[m->p->command_count++];
    *c = (tn_command){.commit = group->order.commit, .host = group->host != NULL};
    c->pointers = take_operands(m, group);
    c->cost = tn_group_cost(m->g, group);
    add_label(m->g, group, c->label, sizeof c->label);
    return c;
}

static void add_vendor(command_maker *m, tn_group *group) {
    tn_command *c = add_call(m, group);
    tn_value *v = &m->g->values[group->lead];
    c->kind = TN_CMD_VENDOR;
    c->vendor = v->by.vendor;
    v->by.vendor = NULL;
    add_by(c, " by ", c->vendor->library->name);
}

static void add_engine_op(command_maker *m, tn_group *group) {
    tn_command *c = add_call(m, group);
    c->kind = TN_CMD_ENGINE_OP;
    c->op_engine = m->g->engine;
    c->engine_op = group->run.engine_op;
    group->run.engine_op = NULL;
    add_by(c, " by ", m->g->engine->backend);
}

/* To the last command, which is the first of the chain. */
static void add_along(command_maker *m, const tn_group *group) {
    tn_command *c = &m->p->commands[m->p->command_count - 1];
    void **pointers = take_operands(m, group);
    take_program_pointers(m, group);
    tn_native_run_sibling(group->run.native, pointers, take_runtime_scalars(m, group));
    tn_cost more = tn_group_cost(m->g, group);
    c->cost.bytes += more.bytes;
    c->cost.flops += more.flops;
    char label[TN_LABEL];
    add_label(m->g, group, label, sizeof label);
    add_by(c, group->row_fused ? " > " : " & ", label);
}

static void add_alone(command_maker *m, const tn_group *group) {
    tn_command *c = add_call(m, group);
    c->kind = TN_CMD_NATIVE;
    c->native = group->run.native;
    c->row_fused = group->row_fused;
    take_program_pointers(m, group);
    c->scalars = take_runtime_scalars(m, group);
    const char *by = tn_native_by(group->run.native);
    if (by) add_by(c, " by ", by);
}

static void add_native(command_maker *m, tn_group *group) {
    if (group->sibling)
        add_along(m, group);
    else
        add_alone(m, group);
    m->p->natives[m->p->native_count++] = group->run.native;
    m->p->bytes += tn_native_bytes();
    group->run.native = NULL;
}

static tn_command *add_copy(command_maker *m, tn_command_kind kind, int value, bool commit) {
    const tn_value *v = &m->g->values[value];
    tn_command *c = &m->p->commands[m->p->command_count++];
    *c = (tn_command){.kind = kind, .pointers = m->next_pointer, .bytes = (size_t)v->memory.bytes, .commit = commit};
    c->cost.bytes = 2 * v->memory.bytes;
    return c;
}

/* Copies to the host the operands of a host group that are not there yet. */
static void add_fetches(command_maker *m, const tn_group *group) {
    for (int k = 0; k < group->run.read_count; k++) {
        tn_value *v = &m->g->values[group->run.reads[k]];
        bool made_there = v->group >= 0 && m->g->groups[v->group].host;
        if (made_there || v->host.fetched) continue;
        v->host.fetched = true;
        tn_command *c = add_copy(m, TN_CMD_FETCH, group->run.reads[k], group->order.commit);
        tn_node_describe(v->node, c->label, sizeof c->label);
        tn_plan_patch(m->p, m->next_pointer++, host_slot(m->p), v->host.offset);
        tn_plan_patch(m->p, m->next_pointer++, v->memory.place, v->memory.offset + v->memory.first);
    }
}

/* Copies to the device the results of a host group that are needed there. */
static void add_sends(command_maker *m, const tn_group *group) {
    for (size_t k = 0; k < group->member_count; k++) {
        const tn_value *v = &m->g->values[group->members[k]];
        if (!v->stored || v->memory.place < 0) continue;
        tn_command *c = add_copy(m, TN_CMD_SEND, group->members[k], group->order.commit);
        tn_node_describe(v->node, c->label, sizeof c->label);
        patch_value(m->p, m->next_pointer++, m->g, group->members[k], 0);
        patch_on_host(m->p, m->next_pointer++, m->g, group->members[k], 0);
    }
}

static void add_copies(command_maker *m) {
    for (size_t i = 0; i < m->g->value_count; i++) {
        const tn_value *v = &m->g->values[i];
        int home = v->output >= 0 ? m->g->binding->outputs[v->output].home : -1;
        if (home < 0 || v->memory.place == home) continue;
        tn_command *c = add_copy(m, TN_CMD_COPY, (int)i, true);
        snprintf(c->label, sizeof c->label, "copy to state");
        tn_plan_patch(m->p, m->next_pointer++, home, 0);
        patch_value(m->p, m->next_pointer++, m->g, (int)i, 0);
    }
}

/* A program that updates some elements of its first operand starts with a copy of it, unless the result shares its
 * memory. */
static void add_update_copy(command_maker *m, const tn_group *group) {
    const tn_value *v = &m->g->values[group->lead], *old = &m->g->values[v->in[0]], *root = &m->g->values[old->root];
    int64_t offset = root->memory.offset + (int64_t)tn_dtype_bytes((tn_dtype)old->node->dtype, old->offset);
    if (root->memory.place == v->memory.place && offset == v->memory.offset) return;
    tn_command *c = add_copy(m, TN_CMD_COPY, group->lead, group->order.commit);
    snprintf(c->label, sizeof c->label, "copy to update");
    patch_value(m->p, m->next_pointer++, m->g, group->lead, 0);
    tn_plan_patch(m->p, m->next_pointer++, root->memory.place, offset);
}

static bool computes_nothing(const tn_graph_plan *g, const tn_group *group) {
    if (tn_concat_is_in_place(g, group->lead)) return true;
    for (size_t i = 0; i < group->member_count; i++)
        if (tn_value_numel(&g->values[group->members[i]]) > 0) return false;
    return true;
}

static tn_status allocate_commands(command_maker *m, size_t copies) {
    tn_plan *p = m->p;
    size_t groups = m->g->group_count, pointers = 0, scalars = 0;
    for (size_t i = 0; i < groups; i++) {
        const tn_group *group = &m->g->groups[i];
        pointers += (size_t)group->lowered.buffer_count + TN_NATIVE_POINTERS;
        scalars += (size_t)group->lowered.scalar_count;
        if (group->host) copies += (size_t)group->run.read_count + group->member_count;
        if (group->updates) copies++;
    }
    pointers += 2 * (copies + m->g->checked.count);
    p->pointer_count = pointers;
    p->commands = tn_plan_own(p, (groups + copies + m->g->checked.count) * sizeof *p->commands);
    p->pointers = tn_plan_own(p, pointers * sizeof *p->pointers);
    p->patches = tn_plan_own(p, pointers * sizeof *p->patches);
    p->scalars = tn_plan_own(p, scalars * sizeof *p->scalars);
    p->scalar_source = tn_plan_own(p, scalars * sizeof *p->scalar_source);
    p->natives = tn_plan_own(p, groups * sizeof *p->natives);
    p->runs.addresses = tn_plan_own(p, (size_t)(host_slot(p) + 1) * sizeof *p->runs.addresses);
    m->launches = tn_plan_own(p, groups * sizeof *m->launches);
    if (!p->commands || !p->pointers || !p->patches || !p->scalars || !p->scalar_source || !p->natives ||
        !p->runs.addresses || !m->launches)
        return TN_ERR_MEMORY;
    m->next_pointer = p->pointers;
    m->next_scalar = p->scalars;
    return tn_make_checks(m->g, p);
}

/* Sorts patches by slot (counting sort), because few slots change their address from one run to the next. */
static tn_status sort_patches(tn_graph_plan *g, tn_plan *p) {
    size_t slots = tn_plan_slots(p), bytes = p->patch_count * sizeof *p->patches;
    size_t *of = p->patches_of = tn_plan_own(p, (slots + 1) * sizeof *of);
    tn_patch *made = tn_scratch_take(&g->scratch, bytes);
    if (!of || !made) return TN_ERR_MEMORY;
    memcpy(made, p->patches, bytes);
    for (size_t i = 0; i < p->patch_count; i++)
        of[made[i].slot]++;
    for (size_t slot = 0, before = 0; slot <= slots; slot++) { /* where each ends */
        before += of[slot];
        of[slot] = before;
    }
    for (size_t i = p->patch_count; i-- > 0;)
        p->patches[--of[made[i].slot]] = made[i];
    return TN_OK;
}

static tn_status make_commands(tn_graph_plan *g, tn_plan *p, size_t copies) {
    command_maker m = {.p = p, .g = g};
    TRY(allocate_commands(&m, copies));
    TRY(tn_add_checks(g, p, -1, &m.next_pointer));
    for (size_t i = 0; i < g->group_count; i++) {
        tn_group *group = &g->groups[g->fusion.order[i]];
        if (i > 0) TRY(tn_add_checks(g, p, g->fusion.order[i - 1], &m.next_pointer));
        if (computes_nothing(g, group)) continue;
        if (group->host) add_fetches(&m, group);
        if (group->updates) add_update_copy(&m, group);
        if (g->values[group->lead].by.vendor)
            add_vendor(&m, group);
        else if (group->run.engine_op)
            add_engine_op(&m, group);
        else if (group->run.native)
            add_native(&m, group);
        else
            TRY(add_kernel(&m, (int)i));
        if (group->host) add_sends(&m, group);
    }
    if (g->group_count) TRY(tn_add_checks(g, p, g->fusion.order[g->group_count - 1], &m.next_pointer));
    p->scalar_count = (size_t)(m.next_scalar - p->scalars); /* none of groups without elements */
    add_copies(&m);
    return sort_patches(g, p);
}

/* ---- making ------------------------------------------------------------------------------------------------------ */

/* Called if a group could not be lowered. If it needs too many buffers, fusing counts buffers from now on (once per
 * plan); otherwise the value that lowering refused becomes its own group. */
static tn_status refuse_join(tn_graph_plan *g) {
    tn_value *v = &g->values[g->lowering.forbid];
    if (g->lowering.crowded && !g->fusion.counts_buffers) return TN_OK;
    if (v->alone)
        return tn_fail(TN_ERR_INTERNAL, "%s cannot be lowered, even in a group of its own: a defect",
                       v->row ? v->row->name : "data");
    v->alone = true;
    return TN_OK;
}

/* Lowers all groups even if one refuses a value, so that the number of rounds does not grow with the number of
 * groups. */
static tn_status lower_groups(tn_graph_plan *g, bool *refused) {
    bool crowded = false;
    for (size_t i = 0; i < g->group_count; i++) {
        g->lowering.forbid = -1;
        g->lowering.crowded = false;
        TRY(tn_lower_group(g, (int)i));
        if (g->lowering.forbid < 0) continue;
        *refused = true;
        crowded |= g->lowering.crowded;
        TRY(refuse_join(g));
    }
    g->fusion.counts_buffers |= crowded;
    return TN_OK;
}

/* Fuses and lowers until no join is refused. Every round except the last makes one more value separate, so the loop
 * ends. */
static tn_status fuse_and_lower(tn_graph_plan *g) {
    for (bool refused = true; refused;) {
        refused = false;
        TRY(tn_fuse(g));
        TRY(lower_groups(g, &refused));
    }
    return TN_OK;
}

/* Devices that lack something leave it to the host. Each round leaves one more value to it, so this ends. */
static tn_status fuse_and_place(tn_graph_plan *g, tn_plan *p) {
    for (bool again = true; again;) {
        again = false;
        TRY(fuse_and_lower(g));
        p->placement.operations = 0;
        for (size_t i = 0; i < g->group_count; i++)
            p->placement.operations += (int64_t)g->groups[i].member_count;
        if (g->group_count > 0 && !p->device->is_cpu) TRY(tn_place_groups(g, p, &again));
    }
    return TN_OK;
}

static tn_status prepare_groups(tn_graph_plan *g) {
    for (size_t i = 0; i < g->group_count; i++) {
        tn_group *group = &g->groups[i];
        TRY(tn_group_find_reads(g, group));
        if (g->values[group->lead].by.vendor)
            group->run.workspace = g->values[group->lead].by.vendor->workspace;
        else if (g->values[group->lead].by.engine)
            TRY(tn_engine_op_make(g, group));
        else if (tn_group_is_native(group))
            TRY(tn_native_make(g, group, &group->run.native, &group->run.workspace));
    }
    return TN_OK;
}

static tn_status copy_key(tn_plan *p, const tn_binding *b) {
    p->key.words = tn_plan_own(p, b->key.count * sizeof *p->key.words);
    p->key.sizes = tn_plan_own(p, b->key.size_count * sizeof *p->key.sizes);
    p->shifts = tn_plan_own(p, b->shift_count * sizeof *p->shifts);
    p->output_bytes = tn_plan_own(p, b->output_count * sizeof *p->output_bytes);
    p->output_home = tn_plan_own(p, b->output_count * sizeof *p->output_home);
    if (!p->key.words || !p->key.sizes || !p->shifts || !p->output_bytes || !p->output_home) return TN_ERR_MEMORY;
    if (b->key.count) memcpy(p->key.words, b->key.words, b->key.count * sizeof *p->key.words);
    if (b->key.size_count) memcpy(p->key.sizes, b->key.sizes, b->key.size_count * sizeof *p->key.sizes);
    p->key.count = b->key.count;
    p->key.size_count = b->key.size_count;
    p->shift_count = b->shift_count;
    for (size_t i = 0; i < b->scalar_count; i++)
        p->varying_numbers += !tn_op_has(b->scalar_nodes[i], TN_FACT_LAUNCH_SCALAR);
    p->bound_count = (int)b->buffer_count;
    p->output_count = (int)b->output_count;
    for (size_t i = 0; i < b->output_count; i++) {
        p->output_bytes[i] = (int64_t)tn_node_bytes(b->outputs[i].node);
        p->output_home[i] = b->outputs[i].home;
    }
    return TN_OK;
}

static tn_status run_plan_passes(tn_graph_plan *g, tn_plan *p) {
    size_t copies = 0;
    bool made = false;
    TRY(copy_key(p, g->binding));
    if (p->device->is_engine && !g->binding->request.on_host) TRY(tn_engine_plan(g->binding, p, &made));
    if (made || p->placement.first_count) return TN_OK;
    TRY(tn_values_make(g));
    TRY(tn_vendor_choose(g));
    TRY(fuse_and_place(g, p));
    if (g->engine) TRY(tn_engine_note_rest(g, p));
    TRY(topological_order(g));
    TRY(prepare_groups(g));
    TRY(commit_last(g));
    tn_fuse_siblings(g);
    if (!g->fusion.recomputes) TRY(tn_fuse_gemm_rows(g)); /* a chain frees no memory before its end */
    TRY(tn_lay_out_conv_results(g));
    TRY(tn_lay_out(g, &p->arena_bytes, &p->host_bytes, &copies));
    describe_largest(g, p);
    p->report.values_planned = (int64_t)g->value_count;
    p->report.planning_work = g->fusion.work;
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

tn_planner_state tn_planner_begin(tn_recorder *r, tn_device *device) {
    tn_planner_state before = {tn_chosen_device(), r->count, r->nodes_recorded, r->no_grad};
    (void)tn_set_current_device(device); /* what compositions make without operands belongs there */
    r->planning = r->no_grad = true;
    return before;
}

void tn_planner_end(tn_recorder *r, const tn_planner_state *before) {
    (void)tn_set_current_device(before->chosen);
    forget_planners_nodes(r, before->pending);
    r->planning = false;
    r->no_grad = before->no_grad;
    r->nodes_recorded = before->recorded;
}

tn_status tn_plan_make(const tn_binding *b, tn_plan **out) {
    tn_recorder *r = b->recorder;
    tn_graph_plan g = {.binding = b, .recorder = r, .pending_before = r->count, .lowering.forbid = -1};
    g.engine = tn_op_engine_of(b->device);
    tn_plan *p = tn_mem_zalloc(1, sizeof *p);
    if (!p) return TN_ERR_MEMORY;
    p->device = b->device;
    tn_planner_state before = tn_planner_begin(r, b->device);
    p->threads = tn_threads();
    int limit = tn_threads_limit(p->threads);
    tn_status s = run_plan_passes(&g, p);
    tn_threads_limit(limit);
    tn_graph_plan_free(&g);
    tn_planner_end(r, &before);
    if (s != TN_OK) {
        tn_plan_free(p);
        return s;
    }
    tn_place_tell(p);
    *out = p;
    return TN_OK;
}

void tn_plan_free(tn_plan *p) {
    if (!p) return;
    tn_plan_await(p);
    tn_free_checks(p);
    for (size_t i = 0; i < p->native_count; i++)
        tn_native_free(p->natives[i]);
    for (size_t i = 0; i < p->command_count; i++) {
        tn_command_list_free(p->commands[i].list);
        tn_kernel_release(p->commands[i].kernel);
        tn_vendor_free(p->commands[i].vendor);
        tn_engine_call_free(p->commands[i].engine);
        if (p->commands[i].op_engine) p->commands[i].op_engine->free(p->commands[i].engine_op);
    }
    for (size_t i = 0; i < p->blocks.owned_count; i++)
        tn_mem_free(p->blocks.owned[i]);
    tn_mem_free_each(p->blocks.owned, p);
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

size_t tn_plan_slots(const tn_plan *p) { return (size_t)host_slot(p) + 1; }

/* Unchanged addresses are not written, because the pool's threads have the cache line. */
static void bind_slot(tn_plan *p, size_t slot, void *address) {
    if (p->runs.addresses[slot] == address) return;
    p->runs.addresses[slot] = address;
    for (size_t i = p->patches_of[slot]; i < p->patches_of[slot + 1]; i++)
        p->pointers[p->patches[i].pointer] = (char *)address + p->patches[i].offset;
}

void *tn_plan_address(const tn_plan *p, tn_buffer *const *bound, int slot, size_t *shift) {
    char *address = bound[slot]->address;
    bool shifted = *shift < p->shift_count && p->shifts[*shift].slot == slot;
    return shifted ? address + p->shifts[(*shift)++].bytes : address;
}

static void bind(tn_plan *p, tn_buffer *const *bound, tn_buffer *const *outputs, const tn_buffer *memory,
                 const tn_buffer *host, const kir_scalar *scalars) {
    size_t slot = 0, shift = 0;
    for (int i = 0; i < p->bound_count; i++)
        bind_slot(p, slot++, p->shift_count ? tn_plan_address(p, bound, i, &shift) : bound[i]->address);
    for (int i = 0; i < p->output_count; i++)
        bind_slot(p, slot++, outputs[i]->address);
    bind_slot(p, slot++, memory ? memory->address : NULL);
    bind_slot(p, slot, host ? host->address : NULL);
    for (size_t i = 0; i < p->scalar_count; i++)
        if (p->scalar_source[i] >= 0) p->scalars[i] = scalars[p->scalar_source[i]];
}

static tn_status copy(const tn_plan *p, const tn_command *c, int kind) {
    void *stream = tn_stream_handle(p->device);
    if (!c->bytes) return TN_OK;
    if (kind == 1) return tn_device_fetch(p->device, stream, c->pointers[0], c->pointers[1], c->bytes);
    if (kind == 0) return tn_device_send(p->device, stream, c->pointers[0], c->pointers[1], c->bytes);
    return tn_device_copy_bytes(p->device, stream, c->pointers[0], c->pointers[1], c->bytes, kind);
}

static tn_status run_native(const tn_command *c) {
    tn_native_run(c->native, c->pointers, c->scalars);
    return TN_OK;
}

static tn_status run_command(tn_plan *p, const tn_command *c) {
    switch (c->kind) {
    case TN_CMD_KERNEL: return tn_kernel_launch(c->device, c->kernel, c->launches, c->launch_count);
    case TN_CMD_NATIVE: return run_native(c);
    case TN_CMD_VENDOR: return tn_vendor_run(p->device, c->vendor, c->pointers);
    case TN_CMD_ENGINE_OP: return c->op_engine->run(c->engine_op, c->pointers);
    case TN_CMD_ENGINE: return tn_engine_call_run(c->engine, c->pointers, c->scalars);
    case TN_CMD_SEND: return copy(p, c, 0);
    case TN_CMD_FETCH: return copy(p, c, 1);
    case TN_CMD_COPY: return copy(p, c, 2);
    }
    return TN_ERR_INTERNAL;
}

/* The same with timing. Waits for a device that runs asynchronously. */
static tn_status run_timed(tn_profile *profile, tn_plan *p, const tn_command *c) {
    double begun = tn_now();
    TRY(run_command(p, c));
    if (!p->device->is_cpu) TRY(tn_device_wait(p->device, tn_stream_handle(p->device)));
    tn_profile_add(profile, c, tn_now() - begun);
    return TN_OK;
}

/* From the first write to a state on nothing may fail that could have failed before. */
static tn_status prepare_kernels(const tn_plan *p, size_t first) {
    for (size_t i = first; i < p->command_count; i++) {
        const tn_command *c = &p->commands[i];
        if (c->listed) continue; /* a list has what it needs */
        if (c->kind == TN_CMD_KERNEL) TRY(tn_kernel_prepare(c->device, c->kernel, c->launches, c->launch_count));
    }
    return TN_OK;
}

/* Makes one launch list of the commands from `begin`. If memory is out they stay separate. */
static void make_launch_list(const tn_plan *p, size_t begin, size_t end) {
    tn_command_list *list = NULL;
    if (p->commands[begin].list) return; /* of a run that failed */
    tn_status s = tn_command_list_new(p->device, &list);
    for (size_t i = begin; i < end && s == TN_OK; i++)
        s = tn_command_list_add(list, p->commands[i].kernel, p->commands[i].launches, p->commands[i].launch_count);
    if (s != TN_OK) {
        tn_command_list_free(list);
        return;
    }
    p->commands[begin].list = list;
    for (size_t i = begin; i < end; i++)
        p->commands[i].listed = (int32_t)(end - i);
}

/* A plan that runs repeatedly on a device collects its kernels in launch lists, one for each uninterrupted row of
 * kernels. Commands that write states have their own lists. */
static void gather_all(const tn_plan *p) {
    enum { FEWEST = 2 };
    for (size_t i = 0, end; i<p->command_count; i = end> i ? end : i + 1) {
        end = i;
        while (end < p->command_count && p->commands[end].kind == TN_CMD_KERNEL &&
               p->commands[end].device == p->device && p->commands[end].commit == p->commands[i].commit)
            end++;
        if (end - i >= FEWEST) make_launch_list(p, i, end);
    }
}

/* p->runs.partially_committed: it fails at a time when states are partly written. */
static tn_status run_each_command(tn_plan *p) {
    tn_profile *profile = tn_profile_here();
    bool committing = false;
    size_t check = p->checks.leaf_count;
    p->runs.partially_committed = false;
    for (size_t i = 0, n; i < p->command_count; i += n) {
        const tn_command *c = &p->commands[i];
        if (check < p->checks.count) TRY(tn_check_before(p, i, &check));
        if (c->commit && !committing) TRY(prepare_kernels(p, i));
        committing |= c->commit;
        p->runs.partially_committed = committing;
        n = c->list && !profile ? (size_t)c->listed : 1;
        if (profile)
            TRY(run_timed(profile, p, c));
        else
            TRY(c->list ? tn_command_list_run(c->list) : run_command(p, c));
    }
    p->runs.partially_committed = false;
    return check < p->checks.count ? tn_check_before(p, p->command_count, &check) : TN_OK;
}

static tn_status run_commands(tn_plan *p) {
    tn_status s = run_each_command(p);
    if (p->checks.counted) tn_error_counters_touch(p->checks.counters); /* also of a failed run: some have counted */
    return s;
}

/* Reading the clock costs as much as a small kernel. If the first runs of a plan were short, only every 16th run is
 * timed, and counts for the runs before it. */
static bool is_timed(const tn_plan *p) {
    enum { FIRST_RUNS = 4, TIMED_OF = 16 };
    const double little = 10e-6;
    return p->runs.count < FIRST_RUNS || p->runs.last_seconds > little || p->runs.count % TIMED_OF == 0;
}

tn_status tn_plan_run_dry(tn_plan *p, tn_buffer *const *bound, tn_buffer *const *outputs, const tn_buffer *memory,
                          const tn_buffer *host, const kir_scalar *scalars) {
    for (size_t i = 0; i < p->native_count; i++)
        TRY(tn_native_prepare(p->natives[i], bound));
    for (int i = 0; i < p->bound_count; i++) {
        size_t reads = p->patches_of[i + 1] - p->patches_of[i];
        for (size_t k = 0; k < p->native_count; k++)
            reads -= tn_native_packs(p->natives[k], i);
        if (reads) tn_dry_touch_pages(bound[i]);
    }
    for (int i = 0; i < p->output_count; i++)
        if (p->output_home[i] < 0) TRY(tn_dry_clear(outputs[i]));
    bind(p, bound, outputs, memory, host, scalars);
    if (p->device->is_cpu) TRY(prepare_kernels(p, 0)); /* their memory and machine code count */
    p->runs.partially_committed = false;
    p->runs.failed = NULL;
    p->runs.count++;
    return TN_OK;
}

tn_status tn_plan_run(tn_plan *p, tn_buffer *const *bound, tn_buffer *const *outputs, tn_buffer *memory,
                      tn_buffer *host, const kir_scalar *scalars, double *seconds) {
    enum { GATHER_AFTER = 2 }; /* runs */
    for (size_t i = 0; i < p->native_count; i++)
        TRY(tn_native_prepare(p->natives[i], bound));
    if (p->command_count && p->commands[0].kind == TN_CMD_ENGINE) tn_engine_call_bind(p->commands[0].engine, bound);
    bind(p, bound, outputs, memory, host, scalars);
    p->runs.partially_committed = false;
    p->runs.failed = NULL;
    if (p->checks.leaf_count) TRY(tn_check_leaves(p, bound));
    bool all_launched = p->checks.count == p->checks.leaf_count + p->checks.counted;
    if (p->runs.count == GATHER_AFTER && !p->device->is_cpu && all_launched) gather_all(p);
    bool timed = is_timed(p);
    double begun = timed ? tn_now() : 0;
    int limit = tn_threads_limit(p->threads);
    tn_status status = run_commands(p);
    tn_threads_limit(limit);
    TRY(status);
    p->runs.count++;
    p->runs.untimed++;
    if (!timed) return TN_OK;
    p->runs.last_seconds = tn_now() - begun;
    *seconds += p->runs.last_seconds * (double)p->runs.untimed;
    p->runs.untimed = 0;
    return TN_OK;
}

tn_status tn_plan_execute(tn_plan *p, void *const *slots, void *const *packed_weights, const kir_scalar *scalars) {
    for (size_t i = 0; i < p->native_count; i++)
        tn_native_set_packed(p->natives[i], packed_weights[i]);
    for (size_t i = 0; i < tn_plan_slots(p); i++)
        bind_slot(p, i, slots[i]);
    if (p->scalar_count) memcpy(p->scalars, scalars, p->scalar_count * sizeof *scalars);
    int limit = tn_threads_limit(p->threads);
    p->runs.partially_committed = false;
    p->runs.failed = NULL;
    tn_status status = p->checks.leaf_count ? tn_check_leaves(p, NULL) : TN_OK;
    if (status == TN_OK) status = run_commands(p);
    tn_threads_limit(limit);
    p->runs.count++;
    status = tn_check_name_line(p, NULL, status);
    p->runs.failed = NULL; /* the caller does not wait for it */
    return status;
}
