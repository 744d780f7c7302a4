/* embeddings.c — the thread that computes embeddings, one request after the other.
 *
 * It has a queue of its own and works beside the engine's thread, on the same device. */
#include <stdlib.h>

#include "cli/serve/serve.h"

#include "trunnion/backend.h"
#include "trunnion/embed.h"

struct serve_embedder {
    server *server;
    pthread_t thread;
    bool started;
    serve_queue queue;
};

bool embedder_submit(serve_embedder *e, serve_job *j) { return queue_submit(&e->queue, j, e->server->queue, 0); }

/* NULL: the server stops. */
static serve_job *await_job(serve_queue *q) {
    pthread_mutex_lock(&q->lock);
    while (!q->first && !q->stopping)
        pthread_cond_wait(&q->news, &q->lock);
    serve_job *j = queue_pop(q);
    pthread_mutex_unlock(&q->lock);
    return j;
}

static void compute_job(serve_embedder *e, serve_job *j) {
    if (cli_now() > j->deadline)
        serve_refuse(&j->fault, 503, "timeout", NULL, "the request waited too long; try again later");
    if (atomic_load(&e->queue.stopping)) serve_refuse(&j->fault, 503, "stopping", NULL, "the server stops");
    if (j->fault.code != 0 || atomic_load(&j->gone) || http_gone(j)) return;
    tn_status status = tn_embedder_run(e->server->encoder, j->texts.data, j->lengths, j->count, j->vectors);
    if (status == TN_OK) status = reply_embeddings(j, e->server);
    if (status != TN_OK) serve_refuse_lack(&j->fault, status);
    if (status == TN_OK) metrics_add(COUNT_PROMPT_TOKENS, (int64_t)j->texts.count);
}

static void *run_embedder(void *ctx) {
    serve_embedder *e = ctx;
    tn_set_current_device(e->server->device);
    for (serve_job *j; (j = await_job(&e->queue)) != NULL;) {
        compute_job(e, j);
        metrics_time(TIME_REQUEST, cli_now() - j->arrived);
        http_done(j);
        job_release(j);
    }
    tn_set_current_device(NULL);
    return NULL;
}

tn_status embedder_start(server *s) {
    serve_embedder *e = calloc(1, sizeof *e);
    if (!e) return tn_backend_fail(TN_ERR_MEMORY, "embeddings: out of memory");
    queue_init(&e->queue);
    e->server = s;
    s->embedder = e;
    e->started = pthread_create(&e->thread, NULL, run_embedder, e) == 0;
    return e->started ? TN_OK : tn_backend_fail(TN_ERR_MEMORY, "embeddings: no thread could be started");
}

void embedder_stop(serve_embedder *e) {
    if (!e) return;
    queue_stop(&e->queue);
    if (e->started) pthread_join(e->thread, NULL);
    e->started = false;
}

void embedder_free(serve_embedder *e) {
    if (!e) return;
    queue_destroy(&e->queue);
    free(e);
}
