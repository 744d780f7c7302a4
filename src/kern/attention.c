/* attention.c — attention over a paged cache, by workgroups: one for each new token and head.
 *
 * The 64 items are the 64 keys of a chunk while scores are made, and features of the result while values are summed. A
 * chunk's softmax is made alone and merged into what the chunks before it yielded, in the order of the definition, so
 * the bits are those of the native kernel. A workgroup goes through the chunks that its query sees, whose number comes
 * from the position: time follows the sequence, not the list of its pages. */
#include "kern/workgroup_kernels.h"

#include <math.h>

enum { SHIFT = 6, ITEMS = 1 << SHIFT, LANES = 16, MOST_FEATURES = 4 * ITEMS };
_Static_assert((int)ITEMS == (int)TN_PAGE_TOKENS, "an item a key of a page");
_Static_assert((int)MOST_FEATURES <= (int)KIR_KSUM, "a score is one chain");
enum { Q, K, V, K_CACHE, V_CACHE, POSITION, PAGES }; /* operands */

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

static kir_val paged_whole(const maker *m, int64_t v) { return kir_const_i(m->kb, KIR_I64, v); }
static kir_val size(const maker *m, int64_t v) {
    kir_aff a = kir_aff_const(v);
    return kir_index(m->kb, &a);
}
static kir_val real(const maker *m, double v) { return kir_const(m->kb, KIR_F32, v); }
static kir_val paged_less(const maker *m, kir_val a, kir_val b) { return kir_binary(m->kb, KIR_LT, a, b); }
static kir_val up_to(const maker *m, kir_val a, kir_val b) { return kir_binary(m->kb, KIR_LE, a, b); }
static kir_val paged_both(const maker *m, kir_val a, kir_val b) { return kir_binary(m->kb, KIR_AND, a, b); }
static kir_val times(const maker *m, kir_val a, kir_val b) { return kir_binary(m->kb, KIR_MUL, a, b); }
static kir_val minus(const maker *m, kir_val a, kir_val b) { return kir_binary(m->kb, KIR_SUB, a, b); }
static kir_val negate_paged(const maker *m, kir_val a) { return kir_unary(m->kb, KIR_NEG, a); }
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
    return paged_less(m, kir_index(m->kb, &left), paged_whole(m, 0));
}

/* ---- keys and values --------------------------------------------------------------------------------------------- */

/* The chunk's number, times `by`. */
static kir_aff chunk_number(const maker *m, int64_t by) {
    kir_aff a = tn_along(CHUNK, by);
    if (m->first_chunk != KIR_NONE) a.dyn = by == 1 ? m->first_chunk : times(m, m->first_chunk, paged_whole(m, by));
    return a;
}

static void find_page(maker *m) {
    kir_aff chunk = chunk_number(m, 1);
    kir_val listed = paged_less(m, kir_index(m->kb, &chunk), size(m, m->s->page_count));
    m->page = m->callbacks->load(m->callbacks->context, PAGES, &chunk, listed);
    kir_val exists =
        paged_both(m, up_to(m, paged_whole(m, 0), m->page), paged_less(m, m->page, size(m, m->s->n_pages)));
    m->has_page = paged_both(m, listed, exists);
}

/* A token of the chunk: its number in the chunk, and where it comes from. */
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
    t.visible = paged_both(m, up_to(m, m->first, number), up_to(m, number, m->last));
    t.old = paged_both(m, paged_both(m, t.visible, paged_less(m, number, m->position)), m->has_page);
    t.fresh =
        paged_both(m, t.visible, paged_less(m, m->position, kir_binary(m->kb, KIR_ADD, number, paged_whole(m, 1))));
    return t;
}

/* A feature of its key or value (`fresh`: K or V): 0 where there is none. */
static kir_val feature_of(const maker *m, const token *t, int fresh, const kir_aff *feature, kir_val there) {
    int cache = fresh == K ? K_CACHE : V_CACHE;
    kir_val old = there == KIR_NONE ? t->old : paged_both(m, t->old, there);
    kir_val new = there == KIR_NONE ? t->fresh : paged_both(m, t->fresh, there);
    kir_aff in_cache[4] = {kir_aff_const(0), tn_along(KV_HEAD, 1), t->row, *feature};
    kir_aff in_new[3] = {t->row, tn_along(KV_HEAD, 1), *feature};
    kir_aff chunk = chunk_number(m, ITEMS);
    in_cache[0].dyn = m->page;
    in_new[0].s[CHUNK] += ITEMS;
    in_new[0].dyn = chunk.dyn == KIR_NONE ? negate_paged(m, m->position) : minus(m, chunk.dyn, m->position);
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
    kir_val dot = kir_var(m->kb, real(m, 0));
    kir_aff feature = tn_along(FEATURE, 1);
    kir_loop(m->kb, FEATURE, 1);
    kir_val q = kir_load(m->kb, m->q, &feature, KIR_NONE), k = feature_of(m, t, K, &feature, KIR_NONE);
    kir_set(m->kb, dot, kir_fma(m->kb, q, k, kir_get(m->kb, dot)));
    kir_end(m->kb);
    kir_val score = times(m, kir_get(m->kb, dot), real(m, (double)m->s->scale));
    if (m->s->cap == 0) return score;
    kir_val cap = real(m, (double)m->s->cap);
    return times(m, cap, kir_unary(m->kb, KIR_TANH, kir_binary(m->kb, KIR_DIV, score, cap)));
}

static kir_val greatest(const maker *m) {
    kir_val most = load_local(m, m->score, 0);
    for (int j = 1; j < ITEMS; j++)
        most = kir_binary(m->kb, KIR_MAX, most, load_local(m, m->score, j));
    return most;
}

/* Place t is added to lane t % LANES; then lanes by halves. */
static kir_val sum_of_weights(const maker *m) {
    kir_val lane[LANES];
    for (int t = 0; t < ITEMS; t++) {
        kir_val w = load_local(m, m->weight, t);
        lane[t % LANES] = t < LANES ? w : kir_binary(m->kb, KIR_ADD, lane[t % LANES], w);
    }
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int t = 0; t < half; t++)
            lane[t] = kir_binary(m->kb, KIR_ADD, lane[t], lane[t + half]);
    return lane[0];
}

static void sum_values(const maker *m, kir_val *sum) {
    kir_aff row = tn_along(KEY, 1);
    for (int r = 0; r < features_of(m->s); r++)
        sum[r] = kir_var(m->kb, real(m, 0));
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
    return kir_select(m->kb, kir_binary(m->kb, KIR_EQ, most, real(m, -INFINITY)), real(m, 0), most);
}

/* Merges a chunk's M, L and O into those so far. */
static void merge_paged(const maker *m, kir_val most, kir_val total, const kir_val *sum) {
    kir_builder *kb = m->kb;
    kir_val before = kir_get(kb, m->most), greater = kir_binary(kb, KIR_MAX, before, most), base = or_zero(m, greater);
    kir_val a = exponential(m, minus(m, before, base)), b = exponential(m, minus(m, most, base));
    kir_val old = kir_get(kb, m->total);
    kir_set(kb, m->total, kir_fma(kb, total, b, times(m, old, a)));
    for (int r = 0; r < features_of(m->s); r++) {
        kir_val o = kir_get(kb, m->sum[r]);
        kir_set(kb, m->sum[r], kir_fma(kb, kir_get(kb, sum[r]), b, times(m, o, a)));
    }
    kir_set(kb, m->most, greater);
}

static void do_chunk(maker *m) {
    kir_builder *kb = m->kb;
    kir_aff item = tn_along(ITEM, 1);
    find_page(m);
    token t = token_at(m, &item);
    kir_val score = score_of(m, &t), sum[MOST_FEATURES / ITEMS];
    kir_val counts = paged_both(m, t.visible, kir_binary(kb, KIR_EQ, score, score));
    kir_store(kb, m->score, &item, kir_select(kb, counts, score, real(m, -INFINITY)), KIR_NONE);
    kir_barrier(kb);
    kir_val most = greatest(m);
    kir_val weight = exponential(m, minus(m, score, or_zero(m, most)));
    kir_store(kb, m->weight, &item, kir_select(kb, t.visible, weight, real(m, 0)), KIR_NONE);
    kir_barrier(kb);
    kir_val total = sum_of_weights(m);
    sum_values(m, sum);
    merge_paged(m, most, total, sum);
}

/* ---- the program ------------------------------------------------------------------------------------------------- */

static kir_val chunk_of(const maker *m, kir_val key) { return kir_binary(m->kb, KIR_SHR, key, paged_whole(m, SHIFT)); }

/* How many chunks the query sees. */
static kir_val chunks(const maker *m) {
    kir_val end = kir_binary(m->kb, KIR_ADD, chunk_of(m, m->last), paged_whole(m, 1));
    return m->first_chunk == KIR_NONE ? end : minus(m, end, m->first_chunk);
}

static void begin_paged(maker *m) {
    kir_builder *kb = m->kb;
    kir_aff number = tn_along(TOKEN, 1);
    kir_val position = m->callbacks->load(m->callbacks->context, POSITION, NULL, KIR_NONE);
    position = kir_binary(kb, KIR_MAX, position, paged_whole(m, 0));
    m->position = kir_binary(kb, KIR_MIN, position, size(m, m->s->page_count * TN_PAGE_TOKENS));
    m->last = kir_binary(kb, KIR_ADD, m->position, kir_index(kb, &number));
    kir_val since = kir_binary(kb, KIR_ADD, minus(m, m->last, size(m, m->s->window)), paged_whole(m, 1));
    m->first = m->s->window ? kir_binary(kb, KIR_MAX, since, paged_whole(m, 0)) : paged_whole(m, 0);
    m->first_chunk = m->s->window ? chunk_of(m, m->first) : KIR_NONE;
    m->most = kir_var(kb, real(m, -INFINITY));
    m->total = kir_var(kb, real(m, 0));
    for (int r = 0; r < features_of(m->s); r++) {
        kir_aff at[3] = {tn_along(TOKEN, 1), head(m), own_feature(r)}, to = own_feature(r);
        m->sum[r] = kir_var(kb, real(m, 0));
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
        kir_val v = kir_binary(m->kb, KIR_DIV, kir_get(m->kb, m->sum[r]), total);
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
