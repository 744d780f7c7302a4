/* null.h — what the null driver counted, for tests. */
#ifndef TN_DRIVERS_NULL_H
#define TN_DRIVERS_NULL_H

#include <stdint.h>

typedef struct tn_null_counts {
    int64_t opens, closes, allocs, frees, loads, unloads, launches, copies,
        syncs;                         /* calls that came; launches: their sum */
    int64_t live_blocks, live_modules; /* now */
    int64_t faults;                    /* calls that were not right, and things left over at close */
    char first_fault[160];             /* in words, "" without one */
} tn_null_counts;

tn_null_counts tn_null_get_counts(void);
void tn_null_reset_counts(void); /* all but what is live */

#endif
