/* llm_record.c — a decoder's operations, recorded: embedding, layers of attention and feed-forward, output.
 *
 * One recording serves prompts (any number of tokens: the extent is symbolic) and single tokens alike. Keys and values
 * are appended to the caches within it; attention reads the older ones from there and the new ones from where they were
 * made. Handles of everything between are given up at the end of the scope, so the planner need not keep any of it. */
#include "text/llm_model.h"

/* Rotary angles of the new tokens, made once and shared by all layers: [n, 1, half]. */
typedef struct rotation {
    tn_tensor *cosine, *sine;
} rotation;

static rotation make_rotation(const llm_weights *w, const llm_inputs *in) {
    tn_tensor *angle = tn_mul(in->positions, w->rope_frequencies);
    return (rotation){tn_cos(angle), tn_sin(angle)};
}

static tn_tensor *norm(const llm_config *c, const tn_tensor *x, const tn_tensor *weight) {
    tn_rms_norm_options o = {.struct_size = sizeof o, .eps = c->rms_eps};
    return tn_rms_norm(x, TN_DIMS(tn_size(x, -1)), weight, &o);
}

/* [n, heads · head_dim] as [n, heads, head_dim]; normalised by head where the family does so, and turned. */
static tn_tensor *heads(const llm_config *c, const tn_tensor *x, const tn_tensor *weight, const rotation *turn) {
    tn_tensor *h = tn_reshape(x, TN_DIMS(tn_size(x, 0), tn_size(x, 1) / c->size[SIZE_HEAD], c->size[SIZE_HEAD]));
    if (weight) h = norm(c, h, weight);
    if (!turn) return h;
    tn_rope_options o = {.struct_size = sizeof o, .interleaved = c->family->interleaved_rope};
    return tn_rope(h, turn->cosine, turn->sine, &o);
}

static tn_tensor *attention(const llm_config *c, const llm_weights *w, const llm_layer *l, const llm_inputs *in,
                            const rotation *turn, const tn_tensor *x) {
    tn_tensor *const *weight = l->weight;
    tn_tensor *q = heads(c, tn_linear(x, weight[SLOT_Q], weight[SLOT_Q_BIAS]), weight[SLOT_Q_NORM], turn);
    tn_tensor *k = heads(c, tn_linear(x, weight[SLOT_K], weight[SLOT_K_BIAS]), weight[SLOT_K_NORM], turn);
    tn_tensor *v = heads(c, tn_linear(x, weight[SLOT_V], weight[SLOT_V_BIAS]), NULL, NULL);
    tn_cached_attention_options o = {.struct_size = sizeof o, .window = c->window};
    tn_tensor *mixed = tn_cached_attention(q, k, v, l->k_cache, l->v_cache, in->position, w->pages, &o);
    tn_cache_append_(l->k_cache, k, in->position, w->pages);
    tn_cache_append_(l->v_cache, v, in->position, w->pages);
    tn_tensor *joined = tn_reshape(mixed, TN_DIMS(tn_size(mixed, 0), c->size[SIZE_QUERIES]));
    return tn_linear(joined, weight[SLOT_O], weight[SLOT_O_BIAS]);
}

static tn_tensor *feed_forward(const llm_layer *l, const tn_tensor *x) {
    tn_tensor *gate = tn_silu(tn_linear(x, l->weight[SLOT_GATE], NULL));
    return tn_linear(tn_mul(gate, tn_linear(x, l->weight[SLOT_UP], NULL)), l->weight[SLOT_DOWN], NULL);
}

static tn_tensor *layers(const llm_config *c, const llm_weights *w, const llm_inputs *in, llm_rows rows) {
    rotation turn = make_rotation(w, in);
    tn_tensor *x = tn_cast(in->rows, TN_F32);
    if (tn_dtype_of(x) != TN_F32) x = tn_cast(x, TN_F32); /* rows of a table in half precision */
    for (int64_t i = 0; i < c->layers; i++) {
        const llm_layer *l = &w->layers[i];
        x = tn_add(x, attention(c, w, l, in, &turn, norm(c, x, l->weight[SLOT_ATTENTION_NORM])));
        /* What follows the last layer's attention is needed where logits are wanted, and nowhere else. */
        if (i == c->layers - 1 && rows == LLM_LAST_ROW) x = tn_index_select(x, 0, in->last);
        x = tn_add(x, feed_forward(l, norm(c, x, l->weight[SLOT_FFN_NORM])));
    }
    return x;
}

tn_tensor *tn_llm_record(const llm_config *c, const llm_weights *w, const llm_inputs *in, llm_rows rows) {
    tn_tensor *logits = NULL;
    TN_SCOPE {
        tn_tensor *x = layers(c, w, in, rows);
        if (rows != LLM_NO_ROWS) {
            const tn_tensor *output = c->tied ? w->head[SLOT_EMBEDDING] : w->head[SLOT_OUTPUT];
            logits = tn_retain(tn_linear(norm(c, x, w->head[SLOT_OUTPUT_NORM]), output, NULL));
        }
    }
    return logits;
}
