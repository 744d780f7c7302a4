/* wrap_driver.c — see wrap_driver.h. A device's or queue's handle is a small struct that leads to the inner driver and
 * its handle; everything else (addresses, modules, events) is passed through as it is. */
#include "wrap_driver.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_WRAPPED = 3 };

wrap_nature wrap_now;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static wrap_counts counts;

typedef struct handle {
    const tn_driver *inner;
    void *device; /* or a queue */
} handle;

wrap_counts wrap_get_counts(void) {
    pthread_mutex_lock(&lock);
    wrap_counts c = counts;
    pthread_mutex_unlock(&lock);
    return c;
}

void wrap_reset(void) {
    pthread_mutex_lock(&lock);
    memset(&wrap_now, 0, sizeof wrap_now);
    counts.calls = counts.faults = counts.binaries = counts.dispatches = 0;
    memset(counts.of, 0, sizeof counts.of);
    pthread_mutex_unlock(&lock);
}

static void add(int64_t *count, int64_t n) {
    pthread_mutex_lock(&lock);
    *count += n;
    pthread_mutex_unlock(&lock);
}

/* Whether this call is one that fails. */
static bool is_fault(wrap_call kind) {
    if (wrap_now.fail_at <= 0 || (wrap_now.fail_kind != WRAP_ANY && wrap_now.fail_kind != kind)) return false;
    if (wrap_now.fail_at > 1) {
        wrap_now.fail_at--;
        return false;
    }
    if (!wrap_now.stays) wrap_now.fail_at = 0;
    return true;
}

static tn_status enter(wrap_call kind) {
    static const char *const names[] = {
#define X(name) #name,
        WRAP_CALLS(X)
#undef X
    };
    pthread_mutex_lock(&lock);
    counts.calls++;
    counts.of[kind]++;
    bool fault = is_fault(kind);
    counts.faults += fault;
    pthread_mutex_unlock(&lock);
    return fault ? tn_backend_fail(wrap_now.fail_with, "wrapped driver: %s fails as the test wants it", names[kind])
                 : TN_OK;
}

/* A call that may fail, then the inner driver's. */
#define PASS(kind, expr)                            \
    do {                                            \
        tn_status entered = enter(kind);            \
        return entered == TN_OK ? (expr) : entered; \
    } while (0)

/* The same where success makes something that lives until it is given back. */
#define PASS_NEW(kind, expr, count)               \
    do {                                          \
        tn_status made = enter(kind);             \
        if (made == TN_OK) made = (expr);         \
        if (made == TN_OK) add(&counts.count, 1); \
        return made;                              \
    } while (0)

/* ---- what needs a handle ----------------------------------------------------------------------------------------- */

static void wrap_close(void *device) {
    handle *h = device;
    h->inner->close(h->device);
    add(&counts.devices, -1);
    free(h);
}

static int64_t lower(int64_t own, int64_t limit) { return limit && (own == 0 || limit < own) ? limit : own; }

static tn_status wrap_caps(void *device, tn_caps *out) {
    const handle *h = device;
    tn_status s = enter(WRAP_CAPS);
    if (s == TN_OK) s = h->inner->caps(h->device, out);
    if (s != TN_OK) return s;
    out->max_buffer = lower(out->max_buffer, wrap_now.max_buffer);
    out->max_group = lower(out->max_group, wrap_now.max_group);
    out->shared_memory = lower(out->shared_memory, wrap_now.shared_memory);
    out->max_groups_x = lower(out->max_groups_x, wrap_now.max_groups_x);
    out->max_loop = lower(out->max_loop, wrap_now.max_loop);
    out->max_bindings = (int)lower(out->max_bindings, wrap_now.max_bindings);
    if (wrap_now.alignment > out->alignment) out->alignment = wrap_now.alignment;
    out->f64 = out->f64 && !wrap_now.no_f64;
    return TN_OK;
}

static tn_status wrap_alloc(void *device, size_t bytes, void **address) {
    const handle *h = device;
    PASS_NEW(WRAP_ALLOC, h->inner->alloc(h->device, bytes, address), blocks);
}

static void wrap_free(void *device, void *address) {
    const handle *h = device;
    h->inner->free(h->device, address);
    add(&counts.blocks, -1);
}

static tn_status wrap_load(void *device, const tn_code *code, void **module) {
    const handle *h = device;
    tn_status s = enter(WRAP_LOAD);
    if (s == TN_OK) s = h->inner->load(h->device, code, module);
    if (s != TN_OK) return s;
    add(&counts.modules, 1);
    add(&counts.binaries, code->binary != NULL);
    return TN_OK;
}

static void wrap_unload(void *device, void *module) {
    const handle *h = device;
    h->inner->unload(h->device, module);
    add(&counts.modules, -1);
}

static tn_status wrap_launch(void *device, void *module, const tn_launch *launches, int64_t count) {
    const handle *h = device;
    PASS(WRAP_LAUNCH, h->inner->launch(h->device, module, launches, count));
}

static tn_status wrap_prepare(void *device, void *module, const tn_launch *launches, int64_t count) {
    const handle *h = device;
    PASS(WRAP_PREPARE, h->inner->prepare(h->device, module, launches, count));
}

static tn_status wrap_dispatch(void *device, void *module, const tn_dispatch *dispatches, int64_t count) {
    const handle *h = device;
    add(&counts.dispatches, count);
    PASS(WRAP_DISPATCH, h->inner->dispatch(h->device, module, dispatches, count));
}

/* A list of its own making: the inner driver's dispatches one by one. */
static tn_status wrap_dispatch_list(void *queue, const tn_list_item *items, int64_t count) {
    const handle *h = queue;
    tn_status entered = enter(WRAP_DISPATCH_LIST);
    if (entered != TN_OK) return entered;
    add(&counts.dispatches, count);
    for (int64_t i = 0; i < count; i++) {
        tn_status s = h->inner->dispatch(h->device, items[i].module, &items[i].dispatch, 1);
        if (s != TN_OK) return s;
    }
    return TN_OK;
}

static tn_status wrap_binary(void *device, void *module, void **data, size_t *size) {
    const handle *h = device;
    PASS(WRAP_BINARY, h->inner->binary(h->device, module, data, size));
}

static tn_status wrap_copy(void *device, void *dst, const void *src, size_t bytes, int kind) {
    const handle *h = device;
    PASS(WRAP_COPY, h->inner->copy(h->device, dst, src, bytes, kind));
}

static tn_status wrap_copy_async(void *device, void *dst, const void *src, size_t bytes, int kind) {
    const handle *h = device;
    PASS(WRAP_COPY, h->inner->copy_async(h->device, dst, src, bytes, kind));
}

static tn_status wrap_fill(void *device, void *dst, uint8_t value, size_t bytes) {
    const handle *h = device;
    PASS(WRAP_FILL, h->inner->fill(h->device, dst, value, bytes));
}

static tn_status wrap_sync(void *device) {
    const handle *h = device;
    PASS(WRAP_SYNC, h->inner->sync(h->device));
}

static tn_status wrap_memory(void *device, int64_t *total, int64_t *unused) {
    const handle *h = device;
    PASS(WRAP_MEMORY, h->inner->memory(h->device, total, unused));
}

/* ---- queues, events, the host's memory --------------------------------------------------------------------------- */

static tn_status wrap_queue_new(void *device, void **queue) {
    const handle *h = device;
    handle *q = malloc(sizeof *q);
    if (!q) return TN_ERR_MEMORY;
    q->inner = h->inner;
    tn_status s = enter(WRAP_QUEUE_NEW);
    if (s == TN_OK) s = h->inner->queue_new(h->device, &q->device);
    if (s != TN_OK) {
        free(q);
        return s;
    }
    add(&counts.queues, 1);
    *queue = q;
    return TN_OK;
}

static void wrap_queue_free(void *device, void *queue) {
    const handle *h = device;
    handle *q = queue;
    h->inner->queue_free(h->device, q->device);
    add(&counts.queues, -1);
    free(q);
}

static tn_status wrap_event_new(void *device, bool timed, void **event) {
    const handle *h = device;
    PASS_NEW(WRAP_EVENT_NEW, h->inner->event_new(h->device, timed, event), events);
}

static void wrap_event_free(void *device, void *event) {
    const handle *h = device;
    h->inner->event_free(h->device, event);
    add(&counts.events, -1);
}

static tn_status wrap_event_record(void *queue, void *event) {
    const handle *h = queue;
    PASS(WRAP_EVENT_RECORD, h->inner->event_record(h->device, event));
}

static tn_status wrap_event_wait(void *queue, void *event) {
    const handle *h = queue;
    PASS(WRAP_EVENT_WAIT, h->inner->event_wait(h->device, event));
}

static tn_status wrap_event_query(void *device, void *event, bool *passed) {
    const handle *h = device;
    PASS(WRAP_EVENT_QUERY, h->inner->event_query(h->device, event, passed));
}

static tn_status wrap_event_sync(void *device, void *event) {
    const handle *h = device;
    PASS(WRAP_EVENT_SYNC, h->inner->event_sync(h->device, event));
}

static tn_status wrap_event_time(void *device, void *event, double *seconds) {
    const handle *h = device;
    PASS(WRAP_EVENT_TIME, h->inner->event_time(h->device, event, seconds));
}

static tn_status wrap_host_alloc(void *device, size_t bytes, void **host) {
    const handle *h = device;
    PASS_NEW(WRAP_HOST_ALLOC, h->inner->host_alloc(h->device, bytes, host), pinned);
}

static void wrap_host_free(void *device, void *host) {
    const handle *h = device;
    h->inner->host_free(h->device, host);
    add(&counts.pinned, -1);
}

static tn_status wrap_map(void *device, void *address, size_t bytes, bool read, void **host) {
    const handle *h = device;
    PASS_NEW(WRAP_MAP, h->inner->map(h->device, address, bytes, read, host), mapped);
}

static tn_status wrap_unmap(void *device, void *address, void *host) {
    const handle *h = device;
    tn_status s = enter(WRAP_UNMAP);
    tn_status done = h->inner->unmap(h->device, address, host); /* it is unmapped in any case */
    add(&counts.mapped, -1);
    return s == TN_OK ? done : s;
}

/* ---- the drivers: probe and open are given no handle, so each has a pair of its own ------------------------------ */

static struct {
    const tn_driver *inner;
    tn_driver driver;
    char name[32], title[64];
} wrapped[MOST_WRAPPED];

static tn_status open_in(int slot, int index, const tn_device_options *options, void **device) {
    handle *h = malloc(sizeof *h);
    if (!h) return TN_ERR_MEMORY;
    h->inner = wrapped[slot].inner;
    tn_status s = enter(WRAP_OPEN);
    if (s == TN_OK) s = h->inner->open(index, options, &h->device);
    if (s != TN_OK) {
        free(h);
        return s;
    }
    add(&counts.devices, 1);
    *device = h;
    return TN_OK;
}

#define SLOT(n)                                                                             \
    static void probe_##n(tn_probe *out) { wrapped[n].inner->probe(out); }                  \
    static tn_status open_##n(int index, const tn_device_options *options, void **device) { \
        return open_in(n, index, options, device);                                          \
    }
SLOT(0)
SLOT(1)
SLOT(2)

static void (*const probes[MOST_WRAPPED])(tn_probe *) = {probe_0, probe_1, probe_2};
static tn_status (*const opens[MOST_WRAPPED])(int, const tn_device_options *, void **) = {open_0, open_1, open_2};

static void make(int slot, const tn_driver *inner) {
    wrapped[slot].inner = inner;
    snprintf(wrapped[slot].name, sizeof wrapped[slot].name, "wrapped-%s", inner->name);
    snprintf(wrapped[slot].title, sizeof wrapped[slot].title, "%s, wrapped for tests", inner->title);
    tn_driver *d = &wrapped[slot].driver;
    *d = (tn_driver){.struct_size = sizeof *d,
                     .abi = TN_BACKEND_ABI,
                     .name = wrapped[slot].name,
                     .title = wrapped[slot].title,
                     .probe = probes[slot],
                     .open = opens[slot],
                     .close = wrap_close,
                     .caps = wrap_caps,
                     .alloc = wrap_alloc,
                     .free = wrap_free,
                     .load = wrap_load,
                     .unload = wrap_unload,
                     .copy = wrap_copy,
                     .sync = wrap_sync,
                     .only_by_name = true};
#define OFFER(field) \
    if (inner->field) d->field = wrap_##field
    OFFER(launch);
    OFFER(prepare);
    OFFER(dispatch);
    if (inner->dispatch) d->dispatch_list = wrap_dispatch_list;
    OFFER(binary);
    OFFER(memory);
    OFFER(queue_new);
    OFFER(queue_free);
    OFFER(event_new);
    OFFER(event_free);
    OFFER(event_record);
    OFFER(event_wait);
    OFFER(event_query);
    OFFER(event_sync);
    OFFER(event_time);
    OFFER(copy_async);
    OFFER(fill);
    OFFER(host_alloc);
    OFFER(host_free);
    OFFER(map);
    OFFER(unmap);
#undef OFFER
}

const tn_driver *wrap_driver(const tn_driver *inner) {
    for (int i = 0; i < MOST_WRAPPED; i++) {
        if (!wrapped[i].inner) make(i, inner);
        if (wrapped[i].inner == inner) return &wrapped[i].driver;
    }
    return NULL;
}
