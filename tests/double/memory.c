/* memory.c — allocations that notice: each lies alone between pages that nobody may touch, as close to the one behind
 * it as its alignment lets it.
 *
 * All come from one range of addresses that is reserved once, so no pointer of the host looks like one; they are
 * handed out in ascending order and never twice, so an address tells for ever what it was. */
#include "engine.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096 };
#define RANGE ((size_t)1 << 42)

typedef struct allocation {
    char *begin, *base; /* of its pages, of the memory itself */
    size_t bytes, paged;
    uint32_t owner;
    bool live;
} allocation;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char *range;
static size_t taken;
static allocation *table; /* ascending by address */
static size_t count, room;

static size_t up(size_t n, size_t to) { return (n + to - 1) / to * to; }

static bool start(void) {
    if (range) return true;
    void *p = mmap(NULL, RANGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return false;
    range = p;
    return true;
}

static bool has_row(void) {
    if (count < room) return true;
    size_t more = room ? 2 * room : 1024;
    allocation *grown = realloc(table, more * sizeof *grown);
    if (!grown) return false;
    table = grown;
    room = more;
    return true;
}

/* With the lock held. */
static void *alloc_locked(size_t bytes, uint32_t owner) {
    if (bytes > RANGE / 2 || !start() || !has_row()) return NULL;
    size_t whole = up(bytes ? bytes : 1, ENGINE_ALIGNMENT), paged = up(whole, PAGE);
    if (taken + paged + PAGE > RANGE - PAGE) return NULL;
    char *begin = range + PAGE + taken;
    if (mprotect(begin, paged, PROT_READ | PROT_WRITE)) return NULL;
    memset(begin, ENGINE_POISON, paged);
    taken += paged + PAGE;
    table[count++] = (allocation){begin, begin + paged - whole, bytes, paged, owner, true};
    return table[count - 1].base;
}

void *engine_alloc(size_t bytes, uint32_t owner) {
    pthread_mutex_lock(&lock);
    void *p = alloc_locked(bytes, owner);
    pthread_mutex_unlock(&lock);
    return p;
}

/* The last allocation whose pages begin at or before the address. */
static allocation *before(const char *address) {
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (table[middle].begin <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low ? &table[low - 1] : NULL;
}

static allocation *around(const char *address) {
    allocation *a = before(address);
    return a && address >= a->base && address <= a->base + a->bytes ? a : NULL;
}

engine_block engine_find(const void *address) {
    engine_block out = {0};
    pthread_mutex_lock(&lock);
    allocation *a = around(address);
    if (a) out = (engine_block){a->live ? ENGINE_LIVE : ENGINE_FREED, a->base, a->bytes, a->owner};
    pthread_mutex_unlock(&lock);
    return out;
}

bool engine_within(const void *address, size_t bytes) {
    engine_block b = engine_find(address);
    return b.state == ENGINE_LIVE && bytes <= b.bytes - (size_t)((const char *)address - b.base);
}

static bool is_damaged(const allocation *a) {
    for (const char *p = a->begin; p < a->base; p++)
        if ((unsigned char)*p != ENGINE_POISON) return true;
    for (const char *p = a->base + a->bytes; p < a->begin + a->paged; p++)
        if ((unsigned char)*p != ENGINE_POISON) return true;
    return false;
}

/* The pages go back to the system, the addresses stay reserved. */
static void release(allocation *a) {
    a->live = false;
    (void)mmap(a->begin, a->paged, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

engine_memory_state engine_free(void *base, bool *damaged) {
    engine_memory_state state = ENGINE_NOT_MEMORY;
    *damaged = false;
    pthread_mutex_lock(&lock);
    allocation *a = around(base);
    if (a && a->base == base) {
        state = a->live ? ENGINE_LIVE : ENGINE_FREED;
        if (a->live) {
            *damaged = is_damaged(a);
            release(a);
        }
    }
    pthread_mutex_unlock(&lock);
    return state;
}

static int64_t each_of(uint32_t owner, size_t *bytes, bool freed) {
    int64_t n = 0;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < count; i++) {
        if (!table[i].live || table[i].owner != owner) continue;
        n++;
        *bytes += table[i].bytes;
        if (freed) release(&table[i]);
    }
    pthread_mutex_unlock(&lock);
    return n;
}

int64_t engine_live(uint32_t owner, size_t *bytes) {
    *bytes = 0;
    return each_of(owner, bytes, false);
}

int64_t engine_free_all(uint32_t owner) {
    size_t bytes = 0;
    return each_of(owner, &bytes, true);
}

static void describe(const allocation *a, const char *p, char *out, size_t size) {
    const char *what = a->live ? "an allocation" : "a freed allocation";
    if (p < a->base)
        snprintf(out, size, "%zu bytes before %s of %zu bytes", (size_t)(a->base - p), what, a->bytes);
    else if (p >= a->base + a->bytes)
        snprintf(out, size, "%zu bytes behind %s of %zu bytes", (size_t)(p - a->base) - a->bytes, what, a->bytes);
    else
        snprintf(out, size, "byte %zu of %s of %zu bytes", (size_t)(p - a->base), what, a->bytes);
}

/* Called from a signal handler too: a lock that is held there would be its own thread's, so it is only tried. */
void engine_describe(const void *address, char *out, size_t size) {
    bool locked = !pthread_mutex_trylock(&lock);
    const char *p = address;
    const allocation *a = range && p >= range && p < range + RANGE ? before(p) : NULL;
    if (a)
        describe(a, p, out, size);
    else
        snprintf(out, size, "no memory of the device");
    if (locked) pthread_mutex_unlock(&lock);
}
