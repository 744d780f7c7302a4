/* onnx_regex.c — regular expressions of RE2's syntax, for RegexFullMatch.
 *
 * Jumps are relative, so that the program of a part can be moved (to put a branch before it) or copied (to repeat it)
 * unchanged. Only whether the whole text matches is asked, hence greedy and lazy repetition are the same, and groups
 * hold nothing. */
#include <string.h>

#include "onnx/onnx.h"

enum { MOST_STEPS = 1 << 14, MOST_RANGES = 1 << 14, DEEPEST = 64, MOST_REPEATS = 1000 };
enum { NO_CHARACTER = -1 };

typedef enum step_kind { CLASS, SPLIT, JUMP, BEGIN, END, WORD_EDGE, NO_WORD_EDGE } step_kind;

/* CLASS: ranges [a, a + b), or all but these where `inverse`. SPLIT: continues after, and a steps ahead. JUMP: a steps
 * ahead. */
typedef struct step {
    uint8_t kind;
    bool inverse;
    int32_t a, b;
} step;

typedef struct range {
    int32_t from, to;
} range;

struct onnx_regex {
    step *steps; /* the place after the last one is the match */
    range *ranges;
    size_t step_count, step_room, range_count, range_room;
    int32_t *now, *next, *stack; /* places */
    uint32_t *seen, round;       /* round in which a place was put into a list */
    int32_t count;
};

typedef struct parser {
    onnx_regex *r;
    const char *at, *end;
    int depth;
} parser;

static tn_status wrong(const parser *p, const char *what) {
    return tn_fail(TN_ERR_FORMAT, "RegexFullMatch: %s, %zu bytes before the pattern's end", what,
                   (size_t)(p->end - p->at));
}

static tn_status beyond(const char *what) { return tn_fail(TN_ERR_UNSUPPORTED, "RegexFullMatch: %s", what); }

/* The next character of a text; a byte that begins none stands for itself. */
static int32_t take_character(const char **at, const char *end) {
    const uint8_t *p = (const uint8_t *)*at;
    int n = p[0] < 0x80 ? 1 : p[0] >= 0xf0 && p[0] < 0xf8 ? 4 : p[0] >= 0xe0 ? 3 : p[0] >= 0xc2 ? 2 : 1;
    int32_t c = n == 1 ? p[0] : p[0] & (0x7f >> n);
    if (p[0] >= 0xf8 || end - *at < n) n = 1;
    for (int i = 1; i < n; i++) {
        if ((p[i] & 0xc0) != 0x80) n = 1;
        c = c << 6 | (p[i] & 0x3f);
    }
    *at += n;
    return n == 1 ? p[0] : c;
}

/* ---- emitting ---------------------------------------------------------------------------------------------------- */

/* Inserts a step at index `at`. */
static tn_status put_step(onnx_regex *r, size_t at, step s) {
    if (r->step_count >= MOST_STEPS) return beyond("the pattern is too long");
    TRY(tn_mem_reserve(&r->steps, &r->step_room, r->step_count + 1, sizeof s));
    memmove(r->steps + at + 1, r->steps + at, (r->step_count - at) * sizeof s);
    r->steps[at] = s;
    r->step_count++;
    return TN_OK;
}

static tn_status put_range(onnx_regex *r, int32_t from, int32_t to) {
    if (r->range_count >= MOST_RANGES) return beyond("the pattern has too many characters");
    TRY(tn_mem_reserve(&r->ranges, &r->range_room, r->range_count + 1, sizeof(range)));
    r->ranges[r->range_count++] = (range){from, to};
    return TN_OK;
}

static tn_status put_copy(onnx_regex *r, size_t from, size_t count) {
    for (size_t i = 0; i < count; i++)
        TRY(put_step(r, r->step_count, r->steps[from + i]));
    return TN_OK;
}

static tn_status put_class(onnx_regex *r, size_t first, bool inverse) {
    return put_step(r, r->step_count, (step){CLASS, inverse, (int32_t)first, (int32_t)(r->range_count - first)});
}

/* ---- classes ----------------------------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    range ranges[4];
    int count;
} classes[] = {
    {"d", {{'0', '9'}}, 1},
    {"s", {{'\t', '\n'}, {'\f', '\r'}, {' ', ' '}}, 3},
    {"w", {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}}, 4},
    {"alnum", {{'0', '9'}, {'A', 'Z'}, {'a', 'z'}}, 3},
    {"alpha", {{'A', 'Z'}, {'a', 'z'}}, 2},
    {"ascii", {{0, 127}}, 1},
    {"blank", {{'\t', '\t'}, {' ', ' '}}, 2},
    {"cntrl", {{0, 31}, {127, 127}}, 2},
    {"digit", {{'0', '9'}}, 1},
    {"graph", {{'!', '~'}}, 1},
    {"lower", {{'a', 'z'}}, 1},
    {"print", {{' ', '~'}}, 1},
    {"punct", {{'!', '/'}, {':', '@'}, {'[', '`'}, {'{', '~'}}, 4},
    {"space", {{'\t', '\r'}, {' ', ' '}}, 2},
    {"upper", {{'A', 'Z'}}, 1},
    {"word", {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}}, 4},
    {"xdigit", {{'0', '9'}, {'A', 'F'}, {'a', 'f'}}, 3},
};

enum { LAST_CHARACTER = 0x10ffff };

/* The ranges of a named class, or what lies between them. */
static tn_status put_named(onnx_regex *r, const char *name, size_t length, bool inverse, bool *found) {
    *found = false;
    for (size_t i = 0; i < TN_COUNT(classes); i++) {
        if (strlen(classes[i].name) != length || memcmp(classes[i].name, name, length)) continue;
        int32_t from = 0;
        *found = true;
        for (int k = 0; k < classes[i].count; k++) {
            range at = classes[i].ranges[k];
            if (!inverse) TRY(put_range(r, at.from, at.to));
            if (inverse && from < at.from) TRY(put_range(r, from, at.from - 1));
            from = at.to + 1;
        }
        if (inverse) TRY(put_range(r, from, LAST_CHARACTER));
    }
    return TN_OK;
}

static int hex_digit(char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* \xHH or \x{H…}. */
static tn_status take_hex(parser *p, int32_t *c) {
    bool braces = p->at < p->end && *p->at == '{';
    int32_t v = 0, digits = 0;
    p->at += braces;
    for (; p->at < p->end && hex_digit(*p->at) >= 0 && digits < (braces ? 6 : 2); p->at++, digits++)
        v = v * 16 + hex_digit(*p->at);
    bool good = digits && v <= LAST_CHARACTER && (braces ? p->at < p->end && *p->at == '}' : digits == 2);
    if (!good) return wrong(p, "\\x must be followed by a number");
    p->at += braces;
    *c = v;
    return TN_OK;
}

/* What follows a backslash: a character, or NO_CHARACTER and the ranges of a class, which were put. */
static tn_status take_escape(parser *p, int32_t *c) {
    static const char from[] = "afnrtv", to[] = "\a\f\n\r\t\v";
    if (p->at == p->end) return wrong(p, "a backslash ends the pattern");
    char letter = *p->at;
    const char *simple = strchr(from, letter);
    bool named, upper = letter >= 'A' && letter <= 'Z';
    char lower = (char)(letter | 32);
    *c = NO_CHARACTER;
    if (strchr("dsw", lower) && letter) {
        p->at++;
        return put_named(p->r, &lower, 1, upper, &named);
    }
    if (letter == 'x') {
        p->at++;
        return take_hex(p, c);
    }
    bool word = upper || (letter >= 'a' && letter <= 'z') || (letter >= '0' && letter <= '9');
    if (word && !(simple && letter)) return beyond("unknown escape");
    *c = take_character(&p->at, p->end);
    if (simple && letter) *c = to[simple - from];
    return TN_OK;
}

/* One character or class of a [class]; *c as above. */
static tn_status take_member(parser *p, int32_t *c) {
    if (*p->at == '\\') {
        p->at++;
        return take_escape(p, c);
    }
    bool posix = p->end - p->at > 4 && p->at[0] == '[' && p->at[1] == ':', found;
    if (!posix) {
        *c = take_character(&p->at, p->end);
        return TN_OK;
    }
    bool inverse = p->at[2] == '^';
    const char *name = p->at + 2 + inverse, *end = name;
    while (end < p->end && *end >= 'a' && *end <= 'z')
        end++;
    if (p->end - end < 2 || end[0] != ':' || end[1] != ']') return wrong(p, "[: without :]");
    *c = NO_CHARACTER;
    TRY(put_named(p->r, name, (size_t)(end - name), inverse, &found));
    p->at = end + 2;
    return found ? TN_OK : wrong(p, "unknown character class");
}

static tn_status parse_class(parser *p) {
    size_t first = p->r->range_count;
    bool inverse = p->at < p->end && *p->at == '^';
    p->at += inverse;
    for (bool begun = false;; begun = true) {
        int32_t from, to;
        if (p->at == p->end) return wrong(p, "[ without ]");
        if (*p->at == ']' && begun) break;
        TRY(take_member(p, &from));
        if (from == NO_CHARACTER) continue;
        to = from;
        if (p->end - p->at > 1 && p->at[0] == '-' && p->at[1] != ']') {
            p->at++;
            TRY(take_member(p, &to));
            if (to < from) return wrong(p, "a range in descending order");
        }
        TRY(put_range(p->r, from, to));
    }
    p->at++;
    return put_class(p->r, first, inverse);
}

/* ---- the rest of the syntax -------------------------------------------------------------------------------------- */

static tn_status parse_alternatives(parser *p);

static tn_status parse_group(parser *p) {
    if (p->at < p->end && *p->at == '?') {
        bool plain = p->end - p->at > 1 && p->at[1] == ':';
        bool name = p->end - p->at > 2 && (p->at[1] == '<' || (p->at[1] == 'P' && p->at[2] == '<'));
        const char *end = name ? memchr(p->at, '>', (size_t)(p->end - p->at)) : p->at + 1;
        if (!end || !(plain || name)) return beyond("flags in a pattern are not supported");
        p->at = end + 1;
    }
    if (++p->depth > DEEPEST) return beyond("groups are nested too deeply");
    TRY(parse_alternatives(p));
    p->depth--;
    if (p->at == p->end) return wrong(p, "( without )");
    p->at++;
    return TN_OK;
}

static tn_status parse_atom(parser *p) {
    static const struct {
        char c;
        uint8_t kind;
    } edges[] = {{'A', BEGIN}, {'z', END}, {'b', WORD_EDGE}, {'B', NO_WORD_EDGE}};
    onnx_regex *r = p->r;
    size_t first = r->range_count;
    char letter = *p->at;
    if (letter == '[' || letter == '(') {
        p->at++;
        return letter == '[' ? parse_class(p) : parse_group(p);
    }
    if (letter == '^' || letter == '$') {
        p->at++;
        return put_step(r, r->step_count, (step){.kind = letter == '^' ? BEGIN : END});
    }
    for (size_t i = 0; i < TN_COUNT(edges) && letter == '\\' && p->end - p->at > 1; i++) {
        if (p->at[1] != edges[i].c) continue;
        p->at += 2;
        return put_step(r, r->step_count, (step){.kind = edges[i].kind});
    }
    int32_t c;
    p->at += letter == '\\';
    if (letter == '\\')
        TRY(take_escape(p, &c));
    else
        c = take_character(&p->at, p->end);
    if (letter == '.') c = '\n';
    if (c != NO_CHARACTER) TRY(put_range(r, c, c));
    return put_class(r, first, letter == '.');
}

/* {m}, {m,} or {m,n}; false when the brace stands for itself. */
static bool take_counts(parser *p, int *least, int *most) {
    const char *at = p->at + 1;
    int values[2] = {0, 0}, digits[2] = {0, 0}, k = 0;
    for (; at < p->end && *at != '}'; at++) {
        if (*at == ',' && k == 0)
            k = 1;
        else if (*at < '0' || *at > '9' || ++digits[k] > 6)
            return false;
        else
            values[k] = values[k] * 10 + *at - '0';
    }
    if (at == p->end || !digits[0]) return false;
    *least = values[0];
    *most = k == 0 ? values[0] : digits[1] ? values[1] : -1;
    p->at = at + 1;
    return true;
}

/* What lies from `from` on is to stand `least` to `most` (-1: any number of) times. */
static tn_status repeat(parser *p, size_t from, int least, int most) {
    onnx_regex *r = p->r;
    size_t count = r->step_count - from;
    if (least > MOST_REPEATS || most > MOST_REPEATS || (most >= 0 && most < least))
        return wrong(p, "an invalid repetition");
    for (int i = 1; i < least; i++)
        TRY(put_copy(r, from, count));
    if (most == least && least) return TN_OK;
    int32_t n = (int32_t)count;
    if (least) {
        size_t at = r->step_count;
        for (int i = least; i < most; i++) {
            TRY(put_step(r, r->step_count, (step){.kind = SPLIT, .a = n + 1}));
            TRY(put_copy(r, from, count));
        }
        if (most >= 0) return TN_OK;
        TRY(put_step(r, at, (step){.kind = SPLIT, .a = -n})); /* once more */
        return TN_OK;
    }
    if (most == 0) {
        r->step_count = from;
        return TN_OK;
    }
    TRY(put_step(r, from, (step){.kind = SPLIT, .a = most < 0 ? n + 2 : n + 1}));
    if (most < 0) return put_step(r, r->step_count, (step){.kind = JUMP, .a = -(n + 1)});
    for (int i = 1; i < most; i++)
        TRY(put_copy(r, from, count + 1));
    return TN_OK;
}

static tn_status parse_repeats(parser *p, size_t from) {
    while (p->at < p->end) {
        int least = *p->at == '+', most = *p->at == '?' ? 1 : -1;
        if (*p->at == '*' || *p->at == '+' || *p->at == '?')
            p->at++;
        else if (*p->at != '{' || !take_counts(p, &least, &most))
            return TN_OK;
        if (p->at < p->end && *p->at == '?') p->at++; /* as few as possible: the same language */
        TRY(repeat(p, from, least, most));
    }
    return TN_OK;
}

static tn_status parse_sequence(parser *p) {
    while (p->at < p->end && *p->at != '|' && *p->at != ')') {
        size_t from = p->r->step_count;
        if (*p->at == '*' || *p->at == '+' || *p->at == '?') return wrong(p, "nothing to repeat");
        TRY(parse_atom(p));
        TRY(parse_repeats(p, from));
    }
    return TN_OK;
}

static tn_status parse_alternatives(parser *p) {
    onnx_regex *r = p->r;
    size_t from = r->step_count;
    TRY(parse_sequence(p));
    while (p->at < p->end && *p->at == '|') {
        p->at++;
        size_t first = r->step_count - from;
        TRY(put_step(r, from, (step){.kind = SPLIT, .a = (int32_t)first + 2}));
        size_t jump = r->step_count;
        TRY(put_step(r, jump, (step){.kind = JUMP}));
        TRY(parse_sequence(p));
        r->steps[jump].a = (int32_t)(r->step_count - jump);
    }
    return TN_OK;
}

tn_status onnx_regex_new(onnx_text pattern, onnx_regex **out) {
    *out = tn_mem_zalloc(1, sizeof **out);
    if (!*out) return tn_error_code();
    parser p = {*out, pattern.at, pattern.at + pattern.size, 0};
    tn_status status = parse_alternatives(&p);
    if (status == TN_OK && p.at < p.end) status = wrong(&p, ") without (");
    onnx_regex *r = *out;
    size_t room = r->step_count + 1;
    if (status == TN_OK) {
        r->now = tn_mem_zalloc(5 * room, sizeof *r->now); /* now, next, the stack (two a place), seen */
        if (!r->now) status = tn_error_code();
    }
    if (status != TN_OK) {
        onnx_regex_free(r);
        *out = NULL;
        return status;
    }
    r->next = r->now + room;
    r->stack = r->next + room;
    r->seen = (uint32_t *)(r->stack + 2 * room);
    return TN_OK;
}

void onnx_regex_free(onnx_regex *r) {
    if (!r) return;
    int32_t *first = r->now < r->next || !r->next ? r->now : r->next; /* the two change places at each character */
    tn_mem_free_each(first, r->steps, r->ranges, r);
}

/* ---- matching ---------------------------------------------------------------------------------------------------- */

static bool regex_is_word(int32_t c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

/* Whether a step that takes no character lets by, between two characters (NO_CHARACTER: the text's edge). */
static bool lets_by(const step *s, int32_t before, int32_t after) {
    switch (s->kind) {
    case BEGIN: return before == NO_CHARACTER;
    case END: return after == NO_CHARACTER;
    default: return (regex_is_word(before) != regex_is_word(after)) == (s->kind == WORD_EDGE);
    }
}

/* Adds place `at` to the list, and all that are reached from there without a character. */
static void reach(onnx_regex *r, int32_t *list, int32_t at, int32_t before, int32_t after) {
    int32_t depth = 0;
    r->stack[depth++] = at;
    while (depth) {
        at = r->stack[--depth];
        if (r->seen[at] == r->round) continue;
        r->seen[at] = r->round;
        const step *s = &r->steps[at];
        if ((size_t)at == r->step_count || s->kind == CLASS)
            list[r->count++] = at;
        else if (s->kind == JUMP || s->kind == SPLIT) {
            r->stack[depth++] = at + s->a;
            if (s->kind == SPLIT) r->stack[depth++] = at + 1;
        } else if (lets_by(s, before, after))
            r->stack[depth++] = at + 1;
    }
}

static bool regex_takes(const onnx_regex *r, const step *s, int32_t c) {
    for (int32_t i = s->a; i < s->a + s->b; i++)
        if (c >= r->ranges[i].from && c <= r->ranges[i].to) return !s->inverse;
    return s->inverse;
}

bool onnx_regex_matches(onnx_regex *r, onnx_text text) {
    const char *at = text.at, *end = text.at + text.size;
    int32_t before = NO_CHARACTER, c = at < end ? take_character(&at, end) : NO_CHARACTER;
    if (text.size >= UINT32_MAX - r->round - 2) {
        memset(r->seen, 0, (r->step_count + 1) * sizeof *r->seen);
        r->round = 0;
    }
    r->round++;
    r->count = 0;
    reach(r, r->now, 0, before, c);
    while (c != NO_CHARACTER) {
        int32_t after = at < end ? take_character(&at, end) : NO_CHARACTER, count = r->count;
        r->round++;
        r->count = 0;
        for (int32_t i = 0; i < count; i++) {
            int32_t place = r->now[i];
            if ((size_t)place < r->step_count && regex_takes(r, &r->steps[place], c))
                reach(r, r->next, place + 1, c, after);
        }
        int32_t *list = r->now;
        r->now = r->next;
        r->next = list;
        before = c;
        c = after;
    }
    for (int32_t i = 0; i < r->count; i++)
        if ((size_t)r->now[i] == r->step_count) return true;
    return false;
}
