/* pin.c — a processor of its own for every worker of the pool.
 *
 * A scheduler may start a worker on the processor of the thread that wakes it, and leave both there; two threads then
 * compute at the speed of one. So each worker is tied to one processor of the affinity mask, away from the caller's,
 * and moved on when the caller turns up there. The caller is the host program's thread and stays free.
 *
 * Nothing is tied where that would do harm: with more threads than processors; under a quota below the mask (the
 * machine is shared with programs that we do not see); a worker whose mask somebody else has set; while other programs
 * want the same processors (the scheduler may then have better places); with TRUNNION_PIN=0. */
#include "base/pin.h"

#include <sched.h>
#include <string.h>
#include <time.h>

#include "base/base.h"

/* A worker looks every WATCH_SECONDS how much of the time went to others. With half a processor it still helps. */
static const double WATCH_SECONDS = 0.03, LOST_SHARE = 0.6;
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
    bool others; /* its mask was set by somebody else: left alone */
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
static _Atomic bool crowded; /* set by workers, taken back by who uses the pool */

static bool wanted(void) {
    const char *setting = tn_env("TRUNNION_PIN");
    if (setting && !strcmp(setting, "0")) return false;
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

void tn_pin_started(int index, pthread_t thread) {
    if (!pins.looked) look();
    pinned[index] = (pinned_worker){.thread = thread, .cpu = NOWHERE};
    pins.workers = 0; /* arrange anew */
}

void tn_pin_forget(void) {
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

/* Workers that stand well stay; those in somebody's way move to what is left over. */
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

/* Not in the way of a warm job: the time is asked for only around a pause. */
static bool may_tie(void) {
    bool now_crowded = atomic_load_explicit(&crowded, memory_order_relaxed);
    if (!now_crowded && pins.pause.until <= 0) return true;
    atomic_store_explicit(&crowded, false, memory_order_relaxed);
    return tn_pin_may_tie(&pins.pause, tn_now(), now_crowded);
}

void tn_pin_arrange(int workers) {
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

void tn_pin_watch(double begin) {
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

void tn_pin_started(int index, pthread_t thread) {
    (void)index;
    (void)thread;
}

void tn_pin_arrange(int workers) { (void)workers; }

void tn_pin_watch(double begin) { (void)begin; }

void tn_pin_forget(void) {}

#endif
