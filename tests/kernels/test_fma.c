/* test_fma.c — a·b + c is rounded once on every device, also where the product's rest, the sum or the result leave the
 * range in which floats have all their bits. Operands are made to cancel, to meet at the last bit, to underflow and to
 * overflow; beside them stands C's own fma. Devices round it once by an instruction, or by what their kernels are given
 * instead of it. Where a device promises no bits, software alone takes part, and subnormal numbers may be 0. Names the
 * devices that it ran on; with TRUNNION_TEST_DEVICE that backend's alone. The steps of matrix products on the CPU must
 * do the same on every instruction set. */
#include "test_support.h"

#include "cpu/isa.h"
#include "hal/hal.h"
#include "trunnion/trunnion.h"

#include <math.h>

static const char *const DEVICES[] = {"opencl:0", "vulkan:0", "webgpu:0", "cuda:0", "rocm:0", "metal:0"};

/* ---- operands ---------------------------------------------------------------------------------------------------- */

typedef struct format {
    kir_type type;
    tn_dtype dtype;
    int digits, bias; /* of the significand, the first one included */
} format;

static const format F32 = {KIR_F32, TN_F32, 24, 127}, F64 = {KIR_F64, TN_F64, 53, 1023};

static uint64_t state = 1;

static uint64_t next(void) {
    state += 0x9e3779b97f4a7c15;
    uint64_t x = (state ^ state >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

static int64_t below(int64_t n) { return (int64_t)(next() % (uint64_t)n); }

/* Digits behind the point: any, none, all, a run of ones at either end, two ones. */
static uint64_t digits_of(const format *f) {
    int n = f->digits - 1;
    uint64_t all = ((uint64_t)1 << n) - 1, any = next() & all, cut = (uint64_t)below(n);
    const uint64_t kinds[] = {any, 0, all, all >> cut, all << cut & all, (uint64_t)1 << cut | (uint64_t)1 << below(n)};
    return kinds[below(TN_COUNT(kinds))];
}

static double value(const format *f, int64_t exponent) {
    int64_t most = 2 * f->bias + 1, field = exponent < 0 ? 0 : exponent > most ? most : exponent;
    uint64_t bits = (next() & 1) << (f->type == KIR_F32 ? 31 : 63) | (uint64_t)field << (f->digits - 1) | digits_of(f);
    uint32_t word = (uint32_t)bits;
    double v;
    float single;
    memcpy(&single, &word, sizeof single);
    memcpy(&v, &bits, sizeof v);
    return f->type == KIR_F32 ? (double)single : v;
}

/* a and b whose product is anywhere, around the least numbers, around the greatest; c near the product, anywhere, or
 * what takes the rounded product away. */
static void make_operands(const format *f, double x[3]) {
    int64_t range = 2 * f->bias, a = below(range + 1), b = below(range + 1), kind = below(8);
    if (kind == 0) b = below(2 * f->digits + 14) - f->digits - 7 + f->bias - a;
    if (kind == 1) b = range - below(8) + f->bias - a;
    int64_t product = a + b - f->bias, near = kind % 2 ? 8 : 5 * f->digits;
    x[0] = value(f, a);
    x[1] = value(f, b);
    x[2] = value(f, kind == 7 ? below(range + 2) : product + below(near) - near / 2);
    if (below(6) > 0) return;
    double all = -x[0] * x[1], one = below(2) ? INFINITY : -INFINITY;
    if (f->type == KIR_F64) x[2] = below(2) ? all : nextafter(all, one);
    if (f->type == KIR_F32) x[2] = below(2) ? (double)(float)all : (double)nextafterf((float)all, (float)one);
}

/* ---- on a device ------------------------------------------------------------------------------------------------- */

/* r[i] = a[i]·b[i] + c[i]; the four lie one behind the other. */
static void run(tn_device *d, const format *f, void *x, int64_t n) {
    kir_builder *b;
    kir_program *p;
    int64_t *sizes;
    kir_val v[3];
    assert_ok(kir_begin(1, 0, &n, &b));
    int operands = kir_buffer(b, f->dtype), result = kir_buffer(b, f->dtype);
    for (int i = 0; i < 3; i++)
        v[i] = kir_load(b, operands, &(kir_aff){.s = {1}, .c = i * n, .dyn = KIR_NONE}, KIR_NONE);
    kir_store(b, result, &(kir_aff){.s = {1}, .dyn = KIR_NONE}, kir_fma(b, v[0], v[1], v[2]), KIR_NONE);
    assert_ok(kir_finish(b, &p, &sizes));
    size_t bytes = (size_t)n * tn_dtype_size(f->dtype);
    tn_buffer *in, *out;
    tn_kernel *k;
    assert_ok(tn_buffer_new(d, 3 * bytes, &in));
    assert_ok(tn_buffer_new(d, bytes, &out));
    assert_ok(tn_buffer_write(in, 0, x, 3 * bytes));
    assert_ok(tn_kernel_get(d, p, &k));
    tn_launch launch = {.sizes = sizes, .buffers = (void *[]){in->address, out->address}};
    assert_ok(tn_kernel_launch(d, k, &launch, 1));
    assert_ok(tn_buffer_read(out, 0, (char *)x + 3 * bytes, bytes));
    tn_kernel_release(k);
    tn_buffer_release(in);
    tn_buffer_release(out);
    kir_free(p);
    tn_mem_free(sizes);
}

static double element(const format *f, const void *x, int64_t i) {
    return f->type == KIR_F32 ? (double)((const float *)x)[i] : ((const double *)x)[i];
}

static bool is_small(const format *f, double x) { return x != 0 && fabs(x) < ldexp(1, 2 - f->bias); }

static void compare(tn_device *d, const format *f, int64_t n) {
    size_t bytes = 4 * (size_t)n * tn_dtype_size(f->dtype);
    void *x = malloc(bytes);
    assert_non_null(x);
    for (int64_t i = 0; i < n; i++) {
        double v[3];
        make_operands(f, v);
        for (int k = 0; k < 3; k++)
            if (f->type == KIR_F32)
                ((float *)x)[k * n + i] = (float)v[k];
            else
                ((double *)x)[k * n + i] = v[k];
    }
    run(d, f, x, n);
    for (int64_t i = 0; i < n; i++) {
        double a = element(f, x, i), b = element(f, x, n + i), c = element(f, x, 2 * n + i),
               got = element(f, x, 3 * n + i);
        double want = f->type == KIR_F32 ? (double)fmaf((float)a, (float)b, (float)c) : fma(a, b, c);
        if (!d->caps.exact && (is_small(f, a) || is_small(f, b) || is_small(f, c) || is_small(f, want))) continue;
        if (want == got ? signbit(want) != signbit(got) : want == want || got == got)
            fail_msg("%s: %a * %a + %a is %a, should be %a", d->info.id, a, b, c, got, want);
    }
    free(x);
}

/* false: there is no such device. Without f64 where `singles`: then nothing but floats can take f32's place. */
static bool try_device(const char *id, bool singles) {
    int64_t n = 1 << 16, times = getenv("TRUNNION_TEST_FULL") ? 100 : 1;
    tn_device_options o = TN_DEVICE_DEFAULTS;
    o.fallback = TN_FALLBACK_STRICT;
    tn_device *d = NULL;
    if (tn_device_open(id, &o, NULL, &d) != TN_OK) {
        printf("skipped: %s: %s\n", id, tn_error());
        return false;
    }
    bool judged = d->caps.exact || d->info.software;
    if (!judged) printf("skipped: %s rounds in its own way\n", id);
    if (singles) d->caps.f64 = false;
    for (int64_t k = 0; k < times && judged; k++) {
        compare(d, &F32, n);
        if (d->caps.f64) compare(d, &F64, n);
    }
    if (!singles && judged)
        printf("ran on: %s (%s%s)\n", d->info.id, d->info.name, d->info.software ? ", software" : "");
    tn_device_close(d);
    return true;
}

static void fma_is_rounded_once(void **unused) {
    (void)unused;
    const char *only = getenv("TRUNNION_TEST_DEVICE");
    for (size_t i = 0; i < TN_COUNT(DEVICES); i++) {
        if (only && strncmp(DEVICES[i], only, strlen(only)) != 0) continue;
        if (try_device(DEVICES[i], false)) try_device(DEVICES[i], true);
    }
}

/* Products of [1, a] and [c; b]: on each instruction set the second step is fma(a, b, c). */
static void steps_of_products_are_rounded_once(void **unused) {
    (void)unused;
    enum { COLUMNS = 1 << 10, TIMES = 200 };
    static float b[2][COLUMNS], y[COLUMNS];
    for (int isa = TN_ISA_BASE; isa < TN_ISA_COUNT; isa++) {
        if (!tn_gemm_use((tn_isa)isa)) continue;
        for (int t = 0; t < TIMES; t++) {
            float a[2] = {1, 0};
            for (int j = 0; j < COLUMNS; j++) {
                double x[3];
                make_operands(&F32, x);
                if (j == 0) a[1] = (float)x[0];
                double product = (double)a[1] * x[1]; /* near it, so that bits are lost */
                b[0][j] = below(2) ? (float)x[2] : (float)ldexp(product, (int)below(60) - 30) * (below(2) ? 1 : -1);
                b[1][j] = (float)x[1];
            }
            TN_SCOPE;
            tn_tensor *left = tn_from_data(a, (int64_t[]){1, 2}, 2, TN_F32);
            tn_tensor *right = tn_from_data(b, (int64_t[]){2, COLUMNS}, 2, TN_F32);
            assert_ok(tn_read(tn_matmul(left, right), y, sizeof y));
            for (int j = 0; j < COLUMNS; j++) {
                float want = fmaf(a[1], b[1][j], b[0][j] + 0.0f);
                if (want == y[j] ? signbit(want) != signbit(y[j]) : want == want || y[j] == y[j])
                    fail_msg("%s: %a * %a + %a is %a, should be %a", tn_isa_name((tn_isa)isa), (double)a[1],
                             (double)b[1][j], (double)b[0][j], (double)y[j], (double)want);
            }
        }
    }
}

int main(void) {
    if (make_scratch(NULL)) return 1;
    setenv("TRUNNION_CACHE", test_scratch("cache"), 1);
    const struct CMUnitTest tests[] = {cmocka_unit_test(fma_is_rounded_once),
                                       cmocka_unit_test(steps_of_products_are_rounded_once)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    remove_scratch(NULL);
    return failed;
}
