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
 * All ranks must call the functions below in the same order, with the same counts; a call returns when this rank's part
 * of it is done.
 *
 * Backends: MPI (Open MPI, MPICH and libraries with MPICH's binary interface), loaded at run time when a launcher's
 * environment asks for it; TRUNNION_MPI_LIB names another file. A process that dies ends the job (MPI's default), and
 * the launcher says which one it was. TCP for launchers without MPI (torchrun, srun): all ranks connect to rank 0 at
 * MASTER_ADDR and port MASTER_PORT + 1, or at SLURM_LAUNCH_NODE_IPADDR and a port that follows from the job's number,
 * within TRUNNION_GROUP_SECONDS (default 120). Nothing is encrypted: use it in a network that you trust.
 *
 * Tensors on CUDA and ROCm devices are exchanged by NCCL or RCCL if all ranks have it (TRUNNION_NCCL_LIB names another
 * file), otherwise through the host. A rank that dies in such an exchange leaves the others waiting; launchers end the
 * job.
 *
 * Threads: a group is used by one thread, the one that opened it.
 * Source: MPI: A Message-Passing Interface Standard, version 3.1; torch.distributed. */
#ifndef TRUNNION_DISTRIBUTED_H
#define TRUNNION_DISTRIBUTED_H

#include "trunnion/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tn_group tn_group;

typedef struct tn_group_options {
    size_t struct_size;
    /* "mpi"; "tcp"; "self": a group of this process only; "auto": if the environment says that a launcher started
     * several processes, "mpi" (OMPI_COMM_WORLD_SIZE, PMI_SIZE, PMIX_RANK with SLURM_NTASKS) or "tcp" (WORLD_SIZE with
     * RANK, SLURM_NTASKS with SLURM_PROCID), otherwise "self". Default "auto". */
    const char *backend;
} tn_group_options;
#define TN_GROUP_DEFAULTS \
    { TN_OPTIONS_SIZE(tn_group_options, backend), "auto" }

/* The number of processes that a launcher's environment announces; 1 without a launcher. Loads nothing. */
TN_API int tn_group_launched_size(void);
/* The rank that a launcher's environment announces; 0 without a launcher. Loads nothing. */
TN_API int tn_group_launched_rank(void);

/* The number of this process among those on its machine, from 0: which GPU is its own. 0 without a launcher. */
TN_API int tn_group_launched_local_rank(void);

/* Joins the group of all processes of the job. MPI is started if the program has not started it; then
 * tn_group_close ends it, so a program may open such a group once. *out is freed with tn_group_close.
 * Errors: TN_ERR_ARGUMENT for an unknown backend; TN_ERR_UNAVAILABLE if MPI is missing or too old (before 3.0), with
 * what to install; TN_ERR_STATE if MPI has been ended before. */
TN_API tn_status tn_group_open(const tn_group_options *options, tn_group **out);
/* Waits for the other ranks, then leaves the group. NULL is allowed. */
TN_API void tn_group_close(tn_group *g);
/* For a rank that cannot continue while the others wait for it. MPI ends all processes of the job, this one too, with
 * `code` as their exit status. Over TCP the connection is closed, so that the others' next call fails, and the caller
 * ends this process. In a group of one process it does nothing. */
TN_API void tn_group_abort(tn_group *g, int code);

TN_API int tn_group_rank(const tn_group *g);            /* 0 for NULL */
TN_API int tn_group_size(const tn_group *g);            /* 1 for NULL */
TN_API const char *tn_group_backend(const tn_group *g); /* "self", "mpi", "tcp"; "self" for NULL */
/* Name and version of the library, "Open MPI v4.1.4"; "" without one. */
TN_API const char *tn_group_library(const tn_group *g);

/* Name and version of the library that exchanges tensors of GPUs, "NCCL 2.27.3", after the first such exchange; "" if
 * there is none. */
TN_API const char *tn_group_device_library(const tn_group *g);

/* ---- host memory ------------------------------------------------------------------------------------------------- */

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

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

/* The same for tensors, which must have the same shape and dtype on all ranks and lie on devices of the same kind. They
 * are evaluated first; if that fails on one rank, the call fails on all. Return a new handle without gradients, an
 * error tensor on failure; TN_ERR_STATE inside a graph capture. */
TN_API tn_tensor *tn_group_broadcast_tensor(tn_group *g, const tn_tensor *t, int root); /* rank root's t */
TN_API tn_tensor *tn_group_all_gather_tensor(tn_group *g, const tn_tensor *t);          /* [size, ...] */
/* t: [size, ...]; slice i goes to rank i. Returns what this rank received, [size, ...] by the sender's rank. */
TN_API tn_tensor *tn_group_all_to_all_tensor(tn_group *g, const tn_tensor *t);
/* The sum over all ranks, added in their order: the same bits on every rank, and for every transport. Sends as much as
 * a ring. Source: torch.distributed.all_reduce. */
TN_API tn_tensor *tn_group_all_reduce_tensor(tn_group *g, const tn_tensor *t);

/* ---- exchanges recorded as steps of an evaluation ---------------------------------------------------------------- */

/* tn_group_post_… and tn_group_receive are recorded like operations; nothing is exchanged before an evaluation. A post
 * begins its exchange as soon as t has been computed. With MPI the evaluation then computes other values meanwhile;
 * with TCP it waits for the exchange. tn_group_receive waits for the end and gives the elements received. One step:
 *
 *     tn_tensor *posted = tn_group_post_all_gather(group, t, NULL);
 *     tn_tensor *sum = tn_sum(tn_group_receive(group, posted, t, NULL), TN_ALL, false);
 *     status = tn_group_settle(group, tn_eval(&sum, 1));
 *
 * t: any shape and dtype, at least one element, contiguous, on the cpu, evaluated on its default queue; the dtype is
 * the same on all ranks. after: NULL, or a tensor that is computed before this step runs. All ranks must run their
 * exchanges in the same order: give each one a result of the one before as `after`. At most four are under way at a
 * time.
 * Ownership: arguments stay the caller's; results are new handles; exchanges are not differentiable. The group must be
 * open until the evaluation has ended. All that depends on an exchange must be evaluated by one call, because a later
 * evaluation of the rest would repeat the exchange.
 * Errors: an error tensor with TN_ERR_ARGUMENT, TN_ERR_SHAPE or TN_ERR_DEVICE (t is not on the cpu) when recorded;
 * tn_group_settle returns what fails in the evaluation. */

/* Sends each rank its own elements of t: the first lengths[0] of all elements to rank 0, the next lengths[1] to rank 1,
 * and so on. lengths: [size], the same on all ranks, adding up to t's elements; copied.
 * Returns [size · lengths[own rank]] for tn_group_receive: by sender; one undefined element if that is 0. */
TN_API tn_tensor *tn_group_post_scatter(tn_group *g, const tn_tensor *t, const int64_t *lengths,
                                        const tn_tensor *after);
/* Sends all of t, which has the same size on all ranks, to all ranks.
 * Returns [size · elements of t] for tn_group_receive: by sender. */
TN_API tn_tensor *tn_group_post_all_gather(tn_group *g, const tn_tensor *t, const tn_tensor *after);
/* Waits for the exchange that `posted` began. posted: a result of tn_group_post_…, not to be read itself; sent: the t
 * posted, whose memory is kept until then. Returns a view of `posted` with the elements received. The wait runs only in
 * an evaluation that computes something from this view, or that runs an exchange with it as `after`. */
TN_API tn_tensor *tn_group_receive(tn_group *g, const tn_tensor *posted, const tn_tensor *sent, const tn_tensor *after);
/* Ends a series of exchanges. Every rank must call it after each evaluation with exchanges, also if its own failed or
 * was never begun. status: of this rank's evaluation.
 * Returns TN_OK if the evaluation and all exchanges succeeded on every rank; otherwise an error on every rank, and what
 * was received is undefined. If a call of MPI failed (MPI_Isend, MPI_Irecv, MPI_Wait), the group can be used again. */
TN_API tn_status tn_group_settle(tn_group *g, tn_status status);

/* ---- tensor parallelism ------------------------------------------------------------------------------------------ */

/* The two exchanges of layers that are divided among ranks (nn.h, tn_nn_column_parallel_linear), recorded as steps of
 * an evaluation, which tn_group_settle must follow. All ranks must record the same exchanges in the same order, with
 * the same shapes, between two calls of tn_group_settle. x: any shape, on the cpu. Both return a new handle with x's
 * shape, and have gradients of any order. In a group of one process both return x's value.
 *
 * tn_group_sum_forward: the sum of x over all ranks, added in their order: the same bits on every rank and by every
 * transport. The gradient is passed on unchanged.
 * tn_group_sum_backward: x; its gradient is the sum of the gradients of all ranks.
 * Integers are cast to f32. Errors: TN_ERR_ARGUMENT; TN_ERR_SHAPE for a tensor without elements; TN_ERR_DEVICE.
 * Source: Shoeybi et al. 2019, "Megatron-LM", figure 3 (g and f). */
TN_API tn_tensor *tn_group_sum_forward(tn_group *g, const tn_tensor *x);
TN_API tn_tensor *tn_group_sum_backward(tn_group *g, const tn_tensor *x);

/* ---- parameters divided among the ranks -------------------------------------------------------------------------- */

/* A tensor of which every rank keeps a part (nn.h, tn_module_shard), recorded as steps of an evaluation, which
 * tn_group_settle must follow. All ranks must record the same in the same order, with the same shapes, between two
 * calls of tn_group_settle. part: this rank's elements, on the cpu: of n elements on all ranks, rank r has those from
 * r · p on, where p is n / ranks, rounded up; every part has p elements, so the last ones end with padding.
 * Returns a new handle to the tensor of `shape`. It is gathered just before its first use and freed after the last one
 * of the forward pass; the backward pass gathers it again. Its gradient: each rank gets its part of the sum over all
 * ranks, added in their order. In a group of one process: part's value.
 * Errors: TN_ERR_ARGUMENT; TN_ERR_SHAPE if part does not have p elements; TN_ERR_DEVICE.
 * Source: Rajbhandari et al. 2020 (ZeRO, stage 3); torch.distributed.fsdp. */
TN_API tn_tensor *tn_group_whole(tn_group *g, const tn_tensor *part, const int64_t *shape, int rank);

#ifdef __cplusplus
}
#endif
#endif
