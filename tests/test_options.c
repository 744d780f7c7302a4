/* test_options.c — option structs of operations: zero means default, lists fill up, older callers keep working. */
#include "test_support.h"

#include <math.h>

#include "trunnion/ops.h"

static tn_tensor *images(void) { return tn_full(TN_DIMS(1, 1, 6, 6), 1.0, TN_F32); }
static tn_tensor *kernel(void) { return tn_full(TN_DIMS(1, 1, 3, 3), 1.0, TN_F32); }

static void assert_size(const tn_tensor *t, int64_t height, int64_t width) {
    assert_ok(tn_status_of(t));
    assert_int_equal(tn_size(t, -2), height);
    assert_int_equal(tn_size(t, -1), width);
}

static void null_and_zero_mean_default(void **state) {
    (void)state;
    TN_SCOPE;
    assert_size(tn_conv2d(images(), kernel(), NULL, NULL), 4, 4);
    assert_size(tn_conv2d(images(), kernel(), NULL, &(tn_conv2d_options){0}), 4, 4);
    assert_size(tn_max_pool2d(images(), (int64_t[]){3, 2}, NULL), 2, 3);
}

/* Of a stride the second item is the first unless given; of a padding, whose default is 0, it is 0. */
static void lists_fill_up_from_defaults_other_than_zero(void **state) {
    (void)state;
    TN_SCOPE;
    assert_size(tn_conv2d(images(), kernel(), NULL, &(tn_conv2d_options){.stride = {2}}), 2, 2);
    assert_size(tn_conv2d(images(), kernel(), NULL, &(tn_conv2d_options){.stride = {2, 1}}), 2, 4);
    assert_size(tn_conv2d(images(), kernel(), NULL, &(tn_conv2d_options){.padding = {1}}), 6, 4);
    assert_size(tn_conv2d(images(), kernel(), NULL, &(tn_conv2d_options){.padding = {0, 1}}), 4, 6);
}

static void a_shorter_struct_is_an_older_one(void **state) {
    (void)state;
    TN_SCOPE;
    tn_conv2d_options o = {.stride = {2, 2}, .padding = {1, 1}};
    o.struct_size = offsetof(tn_conv2d_options, padding);
    assert_size(tn_conv2d(images(), kernel(), NULL, &o), 2, 2);
    o.struct_size = sizeof o;
    assert_size(tn_conv2d(images(), kernel(), NULL, &o), 3, 3);
}

static void the_class_to_ignore_may_be_any(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *logits = tn_from_data((float[]){0, 1, 2, 5, 0, 0}, TN_DIMS(2, 3), TN_F32);
    tn_tensor *target = tn_from_data((int64_t[]){0, 2}, TN_DIMS(2), TN_I64);
    double first = -log(1.0 / (1.0 + exp(1.0) + exp(2.0))), second = -log(1.0 / (exp(5.0) + 2.0));
    tn_cross_entropy_options o = {0};
    assert_true(fabs(tn_item(tn_cross_entropy(logits, target, NULL, &o)) - (first + second) / 2) < 1e-5);
    o.ignore_index = 2;
    assert_true(fabs(tn_item(tn_cross_entropy(logits, target, NULL, &o)) - first) < 1e-5);
    o = (tn_cross_entropy_options){.ignore_zero = true};
    assert_true(fabs(tn_item(tn_cross_entropy(logits, target, NULL, &o)) - second) < 1e-5);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(null_and_zero_mean_default),
        cmocka_unit_test(lists_fill_up_from_defaults_other_than_zero),
        cmocka_unit_test(a_shorter_struct_is_an_older_one),
        cmocka_unit_test(the_class_to_ignore_may_be_any),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
