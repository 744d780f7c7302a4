/* kir_cases.h — kernel programs made by hand: every operation on every type, every dtype in memory, every reduction,
 * nested loops, workgroups. Random programs (kir_random.h) mix; these make sure that nothing is left out, and as they
 * never change by themselves, their texts in other languages can be compared with those of yesterday.
 *
 * They come in the form of kir_random, so that whatever runs those runs these. */
#ifndef TN_KIR_CASES_H
#define TN_KIR_CASES_H

#include "kir_random.h"

typedef struct kir_case {
    const char *name;
    kir_type type;
    void (*make)(kir_random *t, kir_type type);
    bool group, f64; /* has workgroups; computes with doubles */
} kir_case;

extern const kir_case kir_cases[];
extern const int kir_case_count;

/* To be freed with kir_random_free. Fails the test when it cannot be built. */
void kir_case_make(kir_random *t, const kir_case *c);

#endif
