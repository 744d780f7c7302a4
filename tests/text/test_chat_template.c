/* test_chat_template.c — promises of chat templates: tests/golden/templates.json holds what the jinja2 package makes of
 * templates, conversations, expressions and mistakes (ref_template.py); what it refuses has to be refused here
 * with a place. The rest is about limits and memory. */
#include "test_support.h"

#include <time.h>

#include "json_tree.h"
#include "text/text_common.h"
#include "trunnion/text.h"

static tn_chat_template *compile(const char *source) {
    tn_chat_template *t;
    assert_ok(tn_chat_template_new(source, strlen(source), &t));
    return t;
}

/* Renders with variables in JSON; "" with *status set when that fails. The text is the caller's. */
static tn_bytes render(const char *source, const char *json, const tn_chat_template_options *o, tn_status *status) {
    tn_bytes out = {0};
    tn_chat_template *t;
    *status = tn_chat_template_new(source, strlen(source), &t);
    if (*status != TN_OK) return out;
    *status = tn_chat_template_render(t, json, json ? strlen(json) : 0, o, &out);
    tn_chat_template_free(t);
    return out;
}

static void assert_renders(const char *source, const char *json, const char *want) {
    tn_status status;
    tn_bytes out = render(source, json, NULL, &status);
    assert_ok(status);
    assert_string_equal(out.data, want);
    tn_bytes_free(&out);
}

static void assert_refuses(const char *source, const char *json, tn_status kind, const char *words) {
    tn_status status;
    tn_bytes out = render(source, json, NULL, &status);
    assert_int_equal(status, kind);
    assert_text_has(tn_error(), words);
    assert_int_equal(out.size, 0);
    tn_bytes_free(&out);
}

/* ---- beside jinja2 ----------------------------------------------------------------------------------------------- */

/* A value of the golden file as JSON text. */
static void json_of(const tn_json *v, tn_str *out) {
    tn_json_writer w = {.out = out};
    out->length = 0;
    write_json_value(&w, v);
    assert_false(out->failed);
}

static bool case_agrees(const tn_json *root, const tn_json *c, tn_str *json) {
    const char *name = tn_json_string(tn_json_get(c, "template"), NULL);
    const tn_json *variables = tn_json_get(root, "values");
    const char *source = tn_json_string(tn_json_get(c, "source"), NULL);
    if (name) {
        source = tn_json_string(tn_json_get(tn_json_get(root, "templates"), name), NULL);
        const char *title = tn_json_string(tn_json_get(c, "variables"), "");
        variables = tn_json_get(tn_json_get(root, "conversations"), title);
    }
    assert_non_null(source);
    assert_non_null(variables);
    json_of(variables, json);

    tn_chat_template_options o = TN_CHAT_TEMPLATE_DEFAULTS;
    o.now = tn_json_int(tn_json_get(tn_json_get(root, "provenance"), "now"), 0);
    const char *want = tn_json_string(tn_json_get(c, "text"), NULL);
    tn_status status;
    tn_bytes out = render(source, tn_str_text(json), &o, &status);
    bool agrees = want ? status == TN_OK && !strcmp(out.data, want)
                       : status != TN_OK && strncmp(tn_error(), "chat template", 13) == 0;
    if (!agrees)
        print_error("%s\n  jinja2: %s\n  ours:   %s\n", tn_json_string(tn_json_get(c, "name"), ""),
                    want ? want : tn_json_string(tn_json_get(c, "error"), ""), status == TN_OK ? out.data : tn_error());
    tn_bytes_free(&out);
    return agrees;
}

static void every_case_agrees_with_jinja(void **state) {
    (void)state;
    enum { LEAST = 600 }; /* so that a file that lost its cases does not pass */
    char *text;
    size_t size, wrong = 0;
    tn_json_doc *doc;
    tn_str json = {0};
    setenv("TZ", "UTC", 1);
    tzset();
    assert_ok(tn_file_read("tests/golden/templates.json", &text, &size, 1 << 24));
    assert_ok(tn_json_parse(text, size, &doc));
    const tn_json *cases = tn_json_get(tn_json_root(doc), "cases");
    for (size_t i = 0; i < tn_json_length(cases); i++)
        wrong += !case_agrees(tn_json_root(doc), tn_json_at(cases, i), &json);
    assert_true(tn_json_length(cases) >= LEAST);
    assert_int_equal(wrong, 0);
    tn_str_free(&json);
    tn_json_free(doc);
    tn_mem_free(text);
}

/* ---- conversations ----------------------------------------------------------------------------------------------- */

static tn_tokenizer *small_tokenizer(void) {
    static const tn_text_slice tokens[] = {{"<s>", 3}, {"</s>", 4}, {"a", 1}};
    static const int32_t types[] = {TN_TOKEN_CONTROL, TN_TOKEN_CONTROL, TN_TOKEN_NORMAL};
    tn_vocabulary v = TN_VOCABULARY_DEFAULTS;
    v.model = "gpt2";
    v.count = 3;
    v.tokens = tokens;
    v.types = types;
    v.special[0] = 0;
    v.special[1] = 1;
    v.add_bos = v.add_eos = v.add_space_prefix = 0;
    tn_tokenizer *t;
    assert_ok(tn_tokenizer_new(&v, &t));
    return t;
}

static void a_conversation_is_rendered(void **state) {
    (void)state;
    const tn_chat_message messages[] = {{"system", "be \"brief\""}, {"user", "hi\n\xff"}};
    tn_tokenizer *tokenizer = small_tokenizer();
    tn_chat_template *t =
        compile("{{ bos_token }}{% for m in messages %}[{{ m.role }}: {{ m.content }}]{% endfor %}"
                "{% if add_generation_prompt %}>{% endif %}{{ tools is none }}{{ unk_token is defined }}{{ extra }}");
    tn_chat chat = TN_CHAT_DEFAULTS;
    chat.messages = messages;
    chat.count = 2;
    chat.add_generation_prompt = true;
    chat.tokenizer = tokenizer;
    chat.variables = "{\"extra\": 5}";
    tn_bytes out = {0};
    assert_ok(tn_bytes_append(&out, "before ", 7));
    assert_ok(tn_chat_template_apply(t, &chat, NULL, &out));
    assert_string_equal(out.data, "before <s>[system: be \"brief\"][user: hi\n\xff]>TrueFalse5");

    chat = (tn_chat)TN_CHAT_DEFAULTS;
    out.size = 0;
    assert_ok(tn_chat_template_apply(t, &chat, NULL, &out));
    assert_string_equal(out.data, "TrueFalse");

    chat.variables = "{\"messages\": [{\"role\": \"tool\", \"content\": 1}]}"; /* takes the place of what is there */
    out.size = 0;
    assert_ok(tn_chat_template_apply(t, &chat, NULL, &out));
    assert_string_equal(out.data, "[tool: 1]TrueFalse");

    const tn_chat_message half[] = {{"user", NULL}};
    chat = (tn_chat)TN_CHAT_DEFAULTS;
    chat.messages = half;
    chat.count = 1;
    assert_int_equal(tn_chat_template_apply(t, &chat, NULL, &out), TN_ERR_ARGUMENT);
    assert_int_equal(tn_chat_template_apply(t, NULL, NULL, &out), TN_ERR_ARGUMENT);
    tn_chat o = {0};
    assert_int_equal(tn_chat_template_apply(t, &o, NULL, &out), TN_ERR_ARGUMENT);
    tn_bytes_free(&out);
    tn_chat_template_free(t);
    tn_chat_template_free(NULL);
    tn_tokenizer_free(tokenizer);
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

static void failures_name_their_place(void **state) {
    (void)state;
    assert_refuses("a\n  {{ n | nope }}", "{}", TN_ERR_FORMAT, "line 2, column 10: unknown filter \"nope\"");
    assert_refuses("\xc3\xa9{% if %}", "{}", TN_ERR_FORMAT, "line 1, column 8: expected a value, not %}");
    assert_refuses("{% for i in x %}\n\n", "{}", TN_ERR_FORMAT, "line 2, column 1: expected endfor, not the end");
    assert_refuses("\n\n{{ a.b }}", "{}", TN_ERR_FORMAT, "line 3, column 6: attribute \"b\" of an undefined value");
    assert_refuses("{{ 1 + 'a' }}", "{}", TN_ERR_FORMAT, "column 6: an integer and a string cannot be added");
    assert_refuses("{{ raise_exception('my words') }}", "{}", TN_ERR_ARGUMENT, "chat template: my words");
    assert_refuses("{{ x", "{}", TN_ERR_FORMAT, "line 1, column 1: {{ without }}");
}

static void variables_must_be_an_object(void **state) {
    (void)state;
    assert_renders("{{ a }}{{ b.c[1] }}", " {\"a\": \"\\u00e9\\ud83d\\ude00\\n\", \"b\": {\"c\": [1, -2.5e0]}} ",
                   "é😀\n-2.5");
    assert_renders("x", NULL, "x");
    assert_refuses("x", "[]", TN_ERR_ARGUMENT, "a list; expected an object");
    assert_refuses("x", "{\"a\": }", TN_ERR_FORMAT, "byte 6: expected a value");
    assert_refuses("x", "{\"a\": 1} 2", TN_ERR_FORMAT, "byte 9: unexpected text");
    assert_refuses("x", "{\"a\": 01}", TN_ERR_FORMAT, "byte");
    assert_refuses("x", "{\"a\": \"b", TN_ERR_FORMAT, "unterminated");
    assert_refuses("x", "{\"a\": 99999999999999999999}", TN_ERR_FORMAT, "too large");
    assert_refuses("x", "", TN_ERR_FORMAT, "byte 0");
}

/* ---- limits ------------------------------------------------------------------------------------------------------ */

static void endless_templates_are_stopped(void **state) {
    (void)state;
    static const char *const endless[] = {
        "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}{% "
        "endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% macro f(n) %}{{ f(n + 1) }}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
        "{{ 'a' * 99999999999 }}",
        "{{ [0] * 99999999999 }}",
        "{% set ns = namespace(s='aaaaaaaaaaaaaaaa') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor "
        "%}",
        "{% set ns = namespace(s='aaaaaaaaaaaaaaaa') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor "
        "%}",
        "{% set ns = namespace(s=[1]) %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{% set ns = namespace(s=[]) %}{% for i in range(5000) %}{% set ns.s = [ns.s] %}{% endfor %}{{ ns.s }}",
        "{% set ns = namespace(s=[]) %}{% for i in range(5000) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s == "
        "ns.s[0] }}",
        "{% set ns = namespace(s=[]) %}{% for i in range(60) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s | "
        "tojson }}",
        "{% set ns = namespace() %}{% set ns.me = ns %}{{ ns }}",
        "{% for i in range(99999) %}{{ 'a' * 100000 }}{% endfor %}",
        "{{ ('a' * 100000) | replace('', 'b' * 100000) }}",
        "{{ ('a' * 5000000).strip('b' * 5000000 ~ 'a') }}",
        "{{ ('a' * 5000000) | trim('b' * 5000000 ~ 'a') }}",
        "{{ ('\n' * 100000) | indent(1000, true, true) }}",
        "{{ (['a'] * 100000) | join('b' * 100000) }}",
        "{% set x = 'a' * 1000000 %}{% for i in range(99999) %}{% if x[:-1] == x[1:] %}{% endif %}{% endfor %}",
        "{% set x = 'a' * 1000000 %}{% for i in range(99999) %}{{ x | length }}{{ x | lower | length }}{% endfor %}",
    };
    tn_chat_template_options o = TN_CHAT_TEMPLATE_DEFAULTS;
    o.max_steps = 1000000 / test_every(5, 10);
    o.max_memory = 16 << 20;
    for (size_t i = 0; i < TN_COUNT(endless); i++) {
        tn_status status;
        tn_bytes out = render(endless[i], "{}", &o, &status);
        if (status != TN_ERR_FORMAT && status != TN_ERR_MEMORY) fail_msg("%s was not stopped", endless[i]);
        assert_int_equal(out.size, 0);
        tn_bytes_free(&out);
    }
}

/* A template of one text many times, with another behind. */
static char *many(const char *text, size_t times, const char *end) {
    size_t size = strlen(text);
    char *source = malloc(times * size + strlen(end) + 1);
    assert_non_null(source);
    for (size_t i = 0; i < times; i++)
        memcpy(source + i * size, text, size);
    strcpy(source + times * size, end);
    return source;
}

static void deep_templates_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *text, *end;
    } deep[] = {
        {"{{ (", ""},      {"(", ""},           {"{% if x %}", ""},
        {"{{ [", ""},      {"{% if not ", ""},  {"{% for a in b %}", ""},
        {"{{ - ", "1 }}"}, {"{% set x %}", ""}, {"{{ {1:", ""},
        {"{{ a[", ""},
    };
    for (size_t i = 0; i < TN_COUNT(deep); i++) {
        char *inner =
            many(deep[i].text + (deep[i].text[0] == '{' && deep[i].text[1] == '{' ? 3 : 0), 100000, deep[i].end);
        char *source = malloc(strlen(inner) + 8);
        assert_non_null(source);
        sprintf(source, "%s%s", deep[i].text[1] == '%' ? "" : "{{ ", inner);
        tn_chat_template *t;
        assert_int_equal(tn_chat_template_new(source, strlen(source), &t), TN_ERR_FORMAT);
        assert_text_has(tn_error(), "line 1");
        free(source);
        free(inner);
    }
    char *sum = many("1 + ", 100000, "1 }}"), *source = malloc(strlen(sum) + 8);
    assert_non_null(source);
    sprintf(source, "{{ %s", sum);
    assert_refuses(source, "{}", TN_ERR_FORMAT, "nested more than");
    free(source);
    free(sum);
    char *json = many("[", 100000, ""), *object = malloc(strlen(json) + 16);
    assert_non_null(object);
    sprintf(object, "{\"a\":%s", json);
    assert_refuses("x", object, TN_ERR_FORMAT, "too deep");
    free(object);
    free(json);
}

static void a_long_chain_of_elifs_is_no_depth(void **state) {
    (void)state;
    char *chain = many("{% elif 0 %}b", 2000, "{% else %}c{% endif %}"), *source = malloc(strlen(chain) + 32);
    assert_non_null(source);
    sprintf(source, "{%% if 0 %%}a%s", chain);
    assert_renders(source, "{}", "c");
    free(source);
    free(chain);
}

static void failed_allocations_leave_nothing_behind(void **state) {
    (void)state;
    static const char source[] =
        "{% macro f(a, b=2) %}{{ a ~ b }}{% endmacro %}{% set ns = namespace(x=[1]) %}"
        "{% for k, v in d.items() if k != 'z' %}{% set ns.x = ns.x + [v] %}{{ f(k, b=v) | upper }}"
        "{% endfor %}{{ ns.x | map('string') | join(',') | replace(',', ';') }}{{ d | tojson(indent=1) }}"
        "{% set s %}{{ 'a b'.split() }}{% endset %}{{ s | indent }}{{ [3, 1] | sort | first }}{{ s[::-1] }}";
    static const char json[] = "{\"d\": {\"a\": 1, \"b\": [true, null, 2.5], \"z\": \"x\"}}";
    int64_t before = tn_txt_live_blocks();
    for (int64_t n = 1;; n++) {
        tn_status status;
        tn_txt_fail_at(n);
        tn_bytes out = render(source, json, NULL, &status);
        tn_txt_fail_at(0);
        if (status == TN_OK) assert_text_has(out.data, "A1B[TRUE, NONE, 2.5]1;1;[True; None; 2.5]{\n \"a\": 1");
        tn_bytes_free(&out);
        assert_int_equal(tn_txt_live_blocks(), before);
        if (status == TN_OK) break;
        assert_int_equal(status, TN_ERR_MEMORY);
        assert_true(n < 10000);
    }
}

static void wrong_arguments_are_refused(void **state) {
    (void)state;
    tn_chat_template *t;
    tn_bytes out = {0};
    assert_int_equal(tn_chat_template_new(NULL, 3, &t), TN_ERR_ARGUMENT);
    assert_int_equal(tn_chat_template_new("x", 1, NULL), TN_ERR_ARGUMENT);
    assert_ok(tn_chat_template_new(NULL, 0, &t));
    assert_ok(tn_chat_template_render(t, NULL, 0, NULL, &out));
    assert_string_equal(out.data, "");
    tn_chat_template_options o = {0};
    assert_int_equal(tn_chat_template_render(t, NULL, 0, &o, &out), TN_ERR_ARGUMENT);
    assert_int_equal(tn_chat_template_render(t, NULL, 0, NULL, NULL), TN_ERR_ARGUMENT);
    assert_int_equal(tn_chat_template_render(NULL, NULL, 0, NULL, &out), TN_ERR_ARGUMENT);
    tn_bytes_free(&out);
    tn_chat_template_free(t);
}

static void numbers_have_points_in_every_locale(void **state) {
    (void)state;
    test_enter_comma_locale();
    assert_renders("{{ 0.5 + a }} {{ '1.5' | float }} {{ a | round(1) }} {{ [a] | tojson }}", "{\"a\": 0.25}",
                   "0.75 1.5 0.2 [0.25]");
    setlocale(LC_ALL, "C");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_case_agrees_with_jinja),      cmocka_unit_test(a_conversation_is_rendered),
        cmocka_unit_test(failures_name_their_place),         cmocka_unit_test(variables_must_be_an_object),
        cmocka_unit_test(endless_templates_are_stopped),     cmocka_unit_test(deep_templates_are_refused),
        cmocka_unit_test(a_long_chain_of_elifs_is_no_depth), cmocka_unit_test(failed_allocations_leave_nothing_behind),
        cmocka_unit_test(wrong_arguments_are_refused),       cmocka_unit_test(numbers_have_points_in_every_locale),
    };
    return cmocka_run_group_tests_name("template", tests, NULL, NULL);
}
