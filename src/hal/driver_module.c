/* driver_module.c — makes a driver's module of a kernel program: capabilities, limits of bindings, launches.
 *
 * A driver of KIR gets program and launches unchanged. For all others the program is rendered to their language and
 * compiled, or taken from the disk cache, and a launch becomes a dispatch: a number of workgroups, the global buffers,
 * and one block of parameters (sizes, runtime scalars, one base per buffer) as 8-byte words laid out by kir/render.h.
 * Dispatches are collected in memory of the caller, so a launch allocates nothing. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "hal/kernel_code.h"
#include "kir/rules.h"

enum {
    GROUP = 64,         /* items of a workgroup of a plain program, if the device allows as many */
    MOST_HELD = 32,     /* dispatches in one call of the driver */
    HELD_BYTES = 16384, /* of parameters in one call, about */
    WORD = 8
};

/* The languages that programs are rendered in. */
static const kir_dialect *dialect_of(tn_code_format form) {
    static const struct {
        tn_code_format format;
        const kir_dialect *dialect;
    } known[] = {{TN_CODE_OPENCL_C, &kir_dialect_opencl},
                 {TN_CODE_MSL, &kir_dialect_msl},
                 {TN_CODE_WGSL, &kir_dialect_wgsl},
                 {TN_CODE_CUDA_C, &kir_dialect_cuda},
                 {TN_CODE_HIP_C, &kir_dialect_hip},
                 {TN_CODE_SPIRV, &kir_dialect_spirv},
                 {TN_CODE_C, &kir_dialect_c}};
    for (size_t i = 0; i < TN_COUNT(known); i++)
        if (known[i].format == form) return known[i].dialect;
    return NULL;
}

/* Whether there is a renderer for the form; KIR needs none. */
static bool tn_code_is_rendered(tn_code_format form) { return dialect_of(form) != NULL; }

/* Whether its renderer makes programs of words (kir.h) for devices without 64-bit integers. */
static bool tn_code_has_words(tn_code_format form) {
    const kir_dialect *d = dialect_of(form);
    return d && kir_dialect_has_words(d);
}

const char *tn_kernel_name(const kir_program *p, char out[TN_KERNEL_NAME]) {
    snprintf(out, TN_KERNEL_NAME, "k%016llx", (unsigned long long)p->hash);
    return out;
}

/* ---- loading ----------------------------------------------------------------------------------------------------- */

/* The driver's module of this code, from the disk cache if it is there. */
static tn_status load_cached(tn_device *d, tn_code *code, void **handle) {
    void *data;
    size_t size;
    bool keeps = d->driver->binary != NULL;
    if (keeps && tn_kernel_cache_find(d, code, &data, &size)) {
        code->binary = data;
        code->binary_size = size;
        tn_status s = d->driver->load(d->handle, code, handle);
        code->binary = NULL;
        code->binary_size = 0;
        tn_mem_free(data);
        if (s == TN_OK || s == TN_ERR_MEMORY || s == TN_ERR_LOST) return s;
        tn_kernel_cache_drop(d, code);
    }
    TRY(d->driver->load(d->handle, code, handle));
    if (keeps && d->driver->binary(d->handle, *handle, &data, &size) == TN_OK) tn_kernel_cache_put(d, code, data, size);
    return TN_OK;
}

void tn_code_of_rendering(const tn_caps *c, const kir_program *p, const kir_rendering *r, tn_rendered_code *out) {
    int n = 0;
    for (int b = 0; b < p->n_buffers; b++) {
        if (tn_is_local(p, b)) continue;
        out->written[n] = p->buffer_written[b];
        out->windows[n] = p->windows[b] ? p->windows[b] : 1;
        out->elements[n++] = (tn_dtype)p->buffer_dtype[b];
    }
    out->code = (tn_code){.format = c->code,
                          .data = tn_str_text(&r->text),
                          .size = r->text.length,
                          .entry = r->entry,
                          .buffer_count = n,
                          .group = {r->group[0], r->group[1], r->group[2]},
                          .params_bytes = r->params_bytes,
                          .bases_at = r->bases_at,
                          .local_bytes = r->local_bytes,
                          .params_in_buffer = r->params_in_buffer,
                          .written = out->written,
                          .options = "",
                          .elements = out->elements,
                          .head_size = r->head_size,
                          .subgroup = r->lanes,
                          .windows = out->windows,
                          .window_bytes = tn_window_bytes(c)};
}

static tn_status load_rendering(tn_device *d, const kir_program *p, const kir_rendering *r, void **handle) {
    tn_rendered_code rendered;
    tn_code_of_rendering(&d->caps, p, r, &rendered);
    return load_cached(d, &rendered.code, handle);
}

static kir_target target_of(const tn_device *d, bool narrow) {
    int64_t most = d->caps.max_group ? d->caps.max_group : GROUP;
    return (kir_target){.dialect = dialect_of(d->caps.code),
                        .group_size = (int)tn_min64(GROUP, most),
                        .index32 = narrow,
                        .f64 = d->caps.f64,
                        .f16 = d->caps.f16,
                        .i64 = d->caps.i64,
                        .words_only = d->caps.words_only,
                        .features = d->caps.features,
                        .window = tn_window_bytes(&d->caps),
                        .lanes = d->caps.matrix ? (int)d->caps.subgroup : 0,
                        .wide = d->caps.matrix & TN_MATRIX_WIDE};
}

static tn_status load_rendered(tn_device *d, const kir_program *p, bool narrow, tn_loaded *out) {
    out->target = target_of(d, narrow);
    if (!out->target.dialect) return tn_fail(TN_ERR_UNSUPPORTED, "no renderer for the kernel language of this driver");
    AUTO_CALL(kir_rendering_free) kir_rendering r = {0};
    TRY(kir_render(p, &out->target, &r));
    TRY(load_rendering(d, p, &r, &out->handle));
    out->params_bytes = r.params_bytes;
    return TN_OK;
}

static tn_status load_as_is(tn_device *d, const kir_program *p, tn_loaded *out) {
    tn_code code = {.format = TN_CODE_KIR, .data = p, .size = sizeof *p, .entry = "kernel", .options = ""};
    return d->driver->load(d->handle, &code, &out->handle);
}

/* A callback that is told of loads. */
typedef struct listener {
    void (*told)(void *ctx, const char *device, int64_t number, bool done);
    void *ctx;
} listener;

static pthread_mutex_t listener_lock = PTHREAD_MUTEX_INITIALIZER;
static listener listening;
static _Atomic int64_t loads;

void tn_on_kernel_load(void (*told)(void *ctx, const char *device, int64_t number, bool done), void *ctx) {
    AUTO_LOCK(&listener_lock);
    listening = (listener){told, ctx};
}

static listener listener_now(void) {
    AUTO_LOCK(&listener_lock);
    return listening;
}

static tn_status load_module(tn_device *d, const kir_program *p, bool narrow, tn_loaded *out) {
    if (d->is_cpu) return load_as_is(d, p, out);
    listener l = listener_now();
    int64_t number = atomic_fetch_add(&loads, 1) + 1;
    if (l.told) l.told(l.ctx, d->info.id, number, false);
    tn_status s = d->caps.code != TN_CODE_KIR ? load_rendered(d, p, narrow, out) : load_as_is(d, p, out);
    if (l.told) l.told(l.ctx, d->info.id, number, true);
    return s;
}

tn_status tn_code_load(tn_device *d, const kir_program *p, bool narrow, tn_loaded *out) {
    char name[TN_KERNEL_NAME];
    *out = (tn_loaded){0};
    tn_status s = load_module(d, p, narrow, out);
    if (s != TN_OK) out->handle = NULL;
    return s == TN_OK || s == TN_ERR_MEMORY || d->is_cpu
               ? s
               : tn_fail_prefix(s, "%s: kernel %s", d->info.id, tn_kernel_name(p, name));
}

void tn_code_unload(tn_device *d, tn_loaded *m) {
    if (m->handle) d->driver->unload(d->handle, m->handle);
    m->handle = NULL;
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

/* The room of a runner: dispatches, their buffers, their parameters, and the sizes of one part. */
static int most_queued(const tn_loaded *m) {
    size_t n = m->params_bytes ? HELD_BYTES / m->params_bytes : MOST_HELD;
    return n < 1 ? 1 : n < MOST_HELD ? (int)n : MOST_HELD;
}

static size_t buffers_at(const tn_loaded *m) { return (size_t)most_queued(m) * sizeof(tn_dispatch); }
static size_t params_at(const kir_program *p, const tn_loaded *m) {
    return buffers_at(m) + (size_t)most_queued(m) * (size_t)p->n_buffers * sizeof(void *);
}

size_t tn_code_room(const kir_program *p, const tn_loaded *m) {
    return params_at(p, m) + (size_t)most_queued(m) * m->params_bytes;
}

tn_status tn_runner_flush(tn_runner *r) {
    int n = r->queued;
    r->queued = 0;
    if (!n) return TN_OK;
    return r->device->driver->dispatch(tn_stream_handle(r->device), r->m->handle, (const tn_dispatch *)r->room, n);
}

/* Sizes, runtime scalars and bases of nothing behind each other. */
void tn_params_fill(const kir_program *p, const tn_launch *l, size_t bytes, char *out) {
    size_t sizes = kir_sizes_count(p) * WORD, scalars = (size_t)p->n_scalars * WORD;
    memcpy(out, l->sizes, sizes);
    if (scalars) memcpy(out + sizes, l->scalars, scalars);
    memset(out + sizes + scalars, 0, bytes - sizes - scalars);
}

tn_status tn_runner_add(void *runner, const tn_launch *part) {
    tn_runner *r = runner;
    const kir_program *p = r->p;
    const tn_loaded *m = r->m;
    if (r->device->caps.code == TN_CODE_KIR)
        return r->device->driver->launch(tn_stream_handle(r->device), m->handle, part, 1);
    int64_t most = r->device->caps.max_groups_x;
    tn_dispatch d = {{0}, NULL, NULL};
    kir_count_groups(p, part->sizes, &m->target, most > 0 ? (uint64_t)most : INT32_MAX, d.groups);
    if (!d.groups[0]) return TN_OK;
    if (r->list) return tn_command_list_take(r->list, p, m, r->source, part, d.groups);
    void **buffers = (void **)(r->room + buffers_at(m)) + (size_t)r->queued * (size_t)p->n_buffers;
    char *params = r->room + params_at(p, m) + (size_t)r->queued * m->params_bytes;
    int n = 0;
    for (int b = 0; b < p->n_buffers; b++)
        if (!tn_is_local(p, b)) buffers[n++] = part->buffers[b];
    tn_params_fill(p, part, m->params_bytes, params);
    d.buffers = buffers;
    d.params = params;
    memcpy(r->room + (size_t)r->queued * sizeof d, &d, sizeof d);
    return ++r->queued == most_queued(m) ? tn_runner_flush(r) : TN_OK;
}

/* ==== what a device can run ======================================================================================= */

/* Requirements of a program. */
typedef struct needs {
    bool f64, i64;
    int bindings;
    int64_t items, local_bytes;
} needs;

static needs needs_of(const kir_program *p) {
    needs n = {.bindings = tn_global_bindings(p), .items = kir_items(p), .local_bytes = kir_local_bytes(p)};
    for (int i = 0; i < p->n_ins; i++) {
        n.f64 |= p->ins[i].type == KIR_F64;
        n.i64 |= p->ins[i].type == KIR_I64 || p->ins[i].type == KIR_U64;
    }
    return n;
}

static bool no(tn_kernel_answer *a, const char *code, const char *format, ...) TN_PRINTF(3, 4);
static bool no(tn_kernel_answer *a, const char *code, const char *format, ...) {
    va_list args;
    va_start(args, format);
    a->code = code;
    vsnprintf(a->why, sizeof a->why, format, args);
    va_end(args);
    return false;
}

static bool caps_fit(const tn_caps *c, const kir_program *p, tn_kernel_answer *a) {
    needs n = needs_of(p);
    if (c->code != TN_CODE_KIR && !tn_code_is_rendered(c->code))
        return no(a, "no_renderer", "takes kernels in a language that this version does not write");
    if (n.f64 && !c->f64) return no(a, "no_f64", "has no f64");
    if (n.i64 && !c->i64 && !tn_code_has_words(c->code)) return no(a, "no_i64", "has no i64");
    if (c->max_bindings && n.bindings > c->max_bindings)
        return no(a, "too_many_bindings", "binds at most %d buffers; this kernel has %d", c->max_bindings, n.bindings);
    if (c->max_group && n.items > c->max_group && p->n_items)
        return no(a, "group_too_large", "runs workgroups of at most %lld items; this kernel's have %lld",
                  (long long)c->max_group, (long long)n.items);
    /* a driver of KIR runs groups itself, out of the memory that it likes */
    if (c->code != TN_CODE_KIR && n.local_bytes > c->shared_memory)
        return no(a, "local_memory", "has %lld bytes of workgroup memory; this kernel needs %lld",
                  (long long)c->shared_memory, (long long)n.local_bytes);
    return true;
}

/* Maximum number of loop iterations of an item: each loop has one more, in which it finds that it is at its end, and a
 * skipped loop counts that one too. For points in blocks of one lane each: 5 more per block, and those that fold
 * KIR_BLOCK points. */
static double rounds_of(const kir_program *p, const int64_t *sizes) {
    enum { NESTED = 16, LANES_TAKE = 4 * KIR_LANES, BESIDE = 8 };
    double points[NESTED + 1] = {1}, rounds = 0;
    for (int i = 0, depth = 0; i < p->n_ins; i++) {
        const kir_ins *in = &p->ins[i];
        depth += (in->op == KIR_LOOP) - (in->op == KIR_END);
        if (depth > NESTED) return (double)INT64_MAX;
        if (in->op == KIR_REDUCE) rounds += LANES_TAKE * points[depth - 1] + points[depth] / BESIDE;
        if (in->op != KIR_LOOP) continue;
        points[depth] = points[depth - 1];
        for (int k = kir_loop_first(in); k < kir_loop_first(in) + kir_loop_count(in); k++) {
            rounds += points[depth];
            rounds += points[depth] *= (double)sizes[k];
        }
    }
    return rounds;
}

bool tn_kernel_supported(tn_device *d, const kir_program *p, const int64_t *sizes, tn_kernel_answer *answer) {
    tn_kernel_answer unwanted, *a = answer ? answer : &unwanted;
    char name[TN_KERNEL_NAME], why[120];
    *a = (tn_kernel_answer){.code = ""};
    if (!caps_fit(&d->caps, p, a)) return false;
    if (tn_certify_list_has(d, tn_kernel_name(p, name), why, sizeof why))
        return no(a, "not_certified", "computed kernel %s incorrectly in a previous check: %s", name, why);
    if (tn_kernel_refused(d, p, why, sizeof why))
        return no(a, "refused_by_compiler", "rejected kernel %s: %s", name, why);
    if (!sizes) return true;
    if (!d->caps.i64 && tn_code_has_words(d->caps.code) && !tn_launch_is_narrow(p, sizes))
        return no(a, "no_i64", "has no i64, which indices of this many elements need");
    double rounds = d->caps.max_loop ? rounds_of(p, sizes) : 0;
    if (rounds > (double)d->caps.max_loop)
        return no(a, "loop_too_long", "limits loops to %lld iterations; an item of this kernel would need %.0f",
                  (long long)d->caps.max_loop, rounds);
    tn_launch launch = {.sizes = sizes};
    int64_t most = tn_reach(d, p);
    if (tn_launch_split(p, &launch, most, d->caps.alignment, NULL, NULL, NULL) != TN_OK)
        return no(a, "buffer_too_large", "binds at most %lld bytes at once; one point of this kernel needs more",
                  (long long)most);
    return true;
}

/* Ends the division where a part binds a buffer from behind its end. */
static tn_status stay_within(void *ctx, const tn_launch *part) {
    const void *const *ends = ctx;
    for (int b = 0; b < KIR_MAX_BUFFERS && ends[b]; b++)
        if ((uintptr_t)part->buffers[b] > (uintptr_t)ends[b]) return TN_ERR_UNSUPPORTED;
    return TN_OK;
}

bool tn_kernel_in_bounds(tn_device *d, const kir_program *p, const int64_t *sizes, const int64_t *bytes,
                         tn_kernel_answer *answer) {
    enum { PLACE = 1 << 12 }; /* no memory is there yet: any number does for an address */
    void *begins[KIR_MAX_BUFFERS], *ends[KIR_MAX_BUFFERS] = {NULL};
    int64_t *room = tn_mem_alloc(kir_sizes_count(p) * sizeof *room);
    for (int b = 0; b < p->n_buffers; b++) {
        begins[b] = (void *)(uintptr_t)PLACE;
        ends[b] = (void *)((uintptr_t)PLACE + (uintptr_t)bytes[b]);
    }
    tn_launch launch = {.sizes = sizes, .buffers = begins};
    bool stays =
        room && tn_launch_split(p, &launch, tn_reach(d, p), d->caps.alignment, room, stay_within, ends) == TN_OK;
    tn_mem_free(room);
    return stays ||
           no(answer, "buffer_too_large", "binds parts of buffers, and this kernel's masked accesses go beyond them");
}

/* Makes the program bind a buffer with as many windows as needed to reach all its bytes from an aligned address; false
 * if the device has no windows or too few. */
static bool take_windows(const tn_caps *c, kir_program *p, int buffer, int64_t bytes) {
    uint8_t windows[KIR_MAX_BUFFERS];
    int64_t each = tn_window_bytes(c), count = (bytes + c->alignment - 1) / tn_max64(1, each) + 1;
    if (c->code != TN_CODE_SPIRV || !(c->features & TN_SPIRV_WINDOWS) || kir_lanes(p) || count > UINT8_MAX)
        return false;
    if (bytes / (int64_t)tn_dtype_size((tn_dtype)p->buffer_dtype[buffer]) > INT32_MAX) return false;
    memcpy(windows, p->windows, sizeof windows);
    windows[buffer] = 1;
    kir_set_windows(p, windows, KIR_MAX_BUFFERS);
    if (tn_global_bindings(p) - 1 + count > c->max_bindings) return false;
    windows[buffer] = (uint8_t)count;
    kir_set_windows(p, windows, KIR_MAX_BUFFERS);
    return true;
}

static bool reads_anywhere(const kir_program *p, int buffer) {
    for (int i = 0; i < p->n_sized; i++)
        if (p->access[i].buffer == buffer && p->access[i].dyn != KIR_NONE) return true;
    return false;
}

bool tn_kernel_addresses(tn_device *d, kir_program *p, int buffer, int64_t bytes, bool all, tn_kernel_answer *answer) {
    int64_t reach = tn_reach(d, p);
    bool fits = bytes <= reach - d->caps.alignment;
    if (!all && (fits || !reads_anywhere(p, buffer))) return true;
    /* what fits takes its window, too: a range may go beyond a buffer, where accesses are masked */
    return take_windows(&d->caps, p, buffer, bytes) || fits ||
           no(answer, "buffer_too_large", "binds at most %lld bytes at once; this kernel reads anywhere in %lld",
              (long long)reach, (long long)bytes);
}

/* ==== ranges of buffers that a launch touches ===================================================================== */
/* An access is affine in the axes, so its range follows from extents and strides. If a launch needs more of a buffer
 * than fits a binding, it is halved along the parallel axis that reaches furthest in it until each part fits. A part is
 * the same kernel with other sizes: offsets moved by stride · begin, and buffers bound from where their range begins.
 * Masked accesses may touch less than their range; the split is then finer than necessary, and a part may begin beyond
 * a buffer's end, which tn_kernel_in_bounds checks. */

enum { MOST_HALVINGS = 40, MOST_PARTS = 1 << 16 };

/* A box of parallel points of a launch. */
typedef struct box {
    int64_t begin[KIR_MAX_AXES], end[KIR_MAX_AXES];
} box;

typedef struct division {
    const kir_program *p;
    const tn_launch *launch;
    int64_t most, alignment;
    int64_t *sizes;
    tn_launch_part_fn *emit;
    void *ctx;
    int parts;                   /* so far */
    bool moves;                  /* buffers may be bound further on */
    bool whole[KIR_MAX_BUFFERS]; /* the buffer is read at computed places too, or has windows: all of it is bound */
} division;

typedef struct range {
    int64_t low, high; /* elements; high < low: none */
} range;

/* The lowest and highest index of an access for the points of a box; false when they leave 64 bits. */
static bool access_range(const kir_program *p, const int64_t *sizes, int access, const box *at, range *out) {
    const int64_t *a = kir_sizes_access(p, sizes, access);
    int axes = p->n_par + p->n_loop;
    out->low = out->high = a[0];
    for (int i = 0; i < axes; i++) {
        int64_t first = i < p->n_par ? at->begin[i] : 0, last = (i < p->n_par ? at->end[i] : sizes[i]) - 1;
        int64_t x, y;
        if (last < first) continue; /* an empty loop touches nothing */
        if (tn_mul_overflow(a[1 + i], first, &x) || tn_mul_overflow(a[1 + i], last, &y)) return false;
        if (tn_add_overflow(out->low, tn_min64(x, y), &out->low) ||
            tn_add_overflow(out->high, tn_max64(x, y), &out->high))
            return false;
    }
    return true;
}

int64_t tn_reach(const tn_device *d, const kir_program *p) {
    int64_t most = d->caps.max_buffer, each = 1, reach;
    if (most <= 0) return INT64_MAX;
    if (d->caps.joins) each = tn_max64(1, d->caps.max_bindings / tn_max64(1, tn_global_buffers(p)));
    return tn_mul_overflow(most, each, &reach) ? INT64_MAX : reach;
}

static box launch_whole(const kir_program *p, const int64_t *sizes) {
    box b = {{0}, {0}};
    memcpy(b.end, sizes, p->n_par * sizeof *sizes);
    return b;
}

/* The range of a buffer over all of its accesses; below 0 accesses are masked. */
static bool buffer_range(const division *v, int buffer, const box *at, range *out) {
    *out = (range){INT64_MAX, -1};
    for (int i = 0; i < v->p->n_sized; i++) {
        range r;
        if (v->p->access[i].buffer != buffer) continue;
        if (!access_range(v->p, v->launch->sizes, i, at, &r)) return false;
        out->low = tn_min64(out->low, tn_max64(r.low, 0));
        out->high = tn_max64(out->high, r.high);
    }
    if (out->high < out->low) *out = (range){0, -1};
    return true;
}

static int64_t element_bytes(const kir_program *p, int buffer) {
    return (int64_t)tn_dtype_bytes((tn_dtype)p->buffer_dtype[buffer], 1);
}

/* Elements by which a buffer whose range begins at `low` can be bound further on: whole alignments. */
static int64_t moved(const division *v, int buffer, int64_t low) {
    int64_t unit = tn_max64(1, v->alignment / element_bytes(v->p, buffer));
    return v->moves ? low / unit * unit : 0;
}

static bool is_ranged(const division *v, int buffer) { return !tn_is_local(v->p, buffer) && !v->whole[buffer]; }

/* The first buffer that does not fit into a binding; -1: all fit. A driver may have to bind from an aligned address
 * before the given one. */
static int first_too_large(const division *v, const box *at) {
    for (int b = 0; b < v->p->n_buffers; b++) {
        range r;
        if (!is_ranged(v, b)) continue;
        if (!buffer_range(v, b, at, &r)) return b;
        int64_t elements = r.high < r.low ? 0 : r.high + 1 - moved(v, b, r.low);
        if (elements > (v->most - v->alignment) / element_bytes(v->p, b)) return b;
    }
    return -1;
}

/* The parallel axis along which the box reaches furthest in the buffer; -1: none can be halved. Items of a workgroup
 * are not separated. */
static int axis_to_halve(const division *v, const box *at, int buffer) {
    int best = -1;
    double most = 0;
    for (int axis = 0; axis < v->p->n_par - v->p->n_items; axis++) {
        int64_t extent = at->end[axis] - at->begin[axis];
        if (extent < 2) continue;
        for (int i = 0; i < v->p->n_sized; i++) {
            if (v->p->access[i].buffer != buffer) continue;
            double stride = (double)kir_sizes_access(v->p, v->launch->sizes, i)[1 + axis];
            double reach = (stride < 0 ? -stride : stride) * (double)(extent - 1);
            if (reach <= most) continue;
            most = reach;
            best = axis;
        }
    }
    return best;
}

/* The launch for the points of a box: its extents, offsets moved by its start, and each buffer bound from where its
 * range begins. */
static tn_status emit_part(const division *v, const box *at) {
    const kir_program *p = v->p;
    void *buffers[KIR_MAX_BUFFERS];
    int64_t skipped[KIR_MAX_BUFFERS];
    size_t axes = (size_t)(p->n_par + p->n_loop);
    memcpy(v->sizes, v->launch->sizes, kir_sizes_count(p) * sizeof *v->sizes);
    for (int b = 0; b < p->n_buffers; b++) {
        range r = {0, -1};
        buffers[b] = NULL;
        skipped[b] = 0;
        if (tn_is_local(p, b)) continue;
        if (is_ranged(v, b)) (void)buffer_range(v, b, at, &r);
        skipped[b] = r.high < r.low ? 0 : moved(v, b, r.low);
        buffers[b] = v->launch->buffers[b];
        if (skipped[b]) buffers[b] = (char *)buffers[b] + skipped[b] * element_bytes(p, b);
    }
    for (int i = 0; i < p->n_par; i++)
        v->sizes[i] = at->end[i] - at->begin[i];
    for (int i = 0; i < p->n_sized; i++) {
        int64_t *a = v->sizes + axes + (size_t)i * (axes + 1);
        for (int k = 0; k < p->n_par; k++)
            a[0] += a[1 + k] * at->begin[k];
        if (p->access[i].buffer >= 0) a[0] -= skipped[p->access[i].buffer];
    }
    return v->emit(v->ctx, &(tn_launch){v->sizes, buffers, v->launch->scalars});
}

static tn_status divide_launch(division *v, const box *at, int depth) {
    int buffer = first_too_large(v, at);
    if (buffer < 0 && v->parts++ < MOST_PARTS) return v->emit ? emit_part(v, at) : TN_OK;
    int axis = buffer < 0 ? -1 : axis_to_halve(v, at, buffer);
    if (axis < 0 || depth == MOST_HALVINGS)
        return tn_fail(TN_ERR_UNSUPPORTED,
                       "a kernel needs more of a buffer at once than the %lld bytes that the device can bind",
                       (long long)v->most);
    box first = *at, second = *at;
    first.end[axis] = second.begin[axis] = at->begin[axis] + (at->end[axis] - at->begin[axis]) / 2;
    TRY(divide_launch(v, &first, depth + 1));
    return divide_launch(v, &second, depth + 1);
}

tn_status tn_launch_split(const kir_program *p, const tn_launch *launch, int64_t most, int64_t alignment,
                          int64_t *sizes, tn_launch_part_fn *emit, void *ctx) {
    if (most == INT64_MAX) return emit ? emit(ctx, launch) : TN_OK;
    division v = {
        .p = p, .launch = launch, .most = most, .alignment = alignment, .sizes = sizes, .emit = emit, .ctx = ctx};
    for (int b = 0; b < p->n_buffers; b++)
        v.whole[b] = p->windows[b] > 0;
    for (int i = 0; i < p->n_sized; i++)
        if (p->access[i].buffer >= 0 && p->access[i].dyn != KIR_NONE) v.whole[p->access[i].buffer] = true;
    box all = launch_whole(p, launch->sizes);
    if (first_too_large(&v, &all) < 0) return emit ? emit(ctx, launch) : TN_OK;
    v.moves = true;
    v.emit = NULL; /* nothing is emitted of what cannot be divided to the end */
    TRY(divide_launch(&v, &all, 0));
    v.emit = emit;
    v.parts = 0;
    return emit ? divide_launch(&v, &all, 0) : TN_OK;
}

bool tn_launch_is_narrow(const kir_program *p, const int64_t *sizes) {
    int64_t points = 1, steps = 1;
    for (int i = 0; i < p->n_par + p->n_loop; i++)
        if (tn_mul_overflow(i < p->n_par ? points : steps, sizes[i], i < p->n_par ? &points : &steps)) return false;
    /* a kernel's counters go a little further */
    if (points > INT32_MAX - KIR_MAX_ITEMS || steps > INT32_MAX - KIR_LANES) return false;
    box all = launch_whole(p, sizes);
    for (int i = 0; i < p->n_sized; i++) {
        range r;
        if (!access_range(p, sizes, i, &all, &r) || r.low < INT32_MIN || r.high > INT32_MAX) return false;
    }
    return true;
}

/* ---- arguments --------------------------------------------------------------------------------------------------- */

static tn_status check_sizes(const kir_program *p, const int64_t *sizes, int64_t number, int64_t *points) {
    *points = 1;
    for (int i = 0; i < p->n_par + p->n_loop; i++) {
        if (sizes[i] < 0)
            return tn_fail(TN_ERR_ARGUMENT, "launch %lld: the extent of axis %d is %lld", (long long)number, i,
                           (long long)sizes[i]);
        if (i < p->n_par && tn_mul_overflow(*points, sizes[i], points))
            return tn_fail(TN_ERR_ARGUMENT, "launch %lld: more than 2^63 points", (long long)number);
    }
    return TN_OK;
}

static tn_status check_buffers(const kir_program *p, void *const *buffers, int64_t number) {
    for (int b = 0; b < p->n_buffers; b++) {
        if (tn_is_local(p, b)) continue;
        if (!buffers[b]) return tn_fail(TN_ERR_ARGUMENT, "launch %lld: buffer %d is NULL", (long long)number, b);
        if ((uintptr_t)buffers[b] % (uintptr_t)element_bytes(p, b))
            return tn_fail(TN_ERR_ARGUMENT, "launch %lld: buffer %d is not aligned to its elements of %lld bytes",
                           (long long)number, b, (long long)element_bytes(p, b));
    }
    return TN_OK;
}

tn_status tn_launch_check(const kir_program *p, const tn_launch *launches, int64_t count) {
    if (count < 0 || (count && !launches))
        return tn_fail(TN_ERR_ARGUMENT, "%lld launches%s", (long long)count, count < 0 ? "" : " in a NULL list");
    for (int64_t i = 0; i < count; i++) {
        const tn_launch *l = &launches[i];
        bool lacking =
            (kir_sizes_count(p) && !l->sizes) || (p->n_buffers && !l->buffers) || (p->n_scalars && !l->scalars);
        if (lacking)
            return tn_fail(TN_ERR_ARGUMENT, "launch %lld: sizes, buffers or runtime scalars are NULL", (long long)i);
        int64_t points;
        TRY(check_sizes(p, l->sizes, i, &points));
        if (points) TRY(check_buffers(p, l->buffers, i));
    }
    return TN_OK;
}
