/* test_winograd.c — convolutions under fast numerics: Winograd's algorithm within its bound, with the same bits on
 * every processor and for any number of threads; and where it is taken.
 *
 * The bound is that of cpu/conv.h, computed here in f64 from matrices that are made of the points alone. Results lie
 * between marks; workspace, filters and images have exactly their sizes. */
#include "test_support.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>

#include "cpu/conv.h"
#include "cpu/isa.h"
#include "random_numbers.h"
#include "trunnion/autograd.h"
#include "trunnion/ops.h"

enum { OUT = 4, IN = 6, TAPS = 3, LINE_OUT = 2, LINE_TAPS = 5, MAX_POINTS = 64, MAX_THREADS = 3 };

static const float MARK = 12345.0f;

static uint64_t random_state = 1;

static int64_t random_from(int64_t low, int64_t high) {
    return low + (int64_t)((random_step(&random_state) >> 33) % (uint64_t)(high - low + 1));
}

static float random_number(void) { return (float)random_from(-1000, 1000) / 700.0f; }

/* ---- the transforms, from their points --------------------------------------------------------------------------- */

static const double points[IN - 1] = {0, 0.75, -0.75, 1.5, -1.5};
static double forth[IN][IN], taps_forth[IN][TAPS], back[OUT][IN], line_taps[IN][LINE_TAPS], line_back[LINE_OUT][IN];
static double results_forth[IN][OUT], taps_back[TAPS][IN]; /* the gradient's: turned around */

/* Coefficients of the product of (x − point) over all points but `without`. */
static void product_of_points(int without, double *c) {
    memset(c, 0, IN * sizeof *c);
    c[0] = 1;
    for (int i = 0; i < IN - 1; i++) {
        if (i == without) continue;
        for (int k = IN - 1; k > 0; k--)
            c[k] = c[k - 1] - points[i] * c[k];
        c[0] *= -points[i];
    }
}

static int make_matrices(void **state) {
    (void)state;
    for (int i = 0; i < IN; i++) {
        product_of_points(i, forth[i]);
        double scale = 1;
        for (int k = 0; k < IN - 1 && i < IN - 1; k++)
            if (k != i) scale *= points[i] - points[k];
        for (int k = 0; k < OUT; k++)
            back[k][i] = i < IN - 1 ? pow(points[i], k) : k == OUT - 1;
        for (int k = 0; k < TAPS; k++)
            taps_forth[i][k] = i < IN - 1 ? pow(points[i], k) / scale : k == TAPS - 1;
        for (int k = 0; k < LINE_OUT; k++)
            line_back[k][i] = i < IN - 1 ? pow(points[i], k) : k == LINE_OUT - 1;
        for (int k = 0; k < LINE_TAPS; k++)
            line_taps[i][k] = i < IN - 1 ? pow(points[i], k) / scale : k == LINE_TAPS - 1;
        for (int k = 0; k < OUT; k++)
            results_forth[i][k] = back[k][i];
        for (int k = 0; k < TAPS; k++)
            taps_back[k][i] = taps_forth[i][k];
    }
    return 0;
}

/* |M| · |x| · |Mᵀ|, x [columns, columns], to [rows, rows]. */
TEST_DEFINITION static void magnitudes(const double *m, int rows, int columns, const double *x, double *to) {
    double half[IN * IN]; /* |M| · |x| */
    for (int i = 0; i < rows; i++)
        for (int l = 0; l < columns; l++) {
            double sum = 0;
            for (int k = 0; k < columns; k++)
                sum += fabs(m[i * columns + k]) * fabs(x[k * columns + l]);
            half[i * columns + l] = sum;
        }
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < rows; j++) {
            double sum = 0;
            for (int l = 0; l < columns; l++)
                sum += half[i * columns + l] * fabs(m[j * columns + l]);
            to[i * rows + j] = sum;
        }
}

/* ---- the definition and the bound -------------------------------------------------------------------------------- */

typedef struct problem {
    tn_conv_args a;
    float *x, *weight;
    double *want, *bound; /* of each result */
} problem;

TEST_DEFINITION static double seen_at(const problem *p, int64_t image, int64_t channel, int64_t row, int64_t column) {
    const tn_conv_args *a = &p->a;
    row -= a->pad_before[0];
    column -= a->pad_before[1];
    if (row < 0 || row >= a->size[0] || column < 0 || column >= a->size[1]) return 0;
    return (double)
        a->x[image * a->x_stride[0] + channel * a->x_stride[1] + row * a->x_stride[2] + column * a->x_stride[3]];
}

/* Adds one channel to a tile of results that begins at output pixel (u, v), whose rows are as far apart as the taps'.
 * */
TEST_DEFINITION static void add_channel(problem *p, int64_t image, int64_t filter, int64_t channel, int64_t u,
                                        int64_t v, double *sums, double *sizes) {
    const tn_conv_args *a = &p->a;
    double d[IN * IN], g[TAPS * TAPS], big_d[IN * IN], big_g[IN * IN];
    for (int k = 0; k < IN * IN; k++)
        d[k] = seen_at(p, image, channel, u + k / IN * a->dilation[0], v + k % IN);
    for (int k = 0; k < TAPS * TAPS; k++)
        g[k] = (double)a->weight[filter * a->weight_stride[0] + channel * a->weight_stride[1] +
                                 k / TAPS * a->weight_stride[2] + k % TAPS * a->weight_stride[3]];
    for (int k = 0; k < OUT * OUT * TAPS * TAPS; k++) {
        int at = k / TAPS / TAPS, tap = k % (TAPS * TAPS);
        sums[at] += d[(at / OUT + tap / TAPS) * IN + at % OUT + tap % TAPS] * g[tap];
    }
    magnitudes(forth[0], IN, IN, d, big_d);
    magnitudes(taps_forth[0], IN, TAPS, g, big_g);
    for (int k = 0; k < IN * IN; k++)
        sizes[k] += big_d[k] * big_g[k];
}

TEST_DEFINITION static void define_tile(problem *p, int64_t image, int64_t filter, int64_t u, int64_t v) {
    const tn_conv_args *a = &p->a;
    const double rounding = ldexp(1, -24) * (double)(a->channels + 16);
    double sums[OUT * OUT] = {0}, sizes[IN * IN] = {0}, big[OUT * OUT];
    for (int64_t c = 0; c < a->channels; c++)
        add_channel(p, image, filter, c, u, v, sums, sizes);
    magnitudes(back[0], OUT, IN, sizes, big);
    for (int k = 0; k < OUT * OUT; k++) {
        int64_t row = u + k / OUT * a->dilation[0], column = v + k % OUT;
        if (row >= a->out_size[0] || column >= a->out_size[1]) continue;
        int64_t n = ((image * a->out_channels + filter) * a->out_size[0] + row) * a->out_size[1] + column;
        p->want[n] = sums[k];
        p->bound[n] = big[k] * rounding * 1.01 + 1e-30; /* terms of higher order */
    }
}

static int64_t results_of(const tn_conv_args *a) {
    return a->batch * a->out_channels * a->out_size[0] * a->out_size[1];
}

TEST_DEFINITION static double magnitude(const double *row, const double *x, int count) {
    double sum = 0;
    for (int k = 0; k < count; k++)
        sum += fabs(row[k]) * fabs(x[k]);
    return sum;
}

/* Two results of five taps in a row, from output pixel (u, v) on. */
TEST_DEFINITION static void define_line(problem *p, int64_t image, int64_t filter, int64_t u, int64_t v) {
    const tn_conv_args *a = &p->a;
    const double rounding = ldexp(1, -24) * (double)(a->channels + 16);
    double sums[LINE_OUT] = {0}, sizes[IN] = {0}, d[IN], g[LINE_TAPS];
    for (int64_t c = 0; c < a->channels; c++) {
        for (int k = 0; k < IN; k++)
            d[k] = seen_at(p, image, c, u, v + k);
        for (int k = 0; k < LINE_TAPS; k++)
            g[k] = (double)a->weight[filter * a->weight_stride[0] + c * a->weight_stride[1] + k * a->weight_stride[3]];
        for (int k = 0; k < LINE_OUT * LINE_TAPS; k++)
            sums[k / LINE_TAPS] += d[k / LINE_TAPS + k % LINE_TAPS] * g[k % LINE_TAPS];
        for (int k = 0; k < IN; k++)
            sizes[k] += magnitude(forth[k], d, IN) * magnitude(line_taps[k], g, LINE_TAPS);
    }
    for (int64_t k = 0; k < tn_min64(LINE_OUT, a->out_size[1] - v); k++) {
        int64_t n = ((image * a->out_channels + filter) * a->out_size[0] + u) * a->out_size[1] + v + k;
        p->want[n] = sums[k];
        p->bound[n] = magnitude(line_back[k], sizes, IN) * rounding * 1.01 + 1e-30;
    }
}

static bool is_line(const tn_conv_args *a) { return a->kernel[1] == LINE_TAPS; }

TEST_DEFINITION static void define(problem *p) {
    const tn_conv_args *a = &p->a;
    const int64_t pairs = tn_ceil_div(a->out_size[1], LINE_OUT), all = a->batch * a->out_channels * a->out_size[0];
    for (int64_t n = 0; is_line(a) && n < all * pairs; n++) {
        int64_t plane = n / pairs / a->out_size[0];
        define_line(p, plane / a->out_channels, plane % a->out_channels, n / pairs % a->out_size[0],
                    n % pairs * LINE_OUT);
    }
    if (is_line(a)) return;
    for (int64_t n = 0; n < a->batch * a->out_channels; n++)
        for (int64_t t = 0, apart = a->dilation[0]; t < tn_ceil_div(a->out_size[0], OUT * apart) * apart; t++)
            for (int64_t v = 0; v < a->out_size[1]; v += OUT)
                define_tile(p, n / a->out_channels, n % a->out_channels, t / apart * apart * OUT + t % apart, v);
}

/* ---- the kernel -------------------------------------------------------------------------------------------------- */

static void *memory_of(int64_t count, size_t size) {
    void *p = tn_mem_alloc((size_t)count * size);
    assert_non_null(p);
    return p;
}

/* Into out, between marks. */
static void compute(const problem *p, int threads, bool packed_before, float *out) {
    tn_conv_args a = p->a;
    int64_t count = results_of(&a);
    assert_ok(tn_threads_set(threads));
    for (int64_t i = 0; i < count + 2 * MAX_POINTS; i++)
        out[i] = MARK;
    a.out = out + MAX_POINTS;
    size_t bytes = tn_conv_workspace(&a, threads);
    a.workspace = memory_of((int64_t)bytes, 1);
    memset(a.workspace, 0xff, bytes);
    void *packed = memory_of((int64_t)tn_conv_packed_bytes(&a), 1);
    tn_conv_pack(&a, packed);
    if (packed_before) a.packed = packed;
    tn_conv(&a);
    for (int i = 0; i < MAX_POINTS; i++)
        assert_true(out[i] == MARK && out[MAX_POINTS + count + i] == MARK);
    tn_mem_free(packed);
    tn_mem_free(a.workspace);
}

static void assert_near(const problem *p, const float *got) {
    const tn_conv_args *a = &p->a;
    for (int64_t i = 0; i < results_of(a); i++) {
        double off = fabs((double)got[i] - p->want[i]);
        if (off <= p->bound[i]) continue;
        fail_msg("%lld images, %lld channels, %lld filters, %lld×%lld from (%lld, %lld) to %lld×%lld: result %lld is "
                 "%.9g, not %.9g; off by %.3g times the bound",
                 (long long)a->batch, (long long)a->channels, (long long)a->out_channels, (long long)a->size[0],
                 (long long)a->size[1], (long long)-a->pad_before[0], (long long)-a->pad_before[1],
                 (long long)a->out_size[0], (long long)a->out_size[1], (long long)i, (double)got[i], p->want[i],
                 off / p->bound[i]);
    }
}

/* In the mean, errors are far below the bound, as a part of the results: what a wrong digit of a constant exceeds. */
static void assert_near_in_the_mean(const problem *p, const float *got) {
    const int64_t count = results_of(&p->a);
    double off = 0, size = 0;
    for (int64_t i = 0; i < count; i++) {
        off += pow((double)got[i] - p->want[i], 2);
        size += pow(p->want[i], 2);
    }
    if (count > 1000 && sqrt(off / size) > 1.5e-6)
        fail_msg("%lld channels: off by %.3g in the mean", (long long)p->a.channels, sqrt(off / size));
}

/* Processors without fma compute as under exact numerics. */
static void need_it(void) {
    const tn_conv_args a = {.batch = 1,
                            .groups = 1,
                            .channels = 1,
                            .out_channels = 1,
                            .size = {4, 4},
                            .out_size = {2, 2},
                            .kernel = {3, 3},
                            .stride = {1, 1},
                            .dilation = {1, 1}};
    if (tn_conv_winograd_fits(&a)) return;
    print_message("skipped: no fma here, or TRUNNION_ISA=baseline\n");
    skip();
}

/* The filters as those of the way back: the other way around, their channels first. */
static float *nhwc_out_channels(const tn_conv_args *a) {
    float *turned = memory_of(a->out_channels * a->channels * 9, sizeof *turned);
    for (int64_t n = 0; n < a->out_channels * a->channels; n++)
        for (int64_t k = 0; k < 9; k++)
            turned[(n % a->channels * a->out_channels + n / a->channels) * 9 + 8 - k] = a->weight[n * 9 + k];
    return turned;
}

/* The way back of a convolution whose results are the images is one with its filters turned: the same bits. */
static void spread_has_the_same_bits(const problem *p, int threads, const float *want) {
    const tn_conv_args *a = &p->a;
    if (is_line(a)) return;
    tn_conv_args way = {.batch = a->batch, .groups = 1, .channels = a->out_channels, .out_channels = a->channels};
    int64_t count = results_of(a);
    for (int d = 0; d < 2; d++) {
        way.size[d] = a->out_size[d];
        way.out_size[d] = a->size[d];
        way.kernel[d] = TAPS;
        way.stride[d] = 1;
        way.dilation[d] = a->dilation[d];
        way.pad_before[d] = a->dilation[d] * (TAPS - 1) - a->pad_before[d];
        if (way.pad_before[d] < 0) return;
    }
    float *turned = nhwc_out_channels(a), *out = memory_of(count, sizeof *out);
    way.y = a->x;
    memcpy(way.y_stride, a->x_stride, sizeof way.y_stride);
    way.weight = turned;
    memcpy(way.weight_stride, (int64_t[]){a->out_channels * 9, 9, 3, 1}, sizeof way.weight_stride);
    way.winograd = true;
    way.out = out;
    way.workspace = memory_of((int64_t)tn_conv_dgrad_workspace(&way, threads), 1);
    tn_conv_dgrad(&way);
    if (memcmp(out, want, (size_t)count * sizeof *out) != 0)
        fail_msg("%d threads: the way back has other bits", threads);
    tn_mem_free(way.workspace);
    tn_mem_free(turned);
    tn_mem_free(out);
}

/* Every processor and number of threads: the first result is near the definition, all others have its bits. */
static void check_everywhere(problem *p) {
    const size_t bytes = (size_t)(results_of(&p->a) + 2 * MAX_POINTS) * sizeof(float);
    float *first = memory_of((int64_t)bytes, 1), *out = memory_of((int64_t)bytes, 1);
    bool one = false;
    define(p);
    for (int isa = TN_ISA_BASE; isa < TN_ISA_COUNT; isa++) {
        if (!tn_gemm_use((tn_isa)isa) || !tn_conv_winograd_fits(&p->a)) continue;
        for (int threads = 1; threads <= MAX_THREADS; threads++) {
            if (test_leaves_out(threads, isa == TN_ISA_BASE && TEST_BASE_IS_SLOW)) continue;
            compute(p, threads, threads == 2, one ? out : first);
            if (!one) assert_near(p, first + MAX_POINTS);
            if (!one) assert_near_in_the_mean(p, first + MAX_POINTS);
            if (one && memcmp(out, first, bytes) != 0) fail_msg("isa %d, %d threads: other bits", isa, threads);
            one = true;
            spread_has_the_same_bits(p, threads, first + MAX_POINTS);
        }
    }
    tn_mem_free(out);
    tn_mem_free(first);
}

/* Images by channels or by output pixels, rows with something between them. */
static void check(const tn_conv_args *sizes, bool by_pixels, int64_t between) {
    problem p = {.a = *sizes};
    tn_conv_args *a = &p.a;
    int64_t row = a->size[1] + between, plane = a->size[0] * row;
    a->groups = 1;
    a->winograd = true;
    for (int d = 0; d < 2; d++) {
        if (a->kernel[d] == 0) a->kernel[d] = TAPS;
        a->stride[d] = 1;
        a->dilation[d] = tn_max64(a->dilation[d], 1);
    }
    const int64_t taps = a->kernel[0] * a->kernel[1];
    assert_true(tn_conv_winograd_fits(a));
    memcpy(a->x_stride, (int64_t[]){a->channels * plane, plane, row, 1}, sizeof a->x_stride);
    if (by_pixels)
        memcpy(a->x_stride, (int64_t[]){a->channels * plane, 1, row * a->channels, a->channels}, sizeof a->x_stride);
    memcpy(a->weight_stride, (int64_t[]){a->channels * taps, taps, a->kernel[1], 1}, sizeof a->weight_stride);
    int64_t pixels = a->batch * a->channels * plane - between * a->x_stride[3];
    int64_t weights = a->out_channels * a->channels * taps;
    a->x = p.x = memory_of(pixels, sizeof *p.x);
    a->weight = p.weight = memory_of(weights, sizeof *p.weight);
    for (int64_t i = 0; i < pixels; i++)
        p.x[i] = random_number();
    for (int64_t i = 0; i < weights; i++)
        p.weight[i] = random_number();
    p.want = memory_of(results_of(a), sizeof *p.want);
    p.bound = memory_of(results_of(a), sizeof *p.bound);
    check_everywhere(&p);
    tn_mem_free(p.x);
    tn_mem_free(p.weight);
    tn_mem_free(p.want);
    tn_mem_free(p.bound);
}

/* ---- the gradient of filters ------------------------------------------------------------------------------------- */

/* Adds what one tile of results, which begins at output pixel (u, v), and what it has seen give to nine gradients. */
TEST_DEFINITION static void add_gradient(const problem *p, const float *y, int64_t image, int64_t channel, int64_t u,
                                         int64_t v, double *sums, double *sizes) {
    const tn_conv_args *a = &p->a;
    double d[IN * IN], r[OUT * OUT], big_d[IN * IN], big_r[IN * IN];
    for (int k = 0; k < IN * IN; k++)
        d[k] = seen_at(p, image, channel, u + k / IN, v + k % IN);
    for (int k = 0; k < OUT * OUT; k++) {
        int64_t row = u + k / OUT, column = v + k % OUT;
        bool there = row < a->out_size[0] && column < a->out_size[1];
        r[k] = there ? (double)y[row * a->y_stride[2] + column * a->y_stride[3]] : 0;
    }
    for (int k = 0; k < OUT * OUT * TAPS * TAPS; k++) {
        int at = k / TAPS / TAPS, tap = k % (TAPS * TAPS);
        sums[tap] += d[(at / OUT + tap / TAPS) * IN + at % OUT + tap % TAPS] * r[at];
    }
    magnitudes(forth[0], IN, IN, d, big_d);
    magnitudes(results_forth[0], IN, OUT, r, big_r);
    for (int k = 0; k < IN * IN; k++)
        sizes[k] += big_d[k] * big_r[k];
}

/* Gradients in f64, and their bounds, of filter n / channels and channel n % channels. */
TEST_DEFINITION static void define_gradient(const problem *p, int64_t n, double *want, double *bound) {
    const tn_conv_args *a = &p->a;
    double sizes[IN * IN] = {0}, big[TAPS * TAPS];
    int64_t tiles = 0;
    memset(want, 0, TAPS * TAPS * sizeof *want);
    for (int64_t image = 0; image < a->batch; image++) {
        const float *y = a->y + image * a->y_stride[0] + n / a->channels * a->y_stride[1];
        for (int64_t u = 0; u < a->out_size[0]; u += OUT)
            for (int64_t v = 0; v < a->out_size[1]; v += OUT, tiles++)
                add_gradient(p, y, image, n % a->channels, u, v, want, sizes);
    }
    magnitudes(taps_back[0], TAPS, IN, sizes, big);
    for (int k = 0; k < TAPS * TAPS; k++)
        bound[k] = big[k] * ldexp(1, -24) * (double)(tiles + 18) * 1.01 + 1e-30;
}

static void assert_gradients_near(const problem *p, const float *got) {
    const tn_conv_args *a = &p->a;
    double off = 0, size = 0;
    for (int64_t n = 0; n < a->out_channels * a->channels; n++) {
        double want[TAPS * TAPS], bound[TAPS * TAPS];
        define_gradient(p, n, want, bound);
        for (int k = 0; k < TAPS * TAPS; k++) {
            double by = fabs((double)got[n * 9 + k] - want[k]);
            off += by * by;
            size += want[k] * want[k];
            if (by <= bound[k]) continue;
            fail_msg("%lld images, %lld channels, %lld filters, %lld×%lld to %lld×%lld: gradient %lld, %d is %.9g, not "
                     "%.9g; off by %.3g times the bound",
                     (long long)a->batch, (long long)a->channels, (long long)a->out_channels, (long long)a->size[0],
                     (long long)a->size[1], (long long)a->out_size[0], (long long)a->out_size[1], (long long)n, k,
                     (double)got[n * 9 + k], want[k], by / bound[k]);
        }
    }
    const bool many = a->out_channels * a->channels > 400; /* few may see next to nothing of an image */
    if (many && sqrt(off / size) > 3e-6) fail_msg("off by %.3g in the mean", sqrt(off / size));
}

static void compute_gradients(const problem *p, int threads, float *out) {
    tn_conv_args a = p->a;
    int64_t count = a.out_channels * a.channels * 9;
    assert_ok(tn_threads_set(threads));
    for (int64_t i = 0; i < count + 2 * MAX_POINTS; i++)
        out[i] = MARK;
    a.out = out + MAX_POINTS;
    size_t bytes = tn_conv_wgrad_workspace(&a, threads);
    a.workspace = memory_of((int64_t)bytes, 1);
    memset(a.workspace, 0xff, bytes);
    tn_conv_wgrad(&a);
    for (int i = 0; i < MAX_POINTS; i++)
        assert_true(out[i] == MARK && out[MAX_POINTS + count + i] == MARK);
    tn_mem_free(a.workspace);
}

/* Images and results by channels or by output pixels. */
static float *random_images(int64_t images, int64_t channels, const int64_t *size, bool by_pixels, int64_t *stride) {
    int64_t plane = size[0] * size[1];
    memcpy(stride, (int64_t[]){channels * plane, plane, size[1], 1}, 4 * sizeof *stride);
    if (by_pixels) memcpy(stride, (int64_t[]){channels * plane, 1, size[1] * channels, channels}, 4 * sizeof *stride);
    float *x = memory_of(images * channels * plane, sizeof *x);
    for (int64_t i = 0; i < images * channels * plane; i++)
        x[i] = random_number();
    return x;
}

static void check_gradients(const tn_conv_args *sizes, int way) {
    problem p = {.a = *sizes};
    tn_conv_args *a = &p.a;
    a->groups = 1;
    a->winograd = true;
    for (int d = 0; d < 2; d++) {
        a->kernel[d] = TAPS;
        a->stride[d] = a->dilation[d] = 1;
    }
    assert_true(tn_conv_wgrad_winograd_fits(a));
    a->x = p.x = random_images(a->batch, a->channels, a->size, way % 3 == 1, a->x_stride);
    float *y = random_images(a->batch, a->out_channels, a->out_size, way % 3 == 2, a->y_stride);
    a->y = y;
    const size_t bytes = (size_t)(a->out_channels * a->channels * 9 + 2 * MAX_POINTS) * sizeof(float);
    float *first = memory_of((int64_t)bytes, 1), *out = memory_of((int64_t)bytes, 1);
    bool one = false;
    for (int isa = TN_ISA_BASE; isa < TN_ISA_COUNT; isa++) {
        if (!tn_gemm_use((tn_isa)isa) || !tn_conv_wgrad_winograd_fits(a)) continue;
        for (int threads = 1; threads <= MAX_THREADS; threads++) {
            if (test_leaves_out(threads, isa == TN_ISA_BASE && TEST_BASE_IS_SLOW)) continue;
            compute_gradients(&p, threads, one ? out : first);
            if (!one) assert_gradients_near(&p, first + MAX_POINTS);
            if (one && memcmp(out, first, bytes) != 0) fail_msg("isa %d, %d threads: other gradients", isa, threads);
            one = true;
        }
    }
    tn_mem_free(out);
    tn_mem_free(first);
    tn_mem_free(p.x);
    tn_mem_free(y);
}

/* Any output pixels, as above; and several blocks of whole images, of rows of tiles and of one, with rests of all. */
static void gradients_are_within_the_bound(void **state) {
    (void)state;
    need_it();
    static const tn_conv_args sizes[] = {
        {.batch = 9, .channels = 65, .out_channels = 70, .size = {12, 12}, .out_size = {12, 12}, .pad_before = {1, 1}},
        {.batch = 2, .channels = 33, .out_channels = 31, .size = {57, 29}, .out_size = {57, 29}, .pad_before = {1, 1}},
        {.batch = 1, .channels = 2, .out_channels = 3, .size = {9, 900}, .out_size = {9, 900}, .pad_before = {1, 1}},
        {.batch = 40, .channels = 16, .out_channels = 17, .size = {8, 10}, .out_size = {6, 8}, .pad_before = {0, 0}},
        {.batch = 1,
         .channels = 150,
         .out_channels = 15,
         .size = {13, 130},
         .out_size = {13, 130},
         .pad_before = {1, 1}},
    };
    for (int i = 0; i < TEST_SWEEP(40); i++) {
        tn_conv_args a = {
            .batch = random_from(1, 3), .channels = random_from(1, 20), .out_channels = random_from(1, 20)};
        for (int d = 0; d < 2; d++) {
            a.size[d] = random_from(1, 14);
            a.out_size[d] = random_from(1, 15);
            a.pad_before[d] = random_from(-2, 4);
        }
        check_gradients(&a, i);
    }
    for (size_t i = 0; i < TN_COUNT(sizes); i += (size_t)test_every(1, 3))
        check_gradients(&sizes[i], (int)i);
}

/* ---- where it is taken ------------------------------------------------------------------------------------------- */

/* Any output pixels will do: what lies beyond the image is zero. */
static void random_sizes_are_within_the_bound(void **state) {
    (void)state;
    need_it();
    for (int i = 0; i < TEST_SWEEP(40); i++) {
        tn_conv_args a = {
            .batch = random_from(1, 3), .channels = random_from(1, 9), .out_channels = random_from(1, 20)};
        for (int d = 0; d < 2; d++) {
            a.size[d] = random_from(1, 14);
            a.out_size[d] = random_from(1, 15);
            a.pad_before[d] = random_from(-2, 4);
        }
        a.dilation[0] = random_from(-2, 4); /* below 1: 1 */
        check(&a, i % 3 == 0, i % 4);
    }
}

/* Pieces of long rows, rows of tiles in several blocks, blocks of several images, filters that threads share, channels
 * for which a block holds few tiles; the same where rows of results take turns. */
static void large_sizes_are_within_the_bound(void **state) {
    (void)state;
    need_it();
    static const tn_conv_args sizes[] = {
        {.batch = 1, .channels = 2, .out_channels = 3, .size = {5, 1100}, .out_size = {5, 1100}, .pad_before = {1, 1}},
        {.batch = 2, .channels = 20, .out_channels = 31, .size = {57, 29}, .out_size = {57, 29}, .pad_before = {1, 1}},
        {.batch = 23, .channels = 3, .out_channels = 17, .size = {7, 8}, .out_size = {7, 8}, .pad_before = {1, 1}},
        {.batch = 2, .channels = 5, .out_channels = 61, .size = {9, 10}, .out_size = {7, 8}, .pad_before = {0, 0}},
        {.batch = 1,
         .channels = 150,
         .out_channels = 15,
         .size = {13, 130},
         .out_size = {13, 130},
         .pad_before = {1, 1}},
        {.batch = 1, .channels = 1, .out_channels = 1, .size = {300, 3}, .out_size = {300, 3}, .pad_before = {1, 1}},
    };
    for (size_t i = test_is_thin(); i < 2 * TN_COUNT(sizes); i += (size_t)test_every(1, 4)) {
        tn_conv_args a = sizes[i / 2];
        if (i % 2) a.dilation[0] = 2 + (int64_t)i / 2 % 3;
        check(&a, i / 2 % 2, (int64_t)i % 3);
    }
}

/* Rows of one and of several blocks, and that threads share by filters. */
static void rows_of_five_taps_are_within_the_bound(void **state) {
    (void)state;
    need_it();
    static const tn_conv_args sizes[] = {
        {.batch = 1, .channels = 70, .out_channels = 45, .size = {1, 400}, .out_size = {1, 396}, .pad_before = {0, 0}},
        {.batch = 2, .channels = 3, .out_channels = 29, .size = {2, 1001}, .out_size = {3, 1001}, .pad_before = {1, 2}},
        {.batch = 1, .channels = 90, .out_channels = 200, .size = {1, 30}, .out_size = {1, 30}, .pad_before = {0, 2}},
        {.batch = 1, .channels = 1700, .out_channels = 5, .size = {1, 150}, .out_size = {1, 150}, .pad_before = {0, 2}},
    };
    for (int i = test_is_thin(); i < 20 + (int)TN_COUNT(sizes); i += test_every(1, 7)) {
        tn_conv_args a = {
            .batch = random_from(1, 3), .channels = random_from(1, 9), .out_channels = random_from(1, 40)};
        for (int d = 0; d < 2; d++) {
            a.size[d] = random_from(1, d ? 90 : 4);
            a.out_size[d] = random_from(1, d ? 90 : 4);
            a.pad_before[d] = random_from(-2, 4);
        }
        if (i >= 20) a = sizes[i - 20];
        a.kernel[0] = 1;
        a.kernel[1] = LINE_TAPS;
        check(&a, i % 3 == 0, i % 4);
    }
}

static void other_windows_do_not_fit(void **state) {
    (void)state;
    need_it();
    const tn_conv_args plain = {.batch = 1,
                                .groups = 1,
                                .channels = 64,
                                .out_channels = 64,
                                .size = {56, 56},
                                .out_size = {56, 56},
                                .kernel = {3, 3},
                                .stride = {1, 1},
                                .pad_before = {1, 1},
                                .dilation = {1, 1}};
    assert_true(tn_conv_winograd_fits(&plain) && tn_conv_winograd_pays(&plain, false));
    for (int d = 0; d < 2; d++) {
        tn_conv_args a = plain;
        a.kernel[d] = 4;
        assert_false(tn_conv_winograd_fits(&a));
        a = plain;
        a.stride[d] = 2;
        assert_false(tn_conv_winograd_fits(&a));
        a = plain;
        a.dilation[d] = d ? 2 : 5;
        assert_false(tn_conv_winograd_fits(&a));
        a = plain;
        a.out_size[d] = 0;
        assert_false(tn_conv_winograd_fits(&a));
    }
    tn_conv_args a = plain;
    a.groups = 2;
    assert_false(tn_conv_winograd_fits(&a));
    a = plain;
    a.channels = 1; /* little to gain, and the transforms cost as much */
    assert_false(tn_conv_winograd_pays(&a, true));
    a = plain;
    a.channels = a.out_channels = 512; /* filters would be read from afar for a few tiles */
    a.size[0] = a.size[1] = a.out_size[0] = a.out_size[1] = 14;
    assert_true(tn_conv_winograd_fits(&a) && !tn_conv_winograd_pays(&a, true));
    assert_true(tn_conv_wgrad_winograd_pays(&plain));
    a = plain;
    a.channels = 3;
    assert_true(tn_conv_wgrad_winograd_fits(&a) && !tn_conv_wgrad_winograd_pays(&a));
    a = plain;
    a.dilation[0] = 2;
    assert_false(tn_conv_wgrad_winograd_fits(&a));
    a = plain;
    a.kernel[0] = 1;
    a.kernel[1] = LINE_TAPS;
    assert_true(tn_conv_winograd_fits(&a) && !tn_conv_wgrad_winograd_fits(&a));
    a = plain;
    a.channels = INT64_C(1) << 62;
    assert_false(tn_conv_wgrad_winograd_fits(&a));
}

/* ---- in plans ---------------------------------------------------------------------------------------------------- */

static tn_tensor *random_tensor(const int64_t *shape, int rank) {
    int64_t count = 1;
    for (int d = 0; d < rank; d++)
        count *= shape[d];
    float *x = memory_of(count, sizeof *x);
    for (int64_t i = 0; i < count; i++)
        x[i] = random_number();
    tn_tensor *t = tn_from_data(x, shape, rank, TN_F32);
    tn_mem_free(x);
    return t;
}

static bool last_plan_says(const char *part) {
    char *text = tn_explain_last();
    bool says = text && strstr(text, part);
    tn_text_free(text);
    return says;
}

static float *numbers_of(tn_tensor *t) {
    size_t bytes = (size_t)tn_numel(t) * sizeof(float);
    float *x = memory_of((int64_t)bytes, 1);
    assert_ok(tn_read(t, x, bytes));
    return x;
}

static void same_bits(tn_tensor *x, tn_tensor *y) {
    float *got = numbers_of(x), *want = numbers_of(y);
    assert_int_equal(tn_numel(x), tn_numel(y));
    assert_memory_equal(got, want, (size_t)tn_numel(x) * sizeof *got);
    tn_mem_free(got);
    tn_mem_free(want);
}

typedef struct layer {
    tn_tensor *x, *w, *bias, *rest;
    int64_t apart; /* rows that neighbouring taps meet */
} layer;

static tn_tensor *conv_of(const layer *l) {
    tn_conv2d_options o = TN_CONV2D_DEFAULTS;
    o.padding[0] = l->apart;
    o.padding[1] = 1;
    o.dilation[0] = l->apart;
    o.dilation[1] = 1;
    return tn_conv2d(l->x, l->w, NULL, &o);
}

/* What nobody else holds need not be stored. */
static tn_tensor *after(const layer *l, tn_tensor *y) {
    tn_tensor *sum = tn_add(y, tn_reshape(l->bias, TN_DIMS(-1, 1, 1))), *above = tn_relu(sum);
    tn_tensor *all = tn_add(above, l->rest);
    tn_free(sum);
    tn_free(above);
    return all;
}

static tn_tensor *joined_of(const layer *l) {
    tn_tensor *y = conv_of(l), *all = after(l, y);
    tn_free(y);
    return all;
}

static layer layer_of(int64_t filters, int64_t images, int64_t rows, int64_t columns) {
    enum { CHANNELS = 32 };
    return (layer){random_tensor(TN_DIMS(images, CHANNELS, rows, columns)),
                   random_tensor(TN_DIMS(filters, CHANNELS, 3, 3)), random_tensor(TN_DIMS(filters)),
                   random_tensor(TN_DIMS(images, filters, rows, columns)), 1};
}

/* Rows of several, one and a part of a block for the epilogue; whole images; an image with a rest of a tile. */
static void what_is_joined_has_the_bits_of_what_is_not(void **state) {
    (void)state;
    need_it();
    static const int64_t sizes[][3] = {{1, 56, 56}, {2, 21, 150}, {1, 18, 300}, {1, 11, 700}, {7, 13, 14}};
    assert_ok(tn_set_numerics(TN_NUMERICS_FAST));
    for (size_t i = 0; i < 2 * TN_COUNT(sizes); i += (size_t)test_every(1, 3)) {
        assert_ok(tn_threads_set(1 + (int)i / 2 % 2));
        TN_SCOPE;
        const int64_t *size = sizes[i / 2], apart = 1 + (int64_t)i % 2;
        layer l = layer_of(40, size[0], size[1] * apart, size[2]);
        l.apart = apart;
        tn_tensor *joined = joined_of(&l);
        assert_ok(tn_eval(&joined, 1));
        assert_true(last_plan_says("conv2d_forward+") && last_plan_says(" by winograd"));
        tn_tensor *y = conv_of(&l);
        assert_ok(tn_eval(&y, 1));
        assert_true(last_plan_says("conv2d_forward") && last_plan_says(" by winograd"));
        same_bits(joined, after(&l, y));
    }
    assert_ok(tn_set_numerics(TN_NUMERICS_EXACT));
}

/* Two by two of what is joined, or four beside each other: rows of an odd number, several images. */
static void what_is_pooled_has_the_bits_of_what_is_not(void **state) {
    (void)state;
    need_it();
    static const int64_t sizes[][3] = {{1, 57, 57}, {2, 20, 150}, {7, 14, 14}, {1, 18, 250}};
    static const int64_t windows[][2] = {{2, 2}, {1, 4}};
    assert_ok(tn_set_numerics(TN_NUMERICS_FAST));
    for (size_t i = 0; i < 2 * TN_COUNT(sizes) * TN_COUNT(windows); i += (size_t)test_every(1, 5)) {
        const int64_t *size = sizes[i / 4], *window = windows[i % 2];
        assert_ok(tn_threads_set(1 + (int)i % 2));
        TN_SCOPE;
        layer l = layer_of(64, size[0], size[1], size[2]);
        l.apart = 1 + (int64_t)i / 2 % 2;
        tn_tensor *last = joined_of(&l), *pooled = tn_max_pool2d(last, window, NULL);
        tn_free(last);
        assert_ok(tn_eval(&pooled, 1));
        assert_true(last_plan_says("conv2d_forward+") && last_plan_says(" by winograd"));
        assert_true(last_plan_says("+max_pool2d"));
        tn_tensor *y = joined_of(&l);
        assert_ok(tn_eval(&y, 1));
        same_bits(pooled, tn_max_pool2d(y, window, NULL));
    }
    assert_ok(tn_set_numerics(TN_NUMERICS_EXACT));
}

/* relu(conv2d(x, w) + bias) + rest; the convolution evaluated first, or joined by what follows. */
static tn_tensor *row_of(const layer *l, bool apart) {
    tn_tensor *y = tn_conv2d(l->x, l->w, NULL, NULL);
    if (apart) assert_ok(tn_eval(&y, 1));
    assert_true(!apart || last_plan_says(" by winograd"));
    tn_tensor *sum = tn_add(y, tn_reshape(l->bias, TN_DIMS(-1, 1, 1))), *above = tn_relu(sum);
    tn_tensor *all = tn_add(above, l->rest);
    tn_free(y);
    tn_free(sum);
    tn_free(above);
    assert_ok(tn_eval(&all, 1));
    assert_true(apart || (last_plan_says("conv2d_forward+") && last_plan_says(" by winograd")));
    return all;
}

static void rows_of_five_taps_are_joined_with_the_same_bits(void **state) {
    (void)state;
    need_it();
    enum { CHANNELS = 64, FILTERS = 77 };
    assert_ok(tn_set_numerics(TN_NUMERICS_FAST));
    for (int64_t i = 0; i < 4; i++) {
        assert_ok(tn_threads_set(1 + (int)i % 2));
        TN_SCOPE;
        const int64_t images = 1 + i, length = 501 - 180 * (i / 2), results = length - LINE_TAPS + 1;
        layer l = {random_tensor(TN_DIMS(images, CHANNELS, 2, length)),
                   random_tensor(TN_DIMS(FILTERS, CHANNELS, 1, LINE_TAPS)), random_tensor(TN_DIMS(FILTERS)),
                   random_tensor(TN_DIMS(images, FILTERS, 2, results)), 1};
        if (i == 3) { /* images of one column */
            l.x = random_tensor(TN_DIMS(images, CHANNELS, length, 1));
            l.w = random_tensor(TN_DIMS(FILTERS, CHANNELS, LINE_TAPS, 1));
            l.rest = random_tensor(TN_DIMS(images, FILTERS, results, 1));
        }
        same_bits(row_of(&l, false), row_of(&l, true));
    }
    assert_ok(tn_set_numerics(TN_NUMERICS_EXACT));
}

static void exact_numerics_keep_their_bits(void **state) {
    (void)state;
    need_it();
    {
        TN_SCOPE;
        layer l = layer_of(40, 1, 40, 40);
        tn_tensor *y[3];
        float *x[3];
        for (int i = 0; i < 3; i++) {
            assert_ok(tn_set_numerics(i == 1 ? TN_NUMERICS_FAST : TN_NUMERICS_EXACT));
            assert_int_equal(tn_get_numerics(), i == 1 ? TN_NUMERICS_FAST : TN_NUMERICS_EXACT);
            y[i] = conv_of(&l);
            assert_ok(tn_eval(&y[i], 1));
            assert_true(last_plan_says(" by winograd") == (i == 1));
            x[i] = numbers_of(y[i]);
        }
        size_t bytes = (size_t)tn_numel(y[0]) * sizeof *x[0];
        assert_memory_equal(x[0], x[2], bytes);
        assert_memory_not_equal(x[0], x[1], bytes);
        for (int i = 0; i < 3; i++)
            tn_mem_free(x[i]);
    }
    assert_int_equal(tn_set_numerics((tn_numerics)2), TN_ERR_ARGUMENT);
    assert_text_has(tn_error(), "TN_NUMERICS_FAST");
}

static void assert_alike(tn_tensor *x, tn_tensor *y) {
    float *got = numbers_of(x), *want = numbers_of(y);
    double off = 0, size = 0;
    for (int64_t i = 0; i < tn_numel(x); i++) {
        off = fmax(off, fabs((double)got[i] - (double)want[i]));
        size = fmax(size, fabs((double)want[i]));
    }
    if (off == 0 || off > 2e-5 * size) fail_msg("off by %.3g of the greatest", off / size);
    tn_mem_free(got);
    tn_mem_free(want);
}

/* A step of training: both gradients, kept or computed filters. The kernels' tests have the bounds. */
static void gradients_under_fast_numerics_are_near_exact_ones(void **state) {
    (void)state;
    need_it();
    TN_SCOPE;
    layer l = layer_of(40, 4, 18, 19);
    tn_tensor *gradient[2][2];
    for (int fast = 0; fast < 2; fast++) {
        assert_ok(tn_set_numerics(fast ? TN_NUMERICS_FAST : TN_NUMERICS_EXACT));
        tn_tensor *x = tn_mul_scalar(l.x, 2), *w = tn_mul_scalar(l.w, 2);
        assert_ok(tn_set_requires_grad(x, true));
        assert_ok(tn_set_requires_grad(w, true));
        tn_conv2d_options o = TN_CONV2D_DEFAULTS;
        o.padding[0] = o.padding[1] = 1;
        tn_tensor *y = tn_conv2d(x, w, NULL, &o);
        assert_ok(tn_backward(tn_sum(tn_mul(y, l.rest), NULL, 0, false)));
        gradient[fast][0] = tn_grad(x);
        gradient[fast][1] = tn_grad(w);
        assert_ok(tn_eval(gradient[fast], 2));
        char *text = tn_explain_last();
        const char *of_x = strstr(text, "conv2d_dgrad"), *of_w = strstr(text, "conv2d_wgrad");
        assert_true(of_x && of_w);
        for (int i = 0; i < 2; i++) {
            const char *line = i ? of_w : of_x, *by = strstr(line, " by winograd"), *end = strchr(line, '\n');
            assert_true((by && by < end) == (fast == 1));
        }
        tn_text_free(text);
    }
    assert_ok(tn_set_numerics(TN_NUMERICS_EXACT));
    for (int i = 0; i < 2; i++)
        assert_alike(gradient[1][i], gradient[0][i]);
}

static atomic_bool enough;

static void *change_numerics(void *ctx) {
    (void)ctx;
    for (int i = 0; !atomic_load(&enough); i++)
        (void)tn_set_numerics(i % 2 ? TN_NUMERICS_FAST : TN_NUMERICS_EXACT);
    return NULL;
}

/* Plans are found again by their structure. */
static bool is_by_winograd(const layer *l, int negations) {
    tn_tensor *y = conv_of(l);
    for (int i = 0; i < negations; i++)
        y = tn_neg(y);
    assert_ok(tn_eval(&y, 1));
    return last_plan_says(" by winograd");
}

/* Also one that was made while another thread changed them. */
static void a_plan_is_what_its_key_says(void **state) {
    (void)state;
    need_it();
    enum { STRUCTURES = 32 };
    pthread_t thread;
    {
        TN_SCOPE;
        layer l = layer_of(40, 1, 40, 40);
        atomic_store(&enough, false);
        assert_int_equal(pthread_create(&thread, NULL, change_numerics, NULL), 0);
        for (int i = 0; i < STRUCTURES; i++)
            (void)is_by_winograd(&l, i);
        atomic_store(&enough, true);
        assert_int_equal(pthread_join(thread, NULL), 0);
        for (int fast = 0; fast < 2; fast++) {
            assert_ok(tn_set_numerics(fast ? TN_NUMERICS_FAST : TN_NUMERICS_EXACT));
            for (int i = 0; i < STRUCTURES; i++)
                if (is_by_winograd(&l, i) != (fast == 1)) fail_msg("%d negations, fast: %d", i, fast);
        }
    }
    assert_ok(tn_set_numerics(TN_NUMERICS_EXACT));
}

/* Such filters are transformed anew each time, which does not pay for few output pixels. */
static void out_channels_that_are_computed_have_the_bits_of_others(void **state) {
    (void)state;
    need_it();
    assert_ok(tn_set_numerics(TN_NUMERICS_FAST));
    {
        TN_SCOPE;
        layer l = layer_of(40, 1, 40, 40), other = l;
        other.w = tn_abs(l.w);
        tn_tensor *y = conv_of(&other);
        assert_ok(tn_eval(&y, 1));
        assert_true(last_plan_says("abs") && last_plan_says(" by winograd"));
        l.w = tn_keep(other.w);
        tn_tensor *kept = conv_of(&l);
        assert_ok(tn_eval(&kept, 1));
        assert_true(!last_plan_says("abs") && last_plan_says(" by winograd"));
        same_bits(y, kept);
        tn_free(l.w);
    }
    assert_ok(tn_set_numerics(TN_NUMERICS_EXACT));
}

static void environment_decides_where_nobody_has(void **state) {
    (void)state;
    need_it();
    static const struct {
        const char *line;
        bool fast;
    } cases[] = {
        {"%s bench conv3x3-64-56 --profile --seconds 0.01", false},
        {"TRUNNION_NUMERICS=fast %s bench conv3x3-64-56 --profile --seconds 0.01", true},
        {"TRUNNION_NUMERICS=fast %s bench conv3x3-64-56 --profile --seconds 0.01 --numerics exact", false},
        {"%s bench conv3x3-64-56 --profile --seconds 0.01 --numerics fast", true},
    };
    char heard[4096];
    for (size_t i = 0; i < (test_is_thin() ? 2 : TN_COUNT(cases)); i++) {
        assert_int_equal(run_trunnion(cases[i].line, heard, sizeof heard), 0);
        if ((strstr(heard, "by winograd") != NULL) != cases[i].fast) fail_msg("%s: %s", cases[i].line, heard);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_sizes_are_within_the_bound),
        cmocka_unit_test(large_sizes_are_within_the_bound),
        cmocka_unit_test(rows_of_five_taps_are_within_the_bound),
        cmocka_unit_test(rows_of_five_taps_are_joined_with_the_same_bits),
        cmocka_unit_test(gradients_are_within_the_bound),
        cmocka_unit_test(other_windows_do_not_fit),
        cmocka_unit_test(what_is_joined_has_the_bits_of_what_is_not),
        cmocka_unit_test(what_is_pooled_has_the_bits_of_what_is_not),
        cmocka_unit_test(exact_numerics_keep_their_bits),
        cmocka_unit_test(gradients_under_fast_numerics_are_near_exact_ones),
        cmocka_unit_test(a_plan_is_what_its_key_says),
        cmocka_unit_test(out_channels_that_are_computed_have_the_bits_of_others),
        cmocka_unit_test(environment_decides_where_nobody_has),
    };
    return cmocka_run_group_tests(tests, make_matrices, NULL);
}
