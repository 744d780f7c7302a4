/* vulkan_launch.c — Vulkan: kernels (SPIR-V), their launches, and command lists.
 *
 * A kernel is bound to complete allocations, as far as a binding reaches (or to consecutive windows, if it was made for
 * these), and finds its buffers by the bases among its parameters, which are in host memory of the slot or of the list.
 * A list that is run again has its own command buffers: they are submitted after the contents of the stream's slot, and
 * are recorded again only if other memory is bound. */
#include <stdio.h>
#include <string.h>

#include "drivers/vulkan_device.h"
#include "hal/driver.h"

#if TRUNNION_WITH_VULKAN

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

typedef struct vk_module {
    uint64_t set_layout, layout, cache, pipeline;
    uint64_t last; /* number of the last submission that runs it; the stream's lock guards it */
    char name[48];
    int buffer_count, binding_count;   /* a buffer may have several */
    uint8_t windows[VK_MOST_BINDINGS]; /* of a buffer */
    uint64_t window_bytes;
    size_t params_bytes, bases_at;
    size_t room; /* of the parameters, rounded up to the alignment of the next ones */
    void *binary;
} vk_module;

void tn_vulkan_unload(void *device, void *module) {
    vk_device *d = device;
    vk_module *m = module;
    tn_stream_wait_unused(&d->stream, m->last);
    if (m->pipeline) tn_vk.DestroyPipeline(d->device, m->pipeline, NULL);
    if (m->cache) tn_vk.DestroyPipelineCache(d->device, m->cache, NULL);
    if (m->layout) tn_vk.DestroyPipelineLayout(d->device, m->layout, NULL);
    if (m->set_layout) tn_vk.DestroyDescriptorSetLayout(d->device, m->set_layout, NULL);
    tn_mem_free_each(m->binary, m);
}

/* The buffers, followed by the parameters, a storage buffer whose dynamic offset is set at each launch. */
static tn_status make_layout(vk_device *d, vk_module *m) {
    vk_binding bindings[VK_MOST_BINDINGS] = {{0}};
    uint32_t n = (uint32_t)m->binding_count;
    for (uint32_t i = 0; i <= n; i++)
        bindings[i] = (vk_binding){i, i < n ? STORAGE : STORAGE_MOVING, 1, SHADER_COMPUTE, NULL};
    const vk_set_layout_info set = {.kind = KIND_SET_LAYOUT, .count = n + 1, .bindings = bindings};
    TRY(check(d, tn_vk.CreateDescriptorSetLayout(d->device, &set, NULL, &m->set_layout), "vkCreateDescriptorSetLayout",
              "%s, %u bindings", m->name, n + 1));
    const vk_pipeline_layout_info info = {.kind = KIND_PIPELINE_LAYOUT, .count = 1, .sets = &m->set_layout};
    return check(d, tn_vk.CreatePipelineLayout(d->device, &info, NULL, &m->layout), "vkCreatePipelineLayout", "%s",
                 m->name);
}

/* Code that the compiler refuses can be computed elsewhere; out-of-memory and device lost are passed on. */
static tn_status refused(tn_status s) {
    return s == TN_OK || s == TN_ERR_MEMORY || s == TN_ERR_LOST ? s : tn_fail_prefix(TN_ERR_UNSUPPORTED, "refused");
}

static tn_status make_pipeline(vk_device *d, const tn_code *code, vk_module *m) {
    const vk_data_info words = {.kind = KIND_SHADER, .size = code->size, .data = code->data};
    vk_data_info kept = {.kind = KIND_PIPELINE_CACHE, .size = code->binary_size, .data = code->binary};
    const vk_size size = {.kind = KIND_SIZE, .size = (uint32_t)code->subgroup};
    vk_pipeline_info info = {.kind = KIND_PIPELINE,
                             .stage = {.kind = KIND_STAGE, .stage = SHADER_COMPUTE, .entry = code->entry},
                             .layout = m->layout};
    if (code->subgroup) {
        info.stage.next = &size;
        info.stage.flags = WHOLE_SUBGROUPS;
    }
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
    TRY(tn_code_check(d->lost_state.id, code, &most));
    if (code->size >= 20) memcpy(&first, code->data, sizeof first);
    if (first == 0x07230203 && code->size % 4 == 0) return TN_OK;
    return tn_fail(TN_ERR_UNSUPPORTED, "%s: %s: %zu bytes that begin with %08x are not SPIR-V", d->lost_state.id,
                   code->entry, code->size, first);
}

static tn_status count_bindings(const vk_device *d, const tn_code *code, vk_module *m) {
    m->buffer_count = code->buffer_count;
    m->window_bytes = (uint64_t)code->window_bytes;
    for (int i = 0; i < m->buffer_count; i++) {
        m->windows[i] = code->windows ? code->windows[i] : 1;
        m->binding_count += m->windows[i];
    }
    if (m->binding_count < VK_MOST_BINDINGS) return TN_OK;
    return tn_fail(TN_ERR_UNSUPPORTED, "%s: %s has %d bindings; the maximum is %d", d->lost_state.id, m->name,
                   m->binding_count, VK_MOST_BINDINGS - 1);
}

tn_status tn_vulkan_load(void *device, const tn_code *code, void **module) {
    vk_device *d = device;
    TRY(alive(d));
    TRY(check_code(d, code));
    vk_module *m = tn_mem_zalloc(1, sizeof *m);
    if (!m) return TN_ERR_MEMORY;
    snprintf(m->name, sizeof m->name, "%s", code->entry);
    size_t step = (size_t)d->has.caps.alignment;
    m->params_bytes = code->params_bytes;
    m->room = (code->params_bytes + step - 1) / step * step;
    m->bases_at = code->bases_at;
    tn_status s = count_bindings(d, code, m);
    if (s == TN_OK) s = make_layout(d, m);
    if (s == TN_OK) s = make_pipeline(d, code, m);
    return tn_hand_out(s, m, tn_vulkan_unload, d, module);
}

enum { CACHE_HEADER = 32 }; /* bytes that say whose cache it is */

tn_status tn_vulkan_binary(void *device, void *module, void **data, size_t *size) {
    vk_device *d = device;
    vk_module *m = module;
    TRY(alive(d));
    TRY(check(d, tn_vk.GetPipelineCacheData(d->device, m->cache, size, NULL), "vkGetPipelineCacheData", "%s", m->name));
    if (*size <= CACHE_HEADER)
        return tn_fail(TN_ERR_UNSUPPORTED, "%s: the driver does not return pipeline binaries", d->lost_state.id);
    tn_mem_free(m->binary);
    *data = m->binary = tn_mem_alloc(*size);
    if (!m->binary) return TN_ERR_MEMORY;
    return check(d, tn_vk.GetPipelineCacheData(d->device, m->cache, size, m->binary), "vkGetPipelineCacheData",
                 "%s, %zu bytes", m->name, *size);
}

/* ---- launches: the lock is held ---------------------------------------------------------------------------------- */

enum { FLUSH_EVERY = 32 }; /* dispatches that are held back */

/* A bound buffer, and the serial number of its block. */
typedef struct place {
    vk_range range;
    uint64_t serial;
} place;

/* Bindings of a launch: each buffer's allocation, or as much of it from the launch's address on as a binding reaches,
 * or its windows from there on; the remaining offset is added to its base. */
static tn_status bind_buffers(vk_device *d, const vk_module *m, const tn_dispatch *l, uint64_t *params, place *places) {
    uint64_t *bases = params + m->bases_at / sizeof *bases, most = d->has.properties.limits.storage_range;
    uint64_t step = (uint64_t)d->has.caps.alignment;
    for (int i = 0; i < m->buffer_count; i++) {
        vk_block *b;
        size_t at;
        bool apart = m->windows[i] > 1;
        TRY(tn_vulkan_locate(d, l->buffers[i], 0, m->name, &b, &at));
        uint64_t from = b->bytes <= most && !apart ? 0 : at / step * step, each = apart ? m->window_bytes : most;
        if (from == b->bytes) from -= step; /* behind the last byte nothing is touched */
        bases[i] += at - from;
        for (int k = 0; k < m->windows[i]; k++) {
            uint64_t size = b->bytes - from;
            *places++ = (place){{b->buffer, from, size < each ? size : each}, b->serial};
            if (size > each) from += each;
        }
        b->last = d->stream.submitted + 1;
    }
    return TN_OK;
}

/* Puts a launch's parameters at their place in the room of `s`, and finds what it binds. */
static tn_status prepare_dispatch(vk_device *d, vk_module *m, const tn_dispatch *l, const vk_slot *s, size_t at,
                                  place *places) {
    memcpy(s->room.host + at, l->params, m->params_bytes);
    TRY(bind_buffers(d, m, l, (uint64_t *)(void *)(s->room.host + at), places));
    places[m->binding_count] = (place){{s->room.buffer, 0, m->params_bytes}, s->room.serial};
    m->last = d->stream.submitted + 1;
    return TN_OK;
}

/* Makes a set of the places. */
static tn_status make_set(vk_device *d, const vk_module *m, const vk_slot *s, const place *places, uint64_t *set) {
    vk_write writes[VK_MOST_BINDINGS];
    const vk_set_info info = {.kind = KIND_SET, .pool = s->sets, .count = 1, .layouts = &m->set_layout};
    uint32_t n = (uint32_t)m->binding_count;
    TRY(check(d, tn_vk.AllocateDescriptorSets(d->device, &info, set), "vkAllocateDescriptorSets", "%s, %u bindings",
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

static void record_dispatch(const vk_module *m, const vk_slot *s, const uint32_t groups[3], uint64_t set, size_t at) {
    uint32_t moved = (uint32_t)at;
    tn_vk.CmdBindPipeline(s->commands, BIND_COMPUTE, m->pipeline);
    tn_vk.CmdBindDescriptorSets(s->commands, BIND_COMPUTE, m->layout, 0, 1, &set, 1, &moved);
    tn_vk.CmdDispatch(s->commands, groups[0], groups[1], groups[2]);
}

static tn_status dispatch_one(vk_device *d, vk_module *m, const tn_dispatch *l, bool first) {
    place places[VK_MOST_BINDINGS];
    uint64_t set = 0;
    vk_slot *s;
    size_t step = (size_t)d->has.caps.alignment;
    if (!tn_dispatch_has_work(l)) return TN_OK;
    TRY(tn_vulkan_record(d, m->room + step, m->binding_count, &s));
    size_t at = (s->used + step - 1) / step * step;
    TRY(prepare_dispatch(d, m, l, s, at, places));
    TRY(make_set(d, m, s, places, &set));
    s->used = at + m->room;
    s->dispatches++;
    s->bindings += m->binding_count;
    if (first) tn_vulkan_follow(d, s, &s->room, &s->room);
    record_dispatch(m, s, l->groups, set, at);
    d->written = true;
    return TN_OK;
}

tn_status tn_vulkan_dispatch(void *queue, void *module, const tn_dispatch *dispatches, int64_t count) {
    vk_device *d = queue;
    AUTO_LOCK(&d->stream.lock);
    TRY(alive(d));
    for (int64_t i = 0; i < count; i++)
        TRY(dispatch_one(d, module, &dispatches[i], i == 0));
    const vk_slot *at = &d->slots[tn_stream_slot(d->stream.submitted + 1)];
    return d->stream.recording && at->dispatches >= FLUSH_EVERY ? tn_vulkan_submit_with(d, NULL) : TN_OK;
}

/* ---- lists that are recorded once -------------------------------------------------------------------------------- */

/* While memory does not move, a run only writes its parameters and submits the recorded commands. Two or more copies
 * alternate: one is prepared while another is executing. */
typedef struct vk_copy {
    vk_slot slot;
    uint64_t number; /* of its last submission; 0: none */
    bool recorded;   /* … and places: what is bound by it */
    place *places;
} vk_copy;

enum { COPIES = 2, MOST_LIST_ROOM = 16 << 20 };
typedef struct vk_list {
    vk_copy copies[COPIES];
    unsigned turn;
    size_t place_count;
    place *places; /* of the run being prepared; followed by those of the copies */
} vk_list;

void tn_vulkan_list_free(void *device, void *list) {
    vk_device *d = device;
    vk_list *l = list;
    for (int i = 0; i < COPIES; i++)
        tn_stream_wait_unused(&d->stream, l->copies[i].number);
    pthread_mutex_lock(&d->stream.lock);
    for (int i = 0; i < COPIES; i++)
        tn_vulkan_slot_end(d, &l->copies[i].slot);
    pthread_mutex_unlock(&d->stream.lock);
    tn_mem_free_each(l->places, l);
}

static tn_status list_start(vk_device *d, vk_list *l, size_t room, int64_t count) {
    l->places = tn_mem_zalloc((COPIES + 1) * l->place_count, sizeof *l->places);
    if (!l->places) return TN_ERR_MEMORY;
    for (int i = 0; i < COPIES; i++)
        l->copies[i].places = l->places + (size_t)(i + 1) * l->place_count;
    TRY(alive(d));
    AUTO_LOCK(&d->stream.lock);
    for (int i = 0; i < COPIES; i++)
        TRY(tn_vulkan_slot_start(d, &l->copies[i].slot, room, (uint32_t)count, (uint32_t)l->place_count));
    return TN_OK;
}

tn_status tn_vulkan_list_make(void *device, const tn_list_item *items, int64_t count, void **list) {
    vk_device *d = device;
    size_t room = 0, places = 0;
    for (int64_t i = 0; i < count; i++) {
        const vk_module *m = items[i].module;
        room += m->room;
        places += (size_t)m->binding_count + 1;
    }
    if (room > MOST_LIST_ROOM)
        return tn_fail(TN_ERR_UNSUPPORTED, "%s: a launch list with %zu bytes of parameters is too large",
                       d->lost_state.id, room);
    vk_list *l = tn_mem_zalloc(1, sizeof *l);
    if (!l) return TN_ERR_MEMORY;
    l->place_count = places;
    return tn_hand_out(list_start(d, l, room, count), l, tn_vulkan_list_free, d, list);
}

/* Records all launches of the run that is made ready. */
static tn_status record_copy_of(vk_device *d, vk_copy *c, const tn_list_item *items, int64_t count,
                                const place *places) {
    size_t at = 0;
    TRY(tn_vulkan_commands_begin(d, &c->slot, 0));
    for (int64_t i = 0; i < count; i++) {
        const vk_module *m = items[i].module;
        uint64_t set = 0;
        if (tn_dispatch_has_work(&items[i].dispatch)) {
            TRY(make_set(d, m, &c->slot, places, &set));
            tn_vulkan_barrier(d, c->slot.commands, STAGE_COMPUTE, SHADER_READ | SHADER_WRITE);
            record_dispatch(m, &c->slot, items[i].dispatch.groups, set, at);
        }
        at += m->room;
        places += m->binding_count + 1;
    }
    tn_vulkan_barrier(d, c->slot.commands, STAGE_HOST, HOST_READ | HOST_WRITE);
    return check(d, tn_vk.EndCommandBuffer(c->slot.commands), "vkEndCommandBuffer", "%lld launches", (long long)count);
}

/* Parameters and places of this run. */
static tn_status prepare_copy(vk_device *d, const vk_list *l, const vk_copy *c, const tn_list_item *items,
                              int64_t count) {
    place *places = l->places;
    size_t at = 0;
    for (int64_t i = 0; i < count; i++) {
        vk_module *m = items[i].module;
        if (tn_dispatch_has_work(&items[i].dispatch))
            TRY(prepare_dispatch(d, m, &items[i].dispatch, &c->slot, at, places));
        at += m->room;
        places += m->binding_count + 1;
    }
    return TN_OK;
}

tn_status tn_vulkan_list_run(void *queue, void *list, const tn_list_item *items, int64_t count) {
    vk_device *d = queue;
    vk_list *l = list;
    AUTO_LOCK(&d->stream.lock);
    vk_copy *c = &l->copies[l->turn++ % COPIES];
    size_t bytes = l->place_count * sizeof *l->places;
    vk_slot *s;
    TRY(tn_stream_await(&d->stream, c->number));
    TRY(tn_vulkan_record(d, 0, 0, &s));
    TRY(prepare_copy(d, l, c, items, count));
    if (!c->recorded || memcmp(c->places, l->places, bytes) != 0) {
        c->recorded = false;
        TRY(record_copy_of(d, c, items, count, l->places));
        memcpy(c->places, l->places, bytes);
        c->recorded = true;
    }
    TRY(tn_vulkan_submit_with(d, c->slot.commands));
    c->number = d->stream.submitted;
    return TN_OK;
}

#endif
