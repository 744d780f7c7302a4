/* cudnn.c — NVIDIA's cuDNN, versions 8 and 9: convolutions on CUDA devices.
 *
 * Of its two interfaces the older one: a convolution is a call, and what it is made of are descriptors. Its heuristics
 * list algorithms, the fastest first. Taken is the first one that adds products in f32 (none that transforms images,
 * as Winograd's and Fourier's do, whose errors have other bounds), without TF32, with a bearable workspace, and gives
 * the same bits each time; if all of them may vary, the first. tools/checks/gpu_headers.py compares the declarations
 * with NVIDIA's headers where those are. */
#include "vendor/vendor.h"

#if TRUNNION_WITH_CUDA

typedef struct cudnn_answer {
    int algorithm, state; /* 0: the rest counts */
    float time;
    size_t workspace;
    int same_bits, math;
    int reserved[3];
} cudnn_answer;

/* X(field, name, parameters). Of what is there for each way, the rows follow each other in the order of tn_vendor_way;
 * descriptors stand in the order of a call's pointers, the result's last. */
#define CALLS(X)                                                                                                     \
    X(open, "cudnnCreate", (void **handle))                                                                          \
    X(close, "cudnnDestroy", (void *handle))                                                                         \
    X(set_stream, "cudnnSetStream", (void *handle, void *stream))                                                    \
    X(tensor_new, "cudnnCreateTensorDescriptor", (void **tensor))                                                    \
    X(tensor_free, "cudnnDestroyTensorDescriptor", (void *tensor))                                                   \
    X(tensor_set, "cudnnSetTensor4dDescriptor",                                                                      \
      (void *tensor, int format, int type, int n, int channels, int height, int width))                              \
    X(filter_new, "cudnnCreateFilterDescriptor", (void **filter))                                                    \
    X(filter_free, "cudnnDestroyFilterDescriptor", (void *filter))                                                   \
    X(filter_set, "cudnnSetFilter4dDescriptor",                                                                      \
      (void *filter, int type, int format, int out, int channels, int height, int width))                            \
    X(conv_new, "cudnnCreateConvolutionDescriptor", (void **conv))                                                   \
    X(conv_free, "cudnnDestroyConvolutionDescriptor", (void *conv))                                                  \
    X(conv_set, "cudnnSetConvolution2dDescriptor",                                                                   \
      (void *conv, int down, int across, int stride_down, int stride_across, int dilation_down, int dilation_across, \
       int mode, int sums))                                                                                          \
    X(conv_groups, "cudnnSetConvolutionGroupCount", (void *conv, int groups))                                        \
    X(conv_math, "cudnnSetConvolutionMathType", (void *conv, int math))                                              \
    X(choose, "cudnnGetConvolutionForwardAlgorithm_v7",                                                              \
      (void *handle, void *a, void *b, void *conv, void *out, int most, int *count, cudnn_answer *answers))          \
    X(choose_images, "cudnnGetConvolutionBackwardDataAlgorithm_v7",                                                  \
      (void *handle, void *a, void *b, void *conv, void *out, int most, int *count, cudnn_answer *answers))          \
    X(choose_filters, "cudnnGetConvolutionBackwardFilterAlgorithm_v7",                                               \
      (void *handle, void *a, void *b, void *conv, void *out, int most, int *count, cudnn_answer *answers))          \
    X(measure, "cudnnGetConvolutionForwardWorkspaceSize",                                                            \
      (void *handle, void *a, void *b, void *conv, void *out, int algorithm, size_t *bytes))                         \
    X(measure_images, "cudnnGetConvolutionBackwardDataWorkspaceSize",                                                \
      (void *handle, void *a, void *b, void *conv, void *out, int algorithm, size_t *bytes))                         \
    X(measure_filters, "cudnnGetConvolutionBackwardFilterWorkspaceSize",                                             \
      (void *handle, void *a, void *b, void *conv, void *out, int algorithm, size_t *bytes))                         \
    X(compute, "cudnnConvolutionForward",                                                                            \
      (void *handle, const void *alpha, void *a_desc, const void *a, void *b_desc, const void *b, void *conv,        \
       int algorithm, void *workspace, size_t bytes, const void *beta, void *out_desc, void *out))                   \
    X(compute_images, "cudnnConvolutionBackwardData",                                                                \
      (void *handle, const void *alpha, void *a_desc, const void *a, void *b_desc, const void *b, void *conv,        \
       int algorithm, void *workspace, size_t bytes, const void *beta, void *out_desc, void *out))                   \
    X(compute_filters, "cudnnConvolutionBackwardFilter",                                                             \
      (void *handle, const void *alpha, void *a_desc, const void *a, void *b_desc, const void *b, void *conv,        \
       int algorithm, void *workspace, size_t bytes, const void *beta, void *out_desc, void *out))

enum { /* as NVIDIA numbers them */
       CUDNN_TENSOR_NCHW = 0,
       CUDNN_DATA_FLOAT = 0,
       CUDNN_DATA_HALF = 2,
       CUDNN_DATA_BFLOAT16 = 9,
       CUDNN_CROSS_CORRELATION = 1,
       CUDNN_TENSOR_OP_MATH = 1,
       CUDNN_FMA_MATH = 3,
       CUDNN_DETERMINISTIC = 1,
       CUDNN_CONVOLUTION_FWD_ALGO_DIRECT = 3, /* the last but those that transform */
       CUDNN_CONVOLUTION_BWD_DATA_ALGO_1 = 1,
       CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1 = 1,
       CUDNN_CONVOLUTION_BWD_FILTER_ALGO_3 = 3 /* 2 is Fourier's */
};

static const tn_vendor_error errors[] = {
    /* version 8 */
    {1, "CUDNN_STATUS_NOT_INITIALIZED", TN_ERR_UNAVAILABLE},
    {2, "CUDNN_STATUS_ALLOC_FAILED", TN_ERR_MEMORY},
    {3, "CUDNN_STATUS_BAD_PARAM", TN_ERR_UNSUPPORTED},
    {4, "CUDNN_STATUS_INTERNAL_ERROR", TN_ERR_DEVICE},
    {6, "CUDNN_STATUS_ARCH_MISMATCH", TN_ERR_UNSUPPORTED},
    {8, "CUDNN_STATUS_EXECUTION_FAILED", TN_ERR_DEVICE},
    {9, "CUDNN_STATUS_NOT_SUPPORTED", TN_ERR_UNSUPPORTED},
    /* version 9, by thousands */
    {1001, "CUDNN_STATUS_NOT_INITIALIZED", TN_ERR_UNAVAILABLE},
    {2000, "CUDNN_STATUS_BAD_PARAM", TN_ERR_UNSUPPORTED},
    {3000, "CUDNN_STATUS_NOT_SUPPORTED", TN_ERR_UNSUPPORTED},
    {3007, "CUDNN_STATUS_ARCH_MISMATCH", TN_ERR_UNSUPPORTED},
    {4000, "CUDNN_STATUS_INTERNAL_ERROR", TN_ERR_DEVICE},
    {4003, "CUDNN_STATUS_ALLOC_FAILED", TN_ERR_MEMORY},
    {4004, "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED", TN_ERR_MEMORY},
    {5000, "CUDNN_STATUS_EXECUTION_FAILED", TN_ERR_DEVICE},
    {0, NULL, TN_OK},
};

static const char *const names[] = {
    "libcudnn.so.9",
    "site-packages/nvidia/cudnn/lib/libcudnn.so.9",
    "libcudnn.so.8",
    "site-packages/nvidia/cudnn/lib/libcudnn.so.8",
    "/usr/local/cuda*/lib64/libcudnn.so",
    NULL,
};

TN_VENDOR_CALLS(CALLS);

#define CHECK(number, code) tn_vendor_check(&tn_vendor_cudnn, errors, code, symbols[number].name)
#define CALL(field, arguments) CHECK(CALL_##field, calls.field arguments)
/* Of a way. */
#define CALL_FOR(way, field, arguments)                                                 \
    CHECK(CALL_##field + (int)(way), ((way) == TN_VENDOR_RESULTS ? calls.field          \
                                      : (way) == TN_VENDOR_INPUT ? calls.field##_images \
                                                                 : calls.field##_filters) arguments)

static tn_status dnn_open(TN_UNUSED const tn_lent *lent, void **handle) { return CALL(open, (handle)); }

static void dnn_close(TN_UNUSED const tn_lent *lent, void *handle) { (void)calls.close(handle); }

/* ---- choosing ---------------------------------------------------------------------------------------------------- */

typedef struct dnn_call {
    tn_vendor_way way;
    void *input, *results, *weight, *conv;
    /* some of them: the result's, then those of what is read, as the library wants them */
    void *format[TN_VENDOR_SIDES];
    int swapped; /* it wants these the other way round than we have them */
    int algorithm, type;
    size_t workspace;
} dnn_call;

static void dnn_free(void *call) {
    dnn_call *c = call;
    if (c->input) (void)calls.tensor_free(c->input);
    if (c->results) (void)calls.tensor_free(c->results);
    if (c->weight) (void)calls.filter_free(c->weight);
    if (c->conv) (void)calls.conv_free(c->conv);
    tn_mem_free(c);
}

static tn_status add_tensor(dnn_call *c, void **tensor, const int *n) {
    TRY(CALL(tensor_new, (tensor)));
    return CALL(tensor_set, (*tensor, CUDNN_TENSOR_NCHW, c->type, n[0], n[1], n[2], n[3]));
}

static tn_status describe_cudnn(dnn_call *c, const tn_vendor_conv *v) {
    const int *f = v->weight, *pad = v->padding, *stride = v->stride, *dilation = v->dilation;
    c->type = v->dtype == TN_F16 ? CUDNN_DATA_HALF : v->dtype == TN_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_FLOAT;
    TRY(add_tensor(c, &c->input, v->input));
    TRY(add_tensor(c, &c->results, v->results));
    TRY(CALL(filter_new, (&c->weight)));
    TRY(CALL(filter_set, (c->weight, c->type, CUDNN_TENSOR_NCHW, f[0], f[1], f[2], f[3])));
    TRY(CALL(conv_new, (&c->conv)));
    TRY(CALL(conv_set, (c->conv, pad[0], pad[1], stride[0], stride[1], dilation[0], dilation[1],
                        CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT)));
    if (v->groups > 1) TRY(CALL(conv_groups, (c->conv, v->groups)));
    return CALL(conv_math, (c->conv, v->dtype == TN_F32 ? CUDNN_FMA_MATH : CUDNN_TENSOR_OP_MATH));
}

/* Our pointers of the gradient of images are results, filters; the library's filters, results. */
static void order(dnn_call *c) {
    void *const descriptors[][TN_VENDOR_SIDES] = {
        [TN_VENDOR_RESULTS] = {c->results, c->input, c->weight},
        [TN_VENDOR_INPUT] = {c->input, c->weight, c->results},
        [TN_VENDOR_WEIGHT] = {c->weight, c->input, c->results},
    };
    for (int i = 0; i < TN_VENDOR_SIDES; i++)
        c->format[i] = descriptors[c->way][i];
    c->swapped = c->way == TN_VENDOR_INPUT;
}

static bool adds_products(const dnn_call *c, const cudnn_answer *a) {
    enum { MOST = 256 << 20 }; /* bytes of workspace */
    if (a->state != 0 || a->workspace > MOST || (c->type == CUDNN_DATA_FLOAT && a->math != CUDNN_FMA_MATH))
        return false;
    switch (c->way) {
    case TN_VENDOR_RESULTS: return a->algorithm <= CUDNN_CONVOLUTION_FWD_ALGO_DIRECT;
    case TN_VENDOR_INPUT: return a->algorithm <= CUDNN_CONVOLUTION_BWD_DATA_ALGO_1;
    case TN_VENDOR_WEIGHT: break;
    }
    return a->algorithm <= CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1 || a->algorithm == CUDNN_CONVOLUTION_BWD_FILTER_ALGO_3;
}

static tn_status choose(dnn_call *c, void *handle) {
    enum { MOST = 16 };
    cudnn_answer answers[MOST];
    const cudnn_answer *best = NULL;
    int count = 0;
    void **descriptor = c->format;
    TRY(CALL_FOR(c->way, choose,
                 (handle, descriptor[1], descriptor[2], c->conv, descriptor[0], MOST, &count, answers)));
    for (int i = 0; i < count; i++) {
        bool same_bits = answers[i].same_bits == CUDNN_DETERMINISTIC;
        if (!adds_products(c, &answers[i]) || (best && (best->same_bits == CUDNN_DETERMINISTIC || !same_bits)))
            continue;
        best = &answers[i];
    }
    if (!best) return tn_fail(TN_ERR_UNSUPPORTED, "%s: no algorithm for this problem", tn_vendor_cudnn.spec.title);
    c->algorithm = best->algorithm;
    TRY(CALL(conv_math, (c->conv, best->math)));
    return CALL_FOR(c->way, measure,
                    (handle, descriptor[1], descriptor[2], c->conv, descriptor[0], c->algorithm, &c->workspace));
}

static tn_status dnn_make(void *handle, TN_UNUSED const tn_lent *lent, const tn_vendor_conv *v, void **call,
                          size_t *workspace) {
    dnn_call *c = tn_mem_zalloc(1, sizeof *c);
    if (!c) return TN_ERR_MEMORY;
    *call = c;
    c->way = v->way;
    TRY(describe_cudnn(c, v));
    order(c);
    TRY(choose(c, handle));
    *workspace = c->workspace;
    return TN_OK;
}

static tn_status dnn_run(void *handle, const tn_lent *lent, const void *call, void *const *pointers) {
    static const float one = 1, zero = 0;
    const dnn_call *c = call;
    void *const *descriptor = c->format;
    TRY(CALL(set_stream, (handle, lent->stream)));
    return CALL_FOR(c->way, compute,
                    (handle, &one, descriptor[1], pointers[1 + c->swapped], descriptor[2], pointers[2 - c->swapped],
                     c->conv, c->algorithm, pointers[TN_VENDOR_WORKSPACE], c->workspace, &zero, descriptor[0],
                     pointers[0]));
}

const tn_vendor_library tn_vendor_cudnn = {
    .name = "cudnn",
    .backend = "cuda",
    .spec = {"NVIDIA cuDNN", "TRUNNION_CUDNN_LIB", names, symbols, TN_COUNT(symbols),
             "pip install nvidia-cudnn-cu13 (CUDA 12: nvidia-cudnn-cu12), or NVIDIA's package libcudnn9"},
    .open = dnn_open,
    .close = dnn_close,
    .make_conv = dnn_make,
    .run = dnn_run,
    .free = dnn_free,
};

#endif
