/* jinja_lex.c — cuts a template into tokens.
 *
 * White space is Jinja's with trim_blocks and lstrip_blocks, which is how chat templates are meant: a block or comment
 * that stands alone on its line leaves nothing of the line; a minus sign inside a tag eats all white space on that
 * side; a plus sign keeps it. Line ends become \n, and one at the end of the template is dropped. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja.h"
#include "text/tokenizer.h"

typedef struct lexer {
    jj_arena *arena;
    const char *text;
    size_t size, at;
    size_t counted;        /* place up to which lines are counted */
    uint32_t line, column; /* there */
    bool line_starting;    /* what came last ended a line */
    bool strip_next;       /* the last tag ended in a minus */
    jj_token *first, *last;
} lexer;

/* ---- places ------------------------------------------------------------------------------------------------------ */

tn_status tn_jj_fail_at(uint32_t line, uint32_t column, const char *format, ...) {
    char text[400];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return tn_backend_fail(TN_ERR_FORMAT, "chat template, line %u, column %u: %s", line, column, text);
}

/* Counts lines and columns up to `place`, which never goes back. */
static void count_lines(lexer *x, size_t place) {
    for (; x->counted < place; x->counted++) {
        unsigned char c = (unsigned char)x->text[x->counted];
        if (c == '\n') {
            x->line++;
            x->column = 1;
        } else if ((c & 0xc0) != 0x80) {
            x->column++;
        }
    }
}

static tn_status fail_here(const lexer *x, size_t place, const char *what) {
    lexer y = {.text = x->text, .line = 1, .column = 1}; /* the place may lie before what has been counted */
    count_lines(&y, place);
    return tn_jj_fail_at(y.line, y.column, "%s", what);
}

static tn_status add_lexer(lexer *x, jj_token_kind kind, size_t place, jj_token **out) {
    jj_token *t = tn_jj_alloc(x->arena, 1, sizeof *t);
    if (!t) return TN_ERR_MEMORY;
    count_lines(x, place);
    t->kind = kind;
    t->line = x->line;
    t->column = x->column;
    if (x->last) {
        x->last->next = t;
    } else {
        x->first = t;
    }
    x->last = t;
    *out = t;
    return TN_OK;
}

/* ---- inside tags ------------------------------------------------------------------------------------------------- */

static bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
static bool is_digit(char c) { return c >= '0' && c <= '9'; }
/* Names may have letters of any alphabet. */
static bool begins_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (unsigned char)c >= 0x80;
}
static bool continues_name(char c) { return begins_name(c) || is_digit(c); }

static bool looks_at(const lexer *x, size_t at, const char *what) {
    size_t length = strlen(what);
    return x->size - at >= length && !memcmp(x->text + at, what, length);
}

static tn_status spell(lexer *x, jj_token *t, size_t begin, size_t end) {
    char *copy = tn_jj_alloc(x->arena, end - begin + 1, 1);
    if (!copy) return TN_ERR_MEMORY;
    memcpy(copy, x->text + begin, end - begin);
    t->spelling = copy;
    return TN_OK;
}

static tn_status lex_name(lexer *x) {
    jj_token *t;
    size_t begin = x->at;
    while (x->at < x->size && continues_name(x->text[x->at]))
        x->at++;
    TRY(add_lexer(x, JJ_T_NAME, begin, &t));
    return spell(x, t, begin, x->at);
}

static void skip_digits(lexer *x) {
    while (x->at < x->size && (is_digit(x->text[x->at]) || x->text[x->at] == '_'))
        x->at++;
}

static tn_status lex_number(lexer *x) {
    jj_token *t;
    size_t begin = x->at;
    bool whole = true;
    skip_digits(x);
    if (x->at + 1 < x->size && x->text[x->at] == '.' && is_digit(x->text[x->at + 1])) {
        whole = false;
        x->at++;
        skip_digits(x);
    }
    if (x->at < x->size && (x->text[x->at] | 0x20) == 'e') {
        size_t digits = x->at + 1 + (x->at + 1 < x->size && strchr("+-", x->text[x->at + 1]) != NULL);
        if (digits < x->size && is_digit(x->text[digits])) {
            whole = false;
            x->at = digits;
            skip_digits(x);
        }
    }
    char digits[64];
    size_t length = 0;
    for (size_t i = begin; i < x->at && length < sizeof digits - 1; i++)
        if (x->text[i] != '_') digits[length++] = x->text[i];
    digits[length] = 0;
    TRY(add_lexer(x, whole ? JJ_T_INT : JJ_T_FLOAT, begin, &t));
    errno = 0;
    t->value = whole ? jj_int(strtoll(digits, NULL, 10)) : jj_float(strtod(digits, NULL));
    if (length == sizeof digits - 1 || (whole && errno != 0)) return fail_here(x, begin, "this number is too large");
    return TN_OK;
}

/* The value of `count` hexadecimal or (octal) digits. */
static int digit_of(char c) {
    if (is_digit(c)) return c - '0';
    c = (char)(c | 0x20);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool read_code(const char *text, size_t size, size_t count, uint32_t *code) {
    *code = 0;
    for (size_t i = 0; i < count; i++) {
        int digit = i < size ? digit_of(text[i]) : -1;
        if (digit < 0) return false;
        *code = *code * 16 + (uint32_t)digit;
    }
    return *code <= 0x10ffff;
}

/* Writes what the escape at text (behind the backslash) means; returns the bytes read, 0 for a malformed one. */
static size_t unescape(const char *text, size_t size, char *out, size_t *written) {
    static const char from[] = "\\'\"nrtabfv", to[] = "\\'\"\n\r\t\a\b\f\v";
    *written = 0;
    const char *simple = size > 0 && text[0] ? strchr(from, text[0]) : NULL;
    if (simple) {
        out[(*written)++] = to[simple - from];
        return 1;
    }
    if (text[0] == '\n') return 1;
    if (text[0] >= '0' && text[0] <= '7') {
        uint32_t code = 0;
        size_t n = 0;
        for (; n < 3 && n < size && text[n] >= '0' && text[n] <= '7'; n++)
            code = code * 8 + (uint32_t)(text[n] - '0');
        *written = tn_txt_utf8_write(code, out);
        return n;
    }
    size_t digits = text[0] == 'x' ? 2 : text[0] == 'u' ? 4 : text[0] == 'U' ? 8 : 0;
    if (digits > 0) {
        uint32_t code;
        if (!read_code(text + 1, size - 1, digits, &code)) return 0;
        *written = tn_txt_utf8_write(code, out);
        return digits + 1;
    }
    out[(*written)++] = '\\'; /* no escape: both stay */
    return SIZE_MAX;
}

static tn_status lex_string(lexer *x) {
    jj_token *t;
    size_t begin = x->at, end = begin + 1, length = 0;
    char quote = x->text[begin];
    while (end < x->size && x->text[end] != quote)
        end += x->text[end] == '\\' ? 2 : 1;
    if (end >= x->size) return fail_here(x, begin, "this string has no end");
    char *value = tn_jj_alloc(x->arena, 2 * (end - begin) + 4, 1);
    if (!value) return TN_ERR_MEMORY;
    for (size_t i = begin + 1; i < end;) {
        if (x->text[i] != '\\') {
            value[length++] = x->text[i++];
            continue;
        }
        size_t written, taken = unescape(x->text + i + 1, end - i - 1, value + length, &written);
        if (taken == 0) return fail_here(x, i, "this escape is not one that strings know");
        length += written;
        i += 1 + (taken == SIZE_MAX ? 0 : taken);
    }
    TRY(add_lexer(x, JJ_T_STRING, begin, &t));
    t->value = jj_text(value, length);
    x->at = end + 1;
    return TN_OK;
}

static tn_status lex_operator(lexer *x) {
    static const char *const operators[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "*", "/", "%", "~", "[",
                                            "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};
    jj_token *t;
    for (size_t i = 0; i < sizeof operators / sizeof *operators; i++) {
        if (!looks_at(x, x->at, operators[i])) continue;
        TRY(add_lexer(x, JJ_T_OPERATOR, x->at, &t));
        t->spelling = operators[i];
        x->at += strlen(operators[i]);
        return TN_OK;
    }
    return fail_here(x, x->at, "this character has no meaning here");
}

static tn_status lex_token(lexer *x) {
    char c = x->text[x->at];
    if (begins_name(c)) return lex_name(x);
    if (is_digit(c)) return lex_number(x);
    if (c == '"' || c == '\'') return lex_string(x);
    return lex_operator(x);
}

/* The end of a tag: white space behind it goes as its sign says. */
static void finish_tag(lexer *x, char sign, bool trims) {
    x->line_starting = false;
    if (sign == '-') {
        while (x->at < x->size && is_space(x->text[x->at]))
            x->at++;
        x->line_starting = x->text[x->at - 1] == '\n';
    } else if (trims && sign != '+' && x->at < x->size && x->text[x->at] == '\n') {
        x->at++;
        x->line_starting = true;
    }
}

/* From behind {% or {{ to behind its end. Brackets may hold what looks like an end. */
static tn_status lex_tag(lexer *x, bool block, size_t begin) {
    jj_token *t;
    const char *end = block ? "%}" : "}}";
    int open = 0;
    TRY(add_lexer(x, block ? JJ_T_BLOCK_BEGIN : JJ_T_OUTPUT_BEGIN, begin, &t));
    for (;;) {
        while (x->at < x->size && is_space(x->text[x->at]))
            x->at++;
        if (x->at >= x->size) return fail_here(x, begin, block ? "this {% has no %}" : "this {{ has no }}");
        char sign = x->text[x->at];
        size_t signs = sign == '-' || (sign == '+' && block) ? 1 : 0;
        if (open == 0 && looks_at(x, x->at + signs, end)) {
            TRY(add_lexer(x, block ? JJ_T_BLOCK_END : JJ_T_OUTPUT_END, x->at, &t));
            x->at += signs + 2;
            finish_tag(x, signs ? sign : 0, block);
            return TN_OK;
        }
        open += strchr("([{", sign) != NULL;
        open -= strchr(")]}", sign) != NULL;
        if (open < 0) return fail_here(x, x->at, "this bracket was not opened");
        TRY(lex_token(x));
    }
}

/* ---- outside tags ------------------------------------------------------------------------------------------------ */

static tn_status add_text(lexer *x, size_t begin, size_t end) {
    jj_token *t;
    if (begin >= end) return TN_OK;
    TRY(add_lexer(x, JJ_T_TEXT, begin, &t));
    t->value = jj_text(x->text + begin, end - begin);
    return TN_OK;
}

/* Where the text before a tag ends: less its white space, as the tag's sign says. */
static size_t end_of_text(const lexer *x, size_t begin, size_t tag, bool strips_line) {
    char sign = tag + 2 < x->size ? x->text[tag + 2] : 0;
    size_t end = tag;
    if (sign == '-') {
        while (end > begin && is_space(x->text[end - 1]))
            end--;
        return end;
    }
    if (sign == '+' || !strips_line) return tag;
    while (end > begin && x->text[end - 1] != '\n')
        end--;
    if (end == begin && !x->line_starting) return tag;
    for (size_t i = end; i < tag; i++)
        if (!is_space(x->text[i])) return tag;
    return end;
}

static tn_status lex_comment(lexer *x, size_t begin) {
    for (size_t at = begin + 2; at + 1 < x->size; at++) {
        if (x->text[at] != '#' || x->text[at + 1] != '}') continue;
        x->at = at + 2;
        finish_tag(x, at > begin + 2 ? x->text[at - 1] : 0, true);
        return TN_OK;
    }
    return fail_here(x, begin, "this {# has no #}");
}

/* The length of a tag {% word %} at `at`, 0 if there is none; *sign is the one at its end. */
static size_t bare_tag(const lexer *x, size_t at, const char *word, char *sign) {
    size_t i = at + 2;
    if (!looks_at(x, at, "{%")) return 0;
    if (i < x->size && (x->text[i] == '-' || x->text[i] == '+')) i++;
    while (i < x->size && is_space(x->text[i]))
        i++;
    if (!looks_at(x, i, word)) return 0;
    i += strlen(word);
    while (i < x->size && is_space(x->text[i]))
        i++;
    *sign = i < x->size && (x->text[i] == '-' || x->text[i] == '+') ? x->text[i++] : 0;
    return looks_at(x, i, "%}") ? i + 2 - at : 0;
}

static tn_status lex_raw(lexer *x, size_t begin) {
    char sign;
    size_t length;
    for (size_t at = x->at; at < x->size; at++) {
        if (x->text[at] != '{' || (length = bare_tag(x, at, "endraw", &sign)) == 0) continue;
        TRY(add_text(x, x->at, end_of_text(x, x->at, at, true)));
        x->at = at + length;
        finish_tag(x, sign, true);
        return TN_OK;
    }
    return fail_here(x, begin, "this raw block has no endraw");
}

/* Text up to the next tag, and the tag. */
static tn_status lex_part(lexer *x) {
    size_t begin = x->at, tag = begin;
    while (tag + 1 < x->size && !(x->text[tag] == '{' && strchr("{%#", x->text[tag + 1]) && x->text[tag + 1]))
        tag++;
    if (tag + 1 >= x->size) {
        x->at = x->size;
        return add_text(x, begin, x->size);
    }
    char kind = x->text[tag + 1], sign = 0;
    TRY(add_text(x, begin, end_of_text(x, begin, tag, kind != '{')));
    size_t raw = kind == '%' ? bare_tag(x, tag, "raw", &sign) : 0;
    if (raw > 0) {
        x->at = tag + raw;
        finish_tag(x, sign, true);
        return lex_raw(x, tag);
    }
    if (kind == '#') return lex_comment(x, tag);
    x->at = tag + 2;
    if (x->at < x->size && (x->text[x->at] == '-' || (x->text[x->at] == '+' && kind == '%'))) x->at++;
    return lex_tag(x, kind == '%', tag);
}

/* A copy with \n for every line end, and without one at the end. */
static tn_status normalise(jj_arena *arena, const char *source, size_t size, char **out, size_t *length) {
    char *text = tn_jj_alloc(arena, size + 1, 1);
    size_t n = 0;
    if (!text) return TN_ERR_MEMORY;
    for (size_t i = 0; i < size; i++) {
        if (source[i] == '\r' && i + 1 < size && source[i + 1] == '\n') continue;
        text[n++] = source[i] == '\r' ? '\n' : source[i];
    }
    if (n > 0 && text[n - 1] == '\n') n--;
    *out = text;
    *length = n;
    return TN_OK;
}

tn_status tn_jj_lex(jj_arena *arena, const char *source, size_t size, jj_token **out) {
    lexer x = {.arena = arena, .line = 1, .column = 1, .line_starting = true};
    jj_token *end;
    char *text;
    TRY(normalise(arena, source, size, &text, &x.size));
    x.text = text;
    while (x.at < x.size)
        TRY(lex_part(&x));
    TRY(add_lexer(&x, JJ_T_END, x.size, &end));
    *out = x.first;
    return TN_OK;
}
