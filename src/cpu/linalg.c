/* linalg.c — dense linear algebra in f64: systems, LU, Cholesky, QR, symmetric eigenvalues, singular values. Other
 * eigenvalues: linalg_eig.c.
 *
 * The inner loops run along rows, which are contiguous: elimination takes multiples of rows from rows, reflections are
 * applied to all rows at once. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "cpu/linalg.h"

static void eigh_matrix(const tn_linalg_matrix *x);
static void svd_matrix(const tn_linalg_matrix *x);

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

static int64_t largest_below(const double *a, int64_t m, int64_t n, int64_t column) {
    int64_t best = column;
    for (int64_t i = column + 1; i < m; i++)
        if (fabs(a[i * n + column]) > fabs(a[best * n + column])) best = i;
    return best;
}

/* Makes a upper triangular and applies the same steps to b [n, k]. Returns the sign of the row exchanges. */
static double eliminate(double *a, double *b, int64_t n, int64_t k) {
    double sign = 1;
    for (int64_t c = 0; c < n; c++) {
        int64_t pivot = largest_below(a, n, n, c);
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

/* `work`: the row of a that each row comes from. */
static void lu(const tn_linalg_matrix *x) {
    int64_t m = x->m, n = x->n;
    double *a = x->out, *p = a + m * n;
    if (tn_linalg_is_lost(x, false, m * n + m * m)) return;
    memcpy(a, x->a, (size_t)(m * n) * sizeof *a);
    memset(p, 0, (size_t)(m * m) * sizeof *p);
    for (int64_t i = 0; i < m; i++)
        x->work[i] = (double)i;
    for (int64_t c = 0; c < tn_min64(m, n); c++) {
        int64_t pivot = largest_below(a, m, n, c);
        if (pivot != c) swap_rows(a + pivot * n, a + c * n, n);
        if (pivot != c) swap_rows(x->work + pivot, x->work + c, 1);
        double top = a[c * n + c];
        for (int64_t i = c + 1; i < m && top != 0; i++) {
            a[i * n + c] /= top;
            tn_linalg_add(a + i * n + c + 1, -a[i * n + c], a + c * n + c + 1, n - c - 1);
        }
    }
    for (int64_t i = 0; i < m; i++)
        p[(int64_t)x->work[i] * m + i] = 1;
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

static int64_t one_square(TN_UNUSED int64_t m, int64_t n, TN_UNUSED int64_t k) { return n * n; }
static int64_t one_right_side(TN_UNUSED int64_t m, int64_t n, int64_t k) { return n * k; }
static int64_t three(TN_UNUSED int64_t m, TN_UNUSED int64_t n, TN_UNUSED int64_t k) { return 3; }
static int64_t lu_and_p(int64_t m, int64_t n, TN_UNUSED int64_t k) { return m * n + m * m; }
static int64_t q_and_r(int64_t m, int64_t n, TN_UNUSED int64_t k) { return (m + n) * tn_min64(m, n); }
static int64_t values_and_vectors(TN_UNUSED int64_t m, int64_t n, TN_UNUSED int64_t k) { return (n + 1) * n; }
static int64_t u_s_and_v(int64_t m, int64_t n, TN_UNUSED int64_t k) { return (m + n + 1) * tn_min64(m, n); }

/* Beside a, b and the result in f64. */
static int64_t no_work(TN_UNUSED int64_t m, TN_UNUSED int64_t n, TN_UNUSED int64_t k) { return 0; }
static int64_t one_column(int64_t m, TN_UNUSED int64_t n, TN_UNUSED int64_t k) { return m; }
static int64_t work_of_qr(int64_t m, int64_t n, TN_UNUSED int64_t k) { return tn_min64(m, n) * (m + 1) + n; }
static int64_t work_of_eigh(TN_UNUSED int64_t m, int64_t n, TN_UNUSED int64_t k) { return n * n + 4 * n; }
static int64_t complex_values_and_vectors(int64_t m, int64_t n, int64_t k) { return 2 * values_and_vectors(m, n, k); }
static int64_t work_of_eig(TN_UNUSED int64_t m, int64_t n, TN_UNUSED int64_t k) { return tn_linalg_eig_work(n); }
static int64_t work_of_svd(int64_t m, int64_t n, TN_UNUSED int64_t k) {
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
    [TN_LINALG_LU] = {lu, lu_and_p, one_column},
    [TN_LINALG_QR] = {qr, q_and_r, work_of_qr},
    [TN_LINALG_EIGH] = {eigh_matrix, values_and_vectors, work_of_eigh},
    [TN_LINALG_EIG] = {tn_linalg_eig_matrix, complex_values_and_vectors, work_of_eig},
    [TN_LINALG_SVD] = {svd_matrix, u_s_and_v, work_of_svd},
};

void tn_linalg_own(tn_linalg_kind kind, const tn_linalg_matrix *x) { kinds[kind].run(x); }

int64_t tn_linalg_result(tn_linalg_kind kind, int64_t m, int64_t n, int64_t k) { return kinds[kind].result(m, n, k); }

typedef struct counts {
    int64_t a, b, out, all; /* numbers in f64 */
} counts;

static counts counts_of(const tn_linalg_args *x) {
    counts c = {.a = x->m * x->n, .b = x->n * x->k, .out = tn_linalg_result(x->kind, x->m, x->n, x->k)};
    int64_t work = kinds[x->kind].work(x->m, x->n, x->k);
    if (x->lapack) work = tn_max64(work, tn_lapack_calls_of(x->lapack)->work(x->lapack, x->kind, x->m, x->n, x->k));
    c.all = c.a + c.b + c.out + work;
    c.all = (c.all + 7) / 8 * 8; /* whole cache lines */
    return c;
}

size_t tn_linalg_workspace(const tn_linalg_args *args, int threads) {
    return (size_t)counts_of(args).all * sizeof(double) * (size_t)threads;
}

static void read_as_f64(const void *from, tn_dtype dtype, int64_t first, int64_t count, double *to) {
    for (int64_t i = 0; i < count; i++)
        to[i] = dtype == TN_F64 ? ((const double *)from)[first + i] : (double)((const float *)from)[first + i];
}

static void write_from_f64(const double *from, tn_dtype dtype, int64_t first, int64_t count, void *to) {
    for (int64_t i = 0; i < count; i++) {
        if (dtype == TN_F64)
            ((double *)to)[first + i] = from[i];
        else
            ((float *)to)[first + i] = (float)from[i];
    }
}

static void take_matrix(const tn_linalg_args *x, const counts *c, int64_t i, const tn_linalg_matrix *one) {
    read_as_f64(x->a, x->dtype, i * c->a, c->a, one->a);
    if (x->b) read_as_f64(x->b, x->dtype, i * c->b, c->b, one->b);
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
        bool done = x->lapack && tn_lapack_calls_of(x->lapack)->run(x->lapack, x->kind, &one);
        if (x->lapack && !done) take_matrix(x, &c, i, &one);
        if (!done) kinds[x->kind].run(&one);
        write_from_f64(one.out, x->dtype, i * c.out, c.out, x->out);
    }
}

void tn_linalg(const tn_linalg_args *args) {
    enum { PART = 4096 }; /* multiplications that are not worth another thread */
    tn_linalg_args x = *args;
    double each = (double)x.n * (double)x.n * (double)(x.m + x.k) + 1;
    int64_t grain = tn_max64(1, (int64_t)(PART / each));
    tn_parallel(x.batch, grain, run_part, &x);
}

/* ==== eigenvalues and singular values ============================================================================= */
/* Eigenvalues: reflections make the matrix tridiagonal (Golub and Van Loan, Matrix Computations, 8.3.1), then implicit
 * QR steps with Wilkinson's shift, from the end, make it diagonal (8.3.5). Singular values: rotations make the columns
 * orthogonal to each other (one-sided Jacobi, 8.6.3), which finds small ones to as many digits as large ones. Vectors
 * are stored as rows while they are rotated, because rows are contiguous. */

/* ---- shared ------------------------------------------------------------------------------------------------------ */

/* (x, y) becomes (c·x - s·y, s·x + c·y). */
static void rotate(double *x, double *y, double c, double s, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        double a = x[i], b = y[i];
        x[i] = c * a - s * b;
        y[i] = s * a + c * b;
    }
}

double tn_linalg_sign(const double *x, int64_t n, int64_t stride) {
    int64_t at = 0;
    for (int64_t i = stride; i < n * stride; i += stride)
        if (fabs(x[i]) > fabs(x[at]) * (1 + 8 * DBL_EPSILON)) at = i; /* equal but for rounding: the first */
    return n > 0 && x[at] < 0 ? -1 : 1;
}

static void swap_numbers(double *x, double *y) {
    double t = *x;
    *x = *y;
    *y = t;
}

static void swap_vectors(double *x, double *y, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        swap_numbers(x + i, y + i);
}

/* ---- tridiagonal form -------------------------------------------------------------------------------------------- */

/* The reflection that clears column c of the lower triangle below its first element; v is stored in rows c + 1 … of
 * column c. Returns 2 / vᵀv, 0 if there is nothing to clear. *beside: the remaining off-diagonal element. */
static double clear_column(double *a, int64_t n, int64_t c, double *beside) {
    double largest = 0, square = 0;
    *beside = a[(c + 1) * n + c];
    for (int64_t i = c + 2; i < n; i++)
        largest = fmax(largest, fabs(a[i * n + c]));
    if (largest == 0) return 0;
    largest = fmax(largest, fabs(*beside));
    for (int64_t i = c + 1; i < n; i++) {
        a[i * n + c] /= largest;
        square += a[i * n + c] * a[i * n + c];
    }
    double norm = sqrt(square), head = a[(c + 1) * n + c], turned = head < 0 ? -norm : norm;
    a[(c + 1) * n + c] = head + turned;
    *beside = -turned * largest;
    return 1 / (norm * fabs(head + turned));
}

/* The lower triangle of rows and columns from c + 1 on, reflected from both sides. v: column c as numbers; p: room. */
static void reflect_both(double *a, int64_t n, int64_t c, double scale, double *v, double *p) {
    int64_t first = c + 1;
    for (int64_t i = first; i < n; i++) {
        v[i] = a[i * n + c];
        p[i] = 0;
    }
    for (int64_t i = first; i < n; i++) { /* p = scale·A·v from the lower triangle */
        p[i] += tn_linalg_dot(a + i * n + first, v + first, i + 1 - first);
        tn_linalg_add(p + first, v[i], a + i * n + first, i - first);
    }
    tn_linalg_scale(p + first, scale, n - first);
    tn_linalg_add(p + first, -0.5 * scale * tn_linalg_dot(p + first, v + first, n - first), v + first, n - first);
    for (int64_t i = first; i < n; i++) {
        tn_linalg_add(a + i * n + first, -v[i], p + first, i + 1 - first);
        tn_linalg_add(a + i * n + first, -p[i], v + first, i + 1 - first);
    }
}

/* Rows of z become the transposed product of all reflections, last one first. */
static void gather_reflections(const double *a, int64_t n, const double *scale, double *z, double *v) {
    memset(z, 0, (size_t)(n * n) * sizeof *z);
    for (int64_t i = 0; i < n; i++)
        z[i * n + i] = 1;
    for (int64_t c = n - 3; c >= 0; c--) {
        int64_t first = c + 1;
        if (scale[c] == 0) continue;
        for (int64_t i = first; i < n; i++)
            v[i] = a[i * n + c];
        for (int64_t row = first; row < n; row++) { /* the product is symmetric in the untouched part */
            double *to = z + row * n + first;
            tn_linalg_add(to, -scale[c] * tn_linalg_dot(to, v + first, n - first), v + first, n - first);
        }
    }
}

/* ---- implicit steps ---------------------------------------------------------------------------------------------- */

/* One step on the block [first, last] of diagonal d and off-diagonal e, e[i] between i and i + 1. */
static void implicit_step(double *d, double *e, double *z, int64_t n, int64_t first, int64_t last) {
    double half = (d[last - 1] - d[last]) / 2, beside = e[last - 1];
    double shift = d[last] - beside * beside / (half + copysign(hypot(half, beside), half));
    double x = d[first] - shift, y = e[first];
    for (int64_t k = first; k < last; k++) {
        double length = hypot(x, y), c = length == 0 ? 1 : x / length, s = length == 0 ? 0 : -y / length;
        if (k > first) e[k - 1] = length;
        double p = d[k], q = d[k + 1], r = e[k];
        d[k] = c * c * p - 2 * c * s * r + s * s * q;
        d[k + 1] = s * s * p + 2 * c * s * r + c * c * q;
        e[k] = c * s * (p - q) + (c * c - s * s) * r;
        rotate(z + k * n, z + (k + 1) * n, c, s, n);
        if (k + 1 == last) break;
        x = e[k];
        y = -s * e[k + 1];
        e[k + 1] *= c;
    }
}

static bool negligible(const double *d, const double *e, int64_t i) {
    return !(fabs(e[i]) > DBL_EPSILON * (fabs(d[i]) + fabs(d[i + 1])) && fabs(e[i]) > DBL_MIN);
}

/* false: no convergence (not known to happen for any matrix of finite numbers). */
static bool make_diagonal(double *d, double *e, double *z, int64_t n) {
    enum { STEPS_EACH = 60 };
    int64_t last = n - 1, left = STEPS_EACH * n;
    while (last > 0) {
        if (negligible(d, e, last - 1)) {
            e[--last] = 0;
            continue;
        }
        int64_t first = last - 1;
        while (first > 0 && !negligible(d, e, first - 1))
            first--;
        if (left-- == 0) return false;
        implicit_step(d, e, z, n, first, last);
    }
    return true;
}

static void sort_ascending(double *d, double *z, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        int64_t least = i;
        for (int64_t j = i + 1; j < n; j++)
            if (d[j] < d[least]) least = j;
        if (least == i) continue;
        swap_numbers(d + i, d + least);
        swap_vectors(z + i * n, z + least * n, n);
    }
}

/* work: vectors as rows [n, n], then off-diagonal, scales, v and p, n each. The result's first row is d. */
static void eigh_matrix(const tn_linalg_matrix *x) {
    int64_t n = x->n;
    double *z = x->work, *e = z + n * n, *scale = e + n, *v = scale + n, *p = v + n, *d = x->out;
    if (tn_linalg_is_lost(x, true, n * (n + 1))) return;
    for (int64_t c = 0; c < n; c++) {
        if (c + 2 < n) {
            scale[c] = clear_column(x->a, n, c, &e[c]);
            if (scale[c] != 0) reflect_both(x->a, n, c, scale[c], v, p);
        } else if (c + 1 < n) {
            e[c] = x->a[(c + 1) * n + c];
        }
        d[c] = x->a[c * n + c];
    }
    gather_reflections(x->a, n, scale, z, v);
    bool found = make_diagonal(d, e, z, n);
    sort_ascending(d, z, n);
    for (int64_t i = 0; i < n; i++) {
        double sign = found ? tn_linalg_sign(z + i * n, n, 1) : NAN;
        for (int64_t j = 0; j < n; j++)
            x->out[(j + 1) * n + i] = sign * z[i * n + j];
        d[i] *= found ? 1 : NAN;
    }
}

/* ---- singular values --------------------------------------------------------------------------------------------- */

/* Makes rows p and q of w orthogonal; false when they are. */
static bool make_orthogonal(double *w, double *v, int64_t length, int64_t k, int64_t p, int64_t q) {
    double *x = w + p * length, *y = w + q * length;
    double xx = tn_linalg_dot(x, x, length), yy = tn_linalg_dot(y, y, length), xy = tn_linalg_dot(x, y, length);
    if (!(fabs(xy) > 4 * DBL_EPSILON * sqrt(xx) * sqrt(yy)) || !isfinite(xx + yy)) return false;
    double zeta = (yy - xx) / (2 * xy), t = copysign(1, zeta) / (fabs(zeta) + hypot(1, zeta));
    double c = 1 / hypot(1, t), s = c * t;
    rotate(x, y, c, s, length);
    rotate(v + p * k, v + q * k, c, s, k);
    return true;
}

static void make_all_orthogonal(double *w, double *v, int64_t length, int64_t k) {
    enum { SWEEPS = 60 }; /* ten are many */
    bool any = true;
    for (int sweep = 0; sweep < SWEEPS && any; sweep++) {
        any = false;
        for (int64_t p = 0; p + 1 < k; p++)
            for (int64_t q = p + 1; q < k; q++)
                any |= make_orthogonal(w, v, length, k, p, q);
    }
}

/* A row that is (nearly) zero has no direction: uses any one orthogonal to those before. */
static void complete(double *w, int64_t length, int64_t row) {
    double *x = w + row * length;
    for (int64_t unit = 0; unit < length; unit++) {
        memset(x, 0, (size_t)length * sizeof *x);
        x[unit] = 1;
        for (int twice = 0; twice < 2; twice++)
            for (int64_t i = 0; i < row; i++)
                tn_linalg_add(x, -tn_linalg_dot(x, w + i * length, length), w + i * length, length);
        double norm = sqrt(tn_linalg_dot(x, x, length));
        if (norm < 0.5 / sqrt((double)length)) continue;
        tn_linalg_scale(x, 1 / norm, length);
        return;
    }
}

static void sort_descending(double *s, double *w, double *v, int64_t length, int64_t k) {
    for (int64_t i = 0; i < k; i++) {
        int64_t most = i;
        for (int64_t j = i + 1; j < k; j++)
            if (s[j] > s[most]) most = j;
        if (most == i) continue;
        swap_numbers(s + i, s + most);
        swap_vectors(w + i * length, w + most * length, length);
        swap_vectors(v + i * k, v + most * k, k);
    }
}

/* work: the longer side's vectors as rows [k, length], then the shorter side's [k, k], k sizes. A wide matrix is
 * transposed, which exchanges U and V. */
static void svd_matrix(const tn_linalg_matrix *x) {
    int64_t m = x->m, n = x->n, k = tn_min64(m, n), length = tn_max64(m, n);
    bool wide = n > m;
    double *w = x->work, *v = w + k * length, *s = x->out + m * k, *vt = s + k, largest = 0;
    if (tn_linalg_is_lost(x, false, (m + n + 1) * k)) return;
    for (int64_t i = 0; i < k; i++)
        for (int64_t j = 0; j < length; j++) {
            w[i * length + j] = wide ? x->a[i * n + j] : x->a[j * n + i];
            largest = fmax(largest, fabs(w[i * length + j]));
        }
    memset(v, 0, (size_t)(k * k) * sizeof *v);
    for (int64_t i = 0; i < k; i++)
        v[i * k + i] = 1;
    if (largest > 0) tn_linalg_scale(w, 1 / largest, k * length); /* squares neither overflow nor vanish */
    make_all_orthogonal(w, v, length, k);
    for (int64_t i = 0; i < k; i++)
        s[i] = sqrt(tn_linalg_dot(w + i * length, w + i * length, length));
    sort_descending(s, w, v, length, k);
    for (int64_t i = 0; i < k; i++) {
        if (s[i] <= DBL_EPSILON * 1e-3 * s[0])
            complete(w, length, i);
        else
            tn_linalg_scale(w + i * length, 1 / s[i], length);
        s[i] *= largest;
    }
    for (int64_t i = 0; i < k; i++) {
        const double *u = wide ? v + i * k : w + i * length, *other = wide ? w + i * length : v + i * k;
        double sign = tn_linalg_sign(u, m, 1);
        for (int64_t j = 0; j < m; j++)
            x->out[j * k + i] = sign * u[j];
        for (int64_t j = 0; j < n; j++)
            vt[i * n + j] = sign * other[j];
    }
}
