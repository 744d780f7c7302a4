/* qmat.c — products with block-quantised weights beside what the processor and its memory could do.
 *
 * Limits are measured in the same run, on as many threads: dot products of small integers that touch no memory (GOP/s,
 * a multiplication and an addition each), and the reading of memory in order (GB/s) as large as the weights. Answers
 * are checked against a scalar sum over decoded weights before they are timed. Figures are medians, the best in
 * brackets. kernels: one weight matrix, again and again: from a cache if it fits there;
 *   model: all matrices of SmolLM2-135M in order, each read once a pass, as a token or a prompt does; launched as a
 *   plan does, with those of one operand together.
 *
 *   bench_qmat [threads] [name part]     default: all usable threads, everything */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "bench.h"
#include "cpu/cpu_kernels.h"
#include "kir/kir_math.h"

enum { SAMPLES = 15 };
static const double SAMPLE_SECONDS = 4e-3;

/* ---- weights ----------------------------------------------------------------------------------------------------- */

typedef struct matrix {
    int64_t n, k;
    tn_dtype dtype;
    uint8_t *blocks, *packed;
    size_t packed_bytes;
} matrix;

/* Blocks whose f16 factors are ordinary numbers wherever they stand: each byte pair is one between 2⁻⁸ and 2⁻⁶. */
static bool make_matrix(matrix *w, int64_t n, int64_t k, tn_dtype dtype, void *packed) {
    size_t bytes = tn_dtype_bytes(dtype, n * k);
    *w = (matrix){.n = n, .k = k, .dtype = dtype, .packed_bytes = tn_qmat_packed_bytes(n, k, dtype)};
    w->blocks = tn_mem_alloc(bytes + 2);
    w->packed = packed ? packed : tn_mem_alloc(w->packed_bytes);
    if (!w->blocks || !w->packed) return false;
    uint32_t state = 1;
    for (size_t i = 0; i < bytes; i += 2) {
        state = state * 1664525u + 1013904223u;
        w->blocks[i] = (uint8_t)(state >> 16);
        w->blocks[i + 1] = (uint8_t)(0x1c | (state >> 24 & 0x83));
    }
    tn_qmat_pack(dtype, w->blocks, n, k, w->packed);
    return true;
}

typedef struct problem {
    tn_qmat_args args;
    float *x, *y;
} problem;

static bool make_problem(problem *p, const matrix *w, int64_t m) {
    *p = (problem){.args = {.m = m, .n = w->n, .k = w->k, .dtype = w->dtype, .packed = w->packed}};
    p->x = tn_mem_alloc((size_t)(m * w->k) * sizeof *p->x);
    p->y = tn_mem_alloc((size_t)(m * w->n) * sizeof *p->y);
    if (!p->x || !p->y) return false;
    for (int64_t i = 0; i < m * w->k; i++)
        p->x[i] = (float)(i * 7919 % 255 - 127) / 64;
    for (int64_t i = 0; i < m * w->k; i += 32)
        p->x[i] = 127.0f / 64; /* so that rounding x to 8 bits changes nothing */
    p->args.x = p->x;
    p->args.x_stride = w->k;
    p->args.c = (tn_matrix){.data = p->y, .row_stride = w->n, .col_stride = 1};
    p->args.workspace = tn_mem_alloc(tn_qmat_workspace(&p->args, tn_threads()));
    return p->args.workspace != NULL;
}

static void free_problem(problem *p) {
    tn_mem_free(p->x);
    tn_mem_free(p->y);
    tn_mem_free(p->args.workspace);
}

static void widen_row(const matrix *w, int64_t j, float *row) {
    const uint8_t *from = w->blocks + (size_t)j * tn_dtype_bytes(w->dtype, w->k);
    if (tn_dtype_block(w->dtype) > 1) {
        tn_decode_blocks(w->dtype, from, w->k / tn_dtype_block(w->dtype), row);
        return;
    }
    for (int64_t k = 0; k < w->k; k++) {
        uint16_t h = (uint16_t)(from[2 * k] | from[2 * k + 1] << 8);
        row[k] = w->dtype == TN_F16 ? kir_from_f16(h) : kir_from_bf16(h);
    }
}

static bool is_right(const problem *p, const matrix *w) {
    float *row = tn_mem_alloc((size_t)w->k * sizeof *row);
    if (!row) return false;
    bool right = true;
    tn_qmat(&p->args);
    for (int64_t probe = 0; probe < 100; probe++) {
        int64_t i = probe * 37 % p->args.m, j = probe * 91 % w->n;
        widen_row(w, j, row);
        double sum = 0, size = 0;
        for (int64_t k = 0; k < w->k; k++) {
            sum += (double)row[k] * (double)p->x[i * w->k + k];
            size += fabs((double)row[k] * (double)p->x[i * w->k + k]);
        }
        right = right && fabs(sum - (double)p->y[i * w->n + j]) <= 1e-4 * size;
    }
    tn_mem_free(row);
    return right;
}

static void run(void *ctx) { tn_qmat(&((const problem *)ctx)->args); }

/* ---- single matrices --------------------------------------------------------------------------------------------- */

static bool bench_matrix(const matrix *w, int64_t m) {
    problem p;
    bool right = make_problem(&p, w, m) && is_right(&p, w);
    if (right) {
        times t = measure(run, &p, SAMPLE_SECONDS);
        double ops = 2e-9 * (double)(m * w->n * w->k), bytes = 1e-9 * (double)w->packed_bytes;
        printf("%-5s %4lld x %5lld x %5lld %10.2f us %8.1f GOP/s (%.1f) %8.1f GB/s (%.1f)\n", tn_dtype_name(w->dtype),
               (long long)m, (long long)w->n, (long long)w->k, t.median * 1e6, ops / t.median, ops / t.best,
               bytes / t.median, bytes / t.best);
    } else {
        printf("%s: WRONG RESULT, or no memory\n", tn_dtype_name(w->dtype));
    }
    free_problem(&p);
    return right;
}

static bool bench_kernels(void) {
    static const int64_t sizes[][2] = {{576, 576}, {192, 576}, {1536, 576}, {576, 1536}, {4096, 4096}};
    bool right = true;
    static const tn_dtype dtypes[] = {TN_Q4_1, TN_Q4_0, TN_Q5_0, TN_Q5_1, TN_Q8_0, TN_Q2_K,
                                      TN_Q3_K, TN_Q4_K, TN_Q5_K, TN_Q6_K, TN_F16,  TN_BF16};
    for (size_t d = 0; d < TN_COUNT(dtypes); d++) {
        tn_dtype dtype = dtypes[d];
        for (size_t i = dtype == TN_Q4_1 ? 0 : TN_COUNT(sizes) - 1; i < TN_COUNT(sizes); i++) {
            matrix w;
            if (!make_matrix(&w, sizes[i][0], sizes[i][1], dtype, NULL)) return false;
            static const int64_t rows[] = {1, 2, 4, 7, 16, 512};
            for (size_t j = 0; j < TN_COUNT(rows); j++)
                right = bench_matrix(&w, rows[j]) && right;
            tn_mem_free(w.blocks);
            tn_mem_free(w.packed);
        }
    }
    return right;
}

/* ---- a model ----------------------------------------------------------------------------------------------------- */

enum { LAYERS = 30, HIDDEN = 576, KEYS = 192, INNER = 1536, VOCABULARY = 49152, KINDS = 8 };

/* Queries, keys and values; gate and up: where a chain begins, and how many products it has. */
static const int chained[KINDS] = {3, 0, 0, 1, 2, 0, 1, 1};

static void launch_model(matrix w[LAYERS][KINDS], problem *p) {
    tn_qmat_args args[2][KINDS];
    for (int i = 0; i < LAYERS; i++) {
        tn_qmat_args *now = args[i % 2], *then = args[(i + 1) % 2];
        for (int j = 0; j < KINDS; j++) {
            now[j] = p[j].args;
            now[j].packed = w[i][j].packed;
            then[j] = p[j].args;
            then[j].packed = w[(i + 1) % LAYERS][j].packed;
        }
        for (int j = 0, last = KINDS - (i < LAYERS - 1), next; j < last; j = next) {
            next = j + chained[j];
            for (int k = j + 1; k < next; k++)
                now[k - 1].next = &now[k];
            now[j].later = next < last ? &now[next] : &then[0];
            tn_qmat(&now[j]);
        }
    }
}

static bool bench_model(void) {
    static const int64_t sizes[KINDS][2] = {{HIDDEN, HIDDEN}, {KEYS, HIDDEN},  {KEYS, HIDDEN},  {HIDDEN, HIDDEN},
                                            {INNER, HIDDEN},  {INNER, HIDDEN}, {HIDDEN, INNER}, {VOCABULARY, HIDDEN}};
    size_t layer = 0, head = tn_qmat_packed_bytes(VOCABULARY, HIDDEN, TN_Q4_1);
    for (int i = 0; i < KINDS - 1; i++)
        layer += tn_qmat_packed_bytes(sizes[i][0], sizes[i][1], TN_Q4_1);
    size_t total = layer * LAYERS + head, at = 0;
    uint8_t *packed = aligned_alloc(TN_LARGE_PAGE, (total + TN_LARGE_PAGE - 1) / TN_LARGE_PAGE * TN_LARGE_PAGE);
    matrix w[LAYERS][KINDS];
    if (!packed) return false;
    tn_large_pages(packed, total);
    for (int i = 0; i < LAYERS; i++) {
        for (int j = 0; j < KINDS - (i < LAYERS - 1); j++) {
            if (!make_matrix(&w[i][j], sizes[j][0], sizes[j][1], TN_Q4_1, packed + at)) return false;
            at += w[i][j].packed_bytes;
            tn_mem_free(w[i][j].blocks);
        }
    }
    printf("model: %.1f MB; as many bytes are read at %.1f GB/s\n", 1e-6 * (double)total,
           1e-9 * bench_read_limit(tn_threads(), (double)total));
    static const int64_t rows[] = {1, 2, 4, 8, 64, 512};
    for (size_t r = 0; r < TN_COUNT(rows); r++) {
        problem p[KINDS];
        double ops = 0, samples[SAMPLES];
        for (int j = 0; j < KINDS; j++) {
            if (!make_problem(&p[j], &w[LAYERS - 1][j], j == KINDS - 1 ? 1 : rows[r])) return false;
            ops += 2e-9 * (double)(p[j].args.m * sizes[j][0] * sizes[j][1]) * (j == KINDS - 1 ? 1 : LAYERS);
        }
        for (int s = 0; s < SAMPLES; s++) {
            double start = tn_now();
            launch_model(w, p);
            samples[s] = tn_now() - start;
        }
        times t = sorted(samples, SAMPLES);
        printf("model: %3lld tokens %9.3f ms (%.3f) %8.1f tok/s %8.1f GOP/s %6.1f GB/s\n", (long long)rows[r],
               t.median * 1e3, t.best * 1e3, (double)rows[r] / t.median, ops / t.median,
               1e-9 * (double)total / t.median);
        for (int j = 0; j < KINDS; j++)
            free_problem(&p[j]);
    }
    free(packed);
    return true;
}

int main(int argc, char **argv) {
    int threads = take_threads(argc, argv);
    if (threads == 0) return 2;
    const char *what = argc > 2 ? argv[2] : "";
    printf("%s, %s%s, %d threads; limit %.0f GOP/s\n", tn_cpu().name, tn_isa_name(tn_cpu().isa),
           tn_cpu().vnni ? " with vnni" : "", threads, 1e-9 * bench_dot_limit(threads));
    bool right = true;
    if (strstr("model", what)) right = bench_model() && right;
    if (strstr("kernels", what)) right = bench_kernels() && right;
    printf("limit at the end: %.0f GOP/s\n", 1e-9 * bench_dot_limit(threads));
    return right ? 0 : 1;
}
