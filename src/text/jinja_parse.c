/* jinja_parse.c — tokens to a tree, by recursive descent: one function for each level of precedence, Jinja's grammar.
 *
 * What Jinja has and chat templates do not need (inheritance, imports, call blocks) is refused by name. */
#include <string.h>

#include "text/jinja.h"

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
    strcat(strcat(strcat(what, "\""), spelling), "\" is expected");
    return fail(p, what);
}

static tn_status need_name(parser *p, const char **out) {
    if (p->at->kind != JJ_T_NAME) return fail(p, "a name is expected");
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

/* Arguments of a call, behind its "(": `name = value` are named ones, which come last. The keyword of *list and **dict
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
        if (named && !is_named && !(stars && !strcmp(name, "**"))) return fail(p, "named arguments come last");
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
    if (!sees(p, "[")) return fail(p, "a value is expected");
    TRY(make_parser(p, JJ_LIST_OF, out));
    p->at = p->at->next;
    return parse_items(p, "]", &(*out)->items);
}

/* Behind "[": an index, or a slice with any of its three parts. */
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
    if (n->kind == JJ_ITEM && !n->b) return fail(p, "an index is expected");
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

/* .name [index] (arguments), as often as they come. */
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
        return tn_jj_fail_at((*out)->line, (*out)->column, "there is no filter \"%.60s\"", (*out)->name);
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
    if (!tn_jj_find_test(n->name)) return tn_jj_fail_at(n->line, n->column, "there is no test \"%.60s\"", n->name);
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
    if (p->at->kind != JJ_T_BLOCK_END) return fail(p, "%} is expected");
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
    if (n->a->kind == JJ_MEMBER) return fail(p, "a for loop gives values to names");
    TRY(need_parser(p, "in"));
    TRY(parse_logic(p, true, &n->b)); /* an `if` behind it is the loop's */
    if (parser_takes(p, "if")) TRY(parse_expression(p, &n->c));
    if (sees(p, "recursive")) return fail(p, "recursive loops are not known; a macro may call itself");
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

/* The filters behind {% filter or {% set name: a chain whose innermost value is missing. */
static tn_status parse_filter_chain(parser *p, jj_node **out) {
    TRY(parse_filter(p, NULL, out));
    while (parser_takes(p, "|"))
        TRY(parse_filter(p, *out, out));
    return TN_OK;
}

static tn_status parse_set(parser *p, jj_node **out) {
    static const char *const ends[] = {"endset", NULL};
    const char *end;
    TRY(make_parser(p, JJ_SET, out));
    TRY(parse_target(p, &(*out)->a));
    if (parser_takes(p, "=")) {
        (*out)->op = JJ_EQUAL;
        TRY(parse_tuple(p, &(*out)->b));
        return end_tag(p);
    }
    if (parser_takes(p, "|")) TRY(parse_filter_chain(p, &(*out)->b));
    TRY(end_tag(p));
    TRY(parse_body(p, ends, &(*out)->body, &end));
    return end_tag(p);
}

/* Names with values: name = value, … up to the end of the tag or ")". Each is a JJ_NAME with its value in a. */
static tn_status parse_bindings(parser *p, bool need_values, const char *close, jj_node **items) {
    jj_node **tail = items;
    bool optional = false;
    while (close ? !parser_takes(p, close) : p->at->kind != JJ_T_BLOCK_END) {
        TRY(make_parser(p, JJ_NAME, tail));
        TRY(need_name(p, &(*tail)->name));
        bool has_value = parser_takes(p, "=");
        if (!has_value && (need_values || optional)) return fail(p, "a value is expected");
        if (has_value) TRY(parse_expression(p, &(*tail)->a));
        optional |= has_value;
        tail = &(*tail)->next;
        if (close ? !sees(p, close) : p->at->kind != JJ_T_BLOCK_END) TRY(need_parser(p, ","));
    }
    return TN_OK;
}

static tn_status parse_macro(parser *p, jj_node **out) {
    static const char *const ends[] = {"endmacro", NULL};
    const char *end;
    TRY(make_parser(p, JJ_MACRO, out));
    TRY(need_name(p, &(*out)->name));
    TRY(need_parser(p, "("));
    TRY(parse_bindings(p, false, ")", &(*out)->items));
    TRY(end_tag(p));
    int loops = p->loops;
    p->loops = 0;
    TRY(parse_body(p, ends, &(*out)->body, &end));
    p->loops = loops;
    return end_tag(p);
}

static tn_status parse_filtered(parser *p, jj_node **out) {
    static const char *const ends[] = {"endfilter", NULL};
    const char *end;
    TRY(make_parser(p, JJ_FILTERED, out));
    TRY(parse_filter_chain(p, &(*out)->a));
    TRY(end_tag(p));
    TRY(parse_body(p, ends, &(*out)->body, &end));
    return end_tag(p);
}

static tn_status parse_with(parser *p, jj_node **out) {
    static const char *const ends[] = {"endwith", NULL};
    const char *end;
    TRY(make_parser(p, JJ_WITH, out));
    TRY(parse_bindings(p, true, NULL, &(*out)->items));
    TRY(end_tag(p));
    TRY(parse_body(p, ends, &(*out)->body, &end));
    return end_tag(p);
}

/* {% generation %} marks what an assistant wrote, for training; its text is text like other. */
static tn_status parse_generation(parser *p, jj_node **out) {
    static const char *const ends[] = {"endgeneration", NULL};
    const char *end;
    TRY(make_parser(p, JJ_BLOCK, out));
    TRY(end_tag(p));
    TRY(parse_body(p, ends, &(*out)->body, &end));
    return end_tag(p);
}

static tn_status parse_jump(parser *p, jj_node_kind kind, jj_node **out) {
    if (p->loops == 0) return fail(p, "break and continue stand in loops; %} is expected");
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
    return fail(p, "a statement is expected (if, for, set, macro, filter, with, break, continue, generation)");
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
    if (p->at->kind != JJ_T_OUTPUT_END) return fail(p, "}} is expected");
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
            return fail(p, strcat(strcat(what, ends[1] ? ends[ends[2] ? 2 : 1] : ends[0]), " is expected"));
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
