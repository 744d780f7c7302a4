/* test_random.c — random numbers: the generator's known answers, distributions, seeds, plans and replay, dropout. */
#include "test_support.h"

#include <math.h>
#include <pthread.h>

#include "gen/ops_build.h"
#include "tensor/graph.h"
#include "trunnion/autograd.h"
#include "trunnion/ops.h"

enum { MANY = 40000 };

static float *read_floats(const tn_tensor *t) {
    size_t bytes = (size_t)tn_numel(t) * sizeof(float);
    float *values = malloc(bytes + 1);
    assert_non_null(values);
    assert_ok(tn_read(t, values, bytes));
    return values;
}

typedef struct moments {
    double mean, variance, low, high;
} moments;

static moments moments_of(const tn_tensor *t) {
    float *v = read_floats(t);
    int64_t n = tn_numel(t);
    moments m = {0, 0, INFINITY, -INFINITY};
    for (int64_t i = 0; i < n; i++) {
        m.mean += (double)v[i] / (double)n;
        m.low = fmin(m.low, (double)v[i]);
        m.high = fmax(m.high, (double)v[i]);
    }
    for (int64_t i = 0; i < n; i++)
        m.variance += ((double)v[i] - m.mean) * ((double)v[i] - m.mean) / (double)n;
    free(v);
    return m;
}

/* Means of MANY draws lie within 5 standard errors of what they should be. */
static void assert_near(double is, double want, double deviation) {
    double allowed = 5 * deviation / sqrt((double)MANY);
    if (fabs(is - want) > allowed) fail_msg("%g is not within %g of %g", is, allowed, want);
}

/* ---- the generator ----------------------------------------------------------------------------------------------- */

/* The known answer of Philox-4x32-10 for key 0 and counter 0, word 0: Random123's kat_vectors. */
static void bits_are_those_of_philox(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *zero = tn_runtime_scalar_int(0);
    tn_attrs a = {.n_i = 2}; /* skip 0, rank 0 */
    tn_tensor *bits = tn_record(TN_OP_RANDOM_BITS, (const tn_tensor *const[]){zero, zero}, 2, &a);
    uint32_t got = 0;
    assert_ok(tn_read(bits, &got, sizeof got));
    assert_int_equal(got, 0x6627e8d5);
}

static void equal_seeds_give_equal_numbers(void **state) {
    (void)state;
    TN_SCOPE;
    tn_manual_seed(7);
    float *first = read_floats(tn_rand(TN_DIMS(50))), *next = read_floats(tn_rand(TN_DIMS(50)));
    tn_manual_seed(7);
    float *again = read_floats(tn_rand(TN_DIMS(50)));
    tn_manual_seed(8);
    float *other = read_floats(tn_rand(TN_DIMS(50)));
    assert_memory_equal(first, again, 50 * sizeof(float));
    assert_true(memcmp(first, next, 50 * sizeof(float)) != 0);
    assert_true(memcmp(first, other, 50 * sizeof(float)) != 0);
    free(first);
    free(next);
    free(again);
    free(other);
}

static void numbers_do_not_depend_on_threads(void **state) {
    (void)state;
    float *one = NULL;
    for (int threads = 1; threads <= 3; threads++) {
        TN_SCOPE;
        assert_ok(tn_set_num_threads(threads));
        tn_manual_seed(3);
        float *now = read_floats(tn_randn(TN_DIMS(MANY)));
        if (one) assert_memory_equal(one, now, MANY * sizeof(float));
        free(one);
        one = now;
    }
    free(one);
    assert_ok(tn_set_num_threads(0));
}

static void *draw_ten(void *out) {
    TN_SCOPE;
    return tn_read(tn_rand(TN_DIMS(10)), out, 10 * sizeof(float)) == TN_OK ? NULL : out;
}

/* Threads draw their own numbers, and those of a thread that is seeded are those of the seed. */
static void threads_draw_numbers_of_their_own(void **state) {
    (void)state;
    enum { THREADS = 4 };
    float drawn[THREADS + 1][10];
    TN_SCOPE;
    tn_random_state before = tn_get_random_state();
    assert_null(draw_ten(drawn[THREADS]));
    for (int i = 0; i < THREADS; i++) {
        pthread_t thread;
        void *failed = NULL;
        assert_int_equal(pthread_create(&thread, NULL, draw_ten, drawn[i]), 0);
        pthread_join(thread, &failed);
        assert_null(failed);
    }
    for (int i = 0; i <= THREADS; i++)
        for (int j = 0; j < i; j++)
            if (memcmp(drawn[i], drawn[j], sizeof drawn[i]) == 0) fail_msg("threads %d and %d drew the same", i, j);
    tn_set_random_state(before);
    float again[10];
    assert_null(draw_ten(again));
    assert_memory_equal(again, drawn[THREADS], sizeof again);
}

/* The first thread to draw has seed 0: what a program with one thread draws does not depend on the rule above. */
static void the_first_thread_to_draw_has_seed_zero(void **state) {
    (void)state;
    assert_int_equal(tn_get_random_state().seed, 0);
}

/* ---- distributions ----------------------------------------------------------------------------------------------- */

static void distributions_are_what_they_say(void **state) {
    (void)state;
    TN_SCOPE;
    tn_manual_seed(1);
    moments m = moments_of(tn_rand(TN_DIMS(200, 200)));
    assert_true(m.low >= 0.0 && m.high < 1.0);
    assert_near(m.mean, 0.5, sqrt(1.0 / 12));
    assert_near(m.variance, 1.0 / 12, sqrt(1.0 / 180));
    m = moments_of(tn_uniform(-3, 5, TN_DIMS(MANY)));
    assert_true(m.low >= -3.0 && m.high <= 5.0);
    assert_near(m.mean, 1.0, 8 * sqrt(1.0 / 12));
    m = moments_of(tn_randn(TN_DIMS(MANY)));
    assert_near(m.mean, 0.0, 1.0);
    assert_near(m.variance, 1.0, sqrt(2.0));
    m = moments_of(tn_normal(4, 0.5, TN_DIMS(MANY)));
    assert_near(m.mean, 4.0, 0.5);
    assert_near(m.variance, 0.25, 0.25 * sqrt(2.0));
    m = moments_of(tn_cast(tn_randint(-2, 3, TN_DIMS(MANY)), TN_F32));
    assert_true(m.low == -2.0 && m.high == 2.0);
    assert_near(m.mean, 0.0, sqrt(2.0));
    m = moments_of(tn_bernoulli(tn_full(TN_DIMS(MANY), 0.3, TN_F32)));
    assert_near(m.mean, 0.3, sqrt(0.21));
}

static void a_permutation_holds_every_number_once(void **state) {
    (void)state;
    TN_SCOPE;
    tn_manual_seed(5);
    int64_t order[100], seen[100] = {0}, fixed = 0;
    assert_ok(tn_read(tn_randperm(100), order, sizeof order));
    for (int i = 0; i < 100; i++) {
        assert_in_range(order[i], 0, 99);
        seen[order[i]]++;
        fixed += order[i] == i;
    }
    for (int i = 0; i < 100; i++)
        assert_int_equal(seen[i], 1);
    assert_true(fixed < 10);
    assert_int_equal(tn_numel(tn_randperm(0)), 0);
}

static void wrong_arguments_are_refused(void **state) {
    (void)state;
    TN_SCOPE;
    assert_int_equal(tn_status_of(tn_rand(TN_DIMS(2, -1))), TN_ERR_SHAPE);
    assert_int_equal(tn_status_of(tn_randint(3, 3, TN_DIMS(2))), TN_ERR_ARGUMENT);
    assert_int_equal(tn_status_of(tn_dropout(tn_rand(TN_DIMS(2)), 1.5, true)), TN_ERR_ARGUMENT);
    assert_int_equal(tn_status_of(tn_dropout(NULL, 0.5, true)), TN_ERR_ARGUMENT);
    assert_int_equal(tn_status_of(tn_randperm(-1)), TN_ERR_SHAPE);
}

/* ---- plans and replay -------------------------------------------------------------------------------------------- */

static void new_numbers_need_no_new_plan(void **state) {
    (void)state;
    tn_runtime_stats before = {.struct_size = sizeof before}, after = {.struct_size = sizeof after};
    for (int i = 0; i < 6; i++) {
        {
            TN_SCOPE;
            free(read_floats(tn_dropout(tn_randn(TN_DIMS(3, 5)), 0.5, true)));
        }
        if (i == 0) assert_ok(tn_get_runtime_stats(&before));
    }
    assert_ok(tn_get_runtime_stats(&after));
    assert_int_equal(after.plans_made, before.plans_made);
}

static void a_captured_graph_goes_on_to_new_numbers(void **state) {
    (void)state;
    tn_graph *graph = NULL;
    float values[2][8], recorded[3][8];
    {
        TN_SCOPE;
        tn_manual_seed(11);
        for (int i = 0; i < 3; i++)
            assert_ok(tn_read(tn_rand(TN_DIMS(8)), recorded[i], sizeof recorded[i]));
        tn_manual_seed(11);
        assert_ok(tn_capture_begin());
        tn_tensor *y = tn_rand(TN_DIMS(8));
        assert_ok(tn_capture_end(NULL, 0, &y, 1, &graph));
        for (int i = 0; i < 2; i++) {
            tn_tensor *out = NULL;
            assert_ok(tn_graph_launch(graph, NULL, &out));
            assert_ok(tn_read(out, values[i], sizeof values[i]));
        }
        /* Recording took the first run of numbers. */
        assert_memory_equal(values[0], recorded[1], sizeof values[0]);
        assert_memory_equal(values[1], recorded[2], sizeof values[1]);
    }
    tn_graph_free(graph);
}

/* ---- dropout ----------------------------------------------------------------------------------------------------- */

static void dropout_keeps_the_mean(void **state) {
    (void)state;
    TN_SCOPE;
    tn_manual_seed(2);
    tn_tensor *y = tn_dropout(tn_full(TN_DIMS(MANY), 1.0, TN_F32), 0.2, true);
    moments m = moments_of(y);
    assert_near(m.mean, 1.0, 1.25 * sqrt(0.2 * 0.8));
    assert_true(m.low == 0.0 && fabs(m.high - 1.25) < 1e-6);
    m = moments_of(tn_dropout(tn_full(TN_DIMS(10), 3.0, TN_F32), 1.0, true));
    assert_true(m.low == 0.0 && m.high == 0.0);
    m = moments_of(tn_dropout(tn_full(TN_DIMS(10), 3.0, TN_F32), 0.5, false));
    assert_true(m.low == 3.0 && m.high == 3.0);
}

static void the_backward_pass_draws_the_same_mask(void **state) {
    (void)state;
    for (int read_first = 0; read_first < 2; read_first++) {
        TN_SCOPE;
        tn_tensor *x = tn_full(TN_DIMS(64), 1.0, TN_F32);
        assert_ok(tn_set_requires_grad(x, true));
        tn_tensor *y = tn_dropout(x, 0.5, true), *loss = tn_sum(y, TN_ALL, false);
        if (read_first) tn_item(loss);
        assert_ok(tn_backward(loss));
        float *values = read_floats(y), *grads = read_floats(tn_grad(x));
        assert_memory_equal(values, grads, 64 * sizeof(float));
        free(values);
        free(grads);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_thread_to_draw_has_seed_zero),
        cmocka_unit_test(bits_are_those_of_philox),
        cmocka_unit_test(threads_draw_numbers_of_their_own),
        cmocka_unit_test(equal_seeds_give_equal_numbers),
        cmocka_unit_test(numbers_do_not_depend_on_threads),
        cmocka_unit_test(distributions_are_what_they_say),
        cmocka_unit_test(a_permutation_holds_every_number_once),
        cmocka_unit_test(wrong_arguments_are_refused),
        cmocka_unit_test(new_numbers_need_no_new_plan),
        cmocka_unit_test(a_captured_graph_goes_on_to_new_numbers),
        cmocka_unit_test(dropout_keeps_the_mean),
        cmocka_unit_test(the_backward_pass_draws_the_same_mask),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
