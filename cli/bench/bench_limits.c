/* bench_limits.c — what the processor could do: fused multiply-adds and products of integers without memory, and
 * reading memory.
 *
 * Each probe runs on as many threads as the works do and is repeated; the best one counts, as it is a limit. Its
 * threads are tied to processors as the library's are, since a system may leave two of them on one. */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "cli/bench/bench_limits.h"

enum {
    REPEATS = 200,
    READ_REPEATS = 10,
    QUIET_ROUNDS = 5,
    QUIET_PROBES = 40,
    STEPS = 40000,
    DOT_STEPS = 20000,
    CHAINS = 16,
    MOST_THREADS = 256
};
static const double LEAST_READ = 1 << 20, MOST_READ = (double)((int64_t)1 << 29);

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

/* ---- products of small integers --------------------------------------------------------------------------------- */

static volatile int dot_seed, dot_keep;

#if defined(__x86_64__)
__attribute__((target("avx512f,avx512bw,avx512vnni"))) static double dot_avx512(void) {
    __m512i sum[16], x = _mm512_set1_epi32(dot_seed), y = _mm512_set1_epi32(dot_seed);
    _Pragma("GCC unroll 16") for (int i = 0; i < 16; i++) sum[i] = _mm512_set1_epi32(dot_seed);
    for (int step = 0; step < DOT_STEPS; step++) {
        _Pragma("GCC unroll 16") for (int i = 0; i < 16; i++) sum[i] = _mm512_dpbusd_epi32(sum[i], x, y);
    }
    for (int i = 0; i < 16; i++)
        dot_keep = _mm512_reduce_add_epi32(sum[i]);
    return 2.0 * 64 * 16 * DOT_STEPS;
}

__attribute__((target("avx2"))) static double dot_avx2(void) {
    __m256i sum[10], x = _mm256_set1_epi32(dot_seed), y = _mm256_set1_epi32(dot_seed), one = _mm256_set1_epi16(1);
    _Pragma("GCC unroll 10") for (int i = 0; i < 10; i++) sum[i] = _mm256_set1_epi32(dot_seed);
    for (int step = 0; step < DOT_STEPS; step++) {
        _Pragma("GCC unroll 10") for (int i = 0; i < 10; i++) {
            sum[i] = _mm256_add_epi32(sum[i], _mm256_madd_epi16(_mm256_maddubs_epi16(x, sum[i]), one));
        }
    }
    for (int i = 0; i < 10; i++)
        dot_keep = _mm256_extract_epi32(_mm256_add_epi32(sum[i], y), 0);
    return 2.0 * 32 * 10 * DOT_STEPS;
}
#endif

static double dot_base(void) {
    int sum[16] = {0}, x = dot_seed;
    for (int step = 0; step < DOT_STEPS; step++) {
        for (int i = 0; i < 16; i++)
            sum[i] += x * (sum[i] ^ i);
    }
    for (int i = 0; i < 16; i++)
        dot_keep = sum[i];
    return 2.0 * 16 * DOT_STEPS;
}

static probe *choose_dot(void) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512vnni")) return dot_avx512;
    if (__builtin_cpu_supports("avx2")) return dot_avx2;
#endif
    return dot_base;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

/* Thread-local, as every thread reads memory of its own. */
static _Thread_local const char *read_from;
static size_t read_bytes; /* of each thread: a multiple of STEP_BYTES */

typedef uint64_t line __attribute__((vector_size(64)));
enum { STREAMS = 4, STEP_BYTES = STREAMS * sizeof(line), AHEAD = 4096 };

/* In four streams at once, or in one with a prefetch a page ahead: which one is faster depends on where the memory is
 * cached. */
#define READ_PROBES(suffix, options)                                                       \
    options static double read_streams##suffix(void) {                                     \
        line sum[STREAMS] = {0};                                                           \
        size_t quarter = read_bytes / STREAMS;                                             \
        for (size_t i = 0; i < quarter; i += sizeof(line))                                 \
            for (size_t k = 0; k < STREAMS; k++)                                           \
                sum[k] ^= *(const line *)(const void *)(read_from + k * quarter + i);      \
        keep = (float)(sum[0] ^ sum[1] ^ sum[2] ^ sum[3])[0];                              \
        return (double)read_bytes;                                                         \
    }                                                                                      \
    options static double read_ahead##suffix(void) {                                       \
        line sum[STREAMS] = {0};                                                           \
        for (size_t i = 0; i < read_bytes; i += STEP_BYTES)                                \
            for (size_t k = 0; k < STREAMS; k++) {                                         \
                __builtin_prefetch(read_from + i + k * sizeof(line) + AHEAD);              \
                sum[k] ^= *(const line *)(const void *)(read_from + i + k * sizeof(line)); \
            }                                                                              \
        keep = (float)(sum[0] ^ sum[1] ^ sum[2] ^ sum[3])[0];                              \
        return (double)read_bytes;                                                         \
    }

READ_PROBES(, )
#if defined(__x86_64__)
READ_PROBES(_avx512, __attribute__((target("avx512f"))))
READ_PROBES(_avx2, __attribute__((target("avx2"))))
#endif

static void choose_readers(probe *readers[2]) {
    readers[0] = read_streams, readers[1] = read_ahead;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f"))
        readers[0] = read_streams_avx512, readers[1] = read_ahead_avx512;
    else if (__builtin_cpu_supports("avx2"))
        readers[0] = read_streams_avx2, readers[1] = read_ahead_avx2;
#endif
}

/* Memory that is written once, in large pages where the system has some; it lies inside *block, which is freed. */
static void *memory_to_read(size_t bytes, void **block) {
    enum { LARGE_PAGE = 2 << 20 };
    *block = malloc(bytes + LARGE_PAGE);
    if (!*block) return NULL;
    char *memory = (char *)*block + (LARGE_PAGE - (uintptr_t)*block % LARGE_PAGE);
#if defined(MADV_HUGEPAGE) && CLI_HAS_PROCESSES
    (void)madvise(memory, bytes, MADV_HUGEPAGE);
#endif
    return memset(memory, 1, bytes);
}

/* ---- all threads at once ----------------------------------------------------------------------------------------- */

typedef struct crew {
    probe *probe;
    pthread_mutex_t gate;         /* held until all threads are there */
    int threads;                  /* that meet: */
    _Atomic int arrived, meeting; /* how many are there; how often all have been */
    double work, best, all;       /* of one thread; seconds of the fastest round and of all, kept by the first thread */
    int rounds, probes;           /* rounds of so many probes: to wait for each other takes some microseconds, too */
    bool reads;                   /* each thread has memory of its own */
    bool incomplete;              /* a thread could not be started: all go home */
    _Atomic bool failed;
} crew;

typedef struct member {
    crew *crew;
    int index;
} member;

/* Ties this thread to the processor `index` of those that it may use; a system that refuses does no harm. */
static void tie(int index) {
#if defined(__linux__)
    cpu_set_t usable, one;
    if (sched_getaffinity(0, sizeof usable, &usable) != 0) return;
    for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &usable) || index-- > 0) continue;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        (void)sched_setaffinity(0, sizeof one, &one);
        return;
    }
#else
    (void)index;
#endif
}

/* Waits until all threads are here. A loop instead of pthread_barrier_wait, which macOS lacks. */
static void meet(crew *c) {
    int meeting = c->meeting;
    if (++c->arrived == c->threads) {
        c->arrived = 0;
        c->meeting++;
        return;
    }
    while (c->meeting == meeting)
        sched_yield();
}

static void *work_along(void *arg) {
    member *m = arg;
    crew *c = m->crew;
    pthread_mutex_lock(&c->gate);
    bool incomplete = c->incomplete;
    pthread_mutex_unlock(&c->gate);
    if (incomplete) return NULL;
    tie(m->index);
    void *block = NULL, *memory = c->reads ? memory_to_read(read_bytes, &block) : NULL;
    if (c->reads && !memory) c->failed = true;
    read_from = memory;
    for (int i = 0; i < c->rounds; i++) {
        meet(c);
        double begun = cli_now(), work = 0;
        for (int k = 0; k < c->probes && !c->failed; k++)
            work += c->probe();
        meet(c);
        double seconds = cli_now() - begun;
        if (m->index > 0) continue;
        c->work = work;
        c->all += seconds;
        if (seconds < c->best) c->best = seconds;
    }
    free(block);
    return NULL;
}

/* Runs a probe on this many threads, all of them new ones, so that the caller stays where it is. false: it cannot. */
static bool measure_limit(crew *c, int threads) {
    pthread_t thread[MOST_THREADS];
    member members[MOST_THREADS];
    if (threads < 1 || threads > MOST_THREADS) return false;
    c->threads = threads;
    pthread_mutex_init(&c->gate, NULL);
    int started = 0;
    pthread_mutex_lock(&c->gate);
    for (; started < threads; started++) {
        members[started] = (member){c, started};
        if (pthread_create(&thread[started], NULL, work_along, &members[started]) != 0) break;
    }
    c->incomplete = started < threads;
    pthread_mutex_unlock(&c->gate);
    for (int i = 0; i < started; i++)
        pthread_join(thread[i], NULL);
    pthread_mutex_destroy(&c->gate);
    return !c->incomplete && !c->failed && c->work > 0;
}

double bench_fma_limit(int threads) {
    crew c = {.probe = choose_probe(), .rounds = REPEATS, .probes = 1, .best = 1e9};
    return measure_limit(&c, threads) ? c.work * threads / c.best : 0;
}

double bench_dot_limit(int threads) {
    crew c = {.probe = choose_dot(), .rounds = REPEATS, .probes = 1, .best = 1e9};
    return measure_limit(&c, threads) ? c.work * threads / c.best : 0;
}

double bench_read_limit(int threads, double bytes) {
    probe *readers[2];
    double most = bytes > MOST_READ ? MOST_READ : bytes, limit = 0;
    choose_readers(readers);
    read_bytes = (size_t)(most > LEAST_READ ? most : LEAST_READ) / (size_t)threads & ~(size_t)(STEP_BYTES - 1);
    for (int i = 0; i < 2; i++) {
        crew c = {.probe = readers[i], .rounds = READ_REPEATS, .probes = 1, .best = 1e9, .reads = true};
        if (measure_limit(&c, threads) && c.work * threads / c.best > limit) limit = c.work * threads / c.best;
    }
    return limit;
}

double bench_quiet(int threads) {
    crew alone = {.probe = choose_probe(), .rounds = REPEATS, .probes = 1, .best = 1e9};
    crew all = {.probe = alone.probe, .rounds = QUIET_ROUNDS, .probes = QUIET_PROBES, .best = 1e9};
    if (!measure_limit(&alone, 1) || !measure_limit(&all, threads)) return 0;
    return all.work * all.rounds / all.all / (alone.work / alone.best);
}

/* ---- samples ----------------------------------------------------------------------------------------------------- */

int bench_ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_median(double *x, int n) {
    qsort(x, (size_t)n, sizeof *x, bench_ascending);
    return n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}
