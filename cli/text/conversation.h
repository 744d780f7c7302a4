/* conversation.h — the messages of a conversation: in memory, as a JSON file, and as a prompt by the model's template.
 * And the vocabulary that reads it. */
#ifndef TRUNNION_CLI_CONVERSATION_H
#define TRUNNION_CLI_CONVERSATION_H

#include "cli/cli.h"
#include "trunnion/json.h"
#include "trunnion/llm.h"
#include "trunnion/text.h"

/* A model's tokenizer, and where its parts are in a GGUF file, for messages. */
typedef struct vocabulary {
    const char *path;
    tn_tokenizer *tokenizer;
    int64_t place, template_place;
} vocabulary;

/* Fails if there are more tokens than rows of the embedding. */
tn_status vocabulary_open(vocabulary *v, const char *path, const tn_llm_facts *facts);
void vocabulary_close(vocabulary *v);

typedef struct conversation {
    tn_chat_message *messages; /* role and content are its own */
    int count, room;
    char *variables; /* NULL, or further variables of the template as JSON, its own */
} conversation;

/* Appends a message of `size` bytes; TN_ERR_ARGUMENT for a NUL byte among them. */
tn_status conversation_add(conversation *c, const char *role, const char *content, size_t size);
/* Removes `count` messages from `first` on. */
void conversation_remove(conversation *c, int first, int count);
void conversation_free(conversation *c);

/* Appends the messages of a JSON file: an array of {"role", "content"}, or an object that has it as "messages". content
 * is a text, or a list of {"type": "text", "text"}. "-" is standard input. Errors name the message. */
tn_status conversation_read(conversation *c, const char *path);
/* The same for JSON that was read; path: for messages. Messages before a faulty one stay. */
tn_status conversation_take(conversation *c, const tn_json *root, const char *path);
/* Writes such a file, whole or not at all. */
tn_status conversation_write(const conversation *c, const char *path);

/* Appends the tokens of the conversation as the model's chat template has it, up to where the answer begins. */
tn_status conversation_encode(const conversation *c, const vocabulary *v, tn_ids *out);
/* The same without the beginning of an answer. */
tn_status conversation_encode_whole(const conversation *c, const vocabulary *v, tn_ids *out);

/* ---- lines that a user types (line_editor.c) --------------------------------------------------------------------- */

typedef enum line_result { LINE_READ, LINE_END, LINE_INTERRUPTED, LINE_FAILED } line_result;

/* Between cli_stop_begin and cli_stop_end. Reads the next line of standard input into `line`, without its newline; a
 * prompt is shown on a terminal only. LINE_INTERRUPTED: a signal came, the line is lost; LINE_FAILED: an error was set.
 * One thread. */
line_result line_editor_read(const char *prompt, tn_bytes *line);
/* "libedit", or "none" */
const char *line_editor_name(void);
void line_editor_end(void);

#endif
