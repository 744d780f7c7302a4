/* test_certify.c — promises of tn_certify: it passes what is right, names what is wrong, and takes samples. */
#include "test_support.h"

#include "far_driver.h"
#include "trunnion/trunnion.h"

typedef struct finding {
    int ops, failed_ops, last_done, last_total;
    char failed[256], why[512];
} finding;

static void note(void *ctx, const tn_certify_op *op, int done, int total) {
    finding *f = ctx;
    f->ops++;
    f->last_done = done;
    f->last_total = total;
    if (!op->forward_failed && !op->backward_failed) return;
    f->failed_ops++;
    snprintf(f->failed + strlen(f->failed), sizeof f->failed - strlen(f->failed), "%s ", op->name);
    snprintf(f->why, sizeof f->why, "%s", op->why);
}

static tn_certify_counts certify(tn_device *d, const char *only, int64_t every, finding *f) {
    tn_certify_counts counts = {.struct_size = sizeof counts};
    tn_certify_options o = TN_CERTIFY_DEFAULTS;
    o.only = only;
    o.every = every;
    o.found = note;
    o.ctx = f;
    *f = (finding){0};
    assert_ok(tn_certify(d, &o, &counts));
    return counts;
}

static void the_processor_passes(void **state) {
    (void)state;
    tn_device *cpu = NULL;
    finding f;
    assert_ok(tn_device_open("cpu", NULL, NULL, &cpu));
    tn_certify_counts all = certify(cpu, NULL, 1, &f), some = certify(cpu, NULL, 20, &f);
    assert_int_equal(all.failed, 0);
    assert_int_equal(all.skipped, 0);
    assert_true(all.passed > 3000);
    assert_true(some.passed < all.passed / 2 && some.passed >= f.ops);
    assert_int_equal(f.last_done, f.last_total);
    assert_int_equal(f.ops, f.last_total);
    tn_device_close(cpu);
}

static void a_wrong_device_is_found_out(void **state) {
    (void)state;
    finding f;
    char why[200];
    tn_device *far = far_open(0, NULL);
    tn_certify_counts right = certify(far, "silu,tanh,exp,add", 1, &f);
    assert_int_equal(right.failed, 0);
    assert_int_equal(f.ops, 4);
    far_nature_now.wrong_op = KIR_TANH;
    tn_device *wrong = far_open(1, NULL); /* another device: its kernels are its own */
    tn_certify_counts counts = certify(wrong, "tanh,exp,add", 1, &f);
    far_nature_now.wrong_op = 0;
    assert_true(counts.failed > 0);
    assert_string_equal(f.failed, "tanh ");
    assert_non_null(strstr(f.why, "expected"));
    assert_true(tn_certify_list_has(wrong, "tanh", why, sizeof why));
    assert_non_null(strstr(why, "expected"));
    assert_false(tn_certify_list_has(wrong, "exp", why, sizeof why));
    tn_device_close(wrong);
    wrong = far_open(1, NULL); /* mended */
    assert_int_equal(certify(wrong, "tanh", 1, &f).failed, 0);
    assert_false(tn_certify_list_has(wrong, "tanh", why, sizeof why));
    tn_device_close(wrong);
    tn_device_close(far);
}

/* A driver that promises bits and computes something else is found out, and remembered. */
static void a_promise_of_bits_is_tried(void **state) {
    (void)state;
    finding f;
    tn_device *far = far_open(0, NULL);
    assert_int_equal(certify(far, "exact", 1, &f).passed, 1);
    assert_true(far->caps.exact);
    tn_device_close(far);
    far_nature_now.wrong_op = KIR_SQRT;
    far = far_open(0, NULL);
    tn_certify_counts counts = certify(far, "exact,neg", 1, &f);
    far_nature_now.wrong_op = 0;
    assert_int_equal(counts.failed, 1);
    assert_string_equal(f.failed, "exact ");
    assert_text_has(f.why, "the square root of 0 is -0 (80000000), expected 0 (00000000)");
    assert_false(far->caps.exact);
    tn_device_close(far);
    far = far_open(0, NULL); /* mended, but nobody knows yet */
    assert_false(far->caps.exact);
    assert_int_equal(certify(far, "exact", 1, &f).failed, 0);
    assert_true(far->caps.exact);
    tn_device_close(far);
    far = far_open(0, NULL);
    assert_true(far->caps.exact);
    tn_device_close(far);
}

static void types_that_are_lacking_are_no_failures(void **state) {
    (void)state;
    finding f;
    far_nature_now.no_f64 = true;
    tn_device *far = far_open(0, NULL);
    tn_certify_counts counts = certify(far, "exp,matmul,mean", 1, &f);
    far_nature_now.no_f64 = false;
    assert_int_equal(counts.failed, 0);
    assert_true(counts.passed > 0);
    assert_true(counts.skipped > 0);
    tn_device_close(far);
}

static void names_are_checked(void **state) {
    (void)state;
    tn_device *cpu = NULL;
    tn_certify_counts counts = {.struct_size = sizeof counts};
    tn_certify_options o = TN_CERTIFY_DEFAULTS;
    o.only = "exp,no_such_op";
    assert_ok(tn_device_open("cpu", NULL, NULL, &cpu));
    assert_int_equal(tn_certify(cpu, &o, &counts), TN_ERR_ARGUMENT);
    assert_non_null(strstr(tn_error(), "no_such_op"));
    tn_device_close(cpu);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_processor_passes, make_scratch, remove_scratch),
        cmocka_unit_test_setup_teardown(a_wrong_device_is_found_out, make_scratch, remove_scratch),
        cmocka_unit_test_setup_teardown(a_promise_of_bits_is_tried, make_scratch, remove_scratch),
        cmocka_unit_test_setup_teardown(types_that_are_lacking_are_no_failures, make_scratch, remove_scratch),
        cmocka_unit_test_setup_teardown(names_are_checked, make_scratch, remove_scratch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
