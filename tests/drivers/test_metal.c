/* test_metal.c — the Metal driver on a double of Metal (tests/double/metal.h), and the double itself: it finds each
 * misuse that it is there for, and the driver commits none, leaves nothing behind, and has words for every failure.
 *
 * Nothing here says what Apple's compiler and machines do. */
#include <dlfcn.h>
#include <math.h>
#include <unistd.h>

#include "cli/device/conform.h"
#include "drivers/drivers.h"
#include "drivers/metal.h"
#include "hal/hal.h"
#include "test_support.h"

static const tn_driver *metal = &tn_driver_metal;

/* The double's own functions, and its run time. */
static struct {
    void (*arm)(const char *name, long n, int error, int forever);
    long (*counted)(void), (*live)(void), (*failures)(void), (*misuses)(void);
    void (*send)(void);
    selector (*selector_named)(const char *);
    object (*class_named)(const char *), (*default_device)(void);
    void *(*pool_push)(void);
    void (*pool_pop)(void *);
} dbl;

static int open_double(void **state) {
    (void)state;
    static const struct {
        const char *name;
        void **at;
    } symbols[] = {
        {"faults_arm", (void **)&dbl.arm},
        {"faults_counted", (void **)&dbl.counted},
        {"faults_live", (void **)&dbl.live},
        {"faults_failures", (void **)&dbl.failures},
        {"double_misuses", (void **)&dbl.misuses},
        {"objc_msgSend", (void **)&dbl.send},
        {"sel_registerName", (void **)&dbl.selector_named},
        {"objc_getClass", (void **)&dbl.class_named},
        {"MTLCreateSystemDefaultDevice", (void **)&dbl.default_device},
        {"objc_autoreleasePoolPush", (void **)&dbl.pool_push},
        {"objc_autoreleasePoolPop", (void **)&dbl.pool_pop},
    };
    char path[600];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 40);
    assert_true(n > 0);
    path[n] = 0;
    strcpy(strrchr(path, '/'), "/doubles/metal.so");
    setenv("TRUNNION_METAL_LIB", path, 1);
    setenv("TRUNNION_OBJC_LIB", path, 1);
    setenv("DOUBLE_MEMORY", "268435456", 1);
    setenv("TRUNNION_CACHE", test_scratch("cache"), 1);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) fail_msg("%s", dlerror());
    for (size_t i = 0; i < TN_COUNT(symbols); i++) {
        *symbols[i].at = dlsym(library, symbols[i].name);
        if (!*symbols[i].at) fail_msg("%s", dlerror());
    }
    return 0;
}

/* ---- the double: what an application must not do ----------------------------------------------------------------- */

#define X(name, text, result, parameters) typedef result message_##name parameters;
MESSAGES(X)
#undef X
static const char *text_of_message(const char *name) {
#define X(name, text, result, parameters) {#name, text},
    static const struct { const char *name, *text; } rows[] = {MESSAGES(X)};
#undef X
    for (size_t i = 0; i < TN_COUNT(rows); i++)
        if (!strcmp(rows[i].name, name)) return rows[i].text;
    return NULL;
}
#define SELECTOR(message) dbl.selector_named(text_of_message(#message))
#define ASK(message, to) (((message_##message *)dbl.send)((to), SELECTOR(message)))
#define SEND(message, to, ...) (((message_##message *)dbl.send)((to), SELECTOR(message), __VA_ARGS__))

static const char KERNELS[] =
    "#include <metal_stdlib>\nusing namespace metal;\n"
    "[[kernel, max_total_threads_per_threadgroup(64)]] void add(device const float *a [[buffer(0)]], "
    "device float *c [[buffer(1)]], constant float *p [[buffer(2)]], uint3 at [[threadgroup_position_in_grid]], "
    "uint me [[thread_index_in_threadgroup]]) {\n"
    "    threadgroup float there[64];\n"
    "    there[me] = a[at.x * 64 + me];\n"
    "    threadgroup_barrier(mem_flags::mem_threadgroup);\n"
    "    c[at.x * 64 + me] = there[63 - me] + p[0];\n"
    "}\n"
    "[[kernel]] void outside(device float *c [[buffer(0)]]) { c[1 << 20] = 1; }\n"
    "[[kernel, max_total_threads_per_threadgroup(64)]] void diverges(device float *c [[buffer(0)]], "
    "uint me [[thread_index_in_threadgroup]]) {\n"
    "    if (me < 3) threadgroup_barrier(mem_flags::mem_threadgroup);\n"
    "    c[me] = 1;\n"
    "}\n";

/* A device with a queue, the kernels, and two buffers of 128 floats. */
typedef struct bench {
    void *pool;
    object device, queue, library, a, c;
} bench;

static object text(const char *words) {
    return SEND(init_text, ASK(alloc, dbl.class_named("NSString")), words, strlen(words), UTF8);
}

static object library_of(object device, const char *words, object *error) {
    object source = text(words), options = ASK(new_, dbl.class_named("MTLCompileOptions"));
    SEND(fast_math, options, 0);
    object library = SEND(new_library, device, source, options, error);
    ASK(release, options);
    ASK(release, source);
    return library;
}

static object pipeline_of(const bench *b, const char *name) {
    object error = NULL, entry = text(name), function = SEND(new_function, b->library, entry);
    assert_non_null(function);
    object pipeline = SEND(new_pipeline, b->device, function, &error);
    assert_non_null(pipeline);
    ASK(release, function);
    ASK(release, entry);
    return pipeline;
}

static bench bench_new(void) {
    bench b = {.pool = dbl.pool_push(), .device = dbl.default_device()};
    object error = NULL;
    b.queue = ASK(new_queue, b.device);
    b.library = library_of(b.device, KERNELS, &error);
    assert_non_null(b.library);
    b.a = SEND(new_buffer, b.device, 512, STORAGE_SHARED);
    b.c = SEND(new_buffer, b.device, 512, STORAGE_SHARED);
    return b;
}

static void bench_end(bench *b) {
    ASK(release, b->a);
    ASK(release, b->c);
    ASK(release, b->library);
    ASK(release, b->queue);
    ASK(release, b->device);
    dbl.pool_pop(b->pool);
}

/* Encodes `add` of two groups, all but what a misuse leaves out. */
static object encode_add(const bench *b, object buffer, object pipeline) {
    object encoder = ASK(encoder, buffer);
    float one = 1;
    SEND(set_pipeline, encoder, pipeline);
    SEND(set_buffer, encoder, b->a, 0, 0);
    SEND(set_buffer, encoder, b->c, 0, 1);
    SEND(set_bytes, encoder, &one, sizeof one, 2);
    SEND(dispatch, encoder, ((metal_size){2, 1, 1}), ((metal_size){64, 1, 1}));
    return encoder;
}

static void messages_find_their_methods(void **state) {
    (void)state;
    bench b = bench_new();
    object pipeline = pipeline_of(&b, "add"), buffer = ASK(command_buffer, b.queue);
    float *a = ASK(contents, b.a), *c = ASK(contents, b.c);
    for (int i = 0; i < 128; i++)
        a[i] = (float)i;
    assert_true(isnan(c[0])); /* nobody wrote there: poison */
    ASK(end, encode_add(&b, buffer, pipeline));
    ASK(commit, buffer);
    ASK(wait, buffer);
    assert_int_equal(ASK(status, buffer), STATUS_COMPLETED);
    assert_true(ASK(end_time, buffer) > 0);
    for (int i = 0; i < 128; i++)
        assert_true(c[i] == (float)(i / 64 * 64 + 63 - i % 64) + 1);
    assert_null(ASK(name, NULL)); /* a message to nil */
    assert_true(ASK(end_time, NULL) == 0);
    ASK(release, pipeline);
    bench_end(&b);
    assert_int_equal(dbl.live(), 0);
    assert_int_equal(dbl.misuses(), 0);
}

typedef void misuse(const bench *b, object pipeline);

static void of_an_unknown_message(const bench *b, object p) {
    (void)p;
    ((message_name *)dbl.send)(b->device, dbl.selector_named("colour"));
}
static void of_a_message_without_a_selector(const bench *b, object p) {
    (void)p;
    ((message_name *)dbl.send)(b->device, (selector)(uintptr_t) "name");
}
static void of_an_object_that_is_gone(const bench *b, object p) {
    (void)p;
    object buffer = SEND(new_buffer, b->device, 16, STORAGE_SHARED);
    ASK(release, buffer);
    (void)ASK(contents, buffer);
}
static void of_a_release_too_many(const bench *b, object p) {
    (void)p;
    object buffer = SEND(new_buffer, b->device, 16, STORAGE_SHARED);
    ASK(release, buffer);
    ASK(release, buffer);
}
static void of_a_pool_popped_twice(const bench *b, object p) {
    (void)b;
    (void)p;
    void *pool = dbl.pool_push();
    dbl.pool_pop(pool);
    dbl.pool_pop(pool);
}
static void of_an_open_encoder_at_commit(const bench *b, object p) {
    object buffer = ASK(command_buffer, b->queue), encoder = encode_add(b, buffer, p);
    ASK(commit, buffer);
    ASK(end, encoder);
}
static void of_two_encoders(const bench *b, object p) {
    object buffer = ASK(command_buffer, b->queue), encoder = encode_add(b, buffer, p);
    assert_null(ASK(encoder, buffer));
    ASK(end, encoder);
}
static void of_an_encoder_without_an_end(const bench *b, object p) {
    void *pool = dbl.pool_push();
    encode_add(b, ASK(command_buffer, b->queue), p);
    dbl.pool_pop(pool);
}
static void of_an_encoder_after_its_end(const bench *b, object p) {
    object encoder = encode_add(b, ASK(command_buffer, b->queue), p);
    ASK(end, encoder);
    SEND(set_buffer, encoder, b->a, 0, 0);
}
static void of_a_dispatch_without_pipeline(const bench *b, object p) {
    (void)p;
    object encoder = ASK(encoder, ASK(command_buffer, b->queue));
    SEND(dispatch, encoder, ((metal_size){1, 1, 1}), ((metal_size){64, 1, 1}));
    ASK(end, encoder);
}
static void of_a_missing_binding(const bench *b, object p) {
    object encoder = ASK(encoder, ASK(command_buffer, b->queue));
    SEND(set_pipeline, encoder, p);
    SEND(set_buffer, encoder, b->a, 0, 0);
    SEND(dispatch, encoder, ((metal_size){1, 1, 1}), ((metal_size){64, 1, 1}));
    ASK(end, encoder);
}
static void of_too_large_a_group(const bench *b, object p) {
    object encoder = encode_add(b, ASK(command_buffer, b->queue), p);
    SEND(dispatch, encoder, ((metal_size){1, 1, 1}), ((metal_size){65, 1, 1}));
    ASK(end, encoder);
}
static void of_binding_31(const bench *b, object p) {
    object encoder = encode_add(b, ASK(command_buffer, b->queue), p);
    SEND(set_buffer, encoder, b->a, 0, 31);
    ASK(end, encoder);
}
static void of_an_offset_behind_the_buffer(const bench *b, object p) {
    object encoder = encode_add(b, ASK(command_buffer, b->queue), p);
    SEND(set_buffer, encoder, b->a, 512, 0);
    ASK(end, encoder);
}
static void of_too_many_bytes(const bench *b, object p) {
    static const char bytes[INLINE_BYTES + 1];
    object encoder = encode_add(b, ASK(command_buffer, b->queue), p);
    SEND(set_bytes, encoder, bytes, sizeof bytes, 2);
    ASK(end, encoder);
}
static void of_a_wrong_class(const bench *b, object p) {
    object encoder = encode_add(b, ASK(command_buffer, b->queue), p);
    SEND(set_pipeline, encoder, b->a);
    ASK(end, encoder);
}
static void of_a_wait_without_commit(const bench *b, object p) {
    (void)p;
    ASK(wait, ASK(command_buffer, b->queue));
}
static void of_two_commits(const bench *b, object p) {
    (void)p;
    object buffer = ASK(command_buffer, b->queue);
    ASK(commit, buffer);
    ASK(commit, buffer);
}
static void of_an_event_that_never_comes(const bench *b, object p) {
    (void)p;
    object buffer = ASK(command_buffer, b->queue), event = ASK(new_event, b->device);
    SEND(wait_for, buffer, event, 1);
    ASK(commit, buffer);
    ASK(wait, buffer);
    assert_int_equal(ASK(status, buffer), STATUS_ERROR);
    ASK(release, event);
}
static void of_a_buffer_of_nothing(const bench *b, object p) {
    (void)p;
    assert_null(SEND(new_buffer, b->device, 0, STORAGE_SHARED));
}

static void each_misuse_is_found(void **state) {
    (void)state;
    static misuse *const all[] = {
        of_an_unknown_message,
        of_a_message_without_a_selector,
        of_an_object_that_is_gone,
        of_a_release_too_many,
        of_a_pool_popped_twice,
        of_an_open_encoder_at_commit,
        of_two_encoders,
        of_an_encoder_without_an_end,
        of_an_encoder_after_its_end,
        of_a_dispatch_without_pipeline,
        of_a_missing_binding,
        of_too_large_a_group,
        of_binding_31,
        of_an_offset_behind_the_buffer,
        of_too_many_bytes,
        of_a_wrong_class,
        of_a_wait_without_commit,
        of_two_commits,
        of_an_event_that_never_comes,
        of_a_buffer_of_nothing,
    };
    for (size_t i = 0; i < TN_COUNT(all); i++) {
        bench b = bench_new();
        object pipeline = pipeline_of(&b, "add");
        long before = dbl.misuses();
        all[i](&b, pipeline);
        if (dbl.misuses() == before) fail_msg("misuse %zu is not found", i);
        ASK(release, pipeline);
        bench_end(&b);
    }
    long before = dbl.misuses();
    object device = dbl.default_device();
    (void)ASK(name, device); /* what it gives is autoreleased, and there is no pool */
    assert_int_equal(dbl.misuses(), before + 1);
    ASK(release, device);
}

/* A command buffer that fails says why, and those behind it go on. */
static void kernels_that_fail_fail_their_command_buffer(void **state) {
    (void)state;
    static const char *const names[] = {"outside", "diverges"};
    static const char *const words[] = {"no memory of the device", "barrier"};
    for (int i = 0; i < 2; i++) {
        bench b = bench_new();
        object pipeline = pipeline_of(&b, names[i]), buffer = ASK(command_buffer, b.queue);
        object encoder = ASK(encoder, buffer);
        SEND(set_pipeline, encoder, pipeline);
        SEND(set_buffer, encoder, b.c, 0, 0);
        SEND(dispatch, encoder, ((metal_size){1, 1, 1}), ((metal_size){64, 1, 1}));
        ASK(end, encoder);
        ASK(commit, buffer);
        ASK(wait, buffer);
        assert_int_equal(ASK(status, buffer), STATUS_ERROR);
        const char *why = ASK(utf8, ASK(description, ASK(error, buffer)));
        if (i == 1) assert_text_has(why, words[i]);
        assert_text_has(why, names[i]);
        ASK(release, pipeline);
        bench_end(&b);
    }
}

static void a_refused_text_says_where(void **state) {
    (void)state;
    static const struct {
        const char *text, *part;
    } rows[] = {
        {"#include <metal_stdlib>\nusing namespace metal;\n[[kernel]] void k(device int *a [[buffer(0)]]) { a[0] = "
         "nix; "
         "}\n",
         "program_source:3:"},
        {"[[kernel]] void k(device int *a [[buffer(0)]]) { a[0] = 1; }\n", "metal_stdlib"},
        {"#include <metal_stdlib>\n[[kernel]] void k(device int *a) { a[0] = 1; }\n", "attributes"},
    };
    bench b = bench_new();
    for (size_t i = 0; i < TN_COUNT(rows); i++) {
        object error = NULL;
        assert_null(library_of(b.device, rows[i].text, &error));
        assert_text_has(ASK(utf8, ASK(description, error)), rows[i].part);
        assert_int_equal(ASK(code, error), 3);
    }
    bench_end(&b);
}

/* ---- the driver -------------------------------------------------------------------------------------------------- */

/* The natures of machines that the double can have. */
static const struct { const char *name, *discrete; } natures[] = {{"unified memory", NULL}, {"a card", "1"}};

static void be(size_t nature) {
    if (natures[nature].discrete)
        setenv("DOUBLE_DISCRETE", natures[nature].discrete, 1);
    else
        unsetenv("DOUBLE_DISCRETE");
}

static void the_driver_keeps_its_promises(void **state) {
    (void)state;
    long before = dbl.misuses(), live = dbl.live();
    for (size_t i = 0; i < TN_COUNT(natures); i++) {
        be(i);
        conform_options o = {.large = 20 << 20}; /* more than one piece of a staged copy */
        conform_result r = conform_driver(metal, 0, &o, stdout);
        assert_int_equal(r.broken, 0);
        assert_true(r.promises > 15);
        assert_int_equal(dbl.misuses(), before);
        assert_int_equal(dbl.live(), live);
    }
    be(0);
}

enum { N = 100, BUFFERS = 30 };

/* Doubles N numbers of the last of many buffers; `pad` makes the parameters long. */
static char *source_of(int pad) {
    tn_str s = {0};
    tn_str_add(&s, "#include <metal_stdlib>\nusing namespace metal;\n[[kernel]] void twice(");
    for (int i = 0; i < BUFFERS; i++)
        tn_str_add(&s, "device uchar *a%d [[buffer(%d)]], ", i, i);
    tn_str_add(&s,
               "constant long *p [[buffer(%d)]], uint3 at [[threadgroup_position_in_grid]], uint me "
               "[[thread_index_in_threadgroup]]) {\n    long i = at.x * 16 + me;\n",
               BUFFERS);
    tn_str_add(&s, "    device int *x = (device int *)(a%d + p[%d]);\n    if (i < p[0]) x[i] = 2 * x[i];\n}\n",
               BUFFERS - 1, pad + BUFFERS);
    char *copy = strdup(tn_str_text(&s));
    tn_str_free(&s);
    return copy;
}

typedef struct session {
    void *device, *queue, *event, *module, *address, *view;
} session;

/* Numbers go there, are doubled, copied within the device by another queue, and read back and seen through a map. */
static tn_status work(session *s, const char *source, int pad, int32_t *out) {
    const tn_device_options options = TN_DEVICE_DEFAULTS;
    tn_caps caps = {.struct_size = sizeof caps};
    int64_t params[1 + 600 + BUFFERS] = {N}, total, unused;
    int32_t numbers[N];
    bool passed;
    void *buffers[BUFFERS] = {NULL};
    TRY(metal->open(0, &options, &s->device));
    TRY(metal->caps(s->device, &caps));
    TRY(metal->memory(s->device, &total, &unused));
    TRY(metal->queue_new(s->device, &s->queue));
    TRY(metal->event_new(s->device, true, &s->event));
    TRY(metal->alloc(s->device, 4096, &s->address));
    tn_code code = {.format = TN_CODE_MSL,
                    .data = source,
                    .size = strlen(source),
                    .entry = "twice",
                    .buffer_count = BUFFERS,
                    .group = {16, 1, 1},
                    .params_bytes = (size_t)(1 + pad + BUFFERS) * 8,
                    .bases_at = (size_t)(1 + pad) * 8};
    TRY(metal->load(s->device, &code, &s->module));
    for (int i = 0; i < N; i++)
        numbers[i] = i;
    TRY(metal->fill(s->device, s->address, 0, 4096));
    TRY(metal->copy(s->device, (char *)s->address + 8, numbers, sizeof numbers, 0));
    buffers[BUFFERS - 1] = (char *)s->address + 4;
    params[pad + BUFFERS] = 4;
    tn_dispatch d = {.groups = {(N + 15) / 16, 1, 1}, .buffers = buffers, .params = params};
    TRY(metal->dispatch(s->device, s->module, &d, 1));
    TRY(metal->event_record(s->device, s->event));
    TRY(metal->event_wait(s->queue, s->event));
    TRY(metal->copy(s->queue, (char *)s->address + 2048, (char *)s->address + 8, sizeof numbers, 2));
    TRY(metal->sync(s->queue));
    TRY(metal->event_sync(s->device, s->event));
    TRY(metal->event_query(s->device, s->event, &passed));
    if (!passed) return tn_fail(TN_ERR_INTERNAL, "an event is not complete after waiting for it");
    int32_t second = 2;
    tn_status mapped = metal->map(s->device, (char *)s->address + 2048, 8, true, &s->view);
    if (mapped == TN_OK) {
        second = ((int32_t *)s->view)[1];
        TRY(metal->unmap(s->device, (char *)s->address + 2048, s->view));
    } else if (mapped != TN_ERR_UNSUPPORTED || !getenv("DOUBLE_DISCRETE")) {
        return mapped;
    }
    TRY(metal->copy(s->device, out, (char *)s->address + 2048, sizeof numbers, 1));
    return second == 2 ? metal->sync(s->device) : tn_fail(TN_ERR_INTERNAL, "the host's view of the device is wrong");
}

static void end(session *s) {
    if (!s->device) return;
    if (s->module) metal->unload(s->device, s->module);
    if (s->address) metal->free(s->device, s->address);
    if (s->event) metal->event_free(s->device, s->event);
    if (s->queue) metal->queue_free(s->device, s->queue);
    metal->close(s->device);
}

static long last_counted; /* messages of the last run that could fail */

static tn_status run(const char *name, long n, int error, bool forever, int pad) {
    session s = {0};
    int32_t out[N] = {0};
    int64_t blocks = tn_mem_get_stats().live_blocks;
    long misuses = dbl.misuses(), live = dbl.live();
    char *source = source_of(pad);
    dbl.arm(name, n, error, forever);
    tn_status status = work(&s, source, pad, out);
    long failures = dbl.failures();
    last_counted = dbl.counted();
    if (status == TN_OK)
        for (int i = 0; i < N; i++)
            assert_int_equal(out[i], 2 * i);
    else if (!failures)
        fail_msg("message %ld: %s", n, tn_error());
    else if (!strstr(tn_error(), "metal"))
        fail_msg("message %ld: the words do not name the device: %s", n, tn_error());
    end(&s);
    dbl.arm(NULL, 0, 0, false);
    free(source);
    if (dbl.live() != live) fail_msg("message %ld: %ld objects are left", n, dbl.live() - live);
    if (dbl.misuses() != misuses) fail_msg("message %ld: misused", n);
    if (tn_mem_get_stats().live_blocks != blocks) fail_msg("message %ld: memory is left", n);
    return status;
}

static void long_parameters_have_a_buffer_of_their_own(void **state) {
    (void)state;
    for (size_t i = 0; i < TN_COUNT(natures); i++) {
        be(i);
        assert_ok(run(NULL, 0, 0, false, 0));
        assert_ok(run(NULL, 0, 0, false, 600));
    }
    be(0);
}

static void every_message_may_fail(void **state) {
    (void)state;
    for (size_t i = 0; i < TN_COUNT(natures); i++) {
        be(i);
        assert_ok(run(NULL, 0, 0, false, 600));
        long messages = last_counted, ended = 0;
        for (long n = 1; n <= messages; n++)
            for (int forever = 0; forever < 2; forever++)
                ended += run(NULL, n, 8, forever, 600) != TN_OK;
        printf("%s: %ld messages failed one by one; %ld of %ld runs ended early\n", natures[i].name, messages, ended,
               2 * messages);
        assert_true(messages > 30 && ended > messages);
    }
    be(0);
}

static void failures_have_words(void **state) {
    (void)state;
    static const struct {
        const char *selector, *part;
        int error;
        tn_status status;
    } rows[] = {
        {"newBufferWithLength:options:", "newBufferWithLength returned nil", 0, TN_ERR_MEMORY},
        {"newLibraryWithSource:options:error:", "compiling failed: a fault that was asked for", 0, TN_ERR_UNSUPPORTED},
        {"newComputePipelineStateWithFunction:error:", "creating the pipeline failed", 0, TN_ERR_UNSUPPORTED},
        {"newCommandQueue", "newCommandQueue returned nil", 0, TN_ERR_DEVICE},
        {"commit", "out of memory (MTLCommandBufferError 8", 8, TN_ERR_LOST},
        {"commit", "took too long", 2, TN_ERR_LOST},
        {"commit", "an unknown Metal error", 77, TN_ERR_LOST},
    };
    for (size_t i = 0; i < TN_COUNT(rows); i++) {
        assert_int_equal(run(rows[i].selector, 1, rows[i].error, false, 0), rows[i].status);
        assert_text_has(tn_error(), rows[i].part);
    }
}

/* A command buffer that fails signals nothing; the queue that waits for it ends all the same, and hears why. */
static void a_failure_lets_other_queues_go_on(void **state) {
    (void)state;
    const tn_device_options options = TN_DEVICE_DEFAULTS;
    long misuses = dbl.misuses(), live = dbl.live();
    for (int way = 0; way < 2; way++) {
        void *device = NULL, *others[2] = {NULL, NULL}, *events[2], *address = NULL;
        bool passed = false;
        assert_ok(metal->open(0, &options, &device));
        assert_ok(metal->alloc(device, 64, &address));
        for (int i = 0; i < 2; i++) {
            assert_ok(metal->queue_new(device, &others[i]));
            assert_ok(metal->event_new(device, false, &events[i]));
        }
        assert_ok(metal->fill(device, address, 1, 64));
        dbl.arm("commit", 1, 8, false);
        /* The second waits for the first of them. Any of these may be the one that hears of it. */
        tn_status s = metal->event_record(device, events[0]);
        if (s == TN_OK) s = metal->event_wait(others[0], events[0]);
        if (s == TN_OK) s = metal->fill(others[0], address, 2, 64);
        if (s == TN_OK) s = metal->event_record(others[0], events[1]);
        if (s == TN_OK) s = metal->event_wait(others[1], events[1]);
        if (s == TN_OK) s = metal->fill(others[1], address, 3, 64);
        for (int i = 0; i < 100 && way == 1 && s == TN_OK; i++)
            s = metal->event_query(device, events[1], &passed);
        if (s == TN_OK) s = metal->sync(others[1]);
        assert_int_equal(s, TN_ERR_LOST);
        assert_text_has(tn_error(), "out of memory");
        for (int i = 0; i < 2; i++) {
            metal->event_free(device, events[i]);
            metal->queue_free(device, others[i]);
        }
        metal->free(device, address);
        metal->close(device);
    }
    dbl.arm(NULL, 0, 0, false);
    assert_int_equal(dbl.misuses(), misuses);
    assert_int_equal(dbl.live(), live);
}

/* More bytes, at odd places, than one dispatch moves. */
static void long_moves_are_divided(void **state) {
    (void)state;
    enum { ELEMENTS = 1 << 22, BYTES = ELEMENTS + 70 };
    const tn_device_options options = TN_DEVICE_DEFAULTS;
    void *device = NULL, *from = NULL, *to = NULL;
    unsigned char *numbers = malloc(BYTES), *got = malloc(BYTES);
    assert_true(numbers && got);
    for (int i = 0; i < BYTES; i++)
        numbers[i] = (unsigned char)(i % 251);
    assert_ok(metal->open(0, &options, &device));
    assert_ok(metal->alloc(device, BYTES, &from));
    assert_ok(metal->alloc(device, BYTES, &to));
    assert_ok(metal->copy(device, from, numbers, BYTES, 0));
    assert_ok(metal->fill(device, to, 7, BYTES));
    assert_ok(metal->copy(device, (char *)to + 3, (char *)from + 1, BYTES - 5, 2));
    assert_ok(metal->copy(device, got, to, BYTES, 1));
    assert_memory_equal(got + 3, numbers + 1, BYTES - 5);
    assert_true(got[2] == 7 && got[BYTES - 2] == 7);
    metal->free(device, from);
    metal->free(device, to);
    metal->close(device);
    free(numbers);
    free(got);
}

/* A kernel that leaves its memory: the device is lost, says so from then on, and closes. */
static void a_lost_device_says_what_happened_first(void **state) {
    (void)state;
    const tn_device_options options = TN_DEVICE_DEFAULTS;
    void *device = NULL, *module = NULL, *address = NULL;
    long misuses = dbl.misuses(), live = dbl.live();
    static const char source[] =
        "#include <metal_stdlib>\nusing namespace metal;\n"
        "[[kernel]] void far(device uchar *a [[buffer(0)]], constant long *p [[buffer(1)]]) {\n"
        "    ((device int *)(a + p[0]))[1 << 22] = 1;\n}\n";
    tn_code code = {.format = TN_CODE_MSL,
                    .data = source,
                    .size = sizeof source - 1,
                    .entry = "far",
                    .buffer_count = 1,
                    .group = {1, 1, 1},
                    .params_bytes = 8};
    assert_ok(metal->open(0, &options, &device));
    assert_ok(metal->load(device, &code, &module));
    assert_ok(metal->alloc(device, 64, &address));
    int64_t params[1] = {0};
    tn_dispatch d = {.groups = {1, 1, 1}, .buffers = &address, .params = params};
    assert_ok(metal->dispatch(device, module, &d, 1));
    assert_int_equal(metal->sync(device), TN_ERR_LOST);
    assert_text_has(tn_error(), "metal:0: a command buffer failed: page fault");
    assert_int_equal(metal->dispatch(device, module, &d, 1), TN_ERR_LOST);
    assert_text_has(tn_error(), "was lost earlier (a command buffer failed: page fault)");
    assert_int_equal(metal->copy(device, address, params, 8, 0), TN_ERR_LOST);
    metal->free(device, address);
    metal->unload(device, module);
    metal->close(device);
    assert_int_equal(dbl.misuses(), misuses);
    assert_int_equal(dbl.live(), live);
}

static void addresses_and_limits_are_checked(void **state) {
    (void)state;
    const tn_device_options options = TN_DEVICE_DEFAULTS;
    void *device = NULL, *address = NULL;
    char bytes[16] = {0};
    assert_ok(metal->open(0, &options, &device));
    assert_ok(metal->alloc(device, 64, &address));
    assert_int_equal(metal->copy(device, (char *)address + 60, bytes, 5, 0), TN_ERR_INTERNAL);
    assert_text_has(tn_error(), "outside every allocation");
    void *much = NULL;
    assert_int_equal(metal->alloc(device, (size_t)256 << 20, &much), TN_ERR_MEMORY);
    assert_int_equal(metal->alloc(device, SIZE_MAX, &much), TN_ERR_MEMORY);
    tn_code code = {.format = TN_CODE_MSL, .data = "", .size = 0, .entry = "k", .buffer_count = MOST_BUFFERS};
    assert_int_equal(metal->load(device, &code, &much), TN_ERR_UNSUPPORTED);
    assert_text_has(tn_error(), "the maximum is 30");
    metal->free(device, address);
    metal->close(device);
    assert_int_equal(metal->open(7, &options, &device), TN_ERR_UNAVAILABLE);
}

int main(void) {
    if (make_scratch(NULL)) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_find_their_methods),
        cmocka_unit_test(the_driver_keeps_its_promises),
        cmocka_unit_test(long_parameters_have_a_buffer_of_their_own),
        cmocka_unit_test(every_message_may_fail),
        cmocka_unit_test(failures_have_words),
        cmocka_unit_test(a_failure_lets_other_queues_go_on),
        cmocka_unit_test(long_moves_are_divided),
        cmocka_unit_test(a_lost_device_says_what_happened_first),
        cmocka_unit_test(addresses_and_limits_are_checked),
        cmocka_unit_test(each_misuse_is_found),
        cmocka_unit_test(kernels_that_fail_fail_their_command_buffer),
        cmocka_unit_test(a_refused_text_says_where),
    };
    int failed = cmocka_run_group_tests(tests, open_double, NULL);
    return failed + remove_scratch(NULL);
}
