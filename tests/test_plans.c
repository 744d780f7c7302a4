/* test_plans.c — what a plan costs to make, when one is found again, and what becomes of it. */
#include "test_support.h"

#include "core/core.h"
#include "trunnion/autograd.h"
#include "trunnion/ops.h"

static tn_runtime_stats stats_now(void) {
    tn_runtime_stats s = {.struct_size = sizeof s};
    assert_ok(tn_get_runtime_stats(&s));
    return s;
}

static tn_tensor *evaluated(tn_tensor *t) {
    assert_ok(tn_eval(&t, 1));
    return tn_keep(t);
}

/* ---- long recordings --------------------------------------------------------------------------------------------- */

enum { BATCH = 2, HIDDEN = 16, FEATURES = 4 };

typedef struct lstm {
    tn_tensor *w, *u, *b, *x, *zero;
} lstm;

static lstm lstm_new(int steps) {
    TN_SCOPE;
    lstm m = {.w = evaluated(tn_mul_scalar(tn_randn(TN_DIMS(FEATURES, 4 * HIDDEN)), 0.1)),
              .u = evaluated(tn_mul_scalar(tn_randn(TN_DIMS(HIDDEN, 4 * HIDDEN)), 0.1)),
              .b = evaluated(tn_zeros(TN_DIMS(4 * HIDDEN), TN_F32)),
              .x = evaluated(tn_randn(TN_DIMS(steps, BATCH, FEATURES))),
              .zero = evaluated(tn_zeros(TN_DIMS(BATCH, HIDDEN), TN_F32))};
    assert_ok(tn_set_requires_grad(m.w, true));
    assert_ok(tn_set_requires_grad(m.u, true));
    assert_ok(tn_set_requires_grad(m.b, true));
    return m;
}

static tn_tensor *gate(const tn_tensor *sums, int number) { return tn_narrow(sums, 1, number * HIDDEN, HIDDEN); }

/* One cell; both states are replaced, and kept from the scope. */
static void lstm_cell(const lstm *m, int step, tn_tensor **h, tn_tensor **c) {
    tn_scope scope = tn_scope_begin();
    tn_tensor *sums = tn_add(tn_add(tn_matmul(tn_select(m->x, 0, step), m->w), tn_matmul(*h, m->u)), m->b);
    tn_tensor *kept = tn_mul(tn_sigmoid(gate(sums, 0)), *c);
    tn_tensor *cell = tn_add(kept, tn_mul(tn_sigmoid(gate(sums, 1)), tn_tanh(gate(sums, 2))));
    tn_tensor *out = tn_mul(tn_sigmoid(gate(sums, 3)), tn_tanh(cell));
    tn_keep(cell);
    tn_keep(out);
    tn_scope_end(&scope);
    tn_free(*h);
    tn_free(*c);
    *h = out;
    *c = cell;
}

static void take_gradient(tn_tensor *parameter) {
    bool before = tn_set_grad_enabled(false);
    tn_tensor *g = tn_grad(parameter), *scaled = tn_mul_scalar(g, 0.01);
    tn_sub_(parameter, scaled);
    tn_free(scaled);
    tn_free(g);
    (void)tn_set_grad_enabled(before);
    tn_zero_grad(parameter);
}

static double lstm_step(const lstm *m, int steps) {
    tn_tensor *h = tn_add_scalar(m->zero, 0), *c = tn_add_scalar(m->zero, 0);
    for (int t = 0; t < steps; t++)
        lstm_cell(m, t, &h, &c);
    tn_tensor *squares = tn_mul(h, h), *loss = tn_mean(squares, TN_ALL, false);
    assert_ok(tn_backward(loss));
    take_gradient(m->w);
    take_gradient(m->u);
    take_gradient(m->b);
    double value = tn_item(loss);
    tn_free(loss);
    tn_free(squares);
    tn_free(h);
    tn_free(c);
    return value;
}

static void lstm_free(lstm *m) {
    tn_free(m->w);
    tn_free(m->u);
    tn_free(m->b);
    tn_free(m->x);
    tn_free(m->zero);
}

static int64_t work_of_plans(void) {
    const tn_plan_cache *c = tn_plans_of(tn_recorder_here());
    int64_t work = 0;
    for (int i = 0; i < c->count; i++)
        work += c->plans[i]->planning_work;
    return work;
}

/* More nodes than an unasked flush waits for. */
static void a_long_step_is_planned_once(void **state) {
    (void)state;
    lstm m = lstm_new(400);
    double first = lstm_step(&m, 400);
    tn_runtime_stats before = stats_now();
    double second = lstm_step(&m, 400);
    tn_runtime_stats after = stats_now();
    assert_true(second < first);
    assert_int_equal(after.plan_misses, before.plan_misses);
    assert_int_equal(after.plans_made, before.plans_made);
    lstm_free(&m);
}

/* Four times the steps, four times the work: 4.5 leaves room for what is logarithmic. */
static void planning_is_linear_in_nodes(void **state) {
    (void)state;
    int64_t work[2];
    for (int i = 0; i < 2; i++) {
        int steps = i ? 800 : 200;
        lstm m = lstm_new(steps);
        int64_t before = work_of_plans();
        lstm_step(&m, steps);
        work[i] = work_of_plans() - before;
        lstm_free(&m);
    }
    if ((double)work[1] > 4.5 * (double)work[0])
        fail_msg("planning took %lld looks for 200 steps, %lld for 800", (long long)work[0], (long long)work[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_long_step_is_planned_once),
        cmocka_unit_test(planning_is_linear_in_nodes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
