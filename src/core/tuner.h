/* tuner.h — which way a product takes, by the record of measurements (tuner.c). */
#ifndef TN_TUNER_H
#define TN_TUNER_H

#include "kern/blas.h"
#include "kern/kern.h"
#include "kern/workgroup_kernels.h"

/* A way that was measured: one of our own (library NULL), or a library's. */
typedef struct tn_way {
    tn_gemm_way own;
    const tn_blas *library;
    const char *name; /* lives for ever */
} tn_way;

/* Looks the product up; with TN_TUNING_FIRST_USE it is measured if the record does not know it. `kept`: B's packed form
 * will be kept. `libraries`: they may take part. false: by rule. */
bool tn_tune_product(const tn_gemm_args *args, tn_dtype dtype, bool kept, bool libraries, tn_way *out);

/* The tile of a workgroup kernel for this product on a device (tuner_device.c), for tn_gemm_shape; 0: by rule. With
 * TN_TUNING_FIRST_USE it is measured if the record does not know it. */
struct tn_device;
int tn_tune_tile(struct tn_device *d, const tn_gemm_shape *s, const tn_group_limits *limits);

/* Sizes that a record has one entry for: up to 8 the number itself, then four steps an octave. */
int64_t tn_tune_bucket(int64_t n);

#endif
