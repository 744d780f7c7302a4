/* operator_call.c — the interface of operator rows: inputs, attributes, host numbers, outputs; values; the operator
 * registry.
 *
 * Numbers that are read on the host decide what is recorded. Those that depend only on constants and extents are noted
 * in order while a run is recorded, and the recording for a replay reads them from these notes. Reading any other
 * number disables replay (onnx_run.c). */
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "check/check.h"
#include "onnx/model.h"
#include "onnx/operator_support.h"
#include "tensor/graph.h"

bool onnx_is(onnx_text t, const char *text) {
    return t.size == strlen(text) && (t.size == 0 || memcmp(t.at, text, t.size) == 0);
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

static int shown(onnx_text t) { return (int)tn_min64((int64_t)t.size, 120); }

/* "node 'conv_1' (Conv)" before the failure's text. */
tn_status onnx_at_node(const onnx_node *n, tn_status status) {
    if (n->name.size == 0)
        return tn_fail_prefix(status, "an unnamed node %.*s", shown(n->type), n->type.at ? n->type.at : "");
    return tn_fail_prefix(status, "node '%.*s' (%.*s)", shown(n->name), n->name.at, shown(n->type),
                          n->type.at ? n->type.at : "");
}

tn_status(onnx_refuse)(const onnx_call *c, const char *format, ...) {
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    tn_fail(TN_ERR_UNSUPPORTED, "%s", text);
    return onnx_at_node(c->node, TN_ERR_UNSUPPORTED);
}

/* ---- inputs ------------------------------------------------------------------------------------------------------ */

bool onnx_has(const onnx_call *c, int i) { return i >= 0 && i < c->in_count && c->in[i]; }

bool onnx_wants(const onnx_call *c, int k) {
    if (k < 0 || k >= c->out_count) return false;
    int32_t slot = c->node->out[k];
    return slot >= 0 && c->run->frame->graph->last_use[slot] >= 0;
}

onnx_type onnx_in_type(const onnx_call *c, int i) { return onnx_has(c, i) ? c->in[i]->type : ONNX_UNDEFINED; }

/* An error tensor that the run frees. */
static const tn_tensor *error_input(const onnx_call *c, int i) {
    onnx_run *r = c->run;
    tn_tensor *t = tn_failed(TN_ERR_DTYPE, "input %d is not a tensor of numbers", i);
    if (tn_mem_reserve(&r->errors, &r->error_capacity, r->error_count + 1, sizeof(tn_tensor *)) == TN_OK)
        r->errors[r->error_count++] = tn_retain(t);
    return t;
}

const tn_tensor *onnx_in(const onnx_call *c, int i) {
    if (!onnx_has(c, i)) return NULL;
    return c->in[i]->kind == ONNX_TENSOR ? c->in[i]->tensor : error_input(c, i);
}

/* ---- attributes -------------------------------------------------------------------------------------------------- */

static const onnx_attribute *find_attribute(const onnx_attribute *list, int count, onnx_text name) {
    for (int i = 0; i < count; i++)
        if (onnx_text_equal(list[i].name, name)) return &list[i];
    return NULL;
}

/* In a model function's body an attribute may stand for one of the calling node's, or for the function's default. */
static const onnx_attribute *follow_references(const onnx_frame *f, const onnx_attribute *a) {
    while (a && a->reference.size) {
        const onnx_call *call = f ? f->function : NULL;
        if (!call) return NULL;
        const onnx_node *n = call->node;
        const onnx_attribute *given = find_attribute(n->attributes, n->attribute_count, a->reference);
        if (!given) return find_attribute(n->calls->defaults, n->calls->default_count, a->reference);
        a = given;
        f = f->caller;
    }
    return a;
}

const onnx_attribute *onnx_follow(const onnx_call *c, const onnx_attribute *a) {
    return follow_references(c->run->frame, a);
}

const onnx_attribute *onnx_find(const onnx_call *c, const char *name) {
    return onnx_follow(c, onnx_node_attribute(c->node, name));
}

int64_t onnx_int(const onnx_call *c, const char *name, int64_t otherwise) {
    const onnx_attribute *a = onnx_find(c, name);
    return a ? a->i : otherwise;
}

double onnx_float(const onnx_call *c, const char *name, double otherwise) {
    const onnx_attribute *a = onnx_find(c, name);
    return a ? (double)a->f : otherwise;
}

onnx_text onnx_string(const onnx_call *c, const char *name, const char *otherwise) {
    const onnx_attribute *a = onnx_find(c, name);
    return a ? a->s : (onnx_text){otherwise, otherwise ? strlen(otherwise) : 0};
}

const int64_t *onnx_ints(const onnx_call *c, const char *name, int *count) {
    const onnx_attribute *a = onnx_find(c, name);
    bool there = a && a->ints && a->count <= INT_MAX;
    *count = there ? (int)a->count : 0;
    return there ? a->ints : NULL;
}

/* ---- numbers on the host ----------------------------------------------------------------------------------------- */

static void ints_of(tn_dtype dtype, const void *from, int64_t n, int64_t *to) {
#define WIDEN(type)                               \
    for (int64_t i = 0; i < n; i++)               \
        to[i] = (int64_t)((const type *)from)[i]; \
    return
    switch (dtype) {
    case TN_I64:
    case TN_U64: memcpy(to, from, (size_t)n * sizeof *to); return;
    case TN_I32: WIDEN(int32_t);
    case TN_U32: WIDEN(uint32_t);
    case TN_I16: WIDEN(int16_t);
    case TN_U16: WIDEN(uint16_t);
    case TN_I8: WIDEN(int8_t);
    case TN_U8:
    case TN_BOOL: WIDEN(uint8_t);
    default: return;
    }
#undef WIDEN
}

/* count elements, read and converted: i64, or doubles where `floats`. */
static tn_status read_numbers(const onnx_call *c, int i, bool floats, int64_t most, onnx_memo *m) {
    const tn_tensor *t = onnx_in(c, i);
    TRY(tn_status_of(t));
    tn_dtype dtype = tn_dtype_of(t);
    int64_t count = tn_numel(t);
    if (count > most)
        return onnx_refuse(c, "input %d has %lld elements; at most %lld are read on the host", i, (long long)count,
                           (long long)most);
    if (!floats && tn_dtype_is_float(dtype))
        return onnx_refuse(c, "input %d is %s, but must be an integer type", i, tn_dtype_name(dtype));
    size_t bytes = tn_dtype_bytes(dtype, count);
    void *raw = tn_mem_alloc(bytes);
    m->numbers = tn_mem_alloc((size_t)count * 8);
    tn_status status = raw && m->numbers ? tn_read(t, raw, bytes) : TN_ERR_MEMORY;
    if (status == TN_OK && floats) tn_doubles_of(dtype, raw, count, m->numbers);
    if (status == TN_OK && !floats) ints_of(dtype, raw, count, m->numbers);
    tn_mem_free(raw);
    m->count = count;
    m->floats = floats;
    return status;
}

static tn_status copy_memo(const onnx_memo *m, void **out, int64_t *count) {
    *out = tn_mem_alloc((size_t)m->count * 8);
    if (!*out) return TN_ERR_MEMORY;
    if (m->count) memcpy(*out, m->numbers, (size_t)m->count * 8);
    *count = m->count;
    return TN_OK;
}

/* While a replay is recorded nothing can be computed: the notes have it. */
static tn_status next_memo(const onnx_call *c, bool floats, void **out, int64_t *count) {
    onnx_run *r = c->run;
    if (r->memo_next >= r->memo_count || r->memos[r->memo_next].floats != floats)
        return tn_fail(TN_ERR_STATE, "the model reads other values than when it was recorded");
    return copy_memo(&r->memos[r->memo_next++], out, count);
}

static tn_status read_list(const onnx_call *c, int i, bool floats, int64_t most, void **out, int64_t *count) {
    *out = NULL;
    *count = 0;
    if (!onnx_has(c, i)) return TN_OK;
    onnx_run *r = c->run;
    uint8_t fixed = c->in[i]->fixed;
    bool noted = fixed == ONNX_EXTENTS || fixed == ONNX_KEYED; /* constants lie there to be read at any time */
    if (r->capturing && noted) return next_memo(c, floats, out, count);
    if (r->capturing && fixed == ONNX_VARIES)
        return tn_fail(TN_ERR_STATE, "the model reads values that are being computed");
    if (fixed == ONNX_KEYED) r->keyed = true;
    if (fixed == ONNX_VARIES) r->varied = true;
    onnx_memo m = {0};
    tn_status status = read_numbers(c, i, floats, most, &m);
    if (status == TN_OK) status = copy_memo(&m, out, count);
    noted = noted && !r->varied;
    if (status == TN_OK && noted)
        status = tn_mem_reserve(&r->memos, &r->memo_capacity, r->memo_count + 1, sizeof *r->memos);
    if (status == TN_OK && noted) {
        r->memos[r->memo_count++] = m;
        return TN_OK;
    }
    tn_mem_free(m.numbers);
    if (status == TN_OK) return TN_OK;
    tn_mem_free(*out);
    *out = NULL;
    *count = 0;
    return status;
}

tn_status onnx_read_ints(const onnx_call *c, int i, int64_t **out, int64_t *count, int64_t most) {
    void *list;
    tn_status status = read_list(c, i, false, most, &list, count);
    *out = list;
    return status;
}

tn_status onnx_read_floats(const onnx_call *c, int i, double **out, int64_t *count, int64_t most) {
    void *list;
    tn_status status = read_list(c, i, true, most, &list, count);
    *out = list;
    return status;
}

bool onnx_reads_freely(const onnx_call *c, int i) {
    if (c->in[i]->fixed != ONNX_VARIES || c->run->capturing) return false;
    return c->run->varied = true;
}

tn_status onnx_read_f32(const onnx_call *c, int i, float **out) {
    const tn_tensor *t = onnx_in(c, i);
    AUTO_FREE double *list = NULL;
    int64_t count = tn_numel(t);
    TRY(tn_status_of(t));
    *out = tn_mem_alloc((size_t)tn_max64(count, 1) * sizeof **out);
    if (!*out) return TN_ERR_MEMORY;
    if (onnx_reads_freely(c, i))
        return tn_read(tn_dtype_of(t) == TN_F32 ? t : tn_cast(t, TN_F32), *out, (size_t)count * sizeof **out);
    TRY(onnx_read_floats(c, i, &list, &count, count));
    for (int64_t k = 0; k < count; k++)
        (*out)[k] = (float)list[k];
    return TN_OK;
}

static tn_status check_single(const onnx_call *c, int i, int64_t count) {
    return count || !onnx_has(c, i) ? TN_OK : onnx_refuse(c, "input %d is empty; one element is required", i);
}

tn_status onnx_read_int(const onnx_call *c, int i, int64_t otherwise, int64_t *out) {
    int64_t *list, count;
    *out = otherwise;
    TRY(onnx_read_ints(c, i, &list, &count, 1));
    if (count == 1) *out = list[0];
    tn_mem_free(list);
    return check_single(c, i, count);
}

tn_status onnx_read_float(const onnx_call *c, int i, double otherwise, double *out) {
    double *list;
    int64_t count;
    *out = otherwise;
    TRY(onnx_read_floats(c, i, &list, &count, 1));
    if (count == 1) *out = list[0];
    tn_mem_free(list);
    return check_single(c, i, count);
}

/* ---- what a node computes once per model ------------------------------------------------------------------------- */

struct onnx_prepared {
    onnx_prepared *next;
    const onnx_node *node;
    void *data;
    void (*drop)(void *data);
};

void onnx_prepared_free(tn_onnx *m) {
    onnx_prepared *p = atomic_exchange(&m->prepared, NULL), *next;
    for (; p; p = next) {
        next = p->next;
        p->drop(p->data);
        tn_mem_free(p);
    }
}

/* If several threads prepare the same node at the same time, several entries stay in the list; the first one found is
 * used. */
bool onnx_is_in_function(const onnx_call *c) { return c->run->frame->function != NULL; }

tn_status onnx_prepare(const onnx_call *c, tn_status (*make)(const onnx_call *c, void **data), void (*drop)(void *data),
                       const void **out) {
    tn_onnx *m = c->run->model;
    onnx_prepared *p = atomic_load(&m->prepared);
    bool own = !onnx_is_in_function(c);
    while (p && own && p->node != c->node)
        p = p->next;
    if (p && own) return *out = p->data, TN_OK;
    p = tn_mem_zalloc(1, sizeof *p);
    tn_status status = p ? make(c, &p->data) : TN_ERR_MEMORY;
    if (status != TN_OK) return tn_mem_free(p), status;
    *out = p->data;
    p->node = own ? c->node : NULL;
    p->drop = drop;
    p->next = atomic_load(&m->prepared);
    while (!atomic_compare_exchange_weak(&m->prepared, &p->next, p)) {
    }
    return TN_OK;
}

/* ---- outputs ----------------------------------------------------------------------------------------------------- */

void onnx_varies(onnx_call *c) { c->fixed = ONNX_VARIES; }

tn_status onnx_put_level(onnx_call *c, int k, onnx_value *v, uint8_t level) {
    if (!v) return onnx_at_node(c->node, tn_error_code());
    if (!onnx_wants(c, k) || c->out[k]) {
        onnx_value_release(v);
        return TN_OK;
    }
    c->out[k] = onnx_value_as(v, level);
    return c->out[k] ? TN_OK : tn_error_code();
}

tn_status onnx_put_value(onnx_call *c, int k, onnx_value *v) { return onnx_put_level(c, k, v, c->fixed); }

static tn_status put_tensor(onnx_call *c, int k, tn_tensor *t, onnx_type type, uint8_t level) {
    tn_status status = t ? tn_status_of(t) : tn_fail(TN_ERR_INTERNAL, "the operator returned no result");
    if (status != TN_OK) {
        tn_free(t);
        return onnx_at_node(c->node, status);
    }
    return onnx_put_level(c, k, onnx_value_tensor(t, type), level);
}

tn_status onnx_put_typed(onnx_call *c, int k, tn_tensor *t, onnx_type type) {
    return put_tensor(c, k, t, type, c->fixed);
}

tn_status onnx_put(onnx_call *c, int k, tn_tensor *t) {
    return put_tensor(c, k, t, t ? onnx_type_of(tn_dtype_of(t)) : ONNX_UNDEFINED, c->fixed);
}

tn_status onnx_put_fixed(onnx_call *c, int k, tn_tensor *t) {
    uint8_t level = c->fixed > ONNX_EXTENTS ? c->fixed : ONNX_EXTENTS;
    return put_tensor(c, k, t, t ? onnx_type_of(tn_dtype_of(t)) : ONNX_UNDEFINED, level);
}

/* ---- rows that are one operation --------------------------------------------------------------------------------- */

tn_status onnx_unary(onnx_call *c) { return onnx_put(c, 0, c->row->unary(onnx_in(c, 0))); }

tn_status onnx_binary(onnx_call *c) { return onnx_put(c, 0, c->row->binary(onnx_in(c, 0), onnx_in(c, 1))); }

/* ==== required operands and attributes ============================================================================ */

tn_status onnx_need(const onnx_call *c, int i, const tn_tensor **out) {
    *out = onnx_in(c, i);
    if (!*out) return onnx_refuse(c, "input %d is missing", i + 1);
    return tn_status_of(*out);
}

tn_status onnx_need_list(const onnx_call *c, const tn_tensor **const *out, size_t count) {
    for (size_t i = 0; i < count; i++)
        TRY(onnx_need(c, (int)i, out[i]));
    return TN_OK;
}

tn_tensor *onnx_number(double v, const tn_tensor *like) { return tn_full(NULL, 0, v, tn_dtype_of(like)); }

tn_status onnx_axis(const onnx_call *c, int64_t axis, int rank, int *out) {
    if (axis < -rank || axis >= rank)
        return onnx_refuse(c, "axis %lld is out of range for a tensor of rank %d", (long long)axis, rank);
    *out = (int)(axis < 0 ? axis + rank : axis);
    return TN_OK;
}

tn_status onnx_list(const onnx_call *c, int i, const char *name, int64_t out[2 * TN_MAX_RANK], int *count) {
    enum { MOST = 2 * TN_MAX_RANK };
    const int64_t *given = name ? onnx_ints(c, name, count) : NULL;
    if (i < 0 || !onnx_has(c, i)) {
        if (given && *count > MOST) return onnx_refuse(c, "%d numbers in '%s'; the limit is %d", *count, name, MOST);
        if (given) memcpy(out, given, (size_t)*count * sizeof *out);
        if (!given) *count = -1;
        return TN_OK;
    }
    int64_t *read, many;
    TRY(onnx_read_ints(c, i, &read, &many, MOST));
    memcpy(out, read, (size_t)many * sizeof *out);
    tn_mem_free(read);
    *count = (int)many;
    return TN_OK;
}

tn_status onnx_axes(const onnx_call *c, int i, const char *name, int rank, int64_t axes[TN_MAX_RANK], int *count) {
    int64_t given[2 * TN_MAX_RANK];
    unsigned seen = 0;
    TRY(onnx_list(c, i, name, given, count));
    if (*count > rank) return onnx_refuse(c, "%d axes for a tensor of rank %d", *count, rank);
    for (int k = 0; k < *count; k++) {
        int axis;
        TRY(onnx_axis(c, given[k], rank, &axis));
        if (seen >> axis & 1) return onnx_refuse(c, "axis %d is given twice", axis);
        seen |= 1u << axis;
        axes[k] = axis;
    }
    return TN_OK;
}

tn_status onnx_put_like(onnx_call *c, int k, const tn_tensor *t, int i) {
    tn_tensor *own = (tn_tensor *)(uintptr_t)t;
    return onnx_put_typed(c, k, t == onnx_in(c, i) ? tn_retain(own) : own, onnx_in_type(c, i));
}

/* ==== values ====================================================================================================== */
/* Tensors are taken out of all scopes: a value lives until its last reference goes, wherever it was made. */

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
            return tn_fail(TN_ERR_MEMORY, "strings of more than 2^63 bytes");
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
    if (rank < 0 || rank > TN_MAX_RANK)
        status = tn_fail(TN_ERR_SHAPE, "strings in %d dimensions are not supported", rank);
    v->count = 1;
    for (int d = 0; d < rank && status == TN_OK; d++) {
        v->shape[d] = shape[d];
        if (shape[d] < 0 || tn_mul_overflow(v->count, shape[d], &v->count))
            status = tn_fail(TN_ERR_SHAPE, "strings: extent %d is %lld", d, (long long)shape[d]);
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
        tn_mem_free_each(v->strings, v->owned, v->items, v);
        v = only;
    }
}

/* ==== registry ==================================================================================================== */

typedef struct domain_row {
    const char *name; /* "": the standard's own */
    const onnx_op_row *ops;
} domain_row;

static const domain_row domains[] = {
    {"", onnx_math_ops},
    {"", onnx_shape_ops},
    {"", onnx_nn_ops},
    {"", onnx_control_ops},
    {"", onnx_rnn_ops},
    {"", onnx_quant_ops},
    {"", onnx_sequence_ops},
    {"", onnx_text_ops},
    {"", onnx_image_ops},
    {"ai.onnx.ml", onnx_ml_ops},
    {"ai.onnx.preview", onnx_preview_ops},
    {"ai.onnx.preview.training", onnx_training_ops},
    {"ai.onnx.training", onnx_training_ops},
    {"", onnx_runtime_ops},
    {"com.microsoft", onnx_contrib_ops},
    {"com.microsoft", onnx_dressed_ops},
};

static onnx_text short_domain(onnx_text d) { return onnx_is(d, "ai.onnx") ? (onnx_text){"", 0} : d; }

bool onnx_same_domain(onnx_text a, onnx_text b) { return onnx_text_equal(short_domain(a), short_domain(b)); }

const onnx_op_row *onnx_find_row(onnx_text domain, onnx_text type, int64_t opset) {
    const onnx_op_row *best = NULL;
    domain = short_domain(domain);
    for (size_t i = 0; i < TN_COUNT(domains); i++) {
        if (!onnx_is(domain, domains[i].name)) continue;
        for (const onnx_op_row *row = domains[i].ops; row->name; row++)
            if (row->since <= opset && (!best || row->since > best->since) && onnx_is(type, row->name)) best = row;
    }
    return best && best->run == onnx_image_decoder && !onnx_decodes_images() ? NULL : best;
}
