/* json.h — reading JSON: what stands beside a model's weights (config.json, tokenizer.json) comes in it.
 *
 * A strict reader of RFC 8259: UTF-8 alone, no lone surrogates, numbers within a double's range. Limits: 64 levels, 64
 * MiB of text, 4 M values. Values belong to their document and are valid until it is freed. All that read a value
 * accept NULL as one that is absent, so a path is followed without looking at every step:
 *
 *   tn_json_doc *doc;
 *   tn_json_open("config.json", &doc);
 *   int64_t layers = tn_json_int(tn_json_get(tn_json_root(doc), "num_hidden_layers"), -1);
 *   tn_json_free(doc);
 *
 * Threads: a document is read by any number of threads at once. */
#ifndef TRUNNION_JSON_H
#define TRUNNION_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "trunnion/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum tn_json_kind {
    TN_JSON_NULL,
    TN_JSON_BOOL,
    TN_JSON_NUMBER,
    TN_JSON_STRING,
    TN_JSON_ARRAY,
    TN_JSON_OBJECT
} tn_json_kind;

typedef struct tn_json tn_json; /* a value */
typedef struct tn_json_doc tn_json_doc;

/* Reads a text; nothing is kept of it. *out: freed with tn_json_free. Errors: TN_ERR_FORMAT naming the byte and what is
 * wrong there, or the limit; TN_ERR_MEMORY. */
TN_API tn_status tn_json_parse(const char *text, size_t length, tn_json_doc **out);
/* The same for a file, which the errors name; TN_ERR_IO when it cannot be read. */
TN_API tn_status tn_json_open(const char *path, tn_json_doc **out);
TN_API void tn_json_free(tn_json_doc *d); /* NULL is fine */

TN_API const tn_json *tn_json_root(const tn_json_doc *d);
TN_API tn_json_kind tn_json_kind_of(const tn_json *v); /* TN_JSON_NULL for one that is absent */
TN_API size_t tn_json_length(const tn_json *v);        /* of an array, object or string (bytes); else 0 */

/* Array item or object member value, at once; NULL past the end. */
TN_API const tn_json *tn_json_at(const tn_json *v, size_t i);
TN_API const char *tn_json_key(const tn_json *v, size_t i);   /* an object member's key; NULL past the end */
TN_API size_t tn_json_key_length(const tn_json *v, size_t i); /* its bytes, for it may hold a NUL; 0 past the end */
/* NULL when absent or v is no object; of equal keys the last. Takes time in proportion to the length. */
TN_API const tn_json *tn_json_get(const tn_json *v, const char *key);

/* The value, or `fallback` for one of another kind. */
TN_API bool tn_json_bool(const tn_json *v, bool fallback);
TN_API double tn_json_number(const tn_json *v, double fallback);
TN_API int64_t tn_json_int(const tn_json *v, int64_t fallback); /* exact for integers that fit; else fallback */
/* Ends with a NUL, and may hold others before it. */
TN_API const char *tn_json_string(const tn_json *v, const char *fallback);

#ifdef __cplusplus
}
#endif
#endif
