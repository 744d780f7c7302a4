/* queue.h — order between queues: marks, waits, and how work is given to one.
 *
 * Each queue has a line in time: work given to it is numbered, and a counter says how far it has come. A mark is a
 * place on a line. A buffer bears the marks of its last write and of the reads since, so whoever touches it next knows
 * what to wait for: on the device's side where the interface can, in a queue's thread, or in the caller.
 *
 *   timeline.c  lines: how far they have come, what failed on them, waiting
 *   queue.c     queues, their threads, giving work
 *   event.c     the events of device.h
 *   transfer.c  copies, host memory
 *
 * A device without further queues pays for none of it: `ordered` is false. */
#ifndef TN_HAL_QUEUE_H
#define TN_HAL_QUEUE_H

#include <pthread.h>

#include "hal/hal.h"

/* ---- timeline.c -------------------------------------------------------------------------------------------------- */

/* Line << 48 | number; 0: long ago. Bit 63: if that work failed, the memory holds what it held before (states). */
#define TN_MARK_KEPT ((tn_mark)1 << 63)

/* What must have passed on one line before some work begins. Its result is needed from need_first to need_last (0:
 * only the order counts): the work cannot succeed if one of these failed. */
typedef struct tn_wait {
    int line;
    uint64_t last, need_first, need_last;
} tn_wait;

int tn_line_take(tn_queue *q); /* a line for a queue; 0 when all are taken */
void tn_line_leave(int line);  /* everything on it has passed */
uint64_t tn_line_next(int line);
uint64_t tn_line_given(int line);
bool tn_line_is_of(int line, const tn_device *d, bool on_device); /* of a queue of d; one of the interface */
bool tn_line_has_failed(int line);                                /* ever */
enum { TN_LINES = 128 };

tn_mark tn_mark_at(int line, uint64_t number);
bool tn_mark_passed(tn_mark m);
/* Waits in the caller. Yields the failure of what stood there, unless the mark is one that keeps. */
tn_status tn_mark_wait(tn_mark m);
tn_status tn_wait_here(const tn_wait *w); /* the same for a wait */

/* The worker of a line says that it has come so far; `status`, with this thread's error text: how that ended; torn: it
 * failed with states half written. */
void tn_line_pass(int line, uint64_t number, tn_status status, bool torn);
/* The failure after which the line leaves everything out, as status and text; clear: it goes on from now. */
tn_status tn_line_failure(int line, bool clear);
/* A line whose work the driver does: an event is put behind what was given, as `number`. */
tn_status tn_line_record(int line, uint64_t number);
/* What queue `q` of the same driver and device is given next begins when w has passed. */
tn_status tn_line_wait_on_device(tn_queue *q, const tn_wait *w);

/* ---- queue.c ----------------------------------------------------------------------------------------------------- */

enum { TN_RING = 32 };
/* An interface's event that stands for a place on a line. */
typedef struct tn_ring_event {
    uint64_t number;
    void *event;
    int users; /* threads that wait for it now */
} tn_ring_event;

struct tn_queue {
    tn_device *device;
    tn_buffer *hold; /* keeps a closed device alive; NULL for a device's own queue */
    void *handle;    /* the driver's; NULL: a thread of ours does the work */
    int line;
    pthread_mutex_t giving; /* held while work is given: its order is that of its numbers */
    /* the thread */
    pthread_t thread;
    pthread_mutex_t lock; /* all below */
    pthread_cond_t work, room;
    struct tn_task *first, **end;
    int waiting;
    bool stop;
    /* the interface's events, oldest first: guarded by the line's lock */
    tn_ring_event ring[TN_RING];
    int ring_first, ring_count;
};

/* Work for a queue's thread. */
typedef struct tn_task {
    struct tn_task *next;
    tn_status (*run)(struct tn_task *t); /* on the thread; NULL: nothing but a place in the order */
    void (*drop)(struct tn_task *t);     /* frees it, whether it ran or not */
    uint64_t number;
    int wait_count;
    bool torn; /* set by run, when it fails with states half written */
    tn_wait waits[TN_LINES];
} tn_task;

/* Work being given. begin, then what it touches, then either a task for the queue's thread (hand), or the calls to the
 * driver themselves between go and end: they use tn_lane. Nothing of this fails for want of memory. */
typedef struct tn_order {
    tn_device *device;
    tn_queue *queue; /* NULL: the device's own, and everything has ended when the calls return */
    uint64_t number;
    void *lane_before;
    tn_device *lane_device_before;
    int wait_count;
    tn_wait waits[TN_LINES]; /* the last, so that beginning touches none of it */
} tn_order;

void tn_order_begin(tn_order *o, tn_device *d, tn_queue *q);
/* kept: a state, which is as it was if the work fails. */
void tn_order_use(tn_order *o, tn_buffer *b, bool written, bool kept);
void tn_order_after(tn_order *o, tn_mark m); /* behind that, whatever came of it */
void tn_order_hand(tn_order *o, tn_task *t);
tn_status tn_order_go(tn_order *o); /* a failure ends it */
tn_status tn_order_end(tn_order *o, tn_status status);
tn_mark tn_order_mark(const tn_order *o); /* 0 when it stands on no line */

/* Does a thread of ours do the queue's work? */
static inline bool tn_queue_has_thread(const tn_queue *q) { return q && !q->handle; }
/* The queue that this thread's work on `d` goes to: the current one if it is d's, else d's own if that has a line, else
 * NULL. */
tn_queue *tn_queue_for(const tn_device *d);
bool tn_device_has_events(const tn_device *d); /* the interface has queues and events */
tn_status tn_device_order(tn_device *d);       /* from now on its work is marked */
void tn_device_order_end(tn_device *d);        /* device.c, when it ends */

#endif
