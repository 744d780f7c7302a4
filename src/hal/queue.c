/* queue.c — further queues of a device, and giving work to them in an order that keeps memory right.
 *
 * Where the interface has queues, work goes to it at once and order is kept by its events. Elsewhere a queue is a
 * thread of ours that does one piece of work after the other: on the cpu that is what makes a product run beside its
 * caller. The pool of threads stays one: whoever comes second computes on his own thread.
 *
 * Work gets its number and marks what it touches under one lock for all devices, so that all see one order; it can
 * only wait for what was given before, and no two pieces of work wait for each other. */
#include <fenv.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "hal/queue.h"

enum { MOST_WAITING = 256 }; /* pieces of work before a thread; who brings more waits */

_Atomic bool tn_queues_made;

static pthread_mutex_t order_lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local tn_queue *current;
static _Thread_local tn_device *stream_device; /* whose calls go to `lane` */
static _Thread_local void *stream_handle;

void *tn_stream_handle_of(const tn_device *d) { return stream_device == d ? stream_handle : d->handle; }

/* ---- timeline points of buffers
 * -------------------------------------------------------------------------------------------- */

enum { WRITE = 0, FIRST_READ = 1, MAX_POINTS = TN_COUNT(((tn_buffer *)0)->points), NUMBER_BITS = 48 };

static int timeline_of(tn_timeline_point m) { return (int)((m & ~TN_TIMELINE_POINT_KEPT) >> NUMBER_BITS); }
static uint64_t queue_number_of(tn_timeline_point m) { return m & (((uint64_t)1 << NUMBER_BITS) - 1); }

bool tn_buffer_is_reusable(tn_buffer *b, bool for_host) {
    const tn_queue *q = for_host ? NULL : tn_queue_for(b->device);
    bool idle = true, suits = true;
    pthread_mutex_lock(&order_lock);
    for (size_t i = 0; i < MAX_POINTS && suits; i++) {
        if (tn_timeline_point_reached(b->points[i])) continue;
        idle = false;
        suits = q && timeline_of(b->points[i]) == q->timeline;
    }
    if (idle) memset(b->points, 0, sizeof b->points); /* also of what failed: the content is another's now */
    pthread_mutex_unlock(&order_lock);
    return suits;
}

tn_status tn_buffer_check(const tn_buffer *b) {
    pthread_mutex_lock(&order_lock);
    tn_timeline_point made = b->points[WRITE];
    pthread_mutex_unlock(&order_lock);
    return made && tn_timeline_has_failed(timeline_of(made)) && tn_timeline_point_reached(made)
               ? tn_timeline_point_wait(made)
               : TN_OK;
}

tn_status tn_buffer_await_points(const tn_buffer *b, bool write) {
    tn_timeline_point points[MAX_POINTS];
    pthread_mutex_lock(&order_lock);
    memcpy(points, b->points, sizeof points);
    pthread_mutex_unlock(&order_lock);
    tn_status s = tn_timeline_point_wait(points[WRITE]);
    if (!write) return s;
    for (size_t i = FIRST_READ; i < MAX_POINTS; i++)
        (void)tn_timeline_point_wait(points[i]);
    return TN_OK; /* what is overwritten need not have succeeded */
}

/* ---- giving work ------------------------------------------------------------------------------------------------- */

void tn_submission_begin(tn_submission *o, tn_device *d, tn_queue *q) {
    memset(o, 0, offsetof(tn_submission, waits));
    o->device = d;
    o->queue = q;
    if (q) pthread_mutex_lock(&q->submit_lock);
    pthread_mutex_lock(&order_lock);
    if (q) o->number = tn_timeline_advance(q->timeline);
}

tn_timeline_point tn_submission_point(const tn_submission *o) {
    return o->queue ? tn_timeline_point_at(o->queue->timeline, o->number) : 0;
}

/* A wait for each timeline is enough: for the last of what stands there. */
static tn_wait *wait_on(tn_submission *o, int timeline) {
    for (int i = 0; i < o->wait_count; i++)
        if (o->waits[i].timeline == timeline) return &o->waits[i];
    o->waits[o->wait_count] = (tn_wait){.timeline = timeline};
    return &o->waits[o->wait_count++];
}

static void add_wait(tn_submission *o, tn_timeline_point m, bool needed) {
    if (!m) return;
    uint64_t number = queue_number_of(m);
    int timeline = timeline_of(m);
    needed = needed && !(m & TN_TIMELINE_POINT_KEPT);
    bool behind = o->queue && timeline == o->queue->timeline;
    bool settled = behind || tn_timeline_point_reached(m); /* what fails on one's own timeline leaves one out too */
    if (settled && !(needed && tn_timeline_has_failed(timeline))) return;
    tn_wait *w = wait_on(o, timeline);
    if (number > w->last && !behind) w->last = number;
    if (!needed) return;
    if (!w->need_first || number < w->need_first) w->need_first = number;
    if (number > w->need_last) w->need_last = number;
}

void tn_submission_wait_for(tn_submission *o, tn_timeline_point m) { add_wait(o, m, false); }

/* The place for a read's timeline point: of the same timeline, or of what has passed; else work that the reader waits
 * for from now on, so that his timeline point says enough. */
static tn_timeline_point *read_place(tn_submission *o, tn_buffer *b) {
    for (size_t i = FIRST_READ; i < MAX_POINTS; i++)
        if (!b->points[i] || timeline_of(b->points[i]) == o->queue->timeline || tn_timeline_point_reached(b->points[i]))
            return &b->points[i];
    add_wait(o, b->points[FIRST_READ], false);
    return &b->points[FIRST_READ];
}

void tn_submission_use(tn_submission *o, tn_buffer *b, bool written, bool kept) {
    add_wait(o, b->points[WRITE], !written || kept);
    for (size_t i = FIRST_READ; i < MAX_POINTS && written; i++)
        add_wait(o, b->points[i], false);
    tn_timeline_point mine = tn_submission_point(o);
    if (!mine && written) memset(b->points, 0, sizeof b->points); /* waited for before it begins */
    if (!mine) return;
    if (!written) {
        *read_place(o, b) = mine;
        return;
    }
    memset(b->points, 0, sizeof b->points);
    b->points[WRITE] = mine | (kept ? TN_TIMELINE_POINT_KEPT : 0);
}

/* Can the device of queue q wait for what the timeline's queue does? */
static bool waits_on_device(const tn_queue *q, const tn_wait *w) {
    return q && q->handle && tn_timeline_is_of(w->timeline, q->device, true);
}

static tn_status wait_for_queue(const tn_submission *o, const tn_wait *w) {
    if (waits_on_device(o->queue, w)) return tn_timeline_wait_on_device(o->queue, w);
    return tn_wait_here(w);
}

tn_status tn_submission_start(tn_submission *o) {
    pthread_mutex_unlock(&order_lock);
    tn_status s = o->queue ? tn_timeline_failure(o->queue->timeline, false) : TN_OK;
    for (int i = 0; i < o->wait_count; i++) {
        tn_status waited = wait_for_queue(o, &o->waits[i]);
        if (s == TN_OK) s = waited;
    }
    o->stream_handle_before = stream_handle;
    o->stream_device_before = stream_device;
    stream_device = o->device;
    stream_handle = o->queue ? o->queue->handle : o->device->handle;
    return s == TN_OK ? TN_OK : tn_submission_end(o, s);
}

tn_status tn_submission_end(tn_submission *o, tn_status status) {
    stream_handle = o->stream_handle_before;
    stream_device = o->stream_device_before;
    if (!o->queue) return status;
    tn_status recorded = tn_timeline_record(o->queue->timeline, o->number);
    pthread_mutex_unlock(&o->queue->submit_lock);
    return status != TN_OK ? status : recorded;
}

void tn_submission_enqueue(tn_submission *o, tn_task *t) {
    tn_queue *q = o->queue;
    pthread_mutex_unlock(&order_lock);
    t->next = NULL;
    t->number = o->number;
    t->wait_count = o->wait_count;
    memcpy(t->waits, o->waits, (size_t)o->wait_count * sizeof *o->waits);
    pthread_mutex_lock(&q->lock);
    while (q->waiting >= MOST_WAITING)
        pthread_cond_wait(&q->room, &q->lock);
    *q->end = t;
    q->end = &t->next;
    q->waiting++;
    pthread_cond_signal(&q->work);
    pthread_mutex_unlock(&q->lock);
    pthread_mutex_unlock(&q->submit_lock);
}

/* ---- a queue's thread -------------------------------------------------------------------------------------------- */

static tn_status do_task(const tn_queue *q, tn_task *t) {
    tn_status s = tn_timeline_failure(q->timeline, false);
    for (int i = 0; i < t->wait_count; i++) {
        tn_status waited = tn_wait_here(&t->waits[i]);
        if (s == TN_OK) s = waited;
    }
    if (s != TN_OK || !t->run) return s;
    s = t->run(t);
    tn_status done = q->device->is_cpu ? TN_OK : q->device->driver->sync(q->device->handle);
    return s != TN_OK ? s : done;
}

static tn_task *next_task(tn_queue *q) {
    pthread_mutex_lock(&q->lock);
    while (!q->first && !q->stop)
        pthread_cond_wait(&q->work, &q->lock);
    tn_task *t = q->first;
    if (t) {
        q->first = t->next;
        if (!q->first) q->end = &q->first;
        q->waiting--;
        pthread_cond_signal(&q->room);
    }
    pthread_mutex_unlock(&q->lock);
    return t;
}

static void *queue_main(void *argument) {
    tn_queue *q = argument;
    fesetenv(FE_DFL_ENV); /* results must not depend on who computes */
    for (tn_task *t = next_task(q); t; t = next_task(q)) {
        tn_status s = do_task(q, t);
        uint64_t number = t->number;
        bool partially_committed = t->partially_committed;
        if (t->drop) t->drop(t);
        tn_timeline_complete(q->timeline, number, s, partially_committed);
    }
    return NULL;
}

static tn_status start_thread(tn_queue *q) {
    sigset_t all, before; /* signals are the host program's business */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&q->thread, NULL, queue_main, q);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error)
        return tn_fail(TN_ERR_MEMORY, "%s: no thread for a further queue: %s", q->device->info.id, strerror(error));
#if defined(__linux__)
    pthread_setname_np(q->thread, "trunnion-queue");
#endif
    return TN_OK;
}

static void stop_thread(tn_queue *q) {
    pthread_mutex_lock(&q->lock);
    q->stop = true;
    pthread_cond_signal(&q->work);
    pthread_mutex_unlock(&q->lock);
    pthread_join(q->thread, NULL);
}

/* ---- making ------------------------------------------------------------------------------------------------------ */

bool tn_device_has_events(const tn_device *device) {
    const tn_driver *d = device->driver;
    return d->queue_new && d->queue_free && d->event_new && d->event_free && d->event_record && d->event_wait &&
           d->event_query && d->event_sync;
}

static void free_ring(tn_queue *q) {
    for (int i = 0; i < TN_RING; i++)
        if (q->ring[i].event) q->device->driver->event_free(q->device->handle, q->ring[i].event);
}

static tn_status make_ring(tn_queue *q) {
    for (int i = 0; i < TN_RING; i++)
        TRY(q->device->driver->event_new(q->device->handle, false, &q->ring[i].event));
    return TN_OK;
}

static void queue_free(tn_queue *q) {
    tn_device *d = q->device;
    if (q->timeline) tn_timeline_release(q->timeline);
    free_ring(q);
    if (q->handle && q->handle != d->handle) d->driver->queue_free(d->handle, q->handle);
    pthread_mutex_destroy(&q->submit_lock);
    pthread_mutex_destroy(&q->lock);
    pthread_cond_destroy(&q->work);
    pthread_cond_destroy(&q->room);
    tn_buffer_release(q->keep_alive);
    tn_mem_free(q);
}

/* handle: of a device's own queue; NULL makes a new one. */
static tn_status queue_start(tn_queue *q, void *handle) {
    tn_device *d = q->device;
    q->handle = handle;
    if (!handle && tn_device_has_events(d)) TRY(d->driver->queue_new(d->handle, &q->handle));
    if (q->handle) TRY(make_ring(q));
    q->timeline = tn_timeline_acquire(q); /* from here on others see it */
    if (!q->timeline) return tn_fail(TN_ERR_MEMORY, "%s: there are %d queues already", d->info.id, TN_TIMELINES - 1);
    return q->handle ? TN_OK : start_thread(q);
}

static tn_status queue_make(tn_device *d, void *handle, tn_queue **out) {
    tn_queue *q = tn_mem_zalloc(1, sizeof *q);
    if (!q) return TN_ERR_MEMORY;
    q->device = d;
    q->end = &q->first;
    pthread_mutex_init(&q->submit_lock, NULL);
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->work, NULL);
    pthread_cond_init(&q->room, NULL);
    tn_status s = handle ? TN_OK : tn_buffer_borrow(d, NULL, 0, NULL, NULL, &q->keep_alive);
    if (s == TN_OK) s = queue_start(q, handle);
    if (s != TN_OK) {
        queue_free(q);
        return s;
    }
    *out = q;
    return TN_OK;
}

/* What was given before bears no timeline points: it must have ended. */
tn_status tn_device_order(tn_device *d) {
    static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
    if (atomic_load_explicit(&d->ordered, memory_order_acquire)) return TN_OK;
    tn_status s = TN_OK;
    pthread_mutex_lock(&once);
    if (!d->own && tn_device_has_events(d)) s = queue_make(d, d->handle, &d->own);
    if (s == TN_OK) s = d->driver->sync(d->handle);
    if (s == TN_OK) atomic_store_explicit(&tn_queues_made, true, memory_order_release);
    if (s == TN_OK) atomic_store_explicit(&d->ordered, true, memory_order_release);
    pthread_mutex_unlock(&once);
    return s;
}

void tn_device_order_end(tn_device *d) {
    if (!d->own) return;
    (void)tn_timeline_point_wait(tn_timeline_point_at(d->own->timeline, tn_timeline_submitted(d->own->timeline)));
    queue_free(d->own);
    d->own = NULL;
}

/* ---- device.h ---------------------------------------------------------------------------------------------------- */

tn_status tn_queue_new(tn_device *device, tn_queue **out) {
    TRY(tn_need(device, "tn_queue_new: the device"));
    TRY(tn_need(out, "tn_queue_new: out"));
    *out = NULL;
    TRY(tn_device_order(device));
    return queue_make(device, NULL, out);
}

/* All that it was given, with or without success. */
static void drain(const tn_queue *q) {
    (void)tn_timeline_point_wait(tn_timeline_point_at(q->timeline, tn_timeline_submitted(q->timeline)));
}

void tn_queue_free(tn_queue *q) {
    if (!q) return;
    if (current == q) current = NULL;
    drain(q);
    if (tn_queue_has_thread(q)) stop_thread(q);
    queue_free(q);
}

tn_status tn_queue_synchronize(tn_queue *q) {
    TRY(tn_need(q, "tn_queue_synchronize: the queue"));
    drain(q);
    TRY(tn_timeline_failure(q->timeline, true));
    return q->handle ? q->device->driver->sync(q->handle) : TN_OK;
}

tn_device *tn_queue_device(const tn_queue *q) { return q ? q->device : NULL; }
bool tn_queue_is_thread(const tn_queue *q) { return tn_queue_has_thread(q); }

tn_status tn_set_current_queue(tn_queue *q) {
    current = q;
    return TN_OK;
}

tn_queue *tn_current_queue(void) { return current; }

tn_queue *tn_queue_for(const tn_device *d) {
    if (!atomic_load_explicit(&d->ordered, memory_order_acquire)) return NULL;
    return current && current->device == d ? current : d->own;
}

tn_status tn_device_synchronize(tn_device *d) {
    if (!d) return tn_fail(TN_ERR_ARGUMENT, "tn_device_synchronize: device is NULL");
    tn_status s = TN_OK;
    for (int i = 1; i < TN_TIMELINES && atomic_load(&d->ordered); i++) {
        if (!tn_timeline_is_of(i, d, false)) continue;
        (void)tn_timeline_point_wait(tn_timeline_point_at(i, tn_timeline_submitted(i)));
        bool own_line = d->own && i == d->own->timeline; /* of which nobody else could be told: it goes on from now */
        if (s == TN_OK) s = tn_timeline_failure(i, own_line);
    }
    tn_status own = d->driver->sync(d->handle);
    return s != TN_OK ? s : own;
}
