/* http.c — the server's HTTP, by libmicrohttpd.
 *
 * The library is loaded when the server starts, so the command runs where it is not installed; its header is needed to
 * build. Its threads read requests and send answers; while a job is computed its connection is suspended and costs
 * nothing. Nothing here waits for a client: a slow reader's output stays in its job. */
#include "cli/serve/serve.h"

#include "trunnion/backend.h"
#include "trunnion/text.h"

#if TN_HAVE_MICROHTTPD

#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <microhttpd.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#ifndef SOCK_CLOEXEC
#define SOCK_CLOEXEC 0
#endif

enum {
    THREADS = 2,
    MOST_CONNECTIONS = 1000,
    CONNECTION_BYTES = 64 << 10, /* headers are at most about that long */
    IDLE_SECONDS = 60,           /* of a connection on which nothing moves, unless its answer is being computed */
    BODY_SECONDS = 60,           /* in which a body has to arrive */
    BLOCK_BYTES = 16 << 10,
    MOST_BODY_BYTES = 256 << 20, /* of all bodies that are being read */
    BACKLOG = 512
};

/* ---- the library ------------------------------------------------------------------------------------------------- */

#define MHD_FUNCTIONS(F)                 \
    F(MHD_start_daemon)                  \
    F(MHD_stop_daemon)                   \
    F(MHD_quiesce_daemon)                \
    F(MHD_suspend_connection)            \
    F(MHD_resume_connection)             \
    F(MHD_get_connection_info)           \
    F(MHD_lookup_connection_value)       \
    F(MHD_create_response_from_buffer)   \
    F(MHD_create_response_from_callback) \
    F(MHD_add_response_header)           \
    F(MHD_queue_response)                \
    F(MHD_destroy_response)

#define DECLARE(name) static __typeof__(name) *p_##name;
MHD_FUNCTIONS(DECLARE)
#undef DECLARE

#if TN_MICROHTTPD_LINKED

static tn_status load_library(void) {
#define FIND(name) p_##name = name;
    MHD_FUNCTIONS(FIND)
#undef FIND
    return TN_OK;
}

#else

static tn_status load_library(void) {
    static const char *const names[] = {"libmicrohttpd.so.12", "libmicrohttpd.so", "libmicrohttpd.12.dylib",
                                        "libmicrohttpd-12.dll"};
    void *library = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names && !library; i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return tn_backend_fail(TN_ERR_UNAVAILABLE, "serve requires libmicrohttpd, which is not installed: run apt-get "
                                                   "install libmicrohttpd12");
#define FIND(name)                                                                                               \
    *(void **)&p_##name = dlsym(library, #name);                                                                 \
    if (!p_##name)                                                                                               \
        return tn_backend_fail(TN_ERR_UNAVAILABLE, "libmicrohttpd has no function " #name "; install 0.9.75 or " \
                                                   "later");
    MHD_FUNCTIONS(FIND)
#undef FIND
    return TN_OK;
}

#endif

struct serve_http {
    server *server;
    struct MHD_Daemon *daemon;
    int listener;
    atomic_int calls;        /* requests whose answer was not sent completely */
    atomic_llong body_bytes; /* of all bodies that are being read */
};

/* ---- a request on its way ---------------------------------------------------------------------------------------- */

typedef struct call {
    serve_http *http;
    const struct route *route; /* NULL: none */
    serve_job *job;
    tn_bytes body;
    serve_fault fault;
    double begun;
    char rest[128]; /* of the path, behind the route's */
    int code;
    bool submitted;
} call;

typedef enum MHD_Result result;

/* The failure of an answer itself closes the connection. */
static result send_buffer(call *c, struct MHD_Connection *to, int code, const char *type, tn_bytes *text) {
    struct MHD_Response *r = p_MHD_create_response_from_buffer(
        text->size, text->data ? text->data : (void *)(uintptr_t) "", MHD_RESPMEM_MUST_COPY);
    tn_bytes_free(text);
    if (!r) return MHD_NO;
    p_MHD_add_response_header(r, "Content-Type", type);
    if (code == 503) p_MHD_add_response_header(r, "Retry-After", "1");
    if (code == 401) p_MHD_add_response_header(r, "WWW-Authenticate", "Bearer");
    if (code == 405) p_MHD_add_response_header(r, "Allow", "GET, POST");
    if (code == 413 || code == 408) p_MHD_add_response_header(r, "Connection", "close");
    result sent = p_MHD_queue_response(to, (unsigned)code, r);
    p_MHD_destroy_response(r);
    c->code = code;
    return sent;
}

static result send_json(call *c, struct MHD_Connection *to, tn_status made, tn_bytes *text) {
    if (made == TN_OK) return send_buffer(c, to, 200, "application/json", text);
    tn_bytes_free(text);
    return MHD_NO;
}

static result send_fault(call *c, struct MHD_Connection *to, const serve_fault *f) {
    tn_bytes text = {0};
    if (reply_fault(f, false, &text) != TN_OK) return MHD_NO;
    return send_buffer(c, to, f->code, "application/json", &text);
}

/* ---- simple answers ---------------------------------------------------------------------------------------------- */

static result get_page(call *c, struct MHD_Connection *to) {
    tn_bytes text = {0};
    if (tn_bytes_append(&text, serve_page, strlen(serve_page)) != TN_OK) return MHD_NO;
    return send_buffer(c, to, 200, "text/html; charset=utf-8", &text);
}

static result get_health(call *c, struct MHD_Connection *to) {
    static const char good[] = "{\"status\": \"ok\"}\n";
    tn_bytes text = {0};
    return send_json(c, to, tn_bytes_append(&text, good, sizeof good - 1), &text);
}

static result get_metrics(call *c, struct MHD_Connection *to) {
    serve_engine *e = c->http->server->engine;
    serve_gauges g = e ? engine_gauges(e) : (serve_gauges){0};
    tn_bytes text = {0};
    if (metrics_write(&g, &text) != TN_OK) return MHD_NO;
    return send_buffer(c, to, 200, "text/plain; version=0.0.4; charset=utf-8", &text);
}

static result get_models(call *c, struct MHD_Connection *to) {
    tn_bytes text = {0};
    return send_json(c, to, reply_models(c->http->server, NULL, &text), &text);
}

static result get_model(call *c, struct MHD_Connection *to) {
    const server *s = c->http->server;
    tn_bytes text = {0};
    const char *name = s->path && strcmp(c->rest, s->name) == 0            ? s->name
                       : s->encoder && strcmp(c->rest, s->embed_name) == 0 ? s->embed_name
                                                                           : NULL;
    if (name) return send_json(c, to, reply_models(s, name, &text), &text);
    serve_refuse(&c->fault, 404, "model_not_found", "model", "the model \"%.60s\" does not exist here", c->rest);
    return send_fault(c, to, &c->fault);
}

static const struct route {
    const char *method, *path;
    bool prefix, open; /* open: without the key */
    result (*get)(call *c, struct MHD_Connection *to);
    serve_kind kind;
} routes[] = {
    {"GET", "/", false, true, get_page, 0},
    {"GET", "/health", false, true, get_health, 0},
    {"GET", "/metrics", false, false, get_metrics, 0},
    {"GET", "/v1/models", false, false, get_models, 0},
    {"GET", "/v1/models/", true, false, get_model, 0},
    {"POST", "/v1/chat/completions", false, false, NULL, SERVE_CHAT},
    {"POST", "/v1/completions", false, false, NULL, SERVE_COMPLETION},
    {"POST", "/v1/embeddings", false, false, NULL, SERVE_EMBEDDING},
};

/* ---- streams ----------------------------------------------------------------------------------------------------- */

/* With the job locked: the connection waits for http_wake or http_done. */
static void suspend(serve_job *j) {
    j->suspended = true;
    p_MHD_suspend_connection(j->connection);
}

static ssize_t read_stream(void *ctx, TN_UNUSED uint64_t at, char *out, size_t most) {
    serve_job *j = ((call *)ctx)->job;
    ssize_t n = 0;
    pthread_mutex_lock(&j->lock);
    if (j->done && j->fault.code != 0) { /* the headers are sent: an event says it */
        if (reply_fault(&j->fault, true, &j->output) != TN_OK) atomic_store(&j->gone, true);
        j->fault.code = 0;
    }
    size_t left = j->output.size - j->taken;
    if (atomic_load(&j->gone)) {
        n = MHD_CONTENT_READER_END_WITH_ERROR;
    } else if (left > 0) {
        n = (ssize_t)(left < most ? left : most);
        memcpy(out, j->output.data + j->taken, (size_t)n);
        j->taken += (size_t)n;
        if (j->taken == j->output.size) j->taken = j->output.size = 0;
    } else if (j->done) {
        n = MHD_CONTENT_READER_END_OF_STREAM;
    } else {
        suspend(j);
    }
    pthread_mutex_unlock(&j->lock);
    return n;
}

static result send_stream(call *c, struct MHD_Connection *to) {
    struct MHD_Response *r = p_MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK_BYTES, read_stream, c, NULL);
    if (!r) return MHD_NO;
    p_MHD_add_response_header(r, "Content-Type", "text/event-stream");
    p_MHD_add_response_header(r, "Cache-Control", "no-cache");
    p_MHD_add_response_header(r, "X-Accel-Buffering", "no"); /* proxies pass each event on */
    result sent = p_MHD_queue_response(to, 200, r);
    p_MHD_destroy_response(r);
    c->code = 200;
    return sent;
}

/* ---- jobs -------------------------------------------------------------------------------------------------------- */

static void resume(serve_job *j) {
    if (j->suspended) p_MHD_resume_connection(j->connection);
    j->suspended = false;
}

void http_wake(serve_job *j) {
    pthread_mutex_lock(&j->lock);
    resume(j);
    pthread_mutex_unlock(&j->lock);
}

void http_done(serve_job *j) {
    pthread_mutex_lock(&j->lock);
    j->done = true;
    resume(j);
    pthread_mutex_unlock(&j->lock);
}

/* A suspended connection is ours; any other may be closed at any moment, and its end is told by end_call. */
bool http_gone(serve_job *j) {
    char byte;
    pthread_mutex_lock(&j->lock);
    ssize_t got = j->suspended ? recv(j->socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT) : 1;
    bool gone = got == 0 || (got < 0 && errno == ECONNRESET);
    pthread_mutex_unlock(&j->lock);
    return gone;
}

/* Adds to the body, if all bodies together may become so long. */
static bool add_to_body(call *c, const char *data, size_t size) {
    if (atomic_fetch_add(&c->http->body_bytes, (long long)size) + (long long)size > MOST_BODY_BYTES) {
        atomic_fetch_sub(&c->http->body_bytes, (long long)size);
        metrics_add(COUNT_REFUSED, 1);
        return serve_refuse(&c->fault, 503, "overloaded", NULL,
                            "too many long requests arrive at once; try again later");
    }
    if (tn_bytes_append(&c->body, data, size) == TN_OK) return true;
    atomic_fetch_sub(&c->http->body_bytes, (long long)size);
    return serve_refuse(&c->fault, 503, "unavailable", NULL, "out of memory");
}

static void free_body(call *c) {
    atomic_fetch_sub(&c->http->body_bytes, (long long)c->body.size);
    tn_bytes_free(&c->body);
}

static bool submit_job(call *c, struct MHD_Connection *to) {
    server *s = c->http->server;
    serve_job *j = c->job = job_new(c->route->kind);
    if (!j) return serve_refuse(&c->fault, 503, "unavailable", NULL, "out of memory");
    j->arrived = c->begun;
    bool good = request_read(s, c->body.data ? c->body.data : "", c->body.size, j);
    free_body(c);
    const union MHD_ConnectionInfo *info = p_MHD_get_connection_info(to, MHD_CONNECTION_INFO_CONNECTION_FD);
    j->connection = to;
    j->socket = info ? (int)info->connect_fd : -1;
    good = good && (j->kind == SERVE_EMBEDDING ? embedder_submit(s->embedder, j) : engine_submit(s->engine, j));
    if (!good) c->fault = j->fault;
    return good;
}

static result answer_job(call *c, struct MHD_Connection *to) {
    serve_job *j = c->job;
    pthread_mutex_lock(&j->lock);
    bool done = j->done;
    tn_bytes text = done ? j->output : (tn_bytes){0};
    if (done)
        j->output = (tn_bytes){0};
    else
        suspend(j);
    pthread_mutex_unlock(&j->lock);
    if (!done) return MHD_YES;
    if (j->fault.code == 0 && text.size > 0) return send_buffer(c, to, 200, "application/json", &text);
    tn_bytes_free(&text);
    return j->fault.code != 0 ? send_fault(c, to, &j->fault) : MHD_NO; /* gone: nobody reads it */
}

static result take_request(call *c, struct MHD_Connection *to) {
    if (c->route->get) return c->route->get(c, to);
    if (!c->submitted) {
        c->submitted = true;
        if (!submit_job(c, to)) return send_fault(c, to, &c->fault);
        if (c->job->stream) return send_stream(c, to);
    }
    return answer_job(c, to);
}

/* ---- libmicrohttpd's callbacks ----------------------------------------------------------------------------------- */

/* Takes the same time wherever the texts differ. */
static bool is_equal(const char *a, const char *b) {
    size_t n = strlen(a), m = strlen(b);
    unsigned differ = n != m;
    for (size_t i = 0; i < n; i++)
        differ |= (unsigned)(uint8_t)a[i] ^ (unsigned)(uint8_t)(i < m ? b[i] : 0);
    return differ == 0;
}

static bool check_key(call *c, struct MHD_Connection *to) {
    static const char bearer[] = "Bearer ";
    const char *key = c->http->server->key;
    const char *given = p_MHD_lookup_connection_value(to, MHD_HEADER_KIND, "Authorization");
    if (!key || (c->route && c->route->open)) return true;
    if (given && strncmp(given, bearer, sizeof bearer - 1) == 0 && is_equal(given + sizeof bearer - 1, key))
        return true;
    return serve_refuse(&c->fault, 401, "invalid_api_key", NULL,
                        given ? "the API key is wrong" : "no API key was given: send \"Authorization: Bearer KEY\"");
}

/* ---- pages of other sites ---------------------------------------------------------------------------------------- */
/* Without a key, a page of another site in a browser on this machine could use the server: by a request to its address,
 * which has the page's Origin, or by a name of its own that is made to lead here (DNS rebinding), which is the Host. */

/* "name" of "http://name:80", "name:80" or "[::1]:80", without brackets. */
static void host_of(const char *from, char *out, size_t size) {
    const char *scheme = strstr(from, "://"), *at = scheme ? scheme + 3 : from;
    bool brackets = *at == '[';
    at += brackets;
    size_t n = strcspn(at, brackets ? "]" : ":/");
    snprintf(out, size, "%.*s", (int)(n < size ? n : size - 1), at);
}

/* 127.evil.example is a name, not an address. */
static bool is_loopback(const char *host) {
    bool address = strncmp(host, "127.", 4) == 0 && host[strspn(host, "0123456789.")] == 0;
    return address || strcasecmp(host, "localhost") == 0 || strcmp(host, "::1") == 0;
}

/* Names that no other site can make lead here. A server for other machines is asked by its address or its name. */
static bool is_own(const server *s, const char *host) {
    unsigned char address[sizeof(struct in6_addr)];
    char own[256] = "";
    if (is_loopback(host)) return true;
    if (is_loopback(s->host)) return false;
    if (inet_pton(AF_INET, host, address) == 1 || inet_pton(AF_INET6, host, address) == 1) return true;
    return gethostname(own, sizeof own - 1) == 0 && own[0] && strcasecmp(host, own) == 0;
}

static bool is_allowed(const server *s, const char *host) {
    return s->allow_host && (strcmp(s->allow_host, "*") == 0 || strcasecmp(s->allow_host, host) == 0);
}

static bool check_site(call *c, struct MHD_Connection *to) {
    enum { LONGEST_HOST = 256 };
    const server *s = c->http->server;
    const char *host = p_MHD_lookup_connection_value(to, MHD_HEADER_KIND, "Host");
    const char *origin = p_MHD_lookup_connection_value(to, MHD_HEADER_KIND, "Origin");
    char name[LONGEST_HOST] = "", page[LONGEST_HOST] = "";
    if (s->key) return true;
    if (host) host_of(host, name, sizeof name);
    if (origin) host_of(origin, page, sizeof page);
    if (host && !is_own(s, name) && !is_allowed(s, name))
        return serve_refuse(&c->fault, 403, "forbidden_host", NULL,
                            "the request is for the host \"%.80s\"; without a key this server answers for this machine "
                            "and its addresses only: start it with --api-key KEY or --allow-host NAME",
                            name);
    if (!origin || is_allowed(s, page) || (host && strcasecmp(page, name) == 0)) return true;
    return serve_refuse(&c->fault, 403, "forbidden_origin", NULL,
                        "the request comes from a page of \"%.80s\"; without a key this server answers only its own "
                        "pages: start it with --api-key KEY, or with --allow-host NAME if a proxy offers it as NAME",
                        origin);
}

static bool find_route(call *c, const char *path, const char *method) {
    bool known = false;
    if (strcmp(method, "HEAD") == 0) method = "GET";
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
        const struct route *r = &routes[i];
        size_t n = strlen(r->path);
        if (r->prefix ? strncmp(path, r->path, n) != 0 || !path[n] : strcmp(path, r->path) != 0) continue;
        known = true;
        if (strcmp(r->method, method) != 0) continue;
        c->route = r;
        if (r->prefix) snprintf(c->rest, sizeof c->rest, "%s", path + n);
        return true;
    }
    if (known)
        return serve_refuse(&c->fault, 405, "method_not_allowed", NULL, "%.20s is not allowed for %.80s", method, path);
    return serve_refuse(&c->fault, 404, "not_found", NULL, "there is no %.80s", path);
}

static bool too_large(call *c) {
    return serve_refuse(&c->fault, 413, "request_too_large", NULL, "the body is longer than %" PRId64 " bytes",
                        c->http->server->body_bytes);
}

static bool check_length(call *c, struct MHD_Connection *to) {
    const char *length = p_MHD_lookup_connection_value(to, MHD_HEADER_KIND, "Content-Length");
    int64_t n = length ? strtoll(length, NULL, 10) : 0;
    return n <= c->http->server->body_bytes || too_large(c);
}

/* The key comes first: without it, nobody learns which paths there are. */
static result begin_call(serve_http *h, struct MHD_Connection *to, const char *path, const char *method, void **ctx) {
    call *c = calloc(1, sizeof *c);
    if (!c) return MHD_NO;
    c->http = h;
    c->begun = cli_now();
    atomic_fetch_add(&h->calls, 1);
    *ctx = c;
    bool found = find_route(c, path, method);
    serve_fault fault = c->fault;
    if (!check_site(c, to) || !check_key(c, to)) return send_fault(c, to, &c->fault);
    if (!found) return send_fault(c, to, &fault);
    return check_length(c, to) ? MHD_YES : send_fault(c, to, &c->fault);
}

/* Answers can be given only when the body has been read: until then a fault is kept. false: that takes too long. */
static bool take_body(call *c, const char *data, size_t size) {
    bool late = cli_now() - c->begun > BODY_SECONDS;
    if (c->fault.code != 0) return !late;
    if (late) serve_refuse(&c->fault, 408, "timeout", NULL, "the body did not arrive within %d s", (int)BODY_SECONDS);
    if (!late && c->body.size + size > (size_t)c->http->server->body_bytes) too_large(c);
    if (c->fault.code != 0 || !add_to_body(c, data, size)) free_body(c);
    return true;
}

static result take_call(void *ctx, struct MHD_Connection *to, const char *path, const char *method,
                        TN_UNUSED const char *version, const char *data, size_t *size, void **own) {
    if (!*own) return begin_call(ctx, to, path, method, own);
    call *c = *own;
    if (*size > 0) {
        bool good = take_body(c, data, *size);
        *size = 0;
        return good ? MHD_YES : MHD_NO;
    }
    return c->fault.code != 0 ? send_fault(c, to, &c->fault) : take_request(c, to);
}

/* The rest of a path is a stranger's, and a terminal obeys control characters. */
static void log_call(call *c) {
    for (char *at = c->rest; *at; at++)
        if (*at < ' ' || *at > '~') *at = '?';
    fprintf(stderr, "%s %s%s: %d, %.3f s\n", c->route ? c->route->method : "-", c->route ? c->route->path : "-",
            c->rest, c->code, cli_now() - c->begun);
}

static void end_call(void *ctx, struct MHD_Connection *to, void **own, enum MHD_RequestTerminationCode why) {
    (void)ctx, (void)to, (void)why;
    call *c = *own;
    if (!c) return;
    if (c->code != 0) metrics_answered(c->code);
    if (c->http->server->common.verbose) log_call(c);
    if (c->job) {
        pthread_mutex_lock(&c->job->lock);
        c->job->connection = NULL;
        c->job->suspended = false;
        if (!c->job->done) atomic_store(&c->job->gone, true);
        pthread_mutex_unlock(&c->job->lock);
        job_release(c->job);
    }
    free_body(c);
    atomic_fetch_sub(&c->http->calls, 1);
    free(c);
    *own = NULL;
}

/* ---- listening --------------------------------------------------------------------------------------------------- */

static int listen_at(const struct addrinfo *a) {
    int on = 1, s = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol); /* not for probes' processes */
    if (s < 0) return -1;
    (void)setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(s, a->ai_addr, a->ai_addrlen) == 0 && listen(s, BACKLOG) == 0) return s;
    int error = errno;
    close(s);
    errno = error;
    return -1;
}

static tn_status open_listener(const server *s, int *out, int *port) {
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    struct addrinfo *found = NULL;
    char number[16];
    union {
        struct sockaddr any;
        struct sockaddr_in four;
        struct sockaddr_in6 six;
    } own = {0};
    socklen_t size = sizeof own;
    snprintf(number, sizeof number, "%d", (int)s->port);
    int failed = getaddrinfo(s->host, number, &hints, &found);
    if (failed) return tn_backend_fail(TN_ERR_ARGUMENT, "host '%s': %s", s->host, gai_strerror(failed));
    *out = listen_at(found);
    for (const struct addrinfo *a = found->ai_next; a && *out < 0 && errno != EADDRINUSE; a = a->ai_next)
        *out = listen_at(a); /* "localhost" may be ::1 first, where there is no IPv6 */
    int error = errno;
    freeaddrinfo(found);
    errno = error;
    if (*out < 0)
        return tn_backend_fail(TN_ERR_IO, "cannot listen at %s, port %d: %s; use another --port (0: any free one)",
                               s->host, (int)s->port, strerror(errno));
    (void)getsockname(*out, &own.any, &size);
    *port = ntohs(own.any.sa_family == AF_INET6 ? own.six.sin6_port : own.four.sin_port);
    return TN_OK;
}

tn_status http_listen(server *s, serve_http **out, int *port) {
    TRY(load_library());
    serve_http *h = *out = calloc(1, sizeof *h);
    if (!h) return tn_backend_fail(TN_ERR_MEMORY, "HTTP: out of memory");
    h->server = s;
    h->listener = -1;
    return open_listener(s, &h->listener, port);
}

tn_status http_start(serve_http *h) {
    h->daemon = p_MHD_start_daemon(
        MHD_USE_AUTO_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME, 0, NULL, NULL, take_call, h, MHD_OPTION_LISTEN_SOCKET,
        (MHD_socket)h->listener, MHD_OPTION_NOTIFY_COMPLETED, end_call, NULL, MHD_OPTION_THREAD_POOL_SIZE,
        (unsigned)THREADS, MHD_OPTION_CONNECTION_LIMIT, (unsigned)MOST_CONNECTIONS, MHD_OPTION_CONNECTION_TIMEOUT,
        (unsigned)IDLE_SECONDS, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_BYTES, MHD_OPTION_END);
    return h->daemon ? TN_OK : tn_backend_fail(TN_ERR_IO, "libmicrohttpd could not start: %s", strerror(errno));
}

void http_quiesce(serve_http *h) {
    if (p_MHD_quiesce_daemon(h->daemon) == MHD_INVALID_SOCKET) return;
    close(h->listener);
    h->listener = -1;
}

/* A resumed connection is known to its thread only after a moment. */
void http_drain(serve_http *h, double seconds) {
    double end = cli_now() + seconds;
    do
        (void)poll(NULL, 0, 50);
    while (atomic_load(&h->calls) > 0 && cli_now() < end);
}

void http_stop(serve_http *h) {
    if (!h) return;
    bool own = h->listener >= 0 && !h->daemon; /* the daemon closes it else */
    if (h->daemon) p_MHD_stop_daemon(h->daemon);
    if (own) close(h->listener);
    free(h);
}

#else

tn_status http_listen(server *s, serve_http **out, int *port) {
    (void)s, (void)out, (void)port;
    return tn_backend_fail(TN_ERR_UNSUPPORTED,
                           "this build cannot serve: libmicrohttpd was missing at build time, or the "
                           "system has no sockets; on Debian, run apt-get install "
                           "libmicrohttpd-dev, then build again");
}

tn_status http_start(TN_UNUSED serve_http *h) { return TN_OK; }

void http_quiesce(serve_http *h) { (void)h; }
void http_drain(serve_http *h, double seconds) { (void)h, (void)seconds; }
void http_stop(serve_http *h) { (void)h; }
void http_wake(serve_job *j) { (void)j; }
void http_done(serve_job *j) { (void)j; }

bool http_gone(TN_UNUSED serve_job *j) { return false; }

#endif
