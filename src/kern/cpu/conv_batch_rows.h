/* conv_batch_rows.h — convolutions of many images of few output pixels, images being rows of the product: conv.c's way
 * to them. */
#ifndef TN_CONV_PAIRS_H
#define TN_CONV_PAIRS_H

#include "kern/conv.h"

/* Does it take these sizes, and is it worth it? Filters are packed as conv_nhwc.h has them. */
bool tn_conv_batch_rows_fits(const tn_conv_args *args);
size_t tn_conv_batch_rows_workspace(const tn_conv_args *args, int threads);
void tn_conv_batch_rows(const tn_conv_args *args, void *workspace);

#endif
