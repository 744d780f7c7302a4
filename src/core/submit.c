/* submit.c — runs of plans in the order of queues: what a run touches is told to hal, which makes it wait for others
 * and others for it.
 *
 * On a queue of the interface, and on a device's own, the caller makes the driver's calls itself. For a queue's thread
 * a run becomes a task: everything that can be refused (memory, packed weights) is done when it is given, and
 * addresses and dials are noted, so that the thread only has to run. Buffers are not retained meanwhile: their marks
 * keep the memory until the run is through, though it can be given to what comes later in the same queue. */
#include <string.h>

#include "core/core.h"
#include "hal/queue.h"

void tn_plan_await(tn_plan *p) {
    (void)tn_mark_wait(p->mark);
    p->mark = 0;
}

static bool is_home(const tn_plan *p, int slot) {
    for (int i = 0; i < p->output_count; i++)
        if (p->output_home[i] == slot) return true;
    return false;
}

/* What is known to have failed is refused at once, and leaves the recording as it is. */
static tn_status check_operands(const tn_plan *p, tn_buffer *const *bound) {
    for (int i = 0; i < p->bound_count; i++)
        TRY(tn_buffer_check(bound[i]));
    return TN_OK;
}

static void note_uses(tn_order *o, const tn_plan_cache *c, const tn_plan *p, tn_buffer *const *bound) {
    for (int i = 0; i < p->bound_count; i++)
        if (!is_home(p, i)) tn_order_use(o, bound[i], false, false);
    for (int i = 0; i < p->output_count; i++)
        tn_order_use(o, c->outputs[i], true, p->output_home[i] >= 0);
    if (p->arena_bytes) tn_order_use(o, c->arena, true, false);
    if (p->host_bytes) tn_order_use(o, c->staged, true, false);
}

static tn_status run_here(tn_plan_cache *c, tn_plan *p, tn_queue *q, tn_buffer *const *bound, const kir_dial *dials,
                          bool *ran) {
    tn_order o;
    tn_plan_await(p);
    tn_order_begin(&o, p->device, q);
    note_uses(&o, c, p, bound);
    TRY(tn_order_go(&o));
    *ran = true;
    p->torn = false;
    return tn_order_end(&o, tn_plan_run(p, bound, c->outputs, c->arena, c->staged, dials, &c->run_seconds));
}

/* ---- for a queue's thread ---------------------------------------------------------------------------------------- */

typedef struct run_task {
    tn_task task;
    tn_plan *plan;
    void **slots, **forms; /* behind the task, as the dials */
    kir_dial *dials;
} run_task;

static tn_status run_in_thread(tn_task *t) {
    const run_task *r = (const run_task *)t;
    tn_status s = tn_plan_execute(r->plan, r->slots, r->forms, r->dials);
    t->torn = s != TN_OK && r->plan->torn;
    return s;
}

static void free_task(tn_task *t) { tn_mem_free(t); }

static run_task *task_new(tn_plan *p) {
    size_t slots = tn_plan_slots(p) * sizeof(void *), forms = p->native_count * sizeof(void *);
    run_task *r = tn_mem_zalloc(1, sizeof *r + slots + forms + p->dial_count * sizeof(kir_dial));
    if (!r) return NULL;
    char *at = (char *)(r + 1);
    *r = (run_task){.task = {.run = run_in_thread, .drop = free_task},
                    .plan = p,
                    .slots = (void **)(void *)at,
                    .forms = (void **)(void *)(at + slots),
                    .dials = (kir_dial *)(void *)(at + slots + forms)};
    return r;
}

static tn_status note_binding(run_task *r, const tn_plan_cache *c, tn_buffer *const *bound, const kir_dial *dials) {
    const tn_plan *p = r->plan;
    void **slot = r->slots;
    size_t shift = 0;
    for (int i = 0; i < p->bound_count; i++)
        *slot++ = tn_plan_address(p, bound, i, &shift);
    for (int i = 0; i < p->output_count; i++)
        *slot++ = c->outputs[i]->address;
    *slot++ = p->arena_bytes ? c->arena->address : NULL;
    *slot = p->host_bytes ? c->staged->address : NULL;
    for (size_t i = 0; i < p->dial_count; i++)
        r->dials[i] = p->dial_source[i] < 0 ? p->dials[i] : dials[p->dial_source[i]];
    for (size_t i = 0; i < p->native_count; i++)
        TRY(tn_native_form(p->natives[i], bound, &r->forms[i]));
    return TN_OK;
}

static tn_status hand_over(tn_plan_cache *c, tn_plan *p, tn_queue *q, tn_buffer *const *bound, const kir_dial *dials) {
    run_task *r = task_new(p);
    if (!r) return TN_ERR_MEMORY;
    tn_status s = note_binding(r, c, bound, dials);
    if (s != TN_OK) {
        tn_mem_free(r);
        return s;
    }
    tn_order o;
    tn_order_begin(&o, p->device, q);
    note_uses(&o, c, p, bound);
    tn_order_after(&o, p->mark); /* a run uses the plan's own pointers */
    p->mark = tn_order_mark(&o);
    tn_order_hand(&o, &r->task);
    return TN_OK;
}

/* *ran: this thread has run it, with or without success. */
static tn_status give(tn_plan_cache *c, tn_plan *p, tn_buffer *const *bound, const kir_dial *dials, bool *ran) {
    TRY(check_operands(p, bound));
    tn_queue *q = tn_queue_for(p->device);
    if (!tn_queue_has_thread(q)) return run_here(c, p, q, bound, dials, ran);
    /* a profile times what this thread runs */
    return tn_profile_here() ? run_here(c, p, NULL, bound, dials, ran) : hand_over(c, p, q, bound, dials);
}

tn_status tn_plan_submit(tn_plan_cache *c, tn_plan *p, tn_buffer *const *bound, const kir_dial *dials) {
    if (!tn_queues_exist()) return tn_plan_run(p, bound, c->outputs, c->arena, c->staged, dials, &c->run_seconds);
    bool ran = false;
    tn_status s = give(c, p, bound, dials, &ran);
    if (s == TN_OK || ran) return s;
    tn_plan_await(p); /* it has not run: `torn` is of an earlier time */
    p->torn = false;
    return s;
}

/* ---- tensor.h ---------------------------------------------------------------------------------------------------- */

static tn_status finish(tn_status s, tn_queue *before, tn_event *event, tn_queue *queue) {
    if (s == TN_OK && event) s = tn_event_record(event, queue);
    (void)tn_set_current_queue(before);
    return s;
}

tn_status tn_eval_async(tn_tensor *const *tensors, int count, tn_queue *queue, tn_event *event) {
    tn_queue *before = tn_current_queue();
    if (queue) TRY(tn_set_current_queue(queue));
    return finish(tn_eval(tensors, count), before, event, queue);
}

tn_status tn_graph_launch_async(tn_graph *g, tn_tensor *const *inputs, tn_tensor **outputs, tn_queue *queue,
                                tn_event *event) {
    tn_queue *before = tn_current_queue();
    if (queue) TRY(tn_set_current_queue(queue));
    return finish(tn_graph_launch(g, inputs, outputs), before, event, queue);
}
