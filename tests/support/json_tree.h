/* json_tree.h — writes a parsed JSON value again: parse, write, parse, write must give the same text twice. */
#ifndef TN_JSON_TREE_H
#define TN_JSON_TREE_H

#include <string.h>

#include "base/base.h"

static inline void write_json_value(tn_json_writer *w, const tn_json *v);

static inline void write_json_children(tn_json_writer *w, const tn_json *v) {
    for (size_t i = 0; i < tn_json_length(v); i++) {
        if (tn_json_key(v, i) != NULL) tn_json_put_key(w, tn_json_key(v, i));
        write_json_value(w, tn_json_at(v, i));
    }
}

static inline void write_json_number(tn_json_writer *w, const tn_json *v) {
    int64_t integer = tn_json_int(v, 0);
    bool is_int = tn_json_int(v, 1) == integer && (integer != 0 || tn_json_number(v, 1) != 0);
    if (is_int) {
        tn_json_put_int(w, integer);
    } else {
        tn_json_put_number(w, tn_json_number(v, 0));
    }
}

static inline void write_json_value(tn_json_writer *w, const tn_json *v) {
    switch (tn_json_kind_of(v)) {
    case TN_JSON_NULL: tn_json_put_null(w); return;
    case TN_JSON_BOOL: tn_json_put_bool(w, tn_json_bool(v, false)); return;
    case TN_JSON_NUMBER: write_json_number(w, v); return;
    case TN_JSON_STRING: tn_json_put_string(w, tn_json_string(v, "")); return;
    case TN_JSON_ARRAY:
        tn_json_begin_array(w);
        write_json_children(w, v);
        tn_json_end_array(w);
        return;
    case TN_JSON_OBJECT:
        tn_json_begin_object(w);
        write_json_children(w, v);
        tn_json_end_object(w);
        return;
    }
}

/* Appends `text`, parsed and written again, to `out`. The writer goes one level less deep than the reader: then
 * out->failed is set and the status is still TN_OK. */
static inline tn_status rewrite_json(const char *text, size_t length, tn_str *out) {
    tn_json_doc *doc;
    TRY(tn_json_parse(text, length, &doc));
    tn_json_writer w = {.out = out};
    write_json_value(&w, tn_json_root(doc));
    tn_json_free(doc);
    return TN_OK;
}

#endif
