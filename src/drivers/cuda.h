/* cuda.h — declarations of the vendors' interfaces that the driver of CUDA and ROCm uses, so that a build needs no SDK.
 *
 * Both have the same calls under different names, mostly with the same numbers. Results and devices are ints, handles
 * pointers. Device addresses are declared as pointers too, which are passed like CUDA's 64-bit integers.
 * tools/checks/gpu_headers.py compares everything with the vendors' headers if they are installed. */
#ifndef TN_DRIVERS_CUDA_H
#define TN_DRIVERS_CUDA_H

#include "drivers/probe.h"
#include "hal/driver.h"

/* X(field, CUDA's name, HIP's name, parameters): what looking for devices takes. */
#define PROBE_CALLS(X)                                                                        \
    X(init, "cuInit", "hipInit", (unsigned flags))                                            \
    X(count, "cuDeviceGetCount", "hipGetDeviceCount", (int *count))                           \
    X(get, "cuDeviceGet", "hipDeviceGet", (int *device, int ordinal))                         \
    X(name, "cuDeviceGetName", "hipDeviceGetName", (char *name, int size, int device))        \
    X(total_memory, "cuDeviceTotalMem_v2", "hipDeviceTotalMem", (size_t * bytes, int device)) \
    X(pci, "cuDeviceGetPCIBusId", "hipDeviceGetPCIBusId", (char *text, int size, int device)) \
    X(attribute, "cuDeviceGetAttribute", "hipDeviceGetAttribute", (int *value, int what, int device))

/* The same, but a version without it is good enough. */
#define PROBE_EXTRAS(X) X(uuid, "cuDeviceGetUuid", "hipDeviceGetUuid", (unsigned char bytes[16], int device))

/* The calls needed for computing. */
#define WORK_CALLS(X)                                                                                                  \
    X(version, "cuDriverGetVersion", "hipRuntimeGetVersion", (int *version))                                           \
    X(memory, "cuMemGetInfo_v2", "hipMemGetInfo", (size_t * unused, size_t * total))                                   \
    X(alloc, "cuMemAlloc_v2", "hipMalloc", (void **address, size_t bytes))                                             \
    X(free, "cuMemFree_v2", "hipFree", (void *address))                                                                \
    X(host_alloc, "cuMemHostAlloc", "hipHostMalloc", (void **host, size_t bytes, unsigned flags))                      \
    X(host_free, "cuMemFreeHost", "hipHostFree", (void *host))                                                         \
    X(to_device, "cuMemcpyHtoDAsync_v2", "hipMemcpyHtoDAsync",                                                         \
      (void *to, const void *from, size_t bytes, void *stream))                                                        \
    X(to_host, "cuMemcpyDtoHAsync_v2", "hipMemcpyDtoHAsync", (void *to, const void *from, size_t bytes, void *stream)) \
    X(within, "cuMemcpyDtoDAsync_v2", "hipMemcpyDtoDAsync", (void *to, const void *from, size_t bytes, void *stream))  \
    X(fill, "cuMemsetD8Async", "hipMemsetD8Async", (void *to, unsigned char value, size_t bytes, void *stream))        \
    X(wait, "cuCtxSynchronize", "hipDeviceSynchronize", (void))                                                        \
    X(stream_new, "cuStreamCreate", "hipStreamCreateWithFlags", (void **stream, unsigned flags))                       \
    X(stream_free, "cuStreamDestroy_v2", "hipStreamDestroy", (void *stream))                                           \
    X(stream_sync, "cuStreamSynchronize", "hipStreamSynchronize", (void *stream))                                      \
    X(stream_wait, "cuStreamWaitEvent", "hipStreamWaitEvent", (void *stream, void *event, unsigned flags))             \
    X(event_new, "cuEventCreate", "hipEventCreateWithFlags", (void **event, unsigned flags))                           \
    X(event_free, "cuEventDestroy_v2", "hipEventDestroy", (void *event))                                               \
    X(event_record, "cuEventRecord", "hipEventRecord", (void *event, void *stream))                                    \
    X(event_query, "cuEventQuery", "hipEventQuery", (void *event))                                                     \
    X(event_sync, "cuEventSynchronize", "hipEventSynchronize", (void *event))                                          \
    X(event_elapsed, "cuEventElapsedTime", "hipEventElapsedTime", (float *milliseconds, void *from, void *to))         \
    X(module_load, "cuModuleLoadData", "hipModuleLoadData", (void **module, const void *image))                        \
    X(module_free, "cuModuleUnload", "hipModuleUnload", (void *module))                                                \
    X(module_get, "cuModuleGetFunction", "hipModuleGetFunction", (void **function, void *module, const char *name))    \
    X(function_ask, "cuFuncGetAttribute", "hipFuncGetAttribute", (int *value, int what, void *function))               \
    X(launch, "cuLaunchKernel", "hipModuleLaunchKernel",                                                               \
      (void *function, unsigned groups_x, unsigned groups_y, unsigned groups_z, unsigned items_x, unsigned items_y,    \
       unsigned items_z, unsigned local_bytes, void *stream, void **parameters, void **extra))

/* Lists as graphs, of CUDA 11.4 and ROCm 5 on; without them lists are launched one by one. */
#define GRAPH_CALLS(X)                                                                   \
    X(graph_new, "cuGraphCreate", "hipGraphCreate", (void **graph, unsigned flags))      \
    X(graph_add, "cuGraphAddKernelNode", "hipGraphAddKernelNode",                        \
      (void **node, void *graph, void *const *behind, size_t count, const void *params)) \
    X(graph_make, "cuGraphInstantiateWithFlags", "hipGraphInstantiateWithFlags",         \
      (void **made, void *graph, unsigned long long flags))                              \
    X(graph_set, "cuGraphExecKernelNodeSetParams", "hipGraphExecKernelNodeSetParams",    \
      (void *made, void *node, const void *params))                                      \
    X(graph_run, "cuGraphLaunch", "hipGraphLaunch", (void *made, void *stream))          \
    X(graph_end, "cuGraphExecDestroy", "hipGraphExecDestroy", (void *made))              \
    X(graph_free, "cuGraphDestroy", "hipGraphDestroy", (void *graph))

/* A kernel of a graph, as CUDA_KERNEL_NODE_PARAMS_v1 and hipKernelNodeParams have it. */
typedef struct cuda_node {
    void *function;
    unsigned groups[3], items[3], local_bytes;
    void **values, **extra;
} cuda_node;
typedef struct hip_node {
    unsigned items[3];
    void **extra, *function;
    unsigned groups[3];
    void **values;
    unsigned local_bytes;
} hip_node;

/* A thread chooses the device that its calls are about: CUDA by a stack of contexts, HIP by the device's number. */
#define CUDA_CALLS(X)                                                                  \
    X(context_retain, "cuDevicePrimaryCtxRetain", NULL, (void **context, int device))  \
    X(context_release, "cuDevicePrimaryCtxRelease_v2", NULL, (int device))             \
    X(context_push, "cuCtxPushCurrent_v2", NULL, (void *context))                      \
    X(context_pop, "cuCtxPopCurrent_v2", NULL, (void **context))                       \
    X(function_set, "cuFuncSetAttribute", NULL, (void *function, int what, int value)) \
    X(from_context, "cuMemcpyPeerAsync", NULL,                                         \
      (void *to, void *to_context, const void *from, void *from_context, size_t bytes, void *stream))
#define HIP_CALLS(X)                                   \
    X(device_get, NULL, "hipGetDevice", (int *device)) \
    X(device_set, NULL, "hipSetDevice", (int device))  \
    X(from_device, NULL, "hipMemcpyPeerAsync",         \
      (void *to, int to_device, const void *from, int from_device, size_t bytes, void *stream))

/* A struct of facts whose layout differs between versions: from ROCm 6 on, and before. */
#define HIP_EXTRAS(X)                                                                    \
    X(properties_6, NULL, "hipGetDevicePropertiesR0600", (void *properties, int device)) \
    X(properties, NULL, "hipGetDeviceProperties", (void *properties, int device))

typedef struct gpu_calls {
#define X(field, cuda, hip, parameters) int(*field) parameters;
    PROBE_CALLS(X) PROBE_EXTRAS(X) WORK_CALLS(X) GRAPH_CALLS(X) CUDA_CALLS(X) HIP_CALLS(X) HIP_EXTRAS(X)
#undef X
} gpu_calls;

/* X(field, NVRTC's name, hiprtc's name, parameters) */
#define COMPILER_CALLS(X)                                                                                             \
    X(version, "nvrtcVersion", "hiprtcVersion", (int *major, int *minor))                                             \
    X(create, "nvrtcCreateProgram", "hiprtcCreateProgram",                                                            \
      (void **program, const char *text, const char *name, int headers, const char *const *texts,                     \
       const char *const *names))                                                                                     \
    X(compile, "nvrtcCompileProgram", "hiprtcCompileProgram", (void *program, int count, const char *const *options)) \
    X(log_size, "nvrtcGetProgramLogSize", "hiprtcGetProgramLogSize", (void *program, size_t *size))                   \
    X(log, "nvrtcGetProgramLog", "hiprtcGetProgramLog", (void *program, char *log))                                   \
    X(code_size, "nvrtcGetCUBINSize", "hiprtcGetCodeSize", (void *program, size_t *size))                             \
    X(code, "nvrtcGetCUBIN", "hiprtcGetCode", (void *program, char *code))                                            \
    X(destroy, "nvrtcDestroyProgram", "hiprtcDestroyProgram", (void **program))
#define NVRTC_CALLS(X)                                                  \
    X(ptx_size, "nvrtcGetPTXSize", NULL, (void *program, size_t *size)) \
    X(ptx, "nvrtcGetPTX", NULL, (void *program, char *code))
#define NVRTC_EXTRAS(X)                                            \
    X(arch_count, "nvrtcGetNumSupportedArchs", NULL, (int *count)) \
    X(archs, "nvrtcGetSupportedArchs", NULL, (int *archs))

typedef struct compiler_calls {
#define X(field, nvrtc, hiprtc, parameters) int(*field) parameters;
    COMPILER_CALLS(X) NVRTC_CALLS(X) NVRTC_EXTRAS(X)
#undef X
} compiler_calls;

/* In the order in which a table of symbols names them. */
enum {
#define X(field, cuda, hip, parameters) CALL_##field,
    WORK_CALLS(X) GRAPH_CALLS(X)
#undef X
};

/* Numbers that both have. */
enum {
    SUCCESS = 0,
    OUT_OF_MEMORY = 2,
    NOT_READY = 600,
    STREAM_NON_BLOCKING = 1,
    EVENT_UNTIMED = 2,
    HOST_PORTABLE = 1,
    FUNCTION_MAX_ITEMS = 0,
    FUNCTION_MAX_DYNAMIC_SHARED = 8, /* CUDA: workgroup memory that launches bring */
    COMPILER_BAD_OPTION = 5,         /* NVRTC_ERROR_INVALID_OPTION */
    COMPILER_REFUSES = 6             /* NVRTC_ERROR_COMPILATION, HIPRTC_ERROR_COMPILATION */
};

/* Attributes of devices. */
typedef struct gpu_attributes {
    int max_items, max_groups_x, shared_memory, warp, processors, integrated;
} gpu_attributes;
#define CUDA_ATTRIBUTES \
    { .max_items = 1, .max_groups_x = 5, .shared_memory = 97, .warp = 10, .processors = 16, .integrated = 18 }
#define HIP_ATTRIBUTES \
    { .max_items = 56, .max_groups_x = 29, .shared_memory = 74, .warp = 87, .processors = 63, .integrated = 16 }
enum { CUDA_MAJOR = 75, CUDA_MINOR = 76 };
enum { NVRTC_LATEST = 13, NVRTC_OLDEST = 11 }; /* versions of CUDA whose compilers are looked for by name */

/* ---- the two vendors (cuda_probe.c) ------------------------------------------------------------------------------ */

typedef struct gpu_vendor {
    const char *name; /* "cuda" */
    bool hip;
    gpu_calls *gpu;
    compiler_calls *compiler;
    tn_library_spec probe, work; /* one library, with the symbols for looking and for computing */
    tn_library_spec compiles;
    const struct gpu_meaning *meanings; /* of what looking gives */
    const tn_call_errors *errors;       /* of what other calls give */
    const char *node;                   /* device node that every use needs */
    const char *node_fix;               /* when it is not there at all */
    void (*details)(tn_device_info *d, int device);
    gpu_attributes attributes;
    tn_code_format format;
    int64_t max_groups_x;                 /* more than the attribute says is never asked for */
    uint32_t (*matrix)(const char *arch); /* TN_MATRIX_… of an architecture */
    const char *arch_option, *compiler_title;
    const char *const *options; /* for the compiler, up to a NULL */
} gpu_vendor;

extern const gpu_vendor tn_gpu_cuda, tn_gpu_rocm;
void tn_cuda_probe(tn_probe *out);
void tn_rocm_probe(tn_probe *out);
void tn_cuda_watch(tn_watch_add *add, void *ctx);
void tn_rocm_watch(tn_watch_add *add, void *ctx);

/* "gfx90a:sramecc+:xnack-", the target of code for an AMD device; "" if unknown. */
void tn_gpu_gfx_name(const gpu_calls *gpu, int device, char *out, size_t size);

#endif
