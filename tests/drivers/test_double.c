/* test_double.c — the doubles of drivers (tests/double) keep what they promise: kernels compute, and each kind of
 * misuse that they are there for is found when it is committed.
 *
 * Every test runs on the double of CUDA and on that of ROCm, through one table of calls. */
#include <dlfcn.h>
#include <fcntl.h>
#include <math.h>

#include "drivers/drivers.h"
#include "hal/hal.h"
#include "kir_cases.h"
#include "kir_device.h"
#include "test_support.h"
#include "tests/double/gpu_api.h"

#define CALLS(X)                                                                  \
    X(init, cuInit, hipInit)                                                      \
    X(device_name, cuDeviceGetName, hipDeviceGetName)                             \
    X(attribute, cuDeviceGetAttribute, hipDeviceGetAttribute)                     \
    X(retain, cuDevicePrimaryCtxRetain, hipDevicePrimaryCtxRetain)                \
    X(release, cuDevicePrimaryCtxRelease_v2, hipDevicePrimaryCtxRelease)          \
    X(sync, cuCtxSynchronize, hipDeviceSynchronize)                               \
    X(stream_new, cuStreamCreate, hipStreamCreateWithFlags)                       \
    X(stream_free, cuStreamDestroy_v2, hipStreamDestroy)                          \
    X(stream_sync, cuStreamSynchronize, hipStreamSynchronize)                     \
    X(stream_wait, cuStreamWaitEvent, hipStreamWaitEvent)                         \
    X(event_new, cuEventCreate, hipEventCreateWithFlags)                          \
    X(event_free, cuEventDestroy_v2, hipEventDestroy)                             \
    X(event_record, cuEventRecord, hipEventRecord)                                \
    X(event_query, cuEventQuery, hipEventQuery)                                   \
    X(event_sync, cuEventSynchronize, hipEventSynchronize)                        \
    X(event_time, cuEventElapsedTime, hipEventElapsedTime)                        \
    X(alloc, cuMemAlloc_v2, hipMalloc)                                            \
    X(free, cuMemFree_v2, hipFree)                                                \
    X(host_alloc, cuMemHostAlloc, hipHostMalloc)                                  \
    X(host_free, cuMemFreeHost, hipHostFree)                                      \
    X(to_device, cuMemcpyHtoDAsync_v2, hipMemcpyHtoDAsync)                        \
    X(to_host, cuMemcpyDtoHAsync_v2, hipMemcpyDtoHAsync)                          \
    X(within, cuMemcpyDtoDAsync_v2, hipMemcpyDtoDAsync)                           \
    X(fill, cuMemsetD8Async, hipMemsetD8Async)                                    \
    X(module_load, cuModuleLoadData, hipModuleLoadData)                           \
    X(module_unload, cuModuleUnload, hipModuleUnload)                             \
    X(function, cuModuleGetFunction, hipModuleGetFunction)                        \
    X(launch, cuLaunchKernel, hipModuleLaunchKernel)                              \
    X(graph_new, cuGraphCreate, hipGraphCreate)                                   \
    X(graph_free, cuGraphDestroy, hipGraphDestroy)                                \
    X(graph_add, cuGraphAddKernelNode, hipGraphAddKernelNode)                     \
    X(graph_make, cuGraphInstantiateWithFlags, hipGraphInstantiateWithFlags)      \
    X(graph_set, cuGraphExecKernelNodeSetParams, hipGraphExecKernelNodeSetParams) \
    X(graph_run, cuGraphLaunch, hipGraphLaunch)                                   \
    X(graph_end, cuGraphExecDestroy, hipGraphExecDestroy)                         \
    X(rtc_create, nvrtcCreateProgram, hiprtcCreateProgram)                        \
    X(rtc_destroy, nvrtcDestroyProgram, hiprtcDestroyProgram)                     \
    X(rtc_compile, nvrtcCompileProgram, hiprtcCompileProgram)                     \
    X(rtc_log, nvrtcGetProgramLog, hiprtcGetProgramLog)                           \
    X(rtc_size, nvrtcGetCUBINSize, hiprtcGetCodeSize)                             \
    X(rtc_code, nvrtcGetCUBIN, hiprtcGetCode)

/* A double's own. */
#define OWN(X)                        \
    X(fault, faults_arm, faults_arm)  \
    X(live, faults_live, faults_live) \
    X(misuses, double_misuses, double_misuses)

static struct {
#define X(name, cuda, hip) __typeof__(cuda) *name;
    CALLS(X)
    OWN(X)
#undef X
    __typeof__(cuCtxSetCurrent) *set_context; /* CUDA's alone */
    int (*set_device)(int device);            /* ROCm's */
} gpu;

enum {
    VALUE = 1,
    NO_MEMORY = 2,
    NOT_INITIALISED = 3,
    NO_CONTEXT = 201,
    HANDLE = 400,
    NOT_READY = 600,
    ILLEGAL = 700,
    FAILED = 719
};
enum { N = 1000, ITEMS = 128 };

static bool hip;
static void *module;

static const char KERNELS[] =
    "extern \"C\" __global__ void __launch_bounds__(128) add(const float *a, const float *b, float *c, int n) {\n"
    "    const int i = blockIdx.x * 128 + threadIdx.x;\n"
    "    if (i < n) c[i] = a[i] + b[i];\n"
    "}\n"
    "struct pair { long long w[2]; };\n"
    "extern \"C\" __global__ void __launch_bounds__(128) reverse(const float *a, float *c, const pair p) {\n"
    "    __shared__ float there[128];\n"
    "    there[threadIdx.x] = a[threadIdx.x + p.w[0]];\n"
    "    BARRIER\n"
    "    c[threadIdx.x + p.w[0]] = there[127 - threadIdx.x];\n"
    "}\n"
    "extern \"C\" __global__ void unwritten(float *c) {\n"
    "    __shared__ float there[128];\n"
    "    if (threadIdx.x == 0) there[0] = 1;\n"
    "    __syncthreads();\n"
    "    c[threadIdx.x] = there[threadIdx.x];\n"
    "}\n"
    "extern \"C\" __global__ void outside(float *c, int n) { c[n] = 1; }\n"
    "extern \"C\" __global__ void beyond(float *c, int n) {\n"
    "    __shared__ float there[4];\n"
    "    there[n + threadIdx.x] = 1;\n"
    "    c[0] = there[0];\n"
    "}\n"
    "extern \"C\" __global__ void divergent(float *c, int n) {\n"
    "    if ((int)threadIdx.x < n) { __syncthreads(); c[0] = 1; }\n"
    "}\n"
    "extern \"C\" __global__ void two_barriers(float *c, int n) {\n"
    "    if ((int)threadIdx.x < n) {\n"
    "        __syncthreads();\n"
    "        c[0] = 1;\n"
    "    } else {\n"
    "        __syncthreads();\n"
    "    }\n"
    "}\n"
    "extern \"C\" __global__ void contract(float *c) { c[0] = c[1] * c[2] + c[3]; }\n"
    "extern \"C\" __global__ void warp(float *c) { c[0] = (float)warpSize; }\n";

/* ---- helpers ----------------------------------------------------------------------------------------------------- */

/* The text with BARRIER spelled. */
static char *kernels_with(const char *barrier) {
    char *text = NULL;
    const char *at = strstr(KERNELS, "BARRIER");
    assert_true(asprintf(&text, "%.*s%s%s", (int)(at - KERNELS), KERNELS, barrier, at + strlen("BARRIER")) > 0);
    return text;
}

/* Compiles; the code, or NULL and the compiler's log. */
static char *compile(const char *text, const char *option, char *log, int expected) {
    gpu_program *p = NULL;
    size_t size = 0;
    const char *options[] = {hip ? "--offload-arch=gfx90a" : "--gpu-architecture=sm_90", option};
    assert_int_equal(gpu.rtc_create(&p, text, "kernels", 0, NULL, NULL), 0);
    int result = gpu.rtc_compile(p, option ? 2 : 1, options);
    if (log) gpu.rtc_log(p, log);
    assert_int_equal(result, expected);
    char *code = NULL;
    if (!result) {
        assert_int_equal(gpu.rtc_size(p, &size), 0);
        code = malloc(size);
        assert_int_equal(gpu.rtc_code(p, code), 0);
    }
    assert_int_equal(gpu.rtc_destroy(&p), 0);
    return code;
}

static void *load(const char *barrier, const char *option) {
    void *loaded = NULL;
    char *text = kernels_with(barrier), *code = compile(text, option, NULL, 0);
    assert_int_equal(gpu.module_load(&loaded, code), 0);
    free(code);
    free(text);
    return loaded;
}

static const char *plain_option(void) { return hip ? "-ffp-contract=off" : "--fmad=false"; }

/* One workgroup, or as many as given. */
static int launch(void *in, const char *name, unsigned groups, unsigned items, void *stream, void **values) {
    void *f = NULL;
    assert_int_equal(gpu.function(&f, in, name), 0);
    return gpu.launch(f, groups, 1, 1, items, 1, 1, 0, stream, values, NULL);
}

static float *device_floats(size_t n) {
    void *p = NULL;
    assert_int_equal(gpu.alloc(&p, n * sizeof(float)), 0);
    return p;
}

static void set(float *device, const float *values, size_t n) {
    assert_int_equal(gpu.to_device(device, values, n * sizeof *values, NULL), 0);
}

static void get(float *values, const float *device, size_t n) {
    assert_int_equal(gpu.to_host(values, device, n * sizeof *values, NULL), 0);
}

/* What a call gives, and that it was told as a misuse. */
#define assert_misuse(call, error)                      \
    do {                                                \
        long before_it = gpu.misuses();                 \
        assert_int_equal((call), (error));              \
        assert_int_equal(gpu.misuses(), before_it + 1); \
    } while (0)

static void begin(void) {
    gpu_context *c = NULL;
    assert_int_equal(gpu.retain(&c, 0), 0);
    if (hip)
        assert_int_equal(gpu.set_device(0), 0);
    else
        assert_int_equal(gpu.set_context(c), 0);
    module = load("__syncthreads();", plain_option());
}

/* Everything was given back. */
static void end(void) {
    assert_int_equal(gpu.module_unload(module), 0);
    long misuses = gpu.misuses();
    assert_int_equal(gpu.release(0), 0);
    assert_int_equal(gpu.misuses(), misuses);
    assert_int_equal(gpu.live(), 0);
}

/* After a kernel failed: the context is dead, and a new one lives. */
static void end_failed(int error) {
    void *p;
    assert_int_equal(gpu.alloc(&p, 4), error);
    assert_int_equal(gpu.sync(), error);
    assert_int_equal(gpu.release(0), 0);
    assert_int_equal(gpu.live(), 0);
}

/* ---- what computes ----------------------------------------------------------------------------------------------- */

static void kernels_compute(void **state) {
    (void)state;
    float a[N], b[N], c[N];
    begin();
    float *da = device_floats(N), *db = device_floats(N), *dc = device_floats(N);
    int n = N;
    for (int i = 0; i < N; i++) {
        a[i] = (float)i / 3;
        b[i] = (float)(i % 7);
    }
    set(da, a, N);
    set(db, b, N);
    assert_int_equal(launch(module, "add", (N + ITEMS - 1) / ITEMS, ITEMS, NULL, (void *[]){&da, &db, &dc, &n}), 0);
    get(c, dc, N);
    for (int i = 0; i < N; i++)
        assert_true(c[i] == a[i] + b[i]);
    long long words[2] = {100, 0};
    assert_int_equal(launch(module, "reverse", 1, ITEMS, NULL, (void *[]){&da, &dc, words}), 0);
    get(c, dc, N);
    for (int i = 0; i < ITEMS; i++)
        assert_true(c[100 + i] == a[100 + 127 - i]);
    assert_int_equal(launch(module, "warp", 1, 1, NULL, (void *[]){&dc}), 0);
    get(c, dc, 1);
    assert_true(c[0] == (hip ? 64 : 32));
    gpu.free(da);
    gpu.free(db);
    gpu.free(dc);
    end();
}

static void a_refused_text_says_where(void **state) {
    (void)state;
    char log[65536];
    assert_null(compile("extern \"C\" __global__ void k(float *a) {\n    a[0] = unknown;\n}\n", NULL, log, 6));
    assert_text_has(log, "kernels:2:");
    assert_text_has(log, "unknown");
    if (!hip) assert_null(compile("", "--no-such-option", log, 5));
}

/* Unless it is told not to, the compiler makes one rounding of a product and a sum, as the vendors' do. */
static void products_and_sums_contract_unless_told(void **state) {
    (void)state;
    begin();
    float x = 1.0f + 0x1p-12f, values[] = {0, x, x, -(1.0f + 0x1p-11f)}, with, without;
    void *contracting = load("__syncthreads();", NULL);
    float *d = device_floats(4);
    set(d, values, 4);
    assert_int_equal(launch(contracting, "contract", 1, 1, NULL, (void *[]){&d}), 0);
    get(&with, d, 1);
    assert_int_equal(launch(module, "contract", 1, 1, NULL, (void *[]){&d}), 0);
    get(&without, d, 1);
    assert_true(without == 0);
#if defined(__x86_64__)
    if (__builtin_cpu_supports("fma")) assert_true(with == 0x1p-24f);
#endif
    gpu.free(d);
    gpu.module_unload(contracting);
    end();
}

/* ---- what nobody wrote, and what nobody waited for --------------------------------------------------------------- */

static void what_nobody_wrote_is_poison(void **state) {
    (void)state;
    float c[ITEMS];
    begin();
    float *d = device_floats(ITEMS);
    get(c, d, ITEMS);
    for (int i = 0; i < ITEMS; i++)
        assert_true(isnan(c[i]));
    assert_int_equal(launch(module, "unwritten", 3, ITEMS, NULL, (void *[]){&d}), 0);
    get(c, d, ITEMS);
    assert_true(c[0] == 1 && isnan(c[1]) && isnan(c[ITEMS - 1]));
    gpu.free(d);
    end();
}

/* A result read from pinned memory before anybody has waited, and one read by a stream that does not wait for the
 * other. */
static void a_missing_wait_shows(void **state) {
    (void)state;
    void *host = NULL, *streams[2], *event;
    int found[2] = {0}, n = ITEMS;
    float one[ITEMS];
    for (int i = 0; i < ITEMS; i++)
        one[i] = 1;
    begin();
    assert_int_equal(gpu.host_alloc(&host, sizeof one, 0), 0);
    assert_int_equal(gpu.event_new(&event, 2), 0);
    for (int k = 0; k < 2; k++)
        assert_int_equal(gpu.stream_new(&streams[k], 1), 0);
    for (int round = 0; round < 8; round++) {
        for (int waits = 0; waits < 2; waits++) {
            const float *result = host;
            float *a = device_floats(ITEMS), *c = device_floats(ITEMS);
            assert_int_equal(gpu.to_device(a, one, sizeof one, streams[0]), 0);
            assert_int_equal(launch(module, "add", 1, ITEMS, streams[0], (void *[]){&a, &a, &c, &n}), 0);
            assert_int_equal(gpu.event_record(event, streams[0]), 0);
            if (waits) assert_int_equal(gpu.stream_wait(streams[1], event, 0), 0);
            assert_int_equal(gpu.to_host(host, c, sizeof one, streams[1]), 0);
            found[0] += isnan(result[0]);
            assert_int_equal(gpu.stream_sync(streams[1]), 0);
            if (waits)
                assert_true(result[0] == 2);
            else
                found[1] += isnan(result[0]);
            gpu.free(a);
            gpu.free(c);
        }
    }
    assert_true(found[0] >= 8); /* of 16 */
    assert_true(found[1] >= 4); /* of 8 */
    for (int k = 0; k < 2; k++)
        assert_int_equal(gpu.stream_free(streams[k]), 0);
    assert_int_equal(gpu.event_free(event), 0);
    assert_int_equal(gpu.host_free(host), 0);
    end();
}

static void events_pass_in_order_and_have_times(void **state) {
    (void)state;
    void *stream, *events[2];
    float ms = -1, c[ITEMS];
    begin();
    float *d = device_floats(ITEMS);
    assert_int_equal(gpu.stream_new(&stream, 1), 0);
    for (int k = 0; k < 2; k++)
        assert_int_equal(gpu.event_new(&events[k], 0), 0);
    assert_int_equal(gpu.event_query(events[0]), 0); /* never recorded */
    assert_int_equal(gpu.event_record(events[0], stream), 0);
    assert_int_equal(launch(module, "unwritten", 1, ITEMS, stream, (void *[]){&d}), 0);
    assert_int_equal(gpu.event_record(events[1], stream), 0);
    int asked = 0;
    while (gpu.event_query(events[1]) == NOT_READY)
        assert_true(++asked < 100);
    assert_int_equal(gpu.event_query(events[0]), 0);
    assert_int_equal(gpu.event_time(&ms, events[0], events[1]), 0);
    assert_true(ms >= 0 && ms < 1e5f);
    get(c, d, ITEMS);
    assert_true(c[0] == 1);
    for (int k = 0; k < 2; k++)
        gpu.event_free(events[k]);
    gpu.stream_free(stream);
    gpu.free(d);
    end();
}

/* Without its barrier a kernel reads what other items have not written yet: another order of items, other values. */
static void a_removed_barrier_is_found(void **state) {
    (void)state;
    int found = 0;
    float a[ITEMS], c[ITEMS];
    begin();
    void *broken = load("", plain_option());
    float *da = device_floats(ITEMS), *dc = device_floats(ITEMS);
    for (int i = 0; i < ITEMS; i++)
        a[i] = (float)i;
    set(da, a, ITEMS);
    for (int round = 0; round < 4; round++) {
        long long words[2] = {0, 0};
        assert_int_equal(launch(broken, "reverse", 1, ITEMS, NULL, (void *[]){&da, &dc, words}), 0);
        get(c, dc, ITEMS);
        int wrong = 0;
        for (int i = 0; i < ITEMS; i++)
            wrong += c[i] != a[127 - i];
        found += wrong > 0;
    }
    assert_int_equal(found, 4);
    gpu.free(da);
    gpu.free(dc);
    gpu.module_unload(broken);
    end();
}

#if TRUNNION_WITH_CUDA && TRUNNION_WITH_ROCM

static bool removes; /* the barriers */

/* The driver's, of a text that may have lost its barriers. */
static tn_status load_changed(void *device, const tn_code *code, void **out) {
    const tn_driver *driver = hip ? &tn_driver_rocm : &tn_driver_cuda;
    tn_code changed = *code;
    char *text = strndup(code->data, code->size);
    assert_non_null(text);
    for (char *at = text; removes && (at = strstr(at, "__syncthreads();"));)
        memset(at, ' ', strlen("__syncthreads();"));
    changed.data = text;
    tn_status s = driver->load(device, &changed, out);
    free(text);
    return s;
}

/* Of the programs made by hand that have workgroups, how many have the interpreter's values. */
static int good_cases(const kir_device *d, int *cases) {
    int good_ones = 0;
    *cases = 0;
    for (int i = 0; i < kir_case_count; i++) {
        kir_random t;
        bool good = false;
        if (!kir_cases[i].group) continue;
        kir_case_make(&t, &kir_cases[i]);
        assert_ok(kir_device_check(d, &t, (uint64_t)i, true, &good));
        kir_random_free(&t);
        good_ones += good;
        ++*cases;
    }
    return good_ones;
}

static void a_barrier_removed_from_a_rendered_kernel_is_found(void **state) {
    (void)state;
    tn_driver driver = hip ? tn_driver_rocm : tn_driver_cuda;
    kir_device d;
    int cases, good;
    driver.load = load_changed;
    kir_device_open(&driver, hip ? &kir_dialect_hip : &kir_dialect_cuda, &d);
    assert_non_null(d.handle);
    removes = false;
    good = good_cases(&d, &cases);
    assert_true(cases > 0 && good == cases);
    removes = true;
    fflush(stderr);
    int loud = dup(2), quiet = open("/dev/null", O_WRONLY);
    assert_true(loud > 0 && quiet > 0 && dup2(quiet, 2) == 2); /* what differs is printed at length */
    good = good_cases(&d, &cases);
    dup2(loud, 2);
    close(loud);
    close(quiet);
    assert_int_equal(good, 0);
    kir_device_close(&d);
    assert_int_equal(gpu.live(), 0);
}

#endif

/* ---- graphs ------------------------------------------------------------------------------------------------------ */

/* "add" of N items at most, as either vendor has it. */
static const gpu_node_params *adding(void **values) {
    static void *f;
    static gpu_node_params cuda;
    static struct {
        unsigned items[3];
        void **extra, *function;
        unsigned groups[3];
        void **values;
        unsigned dynamic;
    } rocm;
    assert_int_equal(gpu.function(&f, module, "add"), 0);
    cuda = (gpu_node_params){.function = f, .groups = {1, 1, 1}, .items = {ITEMS, 1, 1}, .values = values};
    rocm.function = f;
    rocm.values = values;
    memcpy(rocm.groups, cuda.groups, sizeof rocm.groups);
    memcpy(rocm.items, cuda.items, sizeof rocm.items);
    return hip ? (const gpu_node_params *)(const void *)&rocm : &cuda;
}

/* c = a + b, then c = c + b, in a graph: what is set later counts for later runs alone. */
static void graphs_run_with_the_values_of_their_time(void **state) {
    (void)state;
    enum { COUNT = 100 };
    float a[COUNT], b[COUNT], got[COUNT];
    int n = COUNT;
    void *graph = NULL, *other = NULL, *made = NULL;
    gpu_node *first = NULL, *second = NULL, *foreign = NULL;
    begin();
    float *da = device_floats(COUNT), *db = device_floats(COUNT), *dc = device_floats(COUNT);
    for (int i = 0; i < COUNT; i++) {
        a[i] = (float)i;
        b[i] = 1000;
    }
    set(da, a, COUNT);
    set(db, b, COUNT);
    const gpu_node_params *p = adding((void *[]){&da, &db, &dc, &n});
    assert_int_equal(gpu.graph_new(&graph, 0), 0);
    assert_int_equal(gpu.graph_new(&other, 0), 0);
    assert_int_equal(gpu.graph_add(&first, graph, NULL, 0, p), 0);
    assert_int_equal(gpu.graph_add(&foreign, other, NULL, 0, p), 0);
    p = adding((void *[]){&dc, &db, &dc, &n});
    assert_misuse(gpu.graph_add(&second, graph, NULL, 0, p), VALUE);
    assert_int_equal(gpu.graph_add(&second, graph, &first, 1, p), 0);
    assert_misuse(gpu.graph_make(&made, made, 0), HANDLE);
    assert_int_equal(gpu.graph_make(&made, graph, 0), 0);
    assert_int_equal(gpu.graph_run(made, NULL), 0);
    p = adding((void *[]){&dc, &dc, &dc, &n}); /* after the first run, which is not done yet */
    assert_int_equal(gpu.graph_set(made, second, p), 0);
    assert_misuse(gpu.graph_set(made, foreign, p), VALUE);
    assert_int_equal(gpu.to_host(got, dc, sizeof got, NULL), 0);
    for (int i = 0; i < COUNT; i++)
        assert_true(got[i] == a[i] + 2000);
    assert_int_equal(gpu.graph_run(made, NULL), 0);
    assert_int_equal(gpu.to_host(got, dc, sizeof got, NULL), 0);
    for (int i = 0; i < COUNT; i++)
        assert_true(got[i] == 2 * (a[i] + 1000));
    assert_int_equal(gpu.graph_end(made), 0);
    assert_misuse(gpu.graph_run(made, NULL), HANDLE);
    assert_int_equal(gpu.graph_free(graph), 0);
    assert_int_equal(gpu.graph_free(other), 0);
    assert_int_equal(gpu.free(da), 0);
    assert_int_equal(gpu.free(db), 0);
    assert_int_equal(gpu.free(dc), 0);
    end();
}

static void unloading_waits_for_nobody(void **state) {
    (void)state;
    void *again = NULL, *stream = NULL;
    begin();
    float *d = device_floats(128);
    again = load("__syncthreads();", plain_option());
    assert_int_equal(gpu.stream_new(&stream, 1), 0);
    assert_int_equal(launch(again, "unwritten", 1, 128, stream, (void *[]){&d}), 0);
    assert_misuse(gpu.module_unload(again), 0);
    again = load("__syncthreads();", plain_option());
    assert_int_equal(launch(again, "unwritten", 1, 128, stream, (void *[]){&d}), 0);
    assert_int_equal(gpu.sync(), 0);
    long misuses = gpu.misuses();
    assert_int_equal(gpu.module_unload(again), 0);
    assert_int_equal(gpu.misuses(), misuses);
    assert_int_equal(gpu.stream_free(stream), 0);
    assert_int_equal(gpu.free(d), 0);
    end();
}

/* ---- kernels that fail ------------------------------------------------------------------------------------------- */

static void a_failed_kernel_takes_the_context_along(void **state) {
    (void)state;
    static const struct {
        const char *kernel;
        unsigned items;
        int n, error;
    } rows[] = {
        {"outside", 1, 4096, ILLEGAL},   {"outside", 1, -65536, ILLEGAL},   {"beyond", 4, 1, FAILED},
        {"divergent", 128, 100, FAILED}, {"two_barriers", 128, 64, FAILED},
    };
    for (size_t i = 0; i < TN_COUNT(rows); i++) {
        begin();
        float *d = device_floats(16);
        int n = rows[i].n;
        assert_int_equal(launch(module, rows[i].kernel, 1, rows[i].items, NULL, (void *[]){&d, &n}), 0);
        assert_int_equal(gpu.sync(), rows[i].error);
        assert_int_equal(gpu.free(d), rows[i].error);
        end_failed(rows[i].error);
    }
    begin(); /* memory of the host as a kernel's parameter */
    float here[4], *p = here;
    int n = 0;
    assert_int_equal(launch(module, "outside", 1, 1, NULL, (void *[]){&p, &n}), 0);
    assert_int_equal(gpu.sync(), ILLEGAL);
    end_failed(ILLEGAL);
}

/* ---- misuse of calls --------------------------------------------------------------------------------------------- */

static void misuse_of_memory_is_told(void **state) {
    (void)state;
    float here[16] = {0};
    begin();
    float *d = device_floats(16), *gone = device_floats(16);
    int n = 17;
    assert_int_equal(gpu.free(gone), 0);
    assert_misuse(gpu.free(gone), VALUE);                                    /* twice */
    assert_misuse(gpu.free(d + 1), VALUE);                                   /* not its beginning */
    assert_misuse(gpu.free(here), VALUE);                                    /* not the device's */
    assert_misuse(gpu.host_free(d), VALUE);                                  /* of the other kind */
    assert_misuse(gpu.to_device(gone, here, 4, NULL), VALUE);                /* after it was freed */
    assert_misuse(gpu.to_device(d, here, sizeof here + 4, NULL), VALUE);     /* too much */
    assert_misuse(gpu.to_host(here, d + 12, 5 * sizeof *here, NULL), VALUE); /* reads beyond */
    assert_misuse(gpu.to_device(here, here, 4, NULL), VALUE);                /* the host's in place of the device's */
    assert_misuse(gpu.to_host(d, d, 4, NULL), VALUE);                        /* and the other way round */
    assert_misuse(gpu.fill(d, 0, sizeof here + 1, NULL), VALUE);
    assert_misuse(gpu.within(d, gone, 4, NULL), VALUE);
    assert_int_equal(launch(module, "outside", 1, 1, NULL, (void *[]){&d, &n}), 0); /* just behind it */
    assert_int_equal(gpu.sync(), 0);
    assert_misuse(gpu.free(d), 0);
    end();
}

static void misuse_of_handles_is_told(void **state) {
    (void)state;
    void *stream, *event, *f;
    begin();
    assert_int_equal(gpu.stream_new(&stream, 0), 0);
    assert_int_equal(gpu.event_new(&event, 2), 0);
    assert_misuse(gpu.stream_sync(event), HANDLE);
    assert_misuse(gpu.event_record(stream, NULL), HANDLE);
    assert_misuse(gpu.event_time(&(float){0}, event, event), HANDLE); /* made without times */
    assert_int_equal(gpu.event_free(event), 0);
    assert_misuse(gpu.event_free(event), HANDLE);
    assert_misuse(gpu.stream_wait(stream, event, 0), HANDLE);
    assert_int_equal(gpu.stream_free(stream), 0);
    assert_misuse(gpu.stream_sync(stream), HANDLE);
    void *other = load("__syncthreads();", plain_option());
    assert_int_equal(gpu.function(&f, other, "add"), 0);
    assert_int_equal(gpu.function(&(void *){NULL}, other, "no_such_kernel"), 500);
    assert_int_equal(gpu.module_unload(other), 0);
    assert_misuse(gpu.launch(f, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), HANDLE);
    assert_int_equal(gpu.module_load(&other, "0123456789012345678901234567890123456789"), 200);
    end();
}

static void misuse_of_launches_is_told(void **state) {
    (void)state;
    void *f;
    begin();
    float *d = device_floats(4);
    int n = 0;
    void *values[] = {&d, &n};
    assert_int_equal(gpu.function(&f, module, "outside"), 0);
    assert_misuse(gpu.launch(f, 0, 1, 1, 1, 1, 1, 0, NULL, values, NULL), VALUE);
    assert_misuse(gpu.launch(f, 1, 65536, 1, 1, 1, 1, 0, NULL, values, NULL), VALUE);
    assert_misuse(gpu.launch(f, 1, 1, 1, 1025, 1, 1, 0, NULL, values, NULL), VALUE);
    assert_misuse(gpu.launch(f, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), VALUE);
    assert_misuse(gpu.launch(f, 1, 1, 1, 1, 1, 1, 0, d, values, NULL), HANDLE);
    gpu.free(d);
    end();
}

static void leaks_and_contexts(void **state) {
    (void)state;
    void *p, *stream;
    gpu_context *other = NULL;
    begin();
    assert_int_equal(gpu.retain(&other, 1), 0);
    assert_int_equal(gpu.stream_new(&stream, 1), 0);
    if (hip)
        gpu.set_device(1);
    else
        gpu.set_context(other);
    assert_misuse(gpu.stream_sync(stream), HANDLE); /* another device's */
    assert_int_equal(gpu.alloc(&p, 64), 0);
    assert_misuse(gpu.release(1), 0); /* with memory that nobody freed */
    if (!hip) {
        assert_misuse(gpu.alloc(&p, 64), NO_CONTEXT); /* it was released */
        assert_int_equal(gpu.set_context(NULL), 0);
        assert_misuse(gpu.alloc(&p, 64), NO_CONTEXT);
    }
    assert_int_equal(gpu.retain(&other, 0), 0);
    if (hip)
        gpu.set_device(0);
    else
        gpu.set_context(other);
    assert_int_equal(gpu.release(0), 0); /* the second user */
    assert_int_equal(gpu.stream_free(stream), 0);
    end();
}

static void faults_and_lack_of_memory(void **state) {
    (void)state;
    void *p = NULL, *q = NULL;
    begin();
    assert_int_equal(gpu.alloc(&p, (size_t)1 << 40), NO_MEMORY);
    gpu.fault(hip ? "hipMalloc" : "cuMemAlloc_v2", 2, 999, 0);
    assert_int_equal(gpu.alloc(&p, 4), 0);
    assert_int_equal(gpu.alloc(&q, 4), 999);
    assert_int_equal(gpu.alloc(&q, 4), 0);
    gpu.fault(NULL, 1, 5, 1);
    assert_int_equal(gpu.sync(), 5);
    assert_int_equal(gpu.fill(p, 0, 4, NULL), 5);
    assert_int_equal(gpu.free(p), 0); /* what gives back fails only by name */
    assert_int_equal(gpu.free(q), 0);
    gpu.fault(NULL, 0, 0, 0);
    end();
}

/* ---- the prototypes ---------------------------------------------------------------------------------------------- */

/* Functions of our header and of the vendor's have results and parameters of the same sizes, and the same classes. */
static const char COMPARE[] = "#include <cuda.h>\n#include <nvrtc.h>\n#include <type_traits>\n"
                              "#if __has_include(<cublasLt.h>)\n#include <cublasLt.h>\n#endif\n"
                              "#if __has_include(<cudnn.h>)\n#include <cudnn.h>\n#endif\n"
                              "#undef API\n"
                              "namespace ours {\n#include \"tests/double/gpu_api.h\"\n}\n"
                              "template <class A, class B> constexpr bool alike = sizeof(A) == sizeof(B) &&\n"
                              "    std::is_floating_point<A>::value == std::is_floating_point<B>::value &&\n"
                              "    std::is_class<A>::value == std::is_class<B>::value;\n"
                              "template <class R, class... A, class S, class... B>\n"
                              "constexpr bool same(R (*)(A...), S (*)(B...)) {\n"
                              "    if constexpr (sizeof...(A) != sizeof...(B)) return false;\n"
                              "    else return alike<R, S> && (alike<A, B> && ...);\n"
                              "}\n"
                              "#define SAME(name) static_assert(same(&ours::name, &::name), #name);\n";

static void prototypes_are_the_vendors(void **state) {
    (void)state;
    const char *folder = "/usr/local/cuda/include";
    char command[1200];
    if (hip) skip();
    if (access("/usr/local/cuda/include/cuda.h", R_OK) != 0) {
        print_message("skipped: CUDA's headers are not installed\n");
        skip();
    }
    FILE *f = fopen(test_scratch("compare.cc"), "w");
    assert_non_null(f);
    fputs(COMPARE, f);
#define X(name, cuda, hip) fputs("SAME(" #cuda ")\n", f);
    CALLS(X)
#undef X
    fputs(
        "SAME(cuDeviceTotalMem_v2) SAME(cuDeviceGetPCIBusId) SAME(cuCtxSetCurrent) SAME(cuGetErrorName) "
        "SAME(cuMemGetInfo_v2) SAME(cuFuncGetAttribute) SAME(cuMemcpyHtoD_v2) SAME(nvrtcGetPTX) SAME(nvrtcGetPTXSize) "
        "SAME(nvrtcGetProgramLogSize) SAME(nvrtcVersion) SAME(nvrtcGetSupportedArchs) SAME(cuDriverGetVersion)\n"
        "#if __has_include(<cublasLt.h>)\n"
        "SAME(cublasLtCreate) SAME(cublasLtDestroy) SAME(cublasLtMatrixLayoutCreate) SAME(cublasLtMatmulDescCreate) "
        "SAME(cublasLtMatrixLayoutSetAttribute) SAME(cublasLtMatmulDescSetAttribute) "
        "SAME(cublasLtMatmulPreferenceCreate) "
        "SAME(cublasLtMatmulPreferenceSetAttribute) SAME(cublasLtMatmulAlgoGetHeuristic) SAME(cublasLtMatmul)\n"
        "#endif\n"
        "#if __has_include(<cudnn.h>)\n"
        "SAME(cudnnCreate) SAME(cudnnDestroy) SAME(cudnnSetStream) SAME(cudnnCreateTensorDescriptor) "
        "SAME(cudnnDestroyTensorDescriptor) SAME(cudnnSetTensor4dDescriptor) SAME(cudnnCreateFilterDescriptor) "
        "SAME(cudnnDestroyFilterDescriptor) SAME(cudnnSetFilter4dDescriptor) SAME(cudnnCreateConvolutionDescriptor) "
        "SAME(cudnnDestroyConvolutionDescriptor) SAME(cudnnSetConvolution2dDescriptor) "
        "SAME(cudnnSetConvolutionGroupCount) SAME(cudnnSetConvolutionMathType)\n"
        "#define CONV(way) SAME(cudnnGetConvolution##way##Algorithm_v7) SAME(cudnnConvolution##way) \\\n"
        "    SAME(cudnnGetConvolution##way##WorkspaceSize)\n"
        "CONV(Forward) CONV(BackwardData) CONV(BackwardFilter)\n"
        "#endif\n",
        f);
    fclose(f);
    snprintf(command, sizeof command, "${CXX:-c++} -std=c++17 -fsyntax-only -w -I. -isystem %s %s", folder,
             test_scratch("compare.cc"));
    assert_int_equal(system(command), 0);
}

/* ---- both doubles ------------------------------------------------------------------------------------------------ */

static int open_double(bool rocm) {
    char path[600];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 40);
    assert_true(n > 0);
    path[n] = 0;
    strcpy(strrchr(path, '/'), rocm ? "/doubles/rocm.so" : "/doubles/cuda.so");
    setenv("DOUBLE_DEVICES", "2", 1);
    setenv(rocm ? "TRUNNION_ROCM_LIB" : "TRUNNION_CUDA_LIB", path, 1);
    setenv(rocm ? "TRUNNION_HIPRTC_LIB" : "TRUNNION_NVRTC_LIB", path, 1);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) fail_msg("%s", dlerror());
    hip = rocm;
#define X(name, cuda, hip_name) *(void **)&gpu.name = dlsym(library, rocm ? #hip_name : #cuda);
    CALLS(X)
    OWN(X)
#undef X
    *(void **)&gpu.set_context = dlsym(library, "cuCtxSetCurrent");
    *(void **)&gpu.set_device = dlsym(library, "hipSetDevice");
    if (!rocm) assert_misuse(gpu.device_name(path, 16, 0), NOT_INITIALISED);
    assert_int_equal(gpu.init(0), 0);
    assert_int_equal(gpu.device_name(path, sizeof path, 0), 0);
    assert_text_has(path, "double");
    return 0;
}

static int open_cuda(void **state) {
    (void)state;
    return open_double(false);
}

static int open_rocm(void **state) {
    (void)state;
    return open_double(true);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels_compute),
        cmocka_unit_test(a_refused_text_says_where),
        cmocka_unit_test(products_and_sums_contract_unless_told),
        cmocka_unit_test(what_nobody_wrote_is_poison),
        cmocka_unit_test(a_missing_wait_shows),
        cmocka_unit_test(events_pass_in_order_and_have_times),
        cmocka_unit_test(a_removed_barrier_is_found),
#if TRUNNION_WITH_CUDA && TRUNNION_WITH_ROCM
        cmocka_unit_test(a_barrier_removed_from_a_rendered_kernel_is_found),
#endif
        cmocka_unit_test(graphs_run_with_the_values_of_their_time),
        cmocka_unit_test(unloading_waits_for_nobody),
        cmocka_unit_test(a_failed_kernel_takes_the_context_along),
        cmocka_unit_test(misuse_of_memory_is_told),
        cmocka_unit_test(misuse_of_handles_is_told),
        cmocka_unit_test(misuse_of_launches_is_told),
        cmocka_unit_test(leaks_and_contexts),
        cmocka_unit_test(faults_and_lack_of_memory),
        cmocka_unit_test(prototypes_are_the_vendors),
    };
    if (make_scratch(NULL)) return 1;
    int failed = cmocka_run_group_tests_name("cuda", tests, open_cuda, NULL);
    failed += cmocka_run_group_tests_name("rocm", tests, open_rocm, NULL);
    return failed + remove_scratch(NULL);
}
