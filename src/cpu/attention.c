/* attention.c — causal attention over a paged cache; compiled once per instruction set.
 *
 * The work is divided into blocks: some queries and all heads that share one kv head, so that each chunk of 64 keys is
 * loaded once, widened to f32 and laid out for vectors, for many rows. Scores and sums are then small matrix products
 * in the first-level cache. Every chunk has its own maximum, sum and weighted values, which are merged in ascending
 * order. So a thread may take any run of chunks of a block without changing the bits (cpu_kernels.h has the
 * definition).
 *
 * Prompts have many blocks, and threads take complete ones. A few tokens have one block per kv head: then threads share
 * the chunks, and the results after the first run of a block are stored until all are done. */
#include <string.h>

#include "cpu/attention.h"
#include "cpu/widen.h"

enum {
    BLOCK_ROWS = 96, /* at most, or one query: then bringing a chunk costs a twentieth of what is done with it */
    SPLIT_ROWS = 16, /* up to this many rows, threads share chunks */
    LINE = 64        /* bytes */
};

/* Rows and vectors of a micro-kernel: rows · vectors sums, the vectors of B and one of A must fit into registers. */
#if defined(__x86_64__) && !defined(__AVX2__) /* old processors: small code */
enum { TILE_ROWS = 1 };
#define TILE_HEIGHTS(X) X(1)
#else
enum { TILE_ROWS = 6 };
#define TILE_HEIGHTS(X) X(1) X(2) X(3) X(4) X(5) X(6)
#endif
#if defined(__AVX2__) && !defined(__AVX512F__)
enum { TILE_VECTORS = 2 };
#else
enum { TILE_VECTORS = 4 };
#endif

/* Cost in multiplications: loading a number of keys and of values; minimum work for which a thread is woken (2 µs), for
 * chunks and for numbers that are merged. */
static const double BRING_COST = 7, PART_COST = 5e4, JOIN_COST = 5e4;

/* ---- dtypes of the cache ----------------------------------------------------------------------------------------- */

/* f16, VL numbers at a time: a NaN stays one. */
#if defined(__AVX512F__)
#define HAS_F16 1
VEC_INLINE V load_f16(const uint16_t *h) {
    return (V)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)h));
}
VEC_INLINE void store_f16(uint16_t *h, V x) {
    _mm256_storeu_si256((__m256i *)(void *)h, _mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT));
}
#elif defined(__F16C__)
#define HAS_F16 1
VEC_INLINE V load_f16(const uint16_t *h) {
    return (V)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)h));
}
VEC_INLINE void store_f16(uint16_t *h, V x) {
    _mm_storeu_si128((__m128i *)(void *)h, _mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT));
}
#elif defined(VEC_NEON)
#define HAS_F16 1
VEC_INLINE V load_f16(const uint16_t *h) { return (V)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(h))); }
VEC_INLINE void store_f16(uint16_t *h, V x) { vst1_u16(h, vreinterpret_u16_f16(vcvt_f16_f32((float32x4_t)x))); }
#elif defined(VEC_WASM)
#define HAS_F16 1
VEC_INLINE V load_f16(const uint16_t *h) { return v_f16(h); }
VEC_INLINE void store_f16(uint16_t *h, V x) {
    v_halves halves = v_narrow_f16(x);
    memcpy(h, &halves, sizeof halves);
}
#else
#define HAS_F16 0
#endif

static void decode_blocks(const uint8_t *from, int64_t count, float *restrict to) {
    for (int64_t i = 0; i < count; i += TN_KV_BLOCK, from += TN_KV_BLOCK_BYTES) {
        const int8_t *q = (const int8_t *)from + 2;
        uint16_t h;
        memcpy(&h, from, sizeof h);
        float d = kir_from_f16(h);
        for (int j = 0; j < TN_KV_BLOCK; j++)
            to[i + j] = d * (float)q[j];
    }
}

/* count: for q8_0 a multiple of TN_KV_BLOCK. */
static void widen_paged(const void *from, tn_dtype dtype, int64_t count, float *restrict to) {
    const uint16_t *h = from;
    int64_t i = 0;
    if (dtype == TN_U8) {
        decode_blocks(from, count, to);
    } else if (dtype == TN_F32) {
        memcpy(to, from, (size_t)count * sizeof *to);
    } else if (dtype == TN_BF16) {
        for (; i < count; i++)
            to[i] = kir_from_bf16(h[i]);
    } else {
#if HAS_F16
        for (; i + VL <= count; i += VL)
            v_store(to + i, load_f16(h + i));
        if (i == count) return;
        uint16_t rest[VL] = {0};
        float wide[VL];
        memcpy(rest, h + i, (size_t)(count - i) * sizeof *rest);
        v_store(wide, load_f16(rest));
        memcpy(to + i, wide, (size_t)(count - i) * sizeof *wide);
#else
        for (; i < count; i++)
            to[i] = kir_from_f16(h[i]);
#endif
    }
}

static void narrow(const float *from, tn_dtype dtype, int64_t count, void *restrict to) {
    uint16_t *h = to;
    int64_t i = 0;
    if (dtype == TN_U8) {
        for (; i < count; i += TN_KV_BLOCK)
            tn_kv_block_encode(from + i, (uint8_t *)to + i / TN_KV_BLOCK * TN_KV_BLOCK_BYTES);
    } else if (dtype == TN_F32) {
        memcpy(to, from, (size_t)count * sizeof *from);
    } else if (dtype == TN_BF16) {
        for (; i < count; i++)
            h[i] = kir_to_bf16(from[i]);
    } else {
#if HAS_F16
        for (; i + VL <= count; i += VL)
            store_f16(h + i, v_load(from + i));
        if (i == count) return;
        float rest[VL] = {0};
        uint16_t halves[VL];
        memcpy(rest, from + i, (size_t)(count - i) * sizeof *rest);
        store_f16(halves, v_load(rest));
        memcpy(h + i, halves, (size_t)(count - i) * sizeof *halves);
#else
        for (; i < count; i++)
            h[i] = kir_to_f16(from[i]);
#endif
    }
}

/* ---- small matrix products --------------------------------------------------------------------------------------- */

typedef void product_fn(const product *p);

VEC_INLINE V load_b(const char *b, int j, TN_UNUSED const bool half) {
#if HAS_F16
    if (half) return load_f16((const uint16_t *)(const void *)b + j * VL);
#endif
    return v_load((const float *)(const void *)b + j * VL);
}

VEC_INLINE void tile_run(const product *p, const int rows, const int vectors, const bool half) {
    V sum[TILE_ROWS][TILE_VECTORS];
    VEC_UNROLL for (int i = 0; i < rows; i++) { VEC_UNROLL for (int j = 0; j < vectors; j++) sum[i][j] = v_zero(); }
    if (p->extends) {
        VEC_UNROLL for (int i = 0; i < rows; i++) {
            VEC_UNROLL for (int j = 0; j < vectors; j++) sum[i][j] = v_load(p->c + i * p->c_row + j * VL);
        }
    }
    const float *a = p->a;
    const char *b = p->b;
    const int64_t a_row = p->a_row, a_step = p->a_step, b_row = p->b_row * (half ? 2 : 4);
    const char *ask = p->ask_bytes > 0 ? p->ask : b;
    const int64_t ask_step = p->ask_bytes;
    for (int64_t k = p->steps; k > 0; k--) {
        if (half && vectors > 1) {
            __builtin_prefetch(ask, 0, 2);
            __builtin_prefetch(ask + LINE, 0, 2);
            ask += ask_step;
        }
        V y[TILE_VECTORS];
        VEC_UNROLL for (int j = 0; j < vectors; j++) y[j] = load_b(b, j, half);
        VEC_UNROLL for (int i = 0; i < rows; i++) {
            V x = v_set1(a[i * a_row]);
            VEC_UNROLL for (int j = 0; j < vectors; j++) sum[i][j] = v_fma(x, y[j], sum[i][j]);
        }
        a += a_step;
        b += b_row;
    }
    float *c = p->c;
    VEC_UNROLL for (int i = 0; i < rows; i++, c += p->c_row) {
        VEC_UNROLL for (int j = 0; j < vectors; j++) {
            float *to = c + j * VL;
            v_store(to, p->add ? v_load(to) + sum[i][j] : sum[i][j]);
        }
    }
}

#define TILE_FUNCTIONS(rows)                                                                   \
    static void tile_wide_##rows(const product *p) { tile_run(p, rows, TILE_VECTORS, false); } \
    static void tile_narrow_##rows(const product *p) { tile_run(p, rows, 1, false); }
#define TILE_NAMES(rows) {tile_narrow_##rows, tile_wide_##rows},
TILE_HEIGHTS(TILE_FUNCTIONS)
static product_fn *const tiles[][2] = {{NULL}, TILE_HEIGHTS(TILE_NAMES)};

#if HAS_F16
#define TILE_HALF_FUNCTIONS(rows)                                                                  \
    static void tile_half_wide_##rows(const product *p) { tile_run(p, rows, TILE_VECTORS, true); } \
    static void tile_half_narrow_##rows(const product *p) { tile_run(p, rows, 1, true); }
#define TILE_HALF_NAMES(rows) {tile_half_narrow_##rows, tile_half_wide_##rows},
TILE_HEIGHTS(TILE_HALF_FUNCTIONS)
static product_fn *const tiles_half[][2] = {{NULL}, TILE_HEIGHTS(TILE_HALF_NAMES)};
#else
#define tiles_half tiles
#endif

/* C[rows, columns] = A · B, one chain a result; columns: a multiple of VL. */
void multiply(product p, int64_t rows, int64_t columns) {
    const float *a = p.a;
    const char *b = p.b;
    float *c = p.c;
    int64_t calls = tn_ceil_div(rows, TILE_ROWS) * tn_ceil_div(columns, TILE_VECTORS * VL);
    if (p.ask_bytes > 0) p.ask_bytes = tn_ceil_div(p.ask_bytes, calls * p.steps);
    for (int64_t i = 0, height = 0; i < rows; i += height) {
        int64_t left = rows - i;
        height = left >= 2 * TILE_ROWS || left <= TILE_ROWS ? tn_min64(left, TILE_ROWS) : (left + 1) / 2;
        product_fn *const *run = p.half ? tiles_half[height] : tiles[height];
        p.a = a + i * p.a_row;
        for (int64_t j = 0, wide; j < columns; j += wide ? TILE_VECTORS * VL : VL) {
            wide = columns - j >= TILE_VECTORS * VL;
            p.b = b + j * (p.half ? 2 : 4);
            p.c = c + i * p.c_row + j;
            run[wide](&p);
            p.ask += p.steps * p.ask_bytes;
        }
    }
}

/* ---- pages ------------------------------------------------------------------------------------------------------- */

static int64_t row_bytes_of(tn_dtype dtype, int64_t head_dim) {
    return tn_kv_row(dtype, head_dim) * (int64_t)tn_dtype_size(dtype);
}

/* Address of a kv head's first row in the page of a sequence's chunk; NULL: there is no such page. */
static char *find_page(const tn_kv_cache *cache, int64_t sequence, int64_t chunk, int64_t head, int64_t head_dim) {
    if (chunk < 0 || chunk >= cache->page_count) return NULL;
    int64_t page = cache->pages ? cache->pages[sequence * cache->page_count + chunk] : chunk;
    if (page < 0 || page >= cache->n_pages) return NULL;
    int64_t element = page * cache->page_stride + head * KEYS * tn_kv_row(cache->dtype, head_dim);
    return (char *)cache->data + (size_t)element * tn_dtype_size(cache->dtype);
}

static void append_tokens(void *ctx, int64_t begin, int64_t end, TN_UNUSED int worker) {
    const tn_kv_cache_write_args *x = ctx;
    int64_t row_bytes = row_bytes_of(x->cache.dtype, x->head_dim);
    for (int64_t i = begin; i < end; i++) {
        int64_t place = x->batch ? x->positions[i] : x->position + i;
        if (place < 0) continue;
        for (int64_t head = 0; head < x->kv_heads; head++) {
            char *page = find_page(&x->cache, x->batch ? i : 0, place / KEYS, head, x->head_dim);
            if (!page) break;
            const float *from = x->x + i * x->x_token_stride + head * x->x_head_stride;
            narrow(from, x->cache.dtype, x->head_dim, page + place % KEYS * row_bytes);
        }
    }
}

static void append_paged(const tn_kv_cache_write_args *args) {
    enum { PART_ELEMENTS = 32768 };
    int64_t last;
    if (!args->batch && tn_add_overflow(args->position, args->n, &last)) return;
    int64_t width = tn_max64(args->kv_heads * args->head_dim, 1);
    tn_parallel(args->n, PART_ELEMENTS / width + 1, append_tokens, (void *)(uintptr_t)args);
}

/* ---- the call ---------------------------------------------------------------------------------------------------- */

typedef struct attention {
    const tn_attention_args *args;
    int64_t most;       /* tokens that the pages of a sequence hold */
    int64_t group;      /* heads that share a kv head */
    int64_t width;      /* head_dim, rounded up to whole vectors */
    int64_t queries;    /* of a block, at most */
    int64_t blocks;     /* of one kv head */
    int64_t rows;       /* of a block, at most */
    int64_t units;      /* chunks of all blocks together */
    bool split;         /* threads may share a block */
    size_t part_floats; /* memory of a thread */
    float *states;      /* split: result of the first run of each block … */
    float *waiting;     /* … and the chunks of later runs */
    int64_t *done;      /* split: chunks of each block's first run */
} attention;

/* A block: queries [first, end) of one kv head's heads; row (i - first) · group + h is query i of the h-th head. */
typedef struct block {
    int64_t head, first, end;
    int64_t sequence;         /* whose pages are read */
    int64_t start;            /* the sequence's first query … */
    int64_t position;         /* … and its place, within the pages */
    int64_t chunk, chunks;    /* the first visible chunk, and how many */
    const struct block *next; /* that is computed after this one; NULL: none */
} block;

typedef struct range {
    int64_t begin, end;
} range;

/* Keys that a query sees. */
static range visible_keys(const attention *a, const block *b, int64_t query) {
    int64_t end = b->position + query - b->start + 1, window = a->args->window;
    return (range){window > 0 && window < end ? end - window : 0, end};
}

/* … as places of a chunk; empty where it sees none of them. */
static range visible_places(const attention *a, const block *b, int64_t query, int64_t chunk) {
    range keys = visible_keys(a, b, query);
    return (range){tn_max64(keys.begin - chunk * KEYS, 0), tn_min64(keys.end - chunk * KEYS, KEYS)};
}

/* Queries of a block that see a chunk: a contiguous range, because both ends of a query's range increase with it. */
static range seeing_queries(const attention *a, const block *b, int64_t chunk) {
    range seen = {b->first, b->end};
    while (seen.begin < seen.end && visible_keys(a, b, seen.begin).end <= chunk * KEYS)
        seen.begin++;
    while (seen.begin < seen.end && visible_keys(a, b, seen.end - 1).begin >= (chunk + 1) * KEYS)
        seen.end--;
    return seen;
}

/* The first token of the sequence that token i of a batch belongs to. Positions may be any numbers. */
static int64_t run_of(const tn_attention_args *x, int64_t i) {
    const int64_t count = x->k_cache.page_count, *pages = x->k_cache.pages, *at = x->positions;
    while (x->runs && pages && i > 0 && at[i - 1] < at[i] && at[i - 1] == at[i] - 1 &&
           memcmp(pages + i * count, pages + (i - 1) * count, (size_t)count * sizeof *pages) == 0)
        i--;
    return i;
}

static block block_at(const attention *a, int64_t index) {
    const tn_attention_args *x = a->args;
    block b = {.head = index / a->blocks, .first = index % a->blocks * a->queries};
    b.end = tn_min64(b.first + a->queries, x->n);
    if (x->batch) b.sequence = b.start = run_of(x, b.first);
    b.position = tn_max64(tn_min64(x->batch ? x->positions[b.start] : x->position, a->most), 0);
    b.chunk = visible_keys(a, &b, b.first).begin / KEYS;
    b.chunks = (visible_keys(a, &b, b.end - 1).end - 1) / KEYS + 1 - b.chunk;
    return b;
}

/* Memory that is read later, to be prefetched. */
typedef struct ahead {
    const char *at;
    int64_t bytes;
} ahead;

/* What a chunk reads of a cache. The one behind a block's last is the first of the next block. */
static ahead find_rows(const attention *a, const block *b, int64_t chunk, const tn_kv_cache *cache) {
    bool behind = chunk == b->chunk + b->chunks;
    if (behind && !b->next) return (ahead){"", 0};
    if (behind) b = b->next, chunk = b->chunk;
    const char *page = find_page(cache, b->sequence, chunk, b->head, a->args->head_dim);
    int64_t tokens = tn_min64(b->position - chunk * KEYS, KEYS);
    if (!page || tokens <= 0) return (ahead){"", 0};
    return (ahead){page, tokens * row_bytes_of(cache->dtype, a->args->head_dim)};
}

/* ---- one thread's memory ----------------------------------------------------------------------------------------- */

/* Running results of rows: maximum score, sum of weights, weighted values [rows, width]. */
typedef struct sums {
    float *most, *weight, *value;
} sums;

typedef struct part {
    float *q;            /* [rows, width] */
    float *scores;       /* [rows, KEYS] */
    float *keys;         /* [head_dim, KEYS] */
    float *values;       /* [KEYS, width] */
    float *raw, *nhwc;   /* [VL, width], [head_dim, KEYS] of 16 bits: keys on their way */
    float *own;          /* [KEYS, head_dim] of a cache's dtype */
    float *before, *now; /* [rows]: factors of a merge */
    sums chunk, total;
} part;

static size_t row_floats(const attention *a) { return (size_t)tn_round_up(a->rows, LANES); }

/* Memory handed out piece after piece; without a base it is only counted. */
typedef struct supply {
    float *base;
    size_t used;
} supply;

static float *take_paged(supply *s, size_t floats) {
    float *at = s->base ? s->base + s->used : NULL;
    s->used += (floats + LANES - 1) / LANES * LANES;
    return at;
}

static sums take_sums(const attention *a, supply *s) {
    float *most = take_paged(s, row_floats(a)), *weight = take_paged(s, row_floats(a));
    return (sums){most, weight, take_paged(s, (size_t)(a->rows * a->width))};
}

static size_t part_open(part *p, const attention *a, float *base) {
    supply s = {base, 0};
    size_t width = (size_t)a->width, rows = (size_t)a->rows;
    p->q = take_paged(&s, rows * width);
    p->scores = take_paged(&s, rows * KEYS);
    p->keys = take_paged(&s, width * KEYS);
    p->values = take_paged(&s, width * KEYS);
    p->raw = take_paged(&s, width * VL);
    p->nhwc = take_paged(&s, width * KEYS / 2);
    p->own = take_paged(&s, width * KEYS);
    p->before = take_paged(&s, row_floats(a));
    p->now = take_paged(&s, row_floats(a));
    p->chunk = take_sums(a, &s);
    p->total = take_sums(a, &s);
    return s.used;
}

static float *part_memory(const attention *a, int worker) {
    return (float *)a->args->workspace + (size_t)worker * a->part_floats;
}

static size_t sums_floats(const attention *a) {
    supply s = {NULL, 0};
    take_sums(a, &s);
    return s.used;
}

static sums sums_at(const attention *a, float *base, int64_t index) {
    supply s = {base + (size_t)index * sums_floats(a), 0};
    return take_sums(a, &s);
}

static void clear(const attention *a, sums *s) {
    for (int64_t r = 0; r < a->rows; r++) {
        s->most[r] = -INFINITY;
        s->weight[r] = 0;
    }
    memset(s->value, 0, (size_t)(a->rows * a->width) * sizeof(float));
}

/* ---- bringing a chunk -------------------------------------------------------------------------------------------- */

/* Source of keys or values. */
typedef struct source {
    const tn_kv_cache *cache;
    const float *x;
    int64_t token_stride, head_stride;
} source;

/* The rows of a chunk in the cache's dtype: those below `split` are in its page, the others, which have the same
 * places, in the part's own memory. */
typedef struct page_rows {
    const char *page, *own;
    int64_t split;
} page_rows;

static const char *place_of(const page_rows *r, int64_t row, int64_t row_bytes) {
    return (row < r->split ? r->page : r->own) + row * row_bytes;
}

/* Writes the visible rows `at` that no page has, and those that make `unit` rows with them, to the own memory. */
static page_rows bring_page(const attention *a, part *p, const source *s, const block *b, int64_t chunk, range at,
                            int64_t unit) {
    int64_t d = a->args->head_dim, row_bytes = row_bytes_of(s->cache->dtype, d);
    int64_t cached = tn_max64(tn_min64(b->position - chunk * KEYS, KEYS), 0);
    const char *page = find_page(s->cache, b->sequence, chunk, b->head, d);
    int64_t split = page ? cached / unit * unit : 0;
    char *own = (char *)p->own;
    range old = {tn_max64(at.begin, split), tn_min64(at.end, cached)};
    if (old.begin < old.end) {
        size_t bytes = (size_t)((old.end - old.begin) * row_bytes);
        if (page) memcpy(own + old.begin * row_bytes, page + old.begin * row_bytes, bytes);
        if (!page) memset(own + old.begin * row_bytes, 0, bytes);
    }
    for (int64_t i = tn_max64(at.begin, cached); i < at.end; i++) {
        int64_t token = b->start + chunk * KEYS + i - b->position;
        narrow(s->x + token * s->token_stride + b->head * s->head_stride, s->cache->dtype, d, own + i * row_bytes);
    }
    return (page_rows){page, own, split};
}

#if defined(__AVX2__)
#define HAS_PIECES 1
#if defined(__AVX512F__)
typedef __m512i W;
#else
typedef __m256i W;
#endif

enum { PIECES = VEC_BYTES / 16, PIECE_KEYS = 8, KEY_UNIT = PIECES * PIECE_KEYS }; /* keys transposed at once */

VEC_INLINE __m128i load_piece(const uint16_t *from) { return _mm_loadu_si128((const __m128i *)(const void *)from); }

/* Eight numbers of each of PIECES keys that are PIECE_KEYS apart. */
VEC_INLINE W load_pieces(const uint16_t *from, int64_t row) {
    int64_t next = PIECE_KEYS * row;
#if defined(__AVX512F__)
    W w = _mm512_castsi128_si512(load_piece(from));
    w = _mm512_inserti32x4(w, load_piece(from + next), 1);
    w = _mm512_inserti32x4(w, load_piece(from + 2 * next), 2);
    return _mm512_inserti32x4(w, load_piece(from + 3 * next), 3);
#else
    return _mm256_inserti128_si256(_mm256_castsi128_si256(load_piece(from)), load_piece(from + next), 1);
#endif
}

/* In each 16-byte piece r holds a square of 8 × 8, a row a vector. */
VEC_INLINE void transpose_pieces(W r[8]) {
    W s[8], t[8];
    VEC_UNROLL for (int i = 0; i < 8; i += 2) {
        s[i] = VEC_OP_(unpacklo, epi16)(r[i], r[i + 1]);
        s[i + 1] = VEC_OP_(unpackhi, epi16)(r[i], r[i + 1]);
    }
    VEC_UNROLL for (int i = 0; i < 8; i += 4) {
        VEC_UNROLL for (int j = 0; j < 2; j++) {
            t[i + 2 * j] = VEC_OP_(unpacklo, epi32)(s[i + j], s[i + j + 2]);
            t[i + 2 * j + 1] = VEC_OP_(unpackhi, epi32)(s[i + j], s[i + j + 2]);
        }
    }
    VEC_UNROLL for (int i = 0; i < 4; i++) {
        r[2 * i] = VEC_OP_(unpacklo, epi64)(t[i], t[i + 4]);
        r[2 * i + 1] = VEC_OP_(unpackhi, epi64)(t[i], t[i + 4]);
    }
}

/* Keys of a page of 16-bit numbers, transposed before they are widened: half as many steps. head_dim: a multiple of
 * eight. ask: what is prefetched meanwhile. */
static void put_page(const char *data, range keys, int64_t head_dim, uint16_t *to, ahead ask) {
    const uint16_t *page = (const uint16_t *)(const void *)data;
    int64_t steps = tn_ceil_div(keys.end - keys.begin, KEY_UNIT) * (head_dim / 8);
    int64_t ask_step = steps > 0 ? tn_ceil_div(ask.bytes, steps) : 0;
    for (int64_t i = keys.begin; i < keys.end; i += KEY_UNIT) {
        for (int64_t j = 0; j < head_dim; j += 8, ask.at += ask_step) {
            W r[8];
            for (int64_t l = 0; l < ask_step; l += LINE)
                __builtin_prefetch(ask.at + l);
            VEC_UNROLL for (int l = 0; l < 8; l++) r[l] = load_pieces(page + (i + l) * head_dim + j, head_dim);
            transpose_pieces(r);
            VEC_UNROLL for (int l = 0; l < 8; l++) v_store((float *)(void *)(to + (j + l) * KEYS + i), (V)r[l]);
        }
    }
}
#else
#define HAS_PIECES 0
enum { KEY_UNIT = VL };
#endif

/* A matrix of f32 or f16, with the distance between its rows. From row `split` on, if there is one, it is in `own`. */
typedef struct matrix {
    const void *data;
    int64_t row;
    bool half;
    const void *own;
    int64_t split;
} matrix;

/* Few rows read each number once or twice: f16 is widened then, and not before. */
static bool may_stay_half(const attention *a, const tn_kv_cache *cache) {
    return HAS_F16 && cache->dtype == TN_F16 && a->rows <= 2 * TILE_ROWS;
}

/* A page of keys in columns, a vector of keys at a time. */
static void put_page_of_any(const attention *a, part *p, const page_rows *from, tn_dtype dtype) {
    int64_t d = a->args->head_dim, row_bytes = row_bytes_of(dtype, d);
    for (int64_t i = 0; i < KEYS; i += VL) {
        const char *page = place_of(from, i, row_bytes);
        if (dtype == TN_F32 && d == a->width) {
            put_columns((const float *)(const void *)page, d, d, p->keys + i);
            continue;
        }
        for (int l = 0; l < VL; l++)
            widen_paged(page + l * row_bytes, dtype, d, p->raw + l * a->width);
        put_columns(p->raw, a->width, a->width, p->keys + i);
    }
}

/* Keys in columns: [head_dim, KEYS]. Invisible ones are arbitrary. */
static matrix bring_keys(const attention *a, part *p, const block *b, int64_t chunk, range at) {
    const tn_attention_args *x = a->args;
    source s = {&x->k_cache, x->k, x->k_token_stride, x->k_head_stride};
    page_rows r = bring_page(a, p, &s, b, chunk, at, KEY_UNIT);
#if HAS_PIECES
    if (tn_dtype_size(x->k_cache.dtype) == 2 && x->head_dim % 8 == 0) {
        uint16_t *to = (uint16_t *)(void *)p->nhwc;
        bool half = may_stay_half(a, &x->k_cache);
        ahead later = half ? find_rows(a, b, chunk + 1, &x->k_cache) : find_rows(a, b, chunk, &x->v_cache);
        if (half) later.bytes /= 2;
        put_page(r.page, (range){0, tn_min64(r.split, at.end)}, x->head_dim, to, later);
        put_page(r.own, (range){r.split, at.end}, x->head_dim, to, (ahead){"", 0});
        if (half) return (matrix){.data = p->nhwc, .row = KEYS, .half = true};
        widen_paged(p->nhwc, x->k_cache.dtype, x->head_dim * KEYS, p->keys);
        return (matrix){.data = p->keys, .row = KEYS};
    }
#endif
    put_page_of_any(a, p, &r, x->k_cache.dtype);
    return (matrix){.data = p->keys, .row = KEYS};
}

/* [KEYS, width]: in place if it can be. */
static matrix bring_values(const attention *a, part *p, const block *b, int64_t chunk, range at) {
    const tn_attention_args *x = a->args;
    tn_dtype dtype = x->v_cache.dtype;
    int64_t d = x->head_dim, row_bytes = row_bytes_of(dtype, d);
    source s = {&x->v_cache, x->v, x->v_token_stride, x->v_head_stride};
    page_rows r = bring_page(a, p, &s, b, chunk, at, 1);
    bool half = may_stay_half(a, &x->v_cache);
    if (d == a->width && (half || dtype == TN_F32))
        return (matrix){r.split > 0 ? r.page : r.own, d, half, r.own, r.split};
    for (int64_t i = at.begin, n; i < at.end; i += n) { /* all that follow each other at once, or one */
        n = d != a->width ? 1 : (i < r.split ? tn_min64(r.split, at.end) : at.end) - i;
        widen_paged(place_of(&r, i, row_bytes), dtype, n * d, p->values + i * a->width);
    }
    return (matrix){.data = p->values, .row = a->width};
}

/* ---- softmax of a chunk ------------------------------------------------------------------------------------------ */

static void fill_unseen(float *s, range seen, float x) {
    for (int64_t j = 0; j < seen.begin; j++)
        s[j] = x;
    for (int64_t j = seen.end; j < KEYS; j++)
        s[j] = x;
}

/* Scores of one row, the unseen ones -inf, times `scale` become weights. */
static void soften_row(float *row, float scale, float *most, float *weight) {
    V lane[LANE_VECTORS], factor = v_set1(scale);
    VEC_UNROLL for (int i = 0; i < LANE_VECTORS; i++) lane[i] = v_set1(-INFINITY);
    for (float *s = row; s < row + KEYS; s += LANES) {
        VEC_UNROLL for (int i = 0; i < LANE_VECTORS; i++) {
            V x = v_load(s + i * VL) * factor;
            v_store(s + i * VL, x);
            lane[i] = v_greater(x, lane[i]);
        }
    }
    float m = fold_most(lane);
    V from = v_set1(m == -INFINITY ? 0 : m);
    VEC_UNROLL for (int i = 0; i < LANE_VECTORS; i++) lane[i] = v_zero();
    for (float *s = row; s < row + KEYS; s += LANES) {
        VEC_UNROLL for (int i = 0; i < LANE_VECTORS; i++) {
            V w = v_exp_down(v_load(s + i * VL) - from);
            v_store(s + i * VL, w);
            lane[i] += w;
        }
    }
    *most = m;
    *weight = fold_sum(lane);
}

/* Apart: few models have it, and the loop over all others' scores stays small. */
__attribute__((noinline)) static void bend(float *row, range seen, float cap) {
    for (int64_t j = seen.begin; j < seen.end; j++)
        row[j] = cap * kir_tanh_f32(row[j] / cap);
}

static void soften(const tn_attention_args *x, float *row, range seen, float *most, float *weight) {
    bool all = seen.begin == 0 && seen.end == KEYS;
    if (all && !(x->cap > 0)) {
        soften_row(row, x->scale, most, weight);
        return;
    }
    V factor = v_set1(x->scale);
    for (int64_t j = 0; j < KEYS; j += VL)
        v_store(row + j, v_load(row + j) * factor);
    if (x->cap > 0) bend(row, seen, x->cap);
    if (!all) fill_unseen(row, seen, -INFINITY);
    soften_row(row, 1, most, weight);
}

/* ---- one chunk of one block -------------------------------------------------------------------------------------- */

static int64_t paged_row_of(const attention *a, const block *b, int64_t query) { return (query - b->first) * a->group; }

static bool same_range(range x, range y) { return x.begin == y.begin && x.end == y.end; }

/* Weighted values, for runs of queries that see the same places. If caches stay in halves, the values that the next
 * chunk reads are prefetched meanwhile. Its keys are prefetched before: the first half while the keys of this chunk are
 * transposed, the second half while scores are computed. */
static void weigh_paged(const attention *a, part *p, const block *b, int64_t chunk, range queries, matrix v,
                        sums *out) {
    ahead later = find_rows(a, b, chunk + 1, &a->args->v_cache);
    int64_t row_bytes = v.row * (v.half ? 2 : 4);
    for (int64_t i = queries.begin, next; i < queries.end; i = next) {
        range seen = visible_places(a, b, i, chunk);
        for (next = i + 1; next < queries.end && same_range(seen, visible_places(a, b, next, chunk));)
            next++;
        int64_t row = paged_row_of(a, b, i);
        product w = {.a = p->scores + row * KEYS + seen.begin,
                     .a_row = KEYS,
                     .a_step = 1,
                     .b = (const char *)v.data + seen.begin * row_bytes,
                     .b_row = v.row,
                     .half = v.half,
                     .ask = later.at,
                     .ask_bytes = later.bytes,
                     .c = out->value + row * a->width,
                     .c_row = a->width,
                     .steps = seen.end - seen.begin};
        int64_t count = (next - i) * a->group, old = v.own ? tn_min64(v.split, seen.end) - seen.begin : w.steps;
        if (old < w.steps) { /* the others are in the own memory */
            product rest = w;
            w.steps = tn_max64(old, 0);
            rest.steps -= w.steps;
            rest.a += w.steps;
            rest.b = (const char *)v.own + (seen.begin + w.steps) * row_bytes;
            rest.ask_bytes = 0;
            rest.extends = w.steps > 0;
            if (w.steps > 0) multiply(w, count, a->width);
            w = rest;
        }
        multiply(w, count, a->width);
    }
}

static void attend_paged(const attention *a, part *p, const block *b, int64_t chunk, sums *out) {
    range queries = seeing_queries(a, b, chunk);
    range keys = {visible_places(a, b, queries.begin, chunk).begin, visible_places(a, b, queries.end - 1, chunk).end};
    int64_t row = paged_row_of(a, b, queries.begin), rows = (queries.end - queries.begin) * a->group;
    matrix k = bring_keys(a, p, b, chunk, keys), v = bring_values(a, p, b, chunk, keys);
    ahead later = find_rows(a, b, chunk + 1, &a->args->k_cache);
    for (int64_t i = 0; i < a->args->head_dim; i += KIR_KSUM) {
        product s = {.a = p->q + row * a->width + i,
                     .a_row = a->width,
                     .a_step = 1,
                     .b = (const char *)k.data + i * k.row * (k.half ? 2 : 4),
                     .b_row = k.row,
                     .half = k.half,
                     .c = p->scores + row * KEYS,
                     .c_row = KEYS,
                     .steps = tn_min64(KIR_KSUM, a->args->head_dim - i),
                     .add = i > 0};
        if (i == 0) s.ask = later.at + later.bytes / 2, s.ask_bytes = later.bytes / 2;
        if (later.bytes == 0 && k.half && (s.ask = tn_parallel_expected(s.steps * LINE))) s.ask_bytes = s.steps * LINE;
        multiply(s, rows, KEYS);
    }
    for (int64_t i = queries.begin, r = row; i < queries.end; i++) {
        range seen = visible_places(a, b, i, chunk);
        for (int64_t h = 0; h < a->group; h++, r++)
            soften(a->args, p->scores + r * KEYS, seen, &out->most[r], &out->weight[r]);
    }
    weigh_paged(a, p, b, chunk, queries, v, out);
}

/* ---- merging ----------------------------------------------------------------------------------------------------- */

static void merge_paged(const attention *a, part *p, const block *b, int64_t chunk, const sums *one, sums *total) {
    range queries = seeing_queries(a, b, chunk);
    int64_t begin = paged_row_of(a, b, queries.begin), end = paged_row_of(a, b, queries.end);
    for (int64_t r0 = begin / LANES * LANES; r0 < end; r0 += LANES) {
        for (int t = 0; t < LANES; t++) {
            float most = greater(total->most[r0 + t], one->most[r0 + t]), from = most == -INFINITY ? 0 : most;
            p->before[r0 + t] = exp_down(total->most[r0 + t] - from);
            p->now[r0 + t] = exp_down(one->most[r0 + t] - from);
        }
    }
    for (int64_t r = begin; r < end; r++) {
        float before = p->before[r], now = p->now[r];
        total->most[r] = greater(total->most[r], one->most[r]);
        total->weight[r] = __builtin_fmaf(one->weight[r], now, total->weight[r] * before);
        float *sum = total->value + r * a->width;
        const float *value = one->value + r * a->width;
        V x = v_set1(before), y = v_set1(now);
        for (int64_t j = 0; j < a->width; j += VL)
            v_store(sum + j, v_fma(v_load(value + j), y, v_load(sum + j) * x));
    }
}

/* Writes the quotients to the result. */
static void finish_paged(const attention *a, const block *b, const sums *total) {
    const tn_attention_args *x = a->args;
    for (int64_t i = b->first; i < b->end; i++) {
        for (int64_t h = 0; h < a->group; h++) {
            int64_t row = paged_row_of(a, b, i) + h;
            float *sum = total->value + row * a->width;
            V weight = v_set1(total->weight[row]);
            for (int64_t j = 0; j < a->width; j += VL)
                v_store(sum + j, v_load(sum + j) / weight);
            float *out = x->out + i * x->out_token_stride + (b->head * a->group + h) * x->out_head_stride;
            memcpy(out, sum, (size_t)x->head_dim * sizeof *out);
        }
    }
}

/* ---- threads ----------------------------------------------------------------------------------------------------- */

static void bring_queries(const attention *a, part *p, const block *b) {
    const tn_attention_args *x = a->args;
    for (int64_t i = b->first; i < b->end; i++) {
        for (int64_t h = 0; h < a->group; h++) {
            const float *q = x->q + i * x->q_token_stride + (b->head * a->group + h) * x->q_head_stride;
            memcpy(p->q + (paged_row_of(a, b, i) + h) * a->width, q, (size_t)x->head_dim * sizeof *q);
        }
    }
}

/* A sink is a score without a value. */
static void start_from_sinks(const attention *a, const block *b, sums *total) {
    int64_t rows = (b->end - b->first) * a->group;
    for (int64_t r = 0; r < rows; r++) {
        total->most[r] = a->args->sinks[b->head * a->group + r % a->group];
        total->weight[r] = 1;
    }
}

/* Chunks of a block, whose first unit is `unit`. The run from the block's first chunk on is merged; if it is not the
 * whole block, its result is stored. Each chunk of a later run is stored separately. */
static void run_block(const attention *a, part *p, int64_t index, const block *b, int64_t unit, range run) {
    bring_queries(a, p, b);
    if (run.begin > 0) {
        for (int64_t c = run.begin; c < run.end; c++) {
            sums one = sums_at(a, a->waiting, unit + c);
            attend_paged(a, p, b, b->chunk + c, &one);
        }
        return;
    }
    if (a->split) a->done[index] = run.end;
    sums total = run.end == b->chunks ? p->total : sums_at(a, a->states, index);
    clear(a, &total);
    if (a->args->sinks) start_from_sinks(a, b, &total);
    for (int64_t c = 0; c < run.end; c++) {
        attend_paged(a, p, b, b->chunk + c, &p->chunk);
        merge_paged(a, p, b, b->chunk + c, &p->chunk, &total);
    }
    if (run.end == b->chunks) finish_paged(a, b, &total);
}

/* Units [begin, end): a part of a block that is divided; else complete blocks that begin there. */
static void run_units(void *ctx, int64_t begin, int64_t end, int worker) {
    const attention *a = ctx;
    part p;
    part_open(&p, a, part_memory(a, worker));
    clear(a, &p.chunk);
    int64_t count = a->args->kv_heads * a->blocks, unit = 0;
    for (int64_t i = 0; i < count && unit < end; i++) {
        block b = block_at(a, i);
        range run = {tn_max64(begin - unit, 0), tn_min64(end - unit, b.chunks)};
        if (!a->split) run = run.begin == 0 && unit >= begin ? (range){0, b.chunks} : (range){0, 0};
        block next;
        if (i + 1 < count) {
            next = block_at(a, i + 1);
            b.next = &next;
        }
        if (run.begin < run.end) run_block(a, &p, i, &b, unit, run);
        unit += b.chunks;
    }
}

/* Blocks whose chunks were shared out: what waits is merged behind the first run. */
static void join_blocks(void *ctx, int64_t begin, int64_t end, int worker) {
    const attention *a = ctx;
    part p;
    part_open(&p, a, part_memory(a, worker));
    int64_t unit = 0;
    for (int64_t i = 0; i < end; i++) {
        block b = block_at(a, i);
        if (i >= begin && a->done[i] < b.chunks) {
            sums total = sums_at(a, a->states, i);
            for (int64_t c = a->done[i]; c < b.chunks; c++) {
                sums one = sums_at(a, a->waiting, unit + c);
                merge_paged(a, &p, &b, b.chunk + c, &one, &total);
            }
            finish_paged(a, &b, &total);
        }
        unit += b.chunks;
    }
}

/* ---- the whole --------------------------------------------------------------------------------------------------- */

/* Large blocks, but several for each thread. */
static int64_t choose_queries(const attention *a, int threads) {
    const tn_attention_args *x = a->args;
    if (x->batch) return 1;
    if (a->split) return x->n;
    int64_t most = tn_max64(BLOCK_ROWS / a->group, 1), least = tn_max64(2 * TILE_ROWS / a->group, 1);
    int64_t wanted = tn_ceil_div(4 * (int64_t)threads, x->kv_heads);
    return tn_min64(most, tn_max64(tn_ceil_div(x->n, wanted), least));
}

static bool paged_is_empty(const tn_attention_args *x) {
    return x->n <= 0 || x->heads <= 0 || x->kv_heads <= 0 || x->head_dim <= 0;
}

/* Many sequences are blocks enough for all threads; the many heads of one key are a single block for each token. */
static bool must_split(const tn_attention_args *args, int threads) {
    int64_t group = args->heads / args->kv_heads;
    bool few = args->n * args->kv_heads < 4 * (int64_t)threads;
    return args->batch ? group <= SPLIT_ROWS && few : args->n * group <= SPLIT_ROWS || (args->n == 1 && few);
}

static void plan_paged(attention *a, const tn_attention_args *args, int threads, bool split) {
    *a = (attention){.args = args, .group = args->heads / args->kv_heads, .width = tn_round_up(args->head_dim, VL)};
    int64_t pages = tn_min64(args->k_cache.page_count, args->v_cache.page_count);
    a->most = tn_min64(pages, INT32_MAX) * KEYS;
    a->split = split;
    a->queries = choose_queries(a, threads);
    a->blocks = tn_ceil_div(args->n, a->queries);
    a->rows = tn_min64(a->queries, args->n) * a->group;
    part p;
    a->part_floats = part_open(&p, a, NULL);
}

/* Blocks of one thread are largest: what they need is enough for any. */
static size_t workspace(const tn_attention_args *args, int threads) {
    if (paged_is_empty(args)) return 64;
    attention a;
    plan_paged(&a, args, 1, must_split(args, threads));
    size_t floats = (size_t)tn_max64(threads, 1) * a.part_floats;
    if (a.split) {
        size_t blocks = (size_t)(args->kv_heads * a.blocks);
        size_t chunks = (size_t)(tn_max64(args->k_cache.page_count, 0) + tn_ceil_div(args->n, KEYS) + 1);
        if (threads > 1) floats += blocks * (chunks + 1) * sums_floats(&a);
        floats += blocks * (sizeof(int64_t) / sizeof(float));
    }
    return floats * sizeof(float);
}

/* Units per thread: equal shares, unless that is too little to wake a thread for. */
static int64_t choose_grain(const attention *a, int64_t units, int threads) {
    double cost = (2 * (double)a->rows + BRING_COST) * (double)(KEYS * a->width) * (double)units;
    int64_t parts = tn_max64((int64_t)tn_min64(threads, (int64_t)(cost / PART_COST)), 1);
    return tn_ceil_div(units, parts);
}

static void run(const tn_attention_args *args) {
    if (paged_is_empty(args)) return;
    attention a;
    int threads = tn_threads();
    plan_paged(&a, args, threads, must_split(args, threads));
    int64_t count = args->kv_heads * a.blocks, units = 0;
    for (int64_t i = 0; i < count; i++)
        units += block_at(&a, i).chunks;
    float *rest = part_memory(&a, threads);
    a.done = (int64_t *)(void *)rest;
    a.states = rest + count * (int64_t)(sizeof(int64_t) / sizeof(float));
    a.waiting = a.states + (size_t)count * sums_floats(&a);
    tn_parallel(units, choose_grain(&a, units, threads), run_units, &a);
    if (!a.split || threads == 1) return;
    int64_t merged = tn_max64((int64_t)(JOIN_COST / (double)(a.rows * a.width) / (double)units), 1);
    tn_parallel(count, merged, join_blocks, &a);
}

const tn_attention_table VEC_JOIN(tn_attention_table, TN_ISA_SUFFIX) = {run, workspace, append_paged};
