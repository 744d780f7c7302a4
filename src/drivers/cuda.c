/* cuda.c — the driver of CUDA and ROCm: memory, kernels, launches, streams and events.
 *
 * Both interfaces have the same calls under different names (cuda.h), so one driver serves both: a `gpu_vendor` has the
 * differences, and a device knows its vendor. Addresses are the device's own. A thread's calls go to the device that it
 * selected last, so each function selects its device first and restores the caller's selection at the end.
 *
 * Kernels are source text. The vendor's compiler library makes machine code for exactly this device; if NVRTC is older
 * than the device, it makes PTX, which the driver compiles. A kernel that faults invalidates the context: every later
 * call returns the same error. The device is then lost and reports the first cause. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "drivers/cuda.h"
#include "drivers/drivers.h"

#if TRUNNION_WITH_CUDA || TRUNNION_WITH_ROCM

/* ---- what the driver keeps --------------------------------------------------------------------------------------- */

/* A stream. Its address is a queue's handle; the address of a device's first queue is the device's. */
typedef struct gpu_queue {
    struct gpu_device *device;
    void *stream;
    pthread_mutex_t lock; /* held from reserving parameters until their kernel is in the stream */
    /* Memory for parameters that are too large to be passed by value: on the device, and on the host, from which they
     * are copied. Used from start to end; when it is full, the stream is waited for. NULL until a kernel needs it. */
    char *room, *host_room;
    size_t taken;
} gpu_queue;

/* Times of events are milliseconds after another event, as a float, whose resolution degrades within seconds. So there
 * is a new origin every few seconds. */
typedef struct origin {
    struct origin *before;
    void *event;
    double made;    /* by the host's clock */
    double seconds; /* behind the first origin; below 0: not asked for yet */
} origin;

typedef struct gpu_device {
    gpu_queue queue; /* first: the device's handle is this queue's */
    const gpu_vendor *vendor;
    const gpu_calls *gpu;
    char arch[64]; /* "90" or "gfx90a:sramecc+:xnack-" */
    int device;
    void *context; /* CUDA's */
    int compiler_version[2];
    tn_device_lost lost_state;
    pthread_mutex_t lock; /* guards origins */
    origin *origins;      /* the latest first */
} gpu_device;

static gpu_device *device_of(void *handle) { return ((gpu_queue *)handle)->device; }

/* TN_OK, or the failure of a call with these values. */
#define check(d, code, call, ...) tn_call_check(&(d)->lost_state, (d)->vendor->errors, code, call, __VA_ARGS__)

/* The status of d's call `field`; what follows are its values for an error's text. */
#define CALL(d, field, arguments, ...) \
    check(d, (d)->gpu->field arguments, (d)->vendor->work.symbols[CALL_##field].name, __VA_ARGS__)

/* Makes this thread's calls go to the device. If that succeeds, put_back has to follow. */
static int make_device_current(const gpu_device *d, int *before) {
    const gpu_calls *gpu = d->gpu;
    if (!d->vendor->hip) return gpu->context_push(d->context);
    int error = gpu->device_get(before);
    return error != SUCCESS || *before == d->device ? error : gpu->device_set(d->device);
}

static void put_back(const gpu_device *d, int before) {
    void *ours;
    if (!d->vendor->hip)
        (void)d->gpu->context_pop(&ours);
    else if (before != d->device)
        (void)d->gpu->device_set(before);
}

/* Checks that the device is not lost and selects it; leave_device restores the previous selection. */
static tn_status enter_device(gpu_device *d, int *before) {
    TRY(tn_device_lost_check(&d->lost_state));
    return check(d, make_device_current(d, before), d->vendor->hip ? "hipSetDevice" : "cuCtxPushCurrent", "device %d",
                 d->device);
}

static tn_status leave_device(const gpu_device *d, int before, tn_status s) {
    put_back(d, before);
    return s;
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

/* NVRTC of the driver's version of CUDA or an older one, whose code the driver takes; else whichever there is. */
static bool load_compiler(const gpu_vendor *v, tn_reason *why) {
    int version = 0;
    tn_library_spec fitting = v->compiles;
    if (!v->hip && v->gpu->version(&version) == SUCCESS && version / 1000 < NVRTC_LATEST)
        fitting.names += 2 * (NVRTC_LATEST - tn_max64(version / 1000, NVRTC_OLDEST));
    return tn_library_open(&fitting, why) || tn_library_open(&v->compiles, why);
}

/* Once per process: while another device is being opened, threads call what was loaded for the first one. hal opens
 * under one lock. */
static tn_status load_libraries(const gpu_vendor *v) {
    static bool loaded[2];
    bool *mine = &loaded[v->hip];
    tn_reason why;
    if (!*mine) *mine = tn_library_open(&v->probe, &why) && tn_library_open(&v->work, &why) && load_compiler(v, &why);
    return *mine ? TN_OK : tn_fail(TN_ERR_UNAVAILABLE, "%s; %s", why.text, why.fix);
}

static tn_status find_device(gpu_device *d, int index) {
    int count = 0, error = d->gpu->init(0);
    if (error == SUCCESS) error = d->gpu->count(&count);
    TRY(check(d, error, d->vendor->hip ? "hipGetDeviceCount" : "cuDeviceGetCount", "%s", ""));
    if (index < 0 || index >= count)
        return tn_fail(TN_ERR_UNAVAILABLE, "%s does not exist; %d devices were found", d->lost_state.id, count);
    return check(d, d->gpu->get(&d->device, index), d->vendor->hip ? "hipDeviceGet" : "cuDeviceGet", "%d", index);
}

static int64_t device_attribute(const gpu_device *d, int attribute, int64_t unknown) {
    int value = 0;
    return d->gpu->attribute(&value, attribute, d->device) == SUCCESS && value > 0 ? value : unknown;
}

static tn_status queue_start(gpu_device *d, gpu_queue *q) {
    q->device = d;
    return CALL(d, stream_new, (&q->stream, STREAM_NON_BLOCKING), "%s", "");
}

static void queue_end(gpu_device *d, gpu_queue *q) {
    if (q->stream) (void)d->gpu->stream_sync(q->stream);
    if (q->room) (void)d->gpu->free(q->room);
    if (q->host_room) (void)d->gpu->host_free(q->host_room);
    if (q->stream) (void)d->gpu->stream_free(q->stream);
    pthread_mutex_destroy(&q->lock);
}

/* "90a" adds what only Hopper has, for compilers that support it. */
static tn_status device_start(gpu_device *d) {
    if (d->vendor->compiler->version(&d->compiler_version[0], &d->compiler_version[1]))
        d->compiler_version[0] = d->compiler_version[1] = 0;
    int arch = (int)(10 * device_attribute(d, CUDA_MAJOR, 0) + device_attribute(d, CUDA_MINOR, 0));
    if (d->vendor->hip)
        tn_gpu_gfx_name(d->gpu, d->device, d->arch, sizeof d->arch);
    else
        snprintf(d->arch, sizeof d->arch, "%d%s", arch, arch == 90 && d->compiler_version[0] >= 12 ? "a" : "");
    return queue_start(d, &d->queue);
}

static tn_status device_open(gpu_device *d, int index) {
    int before = 0;
    TRY(find_device(d, index));
    if (!d->vendor->hip)
        TRY(check(d, d->gpu->context_retain(&d->context, d->device), "cuDevicePrimaryCtxRetain", "device %d", index));
    TRY(enter_device(d, &before));
    return leave_device(d, before, device_start(d));
}

/* Also for a device whose opening failed halfway. */
static void gpu_close(void *device) {
    gpu_device *d = device_of(device);
    int before = 0, chosen = d->context || d->vendor->hip ? make_device_current(d, &before) : SUCCESS + 1;
    for (origin *o = d->origins, *earlier; o; o = earlier) {
        earlier = o->before;
        (void)d->gpu->event_free(o->event);
        tn_mem_free(o);
    }
    queue_end(d, &d->queue);
    if (chosen == SUCCESS) put_back(d, before);
    if (d->context) (void)d->gpu->context_release(d->device);
    pthread_mutex_destroy(&d->lock);
    tn_device_lost_close(&d->lost_state);
    tn_mem_free(d);
}

static void end_device(void *device, TN_UNUSED void *made) { gpu_close(device); }

static tn_status open_device(const gpu_vendor *v, int index, void **device) {
    TRY(load_libraries(v));
    gpu_device *d = tn_mem_zalloc(1, sizeof *d);
    if (!d) return TN_ERR_MEMORY;
    d->vendor = v;
    d->gpu = v->gpu;
    tn_device_lost_open(&d->lost_state, v->name, index);
    pthread_mutex_init(&d->lock, NULL);
    pthread_mutex_init(&d->queue.lock, NULL);
    d->queue.device = d;
    return tn_hand_out(device_open(d, index), d, end_device, d, device);
}

static tn_status gpu_caps(void *device, tn_caps *out) {
    gpu_device *d = device_of(device);
    const gpu_attributes *a = &d->vendor->attributes;
    int version = 0;
    size_t rest, all = 0;
    TRY(CALL(d, version, (&version), "%s", ""));
    TRY(CALL(d, memory, (&rest, &all), "%s", ""));
    *out = (tn_caps){
        .struct_size = sizeof *out,
        .code = d->vendor->format,
        .f64 = true,
        .f16 = true,
        .i64 = true,
        .max_buffer = (int64_t)all,
        .max_group = device_attribute(d, a->max_items, 1024),
        .shared_memory = device_attribute(d, a->shared_memory, TN_CUDA_DECLARED),
        .alignment = 64, /* offsets are added in the kernel, so this is taste */
        .max_groups_x = tn_min64(device_attribute(d, a->max_groups_x, 65535), d->vendor->max_groups_x),
        .subgroup = device_attribute(d, a->warp, 0),
        .exact = true, /* by the compiler's options */
        .matrix = d->vendor->matrix(d->arch),
        .processors = device_attribute(d, a->processors, 0),
    };
    snprintf(out->version, sizeof out->version, "%d, %s %d.%d, %.40s", version, d->vendor->compiler_title,
             d->compiler_version[0], d->compiler_version[1], d->arch);
    return TN_OK;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static tn_status gpu_alloc(void *device, size_t bytes, void **address) {
    gpu_device *d = device_of(device);
    return CALL(d, alloc, (address, bytes ? bytes : 1), "%zu bytes", bytes);
}

static void gpu_free(void *device, void *address) {
    gpu_device *d = device_of(device);
    if (address) (void)d->gpu->free(address);
}

static tn_status gpu_copy_async(void *queue, void *dst, const void *src, size_t bytes, int kind) {
    gpu_queue *q = queue;
    gpu_device *d = q->device;
    if (!bytes) return TN_OK;
    if (kind == 0) return CALL(d, to_device, (dst, src, bytes, q->stream), "%zu bytes to %p", bytes, dst);
    if (kind == 1) return CALL(d, to_host, (dst, src, bytes, q->stream), "%zu bytes from %p", bytes, src);
    return CALL(d, within, (dst, src, bytes, q->stream), "%zu bytes from %p to %p", bytes, src, dst);
}

static tn_status gpu_sync(void *queue) {
    gpu_queue *q = queue;
    return CALL(q->device, stream_sync, (q->stream), "%s", "");
}

/* Whether memory of the host is read at once is the vendors' secret, so it is waited for. */
static tn_status gpu_copy(void *queue, void *dst, const void *src, size_t bytes, int kind) {
    TRY(gpu_copy_async(queue, dst, src, bytes, kind));
    return kind == 2 || !bytes ? TN_OK : gpu_sync(queue);
}

static tn_status gpu_copy_peer(void *device, void *dst, void *other, const void *src, size_t bytes) {
    gpu_device *d = device_of(device), *o = device_of(other);
    int error = d->vendor->hip ? d->gpu->from_device(dst, d->device, src, o->device, bytes, d->queue.stream)
                               : d->gpu->from_context(dst, d->context, src, o->context, bytes, d->queue.stream);
    return check(d, error, d->vendor->hip ? "hipMemcpyPeerAsync" : "cuMemcpyPeerAsync", "%zu bytes from %s", bytes,
                 o->lost_state.id);
}

static tn_status gpu_fill(void *queue, void *dst, uint8_t value, size_t bytes) {
    gpu_queue *q = queue;
    if (!bytes) return TN_OK;
    return CALL(q->device, fill, (dst, value, bytes, q->stream), "%zu bytes at %p", bytes, dst);
}

static tn_status gpu_host_alloc(void *device, size_t bytes, void **host) {
    gpu_device *d = device_of(device);
    return CALL(d, host_alloc, (host, bytes ? bytes : 1, HOST_PORTABLE), "%zu bytes of host memory", bytes);
}

static void gpu_host_free(void *device, void *host) {
    gpu_device *d = device_of(device);
    if (host) (void)d->gpu->host_free(host);
}

static tn_status gpu_memory(void *device, int64_t *total, int64_t *unused) {
    gpu_device *d = device_of(device);
    size_t all = 0, rest = 0;
    TRY(CALL(d, memory, (&rest, &all), "%s", ""));
    *total = (int64_t)all;
    *unused = (int64_t)rest;
    return TN_OK;
}

/* ---- compiling --------------------------------------------------------------------------------------------------- */

enum { MOST_BUFFERS = 64, MOST_OPTIONS = 16, MOST_PARAMETERS = 256 << 10 };

/* Machine code or PTX, and behind it the hash of it: what is kept on disk. */
typedef struct image {
    char *bytes;
    size_t size; /* with the hash */
} image;

typedef struct gpu_module {
    void *module, *function;
    char name[48];
    int buffer_count;
    unsigned group[3], dynamic_shared; /* bytes of workgroup memory that launches bring */
    size_t params_bytes;
    bool params_in_buffer;
    image image;
} gpu_module;

/* The compiler's words, on one line and cut to what an error text holds. */
static void compiler_log(const compiler_calls *c, void *program, char *out, size_t size) {
    size_t needed = 0;
    snprintf(out, size, "the compiler gave no message");
    if (c->log_size(program, &needed) != SUCCESS || needed < 2) return;
    char *log = tn_mem_zalloc(needed + 1, 1);
    if (!log) return;
    if (c->log(program, log) == SUCCESS && log[0]) snprintf(out, size, "%s", log);
    for (char *at = out; *at; at++)
        if (*at == '\n') *at = '|';
    tn_mem_free(log);
}

/* NVRTC's latest architecture that is not later than the device's; 0: none, or unknown. */
static int latest_arch(const gpu_device *d) {
    int archs[128], count = 0, best = 0, device = 0;
    const compiler_calls *c = d->vendor->compiler;
    if (!c->arch_count || !c->archs || c->arch_count(&count) || count > (int)TN_COUNT(archs) || c->archs(archs))
        return 0;
    (void)sscanf(d->arch, "%d", &device);
    for (int i = 0; i < count; i++)
        if (archs[i] <= device && archs[i] > best) best = archs[i];
    return best;
}

/* Runs the compiler for an architecture ("sm_90"). */
static int run_compiler(const gpu_device *d, void *program, const char *arch, const char *more) {
    const gpu_vendor *v = d->vendor;
    const char *options[MOST_OPTIONS];
    char first[96];
    int n = 0;
    snprintf(first, sizeof first, "%s%s", v->arch_option, arch);
    if (arch[0]) options[n++] = first;
    for (int i = 0; v->options[i]; i++)
        options[n++] = v->options[i];
    if (more && more[0]) options[n++] = more;
    return v->compiler->compile(program, n, options);
}

static tn_status take_image(gpu_device *d, void *program, bool ptx, image *out) {
    const compiler_calls *c = d->vendor->compiler;
    size_t size = 0;
    int error = ptx ? c->ptx_size(program, &size) : c->code_size(program, &size);
    if (error != SUCCESS || !size)
        return tn_fail(TN_ERR_UNSUPPORTED, "%s: %s compiled the kernel, but returned no code (%d)", d->lost_state.id,
                       d->vendor->compiler_title, error);
    out->size = size + sizeof(uint64_t);
    out->bytes = tn_mem_alloc(out->size);
    if (!out->bytes) return TN_ERR_MEMORY;
    error = ptx ? c->ptx(program, out->bytes) : c->code(program, out->bytes);
    uint64_t hash = tn_hash64(out->bytes, size, 0);
    memcpy(out->bytes + size, &hash, sizeof hash);
    return error == SUCCESS
               ? TN_OK
               : tn_fail(TN_ERR_UNSUPPORTED, "%s: %s compiled the kernel, but reading its code failed (%d)",
                         d->lost_state.id, d->vendor->compiler_title, error);
}

static tn_status compiler_refused(const gpu_device *d, void *program, int error, const gpu_module *m) {
    char log[640];
    compiler_log(d->vendor->compiler, program, log, sizeof log);
    tn_status status = error == COMPILER_REFUSES || error == COMPILER_BAD_OPTION ? TN_ERR_UNSUPPORTED
                       : error == 1                                              ? TN_ERR_MEMORY
                                                                                 : TN_ERR_DEVICE;
    return tn_fail(status, "%s: compiling %s with %s %d.%d for %s failed (%d): %s", d->lost_state.id, m->name,
                   d->vendor->compiler_title, d->compiler_version[0], d->compiler_version[1], d->arch, error, log);
}

static tn_status compile_program(gpu_device *d, void *program, const tn_code *code, gpu_module *m) {
    char arch[80];
    snprintf(arch, sizeof arch, "%s%s", d->vendor->hip ? "" : "sm_", d->arch);
    int error = run_compiler(d, program, arch, code->options);
    int older = error == COMPILER_BAD_OPTION && !d->vendor->hip ? latest_arch(d) : 0;
    if (older) {
        snprintf(arch, sizeof arch, "compute_%d", older);
        error = run_compiler(d, program, arch, code->options);
    }
    return error == SUCCESS ? take_image(d, program, older != 0, &m->image) : compiler_refused(d, program, error, m);
}

static tn_status compile_source(gpu_device *d, const tn_code *code, gpu_module *m) {
    const compiler_calls *c = d->vendor->compiler;
    void *program = NULL;
    char *text = tn_mem_alloc(code->size + 1);
    if (!text) return TN_ERR_MEMORY;
    memcpy(text, code->data, code->size);
    text[code->size] = 0;
    int error = c->create(&program, text, m->name, 0, NULL, NULL);
    tn_status s = error == SUCCESS ? compile_program(d, program, code, m)
                                   : tn_fail(error == 1 ? TN_ERR_MEMORY : TN_ERR_DEVICE,
                                             "%s: %s rejected a source of %zu bytes (%d)", d->lost_state.id,
                                             d->vendor->compiler_title, code->size, error);
    if (program) (void)c->destroy(&program);
    tn_mem_free(text);
    return s;
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

static void gpu_unload(void *device, void *module) {
    gpu_device *d = device_of(device);
    gpu_module *m = module;
    if (m->module) (void)d->gpu->wait(); /* its kernels may be under way, in any queue */
    if (m->module) (void)d->gpu->module_free(m->module);
    tn_mem_free_each(m->image.bytes, m);
}

/* A cached image, if it is complete: the driver never gets bytes that it did not make. */
static tn_status image_from_binary(const tn_code *code, gpu_module *m) {
    uint64_t hash;
    if (!code->binary || code->binary_size <= sizeof hash) return TN_OK;
    size_t size = code->binary_size - sizeof hash;
    memcpy(&hash, (const char *)code->binary + size, sizeof hash);
    if (hash != tn_hash64(code->binary, size, 0)) return TN_OK;
    m->image.bytes = tn_mem_alloc(code->binary_size);
    if (!m->image.bytes) return TN_ERR_MEMORY;
    memcpy(m->image.bytes, code->binary, code->binary_size);
    m->image.size = code->binary_size;
    return TN_OK;
}

static tn_status load_image(gpu_device *d, gpu_module *m) {
    return CALL(d, module_load, (&m->module, m->image.bytes), "%s, %zu bytes", m->name, m->image.size);
}

static tn_status allow_dynamic_shared(gpu_device *d, const gpu_module *m) {
    if (!m->dynamic_shared) return TN_OK;
    return check(d, d->gpu->function_set(m->function, FUNCTION_MAX_DYNAMIC_SHARED, (int)m->dynamic_shared),
                 "cuFuncSetAttribute", "%s, %u bytes of workgroup memory", m->name, m->dynamic_shared);
}

/* Registers can leave less room for items than the device has. */
static tn_status check_group(gpu_device *d, const gpu_module *m) {
    int most = 0;
    unsigned wanted = m->group[0] * m->group[1] * m->group[2];
    TRY(CALL(d, function_ask, (&most, FUNCTION_MAX_ITEMS, m->function), "%s", m->name));
    if ((unsigned)most >= wanted) return TN_OK;
    return tn_fail(TN_ERR_UNSUPPORTED, "%s: %s needs workgroups of %u items; the device supports at most %d for it",
                   d->lost_state.id, m->name, wanted, most);
}

static tn_status module_start(gpu_device *d, const tn_code *code, gpu_module *m) {
    TRY(image_from_binary(code, m));
    if (m->image.bytes && load_image(d, m) != TN_OK) { /* made by another driver version: compile again */
        tn_mem_free(m->image.bytes);
        m->image = (image){0};
        m->module = NULL;
    }
    if (!m->module) {
        TRY(compile_source(d, code, m));
        TRY(load_image(d, m));
    }
    TRY(CALL(d, module_get, (&m->function, m->module, code->entry), "%s", code->entry));
    TRY(allow_dynamic_shared(d, m));
    return check_group(d, m);
}

static tn_status gpu_load(void *device, const tn_code *code, void **module) {
    gpu_device *d = device_of(device);
    if (code->buffer_count > MOST_BUFFERS || code->params_bytes > MOST_PARAMETERS)
        return tn_fail(TN_ERR_UNSUPPORTED,
                       "%s: %s has %d buffers and %zu bytes of parameters, more than a launch can pass",
                       d->lost_state.id, code->entry, code->buffer_count, code->params_bytes);
    gpu_module *m = tn_mem_zalloc(1, sizeof *m);
    if (!m) return TN_ERR_MEMORY;
    snprintf(m->name, sizeof m->name, "%s", code->entry);
    m->buffer_count = code->buffer_count;
    m->params_bytes = code->params_bytes;
    m->params_in_buffer = code->params_in_buffer && code->params_bytes;
    if (!d->vendor->hip && code->local_bytes > TN_CUDA_DECLARED) m->dynamic_shared = (unsigned)code->local_bytes;
    for (int i = 0; i < 3; i++)
        m->group[i] = code->group[i] ? code->group[i] : 1;
    return tn_hand_out(module_start(d, code, m), m, gpu_unload, d, module);
}

static tn_status gpu_binary(TN_UNUSED void *device, void *module, void **data, size_t *size) {
    const gpu_module *m = module;
    *data = m->image.bytes;
    *size = m->image.size;
    return TN_OK;
}

/* ---- launches ---------------------------------------------------------------------------------------------------- */

/* Bytes that a kernel's parameters take in memory. */
static size_t params_room(const gpu_module *m) { return tn_whole_lines(m->params_bytes); }

/* Reserves memory for parameters. The caller holds the lock. */
static tn_status reserve_parameters(gpu_queue *q, size_t bytes) {
    gpu_device *d = q->device;
    void *room = NULL, *host = NULL;
    if (q->taken + bytes > MOST_PARAMETERS) {
        TRY(CALL(d, stream_sync, (q->stream), "for room"));
        q->taken = 0;
    }
    if (q->host_room) return TN_OK;
    if (!q->room) TRY(CALL(d, alloc, (&room, MOST_PARAMETERS), "%d bytes of parameters", MOST_PARAMETERS));
    if (room) q->room = room;
    TRY(CALL(d, host_alloc, (&host, MOST_PARAMETERS, HOST_PORTABLE), "%d bytes of parameters", MOST_PARAMETERS));
    q->host_room = host;
    return TN_OK;
}

/* Puts a launch's parameters on the device. The caller holds the lock. */
static tn_status put_params(gpu_queue *q, const gpu_module *m, const void *params, void **address) {
    TRY(reserve_parameters(q, params_room(m)));
    *address = q->room + q->taken;
    memcpy(q->host_room + q->taken, params, m->params_bytes);
    TRY(CALL(q->device, to_device, (*address, q->host_room + q->taken, m->params_bytes, q->stream),
             "%zu bytes of parameters", m->params_bytes));
    q->taken += params_room(m);
    return TN_OK;
}

static tn_status launch(gpu_queue *q, const gpu_module *m, const tn_dispatch *l, const void *params) {
    void *arguments[MOST_BUFFERS + 1];
    for (int i = 0; i < m->buffer_count; i++)
        arguments[i] = (void *)(uintptr_t)&l->buffers[i];
    arguments[m->buffer_count] = (void *)(uintptr_t)params;
    return CALL(q->device, launch,
                (m->function, l->groups[0], l->groups[1], l->groups[2], m->group[0], m->group[1], m->group[2],
                 m->dynamic_shared, q->stream, arguments, NULL),
                "%s, %u x %u x %u workgroups of %u x %u x %u items", m->name, l->groups[0], l->groups[1], l->groups[2],
                m->group[0], m->group[1], m->group[2]);
}

static tn_status dispatch_one(gpu_queue *q, const gpu_module *m, const tn_dispatch *l) {
    void *address = NULL;
    if (!tn_dispatch_has_work(l)) return TN_OK;
    if (!m->params_in_buffer) return launch(q, m, l, l->params);
    AUTO_LOCK(&q->lock);
    TRY(put_params(q, m, l->params, &address));
    return launch(q, m, l, &address);
}

static tn_status gpu_dispatch(void *queue, void *module, const tn_dispatch *dispatches, int64_t count) {
    gpu_queue *q = queue;
    for (int64_t i = 0; i < count; i++)
        TRY(dispatch_one(q, module, &dispatches[i]));
    return TN_OK;
}

static tn_status gpu_dispatch_list(void *queue, const tn_list_item *items, int64_t count) {
    gpu_queue *q = queue;
    for (int64_t i = 0; i < count; i++)
        TRY(dispatch_one(q, items[i].module, &items[i].dispatch));
    return TN_OK;
}

/* ---- lists as graphs --------------------------------------------------------------------------------------------- */

/* A kernel of the graph; NULL if a launch has no workgroups. Its current arguments: the addresses, then the parameters
 * or their address. */
typedef struct gpu_node {
    void *node;
    char *values;
    size_t bytes;
} gpu_node;

typedef struct gpu_list {
    void *graph, *made;
    char *values, *next; /* of all nodes; memory for those of one */
    size_t in_memory;    /* bytes of parameters that a run puts there */
    gpu_node nodes[];
} gpu_list;

static size_t value_bytes(const gpu_module *m) {
    return (size_t)m->buffer_count * sizeof(void *) + (m->params_in_buffer ? sizeof(void *) : m->params_bytes);
}

/* The arguments of an item's launch. `address`: of its parameters, if they are in memory. */
static void note_values(const gpu_module *m, const tn_dispatch *l, const void *address, char *values) {
    size_t addresses = (size_t)m->buffer_count * sizeof(void *);
    memcpy(values, l->buffers, addresses);
    memcpy(values + addresses, m->params_in_buffer ? (const void *)&address : l->params, value_bytes(m) - addresses);
}

/* A node with these values, as the vendor's call needs it; *room is what it points to. */
typedef struct node_room {
    void *arguments[MOST_BUFFERS + 1];
    cuda_node cuda;
    hip_node hip;
} node_room;

static const void *node_params(const gpu_device *d, const gpu_module *m, const uint32_t groups[3], char *values,
                               node_room *room) {
    for (int i = 0; i <= m->buffer_count; i++)
        room->arguments[i] = values + (size_t)i * sizeof(void *);
    room->cuda = (cuda_node){.function = m->function, .local_bytes = m->dynamic_shared, .values = room->arguments};
    room->hip = (hip_node){.function = m->function, .values = room->arguments};
    for (int i = 0; i < 3; i++) {
        room->cuda.groups[i] = room->hip.groups[i] = groups[i];
        room->cuda.items[i] = room->hip.items[i] = m->group[i];
    }
    return d->vendor->hip ? (const void *)&room->hip : &room->cuda;
}

/* The nodes, each behind the one before it, with the values of the first run. */
static tn_status add_nodes(gpu_device *d, gpu_list *l, const tn_list_item *items, int64_t count) {
    void *last = NULL;
    char *at = l->values;
    TRY(CALL(d, graph_new, (&l->graph, 0), "%lld kernels", (long long)count));
    for (int64_t i = 0; i < count; i++) {
        const gpu_module *m = items[i].module;
        gpu_node *n = &l->nodes[i];
        node_room room;
        if (!tn_dispatch_has_work(&items[i].dispatch)) continue;
        *n = (gpu_node){.values = at, .bytes = value_bytes(m)};
        at += n->bytes;
        note_values(m, &items[i].dispatch, NULL, n->values);
        const void *params = node_params(d, m, items[i].dispatch.groups, n->values, &room);
        TRY(CALL(d, graph_add, (&n->node, l->graph, &last, last != NULL, params), "%s", m->name));
        last = n->node;
    }
    return CALL(d, graph_make, (&l->made, l->graph, 0), "%lld kernels", (long long)count);
}

static void gpu_list_free(void *device, void *list) {
    gpu_device *d = device_of(device);
    gpu_list *l = list;
    if (l->made) {
        (void)d->gpu->wait(); /* it may be under way, in any queue */
        (void)d->gpu->graph_end(l->made);
    }
    if (l->graph) (void)d->gpu->graph_free(l->graph);
    tn_mem_free_each(l->values, l->next, l);
}

static bool has_graphs(const gpu_device *d) {
    for (int i = CALL_graph_new; i <= CALL_graph_free; i++)
        if (!*d->vendor->work.symbols[i].address) return false;
    return true;
}

static tn_status gpu_list_make(void *device, const tn_list_item *items, int64_t count, void **list) {
    gpu_device *d = device_of(device);
    size_t bytes = 0, most = 0, in_memory = 0;
    for (int64_t i = 0; i < count; i++) {
        const gpu_module *m = items[i].module;
        bytes += value_bytes(m);
        if (value_bytes(m) > most) most = value_bytes(m);
        if (m->params_in_buffer) in_memory += params_room(m);
    }
    if (!has_graphs(d) || in_memory > MOST_PARAMETERS)
        return tn_fail(TN_ERR_UNSUPPORTED, "%s: out of memory for a graph of %lld kernels with %zu bytes of parameters",
                       d->lost_state.id, (long long)count, in_memory);
    gpu_list *l = tn_mem_zalloc(1, sizeof *l + (size_t)count * sizeof *l->nodes);
    if (!l) return TN_ERR_MEMORY;
    l->in_memory = in_memory;
    l->values = tn_mem_alloc(bytes + 1);
    l->next = tn_mem_alloc(most + 1);
    return tn_hand_out(l->values && l->next ? add_nodes(d, l, items, count) : TN_ERR_MEMORY, l, gpu_list_free, d, list);
}

/* Gives a node the values of this run, where they are others than before. The caller holds the lock. */
static tn_status set_node(gpu_queue *q, gpu_list *l, gpu_node *n, const gpu_module *m, const tn_dispatch *now) {
    void *address = NULL;
    node_room room;
    if (m->params_in_buffer) TRY(put_params(q, m, now->params, &address));
    note_values(m, now, address, l->next);
    if (memcmp(l->next, n->values, n->bytes) == 0) return TN_OK;
    const void *params = node_params(q->device, m, now->groups, l->next, &room);
    TRY(CALL(q->device, graph_set, (l->made, n->node, params), "%s", m->name));
    memcpy(n->values, l->next, n->bytes);
    return TN_OK;
}

static tn_status gpu_list_run(void *queue, void *list, const tn_list_item *items, int64_t count) {
    gpu_queue *q = queue;
    gpu_list *l = list;
    AUTO_LOCK(&q->lock);
    if (l->in_memory) TRY(reserve_parameters(q, l->in_memory)); /* none of this run's parameters overwrites another */
    for (int64_t i = 0; i < count; i++)
        if (l->nodes[i].node) TRY(set_node(q, l, &l->nodes[i], items[i].module, &items[i].dispatch));
    return CALL(q->device, graph_run, (l->made, q->stream), "%lld kernels", (long long)count);
}

static tn_status gpu_prepare(void *queue, void *module, TN_UNUSED const tn_launch *launches, TN_UNUSED int64_t count) {
    gpu_queue *q = queue;
    const gpu_module *m = module;
    if (!m->params_in_buffer) return TN_OK;
    AUTO_LOCK(&q->lock);
    return reserve_parameters(q, 0);
}

/* ---- queues and events ------------------------------------------------------------------------------------------- */

static void gpu_queue_free(void *device, void *queue) {
    gpu_device *d = device_of(device);
    queue_end(d, queue);
    tn_mem_free(queue);
}

static tn_status gpu_queue_new(void *device, void **queue) {
    gpu_device *d = device_of(device);
    gpu_queue *q = tn_mem_zalloc(1, sizeof *q);
    if (!q) return TN_ERR_MEMORY;
    pthread_mutex_init(&q->lock, NULL);
    return tn_hand_out(queue_start(d, q), q, gpu_queue_free, d, queue);
}

typedef struct gpu_event {
    void *event;
    origin *origin; /* of its time */
    bool timed, recorded;
} gpu_event;

static tn_status gpu_event_new(void *device, bool timed, void **event) {
    gpu_device *d = device_of(device);
    gpu_event *e = tn_mem_zalloc(1, sizeof *e);
    if (!e) return TN_ERR_MEMORY;
    e->timed = timed;
    tn_status s = CALL(d, event_new, (&e->event, timed ? 0 : EVENT_UNTIMED), timed ? "timed" : "untimed");
    if (s != TN_OK)
        tn_mem_free(e);
    else
        *event = e;
    return s;
}

static void gpu_event_free(void *device, void *event) {
    gpu_device *d = device_of(device);
    gpu_event *e = event;
    (void)d->gpu->event_free(e->event);
    tn_mem_free(e);
}

/* A new origin in this stream. The caller holds the device's lock and reports errors. */
static int origin_new(gpu_queue *q, double now) {
    gpu_device *d = q->device;
    origin *o = tn_mem_zalloc(1, sizeof *o);
    if (!o) return OUT_OF_MEMORY;
    int error = d->gpu->event_new(&o->event, 0);
    if (error == SUCCESS) error = d->gpu->event_record(o->event, q->stream);
    if (error != SUCCESS) {
        if (o->event) (void)d->gpu->event_free(o->event);
        tn_mem_free(o);
        return error;
    }
    *o = (origin){.before = d->origins, .event = o->event, .made = now, .seconds = d->origins ? -1 : 0};
    d->origins = o;
    return SUCCESS;
}

static tn_status latest_origin(gpu_queue *q, origin **out) {
    enum { SECONDS = 4 };
    gpu_device *d = q->device;
    double now = tn_now();
    int error = SUCCESS;
    pthread_mutex_lock(&d->lock);
    if (!d->origins || now - d->origins->made > SECONDS) error = origin_new(q, now);
    *out = d->origins;
    pthread_mutex_unlock(&d->lock);
    return check(d, error, d->vendor->work.symbols[CALL_event_record].name, "the reference event of timing");
}

static tn_status gpu_event_record(void *queue, void *event) {
    gpu_queue *q = queue;
    gpu_event *e = event;
    if (e->timed) TRY(latest_origin(q, &e->origin));
    TRY(CALL(q->device, event_record, (e->event, q->stream), "%s", ""));
    e->recorded = true;
    return TN_OK;
}

static tn_status gpu_event_wait(void *queue, void *event) {
    gpu_queue *q = queue;
    const gpu_event *e = event;
    return e->recorded ? CALL(q->device, stream_wait, (q->stream, e->event, 0), "%s", "") : TN_OK;
}

static tn_status gpu_event_query(void *device, void *event, bool *passed) {
    gpu_device *d = device_of(device);
    const gpu_event *e = event;
    int error = e->recorded ? d->gpu->event_query(e->event) : SUCCESS;
    *passed = error == SUCCESS;
    return check(d, error == NOT_READY ? SUCCESS : error, d->vendor->work.symbols[CALL_event_query].name, "%s", "");
}

static tn_status gpu_event_sync(void *device, void *event) {
    gpu_device *d = device_of(device);
    const gpu_event *e = event;
    return e->recorded ? CALL(d, event_sync, (e->event), "%s", "") : TN_OK;
}

/* Seconds from one event to another, once both have passed. */
static tn_status seconds_between(gpu_device *d, void *from, void *to, double *seconds) {
    float milliseconds = 0;
    TRY(CALL(d, event_sync, (from), "%s", ""));
    TRY(CALL(d, event_elapsed, (&milliseconds, from, to), "%s", ""));
    *seconds = (double)milliseconds * 1e-3;
    return TN_OK;
}

/* An origin's time behind the first one: times of those before it are found first. */
static tn_status seconds_of(gpu_device *d, origin *o, double *seconds) {
    for (;;) {
        double step = 0;
        pthread_mutex_lock(&d->lock);
        origin *at = o;
        while (at->seconds < 0 && at->before->seconds < 0)
            at = at->before;
        bool known = o->seconds >= 0;
        *seconds = o->seconds;
        pthread_mutex_unlock(&d->lock);
        if (known) return TN_OK;
        TRY(CALL(d, event_sync, (at->event), "%s", ""));
        TRY(seconds_between(d, at->before->event, at->event, &step));
        AUTO_LOCK(&d->lock);
        at->seconds = at->before->seconds + (step > 0 ? step : 0);
    }
}

static tn_status gpu_event_time(void *device, void *event, double *seconds) {
    gpu_device *d = device_of(device);
    const gpu_event *e = event;
    double begin = 0, behind = 0;
    if (!e->recorded || !e->timed)
        return tn_fail(TN_ERR_STATE, "%s: cannot read the time of an event that %s", d->lost_state.id,
                       e->timed ? "was never recorded" : "was created without timing");
    TRY(seconds_of(d, e->origin, &begin));
    TRY(seconds_between(d, e->origin->event, e->event, &behind));
    *seconds = begin + behind;
    return TN_OK;
}

static tn_status gpu_lend(void *queue, tn_lent_work *work, void *ctx) {
    const tn_lent lent = {.struct_size = sizeof lent, .stream = ((gpu_queue *)queue)->stream};
    return work(ctx, &lent);
}

/* ---- as hal calls them: on the device, and back ------------------------------------------------------------------ */

/* X(function, parameters, arguments): the first of them is the device's or a queue's handle. */
#define FUNCTIONS(X)                                                                                              \
    X(caps, (void *on, tn_caps *out), (on, out))                                                                  \
    X(alloc, (void *on, size_t bytes, void **address), (on, bytes, address))                                      \
    X(load, (void *on, const tn_code *code, void **module), (on, code, module))                                   \
    X(copy, (void *on, void *dst, const void *src, size_t bytes, int kind), (on, dst, src, bytes, kind))          \
    X(copy_async, (void *on, void *dst, const void *src, size_t bytes, int kind), (on, dst, src, bytes, kind))    \
    X(copy_peer, (void *on, void *dst, void *other, const void *src, size_t bytes), (on, dst, other, src, bytes)) \
    X(fill, (void *on, void *dst, uint8_t value, size_t bytes), (on, dst, value, bytes))                          \
    X(sync, (void *on), (on))                                                                                     \
    X(memory, (void *on, int64_t *total, int64_t *unused), (on, total, unused))                                   \
    X(prepare, (void *on, void *module, const tn_launch *launches, int64_t count), (on, module, launches, count)) \
    X(dispatch, (void *on, void *module, const tn_dispatch *dispatches, int64_t count),                           \
      (on, module, dispatches, count))                                                                            \
    X(dispatch_list, (void *on, const tn_list_item *items, int64_t count), (on, items, count))                    \
    X(list_make, (void *on, const tn_list_item *items, int64_t count, void **list), (on, items, count, list))     \
    X(list_run, (void *on, void *list, const tn_list_item *items, int64_t count), (on, list, items, count))       \
    X(queue_new, (void *on, void **queue), (on, queue))                                                           \
    X(event_new, (void *on, bool timed, void **event), (on, timed, event))                                        \
    X(event_record, (void *on, void *event), (on, event))                                                         \
    X(event_wait, (void *on, void *event), (on, event))                                                           \
    X(event_query, (void *on, void *event, bool *passed), (on, event, passed))                                    \
    X(event_sync, (void *on, void *event), (on, event))                                                           \
    X(event_time, (void *on, void *event, double *seconds), (on, event, seconds))                                 \
    X(host_alloc, (void *on, size_t bytes, void **host), (on, bytes, host))                                       \
    X(lend, (void *on, tn_lent_work *work, void *ctx), (on, work, ctx))
/* Those that give something back do so whether the device can be chosen or not. */
#define GIVING_BACK(X) X(free) X(unload) X(queue_free) X(event_free) X(host_free) X(list_free)

#define X(function, parameters, arguments)                                    \
    static tn_status enter_##function parameters {                            \
        int before = 0;                                                       \
        TRY(enter_device(device_of(on), &before));                            \
        return leave_device(device_of(on), before, gpu_##function arguments); \
    }
FUNCTIONS(X)
#undef X
#define X(function)                                                           \
    static void enter_##function(void *on, void *what) {                      \
        int before = 0, chosen = make_device_current(device_of(on), &before); \
        gpu_##function(on, what);                                             \
        if (chosen == SUCCESS) put_back(device_of(on), before);               \
    }
GIVING_BACK(X)
#undef X

#define X(function, ...) .function = enter_##function,
#define DRIVER_FUNCTIONS \
    FUNCTIONS(X) GIVING_BACK(X).isolate = TN_PROBE_ISOLATE, .close = gpu_close, .binary = gpu_binary

#endif

/* ---- the two drivers --------------------------------------------------------------------------------------------- */

#if TRUNNION_WITH_CUDA

static tn_status cuda_open(int index, TN_UNUSED const tn_device_options *options, void **device) {
    return open_device(&tn_gpu_cuda, index, device);
}

const tn_driver tn_driver_cuda = {
    .struct_size = sizeof(tn_driver),
    .abi = TN_BACKEND_ABI,
    .name = "cuda",
    .title = "NVIDIA CUDA",
    .probe = tn_cuda_probe,
    .watch = tn_cuda_watch,
    .open = cuda_open,
    DRIVER_FUNCTIONS,
};

#endif

#if TRUNNION_WITH_ROCM

static tn_status rocm_open(int index, TN_UNUSED const tn_device_options *options, void **device) {
    return open_device(&tn_gpu_rocm, index, device);
}

const tn_driver tn_driver_rocm = {
    .struct_size = sizeof(tn_driver),
    .abi = TN_BACKEND_ABI,
    .name = "rocm",
    .title = "AMD ROCm",
    .probe = tn_rocm_probe,
    .watch = tn_rocm_watch,
    .open = rocm_open,
    DRIVER_FUNCTIONS,
};

#endif
