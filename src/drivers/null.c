/* null.c — a driver to copy: it has every function, computes nothing, and checks that it is used correctly.
 *
 * To write a driver for a new device, copy this file and implement the functions from top to bottom; the comments say
 * what each must do and what it may rely on. Nothing here knows ops such as matmul: a driver knows memory, code and
 * launches. Then either add one row to the table in drivers/drivers.c, or, outside the library, call
 * tn_backend_register before the first listing (include only trunnion/backend.h, use tn_backend_fail for errors and
 * your own allocator).
 *
 * A driver may rely on this: arguments are checked, a device is closed after all of its modules and memory were freed,
 * and calls on one device may come from several threads at once.
 *
 * This driver counts calls and notes faults (drivers.h), so that tests can see what the layers above do with a device.
 * Its device addresses are deliberately not pointers: code that dereferences one crashes in the test. It is listed only
 * after tn_backend_register(&tn_driver_null), or with TRUNNION_NULL=1 in the environment. */
#include "drivers/drivers.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "kir/kir.h"
#include "trunnion/backend.h"

/* ---- counting and checking: a real driver has none of this ------------------------------------------------------- */

static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static tn_null_counts counts;

tn_null_counts tn_null_get_counts(void) {
    AUTO_LOCK(&guard);
    return counts;
}

void tn_null_reset_counts(void) {
    AUTO_LOCK(&guard);
    counts = (tn_null_counts){.live_blocks = counts.live_blocks, .live_modules = counts.live_modules};
}

/* Notes a fault in words and fails with them. The caller holds the guard. */
static tn_status fault(const char *what) {
    if (counts.faults++ == 0) snprintf(counts.first_fault, sizeof counts.first_fault, "%s", what);
    return tn_backend_fail(TN_ERR_INTERNAL, "null driver: %s", what);
}

/* ---- finding devices --------------------------------------------------------------------------------------------- */

/* Fill out->devices (at most out->capacity) and out->count; or, if there are none, reason_code (a word of
 * docs/devices.md), reason and fix. Leave the process as it was: no threads, no signal handlers, no output. If the
 * vendor's library cannot guarantee that, set .isolate, and the probe runs in a child process. */
static void null_probe(tn_probe *out) {
    if (out->capacity < 1) return;
    tn_device_info *d = &out->devices[0];
    snprintf(d->name, sizeof d->name, "null device (computes nothing)");
    d->total_memory = d->free_memory = (int64_t)1 << 30;
    d->software = true; /* keeps `auto` away as long as there is anything else */
    out->count = 1;
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

/* The driver's data of a device: its context, its queue, whatever calls need. */
typedef struct null_device {
    struct block *blocks;
    int64_t block_count, module_count;
} null_device;

/* Opens the index-th device that the probe found. On failure free everything and report the failed call and its code:
 * tn_backend_fail(TN_ERR_DEVICE, "mychip:0: mcOpen gives error %d; …what to do"). */
static tn_status null_open(int index, TN_UNUSED const tn_device_options *options, void **device) {
    if (index != 0) return tn_backend_fail(TN_ERR_ARGUMENT, "null:%d does not exist", index);
    null_device *d = tn_mem_zalloc(1, sizeof *d);
    if (!d) return TN_ERR_MEMORY;
    pthread_mutex_lock(&guard);
    counts.opens++;
    pthread_mutex_unlock(&guard);
    *device = d;
    return TN_OK;
}

/* The opposite. Cannot fail. */
static void null_close(void *device) {
    null_device *d = device;
    pthread_mutex_lock(&guard);
    counts.closes++;
    if (d->block_count) (void)fault("closed while memory was in use");
    if (d->module_count) (void)fault("closed while modules were loaded");
    pthread_mutex_unlock(&guard);
    tn_mem_free(d);
}

/* The capabilities of the device; asked once after open. `code` decides what load() gets. */
static tn_status null_caps(TN_UNUSED void *device, tn_caps *out) {
    *out = (tn_caps){
        .struct_size = sizeof *out,
        .code = TN_CODE_KIR, /* a driver outside the library takes a text form: TN_CODE_OPENCL_C, … */
        .f64 = true,
        .i64 = true,
        .max_buffer = (int64_t)1 << 30,
        .max_group = 1,
        .alignment = 64,
        .host_visible = false,
        .max_bindings = 32,
        .exact = true,
        .version = "1", /* what a change of would make other code of the same kernel */
    };
    return TN_OK;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* One allocation. Its address as the layers above see it is `host` moved to where no pointer can point. */
typedef struct block {
    struct block *next;
    char *host;
    size_t bytes;
} block;

static const uintptr_t FAR_AWAY = (uintptr_t)1 << (sizeof(uintptr_t) * 8 - 2);

static void *far(char *host) { return (void *)((uintptr_t)host ^ FAR_AWAY); }

/* The block that holds `bytes` bytes from `address`; NULL if none does. The caller holds the guard. */
static block *block_of(null_device *d, const void *address, size_t bytes) {
    uintptr_t at = (uintptr_t)address ^ FAR_AWAY;
    for (block *b = d->blocks; b; b = b->next) {
        uintptr_t start = (uintptr_t)b->host;
        if (at >= start && at - start <= b->bytes && bytes <= b->bytes - (at - start)) return b;
    }
    return NULL;
}

/* `bytes` bytes, aligned to 64. The address is a number to which offsets can be added: hal and kernels pass address + n
 * and mean n bytes further. An interface with handles reserves its own range of addresses and looks them up. Return
 * TN_ERR_MEMORY if memory is out: hal frees cached blocks, tries again, and only then reports the error. */
static tn_status null_alloc(void *device, size_t bytes, void **address) {
    null_device *d = device;
    block *b = tn_mem_zalloc(1, sizeof *b);
    if (!b) return TN_ERR_MEMORY;
    b->host = tn_mem_alloc(bytes);
    if (!b->host) {
        tn_mem_free(b);
        return TN_ERR_MEMORY;
    }
    b->bytes = bytes;
    pthread_mutex_lock(&guard);
    b->next = d->blocks;
    d->blocks = b;
    d->block_count++;
    counts.allocs++;
    counts.live_blocks++;
    pthread_mutex_unlock(&guard);
    *address = far(b->host);
    return TN_OK;
}

/* Gives an address from alloc back. hal has called sync before. */
static void null_free(void *device, void *address) {
    null_device *d = device;
    pthread_mutex_lock(&guard);
    block **link = &d->blocks;
    while (*link && far((*link)->host) != address)
        link = &(*link)->next;
    block *b = *link;
    counts.frees++;
    if (b) {
        *link = b->next;
        d->block_count--;
        counts.live_blocks--;
    } else {
        (void)fault("freed an address that was not allocated");
    }
    pthread_mutex_unlock(&guard);
    if (!b) return;
    tn_mem_free_each(b->host, b);
}

/* Copies between host and device (kind 0: to the device, 1: to the host) or within the device (2), ordered with
 * launches. When it returns, the host memory may be reused or read. */
static tn_status null_copy(void *device, void *dst, const void *src, size_t bytes, int kind) {
    null_device *d = device;
    tn_status s = TN_OK;
    pthread_mutex_lock(&guard);
    counts.copies++;
    if (kind != 1 && !block_of(d, dst, bytes)) s = fault("copied to an address outside of any allocation");
    if (kind != 0 && !block_of(d, src, bytes)) s = fault("copied from an address outside of any allocation");
    pthread_mutex_unlock(&guard);
    if (s != TN_OK) return s;
    void *to = kind == 1 ? dst : (void *)((uintptr_t)dst ^ FAR_AWAY);
    const void *from = kind == 0 ? src : (const void *)((uintptr_t)src ^ FAR_AWAY);
    memmove(to, from, bytes);
    return TN_OK;
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

/* A loaded kernel. This driver only notes how many buffers a launch has to have. */
typedef struct null_module {
    int buffers;
} null_module;

/* Loads code so that it can be launched: compile code->data in the format that caps named. Put the compiler's log into
 * the error text. */
static tn_status null_load(void *device, const tn_code *code, void **module) {
    null_device *d = device;
    const kir_program *p = code->data;
    null_module *m = tn_mem_zalloc(1, sizeof *m);
    if (!m) return TN_ERR_MEMORY;
    m->buffers = p->n_buffers;
    pthread_mutex_lock(&guard);
    d->module_count++;
    counts.loads++;
    counts.live_modules++;
    pthread_mutex_unlock(&guard);
    *module = m;
    return TN_OK;
}

static void null_unload(void *device, void *module) {
    null_device *d = device;
    pthread_mutex_lock(&guard);
    d->module_count--;
    counts.unloads++;
    counts.live_modules--;
    pthread_mutex_unlock(&guard);
    tn_mem_free(module);
}

/* Starts `count` launches of one kernel, after everything submitted to the device before; the launches do not depend on
 * each other. Copy what you need of sizes and runtime scalars, which may be freed after the call. It need not wait for
 * completion. */
static tn_status null_launch(void *device, void *module, const tn_launch *launches, int64_t count) {
    null_device *d = device;
    const null_module *m = module;
    AUTO_LOCK(&guard);
    counts.launches += count;
    for (int64_t i = 0; i < count; i++)
        for (int b = 0; b < m->buffers; b++)
            if (!block_of(d, launches[i].buffers[b], 0))
                return fault("launched with a buffer outside of any allocation");
    return TN_OK;
}

/* A driver of a text form has no launch but dispatch: the kernel is rendered, sizes and runtime scalars stand packed in
 * dispatch->params, and what is left is to bind the buffers and the struct and to start groups[0..2] workgroups:
 *
 *     static tn_status mychip_dispatch(void *device, void *module, const tn_dispatch *dispatches, int64_t count);
 */

/* Waits until everything given to the device has ended; reports what failed meanwhile. */
static tn_status null_sync(TN_UNUSED void *device) {
    AUTO_LOCK(&guard);
    counts.syncs++;
    return TN_OK;
}

/* ---- the driver -------------------------------------------------------------------------------------------------- */

const tn_driver tn_driver_null = {
    .struct_size = sizeof(tn_driver),
    .abi = TN_BACKEND_ABI,
    .name = "null",
    .title = "Null driver",
    .probe = null_probe,
    .open = null_open,
    .close = null_close,
    .caps = null_caps,
    .alloc = null_alloc,
    .free = null_free,
    .load = null_load,
    .unload = null_unload,
    .launch = null_launch,
    .copy = null_copy,
    .sync = null_sync,
    /* .binary, when the compiler's result can be kept on disk;
     * .memory, when the interface tells how much is free; .watch and .isolate, when looking for devices loads a library
     * that is better not loaded into every process: see backend.h */
};
