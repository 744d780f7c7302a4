/* test_onnx_export_ops.c — every op as a model: cases of the op table, exported, read again and run.
 *
 * What comes out must be within the tolerance of the op's own tests. Ops that ONNX has no operator for are listed here;
 * all others must be exported: two cases an op, or all with TRUNNION_TEST_FULL=1. With TRUNNION_ONNX_EXPORT a folder,
 * models and results stay there for tools/checks/onnx_export.py. */
#include "test_support.h"
#include "trial.h"

#include "gen/op_ids.h"
#include "trunnion/trunnion.h"

/* Random numbers, caches, factorizations; bits, running products (since opset 26), angles, extremes of integers,
 * shifts of those with a sign. */
static const char *const without[] = {"view_dtype",          "cumprod", "atan2",   "bitwise_left_shift",
                                      "bitwise_right_shift", "signbit", "copysign"};

typedef struct tally {
    int exported, refused, failed;
} tally;

static bool is_known(const char *name) {
    static const char *const families[] = {"linalg_", "random_", "cache", "bernoulli_by", "dropout_by"};
    for (size_t i = 0; i < TN_COUNT(families); i++)
        if (!strncmp(name, families[i], strlen(families[i]))) return true;
    for (size_t i = 0; i < TN_COUNT(without); i++)
        if (!strcmp(name, without[i])) return true;
    return false;
}

static bool looks_outside(int op, const tn_case *c) {
    static const int from_minus_one[] = {TN_OP_GATHER, TN_OP_SCATTER, TN_OP_SCATTER_REDUCE, TN_OP_LINEAR_EXPERTS};
    bool outside = false, listed = false;
    for (size_t k = 0; k < TN_COUNT(from_minus_one); k++)
        listed |= op == from_minus_one[k];
    for (int i = 0; i < c->n_in; i++) {
        bool whole = !c->in[i].absent && (c->in[i].dtype == TN_I64 || c->in[i].dtype == TN_I32);
        outside |= whole && (c->in[i].low == -2 || (listed && c->in[i].low == -1));
    }
    return outside;
}

/* Products with blocks round the other operand to eight bits: a model with the weight as f32 does not. */
static bool rounds_more(int op, const tn_case *c) {
    bool blocks = false;
    for (int i = 0; i < c->n_in; i++)
        blocks |= !c->in[i].absent && tn_dtype_is_quantized(c->in[i].dtype);
    return blocks && (op == TN_OP_LINEAR || op == TN_OP_LINEAR_QUANTIZED || op == TN_OP_LINEAR_EXPERTS ||
                      op == TN_OP_LINEAR_EXPERTS_ROWS);
}

/* Whether the model computes what the operation does; if not, says what differs. */
static bool compare(const trial *t, const char *path, const tn_tensor *want, tn_onnx_value *const *in, int count) {
    const char *name = tn_op(t->op)->name;
    tn_onnx *m = NULL;
    tn_onnx_value *out = NULL;
    tn_status s = tn_onnx_open(path, NULL, &m);
    if (s == TN_OK && tn_onnx_input_count(m) != count) fail_msg("%s: inputs", name);
    if (s == TN_OK) s = tn_onnx_run(m, in, &out);
    if (s != TN_OK) {
        print_error("%s, case %.*s (%s): %s\n", name, t->c->length, t->c->text, tn_dtype_name(t->c->type), tn_error());
        tn_onnx_close(m);
        return false;
    }
    const tn_tensor *y = tn_onnx_value_get(out);
    assert_int_equal(tn_dtype_of(y), tn_dtype_of(want));
    assert_int_equal(tn_numel(y), tn_numel(want));
    double *a = trial_doubles(y), *b = trial_doubles(want);
    int64_t k = 0;
    while (k < tn_numel(y) && (tn_case_allows(t->c, tn_dtype_of(y), a[k], b[k]) || (a[k] != a[k] && b[k] != b[k])))
        k++;
    bool same = k == tn_numel(y);
    if (!same)
        print_error("%s, case %.*s (%s): [%d] is %.9g, not %.9g\n", name, t->c->length, t->c->text,
                    tn_dtype_name(t->c->type), (int)k, a[k], b[k]);
    free(a);
    free(b);
    tn_onnx_value_free(out);
    tn_onnx_close(m);
    return same;
}

static void keep_expected(const char *path, const tn_named_tensor *in, int count, const tn_tensor *y) {
    tn_named_tensor all[TN_CASE_INPUTS + 1];
    char names[TN_CASE_INPUTS][16];
    for (int i = 0; i < count; i++) {
        snprintf(names[i], sizeof names[i], "in:%s", in[i].name);
        all[i] = (tn_named_tensor){names[i], in[i].tensor};
    }
    all[count] = (tn_named_tensor){"out:y", tn_contiguous(y)};
    assert_ok(tn_safetensors_save(path, all, count + 1, NULL, 0));
}

/* Whether ONNX Runtime can compute the case. It refuses indices out of range and integer division by zero; numpy has no
 * bf16; ONNX Runtime 1.32 has no Col2Im of integers, and its Expand to an extent of 0 and its integer product over an
 * extent of 0 are wrong. */
static bool is_for_others(const trial *t, const tn_tensor *y) {
    static const int outside[] = {TN_OP_CACHED_ATTENTION, TN_OP_CACHED_ATTENTION_ROWS, TN_OP_INDEX_ADD_ROWS};
    static const int divisions[] = {TN_OP_DIV_TRUNC, TN_OP_FLOOR_DIVIDE, TN_OP_FMOD, TN_OP_REMAINDER};
    bool fits = getenv("TRUNNION_ONNX_EXPORT") != NULL && tn_dtype_of(y) != TN_BF16;
    bool whole = !tn_dtype_is_float(tn_dtype_of(y)), by_zero = whole && t->c->in[1].low <= 0 && t->c->in[1].high >= 0;
    for (size_t i = 0; i < TN_COUNT(outside); i++)
        fits = fits && t->op != outside[i];
    for (size_t i = 0; i < TN_COUNT(divisions); i++)
        fits = fits && !(by_zero && t->op == divisions[i]);
    fits = fits && !(whole && t->op == TN_OP_CONV_TRANSPOSE2D);
    for (int i = 0; i < t->c->n_in; i++) {
        fits = fits && (!t->in[i] || tn_dtype_of(t->in[i]) != TN_BF16);
        fits = fits && (t->op != TN_OP_INT_MM || tn_numel(t->in[i]) > 0);
    }
    return fits && (t->op != TN_OP_REPEAT || tn_numel(y) > 0);
}

static void run_case(trial *t, tally *sum) {
    const char *folder = getenv("TRUNNION_ONNX_EXPORT"), *name = tn_op(t->op)->name;
    static const char *const in_names[] = {"a", "b", "c", "d", "e", "f", "g", "h",
                                           "i", "j", "k", "l", "m", "n", "o", "p"};
    char path[512], expected[512];
    snprintf(path, sizeof path, "%s/op-%s-%d.onnx", folder ? folder : scratch_folder, name, sum->exported);
    snprintf(expected, sizeof expected, "%s/op-%s-%d.safetensors", folder ? folder : scratch_folder, name,
             sum->exported);
    trial_make_values(t);
    {
        TN_SCOPE;
        tn_named_tensor in[TN_CASE_INPUTS];
        tn_onnx_value *given[TN_CASE_INPUTS];
        int count = 0;
        trial_make_tensors(t, false);
        for (int i = 0; i < t->c->n_in; i++)
            if (t->in[i] && !tn_dtype_is_quantized(tn_dtype_of(t->in[i]))) {
                in[count] = (tn_named_tensor){in_names[count], t->in[i]};
                count++;
            }
        tn_tensor *y = trial_apply(t);
        tn_status s = tn_onnx_export(path, in, count, &(tn_named_tensor){"y", y}, 1, NULL);
        if (s == TN_ERR_UNSUPPORTED) {
            sum->refused++;
            if (!is_known(name)) fail_msg("%s (%s): %s", name, tn_dtype_name(t->c->type), tn_error());
        } else {
            assert_ok(s);
            assert_ok(tn_eval(&y, 1));
            for (int i = 0; i < count; i++)
                given[i] = tn_onnx_value_tensor((tn_tensor *)(uintptr_t)in[i].tensor);
            sum->failed += !compare(t, path, y, given, count);
            for (int i = 0; i < count; i++)
                tn_onnx_value_free(given[i]);
            if (is_for_others(t, y)) keep_expected(expected, in, count, y);
            sum->exported++;
        }
        if (!is_for_others(t, y)) remove(path);
    }
    trial_free_values(t);
}

static void every_op_is_exported(void **state) {
    (void)state;
    tally sum = {0};
    const bool all = test_is_full();
    for (int op = 0; op < tn_op_count(); op++) {
        tn_case_reader r;
        tn_case c;
        bool more = true;
        const char *last = NULL;
        int most = all ? INT32_MAX : 2;
        tn_cases_begin(&r, op);
        while (true) {
            assert_ok(tn_cases_next(&r, &c, &more));
            if (!more || most == 0) break;
            /* The first of a case's types. What indices outside of a tensor do is ours, and no model's. */
            if (c.error[0] || c.text == last || looks_outside(op, &c) || rounds_more(op, &c)) continue;
            last = c.text;
            most--;
            trial t = {.op = op, .c = &c, .seed = 5};
            run_case(&t, &sum);
        }
    }
    print_message("%d cases exported, %d refused\n", sum.exported, sum.refused);
    assert_int_equal(sum.failed, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_op_is_exported)};
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
