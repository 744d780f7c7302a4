/* async_driver.c — see async_driver.h. A call becomes a step in a queue's list, with copies of its arguments; the
 * queue's thread does the steps with the functions of far_driver. */
#include "async_driver.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum step_kind { STEP_LAUNCH, STEP_COPY, STEP_RECORD, STEP_WAIT } step_kind;

typedef struct async_event {
    pthread_mutex_t lock;
    pthread_cond_t moved;
    uint64_t recorded, reached;
    int steps; /* that name it and have not been done */
    bool freed;
    double seconds;
} async_event;

typedef struct async_module {
    void *far;
    size_t sizes, scalars;
    int buffers;
} async_module;

typedef struct step {
    struct step *next;
    step_kind kind;
    void *module, *dst;
    const void *src;
    size_t bytes;
    int copy_kind;
    tn_launch launch; /* its arrays lie behind the step */
    async_event *event;
    uint64_t number; /* of the event's record */
} step;

typedef struct async_queue {
    struct async_device *device;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t moved;
    step *first, **end;
    uint64_t given, done;
    bool pending, stop;
} async_queue;

typedef struct async_device {
    async_queue own; /* first: a queue's handle and a device's are one kind of pointer */
    void *far;
    _Atomic int queues, events;
    _Atomic bool lost;
} async_device;

/* ---- faults ------------------------------------------------------------------------------------------------------ */

static pthread_mutex_t fault_lock = PTHREAD_MUTEX_INITIALIZER;
static char fault[200];

static void note_fault(const char *what) {
    pthread_mutex_lock(&fault_lock);
    if (!fault[0]) snprintf(fault, sizeof fault, "%s", what);
    pthread_mutex_unlock(&fault_lock);
}

const char *async_fault(void) {
    static _Thread_local char text[sizeof fault];
    pthread_mutex_lock(&fault_lock);
    memcpy(text, fault, sizeof fault);
    pthread_mutex_unlock(&fault_lock);
    return text;
}

/* ---- the thread of a queue --------------------------------------------------------------------------------------- */

static async_queue *queue_at(void *handle) { return handle; }

/* The event goes when it was freed and no step names it any more. The caller holds the lock. */
static void leave_event(async_event *e) {
    bool last = e->freed && e->steps == 0;
    pthread_mutex_unlock(&e->lock);
    if (!last) return;
    pthread_mutex_destroy(&e->lock);
    pthread_cond_destroy(&e->moved);
    tn_mem_free(e);
}

static void reach(async_event *e, uint64_t number) {
    pthread_mutex_lock(&e->lock);
    if (number > e->reached) e->reached = number;
    e->seconds = tn_now();
    e->steps--;
    pthread_cond_broadcast(&e->moved);
    leave_event(e);
}

static void wait_until(async_event *e, uint64_t number, bool is_step) {
    pthread_mutex_lock(&e->lock);
    while (e->reached < number)
        pthread_cond_wait(&e->moved, &e->lock);
    if (is_step) e->steps--;
    leave_event(e);
}

static void do_step(async_queue *q, step *s) {
    async_device *d = q->device;
    tn_status status = TN_OK;
    if (s->kind == STEP_RECORD) reach(s->event, s->number);
    if (s->kind == STEP_WAIT) wait_until(s->event, s->number, true);
    if (s->kind == STEP_LAUNCH) status = far_driver.launch(d->far, s->module, &s->launch, 1);
    if (s->kind == STEP_COPY) status = far_driver.copy(d->far, s->dst, s->src, s->bytes, s->copy_kind);
    if (status == TN_OK) return;
    note_fault(tn_error());
    d->lost = true;
}

static void *queue_main(void *argument) {
    async_queue *q = argument;
    pthread_mutex_lock(&q->lock);
    for (;;) {
        while ((!q->first || q->pending) && !q->stop)
            pthread_cond_wait(&q->moved, &q->lock);
        step *s = q->first;
        if (q->stop && !s) break;
        q->first = s->next;
        if (!q->first) q->end = &q->first;
        pthread_mutex_unlock(&q->lock);
        do_step(q, s);
        tn_mem_free(s);
        pthread_mutex_lock(&q->lock);
        q->done++;
        pthread_cond_broadcast(&q->moved);
    }
    pthread_mutex_unlock(&q->lock);
    return NULL;
}

static tn_status queue_start(async_queue *q, async_device *d) {
    q->device = d;
    q->end = &q->first;
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->moved, NULL);
    return pthread_create(&q->thread, NULL, queue_main, q) ? TN_ERR_MEMORY : TN_OK;
}

static void queue_stop(async_queue *q) {
    pthread_mutex_lock(&q->lock);
    if (q->first) note_fault("a queue was freed with work in it");
    q->stop = true;
    pthread_cond_broadcast(&q->moved);
    pthread_mutex_unlock(&q->lock);
    pthread_join(q->thread, NULL);
    pthread_mutex_destroy(&q->lock);
    pthread_cond_destroy(&q->moved);
}

static uint64_t give(async_queue *q, step *s) {
    pthread_mutex_lock(&q->lock);
    *q->end = s;
    q->end = &s->next;
    uint64_t number = ++q->given;
    pthread_cond_broadcast(&q->moved);
    pthread_mutex_unlock(&q->lock);
    return number;
}

static void await(async_queue *q, uint64_t number) {
    pthread_mutex_lock(&q->lock);
    while (q->done < number)
        pthread_cond_wait(&q->moved, &q->lock);
    pthread_mutex_unlock(&q->lock);
}

static tn_status outcome(async_device *d) {
    return d->lost ? tn_backend_fail(TN_ERR_DEVICE, "async device: work failed: %s", async_fault()) : TN_OK;
}

void async_hold(void *queue, bool held) {
    async_queue *q = queue_at(queue);
    pthread_mutex_lock(&q->lock);
    q->pending = held;
    pthread_cond_broadcast(&q->moved);
    pthread_mutex_unlock(&q->lock);
}

/* ---- devices ----------------------------------------------------------------------------------------------------- */

static tn_status async_open_device(int index, const tn_device_options *options, void **device) {
    async_device *d = tn_mem_zalloc(1, sizeof *d);
    if (!d) return TN_ERR_MEMORY;
    tn_status s = far_driver.open(index, options, &d->far);
    if (s == TN_OK) s = queue_start(&d->own, d);
    if (s != TN_OK) tn_mem_free(d);
    *device = d;
    return s;
}

static void async_close(void *device) {
    async_device *d = device;
    if (d->queues) note_fault("closed with queues");
    if (d->events) note_fault("closed with events");
    queue_stop(&d->own);
    far_driver.close(d->far);
    tn_mem_free(d);
}

static async_device *device_at(void *handle) { return queue_at(handle)->device; }

static tn_status async_caps(void *device, tn_caps *out) { return far_driver.caps(device_at(device)->far, out); }

static tn_status async_alloc(void *device, size_t bytes, void **address) {
    return far_driver.alloc(device_at(device)->far, bytes, address);
}

static void async_free(void *device, void *address) { far_driver.free(device_at(device)->far, address); }

static tn_status async_load(void *device, const tn_code *code, void **module) {
    const kir_program *p = code->data;
    async_module *m = tn_mem_zalloc(1, sizeof *m);
    if (!m) return TN_ERR_MEMORY;
    *m = (async_module){.sizes = kir_sizes_count(p), .scalars = (size_t)p->n_scalars, .buffers = p->n_buffers};
    tn_status s = far_driver.load(device_at(device)->far, code, &m->far);
    if (s != TN_OK) tn_mem_free(m);
    *module = m;
    return s;
}

static void async_unload(void *device, void *module) {
    async_queue *q = queue_at(device);
    await(q, q->given);
    far_driver.unload(device_at(device)->far, ((async_module *)module)->far);
    tn_mem_free(module);
}

/* ---- work -------------------------------------------------------------------------------------------------------- */

static tn_status give_launch(async_queue *q, const async_module *m, const tn_launch *l) {
    size_t sizes = m->sizes * sizeof(int64_t), buffers = (size_t)m->buffers * sizeof(void *), scalars = m->scalars * 8;
    step *s = tn_mem_zalloc(1, sizeof *s + sizes + buffers + scalars);
    if (!s) return TN_ERR_MEMORY;
    char *at = (char *)(s + 1);
    *s = (step){.kind = STEP_LAUNCH, .module = m->far};
    s->launch = (tn_launch){(int64_t *)(void *)at, (void **)(void *)(at + sizes), at + sizes + buffers};
    if (sizes) memcpy(at, l->sizes, sizes);
    if (buffers) memcpy(at + sizes, l->buffers, buffers);
    if (scalars) memcpy(at + sizes + buffers, l->scalars, scalars);
    (void)give(q, s);
    return TN_OK;
}

static tn_status async_launch(void *queue, void *module, const tn_launch *launches, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        TRY(give_launch(queue_at(queue), module, &launches[i]));
    return TN_OK;
}

static tn_status give_copy(void *queue, void *dst, const void *src, size_t bytes, int kind, uint64_t *number) {
    step *s = tn_mem_zalloc(1, sizeof *s);
    if (!s) return TN_ERR_MEMORY;
    *s = (step){.kind = STEP_COPY, .dst = dst, .src = src, .bytes = bytes, .copy_kind = kind};
    *number = give(queue_at(queue), s);
    return TN_OK;
}

static tn_status async_copy_async(void *queue, void *dst, const void *src, size_t bytes, int kind) {
    uint64_t number;
    return give_copy(queue, dst, src, bytes, kind, &number);
}

static tn_status async_copy(void *queue, void *dst, const void *src, size_t bytes, int kind) {
    uint64_t number;
    TRY(give_copy(queue, dst, src, bytes, kind, &number));
    if (kind == 2) return TN_OK;
    await(queue_at(queue), number);
    return outcome(device_at(queue));
}

static tn_status async_sync(void *queue) {
    async_queue *q = queue_at(queue);
    pthread_mutex_lock(&q->lock);
    uint64_t given = q->given;
    pthread_mutex_unlock(&q->lock);
    await(q, given);
    return outcome(q->device);
}

/* ---- queues and events ------------------------------------------------------------------------------------------- */

static tn_status async_queue_new(void *device, void **queue) {
    async_queue *q = tn_mem_zalloc(1, sizeof *q);
    if (!q) return TN_ERR_MEMORY;
    tn_status s = queue_start(q, device_at(device));
    if (s != TN_OK) {
        tn_mem_free(q);
        return s;
    }
    device_at(device)->queues++;
    *queue = q;
    return TN_OK;
}

static void async_queue_free(void *device, void *queue) {
    device_at(device)->queues--;
    queue_stop(queue);
    tn_mem_free(queue);
}

static tn_status async_event_new(void *device, bool timed, void **event) {
    (void)timed;
    async_event *e = tn_mem_zalloc(1, sizeof *e);
    if (!e) return TN_ERR_MEMORY;
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->moved, NULL);
    device_at(device)->events++;
    *event = e;
    return TN_OK;
}

static void async_event_free(void *device, void *event) {
    async_event *e = event;
    device_at(device)->events--;
    pthread_mutex_lock(&e->lock);
    if (e->reached < e->recorded) note_fault("an event was freed that has not passed");
    e->freed = true;
    leave_event(e);
}

static tn_status give_event(void *queue, async_event *e, step_kind kind) {
    step *s = tn_mem_zalloc(1, sizeof *s);
    if (!s) return TN_ERR_MEMORY;
    pthread_mutex_lock(&e->lock);
    *s = (step){.kind = kind, .event = e, .number = kind == STEP_RECORD ? ++e->recorded : e->recorded};
    e->steps++;
    pthread_mutex_unlock(&e->lock);
    (void)give(queue_at(queue), s);
    return TN_OK;
}

static tn_status async_event_record(void *queue, void *event) { return give_event(queue, event, STEP_RECORD); }
static tn_status async_event_wait(void *queue, void *event) { return give_event(queue, event, STEP_WAIT); }

static tn_status async_event_query(void *device, void *event, bool *passed) {
    (void)device;
    async_event *e = event;
    pthread_mutex_lock(&e->lock);
    *passed = e->reached == e->recorded;
    pthread_mutex_unlock(&e->lock);
    return TN_OK;
}

static tn_status async_event_sync(void *device, void *event) {
    async_event *e = event;
    pthread_mutex_lock(&e->lock);
    uint64_t recorded = e->recorded;
    pthread_mutex_unlock(&e->lock);
    wait_until(e, recorded, false);
    return outcome(device_at(device));
}

static tn_status async_event_time(void *device, void *event, double *seconds) {
    (void)device;
    async_event *e = event;
    pthread_mutex_lock(&e->lock);
    if (e->reached < e->recorded) note_fault("the time of an event was asked for before it had passed");
    *seconds = e->seconds;
    pthread_mutex_unlock(&e->lock);
    return TN_OK;
}

/* ---- memory of the host ------------------------------------------------------------------------------------------ */

static tn_status async_host_alloc(void *device, size_t bytes, void **host) {
    (void)device;
    *host = tn_mem_alloc(bytes);
    return *host ? TN_OK : TN_ERR_MEMORY;
}

static void async_host_free(void *device, void *host) {
    (void)device;
    tn_mem_free(host);
}

static void async_probe(tn_probe *out) { far_driver.probe(out); }

const tn_driver async_driver = {
    .struct_size = sizeof(tn_driver),
    .abi = TN_BACKEND_ABI,
    .name = "async",
    .title = "Far memory, beside the host (for tests)",
    .probe = async_probe,
    .open = async_open_device,
    .close = async_close,
    .caps = async_caps,
    .alloc = async_alloc,
    .free = async_free,
    .load = async_load,
    .unload = async_unload,
    .launch = async_launch,
    .copy = async_copy,
    .sync = async_sync,
    .queue_new = async_queue_new,
    .queue_free = async_queue_free,
    .event_new = async_event_new,
    .event_free = async_event_free,
    .event_record = async_event_record,
    .event_wait = async_event_wait,
    .event_query = async_event_query,
    .event_sync = async_event_sync,
    .event_time = async_event_time,
    .copy_async = async_copy_async,
    .host_alloc = async_host_alloc,
    .host_free = async_host_free,
};

tn_device *async_open(int index, const tn_device_options *options) {
    static bool registered;
    char id[16];
    snprintf(id, sizeof id, "async:%d", index);
    tn_device *d = NULL;
    tn_status s = registered ? TN_OK : tn_backend_register(&async_driver);
    registered = true;
    tn_device_options o = TN_DEVICE_DEFAULTS;
    o.fallback = TN_FALLBACK_STRICT;
    if (s == TN_OK) s = tn_device_open(id, options ? options : &o, NULL, &d);
    if (s == TN_OK) return d;
    fprintf(stderr, "%s: %s\n", id, tn_error());
    abort();
}
