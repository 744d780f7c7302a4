/* record.c — what a plan-cache hit costs: fifteen small operations recorded, their plan found and run, one value read.
 *
 * The chain adds and multiplies 16 floats, so hardly anything is computed: what is timed is the host's work. Two ways
 * of writing it are timed, since a tensor with a live handle is a result that must be stored:
 *   freed   each tensor is freed once the next one is recorded: one result, all else inlined
 *   held    all fifteen are held until the value is read: fifteen results
 * and, beside them, `record`: recording and freeing alone.
 *
 * Prints the best and the median of 31 rounds. bench/compare.py has the first beside PyTorch, as `record-15`. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "trunnion/trunnion.h"

enum { CHAIN = 15, ELEMENTS = 16, ROUNDS = 31, CALLS = 20000 };

static void need(bool fine) {
    if (fine) return;
    fprintf(stderr, "bench_record: %s\n", tn_error());
    exit(1);
}

/* y ← y + x and y ← y · x by turns, from y = x + x. */
static tn_tensor *next(int i, const tn_tensor *y, const tn_tensor *x) { return i % 2 ? tn_mul(y, x) : tn_add(y, x); }

static float read_first(const tn_tensor *y) {
    float values[ELEMENTS];
    need(tn_read(y, values, sizeof values) == TN_OK);
    return values[0];
}

static float chain_freed(const tn_tensor *x) {
    tn_tensor *y = tn_add(x, x);
    for (int i = 1; i < CHAIN; i++) {
        tn_tensor *z = next(i, y, x);
        tn_free(y);
        y = z;
    }
    float value = read_first(y);
    tn_free(y);
    return value;
}

static float chain_held(const tn_tensor *x) {
    tn_tensor *y[CHAIN] = {tn_add(x, x)};
    for (int i = 1; i < CHAIN; i++)
        y[i] = next(i, y[i - 1], x);
    float value = read_first(y[CHAIN - 1]);
    for (int i = 0; i < CHAIN; i++)
        tn_free(y[i]);
    return value;
}

/* Nothing is read, so the recording grows until it is full and is flushed then: with no handle left, to nothing. */
static float chain_recorded(const tn_tensor *x) {
    tn_tensor *y = tn_add(x, x);
    for (int i = 1; i < CHAIN; i++) {
        tn_tensor *z = next(i, y, x);
        tn_free(y);
        y = z;
    }
    tn_free(y);
    return NAN;
}

static const struct work {
    const char *name;
    float (*chain)(const tn_tensor *x);
} works[] = {{"freed", chain_freed}, {"held", chain_held}, {"record", chain_recorded}};
enum { WORKS = sizeof works / sizeof *works };

static double seconds_a_chain(const struct work *w, const tn_tensor *x, long calls) {
    double start = cli_now();
    for (long i = 0; i < calls; i++)
        w->chain(x);
    return (cli_now() - start) / (double)calls;
}

static tn_tensor *ones(void) {
    float values[ELEMENTS];
    int64_t n = ELEMENTS;
    for (int i = 0; i < ELEMENTS; i++)
        values[i] = 1;
    return tn_from_data(values, &n, 1, TN_F32);
}

/* (((1 + 1) · 1 + 1) · 1 + 1) …: 1 and one more for each addition. */
static void check_answers(const tn_tensor *x) {
    const float expected = 1 + (CHAIN + 1) / 2;
    for (int i = 0; i < 2; i++) {
        float got = works[i].chain(x);
        if (got == expected) continue;
        fprintf(stderr, "bench_record: %s yields %g, not %g\n", works[i].name, (double)got, (double)expected);
        exit(1);
    }
}

static void report(const tn_tensor *x) {
    double seconds[WORKS][ROUNDS];
    for (int r = 0; r < ROUNDS; r++)
        for (int w = 0; w < WORKS; w++)
            seconds[w][r] = seconds_a_chain(&works[w], x, CALLS);
    printf("%d operations on %d floats, nanoseconds:\n", CHAIN, ELEMENTS);
    for (int w = 0; w < WORKS; w++) {
        times t = sorted(seconds[w], ROUNDS);
        printf("%-8s best %7.0f   median %7.0f\n", works[w].name, t.best * 1e9, t.median * 1e9);
    }
}

int main(void) {
    tn_tensor *x = ones();
    check_answers(x);
    report(x);
    tn_free(x);
    return 0;
}
