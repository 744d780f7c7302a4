/* sampling.h — the options of sampling that generate and chat share: a row each, with its range and its place in
 * tn_sampler_options. */
#ifndef TRUNNION_CLI_SAMPLING_H
#define TRUNNION_CLI_SAMPLING_H

#include "cli/cli.h"
#include "trunnion/text.h"

enum { CLI_OPTIONS_MOST = 64 };

/* Their lines of a help page. */
#define CLI_SAMPLING_HELP                                                                         \
    "      --greedy          always take the most probable token, without sampling\n"             \
    "      --temperature X   sampling temperature; lower is more predictable\n"                   \
    "                        (default 0.8)\n"                                                     \
    "      --top-k N         sample from the N most probable tokens (0: all)\n"                   \
    "                        (default 40)\n"                                                      \
    "      --top-p X         nucleus sampling: the smallest set of tokens with total\n"           \
    "                        probability X (default 0.95)\n"                                      \
    "      --min-p X         drop tokens with less than X times the probability of the\n"         \
    "                        most probable one (default 0.05)\n"                                  \
    "      --repeat-penalty X  divides positive logits of recent tokens (default 1: none)\n"      \
    "      --frequency-penalty X  subtracted from a recent token's logit for each\n"              \
    "                        occurrence (default 0)\n"                                            \
    "      --presence-penalty X  subtracted once from a recent token's logit (default 0)\n"       \
    "      --repeat-window N  how many recent tokens these three look at (default 64)\n"          \
    "      --dry-multiplier X  DRY: penalty for continuing a repetition (default 0: off)\n"       \
    "      --dry-base X      grows the DRY penalty by this factor for each repeated token\n"      \
    "                        (default 1.75)\n"                                                    \
    "      --dry-allowed-length N  repetitions shorter than this are free (default 2)\n"          \
    "      --dry-window N    how many recent tokens DRY looks at (default 4096)\n"                \
    "      --mirostat-tau X  mirostat 2: target of the tokens' mean surprise, in bits;\n"         \
    "                        turns off the defaults of top-k, top-p and min-p (default 0: off)\n" \
    "      --mirostat-eta X  its learning rate (default 0.1)\n"

typedef struct cli_sampling {
    tn_sampler_options options;
    uint32_t given; /* bit i: row i was set */
    bool greedy;
} cli_sampling;

/* The defaults of generate, chat and serve. */
void cli_sampling_begin(cli_sampling *s);
/* cli_parse with the options of sampling behind `own`. at: offset of the cli_sampling in *wishes. */
int cli_parse_with_sampling(const cli_command *c, int argc, char **argv, cli_options *o, const cli_option *own,
                            size_t at, void *wishes, int *status);
/* Takes an option by its name; false for a wrong value or name. */
bool cli_sampling_set(cli_sampling *s, const char *name, const char *value);
/* The name of an option that has no effect with --greedy and was given; NULL: none. */
const char *cli_sampling_conflict(const cli_sampling *s);
/* Fixes the seed: the given one, or a random one. */
void cli_sampling_seed(cli_sampling *s, const cli_options *o);
/* A sampler for texts of this tokenizer (NULL: DRY has no breakers). */
tn_status cli_sampling_make(const cli_sampling *s, const tn_tokenizer *t, tn_sampler **out);
void cli_sampling_list(const cli_sampling *s, FILE *to);

#endif
