/* conv.h — convolutions on the CPU, and their gradients.
 *
 * Each is a matrix product with the im2col matrix, which repeats most elements of the image once per tap. That matrix
 * is never stored: kernels read a block of it at a time, from an input tile in the cache. native_conv.c in src/plan
 * chooses the path (nhwc, winograd, depthwise, …) when it makes a plan. */
#ifndef TN_KERN_CONV_H
#define TN_KERN_CONV_H

#include "cpu/cpu_kernels.h"

/* Images x [batch, groups · channels, size], weight [groups · out_channels, channels, kernel] and results y [batch,
 * groups · out_channels, output pixels], all f32. The window of output pixel (u, v) begins at (u, v) · stride −
 * pad_before, which may be negative; its taps are `dilation` apart. Taps outside of the image are zero. */
typedef struct tn_conv_args {
    int64_t batch, groups, channels, out_channels; /* channels and filters of one group */
    int64_t size[2], kernel[2], out_size[2], stride[2], pad_before[2], dilation[2];
    const float *x, *y;
    int64_t x_stride[4], y_stride[4]; /* elements */
    const float *weight;
    int64_t weight_group, weight_stride[4]; /* from group to group; filter, channel, row, column */
    const void *packed;                     /* what tn_conv_pack made of the weight; NULL: done at each run */
    bool keeps_packed; /* `packed` will be there at each run, if it is not yet: no workspace is needed for it */
    bool nhwc;         /* filters are the columns of the product; only if tn_conv_prefers_nhwc; same bits */
    bool winograd;     /* only if tn_conv_winograd_fits and numerics are fast; excludes nhwc */
    bool max_pool;     /* of tn_conv_depthwise */
    /* x or the results lie in blocks of channels: [images, blocks, pixels, lanes], a block having as many channels as a
     * vector has lanes (nChw16c); lanes after the last channel are undefined. Only if tn_conv_takes_blocks; the strides
     * of x are then ignored. Bytes lie in words instead: [images, words, pixels, 4 channels] (tn_conv_bytes_fits). */
    bool x_blocks, y_blocks;
    /* A program that receives blocks of y in place of `out` (cpu_kernels.h): its last three axes are images, channels
     * of all groups, output pixels. For tn_conv and tn_conv_depthwise. Fused operations are per channel. */
    tn_fused_program epilogue;
    int64_t pool[2]; /* rows, columns of max pooling after the epilogue; 0: none */
    /* Sums of bytes are rounded to bytes, which `out` then is; NULL: they are i32. For tn_conv_bytes. */
    const tn_byte_rounding *rounding;
    bool x_signed; /* images of bytes are i8; only with `rounding` */
    bool quads;    /* an element is four bytes: unsigned in x, signed in the weight; results are i32 */
    /* Of quads whose tiles may saturate (tile_set.h): [panels of all groups, 2 + steps of k], how many steps go by two
     * and one by one, and the order of steps in `packed`. A panel has room for twice its steps. */
    const int32_t *order;
    float *out;      /* contiguous: the pooled result, an epilogue's only result, or NULL */
    void *workspace; /* 64-byte aligned */
} tn_conv_args;

/* Is there a kernel for these sizes? Not if an extent is 0, nor if a window spans more elements than an input tile has.
 * Reads only sizes. */
bool tn_conv_fits(const tn_conv_args *args);

/* Can results be pooled before they are stored, in adjacent windows of pool[] from the first output pixel on? Requires
 * an epilogue. Reads only sizes. */
bool tn_conv_pools(const tn_conv_args *args);

/* Is the NHWC path faster (filters as columns of the product)? It packs filters in another way. */
bool tn_conv_prefers_nhwc(const tn_conv_args *args);
/* The same for windows of one tap, compared with a matrix product whose columns are pixels. An image is one row. */
bool tn_conv_tap_prefers_nhwc(const tn_conv_args *args);

/* Is it a matrix product: windows of one tap, stride 1, no padding? */
bool tn_conv_is_product(const tn_conv_args *args);

/* Can x and the results lie in blocks of channels, as x_blocks and y_blocks request? With y_blocks, the epilogue must
 * be fused operations, `flat`, or absent. Reads only sizes, and whether windows are depthwise. */
bool tn_conv_takes_blocks(const tn_conv_args *args);
/* Elements of images in blocks of channels. */
int64_t tn_conv_block_elements(int64_t batch, int64_t channels, int64_t plane);

/* Windows of 3×3 with a stride of 1 can be computed with a quarter of the multiplications (Winograd), for results that
 * are rounded otherwise: still the same bits for any thread count and any instruction set with fma; others do not have
 * it. With u = 2⁻²⁴ an element's error is at most about (channels + 16) · u · Σ |Aᵀ| ((|G| |g| |Gᵀ|) ∘ (|Bᵀ| |d| |B|))
 * |A|, the sum over channels, g and d being filter and tile, A, B and G the transforms (cpu/conv_vec.c; two roundings
 * an axis for d and g, two for g's factor, three for the sums); of random numbers it is twice that of the definition.
 * So can windows of five taps in a row, with six multiplications instead of ten: the same along one axis.
 * `pays`: is it faster, if filters are packed before (kept), or at each run? */
bool tn_conv_winograd_fits(const tn_conv_args *args);
bool tn_conv_winograd_pays(const tn_conv_args *args, bool kept);

/* out = y: each is what tn_gemm_f32 yields for row k = (channel, kernel row, kernel column) of what windows see: chains
 * of KIR_KSUM steps, in order. What lies outside of the image takes part as a zero. Same bits for any thread count and
 * any instruction set. `threads`: tn_threads() when it will run, or more. Sizes and strides are read, no data. */
size_t tn_conv_packed_bytes(const tn_conv_args *args);
void tn_conv_pack(const tn_conv_args *args, void *to);
size_t tn_conv_workspace(const tn_conv_args *args, int threads);
void tn_conv(const tn_conv_args *args);

/* out = x's gradient, [batch, groups · channels, size]: what each result spreads over its window, summed. Seen from a
 * pixel that is a convolution of y: with a stride s each s-th pixel of an axis meets the same taps (a phase), and for
 * each phase chains run through k = (filter, kernel row, kernel column), taps from the last to the first. `fits` has to
 * hold for each phase; not for windows with both a stride and a dilation. */
bool tn_conv_dgrad_fits(const tn_conv_args *args);
bool tn_conv_dgrad_winograd_pays(const tn_conv_args *args); /* by Winograd's algorithm, if args->winograd says so */
size_t tn_conv_dgrad_workspace(const tn_conv_args *args, int threads);
void tn_conv_dgrad(const tn_conv_args *args);

/* out = the weight's gradient, Σ over images and output pixels of y times what the window sees: chains of KIR_KSUM
 * output pixels, all output pixels of the first image, then those of the next. With `winograd`, where that fits, by the
 * same algorithm turned around: nine gradients of 4×4 results and what they saw. An element's error is at most about
 * (tiles + 18) · u · |Gᵀ| (Σ (|A| |y| |Aᵀ|) ∘ (|Bᵀ| |d| |B|)) |G|, the sum over tiles (three roundings an axis for y,
 * two for d, four for the way back). */
bool tn_conv_wgrad_winograd_fits(const tn_conv_args *args);
bool tn_conv_wgrad_winograd_pays(const tn_conv_args *args);
size_t tn_conv_wgrad_workspace(const tn_conv_args *args, int threads);
void tn_conv_wgrad(const tn_conv_args *args);

/* Size of images of u8 or i8 in words of four channels, in bytes. */
int64_t tn_conv_word_bytes(int64_t batch, int64_t channels, int64_t plane);

/* The same of bytes: images of u8 at x, filters of i8 at weight (strides in bytes), sums of i32, exact modulo 2³², or
 * bytes (`rounding`); what lies outside is the byte `outside`. By quads of channels, where the processor adds up four
 * products of bytes at once; with `rounding`, windows of one channel are depthwise. `max_pool`: the greatest byte of
 * each window of one channel; there are no filters and no `rounding`, and padding counts as the least byte. Integer
 * sums: the same for each thread count. */
bool tn_conv_bytes_fits(const tn_conv_args *args);
size_t tn_conv_bytes_packed_bytes(const tn_conv_args *args);
void tn_conv_bytes_pack(const tn_conv_args *args, void *to);
size_t tn_conv_bytes_workspace(const tn_conv_args *args, int threads);
void tn_conv_bytes(const tn_conv_args *args, uint8_t outside);

/* out = y where each channel has one filter of its own (channels and filters are 1): the same chains as tn_conv's.
 * `max_pool`: there is no weight; the result is the maximum of a window, as KIR reduces it, without padding. */
bool tn_conv_depthwise_fits(const tn_conv_args *args);
size_t tn_conv_depthwise_workspace(const tn_conv_args *args, int threads);
void tn_conv_depthwise(const tn_conv_args *args);

/* ---- images in blocks of channels, without windows (blocks.c) ---------------------------------------------------- */

/* An operand with an element for each channel, perhaps for those of each image: the first one, and from one to the
 * next. */
typedef struct tn_channel_operand {
    int buffer;
    int64_t first, image, channel;
} tn_channel_operand;

/* An element-wise program without loops over images in blocks. Its sizes are those of one row of all their elements:
 * images and these operands have the stride 1 along the last axis, single numbers 0. */
enum { TN_BLOCK_OPERANDS = 4 };
typedef struct tn_block_program {
    const kir_vm *vm;
    kir_launch launch;
    int axes, buffer_count, operand_count;
    tn_channel_operand operand[TN_BLOCK_OPERANDS];
    int64_t batch, channels, plane;
    void *workspace; /* 64-byte aligned */
} tn_block_program;
size_t tn_block_program_workspace(const tn_block_program *args, int threads);
void tn_block_program_run(const tn_block_program *args);

/* sums [batch, channels]: of the pixels of each image in blocks, in the order of a reduction of KIR. */
void tn_block_sums(const float *x, int64_t batch, int64_t channels, int64_t plane, float *sums);

#endif
