/* mock_driver.h — a driver for tests of hal: it counts its calls, computes nothing, and fails where it is told to. */
#ifndef TN_TESTS_MOCK_DRIVER_H
#define TN_TESTS_MOCK_DRIVER_H

#include "hal/hal.h"

/* What it is like, and what was asked of it. */
typedef struct mock_state {
    int devices;
    bool software, open_fails, lost;
    int64_t free_memory;
    size_t skew; /* bytes by which memory lies beside what it should be aligned to */
    int loads, unloads, launches, peer_copies, live;
} mock_state;
extern mock_state mock;

extern const tn_driver mock_driver; /* "mock" */

#endif
