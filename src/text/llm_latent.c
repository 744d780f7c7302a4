/* llm_latent.c — multi-head latent attention: queries, and keys with values, are made of short vectors.
 *
 * The cache holds keys and values of every head, as of other models, so that one attention serves them all; the short
 * vectors would take a tenth of it. Source: DeepSeek-AI 2024, "DeepSeek-V2", section 2.1. */
#include "text/llm_model.h"

/* Of the norms of the short vectors, whatever config.json says: a constant of the models' own implementation. */
static const double LATENT_EPS = 1e-6;

static tn_tensor *joined(tn_tensor *x) { return tn_reshape(x, TN_DIMS(tn_size(x, 0), tn_size(x, 1) * tn_size(x, 2))); }

void tn_llm_project_latent(const llm_config *c, const llm_weights *w, int64_t layer, const tn_tensor *x,
                           tn_tensor *out[3]) {
    tn_tensor *const *weight = w->layers[layer].weight;
    int64_t n = tn_size(x, 0), rope = 2 * c->size[SIZE_HALF], plain = c->size[SIZE_HEAD] - rope;
    int64_t rank = c->size[SIZE_KV_RANK], values = c->size[SIZE_MIXED] / c->attention.heads;
    tn_tensor *q = weight[SLOT_Q] ? tn_llm_product(w, layer, SLOT_Q, x, NULL) : NULL;
    if (!q) {
        q = tn_llm_rms_norm(tn_llm_product(w, layer, SLOT_Q_DOWN, x, NULL), weight[SLOT_Q_DOWN_NORM], LATENT_EPS);
        q = tn_llm_product(w, layer, SLOT_Q_UP, q, NULL);
    }
    q = tn_reshape(q, TN_DIMS(n, c->attention.heads, plain + rope));
    tn_tensor *down = tn_llm_product(w, layer, SLOT_KV_DOWN, x, NULL);
    tn_tensor *latent = tn_llm_rms_norm(tn_narrow(down, 1, 0, rank), weight[SLOT_KV_DOWN_NORM], LATENT_EPS);
    tn_tensor *turned =
        tn_expand(tn_unsqueeze(tn_narrow(down, 1, rank, rope), 1), TN_DIMS(n, c->attention.heads, rope));
    tn_tensor *kv =
        tn_reshape(tn_llm_product(w, layer, SLOT_KV_UP, latent, NULL), TN_DIMS(n, c->attention.heads, plain + values));
    tn_tensor *k = tn_narrow(kv, 2, 0, plain), *v = tn_narrow(kv, 2, plain, values);
    out[0] = joined(tn_cat((tn_tensor *[]){tn_narrow(q, 2, plain, rope), tn_narrow(q, 2, 0, plain)}, 2, 2));
    out[1] = joined(tn_cat((tn_tensor *[]){turned, k}, 2, 2));
    out[2] = joined(tn_pad(v, (int64_t[]){0, plain + rope - values}, 2, 0));
}

tn_tensor *tn_llm_latent_values(const llm_config *c, const tn_tensor *mixed) {
    return joined(tn_contiguous(tn_narrow(mixed, 2, 0, c->size[SIZE_MIXED] / c->attention.heads)));
}
