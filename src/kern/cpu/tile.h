/* tile.h — the micro-kernels: a few rows of C times one panel of columns, over one chunk of k, in registers.
 *
 * A tile starts its sums at +0 and adds them to C (or stores them, for the first chunk): that is one chain of the
 * numerics contract. There are tiles of every height up to TILE_ROWS, so rows are never padded; widths are a panel of
 * PANEL columns, an edge of one (masked), or several panels at once where few rows leave registers free: few rows
 * need several columns in flight to hide the latency of the fma.
 *
 * Neither operand has to be packed: B is read through a distance between rows of k and one between panels, A through a
 * distance between rows and one along k. */
#ifndef TN_TILE_H
#define TN_TILE_H

#include <stddef.h>

#include "kern/cpu/vec.h"

/* Rows are bounded by the registers: rows · 2 sums, two vectors of B and one of A must fit; for double, where nobody
 * waits for the last tenth, by the size of the code. TILE_SPLITS(height, first, second): such a tile is two lower ones,
 * each with enough sums to keep the multipliers busy, since code for heights that only the end of a matrix has is not
 * worth its room. WIDE_n: panels that n rows take at once; 1 where one panel keeps the multipliers busy. */
#if defined(__AVX512F__) && defined(TN_VEC_F64)
#define TILE_HEIGHTS(X) X(1) X(2) X(4) X(8)
#define TILE_SPLITS(X) X(3, 2, 1) X(5, 4, 1) X(6, 4, 2) X(7, 4, 3)
enum { TILE_ROWS = 8, WIDE_1 = 4, WIDE_2 = 4, WIDE_3 = 2, WIDE_4 = 2 };
#elif defined(__AVX512F__) && defined(TN_VEC_WORDS)
#define TILE_HEIGHTS(X) X(1) X(2) X(4) X(8) X(14)
#define TILE_SPLITS_TO_7(X) X(3, 2, 1) X(5, 4, 1) X(6, 4, 2) X(7, 4, 3)
#define TILE_SPLITS(X) TILE_SPLITS_TO_7(X) X(9, 5, 4) X(10, 8, 2) X(11, 8, 3) X(12, 8, 4) X(13, 8, 5)
#define EDGE_HEIGHTS(X) X(1) X(2) X(4)
#define EDGE_SPLITS(X) \
    TILE_SPLITS_TO_7(X) X(8, 4, 4) X(9, 8, 1) X(10, 8, 2) X(11, 8, 3) X(12, 8, 4) X(13, 8, 5) X(14, 8, 6)
#define NHWC_HEIGHTS(X) X(1) X(2) X(4) X(5) X(7) X(8) X(10) X(13) X(14)
#define NHWC_SPLITS(X) X(3, 2, 1) X(6, 4, 2) X(9, 5, 4) X(11, 7, 4) X(12, 7, 5)
enum { TILE_ROWS = 14, WIDE_1 = 4, WIDE_2 = 2, WIDE_3 = 1, WIDE_4 = 1 };
#elif defined(__AVX512F__)
#define TILE_HEIGHTS(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(10) X(12) X(14)
#define TILE_SPLITS(X) X(9, 5, 4) X(11, 6, 5) X(13, 7, 6)
#define TAPPED_HEIGHTS(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(14)
#define TAPPED_SPLITS(X) TILE_SPLITS(X) X(10, 5, 5) X(12, 6, 6)
#define NHWC_HEIGHTS(X) X(4) X(5) X(6) X(7) X(8) X(10) X(12) X(13) X(14)
#define NHWC_SPLITS(X) X(9, 5, 4) X(11, 6, 5)
#define TILE_LOWER(t) tile_split(t, tile_full_8, 8, tile_full_6) /* for rows that lie anywhere */
enum { TILE_ROWS = 14, WIDE_1 = 4, WIDE_2 = 4, WIDE_3 = 2, WIDE_4 = 2 };
#elif defined(__AVX2__) && defined(TN_VEC_F64)
#define TILE_HEIGHTS(X) X(1) X(2) X(4) X(6)
#define TILE_SPLITS(X) X(3, 2, 1) X(5, 4, 1)
enum { TILE_ROWS = 6, WIDE_1 = 4, WIDE_2 = 2, WIDE_3 = 2, WIDE_4 = 1 };
#elif defined(__AVX2__) && defined(TN_VEC_WORDS)
#define TILE_HEIGHTS(X) X(1) X(2) X(4) X(6)
#define TILE_SPLITS(X) X(3, 2, 1) X(5, 4, 1)
#define EDGE_HEIGHTS(X) X(1) X(2) X(4)
#define EDGE_SPLITS(X) TILE_SPLITS(X) X(6, 4, 2)
enum { TILE_ROWS = 6, WIDE_1 = 4, WIDE_2 = 1, WIDE_3 = 1, WIDE_4 = 1 };
#elif defined(__AVX2__)
#define TILE_HEIGHTS(X) X(1) X(2) X(3) X(4) X(5) X(6)
enum { TILE_ROWS = 6, WIDE_1 = 4, WIDE_2 = 2, WIDE_3 = 2, WIDE_4 = 1 };
#elif defined(__x86_64__) /* old processors: small code */
#define TILE_HEIGHTS(X) X(1) X(4)
#define TILE_SPLITS(X) X(2, 1, 1) X(3, 2, 1)
enum { TILE_ROWS = 4, WIDE_1 = 1, WIDE_2 = 1, WIDE_3 = 1, WIDE_4 = 1 };
#else
#define TILE_HEIGHTS(X) X(1) X(2) X(3) X(4)
enum { TILE_ROWS = 4, WIDE_1 = 4, WIDE_2 = 2, WIDE_3 = 1, WIDE_4 = 1 };
#endif
#ifndef TILE_SPLITS
#define TILE_SPLITS(X)
#endif
#ifndef TILE_LOWER
#define TILE_LOWER(t) (void)0
#endif
#ifndef EDGE_HEIGHTS
#define EDGE_HEIGHTS TILE_HEIGHTS
#define EDGE_SPLITS TILE_SPLITS
#endif
#ifndef NHWC_HEIGHTS
#define TAPPED_HEIGHTS TILE_HEIGHTS
#define TAPPED_SPLITS TILE_SPLITS
#define NHWC_SPLITS TILE_SPLITS
#define NHWC_HEIGHTS TILE_HEIGHTS
#endif

enum {
    WIDEST = 4 /* the greatest number of panels of a wide tile */
};

/* Memory is asked for early, and little at a time: a burst would hold up the loads of the steps at hand. Of C these are
 * the rows of the tile behind; where nobody knows that, a tile's own rows as it starts. */
enum {
    C_AHEAD_K = 64,             /* … if it has so many steps to go */
    A_AHEAD = 12,               /* steps, where one step's rows lie side by side */
    B_AHEAD = 32,               /* steps: as long as a line of a large weight takes from the third cache */
    TALL = TILE_ROWS / 2,       /* rows from which there is room for the prefetches of B */
    FOLDING = 6,                /* rows of a turned tile from which there is room for the loads of folding */
    STRETCH = 64 / sizeof(real) /* steps between two prefetches of a row of A: one cache line */
};

/* How rows of A lie: anywhere, side by side, or TILE_COPY apart. */
typedef enum tile_rows { APART, ADJACENT, COPIED } tile_rows;

/* Is a number of A in this row brought to all lanes by the multiplications themselves? That takes an instruction less,
 * and a load more. Where another thread shares the core, instructions are what runs short first (an eighth faster then,
 * the same when alone; measured on Emerald Rapids). Rows that lie anywhere have addresses that take the gain back, and
 * more of them than there are registers; so they are copied to where their distance is a constant. */
VEC_INLINE bool tile_folds(const int row, const int rows, const tile_rows lie) {
    return V_FOLDS && rows == TILE_ROWS && lie != APART && row % 2 == 1;
}

/* Before a loop over steps: two of them for one look at whether it is over. */
#if defined(__clang__)
#define TILE_TWICE _Pragma("clang loop unroll_count(2)")
#else
#define TILE_TWICE _Pragma("GCC unroll 2")
#endif

/* One step of k. All but the sums and the addresses is constant after inlining. */
VEC_INLINE void tile_step(V sum[TILE_ROWS][2 * WIDEST], const real *a, const int64_t a_row, const int64_t a_k,
                          const real *b, const int64_t b_k, const int64_t b_panel, const M mask, const int rows,
                          const int panels, const int vectors, const bool edge, const tile_rows lie, const bool far) {
    const int width = panels * vectors;
    if (lie == ADJACENT)
        __builtin_prefetch(a + A_AHEAD * a_k); /* a packed step is shorter than a line: none is left out */
    V y[2 * WIDEST];
    VEC_UNROLL for (int j = 0; j < width; j++) {
        const real *from = b + (j / vectors) * b_panel + (j % vectors) * VL;
        if (rows >= TALL && far) __builtin_prefetch(from + B_AHEAD * b_k);
        y[j] = edge ? v_part_load(from, mask) : v_load(from);
    }
    VEC_UNROLL for (int i = 0; i < rows; i++) {
        if (tile_folds(i, rows, lie)) {
            VEC_UNROLL for (int j = 0; j < width; j++) sum[i][j] = v_fold(a + i * a_row, y[j], sum[i][j]);
            continue;
        }
        V x = v_set1(a[i * a_row]);
        VEC_UNROLL for (int j = 0; j < width; j++) sum[i][j] = v_step(x, y[j], sum[i][j]);
    }
}

#if defined(TN_VEC_F64) || defined(TN_VEC_WORDS)
VEC_INLINE bool tile_end(const tile *t, V sum[TILE_ROWS][2 * WIDEST], const int rows) {
    (void)t, (void)sum, (void)rows;
    return false;
}

VEC_INLINE int64_t tile_gate(const tile *t) {
    (void)t;
    return 0;
}
enum { SPREADS = false };
#else
enum { SPREADS = true };

/* Bytes from C to the matrix that gates it, if that has C's rows; else 0. */
VEC_INLINE int64_t tile_gate(const tile *t) {
    const epilogue_ops *e = t->epilogue_ops;
    if (!e || !e->gate || e->gate_row != t->c_row) return 0;
    return (int64_t)((uintptr_t)(e->gate + t->row * e->gate_row + t->column) - (uintptr_t)t->c);
}

/* A row's sums with their fused epilogue, of those that are worth code of their own: a bias with or without max(…, 0),
 * and what is added under a gate. `gated` is constant after inlining. */
VEC_INLINE void tile_end_rows(const tile *t, V sum[TILE_ROWS][2 * WIDEST], const int rows, const bool gated) {
    const epilogue_ops *e = t->epilogue_ops;
    const real *times = e->times ? e->times + t->row * e->times_row : NULL;
    const real *gate = gated ? e->gate + t->row * e->gate_row + t->column : NULL;
    const V nothing = v_set1(-0.0f), zero = v_set1(times ? e->zero : -0.0f);
    const V floor = v_set1(e->relu ? 0 : __builtin_nanf(""));
    real *c = t->c;
    V add[2];
    VEC_UNROLL for (int j = 0; j < 2; j++) add[j] = e->add ? v_load(e->add + t->column + j * VL) : nothing;
    VEC_UNROLL for (int i = 0; i < rows; i++, c += t->c_row) {
        V by = v_set1(1);
        if (gated && times) {
            by = v_set1(*times);
            times += e->times_row;
        }
        VEC_UNROLL for (int j = 0; j < 2; j++) {
            V x = t->add ? v_load(c + j * VL) + sum[i][j] : sum[i][j];
            x = x + (gated ? v_fma(by, add[j], zero) : add[j]);
            v_store(c + j * VL, v_gate(x, gated ? v_load(gate + j * VL) : x, floor));
        }
        gate += gated ? e->gate_row : 0;
    }
}

VEC_INLINE bool tile_end(const tile *t, V sum[TILE_ROWS][2 * WIDEST], const int rows) {
    if (!t->epilogue_ops) return false;
    if (t->epilogue_ops->gate)
        tile_end_rows(t, sum, rows, true);
    else
        tile_end_rows(t, sum, rows, false);
    return true;
}
#endif

/* Rows of C, to be written, and of what they are gated by, which lies `gate` bytes further; 0: nothing. */
VEC_INLINE void tile_ask(const real *c, int64_t c_row, int64_t gate, int64_t rows) {
    for (; rows > 0; rows--, c += c_row) {
        __builtin_prefetch(c, 1);
        __builtin_prefetch(c + VL, 1);
        if (!gate) continue;
        const char *from = (const char *)c + gate;
        __builtin_prefetch(from);
        __builtin_prefetch(from + VL * sizeof(real));
    }
}

static __attribute__((noinline)) void tile_ask_now(const tile *t, int64_t rows) {
    const real *c = t->k >= C_AHEAD_K ? t->c : t->c_next;
    if (c) tile_ask(c, t->c_row, 0, rows);
}

/* All but `t` is constant after inlining: rows, panels, vectors a panel, whether they are masked, whether the rows of A
 * lie side by side, whether steps of B lie anywhere. */
VEC_INLINE void tile_sum(const tile *t, V sum[TILE_ROWS][2 * WIDEST], const M mask, const int rows, const int panels,
                         const int vectors, const bool edge, const tile_rows lie, const bool tapped) {
    const int width = panels * vectors;
    const bool spreads = SPREADS && rows == TILE_ROWS && !edge && !tapped;
    const real *next = t->c;
    int64_t share = 0, gate = 0;
    if (spreads && t->c_next) {
        next = t->c_next;
        share = tn_min64(tn_ceil_div(rows * STRETCH, tn_max64(t->k, 1)), rows);
        gate = tile_gate(t);
    } else {
        tile_ask_now(t, rows);
    }
    VEC_UNROLL for (int i = 0; i < rows; i++) { VEC_UNROLL for (int j = 0; j < width; j++) sum[i][j] = v_zero(); }
    const real *a = t->a;
    const real *b = t->b;
    const int64_t a_row = lie == ADJACENT ? 1 : lie == COPIED ? TILE_COPY : t->a_row;
    const int64_t a_k = lie == COPIED ? 1 : t->a_k, b_k = t->b_k, b_panel = t->b_panel, c_row = t->c_row;
    const int64_t *tap = t->tap;
    const real *ahead = t->ahead_rows ? t->ahead : a; /* so that there is one to count on from */
    const int64_t ahead_row = t->ahead_row;
    for (int64_t left = t->k; left > 0; left -= STRETCH) {
        for (int64_t i = 0; i < t->ahead_rows; i++)
            __builtin_prefetch(ahead + i * ahead_row, 0, 2);
        ahead += STRETCH;
        if (spreads) {
            tile_ask(next, c_row, gate, share);
            next += share * c_row;
        }
        int64_t k = left < STRETCH ? left : STRETCH;
        if (lie != APART && !tapped) {
            TILE_TWICE for (; k > 0; k--, a += a_k, b += b_k)
                tile_step(sum, a, a_row, a_k, b, b_k, b_panel, mask, rows, panels, vectors, edge, lie, true);
            continue;
        }
        for (; k > 0; k--, a += a_k, b += tapped ? 0 : b_k)
            tile_step(sum, a, a_row, a_k, tapped ? b + *tap++ : b, b_k, b_panel, mask, rows, panels, vectors, edge, lie,
                      !tapped);
    }
}

VEC_INLINE void tile_store(const tile *t, V sum[TILE_ROWS][2 * WIDEST], const M mask, const int rows, const int width,
                           const bool edge) {
    const bool add = t->add;
    real *c = t->c;
    const int64_t c_row = t->c_row;
    VEC_UNROLL for (int i = 0; i < rows; i++, c += c_row) {
        VEC_UNROLL for (int j = 0; j < width; j++) {
            real *to = c + j * VL;
            if (edge) {
                v_part_store(to, mask, add ? v_plus(v_part_load(to, mask), sum[i][j]) : sum[i][j]);
            } else {
                v_store(to, add ? v_plus(v_load(to), sum[i][j]) : sum[i][j]);
            }
        }
    }
}

VEC_INLINE void tile_run(const tile *t, const int rows, const int panels, const int vectors, const bool edge,
                         const tile_rows lie, const bool tapped) {
    V sum[TILE_ROWS][2 * WIDEST];
    const M mask = v_mask(t->columns);
    tile_sum(t, sum, mask, rows, panels, vectors, edge, lie, tapped);
    tile_store(t, sum, mask, rows, panels * vectors, edge);
}

VEC_INLINE void tile_split(const tile *t, tile_fn *upper, int64_t rows, tile_fn *lower) {
    tile below = *t;
    upper(t);
    below.a += rows * t->a_row;
    below.c += rows * t->c_row;
    if (t->c_next) below.c_next += rows * t->c_row;
    below.ahead_rows = 0; /* the upper one asked for them */
    lower(&below);
}
#if defined(__AVX512F__) && !defined(TN_VEC_F64) && !defined(TN_VEC_WORDS)
static tile_fn tile_full_6, tile_full_8;
#endif

/* Brings A's rows to where the tile has them. */
VEC_INLINE void tile_copy(const tile *t, const int rows) {
    const real *from = t->from;
    real *to = t->copy;
    for (int i = 0; i < rows; i++, from += t->from_row, to += TILE_COPY) {
        int64_t k = 0;
        for (; k + VL <= t->k; k += VL)
            v_store(to + k, v_load(from + k));
        if (k < t->k) v_store(to + k, v_part_load(from + k, v_mask(t->k - k)));
    }
}

/* Full: one panel. Only full height is worth a second copy for rows of A that lie side by side (packed, or a transposed
 * matrix in place), a third for copied ones, and endings. Edge: at most one vector; a wider edge is two of them. */
VEC_INLINE void tile_run_full(const tile *t, const int rows) {
    V sum[TILE_ROWS][2 * WIDEST];
    const M all = v_mask(VL);
    if (rows == TILE_ROWS && t->a_row == 1) {
        tile_sum(t, sum, all, rows, 1, 2, false, ADJACENT, false);
    } else if (V_FOLDS && rows == TILE_ROWS) {
        if (!tile_has_rows(t)) {
            TILE_LOWER(t);
            return;
        }
        if (t->from) tile_copy(t, rows);
        tile_sum(t, sum, all, rows, 1, 2, false, COPIED, false);
    } else {
        tile_sum(t, sum, all, rows, 1, 2, false, APART, false);
    }
    if (rows < TILE_ROWS || !tile_end(t, sum, rows)) tile_store(t, sum, all, rows, 2, false);
}

#define TILE_FULL(rows) \
    static void tile_full_##rows(const tile *t) { tile_run_full(t, rows); }
#define TILE_EDGE(rows) \
    static void tile_edge_##rows(const tile *t) { tile_run(t, rows, 1, 1, true, APART, false); }
TILE_HEIGHTS(TILE_FULL)
EDGE_HEIGHTS(TILE_EDGE)

#define TILE_FULL_SPLIT(rows, first, second) \
    static void tile_full_##rows(const tile *t) { tile_split(t, tile_full_##first, first, tile_full_##second); }
#define TILE_EDGE_SPLIT(rows, first, second) \
    static void tile_edge_##rows(const tile *t) { tile_split(t, tile_edge_##first, first, tile_edge_##second); }
TILE_SPLITS(TILE_FULL_SPLIT)
EDGE_SPLITS(TILE_EDGE_SPLIT)

#define TILE_WIDE_FUNCTION(rows)                                    \
    static void tile_wide_##rows(const tile *t) {                   \
        if (WIDE_##rows == 1) {                                     \
            tile_full_##rows(t);                                    \
        } else {                                                    \
            tile_run(t, rows, WIDE_##rows, 2, false, APART, false); \
        }                                                           \
    }
TILE_WIDE_FUNCTION(1)
TILE_WIDE_FUNCTION(2)
TILE_WIDE_FUNCTION(3)
TILE_WIDE_FUNCTION(4)

#if defined(TN_VEC_F64) || defined(TN_VEC_WORDS)
static tile_fn *const *const tile_tapped = NULL;
#else
#define TILE_TAPPED(rows) \
    static void tile_tapped_##rows(const tile *t) { tile_run(t, rows, 1, 2, false, ADJACENT, true); }
#define TILE_TAPPED_SPLIT(rows, first, second) \
    static void tile_tapped_##rows(const tile *t) { tile_split(t, tile_tapped_##first, first, tile_tapped_##second); }
#define TILE_TAPPED_ROW(rows) [rows] = tile_tapped_##rows,
#define TILE_TAPPED_SPLIT_ROW(rows, first, second) TILE_TAPPED_ROW(rows)
TAPPED_HEIGHTS(TILE_TAPPED)
TAPPED_SPLITS(TILE_TAPPED_SPLIT)
static tile_fn *const tile_tapped[] = {TAPPED_HEIGHTS(TILE_TAPPED_ROW) TAPPED_SPLITS(TILE_TAPPED_SPLIT_ROW)};
#endif

/* One step of a turned tile: numbers of A that lie side by side, somewhere, times a step of a packed panel. */
VEC_INLINE void tile_nhwc_step(V sum[TILE_ROWS][2], const real *a, const real *b, const int rows) {
    V y[2] = {v_load(b), v_load(b + VL)};
    VEC_UNROLL for (int i = 0; i < rows; i++) {
        if (V_FOLDS && rows >= FOLDING && i % 2 == 1) {
            VEC_UNROLL for (int j = 0; j < 2; j++) sum[i][j] = v_fold(a + i, y[j], sum[i][j]);
            continue;
        }
        V x = v_set1(a[i]);
        VEC_UNROLL for (int j = 0; j < 2; j++) sum[i][j] = v_step(x, y[j], sum[i][j]);
    }
}

VEC_INLINE void tile_turn(const tile *t, const int rows) {
    V sum[TILE_ROWS][2];
    const int64_t c_row = t->c_row;
    const real *a = t->a, *b = t->b, *ahead = t->ahead, *begun = t->c + t->begun;
    VEC_UNROLL for (int i = 0; i < rows; i++) sum[i][0] = sum[i][1] = v_zero();
    if (t->goes_on) {
        VEC_UNROLL for (int i = 0; i < rows; i++) {
            VEC_UNROLL for (int j = 0; j < 2; j++) sum[i][j] = v_load(begun + i * c_row + j * VL);
        }
    }
    const int64_t *tap = t->tap, *end = tap + t->k;
    for (int64_t lines = t->ahead_rows; tap < end; lines--) {
        const int64_t *stop = lines > 0 && end - tap > NHWC_AHEAD ? tap + NHWC_AHEAD : end;
        if (lines > 0) __builtin_prefetch(ahead, 0, 2);
        ahead += STRETCH;
        for (; tap < stop; tap++, b += PANEL)
            tile_nhwc_step(sum, a + *tap, b, rows);
    }
    real *c = t->c;
    const bool add = t->add;
    VEC_UNROLL for (int i = 0; i < rows; i++, c += c_row) {
        VEC_UNROLL for (int j = 0; j < 2; j++)
            v_store(c + j * VL, add ? v_plus(v_load(c + j * VL), sum[i][j]) : sum[i][j]);
    }
}

#if defined(TN_VEC_F64) || defined(TN_VEC_PAIRS)
static tile_fn *const *const tile_nhwc = NULL;
#else
#define TILE_NHWC(rows) \
    static void tile_nhwc_##rows(const tile *t) { tile_turn(t, rows); }
#define TILE_NHWC_SPLIT(rows, first, second)      \
    static void tile_nhwc_##rows(const tile *t) { \
        tile below = *t;                          \
        tile_nhwc_##first(t);                     \
        below.a += (first);                       \
        below.c += (first)*t->c_row;              \
        tile_nhwc_##second(&below);               \
    }
#define TILE_NHWC_ROW(rows) [rows] = tile_nhwc_##rows,
#define TILE_NHWC_SPLIT_ROW(rows, first, second) TILE_NHWC_ROW(rows)
NHWC_HEIGHTS(TILE_NHWC)
NHWC_SPLITS(TILE_NHWC_SPLIT)
static tile_fn *const tile_nhwc[] = {NHWC_HEIGHTS(TILE_NHWC_ROW) NHWC_SPLITS(TILE_NHWC_SPLIT_ROW)};
#endif

#define TILE_FULL_ROW(rows) [rows] = tile_full_##rows,
#define TILE_EDGE_ROW(rows) [rows] = tile_edge_##rows,
#define TILE_FULL_SPLIT_ROW(rows, first, second) TILE_FULL_ROW(rows)
#define TILE_EDGE_SPLIT_ROW(rows, first, second) TILE_EDGE_ROW(rows)
static tile_fn *const tile_full[] = {TILE_HEIGHTS(TILE_FULL_ROW) TILE_SPLITS(TILE_FULL_SPLIT_ROW)};
static tile_fn *const tile_edge[] = {EDGE_HEIGHTS(TILE_EDGE_ROW) EDGE_SPLITS(TILE_EDGE_SPLIT_ROW)};
static tile_fn *const tile_wide[] = {NULL, tile_wide_1, tile_wide_2, tile_wide_3, tile_wide_4};
static const int tile_wide_panels[] = {1, WIDE_1, WIDE_2, WIDE_3, WIDE_4};

#endif
