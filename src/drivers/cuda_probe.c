/* cuda_probe.c — NVIDIA's and AMD's GPUs: their libraries, finding devices, and the meaning of error codes.
 *
 * Both interfaces have the same functions under different names, so one probe reads a table of symbols and a table of
 * error codes. What only one vendor has is in separate functions: free memory (NVML; Linux's amdgpu files) and the
 * instruction set. The toolkit's stub of libcuda, which answers every call with 34, does not count as a library. The
 * driver is in cuda.c. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "drivers/cuda.h"

#if TRUNNION_WITH_CUDA || TRUNNION_WITH_ROCM

/* ---- what results of calls mean ---------------------------------------------------------------------------------- */

static const char VERSIONS[] =
    "driver and compiler library are incompatible: update the driver, or install an older library";

/* Results that have a meaning here: code, CUDA's name and HIP's, and what follows as in tn_call_error. */
// clang-format off
#define ERRORS(X)                                                                                                      \
    X(1, "CUDA_ERROR_INVALID_VALUE", "hipErrorInvalidValue", TN_ERR_DEVICE, TN_ADVICE_UPDATE)                          \
    X(2, "CUDA_ERROR_OUT_OF_MEMORY", "hipErrorOutOfMemory", TN_ERR_MEMORY, TN_ADVICE_SMALLER)                          \
    X(3, "CUDA_ERROR_NOT_INITIALIZED", "hipErrorNotInitialized", TN_ERR_DEVICE, TN_ADVICE_UPDATE)                      \
    X(4, "CUDA_ERROR_DEINITIALIZED", "hipErrorDeinitialized", TN_ERR_LOST, TN_ADVICE_ANEW)                             \
    X(46, "CUDA_ERROR_DEVICE_UNAVAILABLE", "hipErrorDeviceUnavailable", TN_ERR_UNAVAILABLE,                            \
      "another program may use the device exclusively: see nvidia-smi")                                                \
    X(100, "CUDA_ERROR_NO_DEVICE", "hipErrorNoDevice", TN_ERR_UNAVAILABLE, "see: trunnion devices")                    \
    X(101, "CUDA_ERROR_INVALID_DEVICE", "hipErrorInvalidDevice", TN_ERR_UNAVAILABLE, "see: trunnion devices")          \
    X(200, "CUDA_ERROR_INVALID_IMAGE", "hipErrorInvalidImage", TN_ERR_UNSUPPORTED, VERSIONS)                           \
    X(201, "CUDA_ERROR_INVALID_CONTEXT", "hipErrorInvalidContext", TN_ERR_LOST, TN_ADVICE_ANEW)                        \
    X(209, "CUDA_ERROR_NO_BINARY_FOR_GPU", "hipErrorNoBinaryForGpu", TN_ERR_UNSUPPORTED, VERSIONS)                     \
    X(214, "CUDA_ERROR_ECC_UNCORRECTABLE", "hipErrorECCNotCorrectable", TN_ERR_LOST, TN_ADVICE_ANEW)                   \
    X(217, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "hipErrorPeerAccessUnsupported", TN_ERR_UNSUPPORTED, VERSIONS) \
    X(218, "CUDA_ERROR_INVALID_PTX", "hipErrorInvalidKernelFile", TN_ERR_UNSUPPORTED, VERSIONS)                        \
    X(220, "CUDA_ERROR_NVLINK_UNCORRECTABLE", "hipErrorUnknown", TN_ERR_LOST, TN_ADVICE_ANEW)                          \
    X(222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "hipErrorUnknown", TN_ERR_UNSUPPORTED, VERSIONS)                      \
    X(304, "CUDA_ERROR_OPERATING_SYSTEM", "hipErrorOperatingSystem", TN_ERR_DEVICE, TN_ADVICE_UPDATE)                  \
    X(400, "CUDA_ERROR_INVALID_HANDLE", "hipErrorInvalidHandle", TN_ERR_DEVICE, TN_ADVICE_UPDATE)                      \
    X(500, "CUDA_ERROR_NOT_FOUND", "hipErrorNotFound", TN_ERR_DEVICE, TN_ADVICE_UPDATE)                                \
    X(700, "CUDA_ERROR_ILLEGAL_ADDRESS", "hipErrorIllegalAddress", TN_ERR_LOST, TN_ADVICE_ANEW)                        \
    X(701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "hipErrorLaunchOutOfResources", TN_ERR_DEVICE, TN_ADVICE_SMALLER)     \
    X(702, "CUDA_ERROR_LAUNCH_TIMEOUT", "hipErrorLaunchTimeOut", TN_ERR_LOST, TN_ADVICE_ANEW)                          \
    X(709, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "hipErrorContextIsDestroyed", TN_ERR_LOST, TN_ADVICE_ANEW)               \
    X(710, "CUDA_ERROR_ASSERT", "hipErrorAssert", TN_ERR_LOST, TN_ADVICE_ANEW)                                         \
    X(714, "CUDA_ERROR_HARDWARE_STACK_ERROR", "hipErrorUnknown", TN_ERR_LOST, TN_ADVICE_ANEW)                          \
    X(715, "CUDA_ERROR_ILLEGAL_INSTRUCTION", "hipErrorUnknown", TN_ERR_LOST, TN_ADVICE_ANEW)                           \
    X(716, "CUDA_ERROR_MISALIGNED_ADDRESS", "hipErrorUnknown", TN_ERR_LOST, TN_ADVICE_ANEW)                            \
    X(717, "CUDA_ERROR_INVALID_ADDRESS_SPACE", "hipErrorUnknown", TN_ERR_LOST, TN_ADVICE_ANEW)                         \
    X(718, "CUDA_ERROR_INVALID_PC", "hipErrorUnknown", TN_ERR_LOST, TN_ADVICE_ANEW)                                    \
    X(719, "CUDA_ERROR_LAUNCH_FAILED", "hipErrorLaunchFailure", TN_ERR_LOST, TN_ADVICE_ANEW)                           \
    X(801, "CUDA_ERROR_NOT_SUPPORTED", "hipErrorNotSupported", TN_ERR_UNSUPPORTED, TN_ADVICE_UPDATE)                   \
    X(910, "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE", "hipErrorGraphExecUpdateFailure", TN_ERR_UNSUPPORTED,               \
      TN_ADVICE_UPDATE)                                                                                                \
    X(999, "CUDA_ERROR_UNKNOWN", "hipErrorUnknown", TN_ERR_LOST, TN_ADVICE_ANEW)
// clang-format on

/* ---- looking for devices ----------------------------------------------------------------------------------------- */

/* The meaning of an error of init or count. */
typedef struct gpu_meaning {
    int error; /* the row with -1 is for all others */
    tn_reason_code code;
    const char *text, *fix;
} meaning;

#define X(field, cuda, hip, parameters) {CUDA_OR_HIP(cuda, hip), (void **)&VENDOR_CALLS.field, false},
#define OPTIONAL(field, cuda, hip, parameters) {CUDA_OR_HIP(cuda, hip), (void **)&VENDOR_CALLS.field, true},

static void explain(tn_probe *out, const gpu_vendor *v, int error) {
    const meaning *m = v->meanings;
    while (m->error != error && m->error != -1)
        m++;
    tn_probe_reason(out, m->code, m->fix, "%s: %s (error %d)", v->probe.title, m->text, error);
    if (m->code != TN_REASON_LIBRARY_NOT_FOUND && m->code != TN_REASON_TOO_OLD) (void)tn_probe_denied(out, v->node);
}

/* A device that does not answer is listed without facts: those behind it keep their numbers. */
static void describe_cuda(tn_probe *out, const gpu_vendor *v, int ordinal) {
    int device, integrated = 0;
    size_t total = 0;
    char pci[32] = "";
    unsigned char uuid[16] = {0};
    const gpu_calls *gpu = v->gpu;
    tn_device_info *d = tn_probe_device(out);
    if (!d) return;
    snprintf(d->name, sizeof d->name, "%s", v->probe.title);
    if (gpu->get(&device, ordinal)) return;
    if (gpu->name(d->name, (int)sizeof d->name, device)) snprintf(d->name, sizeof d->name, "%s", v->probe.title);
    if (!gpu->total_memory(&total, device)) d->total_memory = (int64_t)total;
    if (!gpu->pci(pci, (int)sizeof pci, device)) tn_probe_pci(d->pci, pci);
    if (gpu->uuid && !gpu->uuid(uuid, device)) tn_probe_uuid(d->uuid, uuid);
    d->unified_memory = !gpu->attribute(&integrated, v->attributes.integrated, device) && integrated;
    v->details(d, device);
}

/* Devices need a compiler, because kernels are text. */
static void need_compiler(tn_probe *out, const gpu_vendor *v) {
    char path[256];
    if (tn_library_locate(&v->compiles, path, sizeof path)) return;
    tn_probe_reason(out, TN_REASON_LIBRARY_NOT_FOUND, v->compiles.fix,
                    "%s: %d device%s (%.60s), but the kernel compiler %s was not found", v->probe.title, out->count,
                    out->count == 1 ? "" : "s", out->devices[0].name, v->compiles.title);
    out->count = 0;
}

static void probe(tn_probe *out, const gpu_vendor *v) {
    if (!tn_probe_library(out, &v->probe)) return;
    int count = 0, error = v->gpu->init(0);
    if (!error) error = v->gpu->count(&count);
    if (error) {
        explain(out, v, error);
        return;
    }
    for (int n = 0; n < count; n++)
        describe_cuda(out, v, n);
    if (out->count)
        need_compiler(out, v);
    else if (!tn_probe_denied(out, v->node))
        tn_probe_reason(out, TN_REASON_NO_DEVICE, v->node_fix, "%s: running, but it found no device", v->probe.title);
}

static void watch(const gpu_vendor *v, tn_watch_add *add, void *ctx) {
    tn_probe_watch(&v->probe, add, ctx);
    tn_probe_watch(&v->compiles, add, ctx);
    tn_probe_watch_node(v->node, add, ctx);
}

#endif

/* ---- CUDA -------------------------------------------------------------------------------------------------------- */

#if TRUNNION_WITH_CUDA

static gpu_calls cuda_calls;
static compiler_calls nvrtc_calls;

#define CUDA_OR_HIP(cuda, hip) cuda
#define VENDOR_CALLS cuda_calls
static const tn_symbol cuda_probe_symbols[] = {PROBE_CALLS(X) PROBE_EXTRAS(OPTIONAL)};
static const tn_symbol cuda_work_symbols[] = {WORK_CALLS(X) GRAPH_CALLS(OPTIONAL) CUDA_CALLS(X)};
#undef VENDOR_CALLS
#define VENDOR_CALLS nvrtc_calls
static const tn_symbol nvrtc_symbols[] = {COMPILER_CALLS(X) NVRTC_CALLS(X) NVRTC_EXTRAS(OPTIONAL)};
#undef VENDOR_CALLS
#undef CUDA_OR_HIP

static const char *const cuda_names[] = {"libcuda.so.1", "libcuda.so", "/usr/lib/wsl/lib/libcuda.so.1", "nvcuda.dll",
                                         NULL};
/* Two names for each version of CUDA, from NVRTC_LATEST down: the plain library, and that of Python's packages. */
static const char *const nvrtc_names[] = {
    "libnvrtc.so.13",
    "site-packages/nvidia/cu13/lib/libnvrtc.so.13",
    "libnvrtc.so.12",
    "site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
    "libnvrtc.so.11.2",
    "site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.11.2",
    "libnvrtc.so",
    "/usr/local/cuda*/lib64/libnvrtc.so",
    "nvrtc64_130_0.dll",
    "nvrtc64_120_0.dll",
    "C:/Program Files/NVIDIA GPU Computing Toolkit/CUDA/v*/bin/nvrtc64_1*_0.dll",
    "site-packages/nvidia/cuda_nvrtc/bin/nvrtc64_1*_0.dll",
    NULL,
};
static const char INSTALL_NVIDIA[] = "install NVIDIA's driver (the toolkit is not needed)";
static const char INSTALL_NVRTC[] =
    "install NVRTC of the driver's CUDA version: pip install nvidia-cuda-nvrtc (CUDA 12: nvidia-cuda-nvrtc-cu12), or "
    "the toolkit's package cuda-nvrtc; or set TRUNNION_NVRTC_LIB to the file";
static const char LOAD_NVIDIA[] =
    "load NVIDIA's kernel module (check with nvidia-smi); in a container, pass the GPU in";

#define CUDA_ROW(code, cuda, hip, status, advice) {code, cuda, status, advice},
static const tn_call_error cuda_rows[] = {ERRORS(CUDA_ROW)};
static const tn_call_errors cuda_errors = {.rows = cuda_rows, .count = TN_COUNT(cuda_rows), .positive = true};

static const meaning cuda_meanings[] = {
    {34, TN_REASON_LIBRARY_NOT_FOUND, "this libcuda is the toolkit's stub, not a driver", INSTALL_NVIDIA},
    {35, TN_REASON_TOO_OLD, "the kernel driver is older than this libcuda requires", "update NVIDIA's driver"},
    {3, TN_REASON_INIT_FAILED, "this process initialized CUDA before the device list was made",
     "list again with tn_device_list_new(true, …), or run: trunnion devices --fresh"},
    {100, TN_REASON_NO_DEVICE, "no device", LOAD_NVIDIA},
    {101, TN_REASON_NO_DEVICE, "no valid device", LOAD_NVIDIA},
    {304, TN_REASON_INIT_FAILED, "an operating system call failed", LOAD_NVIDIA},
    {802, TN_REASON_INIT_FAILED, "the system is not ready",
     "start NVIDIA's fabric manager, or wait until it is running"},
    {803, TN_REASON_TOO_OLD, "libcuda and the kernel driver have different versions",
     "restart the machine, or reinstall the driver"},
    {-1, TN_REASON_INIT_FAILED, "initialization failed", "check that nvidia-smi works; update or reinstall the driver"},
};

/* Free memory without a context on the device: NVML knows it. */
static int64_t nvml_free_memory(const char *pci) {
    static int (*init)(void), (*by_pci)(const char *, void **), (*memory)(void *, unsigned long long[3]);
    static const char *const names[] = {"libnvidia-ml.so.1", "/usr/lib/wsl/lib/libnvidia-ml.so.1", "nvml.dll", NULL};
    static const tn_symbol symbols[] = {
        {"nvmlInit_v2", (void **)&init, false},
        {"nvmlDeviceGetHandleByPciBusId_v2", (void **)&by_pci, false},
        {"nvmlDeviceGetMemoryInfo", (void **)&memory, false},
    };
    static const tn_library_spec nvml = {"NVML", "TRUNNION_NVML_LIB", names, symbols, TN_COUNT(symbols), ""};
    tn_reason why;
    void *device;
    unsigned long long total_free_used[3];
    if (!pci[0] || !tn_library_open(&nvml, &why)) return 0;
    if (init() || by_pci(pci, &device) || memory(device, total_free_used)) return 0;
    return (int64_t)total_free_used[1];
}

static void cuda_details(tn_device_info *d, int device) {
    int major = 0, minor = 0;
    if (!cuda_calls.attribute(&major, CUDA_MAJOR, device) && !cuda_calls.attribute(&minor, CUDA_MINOR, device))
        snprintf(d->compute_capability, sizeof d->compute_capability, "%d.%d", major, minor);
    d->free_memory = nvml_free_memory(d->pci);
}

/* IEEE 754's arithmetic, operation by operation. */
static const char *const nvrtc_options[] = {
    "--std=c++17", "-fmad=false", "-prec-div=true", "-prec-sqrt=true", "-ftz=false", "-w", NULL};

/* bf16 products with asynchronous copies: from Ampere on; wide matrices: only Hopper. */
static uint32_t cuda_matrix(const char *arch) {
    uint32_t wide = strcmp(arch, "90a") == 0 ? TN_MATRIX_WIDE : 0;
    uint32_t all = TN_MATRIX_F16 | TN_MATRIX_BF16 | TN_MATRIX_TF32 | TN_MATRIX_PACKETS | TN_MATRIX_LATE;
    return atoi(arch) >= 80 ? all | wide : 0;
}

const gpu_vendor tn_gpu_cuda = {
    .name = "cuda",
    .gpu = &cuda_calls,
    .compiler = &nvrtc_calls,
    .probe = {"CUDA driver", "TRUNNION_CUDA_LIB", cuda_names, cuda_probe_symbols, TN_COUNT(cuda_probe_symbols),
              INSTALL_NVIDIA},
    .work = {"CUDA driver", "TRUNNION_CUDA_LIB", cuda_names, cuda_work_symbols, TN_COUNT(cuda_work_symbols),
             "update NVIDIA's driver"},
    .compiles = {"NVRTC", "TRUNNION_NVRTC_LIB", nvrtc_names, nvrtc_symbols, TN_COUNT(nvrtc_symbols), INSTALL_NVRTC},
    .meanings = cuda_meanings,
    .errors = &cuda_errors,
    .node = "nvidiactl",
    .node_fix = LOAD_NVIDIA,
    .details = cuda_details,
    .attributes = CUDA_ATTRIBUTES,
    .format = TN_CODE_CUDA_C,
    .max_groups_x = INT32_MAX,
    .matrix = cuda_matrix,
    .arch_option = "--gpu-architecture=",
    .compiler_title = "NVRTC",
    .options = nvrtc_options,
};

void tn_cuda_probe(tn_probe *out) { probe(out, &tn_gpu_cuda); }

void tn_cuda_watch(tn_watch_add *add, void *ctx) {
    watch(&tn_gpu_cuda, add, ctx);
    tn_probe_watch_node("nvidia0", add, ctx);
    tn_probe_watch_node("dxg", add, ctx);
    add(ctx, "$CUDA_VISIBLE_DEVICES");
}

#endif

/* ---- ROCm -------------------------------------------------------------------------------------------------------- */

#if TRUNNION_WITH_ROCM

static gpu_calls rocm_calls;
static compiler_calls hiprtc_calls;

#define CUDA_OR_HIP(cuda, hip) hip
#define VENDOR_CALLS rocm_calls
static const tn_symbol rocm_probe_symbols[] = {PROBE_CALLS(X) PROBE_EXTRAS(OPTIONAL) HIP_EXTRAS(OPTIONAL)};
static const tn_symbol rocm_work_symbols[] = {WORK_CALLS(X) GRAPH_CALLS(OPTIONAL) HIP_CALLS(X)};
#undef VENDOR_CALLS
#define VENDOR_CALLS hiprtc_calls
static const tn_symbol hiprtc_symbols[] = {COMPILER_CALLS(X)};
#undef VENDOR_CALLS
#undef CUDA_OR_HIP

static const char *const rocm_names[] = {"libamdhip64.so",
                                         "libamdhip64.so.*",
                                         "/opt/rocm*/lib/libamdhip64.so",
                                         "amdhip64_7.dll",
                                         "amdhip64_6.dll",
                                         "amdhip64.dll",
                                         NULL};
/* Up to ROCm 5.2 the run time is the compiler too. */
static const char *const hiprtc_names[] = {
    "libhiprtc.so",
    "libhiprtc.so.*",
    "/opt/rocm*/lib/libhiprtc.so",
    "libamdhip64.so",
    "libamdhip64.so.*",
    "/opt/rocm*/lib/libamdhip64.so",
    "C:/Program Files/AMD/ROCm/*/bin/hiprtc0*.dll",
    "amdhip64.dll",
    NULL,
};

/* "gfx90a:sramecc+:xnack-" from the device's properties: the only word of this kind after its name, whose position
 * depends on the version. "" if there is none; the compiler then finds out itself. */
void tn_gpu_gfx_name(const gpu_calls *gpu, int device, char *out, size_t size) {
    enum { ROOM = 8192, NAME = 256 };
    int (*ask)(void *, int) = gpu->properties_6 ? gpu->properties_6 : gpu->properties;
    out[0] = 0;
    char *facts = ask ? tn_mem_zalloc(ROOM, 1) : NULL;
    if (facts && ask(facts, device) == SUCCESS)
        for (size_t i = NAME; i < ROOM - 64 && !out[0]; i++)
            if (!memcmp(facts + i, "gfx", 3) && facts[i + 3] >= '0' && facts[i + 3] <= '9')
                snprintf(out, size, "%.60s", facts + i);
    tn_mem_free(facts);
}

static const char INSTALL_ROCM[] = "install AMD's ROCm runtime (package libamdhip64-5, or rocm-hip-runtime from AMD)";
static const char INSTALL_HIPRTC[] = "install hiprtc of the runtime's version (AMD's package hip-runtime-amd; Debian's "
                                     "libamdhip64-5 contains it); or set TRUNNION_HIPRTC_LIB to the file";
static const char LOAD_AMD[] = "load the kernel module amdgpu; in a container, pass /dev/kfd and /dev/dri in";

#define HIP_ROW(code, cuda, hip, status, advice) {code, hip, status, advice},
static const tn_call_error hip_rows[] = {ERRORS(HIP_ROW)};
static const tn_call_errors hip_errors = {.rows = hip_rows, .count = TN_COUNT(hip_rows), .positive = true};

static const meaning rocm_meanings[] = {
    {100, TN_REASON_NO_DEVICE, "no AMD GPU", LOAD_AMD},
    {101, TN_REASON_NO_DEVICE, "no AMD GPU", LOAD_AMD},
    {35, TN_REASON_TOO_OLD, "the kernel driver is older than this runtime requires", "update amdgpu or the kernel"},
    {-1, TN_REASON_INIT_FAILED, "initialization failed", "check that rocminfo works; update or reinstall ROCm"},
};

static int64_t amdgpu_number(const char *pci, const char *file) {
    char path[128];
    AUTO_FREE char *text = NULL;
    size_t size;
    long long v = 0;
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/%s", pci, file);
    if (tn_file_read(path, &text, &size, 256) != TN_OK) return 0;
    if (sscanf(text, "%lld", &v) != 1) v = 0;
    return v;
}

static void rocm_details(tn_device_info *d, int device) {
    char arch[64];
    tn_gpu_gfx_name(&rocm_calls, device, arch, sizeof arch);
    snprintf(d->compute_capability, sizeof d->compute_capability, "%.*s", (int)strcspn(arch, ":"), arch);
    if (!d->pci[0]) return;
    d->free_memory =
        tn_max64(0, amdgpu_number(d->pci, "mem_info_vram_total") - amdgpu_number(d->pci, "mem_info_vram_used"));
}

/* IEEE 754 arithmetic for each operation; subnormal numbers are kept by default. */
static const char *const hiprtc_options[] = {
    "-std=c++17", "-O3", "-ffp-contract=off", "-fhip-fp32-correctly-rounded-divide-sqrt", "-w", NULL};

/* Instructions of CDNA 2 and 3 with 64 items, of RDNA 3 with 32 (render_c.c has these two). */
static uint32_t rocm_matrix(const char *arch) {
    static const char *const begins[] = {"gfx90a", "gfx94", "gfx950", "gfx110", "gfx115"};
    for (size_t i = 0; i < TN_COUNT(begins); i++)
        if (strncmp(arch, begins[i], strlen(begins[i])) == 0) return TN_MATRIX_F16 | TN_MATRIX_BF16 | TN_MATRIX_PACKETS;
    return 0;
}

const gpu_vendor tn_gpu_rocm = {
    .name = "rocm",
    .hip = true,
    .gpu = &rocm_calls,
    .compiler = &hiprtc_calls,
    .probe = {"ROCm runtime", "TRUNNION_ROCM_LIB", rocm_names, rocm_probe_symbols, TN_COUNT(rocm_probe_symbols),
              INSTALL_ROCM},
    .work = {"ROCm runtime", "TRUNNION_ROCM_LIB", rocm_names, rocm_work_symbols, TN_COUNT(rocm_work_symbols),
             "update ROCm"},
    .compiles = {"hiprtc", "TRUNNION_HIPRTC_LIB", hiprtc_names, hiprtc_symbols, TN_COUNT(hiprtc_symbols),
                 INSTALL_HIPRTC},
    .meanings = rocm_meanings,
    .errors = &hip_errors,
    .node = "kfd",
    .node_fix = LOAD_AMD,
    .details = rocm_details,
    .attributes = HIP_ATTRIBUTES,
    .format = TN_CODE_HIP_C,
    .max_groups_x = (1 << 21) - 1, /* HIP counts items, in 32 bits, and workgroups have 1024 at most */
    .matrix = rocm_matrix,
    .arch_option = "--offload-arch=",
    .compiler_title = "hiprtc",
    .options = hiprtc_options,
};

void tn_rocm_probe(tn_probe *out) { probe(out, &tn_gpu_rocm); }

void tn_rocm_watch(tn_watch_add *add, void *ctx) {
    static const char *const more[] = {"$HIP_VISIBLE_DEVICES", "$ROCR_VISIBLE_DEVICES", "$HSA_OVERRIDE_GFX_VERSION"};
    watch(&tn_gpu_rocm, add, ctx);
    tn_probe_watch_node("dri", add, ctx);
    for (size_t i = 0; i < TN_COUNT(more); i++)
        add(ctx, more[i]);
}

#endif
