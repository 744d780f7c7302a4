/* opencl.h — declarations of OpenCL, so that a build needs no SDK. Handles are pointers, enumerations 32-bit, bit
 * fields 64-bit. Numbers are those of the OpenCL 3.0 and extension specifications. */
#ifndef TN_DRIVERS_OPENCL_H
#define TN_DRIVERS_OPENCL_H

#include <stddef.h>
#include <stdint.h>

/* Queries, properties and flags. */
// clang-format off
enum {
    PLATFORM_NAME = 0x0902,             CONTEXT_PLATFORM = 0x1084,
    DEVICE_TYPE = 0x1000,               DEVICE_NAME = 0x102B,
    DEVICE_MAX_WORK_GROUP_SIZE = 0x1004, DEVICE_MAX_WORK_ITEM_SIZES = 0x1005,
    DEVICE_MAX_MEM_ALLOC_SIZE = 0x1010, DEVICE_MAX_PARAMETER_SIZE = 0x1017,
    DEVICE_SINGLE_FP_CONFIG = 0x101B,   DEVICE_DOUBLE_FP_CONFIG = 0x1032,
    DEVICE_GLOBAL_MEM_SIZE = 0x101F,    DEVICE_LOCAL_MEM_SIZE = 0x1023,
    DEVICE_ENDIAN_LITTLE = 0x1026,      DEVICE_COMPILER_AVAILABLE = 0x1028,
    DEVICE_QUEUE_PROPERTIES = 0x102A,   DEVICE_PROFILE = 0x102E,
    DRIVER_VERSION = 0x102D,            DEVICE_VERSION = 0x102F,
    DEVICE_EXTENSIONS = 0x1030,         DEVICE_PLATFORM = 0x1031,
    DEVICE_HOST_UNIFIED_MEMORY = 0x1035,
    DEVICE_UUID = 0x106A,               /* cl_khr_device_uuid */
    DEVICE_PCI_BUS_INFO = 0x410F,       /* cl_khr_pci_bus_info: domain, bus, device, function */
    DEVICE_WARP_SIZE_NV = 0x4003,       /* cl_nv_device_attribute_query, as the next three */
    DEVICE_PCI_BUS_NV = 0x4008,         DEVICE_PCI_SLOT_NV = 0x4009,
    DEVICE_PCI_DOMAIN_NV = 0x400A,
    DEVICE_FREE_MEMORY_AMD = 0x4039,    /* cl_amd_device_attribute_query, as the next: two numbers of KiB */
    DEVICE_WAVEFRONT_AMD = 0x4043,
    PROGRAM_BINARY_SIZES = 0x1165,      PROGRAM_BINARIES = 0x1166,
    PROGRAM_BUILD_LOG = 0x1183,         KERNEL_WORK_GROUP_SIZE = 0x11B0,
    EVENT_STATUS = 0x11D3,              PROFILING_END = 0x1283,
    TYPE_CPU = 1 << 1,                  QUEUE_PROFILING = 1 << 1,
    MEM_READ_WRITE = 1 << 0,            MEM_READ_ONLY = 1 << 2,
    MEM_ALLOC_HOST_PTR = 1 << 4,        MEM_COPY_HOST_PTR = 1 << 5,
    MAP_READ_WRITE = 1 << 0 | 1 << 1,   MAP_OVERWRITE = 1 << 2,
    FP_DENORM = 1 << 0,                 FP_INF_NAN = 1 << 1,
    FP_ROUND_TO_NEAREST = 1 << 2,       FP_FMA = 1 << 5,
    FP_CORRECTLY_ROUNDED = 1 << 7       /* division and square root, with the compiler's option */
};
// clang-format on
static const uint64_t TYPE_ALL = 0xFFFFFFFF;

/* Results. */
enum {
    SUCCESS = 0,
    OUT_OF_RESOURCES = -5,
    EXEC_STATUS_ERROR = -14,
    NO_PLATFORM = -1001 /* the loader's answer if no driver is registered */
};

/* How every command ends: the events it waits for, and the event that it makes. */
#define AFTER uint32_t waits, void *const *wait, void **event

/* X(name without "cl", result, parameters): all of OpenCL 1.0 to 1.2. */
#define CALLS(X)                                                                                                     \
    X(GetPlatformIDs, int32_t, (uint32_t room, void **platforms, uint32_t *count))                                   \
    X(GetPlatformInfo, int32_t, (void *platform, uint32_t what, size_t size, void *value, size_t *needed))           \
    X(GetDeviceIDs, int32_t, (void *platform, uint64_t type, uint32_t room, void **devices, uint32_t *count))        \
    X(GetDeviceInfo, int32_t, (void *device, uint32_t what, size_t size, void *value, size_t *needed))               \
    X(CreateContext, void *,                                                                                         \
      (const intptr_t *properties, uint32_t count, void *const *devices,                                             \
       void (*notify)(const char *, const void *, size_t, void *), void *ctx, int32_t *error))                       \
    X(ReleaseContext, int32_t, (void *context))                                                                      \
    X(CreateCommandQueue, void *, (void *context, void *device, uint64_t properties, int32_t *error))                \
    X(ReleaseCommandQueue, int32_t, (void *queue))                                                                   \
    X(CreateBuffer, void *, (void *context, uint64_t flags, size_t size, void *host, int32_t *error))                \
    X(ReleaseMemObject, int32_t, (void *memory))                                                                     \
    X(CreateProgramWithSource, void *,                                                                               \
      (void *context, uint32_t count, const char **texts, const size_t *lengths, int32_t *error))                    \
    X(CreateProgramWithBinary, void *,                                                                               \
      (void *context, uint32_t count, void *const *devices, const size_t *lengths, const unsigned char **binaries,   \
       int32_t *statuses, int32_t *error))                                                                           \
    X(BuildProgram, int32_t,                                                                                         \
      (void *program, uint32_t count, void *const *devices, const char *options, void (*notify)(void *, void *),     \
       void *ctx))                                                                                                   \
    X(GetProgramInfo, int32_t, (void *program, uint32_t what, size_t size, void *value, size_t *needed))             \
    X(GetProgramBuildInfo, int32_t,                                                                                  \
      (void *program, void *device, uint32_t what, size_t size, void *value, size_t *needed))                        \
    X(ReleaseProgram, int32_t, (void *program))                                                                      \
    X(CreateKernel, void *, (void *program, const char *name, int32_t *error))                                       \
    X(GetKernelWorkGroupInfo, int32_t,                                                                               \
      (void *kernel, void *device, uint32_t what, size_t size, void *value, size_t *needed))                         \
    X(SetKernelArg, int32_t, (void *kernel, uint32_t index, size_t size, const void *value))                         \
    X(ReleaseKernel, int32_t, (void *kernel))                                                                        \
    X(EnqueueNDRangeKernel, int32_t,                                                                                 \
      (void *queue, void *kernel, uint32_t dimensions, const size_t *first, const size_t *all, const size_t *group,  \
       AFTER))                                                                                                       \
    X(EnqueueReadBuffer, int32_t,                                                                                    \
      (void *queue, void *memory, uint32_t blocking, size_t at, size_t size, void *host, AFTER))                     \
    X(EnqueueWriteBuffer, int32_t,                                                                                   \
      (void *queue, void *memory, uint32_t blocking, size_t at, size_t size, const void *host, AFTER))               \
    X(EnqueueCopyBuffer, int32_t,                                                                                    \
      (void *queue, void *from, void *to, size_t from_at, size_t to_at, size_t size, AFTER))                         \
    X(EnqueueFillBuffer, int32_t,                                                                                    \
      (void *queue, void *memory, const void *pattern, size_t pattern_size, size_t at, size_t size, AFTER))          \
    X(EnqueueMapBuffer, void *,                                                                                      \
      (void *queue, void *memory, uint32_t blocking, uint64_t flags, size_t at, size_t size, AFTER, int32_t *error)) \
    X(EnqueueUnmapMemObject, int32_t, (void *queue, void *memory, void *mapped, AFTER))                              \
    X(EnqueueMarkerWithWaitList, int32_t, (void *queue, AFTER))                                                      \
    X(EnqueueBarrierWithWaitList, int32_t, (void *queue, AFTER))                                                     \
    X(WaitForEvents, int32_t, (uint32_t count, void *const *events))                                                 \
    X(GetEventInfo, int32_t, (void *event, uint32_t what, size_t size, void *value, size_t *needed))                 \
    X(GetEventProfilingInfo, int32_t, (void *event, uint32_t what, size_t size, void *value, size_t *needed))        \
    X(ReleaseEvent, int32_t, (void *event))                                                                          \
    X(Flush, int32_t, (void *queue))                                                                                 \
    X(Finish, int32_t, (void *queue))

#endif
