/* finetune_data.c — a file's texts as tokens.
 *
 * Which tokens of a conversation are answers follows from the template itself: what it adds to the conversation before
 * an answer, with the beginning of an answer, when the answer is added. */
#include "cli/train/finetune_data.h"

#include <stdlib.h>
#include <string.h>

#include "cli/text/language.h"
#include "trunnion/backend.h"
#include "trunnion/finetune.h"
#include "trunnion/json.h"

enum { ANSWER = 1, PROMPT = 0 };

/* ---- the list ---------------------------------------------------------------------------------------------------- */

static tn_status mark(finetune_data *d, size_t count, char what) {
    for (size_t i = 0; i < count; i++) {
        TRY(tn_bytes_append(&d->answer, &what, 1));
    }
    return TN_OK;
}

static tn_status add_text(finetune_data *d, finetune_text t) {
    if (d->count == d->room) {
        int64_t room = d->room ? 2 * d->room : 256;
        finetune_text *more = realloc(d->texts, (size_t)room * sizeof *more);
        if (!more) return tn_backend_fail(TN_ERR_MEMORY, "out of memory");
        d->texts = more;
        d->room = room;
    }
    d->texts[d->count++] = t;
    return TN_OK;
}

static void note(finetune_data *d, int64_t v) { d->hash = (d->hash ^ (uint64_t)v) * 0x100000001B3u; /* FNV-1a */ }

/* Ends the text whose tokens were appended from `first` on: cut to the context, and left out without an answer. */
static tn_status end_text(finetune_data *d, size_t first, int64_t context) {
    int64_t count = (int64_t)(d->ids.count - first);
    bool any = false;
    d->truncated += count > context;
    if (count > context) count = context;
    for (int64_t i = 1; i < count; i++)
        any = any || d->answer.data[first + (size_t)i];
    d->ids.count = first + (any ? (size_t)count : 0);
    d->answer.size = d->ids.count;
    d->left_out += !any;
    for (int64_t i = 0; i < count && any; i++)
        note(d, 2 * d->ids.data[first + (size_t)i] + d->answer.data[first + (size_t)i]);
    note(d, -1);
    return any ? add_text(d, (finetune_text){first, count}) : TN_OK;
}

tn_finetune_example finetune_data_at(const finetune_data *d, int64_t i) {
    const finetune_text *t = &d->texts[i];
    return (tn_finetune_example){d->ids.data + t->first, (const uint8_t *)d->answer.data + t->first, t->count};
}

void finetune_data_free(finetune_data *d) {
    tn_ids_free(&d->ids);
    tn_bytes_free(&d->answer);
    free(d->texts);
    *d = (finetune_data){0};
}

/* ---- kinds of lines ---------------------------------------------------------------------------------------------- */

static tn_status append_text(finetune_data *d, const vocabulary *v, const char *text, size_t size, unsigned flags,
                             char what) {
    size_t before = d->ids.count;
    TRY(tn_tokenizer_encode(v->tokenizer, text, size, flags, &d->ids));
    return mark(d, d->ids.count - before, what);
}

/* The token that ends the text whose tokens begin at `first`, if it does not end with it already. */
static tn_status append_end(finetune_data *d, const vocabulary *v, size_t first) {
    int32_t end = tn_tokenizer_special(v->tokenizer, TN_SPECIAL_EOS);
    bool there = d->ids.count > first && d->ids.data[d->ids.count - 1] == end;
    if (end < 0 || there) return TN_OK;
    TRY(tn_ids_append(&d->ids, end));
    return mark(d, 1, ANSWER);
}

static size_t common(const tn_ids *ids, const int32_t *whole, size_t count) {
    size_t n = 0;
    while (n < ids->count && n < count && ids->data[n] == whole[n])
        n++;
    return n;
}

/* Prompt and completion are one text, as when the model continues the prompt: a token may span both. The tokens that
 * the prompt alone has at the same places are no answer. */
static tn_status take_completion(finetune_data *d, const vocabulary *v, const tn_json *prompt, const tn_json *answer) {
    size_t first = d->ids.count, length = tn_json_length(prompt);
    int32_t end = tn_tokenizer_special(v->tokenizer, TN_SPECIAL_EOS);
    AUTO_BYTES tn_bytes whole = {0};
    AUTO_IDS tn_ids before = {0};
    TRY(tn_bytes_append(&whole, tn_json_string(prompt, ""), length));
    TRY(tn_bytes_append(&whole, tn_json_string(answer, ""), tn_json_length(answer)));
    TRY(tn_bytes_append(&whole, "", 1));
    TRY(tn_tokenizer_encode(v->tokenizer, whole.data, length, TN_ENCODE_ENDS, &before));
    TRY(append_text(d, v, whole.data, whole.size - 1, TN_ENCODE_ENDS, ANSWER));
    if (before.count > 0 && before.data[before.count - 1] == end) before.count--; /* it belongs after the completion */
    size_t same = common(&before, d->ids.data + first, d->ids.count - first);
    for (size_t i = 0; i < same; i++)
        d->answer.data[first + i] = PROMPT;
    return append_end(d, v, first);
}

static tn_status take_plain(finetune_data *d, const vocabulary *v, const tn_json *text) {
    size_t first = d->ids.count;
    TRY(append_text(d, v, tn_json_string(text, ""), tn_json_length(text), TN_ENCODE_ENDS, ANSWER));
    return append_end(d, v, first);
}

/* Marks the tokens of message i, an answer: those between the conversation before it, ended by the beginning of an
 * answer, and the conversation with it. */
static tn_status mark_answer(finetune_data *d, const vocabulary *v, const conversation *c, int i, size_t first) {
    conversation part = *c;
    tn_ids before = {0}, with = {0};
    part.count = i;
    tn_status status = i > 0 ? conversation_encode(&part, v, &before) : TN_OK;
    part.count = i + 1;
    if (status == TN_OK) status = conversation_encode_whole(&part, v, &with);
    size_t count = d->ids.count - first;
    size_t from = common(&before, d->ids.data + first, count), to = common(&with, d->ids.data + first, count);
    for (size_t k = from; k < to; k++)
        d->answer.data[first + k] = ANSWER;
    tn_ids_free(&before);
    tn_ids_free(&with);
    return status;
}

static tn_status take_messages(finetune_data *d, const vocabulary *v, const tn_json *line, const char *path) {
    AUTO_CALL(conversation_free) conversation c = {0};
    size_t first = d->ids.count;
    TRY(conversation_take(&c, line, path));
    TRY(conversation_encode_whole(&c, v, &d->ids));
    TRY(mark(d, d->ids.count - first, PROMPT));
    for (int i = 0; i < c.count; i++)
        if (!strcmp(c.messages[i].role, "assistant")) TRY(mark_answer(d, v, &c, i, first));
    return TN_OK;
}

static tn_status take_line(finetune_data *d, const vocabulary *v, const tn_json *line, const char *path) {
    const tn_json *prompt = tn_json_get(line, "prompt"), *completion = tn_json_get(line, "completion");
    const tn_json *text = tn_json_get(line, "text");
    if (tn_json_get(line, "messages")) return take_messages(d, v, line, path);
    if (tn_json_kind_of(prompt) == TN_JSON_STRING && tn_json_kind_of(completion) == TN_JSON_STRING)
        return take_completion(d, v, prompt, completion);
    if (tn_json_kind_of(text) == TN_JSON_STRING) return take_plain(d, v, text);
    return tn_backend_fail(TN_ERR_FORMAT,
                           "the object needs \"messages\" (a list), or \"prompt\" and \"completion\", or "
                           "\"text\" (strings)");
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

static bool is_blank(const char *text, size_t size) {
    for (size_t i = 0; i < size; i++)
        if (!strchr(" \t\r", text[i])) return false;
    return true;
}

static tn_status read_line(finetune_data *d, const vocabulary *v, const char *text, size_t size, const char *path,
                           int64_t context) {
    AUTO_CLI_JSON tn_json_doc *doc = NULL;
    size_t first = d->ids.count;
    TRY(tn_json_parse(text, size, &doc));
    TRY(take_line(d, v, tn_json_root(doc), path));
    return end_text(d, first, context);
}

static tn_status read_lines(finetune_data *d, const tn_bytes *file, const char *path, const vocabulary *v,
                            int64_t context) {
    int64_t number = 1;
    for (size_t at = 0; at < file->size; number++) {
        const char *text = file->data + at, *end = memchr(text, '\n', file->size - at);
        size_t size = end ? (size_t)(end - text) : file->size - at;
        at += size + 1;
        if (is_blank(text, size)) continue;
        tn_status status = read_line(d, v, text, size, path, context);
        if (status != TN_OK) return tn_backend_fail(status, "'%s': line %lld: %s", path, (long long)number, tn_error());
    }
    return TN_OK;
}

/* Splits plain text into samples of `context` tokens. Each begins with the last token of the previous one, so that
 * every token but the first is predicted once. */
static tn_status read_pieces(finetune_data *d, const tn_bytes *file, const vocabulary *v, int64_t context) {
    AUTO_IDS tn_ids all = {0};
    TRY(tn_tokenizer_encode(v->tokenizer, file->data, file->size, TN_ENCODE_ENDS, &all));
    for (size_t at = 0; at + 1 < all.count; at += (size_t)context - 1) {
        size_t first = d->ids.count, count = all.count - at;
        if (count > (size_t)context) count = (size_t)context;
        for (size_t i = 0; i < count; i++)
            TRY(tn_ids_append(&d->ids, all.data[at + i]));
        TRY(mark(d, count, ANSWER));
        TRY(end_text(d, first, context));
    }
    return TN_OK;
}

tn_status finetune_data_read(finetune_data *d, const char *path, const vocabulary *v, int64_t context) {
    static const char ending[] = ".jsonl";
    size_t length = strlen(path), size = sizeof ending - 1;
    bool lines = length > size && strcmp(path + length - size, ending) == 0;
    AUTO_BYTES tn_bytes file = {0};
    if (context < 2)
        return tn_backend_fail(TN_ERR_ARGUMENT, "the context is %lld tokens; it must be at least 2 to learn from",
                               (long long)context);
    TRY(cli_read_file(path, &file));
    TRY(lines ? read_lines(d, &file, path, v, context) : read_pieces(d, &file, v, context));
    if (d->count > 0) return TN_OK;
    return tn_backend_fail(TN_ERR_FORMAT,
                           "'%s' has no text to learn from: %lld were left out because they have no answer within the "
                           "context of %lld tokens (--context)",
                           path, (long long)d->left_out, (long long)context);
}
