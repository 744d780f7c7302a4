/* ops_sequence.c — sequences and optionals: lists of values that the host keeps, of which the device knows nothing.
 *
 * Values are never changed once they are made, so every operator makes a new list of the same items and copies none of
 * their numbers. What an operator says about a list (its length, whether there is an item) is known at once. */
#include <limits.h>
#include <string.h>

#include "formats/onnx/onnx.h"

enum { MOST_ITEMS = 1 << 20 };

static tn_status take_sequence(const onnx_call *c, int i, const onnx_value **out) {
    *out = onnx_has(c, i) ? c->in[i] : NULL;
    if (*out && (*out)->kind == ONNX_SEQUENCE) return TN_OK;
    return tn_fail(TN_ERR_FORMAT, "%s: input %d is no sequence", c->row->name, i);
}

/* A sequence of items that stay the caller's. */
static onnx_value *share_items(onnx_value *const *items, int64_t count, onnx_type type) {
    for (int64_t i = 0; i < count; i++)
        (void)onnx_value_retain(items[i]);
    return onnx_value_sequence(items, count, type);
}

static void release_items(onnx_value **items, int64_t count) {
    for (int64_t i = 0; items && i < count; i++)
        onnx_value_release(items[i]);
}

static tn_status put_new(onnx_call *c, int k, onnx_value *v) { return v ? onnx_put_value(c, k, v) : tn_error_code(); }

/* Position `at` of a list of n places, from the end where it is negative. */
static tn_status find_place(const onnx_call *c, int input, int64_t otherwise, int64_t n, int64_t *at) {
    TRY(onnx_read_int(c, input, otherwise, at));
    int64_t asked = *at;
    if (*at < 0) *at += n;
    if (*at >= 0 && *at < n) return TN_OK;
    return tn_fail(TN_ERR_ARGUMENT, "%s: position %lld is not among %lld", c->row->name, (long long)asked,
                   (long long)n);
}

static tn_status run_construct(onnx_call *c) {
    onnx_type type = c->in_count ? onnx_in_type(c, 0) : ONNX_FLOAT;
    for (int i = 0; i < c->in_count; i++)
        if (!c->in[i]) return tn_fail(TN_ERR_FORMAT, "%s: input %d was left out", c->row->name, i);
    return put_new(c, 0, share_items(c->in, c->in_count, type));
}

static tn_status run_empty(onnx_call *c) {
    return put_new(c, 0, share_items(NULL, 0, (onnx_type)onnx_int(c, "dtype", ONNX_FLOAT)));
}

static tn_status run_at(onnx_call *c) {
    const onnx_value *list;
    int64_t at;
    TRY(take_sequence(c, 0, &list));
    TRY(find_place(c, 1, 0, list->count, &at));
    return onnx_put_value(c, 0, onnx_value_retain(list->items[at]));
}

static tn_status run_length(onnx_call *c) {
    const onnx_value *list;
    TRY(take_sequence(c, 0, &list));
    return onnx_put(c, 0, tn_from_data(&list->count, NULL, 0, TN_I64));
}

/* The list without item `at`, or with `more` before it. */
static tn_status put_changed(onnx_call *c, const onnx_value *list, int64_t at, onnx_value *more) {
    int64_t count = list->count + (more ? 1 : -1), from = at + !more, rest = list->count - from;
    if (count > MOST_ITEMS) return tn_fail(TN_ERR_UNSUPPORTED, "a sequence of more than %d items", MOST_ITEMS);
    onnx_value **items = tn_mem_zalloc((size_t)count, sizeof(onnx_value *));
    if (!items) return tn_error_code();
    if (at) memcpy(items, list->items, (size_t)at * sizeof *items);
    if (more) items[at] = more;
    if (rest) memcpy(items + count - rest, list->items + from, (size_t)rest * sizeof *items);
    onnx_value *made = share_items(items, count, list->count ? list->type : more ? more->type : list->type);
    tn_mem_free(items);
    return put_new(c, 0, made);
}

static tn_status run_insert(onnx_call *c) {
    const onnx_value *list;
    int64_t at;
    TRY(take_sequence(c, 0, &list));
    if (!onnx_has(c, 1)) return tn_fail(TN_ERR_FORMAT, "%s: there is nothing to insert", c->row->name);
    TRY(onnx_read_int(c, 2, list->count, &at));
    if (at < 0) at += list->count;
    if (at < 0 || at > list->count)
        return tn_fail(TN_ERR_ARGUMENT, "%s: position %lld in a sequence of %lld", c->row->name, (long long)at,
                       (long long)list->count);
    return put_changed(c, list, at, c->in[1]);
}

static tn_status run_erase(onnx_call *c) {
    const onnx_value *list;
    int64_t at;
    TRY(take_sequence(c, 0, &list));
    TRY(find_place(c, 1, -1, list->count, &at));
    return put_changed(c, list, at, NULL);
}

/* ---- between tensors and sequences ------------------------------------------------------------------------------- */

static tn_status run_concat(onnx_call *c) {
    const onnx_value *list;
    TRY(take_sequence(c, 0, &list));
    if (list->count == 0 || list->count > INT_MAX) return onnx_refuse(c, "of %lld items", (long long)list->count);
    tn_tensor **parts = tn_mem_zalloc((size_t)list->count, sizeof(tn_tensor *));
    if (!parts) return tn_error_code();
    for (int64_t i = 0; i < list->count; i++) {
        parts[i] = list->items[i]->tensor;
        if (parts[i]) continue;
        tn_mem_free(parts);
        return onnx_refuse(c, "items that are not tensors of numbers");
    }
    int64_t axis = onnx_int(c, "axis", 0);
    bool stack = onnx_int(c, "new_axis", 0) != 0;
    tn_tensor *joined = (stack ? tn_stack : tn_cat)(parts, (int)list->count, axis);
    tn_mem_free(parts);
    return onnx_put_typed(c, 0, joined, list->items[0]->type);
}

/* The extents of the parts along `axis`: in `sizes`, of one length each where there is a single number. */
typedef struct parts {
    int64_t *sizes, count, each, extent;
} parts;

static tn_status find_parts(const onnx_call *c, parts *p) {
    int64_t sum = 0;
    p->each = 1;
    TRY(onnx_read_ints(c, 1, &p->sizes, &p->count, MOST_ITEMS));
    bool single = onnx_has(c, 1) && tn_rank(onnx_in(c, 1)) == 0;
    if (single) p->each = p->sizes[0];
    if (!onnx_has(c, 1) || single) {
        if (p->each <= 0) return tn_fail(TN_ERR_ARGUMENT, "%s: parts of %lld", c->row->name, (long long)p->each);
        p->count = tn_ceil_div(p->extent, p->each);
        tn_mem_free(p->sizes);
        p->sizes = NULL;
    } else {
        for (int64_t i = 0; i < p->count; i++)
            if (p->sizes[i] < 0 || tn_add_overflow(sum, p->sizes[i], &sum)) sum = -1, i = p->count;
        if (sum != p->extent)
            return tn_fail(TN_ERR_SHAPE, "%s: parts that do not add up to %lld", c->row->name, (long long)p->extent);
    }
    if (p->count <= MOST_ITEMS) return TN_OK;
    return tn_fail(TN_ERR_UNSUPPORTED, "%s: %lld parts", c->row->name, (long long)p->count);
}

static tn_status put_parts(onnx_call *c, const parts *p, int64_t axis, bool keep) {
    const tn_tensor *x = onnx_in(c, 0);
    onnx_value **items = tn_mem_zalloc((size_t)p->count, sizeof(onnx_value *));
    tn_status status = items ? TN_OK : tn_error_code();
    int64_t at = 0;
    for (int64_t i = 0; i < p->count && status == TN_OK; i++) {
        int64_t size = p->sizes ? p->sizes[i] : tn_min64(p->each, p->extent - at);
        tn_tensor *part = tn_slice(x, axis, at, at + size, 1);
        if (!keep) part = tn_squeeze(part, &axis, 1);
        items[i] = onnx_value_tensor(part, onnx_in_type(c, 0));
        if (!items[i]) status = tn_error_code();
        at += size;
    }
    if (status == TN_OK)
        status = put_new(c, 0, onnx_value_sequence(items, p->count, onnx_in_type(c, 0)));
    else
        release_items(items, p->count);
    tn_mem_free(items);
    return status;
}

static tn_status run_split(onnx_call *c) {
    const tn_tensor *x = onnx_in(c, 0);
    TRY(tn_status_of(x));
    int64_t axis = onnx_int(c, "axis", 0), rank = tn_rank(x);
    if (axis < -rank || axis >= rank)
        return tn_fail(TN_ERR_SHAPE, "%s: axis %lld of %lld", c->row->name, (long long)axis, (long long)rank);
    parts p = {.extent = tn_size(x, axis)};
    tn_status status = find_parts(c, &p);
    bool keep = onnx_has(c, 1) || onnx_int(c, "keepdims", 1) != 0;
    if (status == TN_OK) status = put_parts(c, &p, axis < 0 ? axis + rank : axis, keep);
    tn_mem_free(p.sizes);
    return status;
}

/* ---- a function over the items ----------------------------------------------------------------------------------- */

enum { MOST_MAPPED = 64 };

/* One result list an output, filled item by item. */
static tn_status map_items(onnx_call *c, const onnx_graph *body, int64_t count, onnx_value ***results) {
    onnx_value *in[MOST_MAPPED], *out[MOST_MAPPED];
    for (int64_t i = 0; i < count; i++) {
        for (int j = 0; j < c->in_count; j++) {
            onnx_value *v = c->in[j];
            bool list = v && v->kind == ONNX_SEQUENCE;
            if (list && v->count <= i) return tn_fail(TN_ERR_SHAPE, "%s: input %d is too short", c->row->name, j);
            in[j] = list ? v->items[i] : v;
        }
        TRY(onnx_call_graph(c, body, in, c->in_count, out, c->out_count));
        for (int k = 0; k < c->out_count; k++)
            results[k][i] = out[k];
    }
    return TN_OK;
}

static tn_status run_map(onnx_call *c) {
    const onnx_value *list;
    const onnx_attribute *body = onnx_find(c, "body");
    onnx_value **results[MOST_MAPPED] = {NULL};
    tn_status status = take_sequence(c, 0, &list);
    if (status != TN_OK) return status;
    if (!body || body->count != 1 || !body->graphs) return tn_fail(TN_ERR_FORMAT, "%s has no body", c->row->name);
    if (c->in_count > MOST_MAPPED || c->out_count > MOST_MAPPED) return onnx_refuse(c, "so many inputs or outputs");
    for (int k = 0; k < c->out_count && status == TN_OK; k++) {
        results[k] = tn_mem_zalloc((size_t)list->count, sizeof(onnx_value *));
        if (!results[k]) status = tn_error_code();
    }
    if (status == TN_OK) status = map_items(c, body->graphs[0], list->count, results);
    for (int k = 0; k < c->out_count; k++) {
        if (!results[k]) continue;
        onnx_type type = list->count && results[k][0] ? results[k][0]->type : ONNX_FLOAT;
        if (status == TN_OK)
            status = put_new(c, k, onnx_value_sequence(results[k], list->count, type));
        else
            release_items(results[k], list->count);
        tn_mem_free(results[k]);
    }
    return status;
}

/* ---- optionals --------------------------------------------------------------------------------------------------- */

static tn_status run_optional(onnx_call *c) {
    return put_new(c, 0, onnx_value_optional(onnx_has(c, 0) ? onnx_value_retain(c->in[0]) : NULL));
}

static tn_status run_has_element(onnx_call *c) {
    const onnx_value *v = onnx_has(c, 0) ? c->in[0] : NULL;
    uint8_t has = v && (v->kind != ONNX_OPTIONAL || v->count > 0);
    return onnx_put(c, 0, tn_from_data(&has, NULL, 0, TN_BOOL));
}

static tn_status run_get_element(onnx_call *c) {
    onnx_value *v = onnx_has(c, 0) ? c->in[0] : NULL;
    if (v && v->kind == ONNX_OPTIONAL) v = v->count ? v->items[0] : NULL;
    if (!v) return tn_fail(TN_ERR_ARGUMENT, "%s: the optional is empty", c->row->name);
    return onnx_put_value(c, 0, onnx_value_retain(v));
}

const onnx_op_row onnx_sequence_ops[] = {
    {"ConcatFromSequence", 11, .run = run_concat},
    {"Optional", 15, .run = run_optional},
    {"OptionalGetElement", 15, .run = run_get_element},
    {"OptionalHasElement", 15, .run = run_has_element},
    {"SequenceAt", 11, .run = run_at},
    {"SequenceConstruct", 11, .run = run_construct},
    {"SequenceEmpty", 11, .run = run_empty},
    {"SequenceErase", 11, .run = run_erase},
    {"SequenceInsert", 11, .run = run_insert},
    {"SequenceLength", 11, .run = run_length},
    {"SequenceMap", 17, .run = run_map},
    {"SplitToSequence", 11, .run = run_split},
    {.name = NULL},
};
