/* trial.c — see trial.h. */
#include "trial.h"

#include "test_support.h"

#include "check/check.h"
#include "trunnion/trunnion.h"

/* ---- values in and out ------------------------------------------------------------------------------------------- */

int64_t trial_numel(const int64_t *shape, int rank) {
    int64_t n = 1;
    for (int d = 0; d < rank; d++)
        n *= shape[d];
    return n;
}

tn_tensor *trial_tensor(const double *values, const int64_t *shape, int rank, tn_dtype t) {
    int64_t n = trial_numel(shape, rank);
    char *data = calloc((size_t)n + 1, 8);
    tn_case_store(t, values, n, data);
    tn_tensor *x = tn_from_data(data, shape, rank, t);
    free(data);
    return x;
}

/* The same values seen through a view: every second element of a longer last dimension, read backwards. */
static tn_tensor *strided_tensor_of(const double *values, const int64_t *shape, int rank, tn_dtype t) {
    int64_t n = trial_numel(shape, rank), last = rank ? shape[rank - 1] : 1, wide[TN_MAX_RANK];
    if (rank == 0 || n == 0) return trial_tensor(values, shape, rank, t);
    memcpy(wide, shape, sizeof wide);
    wide[rank - 1] = 2 * last;
    double *spread = calloc((size_t)n * 2, sizeof *spread);
    for (int64_t i = 0; i < n; i++)
        spread[2 * (i / last * last) + 2 * (last - 1 - i % last) + 1] = values[i];
    tn_tensor *base = trial_tensor(spread, wide, rank, t);
    free(spread);
    return tn_slice(base, rank - 1, INT64_MAX, INT64_MIN, -2);
}

/* Blocks as they are, or seen through a view: rows from the middle of a taller tensor. */
static tn_tensor *blocks_of(const void *blocks, const tn_case_input *in, bool view) {
    int64_t tall[TN_MAX_RANK];
    size_t bytes = tn_dtype_bytes(in->dtype, trial_numel(in->shape, in->rank));
    if (!view || in->rank < 2 || bytes == 0) return tn_from_data(blocks, in->shape, in->rank, in->dtype);
    memcpy(tall, in->shape, sizeof tall);
    tall[0] += 2;
    size_t row = bytes / (size_t)in->shape[0];
    char *data = calloc(bytes + 2 * row, 1);
    memcpy(data + row, blocks, bytes);
    tn_tensor *base = tn_from_data(data, tall, in->rank, in->dtype);
    free(data);
    return tn_slice(base, 0, 1, 1 + in->shape[0], 1);
}

double *trial_doubles(const tn_tensor *x) {
    int64_t n = tn_numel(x);
    size_t bytes = (size_t)n * tn_dtype_size(tn_dtype_of(x));
    void *raw = calloc((size_t)n + 1, 8);
    double *out = calloc((size_t)n + 1, sizeof *out);
    assert_ok(tn_read(x, raw, bytes));
    tn_doubles_of(tn_dtype_of(x), raw, n, out);
    free(raw);
    return out;
}

/* ---- one case ---------------------------------------------------------------------------------------------------- */

void trial_make_values(trial *t) {
    for (int i = 0; i < t->c->n_in; i++) {
        const tn_case_input *in = &t->c->in[i];
        t->values[i] = calloc((size_t)trial_numel(in->shape, in->rank) + 1, sizeof(double));
        tn_case_values(in, t->seed + (uint64_t)i * 1000, t->values[i]);
        if (!tn_dtype_is_quantized(in->dtype)) continue;
        t->blocks[i] = calloc(tn_dtype_bytes(in->dtype, trial_numel(in->shape, in->rank)) + 1, 1);
        tn_case_blocks(in, t->seed + (uint64_t)i * 1000, t->blocks[i]);
    }
}

void trial_make_tensors(trial *t, bool strided) {
    for (int i = 0; i < t->c->n_in; i++) {
        const tn_case_input *in = &t->c->in[i];
        tn_tensor *(*make)(const double *, const int64_t *, int, tn_dtype) = strided ? strided_tensor_of : trial_tensor;
        if (t->blocks[i])
            t->in[i] = blocks_of(t->blocks[i], in, strided);
        else
            t->in[i] = in->absent ? NULL : make(t->values[i], in->shape, in->rank, in->dtype);
    }
}

void trial_free_values(trial *t) {
    for (int i = 0; i < t->c->n_in; i++) {
        free(t->values[i]);
        free(t->blocks[i]);
    }
}

tn_tensor *trial_apply(const trial *t) {
    return tn_record(t->op, (const tn_tensor *const *)t->in, t->c->n_in, &t->c->attrs);
}
