/* op_engine.h — engines that compute single operations: another library's kernels in the place of ours.
 *
 * The device of such an engine ("engine:torch") has the host's memory and all kernels of the cpu. The planner asks the
 * engine for each node before it would be composed. A node that it takes is a value of its own: its inputs and its
 * result lie in memory, views of inputs are strides, and a command hands their addresses to the engine. What it does
 * not take is composed, or computed by the cpu's kernels in the same memory; placement reports that with the engine's
 * reason, and a device that was opened strictly refuses it. Gradients are nodes like any other, so training needs
 * nothing more. */
#ifndef TN_OP_ENGINE_H
#define TN_OP_ENGINE_H

#include "tensor/graph.h"

/* An input of a node: where its elements lie, in elements from the address that a run is given. */
typedef struct tn_engine_input {
    const tn_node *node; /* NULL: an optional input that is absent */
    int64_t stride[TN_MAX_RANK];
    bool constant; /* all elements are `value`, and no address is given */
    double value;
} tn_engine_input;

typedef struct tn_engine_op tn_engine_op; /* an operation that the engine has prepared; the engine's own */

typedef struct tn_op_engine {
    const char *backend; /* "engine:torch" */
    /* Does it compute this node? Else *why is the rest of a sentence that begins with the device's name; it lives for
     * ever. */
    bool (*takes)(const tn_node *n, const char **why);
    /* Prepares a node that it takes, with n->n_in inputs. The nodes live as long as the call. */
    tn_status (*make)(const tn_node *n, const tn_engine_input *in, tn_engine_op **out);
    /* pointers: the result, contiguous, and then the inputs; no result overlaps an input. One thread at a time for one
     * operation. Errors are the engine's, with its words. */
    tn_status (*run)(tn_engine_op *op, void *const *pointers);
    void (*free)(tn_engine_op *op); /* NULL is fine */
} tn_op_engine;

/* Supplied by engines/: ended by NULL. */
extern const tn_op_engine *const tn_op_engines[];

/* The engine of a device; NULL: it is none, or one that computes whole graphs. */
const tn_op_engine *tn_op_engine_of(const tn_device *d);

#endif
