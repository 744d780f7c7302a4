/* test_profile.c — what a profile says of the commands that ran: their number, their predicted cost, their time. */
#include <math.h>
#include <string.h>

#include "test_support.h"
#include "trunnion/trunnion.h"

enum { M = 8, K = 48, N = 64 }; /* too few rows to be shared: each product is a command */

/* relu(x·w + 1) twice over, as two layers alike would. */
static void run_layers(void) {
    TN_SCOPE;
    int64_t x_shape[] = {M, K}, w_shape[] = {K, N};
    tn_tensor *x = tn_full(x_shape, 2, 0.5, TN_F32), *a = tn_full(w_shape, 2, 0.25, TN_F32),
              *b = tn_full(w_shape, 2, 0.125, TN_F32);
    tn_tensor *given[] = {x, a, b};
    assert_int_equal(tn_eval(given, 3), TN_OK);
    tn_tensor *y[] = {tn_relu(tn_matmul(x, a)), tn_relu(tn_matmul(x, b))};
    assert_int_equal(tn_eval(y, 2), TN_OK);
}

static bool find_row(const tn_profile *p, const char *part, tn_profile_row *row) {
    row->struct_size = sizeof *row;
    for (int64_t i = 0; i < tn_profile_count(p); i++) {
        assert_int_equal(tn_profile_at(p, i, row), TN_OK);
        if (strstr(row->label, part)) return true;
    }
    return false;
}

static void equal_commands_are_one_row_with_their_cost(void **state) {
    (void)state;
    tn_profile *p = tn_profile_begin();
    assert_non_null(p);
    run_layers();
    tn_profile_end(p);
    tn_profile_row row;
    assert_true(find_row(p, "matmul", &row));
    assert_string_equal(row.kind, "native");
    assert_int_equal(row.runs, 2);
    assert_int_equal(row.bytes,
                     2 * 4 * (M * K + K * N + 2 * M * N)); /* the product has a handle too, so it is written */
    assert_true(row.flops >= 2.0 * (2.0 * M * N * K));     /* and those of relu, joined to it */
    assert_true(row.flops <= 2.0 * (2.0 * M * N * K + 8.0 * M * N));
    assert_true(row.seconds > 0);
    tn_profile_free(p);
}

static void nothing_counts_before_and_after(void **state) {
    (void)state;
    run_layers();
    tn_profile *p = tn_profile_begin();
    tn_profile_end(p);
    run_layers();
    assert_int_equal(tn_profile_count(p), 0);
    tn_profile_free(p);
}

static void the_last_profile_counts(void **state) {
    (void)state;
    tn_profile *first = tn_profile_begin(), *second = tn_profile_begin();
    run_layers();
    assert_int_equal(tn_profile_count(first), 0);
    assert_true(tn_profile_count(second) > 0);
    tn_profile_free(second); /* while it is on: nothing is written to it any more */
    run_layers();
    tn_profile_free(first);
}

static void wrong_arguments_are_told(void **state) {
    (void)state;
    tn_profile *p = tn_profile_begin();
    tn_profile_row row = {.struct_size = sizeof row};
    assert_int_equal(tn_profile_at(p, 0, &row), TN_ERR_ARGUMENT);
    assert_int_equal(tn_profile_at(p, -1, &row), TN_ERR_ARGUMENT);
    assert_int_equal(tn_profile_at(p, 0, NULL), TN_ERR_ARGUMENT);
    assert_int_equal(tn_profile_at(NULL, 0, &row), TN_ERR_ARGUMENT);
    assert_int_equal(tn_profile_count(NULL), 0);
    tn_profile_end(NULL);
    tn_profile_free(NULL);
    tn_profile_free(p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_commands_are_one_row_with_their_cost),
        cmocka_unit_test(nothing_counts_before_and_after),
        cmocka_unit_test(the_last_profile_counts),
        cmocka_unit_test(wrong_arguments_are_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
