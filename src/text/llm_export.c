/* llm_export.c — a decoder as an ONNX model: ids in, logits behind each of them out, and beside them keys and values of
 * what was before, if the model is to have such a cache.
 *
 * The recording is the one that computes (llm_record.c), but that attention sees inputs instead of pages of a cache,
 * and that a mask says what. Open extents are the numbers of tokens, now and before; without a cache all follows from
 * the ids' number, so no other input is left. With one, inputs and outputs have the names and extents of Hugging Face's
 * exporter, by which those who generate with such models know them, but of one text: the batch is 1. */
#include <inttypes.h>
#include <stdio.h>

#include "text/llm_model.h"
#include "trunnion/onnx.h"

/* In the order in which their sum is spelled. What the recording itself has of each differs: equal extents are one. */
enum { SYMBOL_PAST, SYMBOL_TOKENS, SYMBOL_ALL };
enum { SOME_PAST = 5, SOME_TOKENS = 8 };

/* Tensors with the names that they have in the file. */
typedef struct named_weights {
    tn_named_tensor *list;
    int count;
} named_weights;

static void add_name(named_weights *n, const llm_source *s, const llm_naming *naming, int64_t layer, int slot,
                     const tn_tensor *t) {
    llm_tensor info = {.struct_size = sizeof info};
    char name[LLM_NAME_SIZE];
    if (!t || !tn_llm_name(naming, name, layer, slot) || tn_llm_source_find(s, name, &info) != TN_OK) return;
    n->list[n->count++] = (tn_named_tensor){info.name, t};
}

static tn_status name_weights(const llm_source *s, const llm_config *c, const llm_weights *w, named_weights *n) {
    size_t most = HEAD_SLOTS + (size_t)c->layers * LAYER_SLOTS + 2;
    n->list = tn_txt_zalloc(most, sizeof *n->list);
    if (!n->list) return TN_ERR_MEMORY;
    for (int slot = 0; slot < HEAD_SLOTS; slot++)
        add_name(n, s, c->naming, -1, slot, w->head[slot]);
    for (int64_t i = 0; i < c->layers; i++)
        for (int slot = 0; slot < LAYER_SLOTS; slot++)
            add_name(n, s, c->naming, i, slot, w->layers[i].weight[slot]);
    static const char *const ropes[] = {"rotary_emb.inv_freq", "rotary_emb_local.inv_freq"};
    for (int i = 0; i < 2; i++)
        if (w->rope[i]) n->list[n->count++] = (tn_named_tensor){ropes[i], w->rope[i]};
    return TN_OK;
}

/* 0, 1, 2 … for as many as x has. */
static tn_tensor *count_places(const tn_tensor *x) { return tn_sub(tn_cumsum(tn_ones_like(x), 0), tn_scalar_int(1)); }

static tn_tensor *export_count_of(const tn_tensor *x) { return tn_sum(tn_ones_like(x), NULL, 0, false); }

/* [1, n] as [n]. */
static tn_tensor *flat(const tn_tensor *x) { return tn_reshape(x, TN_DIMS(tn_size(x, 1))); }

/* What attention and rope want. `query` and `key`: places in the text, `there`: keys that may be seen. A token sees
 * itself in any case: of nothing nobody can make a mean. */
static llm_inputs inputs_of(const llm_config *c, const llm_weights *w, const tn_tensor *ids, const tn_tensor *positions,
                            const tn_tensor *query, const tn_tensor *key, const tn_tensor *there) {
    llm_inputs in = {.rows = tn_embedding(ids, w->head[SLOT_EMBEDDING]),
                     .positions = tn_reshape(tn_cast(positions, TN_F32), TN_DIMS(tn_size(ids, 0), 1, 1))};
    query = tn_unsqueeze(query, 1), key = tn_unsqueeze(key, 0);
    in.seen = tn_le(key, query);
    if (there) in.seen = tn_logical_or(tn_logical_and(in.seen, there), tn_eq(key, query));
    if (c->window) in.near = tn_logical_and(in.seen, tn_lt_scalar(tn_sub(query, key), (double)c->window));
    return in;
}

/* What becomes a file. Lists belong to it, tensors to the scope. */
typedef struct network {
    tn_named_tensor *in, *out;
    char (*names)[LLM_NAME_SIZE];
    tn_tensor **past, **present;
    float *zeros; /* a layer's SOME_PAST keys */
    int in_count, out_count, name_count;
} network;

enum { OWN_INPUTS = 3, OWN_OUTPUTS = 1, A_LAYER = 2 };

static tn_status begin_network(network *n, const llm_config *c) {
    size_t each = A_LAYER * (size_t)c->layers;
    n->zeros = tn_txt_zalloc(SOME_PAST * (size_t)c->size[SIZE_KEYS], sizeof *n->zeros);
    n->in = tn_txt_zalloc(OWN_INPUTS + each, sizeof *n->in);
    n->out = tn_txt_zalloc(OWN_OUTPUTS + each, sizeof *n->out);
    n->names = tn_txt_zalloc(2 * each, sizeof *n->names);
    n->past = tn_txt_zalloc(each, sizeof(tn_tensor *));
    n->present = tn_txt_zalloc(each, sizeof(tn_tensor *));
    return n->zeros && n->in && n->out && n->names && n->past && n->present ? TN_OK : TN_ERR_MEMORY;
}

static void end_network(network *n, int64_t layers) {
    for (int64_t i = 0; n->present && i < A_LAYER * layers; i++)
        tn_free(n->present[i]);
    tn_txt_free(n->in);
    tn_txt_free(n->out);
    tn_txt_free(n->names);
    tn_txt_free(n->past);
    tn_txt_free(n->present);
    tn_txt_free(n->zeros);
}

static const char *layer_name(network *n, const char *what, int64_t i) {
    char *name = n->names[n->name_count++];
    snprintf(name, LLM_NAME_SIZE, "%s.%" PRId64 ".%s", what, i / A_LAYER, i % A_LAYER ? "value" : "key");
    return name;
}

/* [1, extent], which is open. */
static tn_tensor *add_row(network *n, const char *name, int64_t extent, int symbol) {
    static const int64_t some[SOME_PAST + SOME_TOKENS];
    tn_tensor *t = tn_symbolic(tn_from_data(some, TN_DIMS(1, extent), TN_I64), 1, symbol);
    n->in[n->in_count++] = (tn_named_tensor){name, t};
    return t;
}

static void add_past(network *n, const llm_config *c) {
    const int64_t shape[] = {1, c->kv_heads, SOME_PAST, c->size[SIZE_HEAD]};
    for (int64_t i = 0; i < A_LAYER * c->layers; i++) {
        n->past[i] = tn_symbolic(tn_from_data(n->zeros, shape, 4, TN_F32), 2, SYMBOL_PAST);
        n->in[n->in_count++] = (tn_named_tensor){layer_name(n, "past_key_values", i), n->past[i]};
    }
}

static llm_inputs add_inputs(network *n, const llm_config *c, const llm_weights *w, bool cache) {
    tn_tensor *ids = flat(add_row(n, "input_ids", SOME_TOKENS, SYMBOL_TOKENS)), *places = count_places(ids);
    if (!cache) return inputs_of(c, w, ids, places, places, places, NULL);
    tn_tensor *mask = flat(add_row(n, "attention_mask", SOME_PAST + SOME_TOKENS, SYMBOL_ALL));
    tn_tensor *positions = flat(add_row(n, "position_ids", SOME_TOKENS, SYMBOL_TOKENS));
    add_past(n, c);
    tn_tensor *before = tn_sub(export_count_of(mask), export_count_of(ids)),
              *there = tn_unsqueeze(tn_ne_scalar(mask, 0), 0);
    llm_inputs in = inputs_of(c, w, ids, positions, tn_add(places, before), count_places(mask), there);
    in.past = n->past;
    in.present = n->present;
    return in;
}

static tn_status save_network(network *n, const llm_config *c, const llm_weights *w, const named_weights *weights,
                              const char *path, bool cache) {
    llm_inputs in = add_inputs(n, c, w, cache);
    tn_tensor *logits = tn_llm_record(c, w, &in, LLM_ALL_ROWS);
    tn_tensor *whole = tn_reshape(logits, TN_DIMS(1, SOME_TOKENS, c->size[SIZE_VOCABULARY]));
    n->out[n->out_count++] = (tn_named_tensor){"logits", whole};
    for (int64_t i = 0; cache && i < A_LAYER * c->layers; i++)
        n->out[n->out_count++] = (tn_named_tensor){layer_name(n, "present", i), n->present[i]};
    tn_onnx_export_options o = TN_ONNX_EXPORT_DEFAULTS;
    o.name = c->family->architecture;
    o.dims[SYMBOL_PAST] = "past_sequence_length";
    o.dims[SYMBOL_TOKENS] = "sequence_length";
    o.dims[SYMBOL_ALL] = "past_sequence_length + sequence_length";
    o.weights = weights->list;
    o.weight_count = weights->count;
    tn_status status = tn_onnx_export(path, n->in, n->in_count, n->out, n->out_count, &o);
    tn_free(logits);
    return status;
}

tn_status tn_llm_write_onnx(const llm_source *s, const llm_config *c, const llm_weights *w, const char *path,
                            bool cache) {
    named_weights weights = {0};
    network n = {0};
    tn_status status = name_weights(s, c, w, &weights);
    if (status == TN_OK) status = begin_network(&n, c);
    {
        TN_SCOPE;
        TN_NO_GRAD;
        if (status == TN_OK) status = save_network(&n, c, w, &weights, path, cache);
    }
    end_network(&n, c->layers);
    tn_txt_free(weights.list);
    return status;
}
