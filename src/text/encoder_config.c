/* encoder_config.c — an encoder's sizes from config.json, and the modules of a sentence-transformers folder.
 *
 * A family of encoders is a table row: what its keys and weights are called. Every weight of the file must be one that
 * the row knows, in the shape that the configuration gives it, or belong to what stands after an encoder (poolers,
 * heads): a network that has something more would be computed wrongly without it. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/encoder.h"

static const char *const bert_keys[ENC_KEYS] = {
    [ENC_LAYERS] = "num_hidden_layers",
    [ENC_HIDDEN] = "hidden_size",
    [ENC_INTERMEDIATE] = "intermediate_size",
    [ENC_HEADS] = "num_attention_heads",
    [ENC_POSITIONS] = "max_position_embeddings",
    [ENC_EPS] = "layer_norm_eps",
    [ENC_ACTIVATION] = "hidden_act",
};
/* The norms of a layer stand after attention and feed-forward, or before them. */
#define BERT_PARTS(first, second)                                                                              \
    {                                                                                                          \
        [PART_Q] = "attention.self.query", [PART_K] = "attention.self.key", [PART_V] = "attention.self.value", \
        [PART_O] = "attention.output.dense", [PART_NORM1] = (first), [PART_UP] = "intermediate.dense",         \
        [PART_DOWN] = "output.dense", [PART_NORM2] = (second)                                                  \
    }
static const char *const bert_parts[LAYER_PARTS] = BERT_PARTS("attention.output.LayerNorm", "output.LayerNorm");
static const char *const roberta_xl_parts[LAYER_PARTS] = BERT_PARTS("attention.self_attn_layer_norm", "LayerNorm");
static const char *const prelayernorm_parts[LAYER_PARTS] = BERT_PARTS("attention.LayerNorm", "intermediate.LayerNorm");
static const char *const megatron_parts[LAYER_PARTS] = BERT_PARTS("attention.ln", "ln");

#define BERT_TABLES                                                                                     \
    [TABLE_WORDS] = "embeddings.word_embeddings", [TABLE_POSITIONS] = "embeddings.position_embeddings", \
    [TABLE_TYPES] = "embeddings.token_type_embeddings"
static const char *const bert_tables[TABLES] = {
    BERT_TABLES,
    [TABLE_NORM] = "embeddings.LayerNorm",
    [TABLE_TASKS] = "embeddings.task_type_embeddings",
    [TABLE_PROJECTION] = "embeddings_project",
};
static const char *const mapped_tables[TABLES] = {
    BERT_TABLES,
    [TABLE_NORM] = "embeddings.LayerNorm",
    [TABLE_PROJECTION] = "encoder.embedding_hidden_mapping_in",
};
static const char *const roberta_xl_tables[TABLES] = {BERT_TABLES, [TABLE_LAST_NORM] = "encoder.LayerNorm"};
static const char *const megatron_tables[TABLES] = {BERT_TABLES, [TABLE_LAST_NORM] = "encoder.ln"};
static const char *const prelayernorm_tables[TABLES] = {
    BERT_TABLES,
    [TABLE_NORM] = "embeddings.LayerNorm",
    [TABLE_LAST_NORM] = "LayerNorm",
};

static const char *const esm_parts[LAYER_PARTS] = BERT_PARTS("attention.LayerNorm", "LayerNorm");
static const char *const esm_tables[TABLES] = {
    [TABLE_WORDS] = "embeddings.word_embeddings", [TABLE_LAST_NORM] = "encoder.emb_layer_norm_after"};
static const char *const clip_parts[LAYER_PARTS] = {
    [PART_Q] = "self_attn.q_proj",   [PART_K] = "self_attn.k_proj", [PART_V] = "self_attn.v_proj",
    [PART_O] = "self_attn.out_proj", [PART_NORM1] = "layer_norm1",  [PART_UP] = "mlp.fc1",
    [PART_DOWN] = "mlp.fc2",         [PART_NORM2] = "layer_norm2"};
static const char *const clip_tables[TABLES] = {[TABLE_WORDS] = "embeddings.token_embedding",
                                                [TABLE_POSITIONS] = "embeddings.position_embedding",
                                                [TABLE_LAST_NORM] = "final_layer_norm",
                                                [TABLE_OUTPUT] = "text_projection"};
static const int64_t clip_usual[ENC_KEYS] = {12, 512, 2048, 8, 77};

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

static const char *const mpnet_parts[LAYER_PARTS] = {
    [PART_Q] = "attention.attn.q", [PART_K] = "attention.attn.k",        [PART_V] = "attention.attn.v",
    [PART_O] = "attention.attn.o", [PART_NORM1] = "attention.LayerNorm", [PART_UP] = "intermediate.dense",
    [PART_DOWN] = "output.dense",  [PART_NORM2] = "output.LayerNorm",
};
static const char *const mpnet_tables[TABLES] = {
    [TABLE_WORDS] = "embeddings.word_embeddings",
    [TABLE_POSITIONS] = "embeddings.position_embeddings",
    [TABLE_NORM] = "embeddings.LayerNorm",
    [TABLE_BUCKETS] = "encoder.relative_attention_bias",
};

static const char *const nomic_parts[LAYER_PARTS] = {
    [PART_QKV] = "attn.Wqkv", [PART_O] = "attn.out_proj", [PART_NORM1] = "norm1", [PART_UP] = "mlp.fc11",
    [PART_GATE] = "mlp.fc12", [PART_DOWN] = "mlp.fc2",    [PART_NORM2] = "norm2",
};
static const char *const jina_parts[LAYER_PARTS] = {
    [PART_QKV] = "mixer.Wqkv", [PART_O] = "mixer.out_proj", [PART_NORM1] = "norm1",
    [PART_UP] = "mlp.fc1",     [PART_DOWN] = "mlp.fc2",     [PART_NORM2] = "norm2",
};
static const char *const rope_tables[TABLES] = {
    [TABLE_WORDS] = "embeddings.word_embeddings",
    [TABLE_TYPES] = "embeddings.token_type_embeddings",
    [TABLE_NORM] = "emb_ln",
};
static const char *const gte_parts[LAYER_PARTS] = {
    [PART_QKV] = "attention.qkv_proj", [PART_O] = "attention.o_proj", [PART_NORM1] = "attn_ln",
    [PART_UP] = "mlp.up_gate_proj",    [PART_DOWN] = "mlp.down_proj", [PART_NORM2] = "mlp_ln",
};
static const char *const gte_tables[TABLES] = {
    [TABLE_WORDS] = "embeddings.word_embeddings",
    [TABLE_TYPES] = "embeddings.token_type_embeddings",
    [TABLE_NORM] = "embeddings.LayerNorm",
    [TABLE_PROJECTION] = "embeddings_project",
};

static const char *const deberta_parts[LAYER_PARTS] = {
    [PART_Q] = "attention.self.query_proj",
    [PART_K] = "attention.self.key_proj",
    [PART_V] = "attention.self.value_proj",
    [PART_O] = "attention.output.dense",
    [PART_NORM1] = "attention.output.LayerNorm",
    [PART_UP] = "intermediate.dense",
    [PART_DOWN] = "output.dense",
    [PART_NORM2] = "output.LayerNorm",
};
static const char *const deberta_tables[TABLES] = {
    [TABLE_WORDS] = "embeddings.word_embeddings",
    [TABLE_NORM] = "embeddings.LayerNorm",
    [TABLE_RELATIVE] = "encoder.rel_embeddings",
    [TABLE_RELATIVE_NORM] = "encoder.LayerNorm",
};

#define ALBERT(name) "albert_layers.0." name
static const char *const albert_parts[LAYER_PARTS] = {
    [PART_Q] = ALBERT("attention.query"),         [PART_K] = ALBERT("attention.key"),
    [PART_V] = ALBERT("attention.value"),         [PART_O] = ALBERT("attention.dense"),
    [PART_NORM1] = ALBERT("attention.LayerNorm"), [PART_UP] = ALBERT("ffn"),
    [PART_DOWN] = ALBERT("ffn_output"),           [PART_NORM2] = ALBERT("full_layer_layer_norm"),
};
#define PART_BIT(part) (1u << (part))
enum {
    NOMIC_BARE = PART_BIT(PART_QKV) | PART_BIT(PART_O) | PART_BIT(PART_UP) | PART_BIT(PART_GATE) | PART_BIT(PART_DOWN),
    MPNET_BUCKETS = 32
};
static const encoder_family families[] = {
    {"bert", "bert.", "encoder.layer.", bert_keys, bert_parts, bert_tables, .rope = 0},
    {"roberta", "roberta.", "encoder.layer.", bert_keys, bert_parts, bert_tables, .positions_behind_padding = true},
    {"xlm-roberta", "roberta.", "encoder.layer.", bert_keys, bert_parts, bert_tables, .positions_behind_padding = true},
    {"camembert", "roberta.", "encoder.layer.", bert_keys, bert_parts, bert_tables, .positions_behind_padding = true},
    {"data2vec-text", "data2vec_text.", "encoder.layer.", bert_keys, bert_parts, bert_tables,
     .positions_behind_padding = true},
    {"xlm-roberta-xl", "roberta.", "encoder.layer.", bert_keys, roberta_xl_parts, roberta_xl_tables,
     .positions_behind_padding = true, .norm_first = true, .eps = 1e-5},
    {"roberta-prelayernorm", "roberta_prelayernorm.", "encoder.layer.", bert_keys, prelayernorm_parts,
     prelayernorm_tables, .positions_behind_padding = true, .norm_first = true},
    {"megatron-bert", "bert.", "encoder.layer.", bert_keys, megatron_parts, megatron_tables, .norm_first = true},
    {"electra", "electra.", "encoder.layer.", bert_keys, bert_parts, bert_tables, .rope = 0},
    {"ernie", "ernie.", "encoder.layer.", bert_keys, bert_parts, bert_tables, .rope = 0},
    {"rembert", "rembert.", "encoder.layer.", bert_keys, bert_parts, mapped_tables, .rope = 0},
    {"albert", "albert.", "encoder.albert_layer_groups.", bert_keys, albert_parts, mapped_tables, .one_layer = true,
     .activation = "gelu_new"},
    {"roformer", "roformer.", "encoder.layer.", bert_keys, bert_parts, gte_tables, .rope = 10000, .interleaved = true},
    {"distilbert", "distilbert.", "transformer.layer.", distilbert_keys, distilbert_parts, distilbert_tables,
     .rope = 0},
    {"mpnet", "mpnet.", "encoder.layer.", bert_keys, mpnet_parts, mpnet_tables, .positions_behind_padding = true,
     .padding = 1},
    {"nomic_bert", "", "encoder.layers.", bert_keys, nomic_parts, rope_tables, .rope = 1000, .bare = NOMIC_BARE,
     .activation = "silu"},
    {"gte", "", "encoder.layer.", bert_keys, gte_parts, gte_tables, .rope = 160000, .fused_gate = true,
     .bare = PART_BIT(PART_UP)},
    {"deberta-v2", "deberta.", "encoder.layer.", bert_keys, deberta_parts, deberta_tables, .eps = 1e-7},
    {"esm", "esm.", "encoder.layer.", bert_keys, esm_parts, esm_tables, .rope = 10000, .norm_first = true,
     .position_type = "rotary", .spare = "embeddings.position_embeddings"},
    {"clip_text_model", "text_model.", "encoder.layers.", bert_keys, clip_parts, clip_tables, .norm_first = true,
     .causal = true, .activation = "quick_gelu", .eps = 1e-5, .pooling = TN_POOLING_LAST, .usual = clip_usual},
    {"dpr", "question_encoder.bert_model.", "encoder.layer.", bert_keys, bert_parts, bert_tables,
     .pooling = TN_POOLING_CLS, .other_prefix = "ctx_encoder.bert_model."},
    {"splinter", "splinter.", "encoder.layer.", bert_keys, bert_parts, bert_tables, .rope = 0},
    {"big_bird", "bert.", "encoder.layer.", bert_keys, bert_parts, bert_tables, .activation = "gelu_new"},
    {"jina_embeddings_v3", "", "encoder.layers.", bert_keys, jina_parts, rope_tables, .rope = 20000, .eps = 1e-5},
};
enum { FAMILIES = sizeof families / sizeof *families };

/* Heads after the last layer that some files have, and buffers that are not weights. */
static const char *const beside[] = {"pooler.",
                                     "cls.",
                                     "lm_head.",
                                     "classifier",
                                     "pre_classifier",
                                     "qa_outputs.",
                                     "vocab_",
                                     "lm_predictions.",
                                     "mask_predictions.",
                                     "predictions.",
                                     "sop_classifier.",
                                     "discriminator_predictions.",
                                     "generator_predictions.",
                                     "generator_lm_head.",
                                     "encoder.embed_positions.",
                                     "splinter_qass.",
                                     "contact_head.",
                                     "rotary_embeddings.",
                                     "embeddings.position_ids",
                                     "embeddings.token_type_ids"};

static const double USUAL_EPS = 1e-12; /* and DistilBERT's constant: its config.json has none */

void tn_encoder_name(const encoder_config *c, int64_t layer, int part, const char *ending, char name[HF_NAME_SIZE]) {
    const encoder_family *f = c->family;
    if (layer < 0)
        snprintf(name, HF_NAME_SIZE, "%s%s", f->tables[part], ending);
    else
        snprintf(name, HF_NAME_SIZE, "%s%" PRId64 ".%s%s", f->layer, layer, f->parts[part], ending);
}

/* ---- config.json ------------------------------------------------------------------------------------------------- */

bool tn_encoder_knows(const char *type) {
    for (size_t i = 0; i < FAMILIES; i++)
        if (strcmp(type, families[i].model_type) == 0) return true;
    return false;
}

static tn_status find_family(const hf_folder *f, encoder_config *c) {
    const char *type = tn_hf_text(f, "model_type", "");
    char known[600] = "";
    for (size_t i = 0; i < FAMILIES; i++) {
        if (strcmp(type, families[i].model_type) == 0) c->family = &families[i];
        size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "", families[i].model_type);
    }
    if (c->family) return TN_OK;
    return tn_hf_fail(f->path, TN_ERR_UNSUPPORTED,
                      "the model_type '%s' is not a supported encoder; supported are %s, and the language models that "
                      "trunnion generate supports",
                      tn_txt_shown(type, strlen(type)).text, known);
}

static tn_status refuse_features(const hf_folder *f, const encoder_config *c) {
    const char *how = tn_hf_text(f, "position_embedding_type", "absolute");
    TRY(tn_hf_refuse(f, "rescale_embeddings"));

    TRY(tn_hf_refuse(f, "is_decoder"));
    TRY(tn_hf_refuse(f, "add_cross_attention"));
    TRY(tn_hf_refuse(f, "rotary_value"));
    static const char *const counts[] = {"num_hidden_groups", "inner_group_num"};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        if (tn_json_int(tn_json_get(f->config, counts[i]), 1) != 1)
            return tn_hf_fail(f->path, TN_ERR_UNSUPPORTED, "'%s' is %" PRId64 "; only 1 is supported", counts[i],
                              tn_json_int(tn_json_get(f->config, counts[i]), 1));
    if (strcmp(how, c->family->position_type ? c->family->position_type : "absolute") == 0) return TN_OK;
    return tn_hf_fail(f->path, TN_ERR_UNSUPPORTED, "positions of type '%s' are not supported",
                      tn_txt_shown(how, strlen(how)).text);
}

static tn_status read_rope(const hf_folder *f, encoder_config *c) {
    const tn_json *o = tn_json_get(f->config, "rope_parameters"), *older = tn_json_get(f->config, "rope_scaling");
    if (c->family->rope == 0) return TN_OK;
    if (tn_json_kind_of(o) != TN_JSON_OBJECT) o = older;
    const char *type = tn_json_string(tn_json_get(o, "rope_type"), tn_json_string(tn_json_get(o, "type"), "default"));
    if (strcmp(type, "default") != 0)
        return tn_hf_fail(f->path, TN_ERR_UNSUPPORTED, "rope type '%s' is not supported in %s encoders",
                          tn_txt_shown(type, strlen(type)).text, c->family->model_type);
    TRY(tn_hf_real(f, f->config, "rope_theta", c->family->rope, 1.0001, 1e12, &c->base));
    return tn_hf_real(f, o, "rope_theta", c->base, 1.0001, 1e12, &c->base);
}

/* "c2p|p2c", or a list of the two words. */
static bool attends_both_ways(const tn_json *v) {
    bool list = tn_json_kind_of(v) == TN_JSON_ARRAY, c2p = false, p2c = false;
    const char *text = tn_json_string(v, "");
    for (size_t i = 0; list && i < tn_json_length(v); i++) {
        const char *word = tn_json_string(tn_json_at(v, i), "");
        c2p = c2p || strcmp(word, "c2p") == 0;
        p2c = p2c || strcmp(word, "p2c") == 0;
    }
    return list ? c2p && p2c : strstr(text, "c2p") && strstr(text, "p2c");
}

/* DeBERTa: of its many kinds those of version 3, whose distances are projected by the matrices of queries and keys. */
static tn_status read_relative(const hf_folder *f, encoder_config *c) {
    const tn_json *o = f->config;
    if (!c->family->tables[TABLE_RELATIVE]) return TN_OK;
    TRY(tn_hf_size(f, "position_buckets", -1, c->positions, &c->span));
    bool plain = !tn_json_bool(tn_json_get(o, "position_biased_input"), true) &&
                 tn_json_bool(tn_json_get(o, "relative_attention"), false) &&
                 tn_json_bool(tn_json_get(o, "share_att_key"), false) &&
                 attends_both_ways(tn_json_get(o, "pos_att_type"));
    plain = plain && strcmp(tn_hf_text(f, "norm_rel_ebd", "none"), "layer_norm") == 0 &&
            tn_json_int(tn_json_get(o, "max_relative_positions"), -1) < 1 &&
            tn_json_int(tn_json_get(o, "embedding_size"), c->hidden) == c->hidden &&
            tn_json_int(tn_json_get(o, "conv_kernel_size"), 0) < 1;
    if (plain && c->span >= 4 && c->span / 2 < c->positions - 1) return TN_OK;
    return tn_hf_fail(f->path, TN_ERR_UNSUPPORTED,
                      "only DeBERTa's kind of version 3 is supported: relative_attention and share_att_key true, "
                      "pos_att_type c2p and p2c, norm_rel_ebd layer_norm, position_buckets of at least 4, no "
                      "position_biased_input, convolution or embedding_size of its own");
}

/* Near distances have a row each, far ones share rows by their logarithm. In f32, as transformers computes it. */
int64_t tn_encoder_distance(const encoder_config *c, int64_t away) {
    int64_t mid = c->span / 2, far = away < 0 ? -away : away, row = far;
    if (far > mid) {
        float most = logf((float)(c->positions - 1) / (float)mid);
        row = (int64_t)ceilf(logf((float)far / (float)mid) / most * (float)(mid - 1)) + mid;
    }
    row = c->span + (away < 0 ? -row : row);
    return row < 0 ? 0 : row > 2 * c->span - 1 ? 2 * c->span - 1 : row;
}

/* BigBird computes texts of up to so many tokens with the attention of others. */
static tn_status limit_to_dense_attention(const hf_folder *f, encoder_config *c) {
    int64_t block, random;
    if (strcmp(c->family->model_type, "big_bird") != 0) return TN_OK;
    if (strcmp(tn_hf_text(f, "attention_type", "block_sparse"), "original_full") == 0) return TN_OK;
    TRY(tn_hf_size(f, "block_size", 64, HF_MOST_WIDTH, &block));
    TRY(tn_hf_size(f, "num_random_blocks", 3, HF_MOST_WIDTH, &random));
    int64_t most = (5 + 2 * random) * block;
    if (most < c->longest) c->longest = most;
    return TN_OK;
}

static tn_status read_sizes_encoder(const hf_folder *f, encoder_config *c) {
    const char *const *key = c->family->keys;
    static const int64_t none[ENC_KEYS] = {-1, -1, -1, -1, -1},
                         most[] = {HF_MOST_LAYERS, HF_MOST_WIDTH, HF_MOST_WIDTH, HF_MOST_HEADS, HF_MOST_WIDTH};
    int64_t *const sizes[] = {&c->layers, &c->hidden, &c->intermediate, &c->heads, &c->positions};
    const int64_t *missing = c->family->usual ? c->family->usual : none;
    for (int k = 0; k <= ENC_POSITIONS; k++)
        TRY(tn_hf_size(f, key[k], missing[k], most[k], sizes[k]));
    c->stored = c->family->one_layer ? 1 : c->layers;
    const char *usual = c->family->activation ? c->family->activation : "gelu";
    TRY(tn_hf_activation(f, key[ENC_ACTIVATION], usual, &c->activation));
    TRY(read_rope(f, c));
    TRY(read_relative(f, c));
    c->eps = c->family->eps > 0 ? c->family->eps : USUAL_EPS;
    if (key[ENC_EPS]) TRY(tn_hf_real(f, f->config, key[ENC_EPS], c->eps, 1e-20, 1, &c->eps));
    if (c->hidden % c->heads != 0)
        return tn_hf_fail(f->path, TN_ERR_FORMAT, "%" PRId64 " heads do not divide the hidden size %" PRId64, c->heads,
                          c->hidden);
    if (c->base > 0 && c->hidden / c->heads % 2 != 0)
        return tn_hf_fail(f->path, TN_ERR_FORMAT, "heads of %" PRId64 " cannot be rotated in pairs",
                          c->hidden / c->heads);
    int64_t padding = -1;
    if (c->family->positions_behind_padding) {
        padding = c->family->padding;
        if (padding == 0) padding = tn_json_int(tn_json_get(f->config, "pad_token_id"), 1);
        if (padding < 0 || padding >= c->positions - 1)
            return tn_hf_fail(f->path, TN_ERR_FORMAT,
                              "'pad_token_id' is %" PRId64 ", but there are only %" PRId64 " positions", padding,
                              c->positions);
    }
    c->first_position = padding + 1;
    c->longest = c->positions - c->first_position;
    bool drops = tn_json_bool(tn_json_get(f->config, "token_dropout"), false);
    c->mask_token = drops ? tn_json_int(tn_json_get(f->config, "mask_token_id"), -1) : -1;
    return limit_to_dense_attention(f, c);
}

/* ---- weights ----------------------------------------------------------------------------------------------------- */

static tn_status check_weight(const hf_folder *f, encoder_config *c, const char *name, int64_t rows, int64_t columns) {
    tn_safetensors_info t = {.struct_size = sizeof t};
    if (!tn_hf_find(f, name, &t)) return tn_backend_fail(TN_ERR_FORMAT, "'%s' has no tensor '%s'", f->path, name);
    TRY(tn_hf_check(f, &t, (int64_t[]){rows, columns, 0}));
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
    return layer >= 0 && c->family->bare & PART_BIT(part) ? TN_OK : check_weight(f, c, name, rows, 0);
}

static tn_status check_layer(const hf_folder *f, encoder_config *c, int64_t layer) {
    for (int part = 0; part < LAYER_PARTS; part++) {
        bool norm = part == PART_NORM1 || part == PART_NORM2;
        int64_t rows = part == PART_UP || part == PART_GATE ? c->intermediate : c->hidden;
        if (!c->family->parts[part]) continue;
        if (part == PART_UP && c->family->fused_gate) rows *= 2;
        if (part == PART_QKV) rows *= 3;
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
    if (table == TABLE_WORDS) c->embedding = t.rank == 2 && c->projects ? t.shape[1] : c->hidden;
    if (*rows < 1 || *rows > INT32_MAX)
        return tn_backend_fail(TN_ERR_FORMAT, "'%s': tensor '%s' has %" PRId64 " rows, which is out of range", f->path,
                               name, *rows);
    return check_weight(f, c, name, *rows, c->embedding);
}

/* Whether the file has a table that not all files of the family have. */
static bool has_table(const hf_folder *f, const encoder_config *c, int table) {
    char name[HF_NAME_SIZE];
    tn_safetensors_info t = {.struct_size = sizeof t};
    if (!c->family->tables[table]) return false;
    tn_encoder_name(c, -1, table, ".weight", name);
    return tn_hf_find(f, name, &t);
}

static bool is_beside(const char *name) {
    if (tn_txt_ends_with(name, ".rotary_embeddings.inv_freq")) return true;
    for (size_t i = 0; i < sizeof beside / sizeof *beside; i++)
        if (strncmp(name, beside[i], strlen(beside[i])) == 0) return true;
    return false;
}

/* Whether the name, which has lost its ending, is one that tn_encoder_name makes. */
static bool is_known(const encoder_config *c, const char *name, bool bias) {
    const encoder_family *f = c->family;
    size_t length = strlen(f->layer);
    for (int i = 0; i < TABLES; i++)
        if (f->tables[i] && strcmp(name, f->tables[i]) == 0) return true;
    if (strncmp(name, f->layer, length) != 0) return false;
    char *end;
    int64_t layer = strtoll(name + length, &end, 10);
    for (int i = 0; i < LAYER_PARTS && layer >= 0 && layer < c->stored && *end == '.'; i++)
        if (f->parts[i] && strcmp(end + 1, f->parts[i]) == 0) return !(bias && f->bare & PART_BIT(i));
    return false;
}

static tn_status refuse_unknown(const hf_folder *f, const encoder_config *c) {
    for (int64_t i = 0; i < tn_hf_weights_count(f->weights); i++) {
        tn_safetensors_info t = {.struct_size = sizeof t};
        TRY(tn_hf_weights_at(f->weights, i, &t));
        const char *name = tn_hf_strip(f, t.name), *ending = strrchr(name, '.');
        char stem[HF_NAME_SIZE];
        snprintf(stem, sizeof stem, "%.*s", ending ? (int)(ending - name) : 0, name);
        bool fits = ending && tn_hf_is_parameter(ending) && is_known(c, stem, strcmp(ending, ".bias") == 0);
        if (c->family->spare && strcmp(stem, c->family->spare) == 0) continue;
        if (!fits && !is_beside(name) && !tn_hf_is_other_part(f, t.name))
            return tn_backend_fail(TN_ERR_UNSUPPORTED,
                                   "'%s': tensor '%.100s' is not known in a %s encoder of %" PRId64
                                   " layers; ignoring it could give wrong results",
                                   f->path, t.name, c->family->model_type, c->layers);
    }
    return TN_OK;
}

static tn_status check_output(const hf_folder *f, encoder_config *c) {
    char name[HF_NAME_SIZE];
    tn_safetensors_info t = {.struct_size = sizeof t};
    if (c->dense_count > 0)
        return tn_backend_fail(TN_ERR_UNSUPPORTED, "'%s': dense layers after the projection of texts are not supported",
                               f->path);
    tn_encoder_name(c, -1, TABLE_OUTPUT, ".weight", name);
    if (tn_hf_find(f, name, &t) && t.rank == 2 && t.shape[0] >= 1 && t.shape[0] <= HF_MOST_WIDTH) c->width = t.shape[0];
    c->projects_texts = true;
    return check_weight(f, c, name, c->width, c->hidden);
}

static tn_status check_weights(const hf_folder *f, encoder_config *c) {
    int64_t tasks;
    c->projects = has_table(f, c, TABLE_PROJECTION);
    c->tasks = c->family->tables[TABLE_TASKS] && tn_json_bool(tn_json_get(f->config, "use_task_id"), false);
    TRY(check_table(f, c, TABLE_WORDS, &c->vocabulary));
    bool types = c->family->tables[TABLE_TYPES] && tn_json_int(tn_json_get(f->config, "type_vocab_size"), 1) != 0;
    if (types) TRY(check_table(f, c, TABLE_TYPES, &c->types));
    if (c->tasks) TRY(check_table(f, c, TABLE_TASKS, &tasks));
    if (c->projects) TRY(check_pair(f, c, -1, TABLE_PROJECTION, c->hidden, c->embedding));
    if (c->family->tables[TABLE_LAST_NORM]) TRY(check_pair(f, c, -1, TABLE_LAST_NORM, c->hidden, 0));
    if (has_table(f, c, TABLE_OUTPUT)) TRY(check_output(f, c));
    char name[HF_NAME_SIZE];
    if (c->family->tables[TABLE_POSITIONS]) {
        tn_encoder_name(c, -1, TABLE_POSITIONS, ".weight", name);
        TRY(check_weight(f, c, name, c->positions, c->embedding));
    }
    if (c->family->tables[TABLE_BUCKETS]) {
        TRY(tn_hf_size(f, "relative_attention_num_buckets", MPNET_BUCKETS, HF_MOST_WIDTH, &c->buckets));
        tn_encoder_name(c, -1, TABLE_BUCKETS, ".weight", name);
        TRY(check_weight(f, c, name, c->buckets, c->heads));
    }
    if (c->span > 0) {
        tn_encoder_name(c, -1, TABLE_RELATIVE, ".weight", name);
        TRY(check_weight(f, c, name, 2 * c->span, c->hidden));
        TRY(check_pair(f, c, -1, TABLE_RELATIVE_NORM, c->hidden, 0));
    }
    if (c->family->tables[TABLE_NORM]) TRY(check_pair(f, c, -1, TABLE_NORM, c->embedding, 0));
    for (int64_t layer = 0; layer < c->stored; layer++)
        TRY(check_layer(f, c, layer));
    return refuse_unknown(f, c);
}

tn_status tn_encoder_configure(hf_folder *f, const tn_embedder_options *options, encoder_config *out) {
    *out = (encoder_config){.pooling = TN_POOLING_MEAN};
    TRY(find_family(f, out));
    TRY(refuse_features(f, out));
    TRY(read_sizes_encoder(f, out));
    if (out->family->pooling != TN_POOLING_DEFAULT) out->pooling = out->family->pooling;
    TRY(tn_encoder_modules(f, options, out));
    char probe[HF_NAME_SIZE];
    tn_encoder_name(out, -1, TABLE_WORDS, ".weight", probe);
    tn_hf_find_prefix(f, out->family->prefix, probe);
    if (!f->prefix[0] && out->family->other_prefix) tn_hf_find_prefix(f, out->family->other_prefix, probe);
    return check_weights(f, out);
}

/* ==== modules ===================================================================================================== */
/* A text passes through all modules in order: encoder, pooling, dense layers, normalisation. modules.json is read even
 * if the caller chooses pooling and norm, because the vectors would be different without the dense layers. */

/* ---- pooling ----------------------------------------------------------------------------------------------------- */

typedef struct pooling_row {
    const char *key;
    tn_pooling pooling; /* TN_POOLING_DEFAULT: not computed here */
} pooling_row;

static const pooling_row pooling_rows[] = {
    {"pooling_mode_mean_tokens", TN_POOLING_MEAN},
    {"pooling_mode_cls_token", TN_POOLING_CLS},
    {"pooling_mode_max_tokens", TN_POOLING_MAX},
    {"pooling_mode_mean_sqrt_len_tokens", TN_POOLING_DEFAULT},
    {"pooling_mode_weightedmean_tokens", TN_POOLING_DEFAULT},
    {"pooling_mode_lasttoken", TN_POOLING_LAST},
};

static tn_status take_pooling(const hf_folder *f, const char *path, const tn_json *config, encoder_config *c) {
    int set = 0;
    for (size_t i = 0; i < sizeof pooling_rows / sizeof *pooling_rows; i++) {
        if (!tn_json_bool(tn_json_get(config, pooling_rows[i].key), false)) continue;
        c->pooling = pooling_rows[i].pooling;
        if (++set > 1 || c->pooling == TN_POOLING_DEFAULT)
            return tn_backend_fail(TN_ERR_UNSUPPORTED,
                                   "'%s/%s/config.json': the pooling '%s'%s is not supported; choose another pooling "
                                   "in tn_embedder_options (--pooling of the command)",
                                   f->path, path, pooling_rows[i].key, set > 1 ? " combined with others" : "");
    }
    return TN_OK;
}

/* FOLDER/path/config.json; *out NULL where there is none. */
static tn_status open_config(const hf_folder *f, const char *path, tn_json_doc **out) {
    char name[HF_NAME_SIZE + 16];
    snprintf(name, sizeof name, "%s/config.json", path);
    return tn_hf_json(f, name, out);
}

static tn_status read_pooling(const hf_folder *f, const char *path, encoder_config *c) {
    AUTO_TXT_JSON tn_json_doc *doc = NULL;
    TRY(open_config(f, path, &doc));
    return take_pooling(f, path, tn_json_root(doc), c);
}

/* ---- dense layers ------------------------------------------------------------------------------------------------ */

static tn_tensor *same(const tn_tensor *x) { return (tn_tensor *)(uintptr_t)x; }
static tn_tensor *tanh_of(const tn_tensor *x) { return tn_tanh(x); }
static tn_tensor *relu_of(const tn_tensor *x) { return tn_relu(x); }
static tn_tensor *sigmoid_of(const tn_tensor *x) { return tn_sigmoid(x); }
static tn_tensor *silu_of(const tn_tensor *x) { return tn_silu(x); }
static tn_tensor *gelu_of(const tn_tensor *x) { return tn_gelu(x, NULL); }

/* The classes of torch.nn, by the last part of their names. */
static tn_activation *activation_of(const char *class) {
    static const struct {
        const char *name;
        tn_activation *function;
    } rows[] = {{"Identity", same},      {"Tanh", tanh_of}, {"ReLU", relu_of},
                {"Sigmoid", sigmoid_of}, {"SiLU", silu_of}, {"GELU", gelu_of}};
    const char *dot = strrchr(class, '.'), *name = dot ? dot + 1 : class;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strcmp(rows[i].name, name) == 0) return rows[i].function;
    return NULL;
}

/* Keys of newer files by which a dense layer is something else. */
static tn_status refuse_variants(const hf_folder *f, const encoder_dense *d, const tn_json *config) {
    static const char *const ends[] = {"module_input_name", "module_output_name"};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        const char *end = tn_json_string(tn_json_get(config, ends[i]), "sentence_embedding");
        if (strcmp(end, "sentence_embedding") != 0)
            return tn_backend_fail(
                TN_ERR_UNSUPPORTED,
                "'%s/%s/config.json': '%s' is '%s'; dense layers are supported only for 'sentence_embedding'", f->path,
                d->path, ends[i], tn_txt_shown(end, strlen(end)).text);
    }
    if (!tn_json_bool(tn_json_get(config, "use_residual"), false)) return TN_OK;
    return tn_backend_fail(TN_ERR_UNSUPPORTED, "'%s/%s/config.json': 'use_residual' is not supported", f->path,
                           d->path);
}

static tn_status take_dense(const hf_folder *f, const tn_json *config, encoder_config *c, encoder_dense *d) {
    const char *class = tn_json_string(tn_json_get(config, "activation_function"), "torch.nn.modules.activation.Tanh");
    d->in = tn_json_int(tn_json_get(config, "in_features"), 0);
    d->out = tn_json_int(tn_json_get(config, "out_features"), 0);
    d->has_bias = tn_json_bool(tn_json_get(config, "bias"), true);
    d->activation = activation_of(class);
    if (!d->activation)
        return tn_backend_fail(TN_ERR_UNSUPPORTED,
                               "'%s/%s/config.json': the activation '%s' is not supported; Identity, Tanh, ReLU, "
                               "Sigmoid, SiLU and GELU are",
                               f->path, d->path, tn_txt_shown(class, strlen(class)).text);
    if (d->in != c->width || d->out < 1 || d->out > HF_MOST_WIDTH)
        return tn_backend_fail(TN_ERR_FORMAT,
                               "'%s/%s/config.json': a dense layer from %" PRId64 " to %" PRId64
                               " features does not fit embeddings of %" PRId64,
                               f->path, d->path, d->in, d->out, c->width);
    c->width = d->out;
    return refuse_variants(f, d, config);
}

static tn_status check_dense(const hf_folder *f, const encoder_dense *d, const hf_weights *w, encoder_config *c) {
    const struct {
        const char *name;
        int64_t shape[3];
    } rows[] = {{"linear.weight", {d->out, d->in}}, {"linear.bias", {d->out}}};
    int count = d->has_bias ? 2 : 1;
    for (int i = 0; i < count; i++) {
        tn_safetensors_info t = {.struct_size = sizeof t};
        if (!tn_hf_weights_find(w, rows[i].name, &t))
            return tn_backend_fail(TN_ERR_FORMAT, "'%s/%s' has no tensor '%s'", f->path, d->path, rows[i].name);
        TRY(tn_hf_check(f, &t, rows[i].shape));
        c->parameters += d->out * (i == 0 ? d->in : 1);
        c->weights_bytes += t.bytes;
    }
    if (tn_hf_weights_count(w) == count) return TN_OK;
    return tn_backend_fail(TN_ERR_UNSUPPORTED, "'%s/%s': %" PRId64 " tensors; a dense layer must have %d", f->path,
                           d->path, tn_hf_weights_count(w), count);
}

tn_status tn_encoder_dense_weights(const hf_folder *f, const encoder_dense *d, hf_weights **out) {
    char path[4096];
    *out = NULL;
    if (snprintf(path, sizeof path, "%s/%s", f->path, d->path) >= (int)sizeof path)
        return tn_backend_fail(TN_ERR_ARGUMENT, "'%s': the path is too long", f->path);
    return tn_hf_weights_open(path, out);
}

static tn_status add_dense(const hf_folder *f, const char *path, encoder_config *c) {
    AUTO_TXT_JSON tn_json_doc *doc = NULL;
    AUTO_WEIGHTS hf_weights *w = NULL;
    if (c->dense_count == ENC_MOST_DENSE)
        return tn_backend_fail(TN_ERR_UNSUPPORTED, "'%s/modules.json': more than %d dense layers", f->path,
                               ENC_MOST_DENSE);
    encoder_dense *d = &c->dense[c->dense_count++];
    snprintf(d->path, sizeof d->path, "%s", path);
    TRY(open_config(f, path, &doc));
    if (!doc) return tn_backend_fail(TN_ERR_IO, "'%s/%s' has no config.json", f->path, path);
    TRY(take_dense(f, tn_json_root(doc), c, d));
    TRY(tn_encoder_dense_weights(f, d, &w));
    return check_dense(f, d, w, c);
}

/* ---- modules.json ------------------------------------------------------------------------------------------------ */

typedef struct modules {
    char pooling[HF_NAME_SIZE]; /* the folder of that module */
    bool normalizes;
} modules;

static const char *module_name_of(const tn_json *module) {
    const char *type = tn_json_string(tn_json_get(module, "type"), ""), *dot = strrchr(type, '.');
    return dot ? dot + 1 : type;
}

static tn_status take_module(const hf_folder *f, const tn_json *module, size_t i, encoder_config *c, modules *m) {
    const char *name = module_name_of(module), *path = tn_json_string(tn_json_get(module, "path"), "");
    bool pools = strcmp(name, "Pooling") == 0, dense = strcmp(name, "Dense") == 0;
    if (strcmp(name, "Transformer") == 0 && i == 0) return TN_OK;
    if (strcmp(name, "Dropout") == 0) return TN_OK; /* nothing is dropped outside training */
    if (strcmp(name, "Normalize") == 0) return m->normalizes = true, TN_OK;
    if (!pools && !dense)
        return tn_backend_fail(TN_ERR_UNSUPPORTED,
                               "'%s/modules.json': module %zu has the type '%s'; supported are Transformer, Pooling, "
                               "Dense, Dropout and Normalize",
                               f->path, i, tn_txt_shown(name, strlen(name)).text);
    if (!tn_hf_plain_name(path) || strlen(path) >= sizeof m->pooling)
        return tn_backend_fail(TN_ERR_FORMAT,
                               "'%s/modules.json': the path of module %zu, '%s', is not a folder next to it", f->path,
                               i, tn_txt_shown(path, strlen(path)).text);
    if (m->normalizes)
        return tn_backend_fail(TN_ERR_UNSUPPORTED,
                               "'%s/modules.json': module %zu, %s, after Normalize is not supported", f->path, i, name);
    if (dense) return add_dense(f, path, c);
    snprintf(m->pooling, sizeof m->pooling, "%s", path);
    return TN_OK;
}

static tn_status read_modules(const hf_folder *f, encoder_config *c, modules *m) {
    AUTO_TXT_JSON tn_json_doc *doc = NULL;
    TRY(tn_hf_json(f, "modules.json", &doc));
    const tn_json *list = tn_json_root(doc);
    for (size_t i = 0; i < tn_json_length(list); i++)
        TRY(take_module(f, tn_json_at(list, i), i, c, m));
    return TN_OK;
}

static tn_status read_longest(const hf_folder *f, encoder_config *c) {
    tn_json_doc *doc;
    TRY(tn_hf_json(f, "sentence_bert_config.json", &doc));
    int64_t most = tn_json_int(tn_json_get(tn_json_root(doc), "max_seq_length"), c->longest);
    tn_json_free(doc);
    if (most >= 1 && most < c->longest) c->longest = most;
    return TN_OK;
}

tn_status tn_encoder_modules(const hf_folder *f, const tn_embedder_options *o, encoder_config *c) {
    modules m = {.pooling = "1_Pooling"};
    c->width = c->hidden;
    TRY(read_modules(f, c, &m));
    c->norm = m.normalizes ? TN_EMBED_NORM_UNIT : TN_EMBED_NORM_NONE;
    if (o->pooling == TN_POOLING_DEFAULT) TRY(read_pooling(f, m.pooling, c));
    if (o->pooling != TN_POOLING_DEFAULT) c->pooling = o->pooling;
    if (o->norm != TN_EMBED_NORM_DEFAULT) c->norm = o->norm;
    return read_longest(f, c);
}
