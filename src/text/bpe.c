/* bpe.c — byte-level BPE: a word's bytes become letters, and neighbours are merged, the merge of the lowest rank first
 * and of equal ones the leftmost. Also the heap of candidates that sentencepiece.c shares.
 *
 * A candidate holds its rank and the left symbol. It is stale when the two symbols are no longer those that the merge
 * of that rank joins; a merge found by a stale candidate that fits again is one that is due anyway. */
#include <string.h>

#include "text/tokenizer.h"

/* ---- a heap, the least key on top -------------------------------------------------------------------------------- */

tn_status tn_txt_heap_push(tn_txt_work *w, tn_txt_candidate c) {
    TRY(tn_txt_reserve(&w->heap, &w->heap_capacity, w->heap_count + 1, sizeof *w->heap));
    size_t at = w->heap_count++;
    while (at > 0 && w->heap[(at - 1) / 2].key > c.key) {
        w->heap[at] = w->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    w->heap[at] = c;
    return TN_OK;
}

tn_txt_candidate tn_txt_heap_pop(tn_txt_work *w) {
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
    tn_txt_free(w->symbols);
    tn_txt_free(w->heap);
    tn_bytes_free(&w->text);
}

/* ---- merging by rank --------------------------------------------------------------------------------------------- */

/* Notes that the symbols at left and behind it may be merged, if they may. */
static tn_status consider(tn_txt_work *w, uint32_t left) {
    if (left == TN_TXT_NONE) return TN_OK;
    uint32_t right = w->symbols[left].next;
    if (right == TN_TXT_NONE) return TN_OK;
    int32_t rank = tn_txt_find_merge(w->tokenizer, w->symbols[left].id, w->symbols[right].id);
    if (rank < 0) return TN_OK;
    return tn_txt_heap_push(w, (tn_txt_candidate){.key = (uint64_t)rank << 32 | left});
}

/* The symbol takes in its right neighbour and becomes `id`. */
static void join_bpe(tn_txt_symbol *symbols, uint32_t left, int32_t id) {
    tn_txt_symbol *s = &symbols[left];
    uint32_t right = s->next;
    s->id = id;
    s->next = symbols[right].next;
    if (s->next != TN_TXT_NONE) symbols[s->next].prev = left;
    symbols[right].id = -1;
}

static tn_status merge_all(tn_txt_work *w) {
    while (w->heap_count > 0) {
        uint64_t key = tn_txt_heap_pop(w).key;
        uint32_t left = (uint32_t)key;
        const tn_txt_merge *m = &w->tokenizer->merges[key >> 32];
        tn_txt_symbol *s = &w->symbols[left];
        if (s->id != m->left || s->next == TN_TXT_NONE || w->symbols[s->next].id != m->right) continue;
        join_bpe(w->symbols, left, m->result);
        TRY(consider(w, s->prev));
        TRY(consider(w, left));
    }
    return TN_OK;
}

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
    for (uint32_t i = 0; i < count; i++) {
        w->symbols[i].prev = i > 0 ? i - 1 : TN_TXT_NONE;
        w->symbols[i].next = i + 1 < count ? i + 1 : TN_TXT_NONE;
    }
    w->heap_count = 0;
    for (uint32_t i = 0; i + 1 < count; i++)
        TRY(consider(w, i));
    TRY(merge_all(w));
    for (uint32_t i = 0; i < count && i != TN_TXT_NONE; i = w->symbols[i].next) {
        if (w->symbols[i].id >= 0) TRY(tn_ids_append(w->out, w->symbols[i].id));
    }
    return TN_OK;
}
