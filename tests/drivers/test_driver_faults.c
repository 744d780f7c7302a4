/* test_driver_faults.c — every call that a driver makes of its library fails once: it ends with a reason or a right
 * result, and nothing is left behind. A driver is a row; between it and its library stands one of tests/fakes, which
 * counts. */
#include <dlfcn.h>
#include <glob.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>

#include "device_support.h"
#include "drivers/drivers.h"
#include "hal/kernel_code.h"
#include "trunnion/trunnion.h"

/* A call that fails with `error`: what the work then ends with, and words of its text. */
typedef struct failing {
    const char *name;
    int error;
    tn_status status;
    const char *part;
} failing;

static const struct under_test {
    const char *id;
    const tn_driver *driver;
    const char *variable, *fake; /* which is one of tests/fakes, or of the doubles that were built */
    const char *also;            /* a further library that the same file plays */
    int codes[6];                /* that any call fails with */
    int objects;                 /* of a device with one allocation */
    int every;                   /* one of so many calls fails, but in full runs: some take long to open */
    failing lost;                /* in sync */
    failing rows[10];
} drivers[] = {
#if TRUNNION_WITH_OPENCL
    {"opencl:0",
     &tn_driver_opencl,
     "TRUNNION_OPENCL_LIB",
     "opencl_faults.c",
     NULL,
     {-5, -4, -6, -2, -36, -59},
     3,
     1, /* a context, a queue, a buffer */
     {"clFinish", -5, TN_ERR_LOST, "clFinish"},
     {
         {"clCreateBuffer", -4, TN_ERR_MEMORY, "smaller batch"},
         {"clCreateBuffer", -61, TN_ERR_MEMORY, "CL_INVALID_BUFFER_SIZE"},
         {"clEnqueueNDRangeKernel", -5, TN_ERR_MEMORY, "CL_OUT_OF_RESOURCES"},
         {"clEnqueueNDRangeKernel", -54, TN_ERR_UNSUPPORTED, "items in groups"},
         {"clFinish", -5, TN_ERR_LOST, "the device is lost"},
         {"clEnqueueReadBuffer", -9999, TN_ERR_LOST, "illegal access"},
         {"clSetKernelArg", -2, TN_ERR_LOST, "CL_DEVICE_NOT_AVAILABLE"},
         {"clBuildProgram", -11, TN_ERR_UNSUPPORTED, "compiling"},
         {"clCreateContext", -77, TN_ERR_DEVICE, "clCreateContext"},
     }},
#endif
#if TRUNNION_WITH_VULKAN
    {"vulkan:0",
     &tn_driver_vulkan,
     "TRUNNION_VULKAN_LIB",
     "vulkan_faults.c",
     NULL,
     {-1, -2, -4, -3, -13, -7},
     36,
     1, /* device, pool of command buffers, 8 slots of 4, buffer and memory */
     {"vkWaitForFences", -4, TN_ERR_LOST, "vkWaitForFences"},
     {
         {"vkAllocateMemory", -2, TN_ERR_MEMORY, "smaller batch"},
         {"vkCreateBuffer", -1, TN_ERR_MEMORY, "VK_ERROR_OUT_OF_HOST_MEMORY"},
         {"vkMapMemory", -5, TN_ERR_MEMORY, "vkMapMemory"},
         {"vkAllocateDescriptorSets", -1000069000, TN_ERR_MEMORY, "VK_ERROR_OUT_OF_POOL_MEMORY"},
         {"vkQueueSubmit", -4, TN_ERR_LOST, "the device is lost"},
         {"vkQueueSubmit", -2, TN_ERR_LOST, "the work submitted to it"},
         {"vkWaitForFences", -4, TN_ERR_LOST, "VK_ERROR_DEVICE_LOST"},
         {"vkCreateComputePipelines", -13, TN_ERR_UNSUPPORTED, "refused"},
         {"vkCreateShaderModule", -1000012000, TN_ERR_UNSUPPORTED, "refused"},
         {"vkCreateDevice", -7, TN_ERR_DEVICE, "vkCreateDevice"},
     }},
#endif
#if TRUNNION_WITH_CUDA
    {"cuda:0",
     &tn_driver_cuda,
     "TRUNNION_CUDA_LIB",
     "cuda.so",
     "TRUNNION_NVRTC_LIB",
     {2, 999, 719, 1, 700, 304},
     3,
     1, /* the context, a stream, an allocation */
     {"cuStreamSynchronize", 700, TN_ERR_LOST, "cuStreamSynchronize"},
     {
         {"cuMemAlloc_v2", 2, TN_ERR_MEMORY, "smaller batch"},
         {"cuMemHostAlloc", 2, TN_ERR_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
         {"cuLaunchKernel", 701, TN_ERR_DEVICE, "workgroups of 64 x 1 x 1 items"},
         {"cuStreamSynchronize", 719, TN_ERR_LOST, "the device is lost"},
         {"cuMemcpyDtoHAsync_v2", 700, TN_ERR_LOST, "CUDA_ERROR_ILLEGAL_ADDRESS"},
         {"nvrtcCompileProgram", 6, TN_ERR_UNSUPPORTED, "compiling"},
         {"cuModuleLoadData", 222, TN_ERR_UNSUPPORTED, "incompatible"},
         {"cuDevicePrimaryCtxRetain", 46, TN_ERR_UNAVAILABLE, "exclusively"},
     }},
#endif
#if TRUNNION_WITH_ROCM
    {"rocm:0",
     &tn_driver_rocm,
     "TRUNNION_ROCM_LIB",
     "rocm.so",
     "TRUNNION_HIPRTC_LIB",
     {2, 999, 719, 1, 700, 304},
     2,
     1, /* a stream, an allocation */
     {"hipStreamSynchronize", 700, TN_ERR_LOST, "hipStreamSynchronize"},
     {
         {"hipMalloc", 2, TN_ERR_MEMORY, "smaller batch"},
         {"hipHostMalloc", 2, TN_ERR_MEMORY, "hipErrorOutOfMemory"},
         {"hipStreamSynchronize", 719, TN_ERR_LOST, "the device is lost"},
         {"hipMemcpyDtoHAsync", 700, TN_ERR_LOST, "hipErrorIllegalAddress"},
         {"hiprtcCompileProgram", 6, TN_ERR_UNSUPPORTED, "compiling"},
         {"hipModuleLoadData", 209, TN_ERR_UNSUPPORTED, "incompatible"},
     }},
#endif
#if TRUNNION_WITH_WEBGPU
    {"webgpu:0",
     &tn_driver_webgpu,
     "TRUNNION_WEBGPU_LIB",
     "wgpu_faults.c",
     NULL,
     {2, 3, 4, 100, 3, 2},
     13, /* instance, device, queue, 4 buffers, 2 layouts of 2, a kernel to patch with, a bind group */
     7,
     {"wgpuQueueSubmit", 2, TN_ERR_LOST, "wgpuQueueSubmit"},
     {
         {"wgpuDeviceCreateBuffer", 3, TN_ERR_MEMORY, "smaller batch"},
         {"wgpuDeviceCreateShaderModule", 2, TN_ERR_UNSUPPORTED, "compiling"},
         {"wgpuDeviceCreateComputePipeline", 4, TN_ERR_UNSUPPORTED, "compiling"},
         {"wgpuDeviceCreateBindGroup", 2, TN_ERR_DEVICE, "wgpuDeviceCreateBindGroup"},
         {"wgpuAdapterRequestDevice", 4, TN_ERR_DEVICE, "wgpuAdapterRequestDevice"},
         {"wgpuBufferMapAsync", 4, TN_ERR_DEVICE, "wgpuBufferMapAsync"},
         {"wgpuQueueSubmit", 2, TN_ERR_LOST, "the device is lost"},
         {"wgpuQueueSubmit", 100, TN_ERR_LOST, "a test took it away"},
         {"wgpuCommandEncoderFinish", 2, TN_ERR_LOST, "the device is lost"},
     }},
#endif
};

/* The driver whose turn it is, and what tests/fakes/faults.h describes of the library behind it. */
static const struct under_test *now;
static struct {
    void (*arm)(const char *name, long n, int error, int forever);
    long (*counted)(void), (*live)(void), (*failures)(void);
} faults;

static bool there[TN_COUNT(drivers)];
static void *libraries[TN_COUNT(drivers)];

/* A double lies in `doubles`, beside this program. */
static const char *double_path(const char *name) {
    static char path[700];
    ssize_t n = readlink("/proc/self/exe", path, 500);
    assert_true(n > 0);
    path[n] = 0;
    snprintf(strrchr(path, '/'), 200, "/doubles/%s", name);
    return path;
}

/* What the fake of a driver is built with. wgpu-native lies behind it: what the environment names, or tools/setup.sh
 * fetched. Sanitizers would find what that library keeps. */
static const char *fake_flags(const struct under_test *t) {
    static char flags[700];
    const char *path = getenv(t->variable);
    glob_t found = {0};
    if (strcmp(t->fake, "wgpu_faults.c") != 0) return "-ldl";
    if (!path && !glob(".deps/venv/lib/python3*/site-packages/wgpu/resources/libwgpu_native*", 0, NULL, &found))
        path = found.gl_pathv[0];
    char *whole = path && !TEST_SANITIZED ? realpath(path, NULL) : NULL;
    snprintf(flags, sizeof flags, "-Isrc -Wl,--no-as-needed %s -ldl", whole ? whole : "");
    free(whole);
    globfree(&found);
    return flags;
}

static int open_faults(void **state) {
    if (make_scratch(state)) return -1;
    setenv("TRUNNION_CACHE", test_scratch("cache"), 1);
    setenv("DOUBLE_DEVICES", "2", 1);
    for (size_t i = 0; i < TN_COUNT(drivers); i++) {
        char name[64];
        snprintf(name, sizeof name, "lib%s.so", drivers[i].driver->name);
        const char *path = strstr(drivers[i].fake, ".so") ? double_path(drivers[i].fake)
                                                          : build_fake(drivers[i].fake, name, fake_flags(&drivers[i]));
        setenv(drivers[i].variable, path, 1);
        if (drivers[i].also) setenv(drivers[i].also, path, 1);
        libraries[i] = dlopen(path, RTLD_NOW);
        if (!libraries[i]) fail_msg("%s", dlerror());
        tn_device_info info;
        tn_probe probe = {.struct_size = sizeof probe, .devices = &info, .capacity = 1};
        drivers[i].driver->probe(&probe);
        there[i] = probe.count > 0;
        if (there[i])
            printf("ran on: %s (%s, software): driver calls that fail\n", drivers[i].id, info.name);
        else
            printf("skipped: no device of %s: %s\n", drivers[i].driver->title, probe.reason);
    }
    return 0;
}

/* Runs the body for each driver that has a device here. */
static void for_each_driver(void (*body)(void)) {
    int ran = 0;
    for (size_t i = 0; i < TN_COUNT(drivers); i++) {
        if (!there[i]) continue;
        now = &drivers[i];
        *(void **)&faults.arm = dlsym(libraries[i], "faults_arm");
        *(void **)&faults.counted = dlsym(libraries[i], "faults_counted");
        *(void **)&faults.live = dlsym(libraries[i], "faults_live");
        *(void **)&faults.failures = dlsym(libraries[i], "faults_failures");
        body();
        ran++;
    }
    if (!ran) skip();
}

/* ---- the driver alone -------------------------------------------------------------------------------------------- */

enum { N = 100, PARAMS = 64 };

typedef struct session {
    void *device, *queue, *event, *address, *host, *list;
    kir_program *program;
    int64_t *sizes;
    tn_loaded code;
} session;

/* x[i] = 2 · x[i] for N numbers. */
static tn_status load_twice(const tn_driver *driver, const tn_caps *caps, session *s) {
    kir_builder *b;
    const int64_t extents[] = {N};
    TRY(kir_begin(1, 0, extents, &b));
    int x = kir_buffer(b, TN_I32);
    kir_aff at = {.s = {1}, .dyn = KIR_NONE};
    kir_store(b, x, &at, kir_binary(b, KIR_MUL, kir_load(b, x, &at, KIR_NONE), kir_const_i(b, KIR_I32, 2)), KIR_NONE);
    TRY(kir_finish(b, &s->program, &s->sizes));
    tn_driver plain = *driver; /* that keeps nothing on disk */
    plain.binary = NULL;
    tn_device device = {.driver = &plain, .handle = s->device, .caps = *caps};
    snprintf(device.info.id, sizeof device.info.id, "%s", now->id);
    return tn_code_load(&device, s->program, !caps->i64, &s->code);
}

static tn_status run_twice(const tn_driver *driver, session *s, void *address) {
    int64_t params[PARAMS];
    const tn_launch launch = {.sizes = s->sizes};
    tn_dispatch d = {.buffers = &address, .params = params};
    assert_true(s->code.params_bytes <= sizeof params);
    tn_params_fill(s->program, &launch, s->code.params_bytes, (char *)params);
    kir_count_groups(s->program, s->sizes, &s->code.target, INT32_MAX, d.groups);
    return driver->dispatch(s->device, s->code.handle, &d, 1);
}

/* The kernel twice in a list of the driver's own form, which runs on one place and then on another. */
static tn_status run_list(const tn_driver *driver, session *s) {
    enum { PLACES = 2 };
    int64_t params[PARAMS];
    int32_t got[N];
    void *address;
    const tn_launch launch = {.sizes = s->sizes};
    tn_list_item items[] = {{.module = s->code.handle}, {.module = s->code.handle}, {.module = s->code.handle}};
    tn_params_fill(s->program, &launch, s->code.params_bytes, (char *)params);
    for (size_t i = 0; i < TN_COUNT(items); i++) {
        items[i].dispatch = (tn_dispatch){.buffers = &address, .params = params};
        if (i != 1) kir_count_groups(s->program, s->sizes, &s->code.target, INT32_MAX, items[i].dispatch.groups);
    } /* that in the middle has no workgroups */
    for (int place = 0; place < PLACES; place++) {
        address = (char *)s->address + 1024 + 2048 * place;
        TRY(driver->fill(s->queue, address, 1, sizeof got));
        if (!s->list) TRY(driver->list_make(s->device, items, TN_COUNT(items), &s->list));
        TRY(driver->list_run(s->queue, s->list, items, TN_COUNT(items)));
    }
    for (int place = 0; place < PLACES; place++) {
        TRY(driver->copy(s->queue, got, (char *)s->address + 1024 + 2048 * place, sizeof got, 1));
        for (int i = 0; i < N; i++)
            if (got[i] != 0x04040404) return tn_fail(TN_ERR_INTERNAL, "place %d: %x", place, (unsigned)got[i]);
    }
    return TN_OK;
}

/* Numbers go there through pinned memory, are doubled, copied within the device by another queue, and read back. */
static tn_status work(const tn_driver *driver, session *s, int32_t *out) {
    const tn_device_options options = TN_DEVICE_DEFAULTS;
    tn_caps caps = {.struct_size = sizeof caps};
    int64_t total, unused;
    bool passed = true;
    void *view, *bytes;
    size_t size;
    TRY(driver->open(0, &options, &s->device));
    TRY(driver->caps(s->device, &caps));
    TRY(driver->memory(s->device, &total, &unused));
    if (driver->queue_new) TRY(driver->queue_new(s->device, &s->queue));
    if (driver->event_new) TRY(driver->event_new(s->device, true, &s->event));
    void *queue = s->queue ? s->queue : s->device;
    TRY(driver->alloc(s->device, 4096, &s->address));
    if (driver->host_alloc) TRY(driver->host_alloc(s->device, 4 * N, &s->host));
    int32_t numbers[N], *in = s->host ? s->host : numbers;
    for (int i = 0; i < N; i++)
        in[i] = i;
    TRY(load_twice(driver, &caps, s));
    tn_status kept = driver->binary ? driver->binary(s->device, s->code.handle, &bytes, &size) : TN_OK;
    if (kept != TN_ERR_UNSUPPORTED) TRY(kept);
    TRY(driver->fill(s->device, s->address, 0, 4096));
    TRY((driver->copy_async ? driver->copy_async : driver->copy)(s->device, (char *)s->address + 8, in, 4 * N, 0));
    TRY(run_twice(driver, s, (char *)s->address + 8));
    if (s->event) TRY(driver->event_record(s->device, s->event));
    if (s->event) TRY(driver->event_wait(queue, s->event));
    TRY(driver->copy(queue, (char *)s->address + 2048, (char *)s->address + 8, 4 * N, 2));
    TRY(driver->sync(queue));
    if (s->event) TRY(driver->event_sync(s->device, s->event));
    if (s->event) TRY(driver->event_query(s->device, s->event, &passed));
    if (!passed) return tn_fail(TN_ERR_INTERNAL, "an event is not complete after waiting for it");
    int32_t first = 0;
    if (driver->map) {
        TRY(driver->map(s->device, (char *)s->address + 2048, 4, true, &view));
        first = *(int32_t *)view;
        TRY(driver->unmap(s->device, (char *)s->address + 2048, view));
    }
    if (driver->list_make) TRY(run_list(driver, s));
    TRY(driver->copy(s->device, out, (char *)s->address + 2048, 4 * N, 1));
    return first == 0 ? driver->sync(s->device) : tn_fail(TN_ERR_INTERNAL, "the host's view of the device is wrong");
}

static void end(const tn_driver *driver, session *s) {
    kir_free(s->program);
    tn_mem_free(s->sizes);
    if (!s->device) return;
    if (s->list) driver->list_free(s->device, s->list);
    if (s->code.handle) driver->unload(s->device, s->code.handle);
    if (s->host) driver->host_free(s->device, s->host);
    if (s->address) driver->free(s->device, s->address);
    if (s->event) driver->event_free(s->device, s->event);
    if (s->queue) driver->queue_free(s->device, s->queue);
    driver->close(s->device);
}

/* One run with the n-th call failing. Returns its status after looking for what it left. */
static tn_status run(const char *name, long n, int error, bool forever) {
    session s = {0};
    int32_t out[N] = {0};
    int64_t blocks = tn_mem_get_stats().live_blocks;
    faults.arm(name, n, error, forever);
    tn_status status = work(now->driver, &s, out);
    long failures = faults.failures();
    if (status == TN_OK)
        for (int i = 0; i < N; i++)
            assert_int_equal(out[i], 2 * i);
    else if (!failures)
        fail_msg("call %ld, error %d: %s", n, error, tn_error());
    else if (!strstr(tn_error(), now->id))
        fail_msg("call %ld, error %d: the words do not name the device: %s", n, error, tn_error());
    end(now->driver, &s);
    if (faults.live()) fail_msg("call %ld, error %d: %ld objects are left", n, error, faults.live());
    if (tn_mem_get_stats().live_blocks != blocks) fail_msg("call %ld, error %d: memory is left", n, error);
    return status;
}

/* From one call that fails to the next. */
static long step_of(long usual) { return test_is_full() ? 1 : usual * now->every * test_every(2, 5); }

static void fail_every_call(void) {
    assert_ok(run(NULL, 0, 0, false));
    long calls = faults.counted(), ended = 0, runs = 0;
    for (long n = 1; n <= calls; n += step_of(1))
        for (size_t k = 0; k < 2; k++, runs++)
            ended += run(NULL, n, now->codes[(size_t)n % 3 * 2 + k], k) != TN_OK;
    assert_true(2 * ended > runs); /* some queries may fail without harm */
    printf("%s: %ld calls of the driver failed one by one; %ld of %ld runs ended early\n", now->id, runs / 2, ended,
           runs);
}

static void every_call_may_fail(void **state) {
    (void)state;
    for_each_driver(fail_every_call);
}

static void tell_failures_apart(void) {
    for (const failing *f = now->rows; f < now->rows + TN_COUNT(now->rows) && f->name; f++) {
        tn_status got = run(f->name, 1, f->error, false);
        if (got != f->status) fail_msg("%s: %s: %s", f->name, tn_status_name(got), tn_error());
        assert_text_has(tn_error(), f->part);
    }
}

static void lack_of_memory_is_not_device_lost(void **state) {
    (void)state;
    for_each_driver(tell_failures_apart);
}

/* Once lost, a device says so at each call, with what happened first, also when the calls would succeed again. */
static void lose_it(void) {
    const tn_driver *driver = now->driver;
    const tn_device_options options = TN_DEVICE_DEFAULTS;
    void *device = NULL, *address = NULL, *other = NULL;
    char byte = 0;
    faults.arm(NULL, 0, 0, 0);
    assert_ok(driver->open(0, &options, &device));
    assert_ok(driver->alloc(device, 64, &address));
    assert_int_equal(faults.live(), now->objects);
    faults.arm(now->lost.name, 1, now->lost.error, 0);
    assert_ok(driver->fill(device, address, 0, 64));
    assert_int_equal(driver->sync(device), TN_ERR_LOST);
    assert_int_equal(driver->sync(device), TN_ERR_LOST);
    assert_text_has(tn_error(), now->lost.part);
    assert_int_equal(driver->copy(device, address, &byte, 1, 0), TN_ERR_LOST);
    assert_int_equal(driver->alloc(device, 64, &other), TN_ERR_LOST);
    driver->free(device, address);
    driver->close(device);
    assert_int_equal(faults.live(), 0);
    assert_ok(driver->open(0, &options, &device)); /* opened anew it is whole */
    assert_ok(driver->sync(device));
    driver->close(device);
}

static void device_lost_is_remembered(void **state) {
    (void)state;
    for_each_driver(lose_it);
}

/* ---- parameters in memory ---------------------------------------------------------------------------------------- */

/* More parameters than the stream's room for them holds at once: each launch finds its own, whenever it runs. */
static void launch_with_many_parameters(void) {
    static const char TEXT[] = "extern \"C\" __global__ void put(long long *out, const long long *p) {\n"
                               "    out[p[0]] = p[1];\n"
                               "}\n";
    enum { LAUNCHES = 7, WORDS = 100 << 7 };
    const tn_device_options options = TN_DEVICE_DEFAULTS;
    tn_caps caps = {.struct_size = sizeof caps};
    void *device = NULL, *out = NULL, *module = NULL;
    int64_t *params = calloc(WORDS, sizeof *params), seen[LAUNCHES];
    assert_non_null(params);
    faults.arm(NULL, 0, 0, 0);
    assert_ok(now->driver->open(0, &options, &device));
    assert_ok(now->driver->caps(device, &caps));
    tn_code code = {.format = caps.code,
                    .data = TEXT,
                    .size = sizeof TEXT - 1,
                    .entry = "put",
                    .buffer_count = 1,
                    .group = {1, 1, 1},
                    .params_bytes = WORDS * sizeof *params,
                    .params_in_buffer = true,
                    .options = ""};
    bool is_c = caps.code == TN_CODE_CUDA_C || caps.code == TN_CODE_HIP_C;
    if (is_c) {
        assert_ok(now->driver->load(device, &code, &module));
        assert_ok(now->driver->alloc(device, sizeof seen, &out));
        for (int i = 0; i < LAUNCHES; i++) {
            params[0] = i;
            params[1] = 100 + i;
            const tn_dispatch d = {.groups = {1, 1, 1}, .buffers = &out, .params = params};
            assert_ok(now->driver->dispatch(device, module, &d, 1));
        }
        assert_ok(now->driver->copy(device, seen, out, sizeof seen, 1));
        for (int i = 0; i < LAUNCHES; i++)
            assert_int_equal(seen[i], 100 + i);
        now->driver->free(device, out);
        now->driver->unload(device, module);
    }
    now->driver->close(device);
    free(params);
}

static void parameters_take_turns(void **state) {
    (void)state;
    for_each_driver(launch_with_many_parameters);
}

/* ---- threads ----------------------------------------------------------------------------------------------------- */

static atomic_bool opened_enough;
static atomic_long worked;

static void *keep_working(void *device) {
    tn_status first = TN_OK;
    for (; !opened_enough; worked++) {
        tn_status s = now->driver->sync(device);
        if (first == TN_OK) first = s;
    }
    return (void *)(intptr_t)first;
}

/* A device works on while others of its driver are opened and closed. */
static void open_while_working(void) {
    const tn_device_options options = TN_DEVICE_DEFAULTS;
    void *device = NULL, *other = NULL, *status = NULL;
    pthread_t thread;
    faults.arm(NULL, 0, 0, 0);
    assert_ok(now->driver->open(0, &options, &device));
    opened_enough = false;
    worked = 0;
    assert_int_equal(pthread_create(&thread, NULL, keep_working, device), 0);
    for (int i = 0; i < 30; i++) {
        long before = worked;
        assert_ok(now->driver->open(0, &options, &other));
        now->driver->close(other);
        while (worked == before)
            sched_yield();
    }
    opened_enough = true;
    pthread_join(thread, &status);
    assert_null(status);
    now->driver->close(device);
    assert_int_equal(faults.live(), 0);
}

static void devices_are_opened_beside_work(void **state) {
    (void)state;
    for_each_driver(open_while_working);
}

/* What the caller's thread had chosen for calls of its own stays chosen: a context, or the second of two devices. */
static void work_from_elsewhere(void) {
    void *library = libraries[now - drivers], *current = &current;
    int (*get_context)(void **) = NULL, (*get_device)(int *) = NULL, (*set_device)(int) = NULL, device = 0;
    *(void **)&get_context = dlsym(library, "cuCtxGetCurrent");
    *(void **)&get_device = dlsym(library, "hipGetDevice");
    *(void **)&set_device = dlsym(library, "hipSetDevice");
    if (set_device) assert_int_equal(set_device(1), 0);
    assert_ok(run(NULL, 0, 0, false));
    if (get_context) {
        assert_int_equal(get_context(&current), 0);
        assert_null(current);
    }
    if (!get_device) return;
    assert_int_equal(get_device(&device), 0);
    assert_int_equal(device, 1);
    assert_int_equal(set_device(0), 0);
}

static void the_callers_choice_stays(void **state) {
    (void)state;
    for_each_driver(work_from_elsewhere);
}

/* Cards that cannot see each other: the copy is refused as such, so that hal goes by the host, and no card is lost. */
static void copy_between_cards(void) {
    enum { BYTES = 64, PEER_ACCESS_UNSUPPORTED = 217 };
    const tn_driver *driver = now->driver;
    char sent[BYTES] = "from card to card", got[BYTES] = "";
    void *device[2], *address[2];
    bool hip = strcmp(driver->name, "rocm") == 0;
    if (!driver->copy_peer) return;
    for (int i = 0; i < 2; i++) {
        assert_ok(driver->open(i, NULL, &device[i]));
        assert_ok(driver->alloc(device[i], BYTES, &address[i]));
    }
    assert_ok(driver->copy(device[0], address[0], sent, BYTES, 0));
    faults.arm(hip ? "hipMemcpyPeerAsync" : "cuMemcpyPeerAsync", 1, PEER_ACCESS_UNSUPPORTED, 0);
    tn_status refused = driver->copy_peer(device[1], address[1], device[0], address[0], BYTES);
    faults.arm(NULL, 0, 0, 0);
    assert_int_equal(refused, TN_ERR_UNSUPPORTED);
    assert_text_has(tn_error(), hip ? "hipErrorPeerAccessUnsupported" : "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED");
    assert_ok(driver->copy_peer(device[1], address[1], device[0], address[0], BYTES));
    assert_ok(driver->copy(device[1], got, address[1], BYTES, 1));
    assert_string_equal(got, sent);
    for (int i = 0; i < 2; i++) {
        driver->free(device[i], address[i]);
        driver->close(device[i]);
    }
}

static void cards_that_do_not_see_each_other_are_told(void **state) {
    (void)state;
    for_each_driver(copy_between_cards);
}

/* ---- devices that are not as most -------------------------------------------------------------------------------- */

/* Of Vulkan 1.0: not listed, with the reason, and not opened. */
static void old_devices_are_not_listed(void) {
    const tn_device_options options = TN_DEVICE_DEFAULTS;
    tn_device_info info;
    tn_probe probe = {.struct_size = sizeof probe, .devices = &info, .capacity = 1};
    void *device = NULL;
    if (strcmp(now->id, "vulkan:0")) return;
    setenv("VULKAN_LIES", "old", 1);
    now->driver->probe(&probe);
    tn_status s = now->driver->open(0, &options, &device);
    unsetenv("VULKAN_LIES");
    assert_int_equal(probe.count, 0);
    assert_string_equal(probe.reason_code, "too_old");
    assert_int_equal(s, TN_ERR_UNAVAILABLE);
}

/* Times whose bits are used up begin anew; seconds go on. */
static void clocks_go_on(void) {
    const tn_device_options options = TN_DEVICE_DEFAULTS;
    void *device = NULL, *event = NULL;
    double seconds[6];
    if (strcmp(now->id, "vulkan:0")) return;
    setenv("VULKAN_LIES", "clock", 1);
    faults.arm(NULL, 0, 0, 0);
    assert_ok(now->driver->open(0, &options, &device));
    assert_ok(now->driver->event_new(device, true, &event));
    for (size_t i = 0; i < TN_COUNT(seconds); i++) {
        assert_ok(now->driver->event_record(device, event));
        assert_ok(now->driver->event_sync(device, event));
        assert_ok(now->driver->event_time(device, event, &seconds[i]));
    }
    unsetenv("VULKAN_LIES");
    double step = seconds[1] - seconds[0];
    assert_true(step > 0);
    for (size_t i = 1; i < TN_COUNT(seconds); i++)
        assert_true(fabs(seconds[i] - seconds[i - 1] - step) < 1e-6 * step);
    now->driver->event_free(device, event);
    now->driver->close(device);
}

static void old_devices_and_short_clocks(void **state) {
    (void)state;
    for_each_driver(old_devices_are_not_listed);
    for_each_driver(clocks_go_on);
}

/* ---- lists ------------------------------------------------------------------------------------------------------- */

/* The kernel twice, as a list of the driver's own form: again and again on one block, from other places in it, on
 * another block, and on one that may have a freed one's handle; nobody waits in between. */
static void lists_find_their_memory(void) {
    static const struct {
        int block, place;
        bool anew; /* the block is freed and made again before */
    } runs[] = {{0, 0, 0},   {0, 0, 0},   {0, 0, 0}, {0, 0, 0}, {0, 512, 0}, {1, 0, 0}, {1, 0, 0},
                {0, 512, 0}, {0, 512, 1}, {0, 0, 0}, {1, 8, 1}, {1, 8, 0},   {0, 0, 0}};
    const tn_driver *driver = now->driver;
    const tn_device_options options = TN_DEVICE_DEFAULTS;
    tn_caps caps = {.struct_size = sizeof caps};
    session s = {0};
    void *blocks[2], *address, *list = NULL;
    uint32_t want[2][1024 / 4], got[1024 / 4];
    int64_t params[PARAMS];
    if (!driver->list_make) return;
    faults.arm(NULL, 0, 0, 0);
    assert_ok(driver->open(0, &options, &s.device));
    assert_ok(driver->caps(s.device, &caps));
    assert_ok(load_twice(driver, &caps, &s));
    const tn_launch launch = {.sizes = s.sizes};
    tn_params_fill(s.program, &launch, s.code.params_bytes, (char *)params);
    tn_list_item items[2] = {{.module = s.code.handle}, {.module = s.code.handle}};
    for (int i = 0; i < 2; i++) {
        items[i].dispatch = (tn_dispatch){.buffers = &address, .params = params};
        kir_count_groups(s.program, s.sizes, &s.code.target, INT32_MAX, items[i].dispatch.groups);
        assert_ok(driver->alloc(s.device, sizeof got, &blocks[i]));
        assert_ok(driver->fill(s.device, blocks[i], 1, sizeof got));
        memset(want[i], 1, sizeof want[i]);
    }
    for (size_t r = 0; r < TN_COUNT(runs); r++) {
        int b = runs[r].block;
        if (runs[r].anew) {
            driver->free(s.device, blocks[b]);
            assert_ok(driver->alloc(s.device, sizeof got, &blocks[b]));
            assert_ok(driver->fill(s.device, blocks[b], 1, sizeof got));
            memset(want[b], 1, sizeof want[b]);
        }
        address = (char *)blocks[b] + runs[r].place;
        if (!list) assert_ok(driver->list_make(s.device, items, 2, &list));
        assert_ok(driver->list_run(s.device, list, items, 2));
        for (int i = 0; i < N; i++)
            want[b][runs[r].place / 4 + i] *= 4;
    }
    for (int b = 0; b < 2; b++) {
        assert_ok(driver->copy(s.device, got, blocks[b], sizeof got, 1));
        assert_memory_equal(got, want[b], sizeof got);
        driver->free(s.device, blocks[b]);
    }
    driver->list_free(s.device, list);
    end(driver, &s);
    assert_int_equal(faults.live(), 0);
}

static void lists_are_run_where_memory_is(void **state) {
    (void)state;
    for_each_driver(lists_find_their_memory);
}

/* ---- training ---------------------------------------------------------------------------------------------------- */

enum { ROWS = 8, FEATURES = 5, MOST_STATES = 64 };

typedef struct training {
    tn_device *device;
    tn_module *model;
    tn_tensor *weight, *bias, *out; /* parameters */
    tn_optimizer *adam;
} training;

static tn_status training_start(training *t) {
    tn_device_options strict = TN_DEVICE_DEFAULTS;
    strict.fallback = TN_FALLBACK_STRICT;
    tn_adam_options options = TN_ADAM_DEFAULTS;
    options.lr = 0.1;
    TRY(tn_device_open(now->id, &strict, NULL, &t->device));
    TRY(tn_set_current_device(t->device));
    t->model = tn_module_root();
    {
        TN_SCOPE;
        int64_t features[] = {FEATURES};
        t->weight = tn_module_add_parameter(t->model, "weight", tn_ones(features, 1, TN_F32));
        t->bias = tn_module_add_parameter(t->model, "bias", tn_zeros(features, 1, TN_F32));
        t->out = tn_module_add_parameter(t->model, "out", tn_ones(features, 1, TN_F32));
    }
    TRY(tn_module_status(t->model));
    return tn_optimizer_adam(t->model, &options, &t->adam);
}

static tn_status training_step(training *t) {
    TN_SCOPE;
    float x[ROWS * FEATURES], y[ROWS];
    for (int i = 0; i < ROWS * FEATURES; i++)
        x[i] = (float)(i * 37 % 11) / 11.0f;
    for (int i = 0; i < ROWS; i++)
        y[i] = (float)(i % 3);
    tn_tensor *inputs = tn_from_data(x, (int64_t[]){ROWS, FEATURES}, 2, TN_F32);
    tn_tensor *wanted = tn_from_data(y, (int64_t[]){ROWS}, 1, TN_F32);
    tn_tensor *hidden = tn_relu(tn_add(tn_mul(inputs, t->weight), t->bias));
    tn_tensor *got = tn_sum(tn_mul(hidden, t->out), (int64_t[]){1}, 1, false);
    tn_status s = tn_minimize(t->adam, tn_mse_loss(got, wanted, TN_REDUCTION_MEAN));
    return s;
}

/* All parameters and moments, one behind the other. */
static tn_status training_read(const training *t, float *out) {
    tn_variable *v[2] = {NULL};
    int n[2] = {0};
    tn_status s = tn_module_variables(t->model, &v[0], &n[0]);
    if (s == TN_OK) s = tn_optimizer_variables(t->adam, &v[1], &n[1]);
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < n[k] && s == TN_OK; i++) {
            int64_t elements = tn_numel(v[k][i].tensor);
            s = tn_read(v[k][i].tensor, out, (size_t)elements * sizeof *out);
            out += elements;
        }
        tn_variables_free(v[k]);
    }
    return s;
}

static void training_end(training *t) {
    tn_optimizer_free(t->adam);
    tn_module_free(t->model);
    (void)tn_set_current_device(NULL);
    tn_device_close(t->device);
}

/* A training whose second step meets a fault at its n-th call, or with `anew` the start and the first step. */
typedef struct attempt {
    long n;
    int error;
    bool anew;
    tn_status status, without; /* of the step with the fault, and of the one before it */
    char words[1024];
    long counted, failures;
    bool answers; /* the device did afterwards, and the states are these: */
    float states[MOST_STATES];
} attempt;

/* On a thread of its own: what a thread has recorded and planned ends with it, and with that the device. */
static void *attempt_body(void *ctx) {
    attempt *a = ctx;
    training t = {0};
    faults.arm(NULL, a->anew ? a->n : 0, a->error, 0);
    a->status = training_start(&t);
    if (a->status == TN_OK) a->status = training_step(&t);
    if (!a->anew && a->status == TN_OK) {
        faults.arm(NULL, a->n, a->error, 0);
        a->status = training_step(&t);
    } else if (!a->anew) {
        a->without = a->status;
    }
    if (a->status != TN_OK) snprintf(a->words, sizeof a->words, "%s", tn_error());
    a->counted = faults.counted();
    a->failures = faults.failures();
    faults.arm(NULL, 0, 0, 0);
    a->answers = t.adam && training_read(&t, a->states) == TN_OK;
    training_end(&t);
    return NULL;
}

static attempt try_training(long n, int error, bool anew) {
    attempt a = {.n = n, .error = error, .anew = anew};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, attempt_body, &a), 0);
    pthread_join(thread, NULL);
    if (a.without != TN_OK) fail_msg("a step without faults: %s", a.words);
    if (a.status != TN_OK && !a.failures) fail_msg("call %ld: no call failed, and yet: %s", n, a.words);
    if (a.status != TN_OK && !a.words[0]) fail_msg("call %ld, error %d: no reason", n, error);
    if (faults.live()) fail_msg("call %ld, error %d: %ld objects are left", n, error, faults.live());
    return a;
}

static void train_with_failures(void) {
    const int *codes = now->codes;
    attempt one = try_training(0, 0, true), two = try_training(0, 0, false); /* what one step gives, and two */
    assert_memory_not_equal(one.states, two.states, sizeof one.states);
    long ended = 0, lost = 0;
    for (long n = 1; n <= two.counted; n += step_of(3)) {
        attempt a = try_training(n, codes[n % 5], false);
        ended += a.status != TN_OK;
        lost += !a.answers;
        bool as_new = !memcmp(a.states, two.states, sizeof a.states);
        bool as_old = !memcmp(a.states, one.states, sizeof a.states);
        if (a.answers && !(as_new || (as_old && a.status != TN_OK)))
            fail_msg("call %ld, error %d: %s; the states are neither those before the step nor those after it", n,
                     codes[n % 5], a.status == TN_OK ? "it went well" : a.words);
    }
    for (long n = 1; n <= one.counted; n += step_of(17))
        ended += try_training(n, codes[n / 17 % 5], true).status != TN_OK;
    printf("%s: a step of training makes %ld calls; %ld runs with a fault ended early, %ld lost the device\n", now->id,
           two.counted, ended, lost);
}

/* Steps enough for lists to have a form, or not to have one because this call fails from its n-th time on. */
typedef struct long_training {
    const char *id, *name;
    long n;
    int error;
    float states[MOST_STATES];
    long failures;
    tn_status status;
} long_training;

static void *train_long(void *ctx) {
    long_training *l = ctx;
    training t = {0};
    faults.arm(l->name, l->n, l->error, 1);
    l->status = training_start(&t);
    for (int i = 0; i < 7 && l->status == TN_OK; i++)
        l->status = training_step(&t);
    l->failures = faults.failures();
    if (l->status == TN_OK) l->status = training_read(&t, l->states);
    training_end(&t);
    return NULL;
}

static void on_a_thread(long_training *l) {
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, train_long, l), 0);
    pthread_join(thread, NULL);
    assert_int_equal(l->status, TN_OK);
    assert_int_equal(faults.live(), 0);
}

/* What a driver has no form of is run as before, with the same numbers. */
static void train_without_forms(void) {
    static const long_training rows[] = {
        {.id = "cuda:0", .name = "cuGraphInstantiateWithFlags", .n = 1, .error = 801},
        {.id = "cuda:0", .name = "cuGraphLaunch", .n = 2, .error = 801},
        {.id = "rocm:0", .name = "hipGraphAddKernelNode", .n = 1, .error = 98},
        {.id = "vulkan:0", .name = "vkAllocateCommandBuffers", .n = 9, .error = -2}, /* one for each slot before */
    };
    long_training with = {.name = "none"};
    on_a_thread(&with);
    for (size_t r = 0; r < TN_COUNT(rows); r++) {
        if (strcmp(rows[r].id, now->id)) continue;
        long_training without = rows[r];
        on_a_thread(&without);
        if (!without.failures) fail_msg("%s: %s was not called %ld times", now->id, without.name, without.n);
        assert_memory_equal(without.states, with.states, sizeof with.states);
    }
    faults.arm(NULL, 0, 0, 0);
}

static void command_lists_need_no_driver_list(void **state) {
    (void)state;
    for_each_driver(train_without_forms);
}

static void training_survives_or_says_why(void **state) {
    (void)state;
    for_each_driver(train_with_failures);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_call_may_fail),
        cmocka_unit_test(lack_of_memory_is_not_device_lost),
        cmocka_unit_test(device_lost_is_remembered),
        cmocka_unit_test(parameters_take_turns),
        cmocka_unit_test(devices_are_opened_beside_work),
        cmocka_unit_test(the_callers_choice_stays),
        cmocka_unit_test(cards_that_do_not_see_each_other_are_told),
        cmocka_unit_test(old_devices_and_short_clocks),
        cmocka_unit_test(lists_are_run_where_memory_is),
        cmocka_unit_test(command_lists_need_no_driver_list),
        cmocka_unit_test(training_survives_or_says_why),
    };
    return cmocka_run_group_tests(tests, open_faults, remove_scratch);
}
