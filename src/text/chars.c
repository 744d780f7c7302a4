/* chars.c — properties of characters that tokenizers ask for, from utf8proc's tables; ASCII is answered at once. */
#include <string.h>

#include <utf8proc.h>

#include "text/hf.h"

#define BIT(category) (1u << UTF8PROC_CATEGORY_##category)

static bool has_category(uint32_t c, uint32_t set) { return set >> utf8proc_category((utf8proc_int32_t)c) & 1; }

bool tn_hf_is_space(uint32_t c) {
    if (c < 0x80) return c == ' ' || (c >= 9 && c <= 13);
    return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
           c == 0x202f || c == 0x205f || c == 0x3000;
}

bool tn_hf_is_numeric(uint32_t c) {
    if (c < 0x80) return c >= '0' && c <= '9';
    return has_category(c, BIT(ND) | BIT(NL) | BIT(NO));
}

bool tn_hf_is_punctuation(uint32_t c) {
    if (c < 0x80) return (c > 32 && c < '0') || (c > '9' && c < 'A') || (c > 'Z' && c < 'a') || (c > 'z' && c < 127);
    return has_category(c, BIT(PC) | BIT(PD) | BIT(PS) | BIT(PE) | BIT(PI) | BIT(PF) | BIT(PO));
}

bool tn_hf_is_other(uint32_t c) {
    if (c < 0x80) return c < 32 || c == 127;
    return has_category(c, BIT(CC) | BIT(CF) | BIT(CO));
}

bool tn_hf_is_mark(uint32_t c) { return c >= 0x300 && has_category(c, BIT(MN) | BIT(MC) | BIT(ME)); }

bool tn_hf_is_nonspacing(uint32_t c) { return c >= 0x300 && has_category(c, BIT(MN)); }

/* Symbols that are Alphabetic: letters in circles and squares. */
static bool is_letter_symbol(uint32_t c) {
    return (c >= 0x24b6 && c <= 0x24e9) || (c >= 0x1f130 && c <= 0x1f149) || (c >= 0x1f150 && c <= 0x1f169) ||
           (c >= 0x1f170 && c <= 0x1f189);
}

bool tn_hf_is_word(uint32_t c) {
    if (c < 0x80) return (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z') || c == '_';
    const uint32_t letters = BIT(LU) | BIT(LL) | BIT(LT) | BIT(LM) | BIT(LO);
    const uint32_t others = BIT(MN) | BIT(MC) | BIT(ME) | BIT(ND) | BIT(NL) | BIT(PC);
    return has_category(c, letters | others) || is_letter_symbol(c) || c == 0x200c || c == 0x200d;
}

uint32_t tn_hf_lower(uint32_t c) {
    if (c < 0x80) return c >= 'A' && c <= 'Z' ? c + 32 : c;
    return (uint32_t)utf8proc_tolower((utf8proc_int32_t)c);
}

bool tn_hf_is_ascii(const char *text, size_t size) {
    uint64_t high = 0, part;
    size_t at = 0;
    for (; size - at >= sizeof part; at += sizeof part) {
        memcpy(&part, text + at, sizeof part);
        high |= part;
    }
    for (; at < size; at++)
        high |= (uint8_t)text[at];
    return !(high & 0x8080808080808080u);
}
