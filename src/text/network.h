/* network.h — the weights of a Hugging Face folder, and operations that find theirs by name.
 *
 * A family of models without a decoder is one function that records its operations, such as
 * tn_net_linear(n, x, "classifier"). The operations check shapes. Opening a model records it once without running it: a
 * weight that is missing or does not fit is an error then, and so is, where tn_net_check is called, a weight of the
 * file that no operation used. Their errors name the folder, and the tensor. */
#ifndef TN_TEXT_NETWORK_H
#define TN_TEXT_NETWORK_H

#include "text/folder.h"
#include "trunnion/trunnion.h"

typedef struct net {
    hf_folder folder;
    tn_device *device;
    int64_t count;
    tn_tensor **weights; /* [count] in f32; NULL: of another type */
    bool *used;
    int64_t parameters, bytes; /* of used weights */
    char stem[HF_NAME_SIZE];   /* what names begin with: "encoder.layer.3." */
    double eps;                /* of layer norms */
    bool plain_norms;          /* layer norms have no biases */
    tn_activation *activation;
    tn_tensor *turns[2]; /* rope's cosines and sines for the rows of the input, [n, half] */
} net;

/* Opens the folder; device: where its weights are. To be closed in either case. */
tn_status tn_net_open(net *n, const char *path, tn_device *device);
/* Loads the weights to the current device. */
tn_status tn_net_load(net *n);
void tn_net_close(net *n);

/* Names of the following calls begin with this. */
void tn_net_at(net *n, const char *format, ...) __attribute__((format(printf, 2, 3)));

bool tn_net_has(const net *n, const char *name);
/* A weight, borrowed; an error tensor if it is missing or no floating-point tensor. */
tn_tensor *tn_net_weight(net *n, const char *name);
/* The same; an error unless it has this shape, which ends with a 0. */
tn_tensor *tn_net_shaped(net *n, const char *name, const int64_t *shape);
tn_tensor *tn_net_add(net *n, const tn_tensor *x, const char *name); /* x and a weight */
/* NAME.weight and, with bias, NAME.bias. */
tn_tensor *tn_net_linear(net *n, const tn_tensor *x, const char *name, bool bias);
tn_tensor *tn_net_norm(net *n, const tn_tensor *x, const char *name); /* over the last dimension, with n->eps */
tn_tensor *tn_net_norm_by(net *n, const tn_tensor *x, const char *name, double eps);
tn_tensor *tn_net_conv1d(net *n, const tn_tensor *x, const char *name, bool bias, int64_t stride, int64_t padding);
tn_tensor *tn_net_conv2d(net *n, const tn_tensor *x, const char *name, bool bias, const tn_conv2d_options *o);

/* x [batch, n, hidden] by heads: [batch, heads, n, hidden / heads]. */
tn_tensor *tn_net_heads(const tn_tensor *x, int64_t heads);
/* Attention: names of queries, keys, values and output. turned: n->turns rotates neighbours of queries and keys. */
typedef struct net_attention {
    const char *names[4];
    bool biases[4], turned;
} net_attention;
/* Queries (part 0), keys (1) or values (2) of x, by heads; and results of attention times the output's matrix. */
tn_tensor *tn_net_project(net *n, const tn_tensor *x, const net_attention *a, int part, int64_t heads);
tn_tensor *tn_net_project_back(net *n, const tn_tensor *mixed, const net_attention *a);
/* Attention of x [batch, n, hidden] to itself. bias: added to scores, or NULL. */
tn_tensor *tn_net_attend(net *n, const tn_tensor *x, const net_attention *a, int64_t heads, const tn_tensor *bias);

/* Names of what a layer of a transformer holds. */
typedef struct net_layer {
    net_attention attention;
    const char *norm[2], *up, *down;
    const char *scale[2]; /* vectors that multiply the results of attention and feed-forward; NULL: there are none */
    bool gated;           /* the second half of what `up` makes is the gate of the first */
} net_layer;
/* x [batch, n, hidden] through a layer with norms in front of its parts; bias: added to scores, or NULL. */
tn_tensor *tn_net_layer(net *n, tn_tensor *x, const net_layer *l, int64_t heads, const tn_tensor *bias);
/* Its second half: x + feed-forward of its norm. */
tn_tensor *tn_net_feed(net *n, tn_tensor *x, const net_layer *l);

/* states [count] of equal shapes, weighted by the softmax of the weights `name`, [count]. */
tn_tensor *tn_net_weighted_sum(net *n, tn_tensor *const *states, int count, const char *name);

/* After a recording: its status, whose error names the folder, and an error if the file has a weight that was not
 * used. */
tn_status tn_net_check(net *n, tn_status recorded);

#endif
