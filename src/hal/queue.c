/* queue.c — queues and events of a device: ordered submission, timelines, waiting.
 *
 * If the interface has queues, work is submitted to it at once and ordered by its events. Otherwise a queue is a thread
 * of ours that executes tasks in order; on the CPU it lets a product run concurrently with its caller. There is still
 * only one thread pool: a second user at the same time computes on its own thread.
 *
 * Under one lock for all devices, work gets its number and marks the buffers that it uses, so all threads see one
 * order. Work can only wait for what was submitted before it, so there are no deadlocks. */
#include <fenv.h>
#include <stdio.h>
#include <string.h>

#include "base/os.h"
#include "hal/queue.h"

static int timeline_acquire(tn_queue *q);   /* a timeline for a queue; 0 when all are taken */
static void timeline_release(int timeline); /* everything on it has passed */
static uint64_t timeline_advance(int timeline);
static bool timeline_is_of(int timeline, const tn_device *d,
                           bool on_device);    /* of a queue of d; one of the interface */
static bool timeline_has_failed(int timeline); /* ever */
static bool timeline_point_reached(tn_timeline_point m);
static tn_status wait_here(const tn_wait *w); /* the same for a wait */
/* Called by the executor of a timeline: everything up to `number` has completed; `status`, with this thread's error
 * text, is the result; partially_committed: it failed while writing states. */
static void timeline_complete(int timeline, uint64_t number, tn_status status, bool partially_committed);
/* The failure because of which the timeline skips its work, as status and text; clear: continue from now on. */
static tn_status timeline_failure(int timeline, bool clear);
/* A timeline whose work the driver does: an event is put behind what was given, as `number`. */
static tn_status timeline_record(int timeline, uint64_t number);
/* Makes the next work submitted to `q`, of the same driver and device, wait on the device for w. */
static tn_status timeline_wait_on_device(tn_queue *q, const tn_wait *w);

enum { MOST_WAITING = 256 }; /* tasks queued for a thread; further submitters wait */

_Atomic bool tn_queues_made;

static pthread_mutex_t order_lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local tn_queue *current;
static _Thread_local tn_device *stream_device; /* whose calls go to `lane` */
static _Thread_local void *stream_handle;

void *tn_stream_handle_of(const tn_device *d) { return stream_device == d ? stream_handle : d->handle; }

/* ---- timeline points of buffers ---------------------------------------------------------------------------------- */

enum { WRITE = 0, FIRST_READ = 1, MAX_POINTS = TN_COUNT(((tn_buffer *)0)->points), NUMBER_BITS = 48 };

static int timeline_index(tn_timeline_point m) { return (int)((m & ~TN_TIMELINE_POINT_KEPT) >> NUMBER_BITS); }
static uint64_t point_number(tn_timeline_point m) { return m & (((uint64_t)1 << NUMBER_BITS) - 1); }

bool tn_buffer_is_reusable(tn_buffer *b, bool for_host) {
    const tn_queue *q = for_host ? NULL : tn_queue_for(b->device);
    bool idle = true, suits = true;
    AUTO_LOCK(&order_lock);
    for (size_t i = 0; i < MAX_POINTS && suits; i++) {
        if (timeline_point_reached(b->points[i])) continue;
        idle = false;
        suits = q && timeline_index(b->points[i]) == q->timeline;
    }
    if (idle) memset(b->points, 0, sizeof b->points); /* also of what failed: the content is another's now */
    return suits;
}

tn_status tn_buffer_check(const tn_buffer *b) {
    pthread_mutex_lock(&order_lock);
    tn_timeline_point made = b->points[WRITE];
    pthread_mutex_unlock(&order_lock);
    return made && timeline_has_failed(timeline_index(made)) && timeline_point_reached(made)
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
    return TN_OK; /* what is overwritten may have failed */
}

/* ---- giving work ------------------------------------------------------------------------------------------------- */

void tn_submission_begin(tn_submission *o, tn_device *d, tn_queue *q) {
    memset(o, 0, offsetof(tn_submission, waits));
    o->device = d;
    o->queue = q;
    if (q) pthread_mutex_lock(&q->submit_lock);
    pthread_mutex_lock(&order_lock);
    if (q) o->number = timeline_advance(q->timeline);
}

tn_timeline_point tn_submission_point(const tn_submission *o) {
    return o->queue ? tn_timeline_point_at(o->queue->timeline, o->number) : 0;
}

/* One wait per timeline is enough: for its last needed number. */
static tn_wait *wait_on(tn_submission *o, int timeline) {
    for (int i = 0; i < o->wait_count; i++)
        if (o->waits[i].timeline == timeline) return &o->waits[i];
    o->waits[o->wait_count] = (tn_wait){.timeline = timeline};
    return &o->waits[o->wait_count++];
}

static void add_wait(tn_submission *o, tn_timeline_point m, bool needed) {
    if (!m) return;
    uint64_t number = point_number(m);
    int timeline = timeline_index(m);
    needed = needed && !(m & TN_TIMELINE_POINT_KEPT);
    bool behind = o->queue && timeline == o->queue->timeline;
    bool settled = behind || timeline_point_reached(m); /* a failure on the own timeline skips this work anyway */
    if (settled && !(needed && timeline_has_failed(timeline))) return;
    tn_wait *w = wait_on(o, timeline);
    if (number > w->last && !behind) w->last = number;
    if (!needed) return;
    if (!w->need_first || number < w->need_first) w->need_first = number;
    if (number > w->need_last) w->need_last = number;
}

void tn_submission_wait_for(tn_submission *o, tn_timeline_point m) { add_wait(o, m, false); }

/* The place for a read's timeline point: one of the same timeline, or one that has been reached. If there is none, the
 * reader also waits for another read, so that its own point covers both. */
static tn_timeline_point *read_place(tn_submission *o, tn_buffer *b) {
    for (size_t i = FIRST_READ; i < MAX_POINTS; i++)
        if (!b->points[i] || timeline_index(b->points[i]) == o->queue->timeline || timeline_point_reached(b->points[i]))
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
    return q && q->handle && timeline_is_of(w->timeline, q->device, true);
}

static tn_status wait_for_queue(const tn_submission *o, const tn_wait *w) {
    if (waits_on_device(o->queue, w)) return timeline_wait_on_device(o->queue, w);
    return wait_here(w);
}

tn_status tn_submission_start(tn_submission *o) {
    pthread_mutex_unlock(&order_lock);
    tn_status s = o->queue ? timeline_failure(o->queue->timeline, false) : TN_OK;
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
    tn_status recorded = timeline_record(o->queue->timeline, o->number);
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
    tn_status s = timeline_failure(q->timeline, false);
    for (int i = 0; i < t->wait_count; i++) {
        tn_status waited = wait_here(&t->waits[i]);
        if (s == TN_OK) s = waited;
    }
    if (s != TN_OK || !t->run) return s;
    s = t->run(t);
    tn_status done = q->device->is_cpu ? TN_OK : tn_device_wait(q->device, q->device->handle);
    return s != TN_OK ? s : done;
}

static tn_task *next_task(tn_queue *q) {
    AUTO_LOCK(&q->lock);
    while (!q->first && !q->stop)
        pthread_cond_wait(&q->work, &q->lock);
    tn_task *t = q->first;
    if (t) {
        q->first = t->next;
        if (!q->first) q->end = &q->first;
        q->waiting--;
        pthread_cond_signal(&q->room);
    }
    return t;
}

static void *queue_main(void *argument) {
    tn_queue *q = argument;
    fesetenv(FE_DFL_ENV); /* results must not depend on the computing thread */
    for (tn_task *t = next_task(q); t; t = next_task(q)) {
        tn_status s = do_task(q, t);
        uint64_t number = t->number;
        bool partially_committed = t->partially_committed;
        if (t->drop) t->drop(t);
        timeline_complete(q->timeline, number, s, partially_committed);
    }
    return NULL;
}

static tn_status start_thread(tn_queue *q) {
    tn_signals before; /* signals are the host program's business */
    tn_signals_block(&before);
    int error = pthread_create(&q->thread, NULL, queue_main, q);
    tn_signals_restore(&before);
    if (error)
        return tn_fail(TN_ERR_MEMORY, "%s: creating the thread of another queue failed: %s", q->device->info.id,
                       strerror(error));
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

/* Whether the interface has queues and events. */
static bool tn_device_has_events(const tn_device *device) {
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
    if (q->timeline) timeline_release(q->timeline);
    free_ring(q);
    if (q->handle && q->handle != d->handle) {
        d->driver->queue_free(d->handle, q->handle);
        atomic_fetch_sub(&d->streams, 1);
    }
    pthread_mutex_destroy(&q->submit_lock);
    pthread_mutex_destroy(&q->lock);
    pthread_cond_destroy(&q->work);
    pthread_cond_destroy(&q->room);
    tn_buffer_release(q->keep_alive);
    tn_mem_free(q);
}

/* A new stream of the driver, or the default one if queues already use as many as the device's settings allow. */
static tn_status take_stream(tn_device *d, void **handle) {
    int others = atomic_fetch_add(&d->streams, 1), most = d->settings.streams;
    tn_status s = TN_OK;
    if (most && others + 1 >= most)
        *handle = d->handle;
    else
        s = d->driver->queue_new(d->handle, handle);
    if (s != TN_OK || *handle == d->handle) atomic_fetch_sub(&d->streams, 1);
    if (s != TN_OK) *handle = NULL;
    return s;
}

/* handle: for a device's default queue; NULL creates a new one. */
static tn_status queue_start(tn_queue *q, void *handle) {
    tn_device *d = q->device;
    q->handle = handle;
    if (!handle && tn_device_has_events(d)) TRY(take_stream(d, &q->handle));
    if (q->handle) TRY(make_ring(q));
    q->timeline = timeline_acquire(q); /* from here on others see it */
    if (!q->timeline)
        return tn_fail(TN_ERR_MEMORY, "%s: the limit of %d queues is reached", d->info.id, TN_TIMELINES - 1);
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
    if (s == TN_OK)
        *out = q;
    else
        queue_free(q);
    return s;
}

/* Marks the device's work from now on. What was submitted before has no timeline points, so it must have completed. */
static tn_status tn_device_order(tn_device *d) {
    static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
    if (atomic_load_explicit(&d->ordered, memory_order_acquire)) return TN_OK;
    tn_status s = TN_OK;
    AUTO_LOCK(&once);
    if (!d->own && tn_device_has_events(d)) s = queue_make(d, d->handle, &d->own);
    if (s == TN_OK) s = tn_device_wait(d, d->handle);
    if (s == TN_OK) atomic_store_explicit(&tn_queues_made, true, memory_order_release);
    if (s == TN_OK) atomic_store_explicit(&d->ordered, true, memory_order_release);
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
    TRY(timeline_failure(q->timeline, true));
    if (q->handle) TRY(tn_device_wait(q->device, q->handle));
    return tn_error_counters_report(q->device);
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

tn_status tn_device_drain(tn_device *d) {
    tn_status s = TN_OK;
    for (int i = 1; i < TN_TIMELINES && atomic_load(&d->ordered); i++) {
        if (!timeline_is_of(i, d, false)) continue;
        (void)tn_timeline_point_wait(tn_timeline_point_at(i, tn_timeline_submitted(i)));
        bool own_line = d->own && i == d->own->timeline; /* nothing else could report the failure: continue from here */
        if (s == TN_OK) s = timeline_failure(i, own_line);
    }
    tn_status own = tn_device_wait(d, d->handle);
    return s != TN_OK ? s : own;
}

tn_status tn_device_synchronize(tn_device *d) {
    if (!d) return tn_fail(TN_ERR_ARGUMENT, "tn_device_synchronize: device is NULL");
    TRY(tn_device_drain(d));
    return tn_error_counters_report(d);
}

/* ==== timelines =================================================================================================== */
/* Timelines are never freed and their numbers only grow, so a timeline point may be kept forever: a point of a freed
 * queue has been reached. A timeline advances by the thread that executes its work, or by the interface's events, which
 * are recorded after each submission and queried when somebody waits.
 *
 * After a failure a timeline skips all work until the failure has been reported (tn_queue_synchronize); skipped work
 * counts as failed. Reported failures are kept, as ranges, for buffers that still refer to them. */

typedef struct failure {
    uint64_t first, last;         /* 0: none */
    uint64_t partially_committed; /* this one failed with its states half written; 0: none */
    tn_status status;
    char why[160];
} failure;

typedef struct timeline {
    pthread_mutex_t lock;
    pthread_cond_t moved; /* the timeline has advanced, or there is another event to wait for */
    _Atomic uint64_t submitted, completed;
    _Atomic bool has_failed; /* ever */
    tn_queue *queue;         /* changes under both locks */
    failure now, *reported;  /* oldest first */
    size_t reported_count, reported_capacity;
} timeline;

static timeline timelines[TN_TIMELINES]; /* timeline 0 stays unused, so that no timeline point is 0 */
static pthread_mutex_t taking = PTHREAD_MUTEX_INITIALIZER;

static void make_locks(void) {
    for (int i = 0; i < TN_TIMELINES; i++) {
        pthread_mutex_init(&timelines[i].lock, NULL);
        pthread_cond_init(&timelines[i].moved, NULL);
    }
}

static int timeline_acquire(tn_queue *q) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_locks);
    int found = 0;
    AUTO_LOCK(&taking);
    for (int i = 1; i < TN_TIMELINES && !found; i++)
        if (!timelines[i].queue) found = i;
    if (found) timelines[found].queue = q;
    return found;
}

/* Marks the current failure as reported; it ends at `last`. The caller holds the lock. If there is no memory to keep
 * it, it is merged with the previous failure: everything between counts as failed too. */
static void put_away(timeline *l, uint64_t last) {
    enum { MOST_REPORTED = 256 };
    failure f = l->now;
    if (!f.first) return;
    f.last = last;
    bool room =
        l->reported_count < MOST_REPORTED &&
        tn_mem_reserve(&l->reported, &l->reported_capacity, l->reported_count + 1, sizeof *l->reported) == TN_OK;
    if (!room && !l->reported_count) return; /* it stays current and will be reported again */
    l->now.first = 0;
    if (room)
        l->reported[l->reported_count++] = f;
    else
        l->reported[l->reported_count - 1].last = last;
}

static bool somebody_waits(const tn_queue *q) {
    for (int i = 0; i < TN_RING; i++)
        if (q->ring[i].users) return true;
    return false;
}

static void timeline_release(int number) {
    timeline *l = &timelines[number];
    AUTO_LOCK(&l->lock);
    while (somebody_waits(l->queue)) /* the work is done, but another thread has not left the event yet */
        pthread_cond_wait(&l->moved, &l->lock);
    put_away(l, atomic_load(&l->submitted));
    AUTO_LOCK(&taking);
    l->queue = NULL;
}

static bool timeline_is_of(int number, const tn_device *d, bool on_device) {
    AUTO_LOCK(&taking);
    const tn_queue *q = timelines[number].queue;
    return q && q->device == d && (q->handle || !on_device);
}

static uint64_t timeline_advance(int number) { return atomic_fetch_add(&timelines[number].submitted, 1) + 1; }
uint64_t tn_timeline_submitted(int number) { return atomic_load(&timelines[number].submitted); }

/* ---- timeline points --------------------------------------------------------------------------------------------- */

tn_timeline_point tn_timeline_point_at(int number, uint64_t at) {
    return at ? (tn_timeline_point)number << NUMBER_BITS | at : 0;
}
static timeline *timeline_at_point(tn_timeline_point m) { return &timelines[timeline_index(m)]; }

/* ---- the interface's events -------------------------------------------------------------------------------------- */

static tn_ring_event *ring_at(tn_queue *q, int i) { return &q->ring[(q->ring_first + i) % TN_RING]; }

/* The caller holds the lock. */
static void note_failure(timeline *l, uint64_t number, tn_status status, bool partially_committed) {
    if (l->now.first) return;
    atomic_store(&l->has_failed, true);
    l->now = (failure){
        .first = number, .last = UINT64_MAX, .partially_committed = partially_committed ? number : 0, .status = status};
    snprintf(l->now.why, sizeof l->now.why, "%s", tn_error());
}

/* The caller holds the lock. */
static void come_to(timeline *l, uint64_t number) {
    if (atomic_load(&l->completed) >= number) return;
    atomic_store_explicit(&l->completed, number, memory_order_release);
    pthread_cond_broadcast(&l->moved);
}

static bool query_event(timeline *l, const tn_ring_event *e) {
    bool there = atomic_load(&l->completed) >= e->number;
    if (there) return true;
    tn_status s = l->queue->device->driver->event_query(l->queue->device->handle, e->event, &there);
    if (s != TN_OK) note_failure(l, e->number, s, false); /* it will never complete: treat it as done */
    return s != TN_OK || there;
}

/* The caller holds the lock. Queries the oldest events until one has not completed. An event that another thread waits
 * for is passed too (otherwise two waiting threads could block each other), but is freed only when that thread has
 * returned. */
static void query_events(timeline *l) {
    tn_queue *q = l->queue;
    if (!q || !q->handle) return;
    for (int i = 0; i < q->ring_count && query_event(l, ring_at(q, i)); i++)
        come_to(l, ring_at(q, i)->number);
    while (q->ring_count > 0 && ring_at(q, 0)->number <= atomic_load(&l->completed) && !ring_at(q, 0)->users) {
        q->ring_first = (q->ring_first + 1) % TN_RING;
        q->ring_count--;
    }
}

static tn_ring_event *event_behind(tn_queue *q, uint64_t number) {
    for (int i = 0; q && i < q->ring_count; i++)
        if (ring_at(q, i)->number >= number) return ring_at(q, i);
    return NULL;
}

/* The caller holds the lock, which is open meanwhile; the event stays where it is. */
static void wait_for_event(timeline *l, tn_ring_event *e) {
    const tn_device *d = l->queue->device;
    e->users++;
    pthread_mutex_unlock(&l->lock);
    tn_status s = tn_device_wait_event(d, e->event);
    pthread_mutex_lock(&l->lock);
    e->users--;
    if (s != TN_OK) note_failure(l, e->number, s, false);
    come_to(l, e->number);
    if (!e->users) pthread_cond_broadcast(&l->moved);
}

static tn_status timeline_record(int number, uint64_t at) {
    timeline *l = &timelines[number];
    tn_queue *q = l->queue;
    const tn_driver *driver = q->device->driver;
    AUTO_LOCK(&l->lock);
    query_events(l);
    while (q->ring_count == TN_RING) {
        wait_for_event(l, ring_at(q, 0));
        query_events(l);
    }
    tn_ring_event *e = ring_at(q, q->ring_count);
    tn_status s = driver->event_record(q->handle, e->event);
    if (s != TN_OK) { /* nothing to wait for later: now, then */
        note_failure(l, at, s, false);
        (void)tn_device_wait(q->device, q->handle);
        if (q->ring_count == 0)
            atomic_store_explicit(&l->completed, at, memory_order_release);
        else
            ring_at(q, q->ring_count - 1)->number = at;
    } else {
        e->number = at;
        q->ring_count++;
    }
    pthread_cond_broadcast(&l->moved);
    return s;
}

static tn_status timeline_wait_on_device(tn_queue *q, const tn_wait *w) {
    timeline *l = &timelines[w->timeline];
    tn_status s = TN_OK;
    AUTO_LOCK(&l->lock);
    query_events(l);
    while (atomic_load(&l->completed) < w->last && !event_behind(l->queue, w->last))
        pthread_cond_wait(&l->moved, &l->lock); /* another thread is just giving it */
    if (atomic_load(&l->completed) < w->last)
        s = q->device->driver->event_wait(q->handle, event_behind(l->queue, w->last)->event);
    return s;
}

/* ---- waiting ----------------------------------------------------------------------------------------------------- */

static bool timeline_point_reached(tn_timeline_point m) {
    timeline *l = timeline_at_point(m);
    if (!m || atomic_load_explicit(&l->completed, memory_order_acquire) >= point_number(m)) return true;
    AUTO_LOCK(&l->lock);
    query_events(l);
    return atomic_load_explicit(&l->completed, memory_order_acquire) >= point_number(m);
}

/* The caller holds the lock. */
static void wait_until(timeline *l, uint64_t number) {
    while (atomic_load_explicit(&l->completed, memory_order_acquire) < number) {
        tn_ring_event *e = l->queue && l->queue->handle ? event_behind(l->queue, number) : NULL;
        if (!e) {
            pthread_cond_wait(&l->moved, &l->lock);
            continue;
        }
        wait_for_event(l, e);
        query_events(l);
    }
}

static bool timeline_has_failed(int number) { return atomic_load(&timelines[number].has_failed); }

static bool meets(const failure *f, uint64_t first, uint64_t last) {
    return f->first && f->first <= last && first <= f->last;
}

static tn_status fail_as(const failure *f) {
    static const char said[] = "work that this value depends on failed: ";
    size_t skip = strncmp(f->why, said, sizeof said - 1) == 0 ? sizeof said - 1 : 0;
    return tn_fail(f->status, "%s%s", said, f->why + skip);
}

static tn_status wait_here(const tn_wait *w) {
    timeline *l = &timelines[w->timeline];
    pthread_mutex_lock(&l->lock);
    wait_until(l, w->last);
    failure f = {0};
    if (w->need_first && meets(&l->now, w->need_first, w->need_last)) f = l->now;
    for (size_t i = 0; i < l->reported_count && w->need_first; i++)
        if (meets(&l->reported[i], w->need_first, w->need_last)) f = l->reported[i];
    pthread_mutex_unlock(&l->lock);
    return f.first ? fail_as(&f) : TN_OK;
}

/* Of states whose writing was cut short nothing can be said but that. */
static tn_status check_partially_committed(timeline *l, uint64_t number) {
    failure f = {0};
    pthread_mutex_lock(&l->lock);
    if (l->now.partially_committed == number) f = l->now;
    for (size_t i = 0; i < l->reported_count; i++)
        if (l->reported[i].partially_committed == number) f = l->reported[i];
    pthread_mutex_unlock(&l->lock);
    if (!f.partially_committed) return TN_OK;
    return tn_fail(f.status,
                   "the device failed while states were being written; their values are lost, load them again: %s",
                   f.why);
}

tn_status tn_timeline_point_wait(tn_timeline_point m) {
    if (!m) return TN_OK;
    timeline *l = timeline_at_point(m);
    uint64_t n = point_number(m), needed = m & TN_TIMELINE_POINT_KEPT ? 0 : n;
    TRY(wait_here(&(tn_wait){.timeline = (int)(l - timelines), .last = n, .need_first = needed, .need_last = needed}));
    return !needed && atomic_load(&l->has_failed) ? check_partially_committed(l, n) : TN_OK;
}

static void timeline_complete(int number, uint64_t at, tn_status status, bool partially_committed) {
    timeline *l = &timelines[number];
    AUTO_LOCK(&l->lock);
    if (status != TN_OK) note_failure(l, at, status, partially_committed);
    atomic_store_explicit(&l->completed, at, memory_order_release);
    pthread_cond_broadcast(&l->moved);
}

static tn_status timeline_failure(int number, bool clear) {
    timeline *l = &timelines[number];
    pthread_mutex_lock(&l->lock);
    failure f = l->now;
    if (clear) put_away(l, atomic_load(&l->completed));
    pthread_mutex_unlock(&l->lock);
    return f.first ? tn_fail(f.status, "%s", f.why) : TN_OK;
}

/* ==== events ====================================================================================================== */
/* An event's position is a timeline point. The time at which it was reached comes from the interface's event, or, if a
 * thread or the caller executes the work, from the host's clock. */

/* When a queue's thread came by; shared by the event and the task that writes it. */
typedef struct stamp {
    _Atomic int refs;
    _Atomic double seconds;
} stamp;

struct tn_event {
    bool timed, recorded;
    tn_timeline_point point; /* 0: it was reached at once */
    stamp *stamp;            /* by the host's clock; or NULL */
    tn_device *device;       /* of `timer`, kept alive by `hold` */
    tn_buffer *keep_alive;
    void *timer; /* the driver's event, of a timed one */
    bool by_device;
};

static void stamp_release(stamp *s) {
    if (s && atomic_fetch_sub(&s->refs, 1) == 1) tn_mem_free(s);
}

tn_status tn_event_new(bool timed, tn_event **out) {
    TRY(tn_need(out, "tn_event_new: out"));
    *out = tn_mem_zalloc(1, sizeof **out);
    if (!*out) return TN_ERR_MEMORY;
    (*out)->timed = timed;
    return TN_OK;
}

static void drop_timer(tn_event *e) {
    if (e->timer) {
        (void)tn_device_wait_event(e->device, e->timer); /* also if the record was dropped */
        e->device->driver->event_free(e->device->handle, e->timer);
    }
    tn_buffer_release(e->keep_alive);
    e->timer = NULL;
    e->keep_alive = NULL;
    e->device = NULL;
}

void tn_event_free(tn_event *e) {
    if (!e) return;
    drop_timer(e);
    stamp_release(e->stamp);
    tn_mem_free(e);
}

/* ---- recording --------------------------------------------------------------------------------------------------- */

static tn_status new_stamp(tn_event *e) {
    stamp_release(e->stamp);
    e->stamp = tn_mem_zalloc(1, sizeof *e->stamp);
    if (!e->stamp) return TN_ERR_MEMORY;
    atomic_store(&e->stamp->refs, 1);
    return TN_OK;
}

typedef struct stamp_task {
    tn_task task;
    stamp *stamp;
} stamp_task;

static tn_status put_stamp(tn_task *t) {
    atomic_store(&((stamp_task *)t)->stamp->seconds, tn_now());
    return TN_OK;
}

static void drop_stamp(tn_task *t) {
    stamp_release(((stamp_task *)t)->stamp);
    tn_mem_free(t);
}

static tn_status record_in_thread(tn_event *e, tn_queue *q) {
    TRY(new_stamp(e));
    stamp_task *t = tn_mem_zalloc(1, sizeof *t);
    if (!t) return TN_ERR_MEMORY;
    *t = (stamp_task){.task = {.run = put_stamp, .drop = drop_stamp}, .stamp = e->stamp};
    atomic_fetch_add(&e->stamp->refs, 1);
    tn_submission o;
    tn_submission_begin(&o, q->device, q);
    e->point = tn_submission_point(&o);
    tn_submission_enqueue(&o, &t->task);
    return TN_OK;
}

static tn_status have_timer(tn_event *e, tn_device *d) {
    if (!e->timed || e->device == d) return TN_OK;
    drop_timer(e);
    TRY(tn_buffer_borrow(d, NULL, 0, NULL, NULL, &e->keep_alive));
    e->device = d;
    tn_status s = d->driver->event_new(d->handle, true, &e->timer);
    if (s != TN_OK) drop_timer(e);
    return s;
}

static tn_status record_on_device(tn_event *e, tn_queue *q) {
    TRY(have_timer(e, q->device));
    tn_submission o;
    tn_submission_begin(&o, q->device, q);
    e->point = tn_submission_point(&o);
    e->by_device = true;
    TRY(tn_submission_start(&o));
    return tn_submission_end(&o, e->timer ? q->device->driver->event_record(q->handle, e->timer) : TN_OK);
}

/* The queue that NULL means; NULL where the current device's work has ended when calls return. */
static tn_status default_queue(tn_queue **q) {
    *q = tn_current_queue();
    if (*q) return TN_OK;
    tn_device *d = tn_current_device();
    if (!d) return tn_error_code();
    if (tn_device_has_events(d)) TRY(tn_device_order(d));
    *q = tn_queue_for(d);
    return *q || d->is_cpu ? TN_OK : tn_device_wait(d, d->handle);
}

tn_status tn_event_record(tn_event *e, tn_queue *q) {
    TRY(tn_need(e, "tn_event_record: the event"));
    if (!q) TRY(default_queue(&q));
    e->by_device = false;
    if (tn_queue_has_thread(q)) {
        TRY(record_in_thread(e, q));
    } else if (q) {
        TRY(record_on_device(e, q));
    } else {
        TRY(new_stamp(e));
        e->point = 0;
        atomic_store(&e->stamp->seconds, tn_now());
    }
    e->recorded = true;
    return TN_OK;
}

/* ---- asking and waiting ------------------------------------------------------------------------------------------ */

tn_status tn_event_query(const tn_event *e, bool *passed) {
    TRY(tn_need(e, "tn_event_query: the event"));
    TRY(tn_need(passed, "tn_event_query: passed"));
    *passed = timeline_point_reached(e->point);
    return *passed ? tn_timeline_point_wait(e->point) : TN_OK;
}

tn_status tn_event_synchronize(const tn_event *e) {
    TRY(tn_need(e, "tn_event_synchronize: the event"));
    return tn_timeline_point_wait(e->point);
}

static tn_status time_of(const tn_event *e, double *seconds) {
    TRY(tn_timeline_point_wait(e->point));
    if (!e->by_device) {
        *seconds = atomic_load(&e->stamp->seconds);
        return TN_OK;
    }
    const tn_device *d = e->device;
    if (!d->driver->event_time)
        return tn_fail(TN_ERR_UNSUPPORTED, "tn_event_elapsed: %s does not support event timing", d->info.id);
    return d->driver->event_time(d->handle, e->timer, seconds);
}

tn_status tn_event_elapsed(const tn_event *begin, const tn_event *end, double *seconds) {
    TRY(tn_need(begin, "tn_event_elapsed: begin"));
    TRY(tn_need(end, "tn_event_elapsed: end"));
    TRY(tn_need(seconds, "tn_event_elapsed: seconds"));
    if (!begin->recorded || !end->recorded || !begin->timed || !end->timed)
        return tn_fail(TN_ERR_STATE, "tn_event_elapsed: both events must be created with timing, and recorded");
    if (begin->by_device != end->by_device || (end->by_device && begin->device != end->device))
        return tn_fail(TN_ERR_ARGUMENT,
                       "tn_event_elapsed: the events were recorded on two devices, whose clocks are not comparable");
    double from, to;
    TRY(time_of(begin, &from));
    TRY(time_of(end, &to));
    *seconds = to - from;
    return TN_OK;
}

tn_status tn_queue_wait(tn_queue *q, const tn_event *e) {
    TRY(tn_need(q, "tn_queue_wait: the queue"));
    TRY(tn_need(e, "tn_queue_wait: the event"));
    tn_task *t = tn_queue_has_thread(q) ? tn_mem_zalloc(1, sizeof *t) : NULL;
    if (tn_queue_has_thread(q) && !t) return TN_ERR_MEMORY;
    tn_submission o;
    tn_submission_begin(&o, q->device, q);
    tn_submission_wait_for(&o, e->point);
    if (t) {
        t->drop = tn_task_free;
        tn_submission_enqueue(&o, t);
        return TN_OK;
    }
    TRY(tn_submission_start(&o));
    return tn_submission_end(&o, TN_OK);
}
