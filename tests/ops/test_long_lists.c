/* test_long_lists.c — cat and stack take lists of any length: longer ones than a node has inputs become trees. */
#include "test_support.h"

#include "trunnion/autograd.h"
#include "trunnion/ops.h"

enum { MOST = 5000 };
static const int counts[] = {64, 65, 300, 4097, MOST};

/* Tensor i of the list: [first(i), 2] with i in its first column and -i in its second. */
static tn_tensor *item(int i, int rows, tn_dtype dtype) {
    float numbers[2 * 3];
    for (int r = 0; r < rows; r++) {
        numbers[2 * r] = (float)i;
        numbers[2 * r + 1] = (float)-i;
    }
    tn_tensor *t = tn_from_data(numbers, TN_DIMS(rows, 2), TN_F32);
    return dtype == TN_F32 ? t : tn_cast(t, dtype);
}

static void cat_joins_lists_of_any_length(void **state) {
    (void)state;
    static tn_tensor *parts[MOST];
    static float got[3 * MOST][2];
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        TN_SCOPE;
        int64_t rows = 0;
        for (int i = 0; i < counts[c]; i++) {
            parts[i] = item(i, i % 3, TN_F32);
            rows += i % 3;
        }
        tn_tensor *y = tn_cat(parts, counts[c], 0);
        assert_int_equal(tn_size(y, 0), rows);
        assert_ok(tn_read(y, got, (size_t)rows * sizeof *got));
        int64_t at = 0;
        for (int i = 0; i < counts[c]; i++)
            for (int r = 0; r < i % 3; r++, at++)
                if (got[at][0] != (float)i || got[at][1] != (float)-i)
                    fail_msg("%d tensors, row %lld: %g, not %d", counts[c], (long long)at, got[at][0], i);
    }
}

static void stack_joins_lists_of_any_length_along_any_dim(void **state) {
    (void)state;
    static tn_tensor *parts[MOST];
    static float got[2 * MOST];
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        TN_SCOPE;
        for (int i = 0; i < counts[c]; i++)
            parts[i] = tn_from_data(((float[]){(float)i, (float)-i}), TN_DIMS(2), TN_F32);
        tn_tensor *y = tn_stack(parts, counts[c], -1);
        assert_int_equal(tn_rank(y), 2);
        assert_int_equal(tn_size(y, 1), counts[c]);
        assert_ok(tn_read(y, got, (size_t)counts[c] * 2 * sizeof *got));
        for (int i = 0; i < counts[c]; i++)
            if (got[i] != (float)i || got[counts[c] + i] != (float)-i)
                fail_msg("%d tensors, column %d: %g, %g", counts[c], i, got[i], got[counts[c] + i]);
    }
}

/* The one f64 tensor of the list lies in the second piece, and all of the result is f64. */
static void a_long_list_has_one_dtype(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *parts[100];
    for (int i = 0; i < 100; i++)
        parts[i] = item(i, 1, i == 80 ? TN_F64 : TN_F32);
    tn_tensor *y = tn_cat(parts, 100, 0);
    double got[100][2];
    assert_int_equal(tn_dtype_of(y), TN_F64);
    assert_ok(tn_read(y, got, sizeof got));
    for (int i = 0; i < 100; i++)
        assert_true(got[i][0] == i && got[i][1] == -i);
}

static void gradients_reach_each_tensor_of_a_long_list(void **state) {
    (void)state;
    TN_SCOPE;
    enum { COUNT = 200 };
    tn_tensor *x[COUNT], *weight = tn_arange(0, COUNT, 1, TN_F32), *grads[COUNT];
    for (int i = 0; i < COUNT; i++) {
        x[i] = tn_full(NULL, 0, 2, TN_F32);
        assert_ok(tn_set_requires_grad(x[i], true));
    }
    tn_tensor *y = tn_sum(tn_mul(tn_stack(x, COUNT, 0), weight), NULL, 0, false);
    assert_ok(tn_gradients(&y, 1, NULL, x, COUNT, false, grads));
    for (int i = 0; i < COUNT; i++) {
        float got = -1;
        assert_ok(tn_read(grads[i], &got, sizeof got));
        if (got != (float)i) fail_msg("gradient %d is %g", i, got);
    }
}

static void a_tensor_that_does_not_fit_is_told_wherever_it_stands(void **state) {
    (void)state;
    for (int odd = 0; odd < 200; odd += 67) {
        TN_SCOPE;
        tn_tensor *parts[200];
        for (int i = 0; i < 200; i++)
            parts[i] = i == odd ? tn_zeros(TN_DIMS(1, 3), TN_F32) : item(i, 1, TN_F32);
        assert_int_equal(tn_status_of(tn_cat(parts, 200, 0)), TN_ERR_SHAPE);
        assert_int_equal(tn_status_of(tn_stack(parts, 200, 0)), TN_ERR_SHAPE);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cat_joins_lists_of_any_length),
        cmocka_unit_test(stack_joins_lists_of_any_length_along_any_dim),
        cmocka_unit_test(a_long_list_has_one_dtype),
        cmocka_unit_test(gradients_reach_each_tensor_of_a_long_list),
        cmocka_unit_test(a_tensor_that_does_not_fit_is_told_wherever_it_stands),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
