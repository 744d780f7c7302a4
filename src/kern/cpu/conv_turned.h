/* conv_turned.h — convolutions whose filters, not places, are the columns of the product: conv.c's way to them. */
#ifndef TN_CONV_TURNED_H
#define TN_CONV_TURNED_H

#include "kern/conv.h"

/* Does it take these sizes, and is it worth it? The others take sizes for which this is so. */
bool tn_conv_turned_fits(const tn_conv_args *args);
bool tn_conv_turned_wants_edge(const tn_conv_args *args, tn_conv_edge *edge);
bool tn_conv_turned_makes(const tn_conv_args *args, const tn_conv_args *maker, tn_conv_edge *edge); /* the reader's */
size_t tn_conv_turned_packed_bytes(const tn_conv_args *args);
void tn_conv_turned_pack(const tn_conv_args *args, void *to);

/* Parts of one convolution whose results are the pixels of a larger image: phase (i, j), i · split[1] + j in `of`, has
 * pixel (split[0] · u + i, split[1] · v + j). Windows of all lie within the whole one's, whose places are theirs. */
enum { TURNED_PHASES = 4 };
typedef struct turned_phases {
    int64_t split[2];
    tn_conv_args of[TURNED_PHASES];
} turned_phases;

/* `phases`: NULL where there are none. Packed filters, of each phase, have memory of their own and are there. */
size_t tn_conv_turned_workspace(const tn_conv_args *args, const turned_phases *phases, int threads);
void tn_conv_turned(const tn_conv_args *args, const turned_phases *phases, void *workspace);

#endif
