/* test_json.c — promises of base/json.c: what is read, what is refused and where, and
 * that writing and reading agree. */
#include "test_support.h"

#include <float.h>
#include <math.h>

#include "json_tree.h"

static tn_json_doc *parse(const char *text) {
    tn_json_doc *doc;
    assert_ok(tn_json_parse(text, strlen(text), &doc));
    return doc;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

static void values_of_every_kind_are_read(void **state) {
    (void)state;
    tn_json_doc *doc =
        parse(" {\"n\":null, \"t\":true,\"f\":false,\r\n\t\"i\":-12,\"d\":2.5e-1,\"s\":\"a\\nb\",\"o\":{\"k\":[]},"
              "\"a\":[1,[2,3],{\"x\":4}]} ");
    const tn_json *root = tn_json_root(doc);
    assert_int_equal(tn_json_kind_of(root), TN_JSON_OBJECT);
    assert_int_equal(tn_json_length(root), 8);
    assert_int_equal(tn_json_kind_of(tn_json_get(root, "n")), TN_JSON_NULL);
    assert_true(tn_json_bool(tn_json_get(root, "t"), false));
    assert_false(tn_json_bool(tn_json_get(root, "f"), true));
    assert_int_equal(tn_json_int(tn_json_get(root, "i"), 0), -12);
    assert_true(tn_json_number(tn_json_get(root, "d"), 0) == 0.25);
    assert_string_equal(tn_json_string(tn_json_get(root, "s"), ""), "a\nb");
    assert_int_equal(tn_json_length(tn_json_get(tn_json_get(root, "o"), "k")), 0);
    const tn_json *array = tn_json_get(root, "a");
    assert_int_equal(tn_json_length(array), 3);
    assert_int_equal(tn_json_int(tn_json_at(tn_json_at(array, 1), 1), 0), 3);
    assert_int_equal(tn_json_int(tn_json_get(tn_json_at(array, 2), "x"), 0), 4);
    assert_string_equal(tn_json_key(root, 7), "a");
    assert_null(tn_json_key(root, 8));
    assert_null(tn_json_at(array, 3));
    tn_json_free(doc);
    tn_json_free(NULL);
    doc = parse("\xEF\xBB\xBF[7]"); /* a byte order mark */
    assert_int_equal(tn_json_int(tn_json_at(tn_json_root(doc), 0), 0), 7);
    tn_json_free(doc);
}

static void absent_values_give_the_fallback(void **state) {
    (void)state;
    tn_json_doc *doc = parse("{\"s\":\"7\"}");
    const tn_json *string = tn_json_get(tn_json_root(doc), "s");
    const tn_json *absent = tn_json_get(tn_json_get(string, "x"), "y");
    assert_null(absent);
    assert_int_equal(tn_json_int(absent, 5), 5);
    assert_int_equal(tn_json_int(string, 5), 5);
    assert_true(tn_json_number(string, 0.5) == 0.5);
    assert_true(tn_json_bool(string, true));
    assert_string_equal(tn_json_string(absent, "none"), "none");
    assert_int_equal(tn_json_length(absent), 0);
    assert_int_equal(tn_json_kind_of(absent), TN_JSON_NULL);
    assert_null(tn_json_key(string, 0));
    tn_json_free(doc);
}

static void last_of_equal_keys_wins(void **state) {
    (void)state;
    tn_json_doc *doc = parse("{\"a\":1,\"b\":2,\"a\":3}");
    assert_int_equal(tn_json_int(tn_json_get(tn_json_root(doc), "a"), 0), 3);
    assert_int_equal(tn_json_length(tn_json_root(doc)), 3);
    tn_json_free(doc);
}

static void strings_are_unescaped(void **state) {
    (void)state;
    tn_json_doc *doc =
        parse("[\"\\\"\\\\\\/\\b\\f\\n\\r\\t\",\"\\u0041\\u00e9\\u20AC\\ud83d\\uDE00\",\"\xC3\xA9\xF0\x9F\x98\x80\","
              "\"a\\u0000b\",{\"k\\u0000\":1}]");
    const tn_json *root = tn_json_root(doc);
    assert_string_equal(tn_json_string(tn_json_at(root, 0), ""), "\"\\/\b\f\n\r\t");
    assert_string_equal(tn_json_string(tn_json_at(root, 1), ""), "A\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80");
    assert_string_equal(tn_json_string(tn_json_at(root, 2), ""), "\xC3\xA9\xF0\x9F\x98\x80");
    assert_int_equal(tn_json_length(tn_json_at(root, 3)), 3);
    assert_memory_equal(tn_json_string(tn_json_at(root, 3), ""), "a\0b", 4);
    assert_null(tn_json_get(tn_json_at(root, 4), "k"));
    tn_json_free(doc);
}

static void integers_are_exact_or_the_fallback(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int64_t value; /* 77 is the fallback */
    } cases[] = {
        {"9223372036854775807", INT64_MAX},
        {"-9223372036854775808", INT64_MIN},
        {"9223372036854775808", 77},
        {"-9223372036854775809", 77},
        {"9007199254740993", 9007199254740993},
        {"1e3", 1000},
        {"5.0", 5},
        {"-0", 0},
        {"1.5", 77},
        {"1e300", 77},
        {"123456789012345678901234567890", 77},
        {"0", 0},
    };
    for (size_t i = 0; i < TN_COUNT(cases); i++) {
        tn_json_doc *doc = parse(cases[i].text);
        assert_int_equal(tn_json_int(tn_json_root(doc), 77), cases[i].value);
        tn_json_free(doc);
    }
}

static void doubles_are_correctly_rounded(void **state) {
    (void)state;
    static const struct {
        const char *text;
        double value;
    } cases[] = {
        {"0.1", 0.1},
        {"-0", -0.0},
        {"-0.0", -0.0},
        {"1E+2", 100},
        {"4.9e-324", 0x1p-1074},
        {"1e-400", 0},
        {"1.7976931348623157e308", DBL_MAX},
        {"9007199254740993", 9007199254740992.0},
        {"2.2250738585072011e-308", 0x0.fffffffffffffp-1022},
        {"0.500000000000000166533453693773481063544750213623046875", 0x1.0000000000002p-1}, /* a tie goes to even */
    };
    for (size_t i = 0; i < TN_COUNT(cases); i++) {
        tn_json_doc *doc = parse(cases[i].text);
        double v = tn_json_number(tn_json_root(doc), 77);
        if (memcmp(&v, &cases[i].value, sizeof v) != 0) fail_msg("%s became %a", cases[i].text, v);
        tn_json_free(doc);
    }
}

/* ---- refusing ---------------------------------------------------------------------------------------------------- */

static void hostile_texts_are_refused_at_the_right_byte(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int offset;
    } cases[] = {
        {"", 0},
        {" ", 1},
        {"[", 1},
        {"{", 1},
        {"]", 0},
        {"}", 0},
        {"[1", 2},
        {"[1,", 3},
        {"[1,]", 3},
        {"[,1]", 1},
        {"[1 2]", 3},
        {"[1}", 2},
        {"{\"a\":1]", 6},
        {"{\"a\"}", 4},
        {"{\"a\":}", 5},
        {"{\"a\":1,}", 7},
        {"{a:1}", 1},
        {"{1:1}", 1},
        {"{'a':1}", 1},
        {"{\"a\" 1}", 5},
        {"{\"a\":1 \"b\":2}", 7},
        {"{,}", 1},
        {"1 2", 2},
        {"[] []", 3},
        {"nul", 0},
        {"nulL", 0},
        {"True", 0},
        {"truefalse", 4},
        {"NaN", 0},
        {"Infinity", 0},
        {"-Infinity", 1},
        {"+1", 0},
        {"01", 1},
        {"-01", 2},
        {"00", 1},
        {"-", 1},
        {"1.", 2},
        {".5", 0},
        {"1.e5", 2},
        {"1e", 2},
        {"1e+", 3},
        {"1E-x", 3},
        {"0x10", 1},
        {"1_000", 1},
        {"1e999", 0},
        {"-1e999", 0},
        {"--1", 1},
        {"\"", 0},
        {"\"abc", 0},
        {"\"\\\"", 0},
        {"\"\\", 2},
        {"\"\\x41\"", 2},
        {"\"\\u12\"", 3},
        {"\"\\u12G4\"", 3},
        {"\"\\uD800\"", 7},
        {"\"\\uDC00\"", 7},
        {"\"\\uD800\\u0041\"", 9},
        {"\"\\uD800\\n\"", 8},
        {"\"\n\"", 1},
        {"\"\t\"", 1},
        {"\"\x1f\"", 1},
        {"\"a\x80\"", 2},
        {"\"\xC0\xAF\"", 1},
        {"\"\xC1\xBF\"", 1},
        {"\"\xE0\x80\x80\"", 1},
        {"\"\xED\xA0\x80\"", 1},
        {"\"\xF0\x80\x80\x80\"", 1},
        {"\"\xF4\x90\x80\x80\"", 1},
        {"\"\xF5\x80\x80\x80\"", 1},
        {"\"\xC3\"", 1},
        {"\"\xE2\x82\"", 1},
        {"\"\xFF\"", 1},
        {"\xEF\xBB\xBF\xEF\xBB\xBF{}", 3},
        {"\xFF\xFE[", 0},
        {"// x\n1", 0},
        {"/* x */ 1", 0},
        {"[1]#", 3},
        {"\f1", 0},
        {"\xC2\xA0"
         "1",
         0},
        {"\"a\" \x0b", 4},
    };
    for (size_t i = 0; i < TN_COUNT(cases); i++) {
        tn_json_doc *doc = (tn_json_doc *)&doc;
        char expected[32];
        snprintf(expected, sizeof expected, "JSON: byte %d: ", cases[i].offset);
        if (tn_json_parse(cases[i].text, strlen(cases[i].text), &doc) == TN_OK) fail_msg("accepted: %s", cases[i].text);
        assert_null(doc);
        assert_int_equal(tn_error_code(), TN_ERR_FORMAT);
        if (strncmp(tn_error(), expected, strlen(expected)) != 0) {
            fail_msg("%s: expected \"%s\", got \"%s\"", cases[i].text, expected, tn_error());
        }
    }
    tn_json_doc *doc;
    assert_int_equal(tn_json_parse("[1]\0", 4, &doc), TN_ERR_FORMAT);
    assert_int_equal(tn_json_parse("[\0]", 3, &doc), TN_ERR_FORMAT);
}

static tn_status parse_nested(int depth, char open, char close) {
    char text[512];
    int n = 0;
    for (int i = 0; i < depth; i++) {
        text[n++] = open;
        if (open == '{' && i < depth - 1) n += snprintf(text + n, sizeof text - (size_t)n, "\"\":");
    }
    for (int i = 0; i < depth; i++)
        text[n++] = close;
    tn_json_doc *doc;
    tn_status status = tn_json_parse(text, (size_t)n, &doc);
    tn_json_free(doc);
    return status;
}

static void depth_is_limited(void **state) {
    (void)state;
    assert_ok(parse_nested(64, '[', ']'));
    assert_ok(parse_nested(64, '{', '}'));
    assert_int_equal(parse_nested(65, '[', ']'), TN_ERR_FORMAT);
    assert_int_equal(parse_nested(65, '{', '}'), TN_ERR_FORMAT);
    assert_text_has(tn_error(), "64 levels");
}

static void size_and_count_are_limited(void **state) {
    (void)state;
    tn_json_doc *doc;
    assert_int_equal(tn_json_parse("[]", (64u << 20) + 1, &doc), TN_ERR_FORMAT);
    size_t values = (4u << 20) - 1; /* and the array itself: exactly the limit */
    size_t length = 2 * values + 1;
    char *text = malloc(length + 2);
    for (size_t i = 0; i < length; i++)
        text[i] = i % 2 == 0 ? ',' : '0';
    text[0] = '[';
    text[length - 1] = ']';
    assert_ok(tn_json_parse(text, length, &doc));
    assert_int_equal(tn_json_length(tn_json_root(doc)), values);
    tn_json_free(doc);
    memcpy(text + length - 1, ",0]", 3);
    assert_int_equal(tn_json_parse(text, length + 2, &doc), TN_ERR_FORMAT);
    assert_text_has(tn_error(), "4194304");
    free(text);
}

static const char sample[] = "{\"model\":{\"layers\":[1,2.5,-3e2,{\"name\":\"a\\u00e9\\ud83d\\ude00\",\"on\":true}],"
                             "\"none\":null},\"text\":\"line\\nend\",\"big\":9223372036854775807}";

/* Every beginning of a text is refused; an exact copy lets a sanitizer see a read past its end. */
static void every_cut_off_text_is_refused(void **state) {
    (void)state;
    for (size_t n = 0; n < sizeof sample - 1; n++) {
        char *text = malloc(n > 0 ? n : 1);
        memcpy(text, sample, n);
        tn_json_doc *doc;
        assert_int_equal(tn_json_parse(text, n, &doc), TN_ERR_FORMAT);
        free(text);
    }
}

static void any_changed_byte_is_refused_or_read(void **state) {
    (void)state;
    tn_mem_stats before = tn_mem_get_stats();
    char text[sizeof sample];
    for (size_t at = 0; at < sizeof sample - 1; at++) {
        for (int byte = 0; byte < 256; byte += test_every(1, 3)) {
            memcpy(text, sample, sizeof sample);
            text[at] = (char)byte;
            tn_json_doc *doc;
            tn_status status = tn_json_parse(text, sizeof sample - 1, &doc);
            assert_true(status == TN_OK || status == TN_ERR_FORMAT);
            tn_json_free(doc);
        }
    }
    assert_int_equal(tn_mem_get_stats().live_blocks, before.live_blocks);
}

static void parsing_is_clean_when_any_allocation_fails(void **state) {
    (void)state;
    tn_mem_stats before = tn_mem_get_stats();
    tn_status status = TN_ERR_MEMORY;
    for (int64_t n = 1; status != TN_OK; n++) {
        tn_json_doc *doc;
        tn_mem_fail_at(n);
        status = tn_json_parse(sample, sizeof sample - 1, &doc);
        tn_mem_fail_at(0);
        assert_true(status == TN_OK || status == TN_ERR_MEMORY);
        if (status == TN_OK) assert_true(n > 5);
        tn_json_free(doc);
        assert_int_equal(tn_mem_get_stats().live_blocks, before.live_blocks);
    }
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static void writer_places_commas_and_escapes(void **state) {
    (void)state;
    tn_str s = {0};
    tn_json_writer w = {.out = &s};
    tn_json_begin_object(&w);
    tn_json_put_key(&w, "a\"b");
    tn_json_begin_array(&w);
    tn_json_put_int(&w, INT64_MIN);
    tn_json_put_bool(&w, true);
    tn_json_begin_object(&w);
    tn_json_end_object(&w);
    tn_json_begin_array(&w);
    tn_json_end_array(&w);
    tn_json_put_null(&w);
    tn_json_end_array(&w);
    tn_json_put_key(&w, "s");
    tn_json_put_string(&w, "\x01\n\\ \xC3\xA9 \xFF\xC3");
    tn_json_put_key(&w, "x");
    tn_json_put_number(&w, NAN);
    tn_json_put_key(&w, "y");
    tn_json_put_string(&w, NULL);
    tn_json_end_object(&w);
    assert_string_equal(tn_str_text(&s), "{\"a\\\"b\":[-9223372036854775808,true,{},[],null],"
                                         "\"s\":\"\\u0001\\n\\\\ \xC3\xA9 \\ufffd\\ufffd\",\"x\":null,\"y\":null}");
    assert_false(s.failed);
    tn_json_doc *doc = parse(tn_str_text(&s));
    tn_json_free(doc);
    tn_str_free(&s);
}

static void writer_refuses_more_levels_than_it_can_track(void **state) {
    (void)state;
    tn_str s = {0};
    tn_json_writer w = {.out = &s};
    for (int i = 0; i < 63; i++)
        tn_json_begin_array(&w);
    assert_false(s.failed);
    tn_json_begin_array(&w);
    assert_true(s.failed);
    for (int i = 0; i < 70; i++)
        tn_json_end_array(&w);
    tn_str_free(&s);
}

static void assert_written_as(double v, const char *text) {
    tn_str s = {0};
    tn_json_writer w = {.out = &s};
    tn_json_put_number(&w, v);
    assert_string_equal(tn_str_text(&s), text);
    tn_str_free(&s);
}

static void numbers_are_written_as_short_as_possible(void **state) {
    (void)state;
    assert_written_as(0.1, "0.1");
    assert_written_as(-0.0, "-0");
    assert_written_as(100, "100");
    assert_written_as(1e23, "1e+23");
    assert_written_as(0x1p-1074, "5e-324");
    assert_written_as(DBL_MAX, "1.7976931348623157e+308");
    assert_written_as(1.0 / 3, "0.3333333333333333");
    assert_written_as(INFINITY, "null");
}

static void every_double_survives_writing_and_reading(void **state) {
    (void)state;
    uint64_t bits = 1;
    for (int i = 0; i < 50000 / test_every(5, 50); i++) {
        bits = tn_hash64(&bits, sizeof bits, 3);
        double v, back;
        memcpy(&v, &bits, sizeof v);
        if (i % 8 == 0) v = (double)(float)v;
        if (!isfinite(v)) continue;
        tn_str s = {0};
        tn_json_writer w = {.out = &s};
        tn_json_put_number(&w, v);
        tn_json_doc *doc = parse(tn_str_text(&s));
        back = tn_json_number(tn_json_root(doc), 77);
        if (memcmp(&v, &back, sizeof v) != 0) fail_msg("%a was written as %s and read as %a", v, s.text, back);
        tn_json_free(doc);
        tn_str_free(&s);
    }
}

static void written_tree_reads_back_the_same(void **state) {
    (void)state;
    tn_str first = {0}, second = {0};
    assert_ok(rewrite_json(sample, sizeof sample - 1, &first));
    assert_ok(rewrite_json(first.text, first.length, &second));
    assert_string_equal(first.text, second.text);
    tn_str_free(&first);
    tn_str_free(&second);
}

static void numbers_have_a_point_in_every_locale(void **state) {
    (void)state;
    char with_comma[16];
    test_enter_comma_locale();
    assert_written_as(0.5, "0.5");
    tn_json_doc *doc = parse("2.5");
    assert_true(tn_json_number(tn_json_root(doc), 0) == 2.5);
    tn_json_free(doc);
    snprintf(with_comma, sizeof with_comma, "%.1f", 0.5);
    assert_string_equal(with_comma, "0,5"); /* the host program's locale is as it was */
    setlocale(LC_ALL, "C");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_of_every_kind_are_read),
        cmocka_unit_test(absent_values_give_the_fallback),
        cmocka_unit_test(last_of_equal_keys_wins),
        cmocka_unit_test(strings_are_unescaped),
        cmocka_unit_test(integers_are_exact_or_the_fallback),
        cmocka_unit_test(doubles_are_correctly_rounded),
        cmocka_unit_test(hostile_texts_are_refused_at_the_right_byte),
        cmocka_unit_test(depth_is_limited),
        cmocka_unit_test(size_and_count_are_limited),
        cmocka_unit_test(every_cut_off_text_is_refused),
        cmocka_unit_test(any_changed_byte_is_refused_or_read),
        cmocka_unit_test(parsing_is_clean_when_any_allocation_fails),
        cmocka_unit_test(writer_places_commas_and_escapes),
        cmocka_unit_test(writer_refuses_more_levels_than_it_can_track),
        cmocka_unit_test(numbers_are_written_as_short_as_possible),
        cmocka_unit_test(every_double_survives_writing_and_reading),
        cmocka_unit_test(written_tree_reads_back_the_same),
        cmocka_unit_test(numbers_have_a_point_in_every_locale),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
