/* fused_pool.h — a block of what a convolution's epilogue wrote back, made smaller while it is in the first cache.
 *
 * Windows lie side by side, and blocks are whole rows of them, so no window meets two blocks: what is pooled needs no
 * memory but its result's. */
#ifndef TN_FUSED_POOL_H
#define TN_FUSED_POOL_H

#include "kern/cpu/conv_vec.h"
#include "kern/cpu/fused_program.h"
#include "kern/cpu/zero_border.h"

/* Rows of output pixels that a block has to be a multiple of. */
static inline int64_t pooled_rows(const tn_conv_args *a) { return a->pool[0] > 0 ? a->pool[0] : 1; }

/* Is there a routine for such windows? */
static inline bool pooled_fits(const tn_conv_args *a) {
    bool of_four = a->pool[0] == 2 && a->pool[1] == 2, beside = a->pool[0] == 1 && a->pool[1] == 4;
    return (of_four || beside) && a->out_size[0] >= a->pool[0] && a->out_size[1] >= a->pool[1];
}

/* Channels and output pixels `at` of an image; what is left of them at the image's end takes no part. */
static inline void pool_block(const conv_vec *with, const tn_conv_args *a, int64_t image, box at, const float *block) {
    const int64_t down = a->pool[0], across = a->out_size[1], row = down * across;
    const int64_t columns = across / a->pool[1], out_row = result_row(a);
    float *out = result_at(a, image, at.row, at.col / row);
    for (int64_t i = 0; i < at.rows; i++, out += result_plane(a), block += TN_GEMM_BLOCK_LD)
        for (int64_t r = 0; r < at.cols / row; r++) {
            const float *from = block + r * row;
            if (down == 1)
                with->greatest_pairs(from, out + r * out_row, columns);
            else
                with->greatest_of_four(from, from + across, out + r * out_row, columns);
        }
    zero_border(a, image, at.row, at.rows, at.col / row, at.cols / row);
}

/* The epilogue's program counts output pixels as if there was nothing between rows: it gets them one by one, and its
 * result's address moved on by what is. */
static inline void join_rows(fused_call *epilogue, const tn_conv_args *a, int64_t image, box at, float *block) {
    const int64_t across = a->out_size[1], end = at.col + at.cols;
    char *result = epilogue->buffers[a->border.buffer];
    for (box part = at; part.col < end; part.col += part.cols, block += part.cols) {
        const int64_t row = part.col / across, behind = (row + 1) * across;
        part.cols = tn_min64(behind, end) - part.col;
        epilogue->buffers[a->border.buffer] = result + row * (a->border.row - across) * (int64_t)sizeof(float);
        fused_call_run(epilogue, (const int64_t[TN_GEMM_BATCH_AXES]){0, 0, 0, image}, part, block);
        if (part.col + part.cols == behind) zero_border(a, image, at.row, at.rows, row, 1);
    }
    epilogue->buffers[a->border.buffer] = result;
}

/* To the epilogue, and on to where the image's results go. */
static inline void hand_over_result(fused_call *epilogue, const conv_vec *with, const tn_conv_args *a, int64_t image,
                                    box at, float *block) {
    if (a->border.row > 0 && a->pool[0] == 0) {
        join_rows(epilogue, a, image, at, block);
        return;
    }
    fused_call_run(epilogue, (const int64_t[TN_GEMM_BATCH_AXES]){0, 0, 0, image}, at, block);
    if (a->pool[0] > 0) pool_block(with, a, image, at, block);
}

#endif
