/* group_tcp.c — a star of TCP connections: every operation goes through rank 0.
 *
 * The hub receives from all ranks in their order and then sends to all, so no two ranks wait for each other. A
 * connection that does not begin with the group's greeting (a port scanner) is closed and ignored. */
#include "hal/group_tcp.h"

#include <string.h>

#include "trunnion/status.h"

#if defined(__wasi__) || defined(_WIN32)

tn_status tn_tcp_open(const char *address, int port, int rank, int size, double seconds, tn_tcp **out) {
    (void)address, (void)port, (void)rank, (void)size, (void)seconds;
    *out = NULL;
    return tn_fail(TN_ERR_UNAVAILABLE, "group: this system has no sockets");
}
void tn_tcp_close(tn_tcp *t) { (void)t; }
tn_status tn_tcp_broadcast(void *tcp, void *data, size_t bytes, int root) {
    (void)tcp, (void)data, (void)bytes, (void)root;
    return TN_ERR_UNAVAILABLE;
}
tn_status tn_tcp_all_gather(void *tcp, const void *send, size_t bytes, void *receive) {
    (void)tcp, (void)send, (void)bytes, (void)receive;
    return TN_ERR_UNAVAILABLE;
}
tn_status tn_tcp_all_to_all(void *tcp, const void *send, size_t bytes, void *receive) {
    return tn_tcp_all_gather(tcp, send, bytes, receive);
}

#else

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { RETRY_MS = 50, GREETING_MS = 2000, GO = 'g' };

struct tn_tcp {
    int rank, size;
    int *peers; /* rank 0: of each rank, its own -1; others: peers[0] */
};

typedef struct greeting {
    char magic[8];
    int32_t version, rank, size, port;
} greeting;

static greeting greeting_of(int rank, int size, int port) {
    greeting g = {"trnnion", 1, rank, size, port};
    return g;
}

/* ---- bytes ------------------------------------------------------------------------------------------------------- */

static tn_status broken(const tn_tcp *t, int rank, ssize_t got) {
    return tn_fail(TN_ERR_DEVICE, "group: rank %d: the connection to rank %d failed: %s", t->rank, rank,
                   got == 0 ? "it was closed, so that process has ended" : strerror(errno));
}

static tn_status send_to(const tn_tcp *t, int rank, const void *data, size_t bytes) {
    for (size_t at = 0; at < bytes;) {
        ssize_t n = send(t->peers[rank], (const char *)data + at, bytes - at, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return broken(t, rank, n);
        at += (size_t)n;
    }
    return TN_OK;
}

static tn_status receive_from(const tn_tcp *t, int rank, void *data, size_t bytes) {
    for (size_t at = 0; at < bytes;) {
        ssize_t n = recv(t->peers[rank], (char *)data + at, bytes - at, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return broken(t, rank, n);
        at += (size_t)n;
    }
    return TN_OK;
}

/* ---- connecting -------------------------------------------------------------------------------------------------- */

static int left_ms(double end) {
    double left = (end - tn_now()) * 1000;
    return left > 0 ? (int)(left < 1e9 ? left + 1 : 1e9) : 0;
}

/* Small messages leave at once. A machine or cable that is gone ends a call after about a minute and a half. */
static void set_options(int s) {
    static const int options[][3] = {
        {IPPROTO_TCP, TCP_NODELAY, 1},
        {SOL_SOCKET, SO_KEEPALIVE, 1},
#ifdef TCP_KEEPIDLE
        {IPPROTO_TCP, TCP_KEEPIDLE, 30},
        {IPPROTO_TCP, TCP_KEEPINTVL, 10},
        {IPPROTO_TCP, TCP_KEEPCNT, 6},
#endif
#ifdef TCP_USER_TIMEOUT
        {IPPROTO_TCP, TCP_USER_TIMEOUT, 90 * 1000},
#endif
    };
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        (void)setsockopt(s, options[i][0], options[i][1], &options[i][2], sizeof options[i][2]);
}

static int listen_at(int port, char *why, size_t size) {
    int on = 1, s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    at.sin_addr.s_addr = htonl(INADDR_ANY);
    if (s >= 0) (void)setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (s >= 0 && bind(s, (struct sockaddr *)(void *)&at, sizeof at) == 0 && listen(s, SOMAXCONN) == 0) return s;
    snprintf(why, size, "%s", strerror(errno));
    if (s >= 0) close(s);
    return -1;
}

/* A greeting that arrives in time, from a rank that was not here before; else the rank is -1. */
static int greeted(const tn_tcp *t, int s, int port) {
    greeting g, want;
    struct timeval limit = {.tv_sec = GREETING_MS / 1000};
    (void)setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    if (recv(s, &g, sizeof g, MSG_WAITALL) != (ssize_t)sizeof g) return -1;
    want = greeting_of(g.rank, t->size, port);
    if (memcmp(&g, &want, sizeof g) != 0 || g.rank < 1 || g.rank >= t->size || t->peers[g.rank] >= 0) return -1;
    limit.tv_sec = 0;
    (void)setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    return g.rank;
}

static tn_status accept_all(tn_tcp *t, int port, double end) {
    char why[128];
    int listener = listen_at(port, why, sizeof why), missing = t->size - 1;
    if (listener < 0) return tn_fail(TN_ERR_UNAVAILABLE, "group: rank 0 cannot listen at port %d: %s", port, why);
    while (missing > 0) {
        struct pollfd p = {.fd = listener, .events = POLLIN};
        int ready = poll(&p, 1, left_ms(end));
        if (ready < 0 && errno == EINTR) continue;
        if (ready <= 0) break;
        int s = accept(listener, NULL, NULL), rank = s >= 0 ? greeted(t, s, port) : -1;
        if (rank < 0) {
            if (s >= 0) close(s);
            continue;
        }
        set_options(s);
        t->peers[rank] = s;
        missing--;
    }
    close(listener);
    if (missing == 0) return TN_OK;
    return tn_fail(TN_ERR_UNAVAILABLE, "group: %d of %d ranks did not connect to port %d of rank 0 in time", missing,
                   t->size, port);
}

/* While nobody listens at a port that the system also gives to connections, a connection may reach itself. */
static bool reached_itself(int s) {
    struct sockaddr_in own = {0}, peer = {0};
    socklen_t n = sizeof own, m = sizeof peer;
    return getsockname(s, (struct sockaddr *)(void *)&own, &n) == 0 &&
           getpeername(s, (struct sockaddr *)(void *)&peer, &m) == 0 && own.sin_port == peer.sin_port &&
           own.sin_addr.s_addr == peer.sin_addr.s_addr;
}

static int connect_once(const struct addrinfo *found) {
    for (const struct addrinfo *a = found; a; a = a->ai_next) {
        int s = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (s >= 0 && connect(s, a->ai_addr, a->ai_addrlen) == 0 && !reached_itself(s)) return s;
        if (s >= 0) close(s);
    }
    return -1;
}

static tn_status connect_to_hub(tn_tcp *t, const char *address, int port, double end) {
    struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM}, *found = NULL;
    char service[16];
    snprintf(service, sizeof service, "%d", port);
    int code = getaddrinfo(address, service, &hints, &found);
    if (code != 0)
        return tn_fail(TN_ERR_UNAVAILABLE, "group: the address \"%s\" of rank 0 is not known: %s", address,
                       gai_strerror(code));
    while ((t->peers[0] = connect_once(found)) < 0 && tn_now() < end)
        nanosleep(&(struct timespec){.tv_nsec = RETRY_MS * 1000000L}, NULL);
    freeaddrinfo(found);
    if (t->peers[0] < 0)
        return tn_fail(TN_ERR_UNAVAILABLE, "group: rank %d cannot connect to rank 0 at %s:%d", t->rank, address, port);
    set_options(t->peers[0]);
    greeting g = greeting_of(t->rank, t->size, port);
    return send_to(t, 0, &g, sizeof g);
}

tn_status tn_tcp_open(const char *address, int port, int rank, int size, double seconds, tn_tcp **out) {
    tn_tcp *t = tn_mem_zalloc(1, sizeof *t);
    int *peers = tn_mem_alloc((size_t)size * sizeof *peers);
    double end = tn_now() + seconds;
    char go = rank == 0 ? GO : 0;
    *out = NULL;
    if (!t || !peers) {
        tn_mem_free(t);
        tn_mem_free(peers);
        return TN_ERR_MEMORY;
    }
    *t = (tn_tcp){rank, size, peers};
    for (int i = 0; i < size; i++)
        peers[i] = -1;
    tn_status s = rank == 0 ? accept_all(t, port, end) : connect_to_hub(t, address, port, end);
    if (s == TN_OK) s = tn_tcp_broadcast(t, &go, 1, 0); /* all are there */
    if (s == TN_OK && go != GO)
        s = tn_fail(TN_ERR_UNAVAILABLE, "group: what answers at %s:%d is not rank 0", address, port);
    if (s == TN_OK)
        *out = t;
    else
        tn_tcp_close(t);
    return s;
}

void tn_tcp_close(tn_tcp *t) {
    if (!t) return;
    for (int i = 0; i < t->size; i++)
        if (t->peers[i] >= 0) close(t->peers[i]);
    tn_mem_free(t->peers);
    tn_mem_free(t);
}

/* ---- operations -------------------------------------------------------------------------------------------------- */

tn_status tn_tcp_broadcast(void *tcp, void *data, size_t bytes, int root) {
    const tn_tcp *t = tcp;
    if (t->rank == root && t->rank != 0) TRY(send_to(t, 0, data, bytes));
    if (t->rank != 0) return t->rank == root ? TN_OK : receive_from(t, 0, data, bytes);
    if (root != 0) TRY(receive_from(t, root, data, bytes));
    for (int r = 1; r < t->size; r++)
        if (r != root) TRY(send_to(t, r, data, bytes));
    return TN_OK;
}

tn_status tn_tcp_all_gather(void *tcp, const void *send, size_t bytes, void *receive) {
    const tn_tcp *t = tcp;
    size_t size = (size_t)t->size;
    if (t->rank != 0) {
        TRY(send_to(t, 0, send, bytes));
        return receive_from(t, 0, receive, size * bytes);
    }
    if (bytes) memcpy(receive, send, bytes);
    for (int r = 1; r < t->size; r++)
        TRY(receive_from(t, r, (char *)receive + (size_t)r * bytes, bytes));
    for (int r = 1; r < t->size; r++)
        TRY(send_to(t, r, receive, size * bytes));
    return TN_OK;
}

/* rows: what each rank sends, [from][to]; each gets its column. */
static tn_status spread_columns(const tn_tcp *t, const char *rows, size_t bytes, char *receive) {
    size_t size = (size_t)t->size;
    for (size_t to = 1; to < size; to++)
        for (size_t from = 0; from < size; from++)
            TRY(send_to(t, (int)to, rows + (from * size + to) * bytes, bytes));
    for (size_t from = 0; from < size && bytes; from++)
        memcpy(receive + from * bytes, rows + from * size * bytes, bytes);
    return TN_OK;
}

tn_status tn_tcp_all_to_all(void *tcp, const void *send, size_t bytes, void *receive) {
    const tn_tcp *t = tcp;
    size_t row = (size_t)t->size * bytes;
    if (t->rank != 0) {
        TRY(send_to(t, 0, send, row));
        return receive_from(t, 0, receive, row);
    }
    if (bytes && row > SIZE_MAX / (size_t)t->size) return TN_ERR_MEMORY;
    char *rows = tn_mem_alloc(row * (size_t)t->size + 1);
    tn_status s = rows ? TN_OK : tn_fail(TN_ERR_MEMORY, "group: out of memory for an exchange over TCP");
    if (s == TN_OK && bytes) memcpy(rows, send, row);
    for (int r = 1; r < t->size && s == TN_OK; r++)
        s = receive_from(t, r, rows + (size_t)r * row, row);
    if (s == TN_OK) s = spread_columns(t, rows, bytes, receive);
    tn_mem_free(rows);
    return s;
}

#endif
