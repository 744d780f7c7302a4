/* speech.c — a Whisper model: opening, its operations, the encoder of a window, single tokens by a captured plan.
 *
 * The encoder's output is needed only as keys and values of the decoder's cross attention, so these are computed once
 * for a window and kept as states. A token is then a launch of one captured graph, like that of a language model. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "text/speech_model.h"

enum { POSITIONS = MEL_WINDOW_FRAMES / 2, MOST_MELS = 1024, MOST_CONTEXT = 1 << 16 };
static const double EPS = 1e-5; /* of all norms; not in config.json */

/* ---- sizes ------------------------------------------------------------------------------------------------------- */

static tn_status read_sizes(tn_speech *s) {
    const hf_folder *f = &s->folder;
    speech_config *c = &s->config;
    static const char *const layers[] = {"encoder_layers", "decoder_layers"};
    static const char *const heads[] = {"encoder_attention_heads", "decoder_attention_heads"};
    static const char *const inner[] = {"encoder_ffn_dim", "decoder_ffn_dim"};
    const char *type = tn_hf_text(f, "model_type", "");
    if (strcmp(type, "whisper") != 0)
        return tn_hf_fail(f->path, TN_ERR_UNSUPPORTED, "model_type is '%s'; speech recognition supports 'whisper'",
                          tn_txt_shown(type, strlen(type)).text);
    TRY(tn_hf_size(f, "d_model", -1, HF_MOST_WIDTH, &c->hidden));
    TRY(tn_hf_size(f, "num_mel_bins", 80, MOST_MELS, &c->mels));
    TRY(tn_hf_size(f, "vocab_size", -1, INT32_MAX, &c->vocabulary));
    TRY(tn_hf_size(f, "max_source_positions", POSITIONS, MOST_CONTEXT, &c->source_positions));
    TRY(tn_hf_size(f, "max_target_positions", 448, MOST_CONTEXT, &c->context));
    for (int side = 0; side < 2; side++) {
        TRY(tn_hf_size(f, layers[side], -1, HF_MOST_LAYERS, &c->layers[side]));
        TRY(tn_hf_size(f, heads[side], -1, HF_MOST_HEADS, &c->heads[side]));
        TRY(tn_hf_size(f, inner[side], -1, HF_MOST_WIDTH, &c->inner[side]));
        if (c->hidden % c->heads[side] != 0)
            return tn_hf_fail(f->path, TN_ERR_FORMAT, "d_model %" PRId64 " is not a multiple of %s, %" PRId64,
                              c->hidden, heads[side], c->heads[side]);
    }
    if (c->source_positions != POSITIONS)
        return tn_hf_fail(f->path, TN_ERR_UNSUPPORTED, "max_source_positions is %" PRId64 "; supported is %d (30 s)",
                          c->source_positions, POSITIONS);
    if (!tn_json_bool(tn_json_get(f->config, "tie_word_embeddings"), true))
        return tn_hf_fail(f->path, TN_ERR_UNSUPPORTED, "tie_word_embeddings is false, which is not supported");
    return tn_hf_activation(f, "activation_function", "gelu", &c->activation);
}

/* ---- weights ----------------------------------------------------------------------------------------------------- */

static tn_status take_part(tn_speech *s, int side, int64_t layer, int part, hf_linear *out) {
    char stem[HF_NAME_SIZE - 8];
    int64_t hidden = s->config.hidden, inner = s->config.inner[side];
    bool norm = part == SELF_NORM || part == CROSS_NORM || part == FFN_NORM;
    int64_t rows = part == UP ? inner : hidden, columns = norm ? 0 : part == DOWN ? inner : hidden;
    snprintf(stem, sizeof stem, "%s.layers.%" PRId64 ".%s", tn_side_names[side], layer, tn_side_parts[part]);
    bool bias = part != SELF_K && part != CROSS_K;
    return tn_hf_take_linear(&s->folder, stem, (int64_t[]){rows, columns, 0}, false, bias, out);
}

static tn_status take_conv(tn_speech *s, int which, hf_linear *out) {
    char stem[HF_NAME_SIZE - 8];
    int64_t hidden = s->config.hidden, shape[] = {hidden, which ? hidden : s->config.mels, 3, 0};
    snprintf(stem, sizeof stem, "encoder.conv%d", which + 1);
    return tn_hf_take_linear(&s->folder, stem, shape, false, true, out);
}

static tn_status take_side(tn_speech *s, int side) {
    const speech_config *c = &s->config;
    char name[HF_NAME_SIZE - 8];
    int64_t rows = side == ENCODER ? c->source_positions : c->context;
    s->layers[side] = tn_txt_zalloc((size_t)c->layers[side], sizeof *s->layers[side]);
    if (!s->layers[side]) return TN_ERR_MEMORY;
    snprintf(name, sizeof name, "%s.embed_positions.weight", tn_side_names[side]);
    TRY(tn_hf_take(&s->folder, name, (int64_t[]){rows, c->hidden, 0}, false, &s->positions[side]));
    snprintf(name, sizeof name, "%s.layer_norm", tn_side_names[side]);
    TRY(tn_hf_take_linear(&s->folder, name, (int64_t[]){c->hidden, 0}, false, true, &s->norm[side]));
    for (int64_t i = 0; i < c->layers[side]; i++)
        for (int part = 0; part < (side == ENCODER ? CROSS_Q : PARTS); part++)
            if (tn_side_parts[part]) TRY(take_part(s, side, i, part, &s->layers[side][i].part[part]));
    return TN_OK;
}

static tn_status take_weights(tn_speech *s) {
    const speech_config *c = &s->config;
    tn_hf_find_prefix(&s->folder, "model.", "decoder.embed_tokens.weight");
    const int64_t shape[] = {c->vocabulary, c->hidden, 0};
    TRY(tn_hf_take(&s->folder, "decoder.embed_tokens.weight", shape, false, &s->embedding));
    TRY(take_conv(s, 0, &s->conv[0]));
    TRY(take_conv(s, 1, &s->conv[1]));
    TRY(take_side(s, ENCODER));
    return take_side(s, DECODER);
}

/* ---- states ------------------------------------------------------------------------------------------------------ */

static tn_status make_states(tn_speech *s) {
    const speech_config *c = &s->config;
    tn_side_free_graph(&s->token);
    tn_side_free_states(s->layers[DECODER], c->layers[DECODER]);
    return tn_side_make_states(s->layers[DECODER], c->layers[DECODER], c->context, c->heads[DECODER],
                               c->hidden / c->heads[DECODER], c->source_positions);
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static tn_status set_up(tn_speech *s) {
    TRY(take_weights(s));
    s->token.logits = tn_txt_alloc((size_t)s->config.vocabulary, sizeof *s->token.logits);
    if (!s->token.logits) return TN_ERR_MEMORY;
    {
        TN_SCOPE;
        s->pages = tn_retain(tn_arange(0, (double)((s->config.context + PAGE - 1) / PAGE), 1, TN_I64));
    }
    return tn_eval(&s->pages, 1);
}

static tn_status open_speech(void *model, const char *folder, tn_device *device, TN_UNUSED const void *options) {
    tn_speech *s = model;
    s->device = device;
    if (!tn_hf_is_folder(folder))
        return tn_backend_fail(TN_ERR_IO, "'%s' is not a folder; a Whisper model is a Hugging Face folder", folder);
    TRY(tn_hf_open(folder, &s->folder));
    TRY(read_sizes(s));
    TRY(tn_tokenizer_open(folder, &s->tokenizer));
    TRY(tn_speech_read_tokens(s));
    TRY(tn_log_mel_init(&s->front, s->config.mels, false));
    AUTO_DEVICE(device);
    return set_up(s);
}

static void close_speech(void *model) {
    tn_speech *s = model;
    if (!s) return;
    tn_side_free_token(&s->token);
    for (int side = 0; side < 2; side++) {
        tn_side_free_layers(s->layers[side], s->config.layers[side]);
        tn_free(s->positions[side]);
        tn_hf_free_linear(&s->conv[side]);
        tn_hf_free_linear(&s->norm[side]);
    }
    tn_free(s->embedding);
    tn_free(s->pages);
    tn_log_mel_free(&s->front);
    tn_txt_free_each(s->tokens.suppressed, s->tokens.suppressed_first);
    tn_tokenizer_free(s->tokenizer);
    tn_hf_close(&s->folder);
    tn_txt_free(s);
}

void tn_speech_close(tn_speech *s) { close_speech(s); }

tn_status tn_speech_open(const char *folder, const tn_speech_options *options, tn_speech **out) {
    static const hf_kind kind = {"tn_speech_open",  "tn_speech_options o = TN_SPEECH_DEFAULTS",
                                 sizeof(tn_speech), offsetof(tn_speech_options, device),
                                 open_speech,       close_speech};
    return tn_hf_open_model(&kind, folder, options, &(tn_speech_options)TN_SPEECH_DEFAULTS, out);
}

tn_status tn_speech_get_facts(const tn_speech *s, tn_speech_facts *facts) {
    TRY(tn_txt_check_facts("tn_speech_get_facts: facts", s, facts));
    const speech_config *c = &s->config;
    tn_speech_facts full = {.struct_size = sizeof full,
                            .architecture = "whisper",
                            .encoder_layers = c->layers[ENCODER],
                            .decoder_layers = c->layers[DECODER],
                            .hidden = c->hidden,
                            .heads = c->heads[DECODER],
                            .vocabulary = c->vocabulary,
                            .mels = c->mels,
                            .frames = MEL_WINDOW_FRAMES,
                            .context = c->context,
                            .parameters = s->folder.taken,
                            .weights_bytes = s->folder.taken_bytes,
                            .multilingual = c->multilingual};
    return tn_result_write(facts, &full, sizeof full, "tn_speech_get_facts: facts");
}

/* ---- operations -------------------------------------------------------------------------------------------------- */

/* [n, hidden] as [n, heads, head_dim]; and that as [1, heads, n, head_dim]. */
static tn_tensor *heads(const tn_tensor *x, int64_t count) {
    return tn_reshape(x, TN_DIMS(tn_size(x, 0), count, tn_size(x, 1) / count));
}
static tn_tensor *by_head(const tn_tensor *x) { return tn_unsqueeze(tn_transpose(x, 0, 1), 0); }

/* [1, heads, n, head_dim] as [n, hidden]. */
static tn_tensor *joined(const tn_tensor *x) {
    int64_t n = tn_size(x, 2);
    return tn_reshape(tn_transpose(tn_select(x, 0, 0), 0, 1), TN_DIMS(n, tn_size(x, 1) * tn_size(x, 3)));
}

static tn_tensor *feed_forward(const speech_config *c, const side_layer *l, const tn_tensor *x) {
    tn_tensor *up = tn_hf_linear(tn_hf_norm(x, &l->part[FFN_NORM], EPS), &l->part[UP]);
    return tn_add(x, tn_hf_linear(c->activation(up), &l->part[DOWN]));
}

static tn_tensor *encoder_layer(const speech_config *c, const side_layer *l, const tn_tensor *x) {
    tn_tensor *y = tn_hf_norm(x, &l->part[SELF_NORM], EPS), *qkv[3];
    for (int i = 0; i < 3; i++)
        qkv[i] = by_head(heads(tn_hf_linear(y, &l->part[SELF_Q + i]), c->heads[ENCODER]));
    tn_tensor *mixed = joined(tn_scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], NULL, NULL));
    return feed_forward(c, l, tn_add(x, tn_hf_linear(mixed, &l->part[SELF_O])));
}

/* features [1, mels, frames] → [positions, hidden] */
static tn_tensor *record_encoder(const tn_speech *s, const tn_tensor *features) {
    const speech_config *c = &s->config;
    tn_conv1d_options o = TN_CONV1D_DEFAULTS;
    o.padding = 1;
    tn_tensor *x = c->activation(tn_conv1d(features, s->conv[0].weight, s->conv[0].bias, &o));
    o.stride = 2;
    x = c->activation(tn_conv1d(x, s->conv[1].weight, s->conv[1].bias, &o));
    x = tn_add(tn_transpose(tn_select(x, 0, 0), 0, 1), tn_cast(s->positions[ENCODER], TN_F32));
    for (int64_t i = 0; i < c->layers[ENCODER]; i++)
        x = encoder_layer(c, &s->layers[ENCODER][i], x);
    return tn_hf_norm(x, &s->norm[ENCODER], EPS);
}

/* Keys and values of the decoder's cross attention. */
static tn_status record_window(const tn_speech *s, const tn_tensor *features) {
    tn_tensor *x = record_encoder(s, features);
    for (int64_t i = 0; i < s->config.layers[DECODER]; i++) {
        const side_layer *l = &s->layers[DECODER][i];
        tn_copy_(l->state[CROSS_KEYS], by_head(heads(tn_hf_linear(x, &l->part[CROSS_K]), s->config.heads[DECODER])));
        tn_copy_(l->state[CROSS_VALUES], by_head(heads(tn_hf_linear(x, &l->part[CROSS_V]), s->config.heads[DECODER])));
    }
    return tn_eval(NULL, 0);
}

static tn_tensor *decoder_layer(const tn_speech *s, const side_layer *l, const tn_tensor *x,
                                const tn_tensor *position) {
    const speech_config *c = &s->config;
    int64_t count = c->heads[DECODER];
    tn_tensor *y = tn_hf_norm(x, &l->part[SELF_NORM], EPS), *qkv[3];
    for (int i = 0; i < 3; i++)
        qkv[i] = heads(tn_hf_linear(y, &l->part[SELF_Q + i]), count);
    tn_tensor *mixed =
        tn_cached_attention(qkv[0], qkv[1], qkv[2], l->state[KEYS], l->state[VALUES], position, s->pages, NULL, NULL);
    tn_cache_append_(l->state[KEYS], qkv[1], position, s->pages);
    tn_cache_append_(l->state[VALUES], qkv[2], position, s->pages);
    tn_tensor *own = tn_add(x, tn_hf_linear(tn_reshape(mixed, TN_DIMS(tn_size(x, 0), c->hidden)), &l->part[SELF_O]));
    tn_tensor *query =
        by_head(heads(tn_hf_linear(tn_hf_norm(own, &l->part[CROSS_NORM], EPS), &l->part[CROSS_Q]), count));
    tn_tensor *heard =
        joined(tn_scaled_dot_product_attention(query, l->state[CROSS_KEYS], l->state[CROSS_VALUES], NULL, NULL));
    return feed_forward(c, l, tn_add(own, tn_hf_linear(heard, &l->part[CROSS_O])));
}

/* inputs: ids and their places, [n] i64 → logits [n, vocabulary] */
static tn_tensor *record_tokens(void *model, tn_tensor *const *inputs, tn_tensor *position) {
    const tn_speech *s = model;
    const speech_config *c = &s->config;
    tn_tensor *x = tn_cast(tn_embedding(inputs[0], s->embedding), TN_F32);
    x = tn_add(x, tn_cast(tn_embedding(inputs[1], s->positions[DECODER]), TN_F32));
    for (int64_t i = 0; i < c->layers[DECODER]; i++)
        x = decoder_layer(s, &s->layers[DECODER][i], x, position);
    return tn_linear(tn_hf_norm(x, &s->norm[DECODER], EPS), s->embedding, NULL);
}

/* ---- a window ---------------------------------------------------------------------------------------------------- */

int64_t tn_speech_feature_frames(TN_UNUSED const tn_speech *s, int64_t count) {
    return tn_log_mel_frames(count > 0 ? count : 0);
}

tn_status tn_speech_features(const tn_speech *s, const float *samples, int64_t count, float *out) {
    if (!s || !samples || !out || count < 1)
        return tn_backend_fail(TN_ERR_ARGUMENT,
                               "tn_speech_features: a pointer is NULL, or the number of samples is %" PRId64, count);
    for (int64_t i = 0; i < count; i++)
        if (!isfinite(samples[i]))
            return tn_backend_fail(TN_ERR_ARGUMENT, "sample %" PRId64 " is %g; it must be finite", i,
                                   (double)samples[i]);
    return tn_log_mel_run(&s->front, samples, count, out);
}

static tn_status encode(tn_speech *s, const float *features) {
    if (!s->encoded) TRY(make_states(s)); /* after a failure they may be errors */
    TN_SCOPE;
    TN_NO_GRAD;
    return record_window(s, tn_from_data(features, TN_DIMS(1, s->config.mels, MEL_WINDOW_FRAMES), TN_F32));
}

tn_status tn_speech_encode(tn_speech *s, const float *features) {
    if (!s || !features) return tn_backend_fail(TN_ERR_ARGUMENT, "tn_speech_encode: an argument is NULL");
    s->position = 0;
    AUTO_DEVICE(s->device);
    tn_status status = encode(s, features);
    s->encoded = status == TN_OK;
    return status;
}

/* ---- single tokens ----------------------------------------------------------------------------------------------- */

static tn_status step(tn_speech *s, int64_t id, const float **out) {
    TN_SCOPE;
    tn_tensor *inputs[] = {tn_from_data(&id, TN_DIMS(1), TN_I64), tn_from_data(&s->position, TN_DIMS(1), TN_I64)};
    return tn_side_step(&s->token, record_tokens, s, inputs, 2, s->position, s->config.vocabulary, out);
}

tn_status tn_speech_step(tn_speech *s, int32_t id, const float **logits) {
    if (!s) return tn_backend_fail(TN_ERR_ARGUMENT, "tn_speech_step: the model is NULL");
    if (!s->encoded) return tn_backend_fail(TN_ERR_STATE, "tn_speech_step: no window was encoded (tn_speech_encode)");
    if (id < 0 || id >= s->config.vocabulary)
        return tn_backend_fail(TN_ERR_ARGUMENT, "token %" PRId32 " is outside the vocabulary of %" PRId64 " tokens", id,
                               s->config.vocabulary);
    if (s->position == s->config.context)
        return tn_backend_fail(TN_ERR_ARGUMENT, "the sequence is full: the model supports %" PRId64 " tokens",
                               s->config.context);
    const float *found = NULL;
    AUTO_DEVICE(s->device);
    tn_status status = step(s, id, &found);
    s->encoded = status == TN_OK; /* otherwise the states may be lost */
    if (status != TN_OK) return status;
    s->position++;
    if (logits) *logits = found;
    return TN_OK;
}
