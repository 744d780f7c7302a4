/* bench_limits.c — what the processor could do: fused multiply-adds without memory, and reading memory.
 *
 * Each probe runs on as many threads as the works do and is repeated; the best one counts, as it is a limit. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

enum { REPEATS = 40, STEPS = 40000, CHAINS = 16, MOST_THREADS = 256 };
static const size_t READ_BYTES = (size_t)256 << 20; /* beyond any cache */

static volatile float seed, keep; /* volatile: so that no two chains are known to be equal */

/* ---- fused multiply-adds ----------------------------------------------------------------------------------------- */

typedef double probe(void); /* operations done */

#define FMA_PROBE(name, target_name, vector, fma, chains)                                         \
    __attribute__((target(target_name))) static double name(void) {                               \
        vector sum[chains], x = (vector){0} + seed, y = (vector){0} + seed;                       \
        _Pragma("GCC unroll 16") for (int i = 0; i < chains; i++) sum[i] = (vector){0} + seed;    \
        for (int step = 0; step < STEPS; step++) {                                                \
            _Pragma("GCC unroll 16") for (int i = 0; i < chains; i++) sum[i] = fma(x, y, sum[i]); \
        }                                                                                         \
        _Pragma("GCC unroll 16") for (int i = 0; i < chains; i++) keep = sum[i][0];               \
        return 2.0 * (double)(sizeof(vector) / sizeof(float)) * chains * STEPS;                   \
    }

#if defined(__x86_64__)
#include <immintrin.h>
FMA_PROBE(probe_avx512, "avx512f", __m512, _mm512_fmadd_ps, 16)
FMA_PROBE(probe_avx2, "avx2,fma", __m256, _mm256_fmadd_ps, 12)
#endif

static double probe_base(void) {
    float sum[CHAINS] = {0}, x = seed;
    for (int step = 0; step < STEPS / 10; step++)
        for (int i = 0; i < CHAINS; i++)
            sum[i] = x * x + sum[i];
    for (int i = 0; i < CHAINS; i++)
        keep = sum[i];
    return 2.0 * CHAINS * STEPS / 10;
}

static probe *choose_probe(void) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) return probe_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return probe_avx2;
#endif
    return probe_base;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

/* Thread-local, as every thread reads memory of its own. */
static _Thread_local const uint64_t *read_from;

static double probe_read(void) {
    size_t count = READ_BYTES / sizeof *read_from;
    uint64_t sum[8] = {0};
    for (size_t i = 0; i + 8 <= count; i += 8)
        for (size_t k = 0; k < 8; k++)
            sum[k] ^= read_from[i + k];
    for (size_t k = 0; k < 8; k++)
        keep = (float)sum[k];
    return (double)READ_BYTES;
}

/* ---- all threads at once ----------------------------------------------------------------------------------------- */

typedef struct crew {
    probe *probe;
    pthread_mutex_t gate; /* held until all threads are there */
    pthread_barrier_t barrier;
    double work, best; /* of one thread; seconds of the fastest round, kept by the first thread */
    bool incomplete;   /* a thread could not be started: all go home */
    _Atomic bool failed;
} crew;

typedef struct member {
    crew *crew;
    bool first;
} member;

static void *work_along(void *arg) {
    member *m = arg;
    crew *c = m->crew;
    pthread_mutex_lock(&c->gate);
    bool incomplete = c->incomplete;
    pthread_mutex_unlock(&c->gate);
    if (incomplete) return NULL;
    void *memory = c->probe == probe_read ? malloc(READ_BYTES) : NULL;
    if (memory) memset(memory, 1, READ_BYTES);
    if (c->probe == probe_read && !memory) c->failed = true;
    read_from = memory;
    int rounds = memory ? REPEATS / 4 : REPEATS;
    for (int i = 0; i < rounds; i++) {
        pthread_barrier_wait(&c->barrier);
        double begun = cli_now(), work = c->failed ? 0 : c->probe();
        pthread_barrier_wait(&c->barrier);
        double seconds = cli_now() - begun;
        if (!m->first) continue;
        c->work = work;
        if (seconds < c->best) c->best = seconds;
    }
    free(memory);
    return NULL;
}

/* Units of work a second of all threads together. */
static double measure(probe *p, int threads) {
    pthread_t others[MOST_THREADS];
    if (threads < 1 || threads > MOST_THREADS) return 0;
    crew c = {.probe = p, .gate = PTHREAD_MUTEX_INITIALIZER, .best = 1e9};
    member first = {&c, true}, rest = {&c, false};
    if (pthread_barrier_init(&c.barrier, NULL, (unsigned)threads) != 0) return 0;
    int started = 0;
    pthread_mutex_lock(&c.gate);
    while (started < threads - 1 && pthread_create(&others[started], NULL, work_along, &rest) == 0)
        started++;
    c.incomplete = started < threads - 1;
    pthread_mutex_unlock(&c.gate);
    work_along(&first);
    for (int i = 0; i < started; i++)
        pthread_join(others[i], NULL);
    pthread_barrier_destroy(&c.barrier);
    return c.incomplete || c.failed ? 0 : c.work * threads / c.best;
}

double bench_fma_limit(int threads) { return measure(choose_probe(), threads); }
double bench_read_limit(int threads) { return measure(probe_read, threads); }
