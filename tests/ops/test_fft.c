/* test_fft.c — Fourier transforms of lengths that are cut in two or are long primes, beside the definition in f64;
 * signals come back; wrong arguments. Small transforms and gradients: test_functions.c, from PyTorch. */
#include "test_support.h"

#include <math.h>

#include "trunnion/functions.h"

enum { SAMPLES = 16 };

static double signal_at(int64_t i) { return sin(0.37 * (double)i) + (double)(i * 7919 % 101) / 50 - 1; }

static tn_tensor *signal_of(int64_t n, tn_dtype dtype) {
    double *v = malloc((size_t)(2 * n) * sizeof *v);
    for (int64_t i = 0; i < 2 * n; i++)
        v[i] = signal_at(i);
    tn_tensor *t = tn_cast(tn_from_data(v, (int64_t[]){n, 2}, 2, TN_F64), dtype);
    free(v);
    return t;
}

/* The definition, at a few frequencies. */
static void assert_spectrum(const double *is, int64_t n, double within) {
    for (int64_t s = 0; s < SAMPLES; s++) {
        int64_t k = s * 131 % n;
        double re = 0, im = 0;
        for (int64_t j = 0; j < n; j++) {
            double angle = -6.283185307179586476925 * (double)(j * k % n) / (double)n;
            re += signal_at(2 * j) * cos(angle) - signal_at(2 * j + 1) * sin(angle);
            im += signal_at(2 * j) * sin(angle) + signal_at(2 * j + 1) * cos(angle);
        }
        if (hypot(is[2 * k] - re, is[2 * k + 1] - im) > within * (double)n)
            fail_msg("%lld points: [%lld] is %.12g %+.12gi, not %.12g %+.12gi", (long long)n, (long long)k, is[2 * k],
                     is[2 * k + 1], re, im);
    }
}

static void any_length_is_the_definition(void **state) {
    (void)state;
    static const int64_t lengths[] = {1, 2, 1021, 1500, 2039, 2053, 4096, 4099, 10007, 30030};
    for (size_t i = 0; i < TN_COUNT(lengths); i++)
        for (int wide = 0; wide < 2; wide++) {
            TN_SCOPE;
            int64_t n = lengths[i];
            tn_tensor *x = signal_of(n, wide ? TN_F64 : TN_F32), *y = tn_fft(x, -1, 0, TN_FFT_BACKWARD);
            double *is = malloc((size_t)(2 * n) * sizeof *is), within = wide ? 1e-13 : 3e-7;
            assert_ok(tn_read_as(tn_cast(y, TN_F64), is, 2 * n, TN_F64));
            assert_spectrum(is, n, within);
            assert_ok(tn_read_as(tn_cast(tn_ifft(y, n, -1, TN_FFT_BACKWARD), TN_F64), is, 2 * n, TN_F64));
            for (int64_t k = 0; k < 2 * n; k++)
                if (fabs(is[k] - signal_at(k)) > (wide ? 1e-11 : 2e-5))
                    fail_msg("%lld points: [%lld] comes back as %.12g, not %.12g", (long long)n, (long long)k, is[k],
                             signal_at(k));
            free(is);
        }
}

static void long_real_signals_come_back(void **state) {
    (void)state;
    static const int64_t lengths[] = {1025, 2053, 6000};
    for (size_t i = 0; i < TN_COUNT(lengths); i++) {
        TN_SCOPE;
        tn_tensor *x = tn_select(signal_of(lengths[i], TN_F64), 1, 0);
        tn_tensor *y = tn_irfft(tn_rfft(x, -1, 0, TN_FFT_ORTHO), lengths[i], 0, TN_FFT_ORTHO);
        assert_true(tn_item(tn_amax(tn_abs(tn_sub(x, y)), TN_ALL, false)) < 1e-11);
    }
    TN_SCOPE;
    tn_tensor *x = tn_select(signal_of(4000, TN_F64), 1, 0),
              *w = tn_add(tn_abs(tn_slice(x, 0, 0, 64, 1)), tn_scalar(0.5));
    assert_int_equal(tn_dtype_of(tn_stft(tn_cast(x, TN_F32), 64, 16, w, true, true)), TN_F64); /* promoted */
    tn_tensor *y = tn_istft(tn_stft(x, 64, 16, w, true, true), 64, 16, w, true, true, 4000);
    assert_true(tn_item(tn_amax(tn_abs(tn_sub(x, y)), TN_ALL, false)) < 1e-11);
}

static tn_tensor *power(void *ctx, tn_tensor *const *in) {
    (void)ctx;
    tn_tensor *y = tn_rfft(in[0], 9, 0, TN_FFT_ORTHO);
    return tn_mul(y, y);
}

static void gradients_are_the_slopes(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = tn_clone(tn_select(signal_of(7, TN_F64), 1, 0));
    tn_gradcheck_options o = TN_GRADCHECK_DEFAULTS;
    o.order = 2;
    assert_ok(tn_set_requires_grad(x, true));
    assert_ok(tn_gradcheck(power, NULL, &x, 1, &o));
}

static void assert_refused(const tn_tensor *t, tn_status status, const char *words) {
    assert_int_equal(tn_status_of(t), status);
    assert_text_has(tn_error(), words);
}

static void wrong_arguments_are_refused(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = signal_of(8, TN_F32), *real = tn_zeros(TN_DIMS(8), TN_F32);
    assert_refused(tn_fft(real, -1, 0, TN_FFT_BACKWARD), TN_ERR_SHAPE, "fft: the last dimension must hold");
    assert_refused(tn_fft(x, -1, 1, TN_FFT_BACKWARD), TN_ERR_SHAPE, "fft: dim 1 is out of range");
    assert_refused(tn_fft(x, 0, 0, TN_FFT_BACKWARD), TN_ERR_SHAPE, "fft: 0 points");
    assert_refused(tn_irfft(x, -5, 0, TN_FFT_BACKWARD), TN_ERR_SHAPE, "irfft: -5 points");
    assert_refused(tn_irfft(tn_zeros(TN_DIMS(1, 2), TN_F32), -1, 0, TN_FFT_BACKWARD), TN_ERR_SHAPE, "irfft: 0 points");
    assert_refused(tn_fft(tn_cast(x, TN_I32), -1, 0, TN_FFT_BACKWARD), TN_ERR_DTYPE, "fft: the input is i32");
    assert_refused(tn_fftn(x, NULL, (int64_t[]){0, 0}, 2, TN_FFT_BACKWARD), TN_ERR_SHAPE, "2 dims of 1");
    assert_refused(tn_rfftn(x, NULL, (int64_t[]){1, -1}, 2, TN_FFT_BACKWARD), TN_ERR_SHAPE, "named twice");
    assert_refused(tn_stft(real, 9, 2, NULL, false, false), TN_ERR_SHAPE,
                   "frames of 9 points do not fit a signal of 8");
    assert_refused(tn_stft(real, 4, 0, NULL, false, false), TN_ERR_ARGUMENT, "hop 0");
    assert_refused(tn_istft(x, 4, 2, NULL, false, false, -1), TN_ERR_SHAPE, "istft: expected");
}

static void integers_and_bools_are_transformed_as_f32(void **state) {
    (void)state;
    static const tn_dtype dtypes[] = {TN_BOOL, TN_U8, TN_I32, TN_I64};
    static const bool values[] = {true, false, true, true, false};
    for (size_t i = 0; i < TN_COUNT(dtypes); i++) {
        TN_SCOPE;
        tn_tensor *x = tn_from_data(values, (int64_t[]){5}, 1, TN_BOOL);
        tn_tensor *y = tn_rfft(tn_cast(x, dtypes[i]), -1, 0, TN_FFT_BACKWARD);
        tn_tensor *z = tn_rfft(tn_cast(x, TN_F32), -1, 0, TN_FFT_BACKWARD);
        assert_int_equal(tn_dtype_of(y), TN_F32);
        assert_true(tn_item(tn_all(tn_eq(y, z), TN_ALL, false)) == 1);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_length_is_the_definition),
        cmocka_unit_test(long_real_signals_come_back),
        cmocka_unit_test(gradients_are_the_slopes),
        cmocka_unit_test(wrong_arguments_are_refused),
        cmocka_unit_test(integers_and_bools_are_transformed_as_f32),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
