/* jinja_eval.c — evaluates templates: expressions give values, statements write text; the public side of chat
 * templates.
 *
 * Names live in scopes: one for the template, one for each turn of a loop, for a with, for a call of a macro. A `set`
 * writes to the innermost; only a namespace carries something out of a loop. Steps, depth and text are counted as the
 * walk goes, so every template ends. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "text/jinja.h"

static tn_status eval(jj_run *r, const jj_node *n, jj_value *out);
static tn_status execute(jj_run *r, const jj_node *body);

/* ---- limits ------------------------------------------------------------------------------------------------------ */

tn_status tn_jj_fail(const jj_run *r, const char *format, ...) {
    char text[400];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (!r->at) return tn_backend_fail(TN_ERR_FORMAT, "chat template: %s", text);
    return tn_jj_fail_at(r->at->line, r->at->column, "%s", text);
}

tn_status tn_jj_charge(jj_run *r, size_t steps) {
    if (r->steps_left < 0 || steps > (size_t)r->steps_left)
        return tn_jj_fail(r, "the template exceeded its step limit: is there an endless loop?");
    r->steps_left -= (int64_t)steps;
    return TN_OK;
}

/* Enters a node: counts a step and one level of nesting. On success the caller decrements r->depth when it is done. */
static tn_status enter_jinja(jj_run *r, const jj_node *n) {
    r->at = n;
    TRY(tn_jj_charge(r, 1));
    if (r->depth >= JJ_MAX_RUN_DEPTH) return tn_jj_fail(r, "nested more than %d levels deep", JJ_MAX_RUN_DEPTH);
    r->depth++;
    return TN_OK;
}

/* ---- names ------------------------------------------------------------------------------------------------------- */

static tn_status push_scope(jj_run *r, jj_scope *parent, jj_scope **before) {
    jj_scope *s = tn_jj_alloc(&r->arena, 1, sizeof *s);
    if (!s) return TN_ERR_MEMORY;
    s->parent = parent;
    *before = r->scope;
    r->scope = s;
    return TN_OK;
}

static tn_status find_name(jj_run *r, const char *name, jj_value *out) {
    jj_value key = tn_jj_literal(name), *found;
    for (const jj_scope *s = r->scope; s; s = s->parent) {
        TRY(tn_jj_find(r, &s->names, &key, &found));
        if (!found) continue;
        *out = *found;
        return TN_OK;
    }
    *out = (jj_value){.kind = JJ_UNDEFINED};
    const jj_row *row = tn_jj_find_function(name);
    if (!row) return TN_OK;
    jj_callable *c = tn_jj_alloc(&r->arena, 1, sizeof *c);
    if (!c) return TN_ERR_MEMORY;
    c->row = row;
    *out = (jj_value){.kind = JJ_CALLABLE, .callable = c};
    return TN_OK;
}

/* Gives a value to a name, to several (the value's items), or to a member of a namespace. */
static tn_status assign(jj_run *r, const jj_node *target, jj_value value) {
    if (target->kind == JJ_NAME) return tn_jj_put(r, &r->scope->names, tn_jj_literal(target->name), value);
    if (target->kind == JJ_MEMBER) {
        jj_value space;
        TRY(find_name(r, target->a->name, &space));
        if (space.kind != JJ_NAMESPACE)
            return tn_jj_fail(r, "\"%.60s\" is not a namespace, so its members cannot be set", target->a->name);
        return tn_jj_put(r, space.dict, tn_jj_literal(target->name), value);
    }
    const jj_list *items;
    size_t i = 0;
    TRY(tn_jj_items(r, &value, &items));
    for (const jj_node *name = target->items; name; name = name->next, i++) {
        if (i >= items->count)
            return tn_jj_fail(r, "cannot unpack: there are more names than the %zu values", items->count);
        TRY(tn_jj_put(r, &r->scope->names, tn_jj_literal(name->name), items->items[i]));
    }
    return i == items->count ? TN_OK : tn_jj_fail(r, "cannot unpack: %zu values for %zu names", items->count, i);
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

/* Arguments as they are gathered. */
typedef struct gathered {
    jj_list values, names; /* the name of a positional argument is None */
} gathered;

static tn_status gather_jinja(jj_run *r, gathered *g, jj_value value, jj_value name) {
    TRY(tn_jj_push(r, &g->values, value));
    return tn_jj_push(r, &g->names, name);
}

/* *list or **dict: each item is an argument. */
static tn_status gather_all(jj_run *r, gathered *g, const jj_value *whole, bool pairs) {
    const jj_list *items;
    if (pairs && whole->kind != JJ_DICT) return tn_jj_fail(r, "** requires a dict, not %s", tn_jj_kind_name(whole));
    TRY(tn_jj_items(r, whole, &items));
    for (size_t i = 0; i < items->count; i++) {
        jj_value name = items->items[i], copy;
        if (!pairs) {
            TRY(gather_jinja(r, g, name, jj_none()));
            continue;
        }
        if (name.kind != JJ_STRING) return tn_jj_fail(r, "** requires a dict whose keys are strings");
        tn_bytes spelled = {0}; /* names end in a NUL */
        tn_status status = tn_bytes_append(&spelled, name.text, name.size);
        if (status == TN_OK) status = tn_jj_copy(r, spelled.data, spelled.size + 1, &copy);
        tn_bytes_free(&spelled);
        TRY(status);
        TRY(gather_jinja(r, g, whole->dict->pairs[i].value, copy));
    }
    return TN_OK;
}

static tn_status eval_arguments(jj_run *r, const jj_node *items, jj_arguments *out) {
    gathered g = {0};
    for (; items; items = items->next) {
        jj_value value;
        TRY(eval(r, items, &value));
        if (!items->keyword) {
            TRY(gather_jinja(r, &g, value, jj_none()));
        } else if (items->keyword[0] == '*') {
            TRY(gather_all(r, &g, &value, items->keyword[1] == '*'));
        } else {
            TRY(gather_jinja(r, &g, value, tn_jj_literal(items->keyword)));
        }
    }
    if (g.values.count > INT16_MAX) return tn_jj_fail(r, "%zu arguments are too many", g.values.count);
    const char **names = tn_jj_alloc(&r->arena, g.values.count, sizeof *names);
    if (!names) return TN_ERR_MEMORY;
    *out = (jj_arguments){.values = g.values.items, .names = names, .count = (int)g.values.count};
    for (int i = 0; i < out->count; i++) {
        names[i] = g.names.items[i].kind == JJ_STRING ? g.names.items[i].text : NULL;
        if (!names[i]) out->positional = i + 1;
    }
    return TN_OK;
}

/* The number of a name in a list with blanks between; -1 if it is not there. */
static int number_of_name(const char *names, const char *name) {
    size_t length = strlen(name);
    for (int i = 0; *names; i++) {
        size_t word = strcspn(names, " ");
        if (word == length && !memcmp(names, name, length)) return i;
        names += word + (names[word] == ' ');
    }
    return -1;
}

static int count_names(const char *names) {
    int count = *names != 0;
    for (; *names; names++)
        count += *names == ' ';
    return count;
}

tn_status tn_jj_call_row(jj_run *r, const jj_row *row, jj_value self, const jj_arguments *given, jj_value *out) {
    const jj_value *bound[JJ_MAX_ARGUMENTS] = {0};
    if (!row->names) return row->call(r, self, given, bound, out);
    int most = count_names(row->names);
    if (given->positional > most)
        return tn_jj_fail(r, "%s takes %d arguments, not %d", row->name, most, given->positional);
    for (int i = 0; i < given->count; i++) {
        int place = i < given->positional ? i : number_of_name(row->names, given->names[i]);
        if (place < 0) return tn_jj_fail(r, "%s has no parameter \"%.60s\"", row->name, given->names[i]);
        if (bound[place]) return tn_jj_fail(r, "%s: an argument is given twice", row->name);
        bound[place] = &given->values[i];
    }
    for (int i = 0; i < row->needed; i++)
        if (!bound[i]) return tn_jj_fail(r, "%s requires %d arguments", row->name, row->needed);
    return row->call(r, self, given, bound, out);
}

/* Runs a body and takes what it writes as a string. */
static tn_status capture(jj_run *r, const jj_node *body, jj_value *out) {
    AUTO_BYTES tn_bytes text = {0};
    tn_bytes *before = r->out;
    r->out = &text;
    tn_status status = execute(r, body);
    r->out = before;
    TRY(status);
    return tn_jj_copy(r, text.data, text.size, out);
}

/* Binds a macro's parameters in the current scope: given ones, defaults, undefined. */
static tn_status bind_parameters(jj_run *r, const jj_node *macro, const jj_arguments *given) {
    int i = 0, used = 0;
    for (const jj_node *p = macro->items; p; p = p->next, i++) {
        jj_value value = {.kind = JJ_UNDEFINED};
        int place = i < given->positional ? i : -1;
        for (int k = given->positional; k < given->count && place < 0; k++)
            if (!strcmp(given->names[k], p->name)) place = k;
        if (place >= 0) {
            value = given->values[place];
            used++;
        } else if (p->a) {
            TRY(eval(r, p->a, &value));
        }
        TRY(tn_jj_put(r, &r->scope->names, tn_jj_literal(p->name), value));
    }
    if (used == given->count) return TN_OK;
    return tn_jj_fail(r, "the macro \"%.60s\" does not accept these arguments", macro->name);
}

static tn_status call_macro(jj_run *r, const jj_callable *c, const jj_arguments *given, jj_value *out) {
    jj_scope *before;
    TRY(push_scope(r, c->scope, &before));
    TRY(bind_parameters(r, c->macro, given));
    TRY(capture(r, c->macro->body, out));
    r->scope = before;
    return TN_OK;
}

static tn_status eval_call(jj_run *r, const jj_node *n, jj_value *out) {
    jj_value callee;
    jj_arguments given;
    TRY(eval(r, n->a, &callee));
    TRY(eval_arguments(r, n->items, &given));
    r->at = n;
    if (callee.kind != JJ_CALLABLE)
        return tn_jj_fail(r, "%.60s%s%s cannot be called", n->a->name ? n->a->name : "", n->a->name ? ": " : "",
                          tn_jj_kind_name(&callee));
    const jj_callable *c = callee.callable;
    return c->macro ? call_macro(r, c, &given, out) : tn_jj_call_row(r, c->row, c->self, &given, out);
}

/* A chain of filters on a value; `value` stands for the innermost one where the chain has none of its own. */
static tn_status apply_filters(jj_run *r, const jj_node *n, const jj_value *value, jj_value *out) {
    jj_value self;
    jj_arguments given;
    TRY(enter_jinja(r, n));
    if (!n->a) {
        self = *value;
    } else if (value && n->a->kind == JJ_FILTER) {
        TRY(apply_filters(r, n->a, value, &self));
    } else {
        TRY(eval(r, n->a, &self));
    }
    TRY(eval_arguments(r, n->items, &given));
    r->at = n;
    TRY(tn_jj_call_row(r, tn_jj_find_filter(n->name), self, &given, out));
    r->depth--;
    return TN_OK;
}

/* ---- expressions ------------------------------------------------------------------------------------------------- */

static tn_status eval_constant(TN_UNUSED jj_run *r, const jj_node *n, jj_value *out) {
    *out = n->constant;
    return TN_OK;
}

static tn_status eval_name(jj_run *r, const jj_node *n, jj_value *out) { return find_name(r, n->name, out); }

static tn_status eval_list(jj_run *r, const jj_node *n, jj_value *out) {
    jj_list *list;
    TRY(tn_jj_new_list(r, out, &list));
    list->tuple = n->kind == JJ_TUPLE_OF;
    for (const jj_node *item = n->items; item; item = item->next) {
        jj_value value;
        TRY(eval(r, item, &value));
        TRY(tn_jj_push(r, list, value));
    }
    return TN_OK;
}

static tn_status eval_dict(jj_run *r, const jj_node *n, jj_value *out) {
    jj_dict *dict;
    TRY(tn_jj_new_dict(r, JJ_DICT, out, &dict));
    for (const jj_node *item = n->items; item; item = item->next->next) {
        jj_value key, value;
        TRY(eval(r, item, &key));
        TRY(eval(r, item->next, &value));
        TRY(tn_jj_put(r, dict, key, value));
    }
    return TN_OK;
}

static tn_status eval_member(jj_run *r, const jj_node *n, jj_value *out) {
    jj_value whole;
    TRY(eval(r, n->a, &whole));
    r->at = n;
    return tn_jj_member(r, &whole, n->name, out);
}

static tn_status eval_item(jj_run *r, const jj_node *n, jj_value *out) {
    jj_value whole, key;
    TRY(eval(r, n->a, &whole));
    TRY(eval(r, n->b, &key));
    r->at = n;
    return tn_jj_item(r, &whole, &key, out);
}

static tn_status eval_slice(jj_run *r, const jj_node *n, jj_value *out) {
    const jj_node *nodes[3] = {n->b, n->c, n->d};
    jj_value whole, parts[3];
    const jj_value *given[3] = {0};
    TRY(eval(r, n->a, &whole));
    for (int i = 0; i < 3; i++) {
        if (!nodes[i]) continue;
        TRY(eval(r, nodes[i], &parts[i]));
        given[i] = &parts[i];
    }
    r->at = n;
    return tn_jj_slice(r, &whole, given[0], given[1], given[2], out);
}

static tn_status eval_filter(jj_run *r, const jj_node *n, jj_value *out) { return apply_filters(r, n, NULL, out); }

static tn_status eval_test(jj_run *r, const jj_node *n, jj_value *out) {
    jj_value self;
    jj_arguments given;
    bool truth;
    TRY(eval(r, n->a, &self));
    TRY(eval_arguments(r, n->items, &given));
    r->at = n;
    TRY(tn_jj_test(r, n->name, self, &given, &truth));
    *out = jj_bool(truth != n->negated);
    return TN_OK;
}

static tn_status eval_not(jj_run *r, const jj_node *n, jj_value *out) {
    jj_value value;
    TRY(eval(r, n->a, &value));
    *out = jj_bool(!tn_jj_truth(&value));
    return TN_OK;
}

static tn_status eval_sign(jj_run *r, const jj_node *n, jj_value *out) {
    const jj_value zero = jj_int(0);
    jj_value value;
    TRY(eval(r, n->a, &value));
    r->at = n;
    if (value.kind == JJ_FLOAT) {
        *out = jj_float(n->kind == JJ_NEGATIVE ? -value.number : value.number);
        return TN_OK;
    }
    return tn_jj_binary(r, n->kind == JJ_NEGATIVE ? JJ_SUBTRACT : JJ_ADD, &zero, &value, out);
}

static tn_status eval_binary(jj_run *r, const jj_node *n, jj_value *out) {
    jj_value a, b;
    TRY(eval(r, n->a, &a));
    TRY(eval(r, n->b, &b));
    r->at = n;
    return tn_jj_binary(r, n->op, &a, &b, out);
}

static tn_status compare_jinja(jj_run *r, jj_op op, const jj_value *a, const jj_value *b, bool *out) {
    int order = 0;
    switch (op) {
    case JJ_EQUAL: return tn_jj_equal(r, a, b, out);
    case JJ_IN: return tn_jj_contains(r, b, a, out);
    case JJ_UNEQUAL:
    case JJ_NOT_IN:
        TRY(compare_jinja(r, op == JJ_UNEQUAL ? JJ_EQUAL : JJ_IN, a, b, out));
        *out = !*out;
        return TN_OK;
    default: break;
    }
    TRY(tn_jj_order(r, a, b, &order));
    *out = op == JJ_LESS ? order < 0 : op == JJ_LESS_EQUAL ? order <= 0 : op == JJ_GREATER ? order > 0 : order >= 0;
    return TN_OK;
}

static tn_status eval_compare(jj_run *r, const jj_node *n, jj_value *out) {
    jj_value left, right;
    bool holds = true;
    TRY(eval(r, n->a, &left));
    for (const jj_node *part = n->items; part && holds; part = part->next) {
        TRY(eval(r, part->a, &right));
        r->at = part;
        TRY(compare_jinja(r, part->op, &left, &right, &holds));
        left = right;
    }
    *out = jj_bool(holds);
    return TN_OK;
}

/* Python's `and` and `or` give one of their sides. */
static tn_status eval_logic(jj_run *r, const jj_node *n, jj_value *out) {
    TRY(eval(r, n->a, out));
    return tn_jj_truth(out) == (n->kind == JJ_AND) ? eval(r, n->b, out) : TN_OK;
}

static tn_status eval_choice(jj_run *r, const jj_node *n, jj_value *out) {
    jj_value condition;
    TRY(eval(r, n->b, &condition));
    if (tn_jj_truth(&condition)) return eval(r, n->a, out);
    *out = (jj_value){.kind = JJ_UNDEFINED};
    return n->c ? eval(r, n->c, out) : TN_OK;
}

static tn_status eval(jj_run *r, const jj_node *n, jj_value *out) {
    static tn_status (*const ways[])(jj_run *, const jj_node *, jj_value *) = {
        [JJ_CONSTANT] = eval_constant, [JJ_NAME] = eval_name,     [JJ_LIST_OF] = eval_list,
        [JJ_TUPLE_OF] = eval_list,     [JJ_DICT_OF] = eval_dict,  [JJ_MEMBER] = eval_member,
        [JJ_ITEM] = eval_item,         [JJ_SLICE] = eval_slice,   [JJ_CALL] = eval_call,
        [JJ_FILTER] = eval_filter,     [JJ_TEST] = eval_test,     [JJ_NOT] = eval_not,
        [JJ_NEGATIVE] = eval_sign,     [JJ_POSITIVE] = eval_sign, [JJ_BINARY] = eval_binary,
        [JJ_COMPARE] = eval_compare,   [JJ_AND] = eval_logic,     [JJ_OR] = eval_logic,
        [JJ_CHOICE] = eval_choice,
    };
    TRY(enter_jinja(r, n));
    TRY(ways[n->kind](r, n, out));
    r->depth--;
    return TN_OK;
}

/* ---- statements -------------------------------------------------------------------------------------------------- */

static tn_status write_text(jj_run *r, const char *text, size_t size) {
    if (size > r->max_written - r->written) return tn_jj_fail(r, "the output exceeds %zu bytes", r->max_written);
    r->written += size;
    TRY(tn_jj_charge(r, size / 64));
    return tn_bytes_append(r->out, text, size);
}

static tn_status run_text(jj_run *r, const jj_node *n) { return write_text(r, n->constant.text, n->constant.size); }

static tn_status run_output(jj_run *r, const jj_node *n) {
    jj_value value, text;
    TRY(eval(r, n->a, &value));
    r->at = n;
    TRY(tn_jj_string(r, &value, &text));
    return write_text(r, text.text, text.size);
}

static tn_status run_if(jj_run *r, const jj_node *n) {
    for (;;) {
        jj_value condition;
        TRY(eval(r, n->a, &condition));
        if (tn_jj_truth(&condition)) return execute(r, n->body);
        if (!n->other || n->other->kind != JJ_IF || n->other->next) return execute(r, n->other);
        n = n->other; /* an elif, or an else with nothing but an if */
    }
}

/* The items that a loop goes over: those for which its `if` holds. */
static tn_status loop_items(jj_run *r, const jj_node *n, const jj_list **out) {
    jj_value whole, value;
    jj_list *kept;
    const jj_list *all;
    TRY(eval(r, n->b, &whole));
    r->at = n;
    TRY(tn_jj_items(r, &whole, &all));
    *out = all;
    if (!n->c) return TN_OK;
    TRY(tn_jj_new_list(r, &value, &kept));
    for (size_t i = 0; i < all->count; i++) {
        jj_scope *before;
        TRY(push_scope(r, r->scope, &before));
        TRY(assign(r, n->a, all->items[i]));
        TRY(eval(r, n->c, &value));
        r->scope = before;
        if (tn_jj_truth(&value)) TRY(tn_jj_push(r, kept, all->items[i]));
    }
    *out = kept;
    return TN_OK;
}

static tn_status run_for(jj_run *r, const jj_node *n) {
    const jj_list *items;
    jj_loop *loop = tn_jj_alloc(&r->arena, 1, sizeof *loop);
    if (!loop) return TN_ERR_MEMORY;
    TRY(loop_items(r, n, &items));
    if (items->count == 0) return execute(r, n->other);
    loop->items = items;
    for (; loop->index < items->count && r->flow != JJ_BREAK; loop->index++) {
        jj_scope *before;
        TRY(push_scope(r, r->scope, &before));
        TRY(tn_jj_put(r, &r->scope->names, tn_jj_literal("loop"), (jj_value){.kind = JJ_LOOP, .loop = loop}));
        TRY(assign(r, n->a, items->items[loop->index]));
        TRY(execute(r, n->body));
        r->scope = before;
        if (r->flow == JJ_CONTINUE) r->flow = 0;
    }
    r->flow = 0;
    return TN_OK;
}

static tn_status capture_in_scope(jj_run *r, const jj_node *body, jj_value *out) {
    jj_scope *before;
    TRY(push_scope(r, r->scope, &before));
    TRY(capture(r, body, out));
    r->scope = before;
    return TN_OK;
}

static tn_status run_set(jj_run *r, const jj_node *n) {
    jj_value value;
    if (n->op == JJ_EQUAL) {
        TRY(eval(r, n->b, &value));
    } else {
        jj_value text;
        TRY(capture_in_scope(r, n->body, &text));
        value = text;
        if (n->b) TRY(apply_filters(r, n->b, &text, &value));
    }
    r->at = n;
    return assign(r, n->a, value);
}

static tn_status run_macro(jj_run *r, const jj_node *n) {
    jj_callable *c = tn_jj_alloc(&r->arena, 1, sizeof *c);
    if (!c) return TN_ERR_MEMORY;
    c->macro = n;
    c->scope = r->scope;
    return tn_jj_put(r, &r->scope->names, tn_jj_literal(n->name), (jj_value){.kind = JJ_CALLABLE, .callable = c});
}

static tn_status run_filtered(jj_run *r, const jj_node *n) {
    jj_value text, value;
    TRY(capture_in_scope(r, n->body, &text));
    TRY(apply_filters(r, n->a, &text, &value));
    TRY(tn_jj_string(r, &value, &text));
    return write_text(r, text.text, text.size);
}

static tn_status run_with(jj_run *r, const jj_node *n) {
    jj_scope *before, *outside = r->scope;
    TRY(push_scope(r, r->scope, &before));
    jj_scope *inside = r->scope;
    for (const jj_node *name = n->items; name; name = name->next) {
        jj_value value;
        r->scope = outside; /* values do not see the new names */
        TRY(eval(r, name->a, &value));
        r->scope = inside;
        TRY(tn_jj_put(r, &inside->names, tn_jj_literal(name->name), value));
    }
    TRY(execute(r, n->body));
    r->scope = before;
    return TN_OK;
}

static tn_status run_block(jj_run *r, const jj_node *n) { return execute(r, n->body); }

static tn_status run_jump(jj_run *r, const jj_node *n) {
    r->flow = n->kind;
    return TN_OK;
}

static tn_status execute(jj_run *r, const jj_node *body) {
    static tn_status (*const ways[])(jj_run *, const jj_node *) = {
        [JJ_TEXT] = run_text,         [JJ_OUTPUT] = run_output, [JJ_IF] = run_if,
        [JJ_FOR] = run_for,           [JJ_SET] = run_set,       [JJ_MACRO] = run_macro,
        [JJ_FILTERED] = run_filtered, [JJ_WITH] = run_with,     [JJ_BLOCK] = run_block,
        [JJ_BREAK] = run_jump,        [JJ_CONTINUE] = run_jump,
    };
    for (; body && !r->flow; body = body->next) {
        TRY(enter_jinja(r, body));
        TRY(ways[body->kind](r, body));
        r->depth--;
    }
    return TN_OK;
}

static tn_status tn_jj_render(jj_run *r, const jj_node *body) { return execute(r, body); }

/* ==== chat templates ============================================================================================== */

enum {
    TREE_LIMIT = 256 << 20, /* bytes of a compiled template: a node takes about 100 for a few of source */
    TEXT_LIMIT = 64 << 20   /* bytes written */
};

tn_status tn_chat_template_new(const char *source, size_t size, tn_chat_template **out) {
    TN_C_LOCALE;
    if (!out) return tn_backend_fail(TN_ERR_ARGUMENT, "chat template: out is NULL");
    *out = NULL;
    if (!source && size > 0) return tn_backend_fail(TN_ERR_ARGUMENT, "chat template: the source is NULL");
    if (size > JJ_MAX_SOURCE)
        return tn_backend_fail(TN_ERR_FORMAT, "chat template: %zu bytes exceed the limit of %d", size, JJ_MAX_SOURCE);
    tn_chat_template *t = tn_txt_zalloc(1, sizeof *t);
    if (!t) return TN_ERR_MEMORY;
    t->arena.limit = TREE_LIMIT;
    jj_token *tokens;
    tn_status status = tn_jj_lex(&t->arena, source, size, &tokens);
    if (status == TN_OK) status = tn_jj_parse(&t->arena, tokens, &t->body);
    if (status == TN_OK)
        *out = t;
    else
        tn_chat_template_free(t);
    return status;
}

void tn_chat_template_free(tn_chat_template *t) {
    if (!t) return;
    tn_jj_arena_free(&t->arena);
    tn_txt_free(t);
}

/* ---- rendering --------------------------------------------------------------------------------------------------- */

static tn_status begin_template(jj_run *r, const tn_chat_template *t, const tn_chat_template_options *options,
                                tn_bytes *out) {
    if (!t || !out) return tn_backend_fail(TN_ERR_ARGUMENT, "chat template: an argument is NULL");
    tn_chat_template_options o = TN_CHAT_TEMPLATE_DEFAULTS;
    TRY(tn_options_read(&o, options, "chat template", "tn_chat_template_options o = TN_CHAT_TEMPLATE_DEFAULTS"));
    if (o.max_steps < 1 || o.max_memory < 1)
        return tn_backend_fail(TN_ERR_ARGUMENT,
                               "chat template: max_steps is %lld and max_memory %lld; both must be positive",
                               (long long)o.max_steps, (long long)o.max_memory);
    *r = (jj_run){
        .out = out,
        .max_written = TEXT_LIMIT,
        .steps_left = o.max_steps,
        .now = o.now != TN_CHAT_TEMPLATE_NOW ? o.now : (int64_t)time(NULL),
    };
    r->arena.limit = (size_t)o.max_memory;
    r->scope = r->globals = tn_jj_alloc(&r->arena, 1, sizeof *r->scope);
    return r->scope ? TN_OK : TN_ERR_MEMORY;
}

/* Takes the members of a JSON object as variables. */
static tn_status take_variables(jj_run *r, const char *json, size_t size) {
    jj_value value;
    TRY(tn_jj_read_json(r, json, size, &value));
    if (value.kind != JJ_DICT)
        return tn_backend_fail(TN_ERR_ARGUMENT, "chat template: the variables are %s; expected an object",
                               tn_jj_kind_name(&value));
    for (size_t i = 0; i < value.dict->count; i++)
        TRY(tn_jj_put(r, &r->globals->names, value.dict->pairs[i].key, value.dict->pairs[i].value));
    return TN_OK;
}

/* Ends a run: the output is kept only if nothing failed. */
static tn_status end_template(jj_run *r, tn_status status, size_t before, tn_bytes *out) {
    tn_jj_arena_free(&r->arena);
    if (status == TN_OK) return tn_bytes_append(out, "", 0);
    if (out && out->data) out->data[out->size = before] = 0;
    return status;
}

tn_status tn_chat_template_render(const tn_chat_template *t, const char *json, size_t size,
                                  const tn_chat_template_options *o, tn_bytes *out) {
    TN_C_LOCALE;
    jj_run r = {0};
    size_t before = out ? out->size : 0;
    tn_status status = begin_template(&r, t, o, out);
    if (status == TN_OK && json) status = take_variables(&r, json, size);
    if (status == TN_OK) status = tn_jj_render(&r, t->body);
    return end_template(&r, status, before, out);
}

/* ---- conversations ----------------------------------------------------------------------------------------------- */

static tn_status put_template(jj_run *r, jj_dict *d, const char *name, jj_value value) {
    return tn_jj_put(r, d, tn_jj_literal(name), value);
}

static tn_status put_messages(jj_run *r, const tn_chat_message *messages, int count) {
    jj_value list, message;
    jj_list *items;
    jj_dict *dict;
    TRY(tn_jj_new_list(r, &list, &items));
    for (int i = 0; i < count; i++) {
        if (!messages[i].role || !messages[i].content)
            return tn_backend_fail(TN_ERR_ARGUMENT, "chat template: message %d has no role or no content", i);
        TRY(tn_jj_new_dict(r, JJ_DICT, &message, &dict));
        TRY(put_template(r, dict, "role", tn_jj_literal(messages[i].role)));
        TRY(put_template(r, dict, "content", tn_jj_literal(messages[i].content)));
        TRY(tn_jj_push(r, items, message));
    }
    return put_template(r, &r->globals->names, "messages", list);
}

static tn_status put_special_tokens(jj_run *r, const tn_tokenizer *t) {
    static const struct {
        const char *name;
        tn_special which;
    } tokens[] = {
        {"bos_token", TN_SPECIAL_BOS},       {"eos_token", TN_SPECIAL_EOS},     {"unk_token", TN_SPECIAL_UNKNOWN},
        {"sep_token", TN_SPECIAL_SEPARATOR}, {"pad_token", TN_SPECIAL_PADDING},
    };
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
        size_t size;
        const char *spelling = tn_tokenizer_spelling(t, tn_tokenizer_special(t, tokens[i].which), &size);
        if (spelling) TRY(put_template(r, &r->globals->names, tokens[i].name, jj_text(spelling, size)));
    }
    return TN_OK;
}

static tn_status put_conversation(jj_run *r, const tn_chat *c) {
    TRY(put_messages(r, c->messages, c->count));
    TRY(put_special_tokens(r, c->tokenizer));
    TRY(put_template(r, &r->globals->names, "add_generation_prompt", jj_bool(c->add_generation_prompt)));
    TRY(put_template(r, &r->globals->names, "tools", jj_none())); /* as transformers does where there are none */
    TRY(put_template(r, &r->globals->names, "documents", jj_none()));
    return c->variables ? take_variables(r, c->variables, strlen(c->variables)) : TN_OK;
}

tn_status tn_chat_template_apply(const tn_chat_template *t, const tn_chat *chat, const tn_chat_template_options *o,
                                 tn_bytes *out) {
    TN_C_LOCALE;
    tn_chat c = TN_CHAT_DEFAULTS;
    if (!chat) return tn_backend_fail(TN_ERR_ARGUMENT, "chat template: the conversation is NULL");
    TRY(tn_options_read(&c, chat, "chat template", "tn_chat c = TN_CHAT_DEFAULTS"));
    if (c.count < 0 || (c.count > 0 && !c.messages))
        return tn_backend_fail(TN_ERR_ARGUMENT, "chat template: %d messages, %s", c.count,
                               c.messages ? "which is negative" : "and the list is NULL");
    jj_run r = {0};
    size_t before = out ? out->size : 0;
    tn_status status = begin_template(&r, t, o, out);
    if (status == TN_OK) status = put_conversation(&r, &c);
    if (status == TN_OK) status = tn_jj_render(&r, t->body);
    return end_template(&r, status, before, out);
}
