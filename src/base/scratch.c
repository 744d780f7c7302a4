/* scratch.c — memory of one pass: pieces of larger blocks, all freed at once.
 *
 * Making a plan takes a hundred small arrays that are not needed afterwards. Under the address sanitizer each piece is
 * a separate block, so that overruns are detected. */
#include "base/base.h"

#include <string.h>

#if defined(__SANITIZE_ADDRESS__)
enum { FIRST_BLOCK = 0, LARGEST_BLOCK = 0 };
#else
enum { FIRST_BLOCK = 8 << 10, LARGEST_BLOCK = 256 << 10 }; /* bytes; each is twice as large as the one before */
#endif
enum { ALIGN = 16 };

struct tn_scratch_block {
    _Alignas(ALIGN) struct tn_scratch_block *before;
    size_t bytes; /* behind this header */
};
_Static_assert(sizeof(struct tn_scratch_block) % ALIGN == 0, "the first piece follows the header");

static tn_status add_block(tn_scratch *s, size_t least) {
    size_t wanted = s->last ? 2 * s->last->bytes : FIRST_BLOCK;
    if (wanted > LARGEST_BLOCK) wanted = LARGEST_BLOCK;
    if (wanted < least) wanted = least;
    struct tn_scratch_block *block = tn_mem_alloc(sizeof *block + wanted);
    if (!block) return TN_ERR_MEMORY;
    *block = (struct tn_scratch_block){s->last, wanted};
    s->last = block;
    s->next = (char *)(block + 1);
    s->left = wanted;
    return TN_OK;
}

void *tn_scratch_take(tn_scratch *s, size_t bytes) {
    const size_t most = SIZE_MAX / 4; /* what is larger fails as an allocation of this size */
    size_t rounded = bytes > most ? most : (bytes / ALIGN + 1) * ALIGN;
    if (rounded > s->left && add_block(s, rounded) != TN_OK) return NULL;
    void *piece = s->next;
    s->next += rounded;
    s->left -= rounded;
    return piece;
}

tn_status tn_scratch_grow(tn_scratch *s, void *items_pointer, size_t *capacity, size_t need, size_t item_size) {
    if (need <= *capacity) return TN_OK;
    size_t grown = *capacity <= need / 2 ? need : 2 * *capacity, bytes;
    if (__builtin_mul_overflow(grown, item_size, &bytes)) bytes = SIZE_MAX;
    void *items, *larger = tn_scratch_take(s, bytes);
    if (!larger) return TN_ERR_MEMORY;
    memcpy(&items, items_pointer, sizeof items);
    if (*capacity) memcpy(larger, items, *capacity * item_size);
    memcpy(items_pointer, &larger, sizeof larger);
    *capacity = grown;
    return TN_OK;
}

void tn_scratch_free(tn_scratch *s) {
    while (s->last) {
        struct tn_scratch_block *before = s->last->before;
        tn_mem_free(s->last);
        s->last = before;
    }
    *s = (tn_scratch){0};
}
