/* attention.c — attention over a paged cache beside what the processor could do.
 *
 * Sizes of small language models: one new token behind a context, and prompts. A token should take the time of reading
 * its keys and values once, a prompt that of its multiplications (both limits are measured in the same run, on as many
 * threads). A result is checked against another cut of the same tokens before it is timed.
 *
 *   bench_attention [threads]     default: all usable threads */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "bench.h"
#include "cpu/cpu_kernels.h"

enum { LAYERS = 30 }; /* caches of so many layers take turns, as in a model */
static const double SAMPLE_SECONDS = 5e-3;

typedef struct shape {
    const char *model;
    int64_t heads, kv_heads, head_dim;
} shape;

static const shape shapes[] = {
    {"smollm2-135m", 9, 3, 64}, {"qwen2-0.5b", 14, 2, 64}, {"mistral-7b", 32, 8, 128}, {"all heads", 12, 12, 64}};

typedef struct problem {
    tn_attention_args args[LAYERS];
    float *numbers, *out, *again;
    void *caches, *workspace;
    int layers;
} problem;

static float *make_numbers(int64_t count) {
    float *x = tn_mem_alloc((size_t)count * sizeof *x);
    for (int64_t i = 0; x && i < count; i++)
        x[i] = (float)(i * 7919 % 2003) / 1001.0f - 1.0f;
    return x;
}

static void fill_cache(const tn_kv_cache *cache, const shape *s, int64_t tokens, const float *numbers) {
    int64_t width = s->kv_heads * s->head_dim;
    for (int64_t t = 0; t < tokens; t++) {
        tn_kv_cache_write(&(tn_kv_cache_write_args){.cache = *cache,
                                                    .n = 1,
                                                    .kv_heads = s->kv_heads,
                                                    .head_dim = s->head_dim,
                                                    .position = t,
                                                    .x = numbers + t % 64 * 100,
                                                    .x_token_stride = width,
                                                    .x_head_stride = s->head_dim});
    }
}

static bool make_problem(problem *p, const shape *s, tn_dtype dtype, int64_t position, int64_t n, int threads) {
    int64_t rows = s->heads * s->head_dim, width = s->kv_heads * s->head_dim;
    int64_t pages = (position + n) / TN_PAGE_TOKENS + 1, stride = width * TN_PAGE_TOKENS;
    size_t bytes = (size_t)(pages * stride) * tn_dtype_size(dtype);
    *p = (problem){.layers = n > 1 ? 1 : LAYERS};
    p->numbers = make_numbers(tn_max64((rows + 2 * width) * n, 64 * 100 + width));
    p->out = tn_mem_zalloc((size_t)(rows * n), sizeof(float));
    p->again = tn_mem_zalloc((size_t)(rows * n), sizeof(float));
    p->caches = tn_mem_alloc(bytes * 2 * (size_t)p->layers);
    if (!p->numbers || !p->out || !p->again || !p->caches) return false;
    for (int layer = 0; layer < p->layers; layer++) {
        tn_kv_cache cache = {.dtype = dtype, .n_pages = pages, .page_stride = stride, .page_count = pages};
        cache.data = (char *)p->caches + (size_t)(2 * layer) * bytes;
        tn_kv_cache values = cache;
        values.data = (char *)cache.data + bytes;
        fill_cache(&cache, s, position, p->numbers);
        fill_cache(&values, s, position, p->numbers + 1);
        p->args[layer] = (tn_attention_args){.n = n,
                                             .heads = s->heads,
                                             .kv_heads = s->kv_heads,
                                             .head_dim = s->head_dim,
                                             .position = position,
                                             .scale = 0.125f,
                                             .q = p->numbers,
                                             .k = p->numbers + rows * n,
                                             .v = p->numbers + (rows + width) * n,
                                             .q_token_stride = rows,
                                             .q_head_stride = s->head_dim,
                                             .k_token_stride = width,
                                             .k_head_stride = s->head_dim,
                                             .v_token_stride = width,
                                             .v_head_stride = s->head_dim,
                                             .out = p->out,
                                             .out_token_stride = rows,
                                             .out_head_stride = s->head_dim,
                                             .k_cache = cache,
                                             .v_cache = values};
    }
    p->workspace = tn_mem_alloc(tn_attention_workspace(p->args, threads));
    for (int layer = 0; layer < p->layers; layer++)
        p->args[layer].workspace = p->workspace;
    return p->workspace != NULL;
}

static void free_problem(problem *p) {
    tn_mem_free(p->numbers);
    tn_mem_free(p->out);
    tn_mem_free(p->again);
    tn_mem_free(p->caches);
    tn_mem_free(p->workspace);
}

/* The last query alone: all heads of one kv head apart, on one thread. */
static bool is_right(const problem *p, const shape *s, int threads) {
    tn_attention_args a = p->args[0];
    int64_t group = s->heads / s->kv_heads, rows = s->heads * s->head_dim;
    tn_attention(&a);
    a.kv_heads = 1;
    a.heads = group;
    if (tn_threads_set(1) != TN_OK) return false;
    a.out = p->again;
    tn_attention(&a);
    if (tn_threads_set(threads) != TN_OK) return false;
    for (int64_t i = 0; i < a.n; i++) {
        if (memcmp(p->out + i * rows, p->again + i * rows, (size_t)(group * s->head_dim) * sizeof(float))) return false;
    }
    return true;
}

static void run_layers(void *ctx) {
    const problem *p = ctx;
    for (int layer = 0; layer < p->layers; layer++)
        tn_attention(&p->args[layer]);
}

/* A layer's time. */
static times measure_layers(problem *p) {
    run_layers(p);
    times t = measure(run_layers, p, SAMPLE_SECONDS);
    return (times){t.median / p->layers, t.best / p->layers};
}

static bool bench(const shape *s, tn_dtype dtype, int64_t position, int64_t n, int threads) {
    problem p;
    bool made = make_problem(&p, s, dtype, position, n, threads);
    bool right = made && is_right(&p, s, threads);
    if (right) {
        times t = measure_layers(&p);
        double bytes = 2.0 * (double)((position + n) * s->kv_heads * s->head_dim) * (double)tn_dtype_size(dtype);
        double pairs = (double)n * (double)position + (double)n * (double)(n + 1) / 2;
        double work = 4e-9 * pairs * (double)(s->heads * s->head_dim);
        printf("%-14s %-5s %6lld + %-5lld %10.1f us (best %10.1f) %8.1f GFLOP/s", s->model, tn_dtype_name(dtype),
               (long long)position, (long long)n, t.median * 1e6, t.best * 1e6, work / t.median);
        if (n == 1)
            printf(" %6.1f GB/s of %.1f", bytes / t.median * 1e-9, bench_read_limit(threads, bytes * LAYERS) * 1e-9);
        else
            printf(" of %.1f", bench_fma_limit(threads) * 1e-9);
        printf("\n");
    } else {
        printf("%s: %s\n", s->model, made ? "WRONG RESULT" : tn_error());
    }
    free_problem(&p);
    return right;
}

int main(int argc, char **argv) {
    int threads = take_threads(argc, argv);
    if (threads == 0) return 2;
    printf("%s, %s, %d threads; a layer's time\n", tn_cpu().name, tn_isa_name(tn_cpu().isa), threads);
    bool right = true;
    static const int64_t contexts[] = {16, 127, 1023, 2047, 8191};
    for (size_t i = 0; i < TN_COUNT(shapes); i++) {
        const shape *s = &shapes[i];
        for (size_t c = 0; c < TN_COUNT(contexts); c++)
            right = bench(s, TN_F16, contexts[c], 1, threads) && right;
        right = bench(s, TN_F32, 1023, 1, threads) && bench(s, TN_BF16, 1023, 1, threads) && right;
        right = bench(s, TN_F16, 1024, 8, threads) && bench(s, TN_F16, 0, 512, threads) && right;
        right = bench(s, TN_F16, 1536, 512, threads) && bench(s, TN_F16, 7680, 512, threads) && right;
    }
    return right ? 0 : 1;
}
