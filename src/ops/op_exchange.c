/* op_exchange.c — exchanges with the other processes of a group as steps of a plan.
 *
 * group_post begins an exchange and group_await ends it, so the plan computes in between. The planner runs posts as
 * soon as their operands are there (TN_FACT_EXCHANGE). All ranks must run them in one order: each takes the one before
 * as `after`, which is not read. */
#include "ops/ops_common.h"

#include "trunnion/distributed.h"

/* group_post(x, after, lengths, group, received, number): what all ranks send, one after the other, complete after
 * group_await: `received` elements. group: a tn_group's address. lengths: bytes of x for each rank, which follow each
 * other; without it all of x goes to all, or if `received` is x's size, an equal piece of it to each. */
static tn_status infer_group_post(tn_infer *c) {
    c->dtype = (tn_dtype)c->in[0]->dtype;
    c->rank = 1;
    c->shape[0] = c->attrs->i[TN_GROUP_POST_RECEIVED];
    return TN_OK;
}
OP_CODE(group_post, .facts = TN_FACT_EXCHANGE, .class_ = TN_NATIVE, .infer = infer_group_post, .contiguous = 5,
        .keeps_half = true);

/* group_await(received, sent, after, group): 0, when the exchange is complete whose result is `received`. */
static tn_status infer_group_await(tn_infer *c) {
    c->dtype = TN_F32;
    c->rank = 0;
    return TN_OK;
}
OP_CODE(group_await, .facts = TN_FACT_EXCHANGE, .class_ = TN_NATIVE, .infer = infer_group_await, .keeps_half = true);

/* ---- sums over all ranks ----------------------------------------------------------------------------------------- */

/* What was posted, once it is complete. */
static tn_node *received_of(tn_build *b, tn_node *x, int64_t group, int64_t elements, int64_t number) {
    tn_node *posted = tn_b_group_post(b, x, NULL, NULL, group, elements, number);
    return tn_b_gated(b, posted, tn_b_group_await(b, posted, x, NULL, group));
}

/* Pieces of all ranks, added in the order of the ranks. */
static tn_node *add_pieces_of_ranks(tn_build *b, tn_node *pieces, int64_t count, int64_t piece) {
    tn_node *sum = NULL;
    for (int64_t rank = 0; rank < count; rank++) {
        tn_node *one = tn_b_slice(b, pieces, 0, rank * piece, (rank + 1) * piece, 1);
        sum = sum ? tn_b_add(b, sum, one) : one;
    }
    return sum;
}

/* group_sum(x, group, ranks, number): the sum of x over all ranks. If the ranks can divide it, each adds a piece, and
 * all gather the sums; otherwise each gets all and adds them. ranks: the group's size. A later group may have the
 * address of a closed one: the plan of another size must not be taken for its own. */
static tn_node *compose_group_sum(tn_build *b, const tn_node *n) {
    int64_t group = n->i[TN_GROUP_SUM_GROUP], number = 2 * n->i[TN_GROUP_SUM_NUMBER], all = tn_node_numel(n);
    int64_t size = n->i[TN_GROUP_SUM_RANKS];
    if (size == 1) return n->in[0];
    tn_node *flat = tn_b_row_major(b, tn_b_reshape(b, n->in[0], &all, 1)), *sum;
    if (all % size) {
        sum = add_pieces_of_ranks(b, received_of(b, flat, group, size * all, number), size, all);
    } else {
        sum = add_pieces_of_ranks(b, received_of(b, flat, group, all, number), size, all / size);
        sum = received_of(b, tn_b_row_major(b, sum), group, all, number + 1);
    }
    return tn_b_reshape(b, sum, n->shape, n->rank);
}
static tn_node *grad_group_sum(tn_build *b, const tn_node *n, tn_node *dy) {
    return tn_b_group_same(b, dy, n->i[TN_GROUP_SUM_GROUP]);
}
OP_CODE(group_sum, .to_float = true, .infer = tn_infer_float, .compose = compose_group_sum,
        .grad_first = grad_group_sum);

/* group_same(x, group): x, whose gradient is the sum over all ranks. */
static tn_node *compose_group_same(TN_UNUSED tn_build *b, const tn_node *n) { return n->in[0]; }
static tn_node *grad_group_same(tn_build *b, const tn_node *n, tn_node *dy) {
    tn_group *g = (tn_group *)(intptr_t)n->i[TN_GROUP_SAME_GROUP];
    return tn_b_group_sum(b, dy, (int64_t)(intptr_t)g, tn_group_size(g), tn_group_next_number(g));
}
OP_CODE(group_same, .to_float = true, .infer = tn_infer_float, .compose = compose_group_same,
        .grad_first = grad_group_same);

/* ---- tensors of which each rank keeps a part --------------------------------------------------------------------- */

static int64_t numel_of(const tn_node *n, int64_t ranks, int64_t *piece) {
    int64_t all = tn_node_numel(n);
    *piece = (all + ranks - 1) / ranks;
    return all;
}

/* group_whole(part, gate, group, ranks, number, shape): the tensor whose elements all ranks keep in equal parts, in the
 * order of the ranks; the last ones end with padding. gate: computed before, not read. The planner computes it just
 * before its first use, and the backward pass computes it again (autograd.c), so that it is kept by neither. */
static tn_status infer_group_whole(tn_infer *c) {
    const int64_t *i = c->attrs->i;
    c->dtype = (tn_dtype)c->in[0]->dtype;
    c->rank = (int)i[TN_GROUP_WHOLE_SHAPE];
    for (int d = 0; d < c->rank; d++)
        c->shape[d] = i[TN_GROUP_WHOLE_SHAPE + 1 + d];
    return TN_OK;
}
static tn_node *compose_group_whole(tn_build *b, const tn_node *n) {
    int64_t size = n->i[TN_GROUP_WHOLE_RANKS], piece, all = numel_of(n, size, &piece);
    tn_node *part = tn_b_row_major(b, n->in[0]);
    tn_node *posted = tn_b_group_post(b, part, n->in[1], NULL, n->i[TN_GROUP_WHOLE_GROUP], size * piece,
                                      2 * n->i[TN_GROUP_WHOLE_NUMBER]);
    tn_node *complete = tn_b_group_await(b, posted, part, NULL, n->i[TN_GROUP_WHOLE_GROUP]);
    tn_node *whole = tn_b_slice(b, tn_b_gated(b, posted, complete), 0, 0, all, 1);
    return tn_b_reshape(b, whole, n->shape, n->rank);
}
static tn_node *grad_group_whole(tn_build *b, const tn_node *n, tn_node *dy) {
    tn_group *g = (tn_group *)(intptr_t)n->i[TN_GROUP_WHOLE_GROUP];
    return tn_b_group_part(b, dy, (int64_t)(intptr_t)g, tn_group_size(g), tn_group_next_number(g));
}
OP_CODE(group_whole, .facts = TN_FACT_WHOLE, .infer = infer_group_whole, .compose = compose_group_whole,
        .grad_first = grad_group_whole, .keeps_half = true);

/* group_part(x, group, ranks, number): this rank's part of the sum of x over all ranks. */
static tn_status infer_group_part(tn_infer *c) {
    c->dtype = (tn_dtype)c->in[0]->dtype;
    c->rank = 1;
    (void)numel_of(c->in[0], c->attrs->i[TN_GROUP_PART_RANKS], &c->shape[0]);
    return TN_OK;
}
static tn_node *compose_group_part(tn_build *b, const tn_node *n) {
    int64_t size = n->i[TN_GROUP_PART_RANKS], piece, all = numel_of(n->in[0], size, &piece);
    tn_node *flat = tn_b_reshape(b, n->in[0], &all, 1);
    if (all < size * piece) flat = tn_b_pad(b, flat, (int64_t[]){0, size * piece - all}, 2, 0);
    flat = tn_b_row_major(b, flat);
    tn_node *pieces = received_of(b, flat, n->i[TN_GROUP_PART_GROUP], size * piece, 2 * n->i[TN_GROUP_PART_NUMBER]);
    return add_pieces_of_ranks(b, pieces, size, piece);
}
static tn_node *grad_group_part(tn_build *b, const tn_node *n, tn_node *dy) {
    tn_group *g = (tn_group *)(intptr_t)n->i[TN_GROUP_PART_GROUP];
    const tn_node *x = n->in[0];
    return tn_b_group_whole(b, dy, NULL, (int64_t)(intptr_t)g, tn_group_size(g), tn_group_next_number(g), x->shape,
                            x->rank);
}
OP_CODE(group_part, .infer = infer_group_part, .compose = compose_group_part, .grad_first = grad_group_part,
        .keeps_half = true);
