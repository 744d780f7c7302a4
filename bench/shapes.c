/* shapes.c — what the first call of a new shape costs: recording, a plan made, its memory taken, its run.
 *
 * Every call has a batch that was not seen before, so each makes a plan; kernels of the same structure exist already.
 * The arrays are small: what is timed is the host's work. Beside it stands the second call of the same shapes, which
 * finds their plans.
 *
 *   bench_shapes                 a table of all works, nanoseconds, the best and the median of ROUNDS rounds
 *   bench_shapes WORK SHAPES     one round of one work, SHAPES new shapes: for counting instructions, which `first`
 *                                holds (valgrind --tool=callgrind --toggle-collect=first …) */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "trunnion/trunnion.h"

enum { WIDTH = 8, CHAIN = 12, WARM = 4, SHAPES = 100, ROUNDS = 11, FEWEST_ROWS = 2, MOST_ROWS = FEWEST_ROWS + SHAPES };

static struct { tn_tensor *weight[2], *bias[2]; } net;

static void need(bool fine) {
    if (fine) return;
    fprintf(stderr, "bench_shapes: %s\n", tn_error());
    exit(1);
}

/* The first value of y, which is freed. */
static double finish(tn_tensor *y) {
    static float values[MOST_ROWS * WIDTH];
    need(tn_read(y, values, sizeof *values * (size_t)tn_numel(y)) == TN_OK);
    tn_free(y);
    return (double)values[0];
}

static tn_tensor *then(tn_tensor *y, tn_tensor *z) {
    tn_free(y);
    return z;
}

static double add(const tn_tensor *x) { return finish(tn_add(x, x)); }

static double softmax(const tn_tensor *x) { return finish(tn_softmax(x, 1)); }

static double linear(const tn_tensor *x) { return finish(tn_linear(x, net.weight[0], net.bias[0])); }

/* 1 + 1 = 2; then · 1 and + 1 by turns. */
static double chain(const tn_tensor *x) {
    tn_tensor *y = tn_add(x, x);
    for (int i = 1; i < CHAIN; i++)
        y = then(y, i % 2 ? tn_mul(y, x) : tn_add(y, x));
    return finish(y);
}

/* Two layers forward, a mean of squares, and backward; all gradients are read. */
static double step(const tn_tensor *x) {
    tn_tensor *h = tn_linear(x, net.weight[0], net.bias[0]);
    h = then(h, tn_relu(h));
    tn_tensor *y = tn_linear(h, net.weight[1], net.bias[1]);
    tn_tensor *squares = tn_mul(y, y), *loss = tn_mean(squares, NULL, 0, false);
    need(tn_backward(loss) == TN_OK);
    tn_free(h);
    tn_free(y);
    tn_free(squares);
    double value = finish(loss);
    for (int i = 0; i < 2; i++) {
        finish(tn_grad(net.weight[i]));
        finish(tn_grad(net.bias[i]));
        tn_zero_grad(net.weight[i]);
        tn_zero_grad(net.bias[i]);
    }
    return value;
}

static const struct work {
    const char *name;
    double (*call)(const tn_tensor *x);
    double expected; /* the first value */
} works[] = {{"add", add, 2},
             {"linear", linear, 1 + WIDTH},
             {"softmax", softmax, 1.0 / WIDTH},
             {"chain", chain, 1 + CHAIN / 2},
             {"step", step, (1 + (1 + WIDTH) * WIDTH) * (1 + (1 + WIDTH) * WIDTH)}};
enum { WORKS = sizeof works / sizeof *works };

/* ---- the works, timed -------------------------------------------------------------------------------------------- */

static tn_tensor *ones(int64_t rows) {
    static float values[MOST_ROWS * WIDTH];
    for (int i = 0; i < MOST_ROWS * WIDTH; i++)
        values[i] = 1;
    tn_tensor *t = rows ? tn_from_data(values, (int64_t[]){rows, WIDTH}, 2, TN_F32)
                        : tn_from_data(values, (int64_t[]){WIDTH}, 1, TN_F32);
    need(tn_status_of(t) == TN_OK);
    return t;
}

static void make_inputs(tn_tensor **x, int count) {
    for (int i = 0; i < count; i++)
        x[i] = ones(FEWEST_ROWS + i);
}

static void free_all(tn_tensor **x, int count) {
    for (int i = 0; i < count; i++)
        tn_free(x[i]);
}

static void check(const struct work *w, double got) {
    if (got == w->expected) return;
    fprintf(stderr, "bench_shapes: %s yields %g, not %g\n", w->name, got, w->expected);
    exit(1);
}

static double calls(const struct work *w, tn_tensor *const *x, int count) {
    double start = cli_now();
    for (int i = 0; i < count; i++)
        check(w, w->call(x[i]));
    return (cli_now() - start) / count;
}

/* Two functions, so that a profiler can tell them apart. */
__attribute__((noinline)) static double first(const struct work *w, tn_tensor *const *x, int count) {
    return calls(w, x, count) + 0;
}

__attribute__((noinline)) static double second(const struct work *w, tn_tensor *const *x, int count) {
    return calls(w, x, count) * 1;
}

/* Kernels are compiled when a structure is new, and get machine code when it comes again. */
static void warm_up(const struct work *w, tn_tensor *const *x) {
    for (int i = 0; i < WARM; i++)
        for (int again = 0; again < 2; again++)
            check(w, w->call(x[i]));
}

static void report(const struct work *w) {
    double new[ROUNDS], known[ROUNDS];
    tn_tensor *x[SHAPES];
    for (int r = 0; r < ROUNDS; r++) {
        tn_clear_plans();
        make_inputs(x, SHAPES);
        warm_up(w, x);
        new[r] = first(w, x + WARM, SHAPES - WARM);
        known[r] = second(w, x + WARM, SHAPES - WARM);
        free_all(x, SHAPES);
    }
    times n = sorted(new, ROUNDS), k = sorted(known, ROUNDS);
    printf("%-8s %8.0f %8.0f   %8.0f %8.0f\n", w->name, n.best * 1e9, n.median * 1e9, k.best * 1e9, k.median * 1e9);
}

static int one_round(const char *name, int count) {
    tn_tensor *x[SHAPES];
    for (int i = 0; i < WORKS; i++) {
        if (strcmp(works[i].name, name) != 0) continue;
        make_inputs(x, count);
        warm_up(&works[i], x);
        first(&works[i], x + WARM, count - WARM);
        free_all(x, count);
        return 0;
    }
    fprintf(stderr, "bench_shapes: no work is called %s\n", name);
    return 2;
}

int main(int argc, char **argv) {
    int result = 0, count = argc > 2 ? atoi(argv[2]) + WARM : SHAPES;
    if (count <= WARM || count > SHAPES) {
        fprintf(stderr, "bench_shapes: between 1 and %d shapes\n", SHAPES - WARM);
        return 2;
    }
    for (int i = 0; i < 2; i++) {
        net.weight[i] = ones(WIDTH);
        net.bias[i] = ones(0);
        need(tn_set_requires_grad(net.weight[i], true) == TN_OK && tn_set_requires_grad(net.bias[i], true) == TN_OK);
    }
    if (argc > 1) {
        result = one_round(argv[1], count);
    } else {
        printf("a call, nanoseconds   best   median of a new shape, best and median of a known one:\n");
        for (int i = 0; i < WORKS; i++)
            report(&works[i]);
    }
    free_all(net.weight, 2);
    free_all(net.bias, 2);
    return result;
}
