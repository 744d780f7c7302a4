/* json.c — a strict JSON reader (RFC 8259) and a writer.
 *
 * The reader stores values in one array in which the children of every object and array are contiguous, so the i-th is
 * found at once. Children are complete before their parent, so they are kept on a stack until it closes and then moved
 * to the array together. Strings are unescaped into a second block as long as the text, because no string grows by
 * unescaping. Everything that the standard forbids is refused: invalid UTF-8, lone surrogates, numbers beyond a
 * double's range. All members with equal keys are kept, and tn_json_get finds the last.
 *
 * Numbers are read and written in the "C" locale, whatever the host program has set. */
#include "base/base.h"
#include "trunnion/backend.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_DEPTH = 64,
    MAX_TEXT = 64 << 20,
    MAX_VALUES = 4 << 20,
    MAX_NUMBER = 1024 /* characters; no double needs more than 767 digits to be told from its neighbours */
};

struct tn_json {
    const char *key; /* NULL outside objects; a key may hold NUL bytes, so its length counts */
    uint32_t key_length;
    uint8_t kind; /* tn_json_kind */
    bool is_int;  /* a number whose `integer` is exact */
    union {
        size_t length; /* bytes of a string, children of an array or object */
        int64_t integer;
    };
    union {
        const char *string;
        double number;
        bool boolean;
        size_t first_child; /* index among the values: while reading, as they still move */
        const tn_json *children;
    };
};

struct tn_json_doc {
    tn_json *values; /* children before their parent: the root is the last */
    size_t count;
    char *strings;
};

/* ---- UTF-8 ------------------------------------------------------------------------------------------------------- */

/* The lead bytes of UTF-8 and the range of the byte after them, which is narrower than 80..BF where a longer form, a
 * surrogate or a value above 10FFFF would begin (RFC 3629, section 4). */
typedef struct utf8_row {
    unsigned char first_low, first_high, second_low, second_high, length;
} utf8_row;

static const utf8_row utf8_rows[] = {
    {0xC2, 0xDF, 0x80, 0xBF, 2}, {0xE0, 0xE0, 0xA0, 0xBF, 3}, {0xE1, 0xEC, 0x80, 0xBF, 3}, {0xED, 0xED, 0x80, 0x9F, 3},
    {0xEE, 0xEF, 0x80, 0xBF, 3}, {0xF0, 0xF0, 0x90, 0xBF, 4}, {0xF1, 0xF3, 0x80, 0xBF, 4}, {0xF4, 0xF4, 0x80, 0x8F, 4},
};

/* The length of the sequence at `p`, of which `left` bytes are there; 0 when it is malformed. */
static size_t utf8_length(const unsigned char *p, size_t left) {
    if (left > 0 && p[0] < 0x80) return 1;
    for (size_t i = 0; i < TN_COUNT(utf8_rows); i++) {
        const utf8_row *row = &utf8_rows[i];
        if (left < row->length || p[0] < row->first_low || p[0] > row->first_high) continue;
        if (p[1] < row->second_low || p[1] > row->second_high) return 0;
        for (size_t k = 2; k < row->length; k++)
            if ((p[k] & 0xC0) != 0x80) return 0;
        return row->length;
    }
    return 0;
}

static size_t utf8_encode(uint32_t c, char *out) {
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    size_t length = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const unsigned char marks[] = {0, 0, 0xC0, 0xE0, 0xF0};
    for (size_t i = length - 1; i > 0; i--) {
        out[i] = (char)(0x80 | (c & 0x3F));
        c >>= 6;
    }
    out[0] = (char)(marks[length] | c);
    return length;
}

/* ---- reader ------------------------------------------------------------------------------------------------------ */

typedef struct value_list {
    tn_json *items;
    size_t count, capacity;
} value_list;

typedef struct reader {
    const char *text;
    size_t length, at;
    int depth;
    value_list waiting; /* values whose parent is still open */
    value_list done;    /* children of closed parents */
    char *strings;
    size_t strings_used;
} reader;

static tn_status read_value(reader *r);

static tn_status malformed(size_t offset, const char *what) {
    return tn_fail(TN_ERR_FORMAT, "JSON: byte %zu: %s", offset, what);
}

/* The next byte, or 0 at the end: a NUL in the text is refused like any other byte that does not belong there. */
static char peek(const reader *r) { return r->at < r->length ? r->text[r->at] : '\0'; }

static bool take_json(reader *r, char c) {
    if (peek(r) != c || r->at >= r->length) return false;
    r->at++;
    return true;
}

static void skip_space(reader *r) {
    while (r->at < r->length) {
        char c = r->text[r->at];
        if (c != ' ' && c != '\n' && c != '\r' && c != '\t') return;
        r->at++;
    }
}

static tn_status push_json(reader *r, const tn_json *value) {
    value_list *w = &r->waiting;
    if (w->count + r->done.count >= MAX_VALUES) return malformed(r->at, "more than 4194304 values");
    TRY(tn_mem_grow(&w->items, &w->capacity, w->count + 1, sizeof *w->items));
    w->items[w->count++] = *value;
    return TN_OK;
}

static bool hex4(const reader *r, size_t at, uint32_t *out) {
    if (r->length - at < 4) return false;
    uint32_t value = 0;
    for (size_t i = at; i < at + 4; i++) {
        char c = r->text[i];
        uint32_t digit = 16;
        if (c >= '0' && c <= '9') digit = (uint32_t)(c - '0');
        if (c >= 'a' && c <= 'f') digit = (uint32_t)(c - 'a') + 10;
        if (c >= 'A' && c <= 'F') digit = (uint32_t)(c - 'A') + 10;
        if (digit > 15) return false;
        value = value << 4 | digit;
    }
    *out = value;
    return true;
}

/* After "\u": four digits, or two times four that make one character beyond FFFF. */
static tn_status read_unicode_escape(reader *r, uint32_t *out) {
    uint32_t high, low;
    if (!hex4(r, r->at, &high)) return malformed(r->at, "\\u must be followed by four hexadecimal digits");
    r->at += 4;
    *out = high;
    if (high < 0xD800 || high > 0xDFFF) return TN_OK;
    bool has_low = high <= 0xDBFF && take_json(r, '\\') && take_json(r, 'u') && hex4(r, r->at, &low);
    if (!has_low || low < 0xDC00 || low > 0xDFFF) return malformed(r->at, "unpaired surrogate in a \\u escape");
    r->at += 4;
    *out = 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
    return TN_OK;
}

static tn_status read_escape(reader *r) {
    static const char names[] = "\"\\/bfnrt";
    static const char bytes[] = "\"\\/\b\f\n\r\t";
    char c = peek(r);
    if (c == 'u') {
        uint32_t character = 0;
        r->at++;
        TRY(read_unicode_escape(r, &character));
        r->strings_used += utf8_encode(character, r->strings + r->strings_used);
        return TN_OK;
    }
    const char *found = c != '\0' ? strchr(names, c) : NULL;
    if (found == NULL) return malformed(r->at, "unknown escape sequence");
    r->strings[r->strings_used++] = bytes[found - names];
    r->at++;
    return TN_OK;
}

/* Number of bytes from p on that are unescaped ASCII. */
static size_t plain_ascii(const unsigned char *p, size_t left) {
    size_t n = 0;
    while (n < left && p[n] >= 0x20 && p[n] < 0x80 && p[n] != '"' && p[n] != '\\')
        n++;
    return n;
}

/* A run of plain ASCII, or one longer character. */
static tn_status read_plain(reader *r) {
    const unsigned char *p = (const unsigned char *)r->text + r->at;
    if (p[0] < 0x20) return malformed(r->at, "unescaped control character in a string");
    size_t n = plain_ascii(p, r->length - r->at);
    if (n == 0) n = utf8_length(p, r->length - r->at);
    if (n == 0) return malformed(r->at, "invalid UTF-8");
    memcpy(r->strings + r->strings_used, p, n);
    r->strings_used += n;
    r->at += n;
    return TN_OK;
}

static tn_status read_string(reader *r, const char **string, size_t *length) {
    size_t start = r->at;
    size_t first = r->strings_used;
    if (!take_json(r, '"')) return malformed(r->at, "expected a string in double quotes");
    while (!take_json(r, '"')) {
        if (r->at >= r->length) return malformed(start, "unterminated string");
        TRY(take_json(r, '\\') ? read_escape(r) : read_plain(r));
    }
    *string = r->strings + first;
    *length = r->strings_used - first;
    r->strings[r->strings_used++] = '\0';
    return TN_OK;
}

static tn_status read_string_value(reader *r) {
    tn_json value = {.kind = TN_JSON_STRING};
    TRY(read_string(r, &value.string, &value.length));
    return push_json(r, &value);
}

static size_t skip_digits(reader *r) {
    size_t start = r->at;
    while (peek(r) >= '0' && peek(r) <= '9')
        r->at++;
    return r->at - start;
}

/* Moves over a number as the standard's grammar has it; *whole when it has neither fraction nor exponent. */
static tn_status scan_number(reader *r, bool *whole) {
    *whole = true;
    take_json(r, '-');
    bool zero = take_json(r, '0');
    if (!zero && skip_digits(r) == 0) return malformed(r->at, "expected a digit");
    if (zero && peek(r) >= '0' && peek(r) <= '9') return malformed(r->at, "a number must not begin with 0");
    if (take_json(r, '.')) {
        *whole = false;
        if (skip_digits(r) == 0) return malformed(r->at, "expected a digit after the decimal point");
    }
    if (take_json(r, 'e') || take_json(r, 'E')) {
        *whole = false;
        if (!take_json(r, '+')) take_json(r, '-');
        if (skip_digits(r) == 0) return malformed(r->at, "expected a digit in the exponent");
    }
    return TN_OK;
}

/* Counts downwards, because the most negative number has no positive counterpart. */
static bool parse_integer(const char *digits, int64_t *out) {
    bool negative = digits[0] == '-';
    int64_t value = 0;
    for (const char *p = digits + negative; *p != '\0'; p++)
        if (__builtin_mul_overflow(value, 10, &value) || __builtin_sub_overflow(value, *p - '0', &value)) return false;
    *out = value;
    return negative || !__builtin_sub_overflow(0, value, out);
}

static tn_status read_number(reader *r) {
    size_t start = r->at;
    bool whole;
    TRY(scan_number(r, &whole));
    size_t n = r->at - start;
    char digits[MAX_NUMBER + 1];
    if (n > MAX_NUMBER) return malformed(start, "a number is longer than 1024 characters");
    memcpy(digits, r->text + start, n);
    digits[n] = '\0';
    tn_json value = {.kind = TN_JSON_NUMBER};
    value.is_int = whole && parse_integer(digits, &value.integer);
    bool convert = value.is_int && value.integer != 0; /* strtod knows -0, and takes longer */
    value.number = convert ? (double)value.integer : strtod(digits, NULL);
    if (!isfinite(value.number)) return malformed(start, "a number is outside the range of a double");
    return push_json(r, &value);
}

static tn_status read_word(reader *r) {
    static const struct {
        const char *word;
        tn_json value;
    } words[] = {
        {"true", {.kind = TN_JSON_BOOL, .boolean = true}},
        {"false", {.kind = TN_JSON_BOOL, .boolean = false}},
        {"null", {.kind = TN_JSON_NULL}},
    };
    for (size_t i = 0; i < TN_COUNT(words); i++) {
        size_t n = strlen(words[i].word);
        if (r->length - r->at < n || memcmp(r->text + r->at, words[i].word, n) != 0) continue;
        r->at += n;
        return push_json(r, &words[i].value);
    }
    return malformed(r->at, r->at < r->length ? "expected a value" : "the text ends where a value is expected");
}

/* Ends an object or array: all that waits above `mark` is its content and moves to its place. */
static tn_status close_container(reader *r, tn_json_kind kind, size_t mark) {
    value_list *done = &r->done;
    size_t n = r->waiting.count - mark;
    tn_json value = {.kind = (uint8_t)kind};
    value.length = n;
    value.first_child = done->count;
    if (n > 0) {
        TRY(tn_mem_grow(&done->items, &done->capacity, done->count + n, sizeof *done->items));
        memcpy(done->items + done->count, r->waiting.items + mark, n * sizeof *done->items);
    }
    done->count += n;
    r->waiting.count = mark;
    return push_json(r, &value);
}

static tn_status read_member(reader *r) {
    const char *key;
    size_t length;
    skip_space(r);
    TRY(read_string(r, &key, &length));
    skip_space(r);
    if (!take_json(r, ':')) return malformed(r->at, "expected ':'");
    TRY(read_value(r));
    tn_json *value = &r->waiting.items[r->waiting.count - 1];
    value->key = key;
    value->key_length = (uint32_t)length; /* fits: the text is limited */
    return TN_OK;
}

static tn_status read_container(reader *r, bool object) {
    const char end = object ? '}' : ']', *expected = object ? "expected ',' or '}'" : "expected ',' or ']'";
    size_t mark = r->waiting.count;
    r->at++;
    skip_space(r);
    while (!take_json(r, end)) {
        if (r->waiting.count > mark && !take_json(r, ',')) return malformed(r->at, expected);
        TRY(object ? read_member(r) : read_value(r));
        skip_space(r);
    }
    return close_container(r, object ? TN_JSON_OBJECT : TN_JSON_ARRAY, mark);
}

static tn_status read_value(reader *r) {
    skip_space(r);
    char c = peek(r);
    if (c == '"') return read_string_value(r);
    if (c == '-' || (c >= '0' && c <= '9')) return read_number(r);
    if (c != '[' && c != '{') return read_word(r);
    if (r->depth == MAX_DEPTH) return malformed(r->at, "nested more than 64 levels deep");
    r->depth++;
    tn_status status = read_container(r, c == '{');
    r->depth--;
    return status;
}

static tn_status read_text(reader *r) {
    r->strings = tn_mem_alloc(r->length + 1);
    if (r->strings == NULL) return TN_ERR_MEMORY;
    TRY(read_value(r));
    skip_space(r);
    if (r->at < r->length) return malformed(r->at, "unexpected text after the value");
    TRY(tn_mem_grow(&r->done.items, &r->done.capacity, r->done.count + 1, sizeof *r->done.items));
    r->done.items[r->done.count++] = r->waiting.items[0];
    return TN_OK;
}

/* Nothing moves any more: indices become pointers. */
static void link_children(value_list *values) {
    for (size_t i = 0; i < values->count; i++) {
        tn_json *v = &values->items[i];
        if (v->kind == TN_JSON_ARRAY || v->kind == TN_JSON_OBJECT) v->children = values->items + v->first_child;
    }
}

static tn_status make_doc(reader *r, tn_json_doc **out) {
    tn_c_locale scope = tn_c_locale_begin();
    if (!scope.begun) return tn_fail(TN_ERR_MEMORY, "JSON: out of memory for the C locale");
    tn_status status = read_text(r);
    tn_c_locale_end(&scope);
    TRY(status);
    tn_json_doc *doc = tn_mem_alloc(sizeof *doc);
    if (doc == NULL) return TN_ERR_MEMORY;
    link_children(&r->done);
    *doc = (tn_json_doc){r->done.items, r->done.count, r->strings};
    *out = doc;
    return TN_OK;
}

tn_status tn_json_parse(const char *text, size_t length, tn_json_doc **out) {
    TRY(tn_need(out, "tn_json_parse: out"));
    *out = NULL;
    TRY(tn_need(text, "tn_json_parse: the text"));
    if (length > MAX_TEXT)
        return tn_fail(TN_ERR_FORMAT, "JSON: %zu bytes of text exceed the limit of %d", length, MAX_TEXT);
    size_t mark = length >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0; /* the byte order mark of some editors */
    reader r = {.text = text, .length = length, .at = mark};
    tn_status status = make_doc(&r, out);
    tn_mem_free(r.waiting.items);
    if (status != TN_OK) tn_mem_free_each(r.done.items, r.strings);
    return status;
}

tn_status tn_json_open(const char *path, tn_json_doc **out) {
    TRY(tn_need(out, "tn_json_open: out"));
    *out = NULL;
    TRY(tn_need(path, "tn_json_open: the path"));
    char *text;
    size_t size;
    TRY(tn_file_read(path, &text, &size, MAX_TEXT));
    tn_status status = tn_json_parse(text, size, out);
    tn_mem_free(text);
    return status == TN_OK ? TN_OK : tn_fail_prefix(status, "'%s'", path);
}

void tn_json_free(tn_json_doc *d) {
    if (d == NULL) return;
    tn_mem_free_each(d->values, d->strings, d);
}

/* ---- access ------------------------------------------------------------------------------------------------------ */

static bool is_kind(const tn_json *v, tn_json_kind kind) { return v != NULL && v->kind == kind; }

static bool has_children(const tn_json *v) { return is_kind(v, TN_JSON_ARRAY) || is_kind(v, TN_JSON_OBJECT); }

const tn_json *tn_json_root(const tn_json_doc *d) { return d != NULL ? &d->values[d->count - 1] : NULL; }

tn_json_kind tn_json_kind_of(const tn_json *v) { return v != NULL ? (tn_json_kind)v->kind : TN_JSON_NULL; }

size_t tn_json_length(const tn_json *v) { return has_children(v) || is_kind(v, TN_JSON_STRING) ? v->length : 0; }

const tn_json *tn_json_at(const tn_json *v, size_t i) {
    return has_children(v) && i < v->length ? &v->children[i] : NULL;
}

const char *tn_json_key(const tn_json *v, size_t i) {
    return is_kind(v, TN_JSON_OBJECT) && i < v->length ? v->children[i].key : NULL;
}

size_t tn_json_key_length(const tn_json *v, size_t i) { return tn_json_key(v, i) ? v->children[i].key_length : 0; }

const tn_json *tn_json_get(const tn_json *v, const char *key) {
    if (!is_kind(v, TN_JSON_OBJECT) || !key) return NULL;
    size_t n = strlen(key);
    for (size_t i = v->length; i > 0; i--) {
        const tn_json *member = &v->children[i - 1];
        if (member->key_length == n && memcmp(member->key, key, n) == 0) return member;
    }
    return NULL;
}

bool tn_json_bool(const tn_json *v, bool fallback) { return is_kind(v, TN_JSON_BOOL) ? v->boolean : fallback; }

double tn_json_number(const tn_json *v, double fallback) { return is_kind(v, TN_JSON_NUMBER) ? v->number : fallback; }

/* 1e3 and 5.0 are integers too, as far as a double holds every integer. */
int64_t tn_json_int(const tn_json *v, int64_t fallback) {
    if (!is_kind(v, TN_JSON_NUMBER)) return fallback;
    if (v->is_int) return v->integer;
    bool exact = fabs(v->number) <= 0x1p53 && v->number == floor(v->number);
    return exact ? (int64_t)v->number : fallback;
}

const char *tn_json_string(const tn_json *v, const char *fallback) {
    return is_kind(v, TN_JSON_STRING) ? v->string : fallback;
}

/* ---- writer ------------------------------------------------------------------------------------------------------ */

static uint64_t level_bit(const tn_json_writer *w) { return (uint64_t)1 << (w->depth & 63); }

/* The comma before an item, unless it is the first or the value of a key. */
static void begin_item(tn_json_writer *w) {
    bool after_key = w->after_key;
    w->after_key = false;
    if (after_key) return;
    if ((w->has_items & level_bit(w)) != 0) tn_str_addn(w->out, ",", 1);
    w->has_items |= level_bit(w);
}

static void open_level(tn_json_writer *w, const char *bracket) {
    begin_item(w);
    tn_str_addn(w->out, bracket, 1);
    if (w->depth + 1 >= MAX_DEPTH) w->out->failed = true; /* has_items has no more bits */
    w->depth++;
    w->has_items &= ~level_bit(w);
}

static void close_level(tn_json_writer *w, const char *bracket) {
    if (w->depth > 0) w->depth--;
    tn_str_addn(w->out, bracket, 1);
}

void tn_json_begin_object(tn_json_writer *w) { open_level(w, "{"); }

void tn_json_end_object(tn_json_writer *w) { close_level(w, "}"); }

void tn_json_begin_array(tn_json_writer *w) { open_level(w, "["); }

void tn_json_end_array(tn_json_writer *w) { close_level(w, "]"); }

static void add_escaped(tn_str *out, unsigned char c) {
    static const char names[] = "\"\\\b\f\n\r\t";
    static const char letters[] = "\"\\bfnrt";
    const char *found = c != '\0' ? strchr(names, c) : NULL;
    if (found != NULL)
        tn_str_add(out, "\\%c", letters[found - names]);
    else
        tn_str_add(out, "\\u%04x", c);
}

/* Texts of drivers are not always UTF-8: a byte that does not fit becomes U+FFFD, so that the result can be read. */
static void add_string(tn_str *out, const char *text) {
    const unsigned char *p = (const unsigned char *)text;
    size_t left = strlen(text);
    tn_str_addn(out, "\"", 1);
    while (left > 0) {
        size_t n = utf8_length(p, left);
        if (n == 0) tn_str_add(out, "\\ufffd");
        if (n == 1 && (p[0] < 0x20 || p[0] == '"' || p[0] == '\\'))
            add_escaped(out, p[0]);
        else
            tn_str_addn(out, (const char *)p, n);
        size_t step = n > 0 ? n : 1;
        p += step;
        left -= step;
    }
    tn_str_addn(out, "\"", 1);
}

void tn_json_put_key(tn_json_writer *w, const char *key) {
    begin_item(w);
    add_string(w->out, key);
    tn_str_addn(w->out, ":", 1);
    w->after_key = true;
}

void tn_json_put_string(tn_json_writer *w, const char *text) {
    if (text == NULL) {
        tn_json_put_null(w);
        return;
    }
    begin_item(w);
    add_string(w->out, text);
}

/* Every decimal of 15 digits survives a double, so a shorter form shows as trailing zeros, which %g drops. Subnormal
 * numbers have fewer digits, and there the search begins at one. */
static void format_shortest(double v, char *out, size_t size) {
    int digits = fabs(v) < DBL_MIN ? 1 : 15;
    do {
        snprintf(out, size, "%.*g", digits, v);
    } while (digits++ < 17 && strtod(out, NULL) != v);
}

void tn_json_put_number(tn_json_writer *w, double v) {
    if (!isfinite(v)) {
        tn_json_put_null(w);
        return;
    }
    char text[40];
    tn_c_locale scope = tn_c_locale_begin();
    if (!scope.begun) {
        w->out->failed = true;
        return;
    }
    format_shortest(v, text, sizeof text);
    tn_c_locale_end(&scope);
    begin_item(w);
    tn_str_addn(w->out, text, strlen(text));
}

void tn_json_put_int(tn_json_writer *w, int64_t v) {
    begin_item(w);
    tn_str_add(w->out, "%lld", (long long)v);
}

void tn_json_put_bool(tn_json_writer *w, bool v) {
    begin_item(w);
    tn_str_add(w->out, "%s", v ? "true" : "false");
}

void tn_json_put_null(tn_json_writer *w) {
    begin_item(w);
    tn_str_addn(w->out, "null", 4);
}
