/* webgpu.c — the driver of WebGPU by wgpu-native, or by a browser: probe, memory, copies and submissions.
 *
 * A wrong call takes the process down: nothing is called that was not checked before. What the library finds wrong all
 * the same comes by callbacks: to error scopes around whatever is created, else to one place that the next call reads.
 *
 * Commands are gathered in an encoder, the parameters of launches on the host; tn_wg_flush() submits both. Everything
 * that waits waits in wait_for_webgpu(); in a browser the whole module is suspended there until a callback has come. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "drivers/drivers.h"
#include "drivers/probe.h"
#include "drivers/webgpu_device.h"
#include "hal/driver.h"

#if TRUNNION_WITH_WEBGPU

/* ==== probe ======================================================================================================= */
/* The interface was unstable before wgpu-native 24, and a wrong call ends the process. So the version is asked first,
 * and nothing else is called before it was checked. webgpu_open opens what is listed here. */

/* ---- the library ------------------------------------------------------------------------------------------------- */

enum {
    MOST = 16,         /* adapters */
    OLDEST = 24,       /* major version */
    VERSION_SHIFT = 24 /* of the major version */
};

wg_calls tn_wg_gpu;

static const char *const names[] = {"libwgpu_native.*", "site-packages/wgpu/resources/libwgpu_native*",
                                    "wgpu_native.dll", "site-packages/wgpu/resources/wgpu_native*.dll", NULL};
static const tn_symbol symbols[] = {
/* all optional, so that an old version is reported by its number and not by a missing call */
#define X(name, result, parameters) {"wgpu" #name, (void **)&tn_wg_gpu.name, true},
    CALLS(X)
#undef X
};
#if defined(__wasm__)
#define LIBRARY "WebGPU"
static const char INSTALL[] = "use a browser with WebGPU and WebAssembly's JavaScript Promise Integration";
static const char ADAPTER_FIX[] = "enable hardware acceleration in the browser's settings";
#else
#define LIBRARY "wgpu-native"
static const char INSTALL[] = "install wgpu-native 24 or later (pip install wgpu contains it)";
static const char ADAPTER_FIX[] = "install your GPU's Vulkan driver: see the line of vulkan";
#endif
static const tn_library_spec library = {LIBRARY, "TRUNNION_WEBGPU_LIB", names, symbols, TN_COUNT(symbols), INSTALL};

uint32_t tn_wg_major_version(void) { return tn_wg_gpu.GetVersion() >> VERSION_SHIFT; }

/* The first missing call, except the optional one; NULL: all are present. */
static const char *missing_call(void) {
    for (size_t i = 0; i < TN_COUNT(symbols); i++)
        if (!*symbols[i].address && symbols[i].address != (void **)&tn_wg_gpu.DevicePoll) return symbols[i].name;
    return NULL;
}

static bool open_library(tn_reason *why) {
#if defined(__wasm__)
    (void)why;
    tn_wg_import();
    return true;
#else
    return tn_library_open(&library, why);
#endif
}

/* Opens the library once a process; hal probes and opens under one lock. A probe's own process looks anew. */
static bool wg_load(bool anew, tn_reason *why) {
    static bool loaded;
    if (loaded && !anew) return true;
    loaded = false;
    if (!open_library(why)) return false;
    const char *missing = missing_call();
    if (tn_wg_gpu.GetVersion && tn_wg_major_version() < OLDEST)
        tn_reason_set(why, TN_REASON_TOO_OLD, INSTALL, LIBRARY " %u.%u is older than %d", tn_wg_major_version(),
                      tn_wg_gpu.GetVersion() >> 16 & 255, OLDEST);
    else if (missing)
        tn_reason_set(why, TN_REASON_SYMBOL_MISSING, INSTALL, LIBRARY " lacks %s", missing);
    else
        loaded = true;
    return loaded;
}

/* ---- finding devices --------------------------------------------------------------------------------------------- */

static const char *const backend_names[] = {
    [2] = "WebGPU", [3] = "Direct3D 11", [4] = "Direct3D 12", [5] = "Metal",
    [6] = "Vulkan", [7] = "OpenGL",      [8] = "OpenGL ES",
};

/* Copies a text of the library, shortened to fit. */
static void wg_text(char *out, size_t size, wgpu_text t) {
    size_t n = !t.data ? 0 : t.length == SIZE_MAX ? strlen(t.data) : t.length;
    snprintf(out, size, "%.*s", n < size ? (int)n : (int)size - 1, t.data ? t.data : "");
}

/* The same on one line; the library writes paragraphs. */
static void wg_words(char *out, size_t size, wgpu_text t) {
    char *to = out;
    wg_text(out, size, t);
    for (const char *from = out; *from; from++) {
        bool space = *from == '\n' || *from == ' ';
        if (space && (to == out || to[-1] == ' ')) continue;
        *to++ = space ? ' ' : *from;
    }
    *to = 0;
}

static void describe_webgpu(tn_probe *out, void *adapter) {
    wgpu_adapter_info info = {0};
    if (tn_wg_gpu.AdapterGetInfo(adapter, &info) != STATUS_SUCCESS) return;
    tn_device_info *d = tn_probe_device(out);
    if (!d) {
        tn_wg_gpu.AdapterInfoFreeMembers(info);
        return;
    }
    wg_text(d->name, sizeof d->name, info.device.length ? info.device : info.description);
    const char *over = info.backend < TN_COUNT(backend_names) ? backend_names[info.backend] : NULL;
    if (over) snprintf(d->compute_capability, sizeof d->compute_capability, "over %s", over);
    d->software = info.type == ADAPTER_CPU;
    d->unified_memory = d->software || info.type == ADAPTER_INTEGRATED;
    if (d->software) d->total_memory = tn_host_memory_now().total;
    tn_wg_gpu.AdapterInfoFreeMembers(info);
}

/* The adapters, which the caller releases; none if there are more than MOST. */
static size_t list_adapters(void *instance, void **adapters, size_t *found) {
    const wgpu_enumerate_options options = {.backends = BACKENDS_PRIMARY};
    *found = tn_wg_gpu.InstanceEnumerateAdapters(instance, &options, NULL);
    return *found && *found <= MOST ? tn_wg_gpu.InstanceEnumerateAdapters(instance, &options, adapters) : 0;
}

static void wg_probe(tn_probe *out) {
    tn_reason why;
    if (!tn_library_locate(&library, out->library, sizeof out->library)) out->library[0] = 0;
    if (!wg_load(TN_PROBE_ISOLATE, &why)) {
        tn_probe_reason(out, why.code, why.fix, "%s", why.text);
        return;
    }
    void *instance = tn_wg_gpu.CreateInstance(NULL), *adapters[MOST];
    size_t found = 0, count = instance ? list_adapters(instance, adapters, &found) : 0;
    for (size_t i = 0; i < count; i++) {
        describe_webgpu(out, adapters[i]);
        tn_wg_gpu.AdapterRelease(adapters[i]);
    }
    if (instance) tn_wg_gpu.InstanceRelease(instance);
    if (!instance)
        tn_probe_reason(out, TN_REASON_INIT_FAILED, INSTALL, LIBRARY " returned no instance");
    else if (found == 0 && !tn_probe_render_denied(out))
        tn_probe_reason(out, TN_REASON_NO_DEVICE, ADAPTER_FIX, LIBRARY " is running, but it found no adapter");
    else if (found > MOST)
        tn_probe_reason(out, TN_REASON_INIT_FAILED, "", LIBRARY " lists %zu adapters; at most %d are supported", found,
                        MOST);
}

static void wg_watch(tn_watch_add *add, void *ctx) { tn_probe_watch_vulkan(&library, add, ctx); }

/* The index-th adapter of the listing, which the caller releases. */
static tn_status wg_find(void *instance, int index, void **out) {
    void *adapters[MOST];
    size_t found, count = list_adapters(instance, adapters, &found);
    *out = NULL;
    for (size_t i = 0; i < count; i++) {
        if (index >= 0 && i == (size_t)index)
            *out = adapters[i];
        else
            tn_wg_gpu.AdapterRelease(adapters[i]);
    }
    return *out ? TN_OK : tn_fail(TN_ERR_UNAVAILABLE, "webgpu:%d does not exist; " LIBRARY " finds %zu", index, found);
}

/* ==== the driver ================================================================================================== */

/* ---- errors ------------------------------------------------------------------------------------------------------ */

static void on_error(TN_UNUSED void *const *device, uint32_t type, wgpu_text message, void *ctx,
                     TN_UNUSED void *unused) {
    wg_device *d = ctx;
    AUTO_LOCK(&d->told);
    if (!d->error) {
        d->error = type;
        wg_words(d->error_text, sizeof d->error_text, message);
    }
}

static void on_lost(TN_UNUSED void *const *device, uint32_t reason, wgpu_text message, void *ctx,
                    TN_UNUSED void *unused) {
    wg_device *d = ctx;
    char words[160];
    if (reason == LOST_DESTROYED || reason == LOST_CANCELLED) return;
    wg_words(words, sizeof words, message);
    tn_device_lost_note(&d->lost_state, "%s", words);
}

/* TN_OK, or the failure of a call by the type of error that it left. */
static tn_status check_type(wg_device *d, uint32_t type, const char *words, const char *call, const char *values) {
    TRY(tn_device_lost_check(&d->lost_state));
    if (type <= ERROR_NONE) return TN_OK;
    bool memory = type == ERROR_MEMORY;
    return tn_fail(memory ? TN_ERR_MEMORY : TN_ERR_DEVICE, "%s: %s(%s): %s; %s", d->lost_state.id, call, values,
                   words[0] ? words : "the library gave no message", memory ? TN_ADVICE_SMALLER : TN_ADVICE_UPDATE);
}

/* The first error since the last look that no scope caught. */
static tn_status check_told(wg_device *d, const char *call) {
    char words[sizeof d->error_text];
    pthread_mutex_lock(&d->told);
    uint32_t type = d->error;
    memcpy(words, d->error_text, sizeof words);
    d->error = 0;
    pthread_mutex_unlock(&d->told);
    return check_type(d, type, words, call, "");
}

/* ---- waiting ----------------------------------------------------------------------------------------------------- */

static void on_status(uint32_t status, wgpu_text message, void *ctx, TN_UNUSED void *unused) {
    outcome *o = ctx;
    o->status = status;
    wg_words(o->text, sizeof o->text, message);
    atomic_store(&o->done, true);
}

static void on_device(uint32_t status, void *device, wgpu_text message, void *ctx, void *unused) {
    outcome *o = ctx;
    o->object = status == STATUS_SUCCESS ? device : NULL;
    on_status(status, message, ctx, unused);
}

static void on_scope(uint32_t status, uint32_t type, wgpu_text message, void *ctx, void *unused) {
    outcome *o = ctx;
    o->type = type;
    on_status(status, message, ctx, unused);
}

static wgpu_callback callback_of(wg_device *d, void (*call)(void)) {
    d->wait.text[0] = 0;
    d->wait.status = d->wait.type = 0;
    d->wait.object = NULL;
    atomic_store(&d->wait.done, false);
    return (wgpu_callback){.mode = ON_PROCESS_EVENTS, .call = call, .a = &d->wait};
}

/* Lets the library run until the callback has come. It is the device's `wait` that callbacks write to, and one that has
 * not come means a lost device, which never waits again. */
static void wait_for_webgpu(wg_device *d) {
    enum { PATIENCE = 10000 };
    static const struct timespec pause = {.tv_nsec = 100000};
    for (int idle = 0; !atomic_load(&d->wait.done) && !tn_is_lost(&d->lost_state); idle++) {
        if (d->device && tn_wg_gpu.DevicePoll) (void)tn_wg_gpu.DevicePoll(d->device, true, NULL);
        tn_wg_gpu.InstanceProcessEvents(d->instance);
        if (idle > 100) nanosleep(&pause, NULL);
        if (tn_wg_gpu.DevicePoll && idle == PATIENCE)
            on_lost(NULL, 0, (wgpu_text){"a callback did not arrive, although nothing is being waited for", SIZE_MAX},
                    d, NULL);
    }
}

static const uint32_t scopes[] = {SCOPE_VALIDATION, SCOPE_MEMORY}; /* wgpu-native aborts at one for inner errors */

void tn_wg_scopes_open(wg_device *d) {
    for (size_t i = 0; i < TN_COUNT(scopes); i++)
        tn_wg_gpu.DevicePushErrorScope(d->device, scopes[i]);
}

tn_status tn_wg_scopes_close(wg_device *d, const void *made, const char *call, const char *format, ...) {
    uint32_t type = ERROR_NONE;
    char values[160], words[sizeof d->wait.text] = "";
    va_list args;
    va_start(args, format);
    vsnprintf(values, sizeof values, format, args);
    va_end(args);
    for (size_t i = 0; i < TN_COUNT(scopes); i++) {
        (void)tn_wg_gpu.DevicePopErrorScope(d->device, callback_of(d, (void (*)(void))on_scope));
        wait_for_webgpu(d);
        bool bad = d->wait.status == STATUS_SUCCESS && d->wait.type > ERROR_NONE;
        if (!bad || type > ERROR_NONE) continue;
        type = d->wait.type;
        memcpy(words, d->wait.text, sizeof words);
    }
    if (type <= ERROR_NONE) TRY(check_told(d, call));
    if (type <= ERROR_NONE && !made) type = ERROR_INTERNAL;
    return check_type(d, type, words, call, values);
}

/* ---- submissions ------------------------------------------------------------------------------------------------- */

static void pass_end(wg_device *d) {
    if (!d->pass) return;
    tn_wg_gpu.ComputePassEncoderEnd(d->pass);
    tn_wg_gpu.ComputePassEncoderRelease(d->pass);
    d->pass = NULL;
    d->set = NULL;
}

static tn_status encoder_begin(wg_device *d) {
    const wgpu_labelled descriptor = {0};
    if (!d->encoder) d->encoder = tn_wg_gpu.DeviceCreateCommandEncoder(d->device, &descriptor);
    return d->encoder ? TN_OK : check_type(d, ERROR_INTERNAL, "", "wgpuDeviceCreateCommandEncoder", "");
}

tn_status tn_wg_pass_begin(wg_device *d) {
    TRY(encoder_begin(d));
    if (!d->pass) d->pass = tn_wg_gpu.CommandEncoderBeginComputePass(d->encoder, NULL);
    return d->pass ? TN_OK : check_type(d, ERROR_INTERNAL, "", "wgpuCommandEncoderBeginComputePass", "");
}

/* Ends the encoder. wgpu-native ends the process when it is given commands in which it found something wrong. */
static tn_status finish_commands(wg_device *d, void **commands) {
    const wgpu_labelled descriptor = {0};
    pass_end(d);
    *commands = tn_wg_gpu.CommandEncoderFinish(d->encoder, &descriptor);
    tn_wg_gpu.CommandEncoderRelease(d->encoder);
    d->encoder = NULL;
    TRY(check_told(d, "wgpuCommandEncoderFinish"));
    return *commands ? TN_OK : check_type(d, ERROR_INTERNAL, "", "wgpuCommandEncoderFinish", "");
}

static tn_status submit(wg_device *d, void *commands) {
    if (d->params_used) tn_wg_gpu.QueueWriteBuffer(d->queue, d->params.buffer, 0, d->params_host, d->params_used);
    TRY(check_told(d, "wgpuQueueWriteBuffer"));
    tn_wg_gpu.QueueSubmit(d->queue, 1, &commands);
    return check_told(d, "wgpuQueueSubmit");
}

/* Hands the device all that was encoded. What it does not take is gone, and others were told that it is under way: the
 * device counts as lost. */
tn_status tn_wg_flush(wg_device *d) {
    void *commands = NULL;
    if (!d->encoder) return TN_OK;
    const char *call = "wgpuCommandEncoderFinish";
    tn_status s = finish_commands(d, &commands);
    if (s == TN_OK) {
        call = "wgpuQueueSubmit";
        s = submit(d, commands);
    }
    if (commands) tn_wg_gpu.CommandBufferRelease(commands);
    d->params_used = d->uploaded = 0;
    d->encoded = 0;
    return s == TN_OK ? s : tn_device_lost_with_work(&d->lost_state, s, call);
}

/* The allocation of `bytes` bytes at a device address, and where in it they begin. */
tn_status tn_wg_locate(wg_device *d, const void *address, size_t bytes, const char *role, wg_memory **memory,
                       size_t *at) {
    void *found;
    tn_status s = tn_address_range_locate(&d->ranges, d->lost_state.id, role, address, bytes, &found, at);
    *memory = found;
    return s;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* `size` bytes: whole words. */
static tn_status memory_make(wg_device *d, uint64_t size, uint64_t usage, wg_memory *out) {
    const wgpu_buffer_descriptor descriptor = {.usage = usage, .size = size};
    tn_wg_scopes_open(d);
    void *buffer = tn_wg_gpu.DeviceCreateBuffer(d->device, &descriptor);
    tn_status s = tn_wg_scopes_close(d, buffer, "wgpuDeviceCreateBuffer", "%llu bytes", (unsigned long long)size);
    if (s == TN_OK)
        *out = (wg_memory){buffer, size, ++d->numbers};
    else if (buffer)
        tn_wg_gpu.BufferRelease(buffer);
    return s;
}

static tn_status webgpu_alloc(void *device, size_t bytes, void **address) {
    wg_device *d = device;
    size_t size = bytes < WORD ? WORD : bytes > SIZE_MAX - WORD ? bytes : (bytes + WORD - 1) / WORD * WORD;
    TRY(tn_device_lost_check(&d->lost_state));
    TRY(tn_memory_budget_take(&d->room, d->lost_state.id, size));
    wg_memory *m = tn_mem_zalloc(1, sizeof *m);
    pthread_mutex_lock(&d->lock);
    tn_status s = m ? memory_make(d, size, USE_STORAGE | USE_COPY_FROM | USE_COPY_TO, m) : TN_ERR_MEMORY;
    if (s == TN_OK) s = tn_address_range_add(&d->ranges, m, bytes, address);
    if (s != TN_OK && m && m->buffer) tn_wg_gpu.BufferRelease(m->buffer);
    pthread_mutex_unlock(&d->lock);
    if (s == TN_OK) return TN_OK;
    tn_memory_budget_give(&d->room, (int64_t)size);
    tn_mem_free(m);
    return s;
}

static void webgpu_free(void *device, void *address) {
    wg_device *d = device;
    size_t bytes;
    AUTO_LOCK(&d->lock);
    wg_memory *m = tn_address_range_remove(&d->ranges, address, &bytes);
    if (m) {
        tn_wg_groups_forget(d, m);
        tn_wg_gpu.BufferRelease(m->buffer);
        tn_memory_budget_give(&d->room, (int64_t)m->bytes);
        tn_mem_free(m);
    }
}

static tn_status webgpu_memory(void *device, int64_t *total, int64_t *unused) {
    wg_device *d = device;
    *total = d->room.total; /* 0 where nobody says how much there is */
    *unused = tn_memory_budget_left(&d->room, d->software);
    return TN_OK;
}

/* ---- copies ------------------------------------------------------------------------------------------------------ */

static tn_status copy_words(void *device, void *from, size_t from_at, void *to, size_t to_at, size_t bytes) {
    wg_device *d = device;
    TRY(encoder_begin(d));
    pass_end(d);
    tn_wg_gpu.CommandEncoderCopyBufferToBuffer(d->encoder, ((wg_memory *)from)->buffer, from_at,
                                               ((wg_memory *)to)->buffer, to_at, bytes);
    return TN_OK;
}

/* What the library keeps of the host's bytes until they are submitted stays bounded. */
static tn_status read_from(wg_device *d, void *dst, wg_memory *from, size_t at, size_t bytes);
static tn_status write_words(void *device, void *memory, size_t at, const char *src, size_t bytes) {
    wg_device *d = device;
    wg_memory *to = memory;
    while (bytes) {
        char ignored[WORD];
        size_t n = bytes < UPLOAD_BYTES ? bytes : UPLOAD_BYTES;
        TRY(tn_wg_flush(d)); /* what was encoded comes first */
        tn_wg_gpu.QueueWriteBuffer(d->queue, to->buffer, at, src, n);
        TRY(check_told(d, "wgpuQueueWriteBuffer"));
        d->uploaded += n;
        if (d->uploaded >= UPLOAD_BYTES) TRY(read_from(d, ignored, to, at, WORD));
        at += n;
        src += n;
        bytes -= n;
    }
    return TN_OK;
}

static tn_status patch_words(void *device, const tn_dispatch *l) {
    wg_device *d = device;
    return tn_wg_encode(d, d->patch, l);
}

static const tn_word_calls word_calls = {copy_words, write_words, patch_words};

static tn_status map_staging(wg_device *d, size_t bytes, const void **view) {
    (void)tn_wg_gpu.BufferMapAsync(d->staging.buffer, MAP_READ, 0, bytes, callback_of(d, (void (*)(void))on_status));
    wait_for_webgpu(d);
    TRY(check_told(d, "wgpuBufferMapAsync"));
    uint32_t type = d->wait.status == STATUS_SUCCESS ? ERROR_NONE : ERROR_INTERNAL;
    TRY(check_type(d, type, d->wait.text, "wgpuBufferMapAsync", ""));
    *view = tn_wg_gpu.BufferGetConstMappedRange(d->staging.buffer, 0, bytes);
    if (*view) return TN_OK;
    tn_wg_gpu.BufferUnmap(d->staging.buffer);
    return check_type(d, ERROR_INTERNAL, "", "wgpuBufferGetConstMappedRange", "");
}

/* Behind all that was encoded; so reading anything is how the host waits for the device. */
static tn_status read_from(wg_device *d, void *dst, wg_memory *from, size_t at, size_t bytes) {
    while (bytes) {
        const void *view;
        size_t odd = at % WORD, n = bytes < STAGING_BYTES - WORD ? bytes : STAGING_BYTES - WORD;
        size_t cover = (odd + n + WORD - 1) / WORD * WORD;
        TRY(copy_words(d, from, at - odd, &d->staging, 0, cover));
        TRY(tn_wg_flush(d));
        TRY(map_staging(d, cover, &view));
        memcpy(dst, (const char *)view + odd, n);
        tn_wg_gpu.BufferUnmap(d->staging.buffer);
        dst = (char *)dst + n;
        at += n;
        bytes -= n;
    }
    return TN_OK;
}

static tn_status read_at(wg_device *d, void *dst, const void *src, size_t bytes) {
    wg_memory *from;
    size_t at;
    TRY(tn_wg_locate(d, src, bytes, "copying", &from, &at));
    return read_from(d, dst, from, at, bytes);
}

static tn_status webgpu_copy(void *device, void *dst, const void *src, size_t bytes, int kind) {
    wg_device *d = device;
    if (!bytes) return tn_device_lost_check(&d->lost_state);
    AUTO_LOCK(&d->lock);
    tn_status s = tn_device_lost_check(&d->lost_state);
    if (s == TN_OK)
        s = kind == 2   ? tn_word_copy(&d->words, dst, src, bytes)
            : kind == 1 ? read_at(d, dst, src, bytes)
                        : tn_word_write(&d->words, dst, src, bytes);
    return s;
}

static tn_status webgpu_fill(void *device, void *dst, uint8_t value, size_t bytes) {
    wg_device *d = device;
    wg_memory *to;
    size_t at;
    AUTO_LOCK(&d->lock);
    TRY(tn_device_lost_check(&d->lost_state));
    if (!bytes) return TN_OK;
    TRY(tn_wg_locate(d, dst, bytes, "filling", &to, &at));
    if (value || (at | bytes) % WORD) return tn_word_fill(&d->words, dst, value, bytes);
    TRY(encoder_begin(d));
    pass_end(d);
    tn_wg_gpu.CommandEncoderClearBuffer(d->encoder, to->buffer, at, bytes);
    return TN_OK;
}

static tn_status webgpu_sync(void *device) {
    wg_device *d = device;
    char ignored[WORD];
    AUTO_LOCK(&d->lock);
    tn_status s = tn_device_lost_check(&d->lost_state);
    if (s == TN_OK) s = read_at(d, ignored, d->scratch, WORD);
    return s;
}

/* ---- the driver's launches --------------------------------------------------------------------------------------- */

static tn_status webgpu_load(void *device, const tn_code *code, void **module) {
    wg_device *d = device;
    TRY(tn_device_lost_check(&d->lost_state));
    AUTO_LOCK(&d->lock);
    return tn_wg_module_new(d, code, module);
}

static void webgpu_unload(void *device, void *module) {
    wg_device *d = device;
    AUTO_LOCK(&d->lock);
    tn_wg_module_free(d, module);
}

static tn_status webgpu_dispatch_list(void *device, const tn_list_item *items, int64_t count) {
    wg_device *d = device;
    AUTO_LOCK(&d->lock);
    tn_status s = tn_device_lost_check(&d->lost_state);
    for (int64_t i = 0; i < count && s == TN_OK; i++)
        s = tn_wg_encode(d, items[i].module, &items[i].dispatch);
    return s;
}

static tn_status webgpu_dispatch(void *device, void *module, const tn_dispatch *dispatches, int64_t count) {
    wg_device *d = device;
    AUTO_LOCK(&d->lock);
    tn_status s = tn_device_lost_check(&d->lost_state);
    for (int64_t i = 0; i < count && s == TN_OK; i++)
        s = tn_wg_encode(d, module, &dispatches[i]);
    return s;
}

/* ---- what nobody says -------------------------------------------------------------------------------------------- */

static tn_status ask_webgpu(wg_device *d) {
    const tn_code code = {
        .format = TN_CODE_WGSL, .data = kir_wgsl_ask, .size = strlen(kir_wgsl_ask), .entry = "ask", .buffer_count = 1};
    const tn_dispatch l = {.groups = {1, 1, 1}, .buffers = &d->scratch};
    uint32_t said[KIR_WGSL_ASKED] = {0};
    void *m;
    TRY(tn_wg_module_new(d, &code, &m));
    tn_status s = tn_word_write(&d->words, d->scratch, (const unsigned char *)kir_wgsl_asked, sizeof said);
    if (s == TN_OK) s = tn_wg_encode(d, m, &l);
    if (s == TN_OK) s = read_at(d, said, d->scratch, sizeof said);
    tn_wg_module_free(d, m);
    d->can = kir_wgsl_judge(said);
    return s;
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

/* With all that the adapter has: what is not asked for is WebGPU's least. */
static tn_status request_device(wg_device *d, void *adapter) {
    wgpu_adapter_info info = {0};
    if (tn_wg_gpu.AdapterGetLimits(adapter, &d->limits) != STATUS_SUCCESS || !d->limits.groups ||
        tn_wg_gpu.AdapterGetInfo(adapter, &info) != STATUS_SUCCESS)
        return tn_fail(TN_ERR_DEVICE, "%s: " LIBRARY " does not report what the adapter is; %s", d->lost_state.id,
                       TN_ADVICE_UPDATE);
    char name[64], driver[64];
    wg_text(name, sizeof name, info.device);
    wg_text(driver, sizeof driver, info.description);
    tn_wg_gpu.AdapterInfoFreeMembers(info);
    d->software = info.type == ADAPTER_CPU;
    if (d->software) d->room.total = tn_host_memory_now().total;
    uint32_t version = tn_wg_gpu.GetVersion();
    snprintf(d->version, sizeof d->version, LIBRARY " %u.%u.%u.%u %.36s %.30s", version >> 24, version >> 16 & 255,
             version >> 8 & 255, version & 255, name, driver);
    const wgpu_device_descriptor descriptor = {
        .limits = &d->limits,
        .lost = {.mode = SPONTANEOUS, .call = (void (*)(void))on_lost, .a = d},
        .error = {.call = on_error, .a = d},
    };
    (void)tn_wg_gpu.AdapterRequestDevice(adapter, &descriptor, callback_of(d, (void (*)(void))on_device));
    wait_for_webgpu(d);
    d->device = d->wait.object;
    if (d->device) d->queue = tn_wg_gpu.DeviceGetQueue(d->device);
    return d->queue ? TN_OK : check_type(d, ERROR_INTERNAL, d->wait.text, "wgpuAdapterRequestDevice", name);
}

/* What the driver itself needs: two buffers a launch, windows that reach beyond the step in which they begin, and room
 * for parameters and for what is read back. Where a limit is 0, nothing else would notice. */
static tn_status check_adapter(const wg_device *d, uint64_t unit) {
    const wgpu_limits *l = &d->limits;
    const struct {
        const char *limit;
        uint64_t has, least;
    } needs[] = {{"maxBufferSize", l->buffer, STAGING_BYTES},
                 {"maxStorageBufferBindingSize", l->storage_binding, 2 * unit},
                 {"maxStorageBuffersPerShaderStage", l->storage_buffers, 2},
                 {"maxUniformBufferBindingSize", l->uniform_binding, sizeof(kir_wgsl_patch_params)},
                 {"maxComputeWorkgroupSizeX", l->group_x, KIR_WGSL_PATCH_ITEMS},
                 {"maxComputeInvocationsPerWorkgroup", l->group_items, KIR_WGSL_PATCH_ITEMS}};
    for (size_t i = 0; i < TN_COUNT(needs); i++)
        if (needs[i].has < needs[i].least)
            return tn_fail(TN_ERR_UNSUPPORTED,
                           "%s: the adapter's %s is %llu, but at least %llu is required; use another device (see: "
                           "trunnion devices)",
                           d->lost_state.id, needs[i].limit, (unsigned long long)needs[i].has,
                           (unsigned long long)needs[i].least);
    return TN_OK;
}

static tn_status device_start(wg_device *d, int index) {
    void *adapter;
    const tn_code code = {.format = TN_CODE_WGSL,
                          .data = kir_wgsl_patch,
                          .size = strlen(kir_wgsl_patch),
                          .entry = "patch_words",
                          .buffer_count = 2,
                          .group = {KIR_WGSL_PATCH_ITEMS, 1, 1},
                          .params_bytes = sizeof(kir_wgsl_patch_params),
                          .bases_at = offsetof(kir_wgsl_patch_params, base),
                          .written = (const bool[]){true, false}};
    d->instance = tn_wg_gpu.CreateInstance(NULL);
    if (!d->instance)
        return tn_fail(TN_ERR_DEVICE, "%s: " LIBRARY " returned no instance; %s", d->lost_state.id, TN_ADVICE_UPDATE);
    TRY(wg_find(d->instance, index, &adapter));
    tn_status s = request_device(d, adapter);
    tn_wg_gpu.AdapterRelease(adapter);
    TRY(s);
    d->step = d->limits.uniform_alignment > 16 ? d->limits.uniform_alignment : 16;
    uint64_t unit = d->limits.storage_alignment > 64 ? d->limits.storage_alignment : 64, buffers = KIR_MAX_BUFFERS;
    TRY(check_adapter(d, unit));
    d->bind.unit = unit;
    d->bind.window = (d->limits.storage_binding < INT32_MAX ? d->limits.storage_binding : INT32_MAX) / unit * unit;
    d->bind.most = d->limits.storage_buffers < buffers ? d->limits.storage_buffers : buffers;
    d->params_host = tn_mem_zalloc(PARAMS_BYTES + d->step, 1);
    if (!d->params_host) return TN_ERR_MEMORY;
    TRY(memory_make(d, PARAMS_BYTES, USE_UNIFORM | USE_COPY_TO, &d->params));
    TRY(memory_make(d, STAGING_BYTES, USE_MAP_READ | USE_COPY_TO, &d->staging));
    d->room.largest =
        (int64_t)(d->limits.buffer < INT32_MAX ? d->limits.buffer : INT32_MAX) / WORD * WORD; /* 31 bits */
    TRY(webgpu_alloc(d, SCRATCH_BYTES, &d->scratch));
    d->words =
        (tn_word_copier){.calls = &word_calls,
                         .device = d,
                         .id = d->lost_state.id,
                         .ranges = &d->ranges,
                         .scratch = d->scratch,
                         .scratch_bytes = d->bind.window < SCRATCH_BYTES ? (size_t)d->bind.window : SCRATCH_BYTES,
                         .reach = (size_t)(d->bind.window - d->bind.unit) / WORD * WORD,
                         .groups = d->limits.groups};
    TRY(tn_wg_module_new(d, &code, &d->patch));
    return ask_webgpu(d);
}

/* Also for a device that did not open all the way. The instance goes last: what is released before may call back. */
static void webgpu_close(void *device) {
    wg_device *d = device;
    pthread_mutex_lock(&d->lock);
    pass_end(d);
    if (d->encoder) tn_wg_gpu.CommandEncoderRelease(d->encoder);
    pthread_mutex_unlock(&d->lock);
    if (d->patch) tn_wg_module_free(d, d->patch);
    if (d->scratch) webgpu_free(d, d->scratch);
    tn_wg_launches_close(d);
    if (d->params.buffer) tn_wg_gpu.BufferRelease(d->params.buffer);
    if (d->staging.buffer) tn_wg_gpu.BufferRelease(d->staging.buffer);
    if (d->queue) tn_wg_gpu.QueueRelease(d->queue);
    if (d->device) tn_wg_gpu.DeviceRelease(d->device);
    if (d->instance) tn_wg_gpu.InstanceRelease(d->instance);
    tn_mem_free(d->params_host);
    tn_address_ranges_close(&d->ranges);
    pthread_mutex_destroy(&d->lock);
    pthread_mutex_destroy(&d->told);
    tn_device_lost_close(&d->lost_state);
    tn_mem_free(d);
}

static tn_status webgpu_open(int index, TN_UNUSED const tn_device_options *options, void **device) {
    tn_reason why;
    if (!wg_load(false, &why)) return tn_fail(TN_ERR_UNAVAILABLE, "%s; %s", why.text, why.fix);
    wg_device *d = tn_mem_zalloc(1, sizeof *d);
    if (!d) return TN_ERR_MEMORY;
    tn_device_lost_open(&d->lost_state, "webgpu", index);
    pthread_mutex_init(&d->lock, NULL);
    pthread_mutex_init(&d->told, NULL);
    tn_address_ranges_open(&d->ranges);
    return tn_hand_out_device(device_start(d, index), d, webgpu_close, device);
}

enum { LLVMPIPE_LOOP = 65535 }; /* its loops end after so many rounds, without a word */

static tn_status webgpu_caps(void *device, tn_caps *out) {
    wg_device *d = device;
    const wgpu_limits *l = &d->limits;
    *out = (tn_caps){
        .struct_size = sizeof *out,
        .code = TN_CODE_WGSL,
        .max_buffer = (int64_t)d->bind.window,
        .max_group = l->group_items < l->group_x ? l->group_items : l->group_x,
        .shared_memory = l->group_storage,
        .alignment = (int64_t)d->bind.unit,
        .max_bindings = (int)d->bind.most,
        .joins = true,
        .max_groups_x = l->groups,
        .words_only = true,
        .f16 = d->can.halves,
        .features = d->can.fused ? TN_WGSL_FUSED : 0,
        .max_loop = strstr(d->version, "llvmpipe") ? LLVMPIPE_LOOP : 0,
    };
    snprintf(out->version, sizeof out->version, "%s", d->version);
    return TN_OK;
}

/* ---- the driver -------------------------------------------------------------------------------------------------- */

const tn_driver tn_driver_webgpu = {
    .struct_size = sizeof(tn_driver),
    .abi = TN_BACKEND_ABI,
    .name = "webgpu",
    .title = "WebGPU",
    .probe = wg_probe,
    .open = webgpu_open,
    .close = webgpu_close,
    .caps = webgpu_caps,
    .alloc = webgpu_alloc,
    .free = webgpu_free,
    .load = webgpu_load,
    .unload = webgpu_unload,
    .copy = webgpu_copy,
    .sync = webgpu_sync,
    .memory = webgpu_memory,
    .watch = wg_watch,
    .isolate = TN_PROBE_ISOLATE,
    .dispatch = webgpu_dispatch,
    .fill = webgpu_fill,
    .dispatch_list = webgpu_dispatch_list,
};

#endif
