/* test_onnx_regex.c — promises of onnx/onnx_regex.c: RE2's syntax, and the same answers as the C library's engine
 * where both have the same syntax. */
#include "test_support.h"

#include <regex.h>

#include "onnx/onnx.h"

static onnx_text text_of(const char *t) { return (onnx_text){t, strlen(t)}; }

static bool matches(const char *pattern, const char *text) {
    onnx_regex *r = NULL;
    assert_ok(onnx_regex_new(text_of(pattern), &r));
    bool found = onnx_regex_matches(r, text_of(text));
    assert_true(onnx_regex_matches(r, text_of(text)) == found);
    onnx_regex_free(r);
    return found;
}

static void the_whole_text_has_to_match(void **state) {
    (void)state;
    static const struct {
        const char *pattern, *yes, *no;
    } rows[] = {
        {"", "", "a"},
        {"abc", "abc", "abcd"},
        {"a|bc|", "bc", "abc"},
        {"a.c",
         "a\xc3\xa9"
         "c",
         "a\nc"},
        {"[a-c^-]+", "ab-^", "d"},
        {"[^a-c]", "d", "b"},
        {"[]a]+", "]a", "b"},
        {"\\d{3}-\\D\\w\\W\\s\\S", "123-ab! x", "123-4b! x"},
        {"[[:alpha:]]+[[:^digit:]]", "ab.", "ab1"},
        {"(?:ab)*?c", "ababc", "abac"},
        {"(?P<name>x)(?<other>y)", "xy", "x"},
        {"a{2}", "aa", "aaa"},
        {"a{2,}", "aaaa", "a"},
        {"a{0}b", "b", "ab"},
        {"(a{1,2}){2}", "aaaa", "aaaaa"},
        {"(a*)*b?", "aaab", "ba"},
        {"a{,2}", "a{,2}", "aa"},
        {"^\\bab\\b$", "ab", "a"},
        {"a\\Bb", "ab", "a b"},
        {"\\x41\\x{1F600}\\t", "A\xf0\x9f\x98\x80\t", "A"},
        {"\\.\\*\\[", ".*[", "aaa"},
        {"[\\w.]+@[a-z.]+\\.(com|net)", "a.b@c.net", "a.b@c.org"},
    };
    for (size_t i = 0; i < TN_COUNT(rows); i++) {
        if (!matches(rows[i].pattern, rows[i].yes)) fail_msg("'%s' does not match '%s'", rows[i].pattern, rows[i].yes);
        if (matches(rows[i].pattern, rows[i].no)) fail_msg("'%s' matches '%s'", rows[i].pattern, rows[i].no);
    }
}

static void wrong_patterns_are_refused(void **state) {
    (void)state;
    static const char *const wrong[] = {"(",   ")",      "a)",       "[a",   "[b-a]",
                                        "*a",  "a{3,2}", "a{1001}",  "\\",   "\\xZ1",
                                        "\\q", "(?i)a",  "[[:no:]]", "\\pL", "((a{999}){999}){99}"};
    for (size_t i = 0; i < TN_COUNT(wrong); i++) {
        onnx_regex *r = NULL;
        tn_status status = onnx_regex_new(text_of(wrong[i]), &r);
        if (status != TN_ERR_FORMAT && status != TN_ERR_UNSUPPORTED) fail_msg("'%s' gives %d", wrong[i], (int)status);
        assert_null(r);
    }
    char deep[1001] = "";
    memset(deep, '(', sizeof deep - 1);
    onnx_regex *r = NULL;
    assert_int_equal(onnx_regex_new(text_of(deep), &r), TN_ERR_UNSUPPORTED);
}

/* What takes others exponential time. */
static void no_pattern_is_slow(void **state) {
    (void)state;
    char text[2001];
    memset(text, 'a', sizeof text - 1);
    text[sizeof text - 1] = 0;
    assert_false(matches("(a*)*b", text));
    assert_false(matches("(a|a)*b", text));
    assert_false(matches("(a?){500}a{500}b", text));
}

static unsigned next_random(unsigned *seed) { return (*seed = *seed * 1664525u + 1013904223u) >> 16; }

/* A pattern in the syntax that both engines have. */
static void make_pattern(unsigned *seed, int depth, char *out, size_t size) {
    static const char *const atoms[] = {"a", "b", "c", ".", "[ab]", "[^a]", "ab", "[b-d]"};
    static const char *const repeats[] = {"", "", "", "*", "+", "?", "{2}", "{1,3}", "{0,1}", "{2,}"};
    size_t used = 0;
    out[0] = 0;
    unsigned parts = 1 + next_random(seed) % 3;
    for (unsigned i = 0; i < parts; i++) {
        char inner[200];
        snprintf(inner, sizeof inner, "%s", atoms[next_random(seed) % TN_COUNT(atoms)]);
        if (depth < 3 && next_random(seed) % 3 == 0) make_pattern(seed, depth + 1, inner, sizeof inner);
        const char *repeat = repeats[next_random(seed) % TN_COUNT(repeats)];
        const char *bar = i && next_random(seed) % 3 == 0 ? "|" : "";
        int n = snprintf(out + used, size - used, "%s(%s)%s", bar, inner, repeat);
        if (n < 0 || (size_t)n >= size - used) {
            out[used] = 0;
            return;
        }
        used += (size_t)n;
    }
}

static void answers_are_those_of_the_c_library(void **state) {
    (void)state;
    unsigned seed = 7;
    for (int round = 0; round < 400; round++) {
        char pattern[220], anchored[240];
        regex_t other;
        make_pattern(&seed, 0, pattern, sizeof pattern);
        snprintf(anchored, sizeof anchored, "^(%s)$", pattern);
        if (regcomp(&other, anchored, REG_EXTENDED | REG_NOSUB)) continue;
        for (int k = 0; k < 12; k++) {
            char text[12] = "";
            unsigned length = next_random(&seed) % 9;
            for (unsigned i = 0; i < length; i++)
                text[i] = (char)('a' + next_random(&seed) % 3);
            bool want = regexec(&other, text, 0, NULL, 0) == 0;
            if (matches(pattern, text) != want) fail_msg("'%s' and '%s': %d expected", pattern, text, want);
        }
        regfree(&other);
    }
}

static void allocations_may_fail(void **state) {
    (void)state;
    for (int64_t n = 1; n < 40; n++) {
        onnx_regex *r = NULL;
        tn_mem_fail_at(n);
        tn_status status = onnx_regex_new(text_of("(a|[b-d]){2,5}x*"), &r);
        tn_mem_fail_at(0);
        if (status == TN_OK) {
            onnx_regex_free(r);
            return;
        }
        assert_int_equal(status, TN_ERR_MEMORY);
        assert_null(r);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_whole_text_has_to_match), cmocka_unit_test(wrong_patterns_are_refused),
        cmocka_unit_test(no_pattern_is_slow),          cmocka_unit_test(answers_are_those_of_the_c_library),
        cmocka_unit_test(allocations_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
