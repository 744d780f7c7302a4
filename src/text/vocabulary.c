/* vocabulary.c — the tables of a tokenizer: spellings, types, merges, and the look-ups over them.
 *
 * Vocabularies come out of strangers' files, so everything is checked here once; afterwards ids are indices. Two open
 * hash tables, at most half full, hold indices alone: a spelling's id, a pair's rank. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "text/hf.h"

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
            return tn_backend_fail(TN_ERR_FORMAT, "tokenizer: token %d is of type %d; 0 to 6 are known", (int)i,
                                   (int)type);
        t->types[i] = (uint8_t)type;
    }
    return TN_OK;
}

static tn_status fill_scores(tn_tokenizer *t, const tn_vocabulary *v) {
    if (!v->scores) return tn_backend_fail(TN_ERR_FORMAT, "tokenizer: a \"llama\" vocabulary needs scores");
    t->scores = tn_txt_alloc((size_t)v->count, sizeof *t->scores);
    if (!t->scores) return TN_ERR_MEMORY;
    for (int32_t i = 0; i < v->count; i++) {
        if (!isfinite(v->scores[i]))
            return tn_backend_fail(TN_ERR_FORMAT, "tokenizer: the score of token %d is not finite", (int)i);
        t->scores[i] = v->scores[i];
    }
    return TN_OK;
}

/* Reads "left right": the parts are parted by the first space behind the first byte. */
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
        return tn_backend_fail(TN_ERR_FORMAT, "tokenizer: a vocabulary of %d tokens; 1 to %d are possible",
                               (int)v->count, (int)TN_TXT_MAX_TOKENS);
    if (v->merge_count < 0 || v->merge_count > TN_TXT_MAX_TOKENS || (v->merge_count > 0 && !v->merges))
        return tn_backend_fail(TN_ERR_FORMAT, "tokenizer: %d merges are not possible", (int)v->merge_count);
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
    void *const blocks[] = {t->spellings, t->places, t->types,  t->ends,
                            t->scores,    t->slots,  t->merges, t->merge_slots};
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
        tn_txt_free(blocks[i]);
    tn_txt_special_free(&t->always);
    tn_txt_special_free(&t->with_control);
}
