/* live_blocks.h — how many allocations live, without what the library keeps for reuse. */
#ifndef TN_TEST_LIVE_BLOCKS_H
#define TN_TEST_LIVE_BLOCKS_H

#include "plan/plan.h"

/* Drops kernels of the host's device and this thread's freed handles first: limited numbers of both are kept. */
static inline int64_t test_live_blocks(void) {
    tn_kernels_drop(tn_host_device());
    tn_handles_drop();
    return tn_mem_get_stats().live_blocks;
}

#endif
