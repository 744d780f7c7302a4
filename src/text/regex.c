/* regex.c — regular expressions: Oniguruma's syntax translated to PCRE2's, compiled once, matched with limits.
 *
 * Most of both languages is the same. What differs and is used: \s, \w and \h and their opposites, classes inside
 * classes, lines (^ and $ always stand at lines, (?m) lets the dot match their ends), a + after {n,m} (which repeats
 * once more; PCRE2 would not give back), \uHHHH. What cannot be said in PCRE2 is refused by name. */
#define PCRE2_CODE_UNIT_WIDTH 8

#include <pcre2.h>
#include <stdio.h>
#include <string.h>

#include "text/hf.h"
#include "text/tokenizer.h"

/* The insides of classes. Word characters are those of UTS 18 without its two joiners; \w alone
 * means six signs of Latin-1 too. */
#define SPACE TN_TXT_SPACE
#define NO_SPACE                                                                                            \
    "\\x00-\\x08\\x0e-\\x1f!-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}\\x{200b}-\\x{2027}" \
    "\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-\\x{10ffff}"
#define WORD                                                                    \
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}" \
    "\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{1f189}"
#define SIGNS "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}"
#define HEX "0-9A-Fa-f"

typedef struct set_escape {
    char letter;
    const char *inside; /* a class; NULL: cannot be said there */
    const char *alone;
} set_escape;

static const set_escape set_escapes[] = {
    {'s', SPACE, "[" SPACE "]"},      {'S', NO_SPACE, "[^" SPACE "]"}, {'w', WORD, "[" SIGNS WORD "]"},
    {'W', NULL, "[^" SIGNS WORD "]"}, {'h', HEX, "[" HEX "]"},         {'H', NULL, "[^" HEX "]"},
};

enum { MAX_GROUPS = 200 };

typedef struct translation {
    const char *text;
    size_t size, at;
    tn_bytes out;
    size_t atom;               /* where the last thing that can be repeated begins in out */
    size_t groups[MAX_GROUPS]; /* where open groups begin */
    int depth;
} translation;
static void free_translation(translation *x) { tn_bytes_free(&x->out); }

static tn_status refuse_regex(const translation *x, const char *what) {
    return tn_backend_fail(TN_ERR_UNSUPPORTED, "tokenizer: the pattern \"%.*s\" has %s, at %zu, which is not supported",
                           x->size < 200 ? (int)x->size : 200, x->text, what, x->at);
}

static char peek(const translation *x, size_t ahead) { return ahead < x->size - x->at ? x->text[x->at + ahead] : 0; }

static tn_status put_regex(translation *x, const char *text) { return tn_bytes_append(&x->out, text, strlen(text)); }

static tn_status copy(translation *x, size_t count) {
    if (count > x->size - x->at) count = x->size - x->at;
    TRY(tn_bytes_append(&x->out, x->text + x->at, count));
    x->at += count;
    return TN_OK;
}

/* Bytes of a thing in braces at `ahead`, at most 64; 0 if there is no such thing. */
static size_t braces(const translation *x, size_t ahead) {
    if (peek(x, ahead) != '{') return 0;
    for (size_t i = 1; i < 64 && peek(x, ahead + i); i++)
        if (peek(x, ahead + i) == '}') return i + 1;
    return 0;
}

/* Oniguruma's long names of general categories. */
static const char *const categories[][2] = {
    {"Letter", "L"},         {"Lowercase_Letter", "Ll"}, {"Uppercase_Letter", "Lu"}, {"Titlecase_Letter", "Lt"},
    {"Number", "N"},         {"Modifier_Letter", "Lm"},  {"Other_Letter", "Lo"},     {"Decimal_Number", "Nd"},
    {"Mark", "M"},           {"Nonspacing_Mark", "Mn"},  {"Letter_Number", "Nl"},    {"Other_Number", "No"},
    {"Symbol", "S"},         {"Separator", "Z"},         {"Space_Separator", "Zs"},  {"Control", "Cc"},
    {"Other", "C"},          {"Currency_Symbol", "Sc"},  {"Math_Symbol", "Sm"},      {"Punctuation", "P"},
    {"Alpha", "Alphabetic"},
};

/* Whether PCRE2 knows a script of this name. */
static bool is_script(const char *name) {
    char text[96];
    tn_txt_pattern *p = NULL;
    int length = snprintf(text, sizeof text, "\\p{sc:%s}", name);
    bool is = length > 0 && tn_txt_pattern_new(text, (size_t)length, &p) == TN_OK;
    tn_txt_pattern_free(p);
    return is;
}

/* \p{Name}, `length` bytes of it in braces: categories get their short names. The name of a script means the script's
 * own characters; PCRE2 would take those that it shares with others too. */
static tn_status translate_property(translation *x, size_t length) {
    char name[64] = "";
    const bool opposite = peek(x, 3) == '^';
    const size_t from = opposite ? 4 : 3;
    if (length < 3 || length - (from - 1) > sizeof name) return copy(x, 2 + length);
    memcpy(name, x->text + x->at + from, length - from + 1);
    const char *prefix = "", *meant = name;
    for (size_t i = 0; i < sizeof categories / sizeof *categories; i++)
        if (!strcmp(name, categories[i][0])) meant = categories[i][1];
    if (meant == name && strlen(name) > 2 && is_script(name)) prefix = "sc:";
    TRY(copy(x, 3));
    TRY(put_regex(x, opposite ? "^" : ""));
    TRY(put_regex(x, prefix));
    TRY(put_regex(x, meant));
    x->at += length - 1;
    return put_regex(x, "}");
}

static tn_status translate_escape(translation *x, bool in_class) {
    char c = peek(x, 1);
    if (x->size - x->at < 2) return refuse_regex(x, "a trailing \\");
    for (size_t i = 0; i < sizeof set_escapes / sizeof *set_escapes; i++) {
        const set_escape *e = &set_escapes[i];
        if (e->letter != c) continue;
        if (in_class && !e->inside) return refuse_regex(x, "a negated set inside a class");
        x->at += 2;
        return put_regex(x, in_class ? e->inside : e->alone);
    }
    if ((c == 'p' || c == 'P') && braces(x, 2) > 0) return translate_property(x, braces(x, 2));
    if (c == 'x') return copy(x, 2 + braces(x, 2));
    if (c != 'u') return copy(x, 2);
    if (x->size - x->at < 6) return refuse_regex(x, "\\u without four hexadecimal digits");
    TRY(put_regex(x, "\\x{"));
    x->at += 2;
    TRY(copy(x, 4));
    return put_regex(x, "}");
}

/* A class from its [ on. Classes inside it are taken as more of its members. */
static tn_status translate_class(translation *x) {
    int depth = 0;
    bool begins = true;
    while (x->at < x->size) {
        char c = peek(x, 0);
        bool was_begin = begins;
        begins = false;
        if (c == '\\') {
            TRY(translate_escape(x, true));
        } else if (c == '[' && peek(x, 1) == ':' && depth > 0) {
            const char *end = memchr(x->text + x->at, ']', x->size - x->at);
            if (!end) return refuse_regex(x, "an unterminated class");
            TRY(copy(x, (size_t)(end - x->text) - x->at + 1));
        } else if (c == '[') {
            if (depth > 0 && peek(x, 1) == '^') return refuse_regex(x, "a negated class inside a class");
            if (depth++ == 0)
                TRY(copy(x, peek(x, 1) == '^' ? 2 : 1));
            else
                x->at++;
            begins = true;
        } else if (c == ']' && !was_begin) {
            x->at++;
            if (--depth == 0) return put_regex(x, "]");
        } else if (c == '&' && peek(x, 1) == '&') {
            return refuse_regex(x, "an intersection of classes");
        } else {
            if (c == ']') TRY(put_regex(x, "\\"));
            TRY(copy(x, 1));
        }
    }
    return refuse_regex(x, "an unterminated class");
}

/* A group's begin: options are renamed, the rest is the same. */
static tn_status translate_group(translation *x) {
    if (x->depth == MAX_GROUPS) return refuse_regex(x, "too deeply nested groups");
    x->groups[x->depth++] = x->out.size;
    TRY(copy(x, 1));
    if (peek(x, 0) != '?') return peek(x, 0) == '*' ? refuse_regex(x, "(*") : TN_OK;
    TRY(copy(x, 1));
    while (peek(x, 0) && strchr("imx-", peek(x, 0))) {
        if (peek(x, 0) != 'm') {
            TRY(copy(x, 1));
            continue;
        }
        TRY(put_regex(x, "s"));
        x->at++;
    }
    /* the next character is a sign of the group's kind, not an atom */
    if (peek(x, 0) && strchr(":=!>", peek(x, 0))) return copy(x, 1);
    if (peek(x, 0) == '<' && (peek(x, 1) == '=' || peek(x, 1) == '!')) return copy(x, 2);
    return TN_OK;
}

/* {n,m} and a + after it. */
static tn_status translate_count(translation *x, size_t length) {
    if (peek(x, 1) == ',') { /* {,m} */
        TRY(put_regex(x, "{0"));
        x->at++;
        length--;
    }
    TRY(copy(x, length));
    if (peek(x, 0) != '+') return TN_OK;
    x->at++;
    AUTO_TXT_FREE char *tail = NULL;
    size_t tail_size = x->out.size - x->atom, capacity = 0;
    TRY(tn_txt_reserve(&tail, &capacity, tail_size, 1));
    memcpy(tail, x->out.data + x->atom, tail_size);
    x->out.size = x->atom;
    TRY(put_regex(x, "(?:"));
    TRY(tn_bytes_append(&x->out, tail, tail_size));
    return put_regex(x, ")+");
}

static tn_status translate_one(translation *x) {
    char c = peek(x, 0);
    size_t before = x->out.size, length = braces(x, 0);
    bool counts = length > 2 && strspn(x->text + x->at + 1, "0123456789,") >= length - 2;
    if (counts) return translate_count(x, length);
    if (strchr("*+?", c) && c) return copy(x, 1);
    x->atom = before;
    switch (c) {
    case '\\': return translate_escape(x, false);
    case '[': return translate_class(x);
    case '(': return translate_group(x);
    case '^': x->at++; return put_regex(x, "(?m:^)");
    case '$': x->at++; return put_regex(x, "(?m:$)");
    case ')':
        if (x->depth == 0) return refuse_regex(x, "an unmatched )");
        x->atom = x->groups[--x->depth];
        return copy(x, 1);
    default: return copy(x, 1);
    }
}

static tn_status translate(translation *x) {
    TRY(tn_bytes_append(&x->out, "", 0));
    while (x->at < x->size) {
        uint8_t c = (uint8_t)peek(x, 0);
        if (c < 0x80) {
            TRY(translate_one(x));
            continue;
        }
        uint32_t code;
        x->atom = x->out.size;
        TRY(copy(x, tn_hf_char(x->text + x->at, x->size - x->at, &code)));
    }
    return TN_OK;
}

/* The letters of a text, without any special meaning. */
static tn_status quote(tn_bytes *out, tn_text_slice text) {
    TRY(tn_bytes_append(out, "", 0));
    for (size_t i = 0; i < text.size; i++) {
        char c = text.data[i];
        bool sign = (uint8_t)c < 0x80 && tn_hf_is_punctuation((uint8_t)c) && c != '_';
        if (sign) TRY(tn_bytes_append(out, "\\", 1));
        TRY(c ? tn_bytes_append(out, &c, 1) : tn_bytes_append(out, "\\x00", 4));
    }
    return TN_OK;
}

tn_status tn_hf_read_pattern(const tn_json *v, tn_txt_pattern **out) {
    const tn_json *words = tn_hf_get(v, "String"), *regex = tn_hf_get(v, "Regex");
    tn_text_slice text = tn_hf_slice(words ? words : regex);
    if (!text.data)
        return tn_backend_fail(TN_ERR_FORMAT, "tokenizer: a pattern must be {\"String\": …} or {\"Regex\": …}");
    if (memchr(text.data, 0, text.size) && !words)
        return tn_backend_fail(TN_ERR_UNSUPPORTED, "tokenizer: a pattern contains a NUL byte, which is not supported");
    AUTO_CALL(free_translation) translation x = {.text = text.data, .size = text.size};
    TRY(words ? quote(&x.out, text) : translate(&x));
    return tn_txt_pattern_new(x.out.data, x.out.size, out);
}

tn_status tn_hf_next_match(const tn_txt_pattern *p, tn_txt_matcher *m, const char *text, size_t size,
                           tn_hf_matches *state, bool *found, size_t *begin, size_t *end) {
    uint32_t c;
    while (state->from <= size) {
        TRY(tn_txt_match(p, m, text, size, state->from, found, begin, end));
        if (!*found) return TN_OK;
        bool again = *begin == *end && state->any && state->last == *end;
        if (!again) {
            state->any = true;
            state->last = state->from = *end;
            return TN_OK;
        }
        state->from += state->from < size ? tn_hf_char(text + state->from, size - state->from, &c) : 1;
    }
    *found = false;
    return TN_OK;
}

/* ==== PCRE2 ======================================================================================================= */
/* PCRE2's limits bound the time on hostile texts and patterns. Where its compiler to machine code may not run or has
 * too little stack, its interpreter does the work. */

enum {
    STEPS = 10000000,     /* of matching, for short texts (PCRE2's own default) … */
    STEPS_A_BYTE = 32,    /* … and more for long ones, because giving back a run of n characters takes n steps */
    HEAP_KIB = 256 << 10, /* for backtracking */
    MAX_PATTERN = 1 << 16 /* bytes */
};

tn_status tn_txt_pattern_new(const char *text, size_t size, tn_txt_pattern **out) {
    int error;
    PCRE2_SIZE offset;
    *out = NULL;
    if (size > MAX_PATTERN)
        return tn_backend_fail(TN_ERR_UNSUPPORTED, "tokenizer: a pattern of %zu bytes exceeds the limit of %d", size,
                               (int)MAX_PATTERN);
    pcre2_code *code =
        pcre2_compile((PCRE2_SPTR)text, size, PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset, NULL);
    if (!code) {
        char why[128] = "";
        if (error == PCRE2_ERROR_NOMEMORY) return tn_backend_fail(TN_ERR_MEMORY, "tokenizer: out of memory");
        pcre2_get_error_message(error, (PCRE2_UCHAR *)why, sizeof why);
        return tn_backend_fail(TN_ERR_UNSUPPORTED, "tokenizer: compiling the pattern \"%.*s\" failed: %s, at %zu",
                               size < 200 ? (int)size : 200, text, why, (size_t)offset);
    }
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE); /* where it may not, matching is slower and nothing else */
    *out = (tn_txt_pattern *)code;
    return TN_OK;
}

void tn_txt_pattern_free(tn_txt_pattern *p) { pcre2_code_free((pcre2_code *)p); }

static tn_status match_failed(int code, size_t size) {
    if (code == PCRE2_ERROR_NOMEMORY)
        return tn_backend_fail(TN_ERR_MEMORY, "tokenizer: out of memory while splitting %zu bytes into words", size);
    char text[128] = "";
    pcre2_get_error_message(code, (PCRE2_UCHAR *)text, sizeof text);
    return tn_backend_fail(TN_ERR_UNSUPPORTED,
                           "tokenizer: splitting %zu bytes into words failed: %s. Pass the text in parts", size, text);
}

tn_status tn_txt_matcher_set(tn_txt_matcher *m, size_t size) {
    size_t steps = size < (UINT32_MAX - STEPS) / STEPS_A_BYTE ? STEPS + STEPS_A_BYTE * size : UINT32_MAX;
    if (!m->found) m->found = pcre2_match_data_create(1, NULL);
    if (!m->limits) m->limits = pcre2_match_context_create(NULL);
    if (!m->found || !m->limits) return match_failed(PCRE2_ERROR_NOMEMORY, size);
    pcre2_set_match_limit(m->limits, (uint32_t)steps);
    pcre2_set_heap_limit(m->limits, HEAP_KIB);
    return TN_OK;
}

void tn_txt_matcher_free(tn_txt_matcher *m) {
    pcre2_match_data_free(m->found);
    pcre2_match_context_free(m->limits);
    *m = (tn_txt_matcher){0};
}

tn_status tn_txt_match(const tn_txt_pattern *p, tn_txt_matcher *m, const char *text, size_t size, size_t from,
                       bool *found, size_t *begin, size_t *end) {
    const pcre2_code *code = (const pcre2_code *)p;
    PCRE2_SPTR subject = (PCRE2_SPTR)text;
    int result = pcre2_match(code, subject, size, from, PCRE2_NO_UTF_CHECK, m->found, m->limits);
    if (result == PCRE2_ERROR_JIT_STACKLIMIT) /* the interpreter keeps its stack on the heap */
        result = pcre2_match(code, subject, size, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, m->found, m->limits);
    *found = result >= 0;
    if (result == PCRE2_ERROR_NOMATCH) return TN_OK;
    if (result < 0) return match_failed(result, size);
    const PCRE2_SIZE *place = pcre2_get_ovector_pointer(m->found);
    *begin = place[0];
    *end = place[1];
    if (*begin > *end || *begin < from) return match_failed(PCRE2_ERROR_BADOFFSET, size); /* by \K in a look-around */
    return TN_OK;
}
