/* pointer_map.c — a table from pointers to small numbers: nodes to values, buffers to slots.
 *
 * Open addressing with linear probing, at most half full. It is cleared at every flush, so it starts small and never
 * shrinks: a recording of few leaves clears a few words. */
#include <string.h>

#include "core/core.h"

enum { FIRST_CAPACITY = 16 };

static size_t map_place(const tn_pointer_map *m, const void *key) {
    size_t h = (size_t)((uintptr_t)key >> 4) * (size_t)0x9E3779B97F4A7C15u;
    size_t i = (h >> 20) & (m->capacity - 1);
    while (m->keys[i] && m->keys[i] != key)
        i = (i + 1) & (m->capacity - 1);
    return i;
}

int32_t tn_map_find(const tn_pointer_map *m, const void *key) {
    if (m->count == 0) return -1;
    size_t i = map_place(m, key);
    return m->keys[i] ? m->values[i] : -1;
}

static tn_status map_grow(tn_pointer_map *m) {
    tn_pointer_map old = *m;
    size_t capacity = old.capacity ? 2 * old.capacity : FIRST_CAPACITY;
    const void **keys = tn_mem_zalloc(capacity, sizeof *keys);
    int32_t *values = tn_mem_alloc(capacity * sizeof *values);
    if (!keys || !values) {
        tn_mem_free(keys);
        tn_mem_free(values);
        return TN_ERR_MEMORY;
    }
    *m = (tn_pointer_map){.keys = keys, .values = values, .count = old.count, .capacity = capacity};
    for (size_t i = 0; i < old.capacity; i++) {
        if (!old.keys[i]) continue;
        size_t at = map_place(m, old.keys[i]);
        keys[at] = old.keys[i];
        values[at] = old.values[i];
    }
    tn_mem_free(old.keys);
    tn_mem_free(old.values);
    return TN_OK;
}

tn_status tn_map_put(tn_pointer_map *m, const void *key, int32_t value) {
    if (2 * (m->count + 1) > m->capacity) TRY(map_grow(m));
    size_t i = map_place(m, key);
    if (!m->keys[i]) m->count++;
    m->keys[i] = key;
    m->values[i] = value;
    return TN_OK;
}

void tn_map_clear(tn_pointer_map *m) {
    if (m->count) memset(m->keys, 0, m->capacity * sizeof *m->keys);
    m->count = 0;
}

void tn_map_free(tn_pointer_map *m) {
    tn_mem_free(m->keys);
    tn_mem_free(m->values);
    *m = (tn_pointer_map){0};
}
