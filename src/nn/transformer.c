/* transformer.c — multi-head attention and the transformer encoder block, as PyTorch defines them.
 *
 * Both are built of layers (linear, norm, dropout) that hang in the tree under PyTorch's names; attention keeps its
 * three input projections in one matrix, so that self-attention is one product. */
#include <math.h>
#include <stdlib.h>

#include "nn/make.h"
#include "trunnion/backend.h"
#include "trunnion/ops.h"

/* ---- multi-head attention ---------------------------------------------------------------------------------------- */

typedef struct attention {
    tn_tensor *weight, *bias; /* in_proj: query, key, value */
    tn_module *out;
    int64_t features, heads;
    double dropout;
} attention;

/* Rows of query, key or value (part 0, 1, 2) of the joined projection. */
static tn_tensor *project(const attention *s, const tn_tensor *x, int64_t part, int64_t parts) {
    tn_tensor *weight = tn_narrow(s->weight, 0, part * s->features, parts * s->features);
    tn_tensor *bias = tn_narrow(s->bias, 0, part * s->features, parts * s->features);
    return tn_linear(x, weight, bias);
}

/* [batch, n, features] → [batch, heads, n, features / heads] */
static tn_tensor *split_heads(const attention *s, const tn_tensor *x) {
    int64_t shape[] = {tn_size(x, 0), tn_size(x, 1), s->heads, s->features / s->heads};
    return tn_transpose(tn_reshape(x, shape, 4), 1, 2);
}

static tn_tensor *join_heads(const attention *s, const tn_tensor *x) {
    int64_t shape[] = {tn_size(x, 0), tn_size(x, 2), s->features};
    return tn_reshape(tn_transpose(x, 1, 2), shape, 3);
}

static tn_status check_input(const attention *s, const tn_tensor *x, const char *what) {
    tn_status status = tn_status_of(x);
    if (status != TN_OK) return status;
    if (tn_rank(x) == 3 && tn_size(x, 2) == s->features) return TN_OK;
    return tn_backend_fail(TN_ERR_SHAPE,
                           "multihead_attention: %s must be [batch, n, %lld]; its rank is %d, its last extent %lld",
                           what, (long long)s->features, tn_rank(x), (long long)tn_size(x, -1));
}

/* softmax(q kᵀ / sqrt(d) + mask) with dropout, times v: the composition that the
 * operation without dropout stands for. */
static tn_tensor *attend_with_dropout(const attention *s, tn_tensor *const p[3], const tn_tensor *mask) {
    double scale = 1 / sqrt((double)(s->features / s->heads));
    tn_tensor *scores = tn_mul(tn_matmul(p[0], tn_transpose(p[1], -2, -1)), tn_scalar(scale));
    if (mask) scores = tn_add(scores, mask);
    return tn_matmul(tn_dropout(tn_softmax(scores, -1), s->dropout, true), p[2]);
}

static void project_inputs(const attention *s, const tn_tensor *const in[3], tn_tensor *out[3]) {
    if (in[0] == in[1] && in[1] == in[2]) {
        tn_tensor *joined = project(s, in[0], 0, 3);
        for (int64_t i = 0; i < 3; i++)
            out[i] = split_heads(s, tn_narrow(joined, 2, i * s->features, s->features));
        return;
    }
    for (int64_t i = 0; i < 3; i++)
        out[i] = split_heads(s, project(s, in[i], i, 1));
}

tn_tensor *tn_multihead_attention_forward(tn_module *m, const tn_tensor *query, const tn_tensor *key,
                                          const tn_tensor *value, const tn_tensor *mask) {
    if (!m) return tn_failed(TN_ERR_ARGUMENT, "multihead_attention: the module is NULL; it could not be made");
    const attention *s = tn_module_self(m);
    const tn_tensor *in[] = {query, key, value};
    static const char *const names[] = {"query", "key", "value"};
    for (int i = 0; i < 3; i++) {
        tn_status status = check_input(s, in[i], names[i]);
        if (status != TN_OK) return tn_failed(status, "%s", tn_error());
    }
    tn_tensor *result = NULL;
    TN_SCOPE;
    tn_tensor *p[3];
    project_inputs(s, in, p);
    bool dropping = s->dropout > 0 && tn_module_is_training(m);
    tn_tensor *mixed =
        dropping ? attend_with_dropout(s, p, mask) : tn_scaled_dot_product_attention(p[0], p[1], p[2], mask, NULL);
    result = tn_keep(tn_forward(s->out, join_heads(s, mixed)));
    return result;
}

static tn_tensor *attention_forward(tn_module *m, const tn_tensor *x) {
    return tn_multihead_attention_forward(m, x, x, x, NULL);
}

static const tn_module_type attention_type = {sizeof(tn_module_type), "multihead_attention", attention_forward, free};

static bool check_attention(tn_module *parent, const char *name, int64_t features, int64_t heads, double dropout) {
    if (!tn_nn_check_sizes(parent, "multihead_attention", name, features, heads)) return false;
    if (features % heads == 0 && dropout >= 0 && dropout < 1) return true;
    tn_module_fail(parent,
                   tn_backend_fail(TN_ERR_ARGUMENT,
                                   "multihead_attention \"%s\": %lld features must be a multiple of %lld heads, and "
                                   "dropout (%g) in [0, 1)",
                                   name, (long long)features, (long long)heads, dropout));
    return false;
}

tn_module *tn_nn_multihead_attention(tn_module *parent, const char *name, int64_t features, int64_t heads,
                                     double dropout) {
    if (!check_attention(parent, name, features, heads, dropout)) return NULL;
    tn_module *m = tn_nn_make(parent, name, &attention_type, sizeof(attention));
    if (!m) return NULL;
    attention *s = tn_module_self(m);
    s->features = features;
    s->heads = heads;
    s->dropout = dropout;
    int64_t joined = 3 * features;
    {
        TN_SCOPE;
        tn_tensor *weight = tn_init_xavier_uniform((int64_t[]){joined, features}, 2, 1);
        s->weight = tn_module_add_parameter(m, "in_proj_weight", weight);
        s->bias = tn_module_add_parameter(m, "in_proj_bias", tn_init_constant(&joined, 1, 0));
        s->out = tn_nn_linear(m, "out_proj", features, features, true);
        tn_nn_write(s->out, "bias", tn_init_constant(&features, 1, 0));
    }
    return tn_nn_made(m);
}

/* ---- encoder block ----------------------------------------------------------------------------------------------- */

typedef struct encoder {
    tn_module *attention, *linear1, *linear2, *norm1, *norm2, *dropout, *dropout1, *dropout2;
    tn_tensor *(*activation)(const tn_tensor *x);
    double p; /* of the dropouts */
    bool norm_first;
} encoder;

static tn_tensor *exact_gelu(const tn_tensor *x) { return tn_gelu(x, NULL); }

/* Without dropout nothing needs to be recorded. */
static tn_tensor *drop(const encoder *s, tn_module *dropout, tn_tensor *x) {
    return s->p > 0 ? tn_forward(dropout, x) : x;
}

static tn_tensor *attend_transformer(const encoder *s, const tn_tensor *x, const tn_tensor *mask) {
    return drop(s, s->dropout1, tn_multihead_attention_forward(s->attention, x, x, x, mask));
}

static tn_tensor *feed_forward(const encoder *s, const tn_tensor *x) {
    tn_tensor *inner = s->activation(tn_forward(s->linear1, x));
    return drop(s, s->dropout2, tn_forward(s->linear2, drop(s, s->dropout, inner)));
}

tn_tensor *tn_transformer_encoder_layer_forward(tn_module *m, const tn_tensor *x, const tn_tensor *mask) {
    if (!m) return tn_failed(TN_ERR_ARGUMENT, "transformer_encoder_layer: the module is NULL; it could not be made");
    const encoder *s = tn_module_self(m);
    tn_tensor *result = NULL;
    TN_SCOPE;
    if (s->norm_first) {
        tn_tensor *y = tn_add(x, attend_transformer(s, tn_forward(s->norm1, x), mask));
        result = tn_add(y, feed_forward(s, tn_forward(s->norm2, y)));
    } else {
        tn_tensor *y = tn_forward(s->norm1, tn_add(x, attend_transformer(s, x, mask)));
        result = tn_forward(s->norm2, tn_add(y, feed_forward(s, y)));
    }
    tn_keep(result);
    return result;
}

static tn_tensor *encoder_forward(tn_module *m, const tn_tensor *x) {
    return tn_transformer_encoder_layer_forward(m, x, NULL);
}

static const tn_module_type encoder_type = {sizeof(tn_module_type), "transformer_encoder_layer", encoder_forward, free};

tn_module *tn_nn_transformer_encoder_layer(tn_module *parent, const char *name, int64_t features, int64_t heads,
                                           const tn_nn_encoder_options *options) {
    tn_nn_encoder_options o = TN_NN_ENCODER_DEFAULTS;
    tn_status status =
        tn_options_read(&o, options, "transformer_encoder_layer", "tn_nn_encoder_options o = TN_NN_ENCODER_DEFAULTS");
    if (tn_module_fail(parent, status) != TN_OK) return NULL;
    int64_t inner = o.feedforward ? o.feedforward : 4 * features;
    if (!tn_nn_check_sizes(parent, "transformer_encoder_layer", name, features, inner)) return NULL;
    tn_module *m = tn_nn_make(parent, name, &encoder_type, sizeof(encoder));
    if (!m) return NULL;
    encoder *s = tn_module_self(m);
    tn_nn_norm_options norm = TN_NN_NORM_DEFAULTS;
    norm.eps = o.eps;
    s->activation = o.activation ? o.activation : exact_gelu;
    s->norm_first = o.norm_first;
    s->p = o.dropout;
    s->attention = tn_nn_multihead_attention(m, "self_attn", features, heads, o.dropout);
    s->linear1 = tn_nn_linear(m, "linear1", features, inner, true);
    s->dropout = tn_nn_dropout(m, "dropout", o.dropout);
    s->linear2 = tn_nn_linear(m, "linear2", inner, features, true);
    s->norm1 = tn_nn_layer_norm(m, "norm1", features, &norm);
    s->norm2 = tn_nn_layer_norm(m, "norm2", features, &norm);
    s->dropout1 = tn_nn_dropout(m, "dropout1", o.dropout);
    s->dropout2 = tn_nn_dropout(m, "dropout2", o.dropout);
    return tn_nn_made(m);
}
