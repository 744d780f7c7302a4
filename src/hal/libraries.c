/* libraries.c — the public face of the libraries for matrix products (kern/blas.c).
 *
 * A library that crashes or hangs must not take the program with it: before one is loaded here, a process of its own
 * loads it and multiplies with it. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "hal/hal.h"
#include "kern/blas.h"

int tn_library_count(void) { return tn_blas_count(); }

tn_status tn_library_at(int i, tn_library_info *out) {
    TRY(tn_need(out, "tn_library_at: out"));
    if (out->struct_size < sizeof(size_t))
        return tn_fail(TN_ERR_ARGUMENT, "tn_library_at: out->struct_size is not set");
    if (i < 0 || i >= tn_blas_count())
        return tn_fail(TN_ERR_ARGUMENT, "tn_library_at: row %d; there are %d", i, tn_blas_count());
    tn_blas_facts facts;
    (void)tn_library_chosen();
    tn_blas_look(i, &facts);
    tn_library_info full = {
        .struct_size = out->struct_size, .available = facts.why.code == TN_REASON_NONE, .in_use = facts.chosen};
    snprintf(full.name, sizeof full.name, "%s", facts.name);
    snprintf(full.title, sizeof full.title, "%s", facts.title);
    snprintf(full.path, sizeof full.path, "%s", facts.path);
    snprintf(full.description, sizeof full.description, "%s", facts.description);
    snprintf(full.reason_code, sizeof full.reason_code, "%s", tn_reason_code_name(facts.why.code));
    snprintf(full.reason, sizeof full.reason, "%s", facts.why.text);
    snprintf(full.fix, sizeof full.fix, "%s", facts.why.fix);
    memcpy(out, &full, out->struct_size < sizeof full ? out->struct_size : sizeof full);
    return TN_OK;
}

enum { SECONDS = 10 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of choosing */
static atomic_bool decided;                              /* the environment has been looked at, or a choice was made */

static void try_row(void *ctx, void *out) { *(bool *)out = tn_blas_choose(ctx) == TN_OK; }

/* Rows until one works: it is the one that choosing by this name takes. */
static void try_apart(const char *asked) {
    bool works = false;
    for (int i = 0; i < tn_blas_count() && !works; i++) {
        tn_blas_facts facts;
        char name[24];
        const char *why = "";
        if (!tn_blas_untried(i, asked)) continue;
        tn_blas_look(i, &facts);
        if (!facts.path[0]) continue;
        snprintf(name, sizeof name, "%s", facts.name);
        if (!tn_child_run(try_row, name, &works, sizeof works, SECONDS, &why))
            tn_blas_refuse(i, TN_REASON_CRASHED, why);
    }
}

/* The caller holds the lock. */
static tn_status choose(const char *name) {
    if (name) try_apart(name);
    return tn_blas_choose(name);
}

tn_status tn_set_library(const char *name) {
    pthread_mutex_lock(&lock);
    tn_status s = choose(name);
    if (s == TN_OK) atomic_store(&decided, true);
    pthread_mutex_unlock(&lock);
    return s;
}

static void heed_environment(void) {
    const char *name = tn_env("TRUNNION_LIBRARY");
    pthread_mutex_lock(&lock);
    if (!atomic_load(&decided) && name && choose(name) != TN_OK)
        tn_log_line(TN_LOG_NOTICE, "TRUNNION_LIBRARY: %s; our own kernels compute", tn_error());
    atomic_store(&decided, true);
    pthread_mutex_unlock(&lock);
}

const tn_blas *tn_library_chosen(void) {
    if (!atomic_load_explicit(&decided, memory_order_acquire)) heed_environment();
    return tn_blas_chosen();
}

const char *tn_get_library(void) { return tn_blas_name(tn_library_chosen()); }
