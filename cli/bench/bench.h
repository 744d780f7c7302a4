/* bench.h — `trunnion bench`: works to be timed (bench_work.c, bench_training.c, bench_llm.c), what they are made of,
 * for other programs to do the same (bench_save.c), and the limits beside them (bench_limits.h). */
#ifndef TRUNNION_CLI_BENCH_H
#define TRUNNION_CLI_BENCH_H

#include "cli/bench/bench_limits.h"
#include "cli/cli.h"
#include "trunnion/trunnion.h"

/* What a work starts from and what its last run yielded: borrowed. */
typedef struct bench_parts {
    tn_tensor *const *inputs, *const *results;
    int input_count, result_count;
    const tn_module *module; /* NULL: none */
} bench_parts;

/* One work. begin may complete the row that it is given; run does it once and waits for its end; what begin made, end
 * frees (also after a failure). Functions return a status, the words are tn_error's. */
typedef struct bench_work {
    const char *name;
    int64_t size[2]; /* what begin needs to know */
    tn_status (*begin)(struct bench_work *w, void **self);
    tn_status (*run)(void *self);
    void (*end)(void *self); /* NULL is fine */
    /* For the part of the limit that a run reaches: operations; bytes that it reads, and how often. Zeros: there is no
     * such limit. */
    double flops, bytes, passes;
    void (*keep)(void *self); /* from now on results are kept; NULL: it cannot */
    bench_parts (*parts)(const void *self);
    const char *model; /* the file of a language model; NULL: the cache folder's */
} bench_work;

extern const bench_work bench_works[], bench_training_works[], bench_llm_works[], bench_device_works[];
extern const int bench_work_count, bench_training_work_count, bench_llm_work_count, bench_device_work_count;

/* Does a work once. Writes its inputs and first weights to FOLDER/NAME.start.safetensors, its results, trained weights
 * and gradients to FOLDER/NAME.result.safetensors: "input.0" …, "model.…", "result.0" …, "gradient.…". */
tn_status bench_save(const bench_work *w, const char *folder);

/* ---- what the works of `trunnion bench` over tensors hold (bench_work.c) -------------------------------------- */

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
