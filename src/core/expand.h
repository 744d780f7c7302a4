/* expand.h — what autograd shares with the planner, and its helpers: a composed op's composition, made once and kept
 * with the node (tn_expand_node); gradients of parts (slice_gradients.c).
 *
 * Half precision: a composition of f16 or bf16 would round after every step, and its range would end at 65504 in the
 * middle of a formula. So op(x) is expanded to cast(op(cast(x, f32)), f16): every step is f32, and the gradient is that
 * of the f32 form. This holds for every op that does not declare `keeps_half`. */
#ifndef TN_EXPAND_H
#define TN_EXPAND_H

#include "graph/graph.h"
#include "ops/ops_build.h"

/* Is n in f16 or bf16, but computed in f32 and rounded once? Compositions always are; primitives only where they are
 * differentiated, because their kernels round once anyway. */
bool tn_is_widened(const tn_node *n);
/* Makes n->expansion for a composed node that has none yet. The planner computes n with it and autograd differentiates
 * through it, so it requires gradients exactly when n does, whatever the mode is now. Nodes of f16 and bf16 that are
 * computed in f32 have one too. */
tn_status tn_expand_node(tn_node *n);
/* The composition that computes n: a node of n's shape and dtype, borrowed from the build. */
tn_node *tn_compose(tn_build *b, const tn_node *n);

/* x + y, where both are neighbouring parts of one tensor with zeros around them: without adding. NULL when they are not
 * (or on a failure of the build). */
tn_node *tn_join_slice_gradients(tn_build *b, tn_node *x, tn_node *y);

#endif
