/* watchdog.c — time limits for waits (tn_device_options.time_limit).
 *
 * A wait that may hang runs on a thread of its own while the caller looks at the clock. After the limit the device
 * counts as lost: its driver is replaced by one that refuses every call, so that nothing waits for it again, and the
 * thread is left behind with whatever it waits for. */
#include <pthread.h>
#include <stdio.h>
#include <time.h>

#include "hal/hal.h"

/* ---- the driver of a device that does not answer ----------------------------------------------------------------- */

static tn_status refuse(void) {
    return tn_fail(
        TN_ERR_LOST,
        "the device did not answer within its time limit earlier; use another device, or restart the program");
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
/* Functions of tn_driver that fail, and those that free: what the device has is left to it. */
#define FAILS(name, ...) \
    static tn_status gone_##name(__VA_ARGS__) { return refuse(); }
#define LEAVES(name, ...) \
    static void gone_##name(__VA_ARGS__) {}
FAILS(alloc, void *device, size_t bytes, void **address)
FAILS(load, void *device, const tn_code *code, void **module)
FAILS(launch, void *device, void *module, const tn_launch *launches, int64_t count)
FAILS(dispatch, void *device, void *module, const tn_dispatch *dispatches, int64_t count)
FAILS(copy, void *device, void *dst, const void *src, size_t bytes, int kind)
FAILS(sync, void *device)
FAILS(binary, void *device, void *module, void **data, size_t *size)
FAILS(queue_new, void *device, void **queue)
FAILS(event_new, void *device, bool timed, void **event)
FAILS(event, void *queue, void *event)
FAILS(event_query, void *device, void *event, bool *passed)
FAILS(event_time, void *device, void *event, double *seconds)
FAILS(fill, void *queue, void *dst, uint8_t value, size_t bytes)
FAILS(host_alloc, void *device, size_t bytes, void **host)
FAILS(map, void *device, void *address, size_t bytes, bool read, void **host)
FAILS(unmap, void *device, void *address, void *host)
FAILS(dispatch_list, void *queue, const tn_list_item *items, int64_t count)
FAILS(list_make, void *device, const tn_list_item *items, int64_t count, void **list)
FAILS(list_run, void *queue, void *list, const tn_list_item *items, int64_t count)
FAILS(lend, void *queue, tn_lent_work *work, void *ctx)
FAILS(copy_peer, void *device, void *dst, void *other, const void *src, size_t bytes)
LEAVES(close, void *device)
LEAVES(free, void *device, void *what)
#pragma GCC diagnostic pop

static const tn_driver gone = {
    .struct_size = sizeof gone,
    .abi = TN_BACKEND_ABI,
    .close = gone_close,
    .alloc = gone_alloc,
    .free = gone_free,
    .load = gone_load,
    .unload = gone_free,
    .launch = gone_launch,
    .copy = gone_copy,
    .sync = gone_sync,
    .prepare = gone_launch,
    .dispatch = gone_dispatch,
    .binary = gone_binary,
    .queue_new = gone_queue_new,
    .queue_free = gone_free,
    .event_new = gone_event_new,
    .event_free = gone_free,
    .event_record = gone_event,
    .event_wait = gone_event,
    .event_query = gone_event_query,
    .event_sync = gone_event,
    .event_time = gone_event_time,
    .copy_async = gone_copy,
    .fill = gone_fill,
    .host_alloc = gone_host_alloc,
    .host_free = gone_free,
    .map = gone_map,
    .unmap = gone_unmap,
    .dispatch_list = gone_dispatch_list,
    .list_make = gone_list_make,
    .list_run = gone_list_run,
    .list_free = gone_free,
    .lend = gone_lend,
    .copy_peer = gone_copy_peer,
};

/* ---- threads that wait ------------------------------------------------------------------------------------------- */

typedef enum waiter_state { IDLE, ASKED, DONE, LEFT, STOPS } waiter_state;

typedef struct waiter {
    pthread_t thread;
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t changed;
    waiter_state state;
    const tn_driver *driver;
    void *handle, *event; /* event NULL: sync of the handle */
    tn_status status;
    char text[TN_REASON_BYTES];
    struct waiter *next; /* the watchdog's */
} waiter;

struct tn_watchdog {
    tn_device *device;
    /* How often work was given to the device, and the count at the begin of a wait that ended: only a wait for later
     * work may hang. */
    _Atomic uint64_t given, done;
    pthread_mutex_t lock;
    waiter *idle;   /* guarded by `lock` */
    tn_driver gone; /* with the name of the device's own */
};

static tn_status wait_at_once(const tn_driver *driver, void *handle, void *event) {
    return event ? driver->event_sync(handle, event) : driver->sync(handle);
}

static void waiter_free(waiter *w) {
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    tn_mem_free(w);
}

static void *waiter_main(void *argument) {
    waiter *w = argument;
    pthread_mutex_lock(&w->lock);
    for (;;) {
        while (w->state != ASKED && w->state != STOPS)
            pthread_cond_wait(&w->changed, &w->lock);
        if (w->state == STOPS) break;
        pthread_mutex_unlock(&w->lock);
        tn_status s = wait_at_once(w->driver, w->handle, w->event);
        pthread_mutex_lock(&w->lock);
        if (w->state == LEFT) break;
        w->status = s;
        if (s != TN_OK) snprintf(w->text, sizeof w->text, "%s", tn_error());
        w->state = DONE;
        pthread_cond_broadcast(&w->changed);
    }
    bool left = w->state == LEFT; /* nobody else knows it any more */
    pthread_mutex_unlock(&w->lock);
    if (left) waiter_free(w);
    return NULL;
}

/* NULL: there is no memory or no thread. */
static waiter *waiter_new(void) {
    waiter *w = tn_mem_zalloc(1, sizeof *w);
    if (!w) return NULL;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->changed, NULL);
    if (pthread_create(&w->thread, NULL, waiter_main, w) == 0) return w;
    waiter_free(w);
    return NULL;
}

static waiter *take_waiter(tn_watchdog *g) {
    pthread_mutex_lock(&g->lock);
    waiter *w = g->idle;
    if (w) g->idle = w->next;
    pthread_mutex_unlock(&g->lock);
    return w ? w : waiter_new();
}

static void put_waiter(tn_watchdog *g, waiter *w) {
    AUTO_LOCK(&g->lock);
    w->next = g->idle;
    g->idle = w;
}

static struct timespec time_in(double seconds) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    double at = (double)t.tv_sec + 1e-9 * (double)t.tv_nsec + seconds;
    t.tv_sec = (time_t)at;
    t.tv_nsec = (long)((at - (double)t.tv_sec) * 1e9);
    return t;
}

/* Whether the wait ended within `limit` seconds; otherwise the waiter is left. */
static bool ask(waiter *w, const tn_driver *driver, void *handle, void *event, double limit) {
    double end = tn_now() + limit;
    AUTO_LOCK(&w->lock);
    w->driver = driver;
    w->handle = handle;
    w->event = event;
    w->state = ASKED;
    pthread_cond_broadcast(&w->changed);
    for (double left = limit; w->state == ASKED && left > 0; left = end - tn_now()) {
        struct timespec until = time_in(left);
        (void)pthread_cond_timedwait(&w->changed, &w->lock, &until);
    }
    bool ended = w->state == DONE;
    w->state = ended ? IDLE : LEFT;
    if (!ended) pthread_detach(w->thread);
    return ended;
}

static tn_status wait_watched(const tn_device *d, void *handle, void *event) {
    tn_watchdog *g = d->watchdog;
    const tn_driver *driver = d->driver;
    waiter *w = driver == &g->gone ? NULL : take_waiter(g);
    if (!w) return wait_at_once(driver, handle, event);
    double limit = d->settings.time_limit;
    if (!ask(w, driver, handle, event, limit)) {
        g->device->driver = &g->gone;
        return tn_fail(TN_ERR_LOST, "%s: no answer for %g seconds; the device counts as lost", d->info.id, limit);
    }
    tn_status s = w->status;
    if (s != TN_OK) (void)tn_fail(s, "%s", w->text);
    put_waiter(g, w);
    return s;
}

void tn_device_works(const tn_device *d) {
    if (d->watchdog) atomic_fetch_add(&d->watchdog->given, 1);
}

/* Whether there is a time limit, and work that it is for. Further queues are not followed. */
static bool may_hang(const tn_device *d) {
    const tn_watchdog *g = d->watchdog;
    if (!g) return false;
    return atomic_load(&g->given) != atomic_load(&g->done) || atomic_load_explicit(&d->ordered, memory_order_relaxed);
}

/* Other threads' waits for the same work have the time limit as well, until one has ended. */
static tn_status wait_for_work(const tn_device *d, void *stream) {
    uint64_t given = atomic_load(&d->watchdog->given);
    TRY(wait_watched(d, stream, NULL));
    atomic_store(&d->watchdog->done, given);
    return TN_OK;
}

tn_status tn_device_wait(const tn_device *d, void *stream) {
    return may_hang(d) ? wait_for_work(d, stream) : d->driver->sync(stream);
}

tn_status tn_device_wait_event(const tn_device *d, void *event) {
    return d->watchdog ? wait_watched(d, d->handle, event) : d->driver->event_sync(d->handle, event);
}

tn_status tn_device_fetch(const tn_device *d, void *stream, void *host, const void *address, size_t bytes) {
    if (may_hang(d)) TRY(wait_for_work(d, stream)); /* the copy itself then finds nothing to wait for */
    TRY(tn_device_copy_bytes(d, stream, host, address, bytes, 1));
    return d->driver->sync(stream);
}

tn_status tn_device_send(const tn_device *d, void *stream, void *address, const void *host, size_t bytes) {
    if (may_hang(d)) TRY(wait_for_work(d, stream));
    return tn_device_copy_bytes(d, stream, address, host, bytes, 0);
}

/* ---- a device's watchdog ----------------------------------------------------------------------------------------- */

tn_status tn_watchdog_begin(tn_device *d) {
    if (d->is_cpu || d->settings.time_limit <= 0) return TN_OK;
    tn_watchdog *g = tn_mem_zalloc(1, sizeof *g);
    if (!g) return TN_ERR_MEMORY;
    g->device = d;
    g->gone = gone;
    g->gone.name = d->driver->name;
    g->gone.title = d->driver->title;
    pthread_mutex_init(&g->lock, NULL);
    d->watchdog = g;
    return TN_OK;
}

void tn_watchdog_end(tn_device *d) {
    tn_watchdog *g = d->watchdog;
    if (!g) return;
    for (waiter *w = g->idle, *next; w; w = next) {
        next = w->next;
        pthread_mutex_lock(&w->lock);
        w->state = STOPS;
        pthread_cond_broadcast(&w->changed);
        pthread_mutex_unlock(&w->lock);
        pthread_join(w->thread, NULL);
        waiter_free(w);
    }
    pthread_mutex_destroy(&g->lock);
    tn_mem_free(g);
    d->watchdog = NULL;
}
