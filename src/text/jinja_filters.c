/* jinja_filters.c — Jinja's filters, tests and functions, as tables. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "text/jinja.h"

static const jj_value undefined = {.kind = JJ_UNDEFINED};

/* ---- arguments --------------------------------------------------------------------------------------------------- */

static bool truth_of(const jj_value *v, bool usual) { return v ? tn_jj_truth(v) : usual; }

static tn_status integer_of(jj_run *r, const jj_value *v, int64_t usual, int64_t *out) {
    *out = v && v->kind == JJ_INT ? v->integer : usual;
    return !v || v->kind == JJ_INT || v->kind == JJ_NONE
               ? TN_OK
               : tn_jj_fail(r, "expected an integer, not %s", tn_jj_kind_name(v));
}

static tn_status filter_text_of(jj_run *r, const jj_value *v, char *out, size_t size) {
    if (v->kind != JJ_STRING || v->size >= size || memchr(v->text, 0, v->size))
        return tn_jj_fail(r, "expected a name, not %s", tn_jj_kind_name(v));
    if (v->size > 0) memcpy(out, v->text, v->size);
    out[v->size] = 0;
    return TN_OK;
}

/* A named argument of a call that takes anything; NULL when absent. */
static const jj_value *named(const jj_arguments *given, const char *name) {
    for (int i = given->positional; i < given->count; i++)
        if (!strcmp(given->names[i], name)) return &given->values[i];
    return NULL;
}

/* v.a.b for "a.b"; numbers are indices. */
/* "a.b.0": members and items in turn. */
static tn_status tn_jj_attribute(jj_run *r, const jj_value *v, const jj_value *path, jj_value *out) {
    *out = *v;
    if (path->kind == JJ_INT) return tn_jj_item(r, v, path, out);
    if (path->kind != JJ_STRING)
        return tn_jj_fail(r, "expected the name of an attribute, not %s", tn_jj_kind_name(path));
    for (size_t at = 0; at <= path->size;) {
        const char *dot = at < path->size ? memchr(path->text + at, '.', path->size - at) : NULL;
        size_t end = dot ? (size_t)(dot - path->text) : path->size;
        jj_value whole = *out, key = jj_text(path->text + at, end - at);
        char digits[24];
        if (key.size > 0 && key.size < 18 && strspn(key.text, "0123456789") >= key.size) {
            memcpy(digits, key.text, key.size);
            digits[key.size] = 0;
            key = jj_int(strtoll(digits, NULL, 10));
        }
        TRY(tn_jj_item(r, &whole, &key, out));
        at = end + 1;
    }
    return TN_OK;
}

static tn_status attribute_or_self(jj_run *r, const jj_value *v, const jj_value *path, jj_value *out) {
    *out = *v;
    return path && path->kind != JJ_NONE ? tn_jj_attribute(r, v, path, out) : TN_OK;
}

/* What sorting and comparing see: strings without their case, unless it counts. */
static tn_status filter_key_of(jj_run *r, const jj_value *v, bool any_case, const jj_value *attribute, jj_value *out) {
    TRY(attribute_or_self(r, v, attribute, out));
    jj_value key = *out;
    return any_case && key.kind == JJ_STRING ? tn_jj_change_case(r, &key, 'l', out) : TN_OK;
}

/* ---- strings ----------------------------------------------------------------------------------------------------- */

static tn_status change(jj_run *r, const jj_value *self, char how, jj_value *out) {
    jj_value text;
    TRY(tn_jj_string(r, self, &text));
    return tn_jj_change_case(r, &text, how, out);
}

JJ_FUNCTION(filter_upper) { return change(r, &self, 'u', out); }
JJ_FUNCTION(filter_lower) { return change(r, &self, 'l', out); }
JJ_FUNCTION(filter_title) { return change(r, &self, 't', out); }
JJ_FUNCTION(filter_capitalize) { return change(r, &self, 'c', out); }
JJ_FUNCTION(filter_string) { return tn_jj_string(r, &self, out); }

JJ_FUNCTION(filter_trim) {
    const jj_value *set = bound[0] && bound[0]->kind == JJ_STRING ? bound[0] : NULL;
    TRY(tn_jj_string(r, &self, out));
    TRY(tn_jj_charge(r, 1 + out->size / 16 * (set ? 1 + set->size : 1)));
    *out = tn_jj_strip(*out, set, 3);
    return TN_OK;
}

JJ_FUNCTION(filter_replace) {
    jj_value text;
    int64_t most;
    TRY(integer_of(r, bound[2], -1, &most));
    TRY(tn_jj_string(r, &self, &text));
    return tn_jj_replace(r, &text, bound[0], bound[1], most, out);
}

JJ_FUNCTION(filter_escape) {
    static const char special[] = "&<>\"'", *const entities[] = {"&amp;", "&lt;", "&gt;", "&#34;", "&#39;"};
    jj_value text;
    TRY(tn_jj_string(r, &self, &text));
    for (size_t i = 0; special[i]; i++) { /* the ampersand first */
        jj_value old = jj_text(special + i, 1), entity = tn_jj_literal(entities[i]), before = text;
        TRY(tn_jj_replace(r, &before, &old, &entity, -1, &text));
    }
    *out = text;
    return TN_OK;
}

static tn_status put_indent(const jj_value *width, int64_t blanks, tn_bytes *out) {
    if (width && width->kind == JJ_STRING) return tn_bytes_append(out, width->text, width->size);
    for (int64_t i = 0; i < blanks; i++)
        TRY(tn_bytes_append(out, " ", 1));
    return TN_OK;
}

static tn_status indent_lines(jj_run *r, jj_value text, const jj_value *const *bound, tn_bytes *out) {
    int64_t blanks = 4;
    bool first = truth_of(bound[1], false), blank = truth_of(bound[2], false), begin = true;
    if (!bound[0] || bound[0]->kind != JJ_STRING) TRY(integer_of(r, bound[0], 4, &blanks));
    if (blanks > 1000) return tn_jj_fail(r, "indent: %lld spaces are too many", (long long)blanks);
    for (size_t at = 0; at <= text.size; begin = false) {
        const char *end = at < text.size ? memchr(text.text + at, '\n', text.size - at) : NULL;
        size_t line = end ? (size_t)(end - text.text) - at : text.size - at;
        if (begin ? first : line > 0 || blank) TRY(put_indent(bound[0], blanks, out));
        TRY(tn_bytes_append(out, text.text + at, line + (end != NULL)));
        if (out->size > r->max_written) return tn_jj_fail(r, "a text exceeds %zu bytes", r->max_written);
        TRY(tn_jj_charge(r, 1 + line / 64));
        at += line + 1;
    }
    return TN_OK;
}

JJ_FUNCTION(filter_indent) {
    AUTO_BYTES tn_bytes lines = {0};
    jj_value text;
    TRY(tn_jj_string(r, &self, &text));
    TRY(indent_lines(r, text, bound, &lines));
    return tn_jj_copy(r, lines.data, lines.size, out);
}

JJ_FUNCTION(filter_wordcount) {
    jj_value text, words;
    const jj_arguments none = {0};
    TRY(tn_jj_string(r, &self, &text));
    TRY(tn_jj_call_row(r, tn_jj_find_method(JJ_STRING, "split"), text, &none, &words));
    *out = jj_int((int64_t)words.list->count);
    return TN_OK;
}

static tn_status read_separators(jj_run *r, const jj_value *v, jj_json_style *style) {
    char *texts[2];
    if (!v || v->kind == JJ_NONE) return TN_OK;
    if (v->kind != JJ_LIST || v->list->count != 2) return tn_jj_fail(r, "tojson: separators must be two strings");
    for (int i = 0; i < 2; i++) {
        const jj_value *s = &v->list->items[i];
        if (s->kind != JJ_STRING) return tn_jj_fail(r, "tojson: separators must be two strings");
        texts[i] = tn_jj_alloc(&r->arena, s->size + 1, 1);
        if (!texts[i]) return TN_ERR_MEMORY;
        if (s->size > 0) memcpy(texts[i], s->text, s->size);
    }
    style->item_separator = texts[0];
    style->key_separator = texts[1];
    return TN_OK;
}

/* As transformers has it: json.dumps without escapes for HTML. */
JJ_FUNCTION(filter_tojson) {
    int64_t indent;
    AUTO_BYTES tn_bytes text = {0};
    TRY(integer_of(r, bound[1], -1, &indent));
    if (indent > 100) return tn_jj_fail(r, "tojson: an indent of %lld is too large", (long long)indent);
    jj_json_style style = {
        .ascii = truth_of(bound[0], false),
        .indent = indent < 0 ? -1 : (int)indent,
        .item_separator = indent < 0 ? ", " : ",",
        .key_separator = ": ",
        .sorted = truth_of(bound[3], false),
    };
    TRY(read_separators(r, bound[2], &style));
    TRY(tn_jj_write_json(r, &self, &style, 0, &text));
    return tn_jj_copy(r, text.data, text.size, out);
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

/* The number that a string spells, with white space around it. */
static bool parse_number(const jj_value *v, int base, double *number, int64_t *whole, bool *is_whole) {
    char text[64], *end;
    jj_value s = tn_jj_strip(*v, NULL, 3);
    if (s.size == 0 || s.size >= sizeof text || memchr(s.text, 0, s.size)) return false;
    memcpy(text, s.text, s.size);
    text[s.size] = 0;
    if (strpbrk(text, "xX") && base == 10) return false; /* C reads hexadecimal floats */
    errno = 0;
    *whole = strtoll(text, &end, base);
    *is_whole = !*end && errno == 0;
    *number = strtod(text, &end);
    return *is_whole || !*end;
}

JJ_FUNCTION(filter_int) {
    double number = NAN;
    int64_t whole = 0, base;
    bool is_whole = false, good = false;
    TRY(integer_of(r, bound[1], 10, &base));
    *out = bound[0] ? *bound[0] : jj_int(0);
    if (self.kind == JJ_INT || self.kind == JJ_BOOL) *out = jj_int(self.kind == JJ_INT ? self.integer : self.truth);
    if (self.kind == JJ_FLOAT) number = self.number;
    if (self.kind == JJ_STRING && base >= 2 && base <= 36)
        good = parse_number(&self, (int)base, &number, &whole, &is_whole);
    if (good && is_whole) *out = jj_int(whole);
    if ((self.kind == JJ_FLOAT || (good && !is_whole)) && fabs(number) < 9e18) *out = jj_int((int64_t)number);
    return TN_OK;
}

JJ_FUNCTION(filter_float) {
    double number;
    int64_t whole;
    bool is_whole;
    *out = bound[0] ? *bound[0] : jj_float(0);
    if (self.kind == JJ_INT) *out = jj_float((double)self.integer);
    if (self.kind == JJ_BOOL) *out = jj_float(self.truth);
    if (self.kind == JJ_FLOAT) *out = self;
    if (self.kind == JJ_STRING && parse_number(&self, 10, &number, &whole, &is_whole)) *out = jj_float(number);
    return TN_OK;
}

JJ_FUNCTION(filter_abs) {
    const jj_value zero = jj_int(0);
    *out = self.kind == JJ_FLOAT ? jj_float(fabs(self.number)) : self;
    if (self.kind == JJ_INT && self.integer < 0) return tn_jj_binary(r, JJ_SUBTRACT, &zero, &self, out);
    return self.kind == JJ_FLOAT || self.kind == JJ_INT
               ? TN_OK
               : tn_jj_fail(r, "abs requires a number, not %s", tn_jj_kind_name(&self));
}

JJ_FUNCTION(filter_round) {
    char method[16] = "common", digits[400];
    int64_t precision;
    TRY(integer_of(r, bound[0], 0, &precision));
    if (bound[1]) TRY(filter_text_of(r, bound[1], method, sizeof method));
    *out = self;
    if (self.kind == JJ_INT && precision >= 0) return TN_OK;
    if (self.kind != JJ_FLOAT || precision < 0 || precision > 30)
        return tn_jj_fail(r, "round requires a float and 0 to 30 digits");
    if (!isfinite(self.number)) return TN_OK;
    double scale = pow(10, (double)precision);
    if (!strcmp(method, "ceil")) *out = jj_float(ceil(self.number * scale) / scale);
    if (!strcmp(method, "floor")) *out = jj_float(floor(self.number * scale) / scale);
    if (strcmp(method, "common") != 0) return TN_OK;
    snprintf(digits, sizeof digits, "%.*f", (int)precision, self.number); /* rounds the exact value, ties to even */
    *out = jj_float(strtod(digits, NULL));
    return TN_OK;
}

/* ---- lists ------------------------------------------------------------------------------------------------------- */

JJ_FUNCTION(filter_length) {
    size_t count = 0;
    switch (self.kind) {
    case JJ_UNDEFINED: break;
    case JJ_STRING: count = tn_jj_characters(self.text, self.size); break;
    case JJ_LIST: count = self.list->count; break;
    case JJ_DICT: count = self.dict->count; break;
    default: return tn_jj_fail(r, "%s has no length", tn_jj_kind_name(&self));
    }
    *out = jj_int((int64_t)count);
    return tn_jj_charge(r, self.kind == JJ_STRING ? self.size / 64 : 0);
}

JJ_FUNCTION(filter_list) {
    const jj_list *items;
    jj_list *list;
    TRY(tn_jj_items(r, &self, &items));
    TRY(tn_jj_new_list(r, out, &list));
    for (size_t i = 0; i < items->count; i++)
        TRY(tn_jj_push(r, list, items->items[i]));
    return TN_OK;
}

JJ_FUNCTION(filter_first) {
    const jj_list *items;
    TRY(tn_jj_items(r, &self, &items));
    *out = items->count > 0 ? items->items[0] : undefined;
    return TN_OK;
}

JJ_FUNCTION(filter_last) {
    const jj_list *items;
    TRY(tn_jj_items(r, &self, &items));
    *out = items->count > 0 ? items->items[items->count - 1] : undefined;
    return TN_OK;
}

JJ_FUNCTION(filter_reverse) {
    const jj_value backwards = jj_int(-1);
    const jj_list *items;
    if (self.kind == JJ_STRING) return tn_jj_slice(r, &self, NULL, NULL, &backwards, out);
    TRY(tn_jj_items(r, &self, &items));
    jj_value whole = {.kind = JJ_LIST, .list = (jj_list *)items}; /* is only read */
    return tn_jj_slice(r, &whole, NULL, NULL, &backwards, out);
}

tn_status tn_jj_join(jj_run *r, const jj_list *list, const jj_value *between, jj_value *out) {
    AUTO_BYTES tn_bytes text = {0};
    for (size_t i = 0; i < list->count; i++) {
        if (i > 0 && between) TRY(tn_jj_print(r, between, false, &text));
        TRY(tn_jj_print(r, &list->items[i], false, &text));
    }
    return tn_jj_copy(r, text.data, text.size, out);
}

JJ_FUNCTION(filter_join) {
    const jj_list *items;
    jj_value value;
    jj_list *picked;
    TRY(tn_jj_items(r, &self, &items));
    TRY(tn_jj_new_list(r, &value, &picked));
    for (size_t i = 0; i < items->count; i++) {
        jj_value item;
        TRY(attribute_or_self(r, &items->items[i], bound[1], &item));
        TRY(tn_jj_push(r, picked, item));
    }
    return tn_jj_join(r, picked, bound[0], out);
}

/* A stable merge sort of items by keys of their own; `spare` has as many places. */
static tn_status merge_sort(jj_run *r, jj_pair *items, jj_pair *spare, size_t count, bool reverse) {
    if (count < 2) return TN_OK;
    size_t half = count / 2, a = 0, b = half;
    TRY(merge_sort(r, items, spare, half, reverse));
    TRY(merge_sort(r, items + half, spare, count - half, reverse));
    for (size_t i = 0; i < count; i++) {
        int order = -1;
        if (a == half) order = 1;
        if (a < half && b < count) {
            TRY(tn_jj_order(r, &items[a].key, &items[b].key, &order));
            order = order == 0 ? -1 : reverse ? -order : order;
        }
        spare[i] = order < 0 ? items[a++] : items[b++];
    }
    memcpy(items, spare, count * sizeof *items);
    return TN_OK;
}

static tn_status sort_by(jj_run *r, const jj_list *list, bool reverse, bool any_case, const jj_value *attribute,
                         jj_value *out) {
    jj_list *sorted;
    jj_pair *items = tn_jj_alloc(&r->arena, list->count, sizeof *items);
    jj_pair *spare = tn_jj_alloc(&r->arena, list->count, sizeof *spare);
    if (!items || !spare) return TN_ERR_MEMORY;
    for (size_t i = 0; i < list->count; i++) {
        items[i].value = list->items[i];
        TRY(filter_key_of(r, &list->items[i], any_case, attribute, &items[i].key));
    }
    TRY(merge_sort(r, items, spare, list->count, reverse));
    TRY(tn_jj_new_list(r, out, &sorted));
    for (size_t i = 0; i < list->count; i++)
        TRY(tn_jj_push(r, sorted, items[i].value));
    return TN_OK;
}

JJ_FUNCTION(filter_sort) {
    const jj_list *items;
    TRY(tn_jj_items(r, &self, &items));
    return sort_by(r, items, truth_of(bound[0], false), !truth_of(bound[1], false), bound[2], out);
}

JJ_FUNCTION(filter_dictsort) {
    const jj_arguments none = {0};
    jj_value pairs, by = jj_int(0);
    if (self.kind != JJ_DICT) return tn_jj_fail(r, "dictsort requires a dict, not %s", tn_jj_kind_name(&self));
    if (bound[1] && tn_jj_is(bound[1], "value")) by = jj_int(1);
    TRY(tn_jj_call_row(r, tn_jj_find_method(JJ_DICT, "items"), self, &none, &pairs));
    return sort_by(r, pairs.list, truth_of(bound[2], false), !truth_of(bound[0], false), &by, out);
}

JJ_FUNCTION(filter_items) {
    const jj_arguments none = {0};
    jj_list *list;
    if (self.kind == JJ_UNDEFINED) return tn_jj_new_list(r, out, &list);
    if (self.kind != JJ_DICT) return tn_jj_fail(r, "items requires a dict, not %s", tn_jj_kind_name(&self));
    return tn_jj_call_row(r, tn_jj_find_method(JJ_DICT, "items"), self, &none, out);
}

JJ_FUNCTION(filter_unique) {
    const jj_list *items;
    jj_list *list, *keys;
    jj_value seen, key;
    TRY(tn_jj_items(r, &self, &items));
    TRY(tn_jj_new_list(r, out, &list));
    TRY(tn_jj_new_list(r, &seen, &keys));
    for (size_t i = 0; i < items->count; i++) {
        bool known;
        TRY(filter_key_of(r, &items->items[i], !truth_of(bound[0], false), bound[1], &key));
        TRY(tn_jj_contains(r, &seen, &key, &known));
        if (known) continue;
        TRY(tn_jj_push(r, keys, key));
        TRY(tn_jj_push(r, list, items->items[i]));
    }
    return TN_OK;
}

/* The least (sign 1) or greatest (sign -1) item; the first of equals. */
static tn_status filter_extreme(jj_run *r, const jj_value *self, const jj_value *const *bound, int sign,
                                jj_value *out) {
    const jj_list *items;
    jj_value best, key;
    TRY(tn_jj_items(r, self, &items));
    *out = undefined;
    for (size_t i = 0; i < items->count; i++) {
        int order = -1;
        TRY(filter_key_of(r, &items->items[i], !truth_of(bound[0], false), bound[1], &key));
        if (i > 0) {
            TRY(tn_jj_order(r, &key, &best, &order));
            order *= sign;
        }
        if (order >= 0) continue;
        best = key;
        *out = items->items[i];
    }
    return TN_OK;
}

JJ_FUNCTION(filter_min) { return filter_extreme(r, &self, bound, 1, out); }
JJ_FUNCTION(filter_max) { return filter_extreme(r, &self, bound, -1, out); }

JJ_FUNCTION(filter_sum) {
    const jj_list *items;
    TRY(tn_jj_items(r, &self, &items));
    *out = bound[1] ? *bound[1] : jj_int(0);
    for (size_t i = 0; i < items->count; i++) {
        jj_value item, sum = *out;
        TRY(attribute_or_self(r, &items->items[i], bound[0], &item));
        TRY(tn_jj_binary(r, JJ_ADD, &sum, &item, out));
    }
    return TN_OK;
}

/* ---- filters over items ------------------------------------------------------------------------------------------ */

/* The arguments after the first `skip` positional ones. Of no arguments, which have no address, none is taken off. */
static jj_arguments rest_of(const jj_arguments *given, int skip) {
    if (skip == 0) return *given;
    return (jj_arguments){.values = given->values + skip,
                          .names = given->names + skip,
                          .count = given->count - skip,
                          .positional = given->positional - skip};
}

/* map(attribute=…, default=…), or map("filter", arguments …). */
JJ_FUNCTION(filter_map) {
    const jj_value *attribute = named(given, "attribute"), *usual = named(given, "default");
    const jj_row *filter = NULL;
    const jj_list *items;
    jj_list *list;
    char name[32];
    if (!attribute) {
        if (given->positional == 0) return tn_jj_fail(r, "map requires the name of a filter, or attribute=");
        TRY(filter_text_of(r, &given->values[0], name, sizeof name));
        filter = tn_jj_find_filter(name);
        if (!filter) return tn_jj_fail(r, "unknown filter \"%s\"", name);
    }
    jj_arguments rest = rest_of(given, filter ? 1 : 0);
    TRY(tn_jj_items(r, &self, &items));
    TRY(tn_jj_new_list(r, out, &list));
    for (size_t i = 0; i < items->count; i++) {
        jj_value value;
        TRY(tn_jj_charge(r, 1));
        TRY(filter ? tn_jj_call_row(r, filter, items->items[i], &rest, &value)
                   : tn_jj_attribute(r, &items->items[i], attribute, &value));
        if (value.kind == JJ_UNDEFINED && usual) value = *usual;
        TRY(tn_jj_push(r, list, value));
    }
    return TN_OK;
}

/* The items for which a test of the item, or of one of its attributes, returns `wanted`. */
static tn_status pick(jj_run *r, const jj_value *self, const jj_arguments *given, bool by_attribute, bool wanted,
                      jj_value *out) {
    int skip = by_attribute ? 1 : 0;
    const jj_list *items;
    jj_list *list;
    char name[32] = "";
    if (given->positional < skip) return tn_jj_fail(r, "expected the name of an attribute");
    if (given->positional > skip) TRY(filter_text_of(r, &given->values[skip], name, sizeof name));
    jj_arguments rest = rest_of(given, name[0] ? skip + 1 : skip);
    TRY(tn_jj_items(r, self, &items));
    TRY(tn_jj_new_list(r, out, &list));
    for (size_t i = 0; i < items->count; i++) {
        jj_value value = items->items[i];
        TRY(tn_jj_charge(r, 1));
        if (by_attribute) TRY(tn_jj_attribute(r, &items->items[i], &given->values[0], &value));
        bool truth = tn_jj_truth(&value);
        if (name[0]) TRY(tn_jj_test(r, name, value, &rest, &truth));
        if (truth == wanted) TRY(tn_jj_push(r, list, items->items[i]));
    }
    return TN_OK;
}

JJ_FUNCTION(filter_select) { return pick(r, &self, given, false, true, out); }
JJ_FUNCTION(filter_reject) { return pick(r, &self, given, false, false, out); }
JJ_FUNCTION(filter_selectattr) { return pick(r, &self, given, true, true, out); }
JJ_FUNCTION(filter_rejectattr) { return pick(r, &self, given, true, false, out); }

/* ---- others ------------------------------------------------------------------------------------------------------ */

JJ_FUNCTION(filter_default) {
    bool missing = self.kind == JJ_UNDEFINED || (truth_of(bound[1], false) && !tn_jj_truth(&self));
    *out = !missing ? self : bound[0] ? *bound[0] : tn_jj_literal("");
    return TN_OK;
}

JJ_FUNCTION(filter_attr) {
    char name[64];
    TRY(filter_text_of(r, bound[0], name, sizeof name));
    return tn_jj_member(r, &self, name, out);
}

JJ_FUNCTION(filter_safe) {
    *out = self; /* nothing is escaped unless it is asked for */
    return TN_OK;
}

// clang-format off
static const jj_row filters[] = {
    {"abs", filter_abs, "", 0}, {"attr", filter_attr, "name", 1}, {"capitalize", filter_capitalize, "", 0},
    {"count", filter_length, "", 0}, {"d", filter_default, "default_value boolean", 0},
    {"default", filter_default, "default_value boolean", 0},
    {"dictsort", filter_dictsort, "case_sensitive by reverse", 0},
    {"e", filter_escape, "", 0}, {"escape", filter_escape, "", 0}, {"first", filter_first, "", 0},
    {"float", filter_float, "default", 0}, {"indent", filter_indent, "width first blank", 0},
    {"int", filter_int, "default base", 0}, {"items", filter_items, "", 0}, {"join", filter_join, "d attribute", 0},
    {"last", filter_last, "", 0}, {"length", filter_length, "", 0}, {"list", filter_list, "", 0},
    {"lower", filter_lower, "", 0}, {"map", filter_map, NULL, 0}, {"max", filter_max, "case_sensitive attribute", 0},
    {"min", filter_min, "case_sensitive attribute", 0}, {"reject", filter_reject, NULL, 0},
    {"rejectattr", filter_rejectattr, NULL, 0}, {"replace", filter_replace, "old new count", 2},
    {"reverse", filter_reverse, "", 0}, {"round", filter_round, "precision method", 0}, {"safe", filter_safe, "", 0},
    {"select", filter_select, NULL, 0}, {"selectattr", filter_selectattr, NULL, 0},
    {"sort", filter_sort, "reverse case_sensitive attribute", 0}, {"string", filter_string, "", 0},
    {"sum", filter_sum, "attribute start", 0}, {"title", filter_title, "", 0},
    {"tojson", filter_tojson, "ensure_ascii indent separators sort_keys", 0}, {"trim", filter_trim, "chars", 0},
    {"unique", filter_unique, "case_sensitive attribute", 0}, {"upper", filter_upper, "", 0},
    {"wordcount", filter_wordcount, "", 0},
};
// clang-format on

const jj_row *tn_jj_find_filter(const char *name) {
    for (size_t i = 0; i < sizeof filters / sizeof *filters; i++)
        if (!strcmp(filters[i].name, name)) return &filters[i];
    return NULL;
}

/* ==== tests and functions ========================================================================================= */

#define TEST(name, condition)      \
    JJ_FUNCTION(name) {            \
        *out = jj_bool(condition); \
        return TN_OK;              \
    }

/* ---- tests ------------------------------------------------------------------------------------------------------- */

TEST(test_defined, self.kind != JJ_UNDEFINED)
TEST(test_undefined, self.kind == JJ_UNDEFINED)
TEST(test_none, self.kind == JJ_NONE)
TEST(test_boolean, self.kind == JJ_BOOL)
TEST(test_true, self.kind == JJ_BOOL && self.truth)
TEST(test_false, self.kind == JJ_BOOL && !self.truth)
TEST(test_integer, self.kind == JJ_INT)
TEST(test_float, self.kind == JJ_FLOAT)
TEST(test_number, self.kind == JJ_INT || self.kind == JJ_FLOAT || self.kind == JJ_BOOL)
TEST(test_string, self.kind == JJ_STRING)
TEST(test_mapping, self.kind == JJ_DICT)
TEST(test_callable, self.kind == JJ_CALLABLE)
/* What can be gone over and has a length; Jinja counts undefined ones among them. */
TEST(test_sequence, self.kind == JJ_LIST || self.kind == JJ_STRING || self.kind == JJ_DICT || self.kind == JJ_UNDEFINED)

static tn_status remainder_is(jj_run *r, const jj_value *v, int64_t divisor, int64_t wanted, jj_value *out) {
    const jj_value by = jj_int(divisor);
    jj_value rest;
    if (v->kind != JJ_INT) return tn_jj_fail(r, "expected an integer, not %s", tn_jj_kind_name(v));
    TRY(tn_jj_binary(r, JJ_MODULO, v, &by, &rest));
    *out = jj_bool(rest.integer == wanted);
    return TN_OK;
}

JJ_FUNCTION(test_even) { return remainder_is(r, &self, 2, 0, out); }
JJ_FUNCTION(test_odd) { return remainder_is(r, &self, 2, 1, out); }

JJ_FUNCTION(test_divisibleby) {
    if (bound[0]->kind != JJ_INT) return tn_jj_fail(r, "divisibleby requires an integer");
    return remainder_is(r, &self, bound[0]->integer, 0, out);
}

static tn_status cased(jj_run *r, const jj_value *v, const char *method, jj_value *out) {
    const jj_arguments none = {0};
    jj_value text;
    TRY(tn_jj_string(r, v, &text));
    return tn_jj_call_row(r, tn_jj_find_method(JJ_STRING, method), text, &none, out);
}

JJ_FUNCTION(test_lower) { return cased(r, &self, "islower", out); }
JJ_FUNCTION(test_upper) { return cased(r, &self, "isupper", out); }

JJ_FUNCTION(test_equal) {
    bool equal;
    TRY(tn_jj_equal(r, &self, bound[0], &equal));
    *out = jj_bool(equal);
    return TN_OK;
}

JJ_FUNCTION(test_unequal) {
    TRY(test_equal(r, self, given, bound, out));
    out->truth = !out->truth;
    return TN_OK;
}

/* The same object: equal values of the same kind, for what templates can tell. */
JJ_FUNCTION(test_sameas) {
    *out = jj_bool(false);
    return self.kind == bound[0]->kind ? test_equal(r, self, given, bound, out) : TN_OK;
}

JJ_FUNCTION(test_in) {
    bool inside;
    TRY(tn_jj_contains(r, bound[0], &self, &inside));
    *out = jj_bool(inside);
    return TN_OK;
}

/* Whether the order of two values is one of those in `wanted`: bit 0 less, bit 1 equal, bit 2 greater. */
static tn_status ordered(jj_run *r, const jj_value *a, const jj_value *b, unsigned wanted, jj_value *out) {
    int order;
    TRY(tn_jj_order(r, a, b, &order));
    *out = jj_bool(wanted >> (order < 0 ? 0 : order == 0 ? 1 : 2) & 1);
    return TN_OK;
}

JJ_FUNCTION(test_less) { return ordered(r, &self, bound[0], 1, out); }
JJ_FUNCTION(test_less_equal) { return ordered(r, &self, bound[0], 3, out); }
JJ_FUNCTION(test_greater) { return ordered(r, &self, bound[0], 4, out); }
JJ_FUNCTION(test_greater_equal) { return ordered(r, &self, bound[0], 6, out); }

// clang-format off
static const jj_row tests[] = {
    {"defined", test_defined, "", 0}, {"undefined", test_undefined, "", 0}, {"none", test_none, "", 0},
    {"boolean", test_boolean, "", 0}, {"true", test_true, "", 0}, {"false", test_false, "", 0},
    {"integer", test_integer, "", 0}, {"float", test_float, "", 0}, {"number", test_number, "", 0},
    {"string", test_string, "", 0}, {"mapping", test_mapping, "", 0}, {"callable", test_callable, "", 0},
    {"sequence", test_sequence, "", 0}, {"iterable", test_sequence, "", 0},
    {"even", test_even, "", 0}, {"odd", test_odd, "", 0}, {"divisibleby", test_divisibleby, "num", 1},
    {"lower", test_lower, "", 0}, {"upper", test_upper, "", 0},
    {"eq", test_equal, "other", 1}, {"equalto", test_equal, "other", 1}, {"==", test_equal, "other", 1},
    {"ne", test_unequal, "other", 1}, {"!=", test_unequal, "other", 1}, {"sameas", test_sameas, "other", 1},
    {"in", test_in, "seq", 1},
    {"lt", test_less, "other", 1}, {"lessthan", test_less, "other", 1}, {"<", test_less, "other", 1},
    {"le", test_less_equal, "other", 1}, {"<=", test_less_equal, "other", 1},
    {"gt", test_greater, "other", 1}, {"greaterthan", test_greater, "other", 1}, {">", test_greater, "other", 1},
    {"ge", test_greater_equal, "other", 1}, {">=", test_greater_equal, "other", 1},
};
// clang-format on

const jj_row *tn_jj_find_test(const char *name) {
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        if (!strcmp(tests[i].name, name)) return &tests[i];
    return NULL;
}

tn_status tn_jj_test(jj_run *r, const char *name, jj_value self, const jj_arguments *given, bool *out) {
    const jj_row *row = tn_jj_find_test(name);
    jj_value result;
    if (!row) return tn_jj_fail(r, "unknown test \"%.60s\"", name);
    TRY(tn_jj_call_row(r, row, self, given, &result));
    *out = tn_jj_truth(&result);
    return TN_OK;
}

/* ---- functions --------------------------------------------------------------------------------------------------- */

enum { LONGEST_RANGE = 100000 }; /* as in Jinja's sandbox */

JJ_FUNCTION(call_range) {
    int64_t part[3] = {0, 0, 1};
    jj_list *list;
    for (int i = 0; i < 3; i++) {
        if (!bound[i]) continue;
        if (bound[i]->kind != JJ_INT)
            return tn_jj_fail(r, "range requires integers, not %s", tn_jj_kind_name(bound[i]));
        part[i] = bound[i]->integer;
    }
    int64_t start = bound[1] ? part[0] : 0, stop = bound[1] ? part[1] : part[0], step = part[2];
    if (step == 0) return tn_jj_fail(r, "range: step must not be 0");
    TRY(tn_jj_new_list(r, out, &list));
    for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
        if (list->count >= LONGEST_RANGE) return tn_jj_fail(r, "range: more than %d numbers", LONGEST_RANGE);
        TRY(tn_jj_push(r, list, jj_int(i)));
        if (__builtin_add_overflow(i, step, &i)) break;
    }
    return TN_OK;
}

/* dict(…) and namespace(…): a dict's pairs, then the named arguments. */
static tn_status make_dict(jj_run *r, jj_kind kind, const jj_arguments *given, jj_value *out) {
    jj_dict *dict;
    TRY(tn_jj_new_dict(r, kind, out, &dict));
    if (given->positional > 1 || (given->positional == 1 && given->values[0].kind != JJ_DICT))
        return tn_jj_fail(r, "expected a dict or named values");
    for (size_t i = 0; given->positional == 1 && i < given->values[0].dict->count; i++)
        TRY(tn_jj_put(r, dict, given->values[0].dict->pairs[i].key, given->values[0].dict->pairs[i].value));
    for (int i = given->positional; i < given->count; i++)
        TRY(tn_jj_put(r, dict, tn_jj_literal(given->names[i]), given->values[i]));
    return TN_OK;
}

JJ_FUNCTION(call_dict) { return make_dict(r, JJ_DICT, given, out); }
JJ_FUNCTION(call_namespace) { return make_dict(r, JJ_NAMESPACE, given, out); }

JJ_FUNCTION(call_raise_exception) {
    jj_value text;
    TRY(tn_jj_string(r, bound[0], &text));
    return tn_backend_fail(TN_ERR_ARGUMENT, "chat template: %.*s", (int)(text.size < 300 ? text.size : 300), text.text);
}

JJ_FUNCTION(call_strftime_now) {
    char format[128], text[512];
    time_t now = (time_t)r->now;
    struct tm parts;
    if (bound[0]->kind != JJ_STRING || bound[0]->size >= sizeof format)
        return tn_jj_fail(r, "strftime_now requires a short string");
    if (bound[0]->size > 0) memcpy(format, bound[0]->text, bound[0]->size);
    format[bound[0]->size] = 0;
    if (!localtime_r(&now, &parts)) return tn_jj_fail(r, "strftime_now: the time is out of range");
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    size_t size = strftime(text, sizeof text, format, &parts);
#pragma GCC diagnostic pop
    return tn_jj_copy(r, text, size, out);
}

static const jj_row functions[] = {
    {"range", call_range, "start stop step", 1},      {"dict", call_dict, NULL, 0},
    {"namespace", call_namespace, NULL, 0},           {"raise_exception", call_raise_exception, "message", 1},
    {"strftime_now", call_strftime_now, "format", 1},
};

const jj_row *tn_jj_find_function(const char *name) {
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (!strcmp(functions[i].name, name)) return &functions[i];
    return NULL;
}
