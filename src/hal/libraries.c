/* libraries.c — libraries for matrix products: choosing one, and vendor libraries on open devices.
 *
 * A library that crashes or hangs must not take the program with it. So before a library for the CPU is loaded here, a
 * child process loads it and multiplies with it. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "cpu/blas.h"
#include "hal/hal.h"
#include "vendor/vendor.h"

static atomic_uint libraries_vendors; /* chosen: bit i is row i of vendor/vendor.c */

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
    *out =
        (tn_blas_facts){.name = l->name, .title = l->spec.title, .chosen = atomic_load(&libraries_vendors) >> row & 1};
    if (!tn_library_locate(&l->spec, out->path, sizeof out->path))
        tn_reason_set(&out->why, TN_REASON_LIBRARY_NOT_FOUND, l->spec.fix, "%s: not found", l->spec.title);
}

tn_status tn_library_at(int i, tn_library_info *out) {
    TRY(tn_result_check(out, "tn_library_at: out"));
    if (i < 0 || i >= tn_library_count())
        return tn_fail(TN_ERR_ARGUMENT, "tn_library_at: row %d is out of range; there are %d", i, tn_library_count());
    tn_blas_facts facts;
    int row = i - tn_blas_count();
    (void)tn_library_chosen();
    if (row < 0)
        tn_blas_probe(i, &facts);
    else
        look(row, &facts);
    tn_library_info full = {
        .struct_size = sizeof full, .available = facts.why.code == TN_REASON_NONE, .in_use = facts.chosen};
    snprintf(full.name, sizeof full.name, "%s", facts.name);
    snprintf(full.title, sizeof full.title, "%s", facts.title);
    snprintf(full.path, sizeof full.path, "%s", facts.path);
    snprintf(full.description, sizeof full.description, "%s", facts.description);
    snprintf(full.reason_code, sizeof full.reason_code, "%s", tn_reason_code_name(facts.why.code));
    snprintf(full.reason, sizeof full.reason, "%s", facts.why.text);
    snprintf(full.fix, sizeof full.fix, "%s", facts.why.fix);
    snprintf(full.backend, sizeof full.backend, "%s", row < 0 ? "cpu" : tn_vendor_library_at(row)->backend);
    return tn_result_write(out, &full, sizeof full, "tn_library_at: out");
}

enum { SECONDS = 10 };

static pthread_mutex_t libraries_lock = PTHREAD_MUTEX_INITIALIZER; /* of choosing */
static atomic_bool decided; /* the environment has been looked at, or a choice was made */

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

/* The installed ones; each is loaded when a device first needs it. */
static unsigned vendors_found(void) {
    char path[256];
    unsigned found = 0;
    for (int i = 0; tn_vendor_library_at(i); i++)
        if (tn_library_locate(&tn_vendor_library_at(i)->spec, path, sizeof path)) found |= 1u << i;
    return found;
}

enum { NAME_BYTES = 40 };

/* The libraries that a list of names ("cublaslt,cudnn") asks for. */
typedef struct choice {
    unsigned vendors;     /* as bits */
    char cpu[NAME_BYTES]; /* a library for the CPU, "auto" or "none"; "": nothing was said of it */
} choice;

static tn_status add_name(choice *c, const char *name) {
    int row = tn_vendor_row(name);
    tn_reason why;
    if (row < 0 && c->cpu[0])
        return tn_fail(
            TN_ERR_ARGUMENT,
            "libraries: \"%s\" and \"%s\" exclude each other; name one CPU library, and any device libraries", c->cpu,
            name);
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
    if (s == TN_OK) atomic_store(&libraries_vendors, c.vendors);
    return s;
}

tn_status tn_set_library(const char *name) {
    AUTO_LOCK(&libraries_lock);
    tn_status s = choose_library(name);
    if (s == TN_OK) atomic_store(&decided, true);
    return s;
}

static void heed_environment(void) {
    const char *name = tn_env("TRUNNION_LIBRARY");
    AUTO_LOCK(&libraries_lock);
    if (!atomic_load(&decided) && name && choose_library(name) != TN_OK)
        tn_log_line(TN_LOG_NOTICE, "TRUNNION_LIBRARY: %s; using Trunnion's own kernels", tn_error());
    atomic_store(&decided, true);
}

const tn_blas *tn_library_chosen(void) {
    if (!atomic_load_explicit(&decided, memory_order_acquire)) heed_environment();
    return tn_blas_chosen();
}

uint32_t tn_vendors_chosen(void) {
    (void)tn_library_chosen();
    return atomic_load_explicit(&libraries_vendors, memory_order_acquire);
}

const char *tn_get_library(void) {
    const tn_blas *b = tn_library_chosen();
    uint32_t chosen = tn_vendors_chosen();
    for (int i = 0; !b && chosen >> i; i++)
        if (chosen >> i & 1) return tn_vendor_library_at(i)->name;
    return tn_blas_name(b);
}

/* ==== vendor libraries on open devices ============================================================================ */
/* A library's handle belongs to a device and is used by one thread at a time. Every call is made inside the driver's
 * lend(), so that it goes to the same device and queue as the calls around it. */

struct tn_vendors {
    pthread_mutex_t lock;
    const tn_vendor_library *library;
    void *handle;
    struct tn_vendors *next; /* of another library */
};

static pthread_mutex_t lists = PTHREAD_MUTEX_INITIALIZER;

/* A library of the list that cannot compute on this device, or NULL. */
static const char *foreign_library(const tn_device *d, const choice *c) {
    for (int i = 0; tn_vendor_library_at(i); i++)
        if (c->vendors >> i & 1 && strcmp(tn_vendor_library_at(i)->backend, d->driver->name) != 0)
            return tn_vendor_library_at(i)->name;
    return NULL;
}

static const tn_blas *first_usable(void) {
    const tn_blas *found = NULL;
    for (int i = 0; i < tn_blas_count() && !found; i++) {
        tn_blas_facts facts;
        tn_blas_probe(i, &facts);
        if (facts.why.code == TN_REASON_NONE) found = tn_blas_by_name(facts.name);
    }
    return found;
}

tn_status tn_device_take_libraries(tn_device *d, const char *names) {
    choice c = {.vendors = 0};
    if (!names) return TN_OK;
    AUTO_LOCK(&libraries_lock);
    TRY(read_names(&c, names));
    bool any = strcmp(c.cpu, "auto") == 0;
    if (any || strcmp(c.cpu, "none") == 0) c.cpu[0] = 0;
    const char *foreign = foreign_library(d, &c);
    if (foreign)
        return tn_fail(TN_ERR_ARGUMENT,
                       "tn_device_open: library \"%s\" does not compute on %s; `trunnion devices` lists the libraries "
                       "of each backend",
                       foreign, d->info.id);
    d->libraries.own = true;
    d->libraries.vendors = c.vendors;
    if (!d->is_cpu && any) d->libraries.vendors |= vendors_found();
    if (any || c.cpu[0]) try_apart(any ? "auto" : c.cpu);
    if (any) d->libraries.blas = first_usable();
    if (c.cpu[0]) d->libraries.blas = tn_blas_by_name(c.cpu);
    d->libraries.open = any && d->libraries.blas;
    return c.cpu[0] && !d->libraries.blas ? tn_error_code() : TN_OK;
}

const tn_blas *tn_device_blas(const tn_device *d) {
    if (d->settings.vendor == VENDOR_NONE) return NULL;
    return d->libraries.own ? d->libraries.blas : tn_library_chosen();
}

bool tn_device_blas_is_open(const tn_device *d) {
    return d->libraries.own ? d->libraries.open : tn_blas_is_open_choice();
}

const tn_vendor_library *tn_vendor_for(const tn_device *d, bool convolutions) {
    if (!d->driver->lend || d->settings.vendor == VENDOR_NONE) return NULL;
    uint32_t chosen = d->libraries.own                   ? d->libraries.vendors
                      : d->settings.vendor == VENDOR_ALL ? vendors_found()
                                                         : tn_vendors_chosen();
    for (int i = 0; chosen >> i; i++) {
        const tn_vendor_library *l = tn_vendor_library_at(i);
        bool computes = convolutions ? l->make_conv != NULL : l->make != NULL;
        if (chosen >> i & 1 && computes && strcmp(l->backend, d->driver->name) == 0) return l;
    }
    return NULL;
}

/* ---- starting ---------------------------------------------------------------------------------------------------- */

static tn_status start(void *ctx, const tn_lent *lent) {
    struct tn_vendors *v = ctx;
    return v->library->open(lent, &v->handle);
}

static tn_status begin_vendor(tn_device *d, struct tn_vendors *v) {
    tn_reason why;
    if (!tn_library_open(&v->library->spec, &why)) return tn_fail(TN_ERR_UNAVAILABLE, "%s (%s)", why.text, why.fix);
    return d->driver->lend(tn_stream_handle(d), start, v);
}

/* tn_error, behind the device's name unless it begins with that. */
static const char *with_name(const tn_device *d, char *out, size_t size) {
    size_t n = strlen(d->info.id);
    bool named = strncmp(tn_error(), d->info.id, n) == 0 && tn_error()[n] == ':';
    snprintf(out, size, "%s%s%s", named ? "" : d->info.id, named ? "" : ": ", tn_error());
    return out;
}

/* The entry stays, with or without a handle: what did not start is not tried again. But for a lack of memory. */
static tn_status add_vendor(tn_device *d, const tn_vendor_library *l, struct tn_vendors **out) {
    struct tn_vendors *v = tn_mem_zalloc(1, sizeof *v);
    if (!v) return TN_ERR_MEMORY;
    v->library = l;
    tn_status s = begin_vendor(d, v);
    if (s == TN_ERR_MEMORY || s == TN_ERR_LOST) {
        tn_mem_free(v);
        return s;
    }
    char text[400];
    if (s != TN_OK) v->handle = NULL; /* whatever the library left there */
    if (s != TN_OK) tn_log_line(TN_LOG_NOTICE, "%s; using Trunnion's own kernels", with_name(d, text, sizeof text));
    pthread_mutex_init(&v->lock, NULL);
    v->next = d->vendors;
    *out = d->vendors = v;
    return TN_OK;
}

static struct tn_vendors *find_vendor(const tn_device *d, const tn_vendor_library *l) {
    struct tn_vendors *v = d->vendors;
    while (v && v->library != l)
        v = v->next;
    return v;
}

static tn_status need_vendor(tn_device *d, const tn_vendor_library *l, struct tn_vendors **out) {
    AUTO_LOCK(&lists);
    *out = find_vendor(d, l);
    return *out ? TN_OK : add_vendor(d, l, out);
}

static tn_status end_vendor(void *ctx, const tn_lent *lent) {
    struct tn_vendors *v = ctx;
    v->library->close(lent, v->handle);
    return TN_OK;
}

void tn_vendors_close(tn_device *d) {
    while (d->vendors) {
        struct tn_vendors *v = d->vendors;
        d->vendors = v->next;
        tn_status s = v->handle ? d->driver->lend(d->handle, end_vendor, v) : TN_OK;
        /* what failed may have passed */
        if (s != TN_OK && s != TN_ERR_LOST) (void)d->driver->lend(d->handle, end_vendor, v);
        pthread_mutex_destroy(&v->lock);
        tn_mem_free(v);
    }
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

typedef struct question {
    void *handle;
    const tn_vendor_product *product;
    const tn_vendor_conv *conv;
    tn_vendor_call *call;
} question;

static tn_status ask_vendor(void *ctx, const tn_lent *lent) {
    const question *q = ctx;
    tn_vendor_call *c = q->call;
    if (q->conv) return c->library->make_conv(q->handle, lent, q->conv, &c->state, &c->workspace);
    return c->library->make(q->handle, lent, q->product, &c->state, &c->workspace);
}

static tn_status make_vendor(tn_device *d, struct tn_vendors *v, question *q) {
    q->handle = v->handle;
    q->call->library = v->library;
    AUTO_LOCK(&v->lock);
    return d->driver->lend(tn_stream_handle(d), ask_vendor, q);
}

void tn_vendor_free(tn_vendor_call *c) {
    if (!c) return;
    if (c->state) c->library->free(c->state);
    tn_mem_free(c);
}

tn_status tn_vendor_make(tn_device *d, const tn_vendor_library *l, const tn_vendor_product *p,
                         const tn_vendor_conv *conv, tn_vendor_call **out, const char **why) {
    struct tn_vendors *v;
    TRY(need_vendor(d, l, &v));
    *why = v->handle ? "does not support it" : "failed to initialize here";
    tn_vendor_call *c = v->handle ? tn_mem_zalloc(1, sizeof *c) : NULL;
    if (!c) return v->handle ? TN_ERR_MEMORY : TN_OK;
    tn_status s = make_vendor(d, v, &(question){.product = p, .conv = conv, .call = c});
    if (s == TN_OK)
        *out = c;
    else
        tn_vendor_free(c);
    return s == TN_ERR_MEMORY || s == TN_ERR_LOST ? s : TN_OK;
}

typedef struct running {
    void *handle;
    const tn_vendor_call *call;
    void *const *pointers;
} running;

static tn_status work_vendor(void *ctx, const tn_lent *lent) {
    const running *r = ctx;
    return r->call->library->run(r->handle, lent, r->call->state, r->pointers);
}

tn_status tn_vendor_run(tn_device *d, const tn_vendor_call *c, void *const *pointers) {
    struct tn_vendors *v;
    TRY(need_vendor(d, c->library, &v));
    running r = {.handle = v->handle, .call = c, .pointers = pointers};
    tn_device_works(d);
    pthread_mutex_lock(&v->lock);
    tn_status s = d->driver->lend(tn_stream_handle(d), work_vendor, &r);
    pthread_mutex_unlock(&v->lock);
    if (s == TN_OK || s == TN_ERR_LOST) return s;
    char text[400];
    return tn_fail(s, "%s", with_name(d, text, sizeof text));
}
