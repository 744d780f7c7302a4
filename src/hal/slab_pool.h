/* slab_pool.h — for memory.c: large pieces of device memory, and the blocks cut out of them (slab_pool.c). Any thread.
 * */
#ifndef TN_HAL_SLAB_POOL_H
#define TN_HAL_SLAB_POOL_H

#include "base/base.h"

typedef struct tn_slab_pool tn_slab_pool;
typedef struct tn_slab_block tn_slab_block;

tn_slab_pool *tn_slab_pool_new(size_t alignment); /* of blocks: 64 at least. NULL when memory is out */
void tn_slab_pool_free(tn_slab_pool *p);          /* all pieces have been taken out; NULL is fine */
/* A piece from the driver. stays: tn_slab_pool_take_empty leaves it until it is asked for all. */
tn_status tn_slab_pool_add(tn_slab_pool *p, void *address, size_t bytes, bool stays);
/* A block, out of the smallest room that is large enough; NULL when there is none. */
tn_slab_block *tn_slab_pool_alloc(tn_slab_pool *p, size_t bytes, void **address);
void tn_slab_pool_release(tn_slab_pool *p, tn_slab_block *c);
/* Takes out a piece of which nothing is in use, to be given back to the driver; false: there is none. */
bool tn_slab_pool_take_empty(tn_slab_pool *p, bool all, void **address, size_t *bytes);

typedef struct tn_slab_pool_facts {
    int64_t pieces, free_bytes, largest; /* largest: free block */
} tn_slab_pool_facts;
tn_slab_pool_facts tn_slab_pool_stats(tn_slab_pool *p);

#endif
