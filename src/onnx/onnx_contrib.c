/* onnx_contrib.c — com.microsoft: operators that ONNX Runtime's optimizer, quantizers and exporters write.
 *
 * There are three attention operators. Each brings queries, keys and values to [batch, heads, positions, features],
 * combines everything that restricts attention into one mask, and calls scaled dot-product attention. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "onnx/model.h"
#include "onnx/operator_support.h"

/* (a − a_zero)(b − b_zero) · a_scale · b_scale + bias in f32; the sums are exact. */
static tn_status scaled_product(const onnx_call *c, const onnx_byte_operands *at, tn_tensor **y);

/* ---- activations and products ------------------------------------------------------------------------------------ */

enum { GELU, GELU_TANH, QUICK_GELU };

/* x, with input 1 added where there is one; .with says which function. */
static tn_status run_gelu(onnx_call *c) {
    const tn_tensor *x;
    TRY(onnx_need(c, 0, &x));
    if (onnx_has(c, 1)) x = tn_add(x, onnx_in(c, 1));
    if (c->row->with == QUICK_GELU)
        return onnx_put(c, 0, tn_mul(x, tn_sigmoid(tn_mul_scalar(x, onnx_float(c, "alpha", 1.702)))));
    tn_gelu_options o = TN_GELU_DEFAULTS;
    o.approximate = c->row->with == GELU_TANH ? TN_APPROXIMATE_TANH : TN_APPROXIMATE_NONE;
    return onnx_put(c, 0, tn_gelu(x, &o));
}

static tn_status run_matmul(onnx_call *c) {
    static const char *const names[2][2] = {{"transA", "transBatchA"}, {"transB", "transBatchB"}};
    const tn_tensor *operands[2];
    for (int i = 0; i < 2; i++) {
        TRY(onnx_need(c, i, &operands[i]));
        if (onnx_int(c, names[i][1], 0)) return onnx_refuse(c, "%s is not supported", names[i][1]);
        if (onnx_int(c, names[i][0], 0) && tn_rank(operands[i]) > 1) operands[i] = tn_transpose(operands[i], -1, -2);
    }
    double alpha = onnx_float(c, "alpha", 1);
    tn_tensor *y = tn_matmul(operands[0], operands[1]);
    return onnx_put(c, 0, alpha == 1 ? y : tn_mul_scalar(y, alpha));
}

/* ---- weights of few bits ----------------------------------------------------------------------------------------- */

/* x [..., n] of bytes that each hold 8 / bits numbers, the lowest bits first: [..., n · 8 / bits] as f32. */
static tn_tensor *unpacked(const tn_tensor *x, int64_t bits) {
    tn_tensor *parts[8], *wide = tn_cast(x, TN_I32);
    int count = (int)(8 / bits);
    double mask = (double)((1 << bits) - 1), place = 1;
    for (int k = 0; k < count; k++, place *= 1 << bits) {
        tn_tensor *moved = tn_floor_divide(wide, tn_scalar_int((int64_t)place));
        parts[k] = tn_remainder(moved, tn_scalar_int((int64_t)mask + 1));
    }
    tn_tensor *stacked = count == 1 ? tn_unsqueeze(wide, -1) : tn_stack(parts, count, -1);
    return tn_cast(tn_flatten(stacked, -2, -1), TN_F32);
}

/* Numbers of blocks as f32, [rows, blocks · numbers], (value − zero) · scale: values [rows, blocks, numbers]; scales
 * and zeros [rows, blocks], zeros NULL: all are `zero`. order: NULL, or the block of each column. */
static tn_tensor *contrib_scaled(const tn_tensor *values, const tn_tensor *scales, const tn_tensor *zeros, double zero,
                                 const tn_tensor *order) {
    const tn_tensor *each[] = {scales, zeros};
    if (order) values = tn_slice(tn_flatten(values, 1, 2), 1, 0, tn_size(order, 0), 1);
    for (int i = 0; i < 2 && each[i]; i++)
        each[i] = onnx_as(order ? tn_index_select(each[i], 1, order) : tn_unsqueeze(each[i], -1), TN_F32);
    tn_tensor *y = tn_mul(zeros ? tn_sub(values, each[1]) : tn_sub_scalar(values, zero), each[0]);
    return order ? y : tn_flatten(y, 1, 2);
}

/* Zero points of the blocks, [rows, blocks]: as floats, or as many to a byte as the numbers. */
static const tn_tensor *zeros_of(const tn_tensor *given, int64_t rows, int64_t blocks, int64_t bits) {
    const tn_tensor *flat = tn_reshape(given, (int64_t[]){rows, -1}, 2);
    return tn_dtype_is_float(tn_dtype_of(given)) ? flat : tn_slice(unpacked(flat, bits), 1, 0, blocks, 1);
}

/* B [n, blocks, bytes of a block] with scales [n, blocks]: its rows [n, k] in f32. */
static tn_tensor *dequantized(const onnx_call *c, const tn_tensor *b, int64_t n, int64_t k, int64_t bits) {
    int64_t blocks = tn_size(b, 1);
    const tn_tensor *scales = tn_reshape(onnx_in(c, 2), (int64_t[]){n, blocks}, 2);
    const tn_tensor *zeros = onnx_has(c, 3) ? zeros_of(onnx_in(c, 3), n, blocks, bits) : NULL;
    const tn_tensor *order = onnx_has(c, 4) ? onnx_in(c, 4) : NULL;
    return tn_slice(contrib_scaled(unpacked(b, bits), scales, zeros, (double)(1 << (bits - 1)), order), 1, 0, k, 1);
}

/* GatherBlockQuantized: rows of a table with few bits a number, [rows, columns], scales [rows, blocks]. */
static tn_status run_gather_blocks(onnx_call *c) {
    const tn_tensor *data, *ids, *scales;
    TRY(onnx_need_first(c, &data, &ids, &scales));
    int64_t bits = onnx_int(c, "bits", 4), quantized = onnx_int(c, "quantize_axis", 1);
    bool last = quantized == 1 || quantized == -1;
    if (tn_rank(data) != 2 || tn_rank(scales) != 2 || tn_rank(ids) >= TN_MAX_RANK || !last ||
        onnx_int(c, "gather_axis", 0) != 0 || (bits != 2 && bits != 4 && bits != 8))
        return onnx_refuse(c, "only a table of rows in blocks of 2, 4 or 8 bits is supported, with gather_axis 0");
    bool packed = onnx_in_type(c, 0) == ONNX_UINT8;
    int64_t count = tn_numel(ids), blocks = tn_size(scales, 1), shape[TN_MAX_RANK];
    const tn_tensor *flat = tn_reshape(ids, &count, 1), *rows = tn_index_select(data, 0, flat), *zeros = NULL;
    const tn_tensor *values = packed ? unpacked(rows, bits) : onnx_as(rows, TN_F32);
    if (onnx_has(c, 3)) {
        zeros = tn_index_select(onnx_in(c, 3), 0, flat);
        zeros = packed ? zeros_of(zeros, count, blocks, bits) : onnx_as(zeros, TN_F32);
    }
    values = tn_reshape(values, (int64_t[]){count, blocks, -1}, 3);
    tn_tensor *y = contrib_scaled(values, tn_index_select(scales, 0, flat), zeros, packed ? 1 << (bits - 1) : 0, NULL);
    memcpy(shape, tn_shape(ids), (size_t)tn_rank(ids) * sizeof *shape);
    shape[tn_rank(ids)] = tn_size(y, 1);
    return onnx_put(c, 0, tn_cast(tn_reshape(y, shape, tn_rank(ids) + 1), tn_dtype_of(scales)));
}

static tn_status run_few_bits(onnx_call *c) {
    const tn_tensor *a, *b;
    TRY(onnx_need_first(c, &a, &b));
    int64_t n = onnx_int(c, "N", 0), k = onnx_int(c, "K", 0), bits = onnx_int(c, "bits", 4);
    if (bits != 2 && bits != 4 && bits != 8)
        return onnx_refuse(c, "weights of %lld bits are not supported", (long long)bits);
    bool kept = tn_rank(b) == 2 && tn_dtype_of(b) == TN_F32; /* from a run before */
    if (!kept && (tn_rank(b) != 3 || tn_size(b, 0) != n || !onnx_has(c, 2)))
        return tn_fail(TN_ERR_SHAPE, "%s: B must be [N, blocks, bytes], and scales are required", c->row->name);
    const tn_tensor *weight = b;
    if (!kept) {
        tn_tensor *made = dequantized(c, b, n, k, bits);
        bool constant = c->in[1]->fixed == ONNX_CONSTANT && c->in[2]->fixed == ONNX_CONSTANT;
        for (int i = 3; i < 5; i++)
            constant = constant && (!onnx_has(c, i) || c->in[i]->fixed == ONNX_CONSTANT);
        if (constant) TRY(onnx_keep(c, 1, made));
        weight = made;
    }
    const tn_tensor *bias = onnx_has(c, 5) ? tn_cast(onnx_in(c, 5), TN_F32) : NULL;
    tn_tensor *y = tn_linear(tn_cast(a, TN_F32), weight, bias);
    return onnx_put(c, 0, tn_cast(y, tn_dtype_of(a)));
}

/* ---- norms ------------------------------------------------------------------------------------------------------- */

static tn_tensor *normalized(const onnx_call *c, const tn_tensor *x, const tn_tensor *weight, const tn_tensor *bias,
                             bool simple, double otherwise) {
    int64_t width = tn_size(x, -1);
    double eps = onnx_float(c, "epsilon", otherwise);
    tn_rms_norm_options rms = TN_RMS_NORM_DEFAULTS;
    rms.eps = eps;
    tn_layer_norm_options layer = TN_LAYER_NORM_DEFAULTS;
    layer.eps = eps;
    return simple ? tn_rms_norm(x, &width, 1, weight, &rms) : tn_layer_norm(x, &width, 1, weight, bias, &layer);
}

/* SimplifiedLayerNormalization: over the last dim. */
static tn_status run_simple_norm(onnx_call *c) {
    const tn_tensor *x, *scale;
    TRY(onnx_need_first(c, &x, &scale));
    int axis;
    TRY(onnx_axis(c, onnx_int(c, "axis", -1), tn_rank(x), &axis));
    if (axis != tn_rank(x) - 1) return onnx_refuse(c, "only normalization of the last axis is supported");
    if (onnx_wants(c, 1)) return onnx_refuse(c, "the standard deviation as an output is not supported");
    return onnx_put(c, 0, normalized(c, x, scale, NULL, true, 1e-5));
}

/* (input + skip + bias), normalised; the sum is output 3. with: without a mean. */
static tn_status run_skip_norm(onnx_call *c) {
    const tn_tensor *x, *skip, *weight;
    bool simple = c->row->with;
    int bias = simple ? 3 : 4;
    TRY(onnx_need_first(c, &x, &skip, &weight));
    if (onnx_wants(c, 1) || onnx_wants(c, 2)) return onnx_refuse(c, "mean and deviation as outputs are not supported");
    tn_tensor *sum = tn_add(x, skip);
    if (onnx_has(c, bias)) sum = tn_add(sum, onnx_in(c, bias));
    if (onnx_wants(c, 3)) TRY(onnx_put(c, 3, sum));
    const tn_tensor *beta = !simple && onnx_has(c, 3) ? onnx_in(c, 3) : NULL;
    return onnx_put(c, 0, normalized(c, sum, weight, beta, simple, 1e-12));
}

static tn_status run_embed_norm(onnx_call *c) {
    const tn_tensor *ids, *words, *places, *weight, *bias;
    TRY(onnx_need(c, 0, &ids));
    TRY(onnx_need(c, 2, &words));
    TRY(onnx_need(c, 3, &places));
    TRY(onnx_need(c, 5, &weight));
    TRY(onnx_need(c, 6, &bias));
    tn_tensor *sum = tn_embedding(ids, words);
    sum =
        tn_add(sum, onnx_has(c, 8) ? tn_embedding(onnx_in(c, 8), places) : tn_slice(places, 0, 0, tn_size(ids, 1), 1));
    if (onnx_has(c, 1) && onnx_has(c, 4)) sum = tn_add(sum, tn_embedding(onnx_in(c, 1), onnx_in(c, 4)));
    if (onnx_wants(c, 2)) TRY(onnx_put(c, 2, sum));
    if (onnx_wants(c, 1)) { /* how much of each row counts */
        int64_t batch = tn_size(ids, 0), last = 1;
        tn_tensor *count = onnx_has(c, 7) ? tn_sum(onnx_in(c, 7), &last, 1, false) : tn_zeros(&batch, 1, TN_I32);
        TRY(onnx_put(c, 1, tn_cast(count, TN_I32)));
    }
    return onnx_put(c, 0, normalized(c, sum, weight, bias, false, 1e-12));
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

const tn_tensor *onnx_split_heads(const tn_tensor *x, int64_t heads) {
    if (tn_rank(x) == 4) return x;
    return tn_transpose(tn_unflatten(x, -1, (int64_t[]){heads, -1}, 2), 1, 2);
}

/* Bool [queries, keys]: the last query sees all, each one before it a key less. */
static tn_tensor *causal(int64_t queries, int64_t keys) {
    return tn_gt_scalar(tn_tril(tn_ones((int64_t[]){queries, keys}, 2, TN_F32), keys - queries), 0.5);
}

/* Numbers 0 … n − 1 as [n]. */
static tn_tensor *counting(int64_t n) { return tn_cumsum(tn_sub(tn_ones(&n, 1, TN_I32), tn_scalar_int(0)), 0); }

/* Which keys count, as bool that meets [batch, heads, queries, keys], out of what input i says: lengths [batch], or 0
 * and 1 as [batch, keys] or [batch, queries, keys]. */
static tn_status take_mask(const onnx_call *c, int i, int64_t batch, int64_t keys, tn_tensor **mask) {
    const tn_tensor *m = onnx_in(c, i);
    TRY(tn_status_of(m));
    int rank = tn_rank(m);
    if (rank == 1 && tn_size(m, 0) == batch) { /* key j of 1 … n */
        tn_tensor *lengths = tn_reshape(tn_cast(m, TN_I32), (int64_t[]){batch, 1, 1, 1}, 4);
        *mask = tn_le(counting(keys), lengths);
        return TN_OK;
    }
    tn_tensor *seen = tn_ne_scalar(m, 0);
    if (rank == 2) seen = tn_unsqueeze(tn_unsqueeze(seen, 1), 1);
    if (rank == 3) seen = tn_unsqueeze(seen, 1);
    *mask = seen;
    return rank < 2 || rank > 4 ? onnx_refuse(c, "a mask of rank %d is not supported", rank) : TN_OK;
}

typedef struct attention {
    const tn_tensor *q, *k, *v; /* [batch, heads, positions, features] */
    tn_tensor *mask;            /* bool; NULL */
    const tn_tensor *bias;      /* added to the scores; NULL */
    int64_t heads;
    bool causal;
} attention;

static tn_status put_attended(onnx_call *c, attention *a) {
    int64_t queries = tn_size(a->q, 2), keys = tn_size(a->k, 2);
    tn_tensor *y;
    bool whole = a->causal && queries == keys && !a->mask && !a->bias;
    if (a->causal && !whole && queries > 1) {
        tn_tensor *seen = causal(queries, keys);
        a->mask = a->mask ? tn_logical_and(a->mask, seen) : seen;
    }
    onnx_heads h = {a->q, a->k, a->v, .seen = a->mask, .bias = a->bias, .scale = onnx_float(c, "scale", 0)};
    if (h.scale == 0) h.scale = 1 / sqrt((double)tn_size(a->q, 3));
    TRY(onnx_attend(c, &h, whole, &y));
    return onnx_put(c, 0, onnx_joined_heads(y));
}

/* Keys or values of before in front of the new ones; output k is both. */
static tn_status continue_from(onnx_call *c, const tn_tensor *past, int k, const tn_tensor **x) {
    if (past) *x = tn_cat((tn_tensor *[]){(tn_tensor *)(uintptr_t)past, (tn_tensor *)(uintptr_t)*x}, 2, 2);
    return onnx_wants(c, k) ? onnx_put(c, k, tn_contiguous(*x)) : TN_OK;
}

/* What one product made of the input, [batch, positions, queries + keys + values]. mask, past, bias: inputs; −1: the
 * operator has none. */
static tn_status attend_joined(onnx_call *c, const tn_tensor *y, int mask, int past_in, int bias) {
    const tn_tensor *parts[3];
    tn_tensor *made[3];
    attention a = {.heads = onnx_int(c, "num_heads", 0)};
    TRY(tn_status_of(y));
    a.causal = onnx_int(c, "unidirectional", 0) != 0;
    if (tn_rank(y) != 3 || a.heads < 1)
        return tn_fail(TN_ERR_SHAPE, "%s: the input must have rank 3, and num_heads must be at least 1", c->row->name);
    int count = 0;
    const int64_t *sizes = onnx_ints(c, "qkv_hidden_sizes", &count);
    int64_t third = tn_size(y, -1) / 3, equal[] = {third, third, third};
    if (tn_split(y, count == 3 ? sizes : equal, 3, -1, made) != 3) return tn_status_of(made[0]);
    for (int i = 0; i < 3; i++)
        parts[i] = onnx_split_heads(made[i], a.heads);
    const tn_tensor *past = onnx_optional(c, past_in);
    for (int i = 1; i < 3 && past; i++)
        TRY(continue_from(c, tn_select(past, 0, i - 1), -1, &parts[i]));
    a.q = parts[0], a.k = parts[1], a.v = parts[2];
    if (onnx_wants(c, 1))
        TRY(onnx_put(c, 1, tn_stack((tn_tensor *[]){(tn_tensor *)(uintptr_t)a.k, (tn_tensor *)(uintptr_t)a.v}, 2, 0)));
    if (onnx_has(c, mask)) TRY(take_mask(c, mask, tn_size(y, 0), tn_size(a.k, 2), &a.mask));
    a.bias = onnx_optional(c, bias);
    return put_attended(c, &a);
}

/* Attention: one product makes queries, keys and values. */
static tn_status run_attention(onnx_call *c) {
    const tn_tensor *x, *weight;
    TRY(onnx_need_first(c, &x, &weight));
    if (onnx_has(c, 6)) return onnx_refuse(c, "a shared buffer for past and present is not supported");
    tn_tensor *y = tn_matmul(x, weight);
    return attend_joined(c, onnx_has(c, 2) ? tn_add(y, onnx_in(c, 2)) : y, 3, 4, 5);
}

/* The same where that product is one of bytes. */
static tn_status run_byte_attention(onnx_call *c) {
    static const onnx_byte_operands at = {
        .a = 0, .b = 1, .bias = 2, .a_scale = 3, .b_scale = 4, .a_zero = 6, .b_zero = 7};
    tn_tensor *y;
    if (!onnx_wants(c, 0)) return TN_OK;
    TRY(scaled_product(c, &at, &y));
    return attend_joined(c, y, 5, 8, -1);
}

static tn_tensor *biased(const tn_tensor *x, const tn_tensor *bias, int64_t from) {
    return tn_add(x, tn_slice(bias, 0, from, from + tn_size(x, -1), 1));
}

/* MultiHeadAttention: queries, keys and values come one by one, or packed [batch, positions, heads, 2 or 3, features].
 */
static tn_status run_multi_head(onnx_call *c) {
    attention a = {.heads = onnx_int(c, "num_heads", 0)};
    const tn_tensor *parts[3];
    TRY(onnx_need(c, 0, &parts[0]));
    parts[1] = onnx_optional(c, 1);
    parts[2] = onnx_optional(c, 2);
    const tn_tensor *bias = onnx_optional(c, 3);
    for (int i = 0; i < 2; i++) { /* packed in input i */
        if (!parts[i] || tn_rank(parts[i]) != 5) continue;
        const tn_tensor *packed = parts[i];
        for (int k = i; k < 3; k++)
            parts[k] = tn_flatten(tn_select(packed, 3, k - i), 2, 3);
    }
    if (!parts[1] || !parts[2] || a.heads < 1)
        return tn_fail(TN_ERR_FORMAT, "MultiHeadAttention: keys, values or num_heads are missing");
    int64_t from = 0, batch = tn_size(parts[0], 0);
    for (int i = 0; i < 3; i++) {
        int64_t width = tn_size(parts[i], -1);
        if (bias && tn_rank(parts[i]) == 3) parts[i] = biased(parts[i], bias, from);
        parts[i] = onnx_split_heads(parts[i], a.heads);
        from += width;
    }
    for (int i = 1; i < 3; i++)
        TRY(continue_from(c, onnx_optional(c, 5 + i), i, &parts[i]));
    a.q = parts[0], a.k = parts[1], a.v = parts[2];
    a.causal = onnx_int(c, "unidirectional", 0) != 0;
    if (onnx_has(c, 4)) TRY(take_mask(c, 4, batch, tn_size(a.k, 2), &a.mask));
    a.bias = onnx_optional(c, 5);
    return put_attended(c, &a);
}

/* ---- positions --------------------------------------------------------------------------------------------------- */

tn_tensor *onnx_turned(const tn_tensor *x, const tn_tensor *cosines, const tn_tensor *sines, bool neighbours) {
    int64_t half = tn_size(cosines, -1), width = tn_size(x, -1);
    tn_tensor *turning = tn_slice(x, -1, 0, 2 * half, 1), *cos = tn_unsqueeze(cosines, 1),
              *sin = tn_unsqueeze(sines, 1);
    tn_tensor *a = tn_slice(turning, -1, 0, neighbours ? 2 * half : half, neighbours ? 2 : 1);
    tn_tensor *b = tn_slice(turning, -1, neighbours ? 1 : half, 2 * half, neighbours ? 2 : 1);
    tn_tensor *parts[] = {tn_sub(tn_mul(a, cos), tn_mul(b, sin)), tn_add(tn_mul(a, sin), tn_mul(b, cos))};
    tn_tensor *y = neighbours ? tn_flatten(tn_stack(parts, 2, -1), -2, -1) : tn_cat(parts, 2, -1);
    return 2 * half == width ? y : tn_cat((tn_tensor *[]){y, tn_slice(x, -1, 2 * half, width, 1)}, 2, -1);
}

tn_tensor *onnx_rows_from(const tn_tensor *cache, int64_t first, int64_t count) {
    int64_t rows = tn_size(cache, 0);
    if (first < 0 || first > rows - count)
        return tn_failed(TN_ERR_SHAPE, "%lld positions from %lld on exceed a table of %lld", (long long)count,
                         (long long)first, (long long)rows);
    return tn_unsqueeze(tn_slice(cache, 0, first, first + count, 1), 0);
}

static tn_status run_rotary(onnx_call *c) {
    const tn_tensor *x, *ids, *caches[2];
    tn_tensor *rows[2];
    int64_t heads = onnx_int(c, "num_heads", 0), first = 0;
    TRY(onnx_need_first(c, &x, &ids));
    for (int i = 0; i < 2; i++)
        TRY(onnx_need(c, 2 + i, &caches[i]));
    bool flat = tn_rank(x) == 3, offset = tn_numel(ids) == 1;
    int64_t rotary = onnx_int(c, "rotary_embedding_dim", 0);
    if (flat && !heads) heads = tn_size(x, -1) / tn_max64(rotary ? rotary : 2 * tn_size(caches[0], 1), 1);
    if (flat && heads < 1) return onnx_refuse(c, "the number of heads is not known: set num_heads");
    const tn_tensor *split = onnx_split_heads(x, heads);
    if (offset) TRY(onnx_read_int(c, 1, 0, &first));
    for (int i = 0; i < 2; i++)
        rows[i] = offset ? onnx_rows_from(caches[i], first, tn_size(split, 2)) : tn_embedding(ids, caches[i]);
    tn_tensor *y = onnx_turned(split, rows[0], rows[1], onnx_int(c, "interleaved", 0) != 0);
    return onnx_put(c, 0, flat ? onnx_joined_heads(y) : y);
}

const onnx_op_row onnx_contrib_ops[] = {
    {"Attention", 1, .run = run_attention},
    {"BiasGelu", 1, .run = run_gelu, .with = GELU},
    {"CausalConvWithState", 1, .run = onnx_causal_conv},
    {"DynamicQuantizeLSTM", 1, .run = onnx_recurrent, .with = ONNX_LSTM_OF_BYTES},
    {"EmbedLayerNormalization", 1, .run = run_embed_norm},
    {"FastGelu", 1, .run = run_gelu, .with = GELU_TANH},
    {"FusedMatMul", 1, .run = run_matmul},
    {"GatherBlockQuantized", 1, .run = run_gather_blocks},
    {"Gelu", 1, .run = run_gelu, .with = GELU},
    {"GroupQueryAttention", 1, .run = onnx_grouped_attention},
    {"LinearAttention", 1, .run = onnx_linear_attention},
    {"MatMulNBits", 1, .run = run_few_bits},
    {"MultiHeadAttention", 1, .run = run_multi_head},
    {"QAttention", 1, .run = run_byte_attention},
    {"QuickGelu", 1, .run = run_gelu, .with = QUICK_GELU},
    {"RotaryEmbedding", 1, .run = run_rotary},
    {"SimplifiedLayerNormalization", 1, .run = run_simple_norm},
    {"SkipLayerNormalization", 1, .run = run_skip_norm},
    {"SkipSimplifiedLayerNormalization", 1, .run = run_skip_norm, .with = 1},
    {"TransposeMatMul", 1, .run = run_matmul},
    {.name = NULL},
};

/* What the exporters put into the standard's own domain although the standard does not have it. */
const onnx_op_row onnx_runtime_ops[] = {
    {"SimplifiedLayerNormalization", 1, .run = run_simple_norm},
    {.name = NULL},
};

/* ==== the standard's operators with bytes or activations ========================================================== */
/* None of them is computed anew. The operands are brought to what the standard's operator takes, its own row is called
 * with this node's attributes, and what it yields is put on. So a byte is rounded as everywhere else, exactly once, at
 * the end. Source: the operators' descriptions in ONNX Runtime's documentation, ContribOperators. */

enum { MOST_OPERANDS = 64, MOST_RESULTS = 3, OPSET = 21 };

/* ---- calling another row ----------------------------------------------------------------------------------------- */

/* What a row is handed, and what it makes. */
typedef struct dressed {
    const onnx_call *c;
    onnx_value *in[MOST_OPERANDS], *out[MOST_RESULTS];
    int in_count;
} dressed;

static void clear(dressed *d) {
    for (int i = 0; i < d->in_count; i++)
        onnx_value_release(d->in[i]);
    for (int k = 0; k < MOST_RESULTS; k++) {
        onnx_value_release(d->out[k]);
        d->out[k] = NULL;
    }
    d->in_count = 0;
}

/* Inputs that may not be left out. */
static tn_status need_fused(const onnx_call *c, int from, int count) {
    const tn_tensor *x;
    for (int i = from; i < from + count; i++)
        TRY(onnx_need(c, i, &x));
    return TN_OK;
}

/* The node's own input; perhaps left out. */
static void give_fused(dressed *d, int i) {
    d->in[d->in_count++] = onnx_has(d->c, i) ? onnx_value_retain(d->c->in[i]) : NULL;
}

/* A tensor that was made for it; taken over. */
static tn_status give_tensor(dressed *d, tn_tensor *t) {
    onnx_value *v = onnx_value_tensor(t, onnx_type_of(tn_dtype_of(t)));
    if (!v) return tn_error_code();
    v->fixed = d->c->fixed;
    d->in[d->in_count++] = v;
    return TN_OK;
}

/* The standard operator of this name in the given opset, on the given inputs: `count` tensors in out. */
static tn_status call_standard(dressed *d, const char *name, int64_t opset, int count) {
    const int32_t wanted[MOST_RESULTS] = {d->c->node->out[0], d->c->node->out[0], d->c->node->out[0]};
    onnx_node node = *d->c->node;
    onnx_call inner = *d->c;
    node.out = wanted;
    inner.node = &node;
    inner.row = onnx_find_row((onnx_text){"", 0}, (onnx_text){name, strlen(name)}, opset);
    inner.opset = (int)opset;
    inner.in = d->in;
    inner.in_count = d->in_count;
    inner.out = d->out;
    inner.out_count = node.out_count = count;
    if (!inner.row) return onnx_refuse(d->c, "opset %lld has no %s", (long long)opset, name);
    TRY(onnx_run_row(&inner));
    for (int k = 0; k < count; k++)
        if (!d->out[k] || d->out[k]->kind != ONNX_TENSOR) return onnx_refuse(d->c, "%s did not return a tensor", name);
    return TN_OK;
}

/* The same for one output. *y belongs to the scope around the node; the inputs are released. */
static tn_status standard(dressed *d, const char *name, int64_t opset, tn_tensor **y) {
    tn_status status = call_standard(d, name, opset, 1);
    *y = status == TN_OK ? tn_detach(d->out[0]->tensor) : NULL;
    clear(d);
    return status;
}

/* ---- bytes for operands ------------------------------------------------------------------------------------------ */

enum { ADD, AVERAGE_POOL, CONCAT, GLOBAL_AVERAGE_POOL, LEAKY_RELU, MUL, REDUCE_MEAN, SIGMOID, SOFTMAX };

/* Each operand comes with its scale and zero point, and then those of the result; of a list they come first. */
static const struct {
    const char *name;
    int opset, operands; /* 0: a list */
} on_bytes[] = {
    [ADD] = {"Add", 14, 2},
    [AVERAGE_POOL] = {"AveragePool", 11, 1},
    [CONCAT] = {"Concat", 13, 0},
    [GLOBAL_AVERAGE_POOL] = {"GlobalAveragePool", 1, 1},
    [LEAKY_RELU] = {"LeakyRelu", 16, 1},
    [MUL] = {"Mul", 14, 2},
    [REDUCE_MEAN] = {"ReduceMean", 13, 1},
    [SIGMOID] = {"Sigmoid", 13, 1},
    [SOFTMAX] = {"Softmax", 13, 1},
};

static tn_status wrapped_dequantized(const onnx_call *c, int i, tn_tensor **x) {
    dressed d = {.c = c};
    TRY(need_fused(c, i, 2));
    for (int k = 0; k < 3; k++)
        give_fused(&d, i + k);
    return standard(&d, "DequantizeLinear", OPSET, x);
}

/* Is the scale in input i a constant whose reciprocal is finite? */
static bool has_reciprocal(const onnx_call *c, int i) {
    double scale;
    return c->in[i]->fixed == ONNX_CONSTANT && onnx_read_float(c, i, 1, &scale) == TN_OK && scale >= (double)FLT_MIN;
}

/* y as numbers of the scale in input i and the zero point after it; without one it is 0, of operand's type.
 * `multiply`: by a constant scale's reciprocal, as dividing takes longer than all else. That may be one off at halves,
 * so only where ONNX Runtime does not divide either: of products and sums it multiplies by quotients of scales. */
static tn_status quantized(const onnx_call *c, tn_tensor **y, int i, onnx_type type, bool multiply) {
    dressed d = {.c = c};
    TRY(need_fused(c, i, 1));
    TRY(onnx_check_scale(c, i, true));
    const tn_tensor *scale = onnx_in(c, i), *zero = onnx_has(c, i + 1) ? onnx_in(c, i + 1) : NULL;
    bool one = tn_numel(scale) == 1 && (!zero || tn_numel(zero) == 1) && tn_dtype_of(scale) == TN_F32;
    if (multiply && one && (type == ONNX_UINT8 || type == ONNX_INT8) && has_reciprocal(c, i)) {
        const tn_tensor *each = tn_div(tn_full(NULL, 0, 1, TN_F32), tn_reshape(scale, NULL, 0));
        if (zero) zero = tn_reshape(zero, NULL, 0);
        *y = onnx_rounded(c, tn_mul(*y, each), zero, type);
        return tn_status_of(*y);
    }
    tn_status status = give_tensor(&d, *y);
    give_fused(&d, i);
    if (onnx_has(c, i + 1))
        give_fused(&d, i + 1);
    else if (status == TN_OK)
        status = give_tensor(&d, tn_zeros(NULL, 0, onnx_types[type].dtype));
    if (status == TN_OK)
        status = standard(&d, "QuantizeLinear", OPSET, y);
    else
        clear(&d);
    return status;
}

static tn_status put_quantized(onnx_call *c, tn_tensor *y, int i, int operand, bool multiply) {
    const onnx_type type = onnx_in_type(c, onnx_has(c, i + 1) ? i + 1 : operand);
    TRY(quantized(c, &y, i, type, multiply));
    return onnx_put_typed(c, 0, y, type);
}

static tn_status run_on_bytes(onnx_call *c) {
    int what = c->row->with, count = on_bytes[what].operands, first = count ? 0 : 2;
    int64_t opset = what == SOFTMAX ? onnx_int(c, "opset", 13) : on_bytes[what].opset;
    dressed d = {.c = c};
    tn_tensor *y;
    const onnx_type type = first ? onnx_in_type(c, onnx_has(c, 1) ? 1 : first) : ONNX_UNDEFINED;
    if (!onnx_wants(c, 0)) return TN_OK;
    if (onnx_int(c, "channels_last", 0)) return onnx_refuse(c, "channels as the last dimension are not supported");
    if (!count) count = (c->in_count - first) / 3;
    if (count < 1 || count > MOST_OPERANDS) return onnx_refuse(c, "%d operands; the limit is %d", count, MOST_OPERANDS);
    tn_status status = TN_OK;
    for (int i = 0; i < count && status == TN_OK; i++) {
        tn_tensor *wide;
        status = wrapped_dequantized(c, first + 3 * i, &wide);
        if (status == TN_OK && first) status = quantized(c, &wide, 0, type, false); /* lists are joined as bytes */
        if (status == TN_OK) status = give_tensor(&d, wide);
    }
    if (status == TN_OK)
        status = standard(&d, on_bytes[what].name, opset, &y);
    else
        clear(&d);
    if (status != TN_OK || first) return status == TN_OK ? onnx_put_typed(c, 0, y, type) : status;
    return put_quantized(c, y, 3 * count, 0, what == ADD || what == MUL);
}

/* ---- products of bytes that become floats ------------------------------------------------------------------------ */

/* i32 sums times both scales, and the bias. */
static tn_tensor *fused_scaled(const onnx_call *c, const tn_tensor *sums, const tn_tensor *a_scale, int b_scale,
                               int bias) {
    const tn_tensor *one = tn_numel(a_scale) == 1 ? tn_reshape(a_scale, NULL, 0) : a_scale;
    tn_tensor *y = tn_mul(tn_cast(sums, TN_F32), tn_mul(one, onnx_in(c, b_scale)));
    return onnx_has(c, bias) ? tn_add(y, onnx_in(c, bias)) : y;
}

static tn_status scaled_product(const onnx_call *c, const onnx_byte_operands *at, tn_tensor **y) {
    const int order[] = {at->a, at->b, at->a_zero, at->b_zero};
    dressed d = {.c = c};
    TRY(need_fused(c, at->a, 1));
    TRY(need_fused(c, at->b, 1));
    TRY(need_fused(c, at->a_scale, 1));
    TRY(need_fused(c, at->b_scale, 1));
    for (size_t k = 0; k < TN_COUNT(order); k++)
        give_fused(&d, order[k]);
    TRY(standard(&d, "MatMulInteger", OPSET, y));
    *y = fused_scaled(c, *y, onnx_in(c, at->a_scale), at->b_scale, at->bias);
    return TN_OK;
}

static tn_status run_to_float(onnx_call *c) {
    static const onnx_byte_operands at = {
        .a = 0, .b = 1, .a_scale = 2, .b_scale = 3, .a_zero = 4, .b_zero = 5, .bias = 6};
    tn_tensor *y;
    if (!onnx_wants(c, 0)) return TN_OK;
    TRY(scaled_product(c, &at, &y));
    return onnx_put(c, 0, y);
}

static tn_tensor *transposed(const tn_tensor *x) { return tn_t(x); }

/* With ONNX Runtime's one multiplication by a_scale b_scale / y_scale; *y stays NULL where the product does not allow
 * that. */
static tn_status rounded_gemm(const onnx_call *c, tn_tensor **y) {
    enum { B = 3, Y_SCALE = 7 };
    static const int order[] = {0, 1, 2, B, 4, 5, Y_SCALE, 8, 6}; /* of QLinearMatMul's inputs, and the bias */
    onnx_value *in[TN_COUNT(order)];
    onnx_call product = *c;
    if (!onnx_has(c, Y_SCALE) || onnx_int(c, "transA", 0) || onnx_float(c, "alpha", 1) != 1) return TN_OK;
    for (size_t i = 0; i < TN_COUNT(order); i++)
        in[i] = onnx_has(c, order[i]) ? c->in[order[i]] : NULL;
    if (onnx_int(c, "transB", 0)) {
        (void)onnx_derived(c, B, ONNX_TRANSPOSED, transposed);
        in[3] = c->in[B]->derived[ONNX_TRANSPOSED];
        if (!in[3]) return TN_OK;
    }
    product.in = in;
    product.in_count = TN_COUNT(order);
    return onnx_matmul_rounded(&product, y);
}

/* alpha (A − a_zero)(B − b_zero) a_scale b_scale, to whose sums C (i32) is added; rounded to bytes where the node has a
 * scale of the result. */
static tn_status run_gemm_of_bytes(onnx_call *c) {
    enum { A, A_SCALE, A_ZERO, B, B_SCALE, B_ZERO, C, Y_SCALE, Y_ZERO };
    dressed d = {.c = c};
    tn_tensor *y = NULL;
    if (!onnx_wants(c, 0)) return TN_OK;
    TRY(need_fused(c, A, C));
    TRY(onnx_check_zero(c, A_ZERO, A));
    TRY(onnx_check_zero(c, B_ZERO, B));
    TRY(onnx_check_scale(c, A_SCALE, false));
    TRY(onnx_check_scale(c, B_SCALE, false));
    if (onnx_has(c, Y_ZERO) && !onnx_has(c, Y_SCALE))
        return onnx_refuse(c, "a zero point of the result requires a scale");
    if (onnx_has(c, Y_ZERO)) TRY(onnx_check_zero(c, Y_ZERO, A));
    if (onnx_has(c, C) && onnx_in_type(c, C) != ONNX_INT32)
        return onnx_refuse(c, "input %d must be INT32, not %s", C, onnx_types[onnx_in_type(c, C)].name);
    TRY(rounded_gemm(c, &y));
    if (y) return onnx_put(c, 0, y);
    if (onnx_int(c, "transA", 0))
        TRY(give_tensor(&d, tn_t(onnx_in(c, A))));
    else
        give_fused(&d, A);
    tn_status status = TN_OK;
    if (onnx_int(c, "transB", 0)) {
        tn_tensor *turned = (tn_tensor *)(uintptr_t)onnx_derived(c, B, ONNX_TRANSPOSED, transposed);
        if (c->in[B]->derived[ONNX_TRANSPOSED]) /* for a constant, the sums of its columns are cached */
            d.in[d.in_count++] = onnx_value_retain(c->in[B]->derived[ONNX_TRANSPOSED]);
        else
            status = give_tensor(&d, turned);
    } else {
        give_fused(&d, B);
    }
    give_fused(&d, A_ZERO);
    give_fused(&d, B_ZERO);
    if (status != TN_OK) return clear(&d), status;
    TRY(standard(&d, "MatMulInteger", OPSET, &y));
    if (onnx_has(c, C)) y = tn_add(y, onnx_in(c, C));
    const tn_tensor *scale =
        tn_mul_scalar(tn_mul(tn_reshape(onnx_in(c, A_SCALE), NULL, 0), onnx_in(c, B_SCALE)), onnx_float(c, "alpha", 1));
    y = tn_mul(tn_cast(y, TN_F32), scale);
    return onnx_has(c, Y_SCALE) ? put_quantized(c, y, Y_SCALE, A, true) : onnx_put(c, 0, y);
}

/* Its first operand is rounded to bytes here. */
static tn_status run_dynamic_product(onnx_call *c) {
    enum { A, B, B_SCALE, B_ZERO, BIAS };
    dressed rounded = {.c = c}, d = {.c = c};
    tn_tensor *y = NULL;
    if (!onnx_wants(c, 0)) return TN_OK;
    TRY(need_fused(c, A, 3));
    give_fused(&rounded, A);
    tn_status status = call_standard(&rounded, "DynamicQuantizeLinear", OPSET, 3);
    if (status == TN_OK) {
        d.in[d.in_count++] = onnx_value_retain(rounded.out[0]);
        give_fused(&d, B);
        d.in[d.in_count++] = onnx_value_retain(rounded.out[2]);
        give_fused(&d, B_ZERO);
        status = standard(&d, "MatMulInteger", OPSET, &y);
    }
    if (status == TN_OK) y = fused_scaled(c, y, rounded.out[1]->tensor, B_SCALE, BIAS);
    clear(&rounded);
    return status == TN_OK ? onnx_put(c, 0, y) : status;
}

/* ---- an activation after ---------------------------------------------------------------------------------------- */

/* Attribute `activation` with its numbers: a list, or one by one. */
static tn_status activated(const onnx_call *c, tn_tensor **y) {
    onnx_text name = onnx_string(c, "activation", "");
    const onnx_attribute *list = onnx_find_list(c, "activation_params", ONNX_KIND_FLOATS);
    const onnx_activation *known = onnx_activation_named(name);
    bool clips = onnx_is(name, "Clip");
    if (name.size == 0) return TN_OK;
    if (!known && !clips)
        return onnx_refuse(c, "the activation '%.*s' is not supported", name.size < 40 ? (int)name.size : 40, name.at);
    double v[2] = {known ? known->alpha : -INFINITY, known ? known->beta : INFINITY};
    bool gamma = known && known->beta_name && strcmp(known->beta_name, "gamma") == 0; /* Selu's second number */
    v[0] = onnx_float(c, "activation_alpha", v[0]);
    v[1] = onnx_float(c, gamma ? "activation_gamma" : "activation_beta", v[1]);
    for (size_t i = 0; list && i < list->count && i < 2; i++)
        v[i] = (double)list->floats[i];
    *y = clips ? tn_clamp(*y, v[0], v[1]) : known->of(*y, v[0], v[1]);
    return TN_OK;
}

/* with: a convolution, to which input 3 may be added before; else a product. */
static tn_status run_activated(onnx_call *c) {
    bool convolution = c->row->with;
    dressed d = {.c = c};
    tn_tensor *y;
    if (!onnx_wants(c, 0)) return TN_OK;
    TRY(need_fused(c, 0, 2));
    for (int i = 0; i < 3; i++)
        give_fused(&d, i);
    TRY(standard(&d, convolution ? "Conv" : "Gemm", 13, &y));
    if (convolution && onnx_has(c, 3)) y = tn_add(y, onnx_in(c, 3));
    TRY(activated(c, &y));
    return onnx_put(c, 0, y);
}

/* The standard's own, from before it had all of these types. */
static tn_status run_newest(onnx_call *c) {
    dressed d = {.c = c};
    if (!onnx_wants(c, 0)) return TN_OK;
    TRY(need_fused(c, 0, 2));
    for (int i = 0; i < 3; i++)
        give_fused(&d, i);
    tn_status status = call_standard(&d, c->row->name, OPSET, 1);
    if (status == TN_OK) status = onnx_put_value(c, 0, onnx_value_retain(d.out[0]));
    clear(&d);
    return status;
}

const onnx_op_row onnx_dressed_ops[] = {
    {"DequantizeLinear", 1, .run = run_newest},
    {"DynamicQuantizeMatMul", 1, .run = run_dynamic_product},
    {"FusedConv", 1, .run = run_activated, .with = 1},
    {"FusedGemm", 1, .run = run_activated},
    {"MatMulIntegerToFloat", 1, .run = run_to_float},
    {"QGemm", 1, .run = run_gemm_of_bytes},
    {"QLinearAdd", 1, .run = run_on_bytes, .with = ADD},
    {"QLinearAveragePool", 1, .run = run_on_bytes, .with = AVERAGE_POOL},
    {"QLinearConcat", 1, .run = run_on_bytes, .with = CONCAT},
    {"QLinearGlobalAveragePool", 1, .run = run_on_bytes, .with = GLOBAL_AVERAGE_POOL},
    {"QLinearLeakyRelu", 1, .run = run_on_bytes, .with = LEAKY_RELU},
    {"QLinearMul", 1, .run = run_on_bytes, .with = MUL},
    {"QLinearReduceMean", 1, .run = run_on_bytes, .with = REDUCE_MEAN},
    {"QLinearSigmoid", 1, .run = run_on_bytes, .with = SIGMOID},
    {"QLinearSoftmax", 1, .run = run_on_bytes, .with = SOFTMAX},
    {"QuantizeLinear", 1, .run = run_newest},
    {.name = NULL},
};
