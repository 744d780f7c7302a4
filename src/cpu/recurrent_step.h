/* recurrent_step.h — a step of a recurrent layer, between recurrent_walk.c and functions of each instruction set. */
#ifndef TN_RECURRENT_STEP_H
#define TN_RECURRENT_STEP_H

#include <stdbool.h>
#include <stdint.h>

typedef struct recurrent_step {
    int64_t hidden;
    bool last;               /* backward: no step after this one gives it a gradient */
    const float *x, *from_h; /* rows of gates · hidden: sums of the input, products with the state. LSTM backward: x are
                              * the sums of both. */
    const float *bias;       /* NULL: none */
    const float *h, *c;      /* rows of hidden: the states before the step */
    float *h_out, *c_out;    /* … and after it; c_out is read backward */
    const float *dh, *dc;    /* backward: gradients of the states after the step, from the result */
    const float *from_later; /* backward: of h by the step after this one */
    float *carry;     /* backward: of c by the step after this one, then by this one; GRU: of h, without product */
    float *d_x, *d_h; /* backward: gradients of the sums; GRU: of x's and of from_h */
} recurrent_step;

#endif
