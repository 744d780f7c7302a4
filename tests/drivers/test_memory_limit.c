/* test_memory_limit.c — a device whose memory is not enough: what cannot be had says what it is, and the rest goes on.
 *
 * The whole program runs on a processor device with a limit on its pool, as the options of the first open hold. */
#include "test_support.h"

#include "trunnion/trunnion.h"

enum { LIMIT = 1 << 20, TOO_MANY = 1 << 19 /* floats: twice the limit */ };

static tn_device *device;

static int open_small(void **state) {
    (void)state;
    tn_device_options o = TN_DEVICE_DEFAULTS;
    o.pool_max = LIMIT;
    if (tn_device_open("cpu", &o, NULL, &device) != TN_OK) return -1;
    return tn_set_current_device(device) == TN_OK ? 0 : -1;
}

static int close_small(void **state) {
    (void)state;
    tn_set_current_device(NULL);
    tn_device_close(device);
    return 0;
}

/* Too large to be held, though not to be summed: it is never stored then. */
static tn_tensor *too_large(int *line) {
    *line = __LINE__ + 1;
    return tn_mul(tn_arange(0, TOO_MANY, 1, TN_F32), tn_scalar(2));
}

static double value_of(tn_tensor *t) {
    double v = tn_item(t);
    tn_free(t);
    return v;
}

/* It is recorded and held, and everything else is evaluated as if it were not there. */
static void others_are_evaluated_beside_a_held_tensor_without_memory(void **state) {
    (void)state;
    TN_SCOPE;
    int line = 0;
    tn_tensor *held = too_large(&line), *sum = tn_sum(held, TN_ALL, false);
    for (int i = 0; i < 3; i++)
        assert_true(value_of(tn_add(tn_full(TN_DIMS(), i, TN_F32), tn_ones(TN_DIMS(), TN_F32))) == i + 1);
    assert_true(tn_item(sum) == (double)TOO_MANY * (TOO_MANY - 1));
    assert_ok(tn_eval(NULL, 0));
    assert_ok(tn_status_of(held));
}

/* Asked for, it fails with its operation, shape and line; and does not spoil what comes after. */
static void a_target_without_memory_says_what_it_is(void **state) {
    (void)state;
    TN_SCOPE;
    int line = 0;
    char where[80];
    tn_tensor *held = too_large(&line);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(tn_eval(&held, 1), TN_ERR_MEMORY);
        snprintf(where, sizeof where, "test_memory_limit.c:%d: mul [%d] f32: ", line, TOO_MANY);
        assert_text_has(tn_error(), where);
        assert_text_has(tn_error(), "cpu: out of device memory");
        assert_true(value_of(tn_ones(TN_DIMS(), TN_F32)) == 1);
    }
}

/* Some of many fit: they are kept, the others wait until there is room. */
static void what_fits_is_kept(void **state) {
    (void)state;
    enum { MANY = 6, FIT = 4, EACH = LIMIT / FIT / 4 - 2048 };
    static float values[EACH];
    tn_tensor *t[MANY];
    for (int i = 0; i < MANY; i++)
        t[i] = tn_full(TN_DIMS(EACH), i, TN_F32);
    assert_ok(tn_eval(NULL, 0));
    for (int i = 0; i < MANY; i++)
        assert_int_equal(tn_read(t[i], values, sizeof values), i < FIT ? TN_OK : TN_ERR_MEMORY);
    tn_free(t[0]);
    assert_ok(tn_read(t[FIT], values, sizeof values));
    assert_true(values[0] == FIT && values[EACH - 1] == FIT);
    for (int i = 1; i < MANY; i++)
        tn_free(t[i]);
}

/* States are written all the same; what was held and needs their old values is lost then, and says so. */
static void states_go_on(void **state) {
    (void)state;
    TN_SCOPE;
    int line = 0;
    tn_tensor *weight = tn_ones(TN_DIMS(4), TN_F32);
    assert_ok(tn_make_state(weight));
    tn_tensor *held = tn_add(too_large(&line), tn_select(weight, 0, 0));
    tn_add_(weight, tn_scalar(1));
    assert_ok(tn_eval(NULL, 0));
    assert_true(value_of(tn_select(weight, 0, 0)) == 2);
    assert_int_equal(tn_status_of(held), TN_ERR_MEMORY);
    assert_text_has(tn_error(), "add [");
    assert_text_has(tn_error(), "test_memory_limit.c:");
    tn_add_(weight, tn_scalar(1));
    assert_true(value_of(tn_select(weight, 0, 0)) == 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(others_are_evaluated_beside_a_held_tensor_without_memory),
        cmocka_unit_test(a_target_without_memory_says_what_it_is),
        cmocka_unit_test(what_fits_is_kept),
        cmocka_unit_test(states_go_on),
    };
    return cmocka_run_group_tests(tests, open_small, close_small);
}
