/* test_kir_math.c — how close the functions of kir_math.h come to the truth, and what they do at the edges.
 *
 * The truth is the C library's long double function. An error is counted in units in the last place of the true result
 * as the type would hold it. f32 functions are tried on every 1 999th bit pattern there is, f64 functions on random
 * ones, both also where they are most used. */
#include "test_support.h"

#include <float.h>
#include <math.h>

#include "kir/kir_math.h"

enum { F32_STEP = 1999, F64_SAMPLES = 150000 };

static uint64_t random_state;

static uint64_t random_bits(void) {
    random_state += 0x9e3779b97f4a7c15u;
    uint64_t x = random_state;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static double random_between(double low, double high) {
    return low + (high - low) * (double)(random_bits() >> 11) * 0x1p-53;
}

/* ---- errors ------------------------------------------------------------------------------------------------------ */

/* The step from one number to the next near `x`, of a type with `digits` binary digits and least exponent `least`. */
static long double step_at(long double x, int digits, int least) {
    int exponent;
    frexpl(x, &exponent);
    exponent -= digits;
    return ldexpl(1.0L, exponent < least ? least : exponent);
}

static double error_of(long double got, long double want, int digits, int least, long double most) {
    if (isnan(want) || isnan(got)) return isnan(want) && isnan(got) ? 0 : INFINITY;
    if (isinf(got) && fabsl(want) > most && signbit(got) == signbit(want)) return 0;
    if (isinf(want) || isinf(got)) return got == want ? 0 : INFINITY;
    return (double)(fabsl(got - want) / step_at(want, digits, least));
}

typedef struct worst {
    double error, at;
} worst;

static void note(worst *w, double error, double at) {
    if (error <= w->error) return;
    *w = (worst){error, at};
}

typedef long double truth_fn(long double);

static void try_f32(worst *w, float (*fn)(float), truth_fn *truth, float x) {
    note(w, error_of((long double)fn(x), truth((long double)x), 24, -149, FLT_MAX), (double)x);
}

static void try_f64(worst *w, double (*fn)(double), truth_fn *truth, double x) {
    note(w, error_of((long double)fn(x), truth((long double)x), 53, -1074, DBL_MAX), x);
}

/* The C library's long double sine is good for any argument; these names have addresses. */
#define F32(name) \
    static float name##_f32(float x) { return kir_##name##_f32(x); }
#define F64(name) \
    static double name##_f64(double x) { return kir_##name##_f64(x); }
#define BOTH(name) F32(name) F64(name)
BOTH(exp)
BOTH(log)
BOTH(sin)
BOTH(cos)
BOTH(tanh)
BOTH(erf)

typedef struct math_case {
    const char *name;
    float (*f32)(float);
    double (*f64)(double);
    truth_fn *truth;
    double low, high; /* where it is most used */
} math_case;

static const math_case CASES[] = {
    {"exp", exp_f32, exp_f64, expl, -90, 90},   {"log", log_f32, log_f64, logl, 0, 3},
    {"sin", sin_f32, sin_f64, sinl, -100, 100}, {"cos", cos_f32, cos_f64, cosl, -100, 100},
    {"tanh", tanh_f32, tanh_f64, tanhl, -3, 3}, {"erf", erf_f32, erf_f64, erfl, -3, 3},
};

static worst worst_f32(const math_case *c) {
    worst w = {0, 0};
    for (uint64_t bits = 0; bits <= UINT32_MAX; bits += F32_STEP)
        try_f32(&w, c->f32, c->truth, kir_from_bits_f32((uint32_t)bits));
    for (int i = 0; i < F64_SAMPLES; i++)
        try_f32(&w, c->f32, c->truth, (float)random_between(c->low, c->high));
    return w;
}

static worst worst_f64(const math_case *c) {
    worst w = {0, 0};
    for (int i = 0; i < F64_SAMPLES; i++) {
        try_f64(&w, c->f64, c->truth, kir_from_bits_f64(random_bits()));
        try_f64(&w, c->f64, c->truth, random_between(c->low, c->high));
        try_f64(&w, c->f64, c->truth, random_between(c->low, c->high) * 8);
    }
    return w;
}

static void f32_functions_err_by_less_than_2_steps(void **state) {
    (void)state;
    random_state = 1;
    for (size_t i = 0; i < TN_COUNT(CASES); i++) {
        worst w = worst_f32(&CASES[i]);
        print_message("%s f32: %.3f at %a\n", CASES[i].name, w.error, w.at);
        assert_true(w.error < 2);
    }
}

static void f64_functions_err_by_less_than_4_steps(void **state) {
    (void)state;
    random_state = 2;
    for (size_t i = 0; i < TN_COUNT(CASES); i++) {
        worst w = worst_f64(&CASES[i]);
        print_message("%s f64: %.3f at %a\n", CASES[i].name, w.error, w.at);
        assert_true(w.error < 4);
    }
}

/* Multiples of π/2 are where a weak reduction shows: the result is all that is left of the argument. */
static void trigonometry_holds_near_multiples_of_a_quarter_turn(void **state) {
    (void)state;
    worst f32 = {0, 0}, f64 = {0, 0};
    const long double quarter = 1.57079632679489661923132169163975144L;
    for (int64_t k = 1; k < 4000000; k += k < 5000 ? 1 : 977) {
        double x = (double)(quarter * (long double)k);
        for (int c = 2; c < 4; c++) {
            try_f32(&f32, CASES[c].f32, CASES[c].truth, (float)x);
            try_f64(&f64, CASES[c].f64, CASES[c].truth, x);
            try_f64(&f64, CASES[c].f64, CASES[c].truth, ldexp(x, (int)(k % 900)));
        }
    }
    print_message("near quarter turns: f32 %.3f at %a, f64 %.3f at %a\n", f32.error, f32.at, f64.error, f64.at);
    assert_true(f32.error < 2 && f64.error < 4);
}

/* ---- edges ------------------------------------------------------------------------------------------------------- */

static void same_f32(float got, float want) {
    if (isnan(got) && isnan(want)) return;
    if (kir_bits_f32(got) == kir_bits_f32(want)) return;
    fail_msg("%a should be %a", (double)got, (double)want);
}

static void same_f64(double got, double want) {
    if (isnan(got) && isnan(want)) return;
    if (kir_bits_f64(got) == kir_bits_f64(want)) return;
    fail_msg("%a should be %a", got, want);
}

static void functions_are_exact_at_their_edges(void **state) {
    (void)state;
    const double inf = (double)INFINITY, nan = (double)NAN;
    static const struct {
        int which;
        double x, want;
    } rows[] = {
        {0, 0, 1},
        {0, -0.0, 1},
        {0, INFINITY, INFINITY},
        {0, -INFINITY, 0},
        {0, NAN, NAN},
        {0, 1e5, INFINITY},
        {0, -1e5, 0},
        {1, 1, 0},
        {1, 0, -INFINITY},
        {1, -0.0, -INFINITY},
        {1, -1, NAN},
        {1, -INFINITY, NAN},
        {1, INFINITY, INFINITY},
        {1, NAN, NAN},
        {2, 0, 0},
        {2, -0.0, -0.0},
        {2, INFINITY, NAN},
        {2, -INFINITY, NAN},
        {2, NAN, NAN},
        {3, 0, 1},
        {3, -0.0, 1},
        {3, INFINITY, NAN},
        {3, NAN, NAN},
        {4, 0, 0},
        {4, -0.0, -0.0},
        {4, INFINITY, 1},
        {4, -INFINITY, -1},
        {4, NAN, NAN},
        {4, 1e30, 1},
        {5, 0, 0},
        {5, -0.0, -0.0},
        {5, INFINITY, 1},
        {5, -INFINITY, -1},
        {5, NAN, NAN},
        {5, -1e30, -1},
    };
    for (size_t i = 0; i < TN_COUNT(rows); i++) {
        same_f32(CASES[rows[i].which].f32((float)rows[i].x), (float)rows[i].want);
        same_f64(CASES[rows[i].which].f64(rows[i].x), rows[i].want);
    }
    same_f32(kir_exp_f32(-103.5f), 0x1p-149f);
    same_f64(kir_exp_f64(-745.0), 0x1p-1074);
    same_f64(kir_log_f64(0x1p-1074), (double)logl(0x1p-1074L));
    same_f32(kir_max_f32(-0.0f, 0.0f), 0.0f);
    same_f32(kir_max_f32(0.0f, -0.0f), -0.0f);
    same_f32(kir_max_f32(NAN, 1.0f), NAN);
    same_f32(kir_min_f32(1.0f, NAN), NAN);
    same_f64(kir_max_f64(nan, inf), nan);
}

static void odd_functions_are_odd_to_the_bit(void **state) {
    (void)state;
    random_state = 3;
    for (int i = 0; i < 20000; i++) {
        double x = random_between(-50, 50);
        same_f32(kir_sin_f32((float)-x), -kir_sin_f32((float)x));
        same_f32(kir_tanh_f32((float)-x), -kir_tanh_f32((float)x));
        same_f32(kir_erf_f32((float)-x), -kir_erf_f32((float)x));
        same_f64(kir_sin_f64(-x * 1e7), -kir_sin_f64(x * 1e7));
        same_f64(kir_tanh_f64(-x), -kir_tanh_f64(x));
        same_f64(kir_erf_f64(-x), -kir_erf_f64(x));
    }
}

static void bounded_functions_stay_within_their_bounds(void **state) {
    (void)state;
    for (float x = 0; x < 20; x += 0.0007f) {
        assert_true(kir_tanh_f32(x) <= 1 && kir_erf_f32(x) <= 1 && kir_tanh_f64((double)x) <= 1 &&
                    kir_erf_f64((double)x) <= 1);
        assert_true(kir_sin_f32(x) <= 1 && kir_cos_f32(x) <= 1 && kir_sin_f64((double)x) <= 1 &&
                    kir_cos_f64((double)x) <= 1);
    }
}

/* ---- narrow floats ----------------------------------------------------------------------------------------------- */

/* The value of a half-precision pattern, from its definition. */
static double half_value(uint16_t h) {
    int exponent = h >> 10 & 31, fraction = h & 1023;
    double magnitude = exponent == 0 ? ldexp(fraction, -24) : ldexp(1024 + fraction, exponent - 25);
    if (exponent == 31) magnitude = fraction ? (double)NAN : (double)INFINITY;
    return h & 0x8000 ? -magnitude : magnitude;
}

static void halves_convert_without_loss(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        same_f32(kir_from_f16((uint16_t)h), (float)half_value((uint16_t)h));
        if (!isnan(half_value((uint16_t)h))) assert_int_equal(kir_to_f16(kir_from_f16((uint16_t)h)), h);
        float wide = kir_from_bf16((uint16_t)h);
        assert_int_equal(kir_bits_f32(wide), h << 16);
        if (!isnan(wide)) assert_int_equal(kir_to_bf16(wide), h);
    }
}

/* Between two neighbours the nearer one is taken, in the middle the even one, beyond the last half-way infinity. */
static void halves_round_to_nearest_even(void **state) {
    (void)state;
    for (uint16_t h = 0; h < 0x7bff; h++) {
        double low = half_value(h), high = half_value((uint16_t)(h + 1)), middle = (low + high) / 2;
        assert_int_equal(kir_to_f16((float)middle), h & 1 ? h + 1 : h);
        assert_int_equal(kir_to_f16(nextafterf((float)middle, 1e9f)), h + 1);
        assert_int_equal(kir_to_f16(-nextafterf((float)middle, 0)), 0x8000 | h);
    }
    assert_int_equal(kir_to_f16(65519.996f), 0x7bff);
    assert_int_equal(kir_to_f16(65520.0f), 0x7c00);
    assert_int_equal(kir_to_f16(-INFINITY), 0xfc00);
    assert_int_equal(kir_to_f16(NAN) & 0x7fff, 0x7e00);
    assert_int_equal(kir_to_bf16(kir_from_bits_f32(0x3f808000)), 0x3f80);
    assert_int_equal(kir_to_bf16(kir_from_bits_f32(0x3f818000)), 0x3f82);
    assert_int_equal(kir_to_bf16(FLT_MAX), 0x7f80);
    assert_true(isnan(kir_from_bf16(kir_to_bf16(kir_from_bits_f32(0x7f800001)))));
}

/* Doubles around every float's exponent, half-way cases among them, against the processor. */
static void doubles_narrow_without_doubles(void **state) {
    (void)state;
    random_state = 5;
    for (int i = 0; i < F64_SAMPLES; i++) {
        uint64_t sign = random_bits() << 63, exponent = 1023 - 160 + random_bits() % 300;
        uint64_t fraction = random_bits() & 0xfffffffffffff, keep = random_bits() % 53;
        fraction = fraction >> keep << keep;
        double x = kir_from_bits_f64(sign | exponent << 52 | fraction), any = kir_from_bits_f64(random_bits());
        same_f32(kir_narrow_bits(kir_bits_f64(x)), (float)x);
        same_f32(kir_narrow_bits(kir_bits_f64(any)), (float)any);
    }
    static const double edges[] = {0.0, -0.0, INFINITY, -INFINITY, NAN, 0x1p-150, 0x1.8p-150, 0x1.ffffffp127, 5e-324};
    for (size_t i = 0; i < TN_COUNT(edges); i++)
        same_f32(kir_narrow_bits(kir_bits_f64(edges[i])), (float)edges[i]);
}

/* Known answers of the paper's reference code: key and counter zero. */
static void philox_gives_the_published_numbers(void **state) {
    (void)state;
    assert_int_equal(kir_philox_u32(0, 0), 0x6627e8d5);
    random_state = 4;
    uint32_t seen = 0;
    for (int i = 0; i < 1000; i++)
        seen |= kir_philox_u32(42, (uint64_t)i);
    assert_int_equal(seen, UINT32_MAX);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f32_functions_err_by_less_than_2_steps),
        cmocka_unit_test(f64_functions_err_by_less_than_4_steps),
        cmocka_unit_test(trigonometry_holds_near_multiples_of_a_quarter_turn),
        cmocka_unit_test(functions_are_exact_at_their_edges),
        cmocka_unit_test(odd_functions_are_odd_to_the_bit),
        cmocka_unit_test(bounded_functions_stay_within_their_bounds),
        cmocka_unit_test(halves_convert_without_loss),
        cmocka_unit_test(halves_round_to_nearest_even),
        cmocka_unit_test(doubles_narrow_without_doubles),
        cmocka_unit_test(philox_gives_the_published_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
