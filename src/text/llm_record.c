/* llm_record.c — a decoder's operations, recorded; and as an ONNX model.
 *
 * One recording serves prompts (any number of tokens: the extent is symbolic) and single tokens alike. Keys and values
 * are appended to the caches within it; attention reads the older ones from there and the new ones from where they were
 * made; a recording that is to become an ONNX model has the older ones as inputs, or none. Handles of everything
 * between are given up at the end of the scope, so the planner need not keep any of it. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "text/llm_model.h"
#include "trunnion/onnx.h"

/* Rotary angles of the new tokens, made once and shared by all layers: [n, 1, half]. */
typedef struct rotation {
    tn_tensor *cosine, *sine;
} rotation;

static rotation make_rotation(const llm_rope *rope, const tn_tensor *frequencies, const llm_inputs *in) {
    if (!frequencies) return (rotation){NULL, NULL};
    tn_tensor *angle = tn_mul(in->positions, frequencies);
    rotation r = {tn_cos(angle), tn_sin(angle)};
    if (rope->amplitude == 1) return r;
    return (rotation){tn_mul_scalar(r.cosine, rope->amplitude), tn_mul_scalar(r.sine, rope->amplitude)};
}

tn_tensor *tn_llm_rms_norm(const tn_tensor *x, const tn_tensor *weight, double eps) {
    tn_rms_norm_options o = TN_RMS_NORM_DEFAULTS;
    o.eps = eps;
    return tn_rms_norm(x, TN_DIMS(tn_size(x, -1)), weight, &o);
}

tn_tensor *tn_llm_norm(const llm_config *c, const tn_tensor *x, const tn_tensor *weight, const tn_tensor *bias) {
    tn_layer_norm_options layer = TN_LAYER_NORM_DEFAULTS;
    layer.eps = c->eps;
    if (c->file.norms_from_one && weight) weight = tn_add_scalar(weight, 1);
    return c->family->norms.layer_norm ? tn_layer_norm(x, TN_DIMS(tn_size(x, -1)), weight, bias, &layer)
                                       : tn_llm_rms_norm(x, weight, c->eps);
}

/* Before attention or feed-forward, where the family has such a norm. */
static tn_tensor *norm_before(const llm_config *c, tn_tensor *x, const tn_tensor *weight, const tn_tensor *bias) {
    return weight || c->family->norms.bare ? tn_llm_norm(c, x, weight, bias) : x;
}

/* The same of what they yield. */
static tn_tensor *norm_behind(const llm_config *c, tn_tensor *x, const tn_tensor *weight) {
    return weight ? tn_llm_norm(c, x, weight, NULL) : x;
}

/* Numbers that come to no more than ± cap; 0: as they are. */
static tn_tensor *bend(tn_tensor *x, double cap) {
    return cap > 0 ? tn_mul_scalar(tn_tanh(tn_div_scalar(x, cap)), cap) : x;
}

static tn_tensor *scaled(tn_tensor *x, double by) { return by == 1 ? x : tn_mul_scalar(x, by); }

static tn_tensor *rotate(const llm_config *c, tn_tensor *h, const rotation *turn) {
    if (!turn || !turn->cosine) return h;
    tn_rope_options o = TN_ROPE_DEFAULTS;
    o.interleaved = c->positions.interleaved;
    return tn_rope(h, turn->cosine, turn->sine, &o);
}

/* [n, heads · head_dim] as [n, heads, head_dim]; normalised where the family does so, and rotated. */
static tn_tensor *heads(const llm_config *c, tn_tensor *x, const tn_tensor *weight, const rotation *turn) {
    llm_head_norm kind = c->family->norms.heads;
    if (weight && kind == HEAD_NORM_ALL) x = tn_llm_norm(c, x, weight, NULL);
    tn_tensor *h = tn_reshape(x, TN_DIMS(tn_size(x, 0), tn_size(x, 1) / c->size[SIZE_HEAD], c->size[SIZE_HEAD]));
    if (!weight || kind == HEAD_NORM_ALL) return rotate(c, h, turn);
    if (kind == HEAD_NORM_EACH) return rotate(c, tn_mul(tn_llm_norm(c, h, NULL, NULL), weight), turn);
    if (c->family->norms.after_rope) return tn_llm_norm(c, rotate(c, h, turn), weight, NULL);
    return rotate(c, tn_llm_norm(c, h, weight, NULL), turn);
}

/* 1 + late_scale · log(1 + ⌊position / trained length⌋) for each token: [n, 1, 1]. */
static tn_tensor *late_scale(const llm_config *c, const llm_inputs *in) {
    tn_tensor *times = tn_floor(tn_div_scalar(in->positions, c->positions.rope.trained));
    return tn_add_scalar(tn_mul_scalar(tn_log(tn_add_scalar(times, 1)), c->attention.late_scale), 1);
}

static void look_at(const llm_inputs *in, int64_t layer, llm_probe which, const tn_tensor *x) {
    if (in->probes) in->probes[layer * LLM_PROBES + which] = tn_retain(tn_sum(tn_mul(x, x), (int64_t[]){0}, 1, false));
}

/* [n, kv_heads · (heads that share one + 2) · head_dim] as queries, keys and values. */
static void ungroup(const llm_config *c, const tn_tensor *joined, tn_tensor *out[3]) {
    int64_t n = tn_size(joined, 0), share = c->attention.heads / c->attention.kv_heads, keys = c->size[SIZE_KEYS];
    tn_tensor *groups = tn_reshape(joined, TN_DIMS(n, c->attention.kv_heads, share + 2, c->size[SIZE_HEAD]));
    out[0] = tn_reshape(tn_narrow(groups, 2, 0, share), TN_DIMS(n, c->size[SIZE_QUERIES]));
    out[1] = tn_reshape(tn_narrow(groups, 2, share, 1), TN_DIMS(n, keys));
    out[2] = tn_reshape(tn_narrow(groups, 2, share + 1, 1), TN_DIMS(n, keys));
}

tn_tensor *tn_llm_product(const llm_weights *w, int64_t layer, int slot, const tn_tensor *x, const tn_tensor *bias) {
    tn_tensor *y = tn_linear(x, w->layers[layer].weight[slot], bias);
    const llm_lora *l = w->lora ? &w->lora[layer * LAYER_SLOTS + slot] : NULL;
    if (!l || !l->a) return y;
    return tn_add(y, tn_mul_scalar(tn_linear(tn_linear(x, l->a, NULL), l->b, NULL), w->lora_scale));
}

/* Where each head has its queries (part 0) and then gates of as many numbers (part 1): one of them, [n, queries]. */
static tn_tensor *ask(const llm_config *c, tn_tensor *made, int part) {
    int64_t n = tn_size(made, 0), head = c->size[SIZE_HEAD];
    if (!c->family->attention.gated_queries) return made;
    tn_tensor *both = tn_reshape(made, TN_DIMS(n, c->attention.heads, 2 * head));
    return tn_reshape(tn_narrow(both, 2, part * head, head), TN_DIMS(n, c->size[SIZE_QUERIES]));
}

/* Queries, keys and values, of three products or of one. */
static void project(const llm_config *c, const llm_weights *w, int64_t layer, const tn_tensor *x, tn_tensor *out[3]) {
    tn_tensor *const *weight = w->layers[layer].weight;
    if (c->family->attention.latent) {
        tn_llm_project_latent(c, w, layer, x, out);
        return;
    }
    if (weight[SLOT_QKV]) {
        tn_tensor *joined = tn_llm_product(w, layer, SLOT_QKV, x, weight[SLOT_QKV_BIAS]);
        int64_t queries = c->size[SIZE_QUERIES], keys = c->size[SIZE_KEYS];
        if (c->attention.grouped_qkv) {
            ungroup(c, joined, out);
            return;
        }
        out[0] = tn_narrow(joined, 1, 0, queries);
        out[1] = tn_narrow(joined, 1, queries, keys);
        out[2] = tn_narrow(joined, 1, queries + keys, keys);
        return;
    }
    out[0] = ask(c, tn_llm_product(w, layer, SLOT_Q, x, weight[SLOT_Q_BIAS]), 0);
    out[1] = tn_llm_product(w, layer, SLOT_K, x, weight[SLOT_K_BIAS]);
    out[2] = tn_llm_product(w, layer, SLOT_V, x, weight[SLOT_V_BIAS]);
}

/* [n, heads, head_dim] as [1, heads, n, head_dim]. */
static tn_tensor *by_head(const tn_tensor *x) { return tn_unsqueeze(tn_transpose(x, 0, 1), 0); }

/* Scores that are bent before the softmax, or have a sink in it: [kv_heads, heads that share one, n, head_dim]. k and v
 * are by head. */
static tn_tensor *attend_bent(const llm_config *c, const tn_tensor *seen, const tn_tensor *q, const tn_tensor *k,
                              const tn_tensor *v, const tn_tensor *sinks) {
    int64_t n = tn_size(q, 0), width = c->size[SIZE_HEAD];
    double scale = c->attention.scale != TN_AUTO ? c->attention.scale : 1 / sqrt((double)width);
    tn_tensor *groups = tn_reshape(
        tn_transpose(q, 0, 1), TN_DIMS(c->attention.kv_heads, c->attention.heads / c->attention.kv_heads, n, width));
    tn_tensor *keys = tn_permute(k, TN_DIMS(1, 0, 3, 2)), *values = tn_transpose(v, 0, 1);
    tn_tensor *scores = bend(tn_mul_scalar(tn_matmul(groups, keys), scale), c->attention.cap);
    scores = tn_masked_fill(scores, tn_logical_not(seen), -INFINITY);
    if (!sinks) return tn_matmul(tn_softmax(scores, -1), values);
    tn_tensor *each =
        tn_reshape(sinks, TN_DIMS(c->attention.kv_heads, c->attention.heads / c->attention.kv_heads, 1, 1));
    tn_tensor *most = tn_maximum(tn_amax(scores, (int64_t[]){3}, 1, true), each);
    tn_tensor *weights = tn_exp(tn_sub(scores, most));
    tn_tensor *total = tn_add(tn_sum(weights, (int64_t[]){3}, 1, true), tn_exp(tn_sub(each, most)));
    return tn_matmul(tn_div(weights, total), values);
}

/* A layer's keys (0) or values (1), behind those of before. */
static tn_tensor *behind_past(const llm_inputs *in, int64_t layer, int which, const tn_tensor *x) {
    tn_tensor *own = by_head(x);
    if (!in->past) return own;
    int64_t i = 2 * layer + which;
    return in->present[i] = tn_retain(tn_cat((tn_tensor *[]){in->past[i], own}, 2, 2));
}

/* The sequence is only these tokens, or the older ones are an input. */
static tn_tensor *attend_alone(const llm_config *c, const llm_inputs *in, int64_t layer, tn_tensor *const qkv[3],
                               const tn_tensor *sinks) {
    tn_scaled_dot_product_attention_options o = TN_SCALED_DOT_PRODUCT_ATTENTION_DEFAULTS;
    o.scale = c->attention.scale;
    const tn_tensor *q = qkv[0], *seen = tn_llm_window(c, layer) ? in->near : in->seen;
    tn_tensor *k = behind_past(in, layer, 0, qkv[1]), *v = behind_past(in, layer, 1, qkv[2]);
    tn_tensor *mixed = c->attention.cap > 0 || sinks ? attend_bent(c, seen, q, k, v, sinks)
                                                     : tn_scaled_dot_product_attention(by_head(q), k, v, seen, &o);
    return tn_transpose(tn_reshape(mixed, TN_DIMS(tn_size(q, 1), tn_size(q, 0), tn_size(q, 2))), 0, 1);
}

static tn_tensor *attend_cached(const llm_config *c, const llm_weights *w, const llm_layer *l, const llm_inputs *in,
                                int64_t window, tn_tensor *const qkv[3]) {
    tn_cached_attention_options o = TN_CACHED_ATTENTION_DEFAULTS;
    o.scale = c->attention.scale;
    o.window = window;
    o.softcap = c->attention.cap;
    const tn_tensor *pages = in->pages ? in->pages : w->pages; /* of a batch, or of one sequence */
    tn_tensor *mixed = tn_cached_attention(qkv[0], qkv[1], qkv[2], l->cache[CACHE_KEYS], l->cache[CACHE_VALUES],
                                           in->position, pages, l->weight[SLOT_SINKS], &o);
    tn_cache_append_(l->cache[CACHE_KEYS], qkv[1], in->position, pages);
    tn_cache_append_(l->cache[CACHE_VALUES], qkv[2], in->position, pages);
    return mixed;
}

/* Each row with the caches of its own sequence. */
static tn_tensor *attend_batch(const llm_config *c, const llm_inputs *in, int64_t layer, tn_tensor *const qkv[3]) {
    tn_tensor *mixed[TN_LLM_BATCH];
    for (int i = 0; i < in->sequence_count; i++) {
        const llm_sequence *s = &in->sequences[i];
        const llm_weights own = {.pages = s->pages};
        const llm_inputs one = {.position = s->position};
        tn_tensor *row[3];
        for (int k = 0; k < 3; k++)
            row[k] = tn_narrow(qkv[k], 0, i, 1);
        mixed[i] = attend_cached(c, &own, &s->layers[layer], &one, tn_llm_window(c, layer), row);
    }
    return tn_cat(mixed, in->sequence_count, 0);
}

static tn_tensor *attention(const llm_config *c, const llm_weights *w, int64_t layer, const llm_inputs *in,
                            const rotation turns[2], const tn_tensor *x) {
    const llm_layer *l = &w->layers[layer];
    tn_tensor *const *weight = l->weight, *qkv_parts[3];
    look_at(in, layer, PROBE_ATTENTION, x);
    project(c, w, layer, x, qkv_parts);
    int64_t window = tn_llm_window(c, layer);
    const rotation *turn = &turns[c->positions.two_ropes && tn_llm_slides(c, layer)];
    if (!tn_llm_has_rope(c, layer)) turn = NULL;
    tn_tensor *qkv[] = {heads(c, qkv_parts[0], weight[SLOT_Q_NORM], turn),
                        heads(c, qkv_parts[1], weight[SLOT_K_NORM], turn), heads(c, qkv_parts[2], NULL, NULL)};
    if (c->attention.late_scale > 0) qkv[0] = tn_mul(qkv[0], late_scale(c, in));
    tn_tensor *mixed = in->seen        ? attend_alone(c, in, layer, qkv, weight[SLOT_SINKS])
                       : in->sequences ? attend_batch(c, in, layer, qkv)
                                       : attend_cached(c, w, l, in, window, qkv);
    tn_tensor *joined = c->family->attention.latent
                            ? tn_llm_latent_values(c, mixed)
                            : tn_reshape(mixed, TN_DIMS(tn_size(mixed, 0), c->size[SIZE_QUERIES]));
    if (c->family->attention.gated_queries)
        joined = tn_mul(joined, tn_sigmoid(ask(c, tn_llm_product(w, layer, SLOT_Q, x, NULL), 1)));
    look_at(in, layer, PROBE_O, joined);
    return tn_llm_product(w, layer, SLOT_O, joined, weight[SLOT_O_BIAS]);
}

tn_tensor *tn_llm_split_gate(tn_tensor **up, int dim, int64_t width) {
    tn_tensor *gate = tn_narrow(*up, dim, 0, width);
    *up = tn_narrow(*up, dim, width, width);
    return gate;
}

/* xIELU: two curves that meet at 0, whose steepness is trained. Source: Huang and Schlag 2025, "Deriving Activation
 * Functions Using Integration", equation 10, with beta 0.5. */
static tn_tensor *xielu(const tn_tensor *x, const tn_tensor *alpha_p, const tn_tensor *alpha_n) {
    static const double BETA = 0.5, LEAST = -1e-6;
    tn_softplus_options o = TN_SOFTPLUS_DEFAULTS;
    tn_tensor *p = tn_softplus(alpha_p, &o), *n = tn_add_scalar(tn_softplus(alpha_n, &o), BETA);
    tn_tensor *rising = tn_mul(tn_mul(x, x), p);
    tn_tensor *falling = tn_mul(tn_sub(tn_expm1(tn_clamp(x, -INFINITY, LEAST)), x), n);
    return tn_add(tn_where(tn_gt_scalar(x, 0), rising, falling), tn_mul_scalar(x, BETA));
}

static tn_tensor *feed_forward(const llm_config *c, const llm_weights *w, int64_t layer, const llm_inputs *in,
                               const tn_tensor *x) {
    tn_tensor *const *weight = w->layers[layer].weight;
    look_at(in, layer, PROBE_FFN, x);
    if (weight[SLOT_ROUTER]) {
        look_at(in, layer, PROBE_DOWN, x); /* not read, but each probe position needs a value */
        return tn_llm_mix(c, w, layer, in, x);
    }
    tn_tensor *up = tn_llm_product(w, layer, SLOT_UP, x, weight[SLOT_UP_BIAS]);
    tn_tensor *gate = NULL;
    if (c->family->forward.fused_gate) {
        gate = tn_llm_split_gate(&up, 1, c->size[SIZE_INTERMEDIATE]);
    } else if (weight[SLOT_GATE]) {
        gate = tn_llm_product(w, layer, SLOT_GATE, x, weight[SLOT_GATE_BIAS]);
    }
    tn_tensor *inner = gate                   ? tn_mul(c->activation(gate), up)
                       : weight[SLOT_ALPHA_P] ? xielu(up, weight[SLOT_ALPHA_P], weight[SLOT_ALPHA_N])
                                              : c->activation(up);
    look_at(in, layer, PROBE_DOWN, inner);
    return tn_llm_product(w, layer, SLOT_DOWN, inner, weight[SLOT_DOWN_BIAS]);
}

/* Rows of the embedding, with those of their positions where a model has learned them. */
static tn_tensor *embed(const llm_config *c, const llm_weights *w, const llm_inputs *in) {
    tn_tensor *x = tn_cast(in->rows, TN_F32);
    if (tn_dtype_of(x) != TN_F32) x = tn_cast(x, TN_F32); /* rows of a table in half precision */
    x = scaled(x, c->scales.embedding);
    if (w->head[SLOT_EMBEDDING_NORM]) x = tn_llm_norm(c, x, w->head[SLOT_EMBEDDING_NORM], NULL);
    if (!w->head[SLOT_POSITIONS]) return x;
    tn_tensor *places = tn_reshape(tn_cast(in->positions, TN_I64), TN_DIMS(tn_size(in->positions, 0)));
    if (c->family->positions.first > 0) places = tn_add(places, tn_scalar_int(c->family->positions.first));
    return tn_add(x, tn_embedding(places, w->head[SLOT_POSITIONS]));
}

/* The last layer's feed-forward is needed only where logits are wanted. */
static tn_tensor *take_rows(const llm_config *c, int64_t layer, const llm_inputs *in, llm_rows rows, tn_tensor *x) {
    return layer == c->layers - 1 && rows == LLM_LAST_ROW ? tn_index_select(x, 0, in->last) : x;
}

static tn_tensor *llm_record_layers(const llm_config *c, const llm_weights *w, const llm_inputs *in, llm_rows rows) {
    rotation turns[2] = {make_rotation(&c->positions.rope, w->rope[0], in),
                         make_rotation(&c->positions.local_rope, w->rope[1], in)};
    tn_tensor *x = embed(c, w, in);
    for (int64_t i = 0; i < c->layers; i++) {
        tn_tensor *const *weight = w->layers[i].weight;
        tn_tensor *y = norm_before(c, x, weight[SLOT_ATTENTION_NORM], weight[SLOT_ATTENTION_NORM_BIAS]);
        tn_tensor *mixed = tn_llm_is_recurrent(c, i) ? tn_llm_recur(c, w, i, y) : attention(c, w, i, in, turns, y);
        mixed = norm_behind(c, mixed, weight[SLOT_ATTENTION_POST_NORM]);
        tn_tensor *sum = take_rows(c, i, in, rows, tn_add(x, scaled(mixed, c->scales.residual)));
        if (!weight[SLOT_DOWN] && !weight[SLOT_ROUTER]) { /* Mamba */
            x = sum;
            continue;
        }
        if (c->attention.parallel && !weight[SLOT_FFN_NORM])
            y = take_rows(c, i, in, rows, y);
        else
            y = norm_before(c, c->attention.parallel ? take_rows(c, i, in, rows, x) : sum, weight[SLOT_FFN_NORM],
                            weight[SLOT_FFN_NORM_BIAS]);
        y = norm_behind(c, feed_forward(c, w, i, in, y), weight[SLOT_FFN_POST_NORM]);
        x = tn_add(sum, scaled(y, c->scales.residual));
    }
    return x;
}

tn_tensor *tn_llm_record(const llm_config *c, const llm_weights *w, const llm_inputs *in, llm_rows rows) {
    tn_tensor *logits = NULL;
    TN_SCOPE;
    tn_tensor *x = llm_record_layers(c, w, in, rows);
    if (rows != LLM_NO_ROWS) {
        const tn_tensor *output = c->tied ? w->head[SLOT_EMBEDDING] : w->head[SLOT_OUTPUT];
        x = tn_llm_norm(c, x, w->head[SLOT_OUTPUT_NORM], w->head[SLOT_OUTPUT_NORM_BIAS]);
        look_at(in, c->layers, 0, x);
        x = scaled(tn_linear(x, output, w->head[SLOT_OUTPUT_BIAS]), c->scales.logits);
        logits = tn_retain(bend(x, c->scales.final_cap));
    }
    return logits;
}

/* ==== export to ONNX ============================================================================================== */
/* Exports the recording that also computes logits, with one difference: attention reads keys and values from inputs,
 * with a mask, instead of from pages of a cache. The symbolic extents are the numbers of new and of earlier tokens.
 * Without a cache the ids are the only input. With one, inputs and outputs have the names and extents of Hugging Face's
 * exporter, which programs that generate with such models expect; the batch is 1. */

/* In the order in which their sum is spelled. What the recording itself has of each differs: equal extents are one. */
enum { SYMBOL_PAST, SYMBOL_TOKENS, SYMBOL_ALL };
enum { SOME_PAST = 5, SOME_TOKENS = 8 };

/* Tensors with the names that they have in the file. */
typedef struct named_weights {
    tn_named_tensor *list;
    int count;
} named_weights;

static void add_name(named_weights *n, const llm_source *s, const llm_naming *naming, int64_t layer, int slot,
                     const tn_tensor *t) {
    llm_tensor info = {.struct_size = sizeof info};
    char name[LLM_NAME_SIZE];
    if (!t || !tn_llm_name(naming, name, layer, slot) || tn_llm_source_find(s, name, &info) != TN_OK) return;
    n->list[n->count++] = (tn_named_tensor){info.name, t};
}

static tn_status name_weights(const llm_source *s, const llm_config *c, const llm_weights *w, named_weights *n) {
    size_t most = HEAD_SLOTS + (size_t)c->layers * LAYER_SLOTS + 2;
    n->list = tn_txt_zalloc(most, sizeof *n->list);
    if (!n->list) return TN_ERR_MEMORY;
    for (int slot = 0; slot < HEAD_SLOTS; slot++)
        add_name(n, s, c->file.naming, -1, slot, w->head[slot]);
    for (int64_t i = 0; i < c->layers; i++)
        for (int slot = 0; slot < LAYER_SLOTS; slot++)
            add_name(n, s, c->file.naming, i, slot, w->layers[i].weight[slot]);
    static const char *const ropes[] = {"rotary_emb.inv_freq", "rotary_emb_local.inv_freq"};
    for (int i = 0; i < 2; i++)
        if (w->rope[i]) n->list[n->count++] = (tn_named_tensor){ropes[i], w->rope[i]};
    return TN_OK;
}

/* 0, 1, 2 … for as many as x has. */
static tn_tensor *count_places(const tn_tensor *x) { return tn_sub(tn_cumsum(tn_ones_like(x), 0), tn_scalar_int(1)); }

static tn_tensor *export_count_of(const tn_tensor *x) { return tn_sum(tn_ones_like(x), NULL, 0, false); }

/* [1, n] as [n]. */
static tn_tensor *flat(const tn_tensor *x) { return tn_reshape(x, TN_DIMS(tn_size(x, 1))); }

/* What attention and rope want. `query` and `key`: places in the text, `there`: keys that may be seen. A token sees
 * itself in any case: of nothing nobody can make a mean. */
static llm_inputs inputs_of(const llm_config *c, const llm_weights *w, const tn_tensor *ids, const tn_tensor *positions,
                            const tn_tensor *query, const tn_tensor *key, const tn_tensor *there) {
    llm_inputs in = {.rows = tn_embedding(ids, w->head[SLOT_EMBEDDING]),
                     .positions = tn_reshape(tn_cast(positions, TN_F32), TN_DIMS(tn_size(ids, 0), 1, 1))};
    query = tn_unsqueeze(query, 1), key = tn_unsqueeze(key, 0);
    in.seen = c->attention.bidirectional ? tn_ge_scalar(tn_add(key, query), 0) : tn_le(key, query);
    if (there) in.seen = tn_logical_or(tn_logical_and(in.seen, there), tn_eq(key, query));
    tn_tensor *away = c->attention.bidirectional ? tn_abs(tn_sub(query, key)) : tn_sub(query, key);
    if (c->attention.window) in.near = tn_logical_and(in.seen, tn_lt_scalar(away, (double)c->attention.window));
    return in;
}

tn_tensor *tn_llm_record_states(const llm_config *c, const llm_weights *w, const tn_tensor *ids,
                                const tn_tensor *places) {
    tn_tensor *states = NULL;
    TN_SCOPE;
    llm_inputs in = inputs_of(c, w, ids, places, places, places, NULL);
    tn_tensor *x = llm_record_layers(c, w, &in, LLM_ALL_ROWS);
    states = tn_retain(tn_llm_norm(c, x, w->head[SLOT_OUTPUT_NORM], w->head[SLOT_OUTPUT_NORM_BIAS]));
    return states;
}

/* What becomes a file. Lists belong to it, tensors to the scope. */
typedef struct network {
    tn_named_tensor *in, *out;
    char (*names)[LLM_NAME_SIZE];
    tn_tensor **past, **present;
    float *zeros; /* a layer's SOME_PAST keys */
    int in_count, out_count, name_count;
} network;

enum { OWN_INPUTS = 3, OWN_OUTPUTS = 1, A_LAYER = 2 };

static tn_status begin_network(network *n, const llm_config *c) {
    size_t each = A_LAYER * (size_t)c->layers;
    n->zeros = tn_txt_zalloc(SOME_PAST * (size_t)c->size[SIZE_KEYS], sizeof *n->zeros);
    n->in = tn_txt_zalloc(OWN_INPUTS + each, sizeof *n->in);
    n->out = tn_txt_zalloc(OWN_OUTPUTS + each, sizeof *n->out);
    n->names = tn_txt_zalloc(2 * each, sizeof *n->names);
    n->past = tn_txt_zalloc(each, sizeof(tn_tensor *));
    n->present = tn_txt_zalloc(each, sizeof(tn_tensor *));
    return n->zeros && n->in && n->out && n->names && n->past && n->present ? TN_OK : TN_ERR_MEMORY;
}

static void end_network(network *n, int64_t layers) {
    for (int64_t i = 0; n->present && i < A_LAYER * layers; i++)
        tn_free(n->present[i]);
    tn_txt_free(n->in);
    tn_txt_free(n->out);
    tn_txt_free(n->names);
    tn_txt_free(n->past);
    tn_txt_free(n->present);
    tn_txt_free(n->zeros);
}

static const char *layer_name(network *n, const char *what, int64_t i) {
    char *name = n->names[n->name_count++];
    snprintf(name, LLM_NAME_SIZE, "%s.%" PRId64 ".%s", what, i / A_LAYER, i % A_LAYER ? "value" : "key");
    return name;
}

/* [1, extent], which is open. */
static tn_tensor *add_row(network *n, const char *name, int64_t extent, int symbol) {
    static const int64_t some[SOME_PAST + SOME_TOKENS];
    tn_tensor *t = tn_symbolic(tn_from_data(some, TN_DIMS(1, extent), TN_I64), 1, symbol);
    n->in[n->in_count++] = (tn_named_tensor){name, t};
    return t;
}

static void add_past(network *n, const llm_config *c) {
    const int64_t shape[] = {1, c->attention.kv_heads, SOME_PAST, c->size[SIZE_HEAD]};
    for (int64_t i = 0; i < A_LAYER * c->layers; i++) {
        n->past[i] = tn_symbolic(tn_from_data(n->zeros, shape, 4, TN_F32), 2, SYMBOL_PAST);
        n->in[n->in_count++] = (tn_named_tensor){layer_name(n, "past_key_values", i), n->past[i]};
    }
}

static llm_inputs add_inputs(network *n, const llm_config *c, const llm_weights *w, bool cache) {
    tn_tensor *ids = flat(add_row(n, "input_ids", SOME_TOKENS, SYMBOL_TOKENS)), *places = count_places(ids);
    if (!cache) return inputs_of(c, w, ids, places, places, places, NULL);
    tn_tensor *mask = flat(add_row(n, "attention_mask", SOME_PAST + SOME_TOKENS, SYMBOL_ALL));
    tn_tensor *positions = flat(add_row(n, "position_ids", SOME_TOKENS, SYMBOL_TOKENS));
    add_past(n, c);
    tn_tensor *before = tn_sub(export_count_of(mask), export_count_of(ids)),
              *there = tn_unsqueeze(tn_ne_scalar(mask, 0), 0);
    llm_inputs in = inputs_of(c, w, ids, positions, tn_add(places, before), count_places(mask), there);
    in.past = n->past;
    in.present = n->present;
    return in;
}

static tn_status save_network(network *n, const llm_config *c, const llm_weights *w, const named_weights *weights,
                              const char *path, bool cache) {
    llm_inputs in = add_inputs(n, c, w, cache);
    tn_tensor *logits = tn_llm_record(c, w, &in, LLM_ALL_ROWS);
    tn_tensor *whole = tn_reshape(logits, TN_DIMS(1, SOME_TOKENS, c->size[SIZE_VOCABULARY]));
    n->out[n->out_count++] = (tn_named_tensor){"logits", whole};
    for (int64_t i = 0; cache && i < A_LAYER * c->layers; i++)
        n->out[n->out_count++] = (tn_named_tensor){layer_name(n, "present", i), n->present[i]};
    tn_onnx_export_options o = TN_ONNX_EXPORT_DEFAULTS;
    o.name = c->family->architecture;
    o.dims[SYMBOL_PAST] = "past_sequence_length";
    o.dims[SYMBOL_TOKENS] = "sequence_length";
    o.dims[SYMBOL_ALL] = "past_sequence_length + sequence_length";
    o.weights = weights->list;
    o.weight_count = weights->count;
    tn_status status = tn_onnx_export(path, n->in, n->in_count, n->out, n->out_count, &o);
    tn_free(logits);
    return status;
}

tn_status tn_llm_write_onnx(const llm_source *s, const llm_config *c, const llm_weights *w, const char *path,
                            bool cache) {
    named_weights weights = {0};
    network n = {0};
    tn_status status = name_weights(s, c, w, &weights);
    if (status == TN_OK) status = begin_network(&n, c);
    {
        TN_SCOPE;
        TN_NO_GRAD;
        if (status == TN_OK) status = save_network(&n, c, w, &weights, path, cache);
    }
    end_network(&n, c->layers);
    tn_txt_free(weights.list);
    return status;
}
