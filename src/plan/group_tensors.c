/* group_tensors.c — tensors between the processes of a group (distributed.h). */

#include "plan/plan.h"
#include "trunnion/autograd.h"
#include "trunnion/distributed.h"
#include "trunnion/ops.h"

/* What a collective operation works on: t's memory and that of the result. */
typedef struct exchange {
    tn_tensor *whole;
    const tn_node *node;
    tn_buffer *to;
} exchange;

static tn_status prepare(exchange *e, const tn_tensor *t, size_t copies) {
    TRY(tn_whole_value(t, &e->whole, &e->node));
    size_t bytes = tn_node_bytes(e->node) * copies;
    return tn_buffer_new(e->node->device, bytes ? bytes : 1, &e->to);
}

/* The result has the extents `shape`. */
static tn_status collect(tn_group *g, tn_collective what, int from, const tn_tensor *t, const int64_t *shape, int rank,
                         tn_tensor **out) {
    exchange e = {.to = NULL};
    size_t size = (size_t)tn_group_size(g);
    tn_status s = prepare(&e, t, what == TN_COLLECTIVE_GATHER ? size : 1);
    uint64_t call =
        s == TN_OK ? (uint64_t)tn_node_bytes(e.node) << 10 | (uint64_t)e.node->dtype << 3 | what << 1 | 1 : 0;
    s = tn_group_agree(g, s, call);
    if (s == TN_OK) {
        const tn_node *n = e.node;
        size_t bytes = tn_node_bytes(n);
        tn_buffer *own = (n->flags & TN_NODE_VIEW ? n->root : n)->buffer;
        s = tn_group_collect(g, what, from, own, what == TN_COLLECTIVE_TRADE ? bytes / size : bytes, e.to);
        if (s == TN_OK) *out = tn_tensor_new(tn_node_data(e.to, shape, rank, (tn_dtype)n->dtype));
    }
    tn_buffer_release(e.to);
    tn_free(e.whole);
    return s;
}

static tn_tensor *collected(tn_group *g, tn_collective what, int from, const tn_tensor *t, const int64_t *shape,
                            int rank) {
    tn_tensor *out = NULL;
    tn_status s = collect(g, what, from, t, shape, rank, &out);
    return s == TN_OK ? out : tn_tensor_error(s);
}

static tn_status check_tensor(const tn_group *g, const tn_tensor *t, const char *what, int most) {
    if (!g) return tn_fail(TN_ERR_ARGUMENT, "%s: the group is NULL", what);
    TRY(tn_need_tensor(t, what));
    TRY(tn_status_of(t));
    if (tn_rank(t) <= most) return TN_OK;
    return tn_fail(TN_ERR_SHAPE, "%s: the tensor has rank %d; at most %d", what, tn_rank(t), most);
}

/* The other ranks may have called with a good tensor and wait for this one: their `exchanges` fail, too. */
static tn_tensor *refused(tn_group *g, tn_status s, int exchanges) {
    tn_tensor *error = tn_tensor_error(s);
    for (int i = 0; g && i < exchanges; i++)
        (void)tn_group_agree(g, s, 0);
    return error;
}

tn_tensor *tn_group_broadcast_tensor(tn_group *g, const tn_tensor *t, int root) {
    tn_status s = check_tensor(g, t, "tn_group_broadcast_tensor", TN_MAX_RANK);
    if (s == TN_OK) s = tn_group_check_root(g, root);
    if (s != TN_OK) return refused(g, s, 1);
    return collected(g, TN_COLLECTIVE_BROADCAST, root, t, tn_shape(t), tn_rank(t));
}

tn_tensor *tn_group_all_gather_tensor(tn_group *g, const tn_tensor *t) {
    int64_t shape[TN_MAX_RANK] = {tn_group_size(g)};
    tn_status s = check_tensor(g, t, "tn_group_all_gather_tensor", TN_MAX_RANK - 1);
    if (s != TN_OK) return refused(g, s, 1);
    for (int d = 0; d < tn_rank(t); d++)
        shape[1 + d] = tn_size(t, d);
    return collected(g, TN_COLLECTIVE_GATHER, 0, t, shape, 1 + tn_rank(t));
}

tn_tensor *tn_group_all_to_all_tensor(tn_group *g, const tn_tensor *t) {
    int64_t size = tn_group_size(g);
    tn_status s = check_tensor(g, t, "tn_group_all_to_all_tensor", TN_MAX_RANK);
    if (s == TN_OK && (tn_rank(t) == 0 || tn_size(t, 0) != size))
        s = tn_fail(TN_ERR_SHAPE,
                    "tn_group_all_to_all_tensor: the first extent is %lld; it must be the number of ranks, %lld",
                    tn_rank(t) ? (long long)tn_size(t, 0) : -1LL, (long long)size);
    if (s != TN_OK) return refused(g, s, 1);
    return collected(g, TN_COLLECTIVE_TRADE, 0, t, tn_shape(t), tn_rank(t));
}

/* Each rank adds its piece of all, then all gather the sums. */
tn_tensor *tn_group_all_reduce_tensor(tn_group *g, const tn_tensor *t) {
    tn_status s = check_tensor(g, t, "tn_group_all_reduce_tensor", TN_MAX_RANK);
    if (s != TN_OK) return refused(g, s, 2);
    tn_tensor *result;
    TN_SCOPE;
    TN_NO_GRAD;
    int64_t size = tn_group_size(g), numel = tn_numel(t), piece = (numel + size - 1) / size;
    tn_tensor *flat = tn_reshape(t, (int64_t[]){-1}, 1);
    tn_tensor *padded = tn_pad(flat, (int64_t[]){0, size * piece - numel}, 2, 0);
    tn_tensor *parts = tn_group_all_to_all_tensor(g, tn_reshape(padded, (int64_t[]){size, piece}, 2));
    tn_tensor *sum = tn_select(parts, 0, 0);
    for (int64_t r = 1; r < size; r++)
        sum = tn_add(sum, tn_select(parts, 0, r));
    tn_tensor *all = tn_reshape(tn_group_all_gather_tensor(g, sum), (int64_t[]){-1}, 1);
    result = tn_reshape(tn_slice(all, 0, 0, numel, 1), tn_shape(t), tn_rank(t));
    return tn_keep(result);
}
