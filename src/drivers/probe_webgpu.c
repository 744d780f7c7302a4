/* probe_webgpu.c — looks for adapters through a native WebGPU library (wgpu-native).
 *
 * webgpu.h was unstable before wgpu-native 24 and a wrong call takes the process down, so the version is asked first
 * and nothing else is called below 24. Own declarations of the calls needed; structures that grew between versions
 * have room at their end. WebGPU does not say how much memory an adapter has. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "drivers/probe.h"
#include "hal/hal.h"

#if TRUNNION_WITH_WEBGPU

enum {
    MOST = 16,
    OLDEST = 24,     /* major version of wgpu-native */
    ADAPTER_CPU = 3, /* WGPUAdapterType */
    ADAPTER_INTEGRATED = 2,
    STATUS_SUCCESS = 1,
    PRIMARY_BACKENDS = 1 << 0 | 1 << 2 | 1 << 3 /* Vulkan, Metal, DX12: the ones that compute well */
};

typedef struct wgpu_text {
    const char *data;
    size_t length; /* SIZE_MAX: up to the NUL */
} wgpu_text;

typedef struct wgpu_adapter_info {
    void *next;
    wgpu_text vendor, architecture, device, description;
    uint32_t backend, type, vendor_id, device_id;
    uint64_t room[16]; /* later versions add fields here */
} wgpu_adapter_info;

typedef struct wgpu_enumerate_options {
    const void *next;
    uint64_t backends;
} wgpu_enumerate_options;

static uint32_t (*get_version)(void);
static void *(*create_instance)(const void *descriptor);
static size_t (*enumerate_adapters)(void *instance, const wgpu_enumerate_options *, void **adapters);
static uint32_t (*get_info)(void *adapter, wgpu_adapter_info *);

static const char *const names[] = {"libwgpu_native.*", "site-packages/wgpu/resources/libwgpu_native*", NULL};
static const tn_symbol symbols[] = {
    {"wgpuGetVersion", (void **)&get_version, false},
    {"wgpuCreateInstance", (void **)&create_instance, false},
    {"wgpuInstanceEnumerateAdapters", (void **)&enumerate_adapters, false},
    {"wgpuAdapterGetInfo", (void **)&get_info, false},
};
static const char INSTALL[] = "install wgpu-native 24 or later (pip install wgpu brings it)";
static const tn_library_spec library = {"wgpu-native", "TRUNNION_WEBGPU_LIB", names,
                                        symbols,       TN_COUNT(symbols),     INSTALL};

static const char *const backend_names[] = {
    [2] = "WebGPU", [3] = "Direct3D 11", [4] = "Direct3D 12", [5] = "Metal",
    [6] = "Vulkan", [7] = "OpenGL",      [8] = "OpenGL ES",
};

static void copy_text(char *out, size_t size, wgpu_text t) {
    size_t n = !t.data ? 0 : t.length == SIZE_MAX ? strlen(t.data) : t.length;
    snprintf(out, size, "%.*s", n < size ? (int)n : (int)size - 1, t.data ? t.data : "");
}

static void describe(tn_probe *out, void *adapter) {
    wgpu_adapter_info info = {0};
    if (get_info(adapter, &info) != STATUS_SUCCESS) return;
    tn_device_info *d = tn_probe_device(out);
    if (!d) return;
    copy_text(d->name, sizeof d->name, info.device.length ? info.device : info.description);
    const char *over = info.backend < TN_COUNT(backend_names) ? backend_names[info.backend] : NULL;
    if (over) snprintf(d->compute_capability, sizeof d->compute_capability, "over %s", over);
    d->software = info.type == ADAPTER_CPU;
    d->unified_memory = d->software || info.type == ADAPTER_INTEGRATED;
}

static void probe(tn_probe *out) {
    if (!tn_probe_library(out, &library)) return;
    uint32_t version = get_version(), major = version >> 24;
    if (major < OLDEST) {
        tn_probe_reason(out, TN_REASON_TOO_OLD, INSTALL, "wgpu-native %u.%u is older than %d", major,
                        version >> 16 & 255, OLDEST);
        return;
    }
    void *instance = create_instance(NULL), *adapters[MOST];
    const wgpu_enumerate_options options = {.backends = PRIMARY_BACKENDS};
    size_t count = instance ? enumerate_adapters(instance, &options, NULL) : 0;
    if (!instance)
        tn_probe_reason(out, TN_REASON_INIT_FAILED, INSTALL, "wgpu-native gives no instance");
    else if (count == 0 && !tn_probe_render_denied(out))
        tn_probe_reason(out, TN_REASON_NO_DEVICE, "install your GPU's Vulkan driver: see the line of vulkan",
                        "wgpu-native runs, and has no adapter");
    else if (count > MOST)
        tn_probe_reason(out, TN_REASON_INIT_FAILED, "",
                        "wgpu-native names %zu adapters, more than the %d there is room for", count, MOST);
    if (!count || count > MOST) return;
    count = enumerate_adapters(instance, &options, adapters);
    for (size_t i = 0; i < count && i < MOST; i++)
        describe(out, adapters[i]);
}

static void watch(tn_watch_add *add, void *ctx) {
    tn_probe_watch(&library, add, ctx);
    tn_probe_watch_vulkan(add, ctx);
}

const tn_driver tn_driver_webgpu = {
    .struct_size = sizeof(tn_driver),
    .abi = TN_BACKEND_ABI,
    .name = "webgpu",
    .title = "WebGPU",
    .probe = probe,
    .watch = watch,
    .isolate = TN_PROBE_ISOLATE,
};

#endif
