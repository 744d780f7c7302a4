/* reference.h — values of nodes computed in f64 by the definitions of their ops: what devices are compared with. */
#ifndef TN_REFERENCE_H
#define TN_REFERENCE_H

#include "graph/graph.h"

/* Values that are known by node; add inputs with other values than their buffers hold to ask "what if". */
typedef struct tn_reference_values {
    struct tn_reference_entry {
        const tn_node *node;
        double *values; /* numel of them, owned */
    } * entries;
    size_t count, capacity;
} tn_reference_values;

/* The values of n, in row-major order: valid until the next call with `v`. Composed nodes go through their expansion,
 * nodes that have been computed and have forgotten their inputs through what their buffers hold. No rounding to the
 * nodes' float types takes place on the way; integers are exact up to 2^53. */
tn_status tn_reference_of(tn_reference_values *v, tn_node *n, const double **out);
/* Makes `values` (numel doubles, copied) those of n, in place of what it has. */
tn_status tn_reference_set(tn_reference_values *v, const tn_node *n, const double *values);
void tn_reference_free(tn_reference_values *v);

/* count elements of a dtype as doubles; f16, bf16 and whole blocks too. */
void tn_doubles_of(tn_dtype dtype, const void *from, int64_t count, double *to);

#endif
