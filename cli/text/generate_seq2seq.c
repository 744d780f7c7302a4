/* generate_seq2seq.c — `trunnion generate` with an encoder-decoder model (T5): the prompt goes to the encoder, the
 * answer comes from the decoder. */
#include <string.h>

#include "cli/text/generate_seq2seq.h"

#include "cli/text/language.h"
#include "trunnion/backend.h"
#include "trunnion/seq2seq.h"

enum { MOST_ANSWER = 512 /* tokens, if -n says nothing */ };

typedef struct work {
    const seq2seq_wishes *asked;
    tn_device *device;
    tn_selection selection;
    tn_seq2seq *model;
    tn_tokenizer *tokenizer; /* NULL: ids are printed */
    tn_sampler *sampler;
    tn_ids prompt, ids;
    tn_bytes text;
    tn_text_stream stream;
    bool ended, full; /* full: the answer has all the tokens of the context */
    double load_seconds, prompt_seconds, token_seconds;
    tn_seq2seq_facts facts;
} work;

/* The id of a language's token: no word, and not the unknown token. */
static tn_status find_language(const work *w, const char *token, int32_t *id) {
    AUTO_IDS tn_ids ids = {0};
    TRY(tn_tokenizer_encode(w->tokenizer, token, strlen(token), TN_ENCODE_SPECIAL, &ids));
    tn_token_type type = ids.count == 1 ? tn_tokenizer_type(w->tokenizer, ids.data[0]) : TN_TOKEN_NORMAL;
    if (type != TN_TOKEN_CONTROL && type != TN_TOKEN_USER_DEFINED)
        return tn_backend_fail(TN_ERR_ARGUMENT, "'%s' has no token '%s' of a language", w->asked->model, token);
    *id = ids.data[0];
    return TN_OK;
}

/* Where the tokenizer puts the language of a text: in front of it (NLLB, mBART 50), or behind its end (mBART). */
static tn_status find_place(const work *w, const char *text, size_t size, size_t *place) {
    AUTO_IDS tn_ids plain = {0};
    TRY(tn_tokenizer_encode(w->tokenizer, text, size, 0, &plain));
    if (plain.count + 2 != w->prompt.count)
        return tn_backend_fail(TN_ERR_UNSUPPORTED, "'%s': its tokenizer adds no language to a text; remove --from",
                               w->asked->model);
    bool front = plain.count == 0 || plain.data[0] != w->prompt.data[0];
    *place = front ? 0 : w->prompt.count - 1;
    return TN_OK;
}

static tn_status set_source(work *w, const char *text, size_t size) {
    int32_t id = 0;
    size_t place = 0;
    TRY(find_language(w, w->asked->from, &id));
    TRY(find_place(w, text, size, &place));
    w->prompt.data[place] = id;
    return TN_OK;
}

static tn_status make_prompt(work *w) {
    const seq2seq_wishes *a = w->asked;
    AUTO_BYTES tn_bytes given = {0};
    TRY(a->file ? cli_read_file(a->file, &given) : cli_take_text(a->ids ? a->ids : a->prompt, &given));
    if (a->file && given.size > 0 && given.data[given.size - 1] == '\n') given.data[--given.size] = 0;
    TRY(a->ids ? cli_read_ids(given.data, &w->prompt)
               : tn_tokenizer_encode(w->tokenizer, given.data, given.size, TN_ENCODE_ENDS, &w->prompt));
    if (given.size == 0 || w->prompt.count == 0) return tn_backend_fail(TN_ERR_ARGUMENT, "the prompt is empty");
    return a->from ? set_source(w, given.data, given.size) : TN_OK;
}

static tn_status load(work *w) {
    const seq2seq_wishes *a = w->asked;
    tn_seq2seq_options o = TN_SEQ2SEQ_DEFAULTS;
    o.device = w->device;
    o.context = a->context > 0 ? a->context : a->tokens > 0 ? a->tokens : MOST_ANSWER;
    TRY(tn_seq2seq_open(a->model, &o, &w->model));
    if (!a->ids) TRY(tn_tokenizer_open(a->model, &w->tokenizer));
    TRY(make_prompt(w));
    return cli_sampling_make(a->sampling, w->tokenizer, &w->sampler);
}

/* Shows what is complete of the text, and keeps it. */
static tn_status show(work *w, int32_t id, bool first) {
    size_t before = w->text.size;
    if (!w->tokenizer) {
        if (!w->asked->common->json) cli_print(stdout, "%s%d", first ? "" : " ", (int)id);
    } else {
        TRY(tn_tokenizer_stream(w->tokenizer, &w->stream, id, 0, &w->text));
        if (!w->asked->common->json && w->text.size > before) cli_print(stdout, "%s", w->text.data + before);
    }
    fflush(stdout);
    return TN_OK;
}

static tn_status answer(work *w, const tn_seq2seq_facts *facts) {
    int64_t most = w->asked->tokens;
    int32_t id = facts->start;
    const float *logits;
    tn_status status = TN_OK;
    while (status == TN_OK && (most < 0 || (int64_t)w->ids.count < most)) {
        w->full = (int64_t)w->ids.count == facts->context;
        if (w->full) break;
        status = tn_seq2seq_step(w->model, id, &logits);
        if (w->ids.count == 0 && facts->forced >= 0)
            id = facts->forced;
        else if (status == TN_OK)
            status = tn_sampler_pick(w->sampler, logits, (int32_t)facts->vocabulary, &id);
        if (status != TN_OK || (w->ended = tn_seq2seq_ends(w->model, id))) break;
        tn_sampler_accept(w->sampler, id);
        status = tn_ids_append(&w->ids, id);
        if (status == TN_OK) status = show(w, id, w->ids.count == 1);
    }
    return status;
}

static tn_status generate(work *w) {
    w->facts.struct_size = sizeof w->facts;
    tn_status status = tn_seq2seq_get_facts(w->model, &w->facts);
    double begun = cli_now();
    if (status == TN_OK) status = tn_seq2seq_encode(w->model, w->prompt.data, (int64_t)w->prompt.count);
    w->prompt_seconds = cli_now() - begun;
    if (status == TN_OK && w->asked->to) status = find_language(w, w->asked->to, &w->facts.forced);
    if (status == TN_OK) status = answer(w, &w->facts);
    w->token_seconds = cli_now() - begun - w->prompt_seconds;
    size_t before = w->text.size;
    if (status == TN_OK && w->tokenizer) status = tn_tokenizer_stream_end(&w->stream, &w->text);
    if (status == TN_OK && !w->asked->common->json && w->text.size > before)
        cli_print(stdout, "%s", w->text.data + before);
    return status;
}

static double rate(size_t count, double seconds) { return seconds > 0 ? (double)count / seconds : 0; }

static void tell(const work *w) {
    printf("\n");
    fflush(stdout);
    cli_print(stderr, "\n[prompt: %zu tokens, %.1f/s — generation: %zu tokens, %.1f/s — %s]\n", w->prompt.count,
              rate(w->prompt.count, w->prompt_seconds), w->ids.count, rate(w->ids.count, w->token_seconds),
              w->selection.chosen);
}

static void put_json(const work *w) {
    cli_json j = {.out = stdout};
    cli_json_write(&j, "{'text': %.*s", (int)w->text.size, w->text.data);
    cli_json_ids(&j, "prompt_ids", &w->prompt);
    cli_json_ids(&j, "ids", &w->ids);
    cli_json_write(
        &j, "'prompt_tokens_per_second': %g, 'prompt_tokens_computed': %jd, 'tokens_per_second': %g, 'device': %s",
        rate(w->prompt.count, w->prompt_seconds), (int64_t)w->prompt.count, rate(w->ids.count, w->token_seconds),
        w->selection.chosen);
    cli_json_fallback(&j, &w->selection, w->device);
    cli_json_write(&j,
                   "'load_seconds': %g, 'weights_bytes': %jd, 'context': %jd, 'seed': %ju, 'stopped': %s, 'stop': null",
                   w->load_seconds, w->facts.weights_bytes, w->facts.context, w->asked->sampling->options.seed,
                   w->ended ? "end" : "length"); /* such models have no stop strings */
    cli_json_write(&j, "}");
}

static void finish(work *w) {
    tn_seq2seq_close(w->model);
    tn_tokenizer_free(w->tokenizer);
    tn_sampler_free(w->sampler);
    tn_ids_free(&w->prompt);
    tn_ids_free(&w->ids);
    tn_bytes_free(&w->text);
    tn_set_current_device(NULL);
    tn_device_close(w->device);
}

int seq2seq_generate(const seq2seq_wishes *asked) {
    work w = {.asked = asked};
    int result = CLI_OK;
    w.device = cli_choose_device(asked->common, &w.selection, &result);
    if (!w.device) return result;
    double begun = cli_now();
    tn_status status = load(&w);
    w.load_seconds = cli_now() - begun;
    if (status == TN_OK) status = generate(&w);
    if (status == TN_OK) (asked->common->json ? put_json : tell)(&w);
    if (status == TN_OK && w.full)
        cli_print(stderr, "trunnion: the context of %zu tokens is full; --context N sets a longer one\n", w.ids.count);
    if (status != TN_OK) result = cli_failed();
    finish(&w);
    return result;
}
