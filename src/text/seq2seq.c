/* seq2seq.c — T5, BART and their relatives: opening, the encoder of a text, tokens of an answer by a captured plan.
 *
 * In T5 positions are known only by what the distance of two tokens adds to their score. Distances are sorted into
 * buckets on the host; a table gives each bucket's bias for each head. In BART's kind a table or sine waves are added
 * to the tokens. Texts are padded to whole pages, so that texts of similar length share a plan. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "text/sides.h"
#include "trunnion/seq2seq.h"
#include "trunnion/trunnion.h"

enum { MOST_CONTEXT = 8192, MOST_BUCKETS = 1 << 16, MOST_ENDS = 16, PART_NAME = 64 };
enum { FIRST_PLACE = 2 }; /* row of the first token in a table of positions of BART's kind */

/* A kind of model. */
typedef struct family {
    const char *type; /* config.json's model_type */
    bool each_bias;   /* each layer has a table of biases; else the first one's is that of all */
    bool scales;      /* the decoder's output by 1 / sqrt(hidden), if the embedding is the output's matrix too */
    /* BART's kind: norms with a mean, biases everywhere, scores scaled by the root of a head's width */
    bool bart;
    bool norms_last;      /* after what they are for, and none at the end of a side; else in front of it */
    bool norms_embedding; /* a norm of what the first layer reads */
    bool learned;         /* positions: from the third row of a table on; else sine waves, */
    bool late_waves;      /* from the third row on, too, and to the slowest one of wavelength 10000 (fairseq's) */
    int32_t start, end;   /* tokens that begin and end an answer, where no file says */
} family;

static const family families[] = {
    {"t5", .scales = true, .end = 1},
    {"mt5", .scales = false, .end = 1},
    {"umt5", .each_bias = true, .scales = true, .end = 1},
    {"bart", .bart = true, .norms_last = true, .norms_embedding = true, .learned = true, .start = 2, .end = 2},
    {"mbart", .bart = true, .norms_embedding = true, .learned = true, .start = 2, .end = 2},
    {"marian", .bart = true, .norms_last = true},
    {"pegasus", .bart = true, .end = 1},
    {"m2m_100", .bart = true, .late_waves = true, .start = 2, .end = 2},
};
enum { FAMILIES = sizeof families / sizeof *families };

/* What the files say. */
typedef struct seq2seq_config {
    const family *family;
    int64_t layer_count[2], hidden, width, heads, inner[2], vocabulary, buckets, most_distance, context;
    int64_t most_positions; /* of a text and of an answer; 0: no limit */
    double eps, output_scale, embedding_scale, score_scale;
    bool gated;
    tn_activation *activation;
    int32_t start, forced, ends[MOST_ENDS];
    int end_count;
} seq2seq_config;

typedef struct seq2seq_weights {
    side_layer *layers[2];              /* weights NULL: not in this layer; T5 has no biases */
    tn_tensor *embedding, *output;      /* output NULL: the embedding */
    hf_linear norm[2], first_norm[2];   /* of the end of a side; of the embedding. NULL: none */
    tn_tensor *places[2], *logits_bias; /* tables of positions [rows, hidden]; [1, vocabulary]; NULL: none */
} seq2seq_weights;

/* State of one text and its answer, except for the caches of layers. */
typedef struct seq2seq_run {
    tn_tensor *text_mask;                   /* state [1, 1, 1, padded]: -inf for padding */
    int64_t padded, position, *bucket_room; /* bucket_room [context] */
    float *mask_room;
    side_token token;
    bool encoded;
} seq2seq_run;

struct tn_seq2seq {
    hf_folder folder;
    tn_json_doc *generation; /* generation_config.json, or NULL */
    tn_device *device;
    seq2seq_config config;
    seq2seq_weights weights;
    seq2seq_run run;
};

/* ---- config.json ------------------------------------------------------------------------------------------------- */

static const family *find_family(const char *type) {
    for (int i = 0; i < FAMILIES; i++)
        if (strcmp(families[i].type, type) == 0) return &families[i];
    return NULL;
}

static bool is_family(const char *type) { return find_family(type) != NULL; }
bool tn_seq2seq_knows(const char *path) { return tn_hf_is_of(path, is_family); }

/* "relu", "gated-gelu": the latter means the approximation by tanh. */
static tn_status read_activation(tn_seq2seq *m) {
    const char *name = tn_hf_text(&m->folder, "feed_forward_proj", "relu");
    m->config.gated = strncmp(name, "gated-", 6) == 0;
    const char *bare = m->config.gated ? name + 6 : name;
    m->config.activation = tn_txt_activation(m->config.gated && strcmp(bare, "gelu") == 0 ? "gelu_new" : bare);
    if (m->config.activation) return TN_OK;
    return tn_hf_fail(m->folder.path, TN_ERR_UNSUPPORTED, "feed_forward_proj '%s' is not supported",
                      tn_txt_shown(name, strlen(name)).text);
}

/* What generation_config.json says about answers, or else config.json. */
static const tn_json *said(const tn_seq2seq *m, const char *key) {
    const tn_json *v = tn_json_get(tn_json_root(m->generation), key);
    return tn_json_kind_of(v) != TN_JSON_NULL ? v : tn_json_get(m->folder.config, key);
}

/* One id, or a list. */
static tn_status read_ends(tn_seq2seq *m) {
    const tn_json *v = said(m, "eos_token_id");
    bool list = tn_json_kind_of(v) == TN_JSON_ARRAY;
    size_t count = list ? tn_json_length(v) : 1;
    if (count > MOST_ENDS)
        return tn_backend_fail(TN_ERR_FORMAT, "'%s': eos_token_id lists %zu tokens, at most %d are supported",
                               m->folder.path, count, MOST_ENDS);
    for (size_t i = 0; i < count; i++) {
        int64_t id = tn_json_int(list ? tn_json_at(v, i) : v, m->config.family->end);
        if (id >= 0 && id < m->config.vocabulary) m->config.ends[m->config.end_count++] = (int32_t)id;
    }
    return TN_OK;
}

static tn_status read_bart(tn_seq2seq *m) {
    const hf_folder *f = &m->folder;
    int64_t heads;
    TRY(tn_hf_size(f, "encoder_layers", 12, HF_MOST_LAYERS, &m->config.layer_count[ENCODER]));
    TRY(tn_hf_size(f, "decoder_layers", 12, HF_MOST_LAYERS, &m->config.layer_count[DECODER]));
    TRY(tn_hf_size(f, "encoder_attention_heads", 16, HF_MOST_HEADS, &m->config.heads));
    TRY(tn_hf_size(f, "decoder_attention_heads", 16, HF_MOST_HEADS, &heads));
    TRY(tn_hf_size(f, "encoder_ffn_dim", 4096, HF_MOST_WIDTH, &m->config.inner[ENCODER]));
    TRY(tn_hf_size(f, "decoder_ffn_dim", 4096, HF_MOST_WIDTH, &m->config.inner[DECODER]));
    TRY(tn_hf_size(f, "max_position_embeddings", 1024, 1 << 20, &m->config.most_positions));
    TRY(tn_hf_activation(f, "activation_function", "gelu", &m->config.activation));
    bool shared = tn_json_bool(tn_json_get(f->config, "share_encoder_decoder_embeddings"), true);
    if (heads != m->config.heads || m->config.hidden % heads != 0 || !shared)
        return tn_hf_fail(f->path, TN_ERR_UNSUPPORTED,
                          "%" PRId64 " heads of the encoder, %" PRId64
                          " of the decoder%s; only the same number, which divides d_model %" PRId64
                          ", and one embedding for both sides are supported",
                          m->config.heads, heads, shared ? "" : ", and an embedding each", m->config.hidden);
    if (m->config.family->late_waves && (m->config.hidden % 2 != 0 || m->config.hidden < 4))
        return tn_hf_fail(f->path, TN_ERR_UNSUPPORTED, "d_model is %" PRId64 "; only even ones from 4 on are supported",
                          m->config.hidden);
    m->config.width = m->config.hidden / heads;
    m->config.score_scale = 1 / sqrt((double)m->config.width);
    if (tn_json_bool(tn_json_get(f->config, "scale_embedding"), m->config.family->late_waves))
        m->config.embedding_scale = sqrt((double)m->config.hidden);
    m->config.eps = 1e-5;
    if (m->config.context > m->config.most_positions) m->config.context = m->config.most_positions;
    int64_t forced = tn_json_int(said(m, "forced_bos_token_id"), -1);
    if (forced >= 0 && forced < m->config.vocabulary) m->config.forced = (int32_t)forced;
    return TN_OK;
}

static tn_status read_start(tn_seq2seq *m) {
    int64_t start = tn_json_int(said(m, "decoder_start_token_id"), m->config.family->start);
    if (start < 0 || start >= m->config.vocabulary)
        return tn_backend_fail(
            TN_ERR_FORMAT, "'%s': decoder_start_token_id %" PRId64 " is outside the vocabulary of %" PRId64 " tokens",
            m->folder.path, start, m->config.vocabulary);
    m->config.start = (int32_t)start;
    return TN_OK;
}

static tn_status read_t5(tn_seq2seq *m) {
    const hf_folder *f = &m->folder;
    TRY(tn_hf_size(f, "d_kv", 64, HF_MOST_WIDTH, &m->config.width));
    TRY(tn_hf_size(f, "d_ff", -1, HF_MOST_WIDTH, &m->config.inner[ENCODER]));
    m->config.inner[DECODER] = m->config.inner[ENCODER];
    TRY(tn_hf_size(f, "num_heads", -1, HF_MOST_HEADS, &m->config.heads));
    TRY(tn_hf_size(f, "num_layers", -1, HF_MOST_LAYERS, &m->config.layer_count[ENCODER]));
    TRY(tn_hf_size(f, "num_decoder_layers", m->config.layer_count[ENCODER], HF_MOST_LAYERS,
                   &m->config.layer_count[DECODER]));
    TRY(tn_hf_size(f, "relative_attention_num_buckets", 32, MOST_BUCKETS, &m->config.buckets));
    TRY(tn_hf_size(f, "relative_attention_max_distance", 128, INT32_MAX, &m->config.most_distance));
    TRY(tn_hf_real(f, f->config, "layer_norm_epsilon", 1e-6, 0, 1, &m->config.eps));
    if (m->config.buckets < 4 || m->config.buckets % 2 != 0 || m->config.most_distance <= m->config.buckets / 2)
        return tn_hf_fail(f->path, TN_ERR_FORMAT,
                          "relative_attention_num_buckets is %" PRId64 " and relative_attention_max_distance %" PRId64
                          "; the first must be even and at least 4, the second more than its half",
                          m->config.buckets, m->config.most_distance);
    bool tied = tn_json_bool(tn_json_get(f->config, "tie_word_embeddings"), true);
    bool scales = tn_json_bool(tn_json_get(f->config, "scale_decoder_outputs"), tied);
    m->config.output_scale = scales && m->config.family->scales ? 1 / sqrt((double)m->config.hidden) : 1;
    return read_activation(m);
}

static tn_status read_config(tn_seq2seq *m) {
    const hf_folder *f = &m->folder;
    const char *type = tn_hf_text(f, "model_type", "");
    m->config.family = find_family(type);
    if (!m->config.family)
        return tn_hf_fail(
            f->path, TN_ERR_UNSUPPORTED,
            "model_type is '%s'; encoder-decoder models are t5, mt5, umt5, bart, mbart, marian, pegasus and m2m_100",
            tn_txt_shown(type, strlen(type)).text);
    m->config.forced = -1;
    m->config.output_scale = m->config.embedding_scale = m->config.score_scale = 1;
    TRY(tn_hf_json(f, "generation_config.json", &m->generation));
    TRY(tn_hf_size(f, "d_model", -1, HF_MOST_WIDTH, &m->config.hidden));
    TRY(tn_hf_size(f, "vocab_size", -1, INT32_MAX, &m->config.vocabulary));
    TRY(m->config.family->bart ? read_bart(m) : read_t5(m));
    TRY(read_start(m));
    return read_ends(m);
}

/* ---- weights ----------------------------------------------------------------------------------------------------- */

/* What stands between "encoder.block.N." and ".weight"; the decoder's feed-forward is its layer 2. */
static void put_t5_name(const tn_seq2seq *m, int side, int part, char name[PART_NAME]) {
    static const char *const attention[] = {"q", "k", "v", "o"};
    int ffn = side == DECODER ? 2 : 1;
    if (part <= SELF_O) snprintf(name, PART_NAME, "layer.0.SelfAttention.%s", attention[part]);
    if (part == SELF_NORM) snprintf(name, PART_NAME, "layer.0.layer_norm");
    if (part == UP) snprintf(name, PART_NAME, "layer.%d.DenseReluDense.%s", ffn, m->config.gated ? "wi_1" : "wi");
    if (part == GATE) snprintf(name, PART_NAME, "layer.%d.DenseReluDense.wi_0", ffn);
    if (part == DOWN) snprintf(name, PART_NAME, "layer.%d.DenseReluDense.wo", ffn);
    if (part == FFN_NORM) snprintf(name, PART_NAME, "layer.%d.layer_norm", ffn);
    if (part >= CROSS_Q && part <= CROSS_O)
        snprintf(name, PART_NAME, "layer.1.EncDecAttention.%s", attention[part - CROSS_Q]);
    if (part == CROSS_NORM) snprintf(name, PART_NAME, "layer.1.layer_norm");
    if (part == BIAS) snprintf(name, PART_NAME, "layer.0.SelfAttention.relative_attention_bias");
}

/* Whether models have a tensor of this name, which may be missing. */
static bool has(const tn_seq2seq *m, const char *name) {
    tn_safetensors_info info = {.struct_size = sizeof info};
    return tn_hf_find(&m->folder, name, &info);
}

/* A norm of BART's kind, "encoder.layer_norm". */
static tn_status take_norm(tn_seq2seq *m, int side, const char *what, hf_linear *out) {
    char stem[HF_NAME_SIZE - 8];
    snprintf(stem, sizeof stem, "model.%s.%s", tn_side_names[side], what);
    return tn_hf_take_linear(&m->folder, stem, (int64_t[]){m->config.hidden, 0}, true, true, out);
}

static tn_status take_part(tn_seq2seq *m, int side, int64_t i, int part, side_layer *l) {
    char stem[HF_NAME_SIZE - 8], own[PART_NAME] = "";
    int64_t all = m->config.heads * m->config.width, inner = m->config.inner[side], hidden = m->config.hidden;
    const int64_t shapes[PARTS][3] = {
        [SELF_Q] = {all, hidden},  [SELF_K] = {all, hidden},  [SELF_V] = {all, hidden},
        [SELF_O] = {hidden, all},  [SELF_NORM] = {hidden},    [UP] = {inner, hidden},
        [GATE] = {inner, hidden},  [DOWN] = {hidden, inner},  [FFN_NORM] = {hidden},
        [CROSS_Q] = {all, hidden}, [CROSS_K] = {all, hidden}, [CROSS_V] = {all, hidden},
        [CROSS_O] = {hidden, all}, [CROSS_NORM] = {hidden},   [BIAS] = {m->config.buckets, m->config.heads},
    };
    bool bart = m->config.family->bart, cross = part >= CROSS_Q && part <= CROSS_NORM;
    if ((cross && side == ENCODER) || (part == GATE && !m->config.gated) || (bart && !tn_side_parts[part]))
        return TN_OK;
    if (part == BIAS && i > 0 && !m->config.family->each_bias) return TN_OK;
    if (!bart) put_t5_name(m, side, part, own);
    snprintf(stem, sizeof stem, bart ? "model.%s.layers.%" PRId64 ".%s" : "%s.block.%" PRId64 ".%s",
             tn_side_names[side], i, bart ? tn_side_parts[part] : own);
    return tn_hf_take_linear(&m->folder, stem, shapes[part], part == BIAS, bart, &l->part[part]);
}

static int64_t first_place(const tn_seq2seq *m) {
    return m->config.family->learned || m->config.family->late_waves ? FIRST_PLACE : 0;
}

/* Sine waves in the first half of a row, cosines in the second. Source: Vaswani et al. 2017, section 3.5. */
static tn_status make_waves(tn_seq2seq *m, tn_tensor **out) {
    int64_t rows = m->config.most_positions + first_place(m), half = (m->config.hidden + 1) / 2;
    double steps = m->config.family->late_waves ? (double)m->config.hidden / 2 - 1 : (double)m->config.hidden / 2;
    bool fits = m->config.most_positions <= MOST_CONTEXT;
    float *room = fits ? tn_txt_alloc((size_t)(rows * m->config.hidden), sizeof *room) : NULL;
    if (!room)
        return tn_hf_fail(m->folder.path, fits ? TN_ERR_MEMORY : TN_ERR_UNSUPPORTED,
                          "max_position_embeddings is %" PRId64 "; at most %d are supported", m->config.most_positions,
                          MOST_CONTEXT);
    for (int64_t p = 0; p < rows; p++)
        for (int64_t j = 0; j < m->config.hidden; j++) {
            int64_t pair = j < half ? j : j - half;
            double angle = (double)p / pow(10000, (double)pair / steps);
            room[p * m->config.hidden + j] = (float)(j < half ? sin(angle) : cos(angle));
        }
    {
        TN_SCOPE;
        *out = tn_retain(tn_from_data(room, TN_DIMS(rows, m->config.hidden), TN_F32));
    }
    tn_txt_free(room);
    return tn_eval(out, 1);
}

static tn_status take_bart_side(tn_seq2seq *m, int side) {
    char name[HF_NAME_SIZE];
    if (m->config.family->norms_embedding) TRY(take_norm(m, side, "layernorm_embedding", &m->weights.first_norm[side]));
    if (!m->config.family->norms_last) TRY(take_norm(m, side, "layer_norm", &m->weights.norm[side]));
    if (!m->config.family->learned) return make_waves(m, &m->weights.places[side]);
    snprintf(name, sizeof name, "model.%s.embed_positions.weight", tn_side_names[side]);
    const int64_t shape[] = {m->config.most_positions + FIRST_PLACE, m->config.hidden, 0};
    return tn_hf_take(&m->folder, name, shape, true, &m->weights.places[side]);
}

/* Single tokens that must not come (Marian's padding) have a bias of minus infinity. */
static tn_status take_logits_bias(tn_seq2seq *m) {
    const tn_json *words = said(m, "bad_words_ids");
    if (!has(m, "final_logits_bias")) return TN_OK;
    const int64_t shape[] = {1, m->config.vocabulary, 0};
    TRY(tn_hf_take(&m->folder, "final_logits_bias", shape, true, &m->weights.logits_bias));
    TRY(tn_read(m->weights.logits_bias, m->run.token.logits,
                (size_t)m->config.vocabulary * sizeof *m->run.token.logits));
    for (size_t i = 0; i < tn_json_length(words); i++) {
        const tn_json *word = tn_json_at(words, i);
        int64_t id = tn_json_length(word) == 1 ? tn_json_int(tn_json_at(word, 0), -1) : -1;
        if (id >= 0 && id < m->config.vocabulary) m->run.token.logits[id] = -INFINITY;
    }
    TN_SCOPE;
    tn_free(m->weights.logits_bias);
    m->weights.logits_bias = tn_retain(tn_from_data(m->run.token.logits, TN_DIMS(1, m->config.vocabulary), TN_F32));
    return tn_eval(&m->weights.logits_bias, 1);
}

static tn_status take_side(tn_seq2seq *m, int side) {
    m->weights.layers[side] = tn_txt_zalloc((size_t)m->config.layer_count[side], sizeof *m->weights.layers[side]);
    if (!m->weights.layers[side]) return TN_ERR_MEMORY;
    for (int64_t i = 0; i < m->config.layer_count[side]; i++)
        for (int part = 0; part < PARTS; part++)
            TRY(take_part(m, side, i, part, &m->weights.layers[side][i]));
    if (m->config.family->bart) return take_bart_side(m, side);
    const char *name = side == ENCODER ? "encoder.final_layer_norm.weight" : "decoder.final_layer_norm.weight";
    return tn_hf_take(&m->folder, name, (int64_t[]){m->config.hidden, 0}, true, &m->weights.norm[side].weight);
}

/* A file may repeat the shared embedding for each side. Only the shared one is read, so the others must equal it. */
static tn_status refuse_other_embeddings(const tn_seq2seq *m, const char *shared) {
    static const char *const sides[] = {"model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"};
    tn_safetensors_info all = {.struct_size = sizeof all}, own = {.struct_size = sizeof own};
    for (int side = 0; side < 2 && tn_hf_find(&m->folder, shared, &all); side++) {
        const char *name = sides[side] + (m->config.family->bart ? 0 : strlen("model."));
        if (!tn_hf_find(&m->folder, name, &own) || !own.data || !all.data) continue;
        if (own.bytes != all.bytes || memcmp(own.data, all.data, (size_t)all.bytes) != 0)
            return tn_backend_fail(TN_ERR_UNSUPPORTED, "'%s': tensors '%s' and '%s' differ, which is not supported",
                                   m->folder.path, shared, name);
    }
    return TN_OK;
}

static tn_status take_weights(tn_seq2seq *m) {
    const char *shared = m->config.family->bart ? "model.shared.weight" : "shared.weight";
    const int64_t shape[] = {m->config.vocabulary, m->config.hidden, 0};
    TRY(refuse_other_embeddings(m, shared));
    TRY(tn_hf_take(&m->folder, shared, shape, false, &m->weights.embedding));
    if (m->config.family->bart) TRY(take_logits_bias(m));
    if (has(m, "lm_head.weight")) TRY(tn_hf_take(&m->folder, "lm_head.weight", shape, false, &m->weights.output));
    TRY(take_side(m, ENCODER));
    return take_side(m, DECODER);
}

/* ---- states ------------------------------------------------------------------------------------------------------ */

static void free_states(tn_seq2seq *m) {
    tn_side_free_graph(&m->run.token);
    tn_side_free_states(m->weights.layers[DECODER], m->config.layer_count[DECODER]);
    tn_free(m->run.text_mask);
    m->run.text_mask = NULL;
    m->run.padded = 0;
}

static tn_status make_states(tn_seq2seq *m, int64_t padded) {
    const seq2seq_config *c = &m->config;
    free_states(m);
    TRY(tn_side_make_states(m->weights.layers[DECODER], c->layer_count[DECODER], c->context, c->heads, c->width,
                            padded));
    TN_SCOPE;
    tn_tensor *mask;
    TRY(tn_zero_states(TN_DIMS(1, 1, 1, padded), TN_F32, &mask, 1));
    m->run.text_mask = tn_retain(mask);
    m->run.padded = padded;
    return TN_OK;
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static tn_status open_model(void *model, const char *folder, tn_device *device, const void *options) {
    tn_seq2seq *m = model;
    m->device = device;
    m->config.context = ((const tn_seq2seq_options *)options)->context;
    if (m->config.context < 1 || m->config.context > MOST_CONTEXT)
        return tn_backend_fail(TN_ERR_ARGUMENT, "tn_seq2seq_open: context is %" PRId64 "; it must be 1 to %d",
                               m->config.context, MOST_CONTEXT);
    if (!tn_hf_is_folder(folder)) return tn_backend_fail(TN_ERR_IO, "'%s' is not a folder", folder);
    TRY(tn_hf_open(folder, &m->folder));
    TRY(read_config(m));
    m->run.token.logits = tn_txt_alloc((size_t)m->config.vocabulary, sizeof *m->run.token.logits);
    m->run.bucket_room = tn_txt_alloc((size_t)m->config.context + PAGE, sizeof *m->run.bucket_room);
    m->run.mask_room = tn_txt_alloc((size_t)m->config.context + PAGE, sizeof *m->run.mask_room);
    if (!m->run.token.logits || !m->run.bucket_room || !m->run.mask_room) return TN_ERR_MEMORY;
    AUTO_DEVICE(device);
    return take_weights(m);
}

static void close_model(void *model) {
    tn_seq2seq *m = model;
    if (!m) return;
    free_states(m);
    tn_side_free_token(&m->run.token);
    for (int side = 0; side < 2; side++) {
        tn_side_free_layers(m->weights.layers[side], m->config.layer_count[side]);
        tn_hf_free_linear(&m->weights.norm[side]);
        tn_hf_free_linear(&m->weights.first_norm[side]);
        tn_free(m->weights.places[side]);
    }
    tn_free(m->weights.logits_bias);
    tn_free(m->weights.embedding);
    tn_free(m->weights.output);
    tn_txt_free_each(m->run.bucket_room, m->run.mask_room);
    tn_json_free(m->generation);
    tn_hf_close(&m->folder);
    tn_txt_free(m);
}

void tn_seq2seq_close(tn_seq2seq *m) { close_model(m); }

tn_status tn_seq2seq_open(const char *folder, const tn_seq2seq_options *options, tn_seq2seq **out) {
    static const hf_kind kind = {"tn_seq2seq_open",  "tn_seq2seq_options o = TN_SEQ2SEQ_DEFAULTS",
                                 sizeof(tn_seq2seq), offsetof(tn_seq2seq_options, device),
                                 open_model,         close_model};
    return tn_hf_open_model(&kind, folder, options, &(tn_seq2seq_options)TN_SEQ2SEQ_DEFAULTS, out);
}

tn_status tn_seq2seq_get_facts(const tn_seq2seq *m, tn_seq2seq_facts *facts) {
    TRY(tn_txt_check_facts("tn_seq2seq_get_facts: facts", m, facts));
    tn_seq2seq_facts full = {.struct_size = sizeof full,
                             .architecture = m->config.family->type,
                             .encoder_layers = m->config.layer_count[ENCODER],
                             .decoder_layers = m->config.layer_count[DECODER],
                             .hidden = m->config.hidden,
                             .heads = m->config.heads,
                             .vocabulary = m->config.vocabulary,
                             .context = m->config.context,
                             .parameters = m->folder.taken,
                             .weights_bytes = m->folder.taken_bytes,
                             .start = m->config.start,
                             .forced = m->config.forced};
    return tn_result_write(facts, &full, sizeof full, "tn_seq2seq_get_facts: facts");
}

bool tn_seq2seq_ends(const tn_seq2seq *m, int32_t id) {
    for (int i = 0; m && i < m->config.end_count; i++)
        if (m->config.ends[i] == id) return true;
    return false;
}

/* ---- biases ------------------------------------------------------------------------------------------------------ */

/* The bucket of a key that is `back` tokens before the query. Near distances have a bucket each, far ones share buckets
 * by their logarithm; half of the encoder's are for keys after the query. In f32, as transformers computes it. */
static int64_t bucket_of(int64_t back, int64_t count, int64_t most, bool both) {
    count = both ? count / 2 : count;
    int64_t exact = count / 2, first = both && back < 0 ? count : 0;
    int64_t away = back < 0 ? -back : back;
    if (away < exact) return first + away;
    float far = logf((float)away / (float)exact) / (float)log((double)most / (double)exact);
    int64_t i = exact + (int64_t)(far * (float)(count - exact));
    return first + (i < count ? i : count - 1);
}

tn_tensor *tn_txt_buckets(int64_t n, int64_t count, int64_t most_distance) {
    AUTO_TXT_FREE int64_t *room = tn_txt_alloc((size_t)(n * n), sizeof *room);
    if (!room) return tn_failed(TN_ERR_MEMORY, "out of memory for the biases of %" PRId64 " positions", n);
    for (int64_t q = 0; q < n; q++)
        for (int64_t k = 0; k < n; k++)
            room[q * n + k] = bucket_of(q - k, count, most_distance, true);
    return tn_from_data(room, TN_DIMS(n, n), TN_I64);
}

/* ---- operations -------------------------------------------------------------------------------------------------- */

static tn_tensor *norm(const tn_seq2seq *m, const tn_tensor *x, const hf_linear *l) {
    return m->config.family->bart ? tn_hf_norm(x, l, m->config.eps) : tn_hf_rms_norm(x, l->weight, m->config.eps);
}

/* In front of a part of a layer, and after it: one of them is a norm. */
static tn_tensor *before(const tn_seq2seq *m, const side_layer *l, int part, tn_tensor *x) {
    return m->config.family->norms_last ? x : norm(m, x, &l->part[part]);
}

static tn_tensor *behind(const tn_seq2seq *m, const side_layer *l, int part, tn_tensor *x) {
    return m->config.family->norms_last ? norm(m, x, &l->part[part]) : x;
}

static tn_tensor *product(const side_layer *l, int part, const tn_tensor *x) { return tn_hf_linear(x, &l->part[part]); }

/* The product of a part as [1, heads, n, width]. */
static tn_tensor *heads_of(const tn_seq2seq *m, const side_layer *l, int part, const tn_tensor *x) {
    tn_tensor *y = tn_reshape(product(l, part, x), TN_DIMS(1, tn_size(x, 0), m->config.heads, m->config.width));
    return tn_transpose(y, 1, 2);
}

/* [1, heads, n, width] through the output's matrix. */
static tn_tensor *project_back(const tn_seq2seq *m, const side_layer *l, int part, const tn_tensor *mixed) {
    return product(
        l, part, tn_reshape(tn_transpose(mixed, 1, 2), TN_DIMS(tn_size(mixed, 2), m->config.heads * m->config.width)));
}

/* T5's scores are not scaled: the trained matrices are. */
static tn_tensor *attend(const tn_seq2seq *m, const tn_tensor *q, const tn_tensor *k, const tn_tensor *v,
                         const tn_tensor *bias) {
    tn_scaled_dot_product_attention_options o = TN_SCALED_DOT_PRODUCT_ATTENTION_DEFAULTS;
    o.scale = m->config.score_scale;
    return tn_scaled_dot_product_attention(q, k, v, bias, &o);
}

static tn_tensor *feed_forward(const tn_seq2seq *m, const side_layer *l, tn_tensor *x) {
    tn_tensor *y = before(m, l, FFN_NORM, x), *up = product(l, UP, y);
    tn_tensor *inner =
        m->config.gated ? tn_mul(m->config.activation(product(l, GATE, y)), up) : m->config.activation(up);
    return behind(m, l, FFN_NORM, tn_add(x, product(l, DOWN, inner)));
}

/* places: rows of the table of positions, [n] i64. */
static tn_tensor *embed(const tn_seq2seq *m, int side, const tn_tensor *ids, const tn_tensor *places) {
    tn_tensor *x = tn_cast(tn_embedding(ids, m->weights.embedding), TN_F32);
    if (m->config.embedding_scale != 1) x = tn_mul_scalar(x, m->config.embedding_scale);
    if (m->weights.places[side]) x = tn_add(x, tn_embedding(places, m->weights.places[side]));
    return m->weights.first_norm[side].weight ? norm(m, x, &m->weights.first_norm[side]) : x;
}

/* Rows of positions for a text; padding may be after the last one. */
static tn_tensor *text_places(const tn_seq2seq *m) {
    AUTO_TXT_FREE int64_t *room = tn_txt_alloc((size_t)m->run.padded, sizeof *room);
    int64_t last = m->config.most_positions - 1;
    if (!room) return tn_failed(TN_ERR_MEMORY, "out of memory for the positions of %" PRId64 " tokens", m->run.padded);
    for (int64_t i = 0; i < m->run.padded; i++)
        room[i] = first_place(m) + (i < last ? i : last);
    return tn_from_data(room, TN_DIMS(m->run.padded), TN_I64);
}

static tn_tensor *record_encoder(const tn_seq2seq *m, const tn_tensor *ids, tn_tensor *mask) {
    bool bart = m->config.family->bart;
    tn_tensor *x = embed(m, ENCODER, ids, bart ? text_places(m) : NULL), *bias = mask;
    tn_tensor *buckets = bart ? NULL : tn_txt_buckets(m->run.padded, m->config.buckets, m->config.most_distance);
    for (int64_t i = 0; i < m->config.layer_count[ENCODER]; i++) {
        const side_layer *l = &m->weights.layers[ENCODER][i];
        if (l->part[BIAS].weight)
            bias = tn_add(tn_unsqueeze(tn_permute(tn_embedding(buckets, l->part[BIAS].weight), TN_DIMS(2, 0, 1)), 0),
                          mask);
        tn_tensor *y = before(m, l, SELF_NORM, x);
        tn_tensor *mixed =
            attend(m, heads_of(m, l, SELF_Q, y), heads_of(m, l, SELF_K, y), heads_of(m, l, SELF_V, y), bias);
        x = behind(m, l, SELF_NORM, tn_add(x, project_back(m, l, SELF_O, mixed)));
        x = feed_forward(m, l, x);
    }
    return m->weights.norm[ENCODER].weight ? norm(m, x, &m->weights.norm[ENCODER]) : x;
}

/* A token on its way through the decoder. */
typedef struct step_inputs {
    tn_tensor *ids;      /* [1] i64 */
    tn_tensor *mask;     /* [1, 1, slots]: -inf for places that are not filled */
    tn_tensor *buckets;  /* [slots] i64: of the tokens before, at their places in the cache; not in BART's kind */
    tn_tensor *position; /* rank 0, i64 */
    tn_tensor *pages;
} step_inputs;

/* Scores of the tokens before and of the token itself are computed apart: so the cache is read where it lies.
 * bias NULL: positions add nothing to scores. */
static tn_tensor *attend_cached(const tn_seq2seq *m, const side_layer *l, const tn_tensor *bias, const step_inputs *in,
                                tn_tensor *const qkv[3]) {
    int64_t slots = tn_size(in->mask, 2), pages = slots / PAGE;
    tn_tensor *q = m->config.score_scale == 1 ? qkv[0] : tn_mul_scalar(qkv[0], m->config.score_scale);
    tn_tensor *past = tn_matmul(q, tn_transpose(l->state[KEYS], 2, 3)); /* [pages, heads, 1, PAGE] */
    past = tn_reshape(tn_permute(past, TN_DIMS(1, 2, 0, 3)), TN_DIMS(m->config.heads, 1, slots));
    tn_tensor *own = tn_reshape(tn_sum(tn_mul(q, qkv[1]), (int64_t[]){3}, 1, false), TN_DIMS(m->config.heads, 1, 1));
    if (bias) {
        past = tn_add(past, tn_unsqueeze(tn_transpose(tn_embedding(in->buckets, bias), 0, 1), 1));
        own = tn_add(own, tn_reshape(tn_narrow(bias, 0, 0, 1), TN_DIMS(m->config.heads, 1, 1)));
    }
    tn_tensor *scores = tn_softmax(tn_cat((tn_tensor *[]){tn_add(past, in->mask), own}, 2, 2), -1);
    tn_tensor *by_page = tn_reshape(tn_narrow(scores, 2, 0, slots), TN_DIMS(m->config.heads, 1, pages, PAGE));
    tn_tensor *values = tn_matmul(tn_permute(by_page, TN_DIMS(2, 0, 1, 3)), l->state[VALUES]);
    tn_tensor *self = tn_mul(tn_unsqueeze(tn_narrow(scores, 2, slots, 1), 0), qkv[2]);
    tn_tensor *mixed = tn_add(tn_sum(values, (int64_t[]){0}, 1, true), self);
    for (int i = 1; i < 3; i++) {
        tn_tensor *row = tn_reshape(qkv[i], TN_DIMS(1, m->config.heads, m->config.width));
        tn_cache_append_(i == 1 ? l->state[KEYS] : l->state[VALUES], row, in->position, in->pages);
    }
    return mixed;
}

static tn_tensor *record_token(void *model, tn_tensor *const *inputs, tn_tensor *position) {
    const tn_seq2seq *m = model;
    tn_tensor *pages = tn_arange(0, (double)(tn_size(inputs[1], 2) / PAGE), 1, TN_I64);
    const step_inputs all = {inputs[0], inputs[1], inputs[2], position, pages}, *in = &all;
    tn_tensor *place =
        m->config.family->bart ? tn_reshape(tn_add(in->position, tn_scalar_int(first_place(m))), TN_DIMS(1)) : NULL;
    tn_tensor *x = embed(m, DECODER, in->ids, place), *qkv[3];
    const tn_tensor *bias = NULL;
    for (int64_t i = 0; i < m->config.layer_count[DECODER]; i++) {
        const side_layer *l = &m->weights.layers[DECODER][i];
        if (l->part[BIAS].weight) bias = l->part[BIAS].weight;
        tn_tensor *y = before(m, l, SELF_NORM, x);
        for (int k = 0; k < 3; k++)
            qkv[k] = heads_of(m, l, SELF_Q + k, y);
        x = behind(m, l, SELF_NORM, tn_add(x, project_back(m, l, SELF_O, attend_cached(m, l, bias, in, qkv))));
        tn_tensor *q = heads_of(m, l, CROSS_Q, before(m, l, CROSS_NORM, x));
        tn_tensor *read =
            project_back(m, l, CROSS_O, attend(m, q, l->state[CROSS_KEYS], l->state[CROSS_VALUES], m->run.text_mask));
        x = feed_forward(m, l, behind(m, l, CROSS_NORM, tn_add(x, read)));
    }
    if (m->weights.norm[DECODER].weight) x = norm(m, x, &m->weights.norm[DECODER]);
    if (m->config.output_scale != 1) x = tn_mul_scalar(x, m->config.output_scale);
    tn_tensor *logits = tn_linear(x, m->weights.output ? m->weights.output : m->weights.embedding, NULL);
    return m->weights.logits_bias ? tn_add(logits, m->weights.logits_bias) : logits;
}

/* ---- a text ------------------------------------------------------------------------------------------------------ */

static tn_status run_encoder(tn_seq2seq *m, const int64_t *ids, const float *mask) {
    TN_SCOPE;
    TN_NO_GRAD;
    tn_copy_(m->run.text_mask, tn_from_data(mask, TN_DIMS(1, 1, 1, m->run.padded), TN_F32));
    tn_tensor *seen = tn_from_data(mask, TN_DIMS(1, 1, 1, m->run.padded), TN_F32);
    tn_tensor *x = record_encoder(m, tn_from_data(ids, TN_DIMS(m->run.padded), TN_I64), seen);
    for (int64_t i = 0; i < m->config.layer_count[DECODER]; i++) {
        const side_layer *l = &m->weights.layers[DECODER][i];
        tn_copy_(l->state[CROSS_KEYS], heads_of(m, l, CROSS_K, x));
        tn_copy_(l->state[CROSS_VALUES], heads_of(m, l, CROSS_V, x));
    }
    return tn_eval(NULL, 0);
}

static tn_status encode(tn_seq2seq *m, const int32_t *ids, int64_t count) {
    int64_t padded = (count + PAGE - 1) / PAGE * PAGE;
    if (!m->run.encoded || padded != m->run.padded)
        TRY(make_states(m, padded)); /* after a failure they may be errors */
    AUTO_TXT_FREE int64_t *room = tn_txt_zalloc((size_t)padded, sizeof *room);
    AUTO_TXT_FREE float *mask = tn_txt_alloc((size_t)padded, sizeof *mask);
    if (!room || !mask) return TN_ERR_MEMORY;
    for (int64_t i = 0; i < padded; i++) {
        if (i < count) room[i] = ids[i];
        mask[i] = i < count ? 0 : -INFINITY;
    }
    return run_encoder(m, room, mask);
}

static tn_status check_id(const tn_seq2seq *m, int32_t id) {
    if (id >= 0 && id < m->config.vocabulary) return TN_OK;
    return tn_backend_fail(TN_ERR_ARGUMENT, "token %" PRId32 " is outside the vocabulary of %" PRId64 " tokens", id,
                           m->config.vocabulary);
}

tn_status tn_seq2seq_encode(tn_seq2seq *m, const int32_t *ids, int64_t count) {
    if (!m || !ids) return tn_backend_fail(TN_ERR_ARGUMENT, "tn_seq2seq_encode: an argument is NULL");
    int64_t most = m->config.most_positions > 0 && m->config.most_positions < TN_SEQ2SEQ_TEXT ? m->config.most_positions
                                                                                              : TN_SEQ2SEQ_TEXT;
    if (count < 1 || count > most)
        return tn_backend_fail(TN_ERR_ARGUMENT, "the text has %" PRId64 " tokens; supported are 1 to %" PRId64, count,
                               most);
    for (int64_t i = 0; i < count; i++)
        TRY(check_id(m, ids[i]));
    m->run.position = 0;
    AUTO_DEVICE(m->device);
    tn_status status = encode(m, ids, count);
    m->run.encoded = status == TN_OK;
    return status;
}

/* ---- tokens of the answer ---------------------------------------------------------------------------------------- */

static tn_status step(tn_seq2seq *m, int64_t id, const float **out) {
    int64_t slots = (m->config.context + PAGE - 1) / PAGE * PAGE;
    bool bart = m->config.family->bart;
    for (int64_t k = 0; k < slots; k++) {
        bool filled = k < m->run.position;
        m->run.bucket_room[k] =
            filled && !bart ? bucket_of(m->run.position - k, m->config.buckets, m->config.most_distance, false) : 0;
        m->run.mask_room[k] = filled ? 0 : -INFINITY;
    }
    TN_SCOPE;
    tn_tensor *inputs[] = {tn_from_data(&id, TN_DIMS(1), TN_I64),
                           tn_from_data(m->run.mask_room, TN_DIMS(1, 1, slots), TN_F32),
                           tn_from_data(m->run.bucket_room, TN_DIMS(slots), TN_I64)};
    return tn_side_step(&m->run.token, record_token, m, inputs, bart ? 2 : 3, m->run.position, m->config.vocabulary,
                        out);
}

tn_status tn_seq2seq_step(tn_seq2seq *m, int32_t id, const float **logits) {
    if (!m) return tn_backend_fail(TN_ERR_ARGUMENT, "tn_seq2seq_step: the model is NULL");
    if (!m->run.encoded)
        return tn_backend_fail(TN_ERR_STATE, "tn_seq2seq_step: no text was encoded (tn_seq2seq_encode)");
    TRY(check_id(m, id));
    if (m->run.position == m->config.context)
        return tn_backend_fail(
            TN_ERR_ARGUMENT, "the answer is full: %" PRId64 " tokens; tn_seq2seq_options.context (--context) sets more",
            m->config.context);
    const float *found = NULL;
    AUTO_DEVICE(m->device);
    tn_status status = step(m, id, &found);
    m->run.encoded = status == TN_OK;
    if (status != TN_OK) return status;
    m->run.position++;
    if (logits) *logits = found;
    return TN_OK;
}
