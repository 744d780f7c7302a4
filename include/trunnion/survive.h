/* survive.h — runs that outlive their device: if it is lost, out of memory or hangs, they continue on the next one.
 *
 * The library keeps a copy of the run's state (variables, optimizer state, random generator) in host memory, renewed
 * every few steps. If the device fails, the run is built again on the next device, filled from the copy, and the steps
 * since then are computed again. With exact kernels (docs/numerics.md) and devices that round alike, the results have
 * the same bits as those of an undisturbed run.
 *
 *     static tn_status begin(void *ctx, tn_device *device, void **self) { ... builds model and optimizer ... }
 *     static tn_status step(void *self, int64_t step, int64_t *made) { ... tn_minimize ... }
 *     static tn_status state(void *self, tn_checkpoint *c) { c->model = ...; c->optimizer = ...; return TN_OK; }
 *     static void end(void *self) { ... }
 *
 *     tn_survivor work = TN_SURVIVOR_DEFAULTS;
 *     work.begin = begin, work.step = step, work.state = state, work.end = end;
 *     tn_survive_options o = TN_SURVIVE_DEFAULTS;
 *     o.last = 1000;
 *     if (tn_survive(&work, &data, (const char *[]){"cuda", "cpu"}, 2, &o, NULL) != TN_OK) ...
 *
 * Threads: the functions of the work are called one after the other on a thread of their own while the caller waits, or
 * on the caller's thread if there is neither a further device nor a time limit. Create everything that they compute
 * with in `begin`. */
#ifndef TRUNNION_SURVIVE_H
#define TRUNNION_SURVIVE_H

#include "trunnion/device.h"
#include "trunnion/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The work, as functions. Each returns TN_OK, or the status of what failed with its text as tn_error().
 * TN_ERR_LOST, TN_ERR_DEVICE and TN_ERR_MEMORY make the run move on; other errors end it. */
typedef struct tn_survivor {
    size_t struct_size;
    /* Builds everything on `device`, which is current; *self is passed to the other functions. */
    tn_status (*begin)(void *ctx, tn_device *device, void **self);
    /* Computes from step `step` on, and waits for it (tn_item, tn_eval and tn_device_synchronize). *made: the number of
     * steps made; it is 1 before the call. May be called again for the same steps, so it writes only to *self. */
    tn_status (*step)(void *self, int64_t step, int64_t *made);
    /* Called once after each step, in order, never for a repeated one: for output and logs. `step` is the number of
     * steps made. *stop: set to true to end the run early. May be NULL. */
    tn_status (*stepped)(void *ctx, void *self, int64_t step, bool *stop);
    /* Names what the copy holds: model, optimizer, extras. They must be the same after each `begin`. */
    tn_status (*state)(void *self, tn_checkpoint *c);
    tn_status (*restored)(void *self); /* called after the state was filled from the copy; may be NULL */
    /* Called after the last step: evaluates and reports. If it fails because of the device, the run moves on, too. May
     * be NULL. */
    tn_status (*finish)(void *ctx, void *self);
    void (*end)(void *self); /* frees *self, also after a failed `begin`; self may be NULL */
} tn_survivor;
#define TN_SURVIVOR_DEFAULTS \
    { TN_OPTIONS_SIZE(tn_survivor, end), NULL, NULL, NULL, NULL, NULL, NULL, NULL }

typedef struct tn_survive_options {
    size_t struct_size;
    int64_t first, last; /* the steps first … last - 1 are made; default 0, 0 */
    /* Steps between two copies of the state: at most this many are computed again. Default 0: as many as are needed for
     * copies to take at most `overhead` of the run's time, estimated from the fastest step and the last copy. */
    int64_t every;
    double overhead; /* 0 < overhead ≤ 1; default 0.02 */
    /* Seconds after which a call of `begin` or `step`, or a copy, counts as hanging; kernels are compiled in this time,
     * too. The thread that hangs is left behind with everything it holds, and its device must not be used any more.
     * Default 0: no limit. */
    double time_limit;
    /* TN_FALLBACK_WARN prints a line on standard error for each device that failed, TN_FALLBACK_SILENT does not.
     * TN_FALLBACK_STRICT makes the first failure final, and no copies are made. Default TN_FALLBACK_WARN. */
    tn_fallback fallback;
    const tn_device_options *device; /* for opening devices; default NULL: the defaults */
} tn_survive_options;
#define TN_SURVIVE_DEFAULTS \
    { TN_OPTIONS_SIZE(tn_survive_options, device), 0, 0, 0, 0.02, 0, TN_FALLBACK_WARN, NULL }

/* A device that failed. */
typedef struct tn_survive_failure {
    char id[32]; /* "cuda:0" */
    tn_status status;
    char reason[TN_REASON_BYTES];
    int64_t step, resumed; /* steps made when it failed; steps made at the copy from which the next device continued */
} tn_survive_failure;

typedef struct tn_survive_report {
    size_t struct_size; /* set by the caller to sizeof(tn_survive_report) */
    tn_survive_failure failures[8];
    int failure_count;   /* all; the first 8 are described */
    int64_t recomputed;  /* steps that were made again */
    int64_t every;       /* steps between two copies, at last */
    int64_t copies;      /* made of the state */
    double copy_seconds; /* for all of them */
    char ran[32];        /* id of the device that finished; "" if none did */
} tn_survive_report;

/* Runs the work from options->first to options->last.
 *   preferences: `count` names as in tn_device_open. After them, every other device of the list that is usable and no
 *     software is tried, and then the cpu; a device that failed is not tried again. No copies are made on the cpu,
 *     because nothing comes after it. count 0: "auto" first.
 *   report: what happened, also on failure; may be NULL. Filled at the end and before each call of `finish`.
 * The copy takes the bytes of the state twice in host memory.
 * Errors: those of the work's functions; that of the last device if all failed; TN_ERR_ARGUMENT for missing functions
 * and options out of range; TN_ERR_UNAVAILABLE if no thread can be started. */
TN_API tn_status tn_survive(const tn_survivor *work, void *ctx, const char *const *preferences, int count,
                            const tn_survive_options *options, tn_survive_report *report);

#ifdef __cplusplus
}
#endif
#endif
