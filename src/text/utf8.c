/* utf8.c — reading and writing UTF-8, strictly: no overlong forms, no surrogates, nothing above U+10FFFF.
 *
 * utf8proc does the decoding; what is here fixes the conventions of this library: sizes are size_t, failure is 0. */
#include <utf8proc.h>

#include "text/tokenizer.h"

size_t tn_txt_utf8(const char *text, size_t size, uint32_t *c) {
    utf8proc_int32_t code = -1;
    utf8proc_ssize_t part = size < 4 ? (utf8proc_ssize_t)size : 4;
    utf8proc_ssize_t length = size > 0 ? utf8proc_iterate((const utf8proc_uint8_t *)text, part, &code) : 0;
    if (length <= 0 || code < 0) return 0;
    if (c) *c = (uint32_t)code;
    return (size_t)length;
}

size_t tn_txt_utf8_write(uint32_t c, char *out) {
    return (size_t)utf8proc_encode_char((utf8proc_int32_t)c, (utf8proc_uint8_t *)out);
}

size_t tn_txt_utf8_valid(const char *text, size_t size) {
    size_t at = 0;
    while (at < size) {
        size_t length = (unsigned char)text[at] < 0x80 ? 1 : tn_txt_utf8(text + at, size - at, NULL);
        if (length == 0) break;
        at += length;
    }
    return at;
}
