/* indices.c — errors for indices out of range, reported when an op is recorded.
 *
 * A kernel cannot fail: an index out of range reads NaN or is skipped. But usually the host has the indices when the op
 * is recorded, because they were made from data or computed before. Then they are compared with the range: about a
 * nanosecond each, and only once while they do not change. Indices that are not computed yet, or lie on a device, are
 * not waited for. */
#include <string.h>

#include "graph/known.h"
#include "ops/ops_build.h"

typedef enum counts { NO_INDICES, ALONG_DIM, FROM_END_TOO, ROWS, CLASSES } counts;

const tn_index_rule tn_index_rules[TN_OP_COUNT] = {
    [TN_OP_GATHER] = {ALONG_DIM, 1},
    [TN_OP_INDEX_SELECT] = {ALONG_DIM, 1},
    [TN_OP_INDEX_ADD] = {ALONG_DIM, 1},
    [TN_OP_SCATTER] = {ALONG_DIM, 1},
    [TN_OP_SCATTER_ADD] = {ALONG_DIM, 1},
    [TN_OP_SCATTER_REDUCE] = {ALONG_DIM, 1},
    [TN_OP_TAKE_ALONG_DIM] = {FROM_END_TOO, 1},
    [TN_OP_EMBEDDING] = {ROWS, 0},
    [TN_OP_NLL_LOSS] = {CLASSES, 1},
    [TN_OP_CROSS_ENTROPY] = {CLASSES, 1},
};

/* low ≤ index < high, or index = ignored, if one is. */
typedef struct range {
    int64_t low, high, ignored, ignores; /* no bool: ranges are compared by their bytes */
} range;

static range range_of(const tn_node *n, counts counted) {
    const tn_node *x = n->in[counted == ROWS ? 1 : 0];
    int64_t dim = counted == ROWS ? 0 : counted == CLASSES ? x->rank > 1 : n->i[0];
    int64_t size = x->rank ? x->shape[dim] : 1;
    range r = {.low = counted == FROM_END_TOO ? -size : 0, .high = size, .ignores = counted == CLASSES};
    if (r.ignores) r.ignored = n->i[TN_CROSS_ENTROPY_IGNORE_INDEX];
    return r;
}

/* ---- values that the host has ------------------------------------------------------------------------------------ */

static int64_t integer_at(tn_dtype t, const char *base, int64_t i) {
    switch (t) {
    case TN_I32: return ((const int32_t *)(const void *)base)[i];
    case TN_I64: return ((const int64_t *)(const void *)base)[i];
    case TN_U32: return ((const uint32_t *)(const void *)base)[i];
    case TN_U64: return (int64_t)((const uint64_t *)(const void *)base)[i]; /* from 2^63 on: negative, so outside */
    case TN_I16: return ((const int16_t *)(const void *)base)[i];
    case TN_U16: return ((const uint16_t *)(const void *)base)[i];
    case TN_I8: return ((const int8_t *)base)[i];
    default: return ((const uint8_t *)base)[i];
    }
}

static inline bool outside(int64_t v, const range *r) {
    return (v < r->low || v >= r->high) && (v != r->ignored || !r->ignores);
}

/* If low is 0, an index v is outside where v or high - 1 - v is negative. The sign bits of a block of vectors are ORed;
 * if one is set, each index of the block is compared, because it may be the ignored one. */
enum { VECTOR = 16 /* bytes */ };
#define ANY_OUTSIDE(name, type, bits, most)                                                         \
    static bool name(const void *base, int64_t count, const range *r) {                             \
        typedef bits vector __attribute__((vector_size(VECTOR), aligned(sizeof(bits)), may_alias)); \
        enum { LANES = VECTOR / sizeof(bits), BLOCK = 8 * LANES };                                  \
        const type *v = base;                                                                       \
        const bits last = (bits)(r->high - 1 < most ? r->high - 1 : most);                          \
        int64_t i = 0;                                                                              \
        for (; r->low == 0 && i + BLOCK <= count; i += BLOCK) {                                     \
            const vector *x = (const vector *)(const void *)(v + i);                                \
            vector any = {0};                                                                       \
            for (int k = 0; k < BLOCK / LANES; k += 4) {                                            \
                vector first = x[k] | (last - x[k]) | x[k + 1] | (last - x[k + 1]);                 \
                any |= first | x[k + 2] | (last - x[k + 2]) | x[k + 3] | (last - x[k + 3]);         \
            }                                                                                       \
            bits signs = 0;                                                                         \
            for (int k = 0; k < LANES; k++)                                                         \
                signs |= any[k];                                                                    \
            if (!(signs >> (8 * sizeof(bits) - 1))) continue;                                       \
            for (int k = 0; k < BLOCK; k++)                                                         \
                if (outside(v[i + k], r)) return true;                                              \
        }                                                                                           \
        for (; i < count; i++)                                                                      \
            if (outside(v[i], r)) return true;                                                      \
        return false;                                                                               \
    }
ANY_OUTSIDE(any_of_i64, int64_t, uint64_t, INT64_MAX)
ANY_OUTSIDE(any_of_i32, int32_t, uint32_t, INT32_MAX)

/* The first index outside, as a number of its tensor's elements, or -1. */
static int64_t first_outside(const tn_node *x, const char *base, const range *r, int64_t *value) {
    int64_t offset, stride[TN_MAX_RANK], at[TN_MAX_RANK] = {0}, count = tn_node_numel(x);
    (void)tn_node_layout(x, &offset, stride);
    for (int64_t i = 0, place = offset; i < count; i++) {
        *value = integer_at((tn_dtype)x->dtype, base, place);
        if (outside(*value, r)) return i;
        for (int d = x->rank - 1; d >= 0; d--) {
            place += stride[d];
            if (++at[d] < x->shape[d]) break;
            place -= stride[d] * x->shape[d];
            at[d] = 0;
        }
    }
    return -1;
}

/* Ranges that a buffer's content was found to lie in; a version of a buffer is never seen twice in a process. */
typedef struct seen {
    const tn_buffer *buffer;
    uint64_t version;
    range within;
} seen;

static bool seen_before(const tn_buffer *b, const range *r, seen **place) {
    enum { REMEMBERED = 8 };
    static _Thread_local seen last[REMEMBERED];
    *place = &last[b->version * UINT64_C(0x9E3779B97F4A7C15) >> 61];
    const seen *s = *place;
    return s->buffer == b && s->version == b->version && memcmp(&s->within, r, sizeof *r) == 0;
}

/* Are all elements of the contiguous x inside? */
static bool all_inside(const tn_node *x, const tn_buffer *b, const range *r) {
    int64_t count = tn_node_numel(x), value;
    seen *place;
    if (seen_before(b, r, &place)) return true;
    bool out = x->dtype == TN_I64   ? any_of_i64(b->address, count, r)
               : x->dtype == TN_I32 ? any_of_i32(b->address, count, r)
                                    : first_outside(x, b->address, r, &value) >= 0;
    if (!out) *place = (seen){b, b->version, *r};
    return !out;
}

/* The number of elements that are looked at: with more, an op's own reading of them pays for no second one. */
enum { MOST_LOOKED_AT = 1 << 16 };

static const tn_node *root_of(const tn_node *x) { return x->flags & TN_NODE_VIEW ? x->root : x; }

/* Through casts between integers, which keep an index: what they were made of. */
static const tn_node *uncast(const tn_node *x) {
    while (x->op == TN_OP_CAST && x->n_in == 1 && !x->buffer && !tn_dtype_is_float((tn_dtype)x->in[0]->dtype) &&
           tn_dtype_size((tn_dtype)x->in[0]->dtype) <= tn_dtype_size((tn_dtype)x->dtype))
        x = x->in[0];
    return x;
}

static bool host_has(const tn_node *x) {
    const tn_node *root = root_of(x);
    return root->buffer && root->device->is_cpu && !(root->flags & TN_NODE_STALE) && !tn_queues_exist() &&
           tn_node_numel(x) <= MOST_LOOKED_AT && !tn_dtype_is_float((tn_dtype)x->dtype);
}

tn_status tn_check_indices(const tn_node *n) {
    tn_index_rule own = n->op < TN_OP_COUNT ? tn_index_rules[n->op] : (tn_index_rule){0};
    if (own.counts == NO_INDICES || n->n_in <= own.input) return TN_OK; /* an error, or computed meanwhile */
    const tn_node *x = uncast(n->in[own.input]);
    if (!host_has(x)) return TN_OK;
    range r = range_of(n, (counts)own.counts);
    const tn_buffer *b = root_of(x)->buffer;
    int64_t value, at;
    if (tn_node_contiguous(x) && all_inside(x, b, &r)) return TN_OK;
    at = first_outside(x, b->address, &r, &value);
    if (at < 0) return TN_OK;
    char shape[96];
    return tn_fail(TN_ERR_ARGUMENT, "%s: index %lld, element %lld of %s, is out of bounds: %lld to %lld are possible",
                   tn_op(n->op)->name, (long long)value, (long long)at, tn_shape_text(x, shape, sizeof shape),
                   (long long)r.low, (long long)r.high - 1);
}
