/* jinja_value.c — Jinja's values by Python's rules: truth, equality, order, operators, printing; JSON in and out.
 *
 * Strings count in characters (code points) where Python does, and are bytes everywhere else. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja.h"
#include "text/tokenizer.h"

/* ---- memory ------------------------------------------------------------------------------------------------------ */

enum { BLOCK_BYTES = 64 << 10, ALIGNMENT = 16 };

typedef struct jj_block {
    struct jj_block *next;
    size_t used, size;
    _Alignas(ALIGNMENT) char data[];
} jj_block;

void *tn_jj_alloc(jj_arena *a, size_t count, size_t size) {
    if (size != 0 && count > (SIZE_MAX >> 2) / size) count = SIZE_MAX >> 2, size = 1;
    size_t bytes = (count * size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (bytes > a->limit || a->used > a->limit - bytes) {
        tn_backend_fail(TN_ERR_MEMORY, "chat template: rendering needs more than %zu MiB of memory", a->limit >> 20);
        return NULL;
    }
    if (!a->blocks || a->blocks->size - a->blocks->used < bytes) {
        size_t room = bytes > BLOCK_BYTES / 4 ? bytes : BLOCK_BYTES;
        jj_block *b = tn_txt_alloc(1, sizeof *b + room);
        if (!b) return NULL;
        *b = (jj_block){.next = a->blocks, .size = room};
        a->blocks = b;
    }
    void *p = a->blocks->data + a->blocks->used;
    a->blocks->used += bytes;
    a->used += bytes;
    memset(p, 0, bytes);
    return p;
}

void tn_jj_arena_free(jj_arena *a) {
    while (a->blocks) {
        jj_block *next = a->blocks->next;
        tn_txt_free(a->blocks);
        a->blocks = next;
    }
    a->used = 0;
}

/* Makes room for one item more in an array of the arena. */
static tn_status make_room_jinja(jj_run *r, void *items, size_t count, size_t *capacity, size_t size) {
    if (count < *capacity) return TN_OK;
    size_t wanted = *capacity ? 2 * *capacity : 8;
    void *old, *grown = tn_jj_alloc(&r->arena, wanted, size);
    if (!grown) return TN_ERR_MEMORY;
    memcpy(&old, items, sizeof old);
    if (count > 0) memcpy(grown, old, count * size);
    memcpy(items, &grown, sizeof grown);
    *capacity = wanted;
    return TN_OK;
}

/* ---- strings ----------------------------------------------------------------------------------------------------- */

jj_value tn_jj_literal(const char *text) { return jj_text(text, strlen(text)); }

bool tn_jj_is(const jj_value *v, const char *text) {
    return v->kind == JJ_STRING && v->size == strlen(text) && !memcmp(v->text, text, v->size);
}

static bool begins_character(char c) { return ((unsigned char)c & 0xc0) != 0x80; }

size_t tn_jj_characters(const char *text, size_t size) {
    size_t count = 0;
    for (size_t i = 0; i < size; i++)
        count += begins_character(text[i]);
    return count;
}

size_t tn_jj_offset(const char *text, size_t size, size_t n) {
    size_t at = 0;
    for (; at < size; at++)
        if (begins_character(text[at]) && n-- == 0) break;
    return at;
}

tn_status tn_jj_copy(jj_run *r, const char *text, size_t size, jj_value *out) {
    char *copy = tn_jj_alloc(&r->arena, size, 1);
    if (!copy) return TN_ERR_MEMORY;
    if (size > 0) memcpy(copy, text, size);
    *out = jj_text(copy, size);
    return tn_jj_charge(r, size / 64);
}

/* ---- lists and dicts --------------------------------------------------------------------------------------------- */

tn_status tn_jj_new_list(jj_run *r, jj_value *out, jj_list **list) {
    *list = tn_jj_alloc(&r->arena, 1, sizeof **list);
    if (!*list) return TN_ERR_MEMORY;
    *out = (jj_value){.kind = JJ_LIST, .list = *list};
    return TN_OK;
}

tn_status tn_jj_push(jj_run *r, jj_list *list, jj_value item) {
    TRY(make_room_jinja(r, &list->items, list->count, &list->capacity, sizeof *list->items));
    list->items[list->count++] = item;
    return tn_jj_charge(r, 1);
}

tn_status tn_jj_new_dict(jj_run *r, jj_kind kind, jj_value *out, jj_dict **dict) {
    *dict = tn_jj_alloc(&r->arena, 1, sizeof **dict);
    if (!*dict) return TN_ERR_MEMORY;
    *out = (jj_value){.kind = kind, .dict = *dict};
    return TN_OK;
}

tn_status tn_jj_find(jj_run *r, const jj_dict *dict, const jj_value *key, jj_value **out) {
    *out = NULL;
    TRY(tn_jj_charge(r, dict->count / 16));
    for (size_t i = 0; i < dict->count; i++) {
        bool equal = false;
        if (dict->pairs[i].key.kind == JJ_STRING && key->kind == JJ_STRING && dict->pairs[i].key.size != key->size)
            continue;
        TRY(tn_jj_equal(r, &dict->pairs[i].key, key, &equal));
        if (!equal) continue;
        *out = &dict->pairs[i].value;
        return TN_OK;
    }
    return TN_OK;
}

tn_status tn_jj_put(jj_run *r, jj_dict *dict, jj_value key, jj_value value) {
    jj_value *place;
    if (key.kind == JJ_LIST || key.kind == JJ_DICT || key.kind == JJ_NAMESPACE)
        return tn_jj_fail(r, "%s cannot be the key of a dict", tn_jj_kind_name(&key));
    TRY(tn_jj_find(r, dict, &key, &place));
    if (place) {
        *place = value;
        return TN_OK;
    }
    TRY(make_room_jinja(r, &dict->pairs, dict->count, &dict->capacity, sizeof *dict->pairs));
    dict->pairs[dict->count++] = (jj_pair){key, value};
    return TN_OK;
}

/* ---- truth, equality, order -------------------------------------------------------------------------------------- */

const char *tn_jj_kind_name(const jj_value *v) {
    static const char *const names[] = {"an undefined value", "none",   "a boolean", "an integer",  "a float",
                                        "a string",           "a list", "a dict",    "a namespace", "a loop",
                                        "a function"};
    return names[v->kind];
}

bool tn_jj_truth(const jj_value *v) {
    switch (v->kind) {
    case JJ_UNDEFINED:
    case JJ_NONE: return false;
    case JJ_BOOL: return v->truth;
    case JJ_INT: return v->integer != 0;
    case JJ_FLOAT: return v->number != 0;
    case JJ_STRING: return v->size > 0;
    case JJ_LIST: return v->list->count > 0;
    case JJ_DICT: return v->dict->count > 0;
    default: return true;
    }
}

static bool is_number(const jj_value *v) { return v->kind == JJ_INT || v->kind == JJ_FLOAT || v->kind == JJ_BOOL; }
static bool jinja_is_whole(const jj_value *v) { return v->kind == JJ_INT || v->kind == JJ_BOOL; }
static int64_t whole_of(const jj_value *v) { return v->kind == JJ_BOOL ? v->truth : v->integer; }
static double jinja_number_of(const jj_value *v) { return v->kind == JJ_FLOAT ? v->number : (double)whole_of(v); }

static tn_status deeper(jj_run *r) {
    if (++r->depth <= JJ_MAX_RUN_DEPTH) return TN_OK;
    r->depth--;
    return tn_jj_fail(r, "nested more than %d levels deep", JJ_MAX_RUN_DEPTH);
}

static tn_status equal_lists(jj_run *r, const jj_list *a, const jj_list *b, bool *out) {
    *out = a->count == b->count && a->tuple == b->tuple;
    TRY(deeper(r));
    for (size_t i = 0; i < a->count && *out; i++)
        TRY(tn_jj_equal(r, &a->items[i], &b->items[i], out));
    r->depth--;
    return TN_OK;
}

static tn_status equal_dicts(jj_run *r, const jj_dict *a, const jj_dict *b, bool *out) {
    *out = a->count == b->count;
    TRY(deeper(r));
    for (size_t i = 0; i < a->count && *out; i++) {
        jj_value *other;
        TRY(tn_jj_find(r, b, &a->pairs[i].key, &other));
        *out = other != NULL;
        if (other) TRY(tn_jj_equal(r, &a->pairs[i].value, other, out));
    }
    r->depth--;
    return TN_OK;
}

tn_status tn_jj_equal(jj_run *r, const jj_value *a, const jj_value *b, bool *out) {
    TRY(tn_jj_charge(r, 1));
    if (is_number(a) && is_number(b)) {
        *out = jinja_is_whole(a) && jinja_is_whole(b) ? whole_of(a) == whole_of(b)
                                                      : jinja_number_of(a) == jinja_number_of(b);
        return TN_OK;
    }
    *out = a->kind == b->kind;
    if (!*out) return TN_OK;
    switch (a->kind) {
    case JJ_STRING:
        *out = a->size == b->size && (a->size == 0 || !memcmp(a->text, b->text, a->size));
        return tn_jj_charge(r, *out ? a->size / 64 : 0);
    case JJ_LIST: return equal_lists(r, a->list, b->list, out);
    case JJ_DICT: return equal_dicts(r, a->dict, b->dict, out);
    case JJ_NAMESPACE: *out = a->dict == b->dict; return TN_OK;
    case JJ_LOOP: *out = a->loop == b->loop; return TN_OK;
    case JJ_CALLABLE: *out = a->callable == b->callable; return TN_OK;
    default: return TN_OK; /* undefined and none */
    }
}

tn_status tn_jj_order(jj_run *r, const jj_value *a, const jj_value *b, int *out) {
    TRY(tn_jj_charge(r, 1));
    if (jinja_is_whole(a) && jinja_is_whole(b)) {
        *out = (whole_of(a) > whole_of(b)) - (whole_of(a) < whole_of(b));
        return TN_OK;
    }
    if (is_number(a) && is_number(b)) {
        *out = (jinja_number_of(a) > jinja_number_of(b)) - (jinja_number_of(a) < jinja_number_of(b));
        return TN_OK;
    }
    if (a->kind == JJ_STRING && b->kind == JJ_STRING) { /* UTF-8 sorts as its code points do */
        size_t shared = a->size < b->size ? a->size : b->size;
        int order = shared > 0 ? memcmp(a->text, b->text, shared) : 0;
        *out = order != 0 ? order : (a->size > b->size) - (a->size < b->size);
        return tn_jj_charge(r, shared / 64);
    }
    if (a->kind != JJ_LIST || b->kind != JJ_LIST)
        return tn_jj_fail(r, "%s and %s cannot be ordered", tn_jj_kind_name(a), tn_jj_kind_name(b));
    *out = 0;
    TRY(deeper(r));
    for (size_t i = 0; i < a->list->count && i < b->list->count && *out == 0; i++)
        TRY(tn_jj_order(r, &a->list->items[i], &b->list->items[i], out));
    r->depth--;
    if (*out == 0) *out = (a->list->count > b->list->count) - (a->list->count < b->list->count);
    return TN_OK;
}

tn_status tn_jj_contains(jj_run *r, const jj_value *whole, const jj_value *part, bool *out) {
    *out = false;
    if (whole->kind == JJ_STRING) {
        if (part->kind != JJ_STRING) return tn_jj_fail(r, "a string cannot contain %s", tn_jj_kind_name(part));
        *out =
            part->size == 0 || (part->size <= whole->size && memmem(whole->text, whole->size, part->text, part->size));
        return tn_jj_charge(r, whole->size / 64);
    }
    if (whole->kind == JJ_DICT || whole->kind == JJ_NAMESPACE) {
        jj_value *found;
        TRY(tn_jj_find(r, whole->dict, part, &found));
        *out = found != NULL;
        return TN_OK;
    }
    if (whole->kind == JJ_UNDEFINED) return TN_OK;
    if (whole->kind != JJ_LIST) return tn_jj_fail(r, "%s is not a container", tn_jj_kind_name(whole));
    for (size_t i = 0; i < whole->list->count && !*out; i++)
        TRY(tn_jj_equal(r, &whole->list->items[i], part, out));
    return TN_OK;
}

tn_status tn_jj_items(jj_run *r, const jj_value *v, const jj_list **out) {
    static const jj_list nothing = {0};
    jj_value value;
    jj_list *list;
    *out = v->kind == JJ_LIST ? v->list : &nothing;
    if (v->kind == JJ_LIST || v->kind == JJ_UNDEFINED) return TN_OK;
    if (v->kind != JJ_STRING && v->kind != JJ_DICT) return tn_jj_fail(r, "%s is not iterable", tn_jj_kind_name(v));
    TRY(tn_jj_new_list(r, &value, &list));
    for (size_t i = 0; v->kind == JJ_DICT && i < v->dict->count; i++)
        TRY(tn_jj_push(r, list, v->dict->pairs[i].key));
    for (size_t at = 0, next; v->kind == JJ_STRING && at < v->size; at = next) {
        for (next = at + 1; next < v->size && !begins_character(v->text[next]);)
            next++;
        TRY(tn_jj_push(r, list, jj_text(v->text + at, next - at)));
    }
    *out = list;
    return TN_OK;
}

/* ---- operators --------------------------------------------------------------------------------------------------- */

static tn_status no_operator(jj_run *r, const char *what, const jj_value *a, const jj_value *b) {
    return tn_jj_fail(r, "%s and %s cannot be %s", tn_jj_kind_name(a), tn_jj_kind_name(b), what);
}

static tn_status join_strings(jj_run *r, const jj_value *a, const jj_value *b, jj_value *out) {
    char *text = tn_jj_alloc(&r->arena, a->size + b->size, 1);
    if (!text) return TN_ERR_MEMORY;
    if (a->size > 0) memcpy(text, a->text, a->size);
    if (b->size > 0) memcpy(text + a->size, b->text, b->size);
    *out = jj_text(text, a->size + b->size);
    return tn_jj_charge(r, out->size / 64);
}

static tn_status join_lists(jj_run *r, const jj_value *a, const jj_value *b, jj_value *out) {
    jj_list *list;
    TRY(tn_jj_new_list(r, out, &list));
    list->tuple = a->list->tuple;
    for (size_t i = 0; i < a->list->count; i++)
        TRY(tn_jj_push(r, list, a->list->items[i]));
    for (size_t i = 0; i < b->list->count; i++)
        TRY(tn_jj_push(r, list, b->list->items[i]));
    return TN_OK;
}

static tn_status repeat(jj_run *r, const jj_value *v, int64_t times, jj_value *out) {
    jj_list *list;
    if (times < 0) times = 0;
    if (v->kind == JJ_STRING) {
        if (v->size > 0 && (uint64_t)times > SIZE_MAX / 4 / v->size) return tn_jj_fail(r, "this string is too long");
        char *text = tn_jj_alloc(&r->arena, v->size, (size_t)times);
        if (!text) return TN_ERR_MEMORY;
        if (v->size == 0) times = 0;
        for (int64_t i = 0; i < times; i++)
            memcpy(text + (size_t)i * v->size, v->text, v->size);
        *out = jj_text(text, v->size * (size_t)times);
        return tn_jj_charge(r, out->size / 64);
    }
    TRY(tn_jj_new_list(r, out, &list));
    list->tuple = v->list->tuple;
    for (int64_t i = 0; i < times && v->list->count > 0; i++)
        for (size_t k = 0; k < v->list->count; k++)
            TRY(tn_jj_push(r, list, v->list->items[k]));
    return TN_OK;
}

static bool is_sequence(const jj_value *v) { return v->kind == JJ_STRING || v->kind == JJ_LIST; }

/* Python rounds a // b towards minus infinity, and a % b has the sign of b. */
static tn_status divide_whole(jj_run *r, jj_op op, int64_t a, int64_t b, jj_value *out) {
    if (b == 0) return tn_jj_fail(r, "division by zero");
    if (b == -1) {
        if (op == JJ_FLOOR && a == INT64_MIN) return tn_jj_fail(r, "this number is too large");
        *out = jj_int(op == JJ_FLOOR ? -a : 0);
        return TN_OK;
    }
    int64_t quotient = a / b, rest = a % b;
    if (rest != 0 && (rest < 0) != (b < 0)) {
        quotient--;
        rest += b;
    }
    *out = jj_int(op == JJ_FLOOR ? quotient : rest);
    return TN_OK;
}

static tn_status power_whole(jj_run *r, int64_t base, int64_t exponent, jj_value *out) {
    int64_t result = 1;
    for (; exponent > 0; exponent--) {
        if (base == 0 || base == 1) {
            result = base;
            break;
        }
        if (__builtin_mul_overflow(result, base, &result)) return tn_jj_fail(r, "this number is too large");
        if (base == -1 && exponent > 2) exponent -= (exponent - 1) / 2 * 2;
    }
    *out = jj_int(result);
    return TN_OK;
}

static tn_status compute_whole(jj_run *r, jj_op op, int64_t a, int64_t b, jj_value *out) {
    int64_t result = 0;
    bool overflow = false;
    switch (op) {
    case JJ_ADD: overflow = __builtin_add_overflow(a, b, &result); break;
    case JJ_SUBTRACT: overflow = __builtin_sub_overflow(a, b, &result); break;
    case JJ_MULTIPLY: overflow = __builtin_mul_overflow(a, b, &result); break;
    case JJ_POWER: return power_whole(r, a, b, out);
    default: return divide_whole(r, op, a, b, out);
    }
    if (overflow) return tn_jj_fail(r, "this number is too large");
    *out = jj_int(result);
    return TN_OK;
}

static tn_status compute_float(jj_run *r, jj_op op, double a, double b, jj_value *out) {
    double rest;
    if (b == 0 && (op == JJ_DIVIDE || op == JJ_FLOOR || op == JJ_MODULO)) return tn_jj_fail(r, "division by zero");
    switch (op) {
    case JJ_ADD: *out = jj_float(a + b); return TN_OK;
    case JJ_SUBTRACT: *out = jj_float(a - b); return TN_OK;
    case JJ_MULTIPLY: *out = jj_float(a * b); return TN_OK;
    case JJ_DIVIDE: *out = jj_float(a / b); return TN_OK;
    case JJ_POWER: *out = jj_float(pow(a, b)); return TN_OK;
    case JJ_FLOOR: *out = jj_float(floor(a / b)); return TN_OK;
    default: break;
    }
    rest = fmod(a, b);
    *out = jj_float(rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest);
    return TN_OK;
}

tn_status tn_jj_binary(jj_run *r, jj_op op, const jj_value *a, const jj_value *b, jj_value *out) {
    if (op == JJ_CONCAT) {
        jj_value left, right;
        TRY(tn_jj_string(r, a, &left));
        TRY(tn_jj_string(r, b, &right));
        return join_strings(r, &left, &right, out);
    }
    if (is_number(a) && is_number(b)) {
        bool whole = jinja_is_whole(a) && jinja_is_whole(b) && op != JJ_DIVIDE && !(op == JJ_POWER && whole_of(b) < 0);
        return whole ? compute_whole(r, op, whole_of(a), whole_of(b), out)
                     : compute_float(r, op, jinja_number_of(a), jinja_number_of(b), out);
    }
    if (op == JJ_ADD && a->kind == JJ_STRING && b->kind == JJ_STRING) return join_strings(r, a, b, out);
    if (op == JJ_ADD && a->kind == JJ_LIST && b->kind == JJ_LIST) return join_lists(r, a, b, out);
    if (op == JJ_MULTIPLY && is_sequence(a) && jinja_is_whole(b)) return repeat(r, a, whole_of(b), out);
    if (op == JJ_MULTIPLY && jinja_is_whole(a) && is_sequence(b)) return repeat(r, b, whole_of(a), out);
    static const char *const names[] = {
        [JJ_ADD] = "added",     [JJ_SUBTRACT] = "subtracted", [JJ_MULTIPLY] = "multiplied", [JJ_DIVIDE] = "divided",
        [JJ_FLOOR] = "divided", [JJ_MODULO] = "divided",      [JJ_POWER] = "raised",        [JJ_CONCAT] = "joined"};
    return no_operator(r, names[op], a, b);
}

/* ---- parts ------------------------------------------------------------------------------------------------------- */

/* A part's place in Python's way: negative ones count from the end; then kept in least … most. */
static tn_status jinja_place_of(jj_run *r, const jj_value *v, int64_t length, int64_t least, int64_t most,
                                int64_t usual, int64_t *out) {
    *out = usual;
    if (!v || v->kind == JJ_NONE) return TN_OK;
    if (!jinja_is_whole(v)) return tn_jj_fail(r, "the bounds of a slice must be integers, not %s", tn_jj_kind_name(v));
    int64_t place = whole_of(v);
    if (place < 0) place = place < -length ? least : place + length;
    *out = place < least ? least : place > most ? most : place;
    return TN_OK;
}

static tn_status copy_character(jj_run *r, const jj_value *v, int64_t n, tn_bytes *out) {
    size_t begin = tn_jj_offset(v->text, v->size, (size_t)n), size = tn_jj_offset(v->text + begin, v->size - begin, 1);
    TRY(tn_jj_charge(r, 1 + begin / 64));
    return tn_bytes_append(out, v->text + begin, size);
}

static tn_status slice_by_step(jj_run *r, const jj_value *v, int64_t start, int64_t stop, int64_t step, jj_value *out) {
    AUTO_BYTES tn_bytes text = {0};
    jj_list *list = NULL;
    if (v->kind == JJ_LIST) TRY(tn_jj_new_list(r, out, &list));
    for (int64_t i = start; step > 0 ? i < stop : i > stop; i += step) {
        TRY(list ? tn_jj_push(r, list, v->list->items[i]) : copy_character(r, v, i, &text));
        if (step > 0 ? step > stop - i : step < stop - i) break;
    }
    return list ? TN_OK : tn_jj_copy(r, text.data, text.size, out);
}

tn_status tn_jj_slice(jj_run *r, const jj_value *v, const jj_value *start, const jj_value *stop, const jj_value *step,
                      jj_value *out) {
    int64_t by = 1, first, last;
    if (v->kind == JJ_UNDEFINED) {
        *out = *v;
        return TN_OK;
    }
    if (!is_sequence(v)) return tn_jj_fail(r, "%s cannot be sliced", tn_jj_kind_name(v));
    if (step && step->kind != JJ_NONE) {
        if (!jinja_is_whole(step) || whole_of(step) == 0)
            return tn_jj_fail(r, "the step of a slice must be an integer other than 0");
        by = whole_of(step);
    }
    int64_t length = (int64_t)(v->kind == JJ_LIST ? v->list->count : tn_jj_characters(v->text, v->size));
    int64_t least = by > 0 ? 0 : -1, most = by > 0 ? length : length - 1;
    TRY(tn_jj_charge(r, 1 + (v->kind == JJ_STRING ? v->size / 64 : 0)));
    TRY(jinja_place_of(r, start, length, least, most, by > 0 ? 0 : length - 1, &first));
    TRY(jinja_place_of(r, stop, length, least, most, by > 0 ? length : -1, &last));
    if (by != 1 || v->kind == JJ_LIST) return slice_by_step(r, v, first, last, by, out);
    size_t begin = tn_jj_offset(v->text, v->size, (size_t)first), end = tn_jj_offset(v->text, v->size, (size_t)last);
    *out = jj_text(v->text + begin, end > begin ? end - begin : 0);
    return TN_OK;
}

static const jj_value undefined = {.kind = JJ_UNDEFINED};

static tn_status of_undefined(jj_run *r, const char *name, size_t size) {
    return tn_jj_fail(r, "attribute \"%.*s\" of an undefined value", (int)(size < 60 ? size : 60), name);
}

static tn_status bind(jj_run *r, const jj_row *row, const jj_value *self, jj_value *out) {
    jj_callable *c = tn_jj_alloc(&r->arena, 1, sizeof *c);
    if (!c) return TN_ERR_MEMORY;
    *c = (jj_callable){.row = row, .self = *self};
    *out = (jj_value){.kind = JJ_CALLABLE, .callable = c};
    return TN_OK;
}

static jj_value loop_member(const jj_loop *l, const char *name) {
    int64_t index = (int64_t)l->index, count = (int64_t)l->items->count;
    const struct {
        const char *name;
        jj_value value;
    } members[] = {
        {"index", jj_int(index + 1)},
        {"index0", jj_int(index)},
        {"first", jj_bool(index == 0)},
        {"last", jj_bool(index + 1 == count)},
        {"length", jj_int(count)},
        {"revindex", jj_int(count - index)},
        {"revindex0", jj_int(count - index - 1)},
        {"previtem", index > 0 ? l->items->items[index - 1] : undefined},
        {"nextitem", index + 1 < count ? l->items->items[index + 1] : undefined},
        {"depth", jj_int(1)}, /* only recursive loops are deeper */
        {"depth0", jj_int(0)},
    };
    for (size_t i = 0; i < sizeof members / sizeof *members; i++)
        if (!strcmp(members[i].name, name)) return members[i].value;
    return undefined;
}

tn_status tn_jj_member(jj_run *r, const jj_value *v, const char *name, jj_value *out) {
    *out = undefined;
    if (v->kind == JJ_UNDEFINED) return of_undefined(r, name, strlen(name));
    const jj_row *method = tn_jj_find_method(v->kind, name);
    if (method) return bind(r, method, v, out);
    if (v->kind == JJ_LOOP) *out = loop_member(v->loop, name);
    if (v->kind != JJ_DICT && v->kind != JJ_NAMESPACE) return TN_OK;
    jj_value key = tn_jj_literal(name), *found;
    TRY(tn_jj_find(r, v->dict, &key, &found));
    if (found) *out = *found;
    return TN_OK;
}

static tn_status item_of_sequence(jj_run *r, const jj_value *v, int64_t index, jj_value *out) {
    int64_t length = (int64_t)(v->kind == JJ_LIST ? v->list->count : tn_jj_characters(v->text, v->size));
    TRY(tn_jj_charge(r, v->kind == JJ_STRING ? v->size / 64 : 0));
    if (index < 0) index += length;
    if (index < 0 || index >= length) return TN_OK;
    if (v->kind == JJ_LIST) {
        *out = v->list->items[index];
        return TN_OK;
    }
    size_t begin = tn_jj_offset(v->text, v->size, (size_t)index);
    *out = jj_text(v->text + begin, tn_jj_offset(v->text + begin, v->size - begin, 1));
    return TN_OK;
}

tn_status tn_jj_item(jj_run *r, const jj_value *v, const jj_value *key, jj_value *out) {
    *out = undefined;
    if (v->kind == JJ_UNDEFINED)
        return of_undefined(r, key->kind == JJ_STRING ? key->text : "an item", key->kind == JJ_STRING ? key->size : 7);
    if (is_sequence(v) && jinja_is_whole(key)) return item_of_sequence(r, v, whole_of(key), out);
    if (v->kind == JJ_DICT || v->kind == JJ_NAMESPACE) {
        jj_value *found;
        TRY(tn_jj_find(r, v->dict, key, &found));
        if (found) *out = *found;
        if (found) return TN_OK;
    }
    if (key->kind != JJ_STRING || key->size >= 32) return TN_OK;
    char name[32]; /* like Jinja: a name that is not an item may be a method */
    memcpy(name, key->text, key->size);
    name[key->size] = 0;
    const jj_row *method = strlen(name) == key->size ? tn_jj_find_method(v->kind, name) : NULL;
    return method ? bind(r, method, v, out) : TN_OK;
}

/* ---- printing ---------------------------------------------------------------------------------------------------- */

static tn_status put_text(tn_bytes *out, const char *text) { return tn_bytes_append(out, text, strlen(text)); }

/* Python's repr() of a number, at most 32 bytes with the NUL. */
static void tn_jj_print_float(double v, char *out) {
    char digits[40];
    if (isnan(v) || isinf(v)) {
        snprintf(out, 32, "%s", isnan(v) ? "nan" : v > 0 ? "inf" : "-inf");
        return;
    }
    int precision = 1;
    do {
        snprintf(digits, sizeof digits, "%.*e", precision - 1, v);
    } while (precision++ < 17 && strtod(digits, NULL) != v);
    int exponent = (int)strtol(strchr(digits, 'e') + 1, NULL, 10), shown = precision - 1;
    if (exponent < -4 || exponent >= 16) {
        char *e = strchr(digits, 'e');
        snprintf(out, 32, "%.*se%c%02d", (int)(e - digits), digits, exponent < 0 ? '-' : '+', abs(exponent));
        return;
    }
    int decimals = shown - 1 - exponent;
    snprintf(out, 32, "%.*f", decimals > 1 ? decimals : 1, v);
}

/* repr() of a string: in single quotes unless only those occur in it. */
static tn_status print_quoted(const jj_value *v, tn_bytes *out) {
    bool single = v->size > 0 && memchr(v->text, '\'', v->size), twice = v->size > 0 && memchr(v->text, '"', v->size);
    char quote = single && !twice ? '"' : '\'', escaped[8];
    TRY(tn_bytes_append(out, &quote, 1));
    for (size_t i = 0; i < v->size; i++) {
        unsigned char c = (unsigned char)v->text[i];
        const char *simple = c == '\n' ? "\\n" : c == '\r' ? "\\r" : c == '\t' ? "\\t" : c == '\\' ? "\\\\" : NULL;
        if (!simple && (char)c == quote) simple = "\\'";
        if (!simple && (c < 32 || c == 127)) {
            snprintf(escaped, sizeof escaped, "\\x%02x", c);
            simple = escaped;
        }
        TRY(simple ? tn_bytes_append(out, simple, strlen(simple)) : tn_bytes_append(out, v->text + i, 1));
    }
    return tn_bytes_append(out, &quote, 1);
}

static tn_status print_list(jj_run *r, const jj_list *list, tn_bytes *out) {
    TRY(tn_bytes_append(out, list->tuple ? "(" : "[", 1));
    for (size_t i = 0; i < list->count; i++) {
        if (i > 0) TRY(tn_bytes_append(out, ", ", 2));
        TRY(tn_jj_print(r, &list->items[i], true, out));
    }
    if (list->tuple && list->count == 1) TRY(tn_bytes_append(out, ",", 1));
    return tn_bytes_append(out, list->tuple ? ")" : "]", 1);
}

static tn_status print_dict(jj_run *r, const jj_dict *dict, tn_bytes *out) {
    TRY(tn_bytes_append(out, "{", 1));
    for (size_t i = 0; i < dict->count; i++) {
        if (i > 0) TRY(tn_bytes_append(out, ", ", 2));
        TRY(tn_jj_print(r, &dict->pairs[i].key, true, out));
        TRY(tn_bytes_append(out, ": ", 2));
        TRY(tn_jj_print(r, &dict->pairs[i].value, true, out));
    }
    return tn_bytes_append(out, "}", 1);
}

static tn_status print(jj_run *r, const jj_value *v, bool quoted, tn_bytes *out) {
    char number[32];
    switch (v->kind) {
    case JJ_UNDEFINED: return put_text(out, quoted ? "Undefined" : "");
    case JJ_NONE: return put_text(out, "None");
    case JJ_BOOL: return put_text(out, v->truth ? "True" : "False");
    case JJ_INT: snprintf(number, sizeof number, "%lld", (long long)v->integer); return put_text(out, number);
    case JJ_FLOAT: tn_jj_print_float(v->number, number); return put_text(out, number);
    case JJ_STRING: return quoted ? print_quoted(v, out) : tn_bytes_append(out, v->text, v->size);
    case JJ_LIST: return print_list(r, v->list, out);
    case JJ_DICT:
    case JJ_NAMESPACE: return print_dict(r, v->dict, out);
    default: return tn_jj_fail(r, "%s cannot be printed", tn_jj_kind_name(v));
    }
}

tn_status tn_jj_print(jj_run *r, const jj_value *v, bool quoted, tn_bytes *out) {
    size_t before = out->size;
    TRY(deeper(r));
    TRY(print(r, v, quoted, out));
    r->depth--;
    if (out->size > r->max_written) return tn_jj_fail(r, "a text exceeds %zu bytes", r->max_written);
    return tn_jj_charge(r, 1 + (out->size - before) / 64);
}

tn_status tn_jj_string(jj_run *r, const jj_value *v, jj_value *out) {
    AUTO_BYTES tn_bytes text = {0};
    *out = *v;
    if (v->kind == JJ_STRING) return TN_OK;
    TRY(tn_jj_print(r, v, false, &text));
    return tn_jj_copy(r, text.data, text.size, out);
}

/* ==== JSON ======================================================================================================== */
/* Reading is strict (RFC 8259) but takes bytes that are no UTF-8 inside strings as they are: a message may hold
 * anything. */

/* ---- reading ----------------------------------------------------------------------------------------------------- */

typedef struct reader {
    jj_run *run;
    const char *text;
    size_t size, at;
    int depth;
} reader;

static tn_status read_value(reader *x, jj_value *out);

static tn_status fail(const reader *x, const char *what) {
    return tn_backend_fail(TN_ERR_FORMAT, "chat template: the variables are not valid JSON: byte %zu: %s", x->at, what);
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
        int digit = i < x->size ? tn_txt_hex(x->text[i]) : -1;
        if (digit < 0) return false;
        *out = *out * 16 + (uint32_t)digit;
    }
    return true;
}

/* After \u: one code point, from two escapes where they are a surrogate pair. */
static tn_status read_code(reader *x, char *out, size_t *written) {
    uint32_t code, low;
    if (!read_hex(x, x->at, &code)) return fail(x, "expected four hexadecimal digits");
    x->at += 4;
    bool pair = code >= 0xd800 && code < 0xdc00 && x->size - x->at >= 6 && !memcmp(x->text + x->at, "\\u", 2) &&
                read_hex(x, x->at + 2, &low) && low >= 0xdc00 && low < 0xe000;
    if (pair) {
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
        x->at += 6;
    }
    if (code >= 0xd800 && code < 0xe000) code = 0xfffd; /* half of a surrogate pair is not a character */
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
    return c == 'u' ? read_code(x, out, written) : fail(x, "unknown escape");
}

static tn_status read_string(reader *x, jj_value *out) {
    size_t end = x->at, length = 0;
    while (end < x->size && x->text[end] != '"')
        end += x->text[end] == '\\' ? 2 : 1;
    if (end >= x->size) return fail(x, "unterminated string");
    char *text = tn_jj_alloc(&x->run->arena, end - x->at, 1); /* no escape is shorter than what it means */
    if (!text) return TN_ERR_MEMORY;
    while (x->at < end) {
        char c = x->text[x->at++];
        if ((unsigned char)c < 32) return fail(x, "unescaped control character in a string");
        if (c == '\\')
            TRY(read_escape(x, text, &length));
        else
            text[length++] = c;
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
        return fail(x, "expected a value");
    errno = 0;
    *out = whole ? jj_int(strtoll(digits, &end, 10)) : jj_float(strtod(digits, &end));
    if (*end || end[-1] == '.' || (whole && errno != 0) || length == sizeof digits - 1)
        return fail(x, "malformed or too large number");
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
    return jinja_json_takes(x, ']') ? TN_OK : fail(x, "expected ] or ,");
}

static tn_status read_object(reader *x, jj_value *out) {
    jj_dict *dict;
    TRY(tn_jj_new_dict(x->run, JJ_DICT, out, &dict));
    if (jinja_json_takes(x, '}')) return TN_OK;
    do {
        jj_value key, value;
        if (!jinja_json_takes(x, '"')) return fail(x, "expected a key");
        TRY(read_string(x, &key));
        if (!jinja_json_takes(x, ':')) return fail(x, "expected :");
        TRY(read_value(x, &value));
        TRY(tn_jj_put(x->run, dict, key, value));
    } while (jinja_json_takes(x, ','));
    return jinja_json_takes(x, '}') ? TN_OK : fail(x, "expected } or ,");
}

static bool takes_word(reader *x, const char *word) {
    size_t length = strlen(word);
    if (x->size - x->at < length || memcmp(x->text + x->at, word, length) != 0) return false;
    x->at += length;
    return true;
}

static tn_status read_value(reader *x, jj_value *out) {
    if (x->depth >= JJ_MAX_DEPTH) return fail(x, "nested too deeply");
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
    return x.at == size ? TN_OK : fail(&x, "unexpected text after the value");
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static tn_status put_unit(uint32_t unit, tn_bytes *out) {
    char escaped[16];
    snprintf(escaped, sizeof escaped, "\\u%04x", (unsigned)unit);
    return put_text(out, escaped);
}

/* A character beyond ASCII, as escapes of UTF-16. */
static tn_status put_code(uint32_t code, tn_bytes *out) {
    if (code < 0x10000) return put_unit(code, out);
    TRY(put_unit(0xd800 + ((code - 0x10000) >> 10), out));
    return put_unit(0xdc00 + ((code - 0x10000) & 0x3ff), out);
}

static tn_status write_string(const jj_value *v, bool ascii, tn_bytes *out) {
    static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
    TRY(put_text(out, "\""));
    for (size_t i = 0, length; i < v->size; i += length) {
        uint32_t code = (unsigned char)v->text[i];
        const char *place = code ? strchr(from, v->text[i]) : NULL;
        const char simple[] = {'\\', place ? to[place - from] : 0, 0};
        length = 1;
        if (place) {
            TRY(put_text(out, simple));
        } else if (code < 32) {
            TRY(put_unit(code, out));
        } else if (code >= 0x80 && ascii && (length = tn_txt_utf8(v->text + i, v->size - i, &code)) > 0) {
            TRY(put_code(code, out));
        } else {
            length = 1;
            TRY(tn_bytes_append(out, v->text + i, 1));
        }
    }
    return put_text(out, "\"");
}

static tn_status new_line(const jj_json_style *s, int level, tn_bytes *out) {
    if (s->indent < 0) return TN_OK;
    TRY(put_text(out, "\n"));
    for (int64_t i = 0; i < (int64_t)s->indent * level; i++)
        TRY(put_text(out, " "));
    return TN_OK;
}

static tn_status write_list(jj_run *r, const jj_list *list, const jj_json_style *s, int level, tn_bytes *out) {
    if (list->count == 0) return put_text(out, "[]");
    TRY(put_text(out, "["));
    for (size_t i = 0; i < list->count; i++) {
        if (i > 0) TRY(put_text(out, s->item_separator));
        TRY(new_line(s, level + 1, out));
        TRY(tn_jj_write_json(r, &list->items[i], s, level + 1, out));
    }
    TRY(new_line(s, level, out));
    return put_text(out, "]");
}

/* A key: numbers, booleans and none become strings. */
static tn_status write_key_jinja_json(jj_run *r, const jj_value *key, const jj_json_style *s, tn_bytes *out) {
    if (key->kind == JJ_STRING) return write_string(key, s->ascii, out);
    TRY(put_text(out, "\""));
    TRY(tn_jj_write_json(r, key, s, 0, out));
    return put_text(out, "\"");
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
    if (d->count == 0) return put_text(out, "{}");
    if (s->sorted) {
        TRY(sort_keys(r, d, &sorted));
        d = &sorted;
    }
    TRY(put_text(out, "{"));
    for (size_t i = 0; i < d->count; i++) {
        const jj_pair *pair = &d->pairs[i];
        if (i > 0) TRY(put_text(out, s->item_separator));
        TRY(new_line(s, level + 1, out));
        TRY(write_key_jinja_json(r, &pair->key, s, out));
        TRY(put_text(out, s->key_separator));
        TRY(tn_jj_write_json(r, &pair->value, s, level + 1, out));
    }
    TRY(new_line(s, level, out));
    return put_text(out, "}");
}

static tn_status write_float(double v, tn_bytes *out) {
    char number[32];
    tn_jj_print_float(v, number);
    return put_text(out, isnan(v) ? "NaN" : isinf(v) ? (v > 0 ? "Infinity" : "-Infinity") : number);
}

tn_status tn_jj_write_json(jj_run *r, const jj_value *v, const jj_json_style *s, int level, tn_bytes *out) {
    char number[32];
    if (level > JJ_MAX_DEPTH) return tn_jj_fail(r, "nested more than %d levels deep", JJ_MAX_DEPTH);
    if (out->size > r->max_written) return tn_jj_fail(r, "a text exceeds %zu bytes", r->max_written);
    TRY(tn_jj_charge(r, 1 + (v->kind == JJ_STRING ? v->size / 64 : 0)));
    switch (v->kind) {
    case JJ_NONE: return put_text(out, "null");
    case JJ_BOOL: return put_text(out, v->truth ? "true" : "false");
    case JJ_INT: snprintf(number, sizeof number, "%lld", (long long)v->integer); return put_text(out, number);
    case JJ_FLOAT: return write_float(v->number, out);
    case JJ_STRING: return write_string(v, s->ascii, out);
    case JJ_LIST: return write_list(r, v->list, s, level, out);
    case JJ_DICT: return write_dict(r, v->dict, s, level, out);
    default: return tn_jj_fail(r, "%s cannot be converted to JSON", tn_jj_kind_name(v));
    }
}
