/* speech.c — a Whisper model: opening, its operations, the encoder of a window, single tokens by a captured plan.
 *
 * The encoder's output is needed only as keys and values of the decoder's cross attention, so these are computed once
 * for a window and kept as states. A token is then a launch of one captured graph, like that of a language model. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "text/speech_model.h"

enum {
    ENCODER,
    DECODER,
    PAGE = 64, /* tokens of a page of the cache: the attention's contract */
    POSITIONS = MEL_WINDOW_FRAMES / 2,
    MOST_MELS = 1024,
    MOST_CONTEXT = 1 << 16
};
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

static const char *const part_names[SPEECH_PARTS] = {
    [SELF_Q] = "self_attn.q_proj",
    [SELF_K] = "self_attn.k_proj",
    [SELF_V] = "self_attn.v_proj",
    [SELF_O] = "self_attn.out_proj",
    [SELF_NORM] = "self_attn_layer_norm",
    [FFN_UP] = "fc1",
    [FFN_DOWN] = "fc2",
    [FFN_NORM] = "final_layer_norm",
    [CROSS_Q] = "encoder_attn.q_proj",
    [CROSS_K] = "encoder_attn.k_proj",
    [CROSS_V] = "encoder_attn.v_proj",
    [CROSS_O] = "encoder_attn.out_proj",
    [CROSS_NORM] = "encoder_attn_layer_norm",
};
static const char *const side_names[] = {"encoder", "decoder"};

static tn_status check_shape(const tn_speech *s, const tn_safetensors_info *t, const int64_t *shape, int rank) {
    bool fits = t->rank == rank;
    for (int i = 0; i < rank && fits; i++)
        fits = t->shape[i] == shape[i];
    if (fits && (t->dtype == TN_F32 || t->dtype == TN_F16 || t->dtype == TN_BF16)) return TN_OK;
    if (fits)
        return tn_backend_fail(TN_ERR_UNSUPPORTED,
                               "'%s': tensor '%.100s' has type %s; weights must be F32, F16 or BF16", s->folder.path,
                               t->name, t->dtype_name);
    return tn_backend_fail(TN_ERR_FORMAT,
                           "'%s': tensor '%.100s' has %d dimensions, [%" PRId64 ", %" PRId64 ", %" PRId64
                           "]; according to config.json it must have %d, [%" PRId64 ", %" PRId64 ", %" PRId64 "]",
                           s->folder.path, t->name, t->rank, t->rank > 0 ? t->shape[0] : 1,
                           t->rank > 1 ? t->shape[1] : 1, t->rank > 2 ? t->shape[2] : 1, rank, shape[0],
                           rank > 1 ? shape[1] : 1, rank > 2 ? shape[2] : 1);
}

/* Matrices keep the type of the file; vectors and filters become f32, which they are computed in. */
static tn_status take(tn_speech *s, const char *name, const int64_t *shape, int rank, tn_tensor **out) {
    tn_safetensors_info info = {.struct_size = sizeof info};
    if (!tn_hf_find(&s->folder, name, &info))
        return tn_backend_fail(TN_ERR_FORMAT, "'%s' has no tensor '%s'", s->folder.path, name);
    TRY(check_shape(s, &info, shape, rank));
    {
        TN_SCOPE;
        tn_tensor *t = tn_hf_weights_tensor(s->folder.weights, info.name);
        *out = tn_retain(rank != 2 && info.dtype != TN_F32 ? tn_cast(t, TN_F32) : t);
    }
    TRY(tn_eval(out, 1));
    s->config.parameters += tn_numel(*out);
    s->config.weights_bytes += (int64_t)info.bytes;
    return TN_OK;
}

/* rows 0: a norm. */
static tn_status take_linear(tn_speech *s, const char *stem, int64_t rows, int64_t columns, bool bias,
                             speech_linear *out) {
    char name[HF_NAME_SIZE];
    snprintf(name, sizeof name, "%s.weight", stem);
    TRY(rows ? take(s, name, (int64_t[]){rows, columns}, 2, &out->weight) : take(s, name, &columns, 1, &out->weight));
    snprintf(name, sizeof name, "%s.bias", stem);
    return bias ? take(s, name, rows ? &rows : &columns, 1, &out->bias) : TN_OK;
}

static tn_status take_part(tn_speech *s, int side, int64_t layer, int part, speech_linear *out) {
    char stem[HF_NAME_SIZE - 8];
    int64_t hidden = s->config.hidden, inner = s->config.inner[side];
    bool norm = part == SELF_NORM || part == CROSS_NORM || part == FFN_NORM;
    int64_t rows = norm ? 0 : part == FFN_UP ? inner : hidden;
    snprintf(stem, sizeof stem, "%s.layers.%" PRId64 ".%s", side_names[side], layer, part_names[part]);
    return take_linear(s, stem, rows, part == FFN_DOWN ? inner : hidden, part != SELF_K && part != CROSS_K, out);
}

static tn_status take_conv(tn_speech *s, int which, speech_linear *out) {
    char name[HF_NAME_SIZE];
    int64_t hidden = s->config.hidden, shape[] = {hidden, which ? hidden : s->config.mels, 3};
    snprintf(name, sizeof name, "encoder.conv%d.weight", which + 1);
    TRY(take(s, name, shape, 3, &out->weight));
    snprintf(name, sizeof name, "encoder.conv%d.bias", which + 1);
    return take(s, name, &hidden, 1, &out->bias);
}

static tn_status take_side(tn_speech *s, int side) {
    const speech_config *c = &s->config;
    char name[HF_NAME_SIZE];
    int64_t rows = side == ENCODER ? c->source_positions : c->context;
    s->layers[side] = tn_txt_zalloc((size_t)c->layers[side], sizeof *s->layers[side]);
    if (!s->layers[side]) return TN_ERR_MEMORY;
    snprintf(name, sizeof name, "%s.embed_positions.weight", side_names[side]);
    TRY(take(s, name, (int64_t[]){rows, c->hidden}, 2, &s->positions[side]));
    snprintf(name, sizeof name, "%s.layer_norm", side_names[side]);
    TRY(take_linear(s, name, 0, c->hidden, true, &s->norm[side]));
    for (int64_t i = 0; i < c->layers[side]; i++)
        for (int part = 0; part < (side == ENCODER ? ENCODER_PARTS : SPEECH_PARTS); part++)
            TRY(take_part(s, side, i, part, &s->layers[side][i].part[part]));
    return TN_OK;
}

static tn_status take_weights(tn_speech *s) {
    const speech_config *c = &s->config;
    tn_hf_find_prefix(&s->folder, "model.", "decoder.embed_tokens.weight");
    TRY(take(s, "decoder.embed_tokens.weight", (int64_t[]){c->vocabulary, c->hidden}, 2, &s->embedding));
    TRY(take_conv(s, 0, &s->conv[0]));
    TRY(take_conv(s, 1, &s->conv[1]));
    TRY(take_side(s, ENCODER));
    return take_side(s, DECODER);
}

/* ---- states ------------------------------------------------------------------------------------------------------ */

static int64_t pages_of(const speech_config *c) { return (c->context + PAGE - 1) / PAGE; }

static void free_states(tn_speech *s) {
    for (int64_t i = 0; s->layers[DECODER] && i < s->config.layers[DECODER]; i++) {
        speech_layer *l = &s->layers[DECODER][i];
        tn_tensor **const all[] = {&l->k_cache, &l->v_cache, &l->k_cross, &l->v_cross};
        for (size_t k = 0; k < sizeof all / sizeof *all; k++) {
            tn_free(*all[k]);
            *all[k] = NULL;
        }
    }
    tn_graph_free(s->token); /* it writes to them */
    s->token = NULL;
}

static tn_status make_states(tn_speech *s) {
    const speech_config *c = &s->config;
    int64_t width = c->hidden / c->heads[DECODER];
    int count = 2 * (int)c->layers[DECODER];
    tn_tensor **all = tn_txt_zalloc((size_t)count, 2 * sizeof(tn_tensor *));
    if (!all) return TN_ERR_MEMORY;
    tn_status status;
    {
        TN_SCOPE;
        status = tn_zero_states(TN_DIMS(pages_of(c), c->heads[DECODER], PAGE, width), TN_F32, all, count);
        if (status == TN_OK)
            status =
                tn_zero_states(TN_DIMS(1, c->heads[DECODER], c->source_positions, width), TN_F32, all + count, count);
        for (int64_t i = 0; i < c->layers[DECODER] && status == TN_OK; i++) {
            speech_layer *l = &s->layers[DECODER][i];
            l->k_cache = tn_retain(all[2 * i]);
            l->v_cache = tn_retain(all[2 * i + 1]);
            l->k_cross = tn_retain(all[count + 2 * i]);
            l->v_cross = tn_retain(all[count + 2 * i + 1]);
        }
    }
    tn_txt_free(all);
    return status;
}

/* A write that could not be recorded leaves an error in place of a state: then all are made anew. */
static tn_status renew_states(tn_speech *s) {
    bool lost = false;
    for (int64_t i = 0; i < s->config.layers[DECODER]; i++) {
        const speech_layer *l = &s->layers[DECODER][i];
        const tn_tensor *const all[] = {l->k_cache, l->v_cache, l->k_cross, l->v_cross};
        for (size_t k = 0; k < sizeof all / sizeof *all; k++)
            lost |= !all[k] || tn_status_of(all[k]) != TN_OK;
    }
    if (!lost) return TN_OK;
    free_states(s);
    return make_states(s);
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static tn_status set_up(tn_speech *s) {
    TRY(take_weights(s));
    s->logits = tn_txt_alloc((size_t)s->config.vocabulary, sizeof *s->logits);
    if (!s->logits) return TN_ERR_MEMORY;
    {
        TN_SCOPE;
        s->pages = tn_retain(tn_arange(0, (double)pages_of(&s->config), 1, TN_I64));
    }
    return tn_eval(&s->pages, 1);
}

static tn_status open_speech(tn_speech *s, const char *folder) {
    if (!tn_hf_is_folder(folder))
        return tn_backend_fail(TN_ERR_IO, "'%s' is not a folder; a Whisper model is a Hugging Face folder", folder);
    TRY(tn_hf_open(folder, &s->folder));
    TRY(read_sizes(s));
    TRY(tn_tokenizer_open(folder, &s->tokenizer));
    TRY(tn_speech_read_tokens(s));
    TRY(tn_log_mel_init(&s->front, s->config.mels, false));
    tn_device *before = tn_txt_enter(s->device);
    return tn_txt_leave(s->device, before, set_up(s));
}

tn_status tn_speech_open(const char *folder, const tn_speech_options *options, tn_speech **out) {
    if (!out) return tn_backend_fail(TN_ERR_ARGUMENT, "tn_speech_open: out is NULL");
    *out = NULL;
    if (!folder) return tn_backend_fail(TN_ERR_ARGUMENT, "tn_speech_open: the folder is NULL");
    tn_speech_options o = TN_SPEECH_DEFAULTS;
    TRY(tn_options_read(&o, options, "tn_speech_open", "tn_speech_options o = TN_SPEECH_DEFAULTS"));
    tn_speech *s = tn_txt_zalloc(1, sizeof *s);
    if (!s) return TN_ERR_MEMORY;
    s->folder.prefix = "";
    s->device = o.device ? o.device : tn_current_device();
    tn_status status = s->device ? open_speech(s, folder) : TN_ERR_MEMORY;
    if (status != TN_OK) {
        tn_speech_close(s);
        return status;
    }
    *out = s;
    return TN_OK;
}

static void free_linear(const speech_linear *l) {
    tn_free(l->weight);
    tn_free(l->bias);
}

void tn_speech_close(tn_speech *s) {
    if (!s) return;
    tn_free(s->shown);
    free_states(s);
    for (int side = 0; side < 2; side++) {
        for (int64_t i = 0; s->layers[side] && i < s->config.layers[side]; i++)
            for (int part = 0; part < SPEECH_PARTS; part++)
                free_linear(&s->layers[side][i].part[part]);
        tn_txt_free(s->layers[side]);
        tn_free(s->positions[side]);
        free_linear(&s->conv[side]);
        free_linear(&s->norm[side]);
    }
    tn_free(s->embedding);
    tn_free(s->pages);
    tn_txt_free(s->logits);
    tn_log_mel_free(&s->front);
    tn_txt_free(s->tokens.suppressed);
    tn_txt_free(s->tokens.suppressed_first);
    tn_tokenizer_free(s->tokenizer);
    tn_hf_close(&s->folder);
    tn_txt_free(s);
}

tn_status tn_speech_get_facts(const tn_speech *s, tn_speech_facts *facts) {
    if (!s || !facts || facts->struct_size < sizeof *facts)
        return tn_backend_fail(TN_ERR_ARGUMENT,
                               "tn_speech_get_facts: an argument is NULL or facts->struct_size is not set");
    const speech_config *c = &s->config;
    *facts = (tn_speech_facts){.struct_size = sizeof *facts,
                               .architecture = "whisper",
                               .encoder_layers = c->layers[ENCODER],
                               .decoder_layers = c->layers[DECODER],
                               .hidden = c->hidden,
                               .heads = c->heads[DECODER],
                               .vocabulary = c->vocabulary,
                               .mels = c->mels,
                               .frames = MEL_WINDOW_FRAMES,
                               .context = c->context,
                               .parameters = c->parameters,
                               .weights_bytes = c->weights_bytes,
                               .multilingual = c->multilingual};
    return TN_OK;
}

/* ---- operations -------------------------------------------------------------------------------------------------- */

static tn_tensor *linear(const tn_tensor *x, const speech_linear *l) { return tn_linear(x, l->weight, l->bias); }

static tn_tensor *norm(const tn_tensor *x, const speech_linear *l) {
    tn_layer_norm_options o = TN_LAYER_NORM_DEFAULTS;
    o.eps = EPS;
    return tn_layer_norm(x, TN_DIMS(tn_size(x, -1)), l->weight, l->bias, &o);
}

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

static tn_tensor *feed_forward(const speech_config *c, const speech_layer *l, const tn_tensor *x) {
    tn_tensor *up = linear(norm(x, &l->part[FFN_NORM]), &l->part[FFN_UP]);
    return tn_add(x, linear(c->activation(up), &l->part[FFN_DOWN]));
}

static tn_tensor *encoder_layer(const speech_config *c, const speech_layer *l, const tn_tensor *x) {
    tn_tensor *y = norm(x, &l->part[SELF_NORM]), *qkv[3];
    for (int i = 0; i < 3; i++)
        qkv[i] = by_head(heads(linear(y, &l->part[SELF_Q + i]), c->heads[ENCODER]));
    tn_tensor *mixed = joined(tn_scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], NULL, NULL));
    return feed_forward(c, l, tn_add(x, linear(mixed, &l->part[SELF_O])));
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
    return norm(x, &s->norm[ENCODER]);
}

/* Keys and values of the decoder's cross attention. */
static tn_status record_window(const tn_speech *s, const tn_tensor *features) {
    tn_tensor *x = record_encoder(s, features);
    for (int64_t i = 0; i < s->config.layers[DECODER]; i++) {
        const speech_layer *l = &s->layers[DECODER][i];
        tn_copy_(l->k_cross, by_head(heads(linear(x, &l->part[CROSS_K]), s->config.heads[DECODER])));
        tn_copy_(l->v_cross, by_head(heads(linear(x, &l->part[CROSS_V]), s->config.heads[DECODER])));
    }
    return tn_eval(NULL, 0);
}

static tn_tensor *decoder_layer(const tn_speech *s, const speech_layer *l, const tn_tensor *x,
                                const tn_tensor *position) {
    const speech_config *c = &s->config;
    int64_t count = c->heads[DECODER];
    tn_tensor *y = norm(x, &l->part[SELF_NORM]), *qkv[3];
    for (int i = 0; i < 3; i++)
        qkv[i] = heads(linear(y, &l->part[SELF_Q + i]), count);
    tn_tensor *mixed =
        tn_cached_attention(qkv[0], qkv[1], qkv[2], l->k_cache, l->v_cache, position, s->pages, NULL, NULL);
    tn_cache_append_(l->k_cache, qkv[1], position, s->pages);
    tn_cache_append_(l->v_cache, qkv[2], position, s->pages);
    tn_tensor *own = tn_add(x, linear(tn_reshape(mixed, TN_DIMS(tn_size(x, 0), c->hidden)), &l->part[SELF_O]));
    tn_tensor *query = by_head(heads(linear(norm(own, &l->part[CROSS_NORM]), &l->part[CROSS_Q]), count));
    tn_tensor *heard = joined(tn_scaled_dot_product_attention(query, l->k_cross, l->v_cross, NULL, NULL));
    return feed_forward(c, l, tn_add(own, linear(heard, &l->part[CROSS_O])));
}

/* ids, places [n] i64 → logits [n, vocabulary] */
static tn_tensor *record_tokens(const tn_speech *s, const tn_tensor *ids, const tn_tensor *places,
                                const tn_tensor *position) {
    const speech_config *c = &s->config;
    tn_tensor *x = tn_cast(tn_embedding(ids, s->embedding), TN_F32);
    x = tn_add(x, tn_cast(tn_embedding(places, s->positions[DECODER]), TN_F32));
    for (int64_t i = 0; i < c->layers[DECODER]; i++)
        x = decoder_layer(s, &s->layers[DECODER][i], x, position);
    return tn_linear(norm(x, &s->norm[DECODER]), s->embedding, NULL);
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
    TRY(renew_states(s));
    TN_SCOPE;
    TN_NO_GRAD;
    return record_window(s, tn_from_data(features, TN_DIMS(1, s->config.mels, MEL_WINDOW_FRAMES), TN_F32));
}

tn_status tn_speech_encode(tn_speech *s, const float *features) {
    if (!s || !features) return tn_backend_fail(TN_ERR_ARGUMENT, "tn_speech_encode: an argument is NULL");
    s->position = 0;
    tn_device *before = tn_txt_enter(s->device);
    tn_status status = tn_txt_leave(s->device, before, encode(s, features));
    s->encoded = status == TN_OK;
    return status;
}

/* ---- single tokens ----------------------------------------------------------------------------------------------- */

/* Where the host computes they stay where they are. */
static tn_status show(tn_speech *s, tn_tensor *logits, const float **out) {
    const void *at = NULL;
    TRY(tn_peek(logits, &at));
    *out = at ? at : s->logits;
    if (!at) return tn_read(logits, s->logits, (size_t)s->config.vocabulary * sizeof *s->logits);
    s->shown = tn_retain(logits);
    return TN_OK;
}

static tn_status capture(tn_speech *s, int64_t id, const float **out) {
    TRY(tn_capture_begin());
    TN_SCOPE;
    TN_NO_GRAD;
    tn_tensor *ids = tn_from_data(&id, TN_DIMS(1), TN_I64);
    tn_tensor *places = tn_from_data(&s->position, TN_DIMS(1), TN_I64);
    tn_tensor *logits = record_tokens(s, ids, places, tn_runtime_scalar_int(s->position));
    TRY(tn_capture_end((tn_tensor *[]){ids, places}, 2, &logits, 1, &s->token));
    return show(s, logits, out);
}

static tn_status launch(tn_speech *s, int64_t id, const float **out) {
    TRY(tn_graph_set_runtime_scalar(s->token, 0, (double)s->position));
    TN_SCOPE;
    tn_tensor *logits = NULL;
    tn_tensor *inputs[] = {tn_from_data(&id, TN_DIMS(1), TN_I64), tn_from_data(&s->position, TN_DIMS(1), TN_I64)};
    TRY(tn_graph_launch(s->token, inputs, &logits));
    return show(s, logits, out);
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
    tn_free(s->shown); /* its memory is for the next ones */
    s->shown = NULL;
    tn_device *before = tn_txt_enter(s->device);
    tn_status status = tn_txt_leave(s->device, before, s->token ? launch(s, id, &found) : capture(s, id, &found));
    s->encoded = status == TN_OK; /* otherwise the states may be lost */
    if (status != TN_OK) return status;
    s->position++;
    if (logits) *logits = found;
    return TN_OK;
}
