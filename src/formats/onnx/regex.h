/* regex.h — regular expressions for RegexFullMatch: RE2's syntax, time in proportion to pattern times text. */
#ifndef TN_ONNX_REGEX_H
#define TN_ONNX_REGEX_H

#include "formats/onnx/onnx.h"

typedef struct onnx_regex onnx_regex;

/* Errors: TN_ERR_FORMAT for a pattern that is wrong, TN_ERR_UNSUPPORTED for flags, \p{…}, or one that is too large. */
tn_status onnx_regex_new(onnx_text pattern, onnx_regex **out);
/* Whether the whole text matches. Bytes that are no UTF-8 are characters of their own. */
bool onnx_regex_matches(onnx_regex *r, onnx_text text);
void onnx_regex_free(onnx_regex *r); /* NULL is fine */

#endif
