/* shadow.c — notes about memory that items of workgroups share (see shadow.h).
 *
 * Local memory has an array of notes, one a byte. Global memory has a hash table by address: only what a program writes
 * is watched, and of that only what it touches. An element is known by its first byte. */
#include "kir/shadow.h"

#include <string.h>

enum { NOBODY = -1, SEVERAL = -2, FIRST_SLOTS = 1024 };

typedef struct note {
    const char *at;         /* NULL: an empty slot */
    int64_t group;          /* the one that touched it last, or SEVERAL have read it */
    int64_t phase;          /* in which writer and reader are true */
    int32_t writer, reader; /* an item, NOBODY, SEVERAL */
    bool written;           /* by `group`, at any time */
} note;

struct kir_shadow {
    const char *local;
    note *locals;
    note *slots; /* open addressing; slot_count is a power of two */
    size_t slot_count, used;
    int64_t group, phase;
};

tn_status kir_shadow_open(const char *local, int64_t bytes, kir_shadow **out) {
    kir_shadow *s = *out = tn_mem_zalloc(1, sizeof *s);
    if (!s) return TN_ERR_MEMORY;
    s->local = local;
    s->slot_count = FIRST_SLOTS;
    s->locals = tn_mem_zalloc((size_t)bytes + 1, sizeof *s->locals);
    s->slots = tn_mem_zalloc(s->slot_count, sizeof *s->slots);
    return s->locals && s->slots ? TN_OK : TN_ERR_MEMORY;
}

void kir_shadow_close(kir_shadow *s) {
    if (!s) return;
    tn_mem_free(s->locals);
    tn_mem_free(s->slots);
    tn_mem_free(s);
}

void kir_shadow_group(kir_shadow *s) {
    s->group++;
    s->phase++;
}

void kir_shadow_barrier(kir_shadow *s) { s->phase++; }

static size_t slot_of(const kir_shadow *s, const char *at) {
    size_t i = (size_t)((uint64_t)(uintptr_t)at * 0x9E3779B97F4A7C15U >> 20) & (s->slot_count - 1);
    while (s->slots[i].at && s->slots[i].at != at)
        i = (i + 1) & (s->slot_count - 1);
    return i;
}

static tn_status grow(kir_shadow *s) {
    note *old = s->slots, *bigger = tn_mem_zalloc(s->slot_count * 2, sizeof *bigger);
    size_t old_count = s->slot_count;
    if (!bigger) return TN_ERR_MEMORY;
    s->slots = bigger;
    s->slot_count *= 2;
    for (size_t i = 0; i < old_count; i++) {
        if (old[i].at) s->slots[slot_of(s, old[i].at)] = old[i];
    }
    tn_mem_free(old);
    return TN_OK;
}

/* The element's note, its phase brought up to date. Local memory begins anew with each group. */
static tn_status note_of(kir_shadow *s, const char *at, bool local, note **out) {
    if (!local && 2 * s->used > s->slot_count) TRY(grow(s));
    note *n = local ? &s->locals[at - s->local] : &s->slots[slot_of(s, at)];
    if (!n->at) {
        *n = (note){.at = at, .group = s->group, .phase = -1};
        s->used += !local;
    }
    if (local && n->group != s->group) *n = (note){.at = at, .group = s->group, .phase = -1};
    if (n->phase != s->phase) {
        n->phase = s->phase;
        n->writer = n->reader = NOBODY;
    }
    *out = n;
    return TN_OK;
}

tn_status kir_shadow_load(kir_shadow *s, const char *at, bool local, int item, const char **wrong) {
    note *n;
    TRY(note_of(s, at, local, &n));
    if (local && !n->written) *wrong = "read before any item of this workgroup has written it";
    if (n->written && n->group != s->group) *wrong = "a race: another workgroup writes it";
    if (n->writer != NOBODY && n->writer != item) *wrong = "a race: another item writes it, with no barrier between";
    n->reader = n->reader == NOBODY || n->reader == item ? item : SEVERAL;
    if (n->group != s->group) n->group = SEVERAL;
    return TN_OK;
}

tn_status kir_shadow_store(kir_shadow *s, const char *at, bool local, int item, const char **wrong) {
    note *n;
    TRY(note_of(s, at, local, &n));
    if (n->group != s->group) *wrong = "a race: another workgroup reads or writes it";
    if (n->reader != NOBODY && n->reader != item) *wrong = "a race: another item reads it, with no barrier between";
    if (n->writer != NOBODY && n->writer != item) *wrong = "a race: another item writes it, with no barrier between";
    n->writer = item;
    n->written = true;
    return TN_OK;
}
