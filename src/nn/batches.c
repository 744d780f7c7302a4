/* batches.c — the order in which samples are visited.
 *
 * The place of a sample is found by a keyed permutation of [0, count): a Feistel network over the smallest even number
 * of bits that holds count, applied again until the result is below count (at most four times on average). So the
 * order of an epoch takes no memory, and a position is two numbers. */
#include "trunnion/backend.h"
#include "trunnion/data.h"

enum { ROUNDS = 6 };

static uint64_t mixed(uint64_t z) { /* SplitMix64's finalizer: Steele, Lea and Flood 2014 */
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static int64_t permuted(const tn_batches *b, int64_t place) {
    int half = 1;
    while (half < 31 && (int64_t)1 << 2 * half < b->count)
        half++;
    uint64_t mask = ((uint64_t)1 << half) - 1, key = mixed(b->seed + 0x9E3779B97F4A7C15u * (uint64_t)(b->epoch + 1));
    uint64_t x = (uint64_t)place;
    do {
        uint64_t left = x >> half, right = x & mask;
        for (uint64_t round = 1; round <= ROUNDS; round++) {
            uint64_t next = left ^ (mixed(key + round * 0xD1342543DE82EF95u + right) & mask);
            left = right;
            right = next;
        }
        x = left << half | right;
    } while (x >= (uint64_t)b->count);
    return (int64_t)x;
}

int64_t tn_batches_per_epoch(const tn_batches *b) {
    tn_batches o = TN_BATCHES_DEFAULTS;
    if (!b || tn_options_read(&o, b, "tn_batches", "tn_batches b = TN_BATCHES_DEFAULTS") != TN_OK) return 0;
    int64_t batches = o.batch < 1 ? 0 : o.drop_last ? o.count / o.batch : o.count / o.batch + (o.count % o.batch != 0);
    if (o.count >= 1 && o.count <= INT64_C(1) << 60 && batches >= 1 && o.epoch >= 0 && o.next >= 0) return batches;
    (void)tn_backend_fail(TN_ERR_ARGUMENT,
                          "tn_batches: %lld samples in batches of %lld%s at epoch %lld, batch %lld; there must be at "
                          "least one batch, and no negative number",
                          (long long)o.count, (long long)o.batch, o.drop_last ? " (drop_last)" : "", (long long)o.epoch,
                          (long long)o.next);
    return 0;
}

int64_t tn_batches_next(tn_batches *b, int64_t *indices) {
    int64_t batches = tn_batches_per_epoch(b);
    if (batches == 0 || !indices) return 0;
    if (b->next >= batches) {
        b->next = 0;
        b->epoch++;
    }
    int64_t first = b->next++ * b->batch, count = b->count - first < b->batch ? b->count - first : b->batch;
    for (int64_t i = 0; i < count; i++)
        indices[i] = b->shuffle ? permuted(b, first + i) : first + i;
    return count;
}
