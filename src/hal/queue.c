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
static _Thread_local tn_device *lane_device; /* whose calls go to `lane` */
static _Thread_local void *lane;

void *tn_lane_of(const tn_device *d) { return lane_device == d ? lane : d->handle; }

/* ---- marks of buffers -------------------------------------------------------------------------------------------- */

enum { WRITE = 0, FIRST_READ = 1, MARKS = TN_COUNT(((tn_buffer *)0)->marks), NUMBER_BITS = 48 };

static int line_of(tn_mark m) { return (int)((m & ~TN_MARK_KEPT) >> NUMBER_BITS); }
static uint64_t number_of(tn_mark m) { return m & (((uint64_t)1 << NUMBER_BITS) - 1); }

bool tn_buffer_suits(tn_buffer *b, bool for_host) {
    const tn_queue *q = for_host ? NULL : tn_queue_for(b->device);
    bool idle = true, suits = true;
    pthread_mutex_lock(&order_lock);
    for (size_t i = 0; i < MARKS && suits; i++) {
        if (tn_mark_passed(b->marks[i])) continue;
        idle = false;
        suits = q && line_of(b->marks[i]) == q->line;
    }
    if (idle) memset(b->marks, 0, sizeof b->marks); /* also of what failed: the content is another's now */
    pthread_mutex_unlock(&order_lock);
    return suits;
}

tn_status tn_buffer_check(const tn_buffer *b) {
    pthread_mutex_lock(&order_lock);
    tn_mark made = b->marks[WRITE];
    pthread_mutex_unlock(&order_lock);
    return made && tn_line_has_failed(line_of(made)) && tn_mark_passed(made) ? tn_mark_wait(made) : TN_OK;
}

tn_status tn_buffer_await_marks(const tn_buffer *b, bool write) {
    tn_mark marks[MARKS];
    pthread_mutex_lock(&order_lock);
    memcpy(marks, b->marks, sizeof marks);
    pthread_mutex_unlock(&order_lock);
    tn_status s = tn_mark_wait(marks[WRITE]);
    if (!write) return s;
    for (size_t i = FIRST_READ; i < MARKS; i++)
        (void)tn_mark_wait(marks[i]);
    return TN_OK; /* what is overwritten need not have succeeded */
}

/* ---- giving work ------------------------------------------------------------------------------------------------- */

void tn_order_begin(tn_order *o, tn_device *d, tn_queue *q) {
    memset(o, 0, offsetof(tn_order, waits));
    o->device = d;
    o->queue = q;
    if (q) pthread_mutex_lock(&q->giving);
    pthread_mutex_lock(&order_lock);
    if (q) o->number = tn_line_next(q->line);
}

tn_mark tn_order_mark(const tn_order *o) { return o->queue ? tn_mark_at(o->queue->line, o->number) : 0; }

/* A wait for each line is enough: for the last of what stands there. */
static tn_wait *wait_on(tn_order *o, int line) {
    for (int i = 0; i < o->wait_count; i++)
        if (o->waits[i].line == line) return &o->waits[i];
    o->waits[o->wait_count] = (tn_wait){.line = line};
    return &o->waits[o->wait_count++];
}

static void add_wait(tn_order *o, tn_mark m, bool needed) {
    if (!m) return;
    uint64_t number = number_of(m);
    int line = line_of(m);
    needed = needed && !(m & TN_MARK_KEPT);
    bool behind = o->queue && line == o->queue->line;
    bool settled = behind || tn_mark_passed(m); /* what fails on one's own line leaves one out too */
    if (settled && !(needed && tn_line_has_failed(line))) return;
    tn_wait *w = wait_on(o, line);
    if (number > w->last && !behind) w->last = number;
    if (!needed) return;
    if (!w->need_first || number < w->need_first) w->need_first = number;
    if (number > w->need_last) w->need_last = number;
}

void tn_order_after(tn_order *o, tn_mark m) { add_wait(o, m, false); }

/* The place for a read's mark: of the same line, or of what has passed; else work that the reader waits for from now
 * on, so that his mark says enough. */
static tn_mark *read_place(tn_order *o, tn_buffer *b) {
    for (size_t i = FIRST_READ; i < MARKS; i++)
        if (!b->marks[i] || line_of(b->marks[i]) == o->queue->line || tn_mark_passed(b->marks[i])) return &b->marks[i];
    add_wait(o, b->marks[FIRST_READ], false);
    return &b->marks[FIRST_READ];
}

void tn_order_use(tn_order *o, tn_buffer *b, bool written, bool kept) {
    add_wait(o, b->marks[WRITE], !written || kept);
    for (size_t i = FIRST_READ; i < MARKS && written; i++)
        add_wait(o, b->marks[i], false);
    tn_mark mine = tn_order_mark(o);
    if (!mine && written) memset(b->marks, 0, sizeof b->marks); /* waited for before it begins */
    if (!mine) return;
    if (!written) {
        *read_place(o, b) = mine;
        return;
    }
    memset(b->marks, 0, sizeof b->marks);
    b->marks[WRITE] = mine | (kept ? TN_MARK_KEPT : 0);
}

/* Can the device of queue q wait for what the line's queue does? */
static bool waits_on_device(const tn_queue *q, const tn_wait *w) {
    return q && q->handle && tn_line_is_of(w->line, q->device, true);
}

static tn_status wait_for(const tn_order *o, const tn_wait *w) {
    if (waits_on_device(o->queue, w)) return tn_line_wait_on_device(o->queue, w);
    return tn_wait_here(w);
}

tn_status tn_order_go(tn_order *o) {
    pthread_mutex_unlock(&order_lock);
    tn_status s = o->queue ? tn_line_failure(o->queue->line, false) : TN_OK;
    for (int i = 0; i < o->wait_count; i++) {
        tn_status waited = wait_for(o, &o->waits[i]);
        if (s == TN_OK) s = waited;
    }
    o->lane_before = lane;
    o->lane_device_before = lane_device;
    lane_device = o->device;
    lane = o->queue ? o->queue->handle : o->device->handle;
    return s == TN_OK ? TN_OK : tn_order_end(o, s);
}

tn_status tn_order_end(tn_order *o, tn_status status) {
    lane = o->lane_before;
    lane_device = o->lane_device_before;
    if (!o->queue) return status;
    tn_status recorded = tn_line_record(o->queue->line, o->number);
    pthread_mutex_unlock(&o->queue->giving);
    return status != TN_OK ? status : recorded;
}

void tn_order_hand(tn_order *o, tn_task *t) {
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
    pthread_mutex_unlock(&q->giving);
}

/* ---- a queue's thread -------------------------------------------------------------------------------------------- */

static tn_status do_task(const tn_queue *q, tn_task *t) {
    tn_status s = tn_line_failure(q->line, false);
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
        bool torn = t->torn;
        if (t->drop) t->drop(t);
        tn_line_pass(q->line, number, s, torn);
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
    if (q->line) tn_line_leave(q->line);
    free_ring(q);
    if (q->handle && q->handle != d->handle) d->driver->queue_free(d->handle, q->handle);
    pthread_mutex_destroy(&q->giving);
    pthread_mutex_destroy(&q->lock);
    pthread_cond_destroy(&q->work);
    pthread_cond_destroy(&q->room);
    tn_buffer_release(q->hold);
    tn_mem_free(q);
}

/* handle: of a device's own queue; NULL makes a new one. */
static tn_status queue_start(tn_queue *q, void *handle) {
    tn_device *d = q->device;
    q->handle = handle;
    if (!handle && tn_device_has_events(d)) TRY(d->driver->queue_new(d->handle, &q->handle));
    if (q->handle) TRY(make_ring(q));
    q->line = tn_line_take(q); /* from here on others see it */
    if (!q->line) return tn_fail(TN_ERR_MEMORY, "%s: there are %d queues already", d->info.id, TN_LINES - 1);
    return q->handle ? TN_OK : start_thread(q);
}

static tn_status queue_make(tn_device *d, void *handle, tn_queue **out) {
    tn_queue *q = tn_mem_zalloc(1, sizeof *q);
    if (!q) return TN_ERR_MEMORY;
    q->device = d;
    q->end = &q->first;
    pthread_mutex_init(&q->giving, NULL);
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->work, NULL);
    pthread_cond_init(&q->room, NULL);
    tn_status s = handle ? TN_OK : tn_buffer_borrow(d, NULL, 0, NULL, NULL, &q->hold);
    if (s == TN_OK) s = queue_start(q, handle);
    if (s != TN_OK) {
        queue_free(q);
        return s;
    }
    *out = q;
    return TN_OK;
}

/* What was given before bears no marks: it must have ended. */
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
    (void)tn_mark_wait(tn_mark_at(d->own->line, tn_line_given(d->own->line)));
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
static void drain(const tn_queue *q) { (void)tn_mark_wait(tn_mark_at(q->line, tn_line_given(q->line))); }

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
    TRY(tn_line_failure(q->line, true));
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
    for (int i = 1; i < TN_LINES && atomic_load(&d->ordered); i++) {
        if (!tn_line_is_of(i, d, false)) continue;
        (void)tn_mark_wait(tn_mark_at(i, tn_line_given(i)));
        bool own_line = d->own && i == d->own->line; /* of which nobody else could be told: it goes on from now */
        if (s == TN_OK) s = tn_line_failure(i, own_line);
    }
    tn_status own = d->driver->sync(d->handle);
    return s != TN_OK ? s : own;
}
