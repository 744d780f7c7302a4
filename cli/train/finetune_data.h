/* finetune_data.h — texts to fine-tune on: read from a file, as tokens with marks on the answers. */
#ifndef TRUNNION_CLI_FINETUNE_DATA_H
#define TRUNNION_CLI_FINETUNE_DATA_H

#include "cli/text/conversation.h"
#include "trunnion/finetune.h"

typedef struct finetune_text {
    size_t first; /* in ids and answer */
    int64_t count;
} finetune_text;

/* Begins as {0}. */
typedef struct finetune_data {
    tn_ids ids;
    tn_bytes answer; /* a byte a token: 1 if it is to be predicted */
    finetune_text *texts;
    int64_t count, room;
    int64_t truncated; /* texts that were longer than the context */
    int64_t left_out;  /* texts without an answer within the context */
    uint64_t hash;     /* of all ids and marks, for checkpoints */
} finetune_data;

/* Appends the texts of a file. NAME.jsonl: a JSON object a line, with "messages" (the model's chat template; answers
 * are those of the assistant), "prompt" and "completion", or "text". Any other name: plain text, in pieces of the
 * context. context: most tokens of a text. Errors name file and line. */
tn_status finetune_data_read(finetune_data *d, const char *path, const vocabulary *v, int64_t context);
tn_finetune_example finetune_data_at(const finetune_data *d, int64_t i);
void finetune_data_free(finetune_data *d);

#endif
