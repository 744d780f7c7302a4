/* conv_producer.h — rows of a convolution's results, made by the thread that reads them.
 *
 * What the first layer of a network makes of an image is many times as large, and takes longer to store and to fetch
 * again than to compute. So the convolution behind it has it made (conv.h, `maker`): as many rows as a block of its own
 * sees, in the cache of the thread that goes on with them. Results and chains are those of tn_conv. */
#ifndef TN_CONV_PRODUCER_H
#define TN_CONV_PRODUCER_H

#include "kern/conv.h"

/* Are results made by whole rows, and so cheaply? Reads sizes, and whether there is an epilogue. */
bool tn_conv_producer_fits(const tn_conv_args *args);

/* A plan, in memory of so many bytes, which all threads read; `args` stays there meanwhile, its operands in place. */
size_t tn_conv_producer_bytes(const tn_conv_args *args);
void tn_conv_producer_open(const tn_conv_args *args, void *plan);

/* Rows [first, first + count) of all channels of an image, to `to`, args->edge.row and .plane from each other there; in
 * memory of the calling thread. */
size_t tn_conv_producer_thread_bytes(const tn_conv_args *args);
void tn_conv_producer_run(const void *plan, int64_t image, int64_t first, int64_t count, float *to, void *memory);

#endif
