/* tokenizer.c — the public side of tokenizers: making one, text to ids, ids to text.
 *
 * Encoding walks the text once: a token that stands for itself (a control token on request, a user-defined one always)
 * cuts it, and what lies between goes to the model's way of merging. */
#include <string.h>

#include "text/hf.h"

/* ---- making ------------------------------------------------------------------------------------------------------ */

static char *copy_text(const char *text) {
    size_t size = strlen(text) + 1;
    char *copy = tn_txt_alloc(size, 1);
    if (copy) memcpy(copy, text, size);
    return copy;
}

static bool choose_tokenizer(int8_t given, bool usual) { return given < 0 ? usual : given != 0; }

static tn_status fill_tokenizer(tn_tokenizer *t, const tn_vocabulary *v) {
    const tn_txt_rule *rule = NULL;
    if (!t->by_score) {
        rule = tn_txt_find_rule(v->pre ? v->pre : "default");
        if (!rule) return TN_ERR_UNSUPPORTED;
        TRY(tn_txt_cutter_new(rule, &t->cutter));
    }
    TRY(tn_txt_vocabulary_fill(t, v));
    t->whole_words = rule && rule->whole_words;
    t->add_bos = choose_tokenizer(v->add_bos, rule ? rule->add_bos : true) && t->special[TN_SPECIAL_BOS] >= 0;
    t->add_eos = choose_tokenizer(v->add_eos, false) && t->special[TN_SPECIAL_EOS] >= 0;
    t->add_space = t->by_score && choose_tokenizer(v->add_space_prefix, true);
    t->rule_name = copy_text(t->by_score ? "" : v->pre ? v->pre : "default");
    if (v->chat_template) t->chat_template = copy_text(v->chat_template);
    return t->rule_name && (t->chat_template || !v->chat_template) ? TN_OK : TN_ERR_MEMORY;
}

tn_status tn_tokenizer_new(const tn_vocabulary *vocabulary, tn_tokenizer **out) {
    if (!out) return tn_backend_fail(TN_ERR_ARGUMENT, "tokenizer: out is NULL");
    *out = NULL;
    tn_vocabulary v = TN_VOCABULARY_DEFAULTS;
    TRY(tn_options_read(&v, vocabulary, "tokenizer", "tn_vocabulary v = TN_VOCABULARY_DEFAULTS"));
    if (!v.model)
        return tn_backend_fail(TN_ERR_ARGUMENT, "tokenizer: the vocabulary has no model: \"gpt2\" or \"llama\"");
    bool by_score = !strcmp(v.model, "llama");
    if (!by_score && strcmp(v.model, "gpt2") != 0)
        return tn_backend_fail(TN_ERR_UNSUPPORTED, "tokenizer: the model \"%.64s\" is not known; known are gpt2, llama",
                               v.model);
    tn_tokenizer *t = tn_txt_zalloc(1, sizeof *t);
    if (!t) return TN_ERR_MEMORY;
    t->by_score = by_score;
    tn_status status = fill_tokenizer(t, &v);
    if (status != TN_OK) {
        tn_tokenizer_free(t);
        return status;
    }
    *out = t;
    return TN_OK;
}

void tn_tokenizer_free(tn_tokenizer *t) {
    if (!t) return;
    tn_txt_cutter_free(t->cutter);
    tn_txt_vocabulary_free(t);
    tn_hf_free(t->hf);
    tn_txt_free(t->rule_name);
    tn_txt_free(t->chat_template);
    tn_txt_free(t);
}

/* ---- text to ids ------------------------------------------------------------------------------------------------- */

static tn_status encode_plain(tn_txt_work *w, const char *text, size_t size, bool in_front) {
    const tn_tokenizer *t = w->tokenizer;
    if (size == 0) return TN_OK;
    if (t->by_score) return tn_txt_sentence(w, text, size, in_front && t->add_space);
    return tn_txt_cut(t->cutter, text, size, tn_txt_bpe, w);
}

static tn_status encode_text(tn_txt_work *w, const char *text, size_t size, unsigned flags) {
    const tn_txt_special *special = flags & TN_ENCODE_SPECIAL ? &w->tokenizer->with_control : &w->tokenizer->always;
    size_t begin = 0, at = 0, length = 0;
    bool in_front = true; /* at the begin, or right behind a special token */
    while (at < size) {
        int32_t id = tn_txt_special_match(special, text + at, size - at, &length);
        if (id < 0) {
            at++;
            continue;
        }
        TRY(encode_plain(w, text + begin, at - begin, in_front));
        TRY(tn_ids_append(w->out, id));
        in_front = true;
        begin = at += length;
    }
    return encode_plain(w, text + begin, size - begin, in_front);
}

static tn_status encode_tokenizer(tn_txt_work *w, const char *text, size_t size, unsigned flags) {
    const tn_tokenizer *t = w->tokenizer;
    if (flags & TN_ENCODE_ENDS && t->add_bos) TRY(tn_ids_append(w->out, t->special[TN_SPECIAL_BOS]));
    TRY(encode_text(w, text, size, flags));
    if (flags & TN_ENCODE_ENDS && t->add_eos) TRY(tn_ids_append(w->out, t->special[TN_SPECIAL_EOS]));
    return TN_OK;
}

tn_status tn_tokenizer_encode(const tn_tokenizer *t, const char *text, size_t size, unsigned flags, tn_ids *out) {
    if (!t || !out || (!text && size > 0)) return tn_backend_fail(TN_ERR_ARGUMENT, "tokenizer: an argument is NULL");
    if (size > INT32_MAX / 3)
        return tn_backend_fail(TN_ERR_ARGUMENT,
                               "tokenizer: %zu bytes of text at once; %d are possible. Hand the text over "
                               "in parts",
                               size, (int)(INT32_MAX / 3));
    if (t->hf) return tn_hf_encode(t, text, size, flags, out);
    tn_txt_work w = {.tokenizer = t, .out = out};
    size_t before = out->count;
    tn_status status = encode_tokenizer(&w, text, size, flags);
    if (status != TN_OK) out->count = before;
    tn_txt_work_free(&w);
    return status;
}

/* ---- ids to text ------------------------------------------------------------------------------------------------- */

/* A "gpt2" token: letters that stand for bytes; any other letter stands for itself. */
static tn_status append_letters(tn_bytes *out, const char *spelling, size_t size) {
    while (size > 0) {
        uint32_t letter = 0;
        size_t length = tn_txt_utf8(spelling, size, &letter);
        int byte = length > 0 ? tn_txt_byte_of_letter(letter) : -1;
        char one = (char)byte;
        if (length == 0) length = 1;
        TRY(byte >= 0 ? tn_bytes_append(out, &one, 1) : tn_bytes_append(out, spelling, length));
        spelling += length;
        size -= length;
    }
    return TN_OK;
}

/* A "llama" token: U+2581 is a space. */
static tn_status append_unescaped(tn_bytes *out, const char *spelling, size_t size) {
    while (size > 0) {
        bool space = size >= 3 && !memcmp(spelling, "\xe2\x96\x81", 3);
        size_t length = space ? 3 : 1;
        TRY(tn_bytes_append(out, space ? " " : spelling, 1));
        spelling += length;
        size -= length;
    }
    return TN_OK;
}

static int hex_digit(char c) {
    static const char digits[] = "0123456789ABCDEF";
    const char *place = c ? strchr(digits, c) : NULL;
    return place ? (int)(place - digits) : -1;
}

/* The byte that "<0x41>" spells, -1 if it is spelled otherwise. */
static int byte_of_spelling(const char *spelling, size_t size) {
    if (size != 6 || memcmp(spelling, "<0x", 3) != 0 || spelling[5] != '>') return -1;
    int high = hex_digit(spelling[3]), low = hex_digit(spelling[4]);
    return high < 0 || low < 0 ? -1 : 16 * high + low;
}

static tn_status append_token(const tn_tokenizer *t, int32_t id, unsigned flags, tn_bytes *out) {
    if (id < 0 || id >= t->count)
        return tn_backend_fail(TN_ERR_ARGUMENT, "tokenizer: token %d is outside the vocabulary of %d", (int)id,
                               (int)t->count);
    size_t size;
    const char *spelling = tn_tokenizer_spelling(t, id, &size);
    tn_token_type type = (tn_token_type)t->types[id];
    if (type == TN_TOKEN_CONTROL || type == TN_TOKEN_UNKNOWN)
        return flags & TN_DECODE_SPECIAL ? tn_bytes_append(out, spelling, size) : TN_OK;
    if (type == TN_TOKEN_USER_DEFINED) return tn_bytes_append(out, spelling, size);
    int byte = type == TN_TOKEN_BYTE ? byte_of_spelling(spelling, size) : -1;
    char one = (char)byte;
    if (byte >= 0) return tn_bytes_append(out, &one, 1);
    return t->by_score ? append_unescaped(out, spelling, size) : append_letters(out, spelling, size);
}

/* Whether the token is part of the words, not a control token's spelling. */
static bool is_spelled(const tn_tokenizer *t, int32_t id) {
    return t->types[id] != TN_TOKEN_CONTROL && t->types[id] != TN_TOKEN_UNKNOWN;
}

tn_status tn_tokenizer_decode(const tn_tokenizer *t, const int32_t *ids, size_t count, unsigned flags, tn_bytes *out) {
    if (!t || !out || (!ids && count > 0)) return tn_backend_fail(TN_ERR_ARGUMENT, "tokenizer: an argument is NULL");
    if (t->hf) return tn_hf_decode(t, ids, count, flags, true, false, out);
    size_t before = out->size;
    bool first = t->add_space; /* nothing but control tokens so far, and encoding puts a space in front */
    tn_status status = tn_bytes_append(out, "", 0);
    for (size_t i = 0; i < count && status == TN_OK; i++) {
        size_t begin = out->size;
        status = append_token(t, ids[i], flags, out);
        if (status != TN_OK || out->size == begin) continue;
        if (first && is_spelled(t, ids[i]) && out->data[begin] == ' ') {
            memmove(out->data + begin, out->data + begin + 1, out->size - begin); /* with the NUL behind */
            out->size--;
        }
        first = first && !is_spelled(t, ids[i]);
    }
    if (status != TN_OK && out->data) out->data[out->size = before] = 0;
    return status;
}

/* ---- token by token ---------------------------------------------------------------------------------------------- */

/* Bytes at the end of text that begin a character which the text does not finish. */
static size_t unfinished(const char *text, size_t size) {
    for (size_t k = 1; k <= 3 && k <= size; k++) {
        uint8_t b = (uint8_t)text[size - k];
        if (b >= 0x80 && b < 0xc0) continue; /* inside a character */
        size_t length = b < 0xc2 || b > 0xf4 ? 1 : b < 0xe0 ? 2 : b < 0xf0 ? 3 : 4;
        return length > k ? k : 0;
    }
    return 0;
}

tn_status tn_tokenizer_stream(const tn_tokenizer *t, tn_text_stream *s, int32_t id, unsigned flags, tn_bytes *out) {
    if (!t || !s || !out) return tn_backend_fail(TN_ERR_ARGUMENT, "tokenizer: an argument is NULL");
    size_t before = out->size;
    tn_status status = tn_bytes_append(out, s->pending, (size_t)s->pending_count);
    if (status == TN_OK)
        status = t->hf ? tn_hf_decode(t, &id, 1, flags, false, s->begun, out) : append_token(t, id, flags, out);
    if (status != TN_OK) {
        if (out->data) out->data[out->size = before] = 0;
        return status;
    }
    size_t hold = unfinished(out->data + before, out->size - before);
    out->size -= hold;
    s->begun |= t->types[id] != TN_TOKEN_CONTROL || flags & TN_DECODE_SPECIAL;
    memcpy(s->pending, out->data + out->size, hold);
    s->pending_count = (int)hold;
    out->data[out->size] = 0;
    return TN_OK;
}

tn_status tn_tokenizer_stream_end(tn_text_stream *s, tn_bytes *out) {
    if (!s || !out) return tn_backend_fail(TN_ERR_ARGUMENT, "tokenizer: an argument is NULL");
    TRY(tn_bytes_append(out, s->pending, (size_t)s->pending_count));
    *s = (tn_text_stream){0};
    return TN_OK;
}

/* ---- facts ------------------------------------------------------------------------------------------------------- */

static bool inside(const tn_tokenizer *t, int32_t id) { return t && id >= 0 && id < t->count; }

int32_t tn_tokenizer_count(const tn_tokenizer *t) { return t ? t->count : 0; }

const char *tn_tokenizer_model(const tn_tokenizer *t) {
    if (t && t->hf) return t->hf->model_name;
    return t && t->by_score ? "llama" : "gpt2";
}

const char *tn_tokenizer_rule(const tn_tokenizer *t) { return t ? t->rule_name : ""; }

tn_token_type tn_tokenizer_type(const tn_tokenizer *t, int32_t id) {
    return inside(t, id) ? (tn_token_type)t->types[id] : (tn_token_type)0;
}

const char *tn_tokenizer_spelling(const tn_tokenizer *t, int32_t id, size_t *size) {
    if (size) *size = inside(t, id) ? t->places[id + 1] - t->places[id] - 1 : 0;
    return inside(t, id) ? t->spellings + t->places[id] : NULL;
}

int32_t tn_tokenizer_special(const tn_tokenizer *t, tn_special which) {
    return t && which >= 0 && which < TN_SPECIAL_COUNT ? t->special[which] : -1;
}

bool tn_tokenizer_ends(const tn_tokenizer *t, int32_t id) { return inside(t, id) && t->ends[id]; }

bool tn_tokenizer_adds_bos(const tn_tokenizer *t) { return t && t->add_bos; }

const char *tn_tokenizer_chat_template(const tn_tokenizer *t) { return t ? t->chat_template : NULL; }
