/* test_golden.c — operations and their gradients agree with PyTorch's.
 *
 * tests/golden/ops.json holds inputs, attributes, results and gradients that torch_golden.py computed in f64.
 * Each case runs in f64, where only the eight digits of the file may differ, in f32, with the tolerance below, and in
 * bf16 against itself in f32. One test a case and dtype, named after both. */
#include "test_support.h"

#include <math.h>

#include "tensor/graph.h"
#include "trunnion/autograd.h"
#include "trunnion/ops.h"

enum { MAX_INPUTS = 8 };

typedef struct golden {
    const tn_json *row;
    tn_dtype dtype;
    char name[96];
} golden;

/* f64: the file has 8 digits. f32: a few hundred roundings at the sizes of these cases, each 6e-8. */
static const double relative_f64 = 6e-8, absolute_f64 = 1e-9, relative_f32 = 2e-5, absolute_f32 = 2e-6;

/* ---- reading the file -------------------------------------------------------------------------------------------- */

static double number_of(const tn_json *v) {
    if (tn_json_kind_of(v) != TN_JSON_STRING) return tn_json_number(v, NAN);
    const char *text = tn_json_string(v, "nan");
    return strcmp(text, "inf") == 0 ? INFINITY : strcmp(text, "-inf") == 0 ? -INFINITY : NAN;
}

static void put_element(void *data, int64_t i, tn_dtype dtype, double v) {
    switch (dtype) {
    case TN_F64: ((double *)data)[i] = v; break;
    case TN_F32: ((float *)data)[i] = (float)v; break;
    case TN_I64: ((int64_t *)data)[i] = (int64_t)v; break;
    default: ((uint8_t *)data)[i] = v != 0.0; break;
    }
}

static tn_dtype dtype_of(const tn_json *packed, tn_dtype floating) {
    const char *type = tn_json_string(tn_json_get(packed, "type"), "");
    return strcmp(type, "float") == 0 ? floating : strcmp(type, "i64") == 0 ? TN_I64 : TN_BOOL;
}

static int shape_of(const tn_json *packed, int64_t *shape) {
    const tn_json *list = tn_json_get(packed, "shape");
    int rank = (int)tn_json_length(list);
    for (int d = 0; d < rank; d++)
        shape[d] = tn_json_int(tn_json_at(list, (size_t)d), -1);
    return rank;
}

static tn_tensor *tensor_of(const tn_json *packed, tn_dtype floating) {
    int64_t shape[TN_MAX_RANK];
    int rank = shape_of(packed, shape);
    const tn_json *list = tn_json_get(packed, "data");
    int64_t count = (int64_t)tn_json_length(list);
    tn_dtype dtype = dtype_of(packed, floating);
    void *data = calloc((size_t)count + 1, 8);
    assert_non_null(data);
    for (int64_t i = 0; i < count; i++)
        put_element(data, i, dtype, number_of(tn_json_at(list, (size_t)i)));
    tn_tensor *t = tn_from_data(data, shape, rank, dtype);
    free(data);
    assert_ok(tn_status_of(t));
    return t;
}

/* ---- comparing --------------------------------------------------------------------------------------------------- */

static double element(const void *data, int64_t i, tn_dtype dtype) {
    return dtype == TN_F64 ? ((const double *)data)[i] : (double)((const float *)data)[i];
}

static bool agree(const golden *g, double is, double want) {
    double wider = tn_json_number(tn_json_get(g->row, "tol"), 1.0);
    double relative = g->dtype == TN_F64 ? relative_f64 : relative_f32 * wider;
    double absolute = g->dtype == TN_F64 ? absolute_f64 : absolute_f32 * wider;
    if (isnan(want)) return isnan(is);
    if (isinf(want)) return is == want;
    return fabs(is - want) <= relative * fabs(want) + absolute;
}

static void assert_agrees(const golden *g, const char *what, const tn_tensor *t, const tn_json *want) {
    int64_t shape[TN_MAX_RANK], count = tn_numel(t);
    assert_ok(tn_status_of(t));
    assert_int_equal(tn_rank(t), shape_of(want, shape));
    for (int d = 0; d < tn_rank(t); d++)
        assert_int_equal(tn_size(t, d), shape[d]);
    assert_int_equal(tn_dtype_of(t), g->dtype);
    void *data = calloc((size_t)count + 1, 8);
    assert_non_null(data);
    assert_ok(tn_read(t, data, (size_t)count * tn_dtype_size(g->dtype)));
    for (int64_t i = 0; i < count; i++) {
        double is = element(data, i, g->dtype), expected = number_of(tn_json_at(tn_json_get(want, "data"), (size_t)i));
        if (agree(g, is, expected)) continue;
        free(data);
        fail_msg("%s: %s[%lld] is %.10g, PyTorch has %.10g", g->name, what, (long long)i, is, expected);
    }
    free(data);
}

/* ---- one case ---------------------------------------------------------------------------------------------------- */

static int op_named(const char *name) {
    for (int op = 0; op < tn_op_count(); op++)
        if (strcmp(tn_op(op)->name, name) == 0) return op;
    fail_msg("no op is called %s", name);
    return -1;
}

static tn_attrs attributes_of(const tn_json *row) {
    tn_attrs a = {0};
    const tn_json *i = tn_json_get(row, "i"), *f = tn_json_get(row, "f");
    for (size_t k = 0; k < tn_json_length(i); k++)
        a.i[a.n_i++] = tn_json_int(tn_json_at(i, k), 0);
    for (size_t k = 0; k < tn_json_length(f); k++)
        a.f[a.n_f++] = number_of(tn_json_at(f, k));
    return a;
}

static bool is_null(const tn_json *v) { return !v || tn_json_kind_of(v) == TN_JSON_NULL; }

static void check_gradients(const golden *g, tn_tensor *y, tn_tensor **inputs) {
    const tn_json *want = tn_json_get(g->row, "grads");
    tn_tensor *dy = tensor_of(tn_json_get(g->row, "dy"), g->dtype), *leaves[MAX_INPUTS], *grads[MAX_INPUTS];
    int numbers[MAX_INPUTS], count = 0;
    for (int k = 0; k < (int)tn_json_length(want); k++) {
        if (is_null(tn_json_at(want, (size_t)k))) continue;
        leaves[count] = inputs[k];
        numbers[count++] = k;
    }
    assert_ok(tn_gradients(&y, 1, &dy, leaves, count, false, grads));
    for (int k = 0; k < count; k++) {
        char what[32];
        snprintf(what, sizeof what, "gradient of input %d", numbers[k]);
        assert_agrees(g, what, grads[k], tn_json_at(want, (size_t)numbers[k]));
    }
}

static void check_case(const golden *g) {
    const tn_json *in = tn_json_get(g->row, "in"), *grads = tn_json_get(g->row, "grads");
    int n_in = (int)tn_json_length(in);
    tn_tensor *inputs[MAX_INPUTS] = {NULL};
    assert_true(n_in <= MAX_INPUTS);
    for (int k = 0; k < n_in; k++) {
        if (is_null(tn_json_at(in, (size_t)k))) continue;
        inputs[k] = tensor_of(tn_json_at(in, (size_t)k), g->dtype);
        if (grads && !is_null(tn_json_at(grads, (size_t)k))) assert_ok(tn_set_requires_grad(inputs[k], true));
    }
    tn_attrs a = attributes_of(g->row);
    tn_tensor *y =
        tn_record(op_named(tn_json_string(tn_json_get(g->row, "op"), "")), (const tn_tensor *const *)inputs, n_in, &a);
    assert_agrees(g, "result", y, tn_json_get(g->row, "out"));
    if (grads) check_gradients(g, y, inputs);
}

/* ---- half precision ---------------------------------------------------------------------------------------------- */

/* Inputs that are floating, rounded to g's dtype; as_f32: then widened again. */
static void half_inputs(const golden *g, bool as_f32, tn_tensor **inputs) {
    const tn_json *in = tn_json_get(g->row, "in");
    for (int k = 0; k < (int)tn_json_length(in); k++) {
        if (is_null(tn_json_at(in, (size_t)k))) continue;
        inputs[k] = tensor_of(tn_json_at(in, (size_t)k), TN_F32);
        if (tn_dtype_of(inputs[k]) != TN_F32) continue;
        inputs[k] = tn_cast(inputs[k], g->dtype);
        if (as_f32) inputs[k] = tn_cast(inputs[k], TN_F32);
    }
}

static float *half_result(const golden *g, bool as_f32, int64_t *count) {
    tn_tensor *inputs[MAX_INPUTS] = {NULL};
    half_inputs(g, as_f32, inputs);
    tn_attrs a = attributes_of(g->row);
    int op = op_named(tn_json_string(tn_json_get(g->row, "op"), ""));
    tn_tensor *y = tn_record(op, (const tn_tensor *const *)inputs, (int)tn_json_length(tn_json_get(g->row, "in")), &a);
    assert_ok(tn_status_of(y));
    bool statistics = strncmp(tn_op(op)->name, "batch_mean", 10) == 0 || strncmp(tn_op(op)->name, "batch_var", 9) == 0;
    if (!as_f32 && !statistics) assert_int_equal(tn_dtype_of(y), g->dtype);
    *count = tn_numel(y);
    float *values = calloc((size_t)*count + 1, sizeof *values);
    assert_non_null(values);
    assert_ok(tn_read(tn_cast(y, TN_F32), values, (size_t)*count * sizeof *values));
    return values;
}

/* The same inputs in f32: a bf16 result may differ by the roundings of a few steps, each 2^-9 of the values' size. */
static void check_half(const golden *g) {
    int64_t count = 0;
    float *is = half_result(g, false, &count), *want = half_result(g, true, &count), size = 0.0f;
    for (int64_t i = 0; i < count; i++)
        if (isfinite(want[i])) size = fmaxf(size, fabsf(want[i]));
    for (int64_t i = 0; i < count; i++) {
        bool same = isnan(want[i])   ? isnan(is[i])
                    : isinf(want[i]) ? is[i] == want[i]
                                     : fabsf(is[i] - want[i]) <= size * 0x1p-6f;
        if (same) continue;
        fail_msg("%s: result[%lld] is %.6g, in f32 it is %.6g", g->name, (long long)i, (double)is[i], (double)want[i]);
    }
    free(is);
    free(want);
}

static void agrees_with_pytorch(void **state) {
    const golden *g = *state;
    TN_SCOPE;
    if (g->dtype == TN_BF16)
        check_half(g);
    else
        check_case(g);
}

/* ---- all of them ------------------------------------------------------------------------------------------------- */

/* The checks run tests from the top of the source tree. */
static const char *const golden_path = "tests/golden/ops.json";

static int run_all(const tn_json *cases) {
    size_t count = tn_json_length(cases), made = 0;
    golden *rows = calloc(3 * count, sizeof *rows);
    struct CMUnitTest *tests = calloc(3 * count, sizeof *tests);
    if (!rows || !tests) return 1;
    for (size_t i = 0; i < count; i++)
        for (int k = 0; k < 3; k++) {
            golden *g = &rows[made];
            g->row = tn_json_at(cases, i);
            bool factorization = strncmp(tn_json_string(tn_json_get(g->row, "op"), ""), "linalg_", 7) == 0;
            if (k == 2 && factorization) continue; /* refuse bf16, as PyTorch's do */
            g->dtype = (const tn_dtype[]){TN_F64, TN_F32, TN_BF16}[k];
            snprintf(g->name, sizeof g->name, "%s_as_pytorch_%zu_%s", tn_json_string(tn_json_get(g->row, "op"), ""), i,
                     tn_dtype_name(g->dtype));
            tests[made++] = (struct CMUnitTest){.name = g->name, .test_func = agrees_with_pytorch, .initial_state = g};
        }
    int failed = _cmocka_run_group_tests("golden", tests, made, NULL, NULL);
    free(rows);
    free(tests);
    return failed;
}

int main(void) {
    tn_map file;
    tn_json_doc *doc = NULL;
    tn_status s = tn_map_open(golden_path, &file);
    if (s == TN_OK) s = tn_json_parse((const char *)file.data, file.size, &doc);
    if (s != TN_OK) {
        fprintf(stderr, "%s: %s\n", golden_path, tn_error());
        return 1;
    }
    printf("compared with %s\n", tn_json_string(tn_json_get(tn_json_root(doc), "made"), "?"));
    int failed = run_all(tn_json_get(tn_json_root(doc), "cases"));
    tn_json_free(doc);
    tn_map_close(&file);
    return failed;
}
