/* element_index.h — indices of elements while a kernel is being made: what the movers (movement.c, gather.c, unfold.c)
 * share.
 *
 * Comparisons are made on `index − bound` against 0, so that bounds stay among a kernel's
 * sizes and shapes share its code. */
#ifndef TN_ELEMENT_INDEX_H
#define TN_ELEMENT_INDEX_H

#include "ops/common.h"

static inline kir_aff index_shifted(const kir_aff *at, int64_t by) {
    kir_aff moved = *at;
    moved.c += by;
    return moved;
}

/* index + by < 0 */
static inline kir_val index_below(kir_builder *kb, const kir_aff *at, int64_t by) {
    kir_aff moved = index_shifted(at, by);
    return kir_binary(kb, KIR_LT, kir_index(kb, &moved), kir_const_i(kb, KIR_I64, 0));
}

/* 0 <= index */
static inline kir_val index_not_negative(kir_builder *kb, const kir_aff *at) {
    return kir_binary(kb, KIR_LE, kir_const_i(kb, KIR_I64, 0), kir_index(kb, at));
}

/* a and b, either of which may be KIR_NONE ("always"). */
static inline kir_val mask_both(kir_builder *kb, kir_val a, kir_val b) {
    if (a == KIR_NONE) return b;
    return b == KIR_NONE ? a : kir_binary(kb, KIR_AND, a, b);
}

static inline kir_val index_in_range(kir_builder *kb, kir_val index, int64_t size) {
    kir_val low = kir_binary(kb, KIR_LE, kir_const_i(kb, KIR_I64, 0), index);
    return kir_binary(kb, KIR_AND, low, kir_binary(kb, KIR_LT, index, kir_const_i(kb, KIR_I64, size)));
}

static inline kir_val index_zero(tn_lower *lw, tn_dtype t) { return kir_const_i(lw->kb, kir_type_of(t), 0); }

/* Σ at[d] · stride[d] + c over `rank` dims. */
static inline kir_aff index_flat(tn_lower *lw, const kir_aff *at, const int64_t *stride, int rank, int64_t c) {
    kir_aff sum = kir_aff_const(c);
    for (int d = 0; d < rank; d++) {
        kir_aff part = tn_aff_scale(lw, &at[d], stride[d]);
        sum = tn_aff_add(lw, &sum, &part);
    }
    return sum;
}

/* The inverse for a contiguous tensor: dims of these extents from a flat index, by division
 * where there is more than one. */
static inline void index_unflatten(tn_lower *lw, const kir_aff *flat, const int64_t *shape, int rank, kir_aff *out) {
    int last = -1, first = rank;
    for (int d = 0; d < rank; d++) {
        out[d] = kir_aff_const(0);
        if (shape[d] == 1) continue;
        if (last < 0) first = d;
        last = d;
    }
    if (last < 0) return;
    if (first == last) {
        out[last] = *flat;
        return;
    }
    kir_val rest = kir_index(lw->kb, flat);
    for (int d = last; d > first; d--) {
        if (shape[d] == 1) continue;
        kir_val size = kir_const_i(lw->kb, KIR_I64, shape[d]);
        out[d] = tn_aff_value(kir_binary(lw->kb, KIR_MOD, rest, size));
        rest = kir_binary(lw->kb, KIR_DIV, rest, size);
    }
    out[first] = tn_aff_value(rest);
}

static inline void index_strides(const int64_t *shape, int rank, int64_t *stride) {
    int64_t s = 1;
    for (int d = rank - 1; d >= 0; d--) {
        stride[d] = s;
        s *= shape[d];
    }
}

#endif
