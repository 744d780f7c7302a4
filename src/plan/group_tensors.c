/* group_tensors.c — tensors between the processes of a group (distributed.h), at once and as steps of a plan. */

#include "gen/ops_build.h"
#include "plan/native.h"
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

/* ---- as steps of a plan ------------------------------------------------------------------------------------------ */

static void run_group_post(tn_native *n, void *const *pointers) {
    tn_group_post(n->process_group, &n->posted, pointers[1], pointers[3], pointers[0]);
}

tn_status tn_make_group_post(const tn_graph_plan *g, const tn_group *group, tn_native *n, size_t *workspace) {
    const tn_value *post = &g->values[group->lead];
    n->run = run_group_post;
    n->process_group = (void *)(intptr_t)post->node->i[TN_GROUP_POST_GROUP]; /* an address; fits an attribute */
    const tn_node *x = g->values[post->in[0]].node;
    size_t size = (size_t)tn_group_size(n->process_group);
    bool divides = size > 1 && post->in[2] < 0 && post->node->i[TN_GROUP_POST_RECEIVED] == tn_node_numel(x);
    n->posted = (tn_group_step){.number = post->node->i[TN_GROUP_POST_NUMBER],
                                .bytes = tn_node_bytes(x) / (divides ? size : 1),
                                .divides = divides};
    *workspace = 0;
    return TN_OK;
}

static void run_group_await(tn_native *n, void *const *pointers) {
    tn_group_await(n->process_group, pointers[1]);
    *(float *)pointers[0] = 0;
}

tn_status tn_make_group_await(const tn_graph_plan *g, const tn_group *group, tn_native *n, size_t *workspace) {
    n->run = run_group_await;
    n->process_group = (void *)(intptr_t)g->values[group->lead].node->i[TN_GROUP_AWAIT_GROUP];
    *workspace = 0;
    return TN_OK;
}

static tn_status check_step(const tn_group *g, const tn_tensor *t, const char *what) {
    TRY(check_tensor(g, t, what, TN_MAX_RANK));
    if (tn_numel(t) == 0) return tn_fail(TN_ERR_SHAPE, "%s: the tensor has no elements", what);
    return tn_device_of(t)->is_cpu ? TN_OK : tn_fail(TN_ERR_DEVICE, "%s: the tensor must be on the cpu", what);
}

/* A new handle to the value that has to be computed first: of what was received, that the exchange is complete. */
static tn_tensor *step_before(const tn_tensor *after) {
    if (!after) return NULL;
    tn_node *n = tn_tensor_node(after);
    return tn_tensor_new(tn_node_retain(tn_op_has(n, TN_FACT_GATE) ? n->in[1] : n));
}

static tn_tensor *post(tn_group *g, const tn_tensor *t, const tn_tensor *lengths, int64_t received,
                       const tn_tensor *after) {
    tn_attrs attrs = {.n_i = 3, .i = {(int64_t)(intptr_t)g, received, 2 * tn_group_next_number(g)}};
    AUTO_TENSOR tn_tensor *before = step_before(after);
    return tn_record(TN_OP_GROUP_POST, (const tn_tensor *[]){t, before, lengths}, 3, &attrs);
}

tn_tensor *tn_group_post_scatter(tn_group *g, const tn_tensor *t, const int64_t *lengths, const tn_tensor *after) {
    tn_status s = check_step(g, t, "tn_group_post_scatter");
    if (s == TN_OK) s = tn_need(lengths, "tn_group_post_scatter: lengths");
    int64_t size = tn_group_size(g), sum = 0;
    AUTO_FREE int64_t *bytes = s == TN_OK ? tn_mem_alloc((size_t)size * sizeof *bytes) : NULL;
    for (int64_t i = 0; bytes && i < size; i++) {
        sum += lengths[i];
        bytes[i] = lengths[i] * (int64_t)tn_dtype_size(tn_dtype_of(t));
        if (lengths[i] < 0) s = tn_fail(TN_ERR_SHAPE, "tn_group_post_scatter: a length is negative");
    }
    if (s == TN_OK && !bytes) s = TN_ERR_MEMORY;
    if (s == TN_OK && sum != tn_numel(t))
        s = tn_fail(TN_ERR_SHAPE, "tn_group_post_scatter: the lengths add up to %lld, but the tensor has %lld elements",
                    (long long)sum, (long long)tn_numel(t));
    AUTO_TENSOR tn_tensor *table = s == TN_OK ? (tn_from_data)(bytes, &size, 1, TN_I64) : NULL;
    return table ? post(g, t, table, tn_max64(size * lengths[tn_group_rank(g)], 1), after) : tn_tensor_error(s);
}

tn_tensor *tn_group_post_all_gather(tn_group *g, const tn_tensor *t, const tn_tensor *after) {
    tn_status s = check_step(g, t, "tn_group_post_all_gather");
    return s == TN_OK ? post(g, t, NULL, tn_group_size(g) * tn_numel(t), after) : tn_tensor_error(s);
}

tn_tensor *tn_group_receive(tn_group *g, const tn_tensor *posted, const tn_tensor *sent, const tn_tensor *after) {
    tn_status s = check_step(g, posted, "tn_group_receive");
    if (s == TN_OK) s = check_step(g, sent, "tn_group_receive");
    if (s != TN_OK) return tn_tensor_error(s);
    tn_attrs attrs = {.n_i = 1, .i = {(int64_t)(intptr_t)g}};
    AUTO_TENSOR tn_tensor *before = step_before(after);
    tn_tensor *complete = tn_record(TN_OP_GROUP_AWAIT, (const tn_tensor *[]){posted, sent, before}, 3, &attrs);
    if (tn_status_of(complete) != TN_OK) return complete;
    tn_tensor *received = tn_record(TN_OP_GATED, (const tn_tensor *[]){posted, complete}, 2, NULL);
    tn_free(complete);
    return received;
}

/* ---- tensor parallelism ------------------------------------------------------------------------------------------ */

static tn_tensor *summed(const tn_group *g, const tn_tensor *x, const char *what, int op, const tn_attrs *attrs) {
    tn_status s = check_step(g, x, what);
    return s == TN_OK ? tn_record(op, &x, 1, attrs) : tn_tensor_error(s);
}

tn_tensor *tn_group_sum_forward(tn_group *g, const tn_tensor *x) {
    tn_attrs attrs = {.n_i = 3, .i = {(int64_t)(intptr_t)g, tn_group_size(g), g ? tn_group_next_number(g) : 0}};
    return summed(g, x, "tn_group_sum_forward", TN_OP_GROUP_SUM, &attrs);
}

tn_tensor *tn_group_sum_backward(tn_group *g, const tn_tensor *x) {
    tn_attrs attrs = {.n_i = 1, .i = {(int64_t)(intptr_t)g}};
    return summed(g, x, "tn_group_sum_backward", TN_OP_GROUP_SAME, &attrs);
}

/* ---- parameters divided among the ranks -------------------------------------------------------------------------- */

tn_tensor *tn_group_whole(tn_group *g, const tn_tensor *part, const int64_t *shape, int rank) {
    tn_status s = check_step(g, part, "tn_group_whole");
    if (s == TN_OK && rank > 0) s = tn_need(shape, "tn_group_whole: shape");
    if (s == TN_OK && (rank < 0 || rank > TN_MAX_RANK))
        s = tn_fail(TN_ERR_SHAPE, "tn_group_whole: rank %d; must be 0 to %d", rank, TN_MAX_RANK);
    int64_t size = tn_group_size(g), all = 1;
    tn_attrs attrs = {.n_i = (uint8_t)(4 + rank), .i = {(int64_t)(intptr_t)g, size, 0, rank}};
    for (int d = 0; s == TN_OK && d < rank; d++) {
        attrs.i[4 + d] = shape[d];
        all = shape[d] > 0 && all <= INT64_MAX / shape[d] ? all * shape[d] : 0;
    }
    if (s == TN_OK && (all == 0 || (all - 1) / size + 1 != tn_numel(part)))
        s = tn_fail(TN_ERR_SHAPE,
                    "tn_group_whole: a part has %lld elements; it must be the %lldth part of all, rounded up",
                    (long long)tn_numel(part), (long long)size);
    if (s != TN_OK) return tn_tensor_error(s);
    attrs.i[2] = tn_group_next_number(g);
    return tn_record(TN_OP_GROUP_WHOLE, (const tn_tensor *[]){part, NULL}, 2, &attrs);
}
