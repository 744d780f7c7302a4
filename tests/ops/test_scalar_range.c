/* test_scalar_range.c — numbers given to ops on integer tensors: what the tensor's dtype cannot hold is refused or
 * saturates, as in PyTorch, and never wraps around. The expected values are those of PyTorch 2.15 for a Python float,
 * for clamp and hardtanh (where a float would make the result one) those for a Python int. */
#include "test_support.h"

#include <math.h>

#include "trunnion/autograd.h"
#include "trunnion/ops.h"

typedef tn_tensor *with_number(const tn_tensor *x, double v);
#define WITH(name, call) \
    static tn_tensor *with_##name(const tn_tensor *x, double v) { return (call); }
WITH(full, tn_full(TN_DIMS(1), v, tn_dtype_of(x)))
WITH(full_like, tn_full_like(x, v))
WITH(fill, tn_fill(x, v))
WITH(fill_in_place, tn_fill_(tn_contiguous(x), v))
WITH(masked_fill, tn_masked_fill(x, tn_ones(TN_DIMS(1), TN_BOOL), v))
WITH(pad, tn_slice(tn_pad(x, (int64_t[]){0, 1}, 2, v), 0, 1, 2, 1))
WITH(linspace, tn_linspace(v, 0, 1, tn_dtype_of(x)))
WITH(addcmul, tn_addcmul(tn_zeros_like(x), tn_ones_like(x), tn_ones_like(x), v))
WITH(addmm, tn_addmm(tn_zeros(TN_DIMS(1, 1), tn_dtype_of(x)), tn_ones(TN_DIMS(1, 1), tn_dtype_of(x)),
                     tn_ones(TN_DIMS(1, 1), tn_dtype_of(x)), 1, v))
WITH(baddbmm, tn_baddbmm(tn_ones(TN_DIMS(1, 1, 1), tn_dtype_of(x)), tn_zeros(TN_DIMS(1, 1, 1), tn_dtype_of(x)),
                         tn_zeros(TN_DIMS(1, 1, 1), tn_dtype_of(x)), v, 1))
WITH(gemm,
     tn_gemm(tn_ones(TN_DIMS(1, 1), tn_dtype_of(x)), tn_ones(TN_DIMS(1, 1), tn_dtype_of(x)), NULL, v, 0, false, false))
WITH(gemv, tn_gemv(tn_ones(TN_DIMS(1, 1), tn_dtype_of(x)), tn_ones(TN_DIMS(1), tn_dtype_of(x)), NULL, v, 0, false))
WITH(clamp_min, tn_clamp(x, v, INFINITY))
WITH(clamp_max, tn_clamp(x, -INFINITY, v))
WITH(hardtanh_min, tn_hardtanh(x, v, v < 127 ? 127 : INFINITY))
WITH(hardtanh_max, tn_hardtanh(x, v > 0 ? 0 : -INFINITY, v))
WITH(arange, tn_arange(v, v + 1, 1, tn_dtype_of(x)))
WITH(arange_step, tn_arange(0, v, v, tn_dtype_of(x)))

/* The number put into x's dtype: truncated if it fits, an error otherwise. */
static const struct {
    const char *name;
    with_number *of;
} filling[] = {{"full", with_full},
               {"full_like", with_full_like},
               {"fill", with_fill},
               {"fill", with_fill_in_place},
               {"masked_fill", with_masked_fill},
               {"pad", with_pad},
               {"linspace", with_linspace},
               {"addcmul", with_addcmul},
               {"addmm", with_addmm},
               {"baddbmm", with_baddbmm},
               {"gemm", with_gemm},
               {"gemv", with_gemv}};

enum { REFUSED = -12345 };
static const struct filled {
    double v;
    int64_t u8, i8, u16, i32, i64;
} filled[] = {{1.5, 1, 1, 1, 1, 1},
              {-0.5, REFUSED, 0, REFUSED, 0, 0},
              {-1, REFUSED, -1, REFUSED, -1, -1},
              {127.5, 127, 127, 127, 127, 127},
              {128, 128, REFUSED, 128, 128, 128},
              {-128.5, REFUSED, REFUSED, REFUSED, -128, -128},
              {255.5, 255, REFUSED, 255, 255, 255},
              {256, REFUSED, REFUSED, 256, 256, 256},
              {70000, REFUSED, REFUSED, REFUSED, 70000, 70000},
              {1e10, REFUSED, REFUSED, REFUSED, REFUSED, 10000000000},
              {0x1p63, REFUSED, REFUSED, REFUSED, REFUSED, REFUSED},
              {INFINITY, REFUSED, REFUSED, REFUSED, REFUSED, REFUSED},
              {-INFINITY, REFUSED, REFUSED, REFUSED, REFUSED, REFUSED},
              {NAN, REFUSED, REFUSED, REFUSED, REFUSED, REFUSED}};

static tn_tensor *three(tn_dtype t) {
    tn_tensor *x = tn_cast(tn_from_data((int64_t[]){3}, TN_DIMS(1), TN_I64), t);
    assert_ok(tn_eval(&x, 1));
    return x;
}

static void compare_with(const char *name, tn_tensor *y, tn_dtype t, double v, int64_t wanted) {
    int64_t got = 0;
    tn_status s = tn_read(tn_cast(y, TN_I64), &got, sizeof got);
    if (wanted == REFUSED) {
        if (s != TN_ERR_ARGUMENT) fail_msg("%s of %s takes %.17g: %lld", name, tn_dtype_name(t), v, (long long)got);
        assert_text_has(tn_error(), name);
        assert_text_has(tn_error(), tn_dtype_name(t));
        return;
    }
    if (s != TN_OK || got != wanted)
        fail_msg("%s of %s with %.17g: %lld (%s), not %lld", name, tn_dtype_name(t), v, (long long)got,
                 s == TN_OK ? "ok" : tn_error(), (long long)wanted);
}

static void a_number_that_a_dtype_cannot_hold_is_refused(void **state) {
    (void)state;
    for (size_t i = 0; i < TN_COUNT(filling) * TN_COUNT(filled); i++) {
        const struct filled *f = &filled[i % TN_COUNT(filled)];
        const struct {
            tn_dtype t;
            int64_t wanted;
        } each[] = {{TN_U8, f->u8}, {TN_I8, f->i8}, {TN_U16, f->u16}, {TN_I32, f->i32}, {TN_I64, f->i64}};
        for (size_t k = 0; k < TN_COUNT(each); k++) {
            TN_SCOPE;
            tn_tensor *y = filling[i / TN_COUNT(filled)].of(three(each[k].t), f->v);
            compare_with(filling[i / TN_COUNT(filled)].name, y, each[k].t, f->v, each[k].wanted);
        }
    }
}

/* bool takes every number, NaN too; floats overflow to infinity. */
static void floats_and_bools_hold_every_number(void **state) {
    (void)state;
    TN_SCOPE;
    static const double numbers[] = {0.5, -1, 300, 1e300, INFINITY, NAN};
    for (size_t i = 0; i < TN_COUNT(numbers); i++) {
        assert_true(tn_item(tn_full(NULL, 0, numbers[i], TN_BOOL)) == 1);
        assert_true(tn_item(tn_masked_fill(tn_zeros(NULL, 0, TN_BOOL), tn_ones(NULL, 0, TN_BOOL), numbers[i])) == 1);
        assert_ok(tn_status_of(tn_full(NULL, 0, numbers[i], TN_F16)));
    }
    assert_true(tn_item(tn_full(NULL, 0, 0, TN_BOOL)) == 0);
    assert_true(isinf(tn_item(tn_full(NULL, 0, 1e300, TN_F32))));
    assert_true(isinf(tn_item(tn_clamp(tn_scalar(3), INFINITY, INFINITY))));
    assert_true(isinf(tn_item(tn_clamp(tn_scalar(3), -INFINITY, -INFINITY))));
}

/* A bound outside the dtype is no bound, unless it leaves nothing. 3 is clamped. */
static const struct bound {
    double v;
    int64_t u8_min, i8_min, i64_min, u8_max, i8_max, i64_max;
} bounds[] = {{-300, 3, 3, 3, REFUSED, REFUSED, -300},
              {-1, 3, 3, 3, REFUSED, -1, -1},
              {-INFINITY, 3, 3, 3, REFUSED, REFUSED, REFUSED}, /* PyTorch: a float, which hardtanh refuses */
              {5, 5, 5, 5, 3, 3, 3},
              {127, 127, 127, 127, 3, 3, 3},
              {200, 200, REFUSED, 200, 3, 3, 3},
              {300, REFUSED, REFUSED, 300, 3, 3, 3},
              {0x1p63, REFUSED, REFUSED, REFUSED, 3, 3, 3},
              {INFINITY, REFUSED, REFUSED, REFUSED, 3, 3, 3}};

static void a_bound_outside_the_dtype_is_none_or_refused(void **state) {
    (void)state;
    for (size_t i = 0; i < TN_COUNT(bounds); i++) {
        const struct bound *b = &bounds[i];
        const struct {
            tn_dtype t;
            int64_t min, max;
        } each[] = {{TN_U8, b->u8_min, b->u8_max}, {TN_I8, b->i8_min, b->i8_max}, {TN_I64, b->i64_min, b->i64_max}};
        for (size_t k = 0; k < TN_COUNT(each); k++) {
            TN_SCOPE;
            tn_tensor *x = three(each[k].t);
            compare_with("clamp", with_clamp_min(x, b->v), each[k].t, b->v, each[k].min);
            compare_with("clamp", with_clamp_max(x, b->v), each[k].t, b->v, each[k].max);
            compare_with("hardtanh", with_hardtanh_min(x, b->v), each[k].t, b->v, each[k].min);
            /* the lower bound of with_hardtanh_max is 0 where the upper one is positive */
            compare_with("hardtanh", with_hardtanh_max(x, b->v), each[k].t, b->v, each[k].max);
        }
    }
}

/* The numbers of arange wrap around in a narrow dtype, as PyTorch's do; start and step must be in i64. */
static void arange_wraps_around_and_needs_an_i64(void **state) {
    (void)state;
    TN_SCOPE;
    int8_t v[4];
    assert_ok(tn_read(tn_arange(126, 130, 1, TN_I8), v, sizeof v));
    assert_true(v[0] == 126 && v[1] == 127 && v[2] == -128 && v[3] == -127);
    static const double outside[] = {1e20, -1e20, 0x1p63};
    for (size_t i = 0; i < TN_COUNT(outside); i++) {
        assert_int_equal(tn_status_of(tn_arange(outside[i], outside[i], 1, TN_I64)), TN_ERR_ARGUMENT);
        assert_int_equal(tn_status_of(with_arange_step(three(TN_I64), outside[i])), TN_ERR_ARGUMENT);
    }
    assert_int_equal(tn_status_of(tn_arange(0, 1, INFINITY, TN_I32)), TN_ERR_ARGUMENT);
    assert_true(tn_item(with_arange(three(TN_I64), -5)) == -5);
}

/* ---- comparisons ------------------------------------------------------------------------------------------------- */

/* Both ways to give the number: a double (PyTorch: a Python float), and tn_scalar_int, with which PyTorch wraps the
 * number around (torch.tensor([3], dtype=torch.int8) == 259 is true there) and this library does not. */
typedef tn_tensor *compare_op(const tn_tensor *x, double v);
#define COMPARE(name)                                                                                  \
    static tn_tensor *name##_double(const tn_tensor *x, double v) { return tn_##name##_scalar(x, v); } \
    static tn_tensor *name##_int(const tn_tensor *x, double v) { return tn_##name(x, tn_scalar_int((int64_t)v)); }
COMPARE(eq)
COMPARE(ne)
COMPARE(lt)
COMPARE(le)
COMPARE(gt)
COMPARE(ge)
static const struct {
    const char *name;
    compare_op *of[2];
    bool below, above; /* the result for a number below, or above, all of the dtype */
} comparisons[] = {{"eq", {eq_double, eq_int}, false, false}, {"ne", {ne_double, ne_int}, true, true},
                   {"lt", {lt_double, lt_int}, false, true},  {"le", {le_double, le_int}, false, true},
                   {"gt", {gt_double, gt_int}, true, false},  {"ge", {ge_double, ge_int}, true, false}};

static void a_comparison_with_a_number_outside_is_exact(void **state) {
    (void)state;
    static const struct {
        tn_dtype t;
        double below, above;
    } of[] = {{TN_I8, 3 - 256, 3 + 256},
              {TN_U8, 3 - 256, 3 + 256},
              {TN_I16, 3 - 65536, 3 + 65536},
              {TN_U16, 3 - 65536, 3 + 65536},
              {TN_I32, 3 - 0x1p32, 3 + 0x1p32},
              {TN_U32, 3 - 0x1p32, 3 + 0x1p32},
              {TN_I8, -0x1p60, 0x1p60},
              {TN_U64, -1, 0},
              {TN_BOOL, -1, 2}};
    for (size_t i = 0; i < TN_COUNT(of) * TN_COUNT(comparisons); i++) {
        size_t op = i / TN_COUNT(of), k = i % TN_COUNT(of);
        TN_SCOPE;
        tn_tensor *x = three(of[k].t);
        for (int way = 0; way < 2; way++) {
            double low = tn_item(comparisons[op].of[way](x, of[k].below));
            double high = of[k].above == 0 ? comparisons[op].above : tn_item(comparisons[op].of[way](x, of[k].above));
            if (low != comparisons[op].below || high != comparisons[op].above)
                fail_msg("%s, %s, way %d: %g %g", comparisons[op].name, tn_dtype_name(of[k].t), way, low, high);
        }
    }
    TN_SCOPE;
    int64_t largest = INT64_MAX;
    tn_tensor *x = tn_from_data(&largest, TN_DIMS(1), TN_I64);
    assert_true(tn_item(tn_lt_scalar(x, 0x1p63)) == 1); /* in f32 and f64 they would be equal */
    assert_true(tn_item(tn_eq_scalar(x, 0x1p63)) == 0);
    assert_true(tn_item(tn_eq_scalar(x, NAN)) == 0);
    assert_true(tn_item(tn_lt_scalar(x, INFINITY)) == 1);
}

/* where() takes no number that the other tensor's dtype cannot hold; arithmetic wraps around: both as in PyTorch. */
static void where_refuses_a_number_and_arithmetic_wraps(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = three(TN_I8), *yes = tn_ones(TN_DIMS(1), TN_BOOL);
    compare_with("where", tn_where(yes, tn_scalar_int(300), x), TN_I8, 300, REFUSED);
    compare_with("where", tn_where(yes, x, tn_scalar_int(-129)), TN_I8, -129, REFUSED);
    compare_with("where", tn_where(yes, tn_scalar_int(INT64_C(1) << 60), x), TN_I8, 0x1p60, REFUSED);
    compare_with("where", tn_where(yes, tn_scalar_int(-128), x), TN_I8, -128, -128);
    assert_int_equal(tn_dtype_of(tn_where(yes, tn_scalar(300), x)), TN_F32);
    compare_with("add", tn_add(x, tn_scalar_int(300)), TN_I8, 300, 47);
    compare_with("mul", tn_mul(x, tn_scalar_int(-300)), TN_I8, -300, 124);
    compare_with("sub", tn_sub(three(TN_U8), tn_scalar_int(4)), TN_U8, 4, 255);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_number_that_a_dtype_cannot_hold_is_refused),
        cmocka_unit_test(floats_and_bools_hold_every_number),
        cmocka_unit_test(a_bound_outside_the_dtype_is_none_or_refused),
        cmocka_unit_test(arange_wraps_around_and_needs_an_i64),
        cmocka_unit_test(a_comparison_with_a_number_outside_is_exact),
        cmocka_unit_test(where_refuses_a_number_and_arithmetic_wraps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
