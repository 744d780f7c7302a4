/* sampler.c — chooses the next token from a model's logits.
 *
 * Two tables define it: penalties change logits, cuts shorten one list of candidates. Whatever the options, the tokens
 * that stay are the most probable ones, ties going to the lower id; heaps keep them, so nothing sorts the whole
 * vocabulary. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
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
    int32_t *recent; /* ring of the ids that the penalties look at */
    size_t window, recent_count, recent_next;
    int32_t *breakers; /* ascending */
    int32_t *text;     /* dry_window recent ids, the last one first, */
    int32_t *matches;  /* and the length of the match that begins at each */
    float *logits;     /* after the penalties */
    size_t logit_capacity;
    int32_t *counts; /* one for each token; 0 between two calls */
    size_t count_capacity;
    candidate *candidates;
    size_t capacity;
    uint64_t draws;
    double surprise_limit, surprise_total; /* mirostat's mu; the weight of all tokens before its cut */
};

/* ---- options ----------------------------------------------------------------------------------------------------- */

/* The options that are numbers, with their ranges. */
typedef struct range {
    const char *name;
    size_t offset;
    bool integer;
    double least, most;
    const char *words;
} range;

#define RANGE(field, integer, least, most, words) \
    { #field, offsetof(tn_sampler_options, field), integer, least, most, words }
static const range ranges[] = {
    RANGE(temperature, false, 0, DBL_MAX, "0 or more"),
    RANGE(top_k, true, 0, INT32_MAX, "0 or more"),
    RANGE(top_p, false, 0, 1, "from 0 to 1"),
    RANGE(min_p, false, 0, 1, "from 0 to 1"),
    RANGE(repeat_penalty, false, (double)FLT_MIN, (double)FLT_MAX, "a positive number in the range of a float"),
    RANGE(repeat_window, true, 0, LONGEST_WINDOW, "from 0 to 1048576"),
    RANGE(frequency_penalty, false, -100, 100, "from -100 to 100"),
    RANGE(presence_penalty, false, -100, 100, "from -100 to 100"),
    RANGE(dry_multiplier, false, 0, 100, "from 0 to 100"),
    RANGE(dry_base, false, 1, 100, "from 1 to 100"),
    RANGE(dry_allowed_length, true, 1, LONGEST_WINDOW, "from 1 to 1048576"),
    RANGE(dry_window, true, 0, LONGEST_WINDOW, "from 0 to 1048576"),
    RANGE(dry_breaker_count, true, 0, INT32_MAX, "0 or more"),
    RANGE(mirostat_tau, false, 0, 100, "from 0 to 100"),
    RANGE(mirostat_eta, false, 0, 1, "from 0 to 1"),
};
#undef RANGE

static tn_status check(const tn_sampler_options *o) {
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        const range *r = &ranges[i];
        const char *at = (const char *)o + r->offset;
        double value = r->integer ? *(const int32_t *)(const void *)at : *(const double *)(const void *)at;
        if (!(value >= r->least && value <= r->most))
            return tn_backend_fail(TN_ERR_ARGUMENT, "sampler: %s is %g; it must be %s", r->name, value, r->words);
    }
    if (o->dry_breaker_count > 0 && !o->dry_breakers)
        return tn_backend_fail(TN_ERR_ARGUMENT, "sampler: dry_breakers is NULL; dry_breaker_count is %d",
                               (int)o->dry_breaker_count);
    return TN_OK;
}

static int by_id(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return x < y ? -1 : x > y;
}

static bool uses_dry(const tn_sampler *s) { return s->o.dry_multiplier > 0 && s->o.dry_window > 0; }

static tn_status set_up_sampler(tn_sampler *s) {
    size_t dry = uses_dry(s) ? (size_t)s->o.dry_window : 0, breakers = dry ? (size_t)s->o.dry_breaker_count : 0;
    s->window = (size_t)s->o.repeat_window > dry ? (size_t)s->o.repeat_window : dry;
    s->recent = tn_txt_alloc(s->window, sizeof *s->recent);
    s->text = tn_txt_alloc(dry, sizeof *s->text);
    s->matches = tn_txt_alloc(dry, sizeof *s->matches);
    s->breakers = tn_txt_alloc(breakers, sizeof *s->breakers);
    if (!s->recent || !s->text || !s->matches || !s->breakers) return TN_ERR_MEMORY;
    if (breakers) memcpy(s->breakers, s->o.dry_breakers, breakers * sizeof *s->breakers);
    if (breakers) qsort(s->breakers, breakers, sizeof *s->breakers, by_id);
    s->o.dry_breakers = NULL; /* the caller's */
    tn_sampler_reset(s);
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
    tn_status status = set_up_sampler(s);
    if (status == TN_OK)
        *out = s;
    else
        tn_sampler_free(s);
    return status;
}

void tn_sampler_free(tn_sampler *s) {
    if (!s) return;
    tn_txt_free_each(s->recent, s->text, s->matches, s->breakers, s->logits, s->counts, s->candidates, s);
}

void tn_sampler_reset(tn_sampler *s) {
    s->recent_count = s->recent_next = 0;
    s->surprise_limit = 2 * s->o.mirostat_tau;
}

void tn_sampler_accept(tn_sampler *s, int32_t id) {
    if (s->window == 0) return;
    s->recent[s->recent_next] = id;
    s->recent_next = (s->recent_next + 1) % s->window;
    if (s->recent_count < s->window) s->recent_count++;
}

/* How many of the last `most` tokens there are. */
static size_t recent_tokens(const tn_sampler *s, int32_t most) {
    return s->recent_count < (size_t)most ? s->recent_count : (size_t)most;
}

/* The token that is i before the last one. */
static int32_t recent_token(const tn_sampler *s, size_t i) {
    return s->recent[(s->recent_next + s->window - 1 - i) % s->window];
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

/* ---- logits ------------------------------------------------------------------------------------------------------ */

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
    return tn_backend_fail(TN_ERR_ARGUMENT, "the logit of token %d is not a number; are the model's weights damaged?",
                           (int)i);
}

/* ---- penalties --------------------------------------------------------------------------------------------------- */

static bool repeats_cost(const tn_sampler *s) {
    return (float)s->o.repeat_penalty != 1 || s->o.frequency_penalty != 0 || s->o.presence_penalty != 0;
}

/* Repetition, frequency and presence: all three by how often a token is among the recent ones. The first counts it
 * once. */
static void penalise_repeats(tn_sampler *s, int32_t count) {
    float repeat = (float)s->o.repeat_penalty;
    size_t recent = recent_tokens(s, s->o.repeat_window);
    for (size_t i = 0; i < recent; i++) {
        int32_t id = recent_token(s, i);
        if (id >= 0 && id < count) s->counts[id]++;
    }
    for (size_t i = 0; i < recent; i++) {
        int32_t id = recent_token(s, i);
        if (id < 0 || id >= count || s->counts[id] == 0) continue;
        float logit = s->logits[id];
        logit = logit > 0 ? logit / repeat : logit * repeat;
        s->logits[id] = logit - (float)(s->counts[id] * s->o.frequency_penalty + s->o.presence_penalty);
        s->counts[id] = 0;
    }
}

static bool breaks(const tn_sampler *s, int32_t id) {
    return s->o.dry_breaker_count > 0 &&
           bsearch(&id, s->breakers, (size_t)s->o.dry_breaker_count, sizeof *s->breakers, by_id);
}

/* matches[i]: how many tokens of the text from its end back are the same as those from token i back: the Z-function of
 * the reversed text (Gusfield 1997), at most `limit`. */
static void find_matches(tn_sampler *s, int32_t n, int32_t limit) {
    const int32_t *x = s->text;
    int32_t *z = s->matches, left = 0, right = 0;
    for (int32_t i = 1; i < n; i++) {
        z[i] = i < right ? (z[i - left] < right - i ? z[i - left] : right - i) : 0;
        while (i + z[i] < n && x[z[i]] == x[i + z[i]])
            z[i]++;
        if (i + z[i] <= right) continue;
        left = i;
        right = i + z[i];
    }
    for (int32_t i = 1; i < n; i++)
        if (z[i] > limit) z[i] = limit;
}

/* Each token loses by the longest match that it would make longer. */
static void penalise_dry(tn_sampler *s, int32_t count) {
    int32_t n = (int32_t)recent_tokens(s, s->o.dry_window), limit = 0, allowed = s->o.dry_allowed_length;
    for (int32_t i = 0; i < n; i++)
        s->text[i] = recent_token(s, (size_t)i);
    while (limit < n && !breaks(s, s->text[limit]))
        limit++;
    find_matches(s, n, limit);
    for (int32_t i = 1; i < n; i++) {
        int32_t next = s->text[i - 1];
        bool counts = s->matches[i] >= allowed && next >= 0 && next < count;
        if (counts && s->matches[i] > s->counts[next]) s->counts[next] = s->matches[i];
    }
    for (int32_t i = 1; i < n; i++) {
        int32_t next = s->text[i - 1];
        if (next < 0 || next >= count || s->counts[next] == 0) continue;
        double loss = s->o.dry_multiplier * pow(s->o.dry_base, s->counts[next] - allowed);
        if (!breaks(s, next)) s->logits[next] -= (float)fmin(loss, (double)FLT_MAX / 2);
        s->counts[next] = 0;
    }
}

static const struct {
    bool (*applies)(const tn_sampler *s);
    void (*change)(tn_sampler *s, int32_t count); /* s->logits; s->counts are 0 before and after */
} penalties[] = {{repeats_cost, penalise_repeats}, {uses_dry, penalise_dry}};

static tn_status copy_logits(tn_sampler *s, const float *logits, int32_t count) {
    size_t before = s->count_capacity;
    TRY(tn_txt_reserve(&s->logits, &s->logit_capacity, (size_t)count, sizeof *s->logits));
    TRY(tn_txt_reserve(&s->counts, &s->count_capacity, (size_t)count, sizeof *s->counts));
    memset(s->counts + before, 0, (s->count_capacity - before) * sizeof *s->counts);
    memcpy(s->logits, logits, (size_t)count * sizeof *s->logits);
    return TN_OK;
}

/* The logits after the penalties, in *out: a copy where one applies. */
static tn_status penalise(tn_sampler *s, const float *logits, int32_t count, const float **out) {
    *out = logits;
    for (size_t i = 0; i < sizeof penalties / sizeof *penalties; i++) {
        if (s->recent_count == 0 || !penalties[i].applies(s)) continue;
        if (*out == logits) TRY(copy_logits(s, logits, count));
        *out = s->logits;
        penalties[i].change(s, count);
    }
    return TN_OK;
}

/* ---- cuts -------------------------------------------------------------------------------------------------------- */

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

static bool cuts_top(const tn_sampler *s) { return s->o.top_p < 1; }
static size_t cut_top(tn_sampler *s, candidate *c, size_t count) { return take_top(c, count, s->o.top_p); }
static bool cuts_min(const tn_sampler *s) { return s->o.min_p > 0; }
static size_t cut_min(tn_sampler *s, candidate *c, size_t count) { return take_min(c, count, s->o.min_p); }
static bool cuts_surprise(const tn_sampler *s) { return s->o.mirostat_tau > 0; }

/* A limit below the surprise of the most probable token keeps that one. */
static size_t cut_surprise(tn_sampler *s, candidate *c, size_t count) {
    s->surprise_total = total_weight(c, count);
    double greatest = 0, least = s->surprise_total * exp2(-s->surprise_limit);
    for (size_t i = 0; i < count; i++)
        greatest = c[i].weight > greatest ? c[i].weight : greatest;
    return take_min(c, count, least < greatest ? least : greatest);
}

static const struct {
    bool (*applies)(const tn_sampler *s);
    size_t (*keep)(tn_sampler *s, candidate *c, size_t count); /* moves them to the front; how many, at least 1 */
} cuts[] = {{cuts_top, cut_top}, {cuts_min, cut_min}, {cuts_surprise, cut_surprise}};

/* ---- the draw ---------------------------------------------------------------------------------------------------- */

static int32_t draw_sampler(tn_sampler *s, size_t count) {
    const candidate *c = s->candidates;
    double total = total_weight(c, count), point = next_uniform(s) * total, sum = 0;
    size_t last = 0;
    for (size_t i = 0; i < count; i++) {
        if (c[i].weight == 0) continue;
        sum += c[i].weight;
        last = i;
        if (point < sum) break;
    }
    if (cuts_surprise(s)) {
        double surprise = -log2(c[last].weight / s->surprise_total);
        s->surprise_limit -= s->o.mirostat_eta * (surprise - s->o.mirostat_tau);
    }
    return c[last].id;
}

/* The greatest logit; an error where none could be chosen. */
static tn_status find_greatest(const float *logits, int32_t count, float *out) {
    *out = greatest_of(logits, count);
    if (isnan(*out)) return refuse_nan(logits, count);
    if (*out == -INFINITY) return tn_backend_fail(TN_ERR_ARGUMENT, "sampler: all %d logits are -infinity", (int)count);
    return TN_OK;
}

tn_status tn_txt_most_probable(const float *logits, int32_t count, int32_t *id) {
    float greatest;
    TRY(find_greatest(logits, count, &greatest));
    *id = first_equal(logits, count, greatest);
    return TN_OK;
}

tn_status tn_sampler_pick(tn_sampler *s, const float *logits, int32_t count, int32_t *id) {
    if (!s || !logits || !id || count <= 0)
        return tn_backend_fail(TN_ERR_ARGUMENT, "sampler: an argument is NULL or the number of logits is 0");
    float greatest;
    TRY(penalise(s, logits, count, &logits));
    if (s->o.temperature == 0) return tn_txt_most_probable(logits, count, id);
    TRY(find_greatest(logits, count, &greatest));
    size_t n = 0;
    TRY(gather_sampler(s, logits, count, &n));
    weigh_sampler(s->candidates, n, greatest, s->o.temperature);
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++)
        if (cuts[i].applies(s)) n = cuts[i].keep(s, s->candidates, n);
    *id = draw_sampler(s, n);
    return TN_OK;
}

/* ---- log probabilities ------------------------------------------------------------------------------------------- */

/* An infinite logit has all probability, shared by its equals. */
static double log_share(float logit, float greatest, double total) {
    return (logit == greatest ? 0 : (double)logit - (double)greatest) - log(total);
}

/* The n most probable tokens by insertion: n is small. */
static void list_top(const float *logits, int32_t count, tn_logprob *top, int32_t n) {
    int32_t listed = 0;
    for (int32_t i = 0; i < count && n > 0; i++) {
        if (listed == n && !((double)logits[i] > top[n - 1].logprob)) continue;
        int32_t at = listed < n ? listed++ : n - 1;
        for (; at > 0 && top[at - 1].logprob < (double)logits[i]; at--)
            top[at] = top[at - 1];
        top[at] = (tn_logprob){i, (double)logits[i]};
    }
}

tn_status tn_logprobs(const float *logits, int32_t count, int32_t id, double *own, tn_logprob *top, int32_t n) {
    float greatest;
    double total = 0;
    if (!logits || count <= 0 || n < 0 || n > count || (n > 0 && !top) || (own && (id < 0 || id >= count)))
        return tn_backend_fail(TN_ERR_ARGUMENT, "tn_logprobs: token %d and the %d most probable ones of %d logits",
                               (int)id, (int)n, (int)count);
    TRY(find_greatest(logits, count, &greatest));
    for (int32_t i = 0; i < count; i++)
        total += logits[i] == greatest ? 1 : exp((double)logits[i] - (double)greatest);
    if (own) *own = log_share(logits[id], greatest, total);
    list_top(logits, count, top, n);
    for (int32_t i = 0; i < n; i++)
        top[i].logprob = log_share((float)top[i].logprob, greatest, total);
    return TN_OK;
}
