/* drafting.h — speculative decoding in the subcommands that generate: --draft and --draft-tokens. */
#ifndef TRUNNION_CLI_DRAFTING_H
#define TRUNNION_CLI_DRAFTING_H

#include "cli/cli.h"
#include "trunnion/llm.h"
#include "trunnion/text.h"

#define CLI_DRAFT_HELP                                                                         \
    "      --draft MODEL     guess tokens ahead with a smaller model of the same tokenizer,\n" \
    "                        or, with \"ngrams\", from the text itself: the text stays the\n"  \
    "                        same, only the time changes\n"                                    \
    "      --draft-tokens N  tokens that are guessed at once, 1 to 15 (default 7)\n"

typedef struct cli_draft {
    const char *path; /* NULL: no draft; "ngrams" or a model */
    int64_t tokens;   /* 0: not given */
    tn_llm *model;
    char found[CLI_PATH];
} cli_draft;

/* What is wrong with the options, or NULL. */
const char *cli_draft_conflict(const cli_draft *d);
/* Finds the model by name. false after a message. */
bool cli_draft_find(cli_draft *d);
/* Opens the draft's model, if it has one, on the device and with the context of m, checks that its tokenizer has the
 * same tokens as `words` (may be NULL: not checked), and makes it the draft of m. */
tn_status cli_draft_open(cli_draft *d, tn_llm *m, tn_device *device, const tn_tokenizer *words);
/* The same draft for a further conversation. */
tn_status cli_draft_set(const cli_draft *d, tn_llm *m);
/* After the models whose draft it is. */
void cli_draft_close(cli_draft *d);

#endif
