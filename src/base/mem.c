/* mem.c — every allocation of the library: aligned, counted, and able to fail on demand; memory of one pass.
 *
 * A block is inside one of malloc's, after a header with its size and the address of malloc's block, so freeing and
 * counting need no table. (An aligned allocator would save the header's second word, but the C library's is several
 * times slower than its malloc.) The counters serve a promise that tests check: if the n-th allocation of any operation
 * fails, for every n, the result is a clean error and the number of live blocks is as before. */
#include "base/base.h"

#include <stdlib.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__)
#define ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ADDRESS_SANITIZER 1
#endif
#endif
#if defined(ADDRESS_SANITIZER)
#include <sanitizer/asan_interface.h>
#endif

enum {
    ALIGNMENT = 64, /* a cache line, and the widest vector register */
    SMALL = 4096    /* bytes up to which malloc and memset are faster than calloc, which skips the thread's free list */
};

typedef struct block_header {
    void *raw; /* what malloc gave */
    size_t bytes;
} block_header;

static _Atomic int64_t attempts; /* allocations asked for */
static _Atomic int64_t finished; /* those that failed or have been freed: attempts - finished are alive */
static _Atomic int64_t live_bytes;
static _Atomic int64_t peak_bytes;
static _Atomic int64_t fail_countdown; /* at 1 the next allocation fails; at 0 or below none does */

static bool told_to_fail(void) {
    if (atomic_load_explicit(&fail_countdown, memory_order_relaxed) <= 0) return false;
    return atomic_fetch_sub_explicit(&fail_countdown, 1, memory_order_relaxed) == 1;
}

static block_header *header_of(void *p) { return (block_header *)p - 1; }

/* The address sanitizer guards the end of malloc's block, which may lie a few bytes after the end of ours. */
static void watch_end(TN_UNUSED char *end, TN_UNUSED char *raw_end) {
#if defined(ADDRESS_SANITIZER)
    __asan_poison_memory_region(end, (size_t)(raw_end - end));
#else
#endif
}

static void count_new_bytes(size_t bytes) {
    int64_t added = (int64_t)bytes;
    int64_t now = atomic_fetch_add_explicit(&live_bytes, added, memory_order_relaxed) + added;
    int64_t peak = atomic_load_explicit(&peak_bytes, memory_order_relaxed);
    while (now > peak && !atomic_compare_exchange_weak_explicit(&peak_bytes, &peak, now, memory_order_relaxed,
                                                                memory_order_relaxed)) {
    }
}

static void *alloc_block(size_t bytes, size_t alignment, bool zeroed) {
    const size_t overhead = sizeof(block_header) + alignment - 1;
    atomic_fetch_add_explicit(&attempts, 1, memory_order_relaxed);
    char *raw = NULL;
    bool by_calloc = zeroed && bytes > SMALL;
    if (!told_to_fail() && bytes <= (size_t)PTRDIFF_MAX - overhead)
        raw = by_calloc ? calloc(1, bytes + overhead) : malloc(bytes + overhead);
    if (raw == NULL) {
        atomic_fetch_add_explicit(&finished, 1, memory_order_relaxed);
        tn_fail(TN_ERR_MEMORY, "out of host memory: %zu bytes could not be allocated", bytes);
        return NULL;
    }
    size_t misaligned = ((uintptr_t)raw + sizeof(block_header)) % alignment;
    char *p = raw + sizeof(block_header) + (alignment - misaligned) % alignment;
    *header_of(p) = (block_header){raw, bytes};
    if (zeroed && !by_calloc) memset(p, 0, bytes);
    count_new_bytes(bytes);
    watch_end(p + bytes, raw + bytes + overhead);
    return p;
}

void *tn_mem_alloc(size_t bytes) { return alloc_block(bytes, ALIGNMENT, false); }

/* The memory before a large page is never touched, so the alignment costs only addresses. */
void *tn_mem_alloc_pages(size_t bytes) {
    if (bytes < TN_LARGE_PAGE) return tn_mem_alloc(bytes);
    void *p = alloc_block(bytes, TN_LARGE_PAGE, false);
    if (p) tn_large_pages(p, bytes);
    return p;
}

/* calloc knows which pages come fresh from the system and are zero already. */
void *tn_mem_zalloc(size_t count, size_t size) {
    size_t bytes;
    if (!__builtin_mul_overflow(count, size, &bytes)) return alloc_block(bytes, ALIGNMENT, true);
    tn_fail(TN_ERR_MEMORY, "out of host memory: %zu items of %zu bytes exceed the address space", count, size);
    return NULL;
}

void *tn_mem_realloc(void *p, size_t bytes) {
    void *grown = tn_mem_alloc(bytes);
    if (grown == NULL || p == NULL) return grown;
    size_t old_bytes = header_of(p)->bytes;
    memcpy(grown, p, old_bytes < bytes ? old_bytes : bytes);
    tn_mem_free(p);
    return grown;
}

void tn_mem_free(void *p) {
    if (p == NULL) return;
    block_header *header = header_of(p);
    atomic_fetch_sub_explicit(&live_bytes, (int64_t)header->bytes, memory_order_relaxed);
    atomic_fetch_add_explicit(&finished, 1, memory_order_relaxed);
    free(header->raw);
}

void tn_mem_free_list(void *const *blocks, size_t count) {
    for (size_t i = 0; i < count; i++)
        tn_mem_free(blocks[i]);
}

char *tn_mem_strdup(const char *s) {
    size_t bytes = strlen(s) + 1;
    char *copy = tn_mem_alloc(bytes);
    if (copy != NULL) memcpy(copy, s, bytes);
    return copy;
}

/* At least half as much again, so that adding one at a time costs amortised constant time; eight to begin with. */
static size_t grown_capacity(size_t capacity, size_t need) {
    size_t half_more = capacity <= SIZE_MAX / 2 ? capacity + capacity / 2 : need;
    size_t wanted = half_more > need ? half_more : need;
    return wanted > 8 ? wanted : 8;
}

tn_status tn_mem_grow(void *items_pointer, size_t *capacity, size_t need, size_t item_size) {
    if (need <= *capacity) return TN_OK;
    size_t new_capacity = grown_capacity(*capacity, need);
    size_t bytes;
    if (__builtin_mul_overflow(new_capacity, item_size, &bytes))
        return tn_fail(TN_ERR_MEMORY, "out of host memory: %zu items of %zu bytes exceed the address space",
                       new_capacity, item_size);
    void *items; /* items_pointer is some T **: copied as bytes, because a T * must not be read as a void * */
    memcpy(&items, items_pointer, sizeof items);
    void *grown = tn_mem_realloc(items, bytes);
    if (grown == NULL) return TN_ERR_MEMORY;
    memcpy(items_pointer, &grown, sizeof grown);
    *capacity = new_capacity;
    return TN_OK;
}

void tn_mem_fail_at(int64_t n) { atomic_store_explicit(&fail_countdown, n, memory_order_relaxed); }

tn_mem_stats tn_mem_get_stats(void) {
    tn_mem_stats stats;
    stats.calls = atomic_load_explicit(&attempts, memory_order_relaxed);
    stats.live_blocks = stats.calls - atomic_load_explicit(&finished, memory_order_relaxed);
    stats.live_bytes = atomic_load_explicit(&live_bytes, memory_order_relaxed);
    stats.peak_bytes = atomic_load_explicit(&peak_bytes, memory_order_relaxed);
    return stats;
}

int tn_compare_texts(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

bool tn_bytes_are_bools(const uint8_t *bytes, int64_t n) {
    uint8_t all = 0;
    for (int64_t i = 0; i < n; i++)
        all |= bytes[i];
    return all <= 1;
}

bool tn_mul_overflow(int64_t a, int64_t b, int64_t *out) { return __builtin_mul_overflow(a, b, out); }

bool tn_add_overflow(int64_t a, int64_t b, int64_t *out) { return __builtin_add_overflow(a, b, out); }

/* ==== memory of one pass ========================================================================================== */
/* Memory of one pass: pieces of larger blocks, all freed at once.
 *
 * Making a plan takes a hundred small arrays that are not needed afterwards. Under the address sanitizer each piece is
 * a separate block, so that overruns are detected. */

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
