/* test_lbfgs.c — L-BFGS makes PyTorch's steps (tools/pytorch/torch_lbfgs.py), and refuses what it cannot do. */
#include "test_support.h"

#include <math.h>

#include "base/base.h"
#include "trunnion/trunnion.h"

typedef struct task {
    tn_module *root;
    tn_tensor *x;
    int calls, fails_at;
} task;

/* Rosenbrock's function of three variables. */
static tn_tensor *rosenbrock(void *ctx) {
    task *t = ctx;
    if (++t->calls == t->fails_at) return tn_failed(TN_ERR_IO, "on purpose");
    tn_tensor *low = tn_slice(t->x, 0, 0, 2, 1), *high = tn_slice(t->x, 0, 1, 3, 1);
    tn_tensor *bend = tn_sub(high, tn_mul(low, low)), *off = tn_sub(tn_scalar(1), low);
    return tn_sum(tn_add(tn_mul(tn_mul(bend, bend), tn_scalar(100)), tn_mul(off, off)), TN_ALL, false);
}

static task begin(void) {
    task t = {.root = tn_module_root()};
    tn_tensor *start = tn_from_data((double[]){-1.2, 1, 0.7}, TN_DIMS(3), TN_F64);
    t.x = tn_module_add_parameter(t.root, "x", start);
    tn_free(start);
    assert_ok(tn_module_status(t.root));
    return t;
}

static void steps_are_those_of_pytorch(void **state) {
    (void)state;
    static const struct {
        int steps;
        double lr;
        int most, history;
        bool wolfe;
        double first;
        int calls;
        double x[3];
    } rows[] = {
        {1, 1, 20, 100, true, 33.199999999999996, 25, {-0.2529718840522774, 0.04417178427526445, 0.010826592634257799}},
        {3, 1, 20, 100, true, 0.026991029139616565, 61, {1.0000005232787161, 1.0000008819374522, 1.0000013884763783}},
        {4, 1, 5, 2, true, 3.172802270625133, 24, {-0.4065323069974796, 0.16973398840866719, 0.036108649136647145}},
        {2, 0.05, 6, 100, false, 17.874169595730432, 12, {-1.0873334645467283, 0.9644258630501542, 0.7619245599671802}},
        {3, 0.02, 10, 3, false, 17.143963506378185, 30, {-1.1033802762858558, 0.9780436333530316, 0.7870644493492704}},
    };
    for (size_t i = 0; i < TN_COUNT(rows); i++) {
        task t = begin();
        tn_lbfgs_options o = TN_LBFGS_DEFAULTS;
        tn_lbfgs *l;
        double first = 0, x[3];
        o.lr = rows[i].lr;
        o.max_iter = rows[i].most;
        o.history_size = rows[i].history;
        o.strong_wolfe = rows[i].wolfe;
        assert_ok(tn_lbfgs_new(t.root, &o, &l));
        for (int k = 0; k < rows[i].steps; k++)
            assert_ok(tn_lbfgs_step(l, rosenbrock, &t, &first));
        assert_ok(tn_read_as(t.x, x, 3, TN_F64));
        if (t.calls != rows[i].calls) fail_msg("row %zu: %d evaluations, not %d", i, t.calls, rows[i].calls);
        if (fabs(first - rows[i].first) > 1e-6 * rows[i].first) fail_msg("row %zu: loss %.17g", i, first);
        for (int k = 0; k < 3; k++)
            if (fabs(x[k] - rows[i].x[k]) > 1e-6) fail_msg("row %zu: x[%d] is %.17g", i, k, x[k]);
        tn_lbfgs_free(l);
        tn_module_free(t.root);
    }
}

static void a_failing_loss_leaves_the_last_point(void **state) {
    (void)state;
    task t = begin();
    tn_lbfgs_options o = TN_LBFGS_DEFAULTS;
    tn_lbfgs *l;
    double value = 0, x[3];
    o.strong_wolfe = true;
    t.fails_at = 2;
    assert_ok(tn_lbfgs_new(t.root, &o, &l));
    assert_int_equal(tn_lbfgs_step(l, rosenbrock, &t, &value), TN_ERR_IO);
    assert_ok(tn_read_as(t.x, x, 3, TN_F64));
    assert_true(x[0] == -1.2 && x[1] == 1 && x[2] == 0.7);
    assert_null(tn_grad(t.x));
    assert_ok(tn_lbfgs_step(l, rosenbrock, &t, &value));
    tn_lbfgs_free(l);
    o.history_size = 0;
    assert_int_equal(tn_lbfgs_new(t.root, &o, &l), TN_ERR_ARGUMENT);
    assert_ok(tn_set_requires_grad(t.x, false));
    assert_int_equal(tn_lbfgs_new(t.root, NULL, &l), TN_ERR_ARGUMENT);
    assert_text_has(tn_error(), "nothing to train");
    tn_module_free(t.root);
}

/* Whichever allocation fails: an error, parameters that are numbers, and the next step works. */
static void failing_memory_leaves_numbers(void **state) {
    (void)state;
    enum { MOST = 4000, STRIDE = 7 };
    tn_status status = TN_ERR_MEMORY;
    int failed = 0;
    for (int64_t n = 1; n < MOST && status != TN_OK; n += STRIDE) {
        task t = begin();
        tn_lbfgs_options o = TN_LBFGS_DEFAULTS;
        tn_lbfgs *l;
        double x[3];
        o.max_iter = 4;
        o.strong_wolfe = true;
        assert_ok(tn_lbfgs_new(t.root, &o, &l));
        tn_mem_fail_at(n);
        status = tn_lbfgs_step(l, rosenbrock, &t, NULL);
        tn_mem_fail_at(0);
        failed += status != TN_OK;
        assert_ok(tn_read_as(t.x, x, 3, TN_F64));
        assert_true(isfinite(x[0]) && isfinite(x[1]) && isfinite(x[2]));
        assert_ok(tn_lbfgs_step(l, rosenbrock, &t, NULL));
        assert_ok(tn_read_as(t.x, x, 3, TN_F64));
        assert_true(isfinite(x[0]) && isfinite(x[1]) && isfinite(x[2]));
        tn_lbfgs_free(l);
        tn_module_free(t.root);
    }
    assert_true(failed > 10);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_are_those_of_pytorch),
        cmocka_unit_test(a_failing_loss_leaves_the_last_point),
        cmocka_unit_test(failing_memory_leaves_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
