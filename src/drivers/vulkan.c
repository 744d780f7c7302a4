/* vulkan.c — Vulkan: every device of the loader that computes; memory, the stream of commands, events.
 *
 * The floor is Vulkan 1.1. What lies above it is asked for, and what a device does not have is left out.
 *
 * A device has one stream of commands, whichever of its queues a call names: a ring of slots, each with a command
 * buffer that several calls record into before it is submitted. Who comes later in the stream may rely on all before
 * it: a barrier stands between calls that depend on each other, none between the launches of one call. A submission has
 * a number (hal/stream.h), and a fence; an event is the number of the submission that holds all before it. Objects are
 * used from several threads, which Vulkan leaves to its callers: one lock guards the stream.
 *
 * Memory has handles: hal/address_range.h makes addresses of them. Kernels and launches are vulkan_launch.c's. */
#include <string.h>

#include "drivers/drivers.h"
#include "drivers/vulkan_device.h"
#include "hal/clock.h"

#if TRUNNION_WITH_VULKAN

/* ---- blocks ------------------------------------------------------------------------------------------------------ */

static void block_free(vk_device *d, vk_block *b) {
    if (b->buffer) tn_vk.DestroyBuffer(d->device, b->buffer, NULL);
    if (b->memory) tn_vk.FreeMemory(d->device, b->memory, NULL); /* and unmaps it */
    *b = (vk_block){0};
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

static tn_status block_fill(vk_device *d, vk_block *b, uint32_t must, uint32_t like) {
    const vk_buffer_info info = {
        .kind = KIND_BUFFER, .size = b->bytes, .usage = USE_STORAGE | USE_COPY_FROM | USE_COPY_TO};
    vk_requirements needs = {0};
    TRY(check(d, tn_vk.CreateBuffer(d->device, &info, NULL, &b->buffer), "vkCreateBuffer", "%zu bytes", b->bytes));
    tn_vk.GetBufferMemoryRequirements(d->device, b->buffer, &needs);
    int type = memory_type(d, needs.types, must, like);
    if (type < 0)
        return tn_fail(TN_ERR_DEVICE, "%s: no memory of kind %x for buffers; %s", d->lost_state.id, must,
                       TN_ADVICE_UPDATE);
    if (needs.size > d->memory.heaps[d->memory.types[type].heap].size)
        return tn_fail(TN_ERR_MEMORY, "%s: %zu bytes are more than there are in all of memory type %d; %s",
                       d->lost_state.id, b->bytes, type, TN_ADVICE_SMALLER);
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
static tn_status block_make(vk_device *d, vk_block *b, size_t bytes, uint32_t must, uint32_t like) {
    if (bytes > SIZE_MAX / 2 || (int64_t)bytes > d->has.largest)
        return tn_fail(TN_ERR_MEMORY, "%s: %zu bytes at once, and the driver gives %lld at most; %s", d->lost_state.id,
                       bytes, (long long)d->has.largest, TN_ADVICE_SMALLER);
    static atomic_ullong serial;
    *b = (vk_block){.bytes = (bytes + !bytes + VK_GRAIN - 1) / VK_GRAIN * VK_GRAIN, .serial = ++serial};
    tn_status s = block_fill(d, b, must, like);
    if (s != TN_OK) block_free(d, b);
    return s;
}

static void block_drop(void *device, void *b) {
    block_free(device, b);
    tn_mem_free(b);
}

static tn_status block_new(vk_device *d, size_t bytes, uint32_t must, uint32_t like, vk_block **out) {
    vk_block *b = tn_mem_zalloc(1, sizeof *b);
    if (!b) return TN_ERR_MEMORY;
    *out = b;
    void *unused;
    return tn_hand_out(block_make(d, b, bytes, must, like), b, block_drop, d, &unused);
}

tn_status tn_vulkan_locate(vk_device *d, const void *address, size_t bytes, const char *role, vk_block **b,
                           size_t *at) {
    void *found;
    tn_status s = tn_address_range_locate(&d->ranges, d->lost_state.id, role, address, bytes, &found, at);
    *b = found;
    return s;
}

/* ---- the stream: all of these want the lock to be held ----------------------------------------------------------- */

void tn_vulkan_barrier(vk_device *d, void *commands, uint32_t stages, uint32_t access) {
    const vk_barrier b = {.kind = KIND_MEMORY_BARRIER, .from = SHADER_WRITE | TRANSFER_WRITE, .to = access};
    tn_vk.CmdPipelineBarrier(commands, STAGE_COMPUTE | STAGE_TRANSFER, stages, 0, 1, &b, 0, NULL, 0, NULL);
    d->written = false;
}

tn_status tn_vulkan_submit_with(vk_device *d, void *more) {
    const vk_slot *s = &d->slots[tn_stream_slot(d->stream.submitted + 1)];
    tn_vulkan_barrier(d, s->commands, STAGE_HOST, HOST_READ | HOST_WRITE);
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
    return tn_device_lost_with_work(&d->lost_state, status, call);
}

static tn_status stream_submit(void *device) { return tn_vulkan_submit_with(device, NULL); }

tn_status tn_vulkan_commands_begin(vk_device *d, const vk_slot *s, uint32_t flags) {
    const vk_begin_info info = {.kind = KIND_BEGIN, .flags = flags};
    TRY(check(d, tn_vk.ResetDescriptorPool(d->device, s->sets, 0), "vkResetDescriptorPool", "%s", ""));
    return check(d, tn_vk.BeginCommandBuffer(s->commands, &info), "vkBeginCommandBuffer", "%s", "");
}

static tn_status stream_begin(void *device, int i) {
    vk_device *d = device;
    vk_slot *s = &d->slots[i];
    TRY(check(d, tn_vk.ResetFences(d->device, 1, &s->fence), "vkResetFences", "%s", ""));
    TRY(tn_vulkan_commands_begin(d, s, ONE_TIME));
    s->used = 0;
    s->dispatches = s->bindings = 0;
    d->written = true;
    return TN_OK;
}

static bool stream_has_room(void *device, int i, size_t bytes, int bindings) {
    const vk_slot *s = &((vk_device *)device)->slots[i];
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

tn_status tn_vulkan_record(vk_device *d, size_t bytes, int bindings, vk_slot **out) {
    int i = 0;
    tn_status s = tn_stream_record(&d->stream, bytes, bindings, &i);
    *out = &d->slots[i];
    return s;
}

void tn_vulkan_follow(vk_device *d, const vk_slot *s, vk_block *a, vk_block *b) {
    if (d->written)
        tn_vulkan_barrier(d, s->commands, STAGE_COMPUTE | STAGE_TRANSFER,
                          SHADER_READ | SHADER_WRITE | TRANSFER_READ | TRANSFER_WRITE);
    d->written = true;
    a->last = b->last = d->stream.submitted + 1;
}

tn_status tn_vulkan_slot_start(vk_device *d, vk_slot *s, size_t room, uint32_t dispatches, uint32_t bindings) {
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

void tn_vulkan_slot_end(vk_device *d, vk_slot *s) {
    if (s->fence) tn_vk.DestroyFence(d->device, s->fence, NULL);
    if (s->sets) tn_vk.DestroyDescriptorPool(d->device, s->sets, NULL);
    if (s->commands) tn_vk.FreeCommandBuffers(d->device, d->pool, 1, &s->commands);
    block_free(d, &s->room);
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
        return tn_fail(TN_ERR_DEVICE, "%s: buffers aligned to %lld bytes, Vulkan allows 256 at most; %s",
                       d->lost_state.id, (long long)d->has.caps.alignment, TN_ADVICE_UPDATE);
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
        TRY(tn_vulkan_slot_start(d, &d->slots[i], SLOT_ROOM, SLOT_DISPATCHES, SLOT_BINDINGS));
    return TN_OK;
}

/* Also for a device that did not open all the way. */
static void vulkan_close(void *device) {
    vk_device *d = device;
    if (d->device) (void)tn_vk.DeviceWaitIdle(d->device);
    for (int i = 0; d->device && i < TN_STREAM_SLOTS; i++)
        tn_vulkan_slot_end(d, &d->slots[i]);
    if (d->pool) tn_vk.DestroyCommandPool(d->device, d->pool, NULL);
    if (d->device) block_free(d, &d->staging);
    if (d->device) tn_vk.DestroyDevice(d->device, NULL);
    tn_address_ranges_close(&d->ranges);
    tn_address_ranges_close(&d->pinned);
    tn_stream_close(&d->stream);
    tn_device_lost_close(&d->lost_state);
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
    tn_device_lost_open(&d->lost_state, "vulkan", index);
    tn_stream_open(&d->stream, &stream_calls, d, &d->lost_state);
    pthread_mutex_init(&d->staging_lock, NULL);
    tn_address_ranges_open(&d->ranges);
    tn_address_ranges_open(&d->pinned);
    return tn_hand_out_device(device_start(d), d, vulkan_close, device);
}

static tn_status vulkan_caps(void *device, tn_caps *out) {
    *out = ((vk_device *)device)->has.caps;
    return TN_OK;
}

static tn_status vulkan_memory(void *device, int64_t *total, int64_t *unused) {
    vk_device *d = device;
    tn_vulkan_memory(d->place, d->has.knows_budget, total, unused);
    if (!d->has.knows_budget) *unused = tn_memory_budget_left(&d->room, false);
    if (d->software) *unused = tn_min64(*unused, tn_host_memory_now().unused);
    return TN_OK;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static tn_status vulkan_alloc(void *device, size_t bytes, void **address) {
    vk_device *d = device;
    vk_block *b;
    TRY(alive(d));
    TRY(tn_memory_budget_take(&d->room, d->lost_state.id, bytes));
    tn_status s = block_new(d, bytes, MEMORY_LOCAL, d->unified ? HOST_READS : 0, &b);
    if (s == TN_OK) {
        tn_memory_budget_give(&d->room, (int64_t)bytes - (int64_t)b->bytes); /* it takes more than was asked for */
        bytes = b->bytes;
        s = tn_address_range_add(&d->ranges, b, bytes, address);
        if (s != TN_OK) block_drop(d, b);
    }
    if (s != TN_OK) tn_memory_budget_give(&d->room, (int64_t)bytes);
    return s;
}

static void vulkan_free(void *device, void *address) {
    vk_device *d = device;
    size_t bytes = 0;
    vk_block *b = tn_address_range_remove(&d->ranges, address, &bytes);
    if (!b) return;
    tn_stream_wait_unused(&d->stream, b->last);
    block_drop(d, b);
    tn_memory_budget_give(&d->room, (int64_t)bytes);
}

/* Records a copy between blocks. The lock is held. */
static tn_status record_copy(vk_device *d, vk_block *to, size_t to_at, vk_block *from, size_t from_at, size_t n) {
    const vk_region region = {from_at, to_at, n};
    vk_slot *s;
    TRY(tn_vulkan_record(d, 0, 0, &s));
    tn_vulkan_follow(d, s, to, from);
    tn_vk.CmdCopyBuffer(s->commands, from->buffer, to->buffer, 1, &region);
    return TN_OK;
}

enum { SMALL = SLOT_ROOM / 4, STAGING = 4 << 20 };

/* Bytes of the host that lie in the slot until they are copied: nobody waits. The lock is held. */
static tn_status write_small(vk_device *d, vk_block *to, size_t at, const void *src, size_t bytes) {
    vk_slot *s;
    TRY(tn_vulkan_record(d, bytes, 0, &s));
    memcpy(s->room.host + s->used, src, bytes);
    size_t from = s->used;
    s->used += bytes;
    TRY(record_copy(d, to, at, &s->room, from, bytes));
    s->used = (s->used + 7) / 8 * 8;
    return TN_OK;
}

/* One piece through the staging block, whose lock is held. */
static tn_status stage_piece(vk_device *d, vk_block *b, size_t at, unsigned char *host, size_t n, bool reads) {
    if (!reads) memcpy(d->staging.host, host, n);
    pthread_mutex_lock(&d->stream.lock);
    tn_status s = reads ? record_copy(d, &d->staging, 0, b, at, n) : record_copy(d, b, at, &d->staging, 0, n);
    if (s == TN_OK) s = tn_stream_finish(&d->stream);
    pthread_mutex_unlock(&d->stream.lock);
    if (s == TN_OK && reads) memcpy(host, d->staging.host, n);
    return s;
}

static tn_status stage(vk_device *d, vk_block *b, size_t at, void *host, size_t bytes, bool reads) {
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
static tn_status write_to(vk_device *d, vk_block *to, size_t at, const void *src, size_t bytes) {
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

static tn_status read_from(vk_device *d, vk_block *from, size_t at, void *dst, size_t bytes) {
    if (!from->host) return stage(d, from, at, dst, bytes, true);
    TRY(vulkan_sync(d));
    memcpy(dst, from->host + at, bytes);
    return TN_OK;
}

/* Between the device's memory and memory of it or of the host that a block holds; *done: there is such a block. */
static tn_status copy_blocks(vk_device *d, void *dst, const void *src, size_t bytes, int kind, bool *done) {
    size_t at = 0, from_at = 0;
    vk_block *to = NULL, *from = NULL;
    TRY(tn_vulkan_locate(d, kind == 1 ? src : dst, bytes, "copying", kind == 1 ? &from : &to,
                         kind == 1 ? &from_at : &at));
    if (kind == 0) from = tn_address_range_find(&d->pinned, src, bytes, &from_at);
    if (kind == 1) to = tn_address_range_find(&d->pinned, dst, bytes, &at);
    if (kind == 2) TRY(tn_vulkan_locate(d, src, bytes, "copying", &from, &from_at));
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
    vk_block *b;
    size_t at;
    bool done;
    TRY(alive(d));
    if (!bytes) return TN_OK;
    if (kind == 2) return copy_blocks(d, dst, src, bytes, kind, &done);
    TRY(tn_vulkan_locate(d, kind == 1 ? src : dst, bytes, "copying", &b, &at));
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
    vk_block *b;
    TRY(alive(d));
    TRY(block_new(d, bytes, HOST_SEES, MEMORY_CACHED, &b));
    *host = b->host;
    tn_status s = tn_address_range_add_host(&d->pinned, b, b->bytes, b->host);
    if (s != TN_OK) block_drop(d, b);
    return s;
}

static void vulkan_host_free(void *device, void *host) {
    vk_device *d = device;
    size_t bytes;
    vk_block *b = tn_address_range_remove(&d->pinned, host, &bytes);
    if (!b) return;
    tn_stream_wait_unused(&d->stream, b->last);
    block_drop(d, b);
}

/* Whole words by the device, the bytes before and behind them as a copy. The lock is held. */
static tn_status record_fill(vk_device *d, vk_block *b, size_t at, uint8_t value, size_t bytes) {
    const uint8_t edge[4] = {value, value, value, value};
    size_t head = (-at & 3) < bytes ? -at & 3 : bytes, words = (bytes - head) & ~(size_t)3;
    size_t tail = bytes - head - words;
    vk_slot *s;
    if (head) TRY(write_small(d, b, at, edge, head));
    if (tail) TRY(write_small(d, b, at + bytes - tail, edge, tail));
    if (!words) return TN_OK;
    TRY(tn_vulkan_record(d, 0, 0, &s));
    tn_vulkan_follow(d, s, b, b);
    tn_vk.CmdFillBuffer(s->commands, b->buffer, at + head, words, value * 0x01010101u);
    return TN_OK;
}

static tn_status vulkan_fill(void *queue, void *dst, uint8_t value, size_t bytes) {
    vk_device *d = queue;
    vk_block *b;
    size_t at;
    TRY(alive(d));
    if (!bytes) return TN_OK;
    TRY(tn_vulkan_locate(d, dst, bytes, "filling", &b, &at));
    pthread_mutex_lock(&d->stream.lock);
    tn_status s = record_fill(d, b, at, value, bytes);
    pthread_mutex_unlock(&d->stream.lock);
    return s;
}

/* What the host does not see hal copies. */
static tn_status vulkan_map(void *device, void *address, size_t bytes, bool read, void **host) {
    vk_device *d = device;
    vk_block *b;
    size_t at;
    (void)read;
    TRY(alive(d));
    TRY(tn_vulkan_locate(d, address, bytes, "mapping", &b, &at));
    if (!b->host) return tn_fail(TN_ERR_UNSUPPORTED, "%s: the host does not see it", d->lost_state.id);
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
    if (e->times) tn_stream_wait_unused(&d->stream, e->number);
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
    vk_slot *at;
    pthread_mutex_lock(&d->stream.lock);
    tn_status s = alive(d);
    if (s == TN_OK && e->times) s = tn_vulkan_record(d, 0, 0, &at);
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
    if (!e->number || !e->times)
        return tn_fail(TN_ERR_STATE, "%s: the time of an event that has none", d->lost_state.id);
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
    .load = tn_vulkan_load,
    .unload = tn_vulkan_unload,
    .copy = vulkan_copy,
    .sync = vulkan_sync,
    .memory = vulkan_memory,
    .watch = tn_vulkan_watch,
    .isolate = TN_PROBE_ISOLATE,
    .dispatch = tn_vulkan_dispatch,
    .binary = tn_vulkan_binary,
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
    .list_make = tn_vulkan_list_make,
    .list_run = tn_vulkan_list_run,
    .list_free = tn_vulkan_list_free,
};

#endif
