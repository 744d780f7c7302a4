/* op_exchange.c — exchanges with the other processes of a group as steps of a plan.
 *
 * group_post begins an exchange and group_await ends it, so the plan computes in between. The planner runs posts as
 * soon as their operands are there (TN_FACT_EXCHANGE). All ranks must run them in one order: each takes the one before
 * as `after`, which is not read. */
#include "ops/ops_common.h"

/* group_post(x, after, lengths, group, received): what all ranks send, one after the other, complete after group_await:
 * `received` elements. group: a tn_group's address. lengths: bytes of x for each rank, which follow each other; without
 * it all of x goes to all. */
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
