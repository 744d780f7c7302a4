/* moonshine.c — Moonshine: speech recognition by an encoder of the sound itself and a decoder of tokens.
 *
 * The encoder's work grows with the sound, which is not padded to 30 s as Whisper's is. All tokens of a window are
 * launches of one captured plan. Source: Jeffries et al. 2024, "Moonshine"; MoonshineForConditionalGeneration of
 * transformers. */
#include <inttypes.h>
#include <stdio.h>

#include "text/sides.h"
#include "text/speech_ctc.h"

enum { MOST_CONTEXT = 1 << 16, HOP = 64 * 3 * 2 /* samples from one frame to the next */ };
enum { LEAST = 127 + 64 * (6 + 3 * 2) };     /* samples that one frame is made of */
static const double TOKENS_PER_SECOND = 6.5; /* at most: from the model card; without a limit noise has no end */

#define ATTENTION(name, ...) \
    { {name ".q_proj", name ".k_proj", name ".v_proj", name ".o_proj"}, {false}, __VA_ARGS__ }
#define REST .up = "mlp.fc1", .down = "mlp.fc2"
static const net_layer layers[] = {
    {ATTENTION("self_attn", true), {"input_layernorm", "post_attention_layernorm"}, REST, .gated = false},
    {ATTENTION("self_attn", true), {"input_layernorm", "final_layernorm"}, REST, .gated = true},
};
static const net_attention cross = ATTENTION("encoder_attn", false);

struct tn_moonshine {
    net net;
    tn_tokenizer *tokenizer;
    tn_activation *activations[2];
    int64_t layer_count[2], heads, hidden, vocabulary, context, start, end;
    int64_t rotated;             /* features of a head, in pairs */
    double base;                 /* of rope */
    side_layer *states;          /* of the decoder's layers */
    tn_tensor *pages, *turns[2]; /* turns: cosines and sines of all positions, [positions, rotated / 2] */
    side_token token;
};

static bool is_moonshine(const char *type) { return strcmp(type, "moonshine") == 0; }

bool tn_moonshine_knows(const char *path) { return tn_hf_is_of(path, is_moonshine); }

/* ---- config.json ------------------------------------------------------------------------------------------------- */

static tn_status read_side(tn_moonshine *m, int side) {
    static const char *const names[] = {"num_hidden_layers", "num_attention_heads", "num_key_value_heads",
                                        "hidden_act"};
    const hf_folder *f = &m->net.folder;
    char keys[4][HF_NAME_SIZE];
    int64_t heads, groups;
    for (int i = 0; i < 4; i++)
        snprintf(keys[i], sizeof keys[i], "%s_%s", tn_side_names[side], names[i]);
    TRY(tn_hf_size(f, keys[0], -1, HF_MOST_LAYERS, &m->layer_count[side]));
    TRY(tn_hf_size(f, keys[1], -1, HF_MOST_HEADS, &heads));
    TRY(tn_hf_size(f, keys[2], heads, HF_MOST_HEADS, &groups));
    TRY(tn_hf_activation(f, keys[3], side == ENCODER ? "gelu" : "silu", &m->activations[side]));
    if (side == ENCODER) m->heads = heads;
    if (groups == heads && heads == m->heads && m->hidden % heads == 0) return TN_OK;
    return tn_hf_fail(f->path, TN_ERR_UNSUPPORTED,
                      "%" PRId64 " attention heads and %" PRId64 " of keys: only equal numbers are supported, of "
                      "encoder and decoder, that divide hidden_size, %" PRId64,
                      heads, groups, m->hidden);
}

static tn_status read_config(tn_moonshine *m) {
    const hf_folder *f = &m->net.folder;
    const tn_json *rope = tn_json_get(f->config, "rope_parameters");
    const char *kind = tn_json_string(tn_json_get(rope, "rope_type"), "default");
    double share;
    if (tn_json_kind_of(rope) != TN_JSON_OBJECT) rope = f->config;
    if (!is_moonshine(tn_hf_text(f, "model_type", "")) || strcmp(kind, "default") != 0)
        return tn_hf_fail(f->path, TN_ERR_UNSUPPORTED,
                          "only a model_type of 'moonshine' with a rope_type of 'default' is supported");
    TRY(tn_hf_refuse(f, "attention_bias"));
    TRY(tn_hf_size(f, "hidden_size", -1, HF_MOST_WIDTH, &m->hidden));
    TRY(tn_hf_size(f, "vocab_size", -1, INT32_MAX, &m->vocabulary));
    TRY(tn_hf_size(f, "max_position_embeddings", 512, MOST_CONTEXT, &m->context));
    TRY(read_side(m, ENCODER));
    TRY(read_side(m, DECODER));
    TRY(tn_hf_real(f, rope, "rope_theta", 10000, 1, 1e12, &m->base));
    TRY(tn_hf_real(f, rope, "partial_rotary_factor", 0.9, 0.01, 1, &share));
    TRY(tn_hf_size(f, "decoder_start_token_id", 1, m->vocabulary - 1, &m->start));
    TRY(tn_hf_size(f, "eos_token_id", 2, INT32_MAX, &m->end));
    m->rotated = (int64_t)((double)(m->hidden / m->heads) * share);
    if (m->rotated >= 2 && m->rotated % 2 == 0) return TN_OK;
    return tn_hf_fail(f->path, TN_ERR_FORMAT,
                      "partial_rotary_factor is %g: %" PRId64 " features of a head cannot be pairs", share, m->rotated);
}

/* ---- operations -------------------------------------------------------------------------------------------------- */

/* Sound [n] → [1, frames, hidden] */
static tn_tensor *record_encoder(tn_moonshine *m, const tn_tensor *sound) {
    net *n = &m->net;
    tn_net_at(n, "encoder.");
    tn_tensor *x = tn_tanh(tn_net_conv1d(n, tn_reshape(sound, TN_DIMS(1, 1, -1)), "conv1", false, 64, 0));
    x = tn_group_norm(x, 1, tn_net_weight(n, "groupnorm.weight"), tn_net_weight(n, "groupnorm.bias"), NULL);
    x = tn_gelu(tn_net_conv1d(n, x, "conv2", true, 3, 0), NULL);
    x = tn_transpose(tn_gelu(tn_net_conv1d(n, x, "conv3", true, 2, 0), NULL), 1, 2);
    n->activation = m->activations[ENCODER];
    for (int i = 0; i < 2; i++)
        n->turns[i] = tn_narrow(m->turns[i], 0, 0, tn_size(x, 1));
    for (int64_t i = 0; i < m->layer_count[ENCODER]; i++) {
        tn_net_at(n, "encoder.layers.%" PRId64 ".", i);
        x = tn_net_layer(n, x, &layers[ENCODER], m->heads, NULL);
    }
    tn_net_at(n, "encoder.");
    return tn_net_norm(n, x, "layer_norm");
}

/* x [1, 1, hidden], the token at `position`. */
static tn_tensor *decoder_layer(tn_moonshine *m, const side_layer *l, tn_tensor *x, const tn_tensor *position) {
    net *n = &m->net;
    const net_attention *own = &layers[DECODER].attention;
    tn_tensor *y = tn_net_norm(n, x, "input_layernorm"), *qkv[3];
    for (int i = 0; i < 3; i++)
        qkv[i] = tn_select(tn_net_project(n, y, own, i, m->heads), 2, 0);
    y = tn_cached_attention(qkv[0], qkv[1], qkv[2], l->state[KEYS], l->state[VALUES], position, m->pages, NULL, NULL);
    tn_cache_append_(l->state[KEYS], qkv[1], position, m->pages);
    tn_cache_append_(l->state[VALUES], qkv[2], position, m->pages);
    x = tn_add(x, tn_net_project_back(n, tn_unsqueeze(y, 2), own));
    y = tn_net_project(n, tn_net_norm(n, x, "post_attention_layernorm"), &cross, 0, m->heads);
    y = tn_scaled_dot_product_attention(y, l->state[CROSS_KEYS], l->state[CROSS_VALUES], NULL, NULL);
    return tn_net_feed(n, tn_add(x, tn_net_project_back(n, y, &cross)), &layers[DECODER]);
}

/* inputs: a token [1, 1] and its place [1], i64 → logits [1, 1, vocabulary] */
static tn_tensor *record_token(void *model, tn_tensor *const *inputs, tn_tensor *position) {
    tn_moonshine *m = model;
    net *n = &m->net;
    tn_net_at(n, "decoder.");
    tn_tensor *words = tn_net_weight(n, "embed_tokens.weight");
    tn_tensor *x = tn_embedding(inputs[0], words);
    n->activation = m->activations[DECODER];
    for (int i = 0; i < 2; i++)
        n->turns[i] = tn_embedding(inputs[1], m->turns[i]);
    for (int64_t i = 0; i < m->layer_count[DECODER]; i++) {
        tn_net_at(n, "decoder.layers.%" PRId64 ".", i);
        x = decoder_layer(m, &m->states[i], x, position);
    }
    tn_net_at(n, "decoder.");
    x = tn_net_norm(n, x, "norm");
    tn_net_at(n, "%s", "");
    return tn_linear(x, tn_net_has(n, "proj_out.weight") ? tn_net_weight(n, "proj_out.weight") : words, NULL);
}

/* ---- a window ---------------------------------------------------------------------------------------------------- */

/* Empty caches, and keys and values of the encoded sound. */
static tn_status begin(tn_moonshine *m, const float *samples, int64_t count) {
    side_layer *l = m->states, *end = l + m->layer_count[DECODER];
    tn_side_free_graph(&m->token);
    tn_side_free_states(l, end - l);
    TN_SCOPE;
    TN_NO_GRAD;
    tn_tensor *x = record_encoder(m, tn_from_data(samples, TN_DIMS(count), TN_F32));
    TRY(tn_status_of(x));
    TRY(tn_side_make_states(l, end - l, m->context, m->heads, m->hidden / m->heads, tn_size(x, 1)));
    for (; l < end; l++) {
        tn_net_at(&m->net, "decoder.layers.%d.", (int)(l - m->states));
        tn_copy_(l->state[CROSS_KEYS], tn_net_project(&m->net, x, &cross, 1, m->heads));
        tn_copy_(l->state[CROSS_VALUES], tn_net_project(&m->net, x, &cross, 2, m->heads));
    }
    return tn_eval(NULL, 0);
}

static tn_status step(tn_moonshine *m, int64_t id, int64_t place, const float **logits) {
    TN_SCOPE;
    tn_tensor *inputs[] = {tn_from_data(&id, TN_DIMS(1, 1), TN_I64), tn_from_data(&place, TN_DIMS(1), TN_I64)};
    return tn_side_step(&m->token, record_token, m, inputs, 2, place, m->vocabulary, logits);
}

/* The most probable tokens of a window. */
static tn_status decode(tn_moonshine *m, const float *samples, int64_t count, tn_ids *ids) {
    int64_t most = (int64_t)((double)count * TOKENS_PER_SECOND / TN_SPEECH_RATE);
    int32_t id = (int32_t)m->start;
    const float *logits;
    TRY(begin(m, samples, count));
    for (int64_t place = 0; place + 1 < most && place + 1 < m->context; place++) {
        TRY(step(m, id, place, &logits));
        TRY(tn_txt_most_probable(logits, (int32_t)m->vocabulary, &id));
        if (id == m->end) return TN_OK;
        TRY(tn_ids_append(ids, id));
    }
    return TN_OK;
}

static tn_status hear_window(void *ctx, const float *samples, int64_t count, tn_ids *ids, tn_bytes *text) {
    tn_moonshine *m = ctx;
    AUTO_DEVICE(m->net.device);
    TRY(decode(m, samples, count, ids));
    return tn_tokenizer_decode(m->tokenizer, ids->data, ids->count, 0, text);
}

tn_status tn_moonshine_transcribe(tn_moonshine *m, const float *samples, int64_t count, tn_speech_take *take,
                                  void *ctx) {
    if (!m || !samples || count < 1 || !take)
        return tn_backend_fail(TN_ERR_ARGUMENT,
                               "tn_moonshine_transcribe: an argument is NULL, or there are no samples");
    return tn_ctc_windows(samples, count, LEAST, hear_window, m, take, ctx);
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

/* Cosines and sines of the positions of a window and of a text; and the numbers of the cache's pages. */
static tn_status make_turns(tn_moonshine *m) {
    const int64_t frames = 30 * TN_SPEECH_RATE / HOP, rows = m->context > frames ? m->context : frames;
    TN_SCOPE;
    tn_tensor *exponents = tn_div_scalar(tn_arange(0, (double)m->rotated, 2, TN_F32), (double)m->rotated);
    tn_tensor *places = tn_unsqueeze(tn_arange(0, (double)rows, 1, TN_F32), 1);
    tn_tensor *angles = tn_div(places, tn_pow(tn_scalar(m->base), exponents));
    m->turns[0] = tn_retain(tn_cos(angles));
    m->turns[1] = tn_retain(tn_sin(angles));
    m->pages = tn_retain(tn_arange(0, (double)((m->context + PAGE - 1) / PAGE), 1, TN_I64));
    TRY(tn_eval(&m->pages, 1));
    return tn_eval(m->turns, 2);
}

/* Encodes a moment of silence and a token, so that weights that are missing or do not fit are noticed. */
static tn_status load(tn_moonshine *m) {
    const float silence[LEAST] = {0}, *logits;
    TRY(tn_net_load(&m->net));
    m->states = tn_txt_zalloc((size_t)m->layer_count[DECODER], sizeof *m->states);
    m->token.logits = tn_txt_alloc((size_t)m->vocabulary, sizeof *logits);
    if (!m->states || !m->token.logits) return TN_ERR_MEMORY;
    TRY(make_turns(m));
    tn_status status = begin(m, silence, LEAST);
    if (status == TN_OK) status = step(m, m->start, 0, &logits);
    return tn_net_check(&m->net, status);
}

static tn_status open_moonshine(void *model, const char *folder, tn_device *device, TN_UNUSED const void *options) {
    tn_moonshine *m = model;
    TRY(tn_net_open(&m->net, folder, device));
    m->net.folder.prefix = "model.";
    m->net.plain_norms = true;
    m->net.eps = 1e-5;
    TRY(read_config(m));
    TRY(tn_tokenizer_open(folder, &m->tokenizer));
    AUTO_DEVICE(device);
    return load(m);
}

static void close_moonshine(void *model) {
    tn_moonshine *m = model;
    if (!m) return;
    tn_side_free_token(&m->token);
    tn_side_free_layers(m->states, m->layer_count[DECODER]);
    tn_free(m->pages);
    tn_free(m->turns[0]);
    tn_free(m->turns[1]);
    tn_tokenizer_free(m->tokenizer);
    tn_net_close(&m->net);
    tn_txt_free(m);
}

void tn_moonshine_close(tn_moonshine *m) { close_moonshine(m); }

tn_status tn_moonshine_open(const char *folder, const tn_speech_options *options, tn_moonshine **out) {
    static const hf_kind kind = {"tn_moonshine_open",  "tn_speech_options o = TN_SPEECH_DEFAULTS",
                                 sizeof(tn_moonshine), offsetof(tn_speech_options, device),
                                 open_moonshine,       close_moonshine};
    return tn_hf_open_model(&kind, folder, options, &(tn_speech_options)TN_SPEECH_DEFAULTS, out);
}
