/* llm_export.c — a decoder as an ONNX model: ids of a whole text in, logits behind each of them out.
 *
 * The recording is the one that computes (llm_record.c), but that attention sees the text alone instead of a cache.
 * What else a model needs follows from the ids' number, which is the model's one open extent: positions are counted in
 * the model itself, so no input but the ids is left. */
#include "text/llm_model.h"
#include "trunnion/onnx.h"

enum { SYMBOL_TOKENS = 0, SOME_TOKENS = 8 };

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

/* 0, 1, 2 … for as many ids as there are. */
static tn_tensor *count_places(const tn_tensor *ids) { return tn_sub_scalar(tn_cumsum(tn_ones_like(ids), 0), 1); }

static llm_inputs inputs_of(const llm_config *c, const llm_weights *w, const tn_tensor *ids) {
    int64_t n = tn_size(ids, 1);
    tn_tensor *flat = tn_reshape(ids, TN_DIMS(n)), *places = count_places(flat);
    tn_tensor *query = tn_unsqueeze(places, 1), *key = tn_unsqueeze(places, 0);
    llm_inputs in = {.rows = tn_embedding(flat, w->head[SLOT_EMBEDDING]),
                     .positions = tn_reshape(tn_cast(places, TN_F32), TN_DIMS(n, 1, 1)),
                     .seen = tn_le(key, query)};
    if (c->window) in.near = tn_logical_and(in.seen, tn_lt_scalar(tn_sub(query, key), (double)c->window));
    return in;
}

tn_status tn_llm_write_onnx(const llm_source *s, const llm_config *c, const llm_weights *w, const char *path) {
    static const int64_t some[SOME_TOKENS];
    named_weights n = {0};
    tn_status status = name_weights(s, c, w, &n);
    TN_SCOPE TN_NO_GRAD if (status == TN_OK) {
        tn_tensor *ids = tn_symbolic(tn_from_data(some, TN_DIMS(1, SOME_TOKENS), TN_I64), 1, SYMBOL_TOKENS);
        llm_inputs in = inputs_of(c, w, ids);
        tn_tensor *logits = tn_llm_record(c, w, &in, LLM_ALL_ROWS);
        tn_tensor *whole = tn_reshape(logits, TN_DIMS(1, SOME_TOKENS, c->size[SIZE_VOCABULARY]));
        tn_onnx_export_options o = {.struct_size = sizeof o,
                                    .name = c->family->architecture,
                                    .dims = {"tokens"},
                                    .weights = n.list,
                                    .weight_count = n.count};
        status =
            tn_onnx_export(path, &(tn_named_tensor){"input_ids", ids}, 1, &(tn_named_tensor){"logits", whole}, 1, &o);
        tn_free(logits);
    }
    tn_txt_free(n.list);
    return status;
}
