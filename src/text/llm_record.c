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

/* llm_record.c: a layer's mixture of experts, which read x. asked: what the router reads. */
static tn_tensor *llm_mix(const llm_config *c, const llm_weights *w, int64_t layer, const llm_inputs *in,
                          const tn_tensor *x, const tn_tensor *asked);
/* Latent attention: makes queries, keys and values. In each head the part that rope rotates comes first. With caches
 * all heads share one key, the latent vector, which is the value too. latent_values turns attention's result into
 * [n, SIZE_MIXED]. */
static void project_latent(const llm_config *c, const llm_layer *l, const llm_weights *w, int64_t layer, bool cached,
                           const tn_tensor *x, tn_tensor *out[3]);
static tn_tensor *latent_values(const llm_config *c, const llm_layer *l, bool cached, const tn_tensor *mixed);

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

static tn_tensor *tn_llm_norm(const llm_config *c, const tn_tensor *x, const tn_tensor *weight, const tn_tensor *bias) {
    tn_layer_norm_options layer = TN_LAYER_NORM_DEFAULTS;
    layer.eps = c->eps;
    if (c->file.norms_from_one && weight) weight = tn_add_scalar(weight, 1);
    return c->family->norms.layer_norm ? tn_layer_norm(x, TN_DIMS(tn_size(x, -1)), weight, bias, &layer)
                                       : tn_hf_rms_norm(x, weight, c->eps);
}

/* Before attention or feed-forward, where the family has such a norm. */
static tn_tensor *norm_before(const llm_config *c, tn_tensor *x, const tn_tensor *weight, const tn_tensor *bias) {
    bool normed = (weight || c->family->norms.bare) && !c->family->norms.of_sums;
    return normed ? tn_llm_norm(c, x, weight, bias) : x;
}

/* The same of what they yield. */
static tn_tensor *norm_behind(const llm_config *c, tn_tensor *x, const tn_tensor *weight) {
    return weight ? tn_llm_norm(c, x, weight, NULL) : x;
}

/* Normalizes the residual stream after attention or feed-forward, in families that do so. */
static tn_tensor *norm_sum(const llm_config *c, tn_tensor *x, const tn_tensor *weight, const tn_tensor *bias) {
    return c->family->norms.of_sums ? tn_llm_norm(c, x, weight, bias) : x;
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
    if (tn_dtype_of(h) != TN_F32) h = tn_cast(h, TN_F32); /* with autocast */
    if (c->positions.halves_mixed) {
        const int64_t n = tn_size(h, 0), heads = tn_size(h, 1), width = tn_size(h, 2);
        h = tn_transpose(tn_reshape(h, TN_DIMS(n, heads, width / 2, 2)), 2, 3);
        h = tn_reshape(h, TN_DIMS(n, heads, width));
    }
    return tn_rope(h, turn->cosine, turn->sine, &o);
}

/* [n, heads · width] as [n, heads, width]; normalised where the family does so, and rotated. */
static tn_tensor *heads(const llm_config *c, tn_tensor *x, int64_t width, const tn_tensor *weight,
                        const tn_tensor *bias, const rotation *turn) {
    llm_head_norm kind = c->family->norms.heads;
    if (weight && kind == HEAD_NORM_ALL) x = tn_llm_norm(c, x, weight, NULL);
    tn_tensor *h = tn_reshape(x, TN_DIMS(tn_size(x, 0), tn_size(x, 1) / width, width));
    if (!weight || kind == HEAD_NORM_ALL) return rotate(c, h, turn);
    if (kind == HEAD_NORM_EACH) return rotate(c, tn_mul(tn_llm_norm(c, h, NULL, NULL), weight), turn);
    if (c->family->norms.after_rope) return tn_llm_norm(c, rotate(c, h, turn), weight, NULL);
    return rotate(c, tn_llm_norm(c, h, weight, bias), turn);
}

/* 1 + late_scale · log(1 + ⌊position / trained length⌋) for each token: [n, 1, 1]. */
static tn_tensor *late_scale(const llm_config *c, const llm_inputs *in) {
    double step = c->attention.late_step;
    tn_tensor *count = step > 0 ? tn_add_scalar(in->positions, 1) : in->positions;
    tn_tensor *times = tn_floor(tn_div_scalar(count, step > 0 ? step : c->positions.rope.trained));
    return tn_add_scalar(tn_mul_scalar(tn_log(tn_add_scalar(times, 1)), c->attention.late_scale), 1);
}

/* ALiBi adds slope · (key's position - query's position) to each score of a head. The second term is the same for a
 * whole row, so the softmax does not need it. The first comes from the product of query and key: a key has its position
 * appended, in two parts that f16 holds exactly (far · DISTANCE_STEP + near), and a query the slope for each part.
 * Source: Press et al. 2022, "Train Short, Test Long", section 3; slopes as in transformers. */
static void add_distances(const llm_config *c, const llm_inputs *in, tn_tensor *qkv[3]) {
    int64_t n = tn_size(qkv[0], 0), heads = c->attention.heads, keys = c->attention.kv_heads;
    double whole = exp2(ceil(log2((double)heads))), step = c->attention.alibi / whole;
    tn_tensor *order = tn_arange(1, (double)heads + 1, 1, TN_F32); /* 2, 4 …, and then 1, 3 … where heads < whole */
    if (whole > (double)heads) {
        tn_tensor *twice = tn_mul_scalar(order, 2);
        order = tn_where(tn_le_scalar(twice, whole), twice, tn_sub_scalar(twice, whole + 1));
    }
    tn_tensor *slopes = tn_reshape(tn_exp(tn_mul_scalar(order, -step * log(2))), TN_DIMS(1, heads, 1));
    slopes = tn_add(tn_zeros_like(tn_narrow(qkv[0], 2, 0, 1)), tn_mul_scalar(slopes, 1 / c->attention.scale));
    tn_tensor *far = tn_floor(tn_mul_scalar(in->positions, 1.0 / DISTANCE_STEP));
    tn_tensor *near = tn_sub(in->positions, tn_mul_scalar(far, DISTANCE_STEP));
    qkv[0] = tn_cat((tn_tensor *[]){qkv[0], tn_mul_scalar(slopes, DISTANCE_STEP), slopes}, 3, 2);
    qkv[1] = tn_cat((tn_tensor *[]){qkv[1], tn_expand(far, TN_DIMS(n, keys, 1)), tn_expand(near, TN_DIMS(n, keys, 1))},
                    3, 2);
    qkv[2] = tn_pad(qkv[2], (int64_t[]){0, DISTANCE_DIMS}, 2, 0);
}

/* What layers share within a recording. */
typedef struct llm_pass {
    rotation turns[2];       /* of layers without a window of their own rope, and with one */
    tn_tensor *kept[2][2];   /* keys and values of the last layer that has its own, without a window and with one */
    tn_tensor *layer_inputs; /* [n, layers · SIZE_INPUTS], or NULL */
    tn_tensor *streams[LLM_MOST_STREAMS];
} llm_pass;

static void look_at(const llm_inputs *in, int64_t layer, llm_probe which, const tn_tensor *x) {
    if (in->probes) in->probes[layer * LLM_PROBES + which] = tn_retain(tn_sum(tn_mul(x, x), (int64_t[]){0}, 1, false));
}

/* [n, QKV_BLOCKS · (queries, values, keys of some of the heads)] as queries, keys and values. */
static void unblock(const llm_config *c, const tn_tensor *joined, tn_tensor *out[3]) {
    static const int places[] = {0, 2, 1};
    int64_t n = tn_size(joined, 0), width = c->size[SIZE_QUERIES];
    tn_tensor *blocks = tn_reshape(joined, TN_DIMS(n, QKV_BLOCKS, 3, width / QKV_BLOCKS));
    for (int k = 0; k < 3; k++)
        out[k] = tn_reshape(tn_narrow(blocks, 2, places[k], 1), TN_DIMS(n, width));
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
    if (weight[SLOT_QKV]) {
        tn_tensor *joined = tn_llm_product(w, layer, SLOT_QKV, x, weight[SLOT_QKV_BIAS]);
        int64_t queries = c->size[SIZE_QUERIES], keys = c->size[SIZE_KEYS];
        bool blocks = c->family->attention.qkv_blocks;
        if (!c->file.naming->gguf && (c->family->attention.grouped_qkv || blocks)) {
            (blocks ? unblock : ungroup)(c, joined, out);
            return;
        }
        out[0] = tn_narrow(joined, 1, 0, queries);
        out[1] = tn_narrow(joined, 1, queries, keys);
        out[2] = tn_narrow(joined, 1, queries + keys, keys);
        return;
    }
    out[0] = ask(c, tn_llm_product(w, layer, SLOT_Q, x, weight[SLOT_Q_BIAS]), 0);
    out[1] = weight[SLOT_K] ? tn_llm_product(w, layer, SLOT_K, x, weight[SLOT_K_BIAS]) : NULL;
    out[2] = weight[SLOT_V] ? tn_llm_product(w, layer, SLOT_V, x, weight[SLOT_V_BIAS]) : out[1];
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

/* A layer's keys (0) or values (1), after those of before. */
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

static tn_tensor *attend_cached(const llm_config *c, const llm_weights *w, int64_t layer, const llm_layer *l,
                                const llm_inputs *in, tn_tensor *const qkv[3]) {
    int64_t key_layer = tn_llm_key_layer(c, layer);
    tn_tensor *const *cache = l[key_layer].cache;
    tn_cached_attention_options o = TN_CACHED_ATTENTION_DEFAULTS;
    o.scale = c->attention.scale;
    o.window = tn_llm_window(c, layer);
    o.softcap = c->attention.cap;
    o.runs = in->drafted;
    const tn_tensor *pages = in->pages ? in->pages : w->pages; /* of a batch, or of one sequence */
    tn_tensor *values = cache[tn_llm_cache_count(c) - 1];
    tn_tensor *mixed = tn_cached_attention(qkv[0], qkv[1], qkv[2], cache[CACHE_KEYS], values, in->position, pages,
                                           l[layer].weight[SLOT_SINKS], &o);
    if (key_layer != layer) return mixed;
    tn_cache_append_(cache[CACHE_KEYS], qkv[1], in->position, pages);
    if (values != cache[CACHE_KEYS]) tn_cache_append_(values, qkv[2], in->position, pages);
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
        mixed[i] = attend_cached(c, &own, layer, s->layers, &one, row);
    }
    return tn_cat(mixed, in->sequence_count, 0);
}

/* Multiplies attention's result by sigmoid(gates). gates: as wide as joined, or [n, heads]: one for each head. */
static tn_tensor *gate_heads(const llm_config *c, tn_tensor *joined, tn_tensor *gates) {
    int64_t n = tn_size(joined, 0), width = tn_size(joined, 1);
    gates = tn_sigmoid(gates);
    if (tn_size(gates, 1) == width) return tn_mul(joined, gates);
    tn_tensor *heads = tn_reshape(joined, TN_DIMS(n, c->attention.heads, width / c->attention.heads));
    return tn_reshape(tn_mul(heads, tn_unsqueeze(gates, 2)), TN_DIMS(n, width));
}

static tn_tensor *attention(const llm_config *c, const llm_weights *w, int64_t layer, const llm_inputs *in,
                            llm_pass *pass, const tn_tensor *x) {
    const llm_layer *l = &w->layers[layer];
    tn_tensor *const *weight = l->weight, *qkv_parts[3];
    bool slides = tn_llm_slides(c, layer), latent = c->family->attention.latent, shared = latent && !in->seen;
    int64_t width = shared ? c->size[SIZE_KV_DOWN] : c->size[SIZE_HEAD];
    look_at(in, layer, PROBE_ATTENTION, x);
    if (latent)
        project_latent(c, l, w, layer, shared, x, qkv_parts);
    else
        project(c, w, layer, x, qkv_parts);
    const rotation *turn = &pass->turns[c->positions.two_ropes && slides];
    if (!tn_llm_has_rope(c, layer)) turn = NULL;
    tn_tensor *qkv[] = {heads(c, qkv_parts[0], width, weight[SLOT_Q_NORM], weight[SLOT_Q_NORM_BIAS], turn),
                        pass->kept[slides][0], pass->kept[slides][1]};
    if (tn_llm_key_layer(c, layer) == layer) {
        qkv[1] = heads(c, qkv_parts[1], width, weight[SLOT_K_NORM], weight[SLOT_K_NORM_BIAS], turn);
        qkv[2] = shared ? qkv[1] : heads(c, qkv_parts[2], width, NULL, NULL, NULL);
        if (c->family->norms.values) qkv[2] = tn_hf_rms_norm(qkv[2], NULL, c->eps);
        pass->kept[slides][0] = qkv[1];
        pass->kept[slides][1] = qkv[2];
    }
    for (int k = 0; k < 2 && turn && c->attention.unit_heads; k++)
        qkv[k] = tn_hf_rms_norm(qkv[k], NULL, c->eps);
    bool late = c->attention.late_scale > 0 && (c->attention.late_step == 0 || !turn);
    if (late) qkv[0] = tn_mul(qkv[0], late_scale(c, in));
    if (c->attention.alibi > 0) add_distances(c, in, qkv);
    tn_tensor *mixed = in->seen                      ? attend_alone(c, in, layer, qkv, weight[SLOT_SINKS])
                       : in->sequences && !in->pages ? attend_batch(c, in, layer, qkv)
                                                     : attend_cached(c, w, layer, w->layers, in, qkv);
    if (c->attention.alibi > 0) mixed = tn_contiguous(tn_narrow(mixed, 2, 0, c->size[SIZE_HEAD]));
    tn_tensor *joined = latent ? latent_values(c, l, shared, mixed)
                               : tn_reshape(mixed, TN_DIMS(tn_size(mixed, 0), c->size[SIZE_QUERIES]));
    if (c->family->attention.gated_queries)
        joined = tn_mul(joined, tn_sigmoid(ask(c, tn_llm_product(w, layer, SLOT_Q, x, NULL), 1)));
    if (weight[SLOT_ATTENTION_GATE])
        joined = gate_heads(c, joined, tn_llm_product(w, layer, SLOT_ATTENTION_GATE, x, NULL));
    joined = norm_behind(c, joined, weight[SLOT_O_NORM]);
    look_at(in, layer, PROBE_O, joined);
    return tn_llm_product(w, layer, SLOT_O, joined, weight[SLOT_O_BIAS]);
}

static tn_tensor *tn_llm_split_gate(tn_tensor **up, int dim, int64_t width) {
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

/* Gemma 4's experts, which read the residual stream as feed-forward beside them does, but by a norm of their own. */
static tn_tensor *add_experts(const llm_config *c, const llm_weights *w, int64_t layer, const llm_inputs *in,
                              const tn_tensor *sum, tn_tensor *dense) {
    tn_tensor *const *weight = w->layers[layer].weight;
    tn_tensor *asked = tn_hf_rms_norm(sum, weight[SLOT_ROUTER_SCALE], c->eps);
    asked = tn_mul_scalar(asked, 1 / sqrt((double)c->size[SIZE_HIDDEN]));
    tn_tensor *mixed = llm_mix(c, w, layer, in, tn_llm_norm(c, sum, weight[SLOT_EXPERTS_NORM], NULL), asked);
    return tn_add(norm_behind(c, dense, weight[SLOT_DENSE_POST_NORM]),
                  norm_behind(c, mixed, weight[SLOT_EXPERTS_POST_NORM]));
}

/* sum: the residual stream, which x is a norm of. */
static tn_tensor *feed_forward(const llm_config *c, const llm_weights *w, int64_t layer, const llm_inputs *in,
                               const tn_tensor *sum, const tn_tensor *x) {
    tn_tensor *const *weight = w->layers[layer].weight;
    look_at(in, layer, PROBE_FFN, x);
    if (tn_llm_shifts(c)) return tn_llm_shifted_forward(c, w, layer, in, x);
    if (weight[SLOT_ROUTER] && !weight[SLOT_DOWN]) {
        look_at(in, layer, PROBE_DOWN, x); /* not read, but each probe position needs a value */
        return llm_mix(c, w, layer, in, x, x);
    }
    tn_tensor *up = tn_llm_product(w, layer, SLOT_UP, x, weight[SLOT_UP_BIAS]);
    tn_tensor *gate = NULL;
    if (c->family->forward.fused_gate) {
        gate = tn_llm_split_gate(&up, 1, c->size[SIZE_INTERMEDIATE]);
    } else if (weight[SLOT_GATE]) {
        gate = scaled(tn_llm_product(w, layer, SLOT_GATE, x, weight[SLOT_GATE_BIAS]), c->scales.gate);
        if (tn_llm_is_sparse(c, layer)) gate = tn_llm_sparse_gates(c, gate);
    }
    tn_tensor *inner = gate                   ? tn_mul(c->activation(gate), up)
                       : weight[SLOT_ALPHA_P] ? xielu(up, weight[SLOT_ALPHA_P], weight[SLOT_ALPHA_N])
                                              : c->activation(up);
    inner = norm_behind(c, inner, weight[SLOT_DOWN_NORM]);
    look_at(in, layer, PROBE_DOWN, inner);
    tn_tensor *y = scaled(tn_llm_product(w, layer, SLOT_DOWN, inner, weight[SLOT_DOWN_BIAS]), c->scales.down);
    return weight[SLOT_ROUTER] ? add_experts(c, w, layer, in, sum, y) : y;
}

/* Per-layer embeddings [n, layers · SIZE_INPUTS]: a row of a table for each token, plus a projection of the embedding.
 * Source: Gemma 3n and 4, "per-layer embeddings", as transformers computes them. */
static tn_tensor *make_layer_inputs(const llm_config *c, const llm_weights *w, const tn_tensor *x, tn_tensor *own) {
    int64_t n = tn_size(x, 0), each = c->size[SIZE_INPUTS], all = c->size[SIZE_ALL_INPUTS];
    tn_tensor *made =
        tn_mul_scalar(tn_linear(x, w->head[SLOT_LAYER_PROJECTION], NULL), 1 / sqrt((double)c->size[SIZE_HIDDEN]));
    made = tn_llm_norm(c, tn_reshape(made, TN_DIMS(n, all / each, each)), w->head[SLOT_LAYER_NORM], NULL);
    own = tn_mul_scalar(own, sqrt((double)each));
    return tn_mul_scalar(tn_add(tn_reshape(made, TN_DIMS(n, all)), own), sqrt(0.5));
}

/* What the layer's own embedding adds to the residual stream x. */
static tn_tensor *layer_input(const llm_config *c, const llm_weights *w, int64_t layer, tn_tensor *x,
                              const tn_tensor *inputs) {
    int64_t each = c->size[SIZE_INPUTS];
    tn_tensor *gate = c->activation(tn_llm_product(w, layer, SLOT_INPUT_GATE, x, NULL));
    tn_tensor *made = tn_mul(gate, tn_narrow(inputs, 1, layer * each, each));
    made = tn_llm_product(w, layer, SLOT_INPUT_OUT, made, NULL);
    return tn_llm_norm(c, made, w->layers[layer].weight[SLOT_INPUT_NORM], NULL);
}

/* Waves of the tokens' positions: [n, hidden]. */
static tn_tensor *make_waves(const llm_config *c, const llm_inputs *in) {
    int64_t half = c->size[SIZE_HIDDEN] / 2, steps = half - (c->family->positions.waves == WAVES_CLOSED);
    tn_tensor *numbers = tn_arange(0, (double)half, 1, TN_F32);
    tn_tensor *frequencies = tn_exp(tn_mul_scalar(numbers, -log(10000) / (double)steps));
    tn_tensor *places = tn_reshape(in->positions, TN_DIMS(tn_size(in->positions, 0), 1));
    tn_tensor *angles = tn_mul(tn_add_scalar(places, (double)c->family->positions.first), frequencies);
    return tn_cat((tn_tensor *[]){tn_sin(angles), tn_cos(angles)}, 2, 1);
}

/* Rows of the embedding, with those of their positions where a model has learned them. */
static tn_tensor *embed(const llm_config *c, const llm_weights *w, const llm_inputs *in, llm_pass *pass) {
    int64_t own = c->size[SIZE_ALL_INPUTS], hidden = c->size[SIZE_HIDDEN];
    tn_tensor *x = tn_cast(in->rows, TN_F32);
    if (tn_dtype_of(x) != TN_F32) x = tn_cast(x, TN_F32); /* rows of a table in half precision */
    tn_tensor *inputs = own > 0 ? tn_narrow(x, 1, hidden, own) : NULL;
    if (inputs) x = tn_narrow(x, 1, 0, hidden);
    x = scaled(x, c->scales.embedding);
    if (inputs) pass->layer_inputs = make_layer_inputs(c, w, x, inputs);
    if (w->head[SLOT_EMBEDDING_NORM] || c->family->norms.of_embedding)
        x = tn_llm_norm(c, x, w->head[SLOT_EMBEDDING_NORM], w->head[SLOT_EMBEDDING_NORM_BIAS]);
    if (c->family->positions.waves != WAVES_NONE) return tn_add(x, make_waves(c, in));
    if (!w->head[SLOT_POSITIONS]) return x;
    tn_tensor *places = tn_reshape(tn_cast(in->positions, TN_I64), TN_DIMS(tn_size(in->positions, 0)));
    if (c->family->positions.first > 0) places = tn_add(places, tn_scalar_int(c->family->positions.first));
    return tn_add(x, tn_embedding(places, w->head[SLOT_POSITIONS]));
}

/* The last layer's feed-forward is needed only where logits are wanted, unless it has a state. */
static tn_tensor *take_rows(const llm_config *c, int64_t layer, const llm_inputs *in, llm_rows rows, tn_tensor *x) {
    bool last = layer == c->layers - 1 && rows == LLM_LAST_ROW && !tn_llm_shifts(c);
    return last ? tn_index_select(x, 0, in->last) : x;
}

/* What is multiplied by to add a layer's results to the residual stream. */
static double residual_scale(const llm_config *c, int64_t layer) {
    int64_t every = c->recurrent.halved_every;
    return every > 0 ? ldexp(c->scales.residual, (int)-(layer / every)) : c->scales.residual;
}

/* What a layer has made of its stream changes all of them. */
static void correct_streams(const llm_config *c, const llm_weights *w, int64_t layer, const llm_inputs *in,
                            llm_rows rows, llm_pass *pass, tn_tensor *made) {
    tn_tensor **streams = pass->streams;
    for (int64_t i = 0; i < c->size[SIZE_STREAMS]; i++)
        streams[i] = take_rows(c, layer, in, rows, streams[i]);
    tn_llm_correct_streams(c, w, layer, made, streams);
    tn_tensor *x = streams[c->streams.active];
    if (c->streams.scales) x = tn_mul(x, w->layers[layer].weight[SLOT_STREAM_SCALE]);
    x = layer_input(c, w, layer, x, take_rows(c, layer, in, rows, pass->layer_inputs));
    for (int64_t i = 1; i < c->size[SIZE_STREAMS]; i++)
        streams[i] = tn_add(streams[i], x);
}

/* Attention, a recurrent layer, or both. */
static tn_tensor *mix_tokens(const llm_config *c, const llm_weights *w, int64_t layer, const llm_inputs *in,
                             llm_pass *pass, tn_tensor *x) {
    tn_tensor *recurred = tn_llm_is_recurrent(c, layer) ? tn_llm_recur(c, w, layer, in, x) : NULL;
    if (!tn_llm_attends(c, layer)) return recurred;
    tn_tensor *attended = attention(c, w, layer, in, pass, scaled(x, c->scales.attention_in));
    attended = scaled(attended, c->scales.attention_out);
    return recurred ? tn_add(attended, scaled(recurred, c->scales.mix_out)) : attended;
}

static tn_tensor *llm_record_layers(const llm_config *model, const llm_weights *w, const llm_inputs *in,
                                    llm_rows rows) {
    llm_pass pass = {.turns = {make_rotation(&model->positions.rope, w->rope[0], in),
                               make_rotation(&model->positions.local_rope, w->rope[1], in)}};
    tn_tensor *x = embed(model, w, in, &pass);
    bool several = model->size[SIZE_STREAMS] > 1;
    if (several) tn_llm_begin_streams(model, w, x, pass.streams);
    for (int64_t i = 0; i < model->layers; i++) {
        tn_tensor *const *weight = w->layers[i].weight;
        llm_config own;
        const llm_config *c = tn_llm_of_layer(model, i, &own);
        if (tn_llm_is_skipped(model, i)) continue;
        if (several) x = tn_llm_predict_streams(c, w, i, pass.streams);
        tn_tensor *y = norm_before(c, x, weight[SLOT_ATTENTION_NORM], weight[SLOT_ATTENTION_NORM_BIAS]);
        tn_tensor *mixed = mix_tokens(c, w, i, in, &pass, y);
        if (!mixed) { /* feed-forward only */
            tn_tensor *before = take_rows(c, i, in, rows, x);
            x = tn_add(before, feed_forward(c, w, i, in, before, take_rows(c, i, in, rows, y)));
            continue;
        }
        mixed = norm_behind(c, mixed, weight[SLOT_ATTENTION_POST_NORM]);
        tn_tensor *sum = tn_add(x, scaled(mixed, residual_scale(c, i)));
        if (weight[SLOT_LAUREL_DOWN]) sum = tn_llm_add_laurel(c, w, i, y, sum);
        sum = take_rows(c, i, in, rows, sum);
        sum = norm_sum(c, sum, weight[SLOT_ATTENTION_NORM], weight[SLOT_ATTENTION_NORM_BIAS]);
        if (!weight[SLOT_DOWN] && !weight[SLOT_ROUTER]) { /* Mamba */
            x = sum;
            continue;
        }
        if (c->attention.parallel && !weight[SLOT_FFN_NORM])
            y = take_rows(c, i, in, rows, y);
        else
            y = norm_before(c, c->attention.parallel ? take_rows(c, i, in, rows, x) : sum, weight[SLOT_FFN_NORM],
                            weight[SLOT_FFN_NORM_BIAS]);
        y = norm_behind(c, feed_forward(c, w, i, in, sum, y), weight[SLOT_FFN_POST_NORM]);
        x = tn_add(sum, scaled(y, residual_scale(c, i)));
        if (c->recurrent.halved_every > 0 && (i + 1) % c->recurrent.halved_every == 0) x = tn_mul_scalar(x, 0.5);
        x = norm_sum(c, x, weight[SLOT_FFN_NORM], weight[SLOT_FFN_NORM_BIAS]);
        if (several)
            correct_streams(c, w, i, in, rows, &pass, x);
        else if (pass.layer_inputs)
            x = tn_add(x, layer_input(c, w, i, x, take_rows(c, i, in, rows, pass.layer_inputs)));
        if (weight[SLOT_LAYER_SCALE]) x = tn_mul(x, weight[SLOT_LAYER_SCALE]);
    }
    return several ? tn_llm_end_streams(model, w, pass.streams) : x;
}

static tn_tensor *last_dense(const llm_config *c, const llm_weights *w, tn_tensor *x) {
    tn_tensor *const *head = w->head;
    if (!head[SLOT_LAST_DENSE]) return x;
    x = c->last_activation(tn_linear(x, head[SLOT_LAST_DENSE], head[SLOT_LAST_DENSE_BIAS]));
    return tn_llm_norm(c, x, head[SLOT_LAST_DENSE_NORM], head[SLOT_LAST_DENSE_NORM_BIAS]);
}

tn_tensor *tn_llm_record(const llm_config *c, const llm_weights *w, const llm_inputs *in, llm_rows rows) {
    tn_tensor *logits = NULL;
    TN_SCOPE;
    tn_tensor *x = llm_record_layers(c, w, in, rows);
    if (rows == LLM_LAST_ROW && tn_llm_shifts(c)) x = tn_index_select(x, 0, in->last);
    if (rows != LLM_NO_ROWS) {
        const tn_tensor *output = c->tied ? w->head[SLOT_EMBEDDING] : w->head[SLOT_OUTPUT];
        x = norm_before(c, x, w->head[SLOT_OUTPUT_NORM], w->head[SLOT_OUTPUT_NORM_BIAS]);
        x = last_dense(c, w, x);
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

static void free_names(named_weights *n) { tn_txt_free(n->list); }

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
    int64_t layers;
    int in_count, out_count, name_count;
} network;

enum { OWN_INPUTS = 3, OWN_OUTPUTS = 1, A_LAYER = 2 };

static tn_status begin_network(network *n, const llm_config *c) {
    size_t each = A_LAYER * (size_t)c->layers;
    llm_config own; /* layers without a window may have wider heads */
    int64_t widest = 0;
    for (int64_t i = 0; i < c->layers; i++) {
        const llm_config *of = tn_llm_of_layer(c, i, &own);
        int64_t width = of->attention.kv_heads * tn_llm_key_width(of);
        widest = width > widest ? width : widest;
    }
    n->zeros = tn_txt_zalloc(SOME_PAST * (size_t)widest, sizeof *n->zeros);
    n->in = tn_txt_zalloc(OWN_INPUTS + each, sizeof *n->in);
    n->out = tn_txt_zalloc(OWN_OUTPUTS + each, sizeof *n->out);
    n->names = tn_txt_zalloc(2 * each, sizeof *n->names);
    n->past = tn_txt_zalloc(each, sizeof(tn_tensor *));
    n->present = tn_txt_zalloc(each, sizeof(tn_tensor *));
    return n->zeros && n->in && n->out && n->names && n->past && n->present ? TN_OK : TN_ERR_MEMORY;
}

static void end_network(network *n) {
    for (int64_t i = 0; n->present && i < A_LAYER * n->layers; i++)
        tn_free(n->present[i]);
    tn_txt_free_each(n->in, n->out, n->names, n->past, n->present, n->zeros);
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
    for (int64_t i = 0; i < A_LAYER * c->layers; i++) {
        llm_config own;
        const llm_config *of = tn_llm_of_layer(c, i / A_LAYER, &own);
        const int64_t shape[] = {1, of->attention.kv_heads, SOME_PAST, tn_llm_key_width(of)};
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
    AUTO_TXT_TENSOR tn_tensor *logits = tn_llm_record(c, w, &in, LLM_ALL_ROWS);
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
    return tn_onnx_export(path, n->in, n->in_count, n->out, n->out_count, &o);
}

tn_status tn_llm_write_onnx(const llm_source *s, const llm_config *c, const llm_weights *w, const char *path,
                            bool cache) {
    AUTO_CALL(free_names) named_weights weights = {0};
    AUTO_CALL(end_network) network n = {.layers = c->layers};
    TRY(name_weights(s, c, w, &weights));
    TRY(begin_network(&n, c));
    TN_SCOPE;
    TN_NO_GRAD;
    return save_network(&n, c, w, &weights, path, cache);
}

/* ==== latent attention ============================================================================================ */
/* Multi-head latent attention: queries, and keys with values, are made of short vectors.
 *
 * q · (W_k latent) = (q W_k) · latent, and a sum of values W_v latent is W_v times the sum of latents. So where there
 * are caches, W_k goes to the queries and W_v after attention, in which all heads have one key: the latent vector,
 * which is the value too, after the part that rope rotates. That is all that a token keeps. Without caches, as in
 * training, keys and values of each head are written out, which costs less arithmetic for each pair of tokens.
 * Source: DeepSeek-AI 2024, "DeepSeek-V2", section 2.1. */

/* Of the norms of the short vectors, whatever config.json says: a constant of the models' own implementation. */
static const double LATENT_EPS = 1e-6;

static tn_tensor *joined(tn_tensor *x) { return tn_reshape(x, TN_DIMS(tn_size(x, 0), tn_size(x, 1) * tn_size(x, 2))); }

tn_tensor *tn_llm_keys_of(const llm_config *c, const tn_tensor *up) {
    int64_t heads = c->attention.heads, plain = c->size[SIZE_PLAIN];
    tn_tensor *each = tn_reshape(up, TN_DIMS(heads, plain + c->size[SIZE_VALUE], c->size[SIZE_KV_RANK]));
    return tn_contiguous(tn_transpose(tn_narrow(each, 1, 0, plain), 1, 2));
}

/* The numbers of matrices [first, first + count) of each head, which has `all`: [n, heads · count]. */
static tn_tensor *number_matrices(const llm_config *c, int64_t n, int64_t all, int64_t first, int64_t count) {
    int64_t heads = c->attention.heads;
    tn_tensor *numbers = tn_reshape(tn_arange(0, (double)(heads * all), 1, TN_I64), TN_DIMS(heads, all));
    numbers = tn_reshape(tn_narrow(numbers, 1, first, count), TN_DIMS(1, heads * count));
    return tn_contiguous(tn_expand(numbers, TN_DIMS(n, heads * count)));
}

static tn_tensor *latent_queries(const llm_config *c, const llm_weights *w, int64_t layer, const tn_tensor *x) {
    tn_tensor *const *weight = w->layers[layer].weight;
    tn_tensor *q = weight[SLOT_Q] ? tn_llm_product(w, layer, SLOT_Q, x, NULL) : NULL;
    if (!q) {
        q = tn_hf_rms_norm(tn_llm_product(w, layer, SLOT_Q_DOWN, x, NULL), weight[SLOT_Q_DOWN_NORM], LATENT_EPS);
        q = tn_llm_product(w, layer, SLOT_Q_UP, q, NULL);
    }
    return tn_reshape(q, TN_DIMS(tn_size(x, 0), c->attention.heads, c->size[SIZE_HEAD]));
}

static void project_latent(const llm_config *c, const llm_layer *l, const llm_weights *w, int64_t layer, bool cached,
                           const tn_tensor *x, tn_tensor *out[3]) {
    int64_t n = tn_size(x, 0), heads = c->attention.heads, rope = 2 * c->size[SIZE_HALF], plain = c->size[SIZE_PLAIN];
    int64_t rank = c->size[SIZE_KV_RANK], values = c->size[SIZE_VALUE];
    tn_tensor *q = latent_queries(c, w, layer, x), *turned_q = tn_narrow(q, 2, plain, rope);
    tn_tensor *down = tn_llm_product(w, layer, SLOT_KV_DOWN, x, NULL), *turned = tn_narrow(down, 1, rank, rope);
    tn_tensor *latent = tn_hf_rms_norm(tn_narrow(down, 1, 0, rank), l->weight[SLOT_KV_DOWN_NORM], LATENT_EPS);
    q = tn_narrow(q, 2, 0, plain);
    if (cached) {
        const tn_tensor *keys = l->key_up ? l->key_up : tn_llm_keys_of(c, l->weight[SLOT_KV_UP]);
        q = tn_linear_experts(tn_contiguous(q), keys, number_matrices(c, n, 1, 0, 1));
        out[0] = joined(tn_cat((tn_tensor *[]){turned_q, q}, 2, 2));
        out[1] = out[2] = tn_cat((tn_tensor *[]){turned, latent}, 2, 1);
        return;
    }
    turned = tn_expand(tn_unsqueeze(turned, 1), TN_DIMS(n, heads, rope));
    tn_tensor *kv = tn_reshape(tn_llm_product(w, layer, SLOT_KV_UP, latent, NULL), TN_DIMS(n, heads, plain + values));
    out[0] = joined(tn_cat((tn_tensor *[]){turned_q, q}, 2, 2));
    out[1] = joined(tn_cat((tn_tensor *[]){turned, tn_narrow(kv, 2, 0, plain)}, 2, 2));
    out[2] = joined(tn_pad(tn_narrow(kv, 2, plain, values), (int64_t[]){0, plain + rope - values}, 2, 0));
}

/* The matrix of a head has rows for keys, then for values. */
static tn_tensor *latent_values(const llm_config *c, const llm_layer *l, bool cached, const tn_tensor *mixed) {
    int64_t n = tn_size(mixed, 0), heads = c->attention.heads, rank = c->size[SIZE_KV_RANK];
    int64_t plain = c->size[SIZE_PLAIN], values = c->size[SIZE_VALUE], rows = tn_llm_latent_rows(plain, values);
    if (!cached) return joined(tn_contiguous(tn_narrow(mixed, 2, 0, values)));
    int64_t all = (plain + values) / rows, count = values / rows;
    tn_tensor *latents = tn_narrow(mixed, 2, 2 * c->size[SIZE_HALF], rank);
    if (count > 1) latents = tn_expand(tn_unsqueeze(latents, 2), TN_DIMS(n, heads, count, rank));
    latents = tn_contiguous(tn_reshape(latents, TN_DIMS(n, heads * count, rank)));
    tn_tensor *matrices = tn_reshape(l->weight[SLOT_KV_UP], TN_DIMS(heads * all, rows, rank));
    return joined(tn_linear_experts(latents, matrices, number_matrices(c, n, all, plain / rows, count)));
}

/* ==== mixtures of experts ========================================================================================= */
/* Mixtures of experts: a router gives each token some of the layer's feed-forward networks. */

/* The expert that all tokens have, weighted by its gate value for each token where it has one. */
static tn_tensor *share(const llm_config *c, const llm_weights *w, int64_t layer, const tn_tensor *x) {
    tn_tensor *const *weight = w->layers[layer].weight, *router = weight[SLOT_SHARED_ROUTER];
    tn_tensor *up = tn_llm_product(w, layer, SLOT_SHARED_UP, x, NULL), *gate = NULL;
    if (weight[SLOT_SHARED_GATE])
        gate = tn_llm_product(w, layer, SLOT_SHARED_GATE, x, NULL);
    else if (c->family->forward.fused_gate)
        gate = tn_llm_split_gate(&up, 1, c->size[SIZE_SHARED]);
    tn_tensor *inner = gate ? tn_mul(c->activation(gate), up) : c->activation(up);
    tn_tensor *y = tn_llm_product(w, layer, SLOT_SHARED_DOWN, inner, NULL);
    if (!router) return y;
    tn_tensor *wish = tn_linear(x, tn_reshape(router, TN_DIMS(1, c->size[SIZE_HIDDEN])), NULL);
    return tn_mul(tn_sigmoid(wish), y);
}

/* What an expert's first product, [tokens, width] or [tokens, choices, width], becomes before the second one. gate:
 * NULL where there is none. */
static tn_tensor *activate(const llm_config *c, tn_tensor *gate, tn_tensor *up) {
    if (!gate) return c->activation(up);
    if (!c->family->forward.clamped_gate) return tn_mul(c->activation(gate), up);
    gate = tn_clamp(gate, -INFINITY, c->experts.gate_limit);
    up = tn_clamp(up, -c->experts.gate_limit, c->experts.gate_limit);
    return tn_mul(tn_add_scalar(up, 1), tn_mul(gate, tn_sigmoid(tn_mul_scalar(gate, c->experts.gate_slope))));
}

/* Of such a product: the gate, which is returned, and what it gates. */
static tn_tensor *part_gate(const llm_config *c, tn_tensor **up) {
    int64_t width = c->size[SIZE_EXPERT];
    int rank = tn_rank(*up);
    if (!c->family->forward.clamped_gate) return tn_llm_split_gate(up, rank - 1, width);
    tn_tensor *pairs = rank == 2 ? tn_reshape(*up, TN_DIMS(tn_size(*up, 0), width, 2))
                                 : tn_reshape(*up, TN_DIMS(tn_size(*up, 0), tn_size(*up, 1), width, 2));
    *up = tn_select(pairs, rank, 1);
    return tn_select(pairs, rank, 0);
}

static bool has_fused_gate(const llm_config *c) {
    return c->family->forward.fused_gate || c->family->experts.fused_gate;
}

static tn_tensor *biased(tn_tensor *x, const tn_tensor *bias, const tn_tensor *chosen) {
    return bias ? tn_add(x, tn_embedding(chosen, bias)) : x;
}

/* Products that read what the router's weights multiply, in families where these multiply an expert's input. */
static tn_tensor *scale_input(const llm_config *c, tn_tensor *made, const tn_tensor *by) {
    return c->family->experts.scales_input ? tn_mul(made, by) : made;
}

/* The sum over all experts, each times what the router gives it: 0 for those that are not chosen.
 *   by, chosen: [n, choices].
 * Costs experts / choices times as much as the chosen ones, and has gradients. */
static tn_tensor *mix_all(const llm_config *c, tn_tensor *const *weight, const tn_tensor *x, const tn_tensor *chosen,
                          const tn_tensor *by) {
    tn_tensor *y = NULL;
    for (int64_t e = 0; e < c->size[SIZE_EXPERTS]; e++) {
        tn_tensor *share = tn_sum(tn_mul(by, tn_eq_scalar(chosen, (double)e)), (int64_t[]){1}, 1, true);
        tn_tensor *up_bias = weight[SLOT_EXPERT_UP_BIAS] ? tn_select(weight[SLOT_EXPERT_UP_BIAS], 0, e) : NULL;
        tn_tensor *gate_bias = weight[SLOT_EXPERT_GATE_BIAS] ? tn_select(weight[SLOT_EXPERT_GATE_BIAS], 0, e) : NULL;
        tn_tensor *down_bias = weight[SLOT_EXPERT_DOWN_BIAS] ? tn_select(weight[SLOT_EXPERT_DOWN_BIAS], 0, e) : NULL;
        tn_tensor *up = tn_linear(x, tn_select(weight[SLOT_EXPERT_UP], 0, e), up_bias), *gate = NULL;
        up = scale_input(c, up, share);
        if (has_fused_gate(c))
            gate = part_gate(c, &up);
        else if (weight[SLOT_EXPERT_GATE])
            gate = scale_input(c, tn_linear(x, tn_select(weight[SLOT_EXPERT_GATE], 0, e), gate_bias), share);
        tn_tensor *inner = activate(c, gate, up);
        tn_tensor *made = tn_linear(inner, tn_select(weight[SLOT_EXPERT_DOWN], 0, e), down_bias);
        if (!c->family->experts.scales_input) made = tn_mul(made, share);
        y = y ? tn_add(y, made) : made;
    }
    return y;
}

/* -inf for experts [n, experts] outside the best groups. A group is as good as the sum of its two best experts, or as
 * its best one. Source: DeepSeek-AI 2024, "DeepSeek-V3", section 2.1.2; transformers. */
static tn_tensor *limit_to_groups(const llm_config *c, tn_tensor *wishes) {
    int64_t n = tn_size(wishes, 0), each = c->size[SIZE_EXPERTS] / c->experts.groups;
    tn_tensor *groups = tn_reshape(wishes, TN_DIMS(n, c->experts.groups, each));
    tn_tensor *best = tn_sum(tn_topk(groups, tn_llm_group_best(c), 2, true), (int64_t[]){2}, 1, false);
    tn_tensor *chosen = tn_unsqueeze(tn_topk_indices(best, c->experts.chosen_groups, 1, true), 2);
    tn_tensor *numbers = tn_arange(0, (double)c->experts.groups, 1, TN_I64);
    tn_tensor *other = tn_eq_scalar(tn_sum(tn_cast(tn_eq(chosen, numbers), TN_F32), (int64_t[]){1}, 1, false), 0);
    return tn_reshape(tn_masked_fill(groups, tn_unsqueeze(other, 2), -INFINITY), TN_DIMS(n, c->size[SIZE_EXPERTS]));
}

/* The best of `left`, scores [n, experts] without an expert that has been chosen, and its share of the softmax over
 * those that are nearly as good. */
static tn_tensor *take_best(const llm_config *c, const tn_tensor *scores, const tn_tensor *left, tn_tensor **which) {
    tn_tensor *best = tn_amax(left, (int64_t[]){1}, 1, true);
    tn_tensor *distance = tn_div(tn_sub(best, scores), tn_maximum(tn_abs(scores), best));
    tn_tensor *far = tn_gt_scalar(distance, 2 * c->experts.jitter);
    *which = tn_topk_indices(left, 1, 1, true);
    return tn_gather(tn_softmax(tn_masked_fill(left, far, -INFINITY), -1), 1, *which);
}

/* Two experts, each weighted alone. Source: Liu et al. 2024, "GRIN: GRadient-INformed MoE", as transformers has it. */
static tn_tensor *choose_sparsely(const llm_config *c, const tn_tensor *scores, tn_tensor **chosen) {
    tn_tensor *which[2], *by[2];
    by[0] = take_best(c, scores, scores, &which[0]);
    tn_tensor *numbers = tn_arange(0, (double)c->size[SIZE_EXPERTS], 1, TN_I64);
    by[1] = take_best(c, scores, tn_masked_fill(scores, tn_eq(numbers, which[0]), -INFINITY), &which[1]);
    *chosen = tn_cat(which, 2, 1);
    return tn_cat(by, 2, 1);
}

/* The experts of each token, *chosen [n, choices], and their weights. */
static tn_tensor *choose(const llm_config *c, tn_tensor *const *weight, const tn_tensor *x, tn_tensor **chosen) {
    tn_tensor *likes = tn_linear(x, weight[SLOT_ROUTER], weight[SLOT_ROUTER_BIAS]);
    if (c->family->experts.sparse_mixer) return choose_sparsely(c, likes, chosen);
    tn_tensor *logits = likes;
    likes = c->family->experts.by_sigmoid ? tn_sigmoid(likes) : tn_softmax(likes, -1);
    tn_tensor *wishes = c->family->experts.by_logits ? logits : likes;
    if (weight[SLOT_CHOICE_BIAS]) wishes = tn_add(wishes, weight[SLOT_CHOICE_BIAS]);
    if (c->experts.groups > 0) wishes = limit_to_groups(c, wishes);
    *chosen = tn_topk_indices(wishes, c->experts.choices, 1, true);
    tn_tensor *by = wishes == likes ? tn_topk(likes, c->experts.choices, 1, true) : tn_gather(likes, 1, *chosen);
    if (c->experts.whole_choice) by = tn_div(by, tn_sum(by, (int64_t[]){1}, 1, true));
    return c->experts.scale == 1 ? by : tn_mul_scalar(by, c->experts.scale);
}

/* Each token goes through the experts that its router likes best, and what they make is added by how much it likes
 * them. No matrix has columns to be looked at: they differ from expert to expert. */
static tn_tensor *llm_mix(const llm_config *c, const llm_weights *w, int64_t layer, const llm_inputs *in,
                          const tn_tensor *x, const tn_tensor *asked) {
    tn_tensor *const *weight = w->layers[layer].weight, *y, *chosen;
    tn_tensor *by = choose(c, weight, asked, &chosen), *scales = weight[SLOT_EXPERT_SCALE];
    if (scales) {
        tn_tensor *each = tn_embedding(chosen, tn_reshape(scales, TN_DIMS(c->size[SIZE_EXPERTS], 1)));
        by = tn_mul(by, tn_reshape(each, TN_DIMS(tn_size(by, 0), c->experts.choices)));
    }
    if (in->trains) {
        y = mix_all(c, weight, x, chosen, by);
    } else {
        tn_tensor *up = tn_linear_experts(x, weight[SLOT_EXPERT_UP], chosen);
        up = biased(up, weight[SLOT_EXPERT_UP_BIAS], chosen);
        tn_tensor *each = tn_unsqueeze(by, 2), *gate = NULL;
        up = scale_input(c, up, each);
        if (has_fused_gate(c))
            gate = part_gate(c, &up);
        else if (weight[SLOT_EXPERT_GATE])
            gate = scale_input(
                c,
                biased(tn_linear_experts(x, weight[SLOT_EXPERT_GATE], chosen), weight[SLOT_EXPERT_GATE_BIAS], chosen),
                each);
        tn_tensor *made = tn_linear_experts(activate(c, gate, up), weight[SLOT_EXPERT_DOWN], chosen);
        made = biased(made, weight[SLOT_EXPERT_DOWN_BIAS], chosen);
        if (!c->family->experts.scales_input) made = tn_mul(made, each);
        y = tn_sum(made, (int64_t[]){1}, 1, false);
    }
    return weight[SLOT_SHARED_UP] ? tn_add(y, share(c, w, layer, x)) : y;
}
