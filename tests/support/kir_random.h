/* kir_random.h — kernel programs made from a seed, with memory to run them on: what every way of running programs is
 * compared with the interpreter on.
 *
 * Axes, buffers with strided, broadcast, reversed, transposed, masked and gathered accesses, values of every type,
 * loops with reductions and scans, stores into memory of their own or in place; on request variables and workgroups,
 * whose items share local and global memory between barriers. All global buffers lie in one block of memory (buffers
 * of one area in the same place): copy it, run, compare every byte (two NaN are equal). */
#ifndef TN_KIR_RANDOM_H
#define TN_KIR_RANDOM_H

#include "kir/kir.h"

enum { KIR_RANDOM_RUNTIME_SCALARS = 4, KIR_RANDOM_VALUES = 256, KIR_RANDOM_VARS = 8, KIR_RANDOM_SHARED = 4 };

typedef struct kir_random_options {
    bool long_loop;      /* few points, one loop of tens of thousands of elements, mostly in reductions */
    bool group;          /* a group program; loops may nest */
    bool no_chains;      /* neither CHAIN, SEQ nor SCAN */
    bool variables;      /* VAR, GET and SET, in group programs too */
    bool no_f64, no_f16; /* types that a device lacks */
    bool simple;         /* only what machine code is made of (mc_refusal_of) */
    bool narrow;         /* with simple: no elements of 8 bytes */
    int most_buffers;    /* 0: KIR_MAX_BUFFERS */
    int64_t most_points; /* 0: 6 000 */
} kir_random_options;

/* The memory of one buffer; elements 0: a local buffer, which has none. */
typedef struct kir_random_area {
    tn_dtype dtype;
    int64_t first, elements; /* where element 0 lies behind the area's begin; elements in all */
    size_t at;               /* of the area in the block of memory */
    int64_t limit;           /* an index buffer holds 0 … limit-1; 0: usual values; -1: any bits */
    bool permutation;        /* … each of them once */
} kir_random_area;

/* Memory that items share, and what they did to it since the last barrier. */
typedef struct kir_random_shared {
    int buffer, blocks; /* blocks times as many elements as items */
    kir_aff base, mine; /* where the workgroup's part begins; where this item wrote */
    bool defined, written, read;
} kir_random_shared;

typedef struct kir_random {
    kir_program *program;
    int64_t *sizes;
    kir_scalar scalars[KIR_RANDOM_RUNTIME_SCALARS];
    int n_par, n_loop, n_items; /* of the parallel axes, the last n_items are items */
    int64_t extent[KIR_MAX_AXES];
    kir_random_area areas[KIR_MAX_BUFFERS]; /* one a buffer */
    int n_areas;
    size_t bytes; /* of the block of memory */

    /* while it is made */
    kir_random_options options;
    kir_builder *b;
    kir_val values[KIR_RANDOM_VALUES], vars[KIR_RANDOM_VARS];
    kir_random_shared shared[KIR_RANDOM_SHARED];
    int n_values, n_vars, n_shared, open_axes;
    bool across, shares; /* memory runs along the parallel axes, not along the loops; shared memory may be used here */
} kir_random;

/* The same seed and options, the same program. Fails the test when it cannot be built. */
void kir_random_make(kir_random *t, uint64_t seed, const kir_random_options *options);
void kir_random_free(kir_random *t);

/* Program and sizes become those whose rows workgroups share (gpu/gpu.h); false: there is no such schedule. */
bool kir_random_share_rows(kir_random *t);

char *kir_random_memory(const kir_random *t, uint64_t seed);                /* to be freed with free() */
void kir_random_buffers(const kir_random *t, char *memory, void **buffers); /* of a launch: n_areas of them */
int64_t *kir_random_smaller(const kir_random *t);                           /* sizes with fewer points; free() */
void kir_random_print(const kir_random *t, uint64_t seed);                  /* to stderr */

/* Prints the first difference; true when there is none. */
bool kir_random_same(const kir_random *t, const char *want, const char *got, const char *what);

/* The generator of all of it, for choices that a test makes itself. */
void kir_random_seed(uint64_t seed);
int64_t kir_random_below(int64_t n);

#endif
