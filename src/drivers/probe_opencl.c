/* probe_opencl.c — looks for OpenCL devices: every platform that the loader knows, every device of each.
 *
 * Own declarations of the few calls needed: handles are pointers, enumerations 32-bit, bit fields 64-bit. Queries
 * that a platform does not know fail and are left out. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "drivers/probe.h"
#include "hal/hal.h"

#if TRUNNION_WITH_OPENCL

enum { MOST = 16 };

/* Names of queries and results, from the OpenCL 3.0 and extension specifications. */
enum {
    PLATFORM_NAME = 0x0902,
    DEVICE_TYPE = 0x1000,
    DEVICE_GLOBAL_MEM_SIZE = 0x101F,
    DEVICE_NAME = 0x102B,
    DEVICE_VERSION = 0x102F,
    DEVICE_HOST_UNIFIED_MEMORY = 0x1035,
    DEVICE_UUID = 0x106A,         /* cl_khr_device_uuid */
    DEVICE_PCI_BUS_INFO = 0x410F, /* cl_khr_pci_bus_info: domain, bus, device, function */
    DEVICE_PCI_BUS_NV = 0x4008,   /* cl_nv_device_attribute_query */
    DEVICE_PCI_SLOT_NV = 0x4009,
    DEVICE_PCI_DOMAIN_NV = 0x400A,
    TYPE_CPU = 1 << 1,
    NO_PLATFORM = -1001 /* the loader's own answer when no driver is registered */
};
static const uint64_t TYPE_ALL = 0xFFFFFFFF;

static int32_t (*get_platforms)(uint32_t room, void **platforms, uint32_t *count);
static int32_t (*get_platform_info)(void *platform, uint32_t what, size_t size, void *value, size_t *needed);
static int32_t (*get_devices)(void *platform, uint64_t type, uint32_t room, void **devices, uint32_t *count);
static int32_t (*get_device_info)(void *device, uint32_t what, size_t size, void *value, size_t *needed);

static const char *const names[] = {
    "libOpenCL.so.1",
    "libOpenCL.so",
    "/System/Library/Frameworks/OpenCL.framework/OpenCL",
    NULL,
};
static const tn_symbol symbols[] = {
    {"clGetPlatformIDs", (void **)&get_platforms, false},
    {"clGetPlatformInfo", (void **)&get_platform_info, false},
    {"clGetDeviceIDs", (void **)&get_devices, false},
    {"clGetDeviceInfo", (void **)&get_device_info, false},
};
static const tn_library_spec library = {
    "OpenCL loader",
    "TRUNNION_OPENCL_LIB",
    names,
    symbols,
    TN_COUNT(symbols),
    "install the OpenCL loader (package ocl-icd-libopencl1) and your GPU's OpenCL driver",
};
static const char NO_DRIVER_FIX[] = "install your GPU's OpenCL driver; pocl-opencl-icd runs OpenCL on the processor";

/* Whether the device answers the query with exactly `size` bytes. */
static bool ask(void *device, uint32_t what, void *value, size_t size) {
    size_t got = 0;
    return get_device_info(device, what, size, value, &got) == 0 && got == size;
}

static void ask_text(void *device, uint32_t what, char *out, size_t size) {
    char text[256] = "";
    if (get_device_info(device, what, sizeof text - 1, text, NULL) != 0) text[0] = 0;
    text[sizeof text - 1] = 0;
    snprintf(out, size, "%s", text + strspn(text, " "));
}

static void ask_place(void *device, tn_device_info *d) {
    uint32_t khr[4], bus, slot, domain = 0;
    unsigned char uuid[16];
    if (ask(device, DEVICE_UUID, uuid, sizeof uuid)) tn_probe_uuid(d->uuid, uuid);
    if (ask(device, DEVICE_PCI_BUS_INFO, khr, sizeof khr)) {
        tn_probe_pci_numbers(d->pci, khr[0], khr[1], khr[2], khr[3]);
    } else if (ask(device, DEVICE_PCI_BUS_NV, &bus, sizeof bus) &&
               ask(device, DEVICE_PCI_SLOT_NV, &slot, sizeof slot)) {
        (void)ask(device, DEVICE_PCI_DOMAIN_NV, &domain, sizeof domain);
        tn_probe_pci_numbers(d->pci, domain, bus, slot >> 3, slot);
    }
}

/* "OpenCL 3.0 PoCL HSTR: …" → "OpenCL 3.0" */
static void ask_version(void *device, tn_device_info *d) {
    char text[128];
    int major, minor;
    ask_text(device, DEVICE_VERSION, text, sizeof text);
    if (sscanf(text, "OpenCL %d.%d", &major, &minor) == 2)
        snprintf(d->compute_capability, sizeof d->compute_capability, "OpenCL %d.%d", major, minor);
}

static void describe(tn_probe *out, void *device, const char *platform) {
    tn_device_info *d = tn_probe_device(out);
    if (!d) return;
    uint64_t type = 0, total = 0;
    uint32_t unified = 0;
    ask_text(device, DEVICE_NAME, d->name, sizeof d->name);
    (void)ask(device, DEVICE_TYPE, &type, sizeof type);
    (void)ask(device, DEVICE_GLOBAL_MEM_SIZE, &total, sizeof total);
    (void)ask(device, DEVICE_HOST_UNIFIED_MEMORY, &unified, sizeof unified);
    d->total_memory = (int64_t)(total & INT64_MAX);
    d->software = (type & TYPE_CPU) || strstr(platform, "Oclgrind");
    d->unified_memory = unified || d->software;
    ask_version(device, d);
    ask_place(device, d);
}

static void describe_platform(tn_probe *out, void *platform) {
    char name[128] = "";
    void *devices[MOST];
    uint32_t count = 0;
    if (get_platform_info(platform, PLATFORM_NAME, sizeof name - 1, name, NULL)) name[0] = 0;
    if (get_devices(platform, TYPE_ALL, MOST, devices, &count)) return;
    for (uint32_t i = 0; i < count && i < MOST; i++)
        describe(out, devices[i], name);
}

static void probe(tn_probe *out) {
    void *platforms[MOST];
    uint32_t count = 0;
    if (!tn_probe_library(out, &library)) return;
    int32_t error = get_platforms(MOST, platforms, &count);
    for (uint32_t i = 0; error == 0 && i < count && i < MOST; i++)
        describe_platform(out, platforms[i]);
    if (out->count || tn_probe_render_denied(out)) return;
    if (error == NO_PLATFORM || (error == 0 && count == 0))
        tn_probe_reason(out, TN_REASON_NO_DEVICE, NO_DRIVER_FIX,
                        "the OpenCL loader is there, but no driver is registered with it");
    else if (error == 0)
        tn_probe_reason(out, TN_REASON_NO_DEVICE, NO_DRIVER_FIX, "%u OpenCL driver%s registered, and no device", count,
                        count == 1 ? " is" : "s are");
    else
        tn_probe_reason(out, TN_REASON_INIT_FAILED, "see whether clinfo works; reinstall the OpenCL driver",
                        "OpenCL loader: clGetPlatformIDs gives error %d", error);
}

static void watch(tn_watch_add *add, void *ctx) {
    tn_probe_watch(&library, add, ctx);
    tn_probe_watch_node("dri", add, ctx);
    tn_probe_watch_node("nvidiactl", add, ctx);
    add(ctx, "/etc/OpenCL/vendors");
    add(ctx, "$OCL_ICD_VENDORS");
    add(ctx, "$OCL_ICD_FILENAMES");
}

const tn_driver tn_driver_opencl = {
    .struct_size = sizeof(tn_driver),
    .abi = TN_BACKEND_ABI,
    .name = "opencl",
    .title = "OpenCL",
    .probe = probe,
    .watch = watch,
    .isolate = TN_PROBE_ISOLATE,
};

#endif
