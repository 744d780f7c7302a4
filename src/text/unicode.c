/* unicode.c — memory and buffers of libtrunnion-text, UTF-8, and properties of characters. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "text/hf.h"
#include "text/text_common.h"
#include "text/tokenizer.h"

/* ==== memory and buffers ========================================================================================== */
/* Blocks are malloc's; the counters keep the promise that a failed allocation anywhere leaves a clean error and no
 * leak. */

static _Atomic int64_t live_blocks;
static _Atomic int64_t fail_countdown; /* at 1 the next allocation fails; at 0 or below none does */

static bool told_to_fail(void) {
    if (atomic_load_explicit(&fail_countdown, memory_order_relaxed) <= 0) return false;
    return atomic_fetch_sub_explicit(&fail_countdown, 1, memory_order_relaxed) == 1;
}

/* count · size as a request for malloc, at least 1; SIZE_MAX, which no malloc can serve, when it overflows. */
static size_t text_bytes_of(size_t count, size_t size) {
    if (size != 0 && count > (SIZE_MAX >> 1) / size) return SIZE_MAX;
    return count * size > 0 ? count * size : 1;
}

static tn_status text_out_of_memory(size_t count, size_t size) {
    return tn_backend_fail(TN_ERR_MEMORY, "out of host memory: %zu times %zu bytes could not be allocated", count,
                           size);
}

static void *text_counted(void *p, size_t count, size_t size) {
    if (p)
        atomic_fetch_add_explicit(&live_blocks, 1, memory_order_relaxed);
    else
        text_out_of_memory(count, size);
    return p;
}

void *tn_txt_alloc(size_t count, size_t size) {
    size_t bytes = text_bytes_of(count, size);
    return text_counted(told_to_fail() || bytes == SIZE_MAX ? NULL : malloc(bytes), count, size);
}

void *tn_txt_zalloc(size_t count, size_t size) {
    size_t bytes = text_bytes_of(count, size);
    return text_counted(told_to_fail() || bytes == SIZE_MAX ? NULL : calloc(1, bytes), count, size);
}

void tn_txt_free(void *p) {
    if (p) atomic_fetch_sub_explicit(&live_blocks, 1, memory_order_relaxed);
    free(p);
}

void tn_txt_free_list(void *const *blocks, size_t count) {
    for (size_t i = 0; i < count; i++)
        tn_txt_free(blocks[i]);
}

tn_status tn_txt_grow(void *items, size_t *capacity, size_t need, size_t size) {
    void *old;
    memcpy(&old, items, sizeof old);
    size_t wanted = *capacity < SIZE_MAX / 2 ? *capacity * 2 : SIZE_MAX;
    if (wanted < need) wanted = need;
    if (wanted < 16) wanted = 16;
    size_t bytes = text_bytes_of(wanted, size);
    void *grown = told_to_fail() || bytes == SIZE_MAX ? NULL : realloc(old, bytes);
    if (!grown) return text_out_of_memory(wanted, size);
    if (!old) atomic_fetch_add_explicit(&live_blocks, 1, memory_order_relaxed);
    memcpy(items, &grown, sizeof grown);
    *capacity = wanted;
    return TN_OK;
}

void tn_txt_fail_at(int64_t n) { atomic_store(&fail_countdown, n); }

int64_t tn_txt_live_blocks(void) { return atomic_load(&live_blocks); }

/* ---- buffers ----------------------------------------------------------------------------------------------------- */

tn_status tn_bytes_append(tn_bytes *b, const void *data, size_t size) {
    if (size >= SIZE_MAX / 2 - b->size) return text_out_of_memory(size, 1);
    TRY(tn_txt_reserve(&b->data, &b->capacity, b->size + size + 1, 1));
    if (size > 0) memcpy(b->data + b->size, data, size);
    b->size += size;
    b->data[b->size] = 0;
    return TN_OK;
}

tn_status tn_ids_append(tn_ids *ids, int32_t id) {
    TRY(tn_txt_reserve(&ids->data, &ids->capacity, ids->count + 1, sizeof *ids->data));
    ids->data[ids->count++] = id;
    return TN_OK;
}

void tn_bytes_free(tn_bytes *b) {
    if (!b) return;
    tn_txt_free(b->data);
    *b = (tn_bytes){0};
}

void tn_ids_free(tn_ids *ids) {
    if (!ids) return;
    tn_txt_free(ids->data);
    *ids = (tn_ids){0};
}

/* ==== UTF-8 ======================================================================================================= */
/* utf8proc does the decoding; these functions add this library's conventions: sizes are size_t, failure is 0. */

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

/* ==== properties of characters ==================================================================================== */

/* ---- an older Unicode -------------------------------------------------------------------------------------------- */

/* The library's tables are of several versions of Unicode, 8 (punctuation, nonspacing, other) and 9 (marks, and forms
 * of normalization); models were trained with these. So characters that came later are none of these to us either. The
 * ranges hold also what is of another kind in between; tools/text/compare_tokenizers.py finds what is missing here. */
typedef struct range {
    uint32_t first, last;
} range;

static const range later_punctuation[] = {{0x61d, 0x61d},     {0x9fd, 0xa76},     {0xc77, 0xc84},
                                          {0x1b7d, 0x1b7e},   {0x2e43, 0x2e5d},   {0x10ead, 0x10f89},
                                          {0x1144b, 0x1145d}, {0x11660, 0x116b9}, {0x1183b, 0x11fff},
                                          {0x12ff1, 0x12ff2}, {0x16e97, 0x16fe2}, {0x1e95e, 0x1e95f}};

static const range later_other[] = {{0x890, 0x8e2}, {0x110cd, 0x1343f}};

static const range later_nonspacing[] = {
    {0x7fd, 0x7fd},     {0x898, 0x8e1},     {0x9fe, 0x9fe},     {0xafa, 0xaff},     {0xb55, 0xb55},
    {0xc04, 0xc3c},     {0xd00, 0xd00},     {0xd3b, 0xd3c},     {0xd81, 0xd81},     {0xeba, 0xeba},
    {0xece, 0xece},     {0x180f, 0x1886},   {0x1abf, 0x1ace},   {0x1df6, 0x1dfb},   {0xa82c, 0xa82c},
    {0xa8c5, 0xa8c5},   {0xa8ff, 0xa8ff},   {0xa9bd, 0xa9bd},   {0x10d24, 0x10f85}, {0x11070, 0x11074},
    {0x110c2, 0x110c2}, {0x111c9, 0x111c9}, {0x111cf, 0x111cf}, {0x1123e, 0x11241}, {0x1133b, 0x1133b},
    {0x11438, 0x1145e}, {0x1182f, 0x13455}, {0x16f4f, 0x16f4f}, {0x16fe4, 0x16fe4}, {0x1cf00, 0x1cf46},
    {0x1e000, 0x1e4ef}, {0x1e944, 0x1e94a}};

static const range later_mark[] = {
    {0x7fd, 0x7fd},     {0x898, 0x8d3},     {0x9fe, 0x9fe},     {0xafa, 0xaff},     {0xb55, 0xb55},
    {0xc04, 0xc3c},     {0xcf3, 0xd00},     {0xd3b, 0xd3c},     {0xd81, 0xd81},     {0xeba, 0xeba},
    {0xece, 0xece},     {0x1715, 0x1715},   {0x180f, 0x180f},   {0x1abf, 0x1ace},   {0x1cf7, 0x1cf7},
    {0x1df6, 0x1dfa},   {0xa82c, 0xa82c},   {0xa8ff, 0xa8ff},   {0x10d24, 0x10f85}, {0x11070, 0x11074},
    {0x110c2, 0x110c2}, {0x11145, 0x11146}, {0x111c9, 0x111c9}, {0x111ce, 0x111cf}, {0x11241, 0x11241},
    {0x1133b, 0x1133b}, {0x1145e, 0x1145e}, {0x1182c, 0x11a99}, {0x11d31, 0x13455}, {0x16f4f, 0x16f4f},
    {0x16f7f, 0x16f87}, {0x16fe4, 0x16ff1}, {0x1cf00, 0x1cf46}, {0x1e08f, 0x1e4ef}};

static const range later_forms[] = {{0x32ff, 0x32ff},   {0xa7f2, 0xa7f4},   {0xab69, 0xab69},   {0x10781, 0x107ba},
                                    {0x11938, 0x11938}, {0x1e030, 0x1e06d}, {0x1f16c, 0x1f16c}, {0x1fbf0, 0x1fbf9}};

static bool inside(const range *ranges, size_t count, uint32_t c) {
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (c > ranges[middle].last)
            low = middle + 1;
        else
            high = middle;
    }
    return low < count && c >= ranges[low].first;
}

#define LATER(table, c) inside(table, sizeof table / sizeof *table, c)

bool tn_hf_is_later_form(uint32_t c) { return LATER(later_forms, c); }

/* ---- properties -------------------------------------------------------------------------------------------------- */

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
    const uint32_t marks = BIT(PC) | BIT(PD) | BIT(PS) | BIT(PE) | BIT(PI) | BIT(PF) | BIT(PO);
    return has_category(c, marks) ? !LATER(later_punctuation, c) : c == 0x166d || c == 0x111c9;
}

bool tn_hf_is_other(uint32_t c) {
    if (c < 0x80) return c < 32 || c == 127;
    return has_category(c, BIT(CC) | BIT(CF) | BIT(CO)) && !LATER(later_other, c);
}

bool tn_hf_is_mark(uint32_t c) {
    if (c < 0x300) return false;
    return has_category(c, BIT(MN) | BIT(MC) | BIT(ME)) ? !LATER(later_mark, c) : c == 0x1cf2 || c == 0x1cf3;
}

bool tn_hf_is_nonspacing(uint32_t c) {
    if (c < 0x300) return false;
    return has_category(c, BIT(MN)) ? !LATER(later_nonspacing, c) : c == 0x1734;
}

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
