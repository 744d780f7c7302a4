/* gpu_queue.c — of the double of CUDA and ROCm: streams whose work waits, events, memory.
 *
 * Every piece of work has a number, in the order in which all of them were given. A piece that has to come behind
 * another one (an event's, or one of the context's own stream) is behind a lower number; so doing the work up to a
 * number can follow these back and always ends. Waiting does no more than that: work that nobody asked for stays
 * undone, but for the pieces that gpu_some_work picks by chance. */
#include "gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- work -------------------------------------------------------------------------------------------------------- */

typedef struct gpu_event {
    gpu_object object;
    bool timed, dead; /* dead: destroyed while its record still waits */
    int waiting;      /* records that were not done yet */
    gpu_stream *stream;
    uint64_t recorded, done; /* numbers of its latest record, and of the latest done */
    double seconds;
} gpu_event;

typedef enum work_kind { WORK_LAUNCH, WORK_COPY, WORK_FILL, WORK_RECORD, WORK_WAIT, WORK_LIBRARY } work_kind;

typedef struct work {
    struct work *next;
    work_kind kind;
    uint64_t number;
    union {
        gpu_launch launch;
        struct {
            char *to;
            const char *from;
            size_t bytes;
            void *staged; /* the bytes themselves, owned; or NULL */
        } copy;
        struct {
            char *to;
            size_t bytes;
            uint8_t value;
        } fill;
        gpu_event *event; /* to record */
        struct {
            void (*run)(const void *data);
            void *data; /* owned */
        } library;
        struct {
            gpu_stream *stream;
            uint64_t number;
        } behind; /* what to wait for */
    } u;
} work;

struct gpu_stream {
    gpu_object object;
    bool beside; /* does not wait for the context's own stream, nor that for it */
    work *first, **last;
};

static uint64_t numbers;

static gpu_stream *new_stream(gpu_context *c, bool own, bool beside) {
    gpu_stream *s = own ? calloc(1, sizeof *s) : gpu_object_new(c, OBJECT_STREAM, sizeof *s);
    if (!s) return NULL;
    s->object.context = c;
    s->beside = beside;
    s->last = &s->first;
    return s;
}

static void free_event(gpu_event *e) {
    if (e->dead && !e->waiting) free(e);
}

static void free_work(work *w) {
    if (w->kind == WORK_LAUNCH) free(w->u.launch.args);
    if (w->kind == WORK_COPY) free(w->u.copy.staged);
    if (w->kind == WORK_LIBRARY) free(w->u.library.data);
    if (w->kind == WORK_RECORD) {
        w->u.event->waiting--;
        free_event(w->u.event);
    }
    free(w);
}

static void drop_stream(gpu_stream *s) {
    while (s->first) {
        work *w = s->first;
        s->first = w->next;
        free_work(w);
    }
    s->last = &s->first;
}

#define EACH_STREAM(s, c)                                  \
    for (gpu_object *o_ = (c)->objects; o_; o_ = o_->next) \
        for (gpu_stream *s = o_->kind == OBJECT_STREAM ? (gpu_stream *)o_ : NULL; s; s = NULL)

void gpu_drop_work(gpu_context *c) {
    EACH_STREAM(s, c) drop_stream(s);
    if (c->null_stream) drop_stream(c->null_stream);
    free(c->null_stream);
    c->null_stream = NULL;
}

/* A kernel failed: its context gives nothing but this error from now on. */
static void fail(gpu_context *c, int error, const char *words) {
    fprintf(stderr, "double: %s: a kernel failed: %s\n", API("CUDA", "ROCm"), words);
    c->error = error;
    EACH_STREAM(s, c) drop_stream(s);
    if (c->null_stream) drop_stream(c->null_stream);
}

static int error_of(engine_result result) { return result == ENGINE_ILLEGAL_ADDRESS ? E_ILLEGAL : E_LAUNCH; }

/* Parameters that are pointers point to memory that the device knows, or to nothing. */
static bool pointers_are_good(const gpu_launch *l, char *words, size_t room) {
    for (int i = 0; i < engine_parameters(l->kernel); i++) {
        if (!engine_parameter_is_pointer(l->kernel, i)) continue;
        void *address;
        memcpy(&address, l->args[i], sizeof address);
        if (!address || engine_find(address).state == ENGINE_LIVE) continue;
        char what[120];
        engine_describe(address, what, sizeof what);
        snprintf(words, room, "%s: parameter %d is %p: %s", engine_kernel_name(l->kernel), i, address, what);
        return false;
    }
    return true;
}

static void do_launch(gpu_context *c, const gpu_launch *l) {
    char words[500];
    void *dynamic = l->dynamic_bytes ? malloc(l->dynamic_bytes) : NULL;
    engine_launch e = {.kernel = l->kernel,
                       .args = l->args,
                       .dynamic = dynamic,
                       .dynamic_bytes = l->dynamic_bytes,
                       .warp = gpu_warp,
                       .seed = gpu_seed ? 1 + gpu_random(UINT32_MAX) : 0};
    memcpy(e.groups, l->groups, sizeof e.groups);
    memcpy(e.items, l->items, sizeof e.items);
    engine_result result = ENGINE_ILLEGAL_ADDRESS;
    if (pointers_are_good(l, words, sizeof words)) result = engine_run(&e, words, sizeof words);
    free(dynamic);
    if (result != ENGINE_OK) fail(c, error_of(result), words);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Does the first piece of a stream's work, whatever it has to wait for. */
static void do_first(gpu_stream *s) {
    work *w = s->first;
    gpu_context *c = s->object.context;
    s->first = w->next;
    if (!s->first) s->last = &s->first;
    switch (w->kind) {
    case WORK_LAUNCH: do_launch(c, &w->u.launch); break;
    case WORK_COPY: memmove(w->u.copy.to, w->u.copy.from, w->u.copy.bytes); break;
    case WORK_FILL: memset(w->u.fill.to, w->u.fill.value, w->u.fill.bytes); break;
    case WORK_RECORD:
        w->u.event->done = w->number;
        w->u.event->seconds = now();
        break;
    case WORK_WAIT: break;
    case WORK_LIBRARY: w->u.library.run(w->u.library.data); break;
    }
    free_work(w);
}

static bool is_stream(const gpu_context *c, const gpu_stream *s) {
    if (s == c->null_stream) return true;
    EACH_STREAM(other, c) if (other == s) return true;
    return false;
}

/* Does all work of a stream up to a number, and before it what has to come before. */
static void work_up_to(gpu_stream *s, uint64_t number) {
    gpu_context *c = s->object.context;
    while (s->first && s->first->number <= number) {
        const work *w = s->first;
        uint64_t mine = w->number; /* a failure below takes w away */
        if (w->kind == WORK_WAIT && is_stream(c, w->u.behind.stream))
            work_up_to(w->u.behind.stream, w->u.behind.number);
        if (s == c->null_stream) {
            EACH_STREAM(other, c) if (!other->beside) work_up_to(other, mine - 1);
        } else if (!s->beside && c->null_stream) {
            work_up_to(c->null_stream, mine - 1);
        }
        if (s->first == w) do_first(s); /* else a failure took it away */
    }
}

int gpu_finish(gpu_context *c) {
    EACH_STREAM(s, c) work_up_to(s, UINT64_MAX);
    if (c->null_stream) work_up_to(c->null_stream, UINT64_MAX);
    return c->error;
}

static bool stream_runs(const gpu_stream *s, const engine_module *module) {
    for (const work *w = s->first; w; w = w->next)
        if (w->kind == WORK_LAUNCH && engine_kernel_module(w->u.launch.kernel) == module) return true;
    return false;
}

bool gpu_is_used(gpu_context *c, const engine_module *module) {
    EACH_STREAM(s, c) if (stream_runs(s, module)) return true;
    return c->null_stream && stream_runs(c->null_stream, module);
}

void gpu_some_work(gpu_context *c) {
    uint64_t streams = c->null_stream != NULL;
    EACH_STREAM(s, c) streams += s->first != NULL;
    uint64_t wanted = gpu_random(streams);
    EACH_STREAM(s, c) {
        if (!s->first || wanted--) continue;
        work_up_to(s, s->first->number);
        return;
    }
    if (c->null_stream && c->null_stream->first) work_up_to(c->null_stream, c->null_stream->first->number);
}

/* ---- giving work ------------------------------------------------------------------------------------------------- */

static int stream_of(const gpu_call *call, void *handle, gpu_stream **out) {
    gpu_context *c = call->context;
    if (!handle) {
        if (!c->null_stream) c->null_stream = new_stream(c, true, false);
        *out = c->null_stream;
        return *out ? E_OK : E_MEMORY;
    }
    *out = handle;
    return gpu_check(call, handle, OBJECT_STREAM);
}

static work *give(gpu_stream *s, work_kind kind) {
    work *w = calloc(1, sizeof *w);
    if (!w) return NULL;
    w->kind = kind;
    w->number = ++numbers;
    *s->last = w;
    s->last = &w->next;
    return w;
}

#define CHECK(expression)                    \
    do {                                     \
        int error_of_it = (expression);      \
        if (error_of_it) return error_of_it; \
    } while (0)

int gpu_queue_launch(const gpu_call *call, void *stream, gpu_launch *launch) {
    gpu_stream *s;
    int error = stream_of(call, stream, &s);
    work *w = error ? NULL : give(s, WORK_LAUNCH);
    if (!w) {
        free(launch->args);
        return error ? error : E_MEMORY;
    }
    w->u.launch = *launch;
    return E_OK;
}

int gpu_queue_library(const gpu_call *call, void *stream, void (*run)(const void *data), const void *data,
                      size_t bytes) {
    gpu_stream *s;
    CHECK(stream_of(call, stream, &s));
    void *copy = malloc(bytes);
    work *w = copy ? give(s, WORK_LIBRARY) : NULL;
    if (!w) {
        free(copy);
        return E_MEMORY;
    }
    memcpy(copy, data, bytes);
    w->u.library.run = run;
    w->u.library.data = copy;
    return E_OK;
}

/* ---- streams ----------------------------------------------------------------------------------------------------- */

int API(cuStreamCreate, hipStreamCreateWithFlags)(void **stream, unsigned flags) {
    ENTER(NEEDS_CONTEXT);
    if (flags > 1) return gpu_misuse(&call, E_VALUE, "flags %u", flags);
    *stream = new_stream(call.context, false, flags == 1);
    return *stream ? E_OK : E_MEMORY;
}

/* Documented: the work that it was given is still done. */
int API(cuStreamDestroy_v2, hipStreamDestroy)(void *stream) {
    ENTER(NEEDS_CONTEXT | GIVES_BACK);
    CHECK(gpu_check(&call, stream, OBJECT_STREAM));
    gpu_stream *s = stream;
    work_up_to(s, UINT64_MAX);
    gpu_object_remove(&s->object);
    gpu_free_object(&s->object);
    return E_OK;
}

int API(cuStreamSynchronize, hipStreamSynchronize)(void *stream) {
    ENTER(NEEDS_CONTEXT);
    gpu_stream *s;
    CHECK(stream_of(&call, stream, &s));
    work_up_to(s, UINT64_MAX);
    return call.context->error;
}

int API(cuStreamQuery, hipStreamQuery)(void *stream) {
    ENTER(NEEDS_CONTEXT);
    gpu_stream *s;
    CHECK(stream_of(&call, stream, &s));
    if (s->first) work_up_to(s, s->first->number); /* who asks again and again comes to an end */
    if (call.context->error) return call.context->error;
    return s->first ? E_NOT_READY : E_OK;
}

/* ---- events ------------------------------------------------------------------------------------------------------ */

enum { BLOCKING_SYNC = 1, NO_TIMES = 2, INTERPROCESS = 4 };

int API(cuEventCreate, hipEventCreateWithFlags)(void **event, unsigned flags) {
    ENTER(NEEDS_CONTEXT);
    if (flags & ~(unsigned)(BLOCKING_SYNC | NO_TIMES)) return gpu_misuse(&call, E_VALUE, "flags %u", flags);
    gpu_event *e = gpu_object_new(call.context, OBJECT_EVENT, sizeof *e);
    if (!e) return E_MEMORY;
    e->timed = !(flags & NO_TIMES);
    *event = e;
    return E_OK;
}

int API(cuEventDestroy_v2, hipEventDestroy)(void *event) {
    ENTER(NEEDS_CONTEXT | GIVES_BACK);
    CHECK(gpu_check(&call, event, OBJECT_EVENT));
    gpu_event *e = event;
    gpu_object_remove(&e->object);
    gpu_free_object(&e->object);
    return E_OK;
}

int API(cuEventRecord, hipEventRecord)(void *event, void *stream) {
    ENTER(NEEDS_CONTEXT);
    gpu_stream *s;
    CHECK(gpu_check(&call, event, OBJECT_EVENT));
    CHECK(stream_of(&call, stream, &s));
    work *w = give(s, WORK_RECORD);
    if (!w) return E_MEMORY;
    gpu_event *e = event;
    w->u.event = e;
    e->waiting++;
    e->stream = s;
    e->recorded = w->number;
    return E_OK;
}

/* Of the record at this time; later ones do not count. */
int API(cuStreamWaitEvent, hipStreamWaitEvent)(void *stream, void *event, unsigned flags) {
    ENTER(NEEDS_CONTEXT);
    gpu_stream *s;
    CHECK(gpu_check(&call, event, OBJECT_EVENT));
    CHECK(stream_of(&call, stream, &s));
    if (flags) return gpu_misuse(&call, E_VALUE, "flags %u", flags);
    const gpu_event *e = event;
    if (e->done >= e->recorded) return E_OK;
    work *w = give(s, WORK_WAIT);
    if (!w) return E_MEMORY;
    w->u.behind.stream = e->stream;
    w->u.behind.number = e->recorded;
    return E_OK;
}

static bool has_passed(const gpu_event *e) { return e->done >= e->recorded; }

int API(cuEventQuery, hipEventQuery)(void *event) {
    ENTER(NEEDS_CONTEXT);
    CHECK(gpu_check(&call, event, OBJECT_EVENT));
    const gpu_event *e = event;
    if (has_passed(e)) return E_OK;
    if (e->stream->first) work_up_to(e->stream, e->stream->first->number);
    if (call.context->error) return call.context->error;
    return has_passed(e) ? E_OK : E_NOT_READY;
}

int API(cuEventSynchronize, hipEventSynchronize)(void *event) {
    ENTER(NEEDS_CONTEXT);
    CHECK(gpu_check(&call, event, OBJECT_EVENT));
    const gpu_event *e = event;
    if (!has_passed(e)) work_up_to(e->stream, e->recorded);
    return call.context->error;
}

int API(cuEventElapsedTime, hipEventElapsedTime)(float *milliseconds, void *from, void *to) {
    ENTER(NEEDS_CONTEXT);
    CHECK(gpu_check(&call, from, OBJECT_EVENT));
    CHECK(gpu_check(&call, to, OBJECT_EVENT));
    const gpu_event *a = from, *b = to;
    if (!a->timed || !b->timed) return gpu_misuse(&call, E_HANDLE, "an event was made without times");
    if (!a->recorded || !b->recorded) return gpu_misuse(&call, E_HANDLE, "an event was never recorded");
    if (!has_passed(a) || !has_passed(b)) return E_NOT_READY;
    *milliseconds = (float)((b->seconds - a->seconds) * 1e3);
    return E_OK;
}

#ifndef DOUBLE_HIP
int cuEventElapsedTime_v2(float *milliseconds, void *from, void *to) {
    return cuEventElapsedTime(milliseconds, from, to);
}
#endif

void gpu_free_object(gpu_object *o) {
    if (o->kind == OBJECT_STREAM) {
        drop_stream((gpu_stream *)o);
        free(o);
    } else if (o->kind == OBJECT_EVENT) {
        ((gpu_event *)o)->dead = true;
        free_event((gpu_event *)o);
    } else if (o->kind == OBJECT_MODULE) {
        gpu_free_module((gpu_module *)o);
    } else if (o->kind == OBJECT_LIBRARY) {
        free(o);
    } else {
        gpu_free_graph(o);
    }
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

int API(cuMemGetInfo_v2, hipMemGetInfo)(size_t *available, size_t *total) {
    ENTER(NEEDS_CONTEXT);
    size_t used;
    engine_live(gpu_owner(call.context, false), &used);
    *total = gpu_memory_limit;
    *available = gpu_memory_limit - used;
    return E_OK;
}

static int allocate(const gpu_call *call, void **out, size_t bytes, bool pinned) {
    size_t used;
    if (!bytes) return gpu_misuse(call, E_VALUE, "0 bytes");
    engine_live(gpu_owner(call->context, pinned), &used);
    if (bytes > gpu_memory_limit || used > gpu_memory_limit - bytes) return E_MEMORY;
    *out = engine_alloc(bytes, gpu_owner(call->context, pinned));
    return *out ? E_OK : E_MEMORY;
}

/* Work that was given may use the memory, and freeing it waits for that, as the vendors' programming guides say. */
static int deallocate(const gpu_call *call, void *address, bool pinned) {
    bool damaged;
    if (!address) return E_OK;
    CHECK(gpu_finish(call->context));
    engine_block b = engine_find(address);
    char what[120];
    engine_describe(address, what, sizeof what);
    if (b.state != ENGINE_LIVE || b.base != address)
        return gpu_misuse(call, E_VALUE, "%p is no allocation: %s", address, what);
    if (b.owner != gpu_owner(call->context, pinned))
        return gpu_misuse(call, E_VALUE, "%p is %s of another kind or device", address, what);
    engine_free(address, &damaged);
    if (damaged) gpu_misuse(call, E_OK, "somebody wrote beside an allocation of %zu bytes", b.bytes);
    return E_OK;
}

int API(cuMemAlloc_v2, hipMalloc)(void **address, size_t bytes) {
    ENTER(NEEDS_CONTEXT);
    return allocate(&call, address, bytes, false);
}

int API(cuMemFree_v2, hipFree)(void *address) {
    ENTER(NEEDS_CONTEXT | GIVES_BACK);
    return deallocate(&call, address, false);
}

int API(cuMemHostAlloc, hipHostMalloc)(void **address, size_t bytes, unsigned flags) {
    ENTER(NEEDS_CONTEXT);
    (void)flags;
    return allocate(&call, address, bytes, true);
}

int API(cuMemFreeHost, hipHostFree)(void *address) {
    ENTER(NEEDS_CONTEXT | GIVES_BACK);
    return deallocate(&call, address, true);
}

/* ---- copies ------------------------------------------------------------------------------------------------------ */

typedef enum side { PAGEABLE, PINNED, DEVICE } side;

static side side_of(const void *address) {
    engine_block b = engine_find(address);
    if (b.state == ENGINE_NOT_MEMORY) return PAGEABLE;
    return gpu_is_pinned(b.owner) ? PINNED : DEVICE;
}

int gpu_check_range(const gpu_call *call, const void *address, size_t bytes, const char *role) {
    char what[120];
    if (side_of(address) == DEVICE && engine_within(address, bytes)) return E_OK;
    engine_describe(address, what, sizeof what);
    return gpu_misuse(call, E_VALUE, "%s: %zu bytes at %p are no memory of the device: %s", role, bytes, address, what);
}

static int check_host_range(const gpu_call *call, const void *address, size_t bytes, const char *role) {
    side s = side_of(address);
    if (s == PAGEABLE || (s == PINNED && engine_within(address, bytes))) return E_OK;
    return gpu_misuse(call, E_VALUE, "%s: %zu bytes at %p are no memory of the host", role, bytes, address);
}

typedef enum direction { TO_DEVICE, TO_HOST, WITHIN } direction;

/* As documented: a copy from memory that is not pinned reads it before the call returns, one to such memory is done
 * when the call returns. What is read from the device into pinned memory is anything until somebody has waited. */
static int copy(const gpu_call *call, void *to, const void *from, size_t bytes, void *stream, direction d) {
    gpu_stream *s;
    CHECK(stream_of(call, stream, &s));
    if (!bytes) return E_OK;
    CHECK(d == TO_HOST ? check_host_range(call, to, bytes, "to") : gpu_check_range(call, to, bytes, "to"));
    CHECK(d == TO_DEVICE ? check_host_range(call, from, bytes, "from") : gpu_check_range(call, from, bytes, "from"));
    void *staged = NULL;
    if (d == TO_DEVICE && side_of(from) == PAGEABLE) {
        staged = malloc(bytes);
        if (!staged) return E_MEMORY;
        memcpy(staged, from, bytes);
    }
    work *w = give(s, WORK_COPY);
    if (!w) {
        free(staged);
        return E_MEMORY;
    }
    w->u.copy.to = to;
    w->u.copy.from = staged ? staged : from;
    w->u.copy.bytes = bytes;
    w->u.copy.staged = staged;
    if (d == TO_HOST && side_of(to) == PINNED) memset(to, ENGINE_POISON, bytes);
    if (d == TO_HOST && side_of(to) == PAGEABLE) {
        work_up_to(s, UINT64_MAX);
        return call->context->error;
    }
    return E_OK;
}

#define COPY(cuda, hip, direction)                                                                \
    int API(cuda##Async_v2, hip##Async)(void *to, const void *from, size_t bytes, void *stream) { \
        ENTER(NEEDS_CONTEXT);                                                                     \
        return copy(&call, to, from, bytes, stream, direction);                                   \
    }                                                                                             \
    int API(cuda##_v2, hip)(void *to, const void *from, size_t bytes) {                           \
        ENTER(NEEDS_CONTEXT);                                                                     \
        CHECK(copy(&call, to, from, bytes, NULL, direction));                                     \
        work_up_to(call.context->null_stream, UINT64_MAX);                                        \
        return call.context->error;                                                               \
    }
COPY(cuMemcpyHtoD, hipMemcpyHtoD, TO_DEVICE)
COPY(cuMemcpyDtoH, hipMemcpyDtoH, TO_HOST)
COPY(cuMemcpyDtoD, hipMemcpyDtoD, WITHIN)

/* Between devices, each named by what its addresses belong to. */
int API(cuMemcpyPeerAsync, hipMemcpyPeerAsync)(void *to, API(void *, int) to_where, const void *from,
                                               API(const void *, int) from_where, size_t bytes, void *stream) {
    ENTER(NEEDS_CONTEXT);
    const gpu_context *there = API(to_where, &gpu_contexts[to_where]);
    const gpu_context *here = API(from_where, &gpu_contexts[from_where]);
    if (bytes &&
        (engine_find(to).owner != gpu_owner(there, false) || engine_find(from).owner != gpu_owner(here, false)))
        return gpu_misuse(&call, E_VALUE, "%p or %p is no memory of the device that is named with it", to, from);
    return copy(&call, to, from, bytes, stream, WITHIN);
}

int API(cuMemsetD8Async, hipMemsetD8Async)(void *to, unsigned char value, size_t bytes, void *stream) {
    ENTER(NEEDS_CONTEXT);
    gpu_stream *s;
    CHECK(stream_of(&call, stream, &s));
    if (!bytes) return E_OK;
    CHECK(gpu_check_range(&call, to, bytes, "filling"));
    work *w = give(s, WORK_FILL);
    if (!w) return E_MEMORY;
    w->u.fill.to = to;
    w->u.fill.bytes = bytes;
    w->u.fill.value = value;
    return E_OK;
}
