/* llm_draft.c — speculative decoding: several tokens of a sequence in one pass.
 *
 * A draft guesses the tokens that follow, from n-grams of the sequence or by a smaller model. One pass computes the
 * logits after all of them. As long as the caller's next tokens are the guessed ones, tn_llm_step answers from these
 * logits. Each has the bits that a step alone would compute, so what a caller chooses, by whatever rule, does not
 * change. A guess is one token, not a distribution: then the rejection rule of speculative sampling (Leviathan et al.
 * 2023) is to sample from the model and compare, which is what callers do. */
#include <math.h>
#include <string.h>

#include "text/llm_model.h"

enum { NARROW = 4, WIDE = 8, WIDTHS = 3, MOST_NGRAM = 16, LEAST_NGRAM = 2, PROBE_EVERY = 8 };

/* A row for a guess costs about two thirds of a token in a batch. So a conversation guesses while at least LEAST_SHARE
 * of its recent guesses were right, and otherwise only with every PROBE_EVERY-th token, to find out whether that has
 * changed. NEW_SHARE: weight of the last draft in that average. */
static const double LEAST_SHARE = 0.6, NEW_SHARE = 0.25;

/* Tokens of a pass: each has a captured graph, and shorter passes are padded. */
static const int widths[WIDTHS] = {NARROW, WIDE, TN_LLM_DRAFT + 1};

struct llm_draft {
    tn_llm_draft_options o;
    tn_graph *graph[WIDTHS];
    int32_t ids[TN_LLM_DRAFT]; /* guesses of the last pass … */
    int count, at;             /* … and how many of them were taken */
    int length;                /* of the next draft at most: adapts to the accepted tokens */
    double share;              /* accepted part of recent guesses, a moving average */
    int skipped;               /* drafts left out since the last one, because few guesses were accepted */
    float *logits;             /* [TN_LLM_DRAFT + 1, vocabulary] of the last pass */
    tn_llm_draft_facts facts;
};

/* ---- options ----------------------------------------------------------------------------------------------------- */

static tn_status check_draft(const tn_llm *m, const tn_llm_draft_options *o) {
    if (o->tokens < 1 || o->tokens > TN_LLM_DRAFT)
        return tn_backend_fail(TN_ERR_ARGUMENT, "tn_llm_set_draft: tokens is %d; it must be from 1 to %d", o->tokens,
                               (int)TN_LLM_DRAFT);
    if (o->ngram < LEAST_NGRAM || o->ngram > MOST_NGRAM)
        return tn_backend_fail(TN_ERR_ARGUMENT, "tn_llm_set_draft: ngram is %d; it must be from %d to %d", o->ngram,
                               (int)LEAST_NGRAM, (int)MOST_NGRAM);
    if (!(o->least_probability >= 0 && o->least_probability <= 1))
        return tn_backend_fail(TN_ERR_ARGUMENT, "tn_llm_set_draft: least_probability is %g; it must be from 0 to 1",
                               o->least_probability);
    if (o->model == m || (o->model && o->model->draft))
        return tn_backend_fail(TN_ERR_ARGUMENT,
                               "tn_llm_set_draft: the draft's model must be another one, without a draft of its own");
    return TN_OK;
}

void tn_llm_draft_free(struct llm_draft *d) {
    if (!d) return;
    for (int i = 0; i < WIDTHS; i++)
        tn_graph_free(d->graph[i]);
    tn_txt_free_each(d->logits, d);
}

tn_status tn_llm_set_draft(tn_llm *m, const tn_llm_draft_options *options) {
    tn_llm_draft_options o = TN_LLM_DRAFT_DEFAULTS;
    TRY(tn_options_read(&o, options, "tn_llm_set_draft", "tn_llm_draft_options o = TN_LLM_DRAFT_DEFAULTS"));
    if (!m) return tn_backend_fail(TN_ERR_ARGUMENT, "tn_llm_set_draft: the model is NULL");
    if (options) TRY(check_draft(m, &o));
    if (options)
        TRY(tn_llm_refuse_recurrent(m, "tn_llm_set_draft", "their states cannot go back when a guess is wrong"));
    struct llm_draft *d = NULL;
    if (options) {
        d = tn_txt_zalloc(1, sizeof *d);
        if (!d) return TN_ERR_MEMORY;
        d->o = o;
        d->length = o.tokens;
        d->share = 1;
        d->logits = tn_txt_alloc(TN_LLM_DRAFT + 1, (size_t)m->config.size[SIZE_VOCABULARY] * sizeof *d->logits);
        if (!d->logits) {
            tn_llm_draft_free(d);
            return TN_ERR_MEMORY;
        }
    }
    tn_llm_draft_free(m->draft);
    m->draft = d;
    return TN_OK;
}

tn_status tn_llm_get_draft_facts(const tn_llm *m, tn_llm_draft_facts *facts) {
    TRY(tn_txt_check_facts("tn_llm_get_draft_facts: facts", m, facts));
    tn_llm_draft_facts full = m->draft ? m->draft->facts : (tn_llm_draft_facts){0};
    return tn_result_write(facts, &full, sizeof full, "tn_llm_get_draft_facts: facts");
}

void tn_llm_drop_draft(tn_llm *m) {
    if (m->draft) m->draft->count = m->draft->at = 0;
}

void tn_llm_drop_draft_graphs(tn_llm *m) {
    for (int i = 0; m->draft && i < WIDTHS; i++) {
        tn_graph_free(m->draft->graph[i]);
        m->draft->graph[i] = NULL;
    }
    tn_llm_drop_draft(m);
}

/* ---- guesses ----------------------------------------------------------------------------------------------------- */

/* Token `place` of the sequence with `id` after it. */
static int32_t token_at(const tn_llm *m, int32_t id, int64_t place) {
    return place < m->position ? m->tokens[place] : id;
}

/* How many of the last tokens of the sequence also end at `place`, at most `most`. */
static int match_before(const tn_llm *m, int32_t id, int64_t place, int most) {
    int n = 0;
    while (n < most && place - n >= 0 && token_at(m, id, place - n) == token_at(m, id, m->position - n))
        n++;
    return n;
}

/* What followed the longest earlier occurrence of the last tokens; of equal ones the latest. */
static int guess_by_ngrams(const tn_llm *m, const struct llm_draft *d, int32_t id, int most, int32_t *out) {
    int64_t found = -1;
    int longest = LEAST_NGRAM - 1;
    for (int64_t place = m->position - 1; place >= 0 && longest < d->o.ngram; place--) {
        int n = match_before(m, id, place, d->o.ngram);
        if (n > longest) longest = n, found = place;
    }
    int count = 0;
    if (found < 0) return 0;
    while (count < most && found + 1 + count <= m->position) {
        out[count] = token_at(m, id, found + 1 + count);
        count++;
    }
    return count;
}

/* The most probable token, and its probability. */
static int32_t likeliest(const float *logits, int64_t count, double *probability) {
    int64_t best = 0;
    for (int64_t i = 1; i < count; i++)
        if (logits[i] > logits[best]) best = i;
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += exp((double)logits[i] - (double)logits[best]);
    *probability = 1 / sum;
    return (int32_t)best;
}

/* Brings the draft's sequence to that of m with id after it. */
static tn_status follow(const tn_llm *m, tn_llm *draft, int32_t id, const float **logits) {
    int64_t kept = 0;
    while (kept < draft->position && kept < m->position && draft->tokens[kept] == m->tokens[kept])
        kept++;
    TRY(tn_llm_rewind(draft, kept));
    if (kept < m->position) TRY(tn_llm_prompt(draft, m->tokens + kept, m->position - kept, NULL));
    return tn_llm_step(draft, id, logits);
}

static bool knows_all(const tn_llm *draft, const tn_llm *m, int32_t id) {
    int64_t vocabulary = draft->config.size[SIZE_VOCABULARY];
    if (m->config.size[SIZE_VOCABULARY] <= vocabulary) return true;
    for (int64_t i = 0; i <= m->position; i++)
        if (token_at(m, id, i) >= vocabulary) return false;
    return true;
}

/* The draft model's most probable tokens, up to the first that is not probable enough. */
static tn_status guess_by_model(const tn_llm *m, const struct llm_draft *d, int32_t id, int most, int32_t *out,
                                int *count) {
    tn_llm *draft = d->o.model;
    const float *logits = NULL;
    double probability = 0;
    *count = 0;
    if (draft->config.context - m->position <= most || !knows_all(draft, m, id)) return TN_OK;
    TRY(follow(m, draft, id, &logits));
    for (;;) {
        int32_t next = likeliest(logits, draft->config.size[SIZE_VOCABULARY], &probability);
        if (!(probability >= d->o.least_probability) || next >= m->config.size[SIZE_VOCABULARY]) return TN_OK;
        out[(*count)++] = next;
        if (*count == most) return TN_OK;
        TRY(tn_llm_step(draft, next, &logits));
    }
}

/* ---- a pass ------------------------------------------------------------------------------------------------------ */

/* The narrowest graph for this many tokens that fits into the context; -1: none fits. */
static int choose_width(const tn_llm *m, int tokens) {
    for (int i = 0; i < WIDTHS; i++)
        if (widths[i] >= tokens && widths[i] <= m->config.context - m->position) return i;
    return -1;
}

static void pass_inputs(const tn_llm *m, int width, tn_tensor *out[2]) {
    for (int i = 0; i < width; i++)
        m->places[i] = (float)(m->position + i);
    out[0] = tn_llm_rows(m, m->rows, width);
    out[1] = tn_from_data(m->places, TN_DIMS(width, 1, 1), TN_F32);
}

/* Capturing computes the pass that it is captured with. */
static tn_status run_graph(tn_llm *m, int width, tn_graph **graph, tn_tensor **logits) {
    tn_tensor *inputs[2];
    if (*graph) {
        TRY(tn_graph_set_runtime_scalar(*graph, 0, (double)m->position));
        pass_inputs(m, width, inputs);
        return tn_graph_launch(*graph, inputs, logits);
    }
    TRY(tn_capture_begin());
    pass_inputs(m, width, inputs);
    llm_inputs in = {.rows = inputs[0], .positions = inputs[1], .position = tn_runtime_scalar_int(m->position)};
    tn_tensor *made = tn_llm_record(&m->config, &m->weights, &in, LLM_ALL_ROWS);
    tn_status status = tn_capture_end(inputs, 2, &made, 1, graph);
    *logits = made;
    return status;
}

/* The logits after id and after each guess. What stands in the cache after the sequence is overwritten later. */
static tn_status run_pass(tn_llm *m, struct llm_draft *d, int32_t id, int count, int which) {
    int32_t ids[TN_LLM_DRAFT + 1] = {0};
    ids[0] = id;
    memcpy(ids + 1, d->ids, (size_t)count * sizeof *ids);
    TRY(tn_llm_read_rows(m, ids, widths[which]));
    TN_SCOPE;
    tn_tensor *logits = NULL;
    bool captured = !d->graph[which];
    tn_status status = run_graph(m, widths[which], &d->graph[which], &logits);
    size_t row = (size_t)m->config.size[SIZE_VOCABULARY] * sizeof *d->logits;
    const void *at = NULL;
    if (status == TN_OK) status = tn_peek(logits, &at);
    if (status == TN_OK && at) memcpy(d->logits, at, (size_t)(count + 1) * row);
    if (status == TN_OK && !at) status = tn_read(logits, d->logits, (size_t)widths[which] * row);
    if (captured) tn_free(logits);
    return status;
}

/* Longer drafts while all tokens are accepted; otherwise a little longer than the accepted part. */
static void choose_length(struct llm_draft *d) {
    if (d->count == 0) return;
    d->share += NEW_SHARE * ((double)d->at / d->count - d->share);
    d->length = d->at == d->count ? 2 * d->length : d->at + 1;
    if (d->length < LEAST_NGRAM) d->length = LEAST_NGRAM;
    if (d->length > d->o.tokens) d->length = d->o.tokens;
}

bool tn_llm_draft_holds(const tn_llm *m, int32_t id) {
    const struct llm_draft *d = m->draft;
    return d && d->at < d->count && d->ids[d->at] == id;
}

const float *tn_llm_draft_accept(tn_llm *m) {
    struct llm_draft *d = m->draft;
    d->facts.accepted++;
    tn_llm_append_accepted(m, d->ids[d->at++]);
    return d->logits + (int64_t)d->at * m->config.size[SIZE_VOCABULARY];
}

tn_status tn_llm_draft_make(const tn_llm *m, int32_t id, bool batch, const int32_t **ids, int *count) {
    struct llm_draft *d = m->draft;
    int64_t room = m->config.context - m->position - 1;
    choose_length(d);
    int most = d->length < room ? d->length : (int)room;
    d->count = d->at = *count = 0;
    *ids = d->ids;
    if (most < 1 || (batch && d->share < LEAST_SHARE && ++d->skipped < PROBE_EVERY)) return TN_OK;
    d->skipped = 0;
    if (d->o.model) return guess_by_model(m, d, id, most, d->ids, count);
    *count = guess_by_ngrams(m, d, id, most, d->ids);
    return TN_OK;
}

void tn_llm_draft_checked(tn_llm *m, int32_t id, int count, const float *logits) {
    struct llm_draft *d = m->draft;
    d->count = count;
    if (count > 0) {
        if (logits != d->logits)
            memcpy(d->logits, logits, (size_t)(count + 1) * (size_t)m->config.size[SIZE_VOCABULARY] * sizeof *logits);
        d->facts.passes++;
        d->facts.drafted += count;
    }
    tn_llm_append_accepted(m, id);
}

tn_status tn_llm_step_drafted(tn_llm *m, int32_t id, const float **logits) {
    struct llm_draft *d = m->draft;
    const float *found;
    const int32_t *guesses;
    if (tn_llm_draft_holds(m, id)) {
        found = tn_llm_draft_accept(m);
        if (logits) *logits = found;
        return TN_OK;
    }
    int count = 0;
    TRY(tn_llm_draft_make(m, id, false, &guesses, &count));
    int which = count > 0 ? choose_width(m, count + 1) : -1;
    if (which < 0) return tn_llm_step_alone(m, id, logits);
    AUTO_DEVICE(m->device);
    TRY(tn_llm_mend(m, run_pass(m, d, id, count, which)));
    tn_llm_draft_checked(m, id, count, d->logits);
    if (logits) *logits = d->logits;
    return TN_OK;
}
