/* grammar.c — texts that a context-free grammar allows, byte by byte: GBNF, the notation of llama.cpp.
 *
 * Characters become sequences of byte ranges when the grammar is read, so tokens may end anywhere inside a character.
 * A state is the set of all stacks that a pushdown automaton could have by now. Stacks share their lower parts: a node
 * is a place in the grammar and the node below it, and equal nodes are one, so a set stays small. A rule that ends
 * another one takes its place on the stack, so repetitions need no depth. Left recursion is refused when the grammar is
 * read, and everything else that could grow has a limit. */
#include <math.h>
#include <string.h>

#include "text/tokenizer.h"

enum {
    MOST_SOURCE = 1 << 20,
    MOST_RULES = 1 << 14,
    MOST_ELEMENTS = 1 << 18,
    MOST_REPEATS = 1000, /* of {m,n} */
    MOST_NESTING = 64,   /* of parentheses */
    MOST_RANGES = 1024,  /* of a class */
    MOST_NODES = 1 << 20,
    MOST_TOPS = 1 << 12,
    NAME_BYTES = 64,
    LAST_CHARACTER = 0x10FFFF
};

/* ---- the compiled grammar ---------------------------------------------------------------------------------------- */

/* An alternative is a list of elements that ends with END; those of a rule follow each other. */
typedef enum element_kind { ELEMENT_END, ELEMENT_BYTES, ELEMENT_RULE } element_kind;

typedef struct element {
    element_kind kind;
    uint8_t least, most; /* ELEMENT_BYTES */
    int32_t rule;        /* ELEMENT_RULE */
} element;

typedef struct rule {
    char name[NAME_BYTES]; /* "" for those that repetitions and parentheses make */
    int32_t *starts;       /* of its alternatives, in elements */
    size_t count, room;
    bool defined, repeats; /* repeats: x* of something; it may follow itself without a byte */
} rule;

struct tn_grammar {
    element *elements;
    size_t element_count, element_room;
    rule *rules;
    size_t rule_count, rule_room;
};

/* ---- reading GBNF ------------------------------------------------------------------------------------------------ */

typedef struct reader {
    tn_grammar *g;
    const char *text, *at, *end;
    int depth;
} reader;

/* What is read of one alternative, before its end is known. */
typedef struct sequence {
    element *items;
    size_t count, room;
} sequence;

static void free_sequence(sequence *s) { tn_txt_free(s->items); }

static tn_status wrong(const reader *r, const char *what) {
    int line = 1;
    for (const char *c = r->text; c < r->at; c++)
        line += *c == '\n';
    return tn_backend_fail(TN_ERR_FORMAT, "grammar, line %d, byte %td: %s", line, r->at - r->text, what);
}

static bool is_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

static char peek(const reader *r) { return r->at < r->end ? *r->at : 0; }

/* Blanks and remarks; line ends too, inside parentheses and before a rule's first alternative. */
static void skip(reader *r, bool lines) {
    for (; r->at < r->end; r->at++) {
        if (*r->at == '#')
            while (r->at + 1 < r->end && r->at[1] != '\n')
                r->at++;
        else if (*r->at != ' ' && *r->at != '\t' && *r->at != '\r' && !(lines && *r->at == '\n'))
            return;
    }
}

static tn_status add_rule(tn_grammar *g, int32_t *out) {
    if (g->rule_count == MOST_RULES)
        return tn_backend_fail(TN_ERR_UNSUPPORTED, "grammar: more than %d rules", (int)MOST_RULES);
    TRY(tn_txt_reserve(&g->rules, &g->rule_room, g->rule_count + 1, sizeof *g->rules));
    g->rules[g->rule_count] = (rule){0};
    *out = (int32_t)g->rule_count++;
    return TN_OK;
}

static tn_status find_rule(reader *r, int32_t *out) {
    char name[NAME_BYTES];
    size_t n = 0;
    while (r->at + n < r->end && is_name(r->at[n]))
        n++;
    if (n == 0) return wrong(r, "expected a rule's name");
    if (n >= NAME_BYTES) return wrong(r, "the rule's name has more than 63 characters");
    memcpy(name, r->at, n);
    name[n] = 0;
    r->at += n;
    for (size_t i = 0; i < r->g->rule_count; i++)
        if (strcmp(r->g->rules[i].name, name) == 0) {
            *out = (int32_t)i;
            return TN_OK;
        }
    TRY(add_rule(r->g, out));
    memcpy(r->g->rules[*out].name, name, n + 1);
    return TN_OK;
}

static tn_status add_item(sequence *s, element e) {
    if (s->count == MOST_ELEMENTS)
        return tn_backend_fail(TN_ERR_UNSUPPORTED, "grammar: more than %d elements", (int)MOST_ELEMENTS);
    TRY(tn_txt_reserve(&s->items, &s->room, s->count + 1, sizeof *s->items));
    s->items[s->count++] = e;
    return TN_OK;
}

/* Adds an alternative to a rule: the elements of s from `from` on. */
static tn_status end_alternative(tn_grammar *g, int32_t number, const sequence *s, size_t from) {
    size_t n = s->count - from;
    rule *r = &g->rules[number];
    if (g->element_count + n + 1 > MOST_ELEMENTS)
        return tn_backend_fail(TN_ERR_UNSUPPORTED, "grammar: more than %d elements", (int)MOST_ELEMENTS);
    TRY(tn_txt_reserve(&g->elements, &g->element_room, g->element_count + n + 1, sizeof *g->elements));
    TRY(tn_txt_reserve(&r->starts, &r->room, r->count + 1, sizeof *r->starts));
    r->starts[r->count++] = (int32_t)g->element_count;
    if (n) memcpy(g->elements + g->element_count, s->items + from, n * sizeof *s->items);
    g->elements[g->element_count + n] = (element){0};
    g->element_count += n + 1;
    r->defined = true;
    return TN_OK;
}

/* ---- characters -------------------------------------------------------------------------------------------------- */

/* One character of a literal or class: as it is, or with a backslash. */
static tn_status read_character(reader *r, uint32_t *out) {
    static const char letters[] = "nrt\\\"[]-^/", values[] = "\n\r\t\\\"[]-^/";
    if (r->at >= r->end) return wrong(r, "the text ends inside quotes or brackets");
    if (*r->at != '\\') {
        size_t length = tn_txt_utf8(r->at, (size_t)(r->end - r->at), out);
        if (length == 0) return wrong(r, "this is not UTF-8");
        r->at += length;
        return TN_OK;
    }
    char kind = r->at + 1 < r->end ? r->at[1] : 0;
    const char *known = kind ? strchr(letters, kind) : NULL;
    int digits = kind == 'x' ? 2 : kind == 'u' ? 4 : kind == 'U' ? 8 : 0;
    if (!known && !digits)
        return wrong(r, "unknown escape; known are \\n \\r \\t \\\\ \\\" \\[ \\] \\- \\^ \\/ \\x \\u \\U");
    r->at += 2;
    *out = known ? (unsigned char)values[known - letters] : 0;
    for (int i = 0; i < digits; i++, r->at++) {
        int v = r->at < r->end ? tn_txt_hex(*r->at) : -1;
        if (v < 0) return wrong(r, "expected a hexadecimal digit");
        *out = *out << 4 | (uint32_t)v;
    }
    if (*out > LAST_CHARACTER || (*out >= 0xD800 && *out < 0xE000)) return wrong(r, "there is no such character");
    return TN_OK;
}

typedef struct span {
    uint32_t least, most;
} span;

/* Sequences of byte ranges for the characters of a span whose encodings have equal length: split where a byte's range
 * would not be whole (Thompson's construction for UTF-8). */
static tn_status add_span(tn_grammar *g, int32_t number, uint32_t least, uint32_t most) {
    if (least > most) return TN_OK; /* surrogates, which are not characters */
    static const uint32_t lengths[] = {0x7F, 0x7FF, 0xD7FF, 0xFFFF, LAST_CHARACTER};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        if (least <= lengths[i] && most > lengths[i]) {
            TRY(add_span(g, number, least, lengths[i]));
            return add_span(g, number, lengths[i] == 0xD7FF ? 0xE000 : lengths[i] + 1, most);
        }
    for (int shift = 6; shift <= 18; shift += 6) {
        uint32_t mask = (1u << shift) - 1;
        if ((least & ~mask) == (most & ~mask)) break;
        if (least & mask) {
            TRY(add_span(g, number, least, least | mask));
            return add_span(g, number, (least | mask) + 1, most);
        }
        if ((most & mask) != mask) {
            TRY(add_span(g, number, least, (most & ~mask) - 1));
            return add_span(g, number, most & ~mask, most);
        }
    }
    char from[4], to[4];
    element items[4];
    size_t n = tn_txt_utf8_write(least, from);
    tn_txt_utf8_write(most, to);
    for (size_t i = 0; i < n; i++)
        items[i] = (element){ELEMENT_BYTES, (uint8_t)from[i], (uint8_t)to[i], 0};
    return end_alternative(g, number, &(sequence){items, n, n}, 0);
}

static void sort_spans(span *s, size_t n) {
    for (size_t i = 1; i < n; i++)
        for (size_t k = i; k > 0 && s[k].least < s[k - 1].least; k--) {
            span other = s[k];
            s[k] = s[k - 1];
            s[k - 1] = other;
        }
}

/* A rule whose alternatives are the characters of the spans, or all others. */
static tn_status add_class(tn_grammar *g, span *spans, size_t n, bool inverted, element *out) {
    int32_t number;
    uint32_t next = 0;
    sort_spans(spans, n);
    TRY(add_rule(g, &number));
    g->rules[number].defined = true; /* if it has no character, nothing matches */
    for (size_t i = 0; i < n; i++) {
        uint32_t least = spans[i].least > next ? spans[i].least : next;
        if (inverted && spans[i].least > next) TRY(add_span(g, number, next, spans[i].least - 1));
        if (!inverted && least <= spans[i].most) TRY(add_span(g, number, least, spans[i].most));
        if (spans[i].most + 1 > next) next = spans[i].most + 1;
    }
    if (inverted && next <= LAST_CHARACTER) TRY(add_span(g, number, next == 0xD800 ? 0xE000 : next, LAST_CHARACTER));
    *out = (element){ELEMENT_RULE, 0, 0, number};
    return TN_OK;
}

static tn_status read_class(reader *r, sequence *s) {
    span spans[MOST_RANGES];
    size_t n = 0;
    element made;
    r->at++;
    bool inverted = peek(r) == '^';
    r->at += inverted;
    while (peek(r) != ']') {
        if (n == MOST_RANGES) return wrong(r, "a class has more than 1024 ranges");
        TRY(read_character(r, &spans[n].least));
        spans[n].most = spans[n].least;
        if (peek(r) == '-' && r->at + 1 < r->end && r->at[1] != ']') {
            r->at++;
            TRY(read_character(r, &spans[n].most));
            if (spans[n].most < spans[n].least) return wrong(r, "the range ends before it begins");
        }
        n++;
    }
    r->at++;
    TRY(add_class(r->g, spans, n, inverted, &made));
    return add_item(s, made);
}

static tn_status read_literal(reader *r, sequence *s) {
    for (r->at++; peek(r) != '"';) {
        uint32_t c;
        char bytes[4];
        TRY(read_character(r, &c));
        size_t n = tn_txt_utf8_write(c, bytes);
        for (size_t i = 0; i < n; i++)
            TRY(add_item(s, (element){ELEMENT_BYTES, (uint8_t)bytes[i], (uint8_t)bytes[i], 0}));
    }
    r->at++;
    return TN_OK;
}

/* ---- repetitions and alternatives -------------------------------------------------------------------------------- */

static tn_status read_number(reader *r, int *out) {
    *out = 0;
    if (peek(r) < '0' || peek(r) > '9') return wrong(r, "expected a number");
    for (; peek(r) >= '0' && peek(r) <= '9'; r->at++) {
        *out = *out * 10 + (peek(r) - '0');
        if (*out > MOST_REPEATS) return wrong(r, "more than 1000 repetitions");
    }
    return TN_OK;
}

/* *, +, ? or {m,n}; most -1: any number. */
static tn_status read_counts(reader *r, int *least, int *most) {
    char c = *r->at++;
    *least = c == '+';
    *most = c == '?' ? 1 : -1;
    if (c != '{') return TN_OK;
    skip(r, true);
    TRY(read_number(r, least));
    *most = *least;
    skip(r, true);
    if (peek(r) == ',') {
        r->at++;
        skip(r, true);
        *most = -1;
        if (peek(r) != '}') TRY(read_number(r, most));
        skip(r, true);
    }
    if (peek(r) != '}') return wrong(r, "expected }");
    r->at++;
    return *most >= 0 && *most < *least ? wrong(r, "the repetitions end before they begin") : TN_OK;
}

/* What stands in s from `from` on becomes x{least,most}: x … x and then a rule for the rest. */
static tn_status repeat(reader *r, sequence *s, size_t from, int least, int most) {
    int32_t item, rest;
    tn_grammar *g = r->g;
    TRY(add_rule(g, &item));
    TRY(end_alternative(g, item, s, from));
    const element one = {ELEMENT_RULE, 0, 0, item};
    s->count = from;
    for (int i = 0; i < least; i++)
        TRY(add_item(s, one));
    if (most == least) return TN_OK;
    TRY(add_rule(g, &rest)); /* x rest | nothing */
    g->rules[rest].repeats = most < 0;
    element last = {ELEMENT_RULE, 0, 0, rest};
    TRY(add_item(s, last));
    for (int i = least; most < 0 || i < most; i++) {
        element pair[2] = {one, {ELEMENT_RULE, 0, 0, rest}};
        int32_t here = rest;
        if (most >= 0 && i + 1 < most) TRY(add_rule(g, &rest));
        pair[1].rule = rest;
        bool final = most >= 0 && i + 1 == most;
        TRY(end_alternative(g, here, &(sequence){pair, final ? 1 : 2, 2}, 0));
        TRY(end_alternative(g, here, &(sequence){0}, 0));
        if (most < 0) break;
    }
    return TN_OK;
}

static tn_status read_alternatives(reader *r, int32_t number);

static tn_status read_group(reader *r, sequence *s) {
    int32_t number;
    if (r->depth == MOST_NESTING) return wrong(r, "more than 64 nested parentheses");
    r->depth++;
    r->at++;
    TRY(add_rule(r->g, &number));
    TRY(read_alternatives(r, number));
    r->depth--;
    if (peek(r) != ')') return wrong(r, "expected )");
    r->at++;
    return add_item(s, (element){ELEMENT_RULE, 0, 0, number});
}

static tn_status read_item(reader *r, sequence *s) {
    int32_t number;
    static const span any[] = {{0, LAST_CHARACTER}};
    element made;
    switch (peek(r)) {
    case '"': return read_literal(r, s);
    case '[': return read_class(r, s);
    case '(': return read_group(r, s);
    case '.':
        r->at++;
        TRY(add_class(r->g, (span[]){any[0]}, 1, false, &made));
        return add_item(s, made);
    default: TRY(find_rule(r, &number)); return add_item(s, (element){ELEMENT_RULE, 0, 0, number});
    }
}

static bool begins_item(const reader *r) {
    char c = peek(r);
    return c == '"' || c == '[' || c == '(' || c == '.' || is_name(c);
}

static tn_status read_sequence(reader *r, sequence *s) {
    while (begins_item(r)) {
        size_t from = s->count;
        int least, most;
        TRY(read_item(r, s));
        skip(r, r->depth > 0);
        while (peek(r) && strchr("*+?{", peek(r))) {
            TRY(read_counts(r, &least, &most));
            TRY(repeat(r, s, from, least, most));
            skip(r, r->depth > 0);
        }
    }
    return TN_OK;
}

static tn_status read_alternatives(reader *r, int32_t number) {
    for (;;) {
        AUTO_CALL(free_sequence) sequence s = {0};
        skip(r, true);
        TRY(read_sequence(r, &s));
        TRY(end_alternative(r->g, number, &s, 0));
        const char *here = r->at;
        skip(r, true);
        if (peek(r) != '|') {
            if (r->depth == 0) r->at = here;
            return TN_OK;
        }
        r->at++;
    }
}

static tn_status read_rule(reader *r) {
    int32_t number;
    TRY(find_rule(r, &number));
    skip(r, false);
    if (r->end - r->at < 3 || memcmp(r->at, "::=", 3) != 0) return wrong(r, "expected ::=");
    r->at += 3;
    if (r->g->rules[number].defined) return wrong(r, "the rule is defined twice");
    TRY(read_alternatives(r, number));
    skip(r, false);
    if (r->at < r->end && *r->at != '\n') return wrong(r, "expected an element, | or the end of the line");
    return TN_OK;
}

/* ---- left recursion ---------------------------------------------------------------------------------------------- */

/* Which rules match the empty text: by iteration until nothing changes. */
static void find_empty(const tn_grammar *g, bool *empty) {
    for (bool changed = true; changed;) {
        changed = false;
        for (size_t i = 0; i < g->rule_count; i++)
            for (size_t a = 0; a < g->rules[i].count && !empty[i]; a++) {
                const element *e = g->elements + g->rules[i].starts[a];
                while (e->kind == ELEMENT_RULE && empty[e->rule])
                    e++;
                if (e->kind == ELEMENT_END) changed = empty[i] = true;
            }
    }
}

/* Rules that can begin rule i, where the walk is now. */
typedef struct walk {
    int32_t rule;
    size_t alternative;
    const element *at;
} walk;

enum { UNSEEN, ON_THE_WAY, DONE };

/* A depth-first walk without recursion; a way back to a rule that is being looked at is left recursion. */
static tn_status walk_from(const tn_grammar *g, const bool *empty, uint8_t *seen, walk *ways, int32_t start) {
    size_t depth = 0;
    ways[depth++] = (walk){.rule = start};
    seen[start] = ON_THE_WAY;
    while (depth > 0) {
        walk *w = &ways[depth - 1];
        const rule *r = &g->rules[w->rule];
        if (!w->at && w->alternative == r->count) {
            seen[w->rule] = DONE;
            depth--;
            continue;
        }
        const element *e = w->at ? w->at : g->elements + r->starts[w->alternative];
        if (e->kind != ELEMENT_RULE) {
            w->at = NULL;
            w->alternative++;
            continue;
        }
        int32_t next = e->rule;
        w->at = empty[next] ? e + 1 : NULL;
        if (!empty[next]) w->alternative++;
        if (r->repeats && next == w->rule) continue; /* found once, it is not begun again: see expand() */
        if (seen[next] == ON_THE_WAY)
            return tn_backend_fail(TN_ERR_UNSUPPORTED,
                                   "grammar: rule '%s' is left-recursive: it can begin with itself; write a ::= b c* "
                                   "instead of a ::= a c | b",
                                   g->rules[next].name[0] ? g->rules[next].name : "(a group or repetition)");
        if (seen[next] == UNSEEN) {
            seen[next] = ON_THE_WAY;
            ways[depth++] = (walk){.rule = next};
        }
    }
    return TN_OK;
}

static tn_status check_recursion(const tn_grammar *g) {
    AUTO_TXT_FREE bool *empty = tn_txt_zalloc(g->rule_count, sizeof *empty);
    AUTO_TXT_FREE uint8_t *seen = tn_txt_zalloc(g->rule_count, sizeof *seen);
    AUTO_TXT_FREE walk *ways = tn_txt_alloc(g->rule_count, sizeof *ways);
    if (!empty || !seen || !ways) return TN_ERR_MEMORY;
    find_empty(g, empty);
    for (size_t i = 0; i < g->rule_count; i++)
        if (seen[i] == UNSEEN) TRY(walk_from(g, empty, seen, ways, (int32_t)i));
    return TN_OK;
}

static tn_status read_grammar(reader *r) {
    int32_t root;
    tn_grammar *g = r->g;
    TRY(add_rule(g, &root)); /* rule 0 */
    memcpy(g->rules[0].name, "root", 5);
    for (skip(r, true); r->at < r->end; skip(r, true))
        TRY(read_rule(r));
    for (size_t i = 0; i < g->rule_count; i++)
        if (!g->rules[i].defined)
            return tn_backend_fail(TN_ERR_FORMAT, "grammar: rule '%s' is not defined", g->rules[i].name);
    return check_recursion(g);
}

tn_status tn_grammar_new(const char *source, size_t size, tn_grammar **out) {
    if (!out || (!source && size > 0)) return tn_backend_fail(TN_ERR_ARGUMENT, "grammar: an argument is NULL");
    *out = NULL;
    if (size > MOST_SOURCE)
        return tn_backend_fail(TN_ERR_UNSUPPORTED, "grammar: %zu bytes; at most %d", size, (int)MOST_SOURCE);
    tn_grammar *g = tn_txt_zalloc(1, sizeof *g);
    if (!g) return TN_ERR_MEMORY;
    reader r = {.g = g, .text = source, .at = source, .end = source + size};
    tn_status status = read_grammar(&r);
    if (status == TN_OK)
        *out = g;
    else
        tn_grammar_free(g);
    return status;
}

void tn_grammar_free(tn_grammar *g) {
    if (!g) return;
    for (size_t i = 0; i < g->rule_count; i++)
        tn_txt_free(g->rules[i].starts);
    tn_txt_free_each(g->rules, g->elements, g);
}

/* ---- states ------------------------------------------------------------------------------------------------------ */

/* A stack: the element that comes next, over the stack below. */
typedef struct node {
    int32_t element, below; /* below: a node, NONE at the bottom */
    int32_t chain;          /* the next node with the same hash */
} node;
enum { NONE = -1, HASH_BITS = 16 }; /* at MOST_NODES a chain has 16 nodes on average */

typedef struct node_set {
    int32_t *items;
    size_t count, room;
} node_set;

struct tn_grammar_state {
    const tn_grammar *g;
    node *nodes;
    size_t count, room;
    int32_t heads[1 << HASH_BITS]; /* of the chains */
    node_set tops, next, work;     /* tops: stacks whose next element is bytes */
    bool may_end, next_may_end;
    uint8_t *marks; /* of nodes, while a set is made */
    size_t mark_room;
    char *texts; /* of all tokens, one after the other */
    size_t *places;
    int32_t token_count;
};

static size_t hash_node(int32_t next, int32_t below) {
    uint64_t h = ((uint64_t)(uint32_t)next << 32 | (uint32_t)below) * 0x9E3779B97F4A7C15u;
    return (size_t)(h >> (64 - HASH_BITS));
}

/* The node of this element over that stack. */
static tn_status find_node(tn_grammar_state *s, int32_t next, int32_t below, int32_t *out) {
    size_t h = hash_node(next, below);
    for (*out = s->heads[h]; *out != NONE; *out = s->nodes[*out].chain)
        if (s->nodes[*out].element == next && s->nodes[*out].below == below) return TN_OK;
    if (s->count == MOST_NODES)
        return tn_backend_fail(TN_ERR_UNSUPPORTED, "grammar: the text needs more than %d states; simplify the grammar",
                               (int)MOST_NODES);
    TRY(tn_txt_reserve(&s->nodes, &s->room, s->count + 1, sizeof *s->nodes));
    s->nodes[s->count] = (node){next, below, s->heads[h]};
    s->heads[h] = *out = (int32_t)s->count++;
    return TN_OK;
}

/* Forgets the nodes from `count` on: they are the newest of their chains. */
static void drop_nodes(tn_grammar_state *s, size_t count) {
    while (s->count > count) {
        const node *n = &s->nodes[--s->count];
        s->heads[hash_node(n->element, n->below)] = n->chain;
    }
}

static tn_status add_to(node_set *set, int32_t n) {
    if (set->count == MOST_TOPS)
        return tn_backend_fail(TN_ERR_UNSUPPORTED,
                               "grammar: the text has more than %d readings; make it less ambiguous", (int)MOST_TOPS);
    TRY(tn_txt_reserve(&set->items, &set->room, set->count + 1, sizeof *set->items));
    set->items[set->count++] = n;
    return TN_OK;
}

/* Puts a stack on the list of work, once. */
static tn_status add_work(tn_grammar_state *s, int32_t next, int32_t below) {
    int32_t n;
    const element_kind kind = s->g->elements[next].kind;
    /* The end of an alternative continues with the stack below it. */
    if (kind == ELEMENT_END && below == NONE) {
        s->next_may_end = true;
        return TN_OK;
    }
    if (kind == ELEMENT_END)
        n = below;
    else
        TRY(find_node(s, next, below, &n));
    size_t before = s->mark_room;
    TRY(tn_txt_reserve(&s->marks, &s->mark_room, (size_t)n + 1, 1));
    memset(s->marks + before, 0, s->mark_room - before);
    if (s->marks[n]) return TN_OK;
    s->marks[n] = 1;
    return add_to(&s->work, n);
}

/* From the stacks on the list of work to those whose next element is bytes, in s->next. */
static tn_status expand(tn_grammar_state *s) {
    tn_status status = TN_OK;
    for (size_t i = 0; i < s->work.count && status == TN_OK; i++) {
        int32_t n = s->work.items[i];
        const node at = s->nodes[n];
        const element *e = &s->g->elements[at.element];
        if (e->kind == ELEMENT_BYTES) {
            status = add_to(&s->next, n);
            continue;
        }
        /* What follows the rule, unless nothing does. */
        int32_t below = at.below;
        if (e[1].kind != ELEMENT_END) status = find_node(s, at.element + 1, at.below, &below);
        const rule *r = &s->g->rules[e->rule];
        for (size_t a = 0; a < r->count && status == TN_OK; a++)
            status = add_work(s, r->starts[a], below);
    }
    for (size_t i = 0; i < s->work.count; i++)
        s->marks[s->work.items[i]] = 0;
    s->work.count = 0;
    return status;
}

/* The stacks after one more byte, of `from`, in s->next. */
static tn_status take_byte(tn_grammar_state *s, const node_set *from, uint8_t byte) {
    tn_status status = TN_OK;
    s->next.count = 0;
    s->next_may_end = false;
    for (size_t i = 0; i < from->count && status == TN_OK; i++) {
        const node n = s->nodes[from->items[i]];
        const element *e = &s->g->elements[n.element];
        if (byte >= e->least && byte <= e->most) status = add_work(s, n.element + 1, n.below);
    }
    tn_status expanded = expand(s);
    return status == TN_OK ? expanded : status;
}

static void swap_sets(tn_grammar_state *s) {
    const node_set set = s->tops;
    s->tops = s->next;
    s->next = set;
    s->may_end = s->next_may_end;
}

/* Begins at the start of the text. */
tn_status tn_grammar_state_reset(tn_grammar_state *s) {
    if (!s) return tn_backend_fail(TN_ERR_ARGUMENT, "grammar: the state is NULL");
    drop_nodes(s, 0);
    s->next.count = 0;
    s->next_may_end = false;
    const rule *root = &s->g->rules[0];
    tn_status status = TN_OK;
    for (size_t a = 0; a < root->count && status == TN_OK; a++)
        status = add_work(s, root->starts[a], NONE);
    tn_status expanded = expand(s);
    if (status == TN_OK) status = expanded;
    if (status == TN_OK) swap_sets(s);
    return status;
}

/* The bytes that each token adds to a text; nothing for control tokens. */
static tn_status read_texts(tn_grammar_state *s, const tn_tokenizer *t) {
    tn_bytes all = {0};
    tn_status status = TN_OK;
    s->token_count = tn_tokenizer_count(t);
    s->places = tn_txt_alloc((size_t)s->token_count + 1, sizeof *s->places);
    if (!s->places) return TN_ERR_MEMORY;
    for (int32_t id = 0; id < s->token_count && status == TN_OK; id++) {
        tn_text_stream stream = {.begun = true};
        s->places[id] = all.size;
        status = tn_tokenizer_stream(t, &stream, id, 0, &all);
        if (status == TN_OK) status = tn_bytes_append(&all, stream.pending, (size_t)stream.pending_count);
    }
    s->places[s->token_count] = all.size;
    s->texts = all.data;
    return status;
}

tn_status tn_grammar_state_new(const tn_grammar *g, const tn_tokenizer *t, tn_grammar_state **out) {
    if (!out || !g) return tn_backend_fail(TN_ERR_ARGUMENT, "grammar: an argument is NULL");
    *out = NULL;
    tn_grammar_state *s = tn_txt_zalloc(1, sizeof *s);
    if (!s) return TN_ERR_MEMORY;
    s->g = g;
    for (size_t i = 0; i < sizeof s->heads / sizeof *s->heads; i++)
        s->heads[i] = NONE;
    tn_status status = t ? read_texts(s, t) : TN_OK;
    if (status == TN_OK) status = tn_grammar_state_reset(s);
    if (status == TN_OK)
        *out = s;
    else
        tn_grammar_state_free(s);
    return status;
}

void tn_grammar_state_free(tn_grammar_state *s) {
    if (!s) return;
    tn_txt_free_each(s->nodes, s->tops.items, s->next.items, s->work.items, s->marks, s->texts, s->places, s);
}

bool tn_grammar_may_end(const tn_grammar_state *s) { return s && s->may_end; }

/* The byte at a place of a text, from the nodes `tops`; fits: there is something to go on with, or the text ends. */
static tn_status take_next(tn_grammar_state *s, const node_set *tops, const char *text, size_t size, size_t at,
                           bool *fits) {
    tn_status status = take_byte(s, tops, (uint8_t)text[at]);
    if (status == TN_OK) swap_sets(s);
    *fits = status == TN_OK && (s->tops.count > 0 || (s->may_end && at + 1 == size));
    return status;
}

/* Takes bytes; s->tops is as before where they do not fit. Leaves the nodes that it made. */
static tn_status take_bytes(tn_grammar_state *s, const char *text, size_t size, bool *fits) {
    node_set from = {0};
    bool may_end = s->may_end;
    tn_status status = TN_OK;
    *fits = true;
    for (size_t i = 0; i < s->tops.count && status == TN_OK; i++)
        status = add_to(&from, s->tops.items[i]);
    for (size_t i = 0; i < size && status == TN_OK && *fits; i++)
        status = take_next(s, &s->tops, text, size, i, fits);
    if (status == TN_OK && *fits) {
        tn_txt_free(from.items);
        return TN_OK;
    }
    tn_txt_free(s->tops.items);
    s->tops = from;
    s->may_end = may_end;
    return status;
}

tn_status tn_grammar_accept_bytes(tn_grammar_state *s, const char *text, size_t size) {
    bool fits;
    if (!s || (!text && size > 0)) return tn_backend_fail(TN_ERR_ARGUMENT, "grammar: an argument is NULL");
    TRY(take_bytes(s, text, size, &fits));
    if (fits) return TN_OK;
    return tn_backend_fail(TN_ERR_ARGUMENT, "grammar: the text \"%.*s\" does not fit", size < 40 ? (int)size : 40,
                           text);
}

static const char *token_text(const tn_grammar_state *s, int32_t id, size_t *size) {
    *size = id >= 0 && id < s->token_count ? s->places[id + 1] - s->places[id] : 0;
    return *size ? s->texts + s->places[id] : "";
}

tn_status tn_grammar_accept(tn_grammar_state *s, int32_t id) {
    size_t size;
    if (!s) return tn_backend_fail(TN_ERR_ARGUMENT, "grammar: the state is NULL");
    const char *text = token_text(s, id, &size);
    return tn_grammar_accept_bytes(s, text, size);
}

/* Without a change: what a trial makes is dropped again. */
static tn_status try_bytes(tn_grammar_state *s, const char *text, size_t size, bool *fits) {
    size_t nodes = s->count;
    bool may_end = s->may_end;
    node_set tops = s->tops;
    s->tops = (node_set){0};
    tn_status status = TN_OK;
    *fits = true;
    for (size_t i = 0; i < size && *fits; i++)
        status = take_next(s, i == 0 ? &tops : &s->tops, text, size, i, fits);
    tn_txt_free(s->tops.items);
    s->tops = tops;
    s->may_end = may_end;
    drop_nodes(s, nodes);
    return status;
}

tn_status tn_grammar_allows(tn_grammar_state *s, int32_t id, bool *allowed) {
    size_t size;
    if (!s || !allowed) return tn_backend_fail(TN_ERR_ARGUMENT, "grammar: an argument is NULL");
    const char *text = token_text(s, id, &size);
    *allowed = false;
    return size ? try_bytes(s, text, size, allowed) : TN_OK;
}

/* Few bytes can come next, and most tokens begin with another one. */
tn_status tn_grammar_filter(tn_grammar_state *s, const bool *ends, float *logits, int32_t count) {
    bool first[256] = {0};
    if (!s || !logits) return tn_backend_fail(TN_ERR_ARGUMENT, "grammar: an argument is NULL");
    for (size_t i = 0; i < s->tops.count; i++) {
        const element *e = &s->g->elements[s->nodes[s->tops.items[i]].element];
        for (int b = e->least; b <= e->most; b++)
            first[b] = true;
    }
    for (int32_t id = 0; id < count; id++) {
        size_t size;
        bool allowed = false;
        const char *text = token_text(s, id, &size);
        if (ends && ends[id])
            allowed = s->may_end;
        else if (size && first[(uint8_t)text[0]])
            TRY(try_bytes(s, text, size, &allowed));
        if (!allowed) logits[id] = -INFINITY;
    }
    return TN_OK;
}
