/* conv_winograd_line.h — rows of five taps by Winograd's algorithm: conv_winograd.c's way to them. */
#ifndef TN_CONV_WINOGRAD_LINE_H
#define TN_CONV_WINOGRAD_LINE_H

#include "kern/conv.h"

/* Windows of one row and five columns? The others take such alone. */
bool tn_conv_is_line(const tn_conv_args *args);
bool tn_conv_line_fits(const tn_conv_args *args);
bool tn_conv_line_pays(const tn_conv_args *args, bool kept);
size_t tn_conv_line_packed_bytes(const tn_conv_args *args);
void tn_conv_line_pack(const tn_conv_args *args, void *to);
size_t tn_conv_line_workspace(const tn_conv_args *args, int threads); /* beside packed filters */
void tn_conv_line(const tn_conv_args *args, void *workspace);         /* args->packed is there */

#endif
