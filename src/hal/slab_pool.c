/* slab_pool.c — large pieces of device memory cut into blocks: best fit, neighbours joined.
 *
 * The pool takes a piece when it is opened (pool_initial) and when it grows (pool_growth), and asks here only when none
 * of the blocks that it keeps by size will do. A block that comes back is joined to the free ones beside it at once, so
 * that a piece of which nothing is in use is one block and can be given back. Blocks in use never move: plans, graphs
 * and callers hold their addresses. */
#include <pthread.h>

#include "hal/slab_pool.h"

typedef struct slab slab;

struct tn_slab_block {
    tn_slab_block *before, *after; /* in the piece, by address */
    tn_slab_block *next, **link;   /* in the list of the free; link: what points here */
    slab *slab;
    size_t offset, bytes;
};

struct slab {
    slab *next;
    char *address;
    size_t bytes;
    bool stays; /* taken at open: given back at the end alone */
};

struct tn_slab_pool {
    pthread_mutex_t lock;
    slab *pieces;
    tn_slab_block *free;
    size_t alignment;
};

tn_slab_pool *tn_slab_pool_new(size_t alignment) {
    tn_slab_pool *p = tn_mem_zalloc(1, sizeof *p);
    if (!p) return NULL;
    pthread_mutex_init(&p->lock, NULL);
    p->alignment = alignment > 64 ? alignment : 64;
    return p;
}

static void list_add(tn_slab_pool *p, tn_slab_block *c) {
    c->next = p->free;
    c->link = &p->free;
    if (p->free) p->free->link = &c->next;
    p->free = c;
}

static void list_remove(tn_slab_block *c) {
    *c->link = c->next;
    if (c->next) c->next->link = c->link;
    c->next = NULL;
    c->link = NULL;
}

static bool is_free(const tn_slab_block *c) { return c && c->link; }

tn_status tn_slab_pool_add(tn_slab_pool *p, void *address, size_t bytes, bool stays) {
    slab *at = tn_mem_zalloc(1, sizeof *at);
    tn_slab_block *whole = tn_mem_zalloc(1, sizeof *whole);
    if (!at || !whole) {
        tn_mem_free(at);
        tn_mem_free(whole);
        return TN_ERR_MEMORY;
    }
    *at = (slab){.address = address, .bytes = bytes, .stays = stays};
    *whole = (tn_slab_block){.slab = at, .bytes = bytes};
    pthread_mutex_lock(&p->lock);
    at->next = p->pieces;
    p->pieces = at;
    list_add(p, whole);
    pthread_mutex_unlock(&p->lock);
    return TN_OK;
}

/* The smallest free block that is large enough. */
static tn_slab_block *best_fit(const tn_slab_pool *p, size_t bytes) {
    tn_slab_block *best = NULL;
    for (tn_slab_block *c = p->free; c; c = c->next)
        if (c->bytes >= bytes && (!best || c->bytes < best->bytes)) best = c;
    return best;
}

/* The rest behind the first `bytes` becomes a free block of its own, if there is one and memory to note it. */
static void split_slab(tn_slab_pool *p, tn_slab_block *c, size_t bytes) {
    tn_slab_block *rest = c->bytes > bytes ? tn_mem_zalloc(1, sizeof *rest) : NULL;
    if (!rest) return;
    *rest = (tn_slab_block){
        .before = c, .after = c->after, .slab = c->slab, .offset = c->offset + bytes, .bytes = c->bytes - bytes};
    if (c->after) c->after->before = rest;
    c->after = rest;
    c->bytes = bytes;
    list_add(p, rest);
}

tn_slab_block *tn_slab_pool_alloc(tn_slab_pool *p, size_t bytes, void **address) {
    if (bytes > SIZE_MAX - p->alignment) return NULL;
    bytes = (bytes + p->alignment - 1) / p->alignment * p->alignment;
    pthread_mutex_lock(&p->lock);
    tn_slab_block *c = best_fit(p, bytes);
    if (c) {
        list_remove(c);
        split_slab(p, c, bytes);
        *address = c->slab->address + c->offset;
    }
    pthread_mutex_unlock(&p->lock);
    return c;
}

/* c takes in the block behind it. */
static void join_next(tn_slab_block *c) {
    tn_slab_block *gone = c->after;
    list_remove(gone);
    c->bytes += gone->bytes;
    c->after = gone->after;
    if (c->after) c->after->before = c;
    tn_mem_free(gone);
}

void tn_slab_pool_release(tn_slab_pool *p, tn_slab_block *c) {
    pthread_mutex_lock(&p->lock);
    list_add(p, c);
    if (is_free(c->after)) join_next(c);
    if (is_free(c->before)) join_next(c->before);
    pthread_mutex_unlock(&p->lock);
}

static bool slab_is_whole(const tn_slab_block *c) { return !c->before && !c->after; }

static void unlink_slab(tn_slab_pool *p, const slab *gone) {
    slab **link = &p->pieces;
    while (*link != gone)
        link = &(*link)->next;
    *link = gone->next;
}

bool tn_slab_pool_take_empty(tn_slab_pool *p, bool all, void **address, size_t *bytes) {
    pthread_mutex_lock(&p->lock);
    tn_slab_block *c = p->free;
    while (c && (!slab_is_whole(c) || (c->slab->stays && !all)))
        c = c->next;
    if (c) {
        *address = c->slab->address;
        *bytes = c->slab->bytes;
        list_remove(c);
        unlink_slab(p, c->slab);
        tn_mem_free(c->slab);
        tn_mem_free(c);
    }
    pthread_mutex_unlock(&p->lock);
    return c != NULL;
}

tn_slab_pool_facts tn_slab_pool_stats(tn_slab_pool *p) {
    tn_slab_pool_facts f = {0};
    pthread_mutex_lock(&p->lock);
    for (const slab *at = p->pieces; at; at = at->next)
        f.pieces++;
    for (const tn_slab_block *c = p->free; c; c = c->next) {
        f.free_bytes += (int64_t)c->bytes;
        f.largest = tn_max64(f.largest, (int64_t)c->bytes);
    }
    pthread_mutex_unlock(&p->lock);
    return f;
}

void tn_slab_pool_free(tn_slab_pool *p) {
    if (!p) return;
    pthread_mutex_destroy(&p->lock);
    tn_mem_free(p);
}
