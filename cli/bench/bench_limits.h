/* bench_limits.h — what `trunnion bench` and the programs in bench/ measure with: a clock, a median, and what the
 * processor can do at most. Plain C, without the library. */
#ifndef TRUNNION_CLI_BENCH_LIMITS_H
#define TRUNNION_CLI_BENCH_LIMITS_H

#include <stdbool.h>
#include <stdint.h>

#include "cli/clock.h"

int bench_ascending(const void *a, const void *b); /* for qsort over double */
double bench_median(double *x, int n);             /* sorts x: the best stands first then */

/* What `threads` threads can do at most, measured now: additions and multiplications a second of fused multiply-adds in
 * f32, or of dot products of 8-bit integers, that touch no memory; and bytes a second when all together read that many
 * bytes again and again, which caches hold where they can (at most 512 MiB are taken). 0 when memory or threads are
 * lacking. */
double bench_fma_limit(int threads);
double bench_dot_limit(int threads);
double bench_read_limit(int threads, double bytes);

/* The mean of all threads' fused multiply-adds by the best of as many single threads: 1 on a machine that does nothing
 * else. 0 when it cannot be measured. */
double bench_quiet(int threads);

#endif
