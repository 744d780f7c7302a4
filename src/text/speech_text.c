/* speech_text.c — from sound to text: windows of 30 s, and the rules by which Whisper's tokens are chosen.
 *
 * A window's tokens are text between timestamps, which stand in pairs: the end of a segment and the begin of the next.
 * What follows the last pair is incomplete, so the next window begins there. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "text/speech_model.h"

enum { FRAMES_OF_STEP = 2, MOST_BEGIN = 4, LANGUAGE_SIZE = 8 };
static const double SECONDS_OF_FRAME = 0.01, SECONDS_OF_STEP = 0.02; /* step: of timestamp tokens */

typedef struct transcription {
    tn_speech *s;
    const tn_transcribe_options *options;
    tn_speech_take *take;
    void *ctx;
    bool timed;                /* the model predicts timestamps */
    int32_t begin[MOST_BEGIN]; /* tokens that begin every window */
    int begin_count;
    char language[LANGUAGE_SIZE]; /* "" for a model that knows only English */
    float *scores, *features, *window;
    int64_t frames, content; /* columns of the features, and those that are not padding */
    tn_ids ids;              /* of the window */
    tn_bytes text;
} transcription;

/* ---- the next token ---------------------------------------------------------------------------------------------- */

static void forbid(float *scores, int64_t from, int64_t to) {
    for (int64_t i = from; i < to; i++)
        scores[i] = -INFINITY;
}

static bool is_time(const speech_tokens *t, int32_t id) { return id > t->no_timestamps; }

/* Timestamps stand in pairs, except at the begin and before the end, and do not decrease. */
static void keep_order(const speech_config *c, const speech_tokens *t, const tn_ids *ids, float *scores) {
    int64_t n = (int64_t)ids->count, first = t->no_timestamps + 1, least = first;
    bool last = n > 0 && is_time(t, ids->data[n - 1]), before = n < 2 || is_time(t, ids->data[n - 2]);
    if (last && before) forbid(scores, first, c->vocabulary);
    if (last && !before) forbid(scores, 0, t->end);
    for (int64_t i = n - 1; i >= 0; i--)
        if (is_time(t, ids->data[i])) {
            least = last && !before ? ids->data[i] : ids->data[i] + 1;
            break;
        }
    forbid(scores, first, least < c->vocabulary ? least : c->vocabulary);
    if (n > 0) return;
    forbid(scores, 0, first);
    if (t->last_initial < c->vocabulary - first) forbid(scores, first + t->last_initial + 1, c->vocabulary);
}

/* If all timestamps together are more probable than any other token, it is one of them. */
static void prefer_times(const speech_config *c, const speech_tokens *t, float *scores) {
    int64_t first = t->no_timestamps + 1;
    double top = -INFINITY, text = -INFINITY, sum = 0;
    for (int64_t i = 0; i < c->vocabulary; i++)
        if ((double)scores[i] > top) top = (double)scores[i];
    for (int64_t i = 0; i < first; i++)
        if ((double)scores[i] > text) text = (double)scores[i];
    for (int64_t i = first; i < c->vocabulary && top > -INFINITY; i++)
        sum += exp((double)scores[i] - top);
    if (sum > 0 && log(sum) + top > text) forbid(scores, 0, first);
}

static tn_status choose_token(transcription *r, const float *logits, int32_t *id) {
    const speech_config *c = &r->s->config;
    const speech_tokens *t = &r->s->tokens;
    memcpy(r->scores, logits, (size_t)c->vocabulary * sizeof *logits);
    for (int64_t i = 0; i < t->suppressed_first_count && r->ids.count == 0; i++)
        r->scores[t->suppressed_first[i]] = -INFINITY;
    for (int64_t i = 0; i < t->suppressed_count; i++)
        r->scores[t->suppressed[i]] = -INFINITY;
    if (r->timed) {
        r->scores[t->no_timestamps] = -INFINITY;
        keep_order(c, t, &r->ids, r->scores);
        prefer_times(c, t, r->scores);
    }
    return tn_txt_most_probable(r->scores, (int32_t)c->vocabulary, id);
}

/* ---- a window ---------------------------------------------------------------------------------------------------- */

static tn_status name_language(transcription *r, int32_t id) {
    size_t size = 0;
    const char *text = tn_tokenizer_spelling(r->s->tokenizer, id, &size);
    snprintf(r->language, sizeof r->language, "%.*s", (int)size - 4, text + 2);
    r->begin[1] = id;
    return TN_OK;
}

/* The first window is encoded, and its sequence empty. Leaves it so. */
static tn_status detect_language(transcription *r) {
    const speech_tokens *t = &r->s->tokens;
    const float *logits;
    TRY(tn_speech_step(r->s, t->start, &logits));
    r->s->position = 0;
    int32_t id;
    TRY(tn_txt_most_probable(logits + t->first_language, t->language_count, &id));
    return name_language(r, t->first_language + id);
}

static tn_status find_language(transcription *r, const char *code) {
    const speech_tokens *t = &r->s->tokens;
    char known[1024] = "", name[72];
    size_t used = 0, size = 0;
    snprintf(name, sizeof name, "<|%s|>", tn_txt_shown(code, strlen(code)).text);
    for (int32_t i = 0; i < t->language_count; i++) {
        const char *text = tn_tokenizer_spelling(r->s->tokenizer, t->first_language + i, &size);
        if (size == strlen(name) && memcmp(text, name, size) == 0) return name_language(r, t->first_language + i);
        if (used + size < sizeof known)
            used += (size_t)snprintf(known + used, sizeof known - used, " %.*s", (int)size - 4, text + 2);
    }
    return tn_backend_fail(TN_ERR_ARGUMENT, "the language '%s' is not known to the model; it knows%s",
                           tn_txt_shown(code, strlen(code)).text, known);
}

/* The tokens of `frames` of features from `seek` on, without the one that ends them: r->ids. */
static tn_status read_window(transcription *r, int64_t seek) {
    tn_speech *s = r->s;
    const speech_config *c = &s->config;
    int64_t n = r->frames - seek < MEL_WINDOW_FRAMES ? r->frames - seek : MEL_WINDOW_FRAMES;
    const float *logits = NULL;
    memset(r->window, 0, (size_t)(c->mels * MEL_WINDOW_FRAMES) * sizeof *r->window);
    for (int64_t m = 0; m < c->mels; m++)
        memcpy(r->window + m * MEL_WINDOW_FRAMES, r->features + m * r->frames + seek, (size_t)n * sizeof *r->window);
    TRY(tn_speech_encode(s, r->window));
    if (c->multilingual && !r->language[0]) TRY(detect_language(r));
    for (int i = 0; i < r->begin_count; i++)
        TRY(tn_speech_step(s, r->begin[i], &logits));
    int64_t room = c->context - r->begin_count, most = r->options->max_tokens;
    if (most == 0 || most > room) most = room;
    for (r->ids.count = 0; (int64_t)r->ids.count < most;) {
        int32_t id;
        TRY(choose_token(r, logits, &id));
        if (id == s->tokens.end) break;
        TRY(tn_ids_append(&r->ids, id));
        if ((int64_t)r->ids.count < most) TRY(tn_speech_step(s, id, &logits));
    }
    return TN_OK;
}

/* ---- segments ---------------------------------------------------------------------------------------------------- */

static double time_of(const transcription *r, int64_t seek, int32_t id) {
    return (double)seek * SECONDS_OF_FRAME + (id - r->s->tokens.no_timestamps - 1) * SECONDS_OF_STEP;
}

static tn_status hand_out(transcription *r, size_t from, size_t to, double start, double end) {
    const speech_tokens *t = &r->s->tokens;
    r->text.size = 0;
    TRY(tn_bytes_append(&r->text, "", 0));
    for (size_t i = from, n; i < to; i += n) {
        for (n = 1; i + n < to && (r->ids.data[i + n] < t->end) == (r->ids.data[i] < t->end);)
            n++;
        if (r->ids.data[i] < t->end) TRY(tn_tokenizer_decode(r->s->tokenizer, r->ids.data + i, n, 0, &r->text));
    }
    const tn_speech_segment segment = {.start = start,
                                       .end = end,
                                       .text = r->text.data ? r->text.data : "",
                                       .ids = r->ids.data ? r->ids.data + from : NULL,
                                       .count = (int64_t)(to - from),
                                       .language = r->language[0] ? r->language : NULL};
    return r->take(r->ctx, &segment);
}

/* Returns the complete segments of the window at `seek`, `length` frames long; *next: frames until the next window. */
static tn_status cut(transcription *r, int64_t seek, int64_t length, int64_t *next) {
    const speech_tokens *t = &r->s->tokens;
    const int32_t *ids = r->ids.data;
    size_t n = r->ids.count, from = 0, last = 0;
    bool ends_single = n > 1 && is_time(t, ids[n - 1]) && !is_time(t, ids[n - 2]);
    *next = length;
    for (size_t i = 1; i < n && r->timed; i++)
        if (is_time(t, ids[i]) && is_time(t, ids[i - 1])) last = i;
    for (size_t i = 1; i <= last; i++) {
        if (!is_time(t, ids[i]) || !is_time(t, ids[i - 1])) continue;
        TRY(hand_out(r, from, i, time_of(r, seek, ids[from]), time_of(r, seek, ids[i - 1])));
        from = i;
    }
    if (last > 0 && ends_single) return hand_out(r, from, n, time_of(r, seek, ids[from]), time_of(r, seek, ids[n - 1]));
    if (last > 0) {
        int64_t end = (int64_t)(ids[last - 1] - t->no_timestamps - 1) * FRAMES_OF_STEP;
        if (end > 0) *next = end;
        return TN_OK;
    }
    double start = (double)seek * SECONDS_OF_FRAME, end = start + (double)length * SECONDS_OF_FRAME;
    for (size_t i = n; r->timed && i-- > 0;)
        if (is_time(t, ids[i])) {
            if (ids[i] > t->no_timestamps + 1) end = time_of(r, seek, ids[i]);
            break;
        }
    return hand_out(r, 0, n, start, end);
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

static tn_status set_begin(transcription *r) {
    const speech_tokens *t = &r->s->tokens;
    const tn_transcribe_options *o = r->options;
    bool many = r->s->config.multilingual;
    if (!many && o->translate)
        return tn_backend_fail(TN_ERR_ARGUMENT, "'%s' knows only English; a multilingual model can translate",
                               r->s->folder.path);
    if (!many && o->language && strcmp(o->language, "en") != 0)
        return tn_backend_fail(TN_ERR_ARGUMENT, "'%s' knows only English, but the language is '%s'", r->s->folder.path,
                               tn_txt_shown(o->language, strlen(o->language)).text);
    r->begin[0] = t->start;
    if (many && o->language) TRY(find_language(r, o->language));
    if (many) r->begin[2] = o->translate ? t->translate : t->transcribe;
    r->begin_count = many ? 3 : 1;
    if (!r->timed) r->begin[r->begin_count++] = t->no_timestamps;
    if (r->begin_count < r->s->config.context) return TN_OK;
    return tn_hf_fail(r->s->folder.path, TN_ERR_FORMAT,
                      "max_target_positions is %" PRId64 ", too few for the %d tokens that begin a text",
                      r->s->config.context, r->begin_count);
}

static tn_status run(transcription *r, const float *samples, int64_t count) {
    const speech_config *c = &r->s->config;
    r->frames = tn_log_mel_frames(count);
    r->content = (count + MEL_HOP - 1) / MEL_HOP;
    if (r->content > r->frames) r->content = r->frames;
    r->timed = r->options->timestamps || r->frames > MEL_WINDOW_FRAMES;
    TRY(set_begin(r));
    r->scores = tn_txt_alloc((size_t)c->vocabulary, sizeof *r->scores);
    r->features = tn_txt_alloc((size_t)r->frames, (size_t)c->mels * sizeof *r->features);
    r->window = tn_txt_alloc(MEL_WINDOW_FRAMES, (size_t)c->mels * sizeof *r->window);
    if (!r->scores || !r->features || !r->window) return TN_ERR_MEMORY;
    TRY(tn_speech_features(r->s, samples, count, r->features));
    for (int64_t seek = 0, next; seek < r->content; seek += next) {
        int64_t left = r->content - seek;
        TRY(read_window(r, seek));
        TRY(cut(r, seek, left < MEL_WINDOW_FRAMES ? left : MEL_WINDOW_FRAMES, &next));
    }
    return TN_OK;
}

tn_status tn_speech_transcribe(tn_speech *s, const float *samples, int64_t count, const tn_transcribe_options *options,
                               tn_speech_take *take, void *ctx) {
    tn_transcribe_options o = TN_TRANSCRIBE_DEFAULTS;
    TRY(tn_options_read(&o, options, "tn_speech_transcribe", "tn_transcribe_options o = TN_TRANSCRIBE_DEFAULTS"));
    if (!s || !samples || !take || count < 1)
        return tn_backend_fail(TN_ERR_ARGUMENT,
                               "tn_speech_transcribe: a pointer is NULL, or the number of samples is %" PRId64, count);
    if (o.max_tokens < 0)
        return tn_backend_fail(TN_ERR_ARGUMENT, "tn_speech_transcribe: max_tokens is %" PRId64 "; 0 means no limit",
                               o.max_tokens);
    transcription r = {.s = s, .options = &o, .take = take, .ctx = ctx};
    tn_status status = run(&r, samples, count);
    tn_txt_free_each(r.scores, r.features, r.window);
    tn_ids_free(&r.ids);
    tn_bytes_free(&r.text);
    return status;
}

/* ==== tokens of a speech model ==================================================================================== */
/* Whisper's special tokens: from generation_config.json, config.json, or their spelling. */

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
    AUTO_TXT_JSON tn_json_doc *doc = NULL;
    TRY(tn_hf_json(&s->folder, "generation_config.json", &doc));
    const settings from = {s, tn_json_root(doc), s->folder.config};
    return read_tokens(s, &from);
}
