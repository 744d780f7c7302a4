/* pin.c — a processor of its own for every worker of the pool.
 *
 * A scheduler may start a worker on the processor of the thread that wakes it, and leave both there; two threads then
 * compute at the speed of one. So each worker is tied to one processor of the affinity mask, away from the caller's, and
 * moved on when the caller turns up there. The caller is the host program's thread and stays free.
 *
 * Nothing is tied where that would do harm: with more threads than processors; under a quota below the mask (the machine
 * is shared with programs that we do not see); a worker whose mask somebody else has set; with TRUNNION_PIN=0. */
#include "base/pin.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"

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
    cpu_set_t mask; /* of the thread that started the first worker */
    int cpus;       /* in it */
    int caller_cpu, workers; /* at the last arrangement */
} pins = {.caller_cpu = NOWHERE};

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
static void spread(int workers, int caller_cpu) {
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

void tn_pin_arrange(int workers) {
    if (!pins.on) return;
    int caller_cpu = sched_getcpu();
    if (caller_cpu == pins.caller_cpu && workers == pins.workers) return;
    pins.caller_cpu = caller_cpu;
    pins.workers = workers;
    if (workers < pins.cpus) {
        spread(workers, caller_cpu);
        return;
    }
    for (int i = 1; i <= workers; i++)
        move(&pinned[i], NOWHERE);
}

#else

void tn_pin_started(int index, pthread_t thread) {
    (void)index;
    (void)thread;
}

void tn_pin_arrange(int workers) { (void)workers; }

void tn_pin_forget(void) {}

#endif
