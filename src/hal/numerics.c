/* numerics.c — whether results have to be the definition's bits, for the whole process (device.h).
 *
 * Plans are made under one of both and have it in their key; kernels are told which they are to be. */
#include <stdatomic.h>
#include <string.h>

#include "hal/hal.h"

enum { UNDECIDED = -1 };

static atomic_int chosen = UNDECIDED;

/* Threads that get here at the same time find the same; a choice made meanwhile stays. */
static int heed_environment(void) {
    const char *name = tn_env("TRUNNION_NUMERICS");
    int said = name && strcmp(name, "fast") == 0 ? TN_NUMERICS_FAST : TN_NUMERICS_EXACT, before = UNDECIDED;
    if (name && !said && strcmp(name, "exact") != 0)
        tn_log_line(TN_LOG_NOTICE, "TRUNNION_NUMERICS=%s: neither exact nor fast; numerics are exact", name);
    return atomic_compare_exchange_strong(&chosen, &before, said) ? said : before;
}

tn_status tn_set_numerics(tn_numerics numerics) {
    if (numerics != TN_NUMERICS_EXACT && numerics != TN_NUMERICS_FAST)
        return tn_fail(TN_ERR_ARGUMENT, "tn_set_numerics: %d is neither TN_NUMERICS_EXACT (0) nor TN_NUMERICS_FAST (1)",
                       (int)numerics);
    atomic_store(&chosen, (int)numerics);
    return TN_OK;
}

tn_numerics tn_get_numerics(void) {
    int now = atomic_load_explicit(&chosen, memory_order_relaxed);
    return (tn_numerics)(now == UNDECIDED ? heed_environment() : now);
}
