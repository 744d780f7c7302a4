/* test_indices.c — indices out of range are refused by every op that takes indices: when it is recorded if the host has
 * them then, else when they are computed or given to a captured graph. */
#include "test_support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "far_driver.h"

#include "tensor/graph.h"
#include "trunnion/autograd.h"
#include "trunnion/device.h"
#include "trunnion/functions.h"
#include "trunnion/ops.h"

static tn_tensor *x, *src, *weight;

typedef tn_tensor *use(const tn_tensor *index);
#define USE(name, call) \
    static tn_tensor *use_##name(const tn_tensor *i) { return (call); }
USE(gather, (tn_gather)(x, 0, i))
USE(index_select, (tn_index_select)(x, 0, i))
USE(index_add, (tn_index_add)(x, 0, i, src))
USE(scatter, (tn_scatter)(x, 0, i, src))
USE(scatter_add, (tn_scatter_add)(x, 0, i, src))
USE(scatter_reduce, (tn_scatter_reduce)(x, 0, i, src, TN_REDUCE_AMAX, true))
USE(take_along_dim, (tn_take_along_dim)(x, 0, i))
USE(embedding, (tn_embedding)(i, weight))
USE(one_hot, (tn_one_hot)(i, 3, TN_F32))
USE(nll_loss, (tn_nll_loss)(tn_ones(TN_DIMS(4, 3), TN_F32), i, NULL, NULL))
USE(cross_entropy, (tn_cross_entropy)(tn_ones(TN_DIMS(4, 3), TN_F32), i, NULL, NULL))
USE(scatter_in_place, (tn_scatter_)(tn_contiguous(x), 0, i, src))
USE(scatter_add_in_place, (tn_scatter_add_)(tn_contiguous(x), 0, i, src))
USE(index_add_in_place, (tn_index_add_)(tn_contiguous(x), 0, i, src))

static const struct row {
    const char *name;
    use *with;
} rows[] = {
    {"gather", use_gather},
    {"index_select", use_index_select},
    {"index_add", use_index_add},
    {"scatter", use_scatter},
    {"scatter_add", use_scatter_add},
    {"scatter_reduce", use_scatter_reduce},
    {"take_along_dim", use_take_along_dim},
    {"embedding", use_embedding},
    {"one_hot", use_one_hot},
    {"nll_loss", use_nll_loss},
    {"cross_entropy", use_cross_entropy},
    {"scatter", use_scatter_in_place},
    {"scatter_add", use_scatter_add_in_place},
    {"index_add", use_index_add_in_place},
};

static int make_operands(void **state) {
    (void)state;
    TN_SCOPE;
    x = tn_keep(tn_contiguous(tn_arange(0, 3, 1, TN_F32))); /* indices 0 … 2 */
    src = tn_keep(tn_contiguous(tn_ones(TN_DIMS(4), TN_F32)));
    weight = tn_keep(tn_contiguous(tn_ones(TN_DIMS(3, 2), TN_F32)));
    return tn_eval((tn_tensor *[]){x, src, weight}, 3) != TN_OK;
}

static int free_operands(void **state) {
    (void)state;
    tn_free(x);
    tn_free(src);
    tn_free(weight);
    return 0;
}

static tn_tensor *indices(int64_t last) { return tn_from_data((int64_t[]){0, 2, 1, last}, TN_DIMS(4), TN_I64); }

static void an_index_outside_is_refused_by_every_op(void **state) {
    (void)state;
    static const int64_t outside[] = {3, 7, INT64_MAX, -4, INT64_MIN};
    for (size_t i = 0; i < TN_COUNT(rows); i++) {
        for (size_t k = 0; k < TN_COUNT(outside); k++) {
            TN_SCOPE;
            if (tn_status_of(rows[i].with(indices(outside[k]))) != TN_ERR_ARGUMENT)
                fail_msg("%s: index %lld is taken", rows[i].name, (long long)outside[k]);
            assert_text_has(tn_error(), rows[i].name);
            assert_text_has(tn_error(), "element 3 of [4], is out of bounds");
        }
        TN_SCOPE;
        tn_tensor *y = rows[i].with(indices(2));
        assert_ok(tn_eval(&y, 1));
    }
}

static void a_tap_outside_is_refused(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *taps = tn_reshape(indices(3), TN_DIMS(2, 2)), *ones = tn_ones(TN_DIMS(2, 2), TN_F32);
    assert_int_equal(tn_status_of(tn_resample(x, 0, taps, ones)), TN_ERR_ARGUMENT);
    assert_text_has(tn_error(), "resample: index 3, element 3 of [2, 2], is out of bounds");
}

/* Also where they were cast, viewed, computed and read before, or checked before and changed since. */
static void indices_that_the_host_has_are_found(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *i = tn_from_data((int32_t[]){0, 1, 9, 2}, TN_DIMS(4), TN_I32), *sum = tn_add(i, tn_scalar_int(1));
    assert_int_equal(tn_status_of(tn_index_select(x, 0, tn_cast(i, TN_I64))), TN_ERR_ARGUMENT);
    assert_int_equal(tn_status_of(tn_index_select(x, 0, tn_slice(i, 0, 0, 3, 2))), TN_ERR_ARGUMENT);
    tn_tensor *inside = tn_index_select(x, 0, tn_slice(i, 0, 1, 4, 2));
    assert_true(tn_item(tn_select(inside, 0, 1)) == 2);
    assert_ok(tn_eval(&sum, 1));
    assert_int_equal(tn_status_of(tn_gather(x, 0, sum)), TN_ERR_ARGUMENT);
    tn_tensor *state_of_it = tn_from_data((int64_t[]){0, 1}, TN_DIMS(2), TN_I64);
    assert_ok(tn_make_state(state_of_it));
    assert_ok(tn_status_of(tn_gather(x, 0, state_of_it)));
    tn_add_(state_of_it, tn_full(TN_DIMS(2), 2, TN_I64));
    assert_ok(tn_eval(NULL, 0));
    assert_int_equal(tn_status_of(tn_gather(x, 0, state_of_it)), TN_ERR_ARGUMENT);
    assert_text_has(tn_error(), "gather: index 3, element 1 of [2]");
}

/* What is ignored or counts from the end is inside. */
static void ignored_classes_and_negative_places_are_inside(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *logits = tn_ones(TN_DIMS(4, 3), TN_F32), *y = tn_cross_entropy(logits, indices(-100), NULL, NULL);
    assert_true(fabs(tn_item(y) - log(3)) < 1e-5);
    assert_ok(tn_status_of(tn_take_along_dim(x, 0, indices(-3))));
    static const int64_t ignored[] = {INT64_MAX, INT64_MIN, (INT64_C(1) << 53) + 1, -(INT64_C(1) << 53) - 1};
    for (size_t i = 0; i < TN_COUNT(ignored); i++) { /* no double has the first and the last two */
        tn_cross_entropy_options o = TN_CROSS_ENTROPY_DEFAULTS;
        o.ignore_index = ignored[i];
        y = tn_cross_entropy(logits, indices(ignored[i]), NULL, &o);
        assert_true(fabs(tn_item(y) - log(3)) < 1e-5);
    }
}

/* Long lists are compared in blocks of vectors: every place of them counts, and what is ignored hides nothing. */
static void one_index_outside_is_found_at_every_place(void **state) {
    (void)state;
    enum { COUNT = 77, CLASSES = 3 };
    static const int64_t outside[] = {CLASSES, -1, INT32_MAX, INT32_MIN};
    int64_t wide[COUNT];
    int32_t narrow[COUNT];
    for (int i = 0; i < COUNT; i++)
        narrow[i] = (int32_t)(wide[i] = i % 5 ? i % CLASSES : -100);
    TN_SCOPE;
    tn_tensor *logits = tn_ones(TN_DIMS(COUNT, CLASSES), TN_F32);
    for (int i = 0; i < COUNT; i++) {
        TN_SCOPE;
        int64_t inside = wide[i];
        assert_ok(tn_status_of((tn_cross_entropy)(logits, tn_from_data(wide, TN_DIMS(COUNT), TN_I64), NULL, NULL)));
        assert_ok(tn_status_of((tn_cross_entropy)(logits, tn_from_data(narrow, TN_DIMS(COUNT), TN_I32), NULL, NULL)));
        for (size_t k = 0; k < TN_COUNT(outside); k++) {
            narrow[i] = (int32_t)(wide[i] = outside[k]);
            tn_tensor *both[] = {tn_from_data(wide, TN_DIMS(COUNT), TN_I64),
                                 tn_from_data(narrow, TN_DIMS(COUNT), TN_I32)};
            for (int b = 0; b < 2; b++)
                if (tn_status_of((tn_cross_entropy)(logits, both[b], NULL, NULL)) != TN_ERR_ARGUMENT)
                    fail_msg("class %lld at place %d is taken", (long long)outside[k], i);
        }
        narrow[i] = (int32_t)(wide[i] = inside);
    }
}

/* ---- indices that are computed after the op was recorded --------------------------------------------------------- */

static tn_tensor *computed(int64_t last) {
    return tn_add(indices(last - 1), tn_from_data((int64_t[]){0, 0, 0, 1}, TN_DIMS(4), TN_I64));
}

static void assert_refused(tn_status s, const char *op) {
    if (s != TN_ERR_ARGUMENT) fail_msg("%s: %s", op, tn_status_name(s));
    assert_text_has(tn_error(), "test_indices.c:");
    assert_text_has(tn_error(), op);
    assert_text_has(tn_error(), "element 3 of [4], is out of bounds");
}

static void assert_refused_at_once(const tn_tensor *y, const char *op) {
    if (tn_status_of(y) != TN_ERR_ARGUMENT) fail_msg("%s is taken", op);
    assert_text_has(tn_error(), op);
    assert_text_has(tn_error(), "element 3 of [4], is out of bounds");
}

static void a_computed_index_outside_fails_the_evaluation(void **state) {
    (void)state;
    static const int64_t outside[] = {3, 7, INT64_MAX, -4, INT64_MIN + 1};
    for (size_t i = 0; i < TN_COUNT(rows); i++) {
        for (size_t k = 0; k < TN_COUNT(outside); k++) {
            TN_SCOPE;
            tn_tensor *y = rows[i].with(computed(outside[k]));
            assert_ok(tn_status_of(y));
            assert_refused(tn_eval(&y, 1), rows[i].name);
            assert_refused(tn_status_of(y), rows[i].name); /* and it stays an error */
        }
        TN_SCOPE;
        tn_tensor *y = rows[i].with(computed(2));
        assert_ok(tn_eval(&y, 1));
    }
}

/* Compositions reshape and cast their indices: they look at what a view is a view of. */
static tn_tensor *a_column(int64_t last) {
    return tn_select(tn_stack((tn_tensor *[]){computed(last), computed(1)}, 2, 1), 1, 0);
}
static tn_tensor *a_shape(int64_t last) { return tn_reshape(tn_reshape(computed(last), TN_DIMS(2, 2)), TN_DIMS(4)); }
static tn_tensor *a_cast(int64_t last) { return tn_cast(computed(last), TN_I32); }
static tn_tensor *a_sum(int64_t last) {
    return tn_add(a_cast(last - 1), tn_from_data((int32_t[]){0, 0, 0, 1}, TN_DIMS(4), TN_I32));
}

static void indices_that_are_a_view_or_a_cast_are_compared(void **state) {
    (void)state;
    tn_tensor *(*const made[])(int64_t) = {a_column, a_shape, a_cast, a_sum};
    for (size_t i = 0; i < TN_COUNT(rows) * TN_COUNT(made); i++) {
        for (int wrong = 0; wrong < 2; wrong++) {
            TN_SCOPE;
            const struct row *row = &rows[i / TN_COUNT(made)];
            size_t k = i % TN_COUNT(made);
            tn_tensor *y = row->with(made[k](wrong ? 3 : 2));
            tn_status s = tn_eval(&y, 1);
            if (s != (wrong ? TN_ERR_ARGUMENT : TN_OK)) fail_msg("%s, index %zu: %s", row->name, k, tn_error());
            if (wrong) assert_text_has(tn_error(), "index 3, element 3 of [4], is out of bounds");
        }
    }
}

/* The plan is made with indices inside: it is found again, and looks again. */
static void a_plan_that_is_found_again_compares_again(void **state) {
    (void)state;
    for (int i = 0; i < 3; i++) {
        TN_SCOPE;
        tn_tensor *y = tn_gather(x, 0, computed(2));
        assert_ok(tn_eval(&y, 1));
    }
    TN_SCOPE;
    tn_tensor *y = tn_gather(x, 0, computed(3));
    assert_refused(tn_eval(&y, 1), "gather");
}

static void a_state_keeps_its_value(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *memory = tn_zeros(TN_DIMS(3), TN_F32), *at = tn_from_data((int64_t[]){1}, TN_DIMS(1), TN_I64);
    assert_ok(tn_make_state(memory));
    assert_ok(tn_make_state(at));
    for (int i = 0; i < 3; i++) { /* both in the commit section: the index is a state's new value */
        tn_add_(at, tn_full(TN_DIMS(1), 1, TN_I64));
        tn_scatter_(memory, 0, at, tn_full(TN_DIMS(1), 5, TN_F32));
        tn_status s = tn_eval(NULL, 0);
        if (i == 0) assert_ok(s);
        if (i > 0) assert_int_equal(s, TN_ERR_ARGUMENT);
        assert_true(tn_item(at) == 2);
        assert_true(tn_item(tn_sum(memory, TN_ALL, false)) == 5);
    }
}

static void gradients_compare_too(void **state) {
    (void)state;
    for (int freed = 0; freed < 2; freed++) {
        TN_SCOPE;
        tn_tensor *logits = tn_ones(TN_DIMS(4, 3), TN_F32), *table = tn_ones(TN_DIMS(3), TN_F32);
        assert_ok(tn_set_requires_grad(logits, true));
        assert_ok(tn_set_requires_grad(table, true));
        tn_tensor *loss = (tn_cross_entropy)(logits, computed(3), NULL, NULL);
        tn_tensor *sum = tn_sum(tn_gather(table, 0, computed(3)), TN_ALL, false);
        assert_ok(tn_backward(loss));
        assert_ok(tn_backward(sum));
        if (freed) tn_free(loss);
        if (freed) tn_free(sum);
        assert_int_equal(tn_eval(NULL, 0), TN_ERR_ARGUMENT);
        assert_int_equal(tn_status_of(tn_grad(logits)), TN_ERR_ARGUMENT);
        assert_int_equal(tn_status_of(tn_grad(table)), TN_ERR_ARGUMENT);
    }
}

static void many_indices_are_compared_by_the_plan(void **state) {
    (void)state;
    enum { MANY = 300000 };
    int64_t *many = calloc(MANY, sizeof *many);
    assert_non_null(many);
    for (int wrong = 0; wrong < 2; wrong++) {
        TN_SCOPE;
        many[MANY - 2] = wrong ? 3 : 2;
        tn_tensor *y = tn_gather(x, 0, tn_from_data(many, TN_DIMS(MANY), TN_I64));
        assert_ok(tn_status_of(y));
        assert_int_equal(tn_eval(&y, 1), wrong ? TN_ERR_ARGUMENT : TN_OK);
        if (wrong) assert_text_has(tn_error(), "gather: index 3, element 299998 of [300000]");
    }
    free(many);
}

/* ---- what a failed check leaves alone ---------------------------------------------------------------------------- */

/* Only what depends on the indices becomes an error; the rest is computed. */
static void what_does_not_depend_on_the_index_is_computed(void **state) {
    (void)state;
    for (int again = 0; again < 2; again++) { /* with a new plan, and with one that is found */
        TN_SCOPE;
        tn_tensor *own = tn_contiguous(x), *table = tn_ones(TN_DIMS(3), TN_F32);
        assert_ok(tn_eval(&own, 1));
        tn_tensor *index = computed(3), *y = tn_gather(x, 0, index);
        tn_tensor *after = tn_mul(y, y), *half = tn_slice(y, 0, 0, 2, 1);
        tn_tensor *other = tn_add(x, x), *doubled = tn_mul(index, tn_scalar_int(2));
        tn_add_(own, tn_scalar(1));
        assert_ok(tn_set_requires_grad(table, true));
        assert_ok(tn_backward(tn_sum(tn_mul(table, x), TN_ALL, false)));
        float v[4];
        int64_t i[4];
        assert_refused(tn_read(other, v, 12), "gather"); /* it is told once */
        assert_true(tn_node_computed(tn_tensor_node(other)) && tn_node_computed(tn_tensor_node(own)));
        assert_ok(tn_read(other, v, 12));
        assert_true(v[0] == 0 && v[2] == 4);
        assert_ok(tn_read(own, v, 12));
        assert_true(v[0] == 1 && v[2] == 3);
        assert_ok(tn_read(tn_grad(table), v, 12));
        assert_true(v[1] == 1 && v[2] == 2);
        assert_ok(tn_read(index, i, sizeof i));
        assert_true(i[3] == 3);
        assert_ok(tn_read(doubled, i, sizeof i));
        assert_true(i[3] == 6);
        tn_tensor *errors[] = {y, after, half};
        for (size_t k = 0; k < TN_COUNT(errors); k++)
            assert_refused(tn_status_of(errors[k]), "gather");
    }
}

/* One evaluation finds them all, and leaves nothing to fail in the next; the first is told. */
static void several_indices_outside_fail_one_evaluation(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *first = tn_gather(x, 0, computed(3)), *second = tn_index_select(x, 0, computed(-4));
    tn_tensor *right = tn_gather(x, 0, computed(1));
    assert_refused(tn_eval(NULL, 0), "gather");
    assert_ok(tn_eval(NULL, 0));
    assert_refused(tn_status_of(first), "gather");
    assert_refused(tn_status_of(second), "index_select");
    assert_true(tn_item(tn_select(right, 0, 3)) == 1);
}

/* One tensor of classes may be right for one loss and wrong for another. */
static void one_index_has_a_range_for_each_op(void **state) {
    (void)state;
    TN_SCOPE;
    tn_nll_loss_options o = TN_NLL_LOSS_DEFAULTS;
    o.ignore_index = 3;
    tn_tensor *logits = tn_ones(TN_DIMS(4, 3), TN_F32), *target = computed(3);
    tn_tensor *wrong = (tn_nll_loss)(logits, target, NULL, NULL), *right = (tn_nll_loss)(logits, target, NULL, &o);
    tn_tensor *also_wrong = (tn_cross_entropy)(logits, target, NULL, NULL);
    assert_refused(tn_eval(&wrong, 1), "nll_loss");
    assert_refused(tn_eval(&also_wrong, 1), "cross_entropy");
    assert_true(tn_item(right) == -1);
}

/* … and not the line where the plan was made first. */
static void the_line_is_that_of_the_failed_call(void **state) {
    (void)state;
    TN_SCOPE;
    char place[64];
    tn_tensor *index = computed(2), *y = tn_gather(x, 0, index);
    assert_ok(tn_eval(&y, 1));
    index = computed(3);
    snprintf(place, sizeof place, "test_indices.c:%d: gather", __LINE__ + 1);
    y = tn_gather(x, 0, index);
    assert_refused(tn_eval(&y, 1), place);
}

/* A state that is restored has its shape, dtype and size before anybody reads it; so have its views. */
static void a_restored_state_has_its_shape(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *memory = tn_zeros(TN_DIMS(4, 2), TN_F64), *view = tn_slice(memory, 0, 1, 3, 1);
    assert_ok(tn_make_state(memory));
    for (int i = 0; i < 2; i++) {
        tn_tensor *at = tn_reshape(tn_sub(computed(6), tn_scalar_int(1)), TN_DIMS(4, 1)); /* 5 is outside */
        tn_scatter_add_(memory, 0, at, tn_ones(TN_DIMS(4, 2), TN_F64));
        assert_int_equal(tn_eval(NULL, 0), TN_ERR_ARGUMENT);
        assert_int_equal(tn_numel(memory), 8);
        assert_int_equal(tn_rank(memory), 2);
        assert_int_equal(tn_size(memory, -1), 2);
        assert_int_equal(tn_shape(memory)[0], 4);
        assert_int_equal(tn_dtype_of(memory), TN_F64);
        assert_int_equal(tn_numel(view), 4);
        assert_int_equal(tn_rank(view), 2);
        assert_ok(tn_status_of(memory));
    }
}

/* ---- captured graphs --------------------------------------------------------------------------------------------- */

static void a_launch_with_an_index_outside_changes_nothing(void **state) {
    (void)state;
    TN_SCOPE;
    tn_graph *g = NULL;
    tn_tensor *count = tn_zeros(TN_DIMS(3), TN_F32), *index = indices(2), *out = NULL;
    assert_ok(tn_make_state(count));
    assert_ok(tn_capture_begin());
    tn_index_add_(count, 0, index, src);
    tn_tensor *y = tn_mul(index, index);
    assert_ok(tn_capture_end(&index, 1, &y, 1, &g));
    for (int i = 0; i < 3; i++) {
        tn_tensor *wrong = indices(3), *right = indices(1);
        assert_refused(tn_graph_launch(g, &wrong, &out), "index_add");
        assert_ok(tn_graph_launch(g, &right, &out));
        assert_true(tn_item(tn_select(out, 0, 3)) == 1);
        tn_free(out);
        assert_true(tn_item(tn_sum(count, TN_ALL, false)) == 4 * (i + 2));
    }
    tn_graph_free(g);
}

/* Its owner may write to borrowed memory between launches. */
static void borrowed_indices_are_compared_at_each_launch(void **state) {
    (void)state;
    TN_SCOPE;
    tn_graph *g = NULL;
    _Alignas(64) int64_t own[4] = {0, 1, 2, 0};
    tn_tensor *index = tn_from_ptr(own, TN_DIMS(4), TN_I64, NULL, NULL), *out = NULL;
    assert_ok(tn_capture_begin());
    tn_tensor *y = tn_gather(x, 0, index);
    assert_ok(tn_capture_end(&index, 1, &y, 1, &g));
    assert_ok(tn_graph_launch(g, &index, &out));
    tn_free(out);
    own[3] = 4;
    assert_refused(tn_graph_launch(g, &index, &out), "gather");
    tn_graph_free(g);
}

/* … and before an evaluation: lists of all lengths are compared when they are read, not when the op is recorded. */
static void borrowed_indices_are_compared_when_they_are_read(void **state) {
    (void)state;
    static const int64_t counts[] = {4, (1 << 16) + 4};
    for (size_t k = 0; k < TN_COUNT(counts); k++) {
        TN_SCOPE;
        int64_t *own = calloc((size_t)counts[k], sizeof *own);
        assert_non_null(own);
        own[3] = 7;
        tn_tensor *index = tn_from_ptr(own, TN_DIMS(counts[k]), TN_I64, NULL, NULL);
        tn_tensor *y = tn_gather(x, 0, index);
        assert_ok(tn_status_of(y));
        own[3] = 2; /* mended in time */
        assert_ok(tn_eval(&y, 1));
        y = tn_gather(x, 0, index);
        own[3] = 3;
        assert_int_equal(tn_eval(&y, 1), TN_ERR_ARGUMENT);
        assert_text_has(tn_error(), "gather: index 3, element 3 of");
        assert_int_equal(tn_status_of(y), TN_ERR_ARGUMENT);
        tn_free(index);
        free(own);
    }
}

/* ---- other devices ----------------------------------------------------------------------------------------------- */
/* The host knows the range of the integers that it has sent to a device: it fetches nothing while they are inside. */

static void begin_elsewhere(tn_tensor *before[3]) {
    memcpy(before, (tn_tensor *[]){x, src, weight}, 3 * sizeof *before);
    assert_ok(tn_set_current_device(far_open(0, NULL)));
    assert_false(make_operands(NULL));
}

static void end_elsewhere(tn_tensor *const before[3]) {
    tn_device *device = tn_current_device();
    free_operands(NULL);
    x = before[0], src = before[1], weight = before[2];
    assert_ok(tn_set_current_device(NULL));
    tn_device_close(device);
}

static void what_the_host_has_sent_is_compared(void **state) {
    (void)state;
    static const int64_t outside[] = {3, -4, INT64_MAX, INT64_MIN};
    tn_tensor *before[3];
    begin_elsewhere(before);
    for (size_t i = 0; i < TN_COUNT(rows); i++) {
        for (size_t k = 0; k < TN_COUNT(outside); k++) {
            TN_SCOPE;
            assert_refused_at_once(rows[i].with(indices(outside[k])), rows[i].name);
            tn_tensor *kept = indices(outside[k]);
            assert_ok(tn_make_state(kept));
            assert_refused_at_once(rows[i].with(kept), rows[i].name);
        }
        TN_SCOPE;
        int64_t fetched = far_counts_now.copies_out;
        tn_tensor *y = rows[i].with(indices(2));
        assert_ok(tn_eval(&y, 1));
        assert_true(far_counts_now.copies_out == fetched);
    }
    end_elsewhere(before);
}

static void a_view_of_what_was_sent_has_its_own_range(void **state) {
    (void)state;
    tn_tensor *before[3];
    begin_elsewhere(before);
    TN_SCOPE;
    tn_tensor *some = indices(9), *unsigned_one = tn_from_data((uint64_t[]){0, UINT64_MAX}, TN_DIMS(2), TN_U64);
    assert_true(tn_item(tn_select(tn_gather(x, 0, tn_slice(some, 0, 0, 3, 1)), 0, 1)) == 2);
    assert_int_equal(tn_status_of(tn_gather(x, 0, tn_slice(some, 0, 2, 4, 1))), TN_ERR_ARGUMENT);
    assert_text_has(tn_error(), "gather: index 9, element 1 of [2]");
    assert_int_equal(tn_status_of(tn_gather(x, 0, unsigned_one)), TN_ERR_ARGUMENT);
    assert_text_has(tn_error(), "index 18446744073709551615");
    tn_add_(some, tn_full(TN_DIMS(4), -9, TN_I64)); /* computed there: what was known no longer holds */
    assert_ok(tn_eval(NULL, 0));
    assert_ok(tn_status_of(tn_gather(x, 0, some)));
    end_elsewhere(before);
}

/* An ignored class is no class, be it the least value, the largest, or the only one. */
static void an_ignored_class_hides_no_other(void **state) {
    (void)state;
    static const struct {
        int64_t values[4], ignored;
        bool inside;
    } cases[] = {{{-100, 0, 2, 1}, -100, true}, {{-100, -100, 3, 1}, -100, false}, {{255, 0, 2, 1}, 255, true},
                 {{255, 0, 2, -1}, 255, false}, {{7, 7, 7, 7}, 7, true},           {{7, 7, 8, 7}, 7, false},
                 {{0, 1, 2, 3}, 1, false},      {{-100, 0, 255, 1}, 255, false}};
    tn_tensor *before[3];
    begin_elsewhere(before);
    for (size_t i = 0; i < TN_COUNT(cases); i++) {
        TN_SCOPE;
        tn_cross_entropy_options o = TN_CROSS_ENTROPY_DEFAULTS;
        o.ignore_index = cases[i].ignored;
        tn_tensor *classes = tn_from_data(cases[i].values, TN_DIMS(4), TN_I64);
        tn_tensor *y = tn_cross_entropy(tn_ones(TN_DIMS(4, 3), TN_F32), classes, NULL, &o);
        if (tn_status_of(y) != (cases[i].inside ? TN_OK : TN_ERR_ARGUMENT)) fail_msg("case %zu: %s", i, tn_error());
    }
    end_elsewhere(before);
}

/* Long lists are looked at in blocks: every place of them counts. */
static void one_index_outside_a_long_list_is_found_elsewhere(void **state) {
    (void)state;
    enum { COUNT = 700, CLASSES = 3 };
    int64_t wide[COUNT];
    uint8_t narrow[COUNT];
    tn_tensor *before[3];
    begin_elsewhere(before);
    TN_SCOPE;
    tn_tensor *logits = tn_ones(TN_DIMS(COUNT, CLASSES), TN_F32), *y;
    for (int i = 0; i < COUNT; i++)
        narrow[i] = (uint8_t)(wide[i] = i % CLASSES);
    for (int i = 0; i < COUNT; i += 7) {
        TN_SCOPE;
        static const int64_t sent[] = {CLASSES, -100, -1, 1};
        for (size_t k = 0; k < TN_COUNT(sent); k++) { /* -100 is ignored */
            const int64_t was = wide[i];
            const bool inside = k == 1 || k == 3;
            wide[i] = sent[k];
            y = (tn_cross_entropy)(logits, tn_from_data(wide, TN_DIMS(COUNT), TN_I64), NULL, NULL);
            if (tn_status_of(y) != (inside ? TN_OK : TN_ERR_ARGUMENT)) fail_msg("place %d, case %zu", i, k);
            wide[i] = was;
        }
        narrow[i] += CLASSES;
        y = tn_one_hot(tn_from_data(narrow, TN_DIMS(COUNT), TN_U8), CLASSES, TN_F32);
        if (tn_status_of(y) != TN_ERR_ARGUMENT) fail_msg("place %d of bytes is taken", i);
        narrow[i] -= CLASSES;
    }
    assert_ok(tn_status_of(tn_one_hot(tn_from_data(narrow, TN_DIMS(COUNT), TN_U8), CLASSES, TN_F32)));
    end_elsewhere(before);
}

static void a_launch_elsewhere_compares_what_was_sent(void **state) {
    (void)state;
    tn_tensor *before[3];
    begin_elsewhere(before);
    {
        TN_SCOPE;
        tn_graph *g = NULL;
        tn_tensor *count = tn_zeros(TN_DIMS(3), TN_F32), *index = indices(2), *out = NULL;
        assert_ok(tn_make_state(count));
        assert_ok(tn_capture_begin());
        tn_index_add_(count, 0, index, src);
        tn_tensor *y = tn_mul(index, index);
        assert_ok(tn_capture_end(&index, 1, &y, 1, &g));
        for (int i = 0; i < 4; i++) {
            tn_tensor *wrong = indices(3), *right = indices(1);
            int64_t fetched = far_counts_now.copies_out;
            assert_ok(tn_graph_launch(g, &right, &out));
            assert_true(far_counts_now.copies_out == fetched);
            tn_free(out);
            assert_refused(tn_graph_launch(g, &wrong, &out), "index_add");
            assert_true(tn_item(tn_sum(count, TN_ALL, false)) == 4 * (i + 2));
        }
        tn_graph_free(g);
    }
    end_elsewhere(before);
}

/* What the device computes is counted there: the call that waits reports it, once. */

static void assert_counted(tn_status s, const char *op, int count) {
    char words[96];
    snprintf(words, sizeof words, "%s: %d of the indices that far:0 computed are out of bounds", op, count);
    if (s != TN_ERR_ARGUMENT) fail_msg("%s: %s", op, tn_status_name(s));
    assert_text_has(tn_error(), "test_indices.c:");
    assert_text_has(tn_error(), words);
}

static void an_index_outside_that_a_device_computes_is_counted(void **state) {
    (void)state;
    static const int64_t outside[] = {3, 7, INT64_MAX, -4, INT64_MIN + 1};
    tn_tensor *before[3];
    begin_elsewhere(before);
    for (size_t i = 0; i < TN_COUNT(rows); i++)
        for (size_t k = 0; k < TN_COUNT(outside) + 1; k++) {
            TN_SCOPE;
            bool inside = k == TN_COUNT(outside);
            int64_t fetched = far_counts_now.copies_out;
            tn_tensor *y = rows[i].with(computed(inside ? 2 : outside[k])), *sum = tn_sum(y, TN_ALL, false);
            assert_ok(tn_eval((tn_tensor *[]){y, sum}, 2));
            assert_true(far_counts_now.copies_out == fetched); /* nothing was waited for */
            double number;
            tn_status s = tn_read_item(sum, &number);
            if (inside)
                assert_ok(s);
            else
                assert_counted(s, rows[i].name, 1);
            assert_ok(tn_read_item(sum, &number));
        }
    end_elsewhere(before);
}

/* Each launch of a captured graph counts, with indices that it computes and with those that were computed before. */
static void launches_count_what_they_compute(void **state) {
    (void)state;
    tn_tensor *before[3];
    begin_elsewhere(before);
    {
        TN_SCOPE;
        tn_graph *g = NULL;
        tn_tensor *step = tn_zeros(TN_DIMS(4), TN_I64), *given = tn_add(indices(2), tn_zeros(TN_DIMS(4), TN_I64)),
                  *out = NULL;
        assert_ok(tn_eval(&given, 1));
        assert_ok(tn_make_state(step));
        assert_ok(tn_capture_begin());
        tn_add_(step, tn_full(TN_DIMS(4), 1, TN_I64));
        tn_tensor *y = tn_add(tn_gather(x, 0, step), tn_index_select(x, 0, given));
        assert_ok(tn_capture_end(&given, 1, &y, 1, &g));
        for (int i = 1; i <= 6; i++) { /* 2, then outside; the capture has computed 1 */
            assert_ok(tn_graph_launch(g, &given, &out));
            tn_free(out);
            if (i == 1) assert_ok(tn_device_synchronize(tn_current_device()));
        }
        assert_counted(tn_device_synchronize(tn_current_device()), "gather", 20);
        assert_ok(tn_device_synchronize(tn_current_device()));
        tn_tensor *wrong = tn_add(indices(2), tn_full(TN_DIMS(4), 2, TN_I64)); /* 2, 4, 3, 4 */
        assert_ok(tn_eval(&wrong, 1));
        assert_ok(tn_graph_launch(g, &wrong, &out));
        tn_free(out);
        tn_graph_free(g); /* what it has counted is not lost */
        assert_counted(tn_device_synchronize(tn_current_device()), "index_select", 3);
        assert_counted(tn_device_synchronize(tn_current_device()), "gather", 4);
        assert_ok(tn_device_synchronize(tn_current_device()));
    }
    end_elsewhere(before);
}

/* All of a long list, of one with gaps, and of narrow and unsigned ones are counted; what is ignored is not. */
static void all_indices_outside_are_counted(void **state) {
    (void)state;
    enum { MANY = 70001 };
    tn_tensor *before[3];
    begin_elsewhere(before);
    {
        TN_SCOPE;
        tn_tensor *many = tn_arange(0, MANY, 1, TN_I32), *two = tn_scalar_int(2), *four = tn_scalar_int(4);
        tn_tensor *places =
            tn_reshape(tn_cast(tn_sub(tn_arange(0, 12, 1, TN_F32), tn_scalar(4)), TN_I64), TN_DIMS(3, 4));
        tn_tensor *columns = tn_slice(tn_transpose(places, 0, 1), 0, 0, 4, 2); /* -4 0 4; -2 2 6 */
        tn_tensor *wrapped = tn_sub(tn_from_data((uint64_t[]){0, 5}, TN_DIMS(2), TN_U64), two);
        tn_tensor *targets = tn_sub(tn_from_data((int64_t[]){-98, 2, 7, -97}, TN_DIMS(4), TN_I64), two);
        const struct {
            const char *op;
            tn_tensor *y;
            int count;
        } cases[] = {{"gather", tn_gather(x, 0, tn_mul(many, two)), MANY - 2},
                     {"one_hot", tn_one_hot(columns, 3, TN_F32), 4},
                     {"take_along_dim", tn_take_along_dim(x, 0, wrapped), 2},
                     {"cross_entropy", (tn_cross_entropy)(tn_ones(TN_DIMS(4, 3), TN_F32), targets, NULL, NULL), 2},
                     {"embedding", tn_embedding(tn_cast(four, TN_U8), weight), 1}};
        for (size_t i = 0; i < TN_COUNT(cases); i++) {
            tn_tensor *sum = tn_sum(cases[i].y, TN_ALL, false);
            assert_ok(tn_eval(&sum, 1));
        }
        for (size_t i = 0; i < TN_COUNT(cases); i++) { /* in any order */
            assert_int_equal(tn_device_synchronize(tn_current_device()), TN_ERR_ARGUMENT);
            for (size_t k = 0; k < TN_COUNT(cases); k++) {
                char words[96];
                snprintf(words, sizeof words, "%s: %d of the indices", cases[k].op, cases[k].count);
                if (strstr(tn_error(), cases[k].op)) assert_text_has(tn_error(), words);
            }
        }
        assert_ok(tn_device_synchronize(tn_current_device()));
    }
    end_elsewhere(before);
}

/* A wait just before a kernel that counts is launched, as another thread's may come, does not lose its count. */
static int times_told;
static void waits(void) { times_told += tn_error_counters_report(tn_current_device()) != TN_OK; }

static void a_wait_before_the_launch_loses_no_count(void **state) {
    (void)state;
    tn_tensor *before[3];
    begin_elsewhere(before);
    for (int given = 0; given < 2; given++) {
        TN_SCOPE;
        tn_tensor *index = computed(5), *y;
        if (given) assert_ok(tn_eval(&index, 1));
        y = tn_gather(x, 0, index);
        times_told = 0;
        far_launching = waits;
        assert_ok(tn_eval(&y, 1));
        far_launching = NULL;
        waits();
        assert_int_equal(times_told, 1);
        waits();
        assert_int_equal(times_told, 1);
    }
    end_elsewhere(before);
}

/* Counts that nobody has waited for end with their device. */
static void what_was_counted_goes_with_its_device(void **state) {
    (void)state;
    tn_clear_plans();
    int64_t live = tn_memory_get_stats().live_buffers;
    for (int plans_last = 0; plans_last < 2; plans_last++) {
        tn_device *d = far_open(1, NULL);
        assert_ok(tn_set_current_device(d));
        {
            TN_SCOPE;
            tn_tensor *here = tn_from_data((float[]){5, 6, 7}, TN_DIMS(3), TN_F32),
                      *y = tn_gather(here, 0, computed(5));
            assert_ok(tn_eval(&y, 1));
        }
        assert_ok(tn_set_current_device(NULL));
        if (!plans_last) tn_clear_plans();
        tn_device_close(d);
        if (plans_last) tn_clear_plans();
        assert_int_equal(tn_memory_get_stats().live_buffers, live);
    }
}

/* ---- what the range is ------------------------------------------------------------------------------------------- */

static void only_casts_that_keep_the_values_are_looked_through(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *wide = tn_from_data((int64_t[]){(INT64_C(1) << 32) + 1}, TN_DIMS(1), TN_I64);
    tn_tensor *narrow = tn_index_select(x, 0, tn_cast(wide, TN_I32)); /* 1 */
    assert_true(tn_item(narrow) == 1);
    tn_tensor *bytes = tn_from_data((uint8_t[]){255}, TN_DIMS(1), TN_U8), *y;
    y = tn_take_along_dim(x, 0, tn_cast(tn_cast(bytes, TN_I8), TN_I64)); /* -1 */
    assert_true(tn_item(y) == 2);
    tn_tensor *negative = tn_from_data((int8_t[]){-1}, TN_DIMS(1), TN_I8);
    y = tn_gather(x, 0, tn_cast(tn_cast(negative, TN_U8), TN_I64)); /* 255 */
    assert_int_equal(tn_eval(&y, 1), TN_ERR_ARGUMENT);
    assert_text_has(tn_error(), "index 255");
}

static void what_is_made_inside_its_range_needs_no_look(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *noise = tn_rand(TN_DIMS(5, 3)), *row = tn_select(noise, 0, 0);
    tn_tensor *made[] = {tn_argmax(noise, TN_DIMS(1), false), tn_argsort(row, 0, true), tn_randint(0, 3, TN_DIMS(4)),
                         tn_arange(0, 3, 1, TN_I64), tn_clamp(tn_full(TN_DIMS(4), 9, TN_I64), 0, 2)};
    for (size_t i = 0; i < TN_COUNT(made); i++) {
        tn_tensor *y = tn_gather(x, 0, made[i]);
        assert_null(tn_tensor_node(y)->in[1]->check);
        assert_ok(tn_eval(&y, 1));
    }
    tn_tensor *outside[] = {tn_argmax(tn_rand(TN_DIMS(5, 4)), TN_DIMS(1), false), tn_arange(0, 3.5, 1, TN_I64),
                            tn_arange(1, 4, 1, TN_I64), tn_arange(-1, 2, 1, TN_I64),
                            tn_clamp(tn_full(TN_DIMS(4), 9, TN_I64), 0, 3)};
    for (size_t i = 0; i < TN_COUNT(outside); i++) {
        tn_tensor *y = tn_gather(x, 0, outside[i]);
        assert_ok(tn_status_of(y));
        assert_non_null(tn_tensor_node(y)->in[1]->check);
    }
}

/* Numbers of a narrow dtype wrap around: their range is not that of the numbers they are made of. */
static void narrow_indices_that_wrap_are_found(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *wide = tn_contiguous(tn_arange(0, 400, 1, TN_F32));
    tn_tensor *narrow[] = {tn_arange(0, 200, 1, TN_I8), tn_arange(-100, 130, 1, TN_I8),
                           tn_sub(tn_arange(0, 3, 1, TN_I8), tn_scalar_int(1)), tn_arange(250, 300, 1, TN_U8)};
    for (size_t i = 0; i < TN_COUNT(narrow); i++) {
        tn_tensor *y = tn_gather(wide, 0, narrow[i]);
        tn_status s = tn_eval(&y, 1);
        if (i == 3) /* 250 … 255, 0 … 43 */
            assert_ok(s);
        else if (s != TN_ERR_ARGUMENT)
            fail_msg("index %zu: %s", i, tn_status_name(s));
    }
    tn_tensor *inside = tn_gather(wide, 0, tn_clamp(tn_full(TN_DIMS(2), 100, TN_I8), -300, 300));
    assert_true(tn_item(tn_select(inside, 0, 1)) == 100);
}

/* Nor need a narrow dtype of indices hold the size of what they count: results and gradients are those of i64. */
enum { LARGE = 300, LIST = 40 };
static tn_tensor *lists[2]; /* LARGE and LIST numbers, which require gradients */
typedef tn_tensor *counted(tn_tensor *large, tn_tensor *list, const tn_tensor *index);
#define COUNTED(name, call)                                                                   \
    static tn_tensor *counted_##name(tn_tensor *large, tn_tensor *list, const tn_tensor *i) { \
        return (void)list, (call);                                                            \
    }
COUNTED(gather, tn_gather(large, 0, i))
COUNTED(index_select, tn_index_select(large, 0, i))
COUNTED(index_add, tn_index_add(large, 0, i, list))
COUNTED(scatter, tn_scatter(large, 0, i, list))
COUNTED(scatter_add, tn_scatter_add(large, 0, i, list))
COUNTED(scatter_prod, tn_scatter_reduce(large, 0, i, list, TN_REDUCE_PROD, true))
COUNTED(scatter_amax, tn_scatter_reduce(large, 0, i, list, TN_REDUCE_AMAX, true))
COUNTED(scatter_amin, tn_scatter_reduce(large, 0, i, list, TN_REDUCE_AMIN, false))
COUNTED(take_along_dim, tn_take_along_dim(large, 0, i))
COUNTED(embedding, tn_embedding(i, tn_reshape(large, TN_DIMS(LARGE, 1))))
COUNTED(one_hot, tn_mul(tn_one_hot(i, LARGE, TN_F32), large))
COUNTED(nll_loss, tn_nll_loss(tn_expand(large, TN_DIMS(LIST, LARGE)), i, NULL, NULL))
COUNTED(cross_entropy, tn_cross_entropy(tn_expand(large, TN_DIMS(LIST, LARGE)), i, NULL, NULL))
static const struct {
    const char *name;
    counted *of;
} counting[] = {{"gather", counted_gather},
                {"index_select", counted_index_select},
                {"index_add", counted_index_add},
                {"scatter", counted_scatter},
                {"scatter_add", counted_scatter_add},
                {"scatter prod", counted_scatter_prod},
                {"scatter amax", counted_scatter_amax},
                {"scatter amin", counted_scatter_amin},
                {"take_along_dim", counted_take_along_dim},
                {"embedding", counted_embedding},
                {"one_hot", counted_one_hot},
                {"nll_loss", counted_nll_loss},
                {"cross_entropy", counted_cross_entropy}};

/* The result and both gradients, as bytes. */
static size_t counted_with(counted *of, tn_dtype t, int step, float *out) {
    tn_scope scope = tn_scope_begin();
    int64_t numbers[LIST];
    for (int i = 0; i < LIST; i++)
        numbers[i] = i % 13 * step;
    tn_tensor *index = tn_cast(tn_from_data(numbers, TN_DIMS(LIST), TN_I64), t);
    assert_ok(tn_eval(&index, 1));
    tn_tensor *y = of(lists[0], lists[1], index), *sum = tn_sum(tn_mul(y, y), TN_ALL, false);
    tn_tensor *gradients[2] = {NULL};
    assert_ok(tn_gradients(&sum, 1, NULL, lists, 2, false, gradients));
    size_t count = 0;
    for (int k = 0; k < 3; k++) {
        const tn_tensor *read = k ? gradients[k - 1] : y;
        if (!read) continue;
        assert_ok(tn_read(read, out + count, (size_t)tn_numel(read) * sizeof *out));
        count += (size_t)tn_numel(read);
    }
    tn_scope_end(&scope);
    return count * sizeof *out;
}

static void narrow_indices_count_in_large_tensors(void **state) {
    (void)state;
    enum { MOST = LARGE * LIST + LARGE + LIST };
    static const tn_dtype dtypes[] = {TN_U8, TN_I8, TN_I16, TN_U16, TN_I32, TN_U32, TN_U64};
    static float want[MOST], got[MOST];
    TN_SCOPE;
    lists[0] = tn_contiguous(tn_add_scalar(tn_rand(TN_DIMS(LARGE)), 0.5));
    lists[1] = tn_contiguous(tn_add_scalar(tn_rand(TN_DIMS(LIST)), 0.5));
    assert_ok(tn_eval(lists, 2));
    for (int k = 0; k < 2; k++)
        assert_ok(tn_set_requires_grad(lists[k], true));
    for (size_t i = 0; i < TN_COUNT(counting) * TN_COUNT(dtypes); i++) {
        tn_dtype t = dtypes[i % TN_COUNT(dtypes)];
        size_t op = i / TN_COUNT(dtypes);
        int step = t == TN_I8 ? 10 : 21; /* indices up to 120, or 252 */
        size_t bytes = counted_with(counting[op].of, t, step, got);
        assert_int_equal(counted_with(counting[op].of, TN_I64, step, want), bytes);
        if (memcmp(got, want, bytes) != 0) fail_msg("%s with %s differs from i64", counting[op].name, tn_dtype_name(t));
    }
}

static void a_large_unsigned_index_is_named(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *index = tn_from_data((uint64_t[]){1, UINT64_MAX}, TN_DIMS(2), TN_U64);
    assert_int_equal(tn_status_of(tn_gather(x, 0, index)), TN_ERR_ARGUMENT);
    assert_text_has(tn_error(), "index 18446744073709551615, element 1");
    assert_int_equal(tn_status_of(tn_take_along_dim(x, 0, index)), TN_ERR_ARGUMENT); /* not the last one */
}

static void an_empty_dimension_is_named(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *empty = tn_zeros(TN_DIMS(0), TN_F32);
    assert_int_equal(tn_status_of(tn_gather(empty, 0, indices(0))), TN_ERR_ARGUMENT);
    assert_text_has(tn_error(), "the dimension is empty");
}

static tn_tensor *zeros_for(const tn_tensor *i) { return tn_zeros(tn_shape(i), 1, TN_F32); }
static tn_tensor *gathered(const tn_tensor *t, const tn_tensor *i) { return tn_gather(t, 0, i); }
static tn_tensor *scattered(const tn_tensor *t, const tn_tensor *i) { return tn_scatter(t, 0, i, zeros_for(i)); }
static tn_tensor *scatter_added(const tn_tensor *t, const tn_tensor *i) {
    return tn_scatter_add(t, 0, i, zeros_for(i));
}
static tn_tensor *index_copied(const tn_tensor *t, const tn_tensor *i) { return tn_index_copy(t, 0, i, zeros_for(i)); }
static tn_tensor *put(const tn_tensor *t, const tn_tensor *i) { return tn_put(t, i, zeros_for(i), true); }

/* An op whose gradient is still needed keeps its indices. Plans that read its computed result must not check them. */
static void a_computed_result_is_read_without_its_indices(void **state) {
    (void)state;
    static const struct {
        const char *name;
        tn_tensor *(*with)(const tn_tensor *t, const tn_tensor *index);
        double of_none, of_two; /* gradients of the sum of squares, summed: without an index, with indices 0 and 1 */
    } ops[] = {{"gather", gathered, 0, 4},
               {"scatter", scattered, 6, 2},
               {"scatter_add", scatter_added, 6, 6},
               {"index_copy", index_copied, 6, 2},
               {"put", put, 6, 6}};
    for (size_t k = 0; k < TN_COUNT(ops); k++)
        for (int count = 0; count <= 2; count += 2) {
            TN_SCOPE;
            tn_tensor *t = tn_contiguous(tn_ones(TN_DIMS(3), TN_F32));
            assert_ok(tn_set_requires_grad(t, true));
            tn_tensor *y = ops[k].with(t, count ? tn_arange(0, 2, 1, TN_I64) : tn_zeros(TN_DIMS(0), TN_I64));
            assert_ok(tn_eval(&y, 1));
            tn_tensor *sum = tn_sum(tn_mul(y, y), TN_ALL, false);
            if (tn_eval(&sum, 1) != TN_OK) fail_msg("%s of %d indices: %s", ops[k].name, count, tn_error());
            assert_ok(tn_backward(sum));
            double got = tn_item(tn_sum(tn_grad(t), TN_ALL, false)), want = count ? ops[k].of_two : ops[k].of_none;
            if (got != want) fail_msg("%s of %d indices: gradient %g, not %g", ops[k].name, count, got, want);
        }
}

static void one_hot_refuses_what_is_no_class(void **state) {
    (void)state;
    TN_SCOPE;
    assert_int_equal(tn_status_of(tn_one_hot(indices(3), 3, TN_F32)), TN_ERR_ARGUMENT);
    assert_text_has(tn_error(), "one_hot: index 3");
    assert_int_equal(tn_status_of(tn_one_hot(indices(-1), 3, TN_F32)), TN_ERR_ARGUMENT);
    tn_tensor *y = tn_one_hot(computed(3), 3, TN_F32);
    assert_refused(tn_eval(&y, 1), "one_hot");
    assert_true(tn_item(tn_sum(tn_one_hot(computed(2), 3, TN_F32), TN_ALL, false)) == 4);
}

/* ---- queues ------------------------------------------------------------------------------------------------------ */

static void a_queue_reports_an_index_outside(void **state) {
    (void)state;
    tn_queue *q = NULL;
    assert_ok(tn_queue_new(tn_current_device(), &q));
    {
        TN_SCOPE;
        tn_tensor *wrong = tn_gather(x, 0, computed(3)), *host = tn_gather(x, 0, indices(2));
        assert_ok(tn_eval_async(&wrong, 1, q, NULL));
        assert_int_equal(tn_queue_synchronize(q), TN_ERR_ARGUMENT);
        assert_text_has(tn_error(), "gather: index 3");
        assert_true(tn_read(wrong, (float[4]){0}, 16) != TN_OK);
        assert_ok(tn_eval(&host, 1));
    }
    tn_queue_free(q);
}

/* An index that is chosen by another index: the failure of the first reaches what the second chooses, and no more. */
static void a_chain_of_indices_fails_as_a_whole_and_alone(void **state) {
    (void)state;
    TN_SCOPE;
    int64_t eight = 8;
    double sum;
    tn_tensor *v = tn_ones(TN_DIMS(3), TN_F32), *table = tn_arange(0, 5, 1, TN_I64);
    tn_tensor *place = tn_add(tn_from_data(&eight, TN_DIMS(1), TN_I64), tn_scalar_int(1));
    tn_tensor *chosen = tn_index_select(table, 0, place), *result = tn_index_select(v, 0, chosen);
    assert_int_equal(tn_eval(&result, 1), TN_ERR_ARGUMENT);
    assert_text_has(tn_error(), "index 9,");
    assert_int_equal(tn_status_of(chosen), TN_ERR_ARGUMENT);
    assert_int_equal(tn_status_of(result), TN_ERR_ARGUMENT);
    assert_ok(tn_read_item(tn_sum(v, TN_ALL, false), &sum));
    assert_true(sum == 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_index_outside_is_refused_by_every_op),
        cmocka_unit_test(a_tap_outside_is_refused),
        cmocka_unit_test(indices_that_the_host_has_are_found),
        cmocka_unit_test(ignored_classes_and_negative_places_are_inside),
        cmocka_unit_test(one_index_outside_is_found_at_every_place),
        cmocka_unit_test(a_computed_index_outside_fails_the_evaluation),
        cmocka_unit_test(indices_that_are_a_view_or_a_cast_are_compared),
        cmocka_unit_test(a_plan_that_is_found_again_compares_again),
        cmocka_unit_test(a_state_keeps_its_value),
        cmocka_unit_test(gradients_compare_too),
        cmocka_unit_test(many_indices_are_compared_by_the_plan),
        cmocka_unit_test(what_does_not_depend_on_the_index_is_computed),
        cmocka_unit_test(several_indices_outside_fail_one_evaluation),
        cmocka_unit_test(one_index_has_a_range_for_each_op),
        cmocka_unit_test(the_line_is_that_of_the_failed_call),
        cmocka_unit_test(a_restored_state_has_its_shape),
        cmocka_unit_test(a_launch_with_an_index_outside_changes_nothing),
        cmocka_unit_test(borrowed_indices_are_compared_at_each_launch),
        cmocka_unit_test(borrowed_indices_are_compared_when_they_are_read),
        cmocka_unit_test(what_the_host_has_sent_is_compared),
        cmocka_unit_test(a_view_of_what_was_sent_has_its_own_range),
        cmocka_unit_test(an_ignored_class_hides_no_other),
        cmocka_unit_test(one_index_outside_a_long_list_is_found_elsewhere),
        cmocka_unit_test(a_launch_elsewhere_compares_what_was_sent),
        cmocka_unit_test(an_index_outside_that_a_device_computes_is_counted),
        cmocka_unit_test(launches_count_what_they_compute),
        cmocka_unit_test(all_indices_outside_are_counted),
        cmocka_unit_test(a_wait_before_the_launch_loses_no_count),
        cmocka_unit_test(what_was_counted_goes_with_its_device),
        cmocka_unit_test(only_casts_that_keep_the_values_are_looked_through),
        cmocka_unit_test(what_is_made_inside_its_range_needs_no_look),
        cmocka_unit_test(narrow_indices_that_wrap_are_found),
        cmocka_unit_test(narrow_indices_count_in_large_tensors),
        cmocka_unit_test(a_large_unsigned_index_is_named),
        cmocka_unit_test(an_empty_dimension_is_named),
        cmocka_unit_test(a_computed_result_is_read_without_its_indices),
        cmocka_unit_test(one_hot_refuses_what_is_no_class),
        cmocka_unit_test(a_chain_of_indices_fails_as_a_whole_and_alone),
        cmocka_unit_test(a_queue_reports_an_index_outside),
    };
    return cmocka_run_group_tests(tests, make_operands, free_operands);
}
