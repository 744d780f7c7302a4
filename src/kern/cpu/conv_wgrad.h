/* conv_wgrad.h — what conv.c asks of the gradient of a convolution's weight (kern/conv.h declares the gradient). */
#ifndef TN_CONV_WGRAD_H
#define TN_CONV_WGRAD_H

#include "kern/conv.h"

/* Channels that the input tile of a part has, where input tiles are to be small. */
int64_t tn_conv_weight_channels(const tn_conv_args *args);

#endif
