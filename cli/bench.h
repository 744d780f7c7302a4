/* bench.h — `trunnion bench`: works to be timed (bench_work.c), and the limits beside them (bench_limits.c). */
#ifndef TRUNNION_CLI_BENCH_H
#define TRUNNION_CLI_BENCH_H

#include "cli.h"
#include "trunnion/trunnion.h"

/* One work. run does it once and waits for its end; what begin made it ready with, end frees (also after a failure).
 * Functions return a status, the words are tn_error's. */
typedef struct bench_work {
    const char *name;
    int64_t size[2]; /* what begin needs to know */
    tn_status (*begin)(const struct bench_work *w, void **self);
    tn_status (*run)(void *self);
    void (*end)(void *self); /* NULL is fine */
    double flops, bytes;     /* of one run, for the part of the limit that it reaches; 0: there is no such limit */
} bench_work;

extern const bench_work bench_works[];
extern const int bench_work_count;

/* What `threads` threads can do at most, measured now: additions and multiplications of fused multiply-adds in f32 that
 * touch no memory; bytes that are read from memory. A second. 0 when memory or threads are lacking. */
double bench_fma_limit(int threads);
double bench_read_limit(int threads);

#endif
