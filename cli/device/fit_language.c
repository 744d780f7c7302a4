/* fit_language.c — `trunnion fit`: the sizes of a model that the text library opens. */
#include "cli/device/fit.h"
#include "trunnion/llm.h"

static tn_llm_cache cache_of(tn_dtype t) {
    return t == TN_F32    ? TN_LLM_CACHE_F32
           : t == TN_BF16 ? TN_LLM_CACHE_BF16
           : t == TN_Q8_0 ? TN_LLM_CACHE_Q8_0
                          : TN_LLM_CACHE_F16;
}

bool fit_inspect(const char *path, int64_t context, tn_dtype cache, tn_model_sizes *s) {
    tn_llm_options o = TN_LLM_DEFAULTS;
    tn_llm_facts f = {.struct_size = sizeof f};
    o.context = context;
    o.cache = cache_of(cache);
    if (tn_llm_inspect_path(path, &o, &f) != TN_OK) return false;
    *s = (tn_model_sizes)TN_MODEL_SIZES_DEFAULTS;
    s->hidden = f.hidden;
    s->intermediate = f.intermediate;
    s->layers = f.layers;
    s->vocabulary = f.vocabulary;
    s->heads = f.heads;
    s->kv_heads = f.kv_heads;
    s->head_dim = f.head_dim;
    s->sequence = f.context;
    s->weights_bytes = f.weights_bytes;
    s->parameters = f.parameters;
    s->tied_embeddings = f.tied_embeddings;
    double numbers = 2 * (double)f.layers * (double)f.kv_heads * (double)f.head_dim * (double)f.context;
    s->bytes_per_cache = (double)f.cache_bytes / numbers;
    return true;
}
