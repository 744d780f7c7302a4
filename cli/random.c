/* random.c — random numbers of the host side of training: order of data, environments, actions. One 64-bit state
 * each, so a checkpoint can carry them. */
#include "cli/train/train.h"

uint64_t random_next(uint64_t *state) {
    *state += 0x9E3779B97F4A7C15U;
    uint64_t z = *state;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9U;
    z = (z ^ z >> 27) * 0x94D049BB133111EBU;
    return z ^ z >> 31;
}

double random_uniform(uint64_t *state) { return (double)(random_next(state) >> 11) * 0x1p-53; }

/* Fisher and Yates's shuffle. */
void random_shuffle(uint64_t *state, int32_t *items, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        items[i] = (int32_t)i;
    for (int64_t i = n - 1; i > 0; i--) {
        int64_t k = (int64_t)(random_next(state) % (uint64_t)(i + 1));
        int32_t swap = items[i];
        items[i] = items[k];
        items[k] = swap;
    }
}
