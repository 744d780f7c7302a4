/* json.c — reads a JSON text into one array of values (json.h).
 *
 * Files come from strangers: depth, length and number of values are bounded, and memory grows with what is really
 * there. Strings are unescaped in a copy of the text, for none grows by that. */
#include "text/json.h"

#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "text/tokenizer.h"

enum {
    MAX_DEPTH = 64,
    MAX_TEXT = 512 << 20,
    MAX_NUMBER = 64 /* characters */
};

typedef struct reader {
    tn_txt_json_doc *doc;
    const char *what;
    size_t size, at;
    int depth;
} reader;

static tn_status read_value(reader *x);

static tn_status fail(const reader *x, const char *why) {
    return tn_backend_fail(TN_ERR_FORMAT, "%s: byte %zu: %s", x->what, x->at, why);
}

static char here(const reader *x) { return x->at < x->size ? x->doc->text[x->at] : 0; }

static void skip_blanks(reader *x) {
    while (here(x) == ' ' || here(x) == '\t' || here(x) == '\r' || here(x) == '\n')
        x->at++;
}

static bool takes(reader *x, char c) {
    skip_blanks(x);
    if (here(x) != c || x->at >= x->size) return false;
    x->at++;
    return true;
}

static tn_status add_value(reader *x, tn_txt_json_kind kind, size_t *index) {
    tn_txt_json_doc *d = x->doc;
    if (d->count >= UINT32_MAX / 2) return fail(x, "too many values");
    TRY(tn_txt_reserve(&d->values, &d->capacity, d->count + 1, sizeof *d->values));
    d->values[d->count] = (tn_txt_json){.kind = (uint8_t)kind, .span = 1};
    *index = d->count++;
    return TN_OK;
}

/* ---- strings ----------------------------------------------------------------------------------------------------- */

static bool read_hex(const reader *x, size_t at, uint32_t *out) {
    *out = 0;
    if (x->size < 4 || at > x->size - 4) return false;
    for (size_t i = at; i < at + 4; i++) {
        char c = x->doc->text[i];
        int digit = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
        if (digit < 0) return false;
        *out = *out * 16 + (uint32_t)digit;
    }
    return true;
}

/* Behind \u: one code point, from two escapes where they are a surrogate pair. */
static tn_status read_code(reader *x, char **out) {
    uint32_t code, low;
    if (!read_hex(x, x->at, &code)) return fail(x, "four hexadecimal digits are expected");
    x->at += 4;
    bool pair = code >= 0xd800 && code < 0xdc00 && x->size - x->at >= 6 && !memcmp(x->doc->text + x->at, "\\u", 2) &&
                read_hex(x, x->at + 2, &low) && low >= 0xdc00 && low < 0xe000;
    if (pair) {
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
        x->at += 6;
    }
    if (code >= 0xd800 && code < 0xe000) code = 0xfffd; /* half a pair is no character */
    *out += tn_txt_utf8_write(code, *out);
    return TN_OK;
}

static tn_status read_escape(reader *x, char **out) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    char c = here(x);
    const char *place = c ? strchr(from, c) : NULL;
    x->at++;
    if (!place) return c == 'u' ? read_code(x, out) : fail(x, "an unknown escape");
    *(*out)++ = to[place - from];
    return TN_OK;
}

/* Behind the opening quote. */
static tn_status read_string(reader *x, const char **text, uint32_t *size) {
    char *begin = x->doc->text + x->at, *out = begin;
    for (;;) {
        if (x->at >= x->size) return fail(x, "this string has no end");
        char c = x->doc->text[x->at++];
        if (c == '"') break;
        if ((unsigned char)c < 32) return fail(x, "a control character in a string");
        if (c == '\\') {
            TRY(read_escape(x, &out));
        } else {
            *out++ = c;
        }
    }
    *text = begin;
    *size = (uint32_t)(out - begin);
    if (tn_txt_utf8_valid(begin, *size) < *size) return fail(x, "the string before is no UTF-8");
    return TN_OK;
}

/* ---- the rest ---------------------------------------------------------------------------------------------------- */

/* A number's value; in the "C" locale, see tn_txt_json_read. */
static tn_status read_number(reader *x) {
    char digits[MAX_NUMBER];
    size_t length = 0, index;
    while (here(x) && strchr("+-.eE0123456789", here(x)) && length < sizeof digits - 1)
        digits[length++] = x->doc->text[x->at++];
    digits[length] = 0;
    const char *first = digits + (digits[0] == '-');
    char *end = digits;
    if (*first < '0' || *first > '9' || (first[0] == '0' && first[1] >= '0' && first[1] <= '9'))
        return fail(x, "a value is expected");
    double number = strtod(digits, &end);
    if (*end || end[-1] == '.' || length == sizeof digits - 1 || !isfinite(number))
        return fail(x, "this number is malformed or too large");
    TRY(add_value(x, TN_TXT_JSON_NUMBER, &index));
    x->doc->values[index].number = number;
    return TN_OK;
}

static tn_status read_children(reader *x, tn_txt_json_kind kind) {
    const char close = kind == TN_TXT_JSON_ARRAY ? ']' : '}';
    size_t index, child;
    uint32_t count = 0;
    TRY(add_value(x, kind, &index));
    if (!takes(x, close)) {
        do {
            const char *key = NULL;
            uint32_t key_size = 0;
            if (kind == TN_TXT_JSON_OBJECT) {
                if (!takes(x, '"')) return fail(x, "a key is expected");
                TRY(read_string(x, &key, &key_size));
                if (!takes(x, ':')) return fail(x, ": is expected");
            }
            child = x->doc->count;
            TRY(read_value(x));
            x->doc->values[child].key = key;
            x->doc->values[child].key_size = key_size;
            count++;
        } while (takes(x, ','));
        if (!takes(x, close)) return fail(x, kind == TN_TXT_JSON_ARRAY ? "] or , is expected" : "} or , is expected");
    }
    x->doc->values[index].size = count;
    x->doc->values[index].span = (uint32_t)(x->doc->count - index);
    return TN_OK;
}

static tn_status read_text(reader *x) {
    size_t index;
    const char *text;
    uint32_t size;
    TRY(read_string(x, &text, &size));
    TRY(add_value(x, TN_TXT_JSON_STRING, &index));
    x->doc->values[index].text = text;
    x->doc->values[index].size = size;
    return TN_OK;
}

static tn_status read_word(reader *x, bool *known) {
    static const struct {
        const char *word;
        tn_txt_json_kind kind;
        bool truth;
    } words[] = {
        {"null", TN_TXT_JSON_NULL, false}, {"true", TN_TXT_JSON_BOOL, true}, {"false", TN_TXT_JSON_BOOL, false}};
    *known = false;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        size_t length = strlen(words[i].word), index;
        if (x->size - x->at < length || memcmp(x->doc->text + x->at, words[i].word, length) != 0) continue;
        x->at += length;
        *known = true;
        TRY(add_value(x, words[i].kind, &index));
        x->doc->values[index].truth = words[i].truth;
        return TN_OK;
    }
    return TN_OK;
}

static tn_status read_value(reader *x) {
    if (x->depth >= MAX_DEPTH) return fail(x, "nested too deep");
    x->depth++;
    tn_status status = TN_OK;
    bool known = true;
    if (takes(x, '"')) {
        status = read_text(x);
    } else if (takes(x, '[')) {
        status = read_children(x, TN_TXT_JSON_ARRAY);
    } else if (takes(x, '{')) {
        status = read_children(x, TN_TXT_JSON_OBJECT);
    } else {
        status = read_word(x, &known);
    }
    if (status == TN_OK && !known) status = read_number(x);
    x->depth--;
    return status;
}

tn_status tn_txt_json_read(const char *text, size_t size, const char *what, tn_txt_json_doc *doc) {
    reader x = {.doc = doc, .what = what, .size = size};
    *doc = (tn_txt_json_doc){0};
    if (size > MAX_TEXT) return fail(&x, "the text is too long");
    doc->text = tn_txt_alloc(size, 1);
    if (!doc->text) return TN_ERR_MEMORY;
    if (size > 0) memcpy(doc->text, text, size);
    locale_t c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0); /* in which numbers have a point */
    if (c_locale == (locale_t)0) return tn_backend_fail(TN_ERR_MEMORY, "%s: out of memory", what);
    locale_t before = uselocale(c_locale);
    tn_status status = read_value(&x);
    uselocale(before);
    freelocale(c_locale);
    TRY(status);
    skip_blanks(&x);
    return x.at == size ? TN_OK : fail(&x, "more follows behind the value");
}

void tn_txt_json_free(tn_txt_json_doc *doc) {
    tn_txt_free(doc->text);
    tn_txt_free(doc->values);
    *doc = (tn_txt_json_doc){0};
}

/* ---- looking ----------------------------------------------------------------------------------------------------- */

const tn_txt_json *tn_txt_json_get(const tn_txt_json *v, const char *key) {
    if (!tn_txt_json_of(v, TN_TXT_JSON_OBJECT)) return NULL;
    size_t length = strlen(key);
    const tn_txt_json *found = NULL, *member = tn_txt_json_first(v);
    for (uint32_t i = 0; i < v->size; i++, member = tn_txt_json_next(member)) {
        if (member->key_size == length && !memcmp(member->key, key, length)) found = member;
    }
    return found && found->kind != TN_TXT_JSON_NULL ? found : NULL;
}

tn_text_slice tn_txt_json_text(const tn_txt_json *v) {
    if (!tn_txt_json_of(v, TN_TXT_JSON_STRING)) return (tn_text_slice){0};
    return (tn_text_slice){v->text, v->size};
}

bool tn_txt_json_is(const tn_txt_json *v, const char *text) {
    return tn_txt_json_of(v, TN_TXT_JSON_STRING) && v->size == strlen(text) && !memcmp(v->text, text, v->size);
}

bool tn_txt_json_truth(const tn_txt_json *v, bool otherwise) {
    return tn_txt_json_of(v, TN_TXT_JSON_BOOL) ? v->truth : otherwise;
}

int64_t tn_txt_json_int(const tn_txt_json *v, int64_t otherwise) {
    const double most = 9007199254740992.0;
    bool whole = tn_txt_json_of(v, TN_TXT_JSON_NUMBER) && fabs(v->number) < most && v->number == floor(v->number);
    return whole ? (int64_t)v->number : otherwise;
}
