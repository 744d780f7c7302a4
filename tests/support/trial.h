/* trial.h — one run of one of an op's cases (check/check.h): values made, tensors of them, the op applied.
 *
 * What tests of the op table share, whatever device they run on. */
#ifndef TN_TRIAL_H
#define TN_TRIAL_H

#include "check/check.h"
#include "trunnion/tensor.h"

typedef struct trial {
    int op;
    const tn_case *c;
    uint64_t seed;
    double *values[TN_CASE_INPUTS];
    void *blocks[TN_CASE_INPUTS]; /* of inputs that are quantised in blocks */
    tn_tensor *in[TN_CASE_INPUTS];
} trial;

void trial_make_values(trial *t);
/* strided: seen through views that run backwards through memory */
void trial_make_tensors(trial *t, bool strided);
void trial_free_values(trial *t);
tn_tensor *trial_apply(const trial *t);

int64_t trial_numel(const int64_t *shape, int rank);
tn_tensor *trial_tensor(const double *values, const int64_t *shape, int rank, tn_dtype t);
double *trial_doubles(const tn_tensor *x); /* all elements, for free() */

#endif
