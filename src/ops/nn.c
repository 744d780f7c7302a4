/* nn.c — what networks read with: embedding, rotary positions. */
#include <string.h>

#include "kern/kern.h"
#include "ops/common.h"

static void copy_dim(tn_infer *c, int to, const tn_node *from, int dim) {
    c->shape[to] = from->shape[dim];
    c->symbol[to] = from->symbol[dim];
}

/* ---- embedding --------------------------------------------------------------------------------------------------- */

static tn_status infer_embedding(tn_infer *c) {
    const tn_node *index = c->in[0], *weight = c->in[1];
    char text[96];
    TRY(tn_need_integer(c, 0));
    if (weight->rank != 2)
        return tn_fail(TN_ERR_SHAPE, "embedding: the weight must be [rows, features], it is %s",
                       tn_shape_text(weight, text, sizeof text));
    if (index->rank + 1 > TN_MAX_RANK)
        return tn_fail(TN_ERR_SHAPE, "embedding: an index of rank %d gives more than %d dimensions", index->rank,
                       TN_MAX_RANK);
    c->dtype = tn_dtype_is_quantized((tn_dtype)weight->dtype) ? TN_F32 : (tn_dtype)weight->dtype;
    c->rank = index->rank + 1;
    for (int d = 0; d < index->rank; d++)
        copy_dim(c, d, index, d);
    copy_dim(c, index->rank, weight, 1);
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
const tn_op_impl tn_impl_embedding = {
    .keeps_half = true,
    .quantized = 2,
    .infer = infer_embedding,
    .compose = compose_embedding,
    .cases = "types=f32,f64; [2,3]:i64@0..4 [5,4]; []:i64@0..4 [5,2]; [9]:i32@0..4 [5,3]; [0]:i64@0..0 [5,3]; "
             "error=rows [2]:i64@0..1 [4]; error=integer [2]:f32 [4,2]; error= types=f32; [3]:i64@0..4 [5,64]:q4_1; "
             "[2,1]:i64@-1..5 [5,256]:q4_k"};

/* ---- rope -------------------------------------------------------------------------------------------------------- */

static tn_status infer_rope(tn_infer *c) {
    const tn_node *x = c->in[0], *cosine = c->in[1], *sine = c->in[2];
    char xt[96], ct[96], st[96];
    TRY(tn_need_float(c, 0));
    TRY(tn_infer_same(c));
    if (x->rank == TN_MAX_RANK)
        return tn_fail(TN_ERR_SHAPE, "rope: x has %d dimensions, at most %d are possible", x->rank, TN_MAX_RANK - 1);
    bool fits = x->rank >= 1 && cosine->rank >= 1 && cosine->rank <= x->rank && sine->rank == cosine->rank;
    fits = fits && 2 * cosine->shape[cosine->rank - 1] <= x->shape[x->rank - 1];
    for (int d = 0; fits && d < cosine->rank; d++) {
        int64_t own = x->shape[x->rank - cosine->rank + d];
        fits = sine->shape[d] == cosine->shape[d];
        if (fits && d < cosine->rank - 1) fits = cosine->shape[d] == own || cosine->shape[d] == 1;
    }
    if (cosine->dtype != x->dtype || sine->dtype != x->dtype)
        return tn_fail(TN_ERR_DTYPE, "rope: x, cos and sin must have one dtype, they are %s, %s and %s",
                       tn_dtype_name((tn_dtype)x->dtype), tn_dtype_name((tn_dtype)cosine->dtype),
                       tn_dtype_name((tn_dtype)sine->dtype));
    if (fits) return TN_OK;
    return tn_fail(TN_ERR_SHAPE,
                   "rope: x %s, cos %s and sin %s do not fit: cos and sin are [positions, half] with half at most "
                   "half of x's last dimension",
                   tn_shape_text(x, xt, sizeof xt), tn_shape_text(cosine, ct, sizeof ct),
                   tn_shape_text(sine, st, sizeof st));
}

static tn_status infer_rope_rows(tn_infer *c) {
    for (int i = 0; i < 3; i++)
        TRY(tn_need_contiguous(c, i));
    if (c->in[0]->dtype != TN_F32) return tn_fail(TN_ERR_DTYPE, "%s: only f32", c->row->name);
    return infer_rope(c);
}

/* Feature j of a row, where no kernel does it: its own part and its partner's. */
static kir_val lower_rope_rows(tn_lower *lw, const tn_node *n, const kir_aff *at) {
    kir_builder *kb = lw->kb;
    const tn_node *angles = n->in[1];
    int64_t half = angles->shape[angles->rank - 1];
    int last = n->rank - 1;
    kir_aff own[TN_MAX_RANK], table[TN_MAX_RANK];
    kir_val j = kir_index(kb, &at[last]), one = kir_const_i(kb, KIR_I64, 1), width = kir_const_i(kb, KIR_I64, half);
    bool neighbours = n->i[TN_ROPE_ROWS_INTERLEAVED];
    kir_val first = neighbours ? kir_binary(kb, KIR_EQ, kir_binary(kb, KIR_AND, j, one), kir_const_i(kb, KIR_I64, 0))
                               : kir_binary(kb, KIR_LT, j, width);
    kir_val low = kir_binary(kb, KIR_SUB, j, width), high = kir_binary(kb, KIR_ADD, j, width);
    kir_val partner = neighbours ? kir_binary(kb, KIR_XOR, j, one) : kir_select(kb, first, high, low);
    kir_val pair = neighbours ? kir_binary(kb, KIR_SHR, j, one) : kir_select(kb, first, j, low);
    kir_val turning = kir_binary(kb, KIR_LT, j, kir_const_i(kb, KIR_I64, 2 * half));
    memcpy(own, at, (size_t)n->rank * sizeof *own);
    for (int d = 0; d < angles->rank - 1; d++)
        table[d] = angles->shape[d] == 1 ? kir_aff_const(0) : at[n->rank - angles->rank + d];
    table[angles->rank - 1] = tn_aff_value(pair);
    kir_val x = tn_lower_at(lw, n->in[0], own);
    own[last] = tn_aff_value(partner);
    kir_val y = tn_lower_at_masked(lw, n->in[0], own, turning);
    kir_val cosine = tn_lower_at_masked(lw, n->in[1], table, turning),
            sine = tn_lower_at_masked(lw, n->in[2], table, turning);
    sine = kir_select(kb, first, kir_unary(kb, KIR_NEG, sine), sine);
    kir_val rotated = kir_binary(kb, KIR_ADD, kir_binary(kb, KIR_MUL, x, cosine), kir_binary(kb, KIR_MUL, y, sine));
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
const tn_op_impl tn_impl_rope_rows = {
    .class_ = TN_NATIVE,
    .infer = infer_rope_rows,
    .lower = lower_rope_rows,
    .reference = reference_rope_rows,
    .cases =
        "types=f32 tol=4e-6 atol=2e-6; [2,3,4] [3,2] [3,2] interleaved=false; [2,3,18] [3,8] [3,8] interleaved=true; "
        "[4,3,13] [4,1,6] [4,1,6] interleaved=false; [5,13] [1,5] [1,5] interleaved=true; [4] [2] [2] "
        "interleaved=true; "
        "error=f32 [2,4]:f64 [2,2]:f64 [2,2]:f64 interleaved=true",
    .flops = 3};

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
    return tn_b_rope_rows(b, tn_b_laid_out(b, x), tn_b_laid_out(b, n->in[1]), tn_b_laid_out(b, sine),
                          n->i[TN_ROPE_INTERLEAVED]);
}

static tn_node *compose_rope(tn_build *b, const tn_node *n) { return rotated(b, n, n->in[0], false); }

static tn_status grad_rope(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    if (tn_needs_grad(n, 0)) grads[0] = rotated(b, n, dy, true);
    if (!tn_needs_grad(n, 1) && !tn_needs_grad(n, 2)) return b->status;
    rope_parts x = split_pairs(b, n, n->in[0]), g = split_pairs(b, n, dy);
    tn_node *along = tn_b_add(b, tn_b_mul(b, g.first, x.first), tn_b_mul(b, g.second, x.second));
    tn_node *across = tn_b_sub(b, tn_b_mul(b, g.second, x.first), tn_b_mul(b, g.first, x.second));
    if (tn_needs_grad(n, 1)) grads[1] = tn_b_sum_to(b, along, n->in[1]);
    if (tn_needs_grad(n, 2)) grads[2] = tn_b_sum_to(b, across, n->in[2]);
    return b->status;
}

/* rope(x, cos, sin, interleaved): rotary position embedding: each pair of x [..., positions, features] is turned by an
 * angle whose cosine and sine are given [positions, half]. Pairs are (i, i + half), or neighbours when interleaved;
 * features behind 2·half stay. Source: Su et al. 2021. */
const tn_op_impl tn_impl_rope = {.infer = infer_rope,
                                 .compose = compose_rope,
                                 .grad = grad_rope,
                                 .cases =
                                     "tol=4e-6 atol=2e-6; [2,3,4] [3,2] [3,2]; [2,3,6] [3,2] [3,2] interleaved=true; "
                                     "[2,3,6] [3,2] [3,2]; [2,3,4] [3,2] [3,2] interleaved=true; [2,2,3,4] [1,2] [1,2] "
                                     "interleaved=true; error=half [3,4] [3,3] [3,3]; "
                                     "error=fit [3,4] [2,2] [2,2]; error=dtype [3,4]:f32 [3,2]:f64 [3,2]:f64"};
