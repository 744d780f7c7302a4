/* op_attention.c — scaled dot-product attention, attention over a paged key/value cache, embedding, rotary positions.
 *
 * scaled_dot_product_attention becomes attention_dense on [batch, heads, positions, features] in f32. Its gradients
 * are one op, too; neither stores a tensor of queries × keys elements (cpu/sdpa.c). Without a kernel both are composed
 * of products and a softmax. The same composition serves the cases that the kernels do not take: f64, a mask that
 * requires a gradient, few queries. */
#include <math.h>
#include <string.h>

#include "cpu/cpu_kernels.h"
#include "kir/kir_math.h"
#include "ops/ops_common.h"
#include "tensor/graph.h"

enum { Q, K, V, MASK, OUT, DOUT }; /* inputs; the last two of the gradient */

static tn_node *wide(tn_build *b, tn_node *x) { return x && tn_dtype_is_half(x->dtype) ? tn_b_cast(b, x, TN_F32) : x; }

/* ---- shapes ------------------------------------------------------------------------------------------------------ */

static tn_status attention_mismatch(const tn_infer *c, const char *what) {
    char q[96], k[96], v[96];
    return tn_fail(TN_ERR_SHAPE, "scaled_dot_product_attention: q %s, k %s and v %s do not fit together: %s",
                   tn_shape_text(c->in[0], q, sizeof q), tn_shape_text(c->in[1], k, sizeof k),
                   tn_shape_text(c->in[2], v, sizeof v), what);
}

static tn_status check_attention_mask(const tn_infer *c) {
    const tn_node *mask = c->in[3], *q = c->in[0], *k = c->in[1];
    char text[96];
    if (!mask) return TN_OK;
    if (mask->dtype != TN_BOOL && mask->dtype != q->dtype)
        return tn_fail(TN_ERR_DTYPE, "scaled_dot_product_attention: the mask must be bool or %s; it is %s",
                       tn_dtype_name((tn_dtype)q->dtype), tn_dtype_name((tn_dtype)mask->dtype));
    bool fits = mask->rank <= q->rank;
    for (int back = 1; fits && back <= mask->rank; back++) {
        int64_t own = mask->shape[mask->rank - back],
                want = back == 1 ? k->shape[k->rank - 2] : q->shape[q->rank - back];
        fits = own == 1 || own == want;
    }
    if (fits) return TN_OK;
    return tn_fail(TN_ERR_SHAPE,
                   "scaled_dot_product_attention: the mask %s does not broadcast to [..., heads, queries, keys]",
                   tn_shape_text(mask, text, sizeof text));
}

/* The scale of the scores, TN_AUTO or a number. */
static tn_status check_scale(const tn_infer *c, double scale) {
    return scale == TN_AUTO ? TN_OK : tn_need_finite(c, "scale", scale);
}

static tn_status infer_attention(tn_infer *c) {
    const tn_node *q = c->in[0], *k = c->in[1], *v = c->in[2];
    int r = q->rank;
    TRY(tn_need_float(c, 0));
    if (k->dtype != q->dtype || v->dtype != q->dtype)
        return tn_fail(
            TN_ERR_DTYPE, "scaled_dot_product_attention: q, k and v must have the same dtype; they are %s, %s and %s",
            tn_dtype_name((tn_dtype)q->dtype), tn_dtype_name((tn_dtype)k->dtype), tn_dtype_name((tn_dtype)v->dtype));
    if (r < 2 || k->rank != r || v->rank != r)
        return attention_mismatch(c, "all must have the same number of dimensions, at least 2");
    if (k->shape[r - 1] != q->shape[r - 1])
        return attention_mismatch(c, "q and k must have the same number of features");
    if (k->shape[r - 2] != v->shape[r - 2])
        return attention_mismatch(c, "k and v must have the same number of positions");
    for (int d = 0; d < r - 2; d++) {
        if (k->shape[d] != v->shape[d]) return attention_mismatch(c, "k and v must have the same batch and heads");
        bool heads = d == r - 3;
        bool grouped = heads && k->shape[d] > 0 && q->shape[d] % k->shape[d] == 0;
        if (q->shape[d] != k->shape[d] && !grouped)
            return attention_mismatch(c, heads ? "q's heads must be a multiple of k's" : "the batch dimensions differ");
    }
    if (r == TN_MAX_RANK && q->shape[r - 3] != k->shape[r - 3])
        return attention_mismatch(c, "too many dimensions for grouped-query attention");
    TRY(check_attention_mask(c));
    TRY(tn_infer_same(c));
    tn_infer_dim_of(c, r - 1, v, r - 1);
    return TN_OK;
}

/* ---- what it is composed of -------------------------------------------------------------------------------------- */

/* One call. With groups, q's heads are two dimensions: heads of k, and heads of q for each of them. */
typedef struct operands {
    tn_node *q, *k, *v, *mask;
    int64_t group; /* heads of q per head of k; 0: as many */
    bool causal;
    bool blind; /* a query may see nothing: then its result is 0 */
    bool hides; /* the mask, 0 or -inf, takes the place of the scores that it hides, be they NaN */
    double scale;
} operands;

/* x's head dimension as two: [kv heads, group]; an extent of 1 as [1, 1], no head dimension as it is. */
static tn_node *split_heads(tn_build *b, tn_node *x, int64_t kv_heads, int64_t group) {
    int64_t shape[TN_MAX_RANK];
    int heads = x->rank - 3;
    if (heads < 0) return x;
    bool one = x->shape[heads] == 1;
    for (int d = 0; d < heads; d++)
        shape[d] = x->shape[d];
    shape[heads] = one ? 1 : kv_heads;
    shape[heads + 1] = one ? 1 : group;
    shape[heads + 2] = x->shape[heads + 1];
    shape[heads + 3] = x->shape[heads + 2];
    return tn_b_reshape(b, x, shape, x->rank + 1);
}

/* Query i sees keys 0 … i. */
static tn_node *causal(tn_build *b, tn_node *attention_scores) {
    if (!attention_scores) return NULL;
    int64_t queries = attention_scores->shape[attention_scores->rank - 2],
            keys = attention_scores->shape[attention_scores->rank - 1];
    tn_node *row = tn_b_view(b, tn_b_arange(b, 0.0, (double)queries, 1.0, TN_I64), (int64_t[]){queries, 1}, 2);
    tn_node *column = tn_b_arange(b, 0.0, (double)keys, 1.0, TN_I64);
    return tn_b_where(b, tn_b_le(b, column, row), attention_scores, tn_b_const(b, -INFINITY, attention_scores));
}

static tn_node *masked(tn_build *b, tn_node *attention_scores, tn_node *mask) {
    if (!mask) return NULL;
    if (mask->dtype != TN_BOOL) return tn_b_add(b, attention_scores, wide(b, mask));
    return tn_b_where(b, mask, attention_scores, tn_b_const(b, -INFINITY, attention_scores));
}

/* A mask of 0 and -inf as a bool: true where a key is attended to. */
static tn_node *attention_seen(tn_build *b, tn_node *mask) {
    return mask ? tn_b_eq(b, mask, tn_b_const(b, 0, mask)) : NULL;
}

/* Softmax over keys. A query that a mask lets see nothing gets zeros, and no NaN reaches its gradient. */
static tn_node *attention_weights(tn_build *b, tn_node *attention_scores, bool may_be_blind) {
    if (!attention_scores) return NULL;
    int64_t last = attention_scores->rank - 1;
    if (!may_be_blind || attention_scores->shape[last] == 0) return tn_b_softmax(b, attention_scores, last);
    tn_node *none = tn_b_const(b, 0.0, attention_scores);
    tn_node *blind =
        tn_b_eq(b, tn_b_amax(b, attention_scores, &last, 1, true), tn_b_const(b, -INFINITY, attention_scores));
    return tn_b_where(b, blind, none, tn_b_softmax(b, tn_b_where(b, blind, none, attention_scores), last));
}

/* Grouped queries: heads of q per head of k, 0 when there are no groups. */
static int64_t group_size(const tn_node *q, const tn_node *k) {
    int heads = q->rank - 3;
    return heads >= 0 && q->shape[heads] != k->shape[heads] ? q->shape[heads] / k->shape[heads] : 0;
}

static operands operands_of(tn_build *b, const tn_node *n, bool causal, double scale) {
    operands o = {.q = wide(b, n->in[Q]), .k = wide(b, n->in[K]), .v = wide(b, n->in[V]), .mask = n->in[MASK]};
    o.causal = causal;
    o.blind = o.mask != NULL;
    o.scale = scale;
    if (b->status == TN_OK) o.group = group_size(o.q, o.k);
    return o;
}

static void make_groups(tn_build *b, operands *o) {
    if (!o->group || b->status != TN_OK) return;
    int64_t kv_heads = o->k->shape[o->k->rank - 3];
    o->q = split_heads(b, o->q, kv_heads, o->group);
    if (o->mask) o->mask = split_heads(b, o->mask, kv_heads, o->group);
    o->k = tn_b_unsqueeze(b, o->k, o->k->rank - 2);
    o->v = tn_b_unsqueeze(b, o->v, o->v->rank - 2);
}

static tn_node *weights_of(tn_build *b, const operands *o) {
    tn_node *attention_scores = tn_b_scale(b, tn_b_matmul_batched(b, o->q, tn_b_transpose(b, o->k, -2, -1)), o->scale);
    if (o->causal) attention_scores = causal(b, attention_scores);
    if (o->mask) attention_scores = masked(b, attention_scores, o->hides ? attention_seen(b, o->mask) : o->mask);
    return attention_weights(b, attention_scores, o->blind);
}

static tn_node *composed(tn_build *b, const tn_node *n, operands o) {
    make_groups(b, &o);
    tn_node *y = tn_b_matmul_batched(b, weights_of(b, &o), o.v);
    return o.group ? tn_b_view(b, y, n->shape, n->rank) : y;
}

/* ---- in four dimensions ------------------------------------------------------------------------------------------ */

static operands dense_operands(tn_build *b, const tn_node *n) {
    operands o = operands_of(b, n, n->i[TN_ATTENTION_DENSE_IS_CAUSAL], n->f[TN_ATTENTION_DENSE_SCALE]);
    o.blind = n->i[TN_ATTENTION_DENSE_BLIND];
    o.hides = n->i[TN_ATTENTION_DENSE_HIDES];
    return o;
}

static tn_node *compose_attention_dense(tn_build *b, const tn_node *n) { return composed(b, n, dense_operands(b, n)); }

static tn_status infer_attention_dense(tn_infer *c) {
    const tn_node *q = c->in[Q], *mask = c->in[MASK];
    TRY(infer_attention(c));
    if (q->dtype != TN_F32 || q->rank != 4)
        return tn_fail(TN_ERR_SHAPE, "%s: operands must be f32 of rank 4", c->row->name);
    if (mask && (mask->dtype != TN_F32 || mask->rank != 4))
        return tn_fail(TN_ERR_SHAPE, "%s: the mask must be f32 of rank 4", c->row->name);
    return TN_OK;
}

/* Are the three gradients of one shape? Then they lie side by side as [batch, positions, 3, heads, features], which is
 * how a joined projection wants them; else one after the other. */
static bool are_alike(const tn_node *q, const tn_node *k, const tn_node *v) {
    size_t bytes = 4 * sizeof *q->shape;
    return memcmp(q->shape, k->shape, bytes) == 0 && memcmp(q->shape, v->shape, bytes) == 0;
}

static tn_status infer_attention_dense_gradient(tn_infer *c) {
    const tn_node *q = c->in[Q], *k = c->in[K], *v = c->in[V];
    TRY(infer_attention_dense(c));
    if (!are_alike(q, k, v)) {
        c->rank = 1;
        c->shape[0] = tn_node_numel(q) + tn_node_numel(k) + tn_node_numel(v);
        c->symbol[0] = 0;
        return TN_OK;
    }
    c->rank = 5;
    tn_infer_dim_of(c, 0, q, 0);
    tn_infer_dim_of(c, 1, q, 2);
    c->shape[2] = 3;
    c->symbol[2] = 0;
    tn_infer_dim_of(c, 3, q, 1);
    tn_infer_dim_of(c, 4, q, 3);
    return TN_OK;
}

static const int64_t HEADS_INSIDE[] = {0, 2, 1, 3};

/* Gradient `i` of q, k, v out of what attention_dense_gradient yields. */
static tn_node *part_of(tn_build *b, tn_node *all, const tn_node *const *in, int i) {
    if (!all) return NULL;
    if (all->rank == 5) return tn_b_permute(b, tn_b_select(b, all, 2, i), HEADS_INSIDE, 4);
    int64_t begin = 0;
    for (int k = 0; k < i; k++)
        begin += tn_node_numel(in[k]);
    tn_node *own = tn_b_slice(b, all, 0, begin, begin + tn_node_numel(in[i]), 1);
    return tn_b_view(b, own, in[i]->shape, in[i]->rank);
}

static tn_node *join_parts(tn_build *b, const tn_node *n, tn_node *const part[3]) {
    tn_node *lying[3];
    for (int i = 0; i < 3; i++) {
        if (!part[i]) return NULL;
        lying[i] = n->rank == 5 ? tn_b_unsqueeze(b, tn_b_permute(b, part[i], HEADS_INSIDE, 4), 2)
                                : tn_b_reshape(b, part[i], (int64_t[]){tn_node_numel(part[i])}, 1);
    }
    return tn_b_cat(b, lying, 3, n->rank == 5 ? 2 : 0);
}

/* A gradient of k or v, in which the heads of a group still stand apart. */
static tn_node *of_group(tn_build *b, const operands *o, tn_node *x) {
    return o->group ? tn_b_sum(b, x, (int64_t[]){2}, 1, false) : x;
}

/* The gradients by products. */
static void spread_attention(tn_build *b, const tn_node *n, operands o, tn_node *out, tn_node *dout, tn_node *part[3]) {
    const int64_t last = -1;
    make_groups(b, &o);
    if (o.group) {
        out = split_heads(b, out, n->in[K]->shape[1], o.group);
        dout = split_heads(b, dout, n->in[K]->shape[1], o.group);
    }
    tn_node *w = weights_of(b, &o);
    tn_node *slope = tn_b_matmul_batched(b, dout, tn_b_transpose(b, o.v, -2, -1));
    slope = tn_b_sub(b, slope, tn_b_sum(b, tn_b_mul(b, dout, out), &last, 1, true));
    slope = tn_b_scale(b, tn_b_mul(b, w, slope), o.scale);
    tn_node *dq = tn_b_matmul_batched(b, slope, o.k);
    part[Q] = o.group && dq ? tn_b_view(b, dq, n->in[Q]->shape, 4) : dq;
    part[K] = of_group(b, &o, tn_b_matmul_batched(b, tn_b_transpose(b, slope, -2, -1), o.q));
    part[V] = of_group(b, &o, tn_b_matmul_batched(b, tn_b_transpose(b, w, -2, -1), dout));
}

static tn_node *compose_attention_dense_gradient(tn_build *b, const tn_node *n) {
    tn_node *part[3] = {NULL};
    spread_attention(b, n, dense_operands(b, n), n->in[OUT], n->in[DOUT], part);
    return join_parts(b, n, part);
}

static void grad_attention_dense(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    operands o = dense_operands(b, n);
    tn_node *out = tn_b_self(n);
    if (!n->device->is_cpu) {
        spread_attention(b, n, o, out, dy, grads);
        return;
    }
    tn_node *all =
        tn_b_attention_dense_gradient(b, o.q, o.k, o.v, o.mask, out, dy, o.causal, o.scale, o.blind, o.hides);
    for (int i = Q; i <= V; i++)
        grads[i] = part_of(b, all, (const tn_node *const *)n->in, i);
}

/* attention_dense(q, k, v, mask, is_causal, scale, blind, hides): scaled_dot_product_attention in f32, with a batch and
 * heads; the mask, which has no gradient, is added or, if it hides, stands for the scores where it is not 0. blind: a
 * query that it lets see nothing gets 0, else NaN. */
OP_CODE(attention_dense, .class_ = TN_NATIVE, .keeps_half = true, .infer = infer_attention_dense,
        .compose = compose_attention_dense, .grad = grad_attention_dense,
        .cases = "types=f32 tol=1e-5 atol=1e-5; "
                 "[2,2,3,4] [2,2,5,4] [2,2,5,3] - is_causal=false scale=0.5 blind=false hides=false; "
                 "[1,2,70,4] [1,2,70,4] [1,2,70,4] - is_causal=true scale=0.4 blind=false hides=false; "
                 "[1,4,3,2] [1,2,4,2] [1,2,4,2] [1,4,3,4] is_causal=false scale=0.7 blind=true hides=false; "
                 "error=rank [3,4] [3,4] [3,4] - is_causal=false scale=1 blind=false hides=false");

/* attention_dense_gradient(q, k, v, mask, out, dout, is_causal, scale, blind, hides): the gradients of q, k and v. */
OP_CODE(attention_dense_gradient, .class_ = TN_NATIVE, .keeps_half = true, .infer = infer_attention_dense_gradient,
        .compose = compose_attention_dense_gradient,
        .cases =
            "types=f32 tol=2e-5 atol=2e-5; "
            "[2,2,3,4] [2,2,5,4] [2,2,5,3] - [2,2,3,3] [2,2,3,3] is_causal=false scale=0.5 blind=false hides=false; "
            "[1,2,70,4] [1,2,70,4] [1,2,70,4] - [1,2,70,4] [1,2,70,4] "
            "is_causal=true scale=0.4 blind=false hides=false; "
            "[1,4,3,2] [1,2,4,2] [1,2,4,2] [1,4,3,4] [1,4,3,2] [1,4,3,2] "
            "is_causal=false scale=0.7 blind=true hides=false");

/* ---- for users --------------------------------------------------------------------------------------------------- */

/* x with a batch and heads: leading dimensions of 1, or all those before the heads made one. */
static tn_node *in_four(tn_build *b, tn_node *x) {
    for (int rank = x ? x->rank : 4; rank < 4; rank++)
        x = tn_b_unsqueeze(b, x, 0);
    if (!x || x->rank == 4) return x;
    int64_t shape[4] = {tn_product(x->shape, x->rank - 3)};
    memcpy(shape + 1, x->shape + x->rank - 3, 3 * sizeof *shape);
    return tn_b_reshape(b, x, shape, 4);
}

/* What is added to scores, in their shape. */
static tn_node *mask_in_four(tn_build *b, tn_node *mask, const tn_node *q, const tn_node *k) {
    int64_t shape[TN_MAX_RANK];
    if (!mask || !q || !k) return NULL;
    tn_node *none = tn_b_full(b, NULL, 0, 0, TN_F32), *hidden = tn_b_full(b, NULL, 0, -INFINITY, TN_F32);
    mask = mask->dtype == TN_BOOL ? tn_b_where(b, mask, none, hidden) : wide(b, mask);
    memcpy(shape, q->shape, (size_t)q->rank * sizeof *shape);
    shape[q->rank - 1] = k->shape[k->rank - 2];
    return in_four(b, tn_b_expand(b, mask, shape, q->rank));
}

/* A few queries have no use for keys in columns. */
static bool is_dense(const tn_node *n, const operands *o) {
    enum { FEW_QUERIES = 8 };
    return o->q->dtype == TN_F32 && o->q->shape[o->q->rank - 2] >= FEW_QUERIES && tn_node_numel(o->q) > 0 &&
           tn_node_numel(o->k) > 0 && tn_node_numel(o->v) > 0 && !(o->mask && tn_needs_grad(n, MASK));
}

static tn_node *compose_attention(tn_build *b, const tn_node *n) {
    double scale = n->f[TN_SCALED_DOT_PRODUCT_ATTENTION_SCALE];
    if (scale == TN_AUTO) scale = 1.0 / sqrt((double)n->in[Q]->shape[n->in[Q]->rank - 1]);
    operands o = operands_of(b, n, n->i[TN_SCALED_DOT_PRODUCT_ATTENTION_IS_CAUSAL], scale);
    if (b->status != TN_OK) return NULL;
    if (!is_dense(n, &o)) return tn_b_cast_like(b, composed(b, n, o), n);
    tn_node *y = tn_b_attention_dense(b, in_four(b, o.q), in_four(b, o.k), in_four(b, o.v),
                                      mask_in_four(b, o.mask, o.q, o.k), o.causal, o.scale, o.blind, false);
    return tn_b_cast_like(b, n->rank == 4 ? y : tn_b_view(b, y, n->shape, n->rank), n);
}

static tn_status infer_scaled_attention(tn_infer *c) {
    TRY(check_scale(c, c->attrs->f[TN_SCALED_DOT_PRODUCT_ATTENTION_SCALE]));
    return infer_attention(c);
}

/* scaled_dot_product_attention(q, k, v, mask, is_causal, scale): softmax(scale · q kᵀ + mask) v; q [..., heads,
 * queries, features], k and v [..., kv_heads, keys, features], heads a multiple of kv_heads (grouped queries). mask,
 * NULL or broadcastable to [..., heads, queries, keys], is added before the softmax; a bool mask keeps the keys where
 * it is true. With is_causal query i attends to keys 0 … i only. scale TN_AUTO means 1/sqrt(features). Source: Vaswani
 * et al. 2017, eq. 1. */
OP_CODE(scaled_dot_product_attention, .keeps_half = true, .infer = infer_scaled_attention, .compose = compose_attention,
        .cases = "tol=1e-5 atol=1e-5; [2,2,3,4] [2,2,5,4] [2,2,5,3] -; "
                 "[1,2,4,3] [1,2,4,3] [1,2,4,3] - is_causal=true; [3,2] [4,2] [4,2] [3,4] scale=0.3; "
                 "[2,4,3,2] [2,2,4,2] [2,2,4,2] -; [1,4,2,2] [1,2,3,2] [1,2,3,2] [1,4,2,3]; "
                 "[2,2,3,2] [2,2,4,2] [2,2,4,2] [2,1,3,4]:bool; [1,4,2,2] [1,2,3,2] [1,2,3,2] [1,1,1,3]:bool; "
                 "types=f32; [2,4,9,4] [2,2,11,4] [2,2,11,3] - is_causal=true; [1,2,2,10,2] [1,2,2,4,2] [1,2,2,4,2] "
                 "[1,2,1,4]:bool; "
                 "[9,2] [4,2] [4,2] [9,1]; types=f16; [2,9,4] [2,5,4] [2,5,4] - tol=2ulp; types=f32,f64; "
                 "[1,2,0,2] [1,2,3,2] [1,2,3,2] -; [2,9,2] [2,0,2] [2,0,2] -; [2,9,2] [2,0,2] [2,0,2] [9,1]; "
                 "error=multiple [1,3,2,2] [1,2,2,2] [1,2,2,2] -; "
                 "error=features [2,3] [2,4] [2,4] -; error=broadcast [2,3] [2,3] [2,3] [3,2]; "
                 "error=positions [2,3] [2,3] [4,3] -");

/* ---- written by hand --------------------------------------------------------------------------------------------- */

/* What softmax(scale · q kᵀ + mask) is made of. */
typedef struct attention_scores {
    tn_node *product, *mask;
    bool hidden; /* the mask is bool, and hides where it is true */
    double scale;
} attention_scores;

static bool is_number(tn_node *n) {
    if (n->op != TN_OP_FULL || n->rank != 0) return false;
    tn_node_fix(n);
    return true;
}

static bool is_product(const tn_node *n) {
    return n->op == TN_OP_MATMUL || n->op == TN_OP_BMM || n->op == TN_OP_MM || n->op == TN_OP_MATMUL_BATCHED;
}

/* Through a multiplication by, or a division through, a number. NULL when it is neither. */
static tn_node *without_scale(const tn_node *n, double *scale) {
    bool times = n->op == TN_OP_MUL, over = n->op == TN_OP_DIV;
    if (!times && !over) return NULL;
    int number = times && is_number(n->in[0]) ? 0 : 1;
    if (!is_number(n->in[number])) return NULL;
    *scale = times ? *scale * n->in[number]->f[0] : *scale / n->in[number]->f[0];
    return n->in[1 - number];
}

static bool find_product(tn_node *n, attention_scores *s) {
    for (tn_node *inner = n; inner; inner = without_scale(n, &s->scale))
        n = inner;
    s->product = n;
    return is_product(n);
}

static bool find_scores(tn_node *n, attention_scores *s) {
    *s = (attention_scores){.scale = 1};
    if (find_product(n, s)) return true;
    if (n->op == TN_OP_MASKED_FILL && n->f[TN_MASKED_FILL_VALUE] == -INFINITY) {
        *s = (attention_scores){.scale = 1, .mask = n->in[1], .hidden = true};
        return find_product(n->in[0], s);
    }
    for (int i = 0; n->op == TN_OP_ADD && i < 2; i++) {
        *s = (attention_scores){.scale = 1, .mask = n->in[1 - i]};
        if (find_product(n->in[i], s)) return true;
    }
    return false;
}

static bool same_extents(const tn_node *x, const tn_node *y, int leave) {
    return x->rank == y->rank && memcmp(x->shape, y->shape, (size_t)(x->rank - leave) * sizeof *x->shape) == 0;
}

static bool same_batch(const tn_node *x, const tn_node *y) { return same_extents(x, y, 2); }

/* Nobody holds it, and it is not there yet: it need not be computed for its own sake. */
static bool is_passing(const tn_node *n) {
    return atomic_load_explicit(&n->handles, memory_order_relaxed) == 0 && !tn_node_computed(n);
}

/* softmax(scale · q kᵀ + mask) v written out as a product of the softmax with v: attention, if no step on the way is
 * asked for by itself. NULL when it is something else. */
tn_node *tn_attention_of_product(tn_build *b, const tn_node *n) {
    enum { FEW_QUERIES = 8 };
    tn_node *w = n->in[0], *v = n->in[1];
    attention_scores s;
    if (b->status != TN_OK || w->op != TN_OP_SOFTMAX || n->dtype != TN_F32 || w->rank < 2 || w->i[0] != w->rank - 1)
        return NULL;
    if (!is_passing(w) || !find_scores(w->in[0], &s) || !is_passing(s.product)) return NULL;
    tn_node *q = s.product->in[0], *kt = s.product->in[1];
    if (!same_extents(s.product, w, 0)) return NULL; /* a mask has more queries or keys than the product */
    if (q->rank < 2 || !same_batch(q, w) || !same_batch(kt, w) || !same_batch(v, w)) return NULL;
    if (s.mask && (s.mask->rank > w->rank || (s.mask->flags & TN_NODE_GRAD))) return NULL;
    if (w->shape[w->rank - 2] < FEW_QUERIES || tn_node_numel(q) == 0 || tn_node_numel(kt) == 0 || tn_node_numel(v) == 0)
        return NULL;
    tn_node *k = tn_b_transpose(b, kt, -2, -1);
    tn_node *mask = s.hidden ? tn_b_logical_not(b, s.mask) : s.mask;
    tn_node *y = tn_b_attention_dense(b, in_four(b, q), in_four(b, k), in_four(b, v), mask_in_four(b, mask, q, k),
                                      false, s.scale, false, s.hidden);
    return n->rank == 4 ? y : tn_b_view(b, y, n->shape, n->rank);
}

/* ==== paged cache of keys and values ============================================================================== */
/* A cache is state [pages, kv_heads, 64, head_dim]; a table of page numbers says where logical place 0, 64, 128 … lie,
 * so sequences share pages and grow without moving. Attention takes the new tokens' keys and values beside the cache as
 * it was: it needs no append before it, and both fit into one plan, in which the append comes last. The public
 * functions lay their operands out for the kernels (cpu_kernels.h has the definition) and are those
 * of the primitives after them. */

static bool is_cache_dtype(tn_dtype t) { return t == TN_F32 || t == TN_F16 || t == TN_BF16 || t == TN_U8; }

static int64_t numbers_of(const tn_node *cache) { return tn_kv_numbers((tn_dtype)cache->dtype, cache->shape[3]); }

/* Number k of a row as a cache of this dtype holds it. */
static double as_cached(tn_dtype t, const double *row, int64_t k) {
    if (t == TN_F16) return (double)kir_from_f16(kir_to_f16((float)row[k]));
    if (t == TN_BF16) return (double)kir_from_bf16(kir_to_bf16((float)row[k]));
    if (t != TN_U8) return row[k];
    float x[TN_KV_BLOCK];
    uint8_t block[TN_KV_BLOCK_BYTES];
    for (int i = 0; i < TN_KV_BLOCK; i++)
        x[i] = (float)row[k / TN_KV_BLOCK * TN_KV_BLOCK + i];
    tn_kv_block_encode(x, block);
    tn_kv_block_decode(block, x);
    return (double)x[k % TN_KV_BLOCK];
}

/* Number k of a row in a cache; of q8_0 the row is bytes. */
static double cached_number(tn_dtype t, const double *row, int64_t k) {
    if (t != TN_U8) return row[k];
    float x[TN_KV_BLOCK];
    uint8_t block[TN_KV_BLOCK_BYTES];
    for (int i = 0; i < TN_KV_BLOCK_BYTES; i++)
        block[i] = (uint8_t)row[k / TN_KV_BLOCK * TN_KV_BLOCK_BYTES + i];
    tn_kv_block_decode(block, x);
    return (double)x[k % TN_KV_BLOCK];
}

static void cache_row(const tn_node *cache, const double *row, double *out) {
    if (cache->dtype != TN_U8) {
        for (int64_t k = 0; k < cache->shape[3]; k++)
            out[k] = as_cached((tn_dtype)cache->dtype, row, k);
        return;
    }
    for (int64_t b = 0; b < cache->shape[3] / TN_KV_BLOCK_BYTES; b++) {
        float x[TN_KV_BLOCK];
        uint8_t block[TN_KV_BLOCK_BYTES];
        for (int i = 0; i < TN_KV_BLOCK; i++)
            x[i] = (float)row[b * TN_KV_BLOCK + i];
        tn_kv_block_encode(x, block);
        for (int i = 0; i < TN_KV_BLOCK_BYTES; i++)
            out[b * TN_KV_BLOCK_BYTES + i] = block[i];
    }
}

/* ---- shapes ------------------------------------------------------------------------------------------------------ */

static tn_status check_cache(const tn_infer *c, int input) {
    const tn_node *cache = c->in[input];
    char text[96];
    if (!is_cache_dtype((tn_dtype)cache->dtype))
        return tn_fail(TN_ERR_DTYPE, "%s: the cache is %s; it must be f32, f16, bf16 or u8 (q8_0 blocks)", c->row->name,
                       tn_dtype_name((tn_dtype)cache->dtype));
    if (cache->rank == 4 && cache->dtype == TN_U8 && cache->shape[3] % TN_KV_BLOCK_BYTES != 0)
        return tn_fail(TN_ERR_SHAPE, "%s: the rows of the cache %s must be whole q8_0 blocks of %d bytes", c->row->name,
                       tn_shape_text(cache, text, sizeof text), TN_KV_BLOCK_BYTES);
    if (cache->rank == 4 && cache->shape[2] == TN_PAGE_TOKENS) return TN_OK;
    return tn_fail(TN_ERR_SHAPE, "%s: the cache must be [pages, kv_heads, %d, head_dim]; it is %s", c->row->name,
                   TN_PAGE_TOKENS, tn_shape_text(cache, text, sizeof text));
}

/* Tokens [n, heads, head_dim] of a cache. heads: those of the cache, or (queries) a multiple of them. */
static tn_status check_tokens(const tn_infer *c, int input, const tn_node *cache, bool queries) {
    const tn_node *x = c->in[input];
    char a[96], b[96];
    if (x->dtype != TN_F32)
        return tn_fail(TN_ERR_DTYPE, "%s: input %d is %s; tokens must be f32: cast it (tn_cast)", c->row->name,
                       input + 1, tn_dtype_name((tn_dtype)x->dtype));
    int64_t heads = cache->shape[1];
    bool fits = x->rank == 3 && x->shape[2] == numbers_of(cache);
    fits = fits && (queries ? heads > 0 && x->shape[1] % heads == 0 : x->shape[1] == heads);
    if (fits) return TN_OK;
    return tn_fail(TN_ERR_SHAPE, "%s: input %d, %s, does not fit the cache %s: it must be [tokens, %s, head_dim]",
                   c->row->name, input + 1, tn_shape_text(x, a, sizeof a), tn_shape_text(cache, b, sizeof b),
                   queries ? "a multiple of kv_heads" : "kv_heads");
}

/* tokens: the input whose first extent is their number. */
static tn_status check_place(const tn_infer *c, int position, int pages, int tokens) {
    const tn_node *p = c->in[position], *table = c->in[pages];
    int64_t n = c->in[tokens]->shape[0];
    char a[96], b[96];
    if (p->dtype != TN_I64 || table->dtype != TN_I64)
        return tn_fail(
            TN_ERR_DTYPE,
            "%s: position and pages must be i64; they are %s and %s (tn_runtime_scalar_int makes a position)",
            c->row->name, tn_dtype_name((tn_dtype)p->dtype), tn_dtype_name((tn_dtype)table->dtype));
    if (p->rank == 0 && table->rank == 1) return TN_OK;
    if (p->rank == 1 && table->rank == 2 && p->shape[0] == n && table->shape[0] == n) return TN_OK;
    return tn_fail(TN_ERR_SHAPE,
                   "%s: position must be one number and pages a vector, or for %lld sequences of a token each [%lld] "
                   "and [%lld, pages]; they are %s and %s",
                   c->row->name, (long long)n, (long long)n, (long long)n, tn_shape_text(p, a, sizeof a),
                   tn_shape_text(table, b, sizeof b));
}

/* Are the dims from `first` on laid out one after the other? */
static bool laid_out_from(const tn_node *x, int first) {
    int64_t offset, stride[TN_MAX_RANK], expected = 1;
    tn_node_layout(x, &offset, stride);
    for (int d = x->rank - 1; d >= first; d--) {
        if (x->shape[d] != 1 && stride[d] != expected) return false;
        expected *= x->shape[d];
    }
    return true;
}

static tn_status need_laid_out(const tn_infer *c, int input, int first) {
    if (laid_out_from(c->in[input], first)) return TN_OK;
    return tn_fail(TN_ERR_SHAPE, "%s: input %d must be contiguous", c->row->name, input + 1);
}

static tn_node *cache_rows_of(tn_build *b, tn_node *x) {
    return x && !laid_out_from(x, x->rank - 1) ? tn_b_contiguous(b, x) : x;
}

/* The pages of one sequence, or of a batch: a row for each token. */
typedef struct page_table {
    const double *pages;
    int64_t count; /* of a sequence */
    bool batch;
} page_table;

static page_table table_of(const tn_reference *r, int input) {
    const tn_node *n = r->node->in[input];
    return (page_table){r->in[input], n->shape[n->rank - 1], n->rank == 2};
}

/* The logical place of a new token. */
static int64_t token_place(const tn_reference *r, int input, int64_t token) {
    bool batch = r->node->in[input]->rank == 1;
    return batch ? (int64_t)r->in[input][token] : (int64_t)r->in[input][0] + token;
}

/* Element [place, head, ·] of the page that holds a logical place of a new token's sequence; -1 if no page does. */
static int64_t place_in(const tn_node *cache, const page_table *t, int64_t token, int64_t place, int64_t head) {
    if (place < 0 || place / TN_PAGE_TOKENS >= t->count) return -1;
    double page = t->pages[(t->batch ? token * t->count : 0) + place / TN_PAGE_TOKENS];
    if (!(page >= 0 && page < (double)cache->shape[0])) return -1;
    return (((int64_t)page * cache->shape[1] + head) * TN_PAGE_TOKENS + place % TN_PAGE_TOKENS) * cache->shape[3];
}

/* ---- append ------------------------------------------------------------------------------------------------------ */

enum { APPEND_CACHE, APPEND_X, APPEND_POSITION, APPEND_PAGES };

static tn_status infer_cache_append(tn_infer *c) {
    TRY(check_cache(c, APPEND_CACHE));
    TRY(check_tokens(c, APPEND_X, c->in[APPEND_CACHE], false));
    TRY(check_place(c, APPEND_POSITION, APPEND_PAGES, APPEND_X));
    return tn_infer_same(c);
}

static tn_status infer_cache_append_rows(tn_infer *c) {
    TRY(infer_cache_append(c));
    TRY(need_laid_out(c, APPEND_X, 2));
    TRY(need_laid_out(c, APPEND_POSITION, 0));
    return need_laid_out(c, APPEND_PAGES, 0);
}

static tn_node *compose_cache_append(tn_build *b, const tn_node *n) {
    tn_node *cache = tn_b_row_major(b, n->in[APPEND_CACHE]), *pages = tn_b_row_major(b, n->in[APPEND_PAGES]);
    return tn_b_cache_append_rows(b, cache, cache_rows_of(b, n->in[APPEND_X]),
                                  tn_b_row_major(b, n->in[APPEND_POSITION]), pages);
}

static void reference_cache_append(const tn_reference *r) {
    const tn_node *cache = r->node, *x = r->node->in[APPEND_X];
    int64_t heads = cache->shape[1], width = numbers_of(cache);
    page_table table = table_of(r, APPEND_PAGES);
    memcpy(r->out, r->in[APPEND_CACHE], (size_t)tn_node_numel(cache) * sizeof *r->out);
    for (int64_t i = 0; i < x->shape[0]; i++)
        for (int64_t h = 0; h < heads; h++) {
            int64_t to = place_in(cache, &table, i, token_place(r, APPEND_POSITION, i), h);
            if (to >= 0) cache_row(cache, r->in[APPEND_X] + (i * heads + h) * width, r->out + to);
        }
}

/* cache_append(cache, x, position, pages): the cache [pages, kv_heads, 64, head_dim] (f32, f16 or bf16) with the tokens
 * x [n, kv_heads, head_dim] (f32, rounded) written at positions position, position + 1, …: position t is row t % 64 of
 * page pages[t / 64]. position: one i64 (tn_runtime_scalar_int), pages: a list of i64. Tokens without a page are not
 * written. If a page is listed twice, each of its rows holds any one of the tokens that map to it. In place on a state
 * (tn_cache_append_), only these rows change; record readers of the cache's old value before it.
 * For a batch, position is [n] and pages [n, count]: token i is written at position[i] of the sequence whose pages are
 * in row i. A cache of u8 holds q8_0 blocks, 34 bytes for 32 numbers: [pages, kv_heads, 64, head_dim / 32 · 34]; only
 * the CPU has kernels for it. */
OP_CODE(
    cache_append, .keeps_half = true, .infer = infer_cache_append, .compose = compose_cache_append,
    .cases =
        "types=f32; [3,2,64,4] [2,2,4] []:i64@0..100 [3]:i64@0..2; [2,1,64,3]:f16 [3,1,3] []:i64@62..62 [2]:i64@0..1; "
        "[2,1,64,3]:bf16 [1,1,3] []:i64@5..5 [1]:i64@1..1; [2,1,64,3] [70,1,3] []:i64@-4..-4 [1]:i64@0..0; "
        "[3,2,64,4] [1,2,4] [1]:i64@60..100 [1,2]:i64@0..3; error=sequences [3,2,64,4] [2,2,4] [2]:i64@0..9 "
        "[2]:i64@0..2; "
        "[1,1,64,2] [0,1,2] []:i64@0..0 [1]:i64@0..0; error=f16 [2,1,64,3]:i32 [1,1,3] []:i64@0..0 [1]:i64@0..0; "
        "[2,2,64,68]:u8 [3,2,64] []:i64@63..63 [2]:i64@0..1; error=q8_0 [2,2,64,64]:u8 [3,2,64] []:i64@0..0 "
        "[2]:i64@0..1; "
        "error=head_dim [2,1,32,3] [1,1,3] []:i64@0..0 [1]:i64@0..0; error=kv_heads [2,1,64,3] [1,2,3] []:i64@0..0 "
        "[1]:i64@0..0; "
        "error=i64 [2,1,64,3] [1,1,3] []:f32 [1]:i64@0..0; error=number [2,1,64,3] [1,1,3] [1]:i64@0..0 [1]:i64@0..0");

/* cache_append_rows(cache, x, position, pages): cache_append on operands that are laid out. */
OP_CODE(
    cache_append_rows, .class_ = TN_NATIVE, .infer = infer_cache_append_rows, .contiguous = 1 << APPEND_CACHE,
    .reference = reference_cache_append,
    .cases =
        "types=f32; [3,2,64,4] [2,2,4] []:i64@0..100 [3]:i64@0..2; [2,1,64,3]:f16 [3,1,3] []:i64@62..62 [2]:i64@0..1;"
        "error=f32 [2,1,64,3] [1,1,3]:f64 []:i64@0..0 [1]:i64@0..0");

/* ---- attention --------------------------------------------------------------------------------------------------- */

enum { ATTEND_Q, ATTEND_K, ATTEND_V, ATTEND_K_CACHE, ATTEND_V_CACHE, ATTEND_POSITION, ATTEND_PAGES, ATTEND_SINKS };

static tn_status infer_cached_attention(tn_infer *c) {
    const tn_node *keys = c->in[ATTEND_K_CACHE], *values = c->in[ATTEND_V_CACHE], *q = c->in[ATTEND_Q];
    char a[96], b[96];
    TRY(check_cache(c, ATTEND_K_CACHE));
    TRY(check_cache(c, ATTEND_V_CACHE));
    if (memcmp(keys->shape, values->shape, 3 * sizeof *keys->shape) != 0 || numbers_of(keys) != numbers_of(values))
        return tn_fail(TN_ERR_SHAPE,
                       "%s: the caches %s of %s and %s of %s must be alike (same shape; dtypes may differ)",
                       c->row->name, tn_shape_text(keys, a, sizeof a), tn_dtype_name((tn_dtype)keys->dtype),
                       tn_shape_text(values, b, sizeof b), tn_dtype_name((tn_dtype)values->dtype));
    TRY(check_tokens(c, ATTEND_Q, keys, true));
    TRY(check_tokens(c, ATTEND_K, keys, false));
    TRY(check_tokens(c, ATTEND_V, keys, false));
    TRY(check_place(c, ATTEND_POSITION, ATTEND_PAGES, ATTEND_Q));
    if (c->in[ATTEND_K]->shape[0] != q->shape[0] || c->in[ATTEND_V]->shape[0] != q->shape[0])
        return tn_fail(TN_ERR_SHAPE, "%s: q %s, k %s and v must have the same number of tokens", c->row->name,
                       tn_shape_text(q, a, sizeof a), tn_shape_text(c->in[ATTEND_K], b, sizeof b));
    const tn_node *sinks = c->in[ATTEND_SINKS];
    if (sinks && (sinks->dtype != TN_F32 || sinks->rank != 1 || sinks->shape[0] != q->shape[1]))
        return tn_fail(TN_ERR_SHAPE, "%s: sinks are %s of %s; they must be f32 with one for each of the %lld heads",
                       c->row->name, tn_shape_text(sinks, a, sizeof a), tn_dtype_name((tn_dtype)sinks->dtype),
                       (long long)q->shape[1]);
    if (c->attrs->i[TN_CACHED_ATTENTION_WINDOW] < 0)
        return tn_fail(TN_ERR_ARGUMENT, "%s: window is %lld; it must be at least 0 (0: all keys)", c->row->name,
                       (long long)c->attrs->i[TN_CACHED_ATTENTION_WINDOW]);
    TRY(check_scale(c, c->attrs->f[TN_CACHED_ATTENTION_SCALE]));
    double cap = c->attrs->f[TN_CACHED_ATTENTION_SOFTCAP];
    if (!(cap >= 0 && isfinite(cap)))
        return tn_fail(TN_ERR_ARGUMENT, "%s: softcap is %g; it must be a number of at least 0 (0: none)", c->row->name,
                       cap);
    return tn_infer_same(c);
}

static tn_status infer_cached_attention_rows(tn_infer *c) {
    TRY(infer_cached_attention(c));
    for (int i = ATTEND_Q; i <= ATTEND_V; i++)
        TRY(need_laid_out(c, i, 2));
    TRY(need_laid_out(c, ATTEND_K_CACHE, 1));
    TRY(need_laid_out(c, ATTEND_V_CACHE, 1));
    TRY(need_laid_out(c, ATTEND_POSITION, 0));
    if (c->in[ATTEND_SINKS]) TRY(need_laid_out(c, ATTEND_SINKS, 0));
    return need_laid_out(c, ATTEND_PAGES, 0);
}

static tn_node *pages_laid_out(tn_build *b, tn_node *cache) {
    return cache && !laid_out_from(cache, 1) ? tn_b_contiguous(b, cache) : cache;
}

static double scale_of(const tn_node *n) {
    double scale = n->f[TN_CACHED_ATTENTION_SCALE];
    return scale == TN_AUTO ? 1.0 / sqrt((double)n->in[ATTEND_Q]->shape[2]) : scale;
}

static tn_node *compose_cached_attention(tn_build *b, const tn_node *n) {
    tn_node *sinks = n->in[ATTEND_SINKS];
    return tn_b_cached_attention_rows(
        b, cache_rows_of(b, n->in[ATTEND_Q]), cache_rows_of(b, n->in[ATTEND_K]), cache_rows_of(b, n->in[ATTEND_V]),
        pages_laid_out(b, n->in[ATTEND_K_CACHE]), pages_laid_out(b, n->in[ATTEND_V_CACHE]),
        tn_b_row_major(b, n->in[ATTEND_POSITION]), tn_b_row_major(b, n->in[ATTEND_PAGES]),
        sinks ? tn_b_row_major(b, sinks) : NULL, scale_of(n), n->i[TN_CACHED_ATTENTION_WINDOW],
        n->f[TN_CACHED_ATTENTION_SOFTCAP], n->i[TN_CACHED_ATTENTION_RUNS]);
}

/* ---- without a kernel -------------------------------------------------------------------------------------------- */

static tn_node *i64(tn_build *b, double v) { return tn_b_full(b, NULL, 0, v, TN_I64); }

static tn_node *below(tn_build *b, tn_node *x, double bound) { return tn_b_lt(b, x, i64(b, bound)); }

static tn_node *in_range(tn_build *b, tn_node *x, double bound) {
    return tn_b_logical_and(b, tn_b_le(b, i64(b, 0), x), below(b, x, bound));
}

/* What lies outside is not used, but other engines that run this as a model refuse an index out of range. */
static tn_node *clamped(tn_build *b, tn_node *index, double count) {
    return tn_b_minimum(b, tn_b_maximum(b, index, i64(b, 0)), i64(b, count - 1));
}

/* Places of `pages` that name a page of the cache, and −1 for the others. */
static tn_node *valid_pages(tn_build *b, const tn_node *cache, tn_node *pages) {
    return tn_b_where(b, in_range(b, pages, (double)cache->shape[0]), pages, i64(b, -1));
}

/* Keys or values of all logical places [kv_heads, places, head_dim] in f32: old ones by their pages, new ones as the
 * cache would hold them, zeros where there is neither. */
static tn_node *tokens_by_place(tn_build *b, tn_node *cache, tn_node *fresh, tn_node *pages, tn_node *place,
                                tn_node *position) {
    int64_t heads = cache->shape[1], width = cache->shape[3], tokens = fresh->shape[0];
    int64_t old_places = pages->shape[0] * TN_PAGE_TOKENS;
    tn_node *none = tn_b_full(b, NULL, 0, 0, TN_F32);
    tn_node *since = tn_b_reshape(b, tn_b_sub(b, place, position), (int64_t[]){place->shape[0], 1, 1}, 3);
    tn_node *rounded = tn_b_cast(b, tn_b_cast(b, fresh, (tn_dtype)cache->dtype), TN_F32);
    tn_node *taken = tn_b_index_select(b, rounded, 0, clamped(b, tn_b_sub(b, place, position), (double)tokens));
    tn_node *all = tn_b_where(b, in_range(b, since, (double)tokens), taken, none);
    if (old_places == 0 || cache->shape[0] == 0) return tn_b_permute(b, all, (int64_t[]){1, 0, 2}, 3);
    tn_node *number = tn_b_floor_divide(b, place, i64(b, TN_PAGE_TOKENS));
    tn_node *page = tn_b_index_select(b, valid_pages(b, cache, pages), 0, clamped(b, number, (double)pages->shape[0]));
    tn_node *inside = tn_b_logical_and(b, below(b, place, (double)old_places), tn_b_le(b, i64(b, 0), page));
    tn_node *row = tn_b_sub(b, place, tn_b_mul(b, tn_b_sub(b, number, page), i64(b, TN_PAGE_TOKENS)));
    int64_t flat = cache->shape[0] * TN_PAGE_TOKENS;
    tn_node *rows =
        tn_b_reshape(b, tn_b_permute(b, cache, (int64_t[]){0, 2, 1, 3}, 4), (int64_t[]){flat, heads, width}, 3);
    tn_node *old = tn_b_cast(b, tn_b_index_select(b, rows, 0, clamped(b, row, (double)flat)), TN_F32);
    int64_t column[3] = {place->shape[0], 1, 1};
    old = tn_b_where(b, tn_b_reshape(b, inside, column, 3), old, none);
    all = tn_b_where(b, tn_b_lt(b, since, i64(b, 0)), old, all);
    return tn_b_permute(b, all, (int64_t[]){1, 0, 2}, 3);
}

/* Which places [tokens, places] a query sees. */
static tn_node *visible_places(tn_build *b, const tn_node *n, tn_node *place, tn_node *position) {
    int64_t tokens = n->shape[0], window = n->i[TN_CACHED_ATTENTION_ROWS_WINDOW];
    tn_node *last = tn_b_add(b, tn_b_arange(b, 0, (double)tokens, 1, TN_I64), position);
    last = tn_b_reshape(b, last, (int64_t[]){tokens, 1}, 2);
    tn_node *seen = tn_b_le(b, place, last);
    if (window == 0) return seen;
    return tn_b_logical_and(b, seen, tn_b_lt(b, tn_b_sub(b, last, i64(b, (double)window)), place));
}

/* A batch: each sequence separately. */
static tn_node *compose_each_sequence(tn_build *b, const tn_node *n) {
    tn_node *all = NULL;
    for (int64_t i = 0; i < n->shape[0]; i++) {
        tn_node *in[ATTEND_SINKS + 1];
        for (int k = 0; k <= ATTEND_SINKS; k++)
            in[k] = n->in[k];
        for (int k = ATTEND_Q; k <= ATTEND_V; k++)
            in[k] = tn_b_slice(b, in[k], 0, i, i + 1, 1);
        in[ATTEND_POSITION] = tn_b_reshape(b, tn_b_slice(b, in[ATTEND_POSITION], 0, i, i + 1, 1), NULL, 0);
        int64_t pages = in[ATTEND_PAGES]->shape[1];
        in[ATTEND_PAGES] = tn_b_reshape(b, tn_b_slice(b, in[ATTEND_PAGES], 0, i, i + 1, 1), &pages, 1);
        tn_node *one = tn_b_cached_attention_rows(
            b, in[ATTEND_Q], in[ATTEND_K], in[ATTEND_V], in[ATTEND_K_CACHE], in[ATTEND_V_CACHE], in[ATTEND_POSITION],
            in[ATTEND_PAGES], in[ATTEND_SINKS], n->f[TN_CACHED_ATTENTION_ROWS_SCALE],
            n->i[TN_CACHED_ATTENTION_ROWS_WINDOW], n->f[TN_CACHED_ATTENTION_ROWS_SOFTCAP], false);
        all = all ? tn_b_cat(b, (tn_node *[]){all, one}, 2, 0) : one;
    }
    return all;
}

/* The softmax in one piece over all places that there can be: the definition but for the order of its sums. */
static tn_node *compose_cached_attention_rows(tn_build *b, const tn_node *n) {
    if (n->in[ATTEND_K_CACHE]->dtype == TN_U8 || n->in[ATTEND_V_CACHE]->dtype == TN_U8) {
        b->status = tn_fail(TN_ERR_UNSUPPORTED,
                            "cached_attention: a cache in q8_0 is supported on the device cpu only; use f16");
        return NULL;
    }
    if (n->i[TN_CACHED_ATTENTION_ROWS_RUNS] && n->in[ATTEND_POSITION]->rank == 1) {
        b->status = tn_fail(TN_ERR_UNSUPPORTED, "cached_attention: runs is supported on the device cpu only");
        return NULL;
    }
    if (n->in[ATTEND_POSITION]->rank == 1 && tn_node_numel(n) > 0) return compose_each_sequence(b, n);
    tn_node *q = n->in[ATTEND_Q], *k_cache = n->in[ATTEND_K_CACHE], *pages = n->in[ATTEND_PAGES];
    int64_t tokens = n->shape[0], heads = n->shape[1], width = n->shape[2], kv_heads = k_cache->shape[1];
    int64_t old_places = pages->shape[0] * TN_PAGE_TOKENS, places = old_places + tokens, groups = heads / kv_heads;
    if (tn_node_numel(n) == 0) return tn_b_contiguous(b, q);
    tn_node *position = tn_b_minimum(b, tn_b_maximum(b, n->in[ATTEND_POSITION], i64(b, 0)), i64(b, (double)old_places));
    tn_node *place = tn_b_arange(b, 0, (double)places, 1, TN_I64);
    tn_node *keys = tokens_by_place(b, k_cache, n->in[ATTEND_K], pages, place, position);
    tn_node *values = tokens_by_place(b, n->in[ATTEND_V_CACHE], n->in[ATTEND_V], pages, place, position);
    tn_node *rows = tn_b_permute(b, tn_b_reshape(b, q, (int64_t[]){tokens, kv_heads, groups, width}, 4),
                                 (int64_t[]){1, 2, 0, 3}, 4);
    keys = tn_b_unsqueeze(b, tn_b_transpose(b, keys, 1, 2), 1);
    tn_node *scores = tn_b_matmul_batched(b, rows, keys);
    scores = tn_b_scale(b, scores, (double)(float)n->f[TN_CACHED_ATTENTION_ROWS_SCALE]);
    float cap = (float)n->f[TN_CACHED_ATTENTION_ROWS_SOFTCAP];
    if (cap > 0)
        scores =
            tn_b_scale(b, tn_b_tanh(b, tn_b_div(b, scores, tn_b_full(b, NULL, 0, (double)cap, TN_F32))), (double)cap);
    tn_node *seen = visible_places(b, n, place, position), *least = tn_b_full(b, NULL, 0, -INFINITY, TN_F32);
    tn_node *counted = tn_b_where(b, tn_b_logical_and(b, seen, tn_b_eq(b, scores, scores)), scores, least);
    tn_node *most = tn_b_amax(b, counted, (int64_t[]){3}, 1, true), *none = tn_b_full(b, NULL, 0, 0, TN_F32);
    tn_node *sinks = n->in[ATTEND_SINKS];
    if (sinks) {
        sinks = tn_b_reshape(b, sinks, (int64_t[]){kv_heads, groups, 1, 1}, 4);
        most = tn_b_maximum(b, most, sinks);
    }
    most = tn_b_where(b, tn_b_eq(b, most, least), none, most);
    tn_node *weights = tn_b_where(b, seen, tn_b_exp(b, tn_b_sub(b, scores, most)), none);
    tn_node *total = tn_b_sum(b, weights, (int64_t[]){3}, 1, true);
    if (sinks) total = tn_b_add(b, total, tn_b_exp(b, tn_b_sub(b, sinks, most)));
    /* Not a product of matrices: what a query does not see may be NaN. */
    tn_node *each = tn_b_mul(b, tn_b_unsqueeze(b, weights, 4),
                             tn_b_reshape(b, values, (int64_t[]){kv_heads, 1, 1, places, width}, 5));
    each = tn_b_where(b, tn_b_unsqueeze(b, seen, 2), each, none);
    tn_node *out = tn_b_div(b, tn_b_sum(b, each, (int64_t[]){3}, 1, false), total);
    out = tn_b_permute(b, out, (int64_t[]){2, 0, 1, 3}, 4);
    return tn_b_reshape(b, out, n->shape, 3);
}

/* ---- definition -------------------------------------------------------------------------------------------------- */

/* What the definition needs at hand. */
typedef struct attention {
    const tn_reference *r;
    page_table table;
    int64_t position; /* of query `start` */
    int64_t start;    /* the sequence's first query: 0, or of a batch each */
    int64_t heads, kv_heads, width;
    const double *sinks; /* [heads], or NULL */
} attention;

/* Element k of the key or value (`input`: ATTEND_K or ATTEND_V) at a logical place. */
static double token_value(const attention *a, int input, int64_t token, int64_t head, int64_t k) {
    int number = input == ATTEND_K ? ATTEND_K_CACHE : ATTEND_V_CACHE;
    const tn_node *cache = a->r->node->in[number];
    if (token >= a->position) {
        int64_t row = (a->start + token - a->position) * a->kv_heads + head;
        return as_cached((tn_dtype)cache->dtype, a->r->in[input] + row * a->width, k);
    }
    int64_t from = place_in(cache, &a->table, a->start, token, head);
    return from < 0 ? 0 : cached_number((tn_dtype)cache->dtype, a->r->in[number] + from, k);
}

static double score_of(const attention *a, int64_t query, int64_t head, int64_t token) {
    double sum = 0;
    for (int64_t k = 0; k < a->width; k++)
        sum += a->r->in[ATTEND_Q][(query * a->heads + head) * a->width + k] *
               token_value(a, ATTEND_K, token, head / (a->heads / a->kv_heads), k);
    double score = sum * scale_of(a->r->node), cap = a->r->node->f[TN_CACHED_ATTENTION_SOFTCAP];
    return cap > 0 ? cap * tanh(score / cap) : score;
}

static void attend_cache(const attention *a, int64_t query, int64_t head) {
    int64_t window = a->r->node->i[TN_CACHED_ATTENTION_WINDOW], last = a->position + query - a->start;
    int64_t first = window > 0 && last + 1 > window ? last + 1 - window : 0;
    double most = -INFINITY, sum = 0, *out = a->r->out + (query * a->heads + head) * a->width;
    for (int64_t t = first; t <= last; t++)
        most = fmax(most, score_of(a, query, head, t));
    if (a->sinks) most = fmax(most, a->sinks[head]);
    if (a->sinks) sum = exp(a->sinks[head] - most);
    for (int64_t k = 0; k < a->width; k++)
        out[k] = 0;
    for (int64_t t = first; t <= last; t++) {
        double weight = exp(score_of(a, query, head, t) - most);
        sum += weight;
        for (int64_t k = 0; k < a->width; k++)
            out[k] += weight * token_value(a, ATTEND_V, t, head / (a->heads / a->kv_heads), k);
    }
    for (int64_t k = 0; k < a->width; k++)
        out[k] /= sum;
}

/* The first token of the sequence that token i of a batch belongs to. */
static int64_t run_of(const tn_reference *r, const page_table *t, int64_t i) {
    const double *place = r->in[ATTEND_POSITION];
    while (r->node->i[TN_CACHED_ATTENTION_RUNS] && i > 0 && place[i] == place[i - 1] + 1 &&
           memcmp(t->pages + i * t->count, t->pages + (i - 1) * t->count, (size_t)t->count * sizeof *t->pages) == 0)
        i--;
    return i;
}

static void reference_cached_attention(const tn_reference *r) {
    const tn_node *q = r->node;
    attention a = {.r = r,
                   .table = table_of(r, ATTEND_PAGES),
                   .heads = q->shape[1],
                   .kv_heads = q->in[ATTEND_K_CACHE]->shape[1],
                   .width = q->shape[2],
                   .sinks = q->in[ATTEND_SINKS] ? r->in[ATTEND_SINKS] : NULL};
    int64_t most = a.table.count * TN_PAGE_TOKENS;
    for (int64_t i = 0; i < q->shape[0]; i++) {
        a.start = a.table.batch ? run_of(r, &a.table, i) : 0;
        a.position = tn_min64(tn_max64(token_place(r, ATTEND_POSITION, a.start), 0), most);
        for (int64_t h = 0; h < a.heads; h++)
            attend_cache(&a, i, h);
    }
}

/* cached_attention(q, k, v, k_cache, v_cache, position, pages, sinks, scale, window, softcap, runs): causal attention
 * of n new tokens, q [n, heads, head_dim], k and v [n, kv_heads, head_dim] (f32), that follow `position` tokens in the
 * caches [pages, kv_heads, 64, head_dim] (of one dtype or two), filled by tn_cache_append_; they hold the new
 * ones only afterwards. k and v count as the caches would hold them, so a result does not depend on how a text was cut.
 * heads is a multiple of kv_heads; scale TN_AUTO means 1/sqrt(head_dim); window: the greatest number of keys a query
 * sees, itself included, 0 for all. softcap: a score s becomes softcap · tanh(s / softcap), 0 for none. sinks: NULL, or
 * [heads], a score of each head that belongs to no key: it takes its share of the softmax and yields nothing. Of a
 * batch, position is [n] and pages [n, count]: token i follows position[i] tokens of the sequence whose pages are row
 * i, and sees only those and itself. runs, for a batch: adjacent tokens with the same pages and successive positions
 * are of one sequence, and each sees those before it too; only the CPU has a kernel for it. Result [n, heads,
 * head_dim]; no gradient. */
OP_CODE(cached_attention, .infer = infer_cached_attention, .compose = compose_cached_attention,
        .cases =
            "types=f32 tol=1e-5 atol=1e-5; [3,4,5] [3,2,5] [3,2,5] [3,2,64,5] [3,2,64,5] []:i64@0..0 [3]:i64@0..2 -; "
            "[2,2,4] [2,2,4] [2,2,4] [3,2,64,4] [3,2,64,4] []:i64@0..150 [3]:i64@0..2 -; "
            "[1,6,8] [1,2,8] [1,2,8] [3,2,64,8]:f16 [3,2,64,8]:f16 []:i64@63..66 [3]:i64@0..2 - scale=0.2; "
            "[5,1,3] [5,1,3] [5,1,3] [2,1,64,3]:bf16 [2,1,64,3]:bf16 []:i64@62..62 [2]:i64@0..1 - window=3; "
            "[1,6,8] [1,2,8] [1,2,8] [3,2,64,8]:f16 [3,2,64,8] []:i64@63..66 [3]:i64@0..2 -; "
            "[3,2,8] [3,1,8] [3,1,8] [2,1,64,8] [2,1,64,8]:bf16 []:i64@62..70 [2]:i64@0..1 -; "
            "[3,4,8] [3,2,8] [3,2,8] [3,2,64,8] [3,2,64,8] []:i64@60..130 [3]:i64@0..2 - scale=1.5 softcap=2.5; "
            "[3,4,8] [3,2,8] [3,2,8] [3,2,64,8] [3,2,64,8] []:i64@60..130 [3]:i64@0..2 [4] window=70; "
            "[3,4,5] [3,2,5] [3,2,5] [6,2,64,5] [6,2,64,5] [3]:i64@0..120 [3,2]:i64@0..5 [4]; "
            "error=sinks [1,2,4] [1,2,4] [1,2,4] [1,2,64,4] [1,2,64,4] []:i64@0..0 [1]:i64@0..0 [3]; "
            "[2,1,3] [2,1,3] [2,1,3] [2,1,64,3] [2,1,64,3] []:i64@90..90 [2]:i64@2..2 -; "
            "[3,4,5] [3,2,5] [3,2,5] [6,2,64,5] [6,2,64,5] [3]:i64@0..120 [3,2]:i64@0..5 -; "
            "[4,2,8] [4,2,8] [4,2,8] [3,2,64,8]:f16 [3,2,64,8]:f16 [4]:i64@60..70 [4,1]:i64@0..3 - window=9; "
            "error=sequences [3,4,5] [3,2,5] [3,2,5] [6,2,64,5] [6,2,64,5] [2]:i64@0..9 [3,2]:i64@0..5 -; "
            "[0,1,3] [0,1,3] [0,1,3] [1,1,64,3] [1,1,64,3] []:i64@0..0 [1]:i64@0..0 -; "
            "error=multiple [2,3,4] [2,2,4] [2,2,4] [1,2,64,4] [1,2,64,4] []:i64@0..0 [1]:i64@0..0 -; "
            "error=alike [2,2,4] [2,2,4] [2,2,4] [1,2,64,4] [2,2,64,4] []:i64@0..0 [1]:i64@0..0 -; "
            "error=tokens [2,2,4] [1,2,4] [2,2,4] [1,2,64,4] [1,2,64,4] []:i64@0..0 [1]:i64@0..0 -; "
            "error=window [1,2,4] [1,2,4] [1,2,4] [1,2,64,4] [1,2,64,4] []:i64@0..0 [1]:i64@0..0 - window=-1; "
            "[4,4,5] [4,2,5] [4,2,5] [6,2,64,5] [6,2,64,5] [4]:i64@0..120 [4,3]:i64@0..5 - runs=false; "
            "error=softcap [1,2,4] [1,2,4] [1,2,4] [1,2,64,4] [1,2,64,4] []:i64@0..0 [1]:i64@0..0 - softcap=-1");

/* cached_attention_rows(q, k, v, k_cache, v_cache, position, pages, sinks, scale, window, softcap, runs): the
 * same on operands whose rows are contiguous. */
OP_CODE(cached_attention_rows, .class_ = TN_NATIVE, .infer = infer_cached_attention_rows,
        .compose = compose_cached_attention_rows, .reference = reference_cached_attention,
        .cases =
            "types=f32 tol=1e-5 atol=1e-5; [3,4,5] [3,2,5] [3,2,5] [3,2,64,5] [3,2,64,5] []:i64@0..70 [3]:i64@0..2 - "
            "scale=0.3 window=0 softcap=0 runs=false; [3,4,5] [3,2,5] [3,2,5] [3,2,64,5] [3,2,64,5] []:i64@0..70 "
            "[3]:i64@0..2 - scale=2 window=0 softcap=1.5 runs=false;"
            "error=f32 [1,2,4]:f64 [1,2,4] [1,2,4] [1,2,64,4] [1,2,64,4] []:i64@0..0 [1]:i64@0..0 - scale=1 window=0 "
            "softcap=0 runs=false",
        .flops = 2);

/* ==== embedding and rotary positions ============================================================================== */

/* ---- embedding --------------------------------------------------------------------------------------------------- */

static tn_status infer_embedding(tn_infer *c) {
    const tn_node *index = c->in[0], *weight = c->in[1];
    char text[96];
    TRY(tn_need_integer(c, 0));
    if (weight->rank != 2)
        return tn_fail(TN_ERR_SHAPE, "embedding: the weight must be [rows, features]; it is %s",
                       tn_shape_text(weight, text, sizeof text));
    if (index->rank + 1 > TN_MAX_RANK)
        return tn_fail(TN_ERR_SHAPE, "embedding: an index of rank %d would give more than %d dimensions", index->rank,
                       TN_MAX_RANK);
    c->dtype = tn_dtype_is_quantized((tn_dtype)weight->dtype) ? TN_F32 : (tn_dtype)weight->dtype;
    c->rank = index->rank + 1;
    for (int d = 0; d < index->rank; d++)
        tn_infer_dim_of(c, d, index, d);
    tn_infer_dim_of(c, index->rank, weight, 1);
    return TN_OK;
}

static tn_node *compose_embedding(tn_build *b, const tn_node *n) {
    tn_node *weight = n->in[1], *index = n->in[0];
    tn_node *flat = index->rank == 1 ? index : tn_b_reshape(b, index, (int64_t[]){tn_node_numel(index)}, 1);
    if (tn_dtype_is_quantized((tn_dtype)weight->dtype)) weight = tn_b_cast(b, weight, TN_F32);
    tn_node *rows = tn_b_index_select(b, weight, 0, flat);
    return index->rank == 1 ? rows : tn_b_view(b, rows, n->shape, n->rank);
}

/* embedding(index, weight): the rows of weight [rows, features] with these numbers: index's shape, then features. Of a
 * weight that is quantised in blocks these rows are decoded, to f32. */
OP_CODE(embedding, .keeps_half = true, .quantized = 2, .infer = infer_embedding, .compose = compose_embedding,
        .cases =
            "types=f32,f64; [2,3]:i64@0..4 [5,4]; []:i64@0..4 [5,2]; [9]:i32@0..4 [5,3]; [0]:i64@0..0 [5,3]; "
            "error=rows [2]:i64@0..1 [4]; error=integer [2]:f32 [4,2]; error= types=f32; [3]:i64@0..4 [5,64]:q4_1; "
            "[2,1]:i64@-1..5 [5,256]:q4_k");

/* ---- rope -------------------------------------------------------------------------------------------------------- */

static tn_status infer_rope(tn_infer *c) {
    const tn_node *x = c->in[0], *cosine = c->in[1], *sine = c->in[2];
    char xt[96], ct[96], st[96];
    TRY(tn_need_float(c, 0));
    TRY(tn_infer_same(c));
    if (x->rank == TN_MAX_RANK)
        return tn_fail(TN_ERR_SHAPE, "rope: x has %d dimensions; at most %d are supported", x->rank, TN_MAX_RANK - 1);
    bool fits = x->rank >= 1 && cosine->rank >= 1 && cosine->rank <= x->rank && sine->rank == cosine->rank;
    fits = fits && 2 * cosine->shape[cosine->rank - 1] <= x->shape[x->rank - 1];
    for (int d = 0; fits && d < cosine->rank; d++) {
        int64_t own = x->shape[x->rank - cosine->rank + d];
        fits = sine->shape[d] == cosine->shape[d];
        if (fits && d < cosine->rank - 1) fits = cosine->shape[d] == own || cosine->shape[d] == 1;
    }
    if (cosine->dtype != x->dtype || sine->dtype != x->dtype)
        return tn_fail(TN_ERR_DTYPE, "rope: x, cos and sin must have the same dtype; they are %s, %s and %s",
                       tn_dtype_name((tn_dtype)x->dtype), tn_dtype_name((tn_dtype)cosine->dtype),
                       tn_dtype_name((tn_dtype)sine->dtype));
    if (fits) return TN_OK;
    return tn_fail(TN_ERR_SHAPE,
                   "rope: x %s, cos %s and sin %s do not fit together: cos and sin must be [positions, half], with "
                   "half at most half of x's last dimension",
                   tn_shape_text(x, xt, sizeof xt), tn_shape_text(cosine, ct, sizeof ct),
                   tn_shape_text(sine, st, sizeof st));
}

static tn_status infer_rope_rows(tn_infer *c) {
    if (c->in[0]->dtype != TN_F32) return tn_fail(TN_ERR_DTYPE, "%s: only f32 is supported", c->row->name);
    return infer_rope(c);
}

/* Feature j of a row, where no kernel does it: its own part and its partner's. */
static kir_val lower_rope_rows(tn_lower *lw, const tn_node *n, const kir_aff *at) {
    kir_builder *kb = lw->kb;
    const tn_node *angles = n->in[1];
    int64_t half = angles->shape[angles->rank - 1];
    int last = n->rank - 1;
    kir_aff own[TN_MAX_RANK], table[TN_MAX_RANK];
    kir_val j = kir_index(kb, &at[last]), one = kir_whole(kb, 1), width = kir_whole(kb, half);
    bool neighbours = n->i[TN_ROPE_ROWS_INTERLEAVED];
    kir_val first = neighbours ? kir_eq(kb, kir_and(kb, j, one), kir_whole(kb, 0)) : kir_lt(kb, j, width);
    kir_val low = kir_sub(kb, j, width), high = kir_add(kb, j, width);
    kir_val partner = neighbours ? kir_xor(kb, j, one) : kir_select(kb, first, high, low);
    kir_val pair = neighbours ? kir_shr(kb, j, one) : kir_select(kb, first, j, low);
    kir_val turning = kir_lt(kb, j, kir_whole(kb, 2 * half));
    memcpy(own, at, (size_t)n->rank * sizeof *own);
    for (int d = 0; d < angles->rank - 1; d++)
        table[d] = angles->shape[d] == 1 ? kir_aff_const(0) : at[n->rank - angles->rank + d];
    table[angles->rank - 1] = kir_aff_value(pair);
    kir_val x = tn_lower_at(lw, n->in[0], own);
    own[last] = kir_aff_value(partner);
    kir_val y = tn_lower_at_masked(lw, n->in[0], own, turning);
    kir_val cosine = tn_lower_at_masked(lw, n->in[1], table, turning),
            sine = tn_lower_at_masked(lw, n->in[2], table, turning);
    sine = kir_select(kb, first, kir_neg(kb, sine), sine);
    kir_val rotated = kir_add(kb, kir_mul(kb, x, cosine), kir_mul(kb, y, sine));
    return kir_select(kb, turning, rotated, x);
}

static void reference_rope_rows(const tn_reference *r) {
    const tn_node *n = r->node, *angles = n->in[1];
    int64_t half = angles->shape[angles->rank - 1], last = n->rank - 1, from[TN_MAX_RANK], table[TN_MAX_RANK];
    bool neighbours = n->i[TN_ROPE_ROWS_INTERLEAVED];
    for (tn_walk w = tn_walk_begin(n); w.place < w.count; tn_walk_next(&w)) {
        int64_t j = w.at[last];
        bool first = neighbours ? j % 2 == 0 : j < half;
        r->out[w.place] = r->in[0][w.place];
        if (j >= 2 * half) continue;
        memcpy(from, w.at, sizeof from);
        from[last] = neighbours ? j ^ 1 : first ? j + half : j - half;
        for (int d = 0; d < angles->rank - 1; d++)
            table[d] = angles->shape[d] == 1 ? 0 : w.at[n->rank - angles->rank + d];
        table[angles->rank - 1] = neighbours ? j / 2 : j % half;
        int64_t angle = tn_element_offset(angles, table);
        double across = r->in[0][tn_element_offset(n, from)] * r->in[2][angle];
        r->out[w.place] = r->in[0][w.place] * r->in[1][angle] + (first ? -across : across);
    }
}

/* rope_rows(x, cos, sin, interleaved): rope of contiguous f32 operands. */
OP_CODE(
    rope_rows, .class_ = TN_NATIVE, .infer = infer_rope_rows, .contiguous = 7, .lower = lower_rope_rows,
    .reference = reference_rope_rows,
    .cases =
        "types=f32 tol=4e-6 atol=2e-6; [2,3,4] [3,2] [3,2] interleaved=false; [2,3,18] [3,8] [3,8] interleaved=true; "
        "[4,3,13] [4,1,6] [4,1,6] interleaved=false; [5,13] [1,5] [1,5] interleaved=true; [4] [2] [2] "
        "interleaved=true; "
        "error=f32 [2,4]:f64 [2,2]:f64 [2,2]:f64 interleaved=true",
    .flops = 3);

/* The two parts of each pair in x. */
typedef struct rope_parts {
    tn_node *first, *second;
} rope_parts;

static rope_parts split_pairs(tn_build *b, const tn_node *n, tn_node *x) {
    const tn_node *cosine = n->in[1];
    int64_t half = cosine->shape[cosine->rank - 1], last = n->rank - 1;
    bool interleaved = n->i[TN_ROPE_INTERLEAVED];
    rope_parts p = {0};
    p.first = interleaved ? tn_b_slice(b, x, last, 0, 2 * half, 2) : tn_b_slice(b, x, last, 0, half, 1);
    p.second = interleaved ? tn_b_slice(b, x, last, 1, 2 * half, 2) : tn_b_slice(b, x, last, half, 2 * half, 1);
    return p;
}

/* x [..., 2·half] with each pair in a dimension of its own: the last one when neighbours
 * are a pair, else the one before. */
static tn_node *as_pairs(tn_build *b, const tn_node *n, tn_node *x) {
    int64_t shape[TN_MAX_RANK], half = n->in[1]->shape[n->in[1]->rank - 1];
    int last = n->rank - 1;
    memcpy(shape, n->shape, (size_t)n->rank * sizeof *shape);
    shape[last] = n->i[TN_ROPE_INTERLEAVED] ? half : 2;
    shape[last + 1] = n->i[TN_ROPE_INTERLEAVED] ? 2 : half;
    return tn_b_reshape(b, x, shape, n->rank + 1);
}

/* Turns each pair of x by the angle; back: by its opposite. A pair (x, y) becomes (x, y)·cos + (y, x)·(-sin, sin): one
 * expression for both, so that a kernel reads and writes all features in their order. */
static tn_node *rotate(tn_build *b, const tn_node *n, tn_node *x, bool back) {
    bool interleaved = n->i[TN_ROPE_INTERLEAVED];
    int64_t half = n->in[1]->shape[n->in[1]->rank - 1], all = n->shape[n->rank - 1], last = n->rank - 1;
    int64_t pair = interleaved ? n->rank : n->rank - 1, beside = interleaved ? -1 : -2;
    tn_node *rest = 2 * half < all ? tn_b_slice(b, x, last, 2 * half, all, 1) : NULL;
    tn_node *pairs = as_pairs(b, n, rest ? tn_b_slice(b, x, last, 0, 2 * half, 1) : x);
    tn_node *swapped = tn_b_slice(b, pairs, pair, INT64_MAX, INT64_MIN, -1);
    tn_node *sign = tn_b_arange(b, back ? 1 : -1, back ? -3 : 3, back ? -2 : 2, (tn_dtype)n->dtype);
    tn_node *signs = interleaved ? sign : tn_b_unsqueeze(b, sign, -1);
    tn_node *cosine = tn_b_unsqueeze(b, n->in[1], beside), *sine = tn_b_unsqueeze(b, n->in[2], beside);
    tn_node *rotated = tn_b_add(b, tn_b_mul(b, pairs, cosine), tn_b_mul(b, swapped, tn_b_mul(b, sine, signs)));
    if (!rest) return tn_b_view(b, rotated, n->shape, n->rank);
    int64_t shape[TN_MAX_RANK];
    memcpy(shape, n->shape, (size_t)n->rank * sizeof *shape);
    shape[last] = 2 * half;
    return tn_b_cat(b, (tn_node *[]){tn_b_view(b, rotated, shape, n->rank), rest}, 2, last);
}

/* In f32 there is a kernel for it. */
static tn_node *rotated(tn_build *b, const tn_node *n, tn_node *x, bool back) {
    if (n->dtype != TN_F32 || n->rank - 1 > TN_ROPE_AXES) return rotate(b, n, x, back);
    tn_node *sine = back ? tn_b_neg(b, n->in[2]) : n->in[2];
    return tn_b_rope_rows(b, tn_b_row_major(b, x), tn_b_row_major(b, n->in[1]), tn_b_row_major(b, sine),
                          n->i[TN_ROPE_INTERLEAVED]);
}

static tn_node *compose_rope(tn_build *b, const tn_node *n) { return rotated(b, n, n->in[0], false); }

static void grad_rope(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    if (tn_needs_grad(n, 0)) grads[0] = rotated(b, n, dy, true);
    if (!tn_needs_grad(n, 1) && !tn_needs_grad(n, 2)) return;
    rope_parts x = split_pairs(b, n, n->in[0]), g = split_pairs(b, n, dy);
    tn_node *along = tn_b_add(b, tn_b_mul(b, g.first, x.first), tn_b_mul(b, g.second, x.second));
    tn_node *across = tn_b_sub(b, tn_b_mul(b, g.second, x.first), tn_b_mul(b, g.first, x.second));
    if (tn_needs_grad(n, 1)) grads[1] = tn_b_sum_to(b, along, n->in[1]);
    if (tn_needs_grad(n, 2)) grads[2] = tn_b_sum_to(b, across, n->in[2]);
}

/* rope(x, cos, sin, interleaved): rotary position embedding: each pair of x [..., positions, features] is turned by an
 * angle whose cosine and sine are given [positions, half]. Pairs are (i, i + half), or neighbours when interleaved;
 * features after 2·half stay. Source: Su et al. 2021. */
OP_CODE(rope, .infer = infer_rope, .compose = compose_rope, .grad = grad_rope,
        .cases = "tol=4e-6 atol=2e-6; [2,3,4] [3,2] [3,2]; [2,3,6] [3,2] [3,2] interleaved=true; "
                 "[2,3,6] [3,2] [3,2]; [2,3,4] [3,2] [3,2] interleaved=true; [2,2,3,4] [1,2] [1,2] "
                 "interleaved=true; error=half [3,4] [3,3] [3,3]; "
                 "error=fit [3,4] [2,2] [2,2]; error=dtype [3,4]:f32 [3,2]:f64 [3,2]:f64");
