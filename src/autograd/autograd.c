/* autograd.c — gradients in reverse mode, from graph to graph.
 *
 * A node that requires gradients keeps its inputs, so the tape is the graph itself. From the outputs we walk down
 * through such nodes to the leaves (depth first, without recursion), which yields them in topological order; in the
 * reverse of it each node has its whole gradient when its turn comes, and its row's grad() builds the gradients of its
 * inputs out of ordinary nodes. A composed op without a rule of its own is differentiated through its expansion, the
 * one that the planner computes it with. Nothing outside changes until all has been built: a failure leaves every leaf
 * as it was.
 *
 * Regions of TN_RECOMPUTE: a rule sees copies of the region's nodes instead of the nodes. The copies begin at views of
 * what the region was given; these views depend on the first gradient that reached the region, so the planner neither
 * merges the copies with what the forward pass computed nor computes them before they are needed. */
#include <string.h>

#include "autograd/tape.h"
#include "hal/hal.h"
#include "ops/ops_common.h"
#include "plan/passes.h"
#include "tensor/graph.h"
#include "trunnion/autograd.h"

#include "gen/ops_build.h"

/* x + y, where both are neighbouring parts of one tensor with zeros around them: without adding. NULL when they are not
 * (or on a failure of the build). */
static tn_node *join_slice_gradients(tn_build *b, tn_node *x, tn_node *y);

/* ---- the tape of one call ---------------------------------------------------------------------------------------- */

static const void *gradient_key_of(const tn_node *n) {
    return (n->flags & TN_NODE_LEAF) && n->slot ? (const void *)n->slot : (const void *)n;
}

/* Where `key` is in the table, or the empty place where it belongs. */
static size_t table_place(const tape *t, const void *key) {
    size_t mask = t->table_size - 1;
    size_t at = (size_t)(((uintptr_t)key >> 4) * UINT64_C(0x9E3779B97F4A7C15) >> 20) & mask;
    while (t->table[at] && gradient_key_of(t->entries[t->table[at] - 1].node) != key)
        at = (at + 1) & mask;
    return at;
}

tape_entry *tn_tape_find(const tape *t, const tn_node *n) {
    if (!t->table_size) return NULL;
    int32_t found = t->table[table_place(t, gradient_key_of(n))];
    return found ? &t->entries[found - 1] : NULL;
}

static tn_status table_double(tape *t) {
    size_t size = t->table_size ? t->table_size * 2 : 256;
    int32_t *table = tn_mem_zalloc(size, sizeof *table);
    if (!table) return TN_ERR_MEMORY;
    tn_mem_free(t->table);
    t->table = table;
    t->table_size = size;
    for (size_t i = 0; i < t->count; i++)
        t->table[table_place(t, gradient_key_of(t->entries[i].node))] = (int32_t)i + 1;
    return TN_OK;
}

/* The number of n's entry, made when there is none yet. */
static tn_status tape_enter(tape *t, tn_node *n, int32_t *entry) {
    if ((t->count + 1) * 2 > t->table_size) TRY(table_double(t));
    size_t place = table_place(t, gradient_key_of(n));
    if (t->table[place]) {
        *entry = t->table[place] - 1;
        return TN_OK;
    }
    TRY(tn_mem_grow(&t->entries, &t->capacity, t->count + 1, sizeof *t->entries));
    bool needed = t->leaves_needed && (n->flags & TN_NODE_LEAF);
    t->entries[t->count] = (tape_entry){.node = n, .needed = needed};
    *entry = (int32_t)t->count++;
    t->table[place] = *entry + 1;
    return TN_OK;
}

static tn_status tape_push(tape *t, int32_t entry) {
    TRY(tn_mem_grow(&t->stack, &t->stack_capacity, t->depth + 1, sizeof *t->stack));
    t->entries[entry].visited = true;
    t->stack[t->depth++] = entry;
    return TN_OK;
}

static void tape_free(tape *t) {
    tn_build_end(&t->build);
    tn_mem_free_each(t->entries, t->order, t->stack, t->table);
    for (size_t i = 0; i < t->region_count; i++)
        tn_map_free(&t->regions[i].copied);
    tn_mem_free_each(t->regions, t->copies, t->copying);
}

/* ---- walking down ------------------------------------------------------------------------------------------------ */

static bool is_stale(const tn_node *n) { return (n->root ? n->root : n)->flags & TN_NODE_STALE; }

static bool reads_stale(const tn_node *n) {
    for (int i = 0; i < n->n_in; i++)
        if (n->in[i] && is_stale(n->in[i])) return true;
    return false;
}

/* Half precision: the op's rule is applied to its f32 form, so that the gradient is rounded once. Where an input has
 * been overwritten, only the rule itself can tell whether it is needed. */
bool tn_tape_through_expansion(const tn_node *n) {
    const tn_op_row *row = tn_op(n->op);
    if (!tn_op_has_grad(row)) return row->kind == TN_COMPOSED;
    bool half = tn_dtype_is_half(n->dtype);
    return half && row->impl->grad != tn_grad_none && tn_is_widened(n) && !reads_stale(n);
}

/* The next node below n that requires gradients, NULL when there is none left. */
static tn_status next_child(tape_entry *e, tn_node **child) {
    tn_node *n = e->node;
    *child = NULL;
    if (n->flags & TN_NODE_LEAF) return TN_OK;
    if (tn_tape_through_expansion(n)) {
        if (e->next_child++ > 0) return TN_OK;
        TRY(tn_expand_node(n));
        if (n->expansion->flags & TN_NODE_GRAD) *child = n->expansion;
        return TN_OK;
    }
    if (!tn_op_has_grad(tn_op(n->op))) return TN_OK;
    while (!*child && e->next_child < n->n_in) {
        tn_node *in = n->in[e->next_child++];
        if (in && (in->flags & TN_NODE_GRAD)) *child = in;
    }
    return TN_OK;
}

/* All children of entry `here` are in t->order: it follows, and its user needs what it needs. */
static tn_status finish_gradient(tape *t, int32_t here) {
    t->depth--;
    if (t->depth) t->entries[t->stack[t->depth - 1]].needed |= t->entries[here].needed;
    TRY(tn_mem_grow(&t->order, &t->order_capacity, t->order_count + 1, sizeof *t->order));
    t->order[t->order_count++] = here;
    return TN_OK;
}

/* Everything from n downwards, into t->order. */
static tn_status walk_gradient(tape *t, tn_node *n) {
    int32_t entry;
    TRY(tape_enter(t, n, &entry));
    if (!t->entries[entry].visited) TRY(tape_push(t, entry));
    while (t->depth) {
        int32_t here = t->stack[t->depth - 1];
        tn_node *child;
        TRY(next_child(&t->entries[here], &child));
        if (!child) {
            TRY(finish_gradient(t, here));
            continue;
        }
        TRY(tape_enter(t, child, &entry));
        if (t->entries[entry].visited)
            t->entries[here].needed |= t->entries[entry].needed;
        else
            TRY(tape_push(t, entry));
    }
    return TN_OK;
}

/* ---- going back -------------------------------------------------------------------------------------------------- */

static tn_status check_gradient(const tn_node *n, int i, const tn_node *g) {
    const tn_node *in = n->in[i];
    size_t bytes = sizeof in->shape[0] * in->rank;
    if (g->rank == in->rank && g->dtype == in->dtype && !memcmp(g->shape, in->shape, bytes)) return TN_OK;
    char is[96], want[96];
    return tn_fail(TN_ERR_INTERNAL,
                   "%s: the gradient of input %d is %s %s, but the input is %s %s: a defect in the op's gradient rule",
                   tn_op(n->op)->name, i, tn_shape_text(g, is, sizeof is), tn_dtype_name((tn_dtype)g->dtype),
                   tn_shape_text(in, want, sizeof want), tn_dtype_name((tn_dtype)in->dtype));
}

static tn_status add_gradient(tape *t, tape_entry *e, tn_node *g) {
    tn_node *joined = e->grad ? join_slice_gradients(&t->build, e->grad, g) : g;
    TRY(t->build.status);
    e->grad = joined ? joined : tn_b_add(&t->build, e->grad, g);
    return t->build.status;
}

/* A gradient built since `first` that reads a value which has been overwritten cannot be right. */
static tn_status check_stale(const tape *t, size_t first, const tn_node *n) {
    for (size_t i = first; i < t->build.count; i++) {
        const tn_node *made = t->build.made[i];
        for (int k = 0; k < made->n_in; k++) {
            const tn_node *in = made->in[k];
            if (!in || !is_stale(in)) continue;
            char text[96];
            return tn_fail(TN_ERR_STATE,
                           "backward: the gradient of %s (%s:%d) needs a tensor %s that was modified in place "
                           "afterwards; run backward before the write, or compute from a clone",
                           tn_op(n->op)->name, n->file ? n->file : "?", n->line, tn_shape_text(in, text, sizeof text));
        }
    }
    return TN_OK;
}

/* ---- recomputing ------------------------------------------------------------------------------------------------- */

static tn_status region_of(tape *t, int32_t origin, tn_node *gate, region **out) {
    for (size_t i = t->region_count; i-- > 0;)
        if (t->regions[i].origin == origin) {
            *out = &t->regions[i];
            return TN_OK;
        }
    TRY(tn_mem_grow(&t->regions, &t->region_capacity, t->region_count + 1, sizeof *t->regions));
    *out = &t->regions[t->region_count++];
    **out = (region){.origin = origin, .gate = gate};
    return TN_OK;
}

static tn_node *copied(const tape *t, const region *g, const tn_node *n) {
    int32_t at = tn_map_find(&g->copied, n);
    return at < 0 ? NULL : t->copies[at];
}

static tn_status note_copy(tape *t, region *g, const tn_node *n, tn_node *copy) {
    TRY(t->build.status);
    TRY(tn_mem_grow(&t->copies, &t->copy_capacity, t->copy_count + 1, sizeof *t->copies));
    t->copies[t->copy_count] = copy;
    return tn_map_put(&g->copied, n, (int32_t)t->copy_count++);
}

/* What a region was given: activations are gated; numbers and leaves (weights) are there anyway. */
static tn_node *given(tape *t, const region *g, tn_node *n) {
    const tn_node *root = n->root ? n->root : n;
    bool there = (root->flags & TN_NODE_LEAF) || tn_node_numel(n) < 2 || tn_dtype_is_quantized((tn_dtype)n->dtype);
    return there || n->device != g->gate->device ? n : tn_b_gated(&t->build, n, g->gate);
}

/* The same operation on `in`; n itself if these are its inputs. */
static tn_node *record_copy(tape *t, tn_node *n, tn_node **in) {
    tn_recorder *r = tn_recorder_here();
    tn_attrs attrs = {.n_i = n->n_i, .n_f = n->n_f};
    if (memcmp(in, n->in, n->n_in * sizeof *in) == 0) return n;
    if (n->n_i) memcpy(attrs.i, n->i, n->n_i * sizeof *n->i);
    if (n->n_f) memcpy(attrs.f, n->f, n->n_f * sizeof *n->f);
    r->varying = (n->flags & TN_NODE_VARIES) && !(n->flags & TN_NODE_VIEW);
    tn_node *copy = tn_b_op(&t->build, n->op, in, n->n_in, &attrs);
    r->varying = false;
    return copy;
}

static tn_node *copy_node(tape *t, const region *g, tn_node *n) {
    tn_node *in[TN_MAX_INPUTS];
    for (int i = 0; i < n->n_in; i++)
        in[i] = n->in[i] ? copied(t, g, n->in[i]) : NULL;
    return record_copy(t, n, in);
}

/* A parameter that is gathered from other processes is gathered again, after `gate`: an exchange of its own. */
static tn_node *gather_again(tape *t, const tn_node *n, tn_node *gate) {
    tn_group *group = (tn_group *)(intptr_t)n->i[TN_GROUP_WHOLE_GROUP];
    return tn_b_group_whole(&t->build, n->in[0], gate, n->i[TN_GROUP_WHOLE_GROUP], n->i[TN_GROUP_WHOLE_RANKS],
                            tn_group_next_number(group), n->shape, n->rank);
}

/* A composed node's value is that of its expansion, whose layout may be another. */
static tn_node *copy_of_expansion(tape *t, const region *g, const tn_node *n) {
    tn_node *copy = copied(t, g, n->expansion);
    return tn_node_contiguous(copy) ? copy : tn_b_contiguous(&t->build, copy);
}

static tn_status push_copying(tape *t, size_t *depth, tn_node *n) {
    TRY(tn_mem_grow(&t->copying, &t->copying_capacity, *depth + 1, sizeof *t->copying));
    t->copying[(*depth)++] = n;
    return TN_OK;
}

/* Pushes the nodes whose copies n's copy is made of. */
static tn_status push_sources(tape *t, const region *g, tn_node *n, size_t *depth) {
    if (n->expansion) return copied(t, g, n->expansion) ? TN_OK : push_copying(t, depth, n->expansion);
    for (int i = 0; i < n->n_in; i++)
        if (n->in[i] && !copied(t, g, n->in[i])) TRY(push_copying(t, depth, n->in[i]));
    return TN_OK;
}

static tn_status make_copies(tape *t, region *g, tn_node *n) {
    size_t depth = 0;
    TRY(push_copying(t, &depth, n));
    while (depth > 0) {
        size_t before = depth;
        tn_node *top = t->copying[depth - 1];
        bool inside = top->origin == g->origin && !(top->flags & TN_NODE_LEAF) && top->op != TN_OP_NONE;
        if (copied(t, g, top)) {
            depth--;
            continue;
        }
        if (inside) TRY(push_sources(t, g, top, &depth));
        if (depth > before) continue;
        depth--;
        TRY(note_copy(t, g, top,
                      top->op == TN_OP_GROUP_WHOLE ? gather_again(t, top, g->gate)
                      : !inside                    ? given(t, g, top)
                      : top->expansion             ? copy_of_expansion(t, g, top)
                                                   : copy_node(t, g, top)));
    }
    return TN_OK;
}

enum {
    MOST_STEPS = 16,
    WITH_GATHERED = -1 /* the region of what reads gathered parameters outside of other regions */
};

/* Whether n is a gathered parameter, or a view or cast of one: then steps[0] is n and the last of them is gathered. */
static int steps_from_gathered(tn_node *n, tn_node **steps) {
    for (int count = 0; n && count < MOST_STEPS; n = n->in[0]) {
        steps[count++] = n;
        if (n->op == TN_OP_GROUP_WHOLE) return count;
        bool follows = ((n->flags & TN_NODE_VIEW) || tn_op_has(n, TN_FACT_CAST)) && !(n->flags & TN_NODE_LEAF);
        if (!follows || n->n_in != 1) return 0;
    }
    return 0;
}

/* The parameter as it is in the backward pass. */
static tn_status copy_gathered(tape *t, region *g, tn_node *const *steps, int count, tn_node *gate) {
    for (int k = count; k-- > 0;) {
        if (copied(t, g, steps[k])) continue;
        tn_node *copy = k + 1 == count ? gather_again(t, steps[k], gate) : copy_node(t, g, steps[k]);
        TRY(note_copy(t, g, steps[k], copy));
    }
    return TN_OK;
}

/* n on parameters that are gathered again after dy; n itself if it reads none. */
static tn_status read_again(tape *t, tn_node *n, tn_node *dy, tn_node **out) {
    tn_node *in[TN_MAX_INPUTS], *steps[MOST_STEPS];
    for (int i = 0; i < n->n_in; i++) {
        int count = steps_from_gathered(in[i] = n->in[i], steps);
        region *g;
        if (!count) continue;
        TRY(region_of(t, WITH_GATHERED, dy, &g));
        TRY(copy_gathered(t, g, steps, count, dy));
        in[i] = copied(t, g, in[i]);
    }
    *out = n->n_in ? record_copy(t, n, in) : n;
    return t->build.status;
}

static tn_status copy_in_region(tape *t, tn_node *n, tn_node *dy, tn_node **out) {
    region *g;
    if (n->op == TN_OP_GROUP_WHOLE) return TN_OK;
    if (n->origin <= 0) return read_again(t, n, dy, out);
    TRY(region_of(t, n->origin, dy, &g));
    TRY(make_copies(t, g, n));
    *out = copied(t, g, n);
    return TN_OK;
}

/* n, or its copy if it was recorded in a region of TN_RECOMPUTE or reads gathered parameters. dy: its gradient. */
static tn_status recomputed(tape *t, tn_node *n, tn_node *dy, const tn_node **out) {
    tn_recorder *r = tn_recorder_here();
    bool no_grad = r->no_grad;
    tn_node *copy = n;
    r->no_grad = false; /* rules ask which inputs require gradients */
    r->origin = 0;
    tn_status s = copy_in_region(t, n, dy, &copy);
    r->no_grad = no_grad;
    *out = s == TN_OK && copy->op == n->op && copy->n_in == n->n_in ? copy : n;
    return s;
}

enum { FEW_INPUTS = 8 };

static tn_status examine(const tape *t, size_t first, const tn_node *n) {
    if (atomic_load_explicit(&tn_anomaly_mode, memory_order_relaxed) == 0) return TN_OK;
    tn_status s = tn_graph_evaluator.find_anomaly(t->build.made + first, t->build.count - first);
    return s == TN_OK ? s
                      : tn_fail_prefix(s, "backward: in the gradient of %s (%s:%d)", tn_op(n->op)->name,
                                       n->file ? n->file : "?", n->line);
}

static tn_status apply_rule(tape *t, const tn_node *n, tn_node *dy, tn_node **grads) {
    const tn_op_impl *impl = tn_op(n->op)->impl;
    if (impl->grad_first)
        grads[0] = impl->grad_first(&t->build, n, dy);
    else
        impl->grad(&t->build, n, dy, grads);
    return t->build.status;
}

static tn_status spread_gradient(tape *t, tn_node *n, tn_node *dy, tn_node **grads) {
    tn_recorder *r = tn_recorder_here();
    const tn_node *seen;
    TRY(recomputed(t, n, dy, &seen));
    size_t first = t->build.count;
    r->varying = (n->flags & TN_NODE_VARIES) && !(n->flags & TN_NODE_VIEW);
    tn_status s = apply_rule(t, seen, dy, grads);
    r->varying = false;
    TRY(s);
    TRY(check_stale(t, first, n));
    TRY(examine(t, first, n));
    for (int i = 0; i < n->n_in; i++) {
        if (!grads[i] || !n->in[i] || !(n->in[i]->flags & TN_NODE_GRAD)) continue;
        tape_entry *e = tn_tape_find(t, n->in[i]);
        if (!e || !e->needed) continue;
        TRY(check_gradient(n, i, grads[i]));
        TRY(add_gradient(t, e, grads[i]));
    }
    return TN_OK;
}

/* Hands the gradient of one entry to what lies below it. */
static tn_status step_back(tape *t, const tape_entry *e) {
    tn_node *n = e->node;
    if (n->flags & TN_NODE_LEAF) return TN_OK;
    if (tn_tape_through_expansion(n)) {
        tape_entry *below = tn_tape_find(t, n->expansion);
        return below && below->needed ? add_gradient(t, below, e->grad) : TN_OK;
    }
    if (!tn_op_has_grad(tn_op(n->op))) return TN_OK;
    tn_node *few[FEW_INPUTS] = {NULL};
    if (n->n_in <= FEW_INPUTS) return spread_gradient(t, n, e->grad, few);
    AUTO_FREE tn_node **grads = tn_mem_zalloc(n->n_in, sizeof *grads);
    if (!grads) return TN_ERR_MEMORY;
    return spread_gradient(t, n, e->grad, grads);
}

/* What a hook returns, NULL or another gradient, takes the gradient's place. */
static tn_status take_hooked(tape *t, tape_entry *e, tn_tensor *result) {
    if (!result) return TN_OK;
    tn_node *n = tn_tensor_node(result), *g = tn_b_own(&t->build, tn_node_retain(n));
    char is[96], want[96];
    bool fits = g && tn_same_shape(g, e->grad) && g->dtype == e->grad->dtype && g->device == e->grad->device;
    tn_status s = t->build.status;
    if (s == TN_OK && !fits)
        s = tn_fail(TN_ERR_SHAPE, "backward: a hook returned a gradient %s %s for the gradient %s %s",
                    tn_shape_text(n, is, sizeof is), tn_dtype_name((tn_dtype)n->dtype),
                    tn_shape_text(e->grad, want, sizeof want), tn_dtype_name((tn_dtype)e->grad->dtype));
    if (s == TN_OK) e->grad = g;
    tn_free(result);
    return s;
}

static void drop_removed(tn_grad_slot *slot) {
    for (tn_slot_hook **at = &slot->hooks; *at;) {
        tn_slot_hook *h = *at;
        if (h->function) {
            at = &h->next;
            continue;
        }
        *at = h->next;
        tn_mem_free(h);
    }
}

static tn_status call_hooks(tape *t, tape_entry *e) {
    tn_grad_slot *slot = e->node->slot;
    tn_status s = TN_OK;
    bool calling = slot->calling; /* a hook may itself compute a gradient */
    slot->calling = true;
    for (const tn_slot_hook *h = slot->hooks; h && s == TN_OK; h = h->next) {
        if (!h->function) continue;
        tn_tensor *grad = tn_tensor_unscoped(tn_tensor_new(tn_node_retain(e->grad)));
        s = take_hooked(t, e, h->function(h->ctx, grad));
        tn_free(grad);
    }
    slot->calling = calling;
    if (!calling) drop_removed(slot);
    return s;
}

static tn_status go_back(tape *t) {
    for (size_t i = t->order_count; i-- > 0;) {
        tape_entry *e = &t->entries[t->order[i]];
        if (!e->needed || !e->grad) continue;
        if (e->node->slot && e->node->slot->hooks) TRY(call_hooks(t, e));
        TRY(step_back(t, e));
    }
    return TN_OK;
}

static tn_node *filled_like(tape *t, const tn_node *n, double value) {
    tn_node *g = tn_b_full(&t->build, n->shape, n->rank, value, (tn_dtype)n->dtype);
    if (g) g->device = n->device;
    return g;
}

static tn_status seed(tape *t, tn_node *output, tn_node *grad) {
    tape_entry *e = tn_tape_find(t, output);
    if (!e || !e->needed) return TN_OK;
    tn_node *g = grad ? grad : filled_like(t, output, 1.0);
    TRY(t->build.status);
    return add_gradient(t, e, g);
}

/* ---- collecting -------------------------------------------------------------------------------------------------- */

/* A gradient that leaves the tape owns its memory: it may be written in place (clipping) like any other tensor. */
static tn_node *own_memory(tape *t, tn_node *g) {
    return (g->flags & TN_NODE_VIEW) ? tn_b_contiguous(&t->build, g) : g;
}

/* A handle that no scope frees. */
static tn_tensor *slot_handle(tn_node *n) { return tn_tensor_unscoped(tn_tensor_new(tn_node_retain(n))); }

static void swap_slots(tape *t, tn_tensor **handles) {
    for (size_t i = 0; i < t->count; i++) {
        if (!handles[i]) continue;
        tn_grad_slot *slot = t->entries[i].node->slot;
        tn_free(slot->grad);
        slot->grad = handles[i];
    }
}

/* A capture has to know what it does to gradients: each launch does the same. */
static inline tn_status note_gradient(tn_recorder *r, tn_grad_slot *slot, tn_gradient_use use) {
    return r && r->capturing ? tn_captured_gradient_note(tn_plans_of(r)->capture, slot, use) : TN_OK;
}

static tn_status make_handles(tape *t, tn_tensor **handles) {
    tn_recorder *r = tn_recorder_here();
    for (size_t i = 0; i < t->count; i++) {
        const tape_entry *e = &t->entries[i];
        if (!e->grad || !e->node->slot || !e->node->slot->keeps || e->node->slot->closed) continue;
        const tn_tensor *before = e->node->slot->grad;
        TRY(note_gradient(r, e->node->slot, TN_GRADIENT_ADDED));
        tn_node *g = before ? tn_b_add(&t->build, tn_tensor_node(before), e->grad) : own_memory(t, e->grad);
        TRY(t->build.status);
        handles[i] = slot_handle(g);
        TRY(tn_status_of(handles[i]));
    }
    return TN_OK;
}

static tn_status collect_leaves(tape *t) {
    AUTO_FREE tn_tensor **handles = tn_mem_zalloc(t->count, sizeof *handles);
    if (!handles) return TN_ERR_MEMORY;
    tn_status s = make_handles(t, handles);
    if (s == TN_OK) swap_slots(t, handles);
    for (size_t i = 0; s != TN_OK && i < t->count; i++)
        tn_free(handles[i]);
    return s;
}

/* ---- leaves ------------------------------------------------------------------------------------------------------ */

static tn_status check_leaf(const tn_tensor *t) {
    TRY(tn_need_tensor(t, "set_requires_grad: the tensor"));
    TRY(tn_status_of(t));
    const tn_node *n = tn_tensor_node(t);
    if (!tn_dtype_is_float((tn_dtype)n->dtype))
        return tn_fail(TN_ERR_DTYPE, "set_requires_grad: only floating tensors have gradients, this one is %s",
                       tn_dtype_name((tn_dtype)n->dtype));
    if ((n->flags & TN_NODE_GRAD) && !(n->flags & TN_NODE_LEAF))
        return tn_fail(TN_ERR_ARGUMENT,
                       "set_requires_grad: the tensor was computed by %s from tensors that require gradients; only "
                       "leaves can be marked, such as tn_contiguous(tn_detach(t))",
                       tn_op(n->op)->name);
    if (tn_handle_of(t)->base)
        return tn_fail(TN_ERR_ARGUMENT,
                       "set_requires_grad: a view cannot be a leaf; mark its base, or a copy (tn_contiguous)");
    return TN_OK;
}

/* For the node and its storage. */
static tn_grad_slot *slot_new(tn_node *n) {
    tn_grad_slot *slot = tn_mem_zalloc(1, sizeof *slot);
    if (!slot) return NULL;
    atomic_init(&slot->refs, 2);
    n->slot = slot;
    return slot;
}

static tn_status mark_leaf(tn_node *n, tn_storage *s) {
    tn_grad_slot *slot = slot_new(n);
    if (!slot) return TN_ERR_MEMORY;
    slot->keeps = true;
    s->slot = slot;
    n->flags |= TN_NODE_GRAD | TN_NODE_LEAF;
    return TN_OK;
}

static void unmark_leaf(tn_node *n, tn_storage *s) {
    tn_grad_slot_close(s->slot);
    tn_grad_slot_release(n->slot);
    s->slot = NULL;
    n->slot = NULL;
    n->flags &= (uint8_t) ~(TN_NODE_GRAD | TN_NODE_LEAF);
}

tn_status tn_set_requires_grad(tn_tensor *t, bool requires_grad) {
    TRY(check_leaf(t));
    tn_storage *s = tn_tensor_storage(t);
    tn_node *n = tn_tensor_node(t);
    if (!s) return TN_ERR_MEMORY;
    if (requires_grad == ((n->flags & TN_NODE_LEAF) != 0)) return TN_OK;
    if (requires_grad) return mark_leaf(n, s);
    if (tn_recorder_here()->differentiating) /* the tape refers to its leaves by their slots */
        return tn_fail(TN_ERR_STATE, "set_requires_grad: a hook cannot unmark a leaf; do it after the backward pass");
    unmark_leaf(n, s);
    return TN_OK;
}

bool tn_requires_grad(const tn_tensor *t) { return t && (tn_tensor_node(t)->flags & TN_NODE_GRAD); }

/* The handle shares the storage of the collected gradient, so that clipping it in place is seen by the optimiser. */
tn_tensor *tn_grad(const tn_tensor *leaf) {
    tn_grad_slot *slot = leaf ? tn_tensor_node(leaf)->slot : NULL;
    tn_status noted = slot ? note_gradient(tn_recorder_here(), slot, TN_GRADIENT_READ) : TN_OK;
    if (noted != TN_OK) return tn_tensor_error(noted);
    if (!slot || !slot->grad) return NULL;
    tn_storage *s = tn_tensor_storage(slot->grad);
    if (!s) return tn_tensor_error(TN_ERR_MEMORY);
    tn_tensor *t = tn_tensor_new(tn_node_retain(tn_tensor_node(slot->grad)));
    tn_handle *h = tn_handle_of(t);
    if (h->node->flags & TN_NODE_ERROR) return t;
    atomic_fetch_add_explicit(&s->refs, 1, memory_order_relaxed);
    atomic_store_explicit(&h->storage, s, memory_order_release);
    h->version = s->version;
    return t;
}

void tn_zero_grad(tn_tensor *leaf) {
    tn_grad_slot *slot = leaf ? tn_tensor_node(leaf)->slot : NULL;
    if (!slot) return;
    (void)note_gradient(tn_recorder_here(), slot, TN_GRADIENT_CLEARED); /* a failure is kept for tn_capture_end */
    tn_free(slot->grad);
    slot->grad = NULL;
}

/* ---- hooks ------------------------------------------------------------------------------------------------------- */

static tn_status watched_slot(tn_tensor *t, const char *what, tn_grad_slot **slot) {
    TRY(tn_need_tensor(t, what));
    TRY(tn_status_of(t));
    tn_node *n = tn_tensor_node(t);
    if (!(n->flags & TN_NODE_GRAD)) return tn_fail(TN_ERR_STATE, "%s does not require gradients", what);
    *slot = n->slot;
    if (*slot) return TN_OK;
    tn_storage *s = tn_tensor_storage(t);
    *slot = s ? slot_new(n) : NULL;
    if (!*slot) return TN_ERR_MEMORY;
    (*slot)->next = s->watched;
    s->watched = *slot;
    return TN_OK;
}

tn_status tn_retain_grad(tn_tensor *t) {
    tn_grad_slot *slot;
    TRY(watched_slot(t, "tn_retain_grad: the tensor", &slot));
    slot->keeps = true;
    return TN_OK;
}

tn_status tn_register_hook(tn_tensor *t, tn_grad_hook *hook, void *ctx, int64_t *id) {
    static _Atomic int64_t hooks;
    tn_grad_slot *slot;
    TRY(tn_need((const void *)(uintptr_t)hook, "tn_register_hook: hook"));
    TRY(watched_slot(t, "tn_register_hook: the tensor", &slot));
    tn_slot_hook *h = tn_mem_zalloc(1, sizeof *h), **end = &slot->hooks;
    if (!h) return TN_ERR_MEMORY;
    *h = (tn_slot_hook){.function = hook, .ctx = ctx, .id = 1 + atomic_fetch_add(&hooks, 1)};
    while (*end)
        end = &(*end)->next;
    *end = h;
    if (id) *id = h->id;
    return TN_OK;
}

tn_status tn_remove_hook(tn_tensor *t, int64_t id) {
    TRY(tn_need_tensor(t, "tn_remove_hook: the tensor"));
    tn_grad_slot *slot = tn_tensor_node(t)->slot;
    for (tn_slot_hook *h = slot ? slot->hooks : NULL; h; h = h->next) {
        if (h->id != id || !h->function) continue;
        h->function = NULL;
        if (!slot->calling) drop_removed(slot);
        return TN_OK;
    }
    return tn_fail(TN_ERR_ARGUMENT, "tn_remove_hook: the tensor has no hook with id %lld", (long long)id);
}

/* ---- the public functions ---------------------------------------------------------------------------------------- */

static tn_status backward_on(tape *t, const tn_tensor *loss) {
    tn_node *n = tn_tensor_node(loss);
    TRY(walk_gradient(t, n));
    if (tn_recorder_here()->recomputes) TRY(tn_regions_choose(t));
    TRY(seed(t, n, NULL));
    TRY(go_back(t));
    return collect_leaves(t);
}

static tn_status check_loss(const tn_tensor *loss) {
    TRY(tn_need_tensor(loss, "backward: loss"));
    TRY(tn_status_of(loss));
    char text[96];
    const tn_node *n = tn_tensor_node(loss);
    if (tn_node_numel(n) != 1)
        return tn_fail(TN_ERR_SHAPE,
                       "backward: the loss must have one element, but it is %s; reduce it (sum, mean) first",
                       tn_shape_text(n, text, sizeof text));
    if (!(n->flags & TN_NODE_GRAD))
        return tn_fail(TN_ERR_STATE, "backward: the loss does not require gradients: no tensor that it was computed "
                                     "from was marked with tn_set_requires_grad, or it was computed under TN_NO_GRAD");
    return TN_OK;
}

tn_status tn_backward(const tn_tensor *loss) {
    TRY(check_loss(loss));
    tn_recorder *r = tn_recorder_here();
    if (!r) return TN_ERR_MEMORY;
    tape t = {.leaves_needed = true};
    bool before = r->no_grad;
    int32_t origin = r->origin;
    tn_device *chosen = tn_chosen_device();
    (void)tn_set_current_device(tn_device_of(loss));
    r->no_grad = true;
    r->origin = 0;
    size_t count = r->count;
    bool within = tn_recorder_begin_gradient(r);
    tn_status s = backward_on(&t, loss);
    if (r->recomputes) tn_regions_forget(&t);
    tn_recorder_end_gradient(r, within, count);
    r->no_grad = before;
    r->origin = origin;
    (void)tn_set_current_device(chosen);
    tape_free(&t);
    return s;
}

static tn_status check_output(const tn_tensor *output, const tn_tensor *grad) {
    TRY(tn_need_tensor(output, "gradients: an output"));
    TRY(tn_status_of(output));
    const tn_node *n = tn_tensor_node(output);
    if (!(n->flags & TN_NODE_GRAD)) return tn_fail(TN_ERR_STATE, "gradients: an output does not require gradients");
    char is[96], want[96];
    if (!grad && tn_node_numel(n) != 1)
        return tn_fail(TN_ERR_SHAPE,
                       "gradients: output %s has more than one element; pass its gradient in grad_outputs",
                       tn_shape_text(n, is, sizeof is));
    if (!grad) return TN_OK;
    TRY(tn_need_tensor(grad, "gradients: a grad_output"));
    TRY(tn_status_of(grad));
    const tn_node *g = tn_tensor_node(grad);
    if (g->rank != n->rank || g->dtype != n->dtype || memcmp(g->shape, n->shape, sizeof n->shape[0] * n->rank))
        return tn_fail(TN_ERR_SHAPE, "gradients: grad_output %s %s does not match its output %s %s",
                       tn_shape_text(g, is, sizeof is), tn_dtype_name((tn_dtype)g->dtype),
                       tn_shape_text(n, want, sizeof want), tn_dtype_name((tn_dtype)n->dtype));
    return TN_OK;
}

static tn_status check_input(const tn_tensor *input) {
    TRY(tn_need_tensor(input, "gradients: an input"));
    TRY(tn_status_of(input));
    if (!(tn_tensor_node(input)->flags & TN_NODE_GRAD))
        return tn_fail(TN_ERR_STATE, "gradients: an input does not require gradients");
    return TN_OK;
}

/* What tn_gradients was asked. */
typedef struct request {
    tn_tensor *const *outputs, *const *grad_outputs, *const *inputs;
    int output_count, input_count;
} request;

static tn_tensor *grad_output(const request *q, int i) { return q->grad_outputs ? q->grad_outputs[i] : NULL; }

static tn_status check_request(const request *q) {
    for (int i = 0; i < q->output_count; i++)
        TRY(check_output(q->outputs[i], grad_output(q, i)));
    for (int i = 0; i < q->input_count; i++)
        TRY(check_input(q->inputs[i]));
    return TN_OK;
}

/* Inputs enter the tape before the walk, so that what leads to them is found to be needed. */
static tn_status enter_inputs(tape *t, const request *q) {
    for (int i = 0; i < q->input_count; i++) {
        int32_t entry;
        TRY(tape_enter(t, tn_tensor_node(q->inputs[i]), &entry));
        t->entries[entry].needed = true;
    }
    return TN_OK;
}

static tn_status gradients_on(tape *t, const request *q, tn_tensor **grads) {
    TRY(enter_inputs(t, q));
    for (int i = 0; i < q->output_count; i++)
        TRY(walk_gradient(t, tn_tensor_node(q->outputs[i])));
    for (int i = 0; i < q->output_count; i++) {
        const tn_tensor *g = grad_output(q, i);
        TRY(seed(t, tn_tensor_node(q->outputs[i]), g ? tn_tensor_node(g) : NULL));
    }
    TRY(go_back(t));
    for (int i = 0; i < q->input_count; i++) {
        tn_node *n = tn_tensor_node(q->inputs[i]);
        tn_node *g = tn_tape_find(t, n)->grad;
        g = g ? own_memory(t, g) : filled_like(t, n, 0.0);
        TRY(t->build.status);
        grads[i] = tn_tensor_new(tn_node_retain(g));
        TRY(tn_status_of(grads[i]));
    }
    return TN_OK;
}

tn_status tn_gradients(tn_tensor *const *outputs, int output_count, tn_tensor *const *grad_outputs,
                       tn_tensor *const *inputs, int input_count, bool create_graph, tn_tensor **grads) {
    if (!outputs || !inputs || !grads || output_count < 1 || input_count < 1)
        return tn_fail(TN_ERR_ARGUMENT,
                       "gradients: outputs, inputs and grads must not be NULL and need at least one entry");
    request q = {outputs, grad_outputs, inputs, output_count, input_count};
    TRY(check_request(&q));
    tn_recorder *r = tn_recorder_here();
    if (!r) return TN_ERR_MEMORY;
    for (int i = 0; i < input_count; i++)
        grads[i] = NULL;
    tape t = {0};
    bool before = r->no_grad;
    int32_t origin = r->origin;
    r->no_grad = !create_graph;
    r->origin = 0;
    size_t count = r->count;
    bool within = tn_recorder_begin_gradient(r);
    tn_status s = gradients_on(&t, &q, grads);
    tn_recorder_end_gradient(r, within, count);
    r->no_grad = before;
    r->origin = origin;
    tape_free(&t);
    for (int i = 0; s != TN_OK && i < input_count; i++) {
        tn_free(grads[i]);
        grads[i] = NULL;
    }
    return s;
}

/* ==== gradients of a tensor that was cut into parts =============================================================== */
/* Each part of a tensor (slice, chunk, split) sends back its gradient with zeros around it, and what arrives is added.
 * Where two such parts are neighbours nothing needs to be added: they are put side by side, and once they are the whole
 * there are no zeros left. Parts that lie in one buffer as they lay in the tensor, as attention yields the gradients of
 * a joined projection, are just a view of it. */

/* Zeros around `inner` along one dimension. */
typedef struct padded {
    tn_node *inner;
    int dim;
    int64_t before, after;
} padded;

static bool is_padded(const tn_node *n, padded *p) {
    if (n->op != TN_OP_PAD || n->f[TN_PAD_VALUE] != 0) return false;
    int padded_dims = 0;
    p->inner = n->in[0];
    for (int64_t k = 0; k + 1 < n->i[0]; k += 2) {
        if (n->i[1 + k] < 0 || n->i[2 + k] < 0) return false;
        if (n->i[1 + k] == 0 && n->i[2 + k] == 0) continue;
        padded_dims++;
        p->dim = n->rank - 1 - (int)k / 2;
        p->before = n->i[1 + k];
        p->after = n->i[2 + k];
    }
    return padded_dims == 1;
}

static bool fit_but_for(const tn_node *a, const tn_node *b, int dim) {
    for (int d = 0; d < a->rank; d++)
        if (d != dim && a->shape[d] != b->shape[d]) return false;
    return true;
}

/* Both as one view, if `b` follows `a` in one buffer; NULL otherwise. */
static tn_node *as_one_view(tn_build *b, const padded *first, const padded *second) {
    const tn_node *x = first->inner, *y = second->inner;
    int64_t offset[2], stride[2][TN_MAX_RANK], shape[TN_MAX_RANK];
    if (!x->root || x->root != y->root) return NULL;
    tn_node_layout(x, &offset[0], stride[0]);
    tn_node_layout(y, &offset[1], stride[1]);
    size_t bytes = (size_t)x->rank * sizeof *shape;
    if (memcmp(stride[0], stride[1], bytes) != 0) return NULL;
    if (offset[0] + x->shape[first->dim] * stride[0][first->dim] != offset[1]) return NULL;
    memcpy(shape, x->shape, bytes);
    shape[first->dim] += y->shape[first->dim];
    tn_node *view = tn_b_as_strided(b, x->root, shape, x->rank, stride[0], x->rank, offset[0]);
    bool whole = view && tn_node_contiguous(view);
    return whole ? tn_b_view(b, x->root, shape, x->rank) : view;
}

static tn_node *join_slice_gradients(tn_build *b, tn_node *x, tn_node *y) {
    padded first, second;
    if (!is_padded(x, &first) || !is_padded(y, &second) || first.dim != second.dim || x->dtype != y->dtype) return NULL;
    if (first.before > second.before) {
        padded swap = first;
        first = second;
        second = swap;
    }
    int dim = first.dim;
    if (first.before + first.inner->shape[dim] != second.before || !fit_but_for(first.inner, second.inner, dim))
        return NULL;
    tn_node *joined = as_one_view(b, &first, &second);
    if (!joined) joined = tn_b_cat(b, (tn_node *[]){first.inner, second.inner}, 2, dim);
    if (first.before == 0 && second.after == 0) return joined;
    int64_t pads[2 * TN_MAX_RANK] = {0};
    pads[2 * (x->rank - 1 - dim)] = first.before;
    pads[2 * (x->rank - 1 - dim) + 1] = second.after;
    return tn_b_pad(b, joined, pads, 2 * x->rank, 0);
}
