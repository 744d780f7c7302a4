/* options.c — reads the options structs of callers; the only place that decides which are accepted.
 *
 * A struct that was started from its TN_…_DEFAULTS carries a mark in struct_size (status.h). Without the mark, fields
 * that the caller did not set may be zeros instead of defaults, so the struct is refused; the error shows the line to
 * write. */
#include "base/options.h"

#include <string.h>

#include "base/base.h"

tn_status tn_options_refuse(const void *given, size_t known, const char *function, const char *initialiser) {
    size_t size, bytes;
    memcpy(&size, given, sizeof size);
    bytes = size & ~TN_OPTIONS_MARK_BITS;
    if ((size & TN_OPTIONS_MARK_BITS) == TN_OPTIONS_MARK && bytes > known)
        return tn_fail(TN_ERR_ARGUMENT,
                       "%s: the options have %zu bytes, this library knows %zu: the program was compiled with newer "
                       "headers; use the library that belongs to them",
                       function, bytes, known);
    return tn_fail(TN_ERR_ARGUMENT,
                   "%s: the options were not started from their defaults (struct_size is %zu): write %s; and then set "
                   "fields",
                   function, size, initialiser);
}

tn_status tn_options_read(void *to, const void *given, const char *function, const char *initialiser) {
    if (!to || !function || !initialiser) return tn_fail(TN_ERR_ARGUMENT, "tn_options_read: an argument is NULL");
    if (!given) return TN_OK;
    size_t known = tn_options_covers(to, SIZE_MAX), bytes = tn_options_covers(given, known);
    if (!bytes) return tn_options_refuse(given, known, function, initialiser);
    memcpy((char *)to + sizeof(size_t), (const char *)given + sizeof(size_t), bytes - sizeof(size_t));
    return TN_OK;
}

void tn_options_write(void *given, const void *from) {
    size_t bytes = tn_options_covers(given, SIZE_MAX);
    memcpy((char *)given + sizeof(size_t), (const char *)from + sizeof(size_t), bytes - sizeof(size_t));
}
