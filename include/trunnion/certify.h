/* certify.h — is a device right? Every operation of the table, forward and backward, on the user's own machine.
 *
 * Each operation names inputs for its tests (docs/new-op.md); certification runs them on the device and compares with
 * the operation's definition in f64, within the bound that the operation states. The gradient is compared with the
 * definition of its derivative. What fails goes on a list in the cache folder, by device, driver version and operation:
 * from then on such operations run on the processor instead, which is said as any fallback is, until they pass.
 *
 * The first row, "exact", is no operation: where a driver promises the bits of IEEE 754 (tn_caps.exact), division,
 * square root, fma, denormals and the library's exp are compared with the reference to the bit. A device that does not
 * keep the promise fails, and is not taken for exact any more until it does.
 *
 * Threads: one certification at a time a thread; others may use the device meanwhile. */
#ifndef TRUNNION_CERTIFY_H
#define TRUNNION_CERTIFY_H

#include "trunnion/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What was found of one operation. Texts live until the call of `found` returns. */
typedef struct tn_certify_op {
    size_t struct_size;
    const char *name;
    int64_t forward_passed, forward_failed, backward_passed, backward_failed;
    int64_t skipped; /* cases that the device cannot compute: types that it lacks */
    const char *why; /* the first failure, else the first reason to skip, with its case; "" */
} tn_certify_op;

typedef struct tn_certify_counts {
    size_t struct_size; /* set by the caller */
    int64_t passed, failed, skipped;
} tn_certify_counts;

typedef struct tn_certify_options {
    size_t struct_size;
    const char *only; /* names of operations between commas, "exact" too; default NULL: all */
    int64_t every;    /* run one case in `every`, at least one per operation; default 1: all */
    uint64_t seed;    /* of the input values, and of the choice of cases; default 0 */
    void (*found)(void *ctx, const tn_certify_op *op, int done, int total); /* after each operation; default NULL */
    void *ctx;
} tn_certify_options;
#define TN_CERTIFY_DEFAULTS \
    { TN_OPTIONS_SIZE(tn_certify_options, ctx), NULL, 1, 0, NULL, NULL }

/* Runs the cases on `device`. options may be NULL. counts receives the sums over all cases, forward and backward each
 * counting as one. TN_OK also when cases failed: look at counts.
 * Errors: TN_ERR_ARGUMENT for a NULL device or an operation in `only` that does not exist; TN_ERR_MEMORY. */
TN_API tn_status tn_certify(tn_device *device, const tn_certify_options *options, tn_certify_counts *counts);

#ifdef __cplusplus
}
#endif
#endif
