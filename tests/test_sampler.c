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
        draw(1, 0, 1, 0, 1),         draw(0.5, 0, 1, 0, 2),          draw(2.5, 0, 1, 0, 3),
        draw(1, 1, 1, 0, 4),         draw(1, 7, 1, 0, 5),            draw(1, 10000, 1, 0, 6),
        draw(1, 0, 0.5, 0, 7),       draw(3, 0, 0.95, 0, 8),         draw(3, 0, 0.999999, 0, 9),
        draw(1, 0, 1, 0.1, 10),      draw(1, 0, 1, 1, 11),           draw(0.8, 40, 0.9, 0.05, 12),
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
    enum { SIZE = TN_OPTIONS_SIZE(tn_sampler_options, seed) };
    static const tn_sampler_options wrong[] = {
        {SIZE, -1, 0, 1, 0, 1, 64, 0},       {SIZE, NAN, 0, 1, 0, 1, 64, 0}, {SIZE, INFINITY, 0, 1, 0, 1, 64, 0},
        {SIZE, 0, -1, 1, 0, 1, 64, 0},       {SIZE, 0, 0, 1.5, 0, 1, 64, 0}, {SIZE, 0, 0, NAN, 0, 1, 64, 0},
        {SIZE, 0, 0, 1, -0.1, 1, 64, 0},     {SIZE, 0, 0, 1, 0, -1, 64, 0},  {SIZE, 0, 0, 1, 0, 0, 64, 0},
        {SIZE, 0, 0, 1, 0, 1e-50, 64, 0},    {SIZE, 0, 0, 1, 0, 1e50, 64, 0}, {SIZE, 0, 0, 1, 0, 1, -1, 0},
        {SIZE, 0, 0, 1, 0, 1, INT32_MAX, 0},
    };
    for (size_t i = 0; i < TN_COUNT(wrong); i++) {
        tn_sampler_options o = wrong[i];
        tn_sampler *s;
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
    };
    return cmocka_run_group_tests_name("sampler", tests, NULL, NULL);
}
