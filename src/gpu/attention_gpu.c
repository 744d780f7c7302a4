/* attention_gpu.c — attention by workgroups: over a paged cache, and over whole tensors. */
#include <math.h>

#include "gpu/gpu.h"

/* ==== paged cache ================================================================================================= */
/* The 64 items are the 64 keys of a chunk while scores are computed, and features of the result while values are
 * summed. A chunk's softmax is computed separately and merged into the result of the chunks before it, in the order of
 * the definition, so the bits are those of the native kernel. A workgroup processes the chunks that its query sees,
 * whose number depends on the position: time grows with the sequence, not with the list of its pages. */

enum { SHIFT = 6, ITEMS = 1 << SHIFT, LANES = 16, MOST_FEATURES = 4 * ITEMS };
_Static_assert((int)ITEMS == (int)TN_PAGE_TOKENS, "an item a key of a page");
_Static_assert((int)MOST_FEATURES <= (int)KIR_KSUM, "a score is one chain");
enum { Q, K, V, K_CACHE, V_CACHE, POSITION, PAGES, SINKS }; /* operands */

static int features_of(const tn_attention_shape *s) { return (int)((s->width + ITEMS - 1) / ITEMS); }

bool tn_attention_workgroup_fits(const tn_attention_shape *s, const tn_group_limits *limits) {
    int64_t bytes = (int64_t)sizeof(float) * (2 * ITEMS + MOST_FEATURES);
    return s->width <= MOST_FEATURES && limits->items >= ITEMS && limits->local_bytes >= bytes;
}

typedef struct maker {
    const tn_attention_shape *s;
    const tn_operand_callbacks *callbacks;
    kir_builder *kb;
    int q, score, weight;               /* workgroup memory */
    kir_val position, first, last;      /* of the sequence so far; the keys that the query sees */
    kir_val first_chunk;                /* that it sees; KIR_NONE: the first of all */
    kir_val page, has_page;             /* of the chunk, and whether the cache has it */
    kir_val most, total;                /* variables: M, L */
    kir_val sum[MOST_FEATURES / ITEMS]; /* O, a feature each */
} maker;

enum { TOKEN, KV_HEAD, GROUP, ITEM, PARALLEL, CHUNK = PARALLEL, FEATURE, KEY, AXES };

static kir_val exponential(const maker *m, kir_val a) { return kir_unary(m->kb, KIR_EXP, a); }

static kir_aff head(const maker *m) {
    kir_aff a = tn_along(KV_HEAD, m->s->heads / m->s->kv_heads);
    a.s[GROUP] = 1;
    return a;
}

/* The item's feature, and whether there is one. */
static kir_aff own_feature(int r) {
    kir_aff a = tn_along(ITEM, 1);
    a.c = r * ITEMS;
    return a;
}

static kir_val is_feature(const maker *m, int r) {
    kir_aff left = own_feature(r);
    left.c -= m->s->width;
    return kir_lt(m->kb, kir_index(m->kb, &left), kir_whole(m->kb, 0));
}

/* ---- keys and values --------------------------------------------------------------------------------------------- */

/* The chunk's number, times `by`. */
static kir_aff chunk_number(const maker *m, int64_t by) {
    kir_aff a = tn_along(CHUNK, by);
    if (m->first_chunk != KIR_NONE)
        a.dyn = by == 1 ? m->first_chunk : kir_mul(m->kb, m->first_chunk, kir_whole(m->kb, by));
    return a;
}

static void find_page(maker *m) {
    kir_aff chunk = chunk_number(m, 1);
    kir_val listed = kir_lt(m->kb, kir_index(m->kb, &chunk), tn_launch_size(m->kb, m->s->page_count));
    m->page = m->callbacks->load(m->callbacks->context, PAGES, &chunk, listed);
    kir_val exists = kir_and(m->kb, kir_le(m->kb, kir_whole(m->kb, 0), m->page),
                             kir_lt(m->kb, m->page, tn_launch_size(m->kb, m->s->n_pages)));
    m->has_page = kir_and(m->kb, listed, exists);
}

/* A token of the chunk: its index in the chunk, and its source. */
typedef struct token {
    kir_aff row;
    kir_val visible, old, fresh;
} token;

static token token_at(const maker *m, const kir_aff *row) {
    token t = {.row = *row};
    kir_aff place = *row, chunk = chunk_number(m, ITEMS);
    place.s[CHUNK] += ITEMS;
    place.dyn = chunk.dyn;
    kir_val number = kir_index(m->kb, &place);
    t.visible = kir_and(m->kb, kir_le(m->kb, m->first, number), kir_le(m->kb, number, m->last));
    t.old = kir_and(m->kb, kir_and(m->kb, t.visible, kir_lt(m->kb, number, m->position)), m->has_page);
    t.fresh = kir_and(m->kb, t.visible, kir_lt(m->kb, m->position, kir_add(m->kb, number, kir_whole(m->kb, 1))));
    return t;
}

/* A feature of its key or value (`fresh`: K or V): 0 where there is none. */
static kir_val feature_of(const maker *m, const token *t, int fresh, const kir_aff *feature, kir_val there) {
    int cache = fresh == K ? K_CACHE : V_CACHE;
    kir_val old = there == KIR_NONE ? t->old : kir_and(m->kb, t->old, there);
    kir_val new = there == KIR_NONE ? t->fresh : kir_and(m->kb, t->fresh, there);
    kir_aff in_cache[4] = {kir_aff_const(0), tn_along(KV_HEAD, 1), t->row, *feature};
    kir_aff in_new[3] = {t->row, tn_along(KV_HEAD, 1), *feature};
    kir_aff chunk = chunk_number(m, ITEMS);
    in_cache[0].dyn = m->page;
    in_new[0].s[CHUNK] += ITEMS;
    in_new[0].dyn = chunk.dyn == KIR_NONE ? kir_neg(m->kb, m->position) : kir_sub(m->kb, chunk.dyn, m->position);
    kir_val a = m->callbacks->load(m->callbacks->context, cache, in_cache, old);
    kir_val b = m->callbacks->load(m->callbacks->context, fresh, in_new, new);
    return kir_select(m->kb, old, a, b); /* what is not loaded is 0 */
}

/* ---- a chunk ----------------------------------------------------------------------------------------------------- */

static kir_val load_local(const maker *m, int buffer, int64_t place) {
    kir_aff at = kir_aff_const(place);
    return kir_load(m->kb, buffer, &at, KIR_NONE);
}

/* scale · (q·k) for the item's key, bent by the cap. */
static kir_val score_of(const maker *m, const token *t) {
    kir_val dot = kir_var(m->kb, kir_real(m->kb, 0));
    kir_aff feature = tn_along(FEATURE, 1);
    kir_loop(m->kb, FEATURE, 1);
    kir_val q = kir_load(m->kb, m->q, &feature, KIR_NONE), k = feature_of(m, t, K, &feature, KIR_NONE);
    kir_set(m->kb, dot, kir_fma(m->kb, q, k, kir_get(m->kb, dot)));
    kir_end(m->kb);
    kir_val score = kir_mul(m->kb, kir_get(m->kb, dot), kir_real(m->kb, (double)m->s->scale));
    if (m->s->cap == 0) return score;
    kir_val cap = kir_real(m->kb, (double)m->s->cap);
    return kir_mul(m->kb, cap, kir_unary(m->kb, KIR_TANH, kir_div(m->kb, score, cap)));
}

static kir_val greatest(const maker *m) {
    kir_val most = load_local(m, m->score, 0);
    for (int j = 1; j < ITEMS; j++)
        most = kir_max(m->kb, most, load_local(m, m->score, j));
    return most;
}

/* Place t is added to lane t % LANES; then lanes by halves. */
static kir_val sum_of_weights(const maker *m) {
    kir_val lane[LANES];
    for (int t = 0; t < ITEMS; t++) {
        kir_val w = load_local(m, m->weight, t);
        lane[t % LANES] = t < LANES ? w : kir_add(m->kb, lane[t % LANES], w);
    }
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int t = 0; t < half; t++)
            lane[t] = kir_add(m->kb, lane[t], lane[t + half]);
    return lane[0];
}

static void sum_values(const maker *m, kir_val *sum) {
    kir_aff row = tn_along(KEY, 1);
    for (int r = 0; r < features_of(m->s); r++)
        sum[r] = kir_var(m->kb, kir_real(m->kb, 0));
    kir_loop(m->kb, KEY, 1);
    token t = token_at(m, &row);
    kir_val weight = kir_load(m->kb, m->weight, &row, KIR_NONE);
    for (int r = 0; r < features_of(m->s); r++) {
        kir_aff feature = own_feature(r);
        kir_val v = feature_of(m, &t, V, &feature, is_feature(m, r)), so_far = kir_get(m->kb, sum[r]);
        kir_set(m->kb, sum[r], kir_select(m->kb, t.visible, kir_fma(m->kb, weight, v, so_far), so_far));
    }
    kir_end(m->kb);
}

static kir_val or_zero(const maker *m, kir_val most) {
    return kir_select(m->kb, kir_eq(m->kb, most, kir_real(m->kb, -INFINITY)), kir_real(m->kb, 0), most);
}

/* Merges a chunk's M, L and O into those so far. */
static void merge_paged(const maker *m, kir_val most, kir_val total, const kir_val *sum) {
    kir_builder *kb = m->kb;
    kir_val before = kir_get(kb, m->most), greater = kir_max(kb, before, most), base = or_zero(m, greater);
    kir_val a = exponential(m, kir_sub(m->kb, before, base)), b = exponential(m, kir_sub(m->kb, most, base));
    kir_val old = kir_get(kb, m->total);
    kir_set(kb, m->total, kir_fma(kb, total, b, kir_mul(m->kb, old, a)));
    for (int r = 0; r < features_of(m->s); r++) {
        kir_val o = kir_get(kb, m->sum[r]);
        kir_set(kb, m->sum[r], kir_fma(kb, kir_get(kb, sum[r]), b, kir_mul(m->kb, o, a)));
    }
    kir_set(kb, m->most, greater);
}

static void do_chunk(maker *m) {
    kir_builder *kb = m->kb;
    kir_aff item = tn_along(ITEM, 1);
    find_page(m);
    token t = token_at(m, &item);
    kir_val score = score_of(m, &t), sum[MOST_FEATURES / ITEMS];
    kir_val counts = kir_and(m->kb, t.visible, kir_eq(kb, score, score));
    kir_store(kb, m->score, &item, kir_select(kb, counts, score, kir_real(m->kb, -INFINITY)), KIR_NONE);
    kir_barrier(kb);
    kir_val most = greatest(m);
    kir_val weight = exponential(m, kir_sub(m->kb, score, or_zero(m, most)));
    kir_store(kb, m->weight, &item, kir_select(kb, t.visible, weight, kir_real(m->kb, 0)), KIR_NONE);
    kir_barrier(kb);
    kir_val total = sum_of_weights(m);
    sum_values(m, sum);
    merge_paged(m, most, total, sum);
}

/* ---- the program ------------------------------------------------------------------------------------------------- */

static kir_val chunk_of(const maker *m, kir_val key) { return kir_shr(m->kb, key, kir_whole(m->kb, SHIFT)); }

/* How many chunks the query sees. */
static kir_val chunks(const maker *m) {
    kir_val end = kir_add(m->kb, chunk_of(m, m->last), kir_whole(m->kb, 1));
    return m->first_chunk == KIR_NONE ? end : kir_sub(m->kb, end, m->first_chunk);
}

static void begin_paged(maker *m) {
    kir_builder *kb = m->kb;
    kir_aff number = tn_along(TOKEN, 1);
    kir_val position = m->callbacks->load(m->callbacks->context, POSITION, NULL, KIR_NONE);
    position = kir_max(kb, position, kir_whole(m->kb, 0));
    m->position = kir_min(kb, position, tn_launch_size(m->kb, m->s->page_count * TN_PAGE_TOKENS));
    m->last = kir_add(kb, m->position, kir_index(kb, &number));
    kir_val since = kir_add(kb, kir_sub(m->kb, m->last, tn_launch_size(m->kb, m->s->window)), kir_whole(m->kb, 1));
    m->first = m->s->window ? kir_max(kb, since, kir_whole(m->kb, 0)) : kir_whole(m->kb, 0);
    m->first_chunk = m->s->window ? chunk_of(m, m->first) : KIR_NONE;
    kir_aff own = head(m);
    kir_val sink = m->s->sinks ? m->callbacks->load(m->callbacks->context, SINKS, &own, KIR_NONE) : KIR_NONE;
    m->most = kir_var(kb, m->s->sinks ? sink : kir_real(m->kb, -INFINITY));
    m->total = kir_var(kb, kir_real(m->kb, m->s->sinks ? 1 : 0));
    for (int r = 0; r < features_of(m->s); r++) {
        kir_aff at[3] = {tn_along(TOKEN, 1), head(m), own_feature(r)}, to = own_feature(r);
        m->sum[r] = kir_var(kb, kir_real(m->kb, 0));
        kir_store(kb, m->q, &to, m->callbacks->load(m->callbacks->context, Q, at, is_feature(m, r)), KIR_NONE);
    }
    kir_barrier(kb);
}

static void append_paged(maker *m) {
    m->callbacks->begin(m->callbacks->context, m->kb);
    m->q = kir_local(m->kb, TN_F32, features_of(m->s) * ITEMS);
    m->score = kir_local(m->kb, TN_F32, ITEMS);
    m->weight = kir_local(m->kb, TN_F32, ITEMS);
    begin_paged(m);
    kir_loop_until(m->kb, CHUNK, chunks(m));
    do_chunk(m);
    kir_end(m->kb);
    kir_val total = kir_get(m->kb, m->total);
    for (int r = 0; r < features_of(m->s); r++) {
        kir_aff at[3] = {tn_along(TOKEN, 1), head(m), own_feature(r)};
        kir_val v = kir_div(m->kb, kir_get(m->kb, m->sum[r]), total);
        m->callbacks->store(m->callbacks->context, at, v, is_feature(m, r));
    }
}

tn_status tn_attention_workgroup(const tn_attention_shape *s, const tn_operand_callbacks *callbacks,
                                 tn_workgroup_program *out) {
    maker m = {.s = s, .callbacks = callbacks};
    int64_t extents[AXES] = {[TOKEN] = s->n,
                             [KV_HEAD] = s->kv_heads,
                             [GROUP] = s->kv_heads ? s->heads / s->kv_heads : 0,
                             [ITEM] = ITEMS,
                             [CHUNK] = s->page_count + (s->n + ITEMS - 1) / ITEMS,
                             [FEATURE] = s->width,
                             [KEY] = ITEMS};
    TRY(kir_begin(PARALLEL, AXES - PARALLEL, extents, &m.kb));
    kir_group(m.kb, 1);
    append_paged(&m);
    return kir_finish(m.kb, &out->program, &out->sizes);
}

/* ==== whole tensors =============================================================================================== */
/* Keys come in chunks of 64. Items form 8 rows of 16; each has four queries and every sixteenth key of a chunk. These
 * keys are a lane of the sum of weights in the definition (cpu_kernels.h), so an item's part of it stays in a variable.
 * The maximum score of a row must be known before its weights, so there are two passes over the chunks, and the first
 * one does not read values. That costs less than storing scores would, nothing of size queries × keys is ever in
 * memory, and both passes share their code. */

enum {
    DOWN = 8,
    ACROSS = 16,
    OWN = 4, /* queries of an item, and its keys in a chunk */
    ROWS = DOWN * OWN,
    KEYS = ACROSS * OWN,
    DEPTH = 16, /* of panels: features of queries and keys, keys of values */
    UNROLLED = DEPTH / OWN,
    Q_LINE = ROWS + 1, /* distance in workgroup memory, so that items access different banks */
    K_LINE = KEYS + 1,
    LANE_LINE = ACROSS + 1,
    BROAD = KEYS, /* features of values in a panel, or twice as many */
    MOST_COLUMNS = 2 * BROAD / ACROSS
};
_Static_assert((int)KEYS == (int)TN_PAGE_TOKENS, "a chunk is what the definition adds up alone");
_Static_assert(ROWS *LANE_LINE <= KEYS * Q_LINE && ROWS * BROAD <= KEYS * Q_LINE, "lanes and results lie over weights");

enum { DENSE_Q, DENSE_K, DENSE_V, MASK }; /* operands */
/* Axes; FOUR and QUARTER are loops of four steps for whatever needs one. */
enum {
    BATCH,
    DENSE_KV_HEAD,
    DENSE_GROUP,
    BLOCK,
    SLICE,
    ROW,
    DENSE_ITEM,
    DENSE_PARALLEL,
    PASS = DENSE_PARALLEL,
    DENSE_CHUNK,
    PANEL,
    FOUR,
    QUARTER,
    DENSE_AXES
};

typedef struct dense_maker {
    const tn_dense_shape *s;
    const tn_operand_callbacks *callbacks;
    kir_builder *kb;
    int columns;                   /* features of the result that an item has */
    int q, kv, weight, row_value;  /* workgroup memory; of rows: the greatest score, behind these the sum of weights */
    kir_val most[OWN], total[OWN]; /* variables: of the item's keys */
} dense_maker;

/* Features of values that a workgroup has room for: others are another workgroup's, with the same weights. */
static int slice_of(int columns) { return columns > OWN ? 2 * BROAD : BROAD; }

static int64_t local_elements(int columns) {
    return DEPTH * (Q_LINE + tn_max64(K_LINE, slice_of(columns))) + KEYS * Q_LINE + 2 * ROWS;
}

/* 0: too little memory. */
static int dense_columns_of(const tn_dense_shape *s, const tn_group_limits *limits) {
    int64_t fours = sizeof(float), wanted = (s->value_width + ACROSS - 1) / ACROSS;
    if (wanted > OWN && local_elements(MOST_COLUMNS) * fours <= limits->local_bytes) return MOST_COLUMNS;
    return local_elements(OWN) * fours <= limits->local_bytes ? (int)tn_min64(wanted, OWN) : 0;
}

bool tn_dense_workgroup_fits(const tn_dense_shape *s, const tn_group_limits *limits) {
    return s->width <= KIR_KSUM && limits->items >= DOWN * ACROSS && dense_columns_of(s, limits) > 0;
}

static kir_val dense_load_local(const dense_maker *m, int buffer, const kir_aff *at) {
    return kir_load(m->kb, buffer, at, KIR_NONE);
}

static kir_aff further(kir_aff a, int64_t by) {
    a.c += by;
    return a;
}

/* Places: queries and keys among all, and where an item begins. */
static kir_aff dense_head(const dense_maker *m, bool of_kv) {
    if (of_kv) return tn_along(DENSE_KV_HEAD, 1);
    kir_aff a = tn_along(DENSE_KV_HEAD, m->s->heads / m->s->kv_heads);
    a.s[DENSE_GROUP] = 1;
    return a;
}

static kir_aff own_query(int i) {
    kir_aff a = tn_along(BLOCK, ROWS);
    a.s[ROW] = OWN;
    return further(a, i);
}

/* In the loop over the keys that it has of a chunk. */
static kir_aff own_key(void) {
    kir_aff a = tn_along(DENSE_CHUNK, KEYS);
    a.s[DENSE_ITEM] = 1;
    a.s[FOUR] = ACROSS;
    return a;
}

/* ---- scores of a chunk ------------------------------------------------------------------------------------------- */

/* Of query i and the first key. */
static kir_aff own_weight(int i) {
    kir_aff a = tn_along(DENSE_ITEM, Q_LINE);
    a.s[ROW] = OWN;
    return further(a, i);
}

/* Items are along features, which are contiguous in memory: one row per pass. Beyond the last feature queries are −0
 * and keys 0, whose product does not change any sum. */
static void fill_scores(const dense_maker *m) {
    kir_aff feature = tn_along(PANEL, DEPTH), query = tn_along(BLOCK, ROWS), key = tn_along(DENSE_CHUNK, KEYS);
    kir_aff to_q = tn_along(DENSE_ITEM, Q_LINE), to_k = tn_along(DENSE_ITEM, K_LINE);
    feature.s[DENSE_ITEM] = 1;
    query.s[ROW] = key.s[ROW] = to_q.s[ROW] = to_k.s[ROW] = 1;
    query.s[FOUR] = key.s[FOUR] = to_q.s[FOUR] = to_k.s[FOUR] = DOWN;
    kir_loop(m->kb, FOUR, 1);
    kir_val there = tn_inside(m->kb, &feature, m->s->width);
    kir_aff at[4] = {tn_along(BATCH, 1), dense_head(m, false), query, feature};
    kir_val v = m->callbacks->load(m->callbacks->context, DENSE_Q, at,
                                   kir_and(m->kb, there, tn_inside(m->kb, &query, m->s->queries)));
    kir_store(m->kb, m->q, &to_q, kir_select(m->kb, there, v, kir_real(m->kb, -0.0)), KIR_NONE);
    for (int half = 0; half < 2; half++) {
        kir_aff row = further(key, (int64_t)half * ROWS), to = further(to_k, (int64_t)half * ROWS);
        kir_aff from[4] = {at[0], dense_head(m, true), row, feature};
        v = m->callbacks->load(m->callbacks->context, DENSE_K, from,
                               kir_and(m->kb, there, tn_inside(m->kb, &row, m->s->keys)));
        kir_store(m->kb, m->kv, &to, v, KIR_NONE);
    }
    kir_end(m->kb);
}

/* sum[i, j] += x[row i of the item] · y[its column j], for a panel: lines of x start at `x_at`, those of y at 0. */
static void multiply_dense(const dense_maker *m, int x, kir_aff x_at, int x_line, int y, int y_line, int columns,
                           const kir_val *sum) {
    kir_val now[OWN * MOST_COLUMNS], b[MOST_COLUMNS];
    x_at.s[ROW] = OWN;
    x_at.s[FOUR] = (int64_t)UNROLLED * x_line;
    kir_loop(m->kb, FOUR, 1);
    for (int e = 0; e < OWN * columns; e++)
        now[e] = kir_get(m->kb, sum[e]);
    for (int step = 0; step < UNROLLED; step++) {
        for (int j = 0; j < columns; j++) {
            kir_aff at = further(tn_along(DENSE_ITEM, 1), (int64_t)step * y_line + (int64_t)j * ACROSS);
            at.s[FOUR] = (int64_t)UNROLLED * y_line;
            b[j] = dense_load_local(m, y, &at);
        }
        for (int i = 0; i < OWN; i++) {
            kir_aff at = further(x_at, (int64_t)step * x_line + i);
            kir_val a = dense_load_local(m, x, &at);
            for (int j = 0; j < columns; j++)
                now[i * columns + j] = kir_fma(m->kb, a, b[j], now[i * columns + j]);
        }
    }
    for (int e = 0; e < OWN * columns; e++)
        kir_set(m->kb, sum[e], now[e]);
    kir_end(m->kb);
}

/* Of the item's query i and the key that the loop is at, from their product. */
static kir_val dense_score_of(const dense_maker *m, int i, kir_val product) {
    kir_builder *kb = m->kb;
    kir_aff query = own_query(i), key = own_key(), beyond = further(key, -i);
    kir_val seen = tn_inside(kb, &key, m->s->keys), s = kir_mul(kb, product, kir_real(m->kb, (double)m->s->scale));
    if (m->s->masked) {
        kir_aff at[4] = {tn_along(BATCH, 1), dense_head(m, false), query, key};
        kir_val there = kir_and(m->kb, seen, tn_inside(kb, &query, m->s->queries));
        kir_val x = m->callbacks->load(m->callbacks->context, MASK, at, there);
        s = !m->s->hides ? kir_add(kb, s, x) : kir_select(kb, kir_eq(kb, x, kir_real(m->kb, 0)), s, x);
    }
    if (m->s->causal) {
        beyond.s[BLOCK] = -ROWS;
        beyond.s[ROW] = -OWN;
        seen = kir_and(m->kb, seen, kir_le(kb, kir_index(kb, &beyond), kir_whole(m->kb, 0)));
    }
    return kir_select(kb, seen, s, kir_real(m->kb, -INFINITY));
}

/* Stores the products of queries and keys where their weights will be. */
static void make_products(const dense_maker *m) {
    kir_val product[OWN * OWN];
    for (int e = 0; e < OWN * OWN; e++)
        product[e] = kir_var(m->kb, kir_real(m->kb, 0));
    kir_loop(m->kb, PANEL, 1);
    fill_scores(m);
    kir_barrier(m->kb);
    multiply_dense(m, m->q, kir_aff_const(0), Q_LINE, m->kv, K_LINE, OWN, product);
    kir_barrier(m->kb);
    kir_end(m->kb);
    for (int e = 0; e < OWN * OWN; e++) {
        kir_aff to = further(own_weight(e / OWN), (int64_t)(e % OWN) * ACROSS * Q_LINE);
        kir_store(m->kb, m->weight, &to, kir_get(m->kb, product[e]), KIR_NONE);
    }
}

/* Chunks that some query of the block sees. */
static void begin_chunks(const dense_maker *m) {
    kir_aff block = tn_along(BLOCK, 1);
    if (!m->s->causal) {
        kir_loop(m->kb, DENSE_CHUNK, 1);
        return;
    }
    kir_val pair = kir_shr(m->kb, kir_index(m->kb, &block), kir_whole(m->kb, KEYS == 2 * ROWS));
    kir_loop_until(m->kb, DENSE_CHUNK, kir_add(m->kb, pair, kir_whole(m->kb, 1)));
}

/* ---- over lanes -------------------------------------------------------------------------------------------------- */

/* The greater number; what is not a number is passed over. */
static kir_val greater(const dense_maker *m, kir_val a, kir_val b) {
    return kir_select(m->kb, kir_lt(m->kb, a, b), b, a);
}

static kir_val fold_dense(const dense_maker *m, bool sum, kir_val *lane) {
    for (int half = ACROSS / 2; half > 0; half /= 2)
        for (int t = 0; t < half; t++)
            lane[t] = sum ? kir_add(m->kb, lane[t], lane[t + half]) : greater(m, lane[t], lane[t + half]);
    return lane[0];
}

/* Combines the items' variables to one value per row: each of four items folds a row's lanes. */
static void fold_rows(const dense_maker *m, bool sum, const kir_val *own) {
    kir_builder *kb = m->kb;
    kir_val lane[ACROSS];
    kir_aff item = tn_along(DENSE_ITEM, 1), row = further(item, sum ? ROWS : 0), from = tn_along(ROW, OWN * LANE_LINE);
    for (int i = 0; i < OWN; i++) {
        kir_aff to = further(item, (int64_t)i * LANE_LINE);
        to.s[ROW] = (int64_t)OWN * LANE_LINE;
        kir_store(kb, m->weight, &to, kir_get(kb, own[i]), KIR_NONE);
    }
    kir_barrier(kb);
    kir_val number = kir_index(kb, &item), which = kir_and(m->kb, number, kir_whole(m->kb, OWN - 1));
    from.dyn = kir_mul(kb, which, kir_whole(m->kb, LANE_LINE));
    for (int t = 0; t < ACROSS; t++) {
        kir_aff at = further(from, t);
        lane[t] = dense_load_local(m, m->weight, &at);
    }
    row.s[ROW] = OWN;
    kir_store(kb, m->row_value, &row, fold_dense(m, sum, lane), kir_lt(kb, number, kir_whole(m->kb, OWN)));
    kir_barrier(kb);
}

/* Of the item's row i. */
static kir_val row_value(const dense_maker *m, bool sum, int i) {
    kir_aff at = further(tn_along(ROW, OWN), i + (sum ? ROWS : 0));
    return dense_load_local(m, m->row_value, &at);
}

/* ---- weights and values ------------------------------------------------------------------------------------------ */

/* `second`: in the second pass, where the maximum scores are known; the first pass drops the weights. */
static void weigh_dense(const dense_maker *m, kir_val second) {
    kir_builder *kb = m->kb;
    make_products(m);
    kir_loop(kb, FOUR, 1);
    for (int i = 0; i < OWN; i++) {
        kir_aff at = own_weight(i);
        at.s[FOUR] = ACROSS * Q_LINE;
        kir_val score = dense_score_of(m, i, dense_load_local(m, m->weight, &at)), so_far = kir_get(kb, m->total[i]);
        kir_val most = row_value(m, false, i), hidden = kir_eq(kb, most, kir_real(m->kb, -INFINITY));
        kir_val w = kir_unary(kb, KIR_EXP, kir_sub(m->kb, score, kir_select(kb, hidden, kir_real(m->kb, 0), most)));
        kir_store(kb, m->weight, &at, w, KIR_NONE);
        kir_set(kb, m->most[i], greater(m, kir_get(kb, m->most[i]), score));
        kir_set(kb, m->total[i], kir_select(kb, second, kir_add(kb, so_far, w), so_far));
    }
    kir_end(kb);
}

/* Beyond the last key values are −0, whose product with a weight of 0 does not change any sum. */
static void fill_values(const dense_maker *m, int slice) {
    kir_aff column = tn_along(SLICE, slice), key = tn_along(DENSE_CHUNK, KEYS), to = tn_along(ROW, slice);
    column.s[DENSE_ITEM] = key.s[ROW] = to.s[DENSE_ITEM] = 1;
    column.s[FOUR] = to.s[FOUR] = ACROSS;
    key.s[QUARTER] = DEPTH;
    kir_loop(m->kb, FOUR, 1);
    for (int e = 0; e < slice / BROAD * (DEPTH / DOWN); e++) {
        int64_t right = (int64_t)(e / 2) * BROAD, down = (int64_t)(e % 2) * DOWN;
        kir_aff c = further(column, right), k = further(key, down), place = further(to, down * slice + right);
        kir_aff at[4] = {tn_along(BATCH, 1), dense_head(m, true), k, c};
        kir_val there = tn_inside(m->kb, &k, m->s->keys);
        kir_val v = m->callbacks->load(m->callbacks->context, DENSE_V, at,
                                       kir_and(m->kb, there, tn_inside(m->kb, &c, m->s->value_width)));
        kir_store(m->kb, m->kv, &place, kir_select(m->kb, there, v, kir_real(m->kb, -0.0)), KIR_NONE);
    }
    kir_end(m->kb);
}

static void dense_sum_values(const dense_maker *m, const kir_val *sum, kir_val second) {
    kir_val chain[OWN * MOST_COLUMNS];
    int own = OWN * m->columns, slice = slice_of(m->columns);
    for (int e = 0; e < own; e++)
        chain[e] = kir_var(m->kb, kir_real(m->kb, 0));
    kir_loop_until(m->kb, QUARTER, kir_select(m->kb, second, kir_whole(m->kb, KEYS / DEPTH), kir_whole(m->kb, 0)));
    fill_values(m, slice);
    kir_barrier(m->kb);
    multiply_dense(m, m->weight, tn_along(QUARTER, DEPTH * Q_LINE), Q_LINE, m->kv, slice, m->columns, chain);
    kir_barrier(m->kb);
    kir_end(m->kb);
    for (int e = 0; e < own; e++) {
        kir_val so_far = kir_get(m->kb, sum[e]), more = kir_add(m->kb, so_far, kir_get(m->kb, chain[e]));
        kir_set(m->kb, sum[e], kir_select(m->kb, second, more, so_far));
    }
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

/* Results go through workgroup memory, so that the epilogue is in the program once per column. */
static void store_results(const dense_maker *m, const kir_val *sum) {
    kir_builder *kb = m->kb;
    fold_rows(m, true, m->total);
    for (int first = 0; first < m->columns; first += OWN) {
        int count = (int)tn_min64(OWN, m->columns - first);
        for (int e = 0; e < OWN * count; e++) {
            int i = e / count, j = e % count;
            kir_val y = kir_div(kb, kir_get(kb, sum[i * m->columns + first + j]), row_value(m, true, i));
            kir_val blind = kir_eq(kb, row_value(m, false, i), kir_real(m->kb, -INFINITY));
            kir_aff to = further(tn_along(DENSE_ITEM, 1), (int64_t)i * BROAD + (int64_t)j * ACROSS);
            to.s[ROW] = OWN * BROAD;
            kir_store(kb, m->weight, &to, m->s->blind ? kir_select(kb, blind, kir_real(m->kb, 0), y) : y, KIR_NONE);
        }
        kir_barrier(kb);
        kir_loop(kb, FOUR, 1);
        for (int j = 0; j < count; j++) {
            kir_aff row = tn_along(BLOCK, ROWS), from = further(tn_along(DENSE_ITEM, 1), (int64_t)j * ACROSS);
            kir_aff column = further(tn_along(SLICE, slice_of(m->columns)), (int64_t)(first + j) * ACROSS);
            row.s[ROW] = column.s[DENSE_ITEM] = 1;
            row.s[FOUR] = DOWN;
            from.s[ROW] = BROAD;
            from.s[FOUR] = DOWN * BROAD;
            kir_aff at[4] = {tn_along(BATCH, 1), dense_head(m, false), row, column};
            kir_val there =
                kir_and(m->kb, tn_inside(kb, &row, m->s->queries), tn_inside(kb, &column, m->s->value_width));
            m->callbacks->store(m->callbacks->context, at, dense_load_local(m, m->weight, &from), there);
        }
        kir_end(kb);
        kir_barrier(kb);
    }
}

static void append_dense(dense_maker *m) {
    kir_val sum[OWN * MOST_COLUMNS];
    m->callbacks->begin(m->callbacks->context, m->kb);
    m->q = kir_local(m->kb, TN_F32, DEPTH * Q_LINE);
    m->kv = kir_local(m->kb, TN_F32, DEPTH * tn_max64(K_LINE, slice_of(m->columns)));
    m->weight = kir_local(m->kb, TN_F32, KEYS * Q_LINE);
    m->row_value = kir_local(m->kb, TN_F32, 2 * ROWS);
    for (int i = 0; i < OWN; i++) {
        m->most[i] = kir_var(m->kb, kir_real(m->kb, -INFINITY));
        m->total[i] = kir_var(m->kb, kir_real(m->kb, 0));
    }
    for (int e = 0; e < OWN * m->columns; e++)
        sum[e] = kir_var(m->kb, kir_real(m->kb, -0.0)); /* the first chain is not added to anything */
    kir_loop(m->kb, PASS, 1);
    kir_aff pass = tn_along(PASS, 1);
    kir_val second = kir_eq(m->kb, kir_index(m->kb, &pass), kir_whole(m->kb, 1));
    fold_rows(m, false, m->most);
    begin_chunks(m);
    weigh_dense(m, second);
    kir_barrier(m->kb);
    dense_sum_values(m, sum, second);
    kir_end(m->kb);
    kir_end(m->kb);
    store_results(m, sum);
}

tn_status tn_dense_workgroup(const tn_dense_shape *s, const tn_group_limits *limits,
                             const tn_operand_callbacks *callbacks, tn_workgroup_program *out) {
    dense_maker m = {.s = s, .callbacks = callbacks, .columns = dense_columns_of(s, limits)};
    int64_t extents[DENSE_AXES] = {[BATCH] = s->batch,
                                   [DENSE_KV_HEAD] = s->kv_heads,
                                   [DENSE_GROUP] = s->kv_heads ? s->heads / s->kv_heads : 0,
                                   [BLOCK] = tn_ceil_div(s->queries, ROWS),
                                   [SLICE] = tn_ceil_div(s->value_width, slice_of(m.columns)),
                                   [ROW] = DOWN,
                                   [DENSE_ITEM] = ACROSS,
                                   [PASS] = 2,
                                   [DENSE_CHUNK] = tn_ceil_div(s->keys, KEYS),
                                   [PANEL] = tn_ceil_div(s->width, DEPTH),
                                   [FOUR] = OWN,
                                   [QUARTER] = KEYS / DEPTH};
    TRY(kir_begin(DENSE_PARALLEL, DENSE_AXES - DENSE_PARALLEL, extents, &m.kb));
    kir_group(m.kb, 2);
    append_dense(&m);
    return kir_finish(m.kb, &out->program, &out->sizes);
}
