/* onnx_run.c — opening a model, running its nodes, replaying it as a captured graph. */
#include <pthread.h>
#include <string.h>

#include "onnx/model.h"
#include "tensor/graph.h"
#include "trunnion/autograd.h"
#include "trunnion/ops.h"

static tn_status run_or_replay(tn_onnx *m, onnx_value **in, onnx_value **out);
static void replays_free(tn_onnx *m);

/* ==== open ======================================================================================================== */

/* ---- models ------------------------------------------------------------------------------------------------------ */

void tn_onnx_close(tn_onnx *m) {
    if (!m) return;
    onnx_engine_close(m);
    replays_free(m);
    onnx_prepared_free(m);
    for (size_t i = 0; i < m->value_count; i++)
        onnx_value_release(m->values[i]);
    tn_mem_free(m->values);
    onnx_arena_free(&m->arena);
    tn_mem_free((char *)(uintptr_t)m->source.folder);
    onnx_source_close(&m->source);
    tn_mem_free(m->copy);
    pthread_mutex_destroy(&m->lock);
    tn_mem_free(m);
}

static tn_onnx *model_new(void) {
    tn_onnx *m = tn_mem_zalloc(1, sizeof *m);
    if (m) pthread_mutex_init(&m->lock, NULL);
    return m;
}

static tn_status set_folder(tn_onnx *m, const char *path, const tn_onnx_options *o) {
    tn_str folder = {0};
    const char *slash = path ? strrchr(path, '/') : NULL;
    if (o->folder)
        tn_str_add(&folder, "%s", o->folder);
    else if (slash)
        tn_str_addn(&folder, path, slash == path ? 1 : (size_t)(slash - path));
    else if (path)
        tn_str_add(&folder, ".");
    m->source.folder = folder.text;
    return folder.failed ? TN_ERR_MEMORY : TN_OK;
}

static tn_status read_options_model(const tn_onnx_options *given, tn_onnx_options *o) {
    *o = (tn_onnx_options)TN_ONNX_DEFAULTS;
    TRY(tn_options_read(o, given, "tn_onnx_open", "tn_onnx_options o = TN_ONNX_DEFAULTS"));
    if (o->report) *o->report = NULL;
    return TN_OK;
}

/* PyTorch's programs are zip archives. LibTorch's stable C interface does not load them, so no device can run one. */
static tn_status refuse_archive(onnx_text message) {
    static const char ZIP[] = "PK\3\4";
    if (message.size < sizeof ZIP - 1 || memcmp(message.at, ZIP, sizeof ZIP - 1) != 0) return TN_OK;
    return tn_fail(
        TN_ERR_UNSUPPORTED,
        "a zip archive, as PyTorch writes for TorchScript (.pt), torch.export (.pt2) and checkpoints, not an "
        "ONNX model; export it in Python: torch.onnx.export(model, inputs, \"model.onnx\")");
}

/* Reads what m->source.file, or a copy, holds; m is handed out or freed. */
static tn_status finish_model(tn_onnx *m, onnx_text message, const char *path, const tn_onnx_options *o,
                              tn_onnx **out) {
    tn_status status = set_folder(m, path, o);
    if (status == TN_OK) status = refuse_archive(message);
    if (status == TN_OK) status = onnx_model_read(m, message, o->given);
    m->is_inert = o->weights_only;
    if (status == TN_OK) status = onnx_model_list_weights(m);
    if (status == TN_OK && !m->is_inert)
        status = onnx_engine_is_current() && !o->recorded && !m->is_given ? onnx_engine_open(m, message, path)
                                                                          : onnx_model_resolve(m, o->report);
    if (status == TN_OK) {
        *out = m;
        return TN_OK;
    }
    tn_onnx_close(m);
    return path ? tn_fail_prefix(status, "'%s'", path) : status;
}

tn_status tn_onnx_open(const char *path, const tn_onnx_options *options, tn_onnx **out) {
    TRY(tn_need(out, "tn_onnx_open: out"));
    *out = NULL;
    TRY(tn_need(path, "tn_onnx_open: the path"));
    tn_onnx_options o;
    TRY(read_options_model(options, &o));
    tn_onnx *m = model_new();
    if (!m) return TN_ERR_MEMORY;
    tn_status status = onnx_file_open(path, &m->source.file);
    if (status != TN_OK) {
        tn_onnx_close(m);
        return status;
    }
    onnx_text message = {(const char *)m->source.file->bytes, m->source.file->size};
    return finish_model(m, message, path, &o, out);
}

tn_status tn_onnx_open_memory(const void *bytes, size_t size, const tn_onnx_options *options, tn_onnx **out) {
    TRY(tn_need(out, "tn_onnx_open_memory: out"));
    *out = NULL;
    TRY(tn_need(bytes, "tn_onnx_open_memory: the bytes"));
    tn_onnx_options o;
    TRY(read_options_model(options, &o));
    tn_onnx *m = model_new();
    if (m) m->copy = tn_mem_alloc(size);
    if (!m || !m->copy) {
        tn_onnx_close(m);
        return TN_ERR_MEMORY;
    }
    if (size) memcpy(m->copy, bytes, size);
    return finish_model(m, (onnx_text){m->copy, size}, NULL, &o, out);
}

/* ---- what a model says of itself --------------------------------------------------------------------------------- */

int tn_onnx_input_count(const tn_onnx *m) { return m ? m->graph->input_count : 0; }

int tn_onnx_output_count(const tn_onnx *m) { return m ? m->graph->output_count : 0; }

static tn_status describe_model(const onnx_port *ports, int count, int i, const char *what, tn_onnx_info *info) {
    if (i < 0 || i >= count)
        return tn_fail(TN_ERR_ARGUMENT, "%s index %d is out of range; the model has %d", what, i, count);
    static const onnx_declared unknown = {.rank = -1};
    const onnx_declared *t = ports[i].type ? ports[i].type : &unknown;
    tn_onnx_info full = {.name = ports[i].name,
                         .kind = t->kind,
                         .type = onnx_types[t->type].name,
                         .dtype = onnx_types[t->type].dtype,
                         .rank = t->rank};
    memcpy(full.shape, t->shape, sizeof full.shape);
    memcpy(full.dims, t->dims, sizeof full.dims);
    return tn_result_write(info, &full, sizeof full, "tn_onnx: info");
}

tn_status tn_onnx_input_at(const tn_onnx *m, int i, tn_onnx_info *info) {
    TRY(tn_need(m, "tn_onnx_input_at: the model"));
    return describe_model(m->graph->inputs, m->graph->input_count, i, "input", info);
}

tn_status tn_onnx_output_at(const tn_onnx *m, int i, tn_onnx_info *info) {
    TRY(tn_need(m, "tn_onnx_output_at: the model"));
    return describe_model(m->graph->outputs, m->graph->output_count, i, "output", info);
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

tn_onnx_value *tn_onnx_value_tensor(tn_tensor *t) {
    if (tn_need(t, "tn_onnx_value_tensor: the tensor") != TN_OK || tn_status_of(t) != TN_OK) return NULL;
    onnx_type type = onnx_type_of(tn_dtype_of(t));
    if (type == ONNX_UNDEFINED) {
        tn_fail(TN_ERR_DTYPE, "tn_onnx_value_tensor: ONNX has no type for %s; cast it first",
                tn_dtype_name(tn_dtype_of(t)));
        return NULL;
    }
    /* A handle of the value's own: the caller's may stand in a scope. */
    return onnx_value_tensor(tn_tensor_new(tn_node_retain(tn_tensor_node(t))), type);
}

tn_onnx_value *tn_onnx_value_strings(const char *const *texts, const size_t *lengths, const int64_t *shape, int rank) {
    int64_t count = 1;
    bool fits = rank >= 0 && rank <= TN_MAX_RANK && (shape || rank == 0);
    for (int d = 0; fits && d < rank; d++)
        fits = shape[d] >= 0 && !tn_mul_overflow(count, shape[d], &count);
    for (int64_t i = 0; fits && i < count; i++)
        fits = texts && texts[i];
    if (!fits) {
        tn_fail(TN_ERR_ARGUMENT, "tn_onnx_value_strings: a string, the shape or an extent is missing");
        return NULL;
    }
    AUTO_FREE onnx_text *list = tn_mem_zalloc((size_t)count, sizeof *list);
    if (!list) return NULL;
    for (int64_t i = 0; i < count; i++)
        list[i] = (onnx_text){texts[i], lengths ? lengths[i] : strlen(texts[i])};
    return onnx_value_strings(list, shape, rank);
}

/* One more reference to each item; false when one is NULL. */
static bool retain_items(tn_onnx_value *const *items, int64_t count, const char *function) {
    bool there = count >= 0 && (items || count == 0);
    for (int64_t i = 0; there && i < count; i++)
        there = items[i] != NULL;
    if (!there) tn_fail(TN_ERR_ARGUMENT, "%s: an item is NULL", function);
    for (int64_t i = 0; there && i < count; i++)
        onnx_value_retain(items[i]);
    return there;
}

tn_onnx_value *tn_onnx_value_sequence(tn_onnx_value *const *items, int64_t count) {
    if (!retain_items(items, count, "tn_onnx_value_sequence")) return NULL;
    return onnx_value_sequence(items, count, count ? items[0]->type : ONNX_UNDEFINED);
}

tn_onnx_value *tn_onnx_value_optional(tn_onnx_value *item) { return onnx_value_optional(onnx_value_retain(item)); }

tn_onnx_value *tn_onnx_value_map(tn_onnx_value *keys, tn_onnx_value *const *items, int64_t count) {
    int64_t shape[TN_MAX_RANK];
    if (tn_need(keys, "tn_onnx_value_map: keys") != TN_OK) return NULL;
    bool fits = tn_onnx_value_shape(keys, shape) == 1 && shape[0] == count &&
                (keys->kind == ONNX_STRINGS || keys->type == ONNX_INT64);
    if (!fits) {
        tn_fail(TN_ERR_ARGUMENT, "tn_onnx_value_map: keys must be strings or i64, in one dimension, as many as items");
        return NULL;
    }
    if (!retain_items(items, count, "tn_onnx_value_map")) return NULL;
    return onnx_value_map(onnx_value_retain(keys), items, count);
}

tn_status tn_onnx_value_decode(const void *bytes, size_t size, tn_onnx_kind kind, tn_onnx_value **out) {
    TRY(tn_need(out, "tn_onnx_value_decode: out"));
    *out = NULL;
    TRY(tn_need(bytes, "tn_onnx_value_decode: the bytes"));
    onnx_source nowhere = {0};
    onnx_text message = {bytes, size};
    switch (kind) {
    case TN_ONNX_TENSOR:
    case TN_ONNX_STRINGS: return onnx_read_tensor(&nowhere, message, out, NULL);
    case TN_ONNX_SEQUENCE: return onnx_read_sequence(&nowhere, message, 0, out);
    case TN_ONNX_OPTIONAL: return onnx_read_optional(&nowhere, message, 0, out);
    case TN_ONNX_MAP: return onnx_read_map(&nowhere, message, 0, out);
    }
    return tn_fail(TN_ERR_ARGUMENT, "tn_onnx_value_decode: unknown kind %d", (int)kind);
}

void tn_onnx_value_free(tn_onnx_value *v) { onnx_value_release(v); }

tn_onnx_kind tn_onnx_value_kind(const tn_onnx_value *v) { return v ? v->kind : TN_ONNX_TENSOR; }

const char *tn_onnx_value_type(const tn_onnx_value *v) { return onnx_types[v ? v->type : ONNX_UNDEFINED].name; }

tn_tensor *tn_onnx_value_get(const tn_onnx_value *v) {
    if (v && v->kind == ONNX_TENSOR) return v->tensor;
    tn_fail(TN_ERR_ARGUMENT, "tn_onnx_value_get: %s", v ? "the value is not a tensor of numbers" : "the value is NULL");
    return NULL;
}

int64_t tn_onnx_value_count(const tn_onnx_value *v) {
    if (!v) return 0;
    return v->kind == ONNX_TENSOR ? tn_numel(v->tensor) : v->count;
}

int tn_onnx_value_shape(const tn_onnx_value *v, int64_t shape[TN_MAX_RANK]) {
    if (!v || !shape || (v->kind != ONNX_TENSOR && v->kind != ONNX_STRINGS)) return -1;
    int rank = v->kind == ONNX_TENSOR ? tn_rank(v->tensor) : v->rank;
    const int64_t *from = v->kind == ONNX_TENSOR ? tn_shape(v->tensor) : v->shape;
    if (rank > 0) memcpy(shape, from, (size_t)rank * sizeof *shape);
    return rank;
}

const char *tn_onnx_value_string(const tn_onnx_value *v, int64_t i, size_t *length) {
    if (!v || v->kind != ONNX_STRINGS || i < 0 || i >= v->count || !length) {
        tn_fail(TN_ERR_ARGUMENT, "tn_onnx_value_string: index %lld is out of range", (long long)i);
        return NULL;
    }
    *length = v->strings[i].size;
    return v->strings[i].at;
}

const tn_onnx_value *tn_onnx_value_item(const tn_onnx_value *v, int64_t i) {
    if (v && v->items && i >= 0 && i < v->count) return v->items[i];
    tn_fail(TN_ERR_ARGUMENT, "tn_onnx_value_item: index %lld is out of range", (long long)i);
    return NULL;
}

const tn_onnx_value *tn_onnx_value_keys(const tn_onnx_value *v) {
    if (v && v->keys) return v->keys;
    tn_fail(TN_ERR_ARGUMENT, "tn_onnx_value_keys: %s", v ? "the value is not a map" : "the value is NULL");
    return NULL;
}

/* ==== run ========================================================================================================= */
/* A frame is a graph that is being run: its slots hold values from the node that makes them to the last that reads
 * them. Nodes of constants alone leave their outputs with the graph and are not met again. */

/* ---- frames ------------------------------------------------------------------------------------------------------ */

static void set_slot(onnx_frame *f, int32_t slot, onnx_value *v) {
    if (slot < 0) {
        onnx_value_release(v);
        return;
    }
    onnx_value_release(f->slots[slot]);
    f->slots[slot] = v;
}

static void free_values(onnx_value **values, int count) {
    for (int i = 0; i < count; i++) {
        onnx_value_release(values[i]);
        values[i] = NULL;
    }
}

static void frame_end(onnx_frame *f) {
    for (int32_t i = 0; f->slots && i < f->graph->slot_count; i++)
        onnx_value_release(f->slots[i]);
    tn_mem_free(f->slots);
}

/* An input of a subgraph is not a constant, even if the caller passes one: another call may pass another value. */
static onnx_value *as_input(onnx_value *v) {
    if (!v || v->fixed != ONNX_CONSTANT) return onnx_value_retain(v);
    return onnx_value_as(onnx_value_retain(v), ONNX_EXTENTS);
}

static tn_status frame_begin(onnx_frame *f, onnx_value *const *in, int in_count) {
    const onnx_graph *g = f->graph;
    f->slots = tn_mem_zalloc((size_t)g->slot_count, sizeof(onnx_value *));
    if (!f->slots) return TN_ERR_MEMORY;
    for (int32_t i = 0; i < g->slot_count; i++)
        f->slots[i] = onnx_value_retain(g->constants[i]);
    for (int i = 0; i < g->captured_count; i++)
        set_slot(f, g->captured[i].to, onnx_value_retain(f->outer->slots[g->captured[i].from]));
    for (int i = 0; i < g->input_count && i < in_count; i++) {
        if (!in[i]) continue;
        onnx_value *v = as_input(in[i]);
        if (!v) return tn_error_code();
        set_slot(f, g->inputs[i].slot, v);
    }
    return TN_OK;
}

/* ---- nodes ------------------------------------------------------------------------------------------------------- */

static void drop_if_dead(onnx_frame *f, int32_t slot, int node) {
    if (slot >= 0 && f->graph->last_use[slot] <= node) set_slot(f, slot, NULL);
}

/* Lets go what no later node reads. */
static void drop_dead(onnx_frame *f, int node) {
    const onnx_node *n = &f->graph->nodes[node];
    for (int i = 0; i < n->in_count; i++)
        drop_if_dead(f, n->in[i], node);
    for (int k = 0; k < n->attribute_count; k++) {
        const onnx_attribute *a = &n->attributes[k];
        for (size_t j = 0; a->graphs && j < a->count; j++)
            for (int i = 0; a->graphs[j] && i < a->graphs[j]->captured_count; i++)
                drop_if_dead(f, a->graphs[j]->captured[i].from, node);
    }
}

static uint8_t level_of_inputs(const onnx_frame *f, const onnx_call *c) {
    uint8_t level = f->function ? ONNX_EXTENTS : ONNX_CONSTANT; /* a function's attributes differ from call to call */
    for (int i = 0; i < c->in_count; i++)
        if (c->in[i] && c->in[i]->fixed < level) level = c->in[i]->fixed;
    return level;
}

static bool worth_keeping(const onnx_value *v) {
    if (v->fixed != ONNX_CONSTANT) return false;
    if (v->kind != ONNX_TENSOR) return true;
    return (int64_t)tn_dtype_bytes(tn_dtype_of(v->tensor), tn_numel(v->tensor)) <= ONNX_MAX_FOLDED;
}

/* Leaves the outputs of a node with the graph if they are constants all. */
static tn_status fold_graph(onnx_run *r, onnx_frame *f, int node) {
    onnx_graph *g = (onnx_graph *)(uintptr_t)f->graph; /* what it knows of itself grows */
    const onnx_node *n = &g->nodes[node];
    tn_onnx *m = r->model;
    for (int k = 0; k < n->out_count; k++)
        if (n->out[k] >= 0 && f->slots[n->out[k]] && !worth_keeping(f->slots[n->out[k]])) return TN_OK;
    for (int k = 0; k < n->out_count; k++) {
        onnx_value *v = n->out[k] >= 0 ? f->slots[n->out[k]] : NULL;
        if (!v) continue;
        TRY(tn_mem_reserve(&m->values, &m->value_capacity, m->value_count + 1, sizeof(onnx_value *)));
        m->values[m->value_count++] = onnx_value_retain(v);
        g->constants[n->out[k]] = v;
    }
    g->folded[node] = true;
    return TN_OK;
}

/* How often values of a slot are read: by nodes, by subgraphs, as what the graph yields. */
static int64_t readers_of(const onnx_graph *g, int32_t slot) {
    int64_t count = 0;
    for (int i = 0; i < g->node_count; i++) {
        const onnx_node *n = &g->nodes[i];
        for (int k = 0; k < n->in_count; k++)
            count += n->in[k] == slot;
        for (int k = 0; k < n->attribute_count; k++)
            for (size_t j = 0; n->attributes[k].graphs && j < n->attributes[k].count; j++)
                for (int s = 0; s < n->attributes[k].graphs[j]->captured_count; s++)
                    count += n->attributes[k].graphs[j]->captured[s].from == slot;
    }
    for (int k = 0; k < g->output_count; k++)
        count += g->outputs[k].slot == slot;
    return count;
}

tn_status onnx_keep(onnx_call *c, int i, tn_tensor *t) {
    onnx_run *r = c->run;
    tn_onnx *m = r->model;
    onnx_frame *f = r->frame;
    onnx_graph *g = (onnx_graph *)(uintptr_t)f->graph; /* what it knows of itself grows */
    int32_t slot = c->node->in[i];
    int64_t bytes = (int64_t)tn_dtype_bytes(tn_dtype_of(t), tn_numel(t));
    if (f->function || r->capturing || slot < 0 || c->in[i] != g->constants[slot]) return TN_OK;
    if (bytes > ONNX_MAX_FOLDED || bytes > ONNX_MAX_KEPT - m->kept || readers_of(g, slot) != 1) return TN_OK;
    TRY(tn_mem_reserve(&m->values, &m->value_capacity, m->value_count + 1, sizeof(onnx_value *)));
    onnx_value *v = onnx_value_tensor(tn_detach(t), onnx_type_of(tn_dtype_of(t)));
    if (!v) return tn_error_code();
    v->fixed = ONNX_CONSTANT;
    m->values[m->value_count++] = v;
    m->kept += bytes;
    g->constants[slot] = v;
    return TN_OK;
}

const tn_tensor *onnx_derived(const onnx_call *c, int i, onnx_derivation which,
                              tn_tensor *(*make)(const tn_tensor *x)) {
    onnx_value *of = c->in[i];
    if (of->derived[which]) return of->derived[which]->tensor;
    tn_tensor *t = make(of->tensor);
    int64_t bytes = (int64_t)tn_dtype_bytes(tn_dtype_of(t), tn_numel(t));
    tn_onnx *m = c->run->model;
    bool keep = of->fixed == ONNX_CONSTANT && !c->run->capturing && bytes <= ONNX_MAX_KEPT - m->kept;
    if (!keep || tn_status_of(t) != TN_OK) return t;
    of->derived[which] = onnx_value_tensor(tn_detach(t), onnx_type_of(tn_dtype_of(t)));
    if (!of->derived[which]) return t;
    of->derived[which]->fixed = ONNX_CONSTANT; /* what follows from it is kept too */
    m->kept += bytes;
    return t;
}

static tn_status take_outputs(onnx_call *c, onnx_frame *f) {
    const onnx_node *n = c->node;
    for (int k = 0; k < n->out_count; k++) {
        if (!onnx_wants(c, k)) continue;
        if (!c->out[k]) return onnx_refuse(c, "output %d is used, but was not computed", k);
        set_slot(f, n->out[k], c->out[k]);
        c->out[k] = NULL;
    }
    return TN_OK;
}

static tn_status call_function(onnx_call *c);

static tn_status call_row(onnx_run *r, onnx_frame *f, int node, onnx_value **lists) {
    const onnx_node *n = &f->graph->nodes[node];
    onnx_call c = {.run = r,
                   .node = n,
                   .row = n->row,
                   .in = lists,
                   .out = lists + n->in_count,
                   .in_count = n->in_count,
                   .out_count = n->out_count,
                   .opset = n->opset};
    for (int i = 0; i < n->in_count; i++)
        lists[i] = n->in[i] < 0 ? NULL : f->slots[n->in[i]];
    c.fixed = level_of_inputs(f, &c);
    if (!n->calls && !n->row) return onnx_refuse(&c, "this operator is not supported by Trunnion");
    if (n->row && n->refers) TRY(onnx_check_references(&c));
    tn_status status = TN_OK;
    {
        TN_SCOPE;
        status = n->calls ? call_function(&c) : onnx_run_row(&c);
    }
    if (status == TN_OK) status = take_outputs(&c, f);
    for (int k = 0; k < n->out_count; k++)
        onnx_value_release(c.out[k]);
    return status;
}

/* Nodes and frames: a loop's body may have no node. */
static tn_status count_step(onnx_run *r) {
    if (++r->steps <= ONNX_MAX_STEPS) return TN_OK;
    return tn_fail(TN_ERR_UNSUPPORTED, "the run exceeded %lld nodes: a loop in the model does not end",
                   (long long)ONNX_MAX_STEPS);
}

static tn_status run_node(onnx_run *r, onnx_frame *f, int node) {
    enum { FEW = 24 };
    const onnx_node *n = &f->graph->nodes[node];
    TRY(count_step(r));
    onnx_value *few[FEW] = {0};
    size_t count = (size_t)(n->in_count + n->out_count);
    onnx_value **lists = count <= FEW ? few : tn_mem_zalloc(count, sizeof(onnx_value *));
    if (!lists) return TN_ERR_MEMORY;
    tn_status status = call_row(r, f, node, lists);
    if (lists != few) tn_mem_free(lists);
    TRY(status);
    if (!f->function && !r->capturing) TRY(fold_graph(r, f, node));
    drop_dead(f, node);
    return TN_OK;
}

static tn_status run_nodes(onnx_run *r, onnx_frame *f) {
    for (int i = 0; i < f->graph->node_count; i++)
        if (!f->graph->folded[i]) TRY(run_node(r, f, i));
    return TN_OK;
}

/* Runs f's graph; outputs are given over. */
static tn_status run_frame(onnx_run *r, onnx_frame *f, onnx_value *const *in, int in_count, onnx_value **out,
                           int out_count) {
    if (r->depth == ONNX_MAX_FRAMES)
        return tn_fail(TN_ERR_UNSUPPORTED, "functions and subgraphs are nested more than %d deep", ONNX_MAX_FRAMES);
    TRY(count_step(r));
    onnx_frame *around = r->frame;
    r->frame = f;
    r->depth++;
    tn_status status = frame_begin(f, in, in_count);
    if (status == TN_OK) status = run_nodes(r, f);
    for (int k = 0; k < out_count && k < f->graph->output_count && status == TN_OK; k++)
        out[k] = onnx_value_retain(f->slots[f->graph->outputs[k].slot]);
    frame_end(f);
    r->depth--;
    r->frame = around;
    return status;
}

tn_status onnx_call_graph(onnx_call *c, const onnx_graph *g, onnx_value *const *in, int in_count, onnx_value **out,
                          int out_count) {
    onnx_frame *here = c->run->frame;
    onnx_frame f = {.outer = here, .graph = g, .function = here->function, .caller = here->caller};
    for (int k = 0; k < out_count; k++)
        out[k] = NULL;
    TRY(run_frame(c->run, &f, in, in_count, out, out_count));
    for (int k = 0; k < out_count; k++) { /* an omitted value may be passed through */
        if (out[k]) continue;
        free_values(out, out_count);
        return onnx_refuse(c, "output %d of its subgraph has no value", k);
    }
    return TN_OK;
}

static tn_status call_function(onnx_call *c) {
    onnx_frame f = {.graph = c->node->calls->body, .function = c, .caller = c->run->frame};
    return run_frame(c->run, &f, c->in, c->in_count, c->out, c->out_count);
}

/* ---- a run ------------------------------------------------------------------------------------------------------- */

static void onnx_run_end(onnx_run *r) {
    for (size_t i = 0; i < r->error_count; i++)
        tn_free(r->errors[i]);
    tn_mem_free(r->errors);
    for (size_t i = 0; i < r->memo_count; i++)
        tn_mem_free(r->memos[i].numbers);
    tn_mem_free(r->memos);
}

static tn_status onnx_evaluate(onnx_value *const *values, int count) {
    AUTO_FREE tn_tensor **tensors = tn_mem_alloc((size_t)count * sizeof(tn_tensor *));
    if (!tensors) return TN_ERR_MEMORY;
    int n = 0;
    for (int i = 0; i < count; i++)
        if (values[i]->kind == ONNX_TENSOR) tensors[n++] = values[i]->tensor;
    return tn_eval(tensors, n);
}

/* Walks the whole model: outputs are recorded, not computed. Before it: a run with its model alone. */
static tn_status onnx_run_model(onnx_run *r, onnx_value *const *in, onnx_value **out) {
    const onnx_graph *g = r->model->graph;
    onnx_frame f = {.graph = g};
    return run_frame(r, &f, in, g->input_count, out, g->output_count);
}

static void shape_text(const int64_t *shape, int rank, char *text, size_t size) {
    tn_str s = {0};
    for (int d = 0; d < rank; d++) {
        if (shape[d] < 0)
            tn_str_add(&s, "%s?", d ? ", " : "");
        else
            tn_str_add(&s, "%s%lld", d ? ", " : "", (long long)shape[d]);
    }
    size_t n = s.length < size ? s.length : size - 1;
    memcpy(text, tn_str_text(&s), n);
    text[n] = 0;
    tn_str_free(&s);
}

static tn_status check_shape(const onnx_port *p, const onnx_value *v) {
    int64_t shape[TN_MAX_RANK];
    int rank = tn_onnx_value_shape(v, shape);
    if (p->type->rank < 0) return TN_OK;
    bool fits = rank == p->type->rank;
    for (int d = 0; d < rank && fits; d++)
        fits = p->type->shape[d] < 0 || p->type->shape[d] == shape[d];
    if (fits) return TN_OK;
    char given[160], wanted[160];
    shape_text(shape, rank, given, sizeof given);
    shape_text(p->type->shape, p->type->rank, wanted, sizeof wanted);
    return tn_fail(TN_ERR_SHAPE, "input '%s' is [%s], but must be [%s]", p->name, given, wanted);
}

/* An input as the model declares it: types that live in wider ones come in as those. */
static tn_status adopt(const onnx_port *p, onnx_value *given, onnx_value **out) {
    if (!given) return tn_fail(TN_ERR_ARGUMENT, "input '%s' is NULL", p->name);
    *out = onnx_value_as(onnx_value_retain(given), ONNX_VARIES); /* a constant of another run is not constant here */
    if (!*out) return tn_error_code();
    const onnx_declared *t = p->type;
    if (!t || (t->kind == ONNX_TENSOR && t->type == ONNX_UNDEFINED)) return TN_OK;
    if (t->kind != given->kind)
        return tn_fail(TN_ERR_ARGUMENT,
                       "input '%s' has another kind (tensor, strings, sequence …) than the model requires", p->name);
    if (t->kind == ONNX_STRINGS) return check_shape(p, given);
    if (t->kind != ONNX_TENSOR) return TN_OK;
    TRY(tn_status_of(given->tensor));
    if (tn_dtype_of(given->tensor) != onnx_types[t->type].dtype)
        return tn_fail(TN_ERR_DTYPE, "input '%s' is %s, but must be %s (%s)", p->name,
                       tn_dtype_name(tn_dtype_of(given->tensor)), onnx_types[t->type].name,
                       tn_dtype_name(onnx_types[t->type].dtype));
    if (given->type != t->type) {
        onnx_value_release(*out);
        *out = onnx_value_tensor(tn_retain(given->tensor), t->type);
        if (!*out) return tn_error_code();
    }
    bool is_complex = t->type == ONNX_COMPLEX64 || t->type == ONNX_COMPLEX128;
    return is_complex ? TN_OK : check_shape(p, *out);
}

tn_status tn_onnx_run(tn_onnx *m, tn_onnx_value *const *inputs, tn_onnx_value **outputs) {
    TRY(tn_need(m, "tn_onnx_run: the model"));
    if (m->is_inert) return tn_fail(TN_ERR_STATE, "tn_onnx_run: the model was opened only for its weights");
    int in_count = m->graph->input_count, out_count = m->graph->output_count;
    if (out_count) TRY(tn_need(outputs, "tn_onnx_run: outputs"));
    for (int k = 0; k < out_count; k++)
        outputs[k] = NULL;
    if (in_count) TRY(tn_need(inputs, "tn_onnx_run: inputs"));
    onnx_value **in = tn_mem_zalloc((size_t)in_count, sizeof(onnx_value *));
    if (!in) return TN_ERR_MEMORY;
    (tn_at)(NULL, 0); /* no line of the program: notices of a network's operations would name the last call before */
    tn_status status = TN_OK;
    for (int i = 0; i < in_count && status == TN_OK; i++)
        status = adopt(&m->graph->inputs[i], inputs[i], &in[i]);
    {
        TN_NO_GRAD;
        if (status == TN_OK) status = m->session ? onnx_engine_run(m, in, outputs) : run_or_replay(m, in, outputs);
    }
    free_values(in, in_count);
    tn_mem_free(in);
    if (status != TN_OK) free_values(outputs, out_count);
    return status;
}

/* ==== replay ====================================================================================================== */
/* The first run notes every list of numbers that its rows read on the host and that constants and extents alone tell;
 * the second records without computing, and its rows read the notes. Small integer inputs count as told too: once a row
 * has read what depends on them (a branch on the sample rate), their numbers are part of what runs are told apart by.
 * Whatever else is read, by a row or inside an operation, leaves the model to be recorded at each run.
 *
 * Several threads may run one model. All changes to the model are made under its lock. A launch needs only a graph that
 * no other thread launches, so it runs without the lock; threads that run at the same time capture one graph each. */

typedef struct replay_input {
    onnx_type type;
    int rank;
    int64_t shape[TN_MAX_RANK];
    int64_t count, values[ONNX_SMALL_INPUT]; /* of a small integer input; count -1: another */
} replay_input;

/* Where an output comes from: a value that does not change, an input (perhaps in another shape), or the captured
 * graph. */
typedef struct replay_output {
    onnx_value *constant;
    int input, of_graph; /* -1: no */
    bool reshaped;
    int rank;
    int64_t shape[TN_MAX_RANK];
    onnx_type type;
} replay_output;

/* More threads than this at once record instead of launching. */
enum { MAX_GRAPHS = 32 };

typedef struct replay_graph {
    tn_graph *graph;
    bool busy; /* being launched */
} replay_graph;

struct onnx_replay {
    onnx_replay *next; /* in the order of last use */
    int users;         /* the list of replays, and threads that launch */
    replay_input *inputs;
    int input_count, output_count, graph_count;
    bool keyed, hopeless;
    onnx_memo *memos;
    size_t memo_count;
    replay_graph graphs[MAX_GRAPHS];
    int graphs_made;
    replay_output *outputs;
};

static void free_outputs(replay_output *outputs, int count) {
    for (int k = 0; outputs && k < count; k++)
        onnx_value_release(outputs[k].constant);
    tn_mem_free(outputs);
}

/* One user less; the last one frees it. */
static void release_replay(onnx_replay *e) {
    if (--e->users > 0) return;
    for (size_t i = 0; i < e->memo_count; i++)
        tn_mem_free(e->memos[i].numbers);
    free_outputs(e->outputs, e->output_count);
    tn_mem_free_each(e->memos, e->inputs);
    for (int i = 0; i < e->graphs_made; i++)
        tn_graph_free(e->graphs[i].graph);
    tn_mem_free(e);
}

static void replays_free(tn_onnx *m) {
    while (m->replays) {
        onnx_replay *next = m->replays->next;
        release_replay(m->replays);
        m->replays = next;
    }
}

/* ---- telling runs apart ------------------------------------------------------------------------------------------ */

static bool is_integer(tn_dtype t) { return (int)t < TN_PLAIN_DTYPES && !tn_dtype_is_float(t); }

/* Notes what an input is; a small integer one is given the level of what keys tell. */
static tn_status note_input(replay_input *k, onnx_value **in) {
    const tn_tensor *t = (*in)->tensor;
    int64_t wide = tn_numel(t);
    *k = (replay_input){.type = (*in)->type, .rank = tn_rank(t), .count = -1};
    memcpy(k->shape, tn_shape(t), (size_t)k->rank * sizeof *k->shape);
    tn_dtype dtype = tn_dtype_of(t);
    if (!is_integer(dtype) || wide > ONNX_SMALL_INPUT) return TN_OK;
    TRY(tn_read(t, k->values, tn_dtype_bytes(dtype, wide)));
    k->count = wide;
    *in = onnx_value_as(*in, ONNX_KEYED);
    return *in ? TN_OK : tn_error_code();
}

static bool same_input(const replay_input *a, const replay_input *b, bool keyed) {
    if (a->type != b->type || a->rank != b->rank) return false;
    if (memcmp(a->shape, b->shape, (size_t)a->rank * sizeof *a->shape) != 0) return false;
    return !keyed || memcmp(a->values, b->values, sizeof a->values) == 0;
}

/* The entry for these inputs, moved to the front; NULL if not found. */
static onnx_replay *find_replay(tn_onnx *m, const replay_input *key) {
    for (onnx_replay **at = &m->replays; *at; at = &(*at)->next) {
        onnx_replay *e = *at;
        int i = 0;
        while (i < e->input_count && same_input(&e->inputs[i], &key[i], e->keyed))
            i++;
        if (i < e->input_count) continue;
        *at = e->next;
        e->next = m->replays;
        m->replays = e;
        return e;
    }
    return NULL;
}

/* Takes over key and the run's notes. */
static tn_status add_replay(tn_onnx *m, replay_input *key, onnx_run *r) {
    onnx_replay *e = tn_mem_zalloc(1, sizeof *e);
    if (!e) {
        tn_mem_free(key);
        return TN_ERR_MEMORY;
    }
    e->users = 1;
    e->inputs = key;
    e->input_count = m->graph->input_count;
    e->keyed = r->keyed;
    e->memos = r->memos;
    e->memo_count = r->memo_count;
    r->memos = NULL;
    r->memo_count = 0;
    e->next = m->replays;
    m->replays = e;
    int count = 0;
    for (onnx_replay **at = &m->replays; *at; at = &(*at)->next) {
        if (++count <= ONNX_MAX_REPLAYS) continue;
        onnx_replay *last = *at;
        *at = NULL;
        release_replay(last);
        break;
    }
    return TN_OK;
}

/* ---- inputs as a captured graph takes them ----------------------------------------------------------------------- */

/* A handle over a complete computed buffer; NULL if that would need a copy. */
static tn_tensor *replay_whole(tn_tensor *t) {
    tn_tensor *c = tn_contiguous(t);
    if (tn_eval(&c, 1) != TN_OK) {
        tn_free(c);
        return NULL;
    }
    tn_node *n = tn_tensor_node(c);
    if (n->buffer) return c;
    bool all = n->root && n->root->buffer && tn_node_contiguous(n);
    tn_tensor *own = all ? tn_tensor_new(tn_node_data(n->root->buffer, n->shape, n->rank, (tn_dtype)n->dtype)) : NULL;
    tn_free(c);
    return own;
}

/* Puts whole tensors in the place of inputs; false when one cannot be. */
static bool make_whole(onnx_value **in, int count) {
    for (int i = 0; i < count; i++) {
        if (tn_tensor_node(in[i]->tensor)->buffer) continue;
        tn_tensor *t = replay_whole(in[i]->tensor);
        onnx_value *v = t ? onnx_value_tensor(t, in[i]->type) : NULL;
        if (!v) return false;
        v->fixed = in[i]->fixed;
        onnx_value_release(in[i]);
        in[i] = v;
    }
    return true;
}

/* ---- capturing --------------------------------------------------------------------------------------------------- */

static int64_t launches_so_far(void) {
    tn_runtime_stats stats = {.struct_size = sizeof stats};
    return tn_get_runtime_stats(&stats) == TN_OK ? stats.launches : -1;
}

static int input_of(const tn_node *n, onnx_value *const *in, int count) {
    for (int i = 0; i < count; i++)
        if (tn_tensor_node(in[i]->tensor) == n) return i;
    return -1;
}

typedef struct capturing {
    onnx_replay *entry;
    onnx_value **in, **out;
    tn_tensor **in_tensors, **out_tensors;
    replay_output *outputs;
    int graph_count;
    tn_graph *graph;
} capturing;

/* Says where output v comes from; c->out_tensors gets what the graph shall hand out. false: it cannot be replayed. */
static bool place_output(capturing *c, replay_output *o, onnx_value **v) {
    int inputs = c->entry->input_count;
    if ((*v)->kind != ONNX_TENSOR) return false;
    tn_node *n = tn_tensor_node((*v)->tensor);
    *o = (replay_output){.input = input_of(n, c->in, inputs), .of_graph = -1, .type = (*v)->type};
    if (o->input >= 0) return true;
    int root = tn_node_computed(n) && n->flags & TN_NODE_VIEW ? input_of(n->root, c->in, inputs) : -1;
    if (root >= 0) {
        o->reshaped = true;
        o->input = root;
        o->rank = n->rank;
        memcpy(o->shape, n->shape, sizeof o->shape);
        return tn_node_contiguous(n);
    }
    if (tn_node_computed(n)) {
        o->constant = onnx_value_retain(*v);
        return true;
    }
    c->out_tensors[c->graph_count] = tn_contiguous((*v)->tensor);
    o->of_graph = c->graph_count++;
    return true;
}

/* Between begin and end of a capture. Releases values: the graph would store a held one as a result. */
static tn_status record_outputs(tn_onnx *m, capturing *c) {
    onnx_replay *e = c->entry;
    int64_t before = launches_so_far();
    onnx_run r = {.model = m, .capturing = true, .memos = e->memos, .memo_count = e->memo_count};
    tn_status status = onnx_run_model(&r, c->in, c->out);
    r.memos = NULL; /* the entry's */
    r.memo_count = 0;
    onnx_run_end(&r);
    TRY(status);
    for (int k = 0; k < m->graph->output_count; k++)
        if (!place_output(c, &c->outputs[k], &c->out[k]))
            return tn_fail(TN_ERR_UNSUPPORTED, "output %d cannot be replayed", k);
    if (launches_so_far() != before || c->graph_count == 0)
        return tn_fail(TN_ERR_UNSUPPORTED, "an operation was evaluated while the model was being recorded");
    free_values(c->out, m->graph->output_count);
    return TN_OK;
}

static tn_status capture(tn_onnx *m, capturing *c) {
    int in_count = m->graph->input_count;
    c->outputs = tn_mem_zalloc((size_t)m->graph->output_count, sizeof *c->outputs);
    if (!c->outputs || !c->in_tensors || !c->out_tensors) return TN_ERR_MEMORY;
    for (int i = 0; i < in_count; i++)
        c->in_tensors[i] = c->in[i]->tensor;
    TRY(tn_capture_begin());
    tn_status status = record_outputs(m, c);
    if (status == TN_OK) return tn_capture_end(c->in_tensors, in_count, c->out_tensors, c->graph_count, &c->graph);
    tn_graph *nothing = NULL;
    if (tn_capture_end(NULL, 0, NULL, 0, &nothing) == TN_OK) tn_graph_free(nothing);
    return status;
}

/* The values of a captured or launched graph, whose results are given over. */
static tn_status hand_out_replay(const onnx_replay *e, onnx_value *const *in, tn_tensor **results, onnx_value **out) {
    tn_status status = TN_OK;
    for (int k = 0; k < e->output_count; k++) {
        const replay_output *o = &e->outputs[k];
        if (o->reshaped)
            out[k] = onnx_value_tensor(tn_reshape(in[o->input]->tensor, o->shape, o->rank), o->type);
        else if (o->constant || o->input >= 0)
            out[k] = onnx_value_retain(o->constant ? o->constant : in[o->input]);
        else
            out[k] = onnx_value_tensor(tn_retain(results[o->of_graph]), o->type);
        if (!out[k]) status = tn_error_code();
    }
    for (int i = 0; i < e->graph_count; i++)
        tn_free(results[i]);
    return status;
}

static const tn_buffer *buffer_of(const tn_tensor *t) {
    const tn_node *n = tn_tensor_node(t);
    return n->buffer || !n->root ? n->buffer : n->root->buffer;
}

/* Whether an input's memory is also another input's or a constant's: a capture tells inputs apart by their memory, so
 * that the one would be replayed as the other. */
static bool shares_memory(const tn_onnx *m, onnx_value *const *in) {
    for (int i = 0; i < m->graph->input_count; i++) {
        const tn_buffer *own = buffer_of(in[i]->tensor);
        for (int j = 0; j < i; j++)
            if (buffer_of(in[j]->tensor) == own) return true;
        for (size_t v = 0; v < m->value_count; v++)
            if (m->values[v]->kind == ONNX_TENSOR && buffer_of(m->values[v]->tensor) == own) return true;
    }
    return false;
}

/* Captures; *done false: it could not be, and never will. */
static tn_status try_capture(tn_onnx *m, onnx_replay *e, onnx_value **in, onnx_value **out, bool *done) {
    int out_count = m->graph->output_count;
    capturing c = {.entry = e, .in = in, .out = tn_mem_zalloc((size_t)out_count, sizeof(onnx_value *))};
    c.in_tensors = tn_mem_zalloc((size_t)m->graph->input_count, sizeof(tn_tensor *));
    c.out_tensors = tn_mem_zalloc((size_t)out_count, sizeof(tn_tensor *));
    tn_status status = c.out ? capture(m, &c) : TN_ERR_MEMORY;
    *done = status == TN_OK;
    e->hopeless = !*done && e->graphs_made == 0;
    if (*done) {
        /* What the first capture says of the outputs holds for all, and threads that launch read it without a lock. */
        if (e->outputs) {
            free_outputs(c.outputs, out_count);
        } else {
            e->outputs = c.outputs;
            e->output_count = out_count;
            e->graph_count = c.graph_count;
        }
        e->graphs[e->graphs_made++] = (replay_graph){c.graph, false};
        status = hand_out_replay(e, in, c.out_tensors, out);
    } else {
        for (int i = 0; c.out_tensors && i < c.graph_count; i++)
            tn_free(c.out_tensors[i]);
        free_outputs(c.outputs, out_count);
        status = TN_OK;
    }
    if (c.out) free_values(c.out, out_count);
    tn_mem_free_each(c.out, c.in_tensors, c.out_tensors);
    return status;
}

static tn_status launch_replay(const onnx_replay *e, tn_graph *graph, onnx_value *const *in, onnx_value **out) {
    enum { REPLAY_FEW = 16 };
    tn_tensor *few[REPLAY_FEW];
    size_t count = (size_t)(e->input_count + e->graph_count);
    tn_tensor **lists = count <= REPLAY_FEW ? few : tn_mem_alloc(count * sizeof(tn_tensor *));
    if (!lists) return TN_ERR_MEMORY;
    for (int i = 0; i < e->input_count; i++)
        lists[i] = in[i]->tensor;
    tn_tensor **results = lists + e->input_count;
    tn_status status = tn_graph_launch(graph, lists, results);
    if (status == TN_OK) status = hand_out_replay(e, in, results, out);
    if (lists != few) tn_mem_free(lists);
    return status;
}

static replay_graph *free_graph(onnx_replay *e) {
    for (int i = 0; i < e->graphs_made; i++)
        if (!e->graphs[i].busy) return &e->graphs[i];
    return NULL;
}

/* The caller holds the model's lock, which is not held during the launch. */
static tn_status launch_unlocked(tn_onnx *m, onnx_replay *e, replay_graph *g, onnx_value *const *in, onnx_value **out) {
    g->busy = true;
    e->users++;
    pthread_mutex_unlock(&m->lock);
    tn_status status = launch_replay(e, g->graph, in, out);
    pthread_mutex_lock(&m->lock);
    g->busy = false;
    release_replay(e);
    return status;
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

static bool all_tensors(onnx_value *const *values, int count) {
    for (int i = 0; i < count; i++)
        if (values[i]->kind != ONNX_TENSOR) return false;
    return true;
}

/* Without replay, noting what a later one needs. Takes over key, which may be NULL: nothing is to be noted. */
static tn_status record_replay(tn_onnx *m, replay_input *key, onnx_value *const *in, onnx_value **out) {
    onnx_run r = {.model = m, .varied = key == NULL};
    tn_status status = onnx_run_model(&r, in, out);
    if (status == TN_OK) status = onnx_evaluate(out, m->graph->output_count);
    bool replayable = status == TN_OK && key && !r.varied && all_tensors(out, m->graph->output_count);
    if (replayable)
        status = add_replay(m, key, &r);
    else
        tn_mem_free(key);
    onnx_run_end(&r);
    return status;
}

static tn_status run_or_replay(tn_onnx *m, onnx_value **in, onnx_value **out) {
    int count = m->graph->input_count;
    AUTO_LOCK(&m->lock);
    if (!all_tensors(in, count)) return record_replay(m, NULL, in, out);
    replay_input *key = tn_mem_alloc((size_t)count * sizeof *key);
    if (!key) return TN_ERR_MEMORY;
    tn_status status = TN_OK;
    for (int i = 0; i < count && status == TN_OK; i++)
        status = note_input(&key[i], &in[i]);
    if (status != TN_OK) {
        tn_mem_free(key);
        return status;
    }
    onnx_replay *e = find_replay(m, key);
    if (!e) return record_replay(m, key, in, out);
    tn_mem_free(key);
    if (e->hopeless || !make_whole(in, count)) return record_replay(m, NULL, in, out);
    replay_graph *g = free_graph(e);
    if (g) return launch_unlocked(m, e, g, in, out);
    if (e->graphs_made == MAX_GRAPHS || shares_memory(m, in)) return record_replay(m, NULL, in, out);
    bool done;
    TRY(try_capture(m, e, in, out, &done));
    return done ? TN_OK : record_replay(m, NULL, in, out);
}
