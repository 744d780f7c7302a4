/* vulkan.h — declarations of Vulkan, so that a build needs no SDK. Numbers and layouts are those of the Vulkan 1.1
 * specification and of the extensions named; tools/checks/vulkan_headers.py compares everything with the vendor's
 * header if it is installed.
 *
 * Dispatchable handles (instance, device, queue, command buffer) are pointers, all others 64-bit numbers; enumerations,
 * flags and booleans have 32 bits. */
#ifndef TN_DRIVERS_VULKAN_H
#define TN_DRIVERS_VULKAN_H

#include <stddef.h>
#include <stdint.h>

#include "drivers/probe.h"
#include "hal/driver.h"

/* X(name here, name in Vulkan, value): what a structure is, at its head. */
#define VK_KINDS(X)                                                                                      \
    X(KIND_APPLICATION, VK_STRUCTURE_TYPE_APPLICATION_INFO, 0)                                           \
    X(KIND_INSTANCE, VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO, 1)                                          \
    X(KIND_QUEUE, VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO, 2)                                         \
    X(KIND_DEVICE, VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO, 3)                                              \
    X(KIND_SUBMIT, VK_STRUCTURE_TYPE_SUBMIT_INFO, 4)                                                     \
    X(KIND_ALLOCATE, VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, 5)                                          \
    X(KIND_FENCE, VK_STRUCTURE_TYPE_FENCE_CREATE_INFO, 8)                                                \
    X(KIND_QUERY_POOL, VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO, 11)                                     \
    X(KIND_BUFFER, VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO, 12)                                             \
    X(KIND_SHADER, VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO, 16)                                      \
    X(KIND_PIPELINE_CACHE, VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO, 17)                             \
    X(KIND_STAGE, VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO, 18)                               \
    X(KIND_PIPELINE, VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO, 29)                                 \
    X(KIND_PIPELINE_LAYOUT, VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO, 30)                           \
    X(KIND_SET_LAYOUT, VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO, 32)                          \
    X(KIND_SET_POOL, VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO, 33)                                  \
    X(KIND_SET, VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO, 34)                                      \
    X(KIND_WRITE, VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET, 35)                                            \
    X(KIND_COMMAND_POOL, VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO, 39)                                 \
    X(KIND_COMMANDS, VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO, 40)                                 \
    X(KIND_BEGIN, VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO, 42)                                       \
    X(KIND_MEMORY_BARRIER, VK_STRUCTURE_TYPE_MEMORY_BARRIER, 46)                                         \
    X(KIND_FEATURES, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2, 1000059000)                           \
    X(KIND_PROPERTIES, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2, 1000059001)                       \
    X(KIND_MEMORY_PROPERTIES, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2, 1000059006)         \
    X(KIND_IDENTITY, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_ID_PROPERTIES, 1000071004)                        \
    X(KIND_FLOAT16_INT8, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_FLOAT16_INT8_FEATURES, 1000082000)     \
    X(KIND_STORAGE_16, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_16BIT_STORAGE_FEATURES, 1000083000)             \
    X(KIND_SUBGROUP, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_PROPERTIES, 1000094000)                  \
    X(KIND_BFLOAT_16, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_BFLOAT16_FEATURES_KHR, 1000141000)        \
    X(KIND_LARGEST, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_3_PROPERTIES, 1000168000)              \
    X(KIND_STORAGE_8, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_8BIT_STORAGE_FEATURES, 1000177000)               \
    X(KIND_DRIVER, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_DRIVER_PROPERTIES, 1000196000)                      \
    X(KIND_FLOAT_CONTROLS, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FLOAT_CONTROLS_PROPERTIES, 1000197000)      \
    X(KIND_MEMORY_MODEL, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_MEMORY_MODEL_FEATURES, 1000211000)     \
    X(KIND_PCI, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PCI_BUS_INFO_PROPERTIES_EXT, 1000212000)               \
    X(KIND_SIZES, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_PROPERTIES, 1000225000)        \
    X(KIND_SIZE, VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_REQUIRED_SUBGROUP_SIZE_CREATE_INFO, 1000225001) \
    X(KIND_SIZE_CONTROL, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_FEATURES, 1000225002)   \
    X(KIND_BUDGET, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT, 1000237000)           \
    X(KIND_MATRICES, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_FEATURES_KHR, 1000506000)      \
    X(KIND_MATRIX, VK_STRUCTURE_TYPE_COOPERATIVE_MATRIX_PROPERTIES_KHR, 1000506001)

/* The same for all other numbers. */
#define VK_NUMBERS(X)                                                                 \
    X(SUCCESS, VK_SUCCESS, 0)                                                         \
    X(NOT_READY, VK_NOT_READY, 1)                                                     \
    X(INCOMPLETE, VK_INCOMPLETE, 5)                                                   \
    X(OUT_OF_HOST, VK_ERROR_OUT_OF_HOST_MEMORY, -1)                                   \
    X(OUT_OF_DEVICE, VK_ERROR_OUT_OF_DEVICE_MEMORY, -2)                               \
    X(INITIALIZATION_FAILED, VK_ERROR_INITIALIZATION_FAILED, -3)                      \
    X(LOST, VK_ERROR_DEVICE_LOST, -4)                                                 \
    X(MAP_FAILED, VK_ERROR_MEMORY_MAP_FAILED, -5)                                     \
    X(NO_EXTENSION, VK_ERROR_EXTENSION_NOT_PRESENT, -7)                               \
    X(NO_FEATURE, VK_ERROR_FEATURE_NOT_PRESENT, -8)                                   \
    X(INCOMPATIBLE_DRIVER, VK_ERROR_INCOMPATIBLE_DRIVER, -9)                          \
    X(TOO_MANY_OBJECTS, VK_ERROR_TOO_MANY_OBJECTS, -10)                               \
    X(FRAGMENTED_POOL, VK_ERROR_FRAGMENTED_POOL, -12)                                 \
    X(UNKNOWN, VK_ERROR_UNKNOWN, -13)                                                 \
    X(OUT_OF_POOL, VK_ERROR_OUT_OF_POOL_MEMORY, -1000069000)                          \
    X(INVALID_SHADER, VK_ERROR_INVALID_SHADER_NV, -1000012000)                        \
    X(TYPE_INTEGRATED, VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU, 1)                     \
    X(TYPE_CPU, VK_PHYSICAL_DEVICE_TYPE_CPU, 4)                                       \
    X(WHOLE_SUBGROUPS, VK_PIPELINE_SHADER_STAGE_CREATE_REQUIRE_FULL_SUBGROUPS_BIT, 2) \
    X(SCOPE_SUBGROUP, VK_SCOPE_SUBGROUP_KHR, 3)                                       \
    X(COMPONENT_F16, VK_COMPONENT_TYPE_FLOAT16_KHR, 0)                                \
    X(COMPONENT_F32, VK_COMPONENT_TYPE_FLOAT32_KHR, 1)                                \
    X(COMPONENT_BF16, VK_COMPONENT_TYPE_BFLOAT16_KHR, 1000141000)                     \
    X(QUEUE_COMPUTE, VK_QUEUE_COMPUTE_BIT, 2)                                         \
    X(HEAP_LOCAL, VK_MEMORY_HEAP_DEVICE_LOCAL_BIT, 1)                                 \
    X(MEMORY_LOCAL, VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT, 1)                           \
    X(MEMORY_VISIBLE, VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT, 2)                         \
    X(MEMORY_COHERENT, VK_MEMORY_PROPERTY_HOST_COHERENT_BIT, 4)                       \
    X(MEMORY_CACHED, VK_MEMORY_PROPERTY_HOST_CACHED_BIT, 8)                           \
    X(USE_COPY_FROM, VK_BUFFER_USAGE_TRANSFER_SRC_BIT, 1)                             \
    X(USE_COPY_TO, VK_BUFFER_USAGE_TRANSFER_DST_BIT, 2)                               \
    X(USE_STORAGE, VK_BUFFER_USAGE_STORAGE_BUFFER_BIT, 32)                            \
    X(STORAGE, VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, 7)                                  \
    X(STORAGE_MOVING, VK_DESCRIPTOR_TYPE_STORAGE_BUFFER_DYNAMIC, 9)                   \
    X(SHADER_COMPUTE, VK_SHADER_STAGE_COMPUTE_BIT, 32)                                \
    X(BIND_COMPUTE, VK_PIPELINE_BIND_POINT_COMPUTE, 1)                                \
    X(POOL_RESETS, VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT, 2)                \
    X(ONE_TIME, VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT, 1)                       \
    X(STAGE_COMPUTE, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, 0x800)                     \
    X(STAGE_TRANSFER, VK_PIPELINE_STAGE_TRANSFER_BIT, 0x1000)                         \
    X(STAGE_END, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, 0x2000)                        \
    X(STAGE_HOST, VK_PIPELINE_STAGE_HOST_BIT, 0x4000)                                 \
    X(SHADER_READ, VK_ACCESS_SHADER_READ_BIT, 0x20)                                   \
    X(SHADER_WRITE, VK_ACCESS_SHADER_WRITE_BIT, 0x40)                                 \
    X(TRANSFER_READ, VK_ACCESS_TRANSFER_READ_BIT, 0x800)                              \
    X(TRANSFER_WRITE, VK_ACCESS_TRANSFER_WRITE_BIT, 0x1000)                           \
    X(HOST_READ, VK_ACCESS_HOST_READ_BIT, 0x2000)                                     \
    X(HOST_WRITE, VK_ACCESS_HOST_WRITE_BIT, 0x4000)                                   \
    X(QUERY_TIME, VK_QUERY_TYPE_TIMESTAMP, 2)                                         \
    X(QUERY_64, VK_QUERY_RESULT_64_BIT, 1)                                            \
    X(QUERY_WAITS, VK_QUERY_RESULT_WAIT_BIT, 2)                                       \
    X(DRIVER_SWIFTSHADER, VK_DRIVER_ID_GOOGLE_SWIFTSHADER, 10)                        \
    X(DRIVER_LLVMPIPE, VK_DRIVER_ID_MESA_LLVMPIPE, 13)

enum {
#define X(name, theirs, value) name = value,
    VK_KINDS(X) VK_NUMBERS(X)
#undef X
        VERSION_1_1 = 1 << 22 | 1 << 12,
};

/* The head of a structure in a pNext chain. */
typedef struct vk_chain {
    uint32_t kind;
    void *next;
} vk_chain;

typedef struct vk_application {
    uint32_t kind;
    const void *next;
    const char *name;
    uint32_t version;
    const char *engine;
    uint32_t engine_version, api_version;
} vk_application;

typedef struct vk_instance_info {
    uint32_t kind;
    const void *next;
    uint32_t flags;
    const vk_application *application;
    uint32_t layer_count;
    const char *const *layers;
    uint32_t extension_count;
    const char *const *extensions;
} vk_instance_info;

/* ---- what a device says of itself -------------------------------------------------------------------------------- */

/* The limits that are read; those between them are only counted. */
typedef struct vk_limits {
    uint32_t skip_0[7], storage_range, skip_1, allocations, skip_2[9], stage_storage, skip_3[3], stage_resources,
        skip_4[3], set_storage, skip_5[26], shared_memory, groups[3], group_items, group_size[3];
    uint64_t skip_6[10], storage_alignment, skip_7[10];
    uint32_t skip_8, times;
    float time_unit; /* nanoseconds */
    uint32_t skip_9[12];
    uint64_t skip_10[3];
} vk_limits;

typedef struct vk_properties {
    uint32_t api_version, driver_version, vendor, device, device_type;
    char name[256];
    unsigned char cache_uuid[16];
    vk_limits limits;
    uint32_t sparse[5];
} vk_properties;

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

typedef struct vk_driver {
    vk_chain head;
    uint32_t id;
    char name[256], info[256];
    unsigned char conformance[4];
} vk_driver;

typedef struct vk_subgroup {
    vk_chain head;
    uint32_t size, stages, operations, quads;
} vk_subgroup;

typedef struct vk_largest {
    vk_chain head;
    uint32_t set_descriptors;
    uint64_t allocation;
} vk_largest;

typedef struct vk_float_controls {
    vk_chain head;
    uint32_t independent[2];
    /* for 16, 32 and 64 bits */
    uint32_t keeps_specials[3], keeps_denormals[3], flushes_denormals[3], rounds_to_even[3], rounds_to_zero[3];
} vk_float_controls;

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
    uint32_t flags, count, time_bits, granularity[3];
} vk_queue_family;

typedef struct vk_extension {
    char name[256];
    uint32_t version;
} vk_extension;

/* Of VK_EXT_subgroup_size_control. */
typedef struct vk_sizes {
    vk_chain head;
    uint32_t least, most, most_subgroups, stages;
} vk_sizes;

typedef struct vk_size_control {
    vk_chain head;
    uint32_t sizes, whole;
} vk_size_control;

/* Of VK_KHR_cooperative_matrix: what a device multiplies, rows × k by k × columns. */
typedef struct vk_matrix {
    vk_chain head;
    uint32_t rows, columns, k, a, b, c, result, saturates, scope;
} vk_matrix;

typedef struct vk_matrices {
    vk_chain head;
    uint32_t matrices, robust;
} vk_matrices;

/* Of VK_KHR_shader_bfloat16. */
typedef struct vk_bfloat_16 {
    vk_chain head;
    uint32_t type, dot_product, matrices;
} vk_bfloat_16;

typedef struct vk_memory_model {
    vk_chain head;
    uint32_t model, device_scope, chains;
} vk_memory_model;

typedef struct vk_features {
    vk_chain head;
    uint32_t skip_0[39], f64, i64, i16, skip_1[13];
} vk_features;

typedef struct vk_storage_16 {
    vk_chain head;
    uint32_t storage, uniform, constants, in_out;
} vk_storage_16;

typedef struct vk_storage_8 {
    vk_chain head;
    uint32_t storage, uniform, constants;
} vk_storage_8;

typedef struct vk_float16_int8 {
    vk_chain head;
    uint32_t f16, i8;
} vk_float16_int8;

/* ---- what is made ------------------------------------------------------------------------------------------------ */

typedef struct vk_queue_info {
    uint32_t kind;
    const void *next;
    uint32_t flags, family, count;
    const float *priorities;
} vk_queue_info;

typedef struct vk_device_info {
    uint32_t kind;
    const void *next;
    uint32_t flags, queue_count;
    const vk_queue_info *queues;
    uint32_t layer_count;
    const char *const *layers;
    uint32_t extension_count;
    const char *const *extensions;
    const void *features;
} vk_device_info;

typedef struct vk_buffer_info {
    uint32_t kind;
    const void *next;
    uint32_t flags;
    uint64_t size;
    uint32_t usage, sharing, family_count;
    const uint32_t *families;
} vk_buffer_info;

typedef struct vk_requirements {
    uint64_t size, alignment;
    uint32_t types;
} vk_requirements;

typedef struct vk_allocate_info {
    uint32_t kind;
    const void *next;
    uint64_t size;
    uint32_t type;
} vk_allocate_info;

/* Fences, command and descriptor pools and what else is made with a flag or two. */
typedef struct vk_plain_info {
    uint32_t kind;
    const void *next;
    uint32_t flags, family;
} vk_plain_info;

typedef struct vk_query_pool_info {
    uint32_t kind;
    const void *next;
    uint32_t flags, type, count, statistics;
} vk_query_pool_info;

typedef struct vk_commands_info {
    uint32_t kind;
    const void *next;
    uint64_t pool;
    uint32_t level, count;
} vk_commands_info;

typedef struct vk_begin_info {
    uint32_t kind;
    const void *next;
    uint32_t flags;
    const void *inheritance;
} vk_begin_info;

typedef struct vk_barrier {
    uint32_t kind;
    const void *next;
    uint32_t from, to;
} vk_barrier;

typedef struct vk_region {
    uint64_t from, to, size;
} vk_region;

typedef struct vk_submit_info {
    uint32_t kind;
    const void *next;
    uint32_t wait_count;
    const uint64_t *waits;
    const uint32_t *wait_stages;
    uint32_t command_count;
    void *const *commands;
    uint32_t signal_count;
    const uint64_t *signals;
} vk_submit_info;

/* ---- kernels and what is bound to them --------------------------------------------------------------------------- */

typedef struct vk_binding {
    uint32_t binding, type, count, stages;
    const uint64_t *samplers;
} vk_binding;

typedef struct vk_set_layout_info {
    uint32_t kind;
    const void *next;
    uint32_t flags, count;
    const vk_binding *bindings;
} vk_set_layout_info;

typedef struct vk_pool_size {
    uint32_t type, count;
} vk_pool_size;

typedef struct vk_set_pool_info {
    uint32_t kind;
    const void *next;
    uint32_t flags, sets, count;
    const vk_pool_size *sizes;
} vk_set_pool_info;

typedef struct vk_set_info {
    uint32_t kind;
    const void *next;
    uint64_t pool;
    uint32_t count;
    const uint64_t *layouts;
} vk_set_info;

typedef struct vk_range {
    uint64_t buffer, offset, size;
} vk_range;

typedef struct vk_write {
    uint32_t kind;
    const void *next;
    uint64_t set;
    uint32_t binding, element, count, type;
    const void *images;
    const vk_range *buffers;
    const uint64_t *views;
} vk_write;

typedef struct vk_pipeline_layout_info {
    uint32_t kind;
    const void *next;
    uint32_t flags, count;
    const uint64_t *sets;
    uint32_t range_count;
    const void *ranges;
} vk_pipeline_layout_info;

/* Of shader modules and of pipeline caches. */
typedef struct vk_data_info {
    uint32_t kind;
    const void *next;
    uint32_t flags;
    size_t size;
    const void *data;
} vk_data_info;

typedef struct vk_stage_info {
    uint32_t kind;
    const void *next;
    uint32_t flags, stage;
    uint64_t shader;
    const char *entry;
    const void *constants;
} vk_stage_info;

/* A stage's, before it. */
typedef struct vk_size {
    uint32_t kind;
    void *next;
    uint32_t size;
} vk_size;

typedef struct vk_pipeline_info {
    uint32_t kind;
    const void *next;
    uint32_t flags;
    vk_stage_info stage;
    uint64_t layout, base;
    int32_t base_index;
} vk_pipeline_info;

/* ---- functions ----------------------------------------------------------------------------------------------------*/

typedef void (*vk_function)(void);

/* X(name without "vk", result, parameters). What a probe needs; of an instance. */
#define VK_LOOK_CALLS(X)                                                                                  \
    X(EnumeratePhysicalDevices, int32_t, (void *instance, uint32_t *count, void **devices))               \
    X(EnumerateDeviceExtensionProperties, int32_t,                                                        \
      (void *place, const char *layer, uint32_t *count, vk_extension *list))                              \
    X(GetPhysicalDeviceProperties, void, (void *place, vk_properties *out))                               \
    X(GetPhysicalDeviceMemoryProperties, void, (void *place, vk_memory *out))                             \
    X(GetPhysicalDeviceQueueFamilyProperties, void, (void *place, uint32_t *count, vk_queue_family *out)) \
    X(GetPhysicalDeviceProperties2, void, (void *place, vk_properties2 *out))                             \
    X(GetPhysicalDeviceMemoryProperties2, void, (void *place, vk_memory2 *out))                           \
    X(GetPhysicalDeviceFeatures2, void, (void *place, vk_features *out))                                  \
    X(CreateDevice, int32_t, (void *place, const vk_device_info *info, const void *allocator, void **out))

/* The same; what only devices with an extension have, so it may be NULL. */
#define VK_MORE_CALLS(X) \
    X(GetPhysicalDeviceCooperativeMatrixPropertiesKHR, int32_t, (void *place, uint32_t *count, vk_matrix *out))

#define MAKE(info) void *device, const info *in, const void *allocator, uint64_t *out
#define END void *device, uint64_t what, const void *allocator

/* Of a device: one table serves all, as the loader sends each call on by the device it is given. */
#define VK_DEVICE_CALLS(X)                                                                                          \
    X(DestroyDevice, void, (void *device, const void *allocator))                                                   \
    X(GetDeviceQueue, void, (void *device, uint32_t family, uint32_t index, void **out))                            \
    X(QueueSubmit, int32_t, (void *queue, uint32_t count, const vk_submit_info *in, uint64_t fence))                \
    X(DeviceWaitIdle, int32_t, (void *device))                                                                      \
    X(AllocateMemory, int32_t, (MAKE(vk_allocate_info)))                                                            \
    X(FreeMemory, void, (END))                                                                                      \
    X(MapMemory, int32_t, (void *device, uint64_t memory, uint64_t at, uint64_t size, uint32_t flags, void **host)) \
    X(BindBufferMemory, int32_t, (void *device, uint64_t buffer, uint64_t memory, uint64_t at))                     \
    X(GetBufferMemoryRequirements, void, (void *device, uint64_t buffer, vk_requirements *out))                     \
    X(CreateBuffer, int32_t, (MAKE(vk_buffer_info)))                                                                \
    X(DestroyBuffer, void, (END))                                                                                   \
    X(CreateFence, int32_t, (MAKE(vk_plain_info)))                                                                  \
    X(DestroyFence, void, (END))                                                                                    \
    X(ResetFences, int32_t, (void *device, uint32_t count, const uint64_t *fences))                                 \
    X(GetFenceStatus, int32_t, (void *device, uint64_t fence))                                                      \
    X(WaitForFences, int32_t,                                                                                       \
      (void *device, uint32_t count, const uint64_t *fences, uint32_t all, uint64_t nanoseconds))                   \
    X(CreateQueryPool, int32_t, (MAKE(vk_query_pool_info)))                                                         \
    X(DestroyQueryPool, void, (END))                                                                                \
    X(GetQueryPoolResults, int32_t,                                                                                 \
      (void *device, uint64_t pool, uint32_t first, uint32_t count, size_t size, void *out, uint64_t stride,        \
       uint32_t flags))                                                                                             \
    X(CreateShaderModule, int32_t, (MAKE(vk_data_info)))                                                            \
    X(DestroyShaderModule, void, (END))                                                                             \
    X(CreatePipelineCache, int32_t, (MAKE(vk_data_info)))                                                           \
    X(DestroyPipelineCache, void, (END))                                                                            \
    X(GetPipelineCacheData, int32_t, (void *device, uint64_t cache, size_t *size, void *out))                       \
    X(CreateComputePipelines, int32_t,                                                                              \
      (void *device, uint64_t cache, uint32_t count, const vk_pipeline_info *in, const void *allocator,             \
       uint64_t *out))                                                                                              \
    X(DestroyPipeline, void, (END))                                                                                 \
    X(CreatePipelineLayout, int32_t, (MAKE(vk_pipeline_layout_info)))                                               \
    X(DestroyPipelineLayout, void, (END))                                                                           \
    X(CreateDescriptorSetLayout, int32_t, (MAKE(vk_set_layout_info)))                                               \
    X(DestroyDescriptorSetLayout, void, (END))                                                                      \
    X(CreateDescriptorPool, int32_t, (MAKE(vk_set_pool_info)))                                                      \
    X(DestroyDescriptorPool, void, (END))                                                                           \
    X(ResetDescriptorPool, int32_t, (void *device, uint64_t pool, uint32_t flags))                                  \
    X(AllocateDescriptorSets, int32_t, (void *device, const vk_set_info *in, uint64_t *out))                        \
    X(UpdateDescriptorSets, void,                                                                                   \
      (void *device, uint32_t count, const vk_write *writes, uint32_t copy_count, const void *copies))              \
    X(CreateCommandPool, int32_t, (MAKE(vk_plain_info)))                                                            \
    X(DestroyCommandPool, void, (END))                                                                              \
    X(AllocateCommandBuffers, int32_t, (void *device, const vk_commands_info *in, void **out))                      \
    X(FreeCommandBuffers, void, (void *device, uint64_t pool, uint32_t count, void *const *commands))               \
    X(BeginCommandBuffer, int32_t, (void *commands, const vk_begin_info *in))                                       \
    X(EndCommandBuffer, int32_t, (void *commands))                                                                  \
    X(CmdBindPipeline, void, (void *commands, uint32_t point, uint64_t pipeline))                                   \
    X(CmdBindDescriptorSets, void,                                                                                  \
      (void *commands, uint32_t point, uint64_t layout, uint32_t first, uint32_t count, const uint64_t *sets,       \
       uint32_t offset_count, const uint32_t *offsets))                                                             \
    X(CmdDispatch, void, (void *commands, uint32_t x, uint32_t y, uint32_t z))                                      \
    X(CmdCopyBuffer, void, (void *commands, uint64_t from, uint64_t to, uint32_t count, const vk_region *regions))  \
    X(CmdFillBuffer, void, (void *commands, uint64_t buffer, uint64_t at, uint64_t size, uint32_t word))            \
    X(CmdPipelineBarrier, void,                                                                                     \
      (void *commands, uint32_t from, uint32_t to, uint32_t flags, uint32_t count, const vk_barrier *barriers,      \
       uint32_t buffer_count, const void *buffers, uint32_t image_count, const void *images))                       \
    X(CmdResetQueryPool, void, (void *commands, uint64_t pool, uint32_t first, uint32_t count))                     \
    X(CmdWriteTimestamp, void, (void *commands, uint32_t stage, uint64_t pool, uint32_t query))

typedef struct tn_vk_calls {
    vk_function (*GetInstanceProcAddr)(void *instance, const char *name);
    int32_t (*CreateInstance)(const vk_instance_info *info, const void *allocator, void **out);
#define X(name, result, parameters) result(*name) parameters;
    VK_LOOK_CALLS(X) VK_MORE_CALLS(X) VK_DEVICE_CALLS(X)
#undef X
} tn_vk_calls;
extern tn_vk_calls tn_vk;

/* ---- finding devices (vulkan.c) ---------------------------------------------------------------------------- */

extern const tn_call_errors tn_vulkan_errors;
/* Features of a device that are used: the head of a chain of structures for vkCreateDevice. */
enum {
    VK_MOST_EXTENSIONS = 10,
    VK_MOST_BINDINGS = 64,
    VK_GRAIN = 64 /* allocations are multiples of it: kernels may read whole words behind the last element */
};
typedef struct vk_abilities {
    vk_properties properties;
    tn_caps caps;
    int64_t largest; /* bytes of one allocation */
    bool knows_budget;
    uint32_t extension_count;
    const char *extensions[VK_MOST_EXTENSIONS];
    vk_features features;
    vk_storage_16 storage_16;
    vk_storage_8 storage_8;
    vk_float16_int8 small;
    vk_matrices matrices; /* these four: only if caps.matrix says so */
    vk_bfloat_16 brain;
    vk_memory_model model;
    vk_size_control control;
} vk_abilities;

#endif
