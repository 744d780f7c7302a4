/* probe_vulkan.c — looks for Vulkan devices that can compute.
 *
 * Own declarations of the few structures needed, after the Vulkan 1.3 specification. Identity (UUID), place on the
 * PCI bus and free memory come from structures chained behind the plain ones, each only where the device says it
 * knows it. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "drivers/probe.h"
#include "hal/hal.h"

#if TRUNNION_WITH_VULKAN

enum {
    MOST = 16,
    MOST_EXTENSIONS = 512,
    VERSION_1_1 = 1 << 22 | 1 << 12,
    /* sType */
    INSTANCE_CREATE_INFO = 1,
    PHYSICAL_DEVICE_PROPERTIES_2 = 1000059001,
    PHYSICAL_DEVICE_MEMORY_PROPERTIES_2 = 1000059006,
    PHYSICAL_DEVICE_ID_PROPERTIES = 1000071004,
    PHYSICAL_DEVICE_PCI_BUS_INFO = 1000212000,
    PHYSICAL_DEVICE_MEMORY_BUDGET = 1000237000,
    /* results, types, flags */
    INCOMPLETE = 5,
    ERROR_INCOMPATIBLE_DRIVER = -9,
    DEVICE_INTEGRATED = 1,
    DEVICE_CPU = 4,
    QUEUE_COMPUTE = 2,
    HEAP_DEVICE_LOCAL = 1
};

typedef struct vk_application {
    uint32_t type;
    const void *next;
    const char *name;
    uint32_t version;
    const char *engine;
    uint32_t engine_version, api_version;
} vk_application;

typedef struct vk_instance_info {
    uint32_t type;
    const void *next;
    uint32_t flags;
    const vk_application *application;
    uint32_t layer_count;
    const char *const *layers;
    uint32_t extension_count;
    const char *const *extensions;
} vk_instance_info;

typedef struct vk_properties {
    uint32_t api_version, driver_version, vendor, device, device_type;
    char name[256];
    uint64_t rest[256]; /* limits: 540 bytes, not read */
} vk_properties;

typedef struct vk_chain {
    uint32_t type;
    void *next;
} vk_chain;

typedef struct vk_properties2 {
    vk_chain head;
    vk_properties properties;
} vk_properties2;

typedef struct vk_identity {
    vk_chain head;
    unsigned char device_uuid[16], driver_uuid[16], luid[8];
    uint32_t node_mask, luid_valid;
} vk_identity;

typedef struct vk_pci {
    vk_chain head;
    uint32_t domain, bus, device, function;
} vk_pci;

typedef struct vk_memory {
    uint32_t type_count;
    struct {
        uint32_t flags, heap;
    } types[32];
    uint32_t heap_count;
    struct {
        uint64_t size;
        uint32_t flags;
    } heaps[16];
} vk_memory;

typedef struct vk_memory2 {
    vk_chain head;
    vk_memory memory;
} vk_memory2;

typedef struct vk_budget {
    vk_chain head;
    uint64_t budget[16], usage[16];
} vk_budget;

typedef struct vk_queue_family {
    uint32_t flags, count, timestamp_bits, granularity[3];
} vk_queue_family;

typedef struct vk_extension {
    char name[256];
    uint32_t version;
} vk_extension;

typedef void (*vk_function)(void);
static vk_function (*get_proc)(void *instance, const char *name);
static int32_t (*create_instance)(const vk_instance_info *, const void *, void **instance);
static int32_t (*enumerate_devices)(void *instance, uint32_t *count, void **devices);
static int32_t (*enumerate_extensions)(void *device, const char *layer, uint32_t *count, vk_extension *);
static void (*get_properties)(void *device, vk_properties *);
static void (*get_properties2)(void *device, vk_properties2 *); /* Vulkan 1.1 */
static void (*get_memory)(void *device, vk_memory *);
static void (*get_memory2)(void *device, vk_memory2 *); /* Vulkan 1.1 */
static void (*get_queues)(void *device, uint32_t *count, vk_queue_family *);

static const char *const names[] = {"libvulkan.so.1", "libvulkan.so", "libvulkan.1.dylib", "libMoltenVK.dylib", NULL};
static const tn_symbol symbols[] = {{"vkGetInstanceProcAddr", (void **)&get_proc, false}};
static const tn_library_spec library = {
    "Vulkan loader",
    "TRUNNION_VULKAN_LIB",
    names,
    symbols,
    TN_COUNT(symbols),
    "install the Vulkan loader (package libvulkan1) and your GPU's Vulkan driver",
};
static const char NO_DRIVER_FIX[] = "install your GPU's Vulkan driver (package mesa-vulkan-drivers, or the vendor's)";

/* Takes an instance's functions; false when a mandatory one is missing. */
static bool bind(void *instance) {
    const struct {
        const char *name;
        vk_function *address;
        bool optional;
    } wanted[] = {
        {"vkEnumeratePhysicalDevices", (vk_function *)&enumerate_devices, false},
        {"vkEnumerateDeviceExtensionProperties", (vk_function *)&enumerate_extensions, false},
        {"vkGetPhysicalDeviceProperties", (vk_function *)&get_properties, false},
        {"vkGetPhysicalDeviceMemoryProperties", (vk_function *)&get_memory, false},
        {"vkGetPhysicalDeviceQueueFamilyProperties", (vk_function *)&get_queues, false},
        {"vkGetPhysicalDeviceProperties2", (vk_function *)&get_properties2, true},
        {"vkGetPhysicalDeviceMemoryProperties2", (vk_function *)&get_memory2, true},
    };
    for (size_t i = 0; i < TN_COUNT(wanted); i++) {
        *wanted[i].address = get_proc(instance, wanted[i].name);
        if (!*wanted[i].address && !wanted[i].optional) return false;
    }
    return true;
}

static bool can_compute(void *device) {
    vk_queue_family families[32];
    uint32_t count = TN_COUNT(families);
    get_queues(device, &count, families);
    for (uint32_t i = 0; i < count; i++)
        if (families[i].flags & QUEUE_COMPUTE) return true;
    return false;
}

static bool has_extension(void *device, const char *name) {
    uint32_t count = MOST_EXTENSIONS;
    vk_extension *list = tn_mem_zalloc(MOST_EXTENSIONS, sizeof *list);
    bool found = false;
    if (list && enumerate_extensions(device, NULL, &count, list) >= 0)
        for (uint32_t i = 0; i < count && !found; i++)
            found = !strcmp(list[i].name, name);
    tn_mem_free(list);
    return found;
}

/* Memory of the device's own heaps. On a device that shares the processor's memory all heaps are such. */
static void fill_memory(void *device, tn_device_info *d) {
    vk_budget budget = {.head.type = PHYSICAL_DEVICE_MEMORY_BUDGET};
    vk_memory2 m = {.head.type = PHYSICAL_DEVICE_MEMORY_PROPERTIES_2};
    bool knows = get_memory2 && has_extension(device, "VK_EXT_memory_budget");
    if (knows) {
        m.head.next = &budget;
        get_memory2(device, &m);
    } else {
        get_memory(device, &m.memory);
    }
    for (uint32_t i = 0; i < m.memory.heap_count && i < TN_COUNT(m.memory.heaps); i++) {
        if (!(m.memory.heaps[i].flags & HEAP_DEVICE_LOCAL)) continue;
        d->total_memory += (int64_t)m.memory.heaps[i].size;
        if (knows && budget.budget[i] > budget.usage[i])
            d->free_memory += (int64_t)(budget.budget[i] - budget.usage[i]);
    }
}

static void fill_identity(void *device, tn_device_info *d) {
    vk_pci pci = {.head.type = PHYSICAL_DEVICE_PCI_BUS_INFO};
    vk_identity id = {.head.type = PHYSICAL_DEVICE_ID_PROPERTIES};
    vk_properties2 p = {.head = {PHYSICAL_DEVICE_PROPERTIES_2, &id}};
    bool knows_pci = has_extension(device, "VK_EXT_pci_bus_info");
    if (knows_pci) id.head.next = &pci;
    get_properties2(device, &p);
    tn_probe_uuid(d->uuid, id.device_uuid);
    if (knows_pci) tn_probe_pci_numbers(d->pci, pci.domain, pci.bus, pci.device, pci.function);
}

static void describe(tn_probe *out, void *device) {
    if (!can_compute(device)) return;
    tn_device_info *d = tn_probe_device(out);
    if (!d) return;
    vk_properties p = {0};
    get_properties(device, &p);
    snprintf(d->name, sizeof d->name, "%.120s", p.name);
    snprintf(d->compute_capability, sizeof d->compute_capability, "Vulkan %u.%u", p.api_version >> 22 & 0x7f,
             p.api_version >> 12 & 0x3ff);
    d->software = p.device_type == DEVICE_CPU;
    d->unified_memory = d->software || p.device_type == DEVICE_INTEGRATED;
    fill_memory(device, d);
    if (get_properties2 && p.api_version >= VERSION_1_1) fill_identity(device, d);
}

static void *make_instance(tn_probe *out) {
    const vk_application application = {.name = "trunnion", .engine = "trunnion", .api_version = VERSION_1_1};
    const vk_instance_info info = {.type = INSTANCE_CREATE_INFO, .application = &application};
    void *instance = NULL;
    create_instance = (int32_t(*)(const vk_instance_info *, const void *, void **))get_proc(NULL, "vkCreateInstance");
    int32_t error = create_instance ? create_instance(&info, NULL, &instance) : ERROR_INCOMPATIBLE_DRIVER;
    if (!error && bind(instance)) return instance;
    if (tn_probe_render_denied(out)) return NULL;
    if (error == ERROR_INCOMPATIBLE_DRIVER)
        tn_probe_reason(out, TN_REASON_NO_DEVICE, NO_DRIVER_FIX,
                        "the Vulkan loader is there, but no driver is registered with it");
    else
        tn_probe_reason(out, TN_REASON_INIT_FAILED, "see whether vulkaninfo works; reinstall the Vulkan driver",
                        "Vulkan loader: vkCreateInstance gives error %d", error);
    return NULL;
}

static void probe(tn_probe *out) {
    if (!tn_probe_library(out, &library)) return;
    void *instance = make_instance(out);
    if (!instance) return;
    void *devices[MOST];
    uint32_t count = MOST;
    int32_t error = enumerate_devices(instance, &count, devices);
    for (uint32_t i = 0; (error == 0 || error == INCOMPLETE) && i < count; i++)
        describe(out, devices[i]);
    if (out->count || tn_probe_render_denied(out)) return;
    tn_probe_reason(out, TN_REASON_NO_DEVICE, NO_DRIVER_FIX, "Vulkan runs, and has no device that computes (error %d)",
                    error);
}

static void watch(tn_watch_add *add, void *ctx) {
    tn_probe_watch(&library, add, ctx);
    tn_probe_watch_vulkan(add, ctx);
}

const tn_driver tn_driver_vulkan = {
    .struct_size = sizeof(tn_driver),
    .abi = TN_BACKEND_ABI,
    .name = "vulkan",
    .title = "Vulkan",
    .probe = probe,
    .watch = watch,
    .isolate = TN_PROBE_ISOLATE,
};

#endif
