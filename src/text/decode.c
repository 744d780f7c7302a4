/* decode.c — the decoders of tokenizer.json: from the spellings of tokens to text.
 *
 * A decoder takes a list of texts, one a token, and makes another list; the last list is joined. In a stream each token
 * is a list of its own: whether others came before is all that a decoder then knows of them. Bytes that are no UTF-8
 * stay as they are where a stream needs that, and where ByteLevel puts letters' bytes together. */
#include <string.h>

#include "text/hf.h"

/* ---- lists of texts ---------------------------------------------------------------------------------------------- */

static tn_text_slice text_at(const tn_hf_texts *texts, size_t i) {
    size_t begin = i > 0 ? texts->ends[i - 1] : 0;
    return (tn_text_slice){texts->text.data + begin, texts->ends[i] - begin};
}

static tn_status add_decoder(tn_hf_texts *texts, const char *text, size_t size) {
    return tn_bytes_append(&texts->text, text, size);
}

/* What was added since the last end is a text. */
static tn_status end_text(tn_hf_texts *texts) {
    TRY(tn_txt_reserve(&texts->ends, &texts->capacity, texts->count + 1, sizeof *texts->ends));
    texts->ends[texts->count++] = texts->text.size;
    return TN_OK;
}

static size_t open_size(const tn_hf_texts *texts) {
    return texts->text.size - (texts->count > 0 ? texts->ends[texts->count - 1] : 0);
}

static void free_texts(tn_hf_texts *texts) {
    tn_bytes_free(&texts->text);
    tn_txt_free(texts->ends);
}

/* Adds a text with every occurrence of one part replaced. */
static tn_status add_replaced(tn_hf_texts *out, tn_text_slice text, tn_text_slice part, tn_text_slice by) {
    size_t start = 0;
    for (size_t at = 0; part.size > 0 && at + part.size <= text.size;) {
        const char *found = memchr(text.data + at, part.data[0], text.size - at - part.size + 1);
        if (!found) break;
        at = (size_t)(found - text.data);
        if (memcmp(found, part.data, part.size) != 0) {
            at++;
            continue;
        }
        TRY(add_decoder(out, text.data + start, at - start));
        TRY(add_decoder(out, by.data, by.size));
        start = at += part.size;
    }
    return add_decoder(out, text.data + start, text.size - start);
}

static tn_text_slice slice(const tn_bytes *b) { return (tn_text_slice){b->data ? b->data : "", b->size}; }

/* ---- the decoders ------------------------------------------------------------------------------------------------ */

static bool all_letters(tn_text_slice text) {
    for (size_t at = 0, length; at < text.size; at += length) {
        uint32_t c;
        length = tn_hf_char(text.data + at, text.size - at, &c);
        if (tn_txt_byte_of_letter(c) < 0) return false;
    }
    return true;
}

static tn_status decode_byte_level(const tn_hf_step *s, const tn_hf_texts *in, tn_hf_texts *out) {
    (void)s;
    for (size_t i = 0; i < in->count; i++) {
        tn_text_slice text = text_at(in, i);
        bool letters = all_letters(text);
        if (!letters) TRY(add_decoder(out, text.data, text.size));
        for (size_t at = 0; letters && at < text.size;) {
            uint32_t c;
            at += tn_hf_char(text.data + at, text.size - at, &c);
            char byte = (char)tn_txt_byte_of_letter(c);
            TRY(add_decoder(out, &byte, 1));
        }
    }
    return end_text(out);
}

/* English as it is written: no space before marks, n't and the like. */
static tn_status add_cleaned(tn_hf_texts *out, tn_text_slice text) {
    static const char *const rules[][2] = {{" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
                                           {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
                                           {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
    tn_hf_texts now = {0}, next = {0};
    tn_status status = add_decoder(&now, text.data, text.size);
    for (size_t i = 0; i < sizeof rules / sizeof *rules && status == TN_OK; i++) {
        next.text.size = 0;
        status = add_replaced(&next, slice(&now.text), (tn_text_slice){rules[i][0], strlen(rules[i][0])},
                              (tn_text_slice){rules[i][1], strlen(rules[i][1])});
        const tn_hf_texts swap = now;
        now = next;
        next = swap;
    }
    if (status == TN_OK) status = add_decoder(out, now.text.data, now.text.size);
    free_texts(&now);
    free_texts(&next);
    return status;
}

static tn_status read_word_piece(tn_hf_step *s, const tn_json *v) {
    s->on[0] = tn_json_bool(tn_hf_get(v, "cleanup"), true);
    return tn_hf_read_text(v, "prefix", "##", &s->text);
}

static tn_status decode_word_piece(const tn_hf_step *s, const tn_hf_texts *in, tn_hf_texts *out) {
    tn_bytes word = {0};
    tn_status status = TN_OK;
    for (size_t i = 0; i < in->count && status == TN_OK; i++) {
        tn_text_slice text = text_at(in, i);
        bool later = i > 0 || in->begun, continues = later && tn_hf_begins(text.data, text.size, &s->text);
        size_t cut = continues ? s->text.size : 0;
        word.size = 0;
        status = tn_bytes_append(&word, " ", later && !continues ? 1 : 0);
        if (status == TN_OK) status = tn_bytes_append(&word, text.data + cut, text.size - cut);
        if (status == TN_OK)
            status = s->on[0] ? add_cleaned(out, slice(&word)) : add_decoder(out, word.data, word.size);
        if (status == TN_OK) status = end_text(out);
    }
    tn_bytes_free(&word);
    return status;
}

static tn_status read_metaspace(tn_hf_step *s, const tn_json *v) {
    const tn_json *scheme = tn_hf_get(v, "prepend_scheme"), *add_space = tn_hf_get(v, "add_prefix_space");
    s->on[0] = scheme ? !tn_hf_is(scheme, "never") : tn_json_bool(add_space, true);
    TRY(tn_hf_read_char(v, "replacement", &s->c));
    return tn_hf_put(&s->text, s->c);
}

static tn_status decode_metaspace(const tn_hf_step *s, const tn_hf_texts *in, tn_hf_texts *out) {
    for (size_t i = 0; i < in->count; i++) {
        bool drops = i == 0 && !in->begun && s->on[0];
        TRY(add_replaced(out, text_at(in, i), slice(&s->text), (tn_text_slice){" ", drops ? 0 : 1}));
        TRY(end_text(out));
    }
    return TN_OK;
}

static tn_status read_bpe(tn_hf_step *s, const tn_json *v) { return tn_hf_read_text(v, "suffix", "</w>", &s->text); }

static tn_status decode_bpe(const tn_hf_step *s, const tn_hf_texts *in, tn_hf_texts *out) {
    for (size_t i = 0; i < in->count; i++) {
        bool last = in->whole && i + 1 == in->count;
        TRY(add_replaced(out, text_at(in, i), slice(&s->text), (tn_text_slice){" ", last ? 0 : 1}));
        TRY(end_text(out));
    }
    return TN_OK;
}

static int hex_digit(char c) {
    return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
}

/* The byte that "<0x41>" spells, -1 for other texts. ("<0x+4>" is one too, as the library reads numbers.) */
static int byte_of(tn_text_slice text) {
    if (text.size != 6 || memcmp(text.data, "<0x", 3) != 0 || text.data[5] != '>') return -1;
    int high = text.data[3] == '+' ? 0 : hex_digit(text.data[3]), low = hex_digit(text.data[4]);
    return high < 0 || low < 0 ? -1 : 16 * high + low;
}

/* A run of bytes: a text if it is UTF-8, else U+FFFD for each. In a stream the bytes are waited for elsewhere. */
static tn_status end_bytes(const tn_hf_texts *in, const tn_bytes *bytes, tn_hf_texts *out) {
    if (bytes->size == 0) return TN_OK;
    if (!in->whole || tn_txt_utf8_valid(bytes->data, bytes->size) == bytes->size) {
        TRY(add_decoder(out, bytes->data, bytes->size));
        return end_text(out);
    }
    for (size_t i = 0; i < bytes->size; i++) {
        TRY(add_decoder(out, "\xef\xbf\xbd", 3));
        TRY(end_text(out));
    }
    return TN_OK;
}

static tn_status decode_byte_fallback(const tn_hf_step *s, const tn_hf_texts *in, tn_hf_texts *out) {
    (void)s;
    tn_bytes bytes = {0};
    tn_status status = TN_OK;
    for (size_t i = 0; i < in->count && status == TN_OK; i++) {
        tn_text_slice text = text_at(in, i);
        int byte = byte_of(text);
        char one = (char)byte;
        if (byte >= 0) {
            status = tn_bytes_append(&bytes, &one, 1);
            continue;
        }
        status = end_bytes(in, &bytes, out);
        bytes.size = 0;
        if (status == TN_OK) status = add_decoder(out, text.data, text.size);
        if (status == TN_OK) status = end_text(out);
    }
    if (status == TN_OK) status = end_bytes(in, &bytes, out);
    tn_bytes_free(&bytes);
    return status;
}

static tn_status decode_fuse(const tn_hf_step *s, const tn_hf_texts *in, tn_hf_texts *out) {
    (void)s;
    TRY(add_decoder(out, in->text.data, in->text.size));
    return end_text(out);
}

enum { FUSED }; /* Strip: it stands behind Fuse, so that in a stream it is for the begin of all */

static tn_status read_strip(tn_hf_step *s, const tn_json *v) {
    s->n = tn_json_int(tn_hf_get(v, "start"), 0);
    s->m = tn_json_int(tn_hf_get(v, "stop"), 0);
    TRY(tn_hf_read_char(v, "content", &s->c));
    return tn_hf_put(&s->text, s->c);
}

static tn_status decode_strip(const tn_hf_step *s, const tn_hf_texts *in, tn_hf_texts *out) {
    for (size_t i = 0; i < in->count; i++) {
        tn_text_slice text = text_at(in, i);
        bool begins = in->whole || !s->on[FUSED] || !in->begun, ends = in->whole || !s->on[FUSED];
        for (int64_t k = 0; begins && k < s->n && tn_hf_begins(text.data, text.size, &s->text); k++)
            text = (tn_text_slice){text.data + s->text.size, text.size - s->text.size};
        for (int64_t k = 0; ends && k < s->m && text.size >= s->text.size; k++) {
            if (memcmp(text.data + text.size - s->text.size, s->text.data, s->text.size) != 0) break;
            text.size -= s->text.size;
        }
        TRY(add_decoder(out, text.data, text.size));
        TRY(end_text(out));
    }
    return TN_OK;
}

static tn_status read_replace(tn_hf_step *s, const tn_json *v) {
    TRY(tn_hf_read_text(v, "content", NULL, &s->text));
    return tn_hf_read_pattern(tn_hf_get(v, "pattern"), &s->pattern);
}

static tn_status replace_one(const tn_hf_step *s, tn_txt_matcher *m, tn_text_slice text, tn_hf_texts *out) {
    size_t start = 0, begin, end;
    tn_hf_matches state = {0};
    TRY(tn_txt_matcher_set(m, text.size));
    while (text.size > 0 && tn_txt_utf8_valid(text.data, text.size) == text.size) {
        bool found;
        TRY(tn_hf_next_match(s->pattern, m, text.data, text.size, &state, &found, &begin, &end));
        if (!found) break;
        TRY(add_decoder(out, text.data + start, begin - start));
        TRY(add_decoder(out, s->text.data, s->text.size));
        start = end;
    }
    TRY(add_decoder(out, text.data + start, text.size - start));
    return end_text(out);
}

static tn_status decode_replace(const tn_hf_step *s, const tn_hf_texts *in, tn_hf_texts *out) {
    tn_txt_matcher matcher = {0};
    tn_status status = TN_OK;
    for (size_t i = 0; i < in->count && status == TN_OK; i++)
        status = replace_one(s, &matcher, text_at(in, i), out);
    tn_txt_matcher_free(&matcher);
    return status;
}

static tn_status read_ctc(tn_hf_step *s, const tn_json *v) {
    s->on[0] = tn_json_bool(tn_hf_get(v, "cleanup"), true);
    TRY(tn_hf_read_text(v, "pad_token", "<pad>", &s->text));
    return tn_hf_read_text(v, "word_delimiter_token", "|", &s->more);
}

/* Of tokens that repeat one counts; padding parts them and goes. */
static tn_status decode_ctc(const tn_hf_step *s, const tn_hf_texts *in, tn_hf_texts *out) {
    tn_hf_texts plain = {0}, clean = {0};
    tn_status status = TN_OK;
    for (size_t i = 0; i < in->count && status == TN_OK; i++) {
        tn_text_slice text = text_at(in, i), before = i > 0 ? text_at(in, i - 1) : (tn_text_slice){0};
        if (i > 0 && text.size == before.size && !memcmp(text.data, before.data, text.size)) continue;
        plain.text.size = clean.text.size = 0;
        status = add_replaced(&plain, text, slice(&s->text), (tn_text_slice){"", 0});
        if (status == TN_OK && s->on[0]) status = add_cleaned(&clean, slice(&plain.text));
        if (status == TN_OK)
            status = s->on[0] ? add_replaced(out, slice(&clean.text), slice(&s->more), (tn_text_slice){" ", 1})
                              : add_decoder(out, plain.text.data, plain.text.size);
        if (status == TN_OK && open_size(out) > 0) status = end_text(out);
    }
    free_texts(&plain);
    free_texts(&clean);
    return status;
}

const tn_hf_row tn_hf_decoders[] = {
    {.name = "ByteLevel", .read = tn_hf_read_nothing, .decode = decode_byte_level},
    {.name = "WordPiece", .read = read_word_piece, .decode = decode_word_piece},
    {.name = "Metaspace", .read = read_metaspace, .decode = decode_metaspace},
    {.name = "BPEDecoder", .read = read_bpe, .decode = decode_bpe},
    {.name = "ByteFallback", .read = tn_hf_read_nothing, .decode = decode_byte_fallback},
    {.name = "Fuse", .read = tn_hf_read_nothing, .decode = decode_fuse},
    {.name = "Strip", .read = read_strip, .decode = decode_strip},
    {.name = "Replace", .read = read_replace, .decode = decode_replace},
    {.name = "CTC", .read = read_ctc, .decode = decode_ctc},
    {0},
};

/* ---- ids to text ------------------------------------------------------------------------------------------------- */

static tn_status gather_decoder(const tn_tokenizer *t, const int32_t *ids, size_t count, unsigned flags,
                                tn_hf_texts *out) {
    const tn_hf *hf = t->hf;
    for (size_t i = 0; i < count; i++) {
        size_t size;
        const char *text = tn_tokenizer_spelling(t, ids[i], &size);
        if (!text)
            return tn_backend_fail(TN_ERR_ARGUMENT, "tokenizer: token %d is outside the vocabulary of %d", (int)ids[i],
                                   (int)t->count);
        bool hidden = t->types[ids[i]] == TN_TOKEN_CONTROL && !(flags & TN_DECODE_SPECIAL);
        if (hidden || size == 0) continue;
        if (hf->renamed && hf->renamed[ids[i]] >= 0) {
            text = hf->names.data + hf->renamed[ids[i]];
            size = strlen(text);
        }
        if (!hf->has_decoder && (out->count > 0 || out->begun)) TRY(add_decoder(out, " ", 1));
        TRY(add_decoder(out, text, size));
        TRY(end_text(out));
    }
    return TN_OK;
}

tn_status tn_hf_decode(const tn_tokenizer *t, const int32_t *ids, size_t count, unsigned flags, bool whole, bool begun,
                       tn_bytes *out) {
    const tn_hf_steps *steps = &t->hf->decoders;
    tn_hf_texts now = {.whole = whole, .begun = begun}, next = now;
    size_t before = out->size;
    tn_status status = gather_decoder(t, ids, count, flags, &now);
    for (int i = 0; i < steps->count && now.count > 0 && status == TN_OK; i++) {
        next.text.size = next.count = 0;
        status = steps->items[i].row->decode(&steps->items[i], &now, &next);
        const tn_hf_texts swap = now;
        now = next;
        next = swap;
    }
    if (status == TN_OK) status = tn_bytes_append(out, now.text.data, now.text.size);
    if (status != TN_OK && out->data) out->data[out->size = before] = 0;
    free_texts(&now);
    free_texts(&next);
    return status;
}
