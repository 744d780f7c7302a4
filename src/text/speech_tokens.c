/* speech_tokens.c — Whisper's special tokens: from generation_config.json, config.json, or their spelling. */
#include <inttypes.h>
#include <string.h>

#include "text/speech_model.h"

enum { MULTILINGUAL_VOCABULARY = 51865 /* of the first models; folders before 2023 say nothing else about it */ };

/* generation_config.json, which counts, and config.json, which has the same keys in older folders. */
typedef struct settings {
    const tn_speech *s;
    const tn_json *first, *second;
} settings;

static const tn_json *setting(const settings *from, const char *key) {
    const tn_json *v = tn_json_get(from->first, key);
    if (tn_json_kind_of(v) == TN_JSON_NULL) v = tn_json_get(from->second, key);
    return tn_json_kind_of(v) == TN_JSON_NULL ? NULL : v;
}

static tn_status check_id(const settings *from, const char *what, int64_t id) {
    if (id >= 0 && id < from->s->config.vocabulary) return TN_OK;
    return tn_backend_fail(TN_ERR_FORMAT,
                           "'%s': token %s has the id %" PRId64 ", but the vocabulary has %" PRId64 " tokens",
                           from->s->folder.path, what, id, from->s->config.vocabulary);
}

/* value: of a setting, or NULL: the token with this spelling. */
static tn_status read_id(const settings *from, const tn_json *value, const char *spelling, int32_t *out) {
    int64_t id = value ? tn_json_int(value, -1) : tn_tokenizer_find(from->s->tokenizer, spelling, strlen(spelling));
    if (!value && id < 0)
        return tn_backend_fail(TN_ERR_FORMAT, "'%s': the tokenizer has no token %s", from->s->folder.path, spelling);
    TRY(check_id(from, spelling, id));
    *out = (int32_t)id;
    return TN_OK;
}

/* Negative ids stand for none. */
static tn_status read_list(const settings *from, const char *key, int32_t **out, int64_t *count) {
    const tn_json *list = setting(from, key);
    size_t length = tn_json_kind_of(list) == TN_JSON_ARRAY ? tn_json_length(list) : 0;
    *out = tn_txt_alloc(length + 1, sizeof **out);
    if (!*out) return TN_ERR_MEMORY;
    for (size_t i = 0; i < length; i++) {
        int64_t id = tn_json_int(tn_json_at(list, i), -1);
        if (id < 0) continue;
        TRY(check_id(from, key, id));
        (*out)[(*count)++] = (int32_t)id;
    }
    return TN_OK;
}

/* "<|en|>", "<|yue|>" */
static bool is_language(const tn_tokenizer *t, int32_t id) {
    size_t size = 0;
    const char *text = tn_tokenizer_spelling(t, id, &size);
    if (!text || size < 6 || size > 7 || memcmp(text, "<|", 2) != 0 || memcmp(text + size - 2, "|>", 2) != 0)
        return false;
    for (size_t i = 2; i < size - 2; i++)
        if (text[i] < 'a' || text[i] > 'z') return false;
    return true;
}

static tn_status read_languages(tn_speech *s) {
    speech_tokens *t = &s->tokens;
    t->first_language = t->start + 1;
    while (t->first_language + t->language_count < s->config.vocabulary &&
           is_language(s->tokenizer, t->first_language + t->language_count))
        t->language_count++;
    if (t->language_count > 0) return TN_OK;
    return tn_backend_fail(TN_ERR_FORMAT,
                           "'%s': the tokenizer has no tokens of languages, such as <|en|>, after "
                           "<|startoftranscript|>",
                           s->folder.path);
}

static tn_status read_tokens(tn_speech *s, const settings *from) {
    speech_tokens *t = &s->tokens;
    const tn_json *tasks = setting(from, "task_to_id");
    TRY(read_id(from, setting(from, "decoder_start_token_id"), "<|startoftranscript|>", &t->start));
    TRY(read_id(from, setting(from, "eos_token_id"), "<|endoftext|>", &t->end));
    TRY(read_id(from, setting(from, "no_timestamps_token_id"), "<|notimestamps|>", &t->no_timestamps));
    TRY(read_list(from, "suppress_tokens", &t->suppressed, &t->suppressed_count));
    TRY(read_list(from, "begin_suppress_tokens", &t->suppressed_first, &t->suppressed_first_count));
    t->last_initial = tn_json_int(setting(from, "max_initial_timestamp_index"), INT32_MAX);
    if (t->last_initial < 0)
        return tn_backend_fail(TN_ERR_FORMAT, "'%s': max_initial_timestamp_index is %" PRId64 "; it must be at least 0",
                               s->folder.path, t->last_initial);
    bool many = setting(from, "lang_to_id") || s->config.vocabulary >= MULTILINGUAL_VOCABULARY;
    s->config.multilingual = tn_json_bool(setting(from, "is_multilingual"), many);
    if (!s->config.multilingual) return TN_OK;
    TRY(read_id(from, tn_json_get(tasks, "transcribe"), "<|transcribe|>", &t->transcribe));
    TRY(read_id(from, tn_json_get(tasks, "translate"), "<|translate|>", &t->translate));
    return read_languages(s);
}

tn_status tn_speech_read_tokens(tn_speech *s) {
    tn_json_doc *doc;
    TRY(tn_hf_json(&s->folder, "generation_config.json", &doc));
    const settings from = {s, tn_json_root(doc), s->folder.config};
    tn_status status = read_tokens(s, &from);
    tn_json_free(doc);
    return status;
}
