/* run_steps.h — `trunnion run --steps`: a network whose outputs are its inputs at the next run. */
#ifndef TRUNNION_CLI_RUN_STEPS_H
#define TRUNNION_CLI_RUN_STEPS_H

#include "cli/cli.h"
#include "trunnion/onnx.h"

enum { STEPS_MOST_PAIRS = 64 };

/* OUTPUT=INPUT; a * in both stands for the same text. */
typedef struct steps_pair {
    const char *from, *to;
} steps_pair;

typedef struct run_steps {
    int64_t count; /* how many runs; 0: the command was not asked for steps */
    steps_pair pairs[STEPS_MOST_PAIRS];
    int pair_count;                        /* 0: those that exporters use */
    const char *twice;                     /* an output or input that two pairs name; NULL: none */
    int *fed;                              /* [outputs] the input that an output is given to; -1: none */
    int ids, mask, places, branch, logits; /* inputs and an output that a language model has; -1: none */
    bool cached;                           /* a pair was found */
    int64_t batch;
    int64_t *tokens; /* [count][batch] what was chosen; NULL: it is no language model */
} run_steps;

/* "OUTPUT=INPUT" of argv, which is cut in two. */
bool steps_take_pair(void *steps, const char *arg);

/* Which outputs are fed to which inputs; an error where there are none. */
tn_status steps_begin(run_steps *s, const tn_onnx *m);

/* Inputs that were not given and that steps know how to begin with: empty caches, a mask of ones, places from the
 * caches' end on. extent: of an open dim that was named on the command line, or `otherwise`. */
tn_status steps_make_inputs(run_steps *s, const tn_onnx *m, tn_onnx_value **in,
                            int64_t (*extent)(void *ctx, const tn_onnx_info *info, int d, int64_t otherwise),
                            void *ctx);

/* After run number i: notes the chosen tokens and, unless it was the last run, makes inputs of outputs. */
tn_status steps_advance(run_steps *s, int64_t i, const tn_onnx *m, tn_onnx_value **in, tn_onnx_value **out);

void steps_put_text(const run_steps *s);
void steps_put_json(const run_steps *s, cli_json *j); /* the member `tokens` */
void steps_end(run_steps *s);

#endif
