/* vulkan.c — the driver of Vulkan: loader and probe, memory, the stream of commands, events.
 *
 * The minimum is Vulkan 1.1. Everything beyond is queried, and what a device does not have is not used.
 *
 * A device has one stream of commands for all of its queues: a ring of slots, each with a command buffer that several
 * calls record into before it is submitted. Later commands may rely on all earlier ones: there is a barrier between
 * calls that depend on each other, and none between the launches of one call. A submission has a number (hal/driver.h)
 * and a fence; an event is the number of the submission that contains everything before it. Vulkan requires callers to
 * synchronize access to objects, so one lock guards the stream.
 *
 * Memory has handles, for which hal/driver.h reserves addresses. Kernels and launches are in vulkan_launch.c. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "drivers/drivers.h"
#include "drivers/probe.h"
#include "drivers/vulkan.h"
#include "drivers/vulkan_device.h"
#include "hal/driver.h"

#if TRUNNION_WITH_VULKAN

/* ==== probe ======================================================================================================= */
/* UUID, PCI address and free memory come from structures in the pNext chain; each is chained only if the device reports
 * its extension. vulkan_open opens what is listed here. */

/* ---- the library ------------------------------------------------------------------------------------------------- */

enum { MOST = 16, MOST_LISTED = 512 };

tn_vk_calls tn_vk;

static const char *const names[] = {"libvulkan.so.1",    "libvulkan.so", "libvulkan.1.dylib",
                                    "libMoltenVK.dylib", "vulkan-1.dll", NULL};
static const tn_symbol symbols[] = {{"vkGetInstanceProcAddr", (void **)&tn_vk.GetInstanceProcAddr, false}};
static const tn_library_spec library = {
    "Vulkan loader",
    "TRUNNION_VULKAN_LIB",
    names,
    symbols,
    TN_COUNT(symbols),
    "install the Vulkan loader (package libvulkan1) and your GPU's Vulkan driver",
};
static const char NO_DRIVER[] = "install your GPU's Vulkan driver (package mesa-vulkan-drivers, or the vendor's)";

/* ---- what a result means ----------------------------------------------------------------------------------------- */

static const tn_call_error rows[] = {
    {OUT_OF_HOST, "VK_ERROR_OUT_OF_HOST_MEMORY", TN_ERR_MEMORY, TN_ADVICE_SMALLER},
    {OUT_OF_DEVICE, "VK_ERROR_OUT_OF_DEVICE_MEMORY", TN_ERR_MEMORY, TN_ADVICE_SMALLER},
    {INITIALIZATION_FAILED, "VK_ERROR_INITIALIZATION_FAILED", TN_ERR_UNAVAILABLE, TN_ADVICE_UPDATE},
    {LOST, "VK_ERROR_DEVICE_LOST", TN_ERR_LOST, TN_ADVICE_ANEW},
    {MAP_FAILED, "VK_ERROR_MEMORY_MAP_FAILED", TN_ERR_MEMORY, TN_ADVICE_SMALLER},
    {NO_EXTENSION, "VK_ERROR_EXTENSION_NOT_PRESENT", TN_ERR_DEVICE, TN_ADVICE_UPDATE},
    {NO_FEATURE, "VK_ERROR_FEATURE_NOT_PRESENT", TN_ERR_DEVICE, TN_ADVICE_UPDATE},
    {INCOMPATIBLE_DRIVER, "VK_ERROR_INCOMPATIBLE_DRIVER", TN_ERR_UNAVAILABLE, NO_DRIVER},
    {TOO_MANY_OBJECTS, "VK_ERROR_TOO_MANY_OBJECTS", TN_ERR_MEMORY, TN_ADVICE_SMALLER},
    {FRAGMENTED_POOL, "VK_ERROR_FRAGMENTED_POOL", TN_ERR_MEMORY, TN_ADVICE_SMALLER},
    {UNKNOWN, "VK_ERROR_UNKNOWN", TN_ERR_DEVICE, TN_ADVICE_UPDATE},
    {OUT_OF_POOL, "VK_ERROR_OUT_OF_POOL_MEMORY", TN_ERR_MEMORY, TN_ADVICE_SMALLER},
    {INVALID_SHADER, "VK_ERROR_INVALID_SHADER_NV", TN_ERR_UNSUPPORTED, TN_ADVICE_UPDATE},
};
const tn_call_errors tn_vulkan_errors = {.rows = rows, .count = TN_COUNT(rows)};

typedef struct loader_call {
    const char *name;
    vk_function *address;
} loader_call;
#define X(name, result, parameters) {"vk" #name, (vk_function *)&tn_vk.name},
static const loader_call look_calls[] = {VK_LOOK_CALLS(X)}, more_calls[] = {VK_MORE_CALLS(X)},
                         device_calls[] = {VK_DEVICE_CALLS(X)};
#undef X

/* The first required call that the loader lacks; NULL: it has all. */
static const char *bind(void *instance, const loader_call *calls, size_t count) {
    for (size_t i = 0; i < count; i++) {
        *calls[i].address = tn_vk.GetInstanceProcAddr(instance, calls[i].name);
        if (!*calls[i].address) return calls[i].name;
    }
    return NULL;
}

/* One per process, never destroyed, because unloading vendors' code is not reliable. hal probes and opens under one
 * lock. A probe's child process makes its own, because its environment may differ. */
static void *instance;
static pid_t instance_of;
static bool device_calls_known; /* of this instance; other threads use them, so they are written once */

static int32_t make_instance(void) {
    const vk_application application = {
        .kind = KIND_APPLICATION, .name = "trunnion", .engine = "trunnion", .api_version = VERSION_1_1};
    const vk_instance_info info = {.kind = KIND_INSTANCE, .application = &application};
    const loader_call create = {"vkCreateInstance", (vk_function *)&tn_vk.CreateInstance};
    void *made = NULL;
    int32_t error = bind(NULL, &create, 1) ? INCOMPATIBLE_DRIVER : tn_vk.CreateInstance(&info, NULL, &made);
    if (error == SUCCESS && bind(made, look_calls, TN_COUNT(look_calls))) error = INCOMPATIBLE_DRIVER;
    if (error != SUCCESS) return error;
    (void)bind(made, more_calls, TN_COUNT(more_calls));
    instance = made;
    instance_of = getpid();
    device_calls_known = false;
    return SUCCESS;
}

/* Whether there is an instance; else *why says what is wrong. */
static bool need_instance(tn_reason *why) {
    if (instance && instance_of == getpid()) return true;
    if (!tn_library_open(&library, why)) return false;
    int32_t error = make_instance();
    if (error == INCOMPATIBLE_DRIVER)
        tn_reason_set(why, TN_REASON_NO_DEVICE, NO_DRIVER,
                      "the Vulkan loader was found, but no driver is registered with it");
    else if (error != SUCCESS)
        tn_reason_set(why, TN_REASON_INIT_FAILED, "check that vulkaninfo works; reinstall the Vulkan driver",
                      "Vulkan loader: vkCreateInstance failed with error %d", error);
    return error == SUCCESS;
}

/* ---- finding devices --------------------------------------------------------------------------------------------- */

/* The first family of queues that compute; false: there is none. */
static bool vulkan_family(void *place, uint32_t *family, uint32_t *time_bits) {
    vk_queue_family families[32];
    uint32_t count = TN_COUNT(families);
    tn_vk.GetPhysicalDeviceQueueFamilyProperties(place, &count, families);
    for (*family = 0; *family < count; ++*family) {
        *time_bits = families[*family].time_bits;
        if (families[*family].flags & QUEUE_COMPUTE) return true;
    }
    return false;
}

/* Does a device have a compute queue and Vulkan 1.1? */
static bool suits(void *place, int *too_old) {
    uint32_t family, time_bits;
    vk_properties p = {0};
    if (!vulkan_family(place, &family, &time_bits)) return false;
    tn_vk.GetPhysicalDeviceProperties(place, &p);
    *too_old += p.api_version < VERSION_1_1;
    return p.api_version >= VERSION_1_1;
}

/* The usable devices, at most `MOST`, numbered in this order. *too_old: how many others have Vulkan 1.0. */
static int list_devices(void **list, int *too_old, int32_t *error) {
    uint32_t count = MOST, n = 0;
    *too_old = 0;
    *error = tn_vk.EnumeratePhysicalDevices(instance, &count, list);
    if (*error != SUCCESS && *error != INCOMPLETE) return 0;
    for (uint32_t i = 0; i < count; i++)
        if (suits(list[i], too_old)) list[n++] = list[i];
    return (int)n;
}

/* A bit for each of the names that the device has as an extension. */
static uint32_t vulkan_extensions(void *place, const char *const *wanted, uint32_t n_wanted) {
    uint32_t count = MOST_LISTED, found = 0;
    AUTO_FREE vk_extension *list = tn_mem_zalloc(MOST_LISTED, sizeof *list);
    if (list && tn_vk.EnumerateDeviceExtensionProperties(place, NULL, &count, list) >= 0)
        for (uint32_t i = 0; i < count * n_wanted; i++)
            if (!strcmp(list[i / n_wanted].name, wanted[i % n_wanted])) found |= 1u << i % n_wanted;
    return found;
}

static bool has_extension(void *place, const char *name) { return vulkan_extensions(place, &name, 1) != 0; }

/* Clamps sizes of heaps that drivers report, so that sums do not overflow. */
static int64_t heap_bytes(uint64_t told) { return (int64_t)(told < (uint64_t)1 << 56 ? told : (uint64_t)1 << 56); }

/* Bytes of the device's own heaps, and how many of these are free (0: unknown). On a device that shares the CPU's
 * memory all heaps count. */
static void tn_vulkan_memory(void *place, bool knows_budget, int64_t *total, int64_t *unused) {
    vk_budget budget = {.head.kind = KIND_BUDGET};
    vk_memory2 m = {.head = {KIND_MEMORY_PROPERTIES, &budget}};
    *total = *unused = 0;
    if (knows_budget)
        tn_vk.GetPhysicalDeviceMemoryProperties2(place, &m);
    else
        tn_vk.GetPhysicalDeviceMemoryProperties(place, &m.memory);
    for (uint32_t i = 0; i < m.memory.heap_count && i < TN_COUNT(m.memory.heaps); i++) {
        if (!(m.memory.heaps[i].flags & HEAP_LOCAL)) continue;
        *total += heap_bytes(m.memory.heaps[i].size);
        if (knows_budget && budget.budget[i] > budget.usage[i])
            *unused += heap_bytes(budget.budget[i] - budget.usage[i]);
    }
}

static void fill_identity(void *place, tn_device_info *d) {
    vk_pci pci = {.head.kind = KIND_PCI};
    vk_identity id = {.head.kind = KIND_IDENTITY};
    vk_properties2 p = {.head = {KIND_PROPERTIES, &id}};
    bool knows_pci = has_extension(place, "VK_EXT_pci_bus_info");
    if (knows_pci) id.head.next = &pci;
    tn_vk.GetPhysicalDeviceProperties2(place, &p);
    tn_probe_uuid(d->uuid, id.device_uuid);
    if (knows_pci) tn_probe_pci_numbers(d->pci, pci.domain, pci.bus, pci.device, pci.function);
}

static void describe_vulkan(tn_probe *out, void *place) {
    tn_device_info *d = tn_probe_device(out);
    if (!d) return;
    vk_properties p = {0};
    tn_vk.GetPhysicalDeviceProperties(place, &p);
    snprintf(d->name, sizeof d->name, "%.120s", p.name);
    snprintf(d->compute_capability, sizeof d->compute_capability, "Vulkan %u.%u", p.api_version >> 22 & 0x7f,
             p.api_version >> 12 & 0x3ff);
    d->software = p.device_type == TYPE_CPU;
    d->unified_memory = d->software || p.device_type == TYPE_INTEGRATED;
    tn_vulkan_memory(place, has_extension(place, "VK_EXT_memory_budget"), &d->total_memory, &d->free_memory);
    fill_identity(place, d);
}

static void vulkan_probe(tn_probe *out) {
    void *list[MOST];
    int32_t error = SUCCESS;
    tn_reason why;
    if (!tn_library_locate(&library, out->library, sizeof out->library)) out->library[0] = 0;
    if (!need_instance(&why)) {
        bool there = why.code == TN_REASON_NO_DEVICE || why.code == TN_REASON_INIT_FAILED;
        if (!there || !tn_probe_render_denied(out)) tn_probe_reason(out, why.code, why.fix, "%s", why.text);
        return;
    }
    int too_old, count = list_devices(list, &too_old, &error);
    for (int i = 0; i < count; i++)
        describe_vulkan(out, list[i]);
    if (out->count || tn_probe_render_denied(out)) return;
    if (too_old)
        tn_probe_reason(out, TN_REASON_TOO_OLD, "update the driver",
                        "%d device%s with Vulkan 1.0; version 1.1 is required", too_old, too_old == 1 ? "" : "s");
    else
        tn_probe_reason(out, TN_REASON_NO_DEVICE, NO_DRIVER,
                        "Vulkan is running, but it found no device that can compute (error %d)", error);
}

static void vulkan_watch(tn_watch_add *add, void *ctx) { tn_probe_watch_vulkan(&library, add, ctx); }

/* ---- what a device can do --------------------------------------------------------------------------------------- */

enum {
    EXT_STORAGE_8,
    EXT_FLOAT16_INT8,
    EXT_FLOAT_CONTROLS,
    EXT_BUDGET,
    EXT_DRIVER,
    EXT_SUBSET,
    EXT_MATRIX,
    EXT_MEMORY_MODEL,
    EXT_SIZE_CONTROL,
    EXT_BFLOAT_16,
    EXT_COUNT,
    EXTS_OF_MATRICES = 1 << EXT_MATRIX | 1 << EXT_MEMORY_MODEL | 1 << EXT_SIZE_CONTROL
};
_Static_assert((int)EXT_COUNT == (int)VK_MOST_EXTENSIONS, "room for all of them");
static const char *const extensions[EXT_COUNT] = {
    [EXT_STORAGE_8] = "VK_KHR_8bit_storage",
    [EXT_FLOAT16_INT8] = "VK_KHR_shader_float16_int8",
    [EXT_FLOAT_CONTROLS] = "VK_KHR_shader_float_controls",
    [EXT_BUDGET] = "VK_EXT_memory_budget",
    [EXT_DRIVER] = "VK_KHR_driver_properties",
    [EXT_SUBSET] = "VK_KHR_portability_subset", /* must be enabled if present */
    [EXT_MATRIX] = "VK_KHR_cooperative_matrix",
    [EXT_MEMORY_MODEL] = "VK_KHR_vulkan_memory_model",
    [EXT_SIZE_CONTROL] = "VK_EXT_subgroup_size_control",
    [EXT_BFLOAT_16] = "VK_KHR_shader_bfloat16",
};

static void chain(vk_chain *head, vk_chain *more) {
    more->next = head->next;
    head->next = more;
}

static uint32_t float_features(const vk_float_controls *c) {
    const uint32_t *const modes[] = {c->keeps_specials, c->keeps_denormals, c->rounds_to_even};
    uint32_t bits = 0;
    for (int m = 0; m < 3; m++) {
        const uint32_t *has = modes[m];
        bool all = (has[0] && has[1] && has[2]) || (c->independent[0] == 1 && c->independent[1] == 1);
        for (int width = 0; width < 3; width++) /* those of 16 and 64 bits may have to agree with others */
            if (has[width] && (all || width == 1)) bits |= (uint32_t)TN_SPIRV_PRESERVE_16 << (3 * m + width);
    }
    return bits;
}

static int64_t at_most(uint64_t value) { return value < INT64_MAX ? (int64_t)value : INT64_MAX; }

/* Facts that no query returns, by the driver's name. */
static void fill_known(uint32_t driver, uint32_t version, tn_caps *c) {
    enum { MODES = TN_SPIRV_PRESERVE_32 | TN_SPIRV_RTE_32 };
    bool mesa = driver == DRIVER_LLVMPIPE;
    if (mesa || driver == DRIVER_SWIFTSHADER) c->features |= TN_SPIRV_FMA_SPLITS;
    if (mesa) c->max_loop = UINT16_MAX; /* an item's loops end there, all of them, as if they were done */
    /* Vulkan does not guarantee correctly rounded division and square root, but here they are. Mesa up to 25.0, whose
     * version is not checked, keeps denormals too; 26.2 flushes them */
    bool keeps_denormals = version < 1U << 22;
    c->exact = mesa && keeps_denormals && c->f64 && (c->features & MODES) == MODES;
}

static void version_of(const vk_properties *p, const vk_driver *driver, tn_caps *c) {
    uint64_t hash = tn_hash64(p->cache_uuid, sizeof p->cache_uuid, c->features);
    hash = tn_hash64(p->name, sizeof p->name, hash ^ p->driver_version ^ (uint64_t)p->api_version << 32);
    snprintf(c->version, sizeof c->version, "%.30s %.30s %08x %016llx", driver->name, driver->info, p->driver_version,
             (unsigned long long)hash);
}

static uint32_t bit_if(uint32_t there, uint32_t bit) { return there ? bit : 0; }

static void fill_caps(vk_abilities *a, const vk_subgroup *subgroup, const vk_float_controls *floats,
                      const vk_driver *driver) {
    const vk_limits *l = &a->properties.limits;
    tn_caps *c = &a->caps;
    uint32_t memory = TN_SPIRV_STORAGE_8 | TN_SPIRV_STORAGE_16;
    int64_t bindings = tn_min64(tn_min64(l->stage_storage, l->set_storage), l->stage_resources);
    *c = (tn_caps){
        .struct_size = sizeof *c,
        .code = TN_CODE_SPIRV,
        .f64 = a->features.f64,
        .i64 = a->features.i64,
        .f16 = a->small.f16 && a->storage_16.storage,
        .max_group = tn_min64(l->group_items, l->group_size[0]),
        .shared_memory = l->shared_memory,
        .alignment = tn_max64(at_most(l->storage_alignment), VK_GRAIN),
        .max_bindings = (int)tn_min64(bindings, VK_MOST_BINDINGS) - 1, /* one is for the parameters */
        .max_groups_x = l->groups[0],
        .subgroup = subgroup->size,
    };
    c->max_buffer = (int64_t)l->storage_range - c->alignment;
    c->features = TN_SPIRV_WINDOWS | bit_if(a->storage_8.storage, TN_SPIRV_STORAGE_8) |
                  bit_if(a->storage_16.storage, TN_SPIRV_STORAGE_16) | bit_if(a->small.i8, TN_SPIRV_INT_8) |
                  bit_if(a->features.i16, TN_SPIRV_INT_16) | bit_if(a->small.f16, TN_SPIRV_FLOAT_16) |
                  float_features(floats);
    c->words_only = (c->features & memory) != memory;
    fill_known(driver->id, a->properties.driver_version, c);
    version_of(&a->properties, driver, c);
}

/* ---- matrices ---------------------------------------------------------------------------------------------------- */

enum { WHOLE = 16, HALF = 8 }; /* edges of the matrices that one instruction multiplies */

static bool is_edge(uint32_t n) { return n == WHOLE || n == HALF; }

static bool takes_matrix(const vk_matrix *m, uint32_t half) {
    bool halves = m->a == half && m->b == half && m->c == COMPONENT_F32 && m->result == COMPONENT_F32;
    bool edges = is_edge(m->rows) && is_edge(m->columns) && is_edge(m->k);
    return halves && edges && m->scope == SCOPE_SUBGROUP;
}

/* The largest matrices of the device that renderers support; 0 rows: none. *brain: bf16 is supported too. */
static vk_matrix largest_matrix(void *place, bool *brain) {
    enum { MOST_MATRICES = 128 };
    vk_matrix best = {.rows = 0};
    AUTO_FREE vk_matrix *list = tn_mem_zalloc(MOST_MATRICES, sizeof *list);
    uint32_t count = MOST_MATRICES;
    for (int i = 0; list && i < MOST_MATRICES; i++)
        list[i].head.kind = KIND_MATRIX;
    bool told = list && tn_vk.GetPhysicalDeviceCooperativeMatrixPropertiesKHR &&
                tn_vk.GetPhysicalDeviceCooperativeMatrixPropertiesKHR(place, &count, list) >= 0;
    for (uint32_t i = 0; told && i < count && i < MOST_MATRICES; i++) {
        const vk_matrix *m = &list[i];
        bool larger = m->rows * m->columns * m->k > best.rows * best.columns * best.k;
        if (larger && takes_matrix(m, COMPONENT_F16)) best = *m;
    }
    for (uint32_t i = 0; told && i < count && i < MOST_MATRICES; i++) {
        const vk_matrix *m = &list[i];
        bool alike = m->rows == best.rows && m->columns == best.columns && m->k == best.k;
        *brain |= alike && takes_matrix(m, COMPONENT_BF16);
    }
    return best;
}

/* Items of the subgroups that multiply: where a device leaves a choice, 32 for whole matrices; units with smaller ones
 * have one item per column. */
static int64_t lanes_of(const vk_matrix *m, const vk_sizes *sizes) {
    uint32_t lanes = m->rows == WHOLE && m->columns == WHOLE ? 32 : m->columns;
    if (lanes < sizes->least) lanes = sizes->least;
    return lanes < sizes->most ? lanes : sizes->most;
}

/* Has the device matrix units and all features that kernels with matrices require? */
static void fill_matrix(void *place, vk_abilities *a, const vk_sizes *sizes) {
    const uint32_t needed = TN_SPIRV_STORAGE_16 | TN_SPIRV_FLOAT_16 | TN_SPIRV_INT_16;
    tn_caps *c = &a->caps;
    bool able = a->matrices.matrices && a->model.model && a->control.sizes && a->control.whole;
    if (!able || !(sizes->stages & SHADER_COMPUTE) || (c->features & needed) != needed || c->words_only) return;
    bool brain = false;
    vk_matrix m = largest_matrix(place, &brain);
    if (!m.rows) return;
    brain &= a->brain.type && a->brain.matrices;
    c->matrix = TN_MATRIX_F16 | TN_MATRIX_PACKETS | bit_if(brain, TN_MATRIX_BF16);
    c->subgroup = lanes_of(&m, sizes);
    c->features |= bit_if(m.rows == HALF, TN_SPIRV_MATRIX_M8) | bit_if(m.columns == HALF, TN_SPIRV_MATRIX_N8) |
                   bit_if(m.k == HALF, TN_SPIRV_MATRIX_K8) | bit_if(brain, TN_SPIRV_BFLOAT_16);
}

/* *out must not be moved: its structures point to each other. */
static void vulkan_ask(void *place, vk_abilities *out) {
    vk_features all = {.head.kind = KIND_FEATURES};
    vk_properties2 p = {.head.kind = KIND_PROPERTIES};
    vk_subgroup subgroup = {.head.kind = KIND_SUBGROUP};
    vk_largest largest = {.head.kind = KIND_LARGEST};
    vk_float_controls floats = {.head.kind = KIND_FLOAT_CONTROLS};
    vk_driver driver = {.head.kind = KIND_DRIVER};
    vk_sizes sizes = {.head.kind = KIND_SIZES};
    *out = (vk_abilities){.features.head.kind = KIND_FEATURES,
                          .storage_16.head.kind = KIND_STORAGE_16,
                          .storage_8.head.kind = KIND_STORAGE_8,
                          .small.head.kind = KIND_FLOAT16_INT8,
                          .matrices.head.kind = KIND_MATRICES,
                          .brain.head.kind = KIND_BFLOAT_16,
                          .model.head.kind = KIND_MEMORY_MODEL,
                          .control.head.kind = KIND_SIZE_CONTROL};
    tn_vk.GetPhysicalDeviceProperties(place, &out->properties);
    uint32_t found = vulkan_extensions(place, extensions, EXT_COUNT);
    for (int i = 0; i < EXT_COUNT; i++)
        if (found >> i & 1) out->extensions[out->extension_count++] = extensions[i];
    out->knows_budget = found >> EXT_BUDGET & 1;
    bool matrices = (found & EXTS_OF_MATRICES) == EXTS_OF_MATRICES;

    chain(&p.head, &subgroup.head);
    chain(&p.head, &largest.head);
    if (found >> EXT_FLOAT_CONTROLS & 1) chain(&p.head, &floats.head);
    if (found >> EXT_DRIVER & 1) chain(&p.head, &driver.head);
    if (matrices) chain(&p.head, &sizes.head);
    tn_vk.GetPhysicalDeviceProperties2(place, &p);
    out->largest = largest.allocation ? at_most(largest.allocation) : INT64_MAX;

    chain(&all.head, &out->storage_16.head);
    if (found >> EXT_STORAGE_8 & 1) chain(&all.head, &out->storage_8.head);
    if (found >> EXT_FLOAT16_INT8 & 1) chain(&all.head, &out->small.head);
    if (matrices) chain(&all.head, &out->matrices.head);
    if (matrices && found >> EXT_BFLOAT_16 & 1) chain(&all.head, &out->brain.head);
    if (matrices) chain(&all.head, &out->model.head);
    if (matrices) chain(&all.head, &out->control.head);
    tn_vk.GetPhysicalDeviceFeatures2(place, &all);
    out->features = (vk_features){.head = all.head, .f64 = all.f64, .i64 = all.i64, .i16 = all.i16};
    out->storage_16 = (vk_storage_16){.head = out->storage_16.head, .storage = out->storage_16.storage};
    out->storage_8 = (vk_storage_8){.head = out->storage_8.head, .storage = out->storage_8.storage};
    out->matrices.robust = out->brain.dot_product = 0;
    out->model.device_scope = out->model.chains = 0;
    fill_caps(out, &subgroup, &floats, &driver);
    fill_matrix(place, out, &sizes);
}

/* The device of this number, of Vulkan 1.1 at least, and with it all calls. */
static tn_status vulkan_find(int index, void **place) {
    void *list[MOST];
    int32_t error = SUCCESS;
    tn_reason why;
    if (!need_instance(&why)) return tn_fail(TN_ERR_UNAVAILABLE, "%s; %s", why.text, why.fix);
    const char *lacking = device_calls_known ? NULL : bind(instance, device_calls, TN_COUNT(device_calls));
    if (lacking) return tn_fail(TN_ERR_UNAVAILABLE, "the Vulkan loader lacks %s; update it", lacking);
    device_calls_known = true;
    int too_old, count = list_devices(list, &too_old, &error);
    if (index < 0 || index >= count)
        return tn_fail(TN_ERR_UNAVAILABLE, "vulkan:%d does not exist; vkEnumeratePhysicalDevices (%d) finds %d", index,
                       error, count);
    *place = list[index];
    return TN_OK;
}

/* ==== the driver ================================================================================================== */

/* ---- blocks ------------------------------------------------------------------------------------------------------ */

static void block_free(vk_device *d, vk_block *b) {
    if (b->buffer) tn_vk.DestroyBuffer(d->device, b->buffer, NULL);
    if (b->memory) tn_vk.FreeMemory(d->device, b->memory, NULL); /* and unmaps it */
    *b = (vk_block){0};
}

/* The first type among `types` that has all of `must`, preferably with all of `like`; -1: none. */
static int memory_type(const vk_device *d, uint32_t types, uint32_t must, uint32_t like) {
    int found = -1;
    for (uint32_t i = d->memory.type_count; i-- > 0;) {
        uint32_t flags = d->memory.types[i].flags;
        if (!(types >> i & 1) || (flags & must) != must) continue;
        bool best = found >= 0 && (d->memory.types[found].flags & like) == like;
        if ((flags & like) == like || !best) found = (int)i;
    }
    return found;
}

enum { HOST_SEES = MEMORY_VISIBLE | MEMORY_COHERENT, HOST_READS = HOST_SEES | MEMORY_CACHED };

static tn_status block_fill(vk_device *d, vk_block *b, uint32_t must, uint32_t like) {
    const vk_buffer_info info = {
        .kind = KIND_BUFFER, .size = b->bytes, .usage = USE_STORAGE | USE_COPY_FROM | USE_COPY_TO};
    vk_requirements needs = {0};
    TRY(check(d, tn_vk.CreateBuffer(d->device, &info, NULL, &b->buffer), "vkCreateBuffer", "%zu bytes", b->bytes));
    tn_vk.GetBufferMemoryRequirements(d->device, b->buffer, &needs);
    int type = memory_type(d, needs.types, must, like);
    if (type < 0)
        return tn_fail(TN_ERR_DEVICE, "%s: no memory type %x for buffers; %s", d->lost_state.id, must,
                       TN_ADVICE_UPDATE);
    if (needs.size > d->memory.heaps[d->memory.types[type].heap].size)
        return tn_fail(TN_ERR_MEMORY, "%s: %zu bytes exceed all of memory type %d; %s", d->lost_state.id, b->bytes,
                       type, TN_ADVICE_SMALLER);
    const vk_allocate_info allocate = {.kind = KIND_ALLOCATE, .size = needs.size, .type = (uint32_t)type};
    TRY(check(d, tn_vk.AllocateMemory(d->device, &allocate, NULL, &b->memory), "vkAllocateMemory",
              "%llu bytes of memory type %d", (unsigned long long)needs.size, type));
    TRY(check(d, tn_vk.BindBufferMemory(d->device, b->buffer, b->memory, 0), "vkBindBufferMemory", "%zu bytes",
              b->bytes));
    bool seen = must & MEMORY_VISIBLE || (like && (d->memory.types[type].flags & HOST_READS) == HOST_READS);
    if (!seen) return TN_OK;
    void *host = NULL;
    TRY(check(d, tn_vk.MapMemory(d->device, b->memory, 0, b->bytes, 0, &host), "vkMapMemory", "%zu bytes", b->bytes));
    b->host = host;
    return TN_OK;
}

/* A block in memory that has all flags of `must`; the host sees it if it must, or likes to and can do so quickly. */
static tn_status block_make(vk_device *d, vk_block *b, size_t bytes, uint32_t must, uint32_t like) {
    if (bytes > SIZE_MAX / 2 || (int64_t)bytes > d->has.largest)
        return tn_fail(TN_ERR_MEMORY, "%s: %zu bytes in one allocation; the driver allows at most %lld; %s",
                       d->lost_state.id, bytes, (long long)d->has.largest, TN_ADVICE_SMALLER);
    static atomic_ullong serial;
    *b = (vk_block){.bytes = (bytes + !bytes + VK_GRAIN - 1) / VK_GRAIN * VK_GRAIN, .serial = ++serial};
    tn_status s = block_fill(d, b, must, like);
    if (s != TN_OK) block_free(d, b);
    return s;
}

static void block_drop(void *device, void *b) {
    block_free(device, b);
    tn_mem_free(b);
}

static tn_status block_new(vk_device *d, size_t bytes, uint32_t must, uint32_t like, vk_block **out) {
    vk_block *b = tn_mem_zalloc(1, sizeof *b);
    if (!b) return TN_ERR_MEMORY;
    *out = b;
    void *unused;
    return tn_hand_out(block_make(d, b, bytes, must, like), b, block_drop, d, &unused);
}

tn_status tn_vulkan_locate(vk_device *d, const void *address, size_t bytes, const char *role, vk_block **b,
                           size_t *at) {
    void *found;
    tn_status s = tn_address_range_locate(&d->ranges, d->lost_state.id, role, address, bytes, &found, at);
    *b = found;
    return s;
}

/* ---- the stream: all of these want the lock to be held ----------------------------------------------------------- */

void tn_vulkan_barrier(vk_device *d, void *commands, uint32_t stages, uint32_t access) {
    const vk_barrier b = {.kind = KIND_MEMORY_BARRIER, .from = SHADER_WRITE | TRANSFER_WRITE, .to = access};
    tn_vk.CmdPipelineBarrier(commands, STAGE_COMPUTE | STAGE_TRANSFER, stages, 0, 1, &b, 0, NULL, 0, NULL);
    d->written = false;
}

tn_status tn_vulkan_submit_with(vk_device *d, void *more) {
    const vk_slot *s = &d->slots[tn_stream_slot(d->stream.submitted + 1)];
    tn_vulkan_barrier(d, s->commands, STAGE_HOST, HOST_READ | HOST_WRITE);
    d->stream.recording = false;
    const char *call = "vkEndCommandBuffer";
    int32_t error = tn_vk.EndCommandBuffer(s->commands);
    if (error == SUCCESS) {
        void *commands[2] = {s->commands, more};
        const vk_submit_info info = {.kind = KIND_SUBMIT, .command_count = more ? 2 : 1, .commands = commands};
        call = "vkQueueSubmit";
        error = tn_vk.QueueSubmit(d->queue, 1, &info, s->fence);
    }
    if (error == SUCCESS) {
        tn_stream_submitted(&d->stream);
        return TN_OK;
    }
    tn_status status = check(d, error, call, "%d dispatches", s->dispatches);
    return tn_device_lost_with_work(&d->lost_state, status, call);
}

static tn_status stream_submit(void *device) { return tn_vulkan_submit_with(device, NULL); }

tn_status tn_vulkan_commands_begin(vk_device *d, const vk_slot *s, uint32_t flags) {
    const vk_begin_info info = {.kind = KIND_BEGIN, .flags = flags};
    TRY(check(d, tn_vk.ResetDescriptorPool(d->device, s->sets, 0), "vkResetDescriptorPool", "%s", ""));
    return check(d, tn_vk.BeginCommandBuffer(s->commands, &info), "vkBeginCommandBuffer", "%s", "");
}

static tn_status stream_begin(void *device, int i) {
    vk_device *d = device;
    vk_slot *s = &d->slots[i];
    TRY(check(d, tn_vk.ResetFences(d->device, 1, &s->fence), "vkResetFences", "%s", ""));
    TRY(tn_vulkan_commands_begin(d, s, ONE_TIME));
    s->used = 0;
    s->dispatches = s->bindings = 0;
    d->written = true;
    return TN_OK;
}

static bool stream_has_room(void *device, int i, size_t bytes, int bindings) {
    const vk_slot *s = &((vk_device *)device)->slots[i];
    return s->used + bytes <= SLOT_ROOM && s->dispatches < SLOT_DISPATCHES && s->bindings + bindings <= SLOT_BINDINGS;
}

static tn_status stream_wait(void *device, int i, uint64_t number) {
    vk_device *d = device;
    return check(d, tn_vk.WaitForFences(d->device, 1, &d->slots[i].fence, 1, UINT64_MAX), "vkWaitForFences",
                 "submission %llu", (unsigned long long)number);
}

static tn_status stream_query(void *device, int i, uint64_t number, bool *ended) {
    vk_device *d = device;
    int32_t code = tn_vk.GetFenceStatus(d->device, d->slots[i].fence);
    *ended = code == SUCCESS;
    return check(d, code, "vkGetFenceStatus", "submission %llu", (unsigned long long)number);
}

static void stream_idle(void *device) { (void)tn_vk.DeviceWaitIdle(((vk_device *)device)->device); }

static const tn_stream_calls stream_calls = {stream_begin, stream_has_room, stream_submit,
                                             stream_wait,  stream_query,    stream_idle};

tn_status tn_vulkan_record(vk_device *d, size_t bytes, int bindings, vk_slot **out) {
    int i = 0;
    tn_status s = tn_stream_record(&d->stream, bytes, bindings, &i);
    *out = &d->slots[i];
    return s;
}

void tn_vulkan_follow(vk_device *d, const vk_slot *s, vk_block *a, vk_block *b) {
    if (d->written)
        tn_vulkan_barrier(d, s->commands, STAGE_COMPUTE | STAGE_TRANSFER,
                          SHADER_READ | SHADER_WRITE | TRANSFER_READ | TRANSFER_WRITE);
    d->written = true;
    a->last = b->last = d->stream.submitted + 1;
}

tn_status tn_vulkan_slot_start(vk_device *d, vk_slot *s, size_t room, uint32_t dispatches, uint32_t bindings) {
    const vk_pool_size sizes[] = {{STORAGE, bindings}, {STORAGE_MOVING, dispatches}};
    const vk_set_pool_info sets = {.kind = KIND_SET_POOL, .sets = dispatches, .count = TN_COUNT(sizes), .sizes = sizes};
    const vk_plain_info fence = {.kind = KIND_FENCE};
    const vk_commands_info commands = {.kind = KIND_COMMANDS, .pool = d->pool, .count = 1};
    TRY(check(d, tn_vk.AllocateCommandBuffers(d->device, &commands, &s->commands), "vkAllocateCommandBuffers", "1"));
    TRY(check(d, tn_vk.CreateFence(d->device, &fence, NULL, &s->fence), "vkCreateFence", "%s", ""));
    TRY(check(d, tn_vk.CreateDescriptorPool(d->device, &sets, NULL, &s->sets), "vkCreateDescriptorPool", "%u sets",
              dispatches));
    return block_make(d, &s->room, room, HOST_SEES, MEMORY_LOCAL);
}

void tn_vulkan_slot_end(vk_device *d, vk_slot *s) {
    if (s->fence) tn_vk.DestroyFence(d->device, s->fence, NULL);
    if (s->sets) tn_vk.DestroyDescriptorPool(d->device, s->sets, NULL);
    if (s->commands) tn_vk.FreeCommandBuffers(d->device, d->pool, 1, &s->commands);
    block_free(d, &s->room);
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

/* Creates a device with all supported features that this driver uses. */
static tn_status device_make(vk_device *d, uint32_t family) {
    const float priority = 1;
    const vk_queue_info queue = {.kind = KIND_QUEUE, .family = family, .count = 1, .priorities = &priority};
    const vk_device_info info = {.kind = KIND_DEVICE,
                                 .next = &d->has.features,
                                 .queue_count = 1,
                                 .queues = &queue,
                                 .extension_count = d->has.extension_count,
                                 .extensions = d->has.extensions};
    return check(d, tn_vk.CreateDevice(d->place, &info, NULL, &d->device), "vkCreateDevice", "%u extensions",
                 d->has.extension_count);
}

static tn_status device_start(vk_device *d) {
    uint32_t family = 0;
    int64_t unused;
    (void)vulkan_family(d->place, &family, &d->time_bits);
    vulkan_ask(d->place, &d->has);
    if (d->has.caps.alignment > SLOT_ROOM / 8)
        return tn_fail(TN_ERR_DEVICE, "%s: buffers aligned to %lld bytes, Vulkan allows 256 at most; %s",
                       d->lost_state.id, (long long)d->has.caps.alignment, TN_ADVICE_UPDATE);
    d->software = d->has.properties.device_type == TYPE_CPU;
    d->unified =
        (d->software || d->has.properties.device_type == TYPE_INTEGRATED) && !tn_env("TRUNNION_VULKAN_STAGING");
    tn_vk.GetPhysicalDeviceMemoryProperties(d->place, &d->memory);
    TRY(device_make(d, family));
    tn_vulkan_memory(d->place, d->has.knows_budget, &d->room.total, &unused);
    if (!(d->has.properties.limits.time_unit > 0)) d->time_bits = 0;
    tn_vk.GetDeviceQueue(d->device, family, 0, &d->queue);
    const vk_plain_info pool = {.kind = KIND_COMMAND_POOL, .flags = POOL_RESETS, .family = family};
    TRY(check(d, tn_vk.CreateCommandPool(d->device, &pool, NULL, &d->pool), "vkCreateCommandPool", "family %u",
              family));
    for (int i = 0; i < TN_STREAM_SLOTS; i++)
        TRY(tn_vulkan_slot_start(d, &d->slots[i], SLOT_ROOM, SLOT_DISPATCHES, SLOT_BINDINGS));
    return TN_OK;
}

/* Also for a device whose opening failed halfway. */
static void vulkan_close(void *device) {
    vk_device *d = device;
    if (d->device) (void)tn_vk.DeviceWaitIdle(d->device);
    for (int i = 0; d->device && i < TN_STREAM_SLOTS; i++)
        tn_vulkan_slot_end(d, &d->slots[i]);
    if (d->pool) tn_vk.DestroyCommandPool(d->device, d->pool, NULL);
    if (d->device) block_free(d, &d->staging);
    if (d->device) tn_vk.DestroyDevice(d->device, NULL);
    tn_address_ranges_close(&d->ranges);
    tn_address_ranges_close(&d->pinned);
    tn_stream_close(&d->stream);
    tn_device_lost_close(&d->lost_state);
    pthread_mutex_destroy(&d->staging_lock);
    tn_mem_free(d);
}

static tn_status vulkan_open(int index, TN_UNUSED const tn_device_options *options, void **device) {
    void *found;
    TRY(vulkan_find(index, &found));
    vk_device *d = tn_mem_zalloc(1, sizeof *d);
    if (!d) return TN_ERR_MEMORY;
    d->place = found;
    tn_device_lost_open(&d->lost_state, "vulkan", index);
    tn_stream_open(&d->stream, &stream_calls, d, &d->lost_state);
    pthread_mutex_init(&d->staging_lock, NULL);
    tn_address_ranges_open(&d->ranges);
    tn_address_ranges_open(&d->pinned);
    return tn_hand_out_device(device_start(d), d, vulkan_close, device);
}

static tn_status vulkan_caps(void *device, tn_caps *out) {
    *out = ((vk_device *)device)->has.caps;
    return TN_OK;
}

static tn_status vulkan_memory(void *device, int64_t *total, int64_t *unused) {
    vk_device *d = device;
    tn_vulkan_memory(d->place, d->has.knows_budget, total, unused);
    if (!d->has.knows_budget) *unused = tn_memory_budget_left(&d->room, false);
    if (d->software) *unused = tn_min64(*unused, tn_host_memory_now().unused);
    return TN_OK;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static tn_status vulkan_alloc(void *device, size_t bytes, void **address) {
    vk_device *d = device;
    vk_block *b;
    TRY(alive(d));
    TRY(tn_memory_budget_take(&d->room, d->lost_state.id, bytes));
    tn_status s = block_new(d, bytes, MEMORY_LOCAL, d->unified ? HOST_READS : 0, &b);
    if (s == TN_OK) {
        tn_memory_budget_give(&d->room, (int64_t)bytes - (int64_t)b->bytes); /* the block is larger than requested */
        bytes = b->bytes;
        s = tn_address_range_add(&d->ranges, b, bytes, address);
        if (s != TN_OK) block_drop(d, b);
    }
    if (s != TN_OK) tn_memory_budget_give(&d->room, (int64_t)bytes);
    return s;
}

static void vulkan_free(void *device, void *address) {
    vk_device *d = device;
    size_t bytes = 0;
    vk_block *b = tn_address_range_remove(&d->ranges, address, &bytes);
    if (!b) return;
    tn_stream_wait_unused(&d->stream, b->last);
    block_drop(d, b);
    tn_memory_budget_give(&d->room, (int64_t)bytes);
}

/* Records a copy between blocks. The lock is held. */
static tn_status record_copy(vk_device *d, vk_block *to, size_t to_at, vk_block *from, size_t from_at, size_t n) {
    const vk_region region = {from_at, to_at, n};
    vk_slot *s;
    TRY(tn_vulkan_record(d, 0, 0, &s));
    tn_vulkan_follow(d, s, to, from);
    tn_vk.CmdCopyBuffer(s->commands, from->buffer, to->buffer, 1, &region);
    return TN_OK;
}

enum { SMALL = SLOT_ROOM / 4, STAGING = 4 << 20 };

/* Host bytes that are stored in the slot until they are copied, so nothing waits. The lock is held. */
static tn_status write_small(vk_device *d, vk_block *to, size_t at, const void *src, size_t bytes) {
    vk_slot *s;
    TRY(tn_vulkan_record(d, bytes, 0, &s));
    memcpy(s->room.host + s->used, src, bytes);
    size_t from = s->used;
    s->used += bytes;
    TRY(record_copy(d, to, at, &s->room, from, bytes));
    s->used = (s->used + 7) / 8 * 8;
    return TN_OK;
}

/* One piece through the staging block, whose lock is held. */
static tn_status stage_piece(vk_device *d, vk_block *b, size_t at, unsigned char *host, size_t n, bool reads) {
    if (!reads) memcpy(d->staging.host, host, n);
    pthread_mutex_lock(&d->stream.lock);
    tn_status s = reads ? record_copy(d, &d->staging, 0, b, at, n) : record_copy(d, b, at, &d->staging, 0, n);
    if (s == TN_OK) s = tn_stream_finish(&d->stream);
    pthread_mutex_unlock(&d->stream.lock);
    if (s == TN_OK && reads) memcpy(host, d->staging.host, n);
    return s;
}

static tn_status stage(vk_device *d, vk_block *b, size_t at, void *host, size_t bytes, bool reads) {
    AUTO_LOCK(&d->staging_lock);
    if (!d->staging.host) TRY(block_make(d, &d->staging, STAGING, HOST_SEES, MEMORY_CACHED));
    for (size_t n = 0; bytes; at += n, bytes -= n, host = (char *)host + n) {
        n = bytes < STAGING ? bytes : STAGING;
        TRY(stage_piece(d, b, at, host, n, reads));
    }
    return TN_OK;
}

/* Also waits until the host may read mapped memory. */
static tn_status vulkan_sync(void *queue) {
    vk_device *d = queue;
    AUTO_LOCK(&d->stream.lock);
    return tn_stream_finish(&d->stream);
}

/* Small copies are recorded in the stream. Larger ones to mapped memory are done at once, after all work has ended. */
static tn_status write_to(vk_device *d, vk_block *to, size_t at, const void *src, size_t bytes) {
    tn_status s = TN_OK;
    pthread_mutex_lock(&d->stream.lock);
    bool direct = to->host && (bytes > SMALL || tn_stream_is_idle(&d->stream));
    if (direct)
        s = tn_stream_finish(&d->stream);
    else if (bytes <= SMALL)
        s = write_small(d, to, at, src, bytes);
    pthread_mutex_unlock(&d->stream.lock);
    if (direct && s == TN_OK) memcpy(to->host + at, src, bytes);
    return direct || bytes <= SMALL ? s : stage(d, to, at, (void *)(uintptr_t)src, bytes, false);
}

static tn_status read_from(vk_device *d, vk_block *from, size_t at, void *dst, size_t bytes) {
    if (!from->host) return stage(d, from, at, dst, bytes, true);
    TRY(vulkan_sync(d));
    memcpy(dst, from->host + at, bytes);
    return TN_OK;
}

/* Between the device's memory and device or host memory that a block contains; *done: there is such a block. */
static tn_status copy_blocks(vk_device *d, void *dst, const void *src, size_t bytes, int kind, bool *done) {
    size_t at = 0, from_at = 0;
    vk_block *to = NULL, *from = NULL;
    TRY(tn_vulkan_locate(d, kind == 1 ? src : dst, bytes, "copying", kind == 1 ? &from : &to,
                         kind == 1 ? &from_at : &at));
    if (kind == 0) from = tn_address_range_find(&d->pinned, src, bytes, &from_at);
    if (kind == 1) to = tn_address_range_find(&d->pinned, dst, bytes, &at);
    if (kind == 2) TRY(tn_vulkan_locate(d, src, bytes, "copying", &from, &from_at));
    *done = to && from;
    if (!*done) return TN_OK;
    AUTO_LOCK(&d->stream.lock);
    TRY(record_copy(d, to, at, from, from_at, bytes));
    return kind != 2 ? tn_stream_submit(&d->stream) : TN_OK;
}

static tn_status vulkan_copy(void *queue, void *dst, const void *src, size_t bytes, int kind) {
    vk_device *d = queue;
    vk_block *b;
    size_t at;
    bool done;
    TRY(alive(d));
    if (!bytes) return TN_OK;
    if (kind == 2) return copy_blocks(d, dst, src, bytes, kind, &done);
    TRY(tn_vulkan_locate(d, kind == 1 ? src : dst, bytes, "copying", &b, &at));
    return kind == 1 ? read_from(d, b, at, dst, bytes) : write_to(d, b, at, src, bytes);
}

static tn_status vulkan_copy_async(void *queue, void *dst, const void *src, size_t bytes, int kind) {
    bool done = false;
    TRY(alive(queue));
    if (bytes) TRY(copy_blocks(queue, dst, src, bytes, kind, &done));
    return done ? TN_OK : vulkan_copy(queue, dst, src, bytes, kind);
}

static tn_status vulkan_host_alloc(void *device, size_t bytes, void **host) {
    vk_device *d = device;
    vk_block *b;
    TRY(alive(d));
    TRY(block_new(d, bytes, HOST_SEES, MEMORY_CACHED, &b));
    *host = b->host;
    tn_status s = tn_address_range_add_host(&d->pinned, b, b->bytes, b->host);
    if (s != TN_OK) block_drop(d, b);
    return s;
}

static void vulkan_host_free(void *device, void *host) {
    vk_device *d = device;
    size_t bytes;
    vk_block *b = tn_address_range_remove(&d->pinned, host, &bytes);
    if (!b) return;
    tn_stream_wait_unused(&d->stream, b->last);
    block_drop(d, b);
}

/* The device fills complete words; the bytes before and after them are copied. The lock is held. */
static tn_status record_fill(vk_device *d, vk_block *b, size_t at, uint8_t value, size_t bytes) {
    const uint8_t edge[4] = {value, value, value, value};
    size_t head = (-at & 3) < bytes ? -at & 3 : bytes, words = (bytes - head) & ~(size_t)3;
    size_t tail = bytes - head - words;
    vk_slot *s;
    if (head) TRY(write_small(d, b, at, edge, head));
    if (tail) TRY(write_small(d, b, at + bytes - tail, edge, tail));
    if (!words) return TN_OK;
    TRY(tn_vulkan_record(d, 0, 0, &s));
    tn_vulkan_follow(d, s, b, b);
    tn_vk.CmdFillBuffer(s->commands, b->buffer, at + head, words, value * 0x01010101u);
    return TN_OK;
}

static tn_status vulkan_fill(void *queue, void *dst, uint8_t value, size_t bytes) {
    vk_device *d = queue;
    vk_block *b;
    size_t at;
    TRY(alive(d));
    if (!bytes) return TN_OK;
    TRY(tn_vulkan_locate(d, dst, bytes, "filling", &b, &at));
    AUTO_LOCK(&d->stream.lock);
    return record_fill(d, b, at, value, bytes);
}

/* hal copies memory that the host cannot access. */
static tn_status vulkan_map(void *device, void *address, size_t bytes, TN_UNUSED bool read, void **host) {
    vk_device *d = device;
    vk_block *b;
    size_t at;
    TRY(alive(d));
    TRY(tn_vulkan_locate(d, address, bytes, "mapping", &b, &at));
    if (!b->host) return tn_fail(TN_ERR_UNSUPPORTED, "%s: this memory cannot be mapped by the host", d->lost_state.id);
    TRY(vulkan_sync(d));
    *host = b->host + at;
    return TN_OK;
}

static tn_status vulkan_unmap(void *device, TN_UNUSED void *address, TN_UNUSED void *host) { return alive(device); }

/* ---- events ------------------------------------------------------------------------------------------------------ */

typedef struct event {
    uint64_t number; /* of the submission that contains the event; 0: never recorded, counts as ended */
    uint64_t times;  /* query pool of one timestamp; 0: none */
} event;

static void vulkan_event_free(void *device, void *made) {
    vk_device *d = device;
    event *e = made;
    if (e->times) tn_stream_wait_unused(&d->stream, e->number);
    if (e->times) tn_vk.DestroyQueryPool(d->device, e->times, NULL);
    tn_mem_free(e);
}

static tn_status vulkan_event_new(void *device, bool timed, void **out) {
    vk_device *d = device;
    const vk_query_pool_info info = {.kind = KIND_QUERY_POOL, .type = QUERY_TIME, .count = 1};
    event *e = tn_mem_zalloc(1, sizeof *e);
    if (!e) return TN_ERR_MEMORY;
    tn_status s = timed && d->time_bits ? check(d, tn_vk.CreateQueryPool(d->device, &info, NULL, &e->times),
                                                "vkCreateQueryPool", "1 time")
                                        : TN_OK;
    return tn_hand_out(s, e, vulkan_event_free, d, out);
}

/* Submitted at once, because something may wait for it. */
static tn_status vulkan_event_record(void *queue, void *recorded) {
    vk_device *d = queue;
    event *e = recorded;
    vk_slot *at;
    AUTO_LOCK(&d->stream.lock);
    TRY(alive(d));
    if (e->times) TRY(tn_vulkan_record(d, 0, 0, &at));
    if (e->times) {
        tn_vk.CmdResetQueryPool(at->commands, e->times, 0, 1);
        tn_vk.CmdWriteTimestamp(at->commands, STAGE_END, e->times, 0);
    }
    TRY(tn_stream_submit(&d->stream));
    e->number = d->stream.submitted;
    return TN_OK;
}

static tn_status vulkan_event_query(void *device, void *e, bool *passed) {
    vk_device *d = device;
    TRY(alive(d));
    AUTO_LOCK(&d->stream.lock);
    return tn_stream_query(&d->stream, ((const event *)e)->number, passed);
}

static tn_status vulkan_event_sync(void *device, void *e) {
    vk_device *d = device;
    AUTO_LOCK(&d->stream.lock);
    return tn_stream_await(&d->stream, ((const event *)e)->number);
}

static tn_status vulkan_event_time(void *device, void *recorded, double *seconds) {
    vk_device *d = device;
    const event *e = recorded;
    uint64_t ticks = 0;
    if (!e->number || !e->times)
        return tn_fail(TN_ERR_STATE, "%s: cannot read the time of an event that was created without timing",
                       d->lost_state.id);
    TRY(check(d,
              tn_vk.GetQueryPoolResults(d->device, e->times, 0, 1, sizeof ticks, &ticks, sizeof ticks,
                                        QUERY_64 | QUERY_WAITS),
              "vkGetQueryPoolResults", "1 time"));
    pthread_mutex_lock(&d->stream.lock);
    ticks = tn_clock_place(&d->clock, ticks, d->time_bits);
    pthread_mutex_unlock(&d->stream.lock);
    *seconds = (double)ticks * (double)d->has.properties.limits.time_unit * 1e-9;
    return TN_OK;
}

/* ---- the driver -------------------------------------------------------------------------------------------------- */

const tn_driver tn_driver_vulkan = {
    .struct_size = sizeof(tn_driver),
    .abi = TN_BACKEND_ABI,
    .name = "vulkan",
    .title = "Vulkan",
    .probe = vulkan_probe,
    .open = vulkan_open,
    .close = vulkan_close,
    .caps = vulkan_caps,
    .alloc = vulkan_alloc,
    .free = vulkan_free,
    .load = tn_vulkan_load,
    .unload = tn_vulkan_unload,
    .copy = vulkan_copy,
    .sync = vulkan_sync,
    .memory = vulkan_memory,
    .watch = vulkan_watch,
    .isolate = TN_PROBE_ISOLATE,
    .dispatch = tn_vulkan_dispatch,
    .binary = tn_vulkan_binary,
    .queue_new = tn_stream_queue_new,
    .queue_free = tn_stream_queue_free,
    .event_new = vulkan_event_new,
    .event_free = vulkan_event_free,
    .event_record = vulkan_event_record,
    .event_wait = tn_stream_event_wait,
    .event_query = vulkan_event_query,
    .event_sync = vulkan_event_sync,
    .event_time = vulkan_event_time,
    .copy_async = vulkan_copy_async,
    .fill = vulkan_fill,
    .host_alloc = vulkan_host_alloc,
    .host_free = vulkan_host_free,
    .map = vulkan_map,
    .unmap = vulkan_unmap,
    .list_make = tn_vulkan_list_make,
    .list_run = tn_vulkan_list_run,
    .list_free = tn_vulkan_list_free,
};

#endif
