/* webgpu_launch.c — WebGPU: kernels (WGSL), their bind groups, and launches.
 *
 * Buffers of a launch that lie in one allocation share bindings (hal/driver.h). Kernels know nothing of it: for each
 * way in which a kernel's buffers do so the text is compiled anew, with another head (a variant). Where in its slot a
 * buffer begins is added to the kernel's bases. */
#include <stdio.h>
#include <string.h>

#include "drivers/webgpu_device.h"

#if TRUNNION_WITH_WEBGPU

/* What bindings of a pipeline are like, told by a letter each: w(ritten), r(ead), p(arameters). */
typedef struct wg_layout {
    struct wg_layout *next;
    void *layout, *pipeline_layout;
    char kinds[SLOTS + 1];
} wg_layout;

typedef struct wg_variant {
    struct wg_variant *next;
    wg_layout *layout;
    void *shader, *pipeline; /* the pipeline is made of the shader when it is first launched */
    tn_sharing sharing;
} wg_variant;

typedef struct wg_module {
    char *body; /* the text without its head */
    char name[48];
    int buffer_count;
    uint8_t uses[KIR_MAX_BUFFERS];
    size_t params_bytes, bases_at;
    wg_variant *variants; /* the latest first */
    int variant_count;
} wg_module;

/* A layout with memory in its bindings. */
typedef struct wg_group {
    void *group;
    const wg_layout *layout;
    size_t count;
    struct {
        uint64_t number, from, bytes;
    } at[SLOTS]; /* … of the memory, and what of it */
} wg_group;

enum { NEW_LAYOUTS = 28 }; /* from this version on a layout's entry has the size of its array */

/* ---- layouts ----------------------------------------------------------------------------------------------------- */

/* The same entries in the form of either version. */
static tn_status layout_start(wg_device *d, wg_layout *l) {
    wgpu_layout_entry old[SLOTS] = {{0}};
    wgpu_layout_entry_28 new[SLOTS] = {{0}};
    size_t n = strlen(l->kinds);
    for (size_t i = 0; i < n; i++) {
        bool params = l->kinds[i] == 'p';
        const wgpu_buffer_layout buffer = {.type = params               ? BINDING_UNIFORM
                                                   : l->kinds[i] == 'w' ? BINDING_STORAGE
                                                                        : BINDING_READ_ONLY,
                                           .has_dynamic_offset = params};
        old[i] = (wgpu_layout_entry){.binding = (uint32_t)i, .visibility = STAGE_COMPUTE, .buffer = buffer};
        new[i] = (wgpu_layout_entry_28){.binding = (uint32_t)i, .visibility = STAGE_COMPUTE, .buffer = buffer};
    }
    const wgpu_bind_group_layout_descriptor group = {
        .count = n, .entries = tn_wg_major_version() < NEW_LAYOUTS ? (const void *)old : (const void *)new};
    tn_wg_scopes_open(d);
    l->layout = tn_wg_gpu.DeviceCreateBindGroupLayout(d->device, &group);
    TRY(tn_wg_scopes_close(d, l->layout, "wgpuDeviceCreateBindGroupLayout", "%s", l->kinds));
    const wgpu_pipeline_layout_descriptor pipeline = {.count = 1, .layouts = &l->layout};
    tn_wg_scopes_open(d);
    l->pipeline_layout = tn_wg_gpu.DeviceCreatePipelineLayout(d->device, &pipeline);
    return tn_wg_scopes_close(d, l->pipeline_layout, "wgpuDeviceCreatePipelineLayout", "%s", l->kinds);
}

static void layout_free(TN_UNUSED void *device, void *made) {
    wg_layout *l = made;
    if (l->pipeline_layout) tn_wg_gpu.PipelineLayoutRelease(l->pipeline_layout);
    if (l->layout) tn_wg_gpu.BindGroupLayoutRelease(l->layout);
    tn_mem_free(l);
}

/* The device's layout with these letters; it stays until the device is closed. */
static tn_status layout_for(wg_device *d, const char *kinds, wg_layout **out) {
    for (*out = d->layouts; *out; *out = (*out)->next)
        if (!strcmp((*out)->kinds, kinds)) return TN_OK;
    wg_layout *l = tn_mem_zalloc(1, sizeof *l);
    if (!l) return TN_ERR_MEMORY;
    snprintf(l->kinds, sizeof l->kinds, "%s", kinds);
    void *made;
    TRY(tn_hand_out(layout_start(d, l), l, layout_free, d, &made));
    l->next = d->layouts;
    d->layouts = *out = l;
    return TN_OK;
}

/* Whatever is wrong with the text, the compiler's words say it. */
static tn_status compile_webgpu(wg_device *d, const wg_module *m, const char *text, size_t size, void **shader) {
    const wgpu_wgsl source = {.type = CHAIN_WGSL, .code = {text, size}};
    const wgpu_labelled descriptor = {.next = &source};
    tn_wg_scopes_open(d);
    *shader = tn_wg_gpu.DeviceCreateShaderModule(d->device, &descriptor);
    tn_status s = tn_wg_scopes_close(d, *shader, "wgpuDeviceCreateShaderModule", "%s, %zu bytes", m->name, size);
    if (s == TN_OK) return TN_OK;
    if (*shader) tn_wg_gpu.ShaderModuleRelease(*shader);
    *shader = NULL;
    return s == TN_ERR_DEVICE ? tn_fail_prefix(TN_ERR_UNSUPPORTED, "%s: compiling failed", m->name) : s;
}

static void variant_free(TN_UNUSED void *device, void *made) {
    wg_variant *v = made;
    if (v->pipeline) tn_wg_gpu.ComputePipelineRelease(v->pipeline);
    if (v->shader) tn_wg_gpu.ShaderModuleRelease(v->shader);
    tn_mem_free(v);
}

static tn_status variant_start(wg_device *d, const wg_module *m, wg_variant *v) {
    char kinds[SLOTS + 1];
    tn_str text = {0};
    const kir_wgsl_head head = {.buffers = m->buffer_count,
                                .slots = v->sharing.slots,
                                .uses = m->uses,
                                .slot_of = v->sharing.slot_of,
                                .windows = v->sharing.windows,
                                .twin = v->sharing.twin,
                                .window_words = (uint32_t)(d->bind.window / WORD),
                                .params_bytes = m->params_bytes};
    kir_wgsl_put_head(&text, &head, kinds);
    tn_str_add(&text, "%s", m->body);
    tn_status s = text.failed ? TN_ERR_MEMORY : layout_for(d, kinds, &v->layout);
    if (s == TN_OK) s = compile_webgpu(d, m, tn_str_text(&text), text.length, &v->shader);
    tn_str_free(&text);
    return s;
}

/* The one that is used the longest time ago goes when there are too many. */
static void variants_trim(wg_device *d, wg_module *m) {
    if (m->variant_count <= MOST_VARIANTS) return;
    wg_variant **link = &m->variants;
    while ((*link)->next)
        link = &(*link)->next;
    if (d->set == *link) d->set = NULL;
    variant_free(d, *link);
    *link = NULL;
    m->variant_count--;
}

/* The variant for buffers that share slots like this. */
static tn_status variant_for(wg_device *d, wg_module *m, const tn_sharing *sharing, wg_variant **out) {
    for (wg_variant **link = &m->variants, *v; (v = *link); link = &v->next) {
        if (memcmp(&v->sharing, sharing, sizeof *sharing)) continue;
        *link = v->next; /* to the front */
        v->next = m->variants;
        m->variants = *out = v;
        return TN_OK;
    }
    wg_variant *v = tn_mem_zalloc(1, sizeof *v);
    if (!v) return TN_ERR_MEMORY;
    v->sharing = *sharing;
    void *made;
    TRY(tn_hand_out(variant_start(d, m, v), v, variant_free, d, &made));
    v->next = m->variants;
    m->variants = *out = v;
    m->variant_count++;
    variants_trim(d, m);
    return TN_OK;
}

static tn_status pipeline_need(wg_device *d, const wg_module *m, wg_variant *v) {
    if (v->pipeline) return TN_OK;
    const wgpu_pipeline_descriptor descriptor = {
        .layout = v->layout->pipeline_layout, .module = v->shader, .entry = {m->name, strlen(m->name)}};
    tn_wg_scopes_open(d);
    void *pipeline = tn_wg_gpu.DeviceCreateComputePipeline(d->device, &descriptor);
    tn_status s = tn_wg_scopes_close(d, pipeline, "wgpuDeviceCreateComputePipeline", "%s", m->name);
    if (s != TN_OK && pipeline) tn_wg_gpu.ComputePipelineRelease(pipeline);
    if (s != TN_OK) return s == TN_ERR_DEVICE ? tn_fail_prefix(TN_ERR_UNSUPPORTED, "%s: compiling failed", m->name) : s;
    v->pipeline = pipeline;
    tn_wg_gpu.ShaderModuleRelease(v->shader);
    v->shader = NULL;
    return TN_OK;
}

void tn_wg_module_free(void *device, void *module) {
    wg_device *d = device;
    wg_module *m = module;
    d->set = NULL;
    for (wg_variant *v = m->variants, *next; v; v = next) {
        next = v->next;
        variant_free(d, v);
    }
    tn_mem_free_each(m->body, m);
}

/* What the library would refuse only when a pipeline is made, or a launch encoded. */
static tn_status check_limits(const wg_device *d, const tn_code *code) {
    const wgpu_limits *l = &d->limits;
    const uint64_t params = l->uniform_binding < PARAMS_BYTES ? l->uniform_binding : PARAMS_BYTES;
    const tn_code_limits most = {.group = {l->group_x, l->group_y, l->group_z},
                                 .group_items = l->group_items,
                                 .buffers = (uint32_t)d->bind.most,
                                 .local_bytes = l->group_storage,
                                 .params_bytes = (size_t)params};
    return tn_code_check(d->lost_state.id, code, &most);
}

static tn_status module_start(wg_device *d, const tn_code *code, wg_module *m) {
    wg_variant *v;
    TRY(check_limits(d, code));
    snprintf(m->name, sizeof m->name, "%s", code->entry);
    m->buffer_count = code->buffer_count;
    m->params_bytes = code->params_bytes;
    m->bases_at = code->bases_at;
    kir_wgsl_uses(m->buffer_count, code->written, code->elements, m->uses);
    tn_sharing apart = tn_sharing_apart(m->buffer_count);
    size_t size = code->size - code->head_size;
    m->body = tn_mem_zalloc(size + 1, 1);
    if (!m->body) return TN_ERR_MEMORY;
    memcpy(m->body, (const char *)code->data + code->head_size, size);
    TRY(variant_for(d, m, &apart, &v));
    return kir_wgsl_has_entry(m->body, m->name)
               ? TN_OK
               : tn_fail(TN_ERR_UNSUPPORTED, "%s: %s lacks this function", d->lost_state.id, m->name);
}

tn_status tn_wg_module_new(wg_device *d, const tn_code *code, void **out) {
    wg_module *m = tn_mem_zalloc(1, sizeof *m);
    return m ? tn_hand_out(module_start(d, code, m), m, tn_wg_module_free, d, out) : TN_ERR_MEMORY;
}

/* ---- bind groups ------------------------------------------------------------------------------------------------- */

static void group_free(TN_UNUSED void *device, void *made) {
    wg_group *g = made;
    if (!g) return;
    if (g->group) tn_wg_gpu.BindGroupRelease(g->group);
    tn_mem_free(g);
}

void tn_wg_groups_forget(wg_device *d, const wg_memory *m) {
    for (int i = 0; i < GROUPS; i++) {
        wg_group *g = d->groups[i];
        bool has = false;
        for (size_t k = 0; g && k < g->count; k++)
            has |= g->at[k].number == m->number;
        if (!has) continue;
        group_free(d, g);
        d->groups[i] = NULL;
    }
}

static tn_status group_start(wg_device *d, wg_group *g, const tn_bind_entry *bindings) {
    wgpu_bind_group_entry entries[SLOTS] = {{0}};
    for (size_t i = 0; i < g->count; i++)
        entries[i] = (wgpu_bind_group_entry){.binding = (uint32_t)i,
                                             .buffer = ((const wg_memory *)bindings[i].memory)->buffer,
                                             .offset = bindings[i].from,
                                             .size = bindings[i].bytes};
    const wgpu_bind_group_descriptor descriptor = {.layout = g->layout->layout, .count = g->count, .entries = entries};
    tn_wg_scopes_open(d);
    g->group = tn_wg_gpu.DeviceCreateBindGroup(d->device, &descriptor);
    return tn_wg_scopes_close(d, g->group, "wgpuDeviceCreateBindGroup", "%zu bindings", g->count);
}

/* The bind group of this layout and memory, one of those kept or new in the place of an older one. */
static tn_status group_for(wg_device *d, const wg_layout *layout, const tn_bind_entry *bindings, void **out) {
    wg_group key = {.layout = layout, .count = strlen(layout->kinds)};
    for (size_t i = 0; i < key.count; i++) {
        key.at[i].number = ((const wg_memory *)bindings[i].memory)->number;
        key.at[i].from = bindings[i].from;
        key.at[i].bytes = bindings[i].bytes;
    }
    size_t used = key.count * sizeof key.at[0];
    uint64_t hash = tn_hash64(key.at, used, (uintptr_t)layout);
    wg_group **place = &d->groups[hash % GROUPS], *g = *place;
    if (!g || g->layout != layout || memcmp(g->at, key.at, used)) {
        wg_group *made = tn_mem_zalloc(1, sizeof *made);
        if (!made) return TN_ERR_MEMORY;
        *made = key;
        void *whole;
        TRY(tn_hand_out(group_start(d, made, bindings), made, group_free, d, &whole));
        group_free(d, g);
        *place = g = made;
    }
    *out = g->group;
    return TN_OK;
}

/* ---- launches ---------------------------------------------------------------------------------------------------- */

static tn_status choose_bindings(wg_device *d, const wg_module *m, const tn_dispatch *l, tn_bindings *b) {
    for (int i = 0; i < m->buffer_count; i++) {
        const void *address = l->buffers[i] ? l->buffers[i] : d->scratch; /* NULL: it is not touched */
        wg_memory *memory;
        size_t at;
        TRY(tn_wg_locate(d, address, 0, m->name, &memory, &at));
        b->buffers[i] = (tn_bound){memory, memory->bytes, at};
    }
    tn_bindings_choose(b, m->buffer_count, &d->bind);
    return TN_OK;
}

/* The parameters go behind those of the launches before; bases with what the bindings do not tell. */
static void put_params(wg_device *d, const wg_module *m, const tn_dispatch *dispatch, const tn_bindings *l) {
    char *params = d->params_host + d->params_used;
    memcpy(params, dispatch->params, m->params_bytes);
    uint64_t *bases = (uint64_t *)(params + m->bases_at);
    for (int i = 0; i < m->buffer_count; i++)
        bases[i] += l->buffers[i].at - l->from[l->sharing.slot_of[i]];
    d->params_used += (m->params_bytes + d->step - 1) / d->step * d->step;
}

tn_status tn_wg_encode(wg_device *d, void *module, const tn_dispatch *l) {
    wg_module *m = module;
    tn_bindings what = {.from = {0}};
    tn_bind_entry bindings[SLOTS];
    wg_variant *v;
    void *group;
    if (!l->groups[0] || !l->groups[1] || !l->groups[2]) return TN_OK;
    TRY(tn_groups_check(d->lost_state.id, m->name, l, d->limits.groups));
    TRY(choose_bindings(d, m, l, &what));
    int n = tn_bindings_list(&what, &d->bind, bindings);
    bindings[n] = (tn_bind_entry){&d->params, 0, (m->params_bytes + 15) / 16 * 16};
    TRY(variant_for(d, m, &what.sharing, &v));
    TRY(pipeline_need(d, m, v));
    TRY(group_for(d, v->layout, bindings, &group));
    if (d->params_used + m->params_bytes > PARAMS_BYTES || d->encoded == BATCH) TRY(tn_wg_flush(d));
    TRY(tn_wg_pass_begin(d));
    uint32_t offset = (uint32_t)d->params_used;
    if (m->params_bytes) put_params(d, m, l, &what);
    if (d->set != v) tn_wg_gpu.ComputePassEncoderSetPipeline(d->pass, v->pipeline);
    d->set = v;
    tn_wg_gpu.ComputePassEncoderSetBindGroup(d->pass, 0, group, m->params_bytes > 0, &offset);
    tn_wg_gpu.ComputePassEncoderDispatchWorkgroups(d->pass, l->groups[0], l->groups[1], l->groups[2]);
    d->encoded++;
    return TN_OK;
}

void tn_wg_launches_close(wg_device *d) {
    for (int i = 0; i < GROUPS; i++)
        group_free(d, d->groups[i]);
    for (wg_layout *l = d->layouts, *next; l; l = next) {
        next = l->next;
        layout_free(d, l);
    }
}

#endif
