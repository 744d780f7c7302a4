/* memory_budget.h — how much of a device's memory is in use, where the interface does not say so.
 *
 * Some drivers find memory only when it is first touched, amid a plan. What cannot be there is refused before. */
#ifndef TN_HAL_MEMORY_BUDGET_H
#define TN_HAL_MEMORY_BUDGET_H

#include "base/base.h"

typedef struct tn_memory_budget {
    int64_t total;   /* 0: nobody says how much there is */
    int64_t largest; /* allocation; 0: no limit */
    atomic_llong taken;
} tn_memory_budget;

/* Counts `bytes` bytes as taken; TN_ERR_MEMORY, and nothing is counted, when the device cannot have them. */
tn_status tn_memory_budget_take(tn_memory_budget *r, const char *device, size_t bytes);
static inline void tn_memory_budget_give(tn_memory_budget *r, int64_t bytes) {
    atomic_fetch_sub(&r->taken, (long long)bytes);
}

/* Bytes that are free; in_host: the device has them from the host. */
int64_t tn_memory_budget_left(const tn_memory_budget *r, bool in_host);

#endif
