/* linalg_eig.c — eigenvalues and eigenvectors of matrices that are not symmetric, in f64.
 *
 * Reflections make the matrix a Hessenberg matrix, implicit double steps make that quasi-triangular, with a 2 × 2 block
 * on the diagonal for each pair of complex eigenvalues (Golub and Van Loan, Matrix Computations, 7.4.2, 7.5.1), and
 * substitution from the bottom yields the eigenvectors. Only the last part needs complex numbers, so eigenvalues of
 * real matrices are exactly real or exactly in pairs. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "cpu/linalg.h"

/* a = z·h·zᵀ */
typedef struct schur {
    int64_t n;
    double *h, *z, *sums;
} schur;

static double *row_of(const schur *s, int64_t i, int64_t j) { return s->h + i * s->n + j; }

/* v with (1 - scale·v·vᵀ)·v before = (∓norm, 0 …). Returns scale; 0: nothing is to be done. */
static double make_reflection(double *v, int64_t length) {
    double largest = 0;
    for (int64_t i = 1; i < length; i++)
        largest = fmax(largest, fabs(v[i]));
    if (largest == 0) return 0;
    tn_linalg_scale(v, 1 / fmax(largest, fabs(v[0])), length);
    double norm = sqrt(tn_linalg_dot(v, v, length));
    v[0] += copysign(norm, v[0]);
    return 1 / (norm * fabs(v[0]));
}

static void reflect_rows(double *x, int64_t pitch, int64_t rows, const double *v, double scale, int64_t length) {
    for (int64_t i = 0; i < rows; i++, x += pitch)
        tn_linalg_add(x, -scale * tn_linalg_dot(x, v, length), v, length);
}

/* Reflects rows and columns [first, first + length): rows from column `low` on, columns above row `high`. */
static void reflect_both_sides(const schur *s, const double *v, double scale, int64_t first, int64_t length,
                               int64_t low, int64_t high) {
    int64_t columns = s->n - low;
    if (scale == 0) return;
    memset(s->sums, 0, (size_t)columns * sizeof *s->sums);
    for (int64_t i = 0; i < length; i++)
        tn_linalg_add(s->sums, v[i], row_of(s, first + i, low), columns);
    for (int64_t i = 0; i < length; i++)
        tn_linalg_add(row_of(s, first + i, low), -scale * v[i], s->sums, columns);
    reflect_rows(s->h + first, s->n, high, v, scale, length);
    reflect_rows(s->z + first, s->n, s->n, v, scale, length);
}

static void make_hessenberg(const schur *s, double *v) {
    int64_t n = s->n;
    memset(s->z, 0, (size_t)(n * n) * sizeof *s->z);
    for (int64_t i = 0; i < n; i++)
        s->z[i * n + i] = 1;
    for (int64_t c = 0; c + 2 < n; c++) {
        for (int64_t i = c + 1; i < n; i++)
            v[i] = *row_of(s, i, c);
        reflect_both_sides(s, v + c + 1, make_reflection(v + c + 1, n - c - 1), c + 1, n - c - 1, c, n);
        for (int64_t i = c + 2; i < n; i++)
            *row_of(s, i, c) = 0;
    }
}

/* A double step on rows [first, last] with shifts of this sum and product. */
static void double_step(const schur *s, int64_t first, int64_t last, double sum, double product) {
    double a = *row_of(s, first, first), b = *row_of(s, first + 1, first);
    double v[3] = {a * a + *row_of(s, first, first + 1) * b - sum * a + product,
                   b * (a + *row_of(s, first + 1, first + 1) - sum), b * *row_of(s, first + 2, first + 1)};
    for (int64_t k = first; k < last; k++) {
        int64_t length = tn_min64(3, last - k + 1), low = k > first ? k - 1 : k;
        reflect_both_sides(s, v, make_reflection(v, length), k, length, low, tn_min64(k + 4, last + 1));
        for (int64_t i = k + 1; k > first && i < k + length; i++)
            *row_of(s, i, k - 1) = 0;
        for (int64_t i = 0; i < 3 && k + 1 + i <= last; i++)
            v[i] = *row_of(s, k + 1 + i, k);
    }
}

/* A quarter of the discriminant of the block in rows i and i + 1: negative for a complex pair. */
static double discriminant(const schur *s, int64_t i) {
    double half = (*row_of(s, i, i) - *row_of(s, i + 1, i + 1)) / 2;
    return half * half + *row_of(s, i, i + 1) * *row_of(s, i + 1, i);
}

/* Two real eigenvalues of a block: one comes onto each place of the diagonal. */
static void divide_block(const schur *s, int64_t i) {
    double d = discriminant(s, i), half = (*row_of(s, i, i) - *row_of(s, i + 1, i + 1)) / 2;
    if (d < 0) return;
    double v[2] = {half + copysign(sqrt(d), half), *row_of(s, i + 1, i)};
    reflect_both_sides(s, v, make_reflection(v, 2), i, 2, i, i + 2);
    *row_of(s, i + 1, i) = 0;
}

/* The first row of the block that ends in row `last` and has no zero below its diagonal. */
static int64_t block_start(const schur *s, int64_t last) {
    int64_t i = last;
    for (; i > 0; i--) {
        double beside = fabs(*row_of(s, i - 1, i - 1)) + fabs(*row_of(s, i, i));
        if (fabs(*row_of(s, i, i - 1)) <= DBL_EPSILON * (beside == 0 ? 1 : beside)) break;
    }
    if (i > 0) *row_of(s, i, i - 1) = 0;
    return i;
}

/* false: too many steps */
static bool make_triangular(const schur *s) {
    enum { MOST = 60, SPECIAL = 10 }; /* steps for an eigenvalue; every tenth has other shifts, against cycles */
    int tries = 0;
    for (int64_t last = s->n - 1; last >= 0;) {
        int64_t first = block_start(s, last);
        if (first + 2 > last) {
            if (first < last) divide_block(s, first);
            last = first - 1;
            tries = 0;
            continue;
        }
        if (++tries > MOST) return false;
        double a = *row_of(s, last - 1, last - 1), d = *row_of(s, last, last), c = *row_of(s, last, last - 1);
        double sum = a + d, product = a * d - *row_of(s, last - 1, last) * c;
        if (tries % SPECIAL == 0) {
            sum = 1.5 * (fabs(c) + fabs(*row_of(s, last - 1, last - 2)));
            product = sum * sum / 2.25;
        }
        double_step(s, first, last, sum, product);
    }
    return true;
}

/* ---- eigenvectors ------------------------------------------------------------------------------------------------ */

typedef struct number {
    double re, im;
} number;

static number times(number x, number y) { return (number){x.re * y.re - x.im * y.im, x.re * y.im + x.im * y.re}; }
static number minus(number x, number y) { return (number){x.re - y.re, x.im - y.im}; }
static number scaled(number x, double by) { return (number){x.re * by, x.im * by}; }
static double magnitude(number x) { return fmax(fabs(x.re), fabs(x.im)); }
static number over(number x, number y) { /* |y| neither overflows nor vanishes */
    double size = magnitude(y);
    number u = {y.re / size, -y.im / size};
    return scaled(times(x, u), 1 / (size * (u.re * u.re + u.im * u.im)));
}

/* An eigenvalue found twice has no second vector; a small divisor in place of 0 yields the first one again. Small
 * means: compared with `size`, which the product of a rounding error and a number of x's rows may have. */
static number not_zero(number x, double size) {
    double least = DBL_EPSILON * size;
    return fabs(x.re) + fabs(x.im) < least ? (number){least, 0} : x;
}

/* -(row i of h · y), columns from `from` to `last` */
static number rest_of_row(const schur *s, const number *y, int64_t i, int64_t from, int64_t last) {
    number sum = {0, 0};
    for (int64_t j = from; j <= last; j++)
        sum = minus(sum, scaled(y[j], *row_of(s, i, j)));
    return sum;
}

/* y of the block in rows [first, last]: an eigenvector of the block. */
static void begin_vector(const schur *s, number w, int64_t first, int64_t last, number *y) {
    double b = *row_of(s, first, last), c = *row_of(s, last, first);
    y[first] = y[last] = (number){1, 0};
    if (first == last) return;
    if (fabs(c) > fabs(b))
        y[first] = scaled(minus(w, (number){*row_of(s, last, last), 0}), 1 / c);
    else
        y[last] = scaled(minus(w, (number){*row_of(s, first, first), 0}), 1 / b);
}

/* (h - w)·y = 0 */
static void substitute(const schur *s, number w, int64_t first, int64_t last, number *y) {
    enum { HUGE_EXPONENT = 300 }; /* of 2: then all is made smaller */
    begin_vector(s, w, first, last, y);
    for (int64_t i = first - 1; i >= 0; i--) {
        number d = minus((number){*row_of(s, i, i), 0}, w), r = rest_of_row(s, y, i, i + 1, last);
        if (i > 0 && *row_of(s, i, i - 1) != 0) { /* two rows at once */
            double b = *row_of(s, i - 1, i), c = *row_of(s, i, i - 1);
            number a = minus((number){*row_of(s, i - 1, i - 1), 0}, w), q = rest_of_row(s, y, i - 1, i + 1, last);
            double size = fmax(fmax(magnitude(a), magnitude(d)), fmax(fabs(b), fabs(c)));
            number det = not_zero(minus(times(a, d), (number){b * c, 0}), fmax(size, DBL_EPSILON));
            y[i] = over(minus(times(a, r), scaled(q, c)), det);
            y[i - 1] = over(minus(times(q, d), scaled(r, b)), det);
            i--;
        } else {
            y[i] = over(r, not_zero(d, 1));
        }
        if (ilogb(magnitude(y[i])) < HUGE_EXPONENT) continue;
        for (int64_t j = i; j <= last; j++)
            y[j] = scaled(y[j], ldexp(1, -HUGE_EXPONENT));
    }
}

/* Length 1; the first of the elements of greatest magnitude is positive. */
static void normalize(number *v, int64_t n) {
    double largest = 0, square = 0;
    int64_t at = 0;
    for (int64_t i = 0; i < n; i++)
        largest = fmax(largest, magnitude(v[i]));
    for (int64_t i = 0; i < n; i++) {
        v[i] = scaled(v[i], 1 / largest);
        square += v[i].re * v[i].re + v[i].im * v[i].im;
        if (hypot(v[i].re, v[i].im) > hypot(v[at].re, v[at].im) * (1 + 8 * DBL_EPSILON)) at = i;
    }
    double size = hypot(v[at].re, v[at].im);
    number turn = {v[at].re / size, -v[at].im / size};
    for (int64_t i = 0; i < n; i++)
        v[i] = scaled(turn.im == 0 ? scaled(v[i], turn.re) : times(v[i], turn), 1 / sqrt(square));
    v[at].im = 0;
}

/* Writes the eigenvalues of the block that begins in this row, and their vectors, as number k and k + 1. */
static void write_block(const tn_linalg_matrix *x, const schur *s, int64_t first, bool pair, double size, int64_t k) {
    int64_t n = s->n, last = first + pair;
    number w = {*row_of(s, last, last), 0}, *y = (number *)(void *)(s->sums), *v = y + n;
    if (pair) w = (number){(*row_of(s, first, first) + w.re) / 2, sqrt(-discriminant(s, first))};
    substitute(s, w, first, last, y);
    for (int64_t i = 0; i < n; i++) {
        v[i] = (number){0, 0};
        for (int64_t j = 0; j <= last; j++)
            v[i] = minus(v[i], scaled(y[j], -s->z[i * n + j]));
    }
    normalize(v, n);
    for (int64_t side = 0; side <= pair; side++) {
        double *value = x->out + 2 * (k + side), *vector = x->out + 2 * n + 2 * (k + side);
        value[0] = w.re * size;
        value[1] = side ? -w.im * size : w.im * size;
        for (int64_t i = 0; i < n; i++) {
            vector[2 * n * i] = v[i].re;
            vector[2 * n * i + 1] = side ? -v[i].im : v[i].im;
        }
    }
}

int64_t tn_linalg_eig_work(int64_t n) { return n * n + 5 * n; }

/* work: z, then sums and v, which y and v of an eigenvector take later; which rows were written. */
void tn_linalg_eig_matrix(const tn_linalg_matrix *x) {
    int64_t n = x->n;
    schur s = {.n = n, .h = x->a, .z = x->work, .sums = x->work + n * n};
    static const double LIFT = 0x1p54;
    double size = 0, lifted = 1, *written = s.sums + 4 * n;
    if (tn_linalg_is_lost(x, false, 2 * n * (n + 1))) return;
    for (int64_t i = 0; i < n * n; i++)
        size = fmax(size, fabs(x->a[i]));
    for (; size > 0 && size < DBL_MIN; size *= LIFT, lifted *= LIFT)
        tn_linalg_scale(x->a, LIFT, n * n);               /* 1 / size would be infinite */
    if (size > 0) tn_linalg_scale(x->a, 1 / size, n * n); /* squares neither overflow nor vanish */
    size /= lifted;
    make_hessenberg(&s, s.sums + n);
    bool found = make_triangular(&s);
    for (int64_t i = 0; i < 2 * n * (n + 1) && !found; i++)
        x->out[i] = NAN;
    memset(written, 0, (size_t)n * sizeof *written);
    for (int64_t k = 0; k < n && found;) {
        int64_t best = -1;
        double least = INFINITY;
        for (int64_t i = 0; i < n; i++) {
            bool pair = i + 1 < n && *row_of(&s, i + 1, i) != 0;
            double re = *row_of(&s, i, i);
            if (pair) re = (re + *row_of(&s, i + 1, i + 1)) / 2;
            if (written[i] == 0 && re < least) least = re, best = i;
            i += pair;
        }
        bool pair = best + 1 < n && *row_of(&s, best + 1, best) != 0;
        write_block(x, &s, best, pair, size, k);
        written[best] = 1;
        k += 1 + pair;
    }
}
