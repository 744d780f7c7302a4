/* onnx_attention.c — ONNX: attention operators with a state, rotary positions, GroupQueryAttention.
 *
 * Attention becomes scaled_dot_product_attention, which has kernels, unless the node returns or changes the scores;
 * then products and softmax are recorded. All restrictions (causal order, windows, lengths, a bool mask) become one
 * bool tensor. */
#include <math.h>

#include "onnx/operator_support.h"

typedef onnx_heads ops_attention_heads;

/* ---- inputs ------------------------------------------------------------------------------------------------------ */

/* [batch, positions, heads · features] in four dimensions. */
static tn_status split_heads(const onnx_call *c, int input, const char *name, const tn_tensor **out) {
    const tn_tensor *x = onnx_in(c, input);
    TRY(tn_status_of(x));
    *out = x;
    if (tn_rank(x) == 4) return TN_OK;
    int64_t count = onnx_int(c, name, 0);
    if (tn_rank(x) != 3 || count < 1 || tn_size(x, 2) % count)
        return onnx_refuse(c, "%lld heads do not fit an input of %d dimensions", (long long)count, tn_rank(x));
    int64_t sizes[] = {count, tn_size(x, 2) / count};
    *out = tn_transpose(tn_unflatten(x, 2, sizes, 2), 1, 2);
    return tn_status_of(*out);
}

tn_tensor *onnx_joined_heads(tn_tensor *y) { return tn_flatten(tn_transpose(y, 1, 2), 2, 3); }

static const tn_tensor *with_past(const onnx_call *c, int input, const tn_tensor *x) {
    if (!onnx_has(c, input)) return x;
    tn_tensor *both[] = {tn_detach(onnx_in(c, input)), tn_detach(x)};
    return tn_cat(both, 2, 2);
}

static tn_tensor *both_hold(tn_tensor *a, tn_tensor *b) { return a && b ? tn_logical_and(a, b) : a ? a : b; }

/* How far a key lies after the query: j − (i + offset), [queries, keys] or one a batch. */
static tn_tensor *distance(const onnx_call *c, int64_t queries, int64_t keys) {
    tn_tensor *i = tn_reshape(tn_arange(0, (double)queries, 1, TN_I64), (int64_t[]){queries, 1}, 2);
    tn_tensor *ahead = tn_sub(tn_arange(0, (double)keys, 1, TN_I64), i);
    if (onnx_has(c, 4)) return tn_sub(ahead, tn_scalar_int(tn_size(onnx_in(c, 4), 2)));
    if (!onnx_has(c, 6)) return ahead;
    const tn_tensor *valid = onnx_in(c, 6);
    tn_tensor *offset = tn_sub(tn_reshape(valid, (int64_t[]){tn_numel(valid), 1, 1, 1}, 4), tn_scalar_int(queries));
    return tn_sub(ahead, offset);
}

/* What order, windows and lengths let a query see. */
static tn_tensor *seen_by_place(const onnx_call *c, int64_t queries, int64_t keys) {
    int64_t left = onnx_int(c, "left_window_size", -1), right = onnx_int(c, "right_window_size", -1);
    if (onnx_int(c, "is_causal", 0)) right = 0;
    tn_tensor *seen = NULL;
    if (left >= 0 || right >= 0) {
        tn_tensor *ahead = distance(c, queries, keys);
        if (right >= 0) seen = tn_le_scalar(ahead, (double)right);
        if (left >= 0) seen = both_hold(seen, tn_ge_scalar(ahead, (double)-left));
    }
    if (!onnx_has(c, 6)) return seen;
    const tn_tensor *valid = onnx_in(c, 6);
    tn_tensor *length = tn_reshape(valid, (int64_t[]){tn_numel(valid), 1, 1, 1}, 4);
    return both_hold(seen, tn_lt(tn_arange(0, (double)keys, 1, TN_I64), length));
}

/* A mask may end before the keys do: those are not seen. */
static void take_mask(const onnx_call *c, ops_attention_heads *h, int64_t keys) {
    const tn_tensor *mask = onnx_in(c, 3);
    bool what_is_seen = tn_dtype_of(mask) == TN_BOOL;
    int64_t pads[2] = {0, tn_size(mask, -1) > 1 ? keys - tn_size(mask, -1) : 0};
    if (pads[1] > 0) mask = tn_pad(mask, pads, 2, what_is_seen ? 0 : -INFINITY);
    if (what_is_seen)
        h->seen = both_hold(h->seen, tn_detach(mask));
    else
        h->bias = onnx_as(mask, tn_dtype_of(h->q));
}

/* Order, windows and the additive mask as one additive mask. */
static const tn_tensor *additive(const ops_attention_heads *h) {
    if (!h->seen) return h->bias;
    tn_dtype t = tn_dtype_of(h->q);
    tn_tensor *hidden = tn_full(NULL, 0, -INFINITY, t);
    return tn_where(h->seen, h->bias ? h->bias : tn_zeros(NULL, 0, t), hidden);
}

/* 0 for queries that see nothing. */
static tn_tensor *unless_blind(tn_tensor *y, const tn_tensor *bias) {
    static const int64_t last = -1;
    if (!bias) return y;
    tn_tensor *blind = tn_eq_scalar(tn_amax(bias, &last, 1, true), -INFINITY);
    return tn_where(blind, tn_zeros(NULL, 0, tn_dtype_of(y)), y);
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

/* Keys and values as often as queries share them. */
static tn_tensor *repeated(const tn_tensor *x, int64_t count) {
    int64_t times = tn_size(x, 1) ? count / tn_size(x, 1) : 1;
    int64_t shape[] = {tn_size(x, 0), tn_size(x, 1), times, tn_size(x, 2), tn_size(x, 3)};
    return times == 1 ? tn_detach(x) : tn_flatten(tn_expand(tn_unsqueeze(x, 2), shape, 5), 1, 2);
}

/* Which step of the scores is asked for (qk_matmul_output_mode). */
enum { RAW, CAPPED, BIASED, WEIGHTS };

static tn_status put_scores(onnx_call *c, int step, tn_tensor *scores) {
    if (!onnx_wants(c, 3) || onnx_int(c, "qk_matmul_output_mode", 0) != step) return TN_OK;
    return onnx_put(c, 3, tn_cast(scores, tn_dtype_of(onnx_in(c, 0))));
}

static tn_status written_out(onnx_call *c, const ops_attention_heads *h, tn_tensor **y) {
    int64_t count = tn_size(h->q, 1);
    double cap = onnx_float(c, "softcap", 0), root = sqrt(h->scale);
    tn_dtype own = tn_dtype_of(h->q);
    tn_dtype precision = onnx_types[onnx_type_attribute(c, "softmax_precision", onnx_type_of(own))].dtype;
    tn_tensor *keys = tn_transpose(repeated(h->k, count), 2, 3);
    tn_tensor *scores = tn_matmul(tn_mul_scalar(h->q, root), tn_mul_scalar(keys, root));
    const tn_tensor *bias = additive(h);
    TRY(put_scores(c, RAW, scores));
    if (cap > 0) scores = tn_mul_scalar(tn_tanh(tn_div_scalar(scores, cap)), cap);
    TRY(put_scores(c, CAPPED, scores));
    if (bias) scores = tn_add(scores, bias);
    TRY(put_scores(c, BIASED, scores));
    int64_t keys_end = tn_size(scores, -1), shape[] = {tn_size(scores, 0), count, tn_size(scores, 2), 1};
    if (h->sink) { /* one more score, whose weight goes nowhere */
        const tn_tensor *own_sink = onnx_as(tn_reshape(h->sink, (int64_t[]){1, -1, 1, 1}, 4), own);
        scores = tn_cat((tn_tensor *[]){scores, tn_expand(own_sink, shape, 4)}, 2, 3);
    }
    tn_tensor *weights = tn_cast(unless_blind(tn_softmax(onnx_as(scores, precision), -1), bias), own);
    if (h->sink) weights = tn_narrow(weights, 3, 0, keys_end);
    TRY(put_scores(c, WEIGHTS, weights));
    *y = tn_matmul(weights, repeated(h->v, count));
    return TN_OK;
}

/* Is it scaled_dot_product_attention, or does the node bend scores or ask for them (softcap, softmax_precision, output
 * 3)? */
static bool onnx_attends_plainly(const onnx_call *c, const onnx_heads *h) {
    bool bent = onnx_wants(c, 3) || onnx_float(c, "softcap", 0) != 0 || onnx_find(c, "softmax_precision");
    return !bent && !h->sink;
}

tn_status onnx_attend(onnx_call *c, const onnx_heads *h, bool causal, tn_tensor **y) {
    if (!onnx_attends_plainly(c, h)) return written_out(c, h, y);
    tn_scaled_dot_product_attention_options o = TN_SCALED_DOT_PRODUCT_ATTENTION_DEFAULTS;
    o.is_causal = causal;
    o.scale = h->scale;
    *y = tn_scaled_dot_product_attention(h->q, h->k, h->v, h->bias ? additive(h) : h->seen, &o);
    return TN_OK;
}

tn_status onnx_attention(onnx_call *c) {
    ops_attention_heads h = {0};
    tn_tensor *y;
    TRY(split_heads(c, 0, "q_num_heads", &h.q));
    TRY(split_heads(c, 1, "kv_num_heads", &h.k));
    TRY(split_heads(c, 2, "kv_num_heads", &h.v));
    h.k = with_past(c, 4, h.k);
    h.v = with_past(c, 5, h.v);
    TRY(tn_status_of(h.q));
    TRY(tn_status_of(h.k));
    TRY(tn_status_of(h.v));
    int64_t queries = tn_size(h.q, 2), keys = tn_size(h.k, 2);
    if (tn_size(h.k, 1) < 1 || tn_size(h.q, 1) % tn_size(h.k, 1))
        return onnx_refuse(c, "the heads of the query must be a multiple of the key's");
    h.scale = onnx_float(c, "scale", 0);
    if (!onnx_find(c, "scale")) h.scale = 1 / sqrt((double)tn_size(h.q, 3));
    bool causal = onnx_attends_plainly(c, &h) && onnx_int(c, "is_causal", 0) && !onnx_has(c, 3) && !onnx_has(c, 4) &&
                  !onnx_has(c, 6) && onnx_int(c, "left_window_size", -1) < 0;
    if (!causal) h.seen = seen_by_place(c, queries, keys);
    if (onnx_has(c, 3)) take_mask(c, &h, keys);
    TRY(onnx_attend(c, &h, causal, &y));
    TRY(onnx_put(c, 0, tn_rank(onnx_in(c, 0)) == 3 ? onnx_joined_heads(y) : y));
    if (onnx_wants(c, 1)) TRY(onnx_put(c, 1, tn_detach(h.k)));
    return onnx_wants(c, 2) ? onnx_put(c, 2, tn_detach(h.v)) : TN_OK;
}

/* What a subgraph makes of scores or weights, in their place. */
static tn_status modified(onnx_call *c, const char *name, tn_tensor **t) {
    const onnx_attribute *a = onnx_find(c, name);
    if (!a || !a->graphs) return TN_OK;
    AUTO_VALUE onnx_value *in = onnx_value_tensor(*t, onnx_type_of(tn_dtype_of(*t))), *out = NULL;
    if (!in) return tn_error_code();
    TRY(onnx_call_graph(c, a->graphs[0], &in, 1, &out, 1));
    if (out->kind != ONNX_TENSOR) return onnx_refuse(c, "%s did not return a tensor", name);
    *t = tn_detach(out->tensor);
    return TN_OK;
}

static tn_status flex_attention(onnx_call *c) {
    const tn_tensor *q = onnx_in(c, 0), *k = onnx_in(c, 1), *v = onnx_in(c, 2);
    tn_dtype own = tn_dtype_of(q);
    TRY(tn_status_of(q));
    TRY(tn_status_of(k));
    if (tn_rank(q) != 4 || tn_rank(k) != 4 || tn_size(k, 1) < 1 || tn_size(q, 1) % tn_size(k, 1))
        return onnx_refuse(c, "the heads of the query must be a multiple of the key's");
    onnx_type precision = onnx_type_attribute(c, "softmax_precision", own == TN_F64 ? ONNX_DOUBLE : ONNX_FLOAT);
    double scale = onnx_float(c, "scale", 0);
    if (!onnx_find(c, "scale")) scale = 1 / sqrt((double)tn_size(q, 3));
    int64_t count = tn_size(q, 1);
    tn_dtype wide = onnx_types[precision].dtype;
    tn_tensor *keys = tn_transpose(repeated(onnx_as(k, wide), count), 2, 3);
    tn_tensor *t = tn_mul_scalar(tn_matmul(onnx_as(q, wide), keys), scale);
    TRY(modified(c, "score_mod", &t));
    t = tn_softmax(t, -1);
    TRY(modified(c, "prob_mod", &t));
    return onnx_put(c, 0, tn_cast(tn_matmul(t, repeated(onnx_as(v, wide), count)), own));
}

const onnx_op_row onnx_preview_ops[] = {{"FlexAttention", 1, .run = flex_attention}, {.name = NULL}};

/* ---- linear attention -------------------------------------------------------------------------------------------- */

/* The recurrence of one node: state ← decay · state + rate · key ⊗ (value − what the key finds already). */
typedef struct recurrence {
    const tn_tensor *q, *k, *v, *decay, *rate; /* [batch, heads, steps, …]; the last two may be NULL */
    bool corrects;
    tn_tensor *state; /* [batch, heads, keys, values] */
} recurrence;

static tn_tensor *at_step(const tn_tensor *x, int64_t t) { return tn_select(x, 2, t); }

static tn_tensor *advance(recurrence *r, int64_t t, int64_t count) {
    static const int64_t keys_dim = 2;
    tn_tensor *key = tn_unsqueeze(at_step(r->k, t), 3), *value = at_step(r->v, t);
    if (r->decay) r->state = tn_mul(r->state, tn_exp(tn_unsqueeze(at_step(r->decay, t), 3)));
    if (r->corrects) value = tn_sub(value, tn_sum(tn_mul(r->state, key), &keys_dim, 1, false));
    if (r->corrects && r->rate) value = tn_mul(value, at_step(r->rate, t));
    r->state = tn_add(r->state, tn_mul(key, tn_unsqueeze(value, 2)));
    return tn_matmul(tn_unsqueeze(at_step(r->q, t), 2), repeated(r->state, count));
}

tn_status onnx_linear_attention(onnx_call *c) {
    enum { STEPS_MOST = 8192 };
    recurrence r = {0};
    onnx_text rule = onnx_string(c, "update_rule", "gated_delta");
    bool gated = onnx_is(rule, "gated") || onnx_is(rule, "gated_delta");
    r.corrects = onnx_is(rule, "delta") || onnx_is(rule, "gated_delta");
    TRY(split_heads(c, 0, "q_num_heads", &r.q));
    TRY(split_heads(c, 1, "kv_num_heads", &r.k));
    TRY(split_heads(c, 2, "kv_num_heads", &r.v));
    if (gated) TRY(split_heads(c, 4, "kv_num_heads", &r.decay));
    int64_t steps = tn_size(r.q, 2), count = tn_size(r.q, 1);
    if (r.corrects && onnx_has(c, 5)) r.rate = tn_unsqueeze(tn_transpose(onnx_in(c, 5), 1, 2), 3);
    if (steps < 1 || steps > STEPS_MOST) return onnx_refuse(c, "%lld steps are not supported", (long long)steps);
    r.q = onnx_as(r.q, TN_F32);
    r.k = onnx_as(r.k, TN_F32);
    r.v = onnx_as(r.v, TN_F32);
    if (r.decay) r.decay = onnx_as(r.decay, TN_F32);
    if (r.rate) r.rate = onnx_as(r.rate, TN_F32);
    int64_t shape[] = {tn_size(r.k, 0), tn_size(r.k, 1), tn_size(r.k, 3), tn_size(r.v, 3)};
    r.state = onnx_has(c, 3) ? tn_cast(onnx_in(c, 3), TN_F32) : tn_zeros(shape, 4, TN_F32);
    double scale = onnx_float(c, "scale", 0);
    if (scale == 0) scale = 1 / sqrt((double)tn_size(r.q, 3));
    tn_tensor **y = tn_mem_alloc((size_t)steps * sizeof *y);
    if (!y) return TN_ERR_MEMORY;
    for (int64_t t = 0; t < steps; t++)
        y[t] = advance(&r, t, count);
    tn_tensor *all = tn_mul_scalar(onnx_joined(y, steps, 2, false), scale);
    tn_mem_free(y);
    TRY(onnx_put(c, 0, tn_cast(onnx_joined_heads(all), tn_dtype_of(onnx_in(c, 0)))));
    tn_dtype t = tn_dtype_of(onnx_in(c, onnx_has(c, 3) ? 3 : 0));
    return onnx_wants(c, 1) ? onnx_put(c, 1, tn_cast(r.state, t)) : TN_OK;
}

/* ---- a convolution that remembers -------------------------------------------------------------------------------- */

tn_status onnx_causal_conv(onnx_call *c) {
    const tn_tensor *x = onnx_in(c, 0), *weight = onnx_in(c, 1);
    int64_t kept = tn_size(weight, 2) - 1, pads[2] = {kept, 0};
    TRY(tn_status_of(x));
    TRY(tn_status_of(weight));
    tn_tensor *parts[] = {onnx_has(c, 3) ? tn_detach(onnx_in(c, 3)) : NULL, tn_detach(x)};
    tn_tensor *all = parts[0] ? tn_cat(parts, 2, 2) : tn_pad(x, pads, 2, 0);
    onnx_window w = {.axes = 1, .kernel = {kept + 1}, .stride = {1}, .dilation = {1}};
    tn_tensor *y = onnx_convolve(all, weight, onnx_has(c, 2) ? onnx_in(c, 2) : NULL, &w, tn_size(x, 1));
    onnx_text activation = onnx_string(c, "activation", "none");
    if (!onnx_is(activation, "none")) y = tn_cast(tn_silu(onnx_as(y, TN_F32)), tn_dtype_of(x));
    TRY(onnx_put(c, 0, y));
    return onnx_wants(c, 1) ? onnx_put(c, 1, tn_narrow(all, 2, tn_size(x, 2), kept)) : TN_OK;
}

/* ---- rotary positions -------------------------------------------------------------------------------------------- */

/* The rows of a cache that positions name, [batch or 1, 1, positions, half]. */
static tn_tensor *angles(const onnx_call *c, int input) {
    const tn_tensor *cache = onnx_in(c, input);
    if (onnx_has(c, 3)) cache = tn_embedding(onnx_in(c, 3), cache);
    return tn_unsqueeze(cache, 1);
}

tn_status onnx_rotary_embedding(onnx_call *c) {
    const tn_tensor *x;
    TRY(split_heads(c, 0, "num_heads", &x));
    int64_t size = tn_size(x, 3), turned = onnx_int(c, "rotary_embedding_dim", 0), half = (turned ? turned : size) / 2;
    bool interleaved = onnx_int(c, "interleaved", 0) != 0;
    if (half < 1 || 2 * half > size)
        return onnx_refuse(c, "rotary_embedding_dim is %lld, but there are %lld features", (long long)turned,
                           (long long)size);
    tn_tensor *cosine = angles(c, 1), *sine = angles(c, 2);
    tn_tensor *a = interleaved ? tn_slice(x, 3, 0, 2 * half, 2) : tn_narrow(x, 3, 0, half);
    tn_tensor *b = interleaved ? tn_slice(x, 3, 1, 2 * half, 2) : tn_narrow(x, 3, half, half);
    tn_tensor *parts[] = {tn_sub(tn_mul(cosine, a), tn_mul(sine, b)), tn_add(tn_mul(sine, a), tn_mul(cosine, b))};
    tn_tensor *y = interleaved ? tn_flatten(tn_stack(parts, 2, 4), 3, 4) : tn_cat(parts, 2, 3);
    if (2 * half < size) {
        tn_tensor *with_rest[] = {y, tn_narrow(x, 3, 2 * half, size - 2 * half)};
        y = tn_cat(with_rest, 2, 3);
    }
    return onnx_put(c, 0, tn_rank(onnx_in(c, 0)) == 3 ? onnx_joined_heads(y) : y);
}

/* ==== GroupQueryAttention ========================================================================================= */
/* One sequence has its past in front of what is new, so places are numbers on the host. Several sequences may have
 * pasts of different lengths in one table (seqlens_k): there, places are tensors, and what is new is put after each
 * one's own past. A given cache may be longer than what is in it (a buffer that is shared between steps): what comes
 * out is as long. Source: ONNX Runtime's ContribOperators. */

typedef struct grouped {
    const tn_tensor *parts[3]; /* queries, keys, values: [batch, heads, now, features] */
    int64_t heads, few, now, total;
    int64_t past;      /* of the given cache, how many positions count for the longest sequence */
    tn_tensor *before; /* [batch, 1]: how many do for each; NULL: all have `past` */
} grouped;

/* Numbers first … first + count − 1. */
static tn_tensor *grouped_counted(int64_t first, int64_t count) {
    return tn_arange((double)first, (double)(first + count), 1, TN_I32);
}

/* Three inputs, or one that holds all. */
static tn_status take_parts(onnx_call *c, grouped *g) {
    const tn_tensor *x;
    tn_tensor *made[3];
    TRY(onnx_need(c, 0, &x));
    if (tn_rank(x) != 3 || g->heads < 1 || g->few < 1 || g->heads > tn_size(x, -1) || g->few > g->heads ||
        g->heads % g->few)
        return tn_fail(TN_ERR_SHAPE,
                       "GroupQueryAttention: %lld query heads and %lld key heads do not fit an input of rank %d",
                       (long long)g->heads, (long long)g->few, tn_rank(x));
    g->now = tn_size(x, 1);
    g->parts[0] = x;
    if (onnx_has(c, 1)) {
        TRY(onnx_need(c, 1, &g->parts[1]));
        TRY(onnx_need(c, 2, &g->parts[2]));
    } else {
        int64_t each = tn_size(x, -1) / (g->heads + 2 * g->few);
        if (tn_split(x, (int64_t[]){g->heads * each, g->few * each, g->few * each}, 3, -1, made) != 3)
            return tn_status_of(made[0]);
        for (int i = 0; i < 3; i++)
            g->parts[i] = made[i];
    }
    for (int i = 0; i < 3; i++)
        TRY(tn_status_of(g->parts[i] = onnx_split_heads(g->parts[i], i ? g->few : g->heads)));
    return TN_OK;
}

static tn_status take_lengths(onnx_call *c, grouped *g) {
    int64_t batch = tn_size(g->parts[0], 0), given = onnx_has(c, 3) ? tn_size(onnx_in(c, 3), 2) : 0;
    TRY(onnx_read_int(c, 6, g->now, &g->total));
    g->past = g->total - g->now;
    if (g->past < 0 || g->past > given)
        return tn_fail(TN_ERR_SHAPE,
                       "GroupQueryAttention: %lld positions in total, of which %lld are new; the cache holds %lld",
                       (long long)g->total, (long long)g->now, (long long)given);
    if (batch == 1 || g->past == 0 || !onnx_has(c, 5)) return TN_OK;
    tn_tensor *lengths = tn_reshape(tn_cast(onnx_in(c, 5), TN_I32), (int64_t[]){batch, 1}, 2);
    g->before = tn_add(lengths, tn_scalar_int(1 - g->now));
    return tn_status_of(g->before);
}

/* A row of the table for each new position. */
static tn_tensor *grouped_angles(const onnx_call *c, const grouped *g, const tn_tensor *table) {
    if (onnx_has(c, 9)) return tn_embedding(onnx_in(c, 9), table);
    if (!g->before) return onnx_rows_from(table, g->past, g->now);
    return tn_embedding(tn_add(g->before, grouped_counted(0, g->now)), table);
}

static tn_status turn_grouped(onnx_call *c, grouped *g) {
    const tn_tensor *cos, *sin;
    if (!onnx_int(c, "do_rotary", 0)) return TN_OK;
    TRY(onnx_need(c, 7, &cos));
    TRY(onnx_need(c, 8, &sin));
    for (int i = 0; i < 2; i++)
        g->parts[i] = onnx_turned(g->parts[i], grouped_angles(c, g, cos), grouped_angles(c, g, sin),
                                  onnx_int(c, "rotary_interleaved", 0) != 0);
    return TN_OK;
}

/* Keys or values [batch, heads, total, features] after those of before. */
static const tn_tensor *continued(const grouped *g, const tn_tensor *given, const tn_tensor *x) {
    if (!g->past) return x;
    tn_tensor *both[] = {tn_slice(given, 2, 0, g->past, 1), tn_detach(x)};
    tn_tensor *all = tn_cat(both, 2, 2);
    if (!g->before) return all;
    tn_tensor *ahead = tn_sub(grouped_counted(0, g->total), g->before); /* [batch, total]; below 0: of before */
    tn_tensor *fresh =
        tn_minimum(tn_add(ahead, tn_scalar_int(g->past)), tn_full(NULL, 0, (double)(g->total - 1), TN_I32));
    tn_tensor *place = tn_where(tn_lt_scalar(ahead, 0), grouped_counted(0, g->total), fresh);
    int64_t shape[] = {tn_size(x, 0), 1, g->total, 1};
    tn_tensor *moved = tn_take_along_dim(all, 2, tn_cast(tn_reshape(place, shape, 4), TN_I64));
    tn_tensor *there = tn_reshape(tn_lt_scalar(ahead, (double)g->now), shape, 4); /* 0 after a shorter one's end */
    return tn_where(there, moved, onnx_number(0, moved));
}

static tn_status put_present(onnx_call *c, int k, int64_t room, const tn_tensor *x) {
    if (!onnx_wants(c, k)) return TN_OK;
    int64_t pads[] = {0, 0, 0, tn_max64(room - tn_size(x, 2), 0)};
    return onnx_put(c, k, pads[3] ? tn_pad(x, pads, 4, 0) : tn_contiguous(x));
}

/* Bool: keys up to the query's own place, and of these the last `window` ones if that is above 0. */
static tn_tensor *seen_from(const grouped *g, int64_t window) {
    tn_tensor *own = tn_reshape(grouped_counted(g->before ? 0 : g->past, g->now), (int64_t[]){g->now, 1}, 2);
    if (g->before) own = tn_add(own, tn_reshape(g->before, (int64_t[]){-1, 1, 1, 1}, 4));
    tn_tensor *key = grouped_counted(0, g->total), *seen = tn_le(key, own);
    return window > 0 ? tn_logical_and(seen, tn_gt(key, tn_sub(own, tn_scalar_int(window)))) : seen;
}

static tn_status refuse_others(const onnx_call *c) {
    static const char *const names[] = {
        "scales of a quantized cache are not supported", "scales of a quantized cache are not supported",
        "norms of queries and keys are not supported", "norms of queries and keys are not supported",
        "lengths of queries are not supported"};
    for (int i = 12; i < 17; i++)
        if (onnx_has(c, i)) return onnx_refuse(c, "%s", names[i - 12]);
    return onnx_wants(c, 3) ? onnx_refuse(c, "scores as an output are not supported") : TN_OK;
}

tn_status onnx_grouped_attention(onnx_call *c) {
    grouped g = {.heads = onnx_int(c, "num_heads", 0), .few = onnx_int(c, "kv_num_heads", 0)};
    onnx_heads h = {.scale = onnx_float(c, "scale", 0)};
    tn_tensor *y;
    TRY(refuse_others(c));
    TRY(take_parts(c, &g));
    TRY(take_lengths(c, &g));
    TRY(turn_grouped(c, &g));
    for (int i = 1; i < 3; i++) {
        const tn_tensor *given = onnx_has(c, 2 + i) ? onnx_in(c, 2 + i) : NULL;
        g.parts[i] = continued(&g, given, g.parts[i]);
        TRY(put_present(c, i, given ? tn_size(given, 2) : 0, g.parts[i]));
    }
    h.q = g.parts[0], h.k = g.parts[1], h.v = g.parts[2];
    if (h.scale == 0) h.scale = 1 / sqrt((double)tn_size(h.q, 3));
    h.bias = onnx_has(c, 10) ? onnx_in(c, 10) : NULL;
    if (onnx_has(c, 11)) h.sink = onnx_in(c, 11);
    if (!h.sink && onnx_int(c, "smooth_softmax", 0)) h.sink = tn_zeros(&g.heads, 1, TN_F32);
    int64_t window = onnx_int(c, "local_window_size", -1);
    bool plain = onnx_attends_plainly(c, &h) && !g.past && window < 1 && !h.bias;
    bool alone = g.now == 1 && !g.before && window < 1; /* a single query sees all */
    if (!plain && !alone) h.seen = seen_from(&g, window);
    TRY(onnx_attend(c, &h, plain && !alone, &y));
    return onnx_put(c, 0, onnx_joined_heads(y));
}
