/* clock.h — the clock that the command and the benchmark programs measure with. */
#ifndef TRUNNION_CLI_CLOCK_H
#define TRUNNION_CLI_CLOCK_H

#include <time.h>

/* Seconds since some moment; never goes back. */
static inline double cli_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#endif
