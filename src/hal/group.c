/* group.c — groups of processes: the launcher's environment, the transports "self", "mpi" and "tcp", and collective
 * operations on device memory by NCCL or RCCL.
 *
 * In a group of one process every operation is a copy or nothing, so programs need not distinguish. The ranks agree
 * once, by the transport, whether they all have a GPU and its library; if not, device memory is exchanged through the
 * host. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if !defined(__wasi__) && !defined(_WIN32)
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#endif

#include "base/base.h"
#include "hal/hal.h"
#include "trunnion/distributed.h"
#include "vendor/mpi.h"

enum { MOST_RANKS = 1 << 20, MOST_POSTED = 4, MOST_TAG = 0x7fff, SETTLED = 2 /* a call; those of exchanges are odd */ };

/* How bytes of the host get to other processes. */
typedef struct transport {
    const char *name;
    tn_status (*broadcast)(void *own, void *data, size_t bytes, int root);
    tn_status (*all_gather)(void *own, const void *send, size_t bytes, void *receive);
    tn_status (*all_to_all)(void *own, const void *send, size_t bytes, void *receive);
} transport;

typedef struct tn_tcp tn_tcp;

struct tn_group {
    const transport *by;
    tn_tcp *tcp;
    bool started; /* MPI was started by tn_group_open */
    int rank, size;
    tn_device *device;    /* whose memory the communicator works on; NULL: the host's way */
    void *comm;           /* NCCL's */
    bool asked;           /* whether there is one has been agreed */
    uint64_t *answers;    /* room for a word of each rank */
    size_t *lengths;      /* room for two of each rank */
    struct {              /* exchanges that are steps of a plan */
        int posted;       /* since tn_group_settle */
        int64_t numbers;  /* given to recorded exchanges since then */
        tn_status status; /* of the first that failed; its words are in `why` */
        bool told;        /* all ranks know of a failure: none begins an exchange until tn_group_settle */
        char why[256];
        struct {
            const void *receive; /* NULL: free */
            tn_mpi_request request;
        } pending[MOST_POSTED];
    } steps;
};

/* ==== TCP ========================================================================================================= */
/* For launchers without MPI (torchrun, srun): a star of connections, every operation goes through rank 0. Meant for
 * agreement and identifiers; large tensors go through NCCL where there are GPUs. The hub receives from all ranks in
 * their order and then sends to all, so no two ranks wait for each other. A connection that does not begin with the
 * group's greeting (a port scanner) is closed and ignored. */

#if defined(__wasi__) || defined(_WIN32)

static tn_status tcp_open(TN_UNUSED const char *address, TN_UNUSED int port, TN_UNUSED int rank, TN_UNUSED int size,
                          TN_UNUSED double seconds, tn_tcp **out) {
    *out = NULL;
    return tn_fail(TN_ERR_UNAVAILABLE, "group: this system has no sockets");
}
static void tcp_close(TN_UNUSED tn_tcp *t) {}
static const transport by_tcp = {.name = "tcp"}; /* of no open group */
static tn_status tcp_rows(TN_UNUSED const tn_tcp *t, TN_UNUSED const size_t *from, TN_UNUSED const size_t *bytes,
                          TN_UNUSED char **rows) {
    return TN_ERR_STATE;
}
static tn_status tcp_scatter(TN_UNUSED tn_tcp *t, TN_UNUSED const char *send, TN_UNUSED const size_t *from,
                             TN_UNUSED const size_t *bytes, TN_UNUSED char *receive, TN_UNUSED char *rows) {
    return TN_ERR_STATE;
}

#else

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

/* ---- operations -------------------------------------------------------------------------------------------------- */

/* TN_ERR_DEVICE: a rank has closed its connection, or the network failed. */
static tn_status tcp_broadcast(void *tcp, void *data, size_t bytes, int root) {
    const tn_tcp *t = tcp;
    if (t->rank == root && t->rank != 0) TRY(send_to(t, 0, data, bytes));
    if (t->rank != 0) return t->rank == root ? TN_OK : receive_from(t, 0, data, bytes);
    if (root != 0) TRY(receive_from(t, root, data, bytes));
    for (int r = 1; r < t->size; r++)
        if (r != root) TRY(send_to(t, r, data, bytes));
    return TN_OK;
}

static tn_status tcp_all_gather(void *tcp, const void *send, size_t bytes, void *receive) {
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

/* rows: what each rank sends, `row` bytes; each gets its column. */
static tn_status spread_columns(const tn_tcp *t, const char *rows, size_t row, const size_t *from, const size_t *bytes,
                                char *receive) {
    size_t size = (size_t)t->size;
    for (size_t to = 1; to < size; to++)
        for (size_t rank = 0; rank < size; rank++)
            TRY(send_to(t, (int)to, rows + rank * row + from[to], bytes[to]));
    for (size_t rank = 0; rank < size && bytes[0]; rank++)
        memcpy(receive + rank * bytes[0], rows + rank * row + from[0], bytes[0]);
    return TN_OK;
}

/* The bytes of a rank's row. */
static size_t row_bytes(const tn_tcp *t, const size_t *from, const size_t *bytes) {
    size_t row = 0;
    for (int i = 0; i < t->size; i++)
        row = from[i] + bytes[i] > row ? from[i] + bytes[i] : row;
    return row;
}

/* *rows: room for the rows of all ranks, for tcp_scatter on rank 0; NULL on others. */
static tn_status tcp_rows(const tn_tcp *t, const size_t *from, const size_t *bytes, char **rows) {
    size_t size = (size_t)t->size, row = row_bytes(t, from, bytes);
    *rows = t->rank == 0 && row <= (SIZE_MAX - 1) / size ? tn_mem_alloc(row * size + 1) : NULL;
    if (t->rank != 0 || *rows) return TN_OK;
    return tn_fail(TN_ERR_MEMORY, "group: out of memory for an exchange over TCP");
}

/* from, bytes: where in `send` what goes to each rank begins, and how long it is: the same on all ranks. */
static tn_status tcp_scatter(const tn_tcp *t, const char *send, const size_t *from, const size_t *bytes, char *receive,
                             char *rows) {
    size_t size = (size_t)t->size, row = row_bytes(t, from, bytes);
    if (t->rank != 0) {
        TRY(send_to(t, 0, send, row));
        return receive_from(t, 0, receive, size * bytes[t->rank]);
    }
    if (row) memcpy(rows, send, row);
    for (int r = 1; r < t->size; r++)
        TRY(receive_from(t, r, rows + (size_t)r * row, row));
    return spread_columns(t, rows, row, from, bytes, receive);
}

static tn_status tcp_all_to_all(void *tcp, const void *send, size_t bytes, void *receive) {
    const tn_tcp *t = tcp;
    AUTO_FREE size_t *from = tn_mem_alloc((size_t)t->size * 2 * sizeof *from);
    size_t *each = from ? from + t->size : NULL;
    for (int i = 0; from && i < t->size; i++) {
        from[i] = (size_t)i * bytes;
        each[i] = bytes;
    }
    AUTO_FREE char *rows = NULL;
    TRY(from ? tcp_rows(t, from, each, &rows) : TN_ERR_MEMORY);
    return tcp_scatter(t, send, from, each, receive, rows);
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

/* SOCK_CLOEXEC is not on every system. */
static int open_socket(int family) {
    int s = socket(family, SOCK_STREAM, 0);
    if (s >= 0) (void)fcntl(s, F_SETFD, FD_CLOEXEC);
    return s;
}

static int listen_at(int port, char *why, size_t size) {
    int on = 1, s = open_socket(AF_INET);
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
        int s = open_socket(a->ai_family);
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

static void tcp_close(tn_tcp *t) {
    if (!t) return;
    for (int i = 0; i < t->size; i++)
        if (t->peers[i] >= 0) close(t->peers[i]);
    tn_mem_free_each(t->peers, t);
}

/* Rank 0 listens at `port` for size - 1 connections, the others connect to `address`; all must arrive within
 * `seconds`. Errors: TN_ERR_UNAVAILABLE with what failed. */
static tn_status tcp_open(const char *address, int port, int rank, int size, double seconds, tn_tcp **out) {
    tn_tcp *t = tn_mem_zalloc(1, sizeof *t);
    int *peers = tn_mem_alloc((size_t)size * sizeof *peers);
    double end = tn_now() + seconds;
    char go = rank == 0 ? GO : 0;
    *out = NULL;
    if (!t || !peers) {
        tn_mem_free_each(t, peers);
        return TN_ERR_MEMORY;
    }
    *t = (tn_tcp){rank, size, peers};
    for (int i = 0; i < size; i++)
        peers[i] = -1;
    tn_status s = rank == 0 ? accept_all(t, port, end) : connect_to_hub(t, address, port, end);
    if (s == TN_OK) s = tcp_broadcast(t, &go, 1, 0); /* all are there */
    if (s == TN_OK && go != GO)
        s = tn_fail(TN_ERR_UNAVAILABLE, "group: what answers at %s:%d is not rank 0", address, port);
    if (s == TN_OK)
        *out = t;
    else
        tcp_close(t);
    return s;
}

static const transport by_tcp = {"tcp", tcp_broadcast, tcp_all_gather, tcp_all_to_all};

#endif

/* ==== groups ====================================================================================================== */

/* ---- the launcher ------------------------------------------------------------------------------------------------ */

/* What launchers set, in the order in which they are asked: in a SLURM job mpirun's variables take precedence. */
static const struct {
    const char *rank, *size;
} launchers[] = {
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"}, /* Open MPI's mpirun */
    {"PMI_RANK", "PMI_SIZE"},                         /* Hydra: MPICH, Intel MPI; SLURM with PMI-2 */
    {"PMIX_RANK", "SLURM_NTASKS"},                    /* SLURM with PMIx */
    {"RANK", "WORLD_SIZE"},                           /* torchrun */
    {"SLURM_PROCID", "SLURM_NTASKS"},                 /* srun without an MPI plugin */
};
enum { FIRST_OF_TCP = 3 /* rows from here on are of launchers without MPI */ };

/* A number that a launcher set; -1: none. */
static int launched(const char *name) {
    const char *text = tn_env(name);
    char *end;
    long value = text ? strtol(text, &end, 10) : -1;
    return text && *end == 0 && value >= 0 && value <= MOST_RANKS ? (int)value : -1;
}

/* Returns the launcher's row; -1: none. */
static int ask_launchers(int *rank, int *size) {
    for (size_t i = 0; i < TN_COUNT(launchers); i++) {
        *rank = launched(launchers[i].rank);
        *size = launched(launchers[i].size);
        if (*size > 0 && *rank >= 0 && *rank < *size) return (int)i;
    }
    *rank = 0;
    *size = 1;
    return -1;
}

int tn_group_launched_size(void) {
    int rank, size;
    (void)ask_launchers(&rank, &size);
    return size;
}

int tn_group_launched_rank(void) {
    int rank, size;
    (void)ask_launchers(&rank, &size);
    return rank;
}

int tn_group_launched_local_rank(void) {
    static const char *const names[] = {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "LOCAL_RANK", "SLURM_LOCALID"};
    for (size_t i = 0; i < TN_COUNT(names); i++)
        if (launched(names[i]) >= 0) return launched(names[i]);
    return 0;
}

/* ---- transports -------------------------------------------------------------------------------------------------- */

static tn_status self_broadcast(TN_UNUSED void *own, TN_UNUSED void *data, TN_UNUSED size_t bytes, TN_UNUSED int root) {
    return TN_OK;
}
static tn_status self_copy(TN_UNUSED void *own, const void *send, size_t bytes, void *receive) {
    if (bytes) memcpy(receive, send, bytes);
    return TN_OK;
}
static tn_status mpi_broadcast(TN_UNUSED void *own, void *data, size_t bytes, int root) {
    return tn_mpi_broadcast(data, bytes, root);
}
static tn_status mpi_all_gather(TN_UNUSED void *own, const void *send, size_t bytes, void *receive) {
    return tn_mpi_all_gather(send, bytes, receive);
}
static tn_status mpi_all_to_all(TN_UNUSED void *own, const void *send, size_t bytes, void *receive) {
    return tn_mpi_all_to_all(send, bytes, receive);
}

/* After tn_group_abort. */
static tn_status left_broadcast(TN_UNUSED void *own, TN_UNUSED void *data, TN_UNUSED size_t bytes, TN_UNUSED int root) {
    return tn_fail(TN_ERR_STATE, "group: this rank has left the group (tn_group_abort)");
}
static tn_status left_exchange(void *own, TN_UNUSED const void *send, size_t bytes, TN_UNUSED void *receive) {
    return left_broadcast(own, NULL, bytes, 0);
}

static const transport by_self = {"self", self_broadcast, self_copy, self_copy};
static const transport by_mpi = {"mpi", mpi_broadcast, mpi_all_gather, mpi_all_to_all};
static const transport left = {"tcp", left_broadcast, left_exchange, left_exchange};

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static tn_status open_mpi(tn_group *g) {
    tn_status status = tn_mpi_begin(&g->started);
    if (status != TN_OK) return status;
    g->by = &by_mpi;
    g->rank = tn_mpi_rank();
    g->size = tn_mpi_size();
    int launched_size = tn_group_launched_size();
    if (launched_size > 1 && g->size != launched_size)
        return tn_fail(TN_ERR_UNAVAILABLE,
                       "MPI: the launcher started %d processes, but %s has found %d; use the launcher of this library, "
                       "or set TRUNNION_MPI_LIB to the launcher's",
                       launched_size, tn_mpi_version(), g->size);
    return TN_OK;
}

/* Where rank 0 listens. torchrun's own store is at MASTER_PORT, so the next one is taken. */
static tn_status open_tcp(tn_group *g) {
    TN_C_LOCALE;
    enum { LIMIT = 65535, FIRST = 20000, SPREAD = 10000 };
    const char *address = tn_env("MASTER_ADDR"), *wait = tn_env("TRUNNION_GROUP_SECONDS");
    int port = launched("MASTER_PORT"), job = launched("SLURM_JOB_ID");
    double seconds = wait ? strtod(wait, NULL) : 120;
    (void)ask_launchers(&g->rank, &g->size);
    if (!address) address = tn_env("SLURM_LAUNCH_NODE_IPADDR");
    port = port > 0 ? port + 1 : job > 0 ? FIRST + job % SPREAD : -1;
    if (!address || port < 1 || port > LIMIT)
        return tn_fail(TN_ERR_UNAVAILABLE, "group: set MASTER_ADDR and MASTER_PORT to the address of rank 0 and a port "
                                           "below 65535 (torchrun does)");
    g->by = &by_tcp;
    return tcp_open(address, port, g->rank, g->size, seconds > 0 ? seconds : 120, &g->tcp);
}

static tn_status open_backend(tn_group *g, const char *backend) {
    int rank, size, launcher = ask_launchers(&rank, &size);
    g->size = 1;
    g->by = &by_self;
    if (strcmp(backend, "self") == 0) return TN_OK;
    if (strcmp(backend, "mpi") == 0) return open_mpi(g);
    if (strcmp(backend, "tcp") == 0) return size > 1 ? open_tcp(g) : TN_OK;
    if (strcmp(backend, "auto") == 0 && size > 1) return launcher >= FIRST_OF_TCP ? open_tcp(g) : open_mpi(g);
    if (strcmp(backend, "auto") == 0) return TN_OK;
    return tn_fail(TN_ERR_ARGUMENT, "group: unknown backend \"%s\"; known are auto, mpi, self and tcp", backend);
}

static void group_free(tn_group *g) {
    tcp_close(g->tcp);
    tn_mem_free_each(g->answers, g->lengths, g);
}

tn_status tn_group_open(const tn_group_options *options, tn_group **out) {
    tn_group_options o = TN_GROUP_DEFAULTS;
    TRY(tn_need(out, "tn_group_open: out"));
    *out = NULL;
    TRY(tn_options_read(&o, options, "group", "tn_group_options o = TN_GROUP_DEFAULTS"));
    TRY(tn_need(o.backend, "tn_group_open: options->backend"));
    tn_group *g = tn_mem_zalloc(1, sizeof *g);
    tn_status status = g ? open_backend(g, o.backend) : TN_ERR_MEMORY;
    if (status == TN_OK) g->answers = tn_mem_alloc((size_t)g->size * sizeof *g->answers);
    if (status == TN_OK) g->lengths = tn_mem_alloc((size_t)g->size * 2 * sizeof *g->lengths);
    if (status == TN_OK && (!g->answers || !g->lengths)) status = TN_ERR_MEMORY;
    if (status == TN_ERR_MEMORY) status = tn_fail(status, "group: out of memory");
    if (status == TN_OK) {
        *out = g;
        return TN_OK;
    }
    if (g && g->started) tn_mpi_end();
    if (g) group_free(g);
    return status;
}

static tn_status leave_comm(void *comm, TN_UNUSED const tn_lent *lent) {
    tn_nccl_leave(comm);
    return TN_OK;
}

void tn_group_close(tn_group *g) {
    if (!g) return;
    (void)tn_group_barrier(g);
    if (g->comm) (void)g->device->driver->lend(tn_stream_handle(g->device), leave_comm, g->comm);
    if (g->device) tn_device_release(g->device);
    if (g->started) tn_mpi_end();
    group_free(g);
}

/* Over TCP the others learn of it when their connection ends. */
void tn_group_abort(tn_group *g, int code) {
    if (!g || g->size == 1) return;
    if (g->by == &by_mpi) tn_mpi_abort(code);
    tcp_close(g->tcp);
    g->tcp = NULL;
    g->by = &left;
}

int tn_group_rank(const tn_group *g) { return g ? g->rank : 0; }
int tn_group_size(const tn_group *g) { return g ? g->size : 1; }
const char *tn_group_backend(const tn_group *g) { return g ? g->by->name : "self"; }
const char *tn_group_library(const tn_group *g) { return g && g->by == &by_mpi ? tn_mpi_version() : ""; }
const char *tn_group_device_library(const tn_group *g) { return g && g->comm ? tn_nccl_version() : ""; }

/* ---- operations -------------------------------------------------------------------------------------------------- */

static tn_status check_call(const tn_group *g, const void *a, const void *b, size_t bytes, const char *function) {
    if (!g) return tn_fail(TN_ERR_ARGUMENT, "%s: the group is NULL", function);
    if (bytes && (!a || !b)) return tn_fail(TN_ERR_ARGUMENT, "%s: a buffer is NULL", function);
    if (bytes > SIZE_MAX / (size_t)g->size)
        return tn_fail(TN_ERR_ARGUMENT, "%s: %zu bytes for each of %d ranks are more than a size_t can count", function,
                       bytes, g->size);
    return TN_OK;
}

tn_status tn_group_check_root(const tn_group *g, int root) {
    if (root >= 0 && root < g->size) return TN_OK;
    return tn_fail(TN_ERR_ARGUMENT, "tn_group_broadcast: root %d is not a rank; there are %d", root, g->size);
}

tn_status tn_group_broadcast(tn_group *g, void *data, size_t bytes, int root) {
    TRY(check_call(g, data, data, bytes, "tn_group_broadcast"));
    TRY(tn_group_check_root(g, root));
    return g->by->broadcast(g->tcp, data, bytes, root);
}

tn_status tn_group_all_gather(tn_group *g, const void *send, size_t bytes, void *receive) {
    TRY(check_call(g, send, receive, bytes, "tn_group_all_gather"));
    return g->by->all_gather(g->tcp, send, bytes, receive);
}

tn_status tn_group_all_to_all(tn_group *g, const void *send, size_t bytes, void *receive) {
    TRY(check_call(g, send, receive, bytes, "tn_group_all_to_all"));
    return g->by->all_to_all(g->tcp, send, bytes, receive);
}

tn_status tn_group_barrier(tn_group *g) {
    TRY(check_call(g, NULL, NULL, 0, "tn_group_barrier"));
    if (g->by == &by_mpi) return tn_mpi_barrier();
    char own = 0;
    return g->by->all_gather(g->tcp, &own, 1, g->answers);
}

/* ---- device memory ----------------------------------------------------------------------------------------------- */

typedef struct collective {
    tn_group *g;
    tn_collective what;
    int root;
    const void *send;
    void *receive;
    size_t bytes;
    tn_nccl_id id;
} collective;

static tn_status join(void *ctx, TN_UNUSED const tn_lent *lent) {
    collective *c = ctx;
    return tn_nccl_join(&c->id, c->g->rank, c->g->size, &c->g->comm);
}

tn_status tn_group_agree(tn_group *g, tn_status s, uint64_t call) {
    uint64_t own = s == TN_OK ? call : 0, *all = g->answers;
    tn_status reached = tn_group_all_gather(g, &own, sizeof own, all);
    if (s != TN_OK || reached != TN_OK) return s != TN_OK ? s : reached;
    for (int r = 0; r < g->size; r++)
        if (!all[r]) return tn_fail(TN_ERR_STATE, "group: rank %d failed before the exchange; its error says why", r);
    for (int r = 0; r < g->size; r++)
        if (all[r] != own)
            return tn_fail(TN_ERR_STATE, "group: rank %d calls another function, or with another dtype or size", r);
    return TN_OK;
}

static bool all_can(tn_group *g, bool can) { return tn_group_agree(g, can ? TN_OK : TN_ERR_UNAVAILABLE, 1) == TN_OK; }

/* Does this device have a communicator? All ranks ask together, once, for the first tensors of a GPU. */
static bool has_comm(tn_group *g, tn_device *d) {
    collective c = {.g = g};
    if (g->asked || !d->driver->lend) return g->comm && g->device == d;
    g->asked = true;
    bool able = g->size > 1 && tn_nccl_load(d->driver->name) == TN_OK;
    if (able && g->rank == 0) able = tn_nccl_make_id(&c.id) == TN_OK;
    if (!all_can(g, able) || tn_group_broadcast(g, &c.id, sizeof c.id, 0) != TN_OK) return false;
    bool joined = d->driver->lend(tn_stream_handle(d), join, &c) == TN_OK;
    if (!joined) tn_log_line(TN_LOG_NOTICE, "%s: %s; exchanging through the host", d->info.id, tn_error());
    if (all_can(g, joined)) {
        tn_device_retain(d);
        g->device = d;
        return true;
    }
    if (joined) (void)d->driver->lend(tn_stream_handle(d), leave_comm, g->comm);
    g->comm = NULL;
    return false;
}

static tn_status work_collective(void *ctx, const tn_lent *lent) {
    const collective *c = ctx;
    void *comm = c->g->comm, *stream = lent->stream;
    if (c->what == TN_COLLECTIVE_BROADCAST) return tn_nccl_broadcast(comm, c->receive, c->bytes, c->root, stream);
    if (c->what == TN_COLLECTIVE_GATHER) return tn_nccl_all_gather(comm, c->send, c->bytes, c->receive, stream);
    return tn_nccl_all_to_all(comm, c->send, c->bytes, c->receive, c->g->size, stream);
}

static tn_status on_host(collective *c) {
    if (c->what == TN_COLLECTIVE_BROADCAST) return tn_group_broadcast(c->g, c->receive, c->bytes, c->root);
    if (c->what == TN_COLLECTIVE_GATHER) return tn_group_all_gather(c->g, c->send, c->bytes, c->receive);
    return tn_group_all_to_all(c->g, c->send, c->bytes, c->receive);
}

/* Through two blocks of the host. */
static tn_status through_host(collective *c, tn_buffer *send, size_t send_bytes, tn_buffer *receive, size_t bytes) {
    void *from = tn_mem_alloc(send_bytes + 1), *to = tn_mem_alloc(bytes + 1);
    tn_status s = from && to ? TN_OK : tn_fail(TN_ERR_MEMORY, "group: out of host memory for an exchange");
    if (s == TN_OK) s = tn_buffer_read(send, 0, from, send_bytes);
    s = tn_group_agree(c->g, s, 1);
    if (s == TN_OK && c->what == TN_COLLECTIVE_BROADCAST) memcpy(to, from, bytes);
    c->send = from;
    c->receive = to;
    if (s == TN_OK) s = on_host(c);
    if (s == TN_OK) s = tn_buffer_write(receive, 0, to, bytes);
    tn_mem_free_each(from, to);
    return s;
}

tn_status tn_group_collect(tn_group *g, tn_collective what, int root, tn_buffer *send, size_t bytes,
                           tn_buffer *receive) {
    tn_device *d = send->device;
    size_t size = (size_t)g->size, send_bytes = what == TN_COLLECTIVE_TRADE ? size * bytes : bytes;
    size_t receive_bytes = what == TN_COLLECTIVE_BROADCAST ? bytes : size * bytes;
    collective c = {.g = g, .what = what, .root = root, .bytes = bytes};
    TRY(check_call(g, send, receive, bytes, "group"));
    if (what == TN_COLLECTIVE_BROADCAST) TRY(tn_group_check_root(g, root));
    if (!bytes) return TN_OK;
    if (!has_comm(g, d)) return through_host(&c, send, send_bytes, receive, receive_bytes);
    if (what == TN_COLLECTIVE_BROADCAST) TRY(tn_buffer_copy(receive, send, bytes));
    TRY(tn_buffer_await(send, false));
    TRY(tn_buffer_await(receive, true));
    c.send = send->address;
    c.receive = receive->address;
    TRY(d->driver->lend(tn_stream_handle(d), work_collective, &c));
    return tn_device_wait(d, tn_stream_handle(d));
}

/* ---- exchanges that are steps of a plan -------------------------------------------------------------------------- */

static void note_step(tn_group *g, tn_status s) {
    if (s == TN_OK || g->steps.status != TN_OK) return;
    g->steps.status = s;
    snprintf(g->steps.why, sizeof g->steps.why, "%s", tn_error());
}

/* What an exchange needs, made before the ranks agree to begin: afterwards the others wait for this one. */
typedef struct step_room {
    char *rows; /* TCP */
    int at;     /* MPI: in steps.pending */
} step_room;

static tn_status prepare_step(tn_group *g, const size_t *from, const size_t *bytes, char *receive, step_room *room) {
    *room = (step_room){.rows = NULL};
    if (g->by == &by_tcp) return tcp_rows(g->tcp, from, bytes, &room->rows);
    if (g->by != &by_mpi) return TN_OK;
    while (room->at < MOST_POSTED && g->steps.pending[room->at].receive)
        room->at++;
    if (room->at == MOST_POSTED)
        return tn_fail(TN_ERR_STATE, "group: more than %d exchanges are under way", MOST_POSTED);
    TRY(tn_mpi_receive(bytes, receive, g->steps.posted & MOST_TAG, &g->steps.pending[room->at].request));
    g->steps.pending[room->at].receive = receive;
    return TN_OK;
}

/* Ends an exchange that will not be complete. begun: the number of messages that each rank has begun to send; NULL:
 * none. */
static void cancel_step(tn_group *g, const size_t *bytes, const uint64_t *begun, const step_room *room) {
    if (g->by != &by_mpi || room->at == MOST_POSTED || !g->steps.pending[room->at].receive) return;
    tn_mpi_cancel(bytes, begun, &g->steps.pending[room->at].request);
    g->steps.pending[room->at].receive = NULL;
}

/* MPI_Isend may fail on a rank that was ready. So all ranks compare how many messages each has begun to send; if any is
 * missing, all cancel the exchange, and fail instead of waiting. */
static tn_status start_sending(tn_group *g, const char *send, const size_t *from, const size_t *bytes, char *receive,
                               const step_room *room) {
    tn_mpi_request *request = &g->steps.pending[room->at].request;
    tn_status s = tn_mpi_send(send, from, bytes, receive, request);
    uint64_t own = (uint64_t)tn_mpi_begun(request), *begun = g->answers;
    tn_status reached = tn_mpi_all_gather(&own, sizeof own, begun);
    int rank = 0;
    while (reached == TN_OK && rank < g->size && begun[rank] == (uint64_t)tn_mpi_messages(bytes, rank))
        rank++;
    if (reached == TN_OK && rank == g->size) return TN_OK;
    cancel_step(g, bytes, reached == TN_OK ? begun : NULL, room);
    if (s != TN_OK || reached != TN_OK) return s != TN_OK ? s : reached;
    return tn_fail(TN_ERR_STATE, "group: rank %d failed to send; its error says why", rank);
}

/* from, bytes: what goes to each rank. */
static tn_status start_step(tn_group *g, const char *send, const size_t *from, const size_t *bytes, char *receive,
                            const step_room *room) {
    if (g->by == &by_tcp) return tcp_scatter(g->tcp, send, from, bytes, receive, room->rows);
    if (g->by == &by_mpi) return start_sending(g, send, from, bytes, receive, room);
    return self_copy(NULL, send + from[g->rank], bytes[g->rank], receive);
}

static const uint64_t MIX = 0x9E3779B97F4A7C15;

/* Tells the other ranks that an evaluation or a wait failed here, when they agree on the next exchange. */
static void tell_failure(tn_group *g) {
    if (g->steps.status != TN_OK && !g->steps.told) (void)tn_group_agree(g, g->steps.status, 0);
    g->steps.told = g->steps.status != TN_OK;
}

/* Every rank says first whether it has come so far: one that has failed calls tn_group_settle instead. */
void tn_group_post(tn_group *g, const tn_group_step *step, const void *send, const int64_t *lengths, void *receive) {
    tell_failure(g);
    if (g->steps.status != TN_OK) return;
    size_t *from = g->lengths, *each = from + g->size, total = 0;
    for (int rank = 0; rank < g->size; rank++) {
        from[rank] = lengths || step->divides ? total : 0;
        each[rank] = lengths ? (size_t)lengths[rank] : step->bytes;
        total += each[rank];
    }
    step_room room;
    tn_status s = prepare_step(g, from, each, receive, &room);
    uint64_t call = ((uint64_t)total * MIX + (uint64_t)step->number) * MIX + (uint64_t)g->steps.posted;
    s = tn_group_agree(g, s, call << 1 | 1);
    if (s == TN_OK)
        s = start_step(g, send, from, each, receive, &room);
    else
        cancel_step(g, each, NULL, &room);
    g->steps.posted++;
    tn_mem_free(room.rows);
    note_step(g, s);
    g->steps.told = s != TN_OK;
}

void tn_group_await(tn_group *g, const void *receive) {
    for (int i = 0; i < MOST_POSTED; i++) {
        if (g->steps.pending[i].receive != receive) continue;
        g->steps.pending[i].receive = NULL;
        note_step(g, tn_mpi_finish(&g->steps.pending[i].request));
    }
}

tn_status tn_group_settle(tn_group *g, tn_status status) {
    TRY(check_call(g, NULL, NULL, 0, "tn_group_settle"));
    note_step(g, status);
    for (int i = 0; i < MOST_POSTED; i++)
        if (g->steps.pending[i].receive) (void)tn_group_await(g, g->steps.pending[i].receive);
    if (!g->steps.told) note_step(g, tn_group_agree(g, g->steps.status, SETTLED));
    status = g->steps.status;
    g->steps.status = TN_OK;
    g->steps.posted = 0;
    g->steps.numbers = 0;
    g->steps.told = false;
    return status == TN_OK ? TN_OK : tn_fail(status, "%s", g->steps.why);
}

int64_t tn_group_next_number(tn_group *g) { return ++g->steps.numbers; }
