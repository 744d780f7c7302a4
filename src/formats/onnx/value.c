/* value.c — values: tensors, texts, sequences, optionals and maps, counted and never changed.
 *
 * Tensors are taken out of all scopes: a value lives until its last reference goes, wherever it was made. */
#include <string.h>

#include "formats/onnx/model.h"
#include "graph/graph.h"

onnx_type onnx_type_of(tn_dtype t) {
    for (int i = 1; i < ONNX_TYPE_COUNT; i++) /* the standard's own come before what lives in wider ones */
        if (onnx_types[i].dtype == t && onnx_types[i].bits == 8 * tn_dtype_size(t)) return (onnx_type)i;
    return ONNX_UNDEFINED;
}

static onnx_value *new_value(onnx_kind kind, onnx_type type) {
    onnx_value *v = tn_mem_zalloc(1, sizeof *v);
    if (!v) return NULL;
    atomic_init(&v->refs, 1);
    v->kind = kind;
    v->type = type;
    return v;
}

onnx_value *onnx_value_tensor(tn_tensor *t, onnx_type type) {
    if (!t || tn_status_of(t) != TN_OK) {
        tn_free(t);
        return NULL;
    }
    onnx_value *v = new_value(ONNX_TENSOR, type);
    if (!v) {
        tn_free(t);
        return NULL;
    }
    v->tensor = tn_tensor_unscoped(t);
    return v;
}

/* All texts in one piece of memory. */
static tn_status copy_strings(onnx_value *v, const onnx_text *strings) {
    int64_t bytes = 0;
    for (int64_t i = 0; i < v->count; i++)
        if (tn_add_overflow(bytes, (int64_t)strings[i].size, &bytes))
            return tn_fail(TN_ERR_MEMORY, "texts of more than 2^63 bytes");
    v->strings = tn_mem_zalloc((size_t)v->count, sizeof *v->strings);
    v->owned = tn_mem_alloc((size_t)bytes);
    if (!v->strings || !v->owned) return TN_ERR_MEMORY;
    char *to = v->owned;
    for (int64_t i = 0; i < v->count; i++) {
        if (strings[i].size) memcpy(to, strings[i].at, strings[i].size);
        v->strings[i] = (onnx_text){to, strings[i].size};
        to += strings[i].size;
    }
    return TN_OK;
}

onnx_value *onnx_value_strings(const onnx_text *strings, const int64_t *shape, int rank) {
    onnx_value *v = new_value(ONNX_STRINGS, ONNX_STRING);
    if (!v) return NULL;
    tn_status status = TN_OK;
    if (rank < 0 || rank > TN_MAX_RANK) status = tn_fail(TN_ERR_SHAPE, "texts in %d dimensions", rank);
    v->count = 1;
    for (int d = 0; d < rank && status == TN_OK; d++) {
        v->shape[d] = shape[d];
        if (shape[d] < 0 || tn_mul_overflow(v->count, shape[d], &v->count))
            status = tn_fail(TN_ERR_SHAPE, "texts: extent %d is %lld", d, (long long)shape[d]);
    }
    v->rank = rank;
    if (status == TN_OK) status = copy_strings(v, strings);
    if (status == TN_OK) return v;
    onnx_value_release(v);
    return NULL;
}

/* Takes over the references in items, not the list. */
static onnx_value *with_items(onnx_value *v, onnx_value *const *items, int64_t count) {
    onnx_value **list = v ? tn_mem_alloc((size_t)count * sizeof(onnx_value *)) : NULL;
    if (list) {
        if (count) memcpy(list, items, (size_t)count * sizeof(onnx_value *));
        v->items = list;
        v->count = count;
        return v;
    }
    for (int64_t i = 0; i < count; i++)
        onnx_value_release(items[i]);
    onnx_value_release(v);
    return NULL;
}

onnx_value *onnx_value_sequence(onnx_value *const *items, int64_t count, onnx_type type) {
    return with_items(new_value(ONNX_SEQUENCE, type), items, count);
}

onnx_value *onnx_value_optional(onnx_value *item) {
    return with_items(new_value(ONNX_OPTIONAL, item ? item->type : ONNX_UNDEFINED), &item, item ? 1 : 0);
}

onnx_value *onnx_value_map(onnx_value *keys, onnx_value *const *items, int64_t count) {
    onnx_value *v = keys ? new_value(ONNX_MAP, count ? items[0]->type : ONNX_UNDEFINED) : NULL;
    if (v)
        v->keys = keys;
    else
        onnx_value_release(keys);
    return with_items(v, items, count);
}

static onnx_value *copy_value(const onnx_value *v) {
    if (v->kind == ONNX_TENSOR) return onnx_value_tensor(tn_retain(v->tensor), v->type);
    if (v->kind == ONNX_STRINGS) return onnx_value_strings(v->strings, v->shape, v->rank);
    for (int64_t i = 0; i < v->count; i++)
        onnx_value_retain(v->items[i]);
    onnx_value *copy = with_items(new_value(v->kind, v->type), v->items, v->count);
    if (copy) copy->keys = onnx_value_retain(v->keys);
    return copy;
}

onnx_value *onnx_value_as(onnx_value *v, uint8_t level) {
    if (v->fixed == level) return v;
    onnx_value *own = v;
    if (atomic_load_explicit(&v->refs, memory_order_acquire) != 1) {
        own = copy_value(v);
        onnx_value_release(v);
    }
    if (own) own->fixed = level;
    return own;
}

onnx_value *onnx_value_retain(onnx_value *v) {
    if (v) atomic_fetch_add_explicit(&v->refs, 1, memory_order_relaxed);
    return v;
}

/* The last item goes in this loop, so that a chain of optionals takes no stack. */
void onnx_value_release(onnx_value *v) {
    while (v && atomic_fetch_sub_explicit(&v->refs, 1, memory_order_acq_rel) == 1) {
        onnx_value *only = NULL;
        int64_t items = v->kind == ONNX_STRINGS ? 0 : v->count;
        for (int64_t i = 0; i < items; i++) {
            if (i + 1 == items)
                only = v->items[i]; /* in this loop: a chain of optionals takes no stack */
            else
                onnx_value_release(v->items[i]);
        }
        onnx_value_release(v->keys);
        onnx_value_release(v->choice);
        for (int k = 0; k < ONNX_DERIVATIONS; k++)
            onnx_value_release(v->derived[k]);
        tn_free(v->tensor);
        tn_mem_free(v->strings);
        tn_mem_free(v->owned);
        tn_mem_free(v->items);
        tn_mem_free(v);
        v = only;
    }
}
