/* pack.h — brings a block of a matrix into the order in which the micro-kernels read it.
 *
 * A block is a number of lines (rows of A, columns of B) with one element of each at every step of k. Packed, the
 * elements of one step lie side by side and steps follow each other at a fixed distance. Whatever the strides of the
 * matrix are, this is one of three copies: side by side already, along k (a transpose), or neither. */
#ifndef TN_PACK_H
#define TN_PACK_H

#include <stdbool.h>

#include "vec.h"

/* to[step · distance + line] = from[step · along + line · across] */
typedef struct pack {
    real *to;
    int64_t distance;
    const real *from;
    int64_t along, across;
    int64_t steps, lines;
} pack;

static void pack_adjacent(const pack *p) {
    int64_t whole = p->lines / VL * VL;
    M rest = v_mask(p->lines - whole);
    for (int64_t step = 0; step < p->steps; step++) {
        const real *from = p->from + step * p->along;
        real *to = p->to + step * p->distance;
        for (int64_t i = 0; i < whole; i += VL) v_store(to + i, v_load(from + i));
        if (whole < p->lines) v_part_store(to + whole, rest, v_part_load(from + whole, rest));
    }
}

static void pack_strided(const pack *p) {
    for (int64_t step = 0; step < p->steps; step++) {
        const real *from = p->from + step * p->along;
        real *to = p->to + step * p->distance;
        for (int64_t line = 0; line < p->lines; line++) to[line] = from[line * p->across];
    }
}

/* VL lines from `line` on, PIECE steps at a time. Lines that are missing at the end are read from the last one there is,
 * and not stored. */
VEC_INLINE void pack_transposed_lines(const pack *p, int64_t line, int64_t steps, const bool whole) {
    const real *from[VL];
    for (int i = 0; i < VL; i++) {
        int64_t there = whole || line + i < p->lines ? line + i : p->lines - 1;
        from[i] = p->from + there * p->across;
    }
    M rest = v_mask(p->lines - line);
    real *to = p->to + line;
    for (int64_t step = 0; step < steps; step += PIECE) {
        V r[PIECE];
        VEC_UNROLL for (int i = 0; i < PIECE; i++) r[i] = v_load_pieces(from + i, step);
        v_transpose_pieces(r);
        VEC_UNROLL for (int i = 0; i < PIECE; i++) {
            real *at = to + (step + i) * p->distance;
            if (whole) {
                v_store(at, r[i]);
            } else {
                v_part_store(at, rest, r[i]);
            }
        }
    }
}

static void pack_transposed(const pack *p) {
    int64_t steps = p->steps / PIECE * PIECE;
    int64_t line = 0;
    for (; line + VL <= p->lines; line += VL) pack_transposed_lines(p, line, steps, true);
    if (line < p->lines) pack_transposed_lines(p, line, steps, false);
    pack last = *p;
    last.to += steps * p->distance;
    last.from += steps;
    last.steps -= steps;
    pack_strided(&last);
}

static void pack_run(const pack *p) {
    if (p->across == 1) {
        pack_adjacent(p);
    } else if (p->along == 1) {
        pack_transposed(p);
    } else {
        pack_strided(p);
    }
}

#endif
