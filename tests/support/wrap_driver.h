/* wrap_driver.h — a driver around another one, for tests: it shrinks what the device can do, lets chosen calls fail,
 * and counts what is alive.
 *
 * A wrapped driver is a backend of its own ("wrapped far"): what runs on it runs on the inner one's device. */
#ifndef TN_WRAP_DRIVER_H
#define TN_WRAP_DRIVER_H

#include "trunnion/backend.h"

/* The kinds of calls that can fail. */
#define WRAP_CALLS(X) \
    X(OPEN)           \
    X(CAPS)           \
    X(ALLOC)          \
    X(LOAD)           \
    X(LAUNCH)         \
    X(PREPARE)        \
    X(DISPATCH)       \
    X(DISPATCH_LIST)  \
    X(BINARY)         \
    X(COPY)           \
    X(SYNC)           \
    X(MEMORY)         \
    X(QUEUE_NEW)      \
    X(EVENT_NEW)      \
    X(EVENT_RECORD)   \
    X(EVENT_WAIT)     \
    X(EVENT_QUERY)    \
    X(EVENT_SYNC)     \
    X(EVENT_TIME)     \
    X(FILL)           \
    X(HOST_ALLOC)     \
    X(MAP)            \
    X(UNMAP)

typedef enum wrap_call {
#define X(name) WRAP_##name,
    WRAP_CALLS(X)
#undef X
        WRAP_CALL_COUNT
} wrap_call;
#define WRAP_ANY WRAP_CALL_COUNT

/* What a wrapped device is like. The limits are read at caps, only where they are not 0, and only where they are lower
 * than the device's own; the faults at each call. */
typedef struct wrap_nature {
    int64_t max_buffer, max_loop, max_group, shared_memory, max_groups_x, alignment;
    int max_bindings;
    bool no_f64;
    int64_t fail_at;     /* the n-th call of `fail_kind` from now fails; 0: none. Counts down to 0 */
    wrap_call fail_kind; /* or WRAP_ANY */
    tn_status fail_with; /* TN_ERR_DEVICE, TN_ERR_MEMORY, TN_ERR_LOST */
    bool stays;          /* all that follow fail too */
} wrap_nature;
extern wrap_nature wrap_now;

typedef struct wrap_counts {
    int64_t calls, faults; /* since wrap_reset; free, unload and close do not count */
    int64_t binaries;      /* successful loads that were given a binary, since then */
    int64_t dispatches;    /* in all calls of dispatch, since then */
    int64_t of[WRAP_CALL_COUNT];
    int64_t devices, blocks, modules, queues, events, pinned, mapped; /* alive now */
} wrap_counts;
wrap_counts wrap_get_counts(void);
void wrap_reset(void); /* no limits, no faults, calls from 0; what is alive stays counted */

/* The inner driver with the limits and faults above; the same one each time it is asked for. NULL for more than three
 * inner drivers in one process. */
const tn_driver *wrap_driver(const tn_driver *inner);

#endif
