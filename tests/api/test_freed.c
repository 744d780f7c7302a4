/* test_freed.c — tensors that are used after they were freed: every kind of function says so and names itself.
 *
 * The handles' memory is used again at once, so the tests also hold the pointers against tensors that came after. */
#include "test_support.h"

#include <math.h>
#include <pthread.h>

#include "tensor/graph.h"
#include "trunnion/autograd.h"
#include "trunnion/linalg.h"
#include "trunnion/ops.h"

static tn_tensor *freed(void) {
    tn_tensor *x = tn_ones(TN_DIMS(3, 3), TN_F32);
    assert_ok(tn_eval(&x, 1));
    tn_free(x);
    return x;
}

static void assert_told(const char *call, tn_status s, const char *function) {
    if (s != TN_ERR_ARGUMENT) fail_msg("%s: %s", call, tn_status_name(s));
    assert_text_has(tn_error(), "was freed before");
    if (!strstr(tn_error(), function)) fail_msg("%s: \"%s\" does not name %s", call, tn_error(), function);
}

#define FAILS(call, function) assert_told(#call, (call), function)
#define REFUSES(call, function) assert_told(#call, tn_status_of(call), function)

/* The reproducer of the examination: it never returned. */
static void a_freed_operand_does_not_hang(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = freed();
    assert_true(isnan(tn_item(tn_select(tn_select(tn_add_scalar(x, 1), 0, 0), 0, 0))));
    assert_text_has(tn_error(), "test_freed.c:");
    assert_text_has(tn_error(), "add_scalar: tensor 1 was freed before");
}

static void every_kind_of_function_tells(void **state) {
    (void)state;
    tn_tensor *x = freed();
    TN_SCOPE;
    tn_tensor *y = tn_ones(TN_DIMS(3, 3), TN_F32); /* in x's place */
    float out[9];
    double item;
    const void *at;
    tn_graph *g = NULL;
    REFUSES(tn_neg(x), "neg: tensor 1");
    REFUSES(tn_add(y, x), "add: tensor 2");
    REFUSES(tn_cat((tn_tensor *[]){y, x}, 2, 0), "cat: tensor 2");
    REFUSES(tn_reshape(x, TN_DIMS(9)), "reshape");
    REFUSES(tn_transpose(x, 0, 1), "transpose");
    REFUSES(tn_slice(x, 0, 0, 1, 1), "slice");
    REFUSES(tn_detach(x), "");
    REFUSES(tn_dropout(x, 0.5, true), "");
    REFUSES(tn_linalg_inv(x), "");
    REFUSES(tn_symbolic(x, 0, 0), "tn_symbolic");
    REFUSES(tn_to_device(x, tn_best_device()), "tn_to_device");
    REFUSES(tn_add_(x, y), "add_: the target");
    REFUSES(tn_add_(y, x), "add: tensor 2");
    REFUSES(tn_copy_(x, y), "copy_: the target");
    REFUSES(tn_copy_(y, x), "tn_copy_: src");
    FAILS(tn_status_of(x), "");
    FAILS(tn_eval(&x, 1), "tn_eval");
    FAILS(tn_eval_async(&x, 1, NULL, NULL), "tn_eval");
    FAILS(tn_read(x, out, sizeof out), "tn_read");
    FAILS(tn_read_as(x, out, 9, TN_F32), "tn_read_as");
    FAILS(tn_read_item(x, &item), "tn_read_item");
    FAILS(tn_peek(x, &at), "tn_peek");
    FAILS(tn_make_state(x), "tn_make_state");
    FAILS(tn_swap(x, y), "tn_swap");
    FAILS(tn_swap(y, x), "tn_swap");
    FAILS(tn_set_requires_grad(x, true), "set_requires_grad");
    FAILS(tn_backward(x), "backward");
    FAILS(tn_gradients(&x, 1, NULL, &y, 1, false, &(tn_tensor *){NULL}), "gradients");
    assert_ok(tn_capture_begin());
    assert_true(tn_capture_end(&x, 1, &y, 1, &g) != TN_OK);
    assert_true(isnan(tn_item(x)));
    assert_text_has(tn_error(), "tn_item: the tensor was freed");
    assert_int_equal(tn_rank(x), 0);
    assert_int_equal(tn_size(x, 0), -1);
    assert_int_equal(tn_numel(x), 0);
    assert_int_equal(tn_write_count(x), 0);
    assert_int_equal(tn_value_id(x), 0);
    assert_false(tn_requires_grad(x));
    assert_null(tn_grad(x));
    assert_ptr_equal(tn_keep(x), x);
    tn_zero_grad(x);
    assert_ok(tn_read(y, out, sizeof out));
    assert_true(out[0] == 1 && out[8] == 1);
}

static void freeing_twice_costs_nobody_else_a_tensor(void **state) {
    (void)state;
    tn_tensor *x = freed(), *y = tn_full(NULL, 0, 5, TN_F32); /* in x's place */
    tn_free(x);
    assert_text_has(tn_error(), "tn_free: the tensor was freed before");
    assert_ptr_equal(tn_retain(x), x);
    tn_free(x);
    assert_true(tn_item(y) == 5);
    tn_free(y);
}

static void a_tensor_of_an_ended_scope_is_recognised(void **state) {
    (void)state;
    tn_tensor *x;
    {
        TN_SCOPE;
        x = tn_ones(TN_DIMS(2), TN_F32);
    }
    TN_SCOPE;
    REFUSES(tn_neg(x), "neg: tensor 1");
}

static void a_view_outlives_its_base(void **state) {
    (void)state;
    tn_tensor *x = tn_ones(TN_DIMS(2, 3), TN_F32), *row = tn_select(x, 0, 1);
    tn_free(x);
    tn_add_scalar_(row, 1);
    float values[3];
    assert_ok(tn_read(row, values, sizeof values));
    assert_true(values[2] == 2);
    tn_free(row);
    TN_SCOPE;
    REFUSES(tn_neg(row), "neg: tensor 1");
}

/* What the thread kept for reuse is used by others after its end. */
static void *make_and_free(void *out) {
    *(tn_tensor **)out = freed();
    return NULL;
}

static void a_tensor_that_another_thread_freed_is_recognised(void **state) {
    (void)state;
    tn_tensor *x = NULL, *many[64];
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, make_and_free, &x), 0);
    pthread_join(thread, NULL);
    for (int i = 0; i < 64; i++)
        many[i] = tn_full(NULL, 0, i, TN_F32);
    assert_int_equal(tn_status_of(x), TN_ERR_ARGUMENT);
    for (int i = 0; i < 64; i++) {
        assert_true(tn_item(many[i]) == i);
        tn_free(many[i]);
    }
}

/* The generations of one handle's memory repeat after 64, but the memory waits for that of 16384 others. */
static void a_million_tensors_later_it_is_still_recognised(void **state) {
    (void)state;
    enum { TENSORS = TN_GENERATIONS * TN_RETIRED_HANDLES, MOST_BYTES = 2 << 20 };
    tn_tensor *x = freed();
    int64_t before = tn_mem_get_stats().live_bytes;
    for (int i = 0; i < TENSORS; i++) {
        if (tn_tensor_is_live(x)) fail_msg("taken for another tensor after %d", i);
        tn_free(tn_full(NULL, 0, 1, TN_F32));
    }
    assert_int_equal(tn_status_of(x), TN_ERR_ARGUMENT);
    int64_t after = tn_mem_get_stats().live_bytes;
    if (after > before + MOST_BYTES) fail_msg("%lld bytes more are in use", (long long)(after - before));
}

static void a_pointer_of_every_generation_lies_in_its_handle(void **state) {
    (void)state;
    for (int i = 0; i < 2 * TN_GENERATIONS; i++) {
        tn_tensor *x = tn_ones(TN_DIMS(1), TN_F32);
        const char *begin = (const char *)tn_handle_of(x), *at = (const char *)x;
        assert_true(at >= begin && at < begin + sizeof(tn_handle));
        tn_free(x);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_freed_operand_does_not_hang),
        cmocka_unit_test(every_kind_of_function_tells),
        cmocka_unit_test(freeing_twice_costs_nobody_else_a_tensor),
        cmocka_unit_test(a_tensor_of_an_ended_scope_is_recognised),
        cmocka_unit_test(a_view_outlives_its_base),
        cmocka_unit_test(a_tensor_that_another_thread_freed_is_recognised),
        cmocka_unit_test(a_million_tensors_later_it_is_still_recognised),
        cmocka_unit_test(a_pointer_of_every_generation_lies_in_its_handle),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
