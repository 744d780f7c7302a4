/* zero_border.h — results with zeros around them, which the next convolution's windows see there (conv.h).
 *
 * Whoever hands over whole rows of some channels also writes the zeros beside these, above the first row and below the
 * last one, so they are in memory as often as the rows and need no pass of their own. */
#ifndef TN_ZERO_BORDER_H
#define TN_ZERO_BORDER_H

#include <string.h>

#include "kern/conv.h"

/* Rows and columns of the results of one channel, as they reach memory. */
static inline int64_t result_extent(const tn_conv_args *a, int axis) {
    return a->pool[0] > 0 ? a->out_size[axis] / a->pool[axis] : a->out_size[axis];
}

static inline int64_t result_row(const tn_conv_args *a) {
    return a->border.row > 0 ? a->border.row : result_extent(a, 1);
}

static inline int64_t result_plane(const tn_conv_args *a) {
    return a->border.row > 0 ? a->border.plane : result_extent(a, 0) * result_extent(a, 1);
}

/* Where a row of a channel (of all groups) of an image begins. */
static inline float *result_at(const tn_conv_args *a, int64_t image, int64_t channel, int64_t row) {
    return a->out + (image * a->groups * a->out_channels + channel) * result_plane(a) + row * result_row(a);
}

/* `count` zeros in each channel. */
static inline void zero_channels(const tn_conv_args *a, float *first, int64_t channels, int64_t count) {
    for (int64_t c = 0; c < channels; c++, first += a->border.plane)
        memset(first, 0, (size_t)count * sizeof *first);
}

/* Around rows [row, row + rows) of some channels, which have been written. */
static inline void zero_border(const tn_conv_args *a, int64_t image, int64_t channel, int64_t channels, int64_t row,
                               int64_t rows) {
    const int64_t across = result_extent(a, 1), down = result_extent(a, 0), next = a->border.row;
    const int64_t above = a->border.above * next, beside = next - across;
    if (next == 0 || rows == 0 || a->border.clean) return;
    float *first = result_at(a, image, channel, row);
    if (row == 0) zero_channels(a, first - above, channels, above);
    if (row == 0 && image + channel == 0) zero_channels(a, first - above - beside, 1, beside);
    if (row + rows == down) zero_channels(a, first + rows * next, channels, a->border.plane - above - down * next);
    for (int64_t i = 0; i < beside; i++) {
        float *at = first + across + i;
        for (int64_t c = 0; c < channels; c++, at += a->border.plane)
            for (int64_t r = 0; r < rows; r++)
                at[r * next] = 0;
    }
}

#endif
