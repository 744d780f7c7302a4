/* nccl.h — NCCL and RCCL, which has the same interface: collective operations between GPUs, in a stream of the device.
 * Loaded at run time; the calling thread's current device is the communicator's (tn_driver.lend). */
#ifndef TN_VENDOR_NCCL_H
#define TN_VENDOR_NCCL_H

#include "base/base.h"

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
