/* test_matrix.c — products of f16 and bf16 by matrix units (kir.h, MATRIX): the template's products are right within
 * the rounding of their sums, for sizes on both sides of every edge, both subgroup sizes, and every way in which
 * operands come into workgroup memory; a program that breaks a rule of matrices is told so.
 *
 * The far device interprets; its interpreter finds races, memory that nobody wrote, packets that nobody waited for.
 * With TRUNNION_TEST_DEVICE another device takes its place, which has matrix units. */
#include "test_support.h"

#include <math.h>

#include "far_driver.h"
#include "kir/rules.h"
#include "random_numbers.h"
#include "sources.h"
#include "spirv_val.h"
#include "trunnion/trunnion.h"

/* ---- products ---------------------------------------------------------------------------------------------------- */

static int matrices_seen, wide_seen, fetches_seen;

static void look_at(const kir_program *p) {
    for (int i = 0; i < p->n_ins; i++) {
        matrices_seen += p->ins[i].op == KIR_MMA;
        wide_seen += p->ins[i].op == KIR_MATRIX && p->ins[i].kind > 0;
        fetches_seen += p->ins[i].op == KIR_FETCH;
    }
}

typedef struct product {
    int64_t batch, m, n, k;
    tn_dtype dtype;
    bool a_turned, b_turned, joined;
    int fetched; /* operands that come in packets */
} product;

static uint64_t next_number = 1;

static float number(void) { return (float)((int64_t)(random_step(&next_number) >> 40) - (1 << 23)) / (float)(1 << 22); }

/* What a tensor of `dtype` holds, as f32 on the host. */
static float *values_of(const tn_tensor *x) {
    float *out = malloc((size_t)tn_numel(x) * sizeof *out + 1);
    assert_ok(tn_read(tn_cast(x, TN_F32), out, (size_t)tn_numel(x) * sizeof *out));
    return out;
}

static tn_tensor *matrix_of(int64_t batch, int64_t rows, int64_t columns, bool turned, tn_dtype t) {
    int64_t shape[] = {batch, turned ? columns : rows, turned ? rows : columns}, count = batch * rows * columns;
    float *values = malloc((size_t)count * sizeof *values);
    for (int64_t i = 0; i < count; i++)
        values[i] = number();
    tn_tensor *x = tn_cast(tn_from_data(values, shape, 3, TN_F32), t);
    free(values);
    tn_tensor *held[] = {x};
    assert_ok(tn_eval(held, 1));
    return turned ? tn_transpose(x, 1, 2) : x;
}

/* The sum of k products, and what bounds its rounding: each addition errs by half a last place of the sum of sizes;
 * matrix units may cut where others round. */
static void check_element(const product *p, const float *a, const float *b, float got, int64_t i, int64_t j) {
    double sum = 0, size = 0;
    for (int64_t k = 0; k < p->k; k++) {
        sum += (double)a[i * p->k + k] * b[k * p->n + j];
        size += fabs((double)a[i * p->k + k] * b[k * p->n + j]);
    }
    double want = p->joined ? fmax(sum, 0.0) : sum;
    int bits = p->dtype == TN_F16 ? -11 : p->dtype == TN_BF16 ? -8 : -24;
    double bound = (double)(p->k + 1) * ldexp(size, -22) + ldexp(fabs(want), bits) + 1e-7;
    if (p->dtype == TN_F32) bound += ldexp(size, -10) + ldexp(size, -22); /* each factor errs by 2^-11 of it */
    if (!(fabs(got - want) <= bound))
        fail_msg("%lld × %lld × %lld of %s: element (%lld, %lld) is %.9g, should be %.9g within %.3g", (long long)p->m,
                 (long long)p->n, (long long)p->k, tn_dtype_name(p->dtype), (long long)i, (long long)j, got, want,
                 bound);
}

static void check_product(const product *p) {
    matrices_seen = wide_seen = fetches_seen = 0;
    {
        TN_SCOPE;
        tn_tensor *a = matrix_of(p->batch, p->m, p->k, p->a_turned, p->dtype);
        tn_tensor *b = matrix_of(p->batch, p->k, p->n, p->b_turned, p->dtype);
        tn_tensor *y = tn_matmul(a, b);
        if (p->joined) y = tn_relu(y);
        assert_ok(tn_eval(&y, 1));
        float *x = values_of(a), *w = values_of(b), *got = values_of(y);
        for (int64_t e = 0; e < p->batch; e++)
            for (int64_t i = 0; i < p->m; i++)
                for (int64_t j = 0; j < p->n; j++)
                    check_element(p, x + e * p->m * p->k, w + e * p->k * p->n, got[(e * p->m + i) * p->n + j], i, j);
        free(x);
        free(w);
        free(got);
    }
    if (getenv("TRUNNION_TEST_DEVICE") || far_loaded == sources_take) return;
    assert_true(matrices_seen > 0);
    assert_int_equal(fetches_seen > 0, p->fetched > 0);
    assert_int_equal(wide_seen > 0, far_nature_now.matrix & TN_MATRIX_WIDE && p->dtype != TN_F32);
}

static const product products[] = {
    {1, 128, 128, 96, TN_F16, false, false, false, 2}, {1, 130, 72, 40, TN_BF16, false, true, true, 2},
    {2, 70, 64, 48, TN_F16, true, false, true, 1},     {1, 33, 45, 67, TN_BF16, true, true, false, 0},
    {3, 16, 200, 64, TN_F16, false, true, false, 2},   {1, 5, 96, 31, TN_BF16, false, false, true, 1},
};

/* Whole matrices and edges of them, in both directions, by packets and by elements; both widths. */
static const product wide_products[] = {
    {1, 128, 256, 192, TN_F16, false, false, false, 2},
    {1, 150, 300, 72, TN_BF16, false, true, true, 2},
    {2, 136, 128, 64, TN_F16, true, true, false, 2},
    {1, 70, 131, 201, TN_BF16, true, false, false, 0},
};

static void check_products(const product *list, size_t count, uint32_t matrix, int64_t subgroup, int64_t shared) {
    far_nature_now = (far_nature){.matrix = matrix, .subgroup = subgroup, .shared_memory = shared, .processors = 4};
    const char *name = getenv("TRUNNION_TEST_DEVICE");
    tn_device_options o = TN_DEVICE_DEFAULTS;
    o.fallback = TN_FALLBACK_STRICT;
    tn_device *d = NULL;
    if (name)
        assert_ok(tn_device_open(name, &o, NULL, &d));
    else
        d = far_open(0, NULL);
    assert_ok(tn_set_current_device(d));
    for (size_t i = test_is_thin() ? count - 1 : 0; i < count; i++) { /* the last one has edges */
        product p = list[i];
        if (!(matrix & TN_MATRIX_PACKETS)) p.fetched = 0;
        bool lacks = name && p.dtype == TN_F32 && !(d->caps.matrix & TN_MATRIX_TF32);
        if (lacks) assert_string_not_equal(d->driver->name, "cuda");
        if (lacks) continue;
        if (name && p.dtype != TN_F32 && d->caps.matrix && !(d->caps.matrix & TN_MATRIX_BF16)) p.dtype = TN_F16;
        if (name) assert_true(d->caps.matrix != 0);
        check_product(&p);
    }
    assert_ok(tn_set_current_device(NULL));
    tn_device_close(d);
    far_nature_now = (far_nature){0};
}

enum { BOTH = TN_MATRIX_F16 | TN_MATRIX_BF16 };

static void products_of_halves_by_late_packets(void **state) {
    (void)state;
    check_products(products, TN_COUNT(products), BOTH | TN_MATRIX_PACKETS | TN_MATRIX_LATE, 32, 128 << 10);
}

static void products_of_halves_by_packets(void **state) {
    (void)state;
    check_products(products, TN_COUNT(products), BOTH | TN_MATRIX_PACKETS, 64, 64 << 10);
}

static void products_of_halves_by_elements(void **state) {
    (void)state;
    check_products(products, TN_COUNT(products), BOTH, 32, 48 << 10);
}

static void products_by_small_subgroups(void **state) {
    (void)state;
    check_products(products, TN_COUNT(products), BOTH | TN_MATRIX_PACKETS, 8, 32 << 10);
    check_products(products, TN_COUNT(products), BOTH, 8, 48 << 10);
    check_products(products, TN_COUNT(products), BOTH | TN_MATRIX_PACKETS | TN_MATRIX_LATE, 16, 48 << 10);
    check_products(products, TN_COUNT(products), BOTH, 16, 64 << 10);
}

enum { WIDE = BOTH | TN_MATRIX_PACKETS | TN_MATRIX_LATE | TN_MATRIX_WIDE };

static void products_by_wide_matrices(void **state) {
    (void)state;
    check_products(wide_products, TN_COUNT(wide_products), WIDE, 32, 227 << 10);
}

static const product short_products[] = {
    {1, 128, 64, 96, TN_F32, false, false, false, 0},
    {2, 70, 50, 40, TN_F32, true, true, true, 0},
    {1, 33, 45, 67, TN_F32, true, false, false, 0},
    {1, 5, 96, 31, TN_F32, false, true, false, 0},
};

/* Only of those who ask for it. */
static void products_of_shortened_f32(void **state) {
    (void)state;
    const uint32_t units = WIDE | TN_MATRIX_TF32;
    far_nature_now = (far_nature){.matrix = units, .subgroup = 32};
    tn_device *d = far_open(0, NULL);
    assert_false(d->caps.matrix & TN_MATRIX_TF32);
    tn_device_close(d);
    assert_int_equal(setenv("TRUNNION_MATRIX", "tf32", 1), 0);
    check_products(short_products, TN_COUNT(short_products), units, 32, 96 << 10);
    check_products(short_products, TN_COUNT(short_products), units, 32, 64 << 10);
    assert_int_equal(unsetenv("TRUNNION_MATRIX"), 0);
}

static void matrix_units_can_be_left_out(void **state) {
    (void)state;
    if (getenv("TRUNNION_TEST_DEVICE")) return;
    assert_int_equal(setenv("TRUNNION_MATRIX", "0", 1), 0);
    far_nature_now = (far_nature){.matrix = BOTH | TN_MATRIX_PACKETS, .subgroup = 32};
    tn_device *d = far_open(0, NULL);
    assert_int_equal(unsetenv("TRUNNION_MATRIX"), 0);
    assert_ok(tn_set_current_device(d));
    matrices_seen = 0;
    {
        TN_SCOPE;
        tn_tensor *x = matrix_of(1, 32, 32, false, TN_F16), *y = tn_matmul(x, x);
        assert_ok(tn_eval(&y, 1));
    }
    assert_int_equal(matrices_seen, 0);
    assert_ok(tn_set_current_device(NULL));
    tn_device_close(d);
    far_nature_now = (far_nature){0};
}

/* ---- SPIR-V ------------------------------------------------------------------------------------------------------ */

static bool validated = true;

/* For devices that multiply whole matrices and all kinds of parts, whose 16-bit floats are IEEE 754's and others. */
static void validate(const kir_program *p) {
    enum { PLAIN = TN_SPIRV_STORAGE_16 | TN_SPIRV_INT_16 | TN_SPIRV_FLOAT_16 | TN_SPIRV_BFLOAT_16 };
    const uint32_t exact = TN_SPIRV_PRESERVE_16 | TN_SPIRV_DENORM_16 | TN_SPIRV_RTE_16;
    look_at(p);
    for (uint32_t shape = 0; shape < 8 && validated && kir_lanes(p) > 0; shape++) {
        kir_rendering r;
        kir_target t = {.dialect = &kir_dialect_spirv, .group_size = 64, .lanes = kir_lanes(p)};
        t.index32 = shape < 6;
        t.i64 = shape > 1;
        t.features = PLAIN | shape * TN_SPIRV_MATRIX_M8 | (shape & 1 ? exact : 0);
        assert_ok(kir_render(p, &t, &r));
        assert_int_equal(r.lanes, kir_lanes(p));
        validated = spirv_val_check(&r, "1.3", "a product");
        kir_rendering_free(&r);
    }
}

static void modules_are_valid(void **state) {
    (void)state;
    if (getenv("TRUNNION_TEST_DEVICE") || !spirv_val_find()) return;
    far_loaded = validate;
    check_products(products, TN_COUNT(products), BOTH | TN_MATRIX_PACKETS, 8, 32 << 10);
    check_products(products, TN_COUNT(products), BOTH, 16, 64 << 10);
    check_products(products, TN_COUNT(products), BOTH | TN_MATRIX_PACKETS, 32, 64 << 10);
    far_loaded = look_at;
}

/* ---- rules ------------------------------------------------------------------------------------------------------- */

typedef enum fault { NONE, NO_BARRIER, NO_WAIT, CROOKED, AT_ODDS, OUTSIDE, FAULTS } fault;
enum { LANES = 32, LINE = 24 };

/* out = x · x of 16×16, the packets late; with one fault. Axes: a subgroup, its items; a loop over lines. */
static tn_status square(fault f, float *out) {
    static _Alignas(64) uint16_t x[KIR_EDGE * KIR_EDGE];
    kir_builder *b;
    kir_program *p;
    int64_t *sizes;
    for (int i = 0; i < KIR_EDGE * KIR_EDGE; i++)
        x[i] = i % 17 == 0 ? 0x4000 : 0x3c00; /* 2 on the diagonal, 1 beside it */
    assert_ok(kir_begin(2, 1, (int64_t[]){1, LANES, KIR_EDGE}, &b));
    kir_group(b, 2);
    int in = kir_buffer(b, TN_F16), to = kir_buffer(b, TN_F32);
    int half = kir_local(b, TN_F16, KIR_EDGE * LINE), sums = kir_local(b, TN_F32, KIR_EDGE * LINE);
    kir_aff at = kir_aff_const(0), place = kir_aff_const(0), zero = kir_aff_const(0), me = kir_aff_const(0);
    me.s[1] = 1;
    kir_val item = kir_index(b, &me), line = kir_binary(b, KIR_SHR, item, kir_const_i(b, KIR_I64, 1));
    kir_val right = kir_binary(b, KIR_AND, item, kir_const_i(b, KIR_I64, 1));
    kir_val eight = kir_binary(b, KIR_MUL, right, kir_const_i(b, KIR_I64, 8));
    at.s[1] = 8;
    place.dyn = kir_binary(b, KIR_ADD, kir_binary(b, KIR_MUL, line, kir_const_i(b, KIR_I64, LINE)), eight);
    kir_put(b, half, &place, kir_fetch(b, in, &at, KIR_NONE), true);
    kir_commit(b);
    if (f != NO_WAIT) kir_wait(b, 0);
    if (f != NO_BARRIER) kir_barrier(b);
    kir_aff from = zero;
    from.dyn = f == CROOKED   ? kir_const_i(b, KIR_I64, 4)
               : f == OUTSIDE ? kir_const_i(b, KIR_I64, 8 * LINE)
               : f == AT_ODDS ? eight
                              : KIR_NONE;
    kir_val sum_of = kir_matrix(b);
    kir_val y = kir_fragment(b, half, &zero, KIR_FACTOR_B, LINE);
    kir_mma(b, sum_of, kir_fragment(b, half, &from, KIR_ALONG_K, LINE), y);
    kir_matrix_store(b, sums, &zero, LINE, sum_of, KIR_NONE);
    kir_barrier(b);
    kir_loop(b, 2, 1);
    kir_aff sum = me, result = me;
    sum.s[2] = LINE;
    result.s[2] = KIR_EDGE;
    kir_val inside = kir_binary(b, KIR_LT, item, kir_const_i(b, KIR_I64, KIR_EDGE));
    kir_store(b, to, &result, kir_load(b, sums, &sum, inside), inside);
    kir_end(b);
    assert_ok(kir_finish(b, &p, &sizes));
    assert_int_equal(kir_lanes(p), LANES);
    tn_status s = kir_interpret(p, &(kir_launch){sizes, (void *[]){x, out, NULL, NULL}, NULL});
    kir_free(p);
    tn_mem_free(sizes);
    return s;
}

static void what_breaks_a_rule_is_told(void **state) {
    (void)state;
    static const char *const texts[FAULTS] = {[NO_BARRIER] = "race",
                                              [NO_WAIT] = "waited",
                                              [CROOKED] = "multiple of 8",
                                              [AT_ODDS] = "operand differs from item 0's",
                                              [OUTSIDE] = "outside"};
    float out[KIR_EDGE * KIR_EDGE];
    for (fault f = NONE; f < FAULTS; f++) {
        tn_status s = square(f, out);
        if (texts[f]) {
            assert_int_equal(s, TN_ERR_ARGUMENT);
            if (!strstr(tn_error(), texts[f])) fail_msg("fault %d: \"%s\" has no \"%s\"", f, tn_error(), texts[f]);
        } else {
            assert_ok(s);
        }
        for (int i = 0; f == NONE && i < KIR_EDGE * KIR_EDGE; i++)
            assert_true(out[i] == (i % 17 == 0 ? 19.0f : 18.0f));
    }
}

static void names_are_no_values(void **state) {
    (void)state;
    kir_builder *b;
    kir_program *p;
    int64_t *sizes;
    for (int wrong = 0; wrong < 6; wrong++) {
        assert_ok(kir_begin(1, 0, (int64_t[]){LANES}, &b));
        kir_group(b, 1);
        int half = kir_local(b, TN_F16, KIR_EDGE * LINE), floats = kir_local(b, TN_F32, KIR_EDGE * LINE);
        kir_aff zero = kir_aff_const(0), items = kir_aff_const(0);
        items.s[0] = 8;
        kir_val m = kir_matrix(b), x = kir_fragment(b, half, &zero, 0, LINE);
        kir_val y = kir_fragment(b, half, &zero, KIR_FACTOR_B, LINE);
        switch (wrong) {
        case 0: kir_unary(b, KIR_NEG, m); break;
        case 1: kir_mma(b, m, y, x); break;
        case 2: kir_fragment(b, half, &zero, 0, 20); break;
        case 3: kir_matrix_store(b, half, &zero, LINE, m, KIR_NONE); break;
        case 4: kir_matrix_store(b, floats, &items, LINE, m, KIR_NONE); break;
        default: kir_fetch(b, half, &zero, KIR_NONE);
        }
        kir_mma(b, m, x, y);
        kir_matrix_store(b, floats, &zero, LINE, m, KIR_NONE);
        tn_status s = kir_finish(b, &p, &sizes);
        if (wrong == 5)
            assert_ok(s); /* nobody reads it: gone */
        else
            assert_int_equal(s, TN_ERR_ARGUMENT);
        kir_free(p);
        tn_mem_free(sizes);
    }
}

/* As texts of files, for compilers (tools/checks/renderings.py); the products are computed as well. */
static int write_sources(const char *folder) {
    sources_begin(folder, "matrix");
    far_loaded = sources_take;
    check_products(products, TN_COUNT(products), BOTH | TN_MATRIX_PACKETS | TN_MATRIX_LATE, 32, 48 << 10);
    check_products(products, TN_COUNT(products), BOTH | TN_MATRIX_PACKETS, 64, 64 << 10);
    check_products(products, TN_COUNT(products), BOTH | TN_MATRIX_PACKETS, 32, 64 << 10);
    check_products(wide_products, TN_COUNT(wide_products), WIDE, 32, 227 << 10);
    assert_int_equal(setenv("TRUNNION_MATRIX", "tf32", 1), 0);
    check_products(short_products, TN_COUNT(short_products), TN_MATRIX_TF32, 32, 227 << 10);
    return 0;
}

int main(int argc, char **argv) {
    if (argc > 2 && strcmp(argv[1], "--sources") == 0) return write_sources(argv[2]);
    far_loaded = look_at;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_of_halves_by_late_packets), cmocka_unit_test(products_of_halves_by_packets),
        cmocka_unit_test(products_of_halves_by_elements),     cmocka_unit_test(products_by_wide_matrices),
        cmocka_unit_test(products_of_shortened_f32),          cmocka_unit_test(matrix_units_can_be_left_out),
        cmocka_unit_test(products_by_small_subgroups),        cmocka_unit_test(modules_are_valid),
        cmocka_unit_test(what_breaks_a_rule_is_told),         cmocka_unit_test(names_are_no_values),
    };
    return cmocka_run_group_tests_name("matrix", tests, make_scratch, remove_scratch);
}
