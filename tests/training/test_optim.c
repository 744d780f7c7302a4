/* test_optim.c — optimisers against PyTorch's trajectories (tests/golden/optim.h),
 * schedules, clipping, all or nothing. */
#include "test_support.h"

#include <math.h>

#include "tests/golden/optim.h"
#include "trunnion/trunnion.h"

/* ---- the problem of tools/pytorch/torch_optim.py ----------------------------------------------------------------- */

static const float start[2][3] = {{0.5F, -1.25F, 2.0F}, {0.75F, -0.1F}};
static const float a_of[2][3] = {{1.0F, 0.5F, 2.0F}, {3.0F, 0.25F}};
static const float b_of[2][3] = {{0.3F, -0.7F, 1.1F}, {-0.2F, 0.9F}};
static const int64_t extents[2] = {3, 2};

typedef struct problem {
    tn_module *root;
    tn_tensor *w[2];
} problem;

static problem problem_new(void) {
    problem p = {.root = tn_module_root()};
    {
        TN_SCOPE;
        p.w[0] = tn_module_add_parameter(p.root, "first", tn_from_data(start[0], &extents[0], 1, TN_F32));
        p.w[1] = tn_module_add_parameter(p.root, "second", tn_from_data(start[1], &extents[1], 1, TN_F32));
    }
    assert_int_equal(tn_module_status(p.root), TN_OK);
    return p;
}

static tn_tensor *problem_loss(const problem *p) {
    tn_tensor *loss = NULL;
    for (int i = 0; i < 2; i++) {
        tn_tensor *a = tn_from_data(a_of[i], &extents[i], 1, TN_F32),
                  *b = tn_from_data(b_of[i], &extents[i], 1, TN_F32);
        tn_tensor *square = tn_mul(tn_mul(a, tn_scalar(0.5)), tn_mul(p->w[i], p->w[i]));
        tn_tensor *part = tn_sum(tn_add(square, tn_mul(b, tn_sin(p->w[i]))), NULL, 0, false);
        loss = loss ? tn_add(loss, part) : part;
    }
    return loss;
}

static void problem_read(const problem *p, float out[5]) {
    assert_int_equal(tn_read(p->w[0], out, 3 * sizeof *out), TN_OK);
    assert_int_equal(tn_read(p->w[1], out + 3, 2 * sizeof *out), TN_OK);
}

static double rate(int64_t step) {
    tn_schedule s = TN_SCHEDULE_DEFAULTS;
    s.kind = TN_SCHEDULE_COSINE;
    s.lr = 0.1;
    s.final_lr = 0.01;
    s.total = GOLDEN_TOTAL;
    return tn_schedule_at(&s, step);
}

static void assert_near(const float *got, const double *expected, int n, const char *name, int step) {
    for (int i = 0; i < n; i++) {
        if (fabs(got[i] - expected[i]) <= 2e-6 * (1 + fabs(expected[i]))) continue;
        fail_msg("%s, step %d, number %d: %.9g, PyTorch has %.9g", name, step, i, (double)got[i], expected[i]);
    }
}

/* ---- golden trajectories ----------------------------------------------------------------------------------------- */

typedef tn_status maker(tn_module *m, const void *options, tn_optimizer **out);
static tn_status make_sgd(tn_module *m, const void *o, tn_optimizer **out) { return tn_optimizer_sgd(m, o, out); }
static tn_status make_adam(tn_module *m, const void *o, tn_optimizer **out) { return tn_optimizer_adam(m, o, out); }
static tn_status make_adamw(tn_module *m, const void *o, tn_optimizer **out) { return tn_optimizer_adamw(m, o, out); }
static tn_status make_rmsprop(tn_module *m, const void *o, tn_optimizer **out) {
    return tn_optimizer_rmsprop(m, o, out);
}
static tn_status make_adagrad(tn_module *m, const void *o, tn_optimizer **out) {
    return tn_optimizer_adagrad(m, o, out);
}
static tn_status make_lion(tn_module *m, const void *o, tn_optimizer **out) { return tn_optimizer_lion(m, o, out); }
static tn_status make_lamb(tn_module *m, const void *o, tn_optimizer **out) { return tn_optimizer_lamb(m, o, out); }

static tn_status make_adafactor(tn_module *m, const void *o, tn_optimizer **out) {
    return tn_optimizer_adafactor(m, o, out);
}
static tn_status make_muon(tn_module *m, const void *o, tn_optimizer **out) { return tn_optimizer_muon(m, o, out); }

/* The second variable in a group with a tenth of the rate and a weight decay of its own; the first one is left. */
static tn_status make_groups(tn_module *m, const void *unused, tn_optimizer **out) {
    (void)unused;
    tn_tensor *second = tn_module_variable(m, "second");
    tn_param_group slow = TN_PARAM_GROUP_DEFAULTS;
    slow.params = &second;
    slow.count = 1;
    slow.lr_factor = 0.1;
    slow.weight_decay = 0.2;
    tn_adam_options o = TN_ADAMW_DEFAULTS;
    o.groups = (const tn_param_group *[]){&slow};
    o.group_count = 1;
    return tn_optimizer_adamw(m, &o, out);
}

/* All settings that the groups have of their own; the optimizer's would give other results. */
static tn_status make_own_groups(tn_module *m, const void *unused, tn_optimizer **out) {
    (void)unused;
    tn_tensor *both[] = {tn_module_variable(m, "first"), tn_module_variable(m, "second")};
    tn_param_group groups[] = {TN_PARAM_GROUP_DEFAULTS, TN_PARAM_GROUP_DEFAULTS};
    for (int i = 0; i < 2; i++) {
        groups[i].params = &both[i];
        groups[i].count = 1;
        groups[i].weight_decay = 0.05;
        groups[i].beta1 = 0.8;
        groups[i].beta2 = 0.99;
        groups[i].eps = 1e-6;
    }
    tn_adam_options o = TN_ADAM_DEFAULTS;
    o.groups = (const tn_param_group *[]){&groups[0], &groups[1]};
    o.group_count = 2;
    return tn_optimizer_adam(m, &o, out);
}

typedef struct golden_run {
    const char *name;
    maker *make;
    const void *options;
    const double (*expected)[GOLDEN_NUMBERS];
} golden_run;

/* All fields in their order: a constant needs no statement. */
#define SGD(...) \
    &(const tn_sgd_options) { TN_OPTIONS_SIZE(tn_sgd_options, max_grad_norm), __VA_ARGS__, NULL, 0 }
#define ADAM(...) \
    &(const tn_adam_options) { TN_OPTIONS_SIZE(tn_adam_options, max_grad_norm), __VA_ARGS__, false, NULL, 0 }
#define OPTIONS(type, ...) \
    &(const type) { TN_OPTIONS_SIZE(type, group_count), __VA_ARGS__, NULL, 0 }

static const golden_run runs[] = {
    {"sgd", make_sgd, NULL, golden_sgd},
    {"sgd with momentum", make_sgd, SGD(1e-3, 0.9, 0, 0, false, INFINITY), golden_sgd_momentum},
    {"sgd with dampening", make_sgd, SGD(1e-3, 0.9, 0.3, 0.05, false, INFINITY), golden_sgd_dampening},
    {"sgd with nesterov", make_sgd, SGD(1e-3, 0.9, 0, 0.05, true, INFINITY), golden_sgd_nesterov},
    {"adam", make_adam, NULL, golden_adam},
    {"adam with decay", make_adam, ADAM(1e-3, 0.8, 0.99, 1e-6, 0.05, INFINITY), golden_adam_decay},
    {"adam with betas and eps of groups", make_own_groups, NULL, golden_adam_decay},
    {"adam, clipped", make_adam, ADAM(1e-3, 0.9, 0.999, 1e-8, 0, 0.5), golden_adam_clipped},
    {"adamw", make_adamw, NULL, golden_adamw},
    {"adam with amsgrad", make_adam, OPTIONS(tn_adam_options, 1e-3, 0.9, 0.999, 1e-8, 0.05, INFINITY, true),
     golden_adam_amsgrad},
    {"adamw with amsgrad", make_adamw, OPTIONS(tn_adam_options, 1e-3, 0.5, 0.6, 1e-8, 0.01, INFINITY, true),
     golden_adamw_amsgrad},
    {"rmsprop", make_rmsprop, NULL, golden_rmsprop},
    {"rmsprop, centered", make_rmsprop, OPTIONS(tn_rmsprop_options, 1e-2, 0.9, 0.1, 0.9, 0.05, true, INFINITY),
     golden_rmsprop_centered},
    {"adagrad", make_adagrad, NULL, golden_adagrad},
    {"adagrad with decay", make_adagrad, OPTIONS(tn_adagrad_options, 1e-2, 0.1, 0.05, 0.5, 1e-10, INFINITY),
     golden_adagrad_decay},
    {"lion", make_lion, OPTIONS(tn_lion_options, 1e-4, 0.9, 0.99, 0.1, INFINITY), golden_lion},
    {"lamb", make_lamb, OPTIONS(tn_lamb_options, 1e-3, 0.9, 0.999, 1e-6, 0.1, INFINITY), golden_lamb},
    {"groups", make_groups, NULL, golden_groups},
    {"adafactor", make_adafactor, OPTIONS(tn_adafactor_options, 1e-2, -0.8, TN_AUTO, 1e-3, 1, 0.05, INFINITY),
     golden_adafactor_vectors},
};

/* together: tn_minimize; separate: zero_grad, backward and step one by one, as in PyTorch; captured: a graph; scaled:
 * the loss, so that the device counts the steps. */
typedef enum way { TOGETHER, SEPARATE, CAPTURED, SCALED } way;

static void follow(const golden_run *g, way how) {
    problem p = problem_new();
    tn_optimizer *o = NULL;
    tn_graph *graph = NULL;
    assert_int_equal(g->make(p.root, g->options, &o), TN_OK);
    if (how == SCALED) assert_ok(tn_optimizer_set_grad_scaler(o, NULL));
    int shown = 0;
    for (int step = 0; step < GOLDEN_TOTAL; step++) {
        tn_optimizer_set_lr(o, rate(step));
        if (graph) {
            assert_ok(tn_graph_launch(graph, NULL, NULL));
        } else {
            TN_SCOPE;
            if (how == CAPTURED) assert_ok(tn_capture_begin());
            tn_tensor *loss = problem_loss(&p);
            if (how != SEPARATE) {
                assert_int_equal(tn_minimize(o, loss), TN_OK);
            } else {
                tn_optimizer_zero_grad(o);
                assert_int_equal(tn_backward(loss), TN_OK);
                assert_int_equal(tn_optimizer_step(o), TN_OK);
            }
            if (how == CAPTURED) assert_ok(tn_capture_end(NULL, 0, NULL, 0, &graph));
        }
        if (step + 1 != golden_steps[shown]) continue;
        float got[5];
        problem_read(&p, got);
        assert_near(got, g->expected[shown++], GOLDEN_NUMBERS, g->name, step + 1);
    }
    assert_int_equal(tn_optimizer_steps(o, 0), GOLDEN_TOTAL);
    tn_graph_free(graph);
    tn_optimizer_free(o);
    tn_module_free(p.root);
}

static void optimizers_follow_pytorch(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++)
        follow(&runs[i], TOGETHER);
}

static void separate_calls_do_the_same(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++)
        follow(&runs[i], SEPARATE);
}

static void captured_steps_do_the_same(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++)
        follow(&runs[i], CAPTURED);
}

static void scaled_steps_do_the_same(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++)
        follow(&runs[i], SCALED);
}

/* ---- matrices ---------------------------------------------------------------------------------------------------- */

static const float matrices[2][6] = {{0.5F, -1.25F, 2.0F, 0.75F, -0.1F, 0.3F}, {1.0F, -0.5F, 0.25F, 0.3F, 0.8F, -1.1F}};

static const struct {
    const char *name;
    maker *make;
    const void *options;
    const double (*expected)[GOLDEN_MATRIX_NUMBERS];
} matrix_runs[] = {
    {"adafactor", make_adafactor, OPTIONS(tn_adafactor_options, 1e-2, -0.8, TN_AUTO, 1e-3, 1, 0.05, INFINITY),
     golden_adafactor},
    {"adafactor with settings", make_adafactor, OPTIONS(tn_adafactor_options, 1e-2, -0.5, 1e-4, 0.1, 2, 0, INFINITY),
     golden_adafactor_settings},
    {"muon", make_muon, NULL, golden_muon},
    {"muon, as adamw", make_muon,
     OPTIONS(tn_muon_options, 1e-3, 0.95, 0.1, true, {3.4445, -4.775, 2.0315}, 1e-7, 5, true, INFINITY),
     golden_muon_match},
};

static tn_tensor *matrix_loss(tn_tensor *const *w) {
    tn_tensor *loss = NULL;
    for (int i = 0; i < 2; i++) {
        tn_tensor *place = tn_reshape(tn_arange(0, 6, 1, TN_F32), tn_shape(w[i]), 2);
        tn_tensor *a = tn_add_scalar(tn_mul_scalar(place, 0.5), 1),
                  *b = tn_rsub_scalar(tn_mul_scalar(place, 0.25), 0.5);
        tn_tensor *square = tn_mul(tn_mul_scalar(a, 0.5), tn_mul(w[i], w[i]));
        tn_tensor *part = tn_sum(tn_add(square, tn_mul(b, tn_sin(w[i]))), TN_ALL, false);
        loss = loss ? tn_add(loss, part) : part;
    }
    return loss;
}

static void methods_for_matrices_follow_pytorch(void **state) {
    (void)state;
    for (size_t r = 0; r < TN_COUNT(matrix_runs); r++)
        for (int how = TOGETHER; how <= SCALED; how++) {
            tn_module *root = tn_module_root();
            tn_tensor *w[2];
            tn_optimizer *o = NULL;
            tn_graph *graph = NULL;
            {
                TN_SCOPE;
                w[0] = tn_module_add_parameter(root, "tall", tn_from_data(matrices[0], TN_DIMS(3, 2), TN_F32));
                w[1] = tn_module_add_parameter(root, "wide", tn_from_data(matrices[1], TN_DIMS(2, 3), TN_F32));
            }
            assert_ok(matrix_runs[r].make(root, matrix_runs[r].options, &o));
            if (how == SCALED) assert_ok(tn_optimizer_set_grad_scaler(o, NULL));
            for (int step = 0, shown = 0; step < GOLDEN_TOTAL; step++) {
                TN_SCOPE;
                float got[12];
                tn_optimizer_set_lr(o, rate(step));
                if (graph) {
                    assert_ok(tn_graph_launch(graph, NULL, NULL));
                } else {
                    if (how == CAPTURED) assert_ok(tn_capture_begin());
                    assert_ok(tn_minimize(o, matrix_loss(w)));
                    if (how == CAPTURED) assert_ok(tn_capture_end(NULL, 0, NULL, 0, &graph));
                }
                if (step + 1 != golden_steps[shown]) continue;
                assert_ok(tn_read(w[0], got, 6 * sizeof *got));
                assert_ok(tn_read(w[1], got + 6, 6 * sizeof *got));
                /* f32 rounds Newton–Schulz by the order of its sums; its steps amplify that */
                bool muon = matrix_runs[r].make == make_muon;
                for (int i = 0; i < 12; i++) {
                    double expected = matrix_runs[r].expected[shown][i];
                    if (!(fabs((double)got[i] - expected) <= (muon ? 2e-5 : 2e-6) * (1 + fabs(expected))))
                        fail_msg("%s, way %d, step %d, number %d: %.9g, PyTorch has %.9g", matrix_runs[r].name, how,
                                 step + 1, i, (double)got[i], expected);
                }
                shown++;
            }
            tn_graph_free(graph);
            tn_optimizer_free(o);
            tn_module_free(root);
        }
    problem p = problem_new();
    tn_optimizer *o;
    assert_int_equal(tn_optimizer_muon(p.root, NULL, &o), TN_ERR_SHAPE);
    assert_text_has(tn_error(), "first has 1 dimensions");
    tn_module_free(p.root);
}

/* ---- plain tensors ----------------------------------------------------------------------------------------------- */

/* An optimizer for tensors of no module has the steps of one for a module, and names for a checkpoint. */
static void plain_tensors_are_optimized(void **state) {
    (void)state;
    problem p = problem_new(), q = {.root = NULL};
    for (int i = 0; i < 2; i++) {
        q.w[i] = tn_from_data(start[i], &extents[i], 1, TN_F32);
        assert_ok(tn_set_requires_grad(q.w[i], true));
    }
    tn_param_group all = TN_PARAM_GROUP_DEFAULTS;
    all.params = q.w;
    all.count = 2;
    all.names = (const char *const[]){"mine", NULL};
    tn_adam_options options = TN_ADAM_DEFAULTS;
    options.groups = (const tn_param_group *[]){&all};
    options.group_count = 1;
    tn_optimizer *o[2];
    assert_ok(tn_optimizer_adam(p.root, NULL, &o[0]));
    assert_ok(tn_optimizer_adam(NULL, &options, &o[1]));
    for (int step = 0; step < 5; step++) {
        TN_SCOPE;
        assert_ok(tn_minimize(o[0], problem_loss(&p)));
        assert_ok(tn_minimize(o[1], problem_loss(&q)));
    }
    float got[5], expected[5];
    problem_read(&p, expected);
    problem_read(&q, got);
    assert_memory_equal(got, expected, sizeof got);
    tn_variable *items;
    int count;
    assert_ok(tn_optimizer_variables(o[1], &items, &count));
    assert_string_equal(items[0].name, "exp_avg.mine");
    assert_string_equal(items[1].name, "exp_avg.0.1");
    tn_variables_free(items);
    tn_optimizer_free(o[0]);
    tn_optimizer_free(o[1]);
    tn_free(q.w[0]);
    tn_free(q.w[1]);
    tn_module_free(p.root);
}

static void wrong_groups_are_refused(void **state) {
    (void)state;
    problem p = problem_new();
    tn_tensor *constant = tn_ones(TN_DIMS(2), TN_F32), *params[] = {p.w[0], p.w[0], constant, NULL};
    tn_param_group g = TN_PARAM_GROUP_DEFAULTS;
    tn_sgd_options options = TN_SGD_DEFAULTS;
    options.groups = (const tn_param_group *[]){&g};
    options.group_count = 1;
    tn_optimizer *o;
    const struct {
        int first, count;
        double lr_factor;
        const char *words;
    } rows[] = {{0, 2, 1, "is in group 0 already, as first"},
                {2, 1, 1, "does not require gradients"},
                {3, 1, 1, "is NULL"},
                {0, 1, -1, "lr_factor is -1"},
                {0, -1, 1, "group 0 has -1 tensors"}};
    for (size_t i = 0; i < TN_COUNT(rows); i++) {
        g.params = params + rows[i].first;
        g.count = rows[i].count;
        g.lr_factor = rows[i].lr_factor;
        assert_int_equal(tn_optimizer_sgd(p.root, &options, &o), TN_ERR_ARGUMENT);
        assert_text_has(tn_error(), rows[i].words);
    }
    g = (tn_param_group)TN_PARAM_GROUP_DEFAULTS;
    g.beta1 = 0.5;
    assert_int_equal(tn_optimizer_sgd(p.root, &options, &o), TN_ERR_ARGUMENT);
    assert_text_has(tn_error(), "a group sets beta1 to 0.5, which sgd does not have");
    tn_adam_options adam = TN_ADAM_DEFAULTS;
    adam.groups = options.groups;
    adam.group_count = 1;
    g.beta1 = 1;
    assert_int_equal(tn_optimizer_adam(p.root, &adam, &o), TN_ERR_ARGUMENT);
    assert_text_has(tn_error(), "beta1 is 1");
    options.group_count = -1;
    assert_int_equal(tn_optimizer_sgd(p.root, &options, &o), TN_ERR_ARGUMENT);
    options.group_count = 0;
    assert_int_equal(tn_optimizer_sgd(NULL, &options, &o), TN_ERR_ARGUMENT);
    tn_free(constant);
    tn_module_free(p.root);
}

/* The function without an optimizer has the bits of the optimizer. */
static void fused_adam_is_adam(void **state) {
    (void)state;
    for (int decoupled = 0; decoupled < 2; decoupled++) {
        problem p = problem_new(), q = problem_new();
        const tn_adam_options *options = ADAM(0.01, 0.8, 0.99, 1e-6, 0.05, 0.7);
        tn_optimizer *o;
        assert_ok((decoupled ? tn_optimizer_adamw : tn_optimizer_adam)(p.root, options, &o));
        tn_tensor *mean[2], *square[2];
        for (int i = 0; i < 2; i++) {
            mean[i] = tn_zeros(&extents[i], 1, TN_F32);
            square[i] = tn_zeros(&extents[i], 1, TN_F32);
        }
        for (int step = 1; step <= 5; step++) {
            TN_SCOPE;
            assert_ok(tn_minimize(o, problem_loss(&p)));
            assert_ok(tn_backward(problem_loss(&q)));
            tn_tensor *grads[] = {tn_grad(q.w[0]), tn_grad(q.w[1])};
            assert_ok(
                (decoupled ? tn_fused_adamw_step : tn_fused_adam_step)(q.w, grads, mean, square, 2, step, options));
            tn_zero_grad(q.w[0]);
            tn_zero_grad(q.w[1]);
            assert_ok(tn_eval(NULL, 0));
        }
        float got[5], expected[5];
        problem_read(&p, expected);
        problem_read(&q, got);
        assert_memory_equal(got, expected, sizeof got);
        TN_SCOPE;
        tn_tensor *wrong[] = {tn_zeros(TN_DIMS(4), TN_F32), tn_zeros(TN_DIMS(2), TN_F32)};
        assert_int_equal(tn_fused_adam_step(q.w, wrong, mean, square, 2, 6, NULL), TN_ERR_SHAPE);
        assert_int_equal(tn_fused_adam_step(q.w, mean, mean, square, 2, 0, NULL), TN_ERR_ARGUMENT);
        problem_read(&q, got);
        assert_memory_equal(got, expected, sizeof got);
        for (int i = 0; i < 2; i++) {
            tn_free(mean[i]);
            tn_free(square[i]);
        }
        tn_optimizer_free(o);
        tn_module_free(p.root);
        tn_module_free(q.root);
    }
}

/* What a step writes keeps its memory, so a step needs no other; views can be written too. */
static void fused_adam_steps_in_place(void **state) {
    (void)state;
    enum { SIDE = 512 };
    const int64_t shape[] = {SIDE, SIDE}, bytes = SIDE * SIDE * (int64_t)sizeof(float);
    TN_SCOPE;
    tn_tensor *t[4], *all[] = {tn_ones(shape, 2, TN_F32)};
    for (int i = 0; i < 4; i++)
        t[i] = i == 1 ? tn_ones(shape, 2, TN_F32) : tn_zeros(shape, 2, TN_F32);
    assert_ok(tn_eval(t, 4));
    tn_pool_stats now = {.struct_size = sizeof now}, after = now;
    for (int step = 1; step <= 3; step++) {
        if (step == 2) {
            tn_device_reset_pool_peak(tn_device_of(t[0]));
            assert_ok(tn_device_get_pool_stats(tn_device_of(t[0]), &now));
        }
        assert_ok(tn_fused_adam_step(t, t + 1, t + 2, t + 3, 1, step, NULL));
        assert_ok(tn_eval(NULL, 0));
    }
    assert_ok(tn_device_get_pool_stats(tn_device_of(t[0]), &after));
    if (after.peak_bytes - now.in_use_bytes >= bytes)
        fail_msg("a step took %lld bytes more than the tensors", (long long)(after.peak_bytes - now.in_use_bytes));
    double moved = tn_item(tn_select(tn_select(t[0], 0, 3), 0, 5));
    if (!(fabs(moved + 3e-3) < 1e-6)) fail_msg("after three steps of 1e-3 a parameter is %g", moved);
    tn_tensor *view = tn_select(all[0], 0, 2), *zeros[2] = {tn_zeros_like(view), tn_zeros_like(view)},
              *ones = tn_ones_like(view);
    assert_ok(tn_fused_adam_step(&view, &ones, zeros, zeros + 1, 1, 1, NULL));
    double sum = tn_item(tn_sum(all[0], NULL, 0, false));
    if (!(fabs(sum - (SIDE * SIDE - SIDE * 1e-3)) < 1e-2)) fail_msg("the view's base sums up to %.9g", sum);
}

/* At the call, not at the next read; the first pair is not written either. */
static void fused_adam_refuses_what_it_cannot_write(void **state) {
    (void)state;
    const int64_t shape[] = {3, 2};
    TN_SCOPE;
    tn_tensor *one = tn_ones(shape, 2, TN_F32), *good[4], *bad[4];
    for (int i = 0; i < 4; i++)
        good[i] = bad[i] = i == 1 ? tn_ones(shape, 2, TN_F32) : tn_zeros(shape, 2, TN_F32);
    for (int which = 0; which < 4; which++) {
        if (which == 1) continue; /* gradients are only read */
        bad[which] = tn_expand(tn_ones(TN_DIMS(3, 1), TN_F32), shape, 2);
        tn_tensor *pairs[4][2];
        for (int i = 0; i < 4; i++)
            pairs[i][0] = good[i], pairs[i][1] = bad[i];
        assert_int_equal(tn_fused_adam_step(pairs[0], pairs[1], pairs[2], pairs[3], 2, 1, NULL), TN_ERR_ARGUMENT);
        assert_non_null(strstr(tn_error(), "share memory"));
        bad[which] = good[which];
    }
    tn_tensor *whole[4];
    for (int i = 0; i < 4; i++)
        whole[i] = tn_cast(one, TN_I32);
    assert_int_equal(tn_fused_adamw_step(whole, whole + 1, whole + 2, whole + 3, 1, 1, NULL), TN_ERR_DTYPE);
    assert_true(tn_item(tn_sum(good[0], NULL, 0, false)) == 0);
}

/* The gradients of parts, each divided by their number, add up to those of the whole. */
static void gradients_accumulate_over_parts(void **state) {
    (void)state;
    problem p = problem_new(), q = problem_new();
    tn_optimizer *o[2];
    assert_ok(tn_optimizer_adam(p.root, NULL, &o[0]));
    assert_ok(tn_optimizer_adam(q.root, NULL, &o[1]));
    for (int step = 0; step < 4; step++) {
        TN_SCOPE;
        assert_ok(tn_minimize(o[0], problem_loss(&p)));
        tn_optimizer_zero_grad(o[1]);
        for (int part = 0; part < 4; part++)
            assert_ok(tn_backward(tn_mul_scalar(problem_loss(&q), 0.25)));
        assert_ok(tn_optimizer_step(o[1]));
    }
    float got[5], expected[5];
    problem_read(&p, expected);
    problem_read(&q, got);
    assert_memory_equal(got, expected, sizeof got); /* quarters are exact */
    tn_optimizer_free(o[0]);
    tn_optimizer_free(o[1]);
    tn_module_free(p.root);
    tn_module_free(q.root);
}

/* ---- what a step promises ---------------------------------------------------------------------------------------- */

static void steps_share_one_plan(void **state) {
    (void)state;
    problem p = problem_new();
    tn_optimizer *o;
    assert_ok(tn_optimizer_adamw(p.root, NULL, &o));
    int64_t plans = 0;
    for (int step = 0; step < 6; step++) {
        tn_optimizer_set_lr(o, rate(step));
        {
            TN_SCOPE;
            assert_ok(tn_minimize(o, problem_loss(&p)));
        }
        tn_runtime_stats now = {.struct_size = sizeof now};
        assert_ok(tn_get_runtime_stats(&now));
        if (step == 1) plans = now.plans_made;
        if (step > 1) assert_int_equal(now.plans_made, plans);
    }
    tn_optimizer_free(o);
    tn_module_free(p.root);
}

/* Recorded once and launched: the same numbers as steps that are recorded each time. */
static void a_captured_step_is_a_step(void **state) {
    (void)state;
    enum { LAUNCHES = 4 };
    tn_sgd_options options = TN_SGD_DEFAULTS;
    options.lr = 0.05;
    float results[2][5], losses[2] = {0, 0};
    for (int captured = 0; captured < 2; captured++) {
        problem p = problem_new();
        tn_optimizer *o;
        assert_ok(tn_optimizer_sgd(p.root, &options, &o));
        tn_graph *graph = NULL;
        for (int step = 0; step <= LAUNCHES; step++) {
            TN_SCOPE;
            tn_tensor *loss = NULL;
            if (captured && step > 0) {
                assert_ok(tn_graph_launch(graph, NULL, &loss));
            } else {
                if (captured) assert_ok(tn_capture_begin());
                loss = problem_loss(&p);
                assert_ok(tn_minimize(o, loss));
                if (captured) assert_ok(tn_capture_end(NULL, 0, &loss, 1, &graph));
            }
            losses[captured] = (float)tn_item(loss);
        }
        problem_read(&p, results[captured]);
        tn_graph_free(graph);
        tn_optimizer_free(o);
        tn_module_free(p.root);
    }
    assert_memory_equal(results[0], results[1], sizeof results[0]);
    assert_memory_equal(&losses[0], &losses[1], sizeof losses[0]);
}

static void a_failed_loss_changes_nothing(void **state) {
    (void)state;
    problem p = problem_new();
    tn_optimizer *o;
    float before[5], after[5];
    assert_ok(tn_optimizer_sgd(p.root, SGD(1e-3, 0.5, 0, 0, false, INFINITY), &o));
    {
        TN_SCOPE;
        assert_ok(tn_minimize(o, problem_loss(&p)));
    }
    problem_read(&p, before);
    {
        TN_SCOPE;
        tn_tensor *wrong = tn_add(p.w[0], p.w[1]); /* 3 and 2 numbers do not fit */
        assert_int_equal(tn_minimize(o, tn_sum(wrong, NULL, 0, false)), TN_ERR_SHAPE);
        assert_text_has(tn_error(), "add");
        tn_tensor *constant = tn_scalar(1);
        assert_int_equal(tn_minimize(o, constant), TN_ERR_STATE);
    }
    problem_read(&p, after);
    assert_memory_equal(before, after, sizeof before);
    assert_int_equal(tn_optimizer_steps(o, 0), 1);
    {
        TN_SCOPE;
        assert_ok(tn_minimize(o, problem_loss(&p)));
    } /* and it goes on */
    tn_optimizer_free(o);
    tn_module_free(p.root);
}

static void variables_without_a_gradient_are_left_alone(void **state) {
    (void)state;
    problem p = problem_new();
    tn_optimizer *o;
    float before[5], after[5];
    assert_ok(tn_optimizer_adam(p.root, NULL, &o));
    problem_read(&p, before);
    {
        TN_SCOPE;
        assert_ok(tn_minimize(o, tn_sum(tn_mul(p.w[0], p.w[0]), NULL, 0, false)));
    }
    problem_read(&p, after);
    assert_memory_not_equal(before, after, 3 * sizeof *before);
    assert_memory_equal(before + 3, after + 3, 2 * sizeof *before);
    assert_int_equal(tn_optimizer_steps(o, 0), 1);
    assert_int_equal(tn_optimizer_steps(o, 1), 0);
    tn_optimizer_free(o);
    tn_module_free(p.root);
}

static void clipping_scales_all_gradients_together(void **state) {
    (void)state;
    problem p = problem_new();
    {
        TN_SCOPE;
        float before[5], after[5];
        tn_tensor *total;
        double norm = 0;
        assert_ok(tn_backward(problem_loss(&p)));
        assert_ok(tn_read(tn_grad(p.w[0]), before, 3 * sizeof *before));
        assert_ok(tn_read(tn_grad(p.w[1]), before + 3, 2 * sizeof *before));
        for (int i = 0; i < 5; i++)
            norm += (double)before[i] * (double)before[i];
        norm = sqrt(norm);
        assert_ok(tn_clip_grad_norm(p.root, norm / 2, &total));
        assert_true(fabs(tn_item(total) - norm) < 1e-6 * norm);
        assert_ok(tn_read(tn_grad(p.w[0]), after, 3 * sizeof *after));
        assert_ok(tn_read(tn_grad(p.w[1]), after + 3, 2 * sizeof *after));
        for (int i = 0; i < 5; i++)
            assert_true(fabs((double)after[i] - 0.5 * (double)before[i]) < 1e-5);
        assert_ok(tn_clip_grad_norm(p.root, norm, NULL)); /* below the limit: untouched */
        assert_ok(tn_read(tn_grad(p.w[0]), before, 3 * sizeof *before));
        assert_memory_equal(before, after, 3 * sizeof *before);
    }
    tn_module_free(p.root);
}

static void the_optimizers_memory_has_names(void **state) {
    (void)state;
    problem p = problem_new();
    tn_optimizer *o;
    tn_variable *items;
    int count;
    assert_ok(tn_optimizer_adam(p.root, NULL, &o));
    assert_ok(tn_optimizer_variables(o, &items, &count));
    assert_int_equal(count, 4);
    assert_string_equal(items[0].name, "exp_avg.first");
    assert_string_equal(items[3].name, "exp_avg_sq.second");
    assert_int_equal(tn_numel(items[0].tensor), 3);
    tn_variables_free(items);
    tn_optimizer_free(o);
    assert_ok(tn_optimizer_sgd(p.root, NULL, &o)); /* nothing to remember */
    assert_ok(tn_optimizer_variables(o, &items, &count));
    assert_int_equal(count, 0);
    tn_optimizer_free(o);
    tn_module_free(p.root);
}

static void wrong_settings_are_refused(void **state) {
    (void)state;
    problem p = problem_new();
    tn_module *empty = tn_module_root();
    tn_optimizer *o;
    assert_int_equal(tn_optimizer_sgd(p.root, SGD(1e-3, 0, 0, 0, true, INFINITY), &o), TN_ERR_ARGUMENT);
    assert_int_equal(tn_optimizer_sgd(p.root, SGD(-1, 0, 0, 0, false, INFINITY), &o), TN_ERR_ARGUMENT);
    assert_int_equal(tn_optimizer_adam(p.root, ADAM(1e-3, 1, 0.999, 1e-8, 0, INFINITY), &o), TN_ERR_ARGUMENT);
    assert_int_equal(tn_optimizer_adam(p.root, ADAM(1e-3, 0.9, 0.999, 1e-8, NAN, INFINITY), &o), TN_ERR_ARGUMENT);
    assert_int_equal(tn_optimizer_adam(empty, NULL, &o), TN_ERR_ARGUMENT);
    assert_text_has(tn_error(), "no parameter");
    assert_null(o);
    tn_module_free(empty);
    tn_module_free(p.root);
}

/* Numbers that PyTorch refuses, or that divide by 0: refused with their name and value. */
static void numbers_out_of_range_are_named(void **state) {
    (void)state;
    enum { MOST = 4 };
#define FIELD(type, name) offsetof(type, name), #name
    static const struct {
        tn_status (*make)(tn_module *m, const void *options, tn_optimizer **out);
        size_t offset;
        const char *name;
        double bad[MOST]; /* up to the first 0 */
    } rows[] = {
        {make_sgd, FIELD(tn_sgd_options, lr), {-1, NAN, INFINITY}},
        {make_sgd, FIELD(tn_sgd_options, momentum), {-0.5, NAN, INFINITY}},
        {make_sgd, FIELD(tn_sgd_options, dampening), {NAN, INFINITY, -INFINITY}},
        {make_sgd, FIELD(tn_sgd_options, weight_decay), {-0.5, NAN, INFINITY}},
        {make_sgd, FIELD(tn_sgd_options, max_grad_norm), {-0.5, NAN, -INFINITY}},
        {make_adam, FIELD(tn_adam_options, lr), {-1, NAN, INFINITY}},
        {make_adam, FIELD(tn_adam_options, beta1), {-0.5, 1, NAN, 1.5}},
        {make_adam, FIELD(tn_adam_options, beta2), {-0.5, 1, NAN, 1.5}},
        {make_adam, FIELD(tn_adam_options, eps), {-1e-8, NAN, INFINITY}},
        {make_adam, FIELD(tn_adam_options, weight_decay), {-0.5, NAN, INFINITY}},
        {make_adamw, FIELD(tn_adam_options, beta2), {-0.5, 1, NAN, 1.5}},
        {make_adamw, FIELD(tn_adam_options, weight_decay), {-0.5, NAN, INFINITY}},
        {make_rmsprop, FIELD(tn_rmsprop_options, alpha), {-0.5, 1, NAN, 1.5}},
        {make_rmsprop, FIELD(tn_rmsprop_options, eps), {-1e-8, NAN, INFINITY}},
        {make_rmsprop, FIELD(tn_rmsprop_options, momentum), {-0.5, NAN, INFINITY}},
        {make_adagrad, FIELD(tn_adagrad_options, lr_decay), {-0.5, NAN, INFINITY}},
        {make_adagrad, FIELD(tn_adagrad_options, initial_accumulator_value), {-0.5, NAN, INFINITY}},
        {make_adagrad, FIELD(tn_adagrad_options, eps), {-1e-8, NAN, INFINITY}},
        {make_lion, FIELD(tn_lion_options, beta1), {-0.5, 1, NAN, 1.5}},
        {make_lion, FIELD(tn_lion_options, beta2), {-0.5, 1, NAN, 1.5}},
        {make_lamb, FIELD(tn_lamb_options, beta2), {-0.5, 1, NAN, 1.5}},
        {make_lamb, FIELD(tn_lamb_options, eps), {-1e-8, NAN, INFINITY}},
        {make_adafactor, FIELD(tn_adafactor_options, beta2_decay), {0.1, NAN, -INFINITY}},
        {make_adafactor, FIELD(tn_adafactor_options, eps1), {-1e-8, NAN, INFINITY}},
        {make_adafactor, FIELD(tn_adafactor_options, eps2), {-1e-3, NAN, INFINITY}},
        {make_adafactor, FIELD(tn_adafactor_options, d), {0.5, NAN, INFINITY}},
        {make_muon, FIELD(tn_muon_options, momentum), {-0.5, NAN, INFINITY}},
        {make_muon, FIELD(tn_muon_options, eps), {-1e-7, NAN, INFINITY}},
        {make_muon, FIELD(tn_muon_options, weight_decay), {-0.5, NAN, INFINITY}},
    };
    const tn_sgd_options sgd = TN_SGD_DEFAULTS;
    const tn_adam_options adam = TN_ADAM_DEFAULTS, adamw = TN_ADAMW_DEFAULTS;
    const tn_rmsprop_options rmsprop = TN_RMSPROP_DEFAULTS;
    const tn_adagrad_options adagrad = TN_ADAGRAD_DEFAULTS;
    const tn_lion_options lion = TN_LION_DEFAULTS;
    const tn_lamb_options lamb = TN_LAMB_DEFAULTS;
    const tn_adafactor_options adafactor = TN_ADAFACTOR_DEFAULTS;
    const tn_muon_options muon = TN_MUON_DEFAULTS;
    const struct {
        tn_status (*make)(tn_module *m, const void *options, tn_optimizer **out);
        const void *options;
        size_t size;
    } defaults[] = {
        {make_sgd, &sgd, sizeof sgd},
        {make_adam, &adam, sizeof adam},
        {make_adamw, &adamw, sizeof adamw},
        {make_rmsprop, &rmsprop, sizeof rmsprop},
        {make_adagrad, &adagrad, sizeof adagrad},
        {make_lion, &lion, sizeof lion},
        {make_lamb, &lamb, sizeof lamb},
        {make_adafactor, &adafactor, sizeof adafactor},
        {make_muon, &muon, sizeof muon},
    };
    problem p = problem_new();
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (int k = 0; k < MOST && rows[i].bad[k] != 0; k++) {
            union {
                tn_muon_options largest;
                char bytes[sizeof(tn_muon_options)];
            } o;
            char words[64];
            tn_optimizer *made;
            for (size_t j = 0; j < sizeof defaults / sizeof defaults[0]; j++)
                if (defaults[j].make == rows[i].make) memcpy(o.bytes, defaults[j].options, defaults[j].size);
            memcpy(o.bytes + rows[i].offset, &rows[i].bad[k], sizeof(double));
            snprintf(words, sizeof words, "%s is %g", rows[i].name, rows[i].bad[k]);
            assert_int_equal(rows[i].make(p.root, &o, &made), TN_ERR_ARGUMENT);
            assert_null(made);
            assert_text_has(tn_error(), words);
        }
    tn_module_free(p.root);
#undef FIELD
}

static void schedules_go_where_they_should(void **state) {
    (void)state;
    tn_schedule s = TN_SCHEDULE_DEFAULTS;
    s.kind = TN_SCHEDULE_COSINE;
    s.lr = 2;
    s.final_lr = 1;
    s.warmup = 4;
    s.total = 14;
    const struct {
        tn_schedule_kind kind;
        int64_t step;
        double expected;
    } rows[] = {
        {TN_SCHEDULE_CONSTANT, 0, 0.5}, {TN_SCHEDULE_CONSTANT, 3, 2}, {TN_SCHEDULE_CONSTANT, 1000, 2},
        {TN_SCHEDULE_LINEAR, 1, 1},     {TN_SCHEDULE_LINEAR, 4, 2},   {TN_SCHEDULE_LINEAR, 9, 1.5},
        {TN_SCHEDULE_LINEAR, 14, 1},    {TN_SCHEDULE_LINEAR, 99, 1},  {TN_SCHEDULE_COSINE, 4, 2},
        {TN_SCHEDULE_COSINE, 9, 1.5},   {TN_SCHEDULE_COSINE, 14, 1},  {TN_SCHEDULE_COSINE, 6, 1.9045084971874737}};
    for (size_t i = 0; i < TN_COUNT(rows); i++) {
        s.kind = rows[i].kind;
        double got = tn_schedule_at(&s, rows[i].step);
        if (fabs(got - rows[i].expected) > 1e-12) fail_msg("row %d: %.15g, not %.15g", (int)i, got, rows[i].expected);
    }
}

static void assert_rates(const char *name, const double *got, const double *expected) {
    for (int i = 0; i < GOLDEN_RATES; i++)
        if (!(fabs(got[i] - expected[i]) <= 1e-8 * fabs(expected[i])))
            fail_msg("%s, step %d: %.12g, PyTorch has %.12g", name, i, got[i], expected[i]);
}

static void schedules_are_pytorchs(void **state) {
    (void)state;
    const struct {
        tn_schedule_kind kind;
        double gamma;
        const double *expected;
    } rows[] = {{TN_SCHEDULE_STEP, 0.3, golden_rates_step},
                {TN_SCHEDULE_EXPONENTIAL, 0.9, golden_rates_exponential},
                {TN_SCHEDULE_ONE_CYCLE, 0.1, golden_rates_one_cycle}};
    for (size_t i = 0; i < TN_COUNT(rows); i++) {
        tn_schedule s = TN_SCHEDULE_DEFAULTS;
        double got[GOLDEN_RATES];
        s.kind = rows[i].kind;
        s.lr = 2;
        s.gamma = rows[i].gamma;
        s.step_size = 7;
        s.total = 20;
        for (int step = 0; step < GOLDEN_RATES; step++)
            got[step] = tn_schedule_at(&s, step);
        assert_rates("a schedule", got, rows[i].expected);
    }
    tn_schedule s = TN_SCHEDULE_DEFAULTS;
    s.kind = TN_SCHEDULE_STEP;
    s.step_size = 0;
    assert_true(isnan(tn_schedule_at(&s, 0)));
    assert_text_has(tn_error(), "step_size is 0");
    s = (tn_schedule)TN_SCHEDULE_DEFAULTS;
    s.pct_start = 1;
    assert_true(isnan(tn_schedule_at(&s, 0)));
    assert_text_has(tn_error(), "pct_start");
    const tn_schedule_kind ending[] = {TN_SCHEDULE_LINEAR, TN_SCHEDULE_COSINE, TN_SCHEDULE_ONE_CYCLE};
    for (size_t i = 0; i < TN_COUNT(ending); i++) { /* a total that was forgotten would train at a rate of about 0 */
        s = (tn_schedule)TN_SCHEDULE_DEFAULTS;
        s.kind = ending[i];
        assert_true(isnan(tn_schedule_at(&s, 0)));
        assert_text_has(tn_error(), "total is 0");
    }
}

static void plateaus_are_pytorchs(void **state) {
    (void)state;
    tn_plateau p[3] = {TN_PLATEAU_DEFAULTS, TN_PLATEAU_DEFAULTS, TN_PLATEAU_DEFAULTS};
    const double *expected[] = {golden_rates_plateau, golden_rates_plateau_cooldown, golden_rates_plateau_max};
    p[0].factor = p[1].factor = 0.5;
    p[0].patience = 2;
    p[1].patience = 1;
    p[1].cooldown = 2;
    p[1].min_lr = 0.3;
    p[2].patience = 3;
    p[2].maximize = p[2].absolute = true;
    p[2].threshold = 0.05;
    for (int k = 0; k < 3; k++) {
        double got[GOLDEN_RATES];
        p[k].lr = 2;
        for (int i = 0; i < GOLDEN_RATES; i++) {
            got[i] = tn_plateau_step(&p[k], golden_metrics[i]);
            assert_true(got[i] == p[k].lr);
        }
        assert_rates("a plateau", got, expected[k]);
    }
    p[0].factor = 1;
    assert_true(isnan(tn_plateau_step(&p[0], 1)));
    assert_text_has(tn_error(), "factor 1");
}

/* ---- moving averages --------------------------------------------------------------------------------------------- */

static void averages_are_pytorchs(void **state) {
    (void)state;
    for (int captured = 0; captured < 2; captured++) {
        problem p = problem_new();
        tn_ema *e = NULL;
        tn_graph *graph = NULL;
        float before[5], average[5], after[5];
        assert_ok(tn_ema_new(p.root, 0.8, &e));
        for (int step = 0; step < 5; step++) {
            TN_SCOPE;
            TN_NO_GRAD;
            if (graph) {
                assert_ok(tn_graph_launch(graph, NULL, NULL));
                continue;
            }
            if (captured) assert_ok(tn_capture_begin());
            for (int i = 0; i < 2; i++)
                tn_mul_(p.w[i], tn_scalar(0.9));
            assert_ok(tn_ema_update(e));
            if (captured) assert_ok(tn_capture_end(NULL, 0, NULL, 0, &graph));
        }
        problem_read(&p, before);
        assert_ok(tn_ema_swap(e));
        assert_int_equal(tn_ema_update(e), TN_ERR_STATE);
        problem_read(&p, average);
        assert_near(average, golden_average, GOLDEN_NUMBERS, "the average", 5);
        tn_variable *items;
        int count;
        assert_ok(tn_ema_variables(e, &items, &count));
        assert_int_equal(count, 2);
        assert_string_equal(items[1].name, "ema.second");
        assert_ok(tn_read(items[1].tensor, after, 2 * sizeof *after));
        assert_memory_equal(after, average + 3, 2 * sizeof *after);
        tn_variables_free(items);
        assert_ok(tn_ema_swap(e));
        problem_read(&p, after);
        assert_memory_equal(after, before, sizeof before);
        assert_true(tn_requires_grad(p.w[0]));
        tn_graph_free(graph);
        tn_ema_free(e);
        tn_module_free(p.root);
    }
    tn_module *root = tn_module_root();
    tn_ema *e;
    assert_int_equal(tn_ema_new(root, 1.5, &e), TN_ERR_ARGUMENT);
    tn_module_free(root);
}

/* ---- what a step runs -------------------------------------------------------------------------------------------- */

enum { LAYERS = 3 };

static void train_once(tn_module *net, tn_optimizer *o) {
    TN_SCOPE;
    tn_tensor *y = tn_forward(net, tn_ones(TN_DIMS(8, 1, 6, 6), TN_F32));
    assert_ok(tn_minimize(o, tn_mean(tn_mul(y, y), TN_ALL, false)));
}

static tn_tensor *flat(const tn_tensor *x) { return tn_flatten(x, 1, -1); }

static tn_module *make_net(tn_module *root) {
    tn_module *net = tn_nn_sequential(root, "net");
    tn_nn_conv2d(net, "conv", 1, 4, 3, NULL);
    tn_nn_batch_norm2d(net, "norm", 4, NULL);
    tn_nn_function(net, "flat", flat);
    tn_nn_linear(net, "0", 64, 5, true);
    for (int i = 1; i < LAYERS; i++) {
        char name[8];
        snprintf(name, sizeof name, "%d", i);
        tn_nn_function(net, i == 1 ? "relu1" : "relu2", tn_relu);
        tn_nn_linear(net, name, 5, 5, true);
    }
    assert_ok(tn_module_status(root));
    return net;
}

/* How many updates are in one launch with another, at most. */
static int most_joined(const char *text) {
    int most = 0;
    for (const char *at = text; (at = strstr(at, "like it in one launch)  [commit]")); at++)
        if (at[-2] - '0' > most) most = at[-2] - '0';
    return most;
}

/* New values are written where the old ones lie, and equal updates are one launch: that of the three biases of the
 * linear layers, at least. */
static void updates_are_in_place_and_joined(void **state) {
    (void)state;
    for (int kind = 0; kind < 3; kind++) {
        tn_module *root = tn_module_root(), *net = make_net(root);
        tn_optimizer *o = NULL;
        if (kind == 0) assert_ok(tn_optimizer_adam(root, NULL, &o));
        if (kind == 1) assert_ok(tn_optimizer_adamw(root, NULL, &o));
        tn_sgd_options options = TN_SGD_DEFAULTS;
        options.momentum = 0.9;
        if (kind == 2) assert_ok(tn_optimizer_sgd(root, &options, &o));
        train_once(net, o);
        train_once(net, o);
        char *text = tn_explain_last();
        if (strstr(text, "copy to state") || most_joined(text) < 2) fail_msg("optimizer %d:\n%s", kind, text);
        tn_text_free(text);
        tn_optimizer_free(o);
        tn_module_free(root);
    }
}

enum { VARIABLES = 12 };

static int64_t launches_so_far(void) {
    tn_runtime_stats s = {.struct_size = sizeof s};
    assert_ok(tn_get_runtime_stats(&s));
    return s.launches;
}

/* A root with matrices and vectors, as many of each; gradients from a sum of squares. */
static tn_module *many_variables(int count) {
    tn_module *root = tn_module_root();
    TN_SCOPE;
    for (int i = 0; i < count; i++) {
        char name[16];
        snprintf(name, sizeof name, "w%d", i);
        tn_module_add_parameter(root, name, tn_ones((int64_t[]){8 + i, 9}, i % 2 ? 1 : 2, TN_F32));
    }
    assert_ok(tn_module_status(root));
    return root;
}

static void collect(tn_module *root) {
    tn_variable *v;
    int count;
    assert_ok(tn_module_parameters(root, &v, &count));
    TN_SCOPE;
    for (int i = 0; i < count; i++) {
        tn_zero_grad(v[i].tensor);
        assert_ok(tn_backward(tn_sum(tn_mul(v[i].tensor, v[i].tensor), TN_ALL, false)));
        tn_tensor *g = tn_grad(v[i].tensor);
        assert_ok(tn_eval(&g, 1));
    }
    tn_variables_free(v);
}

/* What optim.h says: two launches for 12 variables of rank 1 and 2. */
static void updates_of_one_form_share_a_launch(void **state) {
    (void)state;
    for (int kind = 0; kind < 3; kind++) {
        tn_module *root = many_variables(VARIABLES);
        tn_optimizer *o = NULL;
        if (kind == 0) assert_ok(tn_optimizer_adam(root, NULL, &o));
        if (kind == 1) assert_ok(tn_optimizer_adamw(root, NULL, &o));
        if (kind == 2) assert_ok(tn_optimizer_sgd(root, NULL, &o));
        collect(root);
        int64_t before = launches_so_far();
        assert_ok(tn_optimizer_step(o));
        assert_int_equal(launches_so_far() - before, 2);
        tn_optimizer_free(o);
        tn_module_free(root);
    }
}

/* ---- gradients that are not finite ------------------------------------------------------------------------------- */

/* Many tensors, one answer; and a step that is left out leaves weights and moments as they were. */
static void gradients_that_are_not_finite_are_found(void **state) {
    (void)state;
    static const float bad[] = {INFINITY, -INFINITY, NAN};
    tn_module *root = many_variables(70); /* more than tn_cat joins at once */
    tn_tensor *w = tn_module_variable(root, "w65");
    TN_SCOPE;
    assert_true(tn_item(tn_grad_is_finite(root)) == 1); /* there is none yet */
    collect(root);
    int64_t before = launches_so_far();
    assert_true(tn_item(tn_grad_is_finite(root)) == 1);
    int64_t launches = launches_so_far() - before;
    if (launches > 35) fail_msg("%d launches for 70 gradients", (int)launches);
    for (int i = 0; i < 3; i++) {
        tn_zero_grad(w);
        tn_tensor *factor = tn_from_data(&bad[i], NULL, 0, TN_F32);
        assert_ok(tn_backward(tn_mul(factor, tn_select(w, 0, 3))));
        assert_true(tn_item(tn_grad_is_finite(root)) == 0);
    }
    tn_zero_grad(w);
    assert_true(tn_item(tn_grad_is_finite(root)) == 1);
    assert_int_not_equal(tn_status_of(tn_grad_is_finite(NULL)), TN_OK);
    tn_module_free(root);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(optimizers_follow_pytorch),
        cmocka_unit_test(separate_calls_do_the_same),
        cmocka_unit_test(captured_steps_do_the_same),
        cmocka_unit_test(scaled_steps_do_the_same),
        cmocka_unit_test(methods_for_matrices_follow_pytorch),
        cmocka_unit_test(plain_tensors_are_optimized),
        cmocka_unit_test(wrong_groups_are_refused),
        cmocka_unit_test(fused_adam_is_adam),
        cmocka_unit_test(fused_adam_steps_in_place),
        cmocka_unit_test(fused_adam_refuses_what_it_cannot_write),
        cmocka_unit_test(gradients_accumulate_over_parts),
        cmocka_unit_test(schedules_are_pytorchs),
        cmocka_unit_test(plateaus_are_pytorchs),
        cmocka_unit_test(averages_are_pytorchs),
        cmocka_unit_test(steps_share_one_plan),
        cmocka_unit_test(a_captured_step_is_a_step),
        cmocka_unit_test(a_failed_loss_changes_nothing),
        cmocka_unit_test(variables_without_a_gradient_are_left_alone),
        cmocka_unit_test(clipping_scales_all_gradients_together),
        cmocka_unit_test(the_optimizers_memory_has_names),
        cmocka_unit_test(wrong_settings_are_refused),
        cmocka_unit_test(numbers_out_of_range_are_named),
        cmocka_unit_test(schedules_go_where_they_should),
        cmocka_unit_test(updates_are_in_place_and_joined),
        cmocka_unit_test(updates_of_one_form_share_a_launch),
        cmocka_unit_test(gradients_that_are_not_finite_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
