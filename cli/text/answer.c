/* answer.c — the loop from a prompt to a text. */
#include "cli/text/answer.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/text/language.h"
#include "trunnion/backend.h"
#include "trunnion/model.h"
#include "trunnion/text.h"

/* ---- the prompt -------------------------------------------------------------------------------------------------- */

/* Computes a sequence behind its first `keep` tokens. One that the context has no room for is one piece, so that it is
 * refused before anything is computed. */
static tn_status compute(answer *a, const int32_t *ids, int64_t count, const float **logits) {
    cli_progress bar;
    bool long_one = !a->silent && count - a->keep > TN_PROMPT_CHUNK;
    tn_llm_facts facts = {.struct_size = sizeof facts};
    tn_status status = tn_llm_rewind(a->model, a->keep);
    if (status == TN_OK) status = tn_llm_get_facts(a->model, &facts);
    const int64_t most = count > facts.context ? count : TN_PROMPT_CHUNK;
    if (long_one) cli_progress_begin(&bar, "prompt", "tokens", count - a->keep);
    for (int64_t at = a->keep, n; at < count && status == TN_OK && !cli_stopped(); at += n) {
        n = count - at < most ? count - at : most;
        status = tn_llm_prompt(a->model, ids + at, n, at + n == count ? logits : NULL);
        a->computed += n;
        if (long_one) cli_progress_update(&bar, a->computed, "");
    }
    if (long_one) cli_progress_end(&bar);
    return status;
}

/* After a failure: the prompt and the text so far are computed on the next device, until one does. */
static tn_status move_on(answer *a, tn_status why, const float **logits) {
    tn_status status = why;
    const float *behind_prompt = NULL;
    while (cli_moves_on(status) && a->move) {
        status = a->move(a->ctx, status, &a->model);
        if (status != TN_OK) return status;
        a->keep = 0;
        *logits = NULL;
        status = compute(a, a->prompt, a->prompt_count, &behind_prompt);
        *logits = behind_prompt;
        for (size_t i = 0; i < a->ids.count && status == TN_OK; i++)
            status = tn_llm_step(a->model, a->ids.data[i], logits);
    }
    return status;
}

tn_status answer_prompt(answer *a, const int32_t *ids, int64_t count, const float **logits) {
    double start = cli_now();
    *logits = NULL;
    a->prompt = ids;
    a->prompt_count = count;
    a->computed = 0;
    for (int64_t i = 0; !a->heard && i < count; i++)
        tn_sampler_accept(a->sampler, ids[i]);
    a->heard = true;
    tn_status status = compute(a, ids, count, logits);
    if (status != TN_OK) status = move_on(a, status, logits);
    if (status == TN_OK && !*logits) a->stopped = "cancelled";
    a->prompt_seconds = cli_now() - start;
    return status;
}

/* ---- the text ---------------------------------------------------------------------------------------------------- */

/* Writes what can be written by now. */
static void show(answer *a) {
    if (a->silent || a->shown == a->text.size) return;
    cli_show_compiling(false); /* its line would erase the one that the text is on */
    fwrite(a->text.data + a->shown, 1, a->text.size - a->shown, stdout);
    fflush(stdout);
    a->shown = a->text.size;
}

static tn_status add_id(answer *a, int32_t id) {
    char text[16];
    int length = snprintf(text, sizeof text, "%s%" PRId32, a->text.size ? " " : "", id);
    return tn_bytes_append(&a->text, text, (size_t)length);
}

/* What the stream gave goes through the stop strings. */
bool cli_take_stop(void *stops, const char *text) {
    cli_stops *s = stops;
    if (!*text || s->count == sizeof s->list / sizeof *s->list) return false;
    s->list[s->count++] = (tn_text_slice){text, strlen(text)};
    return true;
}

static tn_status feed_stops(answer *a) {
    tn_status status = tn_stop_strings_feed(a->stops, a->raw.data ? a->raw.data : "", a->raw.size, &a->text, &a->stop);
    a->raw.size = 0;
    if (a->stop >= 0) a->stopped = "stop";
    return status;
}

static tn_status add_token(answer *a, int32_t id) {
    TRY(tn_ids_append(&a->ids, id));
    tn_sampler_accept(a->sampler, id);
    if (!a->tokenizer) TRY(add_id(a, id));
    if (a->tokenizer) TRY(tn_tokenizer_stream(a->tokenizer, &a->stream, id, 0, &a->raw));
    if (a->tokenizer) TRY(feed_stops(a));
    show(a);
    return TN_OK;
}

tn_status answer_end(answer *a) {
    TRY(tn_tokenizer_stream_end(&a->stream, &a->raw));
    if (a->stop < 0) TRY(feed_stops(a));
    TRY(tn_stop_strings_end(a->stops, &a->text));
    show(a);
    return TN_OK;
}

/* ---- log probabilities ------------------------------------------------------------------------------------------- */

static tn_status add_chance(answer *a, const float *logits, int32_t id) {
    if (a->logprobs < 0) return TN_OK;
    if (a->ids.count == a->chance_room) {
        size_t room = a->chance_room ? 2 * a->chance_room : 64;
        answer_logprob *more = realloc(a->chances, room * sizeof *more);
        if (!more) return tn_backend_fail(TN_ERR_MEMORY, "log probabilities of %zu tokens: out of memory", room);
        a->chances = more;
        a->chance_room = room;
    }
    answer_logprob *c = &a->chances[a->ids.count];
    int n = a->logprobs < a->vocabulary ? a->logprobs : (int)a->vocabulary;
    *c = (answer_logprob){.top_count = n, .top = calloc((size_t)n + 1, sizeof *c->top)};
    if (!c->top) return tn_backend_fail(TN_ERR_MEMORY, "%d log probabilities: out of memory", n);
    tn_status status = tn_logprobs(logits, a->vocabulary, id, &c->own, c->top, n);
    if (status != TN_OK) free(c->top);
    return status;
}

static bool ends(const answer *a, int32_t id) {
    return tn_llm_ends(a->model, id) || (a->tokenizer && tn_tokenizer_ends(a->tokenizer, id));
}

/* ---- grammars ---------------------------------------------------------------------------------------------------- */

static tn_status begin_grammar(answer *a) {
    if (!a->grammar) return TN_OK;
    a->ends = calloc((size_t)a->vocabulary, sizeof *a->ends);
    a->logits = calloc((size_t)a->vocabulary, sizeof *a->logits);
    if (!a->ends || !a->logits) return tn_backend_fail(TN_ERR_MEMORY, "grammar: out of memory");
    for (int32_t id = 0; id < a->vocabulary; id++)
        a->ends[id] = ends(a, id);
    return TN_OK;
}

static bool any_is_left(const float *logits, int32_t count) {
    for (int32_t i = 0; i < count; i++)
        if (logits[i] > -INFINITY) return true;
    return false;
}

/* Draws again among the tokens that the grammar allows. */
static tn_status pick_allowed(answer *a, const float *logits, int32_t *id) {
    int32_t vocabulary = a->vocabulary;
    memcpy(a->logits, logits, (size_t)vocabulary * sizeof *logits);
    TRY(tn_grammar_filter(a->grammar, a->ends, a->logits, vocabulary));
    if (any_is_left(a->logits, vocabulary)) return tn_sampler_pick(a->sampler, a->logits, vocabulary, id);
    if (tn_grammar_may_end(a->grammar)) {
        a->stopped = "end";
        return TN_OK;
    }
    return tn_backend_fail(TN_ERR_UNSUPPORTED, "no token of the vocabulary continues the text by the grammar");
}

/* The draw is made first: looking at all tokens takes longer, and the distribution is the same. */
static tn_status pick(answer *a, const float *logits, int32_t *id) {
    bool allowed = true;
    TRY(tn_sampler_pick(a->sampler, logits, a->vocabulary, id));
    if (!a->grammar) return TN_OK;
    if (a->ends[*id])
        allowed = tn_grammar_may_end(a->grammar);
    else
        TRY(tn_grammar_allows(a->grammar, *id, &allowed));
    if (!allowed) TRY(pick_allowed(a, logits, id));
    return a->stopped || a->ends[*id] ? TN_OK : tn_grammar_accept(a->grammar, *id);
}

/* ---- the loop ---------------------------------------------------------------------------------------------------- */

tn_status answer_begin(answer *a) {
    tn_llm_facts facts = {.struct_size = sizeof facts};
    a->stop = -1;
    tn_status status = tn_llm_get_facts(a->model, &facts);
    a->vocabulary = (int32_t)facts.vocabulary;
    a->context = facts.context;
    return status == TN_OK ? begin_grammar(a) : status;
}

bool answer_continues(answer *a) {
    if (a->stopped) return false;
    bool enough = a->most >= 0 && (int64_t)a->ids.count >= a->most;
    a->full = !enough && a->ids.count > 0 && tn_llm_position(a->model) == a->context;
    if (enough || a->full) a->stopped = "length";
    return !a->stopped;
}

tn_status answer_draw(answer *a, const float *logits) {
    int32_t id = 0;
    TRY(pick(a, logits, &id));
    if (!a->stopped && ends(a, id)) a->stopped = "end";
    if (a->stopped) return TN_OK;
    TRY(add_chance(a, logits, id));
    return add_token(a, id);
}

/* The last token is shown and not computed: nothing is wanted behind it. */
static tn_status draw_tokens(answer *a, const float *logits) {
    while (answer_continues(a)) {
        tn_status status = a->ids.count > 0 ? tn_llm_step(a->model, a->ids.data[a->ids.count - 1], &logits) : TN_OK;
        a->steps += a->ids.count > 0;
        if (status != TN_OK) status = move_on(a, status, &logits);
        if (status != TN_OK) return status;
        if (cli_stopped() || ferror(stdout)) a->stopped = "cancelled"; /* main.c reports what standard output has */
        if (a->stopped) break;
        status = answer_draw(a, logits);
        if (status != TN_OK) return status;
    }
    return TN_OK;
}

tn_status answer_generate(answer *a, const float *logits) {
    double start = cli_now();
    tn_status status = answer_begin(a);
    if (status == TN_OK) status = draw_tokens(a, logits);
    if (status == TN_OK) status = answer_end(a);
    a->token_seconds = cli_now() - start;
    return status;
}

void answer_free(answer *a) {
    for (size_t i = 0; a->chances && i < a->ids.count; i++)
        free(a->chances[i].top);
    free(a->chances);
    free(a->ends);
    free(a->logits);
    tn_ids_free(&a->ids);
    tn_bytes_free(&a->text);
    tn_bytes_free(&a->raw);
    *a = (answer){0};
}
