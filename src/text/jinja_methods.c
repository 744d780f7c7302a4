/* jinja_methods.c — Python's methods of strings, lists, dicts and loops, as tables.
 *
 * Methods that modify a list or dict are missing on purpose: transformers runs templates in an immutable sandbox. */
#include <string.h>
#include <utf8proc.h>

#include "text/jinja.h"
#include "text/tokenizer.h"

/* ---- characters -------------------------------------------------------------------------------------------------- */

/* The character at the begin of text: its length (1 for a stray byte), its code point (U+FFFD for one). */
static size_t character(const char *text, size_t size, uint32_t *c) {
    size_t length = tn_txt_utf8(text, size, c);
    if (length > 0) return length;
    *c = 0xfffd;
    return 1;
}

static bool is_space(uint32_t c) {
    return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

static utf8proc_category_t category(uint32_t c) { return utf8proc_category((utf8proc_int32_t)c); }

static bool is_letter(uint32_t c) {
    utf8proc_category_t k = category(c);
    return k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
}

static bool is_digit(uint32_t c) { return category(c) == UTF8PROC_CATEGORY_ND; }
static bool is_letter_or_digit(uint32_t c) {
    utf8proc_category_t k = category(c);
    return is_letter(c) || (k >= UTF8PROC_CATEGORY_ND && k <= UTF8PROC_CATEGORY_NO);
}

static bool contains_character(const jj_value *set, uint32_t wanted) {
    uint32_t c;
    for (size_t i = 0; i < set->size; i += character(set->text + i, set->size - i, &c))
        if (character(set->text + i, set->size - i, &c) > 0 && c == wanted) return true;
    return false;
}

static bool is_stripped(const jj_value *set, uint32_t c) { return set ? contains_character(set, c) : is_space(c); }

jj_value tn_jj_strip(jj_value v, const jj_value *set, int side) {
    uint32_t c;
    while ((side & 1) && v.size > 0) {
        size_t length = character(v.text, v.size, &c);
        if (!is_stripped(set, c)) break;
        v.text += length;
        v.size -= length;
    }
    while ((side & 2) && v.size > 0) {
        size_t length = 1;
        while (length < 4 && length < v.size && ((unsigned char)v.text[v.size - length] & 0xc0) == 0x80)
            length++;
        if (character(v.text + v.size - length, length, &c) != length) length = 1;
        if (!is_stripped(set, c)) break;
        v.size -= length;
    }
    return v;
}

/* ---- case -------------------------------------------------------------------------------------------------------- */

static bool begins_word_after(uint32_t c) { return is_space(c) || (c < 128 && c != 0 && strchr("-({[<", (int)c)); }

static uint32_t cased(uint32_t c, bool upper) {
    return (uint32_t)(upper ? utf8proc_toupper((utf8proc_int32_t)c) : utf8proc_tolower((utf8proc_int32_t)c));
}

tn_status tn_jj_change_case(jj_run *r, const jj_value *v, char how, jj_value *out) {
    /* A letter's other case may be longer than it by a byte. */
    char *text = tn_jj_alloc(&r->arena, v->size, 2);
    size_t written = 0;
    uint32_t c, before = ' ';
    if (!text) return TN_ERR_MEMORY;
    for (size_t i = 0, length; i < v->size; i += length, before = c) {
        length = tn_txt_utf8(v->text + i, v->size - i, &c);
        if (length == 0) { /* a stray byte stays */
            text[written++] = v->text[i];
            length = 1;
            c = 0xfffd;
            continue;
        }
        bool upper = how == 'u' || (how == 'c' && i == 0) || (how == 't' && begins_word_after(before)) ||
                     (how == 'T' && !is_letter(before));
        written += tn_txt_utf8_write(cased(c, upper), text + written);
    }
    *out = jj_text(text, written);
    return tn_jj_charge(r, 1 + v->size / 16);
}

/* ---- searching --------------------------------------------------------------------------------------------------- */

/* The first place of `part` at or after `from`; SIZE_MAX for none. */
static size_t find_method(const jj_value *v, const jj_value *part, size_t from) {
    if (part->size > v->size || from > v->size - part->size) return SIZE_MAX;
    if (part->size == 0) return from;
    const char *place = memmem(v->text + from, v->size - from, part->text, part->size);
    return place ? (size_t)(place - v->text) : SIZE_MAX;
}

static size_t find_last(const jj_value *v, const jj_value *part) {
    for (size_t at = v->size + 1; part->size <= v->size && at-- > 0;)
        if (at + part->size <= v->size && !memcmp(v->text + at, part->text, part->size)) return at;
    return SIZE_MAX;
}

static tn_status need_string(jj_run *r, const char *who, const jj_value *v) {
    return v->kind == JJ_STRING ? TN_OK : tn_jj_fail(r, "%s requires a string, not %s", who, tn_jj_kind_name(v));
}

static tn_status need_integer(jj_run *r, const char *who, const jj_value *v, int64_t usual, int64_t *out) {
    *out = !v || v->kind == JJ_NONE ? usual : v->integer;
    if (!v || v->kind == JJ_NONE || v->kind == JJ_INT) return TN_OK;
    return tn_jj_fail(r, "%s requires an integer, not %s", who, tn_jj_kind_name(v));
}

tn_status tn_jj_replace(jj_run *r, const jj_value *v, const jj_value *old, const jj_value *new_text, int64_t most,
                        jj_value *out) {
    AUTO_BYTES tn_bytes text = {0};
    TRY(need_string(r, "replace", old));
    TRY(need_string(r, "replace", new_text));
    size_t at = 0, place = 0;
    for (size_t from = 0; most != 0; most--) {
        place = find_method(v, old, from);
        if (place == SIZE_MAX) break;
        TRY(tn_bytes_append(&text, v->text + at, place - at));
        TRY(tn_bytes_append(&text, new_text->text, new_text->size));
        TRY(tn_jj_charge(r, 1 + new_text->size / 64));
        if (text.size > r->max_written) return tn_jj_fail(r, "a text exceeds %zu bytes", r->max_written);
        at = place + old->size;
        from = old->size > 0 ? at : at + (at < v->size ? tn_jj_offset(v->text + at, v->size - at, 1) : 1);
    }
    TRY(tn_bytes_append(&text, v->text + at, v->size - at));
    return tn_jj_copy(r, text.data, text.size, out);
}

/* ---- methods of strings ------------------------------------------------------------------------------------------ */

static tn_status strip_method(jj_run *r, const jj_value *self, const jj_value *set, int side, jj_value *out) {
    if (set && set->kind == JJ_NONE) set = NULL;
    if (set) TRY(need_string(r, "strip", set));
    TRY(tn_jj_charge(r, 1 + self->size / 16 * (set ? 1 + set->size : 1))); /* before: two long texts take hours */
    *out = tn_jj_strip(*self, set, side);
    return TN_OK;
}

JJ_FUNCTION(str_strip) { return strip_method(r, &self, bound[0], 3, out); }
JJ_FUNCTION(str_lstrip) { return strip_method(r, &self, bound[0], 1, out); }
JJ_FUNCTION(str_rstrip) { return strip_method(r, &self, bound[0], 2, out); }
JJ_FUNCTION(str_upper) { return tn_jj_change_case(r, &self, 'u', out); }
JJ_FUNCTION(str_lower) { return tn_jj_change_case(r, &self, 'l', out); }
JJ_FUNCTION(str_title) { return tn_jj_change_case(r, &self, 'T', out); }
JJ_FUNCTION(str_capitalize) { return tn_jj_change_case(r, &self, 'c', out); }

static bool has_end(const jj_value *v, const jj_value *part, bool at_end) {
    if (part->size > v->size) return false;
    return part->size == 0 || !memcmp(v->text + (at_end ? v->size - part->size : 0), part->text, part->size);
}

/* startswith and endswith take a string or a tuple of them. */
static tn_status test_end(jj_run *r, const jj_value *v, const jj_value *part, bool at_end, jj_value *out) {
    bool found = false;
    if (part->kind != JJ_LIST) {
        TRY(need_string(r, at_end ? "endswith" : "startswith", part));
        found = has_end(v, part, at_end);
    }
    for (size_t i = 0; part->kind == JJ_LIST && i < part->list->count && !found; i++) {
        TRY(need_string(r, at_end ? "endswith" : "startswith", &part->list->items[i]));
        found = has_end(v, &part->list->items[i], at_end);
    }
    *out = jj_bool(found);
    return tn_jj_charge(r, 1);
}

JJ_FUNCTION(str_startswith) { return test_end(r, &self, bound[0], false, out); }
JJ_FUNCTION(str_endswith) { return test_end(r, &self, bound[0], true, out); }

static tn_status remove_end(jj_run *r, const jj_value *v, const jj_value *part, bool at_end, jj_value *out) {
    TRY(need_string(r, "this method", part));
    *out = *v;
    if (!has_end(v, part, at_end)) return TN_OK;
    out->text += at_end ? 0 : part->size;
    out->size -= part->size;
    return TN_OK;
}

JJ_FUNCTION(str_removeprefix) { return remove_end(r, &self, bound[0], false, out); }
JJ_FUNCTION(str_removesuffix) { return remove_end(r, &self, bound[0], true, out); }

/* split() without a separator: words between white space. */
static tn_status split_words(jj_run *r, jj_value v, int64_t most, jj_list *list) {
    uint32_t c;
    for (v = tn_jj_strip(v, NULL, 1); v.size > 0; v = tn_jj_strip(v, NULL, 1)) {
        size_t word = 0;
        if (most-- == 0) return tn_jj_push(r, list, tn_jj_strip(v, NULL, 2));
        while (word < v.size) {
            size_t length = character(v.text + word, v.size - word, &c);
            if (is_space(c)) break;
            word += length;
        }
        TRY(tn_jj_push(r, list, jj_text(v.text, word)));
        v.text += word;
        v.size -= word;
    }
    return TN_OK;
}

JJ_FUNCTION(str_split) {
    jj_list *list;
    int64_t most;
    TRY(need_integer(r, "split", bound[1], -1, &most));
    TRY(tn_jj_new_list(r, out, &list));
    TRY(tn_jj_charge(r, self.size / 16));
    if (!bound[0] || bound[0]->kind == JJ_NONE) return split_words(r, self, most, list);
    TRY(need_string(r, "split", bound[0]));
    if (bound[0]->size == 0) return tn_jj_fail(r, "split: the separator is empty");
    for (size_t place; most-- != 0 && (place = find_method(&self, bound[0], 0)) != SIZE_MAX;) {
        TRY(tn_jj_push(r, list, jj_text(self.text, place)));
        self.text += place + bound[0]->size;
        self.size -= place + bound[0]->size;
    }
    return tn_jj_push(r, list, self);
}

static void turn_round(jj_list *list) {
    for (size_t i = 0; i < list->count / 2; i++) {
        jj_value other = list->items[i];
        list->items[i] = list->items[list->count - 1 - i];
        list->items[list->count - 1 - i] = other;
    }
}

JJ_FUNCTION(str_rsplit) {
    jj_list *list;
    int64_t most;
    TRY(need_integer(r, "rsplit", bound[1], -1, &most));
    if (most < 0) return str_split(r, self, given, bound, out); /* from either side the same */
    if (!bound[0] || bound[0]->kind != JJ_STRING || bound[0]->size == 0)
        return tn_jj_fail(r, "rsplit: the separator must be a non-empty string");
    TRY(tn_jj_new_list(r, out, &list));
    for (size_t place; most-- != 0 && (place = find_last(&self, bound[0])) != SIZE_MAX; self.size = place) {
        size_t begin = place + bound[0]->size;
        TRY(tn_jj_charge(r, 1 + (self.size - place) / 16));
        TRY(tn_jj_push(r, list, jj_text(self.text + begin, self.size - begin)));
    }
    TRY(tn_jj_push(r, list, self));
    turn_round(list);
    return TN_OK;
}

JJ_FUNCTION(str_splitlines) {
    bool keep = bound[0] && tn_jj_truth(bound[0]);
    jj_list *list;
    TRY(tn_jj_new_list(r, out, &list));
    while (self.size > 0) {
        size_t line = 0, end;
        while (line < self.size && !(self.text[line] >= '\n' && self.text[line] <= '\r'))
            line++;
        end = line + (line < self.size);
        if (end < self.size && self.text[line] == '\r' && self.text[end] == '\n') end++;
        TRY(tn_jj_push(r, list, jj_text(self.text, keep ? end : line)));
        self.text += end;
        self.size -= end;
    }
    return tn_jj_charge(r, self.size / 16);
}

JJ_FUNCTION(str_replace) {
    int64_t most;
    TRY(need_integer(r, "replace", bound[2], -1, &most));
    return tn_jj_replace(r, &self, bound[0], bound[1], most, out);
}

JJ_FUNCTION(str_join) {
    const jj_list *items;
    TRY(tn_jj_items(r, bound[0], &items));
    return tn_jj_join(r, items, &self, out);
}

static tn_status method_place_of(jj_run *r, const jj_value *v, const jj_value *part, bool last, bool needed,
                                 jj_value *out) {
    TRY(need_string(r, "find", part));
    size_t place = last ? find_last(v, part) : find_method(v, part, 0);
    if (place == SIZE_MAX && needed) return tn_jj_fail(r, "index: the string does not contain this one");
    *out = jj_int(place == SIZE_MAX ? -1 : (int64_t)tn_jj_characters(v->text, place));
    return tn_jj_charge(r, 1 + v->size / 16);
}

JJ_FUNCTION(str_find) { return method_place_of(r, &self, bound[0], false, false, out); }
JJ_FUNCTION(str_rfind) { return method_place_of(r, &self, bound[0], true, false, out); }
JJ_FUNCTION(str_index) { return method_place_of(r, &self, bound[0], false, true, out); }

JJ_FUNCTION(str_count) {
    int64_t count = 0;
    TRY(need_string(r, "count", bound[0]));
    if (bound[0]->size == 0) count = (int64_t)tn_jj_characters(self.text, self.size) + 1;
    for (size_t at = 0; bound[0]->size > 0 && (at = find_method(&self, bound[0], at)) != SIZE_MAX; at += bound[0]->size)
        count++;
    *out = jj_int(count);
    return tn_jj_charge(r, 1 + self.size / 16);
}

/* Whether all characters are of a kind, and there is one. */
static tn_status all_are(jj_run *r, const jj_value *v, bool (*kind)(uint32_t), jj_value *out) {
    bool all = v->size > 0;
    uint32_t c;
    for (size_t i = 0; i < v->size && all; i += character(v->text + i, v->size - i, &c))
        all = character(v->text + i, v->size - i, &c) > 0 && kind(c);
    *out = jj_bool(all);
    return tn_jj_charge(r, 1 + v->size / 16);
}

JJ_FUNCTION(str_isdigit) { return all_are(r, &self, is_digit, out); }
JJ_FUNCTION(str_isalpha) { return all_are(r, &self, is_letter, out); }
JJ_FUNCTION(str_isalnum) { return all_are(r, &self, is_letter_or_digit, out); }
JJ_FUNCTION(str_isspace) { return all_are(r, &self, is_space, out); }

/* Whether there are letters with a case, and all of them have this one. */
static tn_status all_cased(jj_run *r, const jj_value *v, bool upper, jj_value *out) {
    bool some = false, all = true;
    uint32_t c;
    for (size_t i = 0; i < v->size; i += character(v->text + i, v->size - i, &c)) {
        (void)character(v->text + i, v->size - i, &c);
        utf8proc_category_t k = category(c);
        if (k != UTF8PROC_CATEGORY_LU && k != UTF8PROC_CATEGORY_LL && k != UTF8PROC_CATEGORY_LT) continue;
        some = true;
        all &= k == (upper ? UTF8PROC_CATEGORY_LU : UTF8PROC_CATEGORY_LL);
    }
    *out = jj_bool(some && all);
    return tn_jj_charge(r, 1 + v->size / 16);
}

JJ_FUNCTION(str_isupper) { return all_cased(r, &self, true, out); }
JJ_FUNCTION(str_islower) { return all_cased(r, &self, false, out); }

/* ---- methods of lists, dicts, loops ------------------------------------------------------------------------------ */

JJ_FUNCTION(list_count) {
    int64_t count = 0;
    for (size_t i = 0; i < self.list->count; i++) {
        bool equal;
        TRY(tn_jj_equal(r, &self.list->items[i], bound[0], &equal));
        count += equal;
    }
    *out = jj_int(count);
    return TN_OK;
}

JJ_FUNCTION(list_index) {
    for (size_t i = 0; i < self.list->count; i++) {
        bool equal;
        TRY(tn_jj_equal(r, &self.list->items[i], bound[0], &equal));
        if (!equal) continue;
        *out = jj_int((int64_t)i);
        return TN_OK;
    }
    return tn_jj_fail(r, "index: the list does not contain this value");
}

JJ_FUNCTION(refuse_change) {
    return tn_jj_fail(r, "templates cannot modify a list or dict; use + to make a new list, or a namespace");
}

/* What a dict has, as a list: 'k' keys, 'v' values, 'i' pairs. */
static tn_status list_dict(jj_run *r, const jj_dict *d, char what, jj_value *out) {
    jj_list *list, *pair;
    TRY(tn_jj_new_list(r, out, &list));
    for (size_t i = 0; i < d->count; i++) {
        jj_value item = what == 'k' ? d->pairs[i].key : d->pairs[i].value;
        if (what == 'i') {
            TRY(tn_jj_new_list(r, &item, &pair));
            pair->tuple = true;
            TRY(tn_jj_push(r, pair, d->pairs[i].key));
            TRY(tn_jj_push(r, pair, d->pairs[i].value));
        }
        TRY(tn_jj_push(r, list, item));
    }
    return TN_OK;
}

JJ_FUNCTION(dict_keys) { return list_dict(r, self.dict, 'k', out); }
JJ_FUNCTION(dict_values) { return list_dict(r, self.dict, 'v', out); }
JJ_FUNCTION(dict_items) { return list_dict(r, self.dict, 'i', out); }

JJ_FUNCTION(dict_get) {
    jj_value *found;
    TRY(tn_jj_find(r, self.dict, bound[0], &found));
    *out = found ? *found : bound[1] ? *bound[1] : jj_none();
    return TN_OK;
}

JJ_FUNCTION(dict_copy) {
    jj_dict *copy;
    TRY(tn_jj_new_dict(r, JJ_DICT, out, &copy));
    for (size_t i = 0; i < self.dict->count; i++)
        TRY(tn_jj_put(r, copy, self.dict->pairs[i].key, self.dict->pairs[i].value));
    return TN_OK;
}

JJ_FUNCTION(loop_cycle) {
    if (given->count == 0) return tn_jj_fail(r, "cycle requires values");
    *out = given->values[self.loop->index % (size_t)given->count];
    return TN_OK;
}

/* Whether the value differs from that of the last call. */
JJ_FUNCTION(loop_changed) {
    bool equal = false;
    if (self.loop->asked) TRY(tn_jj_equal(r, &self.loop->changed, bound[0], &equal));
    self.loop->changed = *bound[0];
    self.loop->asked = true;
    *out = jj_bool(!equal);
    return TN_OK;
}

/* ---- tables ------------------------------------------------------------------------------------------------------ */

// clang-format off
static const jj_row of_strings[] = {
    {"strip", str_strip, "chars", 0}, {"lstrip", str_lstrip, "chars", 0}, {"rstrip", str_rstrip, "chars", 0},
    {"upper", str_upper, "", 0}, {"lower", str_lower, "", 0}, {"title", str_title, "", 0},
    {"capitalize", str_capitalize, "", 0},
    {"startswith", str_startswith, "prefix", 1}, {"endswith", str_endswith, "suffix", 1},
    {"removeprefix", str_removeprefix, "prefix", 1}, {"removesuffix", str_removesuffix, "suffix", 1},
    {"split", str_split, "sep maxsplit", 0}, {"rsplit", str_rsplit, "sep maxsplit", 0},
    {"splitlines", str_splitlines, "keepends", 0},
    {"replace", str_replace, "old new count", 2}, {"join", str_join, "iterable", 1},
    {"find", str_find, "sub", 1}, {"rfind", str_rfind, "sub", 1}, {"index", str_index, "sub", 1},
    {"count", str_count, "sub", 1},
    {"isdigit", str_isdigit, "", 0}, {"isdecimal", str_isdigit, "", 0}, {"isnumeric", str_isdigit, "", 0},
    {"isalpha", str_isalpha, "", 0}, {"isalnum", str_isalnum, "", 0}, {"isspace", str_isspace, "", 0},
    {"isupper", str_isupper, "", 0}, {"islower", str_islower, "", 0},
    {0},
};
static const jj_row of_lists[] = {
    {"count", list_count, "value", 1}, {"index", list_index, "value", 1},
    {"append", refuse_change, NULL, 0}, {"extend", refuse_change, NULL, 0}, {"insert", refuse_change, NULL, 0},
    {"pop", refuse_change, NULL, 0}, {"remove", refuse_change, NULL, 0}, {"clear", refuse_change, NULL, 0},
    {"sort", refuse_change, NULL, 0}, {"reverse", refuse_change, NULL, 0},
    {0},
};
static const jj_row of_dicts[] = {
    {"keys", dict_keys, "", 0}, {"values", dict_values, "", 0}, {"items", dict_items, "", 0},
    {"get", dict_get, "key default", 1}, {"copy", dict_copy, "", 0},
    {"pop", refuse_change, NULL, 0}, {"popitem", refuse_change, NULL, 0}, {"update", refuse_change, NULL, 0},
    {"setdefault", refuse_change, NULL, 0}, {"clear", refuse_change, NULL, 0},
    {0},
};
static const jj_row of_loops[] = {
    {"cycle", loop_cycle, NULL, 0}, {"changed", loop_changed, "value", 1},
    {0},
};
// clang-format on

const jj_row *tn_jj_find_method(jj_kind kind, const char *name) {
    static const jj_row *const tables[JJ_CALLABLE + 1] = {
        [JJ_STRING] = of_strings, [JJ_LIST] = of_lists, [JJ_DICT] = of_dicts, [JJ_LOOP] = of_loops};
    for (const jj_row *row = tables[kind]; row && row->name; row++)
        if (!strcmp(row->name, name)) return row;
    return NULL;
}
