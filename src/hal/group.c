/* group.c — groups of processes: the launcher's environment, the transports "self", "mpi" and "tcp", and collective
 * operations on device memory by NCCL or RCCL.
 *
 * In a group of one process every operation is a copy or nothing, so programs need not distinguish. The ranks agree
 * once, by the transport, whether they all have a GPU and its library; if not, device memory is exchanged through the
 * host. */
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "hal/group_tcp.h"
#include "hal/hal.h"
#include "trunnion/distributed.h"
#include "vendor/mpi.h"

enum { MOST_RANKS = 1 << 20 };

/* How bytes of the host get to other processes. */
typedef struct transport {
    const char *name;
    tn_status (*broadcast)(void *own, void *data, size_t bytes, int root);
    tn_status (*all_gather)(void *own, const void *send, size_t bytes, void *receive);
    tn_status (*all_to_all)(void *own, const void *send, size_t bytes, void *receive);
} transport;

struct tn_group {
    const transport *by;
    tn_tcp *tcp;
    bool started; /* MPI was started by tn_group_open */
    int rank, size;
    tn_device *device; /* whose memory the communicator works on; NULL: the host's way */
    void *comm;        /* NCCL's */
    bool asked;        /* whether there is one has been agreed */
    uint64_t *answers; /* room for a word of each rank */
};

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

static tn_status self_broadcast(void *own, void *data, size_t bytes, int root) {
    (void)own, (void)data, (void)bytes, (void)root;
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
static tn_status left_broadcast(void *own, void *data, size_t bytes, int root) {
    (void)own, (void)data, (void)bytes, (void)root;
    return tn_fail(TN_ERR_STATE, "group: this rank has left the group (tn_group_abort)");
}
static tn_status left_exchange(void *own, const void *send, size_t bytes, void *receive) {
    (void)send, (void)receive;
    return left_broadcast(own, NULL, bytes, 0);
}

static const transport by_self = {"self", self_broadcast, self_copy, self_copy};
static const transport by_mpi = {"mpi", mpi_broadcast, mpi_all_gather, mpi_all_to_all};
static const transport left = {"tcp", left_broadcast, left_exchange, left_exchange};
static const transport by_tcp = {"tcp", tn_tcp_broadcast, tn_tcp_all_gather, tn_tcp_all_to_all};

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
    return tn_tcp_open(address, port, g->rank, g->size, seconds > 0 ? seconds : 120, &g->tcp);
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

tn_status tn_group_open(const tn_group_options *options, tn_group **out) {
    tn_group_options o = TN_GROUP_DEFAULTS;
    TRY(tn_need(out, "tn_group_open: out"));
    *out = NULL;
    TRY(tn_options_read(&o, options, "group", "tn_group_options o = TN_GROUP_DEFAULTS"));
    TRY(tn_need(o.backend, "tn_group_open: options->backend"));
    tn_group *g = tn_mem_zalloc(1, sizeof *g);
    tn_status status = g ? open_backend(g, o.backend) : TN_ERR_MEMORY;
    if (status == TN_OK && !(g->answers = tn_mem_alloc((size_t)g->size * sizeof *g->answers))) status = TN_ERR_MEMORY;
    if (status == TN_ERR_MEMORY) status = tn_fail(status, "group: out of memory");
    if (status == TN_OK) {
        *out = g;
        return TN_OK;
    }
    if (g && g->started) tn_mpi_end();
    if (g) tn_tcp_close(g->tcp);
    tn_mem_free(g);
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
    tn_tcp_close(g->tcp);
    tn_mem_free(g->answers);
    tn_mem_free(g);
}

/* Over TCP the others learn of it when their connection ends. */
void tn_group_abort(tn_group *g, int code) {
    if (!g || g->size == 1) return;
    if (g->by == &by_mpi) tn_mpi_abort(code);
    tn_tcp_close(g->tcp);
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
    tn_mem_free(from);
    tn_mem_free(to);
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
