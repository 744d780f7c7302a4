/* mpi.h — MPI and NCCL, loaded at run time: the few collective operations that a group of processes needs.
 *
 * Open MPI's handles are addresses of objects in its library, MPICH's are numbers; both are passed in one register, so
 * calls take them as intptr_t. Counts are limited to int by MPI 3: longer messages are sent in pieces. */
#ifndef TN_VENDOR_MPI_H
#define TN_VENDOR_MPI_H

#include "base/base.h"

extern const tn_library_spec tn_mpi_library;

/* Loads MPI and starts it unless the program has; *started: it was started here, so tn_mpi_end must be called.
 * Errors: TN_ERR_UNAVAILABLE with what to install, TN_ERR_STATE after MPI_Finalize. One thread. */
tn_status tn_mpi_begin(bool *started);
void tn_mpi_end(void);
void tn_mpi_abort(int code);

int tn_mpi_rank(void);
int tn_mpi_size(void);
const char *tn_mpi_version(void); /* the library's name and version */

tn_status tn_mpi_broadcast(void *data, size_t bytes, int root);
tn_status tn_mpi_all_gather(const void *send, size_t bytes, void *receive);
tn_status tn_mpi_all_to_all(const void *send, size_t bytes, void *receive);
tn_status tn_mpi_barrier(void);

/* A non-blocking exchange: bytes[rank] bytes at send + from[rank] go to each rank, and each rank sends bytes[own rank]
 * bytes here, which are stored at `receive` in the order of the ranks. First tn_mpi_receive, then tn_mpi_send, then
 * tn_mpi_finish or tn_mpi_cancel; the buffers must stay until then. */
typedef struct tn_mpi_request {
    intptr_t *handles; /* Open MPI's pointers, or MPICH's ints: those that receive come first */
    int count, received, tag;
} tn_mpi_request;
/* Allocates the request and begins to receive, before the ranks agree to exchange. tag: below 32768, the same on all
 * ranks. After a failure the request is empty: call neither finish nor cancel. */
tn_status tn_mpi_receive(const size_t *bytes, void *receive, int tag, tn_mpi_request *r);
tn_status tn_mpi_send(const void *send, const size_t *from, const size_t *bytes, void *receive, tn_mpi_request *r);
/* The number of messages that `rank` sends in such an exchange; the number that this rank has begun to send. */
int tn_mpi_messages(const size_t *bytes, int rank);
int tn_mpi_begun(const tn_mpi_request *r);
/* Both end the request and free it. finish waits for all messages. cancel is for an exchange in which a rank failed: it
 * waits only for messages that were begun, begun[rank] of each rank (NULL: none), and cancels the other receives. */
tn_status tn_mpi_finish(tn_mpi_request *r);
void tn_mpi_cancel(const size_t *bytes, const uint64_t *begun, tn_mpi_request *r);

/* ---- NCCL -------------------------------------------------------------------------------------------------------- */
/* NCCL and RCCL, which has the same interface: collective operations between GPUs, in a stream of the device.
 * Loaded at run time; the calling thread's current device is the communicator's (tn_driver.lend). */

typedef struct tn_nccl_id { /* ncclUniqueId: made by one rank, given to all */
    char bytes[128];
} tn_nccl_id;

/* Loads the library for devices of this backend ("cuda", "rocm"). A process uses one of them.
 * Errors: TN_ERR_UNAVAILABLE with what to install. */
tn_status tn_nccl_load(const char *backend);
const char *tn_nccl_version(void); /* "NCCL 2.27.3" */

tn_status tn_nccl_make_id(tn_nccl_id *id);
/* All ranks; returns when all have called it. */
tn_status tn_nccl_join(const tn_nccl_id *id, int rank, int size, void **comm);
void tn_nccl_leave(void *comm);

/* On device addresses, in order in `stream`. */
tn_status tn_nccl_broadcast(void *comm, void *data, size_t bytes, int root, void *stream);
tn_status tn_nccl_all_gather(void *comm, const void *send, size_t bytes, void *receive, void *stream);
tn_status tn_nccl_all_to_all(void *comm, const void *send, size_t bytes, void *receive, int size, void *stream);

#endif
