/* test_functions.c — the functions of functions.h agree with PyTorch's, and refuse what does not fit.
 *
 * tests/golden/functions.h holds calls, results and gradients that torch_functions.py computed in f64. Each case runs
 * in f64, where only the nine digits of the file may differ, and in f32. Inputs follow from formulas. */
#include "test_support.h"

#include <math.h>

#include "trunnion/trunnion.h"

enum { MOST_INPUTS = 4 };

typedef struct golden_input {
    char kind; /* f, p: floats; i: integers below `below`; b: bools */
    int64_t below;
    int rank;
    int64_t shape[TN_MAX_RANK];
    const double *gradient; /* NULL: none is compared */
} golden_input;

typedef struct golden_case {
    const char *name;
    tn_tensor *(*call)(tn_tensor *const *x);
    int inputs;
    golden_input in[MOST_INPUTS];
    int rank;
    int64_t shape[TN_MAX_RANK];
    const double *out;
} golden_case;

/* ---- words of the cases ------------------------------------------------------------------------------------------ */

#define LIST(...) (tn_tensor *[]){__VA_ARGS__}, (int)(sizeof((tn_tensor *[]){__VA_ARGS__}) / sizeof(tn_tensor *))

typedef tn_tensor *two_more(const tn_tensor *x, tn_tensor **first, tn_tensor **second);

/* The first (0) or second (1) further result of f. */
static tn_tensor *second(two_more *f, const tn_tensor *x, int which) {
    tn_tensor *more[2];
    tn_free(tn_retain(f(x, &more[0], &more[1])));
    return more[which];
}

static tn_tensor *median(const tn_tensor *x, tn_tensor **first, tn_tensor **last) {
    *last = NULL;
    return tn_median(x, 1, false, first);
}

static tn_tensor *cummax(const tn_tensor *x, tn_tensor **first, tn_tensor **last) {
    *last = NULL;
    return tn_cummax(x, 1, first);
}

static tn_tensor *pool_places(const tn_tensor *x, const int64_t *kernel) {
    tn_tensor *places;
    tn_max_pool(x, 2, kernel, NULL, NULL, NULL, true, &places);
    return places;
}

/* The last of two grids. */
static tn_tensor *grid(tn_tensor *a, tn_tensor *b, bool xy) {
    tn_tensor *out[2];
    assert_ok(tn_meshgrid((tn_tensor *[]){a, b}, 2, xy, out));
    return out[1];
}

static tn_tensor *numbers(const char *text) {
    int64_t list[8], count = 0;
    for (char *end; *text; text = end, count++)
        list[count] = strtoll(text, &end, 10);
    return tn_from_data(list, &count, 1, TN_I64);
}

#include "tests/golden/functions.h"

/* ---- comparing --------------------------------------------------------------------------------------------------- */

static int64_t elements(const int64_t *shape, int rank) {
    int64_t n = 1;
    for (int d = 0; d < rank; d++)
        n *= shape[d];
    return n;
}

static double formula(const golden_input *in, int64_t i, int k) {
    if (in->kind == 'f') return (double)((i * 37 + k * 11) % 41 - 20) / 8;
    if (in->kind == 'p') return (double)((i * 37 + k * 11) % 41 + 2) / 8;
    if (in->kind == 'i') return (double)((i * 7 + k) % in->below);
    return (i * 5 + k) % 3 == 0;
}

static tn_tensor *input_of(const golden_input *in, int k, tn_dtype floating) {
    int64_t n = elements(in->shape, in->rank);
    double *v = malloc((size_t)(n + 1) * sizeof *v);
    assert_non_null(v);
    for (int64_t i = 0; i < n; i++)
        v[i] = formula(in, i, k);
    tn_dtype t = in->kind == 'i' ? TN_I64 : in->kind == 'b' ? TN_BOOL : floating;
    tn_tensor *x = tn_from_data(v, in->shape, in->rank, TN_F64);
    x = t == TN_F64 ? x : tn_cast(x, t);
    free(v);
    assert_ok(tn_eval(&x, 1));
    return x;
}

static void compare(const char *name, const char *what, const tn_tensor *is, const int64_t *shape, int rank,
                    const double *want, tn_dtype floating) {
    int64_t n = elements(shape, rank);
    if (tn_status_of(is) != TN_OK) fail_msg("%s, %s: %s", name, what, tn_error());
    bool same = tn_rank(is) == rank;
    for (int d = 0; same && d < rank; d++)
        same = tn_size(is, d) == shape[d];
    if (!same) fail_msg("%s, %s: another shape than PyTorch's", name, what);
    double *v = malloc((size_t)(n + 1) * sizeof *v), most = 0;
    assert_non_null(v);
    tn_tensor *wide = tn_cast(is, TN_F64);
    if (tn_read(wide, v, (size_t)n * sizeof *v) != TN_OK) fail_msg("%s, %s: %s", name, what, tn_error());
    for (int64_t i = 0; i < n; i++)
        if (isfinite(want[i]) && fabs(want[i]) > most) most = fabs(want[i]);
    /* f32: a few hundred roundings of 6e-8, as far as the greatest element magnifies them */
    double relative = floating == TN_F64 ? 2e-8 : 4e-5,
           absolute = relative * (floating == TN_F64 ? 0.1 : 1) * fmax(1, most);
    for (int64_t i = 0; i < n; i++) {
        bool agree = (isnan(v[i]) && isnan(want[i])) || v[i] == want[i] ||
                     fabs(v[i] - want[i]) <= relative * fabs(want[i]) + absolute;
        if (!agree)
            fail_msg("%s, %s (%s): [%lld] is %.9g, PyTorch has %.9g", name, what, tn_dtype_name(floating), (long long)i,
                     v[i], want[i]);
    }
    free(v);
}

static void run_case(const golden_case *c, tn_dtype floating) {
    TN_SCOPE;
    tn_tensor *x[MOST_INPUTS] = {0}, *leaf[MOST_INPUTS], *found[MOST_INPUTS];
    int leaves = 0, from[MOST_INPUTS];
    for (int k = 0; k < c->inputs; k++) {
        x[k] = input_of(&c->in[k], k, floating);
        if (!c->in[k].gradient) continue;
        assert_ok(tn_set_requires_grad(x[k], true));
        from[leaves] = k;
        leaf[leaves++] = x[k];
    }
    tn_tensor *y = c->call(x);
    compare(c->name, "result", y, c->shape, c->rank, c->out, floating);
    if (leaves == 0) return;
    int64_t n = elements(c->shape, c->rank);
    double *seed = malloc((size_t)(n + 1) * sizeof *seed);
    assert_non_null(seed);
    for (int64_t i = 0; i < n; i++)
        seed[i] = (double)((i * 29 + 5) % 17 - 8) / 4;
    tn_tensor *dy = tn_cast(tn_from_data(seed, c->shape, c->rank, TN_F64), tn_dtype_of(y));
    free(seed);
    if (tn_gradients(&y, 1, &dy, leaf, leaves, false, found) != TN_OK) fail_msg("%s: %s", c->name, tn_error());
    for (int k = 0; k < leaves; k++) {
        char what[32];
        snprintf(what, sizeof what, "gradient %d", from[k]);
        compare(c->name, what, found[k], c->in[from[k]].shape, c->in[from[k]].rank, c->in[from[k]].gradient, floating);
    }
}

static void functions_are_pytorchs_in_f64(void **state) {
    (void)state;
    for (size_t i = 0; i < TN_COUNT(golden_cases); i++)
        run_case(&golden_cases[i], TN_F64);
}

static void functions_are_pytorchs_in_f32(void **state) {
    (void)state;
    for (size_t i = 0; i < TN_COUNT(golden_cases); i++)
        run_case(&golden_cases[i], TN_F32);
}

/* ---- what is refused --------------------------------------------------------------------------------------------- */

/* Refused where it is recorded, or (an index that is computed) where it is evaluated. */
static void refuses(tn_tensor *t, tn_status code, const char *words) {
    if ((tn_status_of(t) != TN_OK ? tn_status_of(t) : tn_eval(&t, 1)) != code)
        fail_msg("\"%s\": status %d: %s", words, (int)tn_status_of(t), tn_error());
    if (!strstr(tn_error(), words)) fail_msg("\"%s\" is not in: %s", words, tn_error());
}

static void arguments_that_do_not_fit_are_refused(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *m = tn_ones(TN_DIMS(3, 4), TN_F32), *v = tn_ones(TN_DIMS(4), TN_F32), *i = numbers("0 1 7");
    tn_tensor *mask = tn_ones(TN_DIMS(2), TN_BOOL), *image = tn_ones(TN_DIMS(1, 2, 4, 4), TN_F32);
    refuses(tn_index(m, LIST(mask)), TN_ERR_SHAPE, "the mask has extent 2");
    refuses(tn_index(m, LIST(v)), TN_ERR_DTYPE, "entry 0 must be bool or an integer type");
    refuses(tn_index(m, LIST(NULL, NULL, i)), TN_ERR_SHAPE, "too many indices");
    refuses(tn_index(m, LIST(i)), TN_ERR_ARGUMENT, "out of bounds");
    refuses(tn_index(m, LIST(NULL, i)), TN_ERR_ARGUMENT, "out of bounds");
    refuses(tn_index_put(m, LIST(numbers("0 1")), tn_ones(TN_DIMS(3), TN_F32), false), TN_ERR_SHAPE, "expand");
    refuses(tn_bincount(numbers("1 -1"), NULL, 0), TN_ERR_ARGUMENT, "at least 0");
    refuses(tn_bincount(v, NULL, 0), TN_ERR_DTYPE, "x is f32; pass");
    refuses(tn_inner(m, tn_ones(TN_DIMS(2, 1), TN_F32)), TN_ERR_SHAPE, "inner: the last extents are 4 and 1");
    refuses(tn_inner(tn_ones(TN_DIMS(1, 1, 1, 1, 1, 2), TN_F32), tn_ones(TN_DIMS(1, 1, 1, 1, 1, 2), TN_F32)),
            TN_ERR_SHAPE, "at most 8 dims");
    refuses(tn_tril_indices(4, INT64_MAX / 2 + 1, INT64_MAX), TN_ERR_ARGUMENT, "from 0 to 2^29");
    if (!TEST_SANITIZED) /* the address sanitizer ends a process that asks for so much */
        refuses(tn_triu_indices(1 << 20, 1 << 29, INT64_MIN), TN_ERR_MEMORY, "no memory");
    refuses(tn_histc(v, 0, 0, 1), TN_ERR_ARGUMENT, "bins is 0");
    refuses(tn_geometric(1, TN_DIMS(3)), TN_ERR_ARGUMENT, "geometric: p is 1; it must lie between 0 and 1");
    refuses(tn_repeat_interleave_by(v, numbers("1 2"), 0), TN_ERR_SHAPE, "one for each of the 4 slices");
    refuses(tn_einsum("ij,jk", LIST(m)), TN_ERR_ARGUMENT, "more than 1 operands");
    refuses(tn_einsum("ij->ik", LIST(m)), TN_ERR_ARGUMENT, "in no operand");
    refuses(tn_einsum("ijk", LIST(m)), TN_ERR_SHAPE, "stand for 3 dims");
    refuses(tn_einsum("i1", LIST(m)), TN_ERR_ARGUMENT, "not a list");
    refuses(tn_einsum("ij,ij", LIST(m, tn_t(m))), TN_ERR_SHAPE, "extents 3 and 4");
    refuses(tn_einsum(NULL, LIST(m)), TN_ERR_ARGUMENT, "an equation");
    refuses(tn_tensordot(m, m, TN_DIMS(0), TN_DIMS(1)), TN_ERR_SHAPE, "tensordot");
    refuses(tn_diagonal(m, 0, 1, 1), TN_ERR_SHAPE, "two different dims");
    refuses(tn_unfold(v, 0, 5, 1), TN_ERR_ARGUMENT, "do not fit extent 4");
    refuses(tn_pad_by(v, (int64_t[]){4, 0}, 2, TN_PAD_REFLECT), TN_ERR_SHAPE, "too large for extent 4");
    refuses(tn_kthvalue(v, 5, 0, false, NULL), TN_ERR_ARGUMENT, "from 1 to 4");
    refuses(tn_quantile(m, tn_ones(TN_DIMS(1), TN_F64), 0, false, TN_QUANTILE_LINEAR), TN_ERR_DTYPE, "quantile");
    refuses(tn_median(tn_zeros(TN_DIMS(2, 0), TN_F32), 1, false, NULL), TN_ERR_SHAPE, "no elements");
    refuses(tn_cdist(m, tn_t(m), 2), TN_ERR_SHAPE, "equal d");
    refuses(tn_ctc_loss(m, i, i, i, 0, TN_REDUCTION_MEAN, false), TN_ERR_SHAPE, "ctc_loss");
    refuses(tn_max_pool(image, 2, (int64_t[]){2, 2}, NULL, (int64_t[]){2, 0}, NULL, false, NULL), TN_ERR_ARGUMENT,
            "half");
    refuses(tn_max_pool(image, 2, (int64_t[]){5, 2}, NULL, NULL, NULL, false, NULL), TN_ERR_SHAPE,
            "does not fit extent 4");
    refuses(tn_avg_pool(image, 1, (int64_t[]){1}, NULL, NULL, false, true, 0), TN_ERR_SHAPE, "rank 4");
    refuses(tn_interpolate(image, TN_DIMS(0, 2), NULL, TN_INTERPOLATE_NEAREST, false), TN_ERR_SHAPE, "interpolate");
    refuses(tn_grid_sample(image, m, TN_GRID_BILINEAR, TN_GRID_ZEROS, false), TN_ERR_SHAPE, "grid_sample");
    refuses(tn_pixel_shuffle(image, 2), TN_ERR_SHAPE, "does not divide");
    /* numbers whose products would overflow */
    refuses(tn_pixel_shuffle(image, INT64_C(1) << 32), TN_ERR_SHAPE, "pixel_shuffle");
    refuses(tn_interpolate(image, TN_DIMS(INT64_C(1) << 61, 2), NULL, TN_INTERPOLATE_LINEAR, false), TN_ERR_SHAPE,
            "interpolate");
    refuses(tn_max_pool(image, 2, (int64_t[]){INT64_MAX, 2}, NULL, NULL, (int64_t[]){INT64_MAX, 1}, false, NULL),
            TN_ERR_ARGUMENT, "invalid");
    refuses(tn_bincount(tn_full(TN_DIMS(1), 1e18, TN_I64), NULL, 0), TN_ERR_ARGUMENT, "impossible");
    refuses(tn_multinomial(v, 5, false), TN_ERR_ARGUMENT, "5 samples without replacement from 4");
    refuses(tn_exponential(0, TN_DIMS(2)), TN_ERR_ARGUMENT, "lambd is 0");
    refuses(tn_linalg_matrix_power(m, 2), TN_ERR_SHAPE, "square");
    refuses(tn_linalg_matrix_norm_of(m, 3, false), TN_ERR_ARGUMENT, "ord is 3");
    refuses(tn_nonzero(NULL), TN_ERR_ARGUMENT, "NULL");
}

/* With every pointer NULL. */
static void null_is_refused(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *m = tn_ones(TN_DIMS(1, 1, 4, 4), TN_F32), *more;
    refuses(tn_index(NULL, NULL, 0), TN_ERR_ARGUMENT, "NULL");
    refuses(tn_index(m, NULL, 1), TN_ERR_ARGUMENT, "list of indices is NULL");
    refuses(tn_index_put(m, NULL, 1, m, false), TN_ERR_ARGUMENT, "list of indices is NULL");
    refuses(tn_masked_scatter(m, m, NULL), TN_ERR_ARGUMENT, "NULL");
    refuses(tn_index_copy(m, 0, NULL, m), TN_ERR_ARGUMENT, "NULL");
    refuses(tn_unique(NULL, NULL, NULL), TN_ERR_ARGUMENT, "NULL");
    refuses(tn_cartesian_prod(NULL, 2), TN_ERR_ARGUMENT, "cartesian_prod");
    refuses(tn_block_diag(NULL, 2), TN_ERR_ARGUMENT, "block_diag");
    assert_int_equal(tn_meshgrid(NULL, 2, false, NULL), TN_ERR_ARGUMENT);
    refuses(tn_einsum("ij", NULL, 1), TN_ERR_ARGUMENT, "einsum");
    refuses(tn_tensordot(m, m, NULL, 1, NULL, 1), TN_ERR_SHAPE, "tensordot");
    refuses(tn_as_strided_scatter(m, m, NULL, 2, NULL, 2, 0), TN_ERR_ARGUMENT, "");
    refuses(tn_pad_by(m, NULL, 2, TN_PAD_REFLECT), TN_ERR_ARGUMENT, "list of pads is NULL");
    refuses(tn_max_pool(m, 2, NULL, NULL, NULL, NULL, false, &more), TN_ERR_ARGUMENT, "kernel size is NULL");
    refuses(more, TN_ERR_ARGUMENT, "kernel size is NULL");
    refuses(tn_lp_pool(m, 2, 2, NULL, NULL, false), TN_ERR_ARGUMENT, "kernel size is NULL");
    refuses(tn_adaptive_avg_pool(m, 2, NULL), TN_ERR_ARGUMENT, "output_size is NULL");
    refuses(tn_max_unpool(m, tn_zeros(TN_DIMS(1, 1, 4, 4), TN_I64), 2, NULL), TN_ERR_SHAPE, "max_unpool");
    refuses(tn_im2col(m, NULL, NULL, NULL, NULL), TN_ERR_ARGUMENT, "NULL");
    refuses(tn_col2im(m, NULL, NULL, NULL, NULL, NULL), TN_ERR_ARGUMENT, "NULL");
    refuses(tn_interpolate(m, NULL, 2, NULL, TN_INTERPOLATE_LINEAR, false), TN_ERR_SHAPE, "interpolate");
    refuses(tn_affine_grid(m, NULL, 4, false), TN_ERR_SHAPE, "affine_grid");
    refuses(tn_conv3d(m, NULL, NULL, NULL, NULL, NULL, 1), TN_ERR_ARGUMENT, "NULL");
    refuses(tn_exponential(1, NULL, 2), TN_ERR_ARGUMENT, "exponential");
}

static void an_error_is_handed_on_with_its_first_cause(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *bad = tn_failed(TN_ERR_STATE, "the first cause"), *inverse, *counts;
    refuses(tn_kron(bad, tn_ones(TN_DIMS(2), TN_F32)), TN_ERR_STATE, "the first cause");
    refuses(tn_unique(bad, &inverse, &counts), TN_ERR_STATE, "the first cause");
    refuses(inverse, TN_ERR_STATE, "the first cause");
    refuses(counts, TN_ERR_STATE, "the first cause");
    refuses(tn_cummax(bad, 0, &counts), TN_ERR_STATE, "the first cause");
    refuses(counts, TN_ERR_STATE, "the first cause");
}

/* ---- text -------------------------------------------------------------------------------------------------------- */

static tn_tensor *eighths(const int64_t *shape, int rank) {
    return input_of(&(golden_input){.kind = 'f', .rank = rank, .shape = {shape[0], rank > 1 ? shape[1] : 0, 2, 2}}, 0,
                    TN_F32);
}

static tn_tensor *of_three(double a, double b, double c) {
    const float v[] = {(float)a, (float)b, (float)c};
    return tn_from_data(v, TN_DIMS(3), TN_F32);
}

static void prints(const tn_tensor *x, const char *want) {
    char is[2000], part[12];
    size_t length, again;
    assert_ok(tn_tensor_text(x, is, sizeof is, &length));
    assert_string_equal(is, want);
    assert_int_equal(length, strlen(want));
    assert_ok(tn_tensor_text(x, part, sizeof part, &again)); /* a buffer that is too small */
    assert_int_equal(again, length);
    assert_int_equal(strncmp(part, want, sizeof part - 1), 0);
}

/* What PyTorch 2.15 prints. */
static void text_is_laid_out_as_pytorchs(void **state) {
    (void)state;
    TN_SCOPE;
    prints(eighths(TN_DIMS(2, 3)), "tensor([[-2.5000,  2.1250,  1.6250],\n"
                                   "        [ 1.1250,  0.6250,  0.1250]])");
    prints(tn_mul(eighths(TN_DIMS(5)), tn_scalar(1000)), "tensor([-2500.,  2125.,  1625.,  1125.,   625.])");
    prints(tn_full(NULL, 0, 3, TN_F32), "tensor(3.)");
    prints(of_three(1.5, NAN, -INFINITY), "tensor([1.5000,    nan,   -inf])");
    prints(tn_lt(tn_sub(tn_reshape(tn_arange(0, 2, 1, TN_F32), TN_DIMS(1, 2)), tn_scalar(1)), tn_scalar(0)),
           "tensor([[ True, False]])");
    prints(tn_reshape(tn_arange(-3, 3, 1, TN_I64), TN_DIMS(1, 2, 3)), "tensor([[[-3, -2, -1],\n"
                                                                      "         [ 0,  1,  2]]])");
    prints(tn_zeros(TN_DIMS(0, 3), TN_F32), "tensor([], size=(0, 3))");
    prints(tn_zeros(TN_DIMS(0), TN_F32), "tensor([])");
    prints(eighths(TN_DIMS(30)), "tensor([-2.5000,  2.1250,  1.6250,  1.1250,  0.6250,  0.1250, -0.3750, -0.8750,\n"
                                 "        -1.3750, -1.8750, -2.3750,  2.2500,  1.7500,  1.2500,  0.7500,  0.2500,\n"
                                 "        -0.2500, -0.7500, -1.2500, -1.7500, -2.2500,  2.3750,  1.8750,  1.3750,\n"
                                 "         0.8750,  0.3750, -0.1250, -0.6250, -1.1250, -1.6250])");
    prints(eighths(TN_DIMS(40, 30)), "tensor([[-2.5000,  2.1250,  1.6250,  ..., -0.6250, -1.1250, -1.6250],\n"
                                     "        [-2.1250,  2.5000,  2.0000,  ..., -0.2500, -0.7500, -1.2500],\n"
                                     "        [-1.7500, -2.2500,  2.3750,  ...,  0.1250, -0.3750, -0.8750],\n"
                                     "        ...,\n"
                                     "        [ 1.1250,  0.6250,  0.1250,  ..., -2.1250,  2.5000,  2.0000],\n"
                                     "        [ 1.5000,  1.0000,  0.5000,  ..., -1.7500, -2.2500,  2.3750],\n"
                                     "        [ 1.8750,  1.3750,  0.8750,  ..., -1.3750, -1.8750, -2.3750]])");
    prints(tn_zeros(TN_DIMS(2), TN_F32), "tensor([0., 0.])");
    prints(of_three(1, 2, 1e5), "tensor([1.0000e+00, 2.0000e+00, 1.0000e+05])");
    prints(tn_arange(0, 2000, 1, TN_I64), "tensor([   0,    1,    2,  ..., 1997, 1998, 1999])");
    prints(eighths(TN_DIMS(2, 2, 2, 2)), "tensor([[[[-2.5000,  2.1250],\n"
                                         "          [ 1.6250,  1.1250]],\n"
                                         "\n"
                                         "         [[ 0.6250,  0.1250],\n"
                                         "          [-0.3750, -0.8750]]],\n"
                                         "\n"
                                         "\n"
                                         "        [[[-1.3750, -1.8750],\n"
                                         "          [-2.3750,  2.2500]],\n"
                                         "\n"
                                         "         [[ 1.7500,  1.2500],\n"
                                         "          [ 0.7500,  0.2500]]]])");
    tn_tensor *leaf = tn_cast(eighths(TN_DIMS(2, 2)), TN_F64);
    assert_ok(tn_set_requires_grad(leaf, true));
    prints(leaf, "tensor([[-2.5000,  2.1250],\n        [ 1.6250,  1.1250]], dtype=f64, requires_grad=True)");
    prints(tn_cast(tn_full(TN_DIMS(1), 200, TN_F32), TN_U8), "tensor([200], dtype=u8)");
    assert_int_equal(tn_tensor_text(NULL, NULL, 0, NULL), TN_ERR_ARGUMENT);
}

static void text_has_points_in_every_locale(void **state) {
    test_enter_comma_locale();
    text_is_laid_out_as_pytorchs(state);
    setlocale(LC_ALL, "C");
}

/* ---- other promises ---------------------------------------------------------------------------------------------- */

static void a_clone_has_storage_of_its_own(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = tn_zeros(TN_DIMS(3), TN_F32), *y = tn_clone(x);
    tn_add_(y, tn_scalar(1));
    assert_true(tn_item(tn_sum(x, TN_ALL, false)) == 0);
    assert_true(tn_item(tn_sum(y, TN_ALL, false)) == 3);
    assert_true(tn_value_id(x) != tn_value_id(y));
}

/* Adds 100 to the elements of `view`, and compares x with what is wanted. */
static void expect_written(const tn_tensor *x, tn_tensor *view, const double *want) {
    double got[24];
    assert_int_equal(tn_status_of(view), TN_OK);
    tn_add_scalar_(view, 100);
    assert_int_equal(tn_read(tn_cast(x, TN_F64), got, (size_t)tn_numel(x) * sizeof *got), TN_OK);
    for (int64_t i = 0; i < tn_numel(x); i++)
        if (got[i] != want[i]) fail_msg("element %lld is %g, not %g", (long long)i, got[i], want[i]);
}

static tn_tensor *counted(int64_t rows, int64_t columns) {
    return tn_reshape(tn_arange(0, (double)(rows * columns), 1, TN_F32), TN_DIMS(rows, columns));
}

static void writes_into_diagonals_and_windows_reach_the_tensor(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = tn_contiguous(counted(3, 4));
    expect_written(x, tn_diagonal(x, 1, 0, 1), (double[]){0, 101, 2, 3, 4, 5, 106, 7, 8, 9, 10, 111});
    x = tn_contiguous(counted(3, 4));
    expect_written(x, tn_diagonal(x, -1, 1, 0), (double[]){0, 101, 2, 3, 4, 5, 106, 7, 8, 9, 10, 111});
    x = tn_contiguous(counted(4, 3)); /* of some of its rows, backwards */
    expect_written(x, tn_diagonal(tn_narrow(x, 0, 2, 2), 0, 1, 0), (double[]){0, 1, 2, 3, 4, 5, 106, 7, 8, 9, 110, 11});
    x = tn_contiguous(counted(2, 6));
    expect_written(x, tn_unfold(x, 0, 1, 2), (double[]){100, 101, 102, 103, 104, 105, 6, 7, 8, 9, 10, 11});
    x = tn_contiguous(counted(1, 7));
    expect_written(x, tn_unfold(x, 1, 2, 3), (double[]){100, 101, 2, 103, 104, 5, 6});
    x = tn_contiguous(counted(1, 8)); /* every second element, the last one first */
    tn_tensor *odd = tn_slice(tn_select(x, 0, 0), 0, -1, INT64_MIN, -2);
    expect_written(x, tn_as_strided(odd, TN_DIMS(2), TN_DIMS(2), 1), (double[]){0, 101, 2, 3, 4, 105, 6, 7});
    refuses(tn_as_strided(tn_t(counted(2, 3)), TN_DIMS(4), TN_DIMS(1), 0), TN_ERR_SHAPE, "not contiguous");
    refuses(tn_add_scalar_(tn_unfold(x, 1, 3, 2), 1), TN_ERR_ARGUMENT, "share memory");
}

/* The tensor may be a view itself: permuted, with gaps, backwards. */
static void diagonals_and_windows_of_views_are_views(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = tn_contiguous(counted(3, 4));
    expect_written(x, tn_diagonal(tn_t(x), 0, 0, 1), (double[]){100, 1, 2, 3, 4, 105, 6, 7, 8, 9, 110, 11});
    x = tn_contiguous(counted(3, 4));
    expect_written(x, tn_diagonal(tn_slice(x, 1, -1, INT64_MIN, -1), 1, 0, 1),
                   (double[]){0, 1, 102, 3, 4, 105, 6, 7, 108, 9, 10, 11});
    x = tn_contiguous(counted(3, 4));
    tn_tensor *even = tn_slice(x, 1, 0, 4, 2); /* columns 0 and 2 */
    expect_written(x, tn_diagonal(even, 0, 0, 1), (double[]){100, 1, 2, 3, 4, 5, 106, 7, 8, 9, 10, 11});
    x = tn_contiguous(counted(3, 4));
    even = tn_slice(x, 1, 0, 4, 2);
    expect_written(x, tn_unfold(even, 0, 1, 2), (double[]){100, 1, 102, 3, 4, 5, 6, 7, 108, 9, 110, 11});
    x = tn_contiguous(counted(5, 2));
    expect_written(x, tn_unfold(tn_t(x), 1, 2, 3), (double[]){100, 101, 102, 103, 4, 5, 106, 107, 108, 109});
    x = tn_contiguous(counted(1, 6)); /* windows of windows */
    tn_tensor *windows = tn_unfold(tn_select(x, 0, 0), 0, 3, 3);
    expect_written(x, tn_unfold(windows, 0, 1, 1), (double[]){100, 101, 102, 103, 104, 105});
    tn_tensor *leaf = tn_contiguous(counted(3, 4)), *y;
    assert_int_equal(tn_set_requires_grad(leaf, true), TN_OK);
    y = tn_unfold(tn_t(leaf), 0, 3, 1); /* columns 1 and 2 lie in both windows */
    y = tn_sum(tn_mul_scalar(y, 2), NULL, 0, false);
    assert_int_equal(tn_backward(y), TN_OK);
    float got[12];
    assert_int_equal(tn_read(tn_grad(leaf), got, sizeof got), TN_OK);
    for (int i = 0; i < 12; i++)
        assert_true(got[i] == (i % 4 == 0 || i % 4 == 3 ? 2 : 4));
}

/* Only products are limited to TN_MAX_RANK dims, not the equation; integers stay what they are. */
static void einsum_takes_many_labels(void **state) {
    (void)state;
    TN_SCOPE;
    float got[4];
    tn_tensor *x = tn_ones(TN_DIMS(2, 1, 1, 2, 3), TN_F32), *y = tn_ones(TN_DIMS(3, 2, 1, 1, 5), TN_F32);
    tn_tensor *z = tn_einsum("abcde,efghi,fij->aj", LIST(x, y, tn_ones(TN_DIMS(2, 5, 1), TN_F32)));
    assert_int_equal(tn_rank(z), 2);
    assert_ok(tn_read(tn_mul(z, tn_ones(TN_DIMS(2, 2), TN_F32)), got, sizeof got));
    for (int i = 0; i < 4; i++)
        assert_true(got[i] == 2 * 3 * 2 * 5);
    refuses(tn_einsum("abcde,fghij", LIST(x, y)), TN_ERR_SHAPE, "10 dims; at most 8");
    tn_tensor *whole = tn_full(TN_DIMS(3), 7, TN_I32), *sum = tn_einsum("i,i", LIST(whole, whole));
    assert_int_equal(tn_dtype_of(sum), TN_I32);
    assert_true(tn_item(sum) == 3 * 49);
}

static void unpooling_inverts_pooling(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = tn_reshape(tn_arange(0, 32, 1, TN_F32), TN_DIMS(1, 2, 4, 4)), *places;
    tn_tensor *y = tn_max_pool(x, 2, (int64_t[]){2, 2}, NULL, NULL, NULL, false, &places);
    tn_tensor *back = tn_max_unpool(y, places, 2, (int64_t[]){4, 4});
    tn_tensor *hit = tn_ne(back, tn_scalar(0));
    assert_true(tn_item(tn_sum(hit, TN_ALL, false)) == 8);
    assert_true(tn_item(tn_all(tn_logical_or(tn_logical_not(hit), tn_eq(back, x)), TN_ALL, false)) == 1);
}

/* Means of many draws, with ten times the deviation that is to be expected. */
static void distributions_have_their_means(void **state) {
    enum { N = 40000 };
    (void)state;
    TN_SCOPE;
    tn_manual_seed(3);
    const int64_t n = N;
    tn_tensor *weights = tn_div(numbers("1 2 5 0"), tn_scalar(8));
    assert_true(fabs(tn_item(tn_mean(tn_exponential(2, &n, 1), TN_ALL, false)) - 0.5) < 10 * 0.5 / sqrt(N));
    assert_true(fabs(tn_item(tn_mean(tn_geometric(0.25, &n, 1), TN_ALL, false)) - 4) < 10 * 3.5 / sqrt(N));
    assert_true(fabs(tn_item(tn_mean(tn_log(tn_log_normal(1, 2, &n, 1)), TN_ALL, false)) - 1) < 10 * 2 / sqrt(N));
    assert_true(fabs(tn_item(tn_median(tn_cauchy(3, 1, &n, 1), 0, false, NULL)) - 3) < 10 * 1.6 / sqrt(N));
    tn_tensor *drawn = tn_multinomial(weights, N, true), *count = tn_bincount(drawn, NULL, 4);
    const double share[] = {0.125, 0.25, 0.625, 0};
    for (int k = 0; k < 4; k++)
        assert_true(fabs(tn_item(tn_select(count, 0, k)) / N - share[k]) <= 10 * 0.5 / sqrt(N) * (share[k] > 0));
    tn_tensor *rows = tn_expand(weights, TN_DIMS(5000, 4)), *first = tn_select(tn_multinomial(rows, 3, false), 1, 0);
    assert_true(fabs(tn_item(tn_mean(tn_cast(tn_eq(first, tn_scalar_int(2)), TN_F32), TN_ALL, false)) - 0.625) < 0.07);
    tn_tensor *all = tn_sort(tn_multinomial(rows, 4, false), 1, false);
    assert_true(tn_item(tn_all(tn_eq(all, numbers("0 1 2 3")), TN_ALL, false)) == 1);
    tn_tensor *kept = tn_feature_dropout(tn_ones(TN_DIMS(50, 40, 7), TN_F32), 0.25, true, true);
    assert_true(tn_item(tn_all(tn_eq(kept, tn_slice(kept, 2, 0, 1, 1)), TN_ALL, false)) == 1);
    assert_true(fabs(tn_item(tn_mean(kept, TN_ALL, false)) - 1) < 10 * 0.6 / sqrt(2000));
    assert_true(fabs(tn_item(tn_mean(tn_alpha_dropout(tn_randn(&n, 1), 0.2, true), TN_ALL, false))) < 10 / sqrt(N));
}

/* A function that evaluates cannot be part of a graph: it says so, and the capture goes on. */
static void what_evaluates_is_refused_in_a_capture(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = tn_ones(TN_DIMS(3), TN_F32), *y;
    tn_graph *g = NULL;
    assert_ok(tn_eval(&x, 1));
    assert_ok(tn_capture_begin());
    y = tn_mul(x, x);
    tn_tensor *places = tn_nonzero(y);
    assert_int_equal(tn_status_of(places), TN_ERR_STATE);
    assert_ok(tn_capture_end(&x, 1, &y, 1, &g));
    tn_graph_free(g);
}

static void expect_refused(const tn_tensor *t, const char *words) {
    assert_int_not_equal(tn_status_of(t), TN_OK);
    assert_text_has(tn_error(), words);
}

/* Places and sums must not wrap around or round in a narrow dtype. */
static void narrow_dtypes_and_extreme_numbers_do_not_wrap(void **state) {
    (void)state;
    TN_SCOPE;
    float filled[300], last;
    tn_tensor *index = tn_from_data((int8_t[]){-1}, TN_DIMS(1), TN_I8);
    assert_ok(tn_read(tn_index_fill(tn_zeros(TN_DIMS(300), TN_F32), 0, index, 7), filled, sizeof filled));
    for (int i = 0; i < 300; i++)
        assert_true(filled[i] == (i == 299 ? 7 : 0));

    tn_tensor *many = tn_cast(tn_arange(0, 1000, 1, TN_F32), TN_BF16);
    tn_tensor *top = tn_quantile(many, tn_ones(NULL, 0, TN_BF16), 0, false, TN_QUANTILE_LINEAR);
    assert_ok(tn_read(tn_cast(top, TN_F32), &last, sizeof last));
    assert_true(last == 1000); /* 999 in bf16 */

    int64_t places[4], window[] = {2, 2}, one[] = {1, 1};
    tn_tensor *zeros = tn_zeros(TN_DIMS(1, 2, 2), TN_U8), *indices;
    assert_ok(tn_status_of(tn_max_pool(zeros, 2, window, window, one, NULL, false, &indices)));
    assert_ok(tn_read(indices, places, sizeof places));
    for (int i = 0; i < 4; i++)
        assert_int_equal(places[i], i);

    tn_tensor *x = tn_ones(TN_DIMS(4), TN_F32), *huge = tn_full(TN_DIMS(4), 0x1p62, TN_I64);
    expect_refused(tn_repeat_interleave(x, INT64_C(1) << 62, 0), "so many slices");
    expect_refused(tn_repeat_interleave_by(x, huge, 0), "so many slices");
    expect_refused(tn_index_put(x, (tn_tensor *[]){NULL}, 1, tn_ones(TN_DIMS(2, 4), TN_F32), true), "");
    expect_refused(tn_alpha_dropout(tn_ones(TN_DIMS(2), TN_I32), 0.5, true), "floating point");
    assert_ok(tn_read(tn_linalg_matrix_exp(tn_full(TN_DIMS(1, 1), 1e5, TN_F32)), &last, sizeof last));
    assert_true(isnan(last));
}

static void expect_told(tn_tensor *t, const char *words) {
    tn_status s = tn_status_of(t);
    if (s == TN_OK) s = tn_eval(&t, 1);
    if (s == TN_OK) fail_msg("nothing is told; expected \"%s\"", words);
    assert_text_has(tn_error(), words);
}

/* Lengths, offsets and labels that do not fit are an error with their value, not a plausible number. */
static void integers_out_of_range_are_told(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = tn_ones(TN_DIMS(2, 3), TN_F32), *v = tn_ones(TN_DIMS(3), TN_F32);
    tn_tensor *index = tn_from_data((int64_t[]){0, 1}, TN_DIMS(2), TN_I64), *offsets;
    for (int i = 0; i < 2; i++) {
        int64_t length = i ? 9 : -1, one = 1, two = 2, time = 4;
        char words[32];
        snprintf(words, sizeof words, "index %lld,", (long long)length);
        tn_tensor *log = tn_log_softmax(tn_ones(TN_DIMS(4, 1, 3), TN_F32), 2), *targets = tn_unsqueeze(index, 0);
        tn_tensor *wrong = tn_from_data(&length, TN_DIMS(1), TN_I64), *good = tn_from_data(&two, TN_DIMS(1), TN_I64);
        tn_tensor *whole = tn_from_data(&time, TN_DIMS(1), TN_I64);
        expect_told(tn_ctc_loss(log, targets, wrong, good, 0, TN_REDUCTION_MEAN, false), words);
        expect_told(tn_ctc_loss(log, targets, whole, wrong, 0, TN_REDUCTION_MEAN, false), words);
        offsets = tn_from_data((int64_t[]){0, length}, TN_DIMS(2), TN_I64);
        expect_told(tn_embedding_bag(index, x, offsets, TN_BAG_SUM, NULL), words);
        length = i ? 9 : -9;
        snprintf(words, sizeof words, "index %lld,", (long long)length);
        expect_told(tn_take(v, tn_from_data(&length, TN_DIMS(1), TN_I64)), words);
        float weights[][3] = {{1, -2, 3}, {1, (float)INFINITY, 3}, {(float)NAN, 1, 3}, {0, 0, 0}};
        for (size_t k = 0; k < TN_COUNT(weights); k++)
            expect_told(tn_multinomial(tn_from_data(weights[k], TN_DIMS(3), TN_F32), 2, i), "index -1,");
        tn_tensor *labels = tn_from_data((int64_t[]){0, length, -1}, TN_DIMS(3), TN_I64);
        expect_told(tn_multilabel_margin_loss(v, labels, TN_REDUCTION_MEAN), words);
        offsets = tn_from_data(&one, TN_DIMS(1), TN_I64); /* must begin with 0 */
        expect_told(tn_embedding_bag(index, x, offsets, TN_BAG_SUM, NULL), "index 1,");
    }
    offsets = tn_from_data((int64_t[]){0, 2, 1}, TN_DIMS(3), TN_I64); /* must not fall */
    expect_told(tn_embedding_bag(index, x, offsets, TN_BAG_SUM, NULL), "index -1,");
}

/* ---- halves ------------------------------------------------------------------------------------------------------ */

enum { IN_HALF = 10, MOST_RESULTS = 2048 };

/* Function i of x and y, both [4, 512]. */
static tn_tensor *half_case(int i, const tn_tensor *x, const tn_tensor *y) {
    tn_tensor *image = tn_reshape(x, TN_DIMS(2, 4, 16, 16)), *ones = tn_ones(TN_DIMS(4), TN_F32);
    tn_tensor *near = tn_narrow(x, 1, 0, 16), *weight = tn_reshape(tn_narrow(y, 0, 0, 2), TN_DIMS(4, 16, 16));
    switch (i) {
    case 0: return tn_cov(x, 1);
    case 1: return tn_corrcoef(x);
    case 2: return tn_trapezoid(x, NULL, 1, 1);
    case 3: return tn_cumulative_trapezoid(x, NULL, 1, 1);
    case 4: return tn_lp_pool(image, 2, 5, (int64_t[]){2, 2}, NULL, false);
    case 5: return tn_local_response_norm(image, 3, 1, 0.75, 1);
    case 6: return tn_cosine_embedding_loss(x, y, ones, 0, TN_REDUCTION_NONE);
    case 7: return tn_triplet_margin_loss(x, y, tn_mul_scalar(y, 0.5), 1, 2, 1e-6, false, TN_REDUCTION_NONE);
    case 8:
        return tn_multi_margin_loss(x, tn_from_data((int64_t[]){1, 2, 3, 4}, TN_DIMS(4), TN_I64), NULL, 1, 1,
                                    TN_REDUCTION_NONE);
    default: return tn_bilinear(near, tn_narrow(y, 1, 0, 16), weight, NULL);
    }
}

/* Each result is that of f64 rounded once, up to an ulp: an intermediate of f16 would be infinite or lose digits. */
static void functions_of_halves_round_once(void **state) {
    (void)state;
    static double got[MOST_RESULTS], want[MOST_RESULTS];
    for (int i = 0; i < IN_HALF * 2 * 2; i++) {
        TN_SCOPE;
        tn_dtype type = i / IN_HALF % 2 ? TN_BF16 : TN_F16;
        double scale = i / IN_HALF / 2 ? 300 : 1, ulp = type == TN_F16 ? 0x1p-10 : 0x1p-7;
        double most = type == TN_F16 ? 65504 : 3e38, least = type == TN_F16 ? 0x1p-14 : 0x1p-100;
        tn_manual_seed(1);
        tn_tensor *x = tn_cast(tn_mul_scalar(tn_randn(TN_DIMS(4, 512)), scale), type);
        tn_tensor *y = tn_cast(tn_mul_scalar(tn_randn(TN_DIMS(4, 512)), scale), type);
        tn_tensor *is = half_case(i % IN_HALF, x, y);
        tn_tensor *exact = half_case(i % IN_HALF, tn_cast(x, TN_F64), tn_cast(y, TN_F64));
        int64_t count = tn_numel(exact);
        assert_ok(tn_status_of(is));
        assert_int_equal(tn_dtype_of(is), type);
        assert_true(count <= MOST_RESULTS && count == tn_numel(is));
        assert_ok(tn_read(tn_cast(is, TN_F64), got, (size_t)count * sizeof *got));
        assert_ok(tn_read(exact, want, (size_t)count * sizeof *want));
        for (int64_t k = 0; k < count; k++) {
            /* what sums in f32 lose where they cancel */
            double slack = scale * 0x1p-10, off = fabs(got[k] - want[k]);
            bool same = off <= fmax(ulp * fmax(fabs(want[k]), least), slack) || (isnan(got[k]) && isnan(want[k])) ||
                        (fabs(want[k]) > most && isinf(got[k]) && (got[k] < 0) == (want[k] < 0));
            if (!same)
                fail_msg("case %d, %s, scale %g: result %lld is %.9g, not %.9g", i % IN_HALF, tn_dtype_name(type),
                         scale, (long long)k, got[k], want[k]);
        }
    }
}

/* Poles, the zeros between them, where cot is small, and orders out of range. */
static void polygamma_at_its_poles_and_zeros(void **state) {
    (void)state;
    TN_SCOPE;
    assert_true(tn_item(tn_polygamma(2, tn_scalar(0))) == -INFINITY);
    assert_true(tn_item(tn_polygamma(3, tn_scalar(-4))) == INFINITY);
    assert_true(isnan(tn_item(tn_polygamma(2, tn_scalar(NAN)))));
    double between = tn_item(tn_polygamma(4, tn_cast(tn_scalar(-8.5), TN_F32)));
    if (!(fabs(between / -0.00090522542 - 1) < 1e-5)) fail_msg("polygamma(4, -8.5) is %g", between);
    assert_int_equal(tn_status_of(tn_polygamma(-1, tn_scalar(1))), TN_ERR_ARGUMENT);
    assert_int_equal(tn_status_of(tn_polygamma(101, tn_scalar(1))), TN_ERR_ARGUMENT);
}

/* ---- gradients and values that no golden case has ---------------------------------------------------------------- */

static void compare_f64(const tn_tensor *is, const double *want, int64_t n, double bound) {
    double v[16];
    assert_ok(tn_read(is, v, (size_t)n * sizeof *v));
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(v[i] - want[i]) <= bound)) fail_msg("[%lld] is %.12g, not %.12g", (long long)i, v[i], want[i]);
}

/* Of sum((A⁺b)²) by A: -A⁺ᵀg yᵀ + (b - A y)(A⁺A⁺ᵀg)ᵀ + A⁺ᵀy (g - A⁺A g)ᵀ; with equal and missing singular values. */
static void lstsq_has_gradients_where_singular_values_are_equal_or_0(void **state) {
    (void)state;
    static const struct {
        double a[9];
        int64_t rows, columns;
        double gradient[9];
    } cases[] = {{{1, 0, 0, 0, 1, 0, 0, 0, 1}, 3, 3, {-2, -4, -6, -4, -8, -12, -6, -12, -18}},
                 {{1, 0, 0, 1, 0, 0}, 3, 2, {-2, -4, -4, -8, 6, 12}},
                 {{1, 2, 2, 4, 3, 6},
                  3,
                  2,
                  {-0.00571428571428571, -0.0114285714285714, -0.0114285714285714, -0.0228571428571428,
                   -0.0171428571428571, -0.0342857142857143}},
                 {{0}, 3, 2, {0}}};
    static const double b[] = {1, 2, 3};
    for (size_t i = 0; i < TN_COUNT(cases); i++) {
        TN_SCOPE;
        tn_tensor *a = tn_from_data(cases[i].a, TN_DIMS(cases[i].rows, cases[i].columns), TN_F64);
        assert_ok(tn_set_requires_grad(a, true));
        tn_tensor *x = tn_linalg_lstsq(a, tn_from_data(b, TN_DIMS(3, 1), TN_F64), -1);
        assert_ok(tn_backward(tn_sum(tn_mul(x, x), NULL, 0, false)));
        compare_f64(tn_grad(a), cases[i].gradient, cases[i].rows * cases[i].columns, 1e-12);
    }
}

/* 1 / a is -1 / a² and 2 / a³ then. */
static void pinv_can_be_differentiated_twice(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *a = tn_from_data((double[]){2, 0, 0, 2}, TN_DIMS(2, 2), TN_F64), *first, *twice;
    assert_ok(tn_set_requires_grad(a, true));
    tn_tensor *y = tn_select(tn_select(tn_linalg_pinv(a, -1), 0, 0), 0, 0);
    assert_ok(tn_gradients(&y, 1, NULL, &a, 1, true, &first));
    compare_f64(first, (double[]){-0.25, 0, 0, 0}, 4, 1e-12);
    tn_tensor *own = tn_select(tn_select(first, 0, 0), 0, 0);
    assert_ok(tn_gradients(&own, 1, NULL, &a, 1, false, &twice));
    compare_f64(twice, (double[]){0.25, 0, 0, 0}, 4, 1e-12);
    tn_free(first);
    tn_free(twice);
}

static void lstsq_says_what_does_not_fit(void **state) {
    (void)state;
    TN_SCOPE;
    refuses(tn_linalg_lstsq(tn_ones(TN_DIMS(3, 2), TN_F64), tn_ones(TN_DIMS(4, 1), TN_F64), -1), TN_ERR_SHAPE,
            "a has 3 rows and b 4");
    refuses(tn_linalg_lstsq(tn_ones(TN_DIMS(3, 2), TN_I64), tn_ones(TN_DIMS(3, 1), TN_I64), -1), TN_ERR_DTYPE,
            "linalg_lstsq: a is i64");
    refuses(tn_linalg_lstsq(tn_ones(TN_DIMS(3, 2), TN_F32), tn_ones(TN_DIMS(3, 1), TN_F32), NAN), TN_ERR_ARGUMENT,
            "linalg_lstsq: rtol");
}

/* Where n! and zeta leave the range of f32, the value need not. Reference: the sum in decimals of 60 digits. */
static void polygamma_of_high_orders_is_in_the_range_of_f32(void **state) {
    (void)state;
    TN_SCOPE;
    float v[3];
    tn_tensor *x = tn_from_data((float[]){50, 20, -0.5f}, TN_DIMS(3), TN_F32);
    assert_ok(tn_read(tn_polygamma(50, x), v, sizeof v));
    assert_true(fabs((double)v[0] / -1.08446996756e-22 - 1) < 1e-6);
    assert_true(fabs((double)v[1] / -1.474515749091e-02 - 1) < 1e-6);
    assert_true(v[2] == -INFINITY);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(narrow_dtypes_and_extreme_numbers_do_not_wrap),
        cmocka_unit_test(integers_out_of_range_are_told),
        cmocka_unit_test(functions_of_halves_round_once),
        cmocka_unit_test(functions_are_pytorchs_in_f64),
        cmocka_unit_test(functions_are_pytorchs_in_f32),
        cmocka_unit_test(arguments_that_do_not_fit_are_refused),
        cmocka_unit_test(null_is_refused),
        cmocka_unit_test(an_error_is_handed_on_with_its_first_cause),
        cmocka_unit_test(text_is_laid_out_as_pytorchs),
        cmocka_unit_test(text_has_points_in_every_locale),
        cmocka_unit_test(a_clone_has_storage_of_its_own),
        cmocka_unit_test(writes_into_diagonals_and_windows_reach_the_tensor),
        cmocka_unit_test(diagonals_and_windows_of_views_are_views),
        cmocka_unit_test(einsum_takes_many_labels),
        cmocka_unit_test(unpooling_inverts_pooling),
        cmocka_unit_test(distributions_have_their_means),
        cmocka_unit_test(what_evaluates_is_refused_in_a_capture),
        cmocka_unit_test(polygamma_at_its_poles_and_zeros),
        cmocka_unit_test(polygamma_of_high_orders_is_in_the_range_of_f32),
        cmocka_unit_test(lstsq_has_gradients_where_singular_values_are_equal_or_0),
        cmocka_unit_test(pinv_can_be_differentiated_twice),
        cmocka_unit_test(lstsq_says_what_does_not_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
