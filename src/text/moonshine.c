/* moonshine.c — Moonshine: speech recognition by an encoder of the sound itself and a decoder of tokens.
 *
 * The encoder's work grows with the sound, which is not filled up to 30 s as Whisper's is. Each new token is recorded
 * with its position as a runtime scalar, so that all tokens of a window run one plan. Source: Jeffries et al. 2024,
 * "Moonshine"; MoonshineForConditionalGeneration of transformers. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "text/speech_ctc.h"
#include "trunnion/speech.h"

enum { ENCODER, DECODER };
enum { PAGE = 64 /* tokens of a page of the cache: the attention's contract */, MOST_CONTEXT = 1 << 16 };
enum { LEAST = 127 + 64 * (6 + 3 * 2) };     /* samples that one frame is made of */
static const double TOKENS_PER_SECOND = 6.5; /* at most: from the model card; without a limit noise has no end */

typedef struct moonshine_caches {
    tn_tensor *k, *v;             /* states [pages, heads, PAGE, head_dim] */
    tn_tensor *k_heard, *v_heard; /* of the encoded window, [1, heads, frames, head_dim] */
} moonshine_caches;

struct tn_moonshine {
    net net;
    tn_tokenizer *tokenizer;
    tn_activation *activations[2];
    int64_t layers[2], heads, hidden, vocabulary, context, start, end;
    int64_t rotated;          /* features of a head, in pairs */
    double base;              /* of rope */
    moonshine_caches *caches; /* [decoder layers] */
    tn_tensor *pages;
};

static bool is_moonshine(const char *type) { return strcmp(type, "moonshine") == 0; }

bool tn_moonshine_knows(const char *path) { return tn_hf_is_of(path, is_moonshine); }

/* ---- config.json ------------------------------------------------------------------------------------------------- */

static tn_status read_side(tn_moonshine *m, int side) {
    static const char *const keys[2][4] = {{"encoder_num_hidden_layers", "encoder_num_attention_heads",
                                            "encoder_num_key_value_heads", "encoder_hidden_act"},
                                           {"decoder_num_hidden_layers", "decoder_num_attention_heads",
                                            "decoder_num_key_value_heads", "decoder_hidden_act"}};
    const hf_folder *f = &m->net.folder;
    int64_t heads, groups;
    TRY(tn_hf_size(f, keys[side][0], -1, HF_MOST_LAYERS, &m->layers[side]));
    TRY(tn_hf_size(f, keys[side][1], -1, HF_MOST_HEADS, &heads));
    TRY(tn_hf_size(f, keys[side][2], heads, HF_MOST_HEADS, &groups));
    TRY(tn_hf_activation(f, keys[side][3], side == ENCODER ? "gelu" : "silu", &m->activations[side]));
    if (side == ENCODER) m->heads = heads;
    if (groups == heads && heads == m->heads && m->hidden % heads == 0) return TN_OK;
    return tn_hf_fail(f->path, TN_ERR_UNSUPPORTED,
                      "%" PRId64 " attention heads and %" PRId64
                      " of keys: only equal numbers are supported, of encoder "
                      "and decoder, that divide hidden_size, %" PRId64,
                      heads, groups, m->hidden);
}

static tn_status read_config(tn_moonshine *m) {
    const hf_folder *f = &m->net.folder;
    const tn_json *rope = tn_json_get(f->config, "rope_parameters");
    const char *kind = tn_json_string(tn_json_get(rope, "rope_type"), "default");
    double share;
    if (tn_json_kind_of(rope) != TN_JSON_OBJECT) rope = f->config;
    m->net.folder.prefix = "model.";
    if (!is_moonshine(tn_hf_text(f, "model_type", "")) || strcmp(kind, "default") != 0)
        return tn_hf_fail(f->path, TN_ERR_UNSUPPORTED,
                          "only a model_type of 'moonshine' with a rope_type of 'default' is "
                          "supported");
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

/* Norms have no biases; the operation's own eps is the model's. */
static tn_tensor *norm(net *n, const tn_tensor *x, const char *name) {
    return tn_layer_norm(x, TN_DIMS(tn_size(x, -1)), tn_net_weight(n, name), NULL, NULL);
}

/* x [1, heads, count, head_dim] at positions from `first` on. */
static tn_tensor *rotated(const tn_moonshine *m, const tn_tensor *x, int64_t first) {
    int64_t count = tn_size(x, 2), half = m->rotated / 2;
    tn_rope_options o = TN_ROPE_DEFAULTS;
    o.interleaved = true;
    if (tn_status_of(x) != TN_OK) return tn_contiguous(x); /* the same error */
    float *turns = tn_txt_alloc((size_t)count * 2, (size_t)half * sizeof *turns);
    if (!turns) return tn_failed(TN_ERR_MEMORY, "%s", tn_error());
    for (int64_t i = 0; i < count * half; i++) {
        float angle = (float)(first + i / half) / powf((float)m->base, (float)(2 * (i % half)) / (float)m->rotated);
        turns[i] = cosf(angle);
        turns[count * half + i] = sinf(angle);
    }
    tn_tensor *cosines = tn_from_data(turns, TN_DIMS(count, half), TN_F32);
    tn_tensor *sines = tn_from_data(turns + count * half, TN_DIMS(count, half), TN_F32);
    tn_txt_free(turns);
    return tn_rope(x, cosines, sines, &o);
}

static tn_tensor *projected(tn_moonshine *m, const tn_tensor *x, const char *name) {
    return tn_net_heads(tn_net_linear(&m->net, x, name, false), m->heads);
}

/* Heads [1, heads, n, head_dim] together, times a matrix. */
static tn_tensor *together(tn_moonshine *m, const tn_tensor *x, const char *name) {
    return tn_net_linear(&m->net, tn_flatten(tn_transpose(x, 1, 2), 2, 3), name, false);
}

static tn_tensor *encoder_layer(tn_moonshine *m, tn_tensor *x) {
    net *n = &m->net;
    tn_tensor *y = norm(n, x, "input_layernorm.weight");
    tn_tensor *q = rotated(m, projected(m, y, "self_attn.q_proj"), 0);
    tn_tensor *k = rotated(m, projected(m, y, "self_attn.k_proj"), 0), *v = projected(m, y, "self_attn.v_proj");
    x = tn_add(x, together(m, tn_scaled_dot_product_attention(q, k, v, NULL, NULL), "self_attn.o_proj"));
    y = tn_net_linear(n, norm(n, x, "post_attention_layernorm.weight"), "mlp.fc1", true);
    return tn_add(x, tn_net_linear(n, m->activations[ENCODER](y), "mlp.fc2", true));
}

static tn_tensor *convolved(net *n, const tn_tensor *x, int number, int64_t stride) {
    tn_conv1d_options o = TN_CONV1D_DEFAULTS;
    o.stride = stride;
    tn_net_at(n, "encoder.conv%d.", number);
    return tn_conv1d(x, tn_net_weight(n, "weight"), number > 1 ? tn_net_weight(n, "bias") : NULL, &o);
}

/* Sound [n] → [1, frames, hidden] */
static tn_tensor *record_encoder(tn_moonshine *m, const tn_tensor *sound) {
    net *n = &m->net;
    tn_tensor *x = tn_tanh(convolved(n, tn_reshape(sound, TN_DIMS(1, 1, tn_size(sound, 0))), 1, 64));
    tn_net_at(n, "encoder.groupnorm.");
    x = tn_group_norm(x, 1, tn_net_weight(n, "weight"), tn_net_weight(n, "bias"), NULL);
    x = tn_gelu(convolved(n, x, 2, 3), NULL);
    x = tn_transpose(tn_gelu(convolved(n, x, 3, 2), NULL), 1, 2);
    for (int64_t i = 0; i < m->layers[ENCODER]; i++) {
        tn_net_at(n, "encoder.layers.%" PRId64 ".", i);
        x = encoder_layer(m, x);
    }
    tn_net_at(n, "encoder.");
    return norm(n, x, "layer_norm.weight");
}

/* x [1, 1, hidden], the token at `position`. */
static tn_tensor *decoder_layer(tn_moonshine *m, moonshine_caches *c, tn_tensor *x, const tn_tensor *position,
                                int64_t place) {
    net *n = &m->net;
    int64_t inner;
    tn_tensor *y = norm(n, x, "input_layernorm.weight"), *qkv[3];
    static const char *const names[] = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"};
    for (int i = 0; i < 3; i++) {
        qkv[i] = projected(m, y, names[i]);
        qkv[i] = tn_select(tn_transpose(i < 2 ? rotated(m, qkv[i], place) : qkv[i], 1, 2), 0, 0);
    }
    tn_tensor *own = tn_cached_attention(qkv[0], qkv[1], qkv[2], c->k, c->v, position, m->pages, NULL, NULL);
    tn_cache_append_(c->k, qkv[1], position, m->pages);
    tn_cache_append_(c->v, qkv[2], position, m->pages);
    x = tn_add(x, tn_net_linear(n, tn_reshape(own, TN_DIMS(1, 1, m->hidden)), "self_attn.o_proj", false));
    y = projected(m, norm(n, x, "post_attention_layernorm.weight"), "encoder_attn.q_proj");
    y = tn_scaled_dot_product_attention(y, c->k_heard, c->v_heard, NULL, NULL);
    x = tn_add(x, together(m, y, "encoder_attn.o_proj"));
    y = tn_net_linear(n, norm(n, x, "final_layernorm.weight"), "mlp.fc1", true);
    inner = tn_size(y, 2) / 2;
    y = tn_mul(m->activations[DECODER](tn_narrow(y, 2, inner, inner)), tn_narrow(y, 2, 0, inner));
    return tn_add(x, tn_net_linear(n, y, "mlp.fc2", true));
}

/* The logits behind a token, [1, 1, vocabulary]. */
static tn_tensor *record_token(tn_moonshine *m, int64_t id, int64_t place) {
    net *n = &m->net;
    tn_tensor *position = tn_runtime_scalar_int(place);
    tn_net_at(n, "decoder.");
    tn_tensor *words = tn_net_weight(n, "embed_tokens.weight");
    tn_tensor *x = tn_embedding(tn_from_data(&id, TN_DIMS(1, 1), TN_I64), words);
    for (int64_t i = 0; i < m->layers[DECODER]; i++) {
        tn_net_at(n, "decoder.layers.%" PRId64 ".", i);
        x = decoder_layer(m, &m->caches[i], x, position, place);
    }
    tn_net_at(n, "decoder.");
    x = norm(n, x, "norm.weight");
    tn_net_at(n, "%s", "");
    return tn_linear(x, tn_net_has(n, "proj_out.weight") ? tn_net_weight(n, "proj_out.weight") : words, NULL);
}

/* ---- a window ---------------------------------------------------------------------------------------------------- */

static void free_caches(tn_moonshine *m) {
    for (int64_t i = 0; m->caches && i < m->layers[DECODER]; i++) {
        tn_tensor *const all[] = {m->caches[i].k, m->caches[i].v, m->caches[i].k_heard, m->caches[i].v_heard};
        for (size_t k = 0; k < sizeof all / sizeof *all; k++)
            tn_free(all[k]);
        m->caches[i] = (moonshine_caches){.k = NULL};
    }
}

static tn_status kept(tn_tensor *t, tn_tensor **out) {
    *out = tn_retain(t);
    return tn_eval(out, 1);
}

/* Empty caches, and keys and values of the encoded sound. */
static tn_status begin(tn_moonshine *m, const tn_tensor *sound) {
    free_caches(m);
    TN_SCOPE;
    TN_NO_GRAD;
    tn_tensor *heard;
    tn_status status = kept(record_encoder(m, sound), &heard);
    for (int64_t i = 0; i < m->layers[DECODER] && status == TN_OK; i++) {
        moonshine_caches *c = &m->caches[i];
        tn_tensor *states[2] = {NULL, NULL};
        tn_net_at(&m->net, "decoder.layers.%" PRId64 ".encoder_attn.", i);
        status = kept(tn_contiguous(projected(m, heard, "k_proj")), &c->k_heard);
        if (status == TN_OK) status = kept(tn_contiguous(projected(m, heard, "v_proj")), &c->v_heard);
        if (status != TN_OK) break;
        status = tn_zero_states(TN_DIMS(tn_size(m->pages, 0), m->heads, PAGE, m->hidden / m->heads), TN_F32, states, 2);
        if (status != TN_OK) break;
        c->k = tn_retain(states[0]);
        c->v = tn_retain(states[1]);
    }
    tn_free(heard);
    return status;
}

static tn_status step(tn_moonshine *m, int64_t id, int64_t place, float *logits) {
    TN_SCOPE;
    TN_NO_GRAD;
    return tn_read(record_token(m, id, place), logits, (size_t)m->vocabulary * sizeof *logits);
}

/* The most probable tokens of a window. */
static tn_status decode(tn_moonshine *m, const float *samples, int64_t count, float *logits, tn_ids *ids) {
    int64_t most = (int64_t)((double)count * TOKENS_PER_SECOND / TN_SPEECH_RATE), id = m->start;
    {
        TN_SCOPE;
        TRY(begin(m, tn_from_data(samples, TN_DIMS(count), TN_F32)));
    }
    if (most > m->context) most = m->context;
    for (int64_t place = 0; place + 1 < most; place++) {
        TRY(step(m, id, place, logits));
        id = 0;
        for (int64_t i = 1; i < m->vocabulary; i++)
            if (logits[i] > logits[id]) id = i;
        if (id == m->end) return TN_OK;
        TRY(tn_ids_append(ids, (int32_t)id));
    }
    return TN_OK;
}

static tn_status hear_window(void *ctx, const float *samples, int64_t count, tn_ids *ids, tn_bytes *text) {
    tn_moonshine *m = ctx;
    float *logits = tn_txt_alloc((size_t)m->vocabulary, sizeof *logits);
    if (!logits) return TN_ERR_MEMORY;
    tn_device *before = tn_txt_enter(m->net.device);
    tn_status status = tn_txt_leave(m->net.device, before, decode(m, samples, count, logits, ids));
    tn_txt_free(logits);
    return status == TN_OK ? tn_tokenizer_decode(m->tokenizer, ids->data, ids->count, 0, text) : status;
}

tn_status tn_moonshine_transcribe(tn_moonshine *m, const float *samples, int64_t count, tn_speech_take *take,
                                  void *ctx) {
    if (!m || !samples || count < 1 || !take)
        return tn_backend_fail(TN_ERR_ARGUMENT,
                               "tn_moonshine_transcribe: an argument is NULL, or there are no samples");
    return tn_ctc_windows(samples, count, LEAST, hear_window, m, take, ctx);
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

/* Encodes a moment of silence and a token, so that weights that are missing or do not fit are noticed. */
static tn_status load(tn_moonshine *m) {
    float silence[LEAST] = {0}, *logits = NULL;
    TRY(tn_net_load(&m->net));
    m->caches = tn_txt_zalloc((size_t)m->layers[DECODER], sizeof *m->caches);
    if (!m->caches) return TN_ERR_MEMORY;
    {
        TN_SCOPE;
        TRY(kept(tn_arange(0, (double)((m->context + PAGE - 1) / PAGE), 1, TN_I64), &m->pages));
        TRY(begin(m, tn_from_data(silence, TN_DIMS(LEAST), TN_F32)));
    }
    logits = tn_txt_alloc((size_t)m->vocabulary, sizeof *logits);
    tn_status status = logits ? step(m, m->start, 0, logits) : TN_ERR_MEMORY;
    tn_txt_free(logits);
    if (status != TN_OK) return status;
    TN_SCOPE;
    return tn_net_check(&m->net, m->pages);
}

static tn_status open_moonshine(tn_moonshine *m, const char *folder) {
    TRY(tn_net_open(&m->net, folder, m->net.device));
    TRY(read_config(m));
    TRY(tn_tokenizer_open(folder, &m->tokenizer));
    tn_device *before = tn_txt_enter(m->net.device);
    return tn_txt_leave(m->net.device, before, load(m));
}

tn_status tn_moonshine_open(const char *folder, const tn_speech_options *options, tn_moonshine **out) {
    if (!out) return tn_backend_fail(TN_ERR_ARGUMENT, "tn_moonshine_open: out is NULL");
    *out = NULL;
    if (!folder) return tn_backend_fail(TN_ERR_ARGUMENT, "tn_moonshine_open: the folder is NULL");
    tn_speech_options o = TN_SPEECH_DEFAULTS;
    TRY(tn_options_read(&o, options, "tn_moonshine_open", "tn_speech_options o = TN_SPEECH_DEFAULTS"));
    tn_moonshine *m = tn_txt_zalloc(1, sizeof *m);
    if (!m) return TN_ERR_MEMORY;
    m->net.folder.prefix = "";
    m->net.device = o.device ? o.device : tn_current_device();
    tn_status status = m->net.device ? open_moonshine(m, folder) : TN_ERR_MEMORY;
    if (status != TN_OK) {
        tn_moonshine_close(m);
        return status;
    }
    *out = m;
    return TN_OK;
}

void tn_moonshine_close(tn_moonshine *m) {
    if (!m) return;
    free_caches(m);
    tn_txt_free(m->caches);
    tn_free(m->pages);
    tn_tokenizer_free(m->tokenizer);
    tn_net_close(&m->net);
    tn_txt_free(m);
}
