/* wgpu_faults.c — the real wgpu-native behind a counter (faults.h): built with that library behind it and named by
 * TRUNNION_WEBGPU_LIB. What stands here shadows the library's; all else is the library's own.
 *
 * A call that fails does nothing and leaves an error of the type that it is to fail with, in the scope that is open or
 * else with the device's callback; type LOST loses the device. Calls that only the library's encoder hears of never
 * fail, for wgpu-native itself ends the process when it finds them missing.
 *
 * SHRINK=BYTES in the environment: adapters have bindings of so many bytes, 8 of them, and small workgroups. */
#define _GNU_SOURCE
#include "faults.h"

#include "drivers/webgpu.h"

enum { LOST = 100, STATUS_ERROR = 3, SMALL = 8 };

/* By name: all parameters are words, and the result is one. */
static intptr_t real(const char *name, const intptr_t *w) {
    function *f;
    *(void **)&f = dlsym(RTLD_NEXT, name);
    if (!f) {
        fprintf(stderr, "wgpu_faults: %s\n", dlerror());
        return 0;
    }
    return f(w[0], w[1], w[2], w[3], w[4], w[5], 0, 0, 0, 0);
}

static wgpu_error_callback on_error;
static wgpu_callback on_lost;
static int open_scopes, caught; /* an error waits for the next scope that is closed */

typedef void lost_function(void *const *device, uint32_t reason, wgpu_text message, void *a, void *b);

static wgpu_text words(const char *name) { return (wgpu_text){name, SIZE_MAX}; }

static void tell(const char *name) {
    if (fault.with == LOST && on_lost.call)
        ((lost_function *)(void *)on_lost.call)(NULL, 1, words("a test took it away"), on_lost.a, on_lost.b);
    else if (open_scopes)
        caught = fault.with;
    else if (on_error.call)
        on_error.call(NULL, (uint32_t)fault.with, words(name), on_error.a, on_error.b);
}

/* name, what becomes of the count of objects, whether any may fail */
// clang-format off
#define CALLS_OF_WORDS(CALL)                                                                            \
    CALL(CreateInstance, 1, 1) CALL(InstanceRelease, -1, 0) CALL(AdapterRelease, -1, 0)                 \
    CALL(DeviceGetQueue, 1, 1) CALL(QueueRelease, -1, 0) CALL(DeviceRelease, -1, 0)                     \
    CALL(DeviceCreateBuffer, 1, 1) CALL(BufferRelease, -1, 0)                                           \
    CALL(DeviceCreateShaderModule, 1, 1) CALL(ShaderModuleRelease, -1, 0)                               \
    CALL(DeviceCreateBindGroupLayout, 1, 1) CALL(BindGroupLayoutRelease, -1, 0)                         \
    CALL(DeviceCreatePipelineLayout, 1, 1) CALL(PipelineLayoutRelease, -1, 0)                           \
    CALL(DeviceCreateComputePipeline, 1, 1) CALL(ComputePipelineRelease, -1, 0)                         \
    CALL(DeviceCreateBindGroup, 1, 1) CALL(BindGroupRelease, -1, 0)                                     \
    CALL(DeviceCreateCommandEncoder, 1, 1) CALL(CommandEncoderRelease, -1, 0)                           \
    CALL(CommandEncoderBeginComputePass, 1, 1) CALL(ComputePassEncoderRelease, -1, 0)                   \
    CALL(CommandEncoderFinish, 1, 1) CALL(CommandBufferRelease, -1, 0)                                  \
    CALL(QueueWriteBuffer, 0, 1) CALL(QueueSubmit, 0, 1) CALL(BufferGetConstMappedRange, 0, 1)          \
    CALL(AdapterGetInfo, 0, 1)
// clang-format on

#define CALL(name, lives, may)                                                                    \
    intptr_t wgpu##name(intptr_t a, intptr_t b, intptr_t c, intptr_t d, intptr_t e, intptr_t f);  \
    intptr_t wgpu##name(intptr_t a, intptr_t b, intptr_t c, intptr_t d, intptr_t e, intptr_t f) { \
        if (fails("wgpu" #name, may)) {                                                           \
            tell("wgpu" #name);                                                                   \
            return 0;                                                                             \
        }                                                                                         \
        intptr_t result = real("wgpu" #name, (const intptr_t[]){a, b, c, d, e, f});               \
        if ((lives) < 0 || ((lives) > 0 && result)) count(lives);                                 \
        return result;                                                                            \
    }
CALLS_OF_WORDS(CALL)

size_t wgpuInstanceEnumerateAdapters(void *instance, const wgpu_enumerate_options *options, void **adapters);
size_t wgpuInstanceEnumerateAdapters(void *instance, const wgpu_enumerate_options *options, void **adapters) {
    const intptr_t w[6] = {(intptr_t)instance, (intptr_t)options, (intptr_t)adapters};
    if (fails("wgpuInstanceEnumerateAdapters", true)) return 0;
    size_t found = (size_t)real("wgpuInstanceEnumerateAdapters", w);
    if (adapters) count((long)found);
    return found;
}

uint32_t wgpuAdapterGetLimits(void *adapter, wgpu_limits *limits);
uint32_t wgpuAdapterGetLimits(void *adapter, wgpu_limits *limits) {
    const char *shrink = getenv("SHRINK");
    if (fails("wgpuAdapterGetLimits", true)) return 0;
    uint32_t status = (uint32_t)real("wgpuAdapterGetLimits", (const intptr_t[6]){(intptr_t)adapter, (intptr_t)limits});
    if (status != STATUS_SUCCESS || !shrink) return status;
    limits->storage_binding = (uint64_t)atoll(shrink);
    limits->storage_buffers = SMALL;
    limits->group_items = limits->group_x = 128;
    limits->group_storage = 16 << 10;
    return status;
}

void wgpuDevicePushErrorScope(void *device, uint32_t filter);
void wgpuDevicePushErrorScope(void *device, uint32_t filter) {
    open_scopes++;
    (void)real("wgpuDevicePushErrorScope", (const intptr_t[6]){(intptr_t)device, filter});
}

/* ---- calls that answer later ------------------------------------------------------------------------------------- */

/* Whoever is to be called is called through one of these, which is freed then. */
typedef struct answer {
    wgpu_callback to;
    int error; /* of a scope; 0: what the library says */
} answer;

typedef void scope_function(uint32_t status, uint32_t type, wgpu_text message, void *a, void *b);
typedef void device_function(uint32_t status, void *device, wgpu_text message, void *a, void *b);
typedef void status_function(uint32_t status, wgpu_text message, void *a, void *b);

static wgpu_callback through(wgpu_callback c, void (*call)(void), int error) {
    answer *a = malloc(sizeof *a);
    if (!a) abort();
    *a = (answer){c, error};
    c.call = call;
    c.a = a;
    return c;
}

static void scope_answer(uint32_t status, uint32_t type, wgpu_text message, void *ctx, void *b) {
    answer a = *(answer *)ctx;
    free(ctx);
    if (a.error > 0) type = (uint32_t)a.error;
    if (a.error < 0) status = STATUS_ERROR;
    ((scope_function *)(void *)a.to.call)(status, type, a.error ? words("a test's error") : message, a.to.a, b);
}

wgpu_future wgpuDevicePopErrorScope(void *device, wgpu_callback callback);
wgpu_future wgpuDevicePopErrorScope(void *device, wgpu_callback callback) {
    wgpu_future (*f)(void *, wgpu_callback);
    int error = fails("wgpuDevicePopErrorScope", true) ? -1 : caught;
    *(void **)&f = dlsym(RTLD_NEXT, "wgpuDevicePopErrorScope");
    open_scopes--;
    caught = 0;
    return f(device, through(callback, (void (*)(void))scope_answer, error));
}

static void device_answer(uint32_t status, void *device, wgpu_text message, void *ctx, void *b) {
    answer a = *(answer *)ctx;
    free(ctx);
    if (device) count(1);
    ((device_function *)(void *)a.to.call)(status, device, message, a.to.a, b);
}

wgpu_future wgpuAdapterRequestDevice(void *adapter, const wgpu_device_descriptor *descriptor, wgpu_callback callback);
wgpu_future wgpuAdapterRequestDevice(void *adapter, const wgpu_device_descriptor *descriptor, wgpu_callback callback) {
    wgpu_future (*f)(void *, const wgpu_device_descriptor *, wgpu_callback);
    on_error = descriptor->error;
    on_lost = descriptor->lost;
    open_scopes = caught = 0;
    if (fails("wgpuAdapterRequestDevice", true)) {
        ((device_function *)(void *)callback.call)(STATUS_ERROR, NULL, words("no device"), callback.a, callback.b);
        return (wgpu_future){0};
    }
    *(void **)&f = dlsym(RTLD_NEXT, "wgpuAdapterRequestDevice");
    return f(adapter, descriptor, through(callback, (void (*)(void))device_answer, 0));
}

wgpu_future wgpuBufferMapAsync(void *buffer, uint64_t mode, size_t at, size_t size, wgpu_callback callback);
wgpu_future wgpuBufferMapAsync(void *buffer, uint64_t mode, size_t from, size_t size, wgpu_callback callback) {
    wgpu_future (*f)(void *, uint64_t, size_t, size_t, wgpu_callback);
    if (fails("wgpuBufferMapAsync", true)) {
        ((status_function *)(void *)callback.call)(STATUS_ERROR, words("not mapped"), callback.a, callback.b);
        return (wgpu_future){0};
    }
    *(void **)&f = dlsym(RTLD_NEXT, "wgpuBufferMapAsync");
    return f(buffer, mode, from, size, callback);
}
