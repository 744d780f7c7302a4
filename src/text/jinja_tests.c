/* jinja_tests.c — Jinja's tests (value is name) and the functions that templates can call, as tables. */
#include <string.h>
#include <time.h>

#include "text/jinja.h"

#define TEST(name, condition)      \
    JJ_FUNCTION(name) {            \
        *out = jj_bool(condition); \
        return TN_OK;              \
    }

/* ---- tests ------------------------------------------------------------------------------------------------------- */

TEST(test_defined, self.kind != JJ_UNDEFINED)
TEST(test_undefined, self.kind == JJ_UNDEFINED)
TEST(test_none, self.kind == JJ_NONE)
TEST(test_boolean, self.kind == JJ_BOOL)
TEST(test_true, self.kind == JJ_BOOL && self.truth)
TEST(test_false, self.kind == JJ_BOOL && !self.truth)
TEST(test_integer, self.kind == JJ_INT)
TEST(test_float, self.kind == JJ_FLOAT)
TEST(test_number, self.kind == JJ_INT || self.kind == JJ_FLOAT || self.kind == JJ_BOOL)
TEST(test_string, self.kind == JJ_STRING)
TEST(test_mapping, self.kind == JJ_DICT)
TEST(test_callable, self.kind == JJ_CALLABLE)
/* What can be gone over and has a length; Jinja counts undefined ones among them. */
TEST(test_sequence, self.kind == JJ_LIST || self.kind == JJ_STRING || self.kind == JJ_DICT || self.kind == JJ_UNDEFINED)

static tn_status remainder_is(jj_run *r, const jj_value *v, int64_t divisor, int64_t wanted, jj_value *out) {
    const jj_value by = jj_int(divisor);
    jj_value rest;
    if (v->kind != JJ_INT) return tn_jj_fail(r, "an integer is expected, not %s", tn_jj_kind_name(v));
    TRY(tn_jj_binary(r, JJ_MODULO, v, &by, &rest));
    *out = jj_bool(rest.integer == wanted);
    return TN_OK;
}

JJ_FUNCTION(test_even) { return remainder_is(r, &self, 2, 0, out); }
JJ_FUNCTION(test_odd) { return remainder_is(r, &self, 2, 1, out); }

JJ_FUNCTION(test_divisibleby) {
    if (bound[0]->kind != JJ_INT) return tn_jj_fail(r, "divisibleby takes an integer");
    return remainder_is(r, &self, bound[0]->integer, 0, out);
}

static tn_status cased(jj_run *r, const jj_value *v, const char *method, jj_value *out) {
    const jj_arguments none = {0};
    jj_value text;
    TRY(tn_jj_string(r, v, &text));
    return tn_jj_call_row(r, tn_jj_find_method(JJ_STRING, method), text, &none, out);
}

JJ_FUNCTION(test_lower) { return cased(r, &self, "islower", out); }
JJ_FUNCTION(test_upper) { return cased(r, &self, "isupper", out); }

JJ_FUNCTION(test_equal) {
    bool equal;
    TRY(tn_jj_equal(r, &self, bound[0], &equal));
    *out = jj_bool(equal);
    return TN_OK;
}

JJ_FUNCTION(test_unequal) {
    TRY(test_equal(r, self, given, bound, out));
    out->truth = !out->truth;
    return TN_OK;
}

/* The same object: equal values of the same kind, for what templates can tell. */
JJ_FUNCTION(test_sameas) {
    *out = jj_bool(false);
    return self.kind == bound[0]->kind ? test_equal(r, self, given, bound, out) : TN_OK;
}

JJ_FUNCTION(test_in) {
    bool inside;
    TRY(tn_jj_contains(r, bound[0], &self, &inside));
    *out = jj_bool(inside);
    return TN_OK;
}

/* Whether the order of two values is one of those in `wanted`: bit 0 less, bit 1 equal, bit 2 greater. */
static tn_status ordered(jj_run *r, const jj_value *a, const jj_value *b, unsigned wanted, jj_value *out) {
    int order;
    TRY(tn_jj_order(r, a, b, &order));
    *out = jj_bool(wanted >> (order < 0 ? 0 : order == 0 ? 1 : 2) & 1);
    return TN_OK;
}

JJ_FUNCTION(test_less) { return ordered(r, &self, bound[0], 1, out); }
JJ_FUNCTION(test_less_equal) { return ordered(r, &self, bound[0], 3, out); }
JJ_FUNCTION(test_greater) { return ordered(r, &self, bound[0], 4, out); }
JJ_FUNCTION(test_greater_equal) { return ordered(r, &self, bound[0], 6, out); }

// clang-format off
static const jj_row tests[] = {
    {"defined", test_defined, "", 0}, {"undefined", test_undefined, "", 0}, {"none", test_none, "", 0},
    {"boolean", test_boolean, "", 0}, {"true", test_true, "", 0}, {"false", test_false, "", 0},
    {"integer", test_integer, "", 0}, {"float", test_float, "", 0}, {"number", test_number, "", 0},
    {"string", test_string, "", 0}, {"mapping", test_mapping, "", 0}, {"callable", test_callable, "", 0},
    {"sequence", test_sequence, "", 0}, {"iterable", test_sequence, "", 0},
    {"even", test_even, "", 0}, {"odd", test_odd, "", 0}, {"divisibleby", test_divisibleby, "num", 1},
    {"lower", test_lower, "", 0}, {"upper", test_upper, "", 0},
    {"eq", test_equal, "other", 1}, {"equalto", test_equal, "other", 1}, {"==", test_equal, "other", 1},
    {"ne", test_unequal, "other", 1}, {"!=", test_unequal, "other", 1}, {"sameas", test_sameas, "other", 1},
    {"in", test_in, "seq", 1},
    {"lt", test_less, "other", 1}, {"lessthan", test_less, "other", 1}, {"<", test_less, "other", 1},
    {"le", test_less_equal, "other", 1}, {"<=", test_less_equal, "other", 1},
    {"gt", test_greater, "other", 1}, {"greaterthan", test_greater, "other", 1}, {">", test_greater, "other", 1},
    {"ge", test_greater_equal, "other", 1}, {">=", test_greater_equal, "other", 1},
};
// clang-format on

const jj_row *tn_jj_find_test(const char *name) {
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        if (!strcmp(tests[i].name, name)) return &tests[i];
    return NULL;
}

tn_status tn_jj_test(jj_run *r, const char *name, jj_value self, const jj_arguments *given, bool *out) {
    const jj_row *row = tn_jj_find_test(name);
    jj_value result;
    if (!row) return tn_jj_fail(r, "there is no test \"%.60s\"", name);
    TRY(tn_jj_call_row(r, row, self, given, &result));
    *out = tn_jj_truth(&result);
    return TN_OK;
}

/* ---- functions --------------------------------------------------------------------------------------------------- */

enum { LONGEST_RANGE = 100000 }; /* as in Jinja's sandbox */

JJ_FUNCTION(call_range) {
    int64_t part[3] = {0, 0, 1};
    jj_list *list;
    for (int i = 0; i < 3; i++) {
        if (!bound[i]) continue;
        if (bound[i]->kind != JJ_INT) return tn_jj_fail(r, "range takes integers, not %s", tn_jj_kind_name(bound[i]));
        part[i] = bound[i]->integer;
    }
    int64_t start = bound[1] ? part[0] : 0, stop = bound[1] ? part[1] : part[0], step = part[2];
    if (step == 0) return tn_jj_fail(r, "range: the step is 0");
    TRY(tn_jj_new_list(r, out, &list));
    for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
        if (list->count >= LONGEST_RANGE) return tn_jj_fail(r, "range: more than %d numbers", LONGEST_RANGE);
        TRY(tn_jj_push(r, list, jj_int(i)));
        if (__builtin_add_overflow(i, step, &i)) break;
    }
    return TN_OK;
}

/* dict(…) and namespace(…): a dict's pairs, then the named arguments. */
static tn_status make_dict(jj_run *r, jj_kind kind, const jj_arguments *given, jj_value *out) {
    jj_dict *dict;
    TRY(tn_jj_new_dict(r, kind, out, &dict));
    if (given->positional > 1 || (given->positional == 1 && given->values[0].kind != JJ_DICT))
        return tn_jj_fail(r, "a dict or named values are expected");
    for (size_t i = 0; given->positional == 1 && i < given->values[0].dict->count; i++)
        TRY(tn_jj_put(r, dict, given->values[0].dict->pairs[i].key, given->values[0].dict->pairs[i].value));
    for (int i = given->positional; i < given->count; i++)
        TRY(tn_jj_put(r, dict, tn_jj_literal(given->names[i]), given->values[i]));
    return TN_OK;
}

JJ_FUNCTION(call_dict) { return make_dict(r, JJ_DICT, given, out); }
JJ_FUNCTION(call_namespace) { return make_dict(r, JJ_NAMESPACE, given, out); }

JJ_FUNCTION(call_raise_exception) {
    jj_value text;
    TRY(tn_jj_string(r, bound[0], &text));
    return tn_backend_fail(TN_ERR_ARGUMENT, "chat template: %.*s", (int)(text.size < 300 ? text.size : 300), text.text);
}

JJ_FUNCTION(call_strftime_now) {
    char format[128], text[512];
    time_t now = (time_t)r->now;
    struct tm parts;
    if (bound[0]->kind != JJ_STRING || bound[0]->size >= sizeof format)
        return tn_jj_fail(r, "strftime_now takes a short string");
    if (bound[0]->size > 0) memcpy(format, bound[0]->text, bound[0]->size);
    format[bound[0]->size] = 0;
    if (!localtime_r(&now, &parts)) return tn_jj_fail(r, "strftime_now: the time is out of range");
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    size_t size = strftime(text, sizeof text, format, &parts);
#pragma GCC diagnostic pop
    return tn_jj_copy(r, text, size, out);
}

static const jj_row functions[] = {
    {"range", call_range, "start stop step", 1},      {"dict", call_dict, NULL, 0},
    {"namespace", call_namespace, NULL, 0},           {"raise_exception", call_raise_exception, "message", 1},
    {"strftime_now", call_strftime_now, "format", 1},
};

const jj_row *tn_jj_find_function(const char *name) {
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (!strcmp(functions[i].name, name)) return &functions[i];
    return NULL;
}
