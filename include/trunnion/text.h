/* text.h — the second library, libtrunnion-text: what stands between text and a language model's token ids.
 *
 * It needs PCRE2 and utf8proc and uses libtrunnion through its public headers alone. Errors are tn_status values whose
 * text tn_error() gives, as everywhere in Trunnion.
 *
 * Results of unknown length are appended to a buffer of the caller's, which may be used again and again:
 *   tn_ids ids = {0};                  // empty
 *   … calls that append …
 *   tn_ids_free(&ids); */
#ifndef TRUNNION_TEXT_H
#define TRUNNION_TEXT_H

#include "trunnion/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- buffers ----------------------------------------------------------------------------------------------------- */

/* Bytes, by convention UTF-8. data is NULL, or followed by a NUL that size does not count. */
typedef struct tn_bytes {
    char *data;
    size_t size, capacity;
} tn_bytes;

/* Token ids. */
typedef struct tn_ids {
    int32_t *data;
    size_t count, capacity;
} tn_ids;

/* Appends a copy of `size` bytes. A failure (TN_ERR_MEMORY) leaves the buffer as it was. */
TN_API tn_status tn_bytes_append(tn_bytes *b, const void *data, size_t size);
TN_API tn_status tn_ids_append(tn_ids *ids, int32_t id);

/* Give the memory back and leave an empty buffer; NULL is fine. */
TN_API void tn_bytes_free(tn_bytes *b);
TN_API void tn_ids_free(tn_ids *ids);

#ifdef __cplusplus
}
#endif
#endif
