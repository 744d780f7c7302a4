/* llm_batch.c — the next token of several conversations in one pass.
 *
 * Each weight is read once for all of them: the tokens are the rows of every product. Attention is one call for all
 * conversations if their caches are one pool, else one for each. A captured graph serves every step; its inputs are the
 * rows of the embedding and the positions.
 *
 * With drafts, if the caches are one pool, a pass has a row for the token and for each guess of a conversation, and no
 * row for a conversation whose token was guessed in an earlier pass. Which sequence a row belongs to is an input then:
 * its row of pages. */
#include <inttypes.h>
#include <string.h>

#include "text/llm_model.h"

/* Rows of a pass with drafts: each number has a captured graph. */
enum { PASSES = 12, MOST_ROWS = TN_LLM_BATCH, ROWS_EACH = 4 };
/* A step of more tokens does not guess: there a row for a guess costs nearly as much as a token. */
enum { FEW = 5 };
static const int pass_rows[PASSES] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, MOST_ROWS};

struct tn_llm_batch {
    tn_llm **models;
    int count;
    int most_rows; /* of a pass: with drafts ROWS_EACH for each conversation, if there is room */
    tn_graph *graph, *drafted[PASSES];
    int64_t *renewals; /* of each model's caches when the graphs were captured */
    llm_sequence *sequences;
    const llm_pool *pool; /* that had all caches when the graphs were captured; NULL: there was none */
    int64_t *numbers;     /* ids, then positions */
    int64_t *pages;       /* with drafts: of each row's sequence [rows, pages] */
    void *rows;
    float *places;
    float *logits; /* [count, vocabulary] */
    uint8_t goes_on[TN_LLM_BATCH];
};

/* Not if one was made before the other had a trainer. */
static bool have_same_weights(const tn_llm *x, const tn_llm *y) {
    const llm_lora *own = x->weights.lora, *other = y->weights.lora;
    bool same =
        x->file == y->file && x->weights.head[SLOT_EMBEDDING] == y->weights.head[SLOT_EMBEDDING] && !own == !other;
    for (int64_t i = 0; same && own && i < x->config.layers * LAYER_SLOTS; i++)
        same = own[i].a == other[i].a;
    return same;
}

static tn_status check_models(tn_llm *const *models, int count) {
    if (!models || count < 1 || count > TN_LLM_BATCH)
        return tn_backend_fail(TN_ERR_ARGUMENT, "tn_llm_batch_new: %d conversations at %p; 1 to %d can be batched",
                               count, (const void *)models, (int)TN_LLM_BATCH);
    for (int i = 0; i < count; i++) {
        if (!models[i]) return tn_backend_fail(TN_ERR_ARGUMENT, "tn_llm_batch_new: conversation %d is NULL", i);
        if (!have_same_weights(models[i], models[0]))
            return tn_backend_fail(TN_ERR_ARGUMENT,
                                   "tn_llm_batch_new: conversation %d has other weights than the first; make it with "
                                   "tn_llm_new_conversation, behind tn_finetune_new if there is a trainer",
                                   i);
        if (models[i]->config.context != models[0]->config.context &&
            models[0]->config.positions.rope.kind == ROPE_LONG)
            return tn_backend_fail(TN_ERR_ARGUMENT,
                                   "tn_llm_batch_new: conversation %d has a context of %" PRId64 ", the first %" PRId64
                                   "; with longrope they have to be equal",
                                   i, models[i]->config.context, models[0]->config.context);
        for (int k = 0; k < i; k++)
            if (models[k] == models[i])
                return tn_backend_fail(TN_ERR_ARGUMENT, "tn_llm_batch_new: conversations %d and %d are the same", k, i);
    }
    return TN_OK;
}

static tn_status take_batch_memory(tn_llm_batch *b, tn_llm *const *models, int count) {
    const tn_llm *m = models[0];
    size_t rows = (size_t)(count * ROWS_EACH < MOST_ROWS ? count * ROWS_EACH : MOST_ROWS);
    b->count = count;
    b->most_rows = (int)rows;
    b->models = tn_txt_alloc((size_t)count, sizeof *b->models);
    b->renewals = tn_txt_zalloc((size_t)count, sizeof *b->renewals);
    b->sequences = tn_txt_zalloc((size_t)count, sizeof *b->sequences);
    b->numbers = tn_txt_alloc(rows, sizeof *b->numbers);
    b->places = tn_txt_alloc(rows, sizeof *b->places);
    size_t row = tn_llm_embedding_row(m), trained = tn_dtype_bytes(TN_F32, tn_llm_row_width(&m->config));
    b->rows = tn_txt_alloc(rows, row > trained ? row : trained);
    b->logits = tn_txt_alloc((size_t)count, (size_t)m->config.size[SIZE_VOCABULARY] * sizeof *b->logits);
    bool all = b->models && b->renewals && b->sequences && b->numbers && b->places && b->rows && b->logits;
    if (all) memcpy(b->models, models, (size_t)count * sizeof(tn_llm *));
    for (int i = 0; i < count && all; i++)
        b->renewals[i] = -1; /* nothing is captured yet */
    return all ? TN_OK : TN_ERR_MEMORY;
}

tn_status tn_llm_batch_new(tn_llm *const *models, int count, tn_llm_batch **out) {
    if (!out) return tn_backend_fail(TN_ERR_ARGUMENT, "tn_llm_batch_new: out is NULL");
    *out = NULL;
    TRY(check_models(models, count));
    tn_llm_batch *b = tn_txt_zalloc(1, sizeof *b);
    tn_status status = b ? take_batch_memory(b, models, count) : TN_ERR_MEMORY;
    if (status == TN_OK)
        *out = b;
    else
        tn_llm_batch_free(b);
    return status;
}

static void free_graphs(tn_llm_batch *b) {
    tn_graph_free(b->graph);
    b->graph = NULL;
    for (int i = 0; i < PASSES; i++) {
        tn_graph_free(b->drafted[i]);
        b->drafted[i] = NULL;
    }
}

void tn_llm_batch_free(tn_llm_batch *b) {
    if (!b) return;
    free_graphs(b);
    tn_txt_free_each(b->pages, b->models, b->renewals, b->sequences, b->numbers, b->places, b->rows, b->logits, b);
}

/* ---- a step ------------------------------------------------------------------------------------------------------ */

static tn_status check_step(const tn_llm_batch *b, const int32_t *ids) {
    if (!b || !ids) return tn_backend_fail(TN_ERR_ARGUMENT, "tn_llm_batch_step: an argument is NULL");
    int64_t vocabulary = b->models[0]->config.size[SIZE_VOCABULARY];
    for (int i = 0; i < b->count; i++) {
        const tn_llm *m = b->models[i];
        if (ids[i] >= vocabulary)
            return tn_backend_fail(TN_ERR_ARGUMENT, "conversation %d: token %" PRId32 "; the vocabulary has %" PRId64,
                                   i, ids[i], vocabulary);
        if (ids[i] >= 0 && m->position == m->config.context)
            return tn_backend_fail(
                TN_ERR_ARGUMENT, "conversation %d: its context of %" PRId64 " tokens is full; rewind it or let it wait",
                i, m->config.context);
    }
    return TN_OK;
}

/* A waiting conversation gets a dummy token after its sequence. The caches' rows that it changes are written again
 * before they are read; if the context is full there are none. It changes no states of recurrent layers. */
static tn_status read_batch_rows(tn_llm_batch *b, const int32_t *ids) {
    for (int i = 0; i < b->count; i++) {
        if (ids[i] >= 0) TRY(tn_llm_refresh(b->models[i]));
        b->goes_on[i] = ids[i] >= 0;
        b->numbers[i] = ids[i] < 0 ? 0 : ids[i];
        b->places[i] = ids[i] < 0 ? 0 : (float)b->models[i]->position;
    }
    return tn_llm_copy_rows(b->models[0], b->numbers, b->count, b->rows);
}

enum { MOST_INPUTS = 4 };

static bool is_recurrent_batch(const tn_llm_batch *b) { return b->models[0]->config.recurrent.layers > 0; }

/* Returns how many: recurrent layers read which sequences go on; a pool has the positions as whole numbers too. */
static int batch_inputs(const tn_llm_batch *b, tn_tensor *out[MOST_INPUTS]) {
    const tn_llm *m = b->models[0];
    out[0] = tn_llm_rows(m, b->rows, b->count);
    out[1] = tn_from_data(b->places, TN_DIMS(b->count, 1, 1), TN_F32);
    int count = 2;
    if (is_recurrent_batch(b)) out[count++] = tn_from_data(b->goes_on, TN_DIMS(b->count), TN_BOOL);
    if (!b->pool) return count;
    for (int i = 0; i < b->count; i++)
        b->numbers[i] = b->models[i]->position;
    out[count++] = tn_from_data(b->numbers, TN_DIMS(b->count), TN_I64);
    return count;
}

/* The pool that holds the caches of all conversations; NULL if they share none. */
static const llm_pool *find_pool(const tn_llm_batch *b) {
    for (int i = 1; i < b->count; i++)
        if (b->models[i]->pool != b->models[0]->pool) return NULL;
    return b->models[0]->pool;
}

/* Pages of all conversations, a row each. */
static tn_tensor *all_pages(const tn_llm_batch *b) {
    tn_tensor *rows[TN_LLM_BATCH];
    for (int i = 0; i < b->count; i++)
        rows[i] = tn_unsqueeze(b->models[i]->weights.pages, 0);
    return b->count == 1 ? rows[0] : tn_cat(rows, b->count, 0);
}

/* Each conversation's states and caches; and its position, unless that is an input. */
static void list_sequences(tn_llm_batch *b, llm_inputs *in) {
    for (int i = 0; i < b->count; i++) {
        const tn_llm *own = b->models[i];
        tn_tensor *position = b->pool ? NULL : tn_runtime_scalar_int(own->position);
        b->sequences[i] = (llm_sequence){position, own->weights.pages, own->weights.layers};
    }
    in->sequences = b->sequences;
    in->sequence_count = b->count;
}

/* Graphs are captured with the caches and weights of that time. */
static tn_status follow_models(tn_llm_batch *b) {
    bool same = true;
    for (int i = 0; i < b->count; i++)
        same = same && b->renewals[i] == b->models[i]->renewals;
    if (same) return TN_OK;
    TRY(check_models(b->models, b->count));
    free_graphs(b);
    b->pool = find_pool(b);
    for (int i = 0; i < b->count; i++)
        b->renewals[i] = b->models[i]->renewals;
    return TN_OK;
}

static size_t logits_bytes(const tn_llm_batch *b) {
    return (size_t)b->models[0]->config.size[SIZE_VOCABULARY] * sizeof *b->logits;
}

/* Capturing computes the step that it is captured with. */
static tn_status capture_batch(tn_llm_batch *b) {
    const tn_llm *m = b->models[0];
    TN_SCOPE;
    tn_tensor *pages = b->pool ? all_pages(b) : NULL, *inputs[MOST_INPUTS];
    if (pages) TRY(tn_eval(&pages, 1));
    TRY(tn_capture_begin());
    int count = batch_inputs(b, inputs);
    bool recurrent = is_recurrent_batch(b);
    llm_inputs in = {.rows = inputs[0], .positions = inputs[1], .pages = pages};
    if (recurrent) in.goes_on = inputs[2];
    if (pages) in.position = inputs[count - 1];
    if (recurrent || !pages) list_sequences(b, &in);
    AUTO_TXT_TENSOR tn_tensor *logits = tn_llm_record(&m->config, &m->weights, &in, LLM_ALL_ROWS);
    TRY(tn_capture_end(inputs, count, &logits, 1, &b->graph));
    return tn_read(logits, b->logits, (size_t)b->count * logits_bytes(b));
}

static tn_status launch_batch(tn_llm_batch *b) {
    for (int i = 0; i < b->count && !b->pool; i++)
        TRY(tn_graph_set_runtime_scalar(b->graph, i, (double)b->models[i]->position));
    TN_SCOPE;
    tn_tensor *inputs[MOST_INPUTS], *logits = NULL;
    (void)batch_inputs(b, inputs);
    TRY(tn_graph_launch(b->graph, inputs, &logits));
    return tn_read(logits, b->logits, (size_t)b->count * logits_bytes(b));
}

/* ---- a step with drafts ------------------------------------------------------------------------------------------ */

/* The rows of one conversation in a pass: its token, then guesses. */
typedef struct share {
    bool waits;    /* its id is negative: it has no rows */
    bool accepted; /* its token was guessed: its logits are known, so it has no rows */
    int first, guesses;
    const int32_t *ids; /* the guesses */
} share;

/* Chooses the pass for `needed` tokens, or with guesses `all` rows: the largest that has at most `all` rows, for which
 * guesses are left out; or the smallest in which the tokens have room. */
static int choose_pass(const tn_llm_batch *b, int needed, int all) {
    int which = 0;
    for (int i = 0; i < PASSES && pass_rows[i] <= all && pass_rows[i] <= b->most_rows; i++)
        which = i;
    while (pass_rows[which] < needed)
        which++;
    return which;
}

/* Lets the drafts guess, and gives each conversation its rows. *which: the pass; -1: no token has to be computed. */
static tn_status divide_rows(tn_llm_batch *b, const int32_t *ids, share *shares, int *which) {
    int needed = 0, first = 0;
    for (int i = 0; i < b->count; i++) {
        shares[i] = (share){.waits = ids[i] < 0, .accepted = ids[i] >= 0 && tn_llm_draft_holds(b->models[i], ids[i])};
        needed += !shares[i].waits && !shares[i].accepted;
    }
    int all = needed;
    for (int i = 0; i < b->count && needed <= FEW; i++) {
        const tn_llm *m = b->models[i];
        share *s = &shares[i];
        if (s->waits || s->accepted || !m->draft) continue;
        TRY(tn_llm_draft_make(m, ids[i], true, &s->ids, &s->guesses));
        all += s->guesses;
    }
    *which = needed > 0 ? choose_pass(b, needed, all) : -1;
    for (; *which >= 0 && all > pass_rows[*which] && all > needed; all--) {
        share *longest = shares;
        for (int i = 1; i < b->count; i++)
            if (shares[i].guesses > longest->guesses) longest = &shares[i];
        longest->guesses--;
    }
    for (int i = 0; i < b->count; i++) {
        shares[i].first = first;
        if (!shares[i].waits && !shares[i].accepted) first += 1 + shares[i].guesses;
    }
    return TN_OK;
}

/* Unused rows of the pass have no pages (-1), so nothing is written to a cache. */
static tn_status read_drafted_rows(tn_llm_batch *b, const int32_t *ids, const share *shares, int count) {
    const int64_t pages = b->models[0]->config.pages;
    int64_t tokens[MOST_ROWS] = {0};
    if (!b->pages) b->pages = tn_txt_alloc((size_t)(b->most_rows * pages), sizeof *b->pages);
    if (!b->pages) return TN_ERR_MEMORY;
    for (int r = 0; r < count; r++)
        b->places[r] = 0;
    for (int64_t i = 0; i < count * pages; i++)
        b->pages[i] = -1;
    for (int i = 0; i < b->count; i++) {
        const tn_llm *m = b->models[i];
        const share *s = &shares[i];
        for (int k = 0, r = s->first; k <= s->guesses && !s->waits && !s->accepted; k++, r++) {
            tokens[r] = k == 0 ? ids[i] : s->ids[k - 1];
            b->places[r] = (float)(m->position + k);
            for (int64_t p = 0; p < pages; p++)
                b->pages[r * pages + p] = tn_llm_first_page(m) + p;
        }
    }
    TRY(tn_llm_copy_rows(b->models[0], tokens, count, b->rows));
    for (int r = 0; r < count; r++)
        b->numbers[r] = (int64_t)b->places[r];
    return TN_OK;
}

static void drafted_inputs(const tn_llm_batch *b, int rows, tn_tensor *out[MOST_INPUTS]) {
    const tn_llm *m = b->models[0];
    out[0] = tn_llm_rows(m, b->rows, rows);
    out[1] = tn_from_data(b->places, TN_DIMS(rows, 1, 1), TN_F32);
    out[2] = tn_from_data(b->numbers, TN_DIMS(rows), TN_I64);
    out[3] = tn_from_data(b->pages, TN_DIMS(rows, m->config.pages), TN_I64);
}

static tn_status run_drafted(tn_llm_batch *b, int which, tn_tensor **logits) {
    const tn_llm *m = b->models[0];
    tn_tensor *inputs[MOST_INPUTS];
    if (b->drafted[which]) {
        drafted_inputs(b, pass_rows[which], inputs);
        return tn_graph_launch(b->drafted[which], inputs, logits);
    }
    TRY(tn_capture_begin());
    drafted_inputs(b, pass_rows[which], inputs);
    llm_inputs in = {inputs[0], .positions = inputs[1], .position = inputs[2], .pages = inputs[3], .drafted = true};
    *logits = tn_llm_record(&m->config, &m->weights, &in, LLM_ALL_ROWS);
    return tn_capture_end(inputs, MOST_INPUTS, logits, 1, &b->drafted[which]);
}

/* Everything is computed: gives each conversation its token and its logits. pass: [rows, vocabulary]. */
static void hand_out(tn_llm_batch *b, const int32_t *ids, const share *shares, const float *pass) {
    int64_t vocabulary = b->models[0]->config.size[SIZE_VOCABULARY];
    for (int i = 0; i < b->count; i++) {
        tn_llm *m = b->models[i];
        const share *s = &shares[i];
        const float *own = pass ? pass + s->first * vocabulary : NULL;
        if (s->waits) continue;
        if (s->accepted)
            own = tn_llm_draft_accept(m);
        else if (m->draft)
            tn_llm_draft_checked(m, ids[i], s->guesses, own);
        else
            tn_llm_append(m, &ids[i], 1);
        memcpy(b->logits + i * vocabulary, own, logits_bytes(b));
    }
}

static tn_status pass_drafted(tn_llm_batch *b, const int32_t *ids, const share *shares, int which) {
    const int rows = pass_rows[which];
    tn_tensor *logits = NULL;
    const void *at = NULL;
    AUTO_TXT_FREE float *copy = NULL;
    AUTO_TXT_TENSOR tn_tensor *captured = NULL;
    TRY(read_drafted_rows(b, ids, shares, rows));
    TN_SCOPE;
    bool captures = !b->drafted[which];
    tn_status status = run_drafted(b, which, &logits);
    if (captures) captured = logits;
    TRY(status);
    TRY(tn_peek(logits, &at));
    if (!at) {
        copy = tn_txt_alloc((size_t)rows, logits_bytes(b));
        if (!copy) return TN_ERR_MEMORY;
        TRY(tn_read(logits, copy, (size_t)rows * logits_bytes(b)));
    }
    hand_out(b, ids, shares, at ? at : copy);
    return TN_OK;
}

static tn_status step_drafted(tn_llm_batch *b, const int32_t *ids) {
    share shares[TN_LLM_BATCH];
    int which;
    TRY(divide_rows(b, ids, shares, &which));
    if (which >= 0) return pass_drafted(b, ids, shares, which);
    hand_out(b, ids, shares, NULL);
    return TN_OK;
}

/* Only the CPU's attention has several rows of a sequence. */
static bool takes_drafts(const tn_llm_batch *b, const int32_t *ids) {
    tn_device_info info = {.struct_size = sizeof info};
    int drafts = 0, needed = 0, accepted = 0;
    for (int i = 0; i < b->count; i++) {
        bool held = ids[i] >= 0 && tn_llm_draft_holds(b->models[i], ids[i]);
        drafts += b->models[i]->draft != NULL;
        accepted += held;
        needed += ids[i] >= 0 && !held;
    }
    if (!b->pool || drafts == 0 || (needed > FEW && accepted == 0)) return false;
    return tn_device_get_info(b->models[0]->device, &info) == TN_OK && strcmp(info.backend, "cpu") == 0;
}

/* ---- both -------------------------------------------------------------------------------------------------------- */

tn_status tn_llm_batch_step(tn_llm_batch *b, const int32_t *ids, const float **logits) {
    TRY(check_step(b, ids));
    TRY(follow_models(b));
    AUTO_DEVICE(b->models[0]->device);
    bool drafted = takes_drafts(b, ids);
    tn_status status = drafted ? step_drafted(b, ids) : read_batch_rows(b, ids);
    if (status == TN_OK && !drafted) status = b->graph ? launch_batch(b) : capture_batch(b);
    for (int i = 0; i < b->count && status != TN_OK; i++) {
        status = tn_llm_mend(b->models[i], status);
        tn_llm_drop_draft(b->models[i]);
    }
    TRY(status);
    for (int i = 0; i < b->count && !drafted; i++) {
        if (ids[i] >= 0)
            tn_llm_append(b->models[i], &ids[i], 1);
        else
            tn_llm_drop_draft(b->models[i]); /* the dummy token overwrote what the cache had of its guesses */
    }
    if (logits) *logits = b->logits;
    return TN_OK;
}
