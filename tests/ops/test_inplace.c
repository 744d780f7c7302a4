/* test_inplace.c — in-place operations that fail: whichever it is and why ever, the target keeps its value, and the
 * failure is told.
 *
 * The table holds every operation of ops.def that is marked !inplace, and tn_copy_; a test counts them. */
#include "test_support.h"

#include "trunnion/autograd.h"
#include "trunnion/model.h"
#include "trunnion/nn.h"
#include "trunnion/ops.h"
#include "trunnion/optim.h"

/* ---- the table --------------------------------------------------------------------------------------------------- */

static tn_tensor *mask, *places, *position;

/* One operation on target x; every tensor operand beside masks and indices is y. */
typedef struct write_op {
    const char *name;
    tn_tensor *(*write)(tn_tensor *x, const tn_tensor *y);
    bool reads_y, to_float; /* to_float: the result is floating point whatever x is */
} write_op;

#define WRITES(name, call) \
    static tn_tensor *write_##name(tn_tensor *x, const tn_tensor *y) { return (void)y, (call); }
// clang-format off
#define UNARY_OPS(V)                                                                                      \
    V(neg) V(abs) V(floor) V(ceil) V(trunc) V(round) V(sqrt) V(exp) V(log) V(sin) V(cos) V(tanh) V(erf)   \
    V(bitwise_not) V(square) V(rsqrt) V(reciprocal) V(zero) V(relu) V(sigmoid)
#define BINARY_OPS(V)                                                                                     \
    V(add) V(sub) V(mul) V(div) V(floor_divide) V(remainder) V(fmod) V(heaviside) V(bitwise_and)          \
    V(bitwise_or) V(bitwise_xor) V(pow) V(copy)
// clang-format on
#define NUMBER_OPS(V) V(add_scalar) V(sub_scalar) V(mul_scalar) V(div_scalar) V(pow_scalar) V(fill)
#define UNARY(name) WRITES(name, (tn_##name##_)(x))
#define BINARY(name) WRITES(name, (tn_##name##_)(x, y))
#define NUMBER(name) WRITES(name, (tn_##name##_)(x, 0.5))
UNARY_OPS(UNARY)
BINARY_OPS(BINARY)
NUMBER_OPS(NUMBER)
WRITES(clamp, (tn_clamp_)(x, 0.5, 1.5))
WRITES(lerp, (tn_lerp_)(x, y, y))
WRITES(addcmul, (tn_addcmul_)(x, y, y, 0.5))
WRITES(addcdiv, (tn_addcdiv_)(x, y, y, 0.5))
WRITES(masked_fill, (tn_masked_fill_)(x, mask, 2))
WRITES(index_add, (tn_index_add_)(x, 0, places, y))
WRITES(scatter, (tn_scatter_)(x, 0, places, y))
WRITES(scatter_add, (tn_scatter_add_)(x, 0, places, y))
WRITES(cache_append, (tn_cache_append_)(x, y, position, NULL))

#define ROW_UNARY(name) {#name, write_##name, false, false},
#define ROW_BINARY(name) {#name, write_##name, true, false},
static const write_op ops[] = {UNARY_OPS(ROW_UNARY) BINARY_OPS(ROW_BINARY) NUMBER_OPS(ROW_UNARY) ROW_UNARY(clamp)
                                   ROW_BINARY(lerp) ROW_BINARY(addcmul) ROW_BINARY(addcdiv) ROW_UNARY(masked_fill)
                                       ROW_BINARY(index_add) ROW_BINARY(scatter) ROW_BINARY(scatter_add)
                                           ROW_BINARY(cache_append)};

static void every_in_place_op_is_in_the_table(void **state) {
    (void)state;
    char line[512];
    size_t marked = 0;
    FILE *f = fopen("src/ops/ops.def", "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        char name[64];
        if (sscanf(line, "OP(%63[a-z0-9_]", name) != 1 || !strstr(line, "!inplace")) continue;
        marked++;
        size_t i = 0;
        while (i < TN_COUNT(ops) && strcmp(ops[i].name, name) != 0)
            i++;
        if (i == TN_COUNT(ops)) fail_msg("%s_ is not in the table", name);
    }
    fclose(f);
    assert_int_equal(marked + 1, TN_COUNT(ops)); /* copy */
}

/* ---- a target, before and after ---------------------------------------------------------------------------------- */

enum { ROWS = 2, COLUMNS = 3, ELEMENTS = ROWS * COLUMNS };

typedef struct facts {
    unsigned char value[ELEMENTS * 8];
    int64_t writes;
    uint64_t id;
    bool requires_grad;
    tn_dtype dtype;
} facts;

static facts facts_of(tn_tensor *x) {
    facts f = {.writes = tn_write_count(x), .id = tn_value_id(x), .requires_grad = tn_requires_grad(x)};
    f.dtype = tn_dtype_of(x);
    assert_ok(tn_status_of(x));
    assert_ok(tn_read(x, f.value, ELEMENTS * tn_dtype_size(f.dtype)));
    return f;
}

/* The failure is told by what the call returns, and by the next evaluation of those who did not look. */
static void assert_unharmed(const write_op *op, const char *why, tn_tensor *x, const tn_tensor *y) {
    facts before = facts_of(x);
    tn_tensor *result = op->write(x, y);
    tn_status status = tn_status_of(result);
    if (result == x || status == TN_OK) fail_msg("%s_, %s: not refused", op->name, why);
    assert_true(tn_error()[0] != '\0');
    assert_ok(tn_eval(NULL, 0)); /* looked at: nobody need be told again */
    result = op->write(x, y);
    tn_free(result); /* the thread's: nothing happens */
    tn_free(result);
    if (tn_eval(NULL, 0) != status) fail_msg("%s_, %s: an ignored failure is not told", op->name, why);
    assert_ok(tn_eval(NULL, 0));
    facts after = facts_of(x);
    if (memcmp(&before, &after, sizeof before) != 0) fail_msg("%s_, %s: the target has changed", op->name, why);
}

static tn_tensor *filled(tn_dtype dtype) { return tn_contiguous(tn_full(TN_DIMS(ROWS, COLUMNS), 3, dtype)); }

static int make_operands(void **state) {
    (void)state;
    mask = tn_full(TN_DIMS(COLUMNS), 1, TN_BOOL);
    places = tn_zeros(TN_DIMS(ROWS), TN_I64);
    position = tn_zeros(TN_DIMS(1), TN_I64);
    return 0;
}

static int free_operands(void **state) {
    (void)state;
    tn_free(mask);
    tn_free(places);
    tn_free(position);
    return 0;
}

/* ---- the sweeps -------------------------------------------------------------------------------------------------- */

static void a_leaf_that_requires_gradients_stays(void **state) {
    (void)state;
    for (size_t i = 0; i < TN_COUNT(ops); i++) {
        TN_SCOPE;
        tn_tensor *x = filled(TN_F32);
        assert_ok(tn_set_requires_grad(x, true));
        assert_unharmed(&ops[i], "a leaf", x, filled(TN_F32));
    }
}

static void a_target_whose_elements_share_memory_stays(void **state) {
    (void)state;
    for (size_t i = 0; i < TN_COUNT(ops); i++) {
        TN_SCOPE;
        tn_tensor *row = tn_full(TN_DIMS(1, COLUMNS), 3, TN_F32);
        assert_unharmed(&ops[i], "an expanded view", tn_expand(row, TN_DIMS(ROWS, COLUMNS)), filled(TN_F32));
    }
}

static void an_operand_that_is_an_error_or_null_or_too_large_is_refused(void **state) {
    (void)state;
    for (size_t i = 0; i < TN_COUNT(ops); i++) {
        if (!ops[i].reads_y) continue;
        TN_SCOPE;
        tn_tensor *x = filled(TN_F32), *failed = tn_failed(TN_ERR_ARGUMENT, "a test's error");
        assert_unharmed(&ops[i], "an error operand", x, failed);
        assert_unharmed(&ops[i], "a NULL operand", x, NULL);
        assert_unharmed(&ops[i], "too large an operand", x, tn_zeros(TN_DIMS(5, ROWS, COLUMNS), TN_F32));
        assert_unharmed(&ops[i], "an operand of another shape", x, tn_zeros(TN_DIMS(7), TN_F32));
    }
}

static void a_missing_target_is_told(void **state) {
    (void)state;
    for (size_t i = 0; i < TN_COUNT(ops); i++) {
        TN_SCOPE;
        assert_true(tn_status_of(ops[i].write(NULL, filled(TN_F32))) != TN_OK);
        ops[i].write(NULL, filled(TN_F32));
        assert_true(tn_eval(NULL, 0) != TN_OK);
        assert_ok(tn_eval(NULL, 0));
    }
}

/* torch: "result type Float can't be cast to the desired output type Long". */
static void floats_do_not_go_into_integers_nor_numbers_into_bools(void **state) {
    (void)state;
    static const tn_dtype whole[] = {TN_I32, TN_I64, TN_U8, TN_BOOL};
    for (size_t d = 0; d < TN_COUNT(whole); d++) {
        for (size_t i = 0; i < TN_COUNT(ops); i++) {
            const char *name = ops[i].name;
            bool keeps_x = !strcmp(name, "copy") || !strcmp(name, "fill") || !strcmp(name, "zero") ||
                           !strcmp(name, "masked_fill") || !strcmp(name, "heaviside");
            bool of_x =
                !ops[i].reads_y && (!strcmp(name, "neg") || !strcmp(name, "abs") || !strcmp(name, "floor") ||
                                    !strcmp(name, "ceil") || !strcmp(name, "trunc") || !strcmp(name, "round") ||
                                    !strcmp(name, "bitwise_not") || !strcmp(name, "square") || !strcmp(name, "relu"));
            if (keeps_x || of_x) continue;
            TN_SCOPE;
            assert_unharmed(&ops[i], tn_dtype_name(whole[d]), filled(whole[d]), filled(TN_F32));
        }
    }
    TN_SCOPE;
    tn_tensor *x = filled(TN_I32), *b = filled(TN_BOOL);
    tn_status s = tn_status_of(tn_add_scalar_(x, 0.7));
    assert_int_equal(s, TN_ERR_DTYPE);
    assert_text_has(tn_error(), "test_inplace.c:");
    assert_text_has(tn_error(), "add_scalar_: the result has dtype f32");
    assert_ok(tn_status_of(tn_add_(x, filled(TN_I64))));
    assert_ok(tn_status_of(tn_copy_(x, tn_full(TN_DIMS(ROWS, COLUMNS), 2.5, TN_F32)))); /* copy_ converts */
    assert_int_equal(tn_status_of(tn_add_(b, filled(TN_I32))), TN_ERR_DTYPE);
    assert_int_equal(tn_status_of(tn_add_(x, filled(TN_F32))), TN_ERR_DTYPE);
}

static void an_operand_that_would_widen_the_target_is_told_in_its_shapes(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = tn_zeros(TN_DIMS(2), TN_F32);
    assert_int_equal(tn_status_of(tn_add_(x, tn_zeros(TN_DIMS(3, 2), TN_F32))), TN_ERR_SHAPE);
    assert_text_has(tn_error(), "add_: [3, 2] does not fit the target [2]");
    assert_int_equal(tn_status_of(tn_copy_(x, tn_zeros(TN_DIMS(3, 2), TN_F32))), TN_ERR_SHAPE);
    assert_text_has(tn_error(), "copy_: [3, 2] does not fit the target [2]");
}

/* ---- what a caller does next ------------------------------------------------------------------------------------- */

static void chains_stop_at_the_first_failure(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = filled(TN_F32), *view = tn_select(x, 0, 0);
    tn_tensor *end = tn_mul_(tn_add_(tn_add_scalar_(x, 1), tn_zeros(TN_DIMS(7), TN_F32)), x);
    assert_int_equal(tn_status_of(end), TN_ERR_SHAPE);
    assert_true(tn_item(tn_select(view, 0, 0)) == 4);
    assert_int_equal(tn_status_of(tn_mul(end, x)), TN_ERR_SHAPE); /* a value like any other error tensor */
    assert_ok(tn_status_of(tn_add_scalar_(x, 1)));
    assert_true(tn_item(tn_select(view, 0, 0)) == 5);
}

/* The second write would be computed from what the first one failed to write. */
static void nothing_is_written_behind_an_ignored_failure(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *momentum = filled(TN_F32), *weight = filled(TN_F32);
    tn_copy_(momentum, tn_zeros(TN_DIMS(7), TN_F32));
    assert_int_equal(tn_status_of(tn_sub_(weight, momentum)), TN_ERR_SHAPE);
    assert_text_has(tn_error(), "copy_: [7] does not fit");
    assert_true(tn_item(tn_select(tn_select(weight, 0, 0), 0, 0)) == 3);
    assert_ok(tn_status_of(tn_sub_(weight, momentum)));
    assert_true(tn_item(tn_select(tn_select(weight, 0, 0), 0, 0)) == 0);
}

static void each_way_to_a_value_tells_of_an_ignored_failure(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = filled(TN_F32), *one = tn_full(NULL, 0, 1, TN_F32), *bad = tn_zeros(TN_DIMS(7), TN_F32);
    float out[ELEMENTS];
    double item = 0;
    const void *at = NULL;
    tn_graph *g = NULL;
    tn_add_(x, bad);
    assert_int_equal(tn_read(x, out, sizeof out), TN_ERR_SHAPE);
    assert_ok(tn_read(x, out, sizeof out));
    tn_add_(x, bad);
    assert_int_equal(tn_peek(x, &at), TN_ERR_SHAPE);
    tn_add_(x, bad);
    assert_int_equal(tn_read_item(one, &item), TN_ERR_SHAPE);
    tn_add_(x, bad);
    assert_true(tn_item(one) != 1);
    assert_text_has(tn_error(), "add");
    assert_true(tn_item(one) == 1);
    assert_ok(tn_capture_begin());
    tn_tensor *twice = tn_add(x, x);
    tn_add_(x, bad);
    assert_int_equal(tn_capture_end(&x, 1, &twice, 1, &g), TN_ERR_SHAPE);
    assert_null(g);
    assert_ok(tn_eval(NULL, 0));
}

/* A launch writes states, so it must not run behind a write that failed either. */
static void a_launch_does_nothing_behind_an_ignored_failure(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = tn_zeros(NULL, 0, TN_F32), *one = tn_contiguous(tn_ones(NULL, 0, TN_F32)), *sum, *launched = NULL;
    assert_ok(tn_make_state(x));
    assert_ok(tn_eval(&one, 1));
    tn_graph *g = NULL;
    assert_ok(tn_capture_begin());
    sum = tn_add_(x, one);
    assert_ok(tn_capture_end(&one, 1, NULL, 0, &g));
    assert_ptr_equal(sum, x);
    tn_add_(x, tn_zeros(TN_DIMS(7), TN_F32));
    assert_int_equal(tn_graph_launch(g, &one, &launched), TN_ERR_SHAPE);
    assert_true(tn_item(x) == 1);
    assert_ok(tn_graph_launch(g, &one, &launched));
    assert_true(tn_item(x) == 2);
    tn_graph_free(g);
}

/* The reproducer of the examination: scaling a weight without TN_NO_GRAD cost the weight. */
static void a_module_outlives_a_refused_write_to_its_parameter(void **state) {
    (void)state;
    tn_module *net = tn_module_root(), *a = tn_nn_linear(net, "a", 3, 2, true);
    assert_ok(tn_module_status(net));
    tn_optimizer *o = NULL;
    assert_ok(tn_optimizer_sgd(net, NULL, &o));
    TN_SCOPE;
    tn_tensor *weight = tn_module_variable(net, "a.weight");
    float before[ELEMENTS], after[ELEMENTS];
    assert_ok(tn_read(weight, before, sizeof before));
    assert_int_equal(tn_status_of(tn_mul_scalar_(weight, 0.5)), TN_ERR_STATE);
    assert_text_has(tn_error(), "TN_NO_GRAD");
    assert_true(tn_requires_grad(weight));
    assert_ok(tn_read(weight, after, sizeof after));
    assert_memory_equal(before, after, sizeof before);
    assert_ok(tn_module_save(net, test_scratch("net.safetensors")));
    assert_ok(tn_module_load(net, test_scratch("net.safetensors")));
    assert_ok(tn_backward(tn_sum(tn_forward(a, filled(TN_F32)), TN_ALL, false)));
    assert_ok(tn_optimizer_step(o));
    assert_ok(tn_read(weight, after, sizeof after));
    assert_memory_not_equal(before, after, sizeof before);
    tn_optimizer_free(o);
    tn_module_free(net);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_in_place_op_is_in_the_table),
        cmocka_unit_test(a_leaf_that_requires_gradients_stays),
        cmocka_unit_test(a_target_whose_elements_share_memory_stays),
        cmocka_unit_test(an_operand_that_is_an_error_or_null_or_too_large_is_refused),
        cmocka_unit_test(a_missing_target_is_told),
        cmocka_unit_test(floats_do_not_go_into_integers_nor_numbers_into_bools),
        cmocka_unit_test(an_operand_that_would_widen_the_target_is_told_in_its_shapes),
        cmocka_unit_test(nothing_is_written_behind_an_ignored_failure),
        cmocka_unit_test(chains_stop_at_the_first_failure),
        cmocka_unit_test(each_way_to_a_value_tells_of_an_ignored_failure),
        cmocka_unit_test(a_launch_does_nothing_behind_an_ignored_failure),
        cmocka_unit_test_setup_teardown(a_module_outlives_a_refused_write_to_its_parameter, make_scratch,
                                        remove_scratch),
    };
    return cmocka_run_group_tests(tests, make_operands, free_operands);
}
