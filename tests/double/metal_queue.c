/* metal_queue.c — of the double of Metal: command queues, command buffers, encoders, shared events, and how work is put
 * off.
 *
 * A queue does its committed command buffers in their order, one command after the other; a command buffer that waits
 * for an event's value holds its queue up until another queue's has signalled it. Waiting for a command buffer does
 * what lies before it and no more; while it is held up, the other queues go on, and when none of them can, nobody ever
 * will: that is a misuse. */
#include "metal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    STATUS_NOT_ENQUEUED = 0,
    STATUS_COMMITTED = 2,
    STATUS_COMPLETED = 4,
    STATUS_ERROR = 5,
    PAGE_FAULT = 3,       /* MTLCommandBufferErrorPageFault */
    INVALID_RESOURCE = 9, /* MTLCommandBufferErrorInvalidResource */
    MOST_UNFINISHED = 64, /* command buffers of a queue */
    MOST_BYTES = 4096,    /* of setBytes */
    LOOKS_UNTIL_DONE = 4  /* `status` of a committed buffer: it is done at some time */
};

typedef struct metal_size {
    uint64_t width, height, depth;
} metal_size;

typedef struct binding {
    bool set;
    metal_buffer *buffer;    /* or NULL, then */
    void *bytes;             /* a copy */
    uint64_t length, offset; /* of the copy; in the buffer */
} binding;

typedef enum command_kind { COMMAND_DISPATCH, COMMAND_SIGNAL, COMMAND_WAIT, COMMAND_WORK } command_kind;

typedef struct command {
    struct command *next;
    command_kind kind;
    metal_function *pipeline;
    metal_size groups, items;
    binding bindings[MOST_BINDINGS];
    metal_event *event;
    uint64_t value;
    void (*run)(void *data), (*drop)(void *data); /* COMMAND_WORK */
    void *data;
} command;

typedef struct command_buffer command_buffer;

typedef struct queue {
    object object;
    struct queue *next_queue;
    command_buffer *first, **last; /* committed, not yet done */
    int unfinished;                /* made, and not done or gone */
} queue;

struct command_buffer {
    object object;
    command_buffer *next;
    queue *queue;
    command *commands, **last;
    object *encoder; /* the open one, which is not retained */
    int status, looks;
    int fails_with; /* an error that was asked for */
    object *error;
    double end;
};

typedef struct encoder {
    object object;
    command_buffer *buffer;
    metal_function *pipeline;
    binding bindings[MOST_BINDINGS];
    bool ended;
} encoder;

static queue *queues;
static const metal_class queue_class, buffer_class, encoder_class;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- commands ---------------------------------------------------------------------------------------------------- */

static void *copy_of(const void *bytes, size_t n) {
    void *copy = malloc(n);
    return copy ? memcpy(copy, bytes, n) : NULL;
}

static void drop_binding(binding *b) {
    metal_release(b->buffer);
    free(b->bytes);
    *b = (binding){.set = false};
}

static void free_command(command *c) {
    for (int i = 0; i < MOST_BINDINGS; i++)
        drop_binding(&c->bindings[i]);
    metal_release(c->pipeline);
    metal_release(c->event);
    if (c->drop) c->drop(c->data);
    free(c);
}

static command *add_command(command_buffer *b, command_kind kind) {
    command *c = calloc(1, sizeof *c);
    if (!c) return NULL;
    c->kind = kind;
    *b->last = c;
    b->last = &c->next;
    return c;
}

static void set_error(command_buffer *b, int code, const char *words) {
    b->status = STATUS_ERROR;
    b->error = metal_error(code, words);
    fprintf(stderr, "double: Metal: a command buffer fails (%d): %s\n", code, words);
}

/* False: it failed. */
static bool run_dispatch(command_buffer *b, const command *c) {
    char words[500];
    void *pointers[MOST_BINDINGS] = {NULL};
    for (int i = 0; i < MOST_BINDINGS; i++) {
        const binding *at = &c->bindings[i];
        pointers[i] = at->buffer ? at->buffer->memory + at->offset : at->bytes;
    }
    engine_launch launch = {
        .kernel = c->pipeline->code,
        .groups = {(uint32_t)c->groups.width, (uint32_t)c->groups.height, (uint32_t)c->groups.depth},
        .items = {(uint32_t)c->items.width, (uint32_t)c->items.height, (uint32_t)c->items.depth},
        .args = pointers,
        .warp = 32,
        .seed = metal_seed ? 1 + metal_random(UINT32_MAX) : 0};
    engine_result result = engine_run(&launch, words, sizeof words);
    if (result == ENGINE_OK) return true;
    set_error(b, result == ENGINE_ILLEGAL_ADDRESS ? PAGE_FAULT : INVALID_RESOURCE, words);
    return false;
}

/* Does the buffer's next command; false: it waits. */
static bool run_command(command_buffer *b) {
    command *c = b->commands;
    if (c->kind == COMMAND_WAIT && c->event->value < c->value) return false;
    bool fails = b->status == STATUS_ERROR || b->fails_with; /* then nobody hears of it */
    if (c->kind == COMMAND_SIGNAL && !fails) c->event->value = c->value;
    if (c->kind == COMMAND_DISPATCH && b->status != STATUS_ERROR) run_dispatch(b, c);
    if (c->kind == COMMAND_WORK && b->status != STATUS_ERROR) c->run(c->data);
    b->commands = c->next;
    free_command(c);
    return true;
}

static void finish(command_buffer *b) {
    queue *q = b->queue;
    q->first = b->next;
    if (!q->first) q->last = &q->first;
    q->unfinished--;
    if (b->fails_with && b->status != STATUS_ERROR) set_error(b, b->fails_with, "a fault that was asked for");
    if (b->status != STATUS_ERROR) b->status = STATUS_COMPLETED;
    b->end = now();
    metal_release(b); /* the queue's hold on what was committed */
}

/* Goes on with the queue's first command buffer; false: there is none, or it waits at once. */
static bool progress(queue *q) {
    command_buffer *b = q->first;
    bool any = false;
    if (!b) return false;
    while (b->commands) {
        if (!run_command(b)) return any;
        any = true;
    }
    finish(b);
    return true;
}

static bool progress_elsewhere(const queue *than) {
    bool any = false;
    for (queue *q = queues; q; q = q->next_queue)
        if (q != than) any = progress(q) || any;
    return any;
}

static void complete(command_buffer *b) {
    queue *q = b->queue;
    while (b->status < STATUS_COMPLETED || q->first == b) {
        if (progress(q) || progress_elsewhere(q)) continue;
        metal_misuse("a command buffer waits for an event that nobody will signal");
        set_error(q->first, INVALID_RESOURCE, "it waits for ever");
        q->first->commands = NULL;
    }
}

void metal_some_work(void) {
    if (!metal_seed || metal_random(4)) return;
    for (queue *q = queues; q; q = q->next_queue)
        if (!metal_random(2)) progress(q);
}

/* ---- encoders ---------------------------------------------------------------------------------------------------- */

static void end_encoder_object(object *o) {
    encoder *e = (encoder *)o;
    if (!e->ended) metal_misuse("an encoder goes without endEncoding");
    if (e->buffer->encoder == o) e->buffer->encoder = NULL;
    for (int i = 0; i < MOST_BINDINGS; i++)
        drop_binding(&e->bindings[i]);
    metal_release(e->pipeline);
    metal_release(e->buffer);
}

static bool is_open(const encoder *e, const char *what) {
    if (!e->ended) return true;
    metal_misuse("%s of an encoder that has ended", what);
    return false;
}

static void set_pipeline(encoder *e, selector s, metal_function *p) {
    HOLD;
    if (!is_open(e, s) || !metal_is(p, &metal_pipeline_class, s)) return;
    metal_retain(p);
    metal_release(e->pipeline);
    e->pipeline = p;
}

static binding *binding_at(encoder *e, const char *what, uint64_t at) {
    if (!is_open(e, what)) return NULL;
    if (at >= MOST_BINDINGS) {
        metal_misuse("%s index %llu, 30 is the last", what, (unsigned long long)at);
        return NULL;
    }
    drop_binding(&e->bindings[at]);
    e->bindings[at].set = true;
    return &e->bindings[at];
}

static void set_buffer(encoder *e, selector s, metal_buffer *buffer, uint64_t offset, uint64_t at) {
    HOLD;
    if (buffer && !metal_is(buffer, &metal_buffer_class, s)) return;
    if (buffer && offset >= buffer->bytes)
        metal_misuse("%s offset %llu in a buffer of %zu bytes", s, (unsigned long long)offset, buffer->bytes);
    if (buffer) metal_retain(buffer);
    binding *b = binding_at(e, s, at);
    if (!b) {
        metal_release(buffer);
        return;
    }
    b->buffer = buffer;
    b->offset = offset;
}

static void set_bytes(encoder *e, selector s, const void *bytes, uint64_t length, uint64_t at) {
    HOLD;
    if (!length || length > MOST_BYTES || !bytes) {
        metal_misuse("%s %llu bytes, 1 to 4096 can be", s, (unsigned long long)length);
        return;
    }
    binding *b = binding_at(e, s, at);
    if (!b) return;
    b->bytes = copy_of(bytes, length);
    b->length = length;
}

static bool all_are_bound(const encoder *e) {
    for (int i = 0; i < MOST_BINDINGS; i++) {
        if (!(e->pipeline->kernel->bindings >> i & 1) || e->bindings[i].set) continue;
        metal_misuse("%s is dispatched without buffer %d", e->pipeline->kernel->name, i);
        return false;
    }
    return true;
}

static void add_dispatch(encoder *e, metal_size groups, metal_size items) {
    command *c = add_command(e->buffer, COMMAND_DISPATCH);
    if (!c) return;
    metal_retain(e->pipeline);
    c->pipeline = e->pipeline;
    c->groups = groups;
    c->items = items;
    for (int i = 0; i < MOST_BINDINGS; i++) {
        if (!(e->pipeline->kernel->bindings >> i & 1)) continue;
        binding *b = &c->bindings[i];
        *b = e->bindings[i];
        if (b->buffer) metal_retain(b->buffer);
        if (b->bytes) b->bytes = copy_of(b->bytes, b->length);
    }
}

static void dispatch(encoder *e, selector s, metal_size groups, metal_size items) {
    HOLD;
    if (!is_open(e, s)) return;
    if (!e->pipeline) {
        metal_misuse("%s without a pipeline", s);
        return;
    }
    uint64_t all = items.width * items.height * items.depth;
    if (!all || all > e->pipeline->kernel->limit)
        metal_misuse("%s %llu threads a group, the pipeline's most are %u", s, (unsigned long long)all,
                     e->pipeline->kernel->limit);
    else if (!groups.width || !groups.height || !groups.depth || (groups.width | groups.height | groups.depth) >> 32)
        metal_misuse("%s %llu x %llu x %llu groups", s, (unsigned long long)groups.width,
                     (unsigned long long)groups.height, (unsigned long long)groups.depth);
    else if (all_are_bound(e))
        add_dispatch(e, groups, items);
}

static void end_encoding(encoder *e, selector s) {
    HOLD;
    if (!is_open(e, s)) return;
    e->ended = true;
    if (e->buffer->encoder == &e->object) e->buffer->encoder = NULL;
}

static const method encoder_methods[] = {
    METHOD("setComputePipelineState:", set_pipeline, FAULT_NEVER),
    METHOD("setBuffer:offset:atIndex:", set_buffer, FAULT_NEVER),
    METHOD("setBytes:length:atIndex:", set_bytes, FAULT_NEVER),
    METHOD("dispatchThreadgroups:threadsPerThreadgroup:", dispatch, FAULT_NEVER),
    METHOD("endEncoding", end_encoding, FAULT_NEVER),
    {NULL, NULL, FAULT_NEVER},
};
static const metal_class encoder_class = {"MTLComputeCommandEncoder", encoder_methods, sizeof(encoder),
                                          end_encoder_object};

/* ---- command buffers --------------------------------------------------------------------------------------------- */

static void end_buffer_object(object *o) {
    command_buffer *b = (command_buffer *)o;
    while (b->commands) {
        command *c = b->commands;
        b->commands = c->next;
        free_command(c);
    }
    if (b->status == STATUS_NOT_ENQUEUED) b->queue->unfinished--;
    metal_release(b->error);
    metal_release(b->queue);
}

/* Whether more can be put into it. */
static bool is_writable(const command_buffer *b, const char *what) {
    if (b->status != STATUS_NOT_ENQUEUED)
        metal_misuse("%s of a command buffer that is committed", what);
    else if (b->encoder)
        metal_misuse("%s while an encoder is open", what);
    else
        return true;
    return false;
}

static object *new_encoder(command_buffer *b, selector s) {
    HOLD;
    if (!is_writable(b, s)) return NULL;
    encoder *e = metal_new(&encoder_class);
    if (!e) return NULL;
    metal_retain(b);
    e->buffer = b;
    b->encoder = &e->object;
    return metal_autorelease(e);
}

static void add_event(command_buffer *b, command_kind kind, const char *what, metal_event *event, uint64_t value) {
    HOLD;
    if (!is_writable(b, what) || !metal_is(event, &metal_event_class, what)) return;
    command *c = add_command(b, kind);
    if (!c) return;
    metal_retain(event);
    c->event = event;
    c->value = value;
}

void metal_add_work(void *buffer, const char *what, void (*run)(void *data), void (*drop)(void *data), void *data) {
    HOLD;
    command_buffer *b = buffer;
    command *c = metal_is(b, &buffer_class, what) && is_writable(b, what) ? add_command(b, COMMAND_WORK) : NULL;
    if (!c) {
        drop(data);
        return;
    }
    c->run = run;
    c->drop = drop;
    c->data = data;
}

static void signal_event(command_buffer *b, selector s, metal_event *event, uint64_t value) {
    add_event(b, COMMAND_SIGNAL, s, event, value);
}

static void wait_for_event(command_buffer *b, selector s, metal_event *event, uint64_t value) {
    add_event(b, COMMAND_WAIT, s, event, value);
}

static void commit(command_buffer *b, selector s) {
    HOLD;
    int error;
    if (!is_writable(b, s)) return;
    if (metal_fails(s, &error)) b->fails_with = error ? error : 1;
    b->status = STATUS_COMMITTED;
    metal_retain(b);
    *b->queue->last = b;
    b->queue->last = &b->next;
    metal_some_work();
}

static void wait_until_completed(command_buffer *b, selector s) {
    HOLD;
    if (b->status == STATUS_NOT_ENQUEUED)
        metal_misuse("%s of a command buffer that was not committed", s);
    else if (b->status < STATUS_COMPLETED)
        complete(b);
}

static uint64_t status_of(command_buffer *b, selector s) {
    HOLD;
    (void)s;
    if (b->status == STATUS_COMMITTED && ++b->looks >= LOOKS_UNTIL_DONE) complete(b);
    return (uint64_t)b->status;
}

static object *error_of(command_buffer *b, selector s) {
    (void)s;
    return b->error;
}

static double end_time(command_buffer *b, selector s) {
    if (b->status < STATUS_COMPLETED) metal_misuse("%s of a command buffer that has not ended", s);
    return b->end;
}

static const method buffer_methods[] = {
    METHOD("computeCommandEncoder", new_encoder, FAULT_NOTHING),
    METHOD("encodeSignalEvent:value:", signal_event, FAULT_NEVER),
    METHOD("encodeWaitForEvent:value:", wait_for_event, FAULT_NEVER),
    METHOD("commit", commit, FAULT_AFTERWARDS),
    METHOD("waitUntilCompleted", wait_until_completed, FAULT_NEVER),
    METHOD("status", status_of, FAULT_NEVER),
    METHOD("error", error_of, FAULT_NEVER),
    METHOD("GPUEndTime", end_time, FAULT_NEVER),
    {NULL, NULL, FAULT_NEVER},
};
static const metal_class buffer_class = {"MTLCommandBuffer", buffer_methods, sizeof(command_buffer), end_buffer_object};

/* ---- queues and events ------------------------------------------------------------------------------------------- */

static void end_queue_object(object *o) {
    queue **link = &queues;
    while (*link != (queue *)o)
        link = &(*link)->next_queue;
    *link = (*link)->next_queue;
}

static object *new_command_buffer(queue *q, selector s) {
    HOLD;
    if (q->unfinished == MOST_UNFINISHED && q->first) complete(q->first);
    if (q->unfinished == MOST_UNFINISHED) metal_misuse("%s: 64 were made and not committed: it waits for ever", s);
    command_buffer *b = metal_new(&buffer_class);
    if (!b) return NULL;
    metal_retain(q);
    b->queue = q;
    b->last = &b->commands;
    q->unfinished++;
    return metal_autorelease(b);
}

static const method queue_methods[] = {
    METHOD("commandBuffer", new_command_buffer, FAULT_NOTHING),
    {NULL, NULL, FAULT_NEVER},
};
static const metal_class queue_class = {"MTLCommandQueue", queue_methods, sizeof(queue), end_queue_object};

object *metal_new_queue(metal_device *d) {
    HOLD;
    (void)d;
    queue *q = metal_new(&queue_class);
    if (!q) return NULL;
    q->last = &q->first;
    q->next_queue = queues;
    queues = q;
    return &q->object;
}

static void set_signaled(metal_event *event, selector s, uint64_t value) {
    HOLD;
    if (metal_is(event, &metal_event_class, s)) event->value = value;
}

static const method event_methods[] = {
    METHOD("setSignaledValue:", set_signaled, FAULT_NEVER),
    {NULL, NULL, FAULT_NEVER},
};
const metal_class metal_event_class = {"MTLSharedEvent", event_methods, sizeof(metal_event), NULL};
