/* nn.h — networks: a tree of modules that owns named variables, the usual layers, initialisations, and the generic
 * policy.
 *
 * A module owns variables (parameters, which are trained; buffers, which are not) and child modules; their names joined
 * by dots ("blocks.0.linear1.weight") are PyTorch's, so weights travel. Every variable is state: its storage keeps its
 * address while it is trained. Initial values are drawn from the thread's random numbers (tn_manual_seed), PyTorch's
 * defaults.
 *
 * Making modules cannot fail half-way: a layer that could not be made is NULL and not in the tree, whatever is made
 * inside NULL is NULL, and the root remembers the first cause, so one question at the end is enough:
 *
 *     tn_module *net = tn_module_root();
 *     tn_module *hidden = tn_nn_linear(net, "hidden", 64, 128, true);
 *     tn_module *out = tn_nn_linear(net, "out", 128, 10, true);
 *     if (tn_module_status(net) != TN_OK) puts(tn_error());
 *     ...
 *     tn_tensor *logits = tn_forward(out, tn_relu(tn_forward(hidden, x)));
 *
 * Threads: one thread at a time may use a module or a policy. In evaluation mode several threads may, as long as none
 * writes its variables; each thread must itself evaluate what it recorded. */
#ifndef TRUNNION_NN_H
#define TRUNNION_NN_H

#include "trunnion/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- modules ----------------------------------------------------------------------------------------------------- */

typedef struct tn_module tn_module;

/* What a kind of module does. Yours are made like the library's own: a constant of this type and tn_module_new. */
typedef struct tn_module_type {
    size_t struct_size;
    const char *name;                                        /* "linear", for messages */
    tn_tensor *(*forward)(tn_module *m, const tn_tensor *x); /* NULL: the module has no forward of one tensor */
    void (*destroy)(void *self);                             /* frees what tn_module_new was given; may be NULL */
} tn_module_type;

/* The top of a tree: holds modules and variables, computes nothing. NULL only when memory is out. */
TN_API tn_module *tn_module_root(void);

/* A module `name` (no dot, not taken) inside `parent`. type (NULL: a plain container) must outlive it; self is yours,
 * given back by tn_module_self, and belongs to the module even when this fails. Returns NULL
 * on failure; the root knows why. */
TN_API tn_module *tn_module_new(tn_module *parent, const char *name, const tn_module_type *type, void *self);
TN_API void *tn_module_self(const tn_module *m);

/* Frees a root with everything inside; NULL is fine. Handles that you retained stay valid. Others than roots are freed
 * with their root: the call does nothing. */
TN_API void tn_module_free(tn_module *root);

/* TN_OK, or the first failure while m's tree was made or extended; tn_error has its words. */
TN_API tn_status tn_module_status(const tn_module *m);

/* Notes a failure on m's root, for authors of modules; returns `status`. The words are those of tn_error. */
TN_API tn_status tn_module_fail(tn_module *m, tn_status status);

/* Adds a variable with this initial value, which is evaluated; the caller keeps its handle, the module retains its own.
 * If `initial` is a variable of a module already, the two names are tied: they share one storage, which is trained and
 * counted once.
 * Returns the variable, borrowed, or NULL on failure (noted on the root). parameter: trained, collects gradients. */
TN_API tn_tensor *tn_module_add_parameter(tn_module *m, const char *name, tn_tensor *initial);
TN_API tn_tensor *tn_module_add_buffer(tn_module *m, const char *name, tn_tensor *initial);

/* A variable or module below m by its dotted name ("blocks.0.linear1.weight"), borrowed; NULL when there is none. */
TN_API tn_tensor *tn_module_variable(const tn_module *m, const char *path);
TN_API tn_module *tn_module_child(const tn_module *m, const char *path);

/* One variable of a list. name lives as long as the list, tensor as long as its module. */
typedef struct tn_variable {
    const char *name;
    tn_tensor *tensor;
    bool parameter;
} tn_variable;

/* All variables below m in the order of making, names relative to m. *items: one block, freed with tn_variables_free;
 * NULL if there are none. A tensor that was added under two names (tied weights) is listed under both: PyTorch's
 * state_dict. */
TN_API tn_status tn_module_variables(const tn_module *m, tn_variable **items, int *count);
/* The parameters below m, each storage once, under its first name: PyTorch's parameters(). Code that changes or counts
 * parameters (optimisers, gradient norms, moving averages of weights) must use this list; with tn_module_variables it
 * would process tied weights twice. *items: freed with tn_variables_free; NULL if there are none. */
TN_API tn_status tn_module_parameters(const tn_module *m, tn_variable **items, int *count);
TN_API void tn_variables_free(tn_variable *items);

/* Number of elements of all parameters below m; tied parameters count once. -1 if out of memory. */
TN_API int64_t tn_module_parameter_count(const tn_module *m);

/* Training mode (the mode at the start) or evaluation mode, for m and all below: dropout
 * and batch normalisation differ. */
TN_API void tn_module_train(tn_module *m, bool training);
TN_API bool tn_module_is_training(const tn_module *m);

/* The module's result for x: a new handle; an error tensor when m is NULL or takes no single tensor. */
TN_API tn_tensor *tn_forward(tn_module *m, const tn_tensor *x);

/* ---- initial values ---------------------------------------------------------------------------------------------- */

/* Each returns a new handle; drawn from the thread's random numbers. Source: PyTorch, torch.nn.init.
 * Errors: TN_ERR_ARGUMENT for NaN, low > high, a negative std, a negative gain of xavier_uniform. */
TN_API tn_tensor *tn_init_uniform(const int64_t *shape, int rank, double low, double high);
TN_API tn_tensor *tn_init_normal(const int64_t *shape, int rank, double mean, double std);
TN_API tn_tensor *tn_init_constant(const int64_t *shape, int rank, double value);
/* Uniform in ±gain·sqrt(3 / fan_in), gain for a leaky ReLU of slope a. shape [out, in, …]; a = sqrt(5) is PyTorch's
 * default for linear and convolution layers: ±1/sqrt(fan_in). */
TN_API tn_tensor *tn_init_kaiming_uniform(const int64_t *shape, int rank, double a);
/* Uniform in ±gain·sqrt(6 / (fan_in + fan_out)). */
TN_API tn_tensor *tn_init_xavier_uniform(const int64_t *shape, int rank, double gain);
/* gain times a matrix with orthonormal rows (rows ≤ columns) or columns. Source: Saxe et al. 2013. */
TN_API tn_tensor *tn_init_orthogonal(int64_t rows, int64_t columns, double gain);

/* ---- layers ------------------------------------------------------------------------------------------------------ */

/* y = x·weightᵀ + bias. weight [out_features, in_features], bias [out_features]; x [..., in_features]. */
TN_API tn_module *tn_nn_linear(tn_module *parent, const char *name, int64_t in_features, int64_t out_features,
                               bool bias);

/* Two-dimensional convolution. */
typedef struct tn_nn_conv2d_options {
    size_t struct_size;
    int64_t stride;   /* default 1 */
    int64_t padding;  /* zeros on all four sides; default 0 */
    int64_t dilation; /* default 1 */
    int64_t groups;   /* default 1 */
    bool bias;        /* default true */
} tn_nn_conv2d_options;
#define TN_NN_CONV2D_DEFAULTS \
    { TN_OPTIONS_SIZE(tn_nn_conv2d_options, bias), 1, 0, 1, 1, true }
/* weight [out_channels, in_channels / groups, kernel, kernel], bias [out_channels]; x
 * [batch, in_channels, height, width]. */
TN_API tn_module *tn_nn_conv2d(tn_module *parent, const char *name, int64_t in_channels, int64_t out_channels,
                               int64_t kernel, const tn_nn_conv2d_options *options);

/* Normalisation layers. */
typedef struct tn_nn_norm_options {
    size_t struct_size;
    double eps;      /* default 1e-5 */
    double momentum; /* weight of the newest batch in the running statistics (batch normalisation); default 0.1 */
    bool affine;     /* with weight and bias; default true */
} tn_nn_norm_options;
#define TN_NN_NORM_DEFAULTS \
    { TN_OPTIONS_SIZE(tn_nn_norm_options, affine), 1e-5, 0.1, true }
/* Over batch, height and width, a channel each; weight, bias; buffers running_mean, running_var, num_batches_tracked.
 * In training mode with the batch's statistics, which also move the running ones; else with the running ones. */
TN_API tn_module *tn_nn_batch_norm2d(tn_module *parent, const char *name, int64_t channels,
                                     const tn_nn_norm_options *options);
/* Over the last dimension, of extent `features`; weight, bias. */
TN_API tn_module *tn_nn_layer_norm(tn_module *parent, const char *name, int64_t features,
                                   const tn_nn_norm_options *options);

/* Rows of weight [count, features] chosen by integers. */
TN_API tn_module *tn_nn_embedding(tn_module *parent, const char *name, int64_t count, int64_t features);

/* In training mode zeroes each element with probability p in [0, 1) and scales the others by 1 / (1 - p). */
TN_API tn_module *tn_nn_dropout(tn_module *parent, const char *name, double p);

/* A function of one tensor as a module: tn_nn_function(parent, "relu", tn_relu). */
TN_API tn_module *tn_nn_function(tn_module *parent, const char *name, tn_tensor *(*function)(const tn_tensor *x));

/* Its children, called one after the other in the order in which they were made. */
TN_API tn_module *tn_nn_sequential(tn_module *parent, const char *name);

/* One step of a long short-term memory (PyTorch's LSTMCell: gates in the order input, forget, cell, output).
 * weight_ih [4·hidden, input], weight_hh [4·hidden, hidden], bias_ih, bias_hh [4·hidden]. */
TN_API tn_module *tn_nn_lstm_cell(tn_module *parent, const char *name, int64_t input, int64_t hidden);
/* x [batch, input], h and c [batch, hidden] → *new_h and *new_c (NULL: not wanted), new
 * handles, error tensors on failure. */
TN_API void tn_lstm_cell_forward(tn_module *m, const tn_tensor *x, const tn_tensor *h, const tn_tensor *c,
                                 tn_tensor **new_h, tn_tensor **new_c);

/* Multi-head attention (PyTorch's MultiheadAttention, batch first). in_proj_weight [3·features, features] and
 * in_proj_bias hold query, key and value in this order; out_proj is linear. dropout acts on the attention weights.
 * tn_forward is self-attention without a mask. */
TN_API tn_module *tn_nn_multihead_attention(tn_module *parent, const char *name, int64_t features, int64_t heads,
                                            double dropout);
/* query [batch, m, features], key and value [batch, n, features]; mask NULL or broadcastable to [batch, heads, m, n],
 * added before the softmax → [batch, m, features]. */
TN_API tn_tensor *tn_multihead_attention_forward(tn_module *m, const tn_tensor *query, const tn_tensor *key,
                                                 const tn_tensor *value, const tn_tensor *mask);

/* Transformer encoder block. */
typedef struct tn_nn_encoder_options {
    size_t struct_size;
    int64_t feedforward;                          /* inner width of the feed-forward part; default 0: 4·features */
    double dropout;                               /* default 0 */
    tn_tensor *(*activation)(const tn_tensor *x); /* default NULL: exact GELU */
    bool norm_first;                              /* normalise before each part, not after it; default false */
    double eps;                                   /* of the norms; default 1e-5 */
} tn_nn_encoder_options;
#define TN_NN_ENCODER_DEFAULTS \
    { TN_OPTIONS_SIZE(tn_nn_encoder_options, eps), 0, 0, NULL, false, 1e-5 }
/* x [batch, n, features]: norm1(x + self_attn(x)), then norm2(x + linear2(activation(linear1(x)))). Names are those of
 * PyTorch's TransformerEncoderLayer. Source: Vaswani et al. 2017, section 3.1. */
TN_API tn_module *tn_nn_transformer_encoder_layer(tn_module *parent, const char *name, int64_t features, int64_t heads,
                                                  const tn_nn_encoder_options *options);
/* mask: as tn_multihead_attention_forward. */
TN_API tn_tensor *tn_transformer_encoder_layer_forward(tn_module *m, const tn_tensor *x, const tn_tensor *mask);

/* ---- the generic policy ------------------------------------------------------------------------------------------ */

/* What an agent needs of a network, whatever is inside: observations and state in,
 * action logits, value and state out. */
typedef struct tn_policy tn_policy;

enum { TN_MAX_POLICY_STATE = 8 };

/* The functions of a kind of policy; yours beside the two below. */
typedef struct tn_policy_type {
    size_t struct_size;
    const char *name;
    int state_count; /* tensors of recurrent state, 0 … TN_MAX_POLICY_STATE */
    /* As tn_policy_forward; every output must be set, to an error tensor on failure. */
    void (*forward)(tn_policy *p, const tn_tensor *observations, tn_tensor *const *state, tn_tensor **logits,
                    tn_tensor **value, tn_tensor **new_state);
    /* As tn_policy_initial_state; NULL when state_count is 0. */
    void (*initial_state)(tn_policy *p, int64_t batch, tn_tensor **state);
    void (*destroy)(void *self); /* may be NULL */
} tn_policy_type;

/* A policy from functions of yours. type must outlive it; module (its variables; owned) and self belong to the policy,
 * also when this fails. */
TN_API tn_status tn_policy_new(const tn_policy_type *type, tn_module *module, void *self, tn_policy **out);
TN_API void tn_policy_free(tn_policy *p); /* NULL is fine */
TN_API void *tn_policy_self(const tn_policy *p);
TN_API tn_module *tn_policy_module(const tn_policy *p); /* borrowed: for optimisers and checkpoints */
TN_API const char *tn_policy_name(const tn_policy *p);
TN_API int tn_policy_state_count(const tn_policy *p);

/* observations [batch, …] → *logits [batch, actions], *value [batch, 1] and, for a recurrent policy,
 * new_state[state_count]. state: state_count tensors, or NULL for the initial state. An output that is not wanted may
 * be NULL. Outputs are new handles, error tensors on failure (when p is NULL of logits and value
 * alone); state is not changed. */
TN_API void tn_policy_forward(tn_policy *p, const tn_tensor *observations, tn_tensor *const *state, tn_tensor **logits,
                              tn_tensor **value, tn_tensor **new_state);
/* The state before the first observation for `batch` agents: state_count new handles. */
TN_API void tn_policy_initial_state(tn_policy *p, int64_t batch, tn_tensor **state);

/* The two policies that come with the library. */
typedef struct tn_policy_options {
    size_t struct_size;
    int64_t observations;  /* length of an observation; must be set */
    int64_t actions;       /* number of logits; must be set */
    const int64_t *hidden; /* widths of the hidden layers, and their number; default NULL: two of 64 */
    int hidden_count;
    int64_t recurrent;                            /* lstm: width of the cell behind the hidden layers; default 64 */
    tn_tensor *(*activation)(const tn_tensor *x); /* default NULL: ReLU */
    bool separate_value;                          /* the value has its own hidden layers, no cell; default false */
    double hidden_gain, logits_gain, value_gain;  /* of the orthogonal weights; default sqrt(2), 0.01, 1 */
} tn_policy_options;
#define TN_POLICY_DEFAULTS \
    { TN_OPTIONS_SIZE(tn_policy_options, value_gain), 0, 0, NULL, 0, 64, NULL, false, 1.4142135623730951, 0.01, 1 }

/* Hidden layers with an activation each, then the heads `logits` and `value`. Weights orthogonal, biases 0, as usual
 * with policy gradients (Andrychowicz et al. 2020, section 3.2). No state. */
TN_API tn_status tn_policy_mlp(const tn_policy_options *options, tn_policy **out);
/* The same with an LSTM cell between hidden layers and heads; state: h and c [batch, recurrent]. */
TN_API tn_status tn_policy_lstm(const tn_policy_options *options, tn_policy **out);

/* ---- the caller's line, for error messages ----------------------------------------------------------------------- */

#ifndef TN_NO_CALLER_LINES
#define tn_forward(...) (tn_at(__FILE__, __LINE__), tn_forward(__VA_ARGS__))
#define tn_init_constant(...) (tn_at(__FILE__, __LINE__), tn_init_constant(__VA_ARGS__))
#define tn_init_kaiming_uniform(...) (tn_at(__FILE__, __LINE__), tn_init_kaiming_uniform(__VA_ARGS__))
#define tn_init_normal(...) (tn_at(__FILE__, __LINE__), tn_init_normal(__VA_ARGS__))
#define tn_init_orthogonal(...) (tn_at(__FILE__, __LINE__), tn_init_orthogonal(__VA_ARGS__))
#define tn_init_uniform(...) (tn_at(__FILE__, __LINE__), tn_init_uniform(__VA_ARGS__))
#define tn_init_xavier_uniform(...) (tn_at(__FILE__, __LINE__), tn_init_xavier_uniform(__VA_ARGS__))
#define tn_lstm_cell_forward(...) (tn_at(__FILE__, __LINE__), tn_lstm_cell_forward(__VA_ARGS__))
#define tn_module_add_buffer(...) (tn_at(__FILE__, __LINE__), tn_module_add_buffer(__VA_ARGS__))
#define tn_module_add_parameter(...) (tn_at(__FILE__, __LINE__), tn_module_add_parameter(__VA_ARGS__))
#define tn_multihead_attention_forward(...) (tn_at(__FILE__, __LINE__), tn_multihead_attention_forward(__VA_ARGS__))
#define tn_nn_batch_norm2d(...) (tn_at(__FILE__, __LINE__), tn_nn_batch_norm2d(__VA_ARGS__))
#define tn_nn_conv2d(...) (tn_at(__FILE__, __LINE__), tn_nn_conv2d(__VA_ARGS__))
#define tn_nn_embedding(...) (tn_at(__FILE__, __LINE__), tn_nn_embedding(__VA_ARGS__))
#define tn_nn_layer_norm(...) (tn_at(__FILE__, __LINE__), tn_nn_layer_norm(__VA_ARGS__))
#define tn_nn_linear(...) (tn_at(__FILE__, __LINE__), tn_nn_linear(__VA_ARGS__))
#define tn_nn_lstm_cell(...) (tn_at(__FILE__, __LINE__), tn_nn_lstm_cell(__VA_ARGS__))
#define tn_nn_multihead_attention(...) (tn_at(__FILE__, __LINE__), tn_nn_multihead_attention(__VA_ARGS__))
#define tn_nn_transformer_encoder_layer(...) (tn_at(__FILE__, __LINE__), tn_nn_transformer_encoder_layer(__VA_ARGS__))
#define tn_policy_forward(...) (tn_at(__FILE__, __LINE__), tn_policy_forward(__VA_ARGS__))
#define tn_policy_initial_state(...) (tn_at(__FILE__, __LINE__), tn_policy_initial_state(__VA_ARGS__))
#define tn_policy_lstm(...) (tn_at(__FILE__, __LINE__), tn_policy_lstm(__VA_ARGS__))
#define tn_policy_mlp(...) (tn_at(__FILE__, __LINE__), tn_policy_mlp(__VA_ARGS__))
#define tn_transformer_encoder_layer_forward(...) \
    (tn_at(__FILE__, __LINE__), tn_transformer_encoder_layer_forward(__VA_ARGS__))
#endif

#ifdef __cplusplus
}
#endif
#endif
