/* job.c — a request's job, its faults, and the queue in which it waits for a thread. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/serve/serve.h"
#include "trunnion/text.h"

static const char *type_of(int code) {
    return code == 401 ? "authentication_error" : code >= 500 ? "server_error" : "invalid_request_error";
}

bool serve_refuse(serve_fault *f, int code, const char *kind, const char *param, const char *format, ...) {
    va_list args;
    *f = (serve_fault){.code = code, .type = type_of(code), .kind = kind};
    snprintf(f->param, sizeof f->param, "%s", param ? param : "");
    va_start(args, format);
    vsnprintf(f->text, sizeof f->text, format, args);
    va_end(args);
    cli_whole_characters(f->text, strlen(f->text)); /* the end may be cut within one */
    cli_whole_characters(f->param, strlen(f->param));
    return false;
}

bool serve_refuse_failed(serve_fault *f, tn_status status, const char *param) {
    static const tn_status of_requests[] = {TN_ERR_ARGUMENT, TN_ERR_FORMAT, TN_ERR_UNSUPPORTED};
    for (size_t i = 0; i < sizeof of_requests / sizeof *of_requests; i++)
        if (status == of_requests[i]) return serve_refuse(f, 400, NULL, param, "%s", tn_error());
    return serve_refuse_lack(f, status);
}

bool serve_refuse_lack(serve_fault *f, tn_status status) {
    if (status == TN_ERR_MEMORY) return serve_refuse(f, 503, "unavailable", NULL, "%s", tn_error());
    return serve_refuse(f, 500, "internal", NULL, "the request could not be computed: %s", tn_error());
}

/* Unique in this process; the time makes it so among processes. */
static void make_id(serve_job *j) {
    static const char *const prefixes[SERVE_KINDS] = {"chatcmpl", "cmpl", "embd"};
    static atomic_uint number;
    snprintf(j->id, sizeof j->id, "%s-%08" PRIx32 "%06x", prefixes[j->kind], (uint32_t)j->created,
             atomic_fetch_add(&number, 1) & 0xffffff);
}

serve_job *job_new(serve_kind kind) {
    serve_job *j = calloc(1, sizeof *j);
    if (!j) return NULL;
    pthread_mutex_init(&j->lock, NULL);
    j->users = 1;
    j->kind = kind;
    j->socket = -1;
    j->created = (int64_t)time(NULL);
    j->arrived = cli_now();
    j->answer = (answer){.most = ANSWER_ALL, .logprobs = -1, .silent = true};
    make_id(j);
    return j;
}

void job_release(serve_job *j) {
    if (!j || atomic_fetch_sub(&j->users, 1) > 1) return;
    tn_sampler_free(j->answer.sampler);
    tn_stop_strings_free(j->answer.stops);
    tn_grammar_state_free(j->answer.grammar);
    tn_grammar_free(j->grammar);
    answer_free(&j->answer);
    tn_ids_free(&j->prompt);
    tn_ids_free(&j->texts);
    tn_bytes_free(&j->output);
    tools_free(j);
    free(j->lengths);
    free(j->vectors);
    pthread_mutex_destroy(&j->lock);
    free(j);
}

/* ---- queues ------------------------------------------------------------------------------------------------------ */

void queue_init(serve_queue *q) {
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->news, NULL);
}

void queue_destroy(serve_queue *q) {
    pthread_mutex_destroy(&q->lock);
    pthread_cond_destroy(&q->news);
}

static void append(serve_queue *q, serve_job *j) {
    atomic_fetch_add(&j->users, 1);
    j->next = NULL;
    if (q->last)
        q->last->next = j;
    else
        q->first = j;
    q->last = j;
    q->waiting++;
    pthread_cond_signal(&q->news);
}

bool queue_submit(serve_queue *q, serve_job *j, int64_t most, int sequences) {
    pthread_mutex_lock(&q->lock);
    bool full = q->waiting >= most && q->running + q->waiting >= sequences, stopping = q->stopping;
    if (!full && !stopping) append(q, j);
    pthread_mutex_unlock(&q->lock);
    if (stopping) return serve_refuse(&j->fault, 503, "stopping", NULL, "the server stops");
    if (!full) return true;
    metrics_add(COUNT_REFUSED, 1);
    if (sequences == 0)
        return serve_refuse(&j->fault, 503, "overloaded", NULL, "%d requests wait already; try again later", (int)most);
    return serve_refuse(&j->fault, 503, "overloaded", NULL,
                        "all %d sequences are busy and %d requests wait already; try again later", sequences,
                        (int)most);
}

serve_job *queue_pop(serve_queue *q) {
    serve_job *j = q->first;
    if (!j) return NULL;
    q->first = j->next;
    if (!q->first) q->last = NULL;
    q->waiting--;
    return j;
}

void queue_stop(serve_queue *q) {
    pthread_mutex_lock(&q->lock);
    q->stopping = true;
    pthread_cond_signal(&q->news);
    pthread_mutex_unlock(&q->lock);
}
