/* encoder_record.c — an encoder's operations, recorded: embeddings, layers with their norms behind, pooling.
 *
 * Rows of all texts stand one behind the other, [batch · length, hidden], so that every linear layer is one product;
 * attention alone looks at them text by text. What is to become an ONNX model keeps the texts apart: its extents are
 * open, and a product of two has no name. */
#include "text/encoder.h"

#include <math.h>

static tn_tensor *linear(const tn_tensor *x, const encoder_linear *l) { return tn_linear(x, l->weight, l->bias); }

static tn_tensor *norm(const encoder_config *c, const tn_tensor *x, const encoder_linear *l) {
    tn_layer_norm_options o = TN_LAYER_NORM_DEFAULTS;
    o.eps = c->eps;
    return tn_layer_norm(x, TN_DIMS(c->hidden), l->weight, l->bias, &o);
}

static tn_tensor *rows(const encoder_config *c, const tn_tensor *x, const encoder_batch *b) {
    int64_t batch = tn_size(b->ids, 0), length = tn_size(b->ids, 1);
    return b->apart ? tn_reshape(x, TN_DIMS(batch, length, c->hidden))
                    : tn_reshape(x, TN_DIMS(batch * length, c->hidden));
}

/* Part i of the joined product as [batch, heads, length, features]. */
static tn_tensor *heads(const encoder_config *c, const tn_tensor *qkv, int64_t i, const encoder_batch *b) {
    int64_t batch = tn_size(b->ids, 0), length = tn_size(b->ids, 1);
    tn_tensor *part = tn_narrow(qkv, -1, i * c->hidden, c->hidden);
    return tn_transpose(tn_reshape(part, TN_DIMS(batch, length, c->heads, c->hidden / c->heads)), 1, 2);
}

static tn_tensor *attention(const encoder_config *c, const encoder_layer *l, const tn_tensor *x, const tn_tensor *mask,
                            const encoder_batch *b) {
    tn_tensor *qkv = linear(x, &l->qkv), *part[3];
    for (int64_t i = 0; i < 3; i++)
        part[i] = heads(c, qkv, i, b);
    tn_tensor *mixed = tn_scaled_dot_product_attention(part[0], part[1], part[2], mask, NULL);
    return linear(rows(c, tn_transpose(mixed, 1, 2), b), &l->out);
}

static tn_tensor *layers(const encoder_config *c, const encoder_weights *w, tn_tensor *x, const tn_tensor *mask,
                         const encoder_batch *b) {
    for (int64_t i = 0; i < c->layers; i++) {
        const encoder_layer *l = &w->layers[i];
        x = norm(c, tn_add(x, attention(c, l, x, mask, b)), &l->norm1);
        x = norm(c, tn_add(x, linear(c->activation(linear(x, &l->up)), &l->down)), &l->norm2);
    }
    return x;
}

/* x [batch, length, hidden] → [batch, hidden]. */
static tn_tensor *pool(const encoder_config *c, const tn_tensor *x, const tn_tensor *seen) {
    if (c->pooling == TN_POOLING_CLS) return tn_select(x, 1, 0);
    if (c->pooling == TN_POOLING_MAX) {
        if (seen) x = tn_masked_fill(x, tn_unsqueeze(tn_eq_scalar(seen, 0), 2), -1e30);
        return tn_amax(x, (int64_t[]){1}, 1, false);
    }
    if (!seen) return tn_mean(x, (int64_t[]){1}, 1, false);
    tn_tensor *sum = tn_sum(tn_mul(x, tn_unsqueeze(seen, 2)), (int64_t[]){1}, 1, false);
    return tn_div(sum, tn_sum(seen, (int64_t[]){1}, 1, true));
}

/* x / max(‖x‖, 1e-12), row by row. */
static tn_tensor *to_unit(const tn_tensor *x) {
    tn_tensor *square = tn_sum(tn_mul(x, x), (int64_t[]){1}, 1, true);
    return tn_mul(x, tn_rsqrt(tn_clamp(square, 1e-24, INFINITY)));
}

/* Keys that are seen; for open extents with the queries written out, as an extent that is repeated has no name. */
static tn_tensor *encoder_mask_of(const encoder_batch *b, int64_t batch, int64_t length) {
    tn_tensor *keys = tn_reshape(b->seen, TN_DIMS(batch, 1, 1, length));
    if (b->apart) keys = tn_mul(keys, tn_unsqueeze(tn_unsqueeze(tn_ones_like(b->seen), 1), 3));
    return tn_gt_scalar(keys, 0);
}

tn_tensor *tn_encoder_record(const encoder_config *c, const encoder_weights *w, const encoder_batch *b) {
    int64_t batch = tn_size(b->ids, 0), length = tn_size(b->ids, 1);
    tn_tensor *result = NULL;
    TN_SCOPE;
    tn_tensor *x = tn_add(tn_embedding(b->ids, w->words), tn_embedding(b->places, w->places));
    x = norm(c, rows(c, x, b), &w->norm);
    tn_tensor *mask = b->seen ? encoder_mask_of(b, batch, length) : NULL;
    x = tn_reshape(layers(c, w, x, mask, b), TN_DIMS(batch, length, c->hidden));
    tn_tensor *y = pool(c, x, b->seen);
    for (int i = 0; i < c->dense_count; i++)
        y = c->dense[i].activation(linear(y, &w->dense[i]));
    result = tn_retain(c->norm == TN_EMBED_NORM_UNIT ? to_unit(y) : y);
    return result;
}
