/* language.h — what the subcommands that run a language model share: opening it with
 * its tokenizer, and texts as ids. */
#ifndef TRUNNION_CLI_LANGUAGE_H
#define TRUNNION_CLI_LANGUAGE_H

#include "cli/cli.h"
#include "trunnion/llm.h"
#include "trunnion/text.h"

typedef struct cli_language {
    int code; /* what the subcommand returns when it could not be opened */
    tn_device *device;
    tn_selection selection; /* how it was chosen */
    tn_llm *model;
    tn_tokenizer *tokenizer;
} cli_language;

/* Opens the device that o asks for, the model (a GGUF file or a folder) and, with `text`, its tokenizer. false after a
 * message; close in either case. */
bool cli_language_open(cli_language *l, const cli_options *o, const char *path, const tn_llm_options *options,
                       bool text);

/* Memory that a vocabulary takes only while it is read goes back to the system. Before anything is opened; where the C
 * library cannot, nothing happens. */
void cli_return_memory(void);

/* Options of a type T with the members cache and value_cache; values in the order of tn_llm_cache. */
#define CLI_CACHES "f16|bf16|f32|q8_0"
#define CLI_CACHE_OPTIONS(T)                                                   \
    CLI_CHOICE("cache", 0, T, cache, CLI_CACHES, TN_LLM_CACHE_F16),            \
        CLI_CHOICE("cache-type", 0, T, cache, CLI_CACHES, TN_LLM_CACHE_F16),   \
        CLI_CHOICE("cache-type-k", 0, T, cache, CLI_CACHES, TN_LLM_CACHE_F16), \
        CLI_CHOICE("cache-type-v", 0, T, value_cache, CLI_CACHES, TN_LLM_CACHE_F16)
#define CLI_CACHE_HELP                                                              \
    "      --cache TYPE      type of the key/value cache: f16, bf16, f32 or q8_0\n" \
    "                        (default f16); q8_0: on the processor only.\n"         \
    "                        --cache-type and --cache-type-k are the same\n"        \
    "      --cache-type-v TYPE  type of the values: f16, bf16, f32 or q8_0\n"       \
    "                        (default: that of the keys)\n"
void cli_language_close(cli_language *l);

/* Appends ids that are parted by commas and blanks. */
tn_status cli_read_ids(const char *text, tn_ids *out);

/* What the open model takes, as the library estimates it. */
tn_status cli_language_estimate(const cli_language *l, int64_t context, tn_memory_estimate *out);

/* Appends a file's bytes; "-" is standard input. The failure is the library's error; else out->data is a text, if an
 * empty one. */
tn_status cli_read_file(const char *path, tn_bytes *out);

/* The same for what an argument says: itself, or standard input for "-". */
tn_status cli_take_text(const char *argument, tn_bytes *out);

void cli_json_ids(cli_json *j, const char *key, const tn_ids *ids);

/* ---- the next device for a language model whose own failed ------------------------------------------------------- */

enum { CLI_MOST_MOVES = 16 };

typedef struct cli_moves {
    const cli_options *options;      /* of the command: how devices are opened */
    char failed[CLI_MOST_MOVES][32]; /* ids of devices that failed */
    int count;
    char reason[TN_REASON_BYTES]; /* of the last one */
} cli_moves;

/* Can another device be tried after a failure with this status? */
bool cli_moves_on(tn_status s);

/* Notes that `device` failed with the text of tn_error(). The caller then frees what it has on the device. */
void cli_moves_note(cli_moves *m, const tn_device *device);

/* Opens the next device in *out, makes it the thread's current one and says so in a line: another hardware
 * device of the list, then the cpu. Errors: `why`, with the noted text, if no device is left. */
tn_status cli_moves_next(cli_moves *m, tn_status why, tn_device **out);

/* ---- speculative decoding in the subcommands that generate ------------------------------------------------------- */

#define CLI_DRAFT_HELP                                                                         \
    "      --draft MODEL     guess tokens ahead with a smaller model of the same tokenizer,\n" \
    "                        or, with \"ngrams\", from the text itself: the text stays the\n"  \
    "                        same, only the time changes\n"                                    \
    "      --draft-tokens N  tokens that are guessed at once, 1 to 15 (default 7)\n"

typedef struct cli_draft {
    const char *path; /* NULL: no draft; "ngrams" or a model */
    int64_t tokens;   /* 0: not given */
    tn_llm *model;
    tn_llm *others[TN_LLM_BATCH]; /* of the same weights, one for each further conversation */
    int count;
    char found[CLI_PATH];
} cli_draft;

/* What is wrong with the options, or NULL. */
const char *cli_draft_conflict(const cli_draft *d);
/* Finds the model by name. false after a message. */
bool cli_draft_find(cli_draft *d);
/* Opens the draft's model, if it has one, on the device and with the context of m, checks that its tokenizer has the
 * same tokens as `words` (may be NULL: not checked), and makes it the draft of m. */
tn_status cli_draft_open(cli_draft *d, tn_llm *m, tn_device *device, const tn_tokenizer *words);
/* The same draft for a further conversation, at most TN_LLM_BATCH of them. Each gets its own sequence of the draft's
 * model: a shared one would be computed again whenever another conversation guesses. */
tn_status cli_draft_add(cli_draft *d, tn_llm *m);
/* To be called after its models are freed. */
void cli_draft_close(cli_draft *d);

#endif
