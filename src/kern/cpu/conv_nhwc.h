/* conv_nhwc.h — convolutions whose filters, not output pixels, are the columns of the product: conv.c's way to them. */
#ifndef TN_CONV_NHWC_H
#define TN_CONV_NHWC_H

#include "kern/conv.h"

/* Does it take these sizes, and is it worth it? The others take sizes for which this is so. */
bool tn_conv_nhwc_fits(const tn_conv_args *args);
bool tn_conv_nhwc_wants_border(const tn_conv_args *args, tn_conv_border *edge);
/* the reader's */
bool tn_conv_nhwc_fuses_producer(const tn_conv_args *args, const tn_conv_args *producer, tn_conv_border *edge);
size_t tn_conv_nhwc_packed_bytes(const tn_conv_args *args);
void tn_conv_nhwc_pack(const tn_conv_args *args, void *to);

/* Parts of one convolution whose results are the pixels of a larger image: phase (i, j), i · split[1] + j in `of`, has
 * pixel (split[0] · u + i, split[1] · v + j). Windows of all lie within the whole one's, whose output pixels are
 * theirs. */
enum { NHWC_PHASES = 4 };
typedef struct nhwc_phases {
    int64_t split[2];
    tn_conv_args of[NHWC_PHASES];
} nhwc_phases;

/* `phases`: NULL where there are none. Packed filters, of each phase, have memory of their own and are there. */
size_t tn_conv_nhwc_workspace(const tn_conv_args *args, const nhwc_phases *phases, int threads);
void tn_conv_nhwc(const tn_conv_args *args, const nhwc_phases *phases, void *workspace);

#endif
