/* pack.h — brings a block of a matrix into the order in which the micro-kernels read it.
 *
 * A block is a number of lines (rows of A, columns of B) with one element of each at every step of k. Packed, the
 * elements of one step lie side by side, in groups as wide as a panel or a tile is, and steps follow each other at a
 * fixed distance. Whatever the strides of the matrix are, this is one of three copies: side by side already, along k (a
 * transpose), or neither. */
#ifndef TN_PACK_H
#define TN_PACK_H

#include <stdbool.h>

#include "vec.h"

/* Line l of a step goes to[l / group · jump + step · distance + l % group], from from[step · along + l · across]. */
typedef struct pack {
    real *to;
    int64_t distance;
    int64_t group, jump; /* lines of a packed panel or tile, and how far apart these are */
    const real *from;
    int64_t along, across;
    int64_t steps, lines;
} pack;

enum { PACK_AHEAD = 8 }; /* steps: rows that are far apart are strangers to the processor's own prefetcher */

/* All groups of a step before the next step: rows are read as far as they go, each of their pages once. */
VEC_INLINE void pack_adjacent_by(const pack *p, const int64_t group) {
    const int64_t whole = group / VL * VL;
    const M rest = v_mask(group - whole);
    int64_t groups = p->lines / group;
    for (int64_t step = 0; step < p->steps; step++) {
        const real *from = p->from + step * p->along;
        const real *ahead = from + PACK_AHEAD * p->along;
        real *to = p->to + step * p->distance;
        for (int64_t g = 0; g < groups; g++) {
            for (int64_t i = 0; i < whole; i += VL) {
                __builtin_prefetch(ahead + i);
                v_store(to + i, v_load(from + i));
            }
            if (whole < group) v_part_store(to + whole, rest, v_part_load(from + whole, rest));
            from += group;
            ahead += group;
            to += p->jump;
        }
    }
}

/* The usual group is a constant to the compiler; lines beyond the last whole group are a smaller group of their own. */
static void pack_adjacent(const pack *p) {
    if (p->lines >= p->group) {
        if (p->group == 2 * VL) {
            pack_adjacent_by(p, 2 * VL);
        } else {
            pack_adjacent_by(p, p->group);
        }
    }
    int64_t rest = p->lines % p->group;
    if (rest == 0) return;
    pack last = *p;
    last.to += p->lines / p->group * p->jump;
    last.from += p->lines - rest;
    last.lines = last.group = rest;
    pack_adjacent_by(&last, rest);
}

static void pack_strided(const pack *p) {
    for (int64_t step = 0; step < p->steps; step++) {
        const real *from = p->from + step * p->along;
        real *to = p->to + step * p->distance;
        for (int64_t line = 0; line < p->lines; line++)
            to[line] = from[line * p->across];
    }
}

/* VL lines from `line` on; a line that is missing at the end is read from the last one there is, and not stored. */
VEC_INLINE void pack_transposed_lines(const pack *p, int64_t line, const bool whole) {
    const real *from[VL];
    for (int i = 0; i < VL; i++) {
        int64_t there = whole || line + i < p->lines ? line + i : p->lines - 1;
        from[i] = p->from + there * p->across;
    }
    M lines = v_mask(p->lines - line);
    real *to = p->to + line;
    for (int64_t step = 0; step < p->steps; step += VL) {
        V r[VL];
        int64_t count = p->steps - step;
        if (count >= VL) {
            VEC_UNROLL for (int i = 0; i < VL; i++) r[i] = v_load(from[i] + step);
        } else {
            M steps = v_mask(count);
            VEC_UNROLL for (int i = 0; i < VL; i++) r[i] = v_part_load(from[i] + step, steps);
        }
        v_transpose(r);
        VEC_UNROLL for (int i = 0; i < VL; i++) {
            if (i >= count) break;
            if (whole) {
                v_store(to, r[i]);
            } else {
                v_part_store(to, lines, r[i]);
            }
            to += p->distance;
        }
    }
}

static void pack_transposed(const pack *p) {
    int64_t line = 0;
    for (; line + VL <= p->lines; line += VL)
        pack_transposed_lines(p, line, true);
    if (line < p->lines) pack_transposed_lines(p, line, false);
}

static void pack_run(const pack *p) {
    if (p->across == 1) {
        pack_adjacent(p);
        return;
    }
    for (int64_t line = 0; line < p->lines; line += p->group) {
        pack one = *p;
        one.to += line / p->group * p->jump;
        one.from += line * p->across;
        one.lines = p->lines - line < p->group ? p->lines - line : p->group;
        if (p->along == 1) {
            pack_transposed(&one);
        } else {
            pack_strided(&one);
        }
    }
}

#endif
