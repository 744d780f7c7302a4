/* test_semantics.c — results that must be PyTorch's where they are easy to get wrong: tensors without dimensions,
 * bools and integers, NaN, zeros in products. The suite opinfo sweeps them; here each class has one test. */
#include <math.h>

#include "test_support.h"
#include "trunnion/trunnion.h"

enum { MOST = 64 };

/* Shape, dtype and values; NaN equals NaN. */
static void expect_tensor(tn_tensor *t, tn_dtype dtype, int rank, const double *want, int64_t count, int line) {
    double got[MOST] = {0};
    assert_ok(tn_status_of(t));
    if (tn_dtype_of(t) != dtype || tn_rank(t) != rank || tn_numel(t) != count)
        fail_msg("line %d: %s of rank %d with %lld elements, it should be %s of rank %d with %lld", line,
                 tn_dtype_name(tn_dtype_of(t)), tn_rank(t), (long long)tn_numel(t), tn_dtype_name(dtype), rank,
                 (long long)count);
    tn_tensor *wide = tn_cast(t, TN_F64);
    assert_ok(tn_read(wide, got, (size_t)count * sizeof *got));
    for (int64_t i = 0; i < count; i++)
        if (got[i] != want[i] && (got[i] == got[i] || want[i] == want[i]))
            fail_msg("line %d: element %lld is %g, it should be %g", line, (long long)i, got[i], want[i]);
}
#define EXPECT(t, dtype, rank, ...)                        \
    expect_tensor(t, dtype, rank, (double[]){__VA_ARGS__}, \
                  (int64_t)(sizeof((double[]){__VA_ARGS__}) / sizeof(double)), __LINE__)
#define REFUSED(t) assert_int_not_equal(tn_status_of(t), TN_OK)

static tn_tensor *number(double v, tn_dtype t) { return tn_full(NULL, 0, v, t); }
static tn_tensor *floats(const float *v, int64_t count) { return tn_from_data(v, &count, 1, TN_F32); }
#define FLOATS(...) floats((float[]){__VA_ARGS__}, (int64_t)(sizeof((float[]){__VA_ARGS__}) / sizeof(float)))
static tn_tensor *bools(const uint8_t *v, int64_t count) { return tn_from_data(v, &count, 1, TN_BOOL); }
#define BOOLS(...) bools((uint8_t[]){__VA_ARGS__}, (int64_t)sizeof((uint8_t[]){__VA_ARGS__}))
static tn_tensor *places(const int64_t *v, int64_t count) { return tn_from_data(v, &count, 1, TN_I64); }
#define PLACES(...) places((int64_t[]){__VA_ARGS__}, (int64_t)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)))

static void a_number_has_dim_0_and_minus_1(void **state) {
    (void)state;
    for (int64_t dim = -1; dim <= 0; dim++) {
        TN_SCOPE;
        tn_tensor *x = number(3, TN_F32), *y = number(5, TN_F32), *first = number(0, TN_I64), *one = PLACES(0);
        EXPECT(tn_cumsum(x, dim), TN_F32, 0, 3);
        EXPECT(tn_cumprod(number(3, TN_I32), dim), TN_I64, 0, 3);
        EXPECT(tn_topk(x, 1, dim, true), TN_F32, 0, 3);
        EXPECT(tn_topk_indices(x, 1, dim, true), TN_I64, 0, 0);
        EXPECT(tn_gather(x, dim, first), TN_F32, 0, 3);
        EXPECT(tn_gather(x, dim, PLACES(0, 0)), TN_F32, 1, 3, 3);
        EXPECT(tn_index_select(x, dim, one), TN_F32, 0, 3);
        EXPECT(tn_take_along_dim(x, dim, first), TN_F32, 0, 3);
        EXPECT(tn_index_add(x, dim, one, y), TN_F32, 0, 8);
        EXPECT(tn_scatter(x, dim, first, y), TN_F32, 0, 5);
        EXPECT(tn_scatter_add(x, dim, one, FLOATS(5)), TN_F32, 0, 8);
    }
}

/* On 80365cb the rank became 255, and the message quoted the heap. */
static void a_dim_cannot_be_taken_from_a_number(void **state) {
    (void)state;
    TN_SCOPE;
    EXPECT(tn_cosine_similarity(number(2, TN_F32), number(-3, TN_F32), 0, NULL), TN_F32, 0, -1);
    EXPECT(tn_cosine_similarity(number(2, TN_F32), number(3, TN_F32), -1, NULL), TN_F32, 0, 1);
    EXPECT(tn_max(number(2, TN_F32), 0, false), TN_F32, 0, 2);
    EXPECT(tn_argmax(number(2, TN_F32), TN_DIMS(-1), false), TN_I64, 0, 0);
    EXPECT(tn_sum(number(2, TN_F32), TN_DIMS(0), false), TN_F32, 0, 2);
    EXPECT(tn_softmax(number(2, TN_F32), 0), TN_F32, 0, 1);
    REFUSED(tn_select(number(2, TN_F32), 0, 0));
    REFUSED(tn_glu(number(2, TN_F32), 0));
    REFUSED(tn_roll(number(2, TN_F32), TN_DIMS(1), TN_DIMS(0)));
    tn_tensor *out[2];
    int count = tn_split(number(2, TN_F32), TN_DIMS(1), 0, out);
    for (int i = 0; i < count; i++)
        REFUSED(out[i]);
}

static void gradients_of_numbers_go_through_dim_0(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = tn_contiguous(number(3, TN_F32)), *grad = NULL;
    assert_ok(tn_eval(&x, 1));
    assert_ok(tn_set_requires_grad(x, true));
    tn_tensor *y =
        tn_add(tn_cumprod(x, 0), tn_add(tn_gather(x, 0, number(0, TN_I64)), tn_index_select(x, 0, PLACES(0))));
    assert_ok(tn_gradients(&y, 1, NULL, &x, 1, false, &grad));
    EXPECT(grad, TN_F32, 0, 3);
}

/* In each dim, of rows that are and are not interleaved four at a time: the same bits. */
static void resampled_places_are_selections_weighed_and_added(void **state) {
    (void)state;
    enum { MOST_PLACES = 1 << 17 };
    static float resampled[MOST_PLACES], selected[MOST_PLACES];
    static const int64_t shapes[][3] = {{6, 5, 7}, {1, 9, 1100}, {3, 4, 16}, {2, 1, 1}};
    for (size_t k = 0; k < TN_COUNT(shapes); k++)
        for (int dim = 0; dim < 3; dim++)
            for (int64_t taps = 1; taps < 5; taps++) {
                TN_SCOPE;
                const int64_t places = 3 + (int64_t)k * 7;
                int64_t along[3] = {1, 1, 1};
                along[dim] = places;
                tn_tensor *x = tn_randn(shapes[k], 3), *weight = tn_randn(TN_DIMS(taps, places)), *sum = NULL;
                tn_tensor *index = tn_randint(0, shapes[k][dim], TN_DIMS(taps, places));
                assert_ok(tn_eval((tn_tensor *[]){x, weight, index}, 3));
                for (int64_t t = 0; t < taps; t++) {
                    tn_tensor *part = tn_index_select(x, dim, tn_select(index, 0, t));
                    part = tn_mul(part, tn_reshape(tn_select(weight, 0, t), along, 3));
                    sum = sum ? tn_add(sum, part) : part;
                }
                const size_t bytes = (size_t)tn_numel(sum) * sizeof(float);
                assert_true(bytes <= sizeof selected);
                assert_ok(tn_read(sum, selected, bytes));
                assert_ok(tn_read(tn_resample(x, dim, index, weight), resampled, bytes));
                assert_memory_equal(resampled, selected, bytes);
            }
}

static void bools_are_scattered_and_have_signs(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = BOOLS(0, 1, 0), *src = BOOLS(1, 1, 0), *at = PLACES(0, 0, 1);
    EXPECT(tn_scatter(x, 0, at, src), TN_BOOL, 1, 1, 0, 0);
    EXPECT(tn_scatter_add(x, 0, at, src), TN_BOOL, 1, 1, 1, 0);
    EXPECT(tn_index_add(x, 0, at, src), TN_BOOL, 1, 1, 1, 0);
    EXPECT(tn_sign(x), TN_BOOL, 1, 0, 1, 0);
    EXPECT(tn_square(x), TN_I64, 1, 0, 1, 0);
    EXPECT(tn_heaviside(x, BOOLS(1, 0, 0)), TN_BOOL, 1, 1, 1, 0);
    EXPECT(tn_logsumexp(BOOLS(0), TN_DIMS(0), false), TN_F32, 0, 0);
}

static void integers_go_where_pytorch_takes_them(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = tn_arange(-2, 8, 1, TN_I64), *image = tn_reshape(tn_arange(0, 9, 1, TN_I64), TN_DIMS(1, 1, 3, 3));
    EXPECT(tn_relu6(x), TN_I64, 1, 0, 0, 0, 1, 2, 3, 4, 5, 6, 6);
    EXPECT(tn_hardtanh(x, -1.5, 2.5), TN_I64, 1, -1, -1, 0, 1, 2, 2, 2, 2, 2, 2);
    EXPECT(tn_linspace(-3.7, 9.2, 5, TN_I64), TN_I64, 1, -3, 0, 3, 6, 9);
    EXPECT(tn_logsumexp(tn_zeros(TN_DIMS(1), TN_I64), TN_DIMS(0), false), TN_F32, 0, 0);
    EXPECT(tn_conv2d(image, tn_ones(TN_DIMS(1, 1, 2, 2), TN_I64), NULL, NULL), TN_I64, 4, 8, 12, 20, 24);
    EXPECT(tn_conv_transpose2d(tn_ones(TN_DIMS(1, 1, 1, 1), TN_I64), image, NULL, NULL), TN_I64, 4, 0, 1, 2, 3, 4, 5, 6,
           7, 8);
    EXPECT(tn_max_pool2d(tn_sub(image, tn_full(NULL, 0, 20, TN_I64)), (int64_t[]){2, 2}, NULL), TN_I64, 4, -16);
    EXPECT(tn_avg_pool2d(image, (int64_t[]){2, 2}, NULL), TN_I64, 4, 2);
    /* more than f64 counts: 2^60 + 1 */
    tn_tensor *large = tn_from_data((int64_t[]){INT64_C(1152921504606846977)}, TN_DIMS(1, 1, 1, 1), TN_I64);
    int64_t got = 0;
    assert_ok(tn_read(tn_conv2d(large, tn_ones(TN_DIMS(1, 1, 1, 1), TN_I64), NULL, NULL), &got, sizeof got));
    assert_true(got == INT64_C(1152921504606846977));
}

/* Adding number by number in f32 ends at 2^24. */
static void a_long_running_sum_counts_beyond_2_to_24(void **state) {
    (void)state;
    TN_SCOPE;
    enum { MORE = 40, ROW = 5000 };
    tn_tensor *x = tn_cumsum(tn_ones(TN_DIMS((1 << 24) + MORE), TN_F32), 0);
    EXPECT(tn_narrow(x, 0, (1 << 24) + MORE - 1, 1), TN_F32, 1, (1 << 24) + MORE);
    /* rows in the middle of a shape, against f64 */
    tn_tensor *y = tn_rand(TN_DIMS(3, ROW, 2));
    tn_tensor *sums = tn_cast(tn_cumsum(y, 1), TN_F64), *exact = tn_cumsum(tn_cast(y, TN_F64), 1);
    assert_true(tn_item(tn_amax(tn_abs(tn_sub_scalar(tn_div(sums, exact), 1)), TN_ALL, false)) < 4e-6);
    assert_ok(tn_set_requires_grad(y, true));
    assert_ok(tn_backward(tn_sum(tn_narrow(tn_cumsum(y, 1), 1, ROW - 2, 2), TN_ALL, false)));
    EXPECT(tn_select(tn_select(tn_narrow(tn_grad(y), 1, ROW - 2, 2), 0, 1), 1, 1), TN_F32, 1, 2, 1);
}

/* The rule that ops.h states for floats outside the integer type. */
static void a_cast_to_an_integer_follows_its_stated_rule(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = FLOATS(2.9f, -2.5f, 300, 1e10f, -1e10f, NAN);
    EXPECT(tn_cast(x, TN_I8), TN_I8, 1, 2, -2, 44, -1, 0, 0);
    EXPECT(tn_cast(x, TN_U8), TN_U8, 1, 2, 254, 44, 255, 0, 0);
    EXPECT(tn_cast(x, TN_I16), TN_I16, 1, 2, -2, 300, -1, 0, 0);
    EXPECT(tn_cast(x, TN_U16), TN_U16, 1, 2, 65534, 300, 65535, 0, 0);
    EXPECT(tn_cast(x, TN_I32), TN_I32, 1, 2, -2, 300, 2147483647, -2147483648.0, 0);
    EXPECT(tn_cast(x, TN_U32), TN_U32, 1, 2, 0, 300, 4294967295, 0, 0);
}

static void a_number_beside_integers_is_a_float_whatever_its_value(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = tn_arange(0, 3, 1, TN_I64);
    EXPECT(tn_mul_scalar(x, 1), TN_F32, 1, 0, 1, 2);
    EXPECT(tn_mul_scalar(x, 0.5), TN_F32, 1, 0, 0.5, 1);
    EXPECT(tn_add_scalar(tn_cast(x, TN_BOOL), 1), TN_F32, 1, 1, 2, 2);
    EXPECT(tn_pow_scalar(x, 2), TN_F32, 1, 0, 1, 4);
    EXPECT(tn_eq_scalar(x, 2), TN_BOOL, 1, 0, 0, 1);
}

static void nan_has_no_sign(void **state) {
    (void)state;
    TN_SCOPE;
    EXPECT(tn_sign(FLOATS(NAN, -2, 0, 3, INFINITY)), TN_F32, 1, 0, -1, 0, 1, 1);
}

static void negative_indices_are_taken_along_a_dim(void **state) {
    (void)state;
    TN_SCOPE;
    EXPECT(tn_take_along_dim(FLOATS(1, 2, 3), 0, PLACES(-1, 0, -3)), TN_F32, 1, 3, 1, 1);
}

static void an_empty_index_has_any_rank(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *none = tn_zeros(TN_DIMS(2, 0), TN_I64), *x = FLOATS(1, 2, 3);
    tn_tensor *y = tn_gather(x, 0, none);
    assert_int_equal(tn_rank(y), 2);
    assert_int_equal(tn_size(y, 1), 0);
    EXPECT(tn_scatter(x, 0, none, FLOATS(9)), TN_F32, 1, 1, 2, 3);
    EXPECT(tn_scatter_add(x, 0, none, FLOATS(9)), TN_F32, 1, 1, 2, 3);
}

/* d/dx Σ w·y, by tn_gradients. */
static tn_tensor *gradient_of(tn_tensor *y, tn_tensor *x) {
    tn_tensor *sum = tn_sum(y, TN_ALL, false), *grad = NULL;
    assert_ok(tn_gradients(&sum, 1, NULL, &x, 1, true, &grad));
    return grad;
}

static void products_have_gradients_beside_zeros(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = FLOATS(2, 0, 3, 5), *two = FLOATS(2, 0, 3, 0), *w = FLOATS(1, 10, 100, 1000);
    tn_tensor *leaves[] = {x, two};
    for (int i = 0; i < 2; i++)
        assert_ok(tn_set_requires_grad(leaves[i], true));
    tn_tensor *g = gradient_of(tn_mul(tn_cumprod(x, 0), w), x);
    EXPECT(g, TN_F32, 1, 1, 2 * 10 + 6 * 100 + 30 * 1000, 0, 0);
    EXPECT(gradient_of(tn_mul(tn_cumprod(two, 0), w), two), TN_F32, 1, 1, 2 * 10 + 6 * 100, 0, 0);
    /* again: the gradient at 0 is 20 + 600 + 30 000, that of its factors x[0], x[2] and x[3] */
    EXPECT(gradient_of(tn_mul(g, FLOATS(0, 1, 0, 0)), x), TN_F32, 1, (20 + 600 + 30000) / 2.0, 0, (600 + 30000) / 3.0,
           30000 / 5.0);
    EXPECT(gradient_of(tn_mul(gradient_of(tn_mul(tn_cumprod(x, 0), w), x), FLOATS(0, 0, 1, 0)), x), TN_F32, 1, 0,
           2 * 100 + 10 * 1000, 0, 0);
}

/* PyTorch: each of the equal elements, the target's own among them, gets as much. */
static void equal_extremes_share_the_gradient(void **state) {
    (void)state;
    static const tn_reduce kinds[] = {TN_REDUCE_AMAX, TN_REDUCE_AMIN};
    for (int k = 0; k < 2; k++) {
        TN_SCOPE;
        tn_tensor *x = FLOATS(5, 1, 7), *src = FLOATS(5, 5, 1, 7, 7, 5), *at = PLACES(0, 0, 1, 2, 2, 0);
        tn_tensor *leaves[] = {x, src}, *grads[2];
        for (int i = 0; i < 2; i++)
            assert_ok(tn_set_requires_grad(leaves[i], true));
        tn_tensor *y = tn_mul(tn_scatter_reduce(x, 0, at, src, kinds[k], true), FLOATS(12, 8, 6));
        tn_tensor *sum = tn_sum(y, TN_ALL, false);
        assert_ok(tn_gradients(&sum, 1, NULL, leaves, 2, false, grads));
        EXPECT(grads[0], TN_F32, 1, 3, 4, 2);
        EXPECT(grads[1], TN_F32, 1, 3, 3, 4, 2, 2, 3);
        sum = tn_sum(tn_mul(tn_scatter_reduce(x, 0, at, src, kinds[k], false), FLOATS(12, 8, 6)), TN_ALL, false);
        assert_ok(tn_gradients(&sum, 1, NULL, leaves, 2, false, grads));
        EXPECT(grads[0], TN_F32, 1, 0, 0, 0);
        EXPECT(grads[1], TN_F32, 1, 4, 4, 8, 3, 3, 4);
    }
}

static void second_gradients_of_cumprod_hold_beside_zeros(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = FLOATS(0, 2, 0, 3, 0), *w = FLOATS(1, 10, 100, 1000, 10000);
    assert_ok(tn_set_requires_grad(x, true));
    tn_tensor *y = tn_mul(tn_cumprod(x, 0), w);
    /* d²/dx[0]dx[2] = 2·100 + 2·3·1000; d²/dx[0]dx[1] = 10; of others a zero is left */
    static const double hessian[5][5] = {
        {0, 10, 6200, 0, 0}, {10, 0, 0, 0, 0}, {6200, 0, 0, 0, 0}, {0, 0, 0, 0, 0}, {0, 0, 0, 0, 0}};
    for (int row = 0; row < 5; row++) {
        float direction[5] = {0};
        direction[row] = 1;
        tn_tensor *g = gradient_of(y, x);
        const double *h = hessian[row];
        EXPECT(g, TN_F32, 1, 1 + 20, 0, 0, 0, 0);
        tn_tensor *again = gradient_of(tn_mul(g, tn_from_data(direction, TN_DIMS(5), TN_F32)), x);
        EXPECT(again, TN_F32, 1, h[0], h[1], h[2], h[3], h[4]);
    }
    tn_tensor *third = FLOATS(0, 0, 0, 5);
    assert_ok(tn_set_requires_grad(third, true));
    tn_tensor *g = gradient_of(tn_cumprod(third, 0), third);
    for (int i = 0; i < 2; i++)
        g = gradient_of(tn_select(g, 0, i), third);
    EXPECT(g, TN_F32, 1, 0, 0, 1 + 5, 0); /* d³/dx[0]dx[1]dx[2] */
}

/* A product of numbers with two zeros changes with both of them at once. */
static void second_gradients_of_prod_hold_beside_zeros(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = tn_from_data((float[]){0, 2, 0, 3, 5, 0}, TN_DIMS(2, 3), TN_F32);
    assert_ok(tn_set_requires_grad(x, true));
    tn_tensor *w = tn_from_data((float[]){1, 10, 100}, TN_DIMS(3), TN_F32);
    tn_tensor *g = gradient_of(tn_prod(x, TN_DIMS(1), false), x);
    EXPECT(g, TN_F32, 2, 0, 0, 0, 0, 0, 15);
    EXPECT(gradient_of(tn_mul(g, w), x), TN_F32, 2, 200, 0, 2, 500, 300, 35);
    g = gradient_of(tn_prod(tn_reshape(x, TN_DIMS(3, 2)), TN_DIMS(0), true), x);
    EXPECT(g, TN_F32, 2, 0, 0, 0, 0, 0, 6);
    EXPECT(gradient_of(tn_mul(g, w), x), TN_F32, 2, 500, 300, 5, 200, 0, 32);
}

/* Where a root is taken of 0, or something is divided by it, the gradient is 0 as in PyTorch, and so is its own. */
static void gradients_are_finite_where_a_size_is_zero(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = tn_full(TN_DIMS(2, 3), 0, TN_F32);
    tn_tensor *y = tn_from_data((float[]){1, 2, 2, 0, 0, 0}, TN_DIMS(2, 3), TN_F32);
    tn_tensor *three = FLOATS(0, 4, 0);
    tn_tensor *leaves[] = {x, y, three};
    assert_ok(tn_eval(leaves, 3));
    for (int i = 0; i < 3; i++)
        assert_ok(tn_set_requires_grad(leaves[i], true));
    EXPECT(gradient_of(tn_std(x, TN_DIMS(1), 1, false), x), TN_F32, 2, 0, 0, 0, 0, 0, 0);
    EXPECT(gradient_of(gradient_of(tn_std(x, TN_DIMS(1), 1, false), x), x), TN_F32, 2, 0, 0, 0, 0, 0, 0);
    EXPECT(gradient_of(tn_cosine_similarity(x, y, 1, NULL), y), TN_F32, 2, 0, 0, 0, 0, 0, 0);
    static const double p[] = {2, 0.5, -1};
    for (size_t k = 0; k < TN_COUNT(p); k++) {
        EXPECT(gradient_of(tn_norm(three, p[k], TN_ALL, false), three), TN_F32, 1, 0, p[k] < 0 ? 0 : 1, 0);
        EXPECT(gradient_of(gradient_of(tn_norm(x, p[k], TN_ALL, false), x), x), TN_F32, 2, 0, 0, 0, 0, 0, 0);
    }
    EXPECT(gradient_of(gradient_of(tn_atan2(x, x), x), x), TN_F32, 2, 0, 0, 0, 0, 0, 0);
}

/* Only the parts that hold it. */
static void a_nan_reaches_no_other_part_of_an_adaptive_pool(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = tn_from_data((float[]){1, 2, NAN, 4, 5, 6, INFINITY, 8, 9, 10}, TN_DIMS(1, 1, 2, 5), TN_F32);
    EXPECT(tn_adaptive_avg_pool2d(x, (int64_t[]){2, 3}), TN_F32, 4, 1.5, NAN, 4.5, INFINITY, INFINITY, 9.5);
}

static void indices_of_a_pool_of_minus_infinity_lie_inside(void **state) {
    (void)state;
    TN_SCOPE;
    tn_max_pool2d_indices_options o = TN_MAX_POOL2D_INDICES_DEFAULTS;
    o.padding[0] = o.padding[1] = 1;
    o.stride[0] = o.stride[1] = 2;
    tn_tensor *x = tn_full(TN_DIMS(1, 2, 2), -INFINITY, TN_F32);
    EXPECT(tn_max_pool2d_indices(x, (int64_t[]){2, 2}, &o), TN_I64, 3, 0, 1, 2, 3);
    o.dilation[0] = o.dilation[1] = 2;
    x = tn_full(TN_DIMS(1, 3, 3), -INFINITY, TN_F32);
    EXPECT(tn_max_pool2d_indices(x, (int64_t[]){2, 2}, &o), TN_I64, 3, 4, 4, 4, 4);
}

static void losses_have_a_gradient_at_infinity(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = FLOATS(INFINITY, -INFINITY, 3, 0.5F), *none = FLOATS(0, 0, 0, 0);
    assert_ok(tn_set_requires_grad(x, true));
    EXPECT(gradient_of(tn_huber_loss(x, none, TN_REDUCTION_SUM, NULL), x), TN_F32, 1, 1, -1, 1, 0.5);
    EXPECT(gradient_of(tn_smooth_l1_loss(x, none, TN_REDUCTION_SUM, NULL), x), TN_F32, 1, 1, -1, 1, 0.5);
}

/* The square of an element near the limit of its dtype is infinite, and that of a small one 0; their norm is
 * neither. */
static void the_norm_of_one_element_is_its_size(void **state) {
    (void)state;
    static const double orders[] = {-1, 0.5, 1, 2, 3, INFINITY, -INFINITY}, sizes[] = {-0x1p127, 0x1p-120};
    for (size_t i = 0; i < TN_COUNT(orders) * TN_COUNT(sizes); i++) {
        TN_SCOPE;
        double p = orders[i / TN_COUNT(sizes)], v = sizes[i % TN_COUNT(sizes)];
        tn_tensor *x = number(v, TN_F32), *row = tn_full(TN_DIMS(2, 1), v, TN_F32);
        assert_ok(tn_set_requires_grad(x, true));
        assert_ok(tn_set_requires_grad(row, true));
        EXPECT(tn_norm(x, p, TN_ALL, false), TN_F32, 0, fabs(v));
        EXPECT(tn_norm(row, p, TN_DIMS(1), false), TN_F32, 1, fabs(v), fabs(v));
        EXPECT(gradient_of(tn_norm(x, p, TN_ALL, false), x), TN_F32, 0, v < 0 ? -1 : 1);
        EXPECT(gradient_of(tn_norm(row, p, TN_DIMS(1), true), row), TN_F32, 2, v < 0 ? -1 : 1, v < 0 ? -1 : 1);
    }
}

/* Equal ones share the gradient; PyTorch gives NaN where they are infinite. */
static void logaddexp_has_a_gradient_at_infinity(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = FLOATS(INFINITY, INFINITY, -INFINITY, -INFINITY, 1, INFINITY, -INFINITY, 2e9F, NAN, 1);
    tn_tensor *y = FLOATS(-INFINITY, 1, 1, INFINITY, INFINITY, INFINITY, -INFINITY, 2e9F, 1, NAN);
    assert_ok(tn_set_requires_grad(x, true));
    assert_ok(tn_set_requires_grad(y, true));
    EXPECT(gradient_of(tn_logaddexp(x, y), x), TN_F32, 1, 1, 1, 0, 0, 0, 0.5, 0.5, 0.5, NAN, NAN);
    EXPECT(gradient_of(tn_logaddexp(x, y), y), TN_F32, 1, 0, 0, 1, 1, 1, 0.5, 0.5, 0.5, NAN, NAN);
}

/* The gradient of an element is the product of the others, whatever it is itself. */
static void prod_has_a_gradient_at_nan_and_infinity(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = tn_from_data((float[]){NAN, 0, 3, 2, NAN, 3, INFINITY, 2, 3, NAN, INFINITY, 2, 0, INFINITY, 2},
                                TN_DIMS(5, 3), TN_F32);
    assert_ok(tn_set_requires_grad(x, true));
    tn_tensor *sum = tn_sum(tn_prod(x, TN_DIMS(1), false), TN_ALL, false), *once = NULL;
    assert_ok(tn_gradients(&sum, 1, NULL, &x, 1, false, &once));
    EXPECT(once, TN_F32, 2, 0, NAN, NAN, NAN, 6, NAN, 6, INFINITY, INFINITY, NAN, NAN, NAN, INFINITY, 0, NAN);
    /* where it is differentiated again, nothing is divided */
    EXPECT(gradient_of(tn_prod(x, TN_DIMS(1), false), x), TN_F32, 2, 0, NAN, NAN, NAN, 6, NAN, 6, INFINITY, INFINITY,
           INFINITY, NAN, NAN, INFINITY, 0, NAN);
}

static void equal_eigenvalues_have_a_gradient(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = tn_from_data((float[]){2, 0, 0, 0, 2, 0, 0, 0, 5}, TN_DIMS(3, 3), TN_F32);
    assert_ok(tn_set_requires_grad(x, true));
    tn_tensor *sum = tn_mul(tn_linalg_eigvalsh(x), FLOATS(1, 1, 10));
    EXPECT(gradient_of(sum, x), TN_F32, 2, 1, 0, 0, 0, 1, 0, 0, 0, 10);
}

static void probabilities_are_targets(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = tn_zeros(TN_DIMS(2, 4), TN_F32);
    tn_tensor *target = tn_from_data((float[]){0.5F, 0.5F, 0, 0, 0, 0, 0, 1}, TN_DIMS(2, 4), TN_F32);
    double loss = tn_item(tn_cross_entropy(x, target, NULL, NULL));
    assert_true(fabs(loss - log(4)) < 1e-6);
    REFUSED(tn_cross_entropy(x, tn_zeros(TN_DIMS(2, 3), TN_F32), NULL, NULL));
}

static void what_pytorch_refuses_is_refused(void **state) {
    (void)state;
    TN_SCOPE;
    REFUSED(tn_arange(5, 3, 9, TN_I64));
    REFUSED(tn_group_norm(tn_zeros(TN_DIMS(1, 2, 0), TN_F32), 1, NULL, NULL, NULL));
    REFUSED(tn_group_norm(tn_zeros(TN_DIMS(1, 0, 2), TN_F32), 1, NULL, NULL, NULL));
    REFUSED(tn_linspace(0, 1, 3, TN_BOOL));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_number_has_dim_0_and_minus_1),
        cmocka_unit_test(a_dim_cannot_be_taken_from_a_number),
        cmocka_unit_test(gradients_of_numbers_go_through_dim_0),
        cmocka_unit_test(resampled_places_are_selections_weighed_and_added),
        cmocka_unit_test(bools_are_scattered_and_have_signs),
        cmocka_unit_test(integers_go_where_pytorch_takes_them),
        cmocka_unit_test(a_long_running_sum_counts_beyond_2_to_24),
        cmocka_unit_test(a_cast_to_an_integer_follows_its_stated_rule),
        cmocka_unit_test(a_number_beside_integers_is_a_float_whatever_its_value),
        cmocka_unit_test(nan_has_no_sign),
        cmocka_unit_test(negative_indices_are_taken_along_a_dim),
        cmocka_unit_test(an_empty_index_has_any_rank),
        cmocka_unit_test(products_have_gradients_beside_zeros),
        cmocka_unit_test(equal_extremes_share_the_gradient),
        cmocka_unit_test(second_gradients_of_cumprod_hold_beside_zeros),
        cmocka_unit_test(second_gradients_of_prod_hold_beside_zeros),
        cmocka_unit_test(gradients_are_finite_where_a_size_is_zero),
        cmocka_unit_test(a_nan_reaches_no_other_part_of_an_adaptive_pool),
        cmocka_unit_test(indices_of_a_pool_of_minus_infinity_lie_inside),
        cmocka_unit_test(losses_have_a_gradient_at_infinity),
        cmocka_unit_test(the_norm_of_one_element_is_its_size),
        cmocka_unit_test(logaddexp_has_a_gradient_at_infinity),
        cmocka_unit_test(prod_has_a_gradient_at_nan_and_infinity),
        cmocka_unit_test(equal_eigenvalues_have_a_gradient),
        cmocka_unit_test(probabilities_are_targets),
        cmocka_unit_test(what_pytorch_refuses_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
