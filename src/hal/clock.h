/* clock.h — times of a device whose counter has fewer than 64 bits, and so begins anew. */
#ifndef TN_HAL_CLOCK_H
#define TN_HAL_CLOCK_H

#include "base/base.h"

/* A counter's `bits` low bits as a place on a clock that goes on: within half of a round of the latest one, *latest,
 * which begins with 0. One thread at a time. */
static inline uint64_t tn_clock_place(uint64_t *latest, uint64_t ticks, unsigned bits) {
    unsigned unused = 64 - bits;
    int64_t step = (int64_t)((ticks - *latest) << unused) >> unused;
    uint64_t at = *latest + (uint64_t)step;
    if (step > 0) *latest = at;
    return at;
}

#endif
