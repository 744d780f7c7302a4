/* binding.h — what a launch binds, where bindings are handles with a size and may not overlap.
 *
 * WebGPU refuses bindings of one launch that overlap when one of them is written, and that one buffer is bound to be
 * written and to be read only. So buffers of a launch that lie in one allocation are one slot, and an allocation that
 * is more than a binding takes is a slot of several bindings (windows), or several slots. */
#ifndef TN_HAL_BINDING_H
#define TN_HAL_BINDING_H

#include "base/base.h"
#include "kir/kir.h"

/* A buffer of a launch: an allocation of so many bytes, and where in it the buffer begins. */
typedef struct tn_bound {
    void *memory;
    uint64_t bytes, at;
} tn_bound;

typedef struct tn_bind_limits {
    uint64_t window; /* bytes of a binding */
    uint64_t unit;   /* of the places at which bindings begin */
    uint64_t most;   /* bindings of a launch */
} tn_bind_limits;

/* Which buffers share a slot, how many bindings a slot takes, and the first slot in the same memory. */
typedef struct tn_sharing {
    int slots;
    uint8_t slot_of[KIR_MAX_BUFFERS], windows[KIR_MAX_BUFFERS], twin[KIR_MAX_BUFFERS];
} tn_sharing;

typedef struct tn_bindings {
    tn_sharing sharing;
    tn_bound buffers[KIR_MAX_BUFFERS];
    int first[KIR_MAX_BUFFERS];     /* of a slot: a buffer in it */
    uint64_t from[KIR_MAX_BUFFERS]; /* … where in that buffer's memory the bindings begin */
    uint64_t end[KIR_MAX_BUFFERS];  /* … and end */
} tn_bindings;

/* Each buffer a slot of one binding. */
tn_sharing tn_sharing_apart(int buffers);

/* The slots for b->buffers, all else is 0: an allocation each, if there are as many bindings; else as much of it as the
 * bindings give each buffer (tn_caps.joins), in several slots where buffers are far from each other. */
void tn_bindings_choose(tn_bindings *b, int buffers, const tn_bind_limits *l);

/* What is bound at one place. */
typedef struct tn_bind_entry {
    void *memory;
    uint64_t from, bytes;
} tn_bind_entry;

/* All of them, in the order of slots; how many there are. */
int tn_bindings_list(const tn_bindings *b, const tn_bind_limits *l, tn_bind_entry *out);

#endif
