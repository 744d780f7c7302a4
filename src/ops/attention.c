/* attention.c — scaled dot-product attention: what it is composed of, and the form that the CPU has a kernel for.
 *
 * scaled_dot_product_attention becomes attention_dense on [batch, heads, positions, features] in f32; its gradients
 * are one operation too, and neither keeps anything of the size queries × keys (kern/cpu/sdpa.c). Where there is no
 * kernel both are products and a softmax, and so is what that operation does not take: f64, a mask that learns, few
 * queries. */
#include <math.h>
#include <string.h>

#include "graph/node_internal.h"
#include "kern/kern.h"
#include "ops/common.h"

enum { Q, K, V, MASK, OUT, DOUT }; /* inputs; the last two of the gradient */

static tn_node *wide(tn_build *b, tn_node *x) { return x && tn_dtype_is_half(x->dtype) ? tn_b_cast(b, x, TN_F32) : x; }

static void copy_dim(tn_infer *c, int to, const tn_node *from, int dim) {
    c->shape[to] = from->shape[dim];
    c->symbol[to] = from->symbol[dim];
}

/* ---- shapes ------------------------------------------------------------------------------------------------------ */

static tn_status attention_mismatch(const tn_infer *c, const char *what) {
    char q[96], k[96], v[96];
    return tn_fail(TN_ERR_SHAPE, "scaled_dot_product_attention: q %s, k %s and v %s do not fit: %s",
                   tn_shape_text(c->in[0], q, sizeof q), tn_shape_text(c->in[1], k, sizeof k),
                   tn_shape_text(c->in[2], v, sizeof v), what);
}

static tn_status check_attention_mask(const tn_infer *c) {
    const tn_node *mask = c->in[3], *q = c->in[0], *k = c->in[1];
    char text[96];
    if (!mask) return TN_OK;
    if (mask->dtype != TN_BOOL && mask->dtype != q->dtype)
        return tn_fail(TN_ERR_DTYPE, "scaled_dot_product_attention: the mask must be bool or %s, it is %s",
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

static tn_status infer_attention(tn_infer *c) {
    const tn_node *q = c->in[0], *k = c->in[1], *v = c->in[2];
    int r = q->rank;
    TRY(tn_need_float(c, 0));
    if (k->dtype != q->dtype || v->dtype != q->dtype)
        return tn_fail(
            TN_ERR_DTYPE, "scaled_dot_product_attention: q, k and v must have one dtype, they are %s, %s and %s",
            tn_dtype_name((tn_dtype)q->dtype), tn_dtype_name((tn_dtype)k->dtype), tn_dtype_name((tn_dtype)v->dtype));
    if (r < 2 || k->rank != r || v->rank != r)
        return attention_mismatch(c, "all need the same number of dimensions, at least 2");
    if (k->shape[r - 1] != q->shape[r - 1]) return attention_mismatch(c, "q and k must have equally many features");
    if (k->shape[r - 2] != v->shape[r - 2]) return attention_mismatch(c, "k and v must have equally many positions");
    for (int d = 0; d < r - 2; d++) {
        if (k->shape[d] != v->shape[d]) return attention_mismatch(c, "k and v must have the same batch and heads");
        bool heads = d == r - 3;
        bool grouped = heads && k->shape[d] > 0 && q->shape[d] % k->shape[d] == 0;
        if (q->shape[d] != k->shape[d] && !grouped)
            return attention_mismatch(c, heads ? "q's heads must be a multiple of k's" : "the batch dimensions differ");
    }
    if (r == TN_MAX_RANK && q->shape[r - 3] != k->shape[r - 3])
        return attention_mismatch(c, "too many dimensions for grouped queries");
    TRY(check_attention_mask(c));
    TRY(tn_infer_same(c));
    copy_dim(c, r - 1, v, r - 1);
    return TN_OK;
}

/* ---- what it is composed of -------------------------------------------------------------------------------------- */

/* One call, with q's heads beside those of k that they share (as two dimensions) where there are groups. */
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
static tn_node *causal(tn_build *b, tn_node *scores) {
    if (!scores) return NULL;
    int64_t queries = scores->shape[scores->rank - 2], keys = scores->shape[scores->rank - 1];
    tn_node *row = tn_b_view(b, tn_b_arange(b, 0.0, (double)queries, 1.0, TN_I64), (int64_t[]){queries, 1}, 2);
    tn_node *column = tn_b_arange(b, 0.0, (double)keys, 1.0, TN_I64);
    return tn_b_where(b, tn_b_le(b, column, row), scores, tn_b_const(b, -INFINITY, scores));
}

static tn_node *masked(tn_build *b, tn_node *scores, tn_node *mask) {
    if (!mask) return NULL;
    if (mask->dtype != TN_BOOL) return tn_b_add(b, scores, wide(b, mask));
    return tn_b_where(b, mask, scores, tn_b_const(b, -INFINITY, scores));
}

/* A mask of 0 and -inf as a bool: what is seen. */
static tn_node *seen(tn_build *b, tn_node *mask) { return mask ? tn_b_eq(b, mask, tn_b_const(b, 0, mask)) : NULL; }

/* Softmax over keys. A query that a mask lets see nothing gets zeros, and no NaN reaches its gradient. */
static tn_node *attention_weights(tn_build *b, tn_node *scores, bool may_be_blind) {
    if (!scores) return NULL;
    int64_t last = scores->rank - 1;
    if (!may_be_blind || scores->shape[last] == 0) return tn_b_softmax(b, scores, last);
    tn_node *none = tn_b_const(b, 0.0, scores);
    tn_node *blind = tn_b_eq(b, tn_b_amax(b, scores, &last, 1, true), tn_b_const(b, -INFINITY, scores));
    return tn_b_where(b, blind, none, tn_b_softmax(b, tn_b_where(b, blind, none, scores), last));
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
    tn_node *scores = tn_b_scale(b, tn_b_matmul_batched(b, o->q, tn_b_transpose(b, o->k, -2, -1)), o->scale);
    if (o->causal) scores = causal(b, scores);
    if (o->mask) scores = masked(b, scores, o->hides ? seen(b, o->mask) : o->mask);
    return attention_weights(b, scores, o->blind);
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
    copy_dim(c, 0, q, 0);
    copy_dim(c, 1, q, 2);
    c->shape[2] = 3;
    c->symbol[2] = 0;
    copy_dim(c, 3, q, 1);
    copy_dim(c, 4, q, 3);
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

static tn_status grad_attention_dense(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    operands o = dense_operands(b, n);
    tn_node *out = tn_b_self(n);
    if (!n->device->is_cpu) {
        spread_attention(b, n, o, out, dy, grads);
        return b->status;
    }
    tn_node *all = tn_b_attention_dense_gradient(b, o.q, o.k, o.v, o.mask, out, dy, o.causal, o.scale, o.blind,
                                                  o.hides);
    for (int i = Q; i <= V; i++)
        grads[i] = part_of(b, all, (const tn_node *const *)n->in, i);
    return b->status;
}

/* attention_dense(q, k, v, mask, is_causal, scale, blind, hides): scaled_dot_product_attention in f32, with a batch and
 * heads; the mask, which has no gradient, is added or, if it hides, stands for the scores where it is not 0. blind: a
 * query that it lets see nothing gets 0, else NaN. */
const tn_op_impl tn_impl_attention_dense = {
    .class_ = TN_NATIVE,
    .keeps_half = true,
    .infer = infer_attention_dense,
    .compose = compose_attention_dense,
    .grad = grad_attention_dense,
    .cases = "types=f32 tol=1e-5 atol=1e-5; "
             "[2,2,3,4] [2,2,5,4] [2,2,5,3] - is_causal=false scale=0.5 blind=false hides=false; "
             "[1,2,70,4] [1,2,70,4] [1,2,70,4] - is_causal=true scale=0.4 blind=false hides=false; "
             "[1,4,3,2] [1,2,4,2] [1,2,4,2] [1,4,3,4] is_causal=false scale=0.7 blind=true hides=false; "
             "error=rank [3,4] [3,4] [3,4] - is_causal=false scale=1 blind=false hides=false"};

/* attention_dense_gradient(q, k, v, mask, out, dout, is_causal, scale, blind, hides): the gradients of q, k and v. */
const tn_op_impl tn_impl_attention_dense_gradient = {
    .class_ = TN_NATIVE,
    .keeps_half = true,
    .infer = infer_attention_dense_gradient,
    .compose = compose_attention_dense_gradient,
    .cases = "types=f32 tol=2e-5 atol=2e-5; "
             "[2,2,3,4] [2,2,5,4] [2,2,5,3] - [2,2,3,3] [2,2,3,3] is_causal=false scale=0.5 blind=false hides=false; "
             "[1,2,70,4] [1,2,70,4] [1,2,70,4] - [1,2,70,4] [1,2,70,4] "
             "is_causal=true scale=0.4 blind=false hides=false; "
             "[1,4,3,2] [1,2,4,2] [1,2,4,2] [1,4,3,4] [1,4,3,2] [1,4,3,2] "
             "is_causal=false scale=0.7 blind=true hides=false"};

/* ---- for users --------------------------------------------------------------------------------------------------- */

/* x with a batch and heads: leading dimensions of 1, or all those before the heads made one. */
static tn_node *in_four(tn_build *b, tn_node *x) {
    for (int rank = x ? x->rank : 4; rank < 4; rank++)
        x = tn_b_unsqueeze(b, x, 0);
    if (!x || x->rank == 4) return x;
    int64_t shape[4] = {1};
    for (int d = 0; d < x->rank - 3; d++)
        shape[0] *= x->shape[d];
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

/* scaled_dot_product_attention(q, k, v, mask, is_causal, scale): softmax(scale · q kᵀ + mask) v; q [..., heads,
 * queries, features], k and v [..., kv_heads, keys, features], heads a multiple of kv_heads (grouped queries). mask,
 * NULL or broadcastable to [..., heads, queries, keys], is added before the softmax; a bool mask keeps the keys where
 * it is true. With is_causal query i attends to keys 0 … i only. scale TN_AUTO means 1/sqrt(features). Source: Vaswani
 * et al. 2017, eq. 1. */
const tn_op_impl tn_impl_scaled_dot_product_attention = {
    .keeps_half = true,
    .infer = infer_attention,
    .compose = compose_attention,
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
             "error=positions [2,3] [2,3] [4,3] -"};

/* ---- written by hand --------------------------------------------------------------------------------------------- */

/* What softmax(scale · q kᵀ + mask) is made of. */
typedef struct scores {
    tn_node *product, *mask;
    bool hidden; /* the mask is bool, and hides where it is true */
    double scale;
} scores;

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

static bool find_product(tn_node *n, scores *s) {
    for (tn_node *inner = n; inner; inner = without_scale(n, &s->scale))
        n = inner;
    s->product = n;
    return is_product(n);
}

static bool find_scores(tn_node *n, scores *s) {
    *s = (scores){.scale = 1};
    if (find_product(n, s)) return true;
    if (n->op == TN_OP_MASKED_FILL && n->f[TN_MASKED_FILL_VALUE] == -INFINITY) {
        *s = (scores){.scale = 1, .mask = n->in[1], .hidden = true};
        return find_product(n->in[0], s);
    }
    for (int i = 0; n->op == TN_OP_ADD && i < 2; i++) {
        *s = (scores){.scale = 1, .mask = n->in[1 - i]};
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
    scores s;
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
