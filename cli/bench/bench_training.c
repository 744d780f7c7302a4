/* bench_training.c — works of `trunnion bench` around the training of networks: recurrent layers over long sequences,
 * an optimizer's step over many tensors, batches of a data loader. */
#include <stdlib.h>
#include <string.h>

#include "cli/bench/bench.h"
#include "trunnion/backend.h"

/* ---- recurrent layers -------------------------------------------------------------------------------------------- */

enum { SEQUENCES = 16, FEATURES = 128 };

/* size: steps, and whether it is an LSTM. */
static tn_status begin_recurrent(bench_work *w, void **self) {
    bench_holder *h = bench_new_holder(self);
    if (!h) return bench_work_out_of_memory();
    h->t[0] = bench_numbers((int64_t[]){w->size[0], SEQUENCES, FEATURES}, 3, TN_F32);
    h->inputs = 1;
    h->module = tn_module_root();
    h->block[0] = (w->size[1] ? tn_nn_lstm : tn_nn_gru)(h->module, "net", FEATURES, FEATURES, NULL);
    return tn_module_status(h->module);
}

static tn_status run_recurrent_forward(void *self) {
    bench_holder *h = self;
    TN_SCOPE;
    TN_NO_GRAD;
    return bench_finish(h, tn_forward(h->block[0], h->t[0]));
}

static tn_status run_recurrent_train(void *self) {
    bench_holder *h = self;
    TN_SCOPE;
    return bench_gradients(h, tn_forward(h->block[0], h->t[0]));
}

/* ---- a step of Adam ---------------------------------------------------------------------------------------------- */

enum { PARAMETERS = 200 };

/* size: rows and columns of each parameter. Parameters, gradients, then both moments. */
static tn_status begin_adam(bench_work *w, void **self) {
    bench_holder *h = bench_new_holder(self);
    if (!h) return bench_work_out_of_memory();
    for (int i = 0; i < 2 * PARAMETERS; i++)
        h->t[i] = bench_numbers(w->size, 2, TN_F32);
    h->inputs = 2 * PARAMETERS;
    for (int i = 2 * PARAMETERS; i < 4 * PARAMETERS; i++)
        h->t[i] = tn_zeros(w->size, 2, TN_F32);
    return tn_eval(h->t, 4 * PARAMETERS);
}

static tn_status run_adam(void *self) {
    bench_holder *h = self;
    tn_tensor **t = h->t;
    tn_status s =
        tn_fused_adam_step(t, t + PARAMETERS, t + 2 * PARAMETERS, t + 3 * PARAMETERS, PARAMETERS, ++h->turn, NULL);
    if (s == TN_OK) s = tn_eval(NULL, 0);
    for (int i = 0; i < PARAMETERS; i += PARAMETERS / 2)
        bench_keep_result(h, t[i]);
    return s;
}

/* ---- batches ----------------------------------------------------------------------------------------------------- */

enum { SAMPLES = 8192, SAMPLE_NUMBERS = 3 * 32 * 32, ROWS = 64 };

typedef struct table {
    float *x;
    int64_t *label;
} table;

static tn_status read_sample(void *ctx, int64_t sample, int field, void *out) {
    const table *d = ctx;
    if (field == 0)
        memcpy(out, d->x + sample * SAMPLE_NUMBERS, SAMPLE_NUMBERS * sizeof(float));
    else
        memcpy(out, d->label + sample, sizeof *d->label);
    return TN_OK;
}

static void free_table(void *ctx) {
    table *d = ctx;
    free(d->x);
    free(d->label);
    free(d);
}

static tn_status read_table(bench_holder *h, table *d) {
    d->x = malloc((size_t)SAMPLES * SAMPLE_NUMBERS * sizeof *d->x);
    d->label = malloc(SAMPLES * sizeof *d->label);
    if (!d->x || !d->label) return bench_work_out_of_memory();
    TRY(tn_read(h->t[0], d->x, (size_t)SAMPLES * SAMPLE_NUMBERS * sizeof *d->x));
    return tn_read(h->t[1], d->label, SAMPLES * sizeof *d->label);
}

/* Inputs: samples, labels, and the order of an epoch, so that another library can make the same batches. */
static tn_status begin_loader(bench_work *w, void **self) {
    static const tn_dataset_field fields[] = {{3, {3, 32, 32}, TN_F32}, {0, {0}, TN_I64}};
    tn_loader_options o = TN_LOADER_DEFAULTS;
    int64_t order[SAMPLES], samples = SAMPLES;
    tn_batches all = TN_BATCHES_DEFAULTS;
    bench_holder *h = bench_new_holder(self);
    table *d = calloc(1, sizeof *d);
    if (!h || !d) {
        free(d);
        return bench_work_out_of_memory();
    }
    all.count = all.batch = SAMPLES;
    o.batch = ROWS;
    o.threads = (int)w->size[0];
    (void)tn_batches_next(&all, order);
    h->t[0] = bench_numbers((int64_t[]){SAMPLES, 3, 32, 32}, 4, TN_F32);
    h->t[1] = bench_class_numbers(SAMPLES, 10);
    h->t[2] = tn_from_data(order, &samples, 1, TN_I64);
    h->inputs = 3;
    tn_status s = read_table(h, d);
    if (s != TN_OK) {
        free_table(d);
        return s;
    }
    s = tn_dataset_new(SAMPLES, fields, 2, read_sample, free_table, d, &h->dataset);
    return s == TN_OK ? tn_loader_new(h->dataset, &o, &h->loader) : s;
}

static tn_status run_loader(void *self) {
    bench_holder *h = self;
    tn_tensor *batch[2];
    TN_SCOPE;
    tn_status s = tn_loader_next(h->loader, batch, NULL);
    if (s != TN_OK) return s;
    bench_keep_result(h, batch[0]);
    bench_keep_result(h, batch[1]);
    return s;
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

/* Of each step the products of the input and the state with the weights of all gates. */
#define RECURRENT_FLOPS(steps, gates) (2.0 * (steps)*SEQUENCES * 2 * FEATURES * (gates)*FEATURES)
#define RECURRENT(name, steps, lstm)                                                         \
    BENCH_WORK(name "-forward-" #steps, begin_recurrent, run_recurrent_forward, steps, lstm, \
               RECURRENT_FLOPS(steps, 3 + (lstm)), 0),                                       \
        BENCH_WORK(name "-train-" #steps, begin_recurrent, run_recurrent_train, steps, lstm, \
                   3 * RECURRENT_FLOPS(steps, 3 + (lstm)) - RECURRENT_FLOPS(steps, 3 + (lstm)) / 2, 0)
/* Reads parameter, gradient and moments, writes all but the gradient. */
#define ADAM_BYTES(rows, columns) (7.0 * 4 * PARAMETERS * (rows) * (columns))

const bench_work bench_training_works[] = {
    RECURRENT("lstm", 800, 1),
    RECURRENT("gru", 800, 0),
    BENCH_WORK("adam-200x1k", begin_adam, run_adam, 32, 32, 0, ADAM_BYTES(32, 32)),
    BENCH_WORK("adam-200x64k", begin_adam, run_adam, 256, 256, 0, ADAM_BYTES(256, 256)),
    BENCH_WORK("loader-64", begin_loader, run_loader, 0, 0, 0, 0),
    BENCH_WORK("loader-64-ahead", begin_loader, run_loader, 1, 0, 0, 0),
};
const int bench_training_work_count = sizeof bench_training_works / sizeof bench_training_works[0];
