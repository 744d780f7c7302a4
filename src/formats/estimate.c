/* estimate.c — how much memory a decoder-only language model needs, from its sizes alone.
 *
 * Counts what a Llama-like model holds: embedding and output head, per layer four attention projections, three of the feed-
 * forward part and two norms; a key and a value for every token, layer and key-value head; and the widest values that live
 * at once while one token passes. */
#include <math.h>

#include "base/base.h"
#include "trunnion/model.h"

enum {
    FEEDFORWARD_MATRICES = 3, /* gate, up, down */
    LIVE_HIDDEN = 4,          /* residual, normalised, attention's result, its projection */
    LIVE_INTERMEDIATE = 2,    /* gate and up */
    ACTIVATION_BYTES = 4      /* f32 */
};

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
    if (s->kv_heads < 0 || s->kv_heads > s->heads || s->hidden % s->heads != 0)
        return tn_fail(TN_ERR_ARGUMENT,
                       "memory estimate: %lld heads with %lld key-value heads do not fit a hidden size of %lld",
                       (long long)s->heads, (long long)s->kv_heads, (long long)s->hidden);
    if (!(s->bytes_per_weight > 0) || s->bytes_per_cache < 0)
        return tn_fail(TN_ERR_ARGUMENT, "memory estimate: bytes_per_weight is %g; it must be positive",
                       s->bytes_per_weight);
    return TN_OK;
}

tn_status tn_estimate_inference_memory(const tn_model_sizes *sizes, tn_memory_estimate *out) {
    if (!sizes || !out || sizes->struct_size < sizeof *sizes || out->struct_size < sizeof *out)
        return tn_fail(TN_ERR_ARGUMENT, "memory estimate: an argument is NULL or its struct_size is not set");
    TRY(check_sizes(sizes));
    /* In double: exact up to 2^53 bytes, and sizes that make no sense overflow nothing. */
    double hidden = (double)sizes->hidden, intermediate = (double)sizes->intermediate, layers = (double)sizes->layers;
    double vocabulary = (double)sizes->vocabulary, heads = (double)sizes->heads, sequence = (double)sizes->sequence;
    double kv_width = hidden / heads * (double)(sizes->kv_heads ? sizes->kv_heads : sizes->heads);

    double attention = 2 * hidden * hidden + 2 * hidden * kv_width;
    double layer = attention + FEEDFORWARD_MATRICES * hidden * intermediate + 2 * hidden;
    double embeddings = (sizes->tied_embeddings ? 1 : 2) * vocabulary * hidden;
    double weights = ceil((layers * layer + embeddings + hidden) * sizes->bytes_per_weight);
    double cache = ceil(2 * layers * sequence * kv_width * (sizes->bytes_per_cache > 0 ? sizes->bytes_per_cache : 2));
    double live =
        LIVE_HIDDEN * hidden + LIVE_INTERMEDIATE * intermediate + 2 * kv_width + heads * sequence + vocabulary;
    double activations = ACTIVATION_BYTES * live;
    if (weights + cache + activations >= 0x1p63)
        return tn_fail(TN_ERR_ARGUMENT, "memory estimate: the model would need more than 2^63 bytes");
    out->weights_bytes = (int64_t)weights;
    out->cache_bytes = (int64_t)cache;
    out->activation_bytes = (int64_t)activations;
    out->total_bytes = out->weights_bytes + out->cache_bytes + out->activation_bytes;
    return TN_OK;
}
