/* test_indices.c — indices out of range are refused by every op that takes indices, if the host has them. */
#include "test_support.h"

#include <math.h>

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

/* Nobody waits for what is still to be computed: there it is as ops.h says. */
static void an_index_that_is_computed_later_yields_nan(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *y = tn_gather(x, 0, tn_add(indices(2), tn_scalar_int(1)));
    assert_true(isnan(tn_item(tn_select(y, 0, 3))));
    assert_true(tn_item(tn_select(y, 0, 0)) == 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_index_outside_is_refused_by_every_op),
        cmocka_unit_test(indices_that_the_host_has_are_found),
        cmocka_unit_test(ignored_classes_and_negative_places_are_inside),
        cmocka_unit_test(one_index_outside_is_found_at_every_place),
        cmocka_unit_test(an_index_that_is_computed_later_yields_nan),
    };
    return cmocka_run_group_tests(tests, make_operands, free_operands);
}
