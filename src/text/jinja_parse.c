/* jinja_parse.c — a template's tokens, and from tokens to a tree by recursive descent. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja.h"
#include "text/tokenizer.h"

/* ==== tokens ====================================================================================================== */
/* White space is Jinja's with trim_blocks and lstrip_blocks, which is how chat templates are meant: a block or comment
 * that stands alone on its line leaves nothing of the line; a minus sign inside a tag eats all white space on that
 * side; a plus sign keeps it. Line ends become \n, and one at the end of the template is dropped. */

typedef struct lexer {
    jj_arena *arena;
    const char *text;
    size_t size, at;
    size_t counted;        /* place up to which lines are counted */
    uint32_t line, column; /* there */
    bool line_starting;    /* what came last ended a line */
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
    if (x->last)
        x->last->next = t;
    else
        x->first = t;
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

/* The value of `count` hexadecimal digits. */
static bool read_code(const char *text, size_t size, size_t count, uint32_t *code) {
    *code = 0;
    for (size_t i = 0; i < count; i++) {
        int digit = i < size ? tn_txt_hex(text[i]) : -1;
        if (digit < 0) return false;
        *code = *code * 16 + (uint32_t)digit;
    }
    return *code <= 0x10ffff;
}

/* Writes what the escape at text (after the backslash) means; returns the bytes read, 0 for a malformed one. */
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
    if (end >= x->size) return fail_here(x, begin, "unterminated string");
    char *value = tn_jj_alloc(x->arena, 2 * (end - begin) + 4, 1);
    if (!value) return TN_ERR_MEMORY;
    for (size_t i = begin + 1; i < end;) {
        if (x->text[i] != '\\') {
            value[length++] = x->text[i++];
            continue;
        }
        size_t written, taken = unescape(x->text + i + 1, end - i - 1, value + length, &written);
        if (taken == 0) return fail_here(x, i, "unknown escape in a string");
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
    return fail_here(x, x->at, "unexpected character");
}

static tn_status lex_token(lexer *x) {
    char c = x->text[x->at];
    if (begins_name(c)) return lex_name(x);
    if (is_digit(c)) return lex_number(x);
    if (c == '"' || c == '\'') return lex_string(x);
    return lex_operator(x);
}

/* The end of a tag: white space after it goes as its sign says. */
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

/* From after {% or {{ to after its end. Brackets may hold what looks like an end. */
static tn_status lex_tag(lexer *x, bool block, size_t begin) {
    jj_token *t;
    const char *end = block ? "%}" : "}}";
    int open = 0;
    TRY(add_lexer(x, block ? JJ_T_BLOCK_BEGIN : JJ_T_OUTPUT_BEGIN, begin, &t));
    for (;;) {
        while (x->at < x->size && is_space(x->text[x->at]))
            x->at++;
        if (x->at >= x->size) return fail_here(x, begin, block ? "{% without %}" : "{{ without }}");
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
        if (open < 0) return fail_here(x, x->at, "closing bracket without an opening one");
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
    return fail_here(x, begin, "{# without #}");
}

/* The length of a tag {% word %} at `at`, 0 if there is no tag; *sign is the sign at its end. */
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
    return fail_here(x, begin, "raw block without endraw");
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

/* ==== parser ====================================================================================================== */
/* What Jinja has and chat templates do not need (inheritance, imports, call blocks) is refused by name. */

typedef struct parser {
    jj_arena *arena;
    const jj_token *at;
    int depth, loops;
} parser;

static tn_status parse_expression(parser *p, jj_node **out);
static tn_status parse_unary(parser *p, bool with_filters, jj_node **out);
static tn_status parse_body(parser *p, const char *const *ends, jj_node **out, const char **end);

/* ---- tokens ------------------------------------------------------------------------------------------------------ */

static tn_status fail(const parser *p, const char *what) {
    const jj_token *t = p->at;
    const char *found = t->spelling                  ? t->spelling
                        : t->kind == JJ_T_END        ? "the end"
                        : t->kind == JJ_T_BLOCK_END  ? "%}"
                        : t->kind == JJ_T_OUTPUT_END ? "}}"
                        : t->kind == JJ_T_STRING     ? "a string"
                        : t->kind == JJ_T_TEXT       ? "text"
                        : t->kind == JJ_T_INT        ? "a number"
                        : t->kind == JJ_T_FLOAT      ? "a number"
                                                     : "a tag";
    return tn_jj_fail_at(t->line, t->column, "%s, not %.60s", what, found);
}

static bool sees(const parser *p, const char *spelling) {
    return p->at->spelling && (p->at->kind == JJ_T_OPERATOR || p->at->kind == JJ_T_NAME) &&
           !strcmp(p->at->spelling, spelling);
}

static bool parser_takes(parser *p, const char *spelling) {
    if (!sees(p, spelling)) return false;
    p->at = p->at->next;
    return true;
}

static tn_status need_parser(parser *p, const char *spelling) {
    char what[40] = "";
    if (parser_takes(p, spelling)) return TN_OK;
    strcat(strcat(strcat(what, "expected \""), spelling), "\"");
    return fail(p, what);
}

static tn_status need_name(parser *p, const char **out) {
    if (p->at->kind != JJ_T_NAME) return fail(p, "expected a name");
    *out = p->at->spelling;
    p->at = p->at->next;
    return TN_OK;
}

static tn_status make_at(parser *p, const jj_token *place, jj_node_kind kind, jj_node **out) {
    *out = tn_jj_alloc(p->arena, 1, sizeof **out);
    if (!*out) return TN_ERR_MEMORY;
    (*out)->kind = kind;
    (*out)->line = place->line;
    (*out)->column = place->column;
    return TN_OK;
}

static tn_status make_parser(parser *p, jj_node_kind kind, jj_node **out) { return make_at(p, p->at, kind, out); }

static tn_status go_deeper(parser *p) {
    if (++p->depth <= JJ_MAX_DEPTH) return TN_OK;
    return tn_jj_fail_at(p->at->line, p->at->column, "nested more than %d levels deep", JJ_MAX_DEPTH);
}

/* ---- lists ------------------------------------------------------------------------------------------------------- */

/* Expressions with commas between them up to `close`, which is taken; the last comma may be followed by nothing. */
static tn_status parse_items(parser *p, const char *close, jj_node **items) {
    jj_node **tail = items;
    while (!parser_takes(p, close)) {
        TRY(parse_expression(p, tail));
        tail = &(*tail)->next;
        if (!sees(p, close)) TRY(need_parser(p, ","));
    }
    return TN_OK;
}

static tn_status parse_dict(parser *p, jj_node **out) {
    TRY(make_parser(p, JJ_DICT_OF, out));
    TRY(need_parser(p, "{"));
    jj_node **tail = &(*out)->items;
    while (!parser_takes(p, "}")) {
        TRY(parse_expression(p, tail));
        tail = &(*tail)->next;
        TRY(need_parser(p, ":"));
        TRY(parse_expression(p, tail));
        tail = &(*tail)->next;
        if (!sees(p, "}")) TRY(need_parser(p, ","));
    }
    return TN_OK;
}

/* (x), (x, y), (x,) and (). */
static tn_status parse_parentheses(parser *p, jj_node **out) {
    const jj_token *place = p->at;
    jj_node *first = NULL;
    TRY(need_parser(p, "("));
    if (!sees(p, ")")) TRY(parse_expression(p, &first));
    if (first && parser_takes(p, ")")) {
        *out = first;
        return TN_OK;
    }
    TRY(make_at(p, place, JJ_TUPLE_OF, out));
    (*out)->items = first;
    if (!first) return need_parser(p, ")");
    TRY(need_parser(p, ","));
    return parse_items(p, ")", &first->next);
}

/* Arguments of a call, after its "(": `name = value` are named ones, which come last. The keyword of *list and **dict
 * are the stars. */
static tn_status parse_arguments(parser *p, jj_node **items) {
    jj_node **tail = items;
    bool named = false;
    while (!parser_takes(p, ")")) {
        const char *name = NULL;
        bool is_named = p->at->kind == JJ_T_NAME && p->at->next->spelling && !strcmp(p->at->next->spelling, "=");
        bool stars = sees(p, "*") || sees(p, "**"); /* a list's items, a dict's pairs */
        if (stars) name = p->at->spelling;
        if (stars) p->at = p->at->next;
        if (named && !is_named && !(stars && !strcmp(name, "**"))) return fail(p, "named arguments must come last");
        if (is_named) TRY(need_name(p, &name));
        if (is_named) TRY(need_parser(p, "="));
        TRY(parse_expression(p, tail));
        (*tail)->keyword = name;
        named |= is_named || (stars && !strcmp(name, "**"));
        tail = &(*tail)->next;
        if (!sees(p, ")")) TRY(need_parser(p, ","));
    }
    return TN_OK;
}

/* ---- expressions ------------------------------------------------------------------------------------------------- */

static tn_status parse_constant(parser *p, jj_value value, jj_node **out) {
    TRY(make_parser(p, JJ_CONSTANT, out));
    (*out)->constant = value;
    p->at = p->at->next;
    return TN_OK;
}

static tn_status parse_name(parser *p, jj_node **out) {
    static const struct {
        const char *name;
        jj_value value;
    } constants[] = {
        {"true", {.kind = JJ_BOOL, .truth = true}},
        {"True", {.kind = JJ_BOOL, .truth = true}},
        {"false", {.kind = JJ_BOOL, .truth = false}},
        {"False", {.kind = JJ_BOOL, .truth = false}},
        {"none", {.kind = JJ_NONE}},
        {"None", {.kind = JJ_NONE}},
    };
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
        if (sees(p, constants[i].name)) return parse_constant(p, constants[i].value, out);
    TRY(make_parser(p, JJ_NAME, out));
    return need_name(p, &(*out)->name);
}

/* Strings that follow each other are one. */
static tn_status parse_strings(parser *p, jj_node **out) {
    size_t size = 0;
    for (const jj_token *t = p->at; t->kind == JJ_T_STRING; t = t->next)
        size += t->value.size;
    char *text = tn_jj_alloc(p->arena, size, 1);
    if (!text) return TN_ERR_MEMORY;
    TRY(make_parser(p, JJ_CONSTANT, out));
    (*out)->constant = jj_text(text, size);
    for (; p->at->kind == JJ_T_STRING; p->at = p->at->next) {
        memcpy(text, p->at->value.text, p->at->value.size);
        text += p->at->value.size;
    }
    return TN_OK;
}

static tn_status parse_primary(parser *p, jj_node **out) {
    switch (p->at->kind) {
    case JJ_T_NAME: return parse_name(p, out);
    case JJ_T_STRING: return parse_strings(p, out);
    case JJ_T_INT:
    case JJ_T_FLOAT: return parse_constant(p, p->at->value, out);
    default: break;
    }
    if (sees(p, "(")) return parse_parentheses(p, out);
    if (sees(p, "{")) return parse_dict(p, out);
    if (!sees(p, "[")) return fail(p, "expected a value");
    TRY(make_parser(p, JJ_LIST_OF, out));
    p->at = p->at->next;
    return parse_items(p, "]", &(*out)->items);
}

/* After "[": an index, or a slice with any of its three parts. */
static tn_status parse_subscript(parser *p, jj_node *whole, jj_node **out) {
    TRY(make_parser(p, JJ_ITEM, out));
    jj_node *n = *out, **parts[3] = {&n->b, &n->c, &n->d};
    n->a = whole;
    for (int i = 0; i < 3; i++) {
        if (!sees(p, ":") && !sees(p, "]")) TRY(parse_expression(p, parts[i]));
        if (sees(p, "]")) break;
        if (i < 2) TRY(need_parser(p, ":"));
        n->kind = JJ_SLICE;
    }
    if (n->kind == JJ_ITEM && !n->b) return fail(p, "expected an index");
    return need_parser(p, "]");
}

static tn_status parse_member(parser *p, jj_node *whole, jj_node **out) {
    TRY(make_parser(p, JJ_MEMBER, out));
    (*out)->a = whole;
    if (p->at->kind != JJ_T_INT) return need_name(p, &(*out)->name);
    (*out)->kind = JJ_ITEM;
    return parse_constant(p, p->at->value, &(*out)->b);
}

static tn_status parse_call(parser *p, jj_node *callee, jj_node **out) {
    TRY(make_parser(p, JJ_CALL, out));
    (*out)->a = callee;
    TRY(need_parser(p, "("));
    return parse_arguments(p, &(*out)->items);
}

/* Any number of .name, [index] and (arguments). */
static tn_status parse_postfix(parser *p, jj_node **node) {
    for (;;) {
        if (parser_takes(p, ".")) {
            TRY(parse_member(p, *node, node));
        } else if (parser_takes(p, "[")) {
            TRY(parse_subscript(p, *node, node));
        } else if (sees(p, "(")) {
            TRY(parse_call(p, *node, node));
        } else {
            return TN_OK;
        }
    }
}

static tn_status parse_filter(parser *p, jj_node *value, jj_node **out) {
    TRY(make_parser(p, JJ_FILTER, out));
    (*out)->a = value;
    TRY(need_name(p, &(*out)->name));
    if (!tn_jj_find_filter((*out)->name))
        return tn_jj_fail_at((*out)->line, (*out)->column, "unknown filter \"%.60s\"", (*out)->name);
    return parser_takes(p, "(") ? parse_arguments(p, &(*out)->items) : TN_OK;
}

/* Whether a test's single argument follows without brackets: `is divisibleby 3`. */
static bool begins_argument(const parser *p) {
    static const char *const others[] = {"else", "or", "and", "is", "if", "in", "not"};
    if (sees(p, "[") || sees(p, "{")) return true;
    if (p->at->kind == JJ_T_STRING || p->at->kind == JJ_T_INT || p->at->kind == JJ_T_FLOAT) return true;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (sees(p, others[i])) return false;
    return p->at->kind == JJ_T_NAME;
}

static tn_status parse_test(parser *p, jj_node *value, jj_node **out) {
    TRY(make_parser(p, JJ_TEST, out));
    jj_node *n = *out;
    n->a = value;
    n->negated = parser_takes(p, "not");
    TRY(need_name(p, &n->name));
    if (!tn_jj_find_test(n->name)) return tn_jj_fail_at(n->line, n->column, "unknown test \"%.60s\"", n->name);
    if (parser_takes(p, "(")) return parse_arguments(p, &n->items);
    if (!begins_argument(p)) return TN_OK;
    TRY(parse_primary(p, &n->items));
    return parse_postfix(p, &n->items);
}

static tn_status parse_filters(parser *p, jj_node **node) {
    for (;;) {
        if (parser_takes(p, "|")) {
            TRY(parse_filter(p, *node, node));
        } else if (parser_takes(p, "is")) {
            TRY(parse_test(p, *node, node));
        } else if (sees(p, "(")) {
            TRY(parse_call(p, *node, node));
        } else {
            return TN_OK;
        }
    }
}

static tn_status parse_unary(parser *p, bool with_filters, jj_node **out) {
    TRY(go_deeper(p));
    bool minus = sees(p, "-");
    if (minus || sees(p, "+")) {
        TRY(make_parser(p, minus ? JJ_NEGATIVE : JJ_POSITIVE, out));
        p->at = p->at->next;
        TRY(parse_unary(p, false, &(*out)->a));
    } else {
        TRY(parse_primary(p, out));
    }
    TRY(parse_postfix(p, out));
    if (with_filters) TRY(parse_filters(p, out));
    p->depth--;
    return TN_OK;
}

/* Operators by precedence, the weakest first; all of a level group from the left. */
typedef struct operator_row {
    const char *spelling;
    jj_op op;
} operator_row;

static const operator_row levels[4][5] = {
    {{"+", JJ_ADD}, {"-", JJ_SUBTRACT}},
    {{"~", JJ_CONCAT}},
    {{"*", JJ_MULTIPLY}, {"/", JJ_DIVIDE}, {"//", JJ_FLOOR}, {"%", JJ_MODULO}},
    {{"**", JJ_POWER}},
};

static jj_op take_operator(parser *p, const operator_row *rows) {
    for (int i = 0; i < 5 && rows[i].spelling; i++)
        if (p->at->kind == JJ_T_OPERATOR && parser_takes(p, rows[i].spelling)) return rows[i].op;
    return JJ_OP_NONE;
}

static tn_status parse_level(parser *p, int level, jj_node **out) {
    if (level == 4) return parse_unary(p, true, out);
    TRY(parse_level(p, level + 1, out));
    for (;;) {
        const jj_token *place = p->at;
        jj_op op = take_operator(p, levels[level]);
        if (op == JJ_OP_NONE) return TN_OK;
        jj_node *n;
        TRY(make_at(p, place, JJ_BINARY, &n));
        n->op = op;
        n->a = *out;
        TRY(parse_level(p, level + 1, &n->b));
        *out = n;
    }
}

static jj_op take_comparison(parser *p) {
    static const operator_row rows[] = {{"==", JJ_EQUAL},         {"!=", JJ_UNEQUAL}, {"<=", JJ_LESS_EQUAL},
                                        {">=", JJ_GREATER_EQUAL}, {"<", JJ_LESS},     {">", JJ_GREATER}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (p->at->kind == JJ_T_OPERATOR && parser_takes(p, rows[i].spelling)) return rows[i].op;
    if (parser_takes(p, "in")) return JJ_IN;
    if (!sees(p, "not") || !p->at->next->spelling || strcmp(p->at->next->spelling, "in") != 0) return JJ_OP_NONE;
    p->at = p->at->next->next;
    return JJ_NOT_IN;
}

/* a < b <= c: each value is compared with the next. */
static tn_status parse_comparison(parser *p, jj_node **out) {
    TRY(parse_level(p, 0, out));
    jj_node *whole = NULL, **tail = NULL;
    for (;;) {
        const jj_token *place = p->at;
        jj_op op = take_comparison(p);
        if (op == JJ_OP_NONE) return TN_OK;
        if (!whole) {
            TRY(make_at(p, place, JJ_COMPARE, &whole));
            whole->a = *out;
            tail = &whole->items;
            *out = whole;
        }
        TRY(make_at(p, place, JJ_COMPARE, tail));
        (*tail)->op = op;
        TRY(parse_level(p, 0, &(*tail)->a));
        tail = &(*tail)->next;
    }
}

static tn_status parse_not(parser *p, jj_node **out) {
    if (!sees(p, "not")) return parse_comparison(p, out);
    TRY(go_deeper(p));
    TRY(make_parser(p, JJ_NOT, out));
    p->at = p->at->next;
    TRY(parse_not(p, &(*out)->a));
    p->depth--;
    return TN_OK;
}

static tn_status parse_logic(parser *p, bool either, jj_node **out) {
    TRY(either ? parse_logic(p, false, out) : parse_not(p, out));
    while (sees(p, either ? "or" : "and")) {
        jj_node *n;
        TRY(make_parser(p, either ? JJ_OR : JJ_AND, &n));
        p->at = p->at->next;
        n->a = *out;
        TRY(either ? parse_logic(p, false, &n->b) : parse_not(p, &n->b));
        *out = n;
    }
    return TN_OK;
}

static tn_status parse_expression(parser *p, jj_node **out) {
    TRY(go_deeper(p));
    TRY(parse_logic(p, true, out));
    while (sees(p, "if")) {
        jj_node *n;
        TRY(make_parser(p, JJ_CHOICE, &n));
        p->at = p->at->next;
        n->a = *out;
        TRY(parse_logic(p, true, &n->b));
        if (parser_takes(p, "else")) TRY(parse_expression(p, &n->c));
        *out = n;
    }
    p->depth--;
    return TN_OK;
}

/* An expression, or several with commas between them: a tuple. */
static tn_status parse_tuple(parser *p, jj_node **out) {
    const jj_token *place = p->at;
    TRY(parse_expression(p, out));
    if (!sees(p, ",")) return TN_OK;
    jj_node *n, **tail = &(*out)->next;
    TRY(make_at(p, place, JJ_TUPLE_OF, &n));
    n->items = *out;
    *out = n;
    while (parser_takes(p, ",") && p->at->kind != JJ_T_BLOCK_END && p->at->kind != JJ_T_OUTPUT_END && !sees(p, "=")) {
        TRY(parse_expression(p, tail));
        tail = &(*tail)->next;
    }
    return TN_OK;
}

/* ---- statements -------------------------------------------------------------------------------------------------- */

static tn_status end_tag(parser *p) {
    if (p->at->kind != JJ_T_BLOCK_END) return fail(p, "expected %}");
    p->at = p->at->next;
    return TN_OK;
}

/* One or several names, perhaps with brackets around: what a for or a set gives values to. */
static tn_status parse_target(parser *p, jj_node **out) {
    bool brackets = parser_takes(p, "(");
    const jj_token *place = p->at;
    jj_node *first, **tail;
    TRY(make_parser(p, JJ_NAME, &first));
    TRY(need_name(p, &first->name));
    *out = first;
    if (!brackets && sees(p, ".")) {
        TRY(make_parser(p, JJ_MEMBER, out));
        (*out)->a = first;
        p->at = p->at->next;
        return need_name(p, &(*out)->name);
    }
    if (sees(p, ",")) {
        TRY(make_at(p, place, JJ_TUPLE_OF, out));
        (*out)->items = first;
    }
    for (tail = &first->next; parser_takes(p, ",") && p->at->kind == JJ_T_NAME && !sees(p, "in");
         tail = &(*tail)->next) {
        TRY(make_parser(p, JJ_NAME, tail));
        TRY(need_name(p, &(*tail)->name));
    }
    return brackets ? need_parser(p, ")") : TN_OK;
}

static tn_status parse_if(parser *p, jj_node **out) {
    static const char *const ends[] = {"elif", "else", "endif", NULL}, *const last[] = {"endif", NULL};
    const char *end;
    TRY(make_parser(p, JJ_IF, out));
    jj_node *n = *out;
    TRY(parse_tuple(p, &n->a));
    TRY(end_tag(p));
    for (;;) { /* a chain of elifs is as deep as one if */
        TRY(parse_body(p, ends, &n->body, &end));
        if (strcmp(end, "elif") != 0) break;
        TRY(make_parser(p, JJ_IF, &n->other));
        n = n->other;
        TRY(parse_tuple(p, &n->a));
        TRY(end_tag(p));
    }
    if (!strcmp(end, "else")) {
        TRY(end_tag(p));
        TRY(parse_body(p, last, &n->other, &end));
    }
    return end_tag(p);
}

static tn_status parse_for(parser *p, jj_node **out) {
    static const char *const ends[] = {"else", "endfor", NULL}, *const last[] = {"endfor", NULL};
    const char *end;
    TRY(make_parser(p, JJ_FOR, out));
    jj_node *n = *out;
    TRY(parse_target(p, &n->a));
    if (n->a->kind == JJ_MEMBER) return fail(p, "the targets of a for loop must be names");
    TRY(need_parser(p, "in"));
    TRY(parse_logic(p, true, &n->b)); /* an `if` after it is the loop's */
    if (parser_takes(p, "if")) TRY(parse_expression(p, &n->c));
    if (sees(p, "recursive")) return fail(p, "recursive loops are not supported; use a macro that calls itself");
    TRY(end_tag(p));
    p->loops++;
    TRY(parse_body(p, ends, &n->body, &end));
    p->loops--;
    if (!strcmp(end, "else")) {
        TRY(end_tag(p));
        TRY(parse_body(p, last, &n->other, &end));
    }
    return end_tag(p);
}

/* The rest of a tag, the statements after it, and the tag that ends them. */
static tn_status parse_block(parser *p, const char *name, jj_node **body) {
    const char *const ends[] = {name, NULL};
    const char *end;
    TRY(end_tag(p));
    TRY(parse_body(p, ends, body, &end));
    return end_tag(p);
}

/* The filters after {% filter or {% set name: a chain whose innermost value is missing. */
static tn_status parse_filter_chain(parser *p, jj_node **out) {
    TRY(parse_filter(p, NULL, out));
    while (parser_takes(p, "|"))
        TRY(parse_filter(p, *out, out));
    return TN_OK;
}

static tn_status parse_set(parser *p, jj_node **out) {
    TRY(make_parser(p, JJ_SET, out));
    TRY(parse_target(p, &(*out)->a));
    if (parser_takes(p, "=")) {
        (*out)->op = JJ_EQUAL;
        TRY(parse_tuple(p, &(*out)->b));
        return end_tag(p);
    }
    if (parser_takes(p, "|")) TRY(parse_filter_chain(p, &(*out)->b));
    return parse_block(p, "endset", &(*out)->body);
}

/* Names with values: name = value, … up to the end of the tag or ")". Each is a JJ_NAME with its value in a. */
static tn_status parse_bindings(parser *p, bool need_values, const char *close, jj_node **items) {
    jj_node **tail = items;
    bool optional = false;
    while (close ? !parser_takes(p, close) : p->at->kind != JJ_T_BLOCK_END) {
        TRY(make_parser(p, JJ_NAME, tail));
        TRY(need_name(p, &(*tail)->name));
        bool has_value = parser_takes(p, "=");
        if (!has_value && (need_values || optional)) return fail(p, "expected a value");
        if (has_value) TRY(parse_expression(p, &(*tail)->a));
        optional |= has_value;
        tail = &(*tail)->next;
        if (close ? !sees(p, close) : p->at->kind != JJ_T_BLOCK_END) TRY(need_parser(p, ","));
    }
    return TN_OK;
}

static tn_status parse_macro(parser *p, jj_node **out) {
    TRY(make_parser(p, JJ_MACRO, out));
    TRY(need_name(p, &(*out)->name));
    TRY(need_parser(p, "("));
    TRY(parse_bindings(p, false, ")", &(*out)->items));
    int loops = p->loops;
    p->loops = 0;
    TRY(parse_block(p, "endmacro", &(*out)->body));
    p->loops = loops;
    return TN_OK;
}

static tn_status parse_filtered(parser *p, jj_node **out) {
    TRY(make_parser(p, JJ_FILTERED, out));
    TRY(parse_filter_chain(p, &(*out)->a));
    return parse_block(p, "endfilter", &(*out)->body);
}

static tn_status parse_with(parser *p, jj_node **out) {
    TRY(make_parser(p, JJ_WITH, out));
    TRY(parse_bindings(p, true, NULL, &(*out)->items));
    return parse_block(p, "endwith", &(*out)->body);
}

/* {% generation %} marks what an assistant wrote, for training; its text is text like other. */
static tn_status parse_generation(parser *p, jj_node **out) {
    TRY(make_parser(p, JJ_BLOCK, out));
    return parse_block(p, "endgeneration", &(*out)->body);
}

static tn_status parse_jump(parser *p, jj_node_kind kind, jj_node **out) {
    if (p->loops == 0) return fail(p, "break and continue are only allowed in loops; expected %}");
    TRY(make_parser(p, kind, out));
    return end_tag(p);
}

static tn_status parse_break(parser *p, jj_node **out) { return parse_jump(p, JJ_BREAK, out); }
static tn_status parse_continue(parser *p, jj_node **out) { return parse_jump(p, JJ_CONTINUE, out); }

static tn_status parse_statement(parser *p, jj_node **out) {
    static const struct {
        const char *name;
        tn_status (*parse)(parser *p, jj_node **out);
    } statements[] = {
        {"if", parse_if},       {"for", parse_for},           {"set", parse_set},
        {"macro", parse_macro}, {"filter", parse_filtered},   {"with", parse_with},
        {"break", parse_break}, {"continue", parse_continue}, {"generation", parse_generation},
    };
    for (size_t i = 0; i < sizeof statements / sizeof *statements; i++)
        if (parser_takes(p, statements[i].name)) return statements[i].parse(p, out);
    return fail(p, "expected a statement (if, for, set, macro, filter, with, break, continue, generation)");
}

/* Whether a block's name is one of `ends`; then the name is taken and *end says which. */
static bool takes_end(parser *p, const char *const *ends, const char **end) {
    for (int i = 0; ends && ends[i]; i++) {
        if (p->at->kind != JJ_T_BLOCK_BEGIN || !p->at->next->spelling || strcmp(p->at->next->spelling, ends[i]) != 0)
            continue;
        *end = ends[i];
        p->at = p->at->next->next;
        return true;
    }
    return false;
}

static tn_status parse_output(parser *p, jj_node **out) {
    TRY(make_parser(p, JJ_OUTPUT, out));
    p->at = p->at->next;
    TRY(parse_tuple(p, &(*out)->a));
    if (p->at->kind != JJ_T_OUTPUT_END) return fail(p, "expected }}");
    p->at = p->at->next;
    return TN_OK;
}

/* Statements up to a block whose name is in `ends` (NULL: up to the end of the template). */
static tn_status parse_body(parser *p, const char *const *ends, jj_node **out, const char **end) {
    jj_node **tail = out;
    TRY(go_deeper(p));
    while (!takes_end(p, ends, end)) {
        if (p->at->kind == JJ_T_END && !ends) break;
        if (p->at->kind == JJ_T_END) {
            char what[40] = "";
            return fail(p, strcat(strcat(what, "expected "), ends[1] ? ends[ends[2] ? 2 : 1] : ends[0]));
        }
        if (p->at->kind == JJ_T_TEXT) {
            TRY(make_parser(p, JJ_TEXT, tail));
            (*tail)->constant = p->at->value;
            p->at = p->at->next;
        } else if (p->at->kind == JJ_T_OUTPUT_BEGIN) {
            TRY(parse_output(p, tail));
        } else {
            p->at = p->at->next; /* the lexer leaves nothing but the begin of a block here */
            TRY(parse_statement(p, tail));
        }
        tail = &(*tail)->next;
    }
    p->depth--;
    return TN_OK;
}

tn_status tn_jj_parse(jj_arena *arena, const jj_token *tokens, jj_node **out) {
    parser p = {.arena = arena, .at = tokens};
    const char *end;
    return parse_body(&p, NULL, out, &end);
}
