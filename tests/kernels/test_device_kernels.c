/* test_device_kernels.c — the kernels of kernels.h on a device have the cpu's bits, in host memory and in the device's.
 *
 * Devices: `far` (tests/support), whose memory is not the host's; OpenCL, where there is one; TRUNNION_TEST_DEVICE. */
#include "test_support.h"

#include <stdlib.h>
#include <string.h>

#include "far_driver.h"
#include "trunnion/trunnion.h"

enum { ROWS = 37, COLS = 64, GAP = 5, MOST = 4096, OUT = 4 };

/* Operands by number: 0 to 3 are read, OUT is written (some kernels read it first). */
typedef struct operands {
    float *at[OUT + 1];
} operands;

typedef tn_status run_kernel(tn_device *d, const operands *o);

static tn_status run_matmul_vec(tn_device *d, const operands *o) {
    return tn_kernel_matmul_vec_on(d, o->at[0], COLS, ROWS, COLS, o->at[1], o->at[OUT]);
}
static tn_status run_matmul_vec_of_a_part(tn_device *d, const operands *o) {
    return tn_kernel_matmul_vec_on(d, o->at[0], COLS, ROWS, COLS - GAP, o->at[1], o->at[OUT]);
}
static tn_status run_matmul(tn_device *d, const operands *o) {
    return tn_kernel_matmul_on(d, o->at[0], o->at[2], ROWS, COLS, 9, o->at[OUT]);
}
static tn_status run_quantized(tn_device *d, const operands *o) {
    return tn_kernel_matmul_vec_quantized_on(d, TN_Q8_0, o->at[3], ROWS, COLS, o->at[1], o->at[OUT]);
}
static tn_status run_rmsnorm(tn_device *d, const operands *o) {
    return tn_kernel_rmsnorm_on(d, o->at[OUT], o->at[1], COLS, 1e-5F);
}
static tn_status run_softmax(tn_device *d, const operands *o) { return tn_kernel_softmax_on(d, o->at[OUT], 100); }
static tn_status run_softmax_view(tn_device *d, const operands *o) {
    return tn_kernel_softmax_view_on(d, o->at[OUT], 30, 3);
}
static tn_status run_softmax_dense_view(tn_device *d, const operands *o) {
    return tn_kernel_softmax_view_on(d, o->at[OUT], 30, 1);
}
static tn_status run_silu(tn_device *d, const operands *o) { return tn_kernel_silu_on(d, o->at[0], 500, o->at[OUT]); }
static tn_status run_silu_in_place(tn_device *d, const operands *o) {
    return tn_kernel_silu_on(d, o->at[OUT], 500, o->at[OUT]);
}
static tn_status run_rope(tn_device *d, const operands *o) {
    return tn_kernel_apply_rope_on(d, o->at[OUT], 8, 32, o->at[1], o->at[2], 12, false);
}
static tn_status run_rope_interleaved(tn_device *d, const operands *o) {
    return tn_kernel_apply_rope_on(d, o->at[OUT], 8, 32, o->at[1], o->at[2], 16, true);
}
static tn_status run_scores(tn_device *d, const operands *o) {
    return tn_kernel_attention_scores_on(d, o->at[1], o->at[0], COLS, ROWS, COLS - GAP, 0.125F, o->at[OUT]);
}
static tn_status run_weighted_sum(tn_device *d, const operands *o) {
    return tn_kernel_weighted_sum_rows_on(d, o->at[1], o->at[0], COLS, ROWS, COLS - GAP, o->at[OUT]);
}
static tn_status run_nothing(tn_device *d, const operands *o) {
    return tn_kernel_matmul_on(d, o->at[0], o->at[2], 0, COLS, 9, o->at[OUT]);
}

static const struct {
    const char *name;
    run_kernel *run;
} kernels[] = {
    {"matmul_vec", run_matmul_vec},
    {"matmul_vec of a part", run_matmul_vec_of_a_part},
    {"matmul", run_matmul},
    {"matmul_vec_quantized", run_quantized},
    {"rmsnorm", run_rmsnorm},
    {"softmax", run_softmax},
    {"softmax_view", run_softmax_view},
    {"softmax_view, dense", run_softmax_dense_view},
    {"silu", run_silu},
    {"silu in place", run_silu_in_place},
    {"apply_rope", run_rope},
    {"apply_rope, interleaved", run_rope_interleaved},
    {"attention_scores", run_scores},
    {"weighted_sum_rows", run_weighted_sum},
    {"matmul of nothing", run_nothing},
};

static void fill(operands *o) {
    static float numbers[OUT + 1][MOST];
    uint32_t state = 7;
    for (int k = 0; k <= OUT; k++)
        for (int i = 0; i < MOST; i++) {
            state = state * 1664525 + 1013904223;
            numbers[k][i] = (float)(state >> 8) / (1 << 23) - 1;
        }
    assert_ok(tn_quantize_blocks(TN_Q8_0, numbers[0], ROWS * COLS, numbers[3]));
    for (int k = 0; k <= OUT; k++)
        o->at[k] = numbers[k];
}

static void assert_equal_on(const tn_device *d, const char *kernel, const float *got, const float *wanted) {
    for (int i = 0; i < MOST; i++) {
        float bound = d->caps.exact ? 0 : 1e-5F * (1 + (wanted[i] < 0 ? -wanted[i] : wanted[i]));
        if (got[i] > wanted[i] + bound || got[i] < wanted[i] - bound)
            fail_msg("%s on %s: element %d is %a, the cpu has %a", kernel, d->info.id, i, (double)got[i],
                     (double)wanted[i]);
    }
}

/* All memory of a call lies in one allocation of the device, the operands behind each other. */
static void run_in_device_memory(tn_device *d, run_kernel *run, const operands *host, float out[MOST]) {
    char *memory = NULL;
    operands o;
    const size_t bytes = MOST * sizeof(float);
    assert_ok(tn_device_alloc(d, (OUT + 1) * bytes, 64, (void **)&memory));
    assert_false(tn_device_owns(d, memory, (OUT + 1) * bytes + 4096));
    for (int k = 0; k <= OUT; k++) {
        o.at[k] = (float *)(void *)(memory + (size_t)k * bytes);
        assert_true(tn_device_owns(d, o.at[k], bytes));
        assert_ok(tn_device_copy(d, o.at[k], NULL, host->at[k], bytes));
    }
    assert_ok(run(d, &o));
    assert_ok(tn_device_copy(NULL, out, d, o.at[OUT], bytes));
    tn_device_dealloc(d, memory);
    assert_false(tn_device_owns(d, memory, 4));
}

static void check_device(tn_device *d) {
    static float wanted[MOST], got[MOST];
    char name[32];
    operands o;
    for (size_t k = 0; k < sizeof kernels / sizeof kernels[0]; k++) {
        fill(&o);
        memcpy(wanted, o.at[OUT], sizeof wanted);
        memcpy(got, o.at[OUT], sizeof got);
        operands here = o, there = o;
        here.at[OUT] = wanted;
        there.at[OUT] = got;
        assert_ok(kernels[k].run(NULL, &here));
        assert_ok(kernels[k].run(d, &there));
        assert_equal_on(d, kernels[k].name, got, wanted);
        run_in_device_memory(d, kernels[k].run, &o, got);
        assert_equal_on(d, kernels[k].name, got, wanted);
    }
    assert_ok(tn_kernel_device_name(d, name));
    assert_string_equal(name, d->info.id);
    assert_true(tn_kernel_is_available(name));
    tn_clear_plans();
}

static void far_has_the_bits_of_the_cpu(void **state) {
    (void)state;
    tn_device *d = far_open(0, NULL);
    tn_device *before = tn_current_device();
    check_device(d);
    assert_ptr_equal(tn_current_device(), before);
    tn_device_close(d);
}

static void devices_have_the_bits_of_the_cpu(void **state) {
    (void)state;
    const char *asked = getenv("TRUNNION_TEST_DEVICE"), *names[] = {"opencl", asked};
    tn_device_options o = TN_DEVICE_DEFAULTS;
    o.fallback = TN_FALLBACK_STRICT;
    for (int i = asked && strcmp(asked, "opencl") != 0 ? 1 : 0; i < (asked ? 2 : 1); i++) {
        tn_device *d = NULL;
        if (tn_device_open(names[i], &o, NULL, &d) != TN_OK) {
            printf("skipped: %s\n", tn_error());
            if (asked) fail_msg("%s cannot be opened: %s", names[i], tn_error());
            continue;
        }
        check_device(d);
        printf("ran on: %s\n", d->info.name);
        tn_device_close(d);
    }
}

static void wrong_arguments_are_refused_on_a_device(void **state) {
    (void)state;
    tn_device *d = far_open(0, NULL);
    float x[16] = {0}, y[16] = {0};
    char name[32];
    assert_int_equal(tn_kernel_matmul_vec_on(d, NULL, 4, 4, 4, x, y), TN_ERR_ARGUMENT);
    assert_text_has(tn_error(), "w is NULL");
    assert_int_equal(tn_kernel_matmul_vec_on(d, x, 2, 4, 4, x, y), TN_ERR_ARGUMENT);
    assert_int_equal(tn_kernel_matmul_on(d, x, x, -1, 4, 4, y), TN_ERR_ARGUMENT);
    assert_int_equal(tn_kernel_matmul_on(d, x, x, INT64_MAX / 4, INT64_MAX / 4, 1, y), TN_ERR_ARGUMENT);
    assert_int_equal(tn_kernel_matmul_vec_quantized_on(d, TN_F32, x, 2, 4, x, y), TN_ERR_DTYPE);
    assert_int_equal(tn_kernel_matmul_vec_quantized_on(d, TN_Q8_0, x, 1, 5, x, y), TN_ERR_SHAPE);
    assert_int_equal(tn_kernel_rmsnorm_on(d, x, y, 4, -1), TN_ERR_ARGUMENT);
    assert_int_equal(tn_kernel_apply_rope_on(d, x, 1, 4, y, y, 3, false), TN_ERR_ARGUMENT);
    assert_int_equal(tn_kernel_softmax_view_on(d, x, 4, 0), TN_ERR_ARGUMENT);
    assert_ok(tn_kernel_device_name(NULL, name));
    assert_string_equal(name, "cpu");
    assert_true(tn_kernel_is_available("cpu"));
    assert_false(tn_kernel_is_available("nonsense"));
    assert_false(tn_kernel_is_available(NULL));
    {
        TN_SCOPE;
        assert_ok(tn_set_current_device(d));
        tn_tensor *t = tn_full((int64_t[]){4}, 1, 1, TN_F32);
        assert_int_equal(tn_read_to_device(t, y, 4 * sizeof *y), TN_ERR_ARGUMENT);
        assert_text_has(tn_error(), "not in memory of tn_device_alloc");
        assert_int_equal(tn_read_to_device(t, y, 4), TN_ERR_ARGUMENT);
        assert_ok(tn_set_current_device(NULL));
    }
    tn_device_close(d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(far_has_the_bits_of_the_cpu),
        cmocka_unit_test(devices_have_the_bits_of_the_cpu),
        cmocka_unit_test(wrong_arguments_are_refused_on_a_device),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
