/* probe_cuda.c — looks for NVIDIA GPUs through libcuda and for AMD GPUs through libamdhip64.
 *
 * The two interfaces have the same functions under two sets of names, so one probe reads a table of symbols and a table
 * of what their error codes mean. What only one side has stands in a function of its own: free memory and compute
 * capability (NVML, device attributes; Linux's files about amdgpu). The toolkit's stub of libcuda, which answers every
 * call with 34, counts as no library. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "drivers/probe.h"
#include "hal/hal.h"

#if TRUNNION_WITH_CUDA || TRUNNION_WITH_ROCM

/* The functions used, alike in both interfaces. A result of 0 is success, an ordinal a small integer. */
static struct {
    int (*init)(unsigned flags);
    int (*count)(int *count);
    int (*get)(int *device, int ordinal);
    int (*name)(char *name, int size, int device);
    int (*total_memory)(size_t *bytes, int device);
    int (*pci)(char *text, int size, int device);
    int (*uuid)(unsigned char bytes[16], int device);        /* optional */
    int (*attribute)(int *value, int attribute, int device); /* CUDA alone: the numbers differ */
} gpu;

/* What an error code of init or count means. */
typedef struct meaning {
    int error; /* the row with -1 is for all others */
    tn_reason_code code;
    const char *text, *fix;
} meaning;

typedef struct interface {
    tn_library_spec library;
    const meaning *meanings;
    const char *node;     /* device node that every use needs */
    const char *node_fix; /* when it is not there at all */
    void (*details)(tn_device_info *d, int device);
} interface;

static void explain(tn_probe *out, const interface *i, int error) {
    char node[256];
    tn_probe_node(node, sizeof node, i->node);
    const meaning *m = i->meanings;
    while (m->error != error && m->error != -1)
        m++;
    tn_probe_reason(out, m->code, m->fix, "%s: %s (error %d)", i->library.title, m->text, error);
    if (m->code != TN_REASON_LIBRARY_NOT_FOUND && m->code != TN_REASON_TOO_OLD) (void)tn_probe_denied(out, i->node);
}

static void describe(tn_probe *out, const interface *i, int ordinal) {
    int device;
    size_t total = 0;
    char pci[32] = "";
    unsigned char uuid[16] = {0};
    if (gpu.get(&device, ordinal)) return;
    tn_device_info *d = tn_probe_device(out);
    if (!d) return;
    if (gpu.name(d->name, (int)sizeof d->name, device)) snprintf(d->name, sizeof d->name, "%s", i->library.title);
    if (!gpu.total_memory(&total, device)) d->total_memory = (int64_t)total;
    if (!gpu.pci(pci, (int)sizeof pci, device)) tn_probe_pci(d->pci, pci);
    if (gpu.uuid && !gpu.uuid(uuid, device)) tn_probe_uuid(d->uuid, uuid);
    i->details(d, device);
}

static void probe(tn_probe *out, const interface *i) {
    memset(&gpu, 0, sizeof gpu);
    if (!tn_probe_library(out, &i->library)) return;
    int count = 0, error = gpu.init(0);
    if (!error) error = gpu.count(&count);
    if (error) {
        explain(out, i, error);
        return;
    }
    for (int n = 0; n < count; n++)
        describe(out, i, n);
    if (!out->count && !tn_probe_denied(out, i->node))
        tn_probe_reason(out, TN_REASON_NO_DEVICE, i->node_fix, "%s: it runs, and has no device", i->library.title);
}

#endif

/* ---- CUDA -------------------------------------------------------------------------------------------------------- */

#if TRUNNION_WITH_CUDA

enum { CUDA_INTEGRATED = 18, CUDA_MAJOR = 75, CUDA_MINOR = 76 }; /* device attributes */

static const char *const cuda_names[] = {"libcuda.so.1", "libcuda.so", "/usr/lib/wsl/lib/libcuda.so.1", NULL};
static const tn_symbol cuda_symbols[] = {
    {"cuInit", (void **)&gpu.init, false},
    {"cuDeviceGetCount", (void **)&gpu.count, false},
    {"cuDeviceGet", (void **)&gpu.get, false},
    {"cuDeviceGetName", (void **)&gpu.name, false},
    {"cuDeviceTotalMem_v2", (void **)&gpu.total_memory, false},
    {"cuDeviceGetPCIBusId", (void **)&gpu.pci, false},
    {"cuDeviceGetAttribute", (void **)&gpu.attribute, false},
    {"cuDeviceGetUuid", (void **)&gpu.uuid, true},
};

static const char INSTALL_NVIDIA[] = "install NVIDIA's driver (the toolkit is not needed)";
static const char LOAD_NVIDIA[] =
    "load NVIDIA's kernel module (nvidia-smi shows whether it runs); in a container, pass the GPU in";

static const meaning cuda_meanings[] = {
    {34, TN_REASON_LIBRARY_NOT_FOUND, "this libcuda is the toolkit's stub, not a driver", INSTALL_NVIDIA},
    {35, TN_REASON_TOO_OLD, "the kernel's driver is older than this libcuda needs", "update NVIDIA's driver"},
    {3, TN_REASON_INIT_FAILED, "this process used CUDA before it asked", "run: trunnion devices --fresh"},
    {100, TN_REASON_NO_DEVICE, "no device", LOAD_NVIDIA},
    {101, TN_REASON_NO_DEVICE, "no valid device", LOAD_NVIDIA},
    {304, TN_REASON_INIT_FAILED, "a call to the operating system failed", LOAD_NVIDIA},
    {802, TN_REASON_INIT_FAILED, "the system is not ready", "start NVIDIA's fabric manager, or wait until it runs"},
    {803, TN_REASON_TOO_OLD, "libcuda and the kernel's driver are of different versions",
     "restart the machine, or reinstall the driver"},
    {-1, TN_REASON_INIT_FAILED, "it does not start", "see whether nvidia-smi works; update or reinstall the driver"},
};

/* Free memory without a context on the device: NVML knows it. */
static int64_t nvml_free_memory(const char *pci) {
    static int (*init)(void), (*by_pci)(const char *, void **), (*memory)(void *, unsigned long long[3]);
    static const char *const names[] = {"libnvidia-ml.so.1", "/usr/lib/wsl/lib/libnvidia-ml.so.1", NULL};
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
    int major = 0, minor = 0, integrated = 0;
    if (!gpu.attribute(&major, CUDA_MAJOR, device) && !gpu.attribute(&minor, CUDA_MINOR, device))
        snprintf(d->compute_capability, sizeof d->compute_capability, "%d.%d", major, minor);
    d->unified_memory = !gpu.attribute(&integrated, CUDA_INTEGRATED, device) && integrated;
    d->free_memory = nvml_free_memory(d->pci);
}

static const interface cuda = {
    .library = {"CUDA driver", "TRUNNION_CUDA_LIB", cuda_names, cuda_symbols, TN_COUNT(cuda_symbols), INSTALL_NVIDIA},
    .meanings = cuda_meanings,
    .node = "nvidiactl",
    .node_fix = LOAD_NVIDIA,
    .details = cuda_details,
};

static void cuda_probe(tn_probe *out) { probe(out, &cuda); }

static void cuda_watch(tn_watch_add *add, void *ctx) {
    tn_probe_watch(&cuda.library, add, ctx);
    tn_probe_watch_node("nvidiactl", add, ctx);
    tn_probe_watch_node("nvidia0", add, ctx);
    tn_probe_watch_node("dxg", add, ctx);
    add(ctx, "$CUDA_VISIBLE_DEVICES");
}

const tn_driver tn_driver_cuda = {
    .struct_size = sizeof(tn_driver),
    .abi = TN_BACKEND_ABI,
    .name = "cuda",
    .title = "NVIDIA CUDA",
    .probe = cuda_probe,
    .watch = cuda_watch,
    .isolate = TN_PROBE_ISOLATE,
};

#endif

/* ---- ROCm -------------------------------------------------------------------------------------------------------- */

#if TRUNNION_WITH_ROCM

static const char *const rocm_names[] = {"libamdhip64.so", "libamdhip64.so.*", "/opt/rocm*/lib/libamdhip64.so", NULL};
static const tn_symbol rocm_symbols[] = {
    {"hipInit", (void **)&gpu.init, false},
    {"hipGetDeviceCount", (void **)&gpu.count, false},
    {"hipDeviceGet", (void **)&gpu.get, false},
    {"hipDeviceGetName", (void **)&gpu.name, false},
    {"hipDeviceTotalMem", (void **)&gpu.total_memory, false},
    {"hipDeviceGetPCIBusId", (void **)&gpu.pci, false},
    {"hipDeviceGetUuid", (void **)&gpu.uuid, true},
};

static const char INSTALL_ROCM[] = "install AMD's ROCm run time (package libamdhip64-5, or rocm-hip-runtime from AMD)";
static const char LOAD_AMD[] = "load the kernel module amdgpu; in a container, pass /dev/kfd and /dev/dri in";

static const meaning rocm_meanings[] = {
    {100, TN_REASON_NO_DEVICE, "no AMD GPU", LOAD_AMD},
    {101, TN_REASON_NO_DEVICE, "no AMD GPU", LOAD_AMD},
    {35, TN_REASON_TOO_OLD, "the kernel's driver is older than this run time needs", "update amdgpu or the kernel"},
    {-1, TN_REASON_INIT_FAILED, "it does not start", "see whether rocminfo works; update or reinstall ROCm"},
};

/* The number after `key` in a text of lines "key number"; -1 without one. */
static long long line_value(const char *text, const char *key) {
    size_t n = strlen(key);
    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        long long v;
        if (!strncmp(line, key, n) && line[n] == ' ' && sscanf(line + n, "%lld", &v) == 1) return v;
    }
    return -1;
}

/* The kernel's description of GPU node n, for tn_mem_free; NULL past the last. */
static char *kfd_node(int n) {
    char path[128];
    char *text = NULL;
    size_t size;
    snprintf(path, sizeof path, "/sys/class/kfd/kfd/topology/nodes/%d/properties", n);
    return tn_file_read(path, &text, &size, 1 << 16) == TN_OK ? text : NULL;
}

/* The instruction set, "gfx90a": the run time tells it in a struct that changes between versions, the kernel in a
 * number that does not (90010: major 9, minor 0, stepping 10). */
static void gfx_name(tn_device_info *d) {
    char *text;
    for (int n = 0; !d->compute_capability[0] && (text = kfd_node(n)); n++) {
        char pci[16];
        long long gfx = line_value(text, "gfx_target_version"), at = line_value(text, "location_id");
        long long domain = line_value(text, "domain");
        tn_probe_pci_numbers(pci, (unsigned)domain, (unsigned)(at >> 8), (unsigned)(at >> 3), (unsigned)at);
        if (gfx > 0 && at >= 0 && !strcmp(pci, d->pci))
            snprintf(d->compute_capability, sizeof d->compute_capability, "gfx%d%x%x", (int)(gfx / 10000),
                     (unsigned)(gfx / 100 % 100), (unsigned)(gfx % 100));
        tn_mem_free(text);
    }
}

static int64_t amdgpu_number(const char *pci, const char *file) {
    char path[128];
    char *text;
    size_t size;
    long long v = 0;
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/%s", pci, file);
    if (tn_file_read(path, &text, &size, 256) != TN_OK) return 0;
    if (sscanf(text, "%lld", &v) != 1) v = 0;
    tn_mem_free(text);
    return v;
}

static void rocm_details(tn_device_info *d, int device) {
    (void)device;
    if (!d->pci[0]) return;
    gfx_name(d);
    d->free_memory =
        tn_max64(0, amdgpu_number(d->pci, "mem_info_vram_total") - amdgpu_number(d->pci, "mem_info_vram_used"));
}

static const interface rocm = {
    .library = {"ROCm run time", "TRUNNION_ROCM_LIB", rocm_names, rocm_symbols, TN_COUNT(rocm_symbols), INSTALL_ROCM},
    .meanings = rocm_meanings,
    .node = "kfd",
    .node_fix = LOAD_AMD,
    .details = rocm_details,
};

static void rocm_probe(tn_probe *out) { probe(out, &rocm); }

static void rocm_watch(tn_watch_add *add, void *ctx) {
    static const char *const more[] = {"$HIP_VISIBLE_DEVICES", "$ROCR_VISIBLE_DEVICES", "$HSA_OVERRIDE_GFX_VERSION"};
    tn_probe_watch(&rocm.library, add, ctx);
    tn_probe_watch_node("kfd", add, ctx);
    tn_probe_watch_node("dri", add, ctx);
    for (size_t i = 0; i < TN_COUNT(more); i++)
        add(ctx, more[i]);
}

const tn_driver tn_driver_rocm = {
    .struct_size = sizeof(tn_driver),
    .abi = TN_BACKEND_ABI,
    .name = "rocm",
    .title = "AMD ROCm",
    .probe = rocm_probe,
    .watch = rocm_watch,
    .isolate = TN_PROBE_ISOLATE,
};

#endif
