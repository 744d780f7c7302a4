/* module.c — from a kernel program to a driver's module, and from launches to what the driver is called with.
 *
 * A driver of KIR gets the program and the launches as they are. For all others the program is rendered in their
 * language, compiled or taken from the disk cache, and a launch becomes a dispatch: a number of workgroups, the global
 * buffers, and one struct of parameters (sizes, runtime scalars, a base a buffer), of 8-byte words as kir/render.h lays
 * them out. Dispatches are gathered in the caller's room, so that a launch takes no memory. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "hal/kernel_code.h"

enum {
    GROUP = 64,         /* items of a workgroup of a plain program, where the device allows as many */
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

bool tn_code_is_rendered(tn_code_format form) { return dialect_of(form) != NULL; }

bool tn_code_has_words(tn_code_format form) {
    const kir_dialect *d = dialect_of(form);
    return d && kir_dialect_has_words(d);
}

const char *tn_kernel_name(const kir_program *p, char out[TN_KERNEL_NAME]) {
    snprintf(out, TN_KERNEL_NAME, "k%016llx", (unsigned long long)p->hash);
    return out;
}

/* ---- loading ----------------------------------------------------------------------------------------------------- */

/* The driver's module of this code, from what was compiled before if there is such a thing. */
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
    if (!out->target.dialect)
        return tn_fail(TN_ERR_UNSUPPORTED, "no renderer for the kernel language that this driver takes");
    kir_rendering r = {0};
    tn_status s = kir_render(p, &out->target, &r);
    if (s == TN_OK) s = load_rendering(d, p, &r, &out->handle);
    out->params_bytes = r.params_bytes;
    kir_rendering_free(&r);
    return s;
}

static tn_status load_as_is(tn_device *d, const kir_program *p, tn_loaded *out) {
    tn_code code = {.format = TN_CODE_KIR, .data = p, .size = sizeof *p, .entry = "kernel", .options = ""};
    return d->driver->load(d->handle, &code, &out->handle);
}

/* Who wants to know of loads. */
typedef struct listener {
    void (*told)(void *ctx, const char *device, int64_t number, bool done);
    void *ctx;
} listener;

static pthread_mutex_t listener_lock = PTHREAD_MUTEX_INITIALIZER;
static listener listening;
static _Atomic int64_t loads;

void tn_on_kernel_load(void (*told)(void *ctx, const char *device, int64_t number, bool done), void *ctx) {
    pthread_mutex_lock(&listener_lock);
    listening = (listener){told, ctx};
    pthread_mutex_unlock(&listener_lock);
}

static listener listener_now(void) {
    pthread_mutex_lock(&listener_lock);
    listener l = listening;
    pthread_mutex_unlock(&listener_lock);
    return l;
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
