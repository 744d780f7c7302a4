/* random_numbers.h — random numbers for tests: a linear congruential generator with Knuth's constants (MMIX), the same
 * numbers on every machine. A test keeps the state and chooses the seed. */
#ifndef TN_TESTS_RANDOM_NUMBERS_H
#define TN_TESTS_RANDOM_NUMBERS_H

#include <stdint.h>

/* 64 bits, of which the low ones have short periods: take the high ones. */
static inline uint64_t random_step(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state;
}

/* 48 bits, all of them good. */
static inline uint64_t random_mixed(uint64_t *state) {
    uint64_t x = random_step(state);
    return (x ^ x >> 29) * 0x9e3779b97f4a7c15u >> 16;
}

#endif
