/* jinja_json.c — JSON in and out: the variables of a template come as JSON, and `tojson` writes values as Python's
 * json.dumps does.
 *
 * Reading is strict (RFC 8259) but takes bytes that are no UTF-8 inside strings as they are: a message may hold
 * anything. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja.h"
#include "text/tokenizer.h"

/* ---- reading ----------------------------------------------------------------------------------------------------- */

typedef struct reader {
    jj_run *run;
    const char *text;
    size_t size, at;
    int depth;
} reader;

static tn_status read_value(reader *x, jj_value *out);

static tn_status fail(const reader *x, const char *what) {
    return tn_backend_fail(TN_ERR_FORMAT, "chat template: the variables are no JSON: byte %zu: %s", x->at, what);
}

static void skip_blanks(reader *x) {
    while (x->at < x->size && x->text[x->at] && strchr(" \t\r\n", x->text[x->at]))
        x->at++;
}

static bool jinja_json_takes(reader *x, char c) {
    skip_blanks(x);
    if (x->at >= x->size || x->text[x->at] != c) return false;
    x->at++;
    return true;
}

static bool read_hex(const reader *x, size_t at, uint32_t *out) {
    *out = 0;
    for (size_t i = at; i < at + 4; i++) {
        char c = i < x->size ? x->text[i] : 0;
        int digit = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
        if (digit < 0) return false;
        *out = *out * 16 + (uint32_t)digit;
    }
    return true;
}

/* Behind \u: one code point, from two escapes where they are a surrogate pair. */
static tn_status read_code(reader *x, char *out, size_t *written) {
    uint32_t code, low;
    if (!read_hex(x, x->at, &code)) return fail(x, "four hexadecimal digits are expected");
    x->at += 4;
    bool pair = code >= 0xd800 && code < 0xdc00 && x->size - x->at >= 6 && !memcmp(x->text + x->at, "\\u", 2) &&
                read_hex(x, x->at + 2, &low) && low >= 0xdc00 && low < 0xe000;
    if (pair) {
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
        x->at += 6;
    }
    if (code >= 0xd800 && code < 0xe000) code = 0xfffd; /* half a pair is no character */
    *written += tn_txt_utf8_write(code, out + *written);
    return TN_OK;
}

static tn_status read_escape(reader *x, char *out, size_t *written) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    char c = x->at < x->size ? x->text[x->at++] : 0;
    const char *place = c ? strchr(from, c) : NULL;
    if (place) {
        out[(*written)++] = to[place - from];
        return TN_OK;
    }
    return c == 'u' ? read_code(x, out, written) : fail(x, "an unknown escape");
}

static tn_status read_string(reader *x, jj_value *out) {
    size_t end = x->at, length = 0;
    while (end < x->size && x->text[end] != '"')
        end += x->text[end] == '\\' ? 2 : 1;
    if (end >= x->size) return fail(x, "this string has no end");
    char *text = tn_jj_alloc(&x->run->arena, end - x->at, 1); /* no escape is shorter than what it means */
    if (!text) return TN_ERR_MEMORY;
    while (x->at < end) {
        char c = x->text[x->at++];
        if ((unsigned char)c < 32) return fail(x, "a control character in a string");
        if (c == '\\') {
            TRY(read_escape(x, text, &length));
        } else {
            text[length++] = c;
        }
    }
    x->at = end + 1;
    *out = jj_text(text, length);
    return tn_jj_charge(x->run, length / 64);
}

static tn_status read_number(reader *x, jj_value *out) {
    char digits[64];
    size_t length = 0;
    bool whole = true;
    while (x->at < x->size && length < sizeof digits - 1 && x->text[x->at] &&
           strchr("+-.eE0123456789", x->text[x->at])) {
        whole &= !strchr(".eE", x->text[x->at]);
        digits[length++] = x->text[x->at++];
    }
    digits[length] = 0;
    const char *first = digits + (digits[0] == '-');
    char *end = digits;
    if (*first < '0' || *first > '9' || (first[0] == '0' && first[1] >= '0' && first[1] <= '9'))
        return fail(x, "a value is expected");
    errno = 0;
    *out = whole ? jj_int(strtoll(digits, &end, 10)) : jj_float(strtod(digits, &end));
    if (*end || end[-1] == '.' || (whole && errno != 0) || length == sizeof digits - 1)
        return fail(x, "this number is malformed or too large");
    return TN_OK;
}

static tn_status read_array(reader *x, jj_value *out) {
    jj_list *list;
    TRY(tn_jj_new_list(x->run, out, &list));
    if (jinja_json_takes(x, ']')) return TN_OK;
    do {
        jj_value item;
        TRY(read_value(x, &item));
        TRY(tn_jj_push(x->run, list, item));
    } while (jinja_json_takes(x, ','));
    return jinja_json_takes(x, ']') ? TN_OK : fail(x, "] or , is expected");
}

static tn_status read_object(reader *x, jj_value *out) {
    jj_dict *dict;
    TRY(tn_jj_new_dict(x->run, JJ_DICT, out, &dict));
    if (jinja_json_takes(x, '}')) return TN_OK;
    do {
        jj_value key, value;
        if (!jinja_json_takes(x, '"')) return fail(x, "a key is expected");
        TRY(read_string(x, &key));
        if (!jinja_json_takes(x, ':')) return fail(x, ": is expected");
        TRY(read_value(x, &value));
        TRY(tn_jj_put(x->run, dict, key, value));
    } while (jinja_json_takes(x, ','));
    return jinja_json_takes(x, '}') ? TN_OK : fail(x, "} or , is expected");
}

static bool takes_word(reader *x, const char *word) {
    size_t length = strlen(word);
    if (x->size - x->at < length || memcmp(x->text + x->at, word, length) != 0) return false;
    x->at += length;
    return true;
}

static tn_status read_value(reader *x, jj_value *out) {
    if (x->depth >= JJ_MAX_DEPTH) return fail(x, "nested too deep");
    x->depth++;
    tn_status status = TN_OK;
    skip_blanks(x);
    if (jinja_json_takes(x, '"')) {
        status = read_string(x, out);
    } else if (jinja_json_takes(x, '[')) {
        status = read_array(x, out);
    } else if (jinja_json_takes(x, '{')) {
        status = read_object(x, out);
    } else if (takes_word(x, "null")) {
        *out = jj_none();
    } else if (takes_word(x, "true")) {
        *out = jj_bool(true);
    } else if (takes_word(x, "false")) {
        *out = jj_bool(false);
    } else {
        status = read_number(x, out);
    }
    x->depth--;
    return status == TN_OK ? tn_jj_charge(x->run, 1) : status;
}

tn_status tn_jj_read_json(jj_run *r, const char *text, size_t size, jj_value *out) {
    reader x = {.run = r, .text = text, .size = size};
    TRY(read_value(&x, out));
    skip_blanks(&x);
    return x.at == size ? TN_OK : fail(&x, "more follows behind the value");
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static tn_status put_jinja_json(tn_bytes *out, const char *text) { return tn_bytes_append(out, text, strlen(text)); }

static tn_status put_unit(uint32_t unit, tn_bytes *out) {
    char escaped[16];
    snprintf(escaped, sizeof escaped, "\\u%04x", (unsigned)unit);
    return put_jinja_json(out, escaped);
}

/* A character beyond ASCII, as escapes of UTF-16. */
static tn_status put_code(uint32_t code, tn_bytes *out) {
    if (code < 0x10000) return put_unit(code, out);
    TRY(put_unit(0xd800 + ((code - 0x10000) >> 10), out));
    return put_unit(0xdc00 + ((code - 0x10000) & 0x3ff), out);
}

static tn_status write_string(const jj_value *v, bool ascii, tn_bytes *out) {
    static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
    TRY(put_jinja_json(out, "\""));
    for (size_t i = 0, length; i < v->size; i += length) {
        uint32_t code = (unsigned char)v->text[i];
        const char *place = code ? strchr(from, v->text[i]) : NULL;
        const char simple[] = {'\\', place ? to[place - from] : 0, 0};
        length = 1;
        if (place) {
            TRY(put_jinja_json(out, simple));
        } else if (code < 32) {
            TRY(put_unit(code, out));
        } else if (code >= 0x80 && ascii && (length = tn_txt_utf8(v->text + i, v->size - i, &code)) > 0) {
            TRY(put_code(code, out));
        } else {
            length = 1;
            TRY(tn_bytes_append(out, v->text + i, 1));
        }
    }
    return put_jinja_json(out, "\"");
}

static tn_status new_line(const jj_json_style *s, int level, tn_bytes *out) {
    if (s->indent < 0) return TN_OK;
    TRY(put_jinja_json(out, "\n"));
    for (int64_t i = 0; i < (int64_t)s->indent * level; i++)
        TRY(put_jinja_json(out, " "));
    return TN_OK;
}

static tn_status write_list(jj_run *r, const jj_list *list, const jj_json_style *s, int level, tn_bytes *out) {
    if (list->count == 0) return put_jinja_json(out, "[]");
    TRY(put_jinja_json(out, "["));
    for (size_t i = 0; i < list->count; i++) {
        if (i > 0) TRY(put_jinja_json(out, s->item_separator));
        TRY(new_line(s, level + 1, out));
        TRY(tn_jj_write_json(r, &list->items[i], s, level + 1, out));
    }
    TRY(new_line(s, level, out));
    return put_jinja_json(out, "]");
}

/* A key: numbers, booleans and none become strings. */
static tn_status write_key_jinja_json(jj_run *r, const jj_value *key, const jj_json_style *s, tn_bytes *out) {
    if (key->kind == JJ_STRING) return write_string(key, s->ascii, out);
    TRY(put_jinja_json(out, "\""));
    TRY(tn_jj_write_json(r, key, s, 0, out));
    return put_jinja_json(out, "\"");
}

/* The same dict with its keys sorted: by insertion, keys are few. */
static tn_status sort_keys(jj_run *r, const jj_dict *d, jj_dict *out) {
    *out = (jj_dict){.count = d->count, .pairs = tn_jj_alloc(&r->arena, d->count, sizeof *d->pairs)};
    if (!out->pairs) return TN_ERR_MEMORY;
    for (size_t i = 0; i < d->count; i++) {
        size_t at = i;
        for (int order = 0; at > 0; at--) {
            TRY(tn_jj_order(r, &out->pairs[at - 1].key, &d->pairs[i].key, &order));
            if (order <= 0) break;
            out->pairs[at] = out->pairs[at - 1];
        }
        out->pairs[at] = d->pairs[i];
    }
    return TN_OK;
}

static tn_status write_dict(jj_run *r, const jj_dict *d, const jj_json_style *s, int level, tn_bytes *out) {
    jj_dict sorted;
    if (d->count == 0) return put_jinja_json(out, "{}");
    if (s->sorted) {
        TRY(sort_keys(r, d, &sorted));
        d = &sorted;
    }
    TRY(put_jinja_json(out, "{"));
    for (size_t i = 0; i < d->count; i++) {
        const jj_pair *pair = &d->pairs[i];
        if (i > 0) TRY(put_jinja_json(out, s->item_separator));
        TRY(new_line(s, level + 1, out));
        TRY(write_key_jinja_json(r, &pair->key, s, out));
        TRY(put_jinja_json(out, s->key_separator));
        TRY(tn_jj_write_json(r, &pair->value, s, level + 1, out));
    }
    TRY(new_line(s, level, out));
    return put_jinja_json(out, "}");
}

static tn_status write_float(double v, tn_bytes *out) {
    char number[32];
    tn_jj_print_float(v, number);
    return put_jinja_json(out, isnan(v) ? "NaN" : isinf(v) ? (v > 0 ? "Infinity" : "-Infinity") : number);
}

tn_status tn_jj_write_json(jj_run *r, const jj_value *v, const jj_json_style *s, int level, tn_bytes *out) {
    char number[32];
    if (level > JJ_MAX_DEPTH) return tn_jj_fail(r, "nested more than %d levels deep", JJ_MAX_DEPTH);
    if (out->size > r->max_written) return tn_jj_fail(r, "a text of more than %zu bytes", r->max_written);
    TRY(tn_jj_charge(r, 1 + (v->kind == JJ_STRING ? v->size / 64 : 0)));
    switch (v->kind) {
    case JJ_NONE: return put_jinja_json(out, "null");
    case JJ_BOOL: return put_jinja_json(out, v->truth ? "true" : "false");
    case JJ_INT: snprintf(number, sizeof number, "%lld", (long long)v->integer); return put_jinja_json(out, number);
    case JJ_FLOAT: return write_float(v->number, out);
    case JJ_STRING: return write_string(v, s->ascii, out);
    case JJ_LIST: return write_list(r, v->list, s, level, out);
    case JJ_DICT: return write_dict(r, v->dict, s, level, out);
    default: return tn_jj_fail(r, "%s cannot be written as JSON", tn_jj_kind_name(v));
    }
}
