/* expand.h — what autograd shares with the planner, and its helpers: a composed op's composition, made once and kept
 * with the node; gradients of parts (join.c). */
#ifndef TN_EXPAND_H
#define TN_EXPAND_H

#include "graph/graph.h"
#include "ops/ops_build.h"

/* Makes n->expansion for a composed node that has none yet. The planner computes n with it and autograd differentiates
 * through it, so it requires gradients exactly when n does, whatever the thread's gradient mode is now. */
tn_status tn_expand_node(tn_node *n);

/* x + y, where both are neighbouring parts of one tensor with zeros around them: without adding. NULL when they are not
 * (or on a failure of the build). */
tn_node *tn_join_parts(tn_build *b, tn_node *x, tn_node *y);

#endif
