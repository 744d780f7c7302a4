/* test_conv_kernel.c — convolutions and their gradients: the same bits as their definition, whatever the
 * window, layout, processor and thread count.
 *
 * A scalar loop spells out the chains; the kernels of every instruction set that this processor has follow, on one,
 * two and three threads, with filters packed before and at the run. The result lies between marks, which show every
 * write beside it; workspace and images have exactly their sizes, so that the address sanitizer sees each step
 * beyond. */
#include "conv_options.h"
#include "test_support.h"

#include <math.h>

#include "cpu/conv.h"
#include "cpu/conv_paths.h"
#include "cpu/isa.h"
#include "plan/passes.h"
#include "random_numbers.h"
#include "tensor/graph.h"
#include "trunnion/ops.h"

enum { MAX_POINTS = 64, MAX_THREADS = 3 };
#define CASES TEST_SWEEP(60)

static const float MARK = 12345.0f;

static uint64_t random_state;

/* Plans and packed weights of another instruction set have panels of another width. */
static bool use_isa(int isa) {
    tn_clear_plans();
    return tn_gemm_use((tn_isa)isa);
}

static int64_t random_below(int64_t n) { return (int64_t)(random_mixed(&random_state) % (uint64_t)n); }

static int64_t random_from(int64_t low, int64_t high) { return low + random_below(high - low + 1); }

/* ---- four axes in any order, with gaps, forwards or backwards ---------------------------------------------------- */

typedef struct array {
    float *memory;
    int64_t first, stride[4];
} array;

static array random_array(const int64_t *extent, bool plain) {
    array x = {0};
    int order[4] = {3, 2, 1, 0};
    if (!plain && random_below(3) == 0) order[0] = 1, order[1] = 3, order[2] = 2;
    int64_t distance = plain || random_below(4) ? 1 : 2, size = 1;
    for (int i = 0; i < 4; i++) {
        int axis = order[i];
        bool backward = !plain && random_below(5) == 0;
        x.stride[axis] = backward ? -distance : distance;
        int64_t reach = (extent[axis] - 1) * distance;
        if (backward) x.first += reach;
        size += reach;
        distance = distance * extent[axis] + (plain || random_below(3) ? 0 : random_below(9));
    }
    x.memory = tn_mem_alloc((size_t)size * sizeof *x.memory);
    assert_non_null(x.memory);
    for (int64_t i = 0; i < size; i++)
        x.memory[i] = (float)random_from(-1000, 1000) / 700.0f;
    return x;
}

TEST_DEFINITION static float at(const array *x, int64_t i, int64_t j, int64_t k, int64_t l) {
    return x->memory[x->first + i * x->stride[0] + j * x->stride[1] + k * x->stride[2] + l * x->stride[3]];
}

/* ---- the definition ---------------------------------------------------------------------------------------------- */

typedef struct chain {
    float total, sum;
    int64_t steps;
} chain;

/* A chain begins at +0; the first one is the total, the others are added to it. */
TEST_DEFINITION static void chain_step(chain *c, float x, float y) {
    if (c->steps % KIR_KSUM == 0) {
        if (c->steps == KIR_KSUM) c->total = c->sum;
        if (c->steps > KIR_KSUM) c->total += c->sum;
        c->sum = 0;
    }
    c->sum = fmaf(x, y, c->sum);
    c->steps++;
}

TEST_DEFINITION static float chain_end(const chain *c) { return c->steps <= KIR_KSUM ? c->sum : c->total + c->sum; }

typedef struct problem {
    tn_conv_args a;
    array x, y, weight;
    bool large; /* too large for kernels that emulate fma */
} problem;

/* What tap (i, j) of the window at output pixel (u, v) sees. */
TEST_DEFINITION static float seen_at(const problem *p, int64_t image, int64_t channel, int64_t u, int64_t v, int64_t i,
                                     int64_t j) {
    const tn_conv_args *a = &p->a;
    int64_t row = u * a->stride[0] + i * a->dilation[0] - a->pad_before[0];
    int64_t column = v * a->stride[1] + j * a->dilation[1] - a->pad_before[1];
    if (row < 0 || row >= a->size[0] || column < 0 || column >= a->size[1]) return 0;
    return at(&p->x, image, channel, row, column);
}

TEST_DEFINITION static void define_result(const problem *p, float *out) {
    const tn_conv_args *a = &p->a;
    int64_t all = a->groups * a->out_channels, plane = a->out_size[0] * a->out_size[1];
    for (int64_t n = 0; n < a->batch * all * plane; n++) {
        int64_t image = n / plane / all, o = n / plane % all, u = n % plane / a->out_size[1], v = n % a->out_size[1];
        chain c = {0};
        for (int64_t k = 0; k < a->channels * a->kernel[0] * a->kernel[1]; k++) {
            int64_t j = k % a->kernel[1], i = k / a->kernel[1] % a->kernel[0], ch = k / a->kernel[1] / a->kernel[0];
            chain_step(&c, seen_at(p, image, o / a->out_channels * a->channels + ch, u, v, i, j),
                       at(&p->weight, o, ch, i, j));
        }
        out[n] = chain_end(&c);
    }
}

TEST_DEFINITION static float test_result_at(const problem *p, int64_t image, int64_t channel, int64_t u, int64_t v) {
    bool test_inside = u >= 0 && u < p->a.out_size[0] && v >= 0 && v < p->a.out_size[1];
    return test_inside ? at(&p->y, image, channel, u, v) : 0;
}

/* The taps of an axis that meet a pixel: from the last to the first, every stride-th; -1: none. */
TEST_DEFINITION static int64_t last_tap(const tn_conv_args *a, int axis, int64_t pixel) {
    int64_t first = (pixel + a->pad_before[axis]) % a->stride[axis];
    if (first >= a->kernel[axis]) return -1;
    return first + (a->kernel[axis] - 1 - first) / a->stride[axis] * a->stride[axis];
}

TEST_DEFINITION static float spread_pixel(const problem *p, int64_t image, int64_t group, int64_t channel, int64_t y,
                                          int64_t x) {
    const tn_conv_args *a = &p->a;
    chain c = {0};
    for (int64_t o = group * a->out_channels; o < (group + 1) * a->out_channels; o++) {
        for (int64_t i = last_tap(a, 0, y); i >= 0; i -= a->stride[0]) {
            for (int64_t j = last_tap(a, 1, x); j >= 0; j -= a->stride[1]) {
                int64_t u = (y + a->pad_before[0] - i * a->dilation[0]) / a->stride[0];
                int64_t v = (x + a->pad_before[1] - j * a->dilation[1]) / a->stride[1];
                bool whole = y + a->pad_before[0] >= i * a->dilation[0] && x + a->pad_before[1] >= j * a->dilation[1];
                chain_step(&c, whole ? test_result_at(p, image, o, u, v) : 0, at(&p->weight, o, channel, i, j));
            }
        }
    }
    return chain_end(&c);
}

TEST_DEFINITION static void define_spread(const problem *p, float *out) {
    const tn_conv_args *a = &p->a;
    int64_t plane = a->size[0] * a->size[1], all = a->groups * a->channels;
    for (int64_t n = 0; n < a->batch * all * plane; n++) {
        int64_t channel = n / plane % all, y = n % plane / a->size[1];
        out[n] = spread_pixel(p, n / plane / all, channel / a->channels, channel % a->channels, y, n % a->size[1]);
    }
}

TEST_DEFINITION static void define_gradient(const problem *p, float *out) {
    const tn_conv_args *a = &p->a;
    int64_t taps = a->kernel[0] * a->kernel[1], plane = a->out_size[0] * a->out_size[1];
    for (int64_t n = 0; n < a->groups * a->out_channels * a->channels * taps; n++) {
        int64_t o = n / taps / a->channels, ch = n / taps % a->channels, i = n % taps / a->kernel[1];
        chain c = {0};
        for (int64_t q = 0; q < a->batch * plane; q++) {
            int64_t u = q % plane / a->out_size[1], v = q % a->out_size[1];
            float seen = seen_at(p, q / plane, o / a->out_channels * a->channels + ch, u, v, i, n % a->kernel[1]);
            chain_step(&c, seen, at(&p->y, q / plane, o, u, v));
        }
        out[n] = chain_end(&c);
    }
}

/* ---- the kernels ------------------------------------------------------------------------------------------------- */

static void assert_same(const problem *p, const float *want, const float *got, int64_t count, const char *what) {
    for (int64_t i = 0; i < count; i++) {
        if (memcmp(want + i, got + i, sizeof *want) == 0) continue;
        const tn_conv_args *a = &p->a;
        fail_msg("%s of %lld images, %lld groups of %lld channels and %lld filters, %lld×%lld seen by %lld×%lld at "
                 "%lld×%lld: element %lld is %.9g, not %.9g",
                 what, (long long)a->batch, (long long)a->groups, (long long)a->channels, (long long)a->out_channels,
                 (long long)a->size[0], (long long)a->size[1], (long long)a->kernel[0], (long long)a->kernel[1],
                 (long long)a->out_size[0], (long long)a->out_size[1], (long long)i, (double)got[i], (double)want[i]);
    }
}

static void assert_marks(const float *from) {
    for (int i = 0; i < MAX_POINTS; i++)
        assert_true(from[i] == MARK);
}

typedef void kernel(const tn_conv_args *args);

/* Memory with `count` results, of which no more are written; they begin at element MAX_POINTS. */
static float *run_marked(const problem *p, kernel *run, size_t bytes, int64_t count, const void *packed) {
    tn_conv_args args = p->a;
    float *out = tn_mem_alloc((size_t)(count + 2 * MAX_POINTS) * sizeof *out);
    args.workspace = tn_mem_alloc(bytes);
    assert_true(out && args.workspace);
    for (int64_t i = 0; i < count + 2 * MAX_POINTS; i++)
        out[i] = MARK;
    memset(args.workspace, 0xff, bytes);
    args.packed = packed;
    args.out = out + MAX_POINTS;
    run(&args);
    assert_marks(out);
    assert_marks(out + MAX_POINTS + count);
    tn_mem_free(args.workspace);
    return out;
}

static void run_once(const problem *p, kernel *run, size_t bytes, int64_t count, const void *packed, const float *want,
                     const char *what) {
    float *out = run_marked(p, run, bytes, count, packed);
    assert_same(p, want, out + MAX_POINTS, count, what);
    tn_mem_free(out);
}

/* Filters that are packed before, or at the run. */
static void check_out_channels(problem *p, int threads, int64_t results, const float *y) {
    tn_conv_args *a = &p->a;
    void *packed = tn_mem_alloc(tn_conv_packed_bytes(a));
    assert_non_null(packed);
    tn_conv_pack(a, packed);
    run_once(p, tn_conv, tn_conv_workspace(a, threads), results, threads == 2 ? NULL : packed, y, "result");
    tn_mem_free(packed);
}

static int64_t turned; /* times that filters were columns */

static void check_everywhere(problem *p) {
    tn_conv_args *a = &p->a;
    int64_t results = a->batch * a->groups * a->out_channels * a->out_size[0] * a->out_size[1];
    int64_t weights = a->groups * a->out_channels * a->channels * a->kernel[0] * a->kernel[1];
    int64_t pixels = a->batch * a->groups * a->channels * a->size[0] * a->size[1];
    float *y = tn_mem_alloc((size_t)results * sizeof *y), *dw = tn_mem_alloc((size_t)weights * sizeof *dw);
    float *dx = tn_mem_alloc((size_t)pixels * sizeof *dx);
    bool spreads = tn_conv_dgrad_fits(a);
    assert_true(y && dw && dx && tn_conv_fits(a));
    if (spreads) define_spread(p, dx);
    define_result(p, y);
    define_gradient(p, dw);
    for (int isa = TN_ISA_BASE; isa < TN_ISA_COUNT; isa++) {
        const bool slow = isa == TN_ISA_BASE && TEST_BASE_IS_SLOW;
        if ((slow && p->large) || !use_isa(isa)) continue;
        for (int threads = 1; threads <= MAX_THREADS; threads++) {
            if (test_leaves_out(threads, slow)) continue;
            assert_ok(tn_threads_set(threads));
            check_out_channels(p, threads, results, y);
            a->nhwc = tn_conv_prefers_nhwc(a);
            turned += a->nhwc;
            if (a->nhwc) check_out_channels(p, threads, results, y);
            a->nhwc = false;
            if (spreads) run_once(p, tn_conv_dgrad, tn_conv_dgrad_workspace(a, threads), pixels, NULL, dx, "spread");
            run_once(p, tn_conv_wgrad, tn_conv_wgrad_workspace(a, threads), weights, NULL, dw, "gradient");
        }
    }
    tn_mem_free(y);
    tn_mem_free(dw);
    tn_mem_free(dx);
}

static void make_arrays(problem *p, bool plain) {
    tn_conv_args *a = &p->a;
    p->x = random_array((int64_t[]){a->batch, a->groups * a->channels, a->size[0], a->size[1]}, plain);
    p->y = random_array((int64_t[]){a->batch, a->groups * a->out_channels, a->out_size[0], a->out_size[1]}, plain);
    p->weight = random_array((int64_t[]){a->groups * a->out_channels, a->channels, a->kernel[0], a->kernel[1]}, plain);
    a->x = p->x.memory + p->x.first;
    a->y = p->y.memory + p->y.first;
    a->weight = p->weight.memory + p->weight.first;
    memcpy(a->x_stride, p->x.stride, sizeof a->x_stride);
    memcpy(a->y_stride, p->y.stride, sizeof a->y_stride);
    memcpy(a->weight_stride, p->weight.stride, sizeof a->weight_stride);
    a->weight_group = a->out_channels * a->weight_stride[0];
}

static void free_arrays(problem *p) {
    tn_mem_free(p->x.memory);
    tn_mem_free(p->y.memory);
    tn_mem_free(p->weight.memory);
}

static void check_problem(problem *p, bool plain) {
    make_arrays(p, plain);
    check_everywhere(p);
    free_arrays(p);
}

/* Images as they come from elsewhere: the channels of an output pixel side by side. */
static void channels_side_by_side_have_the_bits_of_the_definition(void **state) {
    (void)state;
    static const tn_conv_args sizes[] = {
        {.batch = 1, .channels = 130, .out_channels = 32, .size = {1, 47}, .kernel = {1, 1}, .out_size = {1, 47}},
        {.batch = 3, .channels = 17, .out_channels = 64, .size = {7, 9}, .kernel = {3, 3}, .out_size = {7, 9}},
    };
    random_state = 4;
    turned = 0;
    for (size_t i = 0; i < TN_COUNT(sizes); i++) {
        problem p = {.a = sizes[i]};
        tn_conv_args *a = &p.a;
        a->groups = 1;
        for (int d = 0; d < 2; d++) {
            a->stride[d] = a->dilation[d] = 1;
            a->pad_before[d] = a->kernel[d] / 2;
        }
        make_arrays(&p, true);
        p.x.stride[1] = 1;
        p.x.stride[3] = a->channels;
        p.x.stride[2] = a->channels * a->size[1];
        memcpy(a->x_stride, p.x.stride, sizeof a->x_stride);
        check_everywhere(&p);
        free_arrays(&p);
    }
    assert_true(turned > 0);
}

/* Any output pixels will do: what lies beyond the image is zero. */
static void random_windows_have_the_bits_of_their_definition(void **state) {
    (void)state;
    random_state = 1;
    for (int i = 0; i < CASES; i++) {
        problem p = {0};
        tn_conv_args *a = &p.a;
        a->batch = random_from(1, 3);
        a->groups = random_below(4) ? 1 : random_from(2, 3);
        a->channels = random_from(1, 5);
        a->out_channels = random_from(1, random_below(4) ? 9 : 40);
        for (int d = 0; d < 2; d++) {
            a->size[d] = random_from(1, 12);
            a->kernel[d] = random_from(1, 4);
            a->out_size[d] = random_from(1, 11);
            a->stride[d] = random_below(2) ? 1 : random_from(2, 3);
            a->dilation[d] = random_below(3) ? 1 : random_from(2, 3);
            a->pad_before[d] = random_from(-2, 4);
        }
        check_problem(&p, random_below(2) == 0);
    }
}

/* A stride has as many phases as the window has rows and columns; each is small then. */
static void wide_strides_need_little_memory(void **state) {
    (void)state;
    enum { SIDE = 1000, MOST = 64 << 20 };
    const tn_conv_args a = {.batch = 1,
                            .groups = 1,
                            .channels = 1,
                            .out_channels = 2,
                            .size = {SIDE, 2 * SIDE},
                            .kernel = {SIDE, SIDE},
                            .out_size = {1, 2},
                            .stride = {SIDE, SIDE},
                            .dilation = {1, 1}};
    assert_true(tn_conv_fits(&a));
    assert_true(tn_conv_workspace(&a, 1) < MOST);
}

/* Several chunks of taps and of output pixels, blocks over many images, long rows, more filters than pass over a block.
 * */
static void large_windows_have_the_bits_of_their_definition(void **state) {
    (void)state;
    static const tn_conv_args sizes[] = {
        {.batch = 1, .channels = 33, .out_channels = 30, .size = {9, 19}, .kernel = {3, 3}, .out_size = {9, 19}},
        {.batch = 9, .channels = 4, .out_channels = 17, .size = {6, 7}, .kernel = {3, 3}, .out_size = {6, 7}},
        {.batch = 70, .channels = 2, .out_channels = 3, .size = {2, 2}, .kernel = {2, 2}, .out_size = {2, 2}},
        {.batch = 1, .channels = 1, .out_channels = 2, .size = {3, 1100}, .kernel = {1, 5}, .out_size = {3, 1100}},
        {.batch = 1, .channels = 1, .out_channels = 2, .size = {1, 700}, .kernel = {1, 3}, .out_size = {1, 700}},
        {.batch = 1, .channels = 1, .out_channels = 530, .size = {3, 3}, .kernel = {2, 3}, .out_size = {2, 3}},
        {.batch = 1, .channels = 140, .out_channels = 1, .size = {5, 5}, .kernel = {2, 2}, .out_size = {4, 4}},
        {.batch = 3, .channels = 32, .out_channels = 61, .size = {7, 29}, .kernel = {3, 3}, .out_size = {7, 29}},
        {.batch = 17, .channels = 11, .out_channels = 32, .size = {5, 13}, .kernel = {3, 2}, .out_size = {5, 13}},
        {.batch = 2, .channels = 70, .out_channels = 64, .size = {9, 12}, .kernel = {1, 1}, .out_size = {9, 12}},
        /* rows of two and three output pixels */
        {.batch = 1, .channels = 20, .out_channels = 64, .size = {5, 2}, .kernel = {3, 2}, .out_size = {5, 2}},
        {.batch = 2, .channels = 80, .out_channels = 60, .size = {10, 3}, .kernel = {1, 1}, .out_size = {10, 3}},
        /* one row that threads cut, with few filters and with many */
        {.batch = 1, .channels = 130, .out_channels = 64, .size = {1, 98}, .kernel = {1, 1}, .out_size = {1, 98}},
        {.batch = 1, .channels = 70, .out_channels = 96, .size = {1, 50}, .kernel = {1, 3}, .out_size = {1, 50}},
        {.batch = 1, .channels = 8, .out_channels = 32, .size = {40, 190}, .kernel = {3, 3}, .out_size = {40, 190}},
        {.batch = 2, .channels = 7, .out_channels = 200, .size = {31, 25}, .kernel = {3, 3}, .out_size = {31, 25}},
        {.batch = 1, .channels = 530, .out_channels = 29, .size = {9, 28}, .kernel = {1, 3}, .out_size = {9, 26}},
    };
    enum { LARGEST = 14 }; /* from here on half of the combinations, and emulated fma only with strides */
    random_state = 2;
    turned = 0;
    for (size_t i = 0; i < TN_COUNT(sizes); i++) {
        for (int64_t stride = 1; stride <= 2; stride++) {
            problem p = {.a = sizes[i], .large = i >= LARGEST && stride == 1};
            p.a.groups = 1;
            for (int d = 0; d < 2; d++) {
                p.a.stride[d] = stride;
                p.a.dilation[d] = 1;
                p.a.pad_before[d] = p.a.kernel[d] / 2;
                p.a.out_size[d] = (p.a.out_size[d] + stride - 1) / stride;
            }
            if (i < LARGEST || stride == 1) check_problem(&p, true);
            for (int d = 0; d < 2; d++)
                p.a.size[d] += 2 * p.a.pad_before[d];
            p.a.pad_before[0] = p.a.pad_before[1] = 0; /* windows that never leave the image */
            if (i < LARGEST || stride == 2) check_problem(&p, true);
        }
    }
    assert_true(turned > 0);
}

/* Threads share their output pixels: of one group, of several, and more than there is room for sums apart. */
static void the_gradient_of_few_taps_has_the_bits_of_the_definition(void **state) {
    (void)state;
    static const tn_conv_args sizes[] = {
        {.batch = 9, .groups = 1, .channels = 7, .out_channels = 200, .size = {15, 15}, .kernel = {3, 3}},
        {.batch = 7, .groups = 5, .channels = 3, .out_channels = 9, .size = {19, 23}, .kernel = {3, 2}},
    };
    random_state = 12;
    for (size_t i = 0; i < TN_COUNT(sizes); i++) {
        problem p = {.a = sizes[i]};
        tn_conv_args *a = &p.a;
        for (int d = 0; d < 2; d++) {
            a->stride[d] = a->dilation[d] = 1;
            a->pad_before[d] = a->kernel[d] / 2;
            a->out_size[d] = a->size[d];
        }
        make_arrays(&p, true);
        const int64_t weights = a->groups * a->out_channels * a->channels * a->kernel[0] * a->kernel[1];
        float *dw = tn_mem_alloc((size_t)weights * sizeof *dw);
        assert_non_null(dw);
        define_gradient(&p, dw);
        for (int isa = TN_ISA_BASE; isa < TN_ISA_COUNT; isa++) {
            for (int threads = 1; use_isa(isa) && threads <= MAX_THREADS; threads++) {
                if (test_leaves_out(threads, isa == TN_ISA_BASE && TEST_BASE_IS_SLOW)) continue;
                assert_ok(tn_threads_set(threads));
                run_once(&p, tn_conv_wgrad, tn_conv_wgrad_workspace(a, threads), weights, NULL, dw, "gradient");
            }
        }
        tn_mem_free(dw);
        free_arrays(&p);
    }
}

/* Images that are the rows of the product: in one block and several, in memory in any order, more panels than threads,
 * windows that see nothing of their image. */
static void images_of_few_pixels_have_the_bits_of_the_definition(void **state) {
    (void)state;
    static const int64_t filters[] = {32, 61, 64, 258};
    int64_t beside = 0;
    random_state = 11;
    for (int i = 0; i < CASES / 2; i++) {
        problem p = {.a = {.batch = random_from(4, i % 8 ? 20 : 60), .groups = 1}};
        tn_conv_args *a = &p.a;
        a->out_channels = filters[random_below(i % 8 ? 3 : 4)];
        for (int d = 0; d < 2; d++) {
            a->size[d] = random_from(1, 6);
            a->kernel[d] = random_from(1, 3);
            a->out_size[d] = random_from(1, 4);
            a->stride[d] = random_from(1, 3);
            a->dilation[d] = random_from(1, 2);
            a->pad_before[d] = random_from(-1, 2);
        }
        a->channels = random_from(64, 300) / (a->kernel[0] * a->kernel[1]) + 1;
        beside += tn_conv_batch_rows_fits(a);
        check_problem(&p, i % 3 == 0);
    }
    assert_true(beside > CASES / 4);
}

/* The way back of a stride to many channels: phases that share a block, in the input tile or in y as it lies. */
static void pixels_of_several_phases_have_the_bits_of_the_definition(void **state) {
    (void)state;
    static const tn_conv_args sizes[] = {
        {.batch = 3,
         .groups = 1,
         .channels = 32,
         .out_channels = 65,
         .size = {4, 18},
         .kernel = {3, 3},
         .pad_before = {1, 1}},
        {.batch = 1,
         .groups = 2,
         .channels = 61,
         .out_channels = 9,
         .size = {6, 10},
         .kernel = {5, 4},
         .pad_before = {2, 1}},
        {.batch = 2, .groups = 1, .channels = 32, .out_channels = 70, .size = {4, 8}, .kernel = {2, 2}},
    };
    static const int64_t strides[][2] = {{2, 2}, {1, 2}, {2, 1}};
    random_state = 9;
    for (size_t i = 0; i < TN_COUNT(sizes); i++)
        for (size_t k = 0; k < TN_COUNT(strides); k++) {
            problem p = {.a = sizes[i]};
            for (int d = 0; d < 2; d++) {
                p.a.stride[d] = strides[k][d];
                p.a.dilation[d] = 1;
                p.a.out_size[d] = (p.a.size[d] + 2 * p.a.pad_before[d] - p.a.kernel[d]) / p.a.stride[d] + 1;
            }
            check_problem(&p, true);
        }
}

static void windows_that_reach_too_far_have_no_kernel(void **state) {
    (void)state;
    tn_conv_args a = {.batch = 1, .groups = 1, .channels = 1, .out_channels = 1};
    for (int d = 0; d < 2; d++)
        a.size[d] = a.out_size[d] = a.kernel[d] = a.stride[d] = a.dilation[d] = 3;
    assert_true(tn_conv_fits(&a));
    a.dilation[0] = a.dilation[1] = INT32_MAX;
    assert_false(tn_conv_fits(&a));
    a.dilation[0] = a.dilation[1] = 1 << 20;
    assert_false(tn_conv_fits(&a));
    assert_false(tn_conv_dgrad_fits(&a));
    a.dilation[0] = a.dilation[1] = 1;
    assert_true(tn_conv_dgrad_fits(&a));
    a.stride[0] = a.out_size[0] = INT32_MAX;
    assert_false(tn_conv_fits(&a));
    a.out_size[0] = 0;
    assert_false(tn_conv_fits(&a));
}

static void check_depthwise(problem *p, bool plain) {
    const tn_conv_args *a = &p->a;
    int64_t count = a->batch * a->groups * a->out_size[0] * a->out_size[1];
    float *want = tn_mem_alloc((size_t)count * sizeof *want);
    assert_true(want && tn_conv_depthwise_fits(a));
    make_arrays(p, plain);
    define_result(p, want);
    for (int isa = TN_ISA_BASE; isa < TN_ISA_COUNT; isa++) {
        if (!use_isa(isa)) continue;
        for (int threads = 1; threads <= MAX_THREADS; threads++) {
            assert_ok(tn_threads_set(threads));
            run_once(p, tn_conv_depthwise, tn_conv_depthwise_workspace(a, threads), count, NULL, want, "each channel");
        }
    }
    tn_mem_free(want);
    tn_mem_free(p->x.memory);
    tn_mem_free(p->y.memory);
    tn_mem_free(p->weight.memory);
}

static void one_filter_a_channel_has_the_bits_of_its_definition(void **state) {
    (void)state;
    static const tn_conv_args large[] = {
        {.batch = 1, .groups = 12, .size = {3, 300}, .kernel = {5, 5}, .out_size = {3, 300}},
        {.batch = 1, .groups = 1, .size = {90, 90}, .kernel = {3, 3}, .out_size = {90, 90}},
        {.batch = 2, .groups = 2, .size = {1, 9000}, .kernel = {1, 70}, .out_size = {1, 9000}},
        {.batch = 1, .groups = 3, .size = {20, 20}, .kernel = {12, 12}, .out_size = {9, 9}},
        {.batch = 1, .groups = 18, .size = {15, 15}, .kernel = {7, 7}, .out_size = {15, 15}},
        {.batch = 1, .groups = 17, .size = {20, 20}, .kernel = {9, 9}, .out_size = {20, 20}},
        {.batch = 1, .groups = 33, .size = {2, 1300}, .kernel = {1, 9}, .out_size = {2, 1300}},
        {.batch = 1, .groups = 16, .size = {70, 90}, .kernel = {3, 3}, .out_size = {70, 90}},
        {.batch = 1, .groups = 17, .size = {96, 90}, .kernel = {3, 3}, .out_size = {96, 90}}, /* threads share rows */
        {.batch = 1, .groups = 3, .size = {96, 96}, .kernel = {3, 5}, .out_size = {96, 96}},
        /* pixels as lanes: the windows that have code of their own, some with a stride, and rows with a rest */
        {.batch = 2, .groups = 19, .size = {9, 31}, .kernel = {3, 3}, .out_size = {9, 31}},
        {.batch = 1, .groups = 17, .size = {28, 28}, .kernel = {5, 5}, .out_size = {28, 28}},
        {.batch = 1, .groups = 17, .size = {29, 57}, .kernel = {3, 3}, .out_size = {15, 29}, .stride = {2, 2}},
        {.batch = 1, .groups = 16, .size = {40, 56}, .kernel = {5, 5}, .out_size = {20, 28}, .stride = {2, 2}},
        {.batch = 1, .groups = 16, .size = {30, 30}, .kernel = {3, 3}, .out_size = {15, 30}, .stride = {2, 1}},
        /* channels as lanes */
        {.batch = 1, .groups = 40, .size = {7, 7}, .kernel = {5, 5}, .out_size = {7, 7}},
        {.batch = 1, .groups = 33, .size = {15, 15}, .kernel = {5, 5}, .out_size = {8, 8}, .stride = {2, 2}},
        {.batch = 1, .groups = 33, .size = {21, 21}, .kernel = {3, 3}, .out_size = {11, 11}, .stride = {2, 2}},
    };
    random_state = 3;
    for (int i = 0; i < CASES; i++) {
        problem p = {.a = {.batch = random_from(1, 3), .groups = random_from(1, 5), .channels = 1, .out_channels = 1}};
        tn_conv_args *a = &p.a;
        if (random_below(2)) a->groups = random_from(6, 35); /* also more than a vector has lanes */
        for (int d = 0; d < 2; d++) {
            a->size[d] = random_from(1, 12);
            a->kernel[d] = random_from(1, 6);
            a->out_size[d] = random_from(1, d ? 150 : 11);
            a->stride[d] = random_below(2) ? 1 : random_from(2, 3);
            a->dilation[d] = random_below(3) ? 1 : random_from(2, 3);
            a->pad_before[d] = random_from(-2, 4);
        }
        check_depthwise(&p, random_below(2) == 0);
    }
    for (size_t i = 0; i < TN_COUNT(large); i++) {
        problem p = {.a = large[i]};
        p.a.channels = p.a.out_channels = 1;
        for (int d = 0; d < 2; d++) {
            if (p.a.stride[d] == 0) p.a.stride[d] = 1;
            p.a.dilation[d] = 1;
            p.a.pad_before[d] = p.a.kernel[d] / 2;
        }
        check_depthwise(&p, true);
    }
}

static tn_tensor *random_tensor(const int64_t *shape, int rank) {
    static float numbers[1 << 18];
    int64_t count = 1;
    for (int d = 0; d < rank; d++)
        count *= shape[d];
    assert_true(count <= (int64_t)TN_COUNT(numbers));
    for (int64_t i = 0; i < count; i++)
        numbers[i] = (float)random_from(-1000, 1000) / 700.0f;
    return tn_from_data(numbers, shape, rank, TN_F32);
}

/* Filters that lie in memory become the columns of a product where output pixels are few; filters that the same plan
 * computes go to the kernel above. */
static void few_pixels_have_the_bits_of_the_kernel(void **state) {
    (void)state;
    static const struct {
        int64_t batch, channels, out_channels, size[2], kernel[2];
        tn_conv2d_options o;
    } cases[] = {
        {1, 3, 9, {1, 9}, {1, 3}, {.stride = {1, 2}, .padding = {0, 1}}},
        {2, 5, 16, {3, 3}, {2, 3}, {.stride = {1, 1}, .padding = {0, 1}, .dilation = {2, 1}}},
        {1, 12, 33, {4, 4}, {3, 3}, {.stride = {2, 2}, .padding = {1, 1}}},
        {7, 2, 8, {5, 5}, {5, 5}, {.stride = {1, 1}}},
        {8, 4, 12, {1, 4}, {1, 3}, {.stride = {1, 4}, .padding = {0, 1}}},
    };
    for (size_t i = 0; i < TN_COUNT(cases); i++) {
        TN_SCOPE;
        tn_tensor *x = random_tensor(TN_DIMS(cases[i].batch, cases[i].channels, cases[i].size[0], cases[i].size[1]));
        tn_tensor *w =
            random_tensor(TN_DIMS(cases[i].out_channels, cases[i].channels, cases[i].kernel[0], cases[i].kernel[1]));
        tn_conv2d_options o = conv2d_of_row(&cases[i].o);
        tn_tensor *few = tn_conv2d(x, w, NULL, &o),
                  *usual = tn_conv2d(x, tn_contiguous(tn_flip(w, TN_DIMS(0))), NULL, &o);
        tn_tensor *both[] = {few, usual = tn_flip(usual, TN_DIMS(1))};
        float a[1024], b[1024];
        assert_ok(tn_eval(both, 2));
        assert_true(tn_numel(few) <= 1024);
        assert_ok(tn_read(few, a, (size_t)tn_numel(few) * sizeof *a));
        assert_ok(tn_read(usual, b, (size_t)tn_numel(few) * sizeof *b));
        assert_memory_equal(a, b, (size_t)tn_numel(few) * sizeof *a);
    }
}

/* relu(conv2d(x, w, bias)) + r, the convolution evaluated first (apart) or joined by what follows. `r` may be one that
 * has no even distance between output pixels: then it must not be joined, and the result is the same. */
static void finish(const tn_tensor *x, const tn_tensor *w, const tn_tensor *bias, const tn_tensor *r,
                   const tn_conv2d_options *o, bool apart, float *out) {
    TN_SCOPE;
    tn_tensor *y = tn_conv2d(x, w, NULL, o);
    if (apart) assert_ok(tn_eval(&y, 1));
    tn_tensor *z = tn_add(tn_relu(tn_add(y, tn_reshape(bias, TN_DIMS(1, -1, 1, 1)))), r);
    assert_ok(tn_read(z, out, (size_t)tn_numel(z) * sizeof *out));
}

static void what_is_joined_has_the_bits_of_what_is_not(void **state) {
    (void)state;
    static const struct {
        int64_t batch, channels, out_channels, size[2], kernel[2];
        tn_conv2d_options o;
    } cases[] = {
        {2, 3, 9, {31, 29}, {3, 3}, {.stride = {1, 1}, .padding = {1, 1}, .groups = 1}},
        {3, 4, 80, {9, 7}, {3, 3}, {.stride = {2, 1}, .padding = {1, 1}, .groups = 1}},
        {1, 4, 24, {3, 400}, {3, 2}, {.stride = {1, 1}, .padding = {1, 0}, .groups = 2}},
        {2, 3, 3, {50, 47}, {3, 3}, {.stride = {1, 1}, .padding = {1, 1}, .groups = 3}},
        {1, 1, 900, {3, 3}, {2, 2}, {.stride = {1, 1}, .groups = 1}},
        {2, 70, 64, {9, 12}, {1, 1}, {.stride = {1, 1}, .groups = 1}},
        {1, 64, 61, {12, 21}, {1, 1}, {.stride = {2, 2}, .groups = 1}},
        {2, 9, 61, {9, 15}, {3, 3}, {.stride = {1, 1}, .padding = {1, 1}, .groups = 1}},
        {1, 5, 24, {200, 1}, {5, 1}, {.stride = {1, 1}, .padding = {2, 0}, .groups = 1}},
        {2, 1, 20, {13, 60}, {3, 3}, {.stride = {1, 1}, .padding = {1, 1}, .groups = 1}},
        {1, 6, 34, {5, 160}, {3, 3}, {.stride = {1, 1}, .padding = {1, 1}, .groups = 2}},
        {1, 1, 9, {12, 257}, {3, 3}, {.stride = {1, 1}, .padding = {1, 1}, .dilation = {2, 1}, .groups = 1}},
        {9, 16, 512, {3, 3}, {2, 2}, {.stride = {1, 1}, .groups = 1}},
        {2, 3, 9, {23, 124}, {3, 3}, {.stride = {2, 2}, .padding = {1, 1}, .groups = 1}}, /* closed up: strides … */
        {1, 8, 18, {25, 62}, {3, 3}, {.stride = {3, 1}, .padding = {1, 1}, .groups = 2}}, /* … of rows alone … */
        {1, 3, 9, {11, 250}, {3, 3}, {.stride = {1, 4}, .padding = {0, 1}, .groups = 1}}, /* … and of columns */
        {1, 64, 33, {32, 31}, {1, 1}, {.stride = {1, 1}, .groups = 1}},                   /* columns in pieces */
    };
    enum { MOST = 1 << 15 };
    static float joined[MOST], apart[MOST];
    for (size_t i = 0; i < TN_COUNT(cases); i++)
        for (int threads = 1; threads <= 2; threads++)
            for (int tilted = 0; tilted < 2; tilted++) {
                assert_ok(tn_threads_set(threads));
                TN_SCOPE;
                tn_conv2d_options o = conv2d_of_row(&cases[i].o);
                int64_t images = cases[i].batch, filters = cases[i].out_channels;
                const int64_t *size = cases[i].size, *taps = cases[i].kernel, channels = cases[i].channels;
                tn_tensor *x = random_tensor(TN_DIMS(images, channels, size[0], size[1]));
                tn_tensor *w = random_tensor(TN_DIMS(filters, channels / o.groups, taps[0], taps[1]));
                tn_tensor *bias = random_tensor(&filters, 1), *y = tn_conv2d(x, w, NULL, &o);
                const int64_t *shape = tn_shape(y);
                tn_tensor *r = tn_expand(random_tensor(TN_DIMS(1, filters, 1, 1)), shape, 4);
                if (tilted) r = tn_expand(random_tensor(TN_DIMS(images, 1, shape[2], 1)), shape, 4);
                assert_true(tn_numel(y) <= MOST);
                finish(x, w, bias, r, &o, false, joined);
                char *text = tn_explain_last();
                bool even = !tilted || tn_shape(y)[3] == 1;
                assert_true(even == (text && strstr(text, "conv2d_forward+")));
                tn_text_free(text);
                finish(x, w, bias, r, &o, true, apart);
                assert_memory_equal(joined, apart, (size_t)tn_numel(y) * sizeof *apart);
            }
}

/* The greatest of each window of relu(conv2d(x, w) + bias): what is pooled is evaluated first (apart), kept as well, or
 * seen by nobody else. Did pooling join the convolution? */
typedef enum before_pool { SEEN_BY_NONE, KEPT, APART } before_pool;

static bool pool_last(const tn_tensor *x, const tn_tensor *w, const tn_tensor *bias, const tn_conv2d_options *o,
                      const int64_t *window, const tn_max_pool2d_options *p, before_pool before, float *out) {
    bool joined = false;
    TN_SCOPE;
    tn_tensor *y = tn_conv2d(x, w, NULL, o), *sum = tn_add(y, tn_reshape(bias, TN_DIMS(1, -1, 1, 1)));
    tn_tensor *last = tn_relu(sum), *z = tn_max_pool2d(last, window, p);
    if (before == APART) assert_ok(tn_eval(&last, 1));
    tn_free(y);
    tn_free(sum);
    if (before != KEPT) tn_free(last);
    assert_ok(tn_read(z, out, (size_t)tn_numel(z) * sizeof *out));
    char *text = tn_explain_last();
    joined = text && strstr(text, "+max_pool2d");
    tn_text_free(text);
    return joined;
}

static void pooling_joins_a_convolution_with_the_same_bits(void **state) {
    (void)state;
    static const struct {
        int64_t batch, channels, out_channels, size[2], window[2];
        tn_max_pool2d_options p;
        bool joins;
        int64_t stride; /* the convolution's */
    } cases[] = {
        {1, 1, 9, {31, 60}, {2, 2}, {.stride = {2, 2}}, true, 1},
        {2, 1, 20, {9, 62}, {2, 2}, {.stride = {2, 2}}, true, 1},
        {2, 1, 24, {4, 257}, {1, 4}, {.stride = {1, 4}}, true, 1},
        {1, 8, 32, {25, 40}, {2, 2}, {.stride = {2, 2}}, true, 1},
        {2, 9, 61, {10, 15}, {2, 2}, {.stride = {2, 2}}, true, 1},
        {3, 8, 64, {7, 23}, {1, 4}, {.stride = {1, 4}}, true, 1},
        {1, 40, 32, {13, 21}, {2, 2}, {.stride = {2, 2}}, true, 1},
        {2, 8, 64, {9, 12}, {2, 2}, {.stride = {2, 2}}, false, 1}, /* rows of two images would meet */
        {1, 8, 64, {9, 12}, {2, 2}, {.stride = {2, 2}, .ceil_mode = true}, false, 1},
        {1, 8, 64, {9, 13}, {1, 4}, {.stride = {1, 4}, .padding = {0, 1}}, false, 1},
        {1, 8, 64, {9, 12}, {3, 3}, {.stride = {2, 2}}, false, 1},
        {1, 8, 64, {9, 12}, {2, 2}, {.stride = {1, 1}}, false, 1},
        {1, 1, 9, {4, 600}, {2, 2}, {.stride = {2, 2}}, false, 1}, /* rows are cut */
        {1, 8, 256, {2, 4}, {2, 2}, {.stride = {2, 2}}, true, 1},  /* a handful of output pixels */
        {2, 3, 9, {31, 124}, {2, 2}, {.stride = {2, 2}}, true, 2},
    };
    enum { MOST = 1 << 16 };
    static float joined[MOST], apart[MOST];
    for (size_t i = 0; i < TN_COUNT(cases); i++)
        for (int threads = 1; threads <= 3; threads++)
            for (int isa = TN_ISA_BASE; isa < TN_ISA_COUNT; isa++) {
                if (!use_isa(isa)) continue;
                assert_ok(tn_threads_set(threads));
                TN_SCOPE;
                tn_conv2d_options o = TN_CONV2D_DEFAULTS;
                o.padding[0] = o.padding[1] = 1;
                o.stride[0] = o.stride[1] = cases[i].stride;
                tn_max_pool2d_options p = max_pool2d_of_row(&cases[i].p);
                int64_t filters = cases[i].out_channels, channels = cases[i].channels;
                tn_tensor *x = random_tensor(TN_DIMS(cases[i].batch, channels, cases[i].size[0], cases[i].size[1]));
                tn_tensor *w = random_tensor(TN_DIMS(filters, channels, 3, 3)), *bias = random_tensor(&filters, 1);
                tn_tensor *y = tn_max_pool2d(tn_conv2d(x, w, NULL, &o), cases[i].window, &p);
                size_t bytes = (size_t)tn_numel(y) * sizeof *apart;
                assert_true(tn_numel(y) <= MOST);
                bool joins = pool_last(x, w, bias, &o, cases[i].window, &p, SEEN_BY_NONE, joined);
                assert_false(pool_last(x, w, bias, &o, cases[i].window, &p, APART, apart));
                if (joins != cases[i].joins) fail_msg("case %zu: %s", i, joins ? "joined" : "not joined");
                assert_memory_equal(joined, apart, bytes);
                assert_false(pool_last(x, w, bias, &o, cases[i].window, &p, KEPT, joined));
                assert_memory_equal(joined, apart, bytes);
            }
}

/* A convolution, what joins it, and a convolution of that: the result between them is evaluated first, or only the
 * second sees it. Does it lie in blocks of channels then? */
typedef enum between { PLAIN, BIASED, POOLED, ADDED } between;
enum { AS_STORED, IN_BLOCKS };

static bool one_behind_another(tn_tensor *const *t, const tn_conv2d_options *o, between how, bool apart, float *out) {
    TN_SCOPE;
    tn_tensor *y = tn_conv2d(t[0], t[1], NULL, &o[0]), *sum = tn_add(y, tn_reshape(t[2], TN_DIMS(1, -1, 1, 1)));
    tn_tensor *relu = tn_relu(sum), *pool = tn_max_pool2d(relu, (const int64_t[]){2, 2}, NULL);
    tn_tensor *steps[] = {y, sum, relu, pool}, *last = how == PLAIN ? y : how == POOLED ? pool : relu;
    if (apart) assert_ok(tn_eval(&last, 1));
    tn_tensor *z = tn_conv2d(last, t[3], NULL, &o[1]);
    if (how == ADDED) z = tn_add(z, last);
    for (size_t i = 0; i < TN_COUNT(steps); i++)
        tn_free(steps[i]);
    assert_ok(tn_read(z, out, (size_t)tn_numel(z) * sizeof *out));
    char *text = tn_explain_last();
    const bool in_blocks = text && strstr(text, "in blocks of channels");
    tn_text_free(text);
    return in_blocks;
}

typedef struct two_convolutions {
    int64_t batch, channels, out_channels, size[2], kernel[2];
    tn_conv2d_options o;
    between how;
    bool in_blocks; /* with AVX2 and AVX-512; vectors of four lanes make other blocks */
    int64_t stride; /* of the first convolution */
} two_convolutions;

static void compare_with_what_was_stored(const two_convolutions *c, const char *name, int threads, int isa) {
    enum { MOST = 3 << 19 };
    static float seen[MOST], apart[MOST];
    assert_ok(tn_threads_set(threads));
    TN_SCOPE;
    tn_conv2d_options o[2] = {TN_CONV2D_DEFAULTS, conv2d_of_row(&c->o)};
    o[0].padding[0] = o[0].padding[1] = 1;
    o[0].stride[0] = o[0].stride[1] = c->stride;
    int64_t seen_channels = c->out_channels / o[1].groups, filters = tn_min64(c->out_channels, 32);
    tn_tensor *t[] = {random_tensor(TN_DIMS(c->batch, c->channels, c->size[0], c->size[1])),
                      random_tensor(TN_DIMS(c->out_channels, c->channels, 3, 3)), random_tensor(&c->out_channels, 1),
                      random_tensor(TN_DIMS(c->how == ADDED || o[1].groups > 1 ? c->out_channels : filters,
                                            seen_channels, c->kernel[0], c->kernel[1]))};
    tn_tensor *y = tn_conv2d(tn_conv2d(t[0], t[1], NULL, &o[0]), t[3], NULL, &o[1]);
    assert_true(tn_numel(y) <= MOST); /* at least as many as the results */
    memset(seen, 0, sizeof seen);
    memset(apart, 0, sizeof apart);
    assert_int_equal(one_behind_another(t, o, c->how, true, apart), AS_STORED);
    const bool in_blocks = one_behind_another(t, o, c->how, false, seen);
    if (isa != TN_ISA_BASE && in_blocks != c->in_blocks) fail_msg("%s, isa %d: %d", name, isa, in_blocks);
    assert_memory_equal(seen, apart, sizeof apart);
}

static void what_one_convolution_reads_has_zeros_around_it(void **state) {
    (void)state;
    static const two_convolutions cases[] = {
        {2, 16, 32, {11, 31}, {3, 3}, {.padding = {1, 1}}, BIASED, IN_BLOCKS, 1},
        {1, 16, 32, {9, 160}, {3, 3}, {.padding = {1, 1}}, BIASED, IN_BLOCKS, 1},
        {1, 1, 32, {40, 161}, {3, 3}, {.padding = {1, 1}}, BIASED, IN_BLOCKS, 1}, /* few taps: blocks begin in rows … */
        {1, 1, 32, {40, 126}, {3, 3}, {.padding = {1, 1}}, POOLED, AS_STORED, 1}, /* … or with one */
        {1, 1, 32, {43, 126}, {3, 3}, {.padding = {1, 1}}, POOLED, AS_STORED, 1},
        {1, 9, 32, {21, 63}, {3, 3}, {.padding = {1, 1}}, POOLED, AS_STORED, 1},
        {3, 16, 32, {11, 19}, {3, 3}, {.padding = {1, 1}}, PLAIN, IN_BLOCKS, 1},
        {1, 16, 64, {26, 64}, {5, 3}, {.padding = {2, 1}, .stride = {2, 1}}, POOLED, AS_STORED, 1},
        {1, 16, 64, {26, 64}, {3, 5}, {.padding = {0, 2}, .groups = 2}, POOLED, AS_STORED, 1},
        {1, 16, 32, {16, 34}, {3, 3}, {.padding = {1, 1}, .stride = {1, 2}}, BIASED, IN_BLOCKS, 1},
        {1,
         16,
         24,
         {16, 32},
         {3, 3},
         {.padding = {1, 1}, .groups = 2},
         BIASED,
         AS_STORED,
         1},                                                                      /* groups share a block */
        {1, 16, 32, {16, 32}, {3, 3}, {.padding = {1, 1}}, ADDED, AS_STORED, 1},  /* two readers */
        {1, 16, 32, {16, 32}, {3, 3}, {.padding = {0, 0}}, BIASED, IN_BLOCKS, 1}, /* nothing around it */
        {1, 3, 32, {44, 248}, {3, 3}, {.padding = {1, 1}}, POOLED, AS_STORED, 2}, /* closed up */
        {1, 16, 32, {17, 19}, {7, 5}, {.padding = {2, 4}, .dilation = {1, 2}}, BIASED, IN_BLOCKS, 1},
        {1, 16, 64, {21, 18}, {3, 3}, {.padding = {1, 1}, .stride = {3, 3}, .groups = 2}, BIASED, IN_BLOCKS, 1},
    };
    char name[16];
    for (size_t i = 0; i < TN_COUNT(cases); i++)
        for (int isa = TN_ISA_BASE; isa < TN_ISA_COUNT; isa++)
            for (int threads = 1; threads <= MAX_THREADS; threads++) {
                if (!use_isa(isa) || test_leaves_out(threads, isa == TN_ISA_BASE && TEST_BASE_IS_SLOW)) continue;
                snprintf(name, sizeof name, "case %zu", i);
                compare_with_what_was_stored(&cases[i], name, threads, isa);
            }
}

/* Images of one column lie down for the first of two convolutions, and not for the second, which sees columns beside
 * them: it reads them as they are stored. */
static void what_lies_down_is_stored_as_it_is(void **state) {
    (void)state;
    static const struct { int64_t batch, rows; } cases[] = {{2, 64}, {40, 420}};
    static float seen[40 * 32 * 420 * 5], apart[TN_COUNT(seen)];
    for (size_t i = 0; i < TN_COUNT(cases); i++) {
        TN_SCOPE;
        tn_conv2d_options o[2] = {TN_CONV2D_DEFAULTS, TN_CONV2D_DEFAULTS};
        o[0].padding[0] = o[1].padding[0] = 1;
        o[1].padding[1] = 2;
        const int64_t filters = 64;
        tn_tensor *t[] = {random_tensor(TN_DIMS(cases[i].batch, 1, cases[i].rows, 1)),
                          random_tensor(TN_DIMS(filters, 1, 3, 1)), random_tensor(&filters, 1),
                          random_tensor(TN_DIMS(filters / 2, filters, 3, 1))};
        assert_int_equal(one_behind_another(t, o, BIASED, true, apart), AS_STORED);
        assert_int_equal(one_behind_another(t, o, BIASED, false, seen), AS_STORED);
        assert_memory_equal(seen, apart, sizeof seen);
    }
}

/* ---- blocks of channels ------------------------------------------------------------------------------------------ */

/* [images, channels, plane] as [images, blocks, plane, lanes], or back. */
static float *turn_blocks(const float *from, const tn_conv_args *a, int64_t channels, int64_t plane, bool back) {
    const int64_t lanes = tn_conv_vec()->tiles->lanes;
    const int64_t blocked = (channels + lanes - 1) / lanes * lanes;
    float *to = tn_mem_zalloc((size_t)(a->batch * blocked * plane), sizeof *to);
    assert_non_null(to);
    for (int64_t n = 0; n < a->batch * channels; n++)
        for (int64_t i = 0; i < plane; i++) {
            const int64_t channel = n / channels * blocked + n % channels, here = n * plane + i;
            const int64_t there = channel / lanes * lanes * plane + i * lanes + channel % lanes;
            to[back ? here : there] = from[back ? there : here];
        }
    return to;
}

/* x, the results, or both in blocks; the results are the same. */
static int compare_blocks(const problem *p, int threads, const float *want) {
    const int64_t plane = p->a.size[0] * p->a.size[1], out_plane = p->a.out_size[0] * p->a.out_size[1];
    int count = 0;
    for (int way = 1; way < 4; way++) {
        tn_conv_args a = p->a;
        a.x_blocks = way & 1;
        a.y_blocks = way & 2;
        if (!tn_conv_takes_blocks(&a)) continue;
        const bool depthwise = a.groups > 1 && a.channels == 1;
        const int64_t out_channels = a.groups * a.out_channels, results = a.batch * out_channels * out_plane;
        const int64_t stored = a.y_blocks ? tn_conv_block_elements(a.batch, out_channels, out_plane) : results;
        float *x = a.x_blocks ? turn_blocks(a.x, &a, a.groups * a.channels, plane, false) : NULL;
        if (x) a.x = x;
        a.nhwc = !depthwise;
        const problem q = {.a = a};
        const size_t bytes = depthwise ? tn_conv_depthwise_workspace(&a, threads) : tn_conv_workspace(&a, threads);
        float *out = run_marked(&q, depthwise ? tn_conv_depthwise : tn_conv, bytes, stored, NULL);
        float *y = a.y_blocks ? turn_blocks(out + MAX_POINTS, &a, out_channels, out_plane, true) : NULL;
        assert_same(&q, want, y ? y : out + MAX_POINTS, results, "result in blocks");
        tn_mem_free(x);
        tn_mem_free(y);
        tn_mem_free(out);
        count++;
    }
    return count;
}

static void blocks_of_channels_have_the_bits_of_the_definition(void **state) {
    (void)state;
    static const tn_conv_args sizes[] = {
        {.batch = 1, .groups = 1, .channels = 48, .out_channels = 96, .size = {1, 49}, .kernel = {1, 1}},
        {.batch = 2, .groups = 1, .channels = 32, .out_channels = 48, .size = {28, 28}, .kernel = {1, 1}},
        {.batch = 1, .groups = 1, .channels = 400, .out_channels = 61, .size = {1, 196}, .kernel = {1, 1}},
        {.batch = 1, .groups = 1, .channels = 272, .out_channels = 32, .size = {9, 14}, .kernel = {1, 1}},
        {.batch = 3, .groups = 1, .channels = 5, .out_channels = 48, .size = {15, 13}, .kernel = {3, 3}},
        {.batch = 2, .groups = 32, .channels = 1, .out_channels = 1, .size = {7, 7}, .kernel = {5, 5}},
        {.batch = 1, .groups = 48, .channels = 1, .out_channels = 1, .size = {14, 14}, .kernel = {3, 3}},
        {.batch = 2, .groups = 29, .channels = 1, .out_channels = 1, .size = {12, 14}, .kernel = {3, 3}},
        {.batch = 2, .groups = 1, .channels = 21, .out_channels = 45, .size = {1, 130}, .kernel = {1, 1}},
        {.batch = 1, .groups = 16, .channels = 1, .out_channels = 1, .size = {30, 57}, .kernel = {3, 3}},
        {.batch = 1, .groups = 16, .channels = 1, .out_channels = 1, .size = {3, 1100}, .kernel = {3, 5}},
        {.batch = 1, .groups = 16, .channels = 1, .out_channels = 1, .size = {20, 28}, .kernel = {17, 17}},
        {.batch = 2, .groups = 32, .channels = 1, .out_channels = 1, .size = {3, 3}, .kernel = {3, 3}},
        {.batch = 1, .groups = 16, .channels = 1, .out_channels = 1, .size = {3, 4}, .kernel = {5, 5}},
        {.batch = 1, .groups = 31, .channels = 1, .out_channels = 1, .size = {61, 19}, .kernel = {5, 5}},
        {.batch = 1, .groups = 1, .channels = 40, .out_channels = 72, .size = {14, 14}, .kernel = {3, 3}},
        {.batch = 3, .groups = 1, .channels = 37, .out_channels = 32, .size = {7, 9}, .kernel = {3, 5}},
        {.batch = 2, .groups = 3, .channels = 16, .out_channels = 32, .size = {21, 28}, .kernel = {3, 3}},
        {.batch = 1, .groups = 4, .channels = 32, .out_channels = 16, .size = {7, 7}, .kernel = {3, 3}},
        {.batch = 1, .groups = 1, .channels = 64, .out_channels = 32, .size = {5, 80}, .kernel = {7, 7}},
        {.batch = 2, .groups = 1, .channels = 64, .out_channels = 128, .size = {14, 15}, .kernel = {1, 1}},
    };
    int compared = 0;
    random_state = 21;
    for (size_t i = 0; i < 2 * TN_COUNT(sizes); i++) {
        problem p = {.a = sizes[i / 2]};
        for (int d = 0; d < 2; d++) {
            p.a.stride[d] = i % 2 && p.a.size[0] > 1 ? 2 : 1;
            p.a.dilation[d] = 1;
            p.a.pad_before[d] = p.a.kernel[d] / 2;
            p.a.out_size[d] = (p.a.size[d] + p.a.stride[d] - 1) / p.a.stride[d];
        }
        make_arrays(&p, true);
        float *want = tn_mem_alloc((size_t)(p.a.batch * p.a.groups * p.a.out_channels) *
                                   (size_t)(p.a.out_size[0] * p.a.out_size[1]) * sizeof *want);
        assert_non_null(want);
        define_result(&p, want);
        for (int isa = TN_ISA_BASE; isa < TN_ISA_COUNT; isa++)
            for (int threads = 1; threads <= MAX_THREADS; threads++) {
                if (!use_isa(isa) || test_leaves_out(threads, isa == TN_ISA_BASE && TEST_BASE_IS_SLOW)) continue;
                assert_ok(tn_threads_set(threads));
                compared += compare_blocks(&p, threads, want);
            }
        tn_mem_free(want);
        free_arrays(&p);
    }
    assert_true(compared > 100);
}

/* Three bottlenecks: of one tap or more to many channels, depthwise, and back; all but the first add what they read.
 * Behind them one of one tap. `apart`: each step is evaluated first. */
typedef struct bottleneck {
    int64_t batch, channels, wide, size[2], first, window, stride;
    int kind;   /* of steps' ends: RELU, … */
    int blocks; /* convolutions with images in blocks with AVX2 and AVX-512; those of few pixels have none */
} bottleneck;

/* max(…, 0); min(…, …) of that; other functions of one element; the sum with its bias times the bias, and half of the
 * sum with the bias behind it, which blocks of channels do not have. */
enum { BIAS_ONLY, RELU, CLIP, HARD_SWISH, SILU, TIMES_BIAS, BIAS_LAST };

/* What nobody holds is stored only if a plan needs it. */
static tn_tensor *then(tn_tensor *before, tn_tensor *after) {
    tn_free(before);
    return after;
}

static tn_tensor *end_step(tn_tensor *y, const tn_tensor *bias, int kind, bool apart) {
    if (kind == BIAS_LAST) y = then(y, tn_mul(y, tn_scalar(0.5)));
    y = then(y, tn_add(y, tn_reshape(bias, TN_DIMS(1, -1, 1, 1))));
    if (kind == TIMES_BIAS) y = then(y, tn_mul(y, tn_reshape(bias, TN_DIMS(1, -1, 1, 1))));
    if (kind == RELU || kind == CLIP) y = then(y, tn_relu(y));
    if (kind == HARD_SWISH) y = then(y, tn_hardswish(y));
    if (kind == SILU) y = then(y, tn_silu(y));
    if (kind == CLIP) y = then(y, tn_minimum(y, tn_from_data(&(float){0.75f}, NULL, 0, TN_F32)));
    if (apart) assert_ok(tn_eval(&y, 1));
    return y;
}

static tn_tensor *bottleneck_of(const bottleneck *b, tn_tensor *x, tn_tensor *const *t, int kind, bool apart) {
    tn_conv2d_options o = TN_CONV2D_DEFAULTS, each = TN_CONV2D_DEFAULTS;
    o.padding[0] = o.padding[1] = b->first / 2;
    each.padding[0] = each.padding[1] = b->window / 2;
    each.stride[0] = each.stride[1] = b->stride;
    each.groups = b->wide;
    tn_tensor *y = end_step(tn_conv2d(x, t[1], NULL, &o), t[4], kind, apart);
    y = end_step(then(y, tn_conv2d(y, t[2], NULL, &each)), t[4], kind, apart);
    y = end_step(then(y, tn_conv2d(y, t[3], NULL, NULL)), t[5], 0, apart);
    if (b->stride == 1 && x != t[0]) y = then(y, tn_add(x, y));
    return b->stride == 1 && x != t[0] && b->kind == CLIP ? then(y, tn_relu(y)) : y;
}

/* The number of convolutions with images in blocks. */
static int three_bottlenecks(const bottleneck *b, tn_tensor *const *t, bool apart, float *out) {
    TN_SCOPE;
    tn_tensor *y = bottleneck_of(b, t[0], t, b->kind == RELU ? BIAS_ONLY : b->kind, apart);
    for (int i = 0; i < 2; i++)
        y = then(y, bottleneck_of(b, y, t, b->kind, apart));
    if (b->first == 1) y = then(y, tn_conv2d(y, t[1], NULL, NULL));
    assert_ok(tn_read(y, out, (size_t)tn_numel(y) * sizeof *out));
    char *text = tn_explain_last();
    int count = 0;
    for (const char *at = text; at && (at = strstr(at, "in blocks of channels")); at++)
        count++;
    tn_text_free(text);
    return count;
}

static void bottlenecks_in_blocks_have_the_bits_of_their_steps(void **state) {
    (void)state;
    static const bottleneck cases[] = {
        {1, 24, 96, {14, 14}, 1, 3, 1, RELU, 10},       {2, 40, 240, {12, 9}, 1, 5, 1, CLIP, 10},
        {1, 32, 192, {28, 28}, 1, 5, 2, RELU, 9},       {1, 16, 64, {15, 18}, 3, 3, 2, CLIP, 9},
        {3, 24, 48, {180, 1}, 1, 3, 1, RELU, 10},       {1, 24, 72, {14, 14}, 1, 3, 1, RELU, 10},
        {2, 20, 88, {18, 20}, 1, 3, 1, CLIP, 10},       {1, 16, 12, {20, 14}, 1, 3, 1, RELU, 0},
        {1, 24, 72, {14, 14}, 1, 3, 1, HARD_SWISH, 10}, {2, 20, 88, {18, 20}, 1, 5, 2, SILU, 4},
        {1, 40, 60, {30, 28}, 3, 5, 1, HARD_SWISH, 9},  {1, 64, 128, {13, 9}, 1, 3, 2, SILU, 5},
        {1, 24, 72, {14, 14}, 1, 3, 1, TIMES_BIAS, 6},  {1, 24, 72, {14, 14}, 1, 3, 1, BIAS_LAST, 6},
    };
    static float got[1 << 17], want[1 << 17];
    random_state = 22;
    for (size_t i = 0; i < TN_COUNT(cases); i++)
        for (int isa = TN_ISA_BASE; isa < TN_ISA_COUNT; isa++)
            for (int threads = 1; threads <= MAX_THREADS; threads++) {
                if (!use_isa(isa) || test_leaves_out(threads, isa == TN_ISA_BASE && TEST_BASE_IS_SLOW)) continue;
                const bottleneck *b = &cases[i];
                assert_ok(tn_threads_set(threads));
                TN_SCOPE;
                tn_tensor *t[] = {random_tensor(TN_DIMS(b->batch, b->channels, b->size[0], b->size[1])),
                                  random_tensor(TN_DIMS(b->wide, b->channels, b->first, b->first)),
                                  random_tensor(TN_DIMS(b->wide, 1, b->window, b->window)),
                                  random_tensor(TN_DIMS(b->channels, b->wide, 1, 1)),
                                  random_tensor(&b->wide, 1),
                                  random_tensor(&b->channels, 1)};
                memset(got, 0, sizeof got);
                memset(want, 0, sizeof want);
                (void)three_bottlenecks(b, t, true, want);
                const int blocks = three_bottlenecks(b, t, false, got);
                if (isa != TN_ISA_BASE && blocks != b->blocks) fail_msg("case %zu, isa %d: %d", i, isa, blocks);
                for (size_t e = 0; e < sizeof got / sizeof *got; e++)
                    if (memcmp(&got[e], &want[e], sizeof *got) != 0)
                        fail_msg("case %zu, isa %d, %d threads: element %zu is %.9g, must be %.9g", i, isa, threads, e,
                                 (double)got[e], (double)want[e]);
            }
}

/* A stage of a residual network: a wide window, pooling, a bottleneck with groups and strides whose shortcut is a
 * convolution too, and a concatenation of two convolutions behind it. */
typedef struct stage {
    int64_t batch, channels, size[2], groups, stride;
    int blocks; /* convolutions and poolings with images in blocks, if blocks divide the channels */
} stage;

static tn_tensor *stage_step(tn_tensor *x, tn_tensor *const *t, int i, const tn_conv2d_options *o, bool ends,
                             bool apart) {
    tn_tensor *y = tn_conv2d(x, t[2 * i], t[2 * i + 1], o);
    if (ends) y = then(y, i == 2 ? tn_silu(y) : tn_relu(y));
    if (apart) assert_ok(tn_eval(&y, 1));
    return y;
}

static int run_stage(const stage *s, tn_tensor *x, tn_tensor *const *t, bool apart, float *out) {
    TN_SCOPE;
    tn_conv2d_options first = TN_CONV2D_DEFAULTS, grouped = TN_CONV2D_DEFAULTS, strided = TN_CONV2D_DEFAULTS;
    tn_conv2d_options padded = TN_CONV2D_DEFAULTS;
    tn_max_pool2d_options around = TN_MAX_POOL2D_DEFAULTS;
    for (int d = 0; d < 2; d++) {
        first.padding[d] = 3;
        grouped.padding[d] = padded.padding[d] = around.padding[d] = 1;
        grouped.stride[d] = strided.stride[d] = s->stride;
        around.stride[d] = 2;
    }
    grouped.groups = s->groups;
    tn_tensor *y = stage_step(x, t, 0, &first, true, apart);
    y = then(y, tn_max_pool2d(y, (const int64_t[]){3, 3}, &around));
    if (apart) assert_ok(tn_eval(&y, 1));
    tn_tensor *z = stage_step(y, t, 1, NULL, true, apart);
    z = then(z, stage_step(z, t, 2, &grouped, true, apart));
    z = then(z, stage_step(z, t, 3, NULL, false, apart));
    tn_tensor *shortcut = stage_step(y, t, 4, &strided, false, apart);
    y = then(y, tn_relu(then(z, tn_add(z, shortcut))));
    tn_free(shortcut);
    if (apart) assert_ok(tn_eval(&y, 1));
    tn_tensor *parts[] = {stage_step(y, t, 5, NULL, true, apart), stage_step(y, t, 6, &padded, true, apart)};
    y = then(y, tn_cat(parts, 2, 1));
    tn_free(parts[0]);
    tn_free(parts[1]);
    y = then(y, stage_step(y, t, 7, NULL, false, apart));
    assert_ok(tn_read(y, out, (size_t)tn_numel(y) * sizeof *out));
    char *text = tn_explain_last();
    int count = 0;
    for (const char *at = text; at && (at = strstr(at, "in blocks of channels")); at++)
        count++;
    tn_text_free(text);
    return count;
}

static void stages_in_blocks_have_the_bits_of_their_steps(void **state) {
    (void)state;
    static const stage cases[] = {
        {1, 32, {28, 30}, 2, 2, 10},
        {1, 64, {26, 26}, 4, 1, 9},
        {2, 48, {33, 29}, 1, 2, 10},
        {1, 40, {28, 24}, 2, 2, 9},
    };
    static float got[1 << 16], want[1 << 16];
    random_state = 23;
    for (size_t i = 0; i < TN_COUNT(cases); i++)
        for (int isa = TN_ISA_BASE; isa < TN_ISA_COUNT; isa++)
            for (int threads = 1; threads <= MAX_THREADS; threads++) {
                if (!use_isa(isa) || test_leaves_out(threads, isa == TN_ISA_BASE && TEST_BASE_IS_SLOW)) continue;
                const stage *s = &cases[i];
                assert_ok(tn_threads_set(threads));
                TN_SCOPE;
                const int64_t c = s->channels, w = 2 * c;
                const int64_t shapes[][4] = {{c, 3, 7, 7}, {c, c, 1, 1}, {c, c / s->groups, 3, 3},
                                             {w, c, 1, 1}, {w, c, 1, 1}, {c, w, 1, 1},
                                             {c, w, 3, 3}, {c, w, 1, 1}};
                tn_tensor *t[2 * TN_COUNT(shapes)];
                for (size_t k = 0; k < TN_COUNT(shapes); k++) {
                    t[2 * k] = random_tensor(shapes[k], 4);
                    t[2 * k + 1] = random_tensor(&shapes[k][0], 1);
                }
                tn_tensor *x = random_tensor(TN_DIMS(s->batch, 3, s->size[0], s->size[1]));
                memset(got, 0, sizeof got);
                memset(want, 0, sizeof want);
                (void)run_stage(s, x, t, true, want);
                const int blocks = run_stage(s, x, t, false, got);
                const int expected = s->channels % tn_conv_vec()->tiles->lanes == 0 ? s->blocks : 0;
                if (isa != TN_ISA_BASE && blocks != expected) fail_msg("case %zu, isa %d: %d", i, isa, blocks);
                assert_memory_equal(got, want, sizeof got);
            }
}

static tn_tensor *maybe_now(tn_tensor *y, bool apart) {
    if (apart) assert_ok(tn_eval(&y, 1));
    return y;
}

/* Filters that are kept packed in NCHW order; packed for blocks, where 24 take the room of 32, they are too large. */
static void filters_too_large_for_blocks_are_packed_at_each_run(void **state) {
    (void)state;
    enum { GROUPS = 16, CHANNELS = 4096, FILTERS = 24, SIDE = 4, RESULTS = GROUPS * FILTERS * SIDE * SIDE };
    static float results[2][RESULTS];
    TN_SCOPE;
    tn_conv2d_options o = TN_CONV2D_DEFAULTS;
    tn_max_pool2d_options around = TN_MAX_POOL2D_DEFAULTS;
    o.padding[0] = o.padding[1] = around.padding[0] = around.padding[1] = 1;
    around.stride[0] = around.stride[1] = 1;
    o.groups = GROUPS;
    random_state = 25;
    tn_tensor *x = tn_add(random_tensor(TN_DIMS(1, GROUPS * CHANNELS, 1, 1)), random_tensor(TN_DIMS(SIDE, SIDE)));
    tn_tensor *w = tn_add(random_tensor(TN_DIMS(GROUPS * FILTERS, 1, 3, 3)), random_tensor(TN_DIMS(CHANNELS, 1, 1)));
    assert_ok(tn_eval((tn_tensor *[]){x, w}, 2));
    for (int apart = 0; apart < 2; apart++) {
        tn_tensor *seen = maybe_now(tn_max_pool2d(x, (const int64_t[]){3, 3}, &around), apart);
        assert_ok(tn_read(tn_conv2d(seen, w, NULL, &o), results[apart], sizeof *results));
    }
    assert_memory_equal(results[0], results[1], sizeof *results);
}

/* A bottleneck with squeeze-and-excitation, two convolutions, and the mean of each image of two concatenations of
 * these, of which at least one is copied. */
typedef struct squeeze {
    int64_t batch, channels, wide, size[2];
    int blocks; /* commands with images in blocks of AVX2's lanes */
} squeeze;

static int run_squeeze(const squeeze *s, tn_tensor *const *t, bool apart, float *out) {
    TN_SCOPE;
    const int64_t one[2] = {1, 1};
    tn_conv2d_options each = TN_CONV2D_DEFAULTS;
    each.padding[0] = each.padding[1] = 1;
    each.groups = s->wide;
    tn_tensor *y = end_step(tn_conv2d(t[0], t[1], NULL, NULL), t[5], RELU, apart);
    y = end_step(then(y, tn_conv2d(y, t[2], NULL, &each)), t[5], SILU, apart);
    tn_tensor *gate = maybe_now(tn_adaptive_avg_pool2d(y, one), apart);
    gate = maybe_now(then(gate, tn_conv2d(gate, t[3], NULL, NULL)), apart);
    gate = maybe_now(then(gate, tn_sigmoid(gate)), apart);
    y = maybe_now(then(y, tn_mul(y, gate)), apart);
    tn_free(gate);
    y = end_step(then(y, tn_conv2d(y, t[4], NULL, NULL)), t[6], BIAS_ONLY, apart);
    tn_tensor *parts[] = {end_step(tn_conv2d(y, t[1], NULL, NULL), t[5], RELU, apart),
                          end_step(tn_conv2d(y, t[1], NULL, NULL), t[5], SILU, apart)};
    tn_tensor *joined[2], *means[2];
    for (int i = 0; i < 2; i++) {
        joined[i] = maybe_now(tn_cat((tn_tensor *[]){parts[i], parts[1 - i]}, 2, 1), apart);
        means[i] = maybe_now(tn_mean(joined[i], (const int64_t[]){2, 3}, 2, false), apart);
    }
    y = then(y, tn_add(means[0], means[1]));
    for (int i = 0; i < 2; i++) {
        tn_free(parts[i]);
        tn_free(joined[i]);
        tn_free(means[i]);
    }
    assert_ok(tn_read(y, out, (size_t)tn_numel(y) * sizeof *out));
    char *text = tn_explain_last();
    int count = 0;
    for (const char *at = text; at && (at = strstr(at, "in blocks of channels")); at++)
        count++;
    tn_text_free(text);
    return count;
}

static void squeezes_in_blocks_have_the_bits_of_their_steps(void **state) {
    (void)state;
    static const squeeze cases[] = {
        {1, 32, 96, {14, 14}, 6},
        {2, 24, 40, {9, 13}, 2},
        {1, 4, 32, {130, 129}, 4},
    };
    static float got[1 << 8], want[1 << 8];
    random_state = 24;
    for (size_t i = 0; i < TN_COUNT(cases); i++)
        for (int isa = TN_ISA_BASE; isa < TN_ISA_COUNT; isa++)
            for (int threads = 1; threads <= MAX_THREADS; threads++) {
                if (!use_isa(isa) || test_leaves_out(threads, isa == TN_ISA_BASE && TEST_BASE_IS_SLOW)) continue;
                const squeeze *s = &cases[i];
                assert_ok(tn_threads_set(threads));
                TN_SCOPE;
                tn_tensor *t[] = {random_tensor(TN_DIMS(s->batch, s->channels, s->size[0], s->size[1])),
                                  random_tensor(TN_DIMS(s->wide, s->channels, 1, 1)),
                                  random_tensor(TN_DIMS(s->wide, 1, 3, 3)),
                                  random_tensor(TN_DIMS(s->wide, s->wide, 1, 1)),
                                  random_tensor(TN_DIMS(s->channels, s->wide, 1, 1)),
                                  random_tensor(&s->wide, 1),
                                  random_tensor(&s->channels, 1)};
                memset(got, 0, sizeof got);
                memset(want, 0, sizeof want);
                (void)run_squeeze(s, t, true, want);
                const int blocks = run_squeeze(s, t, false, got);
                if (isa == TN_ISA_AVX2 && blocks != s->blocks) fail_msg("case %zu: %d", i, blocks);
                assert_memory_equal(got, want, sizeof got);
            }
}

/* Windows of one tap over many output pixels are a product where these follow each other, and a convolution like others
 * where they do not. */
static void one_tap_has_the_bits_of_a_product(void **state) {
    (void)state;
    enum { FILTERS = 80, CHANNELS = 3, IMAGES = 2, ROWS = 32, COLUMNS = 34, MOST = IMAGES * FILTERS * ROWS * COLUMNS };
    static float got[MOST], want[MOST];
    for (int cut = 2; cut <= 3; cut++) {
        assert_ok(tn_threads_set(cut - 1));
        TN_SCOPE;
        tn_conv2d_options o = TN_CONV2D_DEFAULTS;
        tn_tensor *x = tn_narrow(random_tensor(TN_DIMS(IMAGES, CHANNELS, ROWS, COLUMNS)), cut, 0, 31);
        tn_tensor *w = random_tensor(TN_DIMS(FILTERS, CHANNELS, 1, 1)), *bias = random_tensor(TN_DIMS(FILTERS));
        tn_tensor *y = tn_relu(tn_conv2d(x, w, bias, &o));
        assert_ok(tn_eval(&y, 1));
        char *text = tn_explain_last();
        assert_true(text && strstr(text, "conv2d_forward+"));
        tn_text_free(text);
        tn_tensor *product = tn_matmul(tn_reshape(w, TN_DIMS(FILTERS, CHANNELS)),
                                       tn_reshape(tn_contiguous(x), TN_DIMS(IMAGES, CHANNELS, -1)));
        assert_ok(tn_eval(&product, 1));
        tn_tensor *z = tn_relu(tn_add(product, tn_reshape(bias, TN_DIMS(FILTERS, 1))));
        size_t bytes = (size_t)tn_numel(y) * sizeof *got;
        assert_true(bytes <= sizeof got && tn_numel(y) == tn_numel(z));
        assert_ok(tn_read(y, got, bytes));
        assert_ok(tn_read(z, want, bytes));
        assert_memory_equal(got, want, bytes);
    }
}

enum { TAP_FILTERS = 96, TAP_CHANNELS = 300, TAP_SIDE = 7 };

/* Images of 7 × 7 with bias, residual and max(…, 0), compared with a product and what follows it step by step. */
static void compare_small_images(int images, int filters) {
    enum { MOST = 3 * TAP_FILTERS * TAP_SIDE * TAP_SIDE, PIXELS = TAP_SIDE * TAP_SIDE };
    static float got[MOST], want[MOST];
    TN_SCOPE;
    tn_conv2d_options o = TN_CONV2D_DEFAULTS;
    tn_tensor *x = random_tensor(TN_DIMS(images, TAP_CHANNELS, TAP_SIDE, TAP_SIDE));
    tn_tensor *rest = random_tensor(TN_DIMS(images, filters, TAP_SIDE, TAP_SIDE));
    tn_tensor *w = random_tensor(TN_DIMS(filters, TAP_CHANNELS, 1, 1)), *bias = random_tensor(TN_DIMS(filters));
    tn_tensor *y = tn_relu(tn_add(tn_conv2d(x, w, bias, &o), rest));
    tn_tensor *product =
        tn_matmul(tn_reshape(w, TN_DIMS(filters, TAP_CHANNELS)), tn_reshape(x, TN_DIMS(images, TAP_CHANNELS, PIXELS)));
    assert_ok(tn_eval((tn_tensor *[]){y, product}, 2));
    tn_tensor *z = tn_add(product, tn_reshape(bias, TN_DIMS(filters, 1)));
    z = tn_relu(tn_add(tn_reshape(z, TN_DIMS(images, filters, TAP_SIDE, TAP_SIDE)), rest));
    size_t bytes = (size_t)tn_numel(y) * sizeof *got;
    assert_true(bytes <= sizeof got);
    assert_ok(tn_read(y, got, bytes));
    assert_ok(tn_read(z, want, bytes));
    assert_memory_equal(got, want, bytes);
}

/* Of small images most of a product's last vector of pixels would be empty: then filters are the columns, also where
 * the last of them fill half a panel; not where there are few channels. */
static void one_tap_of_small_images_has_the_bits_of_a_product(void **state) {
    (void)state;
    tn_conv_args a = {.batch = 1, .groups = 1, .channels = TAP_CHANNELS, .out_channels = TAP_FILTERS, .kernel = {1, 1}};
    for (int d = 0; d < 2; d++)
        a.stride[d] = a.dilation[d] = 1;
    a.size[0] = a.out_size[0] = 1;
    a.size[1] = a.out_size[1] = a.x_stride[1] = TAP_SIDE * TAP_SIDE;
    a.x_stride[3] = 1;
    const bool wide = tn_conv_vec()->tiles->lanes == MOST_LANES;
    assert_true(tn_conv_tap_prefers_nhwc(&a) || !wide);
    a.out_channels = 80;
    assert_true(tn_conv_tap_prefers_nhwc(&a) || !wide);
    a.size[1] = a.out_size[1] = a.x_stride[1] = 14 * 14;
    a.channels = 64;
    assert_false(tn_conv_tap_prefers_nhwc(&a));
    a.channels = TAP_CHANNELS;
    a.size[1] = a.out_size[1] = a.x_stride[1] = 14 * 16;
    assert_false(tn_conv_tap_prefers_nhwc(&a));
    for (int images = 1; images <= 3; images++) {
        assert_ok(tn_threads_set(images));
        compare_small_images(images, TAP_FILTERS);
        compare_small_images(images, 80);
    }
}

/* What an epilogue does to each channel is done while sums are turned back. */
static void depthwise_epilogues_have_the_bits_of_their_steps(void **state) {
    (void)state;
    enum { CHANNELS = 37, SIDE = 14, MOST = 2 * CHANNELS * SIDE * SIDE };
    static float got[MOST], want[MOST];
    for (int kind = 0; kind < 3; kind++) {
        assert_ok(tn_threads_set(1 + kind));
        TN_SCOPE;
        tn_conv2d_options o = TN_CONV2D_DEFAULTS;
        o.groups = CHANNELS;
        o.padding[0] = o.padding[1] = 1;
        tn_tensor *x = random_tensor(TN_DIMS(2, CHANNELS, SIDE, SIDE)), *w = random_tensor(TN_DIMS(CHANNELS, 1, 3, 3));
        tn_tensor *bias = random_tensor(TN_DIMS(CHANNELS)), *rest = random_tensor(TN_DIMS(2, CHANNELS, SIDE, SIDE));
        tn_tensor *low = tn_from_data(&(float){-0.25f}, NULL, 0, TN_F32);
        tn_tensor *high = tn_from_data(&(float){0.5f}, NULL, 0, TN_F32);
        tn_tensor *y = NULL, *sums = tn_conv2d(x, w, NULL, &o);
        assert_ok(tn_eval(&sums, 1));
        for (int alone = 0; alone < 2; alone++) {
            y = alone ? tn_add(sums, tn_reshape(bias, TN_DIMS(CHANNELS, 1, 1))) : tn_conv2d(x, w, bias, &o);
            y = kind == 2 ? tn_add(y, rest) : kind ? tn_minimum(tn_maximum(y, low), high) : tn_relu(y);
            assert_ok(tn_eval(&y, 1));
            assert_ok(tn_read(y, alone ? want : got, sizeof got));
        }
        assert_memory_equal(got, want, sizeof got);
    }
}

/* Averages over windows are sums by the kernel for one filter a channel. */
static void window_means_come_from_the_depthwise_kernel(void **state) {
    (void)state;
    enum { CHANNELS = 3, SIDE = 12, MOST = CHANNELS * SIDE * SIDE };
    float x[MOST], y[MOST];
    for (int i = 0; i < MOST; i++)
        x[i] = (float)random_from(-1000, 1000) / 700.0f;
    for (int64_t stride = 1; stride <= 2; stride++) {
        TN_SCOPE;
        tn_avg_pool2d_options o = TN_AVG_POOL2D_DEFAULTS;
        o.stride[0] = o.stride[1] = stride;
        o.padding[0] = o.padding[1] = 1;
        tn_tensor *image = tn_from_data(x, TN_DIMS(1, CHANNELS, SIDE, SIDE), TN_F32);
        tn_tensor *mean = tn_avg_pool2d(image, (int64_t[]){3, 3}, &o);
        assert_ok(tn_eval(&mean, 1));
        char *text = tn_explain_last();
        assert_true(text && strstr(text, "native  conv2d_forward"));
        tn_text_free(text);
        assert_ok(tn_read(mean, y, (size_t)tn_numel(mean) * sizeof *y));
        const int64_t across = tn_size(mean, 3);
        for (int64_t n = 0; n < tn_numel(mean); n++) {
            double sum = 0;
            for (int64_t tap = 0; tap < 9; tap++) {
                int64_t row = n / across % across * stride - 1 + tap / 3, column = n % across * stride - 1 + tap % 3;
                bool there = row >= 0 && row < SIDE && column >= 0 && column < SIDE;
                if (there) sum += (double)x[(n / across / across * SIDE + row) * SIDE + column];
            }
            assert_float_equal(y[n], sum / 9, 1e-6);
        }
    }
}

/* As if each channel were a convolution of its own: the same chains. */
static void one_filter_a_channel_has_the_bits_of_a_convolution_a_channel(void **state) {
    (void)state;
    static const struct {
        int64_t size[2], kernel[2];
        tn_conv2d_options o;
    } cases[] = {
        {{7, 19}, {3, 3}, {.stride = {1, 1}, .padding = {1, 1}, .dilation = {1, 1}}},
        {{9, 21}, {5, 5}, {.stride = {1, 1}, .padding = {2, 2}, .dilation = {1, 1}}},
        {{9, 20}, {5, 5}, {.stride = {2, 1}, .padding = {2, 4}, .dilation = {1, 2}}},
        {{8, 37}, {3, 3}, {.stride = {2, 2}, .padding = {1, 1}, .dilation = {1, 1}}},
        {{40, 1}, {7, 1}, {.stride = {3, 1}, .padding = {3, 0}, .dilation = {1, 1}}},
        {{1, 60}, {1, 9}, {.stride = {1, 3}, .padding = {0, 4}, .dilation = {1, 2}}},
        {{12, 12}, {8, 8}, {.stride = {1, 1}, .padding = {4, 4}, .dilation = {1, 1}}},
        {{14, 30}, {5, 5}, {.stride = {2, 2}, .padding = {2, 2}, .dilation = {1, 1}}},
        {{11, 23}, {7, 7}, {.stride = {1, 1}, .padding = {3, 3}, .dilation = {1, 1}}},
        {{20, 20}, {18, 17}, {.stride = {1, 1}, .padding = {2, 2}, .dilation = {1, 1}}}, /* more than one chain */
    };
    enum { CHANNELS = 3, MOST = 4096 };
    assert_ok(tn_threads_set(2));
    for (size_t i = 0; i < TN_COUNT(cases); i++) {
        TN_SCOPE;
        tn_conv2d_options o = conv2d_of_row(&cases[i].o);
        tn_tensor *x = random_tensor(TN_DIMS(2, CHANNELS, cases[i].size[0], cases[i].size[1]));
        tn_tensor *w = random_tensor(TN_DIMS(CHANNELS, 1, cases[i].kernel[0], cases[i].kernel[1])), *each[CHANNELS];
        for (int c = 0; c < CHANNELS; c++)
            each[c] = tn_conv2d(tn_slice(x, 1, c, c + 1, 1), tn_slice(w, 0, c, c + 1, 1), NULL, &o);
        o.groups = CHANNELS;
        tn_tensor *y = tn_conv2d(x, w, NULL, &o), *want = tn_cat(each, CHANNELS, 1);
        float a[MOST], b[MOST];
        assert_ok(tn_eval((tn_tensor *[]){y, want}, 2));
        assert_true(tn_numel(y) == tn_numel(want) && tn_numel(y) <= MOST);
        assert_ok(tn_read(y, a, (size_t)tn_numel(y) * sizeof *a));
        assert_ok(tn_read(want, b, (size_t)tn_numel(y) * sizeof *b));
        assert_memory_equal(a, b, (size_t)tn_numel(y) * sizeof *a);
    }
}

/* What one tap sees of an image that is padded already. */
static tn_tensor *tap_seen(tn_tensor *x, const int64_t *taps, const tn_max_pool2d_options *o, const int64_t *places,
                           int64_t tap) {
    int64_t from[2] = {tap / taps[1] * o->dilation[0], tap % taps[1] * o->dilation[1]};
    for (int d = 0; d < 2; d++)
        x = tn_slice(x, 2 + d, from[d], from[d] + (places[d] - 1) * o->stride[d] + 1, o->stride[d]);
    return x;
}

/* Zeros of both signs, no numbers, and nothing that is greater than the padding. */
static tn_tensor *peculiar_images(int64_t channels, const int64_t *size) {
    static const float values[] = {0.0f, -0.0f, 1.5f, -2.0f, -INFINITY, NAN, -0.0f, 0.0f};
    float x[4096];
    int64_t count = 2 * channels * size[0] * size[1];
    assert_true(count <= 4096);
    for (int64_t i = 0; i < count; i++)
        x[i] = values[random_below(random_below(9) ? 5 : 8)];
    return tn_from_data(x, TN_DIMS(2, channels, size[0], size[1]), TN_F32);
}

/* The kernel against a reduction over the taps' images: which of two zeros, and whose NaN, too. */
static void the_greatest_of_a_window_has_the_bits_of_a_reduction(void **state) {
    (void)state;
    static const struct {
        int64_t size[2], kernel[2];
        tn_max_pool2d_options o;
    } cases[] = {
        {{8, 19}, {2, 2}, {.stride = {2, 2}, .dilation = {1, 1}}},
        {{9, 70}, {2, 2}, {.stride = {2, 2}, .dilation = {1, 1}}},
        {{9, 21}, {3, 3}, {.stride = {2, 2}, .padding = {1, 1}, .dilation = {1, 1}}},
        {{5, 90}, {5, 5}, {.stride = {1, 1}, .padding = {2, 2}, .dilation = {1, 1}}},
        {{12, 12}, {8, 8}, {.stride = {1, 3}, .padding = {4, 4}, .dilation = {1, 1}}},
        {{6, 20}, {2, 2}, {.stride = {2, 2}, .padding = {1, 0}, .dilation = {2, 3}}},
        {{40, 51}, {2, 2}, {.stride = {1, 1}, .dilation = {1, 1}}},
        {{45, 20}, {1, 4}, {.stride = {1, 4}, .dilation = {1, 1}}},
        {{7, 259}, {1, 4}, {.stride = {1, 4}, .dilation = {1, 1}}},
        {{30, 12}, {1, 2}, {.stride = {1, 4}, .dilation = {1, 3}}},
    };
    enum { CHANNELS = 1, TAPS = 64, MOST = 4096 };
    static float got[MOST], want[MOST];
    for (size_t i = 0; i < TN_COUNT(cases); i++)
        for (int isa = TN_ISA_BASE; isa < TN_ISA_COUNT; isa++) {
            if (!use_isa(isa)) continue;
            TN_SCOPE;
            tn_max_pool2d_options o = max_pool2d_of_row(&cases[i].o);
            const int64_t *window = cases[i].kernel, pads[4] = {o.padding[1], o.padding[1], o.padding[0], o.padding[0]};
            tn_tensor *x = peculiar_images(CHANNELS, cases[i].size), *part[TAPS];
            tn_tensor *y = tn_max_pool2d(x, window, &o), *padded = tn_pad(x, pads, 4, -INFINITY);
            int64_t taps = window[0] * window[1];
            for (int64_t t = 0; t < taps; t++)
                part[t] = tap_seen(padded, window, &o, tn_shape(y) + 2, t);
            tn_tensor *reduced = tn_amax(tn_contiguous(tn_stack(part, (int)taps, 0)), TN_DIMS(0), false);
            tn_tensor *twice = i % 2 ? tn_add(y, y) : y;
            reduced = i % 2 ? tn_add(reduced, reduced) : reduced;
            assert_ok(tn_eval(&twice, 1));
            size_t bytes = (size_t)tn_numel(y) * sizeof *got;
            assert_true(bytes <= sizeof got);
            assert_ok(tn_read(twice, got, bytes));
            assert_ok(tn_read(reduced, want, bytes));
            assert_memory_equal(got, want, bytes);
        }
}

/* Where a result is no number is promised, and not which: so numbers are compared by their bits, and others as such. */
static void what_is_no_number_stands_at_the_same_pixels(void **state) {
    (void)state;
    enum { FILTERS = 40, PLACES = 2 * FILTERS * 9 * 9 };
    static float got[PLACES], want[PLACES];
    static const int64_t size[2] = {9, 9};
    for (int isa = TN_ISA_BASE; isa < TN_ISA_COUNT; isa++) {
        if (!use_isa(isa)) continue;
        for (int threads = 1; threads <= MAX_THREADS; threads++) {
            bool first = isa == TN_ISA_BASE && threads == 1;
            assert_ok(tn_threads_set(threads));
            random_state = 5;
            {
                TN_SCOPE;
                tn_conv2d_options o = TN_CONV2D_DEFAULTS;
                o.padding[0] = o.padding[1] = 1;
                tn_tensor *w = tn_full(TN_DIMS(FILTERS, 3, 3, 3), 0.5, TN_F32);
                tn_tensor *y = tn_conv2d(peculiar_images(3, size), w, NULL, &o);
                assert_ok(tn_read(y, first ? want : got, sizeof got));
            }
            for (int i = 0; !first && i < PLACES; i++)
                if (memcmp(&got[i], &want[i], sizeof *got) != 0 && !(isnan(got[i]) && isnan(want[i])))
                    fail_msg("isa %d, %d threads, place %d: %a, not %a", isa, threads, i, (double)got[i],
                             (double)want[i]);
        }
    }
}

/* ---- what is done while results are turned ----------------------------------------------------------------------- */

/* Steps behind a convolution: those that are known there, and neighbours that must not be taken for them. */
enum { OWN = 1, ADDED_BIAS = 2, BY_IMAGE = 4, DOUBLED = 8, CUT = 16, POOLED_LAST = 32 };

/* What nobody holds is not stored. */
static void step_to(tn_tensor **y, tn_tensor *next, bool apart) {
    if (apart) assert_ok(tn_eval(&next, 1));
    if (*y) tn_free(*y);
    *y = next;
}

static void end_so(const tn_tensor *x, const tn_tensor *w, const tn_tensor *bias, int how, bool apart, float *out) {
    TN_SCOPE;
    tn_conv2d_options o = TN_CONV2D_DEFAULTS;
    o.padding[0] = o.padding[1] = 1;
    const int64_t images = how & BY_IMAGE ? tn_shape(x)[0] : 1;
    bool own = how & OWN && !apart;
    tn_tensor *y = NULL, *row = own ? tn_reshape(bias, TN_DIMS(-1)) : NULL;
    step_to(&y, tn_conv2d(x, w, row, &o), apart);
    if (how & DOUBLED) step_to(&y, tn_add(y, y), apart);
    if (how & (OWN | ADDED_BIAS) && !own) step_to(&y, tn_add(y, tn_reshape(bias, TN_DIMS(images, -1, 1, 1))), apart);
    if (how & CUT) step_to(&y, tn_relu(y), apart);
    if (how & POOLED_LAST) step_to(&y, tn_max_pool2d(y, (const int64_t[]){2, 2}, NULL), apart);
    assert_ok(tn_read(y, out, (size_t)tn_numel(y) * sizeof *out));
}

/* Random ones, a few of which are peculiar. */
static tn_tensor *hardly_peculiar_images(int64_t channels, const int64_t *size) {
    static const float values[] = {-0.0f, 0.0f, INFINITY, -INFINITY, NAN, 3e38f};
    float x[1 << 13];
    int64_t count = 2 * channels * size[0] * size[1];
    assert_true(count <= (int64_t)TN_COUNT(x));
    for (int64_t i = 0; i < count; i++)
        x[i] = random_below(500) ? (float)random_from(-1000, 1000) / 700.0f : values[random_below(6)];
    return tn_from_data(x, TN_DIMS(2, channels, size[0], size[1]), TN_F32);
}

static void what_ends_while_it_is_nhwc_has_the_bits_of_its_steps(void **state) {
    (void)state;
    static const int ways[] = {OWN,
                               ADDED_BIAS,
                               CUT,
                               OWN | CUT,
                               ADDED_BIAS | CUT,
                               CUT | POOLED_LAST,
                               OWN | POOLED_LAST,
                               ADDED_BIAS | CUT | POOLED_LAST,
                               ADDED_BIAS | BY_IMAGE | CUT,
                               ADDED_BIAS | DOUBLED | CUT};
    static const int64_t filters[] = {32, 61, 64};
    enum { CHANNELS = 8, MOST = 2 * 64 * 14 * 25 };
    static float got[MOST], want[MOST];
    for (int isa = TN_ISA_BASE; isa < TN_ISA_COUNT; isa++)
        for (size_t i = 0; i < TN_COUNT(ways) * TN_COUNT(filters); i++) {
            const int how = ways[i / TN_COUNT(filters)];
            int64_t n = filters[i % TN_COUNT(filters)], several = how & BY_IMAGE ? 2 * n : n;
            if (!use_isa(isa)) continue;
            {
                TN_SCOPE;
                const int64_t size[] = {10, 25};
                tn_tensor *x = hardly_peculiar_images(CHANNELS, size);
                tn_tensor *w = random_tensor(TN_DIMS(n, CHANNELS, 3, 3)), *bias = random_tensor(&several, 1);
                memset(got, 0, sizeof got);
                memset(want, 0, sizeof want);
                end_so(x, w, bias, how, false, got);
                end_so(x, w, bias, how, true, want);
            }
            for (int k = 0; k < MOST; k++)
                if (memcmp(&got[k], &want[k], sizeof *got) != 0 && !(isnan(got[k]) && isnan(want[k])))
                    fail_msg("isa %d, way %d, %d filters: %a, not %a", isa, how, (int)n, (double)got[k],
                             (double)want[k]);
        }
}

/* Few output pixels are the rows of a product whose columns are filters: the epilogue's fused epilogue was read where
 * channels were rows. As many output pixels as a tile has rows, and as many results as are worth an epilogue. */
static void what_ends_few_pixels_has_the_bits_of_its_steps(void **state) {
    (void)state;
    enum { PLACES = 8, FILTERS = 290 };
    static const int ways[] = {CUT, ADDED_BIAS, ADDED_BIAS | CUT, OWN | CUT};
    float got[FILTERS * PLACES], want[FILTERS * PLACES];
    for (int isa = TN_ISA_BASE; isa < TN_ISA_COUNT; isa++)
        for (size_t i = 0; i < TN_COUNT(ways); i++) {
            if (!use_isa(isa)) continue;
            {
                TN_SCOPE;
                const int64_t several = FILTERS, channels = 4;
                tn_tensor *x = random_tensor(TN_DIMS(1, channels, 2, PLACES / 2));
                tn_tensor *w = random_tensor(TN_DIMS(FILTERS, channels, 3, 3)), *bias = random_tensor(&several, 1);
                end_so(x, w, bias, ways[i], false, got);
                end_so(x, w, bias, ways[i], true, want);
            }
            assert_memory_equal(got, want, sizeof got);
        }
}

enum { CUT_ROWS = 14, CUT_COLUMNS = 11, CUT_CHANNELS = 30, CUT_FILTERS = 40 };
enum { CUT_MOST = CUT_FILTERS * CUT_ROWS * CUT_COLUMNS };

/* `w` 3×3, its taps `dilation` apart, with as much padding; or its middle columns, or only its middle. */
static void convolve_dilated(tn_tensor *x, tn_tensor *w, tn_tensor *bias, const int64_t *dilation, int groups,
                             float *out) {
    tn_conv2d_options o = TN_CONV2D_DEFAULTS;
    o.groups = groups;
    for (int d = 0; d < 2; d++) {
        o.dilation[d] = tn_size(w, 2 + d) > 1 ? dilation[d] : 1;
        o.padding[d] = tn_size(w, 2 + d) > 1 ? dilation[d] : 0;
    }
    for (int run = 0; run < 2; run++) { /* the second one with filters that were packed by the first */
        tn_tensor *y = tn_relu(tn_conv2d(x, w, bias, &o));
        assert_ok(tn_eval(&y, 1));
        assert_ok(tn_read(y, out, CUT_MOST * sizeof *out));
    }
}

/* A widely dilated window has taps that see no pixel of a small image from any place. They take no part: the bits are
 * those of a convolution without them, though they are infinite. */
static void taps_that_see_only_zeros_take_no_part(void **state) {
    (void)state;
    static const struct {
        int64_t dilation[2];
        int groups;
        bool rows, columns; /* of the taps only the middle one is seen */
    } cases[] = {{{CUT_ROWS, CUT_COLUMNS}, 1, true, true},      {{24, 36}, 2, true, true},
                 {{CUT_ROWS, CUT_COLUMNS - 1}, 1, true, false}, {{3, CUT_COLUMNS}, 1, false, true},
                 {{CUT_ROWS + 1, 2}, 5, true, false},           {{CUT_ROWS - 1, CUT_COLUMNS - 1}, 1, false, false}};
    static float got[CUT_MOST], want[CUT_MOST], filters[CUT_FILTERS][CUT_CHANNELS][3][3];
    for (size_t i = 0; i < TN_COUNT(cases); i++) {
        TN_SCOPE;
        const int64_t several = CUT_FILTERS, channels = CUT_CHANNELS / cases[i].groups;
        const int64_t first[2] = {cases[i].rows, cases[i].columns},
                      count[2] = {cases[i].rows ? 1 : 3, cases[i].columns ? 1 : 3};
        float *w = &filters[0][0][0][0];
        for (int64_t k = 0; k < CUT_FILTERS * channels * 9; k++) {
            bool seen = (!cases[i].rows || k % 9 / 3 == 1) && (!cases[i].columns || k % 3 == 1);
            w[k] = seen ? (float)random_from(-1000, 1000) / 700.0f : INFINITY;
        }
        tn_tensor *x = random_tensor(TN_DIMS(1, CUT_CHANNELS, CUT_ROWS, CUT_COLUMNS));
        tn_tensor *bias = random_tensor(&several, 1);
        tn_tensor *all = tn_from_data(w, TN_DIMS(CUT_FILTERS, channels, 3, 3), TN_F32);
        tn_tensor *left = tn_narrow(tn_narrow(all, 2, first[0], count[0]), 3, first[1], count[1]);
        left = tn_contiguous(left);
        assert_ok(tn_eval(&left, 1));
        assert_ok(tn_threads_set(1 + (int)i % 2));
        convolve_dilated(x, all, bias, cases[i].dilation, cases[i].groups, got);
        convolve_dilated(x, left, bias, cases[i].dilation, cases[i].groups, want);
        for (int k = 0; k < CUT_MOST; k++)
            if (!isfinite(got[k]) || memcmp(&got[k], &want[k], sizeof *got) != 0)
                fail_msg("case %zu, element %d: %a instead of %a", i, k, (double)got[k], (double)want[k]);
    }
}

/* Each band of rows is the convolution with the taps that see the image from it. */
static void rows_of_a_wide_window_leave_out_the_taps_that_see_only_zeros(void **state) {
    (void)state;
    enum { SIDE = 14, CHANNELS = 32, FILTERS = 80, WIDE = 12, BANDS = 3, MOST = FILTERS * SIDE * SIDE };
    static const struct { int64_t row, rows, tap, taps; } bands[BANDS] = {{0, 2, 1, 2}, {2, 10, 1, 1}, {12, 2, 0, 2}};
    static float got[MOST], want[MOST];
    TN_SCOPE;
    tn_conv2d_options o = TN_CONV2D_DEFAULTS;
    o.dilation[0] = o.padding[0] = WIDE;
    o.dilation[1] = o.padding[1] = 2;
    tn_tensor *x = random_tensor(TN_DIMS(1, CHANNELS, SIDE, SIDE)), *part[BANDS];
    tn_tensor *w = random_tensor(TN_DIMS(FILTERS, CHANNELS, 3, 3)), *y = tn_conv2d(x, w, NULL, &o);
    tn_tensor *padded = tn_pad(x, (int64_t[]){0, 0, WIDE, WIDE}, 4, 0);
    o.padding[0] = 0;
    for (int k = 0; k < BANDS; k++) {
        const int64_t seen = bands[k].rows + (bands[k].taps - 1) * WIDE;
        tn_tensor *rows = tn_narrow(padded, 2, bands[k].row + bands[k].tap * WIDE, seen);
        part[k] = tn_conv2d(rows, tn_contiguous(tn_narrow(w, 2, bands[k].tap, bands[k].taps)), NULL, &o);
    }
    tn_tensor *all = tn_cat(part, BANDS, 2);
    assert_ok(tn_eval((tn_tensor *[]){y, all}, 2));
    assert_ok(tn_read(y, got, sizeof got));
    assert_ok(tn_read(all, want, sizeof want));
    assert_memory_equal(got, want, sizeof got);
}

/* Convolutions that n is composed of. */
static int convolutions_in(tn_node *n) {
    if (n->op == TN_OP_CONV2D_FORWARD) return 1;
    if (n->op == TN_OP_CONV2D) {
        assert_ok(tn_expand_node(n));
        return convolutions_in(n->expansion);
    }
    int count = 0;
    for (int i = 0; i < n->n_in; i++)
        if (n->in[i]) count += convolutions_in(n->in[i]);
    return count;
}

/* Bands of both axes: 3 by 3 of 25 taps or of small filters; of 49 taps of large filters only those of rows. */
static void bands_of_large_filters_have_few_taps(void **state) {
    (void)state;
    static const struct {
        int64_t side, channels, dilation;
        int convolutions;
    } cases[] = {{28, 192, 18, 9}, {28, 192, 12, 3}, {32, 64, 12, 9}, {28, 192, 4, 1}};
    for (size_t i = 0; i < TN_COUNT(cases); i++) {
        TN_SCOPE;
        const int64_t side = cases[i].side, channels = cases[i].channels;
        tn_conv2d_options o = TN_CONV2D_DEFAULTS;
        o.dilation[0] = o.padding[0] = o.dilation[1] = o.padding[1] = cases[i].dilation;
        tn_tensor *x = tn_zeros(TN_DIMS(1, channels, side, side), TN_F32);
        tn_tensor *w = tn_zeros(TN_DIMS(channels, channels, 3, 3), TN_F32);
        assert_int_equal(convolutions_in(tn_tensor_node(tn_conv2d(x, w, NULL, &o))), cases[i].convolutions);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_windows_have_the_bits_of_their_definition),
        cmocka_unit_test(channels_side_by_side_have_the_bits_of_the_definition),
        cmocka_unit_test(wide_strides_need_little_memory),
        cmocka_unit_test(large_windows_have_the_bits_of_their_definition),
        cmocka_unit_test(the_gradient_of_few_taps_has_the_bits_of_the_definition),
        cmocka_unit_test(images_of_few_pixels_have_the_bits_of_the_definition),
        cmocka_unit_test(pixels_of_several_phases_have_the_bits_of_the_definition),
        cmocka_unit_test(windows_that_reach_too_far_have_no_kernel),
        cmocka_unit_test(few_pixels_have_the_bits_of_the_kernel),
        cmocka_unit_test(what_is_joined_has_the_bits_of_what_is_not),
        cmocka_unit_test(pooling_joins_a_convolution_with_the_same_bits),
        cmocka_unit_test(what_one_convolution_reads_has_zeros_around_it),
        cmocka_unit_test(what_lies_down_is_stored_as_it_is),
        cmocka_unit_test(one_filter_a_channel_has_the_bits_of_its_definition),
        cmocka_unit_test(one_filter_a_channel_has_the_bits_of_a_convolution_a_channel),
        cmocka_unit_test(blocks_of_channels_have_the_bits_of_the_definition),
        cmocka_unit_test(bottlenecks_in_blocks_have_the_bits_of_their_steps),
        cmocka_unit_test(stages_in_blocks_have_the_bits_of_their_steps),
        cmocka_unit_test(filters_too_large_for_blocks_are_packed_at_each_run),
        cmocka_unit_test(squeezes_in_blocks_have_the_bits_of_their_steps),
        cmocka_unit_test(one_tap_has_the_bits_of_a_product),
        cmocka_unit_test(one_tap_of_small_images_has_the_bits_of_a_product),
        cmocka_unit_test(window_means_come_from_the_depthwise_kernel),
        cmocka_unit_test(depthwise_epilogues_have_the_bits_of_their_steps),
        cmocka_unit_test(the_greatest_of_a_window_has_the_bits_of_a_reduction),
        cmocka_unit_test(what_is_no_number_stands_at_the_same_pixels),
        cmocka_unit_test(what_ends_while_it_is_nhwc_has_the_bits_of_its_steps),
        cmocka_unit_test(what_ends_few_pixels_has_the_bits_of_its_steps),
        cmocka_unit_test(taps_that_see_only_zeros_take_no_part),
        cmocka_unit_test(rows_of_a_wide_window_leave_out_the_taps_that_see_only_zeros),
        cmocka_unit_test(bands_of_large_filters_have_few_taps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
