/* tiles_bf16.c — tiles.c for processors that multiply pairs of bf16 and add them to f32 sums: same source.
 *
 * The instruction is not always fast: some processors do four fused multiply-adds of floats in its time, so f32 is
 * faster there. Therefore it is timed, for some microseconds, before it is used. */
#define TN_VEC_PAIRS
#include "cpu/tiles.c"

enum { CHAINS = 12, STEPS = 100, ROUNDS = 20 };

/* Seconds of STEPS in each of CHAINS that do not wait for each other. Each chain begins with a read of `seed`: the
 * compiler merges chains that it knows to be equal, and the time would be the instruction's latency. */
VEC_INLINE double time_steps(const bool of_pairs, const volatile real *seed, V *sum) {
    const V x = v_set1(*seed);
    V chain[CHAINS];
    VEC_UNROLL for (int i = 0; i < CHAINS; i++) chain[i] = v_set1(*seed);
    double start = tn_now();
    for (int step = 0; step < STEPS; step++) {
        VEC_UNROLL for (int i = 0; i < CHAINS; i++) chain[i] =
            of_pairs ? v_step(x, x, chain[i]) : v_fma(x, x, chain[i]);
    }
    double seconds = tn_now() - start;
    VEC_UNROLL for (int i = 0; i < CHAINS; i++) *sum = *sum + chain[i];
    return seconds;
}

/* Compares the best of many rounds of both, so that interrupts do not matter. A step of pairs does the work of two
 * steps of floats, so it gains nothing if it takes twice the time. It takes the same time or a multiple of it, so the
 * threshold lies between one and two. */
bool tn_gemm_pairs_pay(void) {
    volatile real seed = 0;
    V sum = v_set1(seed);
    double floats = 1, pairs = 1;
    for (int i = 0; i < ROUNDS; i++) {
        double a = time_steps(false, &seed, &sum), b = time_steps(true, &seed, &sum);
        if (a < floats) floats = a;
        if (b < pairs) pairs = b;
    }
    seed = sum[0];
    return pairs < 1.4 * floats;
}
