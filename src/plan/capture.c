/* capture.c — explicit replay: a plan with its bindings, run again without recording; the host's part of a replay.
 *
 * The graph keeps the buffers of the recording. A launch replaces those of the inputs, makes new ones for the results,
 * and writes states in place. */
#include <string.h>

#include "plan/plan.h"
#include "tensor/graph.h"

static tn_captured_host *captured_host_new(const tn_recorder *r); /* NULL if out of memory */
/* The end of the capture: finds everything in the binding; refuses what a launch could not repeat. */
static tn_status captured_host_bind(tn_captured_host *h, const tn_recorder *r, const tn_binding *b);
/* A launch first calls advance, which does everything that can fail and sets the hooks' runtime scalars. Then: undo if
 * the launch fails; wrote as soon as states were written; collect, with the plan's results, if it succeeds. */
static tn_status captured_host_advance(tn_captured_host *h, kir_scalar *scalars, const bool *is_float);
static void captured_host_undo(tn_captured_host *h);
static void captured_host_wrote(tn_captured_host *h);
static void captured_host_lose(tn_captured_host *h, tn_status why); /* the states, after wrote: reading them fails */
static void captured_host_collect(tn_captured_host *h, tn_buffer *const *results);
/* Whether a hook sets this runtime scalar. */
static bool captured_host_sets(const tn_captured_host *h, int scalar);

typedef struct graph_input {
    int slot; /* -1: the recording did not read it */
    uint8_t dtype, rank;
    int64_t shape[TN_MAX_RANK];
} graph_input;

typedef struct graph_output {
    int output;      /* of the plan */
    tn_buffer *copy; /* during a launch: a state as result, which later launches must not change */
    uint8_t dtype, rank;
    int64_t shape[TN_MAX_RANK];
} graph_output;

/* A runtime scalar of the plan. */
typedef struct graph_runtime_scalar {
    int64_t kind;       /* TN_RUNTIME_SCALAR_… */
    uint64_t random_at; /* a random counter: how many numbers the recording drew before */
} graph_runtime_scalar;

struct tn_graph {
    tn_plan *plan;
    tn_plan *on_host; /* the same by the cpu, should an engine fail to run `plan`; NULL: there is none */
    tn_captured_host *host;
    tn_device *device; /* held: a graph may be bound to no buffer */
    tn_buffer **bound;
    size_t bound_count;
    graph_input *inputs;
    graph_output *outputs;
    int input_count, output_count;
    kir_scalar *scalars;
    graph_runtime_scalar *scalar_of;
    bool *scalar_is_float;
    size_t scalar_count;
};

tn_status tn_capture_begin(void) {
    tn_recorder *r = tn_recorder_here();
    if (!r) return TN_ERR_MEMORY;
    if (r->capturing)
        return tn_fail(TN_ERR_STATE, "tn_capture_begin: this thread is already capturing; end that capture first");
    TRY(tn_flush(r, NULL, 0));
    tn_plan_cache *c = tn_plans_of(r);
    if (!c || !(c->capture = captured_host_new(r))) return TN_ERR_MEMORY;
    r->capturing = true;
    r->captured_write = NULL;
    return TN_OK;
}

void tn_graph_free(tn_graph *g) {
    if (!g) return;
    for (size_t i = 0; i < g->bound_count; i++)
        tn_buffer_release(g->bound[i]);
    tn_plan_free(g->plan);
    tn_plan_free(g->on_host);
    tn_captured_host_free(g->host);
    if (g->device) tn_device_release(g->device);
    tn_mem_free_each(g->bound, g->inputs, g->outputs, g->scalars, g->scalar_of, g->scalar_is_float, g);
}

/* Checks the lists of capture and launch: no NULL entries. */
static tn_status check_list(tn_tensor *const *items, int count, const char *function, const char *what) {
    if (count < 0) return tn_fail(TN_ERR_ARGUMENT, "%s: %d %s; the count must be at least 0", function, count, what);
    for (int i = 0; i < count; i++) {
        if (!items) return tn_fail(TN_ERR_ARGUMENT, "%s: %s is NULL, its count %d", function, what, count);
        if (!items[i]) return tn_fail(TN_ERR_ARGUMENT, "%s: %s: tensor %d is NULL", function, what, i);
    }
    return TN_OK;
}

static tn_status check_lists(tn_tensor *const *inputs, int input_count, tn_tensor *const *outputs, int output_count,
                             const char *function) {
    TRY(check_list(inputs, input_count, function, "inputs"));
    return check_list(outputs, output_count, function, "outputs");
}

static tn_status note_input(graph_input *in, const tn_binding *b, const tn_tensor *t, int number) {
    const tn_node *n = tn_tensor_node(t);
    if (!n->buffer)
        return tn_fail(TN_ERR_ARGUMENT,
                       "tn_capture_end: input %d is a view or has no value (evaluate it, or make it contiguous)",
                       number);
    in->slot = tn_map_find(&b->scratch.buffer_slots, n->buffer);
    in->dtype = n->dtype;
    in->rank = n->rank;
    memcpy(in->shape, n->shape, sizeof in->shape);
    return TN_OK;
}

static tn_status note_output(graph_output *out, const tn_binding *b, const tn_tensor *t, int number) {
    const tn_node *n = tn_tensor_node(t), *root = n->flags & TN_NODE_VIEW ? n->root : n;
    for (size_t i = 0; i < b->output_count; i++) {
        if (b->outputs[i].node != root || !tn_node_contiguous(n)) continue;
        out->output = (int)i;
        out->dtype = n->dtype;
        out->rank = n->rank;
        memcpy(out->shape, n->shape, sizeof out->shape);
        return TN_OK;
    }
    return tn_fail(
        TN_ERR_ARGUMENT,
        "tn_capture_end: output %d was not recorded in this capture, or is a strided view (make it contiguous)",
        number);
}

static tn_status note_runtime_scalars(tn_graph *g, const tn_binding *b) {
    g->scalar_count = b->scalar_count;
    g->scalars = tn_mem_zalloc(b->scalar_count, sizeof *g->scalars);
    g->scalar_of = tn_mem_zalloc(b->scalar_count, sizeof *g->scalar_of);
    g->scalar_is_float = tn_mem_zalloc(b->scalar_count, sizeof *g->scalar_is_float);
    if (!g->scalars || !g->scalar_of || !g->scalar_is_float) return TN_ERR_MEMORY;
    for (size_t i = 0; i < b->scalar_count; i++) {
        const tn_node *d = b->scalar_nodes[i];
        g->scalars[i] = tn_runtime_scalar_value_of(d);
        g->scalar_is_float[i] = d->i[0] == TN_SCALAR_FLOAT;
        g->scalar_of[i] = (graph_runtime_scalar){d->i[0], (uint64_t)d->i[1] - g->host->random_start};
    }
    return TN_OK;
}

static tn_status note_graph_buffers(tn_graph *g, const tn_binding *b, tn_tensor *const *inputs,
                                    tn_tensor *const *outputs) {
    g->inputs = tn_mem_zalloc((size_t)g->input_count, sizeof *g->inputs);
    g->outputs = tn_mem_zalloc((size_t)g->output_count, sizeof *g->outputs);
    g->bound = tn_mem_zalloc(b->buffer_count, sizeof *g->bound);
    if (!g->inputs || !g->outputs || !g->bound) return TN_ERR_MEMORY;
    for (size_t i = 0; i < b->buffer_count; i++)
        g->bound[i] = tn_buffer_retain(b->buffers[i]);
    g->bound_count = b->buffer_count;
    for (int i = 0; i < g->input_count; i++)
        TRY(note_input(&g->inputs[i], b, inputs[i], i));
    for (int i = 0; i < g->output_count; i++)
        TRY(note_output(&g->outputs[i], b, outputs[i], i));
    return note_runtime_scalars(g, b);
}

static size_t greater(size_t a, size_t b) { return a > b ? a : b; }

/* What an engine may fail to run is planned for the cpu as well, because a launch has no recording to plan again. The
 * memory of a launch is enough for either. */
static tn_status make_plans(tn_binding *b, tn_graph *g) {
    TRY(tn_plan_make(b, &g->plan));
    if (!g->plan->command_count || g->plan->commands[0].kind != TN_CMD_ENGINE) return TN_OK;
    for (int i = 0; i < g->input_count; i++)
        tn_engine_call_varies(g->plan->commands[0].engine, g->inputs[i].slot);
    if (g->device->fallback == TN_FALLBACK_STRICT) return TN_OK;
    b->request.on_host = true;
    tn_status s = tn_plan_make(b, &g->on_host);
    b->request.on_host = false;
    TRY(s);
    g->plan->arena_bytes = greater(g->plan->arena_bytes, g->on_host->arena_bytes);
    g->plan->host_bytes = greater(g->plan->host_bytes, g->on_host->host_bytes);
    return TN_OK;
}

/* A plan is one device's: what would be written on another is not left out without a word. */
static tn_status check_states(const tn_recorder *r, const tn_binding *b) {
    for (const tn_storage *s = r->written; s && b->device; s = s->next_written)
        if (s->value->recorder == r && s->value->device != b->device)
            return tn_fail(
                TN_ERR_ARGUMENT,
                "tn_capture_end: states on two devices, %s and %s, are written: make one capture for each device",
                b->device->info.id, s->value->device->info.id);
    return TN_OK;
}

static tn_status make_graph_plan(tn_recorder *r, tn_graph *g, tn_tensor *const *inputs, tn_tensor *const *outputs) {
    tn_plan_cache *c = tn_plans_of(r);
    if (!c) return TN_ERR_MEMORY;
    const tn_node **targets = tn_mem_alloc((size_t)g->output_count * sizeof *targets);
    if (!targets) return TN_ERR_MEMORY;
    for (int i = 0; i < g->output_count; i++)
        targets[i] = tn_tensor_node(outputs[i]);
    tn_status s = TN_OK;
    for (int i = 0; i < g->output_count && s == TN_OK; i++)
        if (targets[i]->flags & TN_NODE_ERROR) s = tn_fail(targets[i]->status, "%s", targets[i]->error);
    c->binding.request.varies = false;
    c->binding.request.whole = true;
    if (s == TN_OK) s = tn_binding_make(&c->binding, r, targets, g->output_count);
    tn_mem_free(targets);
    if (s == TN_OK) s = note_graph_buffers(g, &c->binding, inputs, outputs);
    if (s == TN_OK) s = check_states(r, &c->binding);
    if (s == TN_OK) s = captured_host_bind(g->host, r, &c->binding);
    if (s != TN_OK || !c->binding.device) return s;
    tn_device_retain(c->binding.device);
    g->device = c->binding.device;
    return make_plans(&c->binding, g);
}

/* If this fails before the values are computed, the recording stays, and the next evaluation computes it. */
static tn_status compute_captured(tn_recorder *r, tn_graph *g, tn_tensor *const *inputs, tn_tensor *const *outputs) {
    TRY(make_graph_plan(r, g, inputs, outputs));
    tn_status s = tn_eval(outputs, g->output_count);
    if (s != TN_OK) captured_host_undo(g->host);
    return s;
}

static tn_status check_end(tn_tensor *const *inputs, int input_count, tn_tensor *const *outputs, int output_count,
                           tn_graph **out) {
    TRY(check_lists(inputs, input_count, outputs, output_count, "tn_capture_end"));
    TRY(tn_need(out, "tn_capture_end: out"));
    *out = NULL;
    return tn_refusal_report();
}

tn_status tn_capture_end(tn_tensor *const *inputs, int input_count, tn_tensor *const *outputs, int output_count,
                         tn_graph **out) {
    tn_recorder *r = tn_recorder_here();
    if (!r) return TN_ERR_MEMORY;
    if (!r->capturing) return tn_fail(TN_ERR_STATE, "tn_capture_end: no capture was begun on this thread");
    r->capturing = false;
    tn_plan_cache *c = r->plans; /* there since tn_capture_begin */
    tn_captured_host *host = c->capture;
    c->capture = NULL;
    tn_status s = check_end(inputs, input_count, outputs, output_count, out);
    tn_graph *g = s == TN_OK ? tn_mem_zalloc(1, sizeof *g) : NULL;
    if (!g) {
        tn_captured_host_free(host);
        return s == TN_OK ? TN_ERR_MEMORY : s;
    }
    *g = (tn_graph){.host = host, .input_count = input_count, .output_count = output_count};
    s = compute_captured(r, g, inputs, outputs);
    if (s == TN_OK)
        *out = g;
    else
        tn_graph_free(g);
    return s;
}

static tn_status bind_input(tn_graph *g, int i, tn_tensor *t) {
    const graph_input *in = &g->inputs[i];
    tn_node *n = tn_tensor_node(t);
    if (!tn_node_computed(n)) {
        TRY(tn_eval(&t, 1));
        n = tn_tensor_node(t);
    }
    bool same = n->buffer && n->dtype == in->dtype && n->rank == in->rank &&
                memcmp(n->shape, in->shape, (size_t)n->rank * sizeof *n->shape) == 0;
    if (!same) {
        char shape[96];
        return tn_fail(
            TN_ERR_SHAPE,
            "tn_graph_launch: input %d is %s %s; it must be contiguous, with the shape and dtype that were captured", i,
            tn_dtype_name((tn_dtype)n->dtype), tn_shape_text(n, shape, sizeof shape));
    }
    if (in->slot < 0) return TN_OK;
    tn_buffer_retain(n->buffer);
    tn_buffer_release(g->bound[in->slot]);
    g->bound[in->slot] = n->buffer;
    return TN_OK;
}

/* Takes as many random numbers as the recording did, from the thread's current position. */
static void advance_random(tn_recorder *r, tn_graph *g) {
    for (size_t i = 0; i < g->scalar_count; i++) {
        if (g->scalar_of[i].kind == TN_SCALAR_RANDOM)
            g->scalars[i].i = (int64_t)(r->random_offset + g->scalar_of[i].random_at);
        else if (g->scalar_of[i].kind == TN_SCALAR_SEED)
            g->scalars[i].i = (int64_t)tn_random_here()->seed;
    }
    r->random_offset += g->host->random_used;
}

static void mark_written(tn_graph *g) {
    for (int i = 0; i < g->plan->output_count; i++)
        if (g->plan->output_home[i] >= 0) g->bound[g->plan->output_home[i]]->version++;
    if (g->host->state_count) captured_host_wrote(g->host);
}

static bool is_state(const tn_graph *g, const graph_output *o) { return g->plan->output_home[o->output] >= 0; }

static void release_copies(tn_graph *g) {
    for (int i = 0; i < g->output_count; i++) {
        tn_buffer_release(g->outputs[i].copy);
        g->outputs[i].copy = NULL;
    }
}

static tn_status reserve_copies(tn_graph *g) {
    for (int i = 0; i < g->output_count; i++) {
        graph_output *o = &g->outputs[i];
        if (is_state(g, o)) TRY(tn_buffer_new(g->plan->device, (size_t)g->plan->output_bytes[o->output], &o->copy));
    }
    return TN_OK;
}

static tn_status make_graph_outputs(const tn_graph *g, tn_buffer *const *results, tn_tensor **outputs) {
    for (int i = 0; i < g->output_count; i++) { /* all copies before the first handle: none is lost in a failure */
        const graph_output *o = &g->outputs[i];
        tn_buffer *b = results[o->output];
        if (o->copy && b->bytes) TRY(tn_buffer_copy(o->copy, b, b->bytes));
    }
    for (int i = 0; i < g->output_count; i++) {
        const graph_output *o = &g->outputs[i];
        tn_buffer *b = results[o->output];
        outputs[i] = tn_tensor_new(tn_node_data(o->copy ? o->copy : b, o->shape, o->rank, (tn_dtype)o->dtype));
    }
    return TN_OK;
}

/* The engine failed with `status`: the cpu computes this launch and all later ones. If the cpu fails too, the values
 * were to blame, and the next launch is the engine's again. */
static tn_status submit_on_host(tn_plan_cache *c, tn_graph *g, tn_status status) {
    tn_plan *failed = g->plan;
    TRY(tn_engine_failed(failed, status));
    TRY(tn_plan_submit(c, g->on_host, g->bound, g->scalars));
    g->plan = g->on_host;
    g->on_host = NULL;
    tn_place_tell(failed);
    tn_plan_free(failed);
    return TN_OK;
}

/* Everything that can fail for lack of memory comes before the run, so a launch that fails has changed nothing. *ran:
 * the device has executed it, even if making the results fails. */
static tn_status launch_graph_plan(tn_plan_cache *c, tn_graph *g, tn_tensor **outputs, bool *ran) {
    *ran = !g->device; /* nothing was recorded */
    if (*ran) return TN_OK;
    TRY(reserve_copies(g));
    TRY(tn_plan_reserve(c, g->plan, g->bound));
    tn_status s = tn_plan_submit(c, g->plan, g->bound, g->scalars);
    if (g->on_host && (s == TN_ERR_DEVICE || s == TN_ERR_ARGUMENT)) s = submit_on_host(c, g, s);
    if (s == TN_ERR_ARGUMENT) s = tn_check_name_line(g->plan, NULL, s);
    bool partially_committed = s != TN_OK && g->plan->runs.partially_committed;
    *ran = s == TN_OK;
    if (s == TN_OK || partially_committed) mark_written(g);
    if (partially_committed) {
        s = tn_fail_prefix(s,
                           "the device failed while states were being written; their values are lost, load them again");
        captured_host_lose(g->host, s);
    }
    if (*ran) {
        if (g->host->gradient_count) captured_host_collect(g->host, c->outputs);
        s = make_graph_outputs(g, c->outputs, outputs);
    }
    tn_plan_release_outputs(c, g->plan, g->plan->output_count);
    c->launches += (int64_t)g->plan->command_count;
    return s;
}

tn_status tn_graph_launch(tn_graph *g, tn_tensor *const *inputs, tn_tensor **outputs) {
    TRY(tn_need(g, "tn_graph_launch: the graph"));
    TRY(check_list(inputs, g->input_count, "tn_graph_launch", "inputs"));
    if (g->output_count > 0) TRY(tn_need(outputs, "tn_graph_launch: outputs"));
    tn_recorder *r = tn_recorder_here();
    tn_plan_cache *c = r ? tn_plans_of(r) : NULL;
    if (!c) return TN_ERR_MEMORY;
    if (r->capturing)
        return tn_fail(
            TN_ERR_STATE,
            "tn_graph_launch: this thread is capturing, and a launch cannot be captured; launch after tn_capture_end");
    TRY(tn_refusal_report());
    TRY(tn_flush(r, NULL, 0)); /* writes pending on states come first */
    for (int i = 0; i < g->input_count; i++)
        TRY(bind_input(g, i, inputs[i]));
    const tn_captured_host *h = g->host;
    if (h->hook_count | h->gradient_count | h->state_count)
        TRY(captured_host_advance(g->host, g->scalars, g->scalar_is_float));
    advance_random(r, g);
    bool ran;
    tn_status s = launch_graph_plan(c, g, outputs, &ran);
    if (!ran) captured_host_undo(g->host);
    release_copies(g);
    return s;
}

static kir_scalar scalar_of_number(double value, bool is_float) {
    return is_float ? (kir_scalar){.f = value} : (kir_scalar){.i = (int64_t)value};
}

tn_status tn_graph_set_runtime_scalar(tn_graph *g, int scalar, double value) {
    TRY(tn_need(g, "tn_graph_set_runtime_scalar: the graph"));
    if (scalar < 0 || (size_t)scalar >= g->scalar_count)
        return tn_fail(TN_ERR_ARGUMENT,
                       "tn_graph_set_runtime_scalar: runtime scalar %d is out of range; the graph has %zu", scalar,
                       g->scalar_count);
    if (captured_host_sets(g->host, scalar))
        return tn_fail(TN_ERR_ARGUMENT,
                       "tn_graph_set_runtime_scalar: runtime scalar %d is set at each launch by what recorded it; "
                       "change it there, for example with tn_optimizer_set_lr",
                       scalar);
    g->scalars[scalar] = scalar_of_number(value, g->scalar_is_float[scalar]);
    return TN_OK;
}

/* ==== the host's side: hooks, gradients, states, random numbers =================================================== */
/* Everything that can fail is done before the launch. After it, only what was prepared is put in place. */

static tn_captured_host *captured_host_new(const tn_recorder *r) {
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
        tn_mem_free_each(c->scalars, c->values);
        if (c->hook.release) c->hook.release(c->hook.ctx);
    }
    for (size_t i = 0; i < h->gradient_count; i++) {
        tn_grad_slot_release(h->gradients[i].slot);
        tn_node_release(h->gradients[i].fixed);
    }
    forget_next(h);
    for (size_t i = 0; i < h->state_count; i++)
        tn_storage_release(h->states[i].storage);
    tn_mem_free_each(h->hooks, h->gradients, h->states, h);
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
        tn_mem_free_each(c.nodes, c.scalars, c.values);
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
            "tn_capture_add_hook: struct_size is not set, advance is NULL, or the list of %d runtime scalars is NULL",
            count);
    if (!r->capturing)
        return tn_fail(TN_ERR_STATE, "tn_capture_add_hook: this thread is not capturing; call tn_capture_begin first");
    for (int i = 0; i < count; i++) {
        const tn_node *n = tn_tensor_node(scalars[i]);
        if (n->flags & TN_NODE_ERROR) return tn_fail(n->status, "%s", n->error);
        if (!tn_op_has(n, TN_FACT_LAUNCH_SCALAR) || n->i[0] == TN_SCALAR_RANDOM || n->i[0] == TN_SCALAR_SEED)
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
    forget_nodes(c); /* a retained node would look as if it were still needed */
}

static tn_status bind_gradient(captured_gradient *c, const tn_binding *b) {
    if (c->earlier)
        return tn_fail(
            TN_ERR_STATE,
            "tn_capture_end: the capture uses a gradient that tn_backward computed before it, and launches would not "
            "see a newer one; capture tn_optimizer_zero_grad and tn_backward too (or tn_minimize)");
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
        return tn_fail(TN_ERR_STATE, "tn_capture_end: a gradient is a view or a state, which a launch cannot replace; "
                                     "clear it before the end of the capture (tn_zero_grad)");
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

static tn_status captured_host_bind(tn_captured_host *h, const tn_recorder *r, const tn_binding *b) {
    TRY(h->failed);
    if (r->reseeds != h->reseeds)
        return tn_fail(
            TN_ERR_STATE,
            "tn_capture_end: the random generator was set inside the capture (tn_manual_seed, tn_set_random_state), "
            "which a launch does not repeat; set it before tn_capture_begin or before a launch");
    if (r->captured_write)
        return tn_fail(TN_ERR_STATE,
                       "tn_capture_end: %s_ wrote in place to a tensor created before the capture, which launches "
                       "would not update; make it a state first (tn_make_state)",
                       r->captured_write);
    h->random_used = r->random_offset - h->random_start;
    for (size_t i = 0; i < h->hook_count; i++)
        bind_hook(&h->hooks[i], b);
    for (size_t i = 0; i < h->gradient_count; i++)
        TRY(bind_gradient(&h->gradients[i], b));
    return bind_states(h, r);
}

static bool captured_host_sets(const tn_captured_host *h, int scalar) {
    for (size_t i = 0; i < h->hook_count; i++)
        for (int k = 0; k < h->hooks[i].count; k++)
            if (h->hooks[i].scalars[k] == scalar) return true;
    return false;
}

/* ---- a launch ---------------------------------------------------------------------------------------------------- */

static tn_status check_gradient(const captured_gradient *c) {
    if (c->slot->closed || c->cleared || !c->slot->grad) return TN_OK;
    return tn_fail(TN_ERR_STATE,
                   "tn_graph_launch: a parameter has a gradient now, but had none when tn_backward was captured; clear "
                   "it before each launch (tn_optimizer_zero_grad), or inside the capture");
}

/* If anything besides handles refers to the old value (views, the history of an earlier loss), it is marked as
 * overwritten and the state gets a new node. Usually only handles do, and the node stays. */
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
        scalars[c->scalars[i]] = scalar_of_number(c->values[i], is_float[c->scalars[i]]);
    }
    return TN_OK;
}

static tn_status captured_host_advance(tn_captured_host *h, kir_scalar *scalars, const bool *is_float) {
    tn_status s = prepare_captured(h);
    for (size_t i = 0; i < h->hook_count && s == TN_OK; i++) {
        s = advance_hook(&h->hooks[i], scalars, is_float);
        if (s != TN_OK) undo_hooks(h, i);
    }
    if (s != TN_OK) forget_next(h);
    return s;
}

static void captured_host_undo(tn_captured_host *h) {
    undo_hooks(h, h->hook_count);
    forget_next(h);
}

static void captured_host_wrote(tn_captured_host *h) {
    for (size_t i = 0; i < h->state_count; i++) {
        tn_storage_moved(h->states[i].storage, h->states[i].next);
        h->states[i].next = NULL;
    }
}

static void captured_host_lose(tn_captured_host *h, tn_status why) {
    for (size_t i = 0; i < h->state_count; i++)
        tn_storage_lost(h->states[i].storage, tn_node_error(why, tn_error()));
}

static void captured_host_collect(tn_captured_host *h, tn_buffer *const *results) {
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
