/* llm_altup.c — several residual streams; a layer computes one of them (Gemma 3n).
 *
 * Before a layer each stream is predicted as a mixture of all streams, with coefficients made of the active one. After
 * it all are corrected by how far the layer's result is from the predicted active stream. Source: Baykal et al. 2023,
 * "Alternating Updates for Efficient Transformers", as transformers computes Gemma 3n. */
#include <math.h>

#include "text/llm_model.h"

/* x with the root mean square of `like` in each row. */
static tn_tensor *as_large(tn_tensor *x, const tn_tensor *like) {
    static const double LEAST = 1e-5;
    tn_tensor *wanted = tn_sqrt(tn_mean(tn_mul(like, like), (int64_t[]){1}, 1, true));
    tn_tensor *found = tn_mean(tn_mul(x, x), (int64_t[]){1}, 1, true);
    return tn_div(tn_mul(x, wanted), tn_sqrt(tn_clamp(found, LEAST, INFINITY)));
}

void tn_llm_begin_streams(const llm_config *c, const llm_weights *w, tn_tensor *x, tn_tensor **streams) {
    streams[0] = x;
    for (int64_t i = 1; i < c->size[SIZE_STREAMS]; i++)
        streams[i] = as_large(tn_linear(x, tn_select(w->head[SLOT_STREAMS_IN], 0, i - 1), NULL), x);
}

tn_tensor *tn_llm_end_streams(const llm_config *c, const llm_weights *w, tn_tensor *const *streams) {
    tn_tensor *sum = streams[0];
    for (int64_t i = 1; i < c->size[SIZE_STREAMS]; i++)
        sum = tn_add(sum,
                     as_large(tn_linear(streams[i], tn_select(w->head[SLOT_STREAMS_OUT], 0, i - 1), NULL), streams[0]));
    return tn_div_scalar(sum, (double)c->size[SIZE_STREAMS]);
}

/* What coefficients are made of: x [n, hidden] as [n, streams]. */
static tn_tensor *route(const llm_config *c, const llm_weights *w, int64_t layer, const tn_tensor *x) {
    tn_tensor *normed = tn_hf_rms_norm(x, w->layers[layer].weight[SLOT_STREAM_ROUTER_NORM], c->eps);
    normed = tn_mul_scalar(normed, 1 / (double)c->size[SIZE_HIDDEN]);
    return tn_tanh(tn_llm_product(w, layer, SLOT_STREAM_ROUTER, normed, NULL));
}

tn_tensor *tn_llm_predict_streams(const llm_config *c, const llm_weights *w, int64_t layer, tn_tensor **streams) {
    int64_t count = c->size[SIZE_STREAMS];
    tn_tensor *all =
        tn_llm_product(w, layer, SLOT_STREAM_PREDICT, route(c, w, layer, streams[c->streams.active]), NULL);
    tn_tensor *predicted[LLM_MOST_STREAMS];
    for (int64_t to = 0; to < count; to++) {
        predicted[to] = streams[to];
        for (int64_t from = 0; from < count; from++)
            predicted[to] = tn_add(predicted[to], tn_mul(streams[from], tn_narrow(all, 1, to * count + from, 1)));
    }
    for (int64_t i = 0; i < count; i++)
        streams[i] = predicted[i];
    return streams[c->streams.active];
}

void tn_llm_correct_streams(const llm_config *c, const llm_weights *w, int64_t layer, tn_tensor *made,
                            tn_tensor **streams) {
    tn_tensor *by = tn_add_scalar(tn_llm_product(w, layer, SLOT_STREAM_CORRECT, route(c, w, layer, made), NULL), 1);
    tn_tensor *change = tn_sub(made, streams[c->streams.active]);
    for (int64_t i = 0; i < c->size[SIZE_STREAMS]; i++)
        streams[i] = tn_add(streams[i], tn_mul(change, tn_narrow(by, 1, i, 1)));
}

tn_tensor *tn_llm_sparse_gates(const llm_config *c, const tn_tensor *gates) {
    tn_tensor *mean = tn_mean(gates, (int64_t[]){1}, 1, true), *away = tn_sub(gates, mean);
    tn_tensor *deviation = tn_sqrt(tn_mean(tn_mul(away, away), (int64_t[]){1}, 1, true));
    return tn_relu(tn_sub(gates, tn_add(mean, tn_mul_scalar(deviation, c->streams.cutoff))));
}

tn_tensor *tn_llm_add_laurel(const llm_config *c, const llm_weights *w, int64_t layer, const tn_tensor *x,
                             const tn_tensor *sum) {
    tn_tensor *beside =
        tn_llm_product(w, layer, SLOT_LAUREL_UP, tn_llm_product(w, layer, SLOT_LAUREL_DOWN, x, NULL), NULL);
    beside = tn_add(x, tn_hf_rms_norm(beside, w->layers[layer].weight[SLOT_LAUREL_NORM], c->eps));
    return tn_mul_scalar(tn_add(sum, beside), sqrt(0.5));
}
