/* indices.h — comparing indices with their range, when an op is recorded (index_check.c) and when a plan runs
 * (core/index_check.c). */
#ifndef TN_INDICES_H
#define TN_INDICES_H

#include "graph/graph.h"

/* Indices in host memory. */
typedef struct tn_index_list {
    const char *first; /* element 0, …, 0 */
    tn_dtype dtype;
    int rank;
    bool dense;                                             /* elements lie in order without gaps */
    int64_t count, shape[TN_MAX_RANK], stride[TN_MAX_RANK]; /* strides in elements */
} tn_index_list;

bool tn_indices_inside(const tn_index_list *list, const tn_index_range *range);
/* TN_ERR_ARGUMENT with the first index outside: "gather: index 7, element 3 of [4], is out of bounds: …". */
tn_status tn_indices_refuse(int op, const tn_index_list *list, const tn_index_range *range);
/* What x was made of by casts between integers that keep every value. */
const tn_node *tn_index_source(const tn_node *x);

#endif
