/* engine_plan.c — plans of engines' devices (engine.h): which memory a graph reads and makes, its commands, checks of
 * its indices.
 *
 * All leaves are inputs, states included: a plan knows no values. What is a strided view of its buffer is gathered into
 * the arena before the graph runs. A state's new value is made in the arena too and copied home last, since the engine
 * may read the old value at any time. Indices with a range are outputs as well, so that they can be checked. */
#include "plan/plan.h"

#include <stdio.h>
#include <string.h>

#include "base/os.h"
#include "ops/ops_common.h"

enum { ALIGN = 64, PATIENCE = 3 /* runs: compiling a graph takes as long as some runs of it */ };

/* An input that is gathered: from where its view lies, pointers[from], to the arena, pointers[to]. */
typedef struct gathered {
    int from, to, rank;
    size_t element;
    int64_t shape[TN_MAX_RANK], stride[TN_MAX_RANK]; /* strides in elements */
} gathered;

/* Indices that are compared with their range: inputs before the graph runs, others behind it. */
typedef struct index_check {
    int pointer;
    bool is_input;
    tn_index_list list;
    tn_index_range range;
    int32_t line;
    const char *name, *file; /* name: of the op or function */
} index_check;

/* An input of the graph, and for how many runs it has had the same value. */
typedef struct engine_input {
    int slot;
    bool may_stay; /* may become a constant: each new value has another buffer or another version, so it is noticed */
    size_t bytes;
    const tn_buffer *buffer;
    uint64_t version;
    int64_t same; /* runs */
} engine_input;

struct tn_engine_call {
    const tn_engine *engine;
    void *compiled;
    gathered *gathered;
    index_check *checks;
    engine_input *inputs;
    bool *constant; /* of the inputs: compiled into the graph */
    int input_count, gathered_count, check_count;
    bool has_constants, wants_constants;
    char *label; /* of the plan's command; `operations`: in it */
    int64_t operations;
    int64_t patience; /* runs after which an input that stays the same counts as a constant; 0: never */
};

static const tn_engine *engine_of(const tn_device *d) {
    for (int i = 0; tn_engines[i]; i++)
        if (!strcmp(tn_engines[i]->backend, d->info.backend)) return tn_engines[i];
    return NULL;
}

/* ---- what the graph reads and makes ------------------------------------------------------------------------------ */

typedef struct engine_maker {
    const tn_binding *b;
    tn_plan *p;
    tn_engine_call *call;
    const tn_node **inputs, **outputs;
    int *output_of;       /* the binding's output behind each of the graph's; -1: indices that are only checked */
    int64_t *arena_place; /* of outputs that are made in the arena; -1: others */
    int input_count, output_count;
    size_t arena;
    int next_pointer;
} engine_maker;

static bool is_output(const engine_maker *m, const tn_node *n) {
    for (int i = 0; i < m->output_count; i++)
        if (m->outputs[i] == n) return true;
    return false;
}

/* A view of memory is whole where its elements follow each other in order, wherever the first one is. */
static bool lies_whole(const tn_node *n) {
    int64_t stride[TN_MAX_RANK], want[TN_MAX_RANK], offset;
    (void)tn_node_layout(n, &offset, stride);
    tn_strides_contiguous(n->shape, n->rank, want);
    for (int d = 0; d < n->rank; d++)
        if (n->shape[d] != 1 && stride[d] != want[d]) return false;
    return true;
}

static void list_inputs(engine_maker *m) {
    const tn_pointer_map *leaves = &m->b->scratch.leaf_ids;
    for (size_t i = 0; i < leaves->capacity; i++)
        if (leaves->keys[i]) m->inputs[leaves->values[i]] = leaves->keys[i];
    m->input_count = (int)leaves->count;
}

static void add_output(engine_maker *m, const tn_node *n, int output) {
    m->output_of[m->output_count] = output;
    m->outputs[m->output_count++] = n;
}

static bool is_checked(const engine_maker *m, size_t i) {
    const tn_node *n = m->b->recorder->pending[i];
    return n && (m->b->scratch.marks[i] & TN_MARK_NEEDED) && n->check && tn_node_numel(n) > 0;
}

static tn_status list_values(engine_maker *m) {
    const tn_binding *b = m->b;
    size_t outputs = b->output_count;
    for (size_t i = 0; i < b->recorder->count; i++)
        outputs += is_checked(m, i);
    m->inputs = tn_plan_own(m->p, (b->scratch.leaf_ids.count + 1) * sizeof *m->inputs);
    m->outputs = tn_plan_own(m->p, (outputs + 1) * sizeof *m->outputs);
    m->output_of = tn_plan_own(m->p, (outputs + 1) * sizeof *m->output_of);
    m->arena_place = tn_plan_own(m->p, (outputs + 1) * sizeof *m->arena_place);
    if (!m->inputs || !m->outputs || !m->output_of || !m->arena_place) return TN_ERR_MEMORY;
    list_inputs(m);
    for (size_t i = 0; i < b->output_count; i++)
        add_output(m, b->outputs[i].node, (int)i);
    for (size_t i = 0; i < b->recorder->count; i++)
        if (is_checked(m, i) && !is_output(m, b->recorder->pending[i])) add_output(m, b->recorder->pending[i], -1);
    return TN_OK;
}

/* ---- commands ---------------------------------------------------------------------------------------------------- */

static int arena_of(const tn_plan *p) { return p->bound_count + p->output_count; }

static int take_pointer(engine_maker *m, int slot, int64_t offset) {
    int at = m->next_pointer++;
    m->p->patches[m->p->patch_count++] = (tn_patch){.pointer = at, .slot = slot, .offset = offset};
    return at;
}

static int64_t take_arena(engine_maker *m, size_t bytes) {
    int64_t at = (int64_t)m->arena;
    m->arena += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    return at;
}

static tn_status make_room(engine_maker *m) {
    tn_plan *p = m->p;
    tn_engine_call *c = m->call;
    size_t inputs = (size_t)m->input_count, outputs = (size_t)m->output_count;
    p->pointer_count = 2 * inputs + 3 * outputs;
    p->scalar_count = m->b->scalar_count;
    p->commands = tn_plan_own(p, (1 + outputs) * sizeof *p->commands);
    p->pointers = tn_plan_own(p, p->pointer_count * sizeof *p->pointers);
    p->patches = tn_plan_own(p, p->pointer_count * sizeof *p->patches);
    p->scalars = tn_plan_own(p, p->scalar_count * sizeof *p->scalars);
    p->scalar_source = tn_plan_own(p, p->scalar_count * sizeof *p->scalar_source);
    p->runs.addresses = tn_plan_own(p, tn_plan_slots(p) * sizeof *p->runs.addresses);
    c->gathered = tn_mem_zalloc(inputs + 1, sizeof *c->gathered);
    c->checks = tn_mem_zalloc(inputs + outputs + 1, sizeof *c->checks);
    c->inputs = tn_mem_zalloc(inputs + 1, sizeof *c->inputs);
    c->constant = tn_mem_zalloc(inputs + 1, sizeof *c->constant);
    if (!p->commands || !p->pointers || !p->patches || !p->scalars || !p->scalar_source || !p->runs.addresses ||
        !c->gathered || !c->checks || !c->inputs || !c->constant)
        return TN_ERR_MEMORY;
    for (size_t i = 0; i < p->scalar_count; i++)
        p->scalar_source[i] = (int)i;
    return TN_OK;
}

static void add_check(engine_maker *m, const tn_node *n, int pointer, bool is_input) {
    const tn_index_check *c = n->check;
    if (!c || tn_node_numel(n) == 0) return;
    index_check *k = &m->call->checks[m->call->check_count++];
    *k = (index_check){.pointer = pointer,
                       .name = c->name,
                       .is_input = is_input,
                       .range = c->range,
                       .line = c->line,
                       .file = c->file,
                       .list = {.dtype = (tn_dtype)n->dtype, .rank = n->rank, .dense = true}};
    k->list.count = tn_node_numel(n);
    memcpy(k->list.shape, n->shape, sizeof k->list.shape);
    tn_strides_contiguous(n->shape, n->rank, k->list.stride);
}

static engine_input describe_input(const engine_maker *m, const tn_node *n, int slot) {
    bool shifts = false;
    for (size_t i = 0; i < m->b->shift_count; i++)
        shifts |= m->b->shifts[i].slot == slot;
    const tn_buffer *b = m->b->buffers[slot];
    bool may_stay = !shifts && (!tn_buffer_is_borrowed(b) || tn_map_has(b->address, b->bytes));
    return (engine_input){.slot = slot, .may_stay = may_stay, .bytes = tn_node_bytes(n)};
}

/* The graph's inputs are the first pointers, then come its outputs; where views are gathered from is behind those. */
static void add_inputs(engine_maker *m) {
    for (int i = 0; i < m->input_count; i++) {
        const tn_node *n = m->inputs[i], *root = n->flags & TN_NODE_VIEW ? n->root : n;
        int64_t stride[TN_MAX_RANK], offset;
        (void)tn_node_layout(n, &offset, stride);
        int slot = tn_map_find(&m->b->scratch.buffer_slots, root->buffer);
        int pointer = lies_whole(n) ? take_pointer(m, slot, (int64_t)tn_dtype_bytes((tn_dtype)n->dtype, offset))
                                    : take_pointer(m, arena_of(m->p), take_arena(m, tn_node_bytes(n)));
        m->call->inputs[i] = describe_input(m, n, slot);
        add_check(m, n, pointer, true);
    }
}

static void add_gathered(engine_maker *m) {
    for (int i = 0; i < m->input_count; i++) {
        const tn_node *n = m->inputs[i], *root = n->flags & TN_NODE_VIEW ? n->root : n;
        int64_t offset;
        if (lies_whole(n)) continue;
        gathered *t = &m->call->gathered[m->call->gathered_count++];
        *t = (gathered){.to = i, .rank = n->rank, .element = tn_dtype_size((tn_dtype)n->dtype)};
        (void)tn_node_layout(n, &offset, t->stride);
        memcpy(t->shape, n->shape, sizeof t->shape);
        t->from = take_pointer(m, tn_map_find(&m->b->scratch.buffer_slots, root->buffer), offset * (int64_t)t->element);
    }
}

static bool writes_state(const engine_maker *m, int i) {
    return m->output_of[i] >= 0 && m->b->outputs[m->output_of[i]].home >= 0;
}

/* States' new values, and indices that are only checked, are made in the arena. */
static void add_outputs(engine_maker *m) {
    for (int i = 0; i < m->output_count; i++) {
        bool own = m->output_of[i] >= 0 && !writes_state(m, i);
        m->arena_place[i] = own ? -1 : take_arena(m, tn_node_bytes(m->outputs[i]));
        int pointer = own ? take_pointer(m, m->p->bound_count + m->output_of[i], 0)
                          : take_pointer(m, arena_of(m->p), m->arena_place[i]);
        add_check(m, m->outputs[i], pointer, false);
    }
}

static void add_commits(engine_maker *m) {
    tn_plan *p = m->p;
    for (int i = 0; i < m->output_count; i++) {
        if (!writes_state(m, i)) continue;
        size_t bytes = tn_node_bytes(m->outputs[i]);
        tn_command *c = &p->commands[p->command_count++];
        *c = (tn_command){.kind = TN_CMD_COPY, .bytes = bytes, .commit = true, .cost = {.bytes = 2 * (int64_t)bytes}};
        snprintf(c->label, sizeof c->label, "copy to state");
        c->pointers = &p->pointers[take_pointer(m, m->b->outputs[m->output_of[i]].home, 0)];
        (void)take_pointer(m, arena_of(p), m->arena_place[i]);
    }
}

/* By slots: plan.c's bind walks the patches of one slot (tn_plan.patches_of). */
static tn_status sort_patches(tn_plan *p) {
    size_t slots = tn_plan_slots(p), at = 0;
    tn_patch *sorted = tn_plan_own(p, (p->patch_count + 1) * sizeof *sorted);
    p->patches_of = tn_plan_own(p, (slots + 1) * sizeof *p->patches_of);
    if (!sorted || !p->patches_of) return TN_ERR_MEMORY;
    for (size_t slot = 0; slot < slots; slot++) {
        p->patches_of[slot] = at;
        for (size_t i = 0; i < p->patch_count; i++)
            if (p->patches[i].slot == (int32_t)slot) sorted[at++] = p->patches[i];
    }
    p->patches_of[slots] = at;
    p->patches = sorted;
    return TN_OK;
}

static void put_label(tn_engine_call *c, int constants) {
    int n = snprintf(c->label, TN_LABEL, "graph of %lld operations", (long long)c->operations);
    if (constants) snprintf(c->label + n, TN_LABEL - (size_t)n, ", %d constants", constants);
}

static tn_status add_commands(engine_maker *m) {
    tn_plan *p = m->p;
    TRY(make_room(m));
    add_inputs(m);
    add_outputs(m);
    add_gathered(m);
    tn_command *c = &p->commands[p->command_count++];
    *c = (tn_command){.kind = TN_CMD_ENGINE, .pointers = p->pointers, .scalars = p->scalars, .engine = m->call};
    m->call->label = c->label;
    m->call->operations = p->placement.operations;
    put_label(m->call, 0);
    for (int i = 0; i < m->input_count; i++)
        c->cost.bytes += (int64_t)tn_node_bytes(m->inputs[i]);
    for (int i = 0; i < m->output_count; i++)
        c->cost.bytes += (int64_t)tn_node_bytes(m->outputs[i]);
    add_commits(m);
    p->arena_bytes = m->arena;
    return sort_patches(p);
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

tn_status tn_engine_refuse(tn_engine_refusal *why, const tn_node *n) {
    for (size_t i = 0; i < why->count; i++)
        if (why->nodes[i] == n) return TN_OK;
    TRY(tn_mem_grow(&why->nodes, &why->capacity, why->count + 1, sizeof *why->nodes));
    why->nodes[why->count++] = n;
    return TN_OK;
}

/* Random numbers are ours on every device. */
static bool is_random(const tn_node *n) { return tn_op_has(n, TN_FACT_RANDOM); }

static void note(tn_plan *p, const tn_node *n, const char *code, const char *why) {
    tn_placed *at = &p->placement.placed[p->placement.placed_count++];
    *at = (tn_placed){.op = tn_op(n->op)->name, .code = code};
    snprintf(at->reason, sizeof at->reason, "%s", why);
    tn_node_describe(n, at->where, sizeof at->where);
}

static bool is_computed(const engine_maker *m, size_t i) {
    const tn_node *n = m->b->recorder->pending[i];
    return n && (m->b->scratch.marks[i] & TN_MARK_NEEDED) && !(n->flags & TN_NODE_VIEW);
}

/* The cpu computes all of it: the operations that the engine lacks, and the others because of them. */
static tn_status note_all(engine_maker *m, const tn_engine_refusal *why) {
    static const char FOLLOWS[] = "follows";
    tn_plan *p = m->p;
    p->placement.placed =
        tn_plan_own(p, ((size_t)p->placement.operations + why->count + 1) * sizeof *p->placement.placed);
    if (!p->placement.placed) return TN_ERR_MEMORY;
    for (size_t i = 0; i < why->count; i++)
        note(p, why->nodes[i], why->code, why->why);
    for (size_t i = 0; i < m->b->recorder->count; i++) {
        const tn_node *n = m->b->recorder->pending[i];
        if (!is_computed(m, i)) continue;
        if (p->placement.placed_count)
            note(p, n, FOLLOWS, "stands in one evaluation with what the engine lacks");
        else
            note(p, n, why->code, why->why);
    }
    return TN_OK;
}

/* The cpu computes these before the engine's graph. */
static tn_status note_first(engine_maker *m, const tn_engine_refusal *why) {
    tn_plan *p = m->p;
    p->placement.placed = tn_plan_own(p, (why->count + 1) * sizeof *p->placement.placed);
    p->placement.first_on_host = tn_plan_own(p, (why->count + 1) * sizeof *p->placement.first_on_host);
    if (!p->placement.placed || !p->placement.first_on_host) return TN_ERR_MEMORY;
    for (size_t i = 0; i < why->count; i++) {
        p->placement.first_on_host[p->placement.first_count++] = m->b->scratch.numbers[why->nodes[i]->index];
        if (!is_random(why->nodes[i])) note(p, why->nodes[i], why->code, why->why);
    }
    return TN_OK;
}

/* Strictly, only random numbers may be the host's. */
static tn_status refuse_strictly(const tn_plan *p, const tn_engine_refusal *why) {
    char where[160] = "";
    size_t i = 0;
    while (i < why->count && is_random(why->nodes[i]))
        i++;
    if (i == why->count && why->count) return TN_OK;
    if (i < why->count) tn_node_describe(why->nodes[i], where, sizeof where);
    return tn_fail(TN_ERR_UNSUPPORTED,
                   "%s%s%s %s, and no other device may compute it (strict): choose another dtype or device, or allow "
                   "fallback",
                   where, where[0] ? ": " : "", p->device->info.id, why->why);
}

static tn_status take_refusal(engine_maker *m, const tn_engine_refusal *why) {
    if (m->p->device->fallback == TN_FALLBACK_STRICT) TRY(refuse_strictly(m->p, why));
    return why->count && !m->b->request.whole ? note_first(m, why) : note_all(m, why);
}

/* ---- making and running ------------------------------------------------------------------------------------------ */

static int64_t count_operations(const tn_binding *b) {
    int64_t count = 0;
    for (size_t i = 0; i < b->recorder->count; i++) {
        const tn_node *n = b->recorder->pending[i];
        count += n && (b->scratch.marks[i] & TN_MARK_NEEDED) && !(n->flags & TN_NODE_VIEW);
    }
    return count;
}

tn_status tn_engine_plan(const tn_binding *b, tn_plan *p, bool *made) {
    engine_maker m = {.b = b, .p = p};
    tn_engine_refusal why = {.code = "refused_by_compiler"};
    const tn_engine *engine = engine_of(p->device);
    *made = false;
    if (!engine) return TN_OK;
    if (!(m.call = tn_mem_zalloc(1, sizeof *m.call))) return TN_ERR_MEMORY;
    m.call->engine = engine;
    m.call->patience = PATIENCE;
    p->placement.operations = count_operations(b);
    tn_status s = list_values(&m);
    const tn_engine_graph g = {.device = p->device,
                               .inputs = m.inputs,
                               .outputs = m.outputs,
                               .scalars = b->scalar_nodes,
                               .input_count = m.input_count,
                               .output_count = m.output_count,
                               .scalar_count = (int)b->scalar_count,
                               .recorder = b->recorder,
                               .recorded = b->recorder->count};
    if (s == TN_OK) s = engine->compile(&g, &m.call->compiled, &why);
    m.call->input_count = m.input_count;
    if (s == TN_OK) s = add_commands(&m);
    *made = s == TN_OK;
    if (*made) return TN_OK;
    if (p->command_count == 0) tn_engine_call_free(m.call); /* else it is the plan's */
    if (s == TN_ERR_UNSUPPORTED) s = take_refusal(&m, &why);
    tn_mem_free(why.nodes);
    return s;
}

tn_status tn_engine_failed(tn_plan *p, tn_status status) {
    p->runs.failed_there = status == TN_ERR_ARGUMENT || p->device->fallback != TN_FALLBACK_STRICT;
    if (status == TN_ERR_ARGUMENT) return TN_OK;
    char why[TN_REASON_BYTES];
    snprintf(why, sizeof why, "failed to run the graph (%.*s)", (int)sizeof why - 30, tn_error());
    if (!p->runs.failed_there)
        return tn_fail(TN_ERR_UNSUPPORTED, "%s %s, and no other device may compute it (strict)", p->device->info.id,
                       why);
    p->placement.placed = tn_plan_own(p, sizeof *p->placement.placed);
    if (!p->placement.placed) return TN_ERR_MEMORY;
    p->placement.placed_count = 1;
    *p->placement.placed = (tn_placed){.op = "graph", .code = "refused_by_compiler"};
    snprintf(p->placement.placed->reason, sizeof p->placement.placed->reason, "%s", why);
    snprintf(p->placement.placed->where, sizeof p->placement.placed->where, "%.150s", p->commands[0].label);
    return TN_OK;
}

/* ---- constants --------------------------------------------------------------------------------------------------- */
/* A plan knows no values, so weights are inputs of its graph. Inputs that stay the same from run to run while others
 * change are weights: if they are most of what the graph reads, the engine compiles it again with their values. When
 * one of them is written after all, the first graph is used again, and constants are looked for with more patience. */

static void drop_constants(tn_engine_call *c) {
    (void)c->engine->fix(c->compiled, NULL, NULL);
    memset(c->constant, 0, (size_t)c->input_count * sizeof *c->constant);
    c->has_constants = false;
    c->patience *= 4;
    put_label(c, 0);
}

void tn_engine_call_varies(tn_engine_call *c, int slot) {
    for (int i = 0; i < c->input_count; i++)
        c->inputs[i].may_stay &= c->inputs[i].slot != slot;
}

static bool choose_constants(tn_engine_call *c) {
    size_t all = 0, stays = 0;
    int count = 0;
    for (int i = 0; i < c->input_count; i++) {
        bool constant = c->inputs[i].may_stay && c->inputs[i].same >= c->patience;
        c->constant[i] = constant;
        count += constant;
        all += c->inputs[i].bytes;
        stays += constant ? c->inputs[i].bytes : 0;
    }
    return count < c->input_count && stays > all / 2;
}

void tn_engine_call_bind(tn_engine_call *c, tn_buffer *const *bound) {
    bool written = false;
    if (!c->engine->fix || !c->patience) return;
    for (int i = 0; i < c->input_count; i++) {
        engine_input *in = &c->inputs[i];
        const tn_buffer *b = bound ? bound[in->slot] : NULL;
        uint64_t version = b ? b->version : 0;
        in->same = b && b == in->buffer && version == in->version ? in->same + 1 : 0;
        in->buffer = b;
        in->version = version;
        written |= c->has_constants && c->constant[i] && in->same == 0;
    }
    if (written) drop_constants(c);
    c->wants_constants = !c->has_constants && choose_constants(c);
}

/* Called before a run, when all inputs have their values. On failure the graph without constants stays in use. */
static void fix_constants(tn_engine_call *c, void *const *pointers) {
    c->wants_constants = false;
    c->has_constants = c->engine->fix(c->compiled, pointers, c->constant) == TN_OK;
    int count = 0;
    for (int i = 0; i < c->input_count; i++)
        count += c->constant[i];
    put_label(c, c->has_constants ? count : 0);
    if (c->has_constants) return;
    memset(c->constant, 0, (size_t)c->input_count * sizeof *c->constant);
    c->patience = 0;
}

void tn_engine_call_free(tn_engine_call *c) {
    if (!c) return;
    if (c->compiled) c->engine->free(c->compiled);
    tn_mem_free_each(c->gathered, c->checks, c->inputs, c->constant, c);
}

static void gather(const gathered *t, const char *from, char *to) {
    int64_t index[TN_MAX_RANK] = {0}, last = t->rank - 1, count = tn_product(t->shape, last);
    for (int64_t row = 0; row < count; row++) {
        int64_t at = 0, step = t->stride[last] * (int64_t)t->element;
        for (int d = 0; d < last; d++)
            at += index[d] * t->stride[d];
        const char *first = from + at * (int64_t)t->element;
        for (int64_t i = 0; i < t->shape[last]; i++, to += t->element)
            memcpy(to, first + i * step, t->element);
        for (int64_t d = last - 1; d >= 0 && ++index[d] == t->shape[d]; d--)
            index[d] = 0;
    }
}

/* Constants were checked as inputs; their place in the arena may have been used for something else since. */
static tn_status check_indices(const tn_engine_call *c, void *const *pointers, bool inputs) {
    for (int i = 0; i < c->check_count; i++) {
        const index_check *k = &c->checks[i];
        tn_index_list list = k->list;
        if (k->is_input != inputs || (inputs && c->has_constants && c->constant[k->pointer])) continue;
        list.first = pointers[k->pointer];
        if (tn_indices_inside(&list, &k->range)) continue;
        tn_status s = tn_indices_refuse(k->name, &list, &k->range);
        return k->file ? tn_fail_prefix(s, "%s:%d", k->file, (int)k->line) : s;
    }
    return TN_OK;
}

tn_status tn_engine_call_run(tn_engine_call *c, void *const *pointers, const kir_scalar *scalars) {
    for (int i = 0; i < c->gathered_count; i++)
        if (!c->has_constants || !c->constant[c->gathered[i].to])
            gather(&c->gathered[i], pointers[c->gathered[i].from], pointers[c->gathered[i].to]);
    TRY(check_indices(c, pointers, true));
    if (c->wants_constants) fix_constants(c, pointers);
    tn_status s = c->engine->run(c->compiled, pointers, pointers + c->input_count, scalars);
    if (s != TN_OK) return s == TN_ERR_MEMORY ? s : TN_ERR_DEVICE;
    return check_indices(c, pointers, false);
}
