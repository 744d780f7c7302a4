/* linalg.c — factorizations by our own functions and by the LAPACK of a library, in turns.
 *
 * Both compute the same matrix, well conditioned and with values far apart, and are compared when they were timed.
 *
 *   bench_linalg [threads] [library] [extents …]     default: all usable threads, auto, 32 128 512 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "bench.h"
#include "cpu/linalg.h"
#include "trunnion/device.h"

static const double SAMPLE_SECONDS = 2e-3;
enum { BATCH = 2, RIGHT_SIDES = 16, MOST_EXTENT = 8192 };

static const struct {
    const char *name;
    tn_linalg_kind kind;
} rows[] = {{"cholesky", TN_LINALG_CHOLESKY},
            {"solve", TN_LINALG_SOLVE},
            {"determinant", TN_LINALG_DETERMINANT},
            {"qr", TN_LINALG_QR},
            {"eigh", TN_LINALG_EIGH},
            {"svd", TN_LINALG_SVD}};

/* 1, 2, 3 … along the diagonal, and little beside it. */
static void fill(double *a, int64_t n) {
    for (int64_t i = 0; i < BATCH * n * n; i++) {
        int64_t row = i / n % n, column = i % n, least = tn_min64(row, column), most = tn_max64(row, column);
        a[i] = row == column ? (double)row + 1 : (double)((least * 7919 + most * 104729) % 17 - 8) / 800;
    }
}

static void run(void *ctx) { tn_linalg(ctx); }

/* Infinite where one of both is no number. A determinant may be too large for any. */
static double apart(const double *x, const double *y, int64_t count) {
    double most = 0;
    for (int64_t i = 0; i < count; i++) {
        double difference = x[i] == y[i] ? 0 : fabs(x[i] - y[i]) / fmax(1, fabs(x[i]));
        most = isnan(difference) ? INFINITY : fmax(most, difference);
    }
    return most;
}

/* false: it could not be done, or the two differ. */
static bool compare(int row, int64_t n, const tn_lapack *lapack) {
    tn_linalg_args own = {.kind = rows[row].kind, .dtype = TN_F64, .batch = BATCH, .m = n, .n = n};
    if (own.kind == TN_LINALG_SOLVE) own.k = RIGHT_SIDES;
    tn_linalg_args theirs = own;
    theirs.lapack = tn_lapack_takes(lapack, own.kind, n, n, own.k) ? lapack : NULL;
    int64_t count = BATCH * tn_linalg_result(own.kind, n, n, own.k);
    double *a = tn_mem_alloc((size_t)(BATCH * n * n) * sizeof *a),
           *b = tn_mem_zalloc((size_t)(BATCH * n), RIGHT_SIDES * 8);
    own.out = tn_mem_alloc((size_t)count * sizeof(double));
    theirs.out = tn_mem_alloc((size_t)count * sizeof(double));
    own.workspace = theirs.workspace = tn_mem_alloc(tn_linalg_workspace(&theirs, tn_threads()));
    bool ready = a && b && own.out && theirs.out && own.workspace;
    double difference = NAN;
    if (ready) {
        fill(a, n);
        for (int64_t i = 0; own.k > 0 && i < BATCH * n * RIGHT_SIDES; i++)
            b[i] = (double)(i % 13);
        own.a = theirs.a = a;
        own.b = theirs.b = own.k > 0 ? b : NULL;
        times x = measure(run, &own, SAMPLE_SECONDS), y = measure(run, &theirs, SAMPLE_SECONDS);
        difference = apart(own.out, theirs.out, count);
        printf("%-12s %5lld %12.1f us %12.1f us %7.2f\n", rows[row].name, (long long)n, x.best * 1e6, y.best * 1e6,
               x.best / y.best);
    }
    tn_mem_free(a);
    tn_mem_free(b);
    tn_mem_free(own.out);
    tn_mem_free(theirs.out);
    tn_mem_free(own.workspace);
    if (ready && difference <= 1e-9) return true;
    fprintf(stderr, "%s of %lld: %s\n", rows[row].name, (long long)n, ready ? "results differ" : "no memory");
    return false;
}

int main(int argc, char **argv) {
    static const char *const by_default[] = {"32", "128", "512"};
    if (!take_threads(argc, argv)) return 1;
    bool has_library = tn_set_library(argc > 2 ? argv[2] : "auto") == TN_OK;
    const tn_lapack *lapack = tn_lapack_of(tn_blas_chosen());
    if (!has_library || !lapack) {
        const char *why = !has_library ? tn_error() : tn_blas_chosen() ? "this one has none" : "none was found";
        printf("skipped: a library with LAPACK is needed (%s)\n", why);
        return argc > 2;
    }
    int count = argc > 3 ? argc - 3 : (int)TN_COUNT(by_default);
    printf("%d matrices in f64 on %d threads, the best of %d samples: ours, %s, ours by theirs\n", BATCH, tn_threads(),
           BENCH_SAMPLES, tn_get_library());
    for (int row = 0; row < (int)TN_COUNT(rows); row++)
        for (int i = 0; i < count; i++) {
            const char *text = argc > 3 ? argv[3 + i] : by_default[i];
            int64_t n = strtoll(text, NULL, 10);
            if (n < 1 || n > MOST_EXTENT) {
                fprintf(stderr, "%s is no extent from 1 to %d\n", text, MOST_EXTENT);
                return 1;
            }
            if (!compare(row, n, lapack)) return 1;
        }
    return 0;
}
