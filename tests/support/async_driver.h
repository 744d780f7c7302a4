/* async_driver.h — a device for tests that works beside the host: queues, events, pinned memory, as a graphics
 * processor has them.
 *
 * Memory and kernels are those of far_driver.h. Each queue, the device's own too, is a thread; calls return before
 * their work begins. Mistakes that a real driver answers with wrong results are noted as faults. Backend "async", two
 * devices. */
#ifndef TN_ASYNC_DRIVER_H
#define TN_ASYNC_DRIVER_H

#include "far_driver.h"

extern const tn_driver async_driver;

/* Registers the driver (once a process) and opens async:index; ends the program with words when it cannot. */
tn_device *async_open(int index, const tn_device_options *options);

/* Stops a queue (a driver's handle) where it is, or lets it go on. */
void async_hold(void *queue, bool held);

/* The first mistake that somebody made, "" without one. */
const char *async_fault(void);

#endif
