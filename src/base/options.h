/* options.h — the steps of tn_options_read (status.h), for code that reads the fields of an options struct itself. */
#ifndef TN_OPTIONS_H
#define TN_OPTIONS_H

#include <string.h>

#include "trunnion/status.h"

/* The mark's half of struct_size, in 32 bits and in 64; the lower half counts bytes. */
#define TN_OPTIONS_MARK_BITS (~(size_t)0xFFFF)

/* Bytes of `given` that hold fields, struct_size included; 0 if it was not started from its initialiser, or has more
 * than the `known` ones. */
static inline size_t tn_options_covers(const void *given, size_t known) {
    size_t size;
    memcpy(&size, given, sizeof size);
    size_t bytes = size & ~TN_OPTIONS_MARK_BITS;
    bool started = (size & TN_OPTIONS_MARK_BITS) == TN_OPTIONS_MARK;
    return started && bytes >= sizeof size && bytes <= known ? bytes : 0;
}

/* Sets and returns the error for a struct for which tn_options_covers is 0. */
tn_status tn_options_refuse(const void *given, size_t known, const char *function, const char *initialiser);

/* For structs that are also results: copies the fields of `from` back into `given`, as far as `given` has them.
 * tn_options_read must have accepted `given`. */
void tn_options_write(void *given, const void *from);

#endif
