/* conv.c — convolutions as networks have them, beside what the processor could do.
 *
 * The filters are packed before, as a plan keeps them, and nothing is joined. The limit is measured in the same run, as
 * in gemm.c; the answer of every shape is checked before it is timed. The last two columns say which part of the limit
 * a shape reaches in the median and at best. Where Winograd's algorithm can compute it, a second row shows that one:
 * "fast" where it is taken under fast numerics, "slow" where it is not. Its operations count as if it did them all.
 *
 *   bench_conv [threads] [name part]     default: all usable threads, all shapes */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "bench.h"
#include "cpu/conv.h"
#include "cpu/cpu_kernels.h"

static const double SAMPLE_SECONDS = 4e-3;
static const float FAST_OFF = 9 * 8 * 6 * 1e-5f; /* a channel's, of at most so much */

typedef struct shape {
    const char *name;
    int64_t batch, channels, out_channels, size[2], kernel, stride; /* rows and columns; kernel: of a side */
} shape;

static const shape shapes[] = {
    {"64-64-56", 1, 64, 64, {56, 56}, 3, 1},           {"64-64-56-eight", 8, 64, 64, {56, 56}, 3, 1},
    {"256-256-14", 1, 256, 256, {14, 14}, 3, 1},       {"512-512-7", 1, 512, 512, {7, 7}, 3, 1},
    {"cnn-3-32", 32, 3, 32, {32, 32}, 3, 1},           {"cnn-32-64", 32, 32, 64, {32, 32}, 3, 2},
    {"cnn-64-64", 32, 64, 64, {16, 16}, 3, 1},         {"cnn-64-128", 32, 64, 128, {16, 16}, 3, 2},
    {"cnn-128-128", 32, 128, 128, {8, 8}, 3, 1},       {"yolo-3-16-s2", 1, 3, 16, {320, 320}, 3, 2},
    {"yolo-16-32-s2", 1, 16, 32, {160, 160}, 3, 2},    {"yolo-16-16-80", 1, 16, 16, {80, 80}, 3, 1},
    {"yolo-32-64-s2", 1, 32, 64, {80, 80}, 3, 2},      {"yolo-32-32-40", 1, 32, 32, {40, 40}, 3, 1},
    {"yolo-64-64-40", 1, 64, 64, {40, 40}, 3, 1},      {"yolo-64-128-s2", 1, 64, 128, {40, 40}, 3, 2},
    {"yolo-64-64-20", 1, 64, 64, {20, 20}, 3, 1},      {"yolo-128-64-20", 1, 128, 64, {20, 20}, 3, 1},
    {"yolo-128-128-10", 1, 128, 128, {10, 10}, 3, 1},  {"yolo-256-64-10", 1, 256, 64, {10, 10}, 3, 1},
    {"yolo-64-64-10", 1, 64, 64, {10, 10}, 3, 1},      {"few-32-8-40", 1, 32, 8, {40, 40}, 3, 1},
    {"speech-1-32-120", 1, 1, 32, {900, 120}, 3, 1},   {"speech-1-128-161", 1, 1, 128, {901, 161}, 3, 1},
    {"speech-3-32-160", 1, 3, 32, {100, 160}, 3, 1},   {"speech-128-64-161", 1, 128, 64, {161, 161}, 3, 1},
    {"speech-64-32-161", 1, 64, 32, {161, 161}, 3, 1}, {"speech-32-32-80", 1, 32, 32, {450, 80}, 3, 1},
    {"speech-32-32-60", 1, 32, 32, {450, 60}, 3, 1},   {"speech-32-32-30", 1, 32, 32, {225, 30}, 3, 1},
    {"speech-32-64-64", 1, 32, 64, {98, 64}, 3, 1},    {"speech-32-64-15", 1, 32, 64, {112, 15}, 3, 1},
    {"speech-64-128-16", 1, 64, 128, {94, 16}, 3, 1},  {"speech-64-128-20", 1, 64, 128, {12, 20}, 3, 1},
    {"first-3-64-s2-7", 1, 3, 64, {224, 224}, 7, 2},   {"tap-48-32-80", 1, 48, 32, {80, 80}, 1, 1},
    {"tap-128-64-40", 1, 128, 64, {40, 40}, 1, 1},     {"tap-192-128-20", 1, 192, 128, {20, 20}, 1, 1},
    {"tap-384-128-20", 1, 384, 128, {20, 20}, 1, 1},   {"tap-384-256-10", 1, 384, 256, {10, 10}, 1, 1},
    {"tap-256-256-10", 1, 256, 256, {10, 10}, 1, 1},
};

typedef struct problem {
    tn_conv_args args;
    float *x, *weight, *out;
    void *packed;
} problem;

/* Small whole numbers: sums are exact in any order. */
static float *make_numbers(int64_t count, int64_t period) {
    float *x = tn_mem_alloc((size_t)count * sizeof *x);
    for (int64_t i = 0; x && i < count; i++)
        x[i] = (float)(i * 7919 % period - period / 2);
    return x;
}

static bool make_problem(problem *p, const shape *s, bool fast, int threads) {
    int64_t taps = s->kernel * s->kernel, rows = s->size[0], columns = s->size[1];
    int64_t places[2] = {(rows - 1) / s->stride + 1, (columns - 1) / s->stride + 1};
    p->x = make_numbers(s->batch * s->channels * rows * columns, 17);
    p->weight = make_numbers(s->out_channels * s->channels * taps, 13);
    p->out = make_numbers(s->batch * s->out_channels * places[0] * places[1], 7);
    p->args = (tn_conv_args){.batch = s->batch,
                             .groups = 1,
                             .channels = s->channels,
                             .out_channels = s->out_channels,
                             .size = {rows, columns},
                             .kernel = {s->kernel, s->kernel},
                             .out_size = {places[0], places[1]},
                             .stride = {s->stride, s->stride},
                             .pad_before = {s->kernel / 2, s->kernel / 2},
                             .dilation = {1, 1},
                             .x = p->x,
                             .x_stride = {s->channels * rows * columns, rows * columns, columns, 1},
                             .weight = p->weight,
                             .weight_group = s->out_channels * s->channels * taps,
                             .weight_stride = {s->channels * taps, taps, s->kernel, 1},
                             .out = p->out};
    p->args.winograd = fast;
    p->args.nhwc = !fast && tn_conv_prefers_nhwc(&p->args);
    p->packed = tn_mem_alloc(tn_conv_packed_bytes(&p->args));
    p->args.workspace = tn_mem_alloc(tn_conv_workspace(&p->args, threads));
    if (!p->x || !p->weight || !p->out || !p->packed || !p->args.workspace) return false;
    tn_conv_pack(&p->args, p->packed);
    p->args.packed = p->packed;
    return true;
}

static void free_problem(problem *p) {
    tn_mem_free(p->x);
    tn_mem_free(p->weight);
    tn_mem_free(p->out);
    tn_mem_free(p->packed);
    tn_mem_free(p->args.workspace);
}

static float sum_of(const tn_conv_args *a, int64_t image, int64_t filter, int64_t row, int64_t column) {
    float sum = 0;
    for (int64_t c = 0; c < a->channels; c++)
        for (int64_t k = 0; k < a->kernel[0] * a->kernel[1]; k++) {
            int64_t i = row * a->stride[0] - a->pad_before[0] + k / a->kernel[1];
            int64_t j = column * a->stride[1] - a->pad_before[1] + k % a->kernel[1];
            if (i < 0 || i >= a->size[0] || j < 0 || j >= a->size[1]) continue;
            sum += a->x[image * a->x_stride[0] + c * a->x_stride[1] + i * a->x_stride[2] + j] *
                   a->weight[filter * a->weight_stride[0] + c * a->weight_stride[1] + k];
        }
    return sum;
}

static bool is_right(const tn_conv_args *a) {
    int64_t down = a->out_size[0], across = a->out_size[1];
    for (int64_t probe = 0; probe < 200; probe++) {
        int64_t q = probe * 5 % a->batch, f = probe * 37 % a->out_channels, i = probe * 7 % down,
                j = probe * 91 % across;
        float off = a->out[((q * a->out_channels + f) * down + i) * across + j] - sum_of(a, q, f, i, j);
        if (!(fabsf(off) <= (a->winograd ? FAST_OFF * (float)a->channels : 0))) return false;
    }
    return true;
}

static void run(void *ctx) { tn_conv(ctx); }

static bool bench(const shape *s, bool fast, int threads, double limit) {
    problem p;
    if (!make_problem(&p, s, fast, threads)) {
        printf("%s: %s\n", s->name, tn_error());
        free_problem(&p);
        return false;
    }
    tn_conv(&p.args);
    bool right = is_right(&p.args);
    if (right) {
        times t = measure(run, &p.args, SAMPLE_SECONDS);
        double taps = (double)(s->channels * s->kernel * s->kernel),
               places = (double)(p.args.out_size[0] * p.args.out_size[1]);
        double done = 2e-9 * (double)(s->batch * s->out_channels) * places * taps;
        printf("%-18s%6s", s->name, !fast ? "" : tn_conv_winograd_pays(&p.args, true) ? "fast" : "slow");
        print_rate(t, done, limit);
    } else {
        printf("%s%s: WRONG RESULT\n", s->name, fast ? " fast" : "");
    }
    free_problem(&p);
    return right;
}

int main(int argc, char **argv) {
    int threads = take_threads(argc, argv);
    if (threads == 0) return 2;
    double limit = bench_fma_limit(threads) * 1e-9;
    printf("%s, %s, %d threads; limit %.1f GFLOP/s\n", tn_cpu().name, tn_isa_name(tn_cpu().isa), threads, limit);
    printf("%-24s %15s %25s of limit, best\n", "channels-filters-columns", "median", "");
    bool right = true;
    for (size_t i = 0; i < TN_COUNT(shapes); i++) {
        if (argc > 2 && !strstr(shapes[i].name, argv[2])) continue;
        right = bench(&shapes[i], false, threads, limit) && right;
        if (shapes[i].kernel == 3 && shapes[i].stride == 1) right = bench(&shapes[i], true, threads, limit) && right;
    }
    printf("limit at the end: %.1f GFLOP/s\n", bench_fma_limit(threads) * 1e-9);
    return right ? 0 : 1;
}
