/* conversation.c — messages: the list, its file, its prompt. */
#include "cli/text/conversation.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/text/language.h"
#include "trunnion/backend.h"
#include "trunnion/json.h"
#include "trunnion/text.h"

/* ---- vocabulary -------------------------------------------------------------------------------------------------- */

/* Where in a GGUF file the messages point. */
static tn_status find_places(vocabulary *v) {
    tn_gguf *file;
    TRY(tn_gguf_open(v->path, &file));
    v->place = tn_gguf_offset(tn_gguf_get(file, "tokenizer.ggml.tokens"));
    v->template_place = tn_gguf_offset(tn_gguf_get(file, "tokenizer.chat_template"));
    tn_gguf_close(file);
    return TN_OK;
}

/* A token without a row in the embedding could not be computed. */
static tn_status check_vocabulary(const vocabulary *v, const tn_llm_facts *facts) {
    if (tn_tokenizer_count(v->tokenizer) <= facts->vocabulary) return TN_OK;
    return tn_backend_fail(TN_ERR_FORMAT,
                           "'%s': byte %" PRId64 ": the vocabulary has %" PRId32 " tokens, but the embedding %" PRId64
                           " rows",
                           v->path, v->place, tn_tokenizer_count(v->tokenizer), facts->vocabulary);
}

tn_status vocabulary_open(vocabulary *v, const char *path, const tn_llm_facts *facts) {
    *v = (vocabulary){.path = path};
    TRY(cli_is_folder(path) ? TN_OK : find_places(v));
    TRY(tn_tokenizer_open(path, &v->tokenizer));
    return check_vocabulary(v, facts);
}

void vocabulary_close(vocabulary *v) {
    tn_tokenizer_free(v->tokenizer);
    *v = (vocabulary){0};
}

/* ---- the list ---------------------------------------------------------------------------------------------------- */

static tn_status out_of_memory(void) { return tn_backend_fail(TN_ERR_MEMORY, "conversation: out of memory"); }

static char *copy_text(const char *text, size_t size) {
    char *copy = malloc(size + 1);
    if (!copy) return NULL;
    memcpy(copy, text, size);
    copy[size] = 0;
    return copy;
}

static tn_status make_room(conversation *c) {
    if (c->count < c->room) return TN_OK;
    int room = c->room ? 2 * c->room : 16;
    tn_chat_message *more = realloc(c->messages, (size_t)room * sizeof *more);
    if (!more) return out_of_memory();
    c->messages = more;
    c->room = room;
    return TN_OK;
}

static void free_message(tn_chat_message m) {
    free((char *)(uintptr_t)m.role);
    free((char *)(uintptr_t)m.content);
}

tn_status conversation_add(conversation *c, const char *role, const char *content, size_t size) {
    if (size > 0 && memchr(content, 0, size))
        return tn_backend_fail(TN_ERR_ARGUMENT, "the prompt contains a NUL byte, which chat templates do not support");
    if (make_room(c) != TN_OK) return TN_ERR_MEMORY;
    tn_chat_message m = {copy_text(role, strlen(role)), copy_text(size ? content : "", size)};
    if (!m.role || !m.content) {
        free_message(m);
        return out_of_memory();
    }
    c->messages[c->count++] = m;
    return TN_OK;
}

void conversation_remove(conversation *c, int first, int count) {
    for (int i = first; i < first + count; i++)
        free_message(c->messages[i]);
    for (int i = first + count; i < c->count; i++)
        c->messages[i - count] = c->messages[i];
    c->count -= count;
}

void conversation_free(conversation *c) {
    conversation_remove(c, 0, c->count);
    free(c->messages);
    free(c->variables);
    *c = (conversation){0};
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

/* A text, or the texts of a list of parts, one behind the other. */
static tn_status read_content(const tn_json *v, const char *path, size_t index, tn_bytes *out) {
    if (tn_json_kind_of(v) == TN_JSON_STRING) return tn_bytes_append(out, tn_json_string(v, ""), tn_json_length(v));
    if (tn_json_kind_of(v) != TN_JSON_ARRAY)
        return tn_backend_fail(TN_ERR_FORMAT, "'%s': message %zu: \"content\" must be a string or a list of texts",
                               path, index);
    for (size_t i = 0; i < tn_json_length(v); i++) {
        const tn_json *part = tn_json_at(v, i), *text = tn_json_get(part, "text");
        const char *type = tn_json_string(tn_json_get(part, "type"), "");
        if (strcmp(type, "text") != 0 || tn_json_kind_of(text) != TN_JSON_STRING)
            return tn_backend_fail(TN_ERR_UNSUPPORTED,
                                   "'%s': message %zu: part %zu is of type \"%.40s\"; only \"text\" is supported", path,
                                   index, i, type);
        TRY(tn_bytes_append(out, tn_json_string(text, ""), tn_json_length(text)));
    }
    return TN_OK;
}

/* A field that would change the prompt must not be ignored. */
static tn_status check_fields(const tn_json *m, const char *path, size_t index) {
    for (size_t i = 0; i < tn_json_length(m); i++) {
        const char *key = tn_json_key(m, i);
        if (strcmp(key, "role") != 0 && strcmp(key, "content") != 0)
            return tn_backend_fail(TN_ERR_UNSUPPORTED,
                                   "'%s': message %zu has the field \"%.40s\"; only \"role\" and \"content\" are "
                                   "supported",
                                   path, index, key);
    }
    return TN_OK;
}

static tn_status read_message(conversation *c, const tn_json *m, const char *path, size_t index) {
    const char *role = tn_json_string(tn_json_get(m, "role"), NULL);
    if (tn_json_kind_of(m) != TN_JSON_OBJECT || !role || !*role)
        return tn_backend_fail(TN_ERR_FORMAT,
                               "'%s': message %zu must be an object with \"role\" (\"system\", \"user\", "
                               "\"assistant\") and \"content\"",
                               path, index);
    AUTO_BYTES tn_bytes text = {0};
    TRY(check_fields(m, path, index));
    TRY(read_content(tn_json_get(m, "content"), path, index, &text));
    return conversation_add(c, role, text.data, text.size);
}

tn_status conversation_take(conversation *c, const tn_json *root, const char *path) {
    const tn_json *list = tn_json_kind_of(root) == TN_JSON_OBJECT ? tn_json_get(root, "messages") : root;
    if (tn_json_kind_of(list) != TN_JSON_ARRAY || tn_json_length(list) == 0)
        return tn_backend_fail(
            TN_ERR_FORMAT,
            "'%s' must be a JSON array of messages {\"role\", \"content\"}, with at least one, or an "
            "object that has it as \"messages\"",
            path);
    for (size_t i = 0; i < tn_json_length(list); i++) {
        TRY(read_message(c, tn_json_at(list, i), path, i));
    }
    return TN_OK;
}

tn_status conversation_read(conversation *c, const char *path) {
    AUTO_BYTES tn_bytes text = {0};
    AUTO_CLI_JSON tn_json_doc *doc = NULL;
    TRY(cli_read_file(path, &text));
    tn_status status = tn_json_parse(text.data, text.size, &doc);
    if (status != TN_OK) return tn_backend_fail(status, "'%s': %s", path, tn_error());
    int before = c->count;
    status = conversation_take(c, tn_json_root(doc), path);
    if (status != TN_OK) conversation_remove(c, before, c->count - before);
    return status;
}

tn_status conversation_write(const conversation *c, const char *path) {
    cli_output out;
    TRY(cli_output_begin(&out, path));
    cli_json j = {.out = out.file};
    cli_json_write(&j, "{'messages': [");
    for (int i = 0; i < c->count; i++) {
        cli_json_write(&j, "{'role': %s, 'content': %s}", c->messages[i].role, c->messages[i].content);
    }
    cli_json_write(&j, "]}");
    return cli_output_commit(&out);
}

/* ---- the prompt -------------------------------------------------------------------------------------------------- */

static tn_status render(const conversation *c, const vocabulary *v, const char *source, bool answer, tn_bytes *out) {
    tn_chat_template *template = NULL;
    TRY(tn_chat_template_new(source, strlen(source), &template));
    tn_chat chat = TN_CHAT_DEFAULTS;
    chat.messages = c->messages;
    chat.count = c->count;
    chat.add_generation_prompt = answer;
    chat.tokenizer = v->tokenizer;
    chat.variables = c->variables;
    tn_status status = tn_chat_template_apply(template, &chat, NULL, out);
    tn_chat_template_free(template);
    return status;
}

/* answer: up to where an answer begins. */
static tn_status encode(const conversation *c, const vocabulary *v, bool answer, tn_ids *out) {
    const char *source = tn_tokenizer_chat_template(v->tokenizer);
    if (!source)
        return tn_backend_fail(
            TN_ERR_UNSUPPORTED,
            "'%s' has no chat template (tokenizer.chat_template in GGUF files, chat_template of tokenizer_config.json "
            "in folders), which chats require; use generate without --chat and write the whole prompt",
            v->path);
    AUTO_BYTES tn_bytes rendered = {0};
    tn_status status = render(c, v, source, answer, &rendered);
    if (status != TN_OK && status != TN_ERR_MEMORY)
        return tn_backend_fail(status, "'%s': byte %" PRId64 ": the chat template: %s", v->path, v->template_place,
                               tn_error());
    TRY(status);
    return tn_tokenizer_encode(v->tokenizer, rendered.data, rendered.size, TN_ENCODE_SPECIAL, out);
}

tn_status conversation_encode(const conversation *c, const vocabulary *v, tn_ids *out) {
    return encode(c, v, true, out);
}

tn_status conversation_encode_whole(const conversation *c, const vocabulary *v, tn_ids *out) {
    return encode(c, v, false, out);
}
