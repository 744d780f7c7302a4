/* tokenizer.c — the public side of tokenizers, and the tables of their vocabulary.
 *
 * Encoding walks the text once: a token that stands for itself (a control token on request, a user-defined one always)
 * cuts it, and what lies between goes to the model's way of merging. */
#include <math.h>
#include <stdio.h>
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
        return tn_backend_fail(TN_ERR_ARGUMENT,
                               "tokenizer: the vocabulary does not name its model: \"gpt2\" or \"llama\"");
    bool by_score = !strcmp(v.model, "llama");
    if (!by_score && strcmp(v.model, "gpt2") != 0)
        return tn_backend_fail(TN_ERR_UNSUPPORTED,
                               "tokenizer: the model \"%.64s\" is not supported; supported are gpt2, llama", v.model);
    tn_tokenizer *t = tn_txt_zalloc(1, sizeof *t);
    if (!t) return TN_ERR_MEMORY;
    t->by_score = by_score;
    tn_status status = fill_tokenizer(t, &v);
    if (status == TN_OK)
        *out = t;
    else
        tn_tokenizer_free(t);
    return status;
}

void tn_tokenizer_free(tn_tokenizer *t) {
    if (!t) return;
    tn_txt_cutter_free(t->cutter);
    tn_txt_vocabulary_free(t);
    tn_hf_free(t->hf);
    tn_txt_free_each(t->rule_name, t->chat_template, t);
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
    bool in_front = true; /* at the begin, or right after a special token */
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
                               "tokenizer: %zu bytes of text exceed the limit of %d per call. Pass the text in parts",
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
            memmove(out->data + begin, out->data + begin + 1, out->size - begin); /* with the NUL after */
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

/* ==== vocabulary ================================================================================================== */
/* Vocabularies come from untrusted files, so everything is checked here once; afterwards ids are valid indices. Two
 * hash tables with open addressing, at most half full, hold only indices: the id of a spelling, the rank of a pair. */

/* Tokens that end a generation, where they are control or user-defined tokens. */
static const char *const ending_tokens[] = {
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "</s>",
    "<eos>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|return|>",
    "<|call|>",
    "<turn|>",
    "<end_of_utterance>",
};

/* ---- letters of bytes -------------------------------------------------------------------------------------------- */

/* GPT-2's spelling: a byte that is a visible Latin-1 character is that letter, the others follow from U+0100 on. */
static bool stands_for_itself(uint32_t c) {
    return (c >= 33 && c <= 126) || (c >= 161 && c <= 172) || (c >= 174 && c <= 255);
}

uint32_t tn_txt_letter_of_byte(uint8_t byte) {
    if (stands_for_itself(byte)) return byte;
    if (byte <= 32) return 256u + byte;
    return byte == 173 ? 323u : byte - 127u + 33 + 256;
}

int tn_txt_byte_of_letter(uint32_t letter) {
    if (letter < 256) return stands_for_itself(letter) ? (int)letter : -1;
    if (letter <= 256 + 32) return (int)letter - 256;
    if (letter < 323) return (int)letter - 256 - 33 + 127;
    return letter == 323 ? 173 : -1;
}

/* ---- hash tables ------------------------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t h) { /* the end of MurmurHash3 (Appleby) */
    h = (h ^ (h >> 33)) * 0xff51afd7ed558ccdu;
    h = (h ^ (h >> 33)) * 0xc4ceb9fe1a85ec53u;
    return h ^ (h >> 33);
}

static uint64_t hash_of(const char *data, size_t size) { /* FNV-1a, mixed */
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < size; i++)
        h = (h ^ (uint8_t)data[i]) * 0x100000001b3u;
    return mix(h);
}

static tn_status make_slots(int32_t **slots, size_t *count, size_t items) {
    size_t n = 16;
    while (n < 2 * items)
        n *= 2;
    *slots = tn_txt_alloc(n, sizeof **slots);
    if (!*slots) return TN_ERR_MEMORY;
    memset(*slots, 0xff, n * sizeof **slots);
    *count = n;
    return TN_OK;
}

static size_t vocabulary_size_of(const tn_tokenizer *t, int32_t id) { return t->places[id + 1] - t->places[id] - 1; }

/* The place of a spelling, or the empty place where it would stand. */
static size_t spelling_slot(const tn_tokenizer *t, const char *spelling, size_t size) {
    size_t at = (size_t)hash_of(spelling, size) & (t->slot_count - 1);
    for (; t->slots[at] >= 0; at = (at + 1) & (t->slot_count - 1)) {
        int32_t id = t->slots[at];
        if (vocabulary_size_of(t, id) == size && !memcmp(t->spellings + t->places[id], spelling, size)) break;
    }
    return at;
}

static size_t merge_slot(const tn_tokenizer *t, int32_t left, int32_t right) {
    size_t at = (size_t)mix((uint64_t)(uint32_t)left << 32 | (uint32_t)right) & (t->merge_slot_count - 1);
    for (; t->merge_slots[at] >= 0; at = (at + 1) & (t->merge_slot_count - 1)) {
        const tn_txt_merge *m = &t->merges[t->merge_slots[at]];
        if (m->left == left && m->right == right) break;
    }
    return at;
}

int32_t tn_tokenizer_find(const tn_tokenizer *t, const char *spelling, size_t size) {
    if (!t || !spelling || size == 0 || size > t->longest) return -1;
    return t->slots[spelling_slot(t, spelling, size)];
}

static bool vocabulary_is_plain(uint8_t type) { return type == TN_TOKEN_NORMAL || type == TN_TOKEN_USER_DEFINED; }

int32_t tn_txt_find_plain(const tn_tokenizer *t, const char *spelling, size_t size) {
    int32_t id = tn_tokenizer_find(t, spelling, size);
    if (id < 0) return -1;
    if (t->hf) return id < t->hf->added_first || id >= t->hf->added_end ? id : -1;
    return vocabulary_is_plain(t->types[id]) ? id : -1;
}

int32_t tn_txt_find_merge(const tn_tokenizer *t, int32_t left, int32_t right) {
    if (left < 0 || right < 0) return -1;
    return t->merge_slots[merge_slot(t, left, right)];
}

/* ---- filling ----------------------------------------------------------------------------------------------------- */

static tn_status fill_spellings(tn_tokenizer *t, const tn_vocabulary *v) {
    size_t bytes = 0;
    for (int32_t i = 0; i < v->count; i++) {
        if (v->tokens[i].size >= SIZE_MAX / 4 - bytes)
            return tn_backend_fail(TN_ERR_FORMAT, "tokenizer: tokens are too long");
        bytes += v->tokens[i].size + 1;
        if (v->tokens[i].size > t->longest) t->longest = v->tokens[i].size;
    }
    t->spellings = tn_txt_alloc(bytes, 1);
    t->places = tn_txt_alloc((size_t)v->count + 1, sizeof *t->places);
    if (!t->spellings || !t->places) return TN_ERR_MEMORY;
    size_t at = 0;
    for (int32_t i = 0; i < v->count; i++) {
        t->places[i] = at;
        if (v->tokens[i].size > 0) memcpy(t->spellings + at, v->tokens[i].data, v->tokens[i].size);
        at += v->tokens[i].size;
        t->spellings[at++] = 0;
    }
    t->places[v->count] = at;
    return TN_OK;
}

static tn_status fill_slots(tn_tokenizer *t) {
    TRY(make_slots(&t->slots, &t->slot_count, (size_t)t->count));
    for (int32_t i = 0; i < t->count; i++) {
        const char *spelling = t->spellings + t->places[i];
        if (vocabulary_size_of(t, i) == 0) continue; /* a place that nothing is spelled as */
        size_t at = spelling_slot(t, spelling, vocabulary_size_of(t, i));
        if (t->slots[at] >= 0 && !t->hf) /* of a tokenizer.json the last counts */
            return tn_backend_fail(TN_ERR_FORMAT, "tokenizer: tokens %d and %d are both spelled \"%.64s\"",
                                   (int)t->slots[at], (int)i, spelling);
        t->slots[at] = i;
    }
    return TN_OK;
}

static tn_status fill_types(tn_tokenizer *t, const tn_vocabulary *v) {
    t->types = tn_txt_alloc((size_t)v->count, 1);
    t->ends = tn_txt_zalloc((size_t)v->count, 1);
    if (!t->types || !t->ends) return TN_ERR_MEMORY;
    for (int32_t i = 0; i < v->count; i++) {
        int32_t type = v->types && v->types[i] != 0 ? v->types[i] : TN_TOKEN_NORMAL; /* 0: undefined */
        if (type < TN_TOKEN_NORMAL || type > TN_TOKEN_BYTE)
            return tn_backend_fail(TN_ERR_FORMAT, "tokenizer: token %d has type %d; types 0 to 6 are supported", (int)i,
                                   (int)type);
        t->types[i] = (uint8_t)type;
    }
    return TN_OK;
}

static tn_status fill_scores(tn_tokenizer *t, const tn_vocabulary *v) {
    if (!v->scores) return tn_backend_fail(TN_ERR_FORMAT, "tokenizer: a \"llama\" vocabulary requires scores");
    t->scores = tn_txt_alloc((size_t)v->count, sizeof *t->scores);
    if (!t->scores) return TN_ERR_MEMORY;
    for (int32_t i = 0; i < v->count; i++) {
        if (!isfinite(v->scores[i]))
            return tn_backend_fail(TN_ERR_FORMAT, "tokenizer: the score of token %d is not finite", (int)i);
        t->scores[i] = v->scores[i];
    }
    return TN_OK;
}

/* Reads "left right": the parts are parted by the first space after the first byte. */
static bool read_merge(const tn_tokenizer *t, tn_text_slice text, tn_txt_merge *out) {
    const char *space = text.size > 1 ? memchr(text.data + 1, ' ', text.size - 1) : NULL;
    if (!space || text.size - 1 > t->longest) return false;
    size_t left = (size_t)(space - text.data), right = text.size - left - 1;
    *out =
        (tn_txt_merge){.left = tn_txt_find_plain(t, text.data, left), .right = tn_txt_find_plain(t, space + 1, right)};
    if (out->left < 0 || out->right < 0) return false;
    char joined[256];
    char *whole = left + right <= sizeof joined ? joined : tn_txt_alloc(left + right, 1);
    if (!whole) return false;
    memcpy(whole, text.data, left);
    memcpy(whole + left, space + 1, right);
    out->result = tn_txt_find_plain(t, whole, left + right);
    if (whole != joined) tn_txt_free(whole);
    return out->result >= 0;
}

tn_status tn_txt_merges_new(tn_tokenizer *t, size_t count) {
    t->merges = tn_txt_alloc(count, sizeof *t->merges);
    if (!t->merges) return TN_ERR_MEMORY;
    return make_slots(&t->merge_slots, &t->merge_slot_count, count);
}

void tn_txt_merges_add(tn_tokenizer *t, const tn_txt_merge *m, bool last_counts) {
    size_t at = merge_slot(t, m->left, m->right);
    if (t->merge_slots[at] >= 0 && !last_counts) return;
    t->merge_slots[at] = (int32_t)t->merge_count;
    t->merges[t->merge_count++] = *m;
}

static tn_status fill_merges(tn_tokenizer *t, const tn_vocabulary *v) {
    size_t count = v->merge_count > 0 ? (size_t)v->merge_count : 0;
    TRY(tn_txt_merges_new(t, count));
    for (size_t i = 0; i < count; i++) {
        tn_txt_merge m;
        if (v->merges[i].data && read_merge(t, v->merges[i], &m)) tn_txt_merges_add(t, &m, false);
    }
    return TN_OK;
}

static void fill_bytes(tn_tokenizer *t) {
    for (int b = 0; b < 256; b++) {
        char spelling[8];
        if (t->by_score) {
            int length = snprintf(spelling, sizeof spelling, "<0x%02X>", (unsigned)b);
            t->bytes[b] = tn_tokenizer_find(t, spelling, (size_t)length);
        } else {
            size_t length = tn_txt_utf8_write(tn_txt_letter_of_byte((uint8_t)b), spelling);
            t->bytes[b] = tn_txt_find_plain(t, spelling, length);
        }
    }
}

static tn_status fill_special(tn_tokenizer *t, const tn_vocabulary *v) {
    for (int i = 0; i < TN_SPECIAL_COUNT; i++) {
        if (v->special[i] >= v->count)
            return tn_backend_fail(TN_ERR_FORMAT, "tokenizer: special token %d is outside the vocabulary of %d",
                                   (int)v->special[i], (int)v->count);
        t->special[i] = v->special[i] >= 0 ? v->special[i] : -1;
    }
    for (int32_t i = 0; i < t->count && !t->hf; i++) {
        const char *spelling = t->spellings + t->places[i];
        if (t->types[i] == TN_TOKEN_USER_DEFINED)
            TRY(tn_txt_special_add(&t->always, spelling, vocabulary_size_of(t, i), i));
        if (t->types[i] >= TN_TOKEN_UNKNOWN && t->types[i] <= TN_TOKEN_USER_DEFINED)
            TRY(tn_txt_special_add(&t->with_control, spelling, vocabulary_size_of(t, i), i));
    }
    for (size_t i = 0; i < sizeof ending_tokens / sizeof *ending_tokens; i++) {
        int32_t id = tn_tokenizer_find(t, ending_tokens[i], strlen(ending_tokens[i]));
        if (id >= 0 && t->types[id] >= TN_TOKEN_UNKNOWN && t->types[id] <= TN_TOKEN_USER_DEFINED) t->ends[id] = 1;
    }
    if (t->special[TN_SPECIAL_EOS] >= 0) t->ends[t->special[TN_SPECIAL_EOS]] = 1;
    if (t->special[TN_SPECIAL_END_OF_TURN] >= 0) t->ends[t->special[TN_SPECIAL_END_OF_TURN]] = 1;
    return TN_OK;
}

tn_status tn_txt_vocabulary_fill(tn_tokenizer *t, const tn_vocabulary *v) {
    if (v->count <= 0 || v->count > TN_TXT_MAX_TOKENS || !v->tokens)
        return tn_backend_fail(TN_ERR_FORMAT, "tokenizer: a vocabulary of %d tokens is not supported; 1 to %d are",
                               (int)v->count, (int)TN_TXT_MAX_TOKENS);
    if (v->merge_count < 0 || v->merge_count > TN_TXT_MAX_TOKENS || (v->merge_count > 0 && !v->merges))
        return tn_backend_fail(TN_ERR_FORMAT, "tokenizer: %d merges are out of range", (int)v->merge_count);
    t->count = v->count;
    TRY(fill_spellings(t, v));
    TRY(fill_slots(t));
    TRY(fill_types(t, v));
    if (t->by_score) TRY(fill_scores(t, v));
    if (!t->by_score && !t->hf) TRY(fill_merges(t, v));
    if (!t->hf) fill_bytes(t);
    return fill_special(t, v);
}

void tn_txt_vocabulary_free(tn_tokenizer *t) {
    void *const blocks[] = {t->spellings, t->places, t->types, t->ends, t->scores, t->slots, t->merges, t->merge_slots};
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
        tn_txt_free(blocks[i]);
    tn_txt_special_free(&t->always);
    tn_txt_special_free(&t->with_control);
}
