/* event.c — the events of device.h: a place in a queue's order, and when it was reached.
 *
 * The place is a timeline point. When it was reached is told by an event of the interface, or, where a thread or the
 * caller does the work, by the host's clock. */
#include "hal/queue.h"

/* When a queue's thread came by; shared by the event and the task that writes it. */
typedef struct stamp {
    _Atomic int refs;
    _Atomic double seconds;
} stamp;

struct tn_event {
    bool timed, recorded;
    tn_timeline_point point; /* 0: it was reached at once */
    stamp *stamp;      /* by the host's clock; or NULL */
    tn_device *device; /* of `timer`, kept alive by `hold` */
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
        (void)e->device->driver->event_sync(e->device->handle, e->timer); /* also of a record that was forgotten */
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
    return *q || d->is_cpu ? TN_OK : d->driver->sync(d->handle);
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
    *passed = tn_timeline_point_reached(e->point);
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
        return tn_fail(TN_ERR_UNSUPPORTED, "tn_event_elapsed: the interface of %s tells no times", d->info.id);
    return d->driver->event_time(d->handle, e->timer, seconds);
}

tn_status tn_event_elapsed(const tn_event *begin, const tn_event *end, double *seconds) {
    TRY(tn_need(begin, "tn_event_elapsed: begin"));
    TRY(tn_need(end, "tn_event_elapsed: end"));
    TRY(tn_need(seconds, "tn_event_elapsed: seconds"));
    if (!begin->recorded || !end->recorded || !begin->timed || !end->timed)
        return tn_fail(TN_ERR_STATE, "tn_event_elapsed: both events must be made as timed, and recorded");
    if (begin->by_device != end->by_device || (end->by_device && begin->device != end->device))
        return tn_fail(TN_ERR_ARGUMENT,
                       "tn_event_elapsed: the events were recorded on two devices, whose clocks differ");
    double from, to;
    TRY(time_of(begin, &from));
    TRY(time_of(end, &to));
    *seconds = to - from;
    return TN_OK;
}

static void free_task(tn_task *t) { tn_mem_free(t); }

tn_status tn_queue_wait(tn_queue *q, const tn_event *e) {
    TRY(tn_need(q, "tn_queue_wait: the queue"));
    TRY(tn_need(e, "tn_queue_wait: the event"));
    tn_task *t = tn_queue_has_thread(q) ? tn_mem_zalloc(1, sizeof *t) : NULL;
    if (tn_queue_has_thread(q) && !t) return TN_ERR_MEMORY;
    tn_submission o;
    tn_submission_begin(&o, q->device, q);
    tn_submission_wait_for(&o, e->point);
    if (t) {
        t->drop = free_task;
        tn_submission_enqueue(&o, t);
        return TN_OK;
    }
    TRY(tn_submission_start(&o));
    return tn_submission_end(&o, TN_OK);
}
