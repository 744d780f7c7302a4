/* kernel.c — loaded kernels, one per structure and device; command lists; row split.
 *
 * Programs of equal structure share one kernel. The table is keyed by the structure's hash, and a hit is verified with
 * kir_equal, so a collision costs a compilation and never gives a wrong result. Kernels are loaded outside the lock. If
 * another thread is already loading the same structure, the caller waits for it, and loads only if that fails.
 *
 * A kernel lives as long as a plan uses it. The table also keeps the MOST_IDLE most recently used idle kernels: a plan
 * that is dropped and made again compiles nothing, and a program with ever new shapes does not grow without bound. A
 * plan may outlive its device; its kernels then have a name but no module.
 *
 * A rendered kernel has a variant with 32-bit and one with 64-bit indices. The sizes of a launch decide which is
 * needed; each is compiled on first use. So is the row-split variant (a workgroup shares a row), which computes the
 * same bits. Programs that the device's compiler refused are remembered while the device is open, because placement
 * asks before it plans (tn_kernel_supported). */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "hal/kernel_code.h"

/* Whether a launch of a program with loops runs faster when workgroups share its rows (gpu/gpu.h). */
static bool row_split_pays(const tn_device *d, const kir_program *p, const kir_rows *rows, const int64_t *sizes);

typedef struct kernel_table kernel_table;

enum { WIDE, NARROW, WIDTHS }; /* indices of 64 bits; of 32. KIR itself is wide */

struct tn_kernel {
    kir_program *program;    /* own copy, to verify hits */
    pthread_mutex_t running; /* modules and room, while the kernel is launched */
    tn_loaded modules[WIDTHS];
    char *room;         /* a runner's; not on the cpu */
    int64_t *sizes;     /* of one part of a launch; not on the cpu */
    kir_rows *schedule; /* NULL: none, or the device cannot run it */
    int64_t *row_sizes; /* of a launch of it */
    struct tn_kernel *rows;
    kernel_table *table;
    struct tn_kernel *next;          /* same slot */
    int users;                       /* guarded by the table's lock, as all below */
    struct tn_kernel *older, *newer; /* among the idle */
};

/* A structure that the device's compiler refused, and why. */
typedef struct refusal {
    kir_program *program;
    tn_status status;
    char why[400];
    struct refusal *next;
} refusal;

/* A structure that a thread is loading now; on that thread's stack. */
typedef struct loading {
    const kir_program *program;
    struct loading *next;
} loading;

enum { FIRST_SLOTS = 64, MOST_IDLE = 512 };

struct kernel_table {
    pthread_mutex_t lock;
    tn_device *device; /* NULL once it has ended */
    tn_kernel **slots;
    size_t slot_count, kernel_count; /* slot_count is a power of two */
    size_t used_count, idle_count;
    tn_kernel *oldest, *newest; /* idle, by the time at which the last user left */
    refusal *refusals;
    loading *loads;
    pthread_cond_t loaded; /* one of them has ended */
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
    pthread_cond_init(&t->loaded, NULL);
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

static void kernel_unload(tn_device *d, tn_kernel *k) {
    for (int i = 0; i < WIDTHS; i++)
        tn_code_unload(d, &k->modules[i]);
    if (k->rows) kernel_unload(d, k->rows);
}

static void kernel_free(tn_device *d, tn_kernel *k) {
    if (k->rows) kernel_free(d, k->rows);
    k->rows = NULL;
    kernel_unload(d, k);
    pthread_mutex_destroy(&k->running);
    kir_rows_free(k->schedule);
    tn_mem_free_each(k->row_sizes, k->program, k->room, k->sizes, k);
}

static void table_free(kernel_table *t) {
    pthread_mutex_destroy(&t->lock);
    pthread_cond_destroy(&t->loaded);
    tn_mem_free_each(t->slots, t);
}

static void refusals_free(kernel_table *t) {
    while (t->refusals) {
        refusal *r = t->refusals;
        t->refusals = r->next;
        tn_mem_free_each(r->program, r);
    }
}

/* Frees idle kernels. A kernel in use loses its module and is freed by its last user, the table with the last
 * kernel. */
void tn_kernels_close(tn_device *d) {
    kernel_table *t = d->kernels;
    if (!t) return;
    d->kernels = NULL;
    pthread_mutex_lock(&t->lock);
    for (size_t i = 0; i < t->slot_count; i++) {
        tn_kernel *next;
        for (tn_kernel *k = t->slots[i]; k; k = next) {
            next = k->next;
            if (!k->users)
                kernel_free(d, k);
            else
                kernel_unload(d, k);
        }
    }
    refusals_free(t);
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

/* Doubles the slots when they are full. Without memory the table stays as it is; look-ups are only slower. */
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

/* A GPU multiplies 32-bit integers several times faster. A CPU's compiler vectorizes only loops whose indices are as
 * wide as its addresses, if it has vector units. */
static int usual_width(const tn_device *d) {
    bool wide = d->caps.code == TN_CODE_KIR || (d->info.software && d->caps.i64);
    return wide ? WIDE : NARROW;
}

/* Loads one width if it is not there yet. */
static tn_status need_width(tn_device *d, tn_kernel *k, int width) {
    return k->modules[width].handle ? TN_OK : tn_code_load(d, k->program, width == NARROW, &k->modules[width]);
}

/* The memory that a launch takes, at once: later launches take none. */
static tn_status take_room(tn_kernel *k, int width) {
    k->room = tn_mem_alloc(tn_code_room(k->program, &k->modules[width]));
    k->sizes = tn_mem_zalloc(kir_sizes_count(k->program) + 1, sizeof *k->sizes);
    return k->room && k->sizes ? TN_OK : TN_ERR_MEMORY;
}

/* How workgroups would share the rows of this program, where that is possible. */
static tn_status make_schedule(tn_device *d, tn_kernel *k) {
    tn_status s = kir_schedule_rows(k->program, &k->schedule);
    if (s != TN_OK) return s == TN_ERR_UNSUPPORTED ? TN_OK : s;
    if (!tn_kernel_supported(d, k->schedule->program, NULL, NULL)) {
        kir_rows_free(k->schedule);
        k->schedule = NULL;
        return TN_OK;
    }
    k->row_sizes = tn_mem_zalloc(kir_sizes_count(k->schedule->program), sizeof *k->row_sizes);
    return k->row_sizes ? TN_OK : TN_ERR_MEMORY;
}

static tn_status kernel_load(tn_device *d, const kir_program *p, tn_kernel **out) {
    tn_kernel *k = tn_mem_zalloc(1, sizeof *k);
    if (!k) return TN_ERR_MEMORY;
    pthread_mutex_init(&k->running, NULL);
    int width = usual_width(d);
    k->program = program_copy(p);
    tn_status s = k->program ? need_width(d, k, width) : TN_ERR_MEMORY;
    if (s == TN_OK && !d->is_cpu) s = take_room(k, width);
    if (s == TN_OK && d->caps.code != TN_CODE_KIR) s = make_schedule(d, k);
    if (s == TN_OK)
        *out = k;
    else
        kernel_free(d, k);
    return s;
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

/* The caller holds the lock. */
static const refusal *find_refusal(const kernel_table *t, const kir_program *p) {
    const refusal *r = t->refusals;
    while (r && !(r->program->hash == p->hash && kir_equal(r->program, p)))
        r = r->next;
    return r;
}

/* Failures that may pass by themselves are not remembered. Without memory to remember one, the compiler is asked
 * again. */
static void remember_refusal(kernel_table *t, const kir_program *p, tn_status s) {
    if (s == TN_ERR_MEMORY || s == TN_ERR_LOST || s == TN_ERR_DEVICE) return;
    char why[sizeof t->refusals->why];
    snprintf(why, sizeof why, "%s", tn_error());
    refusal *r = tn_mem_zalloc(1, sizeof *r);
    if (r) r->program = program_copy(p);
    if (!r || !r->program) {
        tn_mem_free(r);
        (void)tn_fail(s, "%s", why);
        return;
    }
    r->status = s;
    memcpy(r->why, why, sizeof why);
    AUTO_LOCK(&t->lock);
    r->next = t->refusals;
    t->refusals = r;
}

bool tn_kernel_refused(tn_device *d, const kir_program *p, char *why, size_t size) {
    kernel_table *t = d->kernels;
    AUTO_LOCK(&t->lock);
    const refusal *r = find_refusal(t, p);
    if (r && size) snprintf(why, size, "%s", r->why);
    return r != NULL;
}

/* ---- getting and launching --------------------------------------------------------------------------------------- */

/* Adds a user to a kernel in the table. */
static tn_kernel *kernel_use(kernel_table *t, tn_kernel *k) {
    if (k && k->users++ == 0) {
        idle_take_out(t, k);
        t->used_count++;
    }
    return k;
}

/* A kernel that was just loaded, for its first user. */
static void table_add(kernel_table *t, tn_kernel *k) {
    table_grow(t);
    table_link(t, k);
    t->kernel_count++;
    k->table = t;
    k->users = 1;
    t->used_count++;
}

static bool is_loading(const kernel_table *t, const kir_program *p) {
    const loading *l = t->loads;
    while (l && !(l->program->hash == p->hash && kir_equal(l->program, p)))
        l = l->next;
    return l != NULL;
}

/* A kernel that is in the table, or that another thread is loading, with one more user; or the compiler's earlier
 * refusal. Otherwise *out is NULL and this thread must load it. */
static tn_status kernel_known(kernel_table *t, const kir_program *p, loading *mine, tn_kernel **out) {
    AUTO_LOCK(&t->lock);
    while (is_loading(t, p))
        pthread_cond_wait(&t->loaded, &t->lock);
    *out = kernel_use(t, table_find(t, p));
    const refusal *r = *out ? NULL : find_refusal(t, p);
    tn_status s = r ? tn_fail(r->status, "%s", r->why) : TN_OK;
    if (!*out && s == TN_OK) {
        *mine = (loading){p, t->loads};
        t->loads = mine;
    }
    return s;
}

/* kernel: NULL when it could not be loaded. */
static void loading_end(kernel_table *t, const loading *mine, tn_kernel *kernel) {
    AUTO_LOCK(&t->lock);
    loading **link = &t->loads;
    while (*link != mine)
        link = &(*link)->next;
    *link = mine->next;
    if (kernel) table_add(t, kernel);
    pthread_cond_broadcast(&t->loaded);
}

tn_status tn_kernel_get(tn_device *d, const kir_program *p, tn_kernel **out) {
    kernel_table *t = d->kernels;
    loading mine;
    TRY(kernel_known(t, p, &mine, out));
    if (*out) return TN_OK;
    tn_status s = kernel_load(d, p, out);
    if (s != TN_OK && !d->is_cpu) remember_refusal(t, p, s);
    loading_end(t, &mine, *out);
    return s;
}

const kir_vm *tn_kernel_vm(const tn_kernel *k) { return k->modules[WIDE].handle; }

/* The caller holds the lock. Returns a kernel to be freed, or NULL; *ended: the table is to be freed too. */
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

void tn_kernels_drop(tn_device *d) {
    kernel_table *t = d->kernels;
    AUTO_LOCK(&t->lock);
    while (t->oldest) {
        tn_kernel *k = t->oldest;
        idle_take_out(t, k);
        table_unlink(t, k);
        kernel_free(d, k);
    }
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

static int kernel_width_of(const tn_device *d, const tn_kernel *k, const int64_t *sizes) {
    return usual_width(d) == NARROW && tn_launch_is_narrow(k->program, sizes) ? NARROW : WIDE;
}

/* The kernel for this launch: k, or its row-split variant, for which *launch is then changed. If that is not available
 * for any reason, k is used. */
static tn_kernel *kernel_for(tn_device *d, tn_kernel *k, tn_launch *launch) {
    if (!k->schedule || !row_split_pays(d, k->program, k->schedule, launch->sizes)) return k;
    if (!k->rows) {
        tn_status s = kernel_load(d, k->schedule->program, &k->rows);
        if (s == TN_OK || s == TN_ERR_MEMORY) return k->rows ? kernel_for(d, k, launch) : k;
        kir_rows_free(k->schedule);
        k->schedule = NULL;
        return k;
    }
    kir_schedule_sizes(k->schedule, launch->sizes, k->row_sizes);
    tn_launch rows = {k->row_sizes, launch->buffers, launch->scalars};
    if (tn_launch_split(k->rows->program, &rows, tn_reach(d, k->rows->program), d->caps.alignment, k->rows->sizes, NULL,
                        NULL) != TN_OK)
        return k;
    *launch = rows;
    return k->rows;
}

static tn_status launch_one(tn_runner *r, tn_kernel *k, const tn_launch *launch) {
    tn_device *d = r->device;
    int width = kernel_width_of(d, k, launch->sizes);
    if (r->m != &k->modules[width]) {
        TRY(tn_runner_flush(r));
        TRY(need_width(d, k, width));
        r->p = k->program;
        r->m = &k->modules[width];
        r->room = k->room;
    }
    return tn_launch_split(k->program, launch, tn_reach(d, k->program), d->caps.alignment, k->sizes, tn_runner_add, r);
}

tn_status tn_kernel_launch(tn_device *d, tn_kernel *k, const tn_launch *launches, int64_t count) {
    if (!d->is_cpu) TRY(tn_launch_check(k->program, launches, count));
    tn_device_works(d);
    if (d->caps.code == TN_CODE_KIR && tn_reach(d, k->program) == INT64_MAX)
        return d->driver->launch(tn_stream_handle(d), k->modules[WIDE].handle, launches, count);
    AUTO_LOCK(&k->running);
    tn_runner r = {.device = d};
    for (int64_t i = 0; i < count; i++) {
        tn_launch launch = launches[i];
        tn_kernel *fit = kernel_for(d, k, &launch);
        TRY(launch_one(&r, fit, &launch));
    }
    return tn_runner_flush(&r);
}

static tn_status tn_kernel_list(tn_device *d, tn_kernel *k, const tn_launch *launches, int64_t count,
                                tn_command_list *list) {
    tn_runner r = {.device = d, .list = list};
    tn_status s = tn_launch_check(k->program, launches, count);
    AUTO_LOCK(&k->running);
    for (int64_t i = 0; i < count && s == TN_OK; i++) {
        tn_launch launch = launches[i];
        tn_kernel *fit = kernel_for(d, k, &launch);
        r.source = &launches[i];
        s = launch_one(&r, fit, &launch);
    }
    return s;
}

/* All that the same launch could fail for before the driver is called. */
static tn_status prepare_widths(tn_device *d, tn_kernel *k, const tn_launch *launches, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        tn_launch launch = launches[i];
        tn_kernel *fit = kernel_for(d, k, &launch);
        TRY(need_width(d, fit, kernel_width_of(d, fit, launch.sizes)));
        TRY(tn_launch_split(fit->program, &launch, tn_reach(d, fit->program), d->caps.alignment, fit->sizes, NULL,
                            NULL));
    }
    return TN_OK;
}

tn_status tn_kernel_prepare(tn_device *d, tn_kernel *k, const tn_launch *launches, int64_t count) {
    if (!d->is_cpu) {
        TRY(tn_launch_check(k->program, launches, count));
        pthread_mutex_lock(&k->running);
        tn_status s = prepare_widths(d, k, launches, count);
        pthread_mutex_unlock(&k->running);
        TRY(s);
    }
    if (d->caps.code != TN_CODE_KIR || !d->driver->prepare) return TN_OK;
    if (d->dry && d->is_cpu) return kir_vm_rehearse(k->modules[WIDE].handle, (const kir_launch *)launches, count);
    return d->driver->prepare(tn_stream_handle(d), k->modules[WIDE].handle, launches, count);
}

/* ==== lists of launches =========================================================================================== */
/* A plan that runs again launches the same kernels with the same sizes; only addresses and runtime scalars change. So
 * everything that depends on sizes is computed when a list is made: the variant of a kernel, the split of a launch, the
 * number of workgroups, the block of parameters. A run fills in addresses and runtime scalars and passes the list to
 * the driver: as the driver's own object (a graph), in one call if it takes lists, else one call for each row of
 * launches of the same kernel. A list may outlive its device; the driver's object is then freed with the device. */

/* One dispatch. What changes between runs is read from `source`, which belongs to the plan. */
typedef struct item {
    void *module;
    const kir_program *program;
    const tn_launch *source;
    uint32_t groups[3];
    int n_buffers;                       /* global ones */
    size_t params_at, params, shifts_at; /* in the list's blocks */
} item;

/* A launch for a driver that takes KIR programs. */
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
    AUTO_LOCK(&driver_lists_lock);
    while (d->lists)
        drop_driver_list(d->lists);
}

void tn_command_list_free(tn_command_list *l) {
    if (!l) return;
    pthread_mutex_lock(&driver_lists_lock);
    if (l->format) drop_driver_list(l);
    pthread_mutex_unlock(&driver_lists_lock);
    tn_mem_free_each(l->items, l->plains, l->params, l->shifts, l->calls, l->buffers, l);
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
        tn_mem_free_each(calls, buffers);
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
    if (l->format || l->no_driver_list || d->no_graphs || !d->driver->list_make || !d->driver->list_run ||
        !d->driver->list_free)
        return TN_OK;
    tn_status s = d->driver->list_make(d->handle, l->calls, (int64_t)l->n_items, &driver_list);
    l->no_driver_list = s != TN_OK && s != TN_ERR_LOST;
    if (s != TN_OK) return l->no_driver_list ? TN_OK : s;
    AUTO_LOCK(&driver_lists_lock);
    l->format = driver_list;
    l->next = d->lists;
    d->lists = l;
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
    tn_device_works(l->device);
    for (size_t i = 0; i < l->n_items; i++)
        put_in_place(l, &l->items[i]);
    bool ran;
    tn_status s = run_driver_list(l, &ran);
    if (ran || s != TN_OK) return s;
    const tn_driver *driver = l->device->driver;
    void *lane = tn_stream_handle(l->device);
    return driver->dispatch_list ? driver->dispatch_list(lane, l->calls, (int64_t)l->n_items) : run_rows(l);
}

/* ==== when rows are shared by workgroups ========================================================================== */
/* On a GPU neighbouring items that each walk along their own row read far apart, and few rows leave the device idle; a
 * workgroup that shares a row reads it contiguously. If rows are strided (neighbouring items read neighbouring
 * elements) and there are many of them, one item per row is better. On a CPU it always is: its compiler vectorizes an
 * item's lanes, and a barrier costs as much as many additions (bench/rows.c: PoCL is several times slower). */

enum {
    SHORT_ROW = 2 * KIR_LANES, /* elements: below this most lanes of a workgroup would be idle */
    MANY_ROWS = 1 << 14        /* enough for the items of any device */
};

static _Atomic int chosen = TN_ROW_SPLIT_AUTO;

void tn_row_split_set(tn_row_split_policy policy) { atomic_store(&chosen, (int)policy); }

static int64_t stride_size_of(int64_t stride) { return stride < 0 ? -stride : stride; }

/* Number of loads and stores in loops whose elements are closer together along the rows than across them, minus the
 * number of the others. */
static int along(const kir_program *p, const kir_rows *rows, const int64_t *sizes) {
    int row = rows->first + rows->count - 1, score = 0, depth = 0;
    for (int i = 0; i < p->n_ins; i++) {
        const kir_ins *in = &p->ins[i];
        depth += (in->op == KIR_LOOP) - (in->op == KIR_END);
        if (depth == 0 || (in->op != KIR_LOAD && in->op != KIR_STORE)) continue;
        const int64_t *strides = kir_sizes_access(p, sizes, (int)in->imm.i) + 1;
        int64_t inner = stride_size_of(strides[row]),
                across = p->n_par > 0 ? stride_size_of(strides[p->n_par - 1]) : INT64_MAX;
        if (inner != across) score += inner < across || across == 0 ? 1 : -1;
    }
    return score;
}

static bool row_split_pays(const tn_device *d, const kir_program *p, const kir_rows *rows, const int64_t *sizes) {
    int policy = atomic_load(&chosen);
    if (policy != TN_ROW_SPLIT_AUTO) return policy == TN_ROW_SPLIT_ALWAYS;
    if (d->info.software) return false;
    int64_t elements = tn_product(sizes + rows->first, rows->count), points = tn_product(sizes, p->n_par);
    return elements >= SHORT_ROW && (points < MANY_ROWS || along(p, rows, sizes) >= 0);
}
