/* data_parallel.h — one model on several devices: the rows of a batch are split, and each device computes its part.
 *
 * The module and its optimiser stay where they were made, on the model's home device; other devices get copies of its
 * variables, made anew when these were written. A step of training cuts the batch into parts. Each part's loss and
 * gradients are computed by one of the devices, beside the others; the gradients are added at home in the order of the
 * parts, and the optimiser makes one step there. Checkpoints are those of the module and the optimiser, as ever.
 *
 *     tn_data_parallel *all;
 *     if (tn_data_parallel_new(net, devices, 2, NULL, &all) != TN_OK) ...
 *     for (...) {
 *         double loss;
 *         if (tn_data_parallel_minimize(all, adam, 256, loss_of_rows, &data, &loss) != TN_OK) ...
 *     }
 *
 * where loss_of_rows records what it would for one device, of the rows that it is told; `net` stands for the copy on
 * the part's device while it is called:
 *
 *     static tn_tensor *loss_of_rows(void *ctx, const tn_part *part) {
 *         const data *d = ctx;
 *         tn_tensor *x = tn_part_rows(part, d->x), *y = tn_part_rows(part, d->y);
 *         return tn_cross_entropy(tn_forward(d->net, x), y, NULL, NULL);
 *     }
 *
 * What comes out depends on the parts, not on who computes them: four parts on one device, two or four yield the same
 * bits, as far as the devices yield them for the same work (exact kernels do; docs/architecture.md, Numerics). From one
 * undivided batch it differs by the rounding of the sums. Batch normalisation sees the rows of its part, as in
 * PyTorch's DataParallel, and its running statistics follow the first one. Random numbers go from part to part.
 *
 * When a device fails (out of memory, lost), nothing has been written: its parts are computed by the others, with the
 * same random numbers, and it is not asked again. Only the home device is needed to the end.
 *
 * Copies are known to be old by tn_write_count and tn_value_id: what is written between two calls, loaded or exchanged
 * by tn_swap is computed with from then on.
 *
 * Threads: as of the module, one at a time. */
#ifndef TRUNNION_DATA_PARALLEL_H
#define TRUNNION_DATA_PARALLEL_H

#include "trunnion/optim.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tn_data_parallel tn_data_parallel;

/* How rows are shared out among the parts. */
typedef enum tn_data_split {
    TN_SPLIT_EVEN = 0, /* as many to each part, one more to some */
    TN_SPLIT_SHARES    /* in proportion to `shares`: for devices that are not equally fast */
} tn_data_split;

typedef struct tn_data_parallel_options {
    size_t struct_size;
    /* Number of parts of a batch, 1 to 256; part i runs on device i modulo the number of devices. More parts than
     * devices need less memory, because a device computes its parts one after the other. Default 0: one per device. */
    int parts;
    tn_data_split split;  /* default TN_SPLIT_EVEN */
    const double *shares; /* for TN_SPLIT_SHARES: one number per part, greater than 0; copied; default NULL */
    bool sum; /* losses are sums over rows, so they are added; default false: means, which are averaged by rows */
    /* If a device fails: TN_FALLBACK_WARN continues on the others and prints a line on standard error,
     * TN_FALLBACK_SILENT prints nothing, TN_FALLBACK_STRICT fails the call and changes nothing. Default
     * TN_FALLBACK_WARN. */
    tn_fallback fallback;
} tn_data_parallel_options;
#define TN_DATA_PARALLEL_DEFAULTS \
    { TN_OPTIONS_SIZE(tn_data_parallel_options, fallback), 0, TN_SPLIT_EVEN, NULL, false, TN_FALLBACK_WARN }

/* The part of a batch that is being recorded: its device is the thread's current one. */
typedef struct tn_part {
    size_t struct_size;
    int index, count;    /* of the part; parts of the batch */
    int64_t first, rows; /* its rows are first … first + rows - 1, at least one */
    int64_t total;       /* rows of the batch */
    tn_device *device;
} tn_part;

/* Records what is to be computed of a part's rows: a new handle. It may be called again for a part whose device failed,
 * and then records the same again. What is needed besides the module's variables has to be on part->device
 * (tn_from_data puts it there, tn_part_rows and tn_to_device bring it). */
typedef tn_tensor *tn_part_function(void *ctx, const tn_part *part);

/* Prepares the module for `count` devices, which stay open meanwhile; the home device should be one of them, and one
 * that stands there twice gets two queues. m must be whole and outlive it.
 * *out: freed with tn_data_parallel_free. Errors: TN_ERR_ARGUMENT for options out of range, or when m's variables are
 * on several devices; TN_ERR_MEMORY. */
TN_API tn_status tn_data_parallel_new(tn_module *m, tn_device *const *devices, int count,
                                      const tn_data_parallel_options *options, tn_data_parallel **out);
TN_API void tn_data_parallel_free(tn_data_parallel *p); /* NULL is fine */

/* One step of training: tn_minimize on a batch of `rows` rows, in parts.
 *   loss: the mean loss of a part's rows (with options.sum: their sum), one number.
 *   *value (may be NULL): the batch's loss; waits for it.
 * The optimiser's variables are m's. Gradients that tn_backward collected before are forgotten, as tn_minimize does.
 * With one part at home this is tn_minimize, one plan; else each part is a plan, and the step another.
 * Errors: of recording a loss (its own words); of devices when none is left, or under TN_FALLBACK_STRICT; all or
 * nothing, as tn_minimize. */
TN_API tn_status tn_data_parallel_minimize(tn_data_parallel *p, tn_optimizer *o, int64_t rows, tn_part_function *loss,
                                           void *ctx, double *value);

/* Inference: the results of all parts, each [part->rows, …], behind each other as one tensor [rows, …] at home.
 * Records no gradients. Returns a new handle; an error tensor when a part could not be computed. */
TN_API tn_tensor *tn_data_parallel_forward(tn_data_parallel *p, int64_t rows, tn_part_function *forward, void *ctx);

/* The part's rows of x, whose first dim goes over the rows of the batch, on the part's device. */
TN_API tn_tensor *tn_part_rows(const tn_part *part, const tn_tensor *x);

/* One device, and how it does. */
typedef struct tn_data_parallel_device {
    size_t struct_size;           /* set by the caller */
    char id[32];                  /* "cuda:1" */
    int64_t parts;                /* computed so far */
    bool lost;                    /* it failed, and is not asked any more */
    char reason[TN_REASON_BYTES]; /* why; "" while it works */
} tn_data_parallel_device;
TN_API int tn_data_parallel_device_count(const tn_data_parallel *p); /* 0 for NULL */
/* Device i of [0, count), as tn_data_parallel_new was given them. Errors: TN_ERR_ARGUMENT outside of that. */
TN_API tn_status tn_data_parallel_device_at(const tn_data_parallel *p, int i, tn_data_parallel_device *out);

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
