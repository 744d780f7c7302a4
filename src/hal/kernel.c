/* kernel.c — from a kernel program to what a driver loads, once a structure and device.
 *
 * Programs of equal structure share one kernel: the table is keyed by the structure's hash and a hit is verified with
 * kir_equal, so a collision costs a compilation and never a wrong answer. Loading happens outside the lock; who wants a
 * structure that another thread is loading waits for that, and loads it himself only if the other could not.
 *
 * A kernel lives while a plan uses it, and a while longer: the table keeps MOST_IDLE that nobody uses, the latest of
 * them, so that a plan which was dropped and comes back compiles nothing, and a program of ever new shapes does not
 * grow for ever. A plan may outlive its device: what it still holds then is a name without a module.
 *
 * Rendered kernels come with indices of 32 bits and of 64: which one a launch needs follows from its sizes, and the
 * other one is compiled when it is first needed. So is the kernel of a program with loops whose workgroups share rows,
 * where that pays (row_split.c); it belongs to the plain one and computes the same bits. What a device's compiler
 * refused is remembered as long as the device is open: placement asks before it plans (tn_kernel_supported). */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "hal/kernel_code.h"

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

/* A structure that a thread is loading now; it lies on that thread's stack. */
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
    tn_mem_free(k->row_sizes);
    tn_mem_free(k->program);
    tn_mem_free(k->room);
    tn_mem_free(k->sizes);
    tn_mem_free(k);
}

static void table_free(kernel_table *t) {
    pthread_mutex_destroy(&t->lock);
    pthread_cond_destroy(&t->loaded);
    tn_mem_free(t->slots);
    tn_mem_free(t);
}

static void refusals_free(kernel_table *t) {
    while (t->refusals) {
        refusal *r = t->refusals;
        t->refusals = r->next;
        tn_mem_free(r->program);
        tn_mem_free(r);
    }
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
            } else {
                kernel_unload(d, k);
            }
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

/* A graphics processor multiplies 32 bits in a fraction of the time; a processor's compiler makes vector code only of
 * loops whose indices are as wide as its addresses, if there are any such. */
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
    if (s != TN_OK) {
        kernel_free(d, k);
        return s;
    }
    *out = k;
    return TN_OK;
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

/* The caller holds the lock. */
static const refusal *find_refusal(const kernel_table *t, const kir_program *p) {
    const refusal *r = t->refusals;
    while (r && !(r->program->hash == p->hash && kir_equal(r->program, p)))
        r = r->next;
    return r;
}

/* A failure that may pass is no refusal. Without memory for it the compiler is asked again another time. */
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
    pthread_mutex_lock(&t->lock);
    r->next = t->refusals;
    t->refusals = r;
    pthread_mutex_unlock(&t->lock);
}

bool tn_kernel_refused(tn_device *d, const kir_program *p, char *why, size_t size) {
    kernel_table *t = d->kernels;
    pthread_mutex_lock(&t->lock);
    const refusal *r = find_refusal(t, p);
    if (r && size) snprintf(why, size, "%s", r->why);
    pthread_mutex_unlock(&t->lock);
    return r != NULL;
}

/* ---- getting and launching --------------------------------------------------------------------------------------- */

/* One user more of a kernel that is in the table. */
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

/* A kernel that is in the table or that another thread is about to put there, for one user more; or what the compiler
 * refused. Else *out is NULL, and this thread is the one that loads it. */
static tn_status kernel_known(kernel_table *t, const kir_program *p, loading *mine, tn_kernel **out) {
    pthread_mutex_lock(&t->lock);
    while (is_loading(t, p))
        pthread_cond_wait(&t->loaded, &t->lock);
    *out = kernel_use(t, table_find(t, p));
    const refusal *r = *out ? NULL : find_refusal(t, p);
    tn_status s = r ? tn_fail(r->status, "%s", r->why) : TN_OK;
    if (!*out && s == TN_OK) {
        *mine = (loading){p, t->loads};
        t->loads = mine;
    }
    pthread_mutex_unlock(&t->lock);
    return s;
}

/* kernel: NULL when it could not be loaded. */
static void loading_end(kernel_table *t, const loading *mine, tn_kernel *kernel) {
    pthread_mutex_lock(&t->lock);
    loading **link = &t->loads;
    while (*link != mine)
        link = &(*link)->next;
    *link = mine->next;
    if (kernel) table_add(t, kernel);
    pthread_cond_broadcast(&t->loaded);
    pthread_mutex_unlock(&t->lock);
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

void tn_kernels_drop(tn_device *d) {
    kernel_table *t = d->kernels;
    pthread_mutex_lock(&t->lock);
    while (t->oldest) {
        tn_kernel *k = t->oldest;
        idle_take_out(t, k);
        table_unlink(t, k);
        kernel_free(d, k);
    }
    pthread_mutex_unlock(&t->lock);
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

/* The kernel for this launch: k, or the one whose workgroups share rows, *launch then being that of it. Whatever that
 * one cannot be had for, k remains. */
static tn_kernel *kernel_for(tn_device *d, tn_kernel *k, tn_launch *launch) {
    if (!k->schedule || !tn_row_split_pays(d, k->program, k->schedule, launch->sizes)) return k;
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

/* The caller holds k->running. */
static tn_status launch_all(tn_device *d, tn_kernel *k, const tn_launch *launches, int64_t count) {
    tn_runner r = {.device = d};
    for (int64_t i = 0; i < count; i++) {
        tn_launch launch = launches[i];
        tn_kernel *fit = kernel_for(d, k, &launch);
        TRY(launch_one(&r, fit, &launch));
    }
    return tn_runner_flush(&r);
}

tn_status tn_kernel_launch(tn_device *d, tn_kernel *k, const tn_launch *launches, int64_t count) {
    if (!d->is_cpu) TRY(tn_launch_check(k->program, launches, count));
    if (d->caps.code == TN_CODE_KIR && tn_reach(d, k->program) == INT64_MAX)
        return d->driver->launch(tn_stream_handle(d), k->modules[WIDE].handle, launches, count);
    pthread_mutex_lock(&k->running);
    tn_status s = launch_all(d, k, launches, count);
    pthread_mutex_unlock(&k->running);
    return s;
}

tn_status tn_kernel_list(tn_device *d, tn_kernel *k, const tn_launch *launches, int64_t count, tn_command_list *list) {
    tn_runner r = {.device = d, .list = list};
    tn_status s = tn_launch_check(k->program, launches, count);
    pthread_mutex_lock(&k->running);
    for (int64_t i = 0; i < count && s == TN_OK; i++) {
        tn_launch launch = launches[i];
        tn_kernel *fit = kernel_for(d, k, &launch);
        r.source = &launches[i];
        s = launch_one(&r, fit, &launch);
    }
    pthread_mutex_unlock(&k->running);
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
    return d->driver->prepare(tn_stream_handle(d), k->modules[WIDE].handle, launches, count);
}
