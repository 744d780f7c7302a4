/* probe_webgpu.c — wgpu-native: its functions, and the adapters that it has.
 *
 * webgpu.h was unstable before wgpu-native 24, and a wrong call takes the process down: the version is asked first, and
 * nothing is called that was not checked before. The driver (webgpu.c) opens what is listed here. */
#include <stdio.h>
#include <string.h>

#include "drivers/probe.h"
#include "drivers/probe_webgpu.h"
#include "hal/hal.h"

#if TRUNNION_WITH_WEBGPU

/* ---- the library ------------------------------------------------------------------------------------------------- */

enum {
    MOST = 16,         /* adapters */
    OLDEST = 24,       /* major version */
    VERSION_SHIFT = 24 /* of the major version */
};

wg_calls tn_wg_gpu;

static const char *const names[] = {"libwgpu_native.*", "site-packages/wgpu/resources/libwgpu_native*", NULL};
static const tn_symbol symbols[] = {
/* all optional: an old version is told by its number, whatever it lacks */
#define X(name, result, parameters) {"wgpu" #name, (void **)&tn_wg_gpu.name, true},
    CALLS(X)
#undef X
};
static const char INSTALL[] = "install wgpu-native 24 or later (pip install wgpu brings it)";
static const tn_library_spec library = {"wgpu-native", "TRUNNION_WEBGPU_LIB", names,
                                        symbols,       TN_COUNT(symbols),     INSTALL};

uint32_t tn_wg_major_version(void) { return tn_wg_gpu.GetVersion() >> VERSION_SHIFT; }

/* The first call that is missing, but the one that may be; NULL when all are there. */
static const char *missing_call(void) {
    for (size_t i = 0; i < TN_COUNT(symbols); i++)
        if (!*symbols[i].address && symbols[i].address != (void **)&tn_wg_gpu.DevicePoll) return symbols[i].name;
    return NULL;
}

bool tn_wg_load(bool anew, tn_reason *why) {
    static bool loaded;
    if (loaded && !anew) return true;
    loaded = false;
    if (!tn_library_open(&library, why)) return false;
    const char *missing = missing_call();
    if (tn_wg_gpu.GetVersion && tn_wg_major_version() < OLDEST)
        tn_reason_set(why, TN_REASON_TOO_OLD, INSTALL, "wgpu-native %u.%u is older than %d", tn_wg_major_version(),
                      tn_wg_gpu.GetVersion() >> 16 & 255, OLDEST);
    else if (missing)
        tn_reason_set(why, TN_REASON_SYMBOL_MISSING, INSTALL, "wgpu-native: it has no %s", missing);
    else
        loaded = true;
    return loaded;
}

/* ---- finding devices --------------------------------------------------------------------------------------------- */

static const char *const backend_names[] = {
    [2] = "WebGPU", [3] = "Direct3D 11", [4] = "Direct3D 12", [5] = "Metal",
    [6] = "Vulkan", [7] = "OpenGL",      [8] = "OpenGL ES",
};

void tn_wg_text(char *out, size_t size, wgpu_text t) {
    size_t n = !t.data ? 0 : t.length == SIZE_MAX ? strlen(t.data) : t.length;
    snprintf(out, size, "%.*s", n < size ? (int)n : (int)size - 1, t.data ? t.data : "");
}

void tn_wg_words(char *out, size_t size, wgpu_text t) {
    char *to = out;
    tn_wg_text(out, size, t);
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
    tn_wg_text(d->name, sizeof d->name, info.device.length ? info.device : info.description);
    const char *over = info.backend < TN_COUNT(backend_names) ? backend_names[info.backend] : NULL;
    if (over) snprintf(d->compute_capability, sizeof d->compute_capability, "over %s", over);
    d->software = info.type == ADAPTER_CPU;
    d->unified_memory = d->software || info.type == ADAPTER_INTEGRATED;
    if (d->software) d->total_memory = tn_host_memory_now().total;
    tn_wg_gpu.AdapterInfoFreeMembers(info);
}

/* The adapters, which the caller releases; more than MOST are none. */
static size_t list_adapters(void *instance, void **adapters, size_t *found) {
    const wgpu_enumerate_options options = {.backends = BACKENDS_PRIMARY};
    *found = tn_wg_gpu.InstanceEnumerateAdapters(instance, &options, NULL);
    return *found && *found <= MOST ? tn_wg_gpu.InstanceEnumerateAdapters(instance, &options, adapters) : 0;
}

void tn_wg_probe(tn_probe *out) {
    tn_reason why;
    if (!tn_library_locate(&library, out->library, sizeof out->library)) out->library[0] = 0;
    if (!tn_wg_load(TN_PROBE_ISOLATE, &why)) {
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
        tn_probe_reason(out, TN_REASON_INIT_FAILED, INSTALL, "wgpu-native gives no instance");
    else if (found == 0 && !tn_probe_render_denied(out))
        tn_probe_reason(out, TN_REASON_NO_DEVICE, "install your GPU's Vulkan driver: see the line of vulkan",
                        "wgpu-native runs, and has no adapter");
    else if (found > MOST)
        tn_probe_reason(out, TN_REASON_INIT_FAILED, "",
                        "wgpu-native names %zu adapters, more than the %d there is room for", found, MOST);
}

void tn_wg_watch(tn_watch_add *add, void *ctx) {
    tn_probe_watch(&library, add, ctx);
    tn_probe_watch_vulkan(add, ctx);
}

tn_status tn_wg_find(void *instance, int index, void **out) {
    void *adapters[MOST];
    size_t found, count = list_adapters(instance, adapters, &found);
    *out = NULL;
    for (size_t i = 0; i < count; i++) {
        if (index >= 0 && i == (size_t)index)
            *out = adapters[i];
        else
            tn_wg_gpu.AdapterRelease(adapters[i]);
    }
    return *out ? TN_OK : tn_fail(TN_ERR_UNAVAILABLE, "webgpu:%d does not exist; wgpu-native finds %zu", index, found);
}

#endif
