/* bench_holder.h — what the works of `trunnion bench` over tensors hold, and the functions that they share. */
#ifndef TRUNNION_CLI_BENCH_HOLDER_H
#define TRUNNION_CLI_BENCH_HOLDER_H

#include "cli/bench/bench.h"

enum {
    BENCH_BLOCKS = 4,
    BENCH_BATCHES = 64,
    BENCH_BATCH_PARTS = 3,
    BENCH_TENSORS = 800, /* the parameters, gradients and moments of adam-200 */
    BENCH_RESULTS = 3
};

/* What a work holds; which fields it uses is its own matter. */
typedef struct bench_holder {
    tn_tensor *t[BENCH_TENSORS], *result[BENCH_RESULTS];
    int inputs, results; /* of t and result */
    int batches, turn;
    tn_module *module, *block[BENCH_BLOCKS];
    tn_policy *policy;
    tn_optimizer *optimizer;
    tn_graph *graph;
    tn_dataset *dataset;
    tn_loader *loader;
    bool training, keeps;
} bench_holder;

/* *self: a new holder, random numbers of one seed; NULL without memory. */
bench_holder *bench_new_holder(void **self);
void bench_end_work(void *self);
tn_status bench_work_out_of_memory(void);
/* Holds a handle of its own on a result, if results are wanted. */
void bench_keep_result(bench_holder *h, tn_tensor *y);
void bench_keep_results(void *self);
bench_parts bench_parts_of(const void *self);
/* Numbers from -1 to 1, in memory. */
tn_tensor *bench_numbers(const int64_t *shape, int rank, tn_dtype dtype);
tn_tensor *bench_class_numbers(int64_t count, int64_t classes);
/* Computes y and keeps it. */
tn_status bench_finish(bench_holder *h, tn_tensor *y);
/* The gradients of the module's parameters, of the mean of y's squares. */
tn_status bench_gradients(bench_holder *h, const tn_tensor *y);

#define BENCH_WORK(name, begin, run, size0, size1, flops, bytes) \
    { name, {size0, size1}, begin, run, bench_end_work, flops, bytes, 1, bench_keep_results, bench_parts_of, NULL }

#endif
