/* decode.c — from tokens to text and from texts to model inputs: decoders, post-processors, truncation, padding, stop
 * strings. */
#include <string.h>

#include "text/hf.h"
#include "text/text_common.h"

/* ==== decoders ==================================================================================================== */
/* A decoder takes a list of texts, one a token, and makes another list; the last list is joined. In a stream each token
 * is a list of its own: whether others came before is all that a decoder then knows of them. Bytes that are no UTF-8
 * stay as they are where a stream needs that, and where ByteLevel puts letters' bytes together. */

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

static tn_status decode_byte_level(TN_UNUSED const tn_hf_step *s, const tn_hf_texts *in, tn_hf_texts *out) {
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
    AUTO_CALL(free_texts) tn_hf_texts now = {0}, next = {0};
    TRY(add_decoder(&now, text.data, text.size));
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        next.text.size = 0;
        TRY(add_replaced(&next, slice(&now.text), (tn_text_slice){rules[i][0], strlen(rules[i][0])},
                         (tn_text_slice){rules[i][1], strlen(rules[i][1])}));
        const tn_hf_texts swap = now;
        now = next;
        next = swap;
    }
    return add_decoder(out, now.text.data, now.text.size);
}

static tn_status read_word_piece(tn_hf_step *s, const tn_json *v) {
    s->on[0] = tn_json_bool(tn_hf_get(v, "cleanup"), true);
    return tn_hf_read_text(v, "prefix", "##", &s->text);
}

static tn_status decode_word_piece(const tn_hf_step *s, const tn_hf_texts *in, tn_hf_texts *out) {
    AUTO_BYTES tn_bytes word = {0};
    for (size_t i = 0; i < in->count; i++) {
        tn_text_slice text = text_at(in, i);
        bool later = i > 0 || in->begun, continues = later && tn_hf_begins(text.data, text.size, &s->text);
        size_t cut = continues ? s->text.size : 0;
        word.size = 0;
        TRY(tn_bytes_append(&word, " ", later && !continues ? 1 : 0));
        TRY(tn_bytes_append(&word, text.data + cut, text.size - cut));
        TRY(s->on[0] ? add_cleaned(out, slice(&word)) : add_decoder(out, word.data, word.size));
        TRY(end_text(out));
    }
    return TN_OK;
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

/* The byte that "<0x41>" spells, -1 for other texts. ("<0x+4>" is one too, as the library reads numbers.) */
static int byte_of(tn_text_slice text) {
    if (text.size != 6 || memcmp(text.data, "<0x", 3) != 0 || text.data[5] != '>') return -1;
    int high = text.data[3] == '+' ? 0 : tn_txt_hex(text.data[3]), low = tn_txt_hex(text.data[4]);
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

static tn_status decode_byte_fallback(TN_UNUSED const tn_hf_step *s, const tn_hf_texts *in, tn_hf_texts *out) {
    AUTO_BYTES tn_bytes bytes = {0};
    for (size_t i = 0; i < in->count; i++) {
        tn_text_slice text = text_at(in, i);
        int byte = byte_of(text);
        char one = (char)byte;
        if (byte >= 0) {
            TRY(tn_bytes_append(&bytes, &one, 1));
            continue;
        }
        TRY(end_bytes(in, &bytes, out));
        bytes.size = 0;
        TRY(add_decoder(out, text.data, text.size));
        TRY(end_text(out));
    }
    return end_bytes(in, &bytes, out);
}

static tn_status decode_fuse(TN_UNUSED const tn_hf_step *s, const tn_hf_texts *in, tn_hf_texts *out) {
    TRY(add_decoder(out, in->text.data, in->text.size));
    return end_text(out);
}

enum { FUSED }; /* Strip: it stands after Fuse, so that in a stream it is for the begin of all */

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
    AUTO_CALL(tn_txt_matcher_free) tn_txt_matcher matcher = {0};
    for (size_t i = 0; i < in->count; i++)
        TRY(replace_one(s, &matcher, text_at(in, i), out));
    return TN_OK;
}

static tn_status read_ctc(tn_hf_step *s, const tn_json *v) {
    s->on[0] = tn_json_bool(tn_hf_get(v, "cleanup"), true);
    TRY(tn_hf_read_text(v, "pad_token", "<pad>", &s->text));
    return tn_hf_read_text(v, "word_delimiter_token", "|", &s->more);
}

/* Of tokens that repeat one counts; padding parts them and goes. */
static tn_status decode_ctc(const tn_hf_step *s, const tn_hf_texts *in, tn_hf_texts *out) {
    AUTO_CALL(free_texts) tn_hf_texts plain = {0}, clean = {0};
    for (size_t i = 0; i < in->count; i++) {
        tn_text_slice text = text_at(in, i), before = i > 0 ? text_at(in, i - 1) : (tn_text_slice){0};
        if (i > 0 && text.size == before.size && !memcmp(text.data, before.data, text.size)) continue;
        plain.text.size = clean.text.size = 0;
        TRY(add_replaced(&plain, text, slice(&s->text), (tn_text_slice){"", 0}));
        if (s->on[0]) TRY(add_cleaned(&clean, slice(&plain.text)));
        TRY(s->on[0] ? add_replaced(out, slice(&clean.text), slice(&s->more), (tn_text_slice){" ", 1})
                     : add_decoder(out, plain.text.data, plain.text.size));
        if (open_size(out) > 0) TRY(end_text(out));
    }
    return TN_OK;
}

const tn_hf_row tn_hf_decoders[] = {
    {.name = "ByteLevel", .read = tn_hf_read_nothing, .decode = decode_byte_level},
    {.name = "WordPiece", .read = read_word_piece, .decode = decode_word_piece},
    {.name = "Metaspace", .read = read_metaspace, .decode = decode_metaspace},
    {.name = "BPEDecoder", .read = read_bpe, .decode = decode_bpe},
    {.name = "ByteFallback", .read = tn_hf_read_nothing, .decode = decode_byte_fallback},
    {.name = "Fuse", .read = tn_hf_read_nothing, .decode = decode_fuse},
    {.name = "Strip", .read = read_strip, .decode = decode_strip},
    {.name = "Replace", .read = tn_hf_read_replace, .decode = decode_replace},
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

/* ==== post-processors, truncation and padding ===================================================================== */
/* Post-processors are put together when the file is read, into two lists: one for a text alone and one for a pair, of
 * tokens and places for the texts' own tokens. */

/* ---- reading ----------------------------------------------------------------------------------------------------- */

/* The lists that a chain of processors has made so far: one for each text, until a processor joins them. */
typedef struct parts {
    tn_hf_items lists[2];
    int count;
} parts;

static void free_parts(parts *p) {
    for (int i = 0; i < p->count; i++)
        tn_txt_free(p->lists[i].items);
    p->count = 0;
}

static tn_status bad(const char *what) { return tn_backend_fail(TN_ERR_FORMAT, "tokenizer: post_processor: %s", what); }

static tn_status add_post(tn_hf_items *list, tn_hf_item item) {
    if (list->count >= TN_HF_MAX_ITEMS) return bad("a template has too many parts");
    TRY(tn_txt_reserve(&list->items, &list->capacity, list->count + 1, sizeof *list->items));
    list->items[list->count++] = item;
    return TN_OK;
}

static tn_status add_list(tn_hf_items *list, const tn_hf_items *more, int64_t type) {
    for (size_t i = 0; i < more->count; i++) {
        tn_hf_item item = more->items[i];
        if (type >= 0) item.type = (int32_t)type;
        TRY(add_post(list, item));
    }
    return TN_OK;
}

static tn_status add_token(tn_hf_items *list, int64_t id, int64_t type) {
    if (id < 0 || id > INT32_MAX || type < 0 || type > INT32_MAX) return bad("a token's id or type_id is out of range");
    return add_post(list, (tn_hf_item){.id = (int32_t)id, .type = (int32_t)type});
}

/* One piece of a template: {"Sequence": {"id": "A", "type_id": 0}} or {"SpecialToken": {"id": "[CLS]", …}}. */
static tn_status add_piece(tn_hf_items *list, const parts *in, const tn_json *piece, const tn_json *tokens) {
    const tn_json *text = tn_hf_get(piece, "Sequence"), *token = tn_hf_get(piece, "SpecialToken");
    int64_t type = tn_json_int(tn_hf_get(text ? text : token, "type_id"), -1);
    if (type < 0) return bad("a piece of a template has no type_id");
    if (text) {
        int which = tn_hf_is(tn_hf_get(text, "id"), "B");
        return which < in->count ? add_list(list, &in->lists[which], type) : bad("a template uses only text B");
    }
    tn_text_slice name = tn_hf_slice(tn_hf_get(token, "id"));
    const tn_json *found = NULL;
    for (size_t i = 0; i < tn_json_length(tokens) && tn_json_kind_of(tokens) == TN_JSON_OBJECT; i++) {
        tn_text_slice key = tn_hf_key(tokens, i);
        if (name.data && key.size == name.size && !memcmp(key.data, name.data, key.size)) found = tn_json_at(tokens, i);
    }
    const tn_json *ids = tn_hf_get(found, "ids");
    if (tn_json_kind_of(ids) != TN_JSON_ARRAY) return bad("a token of a template is not in its special_tokens");
    for (size_t i = 0; i < tn_json_length(ids); i++)
        TRY(add_token(list, tn_json_int(tn_json_at(ids, i), -1), type));
    return TN_OK;
}

static tn_status apply_template(const tn_json *v, parts *p) {
    const tn_json *pieces = tn_hf_get(v, p->count == 2 ? "pair" : "single");
    if (tn_json_kind_of(pieces) != TN_JSON_ARRAY) return bad("a template has no list of pieces");
    parts out = {.count = 1};
    tn_status status = TN_OK;
    for (size_t i = 0; i < tn_json_length(pieces) && status == TN_OK; i++)
        status = add_piece(&out.lists[0], p, tn_json_at(pieces, i), tn_hf_get(v, "special_tokens"));
    free_parts(p);
    *p = out;
    return status;
}

/* ["[CLS]", 101] */
static int64_t id_of_pair(const tn_json *pair) {
    if (tn_json_kind_of(pair) != TN_JSON_ARRAY || tn_json_length(pair) != 2) return -1;
    return tn_json_int(tn_json_at(pair, 1), -1);
}

/* [CLS] A [SEP] B [SEP]; RoBERTa's second text has a [SEP] in front too, and all types are 0. */
static tn_status frame(const tn_json *v, parts *p, bool roberta) {
    int64_t cls = id_of_pair(tn_hf_get(v, "cls")), sep = id_of_pair(tn_hf_get(v, "sep"));
    for (int i = 0; i < p->count; i++) {
        tn_hf_items list = {0};
        int64_t type = roberta || i == 0 ? 0 : 1;
        tn_status status = i == 0 || roberta ? add_token(&list, i == 0 ? cls : sep, type) : TN_OK;
        if (status == TN_OK) status = add_list(&list, &p->lists[i], roberta ? 0 : -1);
        if (status == TN_OK) status = add_token(&list, sep, type);
        tn_txt_free(p->lists[i].items);
        p->lists[i] = list;
        TRY(status);
    }
    return TN_OK;
}

static tn_status apply_bert(const tn_json *v, parts *p) { return frame(v, p, false); }
static tn_status apply_roberta(const tn_json *v, parts *p) { return frame(v, p, true); }

/* ByteLevel trims places in the text, no tokens. */
static tn_status apply_nothing(TN_UNUSED const tn_json *v, TN_UNUSED parts *p) { return TN_OK; }

static const struct {
    const char *name;
    tn_status (*apply)(const tn_json *v, parts *p);
} processors[] = {
    {"TemplateProcessing", apply_template},
    {"BertProcessing", apply_bert},
    {"RobertaProcessing", apply_roberta},
    {"ByteLevel", apply_nothing},
};

static tn_status apply_post(const tn_json *v, parts *p, int depth) {
    if (!v) return TN_OK;
    const tn_json *type = tn_hf_get(v, "type"), *list = tn_hf_get(v, "processors");
    if (depth > TN_HF_MAX_DEPTH) return bad("sequences are nested too deeply");
    if (tn_hf_is(type, "Sequence") && (tn_json_kind_of(list) == TN_JSON_ARRAY)) {
        for (size_t i = 0; i < tn_json_length(list); i++)
            TRY(apply_post(tn_json_at(list, i), p, depth + 1));
        return TN_OK;
    }
    for (size_t i = 0; i < sizeof processors / sizeof *processors; i++)
        if (tn_hf_is(type, processors[i].name)) return processors[i].apply(v, p);
    return tn_backend_fail(TN_ERR_UNSUPPORTED,
                           "tokenizer: the post_processor \"%.*s\" is not supported; supported are TemplateProcessing, "
                           "BertProcessing, RobertaProcessing, ByteLevel, Sequence",
                           (int)(tn_json_length(type) < 64 ? tn_json_length(type) : 64), tn_json_string(type, ""));
}

static tn_status compile_post(const tn_json *v, int texts, tn_hf_items *out) {
    AUTO_CALL(free_parts) parts p = {.count = texts};
    for (int i = 0; i < texts; i++)
        TRY(add_post(&p.lists[i], (tn_hf_item){.id = -1, .type = i, .which = (uint8_t)i}));
    TRY(apply_post(v, &p, 0));
    for (int i = 0; i < p.count; i++)
        TRY(add_list(out, &p.lists[i], -1));
    return TN_OK;
}

static tn_status read_truncation(tn_hf *hf, const tn_json *v) {
    static const char *const strategies[] = {"LongestFirst", "OnlyFirst", "OnlySecond"};
    if (!v) return TN_OK;
    hf->truncation.max_length = tn_json_int(tn_hf_get(v, "max_length"), -1);
    hf->truncation.left = tn_hf_is(tn_hf_get(v, "direction"), "Left");
    for (int i = 0; i < 3; i++)
        if (tn_hf_is(tn_hf_get(v, "strategy"), strategies[i])) hf->truncation.strategy = i;
    return hf->truncation.max_length >= 0 ? TN_OK
                                          : tn_backend_fail(TN_ERR_FORMAT, "tokenizer: truncation has no max_length");
}

static tn_status read_padding(tn_hf *hf, const tn_json *v) {
    if (!v) return TN_OK;
    const tn_json *fixed = tn_hf_get(tn_hf_get(v, "strategy"), "Fixed");
    int64_t id = tn_json_int(tn_hf_get(v, "pad_id"), 0);
    int64_t type = tn_json_int(tn_hf_get(v, "pad_type_id"), 0);
    hf->padding.declared = true;
    hf->padding.left = tn_hf_is(tn_hf_get(v, "direction"), "Left");
    hf->padding.length = tn_json_int(fixed, 0);
    hf->padding.multiple = tn_json_int(tn_hf_get(v, "pad_to_multiple_of"), 0);
    bool good = id >= 0 && id <= INT32_MAX && type >= 0 && type <= INT32_MAX && hf->padding.length >= 0 &&
                hf->padding.length <= INT32_MAX / 2 && hf->padding.multiple >= 0 &&
                hf->padding.multiple <= INT32_MAX / 2;
    if (!good) return tn_backend_fail(TN_ERR_FORMAT, "tokenizer: a number in padding is out of range");
    hf->padding.id = (int32_t)id;
    hf->padding.type = (int32_t)type;
    return TN_OK;
}

tn_status tn_hf_read_post(tn_hf *hf, const tn_json *root) {
    const tn_json *v = tn_hf_get(root, "post_processor");
    TRY(compile_post(v, 1, &hf->single));
    TRY(compile_post(v, 2, &hf->pair));
    TRY(read_truncation(hf, tn_hf_get(root, "truncation")));
    return read_padding(hf, tn_hf_get(root, "padding"));
}

/* ---- putting together -------------------------------------------------------------------------------------------- */

/* How many tokens of each text stay, of `most` together. */
static tn_status shorten(int strategy, size_t most, bool pair, size_t n[2]) {
    size_t all = n[0] + n[1];
    if (all <= most) return TN_OK;
    if (strategy != 0 && most > 0) {
        size_t *one = &n[strategy - 1], away = all - most;
        if (*one <= away || (strategy == 2 && !pair))
            return tn_backend_fail(TN_ERR_ARGUMENT,
                                   "tokenizer: the %s text has %zu tokens; %zu of them cannot be removed",
                                   strategy == 1 ? "first" : "second", *one, away);
        *one -= away;
        return TN_OK;
    }
    if (!pair) {
        n[0] = most;
        return TN_OK;
    }
    int longer = n[0] > n[1] ? 0 : 1;
    size_t shorter = n[1 - longer], rest = shorter < most ? most - shorter : 0;
    n[longer] = shorter > most || rest < shorter ? shorter : rest;
    if (n[0] + n[1] > most) {
        n[1 - longer] = most / 2;
        n[longer] = most / 2 + most % 2;
    }
    return TN_OK;
}

static tn_status put_post(tn_encoding *out, int32_t id, int32_t type, int32_t mask) {
    TRY(tn_ids_append(&out->ids, id));
    TRY(tn_ids_append(&out->types, type));
    return tn_ids_append(&out->mask, mask);
}

static tn_status put_items(const tn_hf *hf, const tn_hf_items *items, const tn_ids texts[2], const size_t n[2],
                           unsigned flags, tn_encoding *out) {
    for (size_t i = 0; i < items->count; i++) {
        const tn_hf_item *item = &items->items[i];
        if (item->id >= 0) {
            if (flags & TN_ENCODE_ENDS) TRY(put_post(out, item->id, item->type, 1));
            continue;
        }
        const tn_ids *text = &texts[item->which];
        size_t from = hf->truncation.left ? text->count - n[item->which] : 0;
        for (size_t k = 0; k < n[item->which]; k++)
            TRY(put_post(out, text->data[from + k], item->type, 1));
    }
    return TN_OK;
}

static void turn_round(int32_t *a, size_t count) {
    for (size_t i = 0; i < count / 2; i++) {
        int32_t one = a[i];
        a[i] = a[count - 1 - i];
        a[count - 1 - i] = one;
    }
}

/* Padding in front is made after and turned to the front. */
static tn_status pad(const tn_hf *hf, tn_encoding *out, size_t before) {
    size_t have = out->ids.count - before, want = (size_t)hf->padding.length > have ? (size_t)hf->padding.length : have;
    size_t multiple = (size_t)hf->padding.multiple;
    if (multiple > 0 && want % multiple > 0) want += multiple - want % multiple;
    for (size_t i = have; i < want; i++)
        TRY(put_post(out, hf->padding.id, hf->padding.type, 0));
    if (!hf->padding.left) return TN_OK;
    int32_t *lists[] = {out->ids.data, out->types.data, out->mask.data};
    for (int i = 0; i < 3 && want > 0; i++) {
        turn_round(lists[i] + before, want);
        turn_round(lists[i] + before + (want - have), have);
    }
    return TN_OK;
}

static tn_status assemble(const tn_hf *hf, const tn_ids texts[2], bool pair, unsigned flags, int64_t max_tokens,
                          tn_encoding *out) {
    const tn_hf_items *items = pair ? &hf->pair : &hf->single;
    size_t n[2] = {texts[0].count, texts[1].count}, added = 0, before = out->ids.count;
    bool declared = flags & TN_ENCODE_TRUNCATE && hf->truncation.max_length > 0;
    for (size_t i = 0; i < items->count && flags & TN_ENCODE_ENDS; i++)
        added += items->items[i].id >= 0;
    int64_t most = max_tokens > 0 ? max_tokens : declared ? hf->truncation.max_length : 0;
    if (most > 0) {
        size_t room = (size_t)most > added ? (size_t)most - added : 0;
        TRY(shorten(max_tokens > 0 ? 0 : hf->truncation.strategy, room, pair, n));
    }
    TRY(put_items(hf, items, texts, n, flags, out));
    return flags & TN_ENCODE_PAD && hf->padding.declared ? pad(hf, out, before) : TN_OK;
}

static tn_status encode_texts(const tn_tokenizer *t, const tn_text_slice given[2], unsigned flags, tn_ids texts[2]) {
    tn_hf_work w = {.base = {.tokenizer = t}, .hf = t->hf, .flags = flags};
    tn_status status = TN_OK;
    for (int i = 0; i < 2 && status == TN_OK; i++) {
        w.base.out = &texts[i];
        if (given[i].size > 0) status = tn_hf_encode_text(&w, given[i].data, given[i].size);
    }
    tn_hf_work_free(&w);
    return status;
}

/* A single text that is not truncated needs no list of its own: its tokens are appended to the result. */
tn_status tn_hf_encode(const tn_tokenizer *t, const char *text, size_t size, unsigned flags, tn_ids *out) {
    size_t before = out->count;
    const tn_hf_items *items = &t->hf->single;
    tn_hf_work w = {.base = {.tokenizer = t, .out = out}, .hf = t->hf, .flags = flags};
    tn_status status = TN_OK;
    for (size_t i = 0; i < items->count && status == TN_OK; i++) {
        if (items->items[i].id < 0) {
            status = size > 0 ? tn_hf_encode_text(&w, text, size) : TN_OK;
        } else if (flags & TN_ENCODE_ENDS) {
            status = tn_ids_append(out, items->items[i].id);
        }
    }
    tn_hf_work_free(&w);
    if (status != TN_OK) out->count = before;
    return status;
}

static tn_status encode_plainly(const tn_tokenizer *t, tn_text_slice text, unsigned flags, tn_ids *out) {
    return tn_tokenizer_encode(t, text.data, text.size, flags, out);
}

tn_status tn_tokenizer_encode_pair(const tn_tokenizer *t, tn_text_slice first, tn_text_slice second,
                                   const tn_pair_options *options, tn_encoding *out) {
    tn_pair_options o = TN_PAIR_DEFAULTS;
    TRY(tn_options_read(&o, options, "tokenizer", "tn_pair_options o = TN_PAIR_DEFAULTS"));
    if (!t || !out || (!first.data && first.size > 0))
        return tn_backend_fail(TN_ERR_ARGUMENT, "tokenizer: an argument is NULL");
    if (second.data && !t->hf)
        return tn_backend_fail(TN_ERR_UNSUPPORTED,
                               "tokenizer: only encoders with a tokenizer.json support pairs of texts");
    if (first.size > INT32_MAX / 3 || second.size > INT32_MAX / 3)
        return tn_backend_fail(TN_ERR_ARGUMENT, "tokenizer: texts of %zu and %zu bytes exceed the limit of %d",
                               first.size, second.size, (int)(INT32_MAX / 3));
    const tn_text_slice given[2] = {first, {second.data, second.data ? second.size : 0}};
    const size_t before = out->ids.count;
    tn_hf plain = {.single = {.items = &(tn_hf_item){.id = -1}, .count = 1}}; /* of a vocabulary without templates */
    tn_ids texts[2] = {0};
    tn_status status = t->hf ? encode_texts(t, given, o.flags, texts) : encode_plainly(t, first, o.flags, &texts[0]);
    if (status == TN_OK)
        status = assemble(t->hf ? t->hf : &plain, texts, second.data != NULL, o.flags, o.max_tokens, out);
    if (status != TN_OK) out->ids.count = out->types.count = out->mask.count = before;
    tn_ids_free(&texts[0]);
    tn_ids_free(&texts[1]);
    return status;
}

void tn_encoding_free(tn_encoding *e) {
    if (!e) return;
    tn_ids_free(&e->ids);
    tn_ids_free(&e->types);
    tn_ids_free(&e->mask);
}

/* ==== stop strings ================================================================================================ */
/* Ends a text at the first stop string, and withholds text that may be the beginning of one.
 *
 * Each stop string has its own automaton (Knuth, Morris and Pratt 1977), so each byte is examined once, however often
 * beginnings repeat. The withheld text is always a prefix of the stop string that has matched the most. */

enum { MOST_BYTES = 1 << 20 };

typedef struct stop_string {
    const char *text; /* in `all` */
    uint32_t *back;   /* [size]: the next shorter beginning that ends where the first i + 1 bytes do */
    uint32_t size, matched;
} stop_string;

struct tn_stop_strings {
    stop_string *items;
    int count, found; /* found: -1 until one was */
    char *all;
    uint32_t *backs;
};

/* The automaton's step: how much is matched after one more byte. */
static uint32_t match_byte(const stop_string *s, uint32_t matched, char byte) {
    while (matched > 0 && (matched == s->size || s->text[matched] != byte))
        matched = s->back[matched - 1];
    return matched + (s->text[matched] == byte);
}

static void make_automaton(stop_string *s) {
    s->back[0] = 0;
    for (uint32_t i = 1; i < s->size; i++) {
        uint32_t matched = s->back[i - 1];
        while (matched > 0 && s->text[matched] != s->text[i])
            matched = s->back[matched - 1];
        s->back[i] = matched + (s->text[matched] == s->text[i]);
    }
}

static tn_status check_strings(const tn_text_slice *strings, int count, size_t *total) {
    *total = 0;
    if (count < 0 || (count > 0 && !strings))
        return tn_backend_fail(TN_ERR_ARGUMENT, "stop strings: %d strings at %p", count, (const void *)strings);
    for (int i = 0; i < count; i++) {
        if (strings[i].size == 0 || !strings[i].data)
            return tn_backend_fail(TN_ERR_ARGUMENT, "stop string %d is empty", i);
        if (strings[i].size > MOST_BYTES - *total)
            return tn_backend_fail(TN_ERR_ARGUMENT, "stop strings: more than %d bytes together", (int)MOST_BYTES);
        *total += strings[i].size;
    }
    return TN_OK;
}

static tn_status copy_strings(tn_stop_strings *s, const tn_text_slice *strings, int count, size_t total) {
    s->items = tn_txt_zalloc((size_t)count, sizeof *s->items);
    s->all = tn_txt_alloc(total, 1);
    s->backs = tn_txt_alloc(total, sizeof *s->backs);
    if (!s->items || !s->all || !s->backs) return TN_ERR_MEMORY;
    s->count = count;
    s->found = -1;
    size_t at = 0;
    for (int i = 0; i < count; i++) {
        s->items[i] = (stop_string){s->all + at, s->backs + at, (uint32_t)strings[i].size, 0};
        memcpy(s->all + at, strings[i].data, strings[i].size);
        make_automaton(&s->items[i]);
        at += strings[i].size;
    }
    return TN_OK;
}

tn_status tn_stop_strings_new(const tn_text_slice *strings, int count, tn_stop_strings **out) {
    size_t total;
    if (!out) return tn_backend_fail(TN_ERR_ARGUMENT, "stop strings: out is NULL");
    *out = NULL;
    TRY(check_strings(strings, count, &total));
    tn_stop_strings *s = tn_txt_zalloc(1, sizeof *s);
    tn_status status = s ? copy_strings(s, strings, count, total) : TN_ERR_MEMORY;
    if (status == TN_OK)
        *out = s;
    else
        tn_stop_strings_free(s);
    return status;
}

void tn_stop_strings_free(tn_stop_strings *s) {
    if (!s) return;
    tn_txt_free_each(s->items, s->all, s->backs, s);
}

/* The string whose beginning is withheld; NULL when nothing is. */
static const stop_string *longest_match(const tn_stop_strings *s) {
    const stop_string *best = NULL;
    for (int i = 0; i < s->count; i++)
        if (s->items[i].matched > (best ? best->matched : 0)) best = &s->items[i];
    return best;
}

static uint32_t withheld(const tn_stop_strings *s) {
    const stop_string *best = longest_match(s);
    return best ? best->matched : 0;
}

/* Advances all automata by a byte. Of strings that are completed by it the longest begins first. */
static void take_byte(tn_stop_strings *s, char byte) {
    for (int i = 0; i < s->count; i++) {
        stop_string *item = &s->items[i];
        item->matched = match_byte(item, item->matched, byte);
        bool first = s->found < 0 || item->size > s->items[s->found].size;
        if (item->matched == item->size && first) s->found = i;
    }
}

/* Of `size` bytes that follow those withheld before, appends the first `shown` of both together. */
static tn_status show(const char *before, size_t before_size, const char *data, size_t shown, tn_bytes *out) {
    size_t first = shown < before_size ? shown : before_size;
    TRY(tn_bytes_append(out, before, first));
    return tn_bytes_append(out, data, shown - first);
}

tn_status tn_stop_strings_feed(tn_stop_strings *s, const char *data, size_t size, tn_bytes *out, int *found) {
    if (!s || !out || !found || (size > 0 && !data))
        return tn_backend_fail(TN_ERR_ARGUMENT, "stop strings: an argument is NULL");
    *found = s->found;
    if (s->found >= 0) return TN_OK;
    const stop_string *best = longest_match(s); /* its text was withheld */
    const char *before = best ? best->text : "";
    size_t before_size = best ? best->matched : 0, taken = 0;
    while (taken < size && s->found < 0)
        take_byte(s, data[taken++]);
    *found = s->found;
    size_t kept = s->found >= 0 ? s->items[s->found].size : withheld(s);
    return show(before, before_size, data, before_size + taken - kept, out);
}

tn_status tn_stop_strings_end(tn_stop_strings *s, tn_bytes *out) {
    if (!s || !out) return tn_backend_fail(TN_ERR_ARGUMENT, "stop strings: an argument is NULL");
    const stop_string *best = longest_match(s);
    TRY(best && s->found < 0 ? tn_bytes_append(out, best->text, best->matched) : TN_OK);
    for (int i = 0; i < s->count; i++)
        s->items[i].matched = 0;
    s->found = -1;
    return TN_OK;
}
