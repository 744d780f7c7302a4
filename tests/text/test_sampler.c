/* test_sampler.c — promises of src/text/sampler.c: what each step keeps, and that draws follow the distribution. */
#include "test_support.h"

#include <math.h>

#include "text/text_common.h"
#include "trunnion/text.h"

static tn_sampler_options draw(double temperature, int32_t top_k, double top_p, double min_p, uint64_t seed) {
    tn_sampler_options o = TN_SAMPLER_DEFAULTS;
    o.temperature = temperature;
    o.top_k = top_k;
    o.top_p = top_p;
    o.min_p = min_p;
    o.seed = seed;
    return o;
}

static tn_sampler *make(tn_sampler_options o) {
    tn_sampler *s;
    assert_ok(tn_sampler_new(&o, &s));
    return s;
}

static int32_t pick(tn_sampler *s, const float *logits, int32_t count) {
    int32_t id = -1;
    assert_ok(tn_sampler_pick(s, logits, count, &id));
    assert_true(id >= 0 && id < count);
    return id;
}

/* ---- greedy ------------------------------------------------------------------------------------------------------ */

static void greedy_takes_the_first_of_the_greatest(void **state) {
    (void)state;
    const float logits[] = {1, 7, -INFINITY, 7, 3};
    tn_sampler *s;
    assert_ok(tn_sampler_new(NULL, &s));
    assert_int_equal(pick(s, logits, 5), 1);
    assert_int_equal(pick(s, logits, 1), 0);
    tn_sampler_free(s);
    tn_sampler_free(NULL);
}

static void the_penalty_counts_each_recent_token_once(void **state) {
    (void)state;
    const float logits[] = {4, 3.5f, -1, -1.5f};
    tn_sampler_options o = TN_SAMPLER_DEFAULTS;
    o.repeat_penalty = 2;
    o.repeat_window = 2;
    tn_sampler *s = make(o);
    tn_sampler_accept(s, 0);
    tn_sampler_accept(s, 0); /* 4 becomes 2 and not 1 */
    assert_int_equal(pick(s, logits, 4), 1);
    tn_sampler_accept(s, 1); /* 3.5 becomes 1.75 */
    assert_int_equal(pick(s, logits, 4), 0);
    tn_sampler_accept(s, 99); /* outside the logits; 0 has left the window */
    assert_int_equal(pick(s, logits, 4), 0);
    const float negative[] = {-1, -1.5f}; /* a negative logit is multiplied: -2 */
    tn_sampler_accept(s, 0);
    assert_int_equal(pick(s, negative, 2), 1);
    tn_sampler_free(s);
}

/* ---- draws ------------------------------------------------------------------------------------------------------- */

enum { DRAWS = 16000, MOST = 300 };

/* The definition, plainly: probabilities after all steps. Sorts by insertion, keeps by walking. */
static void expected(const tn_sampler_options *o, const float *logits, int n, double *p) {
    int order[MOST];
    double greatest = -INFINITY, total = 0;
    for (int i = 0; i < n; i++) {
        int at = i;
        for (; at > 0 && logits[order[at - 1]] < logits[i]; at--)
            order[at] = order[at - 1];
        order[at] = i;
        p[i] = 0;
        if (logits[i] > greatest) greatest = logits[i];
    }
    int kept = o->top_k > 0 && o->top_k < n ? o->top_k : n;
    for (int r = 0; r < kept; r++)
        total += p[order[r]] = exp((logits[order[r]] - greatest) / o->temperature);
    if (o->top_p < 1) {
        double sum = p[order[0]], wanted = o->top_p * total;
        int r = 1;
        while (r < kept && sum < wanted)
            sum += p[order[r++]];
        for (int rest = r; rest < kept; rest++)
            p[order[rest]] = 0;
    }
    total = 0;
    for (int i = 0; i < n; i++) {
        if (p[i] < o->min_p) p[i] = 0;
        total += p[i];
    }
    for (int i = 0; i < n; i++)
        p[i] /= total;
}

/* Pearson's statistic over classes of at least 8 expected draws, against a bound that chance passes once in a million
 * (Wilson and Hilferty 1931). A token without probability must not be drawn at all. */
static void draws_follow(tn_sampler_options o, const float *logits, int n) {
    double p[MOST];
    int counts[MOST] = {0};
    expected(&o, logits, n, p);
    tn_sampler *s = make(o);
    for (int i = 0; i < DRAWS; i++)
        counts[pick(s, logits, n)]++;
    tn_sampler_free(s);
    double chi = 0, rest = 0, rest_count = 0;
    int classes = 0;
    for (int i = 0; i < n; i++) {
        double e = p[i] * DRAWS;
        if (p[i] == 0 && counts[i] > 0) fail_msg("token %d has no probability and was drawn %d times", i, counts[i]);
        if (e < 8) {
            rest += e;
            rest_count += counts[i];
            continue;
        }
        chi += (counts[i] - e) * (counts[i] - e) / e;
        classes++;
    }
    if (rest >= 8) {
        chi += (rest_count - rest) * (rest_count - rest) / rest;
        classes++;
    }
    if (classes < 2) return;
    double k = classes - 1, term = 2 / (9 * k), bound = k * pow(1 - term + 4.75 * sqrt(term), 3);
    if (chi > bound) fail_msg("chi-squared is %g over %d classes; %g is the bound", chi, classes, bound);
}

static void draws_follow_the_distribution_of_every_setting(void **state) {
    (void)state;
    const tn_sampler_options settings[] = {
        draw(1, 0, 1, 0, 1),         draw(0.5, 0, 1, 0, 2),   draw(2.5, 0, 1, 0, 3), draw(1, 1, 1, 0, 4),
        draw(1, 7, 1, 0, 5),         draw(1, 10000, 1, 0, 6), draw(1, 0, 0.5, 0, 7), draw(3, 0, 0.95, 0, 8),
        draw(3, 0, 0.999999, 0, 9),  draw(1, 0, 1, 0.1, 10),  draw(1, 0, 1, 1, 11),  draw(0.8, 40, 0.9, 0.05, 12),
        draw(8, 400, 0.9, 0.01, 13), draw(1, 0, 0, 0, 14), /* top_p 0: only the likeliest */
    };
    float logits[MOST];
    uint32_t random = 12345;
    for (int i = 0; i < MOST; i++) {
        random = random * 1664525u + 1013904223u;
        logits[i] = (float)(random >> 20) / 512 - 4; /* 4096 values: ties occur */
    }
    logits[17] = -INFINITY;
    for (size_t i = 0; i < TN_COUNT(settings); i++)
        draws_follow(settings[i], logits, MOST);
}

static void a_tie_at_the_border_keeps_the_lower_ids(void **state) {
    (void)state;
    const float logits[] = {0, 2, 2, 2, 1};
    draws_follow(draw(1, 2, 1, 0, 3), logits, 5);
    draws_follow(draw(1, 0, 0.5, 0, 4), logits, 5);
}

static void a_flat_distribution_survives_top_p(void **state) {
    (void)state;
    enum { MANY = 100000 };
    float *logits = calloc(MANY, sizeof *logits);
    assert_non_null(logits);
    tn_sampler *s = make(draw(1, 0, 0.5, 0, 1));
    for (int i = 0; i < 5; i++)
        assert_true(pick(s, logits, MANY) < MANY / 2); /* the lower ids of the ties */
    tn_sampler_free(s);
    free(logits);
}

static void an_infinite_logit_wins(void **state) {
    (void)state;
    const float logits[] = {1, INFINITY, 3};
    tn_sampler *s = make(draw(1, 0, 1, 0, 0));
    for (int i = 0; i < 20; i++)
        assert_int_equal(pick(s, logits, 3), 1);
    tn_sampler_free(s);
}

static void a_tiny_temperature_is_greedy(void **state) {
    (void)state;
    const float logits[] = {1, 1.0001f, -3};
    tn_sampler *s = make(draw(1e-300, 0, 1, 0, 0));
    for (int i = 0; i < 20; i++)
        assert_int_equal(pick(s, logits, 3), 1);
    tn_sampler_free(s);
}

static void the_same_seed_draws_the_same(void **state) {
    (void)state;
    float logits[64] = {0};
    int32_t first[32];
    for (uint64_t seed = 0; seed < 3; seed++) {
        int same = 0;
        tn_sampler *a = make(draw(1, 0, 1, 0, seed));
        tn_sampler *b = make(draw(1, 0, 1, 0, seed));
        for (int i = 0; i < 32; i++) {
            int32_t id = pick(a, logits, 64);
            assert_int_equal(pick(b, logits, 64), id);
            if (seed == 0) first[i] = id;
            same += id == first[i];
        }
        if (seed > 0) assert_true(same < 16); /* another seed, other draws */
        tn_sampler_free(a);
        tn_sampler_free(b);
    }
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

static void options_out_of_range_are_refused(void **state) {
    (void)state;
    static const struct {
        size_t field;
        double value; /* as what the field is: see `integer` */
        bool integer;
    } wrong[] = {
#define WRONG(field, value)                             \
    {offsetof(tn_sampler_options, field), value,        \
     _Generic(((tn_sampler_options *)0)->field, int32_t \
              : true, double                            \
              : false)}
        WRONG(temperature, -1),
        WRONG(temperature, NAN),
        WRONG(temperature, INFINITY),
        WRONG(top_k, -1),
        WRONG(top_p, 1.5),
        WRONG(top_p, NAN),
        WRONG(min_p, -0.1),
        WRONG(repeat_penalty, -1),
        WRONG(repeat_penalty, 0),
        WRONG(repeat_penalty, 1e-50),
        WRONG(repeat_penalty, 1e50),
        WRONG(repeat_window, -1),
        WRONG(repeat_window, INT32_MAX),
        WRONG(frequency_penalty, 101),
        WRONG(presence_penalty, NAN),
        WRONG(dry_multiplier, -1),
        WRONG(dry_base, 0.5),
        WRONG(dry_allowed_length, 0),
        WRONG(dry_window, -1),
        WRONG(dry_breaker_count, -1),
        WRONG(dry_breaker_count, 1),
        WRONG(mirostat_tau, -1),
        WRONG(mirostat_eta, 2),
#undef WRONG
    };
    for (size_t i = 0; i < TN_COUNT(wrong); i++) {
        tn_sampler_options o = TN_SAMPLER_DEFAULTS;
        tn_sampler *s;
        char *at = (char *)&o + wrong[i].field;
        if (wrong[i].integer)
            memcpy(at, &(int32_t){(int32_t)wrong[i].value}, sizeof(int32_t));
        else
            memcpy(at, &wrong[i].value, sizeof(double));
        assert_int_equal(tn_sampler_new(&o, &s), TN_ERR_ARGUMENT);
        assert_null(s);
        assert_text_has(tn_error(), "sampler: ");
    }
    tn_sampler *s;
    tn_sampler_options options = {0};
    assert_int_equal(tn_sampler_new(&options, &s), TN_ERR_ARGUMENT);
    assert_int_equal(tn_sampler_new(NULL, NULL), TN_ERR_ARGUMENT);
}

static void logits_without_a_choice_are_refused(void **state) {
    (void)state;
    const float with_nan[] = {1, NAN, 2}, hopeless[] = {-INFINITY, -INFINITY};
    int32_t id;
    tn_sampler *s = make(draw(1, 0, 1, 0, 0));
    assert_int_equal(tn_sampler_pick(s, with_nan, 3, &id), TN_ERR_ARGUMENT);
    assert_text_has(tn_error(), "token 1");
    assert_int_equal(tn_sampler_pick(s, hopeless, 2, &id), TN_ERR_ARGUMENT);
    assert_int_equal(tn_sampler_pick(s, with_nan, 0, &id), TN_ERR_ARGUMENT);
    assert_int_equal(tn_sampler_pick(s, NULL, 3, &id), TN_ERR_ARGUMENT);
    tn_sampler_free(s);
}

static void failed_allocations_leave_nothing_behind(void **state) {
    (void)state;
    const float logits[] = {1, 2, 3};
    tn_sampler_options o = TN_SAMPLER_DEFAULTS;
    o.temperature = 1;
    int64_t before = tn_txt_live_blocks();
    for (int64_t n = 1;; n++) {
        tn_sampler *s;
        int32_t id;
        tn_txt_fail_at(n);
        tn_status status = tn_sampler_new(&o, &s);
        if (status == TN_OK) status = tn_sampler_pick(s, logits, 3, &id);
        tn_txt_fail_at(0);
        tn_sampler_free(s);
        assert_int_equal(tn_txt_live_blocks(), before);
        if (status == TN_OK) break;
        assert_int_equal(status, TN_ERR_MEMORY);
        assert_true(n < 100);
    }
}

/* ---- further penalties ------------------------------------------------------------------------------------------- */

static void accept_all(tn_sampler *s, const int32_t *ids, size_t count) {
    for (size_t i = 0; i < count; i++)
        tn_sampler_accept(s, ids[i]);
}

/* The logit that token `id` has to have to be picked over token 0, whose logit is 10: 10 plus what it lost. */
static void assert_loses(tn_sampler *s, int32_t id, double loss) {
    float logits[16];
    for (int i = 0; i < 16; i++)
        logits[i] = i == 0 ? 10 : -50;
    logits[id] = (float)(10 + loss + 1e-3);
    assert_int_equal(pick(s, logits, 16), id);
    logits[id] = (float)(10 + loss - 1e-3);
    assert_int_equal(pick(s, logits, 16), 0);
}

/* Refuses with this status, and says so. */
#define assert_fails(expr, status, part)     \
    do {                                     \
        assert_int_equal((expr), (status));  \
        assert_text_has(tn_error(), (part)); \
    } while (0)

static void frequency_and_presence_count_occurrences(void **state) {
    (void)state;
    tn_sampler_options o = TN_SAMPLER_DEFAULTS;
    o.frequency_penalty = 0.25;
    o.presence_penalty = 1;
    o.repeat_window = 5;
    tn_sampler *s = make(o);
    accept_all(s, (int32_t[]){9, 3, 5, 3, 3, 6}, 6); /* 9 has left the window */
    assert_loses(s, 3, 1 + 3 * 0.25);
    assert_loses(s, 5, 1.25);
    assert_loses(s, 9, 0);
    tn_sampler_reset(s);
    assert_loses(s, 3, 0);
    tn_sampler_free(s);
}

static void dry_penalizes_what_continues_a_repetition(void **state) {
    (void)state;
    const int32_t text[] = {1, 2, 3, 4, 8, 2, 3, 5, 8, 1, 2, 3};
    tn_sampler_options o = TN_SAMPLER_DEFAULTS;
    o.dry_multiplier = 0.5;
    o.dry_base = 2;
    tn_sampler *s = make(o);
    accept_all(s, text, TN_COUNT(text));
    assert_loses(s, 4, 0.5 * 2); /* 1 2 3 occurred before it: one more than allowed */
    assert_loses(s, 5, 0.5);     /* 2 3 */
    assert_loses(s, 8, 0);
    assert_loses(s, 2, 0);
    tn_sampler_free(s);
    o.dry_allowed_length = 3;
    s = make(o);
    accept_all(s, text, TN_COUNT(text));
    assert_loses(s, 4, 0.5);
    assert_loses(s, 5, 0);
    tn_sampler_free(s);
}

static void dry_does_not_look_across_breakers(void **state) {
    (void)state;
    const int32_t breakers[] = {7, 2}, text[] = {1, 2, 3, 4, 5, 1, 2, 3, 4}, line[] = {3, 4, 7, 3, 4};
    tn_sampler_options o = TN_SAMPLER_DEFAULTS;
    o.dry_multiplier = 0.5;
    o.dry_base = 2;
    o.dry_breakers = breakers;
    o.dry_breaker_count = 2;
    tn_sampler *s = make(o);
    accept_all(s, text, TN_COUNT(text));
    assert_loses(s, 5, 0.5); /* 3 4 behind the breaker 2 */
    tn_sampler_reset(s);
    accept_all(s, line, TN_COUNT(line));
    assert_loses(s, 7, 0); /* a breaker itself */
    tn_sampler_free(s);
}

/* The quadratic definition, for texts of few different tokens. */
static void dry_agrees_with_its_definition(void **state) {
    (void)state;
    enum { LENGTH = 60, KINDS = 3 };
    uint32_t random = 7;
    for (int round = 0; round < 200; round++) {
        int32_t text[LENGTH];
        double loss[16] = {0};
        for (int i = 0; i < LENGTH; i++) {
            random = random * 1664525u + 1013904223u;
            text[i] = 1 + (int32_t)(random >> 24) % KINDS;
        }
        for (int end = 1; end < LENGTH; end++) { /* text[end] followed text[.. end - 1] */
            int same = 0;
            while (same < end && text[end - 1 - same] == text[LENGTH - 1 - same])
                same++;
            double own = same >= 2 ? 0.01 * pow(1.2, same - 2) : 0;
            loss[text[end]] = fmax(loss[text[end]], own);
        }
        tn_sampler_options o = TN_SAMPLER_DEFAULTS;
        o.dry_multiplier = 0.01;
        o.dry_base = 1.2;
        tn_sampler *s = make(o);
        accept_all(s, text, LENGTH);
        for (int32_t id = 1; id <= KINDS; id++)
            assert_loses(s, id, loss[id]);
        tn_sampler_free(s);
    }
}

static void mirostat_keeps_the_mean_surprise(void **state) {
    (void)state;
    float logits[MOST], greatest = -INFINITY;
    double total = 0, sum = 0;
    for (int i = 0; i < MOST; i++) {
        logits[i] = -(float)log(i + 1); /* Zipf's law: 300 tokens, from 2.7 bits on, 5.6 without a limit */
        greatest = fmaxf(greatest, logits[i]);
    }
    tn_sampler_options o = TN_SAMPLER_DEFAULTS;
    o.temperature = 1;
    o.mirostat_tau = 4;
    o.seed = 3;
    tn_sampler *s = make(o);
    for (int i = 0; i < MOST; i++)
        total += exp((double)(logits[i] - greatest));
    enum { COUNT = 4000 };
    for (int i = 0; i < COUNT; i++) {
        int32_t id = pick(s, logits, MOST);
        sum += log2(total) - (double)(logits[id] - greatest) / log(2);
    }
    if (fabs(sum / COUNT - 4) > 0.05) fail_msg("mean surprise %g; tau is 4", sum / COUNT);
    tn_sampler_free(s);
}

static void logprobs_are_those_of_the_softmax(void **state) {
    (void)state;
    const float logits[] = {1, 3, -INFINITY, 3, 2}, one[] = {0, INFINITY};
    const float nan = NAN;
    double own, total = exp(-2) + 1 + 1 + exp(-1);
    tn_logprob top[5];
    assert_ok(tn_logprobs(logits, 5, 4, &own, top, 3));
    assert_true(fabs(own - (-1 - log(total))) < 1e-12);
    assert_int_equal(top[0].id, 1);
    assert_int_equal(top[1].id, 3);
    assert_int_equal(top[2].id, 4);
    assert_true(fabs(top[0].logprob - (-log(total))) < 1e-12);
    assert_true(fabs(top[2].logprob - (own)) < 1e-12);
    assert_ok(tn_logprobs(logits, 5, 2, &own, NULL, 0));
    assert_true(own == -INFINITY);
    assert_ok(tn_logprobs(one, 2, 1, &own, top, 2));
    assert_true(own == 0 && top[0].id == 1 && top[1].logprob == -INFINITY);
    assert_fails(tn_logprobs(logits, 5, 5, &own, NULL, 0), TN_ERR_ARGUMENT, "token 5");
    assert_fails(tn_logprobs(logits, 5, 0, &own, top, 6), TN_ERR_ARGUMENT, "the 6 most probable");
    assert_fails(tn_logprobs(&nan, 1, 0, &own, NULL, 0), TN_ERR_ARGUMENT, "not a number");
}

/* ---- stop strings ------------------------------------------------------------------------------------------------ */

static tn_stop_strings *make_stops(const char *const *strings, int count) {
    tn_text_slice slices[8];
    tn_stop_strings *s;
    for (int i = 0; i < count; i++)
        slices[i] = (tn_text_slice){strings[i], strlen(strings[i])};
    assert_ok(tn_stop_strings_new(slices, count, &s));
    return s;
}

/* Feeds `text` cut after the places whose bits are set in `cuts`; what is shown, and which string ended it. */
static int feed(tn_stop_strings *s, const char *text, unsigned cuts, tn_bytes *out) {
    int found = -1;
    size_t length = strlen(text), begin = 0;
    out->size = 0;
    for (size_t i = 1; i <= length; i++) {
        if (i < length && !(cuts >> (i - 1) & 1)) continue;
        assert_ok(tn_stop_strings_feed(s, text + begin, i - begin, out, &found));
        begin = i;
    }
    assert_ok(tn_stop_strings_end(s, out));
    return found;
}

static void stop_strings_end_a_text_however_it_is_cut(void **state) {
    (void)state;
    static const struct {
        const char *strings[3];
        const char *text, *shown;
        int found;
    } rows[] = {
        {{"END"}, "aENEND b", "aEN", 0},    {{"END"}, "aENDE", "a", 0},
        {{"END"}, "a EN", "a EN", -1},      {{"aab"}, "aaaab", "aa", 0},
        {{"abab", "ba"}, "xabab", "xa", 1}, {{"b", "ab"}, "xxab", "xx", 1},
        {{"abcd", "bc"}, "abcx", "a", 1},   {{"abc", "xy"}, "ababxab", "ababxab", -1},
        {{"\n\n"}, "a\nb\n\nc", "a\nb", 0}, {{"abac"}, "ababac", "ab", 0},
    };
    tn_bytes out = {0};
    for (size_t r = 0; r < TN_COUNT(rows); r++) {
        int count = 0;
        while (count < 3 && rows[r].strings[count])
            count++;
        tn_stop_strings *s = make_stops(rows[r].strings, count);
        for (unsigned cuts = 0; cuts < 1u << (strlen(rows[r].text) - 1); cuts++) {
            int found = feed(s, rows[r].text, cuts, &out);
            bool same = found == rows[r].found && out.size == strlen(rows[r].shown) &&
                        memcmp(out.data ? out.data : "", rows[r].shown, out.size) == 0;
            if (!same)
                fail_msg("\"%s\" cut by %#x: \"%.*s\", string %d", rows[r].text, cuts, (int)out.size, out.data, found);
        }
        tn_stop_strings_free(s);
    }
    tn_bytes_free(&out);
}

static void no_part_of_a_stop_string_is_shown(void **state) {
    (void)state;
    tn_bytes out = {0};
    int found;
    tn_stop_strings *s = make_stops((const char *const[]){"STOP", "\n###"}, 2);
    assert_ok(tn_stop_strings_feed(s, "go ST", 5, &out, &found));
    assert_int_equal(out.size, 3);
    assert_ok(tn_stop_strings_feed(s, "Y\n#", 3, &out, &found));
    assert_int_equal(out.size, 6);
    assert_memory_equal(out.data, "go STY", 6);
    assert_ok(tn_stop_strings_feed(s, "##x", 3, &out, &found));
    assert_int_equal(found, 1);
    assert_ok(tn_stop_strings_feed(s, "more", 4, &out, &found));
    assert_int_equal(found, 1);
    assert_int_equal(out.size, 6);
    tn_stop_strings_free(s);
    tn_bytes_free(&out);
    assert_fails(tn_stop_strings_new(&(tn_text_slice){"", 0}, 1, &s), TN_ERR_ARGUMENT, "empty");
    assert_ok(tn_stop_strings_new(NULL, 0, &s));
    assert_ok(tn_stop_strings_feed(s, "all", 3, &out, &found));
    assert_int_equal(out.size, 3);
    tn_stop_strings_free(s);
    tn_bytes_free(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_takes_the_first_of_the_greatest),
        cmocka_unit_test(the_penalty_counts_each_recent_token_once),
        cmocka_unit_test(draws_follow_the_distribution_of_every_setting),
        cmocka_unit_test(a_tie_at_the_border_keeps_the_lower_ids),
        cmocka_unit_test(a_flat_distribution_survives_top_p),
        cmocka_unit_test(an_infinite_logit_wins),
        cmocka_unit_test(a_tiny_temperature_is_greedy),
        cmocka_unit_test(the_same_seed_draws_the_same),
        cmocka_unit_test(options_out_of_range_are_refused),
        cmocka_unit_test(logits_without_a_choice_are_refused),
        cmocka_unit_test(failed_allocations_leave_nothing_behind),
        cmocka_unit_test(frequency_and_presence_count_occurrences),
        cmocka_unit_test(dry_penalizes_what_continues_a_repetition),
        cmocka_unit_test(dry_does_not_look_across_breakers),
        cmocka_unit_test(dry_agrees_with_its_definition),
        cmocka_unit_test(mirostat_keeps_the_mean_surprise),
        cmocka_unit_test(logprobs_are_those_of_the_softmax),
        cmocka_unit_test(stop_strings_end_a_text_however_it_is_cut),
        cmocka_unit_test(no_part_of_a_stop_string_is_shown),
    };
    return cmocka_run_group_tests_name("sampler", tests, NULL, NULL);
}
