/* test_linalg.c — factorizations keep their promises at sizes where rounding could show: products of the factors give
 * the matrix, factors are orthonormal and triangular, signs and order are as stated, whatever the number of threads.
 *
 * Values and gradients of small matrices against PyTorch's are in test_golden.c, against definitions in test_ops.c. */
#include "test_support.h"

#include <math.h>
#include <string.h>

#include "trunnion/autograd.h"
#include "trunnion/device.h"
#include "trunnion/functions.h"
#include "trunnion/linalg.h"
#include "trunnion/ops.h"

static const double UNIT = 0x1p-53;

static tn_tensor *random_matrix(int64_t batch, int64_t m, int64_t n) {
    tn_tensor *x = tn_cast(tn_randn((int64_t[]){batch, m, n}, 3), TN_F64);
    assert_ok(tn_eval(&x, 1));
    return x;
}

static tn_tensor *turned(tn_tensor *x) { return tn_transpose(x, -2, -1); }

/* The greatest difference of two tensors. */
static double apart(tn_tensor *x, tn_tensor *y) {
    tn_tensor *most = tn_amax(tn_abs(tn_sub(x, y)), TN_ALL, false);
    double v = NAN;
    assert_ok(tn_read(most, &v, sizeof v));
    return v;
}

static void near(const char *what, tn_tensor *x, tn_tensor *y, double bound) {
    double distance = apart(x, y);
    if (!(distance <= bound)) fail_msg("%s: %g apart, at most %g is right", what, distance, bound);
}

static tn_tensor *one_like(tn_tensor *x, int64_t n) {
    return tn_expand_as(tn_eye(n, n, TN_F64), tn_matmul(turned(x), x));
}

static void orthonormal(const char *what, tn_tensor *q, int64_t columns) {
    near(what, tn_matmul(turned(q), q), one_like(q, columns), 300 * UNIT);
}

static void read_all(tn_tensor *x, double *out, size_t count) { assert_ok(tn_read(x, out, count * sizeof *out)); }

/* ---- promises of each -------------------------------------------------------------------------------------------- */

static const int64_t sizes[][2] = {{60, 60}, {75, 30}, {30, 75}, {40, 1}, {1, 40}, {2, 2}};

static void qr_gives_the_matrix_back(void **state) {
    (void)state;
    for (size_t i = 0; i < TN_COUNT(sizes); i++) {
        TN_SCOPE;
        int64_t m = sizes[i][0], n = sizes[i][1], k = tn_min64(m, n);
        tn_tensor *x = random_matrix(2, m, n), *q, *r;
        tn_linalg_qr(x, &q, &r);
        near("Q·R", tn_matmul(q, r), x, 1000 * UNIT);
        orthonormal("Q", q, k);
        near("R is upper", tn_triu(r, 0), r, 0);
        double *numbers = malloc((size_t)(2 * k * n) * sizeof *numbers);
        read_all(r, numbers, (size_t)(2 * k * n));
        for (int64_t d = 0; d < k; d++)
            assert_true(numbers[d * n + d] >= 0);
        free(numbers);
    }
}

static void lu_gives_the_matrix_back(void **state) {
    (void)state;
    for (size_t i = 0; i < TN_COUNT(sizes); i++) {
        TN_SCOPE;
        int64_t m = sizes[i][0], n = sizes[i][1];
        tn_tensor *x = random_matrix(2, m, n), *p, *l, *u;
        tn_linalg_lu(x, &p, &l, &u);
        near("P·L·U", tn_matmul(p, tn_matmul(l, u)), x, 1000 * UNIT);
        near("L is lower", tn_tril(l, 0), l, 0);
        near("U is upper", tn_triu(u, 0), u, 0);
        near("pivots are greatest", tn_clamp(l, -1, 1), l, 0);
        near("P is a permutation", tn_matmul(turned(p), p), one_like(p, m), 0);
        if (m != n) continue;
        tn_tensor *b = random_matrix(2, n, 3), *solved = tn_linalg_lu_solve(p, l, u, b);
        near("x by its factors", solved, tn_linalg_solve(x, b), 1e-9);
    }
    TN_SCOPE; /* singular: zeros in U */
    tn_tensor *p, *l, *u, *x = tn_ones((int64_t[]){3, 3}, 2, TN_F64);
    tn_linalg_lu(x, &p, &l, &u);
    near("of ones", tn_matmul(p, tn_matmul(l, u)), x, 0);
}

static void eigenvectors_diagonalize(void **state) {
    (void)state;
    static const int64_t extents[] = {80, 3, 2, 1};
    for (size_t i = 0; i < TN_COUNT(extents); i++) {
        TN_SCOPE;
        int64_t n = extents[i];
        tn_tensor *half = random_matrix(2, n, n), *x = tn_add(half, turned(half)), *w, *v;
        tn_linalg_eigh(x, &w, &v);
        near("V·diag(w)·Vᵀ", tn_matmul(tn_mul(v, tn_unsqueeze(w, -2)), turned(v)), x, 4000 * UNIT);
        orthonormal("V", v, n);
        near("ascending", tn_sort(w, -1, false), w, 0);
        near("alone", tn_linalg_eigvalsh(x), w, 0);
    }
}

static void eigenvectors_of_any_matrix_diagonalize(void **state) {
    (void)state;
    static const int64_t extents[] = {60, 5, 2, 1};
    for (size_t i = 0; i < TN_COUNT(extents); i++) {
        TN_SCOPE;
        tn_tensor *x = random_matrix(2, extents[i], extents[i]), *w, *v, *part[4];
        tn_linalg_eig(x, &w, &v);
        for (int k = 0; k < 2; k++) {
            part[k] = tn_unsqueeze(tn_select(w, -1, k), -2);
            part[2 + k] = tn_select(v, -1, k);
        }
        tn_tensor *re = tn_sub(tn_mul(part[2], part[0]), tn_mul(part[3], part[1]));
        tn_tensor *im = tn_add(tn_mul(part[2], part[1]), tn_mul(part[3], part[0]));
        near("real part of x·V", tn_matmul(x, part[2]), re, 4000 * UNIT);
        near("imaginary part of x·V", tn_matmul(x, part[3]), im, 4000 * UNIT);
        tn_tensor *square = tn_sum(tn_mul(v, v), (int64_t[]){-3, -1}, 2, false);
        near("length", square, tn_ones_like(square), 100 * UNIT);
        near("by real part", tn_sort(part[0], -1, false), part[0], 0);
        near("alone", tn_linalg_eigvals(x), w, 0);
    }
}

/* Eigenvalues, and magnitudes of the elements of eigenvectors: a phase has no influence. */
static tn_tensor *eigenvalues_and_magnitudes(void *ctx, tn_tensor *const *inputs) {
    (void)ctx;
    tn_tensor *w, *v, *result = NULL;
    TN_SCOPE;
    tn_linalg_eig(inputs[0], &w, &v);
    tn_tensor *size = tn_sum(tn_mul(v, v), (int64_t[]){-1}, 1, false);
    result = tn_keep(tn_add(tn_mul(size, inputs[0]), tn_sum(tn_mul(w, w), TN_ALL, false)));
    return result;
}

static void eigenvectors_of_any_matrix_have_gradients(void **state) {
    (void)state;
    TN_SCOPE;
    tn_manual_seed(5);
    tn_tensor *x = random_matrix(2, 5, 5);
    assert_ok(tn_set_requires_grad(x, true));
    assert_ok(tn_gradcheck(eigenvalues_and_magnitudes, NULL, &x, 1, NULL));
}

/* Two small pairs beside a large number: their vectors have digits of their own. */
static void eigenvectors_of_small_blocks_have_all_digits(void **state) {
    (void)state;
    TN_SCOPE;
    static const double s = 1e-10, least = 5e-320;
    tn_tensor *x = tn_from_data(
                  (double[5][5]){{1}, {0, 0, s, s, s}, {0, -s, 0, -s, s}, {0, 0, 0, 0, 2 * s}, {0, 0, 0, -2 * s, 0}},
                  TN_DIMS(5, 5), TN_F64),
              *w, *v;
    double value[5][2], of[5][5][2], a[5][5], rest[2];
    tn_linalg_eig(x, &w, &v);
    read_all(x, &a[0][0], 25);
    read_all(w, &value[0][0], 10);
    read_all(v, &of[0][0][0], 50);
    for (int k = 0; k < 5; k++)
        for (int i = 0; i < 5; i++) {
            rest[0] = value[k][1] * of[i][k][1] - value[k][0] * of[i][k][0];
            rest[1] = -value[k][1] * of[i][k][0] - value[k][0] * of[i][k][1];
            for (int j = 0; j < 5; j++) {
                rest[0] += a[i][j] * of[j][k][0];
                rest[1] += a[i][j] * of[j][k][1];
            }
            assert_true(hypot(rest[0], rest[1]) < 10 * UNIT * (k < 4 ? s : 1));
        }
    read_all(tn_linalg_eigvals(tn_from_data((double[]){least, 0, 0, -least}, TN_DIMS(2, 2), TN_F64)), &value[0][0], 4);
    assert_true(value[0][0] == -least && value[1][0] == least); /* 1 / least is infinite */
}

static void singular_vectors_diagonalize(void **state) {
    (void)state;
    for (size_t i = 0; i < TN_COUNT(sizes); i++) {
        TN_SCOPE;
        int64_t m = sizes[i][0], n = sizes[i][1], k = tn_min64(m, n);
        tn_tensor *x = random_matrix(2, m, n), *u, *s, *vh;
        tn_linalg_svd(x, false, &u, &s, &vh);
        near("U·diag(S)·Vᵀ", tn_matmul(tn_mul(u, tn_unsqueeze(s, -2)), vh), x, 2000 * UNIT);
        orthonormal("U", u, k);
        orthonormal("V", turned(vh), k);
        near("descending", tn_sort(s, -1, true), s, 0);
        near("alone", tn_linalg_svdvals(x), s, 0);
    }
}

static void full_matrices_are_completed(void **state) {
    (void)state;
    for (size_t i = 0; i < TN_COUNT(sizes); i++) {
        TN_SCOPE;
        int64_t m = sizes[i][0], n = sizes[i][1], k = tn_min64(m, n);
        tn_tensor *x = random_matrix(2, m, n), *u, *s, *vh, *thin, *flat;
        tn_linalg_svd(x, true, &u, &s, &vh);
        tn_linalg_svd(x, false, &thin, NULL, &flat);
        orthonormal("U", u, m);
        orthonormal("V", turned(vh), n);
        near("U begins as the thin one", tn_narrow(u, -1, 0, k), thin, 200 * UNIT);
        near("V begins as the thin one", tn_narrow(vh, -2, 0, k), flat, 200 * UNIT);
    }
}

/* Rank 2: the factors are orthonormal all the same. */
static void low_rank_has_whole_factors(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = tn_matmul(random_matrix(1, 9, 2), random_matrix(1, 2, 6)), *u, *s, *vh, *w, *v;
    tn_linalg_svd(x, false, &u, &s, &vh);
    near("U·diag(S)·Vᵀ", tn_matmul(tn_mul(u, tn_unsqueeze(s, -2)), vh), x, 500 * UNIT);
    orthonormal("U", u, 6);
    orthonormal("V", turned(vh), 6);
    tn_tensor *none = tn_zeros((int64_t[]){1, 4, 4}, 3, TN_F64);
    tn_linalg_svd(none, false, &u, &s, &vh);
    orthonormal("U of nothing", u, 4);
    near("S of nothing", s, tn_zeros((int64_t[]){1, 4}, 2, TN_F64), 0);
    tn_linalg_eigh(tn_eye(5, 5, TN_F64), &w, &v);
    near("w of 1", w, tn_ones((int64_t[]){5}, 1, TN_F64), 4 * UNIT);
}

static void systems_are_solved(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *a = random_matrix(3, 50, 50), *b = random_matrix(3, 50, 7);
    near("a·x", tn_matmul(a, tn_linalg_solve(a, b)), b, 1e-11);
    tn_tensor *positive = tn_add(tn_matmul(a, turned(a)), tn_eye(50, 50, TN_F64));
    tn_tensor *l = tn_linalg_cholesky(positive);
    near("L·Lᵀ", tn_matmul(l, turned(l)), positive, 3000 * UNIT * 50);
    near("L is lower", tn_tril(l, 0), l, 0);
    near("by L", tn_matmul(l, tn_linalg_solve_triangular(l, b, false)), b, 1e-11);
    tn_tensor *sign, *size, *det = tn_linalg_det(a);
    tn_linalg_slogdet(a, &sign, &size);
    near("det", tn_div(tn_mul(sign, tn_exp(size)), det), tn_ones((int64_t[]){3}, 1, TN_F64), 1e-11);
}

/* What is not defined is NaN or infinite, in its own matrix alone; every way comes to an end. */
static void undefined_is_nan_in_its_matrix(void **state) {
    (void)state;
    static const double bad[] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 3; i++) {
        TN_SCOPE;
        double numbers[2][3][3] = {{{2, 1, 0}, {1, 3, 1}, {0, 1, 4}}, {{2, 1, 0}, {1, 3, 1}, {0, 1, 4}}};
        numbers[0][1][0] = bad[i];
        tn_tensor *x = tn_from_data(numbers, (int64_t[]){2, 3, 3}, 3, TN_F64), *q, *r, *w, *v, *u, *s, *vh, *p;
        tn_linalg_qr(x, &q, &r);
        tn_linalg_eigh(x, &w, &v);
        tn_linalg_svd(x, false, &u, &s, &vh);
        tn_linalg_lu(x, &p, NULL, NULL);
        tn_tensor *all[] = {q, r, w, v, u, s, vh, tn_linalg_cholesky(x), p};
        for (size_t k = 0; k < TN_COUNT(all); k++) {
            double out[18];
            size_t count = all[k] == w || all[k] == s ? 6 : 18;
            read_all(all[k], out, count);
            for (size_t at = 0; at < count; at++)
                assert_true(at < count / 2 ? isnan(out[at]) || all[k] == all[7] : isfinite(out[at]));
        }
    }
    TN_SCOPE;
    double both[2][3][2];
    tn_tensor *mixed = tn_from_data((double[2][3][3]){{{NAN, 1, 2}}, {{0, 1, 0}, {-1, 0, 0}, {0, 0, 1}}},
                                    (int64_t[]){2, 3, 3}, 3, TN_F64);
    read_all(tn_linalg_eigvals(mixed), &both[0][0][0], 12);
    assert_true(isnan(both[0][2][1]) && both[1][0][1] == 1 && both[1][1][1] == -1 && both[1][2][0] == 1);
    double flat[4] = {1, 2, 2, 4}, out[4];
    tn_tensor *x = tn_from_data(flat, (int64_t[]){2, 2}, 2, TN_F64), *sign, *size;
    read_all(tn_linalg_inv(x), out, 4);
    assert_true(isfinite(out[0]) == 0);
    tn_linalg_slogdet(x, &sign, &size);
    read_all(sign, out, 1);
    read_all(size, out + 1, 1);
    assert_true(out[0] == 0 && out[1] == -INFINITY);
}

static void threads_change_no_bit(void **state) {
    (void)state;
    double *first = malloc((size_t)8 * 12 * 12 * sizeof(double)), *then = malloc((size_t)8 * 12 * 12 * sizeof(double));
    for (int threads = 1; threads <= 3; threads += 2) {
        assert_ok(tn_set_num_threads(threads));
        tn_manual_seed(11);
        TN_SCOPE;
        tn_tensor *x = random_matrix(8, 12, 12), *v;
        tn_linalg_eigh(x, NULL, &v);
        read_all(v, threads == 1 ? first : then, 8 * 12 * 12);
    }
    assert_memory_equal(first, then, 8 * 12 * 12 * sizeof(double));
    free(first);
    free(then);
}

static void wrong_arguments_yield_error_tensors(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *q, *r, *s, *v = tn_ones((int64_t[]){3}, 1, TN_F32);
    tn_linalg_qr(v, &q, &r);
    assert_int_equal(tn_status_of(q), TN_ERR_SHAPE);
    assert_int_equal(tn_status_of(r), TN_ERR_SHAPE);
    tn_linalg_svd(NULL, false, NULL, &s, NULL);
    assert_int_equal(tn_status_of(s), TN_ERR_ARGUMENT);
    tn_tensor *half = tn_cast(tn_ones((int64_t[]){3, 3}, 2, TN_F32), TN_BF16);
    assert_int_equal(tn_status_of(tn_linalg_inv(half)), TN_ERR_DTYPE);
}

/* Nobody calls linalg_qr_packed: errors name what was called, and the shapes. */
static void errors_name_the_function_and_the_shapes(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *a = NULL, *b = NULL, *wide = tn_zeros(TN_DIMS(2, 3), TN_F32), *two = tn_zeros(TN_DIMS(2, 2), TN_F32);
    tn_linalg_eigh(wide, &a, &b);
    assert_int_equal(tn_status_of(a), TN_ERR_SHAPE);
    assert_non_null(strstr(tn_error(), "linalg_eigh: requires a square matrix, or a batch of such, not [2, 3]"));
    tn_linalg_slogdet(wide, &a, NULL);
    assert_int_equal(tn_status_of(a), TN_ERR_SHAPE);
    assert_non_null(strstr(tn_error(), "linalg_slogdet: requires a square matrix"));
    assert_int_equal(tn_status_of(tn_linalg_solve(two, tn_zeros(TN_DIMS(3, 1), TN_F32))), TN_ERR_SHAPE);
    assert_non_null(strstr(tn_error(), "f32 [2, 2] and f32 [3, 1] do not fit together: B must be"));
    assert_int_equal(tn_status_of(tn_linalg_solve(two, tn_zeros(TN_DIMS(3), TN_F32))), TN_ERR_SHAPE);
    assert_non_null(strstr(tn_error(), "f32 [2, 2] and f32 [3] do not fit together: a vector must"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(qr_gives_the_matrix_back),
        cmocka_unit_test(lu_gives_the_matrix_back),
        cmocka_unit_test(eigenvectors_diagonalize),
        cmocka_unit_test(eigenvectors_of_any_matrix_diagonalize),
        cmocka_unit_test(eigenvectors_of_any_matrix_have_gradients),
        cmocka_unit_test(eigenvectors_of_small_blocks_have_all_digits),
        cmocka_unit_test(full_matrices_are_completed),
        cmocka_unit_test(singular_vectors_diagonalize),
        cmocka_unit_test(low_rank_has_whole_factors),
        cmocka_unit_test(systems_are_solved),
        cmocka_unit_test(undefined_is_nan_in_its_matrix),
        cmocka_unit_test(threads_change_no_bit),
        cmocka_unit_test(wrong_arguments_yield_error_tensors),
        cmocka_unit_test(errors_name_the_function_and_the_shapes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
