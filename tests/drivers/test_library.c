/* test_library.c — matrix products and factorizations by a library of the system: only when asked for, right for every
 * layout, and our own bits again afterwards.
 *
 * tests/fakes/blas.c stands in for OpenBLAS. With TRUNNION_TEST_LIBRARY=openblas (mkl, …) the same is asked of the
 * real one, which must then be there. A library stays loaded, so each test is a process of its own. */
#include "device_support.h"

#include <math.h>

#include "trunnion/kernels.h"
#include "trunnion/linalg.h"
#include "trunnion/ops.h"
#include "trunnion/tensor.h"

static const char *real_library(void) { return tn_env("TRUNNION_TEST_LIBRARY"); }

/* ---- products ---------------------------------------------------------------------------------------------------- */

static tn_tensor *random_of(int rank, const int64_t *shape, tn_dtype dtype) {
    tn_tensor *x = tn_randn(shape, rank);
    return dtype == TN_F32 ? x : tn_cast(x, dtype);
}

/* What a test multiplies: every layout that the kernel may meet. */
typedef struct shape {
    int64_t batch, m, n, k;
    bool a_turned, b_turned, joined, wide; /* operands are views of transposes; relu(a·b + bias); f64 */
} shape;

static const shape shapes[] = {
    {1, 3, 5, 7, false, false, false, false},      {1, 1, 64, 300, false, true, false, false},
    {1, 300, 1, 64, true, false, false, false},    {2, 17, 33, 65, false, true, false, false},
    {5, 40, 24, 16, true, true, false, true},      {1, 530, 600, 40, false, false, true, false},
    {3, 33, 520, 20, false, true, true, false},    {1, 200, 180, 260, true, false, true, false},
    {1, 190, 170, 150, false, false, false, true}, {1, 1, 1, 1, false, false, true, false},
};

static tn_tensor *operand(int64_t batch, int64_t rows, int64_t columns, bool turned, tn_dtype dtype) {
    const int64_t plain[] = {batch, rows, columns}, other[] = {batch, columns, rows};
    tn_tensor *x = random_of(3, turned ? other : plain, dtype);
    assert_ok(tn_eval(&x, 1));
    return turned ? tn_transpose(x, 1, 2) : x;
}

static void read_all(tn_tensor *y, double *out, int64_t count, bool wide) {
    float *single = tn_mem_alloc((size_t)count * sizeof *single);
    assert_ok(tn_read(y, wide ? (void *)out : (void *)single, (size_t)count * (wide ? sizeof *out : sizeof *single)));
    for (int64_t i = 0; i < count && !wide; i++)
        out[i] = (double)single[i];
    tn_mem_free(single);
}

/* The product by our kernels and by `library`; the plan's words tell who computed. */
static void compare(const shape *s, const char *library) {
    int64_t count = s->batch * s->m * s->n;
    double *own = tn_mem_alloc((size_t)count * sizeof *own), *theirs = tn_mem_alloc((size_t)count * sizeof *theirs);
    double *again = tn_mem_alloc((size_t)count * sizeof *again), *results[] = {own, theirs, again};
    const char *who[] = {"none", library, NULL};
    tn_dtype dtype = s->wide ? TN_F64 : TN_F32;
    {
        TN_SCOPE;
        tn_tensor *a = operand(s->batch, s->m, s->k, s->a_turned, dtype);
        tn_tensor *b = operand(s->batch, s->k, s->n, s->b_turned, dtype);
        tn_tensor *bias = random_of(1, (int64_t[]){s->n}, dtype);
        for (int i = 0; i < 3; i++) {
            assert_ok(tn_set_library(who[i]));
            tn_tensor *y = tn_matmul(a, b);
            if (s->joined) y = tn_relu(tn_add(y, bias));
            assert_ok(tn_eval(&y, 1));
            char *words = tn_explain_last(), by[40];
            snprintf(by, sizeof by, " by %s", library);
            bool able = !s->wide || strcmp(library, "onednn") != 0; /* which has no product in f64 */
            if ((strstr(words, by) != NULL) != (i == 1 && able)) fail_msg("library %s: %s", tn_get_library(), words);
            tn_text_free(words);
            read_all(y, results[i], count, s->wide);
        }
    }
    double unit = s->wide ? 0x1p-53 : 0x1p-24, worst = 0;
    for (int64_t i = 0; i < count; i++) {
        assert_true(own[i] == again[i]);
        worst = fmax(worst, fabs(own[i] - theirs[i]));
    }
    double bound = 2 * unit * (double)s->k * 16; /* |a|, |b| < 4 or so: every rounding of every sum at its worst */
    if (!(worst <= bound))
        fail_msg("[%lld,%lld,%lld]: off by %g", (long long)s->m, (long long)s->n, (long long)s->k, worst);
    tn_mem_free(own);
    tn_mem_free(theirs);
    tn_mem_free(again);
}

static void compare_all(const char *library) {
    tn_manual_seed(7);
    for (int threads = 1; threads <= 3; threads += 2) {
        assert_ok(tn_set_num_threads(threads));
        for (size_t i = 0; i < TN_COUNT(shapes); i++)
            compare(&shapes[i], library);
    }
}

/* ---- factorizations ---------------------------------------------------------------------------------------------- */

enum { MOST_FACTORS = 3 };

static int by_svd(tn_tensor *x, tn_tensor **out) { return tn_linalg_svd(x, false, &out[0], &out[1], &out[2]), 3; }
static int by_qr(tn_tensor *x, tn_tensor **out) { return tn_linalg_qr(x, &out[0], &out[1]), 2; }
static int by_eigh(tn_tensor *x, tn_tensor **out) { return tn_linalg_eigh(x, &out[0], &out[1]), 2; }
static int by_slogdet(tn_tensor *x, tn_tensor **out) { return tn_linalg_slogdet(x, &out[0], &out[1]), 2; }
static int by_cholesky(tn_tensor *x, tn_tensor **out) { return out[0] = tn_linalg_cholesky(x), 1; }
static int by_solve(tn_tensor *x, tn_tensor **out) {
    return out[0] = tn_linalg_solve(x, tn_narrow(tn_sin(x), -1, 0, 5)), 1;
}

static const struct factorization {
    const char *name;
    int (*of)(tn_tensor *x, tn_tensor **out);
    bool square;
} factorizations[] = {{"svd", by_svd, false},          {"qr", by_qr, false},
                      {"eigh", by_eigh, true},         {"slogdet", by_slogdet, true},
                      {"cholesky", by_cholesky, true}, {"solve", by_solve, true}};
static const int64_t extents[][2] = {{48, 48}, {40, 64}, {64, 40}, {32, 32}, {31, 31}};

/* 1, 2, 3 … along the diagonal and little beside it: well conditioned, with values far apart, so vectors are sharp. */
static tn_tensor *spread_matrix(int64_t m, int64_t n) {
    tn_tensor *noise = tn_mul_scalar(random_of(3, (int64_t[]){3, m, n}, TN_F64), 0.01);
    tn_tensor *along =
        tn_expand(tn_cast(tn_reshape(tn_arange(1, (double)n + 1, 1, TN_I64), (int64_t[]){1, n}, 2), TN_F64),
                  (int64_t[]){m, n}, 2);
    tn_tensor *x = tn_add(noise, tn_mul(along, tn_eye(m, n, TN_F64)));
    if (m == n) x = tn_mul_scalar(tn_add(x, tn_transpose(x, 1, 2)), 0.5);
    assert_ok(tn_eval(&x, 1));
    return x;
}

/* `used`: those of which the library's name has to stand in the plan's words, from the least extent on. */
static void factor_beside(const struct factorization *f, const int64_t *extent, const char *library, bool used) {
    const char *who[] = {"none", library, "none"};
    TN_SCOPE;
    tn_tensor *x = spread_matrix(extent[0], extent[1]), *all[3][MOST_FACTORS];
    int count = 0;
    for (int i = 0; i < 3; i++) {
        assert_ok(tn_set_library(who[i]));
        count = f->of(x, all[i]);
        assert_ok(tn_eval(&all[i][0], 1));
        char *words = tn_explain_last(), by[40];
        snprintf(by, sizeof by, " by %s", library);
        bool expected = i == 1 && used && tn_min64(extent[0], extent[1]) >= 32;
        if ((strstr(words, by) != NULL) != expected) fail_msg("%s: %s", f->name, words);
        tn_text_free(words);
        assert_ok(tn_eval(all[i], (size_t)count));
    }
    for (int i = 0; i < count; i++) {
        double apart = NAN, changed = NAN;
        tn_tensor *most = tn_amax(tn_abs(tn_sub(all[0][i], all[1][i])), TN_ALL, false);
        assert_ok(tn_read(most, &apart, sizeof apart));
        assert_ok(tn_read(tn_amax(tn_abs(tn_sub(all[0][i], all[2][i])), TN_ALL, false), &changed, sizeof changed));
        assert_true(changed == 0);
        double bound = 0x1p-53 * 64 * 64 * 64; /* extents, of values up to 64, gaps of about 1 */
        if (!(apart <= bound)) fail_msg("%s, result %d: off by %g", f->name, i, apart);
    }
}

static void factor_all(const char *library, bool used) {
    tn_manual_seed(11);
    for (int threads = 1; threads <= 3; threads += 2) {
        assert_ok(tn_set_num_threads(threads));
        for (size_t i = 0; i < TN_COUNT(factorizations); i++)
            for (size_t j = 0; j < TN_COUNT(extents); j++)
                if (!factorizations[i].square || extents[j][0] == extents[j][1])
                    factor_beside(&factorizations[i], extents[j], library, used);
    }
}

/* What has no result has none by a library either: NaN where a matrix is lost or not positive definite. */
static void factor_lost(const char *library) {
    assert_ok(tn_set_library(library));
    TN_SCOPE;
    tn_tensor *x = spread_matrix(40, 40), *out[MOST_FACTORS], *nan = tn_mul_scalar(x, NAN);
    for (size_t i = 0; i < TN_COUNT(factorizations); i++) {
        double sum = 0;
        (void)factorizations[i].of(strcmp(factorizations[i].name, "cholesky") == 0 ? tn_neg(x) : nan, out);
        assert_ok(tn_read(tn_sum(out[0], TN_ALL, false), &sum, sizeof sum));
        if (!isnan(sum)) fail_msg("%s: %g", factorizations[i].name, sum);
    }
}

/* Runs the part of this name in a process of its own: what is loaded there is gone afterwards. */
static void apart(const char *part) {
    char command[100];
    snprintf(command, sizeof command, "/proc/%d/exe %s", (int)getpid(), part);
    if (system(command) != 0) fail_msg("%s failed", part);
}

/* ---- the tests --------------------------------------------------------------------------------------------------- */

static void with_stand_in(void **state) {
    (void)state;
    setenv("TRUNNION_OPENBLAS_LIB", build_fake("blas.c", "libfakeblas.so", ""), 1);
    compare_all("openblas");
    tn_library_info info = {.struct_size = sizeof info};
    assert_ok(tn_set_library("auto"));
    assert_ok(tn_library_at(0, &info));
    assert_true(info.in_use && info.available);
    assert_string_equal(info.description, "a stand-in, one thread"); /* its own threads were turned off */
    assert_string_equal(tn_get_library(), "openblas");
}

/* The process has chosen a library, and a device computes with own kernels. */
static void with_own_device(void **state) {
    (void)state;
    tn_device_options o = TN_DEVICE_DEFAULTS;
    tn_device *device;
    setenv("TRUNNION_OPENBLAS_LIB", build_fake("blas.c", "libfakeblas.so", ""), 1);
    assert_ok(tn_set_library("openblas"));
    for (o.vendor = 0; o.vendor < 2; o.vendor++) {
        assert_ok(tn_device_open("cpu", &o, NULL, &device));
        assert_ok(tn_set_current_device(device));
        {
            TN_SCOPE;
            tn_tensor *a = operand(1, 40, 50, false, TN_F32), *b = operand(1, 50, 60, false, TN_F32);
            tn_tensor *y = tn_matmul(a, b);
            assert_ok(tn_eval(&y, 1));
            char *words = tn_explain_last();
            if ((strstr(words, " by openblas") != NULL) != (o.vendor == 0)) fail_msg("%d: %s", o.vendor, words);
            tn_text_free(words);
        }
        tn_clear_plans();
        assert_ok(tn_set_current_device(NULL));
        tn_device_close(device);
    }
}

static void with_prefixed_stand_in(void **state) {
    (void)state;
    setenv("TRUNNION_OPENBLAS_LIB", build_fake("blas.c", "libfakeblas64.so", "-DPREFIXED"), 1);
    compare_all("openblas");
}

static void with_wide_stand_in(void **state) {
    (void)state;
    setenv("TRUNNION_OPENBLAS_LIB", build_fake("blas.c", "libwideblas.so", "-DWIDE"), 1);
    compare_all("openblas");
}

/* What the library says that it cannot do is computed all the same. */
static void with_refusing_stand_in(void **state) {
    (void)state;
    setenv("TRUNNION_ONEDNN_LIB", build_fake("blas.c", "libfakednnl.so", "-DREFUSES"), 1);
    compare_all("onednn");
}

static void with_wrong_stand_in(void **state) {
    (void)state;
    setenv("TRUNNION_OPENBLAS_LIB", build_fake("blas.c", "libwrongblas.so", "-DWRONG"), 1);
    assert_int_equal(tn_set_library("openblas"), TN_ERR_UNAVAILABLE);
    assert_non_null(strstr(tn_error(), "wrong"));
    assert_string_equal(tn_get_library(), "none");
    tn_library_info info = {.struct_size = sizeof info};
    assert_ok(tn_library_at(0, &info));
    assert_false(info.available);
    assert_string_equal(info.reason_code, "init_failed");
}

/* The program outlives it, and "auto" passes it over. */
static void with_crashing_stand_in(void **state) {
    (void)state;
    tn_library_info info = {.struct_size = sizeof info};
    setenv("TRUNNION_OPENBLAS_LIB", build_fake("blas.c", "libcrashingblas.so", "-DCRASHES"), 1);
    setenv("TRUNNION_LIBRARY", "openblas", 1);
    assert_string_equal(tn_get_library(), "none");
    assert_int_equal(tn_set_library("openblas"), TN_ERR_UNAVAILABLE);
    assert_non_null(strstr(tn_error(), "crashed"));
    assert_ok(tn_library_at(0, &info));
    assert_false(info.available);
    assert_string_equal(info.reason_code, "crashed");
    setenv("TRUNNION_BLIS_LIB", build_fake("blas.c", "libotherblas.so", ""), 1);
    assert_ok(tn_set_library("auto"));
    assert_string_equal(tn_get_library(), "blis");
}

static void with_environment(void **state) {
    (void)state;
    setenv("TRUNNION_OPENBLAS_LIB", build_fake("blas.c", "libfakeblas.so", ""), 1);
    setenv("TRUNNION_LIBRARY", "openblas", 1);
    setenv("OPENBLAS_NUM_THREADS", "5", 1);
    assert_string_equal(tn_get_library(), "openblas");
    assert_string_equal(getenv("OPENBLAS_NUM_THREADS"), "5");
    assert_null(getenv("OPENBLAS_CORETYPE"));
}

/* One whose eigenvalues are right where it is tried and come to no end afterwards, and whose systems are wrong. */
static void with_factoring_stand_in(void **state) {
    (void)state;
    setenv("TRUNNION_OPENBLAS_LIB", build_fake("blas.c", "libfakelapack.so", "-DFACTORS"), 1);
    for (size_t i = 0; i < TN_COUNT(factorizations); i++) {
        const char *name = factorizations[i].name;
        bool used = strcmp(name, "eigh") == 0 || strcmp(name, "cholesky") == 0;
        if (factorizations[i].square) factor_beside(&factorizations[i], extents[0], "openblas", used);
    }
}

static void with_real(void **state) {
    (void)state;
    unsetenv("TRUNNION_OPENBLAS_LIB");
    unsetenv("TRUNNION_MKL_LIB");
    unsetenv("TRUNNION_ONEDNN_LIB");
    unsetenv("TRUNNION_BLIS_LIB");
    assert_ok(tn_set_library(real_library()));
    compare_all(real_library());
    bool has_lapack = strcmp(real_library(), "openblas") == 0 || strcmp(real_library(), "mkl") == 0;
    factor_all(real_library(), has_lapack);
    factor_lost(real_library());
}

static void products_by_a_library_agree(void **state) {
    (void)state;
    apart("stand_in");
    apart("own_device");
    apart("prefixed");
    apart("wide");
    apart("refusing");
}

static void factorizations_by_a_library_agree(void **state) {
    (void)state;
    apart("factoring");
}

static void a_wrong_library_is_refused(void **state) {
    (void)state;
    apart("wrong");
    apart("crashing");
}

static void environment_chooses_and_stays(void **state) {
    (void)state;
    apart("environment");
}

static void real_library_agrees(void **state) {
    (void)state;
    if (!real_library()) skip();
    apart("real");
}

static void absence_and_names_are_told(void **state) {
    (void)state;
    tn_library_info info = {.struct_size = sizeof info};
    assert_int_equal(tn_set_library("atlas"), TN_ERR_ARGUMENT);
    assert_non_null(strstr(tn_error(), "openblas"));
    assert_int_equal(tn_set_library("mkl"), TN_ERR_UNAVAILABLE);
    assert_non_null(strstr(tn_error(), "TRUNNION_MKL_LIB"));
    assert_int_equal(tn_set_library("auto"), TN_ERR_UNAVAILABLE);
    assert_int_equal(tn_library_at(tn_library_count(), &info), TN_ERR_ARGUMENT);
    for (int i = 0; i < tn_library_count(); i++) {
        assert_ok(tn_library_at(i, &info));
        assert_false(info.available || info.in_use);
        assert_string_equal(info.reason_code, "library_not_found");
    }
    tn_device *cpu;
    tn_device_options options = TN_DEVICE_DEFAULTS;
    options.library = "atlas";
    assert_int_not_equal(tn_device_open("cpu", &options, NULL, &cpu), TN_OK);
    assert_ok(tn_set_library("none"));
    assert_string_equal(tn_get_library(), "none");
}

static int prepare(void **state) {
    static const char *const places[] = {"OPENBLAS", "MKL", "ONEDNN", "BLIS", "ACCELERATE"};
    for (size_t i = 0; i < TN_COUNT(places); i++) {
        char name[40];
        snprintf(name, sizeof name, "TRUNNION_%s_LIB", places[i]);
        setenv(name, "/nowhere/at-all.so", 1);
    }
    unsetenv("TRUNNION_LIBRARY");
    return clean_environment(state);
}

static int run_part(const char *name) {
    const struct CMUnitTest parts[] = {
        {"stand_in", with_stand_in, NULL, NULL, NULL},
        {"own_device", with_own_device, NULL, NULL, NULL},
        {"prefixed", with_prefixed_stand_in, NULL, NULL, NULL},
        {"wide", with_wide_stand_in, NULL, NULL, NULL},
        {"refusing", with_refusing_stand_in, NULL, NULL, NULL},
        {"crashing", with_crashing_stand_in, NULL, NULL, NULL},
        {"wrong", with_wrong_stand_in, NULL, NULL, NULL},
        {"factoring", with_factoring_stand_in, NULL, NULL, NULL},
        {"environment", with_environment, NULL, NULL, NULL},
        {"real", with_real, NULL, NULL, NULL},
    };
    cmocka_set_test_filter(name);
    return cmocka_run_group_tests(parts, prepare, NULL);
}

int main(int argc, char **argv) {
    if (argc > 1) return run_part(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(absence_and_names_are_told),        cmocka_unit_test(products_by_a_library_agree),
        cmocka_unit_test(factorizations_by_a_library_agree), cmocka_unit_test(a_wrong_library_is_refused),
        cmocka_unit_test(environment_chooses_and_stays),     cmocka_unit_test(real_library_agrees),
    };
    return cmocka_run_group_tests(tests, prepare, NULL);
}
