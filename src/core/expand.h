/* expand.h — a composed op's composition, made once and kept with the node. */
#ifndef TN_EXPAND_H
#define TN_EXPAND_H

#include "graph/graph.h"

/* Makes n->expansion for a composed node that has none yet. The planner computes n with it and autograd differentiates
 * through it, so it requires gradients exactly when n does, whatever the thread's gradient mode is now. */
tn_status tn_expand_node(tn_node *n);

#endif
