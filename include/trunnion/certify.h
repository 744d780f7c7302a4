/* certify.h — checks that a device computes every operation correctly, forward and backward, on the user's machine.
 *
 * Each operation lists inputs for its tests (docs/new-op.md). Certification runs them on the device and compares the
 * results with the operation's definition in f64, within the operation's bound; gradients are compared with the
 * definition of the derivative. Operations that fail are recorded in the cache folder by device, driver version and
 * operation. They then run on the CPU instead, reported like any fallback, until they pass.
 *
 * The first row, "exact", is not an operation: if a driver reports IEEE 754 results (tn_caps.exact), division, square
 * root, fma, denormals and exp are compared with the reference bit by bit. A device that fails is not treated as exact
 * until it passes.
 *
 * Threads: one certification per thread at a time; other threads may use the device meanwhile. */
#ifndef TRUNNION_CERTIFY_H
#define TRUNNION_CERTIFY_H

#include "trunnion/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Result of one operation. Texts are valid until `found` returns. */
typedef struct tn_certify_op {
    size_t struct_size;
    const char *name;
    int64_t forward_passed, forward_failed, backward_passed, backward_failed;
    int64_t skipped; /* cases that the device does not support, such as dtypes */
    const char *why; /* the first failure, or else the first reason for skipping, with its case; or "" */
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

/* Runs the cases on `device` and counts them in *counts, forward and backward separately. options may be NULL. Returns
 * TN_OK also if cases failed: check counts.
 * Errors: TN_ERR_ARGUMENT for a NULL device or an unknown operation in `only`; TN_ERR_MEMORY. */
TN_API tn_status tn_certify(tn_device *device, const tn_certify_options *options, tn_certify_counts *counts);

#ifdef __cplusplus
}
#endif
#endif
