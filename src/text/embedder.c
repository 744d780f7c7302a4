/* embedder.c — an open encoder: its weights, its operations, batches of texts of similar length; export to ONNX.
 *
 * f32 weights are borrowed from the mapped file. The projections of queries, keys and values are joined, because one
 * product is faster than three. Texts are sorted by length and cut into passes, so little padding is computed. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/encoder.h"
#include "text/llm_model.h"
#include "trunnion/onnx.h"

/* Records a pass: [batch, width] as a new handle. */
static tn_tensor *encoder_record(const encoder_config *c, const encoder_weights *w, const encoder_batch *b);
static tn_status encoder_write_onnx(const encoder_config *c, const encoder_weights *w, const char *path);

enum {
    MOST_ROWS = 2048, /* tokens of a pass: enough to be bound by arithmetic */
    SPARE_ROWS = 32,  /* that may be filled up in vain: another pass costs as much, */
    SPARE_SHARE = 8   /* or one in this many rows */
};

struct tn_embedder {
    hf_folder folder;
    tn_device *device;
    encoder_config config;
    encoder_weights weights;
    tn_llm *reader; /* NULL, or the language model whose hidden states are pooled */
};

/* ---- weights ----------------------------------------------------------------------------------------------------- */

/* A handle in the current scope, f32. */
static tn_tensor *load_embedder(const tn_embedder *e, const char *name) {
    tn_safetensors_info info = {.struct_size = sizeof info};
    if (!tn_hf_find(&e->folder, name, &info))
        return tn_failed(TN_ERR_FORMAT, "'%s' has no tensor '%s'", e->folder.path, name);
    tn_tensor *t = tn_hf_weights_tensor(e->folder.weights, info.name);
    return info.dtype == TN_F32 ? t : tn_cast(t, TN_F32);
}

static tn_tensor *load_part(const tn_embedder *e, int64_t layer, int part, const char *ending) {
    char name[HF_NAME_SIZE];
    tn_encoder_name(&e->config, layer, part, ending, name);
    return load_embedder(e, name);
}

/* The handle is the embedder's, whatever scope the caller stands in; computed now. */
static tn_status keep_embedder(tn_tensor *t, tn_tensor **out) {
    *out = tn_retain(t);
    return tn_eval(out, 1);
}

static tn_status take_pair(const tn_embedder *e, int64_t layer, int part, hf_linear *out) {
    TN_SCOPE;
    TRY(keep_embedder(load_part(e, layer, part, ".weight"), &out->weight));
    bool bare = layer >= 0 && e->config.family->bare & 1u << part;
    return bare ? TN_OK : keep_embedder(load_part(e, layer, part, ".bias"), &out->bias);
}

static tn_status take_joined(const tn_embedder *e, int64_t layer, const char *ending, tn_tensor **out) {
    TN_SCOPE;
    tn_tensor *parts[] = {load_part(e, layer, PART_Q, ending), load_part(e, layer, PART_K, ending),
                          load_part(e, layer, PART_V, ending)};
    return keep_embedder(tn_cat(parts, 3, 0), out);
}

static tn_status take_layer(const tn_embedder *e, int64_t layer, hf_linear l[LAYER_PARTS]) {
    const char *const *parts = e->config.family->parts;
    for (int part = PART_O; part < LAYER_PARTS; part++)
        if (parts[part]) TRY(take_pair(e, layer, part, &l[part]));
    if (parts[PART_QKV]) return TN_OK;
    TRY(take_joined(e, layer, ".weight", &l[PART_QKV].weight));
    return take_joined(e, layer, ".bias", &l[PART_QKV].bias);
}

/* Of rope: base^(-i / half), in steps that f32 can hold for any base. */
static tn_tensor *frequencies_of(const encoder_config *c) {
    int64_t half = c->hidden / c->heads / 2;
    tn_tensor *steps = tn_arange(0, (double)half, 1, TN_F64);
    return tn_cast(tn_exp(tn_mul_scalar(steps, -log(c->base) / (double)half)), TN_F32);
}

/* The rows of distances after their norm, and which row a distance has. */
static tn_status take_relative(tn_embedder *e) {
    const encoder_config *c = &e->config;
    AUTO_LINEAR hf_linear by = {NULL, NULL};
    int64_t count = 2 * c->longest - 1;
    AUTO_TXT_FREE float *room = tn_txt_alloc((size_t)count, sizeof *room);
    if (!room) return TN_ERR_MEMORY;
    for (int64_t i = 0; i < count; i++)
        room[i] = (float)tn_encoder_distance(c, i - c->longest + 1);
    TRY(take_pair(e, -1, TABLE_RELATIVE_NORM, &by));
    TN_SCOPE;
    TRY(keep_embedder(tn_hf_norm(load_part(e, -1, TABLE_RELATIVE, ".weight"), &by, c->eps), &e->weights.relative));
    return keep_embedder(tn_from_data(room, TN_DIMS(count, 1), TN_F32), &e->weights.distances);
}

static tn_status take_tables(tn_embedder *e) {
    const encoder_config *c = &e->config;
    const char *const *tables = c->family->tables;
    TN_SCOPE;
    TRY(keep_embedder(load_part(e, -1, TABLE_WORDS, ".weight"), &e->weights.words));
    tn_tensor *type = c->types > 0 ? tn_narrow(load_part(e, -1, TABLE_TYPES, ".weight"), 0, 0, 1) : NULL;
    tn_tensor *task = c->tasks ? tn_narrow(load_part(e, -1, TABLE_TASKS, ".weight"), 0, 0, 1) : NULL;
    if (task) type = type ? tn_add(type, task) : task;
    tn_tensor *places = type;
    if (tables[TABLE_POSITIONS])
        places = tn_narrow(load_part(e, -1, TABLE_POSITIONS, ".weight"), 0, c->first_position, c->longest);
    if (type && places != type) places = tn_add(places, type);
    if (places) TRY(keep_embedder(tn_contiguous(places), &e->weights.places));
    if (c->buckets > 0) TRY(keep_embedder(load_part(e, -1, TABLE_BUCKETS, ".weight"), &e->weights.buckets));
    if (c->base > 0) TRY(keep_embedder(frequencies_of(c), &e->weights.frequencies));
    if (c->span > 0) TRY(take_relative(e));
    if (c->projects) TRY(take_pair(e, -1, TABLE_PROJECTION, &e->weights.projection));
    if (tables[TABLE_LAST_NORM]) TRY(take_pair(e, -1, TABLE_LAST_NORM, &e->weights.last_norm));
    if (c->projects_texts) TRY(keep_embedder(load_part(e, -1, TABLE_OUTPUT, ".weight"), &e->weights.output.weight));
    return tables[TABLE_NORM] ? take_pair(e, -1, TABLE_NORM, &e->weights.norm) : TN_OK;
}

static tn_tensor *as_f32(tn_tensor *t) { return tn_dtype_of(t) == TN_F32 ? t : tn_cast(t, TN_F32); }

static tn_status take_dense(const tn_embedder *e, const encoder_dense *d, hf_linear *out) {
    AUTO_WEIGHTS hf_weights *w = NULL;
    TRY(tn_encoder_dense_weights(&e->folder, d, &w));
    TN_SCOPE;
    TRY(keep_embedder(as_f32(tn_hf_weights_tensor(w, "linear.weight")), &out->weight));
    return d->has_bias ? keep_embedder(as_f32(tn_hf_weights_tensor(w, "linear.bias")), &out->bias) : TN_OK;
}

static tn_status take_weights(tn_embedder *e) {
    e->weights.layers = tn_txt_zalloc((size_t)e->config.stored, sizeof *e->weights.layers);
    if (!e->weights.layers) return TN_ERR_MEMORY;
    TRY(take_tables(e));
    for (int64_t i = 0; i < e->config.stored; i++)
        TRY(take_layer(e, i, e->weights.layers[i]));
    for (int i = 0; i < e->config.dense_count; i++)
        TRY(take_dense(e, &e->config.dense[i], &e->weights.dense[i]));
    return TN_OK;
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static bool is_language_model(const hf_folder *f) {
    const char *type = tn_hf_text(f, "model_type", "");
    return tn_json_get(f->config, "text_config") || tn_llm_find_family(type, strlen(type), false);
}

/* The sizes of the language model; pooling and what follows are the folder's. */
static tn_status read_by_language_model(tn_embedder *e, const char *folder, const tn_embedder_options *options) {
    encoder_config *c = &e->config;
    TRY(tn_llm_open_reader(folder, e->device, &e->reader));
    const llm_config *l = &e->reader->config;
    c->layers = l->layers;
    c->heads = l->attention.heads;
    c->hidden = l->size[SIZE_HIDDEN];
    c->intermediate = l->size[SIZE_INTERMEDIATE];
    c->vocabulary = l->size[SIZE_VOCABULARY];
    c->longest = l->context;
    c->parameters = l->file.parameters;
    c->weights_bytes = l->file.weights_bytes;
    c->pooling = l->attention.bidirectional ? TN_POOLING_MEAN : TN_POOLING_LAST;
    TRY(tn_encoder_modules(&e->folder, options, c));
    AUTO_DEVICE(e->device);
    for (int i = 0; i < c->dense_count; i++)
        TRY(take_dense(e, &c->dense[i], &e->weights.dense[i]));
    return TN_OK;
}

static tn_status check_options(const tn_embedder_options *o) {
    if ((unsigned)o->pooling > TN_POOLING_LAST)
        return tn_backend_fail(
            TN_ERR_ARGUMENT,
            "tn_embedder_open: pooling is %d; it must be one of TN_POOLING_DEFAULT, TN_POOLING_MEAN, "
            "TN_POOLING_CLS, TN_POOLING_MAX, TN_POOLING_LAST",
            (int)o->pooling);
    if ((unsigned)o->norm > TN_EMBED_NORM_UNIT)
        return tn_backend_fail(
            TN_ERR_ARGUMENT,
            "tn_embedder_open: norm is %d; it must be one of TN_EMBED_NORM_DEFAULT, TN_EMBED_NORM_NONE, "
            "TN_EMBED_NORM_UNIT",
            (int)o->norm);
    return TN_OK;
}

static tn_status open_embedder(void *model, const char *folder, tn_device *device, const void *options) {
    tn_embedder *e = model;
    e->device = device;
    TRY(check_options(options));
    TRY(tn_hf_open(folder, &e->folder));
    const tn_json *text = tn_json_get(e->folder.config, "text_config"); /* of a model with pictures */
    if (tn_encoder_knows(tn_json_string(tn_json_get(text, "model_type"), ""))) e->folder.config = text;
    if (!tn_encoder_knows(tn_hf_text(&e->folder, "model_type", "")) && is_language_model(&e->folder))
        return read_by_language_model(e, folder, options);
    TRY(tn_encoder_configure(&e->folder, options, &e->config));
    AUTO_DEVICE(device);
    return take_weights(e);
}

static void close_embedder(void *model) {
    tn_embedder *e = model;
    if (!e) return;
    for (int64_t i = 0; e->weights.layers && i < e->config.stored; i++)
        for (int part = 0; part < LAYER_PARTS; part++)
            tn_hf_free_linear(&e->weights.layers[i][part]);
    tn_txt_free(e->weights.layers);
    tn_free(e->weights.words);
    tn_free(e->weights.places);
    tn_free(e->weights.buckets);
    tn_free(e->weights.frequencies);
    tn_free(e->weights.relative);
    tn_free(e->weights.distances);
    tn_llm_close(e->reader);
    hf_linear *const others[] = {&e->weights.norm, &e->weights.projection, &e->weights.last_norm, &e->weights.output};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        tn_hf_free_linear(others[i]);
    for (int i = 0; i < e->config.dense_count; i++)
        tn_hf_free_linear(&e->weights.dense[i]);
    tn_hf_close(&e->folder);
    tn_txt_free(e);
}

void tn_embedder_close(tn_embedder *e) { close_embedder(e); }

tn_status tn_embedder_open(const char *folder, const tn_embedder_options *options, tn_embedder **out) {
    static const hf_kind kind = {"tn_embedder_open",  "tn_embedder_options o = TN_EMBEDDER_DEFAULTS",
                                 sizeof(tn_embedder), offsetof(tn_embedder_options, device),
                                 open_embedder,       close_embedder};
    return tn_hf_open_model(&kind, folder, options, &(tn_embedder_options)TN_EMBEDDER_DEFAULTS, out);
}

tn_status tn_embedder_get_facts(const tn_embedder *e, tn_embedder_facts *facts) {
    TRY(tn_txt_check_facts("tn_embedder_get_facts: facts", e, facts));
    const encoder_config *c = &e->config;
    tn_embedder_facts full = {.struct_size = sizeof full,
                              .architecture =
                                  e->reader ? e->reader->config.family->architecture : c->family->model_type,
                              .layers = c->layers,
                              .hidden = c->hidden,
                              .intermediate = c->intermediate,
                              .heads = c->heads,
                              .vocabulary = c->vocabulary,
                              .width = c->width,
                              .longest = c->longest,
                              .parameters = c->parameters,
                              .weights_bytes = c->weights_bytes,
                              .pooling = c->pooling,
                              .norm = c->norm};
    return tn_result_write(facts, &full, sizeof full, "tn_embedder_get_facts: facts");
}

tn_status tn_embedder_export_onnx(tn_embedder *e, const char *path) {
    if (!e || !path) return tn_backend_fail(TN_ERR_ARGUMENT, "tn_embedder_export_onnx: the embedder or path is NULL");
    if (e->reader || e->config.span > 0)
        return tn_backend_fail(
            TN_ERR_UNSUPPORTED, "'%s': an embedder of the family %s cannot become an ONNX model; BERT's relatives can",
            e->folder.path, e->reader ? e->reader->config.family->architecture : e->config.family->model_type);
    AUTO_DEVICE(e->device);
    return encoder_write_onnx(&e->config, &e->weights, path);
}

static tn_tensor *pool_and_finish(const encoder_config *c, const encoder_weights *w, const tn_tensor *x,
                                  const tn_tensor *seen);

/* ---- passes ------------------------------------------------------------------------------------------------------ */

/* A text on its way: where its ids and its result are. */
typedef struct text_place {
    const int32_t *ids;
    int64_t length;
    float *out;
} text_place;

static int longer_first(const void *a, const void *b) {
    const text_place *x = a, *y = b;
    if (x->length != y->length) return x->length > y->length ? -1 : 1;
    return (x->out > y->out) - (x->out < y->out);
}

/* How many of the texts, the longest first, are computed at once: as many as fill a pass, unless filling up the next
 * one would cost more than a further pass. */
static int64_t choose_batch(const text_place *texts, int64_t count) {
    int64_t length = texts[0].length, spare = 0, n = 1;
    for (; n < count && (n + 1) * length <= MOST_ROWS; n++) {
        spare += length - texts[n].length;
        if (spare > SPARE_ROWS && spare > (n + 1) * length / SPARE_SHARE) break;
    }
    return n;
}

typedef struct pass_memory {
    int64_t *ids, *places;
    float *seen, *out;
} pass_memory;

static void fill_embedder(const text_place *texts, int64_t batch, const pass_memory *m) {
    int64_t length = texts[0].length;
    for (int64_t i = 0; i < length; i++)
        m->places[i] = i;
    for (int64_t b = 0; b < batch; b++)
        for (int64_t i = 0; i < length; i++) {
            bool there = i < texts[b].length;
            m->ids[b * length + i] = there ? texts[b].ids[i] : 0;
            m->seen[b * length + i] = there;
        }
}

static tn_status run_pass(const tn_embedder *e, const text_place *texts, int64_t batch, const pass_memory *m) {
    int64_t length = texts[0].length, width = e->config.width;
    bool full = texts[batch - 1].length == length;
    fill_embedder(texts, batch, m);
    TN_SCOPE;
    TN_NO_GRAD;
    encoder_batch b = {.ids = tn_from_data(m->ids, TN_DIMS(batch, length), TN_I64),
                       .places = tn_from_data(m->places, TN_DIMS(length), TN_I64)};
    if (!full) b.seen = tn_from_data(m->seen, TN_DIMS(batch, length), TN_F32);
    AUTO_TXT_TENSOR tn_tensor *y = encoder_record(&e->config, &e->weights, &b);
    TRY(tn_read(y, m->out, (size_t)(batch * width) * sizeof *m->out));
    for (int64_t i = 0; i < batch; i++)
        memcpy(texts[i].out, m->out + i * width, (size_t)width * sizeof *m->out);
    return TN_OK;
}

/* One text by the language model. */
static tn_status run_reader(const tn_embedder *e, const text_place *text, const pass_memory *m) {
    fill_embedder(text, 1, m);
    TN_SCOPE;
    TN_NO_GRAD;
    tn_tensor *ids = tn_from_data(m->ids, TN_DIMS(text->length), TN_I64);
    tn_tensor *places = tn_from_data(m->places, TN_DIMS(text->length), TN_I64);
    AUTO_TXT_TENSOR tn_tensor *states = tn_llm_record_states(&e->reader->config, &e->reader->weights, ids, places);
    tn_tensor *y = pool_and_finish(&e->config, &e->weights, tn_unsqueeze(states, 0), NULL);
    return tn_read(y, text->out, (size_t)e->config.width * sizeof *text->out);
}

static tn_status run_passes(const tn_embedder *e, const text_place *texts, int64_t count, const pass_memory *m) {
    for (int64_t i = 0; e->reader && i < count; i++)
        TRY(run_reader(e, &texts[i], m));
    if (e->reader) return TN_OK;
    for (int64_t done = 0, n; done < count; done += n) {
        n = choose_batch(texts + done, count - done);
        TRY(run_pass(e, texts + done, n, m));
    }
    return TN_OK;
}

static tn_status check_text(const tn_embedder *e, const int32_t *ids, int64_t length, int64_t which) {
    if (length < 1 || length > e->config.longest)
        return tn_backend_fail(TN_ERR_ARGUMENT, "text %" PRId64 " has %" PRId64 " tokens; '%s' supports 1 to %" PRId64,
                               which, length, e->folder.path, e->config.longest);
    for (int64_t i = 0; i < length; i++)
        if (ids[i] < 0 || ids[i] >= e->config.vocabulary)
            return tn_backend_fail(TN_ERR_ARGUMENT,
                                   "token %" PRId64 " of text %" PRId64 " is %" PRId32
                                   ", but the vocabulary has %" PRId64 " tokens",
                                   i, which, ids[i], e->config.vocabulary);
    return TN_OK;
}

static tn_status check_numbers(const tn_embedder *e, const text_place *texts, int64_t count) {
    for (int64_t i = 0; i < count * e->config.width; i++)
        if (isnan(texts[i / e->config.width].out[i % e->config.width]))
            return tn_backend_fail(TN_ERR_FORMAT,
                                   "'%s': number %" PRId64 " of an embedding is not a number; are the weights damaged?",
                                   e->folder.path, i % e->config.width);
    return TN_OK;
}

/* A pass has MOST_ROWS tokens at most, or is a single text. */
static tn_status embed(const tn_embedder *e, text_place *texts, int64_t count) {
    qsort(texts, (size_t)count, sizeof *texts, longer_first);
    size_t rows = texts[0].length > MOST_ROWS ? (size_t)texts[0].length : MOST_ROWS;
    pass_memory m = {.ids = tn_txt_alloc(rows, sizeof *m.ids),
                     .places = tn_txt_alloc(rows, sizeof *m.places),
                     .seen = tn_txt_alloc(rows, sizeof *m.seen),
                     .out = tn_txt_alloc(rows, (size_t)e->config.width * sizeof *m.out)};
    tn_status status = TN_ERR_MEMORY;
    if (m.ids && m.places && m.seen && m.out) status = run_passes(e, texts, count, &m);
    if (status == TN_OK) status = check_numbers(e, texts, count);
    tn_txt_free_each(m.ids, m.places, m.seen, m.out);
    return status;
}

tn_status tn_embedder_run(tn_embedder *e, const int32_t *ids, const int64_t *lengths, int64_t count, float *out) {
    if (!e || !ids || !lengths || !out || count < 1)
        return tn_backend_fail(TN_ERR_ARGUMENT,
                               "tn_embedder_run: a pointer is NULL, or the number of texts is %" PRId64, count);
    AUTO_TXT_FREE text_place *texts = tn_txt_alloc((size_t)count, sizeof *texts);
    if (!texts) return TN_ERR_MEMORY;
    for (int64_t i = 0; i < count; i++) {
        TRY(check_text(e, ids, lengths[i], i));
        texts[i] = (text_place){ids, lengths[i], out + i * e->config.width};
        ids += lengths[i];
    }
    AUTO_DEVICE(e->device);
    return embed(e, texts, count);
}

/* ==== operations ================================================================================================== */
/* Rows of all texts stand one after the other, [batch · length, hidden], so that every linear layer is one product;
 * attention alone looks at them text by text. What is to become an ONNX model keeps the texts apart: its extents are
 * open, and a product of two has no name. */

static tn_tensor *rows(const encoder_config *c, const tn_tensor *x, const encoder_batch *b) {
    int64_t batch = tn_size(b->ids, 0), length = tn_size(b->ids, 1);
    int64_t width = tn_size(x, -1) * (tn_rank(x) == 4 ? c->heads : 1); /* or of all heads */
    return b->apart ? tn_reshape(x, TN_DIMS(batch, length, width)) : tn_reshape(x, TN_DIMS(batch * length, width));
}

/* Part i of the joined product as [batch, heads, length, features]. */
static tn_tensor *heads(const encoder_config *c, const tn_tensor *qkv, int64_t i, const encoder_batch *b) {
    int64_t batch = tn_size(b->ids, 0), length = tn_size(b->ids, 1);
    tn_tensor *part = tn_narrow(qkv, -1, i * c->hidden, c->hidden);
    return tn_transpose(tn_reshape(part, TN_DIMS(batch, length, c->heads, c->hidden / c->heads)), 1, 2);
}

/* Shared by all layers: the mask or the bias added to the scores, and rope's angles. */
typedef struct encoder_shared {
    tn_tensor *mask, *cosine, *sine; /* NULL: none */
    tn_tensor *rows;                 /* NULL, or rows of the table of distances, [length, length] i64 */
} encoder_shared;

/* [2 · span, hidden] of the table of distances, projected as queries (0) or keys (1): [heads, width, 2 · span]. */
static tn_tensor *project_distances(const encoder_config *c, const encoder_weights *w, const hf_linear *l, int which) {
    int64_t from = which * c->hidden;
    tn_tensor *y = tn_linear(w->relative, tn_narrow(l[PART_QKV].weight, 0, from, c->hidden),
                             tn_narrow(l[PART_QKV].bias, 0, from, c->hidden));
    return tn_permute(tn_reshape(y, TN_DIMS(2 * c->span, c->heads, c->hidden / c->heads)), TN_DIMS(1, 2, 0));
}

/* What is added to scores: the query with the distance's key, and the key with the distance's query.
 * Source: He et al. 2021, "DeBERTa", equation 4, with the matrices of queries and keys for both (version 3). */
static tn_tensor *disentangled(const encoder_config *c, const encoder_weights *w, const hf_linear *l,
                               const encoder_shared *with, tn_tensor *const part[3], double scale) {
    const int64_t all[] = {tn_size(part[0], 0), c->heads, tn_size(part[0], 2), tn_size(part[0], 2)};
    tn_tensor *rows = tn_expand(with->rows, all, 4), *turned = tn_expand(tn_transpose(with->rows, 0, 1), all, 4);
    tn_tensor *keys = tn_matmul(part[0], project_distances(c, w, l, 1));
    tn_tensor *queries = tn_matmul(part[1], project_distances(c, w, l, 0));
    tn_tensor *bias = tn_add(tn_gather(keys, 3, rows), tn_transpose(tn_gather(queries, 3, turned), 2, 3));
    bias = tn_mul_scalar(bias, scale);
    return with->mask ? tn_where(with->mask, bias, tn_scalar(-INFINITY)) : bias;
}

static tn_tensor *attention(const encoder_config *c, const encoder_weights *w, const hf_linear *l, const tn_tensor *x,
                            const encoder_shared *with, const encoder_batch *b) {
    tn_scaled_dot_product_attention_options o = TN_SCALED_DOT_PRODUCT_ATTENTION_DEFAULTS;
    tn_rope_options rope = TN_ROPE_DEFAULTS;
    rope.interleaved = c->family->interleaved;
    o.is_causal = c->family->causal && !with->mask;
    tn_tensor *qkv = tn_hf_linear(x, &l[PART_QKV]), *part[3], *mask = with->mask;
    for (int64_t i = 0; i < 3; i++)
        part[i] = heads(c, qkv, i, b);
    for (int i = 0; i < 2 && with->cosine; i++)
        part[i] = tn_rope(part[i], with->cosine, with->sine, &rope);
    if (with->rows) { /* three summands of scores share the scale */
        o.scale = 1 / sqrt(3.0 * (double)c->hidden / (double)c->heads);
        mask = disentangled(c, w, l, with, part, o.scale);
    }
    tn_tensor *mixed = tn_scaled_dot_product_attention(part[0], part[1], part[2], mask, &o);
    return tn_hf_linear(rows(c, tn_transpose(mixed, 1, 2), b), &l[PART_O]);
}

static tn_tensor *feed_forward(const encoder_config *c, const hf_linear *l, const tn_tensor *x) {
    tn_tensor *up = tn_hf_linear(x, &l[PART_UP]), *gate = NULL;
    if (c->family->fused_gate) {
        gate = tn_narrow(up, -1, c->intermediate, c->intermediate);
        up = tn_narrow(up, -1, 0, c->intermediate);
    } else if (l[PART_GATE].weight) {
        gate = tn_hf_linear(x, &l[PART_GATE]);
    }
    return tn_hf_linear(gate ? tn_mul(c->activation(gate), up) : c->activation(up), &l[PART_DOWN]);
}

static tn_tensor *layers(const encoder_config *c, const encoder_weights *w, tn_tensor *x, const encoder_shared *with,
                         const encoder_batch *b) {
    for (int64_t i = 0; i < c->layers; i++) {
        const hf_linear *l = w->layers[i % c->stored];
        if (c->family->norm_first) {
            x = tn_add(x, attention(c, w, l, tn_hf_norm(x, &l[PART_NORM1], c->eps), with, b));
            x = tn_add(x, feed_forward(c, l, tn_hf_norm(x, &l[PART_NORM2], c->eps)));
            continue;
        }
        x = tn_hf_norm(tn_add(x, attention(c, w, l, x, with, b)), &l[PART_NORM1], c->eps);
        x = tn_hf_norm(tn_add(x, feed_forward(c, l, x)), &l[PART_NORM2], c->eps);
    }
    return x;
}

/* x [batch, length, hidden] → [batch, hidden]. */
static tn_tensor *pool(const encoder_config *c, const tn_tensor *x, const tn_tensor *seen) {
    if (c->pooling == TN_POOLING_CLS) return tn_select(x, 1, 0);
    if (c->pooling == TN_POOLING_LAST && !seen) return tn_select(x, 1, tn_size(x, 1) - 1);
    if (c->pooling == TN_POOLING_LAST) { /* the token that is the text's length-th to be seen */
        tn_tensor *last = tn_eq(tn_cumsum(seen, 1), tn_sum(seen, (int64_t[]){1}, 1, true));
        tn_tensor *chosen = tn_mul(tn_cast(last, TN_F32), seen);
        return tn_sum(tn_mul(x, tn_unsqueeze(chosen, 2)), (int64_t[]){1}, 1, false);
    }
    if (c->pooling == TN_POOLING_MAX) {
        if (seen) x = tn_masked_fill(x, tn_unsqueeze(tn_eq_scalar(seen, 0), 2), -1e30);
        return tn_amax(x, (int64_t[]){1}, 1, false);
    }
    if (!seen) return tn_mean(x, (int64_t[]){1}, 1, false);
    tn_tensor *sum = tn_sum(tn_mul(x, tn_unsqueeze(seen, 2)), (int64_t[]){1}, 1, false);
    return tn_div(sum, tn_sum(seen, (int64_t[]){1}, 1, true));
}

/* x / max(‖x‖, 1e-12), row by row. */
static tn_tensor *to_unit(const tn_tensor *x) {
    tn_tensor *square = tn_sum(tn_mul(x, x), (int64_t[]){1}, 1, true);
    return tn_mul(x, tn_rsqrt(tn_clamp(square, 1e-24, INFINITY)));
}

/* Keys that are seen; for open extents with the queries written out, as an extent that is repeated has no name. */
static tn_tensor *encoder_mask_of(const encoder_batch *b, int64_t batch, int64_t length) {
    tn_tensor *keys = tn_reshape(b->seen, TN_DIMS(batch, 1, 1, length));
    if (b->apart) keys = tn_mul(keys, tn_unsqueeze(tn_unsqueeze(tn_ones_like(b->seen), 1), 3));
    return tn_gt_scalar(keys, 0);
}

static tn_tensor *pool_and_finish(const encoder_config *c, const encoder_weights *w, const tn_tensor *x,
                                  const tn_tensor *seen) {
    tn_tensor *y = pool(c, x, seen);
    if (w->output.weight) y = tn_hf_linear(y, &w->output);
    for (int i = 0; i < c->dense_count; i++)
        y = c->dense[i].activation(tn_hf_linear(y, &w->dense[i]));
    return c->norm == TN_EMBED_NORM_UNIT ? to_unit(y) : y;
}

/* What a query's distance to each key adds to their score, [batch or 1, heads, length, length]. Near distances have a
 * row of the table each, far ones share rows by their logarithm, half of the rows for either side.
 * Source: Raffel et al. 2020, section 2.1, as transformers' MPNet computes it. */
static tn_tensor *distance_bias(const encoder_config *c, const encoder_weights *w, const encoder_batch *b) {
    enum { MOST_DISTANCE = 128 };
    double side = (double)(c->buckets / 2), exact = floor(side / 2);
    tn_tensor *places = tn_cast(b->places, TN_F32);
    tn_tensor *back = tn_sub(tn_unsqueeze(places, -1), tn_unsqueeze(places, -2)), *away = tn_abs(back);
    tn_tensor *far = tn_log(tn_clamp(tn_div_scalar(away, exact), 1, INFINITY));
    far = tn_mul_scalar(tn_div_scalar(far, log(MOST_DISTANCE / exact)), side - exact);
    far = tn_clamp(tn_add_scalar(tn_floor(far), exact), 0, side - 1);
    tn_tensor *row = tn_where(tn_lt_scalar(away, exact), away, far);
    row = tn_add(row, tn_mul_scalar(tn_cast(tn_lt_scalar(back, 0), TN_F32), side));
    tn_tensor *bias = tn_embedding(tn_cast(row, TN_I64), w->buckets);
    if (tn_rank(bias) == 3) bias = tn_unsqueeze(bias, 0);
    return tn_permute(bias, TN_DIMS(0, 3, 1, 2));
}

static encoder_shared share(const encoder_config *c, const encoder_weights *w, const encoder_batch *b) {
    encoder_shared s = {0};
    if (b->seen && !c->family->causal) s.mask = encoder_mask_of(b, tn_size(b->ids, 0), tn_size(b->ids, 1));
    if (c->family->causal && b->apart) {
        tn_tensor *seen = tn_ge(tn_unsqueeze(b->places, 2), tn_unsqueeze(b->places, 1));
        s.mask = tn_unsqueeze(seen, 1);
    }
    if (w->buckets) {
        tn_tensor *bias = distance_bias(c, w, b);
        s.mask = s.mask ? tn_where(s.mask, bias, tn_scalar(-INFINITY)) : bias;
    }
    if (w->relative) {
        tn_tensor *places = tn_cast(b->places, TN_I64);
        tn_tensor *back = tn_sub(tn_unsqueeze(places, 1), tn_unsqueeze(places, 0));
        tn_tensor *row = tn_embedding(tn_add(back, tn_scalar_int(c->longest - 1)), w->distances);
        s.rows = tn_cast(tn_reshape(row, TN_DIMS(tn_size(places, 0), tn_size(places, 0))), TN_I64);
    }
    if (!w->frequencies) return s;
    tn_tensor *angle = tn_mul(tn_unsqueeze(tn_cast(b->places, TN_F32), -1), w->frequencies);
    if (tn_rank(angle) == 3) angle = tn_unsqueeze(angle, 1);
    s.cosine = tn_cos(angle);
    s.sine = tn_sin(angle);
    return s;
}

/* Zeros for mask tokens; the other rows are scaled by the share of tokens that were not masked in training, relative to
 * that of the text. Source: Lin et al. 2023, "Evolutionary-scale prediction of atomic-level protein structure with a
 * language model" (ESM-2), as transformers computes it. */
static tn_tensor *drop_masked(const encoder_config *c, tn_tensor *x, const encoder_batch *b) {
    static const double LEFT_IN_TRAINING = 1 - 0.15 * 0.8;
    tn_tensor *masked = tn_eq_scalar(b->ids, (double)c->mask_token), *there = tn_cast(tn_logical_not(masked), TN_F32);
    tn_tensor *all = b->seen ? b->seen : tn_ones_like(there);
    tn_tensor *left = tn_div(tn_sum(tn_mul(there, all), (int64_t[]){1}, 1, true), tn_sum(all, (int64_t[]){1}, 1, true));
    tn_tensor *scale = tn_div(tn_mul_scalar(there, LEFT_IN_TRAINING), left);
    return tn_mul(x, tn_unsqueeze(scale, 2));
}

/* Rows of the words, with those of their positions or of the first type. */
static tn_tensor *embed_words(const encoder_config *c, const encoder_weights *w, const encoder_batch *b) {
    tn_tensor *x = tn_embedding(b->ids, w->words);
    if (c->mask_token >= 0) x = drop_masked(c, x, b);
    if (!w->places) return x;
    return tn_add(x, c->family->tables[TABLE_POSITIONS] ? tn_embedding(b->places, w->places) : w->places);
}

static tn_tensor *encoder_record(const encoder_config *c, const encoder_weights *w, const encoder_batch *b) {
    int64_t batch = tn_size(b->ids, 0), length = tn_size(b->ids, 1);
    tn_tensor *result = NULL;
    TN_SCOPE;
    tn_tensor *x = rows(c, embed_words(c, w, b), b);
    if (w->norm.weight) x = tn_hf_norm(x, &w->norm, c->eps);
    if (w->projection.weight) x = tn_hf_linear(x, &w->projection);
    const encoder_shared with = share(c, w, b);
    x = layers(c, w, x, &with, b);
    if (w->last_norm.weight) x = tn_hf_norm(x, &w->last_norm, c->eps);
    x = tn_reshape(x, TN_DIMS(batch, length, c->hidden));
    result = tn_retain(pool_and_finish(c, w, x, b->seen));
    return result;
}

/* ==== export to ONNX ============================================================================================== */
/* Exports the recording that also computes embeddings, with batch and token count as symbolic extents. Positions are
 * counted inside the model, so its inputs are exactly the outputs of Hugging Face's tokenizers. */

enum { SYMBOL_BATCH = 0, SYMBOL_TOKENS = 1, SOME_TEXTS = 2, SOME_TOKENS = 8, MOST_PARTS = 7 };

/* Tensors with names. */
typedef struct named_weights {
    tn_named_tensor *list;
    char (*names)[HF_NAME_SIZE];
    int count;
} named_weights;

static void free_names(named_weights *n) { tn_txt_free_each(n->list, n->names); }

static void add_name(named_weights *n, const tn_tensor *t) {
    n->list[n->count] = (tn_named_tensor){n->names[n->count], t};
    n->count++;
}

static void name_pair(named_weights *n, const encoder_config *c, int64_t layer, int part, const hf_linear *l) {
    tn_encoder_name(c, layer, part, ".weight", n->names[n->count]);
    add_name(n, l->weight);
    if (!l->bias) return;
    tn_encoder_name(c, layer, part, ".bias", n->names[n->count]);
    add_name(n, l->bias);
}

static void name_layer(named_weights *n, const encoder_config *c, int64_t layer, const hf_linear l[LAYER_PARTS]) {
    for (int part = 0; part < PART_QKV; part++)
        if (l[part].weight) name_pair(n, c, layer, part, &l[part]);
    snprintf(n->names[n->count], HF_NAME_SIZE, "%s%lld.qkv.weight", c->family->layer, (long long)layer);
    add_name(n, l[PART_QKV].weight);
    snprintf(n->names[n->count], HF_NAME_SIZE, "%s%lld.qkv.bias", c->family->layer, (long long)layer);
    if (l[PART_QKV].bias) add_name(n, l[PART_QKV].bias);
}

static tn_status name_weights(const encoder_config *c, const encoder_weights *w, named_weights *n) {
    size_t most = 11 + 2 * MOST_PARTS * (size_t)c->layers + 2 * ENC_MOST_DENSE;
    n->list = tn_txt_zalloc(most, sizeof *n->list);
    n->names = tn_txt_zalloc(most, sizeof *n->names);
    if (!n->list || !n->names) return TN_ERR_MEMORY;
    tn_encoder_name(c, -1, TABLE_WORDS, ".weight", n->names[n->count]);
    add_name(n, w->words);
    snprintf(n->names[n->count], HF_NAME_SIZE, "places.weight"); /* a position's row and the first type's together */
    if (w->places) add_name(n, w->places);
    tn_encoder_name(c, -1, TABLE_BUCKETS, ".weight", n->names[n->count]);
    if (w->buckets) add_name(n, w->buckets);
    snprintf(n->names[n->count], HF_NAME_SIZE, "rotary_emb.inv_freq");
    if (w->frequencies) add_name(n, w->frequencies);
    if (w->norm.weight) name_pair(n, c, -1, TABLE_NORM, &w->norm);
    if (w->projection.weight) name_pair(n, c, -1, TABLE_PROJECTION, &w->projection);
    if (w->last_norm.weight) name_pair(n, c, -1, TABLE_LAST_NORM, &w->last_norm);
    if (w->output.weight) name_pair(n, c, -1, TABLE_OUTPUT, &w->output);
    for (int64_t i = 0; i < c->stored; i++)
        name_layer(n, c, i, w->layers[i]);
    for (int i = 0; i < c->dense_count; i++) {
        snprintf(n->names[n->count], HF_NAME_SIZE, "dense.%d.weight", i);
        add_name(n, w->dense[i].weight);
        snprintf(n->names[n->count], HF_NAME_SIZE, "dense.%d.bias", i);
        if (w->dense[i].bias) add_name(n, w->dense[i].bias);
    }
    return TN_OK;
}

static tn_tensor *open_input(const int64_t *numbers) {
    tn_tensor *t = tn_from_data(numbers, TN_DIMS(SOME_TEXTS, SOME_TOKENS), TN_I64);
    return tn_symbolic(tn_symbolic(t, 0, SYMBOL_BATCH), 1, SYMBOL_TOKENS);
}

static tn_status encoder_write_onnx(const encoder_config *c, const encoder_weights *w, const char *path) {
    static const int64_t some[SOME_TEXTS * SOME_TOKENS];
    AUTO_CALL(free_names) named_weights n = {0};
    TRY(name_weights(c, w, &n));
    TN_SCOPE;
    TN_NO_GRAD;
    tn_tensor *ids = open_input(some), *mask = open_input(some);
    encoder_batch b = {.ids = ids,
                       .places = tn_sub(tn_cumsum(tn_ones_like(ids), 1), tn_scalar_int(1)),
                       .seen = tn_cast(mask, TN_F32),
                       .apart = true};
    AUTO_TXT_TENSOR tn_tensor *y = encoder_record(c, w, &b);
    const tn_named_tensor inputs[] = {{"input_ids", ids}, {"attention_mask", mask}};
    tn_onnx_export_options o = TN_ONNX_EXPORT_DEFAULTS;
    o.name = c->family->model_type;
    o.dims[0] = "batch";
    o.dims[1] = "tokens";
    o.weights = n.list;
    o.weight_count = n.count;
    return tn_onnx_export(path, inputs, 2, &(tn_named_tensor){"embedding", y}, 1, &o);
}
