/* pin.h — a processor of its own for every worker of the pool (private to base). */
#ifndef TN_BASE_PIN_H
#define TN_BASE_PIN_H

#include <pthread.h>
#include <stdbool.h>

enum { TN_MOST_THREADS = 512 }; /* of the pool, its caller included */

/* Worker `index`, 1 or more, runs as `thread`. Call by the thread that starts workers. */
void tn_pin_started(int index, pthread_t thread);

/* Before a job: workers 1 to `workers` each get a processor that neither the calling thread nor another worker has. A
 * few nanoseconds when that is so already. The caller itself is never moved. Call by the
 * one thread that uses the pool. */
void tn_pin_arrange(int workers);

/* By a worker, after a part that it began at this time: sees whether other programs keep it from its processor. */
void tn_pin_watch(double begin);

/* In a child of fork: there are no workers. */
void tn_pin_forget(void);

/* Whether workers are to be tied at this moment. `crowded`: since the last call a worker lost much time to others. Then
 * nobody is tied for a while, at first a short one; each time that this is seen again at once, twice as long. */
typedef struct tn_pin_pause {
    double until, length, tied_since;
} tn_pin_pause;
bool tn_pin_may_tie(tn_pin_pause *p, double now, bool crowded);

#endif
