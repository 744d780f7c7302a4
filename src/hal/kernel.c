/* kernel.c — from a kernel program to what a driver loads, once a structure and device.
 *
 * Programs of equal structure share one kernel: the table is keyed by the structure's hash and a hit is verified with
 * kir_equal, so a collision costs a compilation and never a wrong answer. Loading happens outside the lock; when two
 * threads load the same structure at once, the first one's kernel stays and the other's is unloaded.
 *
 * A kernel lives while a plan uses it, and a while longer: the table keeps MOST_IDLE that nobody uses, the latest of
 * them, so that a plan which was dropped and comes back compiles nothing, and a program of ever new shapes does not
 * grow for ever. A plan may outlive its device: what it still holds then is a name without a module. */
#include <pthread.h>
#include <string.h>

#include "hal/hal.h"

typedef struct kernel_table kernel_table;

struct tn_kernel {
    void *module;         /* the driver's */
    kir_program *program; /* own copy, to verify hits */
    kernel_table *table;
    struct tn_kernel *next;          /* same slot */
    int users;                       /* guarded by the table's lock, as all below */
    struct tn_kernel *older, *newer; /* among the idle */
};

enum { FIRST_SLOTS = 64, MOST_IDLE = 512 };

struct kernel_table {
    pthread_mutex_t lock;
    tn_device *device; /* NULL once it has ended */
    tn_kernel **slots;
    size_t slot_count, kernel_count; /* slot_count is a power of two */
    size_t used_count, idle_count;
    tn_kernel *oldest, *newest; /* idle, by the time at which the last user left */
};

tn_status tn_kernels_open(tn_device *d) {
    kernel_table *t = tn_mem_zalloc(1, sizeof *t);
    if (!t) return TN_ERR_MEMORY;
    t->slots = tn_mem_zalloc(FIRST_SLOTS, sizeof *t->slots);
    if (!t->slots) {
        tn_mem_free(t);
        return TN_ERR_MEMORY;
    }
    t->slot_count = FIRST_SLOTS;
    t->device = d;
    pthread_mutex_init(&t->lock, NULL);
    d->kernels = t;
    return TN_OK;
}

/* A copy in one block; kir_equal needs no more than this. */
static kir_program *program_copy(const kir_program *p) {
    size_t ins = (size_t)p->n_ins * sizeof *p->ins, access = (size_t)p->n_access * sizeof *p->access;
    kir_program *copy = tn_mem_alloc(sizeof *copy + ins + access);
    if (!copy) return NULL;
    *copy = *p;
    copy->ins = (kir_ins *)(copy + 1);
    copy->access = (kir_access *)((char *)copy->ins + ins);
    if (ins) memcpy(copy->ins, p->ins, ins);
    if (access) memcpy(copy->access, p->access, access);
    return copy;
}
_Static_assert(sizeof(kir_program) % _Alignof(kir_ins) == 0, "instructions follow the program in one block");
_Static_assert(sizeof(kir_ins) % _Alignof(kir_access) == 0, "accesses follow the instructions");

static void kernel_free(tn_device *d, tn_kernel *k) {
    if (k->module) d->driver->unload(d->handle, k->module);
    tn_mem_free(k->program);
    tn_mem_free(k);
}

static void table_free(kernel_table *t) {
    pthread_mutex_destroy(&t->lock);
    tn_mem_free(t->slots);
    tn_mem_free(t);
}

/* Frees what is idle; what is in use loses its module and goes with its last user, and
 * the table with the last of all. */
void tn_kernels_close(tn_device *d) {
    kernel_table *t = d->kernels;
    if (!t) return;
    d->kernels = NULL;
    pthread_mutex_lock(&t->lock);
    for (size_t i = 0; i < t->slot_count; i++) {
        tn_kernel *next;
        for (tn_kernel *k = t->slots[i]; k; k = next) {
            next = k->next;
            if (!k->users) {
                kernel_free(d, k);
            } else if (k->module) {
                d->driver->unload(d->handle, k->module);
                k->module = NULL;
            }
        }
    }
    t->device = NULL;
    bool unused = t->used_count == 0;
    pthread_mutex_unlock(&t->lock);
    if (unused) table_free(t);
}

/* ---- the idle ---------------------------------------------------------------------------------------------------- */

static void idle_take_out(kernel_table *t, tn_kernel *k) {
    *(k->older ? &k->older->newer : &t->oldest) = k->newer;
    *(k->newer ? &k->newer->older : &t->newest) = k->older;
    k->older = k->newer = NULL;
    t->idle_count--;
}

static void idle_put_in(kernel_table *t, tn_kernel *k) {
    k->older = t->newest;
    *(t->newest ? &t->newest->newer : &t->oldest) = k;
    t->newest = k;
    t->idle_count++;
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

static tn_kernel *table_find(const kernel_table *t, const kir_program *p) {
    tn_kernel *k = t->slots[p->hash & (t->slot_count - 1)];
    while (k && !(k->program->hash == p->hash && kir_equal(k->program, p)))
        k = k->next;
    return k;
}

static void table_link(kernel_table *t, tn_kernel *k) {
    tn_kernel **slot = &t->slots[k->program->hash & (t->slot_count - 1)];
    k->next = *slot;
    *slot = k;
}

static void table_unlink(kernel_table *t, tn_kernel *k) {
    tn_kernel **link = &t->slots[k->program->hash & (t->slot_count - 1)];
    while (*link != k)
        link = &(*link)->next;
    *link = k->next;
    t->kernel_count--;
}

/* Doubles the slots when they are full. Growing is for speed alone: without memory for it the table stays as it is. */
static void table_grow(kernel_table *t) {
    if (t->kernel_count < t->slot_count) return;
    tn_kernel **bigger = tn_mem_zalloc(t->slot_count * 2, sizeof *bigger);
    if (!bigger) return;
    tn_kernel **old = t->slots;
    size_t old_count = t->slot_count;
    t->slots = bigger;
    t->slot_count *= 2;
    for (size_t i = 0; i < old_count; i++) {
        tn_kernel *next;
        for (tn_kernel *k = old[i]; k; k = next) {
            next = k->next;
            table_link(t, k);
        }
    }
    tn_mem_free(old);
}

static tn_status kernel_load(tn_device *d, const kir_program *p, tn_kernel **out) {
    if (d->caps.code != TN_CODE_KIR)
        return tn_fail(TN_ERR_UNSUPPORTED, "%s: no renderer for the kernel language that this driver takes",
                       d->info.id);
    tn_kernel *k = tn_mem_zalloc(1, sizeof *k);
    if (!k) return TN_ERR_MEMORY;
    tn_status s = TN_ERR_MEMORY;
    k->program = program_copy(p);
    if (k->program) {
        tn_code code = {.form = TN_CODE_KIR, .data = k->program, .size = sizeof *p, .entry = "kernel"};
        s = d->driver->load(d->handle, &code, &k->module);
    }
    if (s != TN_OK) {
        kernel_free(d, k);
        return s;
    }
    *out = k;
    return TN_OK;
}

/* One user more of a kernel that is in the table. */
static tn_kernel *kernel_use(kernel_table *t, tn_kernel *k) {
    if (k && k->users++ == 0) {
        idle_take_out(t, k);
        t->used_count++;
    }
    return k;
}

/* A kernel that was just loaded, for its first user. */
static tn_kernel *table_add(kernel_table *t, tn_kernel *k) {
    table_grow(t);
    table_link(t, k);
    t->kernel_count++;
    k->table = t;
    k->users = 1;
    t->used_count++;
    return k;
}

tn_status tn_kernel_get(tn_device *d, const kir_program *p, tn_kernel **out) {
    kernel_table *t = d->kernels;
    pthread_mutex_lock(&t->lock);
    *out = kernel_use(t, table_find(t, p));
    pthread_mutex_unlock(&t->lock);
    if (*out) return TN_OK;

    tn_kernel *mine = NULL;
    TRY(kernel_load(d, p, &mine));
    pthread_mutex_lock(&t->lock);
    *out = kernel_use(t, table_find(t, p)); /* another thread may have been quicker */
    if (!*out) *out = table_add(t, mine);
    pthread_mutex_unlock(&t->lock);
    if (*out != mine) kernel_free(d, mine);
    return TN_OK;
}

/* The caller holds the lock. Returns a kernel to be freed, or NULL; *ended: the table goes too. */
static tn_kernel *kernel_leave(kernel_table *t, tn_kernel *k, bool *ended) {
    if (--k->users > 0) return NULL;
    t->used_count--;
    if (!t->device) {
        *ended = t->used_count == 0;
        return k;
    }
    idle_put_in(t, k);
    if (t->idle_count <= MOST_IDLE) return NULL;
    tn_kernel *last = t->oldest;
    idle_take_out(t, last);
    table_unlink(t, last);
    return last;
}

void tn_kernel_release(tn_kernel *k) {
    if (!k) return;
    kernel_table *t = k->table;
    bool ended = false;
    pthread_mutex_lock(&t->lock);
    tn_kernel *last = kernel_leave(t, k, &ended);
    if (last) kernel_free(t->device, last); /* under the lock: the device may end as soon as it is open */
    pthread_mutex_unlock(&t->lock);
    if (ended) table_free(t);
}

tn_status tn_kernel_launch(tn_device *d, const tn_kernel *k, const tn_launch *launches, int64_t count) {
    return d->driver->launch(d->handle, k->module, launches, count);
}

tn_status tn_kernel_prepare(tn_device *d, const tn_kernel *k, const tn_launch *launches, int64_t count) {
    return d->driver->prepare ? d->driver->prepare(d->handle, k->module, launches, count) : TN_OK;
}
