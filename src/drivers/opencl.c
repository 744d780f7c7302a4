/* opencl.c — OpenCL: every platform that the loader knows and all its devices; memory, kernels and launches.
 *
 * The baseline is OpenCL 1.2; everything beyond is queried, and what a device does not support is not used. The calls
 * are declared here: handles are pointers, enumerations 32-bit, bit fields 64-bit.
 *
 * Memory has handles, for which hal/driver.h reserves addresses; a launch adds the offset within its handle to the
 * kernel's bases. All calls are thread-safe except clSetKernelArg, which a lock of the module guards until its launch
 * is in the queue. A lost device stays lost: each later call returns the first cause. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "drivers/drivers.h"
#include "drivers/opencl.h"
#include "drivers/probe.h"
#include "hal/driver.h"

#if TRUNNION_WITH_OPENCL

/* ---- the library ------------------------------------------------------------------------------------------------- */

enum { MOST = 16 }; /* devices, and platforms */

static struct {
#define X(name, result, parameters) result(*name) parameters;
    CALLS(X)
#undef X
} cl;

static const char *const names[] = {
    "libOpenCL.so.1", "libOpenCL.so", "/System/Library/Frameworks/OpenCL.framework/OpenCL", "OpenCL.dll", NULL,
};
static const tn_symbol symbols[] = {
#define X(name, result, parameters) {"cl" #name, (void **)&cl.name, false},
    CALLS(X)
#undef X
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

/* Opens the library once per process; hal probes and opens under one lock. A probe's child process opens it again,
 * because its environment may differ. */
static bool load_library(bool anew, tn_reason *why) {
    static bool loaded;
    if (!loaded || anew) loaded = tn_library_open(&library, why) != NULL;
    return loaded;
}

/* ---- finding devices --------------------------------------------------------------------------------------------- */

/* Whether the device answers the query with exactly `size` bytes; else *value is not to be relied on. */
static bool ask_opencl(void *device, uint32_t what, void *value, size_t size) {
    size_t got = 0;
    return cl.GetDeviceInfo(device, what, size, value, &got) == SUCCESS && got == size;
}

static int64_t ask_int(void *device, uint32_t what, size_t size, int64_t unknown) {
    uint64_t value = 0; /* all devices in question are little-endian */
    return ask_opencl(device, what, &value, size) && value <= INT64_MAX ? (int64_t)value : unknown;
}

static void ask_text(void *device, uint32_t what, char *out, size_t size) {
    char text[256] = "";
    if (cl.GetDeviceInfo(device, what, sizeof text - 1, text, NULL) != SUCCESS) text[0] = 0;
    text[sizeof text - 1] = 0;
    snprintf(out, size, "%s", text + strspn(text, " "));
}

/* One device of the list: all devices of the first platform, then of the next, numbered through. */
typedef struct found {
    void *device;
    char platform[128];
} found;

static int list_platform(void *platform, found *list, int count) {
    char name[128] = "";
    void *devices[MOST];
    uint32_t n = 0;
    if (cl.GetPlatformInfo(platform, PLATFORM_NAME, sizeof name - 1, name, NULL)) name[0] = 0;
    if (cl.GetDeviceIDs(platform, TYPE_ALL, MOST, devices, &n)) return count;
    for (uint32_t i = 0; i < n && i < MOST && count < MOST; i++) {
        list[count].device = devices[i];
        memcpy(list[count++].platform, name, sizeof name);
    }
    return count;
}

/* The devices, `MOST` at most. *platforms and *error are what clGetPlatformIDs gave. */
static int list_devices(found *list, uint32_t *platform_count, int32_t *error) {
    void *platforms[MOST];
    int count = 0;
    *platform_count = 0;
    *error = cl.GetPlatformIDs(MOST, platforms, platform_count);
    for (uint32_t i = 0; *error == SUCCESS && i < *platform_count && i < MOST; i++)
        count = list_platform(platforms[i], list, count);
    return count;
}

static void ask_place(void *device, tn_device_info *d) {
    uint32_t khr[4], bus, slot, domain = 0;
    unsigned char uuid[16];
    if (ask_opencl(device, DEVICE_UUID, uuid, sizeof uuid)) tn_probe_uuid(d->uuid, uuid);
    if (ask_opencl(device, DEVICE_PCI_BUS_INFO, khr, sizeof khr)) {
        tn_probe_pci_numbers(d->pci, khr[0], khr[1], khr[2], khr[3]);
    } else if (ask_opencl(device, DEVICE_PCI_BUS_NV, &bus, sizeof bus) &&
               ask_opencl(device, DEVICE_PCI_SLOT_NV, &slot, sizeof slot)) {
        (void)ask_opencl(device, DEVICE_PCI_DOMAIN_NV, &domain, sizeof domain);
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

/* The processor in disguise: its memory is the host's. */
static bool is_software(const found *f) {
    return (ask_int(f->device, DEVICE_TYPE, 8, 0) & TYPE_CPU) || strstr(f->platform, "Oclgrind");
}

static void describe_opencl(tn_probe *out, const found *f) {
    tn_device_info *d = tn_probe_device(out);
    if (!d) return;
    ask_text(f->device, DEVICE_NAME, d->name, sizeof d->name);
    d->total_memory = ask_int(f->device, DEVICE_GLOBAL_MEM_SIZE, 8, 0);
    d->software = is_software(f);
    d->unified_memory = d->software || ask_int(f->device, DEVICE_HOST_UNIFIED_MEMORY, 4, 0);
    ask_version(f->device, d);
    ask_place(f->device, d);
}

static void opencl_probe(tn_probe *out) {
    found list[MOST];
    uint32_t platforms;
    int32_t error;
    tn_reason why;
    if (!tn_library_locate(&library, out->library, sizeof out->library)) out->library[0] = 0;
    if (!load_library(TN_PROBE_ISOLATE, &why)) {
        tn_probe_reason(out, why.code, why.fix, "%s", why.text);
        return;
    }
    int count = list_devices(list, &platforms, &error);
    for (int i = 0; i < count; i++)
        describe_opencl(out, &list[i]);
    if (out->count || tn_probe_render_denied(out)) return;
    if (error == NO_PLATFORM || (error == SUCCESS && platforms == 0))
        tn_probe_reason(out, TN_REASON_NO_DEVICE, NO_DRIVER_FIX,
                        "the OpenCL loader was found, but no driver is registered with it");
    else if (error == SUCCESS)
        tn_probe_reason(out, TN_REASON_NO_DEVICE, NO_DRIVER_FIX, "%u OpenCL driver%s registered, and no device",
                        platforms, platforms == 1 ? " is" : "s are");
    else
        tn_probe_reason(out, TN_REASON_INIT_FAILED, "check that clinfo works; reinstall the OpenCL driver",
                        "OpenCL loader: clGetPlatformIDs failed with error %d", error);
}

static void opencl_watch(tn_watch_add *add, void *ctx) {
    tn_probe_watch(&library, add, ctx);
    tn_probe_watch_node("dri", add, ctx);
    tn_probe_watch_node("nvidiactl", add, ctx);
    add(ctx, "/etc/OpenCL/vendors");
    add(ctx, "$OCL_ICD_VENDORS");
    add(ctx, "$OCL_ICD_FILENAMES");
    add(ctx, "$POCL_DEVICES");
}

/* ---- errors ------------------------------------------------------------------------------------------------------ */

static const char HOST[] = "run it on another device";

static const tn_call_error rows[] = {
    {-1, "CL_DEVICE_NOT_FOUND", TN_ERR_UNAVAILABLE, "see: trunnion devices"},
    {-2, "CL_DEVICE_NOT_AVAILABLE", TN_ERR_LOST, TN_ADVICE_ANEW},
    {-3, "CL_COMPILER_NOT_AVAILABLE", TN_ERR_UNSUPPORTED, "install the driver's compiler"},
    {-4, "CL_MEM_OBJECT_ALLOCATION_FAILURE", TN_ERR_MEMORY, TN_ADVICE_SMALLER},
    {OUT_OF_RESOURCES, "CL_OUT_OF_RESOURCES", TN_ERR_MEMORY, TN_ADVICE_SMALLER},
    {-6, "CL_OUT_OF_HOST_MEMORY", TN_ERR_MEMORY, TN_ADVICE_SMALLER},
    {-11, "CL_BUILD_PROGRAM_FAILURE", TN_ERR_UNSUPPORTED, TN_ADVICE_UPDATE},
    {-12, "CL_MAP_FAILURE", TN_ERR_MEMORY, TN_ADVICE_SMALLER},
    {EXEC_STATUS_ERROR, "CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST", TN_ERR_DEVICE, TN_ADVICE_ANEW},
    {-30, "CL_INVALID_VALUE", TN_ERR_DEVICE, TN_ADVICE_UPDATE},
    {-34, "CL_INVALID_CONTEXT", TN_ERR_LOST, TN_ADVICE_ANEW},
    {-36, "CL_INVALID_COMMAND_QUEUE", TN_ERR_LOST, TN_ADVICE_ANEW}, /* what is left of a queue after a crash */
    {-38, "CL_INVALID_MEM_OBJECT", TN_ERR_DEVICE, TN_ADVICE_UPDATE},
    {-42, "CL_INVALID_BINARY", TN_ERR_DEVICE, TN_ADVICE_UPDATE},
    {-43, "CL_INVALID_BUILD_OPTIONS", TN_ERR_UNSUPPORTED, TN_ADVICE_UPDATE},
    {-45, "CL_INVALID_PROGRAM_EXECUTABLE", TN_ERR_UNSUPPORTED, TN_ADVICE_UPDATE},
    {-46, "CL_INVALID_KERNEL_NAME", TN_ERR_DEVICE, TN_ADVICE_UPDATE},
    {-51, "CL_INVALID_ARG_SIZE", TN_ERR_DEVICE, TN_ADVICE_UPDATE},
    {-52, "CL_INVALID_KERNEL_ARGS", TN_ERR_DEVICE, TN_ADVICE_UPDATE},
    {-54, "CL_INVALID_WORK_GROUP_SIZE", TN_ERR_UNSUPPORTED, HOST},
    {-55, "CL_INVALID_WORK_ITEM_SIZE", TN_ERR_UNSUPPORTED, HOST},
    {-61, "CL_INVALID_BUFFER_SIZE", TN_ERR_MEMORY, TN_ADVICE_SMALLER},
    {-63, "CL_INVALID_GLOBAL_WORK_SIZE", TN_ERR_UNSUPPORTED, HOST},
    {-9999, "illegal access by a kernel", TN_ERR_LOST, TN_ADVICE_ANEW}, /* NVIDIA's own number */
};
/* Errors of calls that wait for earlier work and may report its failure: then the device is lost. */
static const tn_call_error rows_of_work[] = {
    {OUT_OF_RESOURCES, "CL_OUT_OF_RESOURCES", TN_ERR_LOST, TN_ADVICE_ANEW},
    {EXEC_STATUS_ERROR, "CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST", TN_ERR_LOST, TN_ADVICE_ANEW},
};
static const tn_call_errors of_call = {.rows = rows, .count = TN_COUNT(rows)};
static const tn_call_errors of_work = {.rows = rows_of_work, .count = TN_COUNT(rows_of_work), .next = &of_call};
enum { SENDS = false, WAITS = true }; /* whether a call can report what earlier commands met */

/* An in-order queue. Its address is a queue's handle; the address of a device's first queue is the device's. */
typedef struct cl_queue {
    struct cl_device *device;
    void *queue;
    atomic_int unflushed; /* launches since the last flush */
} cl_queue;

typedef struct cl_device {
    cl_queue queue; /* first: the device's handle is this queue's */
    tn_device_lost lost_state;
    void *device, *context;
    tn_memory_budget budget;
    bool software, correctly_rounded;
    tn_address_ranges ranges, pinned; /* memory of the device; of the host, as it was given to callers */
} cl_device;

/* TN_OK, or the failure of a call with these values. */
#define check(d, code, waiting, call, ...) \
    tn_call_check(&(d)->lost_state, (waiting) ? &of_work : &of_call, code, call, __VA_ARGS__)

static tn_status alive(cl_device *d) { return tn_device_lost_check(&d->lost_state); }

enum { FLUSH_EVERY = 16 }; /* launches that a driver may hold back */

/* Has the driver begin with all that the queue was given. */
static tn_status flush(cl_queue *q) {
    atomic_store_explicit(&q->unflushed, 0, memory_order_relaxed);
    return check(q->device, cl.Flush(q->queue), SENDS, "clFlush", "%s", "");
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static bool has_extension(void *device, const char *name) {
    size_t size = 0, n = strlen(name);
    if (cl.GetDeviceInfo(device, DEVICE_EXTENSIONS, 0, NULL, &size) != SUCCESS) return false;
    AUTO_FREE char *text = tn_mem_zalloc(size + 1, 1);
    if (!text) return false;
    bool there = false;
    if (cl.GetDeviceInfo(device, DEVICE_EXTENSIONS, size, text, NULL) == SUCCESS)
        for (const char *at = strstr(text, name); at && !there; at = strstr(at + n, name))
            there = (at == text || at[-1] == ' ') && (at[n] == ' ' || !at[n]);
    return there;
}

static tn_status find_device(int index, found *out) {
    found list[MOST];
    uint32_t platforms;
    int32_t error;
    tn_reason why;
    if (!load_library(false, &why)) return tn_fail(TN_ERR_UNAVAILABLE, "%s; %s", why.text, why.fix);
    int count = list_devices(list, &platforms, &error);
    if (index < 0 || index >= count)
        return tn_fail(TN_ERR_UNAVAILABLE, "opencl:%d does not exist; clGetPlatformIDs (%d) and clGetDeviceIDs find %d",
                       index, error, count);
    *out = list[index];
    return TN_OK;
}

/* Requirements without which the device cannot be used. */
static tn_status check_device(const cl_device *d) {
    char version[64];
    int major = 0, minor = 0;
    ask_text(d->device, DEVICE_VERSION, version, sizeof version);
    if (sscanf(version, "OpenCL %d.%d", &major, &minor) != 2 || major * 10 + minor < 12)
        return tn_fail(TN_ERR_UNSUPPORTED, "%s: the device has \"%s\", but version 1.2 is required; update the driver",
                       d->lost_state.id, version);
    if (!ask_int(d->device, DEVICE_COMPILER_AVAILABLE, 4, 0))
        return tn_fail(TN_ERR_UNSUPPORTED, "%s: the driver has no compiler (CL_DEVICE_COMPILER_AVAILABLE)",
                       d->lost_state.id);
    if (!ask_int(d->device, DEVICE_ENDIAN_LITTLE, 4, 0))
        return tn_fail(TN_ERR_UNSUPPORTED, "%s: big-endian devices are not supported (CL_DEVICE_ENDIAN_LITTLE)",
                       d->lost_state.id);
    return TN_OK;
}

static tn_status queue_start(cl_device *d, cl_queue *q) {
    int32_t error = SUCCESS;
    q->device = d;
    uint64_t profiling = (uint64_t)ask_int(d->device, DEVICE_QUEUE_PROPERTIES, 8, 0) & QUEUE_PROFILING;
    q->queue = cl.CreateCommandQueue(d->context, d->device, profiling, &error);
    return check(d, error, SENDS, "clCreateCommandQueue", "%s", profiling ? "with timing" : "without timing");
}

static tn_status device_start(cl_device *d) {
    void *platform = NULL;
    int32_t error = SUCCESS;
    TRY(check_device(d));
    bool known = ask_opencl(d->device, DEVICE_PLATFORM, &platform, sizeof platform);
    const intptr_t properties[] = {CONTEXT_PLATFORM, (intptr_t)platform, 0};
    d->context = cl.CreateContext(known ? properties : NULL, 1, &d->device, NULL, NULL, &error);
    TRY(check(d, error, SENDS, "clCreateContext", "1 device"));
    d->budget.total = ask_int(d->device, DEVICE_GLOBAL_MEM_SIZE, 8, 0);
    d->correctly_rounded = ask_int(d->device, DEVICE_SINGLE_FP_CONFIG, 8, 0) & FP_CORRECTLY_ROUNDED;
    return queue_start(d, &d->queue);
}

/* Also for a device whose opening failed halfway. */
static void opencl_close(void *device) {
    cl_device *d = device;
    if (d->queue.queue) {
        (void)cl.Finish(d->queue.queue);
        (void)cl.ReleaseCommandQueue(d->queue.queue);
    }
    if (d->context) (void)cl.ReleaseContext(d->context);
    tn_address_ranges_close(&d->ranges);
    tn_address_ranges_close(&d->pinned);
    tn_device_lost_close(&d->lost_state);
    tn_mem_free(d);
}

static tn_status opencl_open(int index, TN_UNUSED const tn_device_options *options, void **device) {
    found f;
    TRY(find_device(index, &f));
    cl_device *d = tn_mem_zalloc(1, sizeof *d);
    if (!d) return TN_ERR_MEMORY;
    d->device = f.device;
    d->software = is_software(&f);
    tn_device_lost_open(&d->lost_state, "opencl", index);
    tn_address_ranges_open(&d->ranges);
    tn_address_ranges_open(&d->pinned);
    return tn_hand_out_device(device_start(d), d, opencl_close, device);
}

/* ---- what the device can do -------------------------------------------------------------------------------------- */

static const char LANGUAGE[] = "-cl-std=CL1.2 -w"; /* x == x is how kernels look for a NaN: no warnings */
static const char ROUNDED[] = " -cl-fp32-correctly-rounded-divide-sqrt";

/* Words that name driver and compiler, shortened, and a hash of all of them. */
static void version_of(const cl_device *d, char *out, size_t size) {
    char driver[128], device[256], all[400];
    ask_text(d->device, DRIVER_VERSION, driver, sizeof driver);
    ask_text(d->device, DEVICE_VERSION, device, sizeof device);
    snprintf(all, sizeof all, "%s %s", driver, device);
    uint64_t hash = tn_hash64(all, strlen(all), d->correctly_rounded);
    snprintf(out, size, "%.70s %016llx", all, (unsigned long long)hash);
}

/* Items that run in step, where the vendor says so. */
static int64_t subgroup_of(const cl_device *d) {
    int64_t nvidia = ask_int(d->device, DEVICE_WARP_SIZE_NV, 4, 0);
    return nvidia ? nvidia : ask_int(d->device, DEVICE_WAVEFRONT_AMD, 4, 0);
}

static int64_t group_of(const cl_device *d) {
    size_t most[3] = {0};
    int64_t group = ask_int(d->device, DEVICE_MAX_WORK_GROUP_SIZE, sizeof(size_t), 1);
    if (ask_opencl(d->device, DEVICE_MAX_WORK_ITEM_SIZES, most, sizeof most)) group = tn_min64(group, (int64_t)most[0]);
    return group;
}

static bool is_exact(const cl_device *d) {
    int64_t all = FP_DENORM | FP_INF_NAN | FP_ROUND_TO_NEAREST | FP_FMA | FP_CORRECTLY_ROUNDED;
    return (ask_int(d->device, DEVICE_SINGLE_FP_CONFIG, 8, 0) & all) == all;
}

enum {
    ITEMS_AT_ONCE_LOG2 = 31, /* of one launch: what 32-bit counters of drivers hold */
    GROUP_LOG2 = 10,         /* the largest workgroup that kernels ask for */
    LEAST_PARAMETERS = 1024  /* bytes, promised by OpenCL 1.2 */
};

static tn_status opencl_caps(void *device, tn_caps *out) {
    cl_device *d = ((cl_queue *)device)->device;
    char profile[32];
    ask_text(d->device, DEVICE_PROFILE, profile, sizeof profile);
    int64_t parameters = ask_int(d->device, DEVICE_MAX_PARAMETER_SIZE, sizeof(size_t), LEAST_PARAMETERS);
    *out = (tn_caps){
        .struct_size = sizeof *out,
        .code = TN_CODE_OPENCL_C,
        .f64 = ask_int(d->device, DEVICE_DOUBLE_FP_CONFIG, 8, 0) != 0 || has_extension(d->device, "cl_khr_fp64"),
        .f16 = has_extension(d->device, "cl_khr_fp16"),
        .i64 = !strcmp(profile, "FULL_PROFILE") || has_extension(d->device, "cles_khr_int64"),
        .max_buffer = ask_int(d->device, DEVICE_MAX_MEM_ALLOC_SIZE, 8, (int64_t)128 << 20),
        .max_group = group_of(d),
        .shared_memory = ask_int(d->device, DEVICE_LOCAL_MEM_SIZE, 8, 0),
        .alignment = 64, /* offsets are added in the kernel, so this is taste */
        .max_bindings = (int)(parameters / 8 - 1),
        .max_groups_x = (int64_t)1 << (ITEMS_AT_ONCE_LOG2 - GROUP_LOG2),
        .subgroup = subgroup_of(d),
        .exact = is_exact(d),
    };
    version_of(d, out->version, sizeof out->version);
    return TN_OK;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static tn_status opencl_alloc(void *device, size_t bytes, void **address) {
    cl_device *d = ((cl_queue *)device)->device;
    int32_t error = SUCCESS;
    size_t size = bytes ? bytes : 1;
    TRY(alive(d));
    TRY(tn_memory_budget_take(&d->budget, d->lost_state.id, size));
    void *memory = cl.CreateBuffer(d->context, MEM_READ_WRITE, size, NULL, &error);
    tn_status s = check(d, error, SENDS, "clCreateBuffer", "%zu bytes", bytes);
    if (s == TN_OK) s = tn_address_range_add(&d->ranges, memory, size, address);
    if (s == TN_OK) return TN_OK;
    if (memory && error == SUCCESS) (void)cl.ReleaseMemObject(memory);
    tn_memory_budget_give(&d->budget, (int64_t)size);
    return s;
}

static void opencl_free(void *device, void *address) {
    cl_device *d = ((cl_queue *)device)->device;
    size_t bytes = 0;
    void *memory = tn_address_range_remove(&d->ranges, address, &bytes);
    if (!memory) return;
    (void)cl.ReleaseMemObject(memory);
    tn_memory_budget_give(&d->budget, (int64_t)bytes);
}

/* The handle and offset of `bytes` bytes at a device address. */
static tn_status locate_opencl(cl_device *d, const void *address, size_t bytes, const char *role, void **memory,
                               size_t *at) {
    return tn_address_range_locate(&d->ranges, d->lost_state.id, role, address, bytes, memory, at);
}

static tn_status copy_within(cl_queue *q, void *to, size_t to_at, const void *src, size_t bytes) {
    cl_device *d = q->device;
    void *from;
    size_t from_at;
    TRY(locate_opencl(d, src, bytes, "copying", &from, &from_at));
    int32_t error = cl.EnqueueCopyBuffer(q->queue, from, to, from_at, to_at, bytes, 0, NULL, NULL);
    return check(d, error, SENDS, "clEnqueueCopyBuffer", "%zu bytes from byte %zu to byte %zu", bytes, from_at, to_at);
}

/* To the host and from it; the call returns when it is done (`blocking`), or at once. */
static tn_status transfer(cl_queue *q, void *dst, const void *src, size_t bytes, int kind, bool blocking) {
    cl_device *d = q->device;
    void *memory;
    size_t at;
    TRY(alive(d));
    if (!bytes) return TN_OK;
    TRY(locate_opencl(d, kind == 1 ? src : dst, bytes, "copying", &memory, &at));
    if (kind == 2) return copy_within(q, memory, at, src, bytes);
    if (kind == 1)
        return check(d, cl.EnqueueReadBuffer(q->queue, memory, blocking, at, bytes, dst, 0, NULL, NULL), blocking,
                     "clEnqueueReadBuffer", "%zu bytes from byte %zu", bytes, at);
    return check(d, cl.EnqueueWriteBuffer(q->queue, memory, blocking, at, bytes, src, 0, NULL, NULL), blocking,
                 "clEnqueueWriteBuffer", "%zu bytes to byte %zu", bytes, at);
}

static tn_status opencl_copy(void *queue, void *dst, const void *src, size_t bytes, int kind) {
    return transfer(queue, dst, src, bytes, kind, true);
}

static tn_status opencl_copy_async(void *queue, void *dst, const void *src, size_t bytes, int kind) {
    TRY(transfer(queue, dst, src, bytes, kind, false));
    return flush(queue);
}

static tn_status opencl_fill(void *queue, void *dst, uint8_t value, size_t bytes) {
    cl_queue *q = queue;
    cl_device *d = q->device;
    void *memory;
    size_t at;
    TRY(alive(d));
    if (!bytes) return TN_OK;
    TRY(locate_opencl(d, dst, bytes, "filling", &memory, &at));
    return check(d, cl.EnqueueFillBuffer(q->queue, memory, &value, 1, at, bytes, 0, NULL, NULL), SENDS,
                 "clEnqueueFillBuffer", "%zu bytes from byte %zu", bytes, at);
}

/* The host's view of a part of a memory object, once all before it is done. */
static tn_status map_handle(cl_device *d, void *memory, size_t at, size_t bytes, uint64_t flags, void **host) {
    int32_t error = SUCCESS;
    void *view = cl.EnqueueMapBuffer(d->queue.queue, memory, true, flags, at, bytes, 0, NULL, NULL, &error);
    TRY(check(d, error, WAITS, "clEnqueueMapBuffer", "%zu bytes from byte %zu", bytes, at));
    *host = view;
    return TN_OK;
}

static tn_status unmap_handle(cl_device *d, void *memory, void *host) {
    TRY(check(d, cl.EnqueueUnmapMemObject(d->queue.queue, memory, host, 0, NULL, NULL), SENDS,
              "clEnqueueUnmapMemObject", "%p", host));
    return flush(&d->queue);
}

static tn_status opencl_map(void *device, void *address, size_t bytes, bool read, void **host) {
    cl_device *d = ((cl_queue *)device)->device;
    void *memory;
    size_t at;
    TRY(alive(d));
    TRY(locate_opencl(d, address, bytes, "mapping", &memory, &at));
    return map_handle(d, memory, at, bytes, read ? MAP_READ_WRITE : MAP_OVERWRITE, host);
}

static tn_status opencl_unmap(void *device, void *address, void *host) {
    cl_device *d = ((cl_queue *)device)->device;
    void *memory;
    size_t at;
    TRY(locate_opencl(d, address, 0, "unmapping", &memory, &at));
    return unmap_handle(d, memory, host);
}

/* Pinned memory: a memory object that lives on the host and stays mapped. */
static tn_status opencl_host_alloc(void *device, size_t bytes, void **host) {
    cl_device *d = ((cl_queue *)device)->device;
    int32_t error = SUCCESS;
    TRY(alive(d));
    size_t size = bytes ? bytes : 1;
    void *memory = cl.CreateBuffer(d->context, MEM_READ_WRITE | MEM_ALLOC_HOST_PTR, size, NULL, &error), *view = NULL;
    TRY(check(d, error, SENDS, "clCreateBuffer", "%zu bytes of host memory", bytes));
    tn_status s = map_handle(d, memory, 0, size, MAP_READ_WRITE, &view);
    if (s == TN_OK) s = tn_address_range_add_host(&d->pinned, memory, size, view);
    if (s == TN_OK) {
        *host = view;
        return TN_OK;
    }
    if (view) (void)unmap_handle(d, memory, view);
    (void)cl.ReleaseMemObject(memory);
    return s;
}

static void opencl_host_free(void *device, void *host) {
    cl_device *d = ((cl_queue *)device)->device;
    size_t bytes;
    void *memory = tn_address_range_remove(&d->pinned, host, &bytes);
    if (!memory) return;
    (void)unmap_handle(d, memory, host);
    (void)cl.ReleaseMemObject(memory);
}

static tn_status opencl_memory(void *device, int64_t *total, int64_t *unused) {
    cl_device *d = ((cl_queue *)device)->device;
    size_t amd[2] = {0}; /* KiB: in all, and the largest piece */
    *total = d->budget.total;
    *unused = tn_memory_budget_left(&d->budget, false);
    if (ask_opencl(d->device, DEVICE_FREE_MEMORY_AMD, amd, sizeof amd))
        *unused = tn_min64(*unused, (int64_t)amd[0] << 10);
    if (d->software) *unused = tn_min64(*unused, tn_host_memory_now().unused);
    return TN_OK;
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

typedef struct cl_module {
    void *program, *kernel;
    pthread_mutex_t lock; /* from the first clSetKernelArg of a launch until it is enqueued; guards params, binary */
    char name[48];
    int buffer_count;
    size_t group[3];
    size_t params_bytes, bases_at;
    bool params_in_buffer;
    void *binary;
    size_t binary_size;
    uint64_t params[]; /* the struct that the next launch binds */
} cl_module;

static void opencl_unload(TN_UNUSED void *device, void *module) {
    cl_module *m = module;
    if (m->kernel) (void)cl.ReleaseKernel(m->kernel);
    if (m->program) (void)cl.ReleaseProgram(m->program);
    pthread_mutex_destroy(&m->lock);
    tn_mem_free_each(m->binary, m);
}

/* The compiler's words, on one line and cut to what an error text holds. */
static void build_log(const cl_device *d, void *program, char *out, size_t size) {
    size_t needed = 0;
    snprintf(out, size, "the compiler gave no message");
    if (cl.GetProgramBuildInfo(program, d->device, PROGRAM_BUILD_LOG, 0, NULL, &needed) != SUCCESS || needed < 2)
        return;
    char *log = tn_mem_zalloc(needed + 1, 1);
    if (!log) return;
    if (cl.GetProgramBuildInfo(program, d->device, PROGRAM_BUILD_LOG, needed, log, NULL) == SUCCESS && log[0])
        snprintf(out, size, "%s", log);
    for (char *c = out; *c; c++)
        if (*c == '\n') *c = '|';
    tn_mem_free(log);
}

static tn_status build_opencl(cl_device *d, const cl_module *m, const char *more) {
    char options[256], log[640];
    snprintf(options, sizeof options, "%s%s%s%s", LANGUAGE, d->correctly_rounded ? ROUNDED : "", more[0] ? " " : "",
             more);
    int32_t error = cl.BuildProgram(m->program, 1, &d->device, options, NULL, NULL);
    if (error == SUCCESS) return TN_OK;
    build_log(d, m->program, log, sizeof log);
    tn_status s = check(d, error, SENDS, "clBuildProgram", "%s", options);
    return tn_fail_prefix(s, "%s: compiling failed: %s", m->name, log);
}

/* A binary that the driver no longer accepts is not an error: false, and the source is compiled. */
static bool program_from_binary(cl_device *d, const tn_code *code, cl_module *m) {
    const unsigned char *bytes = code->binary;
    int32_t status = SUCCESS, error = SUCCESS;
    if (!bytes || !code->binary_size) return false;
    void *program = cl.CreateProgramWithBinary(d->context, 1, &d->device, &code->binary_size, &bytes, &status, &error);
    m->program = error == SUCCESS ? program : NULL;
    if (m->program && status == SUCCESS && build_opencl(d, m, code->options ? code->options : "") == TN_OK) return true;
    if (m->program) (void)cl.ReleaseProgram(m->program);
    m->program = NULL;
    return false;
}

static tn_status program_from_source(cl_device *d, const tn_code *code, cl_module *m) {
    const char *text = code->data;
    int32_t error = SUCCESS;
    void *program = cl.CreateProgramWithSource(d->context, 1, &text, &code->size, &error);
    TRY(check(d, error, SENDS, "clCreateProgramWithSource", "%s, %zu bytes", m->name, code->size));
    m->program = program;
    return build_opencl(d, m, code->options ? code->options : "");
}

/* Registers can leave less room for items than the device has. */
static tn_status check_group(cl_device *d, const cl_module *m) {
    size_t most = 0, wanted = m->group[0] * m->group[1] * m->group[2];
    int32_t error = cl.GetKernelWorkGroupInfo(m->kernel, d->device, KERNEL_WORK_GROUP_SIZE, sizeof most, &most, NULL);
    if (error != SUCCESS || wanted <= most) return TN_OK;
    return tn_fail(TN_ERR_UNSUPPORTED, "%s: %s needs workgroups of %zu items; the device supports at most %zu for it",
                   d->lost_state.id, m->name, wanted, most);
}

static tn_status module_start(cl_device *d, const tn_code *code, cl_module *m) {
    int32_t error = SUCCESS;
    if (!program_from_binary(d, code, m)) TRY(program_from_source(d, code, m));
    void *kernel = cl.CreateKernel(m->program, code->entry, &error);
    TRY(check(d, error, SENDS, "clCreateKernel", "%s", code->entry));
    m->kernel = kernel;
    return check_group(d, m);
}

static tn_status opencl_load(void *device, const tn_code *code, void **module) {
    cl_device *d = ((cl_queue *)device)->device;
    TRY(alive(d));
    cl_module *m = tn_mem_zalloc(1, sizeof *m + code->params_bytes);
    if (!m) return TN_ERR_MEMORY;
    pthread_mutex_init(&m->lock, NULL);
    snprintf(m->name, sizeof m->name, "%s", code->entry);
    m->buffer_count = code->buffer_count;
    m->params_bytes = code->params_bytes;
    m->bases_at = code->bases_at;
    m->params_in_buffer = code->params_in_buffer;
    for (int i = 0; i < 3; i++)
        m->group[i] = code->group[i] ? code->group[i] : 1;
    return tn_hand_out(module_start(d, code, m), m, opencl_unload, d, module);
}

static tn_status fetch_binary(cl_device *d, cl_module *m) {
    size_t size = 0;
    TRY(check(d, cl.GetProgramInfo(m->program, PROGRAM_BINARY_SIZES, sizeof size, &size, NULL), SENDS,
              "clGetProgramInfo", "CL_PROGRAM_BINARY_SIZES of %s", m->name));
    if (!size) return tn_fail(TN_ERR_UNSUPPORTED, "%s: the driver does not return program binaries", d->lost_state.id);
    void *bytes = tn_mem_alloc(size);
    if (!bytes) return TN_ERR_MEMORY;
    tn_status s = check(d, cl.GetProgramInfo(m->program, PROGRAM_BINARIES, sizeof bytes, &bytes, NULL), SENDS,
                        "clGetProgramInfo", "CL_PROGRAM_BINARIES of %s, %zu bytes", m->name, size);
    if (s != TN_OK) {
        tn_mem_free(bytes);
        return s;
    }
    m->binary = bytes;
    m->binary_size = size;
    return TN_OK;
}

static tn_status opencl_binary(void *device, void *module, void **data, size_t *size) {
    cl_device *d = ((cl_queue *)device)->device;
    cl_module *m = module;
    TRY(alive(d));
    pthread_mutex_lock(&m->lock);
    tn_status s = m->binary ? TN_OK : fetch_binary(d, m);
    pthread_mutex_unlock(&m->lock);
    *data = m->binary;
    *size = m->binary_size;
    return s;
}

/* ---- launches ---------------------------------------------------------------------------------------------------- */

/* Sets the kernel's buffers and adds each one's offset within its handle to its base. The caller holds the lock. */
static tn_status bind_buffers(cl_device *d, cl_module *m, const tn_dispatch *l) {
    uint64_t *bases = m->params + m->bases_at / sizeof *bases;
    for (int i = 0; i < m->buffer_count; i++) {
        void *memory = NULL;
        size_t at = 0;
        if (l->buffers[i]) TRY(locate_opencl(d, l->buffers[i], 0, m->name, &memory, &at));
        TRY(check(d, cl.SetKernelArg(m->kernel, (uint32_t)i, sizeof memory, &memory), SENDS, "clSetKernelArg",
                  "%s, buffer %d", m->name, i));
        bases[i] += at;
    }
    return TN_OK;
}

/* Sets the parameters after the buffers: by value, or in a separate buffer that the launch keeps alive. */
static tn_status bind_params(cl_device *d, cl_module *m, void **params) {
    const void *value = m->params;
    size_t size = m->params_bytes;
    int32_t error = SUCCESS;
    if (!size) return TN_OK;
    if (m->params_in_buffer) {
        void *memory = cl.CreateBuffer(d->context, MEM_READ_ONLY | MEM_COPY_HOST_PTR, size, m->params, &error);
        TRY(check(d, error, SENDS, "clCreateBuffer", "%zu bytes of parameters", size));
        *params = memory;
        value = params;
        size = sizeof *params;
    }
    return check(d, cl.SetKernelArg(m->kernel, (uint32_t)m->buffer_count, size, value), SENDS, "clSetKernelArg",
                 "%s, %zu bytes of parameters", m->name, size);
}

/* Starts one launch. The caller holds the lock. */
static tn_status enqueue(cl_queue *q, cl_module *m, const tn_dispatch *l, void **params) {
    cl_device *d = q->device;
    size_t global[3];
    uint32_t dimensions = 1;
    for (uint32_t i = 0; i < 3; i++) {
        global[i] = m->group[i] * l->groups[i];
        if (global[i] != 1) dimensions = i + 1;
    }
    if (m->params_bytes) memcpy(m->params, l->params, m->params_bytes);
    TRY(bind_buffers(d, m, l));
    TRY(bind_params(d, m, params));
    int32_t error = cl.EnqueueNDRangeKernel(q->queue, m->kernel, dimensions, NULL, global, m->group, 0, NULL, NULL);
    return check(d, error, SENDS, "clEnqueueNDRangeKernel", "%s, %zu x %zu x %zu items in groups of %zu x %zu x %zu",
                 m->name, global[0], global[1], global[2], m->group[0], m->group[1], m->group[2]);
}

static tn_status dispatch_one(cl_queue *q, cl_module *m, const tn_dispatch *l) {
    void *params = NULL;
    if (!l->groups[0] || !l->groups[1] || !l->groups[2]) return TN_OK;
    tn_status s = enqueue(q, m, l, &params);
    if (params) (void)cl.ReleaseMemObject(params);
    return s;
}

static tn_status opencl_dispatch(void *queue, void *module, const tn_dispatch *dispatches, int64_t count) {
    cl_queue *q = queue;
    cl_module *m = module;
    tn_status s = alive(q->device);
    pthread_mutex_lock(&m->lock);
    for (int64_t i = 0; i < count && s == TN_OK; i++)
        s = dispatch_one(q, m, &dispatches[i]);
    pthread_mutex_unlock(&m->lock);
    int held = (int)tn_min64(count, FLUSH_EVERY);
    if (s == TN_OK && atomic_fetch_add_explicit(&q->unflushed, held, memory_order_relaxed) + held >= FLUSH_EVERY)
        s = flush(q);
    return s;
}

static tn_status opencl_sync(void *queue) {
    cl_queue *q = queue;
    TRY(alive(q->device));
    return check(q->device, cl.Finish(q->queue), WAITS, "clFinish", "%s", "");
}

/* ---- queues and events ------------------------------------------------------------------------------------------- */

static void opencl_queue_free(TN_UNUSED void *device, void *queue) {
    cl_queue *q = queue;
    if (q->queue) (void)cl.ReleaseCommandQueue(q->queue);
    tn_mem_free(q);
}

static tn_status opencl_queue_new(void *device, void **queue) {
    cl_device *d = ((cl_queue *)device)->device;
    TRY(alive(d));
    cl_queue *q = tn_mem_zalloc(1, sizeof *q);
    if (!q) return TN_ERR_MEMORY;
    return tn_hand_out(queue_start(d, q), q, opencl_queue_free, d, queue);
}

/* The latest marker; NULL before the first, which counts as passed. */
typedef struct cl_point {
    void *event;
} cl_point;

static tn_status opencl_event_new(TN_UNUSED void *device, bool timed, void **event) {
    (void)timed; /* every queue that can notes times */
    *event = tn_mem_zalloc(1, sizeof(cl_point));
    return *event ? TN_OK : TN_ERR_MEMORY;
}

static void opencl_event_free(TN_UNUSED void *device, void *event) {
    cl_point *m = event;
    if (m->event) (void)cl.ReleaseEvent(m->event);
    tn_mem_free(m);
}

/* Flushed at once: another queue may wait for it. */
static tn_status opencl_event_record(void *queue, void *event) {
    cl_queue *q = queue;
    cl_point *m = event;
    void *made = NULL;
    TRY(alive(q->device));
    TRY(check(q->device, cl.EnqueueMarkerWithWaitList(q->queue, 0, NULL, &made), SENDS, "clEnqueueMarkerWithWaitList",
              "%s", ""));
    if (m->event) (void)cl.ReleaseEvent(m->event);
    m->event = made;
    return flush(q);
}

static tn_status opencl_event_wait(void *queue, void *event) {
    cl_queue *q = queue;
    const cl_point *m = event;
    TRY(alive(q->device));
    if (!m->event) return TN_OK;
    return check(q->device, cl.EnqueueBarrierWithWaitList(q->queue, 1, &m->event, NULL), SENDS,
                 "clEnqueueBarrierWithWaitList", "1 event");
}

/* State of the work up to the timeline point: 0 completed, below 0 an error, else not completed. */
static tn_status point_status(cl_device *d, const cl_point *m, int32_t *status) {
    TRY(check(d, cl.GetEventInfo(m->event, EVENT_STATUS, sizeof *status, status, NULL), SENDS, "clGetEventInfo",
              "CL_EVENT_COMMAND_EXECUTION_STATUS"));
    return check(d, *status < 0 ? *status : SUCCESS, WAITS, "the work before an event", "%s", "");
}

static tn_status opencl_event_query(void *device, void *event, bool *passed) {
    cl_device *d = ((cl_queue *)device)->device;
    const cl_point *m = event;
    int32_t status = SUCCESS;
    TRY(alive(d));
    if (m->event) TRY(point_status(d, m, &status));
    *passed = status == SUCCESS;
    return TN_OK;
}

static tn_status opencl_event_sync(void *device, void *event) {
    cl_device *d = ((cl_queue *)device)->device;
    const cl_point *m = event;
    int32_t status;
    TRY(alive(d));
    if (!m->event) return TN_OK;
    int32_t error = cl.WaitForEvents(1, &m->event);
    if (error != SUCCESS) TRY(point_status(d, m, &status)); /* knows more than that some event failed */
    return check(d, error, WAITS, "clWaitForEvents", "1 event");
}

static tn_status opencl_event_time(void *device, void *event, double *seconds) {
    cl_device *d = ((cl_queue *)device)->device;
    const cl_point *m = event;
    uint64_t nanoseconds = 0;
    if (!m->event)
        return tn_fail(TN_ERR_STATE, "%s: cannot read the time of an event that was never recorded", d->lost_state.id);
    TRY(check(d, cl.GetEventProfilingInfo(m->event, PROFILING_END, sizeof nanoseconds, &nanoseconds, NULL), SENDS,
              "clGetEventProfilingInfo", "CL_PROFILING_COMMAND_END"));
    *seconds = (double)nanoseconds * 1e-9;
    return TN_OK;
}

/* ---- the driver -------------------------------------------------------------------------------------------------- */

const tn_driver tn_driver_opencl = {
    .struct_size = sizeof(tn_driver),
    .abi = TN_BACKEND_ABI,
    .name = "opencl",
    .title = "OpenCL",
    .probe = opencl_probe,
    .open = opencl_open,
    .close = opencl_close,
    .caps = opencl_caps,
    .alloc = opencl_alloc,
    .free = opencl_free,
    .load = opencl_load,
    .unload = opencl_unload,
    .copy = opencl_copy,
    .sync = opencl_sync,
    .memory = opencl_memory,
    .watch = opencl_watch,
    .isolate = TN_PROBE_ISOLATE,
    .dispatch = opencl_dispatch,
    .binary = opencl_binary,
    .queue_new = opencl_queue_new,
    .queue_free = opencl_queue_free,
    .event_new = opencl_event_new,
    .event_free = opencl_event_free,
    .event_record = opencl_event_record,
    .event_wait = opencl_event_wait,
    .event_query = opencl_event_query,
    .event_sync = opencl_event_sync,
    .event_time = opencl_event_time,
    .copy_async = opencl_copy_async,
    .fill = opencl_fill,
    .host_alloc = opencl_host_alloc,
    .host_free = opencl_host_free,
    .map = opencl_map,
    .unmap = opencl_unmap,
};

#endif
