/* added_tokens.c — tokens that stand for themselves: added tokens of tokenizer.json, and the tree that finds them in a
 * text. */
#include <string.h>

#include "text/hf.h"
#include "text/tokenizer.h"

/* ==== added tokens ================================================================================================ */
/* The leftmost match wins, of those the longest. A match that does not count (a special token where these are words, a
 * part of a longer word) is passed over whole. */

/* ---- making the trees -------------------------------------------------------------------------------------------- */

/* A token is matched, and decoded to, in its normalized form. */
static tn_status rename_token(tn_tokenizer *t, int32_t id, const char *text, size_t size) {
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
    if (!same && !memchr(text, 0, length)) TRY(rename_token(t, a->id, text, length));
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
        at = end; /* the search continues after the token itself */
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

/* Each byte that is not UTF-8 becomes U+FFFD. */
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
    AUTO_BYTES tn_bytes repaired = {0};
    TRY(tn_txt_matcher_set(&w->matcher, size));
    if (tn_txt_utf8_valid(text, size) < size) {
        TRY(repair(&repaired, text, size));
        text = repaired.data;
        size = repaired.size;
    }
    return split_added(w, &w->hf->raw, text, size, true, take_raw);
}

void tn_hf_work_free(tn_hf_work *w) {
    tn_txt_work_free(&w->base);
    tn_txt_matcher_free(&w->matcher);
    for (int i = 0; i < TN_HF_MAX_STEPS; i++)
        tn_bytes_free(&w->scratch[i]);
    tn_bytes_free(&w->normal[0]);
    tn_bytes_free(&w->normal[1]);
    tn_bytes_free(&w->word);
    tn_txt_free_each(w->codes, w->nodes);
}

/* ==== the tree of their bytes ===================================================================================== */

static size_t slot_of(const tn_txt_special *s, uint64_t key) {
    uint64_t hash = key * 0x9e3779b97f4a7c15u;
    size_t at = (size_t)(hash >> 32) & (s->slots - 1);
    while (s->keys[at] != 0 && s->keys[at] != key)
        at = (at + 1) & (s->slots - 1);
    return at;
}

static uint64_t trie_key_of(uint32_t node, uint8_t byte) { return ((uint64_t)node << 8 | byte) + 1; }

/* Room for one child more: the table stays at most half full. */
static tn_status make_room_trie(tn_txt_special *s) {
    if (2 * (s->nodes + 1) <= s->slots) return TN_OK;
    tn_txt_special grown = {.slots = s->slots ? 2 * s->slots : 64};
    grown.keys = tn_txt_zalloc(grown.slots, sizeof *grown.keys);
    grown.children = tn_txt_zalloc(grown.slots, sizeof *grown.children);
    if (!grown.keys || !grown.children) {
        tn_txt_free_each(grown.keys, grown.children);
        return TN_ERR_MEMORY;
    }
    for (size_t i = 0; i < s->slots; i++) {
        if (s->keys[i] == 0) continue;
        size_t at = slot_of(&grown, s->keys[i]);
        grown.keys[at] = s->keys[i];
        grown.children[at] = s->children[i];
    }
    tn_txt_free_each(s->keys, s->children);
    s->keys = grown.keys;
    s->children = grown.children;
    s->slots = grown.slots;
    return TN_OK;
}

static tn_status add_node(tn_txt_special *s, uint32_t *node) {
    TRY(tn_txt_reserve(&s->ids, &s->capacity, s->nodes + 1, sizeof *s->ids));
    s->ids[s->nodes] = -1;
    *node = (uint32_t)s->nodes++;
    return TN_OK;
}

tn_status tn_txt_special_add(tn_txt_special *s, const char *spelling, size_t size, int32_t id) {
    if (size == 0) return TN_OK; /* an empty token is nowhere in a text */
    if (size > TN_TXT_MAX_SPECIAL)
        return tn_backend_fail(TN_ERR_FORMAT, "tokenizer: the special token %d has %zu bytes; the limit is %d", (int)id,
                               size, TN_TXT_MAX_SPECIAL);
    uint32_t node = 0;
    if (s->nodes == 0) TRY(add_node(s, &node));
    s->begins[(uint8_t)spelling[0]] = true;
    for (size_t i = 0; i < size; i++) {
        TRY(make_room_trie(s));
        uint64_t key = trie_key_of(node, (uint8_t)spelling[i]);
        size_t at = slot_of(s, key);
        if (s->keys[at] == 0) {
            uint32_t child;
            TRY(add_node(s, &child));
            s->keys[at] = key;
            s->children[at] = child;
        }
        node = s->children[at];
    }
    s->ids[node] = id;
    return TN_OK;
}

int32_t tn_txt_special_match(const tn_txt_special *s, const char *text, size_t size, size_t *length) {
    if (size == 0 || !s->begins[(uint8_t)text[0]]) return -1;
    int32_t best = -1;
    uint32_t node = 0;
    for (size_t i = 0; i < size; i++) {
        size_t at = slot_of(s, trie_key_of(node, (uint8_t)text[i]));
        if (s->keys[at] == 0) break;
        node = s->children[at];
        if (s->ids[node] < 0) continue;
        best = s->ids[node];
        *length = i + 1;
    }
    return best;
}

uint32_t tn_txt_special_step(const tn_txt_special *s, uint32_t node, uint8_t byte) {
    if (s->slots == 0) return TN_TXT_NONE;
    size_t at = slot_of(s, trie_key_of(node, byte));
    return s->keys[at] ? s->children[at] : TN_TXT_NONE;
}

void tn_txt_special_free(tn_txt_special *s) {
    tn_txt_free_each(s->keys, s->children, s->ids);
    *s = (tn_txt_special){0};
}
