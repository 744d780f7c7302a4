/* bench.h — what the programs of this folder time with: the median and the best of some samples. The limits beside them
 * are those of `trunnion bench` (cli/bench_limits.h). */
#ifndef TRUNNION_BENCH_H
#define TRUNNION_BENCH_H

#include "bench_limits.h"

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
    double start = bench_now(), samples[BENCH_SAMPLES];
    run(ctx);
    double once = bench_now() - start;
    int repeats = once < sample_seconds ? (int)(sample_seconds / (once + 1e-8)) + 1 : 1;
    for (int i = 0; i < BENCH_SAMPLES; i++) {
        start = bench_now();
        for (int r = 0; r < repeats; r++)
            run(ctx);
        samples[i] = (bench_now() - start) / repeats;
    }
    return sorted(samples, BENCH_SAMPLES);
}

#endif
