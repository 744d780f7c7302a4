/* pooled.h — a block of what a convolution's joint wrote back, made smaller while it is in the first cache.
 *
 * Windows lie side by side, and blocks are whole rows of them, so no window meets two blocks: what is pooled needs no
 * memory but its result's. */
#ifndef TN_POOLED_H
#define TN_POOLED_H

#include "kern/cpu/conv_lines.h"
#include "kern/cpu/port.h"

/* Rows of places that a block has to be a multiple of. */
static inline int64_t pooled_rows(const tn_conv_args *a) { return a->pool[0] > 0 ? a->pool[0] : 1; }

/* Is there a routine for such windows? */
static inline bool pooled_fits(const tn_conv_args *a) {
    bool of_four = a->pool[0] == 2 && a->pool[1] == 2, beside = a->pool[0] == 1 && a->pool[1] == 4;
    return (of_four || beside) && a->places[0] >= a->pool[0] && a->places[1] >= a->pool[1];
}

/* Channels and places `at` of an image; what is left of them at the image's end takes no part. */
static inline void pool_block(const conv_lines *with, const tn_conv_args *a, int64_t image, box at,
                              const float *block) {
    const int64_t down = a->pool[0], across = a->places[1], row = down * across;
    const int64_t rows = a->places[0] / down, columns = across / a->pool[1], channels = a->groups * a->filters;
    float *out = a->out + ((image * channels + at.row) * rows + at.col / row) * columns;
    for (int64_t i = 0; i < at.rows; i++, out += rows * columns, block += TN_GEMM_BLOCK_LD)
        for (int64_t r = 0; r < at.cols / row; r++) {
            const float *from = block + r * row;
            if (down == 1)
                with->greatest_beside(from, out + r * columns, columns);
            else
                with->greatest_of_four(from, from + across, out + r * columns, columns);
        }
}

/* To the joint, and on to where the image's results go. */
static inline void hand_over(port *joint, const conv_lines *with, const tn_conv_args *a, int64_t image, box at,
                             float *block) {
    port_run(joint, (const int64_t[TN_GEMM_BATCH_AXES]){0, 0, 0, image}, at, block);
    if (a->pool[0] > 0) pool_block(with, a, image, at, block);
}

#endif
