/* vendor.c — vendors' libraries on open devices: started when a plan first wants one, ended before the device.
 *
 * A library's handle belongs to a device, and one thread at a time uses it. Every call is made inside the driver's
 * lend(), so that it meets the device and the queue that the calls before and behind it go to. */
#include "hal/vendor.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

struct tn_vendors {
    pthread_mutex_t lock;
    const tn_vendor_library *library;
    void *handle;
    struct tn_vendors *next; /* of another library */
};

static pthread_mutex_t lists = PTHREAD_MUTEX_INITIALIZER;

const tn_vendor_library *tn_vendor_for(const tn_device *d, bool convolutions) {
    uint32_t chosen = tn_vendors_chosen();
    if (!d->driver->lend) return NULL;
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
    if (s != TN_OK) tn_log_line(TN_LOG_NOTICE, "%s; our own kernels compute", with_name(d, text, sizeof text));
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
    pthread_mutex_lock(&lists);
    *out = find_vendor(d, l);
    tn_status s = *out ? TN_OK : add_vendor(d, l, out);
    pthread_mutex_unlock(&lists);
    return s;
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
    pthread_mutex_lock(&v->lock);
    tn_status s = d->driver->lend(tn_stream_handle(d), ask_vendor, q);
    pthread_mutex_unlock(&v->lock);
    return s;
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
    *why = v->handle ? "has no way for it" : "does not start here";
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
    pthread_mutex_lock(&v->lock);
    tn_status s = d->driver->lend(tn_stream_handle(d), work_vendor, &r);
    pthread_mutex_unlock(&v->lock);
    if (s == TN_OK || s == TN_ERR_LOST) return s;
    char text[400];
    return tn_fail(s, "%s", with_name(d, text, sizeof text));
}
