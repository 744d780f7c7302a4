/* blocks.c — programs over images in blocks of channels (conv.h), and sums over such images.
 *
 * An element-wise program does not depend on the order of elements if all of its images have the same. Operands with an
 * element for each channel are repeated for some pixels, so that they too are as long as a piece of an image. */
#include <string.h>

#include "cpu/conv_vec.h"
#include "cpu/isa.h"

enum {
    PIECE_PIXELS = 128,      /* of a block, for which operands of channels are repeated: in the first cache */
    LEAST_ELEMENTS = 1 << 13 /* that are worth a thread */
};

static int64_t lanes_of_block(void) { return tn_conv_vec()->tiles->lanes; }
static int64_t blocks_of(int64_t channels) { return tn_ceil_div(channels, lanes_of_block()); }

/* ---- element-wise programs --------------------------------------------------------------------------------------- */

static int64_t piece_pixels(const tn_block_program *a) {
    return tn_ceil_div(a->plane, tn_ceil_div(a->plane, PIECE_PIXELS));
}

static size_t repeated_bytes(const tn_block_program *a) {
    return (size_t)(piece_pixels(a) * lanes_of_block()) * sizeof(float);
}

static size_t thread_bytes(const tn_block_program *a) {
    return (size_t)a->operand_count * repeated_bytes(a) + tn_whole_lines(kir_vm_scratch(a->vm));
}

size_t tn_block_program_workspace(const tn_block_program *a, int threads) { return (size_t)threads * thread_bytes(a); }

/* The elements of a block's channels, for each pixel of a piece. Lanes after the last channel have 0. */
static void repeat_operand(const tn_block_program *a, const tn_channel_operand *o, int64_t block, float *to) {
    const int64_t lanes = lanes_of_block(), blocks = blocks_of(a->channels), channel = block % blocks * lanes;
    const int64_t count = tn_min64(lanes, a->channels - channel);
    const float *from =
        (const float *)a->launch.buffers[o->buffer] + o->first + block / blocks * o->image + channel * o->channel;
    for (int64_t l = 0; l < lanes; l++)
        to[l] = l < count ? from[l * o->channel] : 0;
    for (int64_t there = lanes, all = piece_pixels(a) * lanes; there < all; there *= 2)
        memcpy(to + there, to, (size_t)tn_min64(there, all - there) * sizeof *to);
}

static void run_pieces(void *ctx, int64_t begin, int64_t end, int worker) {
    const tn_block_program *a = ctx;
    const int64_t lanes = lanes_of_block(), pixels = piece_pixels(a), pieces = tn_ceil_div(a->plane, pixels);
    char *memory = (char *)a->workspace + (size_t)worker * thread_bytes(a);
    void *scratch = memory + (size_t)a->operand_count * repeated_bytes(a), *buffers[KIR_MAX_BUFFERS];
    kir_launch launch = a->launch;
    int64_t lo[KIR_MAX_AXES] = {0}, hi[KIR_MAX_AXES];
    for (int d = 0; d < a->axes; d++)
        hi[d] = 1;
    memcpy(buffers, a->launch.buffers, (size_t)a->buffer_count * sizeof *buffers);
    launch.buffers = buffers;
    for (int64_t n = begin, last = -1; n < end; n++) {
        const int64_t block = n / pieces, pixel = n % pieces * pixels;
        const int64_t first = (block * a->plane + pixel) * lanes;
        lo[a->axes - 1] = first;
        hi[a->axes - 1] = first + tn_min64(pixels, a->plane - pixel) * lanes;
        for (int k = 0; k < a->operand_count; k++) {
            float *repeated = (float *)(void *)(memory + (size_t)k * repeated_bytes(a));
            if (block != last) repeat_operand(a, &a->operand[k], block, repeated);
            buffers[a->operand[k].buffer] = (void *)((uintptr_t)repeated - (uintptr_t)first * sizeof *repeated);
        }
        last = block;
        kir_vm_run_box(a->vm, &launch, lo, hi, scratch);
    }
}

void tn_block_program_run(const tn_block_program *a) {
    const int64_t pixels = piece_pixels(a), pieces = a->batch * blocks_of(a->channels) * tn_ceil_div(a->plane, pixels);
    tn_parallel(pieces, tn_max64(LEAST_ELEMENTS / (pixels * lanes_of_block()), 1), run_pieces, (void *)(uintptr_t)a);
}

/* ---- sums -------------------------------------------------------------------------------------------------------- */
/* As KIR reduces an image's pixels (kir.h): each of its lanes has a sum of all channels of a block. KIR_LANES pixels
 * are consecutive elements, and added to these sums as such. */

typedef float floats __attribute__((vector_size(16), aligned(sizeof(float)), may_alias));
enum { FOUR = sizeof(floats) / sizeof(float) };

typedef struct sum_job {
    const float *x;
    int64_t channels, plane;
    float *sums;
} sum_job;

/* Of `count` elements, a multiple of four. */
static void add_to(float *sum, const float *x, int64_t count) {
    for (int64_t i = 0; i < count; i += FOUR)
        *(floats *)(sum + i) += *(const floats *)(x + i);
}

/* Pixels [0, count), to lane[0 … lanes). */
static void sum_pixels(const float *x, int64_t lanes, int64_t count, float *lane) {
    memset(lane, 0, (size_t)(KIR_LANES * lanes) * sizeof *lane);
    for (int64_t p = 0; p < count; p += KIR_LANES)
        add_to(lane, x + p * lanes, tn_min64(KIR_LANES, count - p) * lanes);
    for (int64_t half = KIR_LANES / 2; half > 0; half /= 2)
        add_to(lane, lane + half * lanes, half * lanes);
}

static void sum_blocks(void *ctx, int64_t begin, int64_t end, TN_UNUSED int worker) {
    const sum_job *j = ctx;
    const int64_t lanes = lanes_of_block(), blocks = blocks_of(j->channels);
    float lane[KIR_LANES * MOST_LANES], sum[MOST_LANES];
    for (int64_t n = begin; n < end; n++) {
        const float *x = j->x + n * j->plane * lanes;
        const int64_t channel = n % blocks * lanes, count = tn_min64(lanes, j->channels - channel);
        for (int64_t p = 0; p < j->plane; p += KIR_BLOCK) {
            sum_pixels(x + p * lanes, lanes, tn_min64(j->plane - p, KIR_BLOCK), lane);
            if (p == 0)
                memcpy(sum, lane, (size_t)lanes * sizeof *sum);
            else
                add_to(sum, lane, lanes);
        }
        memcpy(j->sums + n / blocks * j->channels + channel, sum, (size_t)count * sizeof *sum);
    }
}

void tn_block_sums(const float *x, int64_t batch, int64_t channels, int64_t plane, float *sums) {
    sum_job job = {x, channels, plane, sums};
    const int64_t elements = plane * lanes_of_block();
    tn_parallel(batch * blocks_of(channels), tn_max64(LEAST_ELEMENTS / elements, 1), sum_blocks, &job);
}
