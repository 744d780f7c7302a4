/* nn.h — networks: modules that own named variables, layers, initial values, and policies for reinforcement learning.
 *
 * A module owns variables (parameters, which are trained; buffers, which are not) and child modules. Their names joined
 * by dots ("blocks.0.linear1.weight") are those of PyTorch, so weights can be exchanged. Every variable is a state: its
 * storage keeps its address. Initial values are drawn from the thread's random generator (tn_manual_seed), with
 * PyTorch's defaults.
 *
 * Errors: creating a layer returns NULL on failure and leaves the tree unchanged; creating a layer inside NULL returns
 * NULL; the root remembers the first cause. So one check at the end is enough:
 *
 *     tn_module *net = tn_module_root();
 *     tn_module *hidden = tn_nn_linear(net, "hidden", 64, 128, true);
 *     tn_module *out = tn_nn_linear(net, "out", 128, 10, true);
 *     if (tn_module_status(net) != TN_OK) puts(tn_error());
 *     ...
 *     tn_tensor *logits = tn_forward(out, tn_relu(tn_forward(hidden, x)));
 *
 * Threads: one thread at a time may use a module or a policy. In evaluation mode several threads may use it, if none
 * writes its variables; each thread must evaluate what it recorded. */
#ifndef TRUNNION_NN_H
#define TRUNNION_NN_H

#include "trunnion/distributed.h"
#include "trunnion/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- modules ----------------------------------------------------------------------------------------------------- */

typedef struct tn_module tn_module;

/* Functions of a type of module. Your own modules are made like those of the library: a constant of this type, and
 * tn_module_new. */
typedef struct tn_module_type {
    size_t struct_size;
    const char *name;                                        /* "linear", for messages */
    tn_tensor *(*forward)(tn_module *m, const tn_tensor *x); /* NULL: the module has no forward of one tensor */
    void (*destroy)(void *self);                             /* frees what tn_module_new was given; may be NULL */
} tn_module_type;

/* Creates the root of a tree, a container of modules and variables. Free it with tn_module_free. NULL only if host
 * memory ran out. */
TN_API tn_module *tn_module_root(void);

/* Creates a module inside `parent`.
 *   name: unique in parent, without dots. type: NULL for a plain container; must outlive the module.
 *   self: your data, returned by tn_module_self; belongs to the module, also if this fails.
 * Returns NULL on failure (see tn_module_status). Source: torch.nn.Module. */
TN_API tn_module *tn_module_new(tn_module *parent, const char *name, const tn_module_type *type, void *self);
TN_API void *tn_module_self(const tn_module *m);

/* Frees a root with everything inside. Tensors that you retained stay valid. NULL is allowed; for modules other than
 * roots, which are freed with their root, the call does nothing. */
TN_API void tn_module_free(tn_module *root);

/* Returns TN_OK, or the status of the first failure while m's tree was built; tn_error() has its text. */
TN_API tn_status tn_module_status(const tn_module *m);

/* Records a failure in m's root, with the text of tn_error(); returns `status`. For authors of modules. */
TN_API tn_status tn_module_fail(tn_module *m, tn_status status);

/* Adds a variable with an initial value, which is evaluated: a parameter (trained, collects gradients) or a buffer. The
 * caller keeps its handle, the module adds its own reference. If `initial` is already a variable of a module, both
 * names
 * are tied: they share one storage, which is trained and counted once.
 * Returns the variable, borrowed from the module, or NULL on failure (recorded in the root).
 * Source: torch.nn.Module.register_parameter, register_buffer. */
TN_API tn_tensor *tn_module_add_parameter(tn_module *m, const char *name, tn_tensor *initial);
TN_API tn_tensor *tn_module_add_buffer(tn_module *m, const char *name, tn_tensor *initial);

/* Returns the variable or module below m with this dotted name ("blocks.0.linear1.weight"), borrowed; NULL if there is
 * none. */
TN_API tn_tensor *tn_module_variable(const tn_module *m, const char *path);
TN_API tn_module *tn_module_child(const tn_module *m, const char *path);

/* One variable of a list. name is valid as long as the list, tensor as long as its module. */
typedef struct tn_variable {
    const char *name;
    tn_tensor *tensor;
    bool parameter;
} tn_variable;

/* Lists all variables below m in the order of creation, with names relative to m. A tied variable is listed under each
 * of its names. *items: freed with tn_variables_free; NULL if there are none. Source: torch.nn.Module.state_dict. */
TN_API tn_status tn_module_variables(const tn_module *m, tn_variable **items, int *count);
/* Lists the parameters below m, each storage once under its first name. Code that changes or counts parameters
 * (optimizers, gradient norms, moving averages of weights) must use this list; with tn_module_variables it would
 * process
 * tied weights twice. *items: freed with tn_variables_free; NULL if there are none.
 * Source: torch.nn.Module.named_parameters. */
TN_API tn_status tn_module_parameters(const tn_module *m, tn_variable **items, int *count);
TN_API void tn_variables_free(tn_variable *items);

/* Returns the number of elements of all parameters below m; tied ones count once, divided ones with the shares of all
 * ranks. -1 if host memory ran out. */
TN_API int64_t tn_module_parameter_count(const tn_module *m);

/* Sets training mode (the initial mode) or evaluation mode for m and all modules below it. Dropout and batch
 * normalization differ between them. Source: torch.nn.Module.train. */
TN_API void tn_module_train(tn_module *m, bool training);
TN_API bool tn_module_is_training(const tn_module *m);
/* Activation checkpointing: each tn_forward of m, including its children, is a region of TN_RECOMPUTE (autograd.h): the
 * backward pass computes its intermediate values again instead of keeping them. Default: false. For a deep network, set
 * it for each block. m may be NULL. Source: torch.utils.checkpoint. */
TN_API void tn_module_set_recompute(tn_module *m, bool recompute);

/* Computes the module's result for x. Returns a new handle; an error tensor if m is NULL or has no forward function of
 * one tensor. */
TN_API tn_tensor *tn_forward(tn_module *m, const tn_tensor *x);

/* ---- initial values ---------------------------------------------------------------------------------------------- */

/* Each returns a new f32 tensor; random values come from the thread's random generator. Source: torch.nn.init.
 * Errors: TN_ERR_ARGUMENT for NaN, low > high, a negative std, a negative gain of xavier_uniform. */
TN_API tn_tensor *tn_init_uniform(const int64_t *shape, int rank, double low, double high);
TN_API tn_tensor *tn_init_normal(const int64_t *shape, int rank, double mean, double std);
TN_API tn_tensor *tn_init_constant(const int64_t *shape, int rank, double value);
/* Uniform in ±gain·sqrt(3 / fan_in), with the gain of a leaky ReLU of slope a. shape: [out, in, …]. a = sqrt(5) is
 * PyTorch's default for linear and convolution layers: ±1/sqrt(fan_in). */
TN_API tn_tensor *tn_init_kaiming_uniform(const int64_t *shape, int rank, double a);
/* Uniform in ±gain·sqrt(6 / (fan_in + fan_out)). */
TN_API tn_tensor *tn_init_xavier_uniform(const int64_t *shape, int rank, double gain);
/* gain times a matrix with orthonormal rows (if rows ≤ columns) or columns. Source: Saxe et al. 2013. */
TN_API tn_tensor *tn_init_orthogonal(int64_t rows, int64_t columns, double gain);

/* ---- layers ------------------------------------------------------------------------------------------------------ */

/* Each function creates a layer `name` inside `parent`; see "Errors" above.
 *
 * y = x·weightᵀ + bias. weight [out_features, in_features], bias [out_features]; x [..., in_features] →
 * [..., out_features]. Source: torch.nn.Linear. */
TN_API tn_module *tn_nn_linear(tn_module *parent, const char *name, int64_t in_features, int64_t out_features,
                               bool bias);

/* Linear layers whose weights are divided among the ranks of a group (tensor parallelism). Each evaluation must be
 * followed by tn_group_settle (distributed.h). All ranks must have the same random seed and the same batches.
 *   column_parallel: x [..., in_features] is the same on all ranks; each rank returns its own features,
 *     [..., out_features / ranks]. Weight and bias are divided along out_features.
 *   row_parallel: x [..., in_features / ranks] has this rank's features; all ranks return the same sum,
 *     [..., out_features]. The weight is divided along in_features, the bias is whole on each rank.
 * A column-parallel layer, an activation and a row-parallel layer need one exchange in each direction. Initial values
 * do not depend on the number of ranks. The group must outlive the module. Variables must be on the cpu.
 *
 * The bits depend on the number of ranks, because a sum is added in as many parts; for one number of ranks they are the
 * same in each run, on each rank and for each transport. All optimizers train these layers except lamb, adafactor and
 * muon, which need whole matrices (TN_ERR_UNSUPPORTED). An optimizer's clipping and loss scale take the gradients of
 * all ranks; tn_clip_grad_norm is refused, and tn_grad_is_finite takes only this rank's.
 * Errors: TN_ERR_ARGUMENT if group is NULL; TN_ERR_SHAPE if the features are not a multiple of the number of ranks.
 * Source: Shoeybi et al. 2019, "Megatron-LM", section 3. */
TN_API tn_module *tn_nn_column_parallel_linear(tn_module *parent, const char *name, int64_t in_features,
                                               int64_t out_features, bool bias, tn_group *group);
TN_API tn_module *tn_nn_row_parallel_linear(tn_module *parent, const char *name, int64_t in_features,
                                            int64_t out_features, bool bias, tn_group *group);

struct tn_optimizer; /* optim.h */

/* For your own divided layers: replaces m's variable `name` by this rank's share of it. Dimension `dim` consists of
 * `sections` equal parts, each of which is divided (1; 3 for query, key and value in one matrix). Call it on all ranks,
 * with the same value, and before an optimizer is made of m. The group must outlive m. In a group of one process it
 * does nothing.
 * Errors: TN_ERR_ARGUMENT if there is no such variable; TN_ERR_SHAPE if the extent is not a multiple of sections ·
 * ranks; TN_ERR_STATE if the variable is divided already. Divided variables exclude tn_optimizer_shard and the group
 * of tn_data_parallel_new on the same ranks (TN_ERR_UNSUPPORTED). */
TN_API tn_status tn_module_divide(tn_module *m, const char *name, tn_group *group, int dim, int64_t sections);
/* Divides the parameters of m and its children among the ranks of a group (ZeRO, stage 3): each rank keeps an equal
 * part of the elements of each parameter, and what an optimizer keeps for them. Rank 0's values are taken.
 * tn_data_parallel_minimize with the same group gathers each parameter before a layer uses it (tn_group_whole), on the
 * cpu, with one part of a batch on each rank; the bits are those of whole parameters. Elsewhere m must not compute
 * before tn_module_join. A batch must have at least one row for each rank. Call it on all ranks, on all of the module,
 * before an optimizer is made of it; Muon, LAMB and Adafactor refuse divided parameters. The group must outlive m. In a
 * group of one process it does nothing.
 * Errors: TN_ERR_STATE if a parameter is divided already; those of tn_group_broadcast_tensor. After any other failure
 * than TN_ERR_STATE, on any rank, m must not be used. */
TN_API tn_status tn_module_shard(tn_module *m, tn_group *group);
/* For checkpoints that fit any number of ranks. tn_module_join makes the divided variables of m and its children, and
 * what the optimizer (NULL: none) keeps for them, whole on every rank; tn_module_split makes them shares again. Between
 * the two m must not compute. All ranks must call them. To save: join, let rank 0 save, split. To load: join, load on
 * every rank, split. Errors: TN_ERR_ARGUMENT if m is NULL; TN_ERR_STATE for a second join or split in
 * succession; TN_ERR_MEMORY; those of tn_group_all_gather_tensor. */
TN_API tn_status tn_module_join(tn_module *m, struct tn_optimizer *o);
TN_API tn_status tn_module_split(tn_module *m, struct tn_optimizer *o);
/* For functions that need whole values, as those that save and load do: TN_ERR_STATE if this rank has only its share of
 * a variable of m or its children, or of what the optimizer keeps for one. m and o may be NULL. what: begins the
 * message. */
TN_API tn_status tn_module_check_whole(const tn_module *m, const struct tn_optimizer *o, const char *what);

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
/* weight [out_channels, in_channels / groups, kernel, kernel], bias [out_channels]; x [batch, in_channels, height,
 * width] → [batch, out_channels, out_h, out_w]. Source: torch.nn.Conv2d. */
TN_API tn_module *tn_nn_conv2d(tn_module *parent, const char *name, int64_t in_channels, int64_t out_channels,
                               int64_t kernel, const tn_nn_conv2d_options *options);
/* The same in one dimension, x [batch, in_channels, time], and three, x [batch, in_channels, depth, height, width].
 * Source: torch.nn.Conv1d, Conv3d. */
TN_API tn_module *tn_nn_conv1d(tn_module *parent, const char *name, int64_t in_channels, int64_t out_channels,
                               int64_t kernel, const tn_nn_conv2d_options *options);
TN_API tn_module *tn_nn_conv3d(tn_module *parent, const char *name, int64_t in_channels, int64_t out_channels,
                               int64_t kernel, const tn_nn_conv2d_options *options);

/* Normalization layers. */
typedef struct tn_nn_norm_options {
    size_t struct_size;
    double eps; /* at least 0; default 1e-5 */
    double
        momentum; /* batch normalization: weight of the newest batch in the running statistics, 0 to 1; default 0.1 */
    bool affine;  /* with weight and bias; default true */
} tn_nn_norm_options;
#define TN_NN_NORM_DEFAULTS \
    { TN_OPTIONS_SIZE(tn_nn_norm_options, affine), 1e-5, 0.1, true }
/* Batch normalization of each channel over batch, height and width; weight and bias [channels]; buffers running_mean,
 * running_var, num_batches_tracked. Training mode uses the statistics of the batch and updates the running ones;
 * evaluation mode uses the running ones. Source: torch.nn.BatchNorm2d. */
TN_API tn_module *tn_nn_batch_norm2d(tn_module *parent, const char *name, int64_t channels,
                                     const tn_nn_norm_options *options);
/* The same for x [batch, channels] or [batch, channels, time], and [batch, channels, depth, height, width].
 * Source: torch.nn.BatchNorm1d, BatchNorm3d. */
TN_API tn_module *tn_nn_batch_norm1d(tn_module *parent, const char *name, int64_t channels,
                                     const tn_nn_norm_options *options);
TN_API tn_module *tn_nn_batch_norm3d(tn_module *parent, const char *name, int64_t channels,
                                     const tn_nn_norm_options *options);
/* Layer normalization over the last dimension, of extent `features`; weight and bias [features].
 * Source: torch.nn.LayerNorm. */
TN_API tn_module *tn_nn_layer_norm(tn_module *parent, const char *name, int64_t features,
                                   const tn_nn_norm_options *options);
/* Normalization of groups of channels; weight and bias [channels]; x [batch, channels, …]. With as many groups as
 * channels it is instance normalization. Source: torch.nn.GroupNorm. */
TN_API tn_module *tn_nn_group_norm(tn_module *parent, const char *name, int64_t groups, int64_t channels,
                                   const tn_nn_norm_options *options);
/* x / sqrt(mean(x²) + eps) · weight over the last dimension, of extent `features`. Source: torch.nn.RMSNorm. */
TN_API tn_module *tn_nn_rms_norm(tn_module *parent, const char *name, int64_t features, double eps);

/* Lookup of rows of weight [count, features] by integer indices; x [...] → [..., features].
 * Source: torch.nn.Embedding. */
TN_API tn_module *tn_nn_embedding(tn_module *parent, const char *name, int64_t count, int64_t features);

/* In training mode sets each element to 0 with probability p in [0, 1), and scales the others by 1 / (1 - p).
 * Source: torch.nn.Dropout. */
TN_API tn_module *tn_nn_dropout(tn_module *parent, const char *name, double p);

/* Wraps a function of one tensor as a module: tn_nn_function(parent, "relu", tn_relu). */
TN_API tn_module *tn_nn_function(tn_module *parent, const char *name, tn_tensor *(*function)(const tn_tensor *x));

/* Calls its child modules one after the other, in the order in which they were created. Source: torch.nn.Sequential. */
TN_API tn_module *tn_nn_sequential(tn_module *parent, const char *name);

/* One step of a long short-term memory, with the gates in the order input, forget, cell, output.
 * weight_ih [4·hidden, input], weight_hh [4·hidden, hidden], bias_ih and bias_hh [4·hidden].
 * Source: torch.nn.LSTMCell. */
TN_API tn_module *tn_nn_lstm_cell(tn_module *parent, const char *name, int64_t input, int64_t hidden);
/* Computes one step: x [batch, input], h and c [batch, hidden] → *new_h and *new_c [batch, hidden], new handles, error
 * tensors on failure. A pointer may be NULL if the result is not needed. */
TN_API void tn_lstm_cell_forward(tn_module *m, const tn_tensor *x, const tn_tensor *h, const tn_tensor *c,
                                 tn_tensor **new_h, tn_tensor **new_c);

/* Recurrent layers over sequences. */
typedef struct tn_nn_recurrent_options {
    size_t struct_size;
    int64_t layers;     /* 1 to 32; default 1 */
    double dropout;     /* of the outputs between layers, in training mode; default 0 */
    bool bidirectional; /* outputs of both directions side by side; default false */
    bool batch_first;   /* x and the output are [batch, time, …] instead of [time, batch, …]; default false */
    bool bias;          /* default true */
    bool relu;          /* rnn only: relu instead of tanh; default false */
} tn_nn_recurrent_options;
#define TN_NN_RECURRENT_DEFAULTS \
    { TN_OPTIONS_SIZE(tn_nn_recurrent_options, relu), 1, 0, false, false, true, false }
/* Weights have PyTorch's names: weight_ih_l0 [gates·hidden, input], weight_hh_l0 [gates·hidden, hidden], bias_ih_l0,
 * bias_hh_l0 [gates·hidden]; "_reverse" of the backward direction. gates: 1, 3 (reset, update, new), 4 (input, forget,
 * cell, output). Source: torch.nn.RNN, GRU, LSTM. */
TN_API tn_module *tn_nn_rnn(tn_module *parent, const char *name, int64_t input, int64_t hidden,
                            const tn_nn_recurrent_options *options);
TN_API tn_module *tn_nn_gru(tn_module *parent, const char *name, int64_t input, int64_t hidden,
                            const tn_nn_recurrent_options *options);
TN_API tn_module *tn_nn_lstm(tn_module *parent, const char *name, int64_t input, int64_t hidden,
                             const tn_nn_recurrent_options *options);
/* x [time, batch, input] (or batch first) → [time, batch, directions·hidden], a new handle. tn_forward calls it with
 * NULL for the rest.
 *   lengths: NULL, or steps of each sequence [batch], integers from 0 to time, in any order; one plan serves all
 *     lengths. Behind its end a sequence yields 0, and what x has there is not used, not even a NaN. The last state is
 *     that at its end, where the backward direction begins; without steps it is the first state.
 *   h0, c0: first states [layers·directions, batch, hidden], c0 of an lstm; NULL: 0.
 *   h_n, c_n: receive the last states in this shape; may be NULL.
 * Errors: TN_ERR_SHAPE; TN_ERR_ARGUMENT for a length outside its range, found as indices are (ops.h); TN_ERR_DTYPE.
 * Source: torch.nn.LSTM with pack_padded_sequence, enforce_sorted=False. */
TN_API tn_tensor *tn_recurrent_forward(tn_module *m, const tn_tensor *x, const tn_tensor *lengths, const tn_tensor *h0,
                                       const tn_tensor *c0, tn_tensor **h_n, tn_tensor **c_n);

/* Multi-head attention, batch first. in_proj_weight [3·features, features] and in_proj_bias contain query, key and
 * value in this order; out_proj is linear. dropout applies to the attention weights. tn_forward computes self-attention
 * without a mask. Source: torch.nn.MultiheadAttention. */
TN_API tn_module *tn_nn_multihead_attention(tn_module *parent, const char *name, int64_t features, int64_t heads,
                                            double dropout);
/* query [batch, m, features], key and value [batch, n, features] → [batch, m, features], a new handle.
 *   mask: added before the softmax; broadcastable to [batch, heads, m, n], or NULL. */
TN_API tn_tensor *tn_multihead_attention_forward(tn_module *m, const tn_tensor *query, const tn_tensor *key,
                                                 const tn_tensor *value, const tn_tensor *mask);

/* Transformer encoder block. */
typedef struct tn_nn_encoder_options {
    size_t struct_size;
    int64_t feedforward;                          /* hidden width of the feed-forward layer; default 0: 4·features */
    double dropout;                               /* default 0 */
    tn_tensor *(*activation)(const tn_tensor *x); /* default NULL: exact GELU */
    bool norm_first;                              /* normalize before each part instead of after it; default false */
    double eps;                                   /* of the norms; default 1e-5 */
    /* Not NULL: heads and hidden features are divided among its ranks (tn_nn_column_parallel_linear). Their numbers
     * must be multiples of the number of ranks (TN_ERR_SHAPE), and dropout must be 0 (TN_ERR_UNSUPPORTED). Default
     * NULL. */
    tn_group *group;
} tn_nn_encoder_options;
#define TN_NN_ENCODER_DEFAULTS \
    { TN_OPTIONS_SIZE(tn_nn_encoder_options, group), 0, 0, NULL, false, 1e-5, NULL }
/* x [batch, n, features]: norm1(x + self_attn(x)), then norm2(x + linear2(activation(linear1(x)))).
 * Source: torch.nn.TransformerEncoderLayer, also for the names; Vaswani et al. 2017, section 3.1. */
TN_API tn_module *tn_nn_transformer_encoder_layer(tn_module *parent, const char *name, int64_t features, int64_t heads,
                                                  const tn_nn_encoder_options *options);
/* mask: as tn_multihead_attention_forward. */
TN_API tn_tensor *tn_transformer_encoder_layer_forward(tn_module *m, const tn_tensor *x, const tn_tensor *mask);

/* ---- policies ---------------------------------------------------------------------------------------------------- */

/* A policy of a reinforcement-learning agent: from observations and recurrent state to action logits, a value estimate
 * and the next state. */
typedef struct tn_policy tn_policy;

enum { TN_MAX_POLICY_STATE = 8 };

/* Functions of a type of policy. Two types come with the library (below); you can define your own. */
typedef struct tn_policy_type {
    size_t struct_size;
    const char *name;
    int state_count; /* tensors of recurrent state, 0 … TN_MAX_POLICY_STATE */
    /* Like tn_policy_forward; must set every output, to an error tensor on failure. */
    void (*forward)(tn_policy *p, const tn_tensor *observations, tn_tensor *const *state, tn_tensor **logits,
                    tn_tensor **value, tn_tensor **new_state);
    /* Like tn_policy_initial_state; NULL if state_count is 0. */
    void (*initial_state)(tn_policy *p, int64_t batch, tn_tensor **state);
    void (*destroy)(void *self); /* may be NULL */
} tn_policy_type;

/* Creates a policy from your own functions; *out is freed with tn_policy_free.
 *   type: must outlive the policy. module: its variables. module and self belong to the policy, also if this fails. */
TN_API tn_status tn_policy_new(const tn_policy_type *type, tn_module *module, void *self, tn_policy **out);
TN_API void tn_policy_free(tn_policy *p); /* NULL is allowed */
TN_API void *tn_policy_self(const tn_policy *p);
TN_API tn_module *tn_policy_module(const tn_policy *p); /* borrowed; for optimizers and checkpoints */
TN_API const char *tn_policy_name(const tn_policy *p);
TN_API int tn_policy_state_count(const tn_policy *p);

/* Computes observations [batch, …] → *logits [batch, actions], *value [batch, 1] and, for a recurrent policy,
 * new_state[0 … state_count).
 *   state: state_count tensors, or NULL for the initial state; not changed.
 * Outputs are new handles, error tensors on failure (if p is NULL: only logits and value). A pointer may be NULL if the
 * output is not needed. */
TN_API void tn_policy_forward(tn_policy *p, const tn_tensor *observations, tn_tensor *const *state, tn_tensor **logits,
                              tn_tensor **value, tn_tensor **new_state);
/* Creates the state before the first observation, for `batch` agents: state_count new handles. */
TN_API void tn_policy_initial_state(tn_policy *p, int64_t batch, tn_tensor **state);

/* The two policies that come with the library. */
typedef struct tn_policy_options {
    size_t struct_size;
    int64_t observations;  /* length of an observation; must be set */
    int64_t actions;       /* number of logits; must be set */
    const int64_t *hidden; /* widths of the hidden layers, and their number; default NULL: two of 64 */
    int hidden_count;
    int64_t recurrent;                            /* lstm: width of the cell after the hidden layers; default 64 */
    tn_tensor *(*activation)(const tn_tensor *x); /* default NULL: ReLU */
    bool separate_value;                          /* the value has its own hidden layers, without cell; default false */
    double hidden_gain, logits_gain, value_gain;  /* of the orthogonal weights; default sqrt(2), 0.01, 1 */
} tn_policy_options;
#define TN_POLICY_DEFAULTS \
    { TN_OPTIONS_SIZE(tn_policy_options, value_gain), 0, 0, NULL, 0, 64, NULL, false, 1.4142135623730951, 0.01, 1 }

/* Creates a policy of hidden layers with activations and the heads `logits` and `value`, without state. Initial weights
 * are orthogonal, biases 0. Source: Andrychowicz et al. 2020, section 3.2. */
TN_API tn_status tn_policy_mlp(const tn_policy_options *options, tn_policy **out);
/* The same with an LSTM cell between the hidden layers and the heads; state: h and c [batch, recurrent]. */
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
#define tn_nn_column_parallel_linear(...) (tn_at(__FILE__, __LINE__), tn_nn_column_parallel_linear(__VA_ARGS__))
#define tn_nn_row_parallel_linear(...) (tn_at(__FILE__, __LINE__), tn_nn_row_parallel_linear(__VA_ARGS__))
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
