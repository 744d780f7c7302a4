/* timeline.c — timelines: how far each queue has come, waiting for it, and what failed on it.
 *
 * Timelines are never freed, and numbers on one only grow, so a timeline point may be kept for ever: of a queue that
 * has gone it names something that has passed. A timeline moves by the thread that does its work, or by the interface's
 * events, which are put behind work as it is given and are looked at when somebody asks.
 *
 * After a failure a timeline leaves out all that follows until somebody has been told (tn_queue_synchronize): what was
 * left out counts as failed. Failures that were told are kept, as ranges, for those who still hold such a value. */
#include <stdio.h>
#include <string.h>

#include "hal/queue.h"

typedef struct failure {
    uint64_t first, last; /* 0: none */
    uint64_t partially_committed; /* this one failed with its states half written; 0: none */
    tn_status status;
    char why[160];
} failure;

typedef struct timeline {
    pthread_mutex_t lock;
    pthread_cond_t moved; /* it has come further, or another event is there to wait for */
    _Atomic uint64_t submitted, completed;
    _Atomic bool has_failed; /* ever */
    tn_queue *queue;         /* changes under both locks */
    failure now, *reported;  /* oldest first */
    size_t reported_count, reported_capacity;
} timeline;

static timeline timelines[TN_TIMELINES]; /* timeline 0 stays empty, so that no timeline point is 0 */
static pthread_mutex_t taking = PTHREAD_MUTEX_INITIALIZER;

static void make_locks(void) {
    for (int i = 0; i < TN_TIMELINES; i++) {
        pthread_mutex_init(&timelines[i].lock, NULL);
        pthread_cond_init(&timelines[i].moved, NULL);
    }
}

int tn_timeline_acquire(tn_queue *q) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_locks);
    int found = 0;
    pthread_mutex_lock(&taking);
    for (int i = 1; i < TN_TIMELINES && !found; i++)
        if (!timelines[i].queue) found = i;
    if (found) timelines[found].queue = q;
    pthread_mutex_unlock(&taking);
    return found;
}

/* The failure that stands is told: it ends here. The caller holds the lock. Without memory to keep it, and past a
 * number that nobody meets, it is joined to the one before: what lies between counts as failed too. */
static void put_away(timeline *l, uint64_t last) {
    enum { MOST_REPORTED = 256 };
    failure f = l->now;
    if (!f.first) return;
    f.last = last;
    bool room =
        l->reported_count < MOST_REPORTED &&
        tn_mem_reserve(&l->reported, &l->reported_capacity, l->reported_count + 1, sizeof *l->reported) == TN_OK;
    if (!room && !l->reported_count) return; /* then it stands, and will be told again */
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

void tn_timeline_release(int number) {
    timeline *l = &timelines[number];
    pthread_mutex_lock(&l->lock);
    while (somebody_waits(l->queue)) /* the work is done, but another thread has not left the event yet */
        pthread_cond_wait(&l->moved, &l->lock);
    put_away(l, atomic_load(&l->submitted));
    pthread_mutex_lock(&taking);
    l->queue = NULL;
    pthread_mutex_unlock(&taking);
    pthread_mutex_unlock(&l->lock);
}

bool tn_timeline_is_of(int number, const tn_device *d, bool on_device) {
    pthread_mutex_lock(&taking);
    const tn_queue *q = timelines[number].queue;
    bool yes = q && q->device == d && (q->handle || !on_device);
    pthread_mutex_unlock(&taking);
    return yes;
}

uint64_t tn_timeline_advance(int number) { return atomic_fetch_add(&timelines[number].submitted, 1) + 1; }
uint64_t tn_timeline_submitted(int number) { return atomic_load(&timelines[number].submitted); }

/* ---- timeline points
 * ------------------------------------------------------------------------------------------------------- */

enum { NUMBER_BITS = 48 };

tn_timeline_point tn_timeline_point_at(int number, uint64_t at) {
    return at ? (tn_timeline_point)number << NUMBER_BITS | at : 0;
}
static timeline *timeline_of(tn_timeline_point m) { return &timelines[(m & ~TN_TIMELINE_POINT_KEPT) >> NUMBER_BITS]; }
static uint64_t timeline_number_of(tn_timeline_point m) { return m & (((uint64_t)1 << NUMBER_BITS) - 1); }

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
    if (s != TN_OK) note_failure(l, e->number, s, false); /* it will never tell: it is done with */
    return s != TN_OK || there;
}

/* The caller holds the lock. Looks at the oldest events until one has not passed. One that another thread stands at
 * passes all the same (two that each saw the other stand there would never go on), but stays until he has left it. */
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
    tn_status s = d->driver->event_sync(d->handle, e->event);
    pthread_mutex_lock(&l->lock);
    e->users--;
    if (s != TN_OK) note_failure(l, e->number, s, false);
    come_to(l, e->number);
    if (!e->users) pthread_cond_broadcast(&l->moved);
}

tn_status tn_timeline_record(int number, uint64_t at) {
    timeline *l = &timelines[number];
    tn_queue *q = l->queue;
    const tn_driver *driver = q->device->driver;
    pthread_mutex_lock(&l->lock);
    query_events(l);
    while (q->ring_count == TN_RING) {
        wait_for_event(l, ring_at(q, 0));
        query_events(l);
    }
    tn_ring_event *e = ring_at(q, q->ring_count);
    tn_status s = driver->event_record(q->handle, e->event);
    if (s != TN_OK) { /* nothing to wait for later: now, then */
        note_failure(l, at, s, false);
        (void)driver->sync(q->handle);
        if (q->ring_count == 0)
            atomic_store_explicit(&l->completed, at, memory_order_release);
        else
            ring_at(q, q->ring_count - 1)->number = at;
    } else {
        e->number = at;
        q->ring_count++;
    }
    pthread_cond_broadcast(&l->moved);
    pthread_mutex_unlock(&l->lock);
    return s;
}

tn_status tn_timeline_wait_on_device(tn_queue *q, const tn_wait *w) {
    timeline *l = &timelines[w->timeline];
    tn_status s = TN_OK;
    pthread_mutex_lock(&l->lock);
    query_events(l);
    while (atomic_load(&l->completed) < w->last && !event_behind(l->queue, w->last))
        pthread_cond_wait(&l->moved, &l->lock); /* another thread is just giving it */
    if (atomic_load(&l->completed) < w->last)
        s = q->device->driver->event_wait(q->handle, event_behind(l->queue, w->last)->event);
    pthread_mutex_unlock(&l->lock);
    return s;
}

/* ---- waiting ----------------------------------------------------------------------------------------------------- */

bool tn_timeline_point_reached(tn_timeline_point m) {
    timeline *l = timeline_of(m);
    if (!m || atomic_load_explicit(&l->completed, memory_order_acquire) >= timeline_number_of(m)) return true;
    pthread_mutex_lock(&l->lock);
    query_events(l);
    bool completed = atomic_load_explicit(&l->completed, memory_order_acquire) >= timeline_number_of(m);
    pthread_mutex_unlock(&l->lock);
    return completed;
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

bool tn_timeline_has_failed(int number) { return atomic_load(&timelines[number].has_failed); }

static bool meets(const failure *f, uint64_t first, uint64_t last) {
    return f->first && f->first <= last && first <= f->last;
}

static tn_status fail_as(const failure *f) {
    static const char said[] = "a queue's work failed that this value comes from: ";
    size_t skip = strncmp(f->why, said, sizeof said - 1) == 0 ? sizeof said - 1 : 0;
    return tn_fail(f->status, "%s%s", said, f->why + skip);
}

tn_status tn_wait_here(const tn_wait *w) {
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
    return tn_fail(f.status, "the device failed while states were written, whose values are lost (load them anew): %s",
                   f.why);
}

tn_status tn_timeline_point_wait(tn_timeline_point m) {
    if (!m) return TN_OK;
    timeline *l = timeline_of(m);
    uint64_t n = timeline_number_of(m), needed = m & TN_TIMELINE_POINT_KEPT ? 0 : n;
    TRY(tn_wait_here(
        &(tn_wait){.timeline = (int)(l - timelines), .last = n, .need_first = needed, .need_last = needed}));
    return !needed && atomic_load(&l->has_failed) ? check_partially_committed(l, n) : TN_OK;
}

void tn_timeline_complete(int number, uint64_t at, tn_status status, bool partially_committed) {
    timeline *l = &timelines[number];
    pthread_mutex_lock(&l->lock);
    if (status != TN_OK) note_failure(l, at, status, partially_committed);
    atomic_store_explicit(&l->completed, at, memory_order_release);
    pthread_cond_broadcast(&l->moved);
    pthread_mutex_unlock(&l->lock);
}

tn_status tn_timeline_failure(int number, bool clear) {
    timeline *l = &timelines[number];
    pthread_mutex_lock(&l->lock);
    failure f = l->now;
    if (clear) put_away(l, atomic_load(&l->completed));
    pthread_mutex_unlock(&l->lock);
    return f.first ? tn_fail(f.status, "%s", f.why) : TN_OK;
}
