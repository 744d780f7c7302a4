/* sdpa.c — attention over whole tensors, forward and backward; compiled once per instruction set.
 *
 * A block is up to 64 queries of one head, a chunk 64 keys. The scores of a block with all of its chunks fit into the
 * second-level cache, so a row's softmax is computed at once, and nothing of size queries × keys is ever in memory.
 * Chunks at both ends that the mask hides from a whole block are skipped: most of them with several texts in a list.
 * Backward, the weights are computed again from q and k; a thread owns a kv head, so the gradients of its keys and
 * values are added in the order of the blocks, without locks. All products are small ones in cache (attention.h). */
#include <math.h>
#include <string.h>

#include "cpu/attention.h"

enum { ROWS = 64, PIECES_A_THREAD = 4, LINE = 64 / sizeof(float) };

/* Multiplications that make a thread worth waking. */
static const double PART_COST = 8e4;

typedef struct sdpa {
    const tn_sdpa_args *args;
    int64_t group;              /* heads that share a kv head */
    int64_t width, value_width; /* features, rounded up to whole vectors */
    int64_t chunks, blocks;     /* of all keys, of all queries */
    int64_t splits;             /* parts that the queries of a head are cut into */
    size_t part_floats;         /* memory of a thread */
} sdpa;

/* ---- one thread's memory ----------------------------------------------------------------------------------------- */

typedef struct part {
    float *keys, *keys_transposed;     /* [chunks · KEYS, width], and by chunk [width, KEYS] */
    float *values, *values_transposed; /* the same with value_width; forward: no turned ones */
    float *q;                          /* [ROWS, width] */
    float *weights;                    /* by chunk [ROWS, KEYS] */
    float *out;                        /* [ROWS, value_width]; backward: the gradient of it */
    float *lanes;                      /* [ROWS, LANES]: sums of weights */
    float *most, *sum;                 /* [ROWS] */
    /* backward */
    float *out_scaled;   /* [ROWS, value_width]: each row of `out` over its sum of weights */
    float *slope;        /* [ROWS, KEYS]: gradient of the weights, then of the scores */
    float *along;        /* [ROWS]: out · its gradient */
    float *dq, *dk, *dv; /* [ROWS, width], [chunks · KEYS, width], … value_width */
} part;

typedef struct supply {
    float *base;
    size_t used;
} supply;

static float *take_sdpa(supply *s, int64_t floats) {
    float *at = s->base ? s->base + s->used : NULL;
    s->used += (size_t)tn_round_up(floats, LANES);
    return at;
}

static size_t part_open(part *p, const sdpa *a, bool backward, float *base) {
    supply s = {base, 0};
    int64_t keys = a->chunks * KEYS;
    *p = (part){.keys = take_sdpa(&s, keys * a->width), .keys_transposed = take_sdpa(&s, keys * a->width)};
    p->values = take_sdpa(&s, keys * a->value_width);
    p->q = take_sdpa(&s, ROWS * a->width);
    p->weights = take_sdpa(&s, a->chunks * ROWS * KEYS);
    p->out = take_sdpa(&s, ROWS * a->value_width);
    p->lanes = take_sdpa(&s, ROWS * LANES);
    p->most = take_sdpa(&s, ROWS);
    p->sum = take_sdpa(&s, ROWS);
    if (!backward) return s.used;
    p->values_transposed = take_sdpa(&s, keys * a->value_width);
    p->out_scaled = take_sdpa(&s, ROWS * a->value_width);
    p->slope = take_sdpa(&s, ROWS * KEYS);
    p->along = take_sdpa(&s, ROWS);
    p->dq = take_sdpa(&s, ROWS * a->width);
    p->dk = take_sdpa(&s, keys * a->width);
    p->dv = take_sdpa(&s, keys * a->value_width);
    return s.used;
}

/* ---- bringing and taking away ------------------------------------------------------------------------------------ */

static float *place_sdpa(const tn_sdpa_tensor *t, int64_t batch, int64_t head, int64_t row) {
    return t->data + batch * t->batch + head * t->head + row * t->row;
}

VEC_INLINE void copy_row(const float *from, int64_t features, float *to) {
    int64_t c = 0;
    for (; c + VL <= features; c += VL)
        v_store(to + c, v_load(from + c));
    for (; c < features; c++)
        to[c] = from[c];
}

/* `rows` contiguous rows, padded with zeros to complete vectors; rows up to `all` are zeros. Rows may be apart in
 * memory, and the next head's often follow directly: they are prefetched. */
static void bring(const tn_sdpa_tensor *t, const float *from, int64_t rows, int64_t all, int64_t features,
                  int64_t width, float *to) {
    for (int64_t i = 0; i < rows; i++, from += t->row, to += width) {
        for (int64_t c = 0; t->column == 1 && c < features; c += LINE)
            __builtin_prefetch(from + t->head + c);
        if (t->column == 1) copy_row(from, features, to);
        for (int64_t c = 0; t->column != 1 && c < features; c++)
            to[c] = from[c * t->column];
        for (int64_t c = features; c < width; c++)
            to[c] = 0;
    }
    memset(to, 0, (size_t)((all - rows) * width) * sizeof *to);
}

static void take_away(const tn_sdpa_tensor *t, float *to, int64_t rows, int64_t features, int64_t width,
                      const float *from) {
    for (int64_t i = 0; i < rows; i++, from += width, to += t->row)
        copy_row(from, features, to);
}

/* Chunk by chunk, keys become columns. */
static void transpose(const sdpa *a, const float *from, int64_t width, float *to) {
    for (int64_t i = 0; i < tn_round_up(a->args->keys, LANES); i += VL)
        put_columns(from + i * width, width, width, to + i / KEYS * KEYS * width + i % KEYS);
}

static void bring_head(const sdpa *a, part *p, int64_t batch, int64_t kv_head) {
    const tn_sdpa_args *x = a->args;
    int64_t all = tn_round_up(x->keys, LANES);
    bring(&x->k, place_sdpa(&x->k, batch, kv_head, 0), x->keys, all, x->features, a->width, p->keys);
    bring(&x->v, place_sdpa(&x->v, batch, kv_head, 0), x->keys, all, x->value_features, a->value_width, p->values);
    transpose(a, p->keys, a->width, p->keys_transposed);
}

/* ---- weights of a block ------------------------------------------------------------------------------------------ */

typedef struct block {
    int64_t batch, head, first, rows;
    int64_t chunk, chunks; /* the first chunk of keys that one of its queries sees, and the one after the last */
} block;

/* Keys of a chunk; the last one may be shorter. */
static int64_t keys_in(const sdpa *a, int64_t chunk) { return tn_min64(KEYS, a->args->keys - chunk * KEYS); }

/* Whether the mask is -inf for all keys of the chunk and all queries of the block. */
static bool is_hidden(const sdpa *a, const block *b, int64_t chunk) {
    const tn_sdpa_tensor *mask = &a->args->mask;
    int64_t rows = mask->row ? b->rows : 1, keys = mask->column ? keys_in(a, chunk) : 1;
    for (int64_t r = 0; r < rows; r++) {
        const float *m = place_sdpa(mask, b->batch, b->head, b->first + r) + chunk * KEYS * mask->column;
        int seen = 0;
        if (mask->column == 1) /* a loop for vectors */
            for (int64_t j = 0; j < keys; j++)
                seen |= m[j] != -INFINITY;
        for (int64_t j = 0; mask->column != 1 && j < keys; j++)
            seen |= m[j * mask->column] != -INFINITY;
        if (seen) return false;
    }
    return true;
}

static block block_at(const sdpa *a, int64_t batch, int64_t head, int64_t index) {
    const tn_sdpa_args *x = a->args;
    block b = {.batch = batch, .head = head, .first = index * ROWS};
    b.rows = tn_min64(ROWS, x->queries - b.first);
    b.chunks = x->causal ? tn_min64(a->chunks, (b.first + b.rows - 1) / KEYS + 1) : a->chunks;
    while (x->mask.data && b.chunk + 1 < b.chunks && is_hidden(a, &b, b.chunk))
        b.chunk++;
    while (x->mask.data && b.chunk + 1 < b.chunks && is_hidden(a, &b, b.chunks - 1))
        b.chunks--;
    return b;
}

static float *weights_of(const part *p, int64_t chunk) { return p->weights + chunk * ROWS * KEYS; }

/* With those that fill up the lanes: their weights are zeros. More of them than that would be computed for nothing. */
static int64_t wide_keys_in(const sdpa *a, int64_t chunk) { return tn_round_up(keys_in(a, chunk), LANES); }

static void put_mask(const sdpa *a, const block *b, int64_t row, int64_t chunk, float *s) {
    const tn_sdpa_tensor *mask = &a->args->mask;
    const float *m = place_sdpa(mask, b->batch, b->head, b->first + row) + chunk * KEYS * mask->column;
    for (int64_t j = 0, n = keys_in(a, chunk); j < n; j++) {
        float x = m[j * mask->column];
        s[j] = !a->args->hides ? s[j] + x : x == 0 ? s[j] : x;
    }
}

/* A row's products become scores; the greatest so far is kept in its lanes. */
static void score_row(const sdpa *a, const part *p, const block *b, int64_t chunk, int64_t row) {
    float *s = weights_of(p, chunk) + row * KEYS, *most = p->lanes + row * LANES;
    int64_t seen = keys_in(a, chunk), wide = wide_keys_in(a, chunk);
    V scale = v_set1(a->args->scale), lane[LANE_VECTORS];
    for (int64_t j = 0; j < wide; j += VL)
        v_store(s + j, v_load(s + j) * scale);
    if (a->args->mask.data) put_mask(a, b, row, chunk, s);
    if (a->args->causal) seen = tn_max64(0, tn_min64(seen, b->first + row + 1 - chunk * KEYS));
    for (int64_t j = seen; j < wide; j++)
        s[j] = -INFINITY;
    VEC_UNROLL for (int i = 0; i < LANE_VECTORS; i++) lane[i] = v_load(most + i * VL);
    for (int64_t j = 0; j < wide; j += LANES) {
        VEC_UNROLL for (int i = 0; i < LANE_VECTORS; i++) lane[i] = v_greater(v_load(s + j + i * VL), lane[i]);
    }
    VEC_UNROLL for (int i = 0; i < LANE_VECTORS; i++) v_store(most + i * VL, lane[i]);
}

static void score_chunk(const sdpa *a, const part *p, const block *b, int64_t chunk) {
    const float *keys = p->keys_transposed + chunk * KEYS * a->width;
    for (int64_t i = 0; i < a->args->features; i += KIR_KSUM) {
        product s = {.a = p->q + i,
                     .a_row = a->width,
                     .a_step = 1,
                     .b = keys + i * KEYS,
                     .b_row = KEYS,
                     .c = weights_of(p, chunk),
                     .c_row = KEYS,
                     .steps = tn_min64(KIR_KSUM, a->args->features - i),
                     .add = i > 0};
        multiply(s, b->rows, wide_keys_in(a, chunk));
    }
    for (int64_t r = 0; r < b->rows; r++)
        score_row(a, p, b, chunk, r);
}

static void find_most(const part *p, const block *b) {
    for (int64_t r = 0; r < b->rows; r++) {
        V lane[LANE_VECTORS];
        VEC_UNROLL for (int i = 0; i < LANE_VECTORS; i++) lane[i] = v_load(p->lanes + r * LANES + i * VL);
        p->most[r] = fold_most(lane);
        VEC_UNROLL for (int i = 0; i < LANE_VECTORS; i++) v_store(p->lanes + r * LANES + i * VL, v_zero());
    }
}

/* Scores become weights, and are added up in their row's lanes. */
static void weigh_chunk(const sdpa *a, const part *p, const block *b, int64_t chunk) {
    int64_t wide = wide_keys_in(a, chunk);
    for (int64_t r = 0; r < b->rows; r++) {
        float *s = weights_of(p, chunk) + r * KEYS, *sum = p->lanes + r * LANES;
        V from = v_set1(p->most[r] == -INFINITY ? 0 : p->most[r]), lane[LANE_VECTORS];
        VEC_UNROLL for (int i = 0; i < LANE_VECTORS; i++) lane[i] = v_load(sum + i * VL);
        for (float *end = s + wide; s < end; s += LANES) {
            VEC_UNROLL for (int i = 0; i < LANE_VECTORS; i++) {
                V w = v_exp_down(v_load(s + i * VL) - from);
                v_store(s + i * VL, w);
                lane[i] += w;
            }
        }
        VEC_UNROLL for (int i = 0; i < LANE_VECTORS; i++) v_store(sum + i * VL, lane[i]);
    }
}

static void find_sums(const part *p, const block *b) {
    for (int64_t r = 0; r < b->rows; r++) {
        V lane[LANE_VECTORS];
        VEC_UNROLL for (int i = 0; i < LANE_VECTORS; i++) lane[i] = v_load(p->lanes + r * LANES + i * VL);
        p->sum[r] = fold_sum(lane);
    }
}

/* Scores of all chunks, and the greatest of each row. */
static void score_block(const sdpa *a, part *p, const block *b) {
    const tn_sdpa_args *x = a->args;
    bring(&x->q, place_sdpa(&x->q, b->batch, b->head, b->first), b->rows, b->rows, x->features, a->width, p->q);
    for (int64_t i = 0; i < b->rows * LANES; i++)
        p->lanes[i] = -INFINITY;
    for (int64_t c = b->chunk; c < b->chunks; c++)
        score_chunk(a, p, b, c);
    find_most(p, b);
}

/* A query that sees nothing and shall be 0. One whose scores are NaN has no greatest either, but NaN as their sum. */
static bool is_blind(const sdpa *a, const part *p, int64_t row) {
    return a->args->blind && p->most[row] == -INFINITY && !isnan(p->sum[row]);
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

static void finish_sdpa(const sdpa *a, const part *p, const block *b) {
    for (int64_t r = 0; r < b->rows; r++) {
        float *out = p->out + r * a->value_width;
        V sum = v_set1(p->sum[r]);
        bool blind = is_blind(a, p, r);
        for (int64_t c = 0; c < a->value_width; c += VL)
            v_store(out + c, blind ? v_zero() : v_load(out + c) / sum);
    }
    const tn_sdpa_args *x = a->args;
    take_away(&x->out, place_sdpa(&x->out, b->batch, b->head, b->first), b->rows, x->value_features, a->value_width,
              p->out);
}

static void attend_block(const sdpa *a, part *p, const block *b) {
    score_block(a, p, b);
    for (int64_t c = b->chunk; c < b->chunks; c++) {
        weigh_chunk(a, p, b, c);
        product o = {.a = weights_of(p, c),
                     .a_row = KEYS,
                     .a_step = 1,
                     .b = p->values + c * KEYS * a->value_width,
                     .b_row = a->value_width,
                     .c = p->out,
                     .c_row = a->value_width,
                     .steps = keys_in(a, c),
                     .add = c > b->chunk};
        multiply(o, b->rows, a->value_width);
    }
    find_sums(p, b);
    finish_sdpa(a, p, b);
}

/* Units: parts of heads. */
static void attend_sdpa(void *ctx, int64_t begin, int64_t end, int worker) {
    const sdpa *a = ctx;
    const tn_sdpa_args *x = a->args;
    part p;
    part_open(&p, a, false, (float *)x->workspace + (size_t)worker * a->part_floats);
    for (int64_t unit = begin; unit < end; unit++) {
        int64_t head = unit / a->splits % x->heads, batch = unit / a->splits / x->heads, cut = unit % a->splits;
        bring_head(a, &p, batch, head / a->group);
        for (int64_t i = a->blocks * cut / a->splits; i < a->blocks * (cut + 1) / a->splits; i++) {
            block b = block_at(a, batch, head, i);
            attend_block(a, &p, &b);
        }
    }
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

static float dot(const float *x, const float *y, int64_t width) {
    V lane[LANE_VECTORS];
    VEC_UNROLL for (int i = 0; i < LANE_VECTORS; i++) lane[i] = v_zero();
    for (int64_t c = 0; c < width; c += VL) {
        V *to = &lane[c / VL % LANE_VECTORS];
        *to = v_fma(v_load(x + c), v_load(y + c), *to);
    }
    return fold_sum(lane);
}

/* The rows' gradients, as they are and divided by their sums of weights, and their products with the results. */
static void bring_gradient(const sdpa *a, part *p, const block *b) {
    const tn_sdpa_args *x = a->args;
    float *result = p->out_scaled; /* for a moment */
    bring(&x->dout, place_sdpa(&x->dout, b->batch, b->head, b->first), b->rows, b->rows, x->value_features,
          a->value_width, p->out);
    bring(&x->out, place_sdpa(&x->out, b->batch, b->head, b->first), b->rows, b->rows, x->value_features,
          a->value_width, result);
    for (int64_t r = 0; r < b->rows; r++) {
        float *own = p->out + r * a->value_width, *scaled = p->out_scaled + r * a->value_width;
        p->along[r] = dot(own, scaled, a->value_width);
        p->sum[r] = is_blind(a, p, r) ? 0 : 1 / p->sum[r];
        V factor = v_set1(p->sum[r]);
        for (int64_t c = 0; c < a->value_width; c += VL)
            v_store(scaled + c, v_load(own + c) * factor);
    }
}

/* Gradients of the scores from those of the weights. */
static void slope_of_scores(const sdpa *a, const part *p, const block *b, int64_t chunk) {
    for (int64_t r = 0; r < b->rows; r++) {
        const float *w = weights_of(p, chunk) + r * KEYS;
        float *s = p->slope + r * KEYS;
        V along = v_set1(p->along[r]), factor = v_set1(a->args->scale * p->sum[r]);
        for (int64_t j = 0; j < wide_keys_in(a, chunk); j += VL)
            v_store(s + j, v_load(w + j) * (v_load(s + j) - along) * factor);
    }
}

/* to[keys, width] += x[rows, KEYS]ᵀ · y[rows, width] */
static void add_transposed(const float *x, const float *y, int64_t width, int64_t rows, int64_t keys, float *to) {
    product t = {.a = x,
                 .a_row = 1,
                 .a_step = KEYS,
                 .b = y,
                 .b_row = width,
                 .c = to,
                 .c_row = width,
                 .steps = rows,
                 .add = true};
    multiply(t, keys, width);
}

static void go_back_chunk(const sdpa *a, part *p, const block *b, int64_t chunk) {
    int64_t keys = keys_in(a, chunk), at = chunk * KEYS;
    add_transposed(weights_of(p, chunk), p->out_scaled, a->value_width, b->rows, keys, p->dv + at * a->value_width);
    for (int64_t i = 0; i < a->args->value_features; i += KIR_KSUM) {
        product w = {.a = p->out + i,
                     .a_row = a->value_width,
                     .a_step = 1,
                     .b = p->values_transposed + at * a->value_width + i * KEYS,
                     .b_row = KEYS,
                     .c = p->slope,
                     .c_row = KEYS,
                     .steps = tn_min64(KIR_KSUM, a->args->value_features - i),
                     .add = i > 0};
        multiply(w, b->rows, wide_keys_in(a, chunk));
    }
    slope_of_scores(a, p, b, chunk);
    add_transposed(p->slope, p->q, a->width, b->rows, keys, p->dk + at * a->width);
    product q = {.a = p->slope,
                 .a_row = KEYS,
                 .a_step = 1,
                 .b = p->keys + at * a->width,
                 .b_row = a->width,
                 .c = p->dq,
                 .c_row = a->width,
                 .steps = keys,
                 .add = chunk > b->chunk};
    multiply(q, b->rows, a->width);
}

static void go_back_block(const sdpa *a, part *p, const block *b) {
    const tn_sdpa_args *x = a->args;
    score_block(a, p, b);
    for (int64_t c = b->chunk; c < b->chunks; c++)
        weigh_chunk(a, p, b, c);
    find_sums(p, b);
    bring_gradient(a, p, b);
    for (int64_t c = b->chunk; c < b->chunks; c++)
        go_back_chunk(a, p, b, c);
    take_away(&x->dq, place_sdpa(&x->dq, b->batch, b->head, b->first), b->rows, x->features, a->width, p->dq);
}

/* Units: kv heads. */
static void go_back(void *ctx, int64_t begin, int64_t end, int worker) {
    const sdpa *a = ctx;
    const tn_sdpa_args *x = a->args;
    part p;
    part_open(&p, a, true, (float *)x->workspace + (size_t)worker * a->part_floats);
    for (int64_t unit = begin; unit < end; unit++) {
        int64_t kv_head = unit % x->kv_heads, batch = unit / x->kv_heads;
        bring_head(a, &p, batch, kv_head);
        transpose(a, p.values, a->value_width, p.values_transposed);
        memset(p.dk, 0, (size_t)(a->chunks * KEYS * a->width) * sizeof *p.dk);
        memset(p.dv, 0, (size_t)(a->chunks * KEYS * a->value_width) * sizeof *p.dv);
        for (int64_t i = 0; i < a->group * a->blocks; i++) {
            block b = block_at(a, batch, kv_head * a->group + i / a->blocks, i % a->blocks);
            go_back_block(a, &p, &b);
        }
        take_away(&x->dk, place_sdpa(&x->dk, batch, kv_head, 0), x->keys, x->features, a->width, p.dk);
        take_away(&x->dv, place_sdpa(&x->dv, batch, kv_head, 0), x->keys, x->value_features, a->value_width, p.dv);
    }
}

/* ---- the whole --------------------------------------------------------------------------------------------------- */

static bool sdpa_is_empty(const tn_sdpa_args *x) {
    return x->batch <= 0 || x->heads <= 0 || x->queries <= 0 || x->keys <= 0 || x->features <= 0 ||
           x->value_features <= 0;
}

/* Forward, a head is cut where there are too few of them to give every thread its share. */
static void plan_sdpa(sdpa *a, const tn_sdpa_args *x, bool backward, int threads) {
    int64_t heads = x->batch * x->heads;
    *a = (sdpa){.args = x, .group = x->heads / x->kv_heads, .splits = 1};
    a->width = tn_round_up(x->features, VL);
    a->value_width = tn_round_up(x->value_features, VL);
    a->chunks = tn_ceil_div(x->keys, KEYS);
    a->blocks = tn_ceil_div(x->queries, ROWS);
    if (heads % threads != 0 || heads < threads)
        a->splits = tn_min64(a->blocks, tn_ceil_div((int64_t)PIECES_A_THREAD * threads, heads));
    part p;
    a->part_floats = part_open(&p, a, backward, NULL);
}

static size_t workspace(const tn_sdpa_args *args, bool backward, int threads) {
    if (sdpa_is_empty(args)) return 64;
    sdpa a;
    plan_sdpa(&a, args, backward, 1);
    return (size_t)threads * a.part_floats * sizeof(float);
}

/* Units that are taken at once. */
static int64_t grain_of(const tn_sdpa_args *x, int64_t units) {
    double cost = (double)(x->batch * x->heads * x->queries) * (double)(x->keys * (x->features + x->value_features));
    return (int64_t)(PART_COST * (double)units / cost) + 1;
}

static void run_sdpa(const tn_sdpa_args *args, bool backward) {
    if (sdpa_is_empty(args)) return;
    sdpa a;
    int threads = tn_threads();
    plan_sdpa(&a, args, backward, threads);
    int64_t units = args->batch * (backward ? args->kv_heads : args->heads * a.splits);
    tn_parallel_shared(units, grain_of(args, units), backward ? go_back : attend_sdpa, &a);
}

const tn_sdpa_table VEC_JOIN(tn_sdpa_table, TN_ISA_SUFFIX) = {run_sdpa, workspace};
