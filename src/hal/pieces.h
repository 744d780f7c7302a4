/* pieces.h — for memory.c: large pieces of device memory, and the blocks cut out of them (pieces.c). Any thread. */
#ifndef TN_HAL_PIECES_H
#define TN_HAL_PIECES_H

#include "base/base.h"

typedef struct tn_pieces tn_pieces;
typedef struct tn_cut tn_cut;

tn_pieces *tn_pieces_new(size_t alignment); /* of blocks: 64 at least. NULL when memory is out */
void tn_pieces_free(tn_pieces *p);          /* all pieces have been taken out; NULL is fine */
/* A piece from the driver. stays: tn_pieces_take_whole leaves it until it is asked for all. */
tn_status tn_pieces_add(tn_pieces *p, void *address, size_t bytes, bool stays);
/* A block, out of the smallest room that is large enough; NULL when there is none. */
tn_cut *tn_pieces_take(tn_pieces *p, size_t bytes, void **address);
void tn_pieces_give(tn_pieces *p, tn_cut *c);
/* Takes out a piece of which nothing is in use, to be given back to the driver; false: there is none. */
bool tn_pieces_take_whole(tn_pieces *p, bool all, void **address, size_t *bytes);

typedef struct tn_pieces_facts {
    int64_t pieces, free_bytes, largest; /* largest: free block */
} tn_pieces_facts;
tn_pieces_facts tn_pieces_look(tn_pieces *p);

#endif
