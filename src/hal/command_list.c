/* command_list.c — launches of several kernels, gathered once and run many times with few calls of the driver.
 *
 * A plan that is run again launches the same kernels with the same sizes; only addresses and runtime scalars are
 * others. So what follows from the sizes is done when a list is made: which form of a kernel fits, how a launch is
 * divided, how many workgroups it takes, its block of parameters. A run puts addresses and runtime scalars in place and
 * hands all of it to the driver: as a form that the driver has made of the list (a graph), in one call where it takes
 * lists, else in one a row of launches of the same kernel. A list may outlive its device: the driver's form then goes
 * with the device. */
#include <pthread.h>
#include <string.h>

#include "hal/kernel_code.h"

/* One dispatch; what changes from run to run comes from `source`, which is the plan's. */
typedef struct item {
    void *module;
    const kir_program *program;
    const tn_launch *source;
    uint32_t groups[3];
    int n_buffers;                       /* global ones */
    size_t params_at, params, shifts_at; /* in the list's blocks */
} item;

/* A launch of a driver that takes programs as they are. */
typedef struct plain {
    tn_kernel *kernel;
    const tn_launch *launches;
    int64_t count;
} plain;

struct tn_command_list {
    tn_device *device;
    item *items;
    plain *plains;
    char *params;    /* of all items, behind each other */
    int64_t *shifts; /* of all items' buffers: bytes behind the source's address */
    size_t n_items, n_plains, params_bytes, n_shifts;
    size_t items_room, plains_room, params_room, shifts_room;
    tn_list_item *calls; /* as the driver gets them; made at the first run */
    void **buffers;
    void *format;                 /* the driver's; NULL: none */
    bool no_driver_list;          /* it was asked for one, and has none */
    struct tn_command_list *next; /* of the device's that have one */
};

/* of all devices' lists, and of `form` at their end */
static pthread_mutex_t driver_lists_lock = PTHREAD_MUTEX_INITIALIZER;

tn_status tn_command_list_new(tn_device *d, tn_command_list **out) {
    *out = tn_mem_zalloc(1, sizeof **out);
    if (!*out) return TN_ERR_MEMORY;
    (*out)->device = d;
    return TN_OK;
}

/* The caller holds the lock. */
static void drop_driver_list(tn_command_list *l) {
    tn_command_list **link = &l->device->lists;
    while (*link != l)
        link = &(*link)->next;
    *link = l->next;
    l->device->driver->list_free(l->device->handle, l->format);
    l->format = NULL;
}

void tn_command_lists_close(tn_device *d) {
    pthread_mutex_lock(&driver_lists_lock);
    while (d->lists)
        drop_driver_list(d->lists);
    pthread_mutex_unlock(&driver_lists_lock);
}

void tn_command_list_free(tn_command_list *l) {
    if (!l) return;
    pthread_mutex_lock(&driver_lists_lock);
    if (l->format) drop_driver_list(l);
    pthread_mutex_unlock(&driver_lists_lock);
    tn_mem_free(l->items);
    tn_mem_free(l->plains);
    tn_mem_free(l->params);
    tn_mem_free(l->shifts);
    tn_mem_free(l->calls);
    tn_mem_free(l->buffers);
    tn_mem_free(l);
}

/* ---- making ------------------------------------------------------------------------------------------------------ */

tn_status tn_command_list_take(tn_command_list *l, const kir_program *p, const tn_loaded *m, const tn_launch *source,
                               const tn_launch *part, const uint32_t groups[3]) {
    TRY(tn_mem_reserve(&l->items, &l->items_room, l->n_items + 1, sizeof *l->items));
    TRY(tn_mem_reserve(&l->params, &l->params_room, l->params_bytes + m->params_bytes, 1));
    TRY(tn_mem_reserve(&l->shifts, &l->shifts_room, l->n_shifts + (size_t)p->n_buffers, sizeof *l->shifts));
    item *i = &l->items[l->n_items++];
    *i = (item){.module = m->handle,
                .program = p,
                .source = source,
                .groups = {groups[0], groups[1], groups[2]},
                .n_buffers = tn_global_buffers(p),
                .params_at = l->params_bytes,
                .params = m->params_bytes,
                .shifts_at = l->n_shifts};
    tn_params_fill(p, part, m->params_bytes, l->params + i->params_at);
    for (int b = 0; b < p->n_buffers; b++)
        if (!tn_is_local(p, b))
            l->shifts[l->n_shifts++] = (int64_t)((uintptr_t)part->buffers[b] - (uintptr_t)source->buffers[b]);
    l->params_bytes += m->params_bytes;
    return TN_OK;
}

tn_status tn_command_list_add(tn_command_list *l, tn_kernel *k, const tn_launch *launches, int64_t count) {
    if (l->device->caps.code != TN_CODE_KIR) return tn_kernel_list(l->device, k, launches, count, l);
    TRY(tn_mem_reserve(&l->plains, &l->plains_room, l->n_plains + 1, sizeof *l->plains));
    l->plains[l->n_plains++] = (plain){k, launches, count};
    return TN_OK;
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

/* Where everything stays the same: modules, workgroups, where addresses and parameters are. */
static tn_status make_calls(tn_command_list *l) {
    tn_list_item *calls = tn_mem_zalloc(l->n_items, sizeof *calls);
    void **buffers = tn_mem_zalloc(l->n_shifts + 1, sizeof *buffers);
    if (!calls || !buffers) {
        tn_mem_free(calls);
        tn_mem_free(buffers);
        return TN_ERR_MEMORY;
    }
    for (size_t i = 0; i < l->n_items; i++) {
        const item *from = &l->items[i];
        calls[i].module = from->module;
        memcpy(calls[i].dispatch.groups, from->groups, sizeof from->groups);
        calls[i].dispatch.buffers = buffers + from->shifts_at;
        calls[i].dispatch.params = l->params + from->params_at;
    }
    l->calls = calls;
    l->buffers = buffers;
    return TN_OK;
}

/* Addresses and runtime scalars of this run. */
static void put_in_place(const tn_command_list *l, const item *i) {
    const kir_program *p = i->program;
    for (int b = 0, n = 0; b < i->n_buffers; b++, n++) {
        size_t at = i->shifts_at + (size_t)b;
        while (tn_is_local(p, n))
            n++;
        l->buffers[at] = (char *)i->source->buffers[n] + l->shifts[at];
    }
    if (p->n_scalars)
        memcpy(l->params + i->params_at + kir_sizes_count(p) * sizeof(int64_t), i->source->scalars,
               (size_t)p->n_scalars * sizeof(kir_scalar));
}

/* Without lists in the driver: a call for each row of dispatches of one module. */
static tn_status run_rows(const tn_command_list *l) {
    enum { AT_ONCE = 32 };
    tn_dispatch row[AT_ONCE];
    for (size_t i = 0; i < l->n_items;) {
        int n = 0;
        void *module = l->calls[i].module;
        while (i < l->n_items && n < AT_ONCE && l->calls[i].module == module)
            row[n++] = l->calls[i++].dispatch;
        TRY(l->device->driver->dispatch(tn_stream_handle(l->device), module, row, n));
    }
    return TN_OK;
}

/* Asks the driver for its form of the list, once. Whatever it lacks for one, the list is run as before. */
static tn_status need_driver_list(tn_command_list *l) {
    tn_device *d = l->device;
    void *driver_list = NULL;
    if (l->format || l->no_driver_list || !d->driver->list_make || !d->driver->list_run || !d->driver->list_free)
        return TN_OK;
    tn_status s = d->driver->list_make(d->handle, l->calls, (int64_t)l->n_items, &driver_list);
    l->no_driver_list = s != TN_OK && s != TN_ERR_LOST;
    if (s != TN_OK) return l->no_driver_list ? TN_OK : s;
    pthread_mutex_lock(&driver_lists_lock);
    l->format = driver_list;
    l->next = d->lists;
    d->lists = l;
    pthread_mutex_unlock(&driver_lists_lock);
    return TN_OK;
}

/* *ran: as the driver's form, with or without success. */
static tn_status run_driver_list(tn_command_list *l, bool *ran) {
    *ran = false;
    TRY(need_driver_list(l));
    if (!l->format) return TN_OK;
    tn_status s = l->device->driver->list_run(tn_stream_handle(l->device), l->format, l->calls, (int64_t)l->n_items);
    *ran = s != TN_ERR_UNSUPPORTED;
    if (*ran) return s;
    pthread_mutex_lock(&driver_lists_lock);
    drop_driver_list(l);
    pthread_mutex_unlock(&driver_lists_lock);
    l->no_driver_list = true;
    return TN_OK;
}

tn_status tn_command_list_run(tn_command_list *l) {
    for (size_t i = 0; i < l->n_plains; i++)
        TRY(tn_kernel_launch(l->device, l->plains[i].kernel, l->plains[i].launches, l->plains[i].count));
    if (!l->n_items) return TN_OK;
    if (!l->calls) TRY(make_calls(l));
    for (size_t i = 0; i < l->n_items; i++)
        put_in_place(l, &l->items[i]);
    bool ran;
    tn_status s = run_driver_list(l, &ran);
    if (ran || s != TN_OK) return s;
    const tn_driver *driver = l->device->driver;
    void *lane = tn_stream_handle(l->device);
    return driver->dispatch_list ? driver->dispatch_list(lane, l->calls, (int64_t)l->n_items) : run_rows(l);
}
