/* speech_ctc.c — speech recognition by CTC: Wav2Vec 2 and its siblings.
 *
 * Convolutions make a row of numbers of each 20 ms of sound, a transformer that sees all rows gives each row a letter
 * or nothing, and equal letters of neighbouring rows are one. Source: Baevski et al. 2020, "wav2vec 2.0"; Graves et al.
 * 2006, "Connectionist Temporal Classification"; Wav2Vec2ForCTC of transformers. */
#include "text/speech_ctc.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "trunnion/speech.h"

enum { MOST_KERNEL = 4096, MOST_BUCKETS = 1 << 16, WINDOW = 30 * TN_SPEECH_RATE };
enum { GATE_PARTS = 2, GATE_TERMS = 4 };    /* WavLM has GATE_PARTS gates, each the sum of GATE_TERMS numbers */
static const double CONVOLUTION_EPS = 1e-5; /* of norms between convolutions; not in config.json */

/* How a kind of model differs from Wav2Vec 2. */
struct ctc_kind {
    const char *type, *prefix, *key; /* key: of the kernels that tell positions */
    int64_t kernel;                  /* its default */
    bool stacked;                    /* positions are told by several convolutions with norms, stored plainly */
    bool gated;                      /* scores have a bias for each distance, times gates made of the query */
};
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
    net net;
    ctc_encoder encoder;
    tn_json_doc *words; /* vocab.json, which the letters point into */
    const char **letters;
    int64_t vocabulary, blank;
    char space[32]; /* the letter that stands for one */
};

/* ---- config.json ------------------------------------------------------------------------------------------------- */

static const ctc_kind *find_kind(const char *type) {
    for (size_t i = 0; i < KINDS; i++)
        if (strcmp(type, kinds[i].type) == 0) return &kinds[i];
    return NULL;
}

bool tn_ctc_encoder_knows(const char *type) { return find_kind(type) != NULL; }

bool tn_ctc_knows(const char *path) { return tn_hf_is_of(path, tn_ctc_encoder_knows); }

static tn_status read_convolutions(const hf_folder *f, ctc_encoder *e) {
    const tn_json *lists[] = {tn_json_get(f->config, "conv_dim"), tn_json_get(f->config, "conv_kernel"),
                              tn_json_get(f->config, "conv_stride")};
    e->convolution_count = (int64_t)tn_json_length(lists[0]);
    bool fits = e->convolution_count >= 1 && e->convolution_count <= CTC_MOST_CONVOLUTIONS;
    for (int k = 0; k < 3; k++)
        fits = fits && (int64_t)tn_json_length(lists[k]) == e->convolution_count;
    for (int64_t i = 0; fits && i < e->convolution_count; i++) {
        int64_t sizes[3], most[] = {HF_MOST_WIDTH, MOST_KERNEL, MOST_KERNEL};
        for (int k = 0; k < 3; k++) {
            sizes[k] = tn_json_int(tn_json_at(lists[k], (size_t)i), 0);
            fits = fits && sizes[k] >= 1 && sizes[k] <= most[k];
        }
        e->convolutions[i].channels = sizes[0];
        e->convolutions[i].kernel = sizes[1];
        e->convolutions[i].stride = sizes[2];
    }
    if (fits) return TN_OK;
    return tn_hf_fail(f->path, TN_ERR_FORMAT,
                      "'conv_dim', 'conv_kernel' and 'conv_stride' must be lists of 1 to %d sizes, of the same length",
                      CTC_MOST_CONVOLUTIONS);
}

static tn_status read_preparation(const hf_folder *f, ctc_encoder *e) {
    static const hf_key keys[] = {
        {"do_normalize", TN_JSON_BOOL}, {"sampling_rate", TN_JSON_NUMBER}, {NULL, TN_JSON_NULL}};
    tn_json_doc *doc;
    TRY(tn_hf_json(f, "preprocessor_config.json", &doc));
    tn_status status = tn_hf_check_kinds(f, "preprocessor_config.json", tn_json_root(doc), keys);
    e->normalizes = tn_json_bool(tn_json_get(tn_json_root(doc), "do_normalize"), true);
    double rate = tn_json_number(tn_json_get(tn_json_root(doc), "sampling_rate"), TN_SPEECH_RATE);
    tn_json_free(doc);
    TRY(status);
    if (rate == TN_SPEECH_RATE) return TN_OK;
    return tn_backend_fail(
        TN_ERR_UNSUPPORTED,
        "'%s/preprocessor_config.json': 'sampling_rate' is %g; only %d samples a second are supported", f->path, rate,
        (int)TN_SPEECH_RATE);
}

/* The letter that stands for a space. Text in lower case would need the case tables of Unicode. */
static tn_status read_spelling(tn_ctc *m) {
    tn_json_doc *doc;
    TRY(tn_hf_json(&m->net.folder, "tokenizer_config.json", &doc));
    const char *space = tn_json_string(tn_json_get(tn_json_root(doc), "word_delimiter_token"), "|");
    bool fits = snprintf(m->space, sizeof m->space, "%s", space) < (int)sizeof m->space;
    bool lowers = tn_json_bool(tn_json_get(tn_json_root(doc), "do_lower_case"), false);
    tn_json_free(doc);
    if (fits && !lowers) return TN_OK;
    return tn_backend_fail(TN_ERR_UNSUPPORTED,
                           "'%s/tokenizer_config.json': 'do_lower_case', and a 'word_delimiter_token' of %zu bytes or "
                           "more, are not supported",
                           m->net.folder.path, sizeof m->space);
}

/* Convolutions that tell positions, and WavLM's buckets of distances. */
static tn_status read_positions(const hf_folder *f, ctc_encoder *e) {
    TRY(tn_hf_size(f, e->kind->key, e->kind->kernel, MOST_KERNEL, &e->position_kernel));
    TRY(tn_hf_size(f, "num_conv_pos_embedding_groups", 16, e->hidden, &e->position_groups));
    e->position_count = 1;
    if (e->kind->stacked) TRY(tn_hf_size(f, "num_conv_pos_embeddings", 5, CTC_MOST_CONVOLUTIONS, &e->position_count));
    if (e->hidden % e->heads != 0 || e->hidden % e->position_groups != 0)
        return tn_hf_fail(f->path, TN_ERR_FORMAT,
                          "hidden_size %" PRId64 " must be a multiple of num_attention_heads %" PRId64
                          " and of num_conv_pos_embedding_groups %" PRId64,
                          e->hidden, e->heads, e->position_groups);
    if (!e->kind->gated) return TN_OK;
    TRY(tn_hf_size(f, "num_buckets", 320, MOST_BUCKETS, &e->buckets));
    TRY(tn_hf_size(f, "max_bucket_distance", 800, INT32_MAX, &e->most_distance));
    if (e->buckets >= 4 && e->buckets % 2 == 0 && e->most_distance > e->buckets / 4) return TN_OK;
    return tn_hf_fail(f->path, TN_ERR_FORMAT,
                      "num_buckets is %" PRId64 " and max_bucket_distance %" PRId64
                      "; the first must be even and at least 4, the second more than a quarter of it",
                      e->buckets, e->most_distance);
}

tn_status tn_ctc_encoder_read(net *n, ctc_encoder *e) {
    const hf_folder *f = &n->folder;
    const char *type = tn_hf_text(f, "model_type", ""), *norms = tn_hf_text(f, "feat_extract_norm", "group");
    *e = (ctc_encoder){.kind = find_kind(type)};
    if (!e->kind)
        return tn_hf_fail(f->path, TN_ERR_UNSUPPORTED,
                          "model_type is '%s'; CTC supports wav2vec2, hubert, unispeech, unispeech-sat, wavlm and "
                          "data2vec-audio",
                          tn_txt_shown(type, strlen(type)).text);
    TRY(tn_hf_refuse(f, "add_adapter"));
    TRY(tn_hf_refuse(f, "conv_pos_batch_norm"));
    if (tn_hf_has(f, "adapter_attn_dim"))
        return tn_hf_fail(f->path, TN_ERR_UNSUPPORTED, "'adapter_attn_dim' is not supported");
    TRY(tn_hf_size(f, "hidden_size", 768, HF_MOST_WIDTH, &e->hidden));
    TRY(tn_hf_size(f, "num_hidden_layers", 12, HF_MOST_LAYERS, &e->layers));
    TRY(tn_hf_size(f, "num_attention_heads", 12, HF_MOST_HEADS, &e->heads));
    TRY(read_positions(f, e));
    TRY(tn_hf_real(f, f->config, "layer_norm_eps", 1e-5, 1e-20, 1, &n->eps));
    TRY(tn_hf_activation(f, "hidden_act", "gelu", &n->activation));
    TRY(tn_hf_activation(f, "feat_extract_activation", "gelu", &e->front_activation));
    e->norms_each = e->kind->stacked || strcmp(norms, "layer") == 0;
    e->norms_first = !e->kind->stacked && tn_json_bool(tn_json_get(f->config, "do_stable_layer_norm"), false);
    e->convolution_bias = tn_json_bool(tn_json_get(f->config, "conv_bias"), false);
    e->front_norm = tn_json_bool(tn_json_get(f->config, "feat_proj_layer_norm"), true);
    n->folder.prefix = e->kind->prefix;
    if (!e->norms_each && strcmp(norms, "group") != 0)
        return tn_hf_fail(f->path, TN_ERR_UNSUPPORTED, "'feat_extract_norm' is '%s'; supported are group and layer",
                          tn_txt_shown(norms, strlen(norms)).text);
    TRY(read_preparation(f, e));
    return read_convolutions(f, e);
}

/* The letter of each token; none for tokens such as "<pad>". */
static tn_status read_letters(tn_ctc *m) {
    TRY(tn_hf_json(&m->net.folder, "vocab.json", &m->words));
    const tn_json *root = tn_json_root(m->words);
    if (tn_json_kind_of(root) != TN_JSON_OBJECT || tn_json_kind_of(tn_json_at(root, 0)) != TN_JSON_NUMBER)
        return tn_backend_fail(TN_ERR_FORMAT, "'%s/vocab.json' must be an object with the number of each token",
                               m->net.folder.path);
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

/* ---- opening ----------------------------------------------------------------------------------------------------- */

/* The convolution that tells positions is stored as a direction for each tap and its length: two names of each. */
tn_status tn_ctc_encoder_load(net *n, ctc_encoder *e) {
    if (e->kind->stacked) return TN_OK;
    TN_SCOPE;
    tn_net_at(n, "encoder.pos_conv_embed.conv.");
    bool newer = tn_net_has(n, "parametrizations.weight.original0");
    tn_tensor *length = tn_net_weight(n, newer ? "parametrizations.weight.original0" : "weight_g");
    tn_tensor *way = tn_net_weight(n, newer ? "parametrizations.weight.original1" : "weight_v");
    tn_tensor *squares = tn_sum(tn_mul(way, way), (int64_t[]){0, 1}, 2, true);
    e->positions = tn_retain(tn_mul(tn_div(way, tn_sqrt(squares)), length));
    return tn_eval(&e->positions, 1);
}

void tn_ctc_encoder_free(ctc_encoder *e) {
    tn_free(e->positions);
    e->positions = NULL;
}

static tn_tensor *record(tn_ctc *m, const tn_tensor *sound) {
    tn_tensor *x = tn_ctc_encoder_record(&m->encoder, &m->net, sound, NULL);
    tn_net_at(&m->net, "%s", "");
    return tn_net_linear(&m->net, tn_select(x, 0, 0), "lm_head", true);
}

int64_t tn_ctc_encoder_least(const ctc_encoder *e) {
    int64_t count = 1;
    for (int64_t i = e->convolution_count; i-- > 0 && count <= WINDOW;)
        count = (count - 1) * e->convolutions[i].stride + e->convolutions[i].kernel;
    return count < WINDOW ? count : WINDOW;
}

/* Recorded only, so that weights that do not fit are noticed. */
static tn_status try_record(tn_ctc *m) {
    TN_SCOPE;
    TN_NO_GRAD;
    tn_tensor *logits = record(m, tn_zeros(TN_DIMS(tn_ctc_encoder_least(&m->encoder)), TN_F32));
    TRY(tn_net_check(&m->net, tn_status_of(logits)));
    if (tn_size(logits, 1) == m->vocabulary) return TN_OK;
    return tn_hf_fail(m->net.folder.path, TN_ERR_FORMAT,
                      "'vocab_size' is %" PRId64 ", but lm_head has %" PRId64 " rows", m->vocabulary,
                      tn_size(logits, 1));
}

static tn_status load(tn_ctc *m) {
    TRY(tn_net_load(&m->net));
    TRY(tn_ctc_encoder_load(&m->net, &m->encoder));
    return try_record(m);
}

static tn_status open_ctc(void *model, const char *folder, tn_device *device, TN_UNUSED const void *options) {
    tn_ctc *m = model;
    const hf_folder *f = &m->net.folder;
    TRY(tn_net_open(&m->net, folder, device));
    TRY(tn_ctc_encoder_read(&m->net, &m->encoder));
    TRY(tn_hf_size(f, "vocab_size", 32, INT32_MAX, &m->vocabulary));
    m->blank = tn_json_int(tn_json_get(f->config, "pad_token_id"), 0);
    TRY(read_spelling(m));
    TRY(read_letters(m));
    AUTO_DEVICE(device);
    return load(m);
}

static void close_ctc(void *model) {
    tn_ctc *m = model;
    if (!m) return;
    tn_ctc_encoder_free(&m->encoder);
    tn_txt_free(m->letters);
    tn_json_free(m->words);
    tn_net_close(&m->net);
    tn_txt_free(m);
}

void tn_ctc_close(tn_ctc *m) { close_ctc(m); }

tn_status tn_ctc_open(const char *folder, const tn_speech_options *options, tn_ctc **out) {
    static const hf_kind kind = {"tn_ctc_open",  "tn_speech_options o = TN_SPEECH_DEFAULTS",
                                 sizeof(tn_ctc), offsetof(tn_speech_options, device),
                                 open_ctc,       close_ctc};
    return tn_hf_open_model(&kind, folder, options, &(tn_speech_options)TN_SPEECH_DEFAULTS, out);
}

int64_t tn_ctc_vocabulary(const tn_ctc *m) { return m ? m->vocabulary : 0; }

int64_t tn_ctc_encoder_frames(const ctc_encoder *e, int64_t count) {
    for (int64_t i = 0; i < e->convolution_count && count > 0; i++)
        count =
            count < e->convolutions[i].kernel ? 0 : (count - e->convolutions[i].kernel) / e->convolutions[i].stride + 1;
    return count > 0 ? count : 0;
}

int64_t tn_ctc_frames(const tn_ctc *m, int64_t count) { return m ? tn_ctc_encoder_frames(&m->encoder, count) : 0; }

/* ---- operations -------------------------------------------------------------------------------------------------- */

static tn_tensor *plain_norm(const tn_tensor *x) { return tn_hf_norm(x, &(hf_linear){NULL, NULL}, CONVOLUTION_EPS); }

/* x [1, channels, n]: over the channels of each place; or over all places of each channel. */
static tn_tensor *norm_convolution(const ctc_encoder *e, net *n, tn_tensor *x) {
    if (e->norms_each) {
        x = tn_net_norm_by(n, tn_contiguous(tn_transpose(x, 1, 2)), "layer_norm", CONVOLUTION_EPS);
        return tn_transpose(x, 1, 2);
    }
    x = tn_mul(plain_norm(x), tn_unsqueeze(tn_net_weight(n, "layer_norm.weight"), 1));
    return tn_add(x, tn_unsqueeze(tn_net_weight(n, "layer_norm.bias"), 1));
}

/* Sound [n] as rows [1, frames, channels]. */
static tn_tensor *convolve(const ctc_encoder *e, net *n, const tn_tensor *sound) {
    tn_tensor *x = tn_reshape(sound, TN_DIMS(1, 1, tn_size(sound, 0)));
    for (int64_t i = 0; i < e->convolution_count; i++) {
        tn_conv1d_options o = TN_CONV1D_DEFAULTS;
        int64_t in = tn_size(x, 1);
        o.stride = e->convolutions[i].stride;
        tn_net_at(n, "feature_extractor.conv_layers.%" PRId64 ".", i);
        tn_tensor *filters =
            tn_net_shaped(n, "conv.weight", (int64_t[]){e->convolutions[i].channels, in, e->convolutions[i].kernel, 0});
        x = tn_conv1d(tn_contiguous(x), filters, e->convolution_bias ? tn_net_weight(n, "conv.bias") : NULL, &o);
        x = e->front_activation(e->norms_each || i == 0 ? norm_convolution(e, n, x) : x);
    }
    return tn_contiguous(tn_transpose(x, 1, 2));
}

/* What is added to rows [1, n, hidden] so that they know their places. */
static tn_tensor *positions_of(const ctc_encoder *e, net *n, const tn_tensor *x) {
    tn_conv1d_options o = TN_CONV1D_DEFAULTS;
    o.padding = e->position_kernel / 2;
    o.groups = e->position_groups;
    tn_tensor *rows = tn_transpose(x, 1, 2);
    for (int64_t i = 0; i < e->position_count; i++) {
        tn_net_at(n, "encoder.pos_conv_embed.conv.");
        if (e->kind->stacked) tn_net_at(n, "encoder.pos_conv_embed.layers.%" PRId64 ".conv.", i);
        const tn_tensor *filter = e->positions ? e->positions : tn_net_weight(n, "weight");
        tn_tensor *y = tn_conv1d(tn_contiguous(rows), filter, tn_net_weight(n, "bias"), &o);
        rows = tn_narrow(y, 2, 0, tn_size(x, 1));
        if (e->kind->stacked) rows = tn_transpose(plain_norm(tn_contiguous(tn_transpose(rows, 1, 2))), 1, 2);
        rows = e->front_activation(rows);
    }
    return tn_transpose(rows, 1, 2);
}

/* What is added to scores, [1, heads, n, n]: a bias for each distance, times gates of each head of the input.
 * Source: Chen et al. 2021, "WavLM", section 3.1, as transformers computes it. */
static tn_tensor *gated_bias(const ctc_encoder *e, net *n, const tn_tensor *x, const tn_tensor *bias) {
    tn_tensor *terms = tn_net_linear(n, tn_contiguous(tn_net_heads(x, e->heads)), "attention.gru_rel_pos_linear", true);
    terms = tn_reshape(terms, TN_DIMS(1, e->heads, tn_size(x, 1), GATE_PARTS, GATE_TERMS));
    tn_tensor *gates = tn_sigmoid(tn_sum(terms, (int64_t[]){4}, 1, false));
    tn_tensor *by = tn_mul(tn_narrow(gates, 3, 1, 1), tn_net_weight(n, "attention.gru_rel_pos_const"));
    return tn_mul(tn_add_scalar(tn_mul(tn_narrow(gates, 3, 0, 1), tn_sub_scalar(by, 1)), 2), bias);
}

static const net_attention attention = {
    .names = {"attention.q_proj", "attention.k_proj", "attention.v_proj", "attention.out_proj"},
    .biases = {true, true, true, true}};

static tn_tensor *feed(net *n, const tn_tensor *x) {
    tn_tensor *up = n->activation(tn_net_linear(n, x, "feed_forward.intermediate_dense", true));
    return tn_net_linear(n, up, "feed_forward.output_dense", true);
}

/* bias: for each distance, [1, heads, n, n]; or NULL. */
static tn_tensor *layer(const ctc_encoder *e, net *n, tn_tensor *x, const tn_tensor *bias) {
    tn_tensor *y = e->norms_first ? tn_net_norm(n, x, "layer_norm") : x;
    x = tn_add(x, tn_net_attend(n, y, &attention, e->heads, bias ? gated_bias(e, n, y, bias) : NULL));
    if (!e->norms_first) x = tn_net_norm(n, x, "layer_norm");
    x = tn_add(x, feed(n, e->norms_first ? tn_net_norm(n, x, "final_layer_norm") : x));
    return e->norms_first ? x : tn_net_norm(n, x, "final_layer_norm");
}

tn_tensor *tn_ctc_encoder_record(const ctc_encoder *e, net *n, const tn_tensor *sound, tn_tensor **states) {
    tn_tensor *x = convolve(e, n, sound), *bias = NULL;
    tn_net_at(n, "feature_projection.");
    if (e->front_norm) x = tn_net_norm(n, x, "layer_norm");
    x = tn_net_linear(n, x, "projection", true);
    x = tn_add(x, positions_of(e, n, x));
    tn_net_at(n, "encoder.");
    if (!e->norms_first) x = tn_net_norm(n, x, "layer_norm");
    if (e->kind->gated) {
        tn_tensor *distances = tn_net_weight(n, "layers.0.attention.rel_attn_embed.weight");
        bias = tn_embedding(tn_txt_buckets(tn_size(x, 1), e->buckets, e->most_distance), distances);
        bias = tn_unsqueeze(tn_permute(bias, TN_DIMS(2, 0, 1)), 0);
    }
    for (int64_t i = 0; i < e->layers; i++) {
        if (states) states[i] = x;
        tn_net_at(n, "encoder.layers.%" PRId64 ".", i);
        x = layer(e, n, x, bias);
    }
    tn_net_at(n, "encoder.");
    if (states) states[e->layers] = x; /* without the last norm, as in transformers 5 */
    return e->norms_first ? tn_net_norm(n, x, "layer_norm") : x;
}

/* ---- sound to text ----------------------------------------------------------------------------------------------- */

/* A copy with mean 0 and variance 1, if the model wants that. */
tn_status tn_ctc_encoder_prepare(const ctc_encoder *e, const float *samples, int64_t count, float **out) {
    static const double EPS = 1e-7;
    double mean = 0, square = 0;
    float *sound = *out = tn_txt_alloc((size_t)count, sizeof *sound);
    if (!sound) return TN_ERR_MEMORY;
    memcpy(sound, samples, (size_t)count * sizeof *sound);
    if (!e->normalizes) return TN_OK;
    for (int64_t i = 0; i < count; i++)
        mean += (double)sound[i] / (double)count;
    for (int64_t i = 0; i < count; i++)
        square += ((double)sound[i] - mean) * ((double)sound[i] - mean) / (double)count;
    for (int64_t i = 0; i < count; i++)
        sound[i] = (float)(((double)sound[i] - mean) / sqrt(square + EPS));
    return TN_OK;
}

static tn_status run(tn_ctc *m, const float *samples, int64_t count, float *out) {
    AUTO_TXT_FREE float *sound = NULL;
    size_t size = (size_t)tn_ctc_frames(m, count) * (size_t)m->vocabulary * sizeof *out;
    TRY(tn_ctc_encoder_prepare(&m->encoder, samples, count, &sound));
    AUTO_DEVICE(m->net.device);
    TN_SCOPE;
    TN_NO_GRAD;
    return tn_read(record(m, tn_from_data(sound, TN_DIMS(count), TN_F32)), out, size);
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
    int32_t last = -1;
    for (int64_t t = 0; t < frames; t++) {
        int32_t best;
        TRY(tn_txt_most_probable(logits + t * m->vocabulary, (int32_t)m->vocabulary, &best));
        bool new = best != last &&best != m->blank && m->letters[best];
        last = best;
        if (!new) continue;
        const char *letter = strcmp(m->letters[best], m->space) == 0 ? " " : m->letters[best];
        TRY(tn_ids_append(ids, best));
        TRY(tn_bytes_append(text, letter, strlen(letter)));
    }
    return tn_bytes_append(text, "", 0);
}

tn_status tn_ctc_windows(const float *samples, int64_t count, int64_t least, tn_window_hear *hear, void *model,
                         tn_speech_take *take, void *ctx) {
    for (int64_t at = 0; at < count; at += WINDOW) {
        int64_t n = count - at < WINDOW ? count - at : WINDOW;
        AUTO_IDS tn_ids ids = {0};
        AUTO_BYTES tn_bytes text = {0};
        if (n < least) break;
        if (at > 0) TRY(tn_bytes_append(&text, " ", 1));
        TRY(hear(model, samples + at, n, &ids, &text));
        TRY(tn_bytes_append(&text, "", 0));
        tn_speech_segment s = {(double)at / TN_SPEECH_RATE,
                               (double)(at + n) / TN_SPEECH_RATE,
                               text.data,
                               ids.data,
                               (int64_t)ids.count,
                               NULL};
        TRY(take(ctx, &s));
    }
    return TN_OK;
}

static tn_status hear_letters(void *ctx, const float *samples, int64_t count, tn_ids *ids, tn_bytes *text) {
    tn_ctc *m = ctx;
    int64_t frames = tn_ctc_frames(m, count);
    AUTO_TXT_FREE float *logits = tn_txt_alloc((size_t)frames * (size_t)m->vocabulary, sizeof *logits);
    TRY(logits ? run(m, samples, count, logits) : TN_ERR_MEMORY);
    return spell(m, logits, frames, ids, text);
}

tn_status tn_ctc_transcribe(tn_ctc *m, const float *samples, int64_t count, tn_speech_take *take, void *ctx) {
    if (!m || !samples || count < 1 || !take)
        return tn_backend_fail(TN_ERR_ARGUMENT, "tn_ctc_transcribe: an argument is NULL, or there are no samples");
    return tn_ctc_windows(samples, count, tn_ctc_encoder_least(&m->encoder), hear_letters, m, take, ctx);
}
