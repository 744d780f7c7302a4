/* capture_host.c — the host's side of a captured recording: hooks, gradients, states, random numbers (capture.h).
 *
 * Everything that can fail is done before the launch. After it, only what was prepared is put in place. */
#include <string.h>

#include "core/capture.h"
#include "graph/node_internal.h"

tn_captured_host *tn_captured_host_new(const tn_recorder *r) {
    tn_captured_host *h = tn_mem_zalloc(1, sizeof *h);
    if (!h) return NULL;
    h->random_start = r->random_offset;
    h->reseeds = r->reseeds;
    return h;
}

static void forget_nodes(captured_hook *c) {
    for (int i = 0; c->nodes && i < c->count; i++)
        tn_node_release(c->nodes[i]);
    tn_mem_free(c->nodes);
    c->nodes = NULL;
}

static void forget_next(tn_captured_host *h) {
    for (size_t i = 0; i < h->state_count; i++) {
        tn_node_release(h->states[i].next);
        h->states[i].next = NULL;
    }
}

void tn_captured_host_free(tn_captured_host *h) {
    if (!h) return;
    for (size_t i = h->hook_count; i-- > 0;) {
        captured_hook *c = &h->hooks[i];
        forget_nodes(c);
        tn_mem_free(c->scalars);
        tn_mem_free(c->values);
        if (c->hook.release) c->hook.release(c->hook.ctx);
    }
    for (size_t i = 0; i < h->gradient_count; i++) {
        tn_grad_slot_release(h->gradients[i].slot);
        tn_node_release(h->gradients[i].fixed);
    }
    forget_next(h);
    for (size_t i = 0; i < h->state_count; i++)
        tn_storage_release(h->states[i].storage);
    tn_mem_free(h->hooks);
    tn_mem_free(h->gradients);
    tn_mem_free(h->states);
    tn_mem_free(h);
}

/* ---- while the capture records ----------------------------------------------------------------------------------- */

bool tn_capturing(void) {
    const tn_recorder *r = tn_recorder_here();
    return r && r->capturing;
}

static tn_status add_hook(tn_captured_host *h, const tn_capture_hook *hook, tn_tensor *const *scalars, int count) {
    TRY(tn_mem_grow(&h->hooks, &h->hook_capacity, h->hook_count + 1, sizeof *h->hooks));
    captured_hook c = {.hook = *hook, .count = count};
    c.nodes = tn_mem_zalloc((size_t)count, sizeof(tn_node *));
    c.scalars = tn_mem_zalloc((size_t)count, sizeof *c.scalars);
    c.values = tn_mem_zalloc((size_t)count, sizeof *c.values);
    if (!c.nodes || !c.scalars || !c.values) {
        tn_mem_free(c.nodes);
        tn_mem_free(c.scalars);
        tn_mem_free(c.values);
        return TN_ERR_MEMORY;
    }
    for (int i = 0; i < count; i++)
        c.nodes[i] = tn_node_retain(tn_tensor_node(scalars[i]));
    h->hooks[h->hook_count++] = c;
    return TN_OK;
}

tn_status tn_capture_add_hook(const tn_capture_hook *hook, tn_tensor *const *scalars, int count) {
    tn_recorder *r = tn_recorder_here();
    if (!r) return TN_ERR_MEMORY;
    TRY(tn_need(hook, "tn_capture_add_hook: the hook"));
    if (hook->struct_size < sizeof *hook || !hook->advance || count < 0 || (count && !scalars))
        return tn_fail(
            TN_ERR_ARGUMENT,
            "tn_capture_add_hook: struct_size is not set, advance is NULL, or %d runtime scalars without a list",
            count);
    if (!r->capturing)
        return tn_fail(TN_ERR_STATE, "tn_capture_add_hook: this thread does not capture (tn_capture_begin)");
    for (int i = 0; i < count; i++) {
        const tn_node *n = tn_tensor_node(scalars[i]);
        if (n->flags & TN_NODE_ERROR) return tn_fail(n->status, "%s", n->error);
        if (n->op != TN_OP_RUNTIME_SCALAR || n->i[0] == TN_SCALAR_RANDOM || n->i[0] == TN_SCALAR_SEED)
            return tn_fail(TN_ERR_ARGUMENT, "tn_capture_add_hook: tensor %d was not made by tn_runtime_scalar", i);
    }
    return add_hook(tn_plans_of(r)->capture, hook, scalars, count);
}

tn_status tn_captured_gradient_note(tn_captured_host *h, tn_grad_slot *slot, tn_gradient_use use) {
    for (size_t i = 0; i < h->gradient_count; i++)
        if (h->gradients[i].slot == slot) return TN_OK; /* what the recording does first counts */
    tn_status s = tn_mem_grow(&h->gradients, &h->gradient_capacity, h->gradient_count + 1, sizeof *h->gradients);
    if (s != TN_OK) return h->failed = s;
    atomic_fetch_add_explicit(&slot->refs, 1, memory_order_relaxed);
    h->gradients[h->gradient_count++] = (captured_gradient){.slot = slot,
                                                            .cleared = use == TN_GRADIENT_CLEARED,
                                                            .earlier = use != TN_GRADIENT_CLEARED && slot->grad,
                                                            .output = -1};
    return TN_OK;
}

/* ---- the end of the capture -------------------------------------------------------------------------------------- */

static void bind_hook(captured_hook *c, const tn_binding *b) {
    for (int i = 0; i < c->count; i++) {
        c->scalars[i] = -1;
        for (size_t k = 0; k < b->scalar_count; k++)
            if (b->scalar_nodes[k] == c->nodes[i]) c->scalars[i] = (int)k;
    }
    forget_nodes(c); /* a retained node would look like one that somebody needs */
}

static tn_status bind_gradient(captured_gradient *c, const tn_binding *b) {
    if (c->earlier)
        return tn_fail(
            TN_ERR_STATE,
            "tn_capture_end: the capture uses a gradient that tn_backward made before it, and launches would "
            "not see a newer one; capture tn_optimizer_zero_grad and tn_backward too (or tn_minimize)");
    if (c->slot->closed || !c->slot->grad) return TN_OK;
    tn_node *n = tn_tensor_node(c->slot->grad);
    if (n->flags & TN_NODE_ERROR) return tn_fail(n->status, "%s", n->error);
    c->dtype = n->dtype;
    c->rank = n->rank;
    memcpy(c->shape, n->shape, sizeof c->shape);
    for (size_t i = 0; i < b->output_count; i++)
        if (b->outputs[i].node == n && b->outputs[i].home < 0) c->output = (int)i;
    if (c->output >= 0) return TN_OK;
    if (!tn_node_computed(n))
        return tn_fail(TN_ERR_STATE,
                       "tn_capture_end: a gradient is a view or state: a launch could not renew it; clear "
                       "it before the end of the capture (tn_zero_grad)");
    c->fixed = tn_node_retain(n);
    return TN_OK;
}

static tn_status bind_states(tn_captured_host *h, const tn_recorder *r) {
    for (tn_storage *s = r->written; s; s = s->next_written) {
        if (s->value->recorder != r) continue;
        TRY(tn_mem_grow(&h->states, &h->state_capacity, h->state_count + 1, sizeof *h->states));
        atomic_fetch_add_explicit(&s->refs, 1, memory_order_relaxed);
        h->states[h->state_count++] = (captured_state){.storage = s};
    }
    return TN_OK;
}

tn_status tn_captured_host_bind(tn_captured_host *h, const tn_recorder *r, const tn_binding *b) {
    TRY(h->failed);
    if (r->reseeds != h->reseeds)
        return tn_fail(TN_ERR_STATE, "tn_capture_end: the random numbers were set inside the capture (tn_manual_seed, "
                                     "tn_set_random_state), which a launch does not repeat; set them before "
                                     "tn_capture_begin or before a launch");
    if (r->captured_write)
        return tn_fail(
            TN_ERR_STATE,
            "tn_capture_end: %s_ wrote in place to a tensor from before the capture, which launches would not "
            "write; make it state first (tn_make_state)",
            r->captured_write);
    h->random_used = r->random_offset - h->random_start;
    for (size_t i = 0; i < h->hook_count; i++)
        bind_hook(&h->hooks[i], b);
    for (size_t i = 0; i < h->gradient_count; i++)
        TRY(bind_gradient(&h->gradients[i], b));
    return bind_states(h, r);
}

bool tn_captured_host_sets(const tn_captured_host *h, int scalar) {
    for (size_t i = 0; i < h->hook_count; i++)
        for (int k = 0; k < h->hooks[i].count; k++)
            if (h->hooks[i].scalars[k] == scalar) return true;
    return false;
}

/* ---- a launch ---------------------------------------------------------------------------------------------------- */

static tn_status check_gradient(const captured_gradient *c) {
    if (c->slot->closed || c->cleared || !c->slot->grad) return TN_OK;
    return tn_fail(TN_ERR_STATE,
                   "tn_graph_launch: a parameter has a gradient already, and had none when tn_backward was captured; "
                   "clear it before each launch (tn_optimizer_zero_grad), or inside the capture");
}

/* If others than handles hold the old value (views, the history of an earlier loss), it is marked as overwritten and
 * the state needs a new node. Usually only handles hold it, and the node stays. */
static tn_status prepare_state(captured_state *c) {
    enum { RESIDENT = 1 };
    tn_storage *s = c->storage;
    if (!s->resident || s->value != s->resident) return TN_OK;
    const tn_node *n = s->resident;
    if (atomic_load(&n->refs) - atomic_load(&n->handles) <= RESIDENT) return TN_OK;
    c->next = tn_node_data(s->home, n->shape, n->rank, (tn_dtype)n->dtype);
    return c->next->flags & TN_NODE_ERROR ? c->next->status : TN_OK;
}

static tn_status prepare_captured(tn_captured_host *h) {
    for (size_t i = 0; i < h->gradient_count; i++)
        TRY(check_gradient(&h->gradients[i]));
    for (size_t i = 0; i < h->state_count; i++)
        TRY(prepare_state(&h->states[i]));
    return TN_OK;
}

static void undo_hooks(tn_captured_host *h, size_t count) {
    for (size_t i = count; i-- > 0;)
        if (h->hooks[i].hook.undo) h->hooks[i].hook.undo(h->hooks[i].hook.ctx);
}

static tn_status advance_hook(captured_hook *c, kir_scalar *scalars, const bool *is_float) {
    TRY(c->hook.advance(c->hook.ctx, c->values));
    for (int i = 0; i < c->count; i++) {
        if (c->scalars[i] < 0) continue;
        if (is_float[c->scalars[i]])
            scalars[c->scalars[i]].f = c->values[i];
        else
            scalars[c->scalars[i]].i = (int64_t)c->values[i];
    }
    return TN_OK;
}

tn_status tn_captured_host_advance(tn_captured_host *h, kir_scalar *scalars, const bool *is_float) {
    tn_status s = prepare_captured(h);
    for (size_t i = 0; i < h->hook_count && s == TN_OK; i++) {
        s = advance_hook(&h->hooks[i], scalars, is_float);
        if (s != TN_OK) undo_hooks(h, i);
    }
    if (s != TN_OK) forget_next(h);
    return s;
}

void tn_captured_host_undo(tn_captured_host *h) {
    undo_hooks(h, h->hook_count);
    forget_next(h);
}

void tn_captured_host_wrote(tn_captured_host *h) {
    for (size_t i = 0; i < h->state_count; i++) {
        tn_storage_moved(h->states[i].storage, h->states[i].next);
        h->states[i].next = NULL;
    }
}

void tn_captured_host_lose(tn_captured_host *h, tn_status why) {
    for (size_t i = 0; i < h->state_count; i++)
        tn_storage_lost(h->states[i].storage, tn_node_error(why, tn_error()));
}

void tn_captured_host_collect(tn_captured_host *h, tn_buffer *const *results) {
    for (size_t i = 0; i < h->gradient_count; i++) {
        captured_gradient *c = &h->gradients[i];
        if (c->slot->closed) continue;
        tn_tensor *before = c->slot->grad;
        tn_node *n = c->output >= 0 ? tn_node_data(results[c->output], c->shape, c->rank, (tn_dtype)c->dtype)
                                    : tn_node_retain(c->fixed);
        c->slot->grad = n ? tn_tensor_unscoped(tn_tensor_new(n)) : NULL;
        tn_free(before);
    }
}
