/* test_attention_kernel.c — attention over a paged cache: the same bits as its definition, whatever the instruction
 * set, threads, cut of the prompt, page table and layout.
 *
 * A scalar loop spells out the contract of cpu_kernels.h, one query, one head, one key after another. Caches are filled
 * with NaN wherever no token was written, so that a key which must not be seen is seen. Outputs lie between marks, and
 * the workspace has exactly the size that was asked for. */
#include "test_support.h"

#include <math.h>

#include "cpu/isa.h"
#include "kir/kir_math.h"
#include "random_numbers.h"

enum { PAGE = TN_PAGE_TOKENS, LANES = 16, MAX_THREADS = 3, MAX_POINTS = 8 };

static const float MARK = 12345.0f;

/* ---- random numbers ---------------------------------------------------------------------------------------------- */

static uint64_t random_state;

static uint64_t random_bits(void) { return random_mixed(&random_state); }

static int64_t random_below(int64_t n) { return (int64_t)(random_bits() % (uint64_t)n); }

static float random_real(void) { return (float)random_below(2000001) / 1000000.0f - 1.0f; }

/* ---- a sequence with its caches ---------------------------------------------------------------------------------- */

/* All tokens' q, k and v; n of them are new, behind `position` that are in the caches. */
typedef struct sequence {
    int64_t tokens, heads, kv_heads, head_dim, window;
    int64_t n_pages, page_count, page_stride;
    float scale, cap;
    tn_dtype k_dtype, v_dtype;
    float *q, *k, *v;
    int64_t *pages; /* NULL: in order */
    void *k_data, *v_data;
} sequence;

static float *random_numbers(int64_t count) {
    float *x = tn_mem_alloc((size_t)count * sizeof *x);
    assert_non_null(x);
    for (int64_t i = 0; i < count; i++)
        x[i] = random_real() * (random_below(50) ? 1.0f : 4.0f);
    return x;
}

static void *fresh_cache(const sequence *s, tn_dtype dtype) {
    size_t bytes = (size_t)(s->n_pages * s->page_stride) * tn_dtype_size(dtype);
    void *data = tn_mem_alloc(bytes);
    assert_non_null(data);
    memset(data, 0xff, bytes); /* NaN in every dtype */
    return data;
}

/* Pages of the sequence lie anywhere among a few more. */
static void shuffle_pages(sequence *s) {
    s->pages = tn_mem_alloc((size_t)s->n_pages * sizeof *s->pages);
    assert_non_null(s->pages);
    for (int64_t i = 0; i < s->n_pages; i++) {
        int64_t j = random_below(i + 1);
        s->pages[i] = s->pages[j];
        s->pages[j] = i;
    }
}

static void make_sequence(sequence *s) {
    s->page_count = tn_ceil_div(s->tokens, PAGE);
    s->n_pages = s->page_count + random_below(3);
    s->page_stride = s->kv_heads * PAGE * tn_kv_row(s->k_dtype, s->head_dim) + (random_below(2) ? 0 : 24);
    if (s->v_dtype == TN_U8) s->page_stride = s->kv_heads * PAGE * tn_kv_row(TN_U8, s->head_dim);
    s->scale = 1.0f / sqrtf((float)s->head_dim);
    s->q = random_numbers(s->tokens * s->heads * s->head_dim);
    s->k = random_numbers(s->tokens * s->kv_heads * s->head_dim);
    s->v = random_numbers(s->tokens * s->kv_heads * s->head_dim);
    s->pages = NULL;
    if (random_below(3)) shuffle_pages(s);
    s->k_data = fresh_cache(s, s->k_dtype);
    s->v_data = fresh_cache(s, s->v_dtype);
}

static void free_sequence(sequence *s) {
    tn_mem_free(s->q);
    tn_mem_free(s->k);
    tn_mem_free(s->v);
    tn_mem_free(s->pages);
    tn_mem_free(s->k_data);
    tn_mem_free(s->v_data);
}

static tn_kv_cache cache_of(const sequence *s, bool keys) {
    return (tn_kv_cache){.data = keys ? s->k_data : s->v_data,
                         .dtype = keys ? s->k_dtype : s->v_dtype,
                         .n_pages = s->n_pages,
                         .page_stride = s->page_stride,
                         .pages = s->pages,
                         .page_count = s->page_count};
}

static void append(const sequence *s, int64_t position, int64_t n) {
    int64_t width = s->kv_heads * s->head_dim;
    tn_kv_cache_write_args a = {.n = n,
                                .kv_heads = s->kv_heads,
                                .head_dim = s->head_dim,
                                .position = position,
                                .x_token_stride = width,
                                .x_head_stride = s->head_dim};
    a.cache = cache_of(s, true);
    a.x = s->k + position * width;
    tn_kv_cache_write(&a);
    a.cache = cache_of(s, false);
    a.x = s->v + position * width;
    tn_kv_cache_write(&a);
}

/* Runs with a workspace that has anything in it. */
static void run_with_garbage(tn_attention_args *a, int threads) {
    assert_ok(tn_threads_set(threads));
    size_t bytes = tn_attention_workspace(a, threads);
    a->workspace = tn_mem_alloc(bytes);
    assert_non_null(a->workspace);
    memset(a->workspace, 0xff, bytes);
    tn_attention(a);
    tn_mem_free(a->workspace);
}

/* Tokens [position, position + n) as queries; out [n, heads, head_dim]. */
static void attend(const sequence *s, int64_t position, int64_t n, int threads, float *out) {
    int64_t width = s->kv_heads * s->head_dim, rows = s->heads * s->head_dim;
    tn_attention_args a = {.n = n,
                           .heads = s->heads,
                           .kv_heads = s->kv_heads,
                           .head_dim = s->head_dim,
                           .position = position,
                           .window = s->window,
                           .scale = s->scale,
                           .cap = s->cap,
                           .q = s->q + position * rows,
                           .k = s->k + position * width,
                           .v = s->v + position * width,
                           .q_token_stride = rows,
                           .q_head_stride = s->head_dim,
                           .k_token_stride = width,
                           .k_head_stride = s->head_dim,
                           .v_token_stride = width,
                           .v_head_stride = s->head_dim,
                           .out = out,
                           .out_token_stride = rows,
                           .out_head_stride = s->head_dim,
                           .k_cache = cache_of(s, true),
                           .v_cache = cache_of(s, false)};
    run_with_garbage(&a, threads);
}

/* ---- the definition ---------------------------------------------------------------------------------------------- */

/* A number as the cache holds it. */
TEST_DEFINITION static float rounded(float x, tn_dtype dtype) {
    if (dtype == TN_F16) return kir_from_f16(kir_to_f16(x));
    if (dtype == TN_BF16) return kir_from_bf16(kir_to_bf16(x));
    return x;
}

TEST_DEFINITION static void round_block(const float *x, float *to) {
    float most = 0;
    for (int j = 0; j < TN_KV_BLOCK; j++)
        most = fmaxf(most, fabsf(x[j]));
    float d = most / 127;
    for (int j = 0; j < TN_KV_BLOCK; j++)
        to[j] = d > 0 ? kir_from_f16(kir_to_f16(d)) * roundf(x[j] * (1 / d)) : 0;
}

/* A token's row as the cache holds it; TN_U8: q8_0 blocks. */
TEST_DEFINITION static void round_row(const float *row, int64_t n, tn_dtype dtype, float *to) {
    if (dtype == TN_U8)
        for (int64_t i = 0; i < n; i += TN_KV_BLOCK)
            round_block(row + i, to + i);
    for (int64_t i = 0; dtype != TN_U8 && i < n; i++)
        to[i] = rounded(row[i], dtype);
}

TEST_DEFINITION static float product(const float *q, const float *k, int64_t n) {
    float total = 0;
    for (int64_t at = 0; at < n; at += KIR_KSUM) {
        float chain = 0;
        for (int64_t i = at; i < tn_min64(at + KIR_KSUM, n); i++)
            chain = fmaf(q[i], k[i], chain);
        total = at ? total + chain : chain;
    }
    return total;
}

TEST_DEFINITION static float lane_sum(const float *p) {
    float lane[LANES] = {0};
    for (int i = 0; i < PAGE; i++)
        lane[i % LANES] += p[i];
    for (int w = LANES / 2; w > 0; w /= 2) {
        for (int t = 0; t < w; t++)
            lane[t] += lane[t + w];
    }
    return lane[0];
}

typedef struct state {
    float most, weight, value[512];
} state;

TEST_DEFINITION static float finite_or_0(float x) { return x == -INFINITY ? 0 : x; }

/* Keys [lo, hi) of a chunk that starts at key `base`. */
TEST_DEFINITION static void add_chunk(const sequence *s, const float *q, int64_t kv, int64_t base, int64_t lo,
                                      int64_t hi, state *all) {
    int64_t d = s->head_dim, width = s->kv_heads * d;
    float p[PAGE] = {0}, row[TN_COUNT(all->value)], chain[TN_COUNT(all->value)] = {0}, most = -INFINITY;
    for (int64_t i = lo; i < hi; i++) {
        round_row(s->k + (base + i) * width + kv * d, d, s->k_dtype, row);
        p[i] = product(q, row, d) * s->scale;
        if (s->cap > 0) p[i] = s->cap * kir_tanh_f32(p[i] / s->cap);
        if (p[i] > most) most = p[i];
    }
    for (int64_t i = lo; i < hi; i++)
        p[i] = kir_exp_f32(p[i] - finite_or_0(most));
    float greatest = most > all->most ? most : all->most;
    float before = kir_exp_f32(all->most - finite_or_0(greatest)), now = kir_exp_f32(most - finite_or_0(greatest));
    all->weight = fmaf(lane_sum(p), now, all->weight * before);
    for (int64_t i = lo; i < hi; i++) {
        round_row(s->v + (base + i) * width + kv * d, d, s->v_dtype, row);
        for (int64_t e = 0; e < d; e++)
            chain[e] = fmaf(p[i], row[e], chain[e]);
    }
    for (int64_t e = 0; e < d; e++)
        all->value[e] = fmaf(chain[e], now, all->value[e] * before);
    all->most = greatest;
}

TEST_DEFINITION static int64_t first_key(const sequence *s, int64_t token) {
    return s->window ? tn_max64(token + 1 - s->window, 0) : 0;
}

TEST_DEFINITION static void define(const sequence *s, int64_t token, int64_t head, float *out) {
    const float *q = s->q + (token * s->heads + head) * s->head_dim;
    int64_t first = first_key(s, token), kv = head / (s->heads / s->kv_heads);
    state all = {.most = -INFINITY};
    for (int64_t base = first / PAGE * PAGE; base <= token; base += PAGE)
        add_chunk(s, q, kv, base, tn_max64(first - base, 0), tn_min64(token + 1 - base, PAGE), &all);
    for (int64_t e = 0; e < s->head_dim; e++)
        out[e] = all.value[e] / all.weight;
}

static float *define_all(const sequence *s, int64_t position, int64_t n) {
    float *out = tn_mem_alloc((size_t)(n * s->heads * s->head_dim) * sizeof *out);
    assert_non_null(out);
    for (int64_t i = 0; i < n * s->heads; i++)
        define(s, position + i / s->heads, i % s->heads, out + i * s->head_dim);
    return out;
}

static bool equal_bits(float x, float y) { return kir_bits_f32(x) == kir_bits_f32(y) || (isnan(x) && isnan(y)); }

static void assert_same(const sequence *s, const float *got, const float *wanted, int64_t count, const char *how) {
    for (int64_t i = 0; i < count; i++) {
        if (equal_bits(got[i], wanted[i])) continue;
        int64_t row = i / s->head_dim;
        fail_msg(
            "%s: token %lld head %lld element %lld is %a, by definition %a (heads %lld/%lld, head_dim %lld, window "
            "%lld, %s/%s)",
            how, (long long)(row / s->heads), (long long)(row % s->heads), (long long)(i % s->head_dim), (double)got[i],
            (double)wanted[i], (long long)s->heads, (long long)s->kv_heads, (long long)s->head_dim,
            (long long)s->window, tn_dtype_name(s->k_dtype), tn_dtype_name(s->v_dtype));
    }
}

/* ---- every instruction set, one to three threads ----------------------------------------------------------------- */

static void check_call(const sequence *s, int64_t position, int64_t n) {
    int64_t count = n * s->heads * s->head_dim;
    float *wanted = define_all(s, position, n);
    float *memory = tn_mem_alloc((size_t)(count + 2 * MAX_POINTS) * sizeof *memory);
    assert_non_null(memory);
    for (tn_isa isa = TN_ISA_BASE; isa < TN_ISA_COUNT; isa++) {
        if (!tn_gemm_use(isa)) continue;
        for (int threads = 1; threads <= MAX_THREADS; threads++) {
            if (test_leaves_out(threads, isa == TN_ISA_BASE && TEST_BASE_IS_SLOW)) continue;
            char how[96];
            snprintf(how, sizeof how, "%s, %d threads, n %lld at %lld", tn_isa_name(isa), threads, (long long)n,
                     (long long)position);
            for (int64_t i = 0; i < count + 2 * MAX_POINTS; i++)
                memory[i] = MARK;
            attend(s, position, n, threads, memory + MAX_POINTS);
            assert_same(s, memory + MAX_POINTS, wanted, count, how);
            for (int i = 0; i < MAX_POINTS; i++)
                assert_true(memory[i] == MARK && memory[MAX_POINTS + count + i] == MARK);
        }
    }
    assert_true(tn_gemm_use(tn_cpu().isa));
    tn_mem_free(memory);
    tn_mem_free(wanted);
}

static const tn_dtype dtypes[] = {TN_F32, TN_F16, TN_BF16};

static void every_row_has_the_bits_of_its_definition(void **unused) {
    (void)unused;
    static const int64_t head_dims[] = {1, 5, 8, 64, 80, 128, 300}, groups[] = {1, 2, 3, 7, 40};
    static const int64_t windows[] = {0, 0, 1, 17, 64, 100};
    random_state = 1;
    for (int i = 0; i < 120 / test_every(1, 2); i++) {
        sequence s = {.head_dim = head_dims[random_below(TN_COUNT(head_dims))],
                      .kv_heads = 1 + random_below(3),
                      .window = windows[random_below(TN_COUNT(windows))],
                      .k_dtype = dtypes[random_below(3)],
                      .v_dtype = dtypes[random_below(3)]};
        if (s.head_dim % TN_KV_BLOCK == 0 && i % 3 == 0) s.k_dtype = TN_U8;
        if (s.head_dim % TN_KV_BLOCK == 0 && i % 5 < 2) s.v_dtype = TN_U8;
        s.heads = s.kv_heads * groups[random_below(TN_COUNT(groups))];
        int64_t n = random_below(3) ? 1 + random_below(5) : 1 + random_below(70);
        int64_t position = random_below(4) ? random_below(260) : 0;
        if (s.head_dim * n > 4000) position %= 70;
        s.tokens = position + n;
        make_sequence(&s);
        if (i % 4 == 0) s.scale *= 60; /* weights down to nothing, through all that is subnormal */
        if (i % 3 == 1) s.cap = i % 2 ? 50 : 1.5f;
        append(&s, 0, position);
        check_call(&s, position, n);
        free_sequence(&s);
    }
}

/* Positions around the borders of pages, a token at a time, then long contexts shared out among threads. */
static void a_token_has_the_bits_of_its_definition_at_every_border(void **unused) {
    (void)unused;
    static const int64_t positions[] = {0, 1, 62, 63, 64, 65, 127, 128, 129, 191, 192, 700, 2047};
    random_state = 2;
    for (size_t i = 0; i < TN_COUNT(positions); i++) {
        for (int64_t window = 0; window <= 70; window += 70) {
            sequence s = {.head_dim = 64, .heads = 9, .kv_heads = 3, .k_dtype = TN_F16, .v_dtype = TN_F16};
            s.tokens = positions[i] + 1;
            s.window = window;
            make_sequence(&s);
            append(&s, 0, positions[i]);
            check_call(&s, positions[i], 1);
            free_sequence(&s);
        }
    }
}

/* ---- batches ----------------------------------------------------------------------------------------------------- */

enum { MOST_SEQUENCES = 9 };

/* Sequences of different lengths whose pages lie among each other in one cache. */
typedef struct batch {
    int count;
    sequence each[MOST_SEQUENCES];
    int64_t positions[MOST_SEQUENCES];
    int64_t *pages; /* [count, page_count] */
    float *q, *k, *v;
} batch;

static void make_batch(batch *b, const sequence *like) {
    int64_t page_count = 1 + random_below(5);
    sequence all = *like;
    all.tokens = page_count * b->count * PAGE;
    make_sequence(&all);
    b->pages = tn_mem_alloc((size_t)(all.n_pages) * sizeof *b->pages);
    assert_non_null(b->pages);
    for (int64_t i = 0; i < all.n_pages; i++)
        b->pages[i] = all.pages ? all.pages[i] : i;
    tn_mem_free(all.pages);
    int64_t rows = all.heads * all.head_dim, width = all.kv_heads * all.head_dim;
    for (int i = 0; i < b->count; i++) {
        sequence *s = &b->each[i];
        int64_t first = i * page_count * PAGE;
        *s = all;
        s->pages = b->pages + i * page_count;
        s->page_count = page_count;
        s->q = all.q + first * rows, s->k = all.k + first * width, s->v = all.v + first * width;
        b->positions[i] = 1 + random_below(page_count * PAGE - 1);
    }
    b->q = random_numbers(b->count * rows);
    b->k = random_numbers(b->count * width);
    b->v = random_numbers(b->count * width);
}

static void free_batch(batch *b) {
    sequence all = b->each[0];
    all.pages = b->pages;
    free_sequence(&all);
    tn_mem_free(b->q);
    tn_mem_free(b->k);
    tn_mem_free(b->v);
}

/* Token positions[i] + step of each sequence, as a row each. */
static void gather_rows(const batch *b, int64_t step) {
    const sequence *s = &b->each[0];
    int64_t rows = s->heads * s->head_dim, width = s->kv_heads * s->head_dim;
    for (int i = 0; i < b->count; i++) {
        int64_t at = b->positions[i] + step;
        memcpy(b->q + i * rows, b->each[i].q + at * rows, (size_t)rows * sizeof(float));
        memcpy(b->k + i * width, b->each[i].k + at * width, (size_t)width * sizeof(float));
        memcpy(b->v + i * width, b->each[i].v + at * width, (size_t)width * sizeof(float));
    }
}

/* All but the last token of each sequence alone, the last ones together. */
static void append_batch(batch *b) {
    const sequence *s = &b->each[0];
    int64_t before[MOST_SEQUENCES];
    for (int i = 0; i < b->count; i++) {
        before[i] = b->positions[i] - 1;
        append(&b->each[i], 0, before[i]);
    }
    tn_kv_cache_write_args a = {.n = b->count,
                                .kv_heads = s->kv_heads,
                                .head_dim = s->head_dim,
                                .batch = true,
                                .positions = before,
                                .x_token_stride = s->kv_heads * s->head_dim,
                                .x_head_stride = s->head_dim};
    gather_rows(b, -1);
    a.cache = cache_of(s, true), a.x = b->k;
    tn_kv_cache_write(&a);
    a.cache = cache_of(s, false), a.x = b->v;
    tn_kv_cache_write(&a);
}

static void check_batch(const batch *b, int threads, const float *wanted, float *out) {
    const sequence *s = &b->each[0];
    int64_t width = s->kv_heads * s->head_dim, rows = s->heads * s->head_dim;
    tn_attention_args a = {.n = b->count, .heads = s->heads, .kv_heads = s->kv_heads, .head_dim = s->head_dim};
    a.window = s->window, a.scale = s->scale, a.cap = s->cap;
    a.batch = true, a.positions = b->positions;
    a.q = b->q, a.k = b->k, a.v = b->v, a.out = out;
    a.q_token_stride = a.out_token_stride = rows;
    a.k_token_stride = a.v_token_stride = width;
    a.q_head_stride = a.k_head_stride = a.v_head_stride = a.out_head_stride = s->head_dim;
    a.k_cache = cache_of(s, true), a.v_cache = cache_of(s, false);
    run_with_garbage(&a, threads);
    assert_same(s, out, wanted, b->count * rows, "batch");
}

static void each_sequence_of_a_batch_has_the_bits_of_its_definition(void **unused) {
    (void)unused;
    static const int64_t head_dims[] = {5, 64, 128}, groups[] = {1, 3, 17};
    random_state = 4;
    for (int round = 0; round < 30; round++) {
        sequence like = {.head_dim = head_dims[round % 3],
                         .kv_heads = 1 + random_below(3),
                         .window = round % 4 ? 0 : 70,
                         .cap = round % 5 ? 0 : 3,
                         .k_dtype = dtypes[random_below(3)],
                         .v_dtype = dtypes[random_below(3)]};
        like.heads = like.kv_heads * groups[random_below(3)];
        if (like.head_dim % TN_KV_BLOCK == 0 && round % 2) like.k_dtype = like.v_dtype = TN_U8;
        batch b = {.count = 1 + (int)random_below(MOST_SEQUENCES)};
        make_batch(&b, &like);
        append_batch(&b);
        gather_rows(&b, 0);
        int64_t rows = like.heads * like.head_dim;
        float *wanted = tn_mem_alloc((size_t)(b.count * rows) * sizeof *wanted);
        float *out = tn_mem_alloc((size_t)(b.count * rows) * sizeof *out);
        assert_non_null(wanted);
        assert_non_null(out);
        for (int i = 0; i < b.count; i++)
            for (int64_t h = 0; h < like.heads; h++)
                define(&b.each[i], b.positions[i], h, wanted + i * rows + h * like.head_dim);
        for (tn_isa isa = TN_ISA_BASE; isa < TN_ISA_COUNT; isa++) {
            if (!tn_gemm_use(isa)) continue;
            for (int threads = 1; threads <= MAX_THREADS; threads++)
                if (!test_leaves_out(threads, isa == TN_ISA_BASE && TEST_BASE_IS_SLOW))
                    check_batch(&b, threads, wanted, out);
        }
        assert_true(tn_gemm_use(tn_cpu().isa));
        tn_mem_free(wanted);
        tn_mem_free(out);
        free_batch(&b);
    }
}

/* Three successive tokens of each sequence in one call, as rows with the sequence's pages, and a row without pages
 * between two sequences. */
static void runs_of_a_batch_have_the_bits_of_its_definition(void **unused) {
    (void)unused;
    enum { RUN = 3, SEQUENCES = 3, ROWS = (RUN + 1) * SEQUENCES };
    random_state = 5;
    for (int round = 0; round < 12; round++) {
        sequence like = {.head_dim = round % 2 ? 64 : 5,
                         .kv_heads = 1 + random_below(3),
                         .window = round % 3 ? 0 : 70,
                         .k_dtype = dtypes[random_below(3)],
                         .v_dtype = dtypes[random_below(3)]};
        like.heads = like.kv_heads * (round % 4 ? 3 : 1);
        batch b = {.count = SEQUENCES};
        make_batch(&b, &like);
        const int64_t rows = like.heads * like.head_dim, width = like.kv_heads * like.head_dim;
        const int64_t count = b.each[0].page_count;
        int64_t positions[ROWS], *pages = tn_mem_alloc(ROWS * (size_t)count * sizeof *pages);
        float *q = random_numbers(ROWS * rows), *k = random_numbers(ROWS * width), *v = random_numbers(ROWS * width);
        float *wanted = tn_mem_alloc((size_t)(ROWS * rows) * sizeof *wanted), *out = random_numbers(ROWS * rows);
        assert_non_null(pages);
        assert_non_null(wanted);
        for (int r = 0; r < ROWS; r++) {
            sequence *s = &b.each[r / (RUN + 1)];
            int64_t token = r % (RUN + 1), first = tn_min64(b.positions[r / (RUN + 1)], count * PAGE - RUN);
            if (token == 0) append(s, 0, first);
            for (int64_t i = 0; i < count; i++)
                pages[r * count + i] = token < RUN ? s->pages[i] : -1;
            positions[r] = token < RUN ? first + token : 0;
            if (token == RUN) continue;
            memcpy(q + r * rows, s->q + positions[r] * rows, (size_t)rows * sizeof(float));
            memcpy(k + r * width, s->k + positions[r] * width, (size_t)width * sizeof(float));
            memcpy(v + r * width, s->v + positions[r] * width, (size_t)width * sizeof(float));
            for (int64_t h = 0; h < like.heads; h++)
                define(s, positions[r], h, wanted + r * rows + h * like.head_dim);
        }
        tn_attention_args a = {.n = ROWS, .heads = like.heads, .kv_heads = like.kv_heads, .head_dim = like.head_dim};
        a.window = like.window, a.scale = b.each[0].scale;
        a.batch = a.runs = true, a.positions = positions;
        a.q = q, a.k = k, a.v = v, a.out = out;
        a.q_token_stride = a.out_token_stride = rows;
        a.k_token_stride = a.v_token_stride = width;
        a.q_head_stride = a.k_head_stride = a.v_head_stride = a.out_head_stride = like.head_dim;
        a.k_cache = cache_of(&b.each[0], true), a.v_cache = cache_of(&b.each[0], false);
        a.k_cache.pages = a.v_cache.pages = pages;
        for (tn_isa isa = TN_ISA_BASE; isa < TN_ISA_COUNT; isa++) {
            if (!tn_gemm_use(isa)) continue;
            for (int threads = 1; threads <= MAX_THREADS; threads++) {
                if (test_leaves_out(threads, isa == TN_ISA_BASE && TEST_BASE_IS_SLOW)) continue;
                run_with_garbage(&a, threads);
                for (int i = 0; i < SEQUENCES; i++)
                    assert_same(&b.each[i], out + i * (RUN + 1) * rows, wanted + i * (RUN + 1) * rows, RUN * rows,
                                "run");
            }
        }
        assert_true(tn_gemm_use(tn_cpu().isa));
        float *const own[] = {q, k, v, wanted, out};
        for (size_t i = 0; i < TN_COUNT(own); i++)
            tn_mem_free(own[i]);
        tn_mem_free(pages);
        free_batch(&b);
    }
}

/* Tokens with the same pages whose positions do not follow each other are alone, at the ends of i64 too. */
static void positions_at_the_ends_of_i64_make_no_run(void **unused) {
    (void)unused;
    static const int64_t positions[] = {INT64_MAX, INT64_MIN, INT64_MAX, 0};
    enum { ROWS = TN_COUNT(positions) };
    random_state = 7;
    sequence s = {.head_dim = 5, .heads = 2, .kv_heads = 1, .tokens = PAGE};
    s.k_dtype = s.v_dtype = TN_F32;
    make_sequence(&s);
    const int64_t row = s.heads * s.head_dim, count = s.page_count;
    int64_t *pages = tn_mem_alloc(ROWS * (size_t)count * sizeof *pages);
    float wanted[ROWS * 10], out[ROWS * 10];
    assert_non_null(pages);
    for (int64_t i = 0; i < ROWS * count; i++)
        pages[i] = s.pages ? s.pages[i % count] : i % count;
    tn_attention_args a = {.n = ROWS, .heads = s.heads, .kv_heads = s.kv_heads, .head_dim = s.head_dim};
    a.scale = s.scale, a.batch = true, a.positions = positions;
    a.q = s.q, a.k = s.k, a.v = s.v, a.out = wanted;
    a.q_token_stride = a.out_token_stride = row;
    a.k_token_stride = a.v_token_stride = s.kv_heads * s.head_dim;
    a.q_head_stride = a.k_head_stride = a.v_head_stride = a.out_head_stride = s.head_dim;
    a.k_cache = cache_of(&s, true), a.v_cache = cache_of(&s, false);
    a.k_cache.pages = a.v_cache.pages = pages;
    append(&s, 0, PAGE);
    run_with_garbage(&a, 1);
    a.runs = true, a.out = out;
    run_with_garbage(&a, 1);
    assert_same(&s, out, wanted, ROWS * row, "positions");
    tn_mem_free(pages);
    free_sequence(&s);
}

/* ---- cuts -------------------------------------------------------------------------------------------------------- */

static void cutting_a_prompt_differently_gives_the_same_bits(void **unused) {
    (void)unused;
    random_state = 3;
    for (int i = 0; i < 12; i++) {
        sequence s = {.head_dim = 64, .heads = 6, .kv_heads = 2, .tokens = 150 + random_below(150)};
        s.window = i % 3 ? 0 : 90;
        s.k_dtype = s.v_dtype = dtypes[i % 3];
        make_sequence(&s);
        int64_t row = s.heads * s.head_dim;
        float *whole = tn_mem_zalloc((size_t)(s.tokens * row), sizeof *whole);
        float *pieces = tn_mem_zalloc((size_t)(s.tokens * row), sizeof *pieces);
        assert_true(whole && pieces);
        attend(&s, 0, s.tokens, 2, whole);
        for (int64_t at = 0, n = 0; at < s.tokens; at += n) {
            n = tn_min64(random_below(3) ? 1 + random_below(8) : 1 + random_below(100), s.tokens - at);
            attend(&s, at, n, 1 + (int)random_below(3), pieces + at * row);
            append(&s, at, n); /* after or before: the new tokens are taken from the operands */
        }
        assert_same(&s, pieces, whole, s.tokens * row, "cut");
        tn_mem_free(whole);
        tn_mem_free(pieces);
        free_sequence(&s);
    }
}

/* A NaN or an infinity in a later token changes nothing for those before it, in values and keys. */
static void a_row_does_not_depend_on_keys_that_it_does_not_see(void **unused) {
    (void)unused;
    random_state = 4;
    sequence s = {.head_dim = 64, .heads = 3, .kv_heads = 1, .tokens = 100, .window = 30};
    s.k_dtype = s.v_dtype = TN_F32;
    make_sequence(&s);
    int64_t row = s.heads * s.head_dim;
    float *clean = tn_mem_zalloc((size_t)(s.tokens * row), sizeof *clean);
    float *dirty = tn_mem_zalloc((size_t)(s.tokens * row), sizeof *dirty);
    assert_true(clean && dirty);
    attend(&s, 0, s.tokens, 1, clean);
    for (int64_t e = 0; e < s.head_dim; e++)
        s.v[50 * s.head_dim + e] = INFINITY, s.k[50 * s.head_dim + e] = NAN;
    attend(&s, 0, s.tokens, 1, dirty);
    assert_same(&s, dirty, clean, 50 * row, "before");
    assert_same(&s, dirty + 80 * row, clean + 80 * row, 20 * row, "behind the window");
    for (int64_t i = 50 * row; i < 80 * row; i++)
        assert_true(isnan(dirty[i]));
    tn_mem_free(clean);
    tn_mem_free(dirty);
    free_sequence(&s);
}

/* ---- accuracy ---------------------------------------------------------------------------------------------------- */

/* Softmax attention in f64 on the rounded keys and values. Weights are off by the error of a score: at most
 * (d + 2) · 2^-24 · scale · Σ|q·k| relative, and a few units for exp; sums add 64 roundings a chunk, merges three. */
static void results_are_as_near_to_softmax_as_their_roundings_allow(void **unused) {
    (void)unused;
    random_state = 5;
    for (int i = 0; i < 30; i++) {
        sequence s = {.head_dim = 1 + random_below(130), .heads = 2, .kv_heads = 1, .tokens = 1 + random_below(500)};
        s.k_dtype = s.v_dtype = dtypes[i % 3];
        make_sequence(&s);
        int64_t token = s.tokens - 1, d = s.head_dim;
        append(&s, 0, token);
        float *out = tn_mem_alloc((size_t)(s.heads * d) * sizeof *out);
        double *score = tn_mem_alloc((size_t)s.tokens * sizeof *score);
        assert_true(out && score);
        attend(&s, token, 1, 2, out);
        for (int64_t h = 0; h < s.heads; h++) {
            double most = -HUGE_VAL, size = 0, total = 0;
            for (int64_t j = 0; j < s.tokens; j++) {
                double dot = 0, absolute = 0;
                for (int64_t e = 0; e < d; e++) {
                    double x = (double)s.q[(token * s.heads + h) * d + e] * (double)rounded(s.k[j * d + e], s.k_dtype);
                    dot += x, absolute += fabs(x);
                }
                score[j] = dot * (double)s.scale;
                most = fmax(most, score[j]);
                size = fmax(size, absolute * (double)s.scale);
            }
            for (int64_t j = 0; j < s.tokens; j++)
                total += exp(score[j] - most);
            double unit = 0x1p-24, chunks = (double)tn_ceil_div(s.tokens, PAGE);
            double weight_error = 2 * ((double)d + 4) * unit * size + 8 * unit,
                   sum_error = (64 + 3 * chunks + 4) * unit;
            for (int64_t e = 0; e < d; e++) {
                double wanted = 0, absolute = 0;
                for (int64_t j = 0; j < s.tokens; j++) {
                    double x = exp(score[j] - most) / total * (double)rounded(s.v[j * d + e], s.v_dtype);
                    wanted += x, absolute += fabs(x);
                }
                double bound = 2 * (weight_error + sum_error) * absolute + 1e-40;
                double error = fabs((double)out[h * d + e] - wanted);
                if (error > bound)
                    fail_msg("%g instead of %g: error %g, bound %g", (double)out[h * d + e], wanted, error, bound);
            }
        }
        tn_mem_free(out);
        tn_mem_free(score);
        free_sequence(&s);
    }
}

/* ---- special values, hostile tables ------------------------------------------------------------------------------ */

static void overflowing_scores_follow_the_definition(void **unused) {
    (void)unused;
    random_state = 6;
    static const float special[] = {INFINITY, -INFINITY, NAN, 3e38f, -3e38f, 1e-40f, -0.0f};
    for (int i = 0; i < 40; i++) {
        sequence s = {.head_dim = 8, .heads = 2, .kv_heads = 1, .tokens = 140};
        s.k_dtype = s.v_dtype = dtypes[i % 3];
        make_sequence(&s);
        for (int j = 0; j < 6; j++) {
            float *array = j % 3 == 0 ? s.q : j % 3 == 1 ? s.k : s.v;
            array[random_below(s.tokens * s.head_dim)] = special[random_below(TN_COUNT(special))];
        }
        int64_t n = i % 2 ? 1 : 70;
        append(&s, 0, s.tokens - n);
        check_call(&s, s.tokens - n, n);
        free_sequence(&s);
    }
}

/* A chunk whose scores are all -inf weighs nothing beside others; alone it has no weights. */
static void a_chunk_of_minus_infinities_weighs_nothing(void **unused) {
    (void)unused;
    random_state = 9;
    for (int first = 0; first < 3; first++) {
        sequence s = {.head_dim = 8, .heads = 2, .kv_heads = 1, .tokens = 192};
        make_sequence(&s);
        for (int64_t i = 0; i < s.tokens; i++) {
            s.q[i * 16] = s.q[i * 16 + 8] = 1e30f;
            s.k[i * 8] = i / PAGE == first ? -1e30f : 0;
        }
        append(&s, 0, 191);
        check_call(&s, 191, 1);
        float out[16];
        attend(&s, 191, 1, 1, out);
        for (int e = 0; e < 16; e++)
            assert_true(isfinite(out[e]));
        append(&s, 0, 192);
        check_call(&s, 0, 192); /* the first rows see that chunk alone */
        free_sequence(&s);
    }
}

static void pages_that_do_not_exist_are_neither_read_nor_written(void **unused) {
    (void)unused;
    random_state = 7;
    sequence s = {.head_dim = 16, .heads = 2, .kv_heads = 2, .tokens = 200};
    s.k_dtype = s.v_dtype = TN_F16;
    make_sequence(&s);
    tn_mem_free(s.pages);
    int64_t pages[] = {0, -1, INT64_MAX, 1};
    s.n_pages = 2; /* the memory has more */
    s.pages = pages;
    append(&s, 0, 190);
    append(&s, 190, 10);
    const uint16_t *behind = (const uint16_t *)s.k_data + 2 * s.page_stride;
    for (int64_t i = 0; i < s.page_stride; i++)
        assert_int_equal(behind[i], 0xffff);
    int64_t row = s.kv_heads * s.head_dim; /* tokens 64 to 191 count as zeros */
    memset(s.k + 64 * row, 0, (size_t)(128 * row) * sizeof(float));
    memset(s.v + 64 * row, 0, (size_t)(128 * row) * sizeof(float));
    check_call(&s, 195, 5);

    float *out = tn_mem_zalloc((size_t)row, sizeof *out);
    assert_non_null(out);
    static const int64_t positions[] = {INT64_MIN, -1, INT64_MAX, INT64_MAX - 3};
    for (size_t i = 0; i < TN_COUNT(positions); i++) {
        tn_kv_cache_write_args a = {.cache = cache_of(&s, true), .n = 3, .kv_heads = 2, .head_dim = 16};
        a.position = positions[i];
        a.x = s.k;
        a.x_token_stride = row;
        a.x_head_stride = 16;
        tn_kv_cache_write(&a); /* the sanitizer sees a write */
    }
    tn_mem_free(out);
    s.pages = NULL;
    free_sequence(&s);
}

/* What stands in a page is the nearest value of its dtype, and nothing beside the tokens is touched. */
static void appending_rounds_and_writes_tokens_alone(void **unused) {
    (void)unused;
    random_state = 8;
    for (int i = 0; i < 30; i++) {
        sequence s = {.head_dim = 1 + random_below(40), .heads = 1, .kv_heads = 1 + random_below(3), .tokens = 200};
        s.k_dtype = s.v_dtype = dtypes[i % 3];
        make_sequence(&s);
        assert_true(tn_gemm_use(i % 2 ? TN_ISA_BASE : tn_cpu().isa));
        int64_t begin = random_below(150), n = 1 + random_below(50), size = (int64_t)tn_dtype_size(s.k_dtype);
        append(&s, begin, n);
        for (int64_t page = 0; page < s.page_count; page++) {
            const char *data = (const char *)s.k_data + (s.pages ? s.pages[page] : page) * s.page_stride * size;
            for (int64_t e = 0; e < s.kv_heads * PAGE * s.head_dim; e++) {
                int64_t at = e % s.head_dim, token = page * PAGE + e / s.head_dim % PAGE;
                int64_t head = e / s.head_dim / PAGE;
                float x = token < s.tokens ? s.k[(token * s.kv_heads + head) * s.head_dim + at] : 0;
                uint32_t wanted = 0xffffffff, got = 0xffffffff;
                memcpy(&got, data + e * size, (size_t)size);
                if (token >= begin && token < begin + n) {
                    wanted = s.k_dtype == TN_F32   ? kir_bits_f32(x)
                             : s.k_dtype == TN_F16 ? 0xffff0000u | kir_to_f16(x)
                                                   : 0xffff0000u | kir_to_bf16(x);
                }
                assert_int_equal(got, wanted);
            }
        }
        free_sequence(&s);
    }
    assert_true(tn_gemm_use(tn_cpu().isa));
}

/* Scales from zero to beyond f16, and what is not a number. */
static void blocks_hold_any_floats(void **unused) {
    (void)unused;
    static const float scales[] = {0, 1e-45f, 1e-38f, 1e-12f, 1e-6f, 1, 60000, 8e6f, 1e7f, 1e38f};
    float x[TN_KV_BLOCK], y[TN_KV_BLOCK];
    uint8_t block[TN_KV_BLOCK_BYTES];
    random_state = 9;
    for (size_t k = 0; k < TN_COUNT(scales); k++) {
        for (int i = 0; i < TN_KV_BLOCK; i++)
            x[i] = random_real() * scales[k];
        x[7] = -scales[k];
        tn_kv_block_encode(x, block);
        tn_kv_block_decode(block, y);
        float step = scales[k] / 127, most = 127.0f * 65504;
        for (int i = 0; i < TN_KV_BLOCK; i++) {
            float wanted = x[i] > most ? most : x[i] < -most ? -most : x[i];
            float off = fabsf(y[i] - wanted), allowed = step * 0.5f + fabsf(wanted) * 1e-3f + 127 * 0x1p-25f;
            if (!(off <= allowed)) fail_msg("scale %g: %g became %g", (double)scales[k], (double)x[i], (double)y[i]);
        }
    }
    for (int k = 0; k < 2; k++) {
        x[3] = k ? INFINITY : NAN;
        tn_kv_block_encode(x, block);
        tn_kv_block_decode(block, y);
        assert_true(isnan(y[0]) && isnan(y[3]));
    }
}

static void nothing_to_do_is_fine(void **unused) {
    (void)unused;
    tn_attention_args a = {.n = 0, .heads = 3, .kv_heads = 3, .head_dim = 64};
    assert_true(tn_attention_workspace(&a, 2) > 0);
    tn_attention(&a);
    tn_kv_cache_write(&(tn_kv_cache_write_args){.n = 0, .kv_heads = 1, .head_dim = 8});
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_has_the_bits_of_its_definition),
        cmocka_unit_test(each_sequence_of_a_batch_has_the_bits_of_its_definition),
        cmocka_unit_test(runs_of_a_batch_have_the_bits_of_its_definition),
        cmocka_unit_test(positions_at_the_ends_of_i64_make_no_run),
        cmocka_unit_test(a_token_has_the_bits_of_its_definition_at_every_border),
        cmocka_unit_test(cutting_a_prompt_differently_gives_the_same_bits),
        cmocka_unit_test(a_row_does_not_depend_on_keys_that_it_does_not_see),
        cmocka_unit_test(results_are_as_near_to_softmax_as_their_roundings_allow),
        cmocka_unit_test(overflowing_scores_follow_the_definition),
        cmocka_unit_test(a_chunk_of_minus_infinities_weighs_nothing),
        cmocka_unit_test(pages_that_do_not_exist_are_neither_read_nor_written),
        cmocka_unit_test(appending_rounds_and_writes_tokens_alone),
        cmocka_unit_test(blocks_hold_any_floats),
        cmocka_unit_test(nothing_to_do_is_fine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
