/* tune.h — the cache of the fastest measured variants of matrix products on this machine.
 *
 * A matrix product can be computed in several ways (operands packed or in place, number of threads, a selected
 * library); by default, rules choose one by size. Tuning measures all of them in a child process with a time limit, and
 * caches the fastest by kind, layout, size (sizes within an eighth of each other share an entry) and number of threads.
 * Numerics do
 * not change: own variants have the same bits; libraries take part only with tn_set_library("auto") or
 * TRUNNION_LIBRARY.
 *
 * On other devices the tile of an f32 product is tuned, by device and driver version, with the same bits. This is
 * measured in the process that computes, because a process with an active driver cannot be forked; `trunnion tune
 * --device` uses a separate process. A variant during whose measurement a process died is left to the rules.
 *
 * The file is tune.json in the cache folder, the file in TRUNNION_TUNE_CACHE, or that of the device
 * (tn_device_options.tuning_file), whose entries tn_tuned_at does not list. It is used only if it belongs to this
 * user, nobody else can write to it, and it was made on this processor by this version.
 *
 * Threads: every function here may be called from any thread. */
#ifndef TRUNNION_TUNE_H
#define TRUNNION_TUNE_H

#include "trunnion/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum tn_tuning {
    TN_TUNING_USE = 0,   /* use the cache, measure nothing (default) */
    TN_TUNING_FIRST_USE, /* also measure a product when it is first planned (TRUNNION_TUNE=1) */
    TN_TUNING_OFF        /* use only the rules (TRUNNION_TUNE=0) */
} tn_tuning;

/* Sets the mode for the whole process, from the next plan on. A measurement forks a process and takes milliseconds to
 * seconds; products that take longer than 0.2 s are left to the rules. Errors: TN_ERR_ARGUMENT for another value. */
TN_API tn_status tn_set_tuning(tn_tuning mode);

/* An entry of the cache. */
typedef struct tn_tuned {
    size_t struct_size; /* set by the caller */
    /* "matmul f32 rr 1x512x512x512 2 threads exact", "tile f32 rr 1x512x512x512 on cuda …" */
    char key[112];
    char way[40];                 /* "own, B in place", "openblas"; "64x64x16 by 16x16": a workgroup's rows, columns,
                                   * depth and items */
    double seconds, rule_seconds; /* of the fastest variant; of the variant that the rules choose */
    char date[12];                /* 2026-11-21 */
} tn_tuned;

TN_API int tn_tuned_count(void);
/* Copies entry i to *out. Errors: TN_ERR_ARGUMENT if i is out of range. */
TN_API tn_status tn_tuned_at(int i, tn_tuned *out);

#ifdef __cplusplus
}
#endif
#endif
