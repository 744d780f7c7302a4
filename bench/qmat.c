/* qmat.c — products with block-quantised weights beside what the processor and its memory could do.
 *
 * Limits are measured in the same run, on as many threads: dot products of small integers that touch no memory (GOP/s,
 * a multiplication and an addition each), and the reading of memory in order (GB/s) as large as the weights. Answers
 * are checked against a scalar sum over decoded weights before they are timed. Figures are medians, the best in
 * brackets. kernels: one weight matrix, again and again: from a cache if it fits there;
 *   model: all matrices of SmolLM2-135M in order, each read once a pass, as a token or a prompt does.
 *
 *   bench_qmat [threads] [name part]     default: all usable threads, everything */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "kern/kern.h"
#include "kir/kir_math.h"

enum { SAMPLES = 15, STEPS = 20000 };
static const double SAMPLE_SECONDS = 4e-3;

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* ---- limits ------------------------------------------------------------------------------------------------------ */

static volatile int seed, keep; /* volatile: so that no two chains are known to be equal */

#if defined(__x86_64__)
#include <immintrin.h>

__attribute__((target("avx512f,avx512bw,avx512vnni"))) static double probe_avx512_vnni(void) {
    __m512i sum[16], x = _mm512_set1_epi32(seed), y = _mm512_set1_epi32(seed);
    _Pragma("GCC unroll 16") for (int i = 0; i < 16; i++) sum[i] = _mm512_set1_epi32(seed);
    for (int step = 0; step < STEPS; step++) {
        _Pragma("GCC unroll 16") for (int i = 0; i < 16; i++) sum[i] = _mm512_dpbusd_epi32(sum[i], x, y);
    }
    for (int i = 0; i < 16; i++)
        keep = _mm512_reduce_add_epi32(sum[i]);
    return 2.0 * 64 * 16 * STEPS;
}

__attribute__((target("avx2"))) static double probe_avx2(void) {
    __m256i sum[10], x = _mm256_set1_epi32(seed), y = _mm256_set1_epi32(seed), one = _mm256_set1_epi16(1);
    _Pragma("GCC unroll 10") for (int i = 0; i < 10; i++) sum[i] = _mm256_set1_epi32(seed);
    for (int step = 0; step < STEPS; step++) {
        _Pragma("GCC unroll 10") for (int i = 0; i < 10; i++) {
            sum[i] = _mm256_add_epi32(sum[i], _mm256_madd_epi16(_mm256_maddubs_epi16(x, sum[i]), one));
        }
    }
    for (int i = 0; i < 10; i++)
        keep = _mm256_extract_epi32(_mm256_add_epi32(sum[i], y), 0);
    return 2.0 * 32 * 10 * STEPS;
}
#endif

static double probe_base(void) {
    int sum[16] = {0}, x = seed;
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < 16; i++)
            sum[i] += x * (sum[i] ^ i);
    }
    for (int i = 0; i < 16; i++)
        keep = sum[i];
    return 2.0 * 16 * STEPS;
}

static double (*choose_probe(void))(void) {
#if defined(__x86_64__)
    if (tn_cpu().isa == TN_ISA_AVX512 && tn_cpu().vnni) return probe_avx512_vnni;
    if (tn_cpu().isa >= TN_ISA_AVX2) return probe_avx2;
#endif
    return probe_base;
}

static void probe_part(void *ctx, int64_t begin, int64_t end, int worker) {
    double (*probe)(void) = *(double (**)(void))ctx;
    (void)begin, (void)end, (void)worker;
    probe();
}

static double measure_dot_limit(int threads) {
    double (*probe)(void) = choose_probe();
    double work = probe() * threads, best = 1e9;
    for (int i = 0; i < 20; i++) {
        double start = tn_now();
        tn_parallel(threads, 1, probe_part, &probe);
        best = fmin(best, tn_now() - start);
    }
    return work / best * 1e-9;
}

static void read_part(void *ctx, int64_t begin, int64_t end, int worker) {
    const int64_t *p = ctx;
    int64_t sum[8] = {0};
    (void)worker;
    for (int64_t i = begin; i < end; i += 8) {
        __builtin_prefetch(p + i + 256);
        for (int j = 0; j < 8; j++)
            sum[j] += p[i + j];
    }
    for (int j = 0; j < 8; j++)
        keep = (int)sum[j];
}

/* GB/s: the median, and the best. */
typedef struct times {
    double median, best;
} times;

static times sorted(double *samples) {
    qsort(samples, SAMPLES, sizeof *samples, compare);
    return (times){samples[SAMPLES / 2], samples[0]};
}

static times measure_read(void *memory, int64_t bytes) {
    double samples[SAMPLES];
    for (int i = 0; i < SAMPLES; i++) {
        double start = tn_now();
        tn_parallel(bytes / 64 * 8, 4096, read_part, memory);
        samples[i] = tn_now() - start;
    }
    return sorted(samples);
}

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

static times measure(const problem *p) {
    double start = tn_now();
    tn_qmat(&p->args);
    double once = tn_now() - start;
    int repeats = once < SAMPLE_SECONDS ? (int)(SAMPLE_SECONDS / (once + 1e-8)) + 1 : 1;
    double samples[SAMPLES];
    for (int i = 0; i < SAMPLES; i++) {
        start = tn_now();
        for (int r = 0; r < repeats; r++)
            tn_qmat(&p->args);
        samples[i] = (tn_now() - start) / repeats;
    }
    return sorted(samples);
}

/* ---- single matrices --------------------------------------------------------------------------------------------- */

static bool bench_matrix(const matrix *w, int64_t m) {
    problem p;
    bool right = make_problem(&p, w, m) && is_right(&p, w);
    if (right) {
        times t = measure(&p);
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

static bool bench_model(void) {
    static const int64_t sizes[KINDS][2] = {{HIDDEN, HIDDEN}, {KEYS, HIDDEN},  {KEYS, HIDDEN},  {HIDDEN, HIDDEN},
                                            {INNER, HIDDEN},  {INNER, HIDDEN}, {HIDDEN, INNER}, {VOCABULARY, HIDDEN}};
    size_t layer = 0, head = tn_qmat_packed_bytes(VOCABULARY, HIDDEN, TN_Q4_1);
    for (int i = 0; i < KINDS - 1; i++)
        layer += tn_qmat_packed_bytes(sizes[i][0], sizes[i][1], TN_Q4_1);
    size_t total = layer * LAYERS + head, at = 0;
    uint8_t *packed = tn_mem_alloc(total);
    matrix w[LAYERS][KINDS];
    if (!packed) return false;
    for (int i = 0; i < LAYERS; i++) {
        for (int j = 0; j < KINDS - (i < LAYERS - 1); j++) {
            if (!make_matrix(&w[i][j], sizes[j][0], sizes[j][1], TN_Q4_1, packed + at)) return false;
            at += w[i][j].packed_bytes;
            tn_mem_free(w[i][j].blocks);
        }
    }
    times read = measure_read(packed, (int64_t)total);
    printf("model: %.1f MB; read in order %.1f GB/s (%.1f)\n", 1e-6 * (double)total, 1e-9 * (double)total / read.median,
           1e-9 * (double)total / read.best);
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
            for (int i = 0; i < LAYERS; i++) {
                for (int j = 0; j < KINDS - (i < LAYERS - 1); j++) {
                    p[j].args.packed = w[i][j].packed;
                    tn_qmat(&p[j].args);
                }
            }
            samples[s] = tn_now() - start;
        }
        times t = sorted(samples);
        printf("model: %3lld tokens %9.3f ms (%.3f) %8.1f tok/s %8.1f GOP/s %6.1f GB/s\n", (long long)rows[r],
               t.median * 1e3, t.best * 1e3, (double)rows[r] / t.median, ops / t.median,
               1e-9 * (double)total / t.median);
        for (int j = 0; j < KINDS; j++)
            free_problem(&p[j]);
    }
    tn_mem_free(packed);
    return true;
}

int main(int argc, char **argv) {
    if (tn_threads_set(argc > 1 ? atoi(argv[1]) : 0) != TN_OK) {
        fprintf(stderr, "%s\n", tn_error());
        return 2;
    }
    int threads = tn_threads();
    const char *what = argc > 2 ? argv[2] : "";
    printf("%s, %s%s, %d threads; limit %.0f GOP/s\n", tn_cpu().name, tn_isa_name(tn_cpu().isa),
           tn_cpu().vnni ? " with vnni" : "", threads, measure_dot_limit(threads));
    bool right = true;
    if (strstr("model", what)) right = bench_model() && right;
    if (strstr("kernels", what)) right = bench_kernels() && right;
    printf("limit at the end: %.0f GOP/s\n", measure_dot_limit(threads));
    return right ? 0 : 1;
}
