/* linalg.c — systems, determinants, Cholesky and QR in f64, and the way of a batch to the functions for one matrix.
 *
 * The inner loops run along rows, which are contiguous: elimination takes multiples of rows from rows, reflections are
 * applied to all rows at once. */
#include "kern/linalg.h"

#include <math.h>
#include <string.h>

#include "kern/lapack.h"

bool tn_linalg_is_lost(const tn_linalg_matrix *x, bool lower, int64_t result) {
    double sum = 0;
    for (int64_t i = 0; i < x->m; i++)
        for (int64_t j = 0; j < (lower ? i + 1 : x->n); j++)
            sum += x->a[i * x->n + j] * 0;
    if (sum == 0) return false;
    for (int64_t i = 0; i < result; i++)
        x->out[i] = NAN;
    return true;
}

/* ---- elimination ------------------------------------------------------------------------------------------------- */

static void swap_rows(double *x, double *y, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        double t = x[i];
        x[i] = y[i];
        y[i] = t;
    }
}

static int64_t largest_below(const double *a, int64_t n, int64_t column) {
    int64_t best = column;
    for (int64_t i = column + 1; i < n; i++)
        if (fabs(a[i * n + column]) > fabs(a[best * n + column])) best = i;
    return best;
}

/* a becomes upper triangular, b [n, k] goes along. Returns the sign of the exchanges. */
static double eliminate(double *a, double *b, int64_t n, int64_t k) {
    double sign = 1;
    for (int64_t c = 0; c < n; c++) {
        int64_t pivot = largest_below(a, n, c);
        if (pivot != c) {
            swap_rows(a + pivot * n + c, a + c * n + c, n - c);
            swap_rows(b + pivot * k, b + c * k, k);
            sign = -sign;
        }
        double top = a[c * n + c];
        for (int64_t i = c + 1; i < n && top != 0; i++) {
            double factor = a[i * n + c] / top;
            tn_linalg_add(a + i * n + c + 1, -factor, a + c * n + c + 1, n - c - 1);
            tn_linalg_add(b + i * k, -factor, b + c * k, k);
        }
    }
    return sign;
}

static void divide_row(double *x, double by, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        x[i] /= by;
}

static void solve_upper(const tn_linalg_matrix *x) {
    memcpy(x->out, x->b, (size_t)(x->n * x->k) * sizeof *x->out);
    for (int64_t i = x->n - 1; i >= 0; i--) {
        for (int64_t j = i + 1; j < x->n; j++)
            tn_linalg_add(x->out + i * x->k, -x->a[i * x->n + j], x->out + j * x->k, x->k);
        divide_row(x->out + i * x->k, x->a[i * x->n + i], x->k);
    }
}

static void solve_lower(const tn_linalg_matrix *x) {
    memcpy(x->out, x->b, (size_t)(x->n * x->k) * sizeof *x->out);
    for (int64_t i = 0; i < x->n; i++) {
        for (int64_t j = 0; j < i; j++)
            tn_linalg_add(x->out + i * x->k, -x->a[i * x->n + j], x->out + j * x->k, x->k);
        divide_row(x->out + i * x->k, x->a[i * x->n + i], x->k);
    }
}

static void solve(const tn_linalg_matrix *x) {
    eliminate(x->a, x->b, x->n, x->k);
    solve_upper(x);
}

/* The product overflows before its logarithm does, so both are formed. */
void tn_linalg_determinant(const tn_linalg_matrix *x, double sign) {
    double product = sign, logarithm = 0;
    for (int64_t i = 0; i < x->n; i++) {
        double d = x->a[i * x->n + i];
        product *= d;
        logarithm += log(fabs(d));
        sign = d > 0 ? sign : d < 0 ? -sign : d * 0;
    }
    x->out[0] = product;
    x->out[1] = sign;
    x->out[2] = logarithm;
}

static void determinant(const tn_linalg_matrix *x) { tn_linalg_determinant(x, eliminate(x->a, x->b, x->n, 0)); }

/* ---- Cholesky ---------------------------------------------------------------------------------------------------- */

static void cholesky(const tn_linalg_matrix *x) {
    int64_t n = x->n;
    double *l = x->out;
    memset(l, 0, (size_t)(n * n) * sizeof *l);
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = 0; j < i; j++)
            l[i * n + j] = (x->a[i * n + j] - tn_linalg_dot(l + i * n, l + j * n, j)) / l[j * n + j];
        double rest = x->a[i * n + i] - tn_linalg_dot(l + i * n, l + i * n, i);
        l[i * n + i] = sqrt(rest);
        if (rest > 0) continue;
        for (int64_t all = 0; all < n * n; all++)
            l[all] = NAN;
        return;
    }
}

/* ---- QR ---------------------------------------------------------------------------------------------------------- */

/* x - scale·v·(vᵀ·x) on rows [from, m) and columns [column, n): v has an element a row; sums takes n numbers. */
static void reflect(double *x, int64_t n, int64_t from, int64_t m, int64_t column, const double *v, double scale,
                    double *sums) {
    memset(sums, 0, (size_t)n * sizeof *sums);
    for (int64_t i = from; i < m; i++)
        tn_linalg_add(sums + column, v[i], x + i * n + column, n - column);
    for (int64_t i = from; i < m; i++)
        tn_linalg_add(x + i * n + column, -scale * v[i], sums + column, n - column);
}

/* v, one element a row, with (1 - scale·v·vᵀ)·column = (∓norm, 0 …). Returns scale; 0: nothing is to be done. */
static double reflection(const double *a, int64_t n, int64_t column, int64_t m, double *v) {
    double largest = 0, square = 0;
    for (int64_t i = column; i < m; i++)
        largest = fmax(largest, fabs(a[i * n + column]));
    if (largest == 0) return 0;
    for (int64_t i = column; i < m; i++) {
        v[i] = a[i * n + column] / largest;
        square += v[i] * v[i];
    }
    double norm = sqrt(square), head = v[column];
    v[column] += head < 0 ? -norm : norm;
    return 1 / (norm * fabs(v[column]));
}

/* work: a reflection a column, their scales, n sums. */
static void qr(const tn_linalg_matrix *x) {
    int64_t m = x->m, n = x->n, k = tn_min64(m, n);
    double *q = x->out, *r = x->out + m * k, *v = x->work, *scale = v + k * m, *sums = scale + k;
    if (tn_linalg_is_lost(x, false, (m + n) * k)) return;
    for (int64_t c = 0; c < k; c++) {
        scale[c] = reflection(x->a, n, c, m, v + c * m);
        if (scale[c] != 0) reflect(x->a, n, c, m, c, v + c * m, scale[c], sums);
    }
    memset(q, 0, (size_t)(m * k) * sizeof *q);
    for (int64_t c = 0; c < k; c++)
        q[c * k + c] = 1;
    for (int64_t c = k - 1; c >= 0; c--)
        if (scale[c] != 0) reflect(q, k, c, m, c, v + c * m, scale[c], sums);
    for (int64_t i = 0; i < k; i++) {
        double sign = x->a[i * n + i] < 0 ? -1 : 1;
        for (int64_t j = 0; j < n; j++)
            r[i * n + j] = j < i ? 0 : sign * x->a[i * n + j];
        for (int64_t row = 0; row < m; row++)
            q[row * k + i] *= sign;
    }
}

/* ---- batches ----------------------------------------------------------------------------------------------------- */

static int64_t one_square(int64_t m, int64_t n, int64_t k) {
    (void)m, (void)k;
    return n * n;
}
static int64_t one_right_side(int64_t m, int64_t n, int64_t k) {
    (void)m;
    return n * k;
}
static int64_t three(int64_t m, int64_t n, int64_t k) {
    (void)m, (void)n, (void)k;
    return 3;
}
static int64_t q_and_r(int64_t m, int64_t n, int64_t k) {
    (void)k;
    return (m + n) * tn_min64(m, n);
}
static int64_t values_and_vectors(int64_t m, int64_t n, int64_t k) {
    (void)m, (void)k;
    return (n + 1) * n;
}
static int64_t u_s_and_v(int64_t m, int64_t n, int64_t k) {
    (void)k;
    return (m + n + 1) * tn_min64(m, n);
}

/* Beside a, b and the result in f64. */
static int64_t no_work(int64_t m, int64_t n, int64_t k) {
    (void)m, (void)n, (void)k;
    return 0;
}
static int64_t work_of_qr(int64_t m, int64_t n, int64_t k) {
    (void)k;
    return tn_min64(m, n) * (m + 1) + n;
}
static int64_t work_of_eigh(int64_t m, int64_t n, int64_t k) {
    (void)m, (void)k;
    return n * n + 4 * n;
}
static int64_t work_of_svd(int64_t m, int64_t n, int64_t k) {
    (void)k;
    return m * n + tn_min64(m, n) * (tn_min64(m, n) + 1);
}

typedef int64_t count_function(int64_t m, int64_t n, int64_t k);
static const struct {
    void (*run)(const tn_linalg_matrix *x);
    count_function *result, *work;
} kinds[TN_LINALG_KINDS] = {
    [TN_LINALG_CHOLESKY] = {cholesky, one_square, no_work},
    [TN_LINALG_SOLVE] = {solve, one_right_side, no_work},
    [TN_LINALG_SOLVE_LOWER] = {solve_lower, one_right_side, no_work},
    [TN_LINALG_SOLVE_UPPER] = {solve_upper, one_right_side, no_work},
    [TN_LINALG_DETERMINANT] = {determinant, three, no_work},
    [TN_LINALG_QR] = {qr, q_and_r, work_of_qr},
    [TN_LINALG_EIGH] = {tn_eigh_matrix, values_and_vectors, work_of_eigh},
    [TN_LINALG_SVD] = {tn_svd_matrix, u_s_and_v, work_of_svd},
};

void tn_linalg_own(tn_linalg_kind kind, const tn_linalg_matrix *x) { kinds[kind].run(x); }

int64_t tn_linalg_result(tn_linalg_kind kind, int64_t m, int64_t n, int64_t k) { return kinds[kind].result(m, n, k); }

typedef struct counts {
    int64_t a, b, out, all; /* numbers in f64 */
} counts;

static counts counts_of(const tn_linalg_args *x) {
    counts c = {.a = x->m * x->n, .b = x->n * x->k, .out = tn_linalg_result(x->kind, x->m, x->n, x->k)};
    int64_t work = kinds[x->kind].work(x->m, x->n, x->k);
    if (x->lapack) work = tn_max64(work, tn_lapack_work(x->lapack, x->kind, x->m, x->n, x->k));
    c.all = c.a + c.b + c.out + work;
    c.all = (c.all + 7) / 8 * 8; /* whole cache lines */
    return c;
}

size_t tn_linalg_workspace(const tn_linalg_args *args, int threads) {
    return (size_t)counts_of(args).all * sizeof(double) * (size_t)threads;
}

static void take_linalg(const void *from, tn_dtype dtype, int64_t first, int64_t count, double *to) {
    for (int64_t i = 0; i < count; i++)
        to[i] = dtype == TN_F64 ? ((const double *)from)[first + i] : (double)((const float *)from)[first + i];
}

static void give_linalg(const double *from, tn_dtype dtype, int64_t first, int64_t count, void *to) {
    for (int64_t i = 0; i < count; i++) {
        if (dtype == TN_F64)
            ((double *)to)[first + i] = from[i];
        else
            ((float *)to)[first + i] = (float)from[i];
    }
}

static void take_matrix(const tn_linalg_args *x, const counts *c, int64_t i, const tn_linalg_matrix *one) {
    take_linalg(x->a, x->dtype, i * c->a, c->a, one->a);
    if (x->b) take_linalg(x->b, x->dtype, i * c->b, c->b, one->b);
}

static void run_part(void *ctx, int64_t begin, int64_t end, int worker) {
    const tn_linalg_args *x = ctx;
    counts c = counts_of(x);
    double *memory = (double *)x->workspace + worker * c.all;
    tn_linalg_matrix one = {.m = x->m, .n = x->n, .k = x->k, .a = memory, .b = memory + c.a};
    one.out = one.b + c.b;
    one.work = one.out + c.out;
    for (int64_t i = begin; i < end; i++) {
        take_matrix(x, &c, i, &one);
        bool done = x->lapack && tn_lapack_run(x->lapack, x->kind, &one);
        if (x->lapack && !done) take_matrix(x, &c, i, &one);
        if (!done) kinds[x->kind].run(&one);
        give_linalg(one.out, x->dtype, i * c.out, c.out, x->out);
    }
}

void tn_linalg(const tn_linalg_args *args) {
    enum { PART = 4096 }; /* multiplications that are not worth another thread */
    tn_linalg_args x = *args;
    double each = (double)x.n * (double)x.n * (double)(x.m + x.k) + 1;
    int64_t grain = tn_max64(1, (int64_t)(PART / each));
    tn_parallel(x.batch, grain, run_part, &x);
}
