/* estimate.c — how much memory a decoder-only language model needs, from its sizes alone.
 *
 * Counts what a Llama-like model holds: embedding and output head, per layer four attention projections, three of the
 * feed-forward part and two norms; a key and a value for every token, layer and key-value head; the widest values that
 * live at once while a chunk of tokens passes; and what the program itself takes. Everything is computed in double,
 * which is exact up to 2^53 bytes, so that sizes that make no sense overflow nothing. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "trunnion/model.h"

enum {
    FEEDFORWARD_MATRICES = 3, /* gate, up, down */
    F32_BYTES = 4,
    CACHE_PAGE = 64, /* tokens: the cache grows by whole pages */

    /* Saved for the backward pass, a token and layer: two norms' inputs and results, q, attention's result; gate, up
     * and their product. */
    SAVED_HIDDEN = 6,
    SAVED_INTERMEDIATE = 3,
    SAVED_KV = 2,
    SAVED_LOGITS = 3, /* logits, their exponentials, their gradient */

    /* Measured: what a generation has resident beyond weights, cache and activations: the libraries, the plans of a
     * prompt and of a token, and blocks kept for reuse; for each token its text, its rank and its places in tables of
     * names; and of the weights the part that their blocks leave empty in large pages, 1 / EMPTY_SHARE. */
    RUNTIME_BYTES = 16 << 20,
    TOKEN_BYTES = 140,
    EMPTY_SHARE = 50
};

typedef struct parts {
    double weights, cache, activations, gradients, optimizer, runtime, parameters;
} parts;

static tn_status check_sizes(const tn_model_sizes *s) {
    const struct {
        const char *name;
        int64_t value;
    } rows[] = {{"hidden", s->hidden}, {"intermediate", s->intermediate},
                {"layers", s->layers}, {"vocabulary", s->vocabulary},
                {"heads", s->heads},   {"sequence", s->sequence}};
    for (size_t i = 0; i < TN_COUNT(rows); i++)
        if (rows[i].value <= 0)
            return tn_fail(TN_ERR_ARGUMENT, "memory estimate: %s is %lld; it must be positive", rows[i].name,
                           (long long)rows[i].value);
    bool whole = s->head_dim > 0 || s->hidden % s->heads == 0;
    if (s->kv_heads < 0 || s->kv_heads > s->heads || !whole)
        return tn_fail(
            TN_ERR_ARGUMENT,
            "memory estimate: %lld heads and %lld key-value heads are incompatible with a hidden size of %lld",
            (long long)s->heads, (long long)s->kv_heads, (long long)s->hidden);
    if (s->head_dim < 0 || s->chunk < 0 || s->weights_bytes < 0 || s->parameters < 0)
        return tn_fail(TN_ERR_ARGUMENT, "memory estimate: head_dim, chunk, weights_bytes or parameters is negative");
    if (s->chunk == 0) return tn_fail(TN_ERR_ARGUMENT, "memory estimate: chunk is 0; it must be positive");
    if ((!(s->bytes_per_weight > 0) && !s->weights_bytes) || !(s->bytes_per_cache > 0))
        return tn_fail(TN_ERR_ARGUMENT,
                       "memory estimate: bytes_per_weight is %g and bytes_per_cache %g; both must be positive",
                       s->bytes_per_weight, s->bytes_per_cache);
    return TN_OK;
}

static double head_dim(const tn_model_sizes *s) {
    return s->head_dim ? (double)s->head_dim : (double)s->hidden / (double)s->heads;
}

static double q_width(const tn_model_sizes *s) { return head_dim(s) * (double)s->heads; }
static double kv_width(const tn_model_sizes *s) { return head_dim(s) * (double)(s->kv_heads ? s->kv_heads : s->heads); }

static double count_parameters(const tn_model_sizes *s) {
    if (s->parameters > 0) return (double)s->parameters;
    double hidden = (double)s->hidden, intermediate = (double)s->intermediate;
    double attention = 2 * hidden * q_width(s) + 2 * hidden * kv_width(s);
    double layer = attention + FEEDFORWARD_MATRICES * hidden * intermediate + 2 * hidden;
    double embeddings = (s->tied_embeddings ? 1 : 2) * (double)s->vocabulary * hidden;
    return (double)s->layers * layer + embeddings + hidden;
}

static void count_model(const tn_model_sizes *s, parts *p) {
    p->parameters = count_parameters(s);
    p->weights = s->weights_bytes ? (double)s->weights_bytes : ceil(p->parameters * s->bytes_per_weight);
    p->runtime = ceil(RUNTIME_BYTES + (double)TOKEN_BYTES * (double)s->vocabulary + p->weights / EMPTY_SHARE);
}

/* The widest point of a layer: in attention the residual, its norm's result, q, k, v and attention's result; in the
 * feed-forward part the residual, its norm's result, gate and the product with up. Beside it the tables of rotary
 * positions, and the operand of a quantised product, a byte an element with a scale for 32. */
static double inference_activations(const tn_model_sizes *s) {
    double tokens = (double)tn_min64(s->chunk, s->sequence);
    double hidden = (double)s->hidden, intermediate = (double)s->intermediate;
    double attention = 2 * hidden + 2 * q_width(s) + 2 * kv_width(s);
    double feedforward = 2 * hidden + 2 * intermediate;
    double widest = attention > feedforward ? attention : feedforward;
    double operand = 1.125 * (intermediate > hidden ? intermediate : hidden);
    return tokens * (F32_BYTES * (widest + head_dim(s)) + operand) + F32_BYTES * (double)s->vocabulary;
}

static tn_status put_estimate(const parts *p, tn_memory_estimate *out) {
    double total = p->weights + p->cache + p->activations + p->gradients + p->optimizer + p->runtime;
    if (total >= 0x1p63 || p->parameters >= 0x1p63)
        return tn_fail(TN_ERR_ARGUMENT, "memory estimate: the model would need more than 2^63 bytes");
    tn_memory_estimate full = {.weights_bytes = (int64_t)p->weights,
                               .cache_bytes = (int64_t)p->cache,
                               .activation_bytes = (int64_t)p->activations,
                               .gradient_bytes = (int64_t)p->gradients,
                               .optimizer_bytes = (int64_t)p->optimizer,
                               .runtime_bytes = (int64_t)p->runtime,
                               .parameters = (int64_t)p->parameters};
    full.total_bytes = full.weights_bytes + full.cache_bytes + full.activation_bytes + full.gradient_bytes +
                       full.optimizer_bytes + full.runtime_bytes;
    return tn_result_write(out, &full, sizeof full, "memory estimate: out");
}

static tn_status read_sizes_estimate(const tn_model_sizes *given, const char *function, tn_model_sizes *s) {
    *s = (tn_model_sizes)TN_MODEL_SIZES_DEFAULTS;
    return tn_options_read(s, given, function, "tn_model_sizes s = TN_MODEL_SIZES_DEFAULTS");
}

static tn_status read_arguments(const tn_model_sizes *given, const tn_memory_estimate *out, tn_model_sizes *s) {
    TRY(tn_need(given, "memory estimate: the sizes"));
    TRY(tn_result_check(out, "memory estimate: out"));
    TRY(read_sizes_estimate(given, "memory estimate", s));
    return check_sizes(s);
}

tn_status tn_estimate_inference_memory(const tn_model_sizes *given, tn_memory_estimate *out) {
    tn_model_sizes read, *sizes = &read;
    TRY(read_arguments(given, out, sizes));
    parts p = {0};
    count_model(sizes, &p);
    double rows = ceil((double)sizes->sequence / CACHE_PAGE) * CACHE_PAGE;
    p.cache = ceil(2 * (double)sizes->layers * rows * kv_width(sizes) * sizes->bytes_per_cache);
    p.activations = ceil(inference_activations(sizes));
    return put_estimate(&p, out);
}

tn_status tn_estimate_training_memory(const tn_model_sizes *given, int64_t batch, int states, tn_memory_estimate *out) {
    tn_model_sizes read, *sizes = &read;
    TRY(read_arguments(given, out, sizes));
    if (batch <= 0 || states < 0)
        return tn_fail(
            TN_ERR_ARGUMENT,
            "memory estimate: batch is %lld (must be at least 1) and states per weight %d (must be at least 0)",
            (long long)batch, states);
    parts p = {0};
    count_model(sizes, &p);
    p.gradients = F32_BYTES * p.parameters;
    p.optimizer = F32_BYTES * p.parameters * states;
    double saved = SAVED_HIDDEN * (double)sizes->hidden + SAVED_INTERMEDIATE * (double)sizes->intermediate +
                   SAVED_KV * kv_width(sizes);
    double token = (double)sizes->layers * saved + SAVED_LOGITS * (double)sizes->vocabulary;
    p.activations = F32_BYTES * token * (double)batch * (double)sizes->sequence;
    return put_estimate(&p, out);
}

/* ---- GGUF -------------------------------------------------------------------------------------------------------- */

/* An integer under "ARCHITECTURE.name"; `otherwise` when it is absent and otherwise is not -1. */
static tn_status get_size(const tn_gguf *file, const char *architecture, const char *name, int64_t otherwise,
                          int64_t *out) {
    char key[160];
    snprintf(key, sizeof key, "%s.%s", architecture, name);
    if (otherwise != -1 && !tn_gguf_get(file, key)) {
        *out = otherwise;
        return TN_OK;
    }
    return tn_gguf_get_int(file, key, out);
}

static tn_status get_weights(const tn_gguf *file, tn_model_sizes *out) {
    tn_gguf_info t = {.struct_size = sizeof t};
    out->tied_embeddings = true;
    out->weights_bytes = 0;
    for (int64_t i = 0; i < tn_gguf_count(file); i++) {
        TRY(tn_gguf_at(file, i, &t));
        out->weights_bytes += t.bytes; /* the file holds them all, so the sum cannot overflow */
        if (!strcmp(t.name, "output.weight")) out->tied_embeddings = false;
    }
    return TN_OK;
}

tn_status tn_gguf_model_sizes(const tn_gguf *file, tn_model_sizes *out) {
    tn_model_sizes s = TN_MODEL_SIZES_DEFAULTS;
    if (!file || !out) return tn_fail(TN_ERR_ARGUMENT, "tn_gguf_model_sizes: an argument is NULL");
    TRY(read_sizes_estimate(out, "tn_gguf_model_sizes", &s));
    s = (tn_model_sizes)TN_MODEL_SIZES_DEFAULTS;
    const char *text;
    int64_t length;
    TRY(tn_gguf_get_string(file, "general.architecture", &text, &length));
    char name[64];
    if (length <= 0 || length >= (int64_t)sizeof name)
        return tn_fail(TN_ERR_FORMAT, "%s: general.architecture has a length of %lld", tn_gguf_path(file),
                       (long long)length);
    memcpy(name, text, (size_t)length);
    name[length] = 0;

    TRY(get_size(file, name, "embedding_length", -1, &s.hidden));
    TRY(get_size(file, name, "feed_forward_length", -1, &s.intermediate));
    TRY(get_size(file, name, "block_count", -1, &s.layers));
    TRY(get_size(file, name, "attention.head_count", -1, &s.heads));
    TRY(get_size(file, name, "attention.head_count_kv", s.heads, &s.kv_heads));
    TRY(get_size(file, name, "attention.key_length", 0, &s.head_dim));
    TRY(get_size(file, name, "context_length", -1, &s.sequence));
    tn_gguf_info embedding = {.struct_size = sizeof embedding};
    TRY(tn_gguf_find(file, "token_embd.weight", &embedding));
    s.vocabulary = embedding.rank == 2 ? embedding.shape[0] : 0;
    TRY(get_weights(file, &s));
    TRY(check_sizes(&s));
    s.bytes_per_weight = (double)s.weights_bytes / count_parameters(&s);
    tn_options_write(out, &s);
    return TN_OK;
}

/* ---- folders ----------------------------------------------------------------------------------------------------- */

/* A size of config.json under the first of its names that is there; `otherwise` when it is absent or null and otherwise
 * is not -1. names: separated by blanks. */
static tn_status get_member(const tn_json *config, const char *names, int64_t otherwise, int64_t *out) {
    const tn_json *v = NULL;
    char name[48];
    for (const char *at = names; *at && tn_json_kind_of(v) == TN_JSON_NULL; at += at[0] == ' ') {
        size_t length = strcspn(at, " ");
        snprintf(name, sizeof name, "%.*s", (int)length, at);
        v = tn_json_get(config, name);
        at += length;
    }
    *out = tn_json_kind_of(v) == TN_JSON_NULL ? otherwise : tn_json_int(v, -1);
    return *out >= 0 ? TN_OK
                     : tn_fail(TN_ERR_FORMAT, "config.json: '%.*s' is missing or not an integer",
                               (int)strcspn(names, " "), names);
}

static tn_status read_config(const tn_json *config, tn_model_sizes *s) {
    TRY(get_member(config, "hidden_size n_embd d_model", -1, &s->hidden));
    TRY(get_member(config, "intermediate_size n_inner ffn_hidden_size ffn_dim",
                   s->hidden < INT64_MAX / 4 ? 4 * s->hidden : -1, &s->intermediate));
    TRY(get_member(config, "num_hidden_layers n_layer num_layers", -1, &s->layers));
    TRY(get_member(config, "num_attention_heads n_head num_heads", -1, &s->heads));
    bool one = tn_json_bool(tn_json_get(config, "multi_query"), false) &&
               !tn_json_bool(tn_json_get(config, "new_decoder_architecture"), false);
    TRY(get_member(config, "num_key_value_heads num_kv_heads", s->heads, &s->kv_heads));
    if (one) s->kv_heads = 1; /* Falcon, StarCoder */
    TRY(get_member(config, "head_dim", 0, &s->head_dim));
    TRY(get_member(config, "max_position_embeddings n_positions", one ? 2048 : -1, &s->sequence));
    return get_member(config, "vocab_size", -1, &s->vocabulary);
}

/* Without weights, the parts of a mixture are unknown. */
static tn_status refuse_mixtures(const tn_json *config) {
    static const char *const keys[] = {"num_experts", "num_local_experts", "n_routed_experts"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (tn_json_int(tn_json_get(config, keys[i]), 0) > 1)
            return tn_fail(
                TN_ERR_UNSUPPORTED,
                "config.json: '%s' is %lld; the memory of a mixture of experts is estimated from its weights, "
                "not from config.json alone",
                keys[i], (long long)tn_json_int(tn_json_get(config, keys[i]), 0));
    return TN_OK;
}

static tn_status read_folder_weights(const char *folder, tn_model_sizes *s) {
    tn_safetensors *file;
    bool encoder = false; /* BERT and its relatives: no cache, no output head */
    TRY(tn_safetensors_open(folder, &file));
    s->tied_embeddings = true;
    for (int i = 0; i < tn_safetensors_count(file); i++) {
        tn_safetensors_info t = {.struct_size = sizeof t};
        (void)tn_safetensors_at(file, i, &t);
        s->weights_bytes += t.bytes; /* the files hold them all, so the sum cannot overflow */
        if (strstr(t.name, "lm_head.weight") || !strcmp(t.name, "embed_out.weight")) s->tied_embeddings = false;
        encoder = encoder || strstr(t.name, "embeddings.word_embeddings.weight");
    }
    tn_safetensors_close(file);
    if (!encoder) return TN_OK;
    return tn_fail(TN_ERR_UNSUPPORTED, "this model is an encoder; memory can only be estimated for language models");
}

/* folder: NULL: config.json alone. */
static tn_status read_sizes(const tn_json *root, const char *folder, tn_model_sizes *s) {
    const tn_json *text = tn_json_get(root, "text_config"), *config = text ? text : root;
    TRY(read_config(config, s));
    if (folder) return read_folder_weights(folder, s);
    TRY(refuse_mixtures(config));
    const tn_json *tied = tn_json_get(config, "tie_word_embeddings");
    s->tied_embeddings = tn_json_bool(tied ? tied : tn_json_get(root, "tie_word_embeddings"), false);
    return TN_OK;
}

static tn_status read_folder(const char *path, const char *folder, const char *config, tn_model_sizes *out) {
    tn_json_doc *doc;
    tn_model_sizes s = TN_MODEL_SIZES_DEFAULTS;
    TRY(tn_json_open(config, &doc));
    tn_status status = read_sizes(tn_json_root(doc), folder, &s);
    tn_json_free(doc);
    s.bytes_per_weight = F32_BYTES;
    if (status == TN_OK) status = check_sizes(&s);
    if (status != TN_OK) return tn_fail_prefix(status, "'%s'", path);
    if (s.weights_bytes > 0) s.bytes_per_weight = (double)s.weights_bytes / count_parameters(&s);
    tn_options_write(out, &s);
    return TN_OK;
}

static bool is_in_folder(const char *folder, const char *name) {
    tn_str path = {0};
    tn_str_add(&path, "%s/%s", folder, name);
    bool is = !path.failed && access(path.text, R_OK) == 0;
    tn_str_free(&path);
    return is;
}

static bool is_json(const char *path) {
    size_t length = strlen(path);
    return length > 5 && !strcmp(path + length - 5, ".json");
}

tn_status tn_read_model_sizes(const char *path, tn_model_sizes *out) {
    tn_model_sizes s;
    if (!path || !out) return tn_fail(TN_ERR_ARGUMENT, "tn_read_model_sizes: an argument is NULL");
    TRY(read_sizes_estimate(out, "tn_read_model_sizes", &s));
    tn_gguf *file = NULL;
    if (!tn_is_folder(path) && is_json(path)) return read_folder(path, NULL, path, out);
    if (!tn_is_folder(path)) {
        TRY(tn_gguf_open(path, &file));
        tn_status status = tn_gguf_model_sizes(file, out);
        tn_gguf_close(file);
        return status;
    }
    AUTO_STR tn_str config = {0};
    tn_str_add(&config, "%s/config.json", path);
    bool weights = is_in_folder(path, "model.safetensors") || is_in_folder(path, "model.safetensors.index.json");
    return config.failed ? TN_ERR_MEMORY : read_folder(path, weights ? path : NULL, config.text, out);
}
