/* data_parallel.h — one model on several devices: the rows of a batch are split, and each device computes its part.
 *
 * The module and its optimizer stay on the model's home device; other devices get copies of its variables, updated when
 * the variables change. A training step splits the batch into parts. The devices compute loss and gradients of their
 * parts concurrently; the home device adds the gradients in the order of the parts and makes one optimizer step.
 * Checkpoints are those of the module and the optimizer.
 *
 *     tn_data_parallel *all;
 *     if (tn_data_parallel_new(net, devices, 2, NULL, &all) != TN_OK) ...
 *     for (...) {
 *         double loss;
 *         if (tn_data_parallel_minimize(all, adam, 256, loss_of_rows, &data, &loss) != TN_OK) ...
 *     }
 *
 * where loss_of_rows records the loss of the rows of a part; while it is called, `net` stands for the copy on the
 * part's device:
 *
 *     static tn_tensor *loss_of_rows(void *ctx, const tn_part *part) {
 *         const data *d = ctx;
 *         tn_tensor *x = tn_part_rows(part, d->x), *y = tn_part_rows(part, d->y);
 *         return tn_cross_entropy(tn_forward(d->net, x), y, NULL, NULL);
 *     }
 *
 * Results depend on the parts, not on the devices that compute them: four parts on one, two or four devices give the
 * same bits, if the devices give the same bits for the same work (exact kernels do; docs/numerics.md). They differ from
 * an undivided batch by rounding of the sums. Batch normalization uses the rows of its part, as in
 * torch.nn.DataParallel, and its running statistics follow the first part. Random numbers continue from part to part.
 *
 * If a device fails (out of memory, lost), nothing has been written: the other devices compute its parts, with the same
 * random numbers, and it is not used again. Only the home device is indispensable.
 *
 * Outdated copies are recognized by tn_write_count and tn_value_id, so variables may be written, loaded or swapped
 * between two calls.
 *
 * Several processes (distributed.h): with options.group each rank computes its share of the parts, with devices of its
 * own, and all ranks make the same optimizer step. All ranks must make the same calls with the same number of rows; the
 * gradients are added in the order of the parts, so four parts on one process or four have the same bits. If each rank
 * has one part and computes it on the cpu, gradients are exchanged while the backward pass goes on. If a rank
 * fails before the optimizer's step, all ranks return its error and nothing has changed on any; if one fails in it, all
 * return its error, and the others have made the step. A checkpoint is the same on every rank: let rank 0 write it.
 *
 * Threads: one thread at a time, as for the module. */
#ifndef TRUNNION_DATA_PARALLEL_H
#define TRUNNION_DATA_PARALLEL_H

#include "trunnion/distributed.h"
#include "trunnion/optim.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tn_data_parallel tn_data_parallel;

/* How rows are divided among the parts. */
typedef enum tn_data_split {
    TN_SPLIT_EVEN = 0, /* equally; some parts have one row more */
    TN_SPLIT_SHARES    /* in proportion to `shares`: for devices of different speeds */
} tn_data_split;

typedef struct tn_data_parallel_options {
    size_t struct_size;
    /* Number of parts of a batch, 1 to 256; part i runs on device i modulo the number of devices. More parts than
     * devices need less memory, because a device computes its parts one after the other. Default 0: one per device of
     * each rank, if all ranks have as many. */
    int parts;
    tn_data_split split;  /* default TN_SPLIT_EVEN */
    const double *shares; /* for TN_SPLIT_SHARES: one number per part, greater than 0; copied; default NULL */
    bool sum; /* losses are sums over rows, so they are added; default false: means, which are averaged by rows */
    /* If a device fails: TN_FALLBACK_WARN continues on the others and prints a line on standard error,
     * TN_FALLBACK_SILENT prints nothing, TN_FALLBACK_STRICT fails the call and changes nothing. Default
     * TN_FALLBACK_WARN. */
    tn_fallback fallback;
    tn_group *group; /* the processes that train together; must outlive the tn_data_parallel; default NULL: this one */
    /* If a training step runs out of memory (tn_device_options.pool_max limits it), it is tried again with
     * recomputation (tn_set_auto_recompute), which keeps its bits, then in two, four … times as many parts, without and
     * with recomputation. Later steps use what was found. The function that records the loss is called again for each
     * try, with the same parts: it must not take the next batch by itself. For one process, and even splits. Default
     * false. */
    bool save_memory;
    /* Of a group, with an optimizer that tn_optimizer_shard has divided: each rank keeps the summed gradients of its
     * own parameters only (ZeRO, stage 2). The same bits. Default false. */
    bool shard_gradients;
    /* Ranks exchange gradients in buckets. A bucket has at most this many bytes, or one gradient that is larger; its
     * gradients are freed when they have been sent. About five are in memory at a time. 0: the default, 1/32 of the
     * parameters' bytes, but 1 to 25 MiB. */
    int64_t bucket_bytes;
} tn_data_parallel_options;
#define TN_DATA_PARALLEL_DEFAULTS                                                                                 \
    {                                                                                                             \
        TN_OPTIONS_SIZE(tn_data_parallel_options, bucket_bytes), 0, TN_SPLIT_EVEN, NULL, false, TN_FALLBACK_WARN, \
            NULL, false, false, 0                                                                                 \
    }

/* The part of a batch that is being recorded: its device is the thread's current one. */
typedef struct tn_part {
    size_t struct_size;
    int index, count;    /* of the part; parts of the batch */
    int64_t first, rows; /* its rows are first … first + rows - 1, at least one */
    int64_t total;       /* rows of the batch */
    tn_device *device;
} tn_part;

/* A function that records the computation for the rows of a part and returns a new handle. It is called again for a
 * part whose device failed, or, in a group, whose random numbers must be drawn again; it must then record the same.
 * Inputs other than the module's variables must be on part->device (tn_from_data creates them there; tn_part_rows and
 * tn_to_device copy them). */
typedef tn_tensor *tn_part_function(void *ctx, const tn_part *part);

/* Prepares the module for `count` devices, which must stay open; the home device should be one of them. A device that
 * is listed twice gets two queues. m must be complete and outlive *out, which is freed with tn_data_parallel_free.
 * With options.group all ranks must call it: rank 0's variables and random state are copied to the others. The
 * optimizer's state is not: every rank must load the checkpoint.
 * Errors: TN_ERR_ARGUMENT for options out of range, or if m's variables are on several devices; TN_ERR_MEMORY;
 * TN_ERR_STATE if a rank's variables or parts differ from rank 0's.
 * Source: torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel. */
TN_API tn_status tn_data_parallel_new(tn_module *m, tn_device *const *devices, int count,
                                      const tn_data_parallel_options *options, tn_data_parallel **out);
TN_API void tn_data_parallel_free(tn_data_parallel *p); /* NULL is allowed */

/* Makes one training step: tn_minimize on a batch of `rows` rows, in parts.
 *   loss: records the mean loss of a part's rows (with options.sum: their sum), one number.
 *   *value: receives the loss of the batch, and waits for it; may be NULL.
 * The optimizer must train m's variables. Earlier gradients are removed, as by tn_minimize. With one part on the home
 * device this is tn_minimize in one plan; otherwise each part and the step have their own plans.
 * Errors: those of recording a loss; those of devices if none is left, or with TN_FALLBACK_STRICT. On failure nothing
 * changes, as in tn_minimize. */
TN_API tn_status tn_data_parallel_minimize(tn_data_parallel *p, tn_optimizer *o, int64_t rows, tn_part_function *loss,
                                           void *ctx, double *value);

/* How training steps save memory. */
typedef struct tn_memory_report {
    size_t struct_size; /* set by the caller */
    bool recomputes;
    int parts;             /* of a batch */
    int64_t refused_bytes; /* the least that a step would have needed that ran out of memory; 0: none did */
} tn_memory_report;
/* Errors: TN_ERR_ARGUMENT if a pointer is NULL or out->struct_size is not set. */
TN_API tn_status tn_data_parallel_get_saving(const tn_data_parallel *p, tn_memory_report *out);

/* Computes all parts for inference, each [part->rows, …], and concatenates them to one tensor [rows, …] on the home
 * device, without gradients; in a group each rank computes all parts by itself. Returns a new handle; an error tensor
 * if a part could not be computed; TN_ERR_STATE if the parameters are divided (tn_module_shard) and not joined. */
TN_API tn_tensor *tn_data_parallel_forward(tn_data_parallel *p, int64_t rows, tn_part_function *forward, void *ctx);

/* Returns the part's rows of x, whose first dimension is the rows of the batch, on the part's device: a new handle. */
TN_API tn_tensor *tn_part_rows(const tn_part *part, const tn_tensor *x);

/* State of one device. */
typedef struct tn_data_parallel_device {
    size_t struct_size;           /* set by the caller */
    char id[32];                  /* "cuda:1" */
    int64_t parts;                /* computed so far */
    bool lost;                    /* it failed and is not used any more */
    char reason[TN_REASON_BYTES]; /* why it failed; "" otherwise */
} tn_data_parallel_device;
TN_API int tn_data_parallel_device_count(const tn_data_parallel *p); /* 0 for NULL */
/* Returns the state of device i, in the order of tn_data_parallel_new. Errors: TN_ERR_ARGUMENT if i is out of range. */
TN_API tn_status tn_data_parallel_device_at(const tn_data_parallel *p, int i, tn_data_parallel_device *out);

/* ---- optimizer state divided among processes --------------------------------------------------------------------- */

/* Divides the state of an optimizer (Adam: two numbers for each parameter) among the ranks of a group: each rank keeps
 * that of its parameters, updates them in a step and sends their new values to the others. The bits are those of an
 * undivided optimizer, whose gradients must be the same on all ranks, as with tn_data_parallel_minimize.
 * All ranks must call it, after tn_checkpoint_load, and all of them must make every step. tn_optimizer_variables and so
 * tn_checkpoint_save then fail on a rank that lacks state: call tn_optimizer_gather before. The group must outlive the
 * optimizer. In a group of one process nothing happens.
 * If a step fails while one rank evaluates it, all ranks return an error; their parameters then differ, so every later
 * step is TN_ERR_STATE until a checkpoint has been loaded and tn_optimizer_shard called again.
 * Errors: TN_ERR_STATE inside a capture; a step inside a capture is refused later too.
 * Source: Rajbhandari et al. 2020 (ZeRO, stage 1); torch.distributed.optim.ZeroRedundancyOptimizer. */
TN_API tn_status tn_optimizer_shard(tn_optimizer *o, tn_group *group);
/* Collects the whole state on rank `root`, for a checkpoint; all ranks must call it. The optimizer stays divided, and
 * root has the whole state until its next step or tn_optimizer_shard. Errors: TN_ERR_ARGUMENT; TN_ERR_MEMORY. */
TN_API tn_status tn_optimizer_gather(tn_optimizer *o, int root);
/* Bytes of the state that this process keeps of the parameters. 0 for NULL. */
TN_API int64_t tn_optimizer_state_bytes(const tn_optimizer *o);

/* ---- the caller's line, for error messages ----------------------------------------------------------------------- */

#ifndef TN_NO_CALLER_LINES
#define tn_data_parallel_forward(...) (tn_at(__FILE__, __LINE__), tn_data_parallel_forward(__VA_ARGS__))
#define tn_data_parallel_minimize(...) (tn_at(__FILE__, __LINE__), tn_data_parallel_minimize(__VA_ARGS__))
#define tn_part_rows(...) (tn_at(__FILE__, __LINE__), tn_part_rows(__VA_ARGS__))
#endif

#ifdef __cplusplus
}
#endif
#endif
