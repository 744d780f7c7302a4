/* generate_seq2seq.h — generation with an encoder-decoder model, for `trunnion generate`. */
#ifndef TRUNNION_CLI_SEQ2SEQ_H
#define TRUNNION_CLI_SEQ2SEQ_H

#include "cli/cli.h"
#include "cli/text/sampling.h"

typedef struct seq2seq_wishes {
    const cli_options *common;
    const cli_sampling *sampling;
    const char *model, *prompt, *file, *ids; /* one of the last three */
    const char *from, *to;                   /* tokens of languages, or NULL: the model's own */
    int64_t tokens;                          /* of the answer; -1: until it ends or is full */
    int64_t context;                         /* 0: as many as tokens */
} seq2seq_wishes;

/* Answers the text, as `generate` does for decoders. Returns the exit status. */
int seq2seq_generate(const seq2seq_wishes *w);

#endif
