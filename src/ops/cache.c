/* cache.c — keys and values of the tokens so far, kept in pages, and attention that reads them.
 *
 * A cache is state [pages, kv_heads, 64, head_dim]; a table of page numbers says where logical place 0, 64, 128 … lie,
 * so sequences share pages and grow without moving. Attention takes the new tokens' keys and values beside the cache as
 * it was: it needs no append before it, and both fit into one plan, in which the append comes last. The public
 * functions lay their operands out for the kernels (kern.h has the definition) and are those
 * of the primitives behind them. */
#include <math.h>
#include <string.h>

#include "kern/kern.h"
#include "kir/kir_math.h"
#include "ops/common.h"

static bool is_cache_dtype(tn_dtype t) { return t == TN_F32 || t == TN_F16 || t == TN_BF16; }

/* v as a cache of this dtype holds it. */
static double as_cached(tn_dtype t, double v) {
    if (t == TN_F16) return (double)kir_from_f16(kir_to_f16((float)v));
    if (t == TN_BF16) return (double)kir_from_bf16(kir_to_bf16((float)v));
    return v;
}

/* ---- shapes ------------------------------------------------------------------------------------------------------ */

static tn_status check_cache(const tn_infer *c, int input) {
    const tn_node *cache = c->in[input];
    char text[96];
    if (!is_cache_dtype((tn_dtype)cache->dtype))
        return tn_fail(TN_ERR_DTYPE, "%s: the cache is %s; it must be f32, f16 or bf16", c->row->name,
                       tn_dtype_name((tn_dtype)cache->dtype));
    if (cache->rank == 4 && cache->shape[2] == TN_PAGE_TOKENS) return TN_OK;
    return tn_fail(TN_ERR_SHAPE, "%s: the cache must be [pages, kv_heads, %d, head_dim], it is %s", c->row->name,
                   TN_PAGE_TOKENS, tn_shape_text(cache, text, sizeof text));
}

/* Tokens [n, heads, head_dim] of a cache. heads: those of the cache, or (queries) a multiple of them. */
static tn_status check_tokens(const tn_infer *c, int input, const tn_node *cache, bool queries) {
    const tn_node *x = c->in[input];
    char a[96], b[96];
    if (x->dtype != TN_F32)
        return tn_fail(TN_ERR_DTYPE, "%s: input %d is %s; tokens are f32: cast it (tn_cast)", c->row->name, input + 1,
                       tn_dtype_name((tn_dtype)x->dtype));
    int64_t heads = cache->shape[1];
    bool fits = x->rank == 3 && x->shape[2] == cache->shape[3];
    fits = fits && (queries ? heads > 0 && x->shape[1] % heads == 0 : x->shape[1] == heads);
    if (fits) return TN_OK;
    return tn_fail(TN_ERR_SHAPE, "%s: input %d, %s, does not fit to the cache %s: it must be [tokens, %s, head_dim]",
                   c->row->name, input + 1, tn_shape_text(x, a, sizeof a), tn_shape_text(cache, b, sizeof b),
                   queries ? "a multiple of kv_heads" : "kv_heads");
}

static tn_status check_place(const tn_infer *c, int position, int pages) {
    const tn_node *p = c->in[position], *table = c->in[pages];
    char a[96], b[96];
    if (p->dtype != TN_I64 || table->dtype != TN_I64)
        return tn_fail(
            TN_ERR_DTYPE,
            "%s: position and pages must be i64, they are %s and %s (tn_runtime_scalar_int makes a position)",
            c->row->name, tn_dtype_name((tn_dtype)p->dtype), tn_dtype_name((tn_dtype)table->dtype));
    if (p->rank == 0 && table->rank == 1) return TN_OK;
    return tn_fail(TN_ERR_SHAPE, "%s: position must be one number and pages a list, they are %s and %s", c->row->name,
                   tn_shape_text(p, a, sizeof a), tn_shape_text(table, b, sizeof b));
}

/* Are the dims from `first` on laid out one behind the other? */
static bool laid_out_from(const tn_node *x, int first) {
    int64_t offset, stride[TN_MAX_RANK], expected = 1;
    tn_node_layout(x, &offset, stride);
    for (int d = x->rank - 1; d >= first; d--) {
        if (x->shape[d] != 1 && stride[d] != expected) return false;
        expected *= x->shape[d];
    }
    return true;
}

static tn_status need_laid_out(const tn_infer *c, int input, int first) {
    if (laid_out_from(c->in[input], first)) return TN_OK;
    return tn_fail(TN_ERR_SHAPE, "%s: input %d must be contiguous", c->row->name, input + 1);
}

static tn_node *cache_rows_of(tn_build *b, tn_node *x) {
    return x && !laid_out_from(x, x->rank - 1) ? tn_b_contiguous(b, x) : x;
}

/* Element [token, head, ·] of the page that holds a logical place; -1 when there is none. */
static int64_t place_in(const tn_node *cache, const double *pages, int64_t page_count, int64_t token, int64_t head) {
    if (token < 0 || token / TN_PAGE_TOKENS >= page_count) return -1;
    double page = pages[token / TN_PAGE_TOKENS];
    if (!(page >= 0 && page < (double)cache->shape[0])) return -1;
    return (((int64_t)page * cache->shape[1] + head) * TN_PAGE_TOKENS + token % TN_PAGE_TOKENS) * cache->shape[3];
}

/* ---- append ------------------------------------------------------------------------------------------------------ */

enum { APPEND_CACHE, APPEND_X, APPEND_POSITION, APPEND_PAGES };

static tn_status infer_cache_append(tn_infer *c) {
    TRY(check_cache(c, APPEND_CACHE));
    TRY(check_tokens(c, APPEND_X, c->in[APPEND_CACHE], false));
    TRY(check_place(c, APPEND_POSITION, APPEND_PAGES));
    return tn_infer_same(c);
}

static tn_status infer_cache_append_rows(tn_infer *c) {
    TRY(infer_cache_append(c));
    TRY(tn_need_contiguous(c, APPEND_CACHE));
    TRY(need_laid_out(c, APPEND_X, 2));
    return need_laid_out(c, APPEND_PAGES, 0);
}

static tn_node *compose_cache_append(tn_build *b, const tn_node *n) {
    tn_node *cache = tn_b_laid_out(b, n->in[APPEND_CACHE]), *pages = tn_b_laid_out(b, n->in[APPEND_PAGES]);
    return tn_b_cache_append_rows(b, cache, cache_rows_of(b, n->in[APPEND_X]), n->in[APPEND_POSITION], pages);
}

static void reference_cache_append(const tn_reference *r) {
    const tn_node *cache = r->node, *x = r->node->in[APPEND_X];
    int64_t heads = cache->shape[1], width = cache->shape[3], position = (int64_t)r->in[APPEND_POSITION][0];
    memcpy(r->out, r->in[APPEND_CACHE], (size_t)tn_node_numel(cache) * sizeof *r->out);
    for (int64_t i = 0; i < x->shape[0]; i++)
        for (int64_t h = 0; h < heads; h++) {
            int64_t to = place_in(cache, r->in[APPEND_PAGES], r->node->in[APPEND_PAGES]->shape[0], position + i, h);
            for (int64_t k = 0; k < width && to >= 0; k++)
                r->out[to + k] = as_cached((tn_dtype)cache->dtype, r->in[APPEND_X][(i * heads + h) * width + k]);
        }
}

/* cache_append(cache, x, position, pages): the cache [pages, kv_heads, 64, head_dim] (f32, f16 or bf16) with the tokens
 * x [n, kv_heads, head_dim] (f32, rounded) at logical places position, position + 1, …: place t is row t % 64 of page
 * pages[t / 64]. position: one i64 (tn_runtime_scalar_int), pages: a list of i64. What has no page is not written;
 * where a page stands twice in the list, any of the tokens that belong into a row may be there. In place on a state
 * (tn_cache_append_), only these rows are touched; what reads the cache's old value should be recorded before. */
const tn_op_impl tn_impl_cache_append = {
    .keeps_half = true,
    .infer = infer_cache_append,
    .compose = compose_cache_append,
    .cases =
        "types=f32; [3,2,64,4] [2,2,4] []:i64@0..100 [3]:i64@0..2; [2,1,64,3]:f16 [3,1,3] []:i64@62..62 [2]:i64@0..1; "
        "[2,1,64,3]:bf16 [1,1,3] []:i64@5..5 [1]:i64@1..1; [2,1,64,3] [70,1,3] []:i64@-4..-4 [1]:i64@0..0; "
        "[1,1,64,2] [0,1,2] []:i64@0..0 [1]:i64@0..0; error=f16 [2,1,64,3]:i32 [1,1,3] []:i64@0..0 [1]:i64@0..0; "
        "error=head_dim [2,1,32,3] [1,1,3] []:i64@0..0 [1]:i64@0..0; error=kv_heads [2,1,64,3] [1,2,3] []:i64@0..0 "
        "[1]:i64@0..0; "
        "error=i64 [2,1,64,3] [1,1,3] []:f32 [1]:i64@0..0; error=number [2,1,64,3] [1,1,3] [1]:i64@0..0 [1]:i64@0..0"};

/* cache_append_rows(cache, x, position, pages): cache_append on operands that are laid out. */
const tn_op_impl tn_impl_cache_append_rows = {
    .class_ = TN_NATIVE,
    .infer = infer_cache_append_rows,
    .reference = reference_cache_append,
    .cases =
        "types=f32; [3,2,64,4] [2,2,4] []:i64@0..100 [3]:i64@0..2; [2,1,64,3]:f16 [3,1,3] []:i64@62..62 [2]:i64@0..1;"
        "error=f32 [2,1,64,3] [1,1,3]:f64 []:i64@0..0 [1]:i64@0..0"};

/* ---- attention --------------------------------------------------------------------------------------------------- */

enum { ATTEND_Q, ATTEND_K, ATTEND_V, ATTEND_K_CACHE, ATTEND_V_CACHE, ATTEND_POSITION, ATTEND_PAGES };

static tn_status infer_cached_attention(tn_infer *c) {
    const tn_node *keys = c->in[ATTEND_K_CACHE], *values = c->in[ATTEND_V_CACHE], *q = c->in[ATTEND_Q];
    char a[96], b[96];
    TRY(check_cache(c, ATTEND_K_CACHE));
    TRY(check_cache(c, ATTEND_V_CACHE));
    if (memcmp(keys->shape, values->shape, 4 * sizeof *keys->shape) != 0 || keys->dtype != values->dtype)
        return tn_fail(TN_ERR_SHAPE, "%s: the caches %s of %s and %s of %s must be alike", c->row->name,
                       tn_shape_text(keys, a, sizeof a), tn_dtype_name((tn_dtype)keys->dtype),
                       tn_shape_text(values, b, sizeof b), tn_dtype_name((tn_dtype)values->dtype));
    TRY(check_tokens(c, ATTEND_Q, keys, true));
    TRY(check_tokens(c, ATTEND_K, keys, false));
    TRY(check_tokens(c, ATTEND_V, keys, false));
    TRY(check_place(c, ATTEND_POSITION, ATTEND_PAGES));
    if (c->in[ATTEND_K]->shape[0] != q->shape[0] || c->in[ATTEND_V]->shape[0] != q->shape[0])
        return tn_fail(TN_ERR_SHAPE, "%s: q %s, k %s and v must have equally many tokens", c->row->name,
                       tn_shape_text(q, a, sizeof a), tn_shape_text(c->in[ATTEND_K], b, sizeof b));
    if (c->attrs->i[TN_CACHED_ATTENTION_WINDOW] < 0)
        return tn_fail(TN_ERR_ARGUMENT, "%s: a window of %lld keys; 0 means all", c->row->name,
                       (long long)c->attrs->i[TN_CACHED_ATTENTION_WINDOW]);
    double cap = c->attrs->f[TN_CACHED_ATTENTION_SOFTCAP];
    if (!(cap >= 0 && isfinite(cap)))
        return tn_fail(TN_ERR_ARGUMENT, "%s: a softcap of %g; it must be a number of 0 (none) or more", c->row->name,
                       cap);
    return tn_infer_same(c);
}

static tn_status infer_cached_attention_rows(tn_infer *c) {
    TRY(infer_cached_attention(c));
    for (int i = ATTEND_Q; i <= ATTEND_V; i++)
        TRY(need_laid_out(c, i, 2));
    TRY(need_laid_out(c, ATTEND_K_CACHE, 1));
    TRY(need_laid_out(c, ATTEND_V_CACHE, 1));
    return need_laid_out(c, ATTEND_PAGES, 0);
}

static tn_node *pages_laid_out(tn_build *b, tn_node *cache) {
    return cache && !laid_out_from(cache, 1) ? tn_b_contiguous(b, cache) : cache;
}

static double scale_of(const tn_node *n) {
    double scale = n->f[TN_CACHED_ATTENTION_SCALE];
    return scale == TN_AUTO ? 1.0 / sqrt((double)n->in[ATTEND_Q]->shape[2]) : scale;
}

static tn_node *compose_cached_attention(tn_build *b, const tn_node *n) {
    return tn_b_cached_attention_rows(b, cache_rows_of(b, n->in[ATTEND_Q]), cache_rows_of(b, n->in[ATTEND_K]),
                                      cache_rows_of(b, n->in[ATTEND_V]), pages_laid_out(b, n->in[ATTEND_K_CACHE]),
                                      pages_laid_out(b, n->in[ATTEND_V_CACHE]), n->in[ATTEND_POSITION],
                                      tn_b_laid_out(b, n->in[ATTEND_PAGES]), scale_of(n),
                                      n->i[TN_CACHED_ATTENTION_WINDOW], n->f[TN_CACHED_ATTENTION_SOFTCAP]);
}

/* ---- where there is no kernel ------------------------------------------------------------------------------------ */

static tn_node *i64(tn_build *b, double v) { return tn_b_full(b, NULL, 0, v, TN_I64); }

static tn_node *below(tn_build *b, tn_node *x, double bound) { return tn_b_lt(b, x, i64(b, bound)); }

static tn_node *in_range(tn_build *b, tn_node *x, double bound) {
    return tn_b_logical_and(b, tn_b_le(b, i64(b, 0), x), below(b, x, bound));
}

/* What lies outside is not used, but other engines that run this as a model refuse an index out of range. */
static tn_node *clamped(tn_build *b, tn_node *index, double count) {
    return tn_b_minimum(b, tn_b_maximum(b, index, i64(b, 0)), i64(b, count - 1));
}

/* Places of `pages` that name a page of the cache, and −1 for the others. */
static tn_node *valid_pages(tn_build *b, const tn_node *cache, tn_node *pages) {
    return tn_b_where(b, in_range(b, pages, (double)cache->shape[0]), pages, i64(b, -1));
}

/* Keys or values of all logical places [kv_heads, places, head_dim] in f32: old ones by their pages, new ones as the
 * cache would hold them, zeros where there is neither. */
static tn_node *tokens_by_place(tn_build *b, tn_node *cache, tn_node *fresh, tn_node *pages, tn_node *place,
                                tn_node *position) {
    int64_t heads = cache->shape[1], width = cache->shape[3], tokens = fresh->shape[0];
    int64_t old_places = pages->shape[0] * TN_PAGE_TOKENS;
    tn_node *none = tn_b_full(b, NULL, 0, 0, TN_F32);
    tn_node *since = tn_b_reshape(b, tn_b_sub(b, place, position), (int64_t[]){place->shape[0], 1, 1}, 3);
    tn_node *rounded = tn_b_cast(b, tn_b_cast(b, fresh, (tn_dtype)cache->dtype), TN_F32);
    tn_node *taken = tn_b_index_select(b, rounded, 0, clamped(b, tn_b_sub(b, place, position), (double)tokens));
    tn_node *all = tn_b_where(b, in_range(b, since, (double)tokens), taken, none);
    if (old_places == 0 || cache->shape[0] == 0) return tn_b_permute(b, all, (int64_t[]){1, 0, 2}, 3);
    tn_node *number = tn_b_floor_divide(b, place, i64(b, TN_PAGE_TOKENS));
    tn_node *page = tn_b_index_select(b, valid_pages(b, cache, pages), 0, clamped(b, number, (double)pages->shape[0]));
    tn_node *inside = tn_b_logical_and(b, below(b, place, (double)old_places), tn_b_le(b, i64(b, 0), page));
    tn_node *row = tn_b_sub(b, place, tn_b_mul(b, tn_b_sub(b, number, page), i64(b, TN_PAGE_TOKENS)));
    int64_t flat = cache->shape[0] * TN_PAGE_TOKENS;
    tn_node *rows =
        tn_b_reshape(b, tn_b_permute(b, cache, (int64_t[]){0, 2, 1, 3}, 4), (int64_t[]){flat, heads, width}, 3);
    tn_node *old = tn_b_cast(b, tn_b_index_select(b, rows, 0, clamped(b, row, (double)flat)), TN_F32);
    int64_t column[3] = {place->shape[0], 1, 1};
    old = tn_b_where(b, tn_b_reshape(b, inside, column, 3), old, none);
    all = tn_b_where(b, tn_b_lt(b, since, i64(b, 0)), old, all);
    return tn_b_permute(b, all, (int64_t[]){1, 0, 2}, 3);
}

/* Which places [tokens, places] a query sees. */
static tn_node *visible_places(tn_build *b, const tn_node *n, tn_node *place, tn_node *position) {
    int64_t tokens = n->shape[0], window = n->i[TN_CACHED_ATTENTION_ROWS_WINDOW];
    tn_node *last = tn_b_add(b, tn_b_arange(b, 0, (double)tokens, 1, TN_I64), position);
    last = tn_b_reshape(b, last, (int64_t[]){tokens, 1}, 2);
    tn_node *seen = tn_b_le(b, place, last);
    if (window == 0) return seen;
    return tn_b_logical_and(b, seen, tn_b_lt(b, tn_b_sub(b, last, i64(b, (double)window)), place));
}

/* The softmax in one piece over all places that there can be: the definition but for the order of its sums. */
static tn_node *compose_cached_attention_rows(tn_build *b, const tn_node *n) {
    tn_node *q = n->in[ATTEND_Q], *k_cache = n->in[ATTEND_K_CACHE], *pages = n->in[ATTEND_PAGES];
    int64_t tokens = n->shape[0], heads = n->shape[1], width = n->shape[2], kv_heads = k_cache->shape[1];
    int64_t old_places = pages->shape[0] * TN_PAGE_TOKENS, places = old_places + tokens, groups = heads / kv_heads;
    if (tn_node_numel(n) == 0) return tn_b_contiguous(b, q);
    tn_node *position = tn_b_minimum(b, tn_b_maximum(b, n->in[ATTEND_POSITION], i64(b, 0)), i64(b, (double)old_places));
    tn_node *place = tn_b_arange(b, 0, (double)places, 1, TN_I64);
    tn_node *keys = tokens_by_place(b, k_cache, n->in[ATTEND_K], pages, place, position);
    tn_node *values = tokens_by_place(b, n->in[ATTEND_V_CACHE], n->in[ATTEND_V], pages, place, position);
    tn_node *rows = tn_b_permute(b, tn_b_reshape(b, q, (int64_t[]){tokens, kv_heads, groups, width}, 4),
                                 (int64_t[]){1, 2, 0, 3}, 4);
    keys = tn_b_unsqueeze(b, tn_b_transpose(b, keys, 1, 2), 1);
    tn_node *scores = tn_b_matmul_batched(b, rows, keys);
    scores = tn_b_scale(b, scores, (double)(float)n->f[TN_CACHED_ATTENTION_ROWS_SCALE]);
    float cap = (float)n->f[TN_CACHED_ATTENTION_ROWS_SOFTCAP];
    if (cap > 0)
        scores =
            tn_b_scale(b, tn_b_tanh(b, tn_b_div(b, scores, tn_b_full(b, NULL, 0, (double)cap, TN_F32))), (double)cap);
    tn_node *seen = visible_places(b, n, place, position), *least = tn_b_full(b, NULL, 0, -INFINITY, TN_F32);
    tn_node *counted = tn_b_where(b, tn_b_logical_and(b, seen, tn_b_eq(b, scores, scores)), scores, least);
    tn_node *most = tn_b_amax(b, counted, (int64_t[]){3}, 1, true), *none = tn_b_full(b, NULL, 0, 0, TN_F32);
    most = tn_b_where(b, tn_b_eq(b, most, least), none, most);
    tn_node *weights = tn_b_where(b, seen, tn_b_exp(b, tn_b_sub(b, scores, most)), none);
    tn_node *total = tn_b_sum(b, weights, (int64_t[]){3}, 1, true);
    /* Not a product of matrices: what a query does not see may be NaN. */
    tn_node *each = tn_b_mul(b, tn_b_unsqueeze(b, weights, 4),
                             tn_b_reshape(b, values, (int64_t[]){kv_heads, 1, 1, places, width}, 5));
    each = tn_b_where(b, tn_b_unsqueeze(b, seen, 2), each, none);
    tn_node *out = tn_b_div(b, tn_b_sum(b, each, (int64_t[]){3}, 1, false), total);
    out = tn_b_permute(b, out, (int64_t[]){2, 0, 1, 3}, 4);
    return tn_b_reshape(b, out, n->shape, 3);
}

/* ---- definition -------------------------------------------------------------------------------------------------- */

/* What the definition needs at hand. */
typedef struct attention {
    const tn_reference *r;
    const tn_node *cache;
    int64_t position, page_count, heads, kv_heads, width;
} attention;

/* Element k of the key or value (`input`: ATTEND_K or ATTEND_V) at a logical place. */
static double token_value(const attention *a, int input, int64_t token, int64_t head, int64_t k) {
    int cache = input == ATTEND_K ? ATTEND_K_CACHE : ATTEND_V_CACHE;
    if (token >= a->position) {
        double fresh = a->r->in[input][((token - a->position) * a->kv_heads + head) * a->width + k];
        return as_cached((tn_dtype)a->cache->dtype, fresh);
    }
    int64_t from = place_in(a->cache, a->r->in[ATTEND_PAGES], a->page_count, token, head);
    return from < 0 ? 0 : a->r->in[cache][from + k];
}

static double score_of(const attention *a, int64_t query, int64_t head, int64_t token) {
    double sum = 0;
    for (int64_t k = 0; k < a->width; k++)
        sum += a->r->in[ATTEND_Q][(query * a->heads + head) * a->width + k] *
               token_value(a, ATTEND_K, token, head / (a->heads / a->kv_heads), k);
    double score = sum * scale_of(a->r->node), cap = a->r->node->f[TN_CACHED_ATTENTION_SOFTCAP];
    return cap > 0 ? cap * tanh(score / cap) : score;
}

static void attend_cache(const attention *a, int64_t query, int64_t head) {
    int64_t window = a->r->node->i[TN_CACHED_ATTENTION_WINDOW], last = a->position + query;
    int64_t first = window > 0 && last + 1 > window ? last + 1 - window : 0;
    double most = -INFINITY, sum = 0, *out = a->r->out + (query * a->heads + head) * a->width;
    for (int64_t t = first; t <= last; t++)
        most = fmax(most, score_of(a, query, head, t));
    for (int64_t k = 0; k < a->width; k++)
        out[k] = 0;
    for (int64_t t = first; t <= last; t++) {
        double weight = exp(score_of(a, query, head, t) - most);
        sum += weight;
        for (int64_t k = 0; k < a->width; k++)
            out[k] += weight * token_value(a, ATTEND_V, t, head / (a->heads / a->kv_heads), k);
    }
    for (int64_t k = 0; k < a->width; k++)
        out[k] /= sum;
}

static void reference_cached_attention(const tn_reference *r) {
    const tn_node *q = r->node, *cache = q->in[ATTEND_K_CACHE];
    attention a = {.r = r,
                   .cache = cache,
                   .page_count = q->in[ATTEND_PAGES]->shape[0],
                   .heads = q->shape[1],
                   .kv_heads = cache->shape[1],
                   .width = q->shape[2]};
    int64_t most = a.page_count * TN_PAGE_TOKENS;
    a.position = tn_min64(tn_max64((int64_t)r->in[ATTEND_POSITION][0], 0), most);
    for (int64_t i = 0; i < q->shape[0]; i++)
        for (int64_t h = 0; h < a.heads; h++)
            attend_cache(&a, i, h);
}

/* cached_attention(q, k, v, k_cache, v_cache, position, pages, scale, window, softcap): causal attention of n new
 * tokens, q [n, heads, head_dim], k and v [n, kv_heads, head_dim] (f32), that follow `position` tokens in the caches
 * [pages, kv_heads, 64, head_dim], which tn_cache_append_ has filled and which hold the new ones only afterwards. k and
 * v count as the caches would hold them, so a result does not depend on how a text was cut. heads is a multiple of
 * kv_heads; scale TN_AUTO means 1/sqrt(head_dim); window: the greatest number of keys a query sees, itself included, 0
 * for all. softcap: a score s becomes softcap · tanh(s / softcap), 0 for none. Result [n, heads, head_dim]; no
 * gradient. */
const tn_op_impl tn_impl_cached_attention = {
    .infer = infer_cached_attention,
    .compose = compose_cached_attention,
    .cases = "types=f32 tol=1e-5 atol=1e-5; [3,4,5] [3,2,5] [3,2,5] [3,2,64,5] [3,2,64,5] []:i64@0..0 [3]:i64@0..2; "
             "[2,2,4] [2,2,4] [2,2,4] [3,2,64,4] [3,2,64,4] []:i64@0..150 [3]:i64@0..2; "
             "[1,6,8] [1,2,8] [1,2,8] [3,2,64,8]:f16 [3,2,64,8]:f16 []:i64@63..66 [3]:i64@0..2 scale=0.2; "
             "[5,1,3] [5,1,3] [5,1,3] [2,1,64,3]:bf16 [2,1,64,3]:bf16 []:i64@62..62 [2]:i64@0..1 window=3; "
             "[3,4,8] [3,2,8] [3,2,8] [3,2,64,8] [3,2,64,8] []:i64@60..130 [3]:i64@0..2 scale=1.5 softcap=2.5; "
             "[2,1,3] [2,1,3] [2,1,3] [2,1,64,3] [2,1,64,3] []:i64@90..90 [2]:i64@2..2; "
             "[0,1,3] [0,1,3] [0,1,3] [1,1,64,3] [1,1,64,3] []:i64@0..0 [1]:i64@0..0; "
             "error=multiple [2,3,4] [2,2,4] [2,2,4] [1,2,64,4] [1,2,64,4] []:i64@0..0 [1]:i64@0..0; "
             "error=alike [2,2,4] [2,2,4] [2,2,4] [1,2,64,4] [2,2,64,4] []:i64@0..0 [1]:i64@0..0; "
             "error=tokens [2,2,4] [1,2,4] [2,2,4] [1,2,64,4] [1,2,64,4] []:i64@0..0 [1]:i64@0..0; "
             "error=window [1,2,4] [1,2,4] [1,2,4] [1,2,64,4] [1,2,64,4] []:i64@0..0 [1]:i64@0..0 window=-1; "
             "error=softcap [1,2,4] [1,2,4] [1,2,4] [1,2,64,4] [1,2,64,4] []:i64@0..0 [1]:i64@0..0 softcap=-1"};

/* cached_attention_rows(q, k, v, k_cache, v_cache, position, pages, scale, window, softcap): cached_attention on
 * operands whose rows are contiguous. */
const tn_op_impl tn_impl_cached_attention_rows = {
    .class_ = TN_NATIVE,
    .infer = infer_cached_attention_rows,
    .compose = compose_cached_attention_rows,
    .reference = reference_cached_attention,
    .cases = "types=f32 tol=1e-5 atol=1e-5; [3,4,5] [3,2,5] [3,2,5] [3,2,64,5] [3,2,64,5] []:i64@0..70 [3]:i64@0..2 "
             "scale=0.3 window=0 softcap=0; [3,4,5] [3,2,5] [3,2,5] [3,2,64,5] [3,2,64,5] []:i64@0..70 "
             "[3]:i64@0..2 scale=2 window=0 softcap=1.5;"
             "error=f32 [1,2,4]:f64 [1,2,4] [1,2,4] [1,2,64,4] [1,2,64,4] []:i64@0..0 [1]:i64@0..0 scale=1 window=0 "
             "softcap=0",
    .flops = 2};
