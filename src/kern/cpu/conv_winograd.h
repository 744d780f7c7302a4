/* conv_winograd.h — convolutions by Winograd's algorithm, which round otherwise than their definition: conv.c's way to
 * them, for those who asked for speed before bits. */
#ifndef TN_CONV_WINOGRAD_H
#define TN_CONV_WINOGRAD_H

#include "kern/conv.h"

size_t tn_conv_winograd_packed_bytes(const tn_conv_args *args);
void tn_conv_winograd_pack(const tn_conv_args *args, void *to);
size_t tn_conv_winograd_workspace(const tn_conv_args *args, int threads); /* beside packed filters */
void tn_conv_winograd(const tn_conv_args *args, void *workspace);         /* args->packed is there */

/* The weight's gradient, of windows for which tn_conv_wgrad_winograd_fits. */
size_t tn_conv_winograd_weight_workspace(const tn_conv_args *args, int threads);
void tn_conv_winograd_weight(const tn_conv_args *args);

#endif
