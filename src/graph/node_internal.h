/* node_internal.h — what graph/ and core/ share beyond graph.h, and the numbers of the ops that
 * tensors themselves are made of. */
#ifndef TN_NODE_INTERNAL_H
#define TN_NODE_INTERNAL_H

#include "graph/graph.h"
#include "graph/op_ids.h"

enum { TN_OP_NONE = UINT16_MAX }; /* op of data and error nodes */

tn_node *tn_node_number(double v);              /* a rank-0 f32 that does not raise dtypes; the caller's reference */
tn_node *tn_node_cast(tn_node *x, tn_dtype to); /* a number keeps all its digits; the caller's reference */
bool tn_node_computed(const tn_node *n);        /* its root has a buffer */
void tn_node_exchange_input(tn_node *n, int input, tn_node *by); /* retains `by` */
void tn_node_forget_inputs(tn_node *n);         /* a computed node without gradient needs its history no more */
/* A reference has gone, and so many are left: is it needed yet? listed: the node was pending before. */
void tn_node_after_release(tn_node *n, int32_t left, bool listed);
/* A handle's, storage's or build's reference goes. What it left may be another thread's to free at once, so the node is
 * looked at before. */
static inline void tn_node_unpin(tn_node *n) {
    bool listed = n->recorder != NULL;
    tn_node_count(n, &n->handles, -1);
    int32_t left = tn_node_count(n, &n->refs, -1) - 1;
    if (left < 2 || !listed) tn_node_after_release(n, left, listed);
}
void tn_strides_contiguous(const int64_t *shape, int rank, int64_t *stride);
void tn_grad_slot_release(tn_grad_slot *s);
void tn_grad_slot_close(tn_grad_slot *s); /* the same by the leaf's storage, whose gradient goes with it */
size_t tn_recorder_limit(const tn_recorder *r);
/* Between the two a gradient is recorded. No automatic flush happens in between, because half a gradient would turn all
 * that the other half needs into results. A long gradient raises the limit for the following step. begin returns the
 * `before` of end; count: the recorder's at begin. */
bool tn_recorder_begin_gradient(tn_recorder *r);
void tn_recorder_end_gradient(tn_recorder *r, bool before, size_t count);
/* after a flush: gives back the references to leaves that it has in hand */
void tn_recorder_merge_counts(void);
bool tn_node_can_vary(const tn_node *n);                     /* may what it is made with come with each run? */
tn_site *tn_recorder_site(tn_recorder *r, const tn_node *n); /* NULL: none is noted */
void tn_recorder_trim(void); /* frees what it keeps for reuse, and forgets what it learned of the caller's lines */
void tn_recorder_drop(void); /* frees all that this thread's recorder holds (thread exit, leak tests) */
void tn_storage_release(tn_storage *s);
void tn_storage_restore(tn_storage *s); /* a state's pending write is given up: its value is what lies at home */
/* A launch wrote a state in place, without recording. next: the state's new node, whose reference is taken over; the
 * old one is marked as overwritten. NULL: only handles hold the old node, and it stays. */
void tn_storage_moved(tn_storage *s, tn_node *next);
void tn_storage_lost(tn_storage *s, tn_node *error); /* its value is not known; the reference is taken over */

#endif
