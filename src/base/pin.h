/* pin.h — a processor of its own for every worker of the pool (private to base). */
#ifndef TN_BASE_PIN_H
#define TN_BASE_PIN_H

#include <pthread.h>

enum { TN_MOST_THREADS = 512 }; /* of the pool, its caller included */

/* Worker `index`, 1 or more, runs as `thread`. Call by the thread that starts workers. */
void tn_pin_started(int index, pthread_t thread);

/* Before a job: workers 1 to `workers` each get a processor that neither the calling thread nor another worker has. A few
 * nanoseconds when that is so already. The caller itself is never moved. Call by the one thread that uses the pool. */
void tn_pin_arrange(int workers);

/* In a child of fork: there are no workers. */
void tn_pin_forget(void);

#endif
