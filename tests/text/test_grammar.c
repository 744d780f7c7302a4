/* test_grammar.c — promises of src/text/grammar.c: which texts a grammar allows, in whatever pieces they come; what is
 * refused; and that no grammar takes time or memory without a limit. */
#include "test_support.h"

#include <math.h>
#include <time.h>

#include "text/text_common.h"
#include "trunnion/text.h"

static tn_grammar *make(const char *source) {
    tn_grammar *g;
    assert_ok(tn_grammar_new(source, strlen(source), &g));
    return g;
}

typedef enum verdict { NO, PREFIX, WHOLE } verdict;

/* Whether the text fits, and may end there; cut: the bytes of a piece. */
static verdict judge(const tn_grammar *g, const char *text, size_t cut) {
    tn_grammar_state *s;
    tn_status status = TN_OK;
    size_t length = strlen(text);
    assert_ok(tn_grammar_state_new(g, NULL, &s));
    for (size_t at = 0; at < length && status == TN_OK; at += cut)
        status = tn_grammar_accept_bytes(s, text + at, length - at < cut ? length - at : cut);
    verdict v = status != TN_OK ? NO : tn_grammar_may_end(s) ? WHOLE : PREFIX;
    tn_grammar_state_free(s);
    return v;
}

#define JSON                                                                                                       \
    "root ::= ws value\n"                                                                                          \
    "value ::= object | array | string | number | \"true\" | \"false\" | \"null\"\n"                               \
    "object ::= \"{\" ws (pair (\",\" ws pair)*)? \"}\" ws\n"                                                      \
    "pair ::= string \":\" ws value\n"                                                                             \
    "array ::= \"[\" ws (value (\",\" ws value)*)? \"]\" ws\n"                                                     \
    "string ::= \"\\\"\" ([^\"\\\\\\x00-\\x1f] | \"\\\\\" ([\"\\\\/bfnrt] | \"u\" [0-9a-fA-F]{4}))* \"\\\"\" ws\n" \
    "number ::= \"-\"? (\"0\" | [1-9] [0-9]*) (\".\" [0-9]+)? ([eE] [-+]? [0-9]+)? ws\n"                           \
    "ws ::= [ \\t\\n]*\n"

static void texts_follow_the_grammar(void **state) {
    (void)state;
    static const struct {
        const char *grammar, *text;
        verdict v;
    } rows[] = {
        {"root ::= \"ab\" | \"ac\"", "ab", WHOLE},
        {"root ::= \"ab\" | \"ac\"", "a", PREFIX},
        {"root ::= \"ab\" | \"ac\"", "ad", NO},
        {"root ::= \"ab\" | \"ac\"", "abc", NO},
        {"root ::= \"\"", "", WHOLE},
        {"root ::= \"a\"* \"b\"+ \"c\"?", "bbc", WHOLE},
        {"root ::= \"a\"* \"b\"+ \"c\"?", "aaab", WHOLE},
        {"root ::= \"a\"* \"b\"+ \"c\"?", "aac", NO},
        {"root ::= \"a\"{2,3}", "a", PREFIX},
        {"root ::= \"a\"{2,3}", "aaa", WHOLE},
        {"root ::= \"a\"{2,3}", "aaaa", NO},
        {"root ::= \"a\"{2}", "aa", WHOLE},
        {"root ::= \"a\"{2,}", "aaaaa", WHOLE},
        {"root ::= \"a\"{0}", "", WHOLE},
        {"root ::= (\"a\"?)*", "aaa", WHOLE},
        {"root ::= ((\"a\"*)*)*", "aaa", WHOLE},
        {"root ::= (\"ab\"{0,2} \"c\")+", "ababcc", WHOLE},
        {"root ::= [a-c]{2} [^a-c]", "bcx", WHOLE},
        {"root ::= [a-c]{2} [^a-c]", "bca", NO},
        {"root ::= [\\u00e0-\\u00ff]", "\xc3\xa9", WHOLE},
        {"root ::= [\\u00e0-\\u00ff]", "\xc3", PREFIX},
        {"root ::= [\\u00e0-\\u00ff]", "\xc3\x9f", NO},
        {"root ::= [^a]", "\xf0\x9f\x98\x80", WHOLE},
        {"root ::= [^a]", "\xed\xa0\x80", NO}, /* a surrogate */
        {"root ::= [\\u0020-\\U0010ffff]", "\xf4\x8f\xbf\xbf", WHOLE},
        {"root ::= [\\u0020-\\U0010ffff]", "\xf4\x90\x80\x80", NO},
        {"root ::= . .", "\xe2\x82\xac!", WHOLE},
        {"root ::= \"\xe2\x82\xac\"", "\xe2\x82\xac", WHOLE},
        {"root ::= pair\n# a remark\npair ::= \"x\" pair \"y\" |\n  \"z\"", "xxzyy", WHOLE},
        {"root ::= pair\npair ::= \"x\" pair \"y\" | \"z\"", "xxzy", PREFIX},
        {"root ::= (\n\"a\"\n|\n\"b\"\n) \"c\"", "bc", WHOLE},
        {JSON, "{\"a\": [1, -2.5e3, \"x\\u00e9\\n\"], \"b\": {}}", WHOLE},
        {JSON, "{\"a\": [1, -2.5e3", PREFIX},
        {JSON, "{\"a\": 01}", NO},
        {JSON, "[1,]", NO},
        {JSON, "\"\xc3\xa9 \xf0\x9f\x98\x80\"", WHOLE},
    };
    for (size_t i = 0; i < TN_COUNT(rows); i++) {
        tn_grammar *g = make(rows[i].grammar);
        for (size_t cut = 1; cut < 5; cut++) {
            verdict v = judge(g, rows[i].text, cut);
            if (v != rows[i].v)
                fail_msg("'%s' by %s in pieces of %zu: %d, not %d", rows[i].text, rows[i].grammar, cut, v, rows[i].v);
        }
        tn_grammar_free(g);
    }
}

static void wrong_grammars_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *source, *part;
    } rows[] = {
        {"", "'root' is not defined"},
        {"a ::= \"x\"", "'root' is not defined"},
        {"root ::= b", "'b' is not defined"},
        {"root ::= \"x", "ends inside quotes"},
        {"root ::= [a-", "ends inside"},
        {"root ::= (\"a\"", "expected )"},
        {"root = \"a\"", "expected ::="},
        {"root ::= \"a\"\nroot ::= \"b\"", "line 2, byte"},
        {"root ::= \"\\q\"", "unknown escape"},
        {"root ::= \"\\ud800\"", "no such character"},
        {"root ::= [z-a]", "ends before it begins"},
        {"root ::= \"a\"{3,2}", "end before they begin"},
        {"root ::= \"a\"{2000}", "1000 repetitions"},
        {"root ::= root \"a\" | \"b\"", "'root' is left-recursive"},
        {"root ::= a\na ::= b? c\nb ::= \"x\"\nc ::= a", "left-recursive"},
        {"root ::= (root)* \"a\"", "left-recursive"},
        {"root ::= \"\xff\"", "not UTF-8"},
        {"root ::= \"a\" )", "expected an element"},
    };
    for (size_t i = 0; i < TN_COUNT(rows); i++) {
        tn_grammar *g;
        if (tn_grammar_new(rows[i].source, strlen(rows[i].source), &g) == TN_OK)
            fail_msg("%s is taken", rows[i].source);
        assert_null(g);
        assert_text_has(tn_error(), rows[i].part);
    }
}

/* Deep nesting needs a stack of ours and not the machine's; a text of many readings ends with an error. */
static void nothing_grows_without_a_limit(void **state) {
    (void)state;
    char parentheses[300] = "root ::= ";
    tn_grammar *g;
    tn_grammar_state *s;
    memset(parentheses + 9, '(', 200);
    assert_int_equal(tn_grammar_new(parentheses, strlen(parentheses), &g), TN_ERR_FORMAT);
    assert_text_has(tn_error(), "64 nested");
    g = make("root ::= \"[\" root \"]\" | \"x\"");
    assert_ok(tn_grammar_state_new(g, NULL, &s));
    tn_status status = TN_OK;
    for (int64_t i = 0; i < 1 << 22 && status == TN_OK; i++)
        status = tn_grammar_accept_bytes(s, "[", 1);
    assert_int_equal(status, TN_ERR_UNSUPPORTED);
    assert_text_has(tn_error(), "states");
    assert_ok(tn_grammar_state_reset(s));
    assert_ok(tn_grammar_accept_bytes(s, "[x]", 3));
    assert_true(tn_grammar_may_end(s));
    tn_grammar_state_free(s);
    tn_grammar_free(g);
    g = make("root ::= a a a a a a a a a a a a\na ::= (\"x\" | \"xx\" | \"xxx\" a?)*"); /* exponentially ambiguous */
    assert_ok(tn_grammar_state_new(g, NULL, &s));
    clock_t start = clock();
    for (int i = 0; i < 200 && tn_grammar_accept_bytes(s, "x", 1) == TN_OK; i++)
        continue;
    assert_true(clock() - start < 60 * CLOCKS_PER_SEC);
    tn_grammar_state_free(s);
    tn_grammar_free(g);
}

/* ---- JSON schemas ------------------------------------------------------------------------------------------------ */

static void answers_match_the_schema(void **state) {
    (void)state;
    static const struct {
        const char *schema, *text;
        verdict v;
    } rows[] = {
        {"{\"type\": \"integer\"}", "-12", WHOLE},
        {"{\"type\": \"integer\"}", "1.5", NO},
        {"{\"type\": [\"number\", \"null\"]}", "1.5e3", WHOLE},
        {"{\"type\": [\"number\", \"null\"]}", "null", WHOLE},
        {"true", "{\"x\": [1, {\"y\": null}]}", WHOLE},
        {"{}", "[]", WHOLE},
        {"{\"enum\": [\"a\\\"b\", 3, false, null]}", "\"a\\\"b\"", WHOLE},
        {"{\"enum\": [\"a\", 3, false, null]}", "3", WHOLE},
        {"{\"enum\": [\"a\", 3, false, null]}", "\"b\"", NO},
        {"{\"const\": 2.5}", "2.5", WHOLE},
        {"{\"type\": \"string\", \"minLength\": 2, \"maxLength\": 3}", "\"\xc3\xa9\xc3\xa9\"", WHOLE},
        {"{\"type\": \"string\", \"minLength\": 2, \"maxLength\": 3}", "\"a\"", NO},
        {"{\"type\": \"string\", \"maxLength\": 3}", "\"abcd\"", NO},
        {"{\"type\": \"array\", \"items\": {\"type\": \"integer\"}, \"minItems\": 1, \"maxItems\": 2}", "[1, 2]",
         WHOLE},
        {"{\"type\": \"array\", \"items\": {\"type\": \"integer\"}, \"minItems\": 1, \"maxItems\": 2}", "[]", NO},
        {"{\"type\": \"array\", \"items\": {\"type\": \"integer\"}, \"minItems\": 1, \"maxItems\": 2}", "[1,2,3]", NO},
        {"{\"type\": \"array\", \"maxItems\": 0}", "[]", WHOLE},
#define PERSON                                                                                                       \
    "{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"integer\"}, \"b\": {\"type\": \"string\"}, \"c\": " \
    "true},"                                                                                                         \
    " \"required\": [\"b\"], \"title\": \"t\"}"
        {PERSON, "{\"a\": 1, \"b\": \"x\", \"c\": []}", WHOLE},
        {PERSON, "{\"b\": \"x\"}", WHOLE},
        {PERSON, "{\"b\":\"x\",\"c\":1}", WHOLE},
        {PERSON, "{\"a\": 1}", NO},
        {PERSON, "{}", NO},
        {PERSON, "{\"d\": 1", NO},
        {"{\"properties\": {\"a\": true, \"b\": true}}", "{}", WHOLE},
        {"{\"properties\": {\"a\": true, \"b\": true}}", "{\"b\": 2}", WHOLE},
        {"{\"properties\": {\"a\": true, \"b\": true}}", "{\"a\": 2, \"b\": 2}", WHOLE},
        {"{\"properties\": {\"a\": true, \"b\": true}}", "{\"a\": 2,}", NO},
        {"{\"anyOf\": [{\"type\": \"null\"}, {\"$ref\": \"#/$defs/n\"}], \"$defs\": {\"n\": {\"type\": \"array\","
         " \"items\": {\"$ref\": \"#\"}}}}",
         "[null, [[], null]]", WHOLE},
    };
    tn_bytes text = {0};
    for (size_t i = 0; i < TN_COUNT(rows); i++) {
        tn_grammar *g;
        text.size = 0;
        assert_ok(tn_grammar_from_json_schema(rows[i].schema, strlen(rows[i].schema), &text));
        assert_ok(tn_grammar_new(text.data, text.size, &g));
        verdict v = judge(g, rows[i].text, 1);
        if (v != rows[i].v) fail_msg("%s by %s: %d, not %d; %s", rows[i].text, rows[i].schema, v, rows[i].v, text.data);
        tn_grammar_free(g);
    }
    tn_bytes_free(&text);
}

static void schemas_have_points_in_every_locale(void **state) {
    test_enter_comma_locale();
    answers_match_the_schema(state);
    setlocale(LC_ALL, "C");
}

static void schemas_that_cannot_be_enforced_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *schema, *part;
    } rows[] = {
        {"{", "JSON schema: "},
        {"7", "must be an object"},
        {"false", "must be an object, or true"},
        {"{\"type\": \"integer\", \"minimum\": 3}", "\"minimum\" is not supported"},
        {"{\"type\": \"string\", \"pattern\": \"a\"}", "\"pattern\" is not supported"},
        {"{\"type\": \"text\"}", "the type \"text\" is unknown"},
        {"{\"type\": 3}", "unknown"},
        {"{\"$ref\": \"#/$defs/x\"}", "leads nowhere"},
        {"{\"enum\": []}", "at least one entry"},
        {"{\"enum\": [[1]]}", "are not supported"},
        {"{\"properties\": {\"a\": true}, \"required\": [\"b\"]}", "\"b\" is required"},
        {"{\"type\": \"string\", \"maxLength\": 5000}", "from 0 to 1000"},
        {"{\"type\": \"string\", \"minLength\": 5, \"maxLength\": 3}", "at least 5 and at most 3"},
        {"{\"type\": \"array\", \"minItems\": 1, \"maxItems\": 0}", "at least 1 and at most 0"},
        {"{\"type\": \"object\", \"additionalProperties\": {}}", "must be true or false"},
    };
    tn_bytes text = {0};
    for (size_t i = 0; i < TN_COUNT(rows); i++) {
        if (tn_grammar_from_json_schema(rows[i].schema, strlen(rows[i].schema), &text) == TN_OK)
            fail_msg("%s is taken", rows[i].schema);
        assert_text_has(tn_error(), rows[i].part);
        assert_int_equal(text.size, 0);
    }
    tn_bytes_free(&text);
}

/* ---- tokens ------------------------------------------------------------------------------------------------------ */

static tn_tokenizer *make_tokenizer(void) {
    static const char *const words[] = {"<e>", "a", "b", "ab", "ba", "abc", "c"};
    tn_text_slice tokens[TN_COUNT(words)];
    int32_t types[TN_COUNT(words)] = {3, 1, 1, 1, 1, 1, 1};
    tn_vocabulary v = TN_VOCABULARY_DEFAULTS;
    tn_tokenizer *t;
    for (size_t i = 0; i < TN_COUNT(words); i++)
        tokens[i] = (tn_text_slice){words[i], strlen(words[i])};
    v.model = "gpt2";
    v.count = TN_COUNT(words);
    v.tokens = tokens;
    v.types = types;
    v.special[TN_SPECIAL_EOS] = 0;
    assert_ok(tn_tokenizer_new(&v, &t));
    return t;
}

static void the_filter_leaves_the_tokens_that_fit(void **state) {
    (void)state;
    const bool ends[7] = {true};
    tn_tokenizer *t = make_tokenizer();
    tn_grammar *g = make("root ::= (\"ab\")+ \"c\"?");
    tn_grammar_state *s;
    bool allowed;
    assert_ok(tn_grammar_state_new(g, t, &s));
    const struct {
        int32_t accept;
        const char *fits; /* one letter a token */
    } steps[] = {{-1, ".a.a.a."}, {1, "..b.b.."}, {4, "..b.b.."}, {2, "ea.a.ac"}, {6, "e......"}};
    for (size_t i = 0; i < TN_COUNT(steps); i++) {
        float logits[7] = {0};
        if (steps[i].accept >= 0) assert_ok(tn_grammar_accept(s, steps[i].accept));
        assert_ok(tn_grammar_filter(s, ends, logits, 7));
        for (int32_t id = 0; id < 7; id++) {
            bool fits = steps[i].fits[id] != '.';
            if (fits != (logits[id] == 0)) fail_msg("step %zu: token %d", i, (int)id);
            assert_ok(tn_grammar_allows(s, id, &allowed));
            if (id > 0) assert_int_equal(allowed, fits);
        }
    }
    assert_int_equal(tn_grammar_accept(s, 1), TN_ERR_ARGUMENT);
    assert_true(tn_grammar_may_end(s));
    tn_grammar_state_free(s);
    tn_grammar_free(g);
    tn_tokenizer_free(t);
}

static void failed_allocations_leave_nothing_behind(void **state) {
    (void)state;
    int64_t before = tn_txt_live_blocks();
    for (int64_t n = 1;; n++) {
        tn_grammar *g = NULL;
        tn_grammar_state *s = NULL;
        tn_txt_fail_at(n);
        tn_status status = tn_grammar_new(JSON, strlen(JSON), &g);
        if (status == TN_OK) status = tn_grammar_state_new(g, NULL, &s);
        if (status == TN_OK) status = tn_grammar_accept_bytes(s, "{\"a\": [1", 8);
        tn_txt_fail_at(0);
        tn_grammar_state_free(s);
        tn_grammar_free(g);
        assert_int_equal(tn_txt_live_blocks(), before);
        if (status == TN_OK) break;
        assert_int_equal(status, TN_ERR_MEMORY);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_follow_the_grammar),
        cmocka_unit_test(wrong_grammars_are_refused),
        cmocka_unit_test(nothing_grows_without_a_limit),
        cmocka_unit_test(answers_match_the_schema),
        cmocka_unit_test(schemas_have_points_in_every_locale),
        cmocka_unit_test(schemas_that_cannot_be_enforced_are_refused),
        cmocka_unit_test(the_filter_leaves_the_tokens_that_fit),
        cmocka_unit_test(failed_allocations_leave_nothing_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
