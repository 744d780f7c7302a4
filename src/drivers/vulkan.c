/* vulkan.c — Vulkan: every device of the loader that computes; memory, kernels (SPIR-V) and launches there.
 *
 * The floor is Vulkan 1.1. What lies above it is asked for, and what a device does not have is left out.
 *
 * A device has one stream of commands, whichever of its queues a call names: a ring of slots, each with a command
 * buffer that several calls record into before it is submitted. Who comes later in the stream may rely on all before
 * it: a barrier stands between calls that depend on each other, none between the launches of one call. A submission has
 * a number (hal/stream.h), and a fence; an event is the number of the submission that holds all before it. Objects are
 * used from several threads, which Vulkan leaves to its callers: one lock guards the stream.
 *
 * Memory has handles: hal/span.h makes addresses of them. A kernel is bound whole allocations, as far as a binding
 * reaches, and finds its place in them by the bases among its parameters, which lie in host memory: of the slot, or of
 * the list. A list that is run again has command buffers of its own. They are submitted behind what the stream's slot
 * holds, and recorded anew only when other memory is bound. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "drivers/vulkan.h"
#include "hal/clock.h"
#include "hal/hal.h"
#include "hal/limits.h"
#include "hal/room.h"
#include "hal/span.h"
#include "hal/stream.h"

#if TRUNNION_WITH_VULKAN

/* ---- a device, its memory and its stream of commands ------------------------------------------------------------- */

/* A piece of memory and the buffer over it. */
typedef struct block {
    uint64_t buffer, memory;
    size_t bytes;
    unsigned char *host; /* where the host sees it; NULL: nowhere */
    uint64_t last;       /* number of the last submission that uses it */
    uint64_t serial;     /* of all blocks ever made: a handle may be that of one which is gone */
} block;

/* A command buffer, and what the commands in it need until they have ended. */
typedef struct slot {
    void *commands;
    uint64_t fence, sets;
    block room;               /* of the host: parameters, and bytes of small copies */
    size_t used;              /* of room */
    int dispatches, bindings; /* recorded */
} slot;

enum { SLOT_ROOM = 128 << 10, SLOT_DISPATCHES = 128, SLOT_BINDINGS = 16 * SLOT_DISPATCHES };

typedef struct vk_device {
    tn_loss loss;                 /* first: hal/stream.h */
    void *place, *device, *queue; /* the physical device, what was made of it, its queue */
    vk_abilities has;
    vk_memory memory;
    bool software, unified;
    uint32_t time_bits; /* of a time that mean something; 0: there are no times */
    tn_room room;
    tn_spans spans, pinned; /* memory of the device; of the host, as it was given to callers */
    pthread_mutex_t staging_lock;
    block staging;    /* through which the host sees memory that it does not; made when it is first needed */
    tn_stream stream; /* its lock guards all that follows */
    uint64_t pool;    /* of command buffers */
    slot slots[TN_STREAM_SLOTS];
    bool written;   /* something was recorded behind the last barrier */
    uint64_t clock; /* the latest time that was asked for, without an end to its bits */
} vk_device;

/* Whether the device can still be talked to. */
static tn_status alive(vk_device *d) { return tn_loss_check(&d->loss); }

/* TN_OK, or the failure of a call with these values. */
#define check(d, code, call, ...) tn_call_check(&(d)->loss, &tn_vulkan_errors, code, call, __VA_ARGS__)

/* ---- blocks ------------------------------------------------------------------------------------------------------ */

static void block_free(vk_device *d, block *b) {
    if (b->buffer) tn_vk.DestroyBuffer(d->device, b->buffer, NULL);
    if (b->memory) tn_vk.FreeMemory(d->device, b->memory, NULL); /* and unmaps it */
    *b = (block){0};
}

/* The first type among `types` that has all of `must`, preferably with all of `like`; -1: none. */
static int memory_type(const vk_device *d, uint32_t types, uint32_t must, uint32_t like) {
    int found = -1;
    for (uint32_t i = d->memory.type_count; i-- > 0;) {
        uint32_t flags = d->memory.types[i].flags;
        if (!(types >> i & 1) || (flags & must) != must) continue;
        bool best = found >= 0 && (d->memory.types[found].flags & like) == like;
        if ((flags & like) == like || !best) found = (int)i;
    }
    return found;
}

enum { HOST_SEES = MEMORY_VISIBLE | MEMORY_COHERENT, HOST_READS = HOST_SEES | MEMORY_CACHED };

static tn_status block_fill(vk_device *d, block *b, uint32_t must, uint32_t like) {
    const vk_buffer_info info = {
        .kind = KIND_BUFFER, .size = b->bytes, .usage = USE_STORAGE | USE_COPY_FROM | USE_COPY_TO};
    vk_requirements needs = {0};
    TRY(check(d, tn_vk.CreateBuffer(d->device, &info, NULL, &b->buffer), "vkCreateBuffer", "%zu bytes", b->bytes));
    tn_vk.GetBufferMemoryRequirements(d->device, b->buffer, &needs);
    int type = memory_type(d, needs.types, must, like);
    if (type < 0)
        return tn_fail(TN_ERR_DEVICE, "%s: no memory of kind %x for buffers; %s", d->loss.id, must, TN_ADVICE_UPDATE);
    if (needs.size > d->memory.heaps[d->memory.types[type].heap].size)
        return tn_fail(TN_ERR_MEMORY, "%s: %zu bytes are more than there are in all of memory type %d; %s", d->loss.id,
                       b->bytes, type, TN_ADVICE_SMALLER);
    const vk_allocate_info allocate = {.kind = KIND_ALLOCATE, .size = needs.size, .type = (uint32_t)type};
    TRY(check(d, tn_vk.AllocateMemory(d->device, &allocate, NULL, &b->memory), "vkAllocateMemory",
              "%llu bytes of memory type %d", (unsigned long long)needs.size, type));
    TRY(check(d, tn_vk.BindBufferMemory(d->device, b->buffer, b->memory, 0), "vkBindBufferMemory", "%zu bytes",
              b->bytes));
    bool seen = must & MEMORY_VISIBLE || (like && (d->memory.types[type].flags & HOST_READS) == HOST_READS);
    if (!seen) return TN_OK;
    void *host = NULL;
    TRY(check(d, tn_vk.MapMemory(d->device, b->memory, 0, b->bytes, 0, &host), "vkMapMemory", "%zu bytes", b->bytes));
    b->host = host;
    return TN_OK;
}

/* A block in memory that has all flags of `must`; the host sees it if it must, or likes to and can do so quickly. */
static tn_status block_make(vk_device *d, block *b, size_t bytes, uint32_t must, uint32_t like) {
    if (bytes > SIZE_MAX / 2 || (int64_t)bytes > d->has.largest)
        return tn_fail(TN_ERR_MEMORY, "%s: %zu bytes at once, and the driver gives %lld at most; %s", d->loss.id, bytes,
                       (long long)d->has.largest, TN_ADVICE_SMALLER);
    static atomic_ullong serial;
    *b = (block){.bytes = (bytes + !bytes + VK_GRAIN - 1) / VK_GRAIN * VK_GRAIN, .serial = ++serial};
    tn_status s = block_fill(d, b, must, like);
    if (s != TN_OK) block_free(d, b);
    return s;
}

static void block_drop(void *device, void *b) {
    block_free(device, b);
    tn_mem_free(b);
}

static tn_status block_new(vk_device *d, size_t bytes, uint32_t must, uint32_t like, block **out) {
    block *b = tn_mem_zalloc(1, sizeof *b);
    if (!b) return TN_ERR_MEMORY;
    *out = b;
    void *unused;
    return tn_hand_out(block_make(d, b, bytes, must, like), b, block_drop, d, &unused);
}

/* The block and offset of `bytes` bytes at a device address. */
static tn_status locate(vk_device *d, const void *address, size_t bytes, const char *role, block **b, size_t *at) {
    void *found;
    tn_status s = tn_span_locate(&d->spans, d->loss.id, role, address, bytes, &found, at);
    *b = found;
    return s;
}

/* ---- the stream: all of these want the lock to be held ----------------------------------------------------------- */

static void barrier(vk_device *d, void *commands, uint32_t stages, uint32_t access) {
    const vk_barrier b = {.kind = KIND_MEMORY_BARRIER, .from = SHADER_WRITE | TRANSFER_WRITE, .to = access};
    tn_vk.CmdPipelineBarrier(commands, STAGE_COMPUTE | STAGE_TRANSFER, stages, 0, 1, &b, 0, NULL, 0, NULL);
    d->written = false;
}

/* Ends the slot that is being recorded and has the device begin with it, and behind it with `more` commands, if there
 * are any. What was recorded is gone when that fails, and with it what the memory ought to hold: the device counts as
 * lost. */
static tn_status submit_with(vk_device *d, void *more) {
    const slot *s = &d->slots[tn_stream_slot(d->stream.submitted + 1)];
    barrier(d, s->commands, STAGE_HOST, HOST_READ | HOST_WRITE);
    d->stream.recording = false;
    const char *call = "vkEndCommandBuffer";
    int32_t error = tn_vk.EndCommandBuffer(s->commands);
    if (error == SUCCESS) {
        void *commands[2] = {s->commands, more};
        const vk_submit_info info = {.kind = KIND_SUBMIT, .command_count = more ? 2 : 1, .commands = commands};
        call = "vkQueueSubmit";
        error = tn_vk.QueueSubmit(d->queue, 1, &info, s->fence);
    }
    if (error == SUCCESS) {
        tn_stream_submitted(&d->stream);
        return TN_OK;
    }
    tn_status status = check(d, error, call, "%d dispatches", s->dispatches);
    return tn_loss_of_work(&d->loss, status, call);
}

static tn_status stream_submit(void *device) { return submit_with(device, NULL); }

/* Forgets what was recorded in a slot's commands and begins anew. */
static tn_status commands_begin(vk_device *d, const slot *s, uint32_t flags) {
    const vk_begin_info info = {.kind = KIND_BEGIN, .flags = flags};
    TRY(check(d, tn_vk.ResetDescriptorPool(d->device, s->sets, 0), "vkResetDescriptorPool", "%s", ""));
    return check(d, tn_vk.BeginCommandBuffer(s->commands, &info), "vkBeginCommandBuffer", "%s", "");
}

static tn_status stream_begin(void *device, int i) {
    vk_device *d = device;
    slot *s = &d->slots[i];
    TRY(check(d, tn_vk.ResetFences(d->device, 1, &s->fence), "vkResetFences", "%s", ""));
    TRY(commands_begin(d, s, ONE_TIME));
    s->used = 0;
    s->dispatches = s->bindings = 0;
    d->written = true;
    return TN_OK;
}

static bool stream_has_room(void *device, int i, size_t bytes, int bindings) {
    const slot *s = &((vk_device *)device)->slots[i];
    return s->used + bytes <= SLOT_ROOM && s->dispatches < SLOT_DISPATCHES && s->bindings + bindings <= SLOT_BINDINGS;
}

static tn_status stream_wait(void *device, int i, uint64_t number) {
    vk_device *d = device;
    return check(d, tn_vk.WaitForFences(d->device, 1, &d->slots[i].fence, 1, UINT64_MAX), "vkWaitForFences",
                 "submission %llu", (unsigned long long)number);
}

static tn_status stream_query(void *device, int i, uint64_t number, bool *ended) {
    vk_device *d = device;
    int32_t code = tn_vk.GetFenceStatus(d->device, d->slots[i].fence);
    *ended = code == SUCCESS;
    return check(d, code, "vkGetFenceStatus", "submission %llu", (unsigned long long)number);
}

static void stream_idle(void *device) { (void)tn_vk.DeviceWaitIdle(((vk_device *)device)->device); }

static const tn_stream_calls stream_calls = {stream_begin, stream_has_room, stream_submit,
                                             stream_wait,  stream_query,    stream_idle};

static tn_status record(vk_device *d, size_t bytes, int bindings, slot **out) {
    int i = 0;
    tn_status s = tn_stream_record(&d->stream, bytes, bindings, &i);
    *out = &d->slots[i];
    return s;
}

/* Puts what follows behind what was recorded, and notes that the blocks are used. */
static void follow(vk_device *d, const slot *s, block *a, block *b) {
    if (d->written)
        barrier(d, s->commands, STAGE_COMPUTE | STAGE_TRANSFER,
                SHADER_READ | SHADER_WRITE | TRANSFER_READ | TRANSFER_WRITE);
    d->written = true;
    a->last = b->last = d->stream.submitted + 1;
}

/* A slot with room for so many bytes, dispatches and bindings of them; of a list, or of the stream. */
static tn_status slot_start(vk_device *d, slot *s, size_t room, uint32_t dispatches, uint32_t bindings) {
    const vk_pool_size sizes[] = {{STORAGE, bindings}, {STORAGE_MOVING, dispatches}};
    const vk_set_pool_info sets = {.kind = KIND_SET_POOL, .sets = dispatches, .count = TN_COUNT(sizes), .sizes = sizes};
    const vk_plain_info fence = {.kind = KIND_FENCE};
    const vk_commands_info commands = {.kind = KIND_COMMANDS, .pool = d->pool, .count = 1};
    TRY(check(d, tn_vk.AllocateCommandBuffers(d->device, &commands, &s->commands), "vkAllocateCommandBuffers", "1"));
    TRY(check(d, tn_vk.CreateFence(d->device, &fence, NULL, &s->fence), "vkCreateFence", "%s", ""));
    TRY(check(d, tn_vk.CreateDescriptorPool(d->device, &sets, NULL, &s->sets), "vkCreateDescriptorPool", "%u sets",
              dispatches));
    return block_make(d, &s->room, room, HOST_SEES, MEMORY_LOCAL);
}

static void slot_end(vk_device *d, slot *s) {
    if (s->fence) tn_vk.DestroyFence(d->device, s->fence, NULL);
    if (s->sets) tn_vk.DestroyDescriptorPool(d->device, s->sets, NULL);
    if (s->commands) tn_vk.FreeCommandBuffers(d->device, d->pool, 1, &s->commands);
    block_free(d, &s->room);
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

typedef struct vk_module {
    uint64_t set_layout, layout, cache, pipeline;
    uint64_t last; /* number of the last submission that runs it; the stream's lock guards it */
    char name[48];
    int buffer_count;
    size_t params_bytes, bases_at;
    size_t room; /* of the parameters, so that the next ones begin where they may */
    void *binary;
} vk_module;

static void vulkan_unload(void *device, void *module) {
    vk_device *d = device;
    vk_module *m = module;
    tn_stream_settle(&d->stream, m->last);
    if (m->pipeline) tn_vk.DestroyPipeline(d->device, m->pipeline, NULL);
    if (m->cache) tn_vk.DestroyPipelineCache(d->device, m->cache, NULL);
    if (m->layout) tn_vk.DestroyPipelineLayout(d->device, m->layout, NULL);
    if (m->set_layout) tn_vk.DestroyDescriptorSetLayout(d->device, m->set_layout, NULL);
    tn_mem_free(m->binary);
    tn_mem_free(m);
}

/* The buffers, and behind them the parameters, whose place in their buffer is told at each launch. */
static tn_status make_layout(vk_device *d, vk_module *m) {
    vk_binding bindings[VK_MOST_BINDINGS] = {{0}};
    uint32_t n = (uint32_t)m->buffer_count;
    for (uint32_t i = 0; i <= n; i++)
        bindings[i] = (vk_binding){i, i < n ? STORAGE : STORAGE_MOVING, 1, SHADER_COMPUTE, NULL};
    const vk_set_layout_info set = {.kind = KIND_SET_LAYOUT, .count = n + 1, .bindings = bindings};
    TRY(check(d, tn_vk.CreateDescriptorSetLayout(d->device, &set, NULL, &m->set_layout), "vkCreateDescriptorSetLayout",
              "%s, %u buffers", m->name, n + 1));
    const vk_pipeline_layout_info info = {.kind = KIND_PIPELINE_LAYOUT, .count = 1, .sets = &m->set_layout};
    return check(d, tn_vk.CreatePipelineLayout(d->device, &info, NULL, &m->layout), "vkCreatePipelineLayout", "%s",
                 m->name);
}

/* What a compiler says no to can be computed elsewhere; memory and loss are other things. */
static tn_status refused(tn_status s) {
    return s == TN_OK || s == TN_ERR_MEMORY || s == TN_ERR_LOST ? s : tn_fail_prefix(TN_ERR_UNSUPPORTED, "refused");
}

static tn_status make_pipeline(vk_device *d, const tn_code *code, vk_module *m) {
    const vk_data_info words = {.kind = KIND_SHADER, .size = code->size, .data = code->data};
    vk_data_info kept = {.kind = KIND_PIPELINE_CACHE, .size = code->binary_size, .data = code->binary};
    vk_pipeline_info info = {.kind = KIND_PIPELINE,
                             .stage = {.kind = KIND_STAGE, .stage = SHADER_COMPUTE, .entry = code->entry},
                             .layout = m->layout};
    TRY(check(d, tn_vk.CreatePipelineCache(d->device, &kept, NULL, &m->cache), "vkCreatePipelineCache", "%zu bytes",
              kept.size));
    TRY(refused(check(d, tn_vk.CreateShaderModule(d->device, &words, NULL, &info.stage.shader), "vkCreateShaderModule",
                      "%s, %zu bytes", m->name, code->size)));
    int32_t error = tn_vk.CreateComputePipelines(d->device, m->cache, 1, &info, NULL, &m->pipeline);
    tn_vk.DestroyShaderModule(d->device, info.stage.shader, NULL);
    return refused(check(d, error, "vkCreateComputePipelines", "%s", m->name));
}

/* Drivers may take for granted that words are SPIR-V; parameters have to fit into an empty slot. */
static tn_status check_code(const vk_device *d, const tn_code *code) {
    static const tn_code_limits most = {.buffers = VK_MOST_BINDINGS - 1, .params_bytes = SLOT_ROOM / 2};
    uint32_t first = 0;
    TRY(tn_code_check(d->loss.id, code, &most));
    if (code->size >= 20) memcpy(&first, code->data, sizeof first);
    if (first == 0x07230203 && code->size % 4 == 0) return TN_OK;
    return tn_fail(TN_ERR_UNSUPPORTED, "%s: %s: %zu bytes that begin with %08x are no SPIR-V", d->loss.id, code->entry,
                   code->size, first);
}

static tn_status vulkan_load(void *device, const tn_code *code, void **module) {
    vk_device *d = device;
    TRY(alive(d));
    TRY(check_code(d, code));
    vk_module *m = tn_mem_zalloc(1, sizeof *m);
    if (!m) return TN_ERR_MEMORY;
    snprintf(m->name, sizeof m->name, "%s", code->entry);
    m->buffer_count = code->buffer_count;
    size_t step = (size_t)d->has.caps.alignment;
    m->params_bytes = code->params_bytes;
    m->room = (code->params_bytes + step - 1) / step * step;
    m->bases_at = code->bases_at;
    tn_status s = make_layout(d, m);
    if (s == TN_OK) s = make_pipeline(d, code, m);
    return tn_hand_out(s, m, vulkan_unload, d, module);
}

enum { CACHE_HEADER = 32 }; /* bytes that say whose cache it is */

static tn_status vulkan_binary(void *device, void *module, void **data, size_t *size) {
    vk_device *d = device;
    vk_module *m = module;
    TRY(alive(d));
    TRY(check(d, tn_vk.GetPipelineCacheData(d->device, m->cache, size, NULL), "vkGetPipelineCacheData", "%s", m->name));
    if (*size <= CACHE_HEADER)
        return tn_fail(TN_ERR_UNSUPPORTED, "%s: the driver does not give compiled kernels away", d->loss.id);
    tn_mem_free(m->binary);
    *data = m->binary = tn_mem_alloc(*size);
    if (!m->binary) return TN_ERR_MEMORY;
    return check(d, tn_vk.GetPipelineCacheData(d->device, m->cache, size, m->binary), "vkGetPipelineCacheData",
                 "%s, %zu bytes", m->name, *size);
}

/* ---- launches: the lock is held ---------------------------------------------------------------------------------- */

enum { FLUSH_EVERY = 32 }; /* dispatches that are held back */

/* What is bound, and the serial number of the block that it lies in. */
typedef struct place {
    vk_range range;
    uint64_t serial;
} place;

/* What a launch binds: each buffer's allocation, or as much of it from the launch's place on as a binding reaches; the
 * rest of the way is added to its base. */
static tn_status bind_buffers(vk_device *d, const vk_module *m, const tn_dispatch *l, uint64_t *params, place *places) {
    uint64_t *bases = params + m->bases_at / sizeof *bases, most = d->has.properties.limits.storage_range;
    for (int i = 0; i < m->buffer_count; i++) {
        block *b;
        size_t at;
        TRY(locate(d, l->buffers[i], 0, m->name, &b, &at));
        uint64_t from = b->bytes <= most ? 0 : at / (uint64_t)d->has.caps.alignment * (uint64_t)d->has.caps.alignment;
        if (from == b->bytes) from -= (uint64_t)d->has.caps.alignment; /* behind the last byte nothing is touched */
        uint64_t size = b->bytes - from;
        places[i] = (place){{b->buffer, from, size < most ? size : most}, b->serial};
        bases[i] += at - from;
        b->last = d->stream.submitted + 1;
    }
    return TN_OK;
}

/* Puts a launch's parameters at their place in the room of `s`, and finds what it binds. */
static tn_status prepare_dispatch(vk_device *d, vk_module *m, const tn_dispatch *l, const slot *s, size_t at,
                                  place *places) {
    memcpy(s->room.host + at, l->params, m->params_bytes);
    TRY(bind_buffers(d, m, l, (uint64_t *)(void *)(s->room.host + at), places));
    places[m->buffer_count] = (place){{s->room.buffer, 0, m->params_bytes}, s->room.serial};
    m->last = d->stream.submitted + 1;
    return TN_OK;
}

/* Makes a set of the places. */
static tn_status make_set(vk_device *d, const vk_module *m, const slot *s, const place *places, uint64_t *set) {
    vk_write writes[VK_MOST_BINDINGS];
    const vk_set_info info = {.kind = KIND_SET, .pool = s->sets, .count = 1, .layouts = &m->set_layout};
    uint32_t n = (uint32_t)m->buffer_count;
    TRY(check(d, tn_vk.AllocateDescriptorSets(d->device, &info, set), "vkAllocateDescriptorSets", "%s, %u buffers",
              m->name, n));
    for (uint32_t i = 0; i <= n; i++)
        writes[i] = (vk_write){.kind = KIND_WRITE,
                               .set = *set,
                               .binding = i,
                               .count = 1,
                               .type = i < n ? STORAGE : STORAGE_MOVING,
                               .buffers = &places[i].range};
    tn_vk.UpdateDescriptorSets(d->device, n + 1, writes, 0, NULL);
    return TN_OK;
}

static void record_dispatch(const vk_module *m, const slot *s, const uint32_t groups[3], uint64_t set, size_t at) {
    uint32_t moved = (uint32_t)at;
    tn_vk.CmdBindPipeline(s->commands, BIND_COMPUTE, m->pipeline);
    tn_vk.CmdBindDescriptorSets(s->commands, BIND_COMPUTE, m->layout, 0, 1, &set, 1, &moved);
    tn_vk.CmdDispatch(s->commands, groups[0], groups[1], groups[2]);
}

static bool has_work(const tn_dispatch *l) { return l->groups[0] && l->groups[1] && l->groups[2]; }

static tn_status dispatch_one(vk_device *d, vk_module *m, const tn_dispatch *l, bool first) {
    place places[VK_MOST_BINDINGS];
    uint64_t set = 0;
    slot *s;
    size_t step = (size_t)d->has.caps.alignment;
    if (!has_work(l)) return TN_OK;
    TRY(record(d, m->room + step, m->buffer_count, &s));
    size_t at = (s->used + step - 1) / step * step;
    TRY(prepare_dispatch(d, m, l, s, at, places));
    TRY(make_set(d, m, s, places, &set));
    s->used = at + m->room;
    s->dispatches++;
    s->bindings += m->buffer_count;
    if (first) follow(d, s, &s->room, &s->room);
    record_dispatch(m, s, l->groups, set, at);
    d->written = true;
    return TN_OK;
}

static tn_status vulkan_dispatch(void *queue, void *module, const tn_dispatch *dispatches, int64_t count) {
    vk_device *d = queue;
    pthread_mutex_lock(&d->stream.lock);
    tn_status s = alive(d);
    for (int64_t i = 0; i < count && s == TN_OK; i++)
        s = dispatch_one(d, module, &dispatches[i], i == 0);
    const slot *at = &d->slots[tn_stream_slot(d->stream.submitted + 1)];
    if (s == TN_OK && d->stream.recording && at->dispatches >= FLUSH_EVERY) s = stream_submit(d);
    pthread_mutex_unlock(&d->stream.lock);
    return s;
}

/* ---- lists that are recorded once -------------------------------------------------------------------------------- */

/* While memory stays where it is, a run puts its parameters in place and submits what was recorded. Runs take turns
 * with the copies: one is made ready while the other is under way. */
typedef struct vk_copy {
    slot slot;
    uint64_t number; /* of its last submission; 0: none */
    bool recorded;   /* … and places: what is bound by it */
    place *places;
} vk_copy;

enum { COPIES = 2, MOST_LIST_ROOM = 16 << 20 };
typedef struct vk_list {
    vk_copy copies[COPIES];
    unsigned turn;
    size_t place_count;
    place *places; /* of the run that is made ready; behind them those of the copies */
} vk_list;

static void vulkan_list_free(void *device, void *list) {
    vk_device *d = device;
    vk_list *l = list;
    for (int i = 0; i < COPIES; i++)
        tn_stream_settle(&d->stream, l->copies[i].number);
    pthread_mutex_lock(&d->stream.lock);
    for (int i = 0; i < COPIES; i++)
        slot_end(d, &l->copies[i].slot);
    pthread_mutex_unlock(&d->stream.lock);
    tn_mem_free(l->places);
    tn_mem_free(l);
}

static tn_status list_start(vk_device *d, vk_list *l, size_t room, int64_t count) {
    l->places = tn_mem_zalloc((COPIES + 1) * l->place_count, sizeof *l->places);
    if (!l->places) return TN_ERR_MEMORY;
    for (int i = 0; i < COPIES; i++)
        l->copies[i].places = l->places + (size_t)(i + 1) * l->place_count;
    tn_status s = alive(d);
    pthread_mutex_lock(&d->stream.lock);
    for (int i = 0; i < COPIES && s == TN_OK; i++)
        s = slot_start(d, &l->copies[i].slot, room, (uint32_t)count, (uint32_t)l->place_count);
    pthread_mutex_unlock(&d->stream.lock);
    return s;
}

static tn_status vulkan_list_make(void *device, const tn_list_item *items, int64_t count, void **list) {
    vk_device *d = device;
    size_t room = 0, places = 0;
    for (int64_t i = 0; i < count; i++) {
        const vk_module *m = items[i].module;
        room += m->room;
        places += (size_t)m->buffer_count + 1;
    }
    if (room > MOST_LIST_ROOM)
        return tn_fail(TN_ERR_UNSUPPORTED, "%s: a list with %zu bytes of parameters", d->loss.id, room);
    vk_list *l = tn_mem_zalloc(1, sizeof *l);
    if (!l) return TN_ERR_MEMORY;
    l->place_count = places;
    return tn_hand_out(list_start(d, l, room, count), l, vulkan_list_free, d, list);
}

/* Records all launches of the run that is made ready. */
static tn_status record_copy_of(vk_device *d, vk_copy *c, const tn_list_item *items, int64_t count,
                                const place *places) {
    size_t at = 0;
    TRY(commands_begin(d, &c->slot, 0));
    for (int64_t i = 0; i < count; i++) {
        const vk_module *m = items[i].module;
        uint64_t set = 0;
        if (has_work(&items[i].dispatch)) {
            TRY(make_set(d, m, &c->slot, places, &set));
            barrier(d, c->slot.commands, STAGE_COMPUTE, SHADER_READ | SHADER_WRITE);
            record_dispatch(m, &c->slot, items[i].dispatch.groups, set, at);
        }
        at += m->room;
        places += m->buffer_count + 1;
    }
    barrier(d, c->slot.commands, STAGE_HOST, HOST_READ | HOST_WRITE);
    return check(d, tn_vk.EndCommandBuffer(c->slot.commands), "vkEndCommandBuffer", "%lld launches", (long long)count);
}

/* Parameters and places of this run. */
static tn_status prepare_copy(vk_device *d, const vk_list *l, const vk_copy *c, const tn_list_item *items,
                              int64_t count) {
    place *places = l->places;
    size_t at = 0;
    for (int64_t i = 0; i < count; i++) {
        vk_module *m = items[i].module;
        if (has_work(&items[i].dispatch)) TRY(prepare_dispatch(d, m, &items[i].dispatch, &c->slot, at, places));
        at += m->room;
        places += m->buffer_count + 1;
    }
    return TN_OK;
}

static tn_status list_run(vk_device *d, vk_list *l, const tn_list_item *items, int64_t count) {
    vk_copy *c = &l->copies[l->turn++ % COPIES];
    size_t bytes = l->place_count * sizeof *l->places;
    slot *s;
    TRY(tn_stream_await(&d->stream, c->number));
    TRY(record(d, 0, 0, &s));
    TRY(prepare_copy(d, l, c, items, count));
    if (!c->recorded || memcmp(c->places, l->places, bytes) != 0) {
        c->recorded = false;
        TRY(record_copy_of(d, c, items, count, l->places));
        memcpy(c->places, l->places, bytes);
        c->recorded = true;
    }
    TRY(submit_with(d, c->slot.commands));
    c->number = d->stream.submitted;
    return TN_OK;
}

static tn_status vulkan_list_run(void *queue, void *list, const tn_list_item *items, int64_t count) {
    vk_device *d = queue;
    pthread_mutex_lock(&d->stream.lock);
    tn_status s = list_run(d, list, items, count);
    pthread_mutex_unlock(&d->stream.lock);
    return s;
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

/* A device that has as much as there is of what is made use of. */
static tn_status device_make(vk_device *d, uint32_t family) {
    const float priority = 1;
    const vk_queue_info queue = {.kind = KIND_QUEUE, .family = family, .count = 1, .priorities = &priority};
    const vk_device_info info = {.kind = KIND_DEVICE,
                                 .next = &d->has.features,
                                 .queue_count = 1,
                                 .queues = &queue,
                                 .extension_count = d->has.extension_count,
                                 .extensions = d->has.extensions};
    return check(d, tn_vk.CreateDevice(d->place, &info, NULL, &d->device), "vkCreateDevice", "%u extensions",
                 d->has.extension_count);
}

static tn_status device_start(vk_device *d) {
    uint32_t family = 0;
    int64_t unused;
    (void)tn_vulkan_family(d->place, &family, &d->time_bits);
    tn_vulkan_ask(d->place, &d->has);
    if (d->has.caps.alignment > SLOT_ROOM / 8)
        return tn_fail(TN_ERR_DEVICE, "%s: buffers aligned to %lld bytes, Vulkan allows 256 at most; %s", d->loss.id,
                       (long long)d->has.caps.alignment, TN_ADVICE_UPDATE);
    d->software = d->has.properties.device_type == TYPE_CPU;
    d->unified =
        (d->software || d->has.properties.device_type == TYPE_INTEGRATED) && !tn_env("TRUNNION_VULKAN_STAGING");
    tn_vk.GetPhysicalDeviceMemoryProperties(d->place, &d->memory);
    TRY(device_make(d, family));
    tn_vulkan_memory(d->place, d->has.knows_budget, &d->room.total, &unused);
    if (!(d->has.properties.limits.time_unit > 0)) d->time_bits = 0;
    tn_vk.GetDeviceQueue(d->device, family, 0, &d->queue);
    const vk_plain_info pool = {.kind = KIND_COMMAND_POOL, .flags = POOL_RESETS, .family = family};
    TRY(check(d, tn_vk.CreateCommandPool(d->device, &pool, NULL, &d->pool), "vkCreateCommandPool", "family %u",
              family));
    for (int i = 0; i < TN_STREAM_SLOTS; i++)
        TRY(slot_start(d, &d->slots[i], SLOT_ROOM, SLOT_DISPATCHES, SLOT_BINDINGS));
    return TN_OK;
}

/* Also for a device that did not open all the way. */
static void vulkan_close(void *device) {
    vk_device *d = device;
    if (d->device) (void)tn_vk.DeviceWaitIdle(d->device);
    for (int i = 0; d->device && i < TN_STREAM_SLOTS; i++)
        slot_end(d, &d->slots[i]);
    if (d->pool) tn_vk.DestroyCommandPool(d->device, d->pool, NULL);
    if (d->device) block_free(d, &d->staging);
    if (d->device) tn_vk.DestroyDevice(d->device, NULL);
    tn_spans_close(&d->spans);
    tn_spans_close(&d->pinned);
    tn_stream_close(&d->stream);
    tn_loss_close(&d->loss);
    pthread_mutex_destroy(&d->staging_lock);
    tn_mem_free(d);
}

static tn_status vulkan_open(int index, const tn_device_options *options, void **device) {
    (void)options;
    void *found;
    TRY(tn_vulkan_find(index, &found));
    vk_device *d = tn_mem_zalloc(1, sizeof *d);
    if (!d) return TN_ERR_MEMORY;
    d->place = found;
    tn_loss_open(&d->loss, "vulkan", index);
    tn_stream_open(&d->stream, &stream_calls, d, &d->loss);
    pthread_mutex_init(&d->staging_lock, NULL);
    tn_spans_open(&d->spans);
    tn_spans_open(&d->pinned);
    return tn_hand_out_device(device_start(d), d, vulkan_close, device);
}

static tn_status vulkan_caps(void *device, tn_caps *out) {
    *out = ((vk_device *)device)->has.caps;
    return TN_OK;
}

static tn_status vulkan_memory(void *device, int64_t *total, int64_t *unused) {
    vk_device *d = device;
    tn_vulkan_memory(d->place, d->has.knows_budget, total, unused);
    if (!d->has.knows_budget) *unused = tn_room_left(&d->room, false);
    if (d->software) *unused = tn_min64(*unused, tn_cpu().free_memory);
    return TN_OK;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static tn_status vulkan_alloc(void *device, size_t bytes, void **address) {
    vk_device *d = device;
    block *b;
    TRY(alive(d));
    TRY(tn_room_take(&d->room, d->loss.id, bytes));
    tn_status s = block_new(d, bytes, MEMORY_LOCAL, d->unified ? HOST_READS : 0, &b);
    if (s == TN_OK) {
        tn_room_give(&d->room, (int64_t)bytes - (int64_t)b->bytes); /* it takes more than was asked for */
        bytes = b->bytes;
        s = tn_span_add(&d->spans, b, bytes, address);
        if (s != TN_OK) block_drop(d, b);
    }
    if (s != TN_OK) tn_room_give(&d->room, (int64_t)bytes);
    return s;
}

static void vulkan_free(void *device, void *address) {
    vk_device *d = device;
    size_t bytes = 0;
    block *b = tn_span_remove(&d->spans, address, &bytes);
    if (!b) return;
    tn_stream_settle(&d->stream, b->last);
    block_drop(d, b);
    tn_room_give(&d->room, (int64_t)bytes);
}

/* Records a copy between blocks. The lock is held. */
static tn_status record_copy(vk_device *d, block *to, size_t to_at, block *from, size_t from_at, size_t n) {
    const vk_region region = {from_at, to_at, n};
    slot *s;
    TRY(record(d, 0, 0, &s));
    follow(d, s, to, from);
    tn_vk.CmdCopyBuffer(s->commands, from->buffer, to->buffer, 1, &region);
    return TN_OK;
}

enum { SMALL = SLOT_ROOM / 4, STAGING = 4 << 20 };

/* Bytes of the host that lie in the slot until they are copied: nobody waits. The lock is held. */
static tn_status write_small(vk_device *d, block *to, size_t at, const void *src, size_t bytes) {
    slot *s;
    TRY(record(d, bytes, 0, &s));
    memcpy(s->room.host + s->used, src, bytes);
    size_t from = s->used;
    s->used += bytes;
    TRY(record_copy(d, to, at, &s->room, from, bytes));
    s->used = (s->used + 7) / 8 * 8;
    return TN_OK;
}

/* One piece through the staging block, whose lock is held. */
static tn_status stage_piece(vk_device *d, block *b, size_t at, unsigned char *host, size_t n, bool reads) {
    if (!reads) memcpy(d->staging.host, host, n);
    pthread_mutex_lock(&d->stream.lock);
    tn_status s = reads ? record_copy(d, &d->staging, 0, b, at, n) : record_copy(d, b, at, &d->staging, 0, n);
    if (s == TN_OK) s = tn_stream_finish(&d->stream);
    pthread_mutex_unlock(&d->stream.lock);
    if (s == TN_OK && reads) memcpy(host, d->staging.host, n);
    return s;
}

static tn_status stage(vk_device *d, block *b, size_t at, void *host, size_t bytes, bool reads) {
    tn_status s = TN_OK;
    pthread_mutex_lock(&d->staging_lock);
    if (!d->staging.host) s = block_make(d, &d->staging, STAGING, HOST_SEES, MEMORY_CACHED);
    for (size_t n = 0; bytes && s == TN_OK; at += n, bytes -= n, host = (char *)host + n) {
        n = bytes < STAGING ? bytes : STAGING;
        s = stage_piece(d, b, at, host, n, reads);
    }
    pthread_mutex_unlock(&d->staging_lock);
    return s;
}

/* Also how one waits until the host may look into memory that it sees. */
static tn_status vulkan_sync(void *queue) {
    vk_device *d = queue;
    pthread_mutex_lock(&d->stream.lock);
    tn_status s = tn_stream_finish(&d->stream);
    pthread_mutex_unlock(&d->stream.lock);
    return s;
}

/* Small: into the stream. Else at once, where the host sees the memory, when nothing is under way any more. */
static tn_status write_to(vk_device *d, block *to, size_t at, const void *src, size_t bytes) {
    tn_status s = TN_OK;
    pthread_mutex_lock(&d->stream.lock);
    bool direct = to->host && (bytes > SMALL || tn_stream_is_idle(&d->stream));
    if (direct)
        s = tn_stream_finish(&d->stream);
    else if (bytes <= SMALL)
        s = write_small(d, to, at, src, bytes);
    pthread_mutex_unlock(&d->stream.lock);
    if (direct && s == TN_OK) memcpy(to->host + at, src, bytes);
    return direct || bytes <= SMALL ? s : stage(d, to, at, (void *)(uintptr_t)src, bytes, false);
}

static tn_status read_from(vk_device *d, block *from, size_t at, void *dst, size_t bytes) {
    if (!from->host) return stage(d, from, at, dst, bytes, true);
    TRY(vulkan_sync(d));
    memcpy(dst, from->host + at, bytes);
    return TN_OK;
}

/* Between the device's memory and memory of it or of the host that a block holds; *done: there is such a block. */
static tn_status copy_blocks(vk_device *d, void *dst, const void *src, size_t bytes, int kind, bool *done) {
    size_t at = 0, from_at = 0;
    block *to = NULL, *from = NULL;
    TRY(locate(d, kind == 1 ? src : dst, bytes, "copying", kind == 1 ? &from : &to, kind == 1 ? &from_at : &at));
    if (kind == 0) from = tn_span_find(&d->pinned, src, bytes, &from_at);
    if (kind == 1) to = tn_span_find(&d->pinned, dst, bytes, &at);
    if (kind == 2) TRY(locate(d, src, bytes, "copying", &from, &from_at));
    *done = to && from;
    if (!*done) return TN_OK;
    pthread_mutex_lock(&d->stream.lock);
    tn_status s = record_copy(d, to, at, from, from_at, bytes);
    if (s == TN_OK && kind != 2) s = tn_stream_submit(&d->stream);
    pthread_mutex_unlock(&d->stream.lock);
    return s;
}

static tn_status vulkan_copy(void *queue, void *dst, const void *src, size_t bytes, int kind) {
    vk_device *d = queue;
    block *b;
    size_t at;
    bool done;
    TRY(alive(d));
    if (!bytes) return TN_OK;
    if (kind == 2) return copy_blocks(d, dst, src, bytes, kind, &done);
    TRY(locate(d, kind == 1 ? src : dst, bytes, "copying", &b, &at));
    return kind == 1 ? read_from(d, b, at, dst, bytes) : write_to(d, b, at, src, bytes);
}

static tn_status vulkan_copy_async(void *queue, void *dst, const void *src, size_t bytes, int kind) {
    bool done = false;
    TRY(alive(queue));
    if (bytes) TRY(copy_blocks(queue, dst, src, bytes, kind, &done));
    return done ? TN_OK : vulkan_copy(queue, dst, src, bytes, kind);
}

static tn_status vulkan_host_alloc(void *device, size_t bytes, void **host) {
    vk_device *d = device;
    block *b;
    TRY(alive(d));
    TRY(block_new(d, bytes, HOST_SEES, MEMORY_CACHED, &b));
    *host = b->host;
    tn_status s = tn_span_add_host(&d->pinned, b, b->bytes, b->host);
    if (s != TN_OK) block_drop(d, b);
    return s;
}

static void vulkan_host_free(void *device, void *host) {
    vk_device *d = device;
    size_t bytes;
    block *b = tn_span_remove(&d->pinned, host, &bytes);
    if (!b) return;
    tn_stream_settle(&d->stream, b->last);
    block_drop(d, b);
}

/* Whole words by the device, the bytes before and behind them as a copy. The lock is held. */
static tn_status record_fill(vk_device *d, block *b, size_t at, uint8_t value, size_t bytes) {
    const uint8_t edge[4] = {value, value, value, value};
    size_t head = (-at & 3) < bytes ? -at & 3 : bytes, words = (bytes - head) & ~(size_t)3;
    size_t tail = bytes - head - words;
    slot *s;
    if (head) TRY(write_small(d, b, at, edge, head));
    if (tail) TRY(write_small(d, b, at + bytes - tail, edge, tail));
    if (!words) return TN_OK;
    TRY(record(d, 0, 0, &s));
    follow(d, s, b, b);
    tn_vk.CmdFillBuffer(s->commands, b->buffer, at + head, words, value * 0x01010101u);
    return TN_OK;
}

static tn_status vulkan_fill(void *queue, void *dst, uint8_t value, size_t bytes) {
    vk_device *d = queue;
    block *b;
    size_t at;
    TRY(alive(d));
    if (!bytes) return TN_OK;
    TRY(locate(d, dst, bytes, "filling", &b, &at));
    pthread_mutex_lock(&d->stream.lock);
    tn_status s = record_fill(d, b, at, value, bytes);
    pthread_mutex_unlock(&d->stream.lock);
    return s;
}

/* What the host does not see hal copies. */
static tn_status vulkan_map(void *device, void *address, size_t bytes, bool read, void **host) {
    vk_device *d = device;
    block *b;
    size_t at;
    (void)read;
    TRY(alive(d));
    TRY(locate(d, address, bytes, "mapping", &b, &at));
    if (!b->host) return tn_fail(TN_ERR_UNSUPPORTED, "%s: the host does not see it", d->loss.id);
    TRY(vulkan_sync(d));
    *host = b->host + at;
    return TN_OK;
}

static tn_status vulkan_unmap(void *device, void *address, void *host) {
    (void)address;
    (void)host;
    return alive(device);
}

/* ---- events ------------------------------------------------------------------------------------------------------ */

typedef struct event {
    uint64_t number; /* of the submission that holds all before it; 0, which has always ended: never recorded */
    uint64_t times;  /* a pool of one time; 0: it has none */
} event;

static void vulkan_event_free(void *device, void *made) {
    vk_device *d = device;
    event *e = made;
    if (e->times) tn_stream_settle(&d->stream, e->number);
    if (e->times) tn_vk.DestroyQueryPool(d->device, e->times, NULL);
    tn_mem_free(e);
}

static tn_status vulkan_event_new(void *device, bool timed, void **out) {
    vk_device *d = device;
    const vk_query_pool_info info = {.kind = KIND_QUERY_POOL, .type = QUERY_TIME, .count = 1};
    event *e = tn_mem_zalloc(1, sizeof *e);
    if (!e) return TN_ERR_MEMORY;
    tn_status s = timed && d->time_bits ? check(d, tn_vk.CreateQueryPool(d->device, &info, NULL, &e->times),
                                                "vkCreateQueryPool", "1 time")
                                        : TN_OK;
    return tn_hand_out(s, e, vulkan_event_free, d, out);
}

/* Submitted at once: somebody may wait for it. */
static tn_status vulkan_event_record(void *queue, void *recorded) {
    vk_device *d = queue;
    event *e = recorded;
    slot *at;
    pthread_mutex_lock(&d->stream.lock);
    tn_status s = alive(d);
    if (s == TN_OK && e->times) s = record(d, 0, 0, &at);
    if (s == TN_OK && e->times) {
        tn_vk.CmdResetQueryPool(at->commands, e->times, 0, 1);
        tn_vk.CmdWriteTimestamp(at->commands, STAGE_END, e->times, 0);
    }
    if (s == TN_OK) s = tn_stream_submit(&d->stream);
    if (s == TN_OK) e->number = d->stream.submitted;
    pthread_mutex_unlock(&d->stream.lock);
    return s;
}

static tn_status vulkan_event_query(void *device, void *e, bool *passed) {
    vk_device *d = device;
    TRY(alive(d));
    pthread_mutex_lock(&d->stream.lock);
    tn_status s = tn_stream_query(&d->stream, ((const event *)e)->number, passed);
    pthread_mutex_unlock(&d->stream.lock);
    return s;
}

static tn_status vulkan_event_sync(void *device, void *e) {
    vk_device *d = device;
    pthread_mutex_lock(&d->stream.lock);
    tn_status s = tn_stream_await(&d->stream, ((const event *)e)->number);
    pthread_mutex_unlock(&d->stream.lock);
    return s;
}

static tn_status vulkan_event_time(void *device, void *recorded, double *seconds) {
    vk_device *d = device;
    const event *e = recorded;
    uint64_t ticks = 0;
    if (!e->number || !e->times) return tn_fail(TN_ERR_STATE, "%s: the time of an event that has none", d->loss.id);
    TRY(check(d,
              tn_vk.GetQueryPoolResults(d->device, e->times, 0, 1, sizeof ticks, &ticks, sizeof ticks,
                                        QUERY_64 | QUERY_WAITS),
              "vkGetQueryPoolResults", "1 time"));
    pthread_mutex_lock(&d->stream.lock);
    ticks = tn_clock_place(&d->clock, ticks, d->time_bits);
    pthread_mutex_unlock(&d->stream.lock);
    *seconds = (double)ticks * (double)d->has.properties.limits.time_unit * 1e-9;
    return TN_OK;
}

/* ---- the driver -------------------------------------------------------------------------------------------------- */

const tn_driver tn_driver_vulkan = {
    .struct_size = sizeof(tn_driver),
    .abi = TN_BACKEND_ABI,
    .name = "vulkan",
    .title = "Vulkan",
    .probe = tn_vulkan_probe,
    .open = vulkan_open,
    .close = vulkan_close,
    .caps = vulkan_caps,
    .alloc = vulkan_alloc,
    .free = vulkan_free,
    .load = vulkan_load,
    .unload = vulkan_unload,
    .copy = vulkan_copy,
    .sync = vulkan_sync,
    .memory = vulkan_memory,
    .watch = tn_vulkan_watch,
    .isolate = TN_PROBE_ISOLATE,
    .dispatch = vulkan_dispatch,
    .binary = vulkan_binary,
    .queue_new = tn_stream_queue_new,
    .queue_free = tn_stream_queue_free,
    .event_new = vulkan_event_new,
    .event_free = vulkan_event_free,
    .event_record = vulkan_event_record,
    .event_wait = tn_stream_event_wait,
    .event_query = vulkan_event_query,
    .event_sync = vulkan_event_sync,
    .event_time = vulkan_event_time,
    .copy_async = vulkan_copy_async,
    .fill = vulkan_fill,
    .host_alloc = vulkan_host_alloc,
    .host_free = vulkan_host_free,
    .map = vulkan_map,
    .unmap = vulkan_unmap,
    .list_make = vulkan_list_make,
    .list_run = vulkan_list_run,
    .list_free = vulkan_list_free,
};

#endif
