/* memory_budget.c — see memory_budget.h. */
#include "hal/memory_budget.h"

#include "hal/device_lost.h"

tn_status tn_memory_budget_take(tn_memory_budget *r, const char *device, size_t bytes) {
    int64_t size = (int64_t)(bytes < INT64_MAX / 2 ? bytes : INT64_MAX / 2); /* so that counting it does not overflow */
    if (r->largest && size > r->largest)
        return tn_fail(TN_ERR_MEMORY, "%s: %zu bytes are more than the %lld of the largest allocation here; %s", device,
                       bytes, (long long)r->largest, TN_ADVICE_SMALLER);
    int64_t taken = atomic_fetch_add(&r->taken, size);
    if (!r->total || taken <= r->total - size) return TN_OK;
    tn_memory_budget_give(r, size);
    return tn_fail(TN_ERR_MEMORY, "%s: %zu bytes beside %lld of %lld that are in use; %s", device, bytes,
                   (long long)taken, (long long)r->total, TN_ADVICE_SMALLER);
}

int64_t tn_memory_budget_left(const tn_memory_budget *r, bool in_host) {
    int64_t left = tn_max64(r->total - atomic_load(&r->taken), 0);
    return in_host ? tn_min64(left, tn_host_memory_now().unused) : left;
}
