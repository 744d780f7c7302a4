/* speech_ctc.c — speech recognition by CTC: Wav2Vec 2 and its siblings.
 *
 * Convolutions make a row of numbers of each 20 ms of sound, a transformer that sees all rows gives each row a letter
 * or nothing, and equal letters of neighbouring rows are one. Source: Baevski et al. 2020, "wav2vec 2.0"; Graves et al.
 * 2006, "Connectionist Temporal Classification"; Wav2Vec2ForCTC of transformers. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "text/folder.h"
#include "trunnion/speech.h"
#include "trunnion/trunnion.h"

enum { MOST_CONVOLUTIONS = 16, MOST_KERNEL = 4096, MOST_BUCKETS = 1 << 16, WINDOW = 30 * TN_SPEECH_RATE };
enum { GATE_PARTS = 2, GATE_TERMS = 4 };    /* WavLM's gates are sums of so many numbers each */
static const double CONVOLUTION_EPS = 1e-5; /* of norms between convolutions; not in config.json */

typedef struct ctc_linear {
    tn_tensor *weight, *bias; /* bias NULL: none */
} ctc_linear;

enum { PART_Q, PART_K, PART_V, PART_O, PART_NORM1, PART_UP, PART_DOWN, PART_NORM2, PARTS };
static const char *const part_names[PARTS] = {
    "attention.q_proj",          "attention.k_proj", "attention.v_proj",
    "attention.out_proj",        "layer_norm",       "feed_forward.intermediate_dense",
    "feed_forward.output_dense", "final_layer_norm"};

typedef struct ctc_convolution {
    int64_t channels, kernel, stride;
    ctc_linear weight, norm; /* norm: NULL where there is none */
} ctc_convolution;

/* How a kind of model differs from Wav2Vec 2. */
typedef struct ctc_kind {
    const char *type, *prefix, *key; /* key: of the kernels that tell positions */
    int64_t kernel;                  /* its default */
    bool stacked;                    /* positions are told by several convolutions with norms, stored plainly */
    bool gated;                      /* scores have a bias for each distance, times gates made of the query */
} ctc_kind;
static const ctc_kind kinds[] = {
    {"wav2vec2", "wav2vec2.", "num_conv_pos_embeddings", 128, false, false},
    {"hubert", "hubert.", "num_conv_pos_embeddings", 128, false, false},
    {"unispeech", "unispeech.", "num_conv_pos_embeddings", 128, false, false},
    {"unispeech-sat", "unispeech_sat.", "num_conv_pos_embeddings", 128, false, false},
    {"wavlm", "wavlm.", "num_conv_pos_embeddings", 128, false, true},
    {"data2vec-audio", "data2vec_audio.", "conv_pos_kernel_size", 19, true, false},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

struct tn_ctc {
    hf_folder folder;
    const ctc_kind *kind;
    tn_device *device;
    tn_json_doc *words; /* vocab.json, which the letters point into */
    const char **letters;
    int64_t convolution_count, layers, heads, hidden, inner, vocabulary, position_kernel, position_groups;
    int64_t position_count, buckets, most_distance;
    ctc_convolution convolutions[MOST_CONVOLUTIONS];
    bool norms_each;  /* each convolution has a norm over channels; else the first has one of each channel */
    bool norms_first; /* in front of attention and feed-forward, and one at the end; else behind them */
    bool normalizes;  /* the sound gets mean 0 and variance 1 */
    double eps;
    int64_t blank;
    char space[32]; /* the letter that stands for one */
    tn_activation *activation, *front_activation;
    ctc_linear front_norm, front, positions[MOST_CONVOLUTIONS], norm, output, (*parts)[PARTS];
    tn_tensor *distances;    /* gated: [buckets, heads]; else NULL */
    ctc_linear *gates;       /* of each layer */
    tn_tensor **gate_scales; /* [1, heads, 1, 1] */
};

/* ---- config.json ------------------------------------------------------------------------------------------------- */

static const ctc_kind *find_kind(const char *type) {
    for (size_t i = 0; i < KINDS; i++)
        if (strcmp(type, kinds[i].type) == 0) return &kinds[i];
    return NULL;
}

static bool is_kind(const char *type) { return find_kind(type) != NULL; }

bool tn_ctc_knows(const char *path) { return tn_hf_is_of(path, is_kind); }

static tn_status read_convolutions(tn_ctc *m) {
    const hf_folder *f = &m->folder;
    const tn_json *lists[] = {tn_json_get(f->config, "conv_dim"), tn_json_get(f->config, "conv_kernel"),
                              tn_json_get(f->config, "conv_stride")};
    m->convolution_count = (int64_t)tn_json_length(lists[0]);
    bool fits = m->convolution_count >= 1 && m->convolution_count <= MOST_CONVOLUTIONS;
    for (int k = 0; k < 3; k++)
        fits = fits && (int64_t)tn_json_length(lists[k]) == m->convolution_count;
    for (int64_t i = 0; fits && i < m->convolution_count; i++) {
        ctc_convolution *c = &m->convolutions[i];
        c->channels = tn_json_int(tn_json_at(lists[0], (size_t)i), 0);
        c->kernel = tn_json_int(tn_json_at(lists[1], (size_t)i), 0);
        c->stride = tn_json_int(tn_json_at(lists[2], (size_t)i), 0);
        fits = c->channels >= 1 && c->channels <= HF_MOST_WIDTH && c->kernel >= 1 && c->kernel <= MOST_KERNEL &&
               c->stride >= 1 && c->stride <= MOST_KERNEL;
    }
    if (fits) return TN_OK;
    return tn_hf_fail(f->path, TN_ERR_FORMAT,
                      "'conv_dim', 'conv_kernel' and 'conv_stride' must be lists of 1 to %d sizes, of the same length",
                      MOST_CONVOLUTIONS);
}

static tn_status read_preparation(tn_ctc *m) {
    tn_json_doc *doc;
    TRY(tn_hf_json(&m->folder, "preprocessor_config.json", &doc));
    m->normalizes = tn_json_bool(tn_json_get(tn_json_root(doc), "do_normalize"), true);
    double rate = tn_json_number(tn_json_get(tn_json_root(doc), "sampling_rate"), TN_SPEECH_RATE);
    tn_json_free(doc);
    if (rate == TN_SPEECH_RATE) return TN_OK;
    return tn_backend_fail(
        TN_ERR_UNSUPPORTED,
        "'%s/preprocessor_config.json': 'sampling_rate' is %g; only %d samples a second are supported", m->folder.path,
        rate, (int)TN_SPEECH_RATE);
}

/* The letter that stands for a space. Text in lower case would need the case tables of Unicode. */
static tn_status read_spelling(tn_ctc *m) {
    tn_json_doc *doc;
    TRY(tn_hf_json(&m->folder, "tokenizer_config.json", &doc));
    const char *space = tn_json_string(tn_json_get(tn_json_root(doc), "word_delimiter_token"), "|");
    bool fits = snprintf(m->space, sizeof m->space, "%s", space) < (int)sizeof m->space;
    bool lowers = tn_json_bool(tn_json_get(tn_json_root(doc), "do_lower_case"), false);
    tn_json_free(doc);
    if (fits && !lowers) return TN_OK;
    return tn_backend_fail(TN_ERR_UNSUPPORTED,
                           "'%s/tokenizer_config.json': 'do_lower_case', and a 'word_delimiter_token' of %zu bytes or "
                           "more, are not supported",
                           m->folder.path, sizeof m->space);
}

/* Convolutions that tell positions, and WavLM's buckets of distances. */
static tn_status read_positions(tn_ctc *m) {
    const hf_folder *f = &m->folder;
    TRY(tn_hf_size(f, m->kind->key, m->kind->kernel, MOST_KERNEL, &m->position_kernel));
    TRY(tn_hf_size(f, "num_conv_pos_embedding_groups", 16, m->hidden, &m->position_groups));
    m->position_count = 1;
    if (m->kind->stacked) TRY(tn_hf_size(f, "num_conv_pos_embeddings", 5, MOST_CONVOLUTIONS, &m->position_count));
    if (m->hidden % m->heads != 0 || m->hidden % m->position_groups != 0)
        return tn_hf_fail(f->path, TN_ERR_FORMAT,
                          "hidden_size %" PRId64 " must be a multiple of num_attention_heads %" PRId64
                          " and of num_conv_pos_embedding_groups %" PRId64,
                          m->hidden, m->heads, m->position_groups);
    if (!m->kind->gated) return TN_OK;
    TRY(tn_hf_size(f, "num_buckets", 320, MOST_BUCKETS, &m->buckets));
    TRY(tn_hf_size(f, "max_bucket_distance", 800, INT32_MAX, &m->most_distance));
    if (m->buckets >= 4 && m->buckets % 2 == 0 && m->most_distance > m->buckets / 4) return TN_OK;
    return tn_hf_fail(f->path, TN_ERR_FORMAT,
                      "num_buckets is %" PRId64 " and max_bucket_distance %" PRId64
                      "; the first must be even and at least 4, the second more than a quarter of it",
                      m->buckets, m->most_distance);
}

static tn_status read_config(tn_ctc *m) {
    const hf_folder *f = &m->folder;
    const char *type = tn_hf_text(f, "model_type", ""), *norms = tn_hf_text(f, "feat_extract_norm", "group");
    m->kind = find_kind(type);
    if (!m->kind)
        return tn_hf_fail(f->path, TN_ERR_UNSUPPORTED,
                          "model_type is '%s'; CTC supports wav2vec2, hubert, unispeech, unispeech-sat, wavlm and "
                          "data2vec-audio",
                          tn_txt_shown(type, strlen(type)).text);
    TRY(tn_hf_refuse(f, "add_adapter"));
    TRY(tn_hf_refuse(f, "conv_pos_batch_norm"));
    if (tn_hf_has(f, "adapter_attn_dim"))
        return tn_hf_fail(f->path, TN_ERR_UNSUPPORTED, "'adapter_attn_dim' is not supported");
    TRY(tn_hf_size(f, "hidden_size", 768, HF_MOST_WIDTH, &m->hidden));
    TRY(tn_hf_size(f, "num_hidden_layers", 12, HF_MOST_LAYERS, &m->layers));
    TRY(tn_hf_size(f, "num_attention_heads", 12, HF_MOST_HEADS, &m->heads));
    TRY(tn_hf_size(f, "intermediate_size", 3072, HF_MOST_WIDTH, &m->inner));
    TRY(tn_hf_size(f, "vocab_size", 32, INT32_MAX, &m->vocabulary));
    TRY(read_positions(m));
    TRY(tn_hf_real(f, f->config, "layer_norm_eps", 1e-5, 1e-20, 1, &m->eps));
    TRY(tn_hf_activation(f, "hidden_act", "gelu", &m->activation));
    TRY(tn_hf_activation(f, "feat_extract_activation", "gelu", &m->front_activation));
    m->norms_each = m->kind->stacked || strcmp(norms, "layer") == 0;
    m->norms_first = !m->kind->stacked && tn_json_bool(tn_json_get(f->config, "do_stable_layer_norm"), false);
    m->blank = tn_json_int(tn_json_get(f->config, "pad_token_id"), 0);
    if (!m->norms_each && strcmp(norms, "group") != 0)
        return tn_hf_fail(f->path, TN_ERR_UNSUPPORTED, "'feat_extract_norm' is '%s'; supported are group and layer",
                          tn_txt_shown(norms, strlen(norms)).text);
    TRY(read_preparation(m));
    TRY(read_spelling(m));
    return read_convolutions(m);
}

/* The letter of each token; none for tokens such as "<pad>". */
static tn_status read_letters(tn_ctc *m) {
    TRY(tn_hf_json(&m->folder, "vocab.json", &m->words));
    const tn_json *root = tn_json_root(m->words);
    if (tn_json_kind_of(root) != TN_JSON_OBJECT || tn_json_kind_of(tn_json_at(root, 0)) != TN_JSON_NUMBER)
        return tn_backend_fail(TN_ERR_FORMAT, "'%s/vocab.json' must be an object with the number of each token",
                               m->folder.path);
    m->letters = tn_txt_zalloc((size_t)m->vocabulary, sizeof *m->letters);
    if (!m->letters) return TN_ERR_MEMORY;
    for (size_t i = 0; i < tn_json_length(root); i++) {
        int64_t id = tn_json_int(tn_json_at(root, i), -1);
        const char *letter = tn_json_key(root, i);
        bool special = letter[0] == '<' && letter[strlen(letter) - 1] == '>' && letter[1];
        if (id >= 0 && id < m->vocabulary) m->letters[id] = special ? "" : letter;
    }
    return TN_OK;
}

/* ---- weights ----------------------------------------------------------------------------------------------------- */

/* In f32; shape ends with 0. */
static tn_status take_tensor(tn_ctc *m, const char *name, const int64_t *shape, tn_tensor **out) {
    tn_safetensors_info info = {.struct_size = sizeof info};
    int rank = 0;
    if (!tn_hf_find(&m->folder, name, &info))
        return tn_backend_fail(TN_ERR_FORMAT, "'%s' has no tensor '%s'", m->folder.path, name);
    while (shape[rank])
        rank++;
    bool fits = info.rank == rank && (info.dtype == TN_F32 || info.dtype == TN_F16 || info.dtype == TN_BF16);
    for (int d = 0; d < rank && fits; d++)
        fits = info.shape[d] == shape[d];
    if (!fits)
        return tn_backend_fail(TN_ERR_FORMAT, "'%s': tensor '%s' has another shape or type than config.json gives it",
                               m->folder.path, name);
    TN_SCOPE;
    tn_tensor *t = tn_hf_weights_tensor(m->folder.weights, info.name);
    *out = tn_retain(info.dtype == TN_F32 ? t : tn_cast(t, TN_F32));
    return tn_eval(out, 1);
}

static tn_status take_pair(tn_ctc *m, const char *stem, const int64_t shape[4], bool bias, ctc_linear *out) {
    char name[HF_NAME_SIZE];
    snprintf(name, sizeof name, "%s.weight", stem);
    TRY(take_tensor(m, name, shape, &out->weight));
    snprintf(name, sizeof name, "%s.bias", stem);
    return bias ? take_tensor(m, name, (int64_t[4]){shape[0]}, &out->bias) : TN_OK;
}

static tn_status take_convolutions(tn_ctc *m) {
    char stem[HF_NAME_SIZE - 8];
    int64_t in = 1;
    bool bias = tn_json_bool(tn_json_get(m->folder.config, "conv_bias"), false);
    for (int64_t i = 0; i < m->convolution_count; i++) {
        ctc_convolution *c = &m->convolutions[i];
        snprintf(stem, sizeof stem, "feature_extractor.conv_layers.%" PRId64 ".conv", i);
        TRY(take_pair(m, stem, (int64_t[4]){c->channels, in, c->kernel}, bias, &c->weight));
        snprintf(stem, sizeof stem, "feature_extractor.conv_layers.%" PRId64 ".layer_norm", i);
        if (m->norms_each || i == 0) TRY(take_pair(m, stem, (int64_t[4]){c->channels}, true, &c->norm));
        in = c->channels;
    }
    if (tn_json_bool(tn_json_get(m->folder.config, "feat_proj_layer_norm"), true))
        TRY(take_pair(m, "feature_projection.layer_norm", (int64_t[4]){in}, true, &m->front_norm));
    return take_pair(m, "feature_projection.projection", (int64_t[4]){m->hidden, in}, true, &m->front);
}

static tn_status take_stacked_positions(tn_ctc *m) {
    char stem[HF_NAME_SIZE - 8];
    for (int64_t i = 0; i < m->position_count; i++) {
        const int64_t shape[4] = {m->hidden, m->hidden / m->position_groups, m->position_kernel};
        snprintf(stem, sizeof stem, "encoder.pos_conv_embed.layers.%" PRId64 ".conv", i);
        TRY(take_pair(m, stem, shape, true, &m->positions[i]));
    }
    return TN_OK;
}

/* The convolution that tells positions is stored as a direction for each tap and its length: two names of each. */
static tn_status take_positions(tn_ctc *m) {
    static const char stem[] = "encoder.pos_conv_embed.conv.";
    char name[HF_NAME_SIZE], other[HF_NAME_SIZE];
    const int64_t shapes[2][4] = {{1, 1, m->position_kernel},
                                  {m->hidden, m->hidden / m->position_groups, m->position_kernel}};
    tn_tensor *parts[2] = {NULL, NULL};
    tn_status status = TN_OK;
    for (int i = 0; i < 2 && status == TN_OK; i++) {
        tn_safetensors_info info = {.struct_size = sizeof info};
        snprintf(name, sizeof name, "%sparametrizations.weight.original%d", stem, i);
        snprintf(other, sizeof other, "%sweight_%c", stem, i ? 'v' : 'g');
        status = take_tensor(m, tn_hf_find(&m->folder, name, &info) ? name : other, shapes[i], &parts[i]);
    }
    if (status == TN_OK) {
        TN_SCOPE;
        tn_tensor *squares = tn_sum(tn_mul(parts[1], parts[1]), (int64_t[]){0, 1}, 2, true);
        m->positions->weight = tn_retain(tn_mul(tn_div(parts[1], tn_sqrt(squares)), parts[0]));
        status = tn_eval(&m->positions->weight, 1);
    }
    tn_free(parts[0]);
    tn_free(parts[1]);
    snprintf(name, sizeof name, "%sbias", stem);
    return status == TN_OK ? take_tensor(m, name, (int64_t[4]){m->hidden}, &m->positions->bias) : status;
}

static tn_status take_gates(tn_ctc *m) {
    char stem[HF_NAME_SIZE - 8];
    if (!m->kind->gated) return TN_OK;
    m->gates = tn_txt_zalloc((size_t)m->layers, sizeof *m->gates);
    m->gate_scales = tn_txt_zalloc((size_t)m->layers, sizeof(tn_tensor *));
    if (!m->gates || !m->gate_scales) return TN_ERR_MEMORY;
    for (int64_t i = 0; i < m->layers; i++) {
        snprintf(stem, sizeof stem, "encoder.layers.%" PRId64 ".attention.gru_rel_pos_linear", i);
        TRY(take_pair(m, stem, (int64_t[4]){GATE_PARTS * GATE_TERMS, m->hidden / m->heads}, true, &m->gates[i]));
        snprintf(stem, sizeof stem, "encoder.layers.%" PRId64 ".attention.gru_rel_pos_const", i);
        TRY(take_tensor(m, stem, (int64_t[5]){1, m->heads, 1, 1}, &m->gate_scales[i]));
    }
    return take_tensor(m, "encoder.layers.0.attention.rel_attn_embed.weight", (int64_t[4]){m->buckets, m->heads},
                       &m->distances);
}

static tn_status take_weights(tn_ctc *m) {
    char stem[HF_NAME_SIZE - 8];
    tn_hf_find_prefix(&m->folder, m->kind->prefix, "feature_projection.projection.weight");
    TRY(take_convolutions(m));
    TRY(m->kind->stacked ? take_stacked_positions(m) : take_positions(m));
    TRY(take_gates(m));
    TRY(take_pair(m, "encoder.layer_norm", (int64_t[4]){m->hidden}, true, &m->norm));
    m->parts = tn_txt_zalloc((size_t)m->layers, sizeof *m->parts);
    if (!m->parts) return TN_ERR_MEMORY;
    for (int64_t i = 0; i < m->layers; i++)
        for (int part = 0; part < PARTS; part++) {
            bool is_norm = part == PART_NORM1 || part == PART_NORM2;
            int64_t rows = part == PART_UP ? m->inner : m->hidden, columns = part == PART_DOWN ? m->inner : m->hidden;
            snprintf(stem, sizeof stem, "encoder.layers.%" PRId64 ".%s", i, part_names[part]);
            TRY(take_pair(m, stem, (int64_t[4]){rows, is_norm ? 0 : columns}, true, &m->parts[i][part]));
        }
    return take_pair(m, "lm_head", (int64_t[4]){m->vocabulary, m->hidden}, true, &m->output);
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static tn_status open_ctc(tn_ctc *m, const char *folder) {
    if (!tn_hf_is_folder(folder)) return tn_backend_fail(TN_ERR_IO, "'%s' is not a folder", folder);
    TRY(tn_hf_open(folder, &m->folder));
    TRY(read_config(m));
    TRY(read_letters(m));
    tn_device *before = tn_txt_enter(m->device);
    return tn_txt_leave(m->device, before, take_weights(m));
}

tn_status tn_ctc_open(const char *folder, const tn_speech_options *options, tn_ctc **out) {
    if (!out) return tn_backend_fail(TN_ERR_ARGUMENT, "tn_ctc_open: out is NULL");
    *out = NULL;
    if (!folder) return tn_backend_fail(TN_ERR_ARGUMENT, "tn_ctc_open: the folder is NULL");
    tn_speech_options o = TN_SPEECH_DEFAULTS;
    TRY(tn_options_read(&o, options, "tn_ctc_open", "tn_speech_options o = TN_SPEECH_DEFAULTS"));
    tn_ctc *m = tn_txt_zalloc(1, sizeof *m);
    if (!m) return TN_ERR_MEMORY;
    m->folder.prefix = "";
    m->device = o.device ? o.device : tn_current_device();
    tn_status status = m->device ? open_ctc(m, folder) : TN_ERR_MEMORY;
    if (status != TN_OK) {
        tn_ctc_close(m);
        return status;
    }
    *out = m;
    return TN_OK;
}

static void free_pair(const ctc_linear *l) {
    tn_free(l->weight);
    tn_free(l->bias);
}

void tn_ctc_close(tn_ctc *m) {
    if (!m) return;
    for (int64_t i = 0; i < m->convolution_count && i < MOST_CONVOLUTIONS; i++) {
        free_pair(&m->convolutions[i].weight);
        free_pair(&m->convolutions[i].norm);
    }
    for (int64_t i = 0; m->parts && i < m->layers; i++)
        for (int part = 0; part < PARTS; part++)
            free_pair(&m->parts[i][part]);
    tn_txt_free(m->parts);
    for (int64_t i = 0; i < m->position_count && i < MOST_CONVOLUTIONS; i++)
        free_pair(&m->positions[i]);
    for (int64_t i = 0; m->gates && m->gate_scales && i < m->layers; i++) {
        free_pair(&m->gates[i]);
        tn_free(m->gate_scales[i]);
    }
    tn_txt_free(m->gates);
    tn_txt_free(m->gate_scales);
    tn_free(m->distances);
    const ctc_linear *const others[] = {&m->front_norm, &m->front, &m->norm, &m->output};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        free_pair(others[i]);
    tn_txt_free(m->letters);
    tn_json_free(m->words);
    tn_hf_close(&m->folder);
    tn_txt_free(m);
}

int64_t tn_ctc_vocabulary(const tn_ctc *m) { return m ? m->vocabulary : 0; }

int64_t tn_ctc_frames(const tn_ctc *m, int64_t count) {
    for (int64_t i = 0; m && i < m->convolution_count && count > 0; i++) {
        const ctc_convolution *c = &m->convolutions[i];
        count = count < c->kernel ? 0 : (count - c->kernel) / c->stride + 1;
    }
    return m && count > 0 ? count : 0;
}

/* ---- operations -------------------------------------------------------------------------------------------------- */

static tn_tensor *norm(const tn_tensor *x, const ctc_linear *l, double eps) {
    tn_layer_norm_options o = TN_LAYER_NORM_DEFAULTS;
    o.eps = eps;
    return tn_layer_norm(x, TN_DIMS(tn_size(x, -1)), l->weight, l->bias, &o);
}

/* x [1, channels, n]: over the channels of each place; or over all places of each channel. */
static tn_tensor *norm_convolution(const tn_ctc *m, const ctc_convolution *c, tn_tensor *x) {
    const ctc_linear none = {NULL, NULL};
    if (!c->norm.weight) return x;
    if (m->norms_each) return tn_transpose(norm(tn_contiguous(tn_transpose(x, 1, 2)), &c->norm, CONVOLUTION_EPS), 1, 2);
    x = tn_mul(norm(x, &none, CONVOLUTION_EPS), tn_reshape(c->norm.weight, TN_DIMS(c->channels, 1)));
    return tn_add(x, tn_reshape(c->norm.bias, TN_DIMS(c->channels, 1)));
}

/* Sound [n] as rows [frames, channels]. */
static tn_tensor *convolve(const tn_ctc *m, const tn_tensor *sound) {
    tn_tensor *x = tn_reshape(sound, TN_DIMS(1, 1, tn_size(sound, 0)));
    for (int64_t i = 0; i < m->convolution_count; i++) {
        const ctc_convolution *c = &m->convolutions[i];
        tn_conv1d_options o = TN_CONV1D_DEFAULTS;
        o.stride = c->stride;
        x = m->front_activation(
            norm_convolution(m, c, tn_conv1d(tn_contiguous(x), c->weight.weight, c->weight.bias, &o)));
    }
    return tn_contiguous(tn_transpose(tn_select(x, 0, 0), 0, 1));
}

/* What is added to rows [n, hidden] so that they know their places. */
static tn_tensor *positions_of(const tn_ctc *m, const tn_tensor *x) {
    tn_conv1d_options o = TN_CONV1D_DEFAULTS;
    int64_t n = tn_size(x, 0);
    o.padding = m->position_kernel / 2;
    o.groups = m->position_groups;
    tn_tensor *rows = tn_transpose(x, 0, 1);
    for (int64_t i = 0; i < m->position_count; i++) {
        tn_tensor *columns = tn_contiguous(tn_unsqueeze(rows, 0));
        tn_tensor *y = tn_conv1d(columns, m->positions[i].weight, m->positions[i].bias, &o);
        rows = tn_narrow(tn_select(y, 0, 0), 1, 0, n);
        if (m->kind->stacked)
            rows = tn_transpose(norm(tn_contiguous(tn_transpose(rows, 0, 1)), &(ctc_linear){0}, CONVOLUTION_EPS), 0, 1);
        rows = m->front_activation(rows);
    }
    return tn_transpose(rows, 0, 1);
}

static tn_tensor *linear(const tn_tensor *x, const ctc_linear *l) { return tn_linear(x, l->weight, l->bias); }

/* What is added to scores, [1, heads, n, n]: a bias for each distance, times gates of each head of the input.
 * Source: Chen et al. 2021, "WavLM", section 3.1, as transformers computes it. */
static tn_tensor *gated_bias(const tn_ctc *m, int64_t layer, const tn_tensor *x, const tn_tensor *bias) {
    int64_t n = tn_size(x, 0);
    tn_tensor *heads = tn_transpose(tn_reshape(x, TN_DIMS(n, m->heads, m->hidden / m->heads)), 0, 1);
    tn_tensor *terms =
        tn_reshape(linear(tn_contiguous(heads), &m->gates[layer]), TN_DIMS(m->heads, n, GATE_PARTS, GATE_TERMS));
    tn_tensor *gates = tn_unsqueeze(tn_sigmoid(tn_sum(terms, (int64_t[]){3}, 1, false)), 0);
    tn_tensor *by = tn_sub_scalar(tn_mul(tn_narrow(gates, 3, 1, 1), m->gate_scales[layer]), 1);
    return tn_mul(tn_add_scalar(tn_mul(tn_narrow(gates, 3, 0, 1), by), 2), bias);
}

/* bias: for each distance, [heads, n, n]; or NULL. */
static tn_tensor *attend(const tn_ctc *m, int64_t layer, const tn_tensor *x, const tn_tensor *bias) {
    const ctc_linear *parts = m->parts[layer];
    tn_scaled_dot_product_attention_options o = TN_SCALED_DOT_PRODUCT_ATTENTION_DEFAULTS;
    int64_t n = tn_size(x, 0), width = m->hidden / m->heads;
    tn_tensor *qkv[3];
    for (int k = 0; k < 3; k++)
        qkv[k] =
            tn_unsqueeze(tn_transpose(tn_reshape(linear(x, &parts[PART_Q + k]), TN_DIMS(n, m->heads, width)), 0, 1), 0);
    tn_tensor *added = bias ? gated_bias(m, layer, x, bias) : NULL;
    tn_tensor *y = tn_scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], added, &o);
    return linear(tn_reshape(tn_transpose(tn_select(y, 0, 0), 0, 1), TN_DIMS(n, m->hidden)), &parts[PART_O]);
}

static tn_tensor *record(const tn_ctc *m, const tn_tensor *sound) {
    tn_tensor *x = convolve(m, sound);
    if (m->front_norm.weight) x = norm(x, &m->front_norm, m->eps);
    x = linear(x, &m->front);
    x = tn_add(x, positions_of(m, x));
    if (!m->norms_first) x = norm(x, &m->norm, m->eps);
    tn_tensor *bias = NULL;
    if (m->distances)
        bias = tn_permute(tn_embedding(tn_txt_buckets(tn_size(x, 0), m->buckets, m->most_distance), m->distances),
                          TN_DIMS(2, 0, 1));
    for (int64_t i = 0; i < m->layers; i++) {
        const ctc_linear *l = m->parts[i];
        x = tn_add(x, attend(m, i, m->norms_first ? norm(x, &l[PART_NORM1], m->eps) : x, bias));
        if (!m->norms_first) x = norm(x, &l[PART_NORM1], m->eps);
        tn_tensor *inner = m->activation(linear(m->norms_first ? norm(x, &l[PART_NORM2], m->eps) : x, &l[PART_UP]));
        x = tn_add(x, linear(inner, &l[PART_DOWN]));
        if (!m->norms_first) x = norm(x, &l[PART_NORM2], m->eps);
    }
    if (m->norms_first) x = norm(x, &m->norm, m->eps);
    return linear(x, &m->output);
}

/* ---- sound to text ----------------------------------------------------------------------------------------------- */

/* A copy with mean 0 and variance 1, if the model wants that. */
static tn_status prepare(const tn_ctc *m, const float *samples, int64_t count, float **out) {
    static const double EPS = 1e-7;
    double mean = 0, square = 0;
    float *sound = *out = tn_txt_alloc((size_t)count, sizeof *sound);
    if (!sound) return TN_ERR_MEMORY;
    memcpy(sound, samples, (size_t)count * sizeof *sound);
    if (!m->normalizes) return TN_OK;
    for (int64_t i = 0; i < count; i++)
        mean += (double)sound[i] / (double)count;
    for (int64_t i = 0; i < count; i++)
        square += ((double)sound[i] - mean) * ((double)sound[i] - mean) / (double)count;
    for (int64_t i = 0; i < count; i++)
        sound[i] = (float)(((double)sound[i] - mean) / sqrt(square + EPS));
    return TN_OK;
}

static tn_status run(const tn_ctc *m, const float *samples, int64_t count, float *out) {
    float *sound;
    size_t size = (size_t)tn_ctc_frames(m, count) * (size_t)m->vocabulary * sizeof *out;
    tn_status status = prepare(m, samples, count, &sound);
    tn_device *before = tn_txt_enter(m->device);
    if (status == TN_OK) {
        TN_SCOPE;
        TN_NO_GRAD;
        status = tn_read(record(m, tn_from_data(sound, TN_DIMS(count), TN_F32)), out, size);
    }
    tn_txt_free(sound);
    return tn_txt_leave(m->device, before, status);
}

tn_status tn_ctc_logits(tn_ctc *m, const float *samples, int64_t count, float *out) {
    if (!m || !samples || !out) return tn_backend_fail(TN_ERR_ARGUMENT, "tn_ctc_logits: an argument is NULL");
    if (tn_ctc_frames(m, count) < 1 || count > WINDOW)
        return tn_backend_fail(TN_ERR_ARGUMENT,
                               "tn_ctc_logits: %" PRId64
                               " samples; supported are as many as one frame needs, to %d (30 s)",
                               count, (int)WINDOW);
    return run(m, samples, count, out);
}

/* The letters of a window: of equal ones next to each other the first, without blanks. */
static tn_status spell(const tn_ctc *m, const float *logits, int64_t frames, tn_ids *ids, tn_bytes *text) {
    int64_t last = -1;
    for (int64_t t = 0; t < frames; t++) {
        const float *row = logits + t * m->vocabulary;
        int64_t best = 0;
        for (int64_t i = 1; i < m->vocabulary; i++)
            if (row[i] > row[best]) best = i;
        bool new = best != last &&best != m->blank && m->letters[best];
        last = best;
        if (!new) continue;
        const char *letter = strcmp(m->letters[best], m->space) == 0 ? " " : m->letters[best];
        TRY(tn_ids_append(ids, (int32_t)best));
        TRY(tn_bytes_append(text, letter, strlen(letter)));
    }
    return tn_bytes_append(text, "", 0);
}

tn_status tn_ctc_transcribe(tn_ctc *m, const float *samples, int64_t count, tn_speech_take *take, void *ctx) {
    if (!m || !samples || count < 1 || !take)
        return tn_backend_fail(TN_ERR_ARGUMENT, "tn_ctc_transcribe: an argument is NULL, or there are no samples");
    int64_t most = tn_ctc_frames(m, count < WINDOW ? count : WINDOW);
    float *logits = tn_txt_alloc((size_t)(most > 0 ? most : 1) * (size_t)m->vocabulary, sizeof *logits);
    tn_status status = logits ? TN_OK : TN_ERR_MEMORY;
    for (int64_t at = 0; at < count && status == TN_OK; at += WINDOW) {
        int64_t n = count - at < WINDOW ? count - at : WINDOW, frames = tn_ctc_frames(m, n);
        tn_ids ids = {0};
        tn_bytes text = {0};
        if (frames < 1) break; /* less than a frame is left */
        if (at > 0) status = tn_bytes_append(&text, " ", 1);
        if (status == TN_OK) status = run(m, samples + at, n, logits);
        if (status == TN_OK) status = spell(m, logits, frames, &ids, &text);
        tn_speech_segment s = {(double)at / TN_SPEECH_RATE,
                               (double)(at + n) / TN_SPEECH_RATE,
                               text.data,
                               ids.data,
                               (int64_t)ids.count,
                               NULL};
        if (status == TN_OK) status = take(ctx, &s);
        tn_ids_free(&ids);
        tn_bytes_free(&text);
    }
    tn_txt_free(logits);
    return status;
}
