/* conv_options.h — options of convolutions and pooling from the rows of a test's table.
 *
 * A row names only what differs from the defaults: a stride, dilation or number of groups that it leaves out is 1, an
 * item of a list as the one before. */
#ifndef TN_TESTS_CONV_OPTIONS_H
#define TN_TESTS_CONV_OPTIONS_H

#include <string.h>

#include "trunnion/ops.h"

static inline void fill_pair(int64_t to[2], const int64_t from[2]) {
    to[0] = from[0] ? from[0] : 1;
    to[1] = from[1] ? from[1] : to[0];
}

static inline tn_conv2d_options conv2d_of_row(const tn_conv2d_options *row) {
    tn_conv2d_options o = TN_CONV2D_DEFAULTS;
    fill_pair(o.stride, row->stride);
    fill_pair(o.dilation, row->dilation);
    memcpy(o.padding, row->padding, sizeof o.padding);
    if (row->groups) o.groups = row->groups;
    return o;
}

/* A stride of 0 is the window's size here too. */
static inline tn_max_pool2d_options max_pool2d_of_row(const tn_max_pool2d_options *row) {
    tn_max_pool2d_options o = TN_MAX_POOL2D_DEFAULTS;
    memcpy(o.stride, row->stride, sizeof o.stride);
    memcpy(o.padding, row->padding, sizeof o.padding);
    fill_pair(o.dilation, row->dilation);
    o.ceil_mode = row->ceil_mode;
    return o;
}

#endif
