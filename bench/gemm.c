/* gemm.c — matrix products beside what the processor could do.
 *
 * The limit is measured in the same run: independent fused multiply-adds that touch no memory, on as many threads. The
 * answer of every shape is checked before it is timed. Figures are medians; the last two columns say which part of the
 * limit a shape reaches in the median and at best (a machine that others use too shows its best now and then).
 * The limit is that of f32: f64 can reach half of it, pairs of bf16 twice as much.
 *
 *   bench_gemm [threads] [name part]     default: all usable threads, all shapes */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "bench.h"
#include "cpu/cpu_kernels.h"
#include "kir/kir_math.h"

static const double SAMPLE_SECONDS = 4e-3;

/* ---- shapes ------------------------------------------------------------------------------------------------------ */

typedef struct shape {
    const char *name;
    int64_t batch, m, n, k;
    bool a_by_columns, b_by_columns, kept; /* kept: packed once */
    tn_dtype dtype;
} shape;

static const shape shapes[] = {
    {"square-128", 1, 128, 128, 128, false, false, false, TN_F32},
    {"square-256", 1, 256, 256, 256, false, false, false, TN_F32},
    {"square-512", 1, 512, 512, 512, false, false, false, TN_F32},
    {"square-1024", 1, 1024, 1024, 1024, false, false, false, TN_F32},
    {"square-2048", 1, 2048, 2048, 2048, false, false, false, TN_F32},
    {"bf16-256", 1, 256, 256, 256, false, false, false, TN_BF16},
    {"bf16-1024", 1, 1024, 1024, 1024, false, false, false, TN_BF16},
    {"bf16-1024-weight", 1, 1024, 1024, 1024, false, true, false, TN_BF16},
    {"bf16-1024-kept", 1, 1024, 1024, 1024, false, true, true, TN_BF16},
    {"bf16-1024-dw", 1, 1024, 1024, 1024, true, false, false, TN_BF16},
    {"f16-1024", 1, 1024, 1024, 1024, false, false, false, TN_F16},
    {"bytes-1024", 1, 1024, 1024, 1024, false, false, false, TN_I32},
    {"bytes-1024-kept", 1, 1024, 1024, 1024, false, false, true, TN_I32},
    {"bytes-up-kept", 1, 512, 1536, 384, false, false, true, TN_I32},
    {"bytes-down-kept", 1, 512, 384, 1536, false, false, true, TN_I32},
    {"f64-1024", 1, 1024, 1024, 1024, false, false, false, TN_F64},
    {"policy-1-in", 1, 1, 128, 64, false, true, true, TN_F32},
    {"policy-1-hidden", 1, 1, 128, 128, false, true, true, TN_F32},
    {"policy-1-heads", 1, 1, 9, 128, false, true, true, TN_F32},
    {"policy-1-hidden-unkept", 1, 1, 128, 128, false, true, false, TN_F32},
    {"policy-1-dx", 1, 1, 128, 128, false, false, false, TN_F32},
    {"policy-1-dw", 1, 128, 128, 1, true, false, false, TN_F32},
    {"policy-64-in", 1, 64, 128, 64, false, true, false, TN_F32},
    {"policy-64-hidden-kept", 1, 64, 128, 128, false, true, true, TN_F32},
    {"policy-64-hidden", 1, 64, 128, 128, false, true, false, TN_F32},
    {"policy-64-heads", 1, 64, 8, 128, false, true, false, TN_F32},
    {"policy-64-value", 1, 64, 1, 128, false, true, false, TN_F32},
    {"policy-64-dx", 1, 64, 128, 128, false, false, false, TN_F32},
    {"policy-64-dw", 1, 128, 128, 64, true, false, false, TN_F32},
    {"policy-4096-in", 1, 4096, 128, 64, false, true, false, TN_F32},
    {"policy-4096-hidden-kept", 1, 4096, 128, 128, false, true, true, TN_F32},
    {"policy-4096-hidden", 1, 4096, 128, 128, false, true, false, TN_F32},
    {"policy-4096-heads", 1, 4096, 8, 128, false, true, false, TN_F32},
    {"policy-4096-value", 1, 4096, 1, 128, false, true, false, TN_F32},
    {"policy-4096-dx", 1, 4096, 128, 128, false, false, false, TN_F32},
    {"policy-4096-dw", 1, 128, 128, 4096, true, false, false, TN_F32},
    {"transformer-qkv", 1, 1024, 384, 384, false, true, false, TN_F32},
    {"transformer-up", 1, 1024, 1536, 384, false, true, false, TN_F32},
    {"transformer-down", 1, 1024, 384, 1536, false, true, false, TN_F32},
    {"transformer-up-dw", 1, 1536, 384, 1024, true, false, false, TN_F32},
    {"transformer-up-dx", 1, 1024, 384, 1536, false, false, false, TN_F32},
    {"attention-qk", 48, 128, 128, 64, false, true, false, TN_F32},
    {"attention-pv", 48, 128, 64, 128, false, false, false, TN_F32},
    {"minilm-up-kept", 1, 27, 1536, 384, false, true, true, TN_F32},
    {"minilm-up", 1, 27, 1536, 384, false, true, false, TN_F32},
    {"conv-64-3x3-56", 1, 64, 3136, 576, false, false, false, TN_F32},
    {"conv-64-3x3-8", 32, 64, 64, 576, false, false, false, TN_F32},
    {"conv-128-3x3-4", 32, 128, 16, 1152, false, false, false, TN_F32},
    {"gemv-4096", 1, 4096, 1, 4096, false, false, false, TN_F32},
    {"gemv-4096-bf16", 1, 4096, 1, 4096, false, false, false, TN_BF16},
    {"gemv-4096-turned", 1, 1, 4096, 4096, false, false, false, TN_F32},
};

typedef struct problem {
    tn_gemm_args args;
    void *a, *b, *c, *packed;
    bool packed_valid;
} problem;

static void put(void *x, tn_dtype dtype, int64_t at, double v) {
    switch (dtype) {
    case TN_F64: ((double *)x)[at] = v; break;
    case TN_F16: ((uint16_t *)x)[at] = kir_to_f16((float)v); break;
    case TN_BF16: ((uint16_t *)x)[at] = kir_to_bf16((float)v); break;
    case TN_I32: ((int32_t *)x)[at] = (int32_t)v; break;
    case TN_I8: ((int8_t *)x)[at] = (int8_t)v; break;
    case TN_U8: ((uint8_t *)x)[at] = (uint8_t)fabs(v); break;
    default: ((float *)x)[at] = (float)v;
    }
}

static double get(const void *x, tn_dtype dtype, int64_t at) {
    switch (dtype) {
    case TN_F64: return ((const double *)x)[at];
    case TN_F16: return (double)kir_from_f16(((const uint16_t *)x)[at]);
    case TN_BF16: return (double)kir_from_bf16(((const uint16_t *)x)[at]);
    case TN_I32: return ((const int32_t *)x)[at];
    case TN_I8: return ((const int8_t *)x)[at];
    case TN_U8: return ((const uint8_t *)x)[at];
    default: return (double)((const float *)x)[at];
    }
}

/* What is multiplied for a result of `dtype`: of bytes the kinds that processors take four at a time. */
static tn_dtype left(tn_dtype dtype) { return dtype == TN_I32 ? TN_U8 : dtype; }
static tn_dtype right(tn_dtype dtype) { return dtype == TN_I32 ? TN_I8 : dtype; }

static void *make_numbers(tn_dtype dtype, int64_t count, int64_t period) {
    void *x = tn_mem_alloc((size_t)count * tn_dtype_size(dtype));
    for (int64_t i = 0; x && i < count; i++)
        put(x, dtype, i, (double)(i * 7919 % period) - (double)(period / 2));
    return x;
}

static bool make_problem(problem *p, const shape *s, int threads) {
    tn_dtype a = left(s->dtype), b = right(s->dtype);
    p->a = make_numbers(a, s->batch * s->m * s->k, 17);
    p->b = make_numbers(b, s->batch * s->k * s->n, 13);
    p->c = make_numbers(s->dtype, s->batch * s->m * s->n, 7);
    p->packed_valid = false;
    p->args = (tn_gemm_args){.batch = {s->batch, 1, 1, 1}, .m = s->m, .n = s->n, .k = s->k, .a_dtype = a, .b_dtype = b};
    bool quads = s->dtype == TN_I32 && tn_gemm_takes_quads(&p->args);
    p->packed = s->kept ? tn_mem_alloc(tn_gemm_packed_bytes(s->n, s->k, quads ? TN_I8 : s->dtype)) : NULL;
    p->args.a = (tn_matrix){.data = p->a, .batch_stride = {s->m * s->k}, .row_stride = s->k, .col_stride = 1};
    p->args.b = (tn_matrix){.data = p->b, .batch_stride = {s->k * s->n}, .row_stride = s->n, .col_stride = 1};
    p->args.c = (tn_matrix){.data = p->c, .batch_stride = {s->m * s->n}, .row_stride = s->n, .col_stride = 1};
    if (s->a_by_columns) p->args.a.row_stride = 1, p->args.a.col_stride = s->m;
    if (s->b_by_columns) p->args.b.row_stride = 1, p->args.b.col_stride = s->k;
    if (s->kept) p->args.packed_b = p->packed, p->args.packed_valid = &p->packed_valid;
    p->args.workspace = tn_mem_alloc(tn_gemm_workspace(&p->args, s->dtype, threads));
    return p->a && p->b && p->c && p->args.workspace && (p->packed || !s->kept);
}

static void free_problem(problem *p) {
    tn_mem_free(p->a);
    tn_mem_free(p->b);
    tn_mem_free(p->c);
    tn_mem_free(p->packed);
    tn_mem_free(p->args.workspace);
}

/* All numbers are small integers: sums are exact in any order. */
static bool is_right(const problem *p, const shape *s) {
    const tn_matrix *a = &p->args.a, *b = &p->args.b;
    for (int64_t probe = 0; probe < 200; probe++) {
        int64_t q = probe * 5 % s->batch, i = probe * 37 % s->m, j = probe * 91 % s->n;
        double sum = 0;
        for (int64_t k = 0; k < s->k; k++) {
            sum += get(p->a, left(s->dtype), q * s->m * s->k + i * a->row_stride + k * a->col_stride) *
                   get(p->b, right(s->dtype), q * s->k * s->n + k * b->row_stride + j * b->col_stride);
        }
        double rounded;
        put(&rounded, s->dtype, 0, sum);
        if (get(&rounded, s->dtype, 0) != get(p->c, s->dtype, q * s->m * s->n + i * s->n + j)) return false;
    }
    return true;
}

typedef struct work {
    const tn_gemm_args *args;
    tn_dtype dtype;
} work;

static void run(void *ctx) {
    const work *w = ctx;
    tn_gemm_run(w->args, w->dtype);
}

static bool bench(const shape *s, int threads, double limit) {
    problem p;
    if (!make_problem(&p, s, threads)) {
        printf("%s: %s\n", s->name, tn_error());
        free_problem(&p);
        return false;
    }
    tn_gemm_run(&p.args, s->dtype);
    bool right = is_right(&p, s);
    if (right) {
        times t = measure(run, &(work){&p.args, s->dtype}, SAMPLE_SECONDS);
        double done = 2e-9 * (double)(s->batch * s->m * s->n * s->k);
        printf("%-24s %3lld x %5lld x %5lld x %5lld", s->name, (long long)s->batch, (long long)s->m, (long long)s->n,
               (long long)s->k);
        print_rate(t, done, limit);
    } else {
        printf("%s: WRONG RESULT\n", s->name);
    }
    free_problem(&p);
    return right;
}

int main(int argc, char **argv) {
    int threads = take_threads(argc, argv);
    if (threads == 0) return 2;
    double limit = bench_fma_limit(threads) * 1e-9;
    printf("%s, %s, %d threads; limit %.1f GFLOP/s\n", tn_cpu().name, tn_isa_name(tn_cpu().isa), threads, limit);
    printf("%-24s batch x m x n x k %39s %16s of limit, best\n", "shape", "median", "");
    bool right = true;
    for (size_t i = 0; i < TN_COUNT(shapes); i++) {
        if (argc > 2 && !strstr(shapes[i].name, argv[2])) continue;
        right = bench(&shapes[i], threads, limit) && right;
    }
    printf("limit at the end: %.1f GFLOP/s\n", bench_fma_limit(threads) * 1e-9);
    return right ? 0 : 1;
}
