/* wgsl.h — the head of a WGSL source: bindings, and the functions by which a kernel reaches the words in them; and
 * sources that drivers need themselves.
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

/* Whether the text has a function of this name. */
bool kir_wgsl_has_entry(const char *text, const char *name);

/* ---- sources without a head (wgsl_own.c) ------------------------------------------------------------------------- */

/* WebGPU copies whole words between different buffers. The rest does patch_words, in groups of 64 items: words of the
 * first buffer, from one on, become bytes of the second one, or of one word, where the masks of first and last word say
 * so. */
extern const char kir_wgsl_patch[];
enum { KIR_WGSL_PATCH_ITEMS = 64 };
typedef struct kir_wgsl_patch_params {
    uint64_t base[2];
    uint32_t count, first_mask, last_mask, copies, value;
    uint32_t skip; /* bytes of the second buffer before those for the first word */
    uint32_t row;  /* items of a row of workgroups */
    uint32_t pad;
} kir_wgsl_patch_params;

/* One item of `ask` computes with kir_wgsl_asked in its buffer, and leaves results in their place. */
enum { KIR_WGSL_ASKED = 18 };
extern const char kir_wgsl_ask[];
extern const uint32_t kir_wgsl_asked[KIR_WGSL_ASKED];
typedef struct kir_wgsl_answer {
    bool fused, halves; /* fma() rounds once; halves are converted as IEEE 754 has it */
} kir_wgsl_answer;
kir_wgsl_answer kir_wgsl_judge(const uint32_t said[KIR_WGSL_ASKED]);

#endif
