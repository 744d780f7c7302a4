/* json.h — a JSON reader, for files such as config.json and tokenizer.json.
 *
 * Strict RFC 8259: only UTF-8, no unpaired surrogates, numbers within the range of a double. Limits: 64 levels, 64 MiB
 * of text, 4 M values. Values belong to their document and are valid until it is freed. All functions that read a value
 * accept NULL as an absent value, so a path can be followed without checking every step:
 *
 *   tn_json_doc *doc;
 *   tn_json_open("config.json", &doc);
 *   int64_t layers = tn_json_int(tn_json_get(tn_json_root(doc), "num_hidden_layers"), -1);
 *   tn_json_free(doc);
 *
 * Threads: any number may read a document at once. */
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

/* Parses a text, which may be freed afterwards. A byte order mark before it is skipped. *out: freed with tn_json_free.
 * Errors: TN_ERR_FORMAT with the byte and what is wrong, or the exceeded limit; TN_ERR_MEMORY. Source: RFC 8259. */
TN_API tn_status tn_json_parse(const char *text, size_t length, tn_json_doc **out);
/* The same for a file, whose name is in the errors; TN_ERR_IO if it cannot be read. */
TN_API tn_status tn_json_open(const char *path, tn_json_doc **out);
TN_API void tn_json_free(tn_json_doc *d); /* NULL is allowed */

TN_API const tn_json *tn_json_root(const tn_json_doc *d);
TN_API tn_json_kind tn_json_kind_of(const tn_json *v); /* TN_JSON_NULL for an absent value */
TN_API size_t tn_json_length(const tn_json *v);        /* of an array, object or string (in bytes); otherwise 0 */

/* Returns item i of an array or value i of an object, in constant time; NULL if i is out of range. */
TN_API const tn_json *tn_json_at(const tn_json *v, size_t i);
TN_API const char *tn_json_key(const tn_json *v, size_t i);   /* an object member's key; NULL past the end */
TN_API size_t tn_json_key_length(const tn_json *v, size_t i); /* its bytes, for it may hold a NUL; 0 past the end */
/* Returns the member of an object, the last one for equal keys; NULL if absent or v is not an object. Takes time in
 * proportion to the length. */
TN_API const tn_json *tn_json_get(const tn_json *v, const char *key);

/* Return the value, or `fallback` if it is absent or of another kind. */
TN_API bool tn_json_bool(const tn_json *v, bool fallback);
TN_API double tn_json_number(const tn_json *v, double fallback);
TN_API int64_t tn_json_int(const tn_json *v, int64_t fallback); /* exact for integers that fit; else fallback */
/* The string ends with a NUL, and may contain others. */
TN_API const char *tn_json_string(const tn_json *v, const char *fallback);

#ifdef __cplusplus
}
#endif
#endif
