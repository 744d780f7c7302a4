/* test_autograd.c — what gradients promise beyond the rules of single ops (test_ops.c, test_golden.c have those): sums
 * over paths, leaves and their slots, modes, derivatives of derivatives, in-place rules,
 * failures that leave nothing behind. */
#include "test_support.h"

#include <math.h>

#include "tensor/graph.h"
#include "trunnion/autograd.h"
#include "trunnion/ops.h"

/* ---- small words ------------------------------------------------------------------------------------------------- */

static tn_tensor *vector(const float *values, int64_t count) { return tn_from_data(values, &count, 1, TN_F32); }

#define VECTOR(...) \
    vector((const float[]){__VA_ARGS__}, (int64_t)(sizeof((const float[]){__VA_ARGS__}) / sizeof(float)))

static tn_tensor *leaf_of(tn_tensor *t) {
    assert_ok(tn_set_requires_grad(t, true));
    return t;
}

static void assert_values(const tn_tensor *t, const float *want, int64_t count) {
    float is[64];
    assert_non_null(t);
    assert_ok(tn_status_of(t));
    assert_int_equal(tn_numel(t), count);
    assert_ok(tn_read(t, is, (size_t)count * sizeof *is));
    for (int64_t i = 0; i < count; i++)
        if (fabsf(is[i] - want[i]) > 1e-5f * fmaxf(1.0f, fabsf(want[i])))
            fail_msg("element %lld is %g, it should be %g", (long long)i, (double)is[i], (double)want[i]);
}

#define ASSERT_VALUES(t, ...) \
    assert_values(t, (const float[]){__VA_ARGS__}, (int64_t)(sizeof((const float[]){__VA_ARGS__}) / sizeof(float)))

static tn_tensor *total(const tn_tensor *x) { return tn_sum(x, TN_ALL, false); }

static void assert_refused(tn_status is, tn_status want, const char *word) {
    assert_int_equal(is, want);
    assert_text_has(tn_error(), word);
}

/* ---- sums over paths --------------------------------------------------------------------------------------------- */

static void a_value_used_twice_sums_its_gradients(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = leaf_of(VECTOR(1, -2, 3));
    tn_tensor *square = tn_mul(x, x);
    assert_ok(tn_backward(total(tn_add(square, tn_mul(square, x)))));
    ASSERT_VALUES(tn_grad(x), 2 + 3, -4 + 12, 6 + 27);
}

static void only_what_requires_gradients_gets_them(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = leaf_of(VECTOR(1, 2)), *constant = VECTOR(3, 4);
    tn_tensor *y = tn_mul(x, constant);
    assert_true(tn_requires_grad(y));
    assert_false(tn_requires_grad(tn_mul(constant, constant)));
    assert_false(tn_requires_grad(tn_lt(x, constant)));
    assert_ok(tn_backward(total(y)));
    ASSERT_VALUES(tn_grad(x), 3, 4);
    assert_null(tn_grad(constant));
}

static void views_lead_gradients_to_their_place(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = leaf_of(tn_from_data((float[]){1, 2, 3, 4, 5, 6}, TN_DIMS(2, 3), TN_F32));
    tn_tensor *turned = tn_slice(tn_transpose(x, 0, 1), 0, 2, INT64_MIN, -2);
    assert_ok(tn_backward(total(tn_mul(turned, turned))));
    ASSERT_VALUES(tn_grad(x), 2, 0, 6, 8, 0, 12);
}

static void an_input_above_another_one_gets_both_gradients(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = leaf_of(VECTOR(2, 3)), *middle = tn_mul(x, x), *y = total(tn_mul(middle, middle));
    tn_tensor *inputs[] = {middle, x}, *grads[2];
    assert_ok(tn_gradients(&y, 1, NULL, inputs, 2, false, grads));
    ASSERT_VALUES(grads[0], 8, 18);
    ASSERT_VALUES(grads[1], 32, 108);
    assert_null(tn_grad(x));
}

static void an_input_that_does_not_matter_gets_zeros(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = leaf_of(VECTOR(2, 3)), *other = leaf_of(VECTOR(1, 1, 1)), *y = total(x), *grad;
    assert_ok(tn_gradients(&y, 1, NULL, &other, 1, false, &grad));
    ASSERT_VALUES(grad, 0, 0, 0);
}

static void several_outputs_add_with_their_weights(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = leaf_of(VECTOR(2, 3)), *grad;
    tn_tensor *outputs[] = {tn_mul(x, x), total(x)}, *weights[] = {VECTOR(1, 10), NULL};
    assert_ok(tn_gradients(outputs, 2, weights, &x, 1, false, &grad));
    ASSERT_VALUES(grad, 4 + 1, 60 + 1);
}

/* ---- leaves ------------------------------------------------------------------------------------------------------ */

static void backward_adds_until_the_gradient_is_zeroed(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = leaf_of(VECTOR(1, 2));
    for (int i = 0; i < 3; i++)
        assert_ok(tn_backward(total(tn_mul(x, x))));
    ASSERT_VALUES(tn_grad(x), 6, 12);
    tn_zero_grad(x);
    assert_null(tn_grad(x));
    assert_ok(tn_backward(total(x)));
    ASSERT_VALUES(tn_grad(x), 1, 1);
}

static void a_gradient_outlives_scopes(void **state) {
    (void)state;
    tn_tensor *x = leaf_of(VECTOR(1, 2));
    {
        TN_SCOPE;
        assert_ok(tn_backward(total(tn_mul(x, x))));
    }
    {
        TN_SCOPE;
        ASSERT_VALUES(tn_grad(x), 2, 4);
    }
    tn_free(x);
}

static void a_gradient_can_be_clipped_in_place(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = leaf_of(VECTOR(1, 2, 3));
    assert_ok(tn_backward(total(x)));
    tn_mul_(tn_grad(x), tn_scalar(0.5));
    ASSERT_VALUES(tn_grad(x), 0.5, 0.5, 0.5);
}

static void versions_of_a_parameter_share_its_gradient(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *w = leaf_of(VECTOR(1, 2)), *before = total(tn_mul(w, w));
    {
        TN_NO_GRAD;
        tn_add_(w, tn_scalar(10));
    }
    tn_tensor *after = total(tn_mul(w, w));
    assert_ok(tn_backward(tn_add(before, after)));
    ASSERT_VALUES(tn_grad(w), 2 + 22, 4 + 24);
}

static void a_leaf_is_written_only_without_gradients(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *w = leaf_of(VECTOR(1, 2));
    {
        TN_NO_GRAD;
        tn_add_(w, tn_scalar(1));
    }
    assert_true(tn_requires_grad(w));
    ASSERT_VALUES(w, 2, 3);
    assert_refused(tn_status_of(tn_add_(w, tn_scalar(1))), TN_ERR_STATE, "leaf");
    ASSERT_VALUES(w, 2, 3);
}

static void leaves_are_floating_and_computed_from_no_other(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *whole = tn_from_data((int32_t[]){1}, TN_DIMS(1), TN_I32), *x = leaf_of(VECTOR(1, 2));
    assert_refused(tn_set_requires_grad(whole, true), TN_ERR_DTYPE, "i32");
    assert_refused(tn_set_requires_grad(tn_mul(x, x), true), TN_ERR_ARGUMENT, "mul");
    assert_refused(tn_set_requires_grad(NULL, true), TN_ERR_ARGUMENT, "NULL");
    assert_ok(tn_set_requires_grad(x, false));
    assert_false(tn_requires_grad(tn_mul(x, x)));
}

/* ---- modes ------------------------------------------------------------------------------------------------------- */

static void nothing_is_remembered_under_no_grad(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = leaf_of(VECTOR(1, 2)), *y = NULL;
    assert_true(tn_grad_enabled());
    {
        TN_NO_GRAD;
        assert_false(tn_grad_enabled());
        y = total(tn_mul(x, x));
    }
    assert_true(tn_grad_enabled());
    assert_refused(tn_backward(y), TN_ERR_STATE, "require");
}

/* y = 2x is multiplied by 10, in whole (0), in its first element (1), through tn_detach (2) or both (3); y² follows. */
static tn_tensor *written_square(const tn_tensor *x, int how) {
    tn_tensor *y = tn_mul_scalar(x, 2);
    tn_tensor *target = how & 2 ? tn_detach(y) : y;
    if (how & 1) target = tn_narrow(target, 0, 0, 1);
    bool before = tn_set_grad_enabled(how & 2);
    assert_ok(tn_status_of(tn_mul_scalar_(target, 5)));
    assert_ok(tn_status_of(tn_mul_scalar_(target, 2)));
    tn_set_grad_enabled(before);
    return tn_square(y);
}

/* PyTorch: d y²/dx = 2 · y · 2 with y's written value, because the write itself is not differentiated. */
static void a_write_without_gradients_keeps_the_history(void **state) {
    (void)state;
    for (int how = 0; how < 4; how++)
        for (int dtype = 0; dtype < 2; dtype++) {
            TN_SCOPE;
            tn_tensor *x =
                tn_cast(tn_from_data((const float[]){1, 2}, (int64_t[]){2}, 1, TN_F32), dtype ? TN_F16 : TN_F32);
            assert_ok(tn_eval(&x, 1));
            x = tn_contiguous(x);
            assert_ok(tn_set_requires_grad(x, true));
            float grad[2], value[2];
            tn_tensor *y = written_square(x, how);
            assert_ok(tn_backward(total(y)));
            assert_ok(tn_read(tn_cast(tn_grad(x), TN_F32), grad, sizeof grad));
            assert_ok(tn_read(tn_cast(y, TN_F32), value, sizeof value));
            float second = how & 1 ? 4 : 40;
            assert_float_equal(value[0], 400, 0);
            assert_float_equal(value[1], second * second, 0);
            assert_float_equal(grad[0], 80, 0);
            assert_float_equal(grad[1], 4 * second, 0);
        }
}

/* d v²/dx = 2 · v · 2, whether v was written itself, or first used again while no gradients are recorded. */
static void a_view_keeps_its_history_under_writes_without_gradients(void **state) {
    (void)state;
    for (int through_base = 0; through_base < 2; through_base++) {
        TN_SCOPE;
        tn_tensor *x = leaf_of(VECTOR(1, 2)), *y = tn_mul_scalar(x, 2), *v = tn_slice(y, 0, 0, 1, 1);
        bool before = tn_set_grad_enabled(false);
        assert_ok(tn_status_of(tn_fill_(through_base ? y : v, 5)));
        ASSERT_VALUES(v, 5);
        tn_set_grad_enabled(before);
        assert_ok(tn_backward(total(tn_square(v))));
        ASSERT_VALUES(tn_grad(x), 20, 0);
    }
}

static void a_view_gets_the_history_that_was_written_to_its_base(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = leaf_of(VECTOR(1, 2)), *y = tn_zeros(TN_DIMS(2), TN_F32), *v = tn_slice(y, 0, 0, 1, 1);
    assert_ok(tn_status_of(tn_copy_(y, x)));
    bool before = tn_set_grad_enabled(false);
    ASSERT_VALUES(v, 1);
    tn_set_grad_enabled(before);
    assert_ok(tn_backward(total(tn_square(v))));
    ASSERT_VALUES(tn_grad(x), 2, 0);
}

/* One storage has one history: PyTorch's two would be wrong in one of the tensors. */
static void a_differentiable_write_to_a_detached_tensor_is_refused(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = tn_ones(TN_DIMS(2), TN_F32);
    assert_ok(tn_set_requires_grad(x, true));
    tn_tensor *y = tn_mul_scalar(x, 2);
    assert_int_equal(tn_status_of(tn_mul_(tn_detach(y), x)), TN_ERR_STATE);
    assert_non_null(strstr(tn_error(), "tn_clone"));
    assert_float_equal((float)tn_item(tn_sum(y, TN_ALL, false)), 4, 0);
    /* nor where the other tensor has no history: it would get that of the detached one, whose gradient is lost */
    tn_tensor *plain = tn_ones(TN_DIMS(2), TN_F32), *part = tn_slice(tn_detach(plain), 0, 0, 1, 1);
    assert_int_equal(tn_status_of(tn_mul_(part, tn_slice(x, 0, 0, 1, 1))), TN_ERR_STATE);
    assert_false(tn_requires_grad(plain));
}

static void a_detached_tensor_is_a_constant(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = leaf_of(VECTOR(3, 4));
    assert_ok(tn_backward(total(tn_mul(x, tn_detach(x)))));
    ASSERT_VALUES(tn_grad(x), 3, 4);
}

/* ---- derivatives of derivatives ---------------------------------------------------------------------------------- */

static void gradients_can_be_differentiated_again(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = leaf_of(VECTOR(2, -3)), *y = total(tn_mul(tn_mul(x, x), x)), *first, *second, *third;
    assert_ok(tn_gradients(&y, 1, NULL, &x, 1, true, &first));
    ASSERT_VALUES(first, 12, 27);
    tn_tensor *sum = total(first);
    assert_ok(tn_gradients(&sum, 1, NULL, &x, 1, true, &second));
    ASSERT_VALUES(second, 12, -18);
    sum = total(second);
    assert_ok(tn_gradients(&sum, 1, NULL, &x, 1, false, &third));
    ASSERT_VALUES(third, 6, 6);
    assert_false(tn_requires_grad(third));
}

/* A gradient penalty: the norm of a gradient is part of the loss. */
static void a_gradient_may_be_part_of_a_loss(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = VECTOR(1, 2), *w = leaf_of(VECTOR(0.5, -1)), *input = leaf_of(x), *slope;
    tn_tensor *y = tn_tanh(total(tn_mul(w, input)));
    assert_ok(tn_gradients(&y, 1, NULL, &input, 1, true, &slope));
    assert_ok(tn_backward(total(tn_mul(slope, slope))));
    /* f = |w|² s², s = 1 - tanh²(w·x): df/dw = 2 s² w - 4 |w|² s² t x. */
    float t = tanhf(0.5f - 2.0f), s = 1 - t * t, norm = 1.25f;
    ASSERT_VALUES(tn_grad(w), 2 * s * s * 0.5f - 4 * norm * s * s * t * 1, 2 * s * s * -1 - 4 * norm * s * s * t * 2);
}

/* ---- composed ops ------------------------------------------------------------------------------------------------ */

static void reading_a_value_first_changes_no_gradient(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = leaf_of(VECTOR(0.5, -1, 2));
    tn_tensor *y = tn_layer_norm(tn_gelu(x, NULL), TN_DIMS(3), NULL, NULL, NULL), *w = VECTOR(1, -2, 0.5), *grads[2];
    tn_tensor *loss = total(tn_mul(y, w));
    assert_ok(tn_gradients(&loss, 1, NULL, &x, 1, false, &grads[0]));
    tn_item(loss);
    assert_ok(tn_gradients(&loss, 1, NULL, &x, 1, false, &grads[1]));
    float first[3];
    assert_ok(tn_read(grads[0], first, sizeof first));
    assert_values(grads[1], first, 3);
}

static void a_chain_of_any_length_needs_no_deep_stack(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = leaf_of(VECTOR(1, 1)), *y = x;
    for (int i = 0; i < 3000; i++) {
        tn_tensor *next = tn_add(y, x);
        if (y != x) tn_free(y);
        y = next;
    }
    assert_ok(tn_backward(total(y)));
    ASSERT_VALUES(tn_grad(x), 3001, 3001);
}

/* ---- writes ------------------------------------------------------------------------------------------------------ */

static void a_value_needed_but_overwritten_is_refused(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *w = leaf_of(VECTOR(1, 2));
    assert_ok(tn_make_state(w));
    tn_tensor *needs = total(tn_mul(w, w)), *needs_not = total(tn_mul(w, tn_scalar(3)));
    {
        TN_NO_GRAD;
        tn_add_(w, tn_scalar(1));
    }
    assert_ok(tn_eval(&w, 1));
    assert_refused(tn_backward(needs), TN_ERR_STATE, "in place");
    assert_null(tn_grad(w));
    assert_ok(tn_backward(needs_not));
    ASSERT_VALUES(tn_grad(w), 3, 3);
}

static void writes_before_the_backward_pass_belong_to_the_tape(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = leaf_of(VECTOR(1, 2, 3)), *y = tn_mul(x, x);
    tn_tensor *part = tn_slice(y, 0, 1, 3, 1);
    tn_mul_(part, tn_scalar(10));
    assert_ok(tn_backward(total(y)));
    ASSERT_VALUES(tn_grad(x), 2, 40, 60);
}

/* ---- failures ---------------------------------------------------------------------------------------------------- */

static void a_wrong_loss_is_refused_with_the_reason(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = leaf_of(VECTOR(1, 2)), *bad = tn_add(x, VECTOR(1, 2, 3)), *grad = NULL;
    assert_refused(tn_backward(x), TN_ERR_SHAPE, "one element");
    assert_refused(tn_backward(VECTOR(1)), TN_ERR_STATE, "require");
    assert_refused(tn_backward(total(bad)), TN_ERR_SHAPE, "add");
    assert_refused(tn_backward(NULL), TN_ERR_ARGUMENT, "NULL");
    assert_null(tn_grad(x));
    tn_tensor *y = tn_mul(x, x), *wrong = VECTOR(1, 2, 3);
    assert_refused(tn_gradients(&y, 1, NULL, &x, 1, false, &grad), TN_ERR_SHAPE, "grad_outputs");
    assert_refused(tn_gradients(&y, 1, &wrong, &x, 1, false, &grad), TN_ERR_SHAPE, "match");
    assert_null(grad);
}

/* One step of a small network, as far as its gradients. */
static tn_status network_gradients(tn_tensor *w1, tn_tensor *w2) {
    TN_SCOPE;
    tn_tensor *x = tn_from_data((float[]){1, 2, 3, -1, -2, 0.5f}, TN_DIMS(2, 3), TN_F32);
    tn_tensor *target = tn_from_data((int64_t[]){0, 1}, TN_DIMS(2), TN_I64);
    tn_tensor *hidden = tn_layer_norm(tn_relu(tn_linear(x, w1, NULL)), TN_DIMS(4), NULL, NULL, NULL);
    tn_tensor *loss = tn_cross_entropy(tn_linear(hidden, w2, NULL), target, NULL, NULL);
    tn_status s = tn_backward(loss);
    return s;
}

static void a_failed_allocation_leaves_all_leaves_as_they_were(void **state) {
    (void)state;
    float values[12];
    for (int i = 0; i < 12; i++)
        values[i] = 0.1f * (float)(i - 5);
    tn_tensor *w1 = leaf_of(tn_from_data(values, TN_DIMS(4, 3), TN_F32));
    tn_tensor *w2 = leaf_of(tn_from_data(values, TN_DIMS(2, 4), TN_F32));
    int failures = 0;
    for (int n = 1; n < 2000; n++) {
        tn_mem_fail_at(n);
        tn_status s = network_gradients(w1, w2);
        tn_mem_fail_at(0);
        tn_recorder_drop(); /* so that nothing spare hides an allocation */
        if (s == TN_OK) break;
        failures++;
        assert_int_equal(s, TN_ERR_MEMORY);
        assert_null(tn_grad(w1));
        assert_null(tn_grad(w2));
    }
    assert_true(failures > 20);
    tn_free(w1);
    tn_free(w2);
}

/* Weights of batch norm in another type than its input, and an input with no values: the bias' gradient is the number
 * of values a channel. */
static void batch_norm_has_gradients_of_any_weight_and_no_values(void **state) {
    (void)state;
    static const tn_dtype types[][2] = {{TN_F32, TN_F32}, {TN_F64, TN_F32}, {TN_F32, TN_F64}, {TN_F16, TN_F32}};
    for (size_t k = 0; k < TN_COUNT(types); k++) {
        for (int64_t length = 0; length < 8; length += 4) {
            TN_SCOPE;
            tn_tensor *x = tn_add(tn_zeros((int64_t[]){2, 3, length}, 3, types[k][0]), tn_scalar(1));
            tn_tensor *in[] = {tn_ones((int64_t[]){3}, 1, types[k][1]), tn_ones((int64_t[]){3}, 1, types[k][1])};
            for (int i = 0; i < 2; i++)
                assert_ok(tn_set_requires_grad(in[i], true));
            tn_tensor *loss = tn_sum(tn_batch_norm(x, NULL, NULL, in[0], in[1], true, NULL), NULL, 0, false);
            tn_tensor *grads[2];
            assert_ok(tn_gradients(&loss, 1, NULL, in, 2, false, grads));
            assert_true(tn_item(tn_sum(grads[0], NULL, 0, false)) == 0);
            assert_true(tn_item(tn_sum(grads[1], NULL, 0, false)) == (double)(3 * 2 * length));
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_value_used_twice_sums_its_gradients),
        cmocka_unit_test(only_what_requires_gradients_gets_them),
        cmocka_unit_test(views_lead_gradients_to_their_place),
        cmocka_unit_test(an_input_above_another_one_gets_both_gradients),
        cmocka_unit_test(an_input_that_does_not_matter_gets_zeros),
        cmocka_unit_test(several_outputs_add_with_their_weights),
        cmocka_unit_test(backward_adds_until_the_gradient_is_zeroed),
        cmocka_unit_test(a_gradient_outlives_scopes),
        cmocka_unit_test(a_gradient_can_be_clipped_in_place),
        cmocka_unit_test(versions_of_a_parameter_share_its_gradient),
        cmocka_unit_test(a_leaf_is_written_only_without_gradients),
        cmocka_unit_test(leaves_are_floating_and_computed_from_no_other),
        cmocka_unit_test(nothing_is_remembered_under_no_grad),
        cmocka_unit_test(a_detached_tensor_is_a_constant),
        cmocka_unit_test(a_write_without_gradients_keeps_the_history),
        cmocka_unit_test(a_view_keeps_its_history_under_writes_without_gradients),
        cmocka_unit_test(a_view_gets_the_history_that_was_written_to_its_base),
        cmocka_unit_test(a_differentiable_write_to_a_detached_tensor_is_refused),
        cmocka_unit_test(gradients_can_be_differentiated_again),
        cmocka_unit_test(a_gradient_may_be_part_of_a_loss),
        cmocka_unit_test(reading_a_value_first_changes_no_gradient),
        cmocka_unit_test(a_chain_of_any_length_needs_no_deep_stack),
        cmocka_unit_test(a_value_needed_but_overwritten_is_refused),
        cmocka_unit_test(writes_before_the_backward_pass_belong_to_the_tape),
        cmocka_unit_test(a_wrong_loss_is_refused_with_the_reason),
        cmocka_unit_test(a_failed_allocation_leaves_all_leaves_as_they_were),
        cmocka_unit_test(batch_norm_has_gradients_of_any_weight_and_no_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
