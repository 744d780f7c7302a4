/* libraries.c — the public face of the libraries for matrix products: the CPU's (kern/blas.c), then those of vendors
 * for their devices (kern/vendor.c).
 *
 * A library that crashes or hangs must not take the program with it: before one is loaded here for the CPU, a process
 * of its own loads it and multiplies with it. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "hal/hal.h"
#include "kern/blas.h"
#include "kern/vendor.h"

static atomic_uint vendors; /* chosen: bit i is row i of kern/vendor.c */

static int vendor_count(void) {
    int count = 0;
    while (tn_vendor_library_at(count))
        count++;
    return count;
}

int tn_library_count(void) { return tn_blas_count() + vendor_count(); }

/* Of a vendor's library, without loading it. */
static void look(int row, tn_blas_facts *out) {
    const tn_vendor_library *l = tn_vendor_library_at(row);
    *out = (tn_blas_facts){.name = l->name, .title = l->spec.title, .chosen = atomic_load(&vendors) >> row & 1};
    if (!tn_library_locate(&l->spec, out->path, sizeof out->path))
        tn_reason_set(&out->why, TN_REASON_LIBRARY_NOT_FOUND, l->spec.fix, "%s: not found", l->spec.title);
}

tn_status tn_library_at(int i, tn_library_info *out) {
    TRY(tn_need(out, "tn_library_at: out"));
    if (out->struct_size < sizeof(size_t))
        return tn_fail(TN_ERR_ARGUMENT, "tn_library_at: out->struct_size is not set");
    if (i < 0 || i >= tn_library_count())
        return tn_fail(TN_ERR_ARGUMENT, "tn_library_at: row %d; there are %d", i, tn_library_count());
    tn_blas_facts facts;
    int row = i - tn_blas_count();
    (void)tn_library_chosen();
    if (row < 0)
        tn_blas_probe(i, &facts);
    else
        look(row, &facts);
    tn_library_info full = {
        .struct_size = out->struct_size, .available = facts.why.code == TN_REASON_NONE, .in_use = facts.chosen};
    snprintf(full.name, sizeof full.name, "%s", facts.name);
    snprintf(full.title, sizeof full.title, "%s", facts.title);
    snprintf(full.path, sizeof full.path, "%s", facts.path);
    snprintf(full.description, sizeof full.description, "%s", facts.description);
    snprintf(full.reason_code, sizeof full.reason_code, "%s", tn_reason_code_name(facts.why.code));
    snprintf(full.reason, sizeof full.reason, "%s", facts.why.text);
    snprintf(full.fix, sizeof full.fix, "%s", facts.why.fix);
    snprintf(full.backend, sizeof full.backend, "%s", row < 0 ? "cpu" : tn_vendor_library_at(row)->backend);
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
        tn_blas_probe(i, &facts);
        if (!facts.path[0]) continue;
        snprintf(name, sizeof name, "%s", facts.name);
        if (!tn_child_run(try_row, name, &works, sizeof works, SECONDS, &why))
            tn_blas_refuse(i, TN_REASON_CRASHED, why);
    }
}

/* Those that are here; each is loaded when a device first wants it. */
static unsigned vendors_found(void) {
    char path[256];
    unsigned found = 0;
    for (int i = 0; tn_vendor_library_at(i); i++)
        if (tn_library_locate(&tn_vendor_library_at(i)->spec, path, sizeof path)) found |= 1u << i;
    return found;
}

enum { NAME_BYTES = 40 };

/* What a list of names ("cublaslt,cudnn") asks for. */
typedef struct choice {
    unsigned vendors;     /* as bits */
    char cpu[NAME_BYTES]; /* a library for the CPU, "auto" or "none"; "": nothing was said of it */
} choice;

static tn_status add_name(choice *c, const char *name) {
    int row = tn_vendor_row(name);
    tn_reason why;
    if (row < 0 && c->cpu[0])
        return tn_fail(TN_ERR_ARGUMENT, "libraries: \"%s\" and \"%s\" exclude each other; name one, and devices' own",
                       c->cpu, name);
    if (row < 0) snprintf(c->cpu, sizeof c->cpu, "%s", name);
    if (row < 0) return TN_OK;
    if (!tn_library_open(&tn_vendor_library_at(row)->spec, &why))
        return tn_fail(TN_ERR_UNAVAILABLE, "%s (%s)", why.text, why.fix);
    c->vendors |= 1u << row;
    return TN_OK;
}

static tn_status read_names(choice *c, const char *names) {
    for (bool more = true; more;) {
        char name[NAME_BYTES];
        size_t n = strcspn(names, ",");
        snprintf(name, sizeof name, "%.*s", (int)(n < sizeof name ? n : sizeof name), names);
        TRY(n ? add_name(c, name) : tn_blas_choose(name)); /* which refuses the empty name */
        more = names[n] == ',';
        names += n + more;
    }
    return TN_OK;
}

/* The caller holds the lock. */
static tn_status choose_library(const char *names) {
    choice c = {.vendors = 0};
    if (names) TRY(read_names(&c, names));
    bool any = strcmp(c.cpu, "auto") == 0;
    if (any) c.vendors |= vendors_found();
    if (c.cpu[0]) try_apart(c.cpu);
    tn_status s = tn_blas_choose(c.cpu[0] ? c.cpu : NULL);
    if (s == TN_ERR_UNAVAILABLE && any && c.vendors) s = tn_blas_choose(NULL);
    if (s == TN_OK) atomic_store(&vendors, c.vendors);
    return s;
}

tn_status tn_set_library(const char *name) {
    pthread_mutex_lock(&lock);
    tn_status s = choose_library(name);
    if (s == TN_OK) atomic_store(&decided, true);
    pthread_mutex_unlock(&lock);
    return s;
}

static void heed_environment(void) {
    const char *name = tn_env("TRUNNION_LIBRARY");
    pthread_mutex_lock(&lock);
    if (!atomic_load(&decided) && name && choose_library(name) != TN_OK)
        tn_log_line(TN_LOG_NOTICE, "TRUNNION_LIBRARY: %s; our own kernels compute", tn_error());
    atomic_store(&decided, true);
    pthread_mutex_unlock(&lock);
}

const tn_blas *tn_library_chosen(void) {
    if (!atomic_load_explicit(&decided, memory_order_acquire)) heed_environment();
    return tn_blas_chosen();
}

uint32_t tn_vendors_chosen(void) {
    (void)tn_library_chosen();
    return atomic_load_explicit(&vendors, memory_order_acquire);
}

const char *tn_get_library(void) {
    const tn_blas *b = tn_library_chosen();
    uint32_t chosen = tn_vendors_chosen();
    for (int i = 0; !b && chosen >> i; i++)
        if (chosen >> i & 1) return tn_vendor_library_at(i)->name;
    return tn_blas_name(b);
}
