/* group.c — groups of processes: the launcher's environment, the backends "self" and "mpi".
 *
 * In a group of one process every operation is a copy or nothing, so programs need not distinguish. */
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "trunnion/distributed.h"
#include "vendor/mpi.h"

enum { MOST_RANKS = 1 << 20 };

struct tn_group {
    bool mpi, started; /* started: MPI was started by tn_group_open */
    int rank, size;
};

/* ---- the launcher ------------------------------------------------------------------------------------------------ */

/* What launchers set, in the order in which they are asked: in a SLURM job mpirun's variables take precedence. */
static const struct {
    const char *rank, *size;
} launchers[] = {
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"}, /* Open MPI's mpirun */
    {"PMI_RANK", "PMI_SIZE"},                         /* Hydra: MPICH, Intel MPI; SLURM with PMI-2 */
    {"PMIX_RANK", "SLURM_NTASKS"},                    /* SLURM with PMIx */
};

/* A number that a launcher set; -1: none. */
static int launched(const char *name) {
    const char *text = tn_env(name);
    char *end;
    long value = text ? strtol(text, &end, 10) : -1;
    return text && *end == 0 && value >= 0 && value <= MOST_RANKS ? (int)value : -1;
}

static void ask_launchers(int *rank, int *size) {
    for (size_t i = 0; i < TN_COUNT(launchers); i++) {
        *rank = launched(launchers[i].rank);
        *size = launched(launchers[i].size);
        if (*size > 0 && *rank >= 0 && *rank < *size) return;
    }
    *rank = 0;
    *size = 1;
}

int tn_group_launched_size(void) {
    int rank, size;
    ask_launchers(&rank, &size);
    return size;
}

int tn_group_launched_rank(void) {
    int rank, size;
    ask_launchers(&rank, &size);
    return rank;
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static tn_status open_mpi(tn_group *g) {
    tn_status status = tn_mpi_begin(&g->started);
    if (status != TN_OK) return status;
    g->mpi = true;
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

static tn_status open_backend(tn_group *g, const char *backend) {
    g->size = 1;
    if (strcmp(backend, "self") == 0) return TN_OK;
    if (strcmp(backend, "mpi") == 0) return open_mpi(g);
    if (strcmp(backend, "auto") == 0) return tn_group_launched_size() > 1 ? open_mpi(g) : TN_OK;
    return tn_fail(TN_ERR_ARGUMENT, "group: unknown backend \"%s\"; known are auto, mpi and self", backend);
}

tn_status tn_group_open(const tn_group_options *options, tn_group **out) {
    tn_group_options o = TN_GROUP_DEFAULTS;
    TRY(tn_need(out, "tn_group_open: out"));
    *out = NULL;
    TRY(tn_options_read(&o, options, "group", "tn_group_options o = TN_GROUP_DEFAULTS"));
    TRY(tn_need(o.backend, "tn_group_open: options->backend"));
    tn_group *g = tn_mem_zalloc(1, sizeof *g);
    tn_status status = g ? open_backend(g, o.backend) : tn_fail(TN_ERR_MEMORY, "group: out of memory");
    if (status == TN_OK) {
        *out = g;
        return TN_OK;
    }
    if (g && g->started) tn_mpi_end();
    tn_mem_free(g);
    return status;
}

void tn_group_close(tn_group *g) {
    if (g && g->mpi) (void)tn_mpi_barrier();
    if (g && g->started) tn_mpi_end();
    tn_mem_free(g);
}

void tn_group_abort(tn_group *g, int code) {
    if (g && g->mpi && g->size > 1) tn_mpi_abort(code);
}

int tn_group_rank(const tn_group *g) { return g ? g->rank : 0; }
int tn_group_size(const tn_group *g) { return g ? g->size : 1; }
const char *tn_group_backend(const tn_group *g) { return g && g->mpi ? "mpi" : "self"; }
const char *tn_group_library(const tn_group *g) { return g && g->mpi ? tn_mpi_version() : ""; }

/* ---- operations -------------------------------------------------------------------------------------------------- */

static tn_status check_call(const tn_group *g, const void *a, const void *b, size_t bytes, const char *function) {
    if (!g) return tn_fail(TN_ERR_ARGUMENT, "%s: the group is NULL", function);
    if (bytes && (!a || !b)) return tn_fail(TN_ERR_ARGUMENT, "%s: a buffer is NULL", function);
    if (bytes > SIZE_MAX / (size_t)g->size)
        return tn_fail(TN_ERR_ARGUMENT, "%s: %zu bytes for each of %d ranks are more than a size_t can count", function,
                       bytes, g->size);
    return TN_OK;
}

tn_status tn_group_broadcast(tn_group *g, void *data, size_t bytes, int root) {
    TRY(check_call(g, data, data, bytes, "tn_group_broadcast"));
    if (root < 0 || root >= g->size)
        return tn_fail(TN_ERR_ARGUMENT, "tn_group_broadcast: root %d is not a rank; there are %d", root, g->size);
    return g->mpi ? tn_mpi_broadcast(data, bytes, root) : TN_OK;
}

tn_status tn_group_all_gather(tn_group *g, const void *send, size_t bytes, void *receive) {
    TRY(check_call(g, send, receive, bytes, "tn_group_all_gather"));
    if (g->mpi) return tn_mpi_all_gather(send, bytes, receive);
    if (bytes) memcpy(receive, send, bytes);
    return TN_OK;
}

tn_status tn_group_all_to_all(tn_group *g, const void *send, size_t bytes, void *receive) {
    TRY(check_call(g, send, receive, bytes, "tn_group_all_to_all"));
    if (g->mpi) return tn_mpi_all_to_all(send, bytes, receive);
    if (bytes) memcpy(receive, send, bytes);
    return TN_OK;
}

tn_status tn_group_barrier(tn_group *g) {
    TRY(check_call(g, NULL, NULL, 0, "tn_group_barrier"));
    return g->mpi ? tn_mpi_barrier() : TN_OK;
}
