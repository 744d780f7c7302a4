/* special_tokens.c — finds tokens that stand for themselves in a text: a tree of their bytes, walked from each byte
 * that can begin one. The longest match wins, and the leftmost before later ones. */
#include <string.h>

#include "text/tokenizer.h"

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
        tn_txt_free(grown.keys);
        tn_txt_free(grown.children);
        return TN_ERR_MEMORY;
    }
    for (size_t i = 0; i < s->slots; i++) {
        if (s->keys[i] == 0) continue;
        size_t at = slot_of(&grown, s->keys[i]);
        grown.keys[at] = s->keys[i];
        grown.children[at] = s->children[i];
    }
    tn_txt_free(s->keys);
    tn_txt_free(s->children);
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
        return tn_backend_fail(TN_ERR_FORMAT, "tokenizer: the special token %d is %zu bytes long; %d are possible",
                               (int)id, size, TN_TXT_MAX_SPECIAL);
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
    tn_txt_free(s->keys);
    tn_txt_free(s->children);
    tn_txt_free(s->ids);
    *s = (tn_txt_special){0};
}
