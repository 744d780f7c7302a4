/* index_check.c — errors for indices out of range.
 *
 * Usually the host has the indices when an op is recorded, because they were made from data or computed before. Then
 * they are compared with the range here: about a nanosecond each, and only once while they do not change. Indices that
 * are computed later, or that may be others at each launch of a captured graph, get a check instead: a plan compares
 * them when it computes or reads them (core/index_check.c), before it writes any state. Nothing is done for indices
 * whose range follows from how they are made (argmax, clamp), nor for those on another device, which the host would
 * have to wait for, unless TRUNNION_CHECK_INDICES asks for it. */
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "graph/node_internal.h"
#include "ops/indices.h"
#include "ops/ops_build.h"

typedef enum counts { NO_INDICES, ALONG_DIM, FROM_END_TOO, ROWS, CLASSES, PLACES } counts;

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
    [TN_OP_ONE_HOT] = {PLACES, 0},
};

typedef tn_index_range range;

static range range_of(const tn_node *n, counts counted) {
    if (counted == PLACES) return (range){.high = n->i[TN_ONE_HOT_CLASSES]};
    const tn_node *x = n->in[counted == ROWS ? 1 : 0];
    int64_t dim = counted == ROWS ? 0 : counted == CLASSES ? x->rank > 1 : n->i[0];
    int64_t size = x->rank ? x->shape[dim] : 1;
    range r = {.low = counted == FROM_END_TOO ? -size : 0, .high = size, .ignores = counted == CLASSES};
    if (r.ignores) r.ignored = n->i[TN_CROSS_ENTROPY_IGNORE_INDEX];
    return r;
}

/* ---- comparing ------------------------------------------------------------------------------------ */

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

/* The first index outside, as a number of the list's elements, or -1. */
static int64_t first_outside(const tn_index_list *l, const range *r, int64_t *value) {
    int64_t at[TN_MAX_RANK] = {0};
    for (int64_t i = 0, place = 0; i < l->count; i++) {
        *value = integer_at(l->dtype, l->first, place);
        if (outside(*value, r)) return i;
        for (int d = l->rank - 1; d >= 0; d--) {
            place += l->stride[d];
            if (++at[d] < l->shape[d]) break;
            place -= l->stride[d] * l->shape[d];
            at[d] = 0;
        }
    }
    return -1;
}

typedef struct search {
    const tn_index_list *list;
    const range *range;
    atomic_bool found;
} search;

static void search_part(void *ctx, int64_t begin, int64_t end, int worker) {
    search *s = ctx;
    const char *base = s->list->first + begin * (int64_t)tn_dtype_size(s->list->dtype);
    (void)worker;
    bool out =
        s->list->dtype == TN_I64 ? any_of_i64(base, end - begin, s->range) : any_of_i32(base, end - begin, s->range);
    if (out) atomic_store_explicit(&s->found, true, memory_order_relaxed);
}

bool tn_indices_inside(const tn_index_list *l, const range *r) {
    enum { GRAIN = 1 << 16 }; /* elements that are worth waking a thread */
    int64_t value;
    if (!l->dense || (l->dtype != TN_I64 && l->dtype != TN_I32)) return first_outside(l, r, &value) < 0;
    search s = {.list = l, .range = r};
    tn_parallel(l->count, GRAIN, search_part, &s);
    return !atomic_load_explicit(&s.found, memory_order_relaxed);
}

tn_status tn_indices_refuse(int op, const tn_index_list *l, const range *r) {
    int64_t value = 0, at = first_outside(l, r, &value);
    tn_node shape = {.rank = (uint8_t)l->rank};
    char text[96];
    memcpy(shape.shape, l->shape, sizeof shape.shape);
    tn_shape_text(&shape, text, sizeof text);
    if (r->high <= r->low)
        return tn_fail(TN_ERR_ARGUMENT, "%s: index %lld, element %lld of %s, is out of bounds: the dimension is empty",
                       tn_op(op)->name, (long long)value, (long long)at, text);
    return tn_fail(TN_ERR_ARGUMENT, "%s: index %lld, element %lld of %s, is out of bounds: %lld to %lld are possible",
                   tn_op(op)->name, (long long)value, (long long)at, text, (long long)r->low, (long long)r->high - 1);
}

/* ---- values that the host has ------------------------------------------------------------------------------------ */

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

/* The number of elements that are looked at when an op is recorded. More are looked at by the plan, once. */
enum { MOST_LOOKED_AT = 1 << 16 };

static const tn_node *root_of(const tn_node *x) { return x->flags & TN_NODE_VIEW ? x->root : x; }

/* Is every value of the one integer type a value of the other? */
static bool keeps_values(tn_dtype from, tn_dtype to) {
    const unsigned is_unsigned = 1u << TN_U8 | 1u << TN_U16 | 1u << TN_U32 | 1u << TN_U64 | 1u << TN_BOOL;
    if (tn_dtype_is_float(from) || tn_dtype_is_float(to) || to == TN_BOOL) return from == to;
    bool was = is_unsigned >> from & 1, is = is_unsigned >> to & 1;
    size_t before = tn_dtype_size(from), after = tn_dtype_size(to);
    return was == is ? after >= before : was && after > before;
}

const tn_node *tn_index_source(const tn_node *x) {
    while (x->op == TN_OP_CAST && x->n_in == 1 && !x->buffer &&
           keeps_values((tn_dtype)x->in[0]->dtype, (tn_dtype)x->dtype))
        x = x->in[0];
    return x;
}

static bool host_has(const tn_node *x) {
    const tn_node *root = root_of(x);
    return root->buffer && root->device->is_cpu && !(root->flags & TN_NODE_STALE) && !tn_queues_exist() &&
           tn_node_numel(x) <= MOST_LOOKED_AT;
}

static tn_status check_now(int op, const tn_node *x, const range *r) {
    const tn_buffer *b = root_of(x)->buffer;
    tn_index_list l = {.dtype = (tn_dtype)x->dtype, .rank = x->rank, .count = tn_node_numel(x)};
    int64_t offset = 0;
    seen *place = NULL;
    (void)tn_node_layout(x, &offset, l.stride);
    memcpy(l.shape, x->shape, sizeof l.shape);
    l.first = (const char *)b->address + offset * (int64_t)tn_dtype_size(l.dtype);
    l.dense = tn_node_contiguous(x);
    if (l.dense && seen_before(b, r, &place)) return TN_OK;
    if (!tn_indices_inside(&l, r)) return tn_indices_refuse(op, &l, r);
    if (l.dense && !tn_buffer_is_borrowed(b)) *place = (seen){b, b->version, *r};
    return TN_OK;
}

/* ---- values that follow from how they are made ------------------------------------------------------------------- */

enum { MOST_STEPS = 8 }; /* ops that are followed back */

static bool lies_inside(const tn_node *x, const range *r, int steps);

static bool inputs_inside(const tn_node *x, int from, const range *r, int steps) {
    for (int i = from; i < x->n_in; i++)
        if (!x->in[i] || !lies_inside(x->in[i], r, steps)) return false;
    return x->n_in > from;
}

static bool within(double first, double last, const range *r) {
    return first >= (double)r->low && last <= (double)r->high - 1;
}

/* Are all values of the pending x in the range, whatever the numbers are that it is made of? */
static bool lies_inside(const tn_node *x, const range *r, int steps) {
    if (steps == 0 || x->buffer || x->n_in + x->n_i + x->n_f == 0 || (x->flags & TN_NODE_VARIES)) return false;
    if (x->flags & TN_NODE_VIEW) return inputs_inside(x, 0, r, steps - 1);
    switch (x->op) {
    case TN_OP_ARGMAX:
    case TN_OP_ARGMIN: {
        int64_t kept = tn_node_numel(x);
        return r->low <= 0 && kept > 0 && tn_node_numel(x->in[0]) / kept <= r->high;
    }
    case TN_OP_ARGSORT: return r->low <= 0 && x->rank && x->shape[x->i[TN_ARGSORT_DIM]] <= r->high;
    case TN_OP_ARGSORT_LAST: return r->low <= 0 && x->rank && x->shape[x->rank - 1] <= r->high;
    case TN_OP_TOPK_INDICES: return r->low <= 0 && x->rank && x->in[0]->shape[x->i[TN_TOPK_INDICES_DIM]] <= r->high;
    case TN_OP_RANDOM_INTEGERS:
        return x->i[TN_RANDOM_INTEGERS_LOW] >= r->low && x->i[TN_RANDOM_INTEGERS_HIGH] <= r->high;
    case TN_OP_FULL: return within(x->f[TN_FULL_VALUE], x->f[TN_FULL_VALUE], r);
    case TN_OP_ARANGE:
        return x->f[TN_ARANGE_STEP] > 0 && within(x->f[TN_ARANGE_START], ceil(x->f[TN_ARANGE_END]) - 1, r);
    case TN_OP_CLAMP: {
        bool whole = !tn_dtype_is_float((tn_dtype)x->dtype);
        return whole && x->f[TN_CLAMP_MIN] <= x->f[TN_CLAMP_MAX] && within(x->f[TN_CLAMP_MIN], x->f[TN_CLAMP_MAX], r);
    }
    case TN_OP_CAST:
        return keeps_values((tn_dtype)x->in[0]->dtype, (tn_dtype)x->dtype) && inputs_inside(x, 0, r, steps - 1);
    case TN_OP_WHERE: return inputs_inside(x, 1, r, steps - 1);
    case TN_OP_CONTIGUOUS:
    case TN_OP_CAT:
    case TN_OP_CAT_FEW: return inputs_inside(x, 0, r, steps - 1);
    default: return false;
    }
}

/* ---- checks ------------------------------------------------------------------------------------------------------ */

static bool other_devices_too(void) {
    static atomic_int known; /* 0: not looked up yet, else 1 + whether it is set */
    int k = atomic_load_explicit(&known, memory_order_relaxed);
    if (k == 0) {
        const char *text = tn_env("TRUNNION_CHECK_INDICES");
        k = text && strcmp(text, "0") != 0 ? 2 : 1;
        atomic_store_explicit(&known, k, memory_order_relaxed);
    }
    return k == 2;
}

static tn_status add_check(tn_node *x, const tn_node *user, const range *r) {
    for (const tn_index_check *c = x->checks; c; c = c->next)
        if (memcmp(&c->range, r, sizeof *r) == 0) return TN_OK;
    tn_index_check *c = tn_mem_alloc(sizeof *c);
    if (!c) return TN_ERR_MEMORY;
    *c = (tn_index_check){.range = *r, .op = user->op, .line = user->line, .file = user->file, .next = x->checks};
    x->checks = c;
    return TN_OK;
}

/* Data may belong to several threads: the check is a view's of it, which takes its place as input k of n. */
static tn_status add_check_to_view(tn_node *n, int k, const range *r) {
    tn_node *view = tn_node_make(TN_OP_DETACH, &n->in[k], 1, NULL);
    tn_status s = view->flags & TN_NODE_ERROR ? view->status : add_check(view, n, r);
    if (s != TN_OK) {
        tn_node_release(view);
        return s;
    }
    tn_node_exchange_input(n, k, view);
    tn_node_release(view);
    return TN_OK;
}

tn_status tn_check_indices(tn_node *n) {
    tn_index_rule own = n->op < TN_OP_COUNT ? tn_index_rules[n->op] : (tn_index_rule){0};
    if (own.counts == NO_INDICES || n->n_in <= own.input) return TN_OK; /* an error, or computed meanwhile */
    tn_node *index = n->in[own.input];
    if (tn_dtype_is_float((tn_dtype)index->dtype)) return TN_OK; /* cross_entropy's probabilities */
    const tn_node *x = tn_index_source(index);
    const tn_recorder *r = tn_recorder_here();
    range wanted = range_of(n, (counts)own.counts);
    bool now = host_has(x);
    if (now) TRY(check_now(n->op, x, &wanted));
    if ((now && !r->capturing) || n->recorder != r) return TN_OK;
    if (!n->device->is_cpu && !other_devices_too()) return TN_OK;
    if (lies_inside(index, &wanted, MOST_STEPS)) return TN_OK;
    return index->recorder == r ? add_check(index, n, &wanted) : add_check_to_view(n, own.input, &wanted);
}
