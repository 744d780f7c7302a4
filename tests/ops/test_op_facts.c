/* test_op_facts.c — src/gen/op_facts.def states the dtypes and errors of every op; this test compares it with the ops.
 *
 * For each op, the first valid case of its row is recorded with each dtype. That case with an input of another shape,
 * and the cases that must fail, are recorded for their status. gen_ops.py copies the lines into the public header
 * and docs/ops.md. TRUNNION_OP_FACTS=FILE writes the lines to FILE instead of comparing. */
#include "test_support.h"
#include "trial.h"

#include "check/check.h"
#include "tensor/graph.h"

static const char HEAD[] =
    "/* op_facts.def — dtypes and errors of every op; written by test_op_facts.c (TRUNNION_OP_FACTS=FILE). */\n";

enum { MOST_TEXT = 400, MOST_LINE = 200 };

/* Result of one op for one input dtype. */
typedef struct outcome {
    bool accepted;
    tn_dtype result;
} outcome;

static const struct {
    const char *name;
    int count;
    tn_dtype members[8];
} classes[] = {{"float", 4, {TN_F16, TN_BF16, TN_F32, TN_F64}},
               {"integer", 8, {TN_I8, TN_I16, TN_I32, TN_I64, TN_U8, TN_U16, TN_U32, TN_U64}},
               {"bool", 1, {TN_BOOL}}};

/* Which inputs of a case name no dtype, and so take the one under test: "[2,3]@0..1" does, "[4]:i64" does not. */
static int find_free_inputs(const tn_case *c, bool *is_free) {
    int input = 0, count = 0;
    for (int i = 0; i < c->length && input < c->n_in;) {
        int n = 0;
        while (i + n < c->length && c->text[i + n] != ' ')
            n++;
        const char *word = c->text + i;
        bool absent = n == 1 && word[0] == '-', is_input = n > 0 && (word[0] == '[' || absent);
        if (is_input) {
            is_free[input] = !absent && !memchr(word, ':', (size_t)n);
            count += is_free[input++];
        }
        i += n + 1;
    }
    return count;
}

static tn_status record_case(int op, const tn_case *c, tn_dtype *result) {
    TN_SCOPE;
    trial t = {.op = op, .c = c, .seed = 7919};
    trial_make_values(&t);
    trial_make_tensors(&t, false);
    tn_tensor *y = trial_apply(&t);
    tn_status status = tn_status_of(y);
    *result = tn_dtype_of(y);
    trial_free_values(&t);
    return status;
}

static bool next_case(tn_case_reader *r, tn_case *c) {
    bool more = true;
    assert_ok(tn_cases_next(r, c, &more));
    return more;
}

static bool takes_dtype(int op) { return strstr(tn_op(op)->takes, "dtype dtype") != NULL; }

/* "integer i64; bool same": the members of a class stand under its name if all are accepted and their results agree. */
static void put_class(char *text, int op, size_t k, const outcome *of) {
    bool all = true, same = true, one = true;
    int accepted = 0;
    for (int i = 0; i < classes[k].count; i++) {
        tn_dtype t = classes[k].members[i];
        all &= of[t].accepted;
        accepted += of[t].accepted;
        same &= of[t].result == t;
        one &= of[t].result == of[classes[k].members[0]].result;
    }
    if (!accepted) return;
    for (int i = 0; i < classes[k].count; i++) {
        tn_dtype t = classes[k].members[i];
        bool whole = all && (same || one || takes_dtype(op));
        bool kept = whole ? same : of[t].result == t;
        if (!of[t].accepted) continue;
        size_t used = strlen(text);
        snprintf(text + used, MOST_TEXT - used, "%s%s %s", used ? "; " : "", whole ? classes[k].name : tn_dtype_name(t),
                 takes_dtype(op) ? "dtype"
                 : kept          ? "same"
                                 : tn_dtype_name(of[t].result));
        if (whole) return;
    }
}

static tn_status record_with(int op, const tn_case *c, const bool *is_free, tn_dtype t, tn_dtype *result) {
    tn_case with = *c;
    for (int i = 0; i < c->n_in; i++)
        if (is_free[i]) with.in[i].dtype = t;
    with.type = t;
    return record_case(op, &with, result);
}

/* A dtype is accepted if a valid case is recorded with it: other cases may have numbers that the dtype lacks. */
static void find_dtypes(int op, char text[MOST_TEXT], bool *refuses_dtype) {
    tn_case_reader r;
    tn_case c;
    outcome of[TN_DTYPE_COUNT] = {{false}};
    bool refused[TN_DTYPE_COUNT] = {false}, any_free = false;
    text[0] = 0;
    tn_cases_begin(&r, op);
    while (next_case(&r, &c)) {
        bool is_free[TN_CASE_INPUTS] = {false};
        tn_dtype result;
        if (c.error[0]) continue;
        bool has_free = find_free_inputs(&c, is_free) > 0;
        if (!has_free && !text[0] && record_case(op, &c, &result) == TN_OK)
            snprintf(text, MOST_TEXT, "result %s", takes_dtype(op) ? "dtype" : tn_dtype_name(result));
        for (size_t k = 0; has_free && k < sizeof classes / sizeof classes[0]; k++) {
            for (int i = 0; i < classes[k].count; i++) {
                tn_dtype t = classes[k].members[i];
                if (of[t].accepted) continue;
                tn_status status = record_with(op, &c, is_free, t, &of[t].result);
                of[t].accepted = status == TN_OK;
                refused[t] = status == TN_ERR_DTYPE;
            }
        }
        any_free |= has_free;
    }
    for (int t = 0; t < TN_DTYPE_COUNT; t++)
        *refuses_dtype |= refused[t];
    if (any_free) text[0] = 0;
    for (size_t k = 0; any_free && k < sizeof classes / sizeof classes[0]; k++)
        put_class(text, op, k, of);
}

/* A first valid case with input i of other extents: each one larger, or none. */
static void find_shape_errors(int op, bool *seen) {
    tn_case_reader r;
    tn_case c;
    tn_dtype result;
    tn_cases_begin(&r, op);
    do {
        if (!next_case(&r, &c)) return;
    } while (c.error[0]);
    for (int i = 0; i < c.n_in; i++) {
        if (c.in[i].absent || tn_dtype_is_quantized(c.in[i].dtype)) continue;
        for (int scalar = 0; scalar < 2; scalar++) {
            tn_case with = c;
            for (int d = 0; d < with.in[i].rank; d++)
                with.in[i].shape[d]++;
            if (scalar) with.in[i].rank = 0;
            seen[record_case(op, &with, &result)] = true;
        }
    }
}

static void find_errors(int op, bool refuses_dtype, char text[MOST_TEXT]) {
    static const struct {
        tn_status code;
        const char *name;
    } codes[] = {{TN_ERR_ARGUMENT, "ARGUMENT"},
                 {TN_ERR_SHAPE, "SHAPE"},
                 {TN_ERR_DTYPE, "DTYPE"},
                 {TN_ERR_UNSUPPORTED, "UNSUPPORTED"}};
    bool seen[TN_ERR_INTERNAL + 1] = {false};
    tn_case_reader r;
    tn_case c;
    tn_dtype result;
    find_shape_errors(op, seen);
    tn_cases_begin(&r, op);
    while (next_case(&r, &c))
        if (c.error[0]) seen[record_case(op, &c, &result)] = true;
    seen[TN_ERR_DTYPE] |= refuses_dtype;
    text[0] = 0;
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++) {
        size_t used = strlen(text);
        if (seen[codes[i].code]) snprintf(text + used, MOST_TEXT - used, "%s%s", used ? " " : "", codes[i].name);
    }
}

static void op_facts_hold(void **state) {
    (void)state;
    const char *to = getenv("TRUNNION_OP_FACTS");
    FILE *f = fopen(to ? to : "src/gen/op_facts.def", to ? "w" : "r");
    assert_non_null(f);
    char line[MOST_LINE + 2 * MOST_TEXT], got[sizeof line];
    int wrong = 0;
    if (to)
        fputs(HEAD, f);
    else
        assert_non_null(fgets(line, sizeof line, f));
    for (int op = 0; op < tn_op_count(); op++) {
        char dtypes[MOST_TEXT], errors[MOST_TEXT];
        bool refuses_dtype = false;
        if (!tn_op(op)->impl->cases) continue;
        find_dtypes(op, dtypes, &refuses_dtype);
        find_errors(op, refuses_dtype, errors);
        snprintf(got, sizeof got, "FACTS(%s, \"%s\", \"%s\")\n", tn_op(op)->name, dtypes, errors);
        if (to) {
            fputs(got, f);
        } else if (!fgets(line, sizeof line, f) || strcmp(line, got)) {
            print_error("op_facts.def: %s  expected: %s", line, got);
            wrong++;
        }
    }
    fclose(f);
    assert_int_equal(wrong, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(op_facts_hold)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
