/* values.c — makes values from nodes: expands composed ops, merges equal values, finds varying numbers.
 *
 * Values are numbered so that operands come before users. A composed node is replaced by its composition: the one that
 * autograd differentiated, if it exists, else one made here whose nodes are freed with the planner. The walk has an
 * explicit stack instead of recursion, because recordings can be deep. */
#include <string.h>

#include "hal/hal.h"
#include "ops/ops_common.h"
#include "plan/passes.h"
#include "plan/plan.h"

/* ---- facts ------------------------------------------------------------------------------------------------------- */

int64_t tn_value_numel(const tn_value *v) { return tn_node_numel(v->node); }

/* A product without a kernel (its dtype, its device, too many batch axes) is the reduction that defines it. */
static bool has_kernel(const tn_value *v) {
    const tn_node *n = v->node;
    if (!n->device->is_cpu && !v->host.only) return tn_workgroup_takes(v);
    const bool lowered = v->row->impl->lower && v->row->impl->compose; /* what it composes to is itself, lowered */
    if (v->row->impl->class_ == TN_NATIVE) return !lowered || tn_native_takes(n);
    return (tn_dtype_is_float((tn_dtype)n->dtype) || tn_op_has(n, TN_FACT_INT_PRODUCT)) &&
           n->rank <= TN_GEMM_BATCH_AXES + 2;
}

tn_op_class tn_value_class(const tn_value *v) {
    if (!v->row) return TN_LEAF_VALUE;
    if (v->by.engine) return TN_NATIVE;
    tn_op_class c = v->row->impl->class_;
    uint32_t facts = v->row->impl->facts;
    if (c == TN_ELEMENTWISE && !(facts & TN_FACT_COPY)) return c;
    bool moves = (facts & (TN_FACT_COPY | TN_FACT_TAKE)) || ((facts & TN_FACT_CONCAT) && v->copied);
    if (moves && v->node->device->is_cpu && tn_native_takes(v->node)) return TN_NATIVE;
    if (c == TN_MATMUL && !v->by.vendor && tn_is_outer_product(v->node)) return TN_MOVEMENT;
    if ((c != TN_MATMUL && c != TN_NATIVE) || v->by.vendor || has_kernel(v)) return c;
    if (c == TN_NATIVE && !v->row->impl->lower) return c;
    return v->row->impl->loops ? TN_REDUCTION : TN_MOVEMENT;
}

bool tn_value_in_memory(const tn_graph_plan *g, int value) {
    const tn_value *root = &g->values[g->values[value].root];
    return root->slot >= 0 || root->stored;
}

int tn_value_of(const tn_graph_plan *g, const tn_node *n) {
    for (;;) {
        int32_t id = tn_map_find(&g->value_of, n);
        if (id >= 0) return id;
        int32_t e = tn_map_find(&g->expansions.of, n);
        if (e < 0) return -1;
        n = g->expansions.list[e];
    }
}

/* ---- expansion --------------------------------------------------------------------------------------------------- */

/* A native op (primitive, or composed for autograd) has a composition for devices without a kernel for it. A reduction
 * has one in terms of reductions that the CPU has a kernel for, or is its own where reducing directly is faster. */
static bool is_composed(const tn_graph_plan *g, const tn_node *n) {
    if (n->op == TN_OP_NONE || tn_node_computed(n)) return false;
    const tn_op_row *row = tn_op(n->op);
    if (n->expansion && row->kind == TN_KERNEL) return true; /* differentiated in f32 (passes.h) */
    if (row->kind == TN_COMPOSED && (row->impl->class_ != TN_NATIVE || tn_is_widened(n))) return true;
    if (!row->impl->compose) return false;
    /* devices that are processors: not where it means to sort, which takes long there */
    bool software = n->device->info.software && (row->impl->facts & TN_FACT_SORTS);
    if (row->impl->class_ == TN_REDUCTION) return n->device->is_cpu || software;
    if (row->impl->class_ == TN_SCANNING) return n->rank == 0 || !g->engine; /* or is its own: a kernel scans a dim */
    if (row->impl->class_ != TN_NATIVE) return false;
    if (g->engine) return true; /* of operations that the engine has, perhaps */
    return n->device->is_cpu ? !tn_native_takes(n) : !tn_workgroup_takes_node(n);
}

/* A composition may end in a view with another layout than its users assume; then it is copied. */
static tn_node *as_whole(tn_graph_plan *g, tn_node *n) {
    if (tn_node_contiguous(n)) return n;
    return tn_b_contiguous(&g->build, n);
}

static tn_status check_planned_expansion(const tn_node *n, const tn_node *e) {
    bool same = e->dtype == n->dtype && e->rank == n->rank &&
                memcmp(e->shape, n->shape, (size_t)n->rank * sizeof *n->shape) == 0;
    if (same) return TN_OK;
    char want[128], got[128];
    return tn_fail(TN_ERR_INTERNAL, "%s: its composition gives %s %s instead of %s %s", tn_op(n->op)->name,
                   tn_dtype_name((tn_dtype)e->dtype), tn_shape_text(e, got, sizeof got),
                   tn_dtype_name((tn_dtype)n->dtype), tn_shape_text(n, want, sizeof want));
}

static tn_status expand(tn_graph_plan *g, const tn_node *n, tn_node **out) {
    int32_t known = tn_map_find(&g->expansions.of, n);
    if (known >= 0) {
        *out = g->expansions.list[known];
        return TN_OK;
    }
    tn_node *e = n->expansion ? n->expansion : tn_compose(&g->build, n);
    if (e && e != n) e = as_whole(g, e);
    if (g->build.status != TN_OK) return g->build.status;
    *out = e;
    if (e == n) return TN_OK;
    if (!e) return tn_fail(TN_ERR_INTERNAL, "%s: its composition gives no value", tn_op(n->op)->name);
    TRY(check_planned_expansion(n, e));
    TRY(tn_scratch_grow(&g->scratch, &g->expansions.list, &g->expansions.capacity, g->expansions.count + 1,
                        sizeof *g->expansions.list));
    g->expansions.list[g->expansions.count] = e;
    TRY(tn_map_put(&g->expansions.of, n, (int32_t)g->expansions.count));
    g->expansions.count++;
    *out = e;
    return TN_OK;
}

/* A composition may look past the node that has the check, to what that is a view of. The indices of an op that was
 * computed before this plan were checked then, and nothing binds them now. */
static tn_status note_indices(tn_graph_plan *g, const tn_node *n) {
    if (n->check) TRY(tn_note_checked(g, n));
    if (tn_node_computed(n) || n->op >= TN_OP_COUNT || !tn_takes_indices(n->op)) return TN_OK;
    if (n->n_in <= tn_index_rules[n->op].input) return TN_OK;
    const tn_node *index = n->in[tn_index_rules[n->op].input];
    return index && index->check ? tn_note_checked(g, index) : TN_OK;
}

/* Follows compositions to the node that is really computed. */
static tn_status resolve(tn_graph_plan *g, const tn_node *n, const tn_node **out) {
    enum { MAX_NESTING = 64 };
    for (int depth = 0;; depth++) {
        tn_node *e = NULL;
        bool taken = false;
        const char *why;
        TRY(note_indices(g, n));
        TRY(tn_vendor_ask(g, n, &taken));
        if (taken || tn_engine_takes(g, n, &why) || !is_composed(g, n)) break;
        if (depth == MAX_NESTING)
            return tn_fail(TN_ERR_INTERNAL, "%s: compositions are nested without end", tn_op(n->op)->name);
        TRY(expand(g, n, &e));
        if (e == n) break;
        n = e;
    }
    *out = n;
    return TN_OK;
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

/* As many as the recording has nodes at first: its needed nodes, their leaves, and what compositions add. */
static tn_status grow_values(tn_graph_plan *g) {
    enum { A_FEW = 8, MANY = 64 };
    size_t nodes = g->pending_before < MANY ? g->pending_before : MANY;
    size_t more = g->value_count > 0 ? g->value_count : nodes;
    return tn_scratch_grow(&g->scratch, &g->values, &g->value_capacity, g->value_count + more + A_FEW,
                           sizeof *g->values);
}

static tn_status value_add(tn_graph_plan *g, const tn_node *n, int *id) {
    if (g->value_count == g->value_capacity) TRY(grow_values(g));
    *id = (int)g->value_count;
    tn_value *v = &g->values[g->value_count++];
    g->fusion.trains |= (n->flags & TN_NODE_GRAD) != 0;
    *v = (tn_value){.node = n,
                    .root = *id,
                    .slot = -1,
                    .output = -1,
                    .scalar = -1,
                    .group = -1,
                    .memory = {.place = -1, .into = -1}};
    tn_strides_contiguous(n->shape, n->rank, v->stride);
    return tn_map_put(&g->value_of, n, *id);
}

/* The slot of a value that is bound separately, or that a composition sees as a view of one; -1: neither. *shifted:
 * elements of its root before the bound part. */
static int32_t slot_apart(const tn_binding *b, const tn_node *n, int64_t *shifted) {
    const int both = TN_NODE_VIEW | TN_NODE_VARIES;
    int32_t slot = -1;
    for (; slot < 0 && (n->flags & both) == both; n = n->n_in ? n->in[0] : n->root)
        slot = tn_map_find(&b->scratch.buffer_slots, n);
    for (size_t i = 0; slot >= 0 && i < b->shift_count; i++)
        if (b->shifts[i].slot == slot) *shifted = b->shifts[i].bytes / (int64_t)tn_dtype_size((tn_dtype)n->dtype);
    return slot;
}

/* Bound memory: one value for the buffer's root, further ones for views into it. */
static tn_status leaf_value(tn_graph_plan *g, const tn_node *n, int *id) {
    const tn_node *root = n->flags & TN_NODE_VIEW ? n->root : n;
    int64_t shifted = 0;
    int32_t slot = slot_apart(g->binding, n, &shifted);
    if (slot < 0) slot = tn_map_find(&g->binding->scratch.buffer_slots, root->buffer);
    if (slot < 0) return tn_fail(TN_ERR_INTERNAL, "no buffer was bound to a leaf");
    TRY(value_add(g, n, id));
    tn_value *v = &g->values[*id];
    v->slot = slot;
    tn_node_layout(n, &v->offset, v->stride);
    v->offset -= shifted;
    return TN_OK;
}

static bool same_value(const tn_value *a, const tn_node *n, const int *in, int n_in) {
    const tn_node *m = a->node;
    if ((m->flags | n->flags) & TN_NODE_VARIES) return false; /* at another run they may differ */
    if (!a->row || m->op != n->op || m->dtype != n->dtype || m->rank != n->rank || m->n_i != n->n_i || m->n_f != n->n_f)
        return false;
    if (a->n_in != n_in || (n_in && memcmp(a->in, in, (size_t)n_in * sizeof *in) != 0)) return false;
    if (memcmp(m->shape, n->shape, (size_t)n->rank * sizeof *n->shape) != 0) return false;
    return memcmp(m->i, n->i, (size_t)n->n_i * sizeof *n->i) == 0 &&
           memcmp(m->f, n->f, (size_t)n->n_f * sizeof *n->f) == 0;
}

/* Searches the users of the first input (for constants: a few recent values). That is enough for gradients and
 * compositions, which repeat values locally. Outputs have their own memory, so they are not merged. */
static int find_equal(const tn_graph_plan *g, const tn_node *n, const int *in, int n_in) {
    enum { WINDOW = 256 };
    if (atomic_load_explicit(&n->handles, memory_order_relaxed) > 0 && n->recorder &&
        (size_t)n->index < g->pending_before)
        return -1;
    size_t from = g->value_count > WINDOW ? g->value_count - WINDOW : 0;
    const tn_op_row *row = tn_op(n->op);
    for (size_t i = g->value_count; i-- > from;) {
        const tn_value *v = &g->values[i];
        if (v->row != row || v->n_in != n_in || (n_in > 0 && v->in[0] != in[0])) continue;
        if (v->output < 0 && v->scalar < 0 && same_value(v, n, in, n_in)) return (int)i;
    }
    return -1;
}

bool tn_value_dense(const tn_value *v) { return tn_strides_are_contiguous(v->node->shape, v->node->rank, v->stride); }

/* Whether v is all elements, in order, of a value that is computed here. */
static bool value_whole(const tn_graph_plan *g, const tn_value *v) {
    const tn_value *root = &g->values[v->root];
    if (!root->row || root->scalar >= 0 || tn_value_class(root) == TN_LEAF_VALUE) return false;
    return v->offset == 0 && tn_value_numel(v) == tn_value_numel(root) && tn_value_dense(v);
}

/* Whether n is a view of all of v's elements where they are, such as a detached tensor. */
static bool is_alias(const tn_node *n, const tn_value *v) {
    int64_t offset, stride[TN_MAX_RANK];
    const size_t rank = n->rank;
    if (!(n->flags & TN_NODE_VIEW) || (n->flags & TN_NODE_VARIES) || tn_op_has(n, TN_FACT_GATE)) return false;
    if (n->dtype != v->node->dtype || !tn_same_shape(n, v->node)) return false;
    tn_node_layout(n, &offset, stride);
    return offset == v->offset && memcmp(stride, v->stride, rank * sizeof *stride) == 0 &&
           memcmp(n->symbol, v->node->symbol, rank * sizeof *n->symbol) == 0;
}

static tn_status computed_value(tn_graph_plan *g, const tn_node *n, const int *in, int n_in, int *id) {
    bool same = tn_op_has(n, TN_FACT_COPY) || (tn_op_has(n, TN_FACT_CAST) && n->dtype == n->in[0]->dtype);
    same = same && !g->expansions.copying && value_whole(g, &g->values[in[0]]);
    if (same || (n_in > 0 && in[0] >= 0 && is_alias(n, &g->values[in[0]]))) {
        *id = in[0]; /* in order already, and of this type */
        return tn_map_put(&g->value_of, n, *id);
    }
    int equal = tn_op_has(n, TN_FACT_LAUNCH_SCALAR) ? -1 : find_equal(g, n, in, n_in);
    if (equal >= 0) {
        *id = equal;
        return tn_map_put(&g->value_of, n, equal);
    }
    int *own = tn_scratch_take(&g->scratch, (size_t)n_in * sizeof *own);
    if (!own) return TN_ERR_MEMORY;
    if (n_in) memcpy(own, in, (size_t)n_in * sizeof *own);
    TRY(value_add(g, n, id));
    tn_value *v = &g->values[*id];
    v->row = tn_op(n->op);
    v->in = own;
    v->n_in = n_in;
    v->by.engine = v->alone = tn_engine_takes(g, n, &v->by.engine_why);
    v->by.of_nothing = g->engine && tn_engine_made_of_nothing(g, v);
    if (n->flags & TN_NODE_VIEW) {
        /* The root is the value whose memory holds the input's elements. A composed root was made contiguous, so
         * layouts agree. */
        const tn_value *src = &g->values[in[0]];
        v->root = src->root;
        tn_node_layout(n, &v->offset, v->stride);
    }
    return TN_OK;
}

/* ---- the walk ---------------------------------------------------------------------------------------------------- */

typedef struct walk_stack {
    const tn_node **nodes;
    size_t count, capacity;
} walk_stack;

static tn_status push_value(tn_graph_plan *g, walk_stack *s, const tn_node *n) {
    enum { FIRST = 32 };
    size_t need = s->count < FIRST ? FIRST : s->count + 1;
    if (s->count == s->capacity) TRY(tn_scratch_grow(&g->scratch, &s->nodes, &s->capacity, need, sizeof *s->nodes));
    s->nodes[s->count++] = n;
    return TN_OK;
}

/* Values of a node's inputs; *ready is false when some had to be pushed first. */
static tn_status inputs_of(tn_graph_plan *g, walk_stack *stack, const tn_node *n, int *in, bool *ready) {
    *ready = true;
    for (int i = 0; i < n->n_in; i++) {
        in[i] = -1;
        if (!n->in[i]) continue;
        const tn_node *source = NULL;
        TRY(resolve(g, n->in[i], &source));
        in[i] = tn_map_find(&g->value_of, source);
        if (in[i] >= 0) continue;
        *ready = false;
        TRY(push_value(g, stack, source));
    }
    return TN_OK;
}

static tn_status visit_node(tn_graph_plan *g, walk_stack *stack) {
    const tn_node *n = stack->nodes[stack->count - 1];
    int in[TN_MAX_INPUTS], id = -1;
    if (tn_map_find(&g->value_of, n) >= 0) {
        stack->count--;
        return TN_OK;
    }
    if (tn_node_computed(n) || n->op == TN_OP_NONE) {
        stack->count--;
        return leaf_value(g, n, &id);
    }
    bool ready = false;
    TRY(inputs_of(g, stack, n, in, &ready));
    if (!ready) return TN_OK;
    stack->count--;
    return computed_value(g, n, in, n->n_in, &id);
}

static tn_status walk_from(tn_graph_plan *g, walk_stack *stack, const tn_node *n, int *id) {
    const tn_node *source = NULL;
    TRY(resolve(g, n, &source));
    TRY(push_value(g, stack, source));
    while (stack->count > 0)
        TRY(visit_node(g, stack));
    *id = tn_map_find(&g->value_of, source);
    return TN_OK;
}

static tn_status mark_runtime_scalars(tn_graph_plan *g) {
    for (size_t i = 0; i < g->binding->scalar_count; i++) {
        int32_t id = tn_map_find(&g->value_of, g->binding->scalar_nodes[i]);
        if (id >= 0) g->values[id].scalar = (int)i;
    }
    return TN_OK;
}

/* An output that aliases other memory (a composition that ends in a view of a leaf, or a value that is already an
 * output) is copied. All elements of a computed value that is not kept otherwise are no alias: the output is that
 * value. */
static tn_status own_memory(tn_graph_plan *g, walk_stack *stack, const tn_output *output, int *id) {
    const tn_value *v = &g->values[*id];
    if (v->root != *id && output->home < 0 && g->values[v->root].output < 0 && value_whole(g, v)) {
        *id = v->root;
        return TN_OK;
    }
    bool alias = v->slot >= 0 || v->root != *id || v->output >= 0;
    if (!alias) return TN_OK;
    tn_node *n = (tn_node *)(uintptr_t)v->node;
    tn_node *copy = tn_b_contiguous(&g->build, n);
    if (!copy) return g->build.status;
    g->expansions.copying = true;
    tn_status s = walk_from(g, stack, copy, id);
    g->expansions.copying = false;
    return s;
}

static tn_status make_checked(tn_graph_plan *g, walk_stack *stack) {
    for (size_t i = 0; i < g->checked.count; i++) { /* a walk may find more */
        const tn_node *n = g->checked.list[i].node;
        int id = -1;
        if (tn_value_of(g, tn_index_source(n)) < 0 && tn_value_of(g, n) < 0) TRY(walk_from(g, stack, n, &id));
    }
    return tn_find_checked(g);
}

static const tn_node *needed_node(const tn_graph_plan *g, size_t i) {
    return g->binding->scratch.marks[i] & TN_MARK_NEEDED ? g->binding->recorder->pending[i] : NULL;
}

static bool has_fact(const tn_graph_plan *g, uint32_t fact) {
    for (size_t i = 0; i < g->pending_before; i++) {
        const tn_node *n = needed_node(g, i);
        if (n && tn_op_has(n, fact)) return true;
    }
    return false;
}

/* Values in the order of the recording: a weight's gradient follows the gradient that it is made of, whose memory is
 * then free, and does not wait for the weight's update. What is gathered from other processes waits for its user. */
static tn_status walk_in_order(tn_graph_plan *g, walk_stack *stack) {
    tn_status s = TN_OK;
    int id = -1;
    for (size_t i = 0; i < g->pending_before && s == TN_OK; i++)
        if (needed_node(g, i) && !tn_op_has(needed_node(g, i), TN_FACT_WHOLE))
            s = walk_from(g, stack, needed_node(g, i), &id);
    return s;
}

/* Sets read_along: how products read each buffer. `trained` follows inputs, as compositions' nodes have no mark. It
 * starts at results: leaves are marked in passes without gradients too, which read weights in one order. */
static tn_status note_product_reads(tn_graph_plan *g) {
    bool *trained = tn_scratch_take(&g->scratch, g->value_count * sizeof *trained);
    g->fusion.read_along = tn_scratch_take(&g->scratch, g->binding->buffer_count + 1);
    if (!g->fusion.read_along || !trained) return TN_ERR_MEMORY;
    memset(g->fusion.read_along, 0, g->binding->buffer_count + 1);
    for (size_t i = 0; i < g->value_count; i++) {
        const tn_value *v = &g->values[i];
        trained[i] = (v->node->flags & (TN_NODE_GRAD | TN_NODE_LEAF)) == TN_NODE_GRAD ||
                     ((size_t)v->root < i && trained[v->root]);
        for (int k = 0; k < v->n_in; k++)
            trained[i] |= v->in[k] >= 0 && trained[v->in[k]];
        if (!v->row || v->row->impl->class_ != TN_MATMUL) continue;
        for (int k = 0; k < v->n_in; k++) {
            const tn_value *x = v->in[k] < 0 ? NULL : &g->values[v->in[k]];
            int slot = x ? g->values[x->root].slot : -1;
            if (slot < 0 || x->node->rank < 1) continue;
            g->fusion.read_along[slot] |= x->stride[x->node->rank - 1] == 1 ? TN_READ_ROWS : TN_READ_COLUMNS;
            /* A frozen weight behind what is trained: the backward pass, in this plan or another, reads it too. */
            bool is_frozen = !trained[v->in[k]] && !(x->node->flags & TN_NODE_GRAD);
            if (trained[i] && is_frozen) g->fusion.read_along[slot] = TN_READ_BOTH;
        }
    }
    return TN_OK;
}

tn_status tn_values_make(tn_graph_plan *g) {
    walk_stack stack = {0};
    tn_status s = TN_OK;
    g->fusion.gathers = has_fact(g, TN_FACT_WHOLE);
    g->fusion.recomputes = has_fact(g, TN_FACT_GATE) || g->fusion.gathers;
    if (g->fusion.recomputes) s = walk_in_order(g, &stack);
    for (size_t i = 0; i < g->binding->output_count && s == TN_OK; i++) {
        int id = -1;
        s = walk_from(g, &stack, g->binding->outputs[i].node, &id);
        if (s == TN_OK) s = own_memory(g, &stack, &g->binding->outputs[i], &id);
        if (s == TN_OK) g->values[id].output = (int)i;
    }
    if (s == TN_OK) s = mark_runtime_scalars(g);
    if (s == TN_OK) s = make_checked(g, &stack);
    return s == TN_OK && g->fusion.trains ? note_product_reads(g) : s;
}

void tn_group_free(tn_group *group) {
    tn_native_free(group->run.native);
    if (group->run.engine_op) group->run.engine->free(group->run.engine_op);
    tn_kernel_release(group->run.kernel);
    kir_free(group->lowered.program);
    tn_mem_free(group->lowered.sizes);
    *group = (tn_group){0};
}

void tn_graph_plan_free(tn_graph_plan *g) {
    for (size_t i = 0; i < g->value_count; i++)
        tn_vendor_free(g->values[i].by.vendor);
    for (size_t i = 0; i < g->group_count; i++)
        tn_group_free(&g->groups[i]);
    tn_map_free(&g->checked.of);
    tn_map_free(&g->value_of);
    tn_map_free(&g->expansions.of);
    tn_vendor_forget(g);
    tn_build_end(&g->build);
    tn_scratch_free(&g->scratch);
}

/* ==== numbers and offsets that differ from run to run ============================================================= */
/* Attributes are part of the key, so a scale or slice that changes at each step would make a new plan each time. If no
 * plan is found, the key is compared with those of the newest plans. If they differ only in numbers that can be runtime
 * scalars, or in offsets of views, the source lines that recorded them are noted. From then on these are left out of
 * the key: the number becomes a runtime scalar, the view is bound separately. The bits are those of the constant. A
 * line that keeps missing for another reason is reported in one warning. */

enum {
    MOST_SITES = 64,     /* lines that are noted, */
    MOST_AT_ONCE = 12,   /* … and by one miss: the next one notes others */
    WARN_AFTER = 8,      /* misses of one line, */
    WARN_OF_SHAPES = 32, /* … or so many for shapes: data has some, and each makes its plan once */
};

typedef enum cause { NUMBERS, ARGUMENTS, SHAPE, CAUSES } cause;

static const struct {
    const char *what, *instead;
} causes[CAUSES] = {
    [NUMBERS] = {"a floating-point argument changes", "pass it as a tensor made by tn_runtime_scalar"},
    [ARGUMENTS] =
        {"an integer argument changes",
         "select the changing part by tn_index_select or tn_gather, with indices made by tn_runtime_scalar_int"},
    [SHAPE] = {"its shape changes", "pad to a few shapes, or mark the extent with tn_symbolic"}};

/* How a key differs from a plan's. */
typedef struct difference {
    const tn_binding *b;
    const uint64_t *old;
    size_t at;      /* the word that is looked at */
    size_t last;    /* the last one that differed */
    uint64_t fresh; /* leaves described so far */
    const tn_node *varying[MOST_AT_ONCE];
    int varying_count;
    const tn_node *blamed; /* the first that cannot vary */
    cause why;
    size_t blamed_at; /* a word of it that differs */
    bool other;       /* another program: nothing to learn */
} difference;

static bool differs(difference *d) {
    bool is = d->old[d->at] != d->b->key.words[d->at];
    if (is) d->last = d->at;
    d->at++;
    return is;
}

static bool any_differs(difference *d, int words) {
    bool any = false;
    for (int k = 0; k < words; k++)
        any |= differs(d);
    return any;
}

static void blame(difference *d, const tn_node *n, cause why, size_t at) {
    if (d->blamed) return;
    d->blamed = n;
    d->why = why;
    d->blamed_at = at;
}

/* Something of n differs that may vary, if it does not do so already. */
static void vary(difference *d, const tn_node *n, cause why, size_t at) {
    const tn_site *s = tn_recorder_site(d->b->recorder, n);
    if ((n->flags & TN_NODE_VARIES) || (s && s->stays))
        blame(d, n, why, at);
    else if (d->varying_count < MOST_AT_ONCE)
        d->varying[d->varying_count++] = n;
}

/* ---- the words of a key, as plan_key.c writes them --------------------------------------------------------------- */

static void compare_leaf(difference *d, const tn_node *n) {
    bool apart = d->b->key.words[d->at] >> 56 & 1;
    d->other |= differs(d);
    if (any_differs(d, n->rank)) blame(d, n, SHAPE, d->last);
    if (!(n->flags & TN_NODE_VIEW)) return;
    if (differs(d) && !apart) vary(d, n, ARGUMENTS, d->last); /* bound apart: a few plans, one an alignment */
    if (any_differs(d, n->rank)) blame(d, n, SHAPE, d->last);
}

static void compare_input(difference *d, const tn_node *in) {
    uint64_t word = d->b->key.words[d->at];
    d->other |= differs(d);
    if ((word & 3) != TN_KEY_LEAF || word >> 2 != d->fresh) return;
    d->fresh++;
    compare_leaf(d, in);
}

static void compare_attributes(difference *d, const tn_node *n) {
    if (tn_op_has(n, TN_FACT_LAUNCH_SCALAR)) {
        d->other |= differs(d);
        return;
    }
    bool moved = any_differs(d, tn_op_has(n, TN_FACT_EXTENTS) ? 0 : n->n_i);
    size_t moved_at = d->last;
    bool numbers = any_differs(d, tn_number_varies(d->b, n) ? 0 : n->n_f);
    bool view_of_memory = (n->flags & TN_NODE_VIEW) && n->root->buffer && d->b->device->is_cpu;
    if (moved && view_of_memory)
        vary(d, n, ARGUMENTS, moved_at);
    else if (moved)
        blame(d, n, ARGUMENTS, moved_at);
    if (numbers && tn_node_can_vary(n))
        vary(d, n, NUMBERS, d->last);
    else if (numbers)
        blame(d, n, NUMBERS, d->last);
}

static void compare_node(difference *d, const tn_node *n) {
    d->other |= differs(d);
    if (any_differs(d, n->rank)) blame(d, n, SHAPE, d->last);
    compare_attributes(d, n);
    for (int k = 0; k < (n->expansion ? 1 : n->n_in) && !d->other; k++)
        compare_input(d, n->expansion ? n->expansion : n->in[k]);
}

static void compare_varying(difference *d) {
    const tn_recorder *r = d->b->recorder;
    d->other = any_differs(d, TN_KEY_HEAD);
    for (size_t i = 0; i < r->count && !d->other && !d->blamed; i++)
        if (d->b->scratch.marks[i] & TN_MARK_NEEDED) compare_node(d, r->pending[i]);
    while (d->at < d->b->key.count && !d->other && !d->blamed)
        d->other = differs(d);
}

/* ---- what is learned --------------------------------------------------------------------------------------------- */

/* Compares the key with those of the newest plans. Stops at the first that differs only in what may vary; else *d
 * describes one that differs in more. false: no plan has this structure. */
static bool find_difference(const tn_plan_cache *c, const tn_binding *b, difference *d) {
    bool found = false;
    for (int i = 0; i < TN_NEWEST_PLANS; i++) {
        const tn_plan *p = c->newest[i];
        if (!p || p->key.count != b->key.count) continue;
        if (found && p->key.words[d->blamed_at] != b->key.words[d->blamed_at]) continue; /* it is to blame here too */
        difference with;
        with.b = b;
        with.old = p->key.words;
        with.at = with.last = with.fresh = 0;
        with.varying_count = 0;
        with.blamed = NULL;
        compare_varying(&with);
        if (with.other || (found && with.blamed)) continue;
        found = true;
        *d = with;
        if (!d->blamed) return true;
    }
    return found;
}

static tn_site *site_for(tn_recorder *r, const tn_node *n) {
    tn_site *s = tn_recorder_site(r, n);
    if (s || r->site_count == MOST_SITES) return s;
    if (tn_mem_reserve(&r->sites, &r->site_capacity, r->site_count + 1, sizeof *r->sites) != TN_OK) return NULL;
    s = &r->sites[r->site_count++];
    *s = (tn_site){.file = n->file, .line = n->line, .op = n->op};
    return s;
}

static void warn(const tn_site *s, const tn_node *n, cause why) {
    char text[160];
    tn_node_describe(n, text, sizeof text);
    tn_log_line(TN_LOG_NOTICE,
                "%s: %d evaluations could not reuse a plan, because %s from one to the next; each needed a new plan. "
                "To avoid this, %s",
                text, s->misses, causes[why].what, causes[why].instead);
}

void tn_vary_learn(const tn_plan_cache *c, const tn_binding *b) {
    tn_recorder *r = b->recorder;
    difference d;
    if (!b->request.varies || !find_difference(c, b, &d)) return;
    for (int i = 0; i < d.varying_count && !d.blamed; i++) {
        tn_site *s = site_for(r, d.varying[i]);
        if (!s) continue;
        s->varies = true;
        r->watches = true;
    }
    tn_site *s = d.blamed ? site_for(r, d.blamed) : NULL;
    if (!s || !s->file || ++s->misses < (d.why == SHAPE ? WARN_OF_SHAPES : WARN_AFTER) || s->warned) return;
    s->warned = true;
    warn(s, d.blamed, d.why);
}
