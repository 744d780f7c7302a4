/* wgsl.h — the head of a WGSL source: bindings, and the functions by which a kernel reaches the words in them.
 *
 * Which buffers of a launch lie in one allocation, and how many bindings an allocation takes, is known at the launch:
 * a driver then puts another head in the place of the one that came with the kernel (tn_code.head_size). The rest of a
 * kernel knows buffers by word3(i), put3(i, v) and flip3(i, v), which read, write and exclusive-or word i of buffer 3,
 * and its parameters by p, an array of vec4<u32>. */
#ifndef KIR_WGSL_H
#define KIR_WGSL_H

#include "base/base.h"
#include "kir/kir.h"

enum { KIR_WGSL_BINDINGS = KIR_MAX_BUFFERS + 1 }; /* the most, with that of the parameters */

/* What a kernel does to a buffer beside reading it. */
enum {
    KIR_WGSL_WRITES = 1,
    KIR_WGSL_FLIPS = 2 /* changes parts of words, which other items share: by atomic operations */
};

/* Buffers lie in slots, numbered as they appear; a slot is so many bindings behind each other, all of them of
 * window_words words but the last. */
typedef struct kir_wgsl_head {
    int buffers, slots;
    const uint8_t *uses, *slot_of; /* of a buffer */
    const uint8_t *windows;        /* of a slot; NULL: 1 */
    const uint8_t *twin; /* … the first one in the same memory, of which all are written or none; NULL: itself */
    uint32_t window_words;
    size_t params_bytes;
} kir_wgsl_head;

/* How a kernel uses buffers of these elements (NULL: words), of which it writes some (NULL: all). */
void kir_wgsl_uses(int buffers, const bool *written, const tn_dtype *elements, uint8_t *uses);

/* Adds the head. kinds: a letter for each binding, w(ritten), r(ead) or p(arameters), and a NUL. */
void kir_wgsl_put_head(tn_str *out, const kir_wgsl_head *h, char kinds[KIR_WGSL_BINDINGS + 1]);

#endif
