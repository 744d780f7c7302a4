/* two_states.h — a model with two states and a step of training, for tests in which the step fails: afterwards each
 * state must be the one before or after it. */
#ifndef TEST_TWO_STATES_H
#define TEST_TWO_STATES_H

#include "test_support.h"

#include "trunnion/autograd.h"
#include "trunnion/ops.h"

enum { ROWS = 4, COLUMNS = 3, ELEMENTS = ROWS * COLUMNS };

typedef struct model {
    tn_tensor *weight, *momentum;           /* states; the handles of a failed step may be errors */
    tn_tensor *weight_seen, *momentum_seen; /* other handles on the same memory */
} model;

static inline tn_tensor *numbers(const int64_t *shape, int rank, double from) {
    float v[ELEMENTS * 2];
    int64_t count = 1;
    for (int d = 0; d < rank; d++)
        count *= shape[d];
    for (int64_t n = 0; n < count; n++)
        v[n] = (float)(from + 0.25 * (double)(n % 7));
    return tn_from_data(v, shape, rank, TN_F32);
}

static inline tn_status make_model(model *m) {
    m->weight = numbers((int64_t[]){ROWS, COLUMNS}, 2, -0.5);
    m->momentum = numbers((int64_t[]){ROWS, COLUMNS}, 2, 0.0);
    TRY(tn_make_state(m->weight));
    TRY(tn_make_state(m->momentum));
    TRY(tn_set_requires_grad(m->weight, true));
    m->weight_seen = tn_detach(m->weight);
    m->momentum_seen = tn_detach(m->momentum);
    return tn_eval(NULL, 0);
}

static inline void free_model(model *m) {
    tn_free(m->weight_seen);
    tn_free(m->momentum_seen);
    tn_free(m->weight);
    tn_free(m->momentum);
}

/* view_write: the weight is written once more, through a view. */
static inline tn_status update(model *m, bool view_write) {
    TN_NO_GRAD;
    tn_tensor *g = tn_grad(m->weight);
    tn_tensor *turned = tn_mul(m->momentum, tn_scalar(0.5));
    if (!g) g = tn_full(NULL, 0, 0.0, TN_F32);
    tn_copy_(m->momentum, tn_add(turned, g));
    tn_tensor *weight = tn_sub_(m->weight, tn_mul(m->momentum, tn_runtime_scalar(0.125)));
    return tn_status_of(view_write ? tn_mul_(tn_slice(m->weight, 0, 1, INT64_MAX, 2), tn_scalar(0.5)) : weight);
}

/* Forward, backward, two states written; the loss read. */
static inline tn_status train(model *m, bool view_write, float *loss_value) {
    TN_SCOPE;
    tn_tensor *x = numbers((int64_t[]){5, ROWS}, 2, 0.5);
    tn_tensor *y = tn_softmax(tn_matmul(x, m->weight), -1);
    tn_tensor *loss = tn_sum(tn_mul(y, numbers((int64_t[]){COLUMNS}, 1, 1.0)), TN_ALL, false);
    tn_status s = tn_backward(loss);
    if (s == TN_OK) s = update(m, view_write);
    if (s == TN_OK) s = tn_read(loss, loss_value, sizeof *loss_value);
    if (s == TN_OK) s = tn_status_of(m->weight);
    if (s == TN_OK) s = tn_status_of(m->momentum);
    return s;
}

#endif
