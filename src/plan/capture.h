/* capture.h — the changes on the host that a launch of a captured graph makes, besides values on the device.
 *
 * Recording a training step changes more than tensors: the optimizer's step count, collected gradients, write counts of
 * states, the position in the random stream. A launch records nothing, so the graph makes these changes itself;
 * afterwards everything is as if the step had been recorded again. */
#ifndef TN_CORE_CAPTURE_H
#define TN_CORE_CAPTURE_H

#include "plan/plan.h"

/* One registered hook; `nodes` until the capture ends, `runtime scalars` from then on. */
typedef struct captured_hook {
    tn_capture_hook hook;
    tn_node **nodes; /* retained */
    int *scalars;    /* of the graph; -1: the recording does not use it */
    double *values;
    int count;
} captured_hook;

/* A leaf whose gradient the recording reads, replaces or clears. */
typedef struct captured_gradient {
    tn_grad_slot *slot;
    bool cleared;   /* the recording itself clears it first */
    bool earlier;   /* it reads or adds to a gradient from before */
    int output;     /* of the plan; -1: none */
    tn_node *fixed; /* a gradient that was computed before the capture, the same each time */
    uint8_t dtype, rank;
    int64_t shape[TN_MAX_RANK];
} captured_gradient;

/* A state that the recording writes. */
typedef struct captured_state {
    tn_storage *storage;
    tn_node *next; /* during a launch: the new value's node, where others hold the old one */
} captured_state;

typedef struct tn_captured_host {
    captured_hook *hooks;
    captured_gradient *gradients;
    captured_state *states;
    size_t hook_count, hook_capacity, gradient_count, gradient_capacity, state_count, state_capacity;
    uint64_t random_start, random_used; /* numbers that the recording draws */
    uint64_t reseeds;                   /* of the recorder when the capture began */
    tn_status failed;                   /* memory ran out where no status could be returned */
} tn_captured_host;

void tn_captured_host_free(tn_captured_host *h);
/* Notes a use of a gradient, before it happens. */
typedef enum tn_gradient_use { TN_GRADIENT_READ, TN_GRADIENT_ADDED, TN_GRADIENT_CLEARED } tn_gradient_use;
tn_status tn_captured_gradient_note(tn_captured_host *h, tn_grad_slot *slot, tn_gradient_use use);

#endif
