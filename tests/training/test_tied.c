/* test_tied.c — tied weights: one tensor under two names is one parameter for whatever changes, counts or moves
 * parameters, and two entries of a file. */
#include "test_support.h"

#include <math.h>

#include "trunnion/trunnion.h"

enum { WIDTH = 3, VOCABULARY = 4, STEPS = 3, ROWS = 4 };

static const float embedding[VOCABULARY * WIDTH] = {0.5F,   -1.25F, 2.0F, 0.75F, -0.1F, 0.3F,
                                                    -0.75F, 0.2F,   0.9F, 1.5F,  -0.6F, 0.25F};
static const int64_t tokens[ROWS] = {2, 0, 3, 1};

/* An embedding whose matrix is the output's too, as language models have it. */
typedef struct model {
    tn_module *root;
    tn_tensor *input, *output;
    tn_optimizer *optimizer;
} model;

static model model_new(bool tied, double max_grad_norm) {
    model m = {.root = tn_module_root()};
    TN_SCOPE;
    m.input = tn_from_data(embedding, TN_DIMS(VOCABULARY, WIDTH), TN_F32);
    m.output = tied ? m.input : tn_from_data(embedding, TN_DIMS(VOCABULARY, WIDTH), TN_F32);
    tn_module *wte = tn_module_new(m.root, "wte", NULL, NULL), *head = tn_module_new(m.root, "lm_head", NULL, NULL);
    m.input = tn_module_add_parameter(wte, "weight", m.input);
    m.output = tn_module_add_parameter(head, "weight", m.output);
    assert_ok(tn_module_status(m.root));
    tn_sgd_options o = TN_SGD_DEFAULTS;
    o.lr = 0.1;
    o.max_grad_norm = max_grad_norm;
    assert_ok(tn_optimizer_sgd(m.root, &o, &m.optimizer));
    return m;
}

static void model_free(model *m) {
    tn_optimizer_free(m->optimizer);
    tn_module_free(m->root);
}

static tn_tensor *loss_of(const model *m, const tn_tensor *ids) {
    tn_tensor *hidden = tn_index_select(m->input, 0, ids);
    return tn_cross_entropy(tn_matmul(hidden, tn_transpose(m->output, 0, 1)), ids, NULL, NULL);
}

static tn_tensor *all_tokens(void) { return tn_from_data(tokens, TN_DIMS(ROWS), TN_I64); }

static void read_weight(const tn_tensor *t, float out[VOCABULARY * WIDTH]) {
    assert_ok(tn_read(t, out, VOCABULARY * WIDTH * sizeof *out));
}

/* w ← w − lr·g once, g the sum of what both uses add. */
static void a_step_moves_a_tied_parameter_once(void **state) {
    (void)state;
    model m = model_new(true, INFINITY), apart = model_new(false, INFINITY);
    float got[VOCABULARY * WIDTH], a[VOCABULARY * WIDTH], b[VOCABULARY * WIDTH];
    TN_SCOPE;
    assert_ok(tn_minimize(m.optimizer, loss_of(&m, all_tokens())));
    assert_ok(tn_minimize(apart.optimizer, loss_of(&apart, all_tokens())));
    read_weight(m.input, got);
    read_weight(apart.input, a);
    read_weight(apart.output, b);
    for (int i = 0; i < VOCABULARY * WIDTH; i++) {
        double expected = (double)a[i] + (double)b[i] - (double)embedding[i]; /* both moves from the same start */
        if (fabs((double)got[i] - expected) > 1e-6) fail_msg("number %d: %.9g, not %.9g", i, (double)got[i], expected);
    }
    assert_int_equal(tn_optimizer_count(m.optimizer), 1);
    assert_int_equal(tn_optimizer_steps(m.optimizer, 0), 1);
    model_free(&apart);
    model_free(&m);
}

static void tied_parameters_are_counted_once(void **state) {
    (void)state;
    model m = model_new(true, INFINITY);
    tn_variable *items;
    int count;
    assert_int_equal(tn_module_parameter_count(m.root), VOCABULARY * WIDTH);
    assert_ok(tn_module_parameters(m.root, &items, &count));
    assert_int_equal(count, 1);
    assert_string_equal(items[0].name, "wte.weight");
    tn_variables_free(items);
    assert_ok(tn_module_variables(m.root, &items, &count)); /* a state_dict has both names */
    assert_int_equal(count, 2);
    assert_string_equal(items[1].name, "lm_head.weight");
    tn_variables_free(items);
    model_free(&m);
}

/* Gradients 2, 2, 1 have the norm 3; counted twice it would be 4.24. */
static void tied_gradients_enter_the_norm_once(void **state) {
    (void)state;
    static const float two[] = {2, 2, 1};
    tn_module *root = tn_module_root();
    TN_SCOPE;
    tn_tensor *w = tn_module_add_parameter(root, "a", tn_ones(TN_DIMS(3), TN_F32)), *norm = NULL;
    tn_module_add_parameter(root, "b", w);
    assert_ok(tn_module_status(root));
    assert_ok(tn_backward(tn_sum(tn_mul(w, tn_from_data(two, TN_DIMS(3), TN_F32)), NULL, 0, false)));
    assert_ok(tn_clip_grad_norm(root, 1.5, &norm));
    assert_true(fabs(tn_item(norm) - 3) < 1e-6);
    float g[3];
    assert_ok(tn_read(tn_grad(w), g, sizeof g));
    for (int i = 0; i < 3; i++)
        assert_true(fabs((double)g[i] - 0.5 * (double)two[i]) < 1e-5); /* halved once */
    tn_module_free(root);
}

/* A step that clips has the bits of one over a module that knows the tensor by one name. */
static void a_clipped_step_sees_a_tied_parameter_once(void **state) {
    (void)state;
    float got[2][VOCABULARY * WIDTH];
    for (int names = 1; names <= 2; names++) {
        TN_SCOPE;
        model m = model_new(true, 0.05);
        tn_module *one = tn_module_root();
        tn_optimizer *o = NULL;
        tn_module_add_parameter(one, "only", m.input);
        tn_sgd_options options = TN_SGD_DEFAULTS;
        options.lr = 0.1;
        options.max_grad_norm = 0.05;
        assert_ok(tn_optimizer_sgd(one, &options, &o));
        assert_ok(tn_minimize(names == 1 ? o : m.optimizer, loss_of(&m, all_tokens())));
        read_weight(m.input, got[names - 1]);
        tn_optimizer_free(o);
        tn_module_free(one);
        model_free(&m);
    }
    assert_memory_equal(got[0], got[1], sizeof got[0]);
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

static void files_have_both_names_and_fill_one_storage(void **state) {
    (void)state;
    char path[256];
    snprintf(path, sizeof path, "%s", test_scratch("tied.safetensors"));
    model m = model_new(true, INFINITY), other = model_new(true, INFINITY);
    float trained[VOCABULARY * WIDTH], loaded[VOCABULARY * WIDTH];
    TN_SCOPE;
    assert_ok(tn_minimize(m.optimizer, loss_of(&m, all_tokens())));
    assert_ok(tn_module_save(m.root, path));
    tn_safetensors *f = NULL;
    assert_ok(tn_safetensors_open(path, &f));
    assert_int_equal(tn_safetensors_count(f), 2);
    tn_safetensors_close(f);
    assert_ok(tn_module_load(other.root, path));
    read_weight(m.input, trained);
    read_weight(other.output, loaded);
    assert_memory_equal(trained, loaded, sizeof trained);
    model_free(&other);
    model_free(&m);
}

static void save_named(const char *path, const char *const *names, const float *const *values, int count) {
    tn_named_tensor list[2];
    TN_SCOPE;
    for (int i = 0; i < count; i++)
        list[i] = (tn_named_tensor){names[i], tn_from_data(values[i], TN_DIMS(VOCABULARY, WIDTH), TN_F32)};
    assert_ok(tn_safetensors_save(path, list, count, NULL, 0));
}

/* Writers of tied models often keep one name; a file with two values was made of a model that is not tied. */
static void one_name_in_a_file_is_enough_and_two_values_are_refused(void **state) {
    (void)state;
    char path[256];
    snprintf(path, sizeof path, "%s", test_scratch("tied_names.safetensors"));
    static const char *const names[] = {"lm_head.weight", "wte.weight"};
    float first[VOCABULARY * WIDTH], second[VOCABULARY * WIDTH], got[VOCABULARY * WIDTH];
    for (int i = 0; i < VOCABULARY * WIDTH; i++) {
        first[i] = (float)i;
        second[i] = (float)-i;
    }
    model m = model_new(true, INFINITY);
    for (int only = 0; only < 2; only++) {
        save_named(path, &names[only], (const float *const[]){first}, 1);
        assert_ok(tn_module_load(m.root, path));
        read_weight(m.input, got);
        assert_memory_equal(got, first, sizeof got);
    }
    save_named(path, names, (const float *const[]){first, second}, 2);
    assert_int_equal(tn_module_load(m.root, path), TN_ERR_FORMAT);
    assert_text_has(tn_error(), "one tied tensor in the model");
    read_weight(m.input, got);
    assert_memory_equal(got, first, sizeof got);
    model_free(&m);
}

/* ---- several devices --------------------------------------------------------------------------------------------- */

static tn_tensor *part_loss(void *ctx, const tn_part *part) {
    const model *m = ctx;
    return loss_of(m, tn_from_data(tokens + part->first, TN_DIMS(part->rows), TN_I64));
}

/* Two parts on one device: the stand-in of a tied variable is put in its place once, and taken out once. */
/* The loss of a step of L-BFGS: Σ (w_i · (i + 1) − 1)². */
static tn_tensor *quadratic_loss(void *ctx) {
    tn_tensor *w = ctx, *scale = tn_arange(1, 5, 1, TN_F32), *loss;
    {
        TN_SCOPE;
        tn_tensor *apart = tn_sub_scalar(tn_mul(w, tn_retain(scale)), 1);
        loss = tn_keep(tn_sum(tn_mul(apart, apart), TN_ALL, false));
    }
    tn_free(scale);
    return loss;
}

/* With one name, or with two: L-BFGS has the same vector of parameters. */
static void lbfgs_has_a_tied_parameter_once(void **state) {
    (void)state;
    float weights[2][4];
    for (int tied = 0; tied < 2; tied++) {
        tn_module *root = tn_module_root();
        TN_SCOPE;
        tn_tensor *w = tn_module_add_parameter(root, "a", tn_zeros(TN_DIMS(4), TN_F32));
        if (tied) tn_module_add_parameter(root, "b", w);
        tn_lbfgs_options o = TN_LBFGS_DEFAULTS;
        tn_lbfgs *l;
        o.lr = 0.1;
        o.max_iter = 3;
        assert_ok(tn_lbfgs_new(root, &o, &l));
        assert_ok(tn_lbfgs_step(l, quadratic_loss, w, NULL));
        assert_ok(tn_read(w, weights[tied], sizeof weights[tied]));
        tn_lbfgs_free(l);
        tn_module_free(root);
    }
    assert_memory_equal(weights[0], weights[1], sizeof weights[0]);
}

static void data_parallel_trains_tied_parameters(void **state) {
    (void)state;
    float whole[VOCABULARY * WIDTH], parts[VOCABULARY * WIDTH];
    for (int split = 0; split < 2; split++) {
        model m = model_new(true, INFINITY);
        tn_device *device = tn_current_device();
        tn_data_parallel_options options = TN_DATA_PARALLEL_DEFAULTS;
        options.parts = 1 + split;
        tn_data_parallel *p = NULL;
        assert_ok(tn_data_parallel_new(m.root, &device, 1, &options, &p));
        for (int i = 0; i < STEPS; i++)
            assert_ok(tn_data_parallel_minimize(p, m.optimizer, ROWS, part_loss, &m, NULL));
        read_weight(m.output, split ? parts : whole);
        tn_data_parallel_free(p);
        model_free(&m);
    }
    for (int i = 0; i < VOCABULARY * WIDTH; i++)
        if (fabsf(whole[i] - parts[i]) > 1e-6F)
            fail_msg("number %d: %.9g in one part, %.9g in two", i, (double)whole[i], (double)parts[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_moves_a_tied_parameter_once),
        cmocka_unit_test(tied_parameters_are_counted_once),
        cmocka_unit_test(tied_gradients_enter_the_norm_once),
        cmocka_unit_test(a_clipped_step_sees_a_tied_parameter_once),
        cmocka_unit_test(files_have_both_names_and_fill_one_storage),
        cmocka_unit_test(one_name_in_a_file_is_enough_and_two_values_are_refused),
        cmocka_unit_test(lbfgs_has_a_tied_parameter_once),
        cmocka_unit_test(data_parallel_trains_tied_parameters),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
