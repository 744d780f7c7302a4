/* probe_vulkan.c — the Vulkan loader: its functions, this process's instance, the devices that compute, and
 * what a result means.
 *
 * Identity (UUID), place on the PCI bus and free memory come from structures chained behind the plain ones, each only
 * where the device says that it knows it. The driver (vulkan.c) opens what is listed here. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "drivers/probe.h"
#include "drivers/vulkan.h"
#include "hal/device_lost.h"
#include "hal/hal.h"

#if TRUNNION_WITH_VULKAN

/* ---- the library ------------------------------------------------------------------------------------------------- */

enum { MOST = 16, MOST_LISTED = 512 };

tn_vk_calls tn_vk;

static const char *const names[] = {"libvulkan.so.1", "libvulkan.so", "libvulkan.1.dylib", "libMoltenVK.dylib", NULL};
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

typedef struct call {
    const char *name;
    vk_function *address;
} call;
#define X(name, result, parameters) {"vk" #name, (vk_function *)&tn_vk.name},
static const call look_calls[] = {VK_LOOK_CALLS(X)}, more_calls[] = {VK_MORE_CALLS(X)},
                  device_calls[] = {VK_DEVICE_CALLS(X)};
#undef X

/* The first call that the loader does not know; NULL: all are there. */
static const char *bind(void *instance, const call *calls, size_t count) {
    for (size_t i = 0; i < count; i++) {
        *calls[i].address = tn_vk.GetInstanceProcAddr(instance, calls[i].name);
        if (!*calls[i].address) return calls[i].name;
    }
    return NULL;
}

/* One a process, never given back: what vendors' code does when it is unloaded cannot be relied on. hal probes and
 * opens under one lock. A probe's own process makes one of its own: its environment may be another. */
static void *instance;
static pid_t instance_of;
static bool device_calls_known; /* of this instance; other threads use them, so they are written once */

static int32_t make_instance(void) {
    const vk_application application = {
        .kind = KIND_APPLICATION, .name = "trunnion", .engine = "trunnion", .api_version = VERSION_1_1};
    const vk_instance_info info = {.kind = KIND_INSTANCE, .application = &application};
    const call create = {"vkCreateInstance", (vk_function *)&tn_vk.CreateInstance};
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
                      "the Vulkan loader is there, but no driver is registered with it");
    else if (error != SUCCESS)
        tn_reason_set(why, TN_REASON_INIT_FAILED, "see whether vulkaninfo works; reinstall the Vulkan driver",
                      "Vulkan loader: vkCreateInstance gives error %d", error);
    return error == SUCCESS;
}

/* ---- finding devices --------------------------------------------------------------------------------------------- */

bool tn_vulkan_family(void *place, uint32_t *family, uint32_t *time_bits) {
    vk_queue_family families[32];
    uint32_t count = TN_COUNT(families);
    tn_vk.GetPhysicalDeviceQueueFamilyProperties(place, &count, families);
    for (*family = 0; *family < count; ++*family) {
        *time_bits = families[*family].time_bits;
        if (families[*family].flags & QUEUE_COMPUTE) return true;
    }
    return false;
}

/* Whether a device computes and knows what is asked of it. */
static bool suits(void *place, int *too_old) {
    uint32_t family, time_bits;
    vk_properties p = {0};
    if (!tn_vulkan_family(place, &family, &time_bits)) return false;
    tn_vk.GetPhysicalDeviceProperties(place, &p);
    *too_old += p.api_version < VERSION_1_1;
    return p.api_version >= VERSION_1_1;
}

/* The devices that can be used, `MOST` at most; numbered in this order. *too_old: how many others there are of Vulkan
 * 1.0. */
static int list_devices(void **list, int *too_old, int32_t *error) {
    uint32_t count = MOST, n = 0;
    *too_old = 0;
    *error = tn_vk.EnumeratePhysicalDevices(instance, &count, list);
    if (*error != SUCCESS && *error != INCOMPLETE) return 0;
    for (uint32_t i = 0; i < count; i++)
        if (suits(list[i], too_old)) list[n++] = list[i];
    return (int)n;
}

uint32_t tn_vulkan_extensions(void *place, const char *const *wanted, uint32_t n_wanted) {
    uint32_t count = MOST_LISTED, found = 0;
    vk_extension *list = tn_mem_zalloc(MOST_LISTED, sizeof *list);
    if (list && tn_vk.EnumerateDeviceExtensionProperties(place, NULL, &count, list) >= 0)
        for (uint32_t i = 0; i < count * n_wanted; i++)
            if (!strcmp(list[i / n_wanted].name, wanted[i % n_wanted])) found |= 1u << i % n_wanted;
    tn_mem_free(list);
    return found;
}

static bool has_extension(void *place, const char *name) { return tn_vulkan_extensions(place, &name, 1) != 0; }

/* More than a heap can have is believed of none: sums stay numbers. */
static int64_t heap_bytes(uint64_t told) { return (int64_t)(told < (uint64_t)1 << 56 ? told : (uint64_t)1 << 56); }

void tn_vulkan_memory(void *place, bool knows_budget, int64_t *total, int64_t *unused) {
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

void tn_vulkan_probe(tn_probe *out) {
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
                        "%d device%s, of Vulkan 1.0; 1.1 is the least that Trunnion can use", too_old,
                        too_old == 1 ? "" : "s");
    else
        tn_probe_reason(out, TN_REASON_NO_DEVICE, NO_DRIVER, "Vulkan runs, and has no device that computes (error %d)",
                        error);
}

void tn_vulkan_watch(tn_watch_add *add, void *ctx) {
    tn_probe_watch(&library, add, ctx);
    tn_probe_watch_vulkan(add, ctx);
}

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
    [EXT_SUBSET] = "VK_KHR_portability_subset", /* to be enabled where it is there */
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

/* What no query tells, known by the driver's name. */
static void fill_known(uint32_t driver, uint32_t version, tn_caps *c) {
    enum { MODES = TN_SPIRV_PRESERVE_32 | TN_SPIRV_RTE_32 };
    bool mesa = driver == DRIVER_LLVMPIPE;
    if (mesa || driver == DRIVER_SWIFTSHADER) c->features |= TN_SPIRV_FMA_SPLITS;
    if (mesa) c->max_loop = UINT16_MAX; /* an item's loops end there, all of them, as if they were done */
    /* Vulkan does not promise that division and square root are correctly rounded, but here they are. Mesa up to 25.0,
     * whose version counts for nothing, keeps denormals, too; 26.2 takes them as 0 */
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
        .max_bindings = (int)tn_min64(bindings, VK_MOST_BINDINGS) - 1, /* and the parameters */
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

enum { WHOLE = 16, HALF = 8 }; /* edges of what is multiplied at once */

static bool is_edge(uint32_t n) { return n == WHOLE || n == HALF; }

static bool takes_matrix(const vk_matrix *m, uint32_t half) {
    bool halves = m->a == half && m->b == half && m->c == COMPONENT_F32 && m->result == COMPONENT_F32;
    bool edges = is_edge(m->rows) && is_edge(m->columns) && is_edge(m->k);
    return halves && edges && m->scope == SCOPE_SUBGROUP;
}

/* The largest of what the device multiplies that renderers take; no rows: there is none. *brain: of bf16, too. */
static vk_matrix largest_matrix(void *place, bool *brain) {
    enum { MOST_MATRICES = 128 };
    vk_matrix best = {.rows = 0}, *list = tn_mem_zalloc(MOST_MATRICES, sizeof *list);
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
    tn_mem_free(list);
    return best;
}

/* Items of the subgroups that multiply: where a device leaves a choice, 32 for whole matrices; units of smaller ones
 * have an item a column. */
static int64_t lanes_of(const vk_matrix *m, const vk_sizes *sizes) {
    uint32_t lanes = m->rows == WHOLE && m->columns == WHOLE ? 32 : m->columns;
    if (lanes < sizes->least) lanes = sizes->least;
    return lanes < sizes->most ? lanes : sizes->most;
}

/* Has the device matrix units, and all that kernels need that make use of them? */
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

void tn_vulkan_ask(void *place, vk_abilities *out) {
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
    uint32_t found = tn_vulkan_extensions(place, extensions, EXT_COUNT);
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

tn_status tn_vulkan_find(int index, void **place) {
    void *list[MOST];
    int32_t error = SUCCESS;
    tn_reason why;
    if (!need_instance(&why)) return tn_fail(TN_ERR_UNAVAILABLE, "%s; %s", why.text, why.fix);
    const char *lacking = device_calls_known ? NULL : bind(instance, device_calls, TN_COUNT(device_calls));
    if (lacking) return tn_fail(TN_ERR_UNAVAILABLE, "the Vulkan loader does not know %s; update it", lacking);
    device_calls_known = true;
    int too_old, count = list_devices(list, &too_old, &error);
    if (index < 0 || index >= count)
        return tn_fail(TN_ERR_UNAVAILABLE, "vulkan:%d does not exist; vkEnumeratePhysicalDevices (%d) finds %d", index,
                       error, count);
    *place = list[index];
    return TN_OK;
}

#endif
