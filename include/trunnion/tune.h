/* tune.h — the record of which way of computing was measured to be the fastest on this machine.
 *
 * A matrix product can be computed in several ways (operands packed or read in place, threads, a library that was asked
 * for) among which rules choose by size. Tuning times all of them, in a process of its own with a time limit, and keeps
 * the fastest in a file, by kind, layout and size (sizes within an eighth of each other count as one) and number of
 * threads. It stays within the class of numerics: our own ways yield the same bits; libraries take part only when
 * tn_set_library("auto") (or TRUNNION_LIBRARY) has allowed them.
 *
 * On other devices it is the tile of a product that is tuned (f32), by device and version of its driver, with the same
 * bits. That is measured in the process that computes, for a driver that is at work cannot be forked; `trunnion tune
 * --device` does it in one of its own. What was being measured when a process died is left to the rules.
 *
 * The file is tune.json in the cache folder, or what TRUNNION_TUNE_CACHE names. It is believed only if it belongs to
 * this user, nobody else can write it, and it was made on this processor by this version.
 *
 * Threads: every function here may be called from any thread. */
#ifndef TRUNNION_TUNE_H
#define TRUNNION_TUNE_H

#include "trunnion/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum tn_tuning {
    TN_TUNING_USE = 0, /* what the record knows is done its way; nothing is measured (default; TRUNNION_TUNE=0: off) */
    TN_TUNING_FIRST_USE, /* what it does not know is measured when it is planned first (TRUNNION_TUNE=1) */
    TN_TUNING_OFF        /* rules alone choose */
} tn_tuning;

/* For the whole process, from the next plan on. Measuring forks and takes a few milliseconds to some seconds each; what
 * takes longer than a fifth of a second by itself is left to the rules. Errors:
 * TN_ERR_ARGUMENT for another number. */
TN_API tn_status tn_set_tuning(tn_tuning mode);

/* An entry of the record. */
typedef struct tn_tuned {
    size_t struct_size;           /* set by the caller */
    /* "matmul f32 rr 1x512x512x512 2 threads exact", "tile f32 rr 1x512x512x512 on cuda …" */
    char key[112];
    char way[40];                 /* "own, B in place", "openblas"; "64x64x16 by 16x16": a workgroup's rows, columns,
                                   * depth and items */
    double seconds, rule_seconds; /* of the fastest; of what the rules would have chosen */
    char date[12];                /* 2026-11-21 */
} tn_tuned;

TN_API int tn_tuned_count(void);
/* Entry i of [0, count). Errors: TN_ERR_ARGUMENT outside of that. */
TN_API tn_status tn_tuned_at(int i, tn_tuned *out);

#ifdef __cplusplus
}
#endif
#endif
