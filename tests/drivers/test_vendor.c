/* test_vendor.c — matrix products and convolutions by the library of a device's vendor: only when asked for, right for
 * every layout, refused where it cannot, and every call of it fails once.
 *
 * The vendors' libraries are those of the doubles (tests/double/gpu_blas.c, gpu_dnn.c), which do the work late, over
 * memory that notices, and count what is misused. Nothing here says anything of the real ones. */
#include <dlfcn.h>
#include <math.h>
#include <pthread.h>

#include "conv_options.h"
#include "device_support.h"
#include "hal/hal.h"
#include "trunnion/autograd.h"
#include "trunnion/ops.h"
#include "trunnion/tensor.h"

static const struct vendor {
    const char *id, *library, *file; /* of the doubles */
    const char *variables[4];        /* that name it */
    const char *choose, *run;        /* calls that choose an algorithm, and that multiply */
    int run_at;                      /* which call of that multiplies */
    int refused, failed;             /* what they give when it cannot, and when something broke */
    bool all;                        /* every dtype and place; else f32, matrices behind each other */
    bool convolves;                  /* convolutions; else products */
} vendors[] = {
#if TRUNNION_WITH_CUDA
    {"cuda:0",
     "cublaslt",
     "cuda.so",
     {"TRUNNION_CUDA_LIB", "TRUNNION_NVRTC_LIB", "TRUNNION_CUBLASLT_LIB"},
     "cublasLtMatmulAlgoGetHeuristic",
     "cublasLtMatmul",
     1,
     15,
     13,
     true,
     false},
    {"cuda:0",
     "cudnn",
     "cuda.so",
     {"TRUNNION_CUDA_LIB", "TRUNNION_NVRTC_LIB", "TRUNNION_CUDNN_LIB"},
     "cudnnGetConvolutionBackwardDataAlgorithm_v7",
     "cudnnConvolutionBackwardFilter",
     1,
     3002, /* of version 9's thousand of what is not supported */
     5003,
     true,
     true},
#endif
#if TRUNNION_WITH_ROCM
    {"rocm:0",
     "rocblas",
     "rocm.so",
     {"TRUNNION_ROCM_LIB", "TRUNNION_HIPRTC_LIB", "TRUNNION_ROCBLAS_LIB"},
     "rocblas_start_device_memory_size_query",
     "rocblas_gemm_strided_batched_ex",
     2, /* the first is the question of how much memory it wants */
     2,
     6,
     true,
     false},
#endif
#if TRUNNION_WITH_METAL
    {"metal:0",
     "mps",
     "metal.so",
     {"TRUNNION_METAL_LIB", "TRUNNION_OBJC_LIB", "TRUNNION_MPS_LIB"},
     "matrixDescriptorWithRows:columns:matrices:rowBytes:matrixBytes:dataType:",
     NULL, /* what is encoded fails with its command buffer */
     0,
     1,
     1,
     false,
     false},
#endif
    {.id = NULL},
};

static const struct vendor *now;
static struct {
    void (*arm)(const char *name, long n, int error, int forever);
    long (*counted)(void), (*live)(void), (*misuses)(void);
} told;
static tn_device *device;

static void open_vendor(const struct vendor *v) {
    char path[700];
    ssize_t n = readlink("/proc/self/exe", path, 500);
    assert_true(n > 0);
    path[n] = 0;
    snprintf(strrchr(path, '/'), 200, "/doubles/%s", v->file);
    for (size_t i = 0; v->variables[i]; i++)
        setenv(v->variables[i], path, 1);
    setenv("DOUBLE_LEVEL", "0", 0); /* kernels that run once are compiled soon */
    void *library = dlopen(path, RTLD_NOW);
    if (!library) fail_msg("%s", dlerror());
    *(void **)&told.arm = dlsym(library, "faults_arm");
    *(void **)&told.counted = dlsym(library, "faults_counted");
    *(void **)&told.live = dlsym(library, "faults_live");
    *(void **)&told.misuses = dlsym(library, "double_misuses");
    now = v;
}

/* The part of a test that opens the device. In a thread of its own, for that takes its plans along when it ends. */
typedef struct part {
    void (*run)(void);
    tn_status status;
    char text[500];
} part;

static int wish; /* tn_device_options.vendor */

static tn_status open_device(void) {
    tn_device_options o = TN_DEVICE_DEFAULTS;
    o.vendor = wish;
    o.fallback = TN_FALLBACK_STRICT;
    TRY(tn_device_open(now->id, &o, NULL, &device));
    return tn_set_current_device(device);
}

static void close_device(void) {
    assert_ok(tn_set_current_device(NULL));
    tn_device_close(device);
    device = NULL;
}

static void *run_part(void *of) {
    part *p = of;
    assert_ok(open_device());
    p->run();
    close_device();
    return NULL;
}

static void nothing_is_left(const char *text) {
    told.arm(NULL, 0, 0, 0);
    if (told.live() != 0) fail_msg("%ld objects are left: %s", told.live(), text);
    assert_int_equal(told.misuses(), 0);
}

static void in_thread(void *(*body)(void *), part *p) {
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, body, p), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    nothing_is_left(p->text);
}

static void on_device(void (*run)(void)) {
    part p = {.run = run};
    in_thread(run_part, &p);
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

/* How an operand lies: as it is; as the transpose; a part of longer rows; heads between rows (two batch axes that are
 * none in memory); every second column, which no library takes. */
typedef enum place { PLAIN, TURNED, PART, HEADS, SECOND } place;

typedef struct shape {
    int64_t outer, batch, m, n, k;
    place a, b;
    tn_dtype dtype;
    bool one_b, taken; /* one B for all; the library takes it */
} shape;

static const shape shapes[] = {
    {1, 1, 3, 5, 7, PLAIN, PLAIN, TN_F32, false, true},     {1, 1, 1, 64, 30, PLAIN, TURNED, TN_F32, false, true},
    {1, 1, 30, 1, 64, TURNED, PLAIN, TN_F32, false, true},  {1, 3, 17, 33, 20, TURNED, TURNED, TN_F32, false, true},
    {2, 3, 9, 8, 16, HEADS, HEADS, TN_F32, false, true},    {1, 1, 12, 20, 9, PART, PART, TN_F32, false, true},
    {2, 3, 5, 24, 16, PLAIN, TURNED, TN_F32, true, true},   {1, 2, 11, 13, 17, PLAIN, PLAIN, TN_F64, false, true},
    {1, 2, 16, 24, 40, PLAIN, TURNED, TN_F16, false, true}, {1, 1, 9, 31, 70, PART, PLAIN, TN_BF16, false, true},
    {1, 1, 40, 40, 40, PLAIN, PLAIN, TN_F16, false, true},  {1, 1, 10, 16, 12, SECOND, PLAIN, TN_F32, false, false},
};

static tn_tensor *made(int rank, const int64_t *extents, tn_dtype dtype) {
    tn_tensor *x = tn_randn(extents, rank);
    if (dtype != TN_F32) x = tn_cast(x, dtype);
    assert_ok(tn_eval(&x, 1));
    return x;
}

/* [outer, batch, rows, columns] */
static tn_tensor *operand(int64_t outer, int64_t batch, int64_t rows, int64_t columns, place p, tn_dtype dtype) {
    switch (p) {
    case PLAIN: return made(4, (int64_t[]){outer, batch, rows, columns}, dtype);
    case TURNED: return tn_transpose(made(4, (int64_t[]){outer, batch, columns, rows}, dtype), 2, 3);
    case PART: return tn_slice(made(4, (int64_t[]){outer, batch, rows, columns + 5}, dtype), 3, 1, columns + 1, 1);
    case HEADS: return tn_transpose(made(4, (int64_t[]){outer, rows, batch, columns}, dtype), 1, 2);
    case SECOND: return tn_slice(made(4, (int64_t[]){outer, batch, rows, 2 * columns}, dtype), 3, 0, 2 * columns, 2);
    }
    return NULL;
}

/* As numbers that a test can compute with; the caller frees them. */
static double *numbers_of(tn_tensor *x) {
    size_t count = (size_t)tn_numel(x);
    double *out = malloc(count * sizeof *out);
    if (tn_dtype_of(x) == TN_F64) {
        assert_ok(tn_read(x, out, count * sizeof *out));
        return out;
    }
    float *single = malloc(count * sizeof *single);
    tn_tensor *whole = tn_contiguous(tn_dtype_of(x) == TN_F32 ? x : tn_cast(x, TN_F32));
    assert_ok(tn_read(whole, single, count * sizeof *single));
    for (size_t i = 0; i < count; i++)
        out[i] = (double)single[i];
    free(single);
    return out;
}

static double rounding(tn_dtype dtype) {
    return dtype == TN_F64 ? 0x1p-53 : dtype == TN_F16 ? 0x1p-11 : dtype == TN_BF16 ? 0x1p-8 : 0x1p-24;
}

/* Each element within what the roundings of a sum in any order allow, and one rounding to the dtype. */
static void check_values(const shape *s, const double *a, const double *b, const double *c) {
    double sums = s->dtype == TN_F64 ? 0x1p-53 : 0x1p-24;
    for (int64_t e = 0; e < s->outer * s->batch; e++)
        for (int64_t i = 0; i < s->m; i++)
            for (int64_t j = 0; j < s->n; j++) {
                double sum = 0, size = 0, got = c[(e * s->m + i) * s->n + j];
                for (int64_t k = 0; k < s->k; k++) {
                    double product = a[(e * s->m + i) * s->k + k] * b[((s->one_b ? 0 : e) * s->k + k) * s->n + j];
                    sum += product;
                    size += fabs(product);
                }
                double bound = (double)(s->k + 1) * sums * size + rounding(s->dtype) * fabs(sum) + 0x1p-25;
                if (!(fabs(got - sum) <= bound))
                    fail_msg("%s [%lld, %lld, %lld], element %lld, %lld of %lld: %.9g is not %.9g", now->library,
                             (long long)s->m, (long long)s->n, (long long)s->k, (long long)i, (long long)j,
                             (long long)e, got, sum);
            }
}

static bool says(const char *words) {
    char *text = tn_explain_last();
    bool found = strstr(text, words) != NULL;
    if (!found) print_message("%s", text);
    tn_text_free(text);
    return found;
}

static void multiply(const shape *s, const char *words) {
    TN_SCOPE;
    tn_tensor *a = operand(s->outer, s->batch, s->m, s->k, s->a, s->dtype);
    tn_tensor *b = operand(s->one_b ? 1 : s->outer, s->one_b ? 1 : s->batch, s->k, s->n, s->b, s->dtype);
    if (s->one_b) b = tn_reshape(b, (int64_t[]){s->k, s->n}, 2);
    tn_tensor *c = tn_matmul(a, b);
    assert_ok(tn_eval(&c, 1));
    assert_true(says(words));
    double *x = numbers_of(a), *y = numbers_of(b), *z = numbers_of(c);
    check_values(s, x, y, z);
    free(x);
    free(y);
    free(z);
}

static bool is_taken(const shape *s) {
    return s->taken && (now->all || ((s->a == PLAIN || s->a == TURNED) && (s->b == PLAIN || s->b == TURNED)));
}

static void multiply_all(void) {
    char by[60];
    snprintf(by, sizeof by, " by %s", now->library);
    tn_manual_seed(11);
    assert_ok(tn_set_library(now->library));
    for (size_t i = 0; i < TN_COUNT(shapes); i++)
        if (shapes[i].dtype == TN_F32 || now->all)
            multiply(&shapes[i], is_taken(&shapes[i]) ? by : " not by the library, which");
}

static void multiply_as_wished(void) {
    TN_SCOPE;
    char by[60];
    snprintf(by, sizeof by, " by %s", now->library);
    tn_tensor *a = tn_randn((int64_t[]){40, 50}, 2), *b = tn_randn((int64_t[]){50, 60}, 2), *c = tn_matmul(a, b);
    assert_ok(tn_eval(&c, 1));
    char *text = tn_explain_last();
    if ((strstr(text, by) != NULL) != (wish == 2)) fail_msg("vendor %d: %s", wish, text);
    tn_text_free(text);
}

/* tn_device_options.vendor counts more than what the process has chosen. */
static void the_device_decides(void **state) {
    (void)state;
    for (wish = 1; wish <= 2; wish++) {
        assert_ok(tn_set_library(wish == 1 ? now->library : "none"));
        on_device(multiply_as_wished);
    }
    wish = 0;
    assert_ok(tn_set_library("none"));
}

static void products_agree(void **state) {
    (void)state;
    on_device(multiply_all);
}

/* What stands before and behind a product, states that it writes, other values in each run; then our own kernels. */
static tn_tensor *step(tn_tensor *w, tn_tensor *x, tn_tensor *bias) {
    tn_tensor *y = tn_relu(tn_add(tn_matmul(tn_mul(x, x), w), bias));
    tn_copy_(w, tn_matmul(w, w));
    return y;
}

static void run_steps(float *out, int64_t count) {
    enum { SIZE = 24, RUNS = 5 };
    tn_manual_seed(3);
    TN_SCOPE;
    tn_tensor *w = made(2, (int64_t[]){SIZE, SIZE}, TN_F32), *bias = made(1, (int64_t[]){SIZE}, TN_F32);
    tn_tensor *x = made(2, (int64_t[]){SIZE, SIZE}, TN_F32), *y = NULL;
    for (int i = 0; i < RUNS; i++) {
        TN_SCOPE;
        tn_copy_(w, tn_mul_scalar(tn_tanh(w), 0.2));
        y = step(w, x, bias);
        tn_tensor *both[] = {y, w};
        assert_ok(tn_eval(both, 2));
        assert_ok(tn_read(i % 2 ? w : y, out, (size_t)count * sizeof *out));
    }
}

static void run_by_all(void) {
    enum { COUNT = 24 * 24 };
    static float own[COUNT], theirs[COUNT], again[COUNT], *results[] = {own, theirs, again};
    const char *who[] = {"none", now->library, NULL};
    for (int i = 0; i < 3; i++) {
        assert_ok(tn_set_library(who[i]));
        run_steps(results[i], COUNT);
    }
    assert_memory_equal(own, again, sizeof own);
    for (int i = 0; i < COUNT; i++)
        if (!(fabsf(own[i] - theirs[i]) <= 1e-4f + 1e-4f * fabsf(own[i])))
            fail_msg("%d: %g is not %g", i, (double)theirs[i], (double)own[i]);
}

static void plans_hold_products(void **state) {
    (void)state;
    on_device(run_by_all);
}

/* ---- convolutions ------------------------------------------------------------------------------------------------ */

/* Images [n, channels, size], filters [out, channels / groups, kernel]. */
typedef struct window {
    int64_t n, channels, size[2], out, kernel[2];
    tn_conv2d_options o;
    tn_dtype dtype;
    bool part;           /* of larger images */
    const char *refused; /* what explain says; NULL: the library takes it and both gradients */
} window;

static const window windows[] = {
    {2, 3, {5, 6}, 4, {3, 3}, {.padding = {1, 1}}, TN_F32, false, NULL},
    {2, 4, {7, 8}, 6, {3, 2}, {.stride = {2, 3}, .padding = {1, 0}, .groups = 2}, TN_F32, false, NULL},
    {1, 6, {6, 5}, 6, {3, 3}, {.padding = {2, 2}, .dilation = {2, 1}, .groups = 6}, TN_F32, false, NULL},
    {2, 5, {4, 4}, 7, {1, 1}, {0}, TN_F32, false, NULL},
    {2, 8, {6, 6}, 8, {3, 3}, {.padding = {1, 1}}, TN_F16, false, NULL},
    {1, 4, {9, 9}, 4, {3, 3}, {.stride = {2, 2}, .groups = 4}, TN_BF16, false, NULL},
    {1, 2, {5, 5}, 3, {3, 3}, {0}, TN_F64, false, "does not support convolutions of this dtype"},
    {1, 2, {5, 5}, 3, {3, 3}, {0}, TN_F32, true, "takes contiguous tensors only"},
};

static int64_t or_one(int64_t n) { return n ? n : 1; }

static int64_t places_of(const window *c, int d) {
    int64_t reach = (c->kernel[d] - 1) * or_one(c->o.dilation[d]) + 1;
    return (c->size[d] + 2 * c->o.padding[d] - reach) / or_one(c->o.stride[d]) + 1;
}

enum { IMAGES, FILTERS, RESULTS, KINDS };

/* What element y of the results, channel k of its group and tap t have in common: elements of each. */
static bool meet(const window *c, int64_t y, int64_t k, int64_t t, int64_t at[KINDS]) {
    int64_t rows = places_of(c, 0), columns = places_of(c, 1), depth = c->channels / or_one(c->o.groups);
    int64_t o = y / columns / rows % c->out, n = y / columns / rows / c->out, taps = c->kernel[0] * c->kernel[1];
    int64_t v =
        y / columns % rows * or_one(c->o.stride[0]) - c->o.padding[0] + t / c->kernel[1] * or_one(c->o.dilation[0]);
    int64_t h = y % columns * or_one(c->o.stride[1]) - c->o.padding[1] + t % c->kernel[1] * or_one(c->o.dilation[1]);
    int64_t channel = o / (c->out / or_one(c->o.groups)) * depth + k;
    at[IMAGES] = ((n * c->channels + channel) * c->size[0] + v) * c->size[1] + h;
    at[FILTERS] = (o * depth + k) * taps + t;
    at[RESULTS] = y;
    return v >= 0 && v < c->size[0] && h >= 0 && h < c->size[1];
}

/* Values of one kind from those of the other two, each within what the roundings of a sum in any order allow. */
static void check_kind(const window *c, int kind, const double *const values[KINDS], const double *got, int64_t count) {
    double *sum = calloc((size_t)count, sizeof *sum), *size = calloc((size_t)count, sizeof *size);
    int64_t *terms = calloc((size_t)count, sizeof *terms), at[KINDS];
    int64_t results = c->n * c->out * places_of(c, 0) * places_of(c, 1), taps = c->kernel[0] * c->kernel[1];
    double sums = c->dtype == TN_F64 ? 0x1p-53 : 0x1p-24;
    for (int64_t y = 0; y < results; y++)
        for (int64_t k = 0; k < c->channels / or_one(c->o.groups); k++)
            for (int64_t t = 0; t < taps; t++) {
                if (!meet(c, y, k, t, at)) continue;
                int a = (kind + 1) % KINDS, b = (kind + 2) % KINDS;
                double product = values[a][at[a]] * values[b][at[b]];
                sum[at[kind]] += product;
                size[at[kind]] += fabs(product);
                terms[at[kind]]++;
            }
    for (int64_t i = 0; i < count; i++) {
        double bound = (double)(terms[i] + 1) * sums * size[i] + rounding(c->dtype) * fabs(sum[i]) + 0x1p-25;
        if (!(fabs(got[i] - sum[i]) <= bound))
            fail_msg("convolution %d, kind %d, element %lld: %.9g is not %.9g", (int)(c - windows), kind, (long long)i,
                     got[i], sum[i]);
    }
    free(sum);
    free(size);
    free(terms);
}

static int64_t count_of(const window *c, int kind) {
    if (kind == IMAGES) return c->n * c->channels * c->size[0] * c->size[1];
    if (kind == FILTERS) return c->out * c->channels / or_one(c->o.groups) * c->kernel[0] * c->kernel[1];
    return c->n * c->out * places_of(c, 0) * places_of(c, 1);
}

static tn_tensor *images_of(const window *c) {
    if (!c->part) return made(4, (int64_t[]){c->n, c->channels, c->size[0], c->size[1]}, c->dtype);
    tn_tensor *larger = made(4, (int64_t[]){c->n, c->channels, c->size[0], c->size[1] + 2}, c->dtype);
    return tn_slice(larger, 3, 1, c->size[1] + 1, 1);
}

static void says_who(const window *c) {
    char by[100];
    if (c->refused) snprintf(by, sizeof by, " not by the library, which %s", c->refused);
    assert_true(says(c->refused ? by : " by cudnn"));
}

/* A convolution and both of its gradients. */
static void convolve(const window *c) {
    TN_SCOPE;
    tn_tensor *x = images_of(c), *grads[2];
    tn_tensor *w =
        made(4, (int64_t[]){c->out, c->channels / or_one(c->o.groups), c->kernel[0], c->kernel[1]}, c->dtype);
    tn_tensor *dy = made(4, (int64_t[]){c->n, c->out, places_of(c, 0), places_of(c, 1)}, c->dtype);
    int wanted = c->part ? 1 : 2; /* a view is no leaf */
    assert_ok(tn_set_requires_grad(w, true));
    if (!c->part) assert_ok(tn_set_requires_grad(x, true));
    tn_conv2d_options options = conv2d_of_row(&c->o);
    tn_tensor *y = tn_conv2d(x, w, NULL, &options);
    assert_ok(tn_eval(&y, 1));
    says_who(c);
    assert_ok(tn_gradients(&y, 1, &dy, (tn_tensor *[]){w, x}, wanted, false, grads));
    for (int i = 0; i < wanted; i++) {
        assert_ok(tn_eval(&grads[i], 1));
        says_who(c);
    }
    double *values[KINDS] = {numbers_of(x), numbers_of(w), numbers_of(dy)};
    double *got[KINDS] = {c->part ? NULL : numbers_of(grads[1]), numbers_of(grads[0]), numbers_of(y)};
    for (int k = c->part ? FILTERS : IMAGES; k < KINDS; k++)
        check_kind(c, k, (const double *const *)values, got[k], count_of(c, k));
    for (int k = 0; k < KINDS; k++) {
        free(values[k]);
        free(got[k]);
    }
}

/* A transposed one whose image has more behind it than before it. */
static void convolve_unevenly(void) {
    TN_SCOPE;
    tn_conv_transpose2d_options o = TN_CONV_TRANSPOSE2D_DEFAULTS;
    o.dilation[0] = o.dilation[1] = 2;
    o.output_padding[0] = o.output_padding[1] = 1;
    tn_tensor *y = made(4, (int64_t[]){1, 2, 3, 3}, TN_F32), *w = made(4, (int64_t[]){2, 2, 2, 2}, TN_F32);
    tn_tensor *x = tn_conv_transpose2d(y, w, NULL, &o);
    assert_ok(tn_eval(&x, 1));
    assert_true(says("not by the library, which requires equal padding at both ends of an axis"));
}

static void convolve_all(void) {
    tn_manual_seed(12);
    assert_ok(tn_set_library(now->library));
    for (size_t i = 0; i < TN_COUNT(windows); i++)
        convolve(&windows[i]);
    convolve_unevenly();
}

static void convolutions_agree(void **state) {
    (void)state;
    on_device(convolve_all);
}

/* Operands from the host, a step of training with what stands around it, read back; equal convolutions are one. */
static tn_status try_convolutions(void) {
    enum { N = 2, CHANNELS = 3, SIZE = 5, OUT = 4, KERNEL = 3 };
    static const window c = {N,      CHANNELS, {SIZE, SIZE}, OUT, {KERNEL, KERNEL}, {.padding = {1, 1}},
                             TN_F32, false,    NULL};
    float numbers[N * OUT * SIZE * SIZE], got[2][N * OUT * SIZE * SIZE];
    double values[N * OUT * SIZE * SIZE], results[N * OUT * SIZE * SIZE];
    for (int i = 0; i < N * OUT * SIZE * SIZE; i++)
        values[i] = (double)(numbers[i] = (float)(i * 7 % 11 - 5));
    TRY(open_device());
    tn_status status = TN_OK;
    {
        TN_SCOPE;
        tn_tensor *x = tn_from_data(numbers, (int64_t[]){N, CHANNELS, SIZE, SIZE}, 4, TN_F32), *grads[2];
        tn_tensor *w = tn_from_data(numbers, (int64_t[]){OUT, CHANNELS, KERNEL, KERNEL}, 4, TN_F32);
        tn_tensor *dy = tn_from_data(numbers, (int64_t[]){N, OUT, SIZE, SIZE}, 4, TN_F32);
        status = tn_set_requires_grad(x, true);
        if (status == TN_OK) status = tn_set_requires_grad(w, true);
        tn_conv2d_options options = conv2d_of_row(&c.o);
        tn_tensor *y = tn_conv2d(x, w, NULL, &options);
        tn_tensor *twice = tn_add(y, tn_conv2d(x, w, NULL, &options));
        if (status == TN_OK) status = tn_gradients(&y, 1, &dy, (tn_tensor *[]){x, w}, 2, false, grads);
        if (status == TN_OK) status = tn_eval((tn_tensor *[]){twice, grads[0], grads[1]}, 3);
        if (status == TN_OK) status = tn_read(twice, got[0], (size_t)count_of(&c, RESULTS) * sizeof(float));
        if (status == TN_OK) status = tn_read(grads[1], got[1], (size_t)count_of(&c, FILTERS) * sizeof(float));
    }
    TRY(status);
    const double *const all[KINDS] = {values, values, values};
    for (int i = 0; i < 2; i++) {
        int kind = i ? FILTERS : RESULTS;
        for (int64_t k = 0; k < count_of(&c, kind); k++)
            results[k] = (double)got[i][k] / (i ? 1 : 2);
        check_kind(&c, kind, all, results, count_of(&c, kind));
    }
    return TN_OK;
}

/* ---- faults ------------------------------------------------------------------------------------------------------ */

enum { BATCH = 2, M = 6, N = 8, K = 10 };

/* A product whose operands come from the host, read back. TN_OK with the right values, or an error. */
static tn_status try_product(void) {
    const shape s = {1, BATCH, M, N, K, PLAIN, TURNED, TN_F32, false, true};
    float numbers[BATCH * K * N], got[BATCH * M * N];
    double a[BATCH * K * N], b[BATCH * K * N], c[BATCH * M * N];
    for (int i = 0; i < BATCH * K * N; i++)
        a[i] = (double)(numbers[i] = (float)(i * 7 % 11 - 5));
    for (int e = 0; e < BATCH; e++)
        for (int k = 0; k < K; k++)
            for (int j = 0; j < N; j++)
                b[(e * K + k) * N + j] = a[(e * N + j) * K + k];
    TRY(open_device());
    tn_status status = TN_OK;
    {
        TN_SCOPE;
        tn_tensor *x = tn_from_data(numbers, (int64_t[]){BATCH, M, K}, 3, TN_F32);
        tn_tensor *y = tn_from_data(numbers, (int64_t[]){BATCH, N, K}, 3, TN_F32);
        status = tn_read(tn_matmul(x, tn_transpose(y, 1, 2)), got, sizeof got);
    }
    TRY(status);
    for (int i = 0; i < BATCH * M * N; i++)
        c[i] = (double)got[i];
    check_values(&s, a, b, c);
    return TN_OK;
}

static void *run_try(void *of) {
    part *p = of;
    p->status = now->convolves ? try_convolutions() : try_product();
    snprintf(p->text, sizeof p->text, "%s", p->status == TN_OK ? "" : tn_error());
    close_device();
    return NULL;
}

static void failures_are_told(void **state) {
    (void)state;
    part p = {0};
    assert_ok(tn_set_library(now->library));
    told.arm(now->choose, 1, now->refused, 0);
    in_thread(run_try, &p);
    assert_ok(p.status); /* it has no way for this: ours has */
    if (!now->run) return;
    told.arm(now->run, now->run_at, now->failed, 0);
    in_thread(run_try, &p);
    assert_int_equal(p.status, TN_ERR_DEVICE);
    assert_non_null(strstr(p.text, now->id));
    assert_non_null(strstr(p.text, now->run));
}

static void every_call_fails_once(void **state) {
    (void)state;
    const int codes[] = {now->failed, now->refused, 2};
    long calls = 1, failed = 0;
    assert_ok(tn_set_library(now->library));
    for (long n = 1; n <= calls; n++) {
        part p = {0};
        told.arm(NULL, n, codes[n % 3], 0);
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, run_try, &p), 0);
        assert_int_equal(pthread_join(thread, NULL), 0);
        if (told.counted() >= n) calls = n + 1;
        failed += p.status != TN_OK;
        if (p.status != TN_OK && !p.text[0]) fail_msg("call %ld fails without words", n);
        nothing_is_left(p.text);
    }
    assert_true(calls > 30 && failed > 10);
}

/* ---- names ------------------------------------------------------------------------------------------------------- */

static void libraries_are_listed(void **state) {
    (void)state;
    tn_library_info info = {.struct_size = sizeof info};
    bool seen = false;
    assert_ok(tn_set_library(now->library));
    assert_string_equal(tn_get_library(), now->library);
    for (int i = 0; i < tn_library_count(); i++) {
        assert_ok(tn_library_at(i, &info));
        assert_int_equal(info.in_use, strcmp(info.name, now->library) == 0);
        seen |= info.in_use;
        if (info.in_use) assert_int_equal(strncmp(now->id, info.backend, strlen(info.backend)), 0);
    }
    assert_true(seen);
    assert_ok(tn_set_library("none"));
    assert_string_equal(tn_get_library(), "none");
}

static int in_use(const char *name) {
    tn_library_info info = {.struct_size = sizeof info};
    for (int i = 0; i < tn_library_count(); i++)
        if (tn_library_at(i, &info) == TN_OK && strcmp(info.name, name) == 0) return info.in_use;
    return -1;
}

/* NVIDIA's for products stands before its library for convolutions in the table above, and is named since. */
static void several_are_chosen_at_once(void **state) {
    (void)state;
    static const struct {
        const char *names, *words;
    } wrong[] = {{"cudnn,openblas,mkl", "exclude each other"}, {"cudnn,", "\"\""}, {"cudnn,cudnnn", "cudnnn"}};
    assert_ok(tn_set_library("cublaslt,cudnn"));
    for (size_t i = 0; i < TN_COUNT(wrong); i++) {
        assert_int_equal(tn_set_library(wrong[i].names), TN_ERR_ARGUMENT);
        assert_text_has(tn_error(), wrong[i].words);
        assert_int_equal(in_use("cublaslt") + in_use("cudnn"), 2); /* nothing has changed */
    }
    assert_ok(tn_set_library("cudnn,none"));
    assert_int_equal(in_use("cublaslt"), 0);
    assert_int_equal(in_use("cudnn"), 1);
    assert_ok(tn_set_library("none"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(libraries_are_listed),  cmocka_unit_test(products_agree),
        cmocka_unit_test(plans_hold_products),   cmocka_unit_test(failures_are_told),
        cmocka_unit_test(every_call_fails_once), cmocka_unit_test(the_device_decides),
    };
    const struct CMUnitTest of_convolutions[] = {
        cmocka_unit_test(libraries_are_listed),  cmocka_unit_test(several_are_chosen_at_once),
        cmocka_unit_test(convolutions_agree),    cmocka_unit_test(failures_are_told),
        cmocka_unit_test(every_call_fails_once),
    };
    int failed = 0;
    if (make_scratch(NULL)) return 1;
    clean_environment(NULL);
    for (const struct vendor *v = vendors; v->id; v++) {
        open_vendor(v);
        if (v->convolves)
            failed += cmocka_run_group_tests_name(v->library, of_convolutions, NULL, NULL);
        else
            failed += cmocka_run_group_tests_name(v->library, tests, NULL, NULL);
        printf("ran on: %s double (%s): %s\n", v->library, v->id, v->convolves ? "convolutions" : "products");
    }
    return failed + remove_scratch(NULL);
}
