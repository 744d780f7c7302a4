/* serve.h — what the files of `trunnion serve` share: a request's job on its way through the server.
 *
 * http.c takes a request and has it read (request.c) into a job. The job waits in a queue for one of two threads: the
 * engine (engine.c), which computes the texts of all running jobs together, or the embedder's (embeddings.c). What is
 * computed becomes JSON (reply.c) in the job's output, from where http.c sends it. A job is held by its connection and
 * by its thread; it is freed when both have released it. */
#ifndef TRUNNION_CLI_SERVE_H
#define TRUNNION_CLI_SERVE_H

#include <pthread.h>
#include <stdatomic.h>

#include "cli/text/answer.h"
#include "cli/text/conversation.h"
#include "cli/text/language.h"
#include "cli/text/sampling.h"
#include "trunnion/embed.h"
#include "trunnion/llm.h"
#include "trunnion/text.h"

/* An error as OpenAI's interface has it: a code of HTTP, and the fields of its object. */
typedef struct serve_fault {
    int code;         /* 0: none */
    const char *type; /* "invalid_request_error" */
    const char *kind; /* the object's "code"; NULL: null */
    char param[48];   /* the field of the request; "": none */
    char text[512];
} serve_fault;

/* Fills the fault and returns false. param may be NULL. */
bool serve_refuse(serve_fault *f, int code, const char *kind, const char *param, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
/* The same for a failure of the library, with the text of tn_error(). While a request is read, most failures are the
 * request's fault (400); the others are as with serve_refuse_lack. */
bool serve_refuse_failed(serve_fault *f, tn_status status, const char *param);
/* While a request is computed: 503 if there is not enough memory, else 500. */
bool serve_refuse_lack(serve_fault *f, tn_status status);

/* A call of a tool in an answer; the texts are its own. */
typedef struct serve_call {
    char id[16];
    char *name, *arguments; /* arguments: JSON */
} serve_call;

typedef enum serve_kind { SERVE_CHAT, SERVE_COMPLETION, SERVE_EMBEDDING, SERVE_KINDS } serve_kind;

typedef struct serve_job {
    atomic_int users;
    serve_kind kind;
    char id[32];
    int64_t created;          /* seconds since 1970 */
    double arrived, deadline; /* cli_now */
    bool stream, usage;       /* usage: a last chunk of a stream has the counts */
    const char *model;        /* its name in answers */
    struct serve_job *next;   /* in a queue */

    /* a text */
    tn_ids prompt;
    answer answer; /* its sampler, stop strings and grammar state belong to the job */
    tn_grammar *grammar;
    size_t sent_text, sent_ids; /* of the answer, in a stream */
    bool streamed;              /* a chunk was written */

    /* tools (tools.c) */
    tn_json_doc *request; /* kept for `tools`; NULL without them */
    const tn_json *tools; /* a list; NULL: none, or none to be called */
    bool must_call;       /* the answer is a call */
    int most_calls;       /* 1 if "parallel_tool_calls" is false */
    bool calls_read;      /* the answer is complete, and its calls are in the list */
    serve_call *calls;
    int call_count;
    size_t before_calls; /* bytes of the text in front of the first one */

    /* embeddings */
    tn_ids texts; /* of all texts, one behind the other */
    int64_t *lengths, count;
    bool base64;
    float *vectors; /* [count, width] */
    int64_t width;

    /* what the connection and the thread share */
    pthread_mutex_t lock;
    void *connection; /* to be resumed when there is output, if `suspended` */
    int socket;
    bool suspended, done;
    atomic_bool gone; /* nobody waits for the answer any more */
    tn_bytes output;
    size_t taken; /* bytes of the output that were sent */
    serve_fault fault;
} serve_job;

serve_job *job_new(serve_kind kind);
void job_release(serve_job *j); /* NULL is allowed */

/* The jobs that wait for a thread, oldest first. */
typedef struct serve_queue {
    pthread_mutex_t lock; /* guards the other members */
    pthread_cond_t news;  /* a job was appended, or the server stops */
    serve_job *first, *last;
    int waiting, running; /* jobs; running: counted by the thread, if it runs several */
    atomic_bool stopping; /* may be read without the lock */
} serve_queue;

void queue_init(serve_queue *q);
void queue_destroy(serve_queue *q);
/* Appends a job and takes a reference to it. Returns false, with the reason in j->fault, if the server is stopping, or
 * if `most` jobs wait and as many as there are `sequences` wait or run. */
bool queue_submit(serve_queue *q, serve_job *j, int64_t most, int sequences);
/* Removes the oldest job; NULL if there is none. The caller holds the lock. */
serve_job *queue_pop(serve_queue *q);
void queue_stop(serve_queue *q); /* sets `stopping` and wakes the thread */

/* ---- metrics (metrics.c) ----------------------------------------------------------------------------------------- */

typedef enum serve_counter {
    COUNT_PROMPT_TOKENS,
    COUNT_CACHED_TOKENS,
    COUNT_TOKENS,
    COUNT_STEPS,
    COUNT_STEP_ROWS,
    COUNT_DISCONNECTS,
    COUNT_REFUSED,
    COUNT_CUT,
    COUNT_DRAFTED,
    COUNT_ACCEPTED,
    SERVE_COUNTERS
} serve_counter;
typedef enum serve_histogram {
    TIME_FIRST_TOKEN,
    TIME_REQUEST,
    TIME_PROMPTS,
    TIME_STEPS,
    SERVE_HISTOGRAMS
} serve_histogram;

void metrics_add(serve_counter c, int64_t n);
void metrics_time(serve_histogram h, double seconds);
void metrics_answered(int code); /* a request got this code of HTTP */
/* Appends all of them in Prometheus' text format, with the gauges given. */
typedef struct serve_gauges {
    int running, waiting, slots;
} serve_gauges;
tn_status metrics_write(const serve_gauges *g, tn_bytes *out);

/* ---- the server -------------------------------------------------------------------------------------------------- */

typedef struct serve_engine serve_engine;
typedef struct serve_embedder serve_embedder;

typedef struct server {
    cli_options common;
    const char *path; /* of the language model; NULL: embeddings only */
    const char *embed_path, *host, *alias;
    const char *key;        /* NULL: none is asked for */
    const char *allow_host; /* NULL, "*", or a further name that requests without a key may be for or from */
    int64_t port, parallel, context, queue, body_bytes, timeout, grace;
    tn_llm_cache cache, value_cache;
    cli_sampling sampling; /* what requests leave open */
    cli_draft draft;
    char name[128], embed_name[128];
    int64_t started; /* seconds since 1970 */

    tn_device *device;
    tn_llm *model; /* the engine's once it runs */
    vocabulary words;
    tn_llm_facts facts;
    size_t longest_token; /* bytes */
    serve_engine *engine;

    tn_embedder *encoder; /* NULL: no embeddings */
    tn_tokenizer *encoder_words;
    tn_embedder_facts encoder_facts;
    serve_embedder *embedder;
} server;

/* Opens the language model on this device, in s->model (serve.c). */
tn_status server_open_model(server *s, tn_device *device);

/* ---- request.c --------------------------------------------------------------------------------------------------- */

/* Reads a request's body into the job. false: j->fault says why. */
bool request_read(const server *s, const char *body, size_t size, serve_job *j);

/* A value as JSON again; json.h limits how deep it is. */
void serve_write_json(FILE *f, const tn_json *v);

/* ---- tools.c ----------------------------------------------------------------------------------------------------- */

/* Reads "tools" and "tool_choice". A grammar that a demanded call must follow is appended to `grammar`. false: j->fault
 * says why. */
bool tools_read(serve_job *j, const tn_json *root, tn_bytes *grammar);
/* Tools, calls and results become part of the conversation, whose messages are those of the request's list. */
tn_status tools_prepare(const serve_job *j, const server *s, const tn_json *messages, conversation *c);
/* Bytes of the answer's text that may be sent: what follows is a call, or may become one. */
size_t tools_visible(const serve_job *j);
/* The answer is complete: finds its calls. */
tn_status tools_find_calls(serve_job *j);
void tools_free(serve_job *j);

/* ---- reply.c ----------------------------------------------------------------------------------------------------- */

/* Append to the job's output: the next piece of a stream, if there is something new; the end of a stream; all of an
 * answer. One thread; the output is locked within. */
tn_status reply_chunk(serve_job *j, const server *s);
tn_status reply_end(serve_job *j, const server *s);
tn_status reply_embeddings(serve_job *j, const server *s);
/* An error's object, and in a stream as an event. */
tn_status reply_fault(const serve_fault *f, bool event, tn_bytes *out);
tn_status reply_models(const server *s, const char *name, tn_bytes *out);

/* ---- engine.c ---------------------------------------------------------------------------------------------------- */

enum { SERVE_MOST_PARALLEL = TN_LLM_BATCH };

/* Makes the conversations and starts the thread. */
tn_status engine_start(server *s);
/* As queue_submit, with the server's limits. */
bool engine_submit(serve_engine *e, serve_job *j);
/* Refuses new and waiting jobs. Running jobs get `seconds` to finish; then their answers are cut off. Returns after the
 * thread has ended. NULL is allowed. */
void engine_stop(serve_engine *e, double seconds);
void engine_free(serve_engine *e); /* NULL is allowed */
serve_gauges engine_gauges(serve_engine *e);

/* ---- embeddings.c ------------------------------------------------------------------------------------------------ */

tn_status embedder_start(server *s);
bool embedder_submit(serve_embedder *e, serve_job *j); /* as engine_submit */
/* Refuses new and waiting jobs. Returns after the running job has finished. */
void embedder_stop(serve_embedder *e);
void embedder_free(serve_embedder *e); /* both: NULL is allowed */

/* ---- http.c ------------------------------------------------------------------------------------------------------ */

typedef struct serve_http serve_http;
/* Opens the address and sets *port to the port in use; requests wait from now on. Errors name the address and the
 * reason. */
tn_status http_listen(server *s, serve_http **out, int *port);
tn_status http_start(serve_http *h); /* answers what waits, and what comes */
void http_quiesce(serve_http *h);    /* takes no further connections */
/* Waits until all answers have been sent, at most `seconds`. No job may be running. */
void http_drain(serve_http *h, double seconds);
void http_stop(serve_http *h); /* NULL is allowed */

/* Job threads: there is output, or the end. */
void http_wake(serve_job *j);
void http_done(serve_job *j);
/* The client has closed the connection; also when nothing was sent to it. */
bool http_gone(serve_job *j);

extern const char serve_page[]; /* page.c: the chat page */

#endif
