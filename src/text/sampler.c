/* sampler.c — the next token out of a model's logits.
 *
 * Whatever the options, the tokens that stay are the likeliest ones, ties going to the lower id. So there is one list
 * of candidates, and each step shortens it: with heaps, so that nothing sorts the whole vocabulary. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "text/text_common.h"

enum { LONGEST_WINDOW = 1 << 20 };

typedef struct candidate {
    double weight; /* probability relative to the likeliest token's */
    float logit;
    int32_t id;
} candidate;

struct tn_sampler {
    tn_sampler_options o;
    int32_t *recent; /* ring of repeat_window ids */
    size_t recent_count, recent_next;
    float *logits; /* after the penalty */
    size_t logit_capacity;
    candidate *candidates;
    size_t capacity;
    uint64_t draws;
};

/* ---- options ----------------------------------------------------------------------------------------------------- */

static tn_status refuse_sampler(const char *name, double value, const char *range) {
    return tn_backend_fail(TN_ERR_ARGUMENT, "sampler: %s is %g; it must be %s", name, value, range);
}

static tn_status check(const tn_sampler_options *o) {
    if (!(o->temperature >= 0) || isinf(o->temperature))
        return refuse_sampler("temperature", o->temperature, "0 or more");
    if (o->top_k < 0) return refuse_sampler("top_k", o->top_k, "0 or more");
    if (!(o->top_p >= 0 && o->top_p <= 1)) return refuse_sampler("top_p", o->top_p, "from 0 to 1");
    if (!(o->min_p >= 0 && o->min_p <= 1)) return refuse_sampler("min_p", o->min_p, "from 0 to 1");
    if (!(o->repeat_penalty >= (double)FLT_MIN && o->repeat_penalty <= (double)FLT_MAX))
        return refuse_sampler("repeat_penalty", o->repeat_penalty, "a positive number in the range of a float");
    if (o->repeat_window < 0 || o->repeat_window > LONGEST_WINDOW)
        return refuse_sampler("repeat_window", o->repeat_window, "from 0 to 1048576");
    return TN_OK;
}

tn_status tn_sampler_new(const tn_sampler_options *options, tn_sampler **out) {
    if (!out) return tn_backend_fail(TN_ERR_ARGUMENT, "sampler: out is NULL");
    *out = NULL;
    tn_sampler_options o = TN_SAMPLER_DEFAULTS;
    TRY(tn_options_read(&o, options, "sampler", "tn_sampler_options o = TN_SAMPLER_DEFAULTS"));
    TRY(check(&o));
    tn_sampler *s = tn_txt_zalloc(1, sizeof *s);
    if (!s) return TN_ERR_MEMORY;
    s->o = o;
    s->recent = tn_txt_alloc((size_t)o.repeat_window, sizeof *s->recent);
    if (!s->recent) {
        tn_sampler_free(s);
        return TN_ERR_MEMORY;
    }
    *out = s;
    return TN_OK;
}

void tn_sampler_free(tn_sampler *s) {
    if (!s) return;
    tn_txt_free(s->recent);
    tn_txt_free(s->logits);
    tn_txt_free(s->candidates);
    tn_txt_free(s);
}

void tn_sampler_accept(tn_sampler *s, int32_t id) {
    size_t window = (size_t)s->o.repeat_window;
    if (window == 0) return;
    s->recent[s->recent_next] = id;
    s->recent_next = (s->recent_next + 1) % window;
    if (s->recent_count < window) s->recent_count++;
}

/* ---- random numbers ---------------------------------------------------------------------------------------------- */

/* Philox4x32-10 (Salmon et al. 2011): a block of random words from a counter and a key. */
static void philox(uint64_t key, uint64_t counter, uint32_t out[4]) {
    uint32_t c[4] = {(uint32_t)counter, (uint32_t)(counter >> 32), 0, 0};
    uint32_t k[2] = {(uint32_t)key, (uint32_t)(key >> 32)};
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xd2511f53u * c[0], b = (uint64_t)0xcd9e8d57u * c[2];
        uint32_t next[4] = {(uint32_t)(b >> 32) ^ c[1] ^ k[0], (uint32_t)b, (uint32_t)(a >> 32) ^ c[3] ^ k[1],
                            (uint32_t)a};
        memcpy(c, next, sizeof c);
        k[0] += 0x9e3779b9u;
        k[1] += 0xbb67ae85u;
    }
    memcpy(out, c, sizeof c);
}

/* Uniform in [0, 1), with 53 bits. */
static double next_uniform(tn_sampler *s) {
    uint32_t word[4];
    philox(s->o.seed, s->draws++, word);
    uint64_t bits = ((uint64_t)word[0] << 32 | word[1]) >> 11;
    return (double)bits * 0x1p-53;
}

/* ---- candidates -------------------------------------------------------------------------------------------------- */

static bool likelier(const candidate *a, const candidate *b) {
    return a->logit > b->logit || (a->logit == b->logit && a->id < b->id);
}

static void swap(candidate *a, candidate *b) {
    candidate c = *a;
    *a = *b;
    *b = c;
}

/* Heaps with the least likely candidate on top, or with the likeliest. */
typedef enum heap_order { LEAST_ON_TOP, LIKELIEST_ON_TOP } heap_order;

static bool above(heap_order order, const candidate *a, const candidate *b) {
    return order == LIKELIEST_ON_TOP ? likelier(a, b) : likelier(b, a);
}

static void sift(heap_order order, candidate *c, size_t at, size_t count) {
    while (2 * at + 1 < count) {
        size_t child = 2 * at + 1;
        if (child + 1 < count && above(order, &c[child + 1], &c[child])) child++;
        if (!above(order, &c[child], &c[at])) return;
        swap(&c[at], &c[child]);
        at = child;
    }
}

static void make_heap(heap_order order, candidate *c, size_t count) {
    for (size_t i = count / 2; i-- > 0;)
        sift(order, c, i, count);
}

/* ---- the steps --------------------------------------------------------------------------------------------------- */

/* The greatest of the logits, minus infinity for none; NaN where there is one. Sixteen lanes, for the vectoriser. */
static float greatest_of(const float *logits, int32_t count) {
    float best[16];
    int32_t wrong[16] = {0}, i = 0;
    for (int k = 0; k < 16; k++)
        best[k] = -INFINITY;
    for (; i + 16 <= count; i += 16)
        for (int k = 0; k < 16; k++) {
            float v = logits[i + k];
            best[k] = v > best[k] ? v : best[k];
            wrong[k] |= v != v;
        }
    for (; i < count; i++) {
        best[0] = logits[i] > best[0] ? logits[i] : best[0];
        wrong[0] |= isnan(logits[i]);
    }
    for (int k = 1; k < 16; k++) {
        best[0] = best[k] > best[0] ? best[k] : best[0];
        wrong[0] |= wrong[k];
    }
    return wrong[0] ? NAN : best[0];
}

static int32_t first_equal(const float *logits, int32_t count, float value) {
    int32_t i = 0;
    while (i < count && logits[i] != value)
        i++;
    return i;
}

static tn_status refuse_nan(const float *logits, int32_t count) {
    int32_t i = 0;
    while (i < count && !isnan(logits[i]))
        i++;
    return tn_backend_fail(TN_ERR_ARGUMENT, "sampler: the logit of token %d is not a number", (int)i);
}

/* The logits after the penalty, in *out: a copy where one applies. Each recent token counts once, however often it
 * occurred. */
static tn_status penalise(tn_sampler *s, const float *logits, int32_t count, const float **out) {
    float penalty = (float)s->o.repeat_penalty;
    *out = logits;
    if (penalty == 1 || s->recent_count == 0) return TN_OK;
    TRY(tn_txt_reserve(&s->logits, &s->logit_capacity, (size_t)count, sizeof *s->logits));
    memcpy(s->logits, logits, (size_t)count * sizeof *s->logits);
    for (size_t i = 0; i < s->recent_count; i++) {
        int32_t id = s->recent[i];
        if (id < 0 || id >= count) continue;
        float logit = logits[id]; /* the given one, so that a second time changes nothing */
        s->logits[id] = logit > 0 ? logit / penalty : logit * penalty;
    }
    *out = s->logits;
    return TN_OK;
}

/* The candidates: the k likeliest, all for k = 0. */
static tn_status gather_sampler(tn_sampler *s, const float *logits, int32_t count, size_t *gathered) {
    size_t all = (size_t)count, k = s->o.top_k > 0 && (size_t)s->o.top_k < all ? (size_t)s->o.top_k : all;
    TRY(tn_txt_reserve(&s->candidates, &s->capacity, k, sizeof *s->candidates));
    candidate *c = s->candidates;
    for (size_t i = 0; i < k; i++)
        c[i] = (candidate){.logit = logits[i], .id = (int32_t)i};
    if (k < all) make_heap(LEAST_ON_TOP, c, k);
    for (size_t i = k; i < all; i++) {
        if (!(logits[i] > c[0].logit)) continue; /* of equals the lower ids stay */
        c[0] = (candidate){.logit = logits[i], .id = (int32_t)i};
        sift(LEAST_ON_TOP, c, 0, k);
    }
    *gathered = k;
    return TN_OK;
}

/* An infinite logit leaves no chance to finite ones. */
static void weigh_sampler(candidate *c, size_t count, double greatest, double temperature) {
    for (size_t i = 0; i < count; i++)
        c[i].weight = (double)c[i].logit == greatest ? 1 : exp(((double)c[i].logit - greatest) / temperature);
}

static double total_weight(const candidate *c, size_t count) {
    double total = 0;
    for (size_t i = 0; i < count; i++)
        total += c[i].weight;
    return total;
}

/* Keeps the candidates with at least this weight. */
static size_t take_min(candidate *c, size_t count, double least) {
    size_t kept = 0;
    for (size_t i = 0; i < count; i++)
        if (c[i].weight >= least) c[kept++] = c[i];
    return kept;
}

/* The fewest likeliest that together have the fraction p of all weight. They are taken from a heap one by one and
 * gather at its end. The greatest weight is 1, so those below (1 - p) / count hold less than 1 - p of all together:
 * they are never among the fewest, and need no place in the heap. */
static size_t take_top(candidate *c, size_t count, double p) {
    double wanted = p * total_weight(c, count);
    count = take_min(c, count, (1 - p) / (double)count);
    make_heap(LIKELIEST_ON_TOP, c, count);
    size_t left = count;
    for (double sum = 0; left > 0 && (sum < wanted || left == count);) {
        sum += c[0].weight;
        swap(&c[0], &c[--left]);
        sift(LIKELIEST_ON_TOP, c, 0, left);
    }
    memmove(c, c + left, (count - left) * sizeof *c);
    return count - left;
}

static int32_t draw_sampler(tn_sampler *s, size_t count) {
    const candidate *c = s->candidates;
    double point = next_uniform(s) * total_weight(c, count), sum = 0;
    size_t last = 0;
    for (size_t i = 0; i < count; i++) {
        if (c[i].weight == 0) continue;
        sum += c[i].weight;
        last = i;
        if (point < sum) break;
    }
    return c[last].id;
}

tn_status tn_sampler_pick(tn_sampler *s, const float *logits, int32_t count, int32_t *id) {
    if (!s || !logits || !id || count <= 0)
        return tn_backend_fail(TN_ERR_ARGUMENT, "sampler: an argument is NULL or the number of logits is 0");
    TRY(penalise(s, logits, count, &logits));
    float greatest = greatest_of(logits, count);
    if (isnan(greatest)) return refuse_nan(logits, count);
    if (greatest == -INFINITY)
        return tn_backend_fail(TN_ERR_ARGUMENT, "sampler: all %d logits are -infinity", (int)count);
    if (s->o.temperature == 0) {
        *id = first_equal(logits, count, greatest);
        return TN_OK;
    }
    size_t n = 0;
    TRY(gather_sampler(s, logits, count, &n));
    candidate *c = s->candidates;
    weigh_sampler(c, n, greatest, s->o.temperature);
    if (s->o.top_p < 1) n = take_top(c, n, s->o.top_p);
    if (s->o.min_p > 0) n = take_min(c, n, s->o.min_p);
    *id = draw_sampler(s, n);
    return TN_OK;
}
