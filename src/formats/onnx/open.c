/* open.c — the public face: opening and asking models, values in and out. */
#include <string.h>

#include "formats/onnx/model.h"
#include "graph/graph.h"

/* ---- models ------------------------------------------------------------------------------------------------------ */

void tn_onnx_close(tn_onnx *m) {
    if (!m) return;
    onnx_replays_free(m);
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

/* Reads what m->source.file, or a copy, holds; m is handed out or freed. */
static tn_status finish_model(tn_onnx *m, onnx_text message, const char *path, const tn_onnx_options *o,
                              tn_onnx **out) {
    tn_status status = set_folder(m, path, o);
    if (status == TN_OK) status = onnx_model_read(m, message);
    m->is_inert = o->weights_only;
    if (status == TN_OK) status = onnx_model_list_weights(m);
    if (status == TN_OK && !m->is_inert) status = onnx_model_resolve(m, o->report);
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
    TRY(tn_need(info, "tn_onnx: info"));
    if (info->struct_size < sizeof *info)
        return tn_fail(TN_ERR_ARGUMENT, "tn_onnx: set struct_size to sizeof(tn_onnx_info)");
    if (i < 0 || i >= count) return tn_fail(TN_ERR_ARGUMENT, "%s %d of a model that has %d", what, i, count);
    static const onnx_declared unknown = {.rank = -1};
    const onnx_declared *t = ports[i].type ? ports[i].type : &unknown;
    info->name = ports[i].name;
    info->kind = t->kind;
    info->type = onnx_types[t->type].name;
    info->dtype = onnx_types[t->type].dtype;
    info->rank = t->rank;
    memcpy(info->shape, t->shape, sizeof info->shape);
    memcpy(info->dims, t->dims, sizeof info->dims);
    return TN_OK;
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
        tn_fail(TN_ERR_ARGUMENT, "tn_onnx_value_strings: a text, the shape or an extent of it is not there");
        return NULL;
    }
    onnx_text *list = tn_mem_zalloc((size_t)count, sizeof *list);
    if (!list) return NULL;
    for (int64_t i = 0; i < count; i++)
        list[i] = (onnx_text){texts[i], lengths ? lengths[i] : strlen(texts[i])};
    onnx_value *v = onnx_value_strings(list, shape, rank);
    tn_mem_free(list);
    return v;
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
        tn_fail(TN_ERR_ARGUMENT, "tn_onnx_value_map: keys have to be texts or i64, as many as items, in one dim");
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
    return tn_fail(TN_ERR_ARGUMENT, "tn_onnx_value_decode: there is no kind %d", (int)kind);
}

void tn_onnx_value_free(tn_onnx_value *v) { onnx_value_release(v); }

tn_onnx_kind tn_onnx_value_kind(const tn_onnx_value *v) { return v ? v->kind : TN_ONNX_TENSOR; }

const char *tn_onnx_value_type(const tn_onnx_value *v) { return onnx_types[v ? v->type : ONNX_UNDEFINED].name; }

tn_tensor *tn_onnx_value_get(const tn_onnx_value *v) {
    if (v && v->kind == ONNX_TENSOR) return v->tensor;
    tn_fail(TN_ERR_ARGUMENT, "tn_onnx_value_get: %s", v ? "this value is no tensor of numbers" : "the value is NULL");
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
        tn_fail(TN_ERR_ARGUMENT, "tn_onnx_value_string: there is no text %lld", (long long)i);
        return NULL;
    }
    *length = v->strings[i].size;
    return v->strings[i].at;
}

const tn_onnx_value *tn_onnx_value_item(const tn_onnx_value *v, int64_t i) {
    if (v && v->items && i >= 0 && i < v->count) return v->items[i];
    tn_fail(TN_ERR_ARGUMENT, "tn_onnx_value_item: there is no item %lld", (long long)i);
    return NULL;
}

const tn_onnx_value *tn_onnx_value_keys(const tn_onnx_value *v) {
    if (v && v->keys) return v->keys;
    tn_fail(TN_ERR_ARGUMENT, "tn_onnx_value_keys: %s", v ? "this value is no map" : "the value is NULL");
    return NULL;
}
