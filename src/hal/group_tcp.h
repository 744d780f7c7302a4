/* group_tcp.h — groups of processes over TCP, for launchers without MPI (torchrun, srun): rank 0 is the hub that all
 * others connect to. Meant for agreement and identifiers; large tensors go through NCCL where there are GPUs. */
#ifndef TN_HAL_GROUP_TCP_H
#define TN_HAL_GROUP_TCP_H

#include "base/base.h"

typedef struct tn_tcp tn_tcp;

/* Rank 0 listens at `port` for size - 1 connections, the others connect to `address`; all must arrive within
 * `seconds`. Errors: TN_ERR_UNAVAILABLE with what failed. */
tn_status tn_tcp_open(const char *address, int port, int rank, int size, double seconds, tn_tcp **out);
void tn_tcp_close(tn_tcp *t);

/* As the functions of distributed.h. TN_ERR_DEVICE: a rank has closed its connection, or the network failed. */
tn_status tn_tcp_broadcast(void *tcp, void *data, size_t bytes, int root);
tn_status tn_tcp_all_gather(void *tcp, const void *send, size_t bytes, void *receive);
tn_status tn_tcp_all_to_all(void *tcp, const void *send, size_t bytes, void *receive);

#endif
