/* address_range.c — ranges of numbers that stand for device memory with handles; see address_range.h.
 *
 * An array in ascending order, searched by halves. New ranges go behind all others, so adding costs nothing until the
 * numbers are used up, which takes a 32-bit machine; from then on the first gap that fits is taken. */
#include "hal/address_range.h"

#include <string.h>

enum { GRAIN = 4096 }; /* the largest alignment that tn_device_alloc gives, and room between two ranges */

/* On 64-bit machines addresses that no program can have: x86 refuses bit 62, ARM, which may ignore the uppermost byte,
 * bit 55. Elsewhere the third gigabyte. */
#if UINTPTR_MAX > 0xFFFFFFFF
static const uintptr_t FIRST = (uintptr_t)1 << 62 | (uintptr_t)1 << 55, LAST = (uintptr_t)1 << 62 | (uintptr_t)1 << 56;
#else
static const uintptr_t FIRST = (uintptr_t)1 << 31, LAST = (uintptr_t)3 << 30;
#endif

void tn_address_ranges_open(tn_address_ranges *s) {
    *s = (tn_address_ranges){.next = FIRST};
    pthread_mutex_init(&s->lock, NULL);
}

void tn_address_ranges_close(tn_address_ranges *s) {
    pthread_mutex_destroy(&s->lock);
    tn_mem_free(s->items);
}

/* Numbers that a range takes: whole grains, and one behind it that belongs to nobody. */
static uintptr_t taken(size_t bytes) { return (((uintptr_t)bytes + GRAIN - 1) / GRAIN + 1) * GRAIN; }

/* How many ranges start at or before `at`. */
static size_t count_before(const tn_address_ranges *s, uintptr_t at) {
    size_t low = 0, high = s->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (s->items[middle].start <= at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The first place for `need` numbers between others; 0 when there is none. */
static uintptr_t gap_for(const tn_address_ranges *s, uintptr_t need) {
    uintptr_t at = FIRST;
    for (size_t i = 0; i < s->count; i++) {
        if (s->items[i].start - at >= need) return at;
        at = s->items[i].start + taken(s->items[i].bytes);
    }
    return LAST - at >= need ? at : 0;
}

static tn_status insert(tn_address_ranges *s, tn_address_range span) {
    TRY(tn_mem_reserve(&s->items, &s->capacity, s->count + 1, sizeof *s->items));
    size_t at = count_before(s, span.start);
    memmove(s->items + at + 1, s->items + at, (s->count - at) * sizeof *s->items);
    s->items[at] = span;
    s->count++;
    return TN_OK;
}

static tn_status place_range(tn_address_ranges *s, void *handle, size_t bytes, uintptr_t *start) {
    uintptr_t need = taken(bytes);
    bool fits = s->next <= LAST && need <= LAST - s->next;
    *start = fits ? s->next : gap_for(s, need);
    if (!*start) return tn_fail(TN_ERR_MEMORY, "no range of numbers is left for %zu bytes of device memory", bytes);
    TRY(insert(s, (tn_address_range){*start, bytes, handle}));
    if (fits) s->next += need;
    return TN_OK;
}

tn_status tn_address_range_add(tn_address_ranges *s, void *handle, size_t bytes, void **address) {
    uintptr_t start = 0;
    if (bytes > LAST - FIRST - 2 * GRAIN)
        return tn_fail(TN_ERR_MEMORY, "no range of numbers is left for %zu bytes of device memory", bytes);
    pthread_mutex_lock(&s->lock);
    tn_status status = place_range(s, handle, bytes ? bytes : 1, &start);
    pthread_mutex_unlock(&s->lock);
    if (status == TN_OK) *address = (void *)start;
    return status;
}

tn_status tn_address_range_add_host(tn_address_ranges *s, void *handle, size_t bytes, const void *host) {
    pthread_mutex_lock(&s->lock);
    tn_status status = insert(s, (tn_address_range){(uintptr_t)host, bytes, handle});
    pthread_mutex_unlock(&s->lock);
    return status;
}

void *tn_address_range_find(tn_address_ranges *s, const void *address, size_t bytes, size_t *offset) {
    uintptr_t at = (uintptr_t)address;
    void *handle = NULL;
    pthread_mutex_lock(&s->lock);
    size_t before = count_before(s, at);
    const tn_address_range *span = before ? &s->items[before - 1] : NULL;
    if (span && at - span->start <= span->bytes && bytes <= span->bytes - (at - span->start)) {
        handle = span->handle;
        *offset = at - span->start;
    }
    pthread_mutex_unlock(&s->lock);
    return handle;
}

tn_status tn_address_range_locate(tn_address_ranges *s, const char *device, const char *role, const void *address,
                                  size_t bytes, void **handle, size_t *offset) {
    *handle = tn_address_range_find(s, address, bytes, offset);
    if (*handle) return TN_OK;
    return tn_fail(TN_ERR_INTERNAL,
                   "%s: %s: %zu bytes at %p are in no allocation of the device; if the address is not one "
                   "that your program handles itself, please report this",
                   device, role, bytes, address);
}

void *tn_address_range_remove(tn_address_ranges *s, const void *address, size_t *bytes) {
    void *handle = NULL;
    pthread_mutex_lock(&s->lock);
    size_t before = count_before(s, (uintptr_t)address);
    tn_address_range *span = before ? &s->items[before - 1] : NULL;
    if (span && span->start == (uintptr_t)address) {
        handle = span->handle;
        *bytes = span->bytes;
        memmove(span, span + 1, (s->count - before) * sizeof *span);
        s->count--;
    }
    pthread_mutex_unlock(&s->lock);
    return handle;
}
