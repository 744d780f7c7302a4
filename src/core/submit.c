/* submit.c — runs of plans in the order of queues: what a run touches is told to hal, which makes it wait for others
 * and others for it.
 *
 * On a queue of the interface, and on a device's own, the caller makes the driver's calls itself. For a queue's thread
 * a run becomes a task: everything that can be refused (memory, packed weights) is done when it is given, and
 * addresses and runtime scalars are noted, so that the thread only has to run. Buffers are not retained meanwhile:
 * their marks keep the memory until the run is through, though it can be given to what comes later in the same queue.
 * */
#include <string.h>

#include "core/core.h"
#include "hal/queue.h"

void tn_plan_await(tn_plan *p) {
    (void)tn_timeline_point_wait(p->point);
    p->point = 0;
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

static void note_uses(tn_submission *o, const tn_plan_cache *c, const tn_plan *p, tn_buffer *const *bound) {
    for (int i = 0; i < p->bound_count; i++)
        if (!is_home(p, i)) tn_submission_use(o, bound[i], false, false);
    for (int i = 0; i < p->output_count; i++)
        tn_submission_use(o, c->outputs[i], true, p->output_home[i] >= 0);
    if (p->arena_bytes) tn_submission_use(o, c->arena, true, false);
    if (p->host_bytes) tn_submission_use(o, c->staged, true, false);
}

static tn_status run_here(tn_plan_cache *c, tn_plan *p, tn_queue *q, tn_buffer *const *bound, const kir_scalar *scalars,
                          bool *ran) {
    tn_submission o;
    tn_plan_await(p);
    tn_submission_begin(&o, p->device, q);
    note_uses(&o, c, p, bound);
    TRY(tn_submission_start(&o));
    *ran = true;
    p->partially_committed = false;
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
    t->partially_committed = s != TN_OK && r->plan->partially_committed;
    return s;
}

static void free_task(tn_task *t) { tn_mem_free(t); }

static run_task *task_new(tn_plan *p) {
    size_t slots = tn_plan_slots(p) * sizeof(void *), packed_weights = p->native_count * sizeof(void *);
    run_task *r = tn_mem_zalloc(1, sizeof *r + slots + packed_weights + p->scalar_count * sizeof(kir_scalar));
    if (!r) return NULL;
    char *at = (char *)(r + 1);
    *r = (run_task){.task = {.run = run_in_thread, .drop = free_task},
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
    tn_status s = note_binding(r, c, bound, scalars);
    if (s != TN_OK) {
        tn_mem_free(r);
        return s;
    }
    tn_submission o;
    tn_submission_begin(&o, p->device, q);
    note_uses(&o, c, p, bound);
    tn_submission_wait_for(&o, p->point); /* a run uses the plan's own pointers */
    p->point = tn_submission_point(&o);
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
    if (!tn_queues_exist()) return tn_plan_run(p, bound, c->outputs, c->arena, c->staged, scalars, &c->run_seconds);
    bool ran = false;
    tn_status s = give_run_task(c, p, bound, scalars, &ran);
    if (s == TN_OK || ran) return s;
    tn_plan_await(p); /* it has not run: `partially_committed` is of an earlier time */
    p->partially_committed = false;
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
