/* llm_batch.c — the next token of several conversations in one pass.
 *
 * Each weight is read once for all of them: the tokens are the rows of every product. Attention is one call for all
 * conversations if their caches are one pool, else one for each. A captured graph serves every step; its inputs are the
 * rows of the embedding and the positions. */
#include <inttypes.h>
#include <string.h>

#include "text/llm_model.h"

struct tn_llm_batch {
    tn_llm **models;
    int count;
    tn_graph *graph;
    tn_tensor **first_caches; /* that the graph was captured with: a model may have made others */
    llm_sequence *sequences;
    const llm_pool *pool; /* that had all caches when the graph was captured; NULL: there was none */
    int64_t *numbers;     /* ids, then positions */
    void *rows;
    float *places;
    float *logits; /* [count, vocabulary] */
};

static tn_status check_models(tn_llm *const *models, int count) {
    if (!models || count < 1 || count > TN_LLM_BATCH)
        return tn_backend_fail(TN_ERR_ARGUMENT, "tn_llm_batch_new: %d conversations at %p; 1 to %d can be batched",
                               count, (const void *)models, (int)TN_LLM_BATCH);
    for (int i = 0; i < count; i++) {
        if (!models[i]) return tn_backend_fail(TN_ERR_ARGUMENT, "tn_llm_batch_new: conversation %d is NULL", i);
        if (models[i]->file != models[0]->file)
            return tn_backend_fail(TN_ERR_ARGUMENT,
                                   "tn_llm_batch_new: conversation %d has other weights than the first; make it with "
                                   "tn_llm_new_conversation",
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
    b->count = count;
    b->models = tn_txt_alloc((size_t)count, sizeof *b->models);
    b->first_caches = tn_txt_zalloc((size_t)count, sizeof *b->first_caches);
    b->sequences = tn_txt_zalloc((size_t)count, sizeof *b->sequences);
    b->numbers = tn_txt_alloc((size_t)count, sizeof *b->numbers);
    b->places = tn_txt_alloc((size_t)count, sizeof *b->places);
    b->rows = tn_txt_alloc((size_t)count, tn_llm_embedding_row(m));
    b->logits = tn_txt_alloc((size_t)count, (size_t)m->config.size[SIZE_VOCABULARY] * sizeof *b->logits);
    bool all = b->models && b->first_caches && b->sequences && b->numbers && b->places && b->rows && b->logits;
    if (all) memcpy(b->models, models, (size_t)count * sizeof(tn_llm *));
    return all ? TN_OK : TN_ERR_MEMORY;
}

tn_status tn_llm_batch_new(tn_llm *const *models, int count, tn_llm_batch **out) {
    if (!out) return tn_backend_fail(TN_ERR_ARGUMENT, "tn_llm_batch_new: out is NULL");
    *out = NULL;
    TRY(check_models(models, count));
    tn_llm_batch *b = tn_txt_zalloc(1, sizeof *b);
    tn_status status = b ? take_batch_memory(b, models, count) : TN_ERR_MEMORY;
    if (status != TN_OK) {
        tn_llm_batch_free(b);
        return status;
    }
    *out = b;
    return TN_OK;
}

void tn_llm_batch_free(tn_llm_batch *b) {
    if (!b) return;
    tn_graph_free(b->graph);
    tn_txt_free(b->models);
    tn_txt_free(b->first_caches);
    tn_txt_free(b->sequences);
    tn_txt_free(b->numbers);
    tn_txt_free(b->places);
    tn_txt_free(b->rows);
    tn_txt_free(b->logits);
    tn_txt_free(b);
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
        if (m->position == m->config.context)
            return tn_backend_fail(TN_ERR_ARGUMENT,
                                   "conversation %d: its context of %" PRId64
                                   " tokens is full; make a batch without it, or rewind it",
                                   i, m->config.context);
    }
    return TN_OK;
}

/* A waiting conversation gets a dummy token after its sequence; it is overwritten before it is read. */
static tn_status read_batch_rows(tn_llm_batch *b, const int32_t *ids) {
    for (int i = 0; i < b->count; i++) {
        b->numbers[i] = ids[i] < 0 ? 0 : ids[i];
        b->places[i] = (float)b->models[i]->position;
    }
    return tn_llm_copy_rows(b->models[0], b->numbers, b->count, b->rows);
}

enum { MOST_INPUTS = 3 };

/* Returns how many: a pool has the positions as whole numbers too. */
static int batch_inputs(const tn_llm_batch *b, tn_tensor *out[MOST_INPUTS]) {
    const tn_llm *m = b->models[0];
    tn_dtype dtype = tn_dtype_of(m->weights.head[SLOT_EMBEDDING]);
    out[0] = tn_from_data(b->rows, TN_DIMS(b->count, tn_llm_row_width(&m->config)), dtype);
    out[1] = tn_from_data(b->places, TN_DIMS(b->count, 1, 1), TN_F32);
    if (!b->pool) return 2;
    for (int i = 0; i < b->count; i++)
        b->numbers[i] = b->models[i]->position;
    out[2] = tn_from_data(b->numbers, TN_DIMS(b->count), TN_I64);
    return 3;
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

/* Each conversation's caches and position. */
static void list_sequences(tn_llm_batch *b, llm_inputs *in) {
    for (int i = 0; i < b->count; i++) {
        const tn_llm *own = b->models[i];
        b->sequences[i] = (llm_sequence){tn_runtime_scalar_int(own->position), own->weights.pages, own->weights.layers};
    }
    in->sequences = b->sequences;
    in->sequence_count = b->count;
}

static bool is_current(const tn_llm_batch *b) {
    for (int i = 0; i < b->count; i++)
        if (b->first_caches[i] != b->models[i]->weights.layers[0].cache[CACHE_KEYS]) return false;
    return b->graph != NULL;
}

/* Capturing computes the step that it is captured with. */
static tn_status capture_batch(tn_llm_batch *b) {
    const tn_llm *m = b->models[0];
    tn_graph_free(b->graph);
    b->graph = NULL;
    b->pool = find_pool(b);
    TN_SCOPE;
    tn_tensor *pages = b->pool ? all_pages(b) : NULL, *inputs[MOST_INPUTS];
    if (pages) TRY(tn_eval(&pages, 1));
    TRY(tn_capture_begin());
    int count = batch_inputs(b, inputs);
    llm_inputs in = {.rows = inputs[0], .positions = inputs[1], .pages = pages};
    if (pages)
        in.position = inputs[2];
    else
        list_sequences(b, &in);
    for (int i = 0; i < b->count; i++)
        b->first_caches[i] = b->models[i]->weights.layers[0].cache[CACHE_KEYS];
    tn_tensor *logits = tn_llm_record(&m->config, &m->weights, &in, LLM_ALL_ROWS);
    tn_status status = tn_capture_end(inputs, count, &logits, 1, &b->graph);
    if (status == TN_OK)
        status =
            tn_read(logits, b->logits, (size_t)b->count * (size_t)m->config.size[SIZE_VOCABULARY] * sizeof *b->logits);
    tn_free(logits);
    return status;
}

static tn_status launch_batch(tn_llm_batch *b) {
    const tn_llm *m = b->models[0];
    for (int i = 0; i < b->count && !b->pool; i++)
        TRY(tn_graph_set_runtime_scalar(b->graph, i, (double)b->models[i]->position));
    TN_SCOPE;
    tn_tensor *inputs[MOST_INPUTS], *logits = NULL;
    (void)batch_inputs(b, inputs);
    TRY(tn_graph_launch(b->graph, inputs, &logits));
    size_t bytes = (size_t)b->count * (size_t)m->config.size[SIZE_VOCABULARY] * sizeof *b->logits;
    tn_status status = tn_read(logits, b->logits, bytes);
    return status;
}

/* Conversations with recurrent layers: one after the other, and all or none. */
static tn_status step_each(tn_llm_batch *b, const int32_t *ids) {
    size_t count = (size_t)b->models[0]->config.size[SIZE_VOCABULARY];
    for (int i = 0; i < b->count; i++) {
        const float *row;
        if (ids[i] < 0) continue;
        tn_status status = tn_llm_step(b->models[i], ids[i], &row);
        if (status == TN_OK) {
            memcpy(b->logits + (size_t)i * count, row, count * sizeof *row);
            continue;
        }
        for (int k = 0; k < i; k++)
            if (ids[k] >= 0) (void)tn_llm_rewind(b->models[k], b->models[k]->position - 1);
        return status;
    }
    return TN_OK;
}

tn_status tn_llm_batch_step(tn_llm_batch *b, const int32_t *ids, const float **logits) {
    TRY(check_step(b, ids));
    if (b->models[0]->config.recurrent.layers > 0) {
        TRY(step_each(b, ids));
        if (logits) *logits = b->logits;
        return TN_OK;
    }
    const tn_llm *first = b->models[0];
    tn_device *before = tn_llm_enter(first);
    tn_status status = read_batch_rows(b, ids);
    if (status == TN_OK) status = is_current(b) ? launch_batch(b) : capture_batch(b);
    for (int i = 0; i < b->count && status != TN_OK; i++)
        status = tn_llm_mend(b->models[i], status);
    tn_llm_leave(first, before);
    if (status != TN_OK) return status;
    for (int i = 0; i < b->count; i++) {
        if (ids[i] >= 0)
            tn_llm_append(b->models[i], &ids[i], 1);
        else
            tn_llm_drop_draft(b->models[i]); /* the dummy token overwrote what the cache had of its guesses */
    }
    if (logits) *logits = b->logits;
    return TN_OK;
}
