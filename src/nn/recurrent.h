/* recurrent.h — one direction of a recurrent layer over all steps of its sequences: for the layers of nn and the
 * operators of ONNX. */
#ifndef TN_NN_RECURRENT_H
#define TN_NN_RECURRENT_H

#include "trunnion/tensor.h"

/* What a step computes: gates is 1 for an RNN, 3 for a GRU, 4 for an LSTM, in PyTorch's order. */
typedef struct tn_recurrent_cell {
    const char *name;
    int64_t gates, hidden;
    bool relu; /* RNN: instead of tanh */
} tn_recurrent_cell;

/* weight_ih [gates · hidden, features], weight_hh [gates · hidden, hidden]; biases [gates · hidden] may be NULL. */
typedef struct tn_recurrent_weights {
    tn_tensor *weight_ih, *weight_hh, *bias_ih, *bias_hh;
} tn_recurrent_weights;

/* h and, of an LSTM, c [batch, hidden]. */
typedef struct tn_recurrent_state {
    tn_tensor *h, *c;
} tn_recurrent_state;

/* What follows from the lengths, which are data: one plan serves all. */
typedef struct tn_recurrent_spans {
    tn_tensor *lengths, *number; /* [batch], i64: of each sequence, and its place in the batch; lengths NULL: whole */
    tn_tensor *within;           /* [time, batch, 1]: the step lies before the end of its sequence */
    tn_tensor *turned; /* [time · batch], i64: the row of the step at the mirrored place within the sequence's length */
} tn_recurrent_spans;

/* lengths [batch], i64, or NULL. Those outside of 0 to `steps` fail as indices do: here, or when they are computed. */
tn_recurrent_spans tn_recurrent_spans_of(const tn_tensor *lengths, int64_t steps);

/* x, whose steps begin at `first`, with `behind` behind the ends: what lies there, even NaN, has no influence. */
tn_tensor *tn_recurrent_cut(const tn_recurrent_spans *p, const tn_tensor *x, int64_t first, double behind);

/* x [time, batch, features] → [time, batch, hidden]; *last: the first state, then the last. */
tn_tensor *tn_recurrent_run(const tn_recurrent_cell *cell, const tn_recurrent_weights *w, const tn_tensor *x,
                            const tn_recurrent_spans *p, bool backward, tn_recurrent_state *last);

#endif
