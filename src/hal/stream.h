/* stream.h — for drivers of interfaces without an order of their own: one stream of commands, as submissions with
 * numbers, recorded one after the other into a ring of slots.
 *
 * A slot is used anew once its last submission has ended and nobody waits for it any more. What becomes of commands the
 * driver knows; here is when a slot begins, is submitted, and waited for. One lock guards all of it and what the driver
 * records; it is let go while a thread waits. A lost device waits for nothing. */
#ifndef TN_HAL_STREAM_H
#define TN_HAL_STREAM_H

#include <pthread.h>

#include "hal/device_lost.h"

enum { TN_STREAM_SLOTS = 8 };

/* All but `wait` are called with the lock held. */
typedef struct tn_stream_calls {
    tn_status (*begin)(void *device, int slot);
    bool (*has_room)(void *device, int slot, size_t bytes, int bindings); /* in the slot that is being recorded */
    tn_status (*submit)(void *device);                                    /* calls tn_stream_submitted */
    tn_status (*wait)(void *device, int slot, uint64_t number);
    tn_status (*query)(void *device, int slot, uint64_t number, bool *ended);
    void (*idle)(void *device); /* waits for all that a lost device may still do */
} tn_stream_calls;

typedef struct tn_stream {
    const tn_stream_calls *calls;
    void *device;
    tn_device_lost *lost_state;
    pthread_mutex_t lock;
    pthread_cond_t left;      /* a waiter has left its slot */
    uint64_t submitted, done; /* numbers of the last submission, and of the last that is known to have ended */
    bool recording;           /* what will be number submitted + 1 */
    struct {
        uint64_t number; /* of its last submission; 0: none */
        int waiters;
    } slots[TN_STREAM_SLOTS];
} tn_stream;

void tn_stream_open(tn_stream *s, const tn_stream_calls *calls, void *device, tn_device_lost *lost_state);
void tn_stream_close(tn_stream *s);
static inline int tn_stream_slot(uint64_t number) { return (int)(number % TN_STREAM_SLOTS); }

/* ---- the lock is held -------------------------------------------------------------------------------------------- */

/* *slot: the one to record into; it has room for so many bytes, and for so many bindings. */
tn_status tn_stream_record(tn_stream *s, size_t bytes, int bindings, int *slot);
/* The driver has submitted what was recorded. */
void tn_stream_submitted(tn_stream *s);
tn_status tn_stream_submit(tn_stream *s);                 /* if something is being recorded */
tn_status tn_stream_await(tn_stream *s, uint64_t number); /* until that submission has ended */
tn_status tn_stream_finish(tn_stream *s);                 /* all that was recorded has ended */
/* Whether a submission has ended, as far as it can be told without waiting. */
tn_status tn_stream_query(tn_stream *s, uint64_t number, bool *ended);
bool tn_stream_is_idle(tn_stream *s); /* the same of all */

/* ---- the caller does not hold it --------------------------------------------------------------------------------- */

/* The stream is through with what the submission of this number used: a handle of it may go. */
void tn_stream_wait_unused(tn_stream *s, uint64_t last);

/* ---- a driver's functions ---------------------------------------------------------------------------------------- */

/* Of a device that begins with its tn_device_lost, and does all in one stream: each queue is the device, and what a
 * queue is given lies behind all events anyway. */
tn_status tn_stream_queue_new(void *device, void **queue);
void tn_stream_queue_free(void *device, void *queue);
tn_status tn_stream_event_wait(void *queue, void *event);

#endif
