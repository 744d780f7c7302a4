/* conform.h — what every driver has promised (trunnion/backend.h), tried on a device: memory, copies and their order,
 * threads, errors, and what it offers of fills, queues, events, pinned and mapped memory.
 *
 * `trunnion certify --device NAME` runs it before the operations. It includes the public header alone: an author of a
 * driver may as well compile conform.c with the driver and call conform_driver. */
#ifndef TN_CONFORM_H
#define TN_CONFORM_H

#include <stdio.h>

#include "trunnion/backend.h"

typedef struct conform_options {
    int64_t large;     /* bytes of the largest allocation that is tried; 0: 8 MiB */
    bool no_huge;      /* leave out an allocation that nobody has: here it ends the process */
    const char *only;  /* the one promise to try; NULL: all */
    const void *wrong; /* code of the device's form that load() must refuse; NULL: a text that is no code, if the form
                        * is a text */
    size_t wrong_size;
} conform_options;

typedef struct conform_result {
    int promises, skipped, broken; /* skipped: what the driver does not offer */
} conform_result;

/* Opens the index-th device that the driver's probe finds and tries all promises; a line for each that is broken goes
 * to `out`, and one at the end: "ran on: …". broken is at least 1 when there is no such device or it does not open.
 * options may be NULL. */
conform_result conform_driver(const tn_driver *driver, int index, const conform_options *options, FILE *out);

#endif
