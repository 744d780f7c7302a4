/* flush.c — flushes a recording: finds or makes its plan, submits it to a queue, and gives each output node its buffer.
 *
 * All memory is reserved before the first launch, so a run that fails to get memory leaves every state unchanged. After
 * a run, nodes that nothing refers to are freed, and nodes that need no gradient release their inputs. */
#include <string.h>

#include "hal/queue.h"
#include "kir/rules.h"
#include "plan/passes.h"
#include "plan/plan.h"

/* ---- the cache --------------------------------------------------------------------------------------------------- */

/* The last plan moves to the freed place. */
static void drop_plan(tn_plan_cache *c, int at) {
    tn_plan *p = c->plans[at];
    if (c->last == p) c->last = NULL;
    for (int i = 0; i < TN_NEWEST_PLANS; i++)
        if (c->newest[i] == p) c->newest[i] = NULL;
    c->bytes -= p->bytes;
    tn_plan_free(p);
    c->count--;
    c->plans[at] = c->plans[c->count];
    c->hashes[at] = c->hashes[c->count];
}

static void clear(tn_plan_cache *c) {
    while (c->count > 0)
        drop_plan(c, c->count - 1);
    tn_binding_free(&c->binding);
    tn_buffer_release(c->arena);
    tn_buffer_release(c->staged);
    c->arena = c->staged = NULL;
    tn_mem_free_each(c->outputs, c->scalars);
    c->outputs = NULL;
    c->scalars = NULL;
    c->output_capacity = c->scalar_capacity = 0;
}

static void plans_free(void *plans) {
    tn_plan_cache *c = plans;
    if (!c) return;
    clear(c);
    tn_captured_host_free(c->capture);
    tn_mem_free(c);
}

void tn_clear_plans(void) {
    tn_recorder *r = tn_recorder_here();
    if (!r) return;
    if (r->plans) clear(r->plans);
    tn_recorder_trim();
}

tn_plan_cache *tn_plans_of(tn_recorder *r) {
    if (r->plans) return r->plans;
    r->plans = tn_mem_zalloc(1, sizeof(tn_plan_cache));
    r->plans_free = plans_free;
    return r->plans;
}

static bool same_key(const tn_plan *p, const tn_binding *b) {
    return p->key.count == b->key.count && memcmp(p->key.words, b->key.words, b->key.count * sizeof *b->key.words) == 0;
}

static bool same_sizes(const tn_plan *p, const tn_binding *b) {
    if (p->key.size_count != b->key.size_count) return false;
    return b->key.size_count == 0 || memcmp(p->key.sizes, b->key.sizes, b->key.size_count * sizeof *b->key.sizes) == 0;
}

static int cached_plan_index(const tn_plan_cache *c, const tn_binding *b, uint64_t hash) {
    for (int i = 0; i < c->count; i++)
        if (c->hashes[i] == hash && same_key(c->plans[i], b)) return i;
    return -1;
}

/* Makes room for a plan: those unused for longest go. */
static void evict_plans(tn_plan_cache *c, const tn_plan *p) {
    while (c->count > 0 && (c->count == TN_MAX_PLANS || c->bytes + p->bytes > TN_MAX_PLAN_BYTES)) {
        int oldest = 0;
        for (int i = 1; i < c->count; i++)
            if (c->plans[i]->last_used < c->plans[oldest]->last_used) oldest = i;
        drop_plan(c, oldest);
    }
}

/* Loops ask for the same plans in the same order: the one that came after the last plan before is looked at first. */
static int guessed_place(const tn_plan_cache *c, const tn_binding *b) {
    int guess = c->last ? c->last->followed_by : 0;
    return guess < c->count && same_key(c->plans[guess], b) ? guess : -1;
}

static tn_plan *take_hit(tn_plan_cache *c, int at) {
    c->hits++;
    if (c->last) c->last->followed_by = at;
    c->plans[at]->last_used = ++c->clock;
    return c->plans[at];
}

static tn_status tn_plan_find(tn_plan_cache *c, const tn_binding *b, tn_plan **out) {
    *out = NULL;
    int at = guessed_place(c, b);
    uint64_t hash = at >= 0 ? c->hashes[at] : tn_hash64(b->key.words, b->key.count * sizeof *b->key.words, 0);
    if (at < 0) at = cached_plan_index(c, b, hash);
    if (at >= 0 && same_sizes(c->plans[at], b)) {
        *out = take_hit(c, at);
        return TN_OK;
    }
    /* Same structure, other sizes: make the plan again in its place. Its kernels are found by structure. */
    double start = tn_now();
    tn_plan *p = NULL;
    if (at < 0) tn_vary_learn(c, b);
    b->recorder->fixed = false;
    TRY(tn_plan_make(b, &p));
    if (b->recorder->fixed) { /* the key does not have a number that the plan knows */
        tn_plan_free(p);
        return TN_OK;
    }
    if (at >= 0) {
        c->resized++;
        drop_plan(c, at);
    } else {
        c->misses++;
    }
    evict_plans(c, p);
    at = c->count++;
    c->bytes += p->bytes;
    c->newest[c->newest_at++ % TN_NEWEST_PLANS] = p;
    c->made++;
    c->plans[at] = p;
    c->hashes[at] = hash;
    p->last_used = ++c->clock;
    c->plan_seconds += tn_now() - start;
    *out = p;
    return TN_OK;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static tn_status reserve_at_least(tn_device *d, size_t bytes, tn_buffer **b) {
    enum {
        LARGE = 1 << 26
    }; /* an outgrown block of this size is not kept: with its successor it would double the peak */
    if (bytes == 0) return TN_OK;
    /* With queues the pool knows better which block is free: another queue may still work on this one. */
    if (*b && (*b)->device == d && (*b)->bytes >= bytes && !tn_queues_exist()) return TN_OK;
    bool outgrown = *b && (*b)->bytes >= LARGE && (*b)->bytes < bytes;
    tn_buffer_release(*b);
    *b = NULL;
    if (outgrown) tn_memory_trim_for(d, bytes);
    return tn_buffer_new(d, bytes, b);
}

static tn_status reserve_arena(tn_plan_cache *c, const tn_plan *p) {
    if (p->host_bytes) TRY(reserve_at_least(tn_host_device(), p->host_bytes, &c->staged));
    return reserve_at_least(p->device, p->arena_bytes, &c->arena);
}

void tn_plan_release_outputs(tn_plan_cache *c, TN_UNUSED const tn_plan *p, int count) {
    for (int i = 0; i < count; i++)
        tn_buffer_release(c->outputs[i]);
}

/* what: the output, or TN_REFUSED_ARENA. The device also counts what would have been reserved behind it. */
static tn_status note_refused_output(tn_plan_cache *c, const tn_plan *p, int what, tn_status s) {
    if (s != TN_ERR_MEMORY) return s;
    c->refused = what;
    int64_t rest = 0;
    for (int i = what == TN_REFUSED_ARENA ? 0 : what + 1; i < p->output_count; i++)
        rest += p->output_home[i] < 0 ? p->output_bytes[i] : 0;
    tn_pool_refuse_more(p->device, rest);
    return s;
}

tn_status tn_plan_reserve(tn_plan_cache *c, const tn_plan *p, tn_buffer *const *bound) {
    c->refused = TN_REFUSED_NONE;
    TRY(tn_mem_grow(&c->outputs, &c->output_capacity, (size_t)p->output_count, sizeof *c->outputs));
    TRY(note_refused_output(c, p, TN_REFUSED_ARENA, reserve_arena(c, p)));
    for (int i = 0; i < p->output_count; i++) {
        if (p->output_home[i] >= 0) {
            c->outputs[i] = tn_buffer_retain(bound[p->output_home[i]]);
            continue;
        }
        tn_status s = tn_buffer_new(p->device, (size_t)p->output_bytes[i], &c->outputs[i]);
        if (s == TN_OK) continue;
        tn_plan_release_outputs(c, p, i);
        return note_refused_output(c, p, i, s);
    }
    return TN_OK;
}

/* ---- after a run ------------------------------------------------------------------------------------------------- */

/* The states whose new value this evaluation was about: all but those that another device is to compute yet. */
static tn_storage *take_written(tn_recorder *r, const tn_device *d) {
    tn_storage *taken = NULL, **link = &r->written;
    while (*link) {
        tn_storage *s = *link;
        if (d && s->value->device != d && s->value->recorder == r) {
            link = &s->next_written;
            continue;
        }
        *link = s->next_written;
        s->next_written = taken;
        s->in_written = false;
        taken = s;
    }
    return taken;
}

static void commit_states(tn_recorder *r, const tn_device *d) {
    tn_storage *next;
    for (tn_storage *s = take_written(r, d); s; s = next) {
        next = s->next_written;
        s->next_written = NULL;
        if (s->value->buffer == s->home && s->resident != s->value) {
            if (s->resident) {
                s->resident->flags |= TN_NODE_STALE;
                tn_node_release(s->resident);
            }
            s->resident = tn_node_retain(s->value);
            s->home->version++;
        }
        tn_storage_release(s);
    }
}

static void take_from_list(tn_recorder *r, size_t i, bool alone) {
    tn_node *n = r->pending[i];
    r->pending[i] = NULL;
    if (alone) { /* goes now, and counts of its inputs need no lock while it is still this thread's */
        tn_node_release(n);
        return;
    }
    n->recorder = NULL;
    n->index = -1;
    bool history = (n->flags & TN_NODE_GRAD) && !(n->flags & TN_NODE_LEAF);
    if (!history && tn_node_computed(n)) tn_node_forget_inputs(n);
    tn_node_release(n);
}

/* Backwards, so that a node whose last user was just freed is freed too. */
static void prune(tn_recorder *r) {
    for (size_t i = r->count; i-- > 0;) {
        const tn_node *n = r->pending[i];
        if (!n) continue;
        bool alone = atomic_load_explicit(&n->refs, memory_order_acquire) == 1;
        if (alone || tn_node_computed(n) || (n->flags & TN_NODE_ERROR)) take_from_list(r, i, alone);
    }
    size_t kept = 0;
    for (size_t i = 0; i < r->count; i++) {
        tn_node *n = r->pending[i];
        if (!n) continue;
        n->index = (int32_t)kept;
        r->pending[kept++] = n;
    }
    r->count = kept;
}

static void give_buffers(tn_plan_cache *c, const tn_binding *b) {
    for (size_t i = 0; i < b->output_count; i++) {
        b->outputs[i].node->buffer = c->outputs[i];
        if (b->recorder->unasked) c->outputs[i]->unasked = true;
    }
}

/* ---- one run ----------------------------------------------------------------------------------------------------- */

/* Converted as the constant would be (kir_const): to the nearest number that the type has, NaN to 0. */
static int64_t to_whole(kir_type t, double number) {
    const kir_ins cast = {.op = KIR_CAST, .type = (uint8_t)t, .a = KIR_NONE, .b = KIR_NONE, .c = KIR_NONE};
    kir_value v = {.f64 = number};
    (void)kir_eval(&cast, KIR_F64, (kir_value[3]){v}, &v);
    return kir_const_ins(t, v).imm.i;
}

/* The value of a runtime scalar or of a varying number. */
kir_scalar tn_runtime_scalar_value_of(const tn_node *scalar) {
    kir_scalar d;
    if (!tn_op_has(scalar, TN_FACT_LAUNCH_SCALAR) && !tn_dtype_is_float((tn_dtype)scalar->dtype))
        d.i = to_whole(kir_type_of((tn_dtype)scalar->dtype), scalar->f[0]);
    else if (!tn_op_has(scalar, TN_FACT_LAUNCH_SCALAR) || scalar->i[0] == TN_SCALAR_FLOAT)
        d.f = scalar->f[0];
    else
        d.i = scalar->i[1];
    return d;
}

/* Are all buffers of the plan so small that they have memory in a dry run? */
static bool is_small(const tn_plan *p, tn_buffer *const *bound) {
    bool small = tn_dry_is_real(p->arena_bytes);
    for (int i = 0; small && i < p->bound_count; i++)
        small = tn_dry_is_real(bound[i]->bytes);
    for (int i = 0; small && i < p->output_count; i++)
        small = tn_dry_is_real((size_t)p->output_bytes[i]);
    return small;
}

static tn_status submit_plan(tn_plan_cache *c, tn_plan *p, const tn_binding *b) {
    TRY(tn_plan_reserve(c, p, b->buffers));
    tn_status s = tn_plan_submit(c, p, b->buffers, c->scalars);
    if (s == TN_OK) return TN_OK;
    tn_plan_release_outputs(c, p, p->output_count);
    return s;
}

/* In a dry run a small plan gets its own arena, because the shared one may be large and then has no memory. */
static tn_status submit_small(tn_plan_cache *c, tn_plan *p, const tn_binding *b) {
    tn_buffer *arena = c->arena;
    c->arena = NULL;
    tn_status s = submit_plan(c, p, b);
    tn_buffer_release(c->arena);
    c->arena = arena;
    return s;
}

static tn_status run_plan(tn_plan_cache *c, tn_plan *p, const tn_binding *b) {
    TRY(tn_mem_grow(&c->scalars, &c->scalar_capacity, b->scalar_count, sizeof *c->scalars));
    for (size_t i = 0; i < b->scalar_count; i++)
        c->scalars[i] = tn_runtime_scalar_value_of(b->scalar_nodes[i]);
    if (b->shift_count) memcpy(p->shifts, b->shifts, b->shift_count * sizeof *b->shifts);
    tn_name_counted(p, b);
    return p->device->dry && is_small(p, b->buffers) ? submit_small(c, p, b) : submit_plan(c, p, b);
}

static tn_status node_fails_with(tn_node *n, tn_status status, const char *why) {
    char *text = tn_mem_strdup(why);
    if (!text) return TN_ERR_MEMORY;
    n->flags |= TN_NODE_ERROR;
    n->status = status;
    n->error = text;
    return TN_OK;
}

/* The node becomes an error with this thread's error text. */
static tn_status node_fails(tn_node *n, tn_status status) { return node_fails_with(n, status, tn_error()); }

static tn_status results_fail(const tn_binding *b, tn_status status) {
    for (size_t i = 0; i < b->output_count; i++)
        TRY(node_fails(b->outputs[i].node, status));
    return TN_OK;
}

/* States keep the values that they have; lost: but not those that became errors. */
static void restore_states(tn_recorder *r, const tn_device *d, bool lost) {
    tn_storage *next;
    for (tn_storage *s = take_written(r, d); s; s = next) {
        next = s->next_written;
        s->next_written = NULL;
        if (!lost || !(s->value->flags & TN_NODE_ERROR)) tn_storage_restore(s);
        tn_storage_release(s);
    }
    prune(r);
}

/* What cannot be planned would fail again at every read, so its results become errors with the reason, and states keep
 * their values. Out of memory is different: a later attempt may succeed. If the device fails while states are being
 * written, their contents are undefined; they become errors too, so that nothing reads them and no half-executed step
 * is repeated. */
static void give_up(tn_recorder *r, const tn_binding *b, tn_status status, bool partially_committed) {
    if (results_fail(b, status) == TN_OK) restore_states(r, b->device, partially_committed);
}

/* The views that hold checks are not in the recording, so what they read is looked at here. */
static bool reads(const tn_node *n, const tn_node *x) {
    for (int k = 0; k < n->n_in; k++) {
        const tn_node *in = n->in[k];
        if (in && in != x && in->check && in->n_in > 0) in = in->in[0];
        if (in && (in == x || (in->flags & TN_NODE_ERROR))) return true;
    }
    return false;
}

/* Values that depend on x, whose indices are out of range, become errors. Inputs are recorded before their users. */
static tn_status dependents_fail(const tn_recorder *r, const tn_node *x, tn_status status) {
    for (size_t i = 0; i < r->count; i++) {
        tn_node *n = r->pending[i];
        if (n && reads(n, x)) TRY(node_fails(n, status));
    }
    return TN_OK;
}

/* A check of indices has ended the run; the rest of the recording is as it was. No state is written, not even one that
 * has nothing to do with the indices: a step is done as a whole or not at all. */
static tn_status indices_failed(tn_recorder *r, tn_plan_cache *c, const tn_plan *p, tn_status status) {
    const tn_binding *b = &c->binding;
    const tn_node *x = tn_failed_indices(p, b);
    status = tn_check_name_line(p, x, status);
    if (!x) {
        give_up(r, b, status, false);
    } else if (dependents_fail(r, x, status) == TN_OK) {
        restore_states(r, b->device, false);
        c->rest_is_open = true;
    }
    return status;
}

/* ---- values without memory ------------------------------------------------------------------------------------- */

/* Prefixes the device's error with the value that could not be allocated. */
static tn_status name_refused(const tn_plan_cache *c, const tn_plan *p, tn_status s) {
    char text[160];
    if (c->refused >= 0) {
        tn_node_describe(c->binding.outputs[c->refused].node, text, sizeof text);
        return tn_fail_prefix(s, "%s", text);
    }
    if (c->refused == TN_REFUSED_ARENA)
        return tn_fail_prefix(s, "the intermediate values of this evaluation, the largest being %s", p->report.largest);
    return s;
}

static bool is_target(const tn_node *n, tn_node *const *targets, int count) {
    for (int i = 0; i < count; i++)
        if ((targets[i]->flags & TN_NODE_VIEW ? targets[i]->root : targets[i]) == n) return true;
    return false;
}

/* Removes output i from this evaluation if it is there only because a handle exists. */
static bool postpone(tn_binding *b, size_t i, tn_node *const *targets, int count) {
    const tn_output *o = &b->outputs[i];
    if (o->home >= 0 || is_target(o->node, targets, count)) return false;
    for (size_t k = 0; k < b->postponed_count; k++)
        if (b->postponed[k].node == o->node) return false; /* an engine's graph needs it all the same */
    if (tn_mem_reserve(&b->postponed, &b->postponed_capacity, b->postponed_count + 1, sizeof *b->postponed) != TN_OK)
        return false;
    char *why = tn_mem_strdup(tn_error());
    if (!why) return false;
    b->postponed[b->postponed_count++] = (tn_postponed){o->node, why};
    return true;
}

/* The refused output, or everything that may wait when that does not help. False: nothing more may. */
static bool postpone_refused(tn_plan_cache *c, tn_node *const *targets, int count) {
    tn_binding *b = &c->binding;
    if (c->refused == TN_REFUSED_NONE) return false;
    if (c->refused >= 0 && postpone(b, (size_t)c->refused, targets, count)) return true;
    bool any = false;
    for (size_t i = 0; i < b->output_count; i++)
        any |= postpone(b, i, targets, count);
    return any;
}

/* Postponed values stay recorded and are tried again. If a state that they read has changed, they can no longer be
 * computed and become errors. */
static void settle_postponed(tn_recorder *r, tn_binding *b, bool lost) {
    for (size_t i = 0; i < b->postponed_count; i++) {
        tn_node *n = b->postponed[i].node;
        if (lost) {
            n->flags |= TN_NODE_ERROR;
            n->status = TN_ERR_MEMORY;
            n->error = b->postponed[i].why;
        } else {
            tn_mem_free(b->postponed[i].why);
        }
    }
    if (lost && b->postponed_count) prune(r);
    b->postponed_count = 0;
}

/* ---- flush ------------------------------------------------------------------------------------------------------- */

/* Returns the binding and its plan; NULL if there is nothing to compute. If planning needs the value of a varying
 * number, no plan is made: the number becomes a constant and the key is written again. */
static inline tn_status bind_plan(tn_recorder *r, tn_plan_cache *c, tn_node *const *targets, int count, tn_plan **p) {
    tn_binding *b = &c->binding;
    b->request.varies = true;
    b->request.whole = false;
    do {
        TRY(tn_binding_make(b, r, (const tn_node *const *)targets, count));
        if (b->output_count == 0) return TN_OK;
        tn_status planned = tn_plan_find(c, b, p);
        if (planned != TN_OK && planned != TN_ERR_MEMORY) give_up(r, b, planned, false);
        TRY(planned);
    } while (!*p);
    return TN_OK;
}

/* Runs the plan of the binding, and gives its results their buffers. *again: an engine failed, and the binding is to be
 * made anew, for the host. */
static tn_status run_bound(tn_recorder *r, tn_plan_cache *c, tn_plan *p, bool *again) {
    tn_binding *b = &c->binding;
    tn_status s = run_plan(c, p, b);
    if (s != TN_OK && p->runs.partially_committed) {
        s = tn_fail_prefix(s,
                           "the device failed while states were being written; their values are lost, load them again");
        give_up(r, b, s, true);
        return s;
    }
    if ((s == TN_ERR_DEVICE || s == TN_ERR_ARGUMENT) && p->commands[0].kind == TN_CMD_ENGINE) {
        s = tn_engine_failed(p, s);
        *again = s == TN_OK;
        if (!*again) give_up(r, b, s, false);
        return s;
    }
    if (s == TN_ERR_ARGUMENT && p->runs.failed) return indices_failed(r, c, p, s);
    if (s == TN_ERR_LOST) { /* no later evaluation can succeed, and each would try these writes again */
        give_up(r, b, s, false);
        return s;
    }
    if (s != TN_OK) return name_refused(c, p, s);
    c->launches += (int64_t)p->command_count;
    c->last = p;
    give_buffers(c, b);
    return TN_OK;
}

/* ---- engines: what the host computes first ----------------------------------------------------------------------- */
/* An engine's graph may need values that the engine cannot make. These are computed first, by the cpu's kernels, in
 * evaluations of their own; what they need in turn and is the engine's, before. Then the rest is bound anew: it finds
 * them computed. States are not written meanwhile. */

typedef struct first_nodes {
    const tn_node **at;
    int count;
} first_nodes;

/* A state's new value has to be made by the evaluation that writes it. */
static bool is_written_state(const tn_recorder *r, const tn_node *n) {
    for (const tn_storage *s = r->written; s; s = s->next_written)
        if (s->value == n) return true;
    return false;
}

/* Those of the plan's first nodes that depend on no other one. */
static tn_status find_first(const tn_recorder *r, const tn_binding *b, const tn_plan *p, first_nodes *first) {
    bool *waits = tn_mem_zalloc(r->count + 1, sizeof *waits); /* it is one of the first, or depends on one */
    first->at = tn_mem_alloc((p->placement.first_count + 1) * sizeof *first->at);
    tn_status s = waits && first->at ? TN_OK : TN_ERR_MEMORY;
    for (bool again = true; again && s == TN_OK;) { /* expansions stand behind their users */
        again = false;
        for (size_t i = 0; i < r->count; i++) {
            const tn_node *n = r->pending[i];
            if (!n || !(b->scratch.marks[i] & TN_MARK_NEEDED) || waits[i]) continue;
            for (size_t k = 0; k < p->placement.first_count && !waits[i]; k++)
                waits[i] = p->placement.first_on_host[k] == b->scratch.numbers[i];
            bool named = waits[i];
            for (int k = 0; k < n->n_in && !waits[i]; k++)
                waits[i] = n->in[k] && n->in[k]->recorder == r && waits[n->in[k]->index];
            if (!waits[i] && n->expansion) waits[i] = n->expansion->recorder == r && waits[n->expansion->index];
            again |= waits[i] && !named;
        }
    }
    for (size_t i = 0; i < r->count && s == TN_OK; i++) {
        const tn_node *n = r->pending[i];
        bool is_first = false, depends = false;
        if (!n || !(b->scratch.marks[i] & TN_MARK_NEEDED) || is_written_state(r, n)) continue;
        for (size_t k = 0; k < p->placement.first_count; k++)
            is_first |= p->placement.first_on_host[k] == b->scratch.numbers[i];
        for (int k = 0; k < n->n_in; k++)
            depends |= n->in[k] && n->in[k]->recorder == r && waits[n->in[k]->index];
        if (is_first && !depends) first->at[first->count++] = tn_node_retain((tn_node *)(uintptr_t)n);
    }
    tn_mem_free(waits);
    return s;
}

/* What the first nodes read and an engine is to make: not numbers and the like, which are made of nothing. */
static tn_status find_operands(const tn_recorder *r, const first_nodes *first, first_nodes *operands) {
    int room = 1;
    for (int i = 0; i < first->count; i++)
        room += first->at[i]->n_in;
    operands->at = tn_mem_alloc((size_t)room * sizeof *operands->at);
    if (!operands->at) return TN_ERR_MEMORY;
    for (int i = 0; i < first->count; i++)
        for (int k = 0; k < first->at[i]->n_in; k++) {
            tn_node *in = first->at[i]->in[k];
            if (!in) continue;
            if (in->flags & TN_NODE_VIEW) in = in->root;
            if (in->recorder != r || in->n_in == 0 || is_written_state(r, in)) continue;
            operands->at[operands->count++] = tn_node_retain(in);
        }
    return TN_OK;
}

static void release_first(first_nodes *f) {
    for (int i = 0; i < f->count; i++)
        tn_node_release((tn_node *)(uintptr_t)f->at[i]);
    tn_mem_free(f->at);
}

/* An engine failed to run a graph, and the host has computed it. If that failed too, the values were to blame. */
static void settle_failed(tn_plan_cache *c, tn_plan *failed, tn_status s) {
    for (int i = 0; i < c->count; i++) {
        if (c->plans[i] != failed) continue; /* it may have made room for another */
        failed->runs.failed_there = s == TN_OK;
        if (s == TN_OK) tn_place_tell(failed);
    }
}

static tn_status evaluate_first(tn_recorder *r, tn_plan_cache *c, const tn_plan *p);

/* Only these nodes, by the engine or by the host. */
static tn_status evaluate_only(tn_recorder *r, tn_plan_cache *c, const first_nodes *nodes, bool on_host) {
    tn_binding *b = &c->binding;
    tn_plan *failed = NULL;
    tn_status s = TN_OK;
    for (bool again = nodes->count > 0; again && s == TN_OK;) {
        tn_plan *p = NULL;
        again = false;
        b->request.only = nodes->at;
        b->request.only_count = nodes->count;
        b->request.on_host = on_host;
        s = bind_plan(r, c, NULL, 0, &p);
        b->request.only_count = 0;
        b->request.on_host = false;
        if (s != TN_OK || !p) break;
        again = p->placement.first_count || p->runs.failed_there;
        on_host |= p->runs.failed_there;
        if (p->placement.first_count) s = evaluate_first(r, c, p);
        if (!again) s = run_bound(r, c, p, &again);
        if (again && p->runs.failed_there) failed = p;
    }
    if (failed) settle_failed(c, failed, s);
    if (s == TN_OK) prune(r);
    return s;
}

/* TN_ERR_STATE: there is nothing that could be computed before. */
static tn_status evaluate_first(tn_recorder *r, tn_plan_cache *c, const tn_plan *p) {
    AUTO_CALL(release_first) first_nodes first = {0}, operands = {0};
    TRY(find_first(r, &c->binding, p, &first));
    if (first.count == 0) return TN_ERR_STATE;
    TRY(find_operands(r, &first, &operands));
    TRY(evaluate_only(r, c, &operands, false));
    return evaluate_only(r, c, &first, true);
}

/* The binding and its plan, whose operations that come first have been computed. */
static tn_status bind_rest(tn_recorder *r, tn_plan_cache *c, tn_node *const *targets, int count, tn_plan **p) {
    for (tn_status s = TN_OK; s != TN_ERR_STATE;) {
        *p = NULL;
        TRY(bind_plan(r, c, targets, count, p));
        if (!*p || !((*p)->placement.first_count || (*p)->runs.failed_there)) return TN_OK;
        s = (*p)->runs.failed_there ? TN_ERR_STATE : evaluate_first(r, c, *p);
        if (s != TN_ERR_STATE) TRY(s);
    }
    *p = NULL;
    c->binding.request.on_host = true; /* all of it */
    tn_status s = bind_plan(r, c, targets, count, p);
    c->binding.request.on_host = false;
    return s;
}

static tn_status evaluate_targets(tn_recorder *r, tn_plan_cache *c, tn_node *const *targets, int count) {
    tn_plan *failed = NULL;
    c->refused = TN_REFUSED_NONE;
    for (bool again = true; again;) {
        tn_plan *p = NULL;
        again = false;
        tn_status s = bind_rest(r, c, targets, count, &p);
        if (s == TN_OK && p) s = run_bound(r, c, p, &again);
        if (failed && !again) settle_failed(c, failed, s);
        TRY(s);
        if (again) failed = p;
    }
    commit_states(r, c->binding.device);
    prune(r);
    return TN_OK;
}

/* Device by device. */
static tn_status evaluate_all(tn_recorder *r, tn_plan_cache *c, tn_node *const *targets, int count) {
    tn_status s;
    do
        s = evaluate_targets(r, c, targets, count);
    while (s == TN_OK && c->binding.elsewhere);
    return s;
}

/* After a failed check the rest is computed nevertheless: a later evaluation shall not fail for an index of this one.
 * The first failure is told. */
static tn_status evaluate_rest(tn_recorder *r, tn_plan_cache *c, tn_node *const *targets, int count, tn_status s) {
    AUTO_FREE char *first = tn_mem_strdup(tn_error());
    while (c->rest_is_open) {
        c->rest_is_open = false;
        (void)evaluate_all(r, c, targets, count); /* memory may be out: then the rest stays recorded */
    }
    if (first) s = tn_fail(s, "%s", first);
    return s;
}

/* Captured work runs at tn_capture_end; until then only values that were computed before can be read. */
static tn_status refuse_read_in_capture(tn_node *const *targets, int count) {
    for (int i = 0; i < count; i++)
        if (!tn_node_computed(targets[i]))
            return tn_fail(TN_ERR_STATE,
                           "cannot read a value inside the capture that records it; read it after tn_capture_end");
    return TN_OK;
}

/* ---- dry runs: small values that the host may read --------------------------------------------------------------- */

/* Computes a value in a plan of its own if that needs small blocks only: the rest of the recording may not run. */
static tn_status evaluate_alone(tn_recorder *r, tn_plan_cache *c, const tn_node *n) {
    enum { MOST_BYTES = 4096 };
    const tn_node *root = n->flags & TN_NODE_VIEW ? n->root : n;
    bool pending = root->recorder == r && !tn_node_computed(root) && !(root->flags & TN_NODE_ERROR);
    if (!pending || tn_node_bytes(root) > MOST_BYTES || is_written_state(r, root)) return TN_OK;
    tn_plan *p = NULL;
    bool again;
    c->binding.request.only = &root;
    c->binding.request.only_count = 1;
    tn_status s = bind_plan(r, c, NULL, 0, &p);
    c->binding.request.only_count = 0;
    if (s != TN_OK || !p || !is_small(p, c->binding.buffers)) return s;
    TRY(run_bound(r, c, p, &again));
    prune(r);
    return TN_OK;
}

/* Computes the requested value, and integers, because later shapes may be made from them. */
static tn_status evaluate_small(tn_recorder *r, tn_plan_cache *c, tn_node *const *targets, int count) {
    for (size_t i = 0, before; i < r->count; i = r->count < before ? 0 : i + 1) {
        const tn_node *n = r->pending[i];
        before = r->count;
        bool asked = n && atomic_load_explicit(&n->handles, memory_order_relaxed) > 0;
        if (asked && !tn_dtype_is_float((tn_dtype)n->dtype)) TRY(evaluate_alone(r, c, n));
    }
    return count == 1 ? evaluate_alone(r, c, targets[0]) : TN_OK;
}

tn_status tn_flush(tn_recorder *r, tn_node *const *targets, int count) {
    if (r->capturing) return refuse_read_in_capture(targets, count);
    tn_plan_cache *c = r->count > 0 ? tn_plans_of(r) : NULL;
    if (!c) {
        tn_recorder_merge_counts();
        return r->count > 0 ? TN_ERR_MEMORY : TN_OK;
    }
    bool writes = r->written != NULL;
    if (count > 0 && targets[0]->device->dry) TRY(evaluate_small(r, c, targets, count));
    tn_status s = evaluate_all(r, c, targets, count);
    while (s == TN_ERR_MEMORY && postpone_refused(c, targets, count))
        s = evaluate_all(r, c, targets, count);
    if (c->rest_is_open) s = evaluate_rest(r, c, targets, count, s);
    if (c->binding.postponed_count) settle_postponed(r, &c->binding, writes && s == TN_OK);
    r->limit = 2 * r->count;
    tn_recorder_merge_counts();
    return s;
}

static void drop_value(const tn_recorder *r, tn_node *n) {
    if (n->recorder == r && !tn_node_computed(n) && !(n->flags & TN_NODE_ERROR))
        (void)node_fails_with(n, TN_ERR_STATE,
                              "this value depends on a write of a state that was dropped, by tn_discard_writes or "
                              "because a training step failed; compute it again");
}

void tn_discard_writes(void) {
    tn_recorder *r = tn_recorder_here();
    if (!r || r->capturing) return;
    /* Handles refer to the new values until they are used again, and nothing may compute these, or what reads them. */
    for (tn_storage *s = r->written; s; s = s->next_written)
        drop_value(r, s->value);
    for (size_t i = 0; i < r->count; i++)
        if (r->pending[i] && reads(r->pending[i], NULL)) drop_value(r, r->pending[i]);
    restore_states(r, NULL, false);
}

const tn_evaluator tn_graph_evaluator = {
    .flush = tn_flush, .expand = tn_expand_node, .to_device = tn_to_device, .find_anomaly = tn_find_anomaly};

/* ==== order between queues ======================================================================================== */
/* On queues of the interface and on a device's default queue the caller makes the driver's calls. For a queue with its
 * own thread the run becomes a task: everything that can fail (memory, packed weights) is done at submission, and
 * addresses and runtime scalars are stored, so the thread only executes. Buffers are not retained: their timeline
 * points keep the memory until the run has completed, although later work of the same queue may reuse it. */

void tn_plan_await(tn_plan *p) {
    (void)tn_timeline_point_wait(p->runs.point);
    p->runs.point = 0;
}

static bool is_home(const tn_plan *p, int slot) {
    for (int i = 0; i < p->output_count; i++)
        if (p->output_home[i] == slot) return true;
    return false;
}

/* Operands that are known to have failed are refused now; the recording stays as it is. */
static tn_status check_operands(const tn_plan *p, tn_buffer *const *bound) {
    for (int i = 0; i < p->bound_count; i++)
        TRY(tn_buffer_check(bound[i]));
    return TN_OK;
}

static void note_uses(tn_submission *o, const tn_plan_cache *c, const tn_plan *p, tn_buffer *const *bound) {
    for (int i = 0; i < p->bound_count; i++)
        if (!is_home(p, i)) tn_submission_use(o, bound[i], false, false);
    for (int i = 0; i < p->output_count; i++)
        tn_submission_use(o, c->outputs[i], true, p->output_home[i] >= 0);
    if (p->arena_bytes) tn_submission_use(o, c->arena, true, false);
    if (p->host_bytes) tn_submission_use(o, c->staged, true, false);
    if (p->checks.counters) tn_submission_use(o, tn_error_counters_words(p->checks.counters), true, true);
}

static tn_status run_here(tn_plan_cache *c, tn_plan *p, tn_queue *q, tn_buffer *const *bound, const kir_scalar *scalars,
                          bool *ran) {
    tn_submission o;
    tn_plan_await(p);
    tn_submission_begin(&o, p->device, q);
    note_uses(&o, c, p, bound);
    TRY(tn_submission_start(&o));
    *ran = true;
    p->runs.partially_committed = false;
    return tn_submission_end(&o, tn_plan_run(p, bound, c->outputs, c->arena, c->staged, scalars, &c->run_seconds));
}

/* ---- for a queue's thread ---------------------------------------------------------------------------------------- */

typedef struct run_task {
    tn_task task;
    tn_plan *plan;
    void **slots, **packed_weights; /* behind the task, as the runtime scalars */
    kir_scalar *scalars;
} run_task;

static tn_status run_in_thread(tn_task *t) {
    const run_task *r = (const run_task *)t;
    tn_status s = tn_plan_execute(r->plan, r->slots, r->packed_weights, r->scalars);
    t->partially_committed = s != TN_OK && r->plan->runs.partially_committed;
    return s;
}

static run_task *task_new(tn_plan *p) {
    size_t slots = tn_plan_slots(p) * sizeof(void *), packed_weights = p->native_count * sizeof(void *);
    run_task *r = tn_mem_zalloc(1, sizeof *r + slots + packed_weights + p->scalar_count * sizeof(kir_scalar));
    if (!r) return NULL;
    char *at = (char *)(r + 1);
    *r = (run_task){.task = {.run = run_in_thread, .drop = tn_task_free},
                    .plan = p,
                    .slots = (void **)(void *)at,
                    .packed_weights = (void **)(void *)(at + slots),
                    .scalars = (kir_scalar *)(void *)(at + slots + packed_weights)};
    return r;
}

static tn_status note_binding(run_task *r, const tn_plan_cache *c, tn_buffer *const *bound, const kir_scalar *scalars) {
    const tn_plan *p = r->plan;
    void **slot = r->slots;
    size_t shift = 0;
    for (int i = 0; i < p->bound_count; i++)
        *slot++ = tn_plan_address(p, bound, i, &shift);
    for (int i = 0; i < p->output_count; i++)
        *slot++ = c->outputs[i]->address;
    *slot++ = p->arena_bytes ? c->arena->address : NULL;
    *slot = p->host_bytes ? c->staged->address : NULL;
    for (size_t i = 0; i < p->scalar_count; i++)
        r->scalars[i] = p->scalar_source[i] < 0 ? p->scalars[i] : scalars[p->scalar_source[i]];
    for (size_t i = 0; i < p->native_count; i++)
        TRY(tn_native_packed_weight(p->natives[i], bound, &r->packed_weights[i]));
    return TN_OK;
}

static tn_status hand_over_run_task(tn_plan_cache *c, tn_plan *p, tn_queue *q, tn_buffer *const *bound,
                                    const kir_scalar *scalars) {
    run_task *r = task_new(p);
    if (!r) return TN_ERR_MEMORY;
    if (p->command_count && p->commands[0].kind == TN_CMD_ENGINE) {
        tn_plan_await(p); /* the run before may use the constants that go now */
        tn_engine_call_bind(p->commands[0].engine, NULL);
    }
    tn_status s = note_binding(r, c, bound, scalars);
    if (s != TN_OK) {
        tn_mem_free(r);
        return s;
    }
    tn_submission o;
    tn_submission_begin(&o, p->device, q);
    note_uses(&o, c, p, bound);
    tn_submission_wait_for(&o, p->runs.point); /* a run uses the plan's own pointers */
    p->runs.point = tn_submission_point(&o);
    tn_submission_enqueue(&o, &r->task);
    return TN_OK;
}

/* *ran: this thread has run it, with or without success. */
static tn_status give_run_task(tn_plan_cache *c, tn_plan *p, tn_buffer *const *bound, const kir_scalar *scalars,
                               bool *ran) {
    TRY(check_operands(p, bound));
    tn_queue *q = tn_queue_for(p->device);
    if (!tn_queue_has_thread(q)) return run_here(c, p, q, bound, scalars, ran);
    /* a profile times what this thread runs */
    return tn_profile_here() ? run_here(c, p, NULL, bound, scalars, ran) : hand_over_run_task(c, p, q, bound, scalars);
}

tn_status tn_plan_submit(tn_plan_cache *c, tn_plan *p, tn_buffer *const *bound, const kir_scalar *scalars) {
    if (p->device->dry && !(is_small(p, bound) && (!p->arena_bytes || tn_dry_is_real(c->arena->bytes))))
        return tn_plan_run_dry(p, bound, c->outputs, c->arena, c->staged, scalars);
    if (!tn_queues_exist()) return tn_plan_run(p, bound, c->outputs, c->arena, c->staged, scalars, &c->run_seconds);
    bool ran = false;
    tn_status s = give_run_task(c, p, bound, scalars, &ran);
    if (s == TN_OK || ran) return s;
    tn_plan_await(p); /* it has not run: `partially_committed` is of an earlier time */
    p->runs.partially_committed = false;
    return s;
}

/* ---- tensor.h ---------------------------------------------------------------------------------------------------- */

static tn_status finish_run_task(tn_status s, tn_queue *before, tn_event *event, tn_queue *queue) {
    if (s == TN_OK && event) s = tn_event_record(event, queue);
    (void)tn_set_current_queue(before);
    return s;
}

tn_status tn_eval_async(tn_tensor *const *tensors, int count, tn_queue *queue, tn_event *event) {
    tn_queue *before = tn_current_queue();
    if (queue) TRY(tn_set_current_queue(queue));
    return finish_run_task(tn_eval(tensors, count), before, event, queue);
}

tn_status tn_graph_launch_async(tn_graph *g, tn_tensor *const *inputs, tn_tensor **outputs, tn_queue *queue,
                                tn_event *event) {
    tn_queue *before = tn_current_queue();
    if (queue) TRY(tn_set_current_queue(queue));
    return finish_run_task(tn_graph_launch(g, inputs, outputs), before, event, queue);
}
