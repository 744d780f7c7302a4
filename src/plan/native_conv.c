/* native_conv.c — native groups of convolutions, their gradients and pooling; the kernels are in cpu/conv.h.
 *
 * A weight in bound memory that this plan does not write is packed once and kept with its buffer; others are packed at
 * each run. Depthwise convolution has its own kernel, in the order of its composition; so has pooling. Windows with one
 * tap are a product with a convolution's epilogue, or an NHWC convolution. What no kernel supports stays composed:
 * other dtypes, other one-tap windows (plain products), depthwise gradients. */
#include "ops/ops_common.h"
#include "plan/native.h"

#include <string.h>

enum { FEW_PIXELS = 8 }; /* a handful */

static const int64_t PACK_LIMIT = (int64_t)64 << 20; /* bytes of a packed weight that is kept */

/* ---- sizes ------------------------------------------------------------------------------------------------------- */

/* Positions of a window's numbers among an op's attributes. */
typedef struct window_pixels {
    int stride, pad_before, dilation, groups;
} window_pixels;

static const window_pixels of_conv2d_forward = {TN_CONV2D_FORWARD_STRIDE, TN_CONV2D_FORWARD_PAD_BEFORE,
                                                TN_CONV2D_FORWARD_DILATION, TN_CONV2D_FORWARD_GROUPS};
static const window_pixels of_conv2d_dgrad = {TN_CONV2D_DGRAD_STRIDE, TN_CONV2D_DGRAD_PADDING, TN_CONV2D_DGRAD_DILATION,
                                              TN_CONV2D_DGRAD_GROUPS};
static const window_pixels of_conv2d_wgrad = {TN_CONV2D_WGRAD_STRIDE, TN_CONV2D_WGRAD_PADDING, TN_CONV2D_WGRAD_DILATION,
                                              TN_CONV2D_WGRAD_GROUPS};

static const window_pixels of_int_conv2d = {TN_INT_CONV2D_STRIDE, TN_INT_CONV2D_PADDING, TN_INT_CONV2D_DILATION,
                                            TN_INT_CONV2D_GROUPS};

/* Images x, results y and filters w, all of four dims. */
static tn_conv_args sizes_of(const tn_node *n, const window_pixels *at, const tn_node *x, const tn_node *y,
                             const tn_node *w) {
    int64_t groups = n->i[at->groups];
    tn_conv_args a = {.batch = x->shape[0], .groups = groups, .channels = w->shape[1]};
    a.out_channels = w->shape[0] / groups;
    for (int d = 0; d < 2; d++) {
        a.size[d] = x->shape[2 + d];
        a.kernel[d] = w->shape[2 + d];
        a.out_size[d] = y->shape[2 + d];
        a.stride[d] = n->i[at->stride + d];
        a.pad_before[d] = n->i[at->pad_before + d];
        a.dilation[d] = n->i[at->dilation + d];
    }
    return a;
}

tn_conv_args tn_conv_sizes(const tn_node *n) {
    if (n->op == TN_OP_CONV2D_DGRAD) return sizes_of(n, &of_conv2d_dgrad, n, n->in[0], n->in[1]);
    if (n->op == TN_OP_CONV2D_WGRAD) return sizes_of(n, &of_conv2d_wgrad, n->in[0], n->in[1], n);
    return sizes_of(n, &of_conv2d_forward, n->in[0], n, n->in[1]);
}

/* Max pooling of x [(images,) channels, size]: one window per channel. */
static tn_conv_args sizes_of_pool(const tn_node *n) {
    const tn_node *x = n->in[0];
    tn_conv_args a = {.batch = 1, .channels = 1, .out_channels = 1, .max_pool = true};
    if (x->rank == 4) a.batch = x->shape[0];
    a.groups = x->shape[x->rank - 3];
    for (int d = 0; d < 2; d++) {
        int64_t stride = n->i[TN_MAX_POOL2D_STRIDE + d];
        a.size[d] = x->shape[x->rank - 2 + d];
        a.kernel[d] = n->i[TN_MAX_POOL2D_KERNEL_SIZE + d];
        a.out_size[d] = n->shape[n->rank - 2 + d];
        a.stride[d] = stride ? stride : a.kernel[d];
        a.pad_before[d] = n->i[TN_MAX_POOL2D_PADDING + d];
        a.dilation[d] = n->i[TN_MAX_POOL2D_DILATION + d];
    }
    return a;
}

static bool is_depthwise_alone(const tn_conv_args *a) {
    return a->groups > 1 && a->channels == 1 && a->out_channels == 1;
}

static bool conv_takes(const tn_node *n, const tn_conv_args *a) {
    return n->dtype == TN_F32 && a->kernel[0] * a->kernel[1] != 1 && !is_depthwise_alone(a) && tn_node_numel(n) > 0;
}

bool tn_takes_conv_product(const tn_node *n) {
    tn_conv_args a = sizes_of(n, &of_conv2d_forward, n->in[0], n, n->in[1]);
    return conv_takes(n, &a) && tn_conv_fits(&a);
}

/* A window with one tap and stride 1 is a product. As a composed product it ends in a view, which has no epilogue; so
 * it is native unless its result is tiny. */
static bool is_one_tap(const tn_conv_args *a) {
    enum { LITTLE = 1 << 12 }; /* elements */
    bool plain = a->groups == 1 && a->batch > 0 && a->out_channels > 0 && a->channels > 0;
    return plain && tn_conv_is_product(a) && a->out_channels * a->out_size[0] * a->out_size[1] >= LITTLE &&
           a->out_size[0] * a->out_size[1] > FEW_PIXELS;
}

/* Libraries that were asked for have the product. */
static bool takes_one_tap(const tn_node *n, const tn_conv_args *a) {
    return n->dtype == TN_F32 && is_one_tap(a) && !tn_device_blas(n->device);
}

/* The NHWC path computes one-tap windows like any others and has an epilogue; it pays for many output pixels. With few
 * channels a strided one pays if its images lie in blocks of channels, which a product of copied pixels prevents. */
static bool takes_nhwc_tap(const tn_node *n, const tn_conv_args *a) {
    enum { MANY = 32 };
    bool one =
        n->dtype == TN_F32 && a->kernel[0] * a->kernel[1] == 1 && tn_node_numel(n) > 0 && !tn_device_blas(n->device);
    tn_conv_args blocks = *a;
    blocks.x_blocks = blocks.y_blocks = true;
    const bool strided = a->stride[0] * a->stride[1] > 1;
    return one && a->out_size[0] * a->out_size[1] >= MANY &&
           (tn_conv_prefers_nhwc(a) || (strided && tn_conv_takes_blocks(&blocks)));
}

/* A program of shifted images would be joined by what follows, and yet takes longer. */
static bool takes_depthwise(const tn_node *n, const tn_conv_args *a) {
    return n->dtype == TN_F32 && is_depthwise_alone(a) && tn_node_numel(n) > 0 && tn_conv_depthwise_fits(a);
}

bool tn_takes_conv2d_forward(const tn_node *n) {
    tn_conv_args a = sizes_of(n, &of_conv2d_forward, n->in[0], n, n->in[1]);
    if (takes_depthwise(n, &a) || takes_one_tap(n, &a) || takes_nhwc_tap(n, &a)) return true;
    return tn_takes_conv_product(n);
}

bool tn_takes_max_pool2d(const tn_node *n) {
    tn_conv_args a = sizes_of_pool(n);
    if (tn_dtype_is_byte(n->dtype)) return tn_node_numel(n) > 0 && tn_node_is_dense(n->in[0]) && tn_conv_bytes_fits(&a);
    return n->dtype == TN_F32 && tn_conv_depthwise_fits(&a);
}

bool tn_takes_int_conv2d(const tn_node *n) {
    tn_conv_args a = sizes_of(n, &of_int_conv2d, n->in[0], n, n->in[1]);
    bool bytes = n->in[0]->dtype == TN_U8 && n->in[1]->dtype == TN_I8;
    return bytes && tn_node_numel(n) > 0 && tn_conv_bytes_fits(&a);
}

/* The same convolution, of one tap, with all pixels of an image in one row. */
static tn_conv_args in_one_row(const tn_conv_args *a) {
    tn_conv_args flat = *a;
    flat.size[1] = flat.out_size[1] = a->size[0] * a->size[1];
    flat.size[0] = flat.out_size[0] = 1;
    return flat;
}

/* The image as one row where windows have one tap, so that rows of few pixels fill the kernel's tiles. */
static void flatten_taps(tn_conv_args *a) {
    enum { MOST_PIXELS = 512 };
    if (tn_conv_is_product(a) && a->size[0] * a->size[1] <= MOST_PIXELS) *a = in_one_row(a);
}

static tn_conv_args sizes_of_quantized(const tn_node *n) {
    tn_conv_args a = sizes_of(n, &of_int_conv2d, n->in[0], n, n->in[1]);
    a.rounding = &tn_any_byte_rounding;
    a.x_signed = n->in[0]->dtype == TN_I8;
    return a;
}

bool tn_takes_quantized_conv2d(const tn_node *n) {
    tn_conv_args a = sizes_of_quantized(n);
    flatten_taps(&a);
    bool there = n->in[1]->dtype == TN_I8 && tn_node_numel(n) > 0;
    for (int i = 0; i < n->n_in; i++)
        there = there && (i == 1 || !n->in[i] || tn_node_is_dense(n->in[i]));
    const bool depthwise = a.channels == 1 && a.groups > 1;
    return there && !(depthwise && n->in[TN_CONV_ADDEND]) && tn_conv_bytes_fits(&a);
}

/* Adjacent windows, starting at the first output pixel. */
static void take_pool(tn_conv_args *a, const tn_node *pool) {
    tn_conv_args p = sizes_of_pool(pool);
    for (int d = 0; d < 2; d++) {
        bool beside = p.kernel[d] == p.stride[d] && p.pad_before[d] == 0 && (p.dilation[d] == 1 || p.kernel[d] == 1) &&
                      p.out_size[d] == p.size[d] / p.kernel[d];
        a->pool[d] = beside ? p.kernel[d] : 0;
    }
}

bool tn_conv_joins_pool(const tn_node *conv, const tn_node *pool) {
    if (conv->op != TN_OP_CONV2D_FORWARD || pool->op != TN_OP_MAX_POOL2D || pool->rank != 4) return false;
    tn_conv_args a = sizes_of(conv, &of_conv2d_forward, conv->in[0], conv, conv->in[1]);
    take_pool(&a, pool);
    return conv_takes(conv, &a) && pool->dtype == TN_F32 && tn_takes_max_pool2d(pool) && tn_conv_pools(&a);
}

bool tn_takes_conv2d_dgrad(const tn_node *n) {
    tn_conv_args a = sizes_of(n, &of_conv2d_dgrad, n, n->in[0], n->in[1]);
    return conv_takes(n, &a) && tn_node_numel(n->in[0]) > 0 && tn_conv_dgrad_fits(&a);
}

bool tn_takes_conv2d_wgrad(const tn_node *n) {
    if (n->in[0]->rank != 4) return false;
    tn_conv_args a = sizes_of(n, &of_conv2d_wgrad, n->in[0], n->in[1], n);
    return conv_takes(n, &a) && tn_conv_fits(&a);
}

void tn_cost_of_conv(const tn_native *n, tn_cost *cost) {
    const tn_conv_args *a = &n->conv;
    double out_pixels = (double)(a->batch * a->out_size[0] * a->out_size[1]);
    double depth = (double)(a->channels * a->kernel[0] * a->kernel[1]);
    cost->flops = 2 * out_pixels * (double)(a->groups * a->out_channels) * depth;
}

/* ---- convolutions ------------------------------------------------------------------------------------------------ */

/* words of the name of packed filters */
enum {
    PACKED_GROUPS,
    PACKED_OUT_CHANNELS,
    PACKED_CHANNELS,
    PACKED_KERNEL,
    PACKED_OFFSET = PACKED_KERNEL + 2,
    PACKED_WAY,
    PACKED_LAYOUT /* elements from channel to channel and from row to row of taps */
};
static const int64_t MOST_TAPS = INT32_MAX; /* for two numbers in a word */
_Static_assert((int)PACKED_LAYOUT < (int)TN_PACKED_WORDS, "a packed weight has room for all words");
enum { BY_PIXELS, TURNED, WINOGRAD, QUADS, WINDOWS }; /* ways in which filters are packed */

static void pack_packed(const tn_packed_weight *weight_form, const void *from, void *to) {
    const int64_t *w = weight_form->word;
    const int64_t rows = w[PACKED_KERNEL], columns = w[PACKED_KERNEL + 1];
    const int64_t channel = w[PACKED_LAYOUT] / MOST_TAPS, row = w[PACKED_LAYOUT] % MOST_TAPS;
    tn_conv_args a = {.groups = w[PACKED_GROUPS],
                      .out_channels = w[PACKED_OUT_CHANNELS],
                      .channels = w[PACKED_CHANNELS],
                      .kernel = {rows, columns},
                      .nhwc = w[PACKED_WAY] == TURNED,
                      .winograd = w[PACKED_WAY] == WINOGRAD,
                      .weight_group = w[PACKED_OUT_CHANNELS] * w[PACKED_CHANNELS] * channel,
                      .weight = (const float *)(const void *)((const char *)from + w[PACKED_OFFSET]),
                      .weight_stride = {w[PACKED_CHANNELS] * channel, channel, row, 1},
                      .rounding = w[PACKED_WAY] == WINDOWS ? &tn_any_byte_rounding : NULL};
    (w[PACKED_WAY] >= QUADS ? tn_conv_bytes_pack : tn_conv_pack)(&a, to);
}

static void take_weight(tn_conv_args *a, const tn_value *weight) {
    memcpy(a->weight_stride, weight->stride, sizeof a->weight_stride);
    a->weight_group = a->out_channels * weight->stride[0];
}

/* Filters that follow each other, with all of their taps or with the same part of these in each. */
static bool filters_follow(const tn_conv_args *a) {
    const int64_t *s = a->weight_stride;
    return s[3] == 1 && s[2] > 0 && s[2] < MOST_TAPS && s[1] > 0 && s[1] < MOST_TAPS && s[0] == a->channels * s[1] &&
           a->weight_group == a->out_channels * s[0];
}

static bool may_keep_packed(const tn_graph_plan *g, const tn_conv_args *a, const tn_value *weight) {
    return tn_native_may_pack(g, g->values[weight->root].slot) && filters_follow(a) &&
           (int64_t)tn_conv_packed_bytes(a) <= PACK_LIMIT;
}

static void keep_packed_weight(const tn_graph_plan *g, tn_native *n, const tn_value *weight, size_t bytes,
                               int64_t path) {
    const tn_conv_args *a = &n->conv;
    n->weight.slot = g->values[weight->root].slot;
    n->weight.packed = (tn_packed_weight){.make = pack_packed,
                                          .bytes = bytes,
                                          .word = {a->groups, a->out_channels, a->channels, a->kernel[0], a->kernel[1],
                                                   (int64_t)tn_native_byte_offset(weight), path,
                                                   a->weight_stride[1] * MOST_TAPS + a->weight_stride[2]}};
    n->weight.target = &n->weight.memory;
    n->conv.keeps_packed = true;
}

/* Packed as this kernel reads it, or at each run. */
static void keep_packed(const tn_graph_plan *g, tn_native *n, const tn_value *weight) {
    const tn_conv_args *a = &n->conv;
    n->weight.slot = -1;
    n->conv.keeps_packed = false;
    if (!may_keep_packed(g, a, weight)) return;
    keep_packed_weight(g, n, weight, tn_conv_packed_bytes(a), a->winograd ? WINOGRAD : a->nhwc ? TURNED : BY_PIXELS);
}

static void take_winograd(const tn_graph_plan *g, tn_native *n, bool pays) {
    n->conv.winograd = pays && g->binding->numerics == TN_NUMERICS_FAST;
    n->conv.winograd = n->conv.winograd && (int64_t)tn_conv_packed_bytes(&n->conv) <= PACK_LIMIT;
    if (n->conv.winograd) n->by = "winograd";
}

static void choose_path(const tn_graph_plan *g, tn_native *n, const tn_value *weight) {
    tn_conv_args *a = &n->conv;
    a->winograd = true; /* packed so */
    take_winograd(g, n, tn_conv_winograd_pays(a, may_keep_packed(g, a, weight)));
    a->nhwc = !a->winograd && tn_conv_prefers_nhwc(a);
    keep_packed(g, n, weight);
}

/* Sets the operands: as a product has them if it has its own result or an epilogue, else as other kernels have them. */
static void take_operands(tn_native *n, void *const *pointers) {
    bool joined = n->fused.program;
    n->conv.out = joined ? NULL : pointers[0];
    if (n->conv.pool[0] > 0) n->conv.out = pointers[TN_PRODUCT_C];
    if (joined && n->joined_out) n->conv.out = pointers[TN_PRODUCT_POINTERS + n->joined_out - 1];
    n->conv.x = pointers[joined ? TN_PRODUCT_A : 1];
    n->conv.weight = pointers[joined ? TN_PRODUCT_B : 2];
    n->conv.packed = n->weight.memory;
    n->conv.workspace = pointers[TN_PRODUCT_WORKSPACE];
}

static void run_conv2d_forward(tn_native *n, void *const *pointers) {
    take_operands(n, pointers);
    tn_conv(&n->conv);
}

static void swap64(int64_t pair[2]) {
    int64_t first = pair[0];
    pair[0] = pair[1];
    pair[1] = first;
}

static void run_conv2d_depthwise(tn_native *n, void *const *pointers) {
    take_operands(n, pointers);
    tn_conv_depthwise(&n->conv);
}

/* Transposes images of one column, because the kernel runs along the last axis. The order of taps is the same. */
static void lie_down(tn_conv_args *a) {
    if (a->size[1] != 1 || a->kernel[1] != 1 || a->out_size[1] != 1 || a->pad_before[1] != 0) return;
    int64_t *const pairs[] = {a->size,       a->kernel,   a->out_size,     a->stride,
                              a->pad_before, a->dilation, &a->x_stride[2], &a->weight_stride[2]};
    for (size_t i = 0; i < TN_COUNT(pairs); i++)
        swap64(pairs[i]);
}

/* ---- what is joined ---------------------------------------------------------------------------------------------- */

/* Axes of an epilogue, as of a product whose lead has the same dims: two unused ones, images, channels, rows, columns.
 * Kernels use only a flat index of output pixels. */
enum { AXIS_IMAGES = TN_GEMM_BATCH_AXES - 2, AXIS_CHANNELS, AXIS_ROWS, AXIS_COLUMNS, AXES };

/* An access's strides over images, channels and output pixels. false: output pixels are not at one distance. */
static bool along_pixels(int64_t *stride, int64_t rows, int64_t columns) {
    int64_t place = columns > 1 ? stride[AXIS_COLUMNS] : stride[AXIS_ROWS];
    if (rows > 1 && columns > 1 && stride[AXIS_ROWS] != place * columns) return false;
    stride[AXIS_COLUMNS] = place;
    stride[AXIS_ROWS] = stride[AXIS_CHANNELS];
    stride[AXIS_CHANNELS] = stride[AXIS_IMAGES];
    stride[AXIS_IMAGES] = 0;
    return true;
}

enum { BLOCK_PIXELS = 256, LARGE = 2048, LARGE_EACH = 512, LANES = 16 };

static bool blocks_are_large(const tn_node *n) {
    const window_pixels *at = n->op == TN_OP_INT_CONV2D ? &of_int_conv2d : &of_conv2d_forward;
    tn_conv_args a = sizes_of(n, at, n->in[0], n, n->in[1]);
    int64_t out_pixels = a.out_size[0] * a.out_size[1];
    if (is_depthwise_alone(&a)) /* some channels at a time */
        return out_pixels >= LARGE || (a.groups >= LANES && LANES * out_pixels >= LARGE_EACH);
    return a.out_channels * tn_min64(out_pixels, BLOCK_PIXELS) >= (a.groups > 1 ? LARGE_EACH : LARGE);
}

static bool planes_are_large(const tn_node *n) {
    return n->rank == 4 && n->dtype == TN_F32 && n->shape[2] * n->shape[3] >= LARGE;
}

static bool fit_epilogue(const tn_node *lead, const tn_group *group) {
    const kir_program *p = group->lowered.program;
    int64_t *sizes = group->lowered.sizes, batch = lead->shape[0], channels = lead->shape[1];
    int64_t rows = lead->shape[2], columns = lead->shape[3];
    if (p->n_par != AXES || p->n_loop != 0) return false;
    for (int i = 0; i < p->n_sized; i++) {
        int64_t *stride = sizes + AXES + i * (AXES + 1) + 1;
        bool block = p->access[i].buffer == group->lowered.block_buffer; /* rows and columns of the kernel's already */
        if (!block && !along_pixels(stride, rows, columns)) return false;
    }
    memcpy(sizes, (const int64_t[AXES]){1, 1, 1, batch, channels, rows * columns}, AXES * sizeof *sizes);
    return true;
}

/* One more than the index of the buffer that holds the epilogue's only result, with the convolution's layout; 0:
 * none. */
static int only_result(const kir_program *p, const int64_t *sizes) {
    const kir_access *to = NULL;
    for (int i = 0; i < p->n_ins; i++) {
        if (p->ins[i].op != KIR_STORE) continue;
        if (to) return 0;
        to = &p->access[p->ins[i].imm.i];
    }
    if (!to || to->dyn != KIR_NONE || p->buffer_dtype[to->buffer] != TN_F32) return 0;
    const int64_t *stride = kir_sizes_access(p, sizes, (int)(to - p->access)) + 1;
    int64_t batch = sizes[AXIS_CHANNELS], channels = sizes[AXIS_ROWS], out_pixels = sizes[AXIS_COLUMNS];
    bool alike = stride[-1] == 0 && stride[AXIS_COLUMNS] == 1 && stride[AXIS_ROWS] == out_pixels &&
                 (batch == 1 || stride[AXIS_CHANNELS] == channels * out_pixels);
    return alike ? to->buffer + 1 : 0;
}

const tn_native_epilogue tn_conv2d_epilogue = {blocks_are_large, fit_epilogue};
const tn_native_epilogue tn_max_pool2d_epilogue = {planes_are_large, fit_epilogue};

/* Of a product whose rows are output pixels, and its columns channels. */
static void swap_epilogue(tn_native *n, const kir_program *p, int block_buffer) {
    int64_t *axis = n->fused.sizes;
    for (int i = -1; i < p->n_sized; i++) {
        if (i >= 0) axis = n->fused.sizes + AXES + i * (AXES + 1) + 1;
        if (i >= 0 && p->access[i].buffer == block_buffer) continue;
        int64_t channels = axis[AXIS_ROWS];
        axis[AXIS_ROWS] = axis[AXIS_COLUMNS];
        axis[AXIS_COLUMNS] = channels;
    }
}

/* ---- few output pixels ------------------------------------------------------------------------------------------- */

/* The kernel's tiles are filters × output pixels, so with few output pixels most of a tile is empty. Then im2col is
 * written out, one output pixel per row, and multiplied with the filters as columns. The chains run through the same k,
 * so the bits are equal. */
static void pack_columns(const tn_packed_weight *weight_form, const void *from, void *to) {
    const int64_t *w = weight_form->word;
    int64_t k = w[PACKED_CHANNELS] * w[PACKED_KERNEL] * w[PACKED_KERNEL + 1];
    tn_gemm_args args = {.batch = {1, 1, 1, 1}, .m = 1, .n = w[PACKED_OUT_CHANNELS], .k = k, .packed_b = to};
    args.b.data = (char *)(uintptr_t)from + w[PACKED_OFFSET];
    args.b.row_stride = 1;
    args.b.col_stride = k;
    tn_gemm_pack(&args, TN_F32);
}

/* im2col of one output pixel: (channel, kernel row, kernel column). */
static void write_window(const tn_conv_args *a, const float *x, int64_t row, int64_t column, float *to) {
    for (int64_t c = 0; c < a->channels; c++, x += a->x_stride[1])
        for (int64_t i = 0; i < a->kernel[0]; i++) {
            int64_t v = row * a->stride[0] - a->pad_before[0] + i * a->dilation[0];
            bool inside = v >= 0 && v < a->size[0];
            for (int64_t j = 0; j < a->kernel[1]; j++) {
                int64_t h = column * a->stride[1] - a->pad_before[1] + j * a->dilation[1];
                bool seen = inside && h >= 0 && h < a->size[1];
                *to++ = seen ? x[v * a->x_stride[2] + h * a->x_stride[3]] : 0;
            }
        }
}

static void run_few_pixels(tn_native *n, void *const *pointers) {
    const tn_conv_args *a = &n->conv;
    tn_gemm_args *product = &n->few_pixels;
    take_operands(n, pointers);
    const float *x = a->x;
    float *to = a->workspace;
    product->a.data = to;
    for (int64_t image = 0; image < a->batch; image++, x += a->x_stride[0])
        for (int64_t place = 0; place < a->out_size[0] * a->out_size[1]; place++, to += product->k)
            write_window(a, x, place / a->out_size[1], place % a->out_size[1], to);
    product->b.data = (void *)(uintptr_t)a->weight;
    product->c.data = a->out;
    product->packed_b = n->weight.memory;
    product->workspace = (char *)a->workspace + n->weight.at;
    tn_gemm_f32(product);
}

static bool has_few_pixels(const tn_graph_plan *g, const tn_conv_args *a, const tn_value *weight) {
    int64_t out_pixels = a->out_size[0] * a->out_size[1];
    return a->groups == 1 && out_pixels <= FEW_PIXELS && a->batch * out_pixels <= FEW_PIXELS &&
           tn_value_dense(weight) && tn_native_may_pack(g, g->values[weight->root].slot) &&
           a->out_channels >= FEW_PIXELS &&
           (int64_t)tn_gemm_packed_bytes(a->out_channels, a->channels * a->kernel[0] * a->kernel[1], TN_F32) <=
               PACK_LIMIT;
}

static tn_status make_few_pixels(const tn_graph_plan *g, const tn_group *group, tn_native *n, const tn_value *weight,
                                 size_t *workspace) {
    const tn_conv_args *a = &n->conv;
    int64_t out_pixels = a->out_size[0] * a->out_size[1], k = a->channels * a->kernel[0] * a->kernel[1];
    n->run = run_few_pixels;
    n->few_pixels = (tn_gemm_args){.batch = {1, 1, 1, a->batch}, .m = out_pixels, .n = a->out_channels, .k = k};
    n->few_pixels.a = (tn_matrix){.batch_stride = {0, 0, 0, out_pixels * k}, .row_stride = k, .col_stride = 1};
    n->few_pixels.b = (tn_matrix){.row_stride = 1, .col_stride = k};
    n->few_pixels.c =
        (tn_matrix){.batch_stride = {0, 0, 0, out_pixels * a->out_channels}, .row_stride = 1, .col_stride = out_pixels};
    TRY(tn_native_join(n, group, &n->few_pixels.c.fused));
    if (n->fused.program) swap_epilogue(n, group->lowered.program, group->lowered.block_buffer);
    n->weight.slot = g->values[weight->root].slot;
    n->weight.packed = (tn_packed_weight){
        .make = pack_columns,
        .bytes = tn_gemm_packed_bytes(a->out_channels, k, TN_F32),
        .word = {1, a->out_channels, a->channels, a->kernel[0], a->kernel[1], (int64_t)tn_native_byte_offset(weight)}};
    n->weight.target = &n->weight.memory;
    n->weight.valid = true;
    n->few_pixels.packed_valid = &n->weight.valid;
    n->weight.at = tn_whole_lines((size_t)(a->batch * out_pixels * k) * sizeof(float));
    *workspace = n->weight.at + tn_gemm_workspace(&n->few_pixels, TN_F32, tn_threads());
    return TN_OK;
}

/* ---- one tap ----------------------------------------------------------------------------------------------------- */

static void run_one_tap(tn_native *n, void *const *pointers) {
    tn_gemm_args *product = &n->few_pixels;
    take_operands(n, pointers);
    product->a.data = (void *)(uintptr_t)n->conv.weight;
    product->b.data = (void *)(uintptr_t)n->conv.x;
    product->c.data = n->conv.out;
    product->workspace = n->conv.workspace;
    tn_gemm_f32(product);
}

/* Filters times images with contiguous output pixels: the epilogue's axes are those of the product. */
static tn_status make_one_tap(const tn_group *group, tn_native *n, size_t *workspace) {
    const tn_conv_args *a = &n->conv;
    int64_t out_pixels = a->out_size[0] * a->out_size[1], last = TN_GEMM_BATCH_AXES - 1;
    n->run = run_one_tap;
    n->few_pixels =
        (tn_gemm_args){.batch = {1, 1, 1, a->batch}, .m = a->out_channels, .n = out_pixels, .k = a->channels};
    n->few_pixels.a = (tn_matrix){.row_stride = a->weight_stride[0], .col_stride = a->weight_stride[1]};
    n->few_pixels.b = (tn_matrix){.row_stride = a->x_stride[1], .col_stride = a->x_stride[3]};
    n->few_pixels.c = (tn_matrix){.row_stride = out_pixels, .col_stride = 1};
    n->few_pixels.b.batch_stride[last] = a->x_stride[0];
    n->few_pixels.c.batch_stride[last] = a->out_channels * out_pixels;
    TRY(tn_native_join_product(n, group, &n->few_pixels.c.fused));
    *workspace = tn_gemm_workspace(&n->few_pixels, TN_F32, tn_threads());
    return TN_OK;
}

static bool pixels_follow(const tn_conv_args *a) {
    return a->size[0] == 1 || a->x_stride[2] == a->size[1] * a->x_stride[3];
}

/* Windows of one tap do not ask where rows end: with filters as columns, all output pixels of an image are one row. */
static bool flattens(tn_conv_args *a) {
    const tn_conv_args flat = in_one_row(a);
    if (!tn_conv_tap_prefers_nhwc(&flat)) return false;
    *a = flat;
    return true;
}

/* Of an epilogue whose only result lies as the convolution's would, or in the block that is pooled. */
static bool reads_epilogue(tn_native *n, const tn_group *group) {
    if (!n->fused.program || (group->pool < 0 && !n->joined_out)) return false;
    bool read =
        tn_epilogue_read_channels(group->lowered.program, n->fused.sizes, group->lowered.block_buffer, &n->fused.ops);
    return read && n->fused.ops.also.buffer < 0 &&
           (group->pool < 0 || n->fused.ops.to.buffer == group->lowered.block_buffer);
}

tn_status tn_make_conv2d_forward(const tn_graph_plan *g, const tn_group *group, tn_native *n, size_t *workspace) {
    const tn_value *y = &g->values[group->lead], *x = &g->values[y->in[0]], *weight = &g->values[y->in[1]];
    n->run = run_conv2d_forward;
    n->conv = sizes_of(y->node, &of_conv2d_forward, x->node, y->node, weight->node);
    memcpy(n->conv.x_stride, x->stride, sizeof n->conv.x_stride);
    take_weight(&n->conv, weight);
    bool each = takes_depthwise(y->node, &n->conv), one_tap = is_one_tap(&n->conv);
    if (group->pool >= 0)
        take_pool(&n->conv, g->values[group->pool].node);
    else
        lie_down(&n->conv);
    const bool cut = n->conv.weight_stride[1] != 1 && may_keep_packed(g, &n->conv, weight) && tn_conv_fits(&n->conv);
    if (one_tap && !cut && pixels_follow(&n->conv) && !flattens(&n->conv)) return make_one_tap(group, n, workspace);
    if (!each && group->pool < 0 && has_few_pixels(g, &n->conv, weight))
        return make_few_pixels(g, group, n, weight, workspace);
    TRY(tn_native_join(n, group, &n->conv.epilogue));
    if (n->fused.program && group->pool < 0) n->joined_out = only_result(group->lowered.program, n->fused.sizes);
    if (reads_epilogue(n, group)) n->conv.epilogue.epilogue_ops = &n->fused.ops;
    if (each) {
        n->run = run_conv2d_depthwise;
        *workspace = tn_conv_depthwise_workspace(&n->conv, tn_threads());
        return TN_OK;
    }
    choose_path(g, n, weight);
    *workspace = tn_conv_workspace(&n->conv, tn_threads());
    return TN_OK;
}

/* ---- bytes ------------------------------------------------------------------------------------------------------- */

static void run_int_conv2d(tn_native *n, void *const *pointers) {
    take_operands(n, pointers);
    tn_conv_bytes(&n->conv, n->conv_outside);
}

tn_status tn_make_int_conv2d(const tn_graph_plan *g, const tn_group *group, tn_native *n, size_t *workspace) {
    const tn_value *y = &g->values[group->lead], *x = &g->values[y->in[0]], *weight = &g->values[y->in[1]];
    n->run = run_int_conv2d;
    n->conv = sizes_of(y->node, &of_int_conv2d, x->node, y->node, weight->node);
    n->conv_outside = (uint8_t)y->node->i[TN_INT_CONV2D_OUTSIDE];
    memcpy(n->conv.x_stride, x->stride, sizeof n->conv.x_stride);
    take_weight(&n->conv, weight);
    TRY(tn_native_join(n, group, &n->conv.epilogue));
    size_t packed = tn_conv_bytes_packed_bytes(&n->conv);
    bool stays = tn_native_may_pack(g, g->values[weight->root].slot) && tn_value_dense(weight);
    if (stays && (int64_t)packed <= PACK_LIMIT) keep_packed_weight(g, n, weight, packed, QUADS);
    *workspace = tn_conv_bytes_workspace(&n->conv, tn_threads());
    return TN_OK;
}

static void run_quantized_conv2d(tn_native *n, void *const *pointers) {
    tn_byte_rounding rounding = {.bias = pointers[3], .scale = pointers[4], .zero = n->conv_zero};
    rounding.is_signed = n->conv.x_signed;
    n->conv_addend.data = pointers[5];
    if (n->conv_adds) rounding.addend = &n->conv_addend;
    n->conv.out = pointers[0];
    n->conv.x = pointers[1];
    n->conv.weight = pointers[2];
    n->conv.packed = n->weight.memory;
    n->conv.workspace = pointers[6];
    n->conv.rounding = &rounding;
    tn_conv_bytes(&n->conv, n->conv_outside);
}

tn_status tn_make_quantized_conv2d(const tn_graph_plan *g, const tn_group *group, tn_native *n, size_t *workspace) {
    const tn_value *y = &g->values[group->lead], *x = &g->values[y->in[0]], *weight = &g->values[y->in[1]];
    n->run = run_quantized_conv2d;
    n->conv = sizes_of_quantized(y->node);
    memcpy(n->conv.x_stride, x->stride, sizeof n->conv.x_stride);
    flatten_taps(&n->conv);
    n->conv_outside = (uint8_t)y->node->i[TN_QUANTIZED_CONV2D_OUTSIDE];
    n->conv_zero = (int32_t)y->node->i[TN_QUANTIZED_CONV2D_ZERO];
    n->conv_adds = y->in[TN_CONV_ADDEND] >= 0;
    n->conv_addend = (tn_byte_addend){.own_scale = (float)y->node->f[TN_QUANTIZED_CONV2D_OWN_SCALE],
                                      .scale = (float)y->node->f[TN_QUANTIZED_CONV2D_ADDEND_SCALE],
                                      .sum_scale = (float)y->node->f[TN_QUANTIZED_CONV2D_SUM_SCALE],
                                      .zero = (int32_t)y->node->i[TN_QUANTIZED_CONV2D_ADDEND_ZERO],
                                      .sum_zero = (int32_t)y->node->i[TN_QUANTIZED_CONV2D_SUM_ZERO]};
    n->conv_in_bytes = true;
    take_weight(&n->conv, weight);
    size_t packed = tn_conv_bytes_packed_bytes(&n->conv);
    bool stays = tn_native_may_pack(g, g->values[weight->root].slot) && tn_value_dense(weight);
    if (stays && (int64_t)packed <= PACK_LIMIT) keep_packed_weight(g, n, weight, packed, WINDOWS);
    *workspace = tn_conv_bytes_workspace(&n->conv, tn_threads());
    return TN_OK;
}

/* ---- blocks of channels ------------------------------------------------------------------------------------------ */
/* An image lies in blocks of channels (conv.h) if the kernel that makes it and all its readers support that:
 * convolutions, max poolings, epilogues that add it to results in blocks, in-place concatenations of whole blocks, all
 * of whose parts then lie in blocks, and what block_ops.c lists. Nothing is transposed, depthwise windows use every
 * lane of a vector, windows with a stride read whole vectors, and no cache line has pixels of two threads. */

static void run_max_pool2d(tn_native *n, void *const *pointers) {
    bool joined = n->fused.program;
    n->conv.out = joined ? NULL : pointers[0];
    n->conv.x = pointers[joined ? TN_PRODUCT_A : 1];
    n->conv.workspace = pointers[joined ? TN_PRODUCT_WORKSPACE : 2];
    if (n->conv_in_bytes)
        tn_conv_bytes(&n->conv, 0);
    else
        tn_conv_depthwise(&n->conv);
}

/* Whether each window reads only one channel. */
static bool is_each(const tn_native *n) { return n->run == run_conv2d_depthwise || n->run == run_max_pool2d; }

bool tn_conv_is_window(const tn_native *n) {
    return (is_each(n) && !n->conv_in_bytes) || n->run == run_one_tap || n->run == run_conv2d_forward;
}

/* Makes a convolution use the NHWC kernel, whichever path was chosen before. */
static void take_columns(const tn_graph_plan *g, const tn_group *group, tn_native *n, const tn_conv_args *sizes) {
    const tn_value *y = &g->values[group->lead], *weight = &g->values[y->in[1]];
    const bool product = n->run == run_one_tap;
    const tn_fused_program epilogue = product ? n->few_pixels.c.fused : n->conv.epilogue;
    n->conv = *sizes;
    n->conv.nhwc = true;
    n->conv.epilogue = epilogue;
    if (n->fused.program) n->fused.program = &n->conv.epilogue;
    n->run = run_conv2d_forward;
    if (n->fused.program) {
        n->conv.epilogue.epilogue_ops = NULL;
        if (group->pool < 0) n->joined_out = only_result(group->lowered.program, n->fused.sizes);
        if (reads_epilogue(n, group) || sizes->y_blocks) n->conv.epilogue.epilogue_ops = &n->fused.ops;
    }
    keep_packed(g, n, weight);
}

/* Sets the sizes of a convolution with filters as columns, if it can have them; of one tap: pixels in one row. */
static bool fits_columns(const tn_group *group, tn_conv_args *sizes, bool x_blocks, bool y_blocks) {
    const tn_native *n = group->run.native;
    if (n->run != run_one_tap && n->run != run_conv2d_forward) return false;
    if (group->row_fused || group->sibling || n->conv.winograd) return false;
    *sizes = n->conv;
    sizes->epilogue = (tn_fused_program){0};
    sizes->x_blocks = x_blocks;
    sizes->y_blocks = y_blocks;
    const tn_conv_args flat = in_one_row(sizes);
    if (n->run == run_one_tap && tn_conv_takes_blocks(&flat)) *sizes = flat;
    return tn_conv_takes_blocks(sizes);
}

/* Values that a convolution's group reads and computes; -1: none. */
typedef struct conv_images {
    int x, added, y; /* added: an image in the layout of the results that the epilogue adds to them */
    bool plain;      /* y is the only result, and its epilogue has only per-channel operations and `added`, or is … */
    bool flat;       /* … element-wise after the bias (tn_epilogue_read_flat) */
} conv_images;

static conv_images images_of(const tn_graph_plan *g, const tn_group *group) {
    const tn_native *n = group->run.native;
    conv_images at = {.x = g->values[group->lead].in[0], .added = -1, .y = -1};
    tn_fused_epilogue ops;
    int results = 0;
    for (size_t k = 0; k < group->member_count; k++) {
        if (!g->values[group->members[k]].stored) continue;
        at.y = group->members[k];
        results++;
    }
    at.plain = results == 1 && group->pool < 0;
    if (!at.plain || !n->fused.program) return at;
    const kir_program *p = group->lowered.program;
    at.plain = only_result(p, n->fused.sizes);
    if (!at.plain || tn_epilogue_read_channels(p, n->fused.sizes, group->lowered.block_buffer, &ops))
        at.flat = false;
    else
        at.plain = at.flat = tn_epilogue_read_flat(p, n->fused.sizes, group->lowered.block_buffer, &ops);
    if (at.plain && ops.also.buffer >= 0) at.added = group->lowered.buffer_values[ops.also.buffer];
    return at;
}

/* Whether a convolution reads this value only as its input image or as the image that its epilogue adds. */
static bool reads_as_image(const tn_graph_plan *g, const tn_group *group, int value) {
    const conv_images at = images_of(g, group);
    int others = 0;
    for (int b = 0; b < group->lowered.buffer_count && at.added != value; b++)
        others += group->lowered.buffer_values[b] == value;
    return (at.x == value || at.added == value) && others == 0 && g->values[group->lead].in[1] != value;
}

/* Whether v is computed in its place of a concatenation along the channels, and consists of whole blocks of it. */
static bool is_part_of_blocks(const tn_graph_plan *g, const tn_value *v) {
    const tn_node *n = v->node;
    const int64_t plane = n->shape[n->rank - 1] * n->shape[n->rank - 2] * (int64_t)sizeof(float);
    const int64_t block = tn_conv_block_elements(1, 1, plane);
    return tn_concat_of_channels(g, v) && (int64_t)v->memory.into_at % block == 0 && n->shape[1] * plane % block == 0 &&
           (tn_concat_is_in_place(g, v->memory.into) ||
            tn_block_op_has(g, &g->groups[g->values[v->memory.into].group], v->memory.into));
}

static bool may_be_in_blocks(const tn_graph_plan *g, const bool *convs, int value) {
    const tn_value *v = &g->values[value];
    const bool joined = v->row && tn_concat_is_in_place(g, value);
    if (!v->stored || v->output >= 0 || v->group < 0 || v->node->dtype != TN_F32 || v->node->rank != 4) return false;
    const tn_group *maker = &g->groups[v->group];
    const conv_images own = convs[v->group] ? images_of(g, maker) : (conv_images){.y = -1};
    const bool made = convs[v->group] ? own.y == value && own.plain : tn_block_op_has(g, maker, value);
    if (!joined && !made) return false;
    if (v->memory.into >= 0 && !is_part_of_blocks(g, v)) return false;
    for (int k = 0; k < v->fusion.pull_count; k++) {
        const int reader = v->fusion.pulls[k];
        if (tn_concat_reads(g, v, reader)) continue;
        const tn_group *group = &g->groups[reader];
        if (!(convs[reader] ? reads_as_image(g, group, value) : tn_block_op_has(g, group, value))) return false;
    }
    return v->fusion.pull_count > 0;
}

/* Whether the group's kernel can have those of its images in blocks that `blocked` names. *sizes: its sizes then. */
static bool fits_blocks(const tn_group *group, const conv_images *at, const bool *blocked, tn_conv_args *sizes) {
    const bool x = blocked[at->x], y = at->y >= 0 && blocked[at->y], each = is_each(group->run.native);
    const bool pools_into_program = group->run.native->run == run_max_pool2d && group->run.native->fused.program;
    if (at->added >= 0 && blocked[at->added] != y) return false;
    if (!x && !y) return true;
    if (y && (!at->plain || (each && at->added >= 0) || pools_into_program)) return false;
    if (!each) return fits_columns(group, sizes, x, y);
    *sizes = group->run.native->conv;
    sizes->x_blocks = x;
    sizes->y_blocks = y;
    return tn_conv_takes_blocks(sizes);
}

/* Takes images of a group whose kernel cannot have them in blocks out of `blocked`. */
static void take_out(const tn_group *group, const conv_images *at, bool *blocked) {
    tn_conv_args sizes;
    const bool y = at->y >= 0 && blocked[at->y];
    if (at->added >= 0 && blocked[at->added] != y) {
        blocked[at->added] = false;
        if (y) blocked[at->y] = false;
        return;
    }
    const bool x = blocked[at->x];
    blocked[at->x] = false;
    if (x && y && fits_blocks(group, at, blocked, &sizes)) return;
    if (y) blocked[at->y] = false;
}

/* Takes images out of `blocked` until the kernels of all groups can have the rest in blocks. */
static void agree_on_blocks(const tn_graph_plan *g, const bool *convs, bool *blocked) {
    tn_conv_args sizes;
    for (bool changed = true; changed;) {
        changed = tn_concat_agree(g, blocked);
        for (size_t i = 0; i < g->group_count; i++) {
            const tn_group *group = &g->groups[i];
            if (!convs[i]) {
                changed |= tn_block_op_agree(g, group, blocked);
                continue;
            }
            const conv_images at = images_of(g, group);
            if (fits_blocks(group, &at, blocked, &sizes)) continue;
            take_out(group, &at, blocked);
            changed = true;
        }
    }
}

/* Makes the epilogue `flat` (cpu_kernels.h): the kernel adds the bias, then the program runs over the results. */
static void flatten_epilogue(const tn_group *group, tn_native *n, int64_t elements) {
    const kir_program *p = group->lowered.program;
    tn_fused_epilogue ops;
    tn_epilogue_read_flat(p, n->fused.sizes, group->lowered.block_buffer, &ops);
    for (int i = 0; i < p->n_sized; i++) {
        int64_t *stride = n->fused.sizes + AXES + i * (AXES + 1) + 1;
        const int buffer = p->access[i].buffer;
        memset(stride, 0, AXES * sizeof *stride);
        stride[AXIS_COLUMNS] = buffer == group->lowered.block_buffer || buffer == ops.to.buffer;
        if (buffer == ops.add.buffer) stride[-1] = 0;
    }
    memcpy(n->fused.sizes, (const int64_t[AXES]){1, 1, 1, 1, 1, elements}, AXES * sizeof *n->fused.sizes);
    n->fused.ops = ops;
    n->conv.epilogue.epilogue_ops = &n->fused.ops;
    n->conv.epilogue.flat = true;
}

static void lie_in_blocks(const tn_graph_plan *g, tn_group *group, const bool *blocked) {
    tn_native *n = group->run.native;
    const conv_images at = images_of(g, group);
    tn_conv_args sizes;
    if (!blocked[at.x] && !(at.y >= 0 && blocked[at.y])) return;
    if (!fits_blocks(group, &at, blocked, &sizes)) return;
    if (is_each(n))
        n->conv = sizes;
    else
        take_columns(g, group, n, &sizes);
    const tn_node *y = g->values[group->lead].node;
    if (at.flat && blocked[at.y])
        flatten_epilogue(group, n, tn_conv_block_elements(y->shape[0], y->shape[1], y->shape[2] * y->shape[3]));
    group->run.workspace =
        is_each(n) ? tn_conv_depthwise_workspace(&n->conv, tn_threads()) : tn_conv_workspace(&n->conv, tn_threads());
    n->by = "in blocks of channels";
}

tn_status tn_conv_lay_in_blocks(const tn_graph_plan *g, const bool *convs, bool *blocked) {
    for (size_t i = 0; i < g->value_count; i++)
        blocked[i] = may_be_in_blocks(g, convs, (int)i);
    agree_on_blocks(g, convs, blocked);
    for (size_t i = 0; i < g->group_count; i++)
        if (convs[i])
            lie_in_blocks(g, &g->groups[i], blocked);
        else
            TRY(tn_block_op_lay(g, &g->groups[i], blocked));
    for (size_t i = 0; i < g->value_count; i++) {
        const tn_node *n = g->values[i].node;
        if (!blocked[i]) continue;
        const int64_t elements = tn_conv_block_elements(n->shape[0], n->shape[1], n->shape[2] * n->shape[3]);
        if (elements > tn_node_numel(n)) g->values[i].memory.padded = elements * (int64_t)sizeof(float);
    }
    return TN_OK;
}

/* ---- the greatest of each window --------------------------------------------------------------------------------- */

tn_status tn_make_max_pool2d(const tn_graph_plan *g, const tn_group *group, tn_native *n, size_t *workspace) {
    const tn_value *y = &g->values[group->lead], *x = &g->values[y->in[0]];
    int first = 4 - x->node->rank;
    n->run = run_max_pool2d;
    n->conv = sizes_of_pool(y->node);
    memcpy(n->conv.x_stride + first, x->stride, (size_t)x->node->rank * sizeof *x->stride);
    if (tn_dtype_is_byte(y->node->dtype)) {
        n->conv.x_signed = y->node->dtype == TN_I8;
        n->conv_in_bytes = true;
        *workspace = tn_conv_bytes_workspace(&n->conv, tn_threads());
        return TN_OK;
    }
    TRY(tn_native_join(n, group, &n->conv.epilogue));
    *workspace = tn_conv_depthwise_workspace(&n->conv, tn_threads());
    return TN_OK;
}

/* ---- gradients --------------------------------------------------------------------------------------------------- */

static void run_conv2d_dgrad(tn_native *n, void *const *pointers) {
    n->conv.out = pointers[0];
    n->conv.y = pointers[1];
    n->conv.weight = pointers[2];
    n->conv.workspace = pointers[3];
    tn_conv_dgrad(&n->conv);
}

tn_status tn_make_conv2d_dgrad(const tn_graph_plan *g, const tn_group *group, tn_native *n, size_t *workspace) {
    const tn_value *x = &g->values[group->lead], *y = &g->values[x->in[0]], *weight = &g->values[x->in[1]];
    n->run = run_conv2d_dgrad;
    n->conv = sizes_of(x->node, &of_conv2d_dgrad, x->node, y->node, weight->node);
    memcpy(n->conv.y_stride, y->stride, sizeof n->conv.y_stride);
    take_weight(&n->conv, weight);
    take_winograd(g, n, tn_conv_dgrad_winograd_pays(&n->conv));
    *workspace = tn_conv_dgrad_workspace(&n->conv, tn_threads());
    return TN_OK;
}

/* ---- the gradient of the weight ---------------------------------------------------------------------------------- */

static void run_conv2d_wgrad(tn_native *n, void *const *pointers) {
    n->conv.out = pointers[0];
    n->conv.x = pointers[1];
    n->conv.y = pointers[2];
    n->conv.workspace = pointers[3];
    tn_conv_wgrad(&n->conv);
}

tn_status tn_make_conv2d_wgrad(const tn_graph_plan *g, const tn_group *group, tn_native *n, size_t *workspace) {
    const tn_value *weight = &g->values[group->lead], *x = &g->values[weight->in[0]], *y = &g->values[weight->in[1]];
    n->run = run_conv2d_wgrad;
    n->conv = sizes_of(weight->node, &of_conv2d_wgrad, x->node, y->node, weight->node);
    memcpy(n->conv.x_stride, x->stride, sizeof n->conv.x_stride);
    memcpy(n->conv.y_stride, y->stride, sizeof n->conv.y_stride);
    take_winograd(g, n, tn_conv_wgrad_winograd_pays(&n->conv));
    *workspace = tn_conv_wgrad_workspace(&n->conv, tn_threads());
    return TN_OK;
}
