/* tiles.c — kernels of matrix products: packing, micro-kernels, few rows; compiled once per instruction set and type.
 *
 * gemm.c divides a product into blocks. This file has the loops over elements: packing panels, the micro-kernels,
 * products with few rows, and storing sums with a fused epilogue. */
#include <stddef.h>
#include <string.h>

#include "base/base.h"
#include "cpu/isa.h"
#include "cpu/vec.h"

/* ==== packing ===================================================================================================== */
/* A block is a number of lines (rows of A, columns of B) with one element of each at every step of k. Packed, the
 * elements of one step are contiguous, in groups as wide as a panel or a tile, and steps follow each other at a fixed
 * distance. For any strides of the matrix this is one of three copies: contiguous lines, contiguous along k (a
 * transpose), or neither. Half-precision elements and bytes are widened, or combined to words of several steps of k:
 * pairs of halves, quads of bytes. */

#ifndef TN_VEC_F64
#include "cpu/widen.h"
#endif

/* Elements of a step. */
#if defined(TN_VEC_PAIRS) || defined(TN_VEC_WIDENED)
enum { WIDTH = 2 };
#elif defined(TN_VEC_QUADS)
enum { WIDTH = 4 };
#else
enum { WIDTH = 1 };
#endif

enum { PACK_AHEAD = 8 }; /* steps: the hardware prefetcher does not follow rows that are far apart */

/* ---- elements as the micro-kernels want them --------------------------------------------------------------------- */

#ifdef TN_VEC_F64
VEC_INLINE V pack_load(const char *p, pack_kind kind, int64_t second) {
    (void)kind, (void)second;
    return v_load((const real *)(const void *)p);
}

VEC_INLINE V pack_part(const char *p, pack_kind kind, int64_t second, int64_t n) {
    (void)kind, (void)second;
    return v_part_load((const real *)(const void *)p, v_mask(n));
}

VEC_INLINE real pack_one(const char *p, pack_kind kind, int64_t second) {
    (void)kind, (void)second;
    return *(const real *)(const void *)p;
}
#else
VEC_INLINE V pack_convert(v_halves first, v_halves second, pack_kind kind) {
    if (kind == PACK_F16) return v_widen_f16(first);
    if (kind == PACK_BF16) return v_widen_bf16(first);
    return (V)(v_widen_words(first) | v_widen_words(second) << 16);
}

#ifdef TN_VEC_QUADS
/* Bytes in words, each at its place. */
VEC_INLINE v_counts pack_bytes(const char *p, int64_t n, int place) {
#if defined(__AVX512BW__) && defined(__AVX512VL__)
    return (v_counts)_mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8((__mmask16)v_mask(n), p)) << 8 * place;
#else
    typedef uint8_t bytes_of_lanes __attribute__((vector_size(VL)));
    bytes_of_lanes b = {0};
    memcpy(&b, p, (size_t)n);
    return __builtin_convertvector(b, v_counts) << 8 * place;
#endif
}

#ifdef TN_VEC_WIDENED
VEC_INLINE V pack_together(const char *p, pack_kind kind, int64_t second, int64_t n) {
    v_counts low = pack_bytes(p, n, 0), high = pack_bytes(p + second, n, 2);
    if (kind == PACK_I8) { /* (x ^ 128) - 128 has x's sign in 16 bits */
        const __m256i sign = _mm256_set1_epi16(0x80);
        return (V)_mm256_sub_epi16(_mm256_xor_si256((__m256i)(low | high), sign), sign);
    }
    return (V)(low | high);
}
#else
VEC_INLINE V pack_together(const char *p, TN_UNUSED pack_kind kind, int64_t second, int64_t n) {
    return (V)(pack_bytes(p, n, 0) | pack_bytes(p + second, n, 1) | pack_bytes(p + 2 * second, n, 2) |
               pack_bytes(p + 3 * second, n, 3));
}
#endif
#endif

/* VL neighbours. */
VEC_INLINE V pack_load(const char *p, pack_kind kind, int64_t second) {
    if (kind == PACK_REAL) return v_load((const real *)(const void *)p);
#ifdef TN_VEC_QUADS
    return pack_together(p, kind, second, VL);
#endif
    if (pack_size[kind] == 1) return v_widen_bytes(p, kind == PACK_I8);
    v_halves h = v_load_halves(p);
    return pack_convert(h, kind == PACK_PAIRS ? v_load_halves(p + 2 * second) : h, kind);
}

VEC_INLINE V pack_part(const char *p, pack_kind kind, int64_t second, int64_t n) {
    if (n > VL) n = VL;
    if (kind == PACK_REAL) return v_part_load((const real *)(const void *)p, v_mask(n));
#ifdef TN_VEC_QUADS
    return pack_together(p, kind, second, n);
#endif
    if (pack_size[kind] == 1) {
        char bytes[VL] = {0};
        memcpy(bytes, p, (size_t)n);
        return v_widen_bytes(bytes, kind == PACK_I8);
    }
    v_halves h = v_part_halves(p, n);
    return pack_convert(h, kind == PACK_PAIRS ? v_part_halves(p + 2 * second, n) : h, kind);
}

/* The bits of a pair or a quad as a number; of its `count` first elements. */
VEC_INLINE real pack_word(const char *p, pack_kind kind, int64_t second, int count) {
    real x;
#ifdef TN_VEC_WIDENED
    int16_t parts[2] = {0};
    for (int i = 0; i < count; i++)
        parts[i] = kind == PACK_I8 ? (int8_t)p[i * second] : (uint8_t)p[i * second];
#else
    const int64_t size = pack_size[kind];
    char parts[sizeof(real)] = {0};
    for (int i = 0; i < count; i++)
        memcpy(parts + i * size, p + i * second * size, (size_t)size);
#endif
    memcpy(&x, parts, sizeof x);
    return x;
}

VEC_INLINE real pack_one(const char *p, pack_kind kind, int64_t second) {
    return kind == PACK_REAL ? *(const real *)(const void *)p : pack_word(p, kind, second, WIDTH);
}
#endif

/* ---- the three copies -------------------------------------------------------------------------------------------- */

/* All groups of a step before the next step: rows are read as far as they go, each of their pages once. */
VEC_INLINE void pack_adjacent_by(const pack *p, const int64_t group, const pack_kind kind) {
    const int64_t whole = group / VL * VL, size = pack_size[kind];
    const M rest = v_mask(group - whole);
    int64_t groups = p->lines / group;
    for (int64_t step = 0; step < p->steps; step++) {
        const char *from = (const char *)p->from + step * p->along * size;
        const char *ahead = from + PACK_AHEAD * p->along * size;
        real *to = p->to + step * p->distance;
        for (int64_t g = 0; g < groups; g++) {
            for (int64_t i = 0; i < whole; i += VL) {
                __builtin_prefetch(ahead + i * size);
                v_store(to + i, pack_load(from + i * size, kind, p->second));
            }
            if (whole < group)
                v_part_store(to + whole, rest, pack_part(from + whole * size, kind, p->second, group - whole));
            from += group * size;
            ahead += group * size;
            to += p->jump;
        }
    }
}

/* The usual group size is a compile-time constant; lines after the last complete group are a smaller group. */
VEC_INLINE void pack_adjacent(const pack *p, const pack_kind kind, void (*any_group)(const pack *p)) {
    if (p->lines >= p->group) {
        if (p->group == 2 * VL && pack_size[kind] > 1)
            pack_adjacent_by(p, 2 * VL, kind);
        else
            any_group(p);
    }
    int64_t rest = p->lines % p->group;
    if (rest == 0) return;
    pack last = *p;
    last.to += p->lines / p->group * p->jump;
    last.from = (const char *)p->from + (p->lines - rest) * pack_size[kind];
    last.lines = last.group = rest;
    any_group(&last);
}

/* One number after the other; narrow ones are brought together before they are widened. */
VEC_INLINE void pack_strided(const pack *p, const pack_kind kind) {
    const int64_t size = pack_size[kind];
    for (int64_t step = 0; step < p->steps; step++) {
        const char *from = (const char *)p->from + step * p->along * size;
        real *to = p->to + step * p->distance;
        if (kind == PACK_REAL || WIDTH > 1) {
            for (int64_t line = 0; line < p->lines; line++)
                to[line] = pack_one(from + line * p->across * size, kind, p->second);
            continue;
        }
        for (int64_t line = 0; line < p->lines; line += VL) {
            char together[2 * VL];
            int64_t n = p->lines - line < VL ? p->lines - line : VL;
            for (int64_t i = 0; i < n; i++)
                memcpy(together + i * size, from + (line + i) * p->across * size, (size_t)size);
            v_part_store(to + line, v_mask(n), pack_part(together, kind, 0, n));
        }
    }
}

/* Pairs of halves may be at any multiple of two bytes. */
VEC_INLINE V pack_words(const char *p) {
    V words;
    memcpy(&words, p, sizeof words);
    return words;
}

#if defined(TN_VEC_F64) || defined(TN_VEC_WORDS)
VEC_INLINE V pack_end(const epilogue_ops *e, int64_t step, V x) {
    (void)e, (void)step;
    return x;
}
#else
VEC_INLINE V pack_end(const epilogue_ops *e, int64_t step, V x) { return e ? v_end(e, step, x) : x; }
#endif

/* VL lines from `line` on; a line that is missing at the end is read from the last one there is, and not stored. */
VEC_INLINE void pack_transposed_lines(const pack *p, int64_t apart, int64_t line, const bool whole) {
    const char *from[VL];
    for (int i = 0; i < VL; i++) {
        int64_t there = whole || line + i < p->lines ? line + i : p->lines - 1;
        from[i] = (const char *)p->from + there * apart;
    }
    M lines = v_mask(p->lines - line);
    real *to = p->to + line;
    for (int64_t step = 0; step < p->steps; step += VL) {
        V r[VL];
        int64_t count = p->steps - step;
        if (count >= VL) {
            VEC_UNROLL for (int i = 0; i < VL; i++) r[i] = pack_words(from[i] + step * (int64_t)sizeof(real));
        } else {
            M steps = v_mask(count);
            VEC_UNROLL for (int i = 0; i < VL; i++) r[i] =
                v_part_load((const real *)(const void *)from[i] + step, steps);
        }
        v_transpose(r);
        VEC_UNROLL for (int i = 0; i < VL; i++) {
            if (i >= count) break;
            const V x = pack_end(p->epilogue_ops, step + i, r[i]);
            if (whole)
                v_store(to, x);
            else
                v_part_store(to, lines, x);
            to += p->distance;
        }
    }
}

/* Elements contiguous along k, as wide as the micro-kernels need them; lines are `apart` bytes from each other. Pairs
 * are words like floats and use their code. */
#if defined(__AVX512F__) && !defined(TN_VEC_F64)
#define pack_transposed tn_pack_transposed_avx512
void pack_transposed(const pack *p, int64_t apart);
#else
static void pack_transposed(const pack *p, int64_t apart);
#endif

#if !defined(TN_VEC_WORDS) || !defined(__AVX512F__)
void pack_transposed(const pack *p, int64_t apart) {
    int64_t line = 0;
    for (; line + VL <= p->lines; line += VL)
        pack_transposed_lines(p, apart, line, true);
    if (line < p->lines) pack_transposed_lines(p, apart, line, false);
}
#endif

#ifdef TN_VEC_WIDENED
/* VL steps of a line. */
VEC_INLINE V pack_row(const char *p, pack_kind kind) {
    const __m128i x = _mm_loadu_si128((const __m128i *)(const void *)p);
    return (V)(kind == PACK_I8 ? _mm256_cvtepi8_epi16(x) : _mm256_cvtepu8_epi16(x));
}

VEC_INLINE V pack_row_part(const char *p, pack_kind kind, int64_t n) {
    char bytes[WIDTH * VL] = {0};
    memcpy(bytes, p, (size_t)(WIDTH * n));
    return pack_row(bytes, kind);
}
#else
VEC_INLINE V pack_row(const char *p, pack_kind kind) { return pack_load(p, kind, 0); }
VEC_INLINE V pack_row_part(const char *p, pack_kind kind, int64_t n) { return pack_part(p, kind, 0, n); }
#endif

/* The same for narrow elements: they are widened in place, some lines by some steps at a time. */
VEC_INLINE void pack_transposed_as(const pack *p, const pack_kind kind) {
    enum { STEPS = 64 };
    const int64_t size = pack_size[kind], step_size = WIDTH * size;
    real wide[VL][STEPS];
    for (int64_t line = 0; line < p->lines; line += VL) {
        int64_t lines = p->lines - line < VL ? p->lines - line : VL;
        for (int64_t step = 0; step < p->steps; step += STEPS) {
            int64_t steps = p->steps - step < STEPS ? p->steps - step : STEPS;
            for (int64_t i = 0; i < lines; i++) {
                const char *from = (const char *)p->from + step * step_size + (line + i) * p->across * size;
                int64_t s = 0;
                for (; s + VL <= steps; s += VL)
                    v_store(wide[i] + s, pack_row(from + s * step_size, kind));
                if (s < steps) v_store(wide[i] + s, pack_row_part(from + s * step_size, kind, steps - s));
            }
            pack_transposed(&(pack){.to = p->to + line + step * p->distance,
                                    .distance = p->distance,
                                    .from = wide,
                                    .steps = steps,
                                    .lines = lines},
                            sizeof *wide);
        }
    }
}

VEC_INLINE void pack_as(const pack *p, const pack_kind kind, void (*any_group)(const pack *p)) {
    if (p->across == 1) {
        pack_adjacent(p, kind, any_group);
        return;
    }
    bool words = kind == PACK_PAIRS || kind == PACK_QUADS;
    bool in_row = kind != PACK_REAL && WIDTH > 1 ? p->along > 1 && p->second == 1 : p->along == 1;
    for (int64_t line = 0; line < p->lines; line += p->group) {
        pack one = *p;
        one.to += line / p->group * p->jump;
        one.from = (const char *)p->from + line * p->across * pack_size[kind];
        one.lines = p->lines - line < p->group ? p->lines - line : p->group;
        if (in_row && (kind == PACK_REAL || words)) { /* neighbours are words already */
            pack_transposed(&one, p->across * pack_size[kind]);
        } else if (in_row) {
            pack_transposed_as(&one, kind);
        } else {
            pack_strided(&one, kind);
        }
    }
}

#ifdef TN_VEC_WORDS
static void pack_rest(const pack *p) {
    const int64_t size = pack_size[p->kind];
    const char *from = (const char *)p->from + (p->steps - 1) * p->along * size;
    real *to = p->to + (p->steps - 1) * p->distance;
    for (int64_t line = 0; line < p->lines; line++)
        to[line / p->group * p->jump + line % p->group] =
            pack_word(from + line * p->across * size, p->kind, p->second, p->rest);
}
#endif

#ifdef TN_VEC_WORDS
#define pack_real TILES.pack
#else
static __attribute__((noinline)) void pack_real_groups(const pack *p) { pack_adjacent_by(p, p->group, PACK_REAL); }
static void pack_real(const pack *p) { pack_as(p, PACK_REAL, pack_real_groups); }
#endif

/* All kinds of one sum type in one function: the kind is tested at each vector, which takes a quarter of the code of
 * one function per kind. Pairs and quads have their own sets; f64 has no other kind. */
#if defined(TN_VEC_F64)
#define pack_other pack_real
#else
#if defined(TN_VEC_PAIRS)
#define PACK_OTHER(p) PACK_PAIRS
#elif defined(TN_VEC_QUADS) && !defined(TN_VEC_WIDENED)
#define PACK_OTHER(p) PACK_QUADS
#else
#define PACK_OTHER(p) ((p)->kind)
#endif
static __attribute__((noinline)) void pack_other_groups(const pack *p) { pack_adjacent_by(p, p->group, PACK_OTHER(p)); }
static void pack_other(const pack *p) { pack_as(p, PACK_OTHER(p), pack_other_groups); }
#endif

static void pack_run(const pack *p) {
    void (*run)(const pack *p) = p->kind == PACK_REAL ? pack_real : pack_other;
#ifdef TN_VEC_WORDS
    if (p->rest) {
        pack full = *p;
        full.steps--;
        run(&full);
        pack_rest(p);
        return;
    }
#endif
    run(p);
}
/* ==== micro-kernels =============================================================================================== */
/* A tile starts its sums at +0 and adds them to C (or stores them, for the first chunk): that is one chain of the
 * numerics contract. There are tiles of every height up to TILE_ROWS, so rows are never padded. Widths are a panel of
 * PANEL columns, an edge of one (masked), or several panels at once if few rows leave registers free: few rows need
 * several columns in flight to hide the latency of fma.
 *
 * Neither operand must be packed: B has a distance between rows of k and one between panels, A a distance between rows
 * and one along k. */

/* The registers limit the rows: rows · 2 sums, two vectors of B and one of A must fit; for double, where the last 10 %
 * do not matter, the size of the code does. TILE_SPLITS(height, first, second): such a tile is computed as two lower
 * ones, each with enough sums to keep the multipliers busy, because heights that only occur at the end of a matrix are
 * not worth their own code. WIDE_n: panels that n rows compute at once; 1 if one panel keeps the multipliers busy. */
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
#define NHWC_HEIGHTS(X) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(10) X(12) X(13) X(14)
#define NHWC_SPLITS(X) X(9, 5, 4) X(11, 6, 5)
#define TILE_LOWER(t) tile_split(t, tile_full_8, 8, tile_full_6) /* for strided rows */
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
#define NHWC_HEIGHTS(X) X(1) X(2) X(3) X(4) X(5) X(6)
#define NHWC_SPLITS(X)
enum { TILE_ROWS = 6, WIDE_1 = 4, WIDE_2 = 1, WIDE_3 = 1, WIDE_4 = 1 };
#elif defined(__AVX2__) || (defined(__wasm_relaxed_simd__) && !defined(TN_VEC_F64)) /* engines have 16 registers */
#define TILE_HEIGHTS(X) X(1) X(2) X(3) X(4) X(5) X(6)
enum { TILE_ROWS = 6, WIDE_1 = 4, WIDE_2 = 2, WIDE_3 = 2, WIDE_4 = 1 };
#elif defined(__x86_64__) /* old processors: small code */
#define TILE_HEIGHTS(X) X(1) X(4)
#define TILE_SPLITS(X) X(2, 1, 1) X(3, 2, 1)
enum { TILE_ROWS = 4, WIDE_1 = 1, WIDE_2 = 1, WIDE_3 = 1, WIDE_4 = 1 };
#elif defined(VEC_NEON) && defined(TN_VEC_F64)
#define TILE_HEIGHTS(X) X(1) X(2) X(4) X(8) X(12)
#define TILE_SPLITS(X) X(3, 2, 1) X(5, 4, 1) X(6, 4, 2) X(7, 4, 3) X(9, 8, 1) X(10, 8, 2) X(11, 8, 3)
enum { TILE_ROWS = 12, WIDE_1 = 4, WIDE_2 = 4, WIDE_3 = 2, WIDE_4 = 2 };
#elif defined(VEC_NEON) && defined(TN_VEC_WORDS)
#define TILE_HEIGHTS(X) X(1) X(2) X(4) X(8) X(12)
#define TILE_SPLITS(X) X(3, 2, 1) X(5, 4, 1) X(6, 4, 2) X(7, 4, 3) X(9, 8, 1) X(10, 8, 2) X(11, 8, 3)
enum { TILE_ROWS = 12, WIDE_1 = 4, WIDE_2 = 4, WIDE_3 = 1, WIDE_4 = 1 };
#elif defined(VEC_NEON)
#define TILE_HEIGHTS(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(10) X(12)
#define TILE_SPLITS(X) X(9, 5, 4) X(11, 6, 5)
#define TILE_LOWER(t) tile_split(t, tile_full_6, 6, tile_full_6) /* for strided rows */
enum { TILE_ROWS = 12, WIDE_1 = 4, WIDE_2 = 4, WIDE_3 = 2, WIDE_4 = 2 };
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
#define NHWC_SPLITS TILE_SPLITS
#define NHWC_HEIGHTS TILE_HEIGHTS
#endif

enum {
    WIDEST = 4 /* the greatest number of panels of a wide tile */
};

/* Prefetches are issued early and spread out, because a burst would delay the loads of the current steps. For C these
 * are the rows of the next tile; if that is unknown, a tile's own rows when it starts. */
enum {
    C_AHEAD_K = 64,             /* … if at least this many steps remain */
    A_AHEAD = 12,               /* steps, if the rows of a step are contiguous */
    B_AHEAD = 32,               /* steps: as long as a line of a large weight takes from the third cache */
    TALL = TILE_ROWS / 2,       /* rows from which there is room for the prefetches of B */
    FOLDING = 6,                /* rows of a turned tile from which there is room for the loads of folding */
    STRETCH = 64 / sizeof(real) /* steps between two prefetches of a row of A: one cache line */
};

#if defined(VEC_NEON)
enum { FOLDS_ALL = true, TAKES_LANES = true };
#else
enum { FOLDS_ALL = false, TAKES_LANES = false };
#endif

/* Layout of the rows of A: strided, contiguous, or TILE_COPY apart. */
typedef enum tile_rows { APART, ADJACENT, COPIED } tile_rows;

/* Whether the multiplications broadcast an element of A of this row from memory. That saves an instruction and costs a
 * load. If another thread shares the core, instructions are the bottleneck (12 % faster then, equal otherwise; measured
 * on Emerald Rapids). Addresses of strided rows would cost more than the gain and need more registers than there are;
 * so such rows are copied to a constant distance. */
VEC_INLINE bool tile_folds(const int row, const int rows, const tile_rows lie) {
    return V_FOLDS && rows == TILE_ROWS && lie != APART && (FOLDS_ALL || row % 2 == 1);
}

/* Where a lane of a register can be the factor, contiguous rows of A are loaded as vectors. */
VEC_INLINE bool tile_takes_lanes(const int rows) { return TAKES_LANES && rows % VL == 0; }

/* One step of `rows` contiguous elements of A. */
VEC_INLINE void tile_step_by_lanes(V *sum, const int sums, const real *a, const V *y, const int rows, const int width) {
    VEC_UNROLL for (int i = 0; i < rows; i += VL) {
        V x = v_load(a + i);
        VEC_UNROLL for (int lane = 0; lane < VL; lane++) {
            VEC_UNROLL for (int j = 0; j < width; j++) sum[(i + lane) * sums + j] =
                v_step_lane(x, lane, y[j], sum[(i + lane) * sums + j]);
        }
    }
}

#ifdef VEC_MATRICES
enum { TAKES_MATRICES = true };

/* Two steps of k at once (`last`: one, and zeros), of packed rows and a panel. Two vectors have the sums of two rows
 * and four columns: one of the first two columns, one of the last two. */
VEC_INLINE void tile_steps_by_matrices(V sum[TILE_ROWS][2 * WIDEST], const real *a, const int64_t a_k, const real *b,
                                       const int64_t b_k, const int rows, const bool last) {
    V x[2], y[4];
    __builtin_prefetch(a + A_AHEAD * a_k);
    VEC_UNROLL for (int j = 0; j < 2; j++) {
        __builtin_prefetch(b + B_AHEAD * b_k + j * VL);
        __builtin_prefetch(b + (B_AHEAD + 1) * b_k + j * VL);
        v_zip(v_load(b + j * VL), last ? v_zero() : v_load(b + b_k + j * VL), y + 2 * j);
    }
    VEC_UNROLL for (int i = 0; i < rows; i += 2) {
        VEC_KEEP_ORDER();
        if (i % VL == 0) v_zip(v_load(a + i), last ? v_zero() : v_load(a + a_k + i), x);
        VEC_UNROLL for (int j = 0; j < 4; j++) sum[i + j % 2][j / 2] =
            v_matrix(x[i % VL / 2], y[j], sum[i + j % 2][j / 2]);
    }
}

/* Rearranges these sums so that each vector has one row. */
VEC_INLINE void tile_part_matrices(V sum[TILE_ROWS][2 * WIDEST], const int rows) {
    VEC_UNROLL for (int i = 0; i < rows; i += 2) {
        VEC_UNROLL for (int j = 0; j < 2; j++) v_zip_halves(&sum[i][j], &sum[i + 1][j]);
    }
}
#else
enum { TAKES_MATRICES = false };
VEC_INLINE void tile_steps_by_matrices(V sum[TILE_ROWS][2 * WIDEST], const real *a, const int64_t a_k, const real *b,
                                       const int64_t b_k, const int rows, const bool last) {
    (void)sum, (void)a, (void)a_k, (void)b, (void)b_k, (void)rows, (void)last;
}
VEC_INLINE void tile_part_matrices(V sum[TILE_ROWS][2 * WIDEST], const int rows) { (void)sum, (void)rows; }
#endif

/* Before a loop over steps: two of them for one look at whether it is over. */
#if defined(__clang__)
#define TILE_TWICE _Pragma("clang loop unroll_count(2)")
#else
#define TILE_TWICE _Pragma("GCC unroll 2")
#endif

/* One step of k. All but the sums and the addresses is constant after inlining. */
VEC_INLINE void tile_step(V sum[TILE_ROWS][2 * WIDEST], const real *a, const int64_t a_row, const int64_t a_k,
                          const real *b, const int64_t b_ahead, const int64_t b_panel, const M mask, const int rows,
                          const int panels, const int vectors, const bool edge, const tile_rows lie) {
    const int width = panels * vectors;
    if (lie == ADJACENT)
        __builtin_prefetch(a + A_AHEAD * a_k); /* a packed step is shorter than a line: none is left out */
    V y[2 * WIDEST];
    VEC_UNROLL for (int j = 0; j < width; j++) {
        const real *from = b + (j / vectors) * b_panel + (j % vectors) * VL;
        if (rows >= TALL) __builtin_prefetch(from + b_ahead);
        y[j] = edge ? v_part_load(from, mask) : v_load(from);
    }
    if (lie == ADJACENT && tile_takes_lanes(rows)) {
        tile_step_by_lanes(sum[0], 2 * WIDEST, a, y, rows, width);
        return;
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

VEC_INLINE int64_t tile_gate(TN_UNUSED const tile *t) { return 0; }
enum { SPREADS = false };
#else
enum { SPREADS = true };

/* Bytes from C to the matrix that gates it, if that has C's rows; else 0. */
VEC_INLINE int64_t tile_gate(const tile *t) {
    const epilogue_ops *e = t->epilogue_ops;
    if (!e || !e->gate || e->gate_row != t->c_row) return 0;
    return (int64_t)((uintptr_t)(e->gate + t->row * e->gate_row + t->column) - (uintptr_t)t->c);
}

/* Fused epilogues that have their own code: a bias per column with max(…, 0), which is the most frequent; the same
 * under a gate; and biases, a matrix and clipping in any combination. */
typedef enum tile_ending { BIASED, GATED, COMBINED } tile_ending;

/* A row's sums with their fused epilogue. `ending` is constant after inlining. */
VEC_INLINE void tile_end_rows(const tile *t, V sum[TILE_ROWS][2 * WIDEST], const int rows, const tile_ending ending) {
    const epilogue_ops *e = t->epilogue_ops;
    const bool gated = ending == GATED;
    const real *times = gated && e->times ? e->times + t->row * e->times_row : NULL;
    const real *gate = gated ? e->gate + t->row * e->gate_row + t->column : NULL;
    const real *each = ending == COMBINED && e->each ? e->each + t->row * e->each_row : NULL;
    const real *also = ending == COMBINED && e->also ? e->also + t->row * e->also_row + t->column : NULL;
    const V nothing = v_set1(-0.0f), zero = v_set1(times ? e->zero : -0.0f);
    const V floor = v_set1(e->relu ? 0 : __builtin_nanf(""));
    real *c = t->c;
    V add[2];
    VEC_UNROLL for (int j = 0; j < 2; j++) add[j] = e->add ? v_load(e->add + t->column + j * VL) : nothing;
    VEC_UNROLL for (int i = 0; i < rows; i++, c += t->c_row) {
        V by = v_set1(1);
        if (times) {
            by = v_set1(*times);
            times += e->times_row;
        }
        if (each) {
            add[0] = add[1] = v_set1(*each);
            each += e->each_row;
        }
        VEC_UNROLL for (int j = 0; j < 2; j++) {
            V x = t->add ? v_load(c + j * VL) + sum[i][j] : sum[i][j];
            x = x + (gated ? v_fma(by, add[j], zero) : add[j]);
            if (also) x = x + v_load(also + j * VL);
            x = v_gate(x, gated ? v_load(gate + j * VL) : x, floor);
            v_store(c + j * VL, ending == COMBINED ? v_clip(e, x) : x);
        }
        gate += gated ? e->gate_row : 0;
        also += also ? e->also_row : 0;
    }
}

VEC_INLINE bool tile_end(const tile *t, V sum[TILE_ROWS][2 * WIDEST], const int rows) {
    const epilogue_ops *e = t->epilogue_ops;
    if (!e) return false;
    if (rows < TILE_ROWS) /* the driver gives them no other */
        tile_end_rows(t, sum, rows, COMBINED);
    else if (e->gate)
        tile_end_rows(t, sum, rows, GATED);
    else if (e->each || e->also || e->floor || e->ceiling)
        tile_end_rows(t, sum, rows, COMBINED);
    else
        tile_end_rows(t, sum, rows, BIASED);
    return true;
}
#endif

/* Prefetches rows of C for writing, and those of its gate, which is `gate` bytes further; 0: none. */
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

/* All parameters except `t` are constant after inlining: rows, panels, vectors per panel, whether they are masked,
 * whether the rows of A are contiguous. */
VEC_INLINE void tile_sum(const tile *t, V sum[TILE_ROWS][2 * WIDEST], const M mask, const int rows, const int panels,
                         const int vectors, const bool edge, const tile_rows lie) {
    const int width = panels * vectors;
    const bool matrices = TAKES_MATRICES && lie == ADJACENT && tile_takes_lanes(rows) && width == 2 && !edge;
    const bool spreads = SPREADS && rows == TILE_ROWS && !edge;
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
    const real *ahead = t->ahead_rows ? t->ahead : a; /* so that there is one to count on from */
    const int64_t ahead_row = t->ahead_row;
    /* Where there are few steps ahead, the same one of the next panel is as far. */
    const int64_t b_ahead = t->k <= 2 * B_AHEAD ? panels * b_panel : B_AHEAD * b_k;
    for (int64_t left = t->k; left > 0; left -= STRETCH) {
        for (int64_t i = 0; i < t->ahead_rows; i++)
            __builtin_prefetch(ahead + i * ahead_row, 0, 2);
        ahead += STRETCH;
        if (spreads) {
            tile_ask(next, c_row, gate, share);
            next += share * c_row;
        }
        int64_t k = left < STRETCH ? left : STRETCH;
        if (matrices) {
            for (; k > 1; k -= 2, a += 2 * a_k, b += 2 * b_k)
                tile_steps_by_matrices(sum, a, a_k, b, b_k, rows, false);
            if (k) tile_steps_by_matrices(sum, a, a_k, b, b_k, rows, true);
            continue;
        }
        if (lie != APART) {
            TILE_TWICE for (; k > 0; k--, a += a_k, b += b_k)
                tile_step(sum, a, a_row, a_k, b, b_ahead, b_panel, mask, rows, panels, vectors, edge, lie);
            continue;
        }
        for (; k > 0; k--, a += a_k, b += b_k)
            tile_step(sum, a, a_row, a_k, b, b_ahead, b_panel, mask, rows, panels, vectors, edge, lie);
    }
    if (matrices) tile_part_matrices(sum, rows);
}

VEC_INLINE void tile_store(const tile *t, V sum[TILE_ROWS][2 * WIDEST], const M mask, const int rows, const int width,
                           const bool edge) {
    const bool add = t->add;
    real *c = t->c;
    const int64_t c_row = t->c_row;
    VEC_UNROLL for (int i = 0; i < rows; i++, c += c_row) {
        VEC_UNROLL for (int j = 0; j < width; j++) {
            real *to = c + j * VL;
            if (edge)
                v_part_store(to, mask, add ? v_plus(v_part_load(to, mask), sum[i][j]) : sum[i][j]);
            else
                v_store(to, add ? v_plus(v_load(to), sum[i][j]) : sum[i][j]);
        }
    }
}

VEC_INLINE void tile_run(const tile *t, const int rows, const int panels, const int vectors, const bool edge,
                         const tile_rows lie) {
    V sum[TILE_ROWS][2 * WIDEST];
    const M mask = v_mask(t->columns);
    tile_sum(t, sum, mask, rows, panels, vectors, edge, lie);
    tile_store(t, sum, mask, rows, panels * vectors, edge);
}

VEC_INLINE void tile_split(const tile *t, tile_fn *upper, int64_t rows, tile_fn *lower) {
    tile below = *t;
    upper(t);
    below.a += rows * t->a_row;
    below.c += rows * t->c_row;
    below.row += rows;
    if (t->c_next) below.c_next += rows * t->c_row;
    below.ahead_rows = 0; /* the upper one asked for them */
    lower(&below);
}
#if (defined(__AVX512F__) || defined(VEC_NEON)) && !defined(TN_VEC_F64) && !defined(TN_VEC_WORDS)
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

/* Full: one panel. Only full height is worth a second copy for contiguous rows of A (packed, or a transposed matrix in
 * place), a third for copied ones, and code of its own for some fused epilogues. Edge: at most one vector; a wider edge
 * is two of them. */
VEC_INLINE void tile_run_full(const tile *t, const int rows) {
    V sum[TILE_ROWS][2 * WIDEST];
    const M all = v_mask(VL);
    if (rows == TILE_ROWS && t->a_row == 1) {
        tile_sum(t, sum, all, rows, 1, 2, false, ADJACENT);
    } else if (V_FOLDS && rows == TILE_ROWS) {
        if (!tile_has_rows(t)) {
            TILE_LOWER(t);
            return;
        }
        if (t->from) tile_copy(t, rows);
        tile_sum(t, sum, all, rows, 1, 2, false, COPIED);
    } else {
        tile_sum(t, sum, all, rows, 1, 2, false, APART);
    }
    if (!tile_end(t, sum, rows)) tile_store(t, sum, all, rows, 2, false);
}

#define TILE_FULL(rows) \
    static void tile_full_##rows(const tile *t) { tile_run_full(t, rows); }
#define TILE_EDGE(rows) \
    static void tile_edge_##rows(const tile *t) { tile_run(t, rows, 1, 1, true, APART); }
TILE_HEIGHTS(TILE_FULL)
EDGE_HEIGHTS(TILE_EDGE)

#define TILE_FULL_SPLIT(rows, first, second) \
    static void tile_full_##rows(const tile *t) { tile_split(t, tile_full_##first, first, tile_full_##second); }
#define TILE_EDGE_SPLIT(rows, first, second) \
    static void tile_edge_##rows(const tile *t) { tile_split(t, tile_edge_##first, first, tile_edge_##second); }
TILE_SPLITS(TILE_FULL_SPLIT)
EDGE_SPLITS(TILE_EDGE_SPLIT)

#define TILE_WIDE_FUNCTION(rows)                             \
    static void tile_wide_##rows(const tile *t) {            \
        if (WIDE_##rows == 1) {                              \
            tile_full_##rows(t);                             \
        } else {                                             \
            tile_run(t, rows, WIDE_##rows, 2, false, APART); \
        }                                                    \
    }
TILE_WIDE_FUNCTION(1)
TILE_WIDE_FUNCTION(2)
TILE_WIDE_FUNCTION(3)
TILE_WIDE_FUNCTION(4)

/* One step of an NHWC tile: elements of A, `apart` from each other, times a step of a packed panel, or of its first
 * vector. */
VEC_INLINE void tile_nhwc_step(V sum[TILE_ROWS][2], const real *a, const real *b, const int rows, const int vectors,
                               const int apart) {
    V y[2] = {v_load(b)};
    if (vectors == 2) y[1] = v_load(b + VL);
    if (apart == 1 && tile_takes_lanes(rows)) {
        tile_step_by_lanes(sum[0], 2, a, y, rows, vectors);
        return;
    }
    VEC_UNROLL for (int i = 0; i < rows; i++) {
        if (V_FOLDS && (FOLDS_ALL || (rows >= FOLDING && i % 2 == 1))) {
            VEC_UNROLL for (int j = 0; j < vectors; j++) sum[i][j] = v_fold(a + i * apart, y[j], sum[i][j]);
            continue;
        }
        V x = v_set1(a[i * apart]);
        VEC_UNROLL for (int j = 0; j < vectors; j++) sum[i][j] = v_turned_step(x, y[j], sum[i][j]);
    }
}

/* Finished sums leave registers as they are. */
VEC_INLINE void tile_leave(const tile *t, V sum[TILE_ROWS][2], const int rows, const int vectors) {
#if !defined(TN_VEC_F64) && !defined(TN_VEC_PAIRS) && !defined(TN_VEC_QUADS)
    const epilogue_ops *e = t->epilogue_ops;
    const real *const add = e ? e->add : NULL, *const least = e ? e->floor : NULL, *const most = e ? e->ceiling : NULL;
    const bool relu = e && e->relu;
    if (t->add) {
        VEC_UNROLL for (int i = 0; i < rows; i++) {
            VEC_UNROLL for (int j = 0; j < vectors; j++) sum[i][j] =
                v_plus(v_load(t->c + i * t->c_row + j * VL), sum[i][j]);
        }
    }
    VEC_UNROLL for (int j = 0; j < vectors; j++) {
        if (add) {
            const V bias = v_part_load(add + j * VL, v_mask(t->columns - j * VL));
            VEC_UNROLL for (int i = 0; i < rows; i++) sum[i][j] = sum[i][j] + bias;
        }
        if (t->also) {
            const real *also = t->also + j * t->to_block;
            VEC_UNROLL for (int i = 0; i < rows; i++) sum[i][j] = sum[i][j] + v_load(also + i * VL);
        }
        if (relu) {
            VEC_UNROLL for (int i = 0; i < rows; i++) sum[i][j] = v_gate(sum[i][j], sum[i][j], v_zero());
        }
        if (least) {
            const V floor = v_set1(*least);
            VEC_UNROLL for (int i = 0; i < rows; i++) sum[i][j] = v_greatest(sum[i][j], floor);
        }
        if (most) {
            const V ceiling = v_set1(*most);
            VEC_UNROLL for (int i = 0; i < rows; i++) sum[i][j] = v_least(sum[i][j], ceiling);
        }
        real *const to = t->to + j * t->to_block;
        VEC_UNROLL for (int i = 0; i < rows; i++) v_store(to + i * VL, sum[i][j]);
    }
#else
    (void)t, (void)sum, (void)rows, (void)vectors;
#endif
}

/* They go to C, or are added there. */
VEC_INLINE void tile_keep(const tile *t, V sum[TILE_ROWS][2], const int rows, const int vectors) {
    real *c = t->c;
    const bool add = t->add;
    VEC_UNROLL for (int i = 0; i < rows; i++, c += t->c_row) {
        VEC_UNROLL for (int j = 0; j < vectors; j++)
            v_store(c + j * VL, add ? v_plus(v_load(c + j * VL), sum[i][j]) : sum[i][j]);
    }
}

VEC_INLINE void tile_turn(const tile *t, const int rows, const int vectors, const int apart) {
    V sum[TILE_ROWS][2];
    const int every = apart == 1 || apart >= STRETCH ? 1 : STRETCH / apart; /* steps for which a line is prefetched */
    const int64_t c_row = t->c_row;
    const real *a = t->a, *b = t->b, *ahead = t->ahead, *begun = t->c + t->begun;
    VEC_UNROLL for (int i = 0; i < rows; i++) { VEC_UNROLL for (int j = 0; j < vectors; j++) sum[i][j] = v_zero(); }
    if (t->goes_on) {
        VEC_UNROLL for (int i = 0; i < rows; i++) {
            VEC_UNROLL for (int j = 0; j < vectors; j++) sum[i][j] = v_load(begun + i * c_row + j * VL);
        }
    }
    const int64_t *tap = t->tap, *end = tap + t->k, *ahead_tap = t->ahead_tap;
    for (int64_t lines = t->ahead_rows, more; tap < end; lines -= more) {
        const int64_t *stop = lines > 0 && end - tap > NHWC_AHEAD ? tap + NHWC_AHEAD : end;
        more = lines < t->ahead_row ? lines : t->ahead_row;
        for (int64_t i = 0; i < more; i++, ahead += STRETCH)
            __builtin_prefetch(ahead, 0, 2);
        if (ahead_tap) {
            for (; tap + every <= stop; tap += every, b += every * PANEL, ahead_tap += every) {
                __builtin_prefetch(a + *ahead_tap, 0, 3);
                VEC_UNROLL for (int i = 0; i < every; i++)
                    tile_nhwc_step(sum, a + tap[i], b + i * PANEL, rows, vectors, apart);
            }
        }
        for (; tap < stop; tap++, b += PANEL)
            tile_nhwc_step(sum, a + *tap, b, rows, vectors, apart);
    }
    if (t->to)
        tile_leave(t, sum, rows, vectors);
    else
        tile_keep(t, sum, rows, vectors);
}

#define TILE_NHWC_AS(name, rows, vectors, apart) \
    static void name##_##rows(const tile *t) { tile_turn(t, rows, vectors, apart); }
#define TILE_NHWC_SPLIT_AS(name, rows, first, second, apart) \
    static void name##_##rows(const tile *t) {               \
        tile below = *t;                                     \
        name##_##first(t);                                   \
        below.a += (first) * (apart);                        \
        below.c += (first)*t->c_row;                         \
        if (below.to) below.to += (first)*VL;                \
        if (below.also) below.also += (first)*VL;            \
        name##_##second(&below);                             \
    }
#if defined(TN_VEC_F64) || defined(TN_VEC_PAIRS)
static tile_fn *const *const tile_nhwc = NULL, *const *const tile_nhwc_half = NULL;
#else
#define TILE_NHWC(rows) TILE_NHWC_AS(tile_nhwc, rows, 2, 1) TILE_NHWC_AS(tile_nhwc_half, rows, 1, 1)
#define TILE_NHWC_SPLIT(rows, first, second)              \
    TILE_NHWC_SPLIT_AS(tile_nhwc, rows, first, second, 1) \
    TILE_NHWC_SPLIT_AS(tile_nhwc_half, rows, first, second, 1)
#define TILE_NHWC_ROW(rows) [rows] = tile_nhwc_##rows,
#define TILE_NHWC_SPLIT_ROW(rows, first, second) TILE_NHWC_ROW(rows)
#define TILE_HALF_ROW(rows) [rows] = tile_nhwc_half_##rows,
#define TILE_HALF_SPLIT_ROW(rows, first, second) TILE_HALF_ROW(rows)
NHWC_HEIGHTS(TILE_NHWC)
NHWC_SPLITS(TILE_NHWC_SPLIT)
static tile_fn *const tile_nhwc[] = {NHWC_HEIGHTS(TILE_NHWC_ROW) NHWC_SPLITS(TILE_NHWC_SPLIT_ROW)};
static tile_fn *const tile_nhwc_half[] = {NHWC_HEIGHTS(TILE_HALF_ROW) NHWC_SPLITS(TILE_HALF_SPLIT_ROW)};
#endif

#ifdef TN_VEC_WIDENED
/* Two steps whose products fit into 16 bits together. */
VEC_INLINE void tile_two_steps(V sum[TILE_ROWS][2], const real *a, const int64_t *tap, const real *b, const int rows,
                               const int vectors) {
    __m256i y[2][2];
    VEC_UNROLL for (int k = 0; k < 2; k++) {
        VEC_UNROLL for (int j = 0; j < vectors; j++) y[k][j] = (__m256i)v_load(b + k * PANEL + j * VL);
    }
    VEC_UNROLL for (int i = 0; i < rows; i++) {
        const __m256i x[2] = {(__m256i)v_set1(a[tap[0] + i]), (__m256i)v_set1(a[tap[1] + i])};
        VEC_UNROLL for (int j = 0; j < vectors; j++) {
            const __m256i pairs =
                _mm256_add_epi16(_mm256_maddubs_epi16(x[0], y[0][j]), _mm256_maddubs_epi16(x[1], y[1][j]));
            sum[i][j] = v_plus(sum[i][j], (V)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
        }
    }
}

/* A step whose filters are 16 bits wide: those of bytes 0 and 2 of each word, then those of bytes 1 and 3. */
VEC_INLINE void tile_wide_step(V sum[TILE_ROWS][2], const real *a, const real *b, const int rows, const int vectors) {
    VEC_UNROLL for (int half = 0; half < 2; half++, b += PANEL) {
        VEC_UNROLL for (int i = 0; i < rows; i++) {
            const __m256i word = (__m256i)v_set1(a[i]);
            const V x = (V)(half ? _mm256_srli_epi16(word, 8) : _mm256_and_si256(word, _mm256_set1_epi16(0xff)));
            VEC_UNROLL for (int j = 0; j < vectors; j++) {
                sum[i][j] = v_step(x, v_load(b + j * VL), sum[i][j]);
                __asm__("" : "+x"(sum[i][j])); /* a compiler would keep the products of both halves in registers */
            }
        }
    }
}

/* All steps of a chunk. */
VEC_INLINE void tile_in_order(const tile *t, const int rows, const int vectors) {
    V sum[TILE_ROWS][2];
    const real *b = t->b;
    const int64_t *tap = t->tap, *two = tap + t->two, *one = two + t->one, *end = tap + t->k;
    VEC_UNROLL for (int i = 0; i < rows; i++) { VEC_UNROLL for (int j = 0; j < vectors; j++) sum[i][j] = v_zero(); }
    for (; tap < two; tap += 2, b += 2 * PANEL)
        tile_two_steps(sum, t->a, tap, b, rows, vectors);
    for (; tap < one; tap++, b += PANEL)
        tile_nhwc_step(sum, t->a + *tap, b, rows, vectors, 1);
    for (; tap < end; tap++, b += 2 * PANEL)
        tile_wide_step(sum, t->a + *tap, b, rows, vectors);
    tile_keep(t, sum, rows, vectors);
}

#define TILE_ORDER(rows)                                                        \
    static void tile_order_##rows(const tile *t) { tile_in_order(t, rows, 2); } \
    static void tile_order_half_##rows(const tile *t) { tile_in_order(t, rows, 1); }
TILE_ORDER(1)
TILE_ORDER(2)
TILE_ORDER(3)
TILE_ORDER(4)
static tile_fn *const tile_order[ORDER_ROWS + 1] = {NULL, tile_order_1, tile_order_2, tile_order_3, tile_order_4};
static tile_fn *const tile_order_half[ORDER_ROWS + 1] = {NULL, tile_order_half_1, tile_order_half_2, tile_order_half_3,
                                                         tile_order_half_4};
#define BYTES_IN_ORDER .order = tile_order, .order_half = tile_order_half
#else
#define BYTES_IN_ORDER .order = NULL
#endif

#if defined(TN_VEC_F64) || defined(TN_VEC_PAIRS) || defined(TN_VEC_QUADS)
static tile_fn *const *const tile_blocks = NULL, *const *const tile_blocks_half = NULL;
#else
#define TILE_BLOCKS(rows) TILE_NHWC_AS(tile_blocks, rows, 2, VL) TILE_NHWC_AS(tile_blocks_half, rows, 1, VL)
#define TILE_BLOCKS_SPLIT(rows, first, second)               \
    TILE_NHWC_SPLIT_AS(tile_blocks, rows, first, second, VL) \
    TILE_NHWC_SPLIT_AS(tile_blocks_half, rows, first, second, VL)
#define TILE_BLOCKS_ROW(rows) [rows] = tile_blocks_##rows,
#define TILE_BLOCKS_SPLIT_ROW(rows, first, second) TILE_BLOCKS_ROW(rows)
#define TILE_BLOCKS_HALF_ROW(rows) [rows] = tile_blocks_half_##rows,
#define TILE_BLOCKS_HALF_SPLIT_ROW(rows, first, second) TILE_BLOCKS_HALF_ROW(rows)
NHWC_HEIGHTS(TILE_BLOCKS)
NHWC_SPLITS(TILE_BLOCKS_SPLIT)
static tile_fn *const tile_blocks[] = {NHWC_HEIGHTS(TILE_BLOCKS_ROW) NHWC_SPLITS(TILE_BLOCKS_SPLIT_ROW)};
static tile_fn *const tile_blocks_half[] = {NHWC_HEIGHTS(TILE_BLOCKS_HALF_ROW) NHWC_SPLITS(TILE_BLOCKS_HALF_SPLIT_ROW)};
#endif

#define TILE_FULL_ROW(rows) [rows] = tile_full_##rows,
#define TILE_EDGE_ROW(rows) [rows] = tile_edge_##rows,
#define TILE_FULL_SPLIT_ROW(rows, first, second) TILE_FULL_ROW(rows)
#define TILE_EDGE_SPLIT_ROW(rows, first, second) TILE_EDGE_ROW(rows)
static tile_fn *const tile_full[] = {TILE_HEIGHTS(TILE_FULL_ROW) TILE_SPLITS(TILE_FULL_SPLIT_ROW)};
static tile_fn *const tile_edge[] = {EDGE_HEIGHTS(TILE_EDGE_ROW) EDGE_SPLITS(TILE_EDGE_SPLIT_ROW)};
static tile_fn *const tile_wide[] = {NULL, tile_wide_1, tile_wide_2, tile_wide_3, tile_wide_4};
static const int tile_wide_panels[] = {1, WIDE_1, WIDE_2, WIDE_3, WIDE_4};
#ifdef TN_VEC_QUADS
static const bool lines_take[PACK_QUADS + 1];
#define lines_run NULL
#else
/* ==== few rows ==================================================================================================== */
/* An element of C is one chain along k, so the lanes of a vector are columns: a square of VL columns and VL steps is
 * read along k and transposed in registers; each element of B is read once, without a copy. */

/* Within a page the hardware prefetcher finds the next elements of each column, and prefetching them too is 10 % slower
 * (measured on Emerald Rapids). It stops at the end of a page, so the next page's first lines are prefetched there. */
enum { LINES_AHEAD = 256, PAGE = 4096, FIRST_LINES = 128 }; /* bytes of each column */

VEC_INLINE void lines_ask(const char *first, int64_t distance, int64_t columns) {
    first += LINES_AHEAD;
    if ((uintptr_t)first % PAGE >= FIRST_LINES) return;
    for (int64_t i = 0; i < columns; i++)
        __builtin_prefetch(first + i * distance);
}

/* The next columns start elsewhere, and the hardware does not know where: their first elements are prefetched `left`
 * bytes before the end of the current ones. */
VEC_INLINE void lines_ask_next(const char *next, int64_t distance, int64_t left) {
    if (left > LINES_AHEAD || left <= LINES_AHEAD - FIRST_LINES) return;
    next += LINES_AHEAD - left;
    for (int64_t i = 0; i < VL; i++)
        __builtin_prefetch(next + i * distance);
}

/* VL steps of each column, as rows along k. */
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
 * instead of the missing ones. `most`, `whole` and whether the kind is PACK_REAL are constant after inlining. */
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

#if defined(TN_VEC_F64) || defined(TN_VEC_QUADS)
#define ROUND NULL
#define ADD NULL
#define END NULL
#else
#define ROUND round_out
#define ADD add_out

/* Integer chains, added modulo 2³². */
VEC_INLINE void add_row(uint32_t *to, const int64_t stride, const real *from, int64_t columns, bool add) {
    for (int64_t j = 0; j < columns; j++)
        to[j * stride] = (add ? to[j * stride] : 0) + (uint32_t)(int32_t)from[j];
}

static void add_out(const result_block *r, bool add) {
    for (int64_t i = 0; i < r->rows; i++) {
        uint32_t *row = (uint32_t *)r->to + i * r->row_stride;
        if (r->col_stride == 1)
            add_row(row, 1, r->from + i * r->from_row, r->columns, add);
        else
            add_row(row, r->col_stride, r->from + i * r->from_row, r->columns, add);
    }
}

/* VL columns of a row, rounded. */
VEC_INLINE void round_columns(uint16_t *to, int64_t stride, const real *from, int64_t columns, bool brain) {
    V x = columns >= VL ? v_load(from) : v_part_load(from, v_mask(columns));
    v_halves h = brain ? v_narrow_bf16(x) : v_narrow_f16(x);
    if (columns >= VL && stride == 1) {
        memcpy(to, &h, sizeof h);
        return;
    }
    uint16_t one[VL];
    memcpy(one, &h, sizeof h);
    for (int64_t j = 0; j < columns && j < VL; j++)
        to[j * stride] = one[j];
}

#ifdef TN_VEC_PAIRS
#define END NULL
#else
#define END end_block

/* Columns of a row: `left` of them, at most a vector's. */
VEC_INLINE V end_columns(const epilogue_ops *e, V x, int64_t row, int64_t column, M mask) {
    if (e->add) {
        V add = v_part_load(e->add + column, mask);
        if (e->times) add = v_fma(v_set1(e->times[row * e->times_row]), add, v_set1(e->zero));
        x = x + add;
    }
    if (e->each) x = x + v_set1(e->each[row * e->each_row]);
    if (e->also) x = x + v_part_load(e->also + row * e->also_row + column, mask);
    if (e->relu) x = v_gate(x, e->gate ? v_part_load(e->gate + row * e->gate_row + column, mask) : x, v_zero());
    return v_clip(e, x);
}

static void end_block(const epilogue_block *b) {
    for (int64_t i = 0; i < b->rows; i++) {
        for (int64_t j = 0; j < b->columns; j += VL) {
            M mask = v_mask(b->columns - j);
            V x = v_part_load(b->from + i * b->from_row + j, mask);
            v_part_store(b->to + i * b->to_row + j, mask,
                         end_columns(b->epilogue_ops, x, b->row + i, b->column + j, mask));
        }
    }
}
#endif

static void round_out(const result_block *r, bool brain) {
    for (int64_t i = 0; i < r->rows; i++) {
        uint16_t *row = (uint16_t *)r->to + i * r->row_stride;
        for (int64_t j = 0; j < r->columns; j += VL)
            round_columns(row + j * r->col_stride, r->col_stride, r->from + i * r->from_row + j, r->columns - j, brain);
    }
}
#endif

#if defined(TN_VEC_PAIRS)
#define SET VEC_JOIN(tn_tiles_bf16, TN_ISA_SUFFIX)
#elif defined(TN_VEC_QUADS)
#define SET VEC_JOIN(tn_tiles_bytes, TN_DOT_SUFFIX)
#define BYTES &byte_rows
#elif defined(TN_VEC_F64)
#define SET VEC_JOIN(tn_tiles_f64, TN_ISA_SUFFIX)
#else
#define SET VEC_JOIN(tn_tiles_f32, TN_ISA_SUFFIX)
#endif

#ifdef TN_VEC_QUADS
static const byte_kernels byte_rows = {.round = round_to_bytes,
                                       .weigh = weigh_words,
                                       .pool = pool_words,
                                       .join = join_planes,
                                       .split = split_words,
                                       BYTES_IN_ORDER};
#else
#define BYTES NULL
#endif

const tile_set SET = {.full = tile_full,
                      .edge = tile_edge,
                      .wide = tile_wide,
                      .nhwc = tile_nhwc,
                      .nhwc_half = tile_nhwc_half,
                      .blocks = tile_blocks,
                      .blocks_half = tile_blocks_half,
                      .wide_panels = tile_wide_panels,
                      .pack = pack_run,
                      .lines = lines_run,
                      .lines_take = lines_take,
                      .end = END,
                      .round = ROUND,
                      .add = ADD,
                      .lanes = VL,
                      .rows = TILE_ROWS,
                      .width = WIDTH,
                      .folds = V_FOLDS,
                      .bytes = BYTES};
