/* layers.c — the usual layers: linear, convolution, normalisation, embedding, dropout, LSTM cell.
 *
 * A layer is a module type whose `self` holds its variables by pointer (owned by the tree) and its settings; forward
 * calls the operation of the same name. Names, shapes and initial values of variables are those of PyTorch's layers. */
#include <math.h>
#include <stdlib.h>

#include "nn/make.h"
#include "trunnion/autograd.h"
#include "trunnion/backend.h"
#include "trunnion/ops.h"

static const double sqrt_5 = 2.23606797749978969641;

/* ---- making ------------------------------------------------------------------------------------------------------ */

tn_module *tn_nn_make(tn_module *parent, const char *name, const tn_module_type *type, size_t size) {
    if (!parent) return NULL;
    void *self = calloc(1, size);
    if (!self) {
        tn_module_fail(parent, tn_backend_fail(TN_ERR_MEMORY, "module: out of memory"));
        return NULL;
    }
    return tn_module_new(parent, name, type, self);
}

bool tn_nn_check_sizes(tn_module *parent, const char *what, const char *name, int64_t a, int64_t b) {
    if (!parent) return false;
    if (a > 0 && b > 0) return true;
    tn_module_fail(parent, tn_backend_fail(TN_ERR_ARGUMENT, "%s \"%s\": sizes %lld and %lld; both must be positive",
                                           what, name ? name : "", (long long)a, (long long)b));
    return false;
}

void tn_nn_write(tn_module *m, const char *name, const tn_tensor *value) {
    tn_tensor *t = m ? tn_module_variable(m, name) : NULL;
    if (!t) return;
    TN_NO_GRAD;
    (void)tn_module_fail(m, tn_status_of(tn_copy_(t, value)));
}

static bool norm_options(tn_module *parent, const char *what, const tn_nn_norm_options *given, tn_nn_norm_options *o) {
    *o = (tn_nn_norm_options)TN_NN_NORM_DEFAULTS;
    tn_status status = tn_options_read(o, given, what, "tn_nn_norm_options o = TN_NN_NORM_DEFAULTS");
    return tn_module_fail(parent, status) == TN_OK;
}

/* ---- linear ------------------------------------------------------------------------------------------------------ */

typedef struct linear {
    tn_tensor *weight, *bias; /* bias may be NULL */
} linear;

static tn_tensor *linear_forward(tn_module *m, const tn_tensor *x) {
    const linear *s = tn_module_self(m);
    return tn_linear(x, s->weight, s->bias);
}

static const tn_module_type linear_type = {sizeof(tn_module_type), "linear", linear_forward, free};

tn_module *tn_nn_linear(tn_module *parent, const char *name, int64_t in_features, int64_t out_features, bool bias) {
    if (!tn_nn_check_sizes(parent, "linear", name, in_features, out_features)) return NULL;
    tn_module *m = tn_nn_make(parent, name, &linear_type, sizeof(linear));
    if (!m) return NULL;
    linear *s = tn_module_self(m);
    double bound = 1 / sqrt((double)in_features);
    {
        TN_SCOPE;
        s->weight = tn_module_add_parameter(m, "weight",
                                            tn_init_kaiming_uniform((int64_t[]){out_features, in_features}, 2, sqrt_5));
        if (bias) s->bias = tn_module_add_parameter(m, "bias", tn_init_uniform(&out_features, 1, -bound, bound));
    }
    return tn_nn_made(m);
}

/* ---- convolution ------------------------------------------------------------------------------------------------- */

typedef struct conv2d {
    tn_tensor *weight, *bias;
    tn_conv2d_options options;
} conv2d;

static tn_tensor *conv2d_forward(tn_module *m, const tn_tensor *x) {
    const conv2d *s = tn_module_self(m);
    return tn_conv2d(x, s->weight, s->bias, &s->options);
}

static const tn_module_type conv2d_type = {sizeof(tn_module_type), "conv2d", conv2d_forward, free};

static bool conv2d_check(tn_module *parent, const char *name, int64_t in, int64_t out, int64_t kernel,
                         const tn_nn_conv2d_options *o) {
    if (!tn_nn_check_sizes(parent, "conv2d", name, in, out) ||
        !tn_nn_check_sizes(parent, "conv2d", name, kernel, o->stride))
        return false;
    if (o->padding >= 0 && o->dilation > 0 && o->groups > 0 && in % o->groups == 0 && out % o->groups == 0) return true;
    tn_module_fail(parent,
                   tn_backend_fail(TN_ERR_ARGUMENT,
                                   "conv2d \"%s\": padding %lld, dilation %lld, groups %lld; channels %lld and %lld "
                                   "must be multiples of groups",
                                   name, (long long)o->padding, (long long)o->dilation, (long long)o->groups,
                                   (long long)in, (long long)out));
    return false;
}

tn_module *tn_nn_conv2d(tn_module *parent, const char *name, int64_t in_channels, int64_t out_channels, int64_t kernel,
                        const tn_nn_conv2d_options *options) {
    tn_nn_conv2d_options o = TN_NN_CONV2D_DEFAULTS;
    tn_status status = tn_options_read(&o, options, "conv2d", "tn_nn_conv2d_options o = TN_NN_CONV2D_DEFAULTS");
    if (tn_module_fail(parent, status) != TN_OK) return NULL;
    if (!conv2d_check(parent, name, in_channels, out_channels, kernel, &o)) return NULL;
    tn_module *m = tn_nn_make(parent, name, &conv2d_type, sizeof(conv2d));
    if (!m) return NULL;
    conv2d *s = tn_module_self(m);
    s->options = (tn_conv2d_options)TN_CONV2D_DEFAULTS;
    s->options.stride[0] = s->options.stride[1] = o.stride;
    s->options.padding[0] = s->options.padding[1] = o.padding;
    s->options.dilation[0] = s->options.dilation[1] = o.dilation;
    s->options.groups = o.groups;
    int64_t shape[] = {out_channels, in_channels / o.groups, kernel, kernel};
    double bound = 1 / sqrt((double)(shape[1] * kernel * kernel));
    {
        TN_SCOPE;
        s->weight = tn_module_add_parameter(m, "weight", tn_init_kaiming_uniform(shape, 4, sqrt_5));
        if (o.bias) s->bias = tn_module_add_parameter(m, "bias", tn_init_uniform(&out_channels, 1, -bound, bound));
    }
    return tn_nn_made(m);
}

/* ---- normalisation ----------------------------------------------------------------------------------------------- */

typedef struct norm {
    tn_tensor *weight, *bias;              /* may be NULL */
    tn_tensor *running_mean, *running_var; /* batch normalisation */
    tn_tensor *batches;                    /* how many batches moved them */
    int64_t features;
    double eps, momentum;
} norm;

static void add_affine(tn_module *m, norm *s, const tn_nn_norm_options *o, int64_t features) {
    s->features = features;
    s->eps = o->eps;
    s->momentum = o->momentum;
    if (!o->affine) return;
    TN_SCOPE;
    s->weight = tn_module_add_parameter(m, "weight", tn_init_constant(&features, 1, 1));
    s->bias = tn_module_add_parameter(m, "bias", tn_init_constant(&features, 1, 0));
}

/* running ← running + momentum · (batch's − running); the running variance takes the unbiased one, as in PyTorch. */
static void move_statistics(const norm *s, const tn_tensor *x) {
    int64_t values = tn_size(x, 1) > 0 ? tn_numel(x) / tn_size(x, 1) : 0;
    double unbias = values > 1 ? (double)values / (double)(values - 1) : 1;
    TN_SCOPE;
    tn_tensor *keep = tn_scalar(1 - s->momentum), *mean_part = tn_scalar(s->momentum);
    tn_tensor *var_part = tn_scalar(s->momentum * unbias);
    tn_add_(tn_mul_(s->running_mean, keep), tn_mul(tn_batch_mean(x), mean_part));
    tn_add_(tn_mul_(s->running_var, keep), tn_mul(tn_batch_var(x), var_part));
    tn_add_(s->batches, tn_scalar_int(1));
}

static tn_tensor *batch_norm2d_forward(tn_module *m, const tn_tensor *x) {
    const norm *s = tn_module_self(m);
    bool training = tn_module_is_training(m);
    if (tn_status_of(x) == TN_OK && (tn_rank(x) != 4 || tn_size(x, 1) != s->features))
        return tn_failed(TN_ERR_SHAPE,
                         "batch_norm2d: x must be [batch, %lld, height, width]; its rank is %d, its channels %lld",
                         (long long)s->features, tn_rank(x), (long long)tn_size(x, 1));
    tn_batch_norm_options o = TN_BATCH_NORM_DEFAULTS;
    o.eps = s->eps;
    tn_tensor *y = tn_batch_norm(x, s->running_mean, s->running_var, s->weight, s->bias, training, &o);
    if (training && tn_status_of(y) == TN_OK) {
        TN_NO_GRAD;
        move_statistics(s, x);
    }
    return y;
}

static const tn_module_type batch_norm2d_type = {sizeof(tn_module_type), "batch_norm2d", batch_norm2d_forward, free};

tn_module *tn_nn_batch_norm2d(tn_module *parent, const char *name, int64_t channels,
                              const tn_nn_norm_options *options) {
    tn_nn_norm_options o;
    if (!norm_options(parent, "batch_norm2d", options, &o)) return NULL;
    if (!tn_nn_check_sizes(parent, "batch_norm2d", name, channels, channels)) return NULL;
    tn_module *m = tn_nn_make(parent, name, &batch_norm2d_type, sizeof(norm));
    if (!m) return NULL;
    norm *s = tn_module_self(m);
    add_affine(m, s, &o, channels);
    {
        TN_SCOPE;
        s->running_mean = tn_module_add_buffer(m, "running_mean", tn_init_constant(&channels, 1, 0));
        s->running_var = tn_module_add_buffer(m, "running_var", tn_init_constant(&channels, 1, 1));
        s->batches = tn_module_add_buffer(m, "num_batches_tracked", tn_full(NULL, 0, 0, TN_I64));
    }
    return tn_nn_made(m);
}

static tn_tensor *layer_norm_forward(tn_module *m, const tn_tensor *x) {
    const norm *s = tn_module_self(m);
    tn_layer_norm_options o = TN_LAYER_NORM_DEFAULTS;
    o.eps = s->eps;
    return tn_layer_norm(x, &s->features, 1, s->weight, s->bias, &o);
}

static const tn_module_type layer_norm_type = {sizeof(tn_module_type), "layer_norm", layer_norm_forward, free};

tn_module *tn_nn_layer_norm(tn_module *parent, const char *name, int64_t features, const tn_nn_norm_options *options) {
    tn_nn_norm_options o;
    if (!norm_options(parent, "layer_norm", options, &o)) return NULL;
    if (!tn_nn_check_sizes(parent, "layer_norm", name, features, features)) return NULL;
    tn_module *m = tn_nn_make(parent, name, &layer_norm_type, sizeof(norm));
    if (!m) return NULL;
    add_affine(m, tn_module_self(m), &o, features);
    return tn_nn_made(m);
}

/* ---- embedding, dropout, functions ------------------------------------------------------------------------------- */

typedef struct embedding {
    tn_tensor *weight;
} embedding;

static tn_tensor *embedding_forward(tn_module *m, const tn_tensor *x) {
    const embedding *s = tn_module_self(m);
    return tn_embedding(x, s->weight);
}

static const tn_module_type embedding_type = {sizeof(tn_module_type), "embedding", embedding_forward, free};

tn_module *tn_nn_embedding(tn_module *parent, const char *name, int64_t count, int64_t features) {
    if (!tn_nn_check_sizes(parent, "embedding", name, count, features)) return NULL;
    tn_module *m = tn_nn_make(parent, name, &embedding_type, sizeof(embedding));
    if (!m) return NULL;
    embedding *s = tn_module_self(m);
    {
        TN_SCOPE;
        s->weight = tn_module_add_parameter(m, "weight", tn_init_normal((int64_t[]){count, features}, 2, 0, 1));
    }
    return tn_nn_made(m);
}

typedef struct dropout {
    double p;
} dropout;

static tn_tensor *dropout_forward(tn_module *m, const tn_tensor *x) {
    const dropout *s = tn_module_self(m);
    return tn_dropout(x, s->p, tn_module_is_training(m));
}

static const tn_module_type dropout_type = {sizeof(tn_module_type), "dropout", dropout_forward, free};

tn_module *tn_nn_dropout(tn_module *parent, const char *name, double p) {
    if (!parent) return NULL;
    if (!(p >= 0 && p < 1)) {
        tn_module_fail(parent,
                       tn_backend_fail(TN_ERR_ARGUMENT, "dropout \"%s\": p is %g; it must be in [0, 1)", name, p));
        return NULL;
    }
    tn_module *m = tn_nn_make(parent, name, &dropout_type, sizeof(dropout));
    if (m) ((dropout *)tn_module_self(m))->p = p;
    return m;
}

typedef struct function {
    tn_tensor *(*call)(const tn_tensor *x);
} function;

static tn_tensor *function_forward(tn_module *m, const tn_tensor *x) {
    const function *s = tn_module_self(m);
    return s->call(x);
}

static const tn_module_type function_type = {sizeof(tn_module_type), "function", function_forward, free};

tn_module *tn_nn_function(tn_module *parent, const char *name, tn_tensor *(*call)(const tn_tensor *x)) {
    if (!parent) return NULL;
    if (!call) {
        tn_module_fail(parent, tn_backend_fail(TN_ERR_ARGUMENT, "function \"%s\": it is NULL", name));
        return NULL;
    }
    tn_module *m = tn_nn_make(parent, name, &function_type, sizeof(function));
    if (m) ((function *)tn_module_self(m))->call = call;
    return m;
}

/* ---- LSTM cell --------------------------------------------------------------------------------------------------- */

typedef struct lstm_cell {
    tn_tensor *weight_ih, *weight_hh, *bias_ih, *bias_hh;
    int64_t hidden;
} lstm_cell;

static const tn_module_type lstm_cell_type = {sizeof(tn_module_type), "lstm_cell", NULL, free};

tn_module *tn_nn_lstm_cell(tn_module *parent, const char *name, int64_t input, int64_t hidden) {
    if (!tn_nn_check_sizes(parent, "lstm_cell", name, input, hidden)) return NULL;
    tn_module *m = tn_nn_make(parent, name, &lstm_cell_type, sizeof(lstm_cell));
    if (!m) return NULL;
    lstm_cell *s = tn_module_self(m);
    int64_t gates = 4 * hidden;
    double bound = 1 / sqrt((double)hidden);
    s->hidden = hidden;
    {
        TN_SCOPE;
        s->weight_ih =
            tn_module_add_parameter(m, "weight_ih", tn_init_uniform((int64_t[]){gates, input}, 2, -bound, bound));
        s->weight_hh =
            tn_module_add_parameter(m, "weight_hh", tn_init_uniform((int64_t[]){gates, hidden}, 2, -bound, bound));
        s->bias_ih = tn_module_add_parameter(m, "bias_ih", tn_init_uniform(&gates, 1, -bound, bound));
        s->bias_hh = tn_module_add_parameter(m, "bias_hh", tn_init_uniform(&gates, 1, -bound, bound));
    }
    return tn_nn_made(m);
}

/* Gate k of [batch, 4·hidden]. */
static tn_tensor *gate(const lstm_cell *s, const tn_tensor *gates, int64_t k) {
    return tn_narrow(gates, 1, k * s->hidden, s->hidden);
}

/* c' = sigmoid(f)·c + sigmoid(i)·tanh(g); h' = sigmoid(o)·tanh(c'). Source: PyTorch, LSTMCell. */
static void lstm_step(const lstm_cell *s, const tn_tensor *x, const tn_tensor *h, const tn_tensor *c, tn_tensor **new_h,
                      tn_tensor **new_c) {
    tn_tensor *gates = tn_add(tn_linear(x, s->weight_ih, s->bias_ih), tn_linear(h, s->weight_hh, s->bias_hh));
    tn_tensor *input = tn_sigmoid(gate(s, gates, 0)), *forget = tn_sigmoid(gate(s, gates, 1));
    tn_tensor *candidate = tn_tanh(gate(s, gates, 2)), *output = tn_sigmoid(gate(s, gates, 3));
    *new_c = tn_add(tn_mul(forget, c), tn_mul(input, candidate));
    *new_h = tn_mul(output, tn_tanh(*new_c));
}

void tn_lstm_cell_forward(tn_module *m, const tn_tensor *x, const tn_tensor *h, const tn_tensor *c, tn_tensor **new_h,
                          tn_tensor **new_c) {
    TN_SCOPE;
    tn_tensor *made[2];
    if (m) {
        lstm_step(tn_module_self(m), x, h, c, &made[0], &made[1]);
    } else {
        for (int i = 0; i < 2; i++)
            made[i] = tn_failed(TN_ERR_ARGUMENT, "lstm_cell: the module is NULL; it could not be made");
    }
    if (new_h) *new_h = tn_keep(made[0]);
    if (new_c) *new_c = tn_keep(made[1]);
}
