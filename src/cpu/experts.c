/* experts.c — products of which each row has its own matrix, chosen by a mixture of experts (cpu_kernels.h).
 *
 * The rows of a single token have different matrices: each is a separate product, divided by columns too if there are
 * more threads than rows, and all of them are one launch. The rows of many tokens are sorted by expert, and those of
 * one expert are one product of many rows, so its matrix is read once. Either way a row's bits are those of its own
 * product. */
#include <math.h>
#include <string.h>

#include "cpu/cpu_kernels.h"

enum {
    PIECE = 256,     /* rows of one expert at once, at most: then bringing its matrix counts no more */
    PIECE_F32 = 32,  /* the same in f32, whose products' room is looked up for each number of rows */
    COPY_ROWS = 16,  /* worth a thread, copied */
    COLUMN_UNIT = 64 /* columns that are not cut further */
};

typedef struct experts {
    const tn_experts_args *args;
    int64_t rows, piece;
    size_t weight_bytes; /* of an expert, as stored in `weight` */
    size_t product_bytes;
    char *product_space;
    float *from, *to;        /* rows of one expert, gathered */
    int64_t *begin, *sorted; /* where an expert's rows begin among the sorted ones; of row numbers */
    int64_t at, count;       /* current rows: sorted[at] … */
    int64_t cuts, columns;   /* of a single token: pieces of a product and their columns */
} experts;

static bool experts_is_plain(const tn_experts_args *a) { return a->dtype == TN_F32; }

static size_t tn_experts_weight_bytes(int64_t out, int64_t in, tn_dtype dtype) {
    return dtype == TN_F32 ? (size_t)(out * in) * sizeof(float) : tn_qmat_packed_bytes(out, in, dtype);
}

/* ---- one product ------------------------------------------------------------------------------------------------- */

static tn_gemm_args plain_product(const tn_experts_args *a, int64_t m, int64_t n) {
    return (tn_gemm_args){.batch = {1, 1, 1, 1},
                          .m = m,
                          .n = n,
                          .k = a->in,
                          .a = {.row_stride = a->in, .col_stride = 1},
                          .b = {.row_stride = 1, .col_stride = a->in},
                          .c = {.row_stride = a->out, .col_stride = 1}};
}

static tn_qmat_args stored_product(const tn_experts_args *a, int64_t m, int64_t n) {
    return (tn_qmat_args){
        .m = m, .n = n, .k = a->in, .dtype = a->dtype, .x_stride = a->in, .c = {.row_stride = a->out, .col_stride = 1}};
}

static size_t product_space(const tn_experts_args *a, int64_t most, int64_t n, int threads) {
    size_t bytes = 0;
    if (!experts_is_plain(a)) {
        tn_qmat_args q = stored_product(a, most, n);
        return tn_whole_lines(tn_qmat_workspace(&q, threads));
    }
    for (int64_t m = 1; m <= most; m++) {
        tn_gemm_args g = plain_product(a, m, n);
        size_t needed = tn_gemm_workspace(&g, TN_F32, threads);
        if (needed > bytes) bytes = needed;
    }
    return tn_whole_lines(bytes);
}

/* m rows times columns [first, first + n) of an expert. */
static void multiply_experts(const experts *e, int64_t expert, int64_t m, int64_t first, int64_t n, const float *x,
                             float *y, void *space) {
    const tn_experts_args *a = e->args;
    const char *weight = (const char *)a->weight + (size_t)expert * e->weight_bytes;
    if (experts_is_plain(a)) {
        tn_gemm_args g = plain_product(a, m, n);
        g.a.data = (void *)(uintptr_t)x;
        g.b.data = (void *)(uintptr_t)(weight + (size_t)(first * a->in) * sizeof *x);
        g.c.data = y + first;
        g.workspace = space;
        tn_gemm_run(&g, TN_F32);
        return;
    }
    tn_qmat_args q = stored_product(a, m, n);
    q.x = x;
    q.packed = weight + tn_qmat_packed_bytes(first, a->in, a->dtype);
    q.c.data = y + first;
    q.workspace = space;
    tn_qmat(&q);
}

static const float *row_of_x(const tn_experts_args *a, int64_t row) {
    return a->x + row / a->choices * a->x_token_stride + row % a->choices * a->x_choice_stride;
}

static bool exists(const tn_experts_args *a, int64_t expert) { return expert >= 0 && expert < a->experts; }

static void fill_nan(float *y, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        y[i] = NAN;
}

/* ---- a single token ---------------------------------------------------------------------------------------------- */

static void multiply_pieces(void *ctx, int64_t begin, int64_t end, int worker) {
    const experts *e = ctx;
    const tn_experts_args *a = e->args;
    for (int64_t i = begin; i < end; i++) {
        int64_t row = i / e->cuts, first = i % e->cuts * e->columns, n = tn_min64(e->columns, a->out - first);
        float *y = a->result + row * a->out;
        if (n <= 0) continue;
        if (exists(a, a->chosen[row]))
            multiply_experts(e, a->chosen[row], 1, first, n, row_of_x(a, row), y,
                             e->product_space + (size_t)worker * e->product_bytes);
        else
            fill_nan(y + first, n);
    }
}

/* ---- many tokens ------------------------------------------------------------------------------------------------- */

/* Row numbers in the order of their experts; begin[experts]: where those without one begin. */
static void sort_rows(experts *e) {
    const tn_experts_args *a = e->args;
    memset(e->begin, 0, (size_t)(a->experts + 2) * sizeof *e->begin);
    for (int64_t i = 0; i < e->rows; i++)
        e->begin[(exists(a, a->chosen[i]) ? a->chosen[i] : a->experts) + 1]++;
    for (int64_t k = 0; k <= a->experts; k++)
        e->begin[k + 1] += e->begin[k];
    for (int64_t i = 0; i < e->rows; i++)
        e->sorted[e->begin[exists(a, a->chosen[i]) ? a->chosen[i] : a->experts]++] = i;
    for (int64_t k = a->experts; k > 0; k--)
        e->begin[k] = e->begin[k - 1];
    e->begin[0] = 0;
}

static void gather_experts(void *ctx, int64_t begin, int64_t end, TN_UNUSED int worker) {
    const experts *e = ctx;
    for (int64_t i = begin; i < end; i++)
        memcpy(e->from + i * e->args->in, row_of_x(e->args, e->sorted[e->at + i]), (size_t)e->args->in * sizeof(float));
}

static void scatter(void *ctx, int64_t begin, int64_t end, TN_UNUSED int worker) {
    const experts *e = ctx;
    int64_t out = e->args->out;
    for (int64_t i = begin; i < end; i++)
        memcpy(e->args->result + e->sorted[e->at + i] * out, e->to + i * out, (size_t)out * sizeof(float));
}

static void multiply_sorted(experts *e, int64_t expert) {
    int64_t end = e->begin[expert + 1];
    for (e->at = e->begin[expert]; e->at < end; e->at += e->count) {
        e->count = tn_min64(e->piece, end - e->at);
        tn_parallel(e->count, COPY_ROWS, gather_experts, e);
        multiply_experts(e, expert, e->count, 0, e->args->out, e->from, e->to, e->product_space);
        tn_parallel(e->count, COPY_ROWS, scatter, e);
    }
}

/* ---- the whole --------------------------------------------------------------------------------------------------- */

/* Lays out the workspace; with base NULL it is only counted. */
static size_t plan_experts(experts *e, const tn_experts_args *a, int threads, char *base) {
    size_t used = 0;
    *e = (experts){.args = a, .rows = a->tokens * a->choices, .piece = experts_is_plain(a) ? PIECE_F32 : PIECE};
    e->weight_bytes = tn_experts_weight_bytes(a->out, a->in, a->dtype);
    if (a->tokens == 1) {
        int64_t cuts = tn_ceil_div(2 * threads, tn_max64(a->choices, 1));
        e->columns = tn_ceil_div(tn_ceil_div(a->out, cuts), COLUMN_UNIT) * COLUMN_UNIT;
        e->cuts = tn_ceil_div(a->out, tn_max64(e->columns, 1));
        /* each piece runs on one thread, but float products size their workspace for all threads */
        e->product_bytes = product_space(a, 1, tn_min64(e->columns, a->out), experts_is_plain(a) ? threads : 1);
        e->product_space = base;
        return (size_t)tn_max64(threads, 1) * e->product_bytes;
    }
    e->piece = tn_min64(e->piece, e->rows);
    e->product_bytes = product_space(a, e->piece, a->out, threads);
    const size_t sizes[] = {e->product_bytes, (size_t)(e->piece * a->in) * sizeof(float),
                            (size_t)(e->piece * a->out) * sizeof(float), (size_t)(a->experts + 2) * sizeof *e->begin,
                            (size_t)e->rows * sizeof *e->sorted};
    char *at[TN_COUNT(sizes)];
    for (size_t i = 0; i < TN_COUNT(sizes); i++) {
        at[i] = base ? base + used : NULL;
        used += tn_whole_lines(sizes[i]);
    }
    e->product_space = at[0];
    e->from = (float *)(void *)at[1];
    e->to = (float *)(void *)at[2];
    e->begin = (int64_t *)(void *)at[3];
    e->sorted = (int64_t *)(void *)at[4];
    return used;
}

static bool experts_is_empty(const tn_experts_args *a) { return a->tokens <= 0 || a->choices <= 0 || a->out <= 0; }

size_t tn_experts_workspace(const tn_experts_args *args, int threads) {
    experts e;
    return experts_is_empty(args) ? 64 : plan_experts(&e, args, threads, NULL) + 64;
}

void tn_experts(const tn_experts_args *args) {
    experts e;
    if (experts_is_empty(args)) return;
    plan_experts(&e, args, args->threads, args->workspace);
    if (args->tokens == 1) {
        tn_parallel(e.rows * e.cuts, 1, multiply_pieces, &e);
        return;
    }
    sort_rows(&e);
    for (int64_t i = 0; i < args->experts; i++)
        multiply_sorted(&e, i);
    for (int64_t i = e.begin[args->experts]; i < e.rows; i++)
        fill_nan(args->result + e.sorted[i] * args->out, args->out);
}
