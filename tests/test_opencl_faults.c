/* test_opencl_faults.c — every call of the OpenCL driver fails once: it ends with a reason or a right result, and
 * nothing is left behind. */
#include <dlfcn.h>
#include <pthread.h>

#include "device_support.h"
#include "trunnion/trunnion.h"

/* The library between driver and OpenCL; tests/fakes/opencl_faults.c describes these. */
static struct {
    void (*arm)(const char *name, long n, int error, int forever);
    long (*counted)(void), (*live)(void), (*failures)(void);
} faults;

static bool there; /* an OpenCL device behind it */

static int open_faults(void **state) {
    if (make_scratch(state)) return -1;
    setenv("TRUNNION_CACHE", test_scratch("cache"), 1);
    const char *path = build_fake("opencl_faults.c", "libOpenCL-faults.so", "-ldl");
    setenv("TRUNNION_OPENCL_LIB", path, 1);
    void *library = dlopen(path, RTLD_NOW);
    if (!library) fail_msg("%s", dlerror());
    *(void **)&faults.arm = dlsym(library, "faults_arm");
    *(void **)&faults.counted = dlsym(library, "faults_counted");
    *(void **)&faults.live = dlsym(library, "faults_live");
    *(void **)&faults.failures = dlsym(library, "faults_failures");
    tn_device_info info;
    tn_probe probe = {.struct_size = sizeof probe, .devices = &info, .capacity = 1};
    tn_driver_opencl.probe(&probe);
    there = probe.count > 0;
    if (there)
        printf("ran on: opencl:0 (%s, software): driver calls that fail\n", info.name);
    else
        printf("skipped: no OpenCL device: %s\n", probe.reason);
    return 0;
}

/* ---- the driver alone -------------------------------------------------------------------------------------------- */

static const char DOUBLE[] = "typedef struct { long n; long base[1]; } params;\n"
                             "__kernel void twice(__global char *x, params p) {\n"
                             "    __global int *at = (__global int *)(x + p.base[0]) + get_global_id(0);\n"
                             "    if (get_global_id(0) < p.n) *at = 2 * *at;\n"
                             "}\n";

enum { N = 100 };

typedef struct session {
    void *device, *queue, *event, *module, *address, *host;
} session;

/* Numbers go there through pinned memory, are doubled, copied within the device by another queue, and read back. */
static tn_status work(const tn_driver *cl, session *s, int32_t *out) {
    const tn_device_options options = {.struct_size = sizeof options};
    tn_caps caps = {.struct_size = sizeof caps};
    int64_t params[2] = {N, 0}, total, unused;
    bool passed;
    void *view, *bytes;
    size_t size;
    TRY(cl->open(0, &options, &s->device));
    TRY(cl->caps(s->device, &caps));
    TRY(cl->memory(s->device, &total, &unused));
    TRY(cl->queue_new(s->device, &s->queue));
    TRY(cl->event_new(s->device, true, &s->event));
    TRY(cl->alloc(s->device, 4096, &s->address));
    TRY(cl->host_alloc(s->device, 4 * N, &s->host));
    for (int i = 0; i < N; i++)
        ((int32_t *)s->host)[i] = i;
    tn_code code = {.form = TN_CODE_OPENCL_C,
                    .data = DOUBLE,
                    .size = sizeof DOUBLE - 1,
                    .entry = "twice",
                    .buffer_count = 1,
                    .group = {16, 1, 1},
                    .params_bytes = sizeof params,
                    .bases_at = 8};
    TRY(cl->load(s->device, &code, &s->module));
    TRY(cl->binary(s->device, s->module, &bytes, &size));
    TRY(cl->fill(s->device, s->address, 0, 4096));
    TRY(cl->copy_async(s->device, (char *)s->address + 8, s->host, 4 * N, 0));
    void *buffers[] = {(char *)s->address + 8};
    tn_dispatch d = {.groups = {(N + 15) / 16, 1, 1}, .buffers = buffers, .params = params};
    TRY(cl->dispatch(s->device, s->module, &d, 1));
    TRY(cl->event_record(s->device, s->event));
    TRY(cl->event_wait(s->queue, s->event));
    TRY(cl->copy(s->queue, (char *)s->address + 2048, (char *)s->address + 8, 4 * N, 2));
    TRY(cl->sync(s->queue));
    TRY(cl->event_sync(s->device, s->event));
    TRY(cl->event_query(s->device, s->event, &passed));
    if (!passed) return tn_fail(TN_ERR_INTERNAL, "an event that was waited for has not passed");
    TRY(cl->map(s->device, (char *)s->address + 2048, 4, true, &view));
    int32_t first = *(int32_t *)view;
    TRY(cl->unmap(s->device, (char *)s->address + 2048, view));
    TRY(cl->copy(s->device, out, (char *)s->address + 2048, 4 * N, 1));
    return first == 0 ? cl->sync(s->device) : tn_fail(TN_ERR_INTERNAL, "the host's view of the device is wrong");
}

static void end(const tn_driver *cl, session *s) {
    if (!s->device) return;
    if (s->module) cl->unload(s->device, s->module);
    if (s->host) cl->host_free(s->device, s->host);
    if (s->address) cl->free(s->device, s->address);
    if (s->event) cl->event_free(s->device, s->event);
    if (s->queue) cl->queue_free(s->device, s->queue);
    cl->close(s->device);
}

/* One run with the n-th call failing. Returns its status after looking for what it left. */
static tn_status run(const char *name, long n, int error, bool forever) {
    session s = {0};
    int32_t out[N] = {0};
    int64_t blocks = tn_mem_get_stats().live_blocks;
    faults.arm(name, n, error, forever);
    tn_status status = work(&tn_driver_opencl, &s, out);
    long failures = faults.failures();
    if (status == TN_OK)
        for (int i = 0; i < N; i++)
            assert_int_equal(out[i], 2 * i);
    else if (!failures)
        fail_msg("call %ld, error %d: %s", n, error, tn_error());
    else if (!strstr(tn_error(), "opencl:0"))
        fail_msg("call %ld, error %d: the words do not name the device: %s", n, error, tn_error());
    end(&tn_driver_opencl, &s);
    if (faults.live()) fail_msg("call %ld, error %d: %ld OpenCL objects are left", n, error, faults.live());
    if (tn_mem_get_stats().live_blocks != blocks) fail_msg("call %ld, error %d: memory is left", n, error);
    return status;
}

static void every_call_may_fail(void **state) {
    (void)state;
    static const int codes[] = {-5, -4, -6, -2, -36, -59};
    if (!there) skip();
    assert_ok(run(NULL, 0, 0, false));
    long calls = faults.counted(), ended = 0;
    for (long n = 1; n <= calls; n++)
        for (size_t k = 0; k < 2; k++)
            ended += run(NULL, n, codes[(size_t)n % 3 * 2 + k], k) != TN_OK;
    assert_true(ended > calls); /* some queries may fail without harm */
    printf("%ld calls of the driver failed one by one; %ld of %ld runs ended early\n", calls, ended, 2 * calls);
}

static void lack_of_memory_and_loss_are_told_apart(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int error;
        tn_status status;
        const char *part;
    } rows[] = {
        {"clCreateBuffer", -4, TN_ERR_MEMORY, "smaller batch"},
        {"clCreateBuffer", -61, TN_ERR_MEMORY, "CL_INVALID_BUFFER_SIZE"},
        {"clEnqueueNDRangeKernel", -5, TN_ERR_MEMORY, "CL_OUT_OF_RESOURCES"},
        {"clEnqueueNDRangeKernel", -54, TN_ERR_UNSUPPORTED, "twice"},
        {"clFinish", -5, TN_ERR_LOST, "the device is lost"},
        {"clEnqueueReadBuffer", -9999, TN_ERR_LOST, "illegal access"},
        {"clSetKernelArg", -2, TN_ERR_LOST, "CL_DEVICE_NOT_AVAILABLE"},
        {"clBuildProgram", -11, TN_ERR_UNSUPPORTED, "does not compile"},
        {"clCreateContext", -77, TN_ERR_DEVICE, "clCreateContext"},
    };
    if (!there) skip();
    for (size_t i = 0; i < TN_COUNT(rows); i++) {
        tn_status got = run(rows[i].name, 1, rows[i].error, false);
        if (got != rows[i].status) fail_msg("%s: %s: %s", rows[i].name, tn_status_name(got), tn_error());
        assert_text_has(tn_error(), rows[i].part);
    }
}

/* Once lost, a device says so at each call, with what happened first, also when the calls would succeed again. */
static void loss_is_remembered(void **state) {
    (void)state;
    const tn_driver *cl = &tn_driver_opencl;
    const tn_device_options options = {.struct_size = sizeof options};
    void *device = NULL, *address = NULL, *other = NULL;
    char byte = 0;
    if (!there) skip();
    faults.arm("clFinish", 1, -5, 0);
    assert_ok(cl->open(0, &options, &device));
    assert_ok(cl->alloc(device, 64, &address));
    assert_int_equal(faults.live(), 3); /* a context, a queue, a buffer */
    assert_int_equal(cl->sync(device), TN_ERR_LOST);
    assert_int_equal(cl->sync(device), TN_ERR_LOST);
    assert_text_has(tn_error(), "clFinish");
    assert_int_equal(cl->copy(device, address, &byte, 1, 0), TN_ERR_LOST);
    assert_int_equal(cl->alloc(device, 64, &other), TN_ERR_LOST);
    cl->free(device, address);
    cl->close(device);
    assert_int_equal(faults.live(), 0);
    assert_ok(cl->open(0, &options, &device)); /* opened anew it is whole */
    assert_ok(cl->sync(device));
    cl->close(device);
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
    const tn_device_options strict = {.struct_size = sizeof strict, .fallback = TN_FALLBACK_STRICT};
    const tn_adam_options options = {.struct_size = sizeof options, .lr = 0.1};
    TRY(tn_device_open("opencl:0", &strict, NULL, &t->device));
    TRY(tn_set_current_device(t->device));
    t->model = tn_module_root();
    TN_SCOPE {
        int64_t features[] = {FEATURES};
        t->weight = tn_module_add_parameter(t->model, "weight", tn_ones(features, 1, TN_F32));
        t->bias = tn_module_add_parameter(t->model, "bias", tn_zeros(features, 1, TN_F32));
        t->out = tn_module_add_parameter(t->model, "out", tn_ones(features, 1, TN_F32));
    }
    TRY(tn_module_status(t->model));
    return tn_optimizer_adam(t->model, &options, &t->adam);
}

static tn_status training_step(training *t) {
    tn_status s = TN_OK;
    TN_SCOPE {
        float x[ROWS * FEATURES], y[ROWS];
        for (int i = 0; i < ROWS * FEATURES; i++)
            x[i] = (float)(i * 37 % 11) / 11.0f;
        for (int i = 0; i < ROWS; i++)
            y[i] = (float)(i % 3);
        tn_tensor *inputs = tn_from_data(x, (int64_t[]){ROWS, FEATURES}, 2, TN_F32);
        tn_tensor *wanted = tn_from_data(y, (int64_t[]){ROWS}, 1, TN_F32);
        tn_tensor *hidden = tn_relu(tn_add(tn_mul(inputs, t->weight), t->bias));
        tn_tensor *got = tn_sum(tn_mul(hidden, t->out), (int64_t[]){1}, 1, false);
        s = tn_minimize(t->adam, tn_mse_loss(got, wanted, TN_REDUCTION_MEAN));
    }
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
    if (faults.live()) fail_msg("call %ld, error %d: %ld OpenCL objects are left", n, error, faults.live());
    return a;
}

static void training_survives_or_says_why(void **state) {
    (void)state;
    static const int codes[] = {-5, -4, -2, -36};
    if (!there) skip();
    attempt one = try_training(0, 0, true), two = try_training(0, 0, false); /* what one step gives, and two */
    assert_memory_not_equal(one.states, two.states, sizeof one.states);
    long ended = 0, lost = 0;
    bool full = getenv("TRUNNION_TEST_FULL") != NULL;
    for (long n = 1; n <= two.counted; n += full ? 1 : 3) {
        attempt a = try_training(n, codes[n % 4], false);
        ended += a.status != TN_OK;
        lost += !a.answers;
        bool as_new = !memcmp(a.states, two.states, sizeof a.states);
        bool as_old = !memcmp(a.states, one.states, sizeof a.states);
        if (a.answers && !(as_new || (as_old && a.status != TN_OK)))
            fail_msg("call %ld, error %d: %s; the states are neither those before the step nor those after it", n,
                     codes[n % 4], a.status == TN_OK ? "it went well" : a.words);
    }
    for (long n = 1; n <= one.counted; n += full ? 1 : 17)
        ended += try_training(n, codes[n / 17 % 4], true).status != TN_OK;
    printf("a step of training makes %ld calls; %ld runs with a fault ended early, %ld lost the device\n", two.counted,
           ended, lost);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_call_may_fail),
        cmocka_unit_test(lack_of_memory_and_loss_are_told_apart),
        cmocka_unit_test(loss_is_remembered),
        cmocka_unit_test(training_survives_or_says_why),
    };
    return cmocka_run_group_tests(tests, open_faults, remove_scratch);
}
