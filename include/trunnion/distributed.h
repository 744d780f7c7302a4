/* distributed.h — groups of processes: one training on several processes and machines.
 *
 * The processes are started by a launcher, one program many times; each has a rank from 0 to size - 1:
 *
 *     mpirun -n 4 ./train
 *
 *     tn_group *group;
 *     if (tn_group_open(NULL, &group) != TN_OK) ...                 a group of one process without a launcher
 *     tn_data_parallel_options o = TN_DATA_PARALLEL_DEFAULTS;
 *     o.group = group;                                              data_parallel.h: each rank computes its parts
 *     ...
 *     tn_group_close(group);
 *
 * The functions below work on host memory. All ranks must call them in the same order, with the same counts; a call
 * returns when this rank's part of it is done.
 *
 * Backend: MPI (Open MPI, MPICH and libraries with MPICH's binary interface), loaded at run time when a launcher's
 * environment asks for it; TRUNNION_MPI_LIB names another file. A process that dies ends the job (MPI's default), and
 * the launcher says which one it was.
 *
 * Threads: a group is used by one thread, the one that opened it.
 * Source: MPI: A Message-Passing Interface Standard, version 3.1; torch.distributed. */
#ifndef TRUNNION_DISTRIBUTED_H
#define TRUNNION_DISTRIBUTED_H

#include "trunnion/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tn_group tn_group;

typedef struct tn_group_options {
    size_t struct_size;
    /* "mpi"; "self": a group of this process only; "auto": "mpi" if the environment says that a launcher started
     * several processes (OMPI_COMM_WORLD_SIZE, PMI_SIZE, PMIX_RANK with SLURM_NTASKS), otherwise "self".
     * Default "auto". */
    const char *backend;
} tn_group_options;
#define TN_GROUP_DEFAULTS \
    { TN_OPTIONS_SIZE(tn_group_options, backend), "auto" }

/* The number of processes that a launcher's environment announces; 1 without a launcher. Loads nothing. */
TN_API int tn_group_launched_size(void);
/* The rank that a launcher's environment announces; 0 without a launcher. Loads nothing. */
TN_API int tn_group_launched_rank(void);

/* Joins the group of all processes of the job. MPI is started if the program has not started it; then
 * tn_group_close ends it, so a program may open such a group once. *out is freed with tn_group_close.
 * Errors: TN_ERR_ARGUMENT for an unknown backend; TN_ERR_UNAVAILABLE if MPI is missing or too old (before 3.0), with
 * what to install; TN_ERR_STATE if MPI has been ended before. */
TN_API tn_status tn_group_open(const tn_group_options *options, tn_group **out);
/* Waits for the other ranks, then leaves the group. NULL is allowed. */
TN_API void tn_group_close(tn_group *g);
/* Ends all processes of the job, this one too, with `code` as their exit status: for a rank that cannot continue while
 * the others wait for it. In a group of one process it does nothing. */
TN_API void tn_group_abort(tn_group *g, int code);

TN_API int tn_group_rank(const tn_group *g);            /* 0 for NULL */
TN_API int tn_group_size(const tn_group *g);            /* 1 for NULL */
TN_API const char *tn_group_backend(const tn_group *g); /* "self", "mpi"; "self" for NULL */
/* Name and version of the library, "Open MPI v4.1.4"; "" without one. */
TN_API const char *tn_group_library(const tn_group *g);

/* Copies `bytes` bytes at `data` of rank `root` to `data` of all other ranks.
 * Errors: TN_ERR_ARGUMENT; TN_ERR_DEVICE with the library's words. */
TN_API tn_status tn_group_broadcast(tn_group *g, void *data, size_t bytes, int root);
/* Concatenates the `bytes` bytes at `send` of all ranks, in their order, at `receive` (size × bytes) of every rank.
 * The buffers must not overlap. Errors: as tn_group_broadcast. */
TN_API tn_status tn_group_all_gather(tn_group *g, const void *send, size_t bytes, void *receive);
/* Block i of `bytes` bytes at `send` goes to rank i, which stores it as block (sender's rank) at `receive`. Both have
 * size × bytes bytes and must not overlap. Errors: as tn_group_broadcast. */
TN_API tn_status tn_group_all_to_all(tn_group *g, const void *send, size_t bytes, void *receive);
/* Returns when all ranks have called it. */
TN_API tn_status tn_group_barrier(tn_group *g);

#ifdef __cplusplus
}
#endif
#endif
