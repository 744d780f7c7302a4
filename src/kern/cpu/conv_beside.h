/* conv_beside.h — convolutions of many images of few places, images being rows of the product: conv.c's way to them. */
#ifndef TN_CONV_BESIDE_H
#define TN_CONV_BESIDE_H

#include "kern/conv.h"

/* Does it take these sizes, and is it worth it? Filters are packed as conv_turned.h has them. */
bool tn_conv_beside_fits(const tn_conv_args *args);
size_t tn_conv_beside_workspace(const tn_conv_args *args, int threads);
void tn_conv_beside(const tn_conv_args *args, void *workspace);

#endif
