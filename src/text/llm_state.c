/* llm_state.c — a sequence in a file: its tokens, keys and values.
 *
 * The file is a safetensors file, so what it claims is checked by that reader; what belongs to the model is checked
 * here. Only the pages that hold tokens are written. A fingerprint of the weights tells models of equal sizes apart. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "text/llm_model.h"

static const char FORMAT[] = "trunnion-llm-sequence-1";
enum { SAMPLED_BYTES = 64, FINGERPRINT = 17, STATE_NAME = 32 };

/* ---- which model ------------------------------------------------------------------------------------------------- */

/* FNV-1a. */
static uint64_t mix_bytes(uint64_t hash, const void *bytes, size_t size) {
    const unsigned char *b = bytes;
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ b[i]) * 0x100000001b3u;
    return hash;
}

/* Names, types and shapes of all weights, and the first bytes of each. */
static tn_status find_fingerprint(const tn_llm *m, char out[FINGERPRINT]) {
    uint64_t hash = 0xcbf29ce484222325u;
    const llm_source *s = &m->file->source;
    for (int64_t i = 0; i < tn_llm_source_count(s); i++) {
        llm_tensor t = {.struct_size = sizeof t};
        TRY(tn_llm_source_at(s, i, &t));
        hash = mix_bytes(hash, t.name, strlen(t.name) + 1);
        hash = mix_bytes(hash, t.dtype_name, strlen(t.dtype_name) + 1);
        hash = mix_bytes(hash, t.shape, (size_t)t.rank * sizeof *t.shape);
        if (t.data) hash = mix_bytes(hash, t.data, t.bytes < SAMPLED_BYTES ? (size_t)t.bytes : SAMPLED_BYTES);
    }
    snprintf(out, FINGERPRINT, "%016" PRIx64, hash);
    return TN_OK;
}

static int64_t pages_of(int64_t tokens) { return (tokens + LLM_PAGE - 1) / LLM_PAGE; }

/* Caches are numbered: those of layer 0, of layer 1 … Keys that are latent vectors have a name of their own, because
 * keys of heads, as older files have them, can have the same shape. */
static void cache_name(const tn_llm *m, char out[STATE_NAME], int64_t i) {
    static const char *const names[LLM_CACHES] = {"keys", "values", "conv", "state"};
    int64_t which = i % LLM_CACHES;
    bool latent = which == CACHE_KEYS && m->config.family->attention.latent;
    snprintf(out, STATE_NAME, "%" PRId64 ".%s", i / LLM_CACHES, latent ? "latents" : names[which]);
}

/* NULL: the layer has no such cache. */
static tn_tensor *cache_of(const tn_llm *m, int64_t i) {
    return m->weights.layers[i / LLM_CACHES].cache[i % LLM_CACHES];
}

/* What the sequence has of a cache: pages, or all of a state. */
static tn_tensor *own_part(const tn_llm *m, int64_t i, int64_t pages) {
    tn_tensor *cache = cache_of(m, i);
    return i % LLM_CACHES > CACHE_VALUES ? cache : tn_narrow(cache, 0, tn_llm_first_page(m), pages);
}

/* ---- save -------------------------------------------------------------------------------------------------------- */

static tn_status write_state(const tn_llm *m, const char *path, tn_named_tensor *list, char (*names)[STATE_NAME]) {
    char model[FINGERPRINT];
    int64_t caches = LLM_CACHES * m->config.layers, pages = pages_of(m->position);
    int count = 0;
    TRY(find_fingerprint(m, model));
    TN_SCOPE;
    tn_metadata facts[] = {{"format", FORMAT}, {"model", model}};
    list[count++] = (tn_named_tensor){"tokens", tn_from_data(m->tokens, TN_DIMS(m->position), TN_I32)};
    for (int64_t i = 0; i < caches; i++) {
        if (!cache_of(m, i) || (m->stale && i % LLM_CACHES > CACHE_VALUES)) continue;
        cache_name(m, names[i], i);
        list[count++] = (tn_named_tensor){names[i], tn_contiguous(own_part(m, i, pages))};
    }
    return tn_safetensors_save(path, list, count, facts, 2);
}

tn_status tn_llm_save(const tn_llm *m, const char *path) {
    if (!m || !path) return tn_backend_fail(TN_ERR_ARGUMENT, "tn_llm_save: the model or the path is NULL");
    if (m->position == 0) return tn_backend_fail(TN_ERR_STATE, "tn_llm_save: the sequence has no tokens");
    size_t caches = LLM_CACHES * (size_t)m->config.layers;
    AUTO_TXT_FREE tn_named_tensor *list = tn_txt_zalloc(caches + 1, sizeof *list);
    AUTO_TXT_FREE char(*names)[STATE_NAME] = tn_txt_zalloc(caches, sizeof *names);
    if (!list || !names) return TN_ERR_MEMORY;
    AUTO_DEVICE(m->device);
    return write_state(m, path, list, names);
}

/* ---- load -------------------------------------------------------------------------------------------------------- */

static tn_status check_word(const tn_safetensors *f, const char *path, const char *key, const char *expected,
                            const char *advice) {
    const char *found = tn_safetensors_metadata(f, key);
    if (found && strcmp(found, expected) == 0) return TN_OK;
    return tn_backend_fail(TN_ERR_FORMAT, "'%s': its %s is \"%.40s\", not \"%s\"; %s", path, key, found ? found : "",
                           expected, advice);
}

/* The tokens of the file, which the model has to know and to have room for. */
static tn_status read_tokens(const tn_llm *m, const tn_safetensors *f, const char *path, int32_t *out, int64_t *count) {
    tn_safetensors_info t = {.struct_size = sizeof t};
    TRY(tn_safetensors_find(f, "tokens", &t));
    if (t.dtype != TN_I32 || t.rank != 1 || t.shape[0] < 1)
        return tn_backend_fail(TN_ERR_FORMAT, "'%s': \"tokens\" is not a list of I32", path);
    *count = t.shape[0];
    if (*count > m->config.context)
        return tn_backend_fail(TN_ERR_ARGUMENT,
                               "'%s' has %" PRId64 " tokens; the context has room for %" PRId64
                               ": set a longer one in tn_llm_options (--context of the command)",
                               path, *count, m->config.context);
    memcpy(out, t.data, (size_t)*count * sizeof *out);
    for (int64_t i = 0; i < *count; i++)
        if (out[i] < 0 || out[i] >= m->config.size[SIZE_VOCABULARY])
            return tn_backend_fail(TN_ERR_FORMAT, "'%s': token %" PRId64 " is %" PRId32 "; the vocabulary has %" PRId64,
                                   path, i, out[i], m->config.size[SIZE_VOCABULARY]);
    return TN_OK;
}

static tn_status check_cache(const tn_llm *m, const tn_safetensors *f, const char *path, int64_t i, int64_t pages) {
    char name[STATE_NAME];
    tn_safetensors_info t = {.struct_size = sizeof t};
    const tn_tensor *cache = cache_of(m, i);
    if (!cache) return TN_OK;
    cache_name(m, name, i);
    bool found = tn_safetensors_find(f, name, &t) == TN_OK, paged = i % LLM_CACHES <= CACHE_VALUES;
    if (!found && !paged) return TN_OK; /* it was saved after a rewind: the states are computed anew */
    TRY(tn_safetensors_find(f, name, &t));
    if (t.dtype != tn_dtype_of(cache))
        return tn_backend_fail(TN_ERR_DTYPE, "'%s': the cache is %s; open the model with that type of cache", path,
                               t.dtype == TN_U8 ? "q8_0" : t.dtype_name);
    bool fits = t.rank == tn_rank(cache);
    for (int d = 0; d < t.rank && fits; d++)
        fits = t.shape[d] == (paged && d == 0 ? pages : tn_size(cache, d));
    if (fits) return TN_OK;
    return tn_backend_fail(TN_ERR_FORMAT, "'%s': the shape of '%s' does not match the model", path, name);
}

/* *stale: becomes true if the file lacks a state. */
static tn_status fill_caches(const tn_llm *m, const tn_safetensors *f, int64_t pages, bool *stale) {
    int64_t caches = LLM_CACHES * m->config.layers;
    for (int64_t i = 0; i < caches; i++) {
        char name[STATE_NAME];
        tn_safetensors_info t = {.struct_size = sizeof t};
        if (!cache_of(m, i)) continue;
        cache_name(m, name, i);
        if (tn_safetensors_find(f, name, &t) != TN_OK) {
            *stale = true;
            continue;
        }
        TN_SCOPE;
        AUTO_TXT_TENSOR tn_tensor *saved = tn_retain(tn_safetensors_tensor(f, name));
        tn_tensor *cache = cache_of(m, i);
        TRY(tn_status_of(tn_copy_(own_part(m, i, pages), saved)));
        TRY(tn_eval(&cache, 1));
    }
    return TN_OK;
}

static tn_status read_state(tn_llm *m, const tn_safetensors *f, const char *path, int32_t *tokens) {
    char model[FINGERPRINT];
    int64_t count = 0;
    TRY(check_word(f, path, "format", FORMAT, "tn_llm_save writes such files"));
    TRY(find_fingerprint(m, model));
    TRY(check_word(f, path, "model", model, "the sequence belongs to another model"));
    TRY(read_tokens(m, f, path, tokens, &count));
    for (int64_t i = 0; i < LLM_CACHES * m->config.layers; i++)
        TRY(check_cache(m, f, path, i, pages_of(count)));
    tn_llm_drop_draft(m);
    m->position = 0; /* until the caches are whole */
    m->stale = m->config.recurrent.layers > 0;
    bool stale = false;
    TRY(fill_caches(m, f, pages_of(count), &stale));
    m->stale = stale;
    memcpy(m->tokens, tokens, (size_t)count * sizeof *tokens);
    m->position = count;
    return TN_OK;
}

tn_status tn_llm_load(tn_llm *m, const char *path) {
    tn_safetensors *f = NULL;
    if (!m || !path) return tn_backend_fail(TN_ERR_ARGUMENT, "tn_llm_load: the model or the path is NULL");
    AUTO_TXT_FREE int32_t *tokens = tn_txt_alloc((size_t)m->config.context, sizeof *tokens);
    if (!tokens) return TN_ERR_MEMORY;
    TRY(tn_safetensors_open(path, &f));
    AUTO_DEVICE(m->device);
    tn_status status = read_state(m, f, path, tokens);
    tn_safetensors_close(f);
    return status;
}
