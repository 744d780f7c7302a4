/* queue.h — queues of a device: timeline points, waits, submission.
 *
 * Each queue has a timeline: submitted work is numbered, and a counter says how much has completed. A timeline point is
 * a number on one timeline. A buffer keeps the points of its last write and of the reads since, so its next user knows
 * what to wait for: on the device if the interface can, else in the queue's thread or in the caller.
 *
 *   queue.c     timelines (progress, failures, waiting), queues and their threads, submission, the events of device.h
 *   transfer.c  copies, host memory
 *
 * A device with a single queue has no cost from this: `ordered` is false. */
#ifndef TN_HAL_QUEUE_H
#define TN_HAL_QUEUE_H

#include <pthread.h>

#include "hal/hal.h"

/* ---- queue.c -------------------------------------------------------------------------------------------------- */

/* Timeline << 48 | number; 0: long ago. Bit 63: if that work failed, the memory holds what it held before (states). */
#define TN_TIMELINE_POINT_KEPT ((tn_timeline_point)1 << 63)

/* The numbers on one timeline that some work waits for. It needs the results of need_first to need_last (0: only the
 * order matters): if one of these failed, the work fails too. */
typedef struct tn_wait {
    int timeline;
    uint64_t last, need_first, need_last;
} tn_wait;

uint64_t tn_timeline_submitted(int timeline);
enum { TN_TIMELINES = 128 };

tn_timeline_point tn_timeline_point_at(int timeline, uint64_t number);
/* Waits in the caller. Yields the failure of what stood there, unless the timeline point is one that keeps. */
tn_status tn_timeline_point_wait(tn_timeline_point m);

/* ---- queue.c ----------------------------------------------------------------------------------------------------- */

enum { TN_RING = 32 };
/* An event of the interface that completes when a timeline reaches a number. */
typedef struct tn_ring_event {
    uint64_t number;
    void *event;
    int users; /* threads that wait for it now */
} tn_ring_event;

struct tn_queue {
    tn_device *device;
    tn_buffer *keep_alive; /* keeps a closed device alive; NULL for a device's default queue */
    void *handle;          /* the driver's; NULL: a thread of ours does the work */
    int timeline;
    pthread_mutex_t submit_lock; /* held during submission, so that its order is that of the numbers */
    /* the thread */
    pthread_t thread;
    pthread_mutex_t lock; /* all below */
    pthread_cond_t work, room;
    struct tn_task *first, **end;
    int waiting;
    bool stop;
    /* the interface's events, oldest first: guarded by the timeline's lock */
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
    bool partially_committed; /* set by run, when it fails with states half written */
    tn_wait waits[TN_TIMELINES];
} tn_task;
static inline void tn_task_free(tn_task *t) { tn_mem_free(t); } /* drop of tasks that own nothing else */

/* Work being given. begin, then what it touches, then either a task for the queue's thread (hand), or the calls to the
 * driver themselves between go and end: they use tn_stream_handle. Nothing of this fails for want of memory. */
typedef struct tn_submission {
    tn_device *device;
    tn_queue *queue; /* NULL: the device's own, and everything has ended when the calls return */
    uint64_t number;
    void *stream_handle_before;
    tn_device *stream_device_before;
    int wait_count;
    tn_wait waits[TN_TIMELINES]; /* the last, so that beginning touches none of it */
} tn_submission;

void tn_submission_begin(tn_submission *o, tn_device *d, tn_queue *q);
/* kept: a state, which is as it was if the work fails. */
void tn_submission_use(tn_submission *o, tn_buffer *b, bool written, bool kept);
void tn_submission_wait_for(tn_submission *o, tn_timeline_point m); /* behind that, whatever came of it */
void tn_submission_enqueue(tn_submission *o, tn_task *t);
tn_status tn_submission_start(tn_submission *o); /* a failure ends it */
tn_status tn_submission_end(tn_submission *o, tn_status status);
tn_timeline_point tn_submission_point(const tn_submission *o); /* 0 when it stands on no timeline */

tn_status tn_device_drain(tn_device *d); /* tn_device_synchronize, but leaves counted errors for that or a read */

/* Does a thread of ours do the queue's work? */
static inline bool tn_queue_has_thread(const tn_queue *q) { return q && !q->handle; }
/* The queue that this thread's work on `d` goes to: the current one if it is d's, else d's own if that has a timeline,
 * else NULL. */
tn_queue *tn_queue_for(const tn_device *d);
void tn_device_order_end(tn_device *d); /* device.c, when it ends */

#endif
