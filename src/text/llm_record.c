/* llm_record.c — a decoder's operations, recorded: embedding, layers of attention and feed-forward, output.
 *
 * One recording serves prompts (any number of tokens: the extent is symbolic) and single tokens alike. Keys and values
 * are appended to the caches within it; attention reads the older ones from there and the new ones from where they were
 * made; a recording that is to become an ONNX model has no caches. Handles of everything between are given up at the
 * end of the scope, so the planner need not keep any of it. */
#include "text/llm_model.h"

/* Rotary angles of the new tokens, made once and shared by all layers: [n, 1, half]. */
typedef struct rotation {
    tn_tensor *cosine, *sine;
} rotation;

static rotation make_rotation(const llm_config *c, const llm_weights *w, const llm_inputs *in) {
    if (!w->rope_frequencies) return (rotation){NULL, NULL};
    tn_tensor *angle = tn_mul(in->positions, w->rope_frequencies);
    rotation r = {tn_cos(angle), tn_sin(angle)};
    if (c->rope.amplitude == 1) return r;
    return (rotation){tn_mul_scalar(r.cosine, c->rope.amplitude), tn_mul_scalar(r.sine, c->rope.amplitude)};
}

static tn_tensor *norm(const llm_config *c, const tn_tensor *x, const tn_tensor *weight, const tn_tensor *bias) {
    tn_rms_norm_options rms = {.struct_size = sizeof rms, .eps = c->eps};
    tn_layer_norm_options layer = {.struct_size = sizeof layer, .eps = c->eps};
    return c->family->layer_norm ? tn_layer_norm(x, TN_DIMS(tn_size(x, -1)), weight, bias, &layer)
                                 : tn_rms_norm(x, TN_DIMS(tn_size(x, -1)), weight, &rms);
}

/* [n, heads · head_dim] as [n, heads, head_dim]; normalised by head where the family does so, and turned. */
static tn_tensor *heads(const llm_config *c, const tn_tensor *x, const tn_tensor *weight, const rotation *turn) {
    tn_tensor *h = tn_reshape(x, TN_DIMS(tn_size(x, 0), tn_size(x, 1) / c->size[SIZE_HEAD], c->size[SIZE_HEAD]));
    if (weight) h = norm(c, h, weight, NULL);
    if (!turn || !turn->cosine) return h;
    tn_rope_options o = {.struct_size = sizeof o, .interleaved = c->interleaved_rope};
    return tn_rope(h, turn->cosine, turn->sine, &o);
}

static void look_at(const llm_inputs *in, int64_t layer, llm_probe which, const tn_tensor *x) {
    if (in->probes) in->probes[layer * LLM_PROBES + which] = tn_retain(tn_sum(tn_mul(x, x), (int64_t[]){0}, 1, false));
}

/* Queries, keys and values, of three products or of one. */
static void project(const llm_config *c, const llm_layer *l, const tn_tensor *x, tn_tensor *out[3]) {
    tn_tensor *const *weight = l->weight;
    if (weight[SLOT_QKV]) {
        tn_tensor *joined = tn_linear(x, weight[SLOT_QKV], weight[SLOT_QKV_BIAS]);
        int64_t queries = c->size[SIZE_QUERIES], keys = c->size[SIZE_KEYS];
        out[0] = tn_narrow(joined, 1, 0, queries);
        out[1] = tn_narrow(joined, 1, queries, keys);
        out[2] = tn_narrow(joined, 1, queries + keys, keys);
        return;
    }
    out[0] = tn_linear(x, weight[SLOT_Q], weight[SLOT_Q_BIAS]);
    out[1] = tn_linear(x, weight[SLOT_K], weight[SLOT_K_BIAS]);
    out[2] = tn_linear(x, weight[SLOT_V], weight[SLOT_V_BIAS]);
}

/* [n, heads, head_dim] as [1, heads, n, head_dim]. */
static tn_tensor *by_head(const tn_tensor *x) { return tn_unsqueeze(tn_transpose(x, 0, 1), 0); }

/* The sequence is these tokens alone. */
static tn_tensor *attend_alone(const tn_tensor *seen, const tn_tensor *q, const tn_tensor *k, const tn_tensor *v) {
    tn_tensor *mixed = tn_scaled_dot_product_attention(by_head(q), by_head(k), by_head(v), seen, NULL);
    return tn_transpose(tn_reshape(mixed, TN_DIMS(tn_size(q, 1), tn_size(q, 0), tn_size(q, 2))), 0, 1);
}

static tn_tensor *attend_cached(const llm_weights *w, const llm_layer *l, const llm_inputs *in, int64_t window,
                                tn_tensor *const qkv[3]) {
    tn_cached_attention_options o = {.struct_size = sizeof o, .window = window};
    tn_tensor *mixed = tn_cached_attention(qkv[0], qkv[1], qkv[2], l->k_cache, l->v_cache, in->position, w->pages, &o);
    tn_cache_append_(l->k_cache, qkv[1], in->position, w->pages);
    tn_cache_append_(l->v_cache, qkv[2], in->position, w->pages);
    return mixed;
}

static tn_tensor *attention(const llm_config *c, const llm_weights *w, int64_t layer, const llm_inputs *in,
                            const rotation *turn, const tn_tensor *x) {
    const llm_layer *l = &w->layers[layer];
    tn_tensor *const *weight = l->weight, *joint[3];
    look_at(in, layer, PROBE_ATTENTION, x);
    project(c, l, x, joint);
    tn_tensor *qkv[] = {heads(c, joint[0], weight[SLOT_Q_NORM], turn), heads(c, joint[1], weight[SLOT_K_NORM], turn),
                        heads(c, joint[2], NULL, NULL)};
    int64_t window = layer >= c->window_from ? c->window : 0;
    tn_tensor *mixed = in->seen ? attend_alone(window ? in->near : in->seen, qkv[0], qkv[1], qkv[2])
                                : attend_cached(w, l, in, window, qkv);
    tn_tensor *joined = tn_reshape(mixed, TN_DIMS(tn_size(mixed, 0), c->size[SIZE_QUERIES]));
    look_at(in, layer, PROBE_O, joined);
    return tn_linear(joined, weight[SLOT_O], weight[SLOT_O_BIAS]);
}

static tn_tensor *feed_forward(const llm_config *c, const llm_weights *w, int64_t layer, const llm_inputs *in,
                               const tn_tensor *x) {
    tn_tensor *const *weight = w->layers[layer].weight;
    look_at(in, layer, PROBE_FFN, x);
    tn_tensor *up = tn_linear(x, weight[SLOT_UP], weight[SLOT_UP_BIAS]);
    tn_tensor *gate = NULL;
    if (c->family->fused_gate) {
        int64_t width = c->size[SIZE_INTERMEDIATE];
        gate = tn_narrow(up, 1, 0, width);
        up = tn_narrow(up, 1, width, width);
    } else if (weight[SLOT_GATE]) {
        gate = tn_linear(x, weight[SLOT_GATE], weight[SLOT_GATE_BIAS]);
    }
    tn_tensor *inner = gate ? tn_mul(c->activation(gate), up) : c->activation(up);
    look_at(in, layer, PROBE_DOWN, inner);
    return tn_linear(inner, weight[SLOT_DOWN], weight[SLOT_DOWN_BIAS]);
}

/* Rows of the embedding, with those of their positions where a model has learned them. */
static tn_tensor *embed(const llm_weights *w, const llm_inputs *in) {
    tn_tensor *x = tn_cast(in->rows, TN_F32);
    if (tn_dtype_of(x) != TN_F32) x = tn_cast(x, TN_F32); /* rows of a table in half precision */
    if (!w->head[SLOT_POSITIONS]) return x;
    tn_tensor *places = tn_reshape(tn_cast(in->positions, TN_I64), TN_DIMS(tn_size(in->positions, 0)));
    return tn_add(x, tn_embedding(places, w->head[SLOT_POSITIONS]));
}

static tn_tensor *layers(const llm_config *c, const llm_weights *w, const llm_inputs *in, llm_rows rows) {
    rotation turn = make_rotation(c, w, in);
    tn_tensor *x = embed(w, in);
    for (int64_t i = 0; i < c->layers; i++) {
        tn_tensor *const *weight = w->layers[i].weight;
        tn_tensor *y = norm(c, x, weight[SLOT_ATTENTION_NORM], weight[SLOT_ATTENTION_NORM_BIAS]);
        x = tn_add(x, attention(c, w, i, in, &turn, y));
        /* What follows the last layer's attention is needed where logits are wanted, and nowhere else. */
        if (i == c->layers - 1 && rows == LLM_LAST_ROW) x = tn_index_select(x, 0, in->last);
        y = norm(c, x, weight[SLOT_FFN_NORM], weight[SLOT_FFN_NORM_BIAS]);
        x = tn_add(x, feed_forward(c, w, i, in, y));
    }
    return x;
}

tn_tensor *tn_llm_record(const llm_config *c, const llm_weights *w, const llm_inputs *in, llm_rows rows) {
    tn_tensor *logits = NULL;
    TN_SCOPE {
        tn_tensor *x = layers(c, w, in, rows);
        if (rows != LLM_NO_ROWS) {
            const tn_tensor *output = c->tied ? w->head[SLOT_EMBEDDING] : w->head[SLOT_OUTPUT];
            x = norm(c, x, w->head[SLOT_OUTPUT_NORM], w->head[SLOT_OUTPUT_NORM_BIAS]);
            look_at(in, c->layers, 0, x);
            logits = tn_retain(tn_linear(x, output, NULL));
        }
    }
    return logits;
}
