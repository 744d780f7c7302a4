/* conv_turned.h — convolutions whose filters, not places, are the columns of the product: conv.c's way to them. */
#ifndef TN_CONV_TURNED_H
#define TN_CONV_TURNED_H

#include "kern/conv.h"

/* Does it take these sizes, and is it worth it? The others take sizes for which this is so. */
bool tn_conv_turned_fits(const tn_conv_args *args);
size_t tn_conv_turned_packed_bytes(const tn_conv_args *args);
void tn_conv_turned_pack(const tn_conv_args *args, void *to);
size_t tn_conv_turned_workspace(const tn_conv_args *args, int threads); /* beside packed filters */
void tn_conv_turned(const tn_conv_args *args, void *workspace);         /* args->packed is there */

#endif
