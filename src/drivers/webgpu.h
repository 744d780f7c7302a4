/* webgpu.h — declarations of WebGPU's C interface and wgpu-native's additions, so that a build needs no SDK.
 *
 * Handles are pointers, enumerations 32-bit, flags 64-bit. Structures are those of wgpu-native 24 and later: those that
 * later versions extended at the end have room for it, and the one that changed in the middle is declared twice. */
#ifndef TN_DRIVERS_WEBGPU_H
#define TN_DRIVERS_WEBGPU_H

#include <stddef.h>
#include <stdint.h>

// clang-format off
enum {
    STATUS_SUCCESS = 1,                                  /* of all calls and callbacks */
    ADAPTER_INTEGRATED = 2,        ADAPTER_CPU = 3,
    ON_PROCESS_EVENTS = 2,         SPONTANEOUS = 3,      /* when a callback may come */
    SCOPE_VALIDATION = 1,          SCOPE_MEMORY = 2,
    ERROR_NONE = 1,                ERROR_VALIDATION = 2, ERROR_MEMORY = 3,   ERROR_INTERNAL = 4,
    LOST_DESTROYED = 2,            LOST_CANCELLED = 3,
    CHAIN_WGSL = 2,                STAGE_COMPUTE = 4,
    BINDING_UNIFORM = 2,           BINDING_STORAGE = 3,  BINDING_READ_ONLY = 4,
    USE_MAP_READ = 1,              USE_COPY_FROM = 4,    USE_COPY_TO = 8,
    USE_UNIFORM = 64,              USE_STORAGE = 128,
    MAP_READ = 1,
    BACKENDS_PRIMARY = 1 << 0 | 1 << 2 | 1 << 3          /* Vulkan, Metal, DX12: the ones that compute well */
};
// clang-format on

typedef struct wgpu_text {
    const char *data;
    size_t length; /* SIZE_MAX: up to the NUL */
} wgpu_text;

typedef struct wgpu_adapter_info {
    void *next;
    wgpu_text vendor, architecture, device, description;
    uint32_t backend, type, vendor_id, device_id;
    uint64_t room[16];
} wgpu_adapter_info;

typedef struct wgpu_enumerate_options {
    const void *next;
    uint64_t backends;
} wgpu_enumerate_options;

typedef struct wgpu_limits {
    void *next;
    uint32_t textures[4], bind_groups, bind_groups_plus, bindings_per_group, dynamic_uniforms, dynamic_storages;
    uint32_t sampled_textures, samplers, storage_buffers, storage_textures, uniform_buffers;
    uint64_t uniform_binding, storage_binding;
    uint32_t uniform_alignment, storage_alignment, vertex_buffers;
    uint64_t buffer;
    uint32_t vertex_attributes, vertex_stride, interstage, attachments, attachment_bytes;
    uint32_t group_storage, group_items, group_x, group_y, group_z, groups;
    uint64_t room[16];
} wgpu_limits;

/* How callbacks are given, all kinds alike. */
typedef struct wgpu_callback {
    const void *next;
    uint32_t mode;
    void (*call)(void);
    void *a, *b;
} wgpu_callback;

typedef struct wgpu_error_callback {
    const void *next;
    void (*call)(void *const *device, uint32_t type, wgpu_text message, void *a, void *b);
    void *a, *b;
} wgpu_error_callback;

typedef struct wgpu_device_descriptor {
    const void *next;
    wgpu_text label;
    size_t feature_count;
    const uint32_t *features;
    const wgpu_limits *limits;
    const void *queue_next;
    wgpu_text queue_label;
    wgpu_callback lost;
    wgpu_error_callback error;
} wgpu_device_descriptor;

typedef struct wgpu_buffer_descriptor {
    const void *next;
    wgpu_text label;
    uint64_t usage, size;
    uint32_t mapped;
} wgpu_buffer_descriptor;

typedef struct wgpu_wgsl {
    const void *next;
    uint32_t type;
    wgpu_text code;
} wgpu_wgsl;

typedef struct wgpu_labelled { /* a descriptor of a shader module, an encoder, … */
    const void *next;
    wgpu_text label;
} wgpu_labelled;

typedef struct wgpu_buffer_layout {
    const void *next;
    uint32_t type, has_dynamic_offset;
    uint64_t least;
} wgpu_buffer_layout;

/* One binding of a layout; from version 28 on a field more stands before the rest. The rest is of samplers and
 * textures: zeros. */
typedef struct wgpu_layout_entry {
    const void *next;
    uint32_t binding;
    uint64_t visibility;
    wgpu_buffer_layout buffer;
    uint64_t other[8];
} wgpu_layout_entry;

typedef struct wgpu_layout_entry_28 {
    const void *next;
    uint32_t binding;
    uint64_t visibility;
    uint32_t array_size;
    wgpu_buffer_layout buffer;
    uint64_t other[8];
} wgpu_layout_entry_28;

typedef struct wgpu_bind_group_layout_descriptor {
    const void *next;
    wgpu_text label;
    size_t count;
    const void *entries;
} wgpu_bind_group_layout_descriptor;

typedef struct wgpu_pipeline_layout_descriptor {
    const void *next;
    wgpu_text label;
    size_t count;
    void *const *layouts;
    uint64_t room[4];
} wgpu_pipeline_layout_descriptor;

typedef struct wgpu_bind_group_entry {
    const void *next;
    uint32_t binding;
    void *buffer;
    uint64_t offset, size;
    void *sampler, *texture;
} wgpu_bind_group_entry;

typedef struct wgpu_bind_group_descriptor {
    const void *next;
    wgpu_text label;
    void *layout;
    size_t count;
    const wgpu_bind_group_entry *entries;
} wgpu_bind_group_descriptor;

typedef struct wgpu_pipeline_descriptor {
    const void *next;
    wgpu_text label;
    void *layout;
    const void *stage_next;
    void *module;
    wgpu_text entry;
    size_t constant_count;
    const void *constants;
} wgpu_pipeline_descriptor;

typedef struct wgpu_future {
    uint64_t id;
} wgpu_future;

/* X(name without "wgpu", result, parameters). */
#define CALLS(X)                                                                                                   \
    X(GetVersion, uint32_t, (void))                                                                                \
    X(CreateInstance, void *, (const void *descriptor))                                                            \
    X(InstanceRelease, void, (void *instance))                                                                     \
    X(InstanceEnumerateAdapters, size_t, (void *instance, const wgpu_enumerate_options *options, void **adapters)) \
    X(InstanceProcessEvents, void, (void *instance))                                                               \
    X(AdapterGetInfo, uint32_t, (void *adapter, wgpu_adapter_info *info))                                          \
    X(AdapterInfoFreeMembers, void, (wgpu_adapter_info info))                                                      \
    X(AdapterGetLimits, uint32_t, (void *adapter, wgpu_limits *limits))                                            \
    X(AdapterRequestDevice, wgpu_future,                                                                           \
      (void *adapter, const wgpu_device_descriptor *descriptor, wgpu_callback callback))                           \
    X(AdapterRelease, void, (void *adapter))                                                                       \
    X(DeviceGetQueue, void *, (void *device))                                                                      \
    X(DeviceRelease, void, (void *device))                                                                         \
    X(DevicePushErrorScope, void, (void *device, uint32_t filter))                                                 \
    X(DevicePopErrorScope, wgpu_future, (void *device, wgpu_callback callback))                                    \
    X(DeviceCreateBuffer, void *, (void *device, const wgpu_buffer_descriptor *descriptor))                        \
    X(DeviceCreateShaderModule, void *, (void *device, const wgpu_labelled *descriptor))                           \
    X(DeviceCreateBindGroupLayout, void *, (void *device, const wgpu_bind_group_layout_descriptor *descriptor))    \
    X(DeviceCreatePipelineLayout, void *, (void *device, const wgpu_pipeline_layout_descriptor *descriptor))       \
    X(DeviceCreateComputePipeline, void *, (void *device, const wgpu_pipeline_descriptor *descriptor))             \
    X(DeviceCreateBindGroup, void *, (void *device, const wgpu_bind_group_descriptor *descriptor))                 \
    X(DeviceCreateCommandEncoder, void *, (void *device, const wgpu_labelled *descriptor))                         \
    X(BufferMapAsync, wgpu_future, (void *buffer, uint64_t mode, size_t at, size_t size, wgpu_callback callback))  \
    X(BufferGetConstMappedRange, const void *, (void *buffer, size_t at, size_t size))                             \
    X(BufferUnmap, void, (void *buffer))                                                                           \
    X(BufferRelease, void, (void *buffer))                                                                         \
    X(ShaderModuleRelease, void, (void *module))                                                                   \
    X(BindGroupLayoutRelease, void, (void *layout))                                                                \
    X(PipelineLayoutRelease, void, (void *layout))                                                                 \
    X(ComputePipelineRelease, void, (void *pipeline))                                                              \
    X(BindGroupRelease, void, (void *group))                                                                       \
    X(CommandEncoderBeginComputePass, void *, (void *encoder, const void *descriptor))                             \
    X(CommandEncoderCopyBufferToBuffer, void,                                                                      \
      (void *encoder, void *from, uint64_t from_at, void *to, uint64_t to_at, uint64_t size))                      \
    X(CommandEncoderClearBuffer, void, (void *encoder, void *buffer, uint64_t at, uint64_t size))                  \
    X(CommandEncoderFinish, void *, (void *encoder, const wgpu_labelled *descriptor))                              \
    X(CommandEncoderRelease, void, (void *encoder))                                                                \
    X(CommandBufferRelease, void, (void *commands))                                                                \
    X(ComputePassEncoderSetPipeline, void, (void *pass, void *pipeline))                                           \
    X(ComputePassEncoderSetBindGroup, void,                                                                        \
      (void *pass, uint32_t index, void *group, size_t offset_count, const uint32_t *offsets))                     \
    X(ComputePassEncoderDispatchWorkgroups, void, (void *pass, uint32_t x, uint32_t y, uint32_t z))                \
    X(ComputePassEncoderEnd, void, (void *pass))                                                                   \
    X(ComputePassEncoderRelease, void, (void *pass))                                                               \
    X(QueueWriteBuffer, void, (void *queue, void *buffer, uint64_t at, const void *data, size_t size))             \
    X(QueueSubmit, void, (void *queue, size_t count, void *const *commands))                                       \
    X(QueueRelease, void, (void *queue))                                                                           \
    X(DevicePoll, uint32_t, (void *device, uint32_t wait, const void *submission)) /* wgpu-native's; may be absent */

#endif
