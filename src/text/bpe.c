/* bpe.c — byte-level BPE and SentencePiece's BPE: merging neighbours by rank or by score.
 *
 * A candidate remembers its left symbol and the size of its pair. It is stale when the sizes of the two symbols no
 * longer add up to that: symbols only grow. */
#include <string.h>

#include "text/tokenizer.h"

/* ---- a heap, the least key on top -------------------------------------------------------------------------------- */

static tn_status tn_txt_heap_push(tn_txt_work *w, tn_txt_candidate c) {
    TRY(tn_txt_reserve(&w->heap, &w->heap_capacity, w->heap_count + 1, sizeof *w->heap));
    size_t at = w->heap_count++;
    while (at > 0 && w->heap[(at - 1) / 2].key > c.key) {
        w->heap[at] = w->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    w->heap[at] = c;
    return TN_OK;
}

static tn_txt_candidate tn_txt_heap_pop(tn_txt_work *w) {
    tn_txt_candidate top = w->heap[0], last = w->heap[--w->heap_count];
    size_t at = 0, count = w->heap_count;
    while (2 * at + 1 < count) {
        size_t child = 2 * at + 1;
        if (child + 1 < count && w->heap[child + 1].key < w->heap[child].key) child++;
        if (w->heap[child].key >= last.key) break;
        w->heap[at] = w->heap[child];
        at = child;
    }
    w->heap[at] = last;
    return top;
}

void tn_txt_work_free(tn_txt_work *w) {
    tn_txt_free_each(w->symbols, w->heap);
    tn_bytes_free(&w->text);
}

/* ---- merging ----------------------------------------------------------------------------------------------------- */

/* Greater scores become lesser numbers. The scores are finite. */
static uint32_t order_of(float score) {
    uint32_t bits;
    float number = score + 0.0f; /* -0 becomes 0 */
    memcpy(&bits, &number, sizeof bits);
    return bits & 0x80000000u ? bits : ~(bits | 0x80000000u);
}

/* Notes that the symbols at left and after it may be merged, if they may. */
static tn_status consider(tn_txt_work *w, uint32_t left) {
    const tn_tokenizer *t = w->tokenizer;
    const tn_txt_symbol *a = left == TN_TXT_NONE ? NULL : &w->symbols[left];
    if (!a || a->next == TN_TXT_NONE) return TN_OK;
    tn_txt_candidate c = {.size = a->size + w->symbols[a->next].size, .id = -1};
    int32_t rank = t->by_score ? -1 : tn_txt_find_merge(t, a->id, w->symbols[a->next].id);
    if (rank >= 0) c.id = t->merges[rank].result;
    if (t->by_score && c.size <= t->longest) c.id = tn_txt_find_plain(t, w->text.data + a->start, c.size);
    if (c.id < 0) return TN_OK;
    c.key = (uint64_t)(t->by_score ? order_of(t->scores[c.id]) : (uint32_t)rank) << 32 | left;
    return tn_txt_heap_push(w, c);
}

static tn_status merge_all(tn_txt_work *w) {
    while (w->heap_count > 0) {
        tn_txt_candidate c = tn_txt_heap_pop(w);
        uint32_t left = (uint32_t)c.key;
        tn_txt_symbol *a = &w->symbols[left];
        if (a->size == 0 || a->next == TN_TXT_NONE || a->size + w->symbols[a->next].size != c.size) continue;
        tn_txt_symbol *b = &w->symbols[a->next];
        a->size = c.size;
        a->id = c.id;
        a->next = b->next;
        if (b->next != TN_TXT_NONE) w->symbols[b->next].prev = left;
        b->size = 0;
        TRY(consider(w, a->prev));
        TRY(consider(w, left));
    }
    return TN_OK;
}

/* What has no token in a model with scores: its bytes, or the unknown token where bytes have none. */
static tn_status spell_out(tn_txt_work *w, const tn_txt_symbol *s) {
    const tn_tokenizer *t = w->tokenizer;
    bool unknown = false;
    for (uint32_t i = 0; i < s->size; i++) {
        int32_t id = t->bytes[(uint8_t)w->text.data[s->start + i]];
        if (id >= 0) TRY(tn_ids_append(w->out, id));
        unknown |= id < 0;
    }
    if (unknown && t->special[TN_SPECIAL_UNKNOWN] >= 0) TRY(tn_ids_append(w->out, t->special[TN_SPECIAL_UNKNOWN]));
    return TN_OK;
}

/* Merges the first `count` symbols, which have their ids and sizes, and appends what they become. */
static tn_status merge_symbols(tn_txt_work *w, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        w->symbols[i].prev = i > 0 ? i - 1 : TN_TXT_NONE;
        w->symbols[i].next = i + 1 < count ? i + 1 : TN_TXT_NONE;
    }
    w->heap_count = 0;
    for (uint32_t i = 0; i + 1 < count; i++)
        TRY(consider(w, i));
    TRY(merge_all(w));
    for (uint32_t i = 0; i < count && i != TN_TXT_NONE; i = w->symbols[i].next) {
        const tn_txt_symbol *s = &w->symbols[i];
        if (s->id >= 0) TRY(tn_ids_append(w->out, s->id));
        if (s->id < 0 && w->tokenizer->by_score) TRY(spell_out(w, s));
    }
    return TN_OK;
}

/* ---- byte-level -------------------------------------------------------------------------------------------------- */

/* The token of a whole word, for rules that look there first; -1 for none. */
static int32_t whole_word(const tn_tokenizer *t, const char *word, size_t size) {
    char spelled[2 * 512];
    size_t length = 0;
    if (size > sizeof spelled / 2 || size > t->longest) return -1;
    for (size_t i = 0; i < size; i++)
        length += tn_txt_utf8_write(tn_txt_letter_of_byte((uint8_t)word[i]), spelled + length);
    return tn_txt_find_plain(t, spelled, length);
}

tn_status tn_txt_bpe(void *work, const char *word, size_t size) {
    tn_txt_work *w = work;
    const tn_tokenizer *t = w->tokenizer;
    int32_t id = size > 1 && t->whole_words ? whole_word(t, word, size) : -1;
    if (id >= 0) return tn_ids_append(w->out, id);

    TRY(tn_txt_reserve(&w->symbols, &w->symbol_capacity, size, sizeof *w->symbols));
    for (size_t i = 0; i < size; i++)
        w->symbols[i].id = t->bytes[(uint8_t)word[i]];
    return tn_txt_bpe_symbols(w, (uint32_t)size);
}

tn_status tn_txt_bpe_symbols(tn_txt_work *w, uint32_t count) {
    for (uint32_t i = 0; i < count; i++)
        w->symbols[i].size = 1;
    return merge_symbols(w, count);
}

/* ---- SentencePiece ----------------------------------------------------------------------------------------------- */

static const char escaped_space[] = "\xe2\x96\x81"; /* U+2581 */

static tn_status escape(tn_bytes *out, const char *text, size_t size, bool space_in_front) {
    out->size = 0;
    if (space_in_front) TRY(tn_bytes_append(out, escaped_space, 3));
    while (size > 0) {
        const char *space = memchr(text, ' ', size);
        size_t plain = space ? (size_t)(space - text) : size;
        TRY(tn_bytes_append(out, text, plain));
        if (space) TRY(tn_bytes_append(out, escaped_space, 3));
        text += plain + (space ? 1 : 0);
        size -= plain + (space ? 1 : 0);
    }
    return TN_OK;
}

static tn_status split_sentencepiece(tn_txt_work *w, uint32_t *count) {
    uint32_t n = 0;
    for (size_t at = 0; at < w->text.size; n++) {
        TRY(tn_txt_reserve(&w->symbols, &w->symbol_capacity, (size_t)n + 1, sizeof *w->symbols));
        size_t size = tn_txt_utf8(w->text.data + at, w->text.size - at, NULL);
        if (size == 0) size = 1; /* a byte that is not valid UTF-8 is a symbol of its own */
        int32_t id = tn_txt_find_plain(w->tokenizer, w->text.data + at, size);
        w->symbols[n] = (tn_txt_symbol){.id = id, .start = (uint32_t)at, .size = (uint32_t)size};
        at += size;
    }
    *count = n;
    return TN_OK;
}

tn_status tn_txt_sentence(tn_txt_work *w, const char *text, size_t size, bool space_in_front) {
    TRY(escape(&w->text, text, size, space_in_front));
    if (w->text.size > INT32_MAX)
        return tn_backend_fail(TN_ERR_ARGUMENT,
                               "tokenizer: %zu bytes of text exceed the limit of one call; split the text", size);
    uint32_t count = 0;
    TRY(split_sentencepiece(w, &count));
    return merge_symbols(w, count);
}
