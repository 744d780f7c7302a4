/* gpu_dnn.c — of the double of CUDA: cuDNN's convolutions, with version 9's numbers of errors.
 *
 * As in gpu_blas.c, work waits in a stream, is done over memory that must be the device's, adds in f32 from the last
 * to the first, and overwrites the workspace. The heuristics list algorithms that Trunnion must pass over before the
 * one that it may take: one that transforms, one that failed, one of other bits each time, one that wants too much. To
 * compute with any of those, with other mathematics than was listed, or with less workspace, is a misuse. */
#include "gpu_blas.h"

#include <stdlib.h>
#include <string.h>

enum { NOT_INITIALISED = 1001, BAD_PARAM = 2000, NO_ALGORITHM = 3000, ALLOC_FAILED = 4004 };
enum { RESULTS, IMAGES, FILTERS }; /* what is made */
enum { WORKSPACE = 4096, GOOD_ALGORITHM = 1, FMA = 3, TENSOR_OP = 1, ALIGNMENT = 16 };

typedef struct tensor {
    bool filter;
    blas_type type;
    int n[4];
} tensor;

typedef struct conv {
    int padding[2], stride[2], dilation[2], groups, math;
} conv;

typedef struct handle {
    gpu_object object;
    void *stream;
} handle;

/* A convolution put into a stream. */
typedef struct task {
    int made;
    tensor x, w, y;
    conv c;
    const char *data[3]; /* of x, w, y */
    char *workspace;
    size_t workspace_bytes;
} task;

static int status_of(int error) {
    return error == E_MEMORY ? ALLOC_FAILED : error == E_CONTEXT ? NOT_INITIALISED : error ? BAD_PARAM : 0;
}

/* An injected fault is a status of the library's already. */
#define ENTER_DNN(needs)                                                                      \
    gpu_call call __attribute__((cleanup(gpu_leave), unused)) = gpu_enter(__func__, (needs)); \
    if (call.error) return call.error

int cudnnCreate(void **out) {
    ENTER_DNN(NEEDS_CONTEXT);
    *out = gpu_object_new(call.context, OBJECT_LIBRARY, sizeof(handle));
    return *out ? 0 : ALLOC_FAILED;
}

int cudnnDestroy(void *h) {
    ENTER_DNN(NEEDS_CONTEXT | GIVES_BACK);
    int error = gpu_check(&call, h, OBJECT_LIBRARY);
    if (error) return status_of(error);
    gpu_object_remove(h);
    free(h);
    return 0;
}

int cudnnSetStream(void *h, void *stream) {
    ENTER_DNN(NEEDS_CONTEXT);
    int error = gpu_check(&call, h, OBJECT_LIBRARY);
    if (!error) ((handle *)h)->stream = stream;
    return status_of(error);
}

/* ---- descriptors ------------------------------------------------------------------------------------------------- */

static int make(void **out, size_t bytes) {
    *out = blas_part_new(bytes);
    return *out ? 0 : ALLOC_FAILED;
}

static int set(const gpu_call *call, tensor *t, bool filter, int type, int format, const int n[4]) {
    bool known = type == 0 || type == 2 || type == 9;
    if (!known || format != 0 || n[0] < 1 || n[1] < 1 || n[2] < 1 || n[3] < 1)
        return gpu_misuse(call, BAD_PARAM, "type %d, format %d, [%d, %d, %d, %d]", type, format, n[0], n[1], n[2],
                          n[3]);
    *t = (tensor){.filter = filter, .type = type == 0 ? BLAS_F32 : type == 2 ? BLAS_F16 : BLAS_BF16};
    memcpy(t->n, n, sizeof t->n);
    return 0;
}

int cudnnCreateTensorDescriptor(void **out) {
    ENTER_DNN(NEEDS_NOTHING);
    return make(out, sizeof(tensor));
}

int cudnnDestroyTensorDescriptor(void *t) {
    ENTER_DNN(GIVES_BACK);
    return blas_part_free(t);
}

int cudnnSetTensor4dDescriptor(void *t, int format, int type, int n, int c, int h, int w) {
    ENTER_DNN(NEEDS_NOTHING);
    return set(&call, t, false, type, format, (int[]){n, c, h, w});
}

int cudnnCreateFilterDescriptor(void **out) {
    ENTER_DNN(NEEDS_NOTHING);
    return make(out, sizeof(tensor));
}

int cudnnDestroyFilterDescriptor(void *t) {
    ENTER_DNN(GIVES_BACK);
    return blas_part_free(t);
}

int cudnnSetFilter4dDescriptor(void *t, int type, int format, int k, int c, int h, int w) {
    ENTER_DNN(NEEDS_NOTHING);
    return set(&call, t, true, type, format, (int[]){k, c, h, w});
}

int cudnnCreateConvolutionDescriptor(void **out) {
    ENTER_DNN(NEEDS_NOTHING);
    int status = make(out, sizeof(conv));
    if (!status) *(conv *)*out = (conv){.groups = 1};
    return status;
}

int cudnnDestroyConvolutionDescriptor(void *c) {
    ENTER_DNN(GIVES_BACK);
    return blas_part_free(c);
}

int cudnnSetConvolution2dDescriptor(void *of, int pad_h, int pad_w, int stride_h, int stride_w, int dilation_h,
                                    int dilation_w, int mode, int type) {
    ENTER_DNN(NEEDS_NOTHING);
    conv *c = of;
    if (pad_h < 0 || pad_w < 0 || stride_h < 1 || stride_w < 1 || dilation_h < 1 || dilation_w < 1 || mode != 1 || type)
        return gpu_misuse(&call, BAD_PARAM, "a window that there is not, mode %d or sums of type %d", mode, type);
    *c = (conv){{pad_h, pad_w}, {stride_h, stride_w}, {dilation_h, dilation_w}, c->groups, c->math};
    return 0;
}

int cudnnSetConvolutionGroupCount(void *c, int groups) {
    ENTER_DNN(NEEDS_NOTHING);
    if (groups < 1) return gpu_misuse(&call, BAD_PARAM, "%d groups", groups);
    ((conv *)c)->groups = groups;
    return 0;
}

int cudnnSetConvolutionMathType(void *c, int math) {
    ENTER_DNN(NEEDS_NOTHING);
    if (math < 0 || math > 3) return gpu_misuse(&call, BAD_PARAM, "mathematics %d", math);
    ((conv *)c)->math = math;
    return 0;
}

/* ---- convolutions ------------------------------------------------------------------------------------------------ */

/* Descriptors in the order of the call. */
static task task_of(int made, const void *a, const void *b, const void *c, const void *out) {
    const tensor *x = made == IMAGES ? out : a, *w = made == RESULTS ? b : made == IMAGES ? a : out;
    const tensor *y = made == RESULTS ? out : b;
    return (task){.made = made, .x = *x, .w = *w, .y = *y, .c = *(const conv *)c};
}

static const char *misfit(const task *t) {
    const tensor *x = &t->x, *w = &t->w, *y = &t->y;
    if (x->filter || y->filter || !w->filter) return "a filter's descriptor in the place of a tensor's, or the reverse";
    if (x->type != w->type || y->type != w->type) return "types differ";
    if (x->n[0] != y->n[0] || x->n[1] != w->n[1] * t->c.groups || y->n[1] != w->n[0] || w->n[0] % t->c.groups)
        return "extents do not fit";
    for (int d = 0; d < 2; d++) {
        int reach = (w->n[2 + d] - 1) * t->c.dilation[d] + 1;
        if (y->n[2 + d] != (x->n[2 + d] + 2 * t->c.padding[d] - reach) / t->c.stride[d] + 1) return "places do not fit";
    }
    if (t->c.math != (x->type == BLAS_F32 ? FMA : TENSOR_OP)) return "other mathematics than were asked for";
    return NULL;
}

static int choose(const gpu_call *call, void *h, const task *t, int wanted, int *count, gpu_conv_answer *answers) {
    enum { COUNT = 5 };
    const int transforms = t->made == RESULTS ? 6 : 4;
    int error = gpu_check(call, h, OBJECT_LIBRARY);
    if (error) return status_of(error);
    const char *words = wanted < COUNT ? "fewer answers wanted than there may be" : misfit(t);
    if (words) return gpu_misuse(call, BAD_PARAM, "%s", words);
    const gpu_conv_answer all[COUNT] = {
        {.algorithm = transforms, .same_bits = 1, .workspace = 64},
        {.algorithm = 0, .same_bits = 1, .workspace = (size_t)1 << 33},
        {.algorithm = 0, .state = NO_ALGORITHM, .same_bits = 1},
        {.algorithm = 0, .same_bits = 0},
        {.algorithm = GOOD_ALGORITHM, .same_bits = 1, .workspace = WORKSPACE},
    };
    memcpy(answers, all, sizeof all);
    for (int i = 0; i < COUNT; i++)
        answers[i].math = t->c.math;
    *count = COUNT;
    return 0;
}

static int measure(const gpu_call *call, void *h, const task *t, int algorithm, size_t *bytes) {
    int error = gpu_check(call, h, OBJECT_LIBRARY);
    if (error) return status_of(error);
    const char *words = algorithm != GOOD_ALGORITHM ? "an algorithm that was not the one to take" : misfit(t);
    if (words) return gpu_misuse(call, BAD_PARAM, "%s", words);
    *bytes = WORKSPACE;
    return 0;
}

static int64_t count_of(const tensor *t) { return (int64_t)t->n[0] * t->n[1] * t->n[2] * t->n[3]; }

/* Adds up what an element of y, the channel `c` of its group and the tap at (i, j) have to do with each other. */
static void add_tap(const task *t, float *sums, int64_t y, int c, int i, int j) {
    const int *xn = t->x.n, *wn = t->w.n, *yn = t->y.n;
    int64_t across = y % yn[3], down = y / yn[3] % yn[2], o = y / yn[3] / yn[2] % yn[1], n = y / yn[3] / yn[2] / yn[1];
    int64_t v = down * t->c.stride[0] - t->c.padding[0] + (int64_t)i * t->c.dilation[0];
    int64_t h = across * t->c.stride[1] - t->c.padding[1] + (int64_t)j * t->c.dilation[1];
    if (v < 0 || v >= xn[2] || h < 0 || h >= xn[3]) return;
    int64_t channel = o / (wn[0] / t->c.groups) * wn[1] + c, size = (int64_t)blas_size(t->x.type);
    int64_t x = ((n * xn[1] + channel) * xn[2] + v) * xn[3] + h, w = ((o * wn[1] + c) * wn[2] + i) * wn[3] + j;
    float value[3] = {1, 1, 1};
    if (t->made != IMAGES) value[0] = (float)blas_load(t->x.type, t->data[0] + x * size);
    if (t->made != FILTERS) value[1] = (float)blas_load(t->x.type, t->data[1] + w * size);
    if (t->made != RESULTS) value[2] = (float)blas_load(t->x.type, t->data[2] + y * size);
    sums[t->made == RESULTS ? y : t->made == IMAGES ? x : w] += value[0] * value[1] * value[2];
}

static void convolve(const void *data) {
    const task *t = data;
    const tensor *out = t->made == RESULTS ? &t->y : t->made == IMAGES ? &t->x : &t->w;
    char *to = (char *)(uintptr_t)t->data[t->made == RESULTS ? 2 : t->made == IMAGES ? 0 : 1];
    float *sums = calloc((size_t)count_of(out), sizeof *sums);
    memset(t->workspace, ENGINE_POISON, t->workspace_bytes);
    for (int64_t y = count_of(&t->y); sums && y-- > 0;)
        for (int c = t->w.n[1]; c-- > 0;)
            for (int k = t->w.n[2] * t->w.n[3]; k-- > 0;)
                add_tap(t, sums, y, c, k / t->w.n[3], k % t->w.n[3]);
    for (int64_t e = 0; sums && e < count_of(out); e++)
        blas_store(out->type, to + e * (int64_t)blas_size(out->type), (double)sums[e]);
    free(sums);
}

static int check_memory(const gpu_call *call, const task *t) {
    const tensor *tensors[] = {&t->x, &t->w, &t->y};
    int error = gpu_check_range(call, t->workspace, t->workspace_bytes, "workspace");
    for (int i = 0; i < 3 && !error; i++)
        error = gpu_check_range(call, t->data[i], (size_t)count_of(tensors[i]) * blas_size(tensors[i]->type), "tensor");
    return error;
}

static int compute(const gpu_call *call, void *h, task t, const void *alpha, const void *a, const void *b,
                   int algorithm, void *workspace, size_t bytes, const void *beta, void *out) {
    int error = gpu_check(call, h, OBJECT_LIBRARY);
    if (error) return status_of(error);
    float one, zero;
    memcpy(&one, alpha, sizeof one);
    memcpy(&zero, beta, sizeof zero);
    const char *words = algorithm != GOOD_ALGORITHM ? "an algorithm that was not the one to take" : misfit(&t);
    if (!words && bytes < WORKSPACE) words = "less workspace than the algorithm wants";
    if (!words && !(one == 1.0f && zero == 0.0f)) words = "factors other than 1 and 0";
    if (!words && ((uintptr_t)a | (uintptr_t)b | (uintptr_t)out | (uintptr_t)workspace) % ALIGNMENT)
        words = "an address that is not at a multiple of 16 bytes";
    if (words) return gpu_misuse(call, BAD_PARAM, "%s", words);
    t.data[0] = t.made == IMAGES ? out : a;
    t.data[1] = t.made == RESULTS ? b : t.made == IMAGES ? a : out;
    t.data[2] = t.made == RESULTS ? out : b;
    t.workspace = workspace;
    t.workspace_bytes = WORKSPACE;
    error = check_memory(call, &t);
    return status_of(error ? error : gpu_queue_library(call, ((handle *)h)->stream, convolve, &t, sizeof t));
}

#define CONV_CALLS(way, made)                                                                                          \
    int cudnnGetConvolution##way##Algorithm_v7(void *h, void *a, void *b, void *c, void *out, int wanted, int *count,  \
                                               gpu_conv_answer *answers) {                                             \
        ENTER_DNN(NEEDS_CONTEXT);                                                                                      \
        task t = task_of(made, a, b, c, out);                                                                          \
        return choose(&call, h, &t, wanted, count, answers);                                                           \
    }                                                                                                                  \
    int cudnnGetConvolution##way##WorkspaceSize(void *h, void *a, void *b, void *c, void *out, int algorithm,          \
                                                size_t *bytes) {                                                       \
        ENTER_DNN(NEEDS_CONTEXT);                                                                                      \
        task t = task_of(made, a, b, c, out);                                                                          \
        return measure(&call, h, &t, algorithm, bytes);                                                                \
    }                                                                                                                  \
    int cudnnConvolution##way(void *h, const void *alpha, void *a_desc, const void *a, void *b_desc, const void *b,    \
                              void *c, int algorithm, void *workspace, size_t bytes, const void *beta, void *out_desc, \
                              void *out) {                                                                             \
        ENTER_DNN(NEEDS_CONTEXT);                                                                                      \
        return compute(&call, h, task_of(made, a_desc, b_desc, c, out_desc), alpha, a, b, algorithm, workspace, bytes, \
                       beta, out);                                                                                     \
    }
CONV_CALLS(Forward, RESULTS)
CONV_CALLS(BackwardData, IMAGES)
CONV_CALLS(BackwardFilter, FILTERS)
