/* gpu_context.c — of the double of CUDA and ROCm: beginning a call, misuse and faults, devices and contexts. */
#include "../fakes/fault_counter.h"
#include "gpu.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TITLE API("CUDA", "ROCm")

gpu_context gpu_contexts[MOST_DEVICES];
size_t gpu_memory_limit = (size_t)4 << 30;
uint64_t gpu_seed = 1;
char gpu_arch[32] = API("sm_90", "gfx90a");
uint32_t gpu_warp = API(32, 64);
long gpu_library_parts;

static int device_count = 1;
static bool initialised, ends_on_misuse;
static uint64_t random_state;
static long misuses;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __thread gpu_context *current;
static __thread gpu_context *below[16] __attribute__((unused)); /* CUDA's stack of contexts, without the uppermost */
static __thread int depth __attribute__((unused));

/* ---- faults and counts ------------------------------------------------------------------------------------------- */

static long live;

/* Contexts, objects and allocations that were not given back. */
long faults_live(void) {
    long n = live + gpu_library_parts;
    size_t bytes;
    for (int i = 0; i < MOST_DEVICES; i++)
        n += API((gpu_contexts[i].users > 0), 0) + (long)engine_live(gpu_owner(&gpu_contexts[i], false), &bytes) +
             (long)engine_live(gpu_owner(&gpu_contexts[i], true), &bytes);
    return n;
}

long double_misuses(void) { return misuses; }

static void tell_counts(void) {
    engine_counts c = engine_get_counts();
    fprintf(stderr, "double: %s: %llu launches, %llu items, %llu switches, %llu compiled, %llu from disk\n", TITLE,
            (unsigned long long)c.launches, (unsigned long long)c.items, (unsigned long long)c.switches,
            (unsigned long long)c.compiled, (unsigned long long)c.from_disk);
}

__attribute__((constructor)) static void start(void) {
    const char *devices = getenv("DOUBLE_DEVICES"), *memory = getenv("DOUBLE_MEMORY"), *seed = getenv("DOUBLE_SEED");
    const char *arch = getenv("DOUBLE_ARCH");
    if (devices) device_count = atoi(devices);
    if (device_count > MOST_DEVICES) device_count = MOST_DEVICES;
    if (memory) gpu_memory_limit = strtoull(memory, NULL, 10);
    if (seed) gpu_seed = strtoull(seed, NULL, 10);
    if (arch) snprintf(gpu_arch, sizeof gpu_arch, "%s", arch);
    if (API(false, strncmp(gpu_arch, "gfx9", 4) != 0)) gpu_warp = 32;
    ends_on_misuse = getenv("DOUBLE_ABORT") != NULL;
    random_state = gpu_seed;
    for (int i = 0; i < MOST_DEVICES; i++)
        gpu_contexts[i].device = i;
    fault_arm_by("DOUBLE_FAULT");
    if (getenv("DOUBLE_COUNTS")) atexit(tell_counts);
}

/* ---- a call ------------------------------------------------------------------------------------------------------ */

uint32_t gpu_owner(const gpu_context *c, bool pinned) { return 1 + 2 * (uint32_t)c->device + pinned; }
bool gpu_is_pinned(uint32_t owner) { return !(owner & 1); }

uint64_t gpu_random(uint64_t n) { return gpu_seed && n ? engine_random(&random_state) % n : 0; }

int gpu_misuse(const gpu_call *call, int error, const char *format, ...) {
    va_list args;
    misuses++;
    fprintf(stderr, "double: %s: misuse: %s: ", TITLE, call->name);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    if (ends_on_misuse) abort();
    return error;
}

/* The thread's context. In HIP there is one from the start: device 0's. */
static gpu_context *context_now(void) {
#ifdef DOUBLE_HIP
    if (!current) current = &gpu_contexts[0];
    current->users = 1;
    return current;
#else
    return current && current->users ? current : NULL;
#endif
}

gpu_call gpu_enter(const char *name, int needs) {
    pthread_mutex_lock(&lock);
    gpu_call call = {.name = name};
    bool gives_back = needs & GIVES_BACK;
    if (fails(name, !gives_back))
        call.error = fault.with;
    else if ((needs & NEEDS_INIT) && !initialised && API(true, false))
        call.error = gpu_misuse(&call, E_INIT, "before cuInit");
    if (call.error || (needs & NEEDS_CONTEXT) != NEEDS_CONTEXT) return call;
    if (device_count == 0) {
        call.error = E_NO_DEVICE;
        return call;
    }
    call.context = context_now();
    if (!call.context) {
        call.error = gpu_misuse(&call, E_CONTEXT, "no context is current");
        return call;
    }
    if (gpu_random(8) == 7) gpu_some_work(call.context);
    call.error = call.context->error;
    return call;
}

void gpu_leave(gpu_call *call) {
    (void)call;
    pthread_mutex_unlock(&lock);
}

/* ---- objects ----------------------------------------------------------------------------------------------------- */

static const char *const KINDS[OBJECT_KINDS] = {"stream",           "event",         "module", "graph",
                                                "executable graph", "library handle"};

void *gpu_object_new(gpu_context *c, object_kind kind, size_t size) {
    gpu_object *o = calloc(1, size);
    if (!o) return NULL;
    *o = (gpu_object){c->objects, kind, c};
    c->objects = o;
    live++;
    return o;
}

void gpu_object_remove(gpu_object *o) {
    gpu_object **at_link = &o->context->objects;
    while (*at_link != o)
        at_link = &(*at_link)->next;
    *at_link = o->next;
    live--;
}

int gpu_check(const gpu_call *call, const void *handle, object_kind kind) {
    for (int i = 0; i < MOST_DEVICES; i++)
        for (gpu_object *o = gpu_contexts[i].objects; o; o = o->next) {
            if (o != handle) continue;
            if (o->kind != kind)
                return gpu_misuse(call, E_HANDLE, "its kind is %s, not %s", KINDS[o->kind], KINDS[kind]);
            if (o->context == call->context) return E_OK;
            return gpu_misuse(call, E_HANDLE, "%s of another device than the current one", KINDS[kind]);
        }
    return gpu_misuse(call, E_HANDLE, "%p is not of kind %s, or was destroyed", handle, KINDS[kind]);
}

/* The end of a context: what is still there is a leak, unless a failed kernel took the context with it. */
static void end_context(const gpu_call *call, gpu_context *c) {
    size_t bytes = 0, pinned = 0;
    int64_t blocks = engine_live(gpu_owner(c, false), &bytes) + engine_live(gpu_owner(c, true), &pinned);
    int counts[OBJECT_KINDS] = {0};
    for (gpu_object *o = c->objects; o; o = o->next)
        counts[o->kind]++;
    gpu_drop_work(c);
    for (int k = 0; k < OBJECT_KINDS; k++)
        if (counts[k] && !c->error)
            gpu_misuse(call, E_OK, "%d of kind %s left when the context ends", counts[k], KINDS[k]);
    if (blocks && !c->error)
        gpu_misuse(call, E_OK, "%lld allocations of %zu bytes left when the context ends", (long long)blocks,
                   bytes + pinned);
    while (c->objects) {
        gpu_object *o = c->objects;
        gpu_object_remove(o);
        gpu_free_object(o);
    }
    engine_free_all(gpu_owner(c, false));
    engine_free_all(gpu_owner(c, true));
    c->error = E_OK;
}

/* ---- devices ----------------------------------------------------------------------------------------------------- */

int API(cuInit, hipInit)(unsigned flags) {
    ENTER(NEEDS_NOTHING);
    if (flags) return gpu_misuse(&call, E_VALUE, "flags %u, and there are none", flags);
    initialised = true;
    return device_count ? E_OK : API(E_NO_DEVICE, E_DEVICE);
}

int API(cuDriverGetVersion, hipDriverGetVersion)(int *version) {
    ENTER(NEEDS_NOTHING);
    *version = API(13000, 60032830);
    return E_OK;
}

#ifdef DOUBLE_HIP
int hipRuntimeGetVersion(int *version) {
    ENTER(NEEDS_NOTHING);
    *version = 60032830;
    return E_OK;
}
#endif

int API(cuDeviceGetCount, hipGetDeviceCount)(int *count) {
    ENTER(NEEDS_INIT);
    *count = device_count;
    return API(false, device_count == 0) ? E_NO_DEVICE : E_OK;
}

int API(cuDeviceGet, hipDeviceGet)(int *device, int ordinal) {
    ENTER(NEEDS_INIT);
    if (ordinal < 0 || ordinal >= device_count)
        return gpu_misuse(&call, E_DEVICE, "device %d of %d", ordinal, device_count);
    *device = ordinal;
    return E_OK;
}

static int check_device(const gpu_call *call, int device) {
    if (device >= 0 && device < device_count) return E_OK;
    return gpu_misuse(call, E_DEVICE, "device %d of %d", device, device_count);
}
#define CHECK(expression)                    \
    do {                                     \
        int error_of_it = (expression);      \
        if (error_of_it) return error_of_it; \
    } while (0)

int API(cuDeviceGetName, hipDeviceGetName)(char *name, int size, int device) {
    ENTER(NEEDS_INIT);
    CHECK(check_device(&call, device));
    snprintf(name, (size_t)size, "%s double on the processor", TITLE);
    return E_OK;
}

int API(cuDeviceTotalMem_v2, hipDeviceTotalMem)(size_t *bytes, int device) {
    ENTER(NEEDS_INIT);
    CHECK(check_device(&call, device));
    *bytes = gpu_memory_limit;
    return E_OK;
}

int API(cuDeviceGetPCIBusId, hipDeviceGetPCIBusId)(char *text, int size, int device) {
    ENTER(NEEDS_INIT);
    CHECK(check_device(&call, device));
    snprintf(text, (size_t)size, "0000:%02X:00.0", API(0xD0, 0xE0) + device);
    return E_OK;
}

int API(cuDeviceGetUuid, hipDeviceGetUuid)(void *bytes, int device) {
    ENTER(NEEDS_INIT);
    CHECK(check_device(&call, device));
    memset(bytes, API(0xD0, 0xE0) + device, 16);
    return E_OK;
}

/* The numbers of attributes differ between the two. */
static int attribute_of(int attribute, int *value) {
    const struct {
        int number, value;
    } known[] = {
        {API(1, 56), ENGINE_MOST_ITEMS}, /* items of a workgroup */
        {API(2, 26), 1024},
        {API(3, 27), 1024},
        {API(4, 28), API(64, 1024)},
        {API(5, 29), INT32_MAX}, /* workgroups along x, y, z */
        {API(6, 30), 65535},
        {API(7, 31), 65535},
        {API(8, 74), API(48, 64) << 10}, /* workgroup memory */
        {API(97, 75), API(227, 64) << 10},
        {API(10, 87), (int)gpu_warp},
        {API(16, 63), 4},                               /* multiprocessors */
        {API(18, 16), 0},                               /* integrated */
        {API(40, 2), 2},                                /* engines that copy */
        {API(41, 85), 1},                               /* one space of addresses */
        {API(75, 23), API(atoi(gpu_arch + 3) / 10, 9)}, /* the architecture's number */
        {API(76, 61), API(atoi(gpu_arch + 3) % 10, 0)},
        {API(115, -1), 0}, /* memory pools */
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].number == attribute) {
            *value = known[i].value;
            return E_OK;
        }
    return E_VALUE;
}

int API(cuDeviceGetAttribute, hipDeviceGetAttribute)(int *value, int attribute, int device) {
    ENTER(NEEDS_INIT);
    CHECK(check_device(&call, device));
    return attribute_of(attribute, value);
}

#ifdef DOUBLE_HIP
/* A struct of some hundred facts, of which the double knows the name and, at `arch_at`, the architecture. */
static int properties(const gpu_call *call, void *out, int device, size_t size, size_t arch_at) {
    CHECK(check_device(call, device));
    memset(out, 0, size);
    snprintf(out, 256, "%s double on the processor", TITLE);
    snprintf((char *)out + arch_at, 256, "%s:sramecc+:xnack-", gpu_arch);
    return E_OK;
}

int hipGetDeviceProperties(void *out, int device) {
    ENTER(NEEDS_INIT);
    return properties(&call, out, device, 792, 396);
}

int hipGetDevicePropertiesR0600(void *out, int device) {
    ENTER(NEEDS_INIT);
    return properties(&call, out, device, 1472, 1160);
}
#endif

/* ---- contexts ---------------------------------------------------------------------------------------------------- */

#ifdef DOUBLE_HIP
int hipSetDevice(int device) {
    ENTER(NEEDS_INIT);
    CHECK(check_device(&call, device));
    current = &gpu_contexts[device];
    return E_OK;
}

int hipGetDevice(int *device) {
    ENTER(NEEDS_INIT);
    *device = current ? current->device : 0;
    return E_OK;
}

int hipDeviceReset(void) {
    ENTER(NEEDS_INIT | GIVES_BACK);
    gpu_context *c = current ? current : &gpu_contexts[0];
    end_context(&call, c);
    c->users = 0;
    return E_OK;
}
#else
int cuCtxSetCurrent(gpu_context *context) {
    ENTER(NEEDS_INIT);
    bool known = !context || (context >= gpu_contexts && context < gpu_contexts + MOST_DEVICES && context->users);
    if (!known) return gpu_misuse(&call, E_CONTEXT, "%p is no context, or was released", (void *)context);
    current = context;
    return E_OK;
}

int cuCtxGetCurrent(gpu_context **context) {
    ENTER(NEEDS_INIT);
    *context = current;
    return E_OK;
}

/* Giving something back begins with it, so it is not made to fail unless it is named. */
int cuCtxPushCurrent_v2(gpu_context *context) {
    ENTER(NEEDS_INIT | GIVES_BACK);
    if (!context || context < gpu_contexts || context >= gpu_contexts + MOST_DEVICES || !context->users)
        return gpu_misuse(&call, E_CONTEXT, "%p is no context, or was released", (void *)context);
    if (depth == sizeof below / sizeof *below) return gpu_misuse(&call, E_CONTEXT, "contexts that nobody takes off");
    below[depth++] = current;
    current = context;
    return E_OK;
}

int cuCtxPopCurrent_v2(gpu_context **context) {
    ENTER(NEEDS_INIT | GIVES_BACK);
    if (!depth) return gpu_misuse(&call, E_CONTEXT, "no context was put on");
    if (context) *context = current;
    current = below[--depth];
    return E_OK;
}
#endif

int API(cuDevicePrimaryCtxRetain, hipDevicePrimaryCtxRetain)(gpu_context **context, int device) {
    ENTER(NEEDS_INIT);
    CHECK(check_device(&call, device));
    gpu_contexts[device].users++;
    *context = &gpu_contexts[device];
    return E_OK;
}

int API(cuDevicePrimaryCtxRelease_v2, hipDevicePrimaryCtxRelease)(int device) {
    ENTER(NEEDS_INIT | GIVES_BACK);
    CHECK(check_device(&call, device));
    gpu_context *c = &gpu_contexts[device];
    if (!c->users) return gpu_misuse(&call, E_CONTEXT, "nobody retains the context of device %d", device);
    if (--c->users == 0) end_context(&call, c);
    return E_OK;
}

/* Work that fails shows here, as in every call that waits. */
int API(cuCtxSynchronize, hipDeviceSynchronize)(void) {
    ENTER(NEEDS_CONTEXT);
    return gpu_finish(call.context);
}

/* ---- words for errors -------------------------------------------------------------------------------------------- */

static const struct {
    int error;
    const char *cuda, *hip;
} NAMES[] = {
    {E_OK, "CUDA_SUCCESS", "hipSuccess"},
    {E_VALUE, "CUDA_ERROR_INVALID_VALUE", "hipErrorInvalidValue"},
    {E_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "hipErrorOutOfMemory"},
    {E_INIT, "CUDA_ERROR_NOT_INITIALIZED", "hipErrorNotInitialized"},
    {E_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "hipErrorNoDevice"},
    {E_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "hipErrorInvalidDevice"},
    {E_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "hipErrorInvalidImage"},
    {E_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "hipErrorInvalidContext"},
    {E_NO_BINARY, "CUDA_ERROR_NO_BINARY_FOR_GPU", "hipErrorNoBinaryForGpu"},
    {E_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "hipErrorInvalidHandle"},
    {E_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "hipErrorNotFound"},
    {E_NOT_READY, "CUDA_ERROR_NOT_READY", "hipErrorNotReady"},
    {E_ILLEGAL, "CUDA_ERROR_ILLEGAL_ADDRESS", "hipErrorIllegalAddress"},
    {E_RESOURCES, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "hipErrorLaunchOutOfResources"},
    {E_LAUNCH, "CUDA_ERROR_LAUNCH_FAILED", "hipErrorLaunchFailure"},
    {E_UNKNOWN, "CUDA_ERROR_UNKNOWN", "hipErrorUnknown"},
};

static const char *name_of(int error) {
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++)
        if (NAMES[i].error == error) return API(NAMES[i].cuda, NAMES[i].hip);
    return NULL;
}

#ifdef DOUBLE_HIP
const char *hipGetErrorName(int error) { return name_of(error) ? name_of(error) : "hipErrorUnknown"; }
const char *hipGetErrorString(int error) { return hipGetErrorName(error); }
#else
int cuGetErrorName(int error, const char **name) { return (*name = name_of(error)) ? E_OK : E_VALUE; }
int cuGetErrorString(int error, const char **text) { return cuGetErrorName(error, text); }
#endif
