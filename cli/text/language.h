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

#define CLI_CACHES "f16|bf16|f32|q8_0" /* words of --cache, by tn_llm_cache */
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

#endif
