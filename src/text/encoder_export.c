/* encoder_export.c — an encoder as an ONNX model: ids and a mask of several texts in, a vector for each out.
 *
 * The recording is the one that computes (encoder_record.c), with both extents open. Positions are counted in the model
 * itself, so a caller gives what Hugging Face's tokenizers yield, and nothing else. */
#include <stdio.h>

#include "text/encoder.h"
#include "trunnion/onnx.h"

enum { SYMBOL_BATCH = 0, SYMBOL_TOKENS = 1, SOME_TEXTS = 2, SOME_TOKENS = 8, MOST_PARTS = 6 };

/* Tensors with names. */
typedef struct named_weights {
    tn_named_tensor *list;
    char (*names)[HF_NAME_SIZE];
    int count;
} named_weights;

static void add_name(named_weights *n, const tn_tensor *t) {
    n->list[n->count] = (tn_named_tensor){n->names[n->count], t};
    n->count++;
}

static void name_pair(named_weights *n, const encoder_config *c, int64_t layer, int part, const encoder_linear *l) {
    tn_encoder_name(c, layer, part, ".weight", n->names[n->count]);
    add_name(n, l->weight);
    tn_encoder_name(c, layer, part, ".bias", n->names[n->count]);
    add_name(n, l->bias);
}

static void name_layer(named_weights *n, const encoder_config *c, int64_t layer, const encoder_layer *l) {
    name_pair(n, c, layer, PART_O, &l->out);
    name_pair(n, c, layer, PART_NORM1, &l->norm1);
    name_pair(n, c, layer, PART_UP, &l->up);
    name_pair(n, c, layer, PART_DOWN, &l->down);
    name_pair(n, c, layer, PART_NORM2, &l->norm2);
    snprintf(n->names[n->count], HF_NAME_SIZE, "%s%lld.qkv.weight", c->family->layer, (long long)layer);
    add_name(n, l->qkv.weight);
    snprintf(n->names[n->count], HF_NAME_SIZE, "%s%lld.qkv.bias", c->family->layer, (long long)layer);
    add_name(n, l->qkv.bias);
}

static tn_status name_weights(const encoder_config *c, const encoder_weights *w, named_weights *n) {
    size_t most = 4 + 2 * MOST_PARTS * (size_t)c->layers + 2 * ENC_MOST_DENSE;
    n->list = tn_txt_zalloc(most, sizeof *n->list);
    n->names = tn_txt_zalloc(most, sizeof *n->names);
    if (!n->list || !n->names) return TN_ERR_MEMORY;
    tn_encoder_name(c, -1, TABLE_WORDS, ".weight", n->names[n->count]);
    add_name(n, w->words);
    snprintf(n->names[n->count], HF_NAME_SIZE, "places.weight"); /* a position's row and the first type's together */
    add_name(n, w->places);
    name_pair(n, c, -1, TABLE_NORM, &w->norm);
    for (int64_t i = 0; i < c->layers; i++)
        name_layer(n, c, i, &w->layers[i]);
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

tn_status tn_encoder_write_onnx(const encoder_config *c, const encoder_weights *w, const char *path) {
    static const int64_t some[SOME_TEXTS * SOME_TOKENS];
    named_weights n = {0};
    tn_status status = name_weights(c, w, &n);
    {
        TN_SCOPE;
        TN_NO_GRAD;
        if (status == TN_OK) {
            tn_tensor *ids = open_input(some), *mask = open_input(some);
            encoder_batch b = {.ids = ids,
                               .places = tn_sub(tn_cumsum(tn_ones_like(ids), 1), tn_scalar_int(1)),
                               .seen = tn_cast(mask, TN_F32),
                               .apart = true};
            tn_tensor *y = tn_encoder_record(c, w, &b);
            const tn_named_tensor inputs[] = {{"input_ids", ids}, {"attention_mask", mask}};
            tn_onnx_export_options o = TN_ONNX_EXPORT_DEFAULTS;
            o.name = c->family->model_type;
            o.dims[0] = "batch";
            o.dims[1] = "tokens";
            o.weights = n.list;
            o.weight_count = n.count;
            status = tn_onnx_export(path, inputs, 2, &(tn_named_tensor){"embedding", y}, 1, &o);
            tn_free(y);
        }
    }
    tn_txt_free(n.list);
    tn_txt_free(n.names);
    return status;
}
