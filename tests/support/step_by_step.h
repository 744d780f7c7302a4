/* step_by_step.h — networks drawn at random that are evaluated whole, and once more step by step: their results must
 * have the same bits. A test that includes it writes the network, each of whose operations goes through step(). */
#ifndef TN_TESTS_STEP_BY_STEP_H
#define TN_TESTS_STEP_BY_STEP_H

#include "random_numbers.h"
#include "test_support.h"

#include "trunnion/trunnion.h"

enum { MOST_RESULTS = 8 };

static uint64_t state_of_numbers; /* set by the network, from its seed */
static bool apart;                /* every step is evaluated before the next one is recorded */

static inline int64_t below(int64_t n) { return (int64_t)((random_step(&state_of_numbers) >> 33) % (uint64_t)n); }

static inline tn_tensor *step(tn_tensor *t) {
    if (apart) assert_ok(tn_eval(&t, 1));
    return t;
}

/* Records the network with that seed; yields how many results are held in `out`. */
typedef int network_fn(uint64_t seed, tn_tensor **out);

static inline int results_of(network_fn *network, uint64_t seed, bool by_steps, float *values[MOST_RESULTS],
                             int64_t counts[MOST_RESULTS]) {
    int count = 0;
    apart = by_steps;
    TN_SCOPE;
    TN_NO_GRAD;
    tn_tensor *out[MOST_RESULTS];
    {
        TN_SCOPE; /* what is held would be a result, in memory of its own */
        count = network(seed, out);
        for (int i = 0; i < count; i++)
            out[i] = tn_keep(out[i]);
    }
    assert_ok(tn_eval(out, count));
    for (int i = 0; i < count; i++) {
        counts[i] = tn_numel(out[i]);
        values[i] = malloc((size_t)counts[i] * sizeof(float));
        assert_ok(tn_read(out[i], values[i], (size_t)counts[i] * sizeof(float)));
        tn_free(out[i]);
    }
    return count;
}

/* `got` is freed. */
static inline void assert_same_bits(uint64_t seed, int run, int count, float *got[MOST_RESULTS],
                                    float *wanted[MOST_RESULTS], const int64_t counts[MOST_RESULTS]) {
    for (int i = 0; i < count; i++) {
        for (int64_t k = 0; k < counts[i]; k++)
            if (memcmp(&got[i][k], &wanted[i][k], sizeof(float)) != 0)
                fail_msg("network %d, result %d, run %d: %.9g at %d instead of %.9g", (int)seed, i, run,
                         (double)got[i][k], (int)k, (double)wanted[i][k]);
        free(got[i]);
    }
}

#endif
