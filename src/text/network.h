/* network.h — the weights of a Hugging Face folder, and operations that find theirs by name.
 *
 * A family of models without a decoder is one function that records its operations, such as
 * tn_net_linear(n, x, "classifier"). The operations check shapes. Opening a model records it once without running it: a
 * weight that is missing or does not fit is an error then, and so is a weight of the file that nothing asked for. */
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
    tn_activation *activation;
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
/* The same; an error unless it has this shape. */
tn_tensor *tn_net_shaped(net *n, const char *name, const int64_t *shape, int rank);
/* NAME.weight and, with bias, NAME.bias. */
tn_tensor *tn_net_linear(net *n, const tn_tensor *x, const char *name, bool bias);
tn_tensor *tn_net_norm(net *n, const tn_tensor *x, const char *name); /* over the last dimension, with n->eps */
tn_tensor *tn_net_norm_by(net *n, const tn_tensor *x, const char *name, double eps);
tn_tensor *tn_net_conv2d(net *n, const tn_tensor *x, const char *name, bool bias, const tn_conv2d_options *o);

/* x [batch, n, hidden] by heads: [batch, heads, n, hidden / heads]. */
tn_tensor *tn_net_heads(const tn_tensor *x, int64_t heads);
/* Attention of x [batch, n, hidden] to itself; names of queries, keys, values and output. bias: added to scores, or
 * NULL. */
typedef struct net_attention {
    const char *names[4];
    bool biases[4];
} net_attention;
tn_tensor *tn_net_attend(net *n, const tn_tensor *x, const net_attention *names, int64_t heads, const tn_tensor *bias);

/* states [count] of equal shapes, weighted by the softmax of the weights `name`, [count]. */
tn_tensor *tn_net_weighted_sum(net *n, tn_tensor *const *states, int count, const char *name);

/* After a recording: its status, and an error if the file has a weight that was not used. */
tn_status tn_net_check(net *n, const tn_tensor *recorded);

#endif
