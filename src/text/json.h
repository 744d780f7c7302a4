/* json.h — a JSON text as one array of values, for files of a tokenizer: hundreds of thousands of values, read once and
 * walked in order.
 *
 * A value's children stand right behind it, each with all that is inside it; `span` leads from a value to the next one.
 * (Templates read JSON into their own kinds of values, jinja_json.c.) */
#ifndef TN_TEXT_JSON_H
#define TN_TEXT_JSON_H

#include "text/common.h"

typedef enum tn_txt_json_kind {
    TN_TXT_JSON_NULL,
    TN_TXT_JSON_BOOL,
    TN_TXT_JSON_NUMBER,
    TN_TXT_JSON_STRING,
    TN_TXT_JSON_ARRAY,
    TN_TXT_JSON_OBJECT
} tn_txt_json_kind;

typedef struct tn_txt_json {
    const char *key, *text; /* key: of an object's member; text: a string's bytes, no NUL behind */
    double number;
    uint32_t key_size, size; /* size: bytes of a string, children of an array or object */
    uint32_t span;           /* values of this one and all inside it */
    uint8_t kind;
    bool truth;
} tn_txt_json;

typedef struct tn_txt_json_doc {
    char *text; /* the strings, unescaped in place */
    tn_txt_json *values;
    size_t count, capacity;
} tn_txt_json_doc;

/* Reads a text strictly (RFC 8259); a lone surrogate becomes U+FFFD. `what` names it in errors, which tell the byte.
 * doc: freed with tn_txt_json_free in any case. */
tn_status tn_txt_json_read(const char *text, size_t size, const char *what, tn_txt_json_doc *doc);
void tn_txt_json_free(tn_txt_json_doc *doc);

static inline const tn_txt_json *tn_txt_json_first(const tn_txt_json *v) { return v + 1; }
static inline const tn_txt_json *tn_txt_json_next(const tn_txt_json *v) { return v + v->span; }

/* The member of an object (the last of equal ones), NULL for none, for v NULL or no object, and for a member that is
 * null: absent and null mean the same in these files. */
const tn_txt_json *tn_txt_json_get(const tn_txt_json *v, const char *key);
bool tn_txt_json_is(const tn_txt_json *v, const char *text);      /* a string of these bytes */
bool tn_txt_json_truth(const tn_txt_json *v, bool otherwise);     /* of a boolean */
tn_text_slice tn_txt_json_text(const tn_txt_json *v);             /* of a string; else NULL and 0 */
int64_t tn_txt_json_int(const tn_txt_json *v, int64_t otherwise); /* of a whole number below 2^53 */
static inline bool tn_txt_json_of(const tn_txt_json *v, tn_txt_json_kind kind) { return v && v->kind == kind; }

#endif
