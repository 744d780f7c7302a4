/* simd.h — the vector routines of the tile VM: one table per instruction set, all with the same entries.
 *
 * A routine runs over n contiguous elements. Its output may be exactly the memory of an input, never a shifted part of
 * it. If an operand is the same for all elements, a variant takes the address of that element. An entry is NULL if a
 * variant was not worth its code: the VM then expands the element first. */
#ifndef KIR_SIMD_H
#define KIR_SIMD_H

#include "kir/kir.h"

/* d: output; a, b, c: inputs, unused ones ignored. */
typedef void kir_fn(void *d, const void *a, const void *b, const void *c, int64_t n);

/* Which operand of a binary operation is a single element. */
enum { KIR_VV, KIR_VS, KIR_SV, KIR_SHAPES };

/* Moves a block of elements: d[i·d_outer + j·d_inner] = s[i·s_outer + j·s_inner], i < outer, j < inner. Strides in
 * elements, of any sign. */
typedef struct kir_block {
    void *d;
    const void *s;
    int64_t d_outer, d_inner, s_outer, s_inner, outer, inner;
} kir_block;
typedef void kir_copy(const kir_block *block);

/* d[i] = s[index[i]] where mask[i] (NULL: everywhere), else 0; and d[index[i]] = s[i] where mask[i]. */
typedef void kir_indexed(void *d, const void *s, const int64_t *index, const uint8_t *mask, int64_t n);

/* The same with index[i] = i·stride; mask is never NULL. */
typedef void kir_masked(void *d, const void *s, int64_t stride, const uint8_t *mask, int64_t n);

enum { KIR_WIDTHS = 4 }; /* element widths 1, 2, 4, 8, by their logarithm */

typedef struct kir_simd_table {
    kir_fn *unary[KIR_OP_COUNT][KIR_TYPE_COUNT];
    kir_fn *round[KIR_NEAREST_EVEN + 1][KIR_TYPE_COUNT];
    kir_fn *cast[KIR_TYPE_COUNT][KIR_TYPE_COUNT]; /* from, to */
    kir_fn *binary[KIR_SHAPES][KIR_OP_COUNT][KIR_TYPE_COUNT];
    kir_fn *fma[8][KIR_TYPE_COUNT];                         /* bits 0, 1, 2: operand a, b, c is a single element */
    kir_fn *select[8][KIR_WIDTHS];                          /* the same bits; the condition is always a vector */
    kir_fn *philox[2];                                      /* 1: the key is a single element */
    kir_fn *load[TN_PLAIN_DTYPES], *store[TN_PLAIN_DTYPES]; /* conversions; NULL where bits are only copied */

    /* Reductions along memory. lanes: d has KIR_LANES partial results, *b (int64) is the lane of a[0]. fold: *d from
     * the lanes in a. rows: d[i] from row i of a, n rows of *b (int64) elements, at most KIR_BLOCK. */
    kir_fn *lanes[KIR_RMIN + 1][KIR_TYPE_COUNT], *fold[KIR_RMIN + 1][KIR_TYPE_COUNT],
        *rows[KIR_RMIN + 1][KIR_TYPE_COUNT];
    /* *d (int64): index of the best so far, -1 at first; *b: its value, updated; *c (int64): index of a[0]. */
    kir_fn *arg[2][KIR_TYPE_COUNT];
    /* The same for n columns side by side, one element each: *c (int64) is the index of this row. */
    kir_fn *arg_columns[2][KIR_TYPE_COUNT];
    kir_fn *scan[KIR_RMIN + 1][KIR_TYPE_COUNT]; /* *b: the value before a[0], updated */
    kir_fn *chain[KIR_TYPE_COUNT]; /* d: open chain, total; a, b: factors; *c (int64): elements before these */

    kir_copy *copy[KIR_WIDTHS];
    kir_indexed *gather[KIR_WIDTHS], *scatter[KIR_WIDTHS];
    kir_masked *load_masked[KIR_WIDTHS], *store_masked[KIR_WIDTHS];
    void (*ramp)(int64_t *d, int64_t first, int64_t step, int64_t n);
} kir_simd_table;

extern const kir_simd_table kir_simd_base, kir_simd_avx2, kir_simd_avx512;

#endif
