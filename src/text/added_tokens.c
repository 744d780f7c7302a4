/* added_tokens.c — tokens that were added to the vocabulary: they are found in the text before anything else, some in
 * it as it is, some in what the normalizers make of it; the rest of the text goes on to the pre-tokenizers.
 *
 * The leftmost match wins, of those the longest. A match that does not count (a special token where these are words, a
 * part of a longer word) is passed over whole. */
#include <string.h>

#include "text/hf.h"

/* ---- making the trees -------------------------------------------------------------------------------------------- */

/* What the normalizers make of a token is what is looked for, and what it decodes to. */
static tn_status rename(tn_tokenizer *t, int32_t id, const char *text, size_t size) {
    tn_hf *hf = t->hf;
    if (hf->names.size + size > INT32_MAX - 1) return tn_backend_fail(TN_ERR_FORMAT, "tokenizer: tokens are too long");
    if (!hf->renamed) {
        hf->renamed = tn_txt_alloc((size_t)t->count, sizeof *hf->renamed);
        if (!hf->renamed) return TN_ERR_MEMORY;
        memset(hf->renamed, 0xff, (size_t)t->count * sizeof *hf->renamed);
    }
    hf->renamed[id] = (int32_t)hf->names.size;
    TRY(tn_bytes_append(&hf->names, text, size));
    return tn_bytes_append(&hf->names, "", 1);
}

static tn_status fill_one(tn_hf_work *w, tn_tokenizer *t, int32_t index) {
    const tn_hf_added *a = &t->hf->added[index];
    size_t size, length;
    bool first = true;
    const char *spelling = tn_tokenizer_spelling(t, a->id, &size), *text = spelling;
    if (!a->normalized) return tn_txt_special_add(&t->hf->raw, spelling, size, index);
    length = size;
    TRY(tn_txt_matcher_set(&w->matcher, size));
    TRY(tn_hf_normalize(w, &text, &length, &first));
    bool same = length == size && !memcmp(text, spelling, size);
    if (!same && !memchr(text, 0, length)) TRY(rename(t, a->id, text, length));
    return tn_txt_special_add(&t->hf->normal, text, length, index);
}

tn_status tn_hf_fill_added(tn_tokenizer *t) {
    tn_hf_work w = {.base = {.tokenizer = t}, .hf = t->hf};
    tn_status status = TN_OK;
    for (int32_t i = 0; i < t->hf->added_count && status == TN_OK; i++)
        status = fill_one(&w, t, i);
    tn_hf_work_free(&w);
    return status;
}

/* ---- finding ----------------------------------------------------------------------------------------------------- */

typedef tn_status (*piece_taker)(tn_hf_work *w, const char *text, size_t size, bool first);

/* The character that ends at `at`. */
static uint32_t character_before(const char *text, size_t at, size_t *begin) {
    uint32_t c;
    size_t from = at - 1;
    while (from > 0 && at - from < 4 && ((uint8_t)text[from] & 0xc0) == 0x80)
        from--;
    if (from + tn_hf_char(text + from, at - from, &c) != at) {
        from = at - 1;
        c = (uint8_t)text[from];
    }
    *begin = from;
    return c;
}

static bool counts(const tn_hf_work *w, const tn_hf_added *a, const char *text, size_t size, size_t begin, size_t end) {
    uint32_t c;
    size_t at;
    if (a->special && !(w->flags & TN_ENCODE_SPECIAL)) return false;
    if (!a->single_word) return true;
    if (begin > 0 && tn_hf_is_word(character_before(text, begin, &at))) return false;
    if (end == size) return true;
    tn_hf_char(text + end, size - end, &c);
    return !tn_hf_is_word(c);
}

/* White space around a token that takes it in, as far as nothing else has taken it. */
static void widen_added(const tn_hf_added *a, const char *text, size_t size, size_t start, size_t *begin, size_t *end) {
    uint32_t c;
    size_t before;
    while (a->lstrip && *begin > start && tn_hf_is_space(character_before(text, *begin, &before)))
        *begin = before;
    while (a->rstrip && *end < size) {
        size_t length = tn_hf_char(text + *end, size - *end, &c);
        if (!tn_hf_is_space(c)) return;
        *end += length;
    }
}

/* Walks a text: tokens of the tree are appended, what lies between is handed on. */
static tn_status split_added(tn_hf_work *w, const tn_txt_special *tree, const char *text, size_t size, bool first,
                             piece_taker take) {
    size_t start = 0, at = 0, length = 0;
    while (at < size && tree->nodes > 0) {
        int32_t index = tn_txt_special_match(tree, text + at, size - at, &length);
        if (index < 0) {
            at++;
            continue;
        }
        const tn_hf_added *a = &w->hf->added[index];
        size_t begin = at, end = at + length;
        at = end; /* the search goes on behind the token itself */
        if (begin < start || !counts(w, a, text, size, begin, end)) continue;
        widen_added(a, text, size, start, &begin, &end);
        if (begin > start) TRY(take(w, text + start, begin - start, first && start == 0));
        TRY(tn_ids_append(w->base.out, a->id));
        start = end;
    }
    return size > start ? take(w, text + start, size - start, first && start == 0) : TN_OK;
}

static tn_status cut_words(tn_hf_work *w, const char *text, size_t size, bool first) {
    return tn_hf_pass(w, 0, text, size, first);
}

static tn_status take_raw(tn_hf_work *w, const char *text, size_t size, bool first) {
    TRY(tn_hf_normalize(w, &text, &size, &first));
    return split_added(w, &w->hf->normal, text, size, first, cut_words);
}

/* Bytes that are no UTF-8 become U+FFFD each. */
static tn_status repair(tn_bytes *out, const char *text, size_t size) {
    while (size > 0) {
        size_t good = tn_txt_utf8_valid(text, size), taken = good < size ? 1 : 0;
        TRY(tn_bytes_append(out, text, good));
        if (taken) TRY(tn_bytes_append(out, "\xef\xbf\xbd", 3));
        text += good + taken;
        size -= good + taken;
    }
    return TN_OK;
}

tn_status tn_hf_encode_text(tn_hf_work *w, const char *text, size_t size) {
    tn_bytes repaired = {0};
    tn_status status = tn_txt_matcher_set(&w->matcher, size);
    if (status == TN_OK && tn_txt_utf8_valid(text, size) < size) {
        status = repair(&repaired, text, size);
        text = repaired.data;
        size = repaired.size;
    }
    if (status == TN_OK) status = split_added(w, &w->hf->raw, text, size, true, take_raw);
    tn_bytes_free(&repaired);
    return status;
}

void tn_hf_work_free(tn_hf_work *w) {
    tn_txt_work_free(&w->base);
    tn_txt_matcher_free(&w->matcher);
    for (int i = 0; i < TN_HF_MAX_STEPS; i++)
        tn_bytes_free(&w->scratch[i]);
    tn_bytes_free(&w->normal[0]);
    tn_bytes_free(&w->normal[1]);
    tn_bytes_free(&w->word);
    tn_txt_free(w->codes);
    tn_txt_free(w->nodes);
}
