/* metal.c — the driver of Apple's Metal, in C: messages through the Objective-C runtime; probe, memory, kernels,
 * launches. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "drivers/drivers.h"
#include "drivers/metal.h"
#include "drivers/probe.h"
#include "hal/driver.h"

#if TRUNNION_WITH_METAL

/* ==== the open libraries ========================================================================================== */

/* The functions of the two libraries. */
typedef struct metal_functions {
    void (*send)(void);
    selector (*selector_named)(const char *);
    object (*class_named)(const char *);
    void *(*pool_push)(void);
    void (*pool_pop)(void *);
    object (*all_devices)(void);    /* macOS */
    object (*default_device)(void); /* everywhere */
} metal_functions;
static metal_functions objc;

enum {
#define X(name, text, result, parameters) MESSAGE_##name,
    MESSAGES(X)
#undef X
        MESSAGE_COUNT
};

#define X(name, text, result, parameters) typedef result message_##name parameters;
MESSAGES(X)
#undef X
static selector selectors[MESSAGE_COUNT];

/* ASK sends a message without arguments, SEND one with arguments. A message to NULL does nothing and returns 0. */
#define ASK(message, to) (((message_##message *)objc.send)((to), selectors[MESSAGE_##message]))
#define SEND(message, to, ...) (((message_##message *)objc.send)((to), selectors[MESSAGE_##message], __VA_ARGS__))

static inline void metal_release(object o) {
    if (o) ASK(release, o);
}

static inline const char *metal_text(object string, const char *otherwise) {
    const char *text = string ? ASK(utf8, string) : NULL;
    return text ? text : otherwise;
}

/* ==== probe ======================================================================================================= */
/* metal.h declares the messages of Objective-C that are sent; here each gets its selector, and devices are listed. */

/* ---- the libraries and messages ---------------------------------------------------------------------------------- */

static const char *const objc_names[] = {"/usr/lib/libobjc.A.dylib", NULL};
static const tn_symbol objc_symbols[] = {
    {"objc_msgSend", (void **)&objc.send, false},
    {"sel_registerName", (void **)&objc.selector_named, false},
    {"objc_getClass", (void **)&objc.class_named, false},
    {"objc_autoreleasePoolPush", (void **)&objc.pool_push, false},
    {"objc_autoreleasePoolPop", (void **)&objc.pool_pop, false},
};
static const tn_library_spec objc_library = {"Objective-C runtime", "TRUNNION_OBJC_LIB",    objc_names,
                                             objc_symbols,          TN_COUNT(objc_symbols), ""};

static const char *const metal_names[] = {"/System/Library/Frameworks/Metal.framework/Metal", NULL};
static const tn_symbol metal_symbols[] = {
    {"MTLCreateSystemDefaultDevice", (void **)&objc.default_device, false},
    {"MTLCopyAllDevices", (void **)&objc.all_devices, true},
};
static const tn_library_spec metal_library = {"Metal",       "TRUNNION_METAL_LIB",    metal_names,
                                              metal_symbols, TN_COUNT(metal_symbols), "update the system"};

static const char *const selector_texts[MESSAGE_COUNT] = {
#define X(name, text, result, parameters) text,
    MESSAGES(X)
#undef X
};

/* Opens both once per process; hal probes and opens under one lock. A probe's child process opens them again, because
 * its environment may differ. *which is the library of *why. */
static bool load_libraries(bool anew, const tn_library_spec **which, tn_reason *why) {
    static bool loaded;
    if (loaded && !anew) return true;
    *which = &objc_library;
    loaded = tn_library_open(*which, why) != NULL;
    if (loaded) *which = &metal_library;
    loaded = loaded && tn_library_open(*which, why) != NULL;
    for (int i = 0; loaded && i < MESSAGE_COUNT; i++)
        selectors[i] = objc.selector_named(selector_texts[i]);
    return loaded;
}

/* ---- finding devices --------------------------------------------------------------------------------------------- */

enum { MOST_DEVICES = 16 };

/* The devices, retained. */
static int list_devices(object list[MOST_DEVICES]) {
    object all = objc.all_devices ? objc.all_devices() : NULL;
    uint64_t there = all ? ASK(count, all) : 0;
    int count = 0;
    for (; (uint64_t)count < there && count < MOST_DEVICES; count++)
        list[count] = ASK(retain, SEND(object_at, all, (uint64_t)count));
    metal_release(all);
    if (count) return count;
    list[0] = objc.default_device();
    return list[0] != NULL;
}

static void describe_metal(tn_probe *out, object device) {
    tn_device_info *d = tn_probe_device(out);
    if (!d) return;
    snprintf(d->name, sizeof d->name, "%s", metal_text(ASK(name, device), "Metal device"));
    d->total_memory = (int64_t)ASK(working_set, device);
    d->free_memory = tn_max64(0, d->total_memory - (int64_t)ASK(allocated, device));
    d->unified_memory = ASK(unified, device);
}

static void metal_probe(tn_probe *out) {
    const tn_library_spec *which;
    tn_reason why;
    object list[MOST_DEVICES];
    if (!TN_PROBE_ON_APPLE && !tn_env(metal_library.env)) {
        tn_probe_reason(out, TN_REASON_PLATFORM, "", "Metal exists only on Apple's systems");
        return;
    }
    if (!tn_library_locate(&metal_library, out->library, sizeof out->library)) out->library[0] = 0;
    if (!load_libraries(TN_PROBE_ISOLATE, &which, &why)) {
        if (!tn_library_locate(which, out->library, sizeof out->library)) out->library[0] = 0;
        tn_probe_reason(out, why.code, why.fix, "%s", why.text);
        return;
    }
    void *pool = objc.pool_push(); /* names live until it is popped */
    int count = list_devices(list);
    for (int i = 0; i < count; i++) {
        describe_metal(out, list[i]);
        metal_release(list[i]);
    }
    objc.pool_pop(pool);
    if (!count) tn_probe_reason(out, TN_REASON_NO_DEVICE, "", "Metal is running, but it found no device");
}

/* The device of this number, retained. Opens the libraries if that was not done yet. */
static tn_status metal_find(int index, object *out) {
    const tn_library_spec *which;
    tn_reason why;
    object list[MOST_DEVICES];
    if (!TN_PROBE_ON_APPLE && !tn_env(metal_library.env))
        return tn_fail(TN_ERR_UNAVAILABLE, "Metal exists only on Apple's systems");
    if (!load_libraries(false, &which, &why)) return tn_fail(TN_ERR_UNAVAILABLE, "%s; %s", why.text, why.fix);
    void *pool = objc.pool_push();
    int count = list_devices(list);
    for (int i = 0; i < count; i++) {
        if (i == index)
            *out = list[i];
        else
            metal_release(list[i]);
    }
    objc.pool_pop(pool);
    if (index >= 0 && index < count) return TN_OK;
    return tn_fail(TN_ERR_UNAVAILABLE, "metal:%d does not exist; Metal has %d device%s", index, count,
                   count == 1 ? "" : "s");
}

static void metal_watch(tn_watch_add *add, void *ctx) {
    tn_probe_watch(&metal_library, add, ctx);
    tn_probe_watch(&objc_library, add, ctx);
}

/* ==== memory, kernels, launches =================================================================================== */
/* Work is encoded into the queue's open command buffer, whose only encoder runs dispatches in order. The buffer is
 * committed when it has enough work or when something waits. Buffers of a queue complete in order, so committed buffers
 * are a short list; completed ones are removed from its front and checked for errors. Copies and fills within the
 * device are dispatches too (MOVES below), so they end no encoder and may copy any byte.
 *
 * Memory has handles, for which hal/driver.h reserves addresses. Every binding has offset 0, and a launch adds its
 * offset to the kernel's bases, so alignment rules for offsets do not matter. With unified memory (Apple silicon) the
 * host accesses a buffer directly once the queue is idle; with a discrete GPU through a buffer that both can access.
 *
 * Each function that sends messages does so inside its own autorelease pool; kept objects are retained, created ones
 * are released. A command buffer retains what it uses. A device whose work failed is lost: each later call returns the
 * first cause. So far this has run only on a double of Metal (tests/double), never on Apple hardware. */

/* ---- what the driver keeps --------------------------------------------------------------------------------------- */

enum {
    BATCH = 64,    /* dispatches in one command buffer */
    IN_FLIGHT = 32 /* command buffers of a queue; Metal makes 64, then `commandBuffer` waits */
};

/* A command queue and its open command buffer. Its address is a queue's handle; the address of a device's first queue
 * is the device's. */
typedef struct mtl_queue {
    struct mtl_device *device;
    object queue;
    pthread_mutex_t lock; /* guards everything below: an encoder may be used by only one thread at a time */
    object buffer, encoder;
    int queued; /* dispatches in `buffer` */
    object sent[IN_FLIGHT];
    int sent_count;
} mtl_queue;

typedef struct mtl_module {
    object pipeline;
    char name[48];
    int buffer_count;
    metal_size group;
    size_t params_bytes, bases_at;
} mtl_module;

/* A value that an event gets when a command buffer has ended well, and that other queues may wait for. */
typedef struct signal {
    object buffer, event;
    uint64_t value;
} signal;

typedef struct mtl_device {
    mtl_queue queue; /* first: the device's handle is this queue's */
    tn_device_lost lost_state;
    object device, options;
    tn_memory_budget budget;
    bool unified;
    mtl_module *move_words, *move_bytes;
    tn_address_ranges ranges;
    pthread_mutex_t lock; /* guards what follows */
    signal *signals; /* of command buffers that are not known to have ended, in the order in which they were sent */
    size_t signal_count, signal_room;
    bool crossed; /* some queue has waited for another one */
} mtl_device;

static mtl_device *device_of(void *handle) { return ((mtl_queue *)handle)->device; }

/* ---- errors ------------------------------------------------------------------------------------------------------ */

/* An NSError's words on one line. */
static void error_words(object error, char *out, size_t size) {
    snprintf(out, size, "%s", error ? metal_text(ASK(description, error), "an error without a message") : "no message");
    for (char *c = out; *c; c++)
        if (*c == '\n') *c = '|';
}

/* The result of a completed command buffer. After a failure its memory is undefined, so the status is always device
 * lost, even for out-of-memory, because that would be tried again. */
static tn_status outcome(mtl_device *d, object buffer) {
    static const struct {
        int64_t code;
        const char *name, *advice;
    } rows[] = {
#define X(code, name, advice) {code, name, advice},
        BUFFER_ERRORS(X)
#undef X
    };
    if (ASK(status, buffer) != STATUS_ERROR) return TN_OK;
    char words[300];
    object error = ASK(error, buffer);
    int64_t code = error ? ASK(code, error) : 0;
    const char *name = "an unknown Metal error", *advice = TN_ADVICE_ANEW;
    error_words(error, words, sizeof words);
    for (size_t i = 0; i < TN_COUNT(rows); i++) {
        if (rows[i].code != code) continue;
        name = rows[i].name;
        advice = rows[i].advice;
    }
    tn_device_lost_note(&d->lost_state, "a command buffer failed: %s", name);
    return tn_fail(TN_ERR_LOST,
                   "%s: a command buffer failed: %s (MTLCommandBufferError %lld: %s): the device is lost; %s",
                   d->lost_state.id, name, (long long)code, words, advice);
}

static void drop_signal(const signal *s) {
    metal_release(s->buffer);
    metal_release(s->event);
}

/* The first signal, retained; false: there is none, or its command buffer has not completed and `waits` is false. */
static bool first_signal(mtl_device *d, bool waits, signal *out) {
    AUTO_LOCK(&d->lock);
    bool there = d->signal_count && (waits || ASK(status, d->signals[0].buffer) >= STATUS_COMPLETED);
    if (there)
        *out = (signal){ASK(retain, d->signals[0].buffer), ASK(retain, d->signals[0].event), d->signals[0].value};
    return there;
}

/* Takes it out, if no other thread has. */
static void forget_signal(mtl_device *d, const signal *s) {
    AUTO_LOCK(&d->lock);
    bool first = d->signal_count && d->signals[0].buffer == s->buffer && d->signals[0].event == s->event;
    if (first) {
        drop_signal(&d->signals[0]);
        memmove(d->signals, d->signals + 1, --d->signal_count * sizeof *d->signals);
    }
}

/* A failed command buffer signals nothing, and another queue that waits for it would wait forever; then the host
 * signals instead. `waits`: until all have completed; none waits for a later one. */
static void tend_signals(mtl_device *d, bool waits) {
    signal s;
    while (first_signal(d, waits, &s)) {
        ASK(wait, s.buffer);
        if (outcome(d, s.buffer) != TN_OK) SEND(set_value, s.event, s.value);
        forget_signal(d, &s);
        drop_signal(&s);
    }
}

static tn_status add_signal(mtl_device *d, object buffer, object event, uint64_t value) {
    tend_signals(d, false);
    AUTO_LOCK(&d->lock);
    TRY(tn_mem_reserve(&d->signals, &d->signal_room, d->signal_count + 1, sizeof *d->signals));
    d->signals[d->signal_count++] = (signal){ASK(retain, buffer), ASK(retain, event), value};
    return TN_OK;
}

/* Waits until a command buffer has completed. If another one failed meanwhile, this one may depend on it. */
static tn_status finish_metal(mtl_device *d, object buffer) {
    pthread_mutex_lock(&d->lock);
    bool crossed = d->crossed;
    pthread_mutex_unlock(&d->lock);
    if (crossed) tend_signals(d, true);
    ASK(wait, buffer);
    TRY(outcome(d, buffer));
    return tn_device_lost_check(&d->lost_state);
}

/* Metal made nothing, and does not say why. */
static tn_status nothing(const mtl_device *d, const char *message) {
    return tn_fail(TN_ERR_DEVICE, "%s: %s returned nil; %s", d->lost_state.id, message, TN_ADVICE_ANEW);
}

/* Around whatever is done to a queue. */
static void *enter_metal(mtl_queue *q) {
    pthread_mutex_lock(&q->lock);
    return objc.pool_push();
}

static tn_status leave_metal(mtl_queue *q, void *pool, tn_status s) {
    objc.pool_pop(pool);
    pthread_mutex_unlock(&q->lock);
    return s;
}

/* ---- a queue's work; the caller has entered it ------------------------------------------------------------------- */

/* Waits for the first `count` that were sent. */
static tn_status finish_sent(mtl_queue *q, int count) {
    tn_status first = TN_OK;
    for (int i = 0; i < count; i++) {
        tn_status s = finish_metal(q->device, q->sent[i]);
        if (first == TN_OK) first = s;
        metal_release(q->sent[i]);
    }
    q->sent_count -= count;
    memmove(q->sent, q->sent + count, (size_t)q->sent_count * sizeof *q->sent);
    return first;
}

static void end_encoder(mtl_queue *q) {
    if (!q->encoder) return;
    ASK(end, q->encoder);
    metal_release(q->encoder);
    q->encoder = NULL;
}

static tn_status need_buffer(mtl_queue *q) {
    if (!q->buffer) q->buffer = ASK(retain, ASK(command_buffer, q->queue));
    return q->buffer ? TN_OK : nothing(q->device, "commandBuffer");
}

static tn_status need_encoder(mtl_queue *q) {
    TRY(need_buffer(q));
    if (!q->encoder) q->encoder = ASK(retain, ASK(encoder, q->buffer));
    return q->encoder ? TN_OK : nothing(q->device, "computeCommandEncoder");
}

/* Has Metal begin with all that the queue was given. */
static tn_status commit(mtl_queue *q) {
    tn_status s = TN_OK;
    if (!q->buffer) return TN_OK;
    end_encoder(q);
    while (s == TN_OK && q->sent_count && ASK(status, q->sent[0]) >= STATUS_COMPLETED)
        s = finish_sent(q, 1);
    if (q->sent_count == IN_FLIGHT) s = finish_sent(q, 1);
    ASK(commit, q->buffer);
    q->sent[q->sent_count++] = q->buffer;
    q->buffer = NULL;
    q->queued = 0;
    return s;
}

/* All that the queue was given is done. */
static tn_status settle(mtl_queue *q) {
    tn_status sent = commit(q), done = finish_sent(q, q->sent_count);
    return sent != TN_OK ? sent : done;
}

/* The kernel's parameters: by value, or in a separate buffer that the command buffer retains. */
static tn_status set_params(mtl_queue *q, const mtl_module *m, const void *words) {
    uint64_t at = (uint64_t)m->buffer_count;
    if (m->params_bytes <= INLINE_BYTES) {
        SEND(set_bytes, q->encoder, words, m->params_bytes, at);
        return TN_OK;
    }
    object buffer = SEND(new_buffer_of, q->device->device, words, m->params_bytes, STORAGE_SHARED);
    if (!buffer)
        return tn_fail(TN_ERR_MEMORY, "%s: %s: %zu bytes of parameters: newBufferWithBytes returned nil; %s",
                       q->device->lost_state.id, m->name, m->params_bytes, TN_ADVICE_SMALLER);
    SEND(set_buffer, q->encoder, buffer, 0, at);
    metal_release(buffer);
    return TN_OK;
}

/* One dispatch of these buffers, with finished parameters. */
static tn_status encode_metal(mtl_queue *q, const mtl_module *m, const uint32_t groups[3], const object *buffers,
                              const void *words) {
    TRY(need_encoder(q));
    SEND(set_pipeline, q->encoder, m->pipeline);
    for (int i = 0; i < m->buffer_count; i++)
        SEND(set_buffer, q->encoder, buffers[i], 0, (uint64_t)i);
    TRY(set_params(q, m, words));
    SEND(dispatch, q->encoder, ((metal_size){groups[0], groups[1], groups[2]}), m->group);
    return ++q->queued < BATCH ? TN_OK : commit(q);
}

/* ---- moving bytes within the device ------------------------------------------------------------------------------ */

enum { MOVE_GROUP = 256, MOVE_WORDS = 4 };

/* p: elements, the value to fill with or -1, the bases. */
#define MOVE(name, type)                                                                                          \
    "[[kernel, max_total_threads_per_threadgroup(256)]] void " name "(\n"                                         \
    "    device const uchar *a0 [[buffer(0)]], device uchar *a1 [[buffer(1)]], constant long *p [[buffer(2)]],\n" \
    "    uint3 at [[threadgroup_position_in_grid]], uint me [[thread_index_in_threadgroup]]) {\n"                 \
    "    const long i = (long)at.x * 256 + (long)me;\n"                                                           \
    "    if (i >= p[0]) return;\n"                                                                                \
    "    device const " type " *from = (device const " type " *)(a0 + p[2]);\n"                                   \
    "    device " type " *to = (device " type " *)(a1 + p[3]);\n"                                                 \
    "    to[i] = p[1] < 0 ? from[i] : (" type ")p[1];\n"                                                          \
    "}\n"

static const char MOVES[] = "#include <metal_stdlib>\n"
                            "using namespace metal;\n" MOVE("move_words", "uint") MOVE("move_bytes", "uchar");

/* `value`: each byte is set to it, -1: the bytes are copied. Both buffers may be the same, the bytes not. */
static tn_status move(mtl_queue *q, object to, size_t to_at, object from, size_t from_at, size_t bytes, int value) {
    enum { PIECE = 1 << 22 }; /* elements per dispatch: below the limit of a launch, above what makes one worthwhile */
    bool wide = (to_at | from_at | bytes) % sizeof(uint32_t) == 0;
    size_t size = wide ? sizeof(uint32_t) : 1, count = bytes / size;
    int64_t fill = value < 0 ? -1 : wide ? (int64_t)((uint32_t)value * 0x01010101U) : value;
    object buffers[2] = {from, to};
    for (size_t at = 0, n; at < count; at += n) {
        n = count - at < PIECE ? count - at : PIECE;
        int64_t words[MOVE_WORDS] = {(int64_t)n, fill, (int64_t)(from_at + at * size), (int64_t)(to_at + at * size)};
        uint32_t groups[3] = {(uint32_t)((n + MOVE_GROUP - 1) / MOVE_GROUP), 1, 1};
        TRY(encode_metal(q, wide ? q->device->move_words : q->device->move_bytes, groups, buffers, words));
    }
    return TN_OK;
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

static object new_text(const char *text, size_t size) {
    object string = ASK(alloc, objc.class_named("NSString"));
    return string ? SEND(init_text, string, text, size, UTF8) : NULL;
}

static tn_status new_library(mtl_device *d, const char *name, const char *text, size_t size, object *library) {
    char words[640];
    object error = NULL, source = new_text(text, size);
    if (!source) return tn_fail(TN_ERR_UNSUPPORTED, "%s: %s is not text", d->lost_state.id, name);
    *library = SEND(new_library, d->device, source, d->options, &error);
    metal_release(source);
    if (*library) return TN_OK; /* an error together with a library is a list of warnings */
    error_words(error, words, sizeof words);
    return tn_fail(TN_ERR_UNSUPPORTED, "%s: %s: compiling failed: %s", d->lost_state.id, name, words);
}

static tn_status new_pipeline(mtl_device *d, const char *name, object library, object *pipeline) {
    char words[400];
    object error = NULL, entry = new_text(name, strlen(name));
    object function = entry ? SEND(new_function, library, entry) : NULL;
    metal_release(entry);
    if (!function)
        return tn_fail(TN_ERR_UNSUPPORTED, "%s: %s: newFunctionWithName returned nil", d->lost_state.id, name);
    *pipeline = SEND(new_pipeline, d->device, function, &error);
    metal_release(function);
    if (*pipeline) return TN_OK;
    error_words(error, words, sizeof words);
    return tn_fail(TN_ERR_UNSUPPORTED, "%s: %s: creating the pipeline failed: %s", d->lost_state.id, name, words);
}

/* Registers can leave less room for items than the device has. */
static tn_status check_group(const mtl_device *d, const mtl_module *m) {
    uint64_t most = ASK(max_group, m->pipeline), wanted = m->group.width * m->group.height * m->group.depth;
    if (wanted <= most) return TN_OK;
    return tn_fail(TN_ERR_UNSUPPORTED, "%s: %s needs workgroups of %llu items; the device supports at most %llu for it",
                   d->lost_state.id, m->name, (unsigned long long)wanted, (unsigned long long)most);
}

static tn_status module_start(mtl_device *d, const tn_code *code, mtl_module *m) {
    object library = NULL;
    if (code->buffer_count >= MOST_BUFFERS)
        return tn_fail(TN_ERR_UNSUPPORTED, "%s: %s binds %d buffers; the maximum is %d", d->lost_state.id, m->name,
                       code->buffer_count, MOST_BUFFERS - 1);
    TRY(new_library(d, m->name, code->data, code->size, &library));
    tn_status s = new_pipeline(d, code->entry, library, &m->pipeline);
    metal_release(library);
    return s == TN_OK ? check_group(d, m) : s;
}

static void metal_unload(TN_UNUSED void *device, void *module) {
    mtl_module *m = module;
    if (m) metal_release(m->pipeline);
    tn_mem_free(m);
}

static tn_status metal_load(void *device, const tn_code *code, void **module) {
    mtl_device *d = device_of(device);
    TRY(tn_device_lost_check(&d->lost_state));
    mtl_module *m = tn_mem_zalloc(1, sizeof *m);
    if (!m) return TN_ERR_MEMORY;
    snprintf(m->name, sizeof m->name, "%s", code->entry);
    m->buffer_count = code->buffer_count;
    m->params_bytes = code->params_bytes;
    m->bases_at = code->bases_at;
    uint64_t group[3];
    for (int i = 0; i < 3; i++)
        group[i] = code->group[i] ? code->group[i] : 1;
    m->group = (metal_size){group[0], group[1], group[2]};
    void *pool = objc.pool_push();
    tn_status s = module_start(d, code, m);
    objc.pool_pop(pool);
    return tn_hand_out(s, m, metal_unload, d, module);
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static void queue_end(mtl_queue *q) {
    void *pool = objc.pool_push();
    (void)settle(q);
    metal_release(q->queue);
    objc.pool_pop(pool);
    pthread_mutex_destroy(&q->lock);
}

static tn_status queue_start(mtl_device *d, mtl_queue *q) {
    q->device = d;
    pthread_mutex_init(&q->lock, NULL);
    q->queue = ASK(new_queue, d->device);
    return q->queue ? TN_OK : nothing(d, "newCommandQueue");
}

/* No liberties with floats: sums in the order that the text has them, quotients and roots rounded correctly. */
static tn_status start_options(mtl_device *d) {
    object o = d->options = ASK(new_, objc.class_named("MTLCompileOptions"));
    if (!o) return nothing(d, "MTLCompileOptions");
    if (SEND(responds, o, selectors[MESSAGE_math_mode])) {
        SEND(math_mode, o, MATH_SAFE);
        SEND(math_functions, o, FUNCTIONS_PRECISE);
    } else {
        SEND(fast_math, o, 0);
    }
    return TN_OK;
}

static tn_status load_move(mtl_device *d, const char *entry, mtl_module **out) {
    tn_code code = {.format = TN_CODE_MSL, .data = MOVES, .size = sizeof MOVES - 1, .entry = entry, .buffer_count = 2};
    void *module = NULL;
    code.group[0] = MOVE_GROUP;
    code.params_bytes = MOVE_WORDS * sizeof(int64_t);
    TRY(metal_load(d, &code, &module));
    *out = module;
    return TN_OK;
}

static tn_status device_start(mtl_device *d) {
    TRY(queue_start(d, &d->queue));
    TRY(start_options(d));
    d->budget.total = (int64_t)ASK(working_set, d->device);
    d->unified = ASK(unified, d->device);
    TRY(load_move(d, "move_words", &d->move_words));
    return load_move(d, "move_bytes", &d->move_bytes);
}

/* Also for a device whose opening failed halfway. */
static void metal_close(void *device) {
    mtl_device *d = device_of(device);
    void *pool = objc.pool_push();
    queue_end(&d->queue);
    for (size_t i = 0; i < d->signal_count; i++)
        drop_signal(&d->signals[i]);
    tn_mem_free(d->signals);
    metal_unload(d, d->move_words);
    metal_unload(d, d->move_bytes);
    metal_release(d->options);
    metal_release(d->device);
    objc.pool_pop(pool);
    tn_address_ranges_close(&d->ranges);
    pthread_mutex_destroy(&d->lock);
    tn_device_lost_close(&d->lost_state);
    tn_mem_free(d);
}

static tn_status metal_open(int index, TN_UNUSED const tn_device_options *options, void **device) {
    object found = NULL;
    TRY(metal_find(index, &found));
    mtl_device *d = tn_mem_zalloc(1, sizeof *d);
    if (!d) {
        metal_release(found);
        return TN_ERR_MEMORY;
    }
    d->device = found;
    tn_device_lost_open(&d->lost_state, "metal", index);
    pthread_mutex_init(&d->lock, NULL);
    tn_address_ranges_open(&d->ranges);
    void *pool = objc.pool_push();
    tn_status s = device_start(d);
    objc.pool_pop(pool);
    return tn_hand_out_device(s, d, metal_close, device);
}

/* ---- what the device can do -------------------------------------------------------------------------------------- */

enum {
    ITEMS_AT_ONCE_LOG2 = 31, /* of one launch */
    GROUP_LOG2 = 10          /* the largest workgroup that kernels ask for */
};

static tn_status metal_caps(void *device, tn_caps *out) {
    mtl_device *d = device_of(device);
    void *pool = objc.pool_push();
    *out = (tn_caps){
        .struct_size = sizeof *out,
        .code = TN_CODE_MSL,
        .i64 = true,
        .f16 = true,
        .max_buffer = (int64_t)ASK(max_buffer, d->device),
        .max_group = (int64_t)ASK(max_group, d->move_words->pipeline),
        .shared_memory = (int64_t)ASK(group_memory, d->device),
        .alignment = 64, /* offsets are added in the kernel, so this is taste */
        .max_bindings = MOST_BUFFERS - 1,
        .max_groups_x = (int64_t)1 << (ITEMS_AT_ONCE_LOG2 - GROUP_LOG2),
        .subgroup = (int64_t)ASK(subgroup, d->move_words->pipeline),
        /* all but subnormal numbers, which may become zero, is promised: not enough */
        .exact = false,
    };
    const char *name = metal_text(ASK(name, d->device), "Metal device");
    if (out->subgroup == 32 && strncmp(name, "Apple M", 7) == 0)
        out->matrix = TN_MATRIX_F16 | TN_MATRIX_PACKETS; /* GPUs of Macs; those of phones differ */
    object process = ASK(process, objc.class_named("NSProcessInfo"));
    snprintf(out->version, sizeof out->version, "%.40s, %.40s", name,
             metal_text(process ? ASK(system_version, process) : NULL, "an unknown system"));
    objc.pool_pop(pool);
    return TN_OK;
}

static tn_status metal_memory(void *device, int64_t *total, int64_t *unused) {
    mtl_device *d = device_of(device);
    *total = d->budget.total;
    *unused = tn_max64(0, d->budget.total - (int64_t)ASK(allocated, d->device));
    return TN_OK;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* Metal allocates more than it recommends, and then pages; allocations beyond the recommendation are refused here. */
static tn_status metal_alloc(void *device, size_t bytes, void **address) {
    mtl_device *d = device_of(device);
    TRY(tn_device_lost_check(&d->lost_state));
    size_t size = bytes ? bytes : 1;
    TRY(tn_memory_budget_take(&d->budget, d->lost_state.id, size));
    uint64_t storage = d->unified ? STORAGE_SHARED : STORAGE_PRIVATE;
    object buffer = SEND(new_buffer, d->device, (uint64_t)size, storage);
    tn_status s = buffer ? tn_address_range_add(&d->ranges, buffer, size, address)
                         : tn_fail(TN_ERR_MEMORY, "%s: %zu bytes: newBufferWithLength returned nil; %s",
                                   d->lost_state.id, bytes, TN_ADVICE_SMALLER);
    if (s == TN_OK) return TN_OK;
    if (buffer) metal_release(buffer);
    tn_memory_budget_give(&d->budget, (int64_t)size);
    return s;
}

static void metal_free(void *device, void *address) {
    mtl_device *d = device_of(device);
    size_t bytes = 0;
    object buffer = tn_address_range_remove(&d->ranges, address, &bytes);
    if (!buffer) return;
    metal_release(buffer); /* what is under way keeps it */
    tn_memory_budget_give(&d->budget, (int64_t)bytes);
}

/* The handle and offset of `bytes` bytes at a device address. */
static tn_status locate_metal(mtl_device *d, const void *address, size_t bytes, const char *role, object *buffer,
                              size_t *at) {
    void *found;
    tn_status s = tn_address_range_locate(&d->ranges, d->lost_state.id, role, address, bytes, &found, at);
    *buffer = found;
    return s;
}

static tn_status copy_within(mtl_queue *q, object to, size_t to_at, const void *src, size_t bytes) {
    object from;
    size_t from_at;
    TRY(locate_metal(q->device, src, bytes, "copying", &from, &from_at));
    return move(q, to, to_at, from, from_at, bytes, -1);
}

/* Between the host and a buffer that it does not see, in pieces through one that both see. */
static tn_status copy_staged(mtl_queue *q, object buffer, size_t at, char *host, size_t bytes, bool to_host) {
    static const size_t PIECE = (size_t)8 << 20;
    object stage = SEND(new_buffer, q->device->device, bytes < PIECE ? bytes : PIECE, STORAGE_SHARED);
    void *seen = stage ? ASK(contents, stage) : NULL;
    tn_status s = seen ? TN_OK
                       : tn_fail(TN_ERR_MEMORY, "%s: no shared memory for a staging copy; " TN_ADVICE_SMALLER,
                                 q->device->lost_state.id);
    for (size_t done = 0, n; done < bytes && s == TN_OK; done += n) {
        n = bytes - done < PIECE ? bytes - done : PIECE;
        if (!to_host) memcpy(seen, host + done, n);
        s = to_host ? move(q, stage, 0, buffer, at + done, n, -1) : move(q, buffer, at + done, stage, 0, n, -1);
        if (s == TN_OK) s = settle(q);
        if (s == TN_OK && to_host) memcpy(host + done, seen, n);
    }
    metal_release(stage);
    return s;
}

/* Where the host sees a buffer, all before being done. */
static tn_status map_here(mtl_queue *q, object buffer, size_t at, void **host) {
    TRY(settle(q));
    char *memory = ASK(contents, buffer);
    if (!memory) return nothing(q->device, "contents");
    *host = memory + at;
    return TN_OK;
}

/* Between the host and a buffer. `host` is only written `to_host`. */
static tn_status copy_host(mtl_queue *q, object buffer, size_t at, char *host, size_t bytes, bool to_host) {
    if (!q->device->unified) return copy_staged(q, buffer, at, host, bytes, to_host);
    void *memory;
    TRY(map_here(q, buffer, at, &memory));
    memcpy(to_host ? host : memory, to_host ? memory : host, bytes);
    return TN_OK;
}

static tn_status metal_copy(void *queue, void *dst, const void *src, size_t bytes, int kind) {
    mtl_queue *q = queue;
    object buffer;
    size_t at;
    TRY(tn_device_lost_check(&q->device->lost_state));
    if (!bytes) return TN_OK;
    TRY(locate_metal(q->device, kind == 1 ? src : dst, bytes, "copying", &buffer, &at));
    void *pool = enter_metal(q);
    tn_status s = kind == 2   ? copy_within(q, buffer, at, src, bytes)
                  : kind == 1 ? copy_host(q, buffer, at, dst, bytes, true)
                              : copy_host(q, buffer, at, (char *)(uintptr_t)src, bytes, false);
    return leave_metal(q, pool, s);
}

static tn_status metal_fill(void *queue, void *dst, uint8_t value, size_t bytes) {
    mtl_queue *q = queue;
    object buffer;
    size_t at;
    TRY(tn_device_lost_check(&q->device->lost_state));
    if (!bytes) return TN_OK;
    TRY(locate_metal(q->device, dst, bytes, "filling", &buffer, &at));
    void *pool = enter_metal(q);
    return leave_metal(q, pool, move(q, buffer, at, buffer, at, bytes, value));
}

/* ---- mapping ----------------------------------------------------------------------------------------------------- */

/* hal copies memory that the host cannot access. */
static tn_status metal_map(void *device, void *address, size_t bytes, TN_UNUSED bool read, void **host) {
    mtl_queue *q = device;
    object buffer;
    size_t at;
    TRY(tn_device_lost_check(&q->device->lost_state));
    TRY(locate_metal(q->device, address, bytes, "mapping", &buffer, &at));
    if (!q->device->unified)
        return tn_fail(TN_ERR_UNSUPPORTED, "%s: this memory cannot be mapped by the host", q->device->lost_state.id);
    void *pool = enter_metal(q);
    return leave_metal(q, pool, map_here(q, buffer, at, host));
}

static tn_status metal_unmap(void *device, TN_UNUSED void *address, TN_UNUSED void *host) {
    return tn_device_lost_check(&device_of(device)->lost_state);
}

/* ---- launches ---------------------------------------------------------------------------------------------------- */

/* Adds each buffer's offset within its handle to its base, and encodes. */
static tn_status dispatch_words(mtl_queue *q, const mtl_module *m, const tn_dispatch *l, uint64_t *words) {
    object buffers[MOST_BUFFERS];
    memcpy(words, l->params, m->params_bytes);
    for (int i = 0; i < m->buffer_count; i++) {
        size_t at = 0;
        buffers[i] = NULL;
        if (l->buffers[i]) TRY(locate_metal(q->device, l->buffers[i], 0, m->name, &buffers[i], &at));
        words[m->bases_at / sizeof *words + (size_t)i] += at;
    }
    return encode_metal(q, m, l->groups, buffers, words);
}

static tn_status dispatch_one(mtl_queue *q, const mtl_module *m, const tn_dispatch *l) {
    uint64_t few[INLINE_BYTES / sizeof(uint64_t)];
    if (!l->groups[0] || !l->groups[1] || !l->groups[2]) return TN_OK;
    if (m->params_bytes <= sizeof few) return dispatch_words(q, m, l, few);
    AUTO_FREE uint64_t *words = tn_mem_alloc(m->params_bytes);
    if (!words) return TN_ERR_MEMORY;
    return dispatch_words(q, m, l, words);
}

static tn_status metal_dispatch(void *queue, void *module, const tn_dispatch *dispatches, int64_t count) {
    mtl_queue *q = queue;
    tn_status s = tn_device_lost_check(&q->device->lost_state);
    void *pool = enter_metal(q);
    for (int64_t i = 0; i < count && s == TN_OK; i++)
        s = dispatch_one(q, module, &dispatches[i]);
    return leave_metal(q, pool, s);
}

static tn_status metal_sync(void *queue) {
    mtl_queue *q = queue;
    TRY(tn_device_lost_check(&q->device->lost_state));
    void *pool = enter_metal(q);
    return leave_metal(q, pool, settle(q));
}

/* ---- queues and events ------------------------------------------------------------------------------------------- */

static void metal_queue_free(TN_UNUSED void *device, void *queue) {
    queue_end(queue);
    tn_mem_free(queue);
}

static tn_status metal_queue_new(void *device, void **queue) {
    mtl_device *d = device_of(device);
    TRY(tn_device_lost_check(&d->lost_state));
    mtl_queue *q = tn_mem_zalloc(1, sizeof *q);
    if (!q) return TN_ERR_MEMORY;
    return tn_hand_out(queue_start(d, q), q, metal_queue_free, d, queue);
}

/* The command buffer that a timeline point ends, on which the host waits, and a shared event with its value then, on
 * which other queues wait. Values grow within a queue; another queue's point needs another event. */
typedef struct mtl_point {
    object buffer; /* NULL before the first mark, which counts as passed */
    object event;
    uint64_t value;
    const mtl_queue *queue;
} mtl_point;

static tn_status metal_event_new(TN_UNUSED void *device, bool timed, void **event) {
    (void)timed; /* every command buffer notes its times */
    *event = tn_mem_zalloc(1, sizeof(mtl_point));
    return *event ? TN_OK : TN_ERR_MEMORY;
}

static void metal_event_free(TN_UNUSED void *device, void *event) {
    mtl_point *m = event;
    metal_release(m->buffer);
    metal_release(m->event);
    tn_mem_free(m);
}

static tn_status need_event(const mtl_queue *q, mtl_point *m) {
    if (m->event && m->queue == q) return TN_OK;
    metal_release(m->event);
    m->queue = q;
    m->value = 0;
    m->event = ASK(new_event, q->device->device);
    return m->event ? TN_OK : nothing(q->device, "newSharedEvent");
}

static tn_status record_metal(mtl_queue *q, mtl_point *m) {
    TRY(need_event(q, m));
    TRY(need_buffer(q));
    end_encoder(q);
    SEND(signal, q->buffer, m->event, ++m->value);
    metal_release(m->buffer);
    m->buffer = ASK(retain, q->buffer);
    TRY(commit(q)); /* another queue may wait for it */
    return add_signal(q->device, m->buffer, m->event, m->value);
}

static tn_status wait_for(mtl_queue *q, const mtl_point *m) {
    if (!m->buffer || m->queue == q) return TN_OK;
    TRY(need_buffer(q));
    end_encoder(q);
    SEND(wait_for, q->buffer, m->event, m->value);
    AUTO_LOCK(&q->device->lock);
    q->device->crossed = true;
    return TN_OK;
}

static tn_status metal_event_record(void *queue, void *event) {
    mtl_queue *q = queue;
    TRY(tn_device_lost_check(&q->device->lost_state));
    void *pool = enter_metal(q);
    return leave_metal(q, pool, record_metal(q, event));
}

static tn_status metal_event_wait(void *queue, void *event) {
    mtl_queue *q = queue;
    TRY(tn_device_lost_check(&q->device->lost_state));
    void *pool = enter_metal(q);
    return leave_metal(q, pool, wait_for(q, event));
}

static tn_status metal_event_query(void *device, void *event, bool *passed) {
    mtl_device *d = device_of(device);
    const mtl_point *m = event;
    TRY(tn_device_lost_check(&d->lost_state));
    void *pool = objc.pool_push();
    tend_signals(d, false);
    *passed = !m->buffer || ASK(status, m->buffer) >= STATUS_COMPLETED;
    tn_status s = m->buffer && *passed ? outcome(d, m->buffer) : TN_OK;
    objc.pool_pop(pool);
    return s;
}

static tn_status metal_event_sync(void *device, void *event) {
    mtl_device *d = device_of(device);
    const mtl_point *m = event;
    TRY(tn_device_lost_check(&d->lost_state));
    if (!m->buffer) return TN_OK;
    void *pool = objc.pool_push();
    tn_status s = finish_metal(d, m->buffer);
    objc.pool_pop(pool);
    return s;
}

static tn_status metal_event_time(void *device, void *event, double *seconds) {
    const mtl_point *m = event;
    if (!m->buffer)
        return tn_fail(TN_ERR_STATE, "%s: cannot read the time of an event that was never recorded",
                       device_of(device)->lost_state.id);
    *seconds = ASK(end_time, m->buffer);
    return TN_OK;
}

static void *find_at(const tn_lent *l, const void *at, size_t n, size_t *to) {
    return tn_address_range_find(l->own, at, n, to);
}

static tn_status metal_lend(void *queue, tn_lent_work *work, void *ctx) {
    mtl_queue *q = queue;
    void *pool = enter_metal(q);
    end_encoder(q);
    tn_status s = need_buffer(q);
    const tn_lent lent = {sizeof lent, q->buffer, q->device->device, find_at, &q->device->ranges};
    if (s == TN_OK) s = work(ctx, &lent);
    return leave_metal(q, pool, s == TN_OK && ++q->queued >= BATCH ? commit(q) : s);
}

/* ---- the driver -------------------------------------------------------------------------------------------------- */

const tn_driver tn_driver_metal = {
    .struct_size = sizeof(tn_driver),
    .abi = TN_BACKEND_ABI,
    .name = "metal",
    .title = "Apple Metal",
    .probe = metal_probe,
    .open = metal_open,
    .close = metal_close,
    .caps = metal_caps,
    .alloc = metal_alloc,
    .free = metal_free,
    .load = metal_load,
    .unload = metal_unload,
    .copy = metal_copy,
    .sync = metal_sync,
    .memory = metal_memory,
    .watch = metal_watch,
    .isolate = TN_PROBE_ISOLATE,
    .dispatch = metal_dispatch,
    .queue_new = metal_queue_new,
    .queue_free = metal_queue_free,
    .event_new = metal_event_new,
    .event_free = metal_event_free,
    .event_record = metal_event_record,
    .event_wait = metal_event_wait,
    .event_query = metal_event_query,
    .event_sync = metal_event_sync,
    .event_time = metal_event_time,
    .fill = metal_fill,
    .map = metal_map,
    .unmap = metal_unmap,
    .lend = metal_lend,
};

#endif
