/* normalizer.c — the normalizers of tokenizer.json, which rewrite a text before it is split into words.
 *
 * They run one after another, from one buffer into another. The size of the result is limited, because a file can
 * demand that each letter be replaced by a long text. `first` tracks the position of the text's first byte as the
 * tokenizers package does; a later step may ask whether a word is at the start of the input. */
#include <string.h>

#include <utf8proc.h>

#include "text/hf.h"

/* ---- Unicode's normal forms -------------------------------------------------------------------------------------- */

static tn_status normalizer_out_of_memory(void) { return tn_backend_fail(TN_ERR_MEMORY, "tokenizer: out of memory"); }

static int class_of(int32_t c) { return c < 0x300 ? 0 : utf8proc_get_property(c)->combining_class; }

/* Sorts marks after a letter by their class, those of one class stay in order. A few by insertion, many by counting:
 * hostile texts are made of marks. `room` holds as many again. */
static void sort_marks(int32_t *marks, size_t count, int32_t *room) {
    if (count <= 16) {
        for (size_t i = 1; i < count; i++) {
            int32_t mark = marks[i];
            size_t at = i;
            for (int class = class_of(mark); at > 0 && class_of(marks[at - 1]) > class; at--)
                marks[at] = marks[at - 1];
            marks[at] = mark;
        }
        return;
    }
    size_t places[257] = {0};
    for (size_t i = 0; i < count; i++)
        places[class_of(marks[i]) + 1]++;
    for (int i = 1; i < 257; i++)
        places[i] += places[i - 1];
    for (size_t i = 0; i < count; i++)
        room[places[class_of(marks[i])]++] = marks[i];
    memcpy(marks, room, count * sizeof *marks);
}

static void order_marks(int32_t *codes, size_t count, int32_t *room) {
    for (size_t at = 0; at < count;) {
        size_t end = at;
        while (end < count && class_of(codes[end]) != 0)
            end++;
        if (end - at > 1) sort_marks(codes + at, end - at, room);
        at = end > at ? end : at + 1;
    }
}

/* The text's characters, taken apart and in canonical order, in w->codes. */
static tn_status decompose(tn_hf_work *w, const char *text, size_t size, int options, size_t *count) {
    enum { MOST = 32 }; /* characters that one becomes: 18 in Unicode 15 */
    size_t n = 0;
    for (size_t at = 0; at < size;) {
        uint32_t c;
        int boundary = 0;
        TRY(tn_txt_reserve(&w->codes, &w->code_capacity, n + MOST, sizeof *w->codes));
        at += tn_hf_char(text + at, size - at, &c);
        if (c < 0x80 || tn_hf_is_later_form(c)) {
            w->codes[n++] = (int32_t)c;
            continue;
        }
        utf8proc_ssize_t length =
            utf8proc_decompose_char((utf8proc_int32_t)c, w->codes + n, MOST, (utf8proc_option_t)options, &boundary);
        if (length < 0 || length > MOST)
            return tn_backend_fail(TN_ERR_INTERNAL, "tokenizer: U+%04X is not a valid code point", c);
        n += (size_t)length;
    }
    TRY(tn_txt_reserve(&w->codes, &w->code_capacity, 2 * n + MOST, sizeof *w->codes));
    order_marks(w->codes, n, w->codes + n);
    *count = n;
    return TN_OK;
}

static tn_status put_codes(tn_bytes *out, const int32_t *codes, size_t count) {
    TRY(tn_txt_reserve(&out->data, &out->capacity, out->size + 4 * count + 1, 1));
    for (size_t i = 0; i < count; i++)
        out->size += tn_txt_utf8_write((uint32_t)codes[i], out->data + out->size);
    out->data[out->size] = 0;
    return TN_OK;
}

static tn_status normal_form(tn_hf_work *w, const char *text, size_t size, int options, bool compose, tn_bytes *out) {
    size_t count = 0;
    if (tn_hf_is_ascii(text, size)) return tn_bytes_append(out, text, size);
    TRY(decompose(w, text, size, options, &count));
    if (compose) {
        const utf8proc_option_t how = UTF8PROC_COMPOSE | UTF8PROC_STABLE;
        utf8proc_ssize_t length = utf8proc_normalize_utf32(w->codes, (utf8proc_ssize_t)count, how);
        if (length < 0) return normalizer_out_of_memory();
        count = (size_t)length;
    }
    return put_codes(out, w->codes, count);
}

/* A function that appends what it makes of `text` to `out`. */
#define REWRITE(name)                                                                                         \
    static tn_status name(__attribute__((unused)) tn_hf_work *w, __attribute__((unused)) const tn_hf_step *s, \
                          const char *text, size_t size, tn_bytes *out, __attribute__((unused)) bool *first)

REWRITE(rewrite_nfd) { return normal_form(w, text, size, UTF8PROC_DECOMPOSE, false, out); }
REWRITE(rewrite_nfkd) { return normal_form(w, text, size, UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT, false, out); }
REWRITE(rewrite_nfc) { return normal_form(w, text, size, UTF8PROC_DECOMPOSE, true, out); }
REWRITE(rewrite_nfkc) { return normal_form(w, text, size, UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT, true, out); }

/* ---- character by character -------------------------------------------------------------------------------------- */

/* What becomes of a character: itself, another, or nothing. */
enum { NOTHING = 0x110000 };
typedef uint32_t (*mapping)(uint32_t c);

static tn_status map_characters(const char *text, size_t size, mapping map, tn_bytes *out, bool *first) {
    TRY(tn_txt_reserve(&out->data, &out->capacity, out->size + size + 1, 1));
    size_t begin = out->size;
    for (size_t at = 0; at < size;) {
        uint32_t c;
        at += tn_hf_char(text + at, size - at, &c);
        uint32_t to = map(c);
        if (to != NOTHING) TRY(tn_hf_put(out, to));
        if (to == NOTHING && out->size == begin) *first = false;
    }
    return tn_bytes_append(out, "", 0);
}

static uint32_t drop_mark(uint32_t c) { return tn_hf_is_mark(c) ? (uint32_t)NOTHING : c; }
static uint32_t drop_nonspacing(uint32_t c) { return tn_hf_is_nonspacing(c) ? (uint32_t)NOTHING : c; }

static uint32_t clean(uint32_t c) {
    if (c == '\t' || c == '\n' || c == '\r') return ' ';
    if (c == 0 || c == 0xfffd || tn_hf_is_other(c)) return NOTHING;
    return tn_hf_is_space(c) ? ' ' : c;
}

/* Control characters go, other kinds of spaces become one (the rules of Google's neural translation). */
static uint32_t clean_nmt(uint32_t c) {
    static const uint32_t spaces[] = {0x09, 0x0a, 0x0c, 0x0d, 0x1680, 0x2028, 0x2029, 0x2581, 0xfeff, 0xfffd};
    if ((c >= 1 && c <= 8) || c == 0x0b || (c >= 0x0e && c <= 0x1f) || c == 0x7f || c == 0x8f || c == 0x9f)
        return NOTHING;
    if (c >= 0x200b && c <= 0x200f) return ' ';
    for (size_t i = 0; i < sizeof spaces / sizeof *spaces; i++)
        if (c == spaces[i]) return ' ';
    return c;
}

REWRITE(rewrite_strip_accents) { return map_characters(text, size, drop_mark, out, first); }

REWRITE(rewrite_nmt) { return map_characters(text, size, clean_nmt, out, first); }

static tn_status lower(const char *text, size_t size, tn_bytes *out) {
    TRY(tn_txt_reserve(&out->data, &out->capacity, out->size + size + 1, 1));
    for (size_t at = 0; at < size;) {
        uint32_t c;
        at += tn_hf_char(text + at, size - at, &c);
        TRY(tn_hf_put(out, tn_hf_lower(c)));
        if (c == 0x130) TRY(tn_hf_put(out, 0x307)); /* the one letter whose small form is two characters */
    }
    return tn_bytes_append(out, "", 0);
}

REWRITE(rewrite_lowercase) { return lower(text, size, out); }

/* ---- BERT -------------------------------------------------------------------------------------------------------- */

enum { CLEAN, CHINESE, ACCENTS, LOWER }; /* BertNormalizer's options, in their order */

static tn_status read_bert(tn_hf_step *s, const tn_json *v) {
    s->on[CLEAN] = tn_json_bool(tn_hf_get(v, "clean_text"), true);
    s->on[CHINESE] = tn_json_bool(tn_hf_get(v, "handle_chinese_chars"), true);
    s->on[LOWER] = tn_json_bool(tn_hf_get(v, "lowercase"), true);
    s->on[ACCENTS] = tn_json_bool(tn_hf_get(v, "strip_accents"), s->on[LOWER]);
    return TN_OK;
}

static bool is_chinese(uint32_t c) {
    return (c >= 0x4e00 && c <= 0x9fff) || (c >= 0x3400 && c <= 0x4dbf) || (c >= 0x20000 && c <= 0x2a6df) ||
           (c >= 0x2a700 && c <= 0x2b73f) || (c >= 0x2b740 && c <= 0x2b81f) || (c >= 0x2b920 && c <= 0x2ceaf) ||
           (c >= 0xf900 && c <= 0xfaff) || (c >= 0x2f800 && c <= 0x2fa1f);
}

static tn_status space_chinese(const char *text, size_t size, tn_bytes *out) {
    for (size_t at = 0; at < size;) {
        uint32_t c;
        at += tn_hf_char(text + at, size - at, &c);
        bool chinese = c >= 0x3400 && is_chinese(c);
        if (chinese) TRY(tn_bytes_append(out, " ", 1));
        TRY(tn_hf_put(out, c));
        if (chinese) TRY(tn_bytes_append(out, " ", 1));
    }
    return tn_bytes_append(out, "", 0);
}

/* ASCII in one go: control characters go, white space is a space, letters become small. */
static tn_status bert_ascii(const tn_hf_step *s, const char *text, size_t size, tn_bytes *out, bool *first) {
    TRY(tn_txt_reserve(&out->data, &out->capacity, out->size + size + 1, 1));
    char *to = out->data + out->size, *begin = to;
    for (size_t i = 0; i < size; i++) {
        char c = text[i];
        if (s->on[CLEAN] && ((uint8_t)c < 32 || c == 127)) {
            bool space = c == '\t' || c == '\n' || c == '\r';
            if (space) *to++ = ' ';
            if (to == begin) *first = false;
            continue;
        }
        *to++ = s->on[LOWER] && c >= 'A' && c <= 'Z' ? (char)(c + 32) : c;
    }
    out->size = (size_t)(to - out->data);
    *to = 0;
    return TN_OK;
}

REWRITE(rewrite_bert) {
    if (tn_hf_is_ascii(text, size)) return bert_ascii(s, text, size, out, first);
    AUTO_BYTES tn_bytes a = {0}, b = {0};
    tn_bytes swap;
#define THEN(on, call)             \
    if (on) {                      \
        TRY(call);                 \
        swap = a, a = b, b = swap; \
        b.size = 0;                \
    }
    TRY(tn_bytes_append(&a, "", 0));
    TRY(tn_bytes_append(&a, text, size));
    THEN(s->on[CLEAN], map_characters(a.data, a.size, clean, &b, first))
    THEN(s->on[CHINESE], space_chinese(a.data, a.size, &b))
    THEN(s->on[ACCENTS], normal_form(w, a.data, a.size, UTF8PROC_DECOMPOSE, false, &b))
    THEN(s->on[ACCENTS], map_characters(a.data, a.size, drop_nonspacing, &b, first))
    THEN(s->on[LOWER], lower(a.data, a.size, &b))
#undef THEN
    return tn_bytes_append(out, a.data, a.size);
}

/* ---- ends, and replacing ----------------------------------------------------------------------------------------- */

static tn_status read_strip(tn_hf_step *s, const tn_json *v) {
    s->on[0] = tn_json_bool(tn_hf_get(v, "strip_left"), true);
    s->on[1] = tn_json_bool(tn_hf_get(v, "strip_right"), true);
    return TN_OK;
}

REWRITE(rewrite_strip) {
    size_t begin = 0, end = 0;
    bool leading = true;
    for (size_t at = 0; at < size;) {
        uint32_t c;
        at += tn_hf_char(text + at, size - at, &c);
        bool space = tn_hf_is_space(c);
        leading = leading && space;
        if (leading && s->on[0]) begin = at;
        if (!space || !s->on[1]) end = at;
    }
    if (begin > 0) *first = false;
    return tn_bytes_append(out, text + begin, end > begin ? end - begin : 0);
}

static tn_status read_prepend(tn_hf_step *s, const tn_json *v) { return tn_hf_read_text(v, "prepend", NULL, &s->text); }

REWRITE(rewrite_prepend) {
    if (size > 0) TRY(tn_bytes_append(out, s->text.data, s->text.size));
    return tn_bytes_append(out, text, size);
}

REWRITE(rewrite_replace) {
    size_t start = 0, begin, end;
    tn_hf_matches state = {0};
    TRY(tn_bytes_append(out, "", 0));
    while (size > 0) {
        bool found;
        uint32_t c;
        TRY(tn_hf_next_match(s->pattern, &w->matcher, text, size, &state, &found, &begin, &end));
        if (!found) break;
        TRY(tn_bytes_append(out, text + start, begin - start));
        TRY(tn_bytes_append(out, s->text.data, s->text.size));
        if (out->size > w->room)
            return tn_backend_fail(TN_ERR_UNSUPPORTED,
                                   "tokenizer: the normalizers expand a text of %zu bytes beyond %zu bytes", size,
                                   w->room);
        /* What is written for several characters belongs to the last of them. */
        bool several = end > begin && begin + tn_hf_char(text + begin, size - begin, &c) < end;
        if (begin == 0 && end > 0 && (several || s->text.size == 0)) *first = false;
        start = end;
    }
    return tn_bytes_append(out, text + start, size - start);
}

/* Each byte becomes GPT-2's letter for it. */
REWRITE(rewrite_letters) {
    TRY(tn_txt_reserve(&out->data, &out->capacity, out->size + 2 * size + 1, 1));
    for (size_t i = 0; i < size; i++)
        TRY(tn_hf_put(out, tn_txt_letter_of_byte((uint8_t)text[i])));
    return tn_bytes_append(out, "", 0);
}

/* ---- SentencePiece's map of characters --------------------------------------------------------------------------- */

/* A double array (Aoe 1989, as in Darts-clone): a unit tells the byte that leads to it and where its children are. */
static bool has_leaf(uint32_t unit) { return unit >> 8 & 1; }
static uint32_t label_of(uint32_t unit) { return unit & 0x800000ffu; }
static size_t offset_of(uint32_t unit) { return (size_t)(unit >> 10) << ((unit & 0x200u) >> 6); }

static int base64_digit(char c) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *place = c ? strchr(digits, c) : NULL;
    return place ? (int)(place - digits) : -1;
}

static tn_status read_base64(tn_text_slice text, tn_bytes *out) {
    uint32_t bits = 0;
    int count = 0;
    TRY(tn_txt_reserve(&out->data, &out->capacity, text.size, 1));
    while (text.size > 0 && text.data[text.size - 1] == '=')
        text.size--;
    for (size_t i = 0; i < text.size; i++) {
        int digit = base64_digit(text.data[i]);
        if (digit < 0) return tn_backend_fail(TN_ERR_FORMAT, "tokenizer: precompiled_charsmap is not valid base64");
        bits = bits << 6 | (uint32_t)digit;
        if ((count += 6) < 8) continue;
        count -= 8;
        char byte = (char)(bits >> count);
        TRY(tn_bytes_append(out, &byte, 1));
    }
    return tn_bytes_append(out, "", 0);
}

static uint32_t little_endian(const char *at) {
    const uint8_t *b = (const uint8_t *)at;
    return b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

/* The blob: bytes of the tree, the tree, then what characters become, each with a NUL after. */
static tn_status read_precompiled(tn_hf_step *s, const tn_json *v) {
    TRY(read_base64(tn_hf_slice(tn_hf_get(v, "precompiled_charsmap")), &s->text));
    size_t tree = s->text.size >= 4 ? little_endian(s->text.data) : 0;
    if (s->text.size < 4 || tree > s->text.size - 4 || tree % 4 != 0 || tree == 0)
        return tn_backend_fail(TN_ERR_FORMAT, "tokenizer: precompiled_charsmap of %zu bytes has a tree of %zu",
                               s->text.size, tree);
    if (tn_txt_utf8_valid(s->text.data + 4 + tree, s->text.size - 4 - tree) < s->text.size - 4 - tree)
        return tn_backend_fail(TN_ERR_FORMAT, "tokenizer: precompiled_charsmap contains invalid UTF-8");
    s->unit_count = tree / 4;
    s->units = tn_txt_alloc(s->unit_count, sizeof *s->units);
    if (!s->units) return TN_ERR_MEMORY;
    for (size_t i = 0; i < s->unit_count; i++)
        s->units[i] = little_endian(s->text.data + 4 + 4 * i);
    TRY(tn_bytes_append(&s->more, s->text.data + 4 + tree, s->text.size - 4 - tree));
    tn_bytes_free(&s->text);
    return TN_OK;
}

/* What the shortest key at the begin of a text becomes; NULL where none begins. (The library takes that for the whole
 * text, and so do models that were trained with it.) */
static const char *find_mapped(const tn_hf_step *s, const char *text, size_t size) {
    size_t node = offset_of(s->units[0]);
    for (size_t i = 0; i < size && text[i]; i++) {
        uint8_t byte = (uint8_t)text[i];
        node ^= byte;
        if (node >= s->unit_count || label_of(s->units[node]) != byte) return NULL;
        uint32_t unit = s->units[node];
        node ^= offset_of(unit);
        if (!has_leaf(unit)) continue;
        uint32_t place = node < s->unit_count ? s->units[node] & 0x7fffffffu : UINT32_MAX;
        bool inside = place < s->more.size && ((uint8_t)s->more.data[place] & 0xc0) != 0x80;
        return inside ? s->more.data + place : "";
    }
    return NULL;
}

static tn_status put_mapped(tn_hf_work *w, tn_bytes *out, const char *mapped) {
    TRY(tn_bytes_append(out, mapped, strlen(mapped)));
    if (out->size > w->room)
        return tn_backend_fail(TN_ERR_UNSUPPORTED, "tokenizer: the normalizers expand the text beyond %zu bytes",
                               w->room);
    return TN_OK;
}

static tn_status map_grapheme(tn_hf_work *w, const tn_hf_step *s, const char *text, size_t size, tn_bytes *out) {
    const char *mapped = size < 6 ? find_mapped(s, text, size) : NULL;
    if (mapped) return put_mapped(w, out, mapped);
    for (size_t at = 0; at < size;) {
        uint32_t c;
        size_t length = tn_hf_char(text + at, size - at, &c);
        mapped = find_mapped(s, text + at, length);
        TRY(mapped ? put_mapped(w, out, mapped) : tn_bytes_append(out, text + at, length));
        at += length;
    }
    return TN_OK;
}

REWRITE(rewrite_precompiled) {
    uint32_t before = 0, c;
    utf8proc_int32_t state = 0;
    size_t begin = 0;
    for (size_t at = 0, length; at < size; at += length) {
        length = tn_hf_char(text + at, size - at, &c);
        bool breaks = at > 0 && utf8proc_grapheme_break_stateful((utf8proc_int32_t)before, (utf8proc_int32_t)c, &state);
        if (breaks) {
            TRY(map_grapheme(w, s, text + begin, at - begin, out));
            begin = at;
        }
        before = c;
    }
    TRY(map_grapheme(w, s, text + begin, size - begin, out));
    return tn_bytes_append(out, "", 0);
}

/* ---- the chain --------------------------------------------------------------------------------------------------- */

const tn_hf_row tn_hf_normalizers[] = {
    {.name = "BertNormalizer", .read = read_bert, .rewrite = rewrite_bert},
    {.name = "Strip", .read = read_strip, .rewrite = rewrite_strip},
    {.name = "StripAccents", .read = tn_hf_read_nothing, .rewrite = rewrite_strip_accents},
    {.name = "NFC", .read = tn_hf_read_nothing, .rewrite = rewrite_nfc},
    {.name = "NFD", .read = tn_hf_read_nothing, .rewrite = rewrite_nfd},
    {.name = "NFKC", .read = tn_hf_read_nothing, .rewrite = rewrite_nfkc},
    {.name = "NFKD", .read = tn_hf_read_nothing, .rewrite = rewrite_nfkd},
    {.name = "Lowercase", .read = tn_hf_read_nothing, .rewrite = rewrite_lowercase},
    {.name = "Nmt", .read = tn_hf_read_nothing, .rewrite = rewrite_nmt},
    {.name = "Precompiled", .read = read_precompiled, .rewrite = rewrite_precompiled},
    {.name = "Replace", .read = tn_hf_read_replace, .rewrite = rewrite_replace},
    {.name = "Prepend", .read = read_prepend, .rewrite = rewrite_prepend},
    {.name = "ByteLevel", .read = tn_hf_read_nothing, .rewrite = rewrite_letters},
    {0},
};

tn_status tn_hf_normalize(tn_hf_work *w, const char **text, size_t *size, bool *first) {
    const tn_hf_steps *steps = &w->hf->normalizers;
    w->room = *size < SIZE_MAX / TN_HF_MAX_GROWTH - 4096 ? *size * TN_HF_MAX_GROWTH + 4096 : SIZE_MAX / 2;
    for (int i = 0; i < steps->count; i++) {
        const tn_hf_step *s = &steps->items[i];
        tn_bytes *out = &w->normal[i & 1];
        out->size = 0;
        TRY(s->row->rewrite(w, s, *text, *size, out, first));
        if (out->size > w->room || out->size > INT32_MAX)
            return tn_backend_fail(TN_ERR_UNSUPPORTED,
                                   "tokenizer: the normalizers expand the text to %zu bytes from %zu", out->size,
                                   *size);
        *text = out->data;
        *size = out->size;
    }
    return TN_OK;
}
