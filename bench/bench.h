/* bench.h — what the programs of this folder time with: the median and the best of some samples, the threads asked for,
 * the end of a line. The limits beside them are those of `trunnion bench` (cli/bench/bench_limits.h). */
#ifndef TRUNNION_BENCH_H
#define TRUNNION_BENCH_H

#include <stdio.h>
#include <stdlib.h>

#include "base/base.h"
#include "cli/bench/bench_limits.h"

/* Seconds. */
typedef struct times {
    double median, best;
} times;

static inline times sorted(double *samples, int n) {
    double median = bench_median(samples, n);
    return (times){median, samples[0]};
}

enum { BENCH_SAMPLES = 21 };

/* Of run(ctx), which ran before. Short runs are timed many at once, so that a sample takes `sample_seconds`. */
static inline times measure(void (*run)(void *ctx), void *ctx, double sample_seconds) {
    double start = cli_now(), samples[BENCH_SAMPLES];
    run(ctx);
    double once = cli_now() - start;
    int repeats = once < sample_seconds ? (int)(sample_seconds / (once + 1e-8)) + 1 : 1;
    for (int i = 0; i < BENCH_SAMPLES; i++) {
        start = cli_now();
        for (int r = 0; r < repeats; r++)
            run(ctx);
        samples[i] = (cli_now() - start) / repeats;
    }
    return sorted(samples, BENCH_SAMPLES);
}

/* Takes as many threads as the first argument says, or all that may be used. 0: it cannot, which has been said. */
static inline int take_threads(int argc, char **argv) {
    if (tn_threads_set(argc > 1 ? atoi(argv[1]) : 0) == TN_OK) return tn_threads();
    fprintf(stderr, "%s\n", tn_error());
    return 0;
}

/* The end of a shape's line: `done` and `limit` are 10⁹ operations, and those a second. */
static inline void print_rate(times t, double done, double limit) {
    printf(" %12.2f us %8.1f GFLOP/s %6.2f %6.2f\n", t.median * 1e6, done / t.median, done / t.median / limit,
           done / t.best / limit);
}

#endif
