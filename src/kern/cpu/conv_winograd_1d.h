/* conv_winograd_1d.h — rows of five taps by Winograd's algorithm: conv_winograd.c's way to them. */
#ifndef TN_CONV_WINOGRAD_1D_H
#define TN_CONV_WINOGRAD_1D_H

#include "kern/conv.h"

/* Windows of one row and five columns? The others take such alone. */
bool tn_conv_is_winograd_1d(const tn_conv_args *args);
bool tn_conv_winograd_1d_fits(const tn_conv_args *args);
bool tn_conv_winograd_1d_pays(const tn_conv_args *args, bool kept);
size_t tn_conv_winograd_1d_packed_bytes(const tn_conv_args *args);
void tn_conv_winograd_1d_pack(const tn_conv_args *args, void *to);
size_t tn_conv_winograd_1d_workspace(const tn_conv_args *args, int threads); /* beside packed filters */
void tn_conv_winograd_1d(const tn_conv_args *args, void *workspace);         /* args->packed is there */

#endif
