/* room.c — see room.h. */
#include "hal/room.h"

#include "hal/loss.h"

tn_status tn_room_take(tn_room *r, const char *device, size_t bytes) {
    int64_t size = (int64_t)(bytes < INT64_MAX / 2 ? bytes : INT64_MAX / 2); /* so that counting it does not overflow */
    if (r->largest && size > r->largest)
        return tn_fail(TN_ERR_MEMORY, "%s: %zu bytes are more than the %lld of the largest allocation here; %s", device,
                       bytes, (long long)r->largest, TN_ADVICE_SMALLER);
    int64_t taken = atomic_fetch_add(&r->taken, size);
    if (!r->total || taken <= r->total - size) return TN_OK;
    tn_room_give(r, size);
    return tn_fail(TN_ERR_MEMORY, "%s: %zu bytes beside %lld of %lld that are in use; %s", device, bytes,
                   (long long)taken, (long long)r->total, TN_ADVICE_SMALLER);
}

int64_t tn_room_left(const tn_room *r, bool in_host) {
    int64_t left = tn_max64(r->total - atomic_load(&r->taken), 0);
    return in_host ? tn_min64(left, tn_host_memory_now().unused) : left;
}
