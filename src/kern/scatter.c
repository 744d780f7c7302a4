/* scatter.c — adds rows to rows that an index names: gradients of look-ups, index_add, scatter_add.
 *
 * Several rows may go to one place, and float addition has an order: each element of the output is summed in ascending
 * order of the rows, by one thread. Threads therefore share either the columns or the rows of the output, never the
 * rows of the source; every thread reads the whole index. */
#include "kern/kern.h"

enum {
    SERIAL_ELEMENTS = 16384, /* below that one core is done before another has woken */
    MIN_COLUMNS = 64         /* of a part: whole cache lines, and adding outweighs reading the index */
};

typedef void add_row(void *out, const void *src, int64_t begin, int64_t count);

typedef struct scatter_job {
    const tn_scatter_args *args;
    add_row *add;
    size_t size; /* bytes an element */
} scatter_job;

/* Sixteen bytes at a time: every processor has that, and adding a column of rows is bound by memory. */
typedef float floats __attribute__((vector_size(16), aligned(sizeof(float)), may_alias));
typedef double doubles __attribute__((vector_size(16), aligned(sizeof(double)), may_alias));

static void add_f32(void *out, const void *src, int64_t begin, int64_t count) {
    float *o = (float *)out + begin;
    const float *s = (const float *)src + begin;
    int64_t i = 0;
    for (; i + 4 <= count; i += 4)
        *(floats *)(o + i) += *(const floats *)(s + i);
    for (; i < count; i++)
        o[i] += s[i];
}

static void add_f64(void *out, const void *src, int64_t begin, int64_t count) {
    double *o = (double *)out + begin;
    const double *s = (const double *)src + begin;
    int64_t i = 0;
    for (; i + 2 <= count; i += 2)
        *(doubles *)(o + i) += *(const doubles *)(s + i);
    for (; i < count; i++)
        o[i] += s[i];
}

/* Adds columns [c0, c1) of all rows whose destination is in [r0, r1). */
static void add_rows(const scatter_job *job, int64_t r0, int64_t r1, int64_t c0, int64_t c1) {
    const tn_scatter_args *x = job->args;
    for (int64_t i = 0; i < x->count; i++) {
        int64_t row = x->index[i];
        if (row < r0 || row >= r1) continue;
        char *out = (char *)x->out + (size_t)(row * x->width) * job->size;
        const char *src = (const char *)x->src + i * x->src_stride * (int64_t)job->size;
        job->add(out, src, c0, c1 - c0);
    }
}

static void add_columns_part(void *ctx, int64_t begin, int64_t end, int worker) {
    const scatter_job *job = ctx;
    (void)worker;
    add_rows(job, 0, job->args->rows, begin, end);
}

static void add_rows_part(void *ctx, int64_t begin, int64_t end, int worker) {
    const scatter_job *job = ctx;
    (void)worker;
    add_rows(job, begin, end, 0, job->args->width);
}

static int64_t count_skipped(const tn_scatter_args *x) {
    int64_t skipped = 0;
    for (int64_t i = 0; i < x->count; i++)
        skipped += x->index[i] < 0 || x->index[i] >= x->rows;
    return skipped;
}

static int64_t scatter_add(const tn_scatter_args *x, add_row *add, size_t size) {
    scatter_job job = {.args = x, .add = add, .size = size};
    if (x->width > 0 && x->rows > 0) {
        if ((double)x->count * (double)x->width < SERIAL_ELEMENTS) {
            add_rows(&job, 0, x->rows, 0, x->width);
        } else if (x->width >= 2 * MIN_COLUMNS) {
            tn_parallel(x->width, MIN_COLUMNS, add_columns_part, &job);
        } else {
            tn_parallel(x->rows, 1, add_rows_part, &job);
        }
    }
    return count_skipped(x);
}

int64_t tn_scatter_add_f32(const tn_scatter_args *args) { return scatter_add(args, add_f32, sizeof(float)); }

int64_t tn_scatter_add_f64(const tn_scatter_args *args) { return scatter_add(args, add_f64, sizeof(double)); }
