/* test_data_parallel.c — one model on several devices: what comes out depends on the parts of a batch and not on who
 * computes them; a device that fails is replaced, or nothing has changed.
 *
 * Devices: the cpu, two with memory of their own (far_driver.h), two that work beside the host (async_driver.h), and
 * those of TRUNNION_TEST_DEVICES ("opencl:0,opencl:1"), which have to be there. */
#include "test_support.h"

#include <math.h>

#include "async_driver.h"
#include "far_driver.h"
#include "tensor/graph.h"
#include "trunnion/trunnion.h"

enum { ROWS = 24, WIDTH = 6, CLASSES = 4, STEPS = 4, MOST = 4 };

static tn_device *cpu, *far_device[2], *async_device[2], *named[MOST];
static int named_count;

static int open_devices(void **state) {
    tn_device_options o = TN_DEVICE_DEFAULTS;
    o.fallback = TN_FALLBACK_STRICT;
    if (make_scratch(state) != 0 || tn_device_open("cpu", &o, NULL, &cpu) != TN_OK) return -1;
    for (int i = 0; i < 2; i++) {
        far_device[i] = far_open(i, NULL);
        async_device[i] = async_open(i, NULL);
    }
    char *list = getenv("TRUNNION_TEST_DEVICES"), *rest = NULL;
    for (char *id = list ? strtok_r(list, ",", &rest) : NULL; id && named_count < MOST; id = strtok_r(NULL, ",", &rest))
        if (tn_device_open(id, &o, NULL, &named[named_count++]) != TN_OK) {
            print_error("%s\n", tn_error());
            return -1;
        }
    return tn_set_current_device(cpu) == TN_OK ? 0 : -1;
}

static int close_devices(void **state) {
    for (int i = 0; i < 2; i++) {
        tn_device_close(far_device[i]);
        tn_device_close(async_device[i]);
    }
    for (int i = 0; i < named_count; i++)
        tn_device_close(named[i]);
    tn_device_close(cpu);
    return remove_scratch(state);
}

/* ---- a model and its data ---------------------------------------------------------------------------------------- */

typedef struct model {
    tn_module *root, *net;
    tn_tensor *unused; /* a parameter that the loss does not know */
    tn_optimizer *adam;
    float x[ROWS * WIDTH];
    int64_t y[ROWS];
    int refused_part; /* whose loss is of a wrong shape; -1: none */
} model;

/* plain: nothing in it depends on how rows are cut. */
static void model_new(model *m, tn_device *home, bool plain) {
    assert_ok(tn_set_current_device(home));
    tn_manual_seed(11);
    *m = (model){.root = tn_module_root(), .refused_part = -1};
    m->net = tn_nn_sequential(m->root, "net");
    tn_nn_linear(m->net, "0", WIDTH, 8, true);
    if (!plain) {
        tn_nn_function(m->net, "1", tn_relu);
        tn_nn_dropout(m->net, "2", 0.25);
    }
    tn_nn_linear(m->net, "3", 8, CLASSES, true);
    tn_module *rest = tn_module_new(m->root, "rest", NULL, NULL);
    {
        TN_SCOPE;
        m->unused = tn_module_add_parameter(rest, "unused", tn_init_constant((int64_t[]){3}, 1, 0.5));
    }
    assert_ok(tn_module_status(m->root));
    tn_adam_options o = TN_ADAM_DEFAULTS;
    o.lr = 0.05;
    if (!plain) o.max_grad_norm = 0.5;
    assert_ok(tn_optimizer_adamw(m->root, &o, &m->adam));
    for (int i = 0; i < ROWS * WIDTH; i++)
        m->x[i] = (float)((i * 37 % 101) - 50) / 50;
    for (int i = 0; i < ROWS; i++)
        m->y[i] = i * 7 % CLASSES;
    assert_ok(tn_set_current_device(cpu));
}

static void model_free(model *m) {
    tn_optimizer_free(m->adam);
    tn_module_free(m->root);
}

static tn_tensor *logits_of(void *ctx, const tn_part *part) {
    const model *m = ctx;
    return tn_forward(m->net, tn_from_data(m->x + part->first * WIDTH, (int64_t[]){part->rows, WIDTH}, 2, TN_F32));
}

static tn_tensor *loss_of(void *ctx, const tn_part *part) {
    const model *m = ctx;
    tn_tensor *y = tn_from_data(m->y + part->first, (int64_t[]){part->rows}, 1, TN_I64);
    tn_tensor *logits = logits_of(ctx, part);
    if (part->index == m->refused_part) return tn_matmul(logits, logits);
    return tn_cross_entropy(logits, y, NULL, NULL);
}

typedef struct outcome {
    double loss[STEPS];
    float weights[256];
    int count;
} outcome;

static void read_model(const model *m, outcome *o) {
    tn_variable *v;
    int count;
    o->count = 0;
    assert_ok(tn_module_variables(m->root, &v, &count));
    for (int i = 0; i < count; i++) {
        int n = (int)tn_numel(v[i].tensor);
        assert_true(o->count + n <= (int)TN_COUNT(o->weights));
        if (tn_dtype_of(v[i].tensor) != TN_F32) continue;
        assert_ok(tn_read(v[i].tensor, o->weights + o->count, (size_t)n * sizeof(float)));
        o->count += n;
    }
    tn_variables_free(v);
}

static outcome train(tn_device *const *devices, int count, const tn_data_parallel_options *options, bool plain) {
    model m;
    outcome o = {0};
    tn_data_parallel *p;
    model_new(&m, devices[0], plain);
    assert_ok(tn_data_parallel_new(m.root, devices, count, options, &p));
    for (int s = 0; s < STEPS; s++)
        assert_ok(tn_data_parallel_minimize(p, m.adam, ROWS, loss_of, &m, &o.loss[s]));
    read_model(&m, &o);
    assert_int_equal(tn_recorder_here()->count, 0); /* nothing is left that keeps devices open */
    tn_data_parallel_free(p);
    model_free(&m);
    return o;
}

static void assert_same(const outcome *a, const outcome *b, const char *what) {
    for (int s = 0; s < STEPS; s++)
        if (a->loss[s] != b->loss[s]) fail_msg("%s: loss %d is %.9g, not %.9g", what, s, b->loss[s], a->loss[s]);
    assert_int_equal(a->count, b->count);
    if (memcmp(a->weights, b->weights, (size_t)a->count * sizeof(float)) != 0) fail_msg("%s: other weights", what);
}

/* ---- promises ---------------------------------------------------------------------------------------------------- */

static void parts_decide_the_bits_and_not_devices(void **state) {
    (void)state;
    tn_data_parallel_options four = TN_DATA_PARALLEL_DEFAULTS;
    four.parts = 4;
    outcome alone = train(&cpu, 1, &four, false);
    assert_true(alone.loss[STEPS - 1] < alone.loss[0]);
    const struct {
        const char *what;
        tn_device *devices[4];
        int count;
    } teams[] = {
        {"cpu twice", {cpu, cpu}, 2},
        {"far", {far_device[0], far_device[1]}, 2},
        {"async", {async_device[0], async_device[1]}, 2},
        {"cpu and far", {cpu, far_device[0], far_device[1]}, 3},
        {"three kinds", {async_device[0], cpu, far_device[1], async_device[1]}, 4},
    };
    for (size_t i = 0; i < TN_COUNT(teams); i++) {
        outcome o = train(teams[i].devices, teams[i].count, &four, false);
        assert_same(&alone, &o, teams[i].what);
    }
    if (named_count) {
        outcome o = train(named, named_count, &four, false);
        assert_same(&alone, &o, "those of TRUNNION_TEST_DEVICES");
    }
    assert_string_equal(async_fault(), "");
}

static void shares_cut_the_batch(void **state) {
    (void)state;
    const double shares[] = {1, 2.5, 0.001};
    tn_data_parallel_options o = TN_DATA_PARALLEL_DEFAULTS;
    o.parts = 3;
    o.split = TN_SPLIT_SHARES;
    o.shares = shares;
    tn_device *two[] = {cpu, far_device[0]};
    outcome a = train(&cpu, 1, &o, false), b = train(two, 2, &o, false);
    assert_same(&a, &b, "shares");
}

/* Rows alone, so the gradients are those of the undivided batch but for the rounding of 24 terms. */
static void parts_agree_with_the_undivided_batch(void **state) {
    (void)state;
    tn_data_parallel_options one = TN_DATA_PARALLEL_DEFAULTS, three = TN_DATA_PARALLEL_DEFAULTS;
    one.parts = 1;
    tn_device *team[] = {far_device[0], cpu, far_device[1]};
    outcome whole = train(&cpu, 1, &one, true), cut = train(team, 3, &three, true);
    for (int s = 0; s < STEPS; s++)
        assert_true(fabs(whole.loss[s] - cut.loss[s]) <= 1e-5 * fabs(whole.loss[s]));
    for (int i = 0; i < whole.count; i++)
        if (fabsf(whole.weights[i] - cut.weights[i]) > 1e-4F)
            fail_msg("weight %d: %.9g undivided, %.9g in parts", i, (double)whole.weights[i], (double)cut.weights[i]);
}

static void one_part_is_tn_minimize(void **state) {
    (void)state;
    tn_data_parallel_options one = TN_DATA_PARALLEL_DEFAULTS;
    one.parts = 1;
    outcome by_parts = train(&cpu, 1, &one, false), usual = {0};
    model m;
    model_new(&m, cpu, false);
    tn_part all = {sizeof all, 0, 1, 0, ROWS, ROWS, cpu};
    for (int s = 0; s < STEPS; s++) {
        TN_SCOPE;
        tn_tensor *loss = loss_of(&m, &all);
        assert_ok(tn_minimize(m.adam, loss));
        usual.loss[s] = tn_item(loss);
    }
    read_model(&m, &usual);
    model_free(&m);
    assert_same(&usual, &by_parts, "one part");
}

/* A convolution with batch normalisation: what the first part makes of the running statistics counts, once. */
static tn_tensor *image_loss(void *ctx, const tn_part *part) {
    const model *m = ctx;
    tn_tensor *x = tn_from_data(m->x + part->first * WIDTH, (int64_t[]){part->rows, 1, 2, 3}, 4, TN_F32);
    tn_tensor *y = tn_forward(m->net, x);
    return tn_mean(tn_mul(y, y), NULL, 0, false);
}

static void train_images(tn_device *const *devices, int count, bool usual_first_part, float mean[2], int64_t *batches) {
    model m = {.root = tn_module_root(), .refused_part = -1};
    assert_ok(tn_set_current_device(devices[0]));
    tn_manual_seed(5);
    m.net = tn_nn_sequential(m.root, "net");
    tn_nn_conv2d(m.net, "0", 1, 2, 1, NULL);
    tn_nn_batch_norm2d(m.net, "1", 2, NULL);
    assert_ok(tn_optimizer_sgd(m.root, NULL, &m.adam));
    assert_ok(tn_set_current_device(cpu));
    for (int i = 0; i < ROWS * WIDTH; i++)
        m.x[i] = (float)(i % 13) / 3;
    tn_data_parallel_options two = TN_DATA_PARALLEL_DEFAULTS;
    two.parts = usual_first_part ? 1 : 2;
    tn_data_parallel *p;
    assert_ok(tn_data_parallel_new(m.root, devices, count, &two, &p));
    int rows = usual_first_part ? ROWS / 2 : ROWS;
    assert_ok(tn_data_parallel_minimize(p, m.adam, rows, image_loss, &m, NULL));
    assert_ok(tn_read(tn_module_variable(m.root, "net.1.running_mean"), mean, 2 * sizeof *mean));
    assert_ok(tn_read(tn_module_variable(m.root, "net.1.num_batches_tracked"), batches, sizeof *batches));
    tn_data_parallel_free(p);
    model_free(&m);
}

static void running_statistics_follow_the_first_part(void **state) {
    (void)state;
    tn_device *teams[][2] = {{cpu, cpu}, {cpu, far_device[0]}, {far_device[0], async_device[0]}};
    float usual[2], got[2];
    int64_t batches;
    train_images(&cpu, 1, true, usual, &batches);
    assert_int_equal(batches, 1);
    for (size_t i = 0; i < TN_COUNT(teams); i++) {
        train_images(teams[i], 2, false, got, &batches);
        assert_memory_equal(got, usual, sizeof got);
        assert_int_equal(batches, 1);
    }
}

static void inference_is_split_without_a_trace(void **state) {
    (void)state;
    tn_device *team[] = {cpu, far_device[0], async_device[0]};
    model m;
    tn_data_parallel *p;
    float whole[ROWS * CLASSES], parts[ROWS * CLASSES];
    tn_part all = {sizeof all, 0, 1, 0, ROWS, ROWS, cpu};
    model_new(&m, cpu, false);
    tn_module_train(m.root, false);
    assert_ok(tn_data_parallel_new(m.root, team, 3, NULL, &p));
    for (int round = 0; round < 2; round++) {
        TN_SCOPE;
        assert_ok(tn_read(logits_of(&m, &all), whole, sizeof whole));
        tn_tensor *y = tn_data_parallel_forward(p, ROWS, logits_of, &m);
        assert_int_equal(tn_size(y, 0), ROWS);
        assert_ptr_equal(tn_device_of(y), cpu);
        assert_ok(tn_read(y, parts, sizeof parts));
        assert_memory_equal(whole, parts, sizeof whole);
        /* the copies follow what is written at home */
        TN_NO_GRAD;
        tn_mul_(tn_module_variable(m.root, "net.0.weight"), tn_scalar(2));
    }
    tn_data_parallel_free(p);
    model_free(&m);
}

/* Weights that tn_swap exchanges have been written as often as those before: they are others all the same. */
static void copies_follow_an_exchange(void **state) {
    (void)state;
    tn_device *team[] = {cpu, far_device[0]};
    model m;
    tn_data_parallel *p;
    float whole[ROWS * CLASSES], parts[ROWS * CLASSES];
    tn_part all = {sizeof all, 0, 1, 0, ROWS, ROWS, cpu};
    model_new(&m, cpu, false);
    tn_module_train(m.root, false);
    assert_ok(tn_data_parallel_new(m.root, team, 2, NULL, &p));
    {
        TN_SCOPE;
        tn_tensor *weight = tn_module_variable(m.root, "net.0.weight"), *other = NULL;
        {
            TN_NO_GRAD;
            other = tn_contiguous(tn_mul(weight, tn_scalar(3)));
        }
        assert_ok(tn_make_state(other));
        assert_ok(tn_eval(&other, 1));
        for (int round = 0; round < 3; round++) {
            assert_ok(tn_read(logits_of(&m, &all), whole, sizeof whole));
            assert_ok(tn_read(tn_data_parallel_forward(p, ROWS, logits_of, &m), parts, sizeof parts));
            assert_memory_equal(whole, parts, sizeof whole);
            int64_t writes = tn_write_count(weight);
            uint64_t id = tn_value_id(weight);
            assert_ok(tn_swap(weight, other));
            assert_int_equal(tn_write_count(weight), writes);
            assert_true(tn_value_id(weight) != id && tn_value_id(other) == id);
        }
    }
    tn_data_parallel_free(p);
    model_free(&m);
}

static void a_part_takes_its_rows(void **state) {
    (void)state;
    const float x[] = {0, 1, 2, 3, 4, 5};
    float got[4];
    tn_part part = {sizeof part, 1, 2, 1, 2, 3, far_device[0]};
    TN_SCOPE;
    tn_tensor *whole = tn_from_data(x, (int64_t[]){3, 2}, 2, TN_F32), *rows = tn_part_rows(&part, whole);
    assert_ptr_equal(tn_device_of(rows), far_device[0]);
    assert_ok(tn_read(rows, got, sizeof got));
    assert_memory_equal(got, x + 2, sizeof got);
    part.total = 4;
    assert_int_equal(tn_status_of(tn_part_rows(&part, whole)), TN_ERR_SHAPE);
}

/* ---- failures ---------------------------------------------------------------------------------------------------- */

/* The far device is lost at its n-th launch, wherever that is: the cpu computes its parts, to the same bits. */
static void a_device_that_fails_is_replaced(void **state) {
    (void)state;
    tn_device *team[] = {cpu, far_device[0]};
    tn_data_parallel_options o = TN_DATA_PARALLEL_DEFAULTS;
    o.parts = 3;
    o.fallback = TN_FALLBACK_SILENT;
    outcome undisturbed = train(&cpu, 1, &o, false);
    int64_t before = far_counts_now.launches;
    outcome with = train(team, 2, &o, false);
    assert_same(&undisturbed, &with, "undisturbed");
    int64_t launches = far_counts_now.launches - before;
    assert_true(launches > STEPS);
    for (int64_t n = 0; n < launches; n += 1 + launches / 12) {
        model m;
        tn_data_parallel *p;
        outcome got = {0};
        model_new(&m, cpu, false);
        assert_ok(tn_data_parallel_new(m.root, team, 2, &o, &p));
        far_nature_now.loses = true;
        far_nature_now.launches_left = n;
        for (int s = 0; s < STEPS; s++)
            assert_ok(tn_data_parallel_minimize(p, m.adam, ROWS, loss_of, &m, &got.loss[s]));
        far_nature_now.loses = false;
        read_model(&m, &got);
        assert_same(&undisturbed, &got, "a device was lost");
        tn_data_parallel_device d = {.struct_size = sizeof d};
        assert_ok(tn_data_parallel_device_at(p, 1, &d));
        assert_string_equal(d.id, "far:0");
        assert_true(d.lost);
        assert_true(d.reason[0] != 0);
        int64_t there = d.parts;
        assert_ok(tn_data_parallel_device_at(p, 0, &d));
        assert_false(d.lost);
        assert_int_equal(d.parts + there, 3 * STEPS);
        tn_data_parallel_free(p);
        model_free(&m);
    }
}

static void assert_unchanged(tn_data_parallel *p, model *m, const outcome *before, const char *words) {
    outcome after;
    tn_random_state random = tn_get_random_state();
    assert_int_not_equal(tn_data_parallel_minimize(p, m->adam, ROWS, loss_of, m, NULL), TN_OK);
    assert_text_has(tn_error(), words);
    far_nature_now.loses = false;
    read_model(m, &after);
    assert_memory_equal(before->weights, after.weights, (size_t)after.count * sizeof(float));
    for (int i = 0; i < tn_optimizer_count(m->adam); i++)
        assert_int_equal(tn_optimizer_steps(m->adam, i), 0);
    tn_set_random_state(random);
}

static void strictly_a_failure_changes_nothing(void **state) {
    (void)state;
    tn_device *team[] = {cpu, far_device[0]};
    tn_data_parallel_options o = TN_DATA_PARALLEL_DEFAULTS;
    o.fallback = TN_FALLBACK_STRICT;
    model m;
    tn_data_parallel *p;
    outcome before;
    double loss;
    model_new(&m, cpu, false);
    read_model(&m, &before);
    assert_ok(tn_data_parallel_new(m.root, team, 2, &o, &p));
    far_nature_now.loses = true;
    far_nature_now.launches_left = 1;
    assert_unchanged(p, &m, &before, "far:0 failed");
    m.refused_part = 1;
    assert_unchanged(p, &m, &before, "matmul");
    m.refused_part = -1;
    assert_ok(tn_data_parallel_minimize(p, m.adam, ROWS, loss_of, &m, &loss)); /* as if nothing had been */
    tn_data_parallel_free(p);
    outcome usual = train(team, 2, &o, false);
    assert_true(loss == usual.loss[0]);
    model_free(&m);
}

/* An optimizer of another model is refused after the parts have been computed: what they made of the running statistics
 * is not written, now or with the next run. */
static void a_refused_step_leaves_nothing_to_write(void **state) {
    (void)state;
    tn_device *team[] = {cpu, far_device[0]};
    model m = {.root = tn_module_root(), .refused_part = -1}, stranger;
    tn_data_parallel *p;
    int64_t batches = -1;
    m.net = tn_nn_sequential(m.root, "net");
    tn_nn_conv2d(m.net, "0", 1, 2, 1, NULL);
    tn_nn_batch_norm2d(m.net, "1", 2, NULL);
    model_new(&stranger, cpu, false);
    assert_ok(tn_data_parallel_new(m.root, team, 2, NULL, &p));
    assert_int_equal(tn_data_parallel_minimize(p, stranger.adam, ROWS, image_loss, &m, NULL), TN_ERR_ARGUMENT);
    assert_text_has(tn_error(), "a variable that is not part of the module");
    assert_ok(tn_eval(NULL, 0));
    assert_ok(tn_read(tn_module_variable(m.root, "net.1.num_batches_tracked"), &batches, sizeof batches));
    assert_int_equal(batches, 0);
    tn_data_parallel_free(p);
    model_free(&stranger);
    model_free(&m);
}

static void without_any_device_left_it_says_so(void **state) {
    (void)state;
    tn_data_parallel_options o = TN_DATA_PARALLEL_DEFAULTS;
    o.fallback = TN_FALLBACK_SILENT;
    model m;
    tn_data_parallel *p;
    outcome before;
    model_new(&m, cpu, false);
    read_model(&m, &before);
    assert_ok(tn_data_parallel_new(m.root, far_device, 2, &o, &p));
    far_nature_now.loses = true;
    far_nature_now.launches_left = 3;
    assert_unchanged(p, &m, &before, "failed");
    tn_data_parallel_free(p);
    model_free(&m);
}

static void wrong_options_are_refused(void **state) {
    (void)state;
    model m;
    tn_data_parallel *p;
    double minus[] = {1, -1};
    enum { SIZE = TN_OPTIONS_SIZE(tn_data_parallel_options, fallback) };
    model_new(&m, cpu, true);
    const struct {
        tn_data_parallel_options o;
        const char *words;
    } rows[] = {
        {{SIZE, -1, TN_SPLIT_EVEN, NULL, false, TN_FALLBACK_WARN, NULL, false, false, 0}, "-1 parts"},
        {{SIZE, 257, TN_SPLIT_EVEN, NULL, false, TN_FALLBACK_WARN, NULL, false, false, 0}, "257 parts"},
        {{SIZE, 0, TN_SPLIT_SHARES, NULL, false, TN_FALLBACK_WARN, NULL, false, false, 0}, "shares is NULL"},
        {{SIZE, 2, TN_SPLIT_SHARES, minus, false, TN_FALLBACK_WARN, NULL, false, false, 0}, "share 1 is -1"},
        {{SIZE, 0, (tn_data_split)7, NULL, false, TN_FALLBACK_WARN, NULL, false, false, 0}, "split is 7"},
        {{TN_OPTIONS_SIZE(tn_data_parallel_options, bucket_bytes), 0, TN_SPLIT_EVEN, NULL, false, TN_FALLBACK_WARN,
          NULL, false, false, -1},
         "bucket_bytes is -1"},
    };
    for (size_t i = 0; i < TN_COUNT(rows); i++) {
        assert_int_equal(tn_data_parallel_new(m.root, &cpu, 1, &rows[i].o, &p), TN_ERR_ARGUMENT);
        assert_text_has(tn_error(), rows[i].words);
    }
    assert_int_equal(tn_data_parallel_new(m.root, &cpu, 0, NULL, &p), TN_ERR_ARGUMENT);
    assert_ok(tn_data_parallel_new(m.root, &cpu, 1, NULL, &p));
    assert_int_equal(tn_data_parallel_minimize(p, m.adam, 0, loss_of, &m, NULL), TN_ERR_ARGUMENT);
    tn_data_parallel_free(p);
    model other;
    model_new(&other, cpu, true);
    tn_device *twice[] = {cpu, cpu};
    assert_ok(tn_data_parallel_new(other.root, twice, 2, NULL, &p));
    assert_int_equal(tn_data_parallel_minimize(p, m.adam, ROWS, loss_of, &other, NULL), TN_ERR_ARGUMENT);
    tn_data_parallel_free(p);
    model_free(&other);
    model_free(&m);
}

/* ---- what it stands on ------------------------------------------------------------------------------------------- */

static void swapped_handles_stand_for_each_other(void **state) {
    (void)state;
    float got[2];
    TN_SCOPE;
    tn_tensor *a = tn_from_data((float[]){1, 2}, (int64_t[]){2}, 1, TN_F32),
              *b = tn_from_data((float[]){5, 6, 7}, (int64_t[]){3}, 1, TN_F32);
    assert_ok(tn_make_state(a));
    assert_ok(tn_set_requires_grad(a, true));
    tn_tensor *view = tn_slice(b, 0, 1, 3, 1), *earlier = tn_mul(a, tn_scalar(10));
    assert_ok(tn_swap(a, b));
    assert_int_equal(tn_numel(a), 3);
    assert_false(tn_requires_grad(a));
    assert_true(tn_requires_grad(b));
    /* what was made before stays what it was, and a view follows writes to what it was made of */
    int64_t writes = tn_write_count(a);
    {
        TN_NO_GRAD;
        tn_mul_(a, tn_scalar(2));
    }
    assert_true(tn_write_count(a) > writes);
    {
        TN_NO_GRAD;
        tn_add_(b, tn_scalar(1));
    }
    assert_ok(tn_read(view, got, sizeof got));
    assert_true(got[0] == 12 && got[1] == 14);
    assert_ok(tn_read(earlier, got, sizeof got));
    assert_true(got[0] == 10 && got[1] == 20);
    assert_ok(tn_swap(a, b));
    assert_ok(tn_read(a, got, sizeof got));
    assert_true(got[0] == 2 && got[1] == 3);
    assert_int_equal(tn_swap(a, view), TN_ERR_ARGUMENT);
}

/* ---- copies between devices -------------------------------------------------------------------------------------- */

/* What tn_copy_ is given may be on any device; dst stays on its own. */
static void a_copy_goes_to_the_targets_device(void **state) {
    (void)state;
    for (int is_state = 0; is_state < 2; is_state++) {
        TN_SCOPE;
        float got[3];
        tn_tensor *here = tn_from_data((float[]){1, 2, 3}, TN_DIMS(3), TN_F32);
        tn_tensor *dst = tn_to_device(tn_zeros(TN_DIMS(3), TN_F32), far_device[0]);
        if (is_state) assert_ok(tn_make_state(dst));
        assert_ok(tn_status_of(tn_copy_(dst, tn_mul_scalar(here, 2))));
        assert_ptr_equal(tn_device_of(dst), far_device[0]);
        assert_ok(tn_read(dst, got, sizeof got));
        assert_true(got[0] == 2 && got[1] == 4 && got[2] == 6);
        assert_ok(tn_status_of(tn_copy_(dst, tn_scalar(5))));
        assert_ok(tn_read(dst, got, sizeof got));
        assert_true(got[0] == 5 && got[2] == 5);
    }
}

/* ---- mixed precision --------------------------------------------------------------------------------------------- */

/* A model in f16, one part of which overflows at some step. */
typedef struct scaled {
    model m;
    int overflowing; /* the part; -1: none */
} scaled;

static tn_tensor *scaled_loss(void *ctx, const tn_part *part) {
    const scaled *s = ctx;
    TN_AUTOCAST(TN_F16);
    tn_tensor *loss = loss_of((void *)(uintptr_t)&s->m, part);
    return part->index == s->overflowing ? tn_mul_scalar(loss, INFINITY) : loss;
}

/* The scale goes to the device of each part; an overflow of one part skips the step of all. */
static void an_overflow_of_one_part_skips_the_step(void **state) {
    (void)state;
    tn_device *const teams[][2] = {{cpu, cpu}, {cpu, far_device[0]}, {far_device[0], async_device[1]}};
    for (size_t k = 0; k < TN_COUNT(teams); k++) {
        scaled s = {.overflowing = -1};
        tn_data_parallel_options o = TN_DATA_PARALLEL_DEFAULTS;
        tn_data_parallel *p = NULL;
        float before[WIDTH * 8], after[WIDTH * 8];
        o.parts = 3;
        model_new(&s.m, teams[k][0], true);
        assert_ok(tn_optimizer_set_grad_scaler(s.m.adam, NULL));
        assert_ok(tn_data_parallel_new(s.m.root, teams[k], k == 0 ? 1 : 2, &o, &p));
        tn_tensor *w = tn_module_variable(s.m.root, "net.0.weight");
        for (int step = 0; step < 4; step++) {
            double loss;
            s.overflowing = step == 2 ? 1 : -1;
            assert_ok(tn_read(w, before, sizeof before));
            assert_ok(tn_data_parallel_minimize(p, s.m.adam, ROWS, scaled_loss, &s, &loss));
            assert_ok(tn_read(w, after, sizeof after));
            bool same = memcmp(before, after, sizeof before) == 0;
            if (same != (step == 2))
                fail_msg("team %d, step %d: the weights %s", (int)k, step, same ? "stayed" : "moved");
        }
        assert_int_equal(tn_optimizer_steps(s.m.adam, 0), 3);
        assert_int_equal(tn_optimizer_skipped_steps(s.m.adam), 1);
        assert_true(tn_optimizer_loss_scale(s.m.adam) == 32768);
        assert_ok(tn_optimizer_set_steps(s.m.adam, 0, 7));
        assert_int_equal(tn_optimizer_steps(s.m.adam, 0), 7);
        tn_data_parallel_free(p);
        model_free(&s.m);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_decide_the_bits_and_not_devices),
        cmocka_unit_test(shares_cut_the_batch),
        cmocka_unit_test(parts_agree_with_the_undivided_batch),
        cmocka_unit_test(one_part_is_tn_minimize),
        cmocka_unit_test(running_statistics_follow_the_first_part),
        cmocka_unit_test(inference_is_split_without_a_trace),
        cmocka_unit_test(copies_follow_an_exchange),
        cmocka_unit_test(a_part_takes_its_rows),
        cmocka_unit_test(a_device_that_fails_is_replaced),
        cmocka_unit_test(strictly_a_failure_changes_nothing),
        cmocka_unit_test(a_refused_step_leaves_nothing_to_write),
        cmocka_unit_test(without_any_device_left_it_says_so),
        cmocka_unit_test(wrong_options_are_refused),
        cmocka_unit_test(swapped_handles_stand_for_each_other),
        cmocka_unit_test(a_copy_goes_to_the_targets_device),
        cmocka_unit_test(an_overflow_of_one_part_skips_the_step),
    };
    return cmocka_run_group_tests_name("data_parallel", tests, open_devices, close_devices);
}
