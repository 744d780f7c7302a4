/* encoder_config.c — from a folder's config.json to an encoder's sizes, every one of them checked.
 *
 * A family of encoders is a table row: what its keys and weights are called. Every weight of the file must be one that
 * the row knows, in the shape that the configuration gives it, or belong to what stands behind an encoder (poolers,
 * heads): a network that has something more would be computed wrongly without it. */
#include "text/encoder.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const bert_keys[ENC_KEYS] = {
    [ENC_LAYERS] = "num_hidden_layers",
    [ENC_HIDDEN] = "hidden_size",
    [ENC_INTERMEDIATE] = "intermediate_size",
    [ENC_HEADS] = "num_attention_heads",
    [ENC_POSITIONS] = "max_position_embeddings",
    [ENC_EPS] = "layer_norm_eps",
    [ENC_ACTIVATION] = "hidden_act",
};
static const char *const bert_parts[LAYER_PARTS] = {
    [PART_Q] = "attention.self.query",
    [PART_K] = "attention.self.key",
    [PART_V] = "attention.self.value",
    [PART_O] = "attention.output.dense",
    [PART_NORM1] = "attention.output.LayerNorm",
    [PART_UP] = "intermediate.dense",
    [PART_DOWN] = "output.dense",
    [PART_NORM2] = "output.LayerNorm",
};
static const char *const bert_tables[TABLES] = {
    [TABLE_WORDS] = "embeddings.word_embeddings",
    [TABLE_POSITIONS] = "embeddings.position_embeddings",
    [TABLE_TYPES] = "embeddings.token_type_embeddings",
    [TABLE_NORM] = "embeddings.LayerNorm",
};

static const char *const distilbert_keys[ENC_KEYS] = {
    [ENC_LAYERS] = "n_layers",
    [ENC_HIDDEN] = "dim",
    [ENC_INTERMEDIATE] = "hidden_dim",
    [ENC_HEADS] = "n_heads",
    [ENC_POSITIONS] = "max_position_embeddings",
    [ENC_ACTIVATION] = "activation",
};
static const char *const distilbert_parts[LAYER_PARTS] = {
    [PART_Q] = "attention.q_lin",   [PART_K] = "attention.k_lin",       [PART_V] = "attention.v_lin",
    [PART_O] = "attention.out_lin", [PART_NORM1] = "sa_layer_norm",     [PART_UP] = "ffn.lin1",
    [PART_DOWN] = "ffn.lin2",       [PART_NORM2] = "output_layer_norm",
};
static const char *const distilbert_tables[TABLES] = {
    [TABLE_WORDS] = "embeddings.word_embeddings",
    [TABLE_POSITIONS] = "embeddings.position_embeddings",
    [TABLE_NORM] = "embeddings.LayerNorm",
};

static const encoder_family families[] = {
    {"bert", "bert.", "encoder.layer.", bert_keys, bert_parts, bert_tables, false},
    {"roberta", "roberta.", "encoder.layer.", bert_keys, bert_parts, bert_tables, true},
    {"xlm-roberta", "roberta.", "encoder.layer.", bert_keys, bert_parts, bert_tables, true},
    {"distilbert", "distilbert.", "transformer.layer.", distilbert_keys, distilbert_parts, distilbert_tables, false},
};
enum { FAMILIES = sizeof families / sizeof *families };

/* What stands behind the last layer in some files, and buffers that are no weights. */
static const char *const beside[] = {"pooler.",
                                     "cls.",
                                     "lm_head.",
                                     "classifier",
                                     "pre_classifier",
                                     "qa_outputs.",
                                     "vocab_",
                                     "embeddings.position_ids",
                                     "embeddings.token_type_ids"};

static const double DISTILBERT_EPS = 1e-12; /* its implementation's constant: config.json has none */

void tn_encoder_name(const encoder_config *c, int64_t layer, int part, const char *ending, char name[HF_NAME_SIZE]) {
    const encoder_family *f = c->family;
    if (layer < 0)
        snprintf(name, HF_NAME_SIZE, "%s%s", f->tables[part], ending);
    else
        snprintf(name, HF_NAME_SIZE, "%s%" PRId64 ".%s%s", f->layer, layer, f->parts[part], ending);
}

/* ---- config.json ------------------------------------------------------------------------------------------------- */

static tn_status find_family(const hf_folder *f, encoder_config *c) {
    const char *type = tn_hf_text(f, "model_type", "");
    char known[160] = "";
    for (size_t i = 0; i < FAMILIES; i++) {
        if (strcmp(type, families[i].model_type) == 0) c->family = &families[i];
        size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "", families[i].model_type);
    }
    if (c->family) return TN_OK;
    return tn_backend_fail(TN_ERR_UNSUPPORTED,
                           "'%s/config.json': '%s' is no model_type of an encoder that is known here; known are %s",
                           f->path, tn_txt_shown(type, strlen(type)).text, known);
}

static tn_status refuse_features(const hf_folder *f) {
    const char *how = tn_hf_text(f, "position_embedding_type", "absolute");
    TRY(tn_hf_refuse(f, "is_decoder"));
    TRY(tn_hf_refuse(f, "add_cross_attention"));
    if (strcmp(how, "absolute") == 0) return TN_OK;
    return tn_backend_fail(TN_ERR_UNSUPPORTED, "'%s/config.json': positions of the type '%s' are not computed here",
                           f->path, tn_txt_shown(how, strlen(how)).text);
}

static tn_status read_sizes_encoder(const hf_folder *f, encoder_config *c) {
    const char *const *key = c->family->keys;
    TRY(tn_hf_size(f, key[ENC_LAYERS], -1, HF_MOST_LAYERS, &c->layers));
    TRY(tn_hf_size(f, key[ENC_HIDDEN], -1, HF_MOST_WIDTH, &c->hidden));
    TRY(tn_hf_size(f, key[ENC_INTERMEDIATE], -1, HF_MOST_WIDTH, &c->intermediate));
    TRY(tn_hf_size(f, key[ENC_HEADS], -1, HF_MOST_HEADS, &c->heads));
    TRY(tn_hf_size(f, key[ENC_POSITIONS], -1, HF_MOST_WIDTH, &c->positions));
    TRY(tn_hf_activation(f, key[ENC_ACTIVATION], "gelu", &c->activation));
    c->eps = DISTILBERT_EPS;
    if (key[ENC_EPS]) TRY(tn_hf_real(f, f->config, key[ENC_EPS], 1e-12, 1e-20, 1, &c->eps));
    if (c->hidden % c->heads != 0)
        return tn_backend_fail(TN_ERR_FORMAT, "'%s/config.json': %" PRId64 " heads do not divide a width of %" PRId64,
                               f->path, c->heads, c->hidden);
    int64_t padding = -1;
    if (c->family->positions_behind_padding) {
        padding = tn_json_int(tn_json_get(f->config, "pad_token_id"), 1);
        if (padding < 0 || padding >= c->positions - 1)
            return tn_backend_fail(TN_ERR_FORMAT,
                                   "'%s/config.json': 'pad_token_id' is %" PRId64 "; there are %" PRId64 " positions",
                                   f->path, padding, c->positions);
    }
    c->first_position = padding + 1;
    c->longest = c->positions - c->first_position;
    return TN_OK;
}

static tn_status check_options(const tn_embedder_options *o) {
    if ((unsigned)o->pooling <= TN_POOLING_MAX && (unsigned)o->norm <= TN_EMBED_NORM_UNIT) return TN_OK;
    return tn_backend_fail(TN_ERR_ARGUMENT,
                           "embedder: pooling is %d and norm %d; they must be a tn_pooling and a tn_embed_norm",
                           (int)o->pooling, (int)o->norm);
}

/* ---- weights ----------------------------------------------------------------------------------------------------- */

static tn_status check_weight(const hf_folder *f, encoder_config *c, const char *name, int64_t rows, int64_t columns) {
    tn_safetensors_info t = {.struct_size = sizeof t};
    if (!tn_hf_find(f, name, &t)) return tn_backend_fail(TN_ERR_FORMAT, "'%s': there is no tensor '%s'", f->path, name);
    TRY(tn_hf_check(f, &t, (int64_t[]){rows, columns}));
    c->parameters += rows * (columns ? columns : 1);
    c->weights_bytes += t.bytes;
    return TN_OK;
}

static tn_status check_pair(const hf_folder *f, encoder_config *c, int64_t layer, int part, int64_t rows,
                            int64_t columns) {
    char name[HF_NAME_SIZE];
    tn_encoder_name(c, layer, part, ".weight", name);
    TRY(check_weight(f, c, name, rows, columns));
    tn_encoder_name(c, layer, part, ".bias", name);
    return check_weight(f, c, name, rows, 0);
}

static tn_status check_layer(const hf_folder *f, encoder_config *c, int64_t layer) {
    for (int part = 0; part < LAYER_PARTS; part++) {
        bool norm = part == PART_NORM1 || part == PART_NORM2;
        int64_t rows = part == PART_UP ? c->intermediate : c->hidden;
        int64_t columns = norm ? 0 : part == PART_DOWN ? c->intermediate : c->hidden;
        TRY(check_pair(f, c, layer, part, rows, columns));
    }
    return TN_OK;
}

/* The rows of a table that the configuration does not count: of tokens or types. */
static tn_status check_table(const hf_folder *f, encoder_config *c, int table, int64_t *rows) {
    char name[HF_NAME_SIZE];
    tn_safetensors_info t = {.struct_size = sizeof t};
    tn_encoder_name(c, -1, table, ".weight", name);
    *rows = tn_hf_find(f, name, &t) && t.rank == 2 ? t.shape[0] : 1;
    if (*rows < 1 || *rows > INT32_MAX)
        return tn_backend_fail(TN_ERR_FORMAT, "'%s': tensor '%s' has %" PRId64 " rows", f->path, name, *rows);
    return check_weight(f, c, name, *rows, c->hidden);
}

static bool is_beside(const char *name) {
    for (size_t i = 0; i < sizeof beside / sizeof *beside; i++)
        if (strncmp(name, beside[i], strlen(beside[i])) == 0) return true;
    return false;
}

/* Whether the name, which has lost its ending, is one that tn_encoder_name makes. */
static bool is_known(const encoder_config *c, const char *name) {
    const encoder_family *f = c->family;
    size_t length = strlen(f->layer);
    for (int i = 0; i < TABLES; i++)
        if (f->tables[i] && strcmp(name, f->tables[i]) == 0) return true;
    if (strncmp(name, f->layer, length) != 0) return false;
    char *end;
    int64_t layer = strtoll(name + length, &end, 10);
    for (int i = 0; i < LAYER_PARTS && layer >= 0 && layer < c->layers && *end == '.'; i++)
        if (strcmp(end + 1, f->parts[i]) == 0) return true;
    return false;
}

static tn_status refuse_unknown(const hf_folder *f, const encoder_config *c) {
    for (int64_t i = 0; i < tn_hf_weights_count(f->weights); i++) {
        tn_safetensors_info t = {.struct_size = sizeof t};
        TRY(tn_hf_weights_at(f->weights, i, &t));
        const char *name = tn_hf_strip(f, t.name), *ending = strrchr(name, '.');
        char stem[HF_NAME_SIZE];
        snprintf(stem, sizeof stem, "%.*s", ending ? (int)(ending - name) : 0, name);
        bool fits = ending && tn_hf_is_parameter(ending) && is_known(c, stem);
        if (!fits && !is_beside(name))
            return tn_backend_fail(TN_ERR_UNSUPPORTED,
                                   "'%s': tensor '%.100s' is none that a %s encoder of %" PRId64
                                   " layers has here; without it the results would be wrong",
                                   f->path, t.name, c->family->model_type, c->layers);
    }
    return TN_OK;
}

static tn_status check_weights(const hf_folder *f, encoder_config *c) {
    TRY(check_table(f, c, TABLE_WORDS, &c->vocabulary));
    if (c->family->tables[TABLE_TYPES]) TRY(check_table(f, c, TABLE_TYPES, &c->types));
    char name[HF_NAME_SIZE];
    tn_encoder_name(c, -1, TABLE_POSITIONS, ".weight", name);
    TRY(check_weight(f, c, name, c->positions, c->hidden));
    TRY(check_pair(f, c, -1, TABLE_NORM, c->hidden, 0));
    for (int64_t layer = 0; layer < c->layers; layer++)
        TRY(check_layer(f, c, layer));
    return refuse_unknown(f, c);
}

tn_status tn_encoder_configure(hf_folder *f, const tn_embedder_options *options, encoder_config *out) {
    *out = (encoder_config){0};
    TRY(find_family(f, out));
    TRY(refuse_features(f));
    TRY(read_sizes_encoder(f, out));
    TRY(check_options(options));
    TRY(tn_encoder_modules(f, options, out));
    char probe[HF_NAME_SIZE];
    tn_encoder_name(out, -1, TABLE_WORDS, ".weight", probe);
    tn_hf_find_prefix(f, out->family->prefix, probe);
    return check_weights(f, out);
}
