/* gemm_small_m.h — few rows of A times columns of B that lie along k, as a vector times the rows of a matrix; part of
 * tiles.c.
 *
 * An element of C is one chain along k, so the lanes of a vector are columns: a square of VL columns and VL steps is
 * read along k and turned in registers, each number of B once and without a copy. */
#ifndef TN_GEMM_SMALL_M_H
#define TN_GEMM_SMALL_M_H

#include "kern/cpu/pack.h"
#include "kern/cpu/tile.h"

/* Along a page the processor finds the next numbers of each column by itself, and being asked for them too is in its
 * way (a tenth slower, measured on Emerald Rapids). It stops where a page ends: there the next page's first lines are
 * asked for. */
enum { LINES_AHEAD = 256, PAGE = 4096, FIRST_LINES = 128 }; /* bytes of each column */

VEC_INLINE void lines_ask(const char *first, int64_t distance, int64_t columns) {
    first += LINES_AHEAD;
    if ((uintptr_t)first % PAGE >= FIRST_LINES) return;
    for (int64_t i = 0; i < columns; i++)
        __builtin_prefetch(first + i * distance);
}

/* The next columns begin somewhere else, and nothing would find their first numbers: these are asked for as early,
 * `left` bytes before the end of those at hand. */
VEC_INLINE void lines_ask_next(const char *next, int64_t distance, int64_t left) {
    if (left > LINES_AHEAD || left <= LINES_AHEAD - FIRST_LINES) return;
    next += LINES_AHEAD - left;
    for (int64_t i = 0; i < VL; i++)
        __builtin_prefetch(next + i * distance);
}

/* VL steps of each column, as rows that lie along k. */
VEC_INLINE void lines_load(V r[VL], const char *first, int64_t distance, int64_t columns, const bool whole,
                           const pack_kind kind) {
    VEC_UNROLL for (int i = 0; i < VL; i++) {
        r[i] = pack_load(first, kind, 0);
        first += whole || i + 1 < columns ? distance : 0;
    }
}

/* The steps behind the last whole square, turned. */
typedef void lines_rest(real rest[VL][VL], const char *first, int64_t distance, int64_t columns, int64_t left,
                        pack_kind kind);

VEC_INLINE void lines_load_rest(real rest[VL][VL], const char *first, int64_t distance, int64_t columns, int64_t left,
                                pack_kind kind) {
    V r[VL];
    for (int i = 0; i < VL; i++) {
        r[i] = pack_part(first, kind, 0, left);
        first += i + 1 < columns ? distance : 0;
    }
    v_transpose(r);
    VEC_UNROLL for (int i = 0; i < VL; i++) v_store(rest[i], r[i]);
}

/* t->columns columns; `first` of them, each `distance` bytes from the one before. Fewer than VL: the last one is read
 * in place of those that are missing. `most`, `whole` and whether the kind is PACK_REAL are constant after inlining. */
VEC_INLINE void lines_run_as(const tile *t, const char *first, int64_t distance, int rows, const int most,
                             const bool whole, pack_kind kind, lines_rest *load_rest) {
    const int64_t size = kind == PACK_REAL ? (int64_t)sizeof(real) : 2;
    const real *a[LINES_ROWS];
    V sum[LINES_ROWS], r[VL];
    VEC_UNROLL for (int i = 0; i < most; i++) {
        a[i] = t->a + (i < rows ? i : 0) * t->a_row;
        sum[i] = v_zero();
    }
    int64_t left = t->k;
    for (; left >= VL; left -= VL) {
        lines_ask(first, distance, t->columns);
        if (t->ahead) lines_ask_next((const char *)t->ahead, distance, left * size);
        if (kind == PACK_REAL)
            lines_load(r, first, distance, t->columns, whole, PACK_REAL);
        else if (kind == PACK_F16)
            lines_load(r, first, distance, t->columns, whole, PACK_F16);
        else
            lines_load(r, first, distance, t->columns, whole, PACK_BF16);
        v_transpose(r);
        VEC_UNROLL for (int j = 0; j < VL; j++) {
            VEC_UNROLL for (int i = 0; i < most; i++) sum[i] = v_step(v_set1(a[i][j * t->a_k]), r[j], sum[i]);
        }
        VEC_UNROLL for (int i = 0; i < most; i++) a[i] += VL * t->a_k;
        first += VL * size;
    }
    if (left > 0) {
        real rest[VL][VL];
        load_rest(rest, first, distance, t->columns, left, kind);
        for (int64_t j = 0; j < left; j++) {
            VEC_UNROLL for (int i = 0; i < most; i++) sum[i] =
                v_step(v_set1(a[i][j * t->a_k]), v_load(rest[j]), sum[i]);
        }
    }
    const M mask = v_mask(t->columns);
    VEC_UNROLL for (int i = 0; i < most; i++) {
        if (i >= rows) break;
        real *to = t->c + i * t->c_row;
        v_part_store(to, mask, t->add ? v_part_load(to, mask) + sum[i] : sum[i]);
    }
}

/* Numbers of the sums' type, and halves of both kinds: the processor guesses rightly which they are. */
#define LINES_FUNCTIONS(name, kind_of)                                                                        \
    static __attribute__((noinline)) void name##_rest(real rest[VL][VL], const char *first, int64_t distance, \
                                                      int64_t columns, int64_t left, pack_kind kind) {        \
        lines_load_rest(rest, first, distance, columns, left, kind_of(kind));                                 \
    }                                                                                                         \
    static void name(const tile *t, pack_kind kind, const char *first, int64_t distance, int rows) {          \
        if (rows == 1 && t->columns == VL) {                                                                  \
            lines_run_as(t, first, distance, 1, 1, true, kind_of(kind), name##_rest);                         \
        } else {                                                                                              \
            lines_run_as(t, first, distance, rows, LINES_ROWS, false, kind_of(kind), name##_rest);            \
        }                                                                                                     \
    }
#define LINES_REAL(kind) ((void)(kind), PACK_REAL)
LINES_FUNCTIONS(lines_real, LINES_REAL)

/* The kinds that are read so: all but bytes, which are few. */
#if defined(TN_VEC_F64) || defined(TN_VEC_PAIRS)
static const bool lines_take[] = {[PACK_REAL] = true, [PACK_QUADS] = false};
#define lines_run lines_real
#else
static const bool lines_take[] = {[PACK_REAL] = true, [PACK_F16] = true, [PACK_BF16] = true, [PACK_QUADS] = false};
#define LINES_HALVES(kind) ((kind) == PACK_F16 ? PACK_F16 : PACK_BF16)
LINES_FUNCTIONS(lines_halves, LINES_HALVES)

static void lines_run(const tile *t, pack_kind kind, const char *first, int64_t distance, int rows) {
    (kind == PACK_REAL ? lines_real : lines_halves)(t, kind, first, distance, rows);
}
#endif

#endif
