/* threads.c — the thread pool of the process, and pinning its workers to processors.
 *
 * Every worker owns one cache line. The caller writes the job's ticket there; the worker spins on it, claims it, runs
 * its part and writes the ticket back as `done`. When the caller has finished its own part, it claims every part that
 * no worker has claimed, so a worker that gets no processor time delays nothing. A worker that has spun for
 * SPIN_SECONDS without work sets a flag and sleeps on a condition variable. Waker and sleeper each write first, by an
 * exchange (QEMU 7.2 lets loads pass sequentially consistent stores of ARM64), then read, so one sees the other.
 *
 * Parts are split by position. For shared work a thread takes its part in chunks and then steals chunks from the
 * others, because processors that other programs also use differ in speed. Workers are started when first needed and
 * never stopped; a smaller pool leaves the later ones asleep. Each worker is pinned to one processor. */
#include <fenv.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/base.h"
#include "base/os.h"

/* Worker `index`, 1 or more, runs as `thread`. Call by the thread that starts workers. */
static void pin_started(int index, pthread_t thread);
/* Before a job: gives workers 1 to `workers` each a processor that neither the calling thread nor another worker has.
 * Takes a few nanoseconds if nothing changes. The caller itself is never moved. Only for the thread that uses the
 * pool. */
static void pin_arrange(int workers);
/* By a worker, after a part that it began at this time: sees whether other programs keep it from its processor. */
static void pin_watch(double begin);
/* In a child of fork: there are no workers. */
static void pin_forget(void);

enum {
    MAX_THREADS = TN_MOST_THREADS,
    STACK_BYTES = 2 << 20, /* the caller runs the same bodies; a fixed size does not depend on the shell's limits */
    SPINS_A_LOOK = 16,     /* pauses between two looks at the clock */
    PIECES = 4 /* of what is left of a part, so much is taken at once: large pieces first, small ones last */
};

/* Longer than the gap between two kernels of one plan, and than recording a small network's step takes: waking a worker
 * costs such a step a tenth. Shorter than what shows up as load. */
static const double SPIN_SECONDS = 100e-6;

/* Data shared by one worker and the caller. The first 64 bytes have everything that a warm job needs, so one cache line
 * travels to the worker and back. */
typedef struct worker_slot {
    _Alignas(64) _Atomic uint64_t ticket; /* counted up by the caller: a part is ready */
    _Atomic uint64_t claimed;             /* the last ticket whose part was begun, by the worker or by the caller */
    _Atomic uint64_t done;                /* set to the ticket by the worker: the part has run */
    tn_parallel_body *body;
    void *ctx;
    _Atomic int64_t next; /* the part: from here on it is untaken … */
    int64_t end;          /* … up to here */
    int index;
    _Atomic bool asleep;
    pthread_mutex_t lock; /* with `wake`: only for sleeping */
    pthread_cond_t wake;
} worker_slot;

/* Everything except the sleeping caller's three members belongs to the thread that holds `busy`. The slots are separate
 * because, without an initial value, they take no space in the library's file. */
static worker_slot pool_slots[MAX_THREADS]; /* slots[0] is the caller's */
static struct {
    _Atomic bool busy;
    int64_t piece; /* of shared work: the smallest one; else 0 */
    int parts;
    int started; /* workers that exist; the caller is not counted */
    int most;    /* workers that the system lets us start */
    _Atomic bool caller_asleep;
    pthread_mutex_t caller_lock;
    pthread_cond_t caller_wake;
} pool = {
    .most = MAX_THREADS - 1,
    .caller_lock = PTHREAD_MUTEX_INITIALIZER,
    .caller_wake = PTHREAD_COND_INITIALIZER,
};

static _Atomic int wanted_threads;                        /* 0 = as many as usable */
static _Thread_local bool inside_body;                    /* this thread runs a part: a nested call stays on it */
static _Thread_local int thread_limit;                    /* 0 = none */
static _Thread_local int awaited;                         /* tn_parallel_awaited */
static _Thread_local const char *expected, *expected_end; /* what this thread reads next, less what it has asked for */

/* ---- size -------------------------------------------------------------------------------------------------------- */

/* Processes that a launcher of MPI started on this machine share its processors, unless it bound each to its own. */
static int share_of_rank(int threads) {
    const char *ranks = tn_env("OMPI_COMM_WORLD_LOCAL_SIZE");
    if (!ranks) ranks = tn_env("MPI_LOCALNRANKS");
    int count = ranks ? atoi(ranks) : 1;
    bool bound = tn_cpu().cores < sysconf(_SC_NPROCESSORS_ONLN);
    if (count <= 1 || bound) return threads;
    return threads > count ? threads / count : 1;
}

static int usable_threads(void) {
    static _Atomic int cached;
    int n = atomic_load_explicit(&cached, memory_order_relaxed);
    if (n > 0) return n;
    n = share_of_rank(tn_cpu().usable_threads);
    if (n > MAX_THREADS) n = MAX_THREADS;
    atomic_store_explicit(&cached, n, memory_order_relaxed);
    return n;
}

tn_status tn_threads_set(int n) {
    if (n < 0 || n > MAX_THREADS)
        return tn_fail(TN_ERR_ARGUMENT, "thread count %d is out of range: use 0 (automatic) to %d", n, MAX_THREADS);
    atomic_store_explicit(&wanted_threads, n, memory_order_relaxed);
    return TN_OK;
}

int tn_threads_limit(int most) {
    int before = thread_limit;
    thread_limit = most;
    return before;
}

int tn_threads(void) {
    int n = atomic_load_explicit(&wanted_threads, memory_order_relaxed);
    if (n == 0) n = usable_threads();
    return thread_limit > 0 && thread_limit < n ? thread_limit : n;
}

/* ---- waiting ----------------------------------------------------------------------------------------------------- */

static inline void pause_briefly(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb"); /* waits longer than yield, which is a no-op on most cores */
#endif
}

void tn_parallel_expect(const void *from, int64_t bytes) {
    expected = from;
    expected_end = expected + bytes;
}

const char *tn_parallel_expected(int64_t bytes) {
    const char *at = expected;
    if (expected_end - expected < bytes) return NULL;
    expected += bytes;
    return at;
}

/* To the second cache: few enough that the wait's end is seen at once. */
static bool ask_for_expected(void) {
    enum { LINE = 64, LINES = 4 };
    if (expected >= expected_end) return false;
    for (int i = 0; i < LINES; i++, expected += LINE)
        __builtin_prefetch(expected, 0, 2);
    return true;
}

/* Spins until *word is at least `value`; false when the time is up. */
static bool spin_until(_Atomic uint64_t *word, uint64_t value, double seconds) {
    if (atomic_load_explicit(word, memory_order_acquire) >= value) return true;
    if (seconds <= 0) return false;
    double deadline = tn_now() + seconds;
    do {
        for (int i = 0; i < SPINS_A_LOOK; i++) {
            if (atomic_load_explicit(word, memory_order_acquire) >= value) return true;
            if (!ask_for_expected()) pause_briefly();
        }
    } while (tn_now() < deadline);
    return false;
}

/* Sleeps until *word is at least `value`. The flag is set before the word is read again, and wake_sleeper reads the
 * flag after the word was written, so one of the two sees the other. */
static void sleep_until(_Atomic uint64_t *word, uint64_t value, _Atomic bool *asleep, pthread_mutex_t *lock,
                        pthread_cond_t *wake) {
    AUTO_LOCK(lock);
    (void)atomic_exchange(asleep, true);
    while (atomic_load(word) < value)
        pthread_cond_wait(wake, lock);
    atomic_store_explicit(asleep, false, memory_order_relaxed);
}

static void wake_sleeper(_Atomic bool *asleep, pthread_mutex_t *lock, pthread_cond_t *wake) {
    if (!atomic_load(asleep)) return;
    AUTO_LOCK(lock);
    pthread_cond_signal(wake);
}

/* Spinning helps only if the awaited thread has its own processor. */
static double spin_seconds(void) { return tn_threads() <= usable_threads() ? SPIN_SECONDS : 0; }

/* ---- workers ----------------------------------------------------------------------------------------------------- */

/* All that is left of a part, or of a shared one a piece. */
static bool take_task(worker_slot *from, int64_t *begin, int64_t *end) {
    int64_t at = atomic_load_explicit(&from->next, memory_order_relaxed), size;
    do {
        size = from->end - at;
        if (size <= 0) return false;
        if (pool.piece) size = tn_min64(size, tn_max64(size / PIECES / pool.piece, 1) * pool.piece);
    } while (!atomic_compare_exchange_weak_explicit(&from->next, &at, at + size, memory_order_relaxed,
                                                    memory_order_relaxed));
    *begin = at;
    *end = at + size;
    return true;
}

static void run_part(worker_slot *slot) {
    int64_t begin, end;
    int others = pool.piece ? pool.parts : 1;
    for (int i = 0; i < others; i++) {
        worker_slot *from = i ? &pool_slots[(slot->index + i) % pool.parts] : slot;
        while (take_task(from, &begin, &end))
            slot->body(slot->ctx, begin, end, slot->index);
    }
}

/* True for the only thread that may run the part with this ticket. Until then the caller may change the slot's data of
 * the part; from then on they stay until the part is done. */
static bool claim(worker_slot *slot, uint64_t ticket) {
    uint64_t before = ticket - 1;
    return atomic_compare_exchange_strong(&slot->claimed, &before, ticket);
}

/* A worker computes with default rounding and subnormal numbers, whatever the thread that started it had set, because
 * results must not depend on the thread that runs a part. */
static void run_part_as_worker(worker_slot *slot) {
    fenv_t own;
    fegetenv(&own);
    fesetenv(FE_DFL_ENV);
    run_part(slot);
    fesetenv(&own);
}

static void *worker_main(void *argument) {
    worker_slot *slot = argument;
    fesetenv(FE_DFL_ENV);
    inside_body = true;
    for (uint64_t ticket = 0;;) {
        if (!spin_until(&slot->ticket, ticket + 1, spin_seconds()))
            sleep_until(&slot->ticket, ticket + 1, &slot->asleep, &slot->lock, &slot->wake);
        ticket = atomic_load_explicit(&slot->ticket, memory_order_acquire);
        if (!claim(slot, ticket)) continue;
        double begin = tn_now();
        run_part(slot);
        (void)atomic_exchange(&slot->done, ticket);
        wake_sleeper(&pool.caller_asleep, &pool.caller_lock, &pool.caller_wake);
        pin_watch(begin);
    }
    return NULL;
}

static void name_thread(TN_UNUSED pthread_t thread, TN_UNUSED int index) {
#if defined(__linux__)
    char name[16];
    snprintf(name, sizeof name, "trunnion-%d", index);
    pthread_setname_np(thread, name);
#else
#endif
}

static int create_thread(worker_slot *slot) {
    pthread_attr_t attributes;
    int error = pthread_attr_init(&attributes);
    if (error != 0) return error;
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    pthread_t thread;
    error = pthread_create(&thread, &attributes, worker_main, slot);
    pthread_attr_destroy(&attributes);
    if (error != 0) return error;
    name_thread(thread, slot->index);
    pin_started(slot->index, thread);
    return 0;
}

static void start_worker(void) {
    worker_slot *slot = &pool_slots[pool.started + 1];
    slot->index = pool.started + 1;
    atomic_store_explicit(&slot->ticket, 0, memory_order_relaxed);
    atomic_store_explicit(&slot->claimed, 0, memory_order_relaxed);
    atomic_store_explicit(&slot->done, 0, memory_order_relaxed);
    atomic_store_explicit(&slot->asleep, false, memory_order_relaxed);
    pthread_mutex_init(&slot->lock, NULL);
    pthread_cond_init(&slot->wake, NULL);
    int error = create_thread(slot);
    if (error == 0) {
        pool.started++;
        return;
    }
    pool.most = pool.started;
    tn_log_line(TN_LOG_NOTICE, "only %d of %d threads started: %s", pool.started + 1, tn_threads(), strerror(error));
}

/* In a child of fork() only the forking thread exists: its first parallel call starts its own workers. Done equals
 * ticket everywhere then, so even a caller that forked inside a body does not wait for the parent's workers. */
static void forget_workers(void) {
    for (int i = 1; i <= pool.started; i++) {
        worker_slot *slot = &pool_slots[i];
        uint64_t ticket = atomic_load_explicit(&slot->ticket, memory_order_relaxed);
        atomic_store_explicit(&slot->claimed, ticket, memory_order_relaxed);
        atomic_store_explicit(&slot->done, ticket, memory_order_relaxed);
    }
    pin_forget();
    pool.started = 0;
    pool.most = MAX_THREADS - 1;
    pthread_mutex_init(&pool.caller_lock, NULL);
    pthread_cond_init(&pool.caller_wake, NULL);
    atomic_store_explicit(&pool.caller_asleep, false, memory_order_relaxed);
    atomic_store_explicit(&pool.busy, false, memory_order_release);
}

static void watch_forks(void) {
#if TN_HAS_PROCESSES
    pthread_atfork(NULL, NULL, forget_workers);
#else
    (void)forget_workers;
#endif
}

/* Workers take no signals: a handler of the host program must not run on a thread that it does not know. */
static void start_workers(int wanted) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
    tn_signals before;
    tn_signals_block(&before);
    while (pool.started < wanted && pool.started < pool.most)
        start_worker();
    tn_signals_restore(&before);
}

/* ---- fork and join ----------------------------------------------------------------------------------------------- */

static void hand_out_task(worker_slot *slot) {
    uint64_t ticket = atomic_load_explicit(&slot->ticket, memory_order_relaxed) + 1;
    (void)atomic_exchange(&slot->ticket, ticket);
    wake_sleeper(&slot->asleep, &slot->lock, &slot->wake);
}

/* Until the part of this slot has run, if need be here. */
static void finish_part(worker_slot *slot) {
    uint64_t ticket = atomic_load_explicit(&slot->ticket, memory_order_relaxed);
    if (claim(slot, ticket)) {
        run_part_as_worker(slot);
        awaited = slot->index; /* not before: what runs here may have calls of its own */
        return;
    }
    if (atomic_load_explicit(&slot->done, memory_order_acquire) >= ticket) return;
    awaited = slot->index;
    if (spin_until(&slot->done, ticket, spin_seconds())) return;
    sleep_until(&slot->done, ticket, &pool.caller_asleep, &pool.caller_lock, &pool.caller_wake);
}

/* Where part `index` of `parts` begins, when `grains` runs of `grain` items are dealt out evenly. */
static int64_t part_begin(int64_t grains, int64_t grain, int64_t n, int64_t index, int64_t parts) {
    int64_t whole = grains / parts;
    int64_t rest = grains % parts; /* the first `rest` parts get one grain more */
    return tn_min64((whole * index + tn_min64(index, rest)) * grain, n);
}

static void run_on_pool(int64_t n, int64_t grain, int64_t grains, int threads, tn_parallel_body *body, void *ctx,
                        bool shared) {
    if (pool.started < threads - 1) start_workers(threads - 1);
    int64_t parts = tn_min64(pool.started + 1, threads);
    pin_arrange((int)parts - 1);
    pool.piece = shared ? grain : 0;
    pool.parts = (int)parts;
    if (shared) grain = 1, grains = n; /* parts as equal as can be: the last piece of each may be smaller */
    for (int i = 0; i < parts; i++) {
        worker_slot *slot = &pool_slots[i];
        slot->body = body;
        slot->ctx = ctx;
        atomic_store_explicit(&slot->next, part_begin(grains, grain, n, i, parts), memory_order_relaxed);
        slot->end = part_begin(grains, grain, n, i + 1, parts);
    }
    for (int i = 1; i < parts; i++)
        hand_out_task(&pool_slots[i]);
    inside_body = true;
    if (shared)
        run_part_as_worker(&pool_slots[0]); /* any thread may take a chunk: all with the same rounding */
    else
        run_part(&pool_slots[0]);
    awaited = 0;
    for (int i = 1; i < parts; i++)
        finish_part(&pool_slots[i]);
    inside_body = false;
}

int tn_parallel_awaited(void) { return awaited; }

static void run_parallel(int64_t n, int64_t grain, tn_parallel_body *body, void *ctx, bool shared) {
    awaited = -1;
    if (n <= 0) return;
    if (grain < 1) grain = 1;
    if (n <= grain || inside_body) {
        body(ctx, 0, n, 0);
        return;
    }
    int64_t grains = (n - 1) / grain + 1;
    int threads = (int)tn_min64(tn_threads(), grains);
    if (threads <= 1 || atomic_exchange_explicit(&pool.busy, true, memory_order_acquire)) {
        body(ctx, 0, n, 0);
        return;
    }
    run_on_pool(n, grain, grains, threads, body, ctx, shared && grains > threads);
    atomic_store_explicit(&pool.busy, false, memory_order_release);
}

void tn_parallel(int64_t n, int64_t grain, tn_parallel_body *body, void *ctx) {
    run_parallel(n, grain, body, ctx, false);
}

void tn_parallel_shared(int64_t n, int64_t grain, tn_parallel_body *body, void *ctx) {
    run_parallel(n, grain, body, ctx, true);
}

/* ==== pinning workers to processors =============================================================================== */
/* A scheduler may start a worker on the processor of the thread that wakes it and leave both there, so two threads run
 * at the speed of one. Therefore each worker is pinned to one processor of the affinity mask, different from the
 * caller's, and moved if the caller runs there. The caller is the host program's thread and is never pinned.
 *
 * Nothing is pinned where that would do harm: with more threads than processors; with a quota below the mask (the
 * machine is shared with programs that we do not see); a worker whose mask was set by somebody else; while other
 * programs need the same processors (the scheduler may then have better choices); with TRUNNION_PIN=0. */

static const double FIRST_PAUSE = 0.1, LAST_PAUSE = 3.2, CALM_SECONDS = 1;

bool tn_pin_may_tie(tn_pin_pause *p, double now, bool crowded) {
    if (now < p->until) return false;
    if (p->until > 0) { /* a pause ends: what was seen in it does not count */
        p->until = 0;
        p->tied_since = now;
        return true;
    }
    if (!crowded) return true;
    bool again = p->length > 0 && now - p->tied_since < CALM_SECONDS;
    p->length = !again ? FIRST_PAUSE : p->length < LAST_PAUSE ? 2 * p->length : LAST_PAUSE;
    p->until = now + p->length;
    return false;
}

#if defined(__linux__)

enum { NOWHERE = -1 };

typedef struct pinned_worker {
    pthread_t thread;
    int cpu;     /* NOWHERE: it may run on the whole mask */
    bool others; /* its mask was set by other code: do not change it */
} pinned_worker;

/* All belongs to the thread that uses the pool. */
static pinned_worker pinned[TN_MOST_THREADS];
static struct {
    bool looked, on;
    cpu_set_t mask;          /* of the thread that started the first worker */
    int cpus;                /* in it */
    int caller_cpu, workers; /* at the last arrangement */
    tn_pin_pause pause;
} pins = {.caller_cpu = NOWHERE};
static _Atomic bool crowded; /* set by workers, cleared by the user of the pool */

static bool wanted(void) {
    if (!tn_env_switch("TRUNNION_PIN", true)) return false;
    tn_cpu_info info = tn_cpu();
    return pins.cpus > 1 && info.usable_threads >= info.cores;
}

static void look(void) {
    pins.looked = true;
    CPU_ZERO(&pins.mask);
    if (sched_getaffinity(0, sizeof pins.mask, &pins.mask) != 0) return; /* more processors than the set has room for */
    pins.cpus = CPU_COUNT(&pins.mask);
    pins.on = wanted();
}

static void pin_started(int index, pthread_t thread) {
    if (!pins.looked) look();
    pinned[index] = (pinned_worker){.thread = thread, .cpu = NOWHERE};
    pins.workers = 0; /* arrange anew */
}

static void pin_forget(void) {
    memset(&pins, 0, sizeof pins);
    pins.caller_cpu = NOWHERE;
    atomic_store_explicit(&crowded, false, memory_order_relaxed);
}

/* Is the worker's mask still what was set here? */
static bool still_ours(const pinned_worker *w) {
    cpu_set_t now;
    if (pthread_getaffinity_np(w->thread, sizeof now, &now) != 0) return false;
    if (w->cpu == NOWHERE) return CPU_EQUAL(&now, &pins.mask);
    return CPU_COUNT(&now) == 1 && CPU_ISSET((size_t)w->cpu, &now);
}

static void move(pinned_worker *w, int cpu) {
    if (w->others || w->cpu == cpu) return;
    w->others = !still_ours(w);
    if (w->others) return;
    cpu_set_t set = pins.mask;
    if (cpu != NOWHERE) {
        CPU_ZERO(&set);
        CPU_SET((size_t)cpu, &set);
    }
    w->others = pthread_setaffinity_np(w->thread, sizeof set, &set) != 0; /* the processor may be gone by now */
    w->cpu = cpu;
}

static int take_free(cpu_set_t *unused) {
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET((size_t)cpu, unused)) continue;
        CPU_CLR((size_t)cpu, unused);
        return cpu;
    }
    return NOWHERE;
}

/* Workers without a conflict stay; the others move to free processors. */
static void spread_pin(int workers, int caller_cpu) {
    cpu_set_t unused = pins.mask;
    bool stays[TN_MOST_THREADS] = {false};
    if (caller_cpu >= 0 && caller_cpu < CPU_SETSIZE) CPU_CLR((size_t)caller_cpu, &unused);
    for (int i = 1; i <= workers; i++) {
        int cpu = pinned[i].cpu;
        stays[i] = cpu != NOWHERE && CPU_ISSET((size_t)cpu, &unused);
        if (stays[i]) CPU_CLR((size_t)cpu, &unused);
    }
    for (int i = 1; i <= workers; i++)
        if (!stays[i]) move(&pinned[i], take_free(&unused));
}

static void untie(int workers) {
    for (int i = 1; i <= workers; i++)
        move(&pinned[i], NOWHERE);
}

/* Does not slow down a warm job: the time is read only around a pause. */
static bool may_tie(void) {
    bool now_crowded = atomic_load_explicit(&crowded, memory_order_relaxed);
    if (!now_crowded && pins.pause.until <= 0) return true;
    atomic_store_explicit(&crowded, false, memory_order_relaxed);
    return tn_pin_may_tie(&pins.pause, tn_now(), now_crowded);
}

static void pin_arrange(int workers) {
    if (!pins.on) return;
    int caller_cpu = workers < pins.cpus && may_tie() ? sched_getcpu() : NOWHERE;
    if (caller_cpu == pins.caller_cpu && workers == pins.workers) return;
    pins.caller_cpu = caller_cpu;
    pins.workers = workers;
    if (caller_cpu == NOWHERE)
        untie(workers);
    else
        spread_pin(workers, caller_cpu);
}

static double processor_time(void) {
    struct timespec t;
    return clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t) == 0 ? (double)t.tv_sec + 1e-9 * (double)t.tv_nsec : 0;
}

/* A worker looks every WATCH_SECONDS how much of the time went to others. With half a processor it still helps. */
static const double WATCH_SECONDS = 0.03, LOST_SHARE = 0.6;

static void pin_watch(double begin) {
    static _Thread_local double since, busy, used_before;
    double now = tn_now();
    busy += now - begin;
    if (now - since < WATCH_SECONDS) return;
    double used = processor_time(); /* waiting for the next part is in it as well: what is lost is rather more */
    double lost = busy - (used - used_before);
    if (since > 0 && lost > LOST_SHARE * (now - since)) atomic_store_explicit(&crowded, true, memory_order_relaxed);
    since = now;
    busy = 0;
    used_before = used;
}

#else

static void pin_started(TN_UNUSED int index, TN_UNUSED pthread_t thread) {}

static void pin_arrange(int workers) { (void)workers; }

static void pin_watch(double begin) { (void)begin; }

static void pin_forget(void) {}

#endif
