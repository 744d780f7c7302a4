/* engine.c — one thread computes the texts of all running requests together (continuous batching).
 *
 * There are `parallel` conversations over one set of weights. A request takes a free one, preferably one whose
 * sequence begins as its prompt does: what they share is not computed again. Each turn of the loop computes pieces of
 * prompts, at most PROMPT_TOKENS together, and then the next token of every running answer in one pass. Requests
 * therefore enter and leave between any two tokens.
 *
 * A batch of the library is a fixed list of conversations: there is one for the first 2, 3, 4, 6, 8 … of them, made
 * when it is first needed. Conversations in it that have nothing to compute cost time too; therefore requests take the
 * lowest free one, and few of many are computed one by one. */
#include <stdlib.h>

#include "cli/serve/serve.h"
#include "cli/text/language.h"

#include "trunnion/backend.h"
#include "trunnion/text.h"

enum { PROMPT_TOKENS = TN_PROMPT_CHUNK, LEAST_SHARED = 16, BATCHES = 11 };
static const int batch_sizes[BATCHES] = {2, 3, 4, 6, 8, 12, 16, 24, 32, 48, SERVE_MOST_PARALLEL};
static const double LOOK_AFTER_SECONDS = 0.2; /* how often clients are looked for that went away */
enum { MOST_UNSENT = 4 << 20 };               /* bytes that a client does not read, until it is given up */

typedef struct slot {
    tn_llm *model;
    serve_job *job;             /* NULL: free */
    int64_t at;                 /* tokens of the prompt that are in the sequence */
    bool drawing;               /* the prompt is done */
    tn_llm_draft_facts drafted; /* what was counted of its draft */
} slot;

struct serve_engine {
    server *server;
    pthread_t thread;
    bool started;
    serve_queue queue;
    double cut_at; /* set before queue.stopping: cli_now at which running answers end */
    /* the thread's own */
    tn_device *device; /* NULL: the server's; else the one that computes after others failed */
    cli_moves moves;
    slot slots[SERVE_MOST_PARALLEL];
    int count;
    double looked; /* for clients that went away */
    tn_llm_batch *batches[BATCHES];
    int32_t ids[SERVE_MOST_PARALLEL];
};

/* ---- the end of a job -------------------------------------------------------------------------------------------- */

static void end_job(serve_job *j) {
    metrics_time(TIME_REQUEST, cli_now() - j->arrived);
    http_done(j);
    job_release(j);
}

/* A failed step leaves its text in tn_error(). A grammar may lead nowhere, or beyond its limits: that is the request's
 * fault. */
static void blame(serve_job *j, tn_status status) {
    if (j->grammar && status == TN_ERR_UNSUPPORTED)
        serve_refuse_failed(&j->fault, status, "grammar");
    else
        serve_refuse_lack(&j->fault, status);
}

static void fail_job(serve_job *j, tn_status status) {
    blame(j, status);
    end_job(j);
}

static void free_slot(serve_engine *e, slot *s) {
    s->job = NULL;
    pthread_mutex_lock(&e->queue.lock);
    e->queue.running--;
    pthread_mutex_unlock(&e->queue.lock);
}

static void finish_slot(serve_engine *e, slot *s) {
    serve_job *j = s->job;
    tn_status status = answer_end(&j->answer);
    if (status == TN_OK) status = reply_end(j, e->server);
    free_slot(e, s);
    if (status == TN_OK)
        end_job(j);
    else
        fail_job(j, status);
}

static void fail_slot(serve_engine *e, slot *s, tn_status status) {
    serve_job *j = s->job;
    blame(j, status);
    free_slot(e, s);
    end_job(j);
}

/* ---- the queue --------------------------------------------------------------------------------------------------- */

bool engine_submit(serve_engine *e, serve_job *j) { return queue_submit(&e->queue, j, e->server->queue, e->count); }

serve_gauges engine_gauges(serve_engine *e) {
    pthread_mutex_lock(&e->queue.lock);
    serve_gauges g = {e->queue.running, e->queue.waiting, e->count};
    pthread_mutex_unlock(&e->queue.lock);
    return g;
}

static serve_job *next_job(serve_queue *q) {
    pthread_mutex_lock(&q->lock);
    serve_job *j = queue_pop(q);
    if (j) q->running++;
    pthread_mutex_unlock(&q->lock);
    return j;
}

/* The free slot that has most of the prompt already; the first one if none has much. NULL: all are busy. */
static slot *choose_slot(serve_engine *e, const serve_job *j) {
    slot *best = NULL;
    int64_t most = LEAST_SHARED - 1;
    for (int i = 0; i < e->count; i++) {
        slot *s = &e->slots[i];
        if (s->job) continue;
        int64_t shared = tn_llm_common_prefix(s->model, j->prompt.data, (int64_t)j->prompt.count);
        if (!best || shared > most) best = s;
        if (shared > most) most = shared;
    }
    return best;
}

static bool slot_is_free(const serve_engine *e) {
    for (int i = 0; i < e->count; i++)
        if (!e->slots[i].job) return true;
    return false;
}

static void begin_job(serve_engine *e, slot *s, serve_job *j) {
    answer *a = &j->answer;
    s->job = j;
    s->drawing = false;
    if (!s->model) {
        fail_slot(e, s, tn_backend_fail(TN_ERR_UNAVAILABLE, "no device is left that can compute: %s", e->moves.reason));
        return;
    }
    a->model = s->model;
    a->keep = s->at = tn_llm_common_prefix(s->model, j->prompt.data, (int64_t)j->prompt.count);
    tn_status status = tn_llm_rewind(s->model, s->at);
    for (size_t i = 0; i < j->prompt.count; i++)
        tn_sampler_accept(a->sampler, j->prompt.data[i]);
    if (status == TN_OK) status = answer_begin(a);
    metrics_add(COUNT_CACHED_TOKENS, s->at);
    if (status != TN_OK) fail_slot(e, s, status);
}

/* Whether a waiting job is not worth beginning; its fault says why, unless its client is gone. */
static bool is_lost(const serve_engine *e, serve_job *j) {
    bool late = cli_now() > j->deadline, gone = atomic_load(&j->gone) || http_gone(j);
    if (!e->queue.stopping && !late && !gone) return false;
    if (e->queue.stopping)
        serve_refuse(&j->fault, 503, "stopping", NULL, "the server stops");
    else if (late)
        serve_refuse(&j->fault, 503, "timeout", NULL,
                     "the request waited for %d s without being computed; try again "
                     "later",
                     (int)e->server->timeout);
    if (gone) metrics_add(COUNT_DISCONNECTS, 1);
    return true;
}

/* Whether the job was lost; then it has ended. */
static bool drop_job(serve_engine *e, serve_job *j) {
    if (!is_lost(e, j)) return false;
    pthread_mutex_lock(&e->queue.lock);
    e->queue.running--;
    pthread_mutex_unlock(&e->queue.lock);
    end_job(j);
    return true;
}

static void take_jobs(serve_engine *e) {
    while (slot_is_free(e) || e->queue.stopping) {
        serve_job *j = next_job(&e->queue);
        if (!j) return;
        if (!drop_job(e, j)) begin_job(e, choose_slot(e, j), j);
    }
}

/* ---- clients that went away, time limits ------------------------------------------------------------------------- */

/* Lost jobs leave the queue at once: their places are for others. */
static void check_waiting(serve_engine *e) {
    serve_job *lost = NULL;
    pthread_mutex_lock(&e->queue.lock);
    e->queue.last = NULL;
    for (serve_job **at = &e->queue.first, *j; (j = *at) != NULL;) {
        if (is_lost(e, j)) {
            *at = j->next;
            j->next = lost;
            lost = j;
            e->queue.waiting--;
        } else {
            e->queue.last = j;
            at = &j->next;
        }
    }
    pthread_mutex_unlock(&e->queue.lock);
    for (serve_job *next; lost; lost = next) {
        next = lost->next;
        end_job(lost);
    }
}

static size_t unsent_bytes(serve_job *j) {
    pthread_mutex_lock(&j->lock);
    size_t n = j->output.size - j->taken;
    pthread_mutex_unlock(&j->lock);
    return n;
}

/* Ends a job whose time is up: with the tokens generated so far, or with a fault if its prompt was not computed yet. */
static void cut_slot(serve_engine *e, slot *s, bool late) {
    serve_job *j = s->job;
    metrics_add(COUNT_CUT, 1);
    if (s->drawing) {
        j->answer.stopped = "length";
        finish_slot(e, s);
        return;
    }
    if (late)
        serve_refuse(&j->fault, 503, "timeout", NULL, "the prompt was not computed within %d s; try again later",
                     (int)e->server->timeout);
    else
        serve_refuse(&j->fault, 503, "stopping", NULL, "the server stops");
    free_slot(e, s);
    end_job(j);
}

static void check_running(serve_engine *e, double now) {
    for (int i = 0; i < e->count; i++) {
        slot *s = &e->slots[i];
        if (!s->job) continue;
        serve_job *j = s->job;
        if (atomic_load(&j->gone) || http_gone(j) || unsent_bytes(j) > MOST_UNSENT) {
            metrics_add(COUNT_DISCONNECTS, 1);
            atomic_store(&j->gone, true);
            free_slot(e, s);
            end_job(j);
        } else if (now > j->deadline || (e->queue.stopping && now > e->cut_at)) {
            cut_slot(e, s, now > j->deadline);
        }
    }
}

static void look_for_clients(serve_engine *e) {
    double now = cli_now();
    if (now - e->looked < LOOK_AFTER_SECONDS) return;
    e->looked = now;
    check_waiting(e);
    check_running(e, now);
}

/* ---- devices that fail ------------------------------------------------------------------------------------------- */

static tn_status make_conversations(serve_engine *e, server *s) {
    tn_device *device = e->device ? e->device : s->device;
    tn_llm_options o = TN_LLM_DEFAULTS;
    o.context = s->context;
    o.cache = s->cache;
    o.value_cache = s->value_cache;
    o.device = device;
    e->slots[0].model = s->model;
    for (int i = 1; i < e->count; i++) {
        tn_status status = tn_llm_new_conversation(s->model, &o, &e->slots[i].model);
        if (status != TN_OK)
            return tn_backend_fail(status, "sequence %d of %d: %s; use a smaller --parallel or --context", i + 1,
                                   e->count, tn_error());
    }
    tn_status status = cli_draft_open(&s->draft, s->model, device, s->words.tokenizer);
    for (int i = 1; i < e->count && status == TN_OK; i++)
        status = cli_draft_add(&s->draft, e->slots[i].model);
    return status == TN_OK ? tn_llm_prepare(s->model) : status;
}

static void close_conversations(serve_engine *e) {
    for (int i = 0; i < BATCHES; i++) {
        tn_llm_batch_free(e->batches[i]);
        e->batches[i] = NULL;
    }
    for (int i = 1; i < e->count; i++) {
        tn_llm_close(e->slots[i].model);
        e->slots[i].model = NULL;
    }
    tn_llm_close(e->server->model); /* that of the first */
    e->server->model = e->slots[0].model = NULL;
    cli_draft_close(&e->server->draft);
}

/* Computes again what the sequence had: the prompt, and the text but its last token. Prompts that were not complete
 * begin anew. */
static tn_status replay(slot *s) {
    serve_job *j = s->job;
    const float *logits;
    s->at = 0;
    s->drafted = (tn_llm_draft_facts){0};
    if (!j) return TN_OK;
    j->answer.model = s->model;
    if (!s->drawing) return TN_OK;
    int64_t count = (int64_t)j->prompt.count;
    tn_status status = tn_llm_prompt(s->model, j->prompt.data, count, &logits);
    for (size_t i = 0; i + 1 < j->answer.ids.count && status == TN_OK; i++)
        status = tn_llm_step(s->model, j->answer.ids.data[i], &logits);
    s->at = count;
    return status;
}

static tn_status continue_on(serve_engine *e, tn_device *device) {
    server *s = e->server;
    e->device = device;
    tn_status status = server_open_model(s, device);
    if (status == TN_OK) status = make_conversations(e, s);
    for (int i = 0; i < e->count && status == TN_OK; i++)
        status = replay(&e->slots[i]);
    return status;
}

static void fail_all(serve_engine *e, tn_status status) {
    char why[TN_REASON_BYTES];
    snprintf(why, sizeof why, "%s", tn_error());
    for (int i = 0; i < e->count; i++)
        if (e->slots[i].job) fail_slot(e, &e->slots[i], tn_backend_fail(status, "%s", why));
}

/* If the device was lost, or refuses to compute, all sequences continue on the next one. false: the failure is the
 * caller's. What lacks memory is: a shorter request may have it. */
static bool move_all(serve_engine *e, tn_status status) {
    if (e->server->common.strict || (status != TN_ERR_LOST && status != TN_ERR_DEVICE)) return false;
    do {
        tn_device *next, *failed = e->device;
        cli_moves_note(&e->moves, failed ? failed : e->server->device);
        close_conversations(e);
        tn_status found = cli_moves_next(&e->moves, status, &next);
        if (found != TN_OK) {
            fail_all(e, found);
            return true;
        }
        tn_device_close(failed); /* the server closes its own, where encoders may compute */
        status = continue_on(e, next);
    } while (cli_moves_on(status));
    if (status != TN_OK) fail_all(e, status);
    return true;
}

/* ---- computing --------------------------------------------------------------------------------------------------- */

static void draw(serve_engine *e, slot *s, const float *logits) {
    serve_job *j = s->job;
    size_t before = j->answer.ids.count;
    tn_status status = answer_draw(&j->answer, logits);
    metrics_add(COUNT_TOKENS, (int64_t)(j->answer.ids.count - before));
    if (before == 0) metrics_time(TIME_FIRST_TOKEN, cli_now() - j->arrived);
    if (status == TN_OK && !answer_continues(&j->answer)) {
        finish_slot(e, s);
        return;
    }
    if (status == TN_OK && j->stream) {
        status = reply_chunk(j, e->server);
        http_wake(j);
    }
    if (status != TN_OK) fail_slot(e, s, status);
}

/* Returns how many tokens were computed. */
static int64_t compute_piece(serve_engine *e, slot *s, int64_t most) {
    serve_job *j = s->job;
    const float *logits = NULL;
    s->at = tn_llm_position(s->model); /* a batch that failed may have restarted the sequence */
    int64_t count = (int64_t)j->prompt.count, n = count - s->at < most ? count - s->at : most;
    double start = cli_now();
    tn_status status = tn_llm_prompt(s->model, j->prompt.data + s->at, n, &logits);
    metrics_time(TIME_PROMPTS, cli_now() - start);
    if (status != TN_OK) {
        if (!move_all(e, status)) fail_slot(e, s, status);
        return n;
    }
    metrics_add(COUNT_PROMPT_TOKENS, n);
    s->at += n;
    s->drawing = s->at == count;
    if (s->drawing) draw(e, s, logits);
    return n;
}

/* The oldest requests first. */
static void compute_prompts(serve_engine *e) {
    int64_t left = PROMPT_TOKENS;
    while (left > 0) {
        slot *oldest = NULL;
        for (int i = 0; i < e->count; i++) {
            slot *s = &e->slots[i];
            if (s->job && !s->drawing && (!oldest || s->job->arrived < oldest->job->arrived)) oldest = s;
        }
        if (!oldest) return;
        left -= compute_piece(e, oldest, left);
    }
}

static int32_t last_token(const slot *s) { return s->job->answer.ids.data[s->job->answer.ids.count - 1]; }

static void count_drafts(slot *s) {
    tn_llm_draft_facts now = {.struct_size = sizeof now};
    if (tn_llm_get_draft_facts(s->model, &now) != TN_OK) return;
    metrics_add(COUNT_DRAFTED, now.drafted - s->drafted.drafted);
    metrics_add(COUNT_ACCEPTED, now.accepted - s->drafted.accepted);
    s->drafted = now;
}

static void step_alone(serve_engine *e, slot *s) {
    const float *logits;
    double start = cli_now();
    tn_status status = tn_llm_step(s->model, last_token(s), &logits);
    metrics_time(TIME_STEPS, cli_now() - start);
    metrics_add(COUNT_STEPS, 1);
    metrics_add(COUNT_STEP_ROWS, 1);
    if (move_all(e, status)) return; /* the token is computed in the next turn */
    count_drafts(s);
    s->job->answer.steps++;
    if (status != TN_OK)
        fail_slot(e, s, status);
    else
        draw(e, s, logits);
}

static int batch_size(const serve_engine *e, int index) {
    return batch_sizes[index] < e->count ? batch_sizes[index] : e->count;
}

/* The batch of the first conversations that has them all. */
static tn_status find_batch(serve_engine *e, int highest, int *index) {
    tn_llm *models[SERVE_MOST_PARALLEL];
    *index = 0;
    while (batch_sizes[*index] <= highest)
        ++*index;
    if (e->batches[*index]) return TN_OK;
    int count = batch_size(e, *index);
    for (int i = 0; i < count; i++)
        models[i] = e->slots[i].model;
    return tn_llm_batch_new(models, count, &e->batches[*index]);
}

/* A batch requires more memory than its sequences one by one. Those that the failure restarted cannot go on. */
static void step_after_failure(serve_engine *e, int count, tn_status status) {
    for (int i = 0; i < count; i++) { /* first, while tn_error() has the failure's text */
        slot *s = &e->slots[i];
        if (e->ids[i] >= 0 && (status != TN_ERR_MEMORY || tn_llm_position(s->model) == 0)) fail_slot(e, s, status);
    }
    for (int i = 0; i < count; i++)
        if (e->ids[i] >= 0 && e->slots[i].job) step_alone(e, &e->slots[i]);
}

static void step_together(serve_engine *e, int highest, int active) {
    const float *logits = NULL;
    int index;
    double start = cli_now();
    tn_status status = find_batch(e, highest, &index);
    int count = batch_size(e, index);
    for (int i = 0; i < count; i++)
        e->ids[i] = e->slots[i].job && e->slots[i].drawing ? last_token(&e->slots[i]) : -1;
    if (status == TN_OK) status = tn_llm_batch_step(e->batches[index], e->ids, &logits);
    metrics_time(TIME_STEPS, cli_now() - start);
    if (status != TN_OK) {
        if (!move_all(e, status)) step_after_failure(e, count, status);
        return;
    }
    metrics_add(COUNT_STEPS, 1);
    metrics_add(COUNT_STEP_ROWS, active);
    for (int i = 0; i < count; i++) {
        slot *s = &e->slots[i];
        if (e->ids[i] < 0) continue;
        count_drafts(s);
        s->job->answer.steps++;
        draw(e, s, logits + (int64_t)i * e->server->facts.vocabulary);
    }
}

static void compute_tokens(serve_engine *e) {
    int active = 0, highest = 0;
    for (int i = 0; i < e->count; i++) {
        if (!e->slots[i].job || !e->slots[i].drawing) continue;
        active++;
        highest = i;
    }
    if (active == 0) return;
    if (active == 1 || active * 4 <= highest) { /* a batch costs about a quarter of a token for each conversation */
        for (int i = 0; i <= highest; i++)
            if (e->slots[i].job && e->slots[i].drawing) step_alone(e, &e->slots[i]);
        return;
    }
    step_together(e, highest, active);
}

/* ---- the thread -------------------------------------------------------------------------------------------------- */

/* Waits until there is work. false: there will be none. */
static bool wait_for_work(serve_engine *e) {
    pthread_mutex_lock(&e->queue.lock);
    while (!e->queue.first && e->queue.running == 0 && !e->queue.stopping)
        pthread_cond_wait(&e->queue.news, &e->queue.lock);
    bool work = e->queue.first || e->queue.running > 0;
    pthread_mutex_unlock(&e->queue.lock);
    return work;
}

static void *run_engine(void *ctx) {
    serve_engine *e = ctx;
    tn_set_current_device(e->server->device);
    while (wait_for_work(e)) {
        take_jobs(e);
        look_for_clients(e);
        compute_prompts(e);
        compute_tokens(e);
    }
    tn_set_current_device(NULL);
    return NULL;
}

tn_status engine_start(server *s) {
    serve_engine *e = calloc(1, sizeof *e);
    if (!e) return tn_backend_fail(TN_ERR_MEMORY, "engine: out of memory");
    queue_init(&e->queue);
    e->server = s;
    e->moves.options = &s->common;
    e->count = (int)s->parallel;
    s->engine = e;
    TRY(make_conversations(e, s));
    e->started = pthread_create(&e->thread, NULL, run_engine, e) == 0;
    return e->started ? TN_OK : tn_backend_fail(TN_ERR_MEMORY, "engine: no thread could be started");
}

void engine_stop(serve_engine *e, double seconds) {
    if (!e || !e->started) return;
    e->cut_at = cli_now() + seconds;
    queue_stop(&e->queue);
    pthread_join(e->thread, NULL);
    e->started = false;
}

void engine_free(serve_engine *e) {
    if (!e) return;
    close_conversations(e);
    tn_device_close(e->device);
    queue_destroy(&e->queue);
    free(e);
}
