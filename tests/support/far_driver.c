/* far_driver.c — see far_driver.h.
 *
 * A device's address is the host's with a bit set that no pointer has: who reads one as a pointer crashes. Launches
 * look up each buffer in the list of allocations, and run plain programs on the tile VM, programs of workgroups on the
 * interpreter, which is also a race detector. */
#include "far_driver.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DEVICES = 2, SHARED_MEMORY = 32 << 10 };
static const uintptr_t FAR_AWAY = (uintptr_t)1 << (sizeof(uintptr_t) * 8 - 2);

far_nature far_nature_now;
_Atomic int64_t far_hangs_after = -1;
_Atomic bool far_sync_hangs;
void (*far_loaded)(const kir_program *p);
void (*far_launching)(void);
far_counts far_counts_now;

typedef struct far_block {
    struct far_block *next;
    char *host;
    size_t bytes;
} far_block;

typedef struct far_device {
    pthread_mutex_t lock;
    far_block *blocks;
    int64_t taken, memory; /* memory 0: no limit */
} far_device;

typedef struct far_module {
    kir_vm *vm;          /* NULL: interpreted */
    kir_program program; /* its instructions and accesses are copies */
} far_module;

static void *near_of(const void *address) { return (void *)((uintptr_t)address ^ FAR_AWAY); }

static void far_probe(tn_probe *out) {
    for (int i = 0; i < DEVICES && i < out->capacity; i++) {
        tn_device_info *d = &out->devices[out->count++];
        snprintf(d->name, sizeof d->name, "far device %d", i);
        d->total_memory = d->free_memory = far_nature_now.memory ? far_nature_now.memory : (int64_t)1 << 40;
        d->software = true;
    }
}

static tn_status far_open_device(int index, const tn_device_options *options, void **device) {
    (void)options;
    if (index < 0 || index >= DEVICES) return tn_backend_fail(TN_ERR_ARGUMENT, "far:%d does not exist", index);
    far_device *d = tn_mem_zalloc(1, sizeof *d);
    if (!d) return TN_ERR_MEMORY;
    pthread_mutex_init(&d->lock, NULL);
    d->memory = far_nature_now.memory;
    *device = d;
    return TN_OK;
}

static void far_close(void *device) {
    far_device *d = device;
    if (d->blocks) {
        fprintf(stderr, "far device: closed while memory was in use\n");
        abort();
    }
    pthread_mutex_destroy(&d->lock);
    tn_mem_free(d);
}

static tn_status far_caps(void *device, tn_caps *out) {
    (void)device;
    const far_nature *n = &far_nature_now;
    *out = (tn_caps){
        .struct_size = sizeof *out,
        .code = TN_CODE_KIR,
        .f64 = !n->no_f64,
        .i64 = !n->no_i64,
        .f16 = !n->no_f16,
        .max_buffer = n->max_buffer ? n->max_buffer : INT64_MAX,
        .max_group = n->max_group ? n->max_group : 1024,
        .shared_memory = n->shared_memory ? n->shared_memory : SHARED_MEMORY,
        .alignment = 64,
        .host_visible = false,
        .exact = true,
        .matrix = n->matrix,
        .subgroup = n->subgroup,
        .processors = n->processors,
    };
    return TN_OK;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* Is [address, address + bytes) in one allocation? The caller holds the lock. */
static bool holds(const far_device *d, const void *address, size_t bytes) {
    uintptr_t at = (uintptr_t)near_of(address);
    for (const far_block *b = d->blocks; b; b = b->next) {
        uintptr_t start = (uintptr_t)b->host;
        if (at >= start && at - start <= b->bytes && bytes <= b->bytes - (at - start)) return true;
    }
    return false;
}

static bool is_there(far_device *d, const void *address, size_t bytes) {
    pthread_mutex_lock(&d->lock);
    bool yes = holds(d, address, bytes);
    pthread_mutex_unlock(&d->lock);
    return yes;
}

static bool take(far_device *d, far_block *b) {
    pthread_mutex_lock(&d->lock);
    bool fits = !d->memory || (int64_t)b->bytes <= d->memory - d->taken;
    if (fits) {
        d->taken += (int64_t)b->bytes;
        b->next = d->blocks;
        d->blocks = b;
    }
    pthread_mutex_unlock(&d->lock);
    return fits;
}

static tn_status far_alloc(void *device, size_t bytes, void **address) {
    far_block *b = tn_mem_zalloc(1, sizeof *b);
    char *host = tn_mem_alloc(bytes);
    if (b && host) {
        *b = (far_block){.host = host, .bytes = bytes};
        if (take(device, b)) {
            memset(host, 0xA5, bytes); /* what nobody wrote is no number that somebody hopes for */
            far_counts_now.allocs++;
            *address = near_of(host);
            return TN_OK;
        }
    }
    tn_mem_free(host);
    tn_mem_free(b);
    return TN_ERR_MEMORY;
}

static void far_free(void *device, void *address) {
    far_device *d = device;
    pthread_mutex_lock(&d->lock);
    far_block **link = &d->blocks;
    while (*link && (*link)->host != near_of(address))
        link = &(*link)->next;
    far_block *b = *link;
    if (!b) {
        fprintf(stderr, "far device: freed an address that was not allocated\n");
        abort();
    }
    *link = b->next;
    d->taken -= (int64_t)b->bytes;
    pthread_mutex_unlock(&d->lock);
    far_counts_now.frees++;
    tn_mem_free(b->host);
    tn_mem_free(b);
}

static tn_status far_copy(void *device, void *dst, const void *src, size_t bytes, int kind) {
    if (kind != 1 && !is_there(device, dst, bytes))
        return tn_backend_fail(TN_ERR_INTERNAL, "far device: %zu bytes copied to where no allocation is", bytes);
    if (kind != 0 && !is_there(device, src, bytes))
        return tn_backend_fail(TN_ERR_INTERNAL, "far device: %zu bytes copied from where no allocation is", bytes);
    if (kind == 0) far_counts_now.copies_in++;
    if (kind == 1) far_counts_now.copies_out++;
    if (kind == 2) far_counts_now.copies_within++;
    if (kind == 0) far_counts_now.bytes_in += (int64_t)bytes;
    if (kind == 1) far_counts_now.bytes_out += (int64_t)bytes;
    memmove(kind == 1 ? dst : near_of(dst), kind == 0 ? src : near_of(src), bytes);
    return TN_OK;
}

/* ---- code -------------------------------------------------------------------------------------------------------- */

static void far_unload(void *device, void *module) {
    (void)device;
    far_module *m = module;
    kir_vm_free(m->vm);
    tn_mem_free(m->program.ins);
    tn_mem_free(m->program.access);
    tn_mem_free(m);
}

static void *copy_of(const void *from, size_t bytes) {
    void *to = tn_mem_alloc(bytes);
    if (to && bytes) memcpy(to, from, bytes);
    return to;
}

static tn_status far_load(void *device, const tn_code *code, void **module) {
    const kir_program *p = code->data;
    if (far_nature_now.refuses_code) return tn_backend_fail(TN_ERR_DEVICE, "far device: it refuses all code");
    far_module *m = tn_mem_zalloc(1, sizeof *m);
    if (!m) return TN_ERR_MEMORY;
    m->program = *p;
    m->program.ins = copy_of(p->ins, (size_t)p->n_ins * sizeof *p->ins);
    m->program.access = copy_of(p->access, (size_t)p->n_access * sizeof *p->access);
    for (int i = 0; m->program.ins && i < m->program.n_ins; i++)
        if (far_nature_now.wrong_op && m->program.ins[i].op == far_nature_now.wrong_op) m->program.ins[i].op = KIR_NEG;
    tn_status s = m->program.ins && m->program.access ? kir_vm_compile(&m->program, &m->vm) : TN_ERR_MEMORY;
    if (s != TN_OK && s != TN_ERR_UNSUPPORTED) {
        far_unload(device, m);
        return s;
    }
    far_counts_now.loads++;
    if (far_loaded) far_loaded(p);
    *module = m;
    return TN_OK;
}

static tn_status launch_one(far_device *d, const far_module *m, const tn_launch *l) {
    void *buffers[KIR_MAX_BUFFERS] = {NULL};
    for (int b = 0; b < m->program.n_buffers; b++) {
        if (!l->buffers[b]) continue; /* memory of the workgroup */
        if (!is_there(d, l->buffers[b], 0))
            return tn_backend_fail(TN_ERR_INTERNAL, "far device: buffer %d of a launch lies in no allocation", b);
        buffers[b] = near_of(l->buffers[b]);
    }
    kir_launch k = {.sizes = l->sizes, .buffers = buffers, .scalars = l->scalars};
    return m->vm ? kir_vm_run(m->vm, &k, 1) : kir_interpret(&m->program, &k);
}

static tn_status far_launch(void *device, void *module, const tn_launch *launches, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        if (far_nature_now.loses && far_nature_now.launches_left-- <= 0)
            return tn_backend_fail(TN_ERR_DEVICE, "far device: it is lost");
        if (far_hangs_after == 0) {
            while (far_hangs_after == 0)
                (void)usleep(1000);
            return tn_backend_fail(TN_ERR_DEVICE, "far device: it hung");
        }
        if (far_hangs_after > 0) far_hangs_after--;
        if (far_launching) far_launching();
        TRY(launch_one(device, module, &launches[i]));
        far_counts_now.launches++;
        far_counts_now.group_launches += ((const far_module *)module)->program.n_items > 0;
    }
    return TN_OK;
}

/* Of the interpreter's memory nobody knows before. */
static tn_status far_prepare(void *device, void *module, const tn_launch *launches, int64_t count) {
    (void)device;
    const far_module *m = module;
    return m->vm ? kir_vm_reserve(m->vm, (const kir_launch *)(const void *)launches, count) : TN_OK;
}

static tn_status far_sync(void *device) {
    (void)device;
    far_counts_now.syncs++;
    while (far_sync_hangs)
        (void)usleep(1000);
    return TN_OK;
}

const tn_driver far_driver = {
    .struct_size = sizeof(tn_driver),
    .abi = TN_BACKEND_ABI,
    .name = "far",
    .title = "Far memory (for tests)",
    .probe = far_probe,
    .open = far_open_device,
    .close = far_close,
    .caps = far_caps,
    .alloc = far_alloc,
    .free = far_free,
    .load = far_load,
    .unload = far_unload,
    .launch = far_launch,
    .copy = far_copy,
    .sync = far_sync,
    .prepare = far_prepare,
};

tn_device *far_open(int index, const tn_device_options *options) {
    static bool registered;
    char id[16];
    snprintf(id, sizeof id, "far:%d", index);
    tn_device *d = NULL;
    tn_status s = registered ? TN_OK : tn_backend_register(&far_driver);
    registered = true;
    tn_device_options o = TN_DEVICE_DEFAULTS;
    o.fallback = TN_FALLBACK_STRICT;
    if (s == TN_OK) s = tn_device_open(id, options ? options : &o, NULL, &d);
    if (s == TN_OK) return d;
    fprintf(stderr, "%s: %s\n", id, tn_error());
    exit(1);
}
